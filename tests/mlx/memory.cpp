/* MLX's allocator over mlxvk: see bridge.h.                                                  SPDX-License-Identifier: MIT */
#include <climits>
#include <cstdlib>

#include "bridge.h"
#include "mlx/allocator.h"
#include "mlx/memory.h"

namespace mlxvk_mlx {

namespace allocator = mlx::core::allocator;

/* What an allocator::Buffer of MLX points to: a piece of memory. On a device that maps its memory it is one handle; where
 * it does not, the bytes lie on the host, on the device, or on both. Without a device they lie on the host. */
struct Block {
  mlxvk_array array{};       // a handle on the device memory
  void* host = nullptr;
  size_t size = 0;           // bytes that MLX asked for
  bool on_host = false;      // the host's copy is right
  std::mutex mutex;          // of the two copies

  bool on_device() const { return array.ctx; }
};

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
  int shape[] = {int((size + row - 1) / row), int(row)};
  return mlxvk_array_new_data_device(res, data, shape, 2, MLXVK_UINT8, device());
}

static std::string device_error(int code) {
  mlxvk_error error{};
  mlxvk_device_error(device(), &error);
  return error.text[0] ? error.text : mlxvk_result_text(code);
}

/* ---- the host's side of memory that is not mapped ---- */

static size_t whole(size_t size) { return size <= INT_MAX ? size : (size + 0xffff) / 0x10000 * 0x10000; }

static void download(Block& b) {
  if (b.on_host) return;
  submit_all();
  if (!b.host) b.host = std::malloc(whole(b.size));
  mlxvk_array bytes{};
  const size_t size = mlxvk_array_memory_size(b.array) < b.size ? mlxvk_array_memory_size(b.array) : b.size;
  int shape[] = {int(size)};
  if (size > INT_MAX) throw std::runtime_error("[mlxvk] more than 2 GiB of memory that is not mapped, read by the host at once");
  int code = b.host ? mlxvk_array_new_view(&bytes, b.array, shape, nullptr, 1, MLXVK_UINT8, 0) : MLXVK_ERROR_HOST_MEMORY;
  if (!code) code = mlxvk_array_read(bytes, b.host, size, mlxvk_stream{});
  mlxvk_array_free(bytes);
  if (code) throw std::runtime_error("[mlxvk] " + device_error(code));
  b.on_host = true;
}

static int upload(Block& b) { return b.on_device() ? 0 : new_bytes(&b.array, b.host, whole(b.size)); }

/* ---- operands and results ---- */

int operand(mlxvk_array* res, const array& a, Stream s, bool only) {
  Block* b = block_of(a);
  if (!b || !a.size()) return mlxvk_array_empty(res, a.shape().data(), a.ndim(), dtype_of(a), stream_of(s));
  std::unique_lock<std::mutex> lock(b->mutex, std::defer_lock);
  if (staged()) {
    lock.lock();
    if (int code = upload(*b)) return code;
  }
  int code = mlxvk_array_new_view(res, b->array, a.shape().data(), a.strides().data(), a.ndim(), dtype_of(a), a.offset());
  if (only && !code) {
    mlxvk_array_free(b->array);
    b->array = {};
    b->on_host = false;
  }
  return code;
}

void give_back(const array& a, mlxvk_array handle) {
  Block* b = a.size() ? block_of(a) : nullptr;
  if (b && !b->array.ctx) b->array = handle;
  else mlxvk_array_free(handle);
}

static void adopt_shared(array& out, mlxvk_array result, const array& in) {
  mlx::core::Strides strides(mlxvk_array_strides(result), mlxvk_array_strides(result) + out.ndim());
  auto [data_size, row, col] = mlx::core::check_contiguity(out.shape(), strides);
  const int64_t offset = int64_t(mlxvk_array_offset(result)) - in.offset();
  array::Flags flags{};
  flags.contiguous = row || col;
  flags.row_contiguous = row;
  flags.col_contiguous = col;
  out.copy_shared_buffer(in, strides, flags, data_size, offset / int64_t(out.itemsize()));
  mlxvk_array_free(result);
}

void adopt(array& out, mlxvk_array result, const Arrays& inputs, Stream s) {
  if (!out.size()) {
    mlxvk_array_free(result);
    out.set_data(allocator::malloc(0));
    return;
  }
  mlxvk_array base{};
  for (auto& in : inputs) {
    Block* b = in.size() ? block_of(in) : nullptr;
    if (!b || out.ndim() != mlxvk_array_ndim(result)) continue;
    if (!b->array.ctx) continue;
    if (mlxvk_array_shares_memory(b->array, result)) return adopt_shared(out, result, in);
  }
  if (!mlxvk_array_is_row_contiguous(result) || mlxvk_array_offset(result)) {
    int code = mlxvk_copy(&base, result, stream_of(s));
    mlxvk_array_free(result);
    if (code) raise(code, stream_of(s), "copy");
    result = base;
  }
  auto* b = new Block;
  b->array = result;
  b->size = out.nbytes();
  out.set_data(allocator::Buffer(b));
}

void wait_for(const array& a, bool readers) {
  Block* b = a.data_shared_ptr() ? block_of(a) : nullptr;
  if (!b || !b->on_device()) return;
  if (int code = mlxvk_array_wait(b->array, readers)) throw std::runtime_error("[mlxvk] " + device_error(code));
}

/* ---- MLX's allocator ---- */

class VulkanAllocator : public allocator::Allocator {
 public:
  allocator::Buffer malloc(size_t size) override {
    auto* b = new Block;
    b->size = size;
    int code = 0;
    if (!has_device() || staged()) {
      b->host = std::malloc(whole(size) ? whole(size) : 1);
      b->on_host = true;
      if (!b->host) code = MLXVK_ERROR_HOST_MEMORY;
    } else code = new_bytes(&b->array, nullptr, size);
    if (!code) return allocator::Buffer(b);
    delete b;
    throw std::runtime_error("[malloc] Unable to allocate " + std::to_string(size) + " bytes: " +
                             (has_device() ? device_error(code) : mlxvk_result_text(code)));
  }

  void free(allocator::Buffer buffer) override {
    auto* b = static_cast<Block*>(buffer.ptr());
    if (!b) return;
    mlxvk_array_free(b->array);
    std::free(b->host);
    delete b;
  }

  size_t size(allocator::Buffer buffer) const override {
    auto* b = static_cast<const Block*>(buffer.ptr());
    return !b ? 0 : b->on_device() ? mlxvk_array_memory_size(b->array) : b->size;
  }
};

}  // namespace mlxvk_mlx

namespace mlx::core {

namespace allocator {

Allocator& allocator() {
  static auto* the = new mlxvk_mlx::VulkanAllocator;       // never destroyed: arrays may outlive everything
  return *the;
}

/* The host's pointer. On memory that is not mapped the host's copy becomes the only one: the caller may write. */
void* Buffer::raw_ptr() {
  using namespace mlxvk_mlx;
  auto* b = static_cast<Block*>(ptr_);
  if (!b) return nullptr;
  if (!has_device()) return b->host;
  if (staged()) {
    std::lock_guard<std::mutex> lock(b->mutex);
    download(*b);
    mlxvk_array_free(b->array);
    b->array = {};
    return b->host;
  }
  void* data = nullptr;
  if (int code = mlxvk_array_host(&data, b->array)) throw std::runtime_error("[mlxvk] " + device_error(code));
  return data;
}

}  // namespace allocator

static size_t memory_value(int (*get)(size_t*, mlxvk_device)) {
  size_t value = 0;
  if (mlxvk_mlx::has_device()) get(&value, mlxvk_mlx::device());
  return value;
}

static size_t set_memory_value(int (*set)(size_t*, size_t, mlxvk_device), size_t limit) {
  size_t old = 0;
  int code = mlxvk_mlx::has_device() ? set(&old, limit, mlxvk_mlx::device()) : 0;
  if (code) throw std::invalid_argument(mlxvk_mlx::device_error(code));
  return old;
}

size_t get_active_memory() { return memory_value(mlxvk_get_active_memory); }
size_t get_peak_memory() { return memory_value(mlxvk_get_peak_memory); }
size_t get_cache_memory() { return memory_value(mlxvk_get_cache_memory); }
size_t get_memory_limit() { return memory_value(mlxvk_get_memory_limit); }
size_t set_memory_limit(size_t limit) { return set_memory_value(mlxvk_set_memory_limit, limit); }
size_t set_cache_limit(size_t limit) { return set_memory_value(mlxvk_set_cache_limit, limit); }
size_t set_wired_limit(size_t limit) { return set_memory_value(mlxvk_set_wired_limit, limit); }
void reset_peak_memory() { if (mlxvk_mlx::has_device()) mlxvk_reset_peak_memory(mlxvk_mlx::device()); }
void clear_cache() { if (mlxvk_mlx::has_device()) mlxvk_clear_cache(mlxvk_mlx::device()); }

}  // namespace mlx::core
