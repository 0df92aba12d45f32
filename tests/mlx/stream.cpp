/* Streams, events, fences and evaluation: see bridge.h.                                      SPDX-License-Identifier: MIT */
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <variant>

#include "bridge.h"
#include "mlx/backend/cpu/eval.h"
#if MLX_VERSION_NUMERIC >= 31000
#include "mlx/backend/gpu/device_info.h"
#else
#include "mlx/backend/gpu/available.h"
#endif
#include "mlx/backend/gpu/eval.h"
#include "mlx/backend/metal/metal.h"
#include "mlx/event.h"
#include "mlx/fence.h"
#include "mlx/utils.h"

namespace mlxvk_mlx {

namespace scheduler = mlx::core::scheduler;
using mlx::core::Device;
using mlx::core::Event;

/* ---- the device and its streams; never destroyed, since arrays may outlive everything ---- */

struct Streams {
  std::mutex mutex;
  std::unordered_map<int, mlxvk_stream> by_index;
  std::vector<mlxvk_stream> idle;                          // of threads that are gone
  std::unordered_set<int> of_all;                          // by index: made for every thread
  std::unordered_map<int, std::string> failed;             // errors of deferred work that nobody was told yet
  std::unordered_map<int, std::vector<Event>> waited;      // by GPU stream, events of CPU streams, which may fail
};
static Streams& streams() { static auto* the = new Streams; return *the; }

static std::atomic<bool> exiting{false};

/* A child of fork()'s has the parent's device in its memory, and nobody who works on it: it must not wait. */
static pid_t own_process;
static bool is_child() { return own_process && getpid() != own_process; }

/* What would wait there without end. */
static void check_process() {
  if (is_child())
    throw std::runtime_error("[mlxvk] This process was forked from one that has the GPU, and cannot compute on it. Start it anew "
                             "(multiprocessing.get_context(\"spawn\")), or compute on mx.cpu in it.");
}

static void drain() {
  if (is_child()) return;
  leave_ranks();
  join_walk();
  submit_all();
  std::vector<mlxvk_stream> all;
  {
    std::lock_guard<std::mutex> lock(streams().mutex);
    for (auto& [index, s] : streams().by_index) all.push_back(s);
  }
  for (auto s : all) mlxvk_synchronize(s);
  finish_ranks();
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

/* Where no device is asked for, the ranks that a launcher started on a host share out its devices of the best kind. */
static void choose_by_rank() {
  const char *wanted = std::getenv("MLX_VK_DEVICE"), *rank = nullptr;
  for (const char* name : {"OMPI_COMM_WORLD_LOCAL_RANK", "MLX_RANK", "SLURM_LOCALID"})
    if (!rank) rank = std::getenv(name);
  if (!rank || (wanted && *wanted)) return;
  using Found = std::map<std::string, std::vector<int>>;     // by kind, the indices
  Found found;
  auto note = [](int i, const char*, const char* kind, void* to) { (*static_cast<Found*>(to))[kind].push_back(i); };
  mlxvk_device_list(note, &found);
  for (const char* kind : {"discrete", "integrated", "virtual", "cpu", "other"})
    if (auto& all = found[kind]; !all.empty()) {
      setenv("MLX_VK_DEVICE", std::to_string(all[std::strtoul(rank, nullptr, 10) % all.size()]).c_str(), 1);
      return;
    }
}

/* A model's first token wants some twenty pipelines, which a GPU's driver makes on the threads that ask for them. */
static void side_by_side(mlxvk_task* task, void* with, uint32_t count, void*) {
  std::atomic<uint32_t> next{0};
  auto work = [&] { for (uint32_t i; (i = next++) < count;) task(with, i); };
  const size_t wanted = std::min({count, std::thread::hardware_concurrency(), 16u});
  std::vector<std::thread> others;
  try {
    others.reserve(wanted);
    while (others.size() + 1 < wanted) others.emplace_back(work);
  } catch (const std::system_error&) {}                     // as many as there are
  work();
  for (auto& thread : others) thread.join();
}

static thread_local int last_index = -1;                    // of the stream asked for last: nearly always the same one
static thread_local mlxvk_stream last_stream{};
static char without_device[sizeof(mlxvk_error::text) + 256];

static mlxvk_device make_device() {
  choose_by_rank();
#if MLX_VERSION_NUMERIC < 32000
  setenv("MLX_VK_MX_SCALES_NEAREST", "1", 0);              // these releases of MLX round them so
#endif
  setenv("MLX_VK_WINDOW", "128", 0);                       // a token's graph takes longer to walk than to compute
  setenv("MLX_VK_CLEAR_KEEPS_MB", "512", 0);               // mlx_lm clears the cache behind each part of a prompt
  mlxvk_device_desc desc{};
  mlxvk_device d{};
  mlxvk_error error{};
  desc.parallel = side_by_side;
  desc.error = &error;
  if (!mlxvk_device_create(&d, &desc)) mlxvk_set_default_device(d);
  own_process = getpid();
  pthread_atfork(nullptr, nullptr, [] { last_index = -1; });  // so that stream_of() looks
  if (d.ctx) { std::atexit(at_exit); drain_with_python(); }
  else {
    std::snprintf(without_device, sizeof without_device,
                  "MLX goes on with the CPU: there is no Vulkan device that mlxvk can use: %s. (vulkaninfo --summary lists the devices, "
                  "MLX_VK_DEVICE=index|name chooses one; mesa-vulkan-drivers has a driver for the CPU.)", error.text);
    std::fprintf(stderr, "mlxvk: %s\n", without_device);
  }
  return d;
}

mlxvk_device device() { static mlxvk_device d = make_device(); return d; }
bool has_device() { return hooked() && device().ctx; }
const char* no_device() { return device().ctx ? "" : without_device; }

bool staged() {
  static const bool value = [] {
    size_t cached = 1;
    return has_device() && !mlxvk_device_info_get_size(&cached, device(), "cached") && !cached;
  }();
  return value;
}

#if MLX_VERSION_NUMERIC >= 31000
/* The GPU streams that a thread has made: MLX has them go with it. */
struct Owned {
  std::vector<int> indices;

  void release() {
    if (is_child()) return;
    join_walk();
    for (int index : indices) {
      mlxvk_stream stream{};
      {
        std::lock_guard<std::mutex> lock(streams().mutex);
        auto it = streams().by_index.find(index);
        if (it == streams().by_index.end()) continue;
        stream = it->second;
      }
      mlxvk_synchronize(stream);
      std::lock_guard<std::mutex> lock(streams().mutex);
      streams().by_index.erase(index);
      streams().waited.erase(index);
      streams().idle.push_back(stream);
    }
    indices.clear();
    last_index = -1;
  }
  ~Owned() { release(); }
};
static thread_local Owned owned;
#endif

/* Since 0.32 a stream is for the thread that made it alone, unless it was made for all. The lock is held. */
static void check_thread(Stream s) {
#if MLX_VERSION_NUMERIC >= 32000
  auto& own = owned.indices;
  if (std::find(own.begin(), own.end(), s.index) == own.end() && !streams().of_all.count(s.index))
    throw std::runtime_error("There is no Stream(gpu, " + std::to_string(s.index) + ") in current thread.");
#else
  (void)s;
#endif
}

void lend_stream(Stream s, mlxvk_stream handle) {
  last_index = s.index;
  last_stream = handle;
}

mlxvk_stream stream_of(Stream s) {
  if (s.index == last_index && records()) return last_stream;
  check_process();
  join_walk(s);
  if (s.index == last_index) return last_stream;
  auto& all = streams();
  std::lock_guard<std::mutex> lock(all.mutex);
  check_thread(s);
  auto& stream = all.by_index[s.index];
  if (!stream.ctx && !all.idle.empty()) {
    stream = all.idle.back();
    all.idle.pop_back();
  }
  if (!stream.ctx) stream = mlxvk_stream_new_device(device());
  if (!stream.ctx) throw std::runtime_error("[mlxvk] no stream could be made");
  last_index = s.index;
  return last_stream = stream;
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
    if (of_.device == Device::gpu && !reached(value)) check_process();
    if (line_.event.ctx) { check(mlxvk_event_wait_host(line_.event, line_.base + value, UINT64_MAX), "wait"); return; }
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return value_ >= value; });
  }

  void signal(uint64_t value) {
    if (line_.event.ctx) { if (note(value)) check(mlxvk_event_signal_host(line_.event, line_.base + value), "signal"); return; }
    { std::lock_guard<std::mutex> lock(mutex_); value_ = value; }
    changed_.notify_all();
  }

  /* In the order of the GPU stream. What the CPU computes into its own memory must be there to be uploaded: the host waits. */
  void wait(uint64_t value, Stream s) {
    if (staged() && of_.device == Device::cpu) { submit_all(); wait(value); return; }
    if (int code = mlxvk_event_wait(line_.event, line_.base + value, stream_of(s))) raise(code, stream_of(s), "Event::wait");
  }

  void signal(uint64_t value, Stream s) {
    if (!note(value)) return;
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
  /* In the order of the GPU stream, whoever signals it: what it stands for is in memory that the device reads. */
  void wait_on_device(uint64_t value, Stream s) {
    if (int code = mlxvk_event_wait(line_.event, line_.base + value, stream_of(s))) raise(code, stream_of(s), "Event::wait");
  }

#if MLX_VERSION_NUMERIC >= 32000
  /* What failed in the CPU streams that the GPU stream waited for before it signals this. */
  void set_sources(std::vector<Event> sources) {
    std::lock_guard<std::mutex> lock(mutex_);
    sources_ = std::move(sources);
  }
  std::vector<Event> sources() {
    std::lock_guard<std::mutex> lock(mutex_);
    return sources_;
  }
  /* An error is passed on once: who is told of it may go on. */
  std::atomic<mlx::core::Error*>& error() {
    /* What was not computed is not there, once this is told. Those of the CPU, which the thread has not failed, are asked
     * by who holds the streams' lock. */
    if (failed_ && of_.device == Device::gpu) join_walk();
    for (auto& e : sources()) {
      mlx::core::Error* theirs = e.load_error();
      if (!own_error_.store_if_valid(theirs)) continue;
      theirs->set_message({});
      error_ = &own_error_;
    }
    return error_;
  }
  void fail(const std::string& text) {
    own_error_.set_message(std::make_shared<std::string>(text));
    error_ = &own_error_;
    failed_ = true;
  }
#else
  void fail(const std::string&) {}
#endif

 private:
  struct Line { mlxvk_event event{}; uint64_t base = 0; };
  struct Pool { std::mutex mutex; std::deque<Line> idle; };
  static Pool& pool() { static auto* the = new Pool; return *the; }

  /* False where somebody signals it already: after an evaluation that failed MLX does so once more. */
  bool note(uint64_t value) {
    uint64_t now = last_;
    while (now < line_.base + value)
      if (last_.compare_exchange_weak(now, line_.base + value)) return true;
    return false;
  }
  static void check(int code, const char* what) {
    if (code) throw std::runtime_error(std::string("[Event::") + what + "] " + mlxvk_result_text(code));
  }

  Stream of_;
  Line line_;
  std::atomic<uint64_t> last_{0};                          // largest value that somebody will signal
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t value_ = 0;
#if MLX_VERSION_NUMERIC >= 32000
  std::vector<Event> sources_;
  mlx::core::Error own_error_;
  std::atomic<mlx::core::Error*> error_{nullptr};
  std::atomic<bool> failed_{false};
#endif
};

static std::shared_ptr<Counter> counter(const std::shared_ptr<void>& p) { return std::static_pointer_cast<Counter>(p); }

/* A CPU stream's worker still writes what a GPU operation is about to take in: MLX would let go of it when that operation is
 * recorded. The stream itself holds it until then, which also keeps it from being overwritten in place. */
static void hold_in(Stream producer, const array& a) {
  if (a.data_shared_ptr()) scheduler::enqueue(producer, [data = a.data_shared_ptr()] {});
}

#if MLX_VERSION_NUMERIC >= 32000
/* Does a GPU stream wait for what may fail elsewhere? Then it is asked when this stream is waited for. */
static void note_sources(Stream s, const Event& event, Counter& c) {
  auto sources = c.of().device == Device::cpu ? std::vector<Event>{event} : c.sources();
  if (sources.empty()) return;
  std::lock_guard<std::mutex> lock(streams().mutex);
  auto& all = streams().waited[s.index];
  std::erase_if(all, [](const Event& e) { return e.is_signaled() && !(e.load_error() && e.load_error()->valid()); });
  all.insert(all.end(), sources.begin(), sources.end());
}

static std::vector<Event> sources_of(Stream s, bool forget) {
  std::lock_guard<std::mutex> lock(streams().mutex);
  auto it = streams().waited.find(s.index);
  if (it == streams().waited.end()) return {};
  auto result = it->second;
  if (forget) streams().waited.erase(it);
  return result;
}
static void promise(Stream, const std::shared_ptr<void>&) {}
static void keep_promises() {}                             // MLX does it
#else
/* Events that an evaluation in this thread made and has not signalled yet. When it ends with an exception nobody will: what
 * it had computed until then would be waited for without end. */
static thread_local std::vector<std::pair<Stream, std::weak_ptr<Counter>>> promised;

static void promise(Stream s, const std::shared_ptr<void>& made) {
  if (promised.size() >= 64) promised.erase(promised.begin(), promised.begin() + 32);
  promised.emplace_back(s, counter(made));
}

static void keep_promises() {
  for (auto& [s, weak] : promised) {
    auto c = weak.lock();
    if (!c || c->issued()) continue;
    if (s.device == Device::gpu) c->signal(1, s);
    else scheduler::enqueue(s, [c] { c->signal(1); });
  }
  promised.clear();
}
#endif

#if MLX_VERSION_NUMERIC >= 32000
/* What a ring of MLX's does in a CPU stream's thread. A connection that was lost fails the transfers that wait for it,
 * and nobody serves it any more: later ones would wait without end, so they fail before they begin. */
static void run_in_ring(const std::function<void()>& task) {
  static const char lost_text[] = "[ring] connection to a peer was lost";
  static std::atomic<bool> lost{false};
  if (lost) throw std::runtime_error(lost_text);
  try {
    task();
  } catch (const std::exception& e) {
    if (!std::strcmp(e.what(), lost_text)) lost = true;
    throw;
  }
}
#endif

static std::unordered_map<std::string, std::variant<std::string, size_t>> make_info() {
  std::unordered_map<std::string, std::variant<std::string, size_t>> map;
  for (const char* key : {"device_name", "architecture", "driver"}) {
    const char* value = nullptr;
    if (!mlxvk_device_info_get_string(&value, device(), key)) map[key] = std::string(value);
  }
  for (const char* key : {"max_buffer_length", "max_recommended_working_set_size", "memory_size"}) {
    size_t value = 0;
    if (!mlxvk_device_info_get_size(&value, device(), key)) map[key] = value;
  }
  return map;
}

}  // namespace mlxvk_mlx

namespace mlx::core {

using mlxvk_mlx::Counter;
using mlxvk_mlx::counter;

/* A CPU stream calls in its own thread, in order; a GPU stream takes it into its timeline. */

Event::Event(Stream s) : stream_(s) {
  event_ = std::make_shared<Counter>(s);
  mlxvk_mlx::promise(s, event_);
}

bool Event::is_signaled() const { return counter(event_)->reached(value_); }

#if MLX_VERSION_NUMERIC >= 32000
void Event::wait() {
  mlxvk_mlx::stop_if_exiting();
  check_error();
  counter(event_)->wait(value_);
  check_error();
}

void Event::wait(Stream s) {
  mlxvk_mlx::stop_if_exiting();
  if (s.device == Device::cpu) {
    scheduler::wait_event(s, *this, [](Event& e) { counter(e.event_)->wait(e.value_); });
    return;
  }
  auto c = counter(event_);
  c->wait(value_, s);
  mlxvk_mlx::note_sources(s, *this, *c);
}

void Event::signal(Stream s) {
  mlxvk_mlx::stop_if_exiting();
  if (s.device == Device::cpu) {
    scheduler::signal_event(s, *this, [](Event& e) { counter(e.event_)->signal(e.value_); });
    return;
  }
  auto c = counter(event_);
  c->set_sources(mlxvk_mlx::sources_of(s, false));
  c->signal(value_, s);
}

std::atomic<Error*>& Event::error() { return counter(event_)->error(); }

/* MLX asks it for one purpose: to throw a CPU stream's error where the main thread gives that stream more to do.
 * Whether it knows of the error by then is chance: async_eval() throws it or what waits for the result. And work that
 * was counted and then not taken is waited for without end, after ten of them. So no thread is the main one: who waits
 * is told, always. */
bool is_main_thread() { return false; }
#else
void Event::wait() { mlxvk_mlx::stop_if_exiting(); counter(event_)->wait(value_); }

void Event::wait(Stream s) {
  mlxvk_mlx::stop_if_exiting();
  auto c = counter(event_);
  if (s.device == Device::gpu) c->wait(value_, s);
  else scheduler::enqueue(s, [c, value = value_] { c->wait(value); });
}

void Event::signal(Stream s) {
  mlxvk_mlx::stop_if_exiting();
  auto c = counter(event_);
  if (s.device == Device::gpu) c->signal(value_, s);
  else scheduler::enqueue(s, [c, value = value_] { c->signal(value); });
}
#endif

/* A private member, which template arguments may name. */
const std::shared_ptr<void>& counter_of(const Event& e);
template <std::shared_ptr<void> Event::*member> struct Opened {
  friend const std::shared_ptr<void>& counter_of(const Event& e) { return e.*member; }
};
template struct Opened<&Event::event_>;

}  // namespace mlx::core

void mlxvk_mlx::fail(mlx::core::Event& event, const std::string& text) { counter(counter_of(event))->fail(text); }

#if MLX_VERSION_NUMERIC >= 32000
mlx::core::Event mlxvk_mlx::await_host(Stream s) {
  Event event(Stream(0, Device::cpu));                     // such a one is asked for errors
  event.set_value(1);
  auto c = counter(counter_of(event));
  c->wait_on_device(1, s);
  note_sources(s, event, *c);
  return event;
}

void mlxvk_mlx::signal_host(mlx::core::Event& event) { counter(counter_of(event))->signal(event.value()); }
#endif

namespace mlx::core {

/* An event that is signalled again and again, by one stream. */
struct Updates {
  Event event;
  std::atomic<uint32_t> issued{0};

  explicit Updates(Stream s) : event(s) {}

  uint32_t signal(Stream s) {
    Event next = event;
    next.set_value(++issued);
    next.signal(s);
    return uint32_t(next.value());
  }

  void wait(Stream s, const array& a, uint32_t value) {
    Event e = event;
    e.set_value(value);
    const bool from_cpu = s.device == Device::gpu && e.stream().device == Device::cpu;
    auto c = counter(counter_of(e));
    if (!from_cpu || !c->soon(value)) e.wait(s);
#if MLX_VERSION_NUMERIC >= 32000
    else mlxvk_mlx::note_sources(s, e, *c);
#endif
    if (from_cpu && !c->reached(value)) mlxvk_mlx::hold_in(e.stream(), a);
  }
};
static Updates& updates(const std::shared_ptr<void>& fence) { return *static_cast<Updates*>(fence.get()); }

Fence::Fence(Stream s) { fence_ = std::make_shared<Updates>(s); }
#if MLX_VERSION_NUMERIC >= 32003
uint32_t Fence::update(Stream s, const array&, bool) { return updates(fence_).signal(s); }
void Fence::wait(Stream s, const array& a, uint32_t value) { updates(fence_).wait(s, a, value); }
#else
void Fence::update(Stream s, const array&, bool) { updates(fence_).signal(s); }
void Fence::wait(Stream s, const array& a) { updates(fence_).wait(s, a, updates(fence_).issued); }
#endif

using Info = std::unordered_map<std::string, std::variant<std::string, size_t>>;

/* MLX's own asks is_available() while it makes the device that it begins with, and who else asks meanwhile waits for that
 * with Python's lock: nothing of Python's, which may let go of the lock, is run while this one is made. */
static Device& first_device() {
  static Device the = mlxvk_mlx::has_device() ? Device::gpu : Device::cpu;
  return the;
}

const Device& default_device() { return first_device(); }

void set_default_device(const Device& d) {
  if (d == Device::gpu && !gpu::is_available())
    throw std::invalid_argument("[set_default_device] Cannot set gpu device without gpu backend.");
  first_device() = d;
}

namespace gpu {

bool is_available() {
  mlxvk_mlx::guard_python();                               // MLX's module asks while it is imported, or soon after
  return mlxvk_mlx::has_device();
}
#if MLX_VERSION_NUMERIC >= 31000
int device_count() { return mlxvk_mlx::has_device(); }
const Info& device_info(int index) {
  static const Info* the = new Info(mlxvk_mlx::has_device() ? mlxvk_mlx::make_info() : Info());
  static const Info* empty = new Info;
  return index ? *empty : *the;
}
void new_stream(Stream s) { mlxvk_mlx::owned.indices.push_back(s.index); }   // mlxvk's is made at first use
void clear_streams() { mlxvk_mlx::owned.release(); }
#else
void new_stream(Stream) {}                                 // called while MLX is being set up: made at first use
#endif
#if MLX_VERSION_NUMERIC >= 32000
void new_thread_unsafe_stream(Stream s) {
  std::lock_guard<std::mutex> lock(mlxvk_mlx::streams().mutex);
  mlxvk_mlx::streams().of_all.insert(s.index);
}
#endif

void eval(array& a) {
  mlxvk_mlx::stop_if_exiting();
  thread_local std::vector<array> spare;                   // taken by one call at a time: calls may be inside each other
  std::vector<array> outputs = std::move(spare);
  if (a.siblings().empty()) outputs.push_back(a);
  else outputs = a.outputs();
  std::vector<array> held;                                 // the inputs of a tracer must not be donated
  if (a.is_tracer()) held = a.inputs();
  for (auto& in : a.inputs())
    if (in.event().valid() && in.event().stream().device == Device::cpu && !in.event().is_signaled())
      mlxvk_mlx::hold_in(in.event().stream(), in);
  try {
    mlxvk_mlx::run(a.primitive(), a.inputs(), outputs);
  } catch (...) {
    mlxvk_mlx::keep_promises();
    throw;
  }
  outputs.clear();
  spare = std::move(outputs);
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
#if MLX_VERSION_NUMERIC >= 32000
  for (auto& e : mlxvk_mlx::sources_of(s, true)) e.check_error();
#endif
}

}  // namespace gpu

#if MLX_VERSION_NUMERIC >= 32000
namespace scheduler {

void Scheduler::enqueue(Stream s, std::function<void()> task) {
  if (std::strstr(task.target_type().name(), "4ring9RingGroup"))
    task = [task = std::move(task)] { mlxvk_mlx::run_in_ring(task); };
  mlxvk_mlx::original_enqueue(*this, s, std::move(task));
}

}  // namespace scheduler
#endif

namespace cpu {

/* MLX's CPU operations do the quick part at once and queue the rest in their stream's thread. */

/* What may be written in place must not be in use on the GPU any more. */
static void wait_for_donors(const std::vector<array>& inputs) {
  if (!mlxvk_mlx::has_device()) return;
  for (auto& in : inputs)
    if (in.is_donatable()) mlxvk_mlx::wait_for(in, true);
}

/* Queued work has plain pointers: a task behind it keeps the memory of its operands, temporaries and other results, and
 * what was freed since it was queued. Not that of `result`, even where it came from an operand: whoever waits for it has
 * it, and another owner would keep the next operation from working in place. */
static void keep_behind(CommandEncoder& queue, const array& result, std::shared_ptr<void> freed) {
  std::vector<array> temporaries;
  std::vector<std::shared_ptr<void>> memory;
  auto keep = [&](const array& a) {
    if (auto data = a.data_shared_ptr(); data != result.data_shared_ptr()) memory.push_back(std::move(data));
  };
  for (auto& in : result.inputs()) keep(in);
  for (auto& other : result.siblings()) keep(other);
  temporaries.swap(queue.temporaries());
  queue.dispatch([memory = std::move(memory), temporaries = std::move(temporaries), freed = std::move(freed)] {});
}

void eval(array& a) {
  auto& queue = get_command_encoder(a.primitive().stream());
  auto outputs = a.outputs();
  std::vector<array> held;                                 // the inputs of a tracer must not be donated
  if (a.is_tracer()) held = a.inputs();
  try {
    wait_for_donors(a.inputs());
    mlxvk_mlx::Loading loading(mlxvk_mlx::is_load(a.primitive()));
    mlxvk_mlx::Keeping freed;
    a.primitive().eval_cpu(a.inputs(), outputs);
    keep_behind(queue, a, freed.keep());
  } catch (...) {
    mlxvk_mlx::keep_promises();
    throw;
  }
}

}  // namespace cpu

#if MLX_VERSION_NUMERIC < 31000
namespace metal {

const Info& device_info() {
  if (!mlxvk_mlx::has_device()) throw std::runtime_error("[metal::device_info] Cannot get device info without a GPU");
  static const Info* the = new Info(mlxvk_mlx::make_info());
  return *the;
}

}  // namespace metal
#endif

}  // namespace mlx::core
