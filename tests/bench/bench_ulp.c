/* How far functions of float32 are from what the C library says in double, in units of the last place: for functions of one
 * operand over all 2^32 of them, for functions of two over as many pairs.
 *
 *     build/bench/bench_ulp [--functions exp,log] [--stride 1] [--from 0.5 --to 2] [--chunk 24]
 *
 * --stride N: one argument of each N neighbours, picked as if by chance. --from, --to: only what lies between two numbers of one
 * sign, or from a negative to a positive one. --chunk: the power of two that goes to the device at once.
 *
 * Worst and mean are over results and arguments that are normal numbers. Denormal ones have columns of their own, since devices
 * may take them for zeros: how many came out as if the argument or the result were zero, and how far off the others are. Wrong: NaN, infinities or zeros where there should be none, or the other way round, and signs of zeros. */
#define _DEFAULT_SOURCE
#include <float.h>
#include <math.h>
#include <pthread.h>
#include <unistd.h>
#include "bench.h"

#define COUNT(a) (sizeof (a) / sizeof *(a))
#define SMALLEST 0x1p-126                            /* of the normal numbers */

static const double pi = 3.14159265358979323846;

static double rsqrt_of(double x, double y) { (void)y; return 1 / sqrt(x); }
static double reciprocal_of(double x, double y) { (void)y; return 1 / x; }
static double sigmoid_of(double x, double y) { (void)y; return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x)); }
static double logaddexp_of(double x, double y) { return x == y ? x + log(2) : fmax(x, y) + log1p(exp(-fabs(x - y))); }

/* Newton's steps, from what the device says. Next to 1 through erfc, since 1 - |x| is exact. */
static double erfinv_of(double x, double got)
{
    double a = fabs(x), y = fabs(got), step = 1;
    if (!(a < 1)) return a == 1 ? copysign(INFINITY, x) : NAN;
    if (a < 0x1p-60) return x * (sqrt(pi) / 2);
    if (!(y < 6)) y = 0;
    for (int i = 0; i < 100 && fabs(step) > 1e-7 * y; i++) {
        double over = a > 0.5 ? (1 - a) - erfc(y) : erf(y) - a;
        step = over * exp(y * y) * (sqrt(pi) / 2);
        y -= step / (1 + y * step);                  /* Halley's: the second derivative is -2 y times the first */
    }
    return copysign(y, x);
}

typedef int (*unary_function)(mlxvk_array *, mlxvk_array, mlxvk_stream);
typedef int (*binary_function)(mlxvk_array *, mlxvk_array, mlxvk_array, mlxvk_stream);

/* One of `plain` and `want` says what is right: the latter of the argument, and what the device says or the second argument. */
static const struct function {
    const char *name;
    unary_function run;
    double (*plain)(double), (*want)(double, double);
    binary_function of_two;
    float low, high;                                 /* of functions of two: how large the second argument is */
} functions[] = {
    { "sqrt", mlxvk_sqrt, sqrt, NULL, NULL, 0, 0 }, { "rsqrt", mlxvk_rsqrt, NULL, rsqrt_of, NULL, 0, 0 },
    { "reciprocal", mlxvk_reciprocal, NULL, reciprocal_of, NULL, 0, 0 },
    { "exp", mlxvk_exp, exp, NULL, NULL, 0, 0 }, { "expm1", mlxvk_expm1, expm1, NULL, NULL, 0, 0 },
    { "log", mlxvk_log, log, NULL, NULL, 0, 0 }, { "log2", mlxvk_log2, log2, NULL, NULL, 0, 0 },
    { "log10", mlxvk_log10, log10, NULL, NULL, 0, 0 }, { "log1p", mlxvk_log1p, log1p, NULL, NULL, 0, 0 },
    { "sin", mlxvk_sin, sin, NULL, NULL, 0, 0 }, { "cos", mlxvk_cos, cos, NULL, NULL, 0, 0 }, { "tan", mlxvk_tan, tan, NULL, NULL, 0, 0 },
    { "arcsin", mlxvk_arcsin, asin, NULL, NULL, 0, 0 }, { "arccos", mlxvk_arccos, acos, NULL, NULL, 0, 0 },
    { "arctan", mlxvk_arctan, atan, NULL, NULL, 0, 0 }, { "sinh", mlxvk_sinh, sinh, NULL, NULL, 0, 0 },
    { "cosh", mlxvk_cosh, cosh, NULL, NULL, 0, 0 }, { "tanh", mlxvk_tanh, tanh, NULL, NULL, 0, 0 },
    { "arcsinh", mlxvk_arcsinh, asinh, NULL, NULL, 0, 0 }, { "arccosh", mlxvk_arccosh, acosh, NULL, NULL, 0, 0 },
    { "arctanh", mlxvk_arctanh, atanh, NULL, NULL, 0, 0 }, { "erf", mlxvk_erf, erf, NULL, NULL, 0, 0 },
    { "erfinv", mlxvk_erfinv, NULL, erfinv_of, NULL, 0, 0 }, { "sigmoid", mlxvk_sigmoid, NULL, sigmoid_of, NULL, 0, 0 },
    { "power", NULL, NULL, pow, mlxvk_power, 0x1p-10f, 0x1p10f }, { "arctan2", NULL, NULL, atan2, mlxvk_arctan2, 0x1p-30f, 0x1p30f },
    { "logaddexp", NULL, NULL, logaddexp_of, mlxvk_logaddexp, 0x1p-10f, 0x1p10f },
};

struct tally { double worst, sum, denormal; float at, with; uint64_t counted, denormals, flushed, wrong; };
static struct tally tallies[COUNT(functions)];

static struct { uint64_t first, count, stride; uint32_t low; } work = { 0, 0, 1, 0 };   /* low: the key of the least argument */
static float *arguments, *seconds, *results;
static const struct function *current;               /* NULL: arguments are to be made */

static float float_of(uint32_t bits) { float x; memcpy(&x, &bits, 4); return x; }
static uint32_t bits_of(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }
static uint32_t key_of(float x) { uint32_t u = bits_of(x); return u >> 31 ? ~u : u | 0x80000000u; }   /* in the order of numbers */
static uint64_t mixed(uint64_t x)
{
    x = (x ^ x >> 31) * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 29) * 0xd6e8feb86659fd93u;
    return x ^ x >> 32;
}
static float argument(uint64_t i)
{
    uint32_t key = work.low + (uint32_t)(i * work.stride + (work.stride > 1 ? mixed(i) % work.stride : 0));
    return float_of(key >> 31 ? key & 0x7fffffffu : ~key);
}
static float second(uint64_t i, const struct function *f)
{
    uint64_t u = mixed(i + 1);
    uint32_t low = bits_of(f->low), high = bits_of(f->high);
    return float_of((low + (uint32_t)(u >> 1) % (high - low)) | (uint32_t)(u << 31));
}

static double right(const struct function *f, double x, double other) { return f->plain ? f->plain(x) : f->want(x, other); }

static double unit_of(double want)                   /* the last place of a float */
{
    uint64_t u;
    memcpy(&u, &want, 8);
    u &= 0x7ffull << 52;                             /* the power of two below */
    memcpy(&want, &u, 8);
    return want < SMALLEST ? 0x1p-149 : want * 0x1p-23;
}

/* A denormal argument or result: -1 where the one or the other was taken for zero, else how far off it is. */
static double denormal_error(const struct function *f, float x, float y, float got, double want)
{
    float zero = copysignf(0, x);
    double flushed = fabs((double)x) < SMALLEST ? right(f, (double)zero, f->of_two ? (double)y : (double)got) : want;
    double off = fabs((double)got - want) / unit_of(want);
    if (fabs(flushed) < SMALLEST) flushed = copysign(0, flushed);
    if (off <= 1) return off;
    if ((double)got == flushed || (isinf(flushed) && isinf(got)) || (isnan(flushed) && isnan(got))) return -1;
    if (fabs(flushed) >= SMALLEST && fabs((double)got / flushed - 1) < 0x1p-20) return -1;
    return off;
}

static void judge_value(const struct function *f, float x, float y, float got, struct tally *t)
{
    double want = right(f, (double)x, f->of_two ? (double)y : (double)got), off, tiny;
    if (isnan(want) || isnan(got)) { t->wrong += !isnan(want) || !isnan(got); return; }
    if ((x != 0 && fabs((double)x) < SMALLEST) || (want != 0 && fabs(want) < SMALLEST * (1 - 0x1p-24))) {
        t->denormals++;
        tiny = denormal_error(f, x, y, got, want);
        if (tiny < 0) t->flushed++;
        else if (tiny > t->denormal) t->denormal = tiny;
        return;
    }
    if (want == 0 || isinf(want)) { t->wrong += (double)got != want || !signbit(got) != !signbit(want); return; }
    if (isinf(got) && fabs(want) < FLT_MAX) { t->wrong++; return; }
    off = isinf(got) ? 0 : fabs((double)got - want) / unit_of(want);
    t->sum += off;
    t->counted++;
    if (off <= t->worst) return;
    t->worst = off;
    t->at = x;
    t->with = y;
}

enum { MOST_THREADS = 256 };
static int threads;
static struct share { uint64_t from, to; struct tally tally; } shares[MOST_THREADS];

static void *run_share(void *of)
{
    struct share *s = of;
    for (uint64_t i = s->from; i < s->to; i++)
        if (!current) arguments[i] = argument(work.first + i);
        else if (!results) seconds[i] = second(work.first + i, current);
        else judge_value(current, arguments[i], seconds[i], results[i], &s->tally);
    return NULL;
}

static void run_threads(uint64_t n)
{
    pthread_t thread[MOST_THREADS];
    for (int k = 0; k < threads; k++) {
        shares[k] = (struct share){ .from = n * (uint64_t)k / (uint64_t)threads, .to = n * (uint64_t)(k + 1) / (uint64_t)threads };
        if (pthread_create(&thread[k], NULL, run_share, &shares[k])) { fprintf(stderr, "no thread\n"); exit(1); }
    }
    for (int k = 0; k < threads; k++) pthread_join(thread[k], NULL);
}

static void gather(struct tally *t)
{
    for (int k = 0; k < threads; k++) {
        const struct tally *s = &shares[k].tally;
        t->sum += s->sum;
        t->counted += s->counted;
        t->denormals += s->denormals;
        t->flushed += s->flushed;
        t->wrong += s->wrong;
        if (s->denormal > t->denormal) t->denormal = s->denormal;
        if (s->worst > t->worst) { t->worst = s->worst; t->at = s->at; t->with = s->with; }
    }
}

static mlxvk_array upload(const float *data, uint64_t n)
{
    mlxvk_array a = { NULL };
    check(mlxvk_array_new_data_device(&a, data, (int[]){ (int)n }, 1, MLXVK_FLOAT32, device), "array");
    return a;
}

static void run_function(size_t k, mlxvk_array x, float *room, uint64_t n)
{
    const struct function *f = current = &functions[k];
    mlxvk_array y = { NULL }, z = { NULL };
    results = NULL;
    if (f->of_two) {
        run_threads(n);
        y = upload(seconds, n);
    }
    check(f->of_two ? f->of_two(&z, x, y, stream) : f->run(&z, x, stream), f->name);
    check(mlxvk_array_read(z, room, n * 4, stream), f->name);
    results = room;
    run_threads(n);
    gather(&tallies[k]);
    mlxvk_array_free(y);
    mlxvk_array_free(z);
}

static bool chosen(const char *list, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = list; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL)
        if (!strncmp(p, name, n) && (p[n] == ',' || !p[n])) return true;
    return !list;
}

static void print_table(const char *list)
{
    printf("| function | worst, ulp | at | mean, ulp | numbers | denormal | of them as zero | others off by, ulp | wrong |\n");
    printf("|---|---|---|---|---|---|---|---|---|\n");
    for (size_t k = 0; k < COUNT(functions); k++) {
        const struct tally *t = &tallies[k];
        char at[64];
        if (!chosen(list, functions[k].name)) continue;
        snprintf(at, sizeof at, functions[k].of_two ? "%.9g, %.9g" : "%.9g", (double)t->at, (double)t->with);
        printf("| %s | %.4f | %s | %.4f | %llu | %llu | %llu | %.0f | %llu |\n", functions[k].name, t->worst, at,
               t->counted ? t->sum / (double)t->counted : 0.0, (unsigned long long)t->counted, (unsigned long long)t->denormals,
               (unsigned long long)t->flushed, t->denormal, (unsigned long long)t->wrong);
    }
}

static void measure(const char *list, uint64_t chunk)
{
    float *room = malloc(chunk * 4);
    double start = now();
    arguments = malloc(chunk * 4);
    seconds = calloc(chunk, 4);
    if (!room || !arguments || !seconds) { fprintf(stderr, "no memory\n"); exit(1); }
    for (work.first = 0; work.first < work.count; work.first += chunk) {
        uint64_t n = work.count - work.first < chunk ? work.count - work.first : chunk;
        mlxvk_array x;
        current = NULL;
        run_threads(n);
        x = upload(arguments, n);
        for (size_t k = 0; k < COUNT(functions); k++)
            if (chosen(list, functions[k].name)) run_function(k, x, room, n);
        mlxvk_array_free(x);
        fprintf(stderr, "\r%.1f %%, %.0f s", 100 * (double)(work.first + n) / (double)work.count, now() - start);
    }
    fprintf(stderr, "\n");
    free(room);
    free(arguments);
    free(seconds);
}

int main(int count, char **arg)
{
    const char *list = NULL;
    float from = float_of(0xffffffffu), to = float_of(0x7fffffffu);
    int chunk = 24;
    for (int i = 1; i + 1 < count; i += 2) {
        if (!strcmp(arg[i], "--functions")) list = arg[i + 1];
        else if (!strcmp(arg[i], "--stride")) work.stride = strtoull(arg[i + 1], NULL, 0);
        else if (!strcmp(arg[i], "--from")) from = strtof(arg[i + 1], NULL);
        else if (!strcmp(arg[i], "--to")) to = strtof(arg[i + 1], NULL);
        else if (!strcmp(arg[i], "--chunk")) chunk = atoi(arg[i + 1]);
        else count = 0;
    }
    if (count % 2 == 0 || chunk < 10 || chunk > 28 || !work.stride || key_of(to) < key_of(from)) {
        fprintf(stderr, "bench_ulp [--functions a,b] [--stride N] [--from X] [--to Y] [--chunk 10 to 28]\n");
        return 2;
    }
    threads = (int)sysconf(_SC_NPROCESSORS_ONLN);
    threads = threads < 1 ? 1 : threads > MOST_THREADS ? MOST_THREADS : threads;
    work.low = key_of(from);
    work.count = ((uint64_t)key_of(to) - work.low + work.stride) / work.stride;
    open_device(NULL);
    printf("%s, %s; %llu arguments, one of %llu\n\n", device_name, driver, (unsigned long long)work.count, (unsigned long long)work.stride);
    measure(list, (uint64_t)1 << chunk);
    print_table(list);
    close_device();
    return 0;
}
