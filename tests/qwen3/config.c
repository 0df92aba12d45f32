/* config.c - see config.h. */
#include "config.h"

#include "json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_POSITIONS = 1 << 24 };

/* ==== >>quantization ====================================================================================== */

/* What each mode has where nothing else is said; of small floats there is nothing else. */
static const struct { const char *name; int bits, group_size; } modes[] = {
    [QUANTIZED_AFFINE] = { "affine", 4, 64 }, [QUANTIZED_MXFP4] = { "mxfp4", 4, 32 },
    [QUANTIZED_MXFP8] = { "mxfp8", 8, 32 },   [QUANTIZED_NVFP4] = { "nvfp4", 4, 16 },
};

const char *quantization_mode_name(enum quantization_mode mode)
{
    return modes[mode].name;
}

bool quantization_is_possible(const struct quantization *q)
{
    const int bits = q->bits, group = q->group_size;
    if (q->mode != QUANTIZED_AFFINE)
        return bits == modes[q->mode].bits && group == modes[q->mode].group_size;
    return bits >= 2 && bits <= 8 && bits != 7 && (group == 32 || group == 64 || group == 128);
}

bool quantization_of_floats(int bits, int group_size, struct quantization *q)
{
    for (int mode = QUANTIZED_MXFP4; mode <= QUANTIZED_NVFP4; mode++) {
        *q = (struct quantization){ bits, group_size, (enum quantization_mode)mode };
        if (quantization_is_possible(q))
            return true;
    }
    return false;
}

static bool read_mode(struct quantization *q, const cJSON *item, const char *where, struct error *e)
{
    const char *name = json_string(item, "mode");
    if (!name && json_member(item, "mode"))
        return fail(e, "%s: quantization mode is not a string", where);
    for (int mode = QUANTIZED_AFFINE; mode <= QUANTIZED_NVFP4; mode++)
        if (strcmp(name ? name : "affine", modes[mode].name) == 0) {
            *q = (struct quantization){ modes[mode].bits, modes[mode].group_size, (enum quantization_mode)mode };
            return true;
        }
    return fail(e, "%s: quantization mode %s is not supported", where, name);
}

static bool read_quantization(struct quantization *q, const cJSON *item, const char *where, struct error *e)
{
    if (!read_mode(q, item, where, e) || !json_get_int(item, "bits", 2, 8, &q->bits, where, e) ||
        !json_get_int(item, "group_size", 16, 128, &q->group_size, where, e))
        return false;
    return quantization_is_possible(q) ||
           fail(e, "%s: quantization of mode %s by %d bits with group_size %d is not supported", where,
                modes[q->mode].name, q->bits, q->group_size);
}

/* Beside the defaults lie entries by module path: false, true (the defaults), or parameters of their own, what they do
 * not name being the mode's, as MLX has it. */
static bool read_overrides(struct config *c, const cJSON *object, const char *where, struct error *e)
{
    const cJSON *item;
    c->overrides = new_bytes((size_t)cJSON_GetArraySize(object), sizeof *c->overrides);
    cJSON_ArrayForEach(item, object) {
        if (!strchr(item->string, '.') && strcmp(item->string, "lm_head") != 0)
            continue;
        if (!cJSON_IsBool(item) && !cJSON_IsObject(item))
            return fail(e, "%s: quantization of %s is neither a boolean nor an object", where, item->string);
        struct layer_quantization *o = &c->overrides[c->override_count++];
        *o = (struct layer_quantization){ copy_text(item->string, strlen(item->string)), c->quantization,
                                          !cJSON_IsFalse(item) };
        if (cJSON_IsObject(item) && !read_quantization(&o->q, item, where, e))
            return false;
    }
    return true;
}

static bool read_quantizations(struct config *c, const cJSON *root, const char *where, struct error *e)
{
    const cJSON *item = json_member(root, "quantization");
    if (!item)
        item = json_member(root, "quantization_config");
    if (!item)
        return true;
    if (!cJSON_IsObject(item))
        return fail(e, "%s: quantization is not an object", where);
    const char *method = json_string(item, "quant_method");
    if (method)
        return fail(e, "%s: quantization by %s is not supported, only MLX's own", where, method);
    return read_quantization(&c->quantization, item, where, e) && read_overrides(c, item, where, e);
}

const struct layer_quantization *config_override(const struct config *c, const char *path)
{
    for (size_t i = 0; i < c->override_count; i++)
        if (strcmp(c->overrides[i].path, path) == 0)
            return &c->overrides[i];
    return NULL;
}

const struct quantization *config_quantization(const struct config *c, const char *path)
{
    const struct layer_quantization *o = config_override(c, path);
    if (o)
        return o->on ? &o->q : NULL;
    return c->quantization.bits ? &c->quantization : NULL;
}

/* ==== >>rope ============================================================================================== */

static bool read_rope_kind(struct rope *r, const cJSON *scaling, const char *where, struct error *e)
{
    static const struct { const char *name; enum rope_kind kind; } kinds[] = {
        { "default", ROPE_DEFAULT }, { "mrope", ROPE_DEFAULT }, /* whose sections are alike for text */
        { "linear", ROPE_LINEAR },   { "yarn", ROPE_YARN },
    };
    const cJSON *item = json_member(scaling, "type");
    if (!item)
        item = json_member(scaling, "rope_type");
    const char *type = cJSON_GetStringValue(item);
    if (item && !type)
        return fail(e, "%s: the type of rope scaling is not a string", where);
    for (size_t i = 0; type && i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(type, kinds[i].name) == 0) {
            r->kind = kinds[i].kind;
            return true;
        }
    return !type || fail(e, "%s: rope scaling of type %s is not supported", where, type);
}

/* Scaling is there for longer contexts, and max_position_embeddings is often that of before. */
static void widen_context(struct config *c)
{
    const struct rope *r = &c->rope;
    double positions = r->kind == ROPE_YARN ? r->original_positions * r->factor :
                       r->kind == ROPE_LINEAR ? c->max_positions * r->factor : 0;
    if (positions > c->max_positions)
        c->max_positions = (int)fmin(positions, MAX_POSITIONS);
}

/* theta and scaling lie at the top, or, since transformers 5, among the parameters. What lies at the top counts. */
static bool read_rope(struct config *c, const cJSON *root, const char *where, struct error *e)
{
    struct rope *r = &c->rope;
    const cJSON *parameters = json_member(root, "rope_parameters"), *scaling = json_member(root, "rope_scaling");
    *r = (struct rope){ .factor = 1, .beta_fast = 32, .beta_slow = 1, .mscale = 1, .original_positions = 4096 };
    if (!scaling)
        scaling = parameters;
    if (scaling && !cJSON_IsObject(scaling))
        return fail(e, "%s: rope_scaling is not an object", where);
    if (!json_get_double(scaling, "rope_theta", &r->theta, where, e) ||
        !json_get_double(parameters, "rope_theta", &r->theta, where, e) ||
        !json_get_double(root, "rope_theta", &r->theta, where, e))
        return false;
    if (scaling && (!read_rope_kind(r, scaling, where, e) ||
                    !json_get_double(scaling, "factor", &r->factor, where, e) ||
                    !json_get_double(scaling, "beta_fast", &r->beta_fast, where, e) ||
                    !json_get_double(scaling, "beta_slow", &r->beta_slow, where, e) ||
                    !json_get_double(scaling, "mscale", &r->mscale, where, e) ||
                    !json_get_double(scaling, "mscale_all_dim", &r->mscale_all_dim, where, e) ||
                    !json_get_int(scaling, "original_max_position_embeddings", 1, 1 << 30, &r->original_positions,
                                  where, e)))
        return false;
    if (r->theta == 0)
        return fail(e, "%s: rope_theta is missing", where);
    if (r->kind != ROPE_DEFAULT && !json_member(scaling, "factor"))
        return fail(e, "%s: rope scaling without factor", where);
    if (!(r->beta_fast > 0 && r->beta_slow > 0))
        return fail(e, "%s: rope scaling with beta_fast %g, beta_slow %g is not possible", where, r->beta_fast,
                    r->beta_slow);
    if (!(r->theta > 1 && r->theta < 1e30) || !(r->factor >= 1 && r->factor <= 1e6))
        return fail(e, "%s: rope_theta %g with factor %g is not possible", where, r->theta, r->factor);
    widen_context(c);
    return true;
}

/* ==== >>eos =============================================================================================== */

bool config_add_eos(struct config *c, int32_t id)
{
    if (config_is_eos(c, id))
        return true;
    if (c->eos_count == MAX_EOS)
        return false;
    c->eos[c->eos_count++] = id;
    return true;
}

static bool add_eos(struct config *c, const cJSON *item, const char *where, struct error *e)
{
    int64_t id;
    if (!json_integer(item, 0, INT32_MAX, &id, where, "eos_token_id", e))
        return false;
    return config_add_eos(c, (int32_t)id) || fail(e, "%s: more than %d eos tokens", where, MAX_EOS);
}

/* One id or a list of them. */
static bool read_eos(struct config *c, const cJSON *root, const char *where, struct error *e)
{
    const cJSON *item = json_member(root, "eos_token_id"), *each;
    if (!item)
        return true;
    if (!cJSON_IsArray(item))
        return add_eos(c, item, where, e);
    cJSON_ArrayForEach(each, item)
        if (!add_eos(c, each, where, e))
            return false;
    return true;
}

/* In generation_config.json, what there is takes the place of config.json's; 0 counts as nothing, as for mlx-lm. */
static bool read_generation_eos(struct config *c, const cJSON *root, const char *where, struct error *e)
{
    const cJSON *item = json_member(root, "eos_token_id");
    if (!item || (cJSON_IsArray(item) && !item->child) || (cJSON_IsNumber(item) && item->valuedouble == 0))
        return true;
    c->eos_count = 0;
    return read_eos(c, root, where, e);
}

bool config_is_eos(const struct config *c, int32_t id)
{
    for (int i = 0; i < c->eos_count; i++)
        if (c->eos[i] == id)
            return true;
    return false;
}

/* ==== >>shape ============================================================================================= */

/* name, member, limits, default (0: there must be one). The limits keep every product of two in an int. */
static bool read_sizes(struct config *c, const cJSON *root, const char *where, struct error *e)
{
    const struct { const char *name; int *value; int high, fallback; } rows[] = {
        { "hidden_size", &c->hidden, 1 << 17, 0 },
        { "intermediate_size", &c->intermediate, 1 << 20, 0 },
        { "num_hidden_layers", &c->layers, 1 << 10, 0 },
        { "num_attention_heads", &c->heads, 1 << 10, 0 },
        { "num_key_value_heads", &c->kv_heads, 1 << 10, -1 },
        { "head_dim", &c->head_dim, 1 << 10, 128 },
        { "vocab_size", &c->vocab, 1 << 22, 0 },
        { "max_position_embeddings", &c->max_positions, MAX_POSITIONS, 32768 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        *rows[i].value = rows[i].fallback;
        if (!json_get_int(root, rows[i].name, 1, rows[i].high, rows[i].value, where, e))
            return false;
        if (*rows[i].value == 0)
            return fail(e, "%s: %s is missing", where, rows[i].name);
    }
    if (c->kv_heads < 0)
        c->kv_heads = c->heads;
    if (c->heads % c->kv_heads)
        return fail(e, "%s: num_attention_heads %d is no multiple of num_key_value_heads %d", where, c->heads,
                    c->kv_heads);
    if (c->head_dim % 2)
        return fail(e, "%s: head_dim %d is odd, which rotary embedding does not allow", where, c->head_dim);
    return true;
}

static bool read_root(struct config *c, const cJSON *root, const char *where, struct error *e)
{
    const char *type = json_string(root, "model_type"), *act = json_string(root, "hidden_act");
    if (!type)
        return fail(e, "%s: model_type is missing", where);
    if (strcmp(type, "qwen3") != 0)
        return fail(e, "%s: model_type is %s; this program runs qwen3", where, type);
    if (act && strcmp(act, "silu") != 0)
        return fail(e, "%s: hidden_act %s is not supported, only silu", where, act);
    c->rms_eps = 1e-6;
    if (!read_sizes(c, root, where, e) || !json_get_double(root, "rms_norm_eps", &c->rms_eps, where, e) ||
        !json_get_bool(root, "tie_word_embeddings", &c->tied, where, e))
        return false;
    if (!(c->rms_eps >= 0 && c->rms_eps < 1))
        return fail(e, "%s: rms_norm_eps %g is not possible", where, c->rms_eps);
    return read_rope(c, root, where, e) && read_quantizations(c, root, where, e) && read_eos(c, root, where, e);
}

static bool read_file(struct config *c, const char *dir, const char *name, bool required,
                      bool (*read)(struct config *, const cJSON *, const char *, struct error *), struct error *e)
{
    char *path = path_join(dir, name);
    bool ok = true;
    if (required || file_exists(path)) {
        cJSON *root = json_read(path, e);
        ok = root && read(c, root, path, e);
        cJSON_Delete(root);
    }
    free(path);
    return ok;
}

bool config_read(struct config *c, const char *dir, struct error *e)
{
    *c = (struct config){ 0 };
    if (read_file(c, dir, "config.json", true, read_root, e) &&
        read_file(c, dir, "generation_config.json", false, read_generation_eos, e))
        return true;
    config_free(c);
    return false;
}

/* ==== >>presets =========================================================================================== */

bool config_preset(struct config *c, const char *size, int bits, struct error *e)
{
    static const struct { const char *name; int hidden, intermediate, layers, heads; bool tied; } rows[] = {
        { "0.6b", 1024, 3072, 28, 16, true },  { "1.7b", 2048, 6144, 28, 16, true },
        { "4b", 2560, 9728, 36, 32, true },    { "8b", 4096, 12288, 36, 32, false },
        { "14b", 5120, 17408, 40, 40, false }, { "32b", 5120, 25600, 64, 64, false },
    };
    *c = (struct config){ 0 };
    if (bits != 16 && (bits < 2 || bits > 8 || bits == 7))
        return fail(e, "--bits %d: not 2, 3, 4, 5, 6, 8 or 16", bits);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].name, size) == 0) {
            *c = (struct config){ .hidden = rows[i].hidden, .intermediate = rows[i].intermediate,
                                  .layers = rows[i].layers, .heads = rows[i].heads, .kv_heads = 8, .head_dim = 128,
                                  .vocab = 151936, .max_positions = 40960, .rms_eps = 1e-6, .tied = rows[i].tied,
                                  .rope = { .theta = 1e6, .factor = 1 } };
            if (bits != 16)
                c->quantization = (struct quantization){ bits, 64, QUANTIZED_AFFINE };
            return true;
        }
    return fail(e, "--random %s: not 0.6b, 1.7b, 4b, 8b, 14b or 32b", size);
}

void config_free(struct config *c)
{
    for (size_t i = 0; i < c->override_count; i++)
        free(c->overrides[i].path);
    free(c->overrides);
    *c = (struct config){ 0 };
}
