# mlxvk. On a machine with nothing but git and make:
#
#   make run      install what is missing, build, let the small language model write    (MODEL=dir PROMPT="...")
#   make test     install what is missing, build, run all tests
#
# For working on it:
#
#   make          the library and every program, into build/
#   make engine              a renderer that shares its GPU with mlxvk, in a window (SDL2; ENGINE="--frames 300 --check")
#   make golden DIR=path     compare with MLX's own results in that folder
#   make test-profiles       tests as on devices that lack something (PROFILES=--sample, PROFILES="--only int64,subgroup")
#   make test-drivers        the golden data on other CPU drivers (DRIVERS="name=icd.json name=command",
#                            ON="--only swiftshader --files 'unary matmul' --sample 1/4")
#   make test-windows        tests as Windows programs, by mingw-w64, under Wine (WINDOWS=--sample: a part of them)
#   make test-threads        eight threads with each other's arrays and events under ThreadSanitizer (THREAD_ROUNDS=1000)
#   make test-cross          compiles for aarch64, riscv64, armhf, i386 and musl, runs on aarch64's Mesa (CROSS=--sample)
#   make test-embed          mlxvk in other projects: CMake, Meson, a Makefile; static, shared, twice, beside a volk
#   make fuzz SECONDS=600    random calls, random programs and damaged files under sanitizers and the validation layer
#                            (SEED=n, FUZZ="--scarce 5 --ops add,sum" for the calls, PROGRAMS="--keep-going" for the programs)
#   make fuzz-faults         each call of Vulkan's and each allocation failing in turn (FAULTS="--sample 1/50 --only vkMapMemory")
#   make test-watchdog       all tests with submissions of a millisecond at most, by estimate (WATCHDOG="array matmul")
#   make test-long TOKENS=100000 DEVICES=1000    a long text beside two streams, devices opened and closed: memory, work flat
#   make fuzz-inputs SECONDS=600     strangers' files, SPIR-V and arguments by clang's libFuzzer (INPUTS="gguf npy")
#   make fuzz-mlx SECONDS=600    random programs of Python on the stock MLX wheel: mlxvk against MLX's CPU (SEED=n;
#                            FUZZER=fuzz_calls: each of MLX's operations by itself, fuzz_loops: steps with state,
#                            fuzz_threads: several threads with each other's arrays)
#   make bench               measure
#   make bench-ops           plain operations beside the copy bandwidth of the same run
#   make bench-cliffs        fails where work takes over 1.5 times what nearly the same work takes (FAMILY=product)
#   make profile             a decode step and a prompt as timelines, build/profile/*.svg (MODEL=dir, RANDOM=0.6b,
#                            PROFILE="--bench 2048,1 --depth 4096")
#   make mlx                 stock MLX from PyPI in build/mlx, with mlxvk as its GPU (needs Python 3.10 or newer);
#                            make mlx MLX=0.30.3 another version, in build/mlx-0.30.3, and so with what follows
#   make validate            that step by step: from a Python expression to a Vulkan dispatch and back
#   make test-mlx            MLX's results on mlxvk against its own on the CPU, and mlx_lm
#   make test-mlx-own DIR=mlx    MLX's own tests in Python and C++, from a copy of its repository (or one of its two folders)
#   make bench-mlx           mlx_lm on random weights of Qwen3-0.6B's shape, and where the time goes
#   make test-metal          the compiler of Metal kernels: kernels against C++ on the device
#   make fuzz-metal SECONDS=600    damaged sources under sanitizers; random programs against the host's C++ compiler
#   make bench-distributed   collectives of ranks on this host's devices (DISTRIBUTED="--model 8b": Qwen3 over them, too)
#   make mlx-table           the table of primitives in README.md, from what the bridge says
#   make shaders             compile shaders/ into gen/ what changed (needs glslangValidator, xxd; GLSLANG=path)
#   make check-gen           is gen/ what shaders/ says? (no compiler needed)
#   make check               everything that can be checked, which is more than CI does
#   make dist                build/dist/mlxvk.h and mlxvk.c with nothing else to include
#   make clean
#
# Variants, each in its own folder: make SAN=1 ... (AddressSanitizer and UBSan), make CC=clang ...

ifeq ($(origin CC),default)
CC := gcc
endif
CXX ?= g++
NM ?= nm
GLSLANG ?= glslangValidator
SPIRV_VAL ?= spirv-val
MODEL ?= tests/models/tiny-qwen3
PROMPT ?= The ls command lists
DIR ?= tests/golden/data
export MODEL PROMPT DIR
TEST_TIMEOUT ?= 900

compiler := $(filter-out gcc cc,$(notdir $(firstword $(CC))))
windows := $(findstring mingw32,$(compiler))
variant := $(compiler)$(if $(and $(compiler),$(SAN)),-)$(if $(SAN),san)
BUILD ?= build$(addprefix /,$(variant))

WARNINGS := -Wall -Wextra -Wpedantic
WERROR ?= -Werror
CFLAGS ?= $(if $(SAN),-O1,-O2) -g
ifneq ($(SAN),)
sanitize := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -DMLXVK_CHECK_LOCKS
endif
flags = -std=c11 $(CFLAGS) $(WARNINGS) $(sanitize) -I. -Itests $(CPPFLAGS)
# libvulkan is not among them: it is loaded at run time.
LDLIBS := -ldl -lpthread -lm
qwen3_libs := -lcjson -lpcre2-8 -lutf8proc
test_libs := -lcmocka -lcjson
# For Windows: libraries that are built for it, and POSIX's functions for all but mlxvk.c, which needs none.
ifneq ($(windows),)
windows_libs := build/windows/$(compiler)
CPPFLAGS += -isystem $(windows_libs)/include -DPCRE2_STATIC -DUTF8PROC_STATIC
posix = -Itests/windows -include tests/windows/posix.h
LDLIBS := -static -lpthread -lm
qwen3_libs := -L$(windows_libs)/lib -ltests
test_libs := $(qwen3_libs)
endif

# ---- what there is: every folder of tests/ may be empty ----------------------------------------------------------
objects = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))
programs_of = $(patsubst tests/$(1)/%.c,$(BUILD)/$(1)/%,$(filter-out $(engine).c tests/$(1)/support%.c,\
                $(wildcard tests/$(1)/*.c)))
engine := tests/examples/engine# wants SDL2: built by make engine alone

lib := $(if $(wildcard mlxvk.c),$(BUILD)/libmlxvk.a)
qwen3_objects := $(call objects,$(filter-out %/main.c,$(wildcard tests/qwen3/*.c)))
qwen3_lib := $(if $(qwen3_objects),$(BUILD)/libqwen3.a)
qwen3 := $(if $(wildcard tests/qwen3/main.c),$(BUILD)/qwen3)
golden_objects := $(call objects,$(wildcard tests/golden/*.c))
golden := $(if $(golden_objects),$(BUILD)/golden)
support := $(call objects,$(wildcard tests/unit/support*.c))
units := $(call programs_of,unit)
benches := $(call programs_of,bench)
mlxc := $(patsubst tests/examples/mlxc/%.c,$(BUILD)/examples/mlxc_%,$(wildcard tests/examples/mlxc/*.c))
examples := $(call programs_of,examples) $(mlxc)
fuzzers := $(call programs_of,fuzz)
# Programs of other folders that include a header of tests/qwen3 link its parts.
with_qwen3 := $(shell grep -lE '^ *\# *include "(\.\./)?qwen3/' tests/*/*.c 2>/dev/null)
test_programs := $(units) $(golden) $(examples) $(fuzzers) $(qwen3)

.PHONY: all tests setup run test run-tests test-profiles test-drivers golden fuzz bench bench-ops bench-cliffs profile
.PHONY: test-threads test-cross test-embed fuzz-faults fuzz-inputs input-programs test-watchdog test-long setup-windows test-windows windows-programs run-windows
.PHONY: shaders engine engine-check
.PHONY: check-gen check dist clean
.PHONY: mlx mlx-ready validate test-mlx test-mlx-own fuzz-mlx bench-mlx bench-distributed mlx-table
.PHONY: test-metal fuzz-metal
.SECONDARY:
all_programs := $(test_programs) $(benches)
# The library first, here and below: its one file takes longest, and the rest fits beside it.
all: $(lib) $(all_programs)
tests: $(lib) $(test_programs)

# ---- compiling -----------------------------------------------------------------------------------------------------
$(BUILD)/obj/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "  CC      $<"
	@$(CC) $(flags) $(posix) $(WERROR) -MMD -MP -c $< -o $@

$(BUILD)/obj/mlxvk.o: posix :=
$(BUILD)/libmlxvk.a: $(BUILD)/obj/mlxvk.o
$(BUILD)/libqwen3.a: $(qwen3_objects)
$(lib) $(qwen3_lib):
	@echo "  AR      $@"
	@rm -f $@ && $(AR) rcs $@ $^

# Everything is compiled anew when the flags change.
$(BUILD)/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(CC) $(flags)' | cmp -s - $@ || echo '$(CC) $(flags)' >$@
FORCE:

keep_loaded := $(if $(SAN),$(BUILD)/obj/tests/tools/keep_loaded.o)
link = @mkdir -p $(@D) && echo "  LINK    $@" && \
       $(CC) $(sanitize) $(if $(SAN),-rdynamic) $(LDFLAGS) $(filter %.o,$^) $(filter %/libqwen3.a,$^) \
             $(filter %/libmlxvk.a,$^) -Wl,--as-needed $(libs) $(LDLIBS) -o $@ $(if $(windows),&& ln -f $@.exe $@)

$(all_programs): $(keep_loaded) $(if $(windows),$(call objects,tests/windows/posix.c))

qwen3_users := $(filter $(all_programs),$(patsubst tests/%.c,$(BUILD)/%,$(with_qwen3))) \
               $(if $(filter tests/golden/%,$(with_qwen3)),$(golden))
$(qwen3_users): $(qwen3_lib)
$(qwen3) $(qwen3_users): libs += $(qwen3_libs)
$(units): libs += $(test_libs)
$(golden): libs += $(if $(windows),$(test_libs),-lcjson)

$(BUILD)/qwen3: $(BUILD)/obj/tests/qwen3/main.o $(qwen3_lib) $(lib)
	$(link)

$(BUILD)/golden: $(golden_objects) $(lib)
	$(link)

$(units): $(BUILD)/unit/%: $(BUILD)/obj/tests/unit/%.o $(support) $(lib)
	$(link)

$(benches) $(filter-out $(mlxc),$(examples)) $(fuzzers): $(BUILD)/%: $(BUILD)/obj/tests/%.o $(lib)
	$(link)

$(BUILD)/fuzz/fuzz_faults: $(BUILD)/obj/tests/fuzz/layer/renderer.o
# Plans are made for the golden runner's cases and a benchmark's, random programs of the runner's calls.
cliffs := $(BUILD)/obj/tests/bench/support_cliffs.o
$(BUILD)/bench/bench_cliffs: $(cliffs)
$(BUILD)/unit/test_plans: $(filter-out %/main.o,$(golden_objects)) $(cliffs)
$(BUILD)/unit/test_neighbours: $(cliffs)
$(BUILD)/fuzz/fuzz_programs: $(call objects,$(wildcard tests/fuzz/support*.c)) $(filter-out %/main.o,$(golden_objects))
$(BUILD)/fuzz/fuzz_programs: libs += -lcjson

# Programs for mlx-c: renamed, and nothing else.
$(BUILD)/mlxc/%.c: tests/examples/mlxc/%.c Makefile
	@mkdir -p $(@D)
	@sed -E 's/\bmlx_/mlxvk_/g; s/\bMLX_/MLXVK_/g; s,"mlx/c/mlx\.h","mlxvk.h",' $< >$@

$(mlxc): $(BUILD)/examples/mlxc_%: $(BUILD)/obj/$(BUILD)/mlxc/%.o $(lib)
	$(link)

# ---- running -------------------------------------------------------------------------------------------------------
# make run and make test prepare the machine first, so what they build is built by a second make. They are for
# people with any compiler: warnings do not stop them, unless WERROR says so.
parallel = $(if $(filter -j% j%,$(MAKEFLAGS)),,-j$(shell nproc 2>/dev/null || echo 2))
build = $(MAKE) -s --no-print-directory $(parallel) $(if $(filter file,$(origin WERROR)),WERROR=)

setup:
	@tests/tools/setup build test

run:
	@tests/tools/setup build
	@$(build) $(BUILD)/qwen3
	@$(BUILD)/qwen3 --model "$$MODEL" --prompt "$$PROMPT"

test:
	@tests/tools/setup build test
	@tests/tools/build-shaders --check >/dev/null || echo "warning: gen/ is not what shaders/ says"
	@$(build) $(if $(UNITS),$(lib) $(filter-out $(units),$(test_programs)) $(units_run),tests)
	@$(MAKE) --no-print-directory run-tests

# What make test runs, without preparing and building; RUNNER adds options of tests/tools/run-tests, GOLDEN of the golden
# runner; UNITS=k/n: the k-th of n parts of the unit programs, and those named in ALSO.
golden_data := $(wildcard tests/golden/data)
PROGRAMS_SEED ?= 1
PROGRAMS_SECONDS ?= 20
units_run = $(shell tests/tools/part 1/1 $(sort $(shell tests/tools/part $(or $(UNITS),1/1) $(units)) \
    $(addprefix $(BUILD)/unit/,$(ALSO))))
run-tests:
	@tests/tools/run-tests -t $(TEST_TIMEOUT) -l $(BUILD)/logs $(RUNNER) \
	    $(if $(and $(golden),$(golden_data)),"$(golden) $(golden_data) $(GOLDEN)" "random-calls: MLX_VK_POISON=2 $(golden) --fuzz 10") \
	    "random-programs: $(BUILD)/fuzz/fuzz_programs --seconds $(PROGRAMS_SECONDS) --seed $(PROGRAMS_SEED)" \
	    "damaged-files: $(BUILD)/fuzz/fuzz_qwen3 1000" \
	    $(or $(units_run),$(if $(units),$(error there is no part $(UNITS) of the unit programs))) $(examples)

# A program in a window; engine-check has one without a screen, and looks at what it shows.
engine_program := $(BUILD)/examples/engine
$(engine_program): $(BUILD)/obj/$(engine).o $(qwen3_lib) $(lib) $(keep_loaded)
	$(link)
$(engine_program): libs += $(qwen3_libs) -lSDL2 -lpng

engine:
	@tests/tools/setup build engine
	@$(build) $(engine_program)
	@$(engine_program) --model "$$MODEL" --prompt "$$PROMPT" $(ENGINE)

engine-check:
	@tests/tools/setup build engine
	@$(build) $(engine_program)
	@tests/tools/run-tests -t $(TEST_TIMEOUT) -l $(BUILD)/engine_logs $(RUNNER) \
	    "engine: SDL_VIDEODRIVER=x11 xvfb-run -a $(engine_program) --frames 60 --fast --check --picture $(BUILD)/engine.png"
	@cat $(BUILD)/engine_logs/engine.out

test-profiles: $(golden) $(units)
	@tests/tools/profiles --check README.md $(PROFILES) $(golden) "$$DIR" $(units)

test-drivers: $(golden) $(units)
	@tests/tools/setup drivers || true
	@tests/tools/drivers $(ON) $(golden) "$$DIR" $(BUILD)/unit $(DRIVERS)

# All but the tests of programs' command lines, which start them as POSIX does, and of memory by POSIX's pages and
# descriptors. Each library and program is an .exe's.
windows_cc := x86_64-w64-mingw32-gcc
windows_units := $(filter-out %_cli %/test_shared,$(if $(filter --sample,$(WINDOWS)),$(patsubst %,$(BUILD)/unit/test_%,\
    array device driver errors memory mlxc safetensors stream tokenizer),$(units)))
setup-windows:
	@tests/tools/setup windows
	@tests/tools/windows-libraries $(windows_cc) build/windows/$(windows_cc)

test-windows: setup-windows
	@$(build) CC=$(windows_cc) CFLAGS="-O1 -g" windows-programs
	@tests/tools/wine --session $(MAKE) --no-print-directory CC=$(windows_cc) CFLAGS="-O1 -g" run-windows

windows-programs: $(lib) $(qwen3) $(golden) $(windows_units)
run-windows:
	@tests/tools/run-tests -t $(TEST_TIMEOUT) -l build/windows/logs \
	    "qwen3: tests/tools/wine $(qwen3).exe --model $(MODEL) --check $(MODEL)/reference.json" \
	    "golden: tests/tools/wine $(golden).exe $(golden_data) $(if $(filter --sample,$(WINDOWS)),--sample 1/16)" \
	    $(foreach u,$(windows_units),"$(notdir $(u)): tests/tools/wine $(u).exe")

# Threads under ThreadSanitizer, with the order of locks asserted.
THREAD_ROUNDS ?= 200
test-threads:
	@tests/tools/setup build
	@$(build) BUILD=build/tsan CFLAGS="-O1 -g -fsanitize=thread -rdynamic -DMLXVK_CHECK_LOCKS" LDFLAGS=-fsanitize=thread \
	    build/tsan/obj/tests/tools/keep_loaded.o build/tsan/fuzz/fuzz_threads keep_loaded=build/tsan/obj/tests/tools/keep_loaded.o
	@TSAN_OPTIONS=suppressions=tests/tools/tsan.supp build/tsan/fuzz/fuzz_threads $(THREAD_ROUNDS)

# As for drivers that end what runs for long. The tests of submissions themselves count them, with gates of their own.
watchdog_units := $(if $(WATCHDOG),$(patsubst %,$(BUILD)/unit/test_%,$(WATCHDOG)),$(units))
test-watchdog: $(golden) $(qwen3) $(watchdog_units)
	@MLX_VK_MAX_MS_PER_BUFFER=1 tests/tools/run-tests -t $(TEST_TIMEOUT) -l $(BUILD)/watchdog_logs $(RUNNER) \
	    "golden: $(golden) $(golden_data) $(if $(WATCHDOG),--sample 1/16)" $(watchdog_units)

test-long: $(BUILD)/fuzz/fuzz_long
	@$< $(TOKENS) $(DEVICES)
TOKENS ?= 100000
DEVICES ?= 1000

test-cross:
	@tests/tools/setup build test cross
	@tests/tools/cross $(CROSS)

test-embed:
	@tests/tools/setup build embed
	@tests/tools/embed

golden: $(golden)
	@$(BUILD)/golden "$$DIR"

# The same for long; make test does some of it, too. They are compiled with sanitizers here, whatever SAN says.
SECONDS := 600
SEED ?= $(shell date +%s)
fuzz:
	@tests/tools/setup build test ci
	@$(build) SAN=1 BUILD=$(fuzz_build) $(fuzz_build)/golden $(fuzz_build)/fuzz/fuzz_programs $(fuzz_build)/fuzz/fuzz_qwen3
	@tests/tools/run-tests -t $$(($(SECONDS) + 300)) -l $(fuzz_build)/fuzz_logs --validation \
	    "random-calls: MLX_VK_POISON=$${MLX_VK_POISON:-2} $(fuzz_build)/golden --fuzz $(SECONDS) --seed $(SEED) $(FUZZ)" \
	    "random-programs: $(fuzz_build)/fuzz/fuzz_programs --seconds $(SECONDS) --seed $(SEED) $(PROGRAMS)" \
	    "damaged-files: $(fuzz_build)/fuzz/fuzz_qwen3 $$(($(SECONDS) * 100)) $(SEED)"
	@tail -n 20 $(fuzz_build)/fuzz_logs/random-*.out $(fuzz_build)/fuzz_logs/damaged-files.out
fuzz_build := build/$(addsuffix -,$(compiler))san

# A fault a run, under AddressSanitizer; the layer that makes them is compiled without.
FAULTS ?=
faults := $(fuzz_build)/fuzz/layer
fuzz-faults:
	@tests/tools/setup build test
	@$(build) SAN=1 BUILD=$(fuzz_build) $(fuzz_build)/fuzz/fuzz_faults $(fuzz_build)/qwen3 $(faults)/libfaults.so
	@. tests/tools/sanitizers && $(fuzz_build)/fuzz/fuzz_faults $(FAULTS) --qwen3 $(fuzz_build)/qwen3 $(MODEL) $(faults)

$(BUILD)/fuzz/layer/libfaults.so: tests/fuzz/layer/faults.c tests/fuzz/layer/faults.h tests/fuzz/layer/faults.json
	@mkdir -p $(@D)
	@$(CC) -std=c11 -O2 -g $(WARNINGS) $(WERROR) -fPIC -shared -fvisibility=hidden $< -o $@ && cp $(<:.c=.json) $(@D)/

# Strangers' files and arguments: each of libFuzzer's targets for so many seconds, from the inputs in tests/fuzz/corpus on.
# Inputs that it adds lie in build/inputs/corpus, those that it ends with in build/inputs/found.
INPUTS ?= $(patsubst tests/fuzz/inputs/%.c,%,$(filter-out %/support.c,$(wildcard tests/fuzz/inputs/*.c)))
inputs := $(addprefix $(BUILD)/inputs/,$(INPUTS))
input_options := -max_total_time=$(SECONDS) -timeout=60 -rss_limit_mb=4096 -artifact_prefix=build/inputs/found/
fuzz-inputs:
	@tests/tools/setup build ci
	@$(build) SAN=1 BUILD=build/inputs CC=clang CFLAGS="-O1 -gline-tables-only -fsanitize=fuzzer-no-link" input-programs
	@mkdir -p build/inputs/found $(addprefix build/inputs/corpus/,$(INPUTS))
	@tests/tools/run-tests -j $(or $(INPUT_JOBS),1) -t $$(($(SECONDS) + 300)) -l build/inputs/logs $(foreach i,$(INPUTS),"$(i): build/inputs/inputs/$(i) \
	    $(input_options)$(i)- -seed=$(SEED) -max_len=$(or $(max_len_$(i)),4096) build/inputs/corpus/$(i) tests/fuzz/corpus/$(i)")
	@tail -qn 1 $(foreach i,$(INPUTS),build/inputs/logs/$(i).err)
max_len_operations := 256
max_len_spirv := 16384

input-programs: $(lib) $(inputs)
$(inputs): LDFLAGS += -fsanitize=fuzzer
$(inputs): $(BUILD)/inputs/%: $(call objects,tests/fuzz/inputs/%.c tests/fuzz/inputs/support.c) $(qwen3_lib) $(lib) $(keep_loaded)
	$(link)
$(inputs): libs += $(qwen3_libs)
$(BUILD)/inputs/operations: $(filter-out %/main.o,$(golden_objects))

bench: $(benches) $(qwen3)
	@if [ -x tests/bench/run ]; then BUILD=$(BUILD) tests/bench/run; \
	 else for b in $(benches); do echo "== $$b"; $$b || exit 1; done; fi

bench-ops: $(BUILD)/bench/bench_ops
	@$<

bench-cliffs: $(BUILD)/bench/bench_cliffs
	@$< $(FAMILY)

# Each dispatch of a prompt and of a decode step; drawn with Python and matplotlib.
profile:
	@tests/tools/setup build picture
	@$(build) $(BUILD)/qwen3
	@mkdir -p build/profile
	@$(BUILD)/qwen3 $(if $(RANDOM),--random "$(RANDOM)",--model "$$MODEL") --profile build/profile/dispatches.csv $(PROFILE)
	@tests/tools/timeline build/profile/dispatches.csv build/profile

# ---- the stock MLX wheel on mlxvk ------------------------------------------------------------------------------------
# Everything in one folder of its own: a virtual environment, and in it the bridge (tests/mlx/*.cpp and mlxvk.c in one
# library). Nothing else but make profile needs Python.
# Without a net: PIP_NO_INDEX=1 PIP_FIND_LINKS=folder-of-wheels make mlx
MLX ?= 0.32.4
mlx := build/mlx$(addprefix -,$(filter-out 0.32.4,$(MLX)))
mlx_wanted := $(firstword $(wildcard tests/mlx/requirements-$(MLX).txt) tests/mlx/requirements.txt)
mlx_python := $(mlx)/bin/python
mlx_library := $(mlx)/libmlxvk_mlx.so
mlx_site = $$(echo $(mlx)/lib/python3*/site-packages)
PYTHON ?= python3
metal_library := $(filter-out tests/mlx/metal/test_% tests/mlx/metal/fuzz_%,$(wildcard tests/mlx/metal/*.cpp))
MLX_SOURCES ?= $(wildcard tests/mlx/*.cpp) $(metal_library)
MLX_CXXFLAGS ?= -O2 -g
MLX_MODEL ?= $(mlx)/qwen3-0.6b-random
mlx_parts := $(patsubst %.cpp,$(mlx)/obj/%.o,$(filter-out %/hooks.cpp tests/mlx/metal/%,$(MLX_SOURCES)))
mlx_objects := build/pic/mlxvk.o $(mlx_parts) $(patsubst %.cpp,$(mlx)/obj/%.o,$(filter %/hooks.cpp,$(MLX_SOURCES))) \
               $(patsubst %.cpp,build/pic/%.o,$(filter tests/mlx/metal/%,$(MLX_SOURCES)))

# Ready to use, quickly when nothing changed. What does not wait for MLX is compiled while pip installs it.
mlx-ready:
	@tests/tools/setup build mlx
	@$(build) $(mlx)/installed $(filter build/pic/%,$(mlx_objects))
	@$(build) $(mlx_library)

mlx: mlx-ready
	@$(mlx_python) -m mlxvk_mlx --info || true
	@echo
	@echo '  $(mlx_python) -m mlxvk_mlx -m mlx_lm generate --model $(MODEL) --ignore-chat-template --prompt "$$PROMPT"'
	@echo '  $(mlx_python) -m mlxvk_mlx script.py ARGUMENTS          (--help says the rest)'
	@echo '  LD_PRELOAD=$(abspath $(mlx_library)) program'

$(mlx)/installed: $(mlx_wanted)
	@echo "  PIP     $(mlx)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "MLX needs Python 3.10 or newer; try make PYTHON=...")'
	@$(mlx_python) -m pip --version >/dev/null 2>&1 || { rm -rf $(mlx) && $(PYTHON) -m venv $(mlx); }
	@sed 's/^mlx\[cpu]==.*/mlx[cpu]==$(MLX)/' $< >$(mlx)/requirements.txt
	@$(mlx_python) -m pip install --disable-pip-version-check -q -r $(mlx)/requirements.txt
	@ln -sfn ../../../../../tests/mlx/mlxvk_mlx $(mlx_site)/mlxvk_mlx
	@touch $@

mlx_flags = -g -fPIC $(WARNINGS:-Wpedantic=) -I. -Itests
$(mlx)/obj/%.o: %.cpp $(mlx)/installed $(mlx)/flags
	@mkdir -p $(@D)
	@echo "  CXX     $<"
	@$(CXX) -std=c++20 $(MLX_CXXFLAGS) $(mlx_flags) -isystem $(mlx_site)/mlx/include $(WERROR) -MMD -MP -c $< -o $@

# What the bridge defines and what it calls in MLX's namespace, by the names that the installed headers give it.
$(mlx)/obj/hooks.inc: $(mlx_parts) $(mlx)/sources
	@$(NM) $(mlx_parts) | awk '$$NF !~ /^_Z(TV)?NK?3mlx4core/ { next } \
	    $$(NF - 1) == "T" { ours[$$NF] } $$(NF - 1) == "U" { called[$$NF] } \
	    END { for (name in ours) print "HOOK(" name ")"; \
	      for (name in called) if (!(name in ours)) print (name ~ /^_ZTV/ ? "CLASS(" : "CALL(") name ")" }' | sort >$@
$(mlx)/obj/tests/mlx/hooks.o: $(mlx)/obj/hooks.inc
$(mlx)/obj/tests/mlx/hooks.o: mlx_flags += -I$(mlx)/obj

# What knows nothing of MLX is the same beside all its versions.
build/pic/%.o: %.cpp build/pic/flags
	@mkdir -p $(@D)
	@echo "  CXX     $<"
	@$(CXX) -std=c++20 $(MLX_CXXFLAGS) $(mlx_flags) $(WERROR) -MMD -MP -c $< -o $@

build/pic/mlxvk.o: mlxvk.c build/pic/flags
	@mkdir -p $(@D)
	@echo "  CC      $<"
	@$(CC) -std=c11 -O2 $(mlx_flags) $(WERROR) -MMD -MP -c $< -o $@

# Compiled anew when the flags change, linked anew when a file goes.
mlx_said = @mkdir -p $(@D); echo '$(1)' | cmp -s - $@ || echo '$(1)' >$@
$(mlx)/flags build/pic/flags: FORCE
	$(call mlx_said,$(CC) $(CXX) $(MLX_CXXFLAGS) $(mlx_flags))
$(mlx)/sources: FORCE
	$(call mlx_said,$(MLX_SOURCES))

# It is not linked to MLX, but looks for libmlx.so where it is built, and beside MLX when it is in a folder of its own there;
# LD_LIBRARY_PATH wins.
$(mlx_library): $(mlx_objects) $(mlx)/sources tests/mlx/exports.map
	@echo "  LINK    $@"
	@site=$(mlx_site); $(CXX) -shared -Wl,--no-undefined -Wl,--enable-new-dtags -Wl,--version-script=tests/mlx/exports.map \
	    "-Wl,-rpath,\$$ORIGIN/$${site#$(mlx)/}/mlx/lib:\$$ORIGIN/../mlx/lib" \
	    $(filter %.o,$^) $(LDLIBS) -o $@.new && mv $@.new $@

validate: mlx-ready
	@$(mlx_python) tests/mlx/validate.py

# Each file in a process of its own, so that a crash costs one file.
test-mlx: mlx-ready
	@tests/tools/run-tests -j $(or $(MLX_JOBS),2) -t $(TEST_TIMEOUT) -l $(mlx)/logs \
	    $(foreach t,$(or $(TESTS),$(shell tests/tools/part 1/1 $(sort $(wildcard tests/mlx/test_*.py)))),"$(basename $(notdir $(t))): $(mlx_python) tests/mlx/runner.py $(t)")

# MLX's own tests, from a copy of its repository: DIR=mlx, or one of its folders of tests, mlx/python/tests and mlx/tests. Those
# in C++ are compiled against the wheel, each file into a program of its own. residency_tests.cpp is of Metal's classes.
own := $(mlx)/own
own_main := $(firstword $(wildcard $(addsuffix tests.cpp,$(dir $(firstword $(filter %.cpp,$(TESTS))))) \
                        $(DIR)/tests.cpp $(DIR)/tests/tests.cpp))
own_tests := $(or $(TESTS),$(sort $(wildcard $(addprefix $(DIR)/,test_*.py python/tests/test_*.py))) $(if $(own_main),\
                 $(filter-out %/residency_tests.cpp,$(sort $(wildcard $(addprefix $(dir $(own_main)),*_tests.cpp test_*.cpp))))))
own_cpp := $(filter %.cpp,$(if $(filter test-mlx-own own-programs,$(MAKECMDGOALS)),$(own_tests)))
own_program = $(own)/$(basename $(notdir $(1)))
own_run = $(if $(filter %.py,$(1)),$(mlx_python) tests/mlx/runner.py $(1),test -x $(own_program) || { cat \
              $(own_program).err; exit 1; }; LD_PRELOAD=$(abspath $(mlx_library)) $(own_program))
own_linked = -L$(mlx_site)/mlx/lib -lmlx -Wl,-rpath,$(CURDIR)/$(mlx_site)/mlx/lib -Wl,--allow-shlib-undefined

test-mlx-own: mlx-ready
	@$(if $(own_cpp),tests/tools/setup own && { $(build) -k own-programs || true; })
	@$(mlx_python) -m mlxvk_mlx --info
	@tests/tools/run-tests -j $(or $(MLX_JOBS),2) -t $(or $(OWN_TIMEOUT),1800) -l $(mlx)/own_logs \
	    $(foreach t,$(own_tests),"$(basename $(notdir $(t))): $(call own_run,$(t))")

.PHONY: own-programs
own-programs: $(foreach t,$(own_cpp),$(call own_program,$(t)))
define own_rules
$(call own_program,$(1)): $(call own_program,$(1)).o $(if $(filter %_tests.cpp,$(1)),$(own)/tests.o)
	@$$(CXX) $$^ $$(own_linked) -o $$@
$(call own_program,$(1)).o: $(1) $(mlx)/installed $(own)/flags
	@echo "  CXX     $$<"
	@rm -f $$(@:.o=)
	@$$(CXX) -std=c++20 -isystem $$(mlx_site)/mlx/include -c $$< -o $$@ 2>$$(@:.o=.err) || { echo '  does not compile: $$<'; exit 1; }
endef
$(foreach t,$(sort $(own_main) $(own_cpp)),$(eval $(call own_rules,$(t))))
$(own)/flags: FORCE
	$(call mlx_said,$(CXX) $(DIR))

fuzz-mlx: mlx-ready
	@$(mlx_python) tests/mlx/$(or $(FUZZER),fuzz).py --seconds $(SECONDS) --seed $(SEED) $(PROGRAMS)

bench-mlx: mlx-ready
	@$(mlx_python) tests/mlx/bench.py --model $(MLX_MODEL)

bench-distributed: mlx-ready
	@$(mlx_python) tests/mlx/bench_distributed.py --library $(mlx_library) $(DISTRIBUTED)

mlx-table: mlx-ready
	@$(mlx_python) tests/mlx/table.py README.md

-include $(shell find $(mlx)/obj build/pic -name '*.d' 2>/dev/null)

# ---- Metal kernels -------------------------------------------------------------------------------------------------
# The compiler is C++ of tests/mlx/metal; the bridge has it, and these programs.
metal_objects = $(patsubst %.cpp,$(BUILD)/obj/%.o,$(1))
cxx_flags = -std=c++17 $(CFLAGS) $(WARNINGS) $(sanitize) -I. -Itests $(CPPFLAGS)

$(BUILD)/obj/tests/mlx/metal/%.o: tests/mlx/metal/%.cpp $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "  CXX     $<"
	@$(CXX) $(cxx_flags) $(WERROR) -MMD -MP -c $< -o $@

$(BUILD)/libmetal.a: $(call metal_objects,$(metal_library))
	@echo "  AR      $@"
	@rm -f $@ && $(AR) rcs $@ $^

link_cxx = @mkdir -p $(@D) && echo "  LINK    $@" && \
           $(CXX) $(sanitize) $(LDFLAGS) $(filter %.o,$^) $(filter %.a,$^) $(LDLIBS) -o $@
$(BUILD)/metal/test_metal: $(call metal_objects,$(wildcard tests/mlx/metal/test_*.cpp)) $(BUILD)/libmetal.a $(lib)
	$(link_cxx)
$(BUILD)/metal/fuzz_sources: $(call metal_objects,tests/mlx/metal/fuzz_sources.cpp) $(BUILD)/libmetal.a
	$(link_cxx)

# Its support without the tests' own main.
$(BUILD)/metal/fuzz_run: $(call metal_objects,tests/mlx/metal/fuzz_run.cpp tests/mlx/metal/test_support.cpp) \
                         $(BUILD)/libmetal.a $(lib)
	$(link_cxx)

test-metal:
	@$(build) $(BUILD)/metal/test_metal
	@$(BUILD)/metal/test_metal

fuzz-metal:
	@$(build) SAN=1 BUILD=$(fuzz_build) $(fuzz_build)/metal/fuzz_sources
	@$(build) $(BUILD)/metal/fuzz_run
	@$(fuzz_build)/metal/fuzz_sources $(SECONDS) $(SEED)
	@$(PYTHON) tests/mlx/metal/fuzz_programs.py --runner $(BUILD)/metal/fuzz_run --seconds $(SECONDS) --seed $(SEED)

# ---- generated files -------------------------------------------------------------------------------------------------
shaders:
	@GLSLANG="$(GLSLANG)" SPIRV_VAL="$(SPIRV_VAL)" BUILD=build tests/tools/build-shaders

check-gen:
	@tests/tools/build-shaders --check

# One pair of files with the SPIR-V inside; tests/tools/check dist compiles and runs it.
dist:
	@tests/tools/make-dist build/dist

# Sections of it alone: tests/tools/check SECTION ...
check:
	@tests/tools/setup build test ci mlx
	@tests/tools/check

clean:
	rm -rf build

-include $(shell find $(BUILD)/obj -name '*.d' 2>/dev/null)
