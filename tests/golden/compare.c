/* The rules by which a result is compared with what MLX gave. */
#include "golden.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "unit/numbers.h"

/* ---- elements ---- */

/* Whether an element of got is right, given that of want. */
typedef bool element_rule(mlxvk_dtype dtype, struct number got, struct number want, const struct rule *rule);

static bool is_nan(struct number n) { return isnan(n.re) || isnan(n.im); }

static bool is_exact(mlxvk_dtype dtype, struct number got, struct number want, const struct rule *rule)
{
    (void)rule;
    if (!dtype_is_inexact(dtype)) return got.u == want.u;
    bool re = got.re == want.re || (isnan(got.re) && isnan(want.re));
    return re && (got.im == want.im || (isnan(got.im) && isnan(want.im)));
}

static bool same_sign(double a, double b) { return isnan(a) || !signbit(a) == !signbit(b); }

/* For floats of one dtype, equal values with equal signs are the same bits. */
static bool is_same(mlxvk_dtype dtype, struct number got, struct number want, const struct rule *rule)
{
    return is_exact(dtype, got, want, rule) && same_sign(got.re, want.re) && same_sign(got.im, want.im);
}

static bool is_close(mlxvk_dtype dtype, struct number got, struct number want, const struct rule *rule)
{
    if (!dtype_is_inexact(dtype)) return is_exact(dtype, got, want, rule);
    if (is_nan(got) || is_nan(want)) return is_nan(got) && is_nan(want);
    if (got.re == want.re && got.im == want.im) return true;
    double distance = hypot(got.re - want.re, got.im - want.im), size = hypot(want.re, want.im);
    return isfinite(size) && distance <= rule->atol + rule->rtol * size;
}

static double smallest_normal(mlxvk_dtype dtype) { return dtype == MLXVK_FLOAT16 ? 0x1p-14 : 0x1p-126; }

static bool denormal_ok(mlxvk_dtype dtype, struct number got, struct number want, const struct rule *rule)
{
    double least = smallest_normal(dtype);
    if (dtype_is_inexact(dtype) && got.re == 0 && fabs(want.re) < least) want.re = 0;
    if (dtype_is_inexact(dtype) && got.im == 0 && fabs(want.im) < least) want.im = 0;
    if (rule->rtol == 0 && rule->atol == 0) return is_exact(dtype, got, want, rule);
    return is_close(dtype, got, want, rule);
}

static bool finite_element(mlxvk_dtype dtype, struct number got, struct number want, const struct rule *rule)
{
    (void)dtype, (void)want, (void)rule;
    return isfinite(got.re) && isfinite(got.im);
}

static bool anything(mlxvk_dtype dtype, struct number got, struct number want, const struct rule *rule)
{
    (void)dtype, (void)got, (void)want, (void)rule;
    return true;
}

/* ---- words ---- */

static const char *number_text(char *text, size_t size, mlxvk_dtype dtype, struct number n)
{
    int digits = dtype == MLXVK_FLOAT32 || dtype == MLXVK_COMPLEX64 ? 9 : 5;
    if (dtype == MLXVK_COMPLEX64) snprintf(text, size, "%.*g%+.*gi", digits, n.re, digits, n.im);
    else if (dtype_is_float(dtype)) snprintf(text, size, "%.*g", digits, n.re);
    else if (dtype_is_signed(dtype)) snprintf(text, size, "%lld", (long long)n.i);
    else snprintf(text, size, "%llu", (unsigned long long)n.u);
    return text;
}

/* "12 [1, 2]": a flat index and the same by axis. */
static const char *index_text(char *text, size_t size, const struct tensor *t, size_t flat)
{
    int index[MLXVK_MAX_NDIM];
    char axes[200];
    size_t rest = flat;
    for (int i = t->ndim - 1; i >= 0; i--) {
        index[i] = (int)(rest % (size_t)t->shape[i]);
        rest /= (size_t)t->shape[i];
    }
    snprintf(text, size, "%zu %s", flat, shape_text(axes, sizeof axes, index, t->ndim));
    return text;
}

static bool differ(const struct tensor *got, const struct tensor *want, const struct rule *rule, size_t at,
                   size_t wrong, struct problem *problem)
{
    char index[240], a[80], b[80];
    index_text(index, sizeof index, got, at);
    number_text(a, sizeof a, got->dtype, load_number(got->dtype, got->data, at));
    number_text(b, sizeof b, want->dtype, load_number(want->dtype, want->data, at));
    return complain(problem, "index %s: got %s, expected %s (%s, rtol %g, atol %g; %zu of %zu differ)", index, a, b,
                rule->cmp, rule->rtol, rule->atol, wrong, tensor_size(got));
}

static bool compare_elements(const struct tensor *got, const struct tensor *want, const struct rule *rule,
                             element_rule *right, struct problem *problem)
{
    size_t size = tensor_size(want), wrong = 0, first = 0;
    for (size_t i = 0; i < size; i++) {
        struct number g = load_number(got->dtype, got->data, i), w = load_number(want->dtype, want->data, i);
        if (right(want->dtype, g, w, rule)) continue;
        if (!wrong++) first = i;
    }
    return !wrong || differ(got, want, rule, first, wrong, problem);
}

/* ---- order ---- */

static int sign_of(bool greater, bool less) { return greater - less; }

static int order_floats(double a, double b)
{
    if (isnan(a) || isnan(b)) return sign_of(isnan(a) && !isnan(b), !isnan(a) && isnan(b));     /* NaN last */
    return sign_of(a > b, a < b);
}

static int order(mlxvk_dtype dtype, struct number a, struct number b)
{
    if (dtype_is_signed(dtype)) return sign_of(a.i > b.i, a.i < b.i);
    if (!dtype_is_inexact(dtype)) return sign_of(a.u > b.u, a.u < b.u);
    int by_real = order_floats(a.re, b.re);
    return by_real ? by_real : order_floats(a.im, b.im);
}

static mlxvk_dtype sorted_dtype;                                        /* qsort takes no user data */

static int order_elements(const void *a, const void *b)
{
    return order(sorted_dtype, load_number(sorted_dtype, a, 0), load_number(sorted_dtype, b, 0));
}

/* The lanes of a tensor along the rule's axis: element j of lane i is at start(i) + j * step. */
struct lanes { size_t count, length, step; };

static struct lanes lanes_of(const struct tensor *t, const struct rule *rule)
{
    size_t size = tensor_size(t);
    struct lanes lanes = { 1, size, 1 };
    if (!rule->has_axis || !size) return lanes;
    int axis = rule->axis < 0 ? rule->axis + t->ndim : rule->axis;
    for (int i = axis + 1; i < t->ndim; i++) lanes.step *= (size_t)t->shape[i];
    lanes.length = (size_t)t->shape[axis];
    lanes.count = size / lanes.length;
    return lanes;
}

static size_t lane_start(const struct lanes *lanes, size_t lane)
{
    return lane / lanes->step * lanes->step * lanes->length + lane % lanes->step;
}

/* A tensor of t's elements, each lane sorted. */
static struct tensor sorted_copy(const struct tensor *t, const struct rule *rule)
{
    struct tensor res = *t;
    struct lanes lanes = lanes_of(t, rule);
    size_t item = bytes_of(t->dtype);
    unsigned char *lane = need(malloc(lanes.length * item + 1));
    res.data = res.owned = need(malloc(tensor_bytes(t) + 1));
    sorted_dtype = t->dtype;
    for (size_t i = 0; i < lanes.count; i++) {
        size_t start = lane_start(&lanes, i);
        for (size_t j = 0; j < lanes.length; j++)
            memcpy(lane + j * item, t->data + (start + j * lanes.step) * item, item);
        qsort(lane, lanes.length, item, order_elements);
        for (size_t j = 0; j < lanes.length; j++)
            memcpy(res.owned + (start + j * lanes.step) * item, lane + j * item, item);
    }
    free(lane);
    return res;
}

static bool compare_set(const struct tensor *got, const struct tensor *want, const struct rule *rule,
                        struct problem *problem)
{
    struct tensor a = sorted_copy(got, rule), b = sorted_copy(want, rule);
    bool good = compare_elements(&a, &b, rule, is_exact, problem);
    tensor_free(&a);
    tensor_free(&b);
    return good;
}

static struct number at(const struct tensor *t, size_t index) { return load_number(t->dtype, t->data, index); }

/* Element kth of each lane is in its place, and everything is on its side of it. */
static bool parted(const struct tensor *got, const struct tensor *want, const struct rule *rule,
                   struct problem *problem)
{
    struct lanes lanes = lanes_of(got, rule);
    size_t kth = (size_t)(rule->kth < 0 ? rule->kth + (int)lanes.length : rule->kth);
    for (size_t i = 0; i < lanes.count; i++) {
        size_t start = lane_start(&lanes, i), middle = start + kth * lanes.step;
        struct number pivot = at(want, middle);
        for (size_t j = 0; j < lanes.length; j++) {
            int where = order(got->dtype, at(got, start + j * lanes.step), pivot);
            if (j < kth ? where <= 0 : j > kth ? where >= 0 : where == 0) continue;
            return differ(got, want, rule, start + j * lanes.step, 1, problem);
        }
    }
    return true;
}

static bool compare_partition(const struct tensor *got, const struct tensor *want, const struct rule *rule,
                              struct problem *problem)
{
    struct tensor sorted = sorted_copy(got, rule);
    bool good = compare_elements(&sorted, want, rule, is_exact, problem) && parted(got, want, rule, problem);
    tensor_free(&sorted);
    return good;
}

/* Whether the indices of each lane are 0 ... length-1 in some order. */
static bool is_permutation(const struct tensor *indices, const struct rule *rule, struct problem *problem)
{
    struct lanes lanes = lanes_of(indices, rule);
    bool *seen = need(malloc(lanes.length + 1));
    bool good = true;
    for (size_t i = 0; good && i < lanes.count; i++) {
        memset(seen, 0, lanes.length + 1);
        for (size_t j = 0; good && j < lanes.length; j++) {
            size_t place = lane_start(&lanes, i) + j * lanes.step;
            uint64_t index = at(indices, place).u;
            if (index >= lanes.length || seen[index])
                good = complain(problem, "index %zu: got %llu: no index below %zu, or there before",
                                place, (unsigned long long)index, lanes.length);
            else seen[index] = true;
        }
    }
    free(seen);
    return good;
}

/* The input's elements in the order that the indices name. */
static struct tensor taken(const struct tensor *input, const struct tensor *indices, const struct rule *rule)
{
    struct tensor res = *indices;
    struct lanes lanes = lanes_of(indices, rule);
    size_t item = bytes_of(input->dtype);
    res.dtype = input->dtype;
    res.data = res.owned = need(malloc(tensor_bytes(&res) + 1));
    for (size_t i = 0; i < lanes.count; i++) {
        size_t start = lane_start(&lanes, i);
        for (size_t j = 0; j < lanes.length; j++) {
            size_t to = start + j * lanes.step, from = start + at(indices, to).u * lanes.step;
            memcpy(res.owned + to * item, input->data + from * item, item);
        }
    }
    return res;
}

static bool compare_argpartition(const struct tensor *got, const struct tensor *want, const struct rule *rule,
                                 struct problem *problem)
{
    if (!rule->input || tensor_size(rule->input) != tensor_size(got))
        return complain(problem, "the input and the indices differ in size");
    if (!is_permutation(got, rule, problem) || !is_permutation(want, rule, problem)) return false;
    struct tensor a = taken(rule->input, got, rule), b = taken(rule->input, want, rule);
    bool good = compare_partition(&a, &b, rule, problem);
    tensor_free(&a);
    tensor_free(&b);
    return good;
}

/* ---- rules ---- */

static const struct {
    const char *name;
    element_rule *element;
    bool (*whole)(const struct tensor *got, const struct tensor *want, const struct rule *rule,
                  struct problem *problem);
} rules[] = {
    { "bits", is_same, NULL },
    { "exact", is_exact, NULL },
    { "close", is_close, NULL },
    { "denormal-ok", denormal_ok, NULL },
    { "finite", finite_element, NULL },
    { "any", anything, NULL },
    { "set", NULL, compare_set },
    { "partition", NULL, compare_partition },
    { "argpartition", NULL, compare_argpartition },
};

static bool same_form(const struct tensor *got, const struct tensor *want, struct problem *problem)
{
    char a[200], b[200];
    if (got->dtype != want->dtype)
        return complain(problem, "got %s, expected %s", dtype_text(got->dtype), dtype_text(want->dtype));
    bool same = got->ndim == want->ndim && !memcmp(got->shape, want->shape, (size_t)got->ndim * sizeof *got->shape);
    if (same) return true;
    return complain(problem, "got shape %s, expected %s", shape_text(a, sizeof a, got->shape, got->ndim),
                shape_text(b, sizeof b, want->shape, want->ndim));
}

/* An axis or kth of the case that the result does not have would read outside it. */
static bool fits(const struct tensor *t, const struct rule *rule, struct problem *problem)
{
    if (rule->has_axis && (rule->axis >= t->ndim || rule->axis < -t->ndim))
        return complain(problem, "the case's axis %d is outside the result", rule->axis);
    int length = (int)lanes_of(t, rule).length;
    if (rule->kth < length && rule->kth >= -length) return true;
    return length == 0 || complain(problem, "the case's kth %d is outside the result", rule->kth);
}

bool compare(const struct tensor *got, const struct tensor *want, const struct rule *rule, struct problem *problem)
{
    if (!same_form(got, want, problem)) return false;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        if (strcmp(rules[i].name, rule->cmp)) continue;
        if (rules[i].element) return compare_elements(got, want, rule, rules[i].element, problem);
        return fits(got, rule, problem) && rules[i].whole(got, want, rule, problem);
    }
    return complain(problem, "unknown rule of comparison %s", rule->cmp);
}
