/* model.c - see model.h. */
#include "model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CACHE_STEP = 256, PROMPT_CHUNK = 2048 };

static const mlxvk_array none;

/* ==== >>load: weights from a checkpoint ==================================================================== */

struct loader {
    struct model             *m;
    const struct safetensors *st;
    model_progress            progress;
    void                     *user;
    size_t                    done;
    struct error             *e;
    bool                     *used;     /* which tensors the model has taken */
};

static bool to_mlxvk(enum st_dtype from, mlxvk_dtype *to)
{
    switch (from) {
    case ST_U32: *to = MLXVK_UINT32; return true;
    case ST_U8: *to = MLXVK_UINT8; return true;
    case ST_F16: *to = MLXVK_FLOAT16; return true;
    case ST_BF16: *to = MLXVK_BFLOAT16; return true;
    case ST_F32: *to = MLXVK_FLOAT32; return true;
    default: return false;
    }
}

/* The tensor of a module's part; where it is missing NULL, and an error unless it is optional. */
static const struct st_tensor *find(const struct loader *l, const char *path, const char *part, bool required)
{
    char name[256];
    snprintf(name, sizeof name, "%s.%s", path, part);
    const struct st_tensor *t = safetensors_find(l->st, name);
    if (!t && required)
        fail(l->e, "%s: tensor %s is missing", l->st->file_count == 1 ? l->st->files[0].path : "model*.safetensors", name);
    return t;
}

/* What a tensor holds: numbers, the codes that stand for them, or scales that are codes themselves. */
enum content { NUMBERS, CODES, BYTES };

static bool holds(enum content content, mlxvk_dtype dtype)
{
    return content == CODES ? dtype == MLXVK_UINT32 : content == BYTES ? dtype == MLXVK_UINT8 :
           dtype != MLXVK_UINT32 && dtype != MLXVK_UINT8;
}

/* Moves a tensor to the device after a look at its dtype and shape. columns 0: one dimension. */
static bool upload(struct loader *l, const struct st_tensor *t, enum content content, int rows, int columns,
                   mlxvk_array *to)
{
    static const char *const names[] = { "F16, BF16 or F32", "U32", "U8" };
    char is[160], want[64] = "";
    mlxvk_dtype dtype;
    if (columns)
        snprintf(want, sizeof want, ", %d", columns);
    st_describe(t, is, sizeof is);
    if (t->ndim != (columns ? 2 : 1) || t->shape[0] != rows || (columns && t->shape[1] != columns))
        return fail(l->e, "%s: tensor %s is %s, but config.json makes it [%d%s]", t->file, t->name, is, rows, want);
    if (!to_mlxvk(t->dtype, &dtype) || !holds(content, dtype))
        return fail(l->e, "%s: tensor %s is %s, but must be %s", t->file, t->name, is, names[content]);
    int shape[2] = { rows, columns };
    gpu_check(l->m->gpu, mlxvk_array_new_data_device(to, t->data, shape, t->ndim, dtype, l->m->gpu->device));
    l->used[t - l->st->tensors] = true;
    l->done += t->end - t->begin;
    if (l->progress)
        l->progress(l->user, l->done, l->st->total_bytes);
    return gpu_ok(l->m->gpu, t->name, l->e);
}

/* What the tensors themselves say, as mlx-lm reads them. Leaves *q where they say nothing that there is. */
static void infer_quantization(const struct st_tensor *weight, const struct st_tensor *scales, int in,
                               struct quantization *q)
{
    if (weight->ndim != 2 || scales->ndim != 2 || scales->shape[1] < 1 || in % scales->shape[1])
        return;
    struct quantization found = { (int)(weight->shape[1] * 32 / in), (int)(in / scales->shape[1]), QUANTIZED_AFFINE };
    if (scales->dtype == ST_U8 ? quantization_of_floats(found.bits, found.group_size, &found) :
                                 quantization_is_possible(&found))
        *q = found;
}

/* How a module is quantized: its own entry in config.json counts, and where there is none, its tensors. */
static bool find_quantization(struct loader *l, const char *path, const struct st_tensor *weight,
                              const struct st_tensor *scales, int in, struct quantization *q)
{
    const struct quantization *said = config_quantization(&l->m->config, path);
    if (!said)
        return fail(l->e, "config.json: %s is quantized in the checkpoint, but nothing says how", path);
    *q = *said;
    if (!config_override(&l->m->config, path))
        infer_quantization(weight, scales, in, q);
    return (in % q->group_size == 0 && (int64_t)in * q->bits % 32 == 0) ||
           fail(l->e, "config.json: %s has rows of %d, not divisible by the group size %d", path, in, q->group_size);
}

static bool load_quantized(struct loader *l, const char *path, int out, int in, struct linear *linear)
{
    struct quantization *q = &linear->q;
    const struct st_tensor *weight = find(l, path, "weight", true), *scales = find(l, path, "scales", true), *biases;
    if (!weight || !scales || !find_quantization(l, path, weight, scales, in, q))
        return false;
    const int groups = in / q->group_size;
    const bool affine = q->mode == QUANTIZED_AFFINE;
    if (!upload(l, weight, CODES, out, (int)((int64_t)in * q->bits / 32), &linear->weight) ||
        !upload(l, scales, affine ? NUMBERS : BYTES, out, groups, &linear->scales))
        return false;
    if (!affine)
        return true;
    biases = find(l, path, "biases", true);
    if (!biases || !upload(l, biases, NUMBERS, out, groups, &linear->biases))
        return false;
    if (scales->dtype != biases->dtype)
        return fail(l->e, "%s: %s.scales is %s, but its biases are %s", scales->file, path, st_dtype_name(scales->dtype),
                    st_dtype_name(biases->dtype));
    return true;
}

/* Quantized where the checkpoint has scales. Kept as the transposed view that x @ weight^T needs. */
static bool load_linear(struct loader *l, const char *path, int out, int in, struct linear *linear)
{
    const struct st_tensor *bias = find(l, path, "bias", false);
    if (bias && !upload(l, bias, NUMBERS, out, 0, &linear->bias))
        return false;
    if (find(l, path, "scales", false))
        return load_quantized(l, path, out, in, linear);
    const struct st_tensor *weight = find(l, path, "weight", true);
    if (!weight || !upload(l, weight, NUMBERS, out, in, &linear->weight))
        return false;
    gpu_check(l->m->gpu, mlxvk_transpose(&linear->weight, linear->weight, l->m->gpu->stream));
    return gpu_ok(l->m->gpu, path, l->e);
}

static bool load_norm(struct loader *l, const char *path, int size, mlxvk_array *norm)
{
    const struct st_tensor *weight = find(l, path, "weight", true);
    return weight && upload(l, weight, NUMBERS, size, 0, norm);
}

/* Every tensor is one of the model's, or config.json describes another model, with fewer layers for example. What
 * older converters left there besides may stay: a head though the embedding is tied, frequencies. */
static bool all_used(const struct loader *l)
{
    for (size_t i = 0; i < l->st->tensor_count; i++) {
        const struct st_tensor *t = &l->st->tensors[i];
        if (!l->used[i] && !(l->m->config.tied && strncmp(t->name, "lm_head.", 8) == 0) &&
            !strstr(t->name, "rotary_emb.inv_freq"))
            return fail(l->e, "%s: tensor %s is none of the model that config.json describes", t->file, t->name);
    }
    return true;
}

/* ==== >>parts: every weight of the model, for loading and for drawing ======================================= */

struct parts {
    bool (*linear)(void *user, const char *path, int out, int in, struct linear *linear);
    bool (*norm)(void *user, const char *path, int size, mlxvk_array *norm);
    void *user;
};

static bool layer_parts(const struct model *m, struct layer *layer, int index, const struct parts *parts)
{
    const struct config *c = &m->config;
    const int width = c->heads * c->head_dim, kv_width = c->kv_heads * c->head_dim;
    const struct { const char *name; int out, in; struct linear *linear; } linears[] = {
        { "self_attn.q_proj", width, c->hidden, &layer->q },
        { "self_attn.k_proj", kv_width, c->hidden, &layer->k },
        { "self_attn.v_proj", kv_width, c->hidden, &layer->v },
        { "self_attn.o_proj", c->hidden, width, &layer->o },
        { "mlp.gate_proj", c->intermediate, c->hidden, &layer->gate },
        { "mlp.up_proj", c->intermediate, c->hidden, &layer->up },
        { "mlp.down_proj", c->hidden, c->intermediate, &layer->down },
    };
    const struct { const char *name; int size; mlxvk_array *norm; } norms[] = {
        { "input_layernorm", c->hidden, &layer->input_norm },
        { "self_attn.q_norm", c->head_dim, &layer->q_norm },
        { "self_attn.k_norm", c->head_dim, &layer->k_norm },
        { "post_attention_layernorm", c->hidden, &layer->post_norm },
    };
    char path[128];
    for (size_t i = 0; i < sizeof linears / sizeof *linears; i++) {
        snprintf(path, sizeof path, "model.layers.%d.%s", index, linears[i].name);
        if (!parts->linear(parts->user, path, linears[i].out, linears[i].in, linears[i].linear))
            return false;
    }
    for (size_t i = 0; i < sizeof norms / sizeof *norms; i++) {
        snprintf(path, sizeof path, "model.layers.%d.%s", index, norms[i].name);
        if (!parts->norm(parts->user, path, norms[i].size, norms[i].norm))
            return false;
    }
    return true;
}

static bool all_parts(struct model *m, const struct parts *parts)
{
    const struct config *c = &m->config;
    if (!parts->linear(parts->user, "model.embed_tokens", c->vocab, c->hidden, &m->embed))
        return false;
    for (int i = 0; i < c->layers; i++)
        if (!layer_parts(m, &m->layers[i], i, parts))
            return false;
    return parts->norm(parts->user, "model.norm", c->hidden, &m->norm) &&
           (c->tied || parts->linear(parts->user, "lm_head", c->vocab, c->hidden, &m->head));
}

static void free_linear(struct linear *linear)
{
    gpu_drop(&linear->weight);
    gpu_drop(&linear->scales);
    gpu_drop(&linear->biases);
    gpu_drop(&linear->bias);
}

static size_t linear_bytes(const struct linear *l)
{
    const mlxvk_array parts[] = { l->weight, l->scales, l->biases, l->bias };
    size_t bytes = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        bytes += parts[i].ctx ? mlxvk_array_nbytes(parts[i]) : 0;
    return bytes;
}

size_t model_bytes(const struct model *m)
{
    size_t bytes = linear_bytes(&m->embed) + (m->head.weight.ctx ? linear_bytes(&m->head) : 0);
    for (int i = 0; i < m->config.layers; i++) {
        const struct layer *l = &m->layers[i];
        const struct linear *linears[] = { &l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down };
        for (size_t j = 0; j < sizeof linears / sizeof *linears; j++)
            bytes += linear_bytes(linears[j]);
    }
    return bytes;
}

/* ==== >>rope ============================================================================================== */

/* YaRN's wavelengths: those of few rotations are stretched by the factor, those of many are not, with a ramp between. */
static void yarn_freqs(const struct config *c, float *freqs)
{
    const struct rope *r = &c->rope;
    const double pi = 3.14159265358979323846, per_log = c->head_dim / (2 * log(r->theta));
    double low = floor(per_log * log(r->original_positions / (r->beta_fast * 2 * pi)));
    double high = ceil(per_log * log(r->original_positions / (r->beta_slow * 2 * pi)));
    low = fmax(low, 0);
    high = fmin(high, c->head_dim - 1);
    if (low == high)
        high += 0.001;
    for (int i = 0; i < c->head_dim / 2; i++) {
        double plain = pow(r->theta, 2.0 * i / c->head_dim), stretched = plain * r->factor;
        double keep = 1 - fmin(fmax((i - low) / (high - low), 0), 1);
        freqs[i] = (float)(stretched * plain / (stretched * keep + plain * (1 - keep)));
    }
}

static double yarn_mscale(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

static void make_rope(struct model *m)
{
    const struct rope *r = &m->config.rope;
    m->rope_scale = r->kind == ROPE_LINEAR ? (float)(1 / r->factor) : 1;
    if (r->kind != ROPE_YARN)
        return;
    int half = m->config.head_dim / 2;
    float *freqs = new_bytes((size_t)half, sizeof *freqs);
    yarn_freqs(&m->config, freqs);
    gpu_check(m->gpu, mlxvk_array_new_data_device(&m->rope_freqs, freqs, &half, 1, MLXVK_FLOAT32, m->gpu->device));
    free(freqs);
    float mscale = (float)(yarn_mscale(r->factor, r->mscale) / yarn_mscale(r->factor, r->mscale_all_dim));
    if (mscale == 1)
        return;
    gpu_check(m->gpu, mlxvk_array_new_data_device(&m->rope_mscale, &mscale, NULL, 0, MLXVK_FLOAT32, m->gpu->device));
}

/* The factor in the dtype of what it multiplies, as a Python number has it there. */
static mlxvk_array mscale_like(struct model *m, mlxvk_array x)
{
    const mlxvk_dtype dtype = mlxvk_array_dtype(x);
    if (!m->rope_mscale_cast.ctx || mlxvk_array_dtype(m->rope_mscale_cast) != dtype)
        gpu_check(m->gpu, mlxvk_astype(&m->rope_mscale_cast, m->rope_mscale, dtype, m->gpu->stream));
    return m->rope_mscale_cast;
}

/* ==== >>open ============================================================================================== */

static void begin(struct model *m, struct gpu *g, const struct config *config)
{
    *m = (struct model){ .gpu = g, .config = *config };
    m->layers = new_bytes((size_t)config->layers, sizeof *m->layers);
}

/* Of the rows that the embedding gives; small floats become bfloat16. */
static mlxvk_dtype rows_dtype(const struct linear *l)
{
    if (!l->q.bits)
        return mlxvk_array_dtype(l->weight);
    return l->q.mode == QUANTIZED_AFFINE ? mlxvk_array_dtype(l->scales) : MLXVK_BFLOAT16;
}

static bool finish(struct model *m, bool ok, struct error *e)
{
    if (ok) {
        m->dtype = rows_dtype(&m->embed);
        make_rope(m);
        ok = gpu_ok(m->gpu, "model", e);
    }
    if (!ok)
        model_free(m);
    return ok;
}

static bool load_linear_part(void *user, const char *path, int out, int in, struct linear *linear)
{
    return load_linear(user, path, out, in, linear);
}

static bool load_norm_part(void *user, const char *path, int size, mlxvk_array *norm)
{
    return load_norm(user, path, size, norm);
}

bool model_load(struct model *m, struct gpu *g, const struct config *config, const struct safetensors *st,
                model_progress progress, void *user, struct error *e)
{
    struct loader loader = { m, st, progress, user, 0, e, new_bytes(st->tensor_count, 1) };
    begin(m, g, config);
    bool ok = all_parts(m, &(struct parts){ load_linear_part, load_norm_part, &loader }) && all_used(&loader);
    free(loader.used);
    return finish(m, ok, e);
}

void model_free(struct model *m)
{
    model_reset(m);
    for (int i = 0; m->layers && i < m->config.layers; i++) {
        struct layer *l = &m->layers[i];
        struct linear *linears[] = { &l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down };
        mlxvk_array *norms[] = { &l->input_norm, &l->q_norm, &l->k_norm, &l->post_norm };
        for (size_t j = 0; j < sizeof linears / sizeof *linears; j++)
            free_linear(linears[j]);
        for (size_t j = 0; j < sizeof norms / sizeof *norms; j++)
            gpu_drop(norms[j]);
    }
    free_linear(&m->embed);
    free_linear(&m->head);
    gpu_drop(&m->norm);
    gpu_drop(&m->rope_freqs);
    gpu_drop(&m->rope_mscale);
    gpu_drop(&m->rope_mscale_cast);
    free(m->layers);
    *m = (struct model){ 0 };
}

/* ==== >>random: weights of the true shapes, drawn on the device ============================================ */

struct drawer {
    struct model *m;
    mlxvk_array   key;
    struct error *e;
};

/* Uniform numbers in [low, high). */
static void draw_uniform(struct drawer *d, mlxvk_array *to, double low, double high, int rows, int columns)
{
    struct gpu *g = d->m->gpu;
    mlxvk_array a = none, b = none, key = none;
    gpu_check(g, mlxvk_array_new_data_device(&a, &(float){ (float)low }, NULL, 0, MLXVK_FLOAT32, g->device));
    gpu_check(g, mlxvk_array_new_data_device(&b, &(float){ (float)high }, NULL, 0, MLXVK_FLOAT32, g->device));
    gpu_check(g, mlxvk_random_split(&d->key, &key, d->key, g->stream));
    gpu_check(g, mlxvk_random_uniform(to, a, b, (int[]){ rows, columns }, 2, MLXVK_BFLOAT16, key, g->stream));
    gpu_drop(&a);
    gpu_drop(&b);
    gpu_drop(&key);
}

/* Codes of random bits; scale * code + bias is then uniform in [-bound, bound]. */
static void draw_quantized(struct drawer *d, double bound, int out, int in, struct linear *l)
{
    struct gpu *g = d->m->gpu;
    mlxvk_array key = none, middle = none;
    const int groups = in / l->q.group_size, words = (int)((int64_t)in * l->q.bits / 32), top = (1 << l->q.bits) - 1;
    gpu_check(g, mlxvk_random_split(&d->key, &key, d->key, g->stream));
    gpu_check(g, mlxvk_random_bits(&l->weight, (int[]){ out, words }, 2, 4, key, g->stream));
    draw_uniform(d, &l->scales, 1.5 * bound / top, 2.5 * bound / top, out, groups);
    gpu_check(g, mlxvk_array_new_data_device(&middle, &(float){ -0.5f * (float)top }, NULL, 0, MLXVK_FLOAT32, g->device));
    gpu_check(g, mlxvk_astype(&middle, middle, MLXVK_BFLOAT16, g->stream));
    gpu_check(g, mlxvk_multiply(&l->biases, l->scales, middle, g->stream));
    gpu_check(g, mlxvk_array_eval(l->weight));
    gpu_check(g, mlxvk_array_eval(l->scales));
    gpu_check(g, mlxvk_array_eval(l->biases));
    gpu_drop(&key);
    gpu_drop(&middle);
}

static bool draw_linear(void *user, const char *path, int out, int in, struct linear *l)
{
    struct drawer *d = user;
    struct gpu *g = d->m->gpu;
    const double bound = sqrt(3.0 / in); /* rows of variance 1/in keep the size of what they multiply */
    l->q = d->m->config.quantization;
    if (l->q.bits) {
        draw_quantized(d, bound, out, in, l);
    } else {
        draw_uniform(d, &l->weight, -bound, bound, out, in);
        gpu_check(g, mlxvk_array_eval(l->weight));
        gpu_check(g, mlxvk_transpose(&l->weight, l->weight, g->stream));
    }
    gpu_check(g, mlxvk_device_clear_cache(g->device)); /* what drawing needed besides */
    return gpu_ok(g, path, d->e);
}

static bool draw_norm(void *user, const char *path, int size, mlxvk_array *norm)
{
    struct drawer *d = user;
    gpu_check(d->m->gpu, mlxvk_ones(norm, &size, 1, MLXVK_BFLOAT16, d->m->gpu->stream));
    gpu_check(d->m->gpu, mlxvk_array_eval(*norm));
    return gpu_ok(d->m->gpu, path, d->e);
}

bool model_random(struct model *m, struct gpu *g, const struct config *config, uint64_t seed, struct error *e)
{
    struct drawer drawer = { m, none, e };
    const uint32_t key[2] = { (uint32_t)(seed >> 32), (uint32_t)seed };
    begin(m, g, config);
    gpu_check(g, mlxvk_array_new_data_device(&drawer.key, key, &(int){ 2 }, 1, MLXVK_UINT32, g->device));
    bool ok = gpu_ok(g, "random key", e) && all_parts(m, &(struct parts){ draw_linear, draw_norm, &drawer });
    gpu_drop(&drawer.key);
    return finish(m, ok, e);
}

/* ==== >>cache ============================================================================================= */

void model_rewind(struct model *m, int positions)
{
    if (positions < m->offset)
        m->offset = positions;
}

void model_reset(struct model *m)
{
    for (int i = 0; m->layers && i < m->config.layers; i++) {
        gpu_drop(&m->layers[i].keys);
        gpu_drop(&m->layers[i].values);
    }
    m->offset = m->capacity = 0;
}

void model_eval_cache(struct model *m)
{
    mlxvk_vector_array all = mlxvk_vector_array_new();
    for (int i = 0; i < m->config.layers; i++) {
        gpu_check(m->gpu, mlxvk_vector_array_append_value(all, m->layers[i].keys));
        gpu_check(m->gpu, mlxvk_vector_array_append_value(all, m->layers[i].values));
    }
    gpu_check(m->gpu, mlxvk_eval(all));
    mlxvk_vector_array_free(all);
}

/* Rows by which the cache grows for count more; 0: there is room. It grows by whole steps of 256, as MLX's. */
static int cache_growth(const struct model *m, int count)
{
    return m->offset + count <= m->capacity ? 0 : (count + CACHE_STEP - 1) / CACHE_STEP * CACHE_STEP;
}

/* Room for `more` rows behind the `kept` first ones. */
static void grow_cache(struct model *m, mlxvk_array *cache, int kept, int more, mlxvk_dtype dtype)
{
    struct gpu *g = m->gpu;
    const int heads = m->config.kv_heads, dim = m->config.head_dim;
    mlxvk_array fresh = none;
    gpu_check(g, mlxvk_zeros(&fresh, (int[]){ 1, heads, more, dim }, 4, dtype, g->stream));
    if (cache->ctx && kept) {
        gpu_check(g, mlxvk_slice(cache, *cache, (int[]){ 0, 0, 0, 0 }, 4, (int[]){ 1, heads, kept, dim }, 4,
                                 (int[]){ 1, 1, 1, 1 }, 4, g->stream));
        mlxvk_vector_array both = mlxvk_vector_array_new_data((mlxvk_array[]){ *cache, fresh }, 2);
        gpu_drop(&fresh);
        gpu_check(g, mlxvk_concatenate_axis(&fresh, both, 2, g->stream));
        mlxvk_vector_array_free(both);
    }
    gpu_drop(cache);
    *cache = fresh;
}

/* Writes rows [offset, offset + count) of the cache, and makes rows a view of all that it then holds. The cache has the
 * rows' dtype, which is not the embedding's where norms or projections are of a wider one. */
static void update_cache(struct model *m, mlxvk_array *cache, mlxvk_array *rows, int count)
{
    struct gpu *g = m->gpu;
    const int heads = m->config.kv_heads, dim = m->config.head_dim, end = m->offset + count;
    const int from[] = { 0, 0, m->offset, 0 }, start[] = { 0, 0, 0, 0 }, to[] = { 1, heads, end, dim };
    const int step[] = { 1, 1, 1, 1 }, more = cache_growth(m, count);
    if (more)
        grow_cache(m, cache, m->offset, more, mlxvk_array_dtype(*rows));
    gpu_check(g, mlxvk_slice_update(cache, *cache, *rows, from, 4, to, 4, step, 4, g->stream));
    gpu_check(g, mlxvk_slice(rows, *cache, start, 4, to, 4, step, 4, g->stream));
}

/* ==== >>forward =========================================================================================== */

static void linear(struct model *m, mlxvk_array *y, mlxvk_array x, const struct linear *l)
{
    struct gpu *g = m->gpu;
    if (l->q.bits)
        gpu_check(g, mlxvk_quantized_matmul(y, x, l->weight, l->scales, l->biases, true,
                                            (mlxvk_optional_int){ l->q.group_size, true },
                                            (mlxvk_optional_int){ l->q.bits, true },
                                            quantization_mode_name(l->q.mode), g->stream));
    else
        gpu_check(g, mlxvk_matmul(y, x, l->weight, g->stream));
    if (l->bias.ctx)
        gpu_check(g, mlxvk_add(y, *y, l->bias, g->stream));
}

static void rms_norm(struct model *m, mlxvk_array *y, mlxvk_array x, mlxvk_array weight)
{
    gpu_check(m->gpu, mlxvk_fast_rms_norm(y, x, weight, (float)m->config.rms_eps, m->gpu->stream));
}

/* Rows of the embedding. */
static void embed(struct model *m, mlxvk_array *h, mlxvk_array tokens)
{
    struct gpu *g = m->gpu;
    const struct linear *l = &m->embed;
    if (!l->q.bits) {
        mlxvk_array rows = none; /* the linear layer's weight is a transposed view: transpose it back */
        gpu_check(g, mlxvk_transpose(&rows, l->weight, g->stream));
        gpu_check(g, mlxvk_take_axis(h, rows, tokens, 0, g->stream));
        gpu_drop(&rows);
        return;
    }
    mlxvk_array codes = none, scales = none, biases = none;
    gpu_check(g, mlxvk_take_axis(&codes, l->weight, tokens, 0, g->stream));
    gpu_check(g, mlxvk_take_axis(&scales, l->scales, tokens, 0, g->stream));
    if (l->biases.ctx)
        gpu_check(g, mlxvk_take_axis(&biases, l->biases, tokens, 0, g->stream));
    gpu_check(g, mlxvk_dequantize(h, codes, scales, biases, (mlxvk_optional_int){ l->q.group_size, true },
                                  (mlxvk_optional_int){ l->q.bits, true }, quantization_mode_name(l->q.mode), none,
                                  (mlxvk_optional_dtype){ .has_value = false }, g->stream));
    gpu_drop(&codes);
    gpu_drop(&scales);
    gpu_drop(&biases);
}

/* (1, L, heads * dim) -> (1, heads, L, dim). norm: of each head before it is turned; none for values. */
static void split_heads(struct model *m, mlxvk_array *x, int count, int heads, const mlxvk_array *norm)
{
    struct gpu *g = m->gpu;
    gpu_check(g, mlxvk_reshape(x, *x, (int[]){ 1, count, heads, m->config.head_dim }, 4, g->stream));
    if (norm)
        rms_norm(m, x, *x, *norm);
    gpu_check(g, mlxvk_transpose_axes(x, *x, (int[]){ 0, 2, 1, 3 }, 4, g->stream));
}

static void rope(struct model *m, mlxvk_array *x, int offset)
{
    struct gpu *g = m->gpu;
    bool by_base = !m->rope_freqs.ctx;
    if (m->rope_mscale.ctx)
        gpu_check(g, mlxvk_multiply(x, *x, mscale_like(m, *x), g->stream));
    gpu_check(g, mlxvk_fast_rope(x, *x, m->config.head_dim, false,
                                 (mlxvk_optional_float){ (float)m->config.rope.theta, by_base }, m->rope_scale, offset,
                                 m->rope_freqs, g->stream));
}

/* The last of count rows of (1, count, hidden). */
static void last_row(struct model *m, mlxvk_array *x, int count)
{
    const int width = m->config.hidden;
    if (count > 1)
        gpu_check(m->gpu, mlxvk_slice(x, *x, (int[]){ 0, count - 1, 0 }, 3, (int[]){ 1, count, width }, 3,
                                      (int[]){ 1, 1, 1 }, 3, m->gpu->stream));
}

/* h += attention(norm(h)). only_last: keys and values of all rows, but queries, and from there on h, of the last. */
static void attention(struct model *m, struct layer *l, mlxvk_array *h, int count, bool only_last)
{
    struct gpu *g = m->gpu;
    const struct config *c = &m->config;
    const int queries = only_last ? 1 : count;
    mlxvk_array x = none, q = none, k = none, v = none;
    rms_norm(m, &x, *h, l->input_norm);
    linear(m, &k, x, &l->k);
    linear(m, &v, x, &l->v);
    if (only_last) {
        last_row(m, &x, count);
        last_row(m, h, count);
    }
    linear(m, &q, x, &l->q);
    gpu_drop(&x);
    split_heads(m, &q, queries, c->heads, &l->q_norm);
    split_heads(m, &k, count, c->kv_heads, &l->k_norm);
    split_heads(m, &v, count, c->kv_heads, NULL);
    rope(m, &q, m->offset + count - queries);
    rope(m, &k, m->offset);
    update_cache(m, &l->keys, &k, count);
    update_cache(m, &l->values, &v, count);
    gpu_check(g, mlxvk_fast_scaled_dot_product_attention(&q, q, k, v, 1 / sqrtf((float)c->head_dim),
                                                         queries > 1 ? "causal" : "", none, none, g->stream));
    gpu_drop(&k);
    gpu_drop(&v);
    gpu_check(g, mlxvk_transpose_axes(&q, q, (int[]){ 0, 2, 1, 3 }, 4, g->stream));
    gpu_check(g, mlxvk_reshape(&q, q, (int[]){ 1, queries, c->heads * c->head_dim }, 3, g->stream));
    linear(m, &q, q, &l->o);
    gpu_check(g, mlxvk_add(h, *h, q, g->stream));
    gpu_drop(&q);
}

/* h += down(silu(gate(norm(h))) * up(norm(h))) */
static void mlp(struct model *m, struct layer *l, mlxvk_array *h)
{
    struct gpu *g = m->gpu;
    mlxvk_array x = none, gate = none, up = none, sigmoid = none;
    rms_norm(m, &x, *h, l->post_norm);
    linear(m, &gate, x, &l->gate);
    linear(m, &up, x, &l->up);
    gpu_drop(&x);
    gpu_check(g, mlxvk_sigmoid(&sigmoid, gate, g->stream));
    gpu_check(g, mlxvk_multiply(&gate, gate, sigmoid, g->stream));
    gpu_drop(&sigmoid);
    gpu_check(g, mlxvk_multiply(&gate, gate, up, g->stream));
    gpu_drop(&up);
    linear(m, &gate, gate, &l->down);
    gpu_check(g, mlxvk_add(h, *h, gate, g->stream));
    gpu_drop(&gate);
}

void model_forward(struct model *m, mlxvk_array tokens, int count, enum model_want want, mlxvk_array *logits)
{
    mlxvk_array h = none;
    const int layers = m->config.layers, more = cache_growth(m, count);
    embed(m, &h, tokens);
    for (int i = 0; i < layers; i++) {
        attention(m, &m->layers[i], &h, count, i == layers - 1 && want != WANT_ALL);
        mlp(m, &m->layers[i], &h);
    }
    if (more)
        m->capacity = m->offset + more;
    m->offset += count;
    if (want != WANT_CACHE) { /* else nobody owns what comes after the last layer's cache, and it is not computed */
        rms_norm(m, &h, h, m->norm);
        linear(m, logits, h, m->config.tied ? &m->embed : &m->head);
    }
    gpu_drop(&h);
}

bool model_takes(const struct config *c, const int32_t *ids, size_t count, int offset, struct error *e)
{
    for (size_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= c->vocab)
            return fail(e, "token %zu of the prompt is %d, outside the model's vocabulary of %d", i, ids[i], c->vocab);
    if (count > INT32_MAX || (int64_t)count + offset > c->max_positions)
        return fail(e, "the prompt of %zu tokens is longer than the model's context of %d", count + (size_t)offset,
                    c->max_positions);
    return true;
}

bool model_prompt(struct model *m, const int32_t *ids, size_t count, enum model_want want, mlxvk_array *logits,
                  struct error *e)
{
    struct gpu *g = m->gpu;
    if (!model_takes(&m->config, ids, count, m->offset, e))
        return false;
    for (size_t at = 0; at < count;) {
        int chunk = count - at < PROMPT_CHUNK ? (int)(count - at) : PROMPT_CHUNK;
        bool last = at + (size_t)chunk == count;
        mlxvk_array tokens = none;
        gpu_check(g, mlxvk_array_new_data_device(&tokens, ids + at, (int[]){ 1, chunk }, 2, MLXVK_INT32, g->device));
        model_forward(m, tokens, chunk, last ? want : WANT_CACHE, logits);
        gpu_drop(&tokens);
        if (!last) {
            model_eval_cache(m);
            gpu_check(g, mlxvk_device_clear_cache(g->device));
        }
        if (!gpu_ok(g, "prompt", e))
            return false;
        at += (size_t)chunk;
    }
    return true;
}
