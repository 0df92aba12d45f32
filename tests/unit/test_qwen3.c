/* test_qwen3.c - the model against a plain float64 implementation of it.
 *
 * The tests write small checkpoints of random weights, of every kind that there is, and compute what they must give on the
 * host from the very values that were stored. The trained tiny model is compared with its own reference. */
#define _POSIX_C_SOURCE 200809L

#include "support_files.h"
#include "../qwen3/check.h"
#include "../qwen3/generate.h"
#include "../qwen3/json.h"
#include "../qwen3/model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct gpu gpu;

static int open_all(void **state)
{
    struct error e = { "" };
    if (make_dir(state))
        return -1;
    bool ok = gpu_open(&gpu, NULL, NULL, &e);
    if (!ok)
        fprintf(stderr, "%s\n", e.text);
    return ok ? 0 : -1;
}

static int close_all(void **state)
{
    gpu_close(&gpu);
    return remove_dir(state);
}

/* ==== >>variants ========================================================================================== */

struct variant {
    const char *name;
    enum st_dtype dtype;
    int  bits, group;               /* bits 0: not quantized */
    int  hidden, intermediate, layers, heads, kv_heads, head_dim, vocab;
    bool untied, bias;
    int  shards;                    /* 0: one file */
    const char *more;               /* more of config.json, beginning with a comma */
    const char *override;           /* this module is not quantized */
    const char *mode;               /* of quantization; NULL: affine */
    int  said_bits;                 /* what config.json says instead of bits; 0: the truth */
    bool wide_norms;                /* norms are float32 whatever the rest is */
    /* what goes wrong: this tensor is left out, or has another dtype, or one row too many */
    const char *missing, *odd_dtype, *odd_shape;
};

#define SHAPE(hidden, intermediate, layers, heads, kv_heads, head_dim) \
    hidden, intermediate, layers, heads, kv_heads, head_dim, 97

static const struct variant variants[] = {
    { "f32, as many kv heads", ST_F32, 0, 0, SHAPE(64, 96, 2, 4, 4, 16), .untied = false },
    { "f16, untied", ST_F16, 0, 0, SHAPE(64, 96, 2, 4, 2, 32), .untied = true },
    { "bf16, one kv head", ST_BF16, 0, 0, SHAPE(64, 96, 2, 4, 1, 64), .untied = false },
    { "bf16 with biases", ST_BF16, 0, 0, SHAPE(64, 96, 2, 4, 2, 16), .untied = true, .bias = true },
    { "4 bits, group 32", ST_BF16, 4, 32, SHAPE(128, 160, 2, 4, 2, 32), .untied = true },
    { "4 bits, group 64", ST_BF16, 4, 64, SHAPE(128, 192, 2, 4, 2, 32), .untied = false },
    { "4 bits, group 128", ST_BF16, 4, 128, SHAPE(128, 256, 2, 4, 2, 64), .untied = false },
    { "2 bits", ST_BF16, 2, 64, SHAPE(128, 192, 2, 4, 2, 32), .untied = true },
    { "3 bits", ST_BF16, 3, 64, SHAPE(128, 192, 2, 4, 2, 32), .untied = false },
    { "5 bits, group 32", ST_BF16, 5, 32, SHAPE(128, 160, 2, 4, 2, 32), .untied = true },
    { "6 bits", ST_BF16, 6, 64, SHAPE(128, 192, 2, 4, 2, 32), .untied = false },
    { "8 bits in 3 shards", ST_BF16, 8, 64, SHAPE(128, 192, 2, 4, 2, 32), .untied = true, .shards = 3 },
    { "4 bits of f16", ST_F16, 4, 64, SHAPE(128, 192, 2, 4, 2, 32), .untied = false },
    { "4 bits of f32", ST_F32, 4, 32, SHAPE(128, 192, 2, 4, 2, 32), .untied = true },
    { "head of 80", ST_F32, 0, 0, SHAPE(64, 96, 2, 2, 1, 80), .untied = false },
    { "head of 96", ST_F32, 4, 32, SHAPE(64, 96, 2, 2, 1, 96), .untied = false },
    { "head of 256", ST_F32, 0, 0, SHAPE(64, 96, 1, 2, 1, 256), .untied = false },
    { "one layer not quantized", ST_BF16, 4, 64, SHAPE(128, 192, 2, 4, 2, 32), .untied = true,
      .override = "model.layers.1.mlp.down_proj" },
    { "embedding not quantized", ST_BF16, 4, 64, SHAPE(128, 192, 2, 4, 2, 32), .untied = true,
      .override = "model.embed_tokens" },
    { "mxfp4", ST_F32, 4, 32, SHAPE(64, 96, 2, 4, 2, 32), .untied = true, .mode = "mxfp4",
      .override = "model.embed_tokens" },
    { "mxfp8", ST_BF16, 8, 32, SHAPE(64, 96, 2, 4, 2, 32), .untied = false, .mode = "mxfp8",
      .wide_norms = true },
    { "nvfp4", ST_BF16, 4, 16, SHAPE(64, 96, 2, 4, 2, 32), .untied = true, .mode = "nvfp4",
      .wide_norms = true },
    { "tensors of 8 bits, config.json of 4", ST_F32, 8, 32, SHAPE(64, 96, 2, 4, 2, 32), .untied = true,
      .said_bits = 4 },
    { "bf16 with norms of f32", ST_BF16, 0, 0, SHAPE(64, 96, 2, 4, 2, 32), .untied = false, .wide_norms = true },
    { "bf16 with norms of f32, YaRN", ST_BF16, 4, 32, SHAPE(64, 96, 2, 4, 2, 32), .untied = false, .wide_norms = true,
      .more = ", \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4, \"original_max_position_embeddings\": 64}",
      .override = "model.embed_tokens" },
    { "linear rope", ST_F32, 0, 0, SHAPE(64, 96, 2, 4, 2, 32), .more =
      ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 4}" },
    { "YaRN", ST_F32, 0, 0, SHAPE(64, 96, 2, 4, 2, 32), .more =
      ", \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4, \"original_max_position_embeddings\": 64}" },
};

/* ==== >>numbers =========================================================================================== */

static uint64_t random_state;

static uint64_t random_bits(void)
{
    uint64_t z = random_state += 0x9e3779b97f4a7c15u; /* splitmix64 */
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static double random_in(double low, double high)
{
    return low + (high - low) * (double)(random_bits() >> 11) / 9007199254740992.0;
}

static uint16_t to_half(double x)
{
    uint16_t sign = x < 0 ? 0x8000 : 0;
    int exponent;
    x = fabs(x);
    double mantissa = frexp(x, &exponent); /* [0.5, 1) */
    if (x == 0 || exponent < -13)
        return (uint16_t)(sign | (uint16_t)nearbyint(ldexp(x, 24)));
    return (uint16_t)(sign | (((exponent + 14) << 10) + (int)nearbyint(ldexp(mantissa, 11)) - 1024));
}

static double from_half(uint16_t h)
{
    int exponent = h >> 10 & 31, mantissa = h & 1023;
    double x = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
    return h & 0x8000 ? -x : x;
}

/* Appends x as dtype; returns the value that it now has. */
static double store(struct text *bytes, enum st_dtype dtype, double x)
{
    float f = (float)x;
    uint32_t u;
    memcpy(&u, &f, 4);
    if (dtype == ST_F32) {
        text_add(bytes, &f, 4);
        return f;
    }
    if (dtype == ST_F16) {
        uint16_t half = to_half(x);
        text_add(bytes, &half, 2);
        return from_half(half);
    }
    u += 0x7fff + (u >> 16 & 1);
    uint16_t high = (uint16_t)(u >> 16);
    text_add(bytes, &high, 2);
    u &= 0xffff0000u;
    memcpy(&f, &u, 4);
    return f;
}

/* ==== >>checkpoints ======================================================================================= */

struct matrix {             /* of the host's model */
    int     rows, columns;
    double *at, *bias;      /* bias NULL: none */
};

struct host_layer {
    struct matrix q, k, v, o, gate, up, down;
    double *input_norm, *q_norm, *k_norm, *post_norm;
};

struct host {
    const struct variant *v;
    struct matrix      embed, head;
    double            *norm;
    struct host_layer *layers;
    /* the files being written */
    struct text headers[4], data[4];
    struct text index;
    int         next;       /* tensors so far */
};

static const char *file_name(const struct host *h, int shard, char *name, size_t size)
{
    if (h->v->shards)
        snprintf(name, size, "model-%05d-of-%05d.safetensors", shard + 1, h->v->shards);
    else
        snprintf(name, size, "model.safetensors");
    return name;
}

/* Puts a tensor into the next shard, with the variant's lies. */
static void put(struct host *h, const char *name, enum st_dtype dtype, int rows, int columns, const struct text *bytes)
{
    char line[512], file[64], shape[48];
    int shard = h->v->shards ? h->next++ % h->v->shards : 0;
    if (h->v->missing && strcmp(h->v->missing, name) == 0)
        return;
    if (h->v->odd_dtype && strcmp(h->v->odd_dtype, name) == 0)
        dtype = st_dtype_size(dtype) == 4 ? ST_I32 : ST_I16;
    if (columns)
        snprintf(shape, sizeof shape, "%d, %d", rows, columns);
    else
        snprintf(shape, sizeof shape, "%d", rows);
    if (h->v->odd_shape && strcmp(h->v->odd_shape, name) == 0)
        snprintf(shape, sizeof shape, "1, %d, %d", rows, columns ? columns : 1);
    size_t begin = h->data[shard].length;
    text_add(&h->data[shard], bytes->data, bytes->length);
    snprintf(line, sizeof line, "%s\"%s\": {\"dtype\": \"%s\", \"shape\": [%s], \"data_offsets\": [%zu, %zu]}",
             h->headers[shard].length ? ", " : "{", name, st_dtype_name(dtype), shape, begin, h->data[shard].length);
    text_add_string(&h->headers[shard], line);
    snprintf(line, sizeof line, "%s\"%s\": \"%s\"", h->index.length ? ", " : "{\"weight_map\": {", name,
             file_name(h, shard, file, sizeof file));
    text_add_string(&h->index, line);
}

static double *make_vector(struct host *h, const char *name, int size, double low, double high)
{
    struct text bytes = { 0 };
    const enum st_dtype dtype = h->v->wide_norms && strstr(name, "norm") ? ST_F32 : h->v->dtype;
    double *at = new_bytes((size_t)size, sizeof *at);
    for (int i = 0; i < size; i++)
        at[i] = store(&bytes, dtype, random_in(low, high));
    put(h, name, dtype, size, 0, &bytes);
    text_free(&bytes);
    return at;
}

/* A float of a sign and so many bits of exponent and mantissa, without infinities. */
static double small_float(int code, int exponent_bits, int mantissa_bits)
{
    const int bias = (1 << (exponent_bits - 1)) - 1, exponent = code >> mantissa_bits & ((1 << exponent_bits) - 1);
    const int mantissa = code & ((1 << mantissa_bits) - 1), implied = exponent ? 1 << mantissa_bits : 0;
    double x = ldexp(mantissa + implied, (exponent ? exponent : 1) - bias - mantissa_bits);
    return code >> (exponent_bits + mantissa_bits) & 1 ? -x : x;
}

/* Codes that are small floats, with a byte for each group: an exponent, or for nvfp4 a small float too. */
static void make_small_floats(struct host *h, const char *path, struct matrix *m, double bound)
{
    const int bits = h->v->bits, group = h->v->group;
    const bool nv = strcmp(h->v->mode, "nvfp4") == 0;
    const double top = bits == 4 ? 6 : 448;
    struct text codes = { 0 }, scales = { 0 };
    char name[160];
    double scale = 0;
    for (int i = 0; i < m->rows * m->columns; i++) {
        if (i % group == 0) {
            int power = (int)floor(log2(bound / top)) + (int)(random_bits() % 3);
            unsigned char byte = (unsigned char)(nv ? ((power + 7) << 3 | (int)(random_bits() % 8)) : power + 127);
            scale = nv ? small_float(byte, 4, 3) : ldexp(1, byte - 127);
            text_add(&scales, &byte, 1);
        }
        int code = bits == 4 ? (int)(random_bits() % 16) : (int)((random_bits() % 2) << 7 | (random_bits() % 0x7f));
        m->at[i] = scale * (bits == 4 ? small_float(code, 2, 1) : small_float(code, 4, 3));
        if (bits == 4 && i % 2)
            codes.data[codes.length - 1] = (char)(codes.data[codes.length - 1] | code << 4);
        else
            text_add(&codes, &(unsigned char){ (unsigned char)code }, 1);
    }
    snprintf(name, sizeof name, "%s.weight", path);
    put(h, name, ST_U32, m->rows, m->columns * bits / 32, &codes);
    snprintf(name, sizeof name, "%s.scales", path);
    put(h, name, ST_U8, m->rows, m->columns / group, &scales);
    text_free(&codes);
    text_free(&scales);
}

/* Random codes, packed as a little-endian stream of bits, and the scales and biases that make numbers of them. */
static void make_quantized(struct host *h, const char *path, struct matrix *m, double bound)
{
    const int bits = h->v->bits, group = h->v->group, top = (1 << bits) - 1;
    struct text codes = { 0 }, scales = { 0 }, biases = { 0 };
    char name[160];
    double scale = 0, bias = 0;
    for (int r = 0; r < m->rows; r++) {
        uint64_t waiting = 0;
        int count = 0;
        for (int c = 0; c < m->columns; c++) {
            if (c % group == 0) {
                double s = random_in(0.5, 1.5) * 2 * bound / top * (random_bits() & 1 ? 1 : -1);
                scale = store(&scales, h->v->dtype, s);
                bias = store(&biases, h->v->dtype, -s * top / 2);
            }
            uint64_t code = random_bits() & (uint64_t)top;
            m->at[(size_t)r * (size_t)m->columns + (size_t)c] = scale * (double)code + bias;
            waiting |= code << count;
            for (count += bits; count >= 8; count -= 8, waiting >>= 8)
                text_add(&codes, &(unsigned char){ (unsigned char)waiting }, 1);
        }
    }
    snprintf(name, sizeof name, "%s.weight", path);
    put(h, name, ST_U32, m->rows, m->columns * bits / 32, &codes);
    snprintf(name, sizeof name, "%s.scales", path);
    put(h, name, h->v->dtype, m->rows, m->columns / group, &scales);
    snprintf(name, sizeof name, "%s.biases", path);
    put(h, name, h->v->dtype, m->rows, m->columns / group, &biases);
    text_free(&codes);
    text_free(&scales);
    text_free(&biases);
}

static void make_matrix(struct host *h, const char *path, int rows, int columns, struct matrix *m)
{
    const double bound = sqrt(3.0 / columns);
    char name[160];
    struct text bytes = { 0 };
    const size_t size = (size_t)rows * (size_t)columns;
    *m = (struct matrix){ rows, columns, new_bytes(size, sizeof *m->at), NULL };
    if (h->v->bits && !(h->v->override && strcmp(h->v->override, path) == 0)) {
        (h->v->mode ? make_small_floats : make_quantized)(h, path, m, bound);
        return;
    }
    for (size_t i = 0; i < size; i++)
        m->at[i] = store(&bytes, h->v->dtype, random_in(-bound, bound));
    snprintf(name, sizeof name, "%s.weight", path);
    put(h, name, h->v->dtype, rows, columns, &bytes);
    text_free(&bytes);
}

static void make_layer(struct host *h, struct host_layer *l, int index)
{
    const struct variant *v = h->v;
    const int width = v->heads * v->head_dim, kv_width = v->kv_heads * v->head_dim;
    const struct { const char *name; int rows, columns; struct matrix *m; bool attention; } rows[] = {
        { "self_attn.q_proj", width, v->hidden, &l->q, true },  { "self_attn.k_proj", kv_width, v->hidden, &l->k, true },
        { "self_attn.v_proj", kv_width, v->hidden, &l->v, true }, { "self_attn.o_proj", v->hidden, width, &l->o, true },
        { "mlp.gate_proj", v->intermediate, v->hidden, &l->gate, false },
        { "mlp.up_proj", v->intermediate, v->hidden, &l->up, false },
        { "mlp.down_proj", v->hidden, v->intermediate, &l->down, false },
    };
    const struct { const char *name; int size; double **to; } norms[] = {
        { "input_layernorm", v->hidden, &l->input_norm }, { "self_attn.q_norm", v->head_dim, &l->q_norm },
        { "self_attn.k_norm", v->head_dim, &l->k_norm }, { "post_attention_layernorm", v->hidden, &l->post_norm },
    };
    char path[128], name[160];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        snprintf(path, sizeof path, "model.layers.%d.%s", index, rows[i].name);
        make_matrix(h, path, rows[i].rows, rows[i].columns, rows[i].m);
        snprintf(name, sizeof name, "%s.bias", path);
        if (v->bias && rows[i].attention)
            rows[i].m->bias = make_vector(h, name, rows[i].rows, -0.5, 0.5);
    }
    for (size_t i = 0; i < sizeof norms / sizeof *norms; i++) {
        snprintf(name, sizeof name, "model.layers.%d.%s.weight", index, norms[i].name);
        *norms[i].to = make_vector(h, name, norms[i].size, 0.5, 1.5);
    }
}

static void write_file(const char *name, const struct text *a, const struct text *b, const struct text *c)
{
    char *path = path_join(dir, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    const struct text *parts[] = { a, b, c };
    for (int i = 0; i < 3; i++)
        if (parts[i])
            assert_int_equal(fwrite(parts[i]->data, 1, parts[i]->length, file), parts[i]->length);
    assert_int_equal(fclose(file), 0);
    free(path);
}

static double theta(const struct variant *v)
{
    return v->more && strstr(v->more, "linear") ? 1e4 : 1e6;
}

static void write_config(const struct variant *v)
{
    char text[2048], quantization[256] = "";
    if (v->bits)
        snprintf(quantization, sizeof quantization, ", \"quantization\": {\"bits\": %d, \"group_size\": %d%s%s%s%s%s%s}",
                 v->said_bits ? v->said_bits : v->bits, v->group, v->mode ? ", \"mode\": \"" : "",
                 v->mode ? v->mode : "", v->mode ? "\"" : "",
                 v->override ? ", \"" : "", v->override ? v->override : "", v->override ? "\": false" : "");
    int length = snprintf(text, sizeof text,
        "{\"model_type\": \"qwen3\", \"hidden_size\": %d, \"intermediate_size\": %d, \"num_hidden_layers\": %d,"
        "\"num_attention_heads\": %d, \"num_key_value_heads\": %d, \"head_dim\": %d, \"vocab_size\": %d,"
        "\"max_position_embeddings\": 4096, \"rms_norm_eps\": 1e-6, \"rope_theta\": %g, \"tie_word_embeddings\": %s%s%s}",
        v->hidden, v->intermediate, v->layers, v->heads, v->kv_heads, v->head_dim, v->vocab, theta(v),
        v->untied ? "false" : "true", quantization, v->more ? v->more : "");
    write_file("config.json", &(struct text){ text, (size_t)length, 0 }, NULL, NULL);
}

static void write_weights(struct host *h)
{
    char name[64];
    for (int i = 0; i < (h->v->shards ? h->v->shards : 1); i++) {
        text_add_string(&h->headers[i], "}");
        uint64_t length = h->headers[i].length;
        write_file(file_name(h, i, name, sizeof name), &(struct text){ (char *)&length, 8, 0 }, &h->headers[i],
                   &h->data[i]);
        text_free(&h->headers[i]);
        text_free(&h->data[i]);
    }
    text_add_string(&h->index, "}}");
    if (h->v->shards)
        write_file("model.safetensors.index.json", &h->index, NULL, NULL);
    text_free(&h->index);
}

/* Writes a checkpoint and keeps its numbers. */
static void make_model(struct host *h, const struct variant *v)
{
    *h = (struct host){ .v = v, .layers = new_bytes((size_t)v->layers, sizeof *h->layers) };
    random_state = 1;
    write_config(v);
    make_matrix(h, "model.embed_tokens", v->vocab, v->hidden, &h->embed);
    for (int i = 0; i < v->layers; i++)
        make_layer(h, &h->layers[i], i);
    h->norm = make_vector(h, "model.norm.weight", v->hidden, 0.5, 1.5);
    if (v->untied)
        make_matrix(h, "lm_head", v->vocab, v->hidden, &h->head);
    write_weights(h);
}

static void free_matrix(struct matrix *m)
{
    free(m->at);
    free(m->bias);
}

static void free_host(struct host *h)
{
    char name[64];
    for (int i = 0; i < (h->v->shards ? h->v->shards : 1); i++)
        remove_file(file_name(h, i, name, sizeof name));
    remove_file("config.json");
    remove_file("model.safetensors.index.json");
    for (int i = 0; i < h->v->layers; i++) {
        struct host_layer *l = &h->layers[i];
        struct matrix *matrices[] = { &l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down };
        for (int j = 0; j < 7; j++)
            free_matrix(matrices[j]);
        free(l->input_norm);
        free(l->q_norm);
        free(l->k_norm);
        free(l->post_norm);
    }
    free_matrix(&h->embed);
    free_matrix(&h->head);
    free(h->norm);
    free(h->layers);
}

/* ==== >>float64: the forward pass, written to be read ====================================================== */

/* rows of x times the matrix, transposed */
static double *apply(const struct matrix *m, const double *x, int count)
{
    double *y = new_bytes((size_t)count * (size_t)m->rows, sizeof *y);
    for (int t = 0; t < count; t++)
        for (int r = 0; r < m->rows; r++) {
            double sum = m->bias ? m->bias[r] : 0;
            for (int c = 0; c < m->columns; c++)
                sum += m->at[r * m->columns + c] * x[t * m->columns + c];
            y[t * m->rows + r] = sum;
        }
    return y;
}

static void normalize(double *y, const double *x, const double *weight, int count, int size)
{
    for (int t = 0; t < count; t++) {
        double squares = 0;
        for (int i = 0; i < size; i++)
            squares += x[t * size + i] * x[t * size + i];
        for (int i = 0; i < size; i++)
            y[t * size + i] = x[t * size + i] / sqrt(squares / size + 1e-6) * weight[i];
    }
}

/* The angle by which pair i turns per position, as transformers writes it, and YaRN's factor. */
static double frequency(const struct variant *v, int i, double *factor)
{
    const bool yarn = v->more && strstr(v->more, "yarn"), line = v->more && strstr(v->more, "linear");
    const double pi = 3.14159265358979323846, base = theta(v), plain = pow(base, -2.0 * i / v->head_dim);
    *factor = 1;
    if (line)
        return plain / 4;
    if (!yarn)
        return plain;
    double low = v->head_dim * log(64 / (32 * 2 * pi)) / (2 * log(base));
    double high = v->head_dim * log(64 / (1 * 2 * pi)) / (2 * log(base));
    low = fmax(floor(low), 0);
    high = fmin(ceil(high), v->head_dim - 1);
    double ramp = fmin(fmax((i - low) / (high - low), 0), 1);
    *factor = 0.1 * log(4) + 1;
    return plain / 4 * ramp + plain * (1 - ramp);
}

/* Norm and rotation of the heads of (count, heads * head_dim). */
static void turn_heads(const struct variant *v, double *x, const double *norm, int count, int heads)
{
    const int dim = v->head_dim, half = dim / 2;
    normalize(x, x, norm, count * heads, dim);
    for (int t = 0; t < count; t++)
        for (int n = 0; n < heads; n++)
            for (int i = 0; i < half; i++) {
                double factor, angle = t * frequency(v, i, &factor), *a = x + (t * heads + n) * dim + i, *b = a + half;
                double c = cos(angle) * factor, s = sin(angle) * factor, a0 = *a;
                *a = a0 * c - *b * s;
                *b = a0 * s + *b * c;
            }
}

/* Head n of position t over positions 0 to t. */
static void attend(const struct variant *v, const double *q, const double *k, const double *values, int t, int n,
                   double *out)
{
    const int dim = v->head_dim, kv = n / (v->heads / v->kv_heads);
    double *weights = new_bytes((size_t)t + 1, sizeof *weights), largest = -INFINITY, sum = 0;
    for (int u = 0; u <= t; u++) {
        for (int i = 0; i < dim; i++)
            weights[u] += q[(t * v->heads + n) * dim + i] * k[(u * v->kv_heads + kv) * dim + i] / sqrt(dim);
        largest = fmax(largest, weights[u]);
    }
    for (int u = 0; u <= t; u++)
        sum += weights[u] = exp(weights[u] - largest);
    for (int u = 0; u <= t; u++)
        for (int i = 0; i < dim; i++)
            out[(t * v->heads + n) * dim + i] += weights[u] / sum * values[(u * v->kv_heads + kv) * dim + i];
    free(weights);
}

static void add_to(double *h, double *more, size_t count)
{
    for (size_t i = 0; i < count; i++)
        h[i] += more[i];
    free(more);
}

static void host_layer(const struct variant *v, const struct host_layer *l, double *h, int count)
{
    const size_t size = (size_t)count * (size_t)v->hidden;
    double *x = new_bytes(size, sizeof *x);
    normalize(x, h, l->input_norm, count, v->hidden);
    double *q = apply(&l->q, x, count), *k = apply(&l->k, x, count), *values = apply(&l->v, x, count);
    double *out = new_bytes((size_t)count * (size_t)(v->heads * v->head_dim), sizeof *out);
    turn_heads(v, q, l->q_norm, count, v->heads);
    turn_heads(v, k, l->k_norm, count, v->kv_heads);
    for (int t = 0; t < count; t++)
        for (int n = 0; n < v->heads; n++)
            attend(v, q, k, values, t, n, out);
    add_to(h, apply(&l->o, out, count), size);
    normalize(x, h, l->post_norm, count, v->hidden);
    double *gate = apply(&l->gate, x, count), *up = apply(&l->up, x, count);
    for (int i = 0; i < count * v->intermediate; i++)
        gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
    add_to(h, apply(&l->down, gate, count), size);
    free(x), free(q), free(k), free(values), free(out), free(gate), free(up);
}

/* Logits of all positions, (count, vocab). */
static double *host_forward(const struct host *host, const int32_t *ids, int count)
{
    const struct variant *v = host->v;
    double *h = new_bytes((size_t)count * (size_t)v->hidden, sizeof *h);
    for (int t = 0; t < count; t++)
        memcpy(h + t * v->hidden, host->embed.at + ids[t] * v->hidden, (size_t)v->hidden * sizeof *h);
    for (int i = 0; i < v->layers; i++)
        host_layer(v, &host->layers[i], h, count);
    normalize(h, h, host->norm, count, v->hidden);
    double *logits = apply(v->untied ? &host->head : &host->embed, h, count);
    free(h);
    return logits;
}

/* ==== >>compare =========================================================================================== */

static bool load(struct model *m, struct config *c, struct error *e)
{
    struct safetensors st;
    bool ok = config_read(c, dir, e);
    if (!ok)
        return false;
    ok = safetensors_open(&st, dir, e);
    if (ok) {
        ok = model_load(m, &gpu, c, &st, NULL, NULL, e);
        safetensors_close(&st);
    }
    if (!ok)
        config_free(c);
    return ok;
}

/* Roundings accumulate; a model in float32 shows mistakes, the others that their dtypes are handled. */
static double tolerance(const struct variant *v)
{
    return v->dtype == ST_F32 || v->wide_norms ? 2e-4 : v->dtype == ST_F16 ? 0.02 : 0.12;
}

/* Rows of logits, (1, count, vocab) on the device, against the host's. */
static void compare(const struct variant *v, mlxvk_array logits, const double *want, int count, const char *how)
{
    const size_t size = (size_t)count * (size_t)v->vocab;
    float *got = new_bytes(size, sizeof *got);
    mlxvk_array floats = { NULL };
    struct error e = { "" };
    gpu_check(&gpu, mlxvk_astype(&floats, logits, MLXVK_FLOAT32, gpu.stream));
    gpu_check(&gpu, mlxvk_array_read(floats, got, size * sizeof *got, gpu.stream));
    gpu_drop(&floats);
    if (!gpu_ok(&gpu, "logits", &e))
        print_error("%s\n", e.text);
    assert_string_equal(e.text, "");
    double worst = 0;
    size_t where = 0;
    for (size_t i = 0; i < size; i++)
        if (!(fabs(got[i] - want[i]) <= worst)) {
            worst = fabs(got[i] - want[i]);
            where = i;
        }
    if (!(worst <= tolerance(v)))
        print_error("%s, %s: position %zu, token %zu: got %g, expected %g\n", v->name, how, where / (size_t)v->vocab,
                    where % (size_t)v->vocab, got[where], want[where]);
    assert_true(worst <= tolerance(v));
    free(got);
}

static void fill(const struct variant *v, int32_t *ids, int count)
{
    random_state = 2;
    for (int i = 0; i < count; i++)
        ids[i] = (int32_t)(random_bits() % (uint64_t)v->vocab);
}

/* All at once, and a prompt followed by single tokens. */
static void compare_variant(const struct variant *v, int count, int prompt)
{
    struct host host;
    struct config c;
    struct model m;
    struct error e = { "" };
    mlxvk_array logits = { NULL };
    int32_t *ids = new_bytes((size_t)count, sizeof *ids);
    make_model(&host, v);
    fill(v, ids, count);
    double *want = host_forward(&host, ids, count);
    bool ok = load(&m, &c, &e);
    free_host(&host);
    if (!ok)
        print_error("%s: %s\n", v->name, e.text);
    assert_true(ok);
    assert_true(model_prompt(&m, ids, (size_t)count, WANT_ALL, &logits, &e));
    if (count <= 2048)
        compare(v, logits, want, count, "in one prompt");
    model_reset(&m);
    assert_true(model_prompt(&m, ids, (size_t)prompt, WANT_LAST, &logits, &e));
    compare(v, logits, want + (size_t)(prompt - 1) * (size_t)v->vocab, 1, "after the prompt");
    for (int t = prompt; t < count; t++) {
        assert_true(model_prompt(&m, ids + t, 1, WANT_LAST, &logits, &e));
        compare(v, logits, want + (size_t)t * (size_t)v->vocab, 1, "token by token");
    }
    gpu_drop(&logits);
    model_free(&m);
    config_free(&c);
    free(ids);
    free(want);
}

static void test_variants(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++)
        compare_variant(&variants[i], 12, 7);
}

/* Across the places where the cache grows. */
static void test_cache_growth(void **state)
{
    const struct variant v = { "growth", ST_F32, 0, 0, SHAPE(32, 32, 2, 2, 1, 16), .untied = false };
    (void)state;
    compare_variant(&v, 270, 250);
    compare_variant(&v, 259, 256);
    compare_variant(&v, 515, 510);
}

/* A prompt of more than one chunk. */
static void test_long_prompt(void **state)
{
    const struct variant v = { "long prompt", ST_F32, 0, 0, SHAPE(32, 32, 1, 2, 1, 16), .untied = false };
    (void)state;
    compare_variant(&v, 2052, 2050);
}

static void test_rewind(void **state)
{
    const struct variant v = { "rewind", ST_F32, 0, 0, SHAPE(32, 32, 2, 2, 1, 16), .untied = false };
    struct host host;
    struct config c;
    struct model m;
    struct error e = { "" };
    mlxvk_array logits = { NULL };
    int32_t ids[9];
    (void)state;
    make_model(&host, &v);
    fill(&v, ids, 9);
    double *want = host_forward(&host, ids, 9);
    assert_true(load(&m, &c, &e));
    free_host(&host);
    assert_true(model_prompt(&m, (int32_t[]){ ids[0], ids[1], ids[2], 5, 6, 7 }, 6, WANT_LAST, &logits, &e));
    model_rewind(&m, 3);
    assert_true(model_prompt(&m, ids + 3, 6, WANT_LAST, &logits, &e));
    compare(&v, logits, want + 8 * v.vocab, 1, "after rewinding");
    gpu_drop(&logits);
    model_free(&m);
    config_free(&c);
    free(want);
}

/* ==== >>bad checkpoints =================================================================================== */

static void refused(struct variant v, const char *why)
{
    struct host host;
    struct config c;
    struct model m;
    struct error e = { "" };
    make_model(&host, &v);
    bool ok = load(&m, &c, &e);
    free_host(&host);
    if (ok || !strstr(e.text, why))
        print_error("expected \"%s\", got \"%s\"\n", why, e.text);
    assert_false(ok);
    assert_non_null(strstr(e.text, why));
}

static void test_bad_checkpoints(void **state)
{
    const struct variant v = { "bad", ST_BF16, 4, 32, SHAPE(64, 96, 1, 2, 1, 32), .untied = true };
    struct variant x;
    (void)state;
    static const char *const names[] = { "model.norm.weight", "lm_head.weight", "model.layers.0.self_attn.q_norm.weight",
                                         "model.layers.0.mlp.up_proj.biases", "model.embed_tokens.scales" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        /* without scales a matrix counts as not quantized, and its codes are no numbers */
        bool scales = strstr(names[i], "scales") != NULL;
        x = v, x.missing = names[i];
        refused(x, scales ? "model.embed_tokens.weight" : "is missing");
        refused(x, scales ? "model.embed_tokens.weight" : names[i]);
        x = v, x.odd_dtype = names[i];
        refused(x, names[i]);
        x = v, x.odd_shape = names[i];
        refused(x, names[i]);
    }
    x = v, x.missing = "model.layers.0.self_attn.k_proj.weight";
    refused(x, "model.layers.0.self_attn.k_proj.weight is missing");
}

/* The file's shapes and config.json's do not agree. */
static void test_wrong_config(void **state)
{
    const struct variant v = { "bad", ST_F32, 0, 0, SHAPE(64, 96, 1, 2, 1, 32), .untied = false };
    struct variant said = v;
    struct host host;
    struct config c;
    struct model m;
    struct error e = { "" };
    (void)state;
    make_model(&host, &v);
    said.heads = 4;
    write_config(&said);
    assert_false(load(&m, &c, &e));
    assert_non_null(strstr(e.text, "q_proj.weight is F32 [64, 64], but config.json makes it [128, 64]"));
    said = v, said.layers = 2;
    write_config(&said);
    assert_false(load(&m, &c, &e));
    assert_non_null(strstr(e.text, "model.layers.1.self_attn.q_proj.weight is missing"));
    free_host(&host);
    make_model(&host, &(struct variant){ "more", ST_F32, 0, 0, SHAPE(64, 96, 2, 2, 1, 32), .untied = false });
    write_config(&v);
    assert_false(load(&m, &c, &e));
    assert_non_null(strstr(e.text, "model.layers.1.input_layernorm.weight is none of the model"));
    free_host(&host);
    make_model(&host, &v);
    said = v, said.bits = 4, said.group = 32; /* no scales: whatever config.json says, it is not quantized */
    write_config(&said);
    assert_true(load(&m, &c, &e));
    model_free(&m);
    config_free(&c);
    free_host(&host);
}

static void test_bad_prompts(void **state)
{
    const struct variant v = { "prompts", ST_F32, 0, 0, SHAPE(32, 32, 1, 2, 1, 16), .untied = false };
    struct host host;
    struct config c;
    struct model m;
    struct error e = { "" };
    mlxvk_array logits = { NULL };
    int32_t *many = new_bytes(4097, sizeof *many);
    (void)state;
    make_model(&host, &v);
    assert_true(load(&m, &c, &e));
    free_host(&host);
    assert_false(model_prompt(&m, (int32_t[]){ 1, 97 }, 2, WANT_LAST, &logits, &e));
    assert_non_null(strstr(e.text, "token 1 of the prompt is 97, outside"));
    assert_false(model_prompt(&m, (int32_t[]){ -1 }, 1, WANT_LAST, &logits, &e));
    assert_false(model_prompt(&m, many, 4097, WANT_LAST, &logits, &e));
    assert_non_null(strstr(e.text, "longer than the model's context of 4096"));
    assert_true(model_prompt(&m, many, 3, WANT_LAST, &logits, &e)); /* it is as good as before */
    gpu_drop(&logits);
    free(many);
    model_free(&m);
    config_free(&c);
}

/* ==== >>sampling ========================================================================================== */

static uint32_t sample(struct sampler *s, const float *logits, int count)
{
    mlxvk_array array = { NULL }, token = { NULL };
    struct error e = { "" };
    uint32_t id = 0;
    gpu_check(&gpu, mlxvk_array_new_data_device(&array, logits, (int[]){ 1, 1, count }, 3, MLXVK_FLOAT32, gpu.device));
    sampler_next(s, &gpu, array, &token);
    gpu_check(&gpu, mlxvk_array_item_uint32(&id, token));
    gpu_drop(&array);
    gpu_drop(&token);
    if (!gpu_ok(&gpu, "sampler", &e))
        print_error("%s\n", e.text);
    assert_string_equal(e.text, "");
    return id;
}

/* How often each of 5 tokens is drawn in 400. */
static void histogram(double temp, double top_p, int top_k, int counts[5])
{
    const float logits[5] = { 0.6931472f, 3, 2.0794415f, -1, 1.3862944f }; /* e^x: 2, 20.09, 8, 0.37, 4 */
    struct sampler s;
    struct error e = { "" };
    memset(counts, 0, 5 * sizeof *counts);
    assert_true(sampler_open(&s, &gpu, temp, top_p, top_k, 7, &e));
    for (int i = 0; i < 400; i++) {
        uint32_t id = sample(&s, logits, 5);
        assert_in_range(id, 0, 4);
        counts[id]++;
    }
    sampler_close(&s);
}

static void test_sampler(void **state)
{
    int counts[5];
    (void)state;
    histogram(0, 1, 0, counts);
    assert_int_equal(counts[1], 400);
    histogram(1, 1, 1, counts);
    assert_int_equal(counts[1], 400);
    histogram(1, 0.5, 0, counts);                       /* the first alone has 0.58 */
    assert_int_equal(counts[1], 400);
    histogram(1, 1, 2, counts);
    assert_int_equal(counts[1] + counts[2], 400);
    assert_in_range(counts[2], 80, 150);                /* 8 / 28.09 of 400: 114 */
    histogram(1, 0.8, 0, counts);                       /* 0.58 + 0.23 */
    assert_int_equal(counts[1] + counts[2], 400);
    assert_true(counts[2] > 0);
    histogram(1, 1, 0, counts);
    assert_in_range(counts[1], 200, 270);               /* 233 */
    assert_in_range(counts[4], 25, 75);                 /* 46 */
    histogram(100, 1, 0, counts);                       /* nearly even */
    for (int i = 0; i < 5; i++)
        assert_in_range(counts[i], 45, 120);
}

static void test_sampler_seed(void **state)
{
    struct sampler a, b;
    struct error e = { "" };
    const float logits[4] = { 0 };
    (void)state;
    assert_true(sampler_open(&a, &gpu, 1, 1, 0, 5, &e));
    assert_true(sampler_open(&b, &gpu, 1, 1, 0, 5, &e));
    for (int i = 0; i < 20; i++)
        assert_int_equal(sample(&a, logits, 4), sample(&b, logits, 4));
    sampler_close(&a);
    sampler_close(&b);
    assert_false(sampler_open(&a, &gpu, -1, 1, 0, 5, &e));
    assert_false(sampler_open(&a, &gpu, 1, 1.5, 0, 5, &e));
    assert_false(sampler_open(&a, &gpu, 1, 1, -1, 5, &e));
}

/* ==== >>the tiny model ==================================================================================== */

static void open_tiny(struct model *m, struct config *c)
{
    struct safetensors st;
    struct error e = { "" };
    assert_true(config_read(c, "tests/models/tiny-qwen3", &e));
    assert_true(safetensors_open(&st, "tests/models/tiny-qwen3", &e));
    assert_true(model_load(m, &gpu, c, &st, NULL, NULL, &e));
    safetensors_close(&st);
}

static void test_reference(void **state)
{
    struct config c;
    struct model m;
    struct error e = { "" };
    (void)state;
    open_tiny(&m, &c);
    bool ok = check_reference(&m, "tests/models/tiny-qwen3/reference.json", stdout, &e);
    fflush(stdout);
    assert_string_equal(e.text, "");
    assert_true(ok);
    model_free(&m);
    config_free(&c);
}

/* The first case of the tiny model's reference, with this JSON in place of logit `at` (NULL: as it is). */
static void write_spoiled(const char *name, int at, const char *json)
{
    struct error e = { "" };
    cJSON *root = json_read("tests/models/tiny-qwen3/reference.json", &e);
    cJSON *cases = cJSON_GetObjectItemCaseSensitive(root, "cases");
    while (cJSON_GetArraySize(cases) > 1)
        cJSON_DeleteItemFromArray(cases, 1);
    cJSON *logits = cJSON_GetObjectItemCaseSensitive(cJSON_GetArrayItem(cases, 0), "logits_after_prompt");
    assert_true(cJSON_IsNumber(cJSON_GetArrayItem(logits, at)));
    if (json)
        cJSON_ReplaceItemInArray(logits, at, cJSON_CreateRaw(json));
    char *text = cJSON_PrintUnformatted(root);
    assert_non_null(text);
    write_text(name, text);
    cJSON_free(text);
    cJSON_Delete(root);
}

/* One wrong logit is one too many, a NaN among them, wherever it stands. */
static void test_spoiled_reference(void **state)
{
    static const struct { int at; const char *json; bool good; } cases[] = {
        { 7, NULL, true },    { 7, "60", false },    { 7, "1e999", false },
        { 0, "null", false }, { 7, "null", false }, { 4095, "null", false },
    };
    struct config c;
    struct model m;
    struct error e = { "" };
    (void)state;
    open_tiny(&m, &c);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *path = path_join(dir, "spoiled.json");
        write_spoiled("spoiled.json", cases[i].at, cases[i].json);
        FILE *out = tmpfile();
        assert_non_null(out);
        bool good = check_reference(&m, path, out, &e);
        fclose(out);
        assert_string_equal(e.text, "");
        if (good != cases[i].good)
            fail_msg("case %zu: %s", i, good ? "a wrong logit was accepted" : "refused");
        free(path);
        remove_file("spoiled.json");
    }
    model_free(&m);
    config_free(&c);
}

static void collect(void *user, int32_t id)
{
    ids_add(user, id);
}

/* The pipelined loop gives what one step after the other gives, and stops where it must. */
static void test_generation(void **state)
{
    struct config c;
    struct model m;
    struct sampler greedy;
    struct error e = { "" };
    struct ids ids = { 0 };
    mlxvk_array logits = { NULL }, token = { NULL };
    const int32_t prompt[] = { 799, 201, 266, 415, 984 };
    (void)state;
    open_tiny(&m, &c);
    assert_true(sampler_open(&greedy, &gpu, 0, 1, 0, 0, &e));
    struct generation run = { .max_tokens = 12, .on_token = collect, .user = &ids };
    assert_true(generate(&run, &m, &greedy, prompt, 5, &e));
    assert_int_equal(ids.length, 12);
    assert_int_equal(run.tokens, 12);
    assert_int_equal(run.prompt_tokens, 5);
    model_reset(&m);
    assert_true(model_prompt(&m, prompt, 5, WANT_LAST, &logits, &e));
    for (size_t i = 0; i < ids.length; i++) {
        uint32_t id = 0;
        sampler_next(&greedy, &gpu, logits, &token);
        gpu_check(&gpu, mlxvk_array_item_uint32(&id, token));
        assert_int_equal(id, ids.data[i]);
        assert_true(model_prompt(&m, &ids.data[i], 1, WANT_LAST, &logits, &e));
    }
    m.config.eos[m.config.eos_count++] = ids.data[4]; /* now the fifth ends the text */
    struct ids cut = { 0 };
    run.user = &cut;
    model_reset(&m);
    assert_true(generate(&run, &m, &greedy, prompt, 5, &e));
    assert_true(cut.length <= 4 && run.tokens == cut.length + 1);
    gpu_drop(&logits);
    gpu_drop(&token);
    ids_free(&ids);
    ids_free(&cut);
    sampler_close(&greedy);
    model_free(&m);
    config_free(&c);
}

/* A weight that is NaN: every logit is, and there is nothing to choose. */
static void test_damaged_weights(void **state)
{
    const struct variant v = { "damaged", ST_F32, 0, 0, SHAPE(32, 32, 2, 2, 1, 16), .untied = false };
    struct host host;
    struct config c;
    struct model m;
    struct sampler greedy;
    struct error e = { "" };
    struct ids ids = { 0 };
    const float nan = NAN;
    mlxvk_array bad = { NULL };
    (void)state;
    make_model(&host, &v);
    assert_true(load(&m, &c, &e));
    free_host(&host);
    assert_true(sampler_open(&greedy, &gpu, 0, 1, 0, 0, &e));
    struct generation run = { .max_tokens = 3, .check_logits = true, .on_token = collect, .user = &ids };
    assert_true(generate(&run, &m, &greedy, (int32_t[]){ 1, 2 }, 2, &e));
    assert_int_equal(ids.length, 3);
    gpu_check(&gpu, mlxvk_array_new_data_device(&bad, &nan, NULL, 0, MLXVK_FLOAT32, gpu.device));
    gpu_check(&gpu, mlxvk_multiply(&m.norm, m.norm, bad, gpu.stream));
    gpu_drop(&bad);
    model_reset(&m);
    assert_false(generate(&run, &m, &greedy, (int32_t[]){ 1, 2 }, 2, &e));
    assert_non_null(strstr(e.text, "no finite numbers"));
    assert_int_equal(ids.length, 3);
    ids_free(&ids);
    sampler_close(&greedy);
    model_free(&m);
    config_free(&c);
}

/* Random weights of a shape of their own give finite logits. */
static void test_random_weights(void **state)
{
    struct config c = { .hidden = 128, .intermediate = 192, .layers = 2, .heads = 4, .kv_heads = 2, .head_dim = 32,
                        .vocab = 200, .max_positions = 512, .rms_eps = 1e-6, .rope = { .theta = 1e6, .factor = 1 } };
    (void)state;
    for (int quantized = 0; quantized < 2; quantized++) {
        struct model m;
        struct error e = { "" };
        mlxvk_array logits = { NULL };
        float *got = new_bytes((size_t)c.vocab, sizeof *got);
        double largest = 0;
        c.quantization = (struct quantization){ quantized ? 4 : 0, 64, QUANTIZED_AFFINE };
        assert_true(model_random(&m, &gpu, &c, 3, &e));
        assert_true(model_prompt(&m, (int32_t[]){ 1, 2, 3 }, 3, WANT_LAST, &logits, &e));
        gpu_check(&gpu, mlxvk_astype(&logits, logits, MLXVK_FLOAT32, gpu.stream));
        gpu_check(&gpu, mlxvk_array_read(logits, got, (size_t)c.vocab * sizeof *got, gpu.stream));
        assert_true(gpu_ok(&gpu, "logits", &e));
        for (int i = 0; i < c.vocab; i++) {
            assert_true(isfinite(got[i]));
            largest = fmax(largest, fabs(got[i]));
        }
        assert_true(largest > 0.1 && largest < 100);
        free(got);
        gpu_drop(&logits);
        model_free(&m);
    }
}

/* An argument is a pattern of test names: "test_c*". */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_variants),        cmocka_unit_test(test_cache_growth),
        cmocka_unit_test(test_long_prompt),     cmocka_unit_test(test_rewind),
        cmocka_unit_test(test_bad_checkpoints), cmocka_unit_test(test_wrong_config),
        cmocka_unit_test(test_bad_prompts),     cmocka_unit_test(test_sampler),
        cmocka_unit_test(test_sampler_seed),    cmocka_unit_test(test_reference),
        cmocka_unit_test(test_generation),      cmocka_unit_test(test_random_weights),
        cmocka_unit_test(test_damaged_weights),
        cmocka_unit_test(test_spoiled_reference),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("qwen3", tests, open_all, close_all);
}
