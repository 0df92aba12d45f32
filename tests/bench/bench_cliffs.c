/* Cliffs: work that takes many times what nearly the same work takes. Walks neighbours (sizes, layouts, offsets, dtypes, batches)
 * and fails where a case takes more than 1.5 times what its better neighbour takes, work for work.
 *
 *     build/bench/bench_cliffs [part of a family's name]      (make bench-cliffs)
 *     build/bench/bench_cliffs @FILE                           cases alone, with their kernels: lines of "family: parameters"
 *
 * A case's work is the time that its bytes take at the copy bandwidth, or its arithmetic at the best speed that its family
 * reached in this run, whichever is longer. What a launch takes is subtracted, and nothing is expected to take less than a few
 * of them. Each operation waits for the one before it, and has operands that no cache holds. Recording counts, in a launch, too.
 * A CPU driver gets sizes that it can do; its times are those of all threads together. */
#include <math.h>
#include "bench.h"
#include "support_cliffs.h"

enum { COPIES = 16, CASES = 2048, PAIRS = 2 * CASES, PASSES = 6, CLASSES = 4, MOST_FAMILIES = 32, FEW_LAUNCHES = 3 };
static const double limit = 1.5, far_over = 3;       /* noise is not so large */

struct sample {
    const struct cliff_family *family;
    int p[CLIFF_PARAMS];
    struct cliff_work work;
    double seconds;
};

static struct sample samples[CASES];
static int sample_count, pair_count;
static struct { int of, neighbour; } pairs[PAIRS];
static double launch, copy_speed;                    /* seconds; bytes a second */
static mlxvk_array sets[COPIES][CLIFF_OPERANDS];     /* of the case that is measured; they take turns */
static int copies;
static const double cold = 192e6;                    /* bytes of all turns, at least: more than caches hold */

static void release(mlxvk_array *a)
{
    mlxvk_array_free(*a);
    a->ctx = NULL;
}

/* ---- operands: views of one array of random elements for each dtype ---- */

static mlxvk_array pools[MLXVK_COMPLEX64 + 1];
static size_t used;                                  /* elements of the pools that the case has */

static int pool_size(void) { return gpu ? 1 << 28 : 1 << 22; }

static mlxvk_array pool_of(mlxvk_dtype as)
{
    mlxvk_array *a = &pools[as], none = { NULL };
    int n = pool_size();
    bool whole = as == MLXVK_UINT8 || as == MLXVK_INT32 || as == MLXVK_UINT32;
    if (a->ctx) return *a;
    if (whole) check(mlxvk_random_bits(a, &n, 1, (int)mlxvk_dtype_size(as), none, stream), "random_bits");
    else check(mlxvk_random_normal(a, &n, 1, as == MLXVK_COMPLEX64 ? MLXVK_FLOAT32 : as, 0, 1, none, stream), "random_normal");
    if (whole) check(mlxvk_view(a, *a, as, stream), "view");
    else check(mlxvk_astype(a, *a, as, stream), "astype");
    check(mlxvk_array_eval(*a), "eval");
    return *a;
}

static mlxvk_array strided(mlxvk_dtype dtype, int offset, const int *shape, const int64_t *strides, size_t ndim, int64_t elements)
{
    mlxvk_array a = { NULL };
    if ((int64_t)used + elements + offset > pool_size()) { fprintf(stderr, "a case is larger than the pool\n"); exit(1); }
    check(mlxvk_as_strided(&a, pool_of(dtype), shape, ndim, strides, ndim, used + (size_t)offset, stream), "as_strided");
    used = (used + (size_t)elements + (size_t)offset + 255) / 256 * 256;
    return a;
}

/* `count` random positions below n. */
static mlxvk_array positions(int count, int n)
{
    static uint64_t state = 1;
    int32_t *at = malloc((size_t)count * sizeof *at);
    mlxvk_array a = { NULL };
    if (!at) exit(1);
    for (int i = 0; i < count; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        at[i] = (int32_t)((uint32_t)(state >> 33) % (uint32_t)n);
    }
    check(mlxvk_array_new_data_device(&a, at, &count, 1, MLXVK_INT32, device), "indices");
    free(at);
    return a;
}

static mlxvk_array zeros(mlxvk_dtype dtype, int rows, int columns)
{
    mlxvk_array a = { NULL };
    check(mlxvk_zeros(&a, (int[]){ rows, columns }, 2, dtype, stream), "zeros");
    check(mlxvk_array_eval(a), "eval");
    return a;
}

/* ---- measuring ---- */

/* Seconds, on a CPU driver of the process on all cores: what else the machine does would count otherwise. */
static double ticks(void) { return gpu ? now() : (double)clock() / CLOCKS_PER_SEC; }

/* Seconds of one: `repeat` of them, each after the one before. The clock runs while they are recorded, because some may run
 * before the last is. */
static double round_of(const struct sample *s, int repeat)
{
    double start = ticks();
    for (int i = 0; i < repeat; i++) {
        mlxvk_array y = { NULL };
        mlxvk_encoder e;
        cliffs.x = sets[i % copies];
        check(s->family->apply(s->p, &y), s->family->name);
        check(mlxvk_stream_encoder(&e, stream), "encoder");
        check(mlxvk_encoder_barrier(e), "barrier");
        mlxvk_array_free(y);
    }
    check(mlxvk_synchronize(stream), "synchronize");
    return (ticks() - start) / repeat;
}

/* Best of rounds that take `busy` seconds together: the clock rises while the device works, and falls while a pipeline is
 * compiled, so the first ones do not count. */
static double best_of(const struct sample *s, double busy)
{
    double best, start, once;
    int repeat = 1;
    round_of(s, 1);
    best = round_of(s, 1);
    while (repeat * best < (gpu ? 2e-3 : 2e-4) && repeat < 256) repeat *= 2;
    start = now();
    for (int i = 0; i < 3 || (now() - start < busy && i < 200); i++)
        if ((once = round_of(s, repeat)) < best || i == 0) best = once;
    return best;
}

static void measure(struct sample *s, double busy)
{
    double seconds;
    used = 0;
    copies = 0;
    do {
        cliffs.x = sets[copies++];
        s->work = s->family->prepare(s->p);
    } while (gpu && copies < COPIES && copies * s->work.bytes < cold);
    seconds = best_of(s, busy);
    if (s->seconds == 0 || seconds < s->seconds) s->seconds = seconds;
    for (int i = 0; i < copies * CLIFF_OPERANDS; i++) release(&sets[i / CLIFF_OPERANDS][i % CLIFF_OPERANDS]);
}

static double usual(void) { return gpu ? 0.05 : 0.03; }

/* A GPU that had little to do takes about a second of work to reach its clock (an H200: the first product took 3,026 us, 620
 * by itself a second later). */
static void warm_up(void)
{
    struct sample first = samples[0];
    if (gpu && sample_count) measure(&first, 1);
}

/* The sample of a case, measured for a moment when it is first met, so that its pipelines are there. */
static int sample_of(const struct cliff_family *f, const int *p)
{
    struct sample *s = &samples[sample_count];
    for (int i = 0; i < sample_count; i++)
        if (samples[i].family == f && !memcmp(samples[i].p, p, sizeof samples[i].p)) return i;
    if (sample_count == CASES) { fprintf(stderr, "too many cases\n"); exit(1); }
    s->family = f;
    memcpy(s->p, p, sizeof s->p);
    measure(s, 0);
    return sample_count++;
}

static void neighbours(int a, int b)
{
    if (pair_count + 2 > PAIRS) { fprintf(stderr, "too many neighbours\n"); exit(1); }
    pairs[pair_count].of = a;
    pairs[pair_count++].neighbour = b;
    pairs[pair_count].of = b;
    pairs[pair_count++].neighbour = a;
}

/* ---- judging ---- */

/* Dtypes that should reach the same speed of arithmetic: those of one size, and all on a CPU driver, which computes in float32. */
static int class_of(const struct sample *s)
{
    double size = cliff_element(s->p[CLIFF_DTYPE]);
    return !gpu ? 0 : size > 4 ? 3 : size > 2 ? 2 : size > 1 ? 1 : 0;
}

static double peaks[MOST_FAMILIES][CLASSES];              /* operations a second */

static void find_peaks(void)
{
    memset(peaks, 0, sizeof peaks);
    for (int i = 0; i < sample_count; i++) {
        double *peak = &peaks[samples[i].family - cliff_families][class_of(&samples[i])], speed = samples[i].work.operations / samples[i].seconds;
        if (speed > *peak) *peak = speed;
    }
}

static double ideal(const struct sample *s)
{
    double peak = peaks[s->family - cliff_families][class_of(s)];
    return fmax(s->work.bytes / copy_speed, peak > 0 ? s->work.operations / peak : 0);
}

/* How many times what the neighbour's speed would make it take. */
static double ratio(const struct sample *s, const struct sample *neighbour)
{
    double expected = (neighbour->seconds - launch) * ideal(s) / ideal(neighbour);
    return (s->seconds - launch) / fmax(expected, FEW_LAUNCHES * launch);
}

/* The neighbour that does best beside a case. */
static int better(int of, double *times)
{
    int best = -1;
    *times = 0;
    for (int i = 0; i < pair_count; i++) {
        double r = pairs[i].of == of ? ratio(&samples[of], &samples[pairs[i].neighbour]) : 0;
        if (r > *times) { *times = r; best = pairs[i].neighbour; }
    }
    return best;
}

/* What looks like a cliff is measured again, at several times, so that noise is none. */
static void doubt(void)
{
    for (int pass = 0; pass < PASSES; pass++) {
        find_peaks();
        warm_up();
        for (int i = 0; i < sample_count; i++) {
            double times;
            int neighbour = better(i, &times);
            if (times <= limit || (pass && times > far_over)) continue;
            measure(&samples[i], usual());
            measure(&samples[neighbour], usual());
        }
    }
    find_peaks();
}

/* ---- reporting ---- */

static int report(int over[])
{
    char a[128], b[128];
    int count = 0;
    for (int i = 0; i < sample_count; i++) {
        double times;
        int neighbour = better(i, &times);
        const struct sample *s = &samples[i];
        if (times <= limit) continue;
        if (!count++) printf("\n| family | case | us | its neighbour | us | times |\n|---|---|---|---|---|---|\n");
        over[s->family - cliff_families]++;
        printf("| %s | %s | %.1f | %s | %.1f | %.2f |\n", s->family->name, cliff_text(s->family, s->p, a), 1e6 * s->seconds,
               cliff_text(samples[neighbour].family, samples[neighbour].p, b), 1e6 * samples[neighbour].seconds, times);
    }
    return count;
}

static void summary(const int over[])
{
    printf("\n| family | cases | cliffs |\n|---|---|---|\n");
    for (int f = 0; f < cliff_family_count; f++) {
        int cases = 0;
        for (int i = 0; i < sample_count; i++) cases += samples[i].family == &cliff_families[f];
        if (cases) printf("| %s | %d | %d |\n", cliff_families[f].name, cases, over[f]);
    }
}

static const struct cliff_family *family_of(const char *name)
{
    for (int f = 0; f < cliff_family_count; f++)
        if (!strcmp(cliff_families[f].name, name)) return &cliff_families[f];
    fprintf(stderr, "no family is called %s\n", name);
    exit(1);
}

/* What a launch takes and how fast a copy is: the better of what it was before and after the cases. */
static void gauge(void)
{
    static struct sample one, copy;
    one.family = family_of("add");
    copy.family = family_of("copy");
    cliff_set(one.family, one.p, "rows=1 columns=1");
    cliff_set(copy.family, copy.p, gpu ? "rows=8192 columns=8192" : "rows=1024 columns=1024");
    measure(&copy, gpu ? 0.5 : 0.1);
    measure(&one, 4 * usual());
    copy_speed = copy.work.bytes / copy.seconds;
    launch = one.seconds;
}

/* ---- cases alone ---- */

static void print_kernel(const char *kernel, uint64_t count, uint64_t nanoseconds, void *unused)
{
    (void)unused;
    printf(", %s", kernel);
    if (count > 1) printf(" x %d", (int)count);
    if (nanoseconds) printf(" %.1f us", 1e-3 * (double)nanoseconds);
}

/* One line's time and what it runs, with times of each under MLX_VK_PROFILE=1. The operands are those of the last round. */
static void case_alone(const struct cliff_family *f, const char *words)
{
    struct sample s = { .family = f };
    char text[128];
    cliff_set(f, s.p, f->defaults);
    cliff_set(f, s.p, words);
    measure(&s, usual());
    measure(&s, usual());
    printf("%s %s: %.1f us", f->name, cliff_text(f, s.p, text), 1e6 * s.seconds);
    used = 0;
    copies = 1;
    cliffs.x = sets[0];
    f->prepare(s.p);
    check(mlxvk_synchronize(stream), "synchronize");
    check(mlxvk_reset_stats(device), "reset_stats");
    round_of(&s, 1);
    check(mlxvk_kernel_stats(device, print_kernel, NULL), "kernel_stats");
    printf("\n");
    fflush(stdout);
    for (int i = 0; i < CLIFF_OPERANDS; i++) release(&sets[0][i]);
}

static int cases_alone(const char *path)
{
    FILE *file = fopen(path, "r");
    char line[256];
    if (!file) { perror(path); return 1; }
    while (fgets(line, sizeof line, file)) {
        char *colon = strchr(line, ':');
        line[strcspn(line, "\n")] = 0;
        if (!colon) { fprintf(stderr, "%s: no family: %s\n", path, line); return 1; }
        *colon = 0;
        case_alone(family_of(line), colon + 1 + strspn(colon + 1, " "));
    }
    fclose(file);
    return 0;
}

int main(int argc, char **argv)
{
    int over[MOST_FAMILIES] = { 0 }, count;
    double start = now();
    const char *wanted = argc > 1 ? argv[1] : "";
    const struct cliff_walker walker = { sample_of, neighbours };
    /* Submissions as long as a round. */
    open_device(ONE_SUBMISSION);
    cliffs = (struct cliffs){ .gpu = gpu, .stream = stream, .strided = strided, .positions = positions, .zeros = zeros };
    if (cliff_family_count > MOST_FAMILIES) { fprintf(stderr, "too many families\n"); return 1; }
    if (*wanted == '@') return cases_alone(wanted + 1);
    gauge();
    for (int f = 0; f < cliff_family_count; f++) {
        if (!strstr(cliff_families[f].name, wanted)) continue;
        fprintf(stderr, "%s\n", cliff_families[f].name);
        cliff_follow(&cliff_families[f], &walker);
    }
    fprintf(stderr, "%d cases\n", sample_count);
    warm_up();
    for (int i = 0; i < sample_count; i++) measure(&samples[i], usual());
    gauge();
    doubt();
    printf("%s, %s, mlxvk %s; copy %.1f GB/s, a launch %.2f us\n", device_name, driver, mlxvk_version_text(), 1e-9 * copy_speed,
           1e6 * launch);
    count = report(over);
    summary(over);
    printf("\n%d cases, %d over %.1f times their better neighbour, %.0f s\n", sample_count, count, limit, now() - start);
    for (int i = 0; i <= MLXVK_COMPLEX64; i++) release(&pools[i]);
    close_device();
    return count > 0;
}
