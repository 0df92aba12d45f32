/* The cases of bench_cliffs (sizes, layouts, offsets, dtypes, batches that lie beside each other, from which kernels and ways are
 * chosen) give the same values by the ways of a CPU driver and by those of a GPU: the same driver twice, which once says that it
 * is a discrete GPU. Where the device is none of the two, both are its own ways.
 *
 *     build/unit/test_neighbours [STEP]                each so manieth case (9); 1: all, in a minute or two */
#include "support_vulkan.h"
#include "bench/support_cliffs.h"
#include "numbers.h"

#include <math.h>
#include <string.h>

enum { SIDES = 2, POOL = 1 << 22, SEEN = 2048, DTYPES = MLXVK_COMPLEX64 + 1 };
static struct side {
    mlxvk_device device;
    mlxvk_stream stream;
    mlxvk_array pool[DTYPES], x[CLIFF_OPERANDS];
} sides[SIDES], *side;
static size_t used;                                    /* elements of the pools that a case has */
static uint64_t state;
static unsigned met, compared, step = 9;
static struct { const struct cliff_family *family; int p[CLIFF_PARAMS]; } seen[SEEN];

static bool is_whole(mlxvk_dtype t) { return t != MLXVK_FLOAT32 && t != MLXVK_FLOAT16 && t != MLXVK_BFLOAT16 && t != MLXVK_COMPLEX64; }

/* The same random elements on both sides, which the first one makes. */
static mlxvk_array pool_of(mlxvk_dtype as)
{
    const struct side *first = &sides[0];
    mlxvk_array none = { NULL }, *a = sides[0].pool;
    int n = POOL;
    if (!a[as].ctx) {
        size_t bytes;
        void *data;
        if (is_whole(as)) OK(mlxvk_random_bits(&a[as], &n, 1, (int)mlxvk_dtype_size(as), none, first->stream), first->stream);
        else OK(mlxvk_random_normal(&a[as], &n, 1, as == MLXVK_COMPLEX64 ? MLXVK_FLOAT32 : as, 0, 1, none, first->stream), first->stream);
        if (is_whole(as)) OK(mlxvk_view(&a[as], a[as], as, first->stream), first->stream);
        else OK(mlxvk_astype(&a[as], a[as], as, first->stream), first->stream);
        bytes = mlxvk_array_nbytes(a[as]);
        data = malloc(bytes);
        assert_non_null(data);
        OK(mlxvk_array_read(a[as], data, bytes, first->stream), first->stream);
        OK_DEVICE(mlxvk_array_new_data_device(&sides[1].pool[as], data, &n, 1, as, sides[1].device), sides[1].device);
        free(data);
    }
    return side->pool[as];
}

static mlxvk_array strided(mlxvk_dtype dtype, int offset, const int *shape, const int64_t *strides, size_t ndim, int64_t elements)
{
    mlxvk_array a = { NULL };
    assert_true((int64_t)used + elements + offset <= POOL);
    OK(mlxvk_as_strided(&a, pool_of(dtype), shape, ndim, strides, ndim, used + (size_t)offset, side->stream), side->stream);
    used = (used + (size_t)elements + (size_t)offset + 255) / 256 * 256;
    return a;
}

static mlxvk_array positions(int count, int n)
{
    int32_t *at = malloc((size_t)count * sizeof *at);
    mlxvk_array a = { NULL };
    assert_non_null(at);
    for (int i = 0; i < count; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        at[i] = (int32_t)((uint32_t)(state >> 33) % (uint32_t)n);
    }
    OK_DEVICE(mlxvk_array_new_data_device(&a, at, &count, 1, MLXVK_INT32, side->device), side->device);
    free(at);
    return a;
}

static mlxvk_array zeros(mlxvk_dtype dtype, int rows, int columns)
{
    mlxvk_array a = { NULL };
    OK(mlxvk_zeros(&a, (int[]){ rows, columns }, 2, dtype, side->stream), side->stream);
    OK(mlxvk_array_eval(a), side->stream);
    return a;
}

/* What a case gives on a side: its result, or the first operand, where it is one of them. */
static unsigned char *given(const struct cliff_family *f, const int *p, struct side *on, mlxvk_dtype *dtype, size_t *count)
{
    mlxvk_array y = { NULL }, dense = { NULL };
    unsigned char *data;
    side = on;
    used = 0;
    state = 1;
    cliffs.stream = on->stream;
    cliffs.x = on->x;
    f->prepare(p);
    OK(f->apply(p, &y), on->stream);
    OK(mlxvk_contiguous(&dense, y.ctx ? y : on->x[0], false, on->stream), on->stream);
    *dtype = mlxvk_array_dtype(dense);
    *count = mlxvk_array_size(dense);
    data = malloc(mlxvk_array_nbytes(dense) + 1);
    assert_non_null(data);
    OK(mlxvk_array_read(dense, data, mlxvk_array_nbytes(dense), on->stream), on->stream);
    mlxvk_array_free(y);
    mlxvk_array_free(dense);
    for (int i = 0; i < CLIFF_OPERANDS; i++) { mlxvk_array_free(on->x[i]); on->x[i].ctx = NULL; }
    return data;
}

/* Sums in another order, and of another rounding: of the largest number in the result. */
static double tolerance(mlxvk_dtype t) { return is_whole(t) ? 0 : t == MLXVK_FLOAT16 ? 0x1p-8 : t == MLXVK_BFLOAT16 ? 0x1p-5 : 1e-4; }

static int compare(const struct cliff_family *f, const int *p)
{
    mlxvk_dtype dtype, other;
    size_t count, n;
    unsigned char *here, *there;
    double most = 0;
    char text[128];
    for (unsigned i = 0; i < met; i++)
        if (seen[i].family == f && !memcmp(seen[i].p, p, sizeof seen[i].p)) return (int)i;
    assert_true(met < SEEN);
    seen[met].family = f;
    memcpy(seen[met].p, p, sizeof seen[met].p);
    if (met++ % step) return (int)met - 1;
    here = given(f, p, &sides[0], &dtype, &count);
    there = given(f, p, &sides[1], &other, &n);
    assert_int_equal(dtype, other);
    assert_int_equal(count, n);
    for (size_t i = 0; i < count; i++) {
        struct number v = load_number(dtype, there, i);
        most = fmax(most, fmax(fabs(v.re), fabs(v.im)));
    }
    for (size_t i = 0; i < count; i++) {
        struct number a = load_number(dtype, here, i), b = load_number(dtype, there, i);
        if (!(fabs(a.re - b.re) <= tolerance(dtype) * most && fabs(a.im - b.im) <= tolerance(dtype) * most))
            fail_msg("%s, %s: number %zu of %zu is %.9g, and %.9g by a GPU's ways", f->name, cliff_text(f, p, text), i, count, a.re, b.re);
    }
    free(here);
    free(there);
    compared++;
    return (int)met - 1;
}

static void no_neighbours(int a, int b) { (void)a, (void)b; }

static void test_values(void **unused)
{
    const struct cliff_walker walker = { compare, no_neighbours };
    const char *type;
    (void)unused;
    sides[0].device = open_device(NULL);
    driver = (struct driver){ .device_type = 2 };      /* VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU */
    sides[1].device = own_device(NULL);
    OK_DEVICE(mlxvk_device_info_get_string(&type, sides[1].device, "type"), sides[1].device);
    assert_string_equal(type, "discrete");
    for (int i = 0; i < SIDES; i++) sides[i].stream = open_stream(sides[i].device);
    cliffs = (struct cliffs){ .strided = strided, .positions = positions, .zeros = zeros };
    for (int i = 0; i < cliff_family_count; i++) cliff_follow(&cliff_families[i], &walker);
    print_message("%u of %u cases\n", compared, met);
    assert_true(met > 500 && compared * step >= met);
    for (int i = 0; i < SIDES; i++) {
        for (int t = 0; t < DTYPES; t++) mlxvk_array_free(sides[i].pool[t]);
        mlxvk_stream_free(sides[i].stream);
        mlxvk_device_free(sides[i].device);
    }
    end_vulkan();
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_values) };
    if (argc > 1 && atoi(argv[1]) > 0) step = (unsigned)atoi(argv[1]);
    return run_group("neighbours", tests, NULL, NULL);
}
