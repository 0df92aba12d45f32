/* How the bridge gets into MLX: see bridge.h.                                                SPDX-License-Identifier: MIT
 *
 * The wheel's libmlx.so hides most of its functions, but names all of them in .symtab. Three tables, which the
 * linking step makes (the rule of hooks.inc in the Makefile), so that they are what the headers of the installed MLX say:
 *
 *     HOOK(name)    what the bridge defines in namespace mlx::core: MLX's function begins with a jump to it
 *     CALL(name)    what the bridge calls there: a jump through a slot, which the function's address is put into
 *     CLASS(name)   the virtual table of a class of MLX that the bridge makes objects of: a copy of MLX's
 *
 * All are looked up and checked before the first is changed, and then all are changed or none. What keeps the bridge out
 * is said in a line, and MLX goes on with the CPU. */
#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "bridge.h"

#if defined(__x86_64__)
#define JUMP_THROUGH(slot) "jmp *" slot "(%rip)\n"
#elif defined(__aarch64__)
#define JUMP_THROUGH(slot) "adrp x16, " slot "\nldr x16, [x16, #:lo12:" slot "]\nbr x16\n"
#else
#error "a jump for this processor"
#endif

/* ---- the tables ---- */

#define HOOK(name) extern "C" const char name[] __attribute__((visibility("hidden")));
#define CALL(name)                                                                      \
  extern "C" __attribute__((visibility("hidden"))) void* slot_of_##name;                \
  void* slot_of_##name;                                                                 \
  asm(".pushsection .text\n.balign 16\n.globl " #name "\n.hidden " #name "\n.type " #name \
      ", %function\n" #name ":\n" JUMP_THROUGH("slot_of_" #name) ".size " #name ", .-" #name \
      "\n.popsection\n");                              /* the compiler does not know of .text: a slot may follow */
#define CLASS(name) extern "C" __attribute__((visibility("hidden"))) void* name[32]; void* name[32];
#include "hooks.inc"
#undef HOOK
#undef CALL
#undef CLASS

namespace mlxvk_mlx {

namespace {

struct Hook { const char* name; const void* target; };
struct Call { const char* name; void** slot; };
struct Class { const char* name; void** table; size_t size; };

#define HOOK(name) {#name, name},
#define CALL(name)
#define CLASS(name)
const Hook hooks[] = {
#include "hooks.inc"
};
#undef HOOK
#undef CALL
#define HOOK(name)
#define CALL(name) {#name, &slot_of_##name},
const Call calls[] = {
#include "hooks.inc"
};
#undef CALL
#undef CLASS
#define CALL(name)
#define CLASS(name) {#name, name, sizeof name},
const Class classes[] = {
#include "hooks.inc"
};
#undef HOOK
#undef CALL
#undef CLASS

/* ---- a jump ---- */

template <class T> std::string bytes_of(const T& object) {
  return std::string(reinterpret_cast<const char*>(&object), sizeof object);
}

#if defined(__x86_64__)
enum { MACHINE = EM_X86_64, LONGEST = 14 };

std::string jump(const char*, const void* target) {
  return std::string("\xff\x25\0\0\0\0", 6) + bytes_of(target);             // jmp *0(%rip)
}
#else
enum { MACHINE = EM_AARCH64, LONGEST = 16 };

/* Some functions have room for three instructions only, which reach 4 GiB. */
std::string jump(const char* from, const void* target) {
  const int64_t pages = (reinterpret_cast<int64_t>(target) >> 12) - (reinterpret_cast<int64_t>(from) >> 12);
  const uint32_t low = uint32_t(pages & 3) << 29 | uint32_t(pages >> 2 & 0x7ffff) << 5;
  const uint32_t add = 0x91000210 | uint32_t(reinterpret_cast<uint64_t>(target) & 0xfff) << 10;
  const uint32_t near[] = {0x90000010 | low, add, 0xd61f0200};                // adrp x16; add x16, x16; br x16
  const uint32_t far[] = {0x58000050, 0xd61f0200};                            // ldr x16, #8; br x16
  return pages >= -(1 << 20) && pages < (1 << 20) ? bytes_of(near) : bytes_of(far) + bytes_of(target);
}
#endif

/* How many bytes the instructions at a function's start have that take up `size` bytes at least; 0 where one is not known to
 * do the same wherever it lies. */
#if defined(__x86_64__)
size_t movable(const char* code, size_t size) {
  size_t at = 0;
  while (at < size) {
    unsigned char p[4];
    std::memcpy(p, code + at, sizeof p);
    const bool wide = (p[0] & 0xf8) == 0x48;
    if (p[0] >= 0x50 && p[0] <= 0x57) at += 1;                                                      // push
    else if (p[0] == 0x41 && p[1] >= 0x50 && p[1] <= 0x57) at += 2;
    else if ((p[0] == 0x89 || p[0] == 0x31) && p[1] >= 0xc0) at += 2;                               // mov, xor: registers
    else if (wide && p[1] == 0x89 && p[2] >= 0xc0) at += 3;
    else if (wide && p[1] == 0x83 && p[2] == 0xec) at += 4;                                         // sub from rsp
    else if (wide && p[1] == 0x81 && p[2] == 0xec) at += 7;
    else if (p[0] == 0x66 && p[1] == 0x0f && p[2] == 0xef && p[3] >= 0xc0) at += 4;                 // pxor
    else if (!std::memcmp(p, "\xf3\x0f\x1e\xfa", 4)) at += 4;                                       // endbr64
    else return 0;
  }
  return at;
}
#else
size_t movable(const char* code, size_t size) {
  static const uint32_t fixed[][2] = {                        // mask, value: adr(p), b(l), b.cond, cb(n)z, tb(n)z, ldr
      {0x1f000000, 0x10000000}, {0x7c000000, 0x14000000}, {0xff000000, 0x54000000},
      {0x7e000000, 0x34000000}, {0x7e000000, 0x36000000}, {0x3b000000, 0x18000000}};
  for (size_t at = 0; at < size; at += 4) {
    uint32_t instruction;
    std::memcpy(&instruction, code + at, 4);
    for (auto& f : fixed)
      if ((instruction & f[0]) == f[1]) return 0;
  }
  return (size + 3) & ~size_t(3);
}
#endif

/* ---- libmlx.so: as it is in memory, and its file ---- */

struct Problem : std::runtime_error { using std::runtime_error::runtime_error; };
struct AnotherBridge : Problem { using Problem::Problem; };

std::string readable(const std::string& name) {
  int status = 0;
  char* text = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  const std::string result = text ? text : name;
  std::free(text);
  return result;
}

class File {
 public:
  explicit File(const std::string& path) {
    descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat about {};
    if (descriptor >= 0 && !fstat(descriptor, &about) && about.st_size > 0) {
      void* data = mmap(nullptr, size_t(about.st_size), PROT_READ, MAP_PRIVATE, descriptor, 0);
      if (data != MAP_FAILED) { data_ = static_cast<const char*>(data); size_ = size_t(about.st_size); }
    }
    if (data_) return;
    if (descriptor >= 0) close(descriptor);
    throw Problem("it cannot be read");
  }
  File(const File&) = delete;
  ~File() { munmap(const_cast<char*>(data_), size_); close(descriptor); }

  /* `count` objects at an offset. */
  template <class T> const T* at(uint64_t offset, uint64_t count = 1) const {
    if (offset > size_ || count > (size_ - offset) / sizeof(T) || offset % alignof(T)) throw Problem("it is damaged");
    return reinterpret_cast<const T*>(data_ + offset);
  }

  int descriptor = -1;

 private:
  const char* data_ = nullptr;
  size_t size_ = 0;
};

class Library {
 public:
  explicit Library(const link_map& map) : base_(reinterpret_cast<char*>(map.l_addr)), file_(map.l_name) {
    auto& head = *file_.at<Elf64_Ehdr>(0);
    if (std::memcmp(head.e_ident, ELFMAG, SELFMAG) || head.e_ident[EI_CLASS] != ELFCLASS64 || head.e_machine != MACHINE)
      throw Problem("it is not for this processor");
    read_segments(head);
    read_symbols(head);
  }

  /* The one function of that name. */
  char* find(const std::string& name) const {
    auto [from, to] = by_name_.equal_range(name);
    if (from == to) throw Problem("there is no " + readable(name) + " (" + name + ") in it");
    for (auto it = from; it != to; ++it)
      if (it->second != from->second) throw Problem("there are several " + readable(name) + " (" + name + ") in it");
    return base_ + from->second;
  }

  /* The one virtual table of that name, as it is in memory. */
  std::pair<const char*, size_t> find_table(const std::string& name) const {
    auto it = tables_.find(name);
    if (it == tables_.end()) throw Problem("there is no " + readable(name) + " (" + name + ") in it");
    return {base_ + it->second.first, it->second.second};
  }

  /* The same, to be written over: what of it lies in the file must be there and long enough. */
  char* find_to_change(const std::string& name, const void* target) const {
    char* function = find(name);
    const uint64_t at = uint64_t(function - base_);
    auto next = starts_.upper_bound(at);
    const Elf64_Phdr* text = segment_of(at);
    if (!text) throw Problem(readable(name) + " is not in its text");
    const uint64_t end = std::min(next == starts_.end() ? UINT64_MAX : *next, text->p_vaddr + text->p_filesz);
    const size_t size = jump(function, target).size();
    if (end - at < size) throw Problem(readable(name) + " is too short (" + std::to_string(end - at) + " bytes) for a jump");
    if (std::memcmp(function, file_.at<char>(at - text->p_vaddr + text->p_offset, size), size))
      throw AnotherBridge(readable(name) + " is changed already: another bridge is in this process, and stays");
    for (const char* copy : {".constprop.", ".isra.", ".part."}) {
      auto it = by_name_.lower_bound(name + copy);
      if (it != by_name_.end() && !it->first.compare(0, name.size() + std::strlen(copy), name + copy))
        throw Problem(readable(name) + " is there twice, also as " + std::string(it->first));
    }
    return function;
  }

  /* Executable pages as they are in the file. */
  bool restore(char* page, size_t size) const {
    const Elf64_Phdr* text = segment_of(uint64_t(page - base_));
    const uint64_t at = uint64_t(page - base_) - text->p_vaddr + text->p_offset;
    return mmap(page, size, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, file_.descriptor, off_t(at)) != MAP_FAILED;
  }

 private:
  void read_segments(const Elf64_Ehdr& head) {
    auto* all = file_.at<Elf64_Phdr>(head.e_phoff, head.e_phnum);
    for (int i = 0; i < head.e_phnum; i++)
      if (all[i].p_type == PT_LOAD && (all[i].p_flags & PF_X) && !(all[i].p_flags & PF_W)) text_.push_back(&all[i]);
  }

  void read_symbols(const Elf64_Ehdr& head) {
    auto* sections = file_.at<Elf64_Shdr>(head.e_shoff, head.e_shnum);
    for (int i = 0; i < head.e_shnum; i++) {
      if (sections[i].sh_type != SHT_SYMTAB || sections[i].sh_link >= head.e_shnum) continue;
      const size_t count = sections[i].sh_size / sizeof(Elf64_Sym);
      auto* symbols = file_.at<Elf64_Sym>(sections[i].sh_offset, count);
      auto& names = sections[sections[i].sh_link];
      auto* text = file_.at<char>(names.sh_offset, names.sh_size);
      for (size_t k = 0; k < count; k++) {
        const auto& s = symbols[k];
        if (s.st_shndx == SHN_UNDEF || s.st_name >= names.sh_size) continue;
        if (!std::strncmp(text + s.st_name, "_ZTV", 4)) tables_[text + s.st_name] = {s.st_value, s.st_size};
        if (!segment_of(s.st_value)) continue;
        starts_.insert(s.st_value);
        if (ELF64_ST_TYPE(s.st_info) == STT_FUNC) by_name_.emplace(text + s.st_name, s.st_value);
      }
    }
    if (by_name_.empty()) throw Problem("it has no table of symbols (.symtab): somebody stripped it");
  }

  const Elf64_Phdr* segment_of(uint64_t at) const {
    for (auto* p : text_)
      if (at >= p->p_vaddr && at - p->p_vaddr < p->p_filesz) return p;
    return nullptr;
  }

  char* base_;
  File file_;
  std::vector<const Elf64_Phdr*> text_;
  std::multimap<std::string_view, uint64_t> by_name_;
  std::map<std::string_view, std::pair<uint64_t, uint64_t>> tables_;   // where, and how many bytes
  std::set<uint64_t> starts_;
};

/* ---- changing it ---- */

/* Pages are writable or executable, never both: no thread may be in them meanwhile, and none is, before MLX does its
 * first work. A system that takes no changed code for executable gets the file's back. */
class Writable {
 public:
  Writable(const Library& mlx, const std::set<char*>& functions) : mlx_(mlx) {
    const size_t page = size_t(sysconf(_SC_PAGESIZE));
    std::set<char*> pages;
    for (char* f : functions)
      for (char* at : {f, f + LONGEST - 1}) pages.insert(at - reinterpret_cast<uintptr_t>(at) % page);
    for (char* at : pages) {
      if (!ranges_.empty() && ranges_.back().first + ranges_.back().second == at) ranges_.back().second += page;
      else ranges_.emplace_back(at, page);
    }
    for (auto& [at, size] : ranges_)
      if (mprotect(at, size, PROT_READ | PROT_WRITE)) give_up();
  }

  void commit() {
    for (auto& [at, size] : ranges_)
      if (mprotect(at, size, PROT_READ | PROT_EXEC)) give_up();
  }

 private:
  [[noreturn]] void give_up() {
    for (auto& [at, size] : ranges_) mlx_.restore(at, size);
    throw Problem("the system does not let it be changed in memory");
  }

  const Library& mlx_;
  std::vector<std::pair<char*, size_t>> ranges_;
};

/* Functions of MLX that the bridge's own call in their turn: the first instructions elsewhere, a jump to the others. */
struct Kept {
  const char* name;
  void* original;
};
Kept kept_walk{"_ZN3mlx4core9eval_implESt6vectorINS0_5arrayESaIS2_EEb", nullptr};
Kept kept_enqueue{"_ZN3mlx4core9scheduler9Scheduler7enqueueENS0_6StreamESt8functionIFvvEE", nullptr};
Kept kept_init{"_ZN3mlx4core11distributed4initEbRKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE", nullptr};

/* False where it cannot be: then it stays as it is. */
bool keep(Kept& kept, char* function, const void* target) {
  const size_t size = movable(function, jump(function, target).size()), page = size_t(sysconf(_SC_PAGESIZE));
  kept.original = function;
  if (!size) return false;
  void* copy = mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (copy == MAP_FAILED) return false;
  char* code = static_cast<char*>(copy);
  const std::string back = jump(code + size, function + size);
  std::memcpy(code, function, size);
  std::memcpy(code + size, back.data(), back.size());
  if (mprotect(copy, page, PROT_READ | PROT_EXEC)) {
    munmap(copy, page);
    return false;
  }
  __builtin___clear_cache(code, code + size + back.size());
  kept.original = copy;
  return true;
}

bool keep_if_called(const char* name, char* function, const void* target) {
  for (Kept* kept : {&kept_walk, &kept_enqueue, &kept_init})
    if (!std::strcmp(name, kept->name)) return keep(*kept, function, target);
  return true;
}

void install(const Library& mlx) {
  std::map<char*, const void*> jumps;
  std::vector<std::pair<void**, char*>> found;
  for (auto& c : classes)
    if (mlx.find_table(c.name).second > c.size) throw Problem(readable(c.name) + " is larger than expected");
  for (auto& c : calls) found.emplace_back(c.slot, mlx.find(c.name));
  for (auto& h : hooks) {
    char* function = mlx.find_to_change(h.name, h.target);
    if (!keep_if_called(h.name, function, h.target)) continue;
    const auto [it, first] = jumps.emplace(function, h.target);
    if (!first && it->second != h.target) throw Problem(readable(h.name) + " shares its code with another function");
  }
  std::set<char*> functions;
  for (auto& [function, target] : jumps) functions.insert(function);
  for (auto& [slot, function] : found) *slot = function;
  for (auto& c : classes) std::memcpy(c.table, mlx.find_table(c.name).first, mlx.find_table(c.name).second);
  Writable pages(mlx, functions);
  for (auto& [function, target] : jumps) {
    const std::string code = jump(function, target);
    std::memcpy(function, code.data(), code.size());
    __builtin___clear_cache(function, function + code.size());
  }
  pages.commit();
}

/* ---- at load ---- */

std::string why_not;                                       // what keeps the bridge out

void say(const std::string& text) {
  why_not = text;
  std::fprintf(stderr, "mlxvk: %s\n", text.c_str());
}

/* There is no MLX. What a program starts inherits LD_PRELOAD, too, and need not say so again. */
void say_none(const std::string& text) {
  const char* name = "MLXVK_MLX_PARENT";
  uint64_t own = 0;                                        // of a program, which a process may run several of in turn
  std::memcpy(&own, reinterpret_cast<const void*>(getauxval(AT_RANDOM)), sizeof own);
  setenv(name, std::to_string(own).c_str(), 0);
  why_not = text;
  if (std::to_string(own) == std::getenv(name)) say(text);
}

/* Is this a program that may come to use MLX? One that is linked to it has it by now, Python imports it later. */
void* open_mlx() {
  const char* name = "libmlx.so";
  if (void* there = dlopen(name, RTLD_NOW | RTLD_NOLOAD)) return there;
  if (!dlsym(RTLD_DEFAULT, "Py_BytesMain")) {
    say_none("this program has no MLX, so it runs as without the bridge. (LD_PRELOAD is for programs that are linked to "
             "libmlx.so, and for Python; one that loads it later needs both: LD_PRELOAD=\"libmlx.so libmlxvk_mlx.so\".)");
    return nullptr;
  }
  if (void* here = dlopen(name, RTLD_NOW)) return here;
  say_none(std::string("there is no MLX here, so Python runs as without the bridge: ") + dlerror() +
           ". (pip install mlx, or LD_LIBRARY_PATH=folder of libmlx.so.)");
  return nullptr;
}

const char known_to_work[] = "0.30.3, 0.31.2, 0.32.4";
#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
const char built_for[] = TEXT(MLX_VERSION_MAJOR) "." TEXT(MLX_VERSION_MINOR) "." TEXT(MLX_VERSION_PATCH);

std::string version_of(const Library& mlx) {
  return reinterpret_cast<const char* (*)()>(mlx.find("_ZN3mlx4core7versionEv"))();
}

void install_at_load() {
  void* handle = open_mlx();
  link_map* map = nullptr;
  if (!handle || dlinfo(handle, RTLD_DI_LINKMAP, &map)) return;
  std::string path = map->l_name, help = "\"make mlx\" installs a version that works";
  try {
    const Library mlx(*map);
    const std::string version = version_of(mlx);
    if (version != built_for) {
      help = "\"make mlx MLX=" + version + "\" builds it for that version, or tries to";
      throw Problem("it is MLX " + version + ", and this bridge was built for " + built_for);
    }
    install(mlx);
    use_pool(map->l_name);
    Dl_info own{};
    if (dladdr(built_for, &own)) use_pool(own.dli_fname);
    setenv("MLXVK_MLX_PARENT", "", 0);
  } catch (const std::exception& problem) {
    const char* goes_on = dynamic_cast<const AnotherBridge*>(&problem) ? "as it is" : "with the CPU";
    say(std::string("MLX goes on ") + goes_on + ": " + path + ": " + problem.what() + ". Known to work: MLX " + known_to_work + "; " +
        help + ".");
  }
}

struct AtLoad {
  AtLoad() { install_at_load(); }
} at_load;                                                 // the last of this file's, which it uses

}  // namespace

bool hooked() { return why_not.empty(); }

array original_eval_impl(Arrays outputs, bool async) {
  return reinterpret_cast<array (*)(Arrays, bool)>(kept_walk.original)(std::move(outputs), async);
}

void original_enqueue(mlx::core::scheduler::Scheduler& to, Stream s, std::function<void()> task) {
  using Enqueue = void (*)(mlx::core::scheduler::Scheduler*, Stream, std::function<void()>);
  reinterpret_cast<Enqueue>(kept_enqueue.original)(&to, s, std::move(task));
}

mlx::core::distributed::Group original_init(bool strict, const std::string& backend) {
  using Init = mlx::core::distributed::Group (*)(bool, const std::string&);
  return reinterpret_cast<Init>(kept_init.original)(strict, backend);
}

}  // namespace mlxvk_mlx

/* Empty where the bridge is in MLX; else what was said. */
extern "C" const char* mlxvk_mlx_problem(void) {
  return mlxvk_mlx::hooked() ? mlxvk_mlx::no_device() : mlxvk_mlx::why_not.c_str();
}
