/* The public encoder: kernels of the caller's, exact barriers (against an oracle over bytes), errors. */
#include "support.h"
#include "shaders/combine_spv.h"
#include "shaders/fill_spv.h"

struct combine_push { uint32_t count, a_shift, b_shift, res_shift; };

/* res = factor * a + b */
static mlxvk_kernel combine_kernel(mlxvk_device d, uint32_t factor)
{
    const uint32_t constants[] = { 64, factor };
    const mlxvk_kernel_desc desc = {
        .name = "combine", .spirv = combine_spv, .spirv_size = sizeof combine_spv, .bindings = 3,
        .push_size = sizeof(struct combine_push), .constants = constants, .constant_count = 2, .threads = { 64 },
    };
    mlxvk_kernel kernel = { NULL };
    OK_DEVICE(mlxvk_kernel_new(&kernel, &desc, d), d);
    return kernel;
}

struct fill_push { uint32_t value, width, height, shift; };

static mlxvk_kernel fill_kernel(mlxvk_device d)
{
    const mlxvk_kernel_desc desc = {
        .name = "fill", .spirv = fill_spv, .spirv_size = sizeof fill_spv, .bindings = 1,
        .push_size = sizeof(struct fill_push), .threads = { 8, 4, 1 },
    };
    mlxvk_kernel kernel = { NULL };
    OK_DEVICE(mlxvk_kernel_new(&kernel, &desc, d), d);
    return kernel;
}

static mlxvk_encoder encoder_of(mlxvk_stream s)
{
    mlxvk_encoder e = { NULL };
    OK(mlxvk_stream_encoder(&e, s), s);
    return e;
}

static void combine(mlxvk_encoder e, mlxvk_kernel kernel, mlxvk_array a, mlxvk_array b, mlxvk_array res, mlxvk_stream s)
{
    struct combine_push push = { .count = (uint32_t)mlxvk_array_size(res) };
    OK(mlxvk_set_kernel(e, kernel), s);
    OK(mlxvk_set_input_array(e, a, 0, &push.a_shift), s);
    OK(mlxvk_set_input_array(e, b, 1, &push.b_shift), s);
    OK(mlxvk_set_output_array(e, res, 2, &push.res_shift), s);
    OK(mlxvk_set_bytes(e, &push, sizeof push, 0), s);
    OK(mlxvk_dispatch_threads(e, push.count, 1, 1), s);
}

static mlxvk_array empty_ints(int count, mlxvk_stream s)
{
    mlxvk_array array = { NULL };
    OK(mlxvk_array_empty(&array, &count, 1, MLXVK_INT32, s), s);
    return array;
}

/* ---- what a kernel does ---- */

static void test_custom_kernel(void **state)
{
    (void)state;
    enum { N = 1000 };
    int32_t want[N];
    mlxvk_kernel kernel = combine_kernel(device, 3);
    mlxvk_array a = counting(device, N), b = counting(device, N), res = empty_ints(N, stream);
    combine(encoder_of(stream), kernel, a, b, res, stream);
    for (int i = 0; i < N; i++) want[i] = 4 * i;
    expect_ints(res, want, N, stream);
    mlxvk_array_free(a);
    mlxvk_array_free(b);
    mlxvk_array_free(res);
    mlxvk_kernel_free(kernel);
}

/* Arrays made from host data meanwhile, on whose default stream the dispatch is set up, leave it alone. */
static void test_uploads_while_setting_up(void **state)
{
    (void)state;
    enum { N = 1000 };
    int32_t want[N];
    for (int staging = 0; staging < 2; staging++) {
        mlxvk_device d = open_device(staging ? "MLX_VK_FORCE_STAGING=1" : NULL);
        mlxvk_stream s = { NULL };
        mlxvk_kernel kernel = combine_kernel(d, 3);
        OK_DEVICE(mlxvk_get_default_stream(&s, d), d);
        mlxvk_array a = counting(d, N), b = counting(d, N), c, res = empty_ints(N, s);
        struct combine_push push = { .count = N };
        mlxvk_encoder e = encoder_of(s);
        OK(mlxvk_set_kernel(e, kernel), s);
        OK(mlxvk_set_input_array(e, a, 0, &push.a_shift), s);
        c = counting(d, 2 * N);
        OK(mlxvk_set_input_array(e, b, 1, &push.b_shift), s);
        OK(mlxvk_set_output_array(e, res, 2, &push.res_shift), s);
        OK(mlxvk_set_bytes(e, &push, sizeof push, 0), s);
        mlxvk_array_free(c);
        c = counting(d, 3 * N);
        OK(mlxvk_dispatch_threads(e, push.count, 1, 1), s);
        for (int i = 0; i < N; i++) want[i] = 4 * i;
        expect_ints(res, want, N, s);
        mlxvk_array_free(a);
        mlxvk_array_free(b);
        mlxvk_array_free(c);
        mlxvk_array_free(res);
        mlxvk_kernel_free(kernel);
        mlxvk_stream_free(s);
        mlxvk_device_free(d);
    }
}

/* Operations before and after a kernel are ordered with it. */
static void test_kernel_among_operations(void **state)
{
    (void)state;
    enum { N = 300 };
    int32_t want[N];
    mlxvk_kernel kernel = combine_kernel(device, 2);
    mlxvk_array a = counting(device, N), doubled = { NULL }, res = empty_ints(N, stream), after = { NULL };
    OK(mlxvk_add(&doubled, a, a, stream), stream);
    combine(encoder_of(stream), kernel, doubled, a, res, stream);
    OK(mlxvk_negative(&after, res, stream), stream);
    for (int i = 0; i < N; i++) want[i] = -5 * i;
    expect_ints(after, want, N, stream);
    mlxvk_array_free(a);
    mlxvk_array_free(doubled);
    mlxvk_array_free(res);
    mlxvk_array_free(after);
    mlxvk_kernel_free(kernel);
}

/* What another stream has recorded with an array comes before what writes it here, bound or by declaration. */
static void test_read_by_another_stream(void **state)
{
    (void)state;
    enum { N = 300 };
    int32_t twice[N], want[N];
    mlxvk_stream other = open_stream(device);
    mlxvk_kernel kernel = combine_kernel(device, 3);
    mlxvk_array a = counting(device, N);
    for (int i = 0; i < N; i++) { twice[i] = 2 * i; want[i] = 4 * i; }
    for (int declared = 0; declared < 2; declared++) {
        mlxvk_array x = counting(device, N), y = { NULL }, z = { NULL };
        mlxvk_buffer buffer = { NULL };
        size_t offset = 0;
        struct combine_push push = { .count = N };
        OK(mlxvk_array_buffer(&buffer, &offset, x), stream);
        OK(mlxvk_negative(&z, x, stream), stream);
        mlxvk_encoder e = encoder_of(stream);        /* z is not submitted yet: that is done for the other stream */
        OK(mlxvk_subtract(&y, x, z, other), other);
        OK(mlxvk_set_kernel(e, kernel), stream);
        OK(mlxvk_set_input_array(e, a, 0, &push.a_shift), stream);
        OK(mlxvk_set_input_array(e, a, 1, &push.b_shift), stream);
        if (declared) {
            OK(mlxvk_register_output_array(e, x), stream);
            OK(mlxvk_set_buffer(e, buffer, offset, sizeof twice, 2), stream);
        } else OK(mlxvk_set_output_array(e, x, 2, &push.res_shift), stream);
        OK(mlxvk_set_bytes(e, &push, sizeof push, 0), stream);
        OK(mlxvk_dispatch_threads(e, N, 1, 1), stream);
        expect_ints(x, want, N, stream);
        expect_ints(y, twice, N, other);
        mlxvk_array_free(x);
        mlxvk_array_free(y);
        mlxvk_array_free(z);
        mlxvk_buffer_free(buffer);
    }
    mlxvk_array_free(a);
    mlxvk_kernel_free(kernel);
    mlxvk_stream_free(other);
}

/* Views that start anywhere: the shift leads to the first element. */
static void test_shifts(void **state)
{
    (void)state;
    enum { N = 500, USED = 100 };
    mlxvk_kernel kernel = combine_kernel(device, 1);
    mlxvk_array base = counting(device, N);
    for (int start = 0; start < 130; start += 13) {
        int32_t want[USED];
        mlxvk_array a = { NULL }, res = empty_ints(USED, stream);
        OK(mlxvk_slice(&a, base, (int[]){ start }, 1, (int[]){ start + USED }, 1, (int[]){ 1 }, 1, stream), stream);
        combine(encoder_of(stream), kernel, a, a, res, stream);
        for (int i = 0; i < USED; i++) want[i] = 2 * (start + i);
        expect_ints(res, want, USED, stream);
        mlxvk_array_free(a);
        mlxvk_array_free(res);
    }
    mlxvk_array_free(base);
    mlxvk_kernel_free(kernel);
}

static void fill_grid(mlxvk_kernel kernel, mlxvk_array res, const uint32_t grid[3], bool in_threads)
{
    mlxvk_encoder e = encoder_of(stream);
    struct fill_push push = { 100, grid[0], grid[1], 0 };
    OK(mlxvk_set_kernel(e, kernel), stream);
    OK(mlxvk_set_output_array(e, res, 0, &push.shift), stream);
    OK(mlxvk_set_bytes(e, &push, 8, 0), stream);               /* in two parts */
    OK(mlxvk_set_bytes(e, (const char *)&push + 8, 8, 8), stream);
    if (in_threads) OK(mlxvk_dispatch_threads(e, grid[0], grid[1], grid[2]), stream);
    else OK(mlxvk_dispatch_threadgroups(e, (grid[0] + 7) / 8, (grid[1] + 3) / 4, grid[2]), stream);
}

/* Grids in threads are rounded up to whole groups. */
static void test_grids(void **state)
{
    (void)state;
    static const uint32_t grids[][3] = { { 1, 1, 1 }, { 8, 4, 1 }, { 9, 5, 2 }, { 100, 3, 3 } };
    mlxvk_kernel kernel = fill_kernel(device);
    for (size_t g = 0; g < 2 * COUNT(grids); g++) {
        const uint32_t *grid = grids[g / 2];
        int count = (int)(grid[0] * grid[1] * grid[2]);
        int32_t want[1024];
        mlxvk_array res = empty_ints(count, stream);
        fill_grid(kernel, res, grid, g % 2);
        for (int i = 0; i < count; i++) want[i] = 100 + i % (int)grid[0];
        expect_ints(res, want, (size_t)count, stream);
        mlxvk_array_free(res);
    }
    mlxvk_kernel_free(kernel);
}

/* What a caller's kernel writes beyond what is bound goes nowhere, however far: see mlxvk_kernel_desc. */
static void test_beyond_what_is_bound(void **state)
{
    (void)state;
    static const uint32_t beyond[] = { 64, 1 << 16, 1 << 24, 1 << 29 };
    mlxvk_kernel kernel = fill_kernel(device);
    mlxvk_array beside = empty_ints(4096, stream), res = empty_ints(64, stream);
    int32_t want[4096];
    fill_grid(kernel, beside, (const uint32_t[]){ 4096, 1, 1 }, true);
    for (size_t i = 0; i < COUNT(beyond); i++) {
        struct fill_push push = { 7, 64, 1, 0 };
        mlxvk_encoder e = encoder_of(stream);
        OK(mlxvk_set_kernel(e, kernel), stream);
        OK(mlxvk_set_output_array(e, res, 0, &push.shift), stream);
        push.shift += beyond[i] + 1024;                        /* a binding may be as much longer than its array */
        OK(mlxvk_set_bytes(e, &push, sizeof push, 0), stream);
        OK(mlxvk_dispatch_threads(e, 64, 1, 1), stream);
    }
    for (int i = 0; i < 4096; i++) want[i] = 100 + i;
    expect_ints(beside, want, 4096, stream);
    fill_grid(kernel, res, (const uint32_t[]){ 64, 1, 1 }, true);
    expect_ints(res, want, 64, stream);
    mlxvk_array_free(beside);
    mlxvk_array_free(res);
    mlxvk_kernel_free(kernel);
}

static void test_set_buffer(void **state)
{
    (void)state;
    enum { N = 128 };
    int32_t want[N];
    mlxvk_buffer buffer = { NULL };
    mlxvk_array view = { NULL };
    mlxvk_kernel kernel = fill_kernel(device);
    struct fill_push push = { 7, N, 1, 0 };
    OK_DEVICE(mlxvk_buffer_new(&buffer, 4096, device), device);
    mlxvk_encoder e = encoder_of(stream);
    OK(mlxvk_set_kernel(e, kernel), stream);
    OK(mlxvk_set_buffer(e, buffer, 1024, N * 4, 0), stream);
    OK(mlxvk_set_bytes(e, &push, sizeof push, 0), stream);
    OK(mlxvk_dispatch_threads(e, N, 1, 1), stream);
    OK_DEVICE(mlxvk_array_new_buffer(&view, buffer, (int[]){ N }, NULL, 1, MLXVK_INT32, 1024), device);
    for (int i = 0; i < N; i++) want[i] = 7 + i;
    expect_ints(view, want, N, stream);
    mlxvk_array_free(view);
    mlxvk_buffer_free(buffer);
    mlxvk_kernel_free(kernel);
}

/* ---- barriers against an oracle ---- */

enum { BUFFERS = 4, BUFFER_BYTES = 8192, STEP = 256, CHAIN = 300 };

/* For each byte: what dispatches since the last barrier did to it. */
struct oracle { bool read[BUFFERS][BUFFER_BYTES], written[BUFFERS][BUFFER_BYTES]; };

struct range { int buffer, begin, end; };                      /* bytes */

static bool touched(bool bytes[BUFFERS][BUFFER_BYTES], struct range r)
{
    for (int i = r.begin; i < r.end; i++)
        if (bytes[r.buffer][i]) return true;
    return false;
}

static void touch(bool bytes[BUFFERS][BUFFER_BYTES], struct range r)
{
    for (int i = r.begin; i < r.end; i++) bytes[r.buffer][i] = true;
}

/* Whether a dispatch of these must wait for an earlier one. Notes what it does. */
static bool must_wait(struct oracle *o, const struct range in[2], struct range out)
{
    bool wait = touched(o->written, in[0]) || touched(o->written, in[1]) || touched(o->written, out) ||
                touched(o->read, out);
    if (wait) memset(o, 0, sizeof *o);
    touch(o->read, in[0]);
    touch(o->read, in[1]);
    touch(o->written, out);
    return wait;
}

struct world {
    mlxvk_device device;
    mlxvk_stream stream;
    mlxvk_kernel kernel;
    mlxvk_buffer buffers[BUFFERS];
    uint32_t memory[BUFFERS][BUFFER_BYTES / 4];                /* what the host expects in them */
};

static struct world *world_new(const char *gates)
{
    struct world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    w->device = open_device(gates);
    w->stream = open_stream(w->device);
    w->kernel = combine_kernel(w->device, 3);
    mlxvk_kernel fill = fill_kernel(w->device);
    for (int i = 0; i < BUFFERS; i++) {
        struct fill_push push = { (uint32_t)i * 1000, BUFFER_BYTES / 4, 1, 0 };
        OK_DEVICE(mlxvk_buffer_new(&w->buffers[i], BUFFER_BYTES, w->device), w->device);
        mlxvk_encoder e = encoder_of(w->stream);
        OK(mlxvk_set_kernel(e, fill), w->stream);
        OK(mlxvk_set_buffer(e, w->buffers[i], 0, BUFFER_BYTES, 0), w->stream);
        OK(mlxvk_set_bytes(e, &push, sizeof push, 0), w->stream);
        OK(mlxvk_dispatch_threads(e, BUFFER_BYTES / 4, 1, 1), w->stream);
        for (uint32_t j = 0; j < BUFFER_BYTES / 4; j++) w->memory[i][j] = (uint32_t)i * 1000 + j;
    }
    OK(mlxvk_synchronize(w->stream), w->stream);
    mlxvk_kernel_free(fill);
    return w;
}

static void world_free(struct world *w)
{
    for (int i = 0; i < BUFFERS; i++) mlxvk_buffer_free(w->buffers[i]);
    mlxvk_kernel_free(w->kernel);
    mlxvk_stream_free(w->stream);
    mlxvk_device_free(w->device);
    free(w);
}

static mlxvk_array array_over(struct world *w, struct range r)
{
    mlxvk_array array = { NULL };
    int count = (r.end - r.begin) / 4;
    OK_DEVICE(mlxvk_array_new_buffer(&array, w->buffers[r.buffer], &count, NULL, 1, MLXVK_INT32, (size_t)r.begin),
              w->device);
    return array;
}

static bool overlap(struct range a, struct range b)
{
    return a.buffer == b.buffer && a.begin < b.end && b.begin < a.end;
}

static struct range random_range_of(struct rng *r, int bytes, int step)
{
    int begin = random_int(r, 0, (BUFFER_BYTES - bytes) / step) * step;
    return (struct range){ random_int(r, 0, BUFFERS - 1), begin, begin + bytes };
}

/* Two inputs and an output that does not overlap them. */
static void random_operands(struct rng *r, struct range in[2], struct range *out, int step)
{
    int bytes = random_int(r, 1, 4) * STEP;
    do {
        in[0] = random_range_of(r, bytes, step);
        in[1] = random_range_of(r, bytes, step);
        *out = random_range_of(r, bytes, step);
    } while (overlap(in[0], *out) || overlap(in[1], *out));
}

static void run_combine(struct world *w, const struct range in[2], struct range out)
{
    mlxvk_array a = array_over(w, in[0]), b = array_over(w, in[1]), res = array_over(w, out);
    combine(encoder_of(w->stream), w->kernel, a, b, res, w->stream);
    mlxvk_array_free(a);
    mlxvk_array_free(b);
    mlxvk_array_free(res);
    for (int i = 0; i < (out.end - out.begin) / 4; i++)
        w->memory[out.buffer][out.begin / 4 + i] =
            3 * w->memory[in[0].buffer][in[0].begin / 4 + i] + w->memory[in[1].buffer][in[1].begin / 4 + i];
}

static void check_memory(struct world *w)
{
    for (int i = 0; i < BUFFERS; i++) {
        mlxvk_array whole = array_over(w, (struct range){ i, 0, BUFFER_BYTES });
        expect_ints(whole, (const int32_t *)w->memory[i], BUFFER_BYTES / 4, w->stream);
        mlxvk_array_free(whole);
    }
}

struct tally { int needed, inserted, missing, needless; };

/* Runs a chain of random dispatches and compares the barriers before each with the oracle's. */
static struct tally run_chain(struct world *w, uint64_t seed, int step)
{
    struct rng r = { seed };
    struct tally tally = { 0 };
    struct oracle *oracle = calloc(1, sizeof *oracle);
    assert_non_null(oracle);
    for (int i = 0; i < CHAIN; i++) {
        struct range in[2], out;
        random_operands(&r, in, &out, step);
        uint64_t before = stats_of(w->device).barriers;
        run_combine(w, in, out);
        uint64_t inserted = stats_of(w->device).barriers - before;
        bool needed = must_wait(oracle, in, out);
        tally.needed += needed;
        tally.inserted += inserted > 0;
        tally.missing += needed && !inserted;
        tally.needless += inserted > (i ? needed : 1);         /* the first may follow the chain before */
        if (!inserted || needed) continue;
        memset(oracle, 0, sizeof *oracle);                     /* a needless one orders what follows all the same */
        must_wait(oracle, in, out);
    }
    free(oracle);
    return tally;
}

#define ONE_BUFFER "MLX_VK_MAX_OPS_PER_BUFFER=1000000 MLX_VK_MAX_MB_PER_BUFFER=1000000"

/* Ranges at multiples of the alignment: barriers exactly where bytes say so. */
static void test_barriers_exact(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct world *w = world_new(ONE_BUFFER);
        struct tally t = run_chain(w, seed, STEP);
        assert_int_equal(t.missing, 0);
        assert_int_equal(t.needless, 0);
        assert_true(t.needed > CHAIN / 10 && t.needed < CHAIN * 9 / 10);
        check_memory(w);
        world_free(w);
    }
}

/* Ranges at any element: none is missing. */
static void test_barriers_unaligned(void **state)
{
    (void)state;
    struct world *w = world_new(ONE_BUFFER);
    struct tally t = run_chain(w, 5, 4);
    assert_int_equal(t.missing, 0);
    check_memory(w);
    world_free(w);
}

/* The proof that these tests notice a removed barrier: with barriers switched off they must find some missing. */
static void test_oracle_notices(void **state)
{
    (void)state;
    skip_if_validating();
    struct world *w = world_new(ONE_BUFFER " MLX_VK_TEST_NO_BARRIERS=1");
    struct tally t = run_chain(w, 1, STEP);
    assert_int_equal(t.inserted, 0);
    assert_true(t.needed > CHAIN / 10);
    assert_int_equal(t.missing, t.needed);
    world_free(w);
}

/* Chains that are committed after every few dispatches give the same memory. */
static void test_chain_across_submissions(void **state)
{
    (void)state;
    struct world *w = world_new("MLX_VK_MAX_OPS_PER_BUFFER=3 MLX_VK_MAX_INFLIGHT_SEQUENCES=2");
    uint64_t before = stats_of(w->device).submissions;
    run_chain(w, 9, 4);
    check_memory(w);
    assert_true(stats_of(w->device).submissions - before >= CHAIN / 4);
    world_free(w);
}

static uint64_t barriers_of(struct world *w, struct range a, struct range b, struct range res)
{
    uint64_t before = stats_of(w->device).barriers;
    run_combine(w, (struct range[]){ a, b }, res);
    return stats_of(w->device).barriers - before;
}

/* Each kind of hazard by itself, and reads beside reads. */
static void test_kinds_of_hazard(void **state)
{
    (void)state;
    struct world *w = world_new(ONE_BUFFER);
    const struct range a = { 0, 0, 256 }, b = { 0, 256, 512 }, c = { 0, 512, 768 };
    const struct range d = { 1, 0, 256 }, f = { 2, 0, 256 };
    barriers_of(w, a, b, c);
    assert_int_equal(barriers_of(w, a, b, d), 0);              /* read after read */
    assert_int_equal(barriers_of(w, c, b, f), 1);              /* read after write */
    assert_int_equal(barriers_of(w, a, b, d), 0);              /* d was written before the barrier */
    assert_int_equal(barriers_of(w, a, b, d), 1);              /* write after write */
    assert_int_equal(barriers_of(w, b, f, a), 1);              /* write after read, of a */
    check_memory(w);
    world_free(w);
}

static void test_explicit_barrier(void **state)
{
    (void)state;
    struct world *w = world_new(ONE_BUFFER);
    const struct range a = { 0, 0, 256 }, b = { 0, 256, 512 }, c = { 1, 0, 256 }, d = { 2, 0, 256 };
    barriers_of(w, a, b, c);
    uint64_t before = stats_of(w->device).barriers;
    OK(mlxvk_encoder_barrier(encoder_of(w->stream)), w->stream);
    barriers_of(w, c, c, d);
    assert_int_equal(stats_of(w->device).barriers - before, 1);       /* not a second one for the hazard */
    check_memory(w);
    world_free(w);
}

/* Inside a concurrent scope the caller vouches; around it hazards count. */
static void test_concurrent_scope(void **state)
{
    (void)state;
    skip_if_validating();
    struct world *w = world_new(ONE_BUFFER);
    const struct range a = { 0, 0, 256 }, b = { 0, 256, 512 }, c = { 1, 0, 256 };
    const struct range d = { 1, 256, 512 }, f = { 2, 0, 256 };
    barriers_of(w, a, b, c);
    OK(mlxvk_start_concurrent(encoder_of(w->stream)), w->stream);
    assert_int_equal(barriers_of(w, c, b, d), 1);              /* c is from before the scope */
    assert_int_equal(barriers_of(w, a, b, d), 0);              /* d twice, inside */
    assert_int_equal(barriers_of(w, d, b, f), 0);
    OK(mlxvk_end_concurrent(encoder_of(w->stream)), w->stream);
    assert_int_equal(barriers_of(w, d, b, c), 1);
    OK(mlxvk_synchronize(w->stream), w->stream);
    world_free(w);
}

/* A write that is only declared is a hazard for the next reader. */
static void test_register_output(void **state)
{
    (void)state;
    struct world *w = world_new(ONE_BUFFER);
    const struct range a = { 0, 0, 256 }, b = { 0, 256, 512 }, c = { 1, 0, 256 }, d = { 2, 0, 256 }, f = { 3, 0, 256 };
    mlxvk_array declared = array_over(w, f), in = array_over(w, a), other = array_over(w, b), out = array_over(w, c);
    mlxvk_encoder e = encoder_of(w->stream);
    struct combine_push push = { 64, 0, 0, 0 };
    OK(mlxvk_set_kernel(e, w->kernel), w->stream);
    OK(mlxvk_set_input_array(e, in, 0, &push.a_shift), w->stream);
    OK(mlxvk_set_input_array(e, other, 1, &push.b_shift), w->stream);
    OK(mlxvk_set_output_array(e, out, 2, &push.res_shift), w->stream);
    OK(mlxvk_register_output_array(e, declared), w->stream);
    OK(mlxvk_set_bytes(e, &push, sizeof push, 0), w->stream);
    OK(mlxvk_dispatch_threadgroups(e, 1, 1, 1), w->stream);
    assert_int_equal(barriers_of(w, a, b, d), 0);
    assert_int_equal(barriers_of(w, a, f, d), 1);
    const mlxvk_array all[] = { declared, in, other, out };
    for (size_t i = 0; i < COUNT(all); i++) mlxvk_array_free(all[i]);
    world_free(w);
}

/* ---- errors ---- */

static void test_bad_kernels(void **state)
{
    (void)state;
    static const uint32_t not_spirv[] = { 1, 2, 3, 4, 5 };
    const mlxvk_kernel_desc good = { .name = "bad", .spirv = fill_spv, .spirv_size = sizeof fill_spv, .bindings = 1 };
    mlxvk_kernel_desc bad[] = { good, good, good, good, good };
    bad[0].spirv = NULL;
    bad[1].spirv = not_spirv, bad[1].spirv_size = sizeof not_spirv;
    bad[2].spirv_size = 6;
    bad[3].push_size = 100000;
    bad[4].threads[0] = 1u << 20;
    for (size_t i = 0; i < COUNT(bad); i++) {
        mlxvk_kernel kernel = { NULL };
        mlxvk_error error = { 0 };
        int code = mlxvk_kernel_new(&kernel, &bad[i], device);
        if (!code) print_error("bad kernel %zu was taken\n", i);
        assert_int_not_equal(code, 0);
        assert_null(kernel.ctx);
        mlxvk_device_error(device, &error);
        assert_int_equal(error.code, code);
        assert_true(error.text[0]);
    }
    assert_int_equal(mlxvk_kernel_free((mlxvk_kernel){ NULL }), 0);
}

/* What a call refuses leaves the encoder without a kernel: start again with set_kernel. */
static void test_misuse(void **state)
{
    (void)state;
    mlxvk_kernel kernel = fill_kernel(device), three = combine_kernel(device, 1);
    mlxvk_array array = counting(device, 64);
    uint32_t value = 0;
    mlxvk_encoder e = encoder_of(stream);
    REFUSED(mlxvk_dispatch_threads(e, 1, 1, 1), MLXVK_ERROR_ARGUMENT, stream, "kernel");
    REFUSED(mlxvk_set_kernel(e, (mlxvk_kernel){ NULL }), MLXVK_ERROR_ARGUMENT, stream, "set_kernel");
    OK(mlxvk_set_kernel(e, kernel), stream);
    REFUSED(mlxvk_dispatch_threads(e, 1, 1, 1), MLXVK_ERROR_ARGUMENT, stream, "bound");
    OK(mlxvk_set_kernel(e, three), stream);
    OK(mlxvk_set_output_array(e, array, 2, NULL), stream);
    REFUSED(mlxvk_dispatch_threads(e, 1, 1, 1), MLXVK_ERROR_ARGUMENT, stream, "bound");       /* 0 and 1 are not */
    REFUSED(mlxvk_set_input_array(e, array, 1000, &value), MLXVK_ERROR_ARGUMENT, stream, "1000");
    REFUSED(mlxvk_set_input_array(e, (mlxvk_array){ NULL }, 0, &value), MLXVK_ERROR_ARGUMENT, stream, "array");
    assert_int_not_equal(mlxvk_set_bytes(e, &value, 4, 126), 0);
    assert_int_not_equal(mlxvk_set_bytes(e, NULL, 4, 0), 0);
    OK(mlxvk_set_kernel(e, kernel), stream);
    OK(mlxvk_set_output_array(e, array, 0, NULL), stream);
    REFUSED(mlxvk_dispatch_threadgroups(e, UINT32_MAX, 1, 1), MLXVK_ERROR_LIMIT, stream, "fill", "limit");
    for (int i = 0; i < 31; i++) OK(mlxvk_register_output_array(e, array), stream);
    REFUSED(mlxvk_register_output_array(e, array), MLXVK_ERROR_LIMIT, stream, "31");           /* not forgotten in silence */
    assert_int_not_equal(mlxvk_set_kernel((mlxvk_encoder){ NULL }, kernel), 0);
    mlxvk_array_free(array);
    mlxvk_kernel_free(kernel);
    mlxvk_kernel_free(three);
    test_custom_kernel(NULL);                                  /* and everything still works */
}

/* Operations do not run with what a caller of the encoder set up and left: bytes, arrays, a scope without barriers. */
static void test_left_half_way(void **state)
{
    (void)state;
    enum { N = 70 };
    int32_t want[N];
    const uint32_t garbage[32] = { 1u << 30, 1u << 30, 1u << 30 };
    mlxvk_array a = counting(device, N), gone = counting(device, N), sum = { NULL };
    mlxvk_encoder e = encoder_of(stream);
    OK(mlxvk_start_concurrent(e), stream);
    OK(mlxvk_set_bytes(e, garbage, sizeof garbage, 0), stream);
    for (uint32_t i = 0; i < 16; i++) OK(mlxvk_set_output_array(e, gone, i, NULL), stream);
    mlxvk_array_free(gone);
    mlxvk_array_set(&sum, a);
    for (int i = 0; i < 10; i++) {
        OK(mlxvk_add(&sum, sum, a, stream), stream);
        OK(mlxvk_finalize(stream), stream);          /* no chain of additions */
    }
    for (int i = 0; i < N; i++) want[i] = 11 * i;
    expect_ints(sum, want, N, stream);
    mlxvk_array_free(a);
    mlxvk_array_free(sum);
    test_custom_kernel(NULL);
}

/* Between what is bound and the dispatch: the stream is submitted as another one wants its results, arrays are freed and their
 * memory is wanted by others, kernels of others are freed. The dispatch is right, and who reads its result waits for it. */
static void test_set_up_slowly(void **state)
{
    (void)state;
    enum { N = 5000 };
    static int32_t want[N], minus[N];
    struct combine_push push = { .count = N };
    mlxvk_stream other = open_stream(device);
    mlxvk_kernel kernel = combine_kernel(device, 3), spare = combine_kernel(device, 2);
    mlxvk_array a = counting(device, N), b = { NULL }, before = empty_ints(N, stream), res = empty_ints(N, stream), copy = { NULL }, after = { NULL };
    mlxvk_array others[8] = { { NULL } };
    OK(mlxvk_add(&b, a, a, stream), stream);
    combine(encoder_of(stream), kernel, a, b, before, stream);
    mlxvk_encoder e = encoder_of(stream);
    OK(mlxvk_set_kernel(e, kernel), stream);
    OK(mlxvk_set_input_array(e, a, 0, &push.a_shift), stream);
    OK(mlxvk_set_input_array(e, b, 1, &push.b_shift), stream);
    OK(mlxvk_set_output_array(e, res, 2, &push.res_shift), stream);
    mlxvk_array_free(a);
    mlxvk_array_free(b);
    OK(mlxvk_negative(&copy, before, other), other);
    for (int i = 0; i < N; i++) { want[i] = 5 * i; minus[i] = -want[i]; }
    expect_ints(copy, minus, N, other);
    mlxvk_kernel_free(spare);
    for (int i = 0; i < 8; i++) OK(mlxvk_negative(&others[i], copy, other), other);
    OK(mlxvk_synchronize(other), other);
    OK(mlxvk_set_bytes(e, &push, sizeof push, 0), stream);
    OK(mlxvk_dispatch_threads(e, N, 1, 1), stream);
    OK(mlxvk_negative(&after, res, other), other);
    expect_ints(after, minus, N, other);
    expect_ints(res, want, N, stream);
    for (int i = 0; i < 8; i++) mlxvk_array_free(others[i]);
    mlxvk_array_free(before);
    mlxvk_array_free(res);
    mlxvk_array_free(copy);
    e = encoder_of(other);
    OK(mlxvk_set_kernel(e, kernel), other);
    OK(mlxvk_set_output_array(e, after, 2, NULL), other);      /* and left */
    mlxvk_array_free(after);
    mlxvk_stream_free(other);
    mlxvk_kernel_free(kernel);
}

/* Arrays and buffers of another device, and more bytes than one binding reaches. */
static void test_foreign(void **state)
{
    (void)state;
    struct setting other = start("MLX_VK_MAX_BINDING_RANGE=1024");
    mlxvk_array array = counting(other.device, 64);
    mlxvk_buffer buffer = { NULL };
    mlxvk_encoder e = encoder_of(stream);
    OK_DEVICE(mlxvk_buffer_new(&buffer, 1 << 16, other.device), other.device);
    REFUSED(mlxvk_set_input_array(e, array, 0, NULL), MLXVK_ERROR_ARGUMENT, stream, "device");
    REFUSED(mlxvk_register_output_array(e, array), MLXVK_ERROR_ARGUMENT, stream, "device");
    REFUSED(mlxvk_set_buffer(e, buffer, 0, 64, 0), MLXVK_ERROR_ARGUMENT, stream, "set_buffer");
    e = encoder_of(other.stream);
    REFUSED(mlxvk_set_buffer(e, buffer, 0, 1 << 15, 0), MLXVK_ERROR_LIMIT, other.stream, "32768", "1024");
    REFUSED(mlxvk_set_buffer(e, buffer, SIZE_MAX - 3, 64, 0), MLXVK_ERROR_ARGUMENT, other.stream, "set_buffer");
    mlxvk_array_free(array);
    mlxvk_buffer_free(buffer);
    finish(&other);
}

/* Modules that a driver must not see: another entry point, more bindings than were said, cut off, workgroups too large. */
static void test_wrong_modules(void **state)
{
    (void)state;
    uint32_t words[COUNT(combine_spv)];
    mlxvk_kernel_desc desc = { .name = "wrong", .spirv = words, .spirv_size = sizeof words, .bindings = 3 };
    mlxvk_kernel kernel = { NULL };
    mlxvk_error error;
    memcpy(words, combine_spv, sizeof words);
    OK_DEVICE(mlxvk_kernel_new(&kernel, &desc, device), device);
    mlxvk_kernel_free(kernel);
    kernel.ctx = NULL;
    desc.bindings = 2;
    assert_int_equal(mlxvk_kernel_new(&kernel, &desc, device), MLXVK_ERROR_ARGUMENT);
    OK_DEVICE(mlxvk_device_error(device, &error), device);
    assert_non_null(strstr(error.text, "bindings"));
    desc.bindings = 3;
    words[COUNT(words) - 1] += 1u << 16;             /* a last instruction that goes on behind the end */
    assert_int_equal(mlxvk_kernel_new(&kernel, &desc, device), MLXVK_ERROR_ARGUMENT);
    words[COUNT(words) - 1] -= 1u << 16;
    desc.threads[0] = desc.threads[1] = 1u << 31;
    desc.threads[2] = 4;                             /* 2^64 in all */
    assert_int_equal(mlxvk_kernel_new(&kernel, &desc, device), MLXVK_ERROR_LIMIT);
    memset(desc.threads, 0, sizeof desc.threads);
    for (size_t i = 5; i < COUNT(words); i += words[i] >> 16)
        if ((words[i] & 0xffff) == 15) words[i + 3] = 0x6e69616e;                  /* "nain" */
    assert_int_equal(mlxvk_kernel_new(&kernel, &desc, device), MLXVK_ERROR_ARGUMENT);
    OK_DEVICE(mlxvk_device_error(device, &error), device);
    assert_non_null(strstr(error.text, "main"));
    assert_null(kernel.ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_custom_kernel), cmocka_unit_test(test_uploads_while_setting_up),
        cmocka_unit_test(test_kernel_among_operations), cmocka_unit_test(test_read_by_another_stream),
        cmocka_unit_test(test_shifts), cmocka_unit_test(test_grids), cmocka_unit_test(test_beyond_what_is_bound),
        cmocka_unit_test(test_set_buffer),
        cmocka_unit_test(test_barriers_exact), cmocka_unit_test(test_barriers_unaligned),
        cmocka_unit_test(test_oracle_notices), cmocka_unit_test(test_chain_across_submissions),
        cmocka_unit_test(test_kinds_of_hazard), cmocka_unit_test(test_explicit_barrier),
        cmocka_unit_test(test_concurrent_scope), cmocka_unit_test(test_register_output),
        cmocka_unit_test(test_bad_kernels), cmocka_unit_test(test_misuse), cmocka_unit_test(test_left_half_way), cmocka_unit_test(test_set_up_slowly),
        cmocka_unit_test(test_foreign), cmocka_unit_test(test_wrong_modules),
    };
    return run_group("encoder", tests, set_up, tear_down);
}
