/* The walk over a graph that one GPU stream computes: see bridge.h.                          SPDX-License-Identifier: MIT
 *
 * MLX's own walk is for graphs over several streams and devices: it looks each array up in hash tables, and asks events and
 * the allocator for each primitive. Most graphs, and every token of a language model, are of one GPU stream, so that neither
 * fences nor waits are needed between their primitives. Those are walked here: same order, one event for all. What is
 * anything else goes to MLX's walk, before anything of it is changed.
 *
 * async_eval() of a large graph leaves the recording to a thread of its own, so that Python makes the next graph meanwhile: to
 * all others its arrays are evaluated as soon as async_eval() returns, with an event that is not signalled yet. */
#include <algorithm>
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
 * Who calls made the graph's nodes, and makes as many for the next graph meanwhile: memory that this thread freed would
 * be in its part of the heap, or in the other's under a lock, and never where the next malloc() finds it at once. So it
 * leaves what it is done with, without data, and who comes next lets go of it. (Primitives may hold functions of
 * Python's, too, which only a thread that can have its lock may let go of.) */
class Recorder {
 public:
  static Recorder& the() { static auto* r = new Recorder; return *r; }   // its thread may outlive everything

  /* MLX since 0.32 hands on errors by events. A small graph is recorded sooner than a thread wakes up. */
  bool takes(const std::vector<const array*>& order, bool async) const {
    const size_t least = 100;
    const bool suits = (async && order.size() >= least && wanted() == LARGE_BY_THREAD) || wanted() >= ALL_BY_THREAD;
    return MLX_VERSION_NUMERIC >= 32000 && suits && scheduler::scheduler().n_active_tasks() == 0;
  }

  /* The arrays become what evaluated ones are, but for their data; join() was called before. False: no thread can be had. */
  bool take(const std::vector<const array*>& order, Stream s, const Event& event) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (busy_ || !start()) return false;
    clear();
    handle_ = stream_of(s);
    stream_ = s;
    event_ = event;
    if (tasks_.size() < order.size()) tasks_.resize(order.size());
    for (count_ = 0; count_ < order.size(); count_++) tasks_[count_].take(*order[order.size() - 1 - count_], event);
    done_ = 0;
    index_ = s.index;
    busy_ = true;
    handed_over++;
    changed_.notify_all();
    return true;
  }

  void join() {
    if ((!busy_ && !failed_) || recording_) return;
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return !busy_; });
    if (!failed_) return;
    for (size_t i = done_; i < count_; i++) tasks_[i].give_back();
    failed_ = false;
  }

  /* What is left of the last graph goes. */
  void tidy() {
    if (!left_ || busy_ || recording_) return;
    std::lock_guard<std::mutex> lock(mutex_);
    if (!busy_ && !failed_) clear();
  }

  static bool recording() { return recording_; }
  bool busy() const { return busy_; }
  bool has(Stream s) const { return busy_ && index_ == s.index && !recording_; }

 private:
  enum { AHEAD = 4 };                                      // tasks

  struct Task {
    std::shared_ptr<Primitive> primitive;
    Arrays inputs, outputs;

    void take(array a, const Event& event) {
      primitive = std::move(a.primitive_ptr());
      inputs = std::move(a.inputs());
      outputs.clear();
      if (!a.siblings().empty()) outputs = a.outputs();
      for (auto& out : outputs) mark(out, event);
      if (outputs.empty()) mark(a, event);
      a.detach();
      if (outputs.empty()) outputs.push_back(std::move(a));
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
    /* Another thread wrote them last: they come from its cache. */
    void fetch() const {
      const size_t line = 64, size = 320;                  // of a description, about, and what counts its sharers
      for (auto& a : outputs) {
        const char* first = reinterpret_cast<const char*>(a.id()) - 16;
        for (size_t at = 0; at < size; at += line) __builtin_prefetch(first + at, 1);
      }
    }
    void clear() {
      primitive.reset();
      inputs.clear();
      outputs.clear();
    }
  };

  /* The lock is held. */
  void clear() {
    for (size_t i = 0; i < left_; i++) {
      if (i + AHEAD < left_) tasks_[i + AHEAD].fetch();
      tasks_[i].clear();
    }
    left_ = 0;
  }

  bool start() {
    if (started_) return true;
    try {
      std::thread([this] { work(); }).detach();
      started_ = true;
    } catch (const std::system_error&) {}
    return started_;
  }

  [[noreturn]] void work() {
    recording_ = true;
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return bool(busy_); });
      lock.unlock();
      record();
      lock.lock();
      event_ = Event();
      left_ = count_;
      busy_ = false;
      changed_.notify_all();
      note_active_memory();
      free_left();                                         // of who saw it busy yet
    }
  }

  void record() {
    lend_stream(stream_, handle_);
    try {
      for (; done_ < count_; done_++) {
        Task& t = tasks_[done_];
        if (done_ + AHEAD < count_) tasks_[done_ + AHEAD].fetch();
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

  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> busy_{false}, failed_{false};          // a graph is being recorded; was not, and is to be given back
  std::atomic<int> index_{-1};                             // of its stream
  bool started_ = false;
  Stream stream_{0, Device::gpu};
  mlxvk_stream handle_{};
  Event event_;
  std::vector<Task> tasks_;                                // kept, and what they hold room for
  std::atomic<size_t> left_{0};                            // so many of them are of the last graph
  size_t count_ = 0, done_ = 0;
  static thread_local bool recording_;                     // this is the thread
};
thread_local bool Recorder::recording_ = false;

bool records() { return Recorder::recording(); }
bool other_records() { return Recorder::the().busy() && !Recorder::recording(); }
void tidy_walk() { Recorder::the().tidy(); }
void join_walk() { Recorder::the().join(); }
void join_walk(Stream s) { if (Recorder::the().has(s)) Recorder::the().join(); }

static std::optional<array> walk(const Arrays& outputs, bool async) {
  static const array& tracer = *[] {                        // is one where, and while, arrays are
    auto* a = new array({}, mlx::core::bool_, nullptr, {});
    a->set_tracer(true);
    return a;
  }();
  thread_local Graph graph;
  if (tracer.is_tracer() || !graph.read(outputs)) return {};
  walks++;
  const Stream s = graph.stream();
  Event event(s);
  event.set_value(1);
  array result({}, mlx::core::bool_, nullptr, {});          // who waits for it waits for all
  result.attach_event(event);
  result.set_status(Status::evaluated);
  const auto order = graph.order();
  auto& recorder = Recorder::the();
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
  mlxvk_mlx::join_walk();
  if (mlxvk_mlx::wanted() >= mlxvk_mlx::OWN_WALK)
    if (auto result = mlxvk_mlx::walk(outputs, async)) return std::move(*result);
  return mlxvk_mlx::original_eval_impl(std::move(outputs), async);
}

}  // namespace mlx::core
