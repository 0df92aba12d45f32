/* The walk over a graph that one GPU stream computes: see bridge.h.                          SPDX-License-Identifier: MIT
 *
 * MLX's own walk is for graphs over several streams and devices: it looks each array up in hash tables, and asks events and
 * the allocator for each primitive. Most graphs, and every token of a language model, are of one GPU stream, so that neither
 * fences nor waits are needed between their primitives. Those are walked here: same order, one event for all. What is
 * anything else goes to MLX's walk, before anything of it is changed. */
#include <algorithm>
#include <cstdlib>
#include <optional>

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
    return !event.valid() || (stream_ && event.stream() == *stream_);
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

static std::atomic<uint64_t> walks{0};
uint64_t walk_count() { return walks; }

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
  try {
    const auto order = graph.order();
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
  result.set_status(Status::evaluated);
  return result;
}

}  // namespace mlxvk_mlx

namespace mlx::core {

/* MLX_VK_WALK=0: MLX's own, to find out whether this one is at fault. */
array eval_impl(std::vector<array> outputs, bool async) {
  static const bool wanted = [] {
    const char* text = std::getenv("MLX_VK_WALK");
    return !text || std::strcmp(text, "0");
  }();
  if (wanted)
    if (auto result = mlxvk_mlx::walk(outputs, async)) return std::move(*result);
  return mlxvk_mlx::original_eval_impl(std::move(outputs), async);
}

}  // namespace mlx::core
