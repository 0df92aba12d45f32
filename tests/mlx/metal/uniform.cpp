/* Threads of a threadgroup come to a barrier together or not at all: SPIR-V's, and so that of every simd function which
 * is made of shared memory. Where a kernel's threads part (an early return, a loop that some leave sooner) and some of
 * them come to one, all of them go all ways from here on, with a mask: a variable that says whether a thread really
 * does. What has no barrier in it is done where the mask holds; jumps clear masks.  SPDX-License-Identifier: MIT */
#include <algorithm>
#include <set>

#include "ir.h"
#include "metal.h"

namespace metal {
namespace {

const Reg BOOL{Base::boolean, 1};
enum : uint16_t { AND = 167, OR = 166, NOT = 168 };

/* Which of an instruction's operands are values. */
std::vector<uint32_t> values_of(const Inst& i) {
  auto from = [&](std::initializer_list<uint32_t> list) {
    std::vector<uint32_t> r;
    for (uint32_t k : list) if (k < i.n && i.args[k]) r.push_back(k);
    return r;
  };
  switch (i.op) {
    case LOAD: return from({1});
    case STORE: return from({1, 2});
    case LOAD_BUFFER: return from({2});
    case STORE_BUFFER: return from({2, 3});
    case ATOMIC: return from({2, 3, 4});
    case IF: case ANY: return from({0});
    case SIMD: return from({1, 2, 3});
    case LOOP: case REGION: case BREAK: case CONTINUE: case RETURN: case BARRIER: case BUILTIN: case PUSH: return {};
    default: break;
  }
  std::vector<uint32_t> r;
  uint32_t n = i.op == 81 || i.op == 82 ? i.n - 1 : i.n;
  for (uint32_t k = 0; k < n; k++) r.push_back(k);
  return r;
}

/* ---- what is the same for all threads of a threadgroup ---- */

struct Analysis {
  const Code& code;
  const Options& options;
  std::vector<bool> value, slot;               // uniform?
  std::set<uint32_t> parted;                   // regions that threads leave at different times
  bool returns_parted = false, changed = false;
  uint32_t threads;

  Analysis(const Code& c, const Options& o)
      : code(c), options(o), value(c.types.size(), true), slot(c.slots.size(), true) {
    threads = o.threads[0] * o.threads[1] * o.threads[2];
    do {
      changed = false;
      walk(code.main, !returns_parted);
    } while (changed);
  }
  bool uniform(const Inst& i) const {
    for (uint32_t k : values_of(i)) if (!value[i.args[k]]) return false;
    switch (i.op) {
      case LOAD: return slot[i.args[0]] && !code.slots[i.args[0]].shared;
      case LOAD_BUFFER: return !code.written[i.args[0]];
      case ATOMIC: return threads == 1;
      case SIMD: return threads == 1;
      case BUILTIN: return builtin(static_cast<Builtin>(i.imm));
      default: return true;
    }
  }
  bool builtin(Builtin b) const {
    uint32_t k = static_cast<uint32_t>(b);
    if (b >= Builtin::group_x && b <= Builtin::groups_z) return true;
    if (k < 6) return options.threads[k % 3] == 1;
    return b == Builtin::simdgroup ? threads <= 32 : threads == 1;
  }
  /* A sum over the only simdgroup is everybody's. */
  bool reduces_all(const Inst& i) const {
    Simd s = static_cast<Simd>(i.imm);
    bool whole = s <= Simd::xor_ || s == Simd::any || s == Simd::all || s == Simd::ballot;
    return i.op == SIMD && threads <= 32 && i.args[0] == 32 && whole;
  }
  void part(uint32_t region) { changed = parted.insert(region).second || changed; }
  void walk(const Block& b, bool together) {
    for (const Inst& i : b) {
      if (i.id && value[i.id] && !(uniform(i) || reduces_all(i))) {
        value[i.id] = false;
        changed = true;
      }
      if (i.op == STORE && slot[i.args[0]] && !(together && uniform(i))) {
        slot[i.args[0]] = false;
        changed = true;
      }
      if (!together && (i.op == BREAK || i.op == CONTINUE)) part(i.args[0]);
      if (!together && i.op == RETURN && !returns_parted) returns_parted = changed = true;
      bool inside = together;
      if (i.op == IF) inside = inside && value[i.args[0]];
      if (i.op == LOOP || i.op == REGION) inside = inside && !parted.count(i.args[0]);
      if (i.a) walk(*i.a, inside);
      if (i.b) walk(*i.b, inside);
    }
  }
};

/* ---- masks ---- */

struct Masker {
  Code& code;
  const Options& options;
  Analysis analysis;
  struct Mask {
    uint32_t region;
    bool of_loop;
    uint32_t slot;
  };  // of_loop: who breaks out loses it; else who continues, too
  std::vector<Mask> masks;
  std::vector<uint32_t> home;                  // of a value: the group that makes it, 0: none
  uint32_t groups = 0;

  Masker(Code& c, const Options& o) : code(c), options(o), analysis(c, o) {}

  bool is_collective(const Inst& i) const {
    if (i.op == BARRIER) return i.args[0] == 0;
    return i.op == ANY || (i.op == SIMD && options.subgroup < 32);
  }
  bool has_collective(const Block* b) const {
    if (!b) return false;
    for (const Inst& i : *b)
      if (is_collective(i) || has_collective(i.a.get()) || has_collective(i.b.get())) return true;
    return false;
  }
  bool has_collective(const Inst& i) const { return has_collective(i.a.get()) || has_collective(i.b.get()); }

  /* ---- making code ---- */

  uint32_t new_slot() {
    Slot s;
    s.type = BOOL;
    code.slots.push_back(s);
    return static_cast<uint32_t>(code.slots.size() - 1);
  }
  uint32_t make(Block& to, uint16_t op, std::initializer_list<uint32_t> args, bool has_value) {
    Inst i;
    i.op = op;
    for (uint32_t a : args) i.args[i.n++] = a;
    if (has_value) {
      i.type = BOOL;
      i.id = code.value(BOOL);
    }
    uint32_t id = i.id;
    to.push_back(std::move(i));
    if (++code.size > 2 * MAX_CODE) fail({1, 1, 0}, "this makes too much code");
    return id;
  }
  uint32_t get(Block& to, uint32_t slot) { return make(to, LOAD, {slot, 0}, true); }
  void set(Block& to, uint32_t slot, uint32_t value) { make(to, STORE, {slot, 0, value}, false); }
  uint32_t constant(bool v) {
    uint64_t bits = v;
    return code.constant(BOOL, &bits);
  }
  static void give(Block& to, std::unique_ptr<Block> a, std::unique_ptr<Block> b) {
    to.back().a = std::move(a);
    to.back().b = std::move(b);
  }

  /* ---- groups: code without barriers, done where the mask holds ---- */

  static bool jumps(const Block& b, const std::set<uint32_t>& own) {
    for (const Inst& i : b) {
      if (i.op == RETURN) return true;
      if ((i.op == BREAK || i.op == CONTINUE) && !own.count(i.args[0])) return true;
      std::set<uint32_t> inside = own;
      if (i.op == LOOP || i.op == REGION) inside.insert(i.args[0]);
      if ((i.a && jumps(*i.a, inside)) || (i.b && jumps(*i.b, inside))) return true;
    }
    return false;
  }

  /* Jumps out of the group clear the masks of what they jump out of, and end the group. */
  void rewrite_jumps(Block& b, uint32_t group_region, std::set<uint32_t> own) {
    Block out;
    for (Inst& i : b) {
      bool out_of = i.op == RETURN || ((i.op == BREAK || i.op == CONTINUE) && !own.count(i.args[0]));
      if (out_of) {
        for (size_t k = masks.size(); k-- > 0;) {
          bool target = i.op != RETURN && masks[k].region == i.args[0];
          if (target && i.op == CONTINUE && masks[k].of_loop) break;
          set(out, masks[k].slot, constant(false));
          if (target && (masks[k].of_loop || i.op == BREAK) && (k == 0 || masks[k - 1].region != i.args[0])) break;
        }
        make(out, BREAK, {group_region}, false);
        break;
      }
      std::set<uint32_t> inside = own;
      if (i.op == LOOP || i.op == REGION) inside.insert(i.args[0]);
      if (i.a) rewrite_jumps(*i.a, group_region, inside);
      if (i.b) rewrite_jumps(*i.b, group_region, inside);
      out.push_back(std::move(i));
    }
    b = std::move(out);
  }

  void flush(Block& group, Block& out) {
    if (group.empty()) return;
    uint32_t number = ++groups;
    for (const Inst& i : group) {
      if (!i.id) continue;
      if (home.size() <= i.id) home.resize(i.id + 1, 0);
      home[i.id] = number;
    }
    if (jumps(group, {})) {
      uint32_t region = ++code.regions;
      rewrite_jumps(group, region, {});
      auto inside = std::make_unique<Block>(std::move(group));
      for (const Inst& i : *inside) if (i.id && home[i.id] == number) home[i.id] = number;
      group = Block();
      make(group, REGION, {region}, false);
      give(group, std::move(inside), nullptr);
    }
    uint32_t m = get(out, masks.back().slot);
    make(out, IF, {m}, false);
    give(out, std::make_unique<Block>(std::move(group)), std::make_unique<Block>());
    out.back().imm = static_cast<uint16_t>(0);
    out.back().args[1] = number;                                       // seen by spill()
    group = Block();
  }

  /* ---- statements with barriers in them ---- */

  void masked_block(Block& in, Block& out) {
    Block group;
    for (Inst& i : in) {
      if (is_collective(i)) {
        flush(group, out);
        if (i.op == SIMD) {
          i.args[3] = get(out, masks.back().slot);
          i.n = 4;
        }
        out.push_back(std::move(i));
      } else if (has_collective(i)) {
        flush(group, out);
        masked_statement(i, out);
      } else {
        bool ends = i.op == BREAK || i.op == CONTINUE || i.op == RETURN;
        group.push_back(std::move(i));
        if (ends) break;
      }
    }
    flush(group, out);
  }

  std::unique_ptr<Block> masked_part(Block& in, uint32_t region, bool of_loop, uint32_t slot) {
    auto out = std::make_unique<Block>();
    masks.push_back({region, of_loop, slot});
    masked_block(in, *out);
    masks.pop_back();
    return out;
  }
  void append(Block& to, std::unique_ptr<Block> from) {
    for (Inst& i : *from) to.push_back(std::move(i));
  }

  void masked_statement(Inst& i, Block& out) {
    uint32_t mask = masks.back().slot;
    if (i.op == IF) {
      uint32_t yes = new_slot(), no = new_slot(), m = get(out, mask);
      set(out, yes, make(out, AND, {m, i.args[0]}, true));
      set(out, no, make(out, AND, {m, make(out, NOT, {i.args[0]}, true)}, true));
      append(out, masked_part(*i.a, 0, false, yes));
      append(out, masked_part(*i.b, 0, false, no));
      uint32_t a = get(out, yes), b = get(out, no);
      set(out, mask, make(out, OR, {a, b}, true));
      return;
    }
    uint32_t own = new_slot();
    set(out, own, get(out, mask));
    if (i.op == REGION) {
      append(out, masked_part(*i.a, i.args[0], true, own));
      return;
    }
    masks.push_back({i.args[0], true, own});                           // who is still in the loop
    uint32_t turn = new_slot();                                        // and who is in this turn
    auto body = std::make_unique<Block>();
    uint32_t any = make(*body, ANY, {get(*body, own)}, true);
    make(*body, IF, {any}, false);
    auto leave = std::make_unique<Block>();
    uint32_t fresh = ++code.regions;
    make(*leave, BREAK, {fresh}, false);
    give(*body, std::make_unique<Block>(), std::move(leave));
    set(*body, turn, get(*body, own));
    append(*body, masked_part(*i.a, i.args[0], false, turn));
    set(*body, turn, get(*body, own));
    if (i.b) append(*body, masked_part(*i.b, i.args[0], false, turn));
    masks.pop_back();
    make(out, LOOP, {fresh}, false);
    give(out, std::move(body), std::make_unique<Block>());
  }

  bool needs_mask(const Inst& i) const {
    if (i.op == IF) return !analysis.value[i.args[0]];
    return analysis.parted.count(i.args[0]) > 0;
  }

  void plain_block(Block& in, Block& out) {
    for (Inst& i : in) {
      if (!has_collective(i)) {
        out.push_back(std::move(i));
        continue;
      }
      if (needs_mask(i)) {
        uint32_t all = new_slot();
        set(out, all, constant(true));
        masks.push_back({0, false, all});
        masked_statement(i, out);
        masks.pop_back();
        continue;
      }
      for (auto* part : {&i.a, &i.b}) {
        if (!*part) continue;
        auto made = std::make_unique<Block>();
        plain_block(**part, *made);
        *part = std::move(made);
      }
      out.push_back(std::move(i));
    }
  }

  /* ---- values that are used outside of the group that makes them go through variables ---- */

  std::vector<bool> spilled;
  std::map<uint32_t, uint32_t> spill_slots;

  uint32_t home_of(uint32_t v) const { return v < home.size() ? home[v] : 0; }
  void find_spills(const Block& b, uint32_t group) {
    for (const Inst& i : b) {
      for (uint32_t k : values_of(i)) {
        uint32_t h = home_of(i.args[k]);
        if (h && h != group) spilled[i.args[k]] = true;
      }
      uint32_t inner = i.op == IF && i.n == 1 && i.args[1] ? i.args[1] : group;
      if (i.a) find_spills(*i.a, inner);
      if (i.b) find_spills(*i.b, inner);
    }
  }
  uint32_t spill_slot(uint32_t v) {
    uint32_t& s = spill_slots[v];
    if (s) return s - 1;
    Slot n;
    n.type = code.types[v];
    code.slots.push_back(n);
    s = static_cast<uint32_t>(code.slots.size());
    return s - 1;
  }
  void spill(Block& b, uint32_t group) {
    Block out;
    for (Inst& i : b) {
      for (uint32_t k : values_of(i)) {
        uint32_t v = i.args[k], h = home_of(v);
        if (!h || h == group || !spilled[v]) continue;
        Inst load;
        load.op = LOAD;
        load.type = code.types[v];
        load.args[load.n++] = spill_slot(v);
        load.args[load.n++] = 0;
        load.id = code.value(load.type);
        i.args[k] = load.id;
        out.push_back(std::move(load));
      }
      uint32_t inner = i.op == IF && i.n == 1 && i.args[1] ? i.args[1] : group;
      if (i.a) spill(*i.a, inner);
      if (i.b) spill(*i.b, inner);
      uint32_t id = i.id;
      out.push_back(std::move(i));
      if (id && id < spilled.size() && spilled[id] && home_of(id) == group)
        make(out, STORE, {spill_slot(id), 0, id}, false);
    }
    b = std::move(out);
  }

  void run() {
    if (!has_collective(&code.main)) return;
    Block out;
    if (analysis.returns_parted) {
      uint32_t all = new_slot();
      set(out, all, constant(true));
      masks.push_back({0, false, all});
      masked_block(code.main, out);
      masks.pop_back();
    } else {
      plain_block(code.main, out);
    }
    code.main = std::move(out);
    if (!groups) return;
    spilled.assign(code.types.size(), false);
    find_spills(code.main, 0);
    spill(code.main, 0);
  }
};

}  // namespace

void make_uniform(Code& code, const Options& options) { Masker(code, options).run(); }

}  // namespace metal
