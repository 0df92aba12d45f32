/* sampler.h - from logits to the next token, on the device, as mlx-lm does it. */
#ifndef QWEN3_SAMPLER_H
#define QWEN3_SAMPLER_H

#include "gpu.h"

struct sampler {
    double      temp;       /* 0: the most likely token */
    double      top_p;      /* keep the most likely tokens of this much probability; 0 or 1: all */
    int         top_k;      /* keep so many; 0: all */
    mlxvk_array key;        /* the state of MLX's generator */
};

bool sampler_check(double temp, double top_p, int top_k, struct error *e);
/* Checks the settings and seeds the generator. */
bool sampler_open(struct sampler *s, struct gpu *g, double temp, double top_p, int top_k, uint64_t seed,
                  struct error *e);
void sampler_close(struct sampler *s);

/* Appends the choice to the stream: logits (1, 1, vocab) -> token, uint32 of shape (1, 1), not evaluated.
 * Errors stick to the gpu. */
void sampler_next(struct sampler *s, struct gpu *g, mlxvk_array logits, mlxvk_array *token);

#endif
