/* What mlxvk does not have, and statistics: see bridge.h.                                    SPDX-License-Identifier: MIT */
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <unordered_map>
#include <unordered_set>

#include "bridge.h"
#include "mlx/backend/cpu/eval.h"

namespace mlxvk_mlx {

using namespace mlx::core;

/* ---- counting ---- */

struct Count {
  uint64_t native = 0, fallback = 0;
  std::map<std::string, uint64_t> reasons;                 // by signature and reason
};
static struct Counts {
  std::mutex mutex;
  /* By the name's address, without a lock. */
  struct Native { std::atomic<const char*> name; std::atomic<uint64_t> count; } native[1024];
  std::map<std::string, Count> fallback;

  /* Both together. The lock is held. */
  std::map<std::string, Count> all() const {
    auto result = fallback;
    for (auto& n : native)
      if (n.count) result[n.name.load()].native += n.count;
    return result;
  }
}& counts = *new Counts;

enum class Policy { silent, warn, error };

static Policy policy() {
  static const Policy value = [] {
    const char* text = std::getenv("MLX_VK_FALLBACK");
    const std::string s = text ? text : "silent";
    if (s == "error") return Policy::error;
    if (s == "warn") return Policy::warn;
    if (s != "silent" && !s.empty()) std::fprintf(stderr, "mlxvk: MLX_VK_FALLBACK=%s is none of warn, error, silent\n", s.c_str());
    return Policy::silent;
  }();
  return value;
}

void count_native(const char* name) {
  size_t at = (uintptr_t(name) >> 3) * 0x9E3779B97F4A7C15u >> 54;
  for (size_t tried = 0; tried < std::size(counts.native); tried++, at++) {
    auto& n = counts.native[at % std::size(counts.native)];
    const char* seen = n.name.load(std::memory_order_relaxed);
    if (!seen && n.name.compare_exchange_strong(seen, name)) seen = name;
    if (seen != name) continue;
    n.count.fetch_add(1, std::memory_order_relaxed);
    return;
  }
}

/* "float32[2,3] int32[5]" */
static std::string signature(const Arrays& inputs) {
  std::ostringstream text;
  for (auto& in : inputs) {
    text << (&in == &inputs[0] ? "" : " ") << mlxvk_dtype_name(dtype_of(in)) << "[";
    for (int i = 0; i < int(in.ndim()); i++) text << (i ? "," : "") << in.shape(i);
    text << "]";
  }
  return text.str();
}

/* True the first time that this signature falls back. */
static bool count_fallback(const char* name, const std::string& text) {
  std::lock_guard<std::mutex> lock(counts.mutex);
  auto& c = counts.fallback[name];
  c.fallback++;
  return !c.reasons[text]++;
}

/* ---- on the CPU ---- */

/* Its own: what users queue on theirs may wait for us. */
static Stream cpu_stream() {
#if MLX_VERSION_NUMERIC >= 32000
  static const Stream s = new_thread_unsafe_stream(Device::cpu);
#else
  static const Stream s = new_stream(Device::cpu);
#endif
  return s;
}

/* While it lives, the primitive is one of the bridge's CPU stream: some ask the scheduler for their stream's thread. */
class OnCpuStream {
 public:
  explicit OnCpuStream(Primitive& p) : stream_(const_cast<Stream&>(p.stream())), own_(stream_) { stream_ = cpu_stream(); }
  ~OnCpuStream() { stream_ = own_; }

 private:
  Stream& stream_;
  const Stream own_;
};

static void on_cpu(Primitive& p, const Arrays& inputs, Arrays& outputs) {
  static std::mutex mutex;
  const mlxvk_stream stream = stream_of(p.stream());
  submit_all();
  if (int code = mlxvk_synchronize(stream)) raise(code, stream, p.name());
  for (auto& in : inputs) wait_for(in, true);
  std::lock_guard<std::mutex> lock(mutex);
  OnCpuStream moved(p);
  Loading loading(is_load(p));
  Keeping freed;
  p.eval_cpu(inputs, outputs);
  synchronize(p.stream());
  cpu::get_command_encoder(p.stream()).temporaries().clear();
}

/* ---- by the graph that defines a fast operation ---- */

struct Graph : fast::Custom {
  static auto& of(fast::Custom& c) { return c.*(&Graph::fallback_); }
};

/* Evaluates a graph whose leaves are evaluated, in this thread and on the stream. What its functions gave no stream has this
 * thread's default one, which in a thread that records for others is of its own. */
static void evaluate(const Arrays& results, Stream s) {
  std::vector<std::pair<array, size_t>> stack;
  std::unordered_set<uintptr_t> seen;
  for (auto& r : results) {
    stack.emplace_back(r, 0);
    while (!stack.empty()) {
      auto& [a, next] = stack.back();
      if (a.status() != array::Status::unscheduled || !a.has_primitive() || (next == 0 && !seen.insert(a.id()).second)) {
        stack.pop_back();
        continue;
      }
      if (next < a.inputs().size()) {
        array in = a.inputs()[next++];
        stack.emplace_back(in, 0);
        continue;
      }
      array now = a;
      stack.pop_back();
      auto outputs = now.outputs();
      const_cast<Stream&>(now.primitive().stream()) = s;
      run(now.primitive(), now.inputs(), outputs);
      for (auto& o : outputs) { o.set_status(array::Status::evaluated); seen.insert(o.id()); }
      now.detach();
    }
  }
}

static void by_graph(fast::Custom& p, const Arrays& inputs, Arrays& outputs) {
  Arrays results = Graph::of(p)(inputs);
  evaluate(results, p.stream());
  for (size_t i = 0; i < outputs.size(); i++) {
    auto& r = results[i];
    outputs[i].copy_shared_buffer(r, r.strides(), r.flags(), r.data_size());
  }
}

void fall_back(Primitive& p, const Arrays& inputs, Arrays& outputs, const std::string& reason) {
  fast::Custom* custom = with_graph(p);
  const std::string text = signature(inputs) + (reason.empty() ? "" : " (" + reason + ")");
  if (policy() == Policy::error && !custom) throw std::runtime_error(std::string("[") + p.name() + "] mlxvk has it not for " + text + "; MLX_VK_FALLBACK=error");
  if (count_fallback(p.name(), text) && policy() == Policy::warn)
    std::fprintf(stderr, "mlxvk: %s %s: on the %s\n", p.name(), text.c_str(), custom ? "GPU by its graph" : "CPU");
  if (custom) by_graph(*custom, inputs, outputs);
  else on_cpu(p, inputs, outputs);
}

/* ---- statistics ---- */

static std::string quoted(const std::string& s) {
  std::string r = "\"";
  for (char c : s) {
    if (c == '"' || c == '\\') r += '\\';
    if (static_cast<unsigned char>(c) >= ' ') r += c;
  }
  return r + "\"";
}

static std::string info(const char* key) {
  const char* value = nullptr;
  return has_device() && !mlxvk_device_info_get_string(&value, device(), key) ? value : "none";
}

static std::string statistics() {
  mlxvk_stats st{};
  uint64_t native = 0, fallback = 0;
  std::ostringstream each, text;
  if (has_device()) mlxvk_get_stats(&st, device());
  std::lock_guard<std::mutex> lock(counts.mutex);
  for (auto& [name, c] : counts.all()) {
    native += c.native;
    fallback += c.fallback;
    each << (each.tellp() > 0 ? "," : "") << quoted(name) << ":{\"native\":" << c.native << ",\"fallback\":" << c.fallback << ",\"reasons\":{";
    bool first = true;
    for (auto& [reason, n] : c.reasons) { each << (first ? "" : ",") << quoted(reason) << ":" << n; first = false; }
    each << "}}";
  }
  text << "{\"device\":" << quoted(info("device_name")) << ",\"driver\":" << quoted(info("driver")) << ",\"streams\":" << stream_count()
       << ",\"native\":" << native << ",\"fallback\":" << fallback << ",\"operations\":" << st.operations
       << ",\"dispatches\":" << st.dispatches << ",\"barriers\":" << st.barriers << ",\"submissions\":" << st.submissions
       << ",\"fused\":" << st.fused << ",\"dropped\":" << st.dropped << ",\"replayed\":" << st.replayed
       << ",\"recorded\":" << st.recorded << ",\"walks\":" << walk_count()
       << ",\"handed_over\":" << handed_over_count() << ",\"shared_ranks\":" << shares_ranks() << ",\"lowering_ns\":" << st.lowering_ns
       << ",\"submit_ns\":" << st.submit_ns << ",\"primitives\":{" << each.str() << "}}";
  return text.str();
}

void print_statistics() {
  const char* wanted = std::getenv("MLX_VK_STATS");
  if (!wanted || !*wanted || !std::strcmp(wanted, "0")) return;
  mlxvk_stats st{};
  mlxvk_get_stats(&st, device());
  std::lock_guard<std::mutex> lock(counts.mutex);
  std::fprintf(stderr, "mlxvk on %s (%s): %llu dispatches, %llu submissions, %llu operations fused\n", info("device_name").c_str(),
               info("driver").c_str(), (unsigned long long)st.dispatches, (unsigned long long)st.submissions, (unsigned long long)st.fused);
  std::fprintf(stderr, "%-28s %12s %12s\n", "primitive", "native", "fallback");
  for (auto& [name, c] : counts.all()) {
    std::fprintf(stderr, "%-28s %12llu %12llu\n", name.c_str(), (unsigned long long)c.native, (unsigned long long)c.fallback);
    for (auto& [reason, n] : c.reasons) std::fprintf(stderr, "    %8llu  %s\n", (unsigned long long)n, reason.c_str());
  }
}

static int copy_text(const std::string& s, char* text, size_t size) {
  if (text && size) std::snprintf(text, size, "%s", s.c_str());
  return int(s.size()) + 1;
}

}  // namespace mlxvk_mlx

/* For programs that look at the bridge from outside (ctypes). These return the bytes that the whole text takes. */
extern "C" int mlxvk_mlx_stats(char* text, size_t size) {
  mlxvk_mlx::join_walk();
  return mlxvk_mlx::copy_text(mlxvk_mlx::statistics(), text, size);
}

extern "C" void mlxvk_mlx_reset_stats(void) {
  mlxvk_mlx::join_walk();
  std::lock_guard<std::mutex> lock(mlxvk_mlx::counts.mutex);
  for (auto& n : mlxvk_mlx::counts.native) n.count = 0;
  mlxvk_mlx::counts.fallback.clear();
  if (mlxvk_mlx::has_device()) mlxvk_reset_stats(mlxvk_mlx::device());
}

extern "C" int mlxvk_mlx_primitives(char* text, size_t size) {
  static const char* const states[] = {"native", "layout", "host", "unreached", "fallback"};
  std::string all;
  mlxvk_mlx::each_primitive([&](const char* name, mlxvk_mlx::State state, const char* note, bool ran) {
    all += (all.empty() ? "[" : ",") + ("{\"name\":" + mlxvk_mlx::quoted(name)) + ",\"state\":\"" + states[int(state)] + "\",\"note\":" +
           mlxvk_mlx::quoted(note) + ",\"ran\":" + (ran ? "true" : "false") + "}";
  });
  return mlxvk_mlx::copy_text(all + "]", text, size);
}

/* Which kernels ran how often, and with MLX_VK_PROFILE=1 how long on the GPU: a JSON list. */
extern "C" int mlxvk_mlx_kernels(char* text, size_t size) {
  std::string all;
  auto each = [](const char* kernel, uint64_t count, uint64_t ns, void* user) {
    auto& s = *static_cast<std::string*>(user);
    s += (s.empty() ? "[" : ",") + ("{\"kernel\":" + mlxvk_mlx::quoted(kernel)) + ",\"count\":" + std::to_string(count) +
         ",\"ns\":" + std::to_string(ns) + "}";
  };
  if (mlxvk_mlx::has_device()) mlxvk_kernel_stats(mlxvk_mlx::device(), each, &all);
  return mlxvk_mlx::copy_text((all.empty() ? "[" : all) + "]", text, size);
}

#if MLX_VERSION_NUMERIC < 32000
namespace mlx::core::cpu {

/* An operation of a GPU stream that runs on the CPU does so in the bridge's own CPU stream. */
CommandEncoder& get_command_encoder(Stream s) {
  static std::mutex mutex;
  static auto& encoders = *new std::unordered_map<int, CommandEncoder>;
  const Stream t = s.device == Device::gpu ? mlxvk_mlx::cpu_stream() : s;
  std::lock_guard<std::mutex> lock(mutex);
  return encoders.try_emplace(t.index, t).first->second;
}

}  // namespace mlx::core::cpu
#endif
