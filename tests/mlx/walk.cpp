/* The walk over a graph that one GPU stream computes: see bridge.h.                          SPDX-License-Identifier: MIT
 *
 * MLX's own walk is for graphs over several streams and devices: it looks each array up in hash tables, and asks events and
 * the allocator for each primitive. Most graphs, and every token of a language model, are of one GPU stream, so that neither
 * fences nor waits are needed between their primitives. Those are walked here: same order, one event for all. What is
 * anything else goes to MLX's walk, before anything of it is changed.
 *
 * async_eval() of a large graph leaves the recording to a thread of its own, so that Python makes the next graph meanwhile: to
 * all others its arrays are evaluated as soon as async_eval() returns, with an event that is not signalled yet. */
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <thread>

#include "bridge.h"
#include "mlx/backend/gpu/eval.h"
#include "mlx/event.h"
#include "mlx/utils.h"

namespace mlxvk_mlx {

namespace scheduler = mlx::core::scheduler;
using mlx::core::Device;
using mlx::core::Event;
using Status = array::Status;

/* Ids of arrays, and what they are the id of: a table that is kept from walk to walk. */
class Ids {
 public:
  void clear(size_t expected) {
    size_t slots = 1024;                                    // a large graph before does not make a small one dear
    while (slots < 2 * expected) slots *= 2;
    slots_.assign(slots, {});
    used_ = 0;
  }
  /* Where the id's number is, which is `fresh` where it had none. */
  uint32_t& find(uintptr_t id, uint32_t fresh) {
    if (2 * used_ >= slots_.size()) grow();
    Slot& s = slot_of(id);
    if (!s.id) { s = {id, fresh}; used_++; }
    return s.number;
  }

 private:
  struct Slot { uintptr_t id = 0; uint32_t number = 0; };

  Slot& slot_of(uintptr_t id) {
    size_t at = (id >> 4) * 0x9E3779B97F4A7C15u >> 20;
    for (;; at++) {
      Slot& s = slots_[at & (slots_.size() - 1)];
      if (!s.id || s.id == id) return s;
    }
  }
  void grow() {
    std::vector<Slot> old(2 * slots_.size());
    old.swap(slots_);
    for (auto& s : old)
      if (s.id) slot_of(s.id) = s;
  }

  std::vector<Slot> slots_;
  size_t used_ = 0;
};

/* The arrays that have to be computed, each with those of its inputs that have to be. Number 0 is who wants the results. */
class Graph {
 public:
  /* False: it is not for this walk. */
  bool read(const Arrays& outputs) {
    nodes_.assign(1, {nullptr, 0, 0, 0});
    edges_.clear();
    ids_.clear(last_size_);
    stream_.reset();
    if (!add_edges(outputs)) return false;
    nodes_[0].end = uint32_t(edges_.size());
    for (size_t i = 1; i < nodes_.size(); i++) {
      nodes_[i].first = uint32_t(edges_.size());
      if (!add_edges(nodes_[i].a->inputs())) return false;
      nodes_[i].end = uint32_t(edges_.size());
    }
    last_size_ = nodes_.size();
    return nodes_.size() > 1;
  }

  Stream stream() const { return *stream_; }

  /* The arrays in MLX's order, the last one first: breadth first from the results, but of no more than so many at a time. */
  std::vector<const array*> order() {
    const size_t width = size_t(mlx::core::env::bfs_max_width());
    std::vector<uint32_t> line{0};
    std::vector<std::pair<uint32_t, uint32_t>> left;        // numbers, from which of their edges on
    for (size_t seen = 0; seen < line.size() || !left.empty();) {
      uint32_t n = 0, edge = 0;
      if (seen < line.size()) {
        n = line[seen++];
        edge = nodes_[n].first;
      } else {
        std::tie(n, edge) = left.back();
        left.pop_back();
      }
      for (; edge < nodes_[n].end; edge++) {
        if (line.size() - seen >= width) { left.emplace_back(n, edge); break; }
        if (--nodes_[edges_[edge]].uses == 0) line.push_back(edges_[edge]);
      }
    }
    std::vector<const array*> result(line.size() - 1);
    for (size_t i = 1; i < line.size(); i++) result[i - 1] = nodes_[line[i]].a;
    return result;
  }

 private:
  struct Node { const array* a; uint32_t first, end, uses; };

  bool add_edges(const Arrays& inputs) {
    for (auto& in : inputs) {
      if (in.status() == Status::unscheduled) {
        if (!add_edge(in)) return false;
      } else if (in.has_primitive() || !is_ready(in)) {
        return false;
      }
    }
    return true;
  }

  bool add_edge(const array& in) {
    const uint32_t fresh = uint32_t(nodes_.size()), number = ids_.find(in.id(), fresh);
    if (number == fresh) {
      if (!in.has_primitive()) return false;
      const Stream s = in.primitive().stream();
      if (!stream_) stream_ = s;
      if (s != *stream_ || s.device != Device::gpu) return false;
      nodes_.push_back({&in, 0, 0, 0});
      for (auto& sibling : in.siblings()) ids_.find(sibling.id(), fresh);
    }
    nodes_[number].uses++;
    edges_.push_back(number);
    return true;
  }

  /* Is an array that has been computed, or is being, there by the time that the stream gets to who wants it? */
  bool is_ready(const array& in) const {
    const Event& event = in.event();
    return !event.valid() || (stream_ && event.stream() == *stream_) || event.is_signaled();
  }

  std::vector<Node> nodes_;
  std::vector<uint32_t> edges_;
  Ids ids_;
  std::optional<Stream> stream_;
  size_t last_size_ = 0;
};

/* Too much is under way on the CPU, or too much memory is used while it is: as MLX waits then. */
static void wait_for_room(Stream s) {
  enum { MOST_TASKS = 10 };
  static auto& all = scheduler::scheduler();
  auto over = [] { return mlx::core::get_active_memory() > mlx::core::get_memory_limit() && all.n_active_tasks() > 0; };
  if (all.n_active_tasks() == 0 || (all.n_active_tasks() <= MOST_TASKS && !over())) return;
  mlx::core::gpu::finalize(s);
  all.wait_for_one();
  while (over()) all.wait_for_one();
}

static void compute(array& a, const Event* event) {
  if (event) a.attach_event(*event);
  for (auto& sibling : a.siblings())
    if (event) sibling.attach_event(*event);
  mlx::core::gpu::eval(a);
  wait_for_room(a.primitive().stream());
  a.set_status(Status::evaluated);
  for (auto& sibling : a.siblings()) sibling.set_status(Status::evaluated);
  a.detach();
}

/* What had been computed when one threw is not left without who submits it, and signals its event. */
static void give_up(Event& event, Stream s) {
  try { event.signal(s); } catch (...) {}
  try { mlx::core::synchronize(s); } catch (...) {}
}

static std::atomic<uint64_t> walks{0}, handed_over{0};
uint64_t walk_count() { return walks; }
uint64_t handed_over_count() { return handed_over; }

/* MLX_VK_WALK: 0 MLX's own walk, 1 this one by who calls, 2 large graphs of async_eval() by a thread of its own, 3 all graphs
 * (to find out what such a thread breaks). The thread takes work off who calls. Beside it model() took longer by as much
 * as long as both threads called malloc() for each object; since pool.cpp it does not (an H100: 0.98 ms, and 0.94). */
enum { OWN_WALK = 1, LARGE_BY_THREAD, ALL_BY_THREAD };
enum { LARGE = 100 };                                      // primitives
static int wanted() {
  static const int value = [] {
    const char* text = std::getenv("MLX_VK_WALK");
    return text && *text ? std::atoi(text) : int(LARGE_BY_THREAD);
  }();
  return value;
}

/* ---- the thread that records ---- */

/* How many arrays share a description: a private member, which template arguments may name. */
long sharers_of(const array& a);
template <auto member> struct Opened {
  friend long sharers_of(const array& a) { return (a.*member).use_count(); }
};
template struct Opened<&array::array_desc_>;

/* One graph at a time: the next evaluation of any thread begins when the last one is recorded.
 *
 * Who calls made the graph's nodes, and makes as many for the next graph meanwhile. When all is submitted the thread lets
 * go of them, for as long as nobody waits for it, and passes their memory on to who calls. What it has not come to is left
 * to that one; so are primitives that may hold functions of Python's, which only a thread that can have its lock may let
 * go of, and data of the host's, which goes back to the part of the heap it is from. */
class Recorder {
 public:
  static Recorder& the() { static auto* r = new Recorder; return *r; }   // its thread may outlive everything

  /* MLX since 0.32 hands on errors by events. A small graph is recorded sooner than a thread wakes up. */
  bool takes(const std::vector<const array*>& order, bool async) const {
    const bool suits = (async && order.size() >= LARGE && wanted() == LARGE_BY_THREAD) || wanted() >= ALL_BY_THREAD;
    return MLX_VERSION_NUMERIC >= 32000 && suits && !closed_ && !gone_ && scheduler::scheduler().n_active_tasks() == 0;
  }

  /* The arrays become what evaluated ones are, but for their data; join() was called before. False: no thread can be had now.
   * The thread begins with the first of them while the others are taken, and what the last graph left goes after that. */
  bool take(const std::vector<const array*>& order, Stream s, const Event& event) {
    std::vector<Task> last;
    size_t left = 0;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (busy_ || failed_ || !start()) return false;      // or another thread's is to be given back yet
      pool_settle(0);
      pool_pick_up();
      waited_for_ = false;
      handle_ = stream_of(s);
      stream_ = s;
      event_ = event;
      if (spare_.size() < order.size()) spare_.resize(order.size());
      last = std::exchange(tasks_, std::move(spare_));
      left = std::exchange(left_, 0);
      count_ = order.size();
      done_ = ready_ = 0;
      index_ = s.index;
      busy_ = true;
      handed_over++;
    }
    take_all(order, event);
    clear(last, left);
    std::lock_guard<std::mutex> lock(mutex_);
    spare_ = std::move(last);
    return true;
  }

  void join() {
    if ((!busy_ && !failed_) || recording_ || gone_) return;
    waited_for_ = true;
    spin_while([this] { return bool(busy_); });
    WithoutPython unlocked;
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return !busy_; });
    if (!failed_) return;
    for (size_t i = done_; i < count_; i++) tasks_[i].give_back();
    given_back_++;
    failed_ = false;
  }

  /* Reads a graph while the last one is recorded, and joins. Again, where arrays were given back in between. */
  template <class F> bool read_and_join(F read) {
    bool fits = false;
    uint64_t before = 0;
    if (gone_) return read();
    {
      std::lock_guard<std::mutex> lock(mutex_);             // none is given back just now
      before = given_back_;
      fits = read();
    }
    join();
    return before == given_back_ ? fits : read();
  }

  /* Nothing is under way any more, of whatever stream, and what is left of the last graph goes. */
  void tidy() {
    std::vector<Task> last;
    size_t left = 0;
    if (recording_ || gone_) return;
    join();
    {
      std::lock_guard<std::mutex> lock(mutex_);            // the thread has freed what it found left behind, too
      if (busy_ || failed_) return;                        // another thread was quicker
      left = std::exchange(left_, 0);
      last.swap(tasks_);
    }
    clear(last, left);                                     // who waits for Python's lock here has none of ours
  }

  /* Python goes: a thread that asks for its lock from now on would be ended. */
  void close() {
    closed_ = true;
    join();
  }

  static bool recording() { return recording_; }
  bool busy() const { return busy_; }
  bool has(Stream s) const { return busy_ && index_ == s.index && !recording_; }

 private:
  enum { AHEAD = 4, DESCRIPTION = 384 };                   // tasks; bytes of a description, about, and what counts its sharers

  struct Task {
    std::shared_ptr<Primitive> primitive;
    Arrays inputs, outputs;

    void take(array a, const Event& event) {
      primitive = std::move(a.primitive_ptr());
      inputs = std::move(a.inputs());
      outputs.clear();
      if (!a.siblings().empty()) outputs = a.outputs();
      for (auto& out : outputs) mark(out, event);
      if (!outputs.empty()) { a.detach(); return; }        // from its siblings; else nothing is left to leave
      mark(a, event);
      outputs.push_back(std::move(a));
    }
    static void mark(array& a, const Event& event) {
      a.attach_event(event);
      a.set_status(Status::evaluated);
    }
    /* As if it had never been taken: who wants its results evaluates it again. */
    void give_back() {
      const Arrays all = outputs;
      for (size_t k = 0; k < all.size(); k++) {
        Arrays siblings = all;
        siblings.erase(siblings.begin() + k);
        array& a = outputs[k];
        a.primitive_ptr() = primitive;
        a.inputs() = inputs;
        a.set_siblings(std::move(siblings), uint16_t(k));
        a.set_status(Status::unscheduled);
      }
      outputs.clear();
      inputs.clear();
    }
    /* It has been run: others do not find its arrays in use any more. */
    void spend() {
      for (auto& a : inputs) spend(a);
      for (auto& a : outputs) spend(a);
    }
    static void spend(array& a) {
      if (sharers_of(a) > 1) { array gone = std::move(a); return; }
      std::atomic_thread_fence(std::memory_order_acquire);   // the others are done with it
      if (is_trifle(a)) return;
      const_cast<std::shared_ptr<array::Data>&>(a.data_shared_ptr()).reset();
    }
    /* What it leads to, asked for in steps: each goes on from what the one before has brought by then. Another thread
     * wrote most of it last, or it is out of reach since the last graph. */
    void fetch_lists() const {
      fetch(primitive.get(), 64);
      fetch(inputs.data(), inputs.size() * sizeof(array));
      fetch(outputs.data(), outputs.size() * sizeof(array));
    }
    void fetch_outputs() const {
      for (auto& a : outputs) fetch(counts_of(a), DESCRIPTION, true);
    }
    void fetch_inputs() const {
      for (auto& a : inputs) {
        fetch(counts_of(a), 64, true);
        fetch(counts_of(a) + 64, DESCRIPTION - 64);
      }
    }
    static const char* counts_of(const array& a) { return reinterpret_cast<const char*>(a.id()) - 16; }
    void clear() {
      primitive.reset();
      Arrays().swap(inputs);
      outputs.clear();
    }
    bool goes_anywhere() const {
      auto holds = [](const array& a) { return sharers_of(a) && a.data_shared_ptr(); };
      return !holds_functions(*primitive) && std::none_of(inputs.begin(), inputs.end(), holds) &&
             std::none_of(outputs.begin(), outputs.end(), holds);
    }
  };

  /* As long as the thread waits for more it finds no way out: nothing may be thrown. */
  void take_all(const std::vector<const array*>& order, const Event& event) noexcept {
    const size_t some = 32;
    for (size_t i = 0; i < order.size();) {
      const size_t end = std::min(order.size(), i + some);
      const bool first = !i;
      for (; i < end; i++) tasks_[i].take(*order[order.size() - 1 - i], event);
      std::unique_lock<std::mutex> lock(mutex_, std::defer_lock);
      if (first) lock.lock();                              // the thread may be about to sleep
      ready_.store(i, std::memory_order_release);
      if (first) changed_.notify_all();
    }
  }

  static void clear(std::vector<Task>& tasks, size_t left) {
    for (size_t i = 0; i < left; i++) {
      if (i + AHEAD < left) tasks[i + AHEAD].fetch_outputs();
      tasks[i].clear();
    }
  }

  /* A moment: threads that take turns many times a token find each other sooner awake than asleep, where there is a
   * processor for each of them and for the others. */
  template <class F> static void spin_while(F waits) {
    static const bool enough = std::thread::hardware_concurrency() >= 4;
    const auto moment = std::chrono::microseconds(200);
    if (!enough || !waits()) return;
    const auto start = std::chrono::steady_clock::now();
    do {
      for (int i = 0; i < 16 && waits(); i++) spin_pause();
    } while (waits() && std::chrono::steady_clock::now() - start < moment);
  }

  bool start() {
    if (started_) return true;
    try {
      std::thread([this] { work(); }).detach();
      started_ = true;
      static const int once = pthread_atfork(nullptr, nullptr, [] { the().gone_ = true; });
      (void)once;
    } catch (const std::system_error&) {}
    return started_;
  }

  [[noreturn]] void work() {
    recording_ = true;
    pool_settle(1);
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      lock.unlock();
      spin_while([this] { return !ready_; });
      lock.lock();
      changed_.wait(lock, [this] { return busy_ && ready_; });
      lock.unlock();
      record();
      while (ready_ < count_) std::this_thread::yield();   // it failed
      event_ = Event();
      if (!failed_) let_go();
      lock.lock();
      left_ = failed_ ? count_ : kept_;
      ready_ = 0;
      busy_ = false;
      changed_.notify_all();
      note_active_memory();
      free_left();                                         // of who saw it busy yet
    }
  }

  /* What the tasks behind this one lead to, so that it is there when their turn comes: a task is longer than a step. */
  void fetch_behind(size_t at, size_t end) const {
    auto step = [&](size_t n, auto what) { if (at + n < end) what(tasks_[at + n]); };
    step(16, [](const Task& t) { mlxvk_mlx::fetch(&t, sizeof t); });
    step(13, [](const Task& t) { t.fetch_lists(); });
    step(10, [](const Task& t) { t.fetch_inputs(); t.fetch_outputs(); });
    step(5, [](const Task& t) { for (auto& a : t.inputs) fetch_data(a); });
    step(3, [](const Task& t) { for (auto& a : t.inputs) fetch_block(a); });
    step(1, [](const Task& t) { for (auto& a : t.inputs) fetch_handle(a); });
  }

  void record() {
    lend_stream(stream_, handle_);
    try {
      for (size_t ready = 0; done_ < count_; done_++) {
        while (ready < count_ && (ready = ready_.load(std::memory_order_acquire)) <= done_) std::this_thread::yield();
        Task& t = tasks_[done_];
        fetch_behind(done_, ready);
        run(*t.primitive, t.inputs, t.outputs);
        t.spend();
        free_left();
      }
      event_.signal(stream_);
      mlx::core::gpu::finalize(stream_);
    } catch (const std::exception& e) {
      failed_ = true;
      fail(event_, e.what());
      give_up(event_, stream_);
    }
  }

  /* What is to stay comes to the front. */
  void let_go() {
    pool_pass_on(true);
    for (size_t i = kept_ = 0; i < count_; i++) {
      if (!waited_for_ && tasks_[i].goes_anywhere()) tasks_[i].clear();
      else std::swap(tasks_[kept_++], tasks_[i]);
    }
    pool_pass_on(false);
  }

  /* Who calls takes the lock to set busy_, the thread to clear it; in between they share out the rest:
   *  - the tasks from ready_ on are who called's, who sets ready_ (release) when it has filled some; those before it (acquire)
   *    the thread's. The thread does not clear busy_ before all are ready, so who called is done with them by then;
   *  - stream_, handle_, event_, count_, done_ and kept_ are set before busy_ is, and then the thread's, as is failed_;
   *  - tasks_ itself stays as it is.
   * While busy_ is not set all this, with spare_ and left_, is for who has the lock, and started_ always is. What is atomic
   * beside that is read without it: index_ (set before busy_, read behind it), waited_for_ (a hint: one that comes late costs
   * who calls some of the next graph's clearing), given_back_ (changed under the lock), closed_ and gone_ (set once). */
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> busy_{false}, failed_{false};          // a graph is being recorded; was not, and is to be given back
  std::atomic<bool> waited_for_{false};
  std::atomic<bool> closed_{false};                        // for good
  std::atomic<bool> gone_{false};                          // a child of fork()'s: no thread, locks as they were
  std::atomic<uint64_t> given_back_{0};                    // how often arrays were
  std::atomic<int> index_{-1};                             // of its stream
  bool started_ = false;
  Stream stream_{0, Device::gpu};
  mlxvk_stream handle_{};
  Event event_;
  std::vector<Task> tasks_, spare_;                        // kept, and what they hold room for
  std::atomic<size_t> ready_{0};                           // so many are taken
  size_t left_ = 0;                                        // so many of them are of the last graph
  size_t count_ = 0, done_ = 0, kept_ = 0;
  static thread_local bool recording_;                     // this is the thread
};
thread_local bool Recorder::recording_ = false;

bool records() { return Recorder::recording(); }
bool other_records() { return Recorder::the().busy() && !Recorder::recording(); }
void tidy_walk() { Recorder::the().tidy(); }
void close_walk() { Recorder::the().close(); }
void join_walk() { Recorder::the().join(); }
void join_walk(Stream s) { if (Recorder::the().has(s)) Recorder::the().join(); }

static std::optional<array> walk(const Arrays& outputs, bool async) {
  static const array& tracer = *[] {                        // is one where, and while, arrays are
    auto* a = new array({}, mlx::core::bool_, nullptr, {});
    a->set_tracer(true);
    return a;
  }();
  thread_local Graph graph;
  auto& recorder = Recorder::the();
  std::vector<const array*> order;
  auto read = [&] {
    if (tracer.is_tracer() || !graph.read(outputs)) return false;
    order = graph.order();
    return true;
  };
  if (!recorder.read_and_join(read)) return {};
  walks++;
  const Stream s = graph.stream();
  Event event(s);
  event.set_value(1);
  array result({}, mlx::core::bool_, nullptr, {});          // who waits for it waits for all
  result.attach_event(event);
  result.set_status(Status::evaluated);
  if (order.size() >= LARGE) note_large_graph();
  if (recorder.takes(order, async) && recorder.take(order, s, event)) return result;
  try {
    for (size_t i = order.size(); i-- > 0;) {
      array a = *order[i];
      compute(a, async ? &event : nullptr);
    }
  } catch (...) {
    give_up(event, s);
    throw;
  }
  event.signal(s);
  mlx::core::gpu::finalize(s);
  return result;
}

}  // namespace mlxvk_mlx

namespace mlx::core {

array eval_impl(std::vector<array> outputs, bool async) {
  if (mlxvk_mlx::wanted() >= mlxvk_mlx::OWN_WALK)
    if (auto result = mlxvk_mlx::walk(outputs, async)) return std::move(*result);
  mlxvk_mlx::join_walk();
  return mlxvk_mlx::original_eval_impl(std::move(outputs), async);
}

}  // namespace mlx::core
