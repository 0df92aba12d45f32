/* Parameters that fit each other, for random calls: a table of operations with the shapes of their operands as words, and
 * functions for what words do not say. At times a dimension is off by one. */
#include "fuzz.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* ---- words ---- */

/* A letter is a size, the same wherever it stands in a call: a to d few; e, f features; k, q, r a kernel's; l, m, p an image's;
 * x, y, z rows and columns; g groups; of a capital: so many groups of it. A digit is itself, ? any size, a dot batch
 * dimensions that broadcast, a comma the same ones as they are. */
static int sizes[128], batch[2], batches;

static int size_of(char letter)
{
    static const int heads[] = { 64, 64, 128, 80, 96, 256, 33 };
    if (chance(1)) return 0;
    if (strchr("abcd", letter)) return between(1, 4);
    if (strchr("kqr", letter)) return between(1, 3);
    if (strchr("lmp", letter)) return between(3, 9);
    if (strchr("ef", letter)) return chance(50) ? heads[below(7)] : between(1, 20);
    if (strchr("xyz", letter)) return chance(60) ? between(1, 9) : chance(50) ? between(10, 80) : 16 << below(4);
    if (letter == 'g') return chance(60) ? 1 : between(2, 3);
    return between(1, LARGEST);
}

static void draw_sizes(void)
{
    for (char c = 'a'; c <= 'z'; c++) sizes[(int)c] = size_of(c);
    for (char c = 'a'; c <= 'z'; c++) sizes[toupper(c)] = sizes[(int)c] * sizes['g'];
    for (char c = '0'; c <= '9'; c++) sizes[(int)c] = c - '0';
    batches = chance(50) ? 0 : between(1, 2);
    for (int i = 0; i < batches; i++) batch[i] = between(1, 3);
}

/* The shape that a word says; the number of its dimensions. */
static int spell(int *shape, const char *word, size_t length)
{
    int n = 0;
    for (size_t i = 0; i < length && n < MOST_DIMS; i++) {
        bool dot = word[i] == '.';
        if (dot || word[i] == ',') {
            for (int k = 0; k < batches && n < MOST_DIMS; k++) shape[n++] = dot && chance(25) ? 1 : batch[k];
            continue;
        }
        shape[n++] = word[i] == '?' ? between(0, LARGEST) : sizes[(int)word[i]];
    }
    if (n && chance(2)) shape[below(n)] += chance(50) ? 1 : -1;
    for (int i = 0; i < n; i++) if (shape[i] < 0) shape[i] = 0;
    if (chance(1)) n -= n > 0;
    return n;
}

/* ---- giving ---- */

static void give_array(struct call *c, const char *name, mlxvk_array array)
{
    if (c->array_count < MAX_OPERANDS) c->arrays[c->array_count++] = (struct named_array){ name, array, false };
}

static void give_none(struct call *c, const char *name) { give_array(c, name, mlxvk_array_new()); }

static void give(struct call *c, const char *name, mlxvk_dtype dtype, const int *shape, int ndim)
{
    give_array(c, name, shaped_array(name, dtype, shape, ndim));
}

static void give_number(const char *name, double value) { cJSON_AddItemToObject(now.args, name, cJSON_CreateNumber(value)); }
static void give_text(const char *name, const char *text) { cJSON_AddItemToObject(now.args, name, cJSON_CreateString(text)); }
static void give_ints(const char *name, const int *values, int n)
{
    cJSON_AddItemToObject(now.args, name, cJSON_CreateIntArray(values, n));
}

static mlxvk_dtype one_dtype(const char *list) { return (mlxvk_dtype)(list[below((int)strlen(list))] - 'A'); }

/* Dtypes of a row or an operand by a letter; lists of them are 'A' + dtype. */
static mlxvk_dtype dtype_by(char kind)
{
    switch (kind) {
    case 'f': return one_dtype("KKKJM");                    /* floating */
    case 'h': return one_dtype("KKJMN");                    /* or complex */
    case 'r': return MLXVK_FLOAT32;
    case 'z': return one_dtype("NNK");
    case 'i': return one_dtype("HHHDEIBCFG");               /* integers */
    case 'u': return MLXVK_UINT32;
    case '4': return MLXVK_INT32;
    case '8': return MLXVK_UINT8;
    case 't': return chance(90) ? MLXVK_BOOL : random_dtype();
    case 'm': return chance(50) ? MLXVK_BOOL : now.dtype;
    default: return random_dtype();
    }
}

/* "name=word:kind", or "name*=word:kind" for a vector of such arrays. */
static void give_operand(struct call *c, const char *name, bool vector, const char *word, size_t length)
{
    const char *colon = memchr(word, ':', length);
    int shape[MOST_DIMS], count = vector ? between(1, 4) : 1;
    struct named_vector *v = &c->vectors[c->vector_count];
    if (colon) length = (size_t)(colon - word);
    if (vector) *v = (struct named_vector){ name, mlxvk_vector_array_new() };
    c->vector_count += vector;
    for (int i = 0; i < count; i++) {
        int ndim = spell(shape, word, length);
        mlxvk_dtype dtype = chance(2) ? random_dtype() : colon ? dtype_by(colon[1]) : now.dtype;
        if (!vector) { give(c, name, dtype, shape, ndim); continue; }
        mlxvk_array a = shaped_array(name, dtype, shape, ndim);
        if (a.ctx) mlxvk_vector_array_append_value(v->vector, a);
        mlxvk_array_free(a);
    }
}

/* "low..high", a letter, "[n]low..high": n such numbers, "(1,-2)": these, "{xy}": sizes, "@": the call's dtype. */
static void give_argument(const char *name, const char *word)
{
    int values[8], n = 0, low, high;
    char *end = NULL;
    if (*word == '@') { give_text(name, dtype_text(now.dtype)); return; }
    if (*word == '{') {
        for (word++; *word != '}' && n < 8; word++) values[n++] = sizes[(int)*word];
    } else if (*word == '(') {
        for (end = (char *)word; *end != ')' && n < 8;) values[n++] = (int)strtol(end + 1, &end, 10);
    } else if (*word == '[') {
        low = (int)strtol(word + 3, &end, 10), high = (int)strtol(end + 2, NULL, 10);
        n = chance(10) ? 1 : word[1] - '0';
        for (int i = 0; i < n; i++) values[i] = between(low, high);
    } else if (islower((unsigned char)*word)) {
        give_number(name, sizes[(int)*word]);
        return;
    } else {
        low = (int)strtol(word, &end, 10), high = (int)strtol(end + 2, NULL, 10);
        give_number(name, between(low, high));
        return;
    }
    give_ints(name, values, n);
}

/* Names live as long as the program: there are as many as words in the table. */
static const char *kept(const char *text, size_t length)
{
    static char *names[512];
    static int count;
    for (int i = 0; i < count; i++) if (strlen(names[i]) == length && !memcmp(names[i], text, length)) return names[i];
    if (count == 512) return "";
    names[count] = need(calloc(length + 1, 1));
    memcpy(names[count], text, length);
    return names[count++];
}

static void give_words(struct call *c, const char *words, bool operands)
{
    for (const char *at = words; *at;) {
        const char *equals = strchr(at, '=');
        size_t name = (size_t)(equals - at), length = strcspn(equals + 1, " ");
        bool vector = equals[-1] == '*';
        const char *called = kept(at, name - vector);
        if (operands) give_operand(c, called, vector, equals + 1, length);
        else if (!vector) give_argument(called, equals + 1);
        for (int i = 0; i < 3 && !operands && vector; i++) {             /* "stride*=": stride_0, stride_1, stride_2 */
            char full[64] = "";
            memcpy(full, called, name - 1);
            memcpy(full + name - 1, (const char[3]){ '_', (char)('0' + i) }, 3);
            give_argument(kept(full, name + 1), equals + 1);
        }
        at = equals + 1 + length;
        at += *at == ' ';
    }
}

/* ---- what words do not say ---- */

static int any_shape(int *shape, int least, int most)
{
    int n = between(least, most);
    for (int i = 0; i < n; i++) shape[i] = chance(2) ? 0 : between(1, LARGEST);
    return n;
}

/* Weights in groups along their last axis, as codes with scales (and biases). */
static void give_weights(struct call *c, int batch_size, int rows, int columns, int group, int bits, bool affine)
{
    int w[3] = { batch_size, rows, columns * bits / 32 }, s[3] = { batch_size, rows, columns / group }, skip = batch_size == 0;
    give(c, "w", MLXVK_UINT32, w + skip, 3 - skip);
    give(c, "scales", affine ? now.dtype : MLXVK_UINT8, s + skip, 3 - skip);
    if (affine) give(c, "biases", now.dtype, s + skip, 3 - skip);
    else give_none(c, "biases");
    give(c, "w_scales", affine ? now.dtype : MLXVK_UINT8, s + skip, 3 - skip);
}

static const struct { const char *mode; int group, bits; } modes[] = { { "mxfp4", 32, 4 }, { "mxfp8", 32, 8 }, { "nvfp4", 16, 4 } };

static void fit_quantized(struct call *c)
{
    static const int widths[] = { 1, 2, 3, 4, 5, 6, 8, 4, 8 };
    bool both = strstr(now.op, "qqmm"), affine = !both && chance(60), turned = both || chance(60);
    bool gathered = strstr(now.op, "gather") ? chance(90) : !both && chance(60);
    int kind = below(3), group = affine ? 32 << below(3) : modes[kind].group, bits = affine ? widths[below(9)] : modes[kind].bits;
    int k = group * between(1, 3), n = turned ? between(1, 40) : group * between(1, 2), experts = gathered ? between(1, 3) : 0;
    int x[3] = { gathered ? between(1, 3) : 1, between(1, chance(20) ? 40 : 5), k }, indices[2] = { between(1, 4), between(1, 2) };
    give_text("mode", affine ? "affine" : modes[kind].mode);
    give_number("group_size", group);
    give_number("bits", bits);
    cJSON_AddBoolToObject(now.args, "transpose", turned);
    if (both && chance(30)) {                              /* weights as they are */
        give(c, "w", now.dtype, (int[]){ experts, n, k } + !gathered, 2 + gathered);
        give_none(c, "w_scales");
    }
    give_weights(c, experts, turned ? n : k, turned ? k : n, group, bits, affine);
    give(c, "x", now.dtype, x + !gathered, 2 + gathered);
    if (chance(70)) give(c, "rhs_indices", MLXVK_UINT32, indices, 2); else give_none(c, "rhs_indices");
    if (chance(70)) give(c, "lhs_indices", MLXVK_UINT32, indices, 2); else give_none(c, "lhs_indices");
    if (chance(70)) cJSON_AddNullToObject(now.args, "dtype");
    if (chance(80)) { give_none(c, "global_scale"); give_none(c, "global_scale_x"); give_none(c, "global_scale_w"); }
}

static void fit_quantize(struct call *c)
{
    int shape[2] = { between(1, 9), 128 * between(1, 3) }, kind = below(6);
    give(c, "w", now.dtype, shape, 2);
    give_text("mode", kind < 3 ? modes[kind].mode : "affine");
    if (kind < 3 || chance(20)) { cJSON_AddNullToObject(now.args, "group_size"); cJSON_AddNullToObject(now.args, "bits"); }
    else { give_number("group_size", 32 << below(3)); give_number("bits", between(2, 8)); }
    if (chance(90)) give_none(c, "global_scale");
}

static void fit_block_masked(struct call *c)
{
    int block = 32 << below(2), m = between(1, 2 * block), k = between(1, 3 * block), n = between(1, 2 * block);
    int mb = (m + block - 1) / block, kb = (k + block - 1) / block, nb = (n + block - 1) / block;
    mlxvk_dtype mask = chance(50) ? MLXVK_BOOL : now.dtype;
    give(c, "a", now.dtype, (int[]){ m, k }, 2);
    give(c, "b", now.dtype, (int[]){ k, n }, 2);
    if (chance(60)) give(c, "mask_out", mask, (int[]){ mb, nb }, 2); else give_none(c, "mask_out");
    if (chance(60)) give(c, "mask_lhs", mask, (int[]){ mb, kb }, 2); else give_none(c, "mask_lhs");
    if (chance(60)) give(c, "mask_rhs", mask, (int[]){ kb, nb }, 2); else give_none(c, "mask_rhs");
    give_number("block_size", block);
}

static void fit_attention(struct call *c)
{
    static const char *const modes[] = { "", "", "causal", "array" };
    int mode = below(4);
    give_text("mask_mode", modes[mode]);
    give_number("scale", 0.125);
    if (mode == 2 || (mode < 2 && chance(50))) give_none(c, "mask_arr");
    if (chance(70)) give_none(c, "sinks");
    if (chance(50)) give_none(c, "logsumexp");
}

static void fit_rope(struct call *c)
{
    int shape[4] = { between(1, 3), between(1, 3), between(1, 5), 2 * between(1, 20) }, ndim = between(3, 4);
    int dims = 2 * between(1, shape[ndim - 1] / 2 + (ndim == 3)), half = dims / 2;
    bool base = chance(60);
    if (ndim == 3) shape[2] = dims + between(0, 4);
    give(c, "x", now.dtype, shape, ndim);
    give_number("dims", dims);
    if (base) { give_number("base", 10000); give_none(c, "freqs"); }
    else { cJSON_AddNullToObject(now.args, "base"); give(c, "freqs", MLXVK_FLOAT32, &half, 1); }
    give_number("scale", chance(50) ? 1 : -0.5);
    if (chance(50)) give(c, "offset", MLXVK_INT32, shape, chance(50));
    give_number("offset", between(0, 5000));
}

static void fit_einsum(struct call *c)
{
    static const char *const texts[] = { "ab,bc->ac", "ab,bc,cd->ad", "ab,ab->", "aab->b", "...ab,...bc->...ac", "abc,cd->abd", "ab->ba",
                                         "abk,abl->kl", "a,b->ab", "xy,yz,z->x", "ii->i", "abcd,cdef->abef" };
    const char *text = texts[below(12)];
    struct named_vector *v = &c->vectors[c->vector_count++];
    *v = (struct named_vector){ "operands", mlxvk_vector_array_new() };
    give_text("subscripts", text);
    for (const char *at = text; *at && *at != '-';) {
        size_t length = strcspn(at, ",-");
        int shape[MOST_DIMS], n = 0;
        for (size_t i = 0; i < length && n < MOST_DIMS; i++) if (at[i] != '.') shape[n++] = sizes[(int)at[i]];
        if (n < MOST_DIMS && at[0] == '.' && batches) { memmove(shape + 1, shape, (size_t)n * sizeof *shape); shape[0] = batch[0]; n++; }
        mlxvk_array a = shaped_array("operands", now.dtype, shape, n);
        if (a.ctx) mlxvk_vector_array_append_value(v->vector, a);
        mlxvk_array_free(a);
        at += length + (at[length] == ',');
    }
}

/* gather and scatter, with one index array an axis and windows that may reach along all axes. */
static void fit_windows(struct call *c)
{
    int a[4], ndim = any_shape(a, 1, 4), index[2], indices = any_shape(index, 0, 2), axes[4], used = between(chance(5) ? 0 : 1, ndim);
    int updates[MOST_DIMS], sizes_of[4], first = below(ndim);
    struct named_vector *v = &c->vectors[c->vector_count];
    give(c, "a", now.dtype, a, ndim);
    for (int i = 0; i < ndim; i++) axes[i] = (first + i) % ndim, sizes_of[i] = chance(50) ? a[i] : a[i] ? between(1, a[i]) : 0;
    for (int i = 0; i < used; i++) if (chance(60)) sizes_of[axes[i]] = 1;
    memcpy(updates, index, sizeof index);
    memcpy(updates + indices, sizes_of, (size_t)ndim * sizeof *sizes_of);
    give(c, "updates", chance(90) ? now.dtype : random_dtype(), updates, indices + ndim);
    give_ints("axes", axes, used);
    give_number("axis", axes[0]);
    give_ints("slice_sizes", sizes_of, ndim);
    give(c, "indices", dtype_by('i'), index, indices);
    *v = (struct named_vector){ "indices", mlxvk_vector_array_new() };
    c->vector_count++;
    for (int i = 0; i < used; i++) {
        mlxvk_array one = shaped_array("indices", dtype_by('i'), index, indices);
        if (one.ctx) mlxvk_vector_array_append_value(v->vector, one);
        mlxvk_array_free(one);
    }
}

static void fit_slice(struct call *c)
{
    int a[5], ndim = any_shape(a, 1, 5), start[5], stop[5], step[5], update[5], skip = chance(30) ? below(ndim) : 0;
    for (int i = 0; i < ndim; i++) {
        int from = a[i] ? below(a[i]) : 0, to = a[i] ? below(a[i]) : 0, low = from < to ? from : to, high = from < to ? to : from;
        bool back = chance(30);
        step[i] = between(1, 3) * (back ? -1 : 1);
        start[i] = back ? high : low;
        stop[i] = back ? (low ? low - 1 : -a[i] - 1) : high + (a[i] > 0);
        update[i] = a[i] ? (high - low) / abs(step[i]) + 1 : 0;
        if (chance(10)) update[i] = 1;
    }
    give(c, "a", now.dtype, a, ndim);
    give(c, "src", now.dtype, a, ndim);
    give(c, "update", chance(80) ? now.dtype : random_dtype(), update + skip, ndim - skip);
    give_ints("start", start, ndim);
    give_ints("stop", stop, ndim);
    give_ints("strides", step, ndim);
}

static void fit_dynamic(struct call *c)
{
    int a[4], ndim = any_shape(a, 1, 4), size[4], axes[4], used = between(1, ndim), first = below(ndim);
    for (int i = 0; i < ndim; i++) size[i] = a[i] ? between(1, a[i]) : 0, axes[i] = (first + i) % ndim;
    give(c, "a", now.dtype, a, ndim);
    give(c, "src", now.dtype, a, ndim);
    give(c, "update", now.dtype, size, ndim);
    give(c, "start", dtype_by('i'), &used, 1);
    give_ints("axes", axes, used);
    give_ints("slice_size", size, ndim);
}

/* Mostly inside the array. */
static void fit_strided(struct call *c)
{
    int a[3], ndim = any_shape(a, 1, 3), shape[3], count = 1, reach = 0;
    cJSON *strides = cJSON_CreateArray();
    for (int i = 0; i < ndim; i++) count *= a[i];
    for (int i = 0; i < 3; i++) {
        int step = between(-2, 3);
        shape[i] = between(1, 3);
        if (step < 0) reach += -step * (shape[i] - 1);
        cJSON_AddItemToArray(strides, chance(1) ? cJSON_CreateNumber(chance(50) ? 0x1p52 : -0x1p52) : cJSON_CreateNumber(step));
    }
    give(c, "a", now.dtype, a, ndim);
    give_ints("shape", shape, 3);
    cJSON_AddItemToObject(now.args, "strides", strides);
    give_number("offset", chance(2) ? 0x1p50 : chance(90) ? reach : between(0, count + 1));
}

static void fit_hadamard(struct call *c)
{
    static const int kinds[] = { 1, 12, 20, 28 };
    int shape[2] = { between(1, 4), kinds[below(4)] << below(7) };
    give(c, "a", now.dtype, shape, 2);
}

/* ---- the table ---- */

static const struct fitting {
    const char *ops;                                       /* between spaces; * stands for the rest of a name */
    char dtype;
    const char *operands, *arguments;
    void (*more)(struct call *c);
} fittings[] = {
    { "conv1d conv_transpose1d", 'f', "input=alC weight=Okc", "stride=1..3 padding=0..2 dilation=1..2 output_padding=0..1 groups=g", NULL },
    { "conv2d conv_transpose2d", 'f', "input=almC weight=Okqc",
      "stride*=1..3 padding*=0..2 dilation*=1..2 output_padding*=0..1 groups=g", NULL },
    { "conv3d conv_transpose3d", 'f', "input=almpC weight=Okqrc",
      "stride*=1..3 padding*=0..2 dilation*=1..2 output_padding*=0..1 groups=g", NULL },
    { "conv_general", 'f', "input=almC weight=Okqc", "stride=[2]1..3 padding_lo=[2]-1..2 padding_hi=[2]-1..2 kernel_dilation=[2]1..2 "
      "input_dilation=[2]1..3 groups=g", NULL },
    { "matmul", 'h', "a=.xy b=.yz", "", NULL },
    { "addmm", 'h', "c=xz a=.xy b=.yz", "", NULL },
    { "inner", 'f', "a=.xy b=zy", "", NULL },
    { "gather_mm", 'f', "a=.xy b=.yz lhs_indices=cd:u rhs_indices=cd:u", "", NULL },
    { "segmented_mm", 'f', "a=xy b=yz segments=a2:u", "", NULL },
    { "tensordot_axis", 'h', "a=cxy b=yzd", "axis=1..1", NULL },
    { "tensordot", 'h', "a=cxy b=yxz", "axes_a=(1,2) axes_b=(1,0)", NULL },
    { "block_masked_mm", 'f', "", "", fit_block_masked },
    { "quantized_matmul gather_qmm dequantize qqmm gather_qqmm", 'f', "", "", fit_quantized },
    { "quantize", 'f', "", "", fit_quantize },
    { "from_fp8", 'f', "x=,xy:8", "dtype=@", NULL },
    { "to_fp8", 'f', "x=,xy", "", NULL },
    { "hadamard_transform", 'f', "", "", fit_hadamard },
    { "einsum", 'h', "", "", fit_einsum },
    { "linalg_tri_inv linalg_cholesky linalg_cholesky_inv linalg_inv linalg_eigvalsh linalg_eigh", 'r', "a=,xx", "", NULL },
    { "linalg_solve linalg_solve_triangular", 'r', "a=,xx b=,xz", "", NULL },
    { "linalg_lu linalg_lu_factor linalg_qr linalg_svd linalg_pinv", 'r', "a=,xy", "", NULL },
    { "linalg_norm linalg_norm_l2", 'f', "a=,xy", "axis=(-2,-1) ord=-2..2", NULL },
    { "linalg_norm_matrix", 'f', "a=,xy", "axis=(-2,-1)", NULL },
    { "linalg_cross", 'f', "a=.x3 b=.x3", "axis=-1..-1", NULL },
    { "fast_rms_norm fast_rms_norm_vjp", 'f', "x=,xy weight=y cotangent=,xy", "", NULL },
    { "fast_cross_entropy fast_cross_entropy_vjp", 'f', "logits=xy targets=x:i loss=x cotangent=x", "", NULL },
    { "fast_gated_delta_update fast_gated_delta_update_vjp", 'f', "queries=axbe keys=axbe values=axBf gates=axB beta=axB "
      "initial_state=aBfe cotangent=axBf state_cotangent=aBfe mask=ax:t", "", NULL },
    { "fast_layer_norm fast_layer_norm_vjp", 'f', "x=,xy weight=y bias=y cotangent=,xy", "", NULL },
    { "fast_rope*", 'f', "", "", fit_rope },
    { "fast_scaled_dot_product_attention*", 'f', "queries=aBxe keys=abye values=abyf mask_arr=xy:m sinks=B "
      "output=aBxf logsumexp=aBx1:r cotangent=aBxf", "", fit_attention },
    { "gather gather_single scatter scatter_single scatter_add scatter_add_single scatter_prod* scatter_max* scatter_min*", '*', "", "",
      fit_windows },
    { "slice slice_update slice_update_add slice_update_prod slice_update_max slice_update_min", '*', "", "", fit_slice },
    { "slice_dynamic slice_update_dynamic", '*', "", "", fit_dynamic },
    { "as_strided", '*', "", "", fit_strided },
    { "take_along_axis put_along_axis scatter_add_axis", '*', "a=xyd indices=xzd:i values=xzd", "axis=1..1", NULL },
    { "masked_scatter", '*', "a=xyd mask=xy:t src=zd", "", NULL },
    { "searchsorted", '*', "a=x v=.y", "", NULL },
    { "pad", '*', "a=,xy pad_value=", "axes=(-1,-2) low_pad_size=[2]0..5 high_pad_size=[2]0..5", NULL },
    { "pad_symmetric", '*', "a=,xy pad_value=", "pad_width=0..5", NULL },
    { "diag", '*', "a=xy", "k=-3..3", NULL },
    { "transpose_axes", '*', "a=xyd", "axes=(2,0,-2)", NULL },
    { "moveaxis swapaxes", '*', "a=xyd", "source=-3..2 destination=-3..2 axis1=-3..2 axis2=-3..2", NULL },
    { "reshape", '*', "a=xy6", "shape=(3,-1,2)", NULL },
    { "broadcast_to", '*', "a=1y", "shape={cxy}", NULL },
    { "squeeze_axes", '*', "a=x1y1", "axes=(1,-1)", NULL },
    { "unflatten", '*', "a=d6y", "axis=1..1 shape=(2,-1)", NULL },
    { "view", '*', "a=,x8", "", NULL },
    { "split", '*', "a=6y", "num_splits=1..3 axis=0..0", NULL },
    { "squeeze_axis", '*', "a=,1y", "axis=-2..-2", NULL },
    { "stack stack_axis", '*', "arrays*=,xy", "axis=-3..2", NULL },
    { "concatenate", '*', "arrays*=?xy", "", NULL },
    { "concatenate_axis", '*', "arrays*=x?y", "axis=1..1", NULL },
    { "broadcast_arrays", '*', "inputs*=.xy", "", NULL },
    { "meshgrid", '*', "arrays*=x", "", NULL },
    { "diagonal trace", '*', "a=,xy", "axis1=-1..-1 axis2=-2..-2 offset=-5..5", NULL },
    { "partition* argpartition* topk*", '*', "a=xyd", "axis=-3..2 kth=0..1 k=1..2", NULL },
    { "bitwise_and bitwise_or bitwise_xor bitwise_invert left_shift right_shift", 'i', "a=.xy b=.xy", "", NULL },
    { "divmod remainder floor_divide divide_truncate", 'i', "a=.xy b=.xy", "", NULL },
    { "fft_fft fft_ifft fft_irfft", 'z', "a=,xy", "n=1..130 axis=-2..-1", NULL },
    { "fft_rfft", 'r', "a=,xy", "n=1..130 axis=-2..-1", NULL },
    { "fft_fft2 fft_ifft2 fft_irfft2 fft_fftn fft_ifftn fft_irfftn", 'z', "a=,xy", "n=[2]1..30 axes=(-2,-1)", NULL },
    { "fft_rfft2 fft_rfftn", 'r', "a=,xy", "n=[2]1..30 axes=(-1,-2)", NULL },
    { "random_uniform", 'f', "low= high=", "dtype=@", NULL },
    { "random_truncated_normal", 'f', "lower= upper=", "dtype=@", NULL },
    { "random_normal random_gumbel random_laplace", 'f', "", "dtype=@", NULL },
    { "random_normal_broadcast", 'f', "loc= scale=", "dtype=@", NULL },
    { "random_bernoulli", 'f', "p=", "", NULL },
    { "random_randint", 'i', "low=:4 high=:4", "dtype=@", NULL },
    { "random_bits", '*', "", "width=1..4", NULL },
    { "random_categorical", 'f', "logits=,xy", "axis=-1..-1", NULL },
    { "random_categorical_num_samples", 'f', "logits_=,xy", "axis=-1..-1 num_samples=0..9", NULL },
    { "random_categorical_shape", 'f', "logits=xy", "axis=-1..-1 shape={ax}", NULL },
    { "random_multivariate_normal", 'r', "mean=l cov=ll", "dtype=@ shape={ab}", NULL },
};

/* Is op a word of the list? */
static bool named(const char *list, const char *op)
{
    for (const char *at = list; *at;) {
        size_t length = strcspn(at, " "), given = strlen(op);
        bool open = at[length - 1] == '*';
        if (open ? given >= length - 1 && !memcmp(at, op, length - 1) : given == length && !memcmp(at, op, length)) return true;
        at += length + (at[length] == ' ');
    }
    return false;
}

void fit(struct call *c, const char *op)
{
    for (size_t i = 0; i < sizeof fittings / sizeof *fittings; i++) {
        if (!named(fittings[i].ops, op)) continue;
        draw_sizes();
        now.dtype = dtype_by(fittings[i].dtype);
        if (fittings[i].more) fittings[i].more(c);
        give_words(c, fittings[i].operands, true);
        give_words(c, fittings[i].arguments, false);
        return;
    }
}
