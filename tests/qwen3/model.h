/* model.h - Qwen3's weights on the device, its cache of keys and values, and its forward pass.
 *
 * The pass is written in MLX's operations as mlx-lm writes it, one after the other; what is fused or run in place is the
 * library's affair, so intermediates are released as soon as the next operation has them. */
#ifndef QWEN3_MODEL_H
#define QWEN3_MODEL_H

#include "config.h"
#include "gpu.h"
#include "safetensors.h"

struct linear {             /* y = x @ weight^T (+ bias) */
    mlxvk_array weight;     /* quantized: uint32 codes (out, in * bits / 32); else (in, out), a transposed view */
    mlxvk_array scales, biases; /* no biases where the codes are small floats */
    mlxvk_array bias;
    struct quantization q;  /* bits 0: not quantized */
};

struct layer {
    mlxvk_array   input_norm, q_norm, k_norm, post_norm;
    struct linear q, k, v, o, gate, up, down;
    mlxvk_array   keys, values; /* the cache: (1, kv heads, capacity, head_dim) */
};

struct model {
    struct gpu    *gpu;
    struct config  config;      /* a view of the caller's: its lists stay the caller's */
    struct layer  *layers;
    struct linear  embed, head; /* head is empty where the embedding is tied */
    mlxvk_array    norm;
    mlxvk_dtype    dtype;       /* of the embedding's rows */
    mlxvk_array    rope_freqs;  /* YaRN's, else none */
    float          rope_scale;  /* of positions */
    mlxvk_array    rope_mscale; /* YaRN's factor on queries and keys, float32, else none */
    mlxvk_array    rope_mscale_cast; /* the same in the dtype that was asked for last */
    int            offset, capacity; /* positions in the cache, and room */
};

/* Called as weights arrive, in bytes. */
typedef void (*model_progress)(void *user, size_t done, size_t total);

/* Both leave nothing behind on failure. config and g must outlive the model. */
bool model_load(struct model *m, struct gpu *g, const struct config *config, const struct safetensors *st,
                model_progress progress, void *user, struct error *e);
/* Weights drawn on the device, of such a size that activations stay finite. */
bool model_random(struct model *m, struct gpu *g, const struct config *config, uint64_t seed, struct error *e);
void model_free(struct model *m);

enum model_want { WANT_CACHE, WANT_LAST, WANT_ALL };

/* Appends the pass over `count` tokens (an integer array of shape (1, count)) to the stream and advances the cache.
 * logits: (1, 1, vocab) of the last position, or (1, count, vocab) of all; untouched for WANT_CACHE.
 * Errors stick to the gpu; the caller sees to it that the positions fit the context. */
void model_forward(struct model *m, mlxvk_array tokens, int count, enum model_want want, mlxvk_array *logits);

/* Whether these tokens are of the vocabulary and fit the context behind `offset` others. */
bool model_takes(const struct config *c, const int32_t *ids, size_t count, int offset, struct error *e);

/* Runs tokens through the model in chunks, all evaluated but the last, whose logits are left as model_forward does. */
bool model_prompt(struct model *m, const int32_t *ids, size_t count, enum model_want want, mlxvk_array *logits,
                  struct error *e);

/* Forgets all but the first `positions` positions; the cache's memory is kept. */
void model_rewind(struct model *m, int positions);
/* Gives the cache's memory back too. */
void model_reset(struct model *m);

/* Computes what the cache holds, and waits. */
void model_eval_cache(struct model *m);

/* Bytes of weights on the device. */
size_t model_bytes(const struct model *m);

#endif
