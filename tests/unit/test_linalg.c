/* Factorisations: what they multiply to, in double precision on the host; batches, views, sizes around the blocks' borders,
 * matrices without full rank, refusals. */
#include "support.h"

static struct rng rng = { 5 };

/* ---- matrices on the host: `batch` of them ---- */

struct matrices { int batch, rows, columns; double *x; };

static struct matrices matrices_new(int batch, int rows, int columns)
{
    struct matrices m = { batch, rows, columns, calloc((size_t)batch * (size_t)rows * (size_t)columns + 1, sizeof(double)) };
    assert_non_null(m.x);
    return m;
}

static double *at(const struct matrices *m, int b, int i, int j) { return m->x + ((size_t)b * (size_t)m->rows + (size_t)i) * (size_t)m->columns + (size_t)j; }

static struct matrices matrices_random(int batch, int rows, int columns)
{
    struct matrices m = matrices_new(batch, rows, columns);
    for (int i = 0; i < batch * rows * columns; i++) m.x[i] = (float)(random_int(&rng, -10000, 10000) / 10000.0);
    return m;
}

static struct matrices product(const struct matrices *a, bool turn_a, const struct matrices *b, bool turn_b)
{
    int rows = turn_a ? a->columns : a->rows, inner = turn_a ? a->rows : a->columns, columns = turn_b ? b->rows : b->columns;
    struct matrices r = matrices_new(a->batch, rows, columns);
    assert_int_equal(inner, turn_b ? b->columns : b->rows);
    for (int k = 0; k < a->batch; k++)
        for (int i = 0; i < rows; i++)
            for (int l = 0; l < inner; l++)
                for (int j = 0; j < columns; j++)
                    *at(&r, k, i, j) += *(turn_a ? at(a, k, l, i) : at(a, k, i, l)) * *(turn_b ? at(b, k, j, l) : at(b, k, l, j));
    return r;
}

static mlxvk_array upload(const struct matrices *m)
{
    size_t n = (size_t)m->batch * (size_t)m->rows * (size_t)m->columns;
    float *x = malloc((n + 1) * sizeof *x);
    mlxvk_array a;
    assert_non_null(x);
    for (size_t i = 0; i < n; i++) x[i] = (float)m->x[i];
    a = floats(device, x, (int[]){ m->batch, m->rows, m->columns }, 3);
    free(x);
    return a;
}

static struct matrices download(mlxvk_array a, int batch, int rows, int columns)
{
    struct matrices m = matrices_new(batch, rows, columns);
    size_t n = (size_t)batch * (size_t)rows * (size_t)columns;
    float *x = malloc((n + 1) * sizeof *x);
    assert_non_null(x);
    assert_int_equal(mlxvk_array_dtype(a), MLXVK_FLOAT32);
    assert_int_equal(mlxvk_array_size(a), n);
    OK(mlxvk_array_read(a, x, n * sizeof *x, stream), stream);
    for (size_t i = 0; i < n; i++) m.x[i] = x[i];
    free(x);
    return m;
}

static void expect_same(const struct matrices *got, const struct matrices *want, double tolerance, const char *what)
{
    assert_int_equal(got->rows, want->rows);
    assert_int_equal(got->columns, want->columns);
    for (int b = 0; b < got->batch; b++)
        for (int i = 0; i < got->rows; i++)
            for (int j = 0; j < got->columns; j++) {
                double g = *at(got, b, i, j), w = *at(want, b, i, j);
                if (fabs(g - w) <= tolerance) continue;
                print_error("%s, %d x %d: element (%d, %d) of matrix %d is %g and not %g\n", what, got->rows, got->columns, i, j, b, g, w);
                fail();
            }
}

static void expect_unit(const struct matrices *got, double tolerance, const char *what)
{
    struct matrices unit = matrices_new(got->batch, got->rows, got->columns);
    for (int b = 0; b < got->batch; b++) for (int i = 0; i < got->rows && i < got->columns; i++) *at(&unit, b, i, i) = 1;
    expect_same(got, &unit, tolerance, what);
    free(unit.x);
}

static void expect_triangle(const struct matrices *m, bool upper, const char *what)
{
    for (int b = 0; b < m->batch; b++)
        for (int i = 0; i < m->rows; i++)
            for (int j = 0; j < m->columns; j++)
                if ((upper ? i > j : j > i) && *at(m, b, i, j) != 0) fail_msg("%s: element (%d, %d) is not 0", what, i, j);
}

/* Symmetric and positive definite, well conditioned. */
static struct matrices definite(int batch, int n)
{
    struct matrices a = matrices_random(batch, n, n), r = product(&a, false, &a, true);
    for (int b = 0; b < batch; b++)
        for (int i = 0; i < n; i++)
            for (int j = 0; j < n; j++) *at(&r, b, i, j) = (float)(*at(&r, b, i, j) / n + (i == j));
    free(a.x);
    return r;
}

static const int sizes[] = { 1, 2, 5, 31, 32, 33, 64, 71 };

/* ---- triangles and Cholesky ---- */

static void triangles(void **state)
{
    (void)state;
    for (size_t k = 0; k < COUNT(sizes); k++) {
        int n = sizes[k], batch = k % 2 ? 1 : 3;
        for (int upper = 0; upper < 2; upper++) {
            struct matrices a = matrices_random(batch, n, n), inverse, unit;
            mlxvk_array x, y = { NULL };
            for (int b = 0; b < batch; b++) for (int i = 0; i < n; i++) *at(&a, b, i, i) = 2 + (double)(i % 3);
            for (int i = 0; i < batch * n * n; i++) if (i / n % n != i % n) a.x[i] /= n;
            x = upload(&a);
            OK(mlxvk_linalg_tri_inv(&y, x, upper, stream), stream);
            inverse = download(y, batch, n, n);
            expect_triangle(&inverse, upper, "tri_inv");
            for (int b = 0; b < batch; b++)
                for (int i = 0; i < n; i++)
                    for (int j = 0; j < n; j++) if (upper ? i > j : j > i) *at(&a, b, i, j) = 0;
            unit = product(&a, false, &inverse, false);
            expect_unit(&unit, 1e-5, "tri_inv");
            mlxvk_array_free(x);
            mlxvk_array_free(y);
            free(a.x); free(inverse.x); free(unit.x);
        }
    }
}

static void cholesky(void **state)
{
    (void)state;
    for (size_t k = 0; k < COUNT(sizes); k++) {
        int n = sizes[k], batch = k % 2 ? 1 : 3;
        struct matrices a = definite(batch, n);
        for (int upper = 0; upper < 2; upper++) {
            mlxvk_array x = upload(&a), y = { NULL };
            struct matrices factor, back, inverse, unit;
            OK(mlxvk_linalg_cholesky(&y, x, upper, stream), stream);
            factor = download(y, batch, n, n);
            expect_triangle(&factor, upper, "cholesky");
            back = product(&factor, upper, &factor, !upper);
            expect_same(&back, &a, 1e-5, "cholesky");
            OK(mlxvk_linalg_cholesky_inv(&y, y, upper, stream), stream);
            inverse = download(y, batch, n, n);
            unit = product(&a, false, &inverse, false);
            expect_unit(&unit, 2e-5, "cholesky_inv");
            mlxvk_array_free(x);
            mlxvk_array_free(y);
            free(factor.x); free(back.x); free(inverse.x); free(unit.x);
        }
        free(a.x);
    }
    mlxvk_array x = floats(device, (float[]){ 1, 2, 2, 1 }, (int[]){ 2, 2 }, 2), y = { NULL };     /* not definite */
    float got[4];
    OK(mlxvk_linalg_cholesky(&y, x, false, stream), stream);
    OK(mlxvk_array_read(y, got, sizeof got, stream), stream);
    assert_true(isnan(got[3]) && got[0] == 1);
    mlxvk_array_free(x);
    mlxvk_array_free(y);
}

/* ---- LU ---- */

static void lu_of(int batch, int m, int n)
{
    struct matrices a = matrices_random(batch, m, n), l, u, back, sorted = matrices_new(batch, m, n);
    mlxvk_array x = upload(&a), part = { NULL }, lu = { NULL }, pivots = { NULL };
    mlxvk_vector_array res = { NULL };
    int least = m < n ? m : n;
    uint32_t *p = malloc((size_t)batch * (size_t)m * sizeof *p);
    OK(mlxvk_linalg_lu(&res, x, stream), stream);
    OK(mlxvk_vector_array_get(&part, res, 1), stream);
    l = download(part, batch, m, least);
    OK(mlxvk_vector_array_get(&part, res, 2), stream);
    u = download(part, batch, least, n);
    OK(mlxvk_vector_array_get(&part, res, 0), stream);
    OK(mlxvk_array_read(part, p, (size_t)batch * (size_t)m * sizeof *p, stream), stream);
    expect_triangle(&l, false, "L");
    expect_triangle(&u, true, "U");
    back = product(&l, false, &u, false);
    for (int b = 0; b < batch; b++)
        for (int i = 0; i < m; i++) {
            assert_true(p[b * m + i] < (uint32_t)m);
            if (i < least) assert_true(*at(&l, b, i, i) == 1);
            for (int j = 0; j < n; j++) *at(&sorted, b, i, j) = *at(&back, b, (int)p[b * m + i], j);
            for (int j = 0; j < i && j < least; j++) assert_true(fabs(*at(&l, b, i, j)) <= 1);       /* largest pivots */
        }
    expect_same(&sorted, &a, 3e-5, "lu");
    OK(mlxvk_linalg_lu_factor(&lu, &pivots, x, stream), stream);
    assert_int_equal(mlxvk_array_size(pivots), batch * least);
    assert_int_equal(mlxvk_array_dtype(pivots), MLXVK_UINT32);
    mlxvk_array_free(x);
    mlxvk_array_free(part);
    mlxvk_array_free(lu);
    mlxvk_array_free(pivots);
    mlxvk_vector_array_free(res);
    free(a.x); free(l.x); free(u.x); free(back.x); free(sorted.x); free(p);
}

static void lu(void **state)
{
    (void)state;
    for (size_t k = 0; k < COUNT(sizes); k++) lu_of(k % 2 ? 1 : 3, sizes[k], sizes[k]);
    lu_of(2, 70, 33);
    lu_of(2, 33, 70);
    lu_of(1, 1, 5);
}

static void solving(void **state)
{
    (void)state;
    for (size_t k = 0; k < COUNT(sizes); k++) {
        int n = sizes[k], batch = k % 2 ? 1 : 3;
        struct matrices a = matrices_random(batch, n, n), b = matrices_random(batch, n, 3), got, back;
        mlxvk_array x, y = upload(&b), r = { NULL };
        for (int m = 0; m < batch; m++) for (int i = 0; i < n; i++) *at(&a, m, i, (i + 1) % n) += 3;   /* its pivots are off the diagonal */
        x = upload(&a);
        OK(mlxvk_linalg_inv(&r, x, stream), stream);
        got = download(r, batch, n, n);
        back = product(&a, false, &got, false);
        expect_unit(&back, 1e-4, "inv");
        free(got.x); free(back.x);
        OK(mlxvk_linalg_solve(&r, x, y, stream), stream);
        got = download(r, batch, n, 3);
        back = product(&a, false, &got, false);
        expect_same(&back, &b, 1e-4, "solve");
        mlxvk_array_free(x);
        mlxvk_array_free(y);
        mlxvk_array_free(r);
        free(a.x); free(b.x); free(got.x); free(back.x);
    }
    mlxvk_array x = floats(device, (float[]){ 0, 2, 4, 0 }, (int[]){ 2, 2 }, 2), y = floats(device, (float[]){ 2, 8 }, (int[]){ 2 }, 1), r = { NULL };
    OK(mlxvk_linalg_solve(&r, x, y, stream), stream);
    assert_int_equal(mlxvk_array_ndim(r), 1);
    expect_floats(r, (float[]){ 2, 1 }, 2, 1e-6, 0, stream);
    mlxvk_array_free(x);
    x = floats(device, (float[]){ 2, 7, 1, 4 }, (int[]){ 2, 2 }, 2);
    OK(mlxvk_linalg_solve_triangular(&r, x, y, false, stream), stream);
    expect_floats(r, (float[]){ 1, 1.75f }, 2, 1e-6, 0, stream);
    OK(mlxvk_linalg_solve_triangular(&r, x, y, true, stream), stream);
    expect_floats(r, (float[]){ -6, 2 }, 2, 1e-6, 0, stream);
    mlxvk_array_free(x);
    mlxvk_array_free(y);
    mlxvk_array_free(r);
}

/* ---- QR ---- */

static void qr_of(int batch, int m, int n, bool low_rank)
{
    struct matrices a = matrices_random(batch, m, n), q, r, back, unit;
    int least = m < n ? m : n;
    mlxvk_array x, y = { NULL }, z = { NULL };
    if (low_rank) for (int b = 0; b < batch; b++) for (int i = 0; i < m; i++) for (int j = 1; j < n; j++) *at(&a, b, i, j) = j % 2 ? 0 : *at(&a, b, i, 0);
    x = upload(&a);
    OK(mlxvk_linalg_qr(&y, &z, x, stream), stream);
    q = download(y, batch, m, least);
    r = download(z, batch, least, n);
    expect_triangle(&r, true, "R");
    back = product(&q, false, &r, false);
    expect_same(&back, &a, 2e-5, "qr");
    unit = product(&q, true, &q, false);
    expect_unit(&unit, 1e-5, "Q");
    mlxvk_array_free(x);
    mlxvk_array_free(y);
    mlxvk_array_free(z);
    free(a.x); free(q.x); free(r.x); free(back.x); free(unit.x);
}

static void qr(void **state)
{
    (void)state;
    for (size_t k = 0; k < COUNT(sizes); k++) qr_of(k % 2 ? 1 : 3, sizes[k], sizes[k], false);
    qr_of(2, 70, 33, false);
    qr_of(2, 33, 70, false);
    qr_of(1, 5, 1, false);
    qr_of(1, 40, 36, true);
}

/* ---- eigenvalues, singular values ---- */

static void eigen_of(int batch, int n)
{
    struct matrices a = matrices_random(batch, n, n), values, vectors, scaled, back, unit;
    for (int upper = 0; upper < 2; upper++) {
        struct matrices symmetric = matrices_new(batch, n, n);
        mlxvk_array x = upload(&a), w = { NULL }, v = { NULL };
        for (int b = 0; b < batch; b++)
            for (int i = 0; i < n; i++)
                for (int j = 0; j < n; j++) *at(&symmetric, b, i, j) = (upper ? i <= j : j <= i) ? *at(&a, b, i, j) : *at(&a, b, j, i);
        OK(mlxvk_linalg_eigh(&w, &v, x, upper ? "U" : "L", stream), stream);
        values = download(w, batch, 1, n);
        vectors = download(v, batch, n, n);
        unit = product(&vectors, true, &vectors, false);
        expect_unit(&unit, 2e-5, "eigenvectors");
        scaled = product(&vectors, false, &unit, false);
        for (int b = 0; b < batch; b++)
            for (int j = 0; j < n; j++) {
                if (j) assert_true(*at(&values, b, 0, j - 1) <= *at(&values, b, 0, j));
                for (int i = 0; i < n; i++) *at(&scaled, b, i, j) = *at(&vectors, b, i, j) * *at(&values, b, 0, j);
            }
        back = product(&scaled, false, &vectors, true);
        expect_same(&back, &symmetric, 2e-5 * sqrt(n), "eigh");
        OK(mlxvk_linalg_eigvalsh(&v, x, upper ? "U" : "L", stream), stream);
        free(unit.x);
        unit = download(v, batch, 1, n);
        expect_same(&unit, &values, 0, "eigvalsh");
        mlxvk_array_free(x);
        mlxvk_array_free(w);
        mlxvk_array_free(v);
        free(symmetric.x); free(values.x); free(vectors.x); free(scaled.x); free(back.x); free(unit.x);
    }
    free(a.x);
}

static void eigenvalues(void **state)
{
    (void)state;
    for (size_t k = 0; k < 6; k++) eigen_of(k % 2 ? 1 : 3, sizes[k]);
    eigen_of(1, 71);
}

static void svd_of(int batch, int m, int n, int rank)
{
    struct matrices a = matrices_random(batch, m, n), u, s, vt, middle, back, unit;
    int least = m < n ? m : n;
    mlxvk_array x, part = { NULL };
    mlxvk_vector_array res = { NULL };
    if (rank < least) {
        struct matrices left = matrices_random(batch, m, rank), right = matrices_random(batch, rank, n);
        free(a.x);
        a = product(&left, false, &right, false);
        free(left.x); free(right.x);
    }
    x = upload(&a);
    OK(mlxvk_linalg_svd(&res, x, true, stream), stream);
    OK(mlxvk_vector_array_get(&part, res, 0), stream);
    u = download(part, batch, m, m);
    OK(mlxvk_vector_array_get(&part, res, 1), stream);
    s = download(part, batch, 1, least);
    OK(mlxvk_vector_array_get(&part, res, 2), stream);
    vt = download(part, batch, n, n);
    unit = product(&u, true, &u, false);
    expect_unit(&unit, 2e-5, "U");
    free(unit.x);
    unit = product(&vt, true, &vt, false);
    expect_unit(&unit, 2e-5, "V");
    middle = matrices_new(batch, m, n);
    for (int b = 0; b < batch; b++)
        for (int i = 0; i < least; i++) {
            *at(&middle, b, i, i) = *at(&s, b, 0, i);
            assert_true(*at(&s, b, 0, i) >= 0 && (!i || *at(&s, b, 0, i) <= *at(&s, b, 0, i - 1)));
        }
    back = product(&u, false, &middle, false);
    free(middle.x);
    middle = product(&back, false, &vt, false);
    expect_same(&middle, &a, 2e-5 * sqrt(m + n), "svd");
    OK(mlxvk_linalg_svd(&res, x, false, stream), stream);
    assert_int_equal(mlxvk_vector_array_size(res), 1);
    if (rank == least) {                                 /* A pinv(A) A = A */
        struct matrices inverse, once, twice;
        OK(mlxvk_linalg_pinv(&part, x, stream), stream);
        inverse = download(part, batch, n, m);
        once = product(&a, false, &inverse, false);
        twice = product(&once, false, &a, false);
        expect_same(&twice, &a, 1e-3, "pinv");
        free(inverse.x); free(once.x); free(twice.x);
    }
    mlxvk_array_free(x);
    mlxvk_array_free(part);
    mlxvk_vector_array_free(res);
    free(a.x); free(u.x); free(s.x); free(vt.x); free(middle.x); free(back.x); free(unit.x);
}

static void singular_values(void **state)
{
    (void)state;
    for (size_t k = 0; k < 6; k++) svd_of(k % 2 ? 1 : 3, sizes[k], sizes[k], sizes[k]);
    svd_of(2, 40, 7, 7);
    svd_of(2, 7, 40, 7);
    svd_of(1, 12, 9, 4);
    svd_of(1, 71, 70, 70);
}

static void norms(void **state)
{
    mlxvk_array x = floats(device, (float[]){ 3, 0, 0, 0, -4, 0 }, (int[]){ 2, 3 }, 2), r = { NULL };
    const int axes[] = { 1, 0 };
    (void)state;
    OK(mlxvk_linalg_norm(&r, x, 2, axes, 2, false, stream), stream);
    expect_floats(r, (float[]){ 4 }, 1, 1e-6, 0, stream);
    OK(mlxvk_linalg_norm(&r, x, -2, NULL, 0, true, stream), stream);
    expect_floats(r, (float[]){ 3 }, 1, 1e-6, 0, stream);
    assert_int_equal(mlxvk_array_ndim(r), 2);
    OK(mlxvk_linalg_norm_matrix(&r, x, "nuc", NULL, 0, false, stream), stream);
    expect_floats(r, (float[]){ 7 }, 1, 1e-6, 0, stream);
    REFUSED(mlxvk_linalg_norm(&r, x, 3, axes, 2, false, stream), MLXVK_ERROR_ARGUMENT, stream, "3");
    REFUSED(mlxvk_linalg_norm_matrix(&r, x, "max", axes, 2, false, stream), MLXVK_ERROR_ARGUMENT, stream, "max");
    REFUSED(mlxvk_linalg_norm_matrix(&r, x, "fro", axes, 1, false, stream), MLXVK_ERROR_AXIS, stream, "two axes");
    mlxvk_array_free(x);
    mlxvk_array_free(r);
}

/* Samples of a normal distribution have its mean and covariance. */
static void multivariate(void **state)
{
    const float mean[] = { 1, -2 }, cov[] = { 2, 0.6f, 0.6f, 0.5f };
    enum { SAMPLES = 20000 };
    float *x = malloc(2 * SAMPLES * sizeof *x);
    double sum[2] = { 0, 0 }, products[3] = { 0, 0, 0 };
    mlxvk_array m = floats(device, mean, (int[]){ 2 }, 1), v = floats(device, cov, (int[]){ 2, 2 }, 2), key = { NULL }, r = { NULL };
    OK_DEVICE(mlxvk_array_new_data_device(&key, (uint32_t[]){ 0, 9 }, (int[]){ 2 }, 1, MLXVK_UINT32, device), device);
    (void)state;
    OK(mlxvk_random_multivariate_normal(&r, m, v, (int[]){ SAMPLES }, 1, MLXVK_FLOAT32, key, stream), stream);
    OK(mlxvk_array_read(r, x, 2 * SAMPLES * sizeof *x, stream), stream);
    for (int i = 0; i < SAMPLES; i++) for (int k = 0; k < 2; k++) sum[k] += x[2 * i + k] / SAMPLES;
    for (int i = 0; i < SAMPLES; i++) {
        double p = x[2 * i] - sum[0], q = x[2 * i + 1] - sum[1];
        products[0] += p * p / SAMPLES;
        products[1] += p * q / SAMPLES;
        products[2] += q * q / SAMPLES;
    }
    assert_true(fabs(sum[0] - 1) < 0.04 && fabs(sum[1] + 2) < 0.03);
    assert_true(fabs(products[0] - 2) < 0.1 && fabs(products[1] - 0.6) < 0.05 && fabs(products[2] - 0.5) < 0.03);
    REFUSED(mlxvk_random_multivariate_normal(&r, m, m, NULL, 0, MLXVK_FLOAT32, key, stream), MLXVK_ERROR_SHAPE, stream, "(2)");
    REFUSED(mlxvk_random_multivariate_normal(&r, m, v, NULL, 0, MLXVK_FLOAT16, key, stream), MLXVK_ERROR_DTYPE, stream, "float16");
    mlxvk_array_free(m);
    mlxvk_array_free(v);
    mlxvk_array_free(key);
    mlxvk_array_free(r);
    free(x);
}

static void refusals(void **state)
{
    mlxvk_array wide = floats(device, (float[6]){ 0 }, (int[]){ 2, 3 }, 2), whole = counting(device, 4), r = { NULL }, q = { NULL };
    mlxvk_array empty = floats(device, NULL, (int[]){ 0, 3, 3 }, 3), none = floats(device, NULL, (int[]){ 2, 0 }, 2);
    (void)state;
    REFUSED(mlxvk_linalg_inv(&r, wide, stream), MLXVK_ERROR_SHAPE, stream, "not square", "(2, 3)");
    REFUSED(mlxvk_linalg_cholesky(&r, wide, false, stream), MLXVK_ERROR_SHAPE, stream, "not square");
    REFUSED(mlxvk_linalg_tri_inv(&r, whole, false, stream), MLXVK_ERROR_DTYPE, stream, "int32");
    REFUSED(mlxvk_linalg_qr(&q, &r, none, stream), MLXVK_ERROR_SHAPE, stream, "empty");
    REFUSED(mlxvk_linalg_eigh(&q, &r, wide, "X", stream), MLXVK_ERROR_ARGUMENT, stream, "UPLO");
    REFUSED(mlxvk_linalg_eigvals(&r, empty, stream), MLXVK_ERROR_UNSUPPORTED, stream, "symmetric");
    REFUSED(mlxvk_linalg_solve(&r, wide, wide, stream), MLXVK_ERROR_SHAPE, stream, "not square");
    assert_null(q.ctx);
    OK(mlxvk_linalg_inv(&r, empty, stream), stream);
    assert_int_equal(mlxvk_array_ndim(r), 3);
    OK(mlxvk_linalg_eigh(&q, &r, empty, "L", stream), stream);
    assert_int_equal(mlxvk_array_ndim(q), 2);
    mlxvk_array_free(wide);
    mlxvk_array_free(whole);
    mlxvk_array_free(empty);
    mlxvk_array_free(none);
    mlxvk_array_free(q);
    mlxvk_array_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(triangles), cmocka_unit_test(cholesky), cmocka_unit_test(lu), cmocka_unit_test(solving), cmocka_unit_test(qr),
        cmocka_unit_test(eigenvalues), cmocka_unit_test(singular_values), cmocka_unit_test(norms), cmocka_unit_test(multivariate),
        cmocka_unit_test(refusals),
    };
    return run_group("linalg", tests, set_up_poisoned, tear_down);
}
