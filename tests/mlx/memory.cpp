/* MLX's allocator over mlxvk: see bridge.h.                                                  SPDX-License-Identifier: MIT */
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <thread>
#include <utility>

#include "bridge.h"
#include "mlx/allocator.h"
#include "mlx/memory.h"

#if MLX_VERSION_NUMERIC >= 32003
/* Data that MLX's allocator owns, which may be overwritten in place, is made by its friends alone: malloc(), which has no
 * memory to give here, and this one, which is only declared where there is no CUDA. */
namespace mlx::core::cu {
class CommandEncoder {
 public:
  void* memory;
};
inline allocator::Data malloc_async(size_t, CommandEncoder& from) { return allocator::Data(allocator::Buffer(from.memory)); }
}  // namespace mlx::core::cu
#endif

namespace mlxvk_mlx {

namespace allocator = mlx::core::allocator;

/* A lock that hardly anybody waits for, and that is taken some thousands of times a token: a word. */
class Latch {
 public:
  void lock() {
    for (int tries = 0; held_.exchange(true, std::memory_order_acquire); tries++) {
      if (tries < 64) std::this_thread::yield();
      else std::this_thread::sleep_for(std::chrono::microseconds(50));   // until a copy is done
    }
  }
  void unlock() { held_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> held_{false};
};

/* What an allocator::Buffer of MLX points to: a piece of memory. Where the host reads device memory as fast as its own, it
 * is one handle. Else (staged) MLX's own allocations are host memory, uploaded when the GPU first wants them, and what the
 * GPU computes is downloaded when the host wants it. Without a device there is only the host. */
struct Block {
  mlxvk_array array{};       // a handle on the device's copy
  mlxvk_array view{};        // the same, as it was wanted first where that is otherwise: what weights are read by, each time
  std::atomic<int> lent{0};  // calls that use one of the two just now
  void* host = nullptr;
  size_t size = 0;           // bytes that MLX asked for
  size_t charged = 0;        // of these, as the host's alone
  bool on_host = false;      // the host's copy is right
  bool foreign = false;      // and is a caller's, who may change it at any time: each use by the GPU gets a copy of its own
  bool borrowed = false;     // and is a caller's, to whom just this pointer goes back: nothing else is put in its place
  std::atomic<void*> direct{nullptr};   // the device's copy, mapped
  std::atomic<void*> likely{nullptr};   // the handle that was wanted last, perhaps freed since: an address to ask for
  Latch mutex;               // of the two copies
  Block* next = nullptr;     // freed, see free_left() and Keeping

  static void* operator new(size_t size) { return pool_take(size); }
  static void operator delete(void* block, size_t size) { pool_give(block, size); }
  bool on_device() const { return array.ctx; }
  void drop_device() {
    mlxvk_array_free(view);
    mlxvk_array_free(array);
    view = array = {};
  }
};

/* Of what is not cached, so much is read through the mapping all the same, where there is one. */
enum { DIRECT_READ = 16384 };

/* Set while a file is loaded: written once, wanted by the GPU, so it goes where the GPU has it. */
static thread_local bool loading = false;
Loading::Loading(bool on) { loading = on; }
Loading::~Loading() { loading = false; }

static thread_local bool sharing = false;
void share_next(bool on) { sharing = on; }

static Block* block_of(const array& a) { return static_cast<Block*>(const_cast<void*>(a.buffer().ptr())); }

static_assert(int(mlx::core::Dtype::Val::float64) == MLXVK_FLOAT64 && int(mlx::core::Dtype::Val::complex64) == MLXVK_COMPLEX64 &&
              int(mlx::core::Dtype::Val::int8) == MLXVK_INT8);
mlxvk_dtype dtype_of(const array& a) { return mlxvk_dtype(int(a.dtype().val())); }

/* Bytes without contents, in as many dimensions as their count needs. */
static int new_bytes(mlxvk_array* res, const void* data, size_t size) {
  const size_t row = 1 << 16;
  if (size <= INT_MAX) {
    int shape[] = {int(size)};
    return mlxvk_array_new_data_device(res, data, shape, 1, MLXVK_UINT8, device());
  }
  if (size > row * INT_MAX) return MLXVK_ERROR_LIMIT;
  int shape[] = {int((size + row - 1) / row), int(row)};
  return mlxvk_array_new_data_device(res, data, shape, 2, MLXVK_UINT8, device());
}

static std::string device_error(int code) {
  mlxvk_error error{};
  mlxvk_device_error(device(), &error);
  return error.text[0] ? error.text : mlxvk_result_text(code);
}

/* ---- what the host alone holds: MLX counts it, too, in the steps of the device's memory ---- */

static struct { std::atomic<size_t> held{0}, least{0}, most{0}; } host_only;   // most: with the device's, where this grew

static size_t device_value(int (*get)(size_t*, mlxvk_device)) {
  size_t value = 0;
  if (has_device()) get(&value, device());
  return value;
}

/* The device's, as of now or of when the last graph had been recorded. */
static std::atomic<size_t> last_active{0};
void note_active_memory() { last_active = device_value(mlxvk_device_get_active_memory); }
static size_t active_memory() {
  if (!other_records()) note_active_memory();
  return last_active;
}

static void charge(Block& b) {
  const size_t step = b.size > 16384 ? 16384 : 256;
  b.charged = (b.size + step - 1) / step * step;
  const size_t both = (host_only.held += b.charged) + active_memory();
  size_t most = host_only.most;
  while (both > most && !host_only.most.compare_exchange_weak(most, both)) {}
}

static void discharge(Block& b) {
  if (!b.charged) return;
  const size_t held = host_only.held -= b.charged;
  size_t least = host_only.least;
  while (held < least && !host_only.least.compare_exchange_weak(least, held)) {}
  b.charged = 0;
}

/* ---- the host's copy ---- */

/* The bytes' count as new_bytes() takes them. */
static size_t whole(size_t size) { return size <= INT_MAX ? size : (size + 0xffff) / 0x10000 * 0x10000; }

static bool mapped() {
  static const bool value = [] {
    size_t unified = 0;
    return has_device() && !mlxvk_device_info_get_size(&unified, device(), "unified") && unified;
  }();
  return value;
}

static void download(Block& b) {
  static const mlxvk_stream stream = mlxvk_stream_new_device(device());
  const size_t chunk = size_t(1) << 30;
  int code = 0;
  submit_all();
  mlxvk_array_wait(b.array, false);                        // without mlxvk's lock: it may wait for the CPU
  if (!b.host) b.host = std::malloc(whole(b.size) + 1);
  if (!b.host) throw std::runtime_error("[mlxvk] out of host memory");
  for (size_t at = 0; at < b.size && !code; at += chunk) {
    mlxvk_array bytes{};
    const int n = int(std::min(chunk, b.size - at));
    code = mlxvk_array_new_view(&bytes, b.array, &n, nullptr, 1, MLXVK_UINT8, at);
    if (!code) code = mlxvk_array_read(bytes, static_cast<char*>(b.host) + at, n, stream);
    mlxvk_array_free(bytes);
  }
  if (code) throw std::runtime_error("[mlxvk] " + error_text(code, stream));
  b.on_host = true;
}

static int upload(Block& b) {
  if (b.on_device()) return 0;
  discharge(b);
  int code = new_bytes(&b.array, b.host, whole(b.size));
  if (code) charge(b);
  return code;
}

/* The host's pointer, to read and to write. */
static void* host_pointer(Block& b) {
  std::unique_lock<Latch> lock(b.mutex, std::defer_lock);
  void* data = b.direct;
  if (data) return data;
  if (!has_device()) return b.host;
  if (staged() || b.on_host) {
    lock.lock();
    if (b.on_host && !b.on_device()) return b.host;
    const bool direct = !b.on_host && mapped() && (b.size <= DIRECT_READ || loading);
    if (!direct) {
      while (b.lent) {                                     // a call of another thread, which may want the lock once more
        lock.unlock();
        std::this_thread::yield();
        lock.lock();
      }
      if (!b.on_host) download(b);
      if (b.on_device()) {
        b.drop_device();
        charge(b);
      }
      return b.host;
    }
  }
  if (int code = mlxvk_array_host(&data, b.array)) throw std::runtime_error("[mlxvk] " + device_error(code));
  if (!staged()) b.direct = data;
  return data;
}

/* ---- operands and results ---- */

/* Is the handle's array just what MLX's is? */
static bool same_view(mlxvk_array handle, const array& a) {
  return handle.ctx && mlxvk_array_ndim(handle) == a.ndim() && mlxvk_array_dtype(handle) == dtype_of(a) &&
         int64_t(mlxvk_array_offset(handle)) == a.offset() &&
         std::equal(a.shape().begin(), a.shape().end(), mlxvk_array_shape(handle)) &&
         std::equal(a.strides().begin(), a.strides().end(), mlxvk_array_strides(handle));
}

static int new_view(mlxvk_array* res, const Block& b, const array& a) {
  return mlxvk_array_new_view(res, b.array, a.shape().data(), a.strides().data(), a.ndim(), dtype_of(a), a.offset());
}

/* Of what a caller's memory has now. MLX never gives it away to be overwritten. */
static int foreign_view(mlxvk_array* res, const Block& b, const array& a) {
  mlxvk_array bytes{};
  int code = new_bytes(&bytes, b.host, b.size);
  if (!code) code = mlxvk_array_new_view(res, bytes, a.shape().data(), a.strides().data(), a.ndim(), dtype_of(a), a.offset());
  mlxvk_array_free(bytes);
  return code;
}

int operand(mlxvk_array* res, const array& a, Stream s, Use use) {
  Block* b = block_of(a);
  if (!b || !a.size()) return mlxvk_array_empty(res, a.shape().data(), a.ndim(), dtype_of(a), stream_of(s));
  if (b->foreign) return foreign_view(res, *b, a);
  std::lock_guard<Latch> lock(b->mutex);
  if (int code = upload(*b)) return code;
  if (use == Use::only && !b->borrowed) {
    if (int code = new_view(res, *b, a)) return code;
    b->drop_device();
    b->on_host = false;
    b->direct = nullptr;
    return 0;
  }
  if (use == Use::own) return new_view(res, *b, a);
  mlxvk_array* same = same_view(b->view, a) ? &b->view : same_view(b->array, a) ? &b->array : nullptr;
  if (!same && b->view.ctx) return new_view(res, *b, a);
  if (!same)
    if (int code = new_view(same = &b->view, *b, a)) return code;
  *res = *same;
  b->likely.store(res->ctx, std::memory_order_relaxed);
  b->lent++;
  return LENT;
}

void fetch_data(const array& a) {
  if (const auto& data = a.data_shared_ptr()) fetch(data.get(), 16);
}

void fetch_block(const array& a) {
  if (a.data_shared_ptr()) fetch(block_of(a), sizeof(Block), true);
}

void fetch_handle(const array& a) {
  const size_t size = 256;                                 // of what is behind one, about
  const Block* b = a.data_shared_ptr() ? block_of(a) : nullptr;
  if (b) fetch(b->likely.load(std::memory_order_relaxed), size);
}

void give_back_lent(const array& a) { block_of(a)->lent--; }

/* What is a caller's stays as the caller has it. */
void note_written(const array& a) {
  Block* b = block_of(a);
  if (!b || b->foreign || b->borrowed) return;
  std::lock_guard<Latch> lock(b->mutex);
  if (b->on_device()) b->on_host = false;
}

bool is_trifle(const array& a) {
  const size_t most = 64;
  const Block* b = a.data_shared_ptr() ? block_of(a) : nullptr;
  return b && !b->on_device() && !b->foreign && b->size <= most;
}

bool host_number(const array& a, int& value) {
  if (a.size() != 1 || a.dtype() != mlx::core::int32) return false;
  if (!(records() ? a.status() == array::Status::available : a.is_available())) return false;
  Block* b = block_of(a);
  const char* data = nullptr;
  std::unique_lock<Latch> lock(b->mutex);
  if (b->on_host) data = static_cast<const char*>(b->host);
  else if (!staged()) data = static_cast<const char*>(b->direct.load());
  if (data) std::memcpy(&value, data + a.offset(), sizeof value);
  return data;
}

void give_back(const array& a, mlxvk_array handle) {
  Block* b = a.size() ? block_of(a) : nullptr;
  if (b && !b->array.ctx) b->array = handle;
  else mlxvk_array_free(handle);
}

/* The result's layout: strides, and MLX's flags for them. Contiguous is what has no gaps, in any order of dimensions but
 * forwards; what is not is as large as what it spans. */
static mlx::core::Strides layout_of(mlxvk_array result, const array& out, array::Flags& flags, size_t& data_size) {
  mlx::core::Strides strides(mlxvk_array_strides(result), mlxvk_array_strides(result) + out.ndim());
  auto [size, row, col] = mlx::core::check_contiguity(out.shape(), strides);
  size_t span = 1;
  bool forwards = true;
  for (size_t i = 0; i < strides.size(); i++) {
    span += size_t(out.shape(int(i)) - 1) * size_t(std::abs(strides[i]));
    forwards = forwards && (out.shape(int(i)) == 1 || strides[i] > 0);
  }
  flags.contiguous = row || col || (forwards && span == out.size());
  flags.row_contiguous = row;
  flags.col_contiguous = col;
  data_size = flags.contiguous ? size : span;
  return strides;
}

static void adopt_shared(array& out, mlxvk_array result, const array& in) {
  array::Flags flags{};
  size_t data_size = 0;
  auto strides = layout_of(result, out, flags, data_size);
  const int64_t offset = int64_t(mlxvk_array_offset(result)) - in.offset();
  out.copy_shared_buffer(in, strides, flags, data_size, offset / int64_t(out.itemsize()));
  mlxvk_array_free(result);
}

static void set_block(array& out, Block* b) {
#if MLX_VERSION_NUMERIC >= 32003
  mlx::core::cu::CommandEncoder from{b};
  out.set_data(mlx::core::cu::malloc_async(0, from));
#else
  out.set_data(allocator::Buffer(b));
#endif
}

/* Who of them has the memory that the result is in, or null. */
static const array* owner_of(mlxvk_array result, const array* all, size_t count) {
  for (auto* a = all; a < all + count; a++) {
    Block* b = a->size() ? block_of(*a) : nullptr;
    if (!b) continue;
    std::lock_guard<Latch> lock(b->mutex);
    if (mlxvk_array_shares_memory(b->array, result)) return a;
  }
  return nullptr;
}

void adopt(array& out, mlxvk_array result, const Arrays& inputs, Stream s, const array* first) {
  if (!out.size()) {
    mlxvk_array_free(result);
    out.set_data(allocator::malloc(0));
    return;
  }
  if (out.ndim() != mlxvk_array_ndim(result)) {            // of the same size: row-major, and seen in MLX's shape
    mlxvk_array reshaped{};
    int code = mlxvk_reshape(&reshaped, result, out.shape().data(), out.ndim(), stream_of(s));
    mlxvk_array_free(result);
    if (code) raise(code, stream_of(s), "reshape");
    result = reshaped;
  }
  const array* owner = owner_of(result, inputs.data(), inputs.size());
  if (!owner && first) owner = owner_of(result, first, size_t(&out - first));
  if (owner) return adopt_shared(out, result, *owner);
  auto* b = new Block;
  b->array = result;
  b->size = mlxvk_array_memory_size(result);
  if (mlxvk_array_is_row_contiguous(result) && !mlxvk_array_offset(result)) { set_block(out, b); return; }
  array::Flags flags{};
  size_t data_size = 0;
  auto strides = layout_of(result, out, flags, data_size);
  array whole(out.shape(), out.dtype(), nullptr, {});      // only copy_shared_buffer() sets an offset
  set_block(whole, b);
  out.copy_shared_buffer(whole, strides, flags, data_size, int64_t(mlxvk_array_offset(result) / out.itemsize()));
}

/* By a handle of its own: another thread that wants the memory on the host lets go of the block's meanwhile. */
void wait_for(const array& a, bool readers) {
  Block* b = a.data_shared_ptr() ? block_of(a) : nullptr;
  if (!b) return;
  Handle own;
  int code = 0;
  {
    std::lock_guard<Latch> lock(b->mutex);
    if (!b->on_device()) return;
    code = mlxvk_array_set(&own, b->array);
  }
  if (!code) code = mlxvk_array_wait(own, readers);
  if (code) throw std::runtime_error("[mlxvk] " + device_error(code));
}

/* ---- MLX's allocator ---- */

static size_t host_memory() {
  static const size_t size = size_t(sysconf(_SC_PHYS_PAGES)) * size_t(sysconf(_SC_PAGESIZE));
  return size;
}

static void free_block(Block* b) {
  discharge(*b);
  b->drop_device();
  std::free(b->host);
  delete b;
}

static std::atomic<Block*> left{nullptr};                  // freed while another thread recorded: the last one, and so on

void free_left() {
  if (!left.load(std::memory_order_relaxed)) return;
  for (Block* b = left.exchange(nullptr); b;) free_block(std::exchange(b, b->next));
}

static void leave(Block* b) {
  b->next = left;
  while (!left.compare_exchange_weak(b->next, b)) {}
  if (!other_records()) free_left();                       // it was done just then
}

static void let_go(Block* b) {
  if (b->on_device() && other_records()) leave(b);
  else free_block(b);
}

static thread_local void** keeping = nullptr;              // the last one, and so on
Keeping::Keeping() : outer_(std::exchange(keeping, &first_)) {}
Keeping::~Keeping() {
  keep();
  keeping = outer_;
}
std::shared_ptr<void> Keeping::keep() {
  auto free_all = [](void* first) {
    for (auto* b = static_cast<Block*>(first); b;) let_go(std::exchange(b, b->next));
  };
  return {std::exchange(first_, nullptr), free_all};
}

/* For numbers that users ask for: what they have let go of is gone. A graph that is still being recorded has some of it,
 * whatever stream it is of, and whether anybody waits for that. (Not for the peak, which mlx_lm asks for each token.) */
static void settle() {
  tidy_walk();
  free_left();
}

class VulkanAllocator : public allocator::Allocator {
 public:
  allocator::Buffer malloc(size_t size) override {
    share_next(false);
    guard_python();                                        // what MLX's module does first while it is imported
    auto* b = new Block;
    b->size = size;
    int code = MLXVK_ERROR_LIMIT;
    if (has_device() && (!staged() || (loading && mapped()))) code = new_bytes(&b->array, nullptr, size);
    if (code == MLXVK_ERROR_LIMIT && size < host_memory()) {   // or more than the device can have in one piece
      b->host = std::malloc(whole(size) + 1);
      b->on_host = true;
      code = b->host ? 0 : MLXVK_ERROR_HOST_MEMORY;
      if (!code && has_device()) charge(*b);
    }
    if (!code) return allocator::Buffer(b);
    delete b;
    throw std::runtime_error("[malloc] Unable to allocate " + std::to_string(size) + " bytes: " +
                             (has_device() && !staged() ? device_error(code) : mlxvk_result_text(code)));
  }

  void free(allocator::Buffer buffer) override {
    auto* b = static_cast<Block*>(buffer.ptr());
    if (!b) return;
    if (keeping) b->next = static_cast<Block*>(std::exchange(*keeping, b));
    else let_go(b);
  }

  /* Python's module asks for it where a copy will do, too: that is copied once, and not for each use. A program in C++ gets
   * its own pointer back, and what it changes there after the GPU's first use is not seen. */
  allocator::Buffer make_buffer(void* data, size_t size) override {
    const bool foreign = std::exchange(sharing, false);
    if ((!foreign && has_python()) || !data || !size || size > INT_MAX) return allocator::Buffer(nullptr);
    auto* b = new Block;
    b->host = data;
    b->size = size;
    b->on_host = true;
    (foreign ? b->foreign : b->borrowed) = true;
    return allocator::Buffer(b);
  }
  void release(allocator::Buffer buffer) override {
    if (auto* b = static_cast<Block*>(buffer.ptr())) b->host = nullptr;
    free(buffer);
  }

  size_t size(allocator::Buffer buffer) const override {
    auto* b = static_cast<const Block*>(buffer.ptr());
    return !b ? 0 : b->on_device() ? mlxvk_array_memory_capacity(b->array) : b->size;
  }
};

}  // namespace mlxvk_mlx

namespace mlx::core {

namespace allocator {

Allocator& allocator() {
  static auto* the = new mlxvk_mlx::VulkanAllocator;       // never destroyed: arrays may outlive everything
  return *the;
}

#if MLX_VERSION_NUMERIC >= 32000
bool can_reuse_alien_buffer(void*) { return false; }
#endif

void* Buffer::raw_ptr() { return ptr_ ? mlxvk_mlx::host_pointer(*static_cast<mlxvk_mlx::Block*>(ptr_)) : nullptr; }

}  // namespace allocator

static size_t set_memory_value(int (*set)(size_t*, size_t, mlxvk_device), size_t limit) {
  size_t old = 0;
  int code = mlxvk_mlx::has_device() ? set(&old, limit, mlxvk_mlx::device()) : 0;
  if (code) throw std::invalid_argument(mlxvk_mlx::device_error(code));
  return old;
}

size_t get_active_memory() {
  mlxvk_mlx::settle();
  return mlxvk_mlx::device_value(mlxvk_device_get_active_memory) + mlxvk_mlx::host_only.held.load();
}
size_t get_peak_memory() {
  const size_t peak = mlxvk_mlx::device_value(mlxvk_device_get_peak_memory), most = mlxvk_mlx::host_only.most;
  return std::max(peak ? peak + mlxvk_mlx::host_only.least.load() : 0, most);
}
size_t get_cache_memory() {
  mlxvk_mlx::settle();
  return mlxvk_mlx::device_value(mlxvk_device_get_cache_memory);
}
size_t get_memory_limit() { return mlxvk_mlx::device_value(mlxvk_device_get_memory_limit); }
size_t set_memory_limit(size_t limit) { return set_memory_value(mlxvk_device_set_memory_limit, limit); }
size_t set_cache_limit(size_t limit) { return set_memory_value(mlxvk_device_set_cache_limit, limit); }
size_t set_wired_limit(size_t limit) { return set_memory_value(mlxvk_device_set_wired_limit, limit); }
void reset_peak_memory() {
  mlxvk_mlx::settle();
  mlxvk_mlx::note_active_memory();
  mlxvk_mlx::host_only.most = 0;
  mlxvk_mlx::host_only.least = mlxvk_mlx::host_only.held.load();
  if (mlxvk_mlx::has_device()) mlxvk_device_reset_peak_memory(mlxvk_mlx::device());
}
void clear_cache() {
  mlxvk_mlx::settle();
  if (mlxvk_mlx::has_device()) mlxvk_device_clear_cache(mlxvk_mlx::device());
}

}  // namespace mlx::core
