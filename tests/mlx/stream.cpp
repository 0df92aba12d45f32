/* Streams, events, fences and evaluation: see bridge.h.                                      SPDX-License-Identifier: MIT */
#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <deque>
#include <unordered_map>
#include <variant>

#include "bridge.h"
#include "mlx/backend/cpu/eval.h"
#include "mlx/backend/gpu/available.h"
#include "mlx/backend/gpu/eval.h"
#include "mlx/backend/metal/metal.h"
#include "mlx/event.h"
#include "mlx/fence.h"

namespace mlxvk_mlx {

namespace scheduler = mlx::core::scheduler;
using mlx::core::Device;

/* ---- the device and its streams; never destroyed, since arrays may outlive everything ---- */

struct Streams {
  std::mutex mutex;
  std::unordered_map<int, mlxvk_stream> by_index;
  std::unordered_map<int, std::string> failed;             // errors of deferred work that nobody was told yet
};
static Streams& streams() { static auto* the = new Streams; return *the; }

static std::atomic<bool> exiting{false};

static void drain() {
  submit_all();
  std::vector<mlxvk_stream> all;
  {
    std::lock_guard<std::mutex> lock(streams().mutex);
    for (auto& [index, s] : streams().by_index) all.push_back(s);
  }
  for (auto s : all) mlxvk_synchronize(s);
}

/* After the interpreter, before the driver's own destructors: this is registered behind theirs. What still runs in other
 * threads must not touch the driver any more. */
static void at_exit() {
  drain();
  print_statistics();
  exiting = true;
}

/* But a driver may make objects at its first dispatch, and those are destroyed before at_exit(): lavapipe's compiler hangs
 * when it is still at work then. So Python itself waits for the GPU, before it leaves main(). */
static void drain_with_python() {
  if (auto at_end = reinterpret_cast<int (*)(void (*)())>(dlsym(RTLD_DEFAULT, "Py_AtExit"))) at_end(drain);
}

static mlxvk_device make_device() {
  setenv("MLX_VK_MX_SCALES_NEAREST", "1", 0);        // this release of MLX rounds them so
  mlxvk_device d = mlxvk_device_new();
  if (d.ctx) { std::atexit(at_exit); drain_with_python(); }
  else if (std::getenv("MLX_VK_STATS")) std::fprintf(stderr, "mlxvk: no Vulkan device, MLX stays on the CPU\n");
  return d;
}

mlxvk_device device() { static mlxvk_device d = make_device(); return d; }
bool has_device() { return device().ctx; }

bool staged() {
  static const bool value = [] {
    size_t cached = 1;
    return has_device() && !mlxvk_device_info_get_size(&cached, device(), "cached") && !cached;
  }();
  return value;
}

mlxvk_stream stream_of(Stream s) {
  static thread_local int last_index = -1;                 // nearly always the same one
  static thread_local mlxvk_stream last{};
  if (s.index == last_index) return last;
  auto& all = streams();
  std::lock_guard<std::mutex> lock(all.mutex);
  auto& stream = all.by_index[s.index];
  if (!stream.ctx) stream = mlxvk_stream_new_device(device());
  if (!stream.ctx) throw std::runtime_error("[mlxvk] no stream could be made");
  last_index = s.index;
  return last = stream;
}

size_t stream_count() {
  std::lock_guard<std::mutex> lock(streams().mutex);
  return streams().by_index.size();
}

std::string error_text(int code, mlxvk_stream stream) {
  mlxvk_error error{};
  mlxvk_stream_error(stream, &error);
  return error.code == code && error.text[0] ? error.text : mlxvk_result_text(code);
}

void raise(int code, mlxvk_stream stream, const char* what) {
  const std::string text = std::string("[") + what + "] " + error_text(code, stream);
  if (code == MLXVK_ERROR_ARGUMENT || code == MLXVK_ERROR_SHAPE || code == MLXVK_ERROR_AXIS || code == MLXVK_ERROR_DTYPE)
    throw std::invalid_argument(text);
  throw std::runtime_error(text);
}

void submit_all() {
  auto& all = streams();
  std::lock_guard<std::mutex> lock(all.mutex);
  for (auto& [index, s] : all.by_index)
    if (int code = mlxvk_finalize(s)) all.failed.try_emplace(index, error_text(code, s));
}

/* Throws what submit_all() was told of the stream. */
static void raise_deferred(Stream s) {
  auto& all = streams();
  std::string text;
  {
    std::lock_guard<std::mutex> lock(all.mutex);
    auto it = all.failed.find(s.index);
    if (it == all.failed.end()) return;
    text = it->second;
    all.failed.erase(it);
  }
  throw std::runtime_error("[mlxvk] " + text);
}

/* In a process that is on its way out, a thread that asks for more waits for the end. */
static void stop_if_exiting() { while (exiting) pause(); }

/* ---- counters that threads and streams wait on: events and fences are ones ---- */

/* A timeline of mlxvk from a value on; they are used again, so that an evaluation makes no semaphore. Without a device, a
 * condition variable. */
class Counter {
 public:
  /* of: the stream that will signal it. */
  explicit Counter(Stream of) : of_(of) {
    if (!has_device()) return;
    auto& p = pool();
    std::lock_guard<std::mutex> lock(p.mutex);
    if (!p.idle.empty() && mlxvk_event_is_signaled(p.idle.front().event, p.idle.front().base)) {
      line_ = p.idle.front();
      p.idle.pop_front();
    } else if (int code = mlxvk_event_new(&line_.event, device())) {
      throw std::runtime_error(std::string("[mlxvk] no event: ") + mlxvk_result_text(code));
    }
    last_ = line_.base;
  }

  ~Counter() {
    if (!line_.event.ctx) return;
    auto& p = pool();
    std::lock_guard<std::mutex> lock(p.mutex);
    p.idle.push_back({line_.event, last_});
  }

  void wait(uint64_t value) {
    if (line_.event.ctx) { check(mlxvk_event_wait_host(line_.event, line_.base + value, UINT64_MAX), "wait"); return; }
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return value_ >= value; });
  }

  void signal(uint64_t value) {
    if (line_.event.ctx) { note(value); check(mlxvk_event_signal_host(line_.event, line_.base + value), "signal"); return; }
    { std::lock_guard<std::mutex> lock(mutex_); value_ = value; }
    changed_.notify_all();
  }

  /* In the order of the GPU stream. What the CPU computes into its own memory must be there to be uploaded: the host waits. */
  void wait(uint64_t value, Stream s) {
    if (staged() && of_.device == Device::cpu) { submit_all(); wait(value); return; }
    if (int code = mlxvk_event_wait(line_.event, line_.base + value, stream_of(s))) raise(code, stream_of(s), "Event::wait");
  }

  void signal(uint64_t value, Stream s) {
    note(value);
    if (int code = mlxvk_event_signal(line_.event, line_.base + value, stream_of(s))) raise(code, stream_of(s), "Event::signal");
  }

  bool reached(uint64_t value) {
    if (line_.event.ctx) return mlxvk_event_is_signaled(line_.event, line_.base + value);
    std::lock_guard<std::mutex> lock(mutex_);
    return value_ >= value;
  }

  /* Reached, or within a moment: what the CPU is just done with is cheaper to wait for than to have the GPU wait for, and its
   * result can be donated. */
  bool soon(uint64_t value) {
    const uint64_t moment = 200'000;
    return line_.event.ctx && !mlxvk_event_wait_host(line_.event, line_.base + value, moment);
  }

  Stream of() const { return of_; }
  bool issued() const { return last_ > line_.base; }
  uint64_t next() { return ++issued_; }
  uint64_t current() const { return issued_; }

 private:
  struct Line { mlxvk_event event{}; uint64_t base = 0; };
  struct Pool { std::mutex mutex; std::deque<Line> idle; };
  static Pool& pool() { static auto* the = new Pool; return *the; }

  void note(uint64_t value) {
    uint64_t now = last_;
    while (now < line_.base + value && !last_.compare_exchange_weak(now, line_.base + value)) {}
  }
  static void check(int code, const char* what) {
    if (code) throw std::runtime_error(std::string("[Event::") + what + "] " + mlxvk_result_text(code));
  }

  Stream of_;
  Line line_;
  std::atomic<uint64_t> last_{0};                          // largest value that somebody will signal
  std::atomic<uint64_t> issued_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t value_ = 0;
};

static std::shared_ptr<void> new_counter(Stream of) { return std::make_shared<Counter>(of); }

/* A CPU stream calls in its own thread, in order; a GPU stream takes it into its timeline. */
static void wait_in(Stream s, std::shared_ptr<void> counter, uint64_t value) {
  stop_if_exiting();
  auto c = std::static_pointer_cast<Counter>(counter);
  if (s.device == Device::gpu) c->wait(value, s);
  else scheduler::enqueue(s, [c, value] { c->wait(value); });
}

static void signal_in(Stream s, std::shared_ptr<void> counter, uint64_t value) {
  stop_if_exiting();
  auto c = std::static_pointer_cast<Counter>(counter);
  if (s.device == Device::gpu) c->signal(value, s);
  else scheduler::enqueue(s, [c, value] { c->signal(value); });
}

/* A CPU stream's worker still writes what a GPU operation is about to take in: MLX would let go of it when that operation is
 * recorded. The stream itself holds it until then, which also keeps it from being overwritten in place. */
static void hold_in(Stream producer, const array& a) {
  if (producer.device == Device::cpu && a.data_shared_ptr()) scheduler::enqueue(producer, [data = a.data_shared_ptr()] {});
}

/* Events that an evaluation in this thread made and has not signalled yet. When it ends with an exception nobody will: what
 * it had computed until then would be waited for without end. */
static thread_local std::vector<std::pair<Stream, std::weak_ptr<Counter>>> promised;

static void promise(Stream s, const std::shared_ptr<void>& counter) {
  if (promised.size() >= 64) promised.erase(promised.begin(), promised.begin() + 32);
  promised.emplace_back(s, std::static_pointer_cast<Counter>(counter));
}

static void keep_promises() {
  for (auto& [s, weak] : promised)
    if (auto c = weak.lock(); c && !c->issued()) signal_in(s, c, 1);
  promised.clear();
}

}  // namespace mlxvk_mlx

namespace mlx::core {

using mlxvk_mlx::Counter;
static Counter* counter(const std::shared_ptr<void>& p) { return static_cast<Counter*>(p.get()); }

Event::Event(Stream s) : stream_(s) {
  event_ = mlxvk_mlx::new_counter(s);
  mlxvk_mlx::promise(s, event_);
}
void Event::wait() { mlxvk_mlx::stop_if_exiting(); counter(event_)->wait(value_); }
void Event::wait(Stream s) { mlxvk_mlx::wait_in(s, event_, value_); }
void Event::signal(Stream s) { mlxvk_mlx::signal_in(s, event_, value_); }
bool Event::is_signaled() const { return counter(event_)->reached(value_); }

Fence::Fence(Stream s) { fence_ = mlxvk_mlx::new_counter(s); }
void Fence::wait(Stream s, const array& a) {
  auto* c = counter(fence_);
  if (s.device == Device::gpu && c->of().device == Device::cpu && c->soon(c->current())) return;
  mlxvk_mlx::wait_in(s, fence_, c->current());
  if (s.device == Device::gpu) mlxvk_mlx::hold_in(c->of(), a);
}
void Fence::update(Stream s, const array&, bool) { mlxvk_mlx::signal_in(s, fence_, counter(fence_)->next()); }

namespace gpu {

bool is_available() { return mlxvk_mlx::has_device(); }
void new_stream(Stream) {}                                 // called while MLX is being set up: made at first use

void eval(array& a) {
  mlxvk_mlx::stop_if_exiting();
  auto outputs = a.outputs();
  std::vector<array> held;                                 // the inputs of a tracer must not be donated
  if (a.is_tracer()) held = a.inputs();
  for (auto& in : a.inputs())
    if (in.event().valid() && !in.event().is_signaled()) mlxvk_mlx::hold_in(in.event().stream(), in);
  try {
    mlxvk_mlx::run(a.primitive(), a.inputs(), outputs);
  } catch (...) {
    mlxvk_mlx::keep_promises();
    throw;
  }
}

void finalize(Stream s) {
  mlxvk_mlx::stop_if_exiting();
  mlxvk_stream stream = mlxvk_mlx::stream_of(s);
  if (int code = mlxvk_finalize(stream)) mlxvk_mlx::raise(code, stream, "eval");
  mlxvk_mlx::raise_deferred(s);
}

void synchronize(Stream s) {
  if (mlxvk_mlx::exiting) return;
  mlxvk_stream stream = mlxvk_mlx::stream_of(s);
  mlxvk_mlx::submit_all();
  if (int code = mlxvk_synchronize(stream)) mlxvk_mlx::raise(code, stream, "synchronize");
  mlxvk_mlx::raise_deferred(s);
}

}  // namespace gpu

namespace cpu {

/* MLX's CPU operations do the quick part at once and queue the rest in their stream's thread. */

/* What may be written in place must not be in use on the GPU any more. */
static void wait_for_donors(const std::vector<array>& inputs) {
  if (!mlxvk_mlx::has_device()) return;
  for (auto& in : inputs)
    if (in.is_donatable()) mlxvk_mlx::wait_for(in, true);
}

/* Queued work has plain pointers: a task behind it keeps the memory of its operands, temporaries and other results. Not
 * that of `result`, even where it came from an operand: whoever waits for it has it, and another owner would keep the
 * next operation from working in place. */
static void keep_behind(CommandEncoder& queue, const array& result) {
  std::vector<array> temporaries;
  std::vector<std::shared_ptr<void>> memory;
  auto keep = [&](const array& a) {
    if (auto data = a.data_shared_ptr(); data != result.data_shared_ptr()) memory.push_back(std::move(data));
  };
  for (auto& in : result.inputs()) keep(in);
  for (auto& other : result.siblings()) keep(other);
  temporaries.swap(queue.temporaries());
  queue.dispatch([memory = std::move(memory), temporaries = std::move(temporaries)] {});
}

void eval(array& a) {
  auto& queue = get_command_encoder(a.primitive().stream());
  auto outputs = a.outputs();
  std::vector<array> held;                                 // the inputs of a tracer must not be donated
  if (a.is_tracer()) held = a.inputs();
  try {
    wait_for_donors(a.inputs());
    mlxvk_mlx::Loading loading(typeid(a.primitive()) == typeid(Load));
    a.primitive().eval_cpu(a.inputs(), outputs);
    keep_behind(queue, a);
  } catch (...) {
    mlxvk_mlx::keep_promises();
    throw;
  }
}

}  // namespace cpu

namespace metal {

const std::unordered_map<std::string, std::variant<std::string, size_t>>& device_info() {
  static auto* info = [] {
    auto* map = new std::unordered_map<std::string, std::variant<std::string, size_t>>;
    if (!mlxvk_mlx::has_device()) throw std::runtime_error("[metal::device_info] Cannot get device info without a GPU");
    for (const char* key : {"device_name", "architecture", "driver"}) {
      const char* value = nullptr;
      if (!mlxvk_device_info_get_string(&value, mlxvk_mlx::device(), key)) (*map)[key] = std::string(value);
    }
    for (const char* key : {"max_buffer_length", "max_recommended_working_set_size", "memory_size"}) {
      size_t value = 0;
      if (!mlxvk_device_info_get_size(&value, mlxvk_mlx::device(), key)) (*map)[key] = value;
    }
    return map;
  }();
  return *info;
}

}  // namespace metal

}  // namespace mlx::core
