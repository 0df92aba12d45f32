/* fuzz_programs - random programs, each run twice: lazily with everything on, and operation by operation with every
 * fusion off.
 *
 * Programs are views of views, slices written in place, norms, products, ropes, attention, gathers and the rest, with
 * results that are kept, read early, or dropped before anything ran. The two runs must agree: support_run.c says how
 * far. A program that fails is made short and printed, with the switches that make it right.
 *
 *     fuzz_programs [--seconds N, 20] [--count N] [--seed N, 1] [--keep-going] [--verbose] [--no-shrink]
 *
 * --seed N --count 1 makes program N again. The exit status is 1 where one failed. MLX_VK_... gates in the
 * environment hold for both runs where the program's own do not name them. */
#define _POSIX_C_SOURCE 200809L
#include "support_program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct choices {
    double seconds;
    uint64_t seed, count;
    bool keep_going, verbose, no_shrink;
};

static bool parse(struct choices *c, int argc, char **argv)
{
    *c = (struct choices){ .seconds = 20, .seed = 1 };
    for (int i = 1; i < argc; i++) {
        const char *value = argv[i + 1];
        if (!strcmp(argv[i], "--keep-going")) c->keep_going = true;
        else if (!strcmp(argv[i], "--verbose")) c->verbose = true;
        else if (!strcmp(argv[i], "--no-shrink")) c->no_shrink = true;
        else if (!value) return false;
        else if (!strcmp(argv[i], "--seconds")) { c->seconds = atof(value); i++; }
        else if (!strcmp(argv[i], "--seed")) { c->seed = strtoull(value, NULL, 10); i++; }
        else if (!strcmp(argv[i], "--count")) { c->count = strtoull(value, NULL, 10); i++; }
        else return false;
    }
    return true;
}

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void report(struct program *p, struct problem *problem, const struct choices *c, double after)
{
    char gates[640];
    printf("FAIL program %llu after %.1f s: %s\n", (unsigned long long)p->seed, after, problem->text);
    if (!c->no_shrink) program_shrink(p, problem);
    suspects(p, gates, sizeof gates);
    program_print(p);
    printf("    %s\n    --seed %llu --count 1%s%s%s\n", problem->text, (unsigned long long)p->seed,
           *settings[p->setting].gates ? ", with " : "", settings[p->setting].gates,
           p->straight ? ", against row-major operands" : "");
    printf("    right with %s\n", *gates ? gates : "no fusion switched off");
}

/* Makes one program and runs it; false where it failed. */
static bool one(struct program *p, struct reference *r, const struct choices *c, uint64_t seed, double start)
{
    struct problem problem = { "" };
    if (!running_refresh(&problem)) { printf("FAIL %s\n", problem.text); return false; }
    program_make(p, r, seed);
    if (c->verbose) {
        printf("program %llu, setting %d%s\n", (unsigned long long)seed, p->setting, p->straight ? ", straight" : "");
        program_print(p);
    }
    bool good = program_agrees(p, r, &problem);
    reference_end(r);
    if (!good) report(p, &problem, c, seconds_now() - start);
    program_free(p);
    return good;
}

int main(int argc, char **argv)
{
    struct choices c;
    struct problem problem = { "" };
    unsigned long passed = 0, failed = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!parse(&c, argc, argv)) {
        fputs("usage: fuzz_programs [--seconds N] [--count N] [--seed N] [--keep-going] [--verbose] [--no-shrink]\n",
              stderr);
        return 2;
    }
    if (!running_open(&problem)) {
        fprintf(stderr, "fuzz_programs: %s\n", problem.text);
        return 1;
    }
    struct program *p = need(malloc(sizeof *p));
    struct reference *r = need(malloc(sizeof *r));
    double start = seconds_now();
    for (uint64_t i = 0; c.count ? i < c.count : seconds_now() - start < c.seconds; i++) {
        bool good = one(p, r, &c, c.seed + i, start);
        *(good ? &passed : &failed) += 1;
        if (!good && !c.keep_going) break;
    }
    running_close();
    free(p);
    free(r);
    printf("%lu passed, %lu failed\n", passed, failed);
    return failed != 0;
}
