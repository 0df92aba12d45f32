/* config.h - a model's shape, as its config.json says, and the sizes that --random knows. */
#ifndef QWEN3_CONFIG_H
#define QWEN3_CONFIG_H

#include "util.h"

enum { MAX_EOS = 64 };

enum quantization_mode { QUANTIZED_AFFINE, QUANTIZED_MXFP4, QUANTIZED_MXFP8, QUANTIZED_NVFP4 };

struct quantization {       /* bits 0: not quantized */
    int                    bits, group_size;
    enum quantization_mode mode;
};

struct layer_quantization { /* an entry of config.json for one module path */
    char               *path;
    struct quantization q;
    bool                on;
};

enum rope_kind { ROPE_DEFAULT, ROPE_LINEAR, ROPE_YARN };

struct rope {
    enum rope_kind kind;
    double         theta, factor;
    double         beta_fast, beta_slow, mscale, mscale_all_dim; /* YaRN's */
    int            original_positions;
};

struct config {
    int    hidden, intermediate, layers, heads, kv_heads, head_dim, vocab, max_positions;
    double rms_eps;
    bool   tied;
    struct rope                rope;
    struct quantization        quantization;
    struct layer_quantization *overrides;
    size_t                     override_count;
    int32_t                    eos[MAX_EOS];
    int                        eos_count;
};

/* Reads config.json, and generation_config.json where there is one, of a model directory. */
bool config_read(struct config *c, const char *dir, struct error *e);
/* A published model's shape by its size ("0.6b", "1.7b", "4b", "8b", ...). bits: 2 to 8, or 16 for bf16. */
bool config_preset(struct config *c, const char *size, int bits, struct error *e);
void config_free(struct config *c);

const char *quantization_mode_name(enum quantization_mode mode);
bool quantization_is_possible(const struct quantization *q);
/* The one whose codes are small floats of so many bits; false where there is none. */
bool quantization_of_floats(int bits, int group_size, struct quantization *q);

/* What the file says of the module at path ("model.layers.0.mlp.up_proj") in particular; NULL: nothing. */
const struct layer_quantization *config_override(const struct config *c, const char *path);
/* How that module is quantized if it is; NULL where the file says it is not. */
const struct quantization *config_quantization(const struct config *c, const char *path);

bool config_add_eos(struct config *c, int32_t id); /* false where there are too many */
bool config_is_eos(const struct config *c, int32_t id);

#endif
