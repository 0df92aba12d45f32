/* bench.h - how fast a model runs. */
#ifndef QWEN3_BENCH_H
#define QWEN3_BENCH_H

#include "model.h"

#include <stdio.h>

struct bench {
    int prompt, generate;   /* tokens; 0 leaves that test out */
    int depth;              /* tokens in the context before either */
    int trials;
    double temp, top_p;     /* of the sampling, see sampler.h */
    int top_k;
    double device, weights; /* seconds that opening the device and making the weights took */
};

/* Prints a table: prompt and generation, each beginning with `depth` tokens in the cache, after one run to warm up.
 * With P = 0 and G = 1 the start's line is the time of a fresh process to its first token. */
bool bench_run(const struct bench *b, struct model *m, const char *name, FILE *out, struct error *e);

/* What both tests begin with, as profile.h does: at least `count` tokens, the same in every run and on every machine, to be
 * freed; and `depth` of them in the cache. */
int32_t *bench_tokens(const struct model *m, int count);
bool bench_context(struct model *m, const int32_t *ids, int depth, struct error *e);

#endif
