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
 * So part n + 1 may go where n - 1 was. All ranks add in the same order, and get the same bits. */
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
    if (++times_ < spins) spin_pause();
    else if (times_ < spins + yields) std::this_thread::yield();
    else std::this_thread::sleep_for(std::chrono::microseconds(times_ > LONG ? 500 : many ? 50 : 20));
  }
  /* Now and then: for what costs more than looking. */
  bool seldom() const { return times_ % 256 == 0; }

 private:
  enum { LONG = 50000 };                                   // times, which are some seconds
  unsigned times_ = 0;
};

struct Step {
  enum What {
    GPU,                                                   // wait for the device's timeline
    COUNT,                                                 // the counter is this from now on
    RANKS,                                                 // wait until all ranks have written so many parts
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
    lost_ = true;
  }

 private:
  [[noreturn]] void work() {
    for (;;) {
      Step step = next();
      switch (step.what) {
        case Step::GPU: until([&] { return mlxvk_event_is_signaled(written_, step.value); }); break;
        case Step::COUNT: step.counter->store(step.value, std::memory_order_release); break;
        case Step::RANKS:
          for (int r = 0; r < shared_.size; r++) await(shared_.ranks[r].written.value, step.value, r);
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
    changed_.wait(lock, [this] { return !steps_.empty(); });
    Step step = std::move(steps_.front());
    steps_.pop_front();
    count_.store(steps_.size(), std::memory_order_release);
    return step;
  }

  template <class F> static void until(const F& there) {
    for (Patience patience; !there();) patience.wait();
  }

  void await(const std::atomic<uint64_t>& counter, uint64_t value, int rank) {
    std::optional<Clock::time_point> both_leave;
    for (Patience patience; !lost_ && counter.load(std::memory_order_acquire) < value; patience.wait()) {
      if (!patience.seldom() || !is_lost(rank, both_leave)) continue;
      if (counter.load(std::memory_order_acquire) < value) lost_ = true;   // it may have counted before it went
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

  Shared& shared_;
  const mlxvk_event written_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Step> steps_;
  std::atomic<size_t> count_{0};
  std::atomic<bool> lost_{false}, busy_{false};
};

/* ---- what the devices can add up ---- */

using Binary = int (*)(mlxvk_array*, mlxvk_array, mlxvk_array, mlxvk_stream);
enum Operation { SUM, MAX, MIN, OPERATIONS };
static const Binary operations[] = {mlxvk_add, mlxvk_maximum, mlxvk_minimum};

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
  Collectives(Shared& shared, mlxvk_event written) : shared_(shared), written_(written), between_(shared, written) {}

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

 private:
  /* A collective of a stream. Where a rank is gone nothing is recorded; where that fails all are told. */
  class Recording {
   public:
    Recording(Collectives& of, Stream s) : of_(of), s(s), stream(stream_of(s)), lock_(of.mutex_) {
      if (of.between_.lost()) throw std::runtime_error(lost_text);
      if (of.last_ && *of.last_ != s) {                    // parts of one stream are in its order only
        submit_all();
        check(mlxvk_buffer_wait(of.shared_.buffer), stream, "a collective of another stream");
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
};

/* ---- MLX's group ---- */

static std::atomic<Collectives*> the{nullptr};
static std::atomic<const void*> the_group{nullptr};        // MLX's ring that it is for

static bool wanted() {
  const char* text = std::getenv("MLX_VK_SHARED_RANKS");
  return !text || std::strcmp(text, "0");
}

/* All ranks come here at the same time: MLX's ring has just connected them. */
void join_ranks(const distributed::Group& group) {
  static std::once_flag once;
  auto& ring = *group.raw_group();
  if (!std::strstr(typeid(ring).name(), "4ring9RingGroup") || ring.size() < 2) return;
  std::call_once(once, [&] {
    mlxvk_event written{};
    const bool able = wanted() && has_device() && !mlxvk_event_new(&written, device());
    Shared* shared = meet_ranks(ring.rank(), ring.size(), able, able ? known_operations() : 0);
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
void leave_ranks() {}
void finish_ranks() {}

}  // namespace mlxvk_mlx

#endif
