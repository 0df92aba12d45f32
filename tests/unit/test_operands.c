/* Matrix products of operands that are copied or cut in front of them: rows beyond whole tiles, rows from odd places. */
#include "support.h"
#include <stdio.h>

/* Small integers, whose sums are exact. */
static mlxvk_array small_integers(int batch, int rows, int columns, mlxvk_stream s)
{
    mlxvk_array a = normals((int[]){ batch, rows, columns }, 3, MLXVK_FLOAT32, 5, s);
    OK(mlxvk_add(&a, a, a, s) || mlxvk_add(&a, a, a, s) || mlxvk_round(&a, a, 0, s), s);
    return a;
}

/* A row or a column, up to eight of them and nine, beyond whole tiles of float32, which a GPU does apart: the product is that of
 * the parts. b lies along its rows or its columns. */
static void test_few_apart(void **state)
{
    static const int left[] = { 1, 4, 8, 9 };
    enum { BATCH = 40, M = 512, N = 128, K = 256 };
    struct setting t = start("MLX_VK_POISON=2");
    const char *type = "";
    (void)state;
    OK_DEVICE(mlxvk_device_info_get_string(&type, t.device, "type"), t.device);
    for (int i = 0; i < (strcmp(type, "cpu") ? 8 : 2); i++) {
        int more = left[i / 2], batch = BATCH;
        bool same = true;
        mlxvk_array a = small_integers(batch, M, K, t.stream), b = small_integers(batch, N + more, K, t.stream), y = { NULL }, z = { NULL };
        mlxvk_array first = { NULL }, rest = { NULL }, ab[2] = { { NULL }, { NULL } }, equal = { NULL };
        OK(mlxvk_slice(&first, b, (int[]){ 0, 0, 0 }, 3, (int[]){ batch, N, K }, 3, (int[]){ 1, 1, 1 }, 3, t.stream), t.stream);
        OK(mlxvk_slice(&rest, b, (int[]){ 0, N, 0 }, 3, (int[]){ batch, N + more, K }, 3, (int[]){ 1, 1, 1 }, 3, t.stream), t.stream);
        OK(mlxvk_swapaxes(&z, b, 1, 2, t.stream) || mlxvk_swapaxes(&first, first, 1, 2, t.stream) ||
           mlxvk_swapaxes(&rest, rest, 1, 2, t.stream), t.stream);
        if (i % 2) OK(mlxvk_contiguous(&z, z, false, t.stream), t.stream);
        OK(mlxvk_matmul(&y, a, z, t.stream), t.stream);
        OK(mlxvk_matmul(&ab[0], a, first, t.stream) || mlxvk_matmul(&ab[1], a, rest, t.stream), t.stream);
        mlxvk_vector_array parts = mlxvk_vector_array_new_data(ab, 2);
        OK(mlxvk_concatenate_axis(&z, parts, 2, t.stream), t.stream);
        OK(mlxvk_array_equal(&equal, y, z, false, t.stream), t.stream);
        OK(mlxvk_array_read(equal, &same, 1, t.stream), t.stream);
        assert_true(same);
        OK(mlxvk_swapaxes(&a, a, 1, 2, t.stream), t.stream);                    /* rows beyond tiles */
        OK(mlxvk_matmul(&z, b, a, t.stream) || mlxvk_swapaxes(&z, z, 1, 2, t.stream), t.stream);
        OK(mlxvk_array_equal(&equal, y, z, false, t.stream), t.stream);
        OK(mlxvk_array_read(equal, &same, 1, t.stream), t.stream);
        assert_true(same);
        mlxvk_vector_array_free(parts);
        for (int k = 0; k < 8; k++) mlxvk_array_free(*(mlxvk_array *[]){ &a, &b, &y, &z, &first, &rest, &ab[0], &ab[1] }[k]);
        mlxvk_array_free(equal);
    }
    finish(&t);
}

/* A batch of matrices, `rows` long or across, from some element of a pool on, whose rows follow each other at `lead`. */
static mlxvk_array part_of_pool(mlxvk_array pool, int batch, int rows, int columns, int lead, bool across, int first, mlxvk_stream s)
{
    mlxvk_array a = { NULL };
    int64_t size = (int64_t)lead * (across ? columns : rows), strides[3] = { size, across ? 1 : lead, across ? lead : 1 };
    OK(mlxvk_as_strided(&a, pool, (int[]){ batch, rows, columns }, 3, strides, 3, (size_t)first, s), s);
    return a;
}

/* Half types whose rows are no whole eights, or begin at odd places, of a, of b, of the result, of all: each is copied where it
 * alone is. Sums are exact: those of float32, rounded. With a row c, too. */
static void test_even_copies(void **state)
{
    static const struct { int batch, m, k, n, first_a, first_b, more; bool at, bt; } cases[] = {
        { 1, 512, 255, 520, 0, 0, 0, false, true }, { 1, 512, 256, 513, 0, 0, 0, false, true }, { 1, 513, 256, 512, 0, 0, 0, true, false },
        { 1, 512, 256, 520, 1, 0, 0, false, true }, { 1, 512, 256, 520, 0, 3, 0, false, false }, { 1, 520, 264, 514, 5, 1, 0, true, true },
        { 64, 128, 127, 128, 0, 0, 0, false, true }, { 64, 128, 128, 127, 0, 0, 0, false, true }, { 64, 127, 128, 128, 0, 0, 0, false, true },
        { 64, 128, 128, 128, 1, 1, 0, false, true }, { 64, 128, 128, 128, 8, 1, 0, false, false }, { 64, 128, 128, 128, 0, 0, 3, true, false },
        { 64, 128, 128, 128, 0, 0, 0, false, true }, { 64, 128, 120, 121, 0, 0, 8, true, true },
    };
    static const mlxvk_dtype types[] = { MLXVK_BFLOAT16, MLXVK_FLOAT16 };
    struct setting t = start("MLX_VK_POISON=2");
    mlxvk_stream s = t.stream;
    mlxvk_array pool = small_integers(1, 1200, 1024, s);
    (void)state;
    for (int i = 0; i < 4 * (int)COUNT(cases); i++) {
        int batch = cases[i / 4].batch, m = cases[i / 4].m, k = cases[i / 4].k, n = cases[i / 4].n, more = cases[i / 4].more;
        bool at = cases[i / 4].at, bt = cases[i / 4].bt, same = false;
        mlxvk_array half = { NULL }, y = { NULL }, z = { NULL }, equal = { NULL }, a, b, c, x[3];
        OK(mlxvk_astype(&half, pool, types[i % 2], s), s);
        for (int pass = 0; pass < 2; pass++) {                                  /* of half types, of float32 */
            mlxvk_array from = pass ? pool : half, *to = pass ? &z : &y;
            a = part_of_pool(from, batch, m, k, (at ? m : k) + more, at, cases[i / 4].first_a, s);
            b = part_of_pool(from, batch, k, n, (bt ? k : n) + more, bt, cases[i / 4].first_b, s);
            c = part_of_pool(from, 1, 1, n, n, false, 7, s);
            OK(i & 2 ? mlxvk_matmul(to, a, b, s) : mlxvk_addmm(to, c, a, b, 1, 1, s), s);
            x[0] = a; x[1] = b; x[2] = c;
            for (int j = 0; j < 3; j++) mlxvk_array_free(x[j]);
        }
        OK(mlxvk_astype(&z, z, types[i % 2], s) || mlxvk_array_equal(&equal, y, z, false, s), s);
        OK(mlxvk_array_read(equal, &same, 1, s), s);
        if (!same) fail_msg("case %d of %s", i / 4, mlxvk_dtype_name(types[i % 2]));
        mlxvk_array_free(half);
        mlxvk_array_free(y);
        mlxvk_array_free(z);
        mlxvk_array_free(equal);
    }
    mlxvk_array_free(pool);
    finish(&t);
}

/* float32 whose rows begin at odd places, of a, of b, of both: each is copied where it alone is, and not where rows follow each
 * other in odd steps. Sums are exact. With a row c, too; one matrix for all of a batch. */
static void test_even_floats(void **state)
{
    static const struct { int batch, m, k, n, first_a, first_b, more; bool at, bt, once; } cases[] = {
        { 1, 64, 64, 64, 1, 0, 0, false, true, false }, { 1, 64, 64, 64, 0, 3, 0, true, false, false }, { 1, 132, 72, 66, 5, 1, 0, true, true, false },
        { 1, 33, 63, 129, 2, 1, 1, false, false, false }, { 3, 40, 36, 36, 1, 1, 0, false, true, false }, { 2, 2, 64, 68, 3, 2, 0, false, false, false },
        { 5, 33, 32, 64, 2, 2, 0, false, false, false }, { 4, 64, 17, 64, 0, 1, 4, true, false, true }, { 1, 65, 35, 77, 1, 1, 0, false, true, false },
    };
    static const char copies[] = "MLX_VK_POISON=2 MLX_VK_MATMUL_KERNEL=9";
    struct setting way[2] = { start("MLX_VK_POISON=2"), start(copies) };
    static float got[2][3 * 130 * 130];
    uint64_t before = dispatches_of(copies, "copy");
    unsigned count = 0;
    (void)state;
    for (int i = 0; i < 2 * (int)COUNT(cases); i++) {
        int batch = cases[i / 2].batch, m = cases[i / 2].m, k = cases[i / 2].k, n = cases[i / 2].n, more = cases[i / 2].more;
        bool at = cases[i / 2].at, bt = cases[i / 2].bt;
        size_t bytes = sizeof **got * (size_t)(batch * m * n);
        assert_true(bytes <= sizeof *got);
        count += cases[i / 2].first_a % 4 && ((at ? m : k) + more) % 4 == 0;
        count += cases[i / 2].first_b % 4 && ((bt ? k : n) + more) % 4 == 0;
        for (int w = 0; w < 2; w++) {
            mlxvk_stream s = way[w].stream;
            mlxvk_array pool = small_integers(1, 300, 128, s), y = { NULL }, x[3];
            x[0] = part_of_pool(pool, batch, m, k, (at ? m : k) + more, at, cases[i / 2].first_a, s);
            x[1] = part_of_pool(pool, cases[i / 2].once ? 1 : batch, k, n, (bt ? k : n) + more, bt, cases[i / 2].first_b, s);
            x[2] = part_of_pool(pool, 1, 1, n, n, false, 7, s);
            OK(i & 1 ? mlxvk_matmul(&y, x[0], x[1], s) : mlxvk_addmm(&y, x[2], x[0], x[1], 1, 1, s), s);
            memset(got[w], 0xa5, bytes);
            OK(mlxvk_array_read(y, got[w], bytes, s), s);
            for (int j = 0; j < 3; j++) mlxvk_array_free(x[j]);
            mlxvk_array_free(pool);
            mlxvk_array_free(y);
        }
        if (memcmp(got[0], got[1], bytes)) fail_msg("case %d", i / 2);
    }
    assert_int_equal(dispatches_of(copies, "copy") - before, count);
    finish(&way[1]);
    finish(&way[0]);
}

/* Operands that can be bound, but not their copies, which are longer: rows filled up, or of windows over the same elements. */
static void test_unbound_copies(void **state)
{
    static const struct { int batch, m, k, n, lead_a, lead_b; bool at, bt; } cases[] = {
        { 1, 64, 65, 251, 65, 65, false, true }, { 1, 251, 65, 64, 65, 64, false, false }, { 1, 87, 287, 43, 1, 287, true, true },
        { 3, 40, 257, 120, 257, 2, false, false }, { 3, 276, 112, 48, 0, 2, true, true }, { 1, 7, 300, 250, 300, 1, false, false },
    };
    static const mlxvk_dtype types[] = { MLXVK_FLOAT32, MLXVK_BFLOAT16 };
    struct setting way[2] = { start("MLX_VK_POISON=2 MLX_VK_MAX_BINDING_RANGE=65536"), start("MLX_VK_MATMUL_KERNEL=1") };
    static float got[2][3 * 276 * 120];
    (void)state;
    for (int i = 0; i < 2 * (int)COUNT(cases); i++) {
        int batch = cases[i / 2].batch, m = cases[i / 2].m, k = cases[i / 2].k, n = cases[i / 2].n;
        size_t bytes = sizeof **got * (size_t)(batch * m * n);
        assert_true(bytes <= sizeof *got);
        for (int w = 0; w < 2; w++) {
            mlxvk_stream s = way[w].stream;
            mlxvk_array pool = small_integers(1, 300, 128, s), y = { NULL }, a, b;
            OK(mlxvk_astype(&pool, pool, types[i % 2], s), s);
            a = part_of_pool(pool, batch, m, k, cases[i / 2].lead_a, cases[i / 2].at, 0, s);
            b = part_of_pool(pool, batch, k, n, cases[i / 2].lead_b, cases[i / 2].bt, 0, s);
            OK(mlxvk_matmul(&y, a, b, s) || mlxvk_astype(&y, y, MLXVK_FLOAT32, s), s);
            memset(got[w], 0xa5, bytes);
            OK(mlxvk_array_read(y, got[w], bytes, s), s);
            mlxvk_array_free(pool);
            mlxvk_array_free(a);
            mlxvk_array_free(b);
            mlxvk_array_free(y);
        }
        if (memcmp(got[0], got[1], bytes)) fail_msg("case %d", i / 2);
    }
    finish(&way[1]);
    finish(&way[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_few_apart), cmocka_unit_test(test_even_copies), cmocka_unit_test(test_even_floats),
        cmocka_unit_test(test_unbound_copies),
    };
    return run_group("operands", tests, NULL, NULL);
}
