/* Collectives on a GPU stream, between ranks of one host: see bridge.h.                    SPDX-License-Identifier: MIT
 *
 * MLX's ring works on a CPU stream: what a GPU computed is waited for and copied, sent, and copied back, and nothing
 * of the graph behind it is recorded before. Where all ranks are of one host they share memory that each device has
 * imported, and a collective is operations of the GPU stream like others:
 *
 *     copy this rank's part into the shared memory; signal "written"
 *     wait for an event, which the host signals when all ranks have written theirs
 *     add up the parts, read from where they are
 *
 * A thread of the bridge's stands in between, which moves no data: it polls the device's timeline, counts in the
 * shared memory, polls the others' counters, and signals the event. It does so in the order in which collectives were
 * recorded, while the graph behind them is being recorded.
 *
 * Two slots a rank are enough: when all have written part n, each has read all parts n - 1, as its GPU works in order.
 * So part n + 1 may go where n - 1 was. All ranks add in the same order, and get the same bits.
 *
 * That costs a submission and some 70 us each, and a sharded language model has 72 of 8 KB a token. So where each rank
 * has a device of its own, small parts are exchanged by the devices themselves (mlxvk_exchange): a dispatch among the
 * others waits for what the other devices store, in a part of the memory, and by numbers, of their own. What is small
 * is the same in all ranks, and nothing else must be.
 *
 * A GPU should not wait so for a rank that waits for its user, or still loads: so it gets to the first of an evaluation
 * only when all ranks have recorded that one. How long it waits then has no limit, as in the other way. The thread
 * looks after it: where a rank is gone it tells who waits for results, and then makes the dispatch end. */
#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <thread>

#include "bridge.h"
#include "mlx/distributed/distributed.h"
#include "mlx/distributed/distributed_impl.h"
#include "mlx/distributed/primitives.h"
#include "shared.h"

#if MLX_VERSION_NUMERIC >= 32000

namespace mlx::core::distributed {

/* Private members, which template arguments may name. */
int destination_of(const Send& p);
int source_of(const Recv& p);
template <int Send::*member> struct OpenedSend {
  friend int destination_of(const Send& p) { return p.*member; }
};
template <int Recv::*member> struct OpenedRecv {
  friend int source_of(const Recv& p) { return p.*member; }
};
template struct OpenedSend<&Send::dst_>;
template struct OpenedRecv<&Recv::src_>;

}  // namespace mlx::core::distributed

namespace mlxvk_mlx {

namespace distributed = mlx::core::distributed;
using mlx::core::Device;
using mlx::core::Event;
using Clock = std::chrono::steady_clock;

static const char lost_text[] = "[ring] connection to a peer was lost";   // as MLX's ring has it

/* ---- the thread between the GPU and the other ranks ---- */

/* How to wait for what comes in some microseconds mostly, and sometimes much later. Where processors are few, others
 * have better use for one. */
class Patience {
 public:
  void wait() {
    static const bool many = std::thread::hardware_concurrency() >= 8;
    static const unsigned spins = many ? 2000 : 0, yields = many ? 4000 : 20;
    if (++times_ < spins) pause();
    else if (times_ < spins + yields) std::this_thread::yield();
    else std::this_thread::sleep_for(std::chrono::microseconds(times_ > LONG ? 500 : many ? 50 : 20));
  }
  /* Now and then: for what costs more than looking. */
  bool seldom() const { return times_ % 256 == 0; }

 private:
  enum { LONG = 50000 };                                   // times, which are some seconds
  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    std::this_thread::yield();
#endif
  }
  unsigned times_ = 0;
};

struct Step {
  enum What {
    GPU,                                                   // wait for the device's timeline
    COUNT,                                                 // the counter is this from now on
    RANKS,                                                 // wait until all ranks have written so many parts
    RECORDED,                                              // or have recorded so many that the devices exchange
    COUNTER,                                               // wait for rank's counter
    GO                                                     // the GPU goes on
  } what;
  uint64_t value = 0;
  std::atomic<uint64_t>* counter = nullptr;
  int rank = 0;
  Event event{};
};

class Between {
 public:
  Between(Shared& shared, mlxvk_event written) : shared_(shared), written_(written) {
    std::thread([this] { work(); }).detach();
  }

  void add(std::initializer_list<Step> steps) {
    std::lock_guard<std::mutex> lock(mutex_);
    steps_.insert(steps_.end(), steps);
    count_.store(steps_.size(), std::memory_order_release);
    busy_ = true;
    changed_.notify_one();
  }

  /* Parts up to this number are exchanged by the devices from now on. An event: those who wait for these, and for what
   * comes behind them, are told by it if they do not come. */
  void expect(uint64_t number, const Event* event) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (event) runs_.push_back({*event, 0});
    runs_.back().last = uint32_t(number);
    if (lost_) end_runs();
    if (!std::exchange(watching_, true)) changed_.notify_one();
  }
  /* Something that a device waited for is not there? */
  void look() {
    if (shared_.exchanges && !lost_ && shared_.word(shared_.rank, Shared::MISSED).load()) lose();
  }

  bool lost() const { return lost_; }
  /* From now on it waits for no one who leaves, too. */
  void leave() { shared_.ranks[shared_.rank].leaving.value.store(1); }
  /* Until the others have been told of all that is done here. The GPU is done with it, so this takes a moment. */
  void finish() {
    const auto end = Clock::now() + std::chrono::seconds(2);
    while (busy_ && Clock::now() < end) std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  /* The others wait for a part that will not come. */
  void give_up() {
    shared_.ranks[shared_.rank].broken.value.store(1);
    lose();
  }

 private:
  [[noreturn]] void work() {
    for (;;) {
      Step step = next();
      switch (step.what) {
        case Step::GPU:
          for (Patience patience; !mlxvk_event_is_signaled(written_, step.value); patience.wait())
            if (patience.seldom()) look_after();
          break;
        case Step::COUNT: step.counter->store(step.value, std::memory_order_release); break;
        case Step::RANKS:
          for (int r = 0; r < shared_.size; r++) await(shared_.ranks[r].written.value, step.value, r);
          break;
        case Step::RECORDED:
          for (int r = 0; r < shared_.size; r++) await(shared_.ranks[r].recorded.value, step.value, r);
          break;
        case Step::COUNTER: await(*step.counter, step.value, step.rank); break;
        case Step::GO:
          if (lost_) fail(step.event, lost_text);
          try { signal_host(step.event); } catch (const std::exception&) { give_up(); }   // the device is lost
      }
    }
  }

  Step next() {
    Patience patience;
    for (int i = 0; i < 100 && !count_.load(std::memory_order_acquire); i++) patience.wait();
    std::unique_lock<std::mutex> lock(mutex_);
    busy_ = !steps_.empty();
    while (steps_.empty()) {
      if (!watching_) changed_.wait(lock);
      else if (changed_.wait_for(lock, std::chrono::milliseconds(1)) == std::cv_status::timeout) look_after(lock);
    }
    Step step = std::move(steps_.front());
    steps_.pop_front();
    count_.store(steps_.size(), std::memory_order_release);
    return step;
  }

  void await(const std::atomic<uint64_t>& counter, uint64_t value, int rank) {
    std::optional<Clock::time_point> both_leave;
    for (Patience patience; !lost_ && counter.load(std::memory_order_acquire) < value; patience.wait()) {
      if (!patience.seldom()) continue;
      look_after();
      /* It may have counted before it went. */
      if (is_lost(rank, both_leave) && counter.load(std::memory_order_acquire) < value) lose();
    }
  }

  /* One who went is waited for in vain, by all: with the ring's order, what one lacks the next one lacks, too. Two
   * whose programs end wait for what neither will send. */
  bool is_lost(int rank, std::optional<Clock::time_point>& both_leave) const {
    for (int r = 0; r < shared_.size; r++)
      if (shared_.ranks[r].broken.value.load() || shared_.is_gone(r)) return true;
    if (!shared_.ranks[rank].leaving.value.load() || !shared_.ranks[shared_.rank].leaving.value.load()) return false;
    if (!both_leave) both_leave = Clock::now();
    return Clock::now() - *both_leave > std::chrono::seconds(1);
  }

  /* ---- what the devices exchange themselves ---- */

  bool has_put(int rank, uint32_t last) const { return int32_t(shared_.word(rank, Shared::PUT).load() - last) >= 0; }
  bool all_put(uint32_t last) const {
    for (int r = 0; r < shared_.size; r++)
      if (!has_put(r, last)) return false;
    return true;
  }

  void look_after() {
    std::unique_lock<std::mutex> lock(mutex_);
    look_after(lock);
  }
  /* Are the parts of all that is under way there, or still to come? */
  void look_after(const std::unique_lock<std::mutex>&) {
    while (runs_.size() > 1 && all_put(runs_.front().last)) {
      signal(runs_.front().event);
      runs_.pop_front();
    }
    watching_ = !runs_.empty() && !all_put(runs_.back().last);
    if (!watching_) both_left_.reset();
    for (int r = 0; watching_ && r < shared_.size; r++)
      if (!has_put(r, runs_.back().last) && is_lost(r, both_left_) && !has_put(r, runs_.back().last)) end_runs();
  }

  void lose() {
    std::lock_guard<std::mutex> lock(mutex_);
    end_runs();
  }
  /* Those who wait are told first: then the devices may go on without what they wait for. */
  void end_runs() {
    lost_ = true;
    for (auto& run : runs_) {
      fail(run.event, lost_text);
      signal(run.event);
    }
    runs_.clear();
    watching_ = false;
    if (shared_.exchanges) shared_.word(shared_.rank, Shared::STOP).store(1);
  }
  static void signal(Event& event) {
    try { signal_host(event); } catch (const std::exception&) {}   // the device is lost, as who waits for it finds out
  }

  /* Parts of one evaluation, up to number `last`. */
  struct Run { Event event; uint32_t last; };

  Shared& shared_;
  const mlxvk_event written_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Step> steps_;
  std::deque<Run> runs_;
  bool watching_ = false;
  std::optional<Clock::time_point> both_left_;
  std::atomic<size_t> count_{0};
  std::atomic<bool> lost_{false}, busy_{false};
};

/* ---- what the devices can add up ---- */

using Binary = int (*)(mlxvk_array*, mlxvk_array, mlxvk_array, mlxvk_stream);
enum Operation { SUM, MAX, MIN, OPERATIONS };
static const Binary operations[] = {mlxvk_add, mlxvk_maximum, mlxvk_minimum};
static const mlxvk_exchange_op exchanges[] = {MLXVK_EXCHANGE_SUM, MLXVK_EXCHANGE_MAX, MLXVK_EXCHANGE_MIN};

static uint64_t bit_of(Operation operation, mlxvk_dtype dtype) {
  return uint64_t(1) << (int(dtype) * int(OPERATIONS) + int(operation));
}

static uint64_t known_operations() {
  static_assert(int(MLXVK_DTYPE_COUNT) * int(OPERATIONS) <= 64);
  uint64_t known = 0;
  const mlxvk_stream stream = mlxvk_stream_new_device(device());
  for (int dtype = 0; dtype < MLXVK_DTYPE_COUNT; dtype++)
    for (int k = 0; k < OPERATIONS; k++) {
      const int one = 1;
      Handle x, y;
      const auto d = mlxvk_dtype(dtype);
      if (d == MLXVK_FLOAT64 || mlxvk_array_new_data_device(&x, nullptr, &one, 1, d, device())) continue;
      if (!operations[k](&y, x, x, stream) && mlxvk_array_dtype(y) == d) known |= bit_of(Operation(k), d);
    }
  mlxvk_stream_free(stream);
  return known;
}

/* ---- recording ---- */

static void check(int code, mlxvk_stream stream, const char* what) {
  if (code) raise(code, stream, what);
}

/* `part`, of one dimension, into so much of `whole` from an element on: in place, where there is no other handle on it. */
static void put(Handle& whole, size_t at, mlxvk_array part, mlxvk_stream stream) {
  const int start = int(at), stop = start + int(mlxvk_array_size(part)), step = 1;
  check(mlxvk_slice_update(&whole, whole, part, &start, 1, &stop, 1, &step, 1, stream), stream, "a collective's part");
}

static void cut(Handle& part, mlxvk_array whole, size_t at, size_t count, mlxvk_stream stream) {
  const int start = int(at), stop = start + int(count), step = 1;
  check(mlxvk_slice(&part, whole, &start, 1, &stop, 1, &step, 1, stream), stream, "a collective's part");
}

class Collectives {
 public:
  Collectives(Shared& shared, mlxvk_event written) : shared_(shared), written_(written), between_(shared, written) {
    const uint32_t zeros[32]{};
    const int words = int(mlxvk_exchange_words(shared.size)), few = int(std::size(zeros));
    ranks_.rank = shared.rank;
    ranks_.ranks = shared.size;
    if (mlxvk_array_new_buffer(&ranks_.memory, shared.buffer, &words, nullptr, 1, MLXVK_UINT32, shared.exchanged()) ||
        mlxvk_array_new_data_device(&ranks_.count, zeros, &few, 1, MLXVK_UINT32, device()))
      between_.give_up();
  }

  /* False: not here, and neither in the other ranks. */
  bool run(distributed::DistPrimitive& p, const Arrays& inputs, Arrays& outputs) {
    const array& like = inputs.empty() ? outputs[0] : inputs[0];
    if (like.dtype() == mlx::core::float64 || outputs[0].size() > INT_MAX) return false;
    const std::string kind = typeid(p).name();
    if (kind.find("AllReduce") != kind.npos) return all_reduce(p, inputs[0], outputs[0]);
    if (kind.find("AllGather") != kind.npos) return all_gather(p, inputs[0], outputs[0]);
    if (kind.find("Send") != kind.npos) return send(static_cast<distributed::Send&>(p), inputs[0], outputs[0]);
    if (kind.find("Recv") != kind.npos) return receive(static_cast<distributed::Recv&>(p), outputs[0]);
    return false;
  }

  void leave() { between_.leave(); }
  void finish() { between_.finish(); }
  void look() { between_.look(); }
  uint64_t exchanged() const { return exchanged_; }
  /* A graph is recorded. Where that failed, parts of it may never be put, and hosts and devices count differently. */
  void end_graph(bool well) {
    if (!first_.exchange(true) && !well) between_.give_up();
  }

 private:
  /* A collective of a stream. Where a rank is gone nothing is recorded; where that fails all are told. */
  class Recording {
   public:
    Recording(Collectives& of, Stream s) : of_(of), s(s), stream(stream_of(s)), lock_(of.mutex_) {
      if (of.between_.lost()) throw std::runtime_error(lost_text);
      if (of.last_ && *of.last_ != s) {                    // parts of one stream are in its order only
        submit_all();
        check(mlxvk_buffer_wait(of.shared_.buffer), stream, "a collective of another stream");
        of.first_ = true;
      }
      of.last_ = s;
    }
    ~Recording() { if (!done_) of_.between_.give_up(); }
    void done() { done_ = true; }

    /* An array's elements in a row. */
    void open(Handle& flat, const array& a) {
      Handle whole;
      check(operand(&whole, a, s), stream, "a collective's operand");
      const int size = int(a.size());
      check(mlxvk_reshape(&flat, whole, &size, 1, stream), stream, "a collective's operand");
    }
    void create(Handle& flat, const array& like) {
      const int size = int(like.size());
      const int code = mlxvk_array_new_data_device(&flat, nullptr, &size, 1, dtype_of(like), device());
      check(code, stream, "a collective's result");
    }
    /* So many elements of the shared memory. */
    void share(Handle& part, size_t offset, size_t count, mlxvk_dtype dtype) {
      const int size = int(count);
      const int code = mlxvk_array_new_buffer(&part, of_.shared_.buffer, &size, nullptr, 1, dtype, offset);
      check(code, stream, "shared memory");
    }
    /* What is recorded until now is submitted, and signals this. */
    uint64_t signal() {
      const uint64_t value = ++of_.signals_;
      check(mlxvk_event_signal(of_.written_, value, stream), stream, "a collective");
      return value;
    }
    /* Copies it there; the value that says when that is done. */
    uint64_t write(mlxvk_array part, size_t offset) {
      Handle there;
      share(there, offset, mlxvk_array_size(part), mlxvk_array_dtype(part));
      put(there, 0, part, stream);
      return signal();
    }
    /* What is recorded from now on waits for the event. */
    Event pause() { return await_host(s); }
    void finish(array& out, Handle& flat) {
      adopt(out, std::exchange(flat.a, {}), {}, s);
      done();
    }

   private:
    Collectives& of_;

   public:
    const Stream s;
    const mlxvk_stream stream;

   private:
    std::lock_guard<std::mutex> lock_;
    bool done_ = false;
  };

  Shared::Rank& own() { return shared_.ranks[shared_.rank]; }

  /* Calls each(at, count, number) for so much of `flat` as goes into a slot, when all ranks' parts are there. */
  template <class F> void in_parts(Recording& r, const Handle& flat, const F& each) {
    const size_t size = mlxvk_array_size(flat), most = Shared::SLOT / mlxvk_array_itemsize(flat);
    for (size_t at = 0; at < size; at += most) {
      const size_t count = std::min(most, size - at);
      Handle part;
      cut(part, flat, at, count, r.stream);
      const uint64_t number = ++parts_, value = r.write(part, shared_.slot(shared_.rank, number));
      const Event all = r.pause();
      between_.add({{Step::GPU, value}, {Step::COUNT, number, &own().written.value}, {Step::RANKS, number},
                    {Step::GO, 0, nullptr, 0, all}});
      each(at, part, number);
    }
  }

  bool is_small(const array& in) const {
    return shared_.exchanges && in.nbytes() <= size_t(MLXVK_EXCHANGE_MOST) && exchanged_ < UINT32_MAX;
  }

  bool all_recorded(uint64_t number) const {
    for (int r = 0; r < shared_.size; r++)
      if (shared_.ranks[r].recorded.value.load(std::memory_order_acquire) < number) return false;
    return true;
  }

  /* By the devices. The host has all ranks wait for each other first, but only where an evaluation begins. */
  void exchange(Recording& r, Handle& result, const Handle& part, mlxvk_exchange_op operation) {
    const uint64_t number = ++exchanged_;
    own().recorded.value.store(number, std::memory_order_release);
    if (first_.exchange(false)) {
      const Event event = watch_host(r.s);
      between_.expect(number, &event);
      if (!all_recorded(number)) between_.add({{Step::RECORDED, number}, {Step::GO, 0, nullptr, 0, r.pause()}});
    } else {
      between_.expect(number, nullptr);
    }
    check(mlxvk_exchange(&result, part, operation, &ranks_, r.stream), r.stream, "a collective's exchange");
  }

  /* Rank r's part: this one's from where it was. */
  void part_of(Handle& res, int rank, uint64_t number, const Handle& part, Recording& r) {
    if (rank == shared_.rank) mlxvk_array_set(&res, part);
    else r.share(res, shared_.slot(rank, number), mlxvk_array_size(part), mlxvk_array_dtype(part));
  }

  bool all_reduce(Primitive& p, const array& in, array& out) {
    static const char* const names[] = {"Sum", "Max", "Min"};
    const auto name = std::find_if(names, std::end(names), [&](auto n) { return !std::strncmp(p.name(), n, 3); });
    const auto operation = Operation(name - names);
    if (operation == OPERATIONS || !(shared_.operations & bit_of(operation, dtype_of(in)))) return false;
    if (!out.size()) return empty(out);
    Recording r(*this, p.stream());
    Handle flat, result;
    r.open(flat, in);
    if (is_small(in)) {
      exchange(r, result, flat, exchanges[operation]);
      r.finish(out, result);
      return true;
    }
    const bool whole = in.nbytes() <= Shared::SLOT;
    if (!whole) r.create(result, out);
    in_parts(r, flat, [&](size_t at, const Handle& part, uint64_t number) {
      Handle sum;
      part_of(sum, 0, number, part, r);
      for (int rank = 1; rank < shared_.size; rank++) {
        Handle next;
        part_of(next, rank, number, part, r);
        check(operations[operation](&sum, sum, next, r.stream), r.stream, p.name());
      }
      if (whole) std::swap(result.a, sum.a);
      else put(result, at, sum, r.stream);
    });
    r.finish(out, result);
    return true;
  }

  bool all_gather(Primitive& p, const array& in, array& out) {
    if (!out.size()) return empty(out);
    Recording r(*this, p.stream());
    Handle flat, result;
    r.open(flat, in);
    if (is_small(in)) {
      exchange(r, result, flat, MLXVK_EXCHANGE_GATHER);
      r.finish(out, result);
      return true;
    }
    r.create(result, out);
    in_parts(r, flat, [&](size_t at, const Handle& part, uint64_t number) {
      for (int rank = 0; rank < shared_.size; rank++) {
        Handle theirs;
        part_of(theirs, rank, number, part, r);
        put(result, size_t(rank) * in.size() + at, theirs, r.stream);
      }
    });
    r.finish(out, result);
    return true;
  }

  /* A neighbour's way: 0 to the right of who sends, 1 to the left; -1 for others, which the ring refuses. */
  int way(int from, int to) const {
    return (from + 1) % shared_.size == to ? 0 : (to + 1) % shared_.size == from ? 1 : -1;
  }

  bool send(distributed::Send& p, const array& in, array& out) {
    const int to = destination_of(p), w = way(shared_.rank, to);
    if (w < 0) return false;
    if (in.size()) {
      Recording r(*this, p.stream());
      Handle flat;
      r.open(flat, in);
      const size_t most = Shared::PACKET / in.itemsize();
      for (size_t at = 0; at < in.size(); at += most) {
        Handle part;
        cut(part, flat, at, std::min(most, in.size() - at), r.stream);
        send_packet(r, part, to, w);
      }
      r.done();
    }
    out.copy_shared_buffer(in);
    return true;
  }

  void send_packet(Recording& r, mlxvk_array part, int to, int w) {
    const uint64_t number = ++sent_[w];
    auto& taken = shared_.ranks[to].taken[w].value;
    if (taken.load(std::memory_order_acquire) + Shared::PACKETS < number)
      between_.add({{Step::COUNTER, number - Shared::PACKETS, &taken, to}, {Step::GO, 0, nullptr, 0, r.pause()}});
    const uint64_t value = r.write(part, shared_.packet(shared_.rank, w, number));
    between_.add({{Step::GPU, value}, {Step::COUNT, number, &own().sent[w].value}});
  }

  bool receive(distributed::Recv& p, array& out) {
    const int from = source_of(p), w = way(from, shared_.rank);
    if (w < 0) return false;
    if (!out.size()) return empty(out);
    Recording r(*this, p.stream());
    Handle result;
    r.create(result, out);
    const size_t most = Shared::PACKET / out.itemsize();
    for (size_t at = 0; at < out.size(); at += most) {
      const uint64_t number = ++taken_[w];
      auto& sent = shared_.ranks[from].sent[w].value;
      between_.add({{Step::COUNTER, number, &sent, from}, {Step::GO, 0, nullptr, 0, r.pause()}});
      Handle part;
      r.share(part, shared_.packet(from, w, number), std::min(most, out.size() - at), dtype_of(out));
      put(result, at, part, r.stream);
      const uint64_t value = r.signal();
      between_.add({{Step::GPU, value}, {Step::COUNT, number, &own().taken[w].value}});
    }
    r.finish(out, result);
    return true;
  }

  static bool empty(array& out) {
    adopt(out, {}, {}, mlx::core::default_stream(Device::gpu));
    return true;
  }

  Shared& shared_;
  const mlxvk_event written_;
  Between between_;
  std::mutex mutex_;
  std::optional<Stream> last_;
  uint64_t signals_ = 0, parts_ = 0, sent_[2]{}, taken_[2]{};
  mlxvk_ranks ranks_{};
  std::atomic<uint64_t> exchanged_{0};
  std::atomic<bool> first_{true};                          // no part of this evaluation is recorded yet
};

/* ---- MLX's group ---- */

static std::atomic<Collectives*> the{nullptr};
static std::atomic<const void*> the_group{nullptr};        // MLX's ring that it is for

enum Way { BY_RING, BY_HOST, BY_DEVICES, BEST };
static Way wanted() {
  const char* text = std::getenv("MLX_VK_SHARED_RANKS");
  const int way = text && *text ? std::atoi(text) : BEST;
  return way >= BY_RING && way < BEST ? Way(way) : BEST;
}

/* A number that is another one for each device that may wait for others, or 0. Two ranks on one device can wait for
 * each other only where it takes turns while both are at work, which nothing promises: then it must be asked for. */
static uint64_t apart(int rank) {
  size_t exchanges = 0, able = 0;
  const char* uuid = "";
  if (wanted() == BY_HOST || mlxvk_device_info_get_size(&able, device(), "int64") || !able) return 0;
  if (wanted() == BY_DEVICES) return uint64_t(rank) + 1;
  if (mlxvk_device_info_get_size(&exchanges, device(), "exchanges") || !exchanges) return 0;
  if (mlxvk_device_info_get_string(&uuid, device(), "uuid")) return 0;
  return std::hash<std::string>()(uuid);
}

/* All ranks come here at the same time: MLX's ring has just connected them. */
void join_ranks(const distributed::Group& group) {
  static std::once_flag once;
  auto& ring = *group.raw_group();
  if (!std::strstr(typeid(ring).name(), "4ring9RingGroup") || ring.size() < 2) return;
  std::call_once(once, [&] {
    mlxvk_event written{};
    Abilities own{wanted() != BY_RING && has_device() && !mlxvk_event_new(&written, device()), 0, 0};
    if (own.able) own = {true, known_operations(), apart(ring.rank())};
    Shared* shared = meet_ranks(ring.rank(), ring.size(), own);
    if (!shared) return;
    the = new Collectives(*shared, written);
    the_group = &ring;
  });
}

bool has_ranks(const distributed::Group& group) { return the && the_group == group.raw_group().get(); }

bool run_collective(Primitive& p, const Arrays& inputs, Arrays& outputs) {
  if (!the || !std::strstr(typeid(p).name(), "11distributed")) return false;
  auto& d = static_cast<distributed::DistPrimitive&>(p);
  if (!has_ranks(d.group()) || !the.load()->run(d, inputs, outputs)) return false;
  count_native(p.name());
  return true;
}

bool shares_ranks() { return the; }
uint64_t exchanged_count() { return the ? the.load()->exchanged() : 0; }
void end_graph(bool well) { if (the) the.load()->end_graph(well); }
void check_ranks() { if (the) the.load()->look(); }
void leave_ranks() { if (the) the.load()->leave(); }
void finish_ranks() { if (the) the.load()->finish(); }

}  // namespace mlxvk_mlx

namespace mlx::core::distributed {

Group init(bool strict, const std::string& backend) {
  Group group = mlxvk_mlx::original_init(strict, backend);
  mlxvk_mlx::join_ranks(group);
  return group;
}

namespace detail {

/* Where the ranks share memory: the GPU's, unless a CPU's is asked for. */
Stream communication_stream(Group group, StreamOrDevice s) {
  if (mlxvk_mlx::has_ranks(group))
    if (const Stream to = to_stream(s); to.device == Device::gpu) return to;
  return group.raw_group()->communication_stream(s);
}

}  // namespace detail

}  // namespace mlx::core::distributed

#else

namespace mlxvk_mlx {

bool run_collective(Primitive&, const Arrays&, Arrays&) { return false; }
bool shares_ranks() { return false; }
uint64_t exchanged_count() { return 0; }
void end_graph(bool) {}
void check_ranks() {}
void leave_ranks() {}
void finish_ranks() {}

}  // namespace mlxvk_mlx

#endif
