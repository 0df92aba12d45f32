"""What the bridge does where it cannot go into MLX: one line, and the program runs as without it."""

import pathlib
import shutil
import struct
import subprocess
import sys
import threading

import mlx.core as mx
import mlxvk_mlx
import pytest

import support

ASK = "import mlx.core as mx; print(mx.default_device(), (mx.ones(3) + 1).tolist(), mx.arange(4).sum().item())"
ON_CPU, ON_GPU = ("Device(%s, 0) [2.0, 2.0, 2.0] 6\n" % device for device in ("cpu", "gpu"))
WHEEL = mlxvk_mlx._mlx_folder() / "lib" / "libmlx.so"
EVAL = b"\0_ZN3mlx4core3gpu4evalERNS0_5arrayE\0"


def run(*command, preload=mlxvk_mlx.library(), **environment):
    """A program with the bridge preloaded: what it printed, and the bridge's lines."""
    kept = {name: value for name, value in support.os.environ.items() if name != "MLXVK_MLX_PARENT"}
    got = subprocess.run(command or (sys.executable, "-B", "-c", ASK), env={**kept, "LD_PRELOAD": preload, **environment}, timeout=120,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert got.returncode == 0, got.stderr
    return got.stdout, got.stderr.splitlines()


def copy_of_mlx(folder, change):
    """A folder with a libmlx.so of its own, which LD_LIBRARY_PATH puts before the wheel's."""
    data = change(WHEEL.read_bytes())
    (folder / "libmlx.so").write_bytes(data)
    return ":".join([str(folder)] + [str(p) for p in WHEEL.parents[2].glob("mlx_cpu.libs")])


def one_line(lines, *words):
    assert len(lines) == 1 and lines[0].startswith("mlxvk: "), lines
    for word in words:
        assert word in lines[0], (word, lines[0])


def replaced(old, new):
    def change(data):
        assert old in data and len(old) == len(new)
        return data.replace(old, new)
    return change


def renamed(old, new):
    """In the names of .symtab, not in those that the loader reads."""
    def change(data):
        offset, count = struct.unpack_from("<Q", data, 0x28)[0], struct.unpack_from("<H", data, 0x3c)[0]
        sections = [struct.unpack_from("<IIQQQQII", data, offset + 64 * i) for i in range(count)]
        start, size = next(sections[s[6]][4:6] for s in sections if s[1] == 2)
        at = data.index(old, start, start + size)
        assert len(old) == len(new)
        return data[:at] + new + data[at + len(old):]
    return change


def test_it_is_there():
    assert run() == (ON_GPU, [])
    assert mlxvk_mlx.problem() == ""


def test_a_copy_works_like_the_wheel(tmp_path):
    assert run(LD_LIBRARY_PATH=copy_of_mlx(tmp_path, lambda data: data)) == (ON_GPU, [])


def test_another_version(tmp_path):
    version = b"\0" + mx.__version__.encode() + b"\0"
    path = copy_of_mlx(tmp_path, replaced(version, b"\0" + b"9" * (len(version) - 2) + b"\0"))
    out, lines = run(LD_LIBRARY_PATH=path)
    assert out == ON_CPU
    one_line(lines, "9999", "built for " + mx.__version__, "Known to work", "make mlx")


def test_a_function_that_is_missing(tmp_path):
    out, lines = run(LD_LIBRARY_PATH=copy_of_mlx(tmp_path, renamed(EVAL, EVAL.replace(b"eval", b"Eval"))))
    assert out == ON_CPU
    one_line(lines, "mlx::core::gpu::eval(mlx::core::array&)", "Known to work", mx.__version__)


def test_a_function_that_is_there_twice(tmp_path):
    """cpu::eval under the name of gpu::eval."""
    out, lines = run(LD_LIBRARY_PATH=copy_of_mlx(tmp_path, renamed(EVAL.replace(b"gpu", b"cpu"), EVAL)))
    assert out == ON_CPU
    one_line(lines, "mlx::core::")


@pytest.mark.skipif(not shutil.which("strip"), reason="no strip")
def test_stripped(tmp_path):
    path = copy_of_mlx(tmp_path, lambda data: data)
    subprocess.run(["strip", str(tmp_path / "libmlx.so")], check=True)
    out, lines = run(LD_LIBRARY_PATH=path)
    assert out == ON_CPU
    one_line(lines, ".symtab", "Known to work")


def test_two_bridges(tmp_path):
    second = tmp_path / "second.so"
    shutil.copy(mlxvk_mlx.library(), second)
    out, lines = run(preload="%s %s" % (mlxvk_mlx.library(), second), LD_LIBRARY_PATH=str(WHEEL.parent))
    assert out == ON_GPU
    one_line(lines, "another bridge", "goes on as it is")


def test_no_device():
    out, lines = run(VK_DRIVER_FILES="/nowhere.json", VK_ICD_FILENAMES="/nowhere.json")
    assert out == ON_CPU
    one_line(lines, "no Vulkan device")
    out, lines = run(sys.executable, "-B", "-c", ASK + "; import mlxvk_mlx; print(mlxvk_mlx.problem())", MLX_VK_DEVICE="nowhere")
    one_line(lines, "no Vulkan device", "nowhere")
    assert out == ON_CPU + lines[0].removeprefix("mlxvk: ") + "\n"        # which the program may ask for


def test_a_program_without_mlx():
    out, lines = run("/bin/sh", "-c", "/bin/echo here; /bin/echo there")
    assert out == "here\nthere\n"
    one_line(lines, "no MLX", "LD_PRELOAD")                # what it starts says nothing again


def test_children_of_a_program_with_mlx():
    code = ASK + "; import subprocess; subprocess.run(['/bin/echo', 'child'])"
    out, lines = run(sys.executable, "-u", "-B", "-c", code)
    assert out == ON_GPU + "child\n" and not lines


def test_no_page_is_writable_and_executable():
    maps = pathlib.Path("/proc/self/maps").read_text().splitlines()
    pages = [line.split()[1] for line in maps if line.endswith("/libmlx.so")]
    assert any("x" in p for p in pages) and not any("x" in p and "w" in p for p in pages)


OWN_NEW = """
#include <cstdlib>
#include <new>
/* Not malloc()'s pieces: who frees one as such, or takes malloc()'s for one of these, ends here. */
void* operator new(std::size_t size) {
  auto* head = static_cast<std::size_t*>(std::malloc(size + 16));
  if (!head) throw std::bad_alloc();
  head[0] = 0x5EED;
  return head + 2;
}
static void give(void* piece) {
  if (!piece) return;
  auto* head = static_cast<std::size_t*>(piece) - 2;
  if (head[0] != 0x5EED) std::abort();
  head[0] = 0;
  std::free(head);
}
void operator delete(void* piece) noexcept { give(piece); }
void operator delete(void* piece, std::size_t) noexcept { give(piece); }
"""


@pytest.mark.skipif(not shutil.which("c++"), reason="no C++ compiler")
def test_an_operator_new_of_the_program(tmp_path):
    """The bridge's lists of small memory take malloc()'s pieces alone."""
    (tmp_path / "own.cpp").write_text(OWN_NEW)
    own = tmp_path / "own.so"
    subprocess.run(["c++", "-O1", "-shared", "-fPIC", str(tmp_path / "own.cpp"), "-o", str(own)], check=True)
    assert run(preload="%s %s" % (own, mlxvk_mlx.library()), LD_LIBRARY_PATH=str(WHEEL.parent)) == (ON_GPU, [])


def test_small_memory_that_another_thread_lets_go_of():
    """Graphs are made in some threads and go in another, more than a thread keeps."""
    for _ in range(3):
        made = [None] * 4

        def make(i):
            made[i] = [mx.array(float(n)) * 2 + i for n in range(5000)]
        threads = [threading.Thread(target=make, args=(i,)) for i in range(len(made))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        sums = [x[-1] + x[7] for x in made]
        assert [s.shape for s in sums] == [()] * 4
        del made
    x = mx.arange(1000)
    assert sum((x + n)[n].item() for n in range(50)) == sum(2 * n for n in range(50))
