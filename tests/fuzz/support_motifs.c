/* Groups of operations that the library lowers together, with views between them, results that are wanted after all,
 * and results that go where operands came from. */
#include "support_program.h"

#include <string.h>

/* Mostly it belongs to nobody from here on. */
static void drop(int variable) { if (variable != NONE && chance(85)) note(FREE, variable); }

/* v, or at times another view of it; v goes then. */
static int maybe_view(int v, int percent)
{
    if (v == NONE || !chance(percent)) return v;
    int res = same_shape_view(v);
    if (res != v) drop(v);
    return res;
}

/* At times something else happens in between. */
static void interlude(void)
{
    if (chance(12)) random_operation();
    if (chance(5)) note(chance(50) ? EVAL : ASYNC, NONE);
}

static int multiplied(int a, int b) { return chance(50) ? pair("multiply", a, b) : pair("multiply", b, a); }

/* ---- norm, rope, cache ---- */

static void attend(int queries, int keys, int values, const char *mode)
{
    struct statement s = call_of("fast_scaled_dot_product_attention");
    with_input(&s, "queries", queries);
    with_input(&s, "keys", keys);
    with_input(&s, "values", values);
    with_input(&s, "mask_arr", NONE);
    with_input(&s, "sinks", NONE);
    with_number(&s, "scale", 0.125);
    with_text(&s, "mask_mode", mode);
    emit(s);
}

/* The slice is written, and the cache looked at: as it is, in part, or by attention. */
static void use_cache(int cache, int queries)
{
    int kind = below(10);
    if (cache == NONE) return;
    if (kind < 3) note(READ, cache);
    else if (kind < 5) view_of(cache);
    else if (kind < 7 && queries != NONE) attend(queries, cache, cache, "");
}

/* What goes into the rope: from the cache itself, from heads that stand side by side, or anything. */
static int rope_source(int cache, const int *shape, bool norm)
{
    int v = NONE, from = chance(40) ? cache : NONE;
    struct region g = { 0 };
    if (from != NONE && region_for(&g, of(cache)->shape, 4, shape)) {
        v = slice_of(cache, &g);
        if (norm && v != NONE) { int n = normed(v); drop(v); v = n; }
        return maybe_view(v, 25);
    }
    bool turned = chance(50);
    int place[4] = { shape[0], turned ? shape[2] : shape[1], turned ? shape[1] : shape[2], shape[3] };
    int flat[3] = { place[0], place[1], place[2] * place[3] };
    bool whole = norm && chance(60);                       /* the norm's rows side by side: else it is not fused */
    if (whole) v = fresh(float_dtype(), place, 4, UNIFORM, 0);
    else v = turned && chance(50) ? shaped(float_dtype(), flat, 3) : shaped(float_dtype(), place, 4);
    if (v != NONE && of(v)->ndim == 3) { int r = reshaped(v, place, 4); drop(v); v = r; }
    if (!whole) v = maybe_view(v, 15);
    if (norm && v != NONE) { int n = normed(v); drop(v); v = n; }
    v = maybe_view(v, norm ? 55 : 30);
    interlude();
    if (turned && v != NONE) { int t = transposed(v, (int[]){ 0, 2, 1, 3 }); drop(v); v = t; }
    return v;
}

static void rope_to_cache(void)
{
    static const int widths[] = { 8, 16, 16, 32, 64, 64, 128 };
    int batch = chance(80) ? 1 : 2, heads = chance(50) ? 1 : between(2, 3), tokens = chance(30) ? 1 : between(2, 16);
    int shape[4] = { batch, heads, tokens, widths[favourite(7)] };
    int place[4] = { shape[0], shape[1], shape[2] + below(8), shape[3] };
    struct region g;
    int cache = shaped(float_dtype(), place, 4), seen = chance(20) ? view_of(cache) : NONE;
    if (cache == NONE || of(cache)->ndim != 4 || of(cache)->shape[2] < shape[2]) return;
    int x = rope_source(cache, shape, chance(60)), r = roped(x, chance(85) ? shape[3] : shape[3] / 2);
    drop(x);
    interlude();
    r = maybe_view(r, 12);
    if (r != NONE && region_for(&g, place, 4, shape)) update("slice_update", cache, r, &g, chance(85));
    drop(r);
    use_cache(cache, r != NONE && is_there(r) ? r : NONE);
    if (seen != NONE && is_there(seen) && chance(50)) note(READ, seen);
}

/* Rows of a cache move, turned, to other rows of it: what is read and what is written overlap. */
static void rope_within_cache(void)
{
    static const int widths[] = { 8, 16, 64 };
    int width = widths[favourite(3)], rows = between(2, 12), room = rows + between(1, 4);
    int shift = between(0, room - rows);
    int cache = fresh(float_dtype(), (int[]){ 1, 1, room, width }, 4, UNIFORM, 0);
    struct region from = { .ndim = 4 }, to;
    for (int i = 0; i < 4; i++) lay_axis(&from, i, i == 2 ? shift : 0, i == 2 ? rows : i == 3 ? width : 1, 1);
    int v = cache == NONE ? NONE : slice_of(cache, &from), n = v != NONE && chance(70) ? normed(v) : v;
    if (n != v) drop(v);
    int r = roped(n, width);
    drop(n);
    if (r != NONE && region_for(&to, (int[]){ 1, 1, room, width }, 4, (int[]){ 1, 1, rows, width }))
        update("slice_update", cache, r, &to, chance(90));
    drop(r);
}

/* ---- a decoding step ---- */

static int turned_at(int x, int at)
{
    if (x == NONE || chance(4)) return roped(x, x == NONE ? 0 : of(x)->shape[3]);
    struct statement s = call_of("fast_rope");
    with_input(&s, "x", x);
    with_number(&s, "dims", of(x)->shape[3]);
    with_truth(&s, "traditional", false);
    with_number(&s, "base", 10000);
    with_number(&s, "scale", 1);
    with_number(&s, "offset", chance(95) ? at : below(20));
    with_input(&s, "freqs", NONE);
    return emit(s);
}

/* What a product left, by heads, or what else has that shape; normalised, turned. at: below 0, as it is. */
static int step_rows(int heads, int width, bool norm, int at)
{
    int flat[3] = { 1, 1, heads * width }, place[4] = { 1, 1, heads, width };
    int v = chance(85) ? fresh(float_dtype(), flat, 3, UNIFORM, 0) : shaped(float_dtype(), place, 4);
    if (v != NONE && of(v)->ndim == 3) { int r = reshaped(v, place, 4); drop(v); v = r; }
    if (norm && at >= 0 && v != NONE && chance(95)) { int n = normed(v); drop(v); v = n; }
    if (chance(6)) interlude();
    if (v != NONE) { int t = transposed(v, (int[]){ 0, 2, 1, 3 }); drop(v); v = t; }
    if (at < 0 || v == NONE) return v;
    int r = turned_at(v, at);
    drop(v);
    return maybe_view(r, 5);
}

/* Writes the rows at `at`, mostly, and sees what is there up to them, or something like it. */
static int cached(int cache, int rows, int at)
{
    const int *shape = of(cache)->shape;
    int one[4] = { 1, shape[1], 1, shape[3] }, all[4] = { 1, shape[1], at + 1, shape[3] };
    struct region to = { .ndim = 4 }, seen = { .ndim = 4 };
    if (rows == NONE || !is_there(cache) || of(rows)->ndim != 4) return NONE;
    for (int i = 0; i < 4; i++) {
        lay_axis(&to, i, i == 2 ? at : 0, one[i], 1);
        lay_axis(&seen, i, 0, all[i], 1);
    }
    if (chance(6)) lay_axis(&to, 2, below(shape[2]), 1, 1);
    if (chance(6)) lay_axis(&seen, 2, at, at + 1, -1);
    update(chance(96) ? "slice_update" : "slice_update_add", cache, rows, &to, chance(92));
    if (chance(5)) interlude();
    return is_there(cache) ? slice_of(cache, &seen) : NONE;
}

static void decoding_step(void)
{
    static const int widths[] = { 8, 16, 64, 64, 128 };
    int kv = between(1, 3), heads = kv * between(1, 4), width = widths[favourite(5)], room = between(2, 24), at = below(room);
    int place[4] = { 1, kv, room, width };
    bool norm = chance(60);
    int keys = fresh(float_dtype(), place, 4, UNIFORM, 0), values = chance(94) ? fresh(float_dtype(), place, 4, UNIFORM, 0) : keys;
    for (int rounds = between(1, 3); rounds-- && at < room && is_there(keys) && is_there(values); at++) {
        int q = step_rows(heads, width, norm, at), k = step_rows(kv, width, norm, at), v = step_rows(kv, width, norm, -1);
        int seen_keys = cached(keys, k, at), seen_values = cached(values, v, at);
        drop(k);
        drop(v);
        if (q == NONE || seen_keys == NONE || seen_values == NONE) return;
        attend(q, seen_keys, seen_values, chance(90) ? "" : "causal");
        drop(q);
        drop(seen_keys);
        drop(seen_values);
    }
}

/* ---- sigmoid(g) * g * u ---- */

static int silu(int gate)
{
    int s = simple("sigmoid", gate);
    s = maybe_view(s, 8);
    if (s == NONE) return NONE;
    interlude();
    int m = multiplied(s, chance(94) ? gate : same_shape_view(gate));
    drop(s);
    return m;
}

static void swiglu(void)
{
    int shape[MOST_DIMS], ndim = chance(40) ? 2 : random_shape(shape);
    if (ndim == 2) shape[0] = between(1, 16), shape[1] = chance(50) ? shape[0] : 8 * between(1, 8);
    int x = shaped(float_dtype(), shape, ndim);
    if (x == NONE) return;
    int gate = chance(50) ? same_shape_view(x) : x, m = silu(gate);
    if (gate != x && chance(70)) drop(gate);
    m = maybe_view(m, 40);
    if (m == NONE) return;
    if (chance(30)) {
        struct region g = random_region(shape, ndim);
        if (chance(60)) region_for(&g, shape, ndim, shape);
        if (!memcmp(g.shape, shape, (size_t)ndim * sizeof *shape)) update("slice_update_prod", x, m, &g, chance(85));
    } else multiplied(m, chance(20) ? same_shape_view(x) : shaped(float_dtype(), shape, ndim));
    drop(m);
}

/* ---- a sum, then its norm ---- */

static void sum_to_norm(void)
{
    int shape[MOST_DIMS], ndim = chance(60) ? 2 : random_shape(shape);
    static const int widths[] = { 8, 16, 32, 64, 128, 128, 256 };
    if (ndim == 2) shape[0] = between(1, 8), shape[1] = widths[favourite(7)];
    if (!ndim) return;
    int a = shaped(float_dtype(), shape, ndim), h = NONE, v = NONE;
    if (a == NONE) return;
    if (chance(50)) {
        struct region g = random_region(shape, ndim);
        int b = shaped(float_dtype(), g.shape, ndim);
        if (b == NONE) return;
        h = update("slice_update_add", a, b, &g, chance(85));
        interlude();
        if (h != NONE) v = chance(75) ? slice_of(h, &g) : view_of(h);
    } else {
        int b = shaped(float_dtype(), shape, ndim);
        if (chance(30)) b = same_shape_view(a);
        if (b == NONE) return;
        h = pair("add", a, b);
        interlude();
        v = h != NONE && chance(35) ? same_shape_view(h) : h;
    }
    int n = v == NONE ? NONE : normed(v);
    if (v != h && v != NONE) drop(v);
    if (h != NONE && h != a && chance(40)) note(FREE, h);
    if (n != NONE && chance(30)) { random_product(n); drop(n); }
}

/* ---- quantized products ---- */

static int rows_for_product(int columns)
{
    int rows = chance(50) ? 1 : chance(70) ? between(2, 8) : between(9, 40);
    return chance(70) ? shaped(float_dtype(), (int[]){ rows, columns }, 2) :
                        shaped(float_dtype(), (int[]){ 1, rows, columns }, 3);
}

static void product_to_sum(void)
{
    int columns = 32 * between(1, 4), x = rows_for_product(columns);
    struct weight w = quantized_weight(float_dtype(), columns, columns);
    if (x == NONE) return;
    int seen = maybe_view(x, 0), source = chance(35) ? same_shape_view(seen) : x, y = product(source, &w);
    if (source != x && chance(60)) drop(source);
    y = maybe_view(y, 15);
    if (y == NONE) return;
    interlude();
    if (chance(45)) {
        struct region g;
        if (region_for(&g, of(x)->shape, of(x)->ndim, of(y)->shape)) update("slice_update_add", x, y, &g, chance(85));
    } else {
        struct statement s = call_of("add");
        int other = chance(50) ? x : shaped(float_dtype(), of(y)->shape, of(y)->ndim);
        bool first = chance(50);
        with_input(&s, "a", first ? y : other);
        with_input(&s, "b", first ? other : y);
        if (chance(30)) emit_in_place(s, other);
        else emit(s);
    }
    drop(y);
}

/* norm, two or more products, silu(first) * second, product, sum: one layer's second half. */
static void feed_forward(void)
{
    int columns = 32 * between(1, 4), inner = 32 * between(1, 4), x = rows_for_product(columns), n;
    struct weight gate = quantized_weight(float_dtype(), inner, columns), up = gate;
    struct weight down = quantized_weight(float_dtype(), columns, inner);
    if (x == NONE) return;
    n = chance(75) ? normed(x) : x;
    struct weight second = quantized_weight(float_dtype(), inner, columns);
    if (second.bits == gate.bits && second.group == gate.group) up = second;
    int seen = chance(20) ? same_shape_view(n) : n, g = n == NONE ? NONE : product(maybe_view(n, 0), &gate);
    int u = seen == NONE || !is_there(seen) ? NONE : product(seen, &up);
    if (n != x) drop(n);
    if (g == NONE || u == NONE) return;
    interlude();
    int m = silu(g);
    drop(g);
    m = maybe_view(m, 15);
    if (m == NONE) return;
    int y = multiplied(m, u);
    drop(m);
    drop(u);
    if (y == NONE || chance(30)) return;
    int d = product(maybe_view(y, 15), &down);
    drop(y);
    if (d != NONE && is_there(x)) {
        int h = chance(40) ? NONE : pair("add", x, d);
        struct region all;
        if (h == NONE && region_for(&all, of(x)->shape, of(x)->ndim, of(d)->shape))
            h = update("slice_update_add", x, d, &all, true);
        drop(d);
        if (h != NONE && chance(50)) normed(h);
    }
}

/* ---- the same place read and written ---- */

/* x[...] = f(x[...] seen another way). */
static void into_itself(void)
{
    int x = any(true);
    if (x == NONE || !of(x)->ndim) return;
    struct region from = random_region(of(x)->shape, of(x)->ndim), to;
    if (!region_for(&to, of(x)->shape, of(x)->ndim, from.shape)) return;
    int v = slice_of(x, &from), seen = chance(25) ? view_of(x) : NONE;
    for (int k = between(0, 3); k > 0 && v != NONE; k--) {
        int w = chance(50) ? simple(chance(50) ? "sigmoid" : "negative", v) : chance(50) ? normed(v) : multiplied(v, v);
        drop(v);
        v = w;
    }
    static const char *const ops[] = { "slice_update", "slice_update_add", "slice_update_prod", "slice_update_max" };
    if (v != NONE) update(ops[below(4)], x, v, &to, chance(85));
    if (v != NONE) drop(v);
    if (seen != NONE && is_there(seen) && chance(30)) note(READ, seen);
}

void random_motif(void)
{
    static void (*const motifs[])(void) = { rope_to_cache, rope_to_cache, rope_within_cache, decoding_step, decoding_step, swiglu, swiglu,
                                            sum_to_norm, sum_to_norm, product_to_sum, product_to_sum,
                                            feed_forward, into_itself };
    motifs[below(sizeof motifs / sizeof *motifs)]();
}
