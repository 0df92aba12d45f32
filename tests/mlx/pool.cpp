/* Small memory for MLX and the bridge: see bridge.h.                                         SPDX-License-Identifier: MIT
 *
 * A token's graph is some thousands of small objects, which one thread makes and lets go of all at once: more than
 * malloc() keeps at hand for a thread, so that most go the long way through it. What MLX's libraries and this one call
 * for operator new and delete is this instead, by their tables of what they import: each thread keeps what it let go
 * of, by size. Each piece is one of malloc()'s and at least as large as its list says, so who has another operator
 * delete may free what this made, and this may keep what others made.
 *
 * Where a program has an operator new of its own (a sanitizer's, another allocator's) it stays as it is. */
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <new>

#include "bridge.h"

namespace mlxvk_mlx {

namespace {

enum { STEP = 8, LISTS = 65, MOST = 8 << 20 };             // bytes of a size, sizes up to 512 bytes, bytes that a thread keeps

struct Idle { Idle* next; };

/* Plain data: a thread asks for it thousands of times a token. */
struct Lists {
  Idle *list[LISTS], *later[LISTS];                        // later: what another thread passed on, see below
  uint32_t held;                                           // bytes in `list`
  bool started, passes_on;
};
thread_local Lists lists;

/* A library that is loaded late asks the loader for what is a thread's own, each time: a fifth of what all this takes.
 * So the threads that ask most have theirs here, found by what the thread itself is found by. */
struct alignas(64) Place {
  std::atomic<const void*> owner{nullptr};
  alignas(64) Lists lists{};
};
Place places[2];                                           // who makes graphs, and who records them

/* What the latter passes on to the former: as many bytes of each size. */
struct { Idle* list[LISTS]; uint32_t bytes[LISTS]; } passed;

void pass_on(void* piece, size_t n) {
  enum { MOST_EACH = MOST / 4 };
  if (passed.bytes[n] + n * STEP > MOST_EACH) { std::free(piece); return; }
  passed.list[n] = ::new (piece) Idle{passed.list[n]};
  passed.bytes[n] += uint32_t(n * STEP);
}

const void* self() { return __builtin_thread_pointer(); }

Lists& own_lists() {
  for (auto& place : places)
    if (place.owner.load(std::memory_order_relaxed) == self()) return place.lists;
  return lists;
}

struct End {
  ~End() {
    Lists& own = own_lists();
    for (auto* all : {own.list, own.later})
      for (size_t n = 0; n < LISTS; n++)
        for (Idle*& list = all[n]; list; ) std::free(std::exchange(list, list->next));
    own = {};
    lists.held = MOST;                                     // what is freed later goes at once
    for (auto& place : places)
      if (place.owner == self()) place.owner = nullptr;
  }
};

/* A thread that keeps something has its end. */
void start(Lists& own) {
  static thread_local End end;
  (void)&end;
  own.started = true;
}

/* As operator new: not that itself, which this library imports from here, too. */
void* allocate(size_t size) {
  for (;;) {
    if (void* made = std::malloc(size + !size)) return made;
    const auto handler = std::get_new_handler();
    if (!handler) throw std::bad_alloc();
    handler();
  }
}

}  // namespace

void pool_settle(size_t place) {
  auto& [owner, there] = places[place];
  const void* nobody = nullptr;
  if (&own_lists() != &lists || lists.held == MOST) return;
  if (!lists.started) start(lists);
  if (owner.compare_exchange_strong(nobody, self())) there = std::exchange(lists, {});
}

void pool_pass_on(bool on) {
  if (&own_lists() == &places[1].lists) places[1].lists.passes_on = on;
}

void pool_pick_up() {
  Lists& own = own_lists();
  if (&own != &places[0].lists) return;
  for (size_t n = 0; n < LISTS; n++) {
    if (own.later[n] || !passed.list[n]) continue;
    own.later[n] = std::exchange(passed.list[n], nullptr);
    passed.bytes[n] = 0;
    fetch(own.later[n], n * STEP, true);
  }
}

void* pool_take(size_t size) {
  const size_t n = (size + STEP - 1) / STEP;
  Lists& own = own_lists();
  if (n - 1 >= LISTS - 1) return allocate(size);
  if (Idle* first = own.list[n]) {
    own.list[n] = first->next;
    own.held -= uint32_t(n * STEP);
    return first;
  }
  if (Idle* first = own.later[n]) {                        // in the other's cache: the next one is asked for by now
    own.later[n] = first->next;
    fetch(first->next, first->next ? n * STEP : 0, true);
    return first;
  }
  return allocate(n * STEP);
}

void pool_give(void* piece, size_t size) {
  const size_t n = size / STEP;
  Lists& own = own_lists();
  if (!piece || n - 1 >= LISTS - 1 || own.held + size > MOST) { std::free(piece); return; }
  if (own.passes_on) { pass_on(piece, n); return; }
  if (!own.started) start(own);
  own.list[n] = ::new (piece) Idle{own.list[n]};
  own.held += uint32_t(n * STEP);
}

namespace {

#if defined(__x86_64__)
bool is_import(uint32_t type) { return type == R_X86_64_JUMP_SLOT || type == R_X86_64_GLOB_DAT; }
#else
bool is_import(uint32_t type) { return type == R_AARCH64_JUMP_SLOT || type == R_AARCH64_GLOB_DAT; }
#endif

/* Is the operator new of this process the C++ library's, which takes malloc()'s memory? */
bool is_usual() {
  static const bool value = [] {                           // before this library's own is replaced
    Dl_info about{};
    void* (*make)(size_t) = ::operator new;
    return dladdr(reinterpret_cast<void*>(make), &about) && about.dli_fname && std::strstr(about.dli_fname, "libstdc++");
  }();
  return value;
}

const void* of_pool(const char* symbol) {
  if (!std::strcmp(symbol, "_Znwm")) return reinterpret_cast<const void*>(pool_take);
  if (!std::strcmp(symbol, "_ZdlPvm")) return reinterpret_cast<const void*>(pool_give);
  return nullptr;
}

/* One library's imports, as the loader has them. */
class Imports {
 public:
  explicit Imports(const dl_phdr_info& of) : base_(of.dlpi_addr) {
    for (int i = 0; i < of.dlpi_phnum; i++) {
      const auto& part = of.dlpi_phdr[i];
      if (part.p_type == PT_DYNAMIC) read(reinterpret_cast<const ElfW(Dyn)*>(base_ + part.p_vaddr));
      if (part.p_type != PT_GNU_RELRO) continue;
      fixed_ = base_ + part.p_vaddr;
      fixed_end_ = (fixed_ + part.p_memsz) & ~uintptr_t(sysconf(_SC_PAGESIZE) - 1);
    }
  }

  void replace() const {
    for (auto& table : tables_)
      for (size_t i = 0; symbols_ && names_ && i < table.size / sizeof(ElfW(Rela)); i++) {
        const auto& r = table.first[i];
        if (!is_import(uint32_t(ELF64_R_TYPE(r.r_info)))) continue;
        const void* target = of_pool(names_ + symbols_[ELF64_R_SYM(r.r_info)].st_name);
        if (target) store(reinterpret_cast<const void**>(base_ + r.r_offset), target);
      }
  }

 private:
  struct Table { const ElfW(Rela)* first = nullptr; size_t size = 0; };

  void read(const ElfW(Dyn)* entry) {
    for (; entry->d_tag != DT_NULL; entry++) {
      const uintptr_t at = entry->d_un.d_ptr < base_ ? base_ + entry->d_un.d_ptr : entry->d_un.d_ptr;
      if (entry->d_tag == DT_JMPREL) tables_[0].first = reinterpret_cast<const ElfW(Rela)*>(at);
      if (entry->d_tag == DT_PLTRELSZ) tables_[0].size = entry->d_un.d_val;
      if (entry->d_tag == DT_RELA) tables_[1].first = reinterpret_cast<const ElfW(Rela)*>(at);
      if (entry->d_tag == DT_RELASZ) tables_[1].size = entry->d_un.d_val;
      if (entry->d_tag == DT_SYMTAB) symbols_ = reinterpret_cast<const ElfW(Sym)*>(at);
      if (entry->d_tag == DT_STRTAB) names_ = reinterpret_cast<const char*>(at);
    }
  }

  /* What the loader made read-only behind itself is so again. */
  void store(const void** slot, const void* target) const {
    const auto at = reinterpret_cast<uintptr_t>(slot), page = uintptr_t(sysconf(_SC_PAGESIZE));
    auto* start = reinterpret_cast<void*>(at & ~(page - 1));
    const bool fixed = at >= fixed_ && at < fixed_end_;
    if (fixed && mprotect(start, page, PROT_READ | PROT_WRITE)) return;
    __atomic_store_n(slot, target, __ATOMIC_RELAXED);
    if (fixed) mprotect(start, page, PROT_READ);
  }

  uintptr_t base_, fixed_ = 0, fixed_end_ = 0;
  Table tables_[2];
  const ElfW(Sym)* symbols_ = nullptr;
  const char* names_ = nullptr;
};

}  // namespace

void use_pool(const char* library) {
  if (!is_usual()) return;
  auto each = [](dl_phdr_info* of, size_t, void* wanted) {
    if (of->dlpi_name && std::strstr(of->dlpi_name, static_cast<const char*>(wanted))) Imports(*of).replace();
    return 0;
  };
  dl_iterate_phdr(each, const_cast<char*>(library));
}

}  // namespace mlxvk_mlx
