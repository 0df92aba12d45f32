/* The stock MLX wheel on mlxvk: what its source files share.                                 SPDX-License-Identifier: MIT
 *
 * This library defines functions of the wheel's "no GPU" backend anew, and puts them in the place of those in its
 * libmlx.so. It uses nothing of mlxvk but mlxvk.h, and of MLX only functions: no vtable and no type information, which
 * the wheel may hide. What differs between versions of MLX says so by MLX_VERSION_NUMERIC.
 *
 *     hooks.cpp        how it gets into MLX, and MLX's functions into it
 *     pool.cpp         small memory on the host, for MLX's objects and the bridge's
 *     memory.cpp       MLX's allocator: a buffer of MLX is one handle on mlxvk memory; operands and results
 *     stream.cpp       streams, events, fences, evaluation on a stream, the way out of the process
 *     walk.cpp         the walk over a graph of one GPU stream
 *     primitives.cpp   the table from primitive to mlxvk call
 *     kernels.cpp      kernels in Metal's language, by the compiler in metal/
 *     collectives.cpp  distributed work between ranks of one host, on a GPU stream; shared.cpp: the memory they share
 *     fallback.cpp     what mlxvk does not have: run by MLX itself on the CPU, and counted; statistics
 *     python.cpp       errors of an evaluation where Python's interpreter cannot pass a C++ exception on; arrays of others'
 */
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "mlx/backend/common/utils.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/distributed/distributed.h"
#include "mlx/event.h"
#include "mlx/fast_primitives.h"
#include "mlx/mlx.h"
#include "mlx/primitives.h"
#include "mlx/scheduler.h"
#include "mlx/version.h"

#include "mlxvk.h"

namespace mlxvk_mlx {

using mlx::core::array;
using mlx::core::Primitive;
using mlx::core::Stream;
using Arrays = std::vector<array>;

/* Values of one call; up to N of them need no allocation, of which there are thousands a token otherwise. */
template <class T, size_t N> class Few {
 public:
  explicit Few(size_t size) : size_(size) { if (size > N) more_.resize(size); }
  T* begin() { return size_ > N ? more_.data() : few_; }
  T* end() { return begin() + size_; }
  T* data() { return begin(); }
  size_t size() const { return size_; }
  T& operator[](size_t i) { return begin()[i]; }

 private:
  size_t size_;
  T few_[N]{};
  std::vector<T> more_;
};

/* ---- hooks.cpp ---- */

/* Is the bridge in MLX? If not it must call nothing of MLX. */
bool hooked();
/* MLX's own walk over a graph, and its own way to give a CPU stream's thread something to do. */
array original_eval_impl(Arrays outputs, bool async);
void original_enqueue(mlx::core::scheduler::Scheduler& to, Stream s, std::function<void()> task);
mlx::core::distributed::Group original_init(bool strict, const std::string& backend);

/* ---- stream.cpp ---- */

/* The device, made at first use. Without one everything stays on the CPU. */
mlxvk_device device();
bool has_device();
/* Why there is none; an empty text where there is one. */
const char* no_device();
/* True where the host does not read device memory as fast as its own: what it computes with has a copy there. */
bool staged();
mlxvk_stream stream_of(Stream s);
/* The calling thread works on this stream next, whoever made it. */
void lend_stream(Stream s, mlxvk_stream handle);
/* Who waits for the event, or for what waits for it, is told. */
void fail(mlx::core::Event& event, const std::string& text);
/* An event that the host is to signal, and that what is recorded on the GPU stream from now on waits for. If it fails, who
 * waits for that is told. */
mlx::core::Event await_host(Stream s);
void signal_host(mlx::core::Event& event);
/* Submits what every stream has recorded: before the host waits for anything. */
void submit_all();
size_t stream_count();
/* Throws what is the matter with a call on a stream. */
[[noreturn]] void raise(int code, mlxvk_stream stream, const char* what);
std::string error_text(int code, mlxvk_stream stream);

/* An array handle that is freed. */
struct Handle {
  mlxvk_array a{};
  Handle() = default;
  Handle(const Handle&) = delete;
  ~Handle() { mlxvk_array_free(a); }
  operator mlxvk_array() const { return a; }
  mlxvk_array* operator&() { return &a; }
};

/* ---- pool.cpp ---- */

/* As operator new and delete, from what the thread let go of before. */
void* pool_take(size_t size);
void pool_give(void* piece, size_t size);
/* The calling thread asks for much: where nobody has that place (0: who makes graphs, 1: who records), it is its own. */
void pool_settle(size_t place);
/* Who records: what it lets go of from now on is for who makes graphs. That one: takes what there is of it; the other rests. */
void pool_pass_on(bool on);
void pool_pick_up();
/* Libraries that are loaded, and have this in their path, use them from now on. */
void use_pool(const char* library);

/* Asks for memory that is wanted soon, perhaps to be written. */
inline void fetch(const void* from, size_t size, bool write = false) {
  const char* first = static_cast<const char*>(from);
  for (size_t at = 0; at < size; at += 64) {
    if (write) __builtin_prefetch(first + at, 1);
    else __builtin_prefetch(first + at, 0);
  }
}

/* Between two looks at what another thread is about to change. */
inline void spin_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#else
  std::this_thread::yield();
#endif
}

/* ---- memory.cpp ---- */

mlxvk_dtype dtype_of(const array& a);
/* A handle on an array of MLX as mlxvk sees it: own: a new one. only, which needs a donatable array: MLX's own handle is
 * given up for it, so that the operation may work in place. lent: the code is LENT where it is one of MLX's own, for a
 * call, until give_back_lent(). */
enum class Use { own, only, lent };
enum { LENT = -1 };
int operand(mlxvk_array* res, const array& a, Stream s, Use use = Use::own);
void give_back_lent(const array& a);
/* A kernel of the program's writes this operand: what the host has of it is old. */
void note_written(const array& a);
/* The value of an int32 that the host has at hand, without waiting: what Python passed as a number mostly. */
bool host_number(const array& a, int& value);
/* Undoes `only` after the operation failed: the handle is MLX's own again. */
void give_back(const array& a, mlxvk_array handle);
/* Makes `result` (whose handle it takes) the data of `out`; first: of the outputs before it, which have theirs. What is in an
 * operand's memory, or in another output's, shares that one's buffer: by a buffer's owners MLX sees what may be overwritten. */
void adopt(array& out, mlxvk_array result, const Arrays& inputs, Stream s, const array* first = nullptr);
/* Ask for what operand() will look at, each for what the one before has brought. */
void fetch_data(const array& a);
void fetch_block(const array& a);
void fetch_handle(const array& a);
/* Is its memory the host's alone, and so little that it may stay until later? */
bool is_trifle(const array& a);
/* Frees what another thread freed while this one recorded. */
void free_left();
/* What the device uses just now, for who may not ask it while another thread records. */
void note_active_memory();
/* Blocks until the GPU's work that writes (with `readers`: uses) the array's memory is done. */
void wait_for(const array& a, bool readers);

/* While it lives, allocations of this thread are for a file's contents. */
struct Loading {
  explicit Loading(bool on);
  ~Loading();
};

/* While it lives, what this thread frees is kept. Work that MLX's CPU code has queued has plain pointers to it: where a
 * product has no rows it lets go of the copies of its operands before they are made. */
class Keeping {
 public:
  Keeping();
  ~Keeping();
  Keeping(const Keeping&) = delete;
  std::shared_ptr<void> keep();                            // what was freed until now, which goes with it

 private:
  void *first_ = nullptr, **outer_;
};

/* The next memory of a caller's that this thread asks an array for is to be shared, and never copied? */
void share_next(bool on);

/* ---- primitives.cpp ---- */

/* layout: the same memory seen otherwise, by MLX's own code; a copy, where one is needed, is mlxvk's. host: from shapes
 * alone. unreached: native, but MLX's front end asks no GPU but its own for it. */
enum class State { native, layout, host, unreached, fallback };
struct Row;
const Row* find_row(const Primitive& p);
bool is_load(const Primitive& p);
/* May it hold functions of Python's, or what the bridge does not know? */
bool holds_functions(const Primitive& p);
/* Its graph, which MLX calls its fallback; null for one that has none. */
mlx::core::fast::Custom* with_graph(Primitive& p);
/* Runs a primitive on the GPU stream that it names, or as the table and the policy say. */
void run(Primitive& p, const Arrays& inputs, Arrays& outputs);
/* Calls `each` with every row of the table; ran: as that state says, at least once in this process. */
void each_primitive(const std::function<void(const char* name, State state, const char* note, bool ran)>& each);

/* ---- walk.cpp ---- */

uint64_t walk_count();                                     // graphs that it was for
uint64_t handed_over_count();                              // those that a thread of the bridge's records
/* Until what another thread records is recorded: all of it, or where that is this stream's. */
void join_walk();
void join_walk(Stream s);
/* Is this the thread that records? Then others may change arrays' status and event meanwhile. */
bool records();
/* Is another thread recording? Then it has mlxvk's lock most of the time, and who waits for that is as slow as it. */
bool other_records();
/* Joins, and lets go of what the last graph left. */
void tidy_walk();
/* Joins; from now on who evaluates records. */
void close_walk();

/* ---- kernels.cpp ---- */

/* Runs a fast::CustomKernel; like: its outputs' shapes and dtypes. Throws what the compiler says of its source. Returns a
 * bit for each input that the kernel writes. */
uint32_t run_kernel(mlxvk_array* out, Primitive& p, const mlxvk_array* in, size_t inputs, const array* like, size_t outputs);

/* ---- collectives.cpp ---- */

/* Runs one of MLX's distributed primitives on its GPU stream. False: the ranks share no memory, or it is none, or not one
 * that is run so; then it is so in all ranks. */
bool run_collective(Primitive& p, const Arrays& inputs, Arrays& outputs);
bool shares_ranks();                                       // do the ranks share memory?
/* The program ends: for others that wait for it. And when the GPU is done: all are told of that before the process goes. */
void leave_ranks();
void finish_ranks();

/* ---- fallback.cpp ---- */

/* By MLX itself on the CPU (or, for what MLX has no CPU code for, by the graph it is defined by); counted. */
void fall_back(Primitive& p, const Arrays& inputs, Arrays& outputs, const std::string& reason);
void count_native(const char* name);                       // a name that lives as long as the process
void print_statistics();

/* ---- python.cpp ---- */

/* Called often, does its work once, as soon as MLX's Python type and functions are there. True: it did so now. */
bool guard_python();
/* Is this a process of Python's? */
bool has_python();
/* While it lives, the calling thread has not got Python's lock, where it had it: for who waits for a thread that may want
 * it, to let go of a caller's memory or to read a file of Python's. */
class WithoutPython {
 public:
  WithoutPython();
  ~WithoutPython();
  WithoutPython(const WithoutPython&) = delete;

 private:
  void* state_ = nullptr;
};
/* A graph as large as a model's step: layers' attributes are made quick to find, when guard_python() is called next. */
void note_large_graph();

}  // namespace mlxvk_mlx
