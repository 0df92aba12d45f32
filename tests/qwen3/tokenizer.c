/* tokenizer.c - see tokenizer.h.
 *
 * Encoding goes through five stages, each handing pieces to the next:
 *   added tokens (whole, before anything else) -> normalizer -> added tokens that want normalized text
 *   -> pre-tokenizer (regular expressions cut the text into words) -> byte-level BPE within each word. */
#include "tokenizer.h"

#include "json.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum { MAX_SPLITS = 8, MAX_ID = 1 << 22 };

/* The pattern that ByteLevel itself splits with where use_regex is true (GPT-2's). */
static const char gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

struct token {              /* of the vocabulary, by id */
    char  *name;            /* as in the file: one character for each byte */
    char  *bytes;           /* what it decodes to */
    size_t length;
};

struct added {              /* a token that is found in the text as it stands */
    char   *content;
    size_t  length;
    int32_t id;
    bool    normalized, single_word, lstrip, rstrip;
};

struct merge {              /* a slot of the merge table; empty while rank is 0 */
    int32_t  left, right, result;
    uint32_t rank;          /* 1 is merged first */
};

struct split {
    pcre2_code       *code;
    pcre2_match_data *match;
};

struct symbol {             /* of the word being merged: a list that shrinks */
    int32_t id;             /* -1: merged into its left neighbour */
    int     previous, next; /* -1: none */
};

struct candidate {          /* a merge that was possible when it was pushed */
    uint32_t rank;
    int      at;            /* its left symbol */
    int32_t  left, right, result;
};

struct tokenizer {
    struct token *tokens;
    int32_t       token_count;       /* one more than the largest id */
    int32_t      *names;             /* hash table of ids by name; -1: empty */
    size_t        name_slots;
    struct merge *merges;
    size_t        merge_slots;
    struct added *added;
    size_t        added_count;
    bool          added_first[256];  /* bytes that some added token begins with */
    int           normalizer;        /* utf8proc options; 0: none */
    struct split  splits[MAX_SPLITS];
    int           split_count;
    bool          prefix_space, ignore_merges;
    int32_t       byte_id[256];      /* the token of one byte, or -1 */
    int16_t       byte_of[512];      /* by code point: the byte that it stands for, or -1 */
    struct ids    before, after;     /* the post-processor's */
    struct symbol    *symbols;       /* scratch */
    struct candidate *heap;
    size_t            symbol_capacity, heap_capacity, heap_count;
};

/* ==== >>bytes: GPT-2's alphabet, one visible character for each byte ======================================= */

static bool is_plain(int byte)
{
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

/* The 188 plain bytes stand for themselves; the other 68, in order, for U+0100 and up. */
static int32_t byte_to_code(int byte)
{
    int rank = 0;
    if (is_plain(byte))
        return byte;
    for (int i = 0; i < byte; i++)
        rank += !is_plain(i);
    return 256 + rank;
}

static void fill_alphabet(struct tokenizer *t)
{
    memset(t->byte_of, 0xff, sizeof t->byte_of);
    for (int byte = 0; byte < 256; byte++)
        t->byte_of[byte_to_code(byte)] = (int16_t)byte;
}

static size_t code_to_utf8(int32_t code, char *out) /* below U+0800 */
{
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    out[0] = (char)(0xc0 | code >> 6);
    out[1] = (char)(0x80 | (code & 0x3f));
    return 2;
}

/* What a token's name decodes to. A name with a character outside the alphabet stands for itself. */
static void name_to_bytes(const struct tokenizer *t, struct token *token)
{
    size_t length = strlen(token->name), at = 0;
    token->bytes = new_bytes(length + 1, 1);
    token->length = 0;
    while (at < length) {
        enum utf8_kind kind;
        int32_t code = 0;
        at += utf8_first(token->name + at, length - at, &kind, &code);
        int byte = kind == UTF8_VALID && code < 512 ? t->byte_of[code] : -1;
        if (byte < 0) {
            memcpy(token->bytes, token->name, length);
            token->length = length;
            return;
        }
        token->bytes[token->length++] = (char)byte;
    }
}

/* ==== >>tables ============================================================================================ */

static size_t hash_bytes(const char *bytes, size_t length)
{
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (size_t i = 0; i < length; i++)
        hash = (hash ^ (unsigned char)bytes[i]) * 0x100000001b3u;
    return (size_t)(hash ^ hash >> 29);
}

static size_t hash_pair(int32_t left, int32_t right)
{
    uint64_t key = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9e3779b97f4a7c15u;
    return (size_t)(key ^ key >> 31);
}

static size_t slots_for(size_t count) /* a power of two, at most half full */
{
    size_t slots = 16;
    while (slots < count * 2)
        slots *= 2;
    return slots;
}

static int32_t find_name(const struct tokenizer *t, const char *name, size_t length)
{
    for (size_t slot = hash_bytes(name, length);; slot++) {
        int32_t id = t->names[slot & (t->name_slots - 1)];
        if (id < 0 || (strncmp(t->tokens[id].name, name, length) == 0 && !t->tokens[id].name[length]))
            return id;
    }
}

static void insert_name(struct tokenizer *t, int32_t id)
{
    const char *name = t->tokens[id].name;
    size_t slot = hash_bytes(name, strlen(name));
    while (t->names[slot & (t->name_slots - 1)] >= 0)
        slot++;
    t->names[slot & (t->name_slots - 1)] = id;
}

/* The slot of a pair, or the empty one where it would go. */
static struct merge *find_merge(const struct tokenizer *t, int32_t left, int32_t right)
{
    size_t slot = hash_pair(left, right);
    for (;; slot++) {
        struct merge *m = &t->merges[slot & (t->merge_slots - 1)];
        if (!m->rank || (m->left == left && m->right == right))
            return m;
    }
}

/* ==== >>vocabulary ======================================================================================== */

/* Room for id; false where the file names one that no vocabulary has. */
static bool reserve_id(struct tokenizer *t, int64_t id)
{
    if (id < 0 || id >= MAX_ID)
        return false;
    if (id >= t->token_count) {
        t->tokens = grow_bytes(t->tokens, (size_t)id + 1, sizeof *t->tokens);
        memset(t->tokens + t->token_count, 0, (size_t)(id + 1 - t->token_count) * sizeof *t->tokens);
        t->token_count = (int32_t)id + 1;
    }
    return true;
}

static bool set_token(struct tokenizer *t, const char *name, const cJSON *id, const char *where, struct error *e)
{
    int64_t value;
    struct error why;
    if (!json_integer(id, 0, MAX_ID - 1, &value, where, name, &why) || !reserve_id(t, value))
        return fail(e, "%s: token \"%s\" has no valid id", where, name);
    struct token *token = &t->tokens[value];
    if (token->name && strcmp(token->name, name) != 0)
        return fail(e, "%s: tokens \"%s\" and \"%s\" have the same id %d", where, token->name, name, (int)value);
    if (!token->name) {
        token->name = copy_text(name, strlen(name));
        name_to_bytes(t, token);
    }
    return true;
}

static bool read_vocabulary(struct tokenizer *t, const cJSON *vocab, const char *where, struct error *e)
{
    const cJSON *item;
    int64_t largest = -1;
    if (!cJSON_IsObject(vocab))
        return fail(e, "%s: model.vocab is not an object", where);
    cJSON_ArrayForEach(item, vocab) /* grown once, not id by id */
        if (cJSON_IsNumber(item) && item->valuedouble > (double)largest && item->valuedouble < MAX_ID)
            largest = (int64_t)item->valuedouble;
    if (largest >= 0)
        reserve_id(t, largest);
    cJSON_ArrayForEach(item, vocab)
        if (!set_token(t, item->string, item, where, e))
            return false;
    return true;
}

static bool read_added(struct tokenizer *t, const cJSON *list, const char *where, struct error *e)
{
    const cJSON *item;
    int count = cJSON_GetArraySize(list);
    t->added = new_bytes((size_t)count, sizeof *t->added);
    cJSON_ArrayForEach(item, list) {
        const char *content = json_string(item, "content");
        if (!content || !*content)
            return fail(e, "%s: an added token has no content", where);
        const cJSON *id = cJSON_GetObjectItemCaseSensitive(item, "id");
        if (!set_token(t, content, id, where, e))
            return false;
        struct added *a = &t->added[t->added_count++];
        *a = (struct added){ .content = copy_text(content, strlen(content)), .length = strlen(content),
                             .id = (int32_t)id->valuedouble };
        if (!json_get_bool(item, "normalized", &a->normalized, where, e) ||
            !json_get_bool(item, "single_word", &a->single_word, where, e) ||
            !json_get_bool(item, "lstrip", &a->lstrip, where, e) ||
            !json_get_bool(item, "rstrip", &a->rstrip, where, e))
            return false;
    }
    return true;
}

static void index_names(struct tokenizer *t)
{
    t->name_slots = slots_for((size_t)t->token_count);
    t->names = new_bytes(t->name_slots, sizeof *t->names);
    memset(t->names, 0xff, t->name_slots * sizeof *t->names);
    for (int32_t id = 0; id < t->token_count; id++)
        if (t->tokens[id].name)
            insert_name(t, id);
    for (int byte = 0; byte < 256; byte++) {
        char name[2];
        t->byte_id[byte] = find_name(t, name, code_to_utf8(byte_to_code(byte), name));
    }
}

/* One merge, in either of the forms that tokenizer.json has had: "a b" and ["a", "b"]. */
static bool merge_halves(const cJSON *item, const char **left, size_t *left_length, const char **right)
{
    const char *both = cJSON_GetStringValue(item);
    if (both) {
        const char *space = strchr(both, ' ');
        *left = both;
        *left_length = space ? (size_t)(space - both) : 0;
        *right = space ? space + 1 : NULL;
        return space != NULL;
    }
    if (!cJSON_IsArray(item) || cJSON_GetArraySize(item) != 2)
        return false;
    *left = cJSON_GetStringValue(item->child);
    *right = cJSON_GetStringValue(item->child->next);
    *left_length = *left ? strlen(*left) : 0;
    return *left && *right;
}

static bool read_merges(struct tokenizer *t, const cJSON *list, const char *where, struct error *e)
{
    const cJSON *item;
    uint32_t rank = 0;
    struct text joined = { 0 };
    if (!cJSON_IsArray(list))
        return fail(e, "%s: model.merges is not an array", where);
    t->merge_slots = slots_for((size_t)cJSON_GetArraySize(list));
    t->merges = new_bytes(t->merge_slots, sizeof *t->merges);
    cJSON_ArrayForEach(item, list) {
        const char *left, *right;
        size_t left_length;
        rank++;
        if (!merge_halves(item, &left, &left_length, &right)) {
            text_free(&joined);
            return fail(e, "%s: merge %u is neither \"a b\" nor [\"a\", \"b\"]", where, rank);
        }
        joined.length = 0;
        text_add(&joined, left, left_length);
        text_add_string(&joined, right);
        int32_t a = find_name(t, left, left_length), b = find_name(t, right, strlen(right));
        int32_t both = find_name(t, joined.data, joined.length);
        if (a < 0 || b < 0 || both < 0) {
            fail(e, "%s: merge %u makes \"%s\" of tokens that are not all in the vocabulary", where, rank, joined.data);
            text_free(&joined);
            return false;
        }
        struct merge *m = find_merge(t, a, b);
        *m = (struct merge){ a, b, both, rank }; /* of two merges of one pair the last counts, as in the library */
    }
    text_free(&joined);
    return true;
}

static bool read_model(struct tokenizer *t, const cJSON *root, const char *where, struct error *e)
{
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(root, "model");
    const char *type = json_string(model, "type"), *odd[] = { "continuing_subword_prefix", "end_of_word_suffix" };
    bool byte_fallback = false;
    if (!type || strcmp(type, "BPE") != 0)
        return fail(e, "%s: model.type is %s, not BPE", where, type ? type : "missing");
    for (size_t i = 0; i < 2; i++)
        if (json_string(model, odd[i]) && *json_string(model, odd[i]))
            return fail(e, "%s: model.%s is not supported", where, odd[i]);
    if (!json_get_bool(model, "ignore_merges", &t->ignore_merges, where, e) ||
        !json_get_bool(model, "byte_fallback", &byte_fallback, where, e))
        return false;
    if (byte_fallback)
        return fail(e, "%s: model.byte_fallback is not supported", where);
    if (!read_vocabulary(t, cJSON_GetObjectItemCaseSensitive(model, "vocab"), where, e) ||
        !read_added(t, cJSON_GetObjectItemCaseSensitive(root, "added_tokens"), where, e))
        return false;
    index_names(t);
    return read_merges(t, cJSON_GetObjectItemCaseSensitive(model, "merges"), where, e);
}

/* ==== >>normalizer ======================================================================================== */

static bool read_normalizer(struct tokenizer *t, const cJSON *item, const char *where, struct error *e)
{
    static const struct { const char *name; int options; } forms[] = {
        { "NFC", UTF8PROC_COMPOSE },  { "NFKC", UTF8PROC_COMPOSE | UTF8PROC_COMPAT },
        { "NFD", UTF8PROC_DECOMPOSE }, { "NFKD", UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT },
    };
    if (!item || cJSON_IsNull(item))
        return true;
    const char *type = json_string(item, "type");
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(item, "normalizers"), *part;
    if (type && strcmp(type, "Sequence") == 0 && cJSON_GetArraySize(list) <= 1) {
        cJSON_ArrayForEach(part, list)
            return read_normalizer(t, part, where, e);
        return true;
    }
    for (size_t i = 0; type && i < sizeof forms / sizeof *forms; i++)
        if (strcmp(type, forms[i].name) == 0) {
            t->normalizer = forms[i].options | UTF8PROC_STABLE;
            return true;
        }
    return fail(e, "%s: normalizer %s is not supported", where, type ? type : "without type");
}

/* Normalized text, to be freed; NULL where it is the text itself. */
static char *normalize(const struct tokenizer *t, const char *text, size_t *length)
{
    size_t ascii = 0;
    utf8proc_uint8_t *result = NULL;
    while (ascii < *length && (unsigned char)text[ascii] < 0x80)
        ascii++;
    if (!t->normalizer || ascii == *length)
        return NULL;
    utf8proc_ssize_t size = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)*length, &result,
                                         (utf8proc_option_t)t->normalizer);
    if (size < 0) /* not for want of validity, which was checked */
        return NULL;
    *length = (size_t)size;
    return (char *)result;
}

/* Tokens that are looked for in normalized text are normalized themselves. */
static void index_added(struct tokenizer *t)
{
    for (size_t i = 0; i < t->added_count; i++) {
        struct added *a = &t->added[i];
        char *normal = a->normalized ? normalize(t, a->content, &a->length) : NULL;
        if (normal) {
            free(a->content);
            a->content = normal;
        }
        if (a->length)
            t->added_first[(unsigned char)a->content[0]] = true;
    }
}

/* ==== >>pre-tokenizer ===================================================================================== */

/* The library's engine means by \s Unicode's White_Space; PCRE2 would add U+180E. So \s and \S are spelled out. */
static char *spell_spaces(const char *pattern)
{
    static const char spaces[] = "\\t-\\r\\x{85}\\p{Z}";
    struct text out = { 0 };
    bool in_class = false;
    text_add(&out, "", 0);
    for (; *pattern; pattern++) {
        if (*pattern == '\\' && (pattern[1] == 's' || (pattern[1] == 'S' && !in_class))) {
            text_add_string(&out, in_class ? "" : pattern[1] == 's' ? "[" : "[^");
            text_add_string(&out, spaces);
            text_add_string(&out, in_class ? "" : "]");
            pattern++;
            continue;
        }
        if (*pattern == '\\' && pattern[1])
            text_add(&out, pattern++, 1);
        else if (*pattern == '[' || *pattern == ']')
            in_class = *pattern == '[';
        text_add(&out, pattern, 1);
    }
    return out.data;
}

static bool add_split(struct tokenizer *t, const char *pattern, bool literal, const char *where, struct error *e)
{
    int number;
    PCRE2_SIZE at;
    PCRE2_UCHAR why[120];
    uint32_t options = PCRE2_UTF | (literal ? PCRE2_LITERAL : PCRE2_UCP);
    if (t->split_count == MAX_SPLITS)
        return fail(e, "%s: more than %d split patterns", where, MAX_SPLITS);
    char *spelled = literal ? copy_text(pattern, strlen(pattern)) : spell_spaces(pattern);
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)spelled, PCRE2_ZERO_TERMINATED, options, &number, &at, NULL);
    free(spelled);
    if (!code) {
        pcre2_get_error_message(number, why, sizeof why);
        return fail(e, "%s: the pre-tokenizer's pattern: %s", where, (const char *)why);
    }
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); /* where there is no JIT, matching interprets */
    t->splits[t->split_count].code = code;
    t->splits[t->split_count++].match = pcre2_match_data_create_from_pattern(code, NULL);
    return t->splits[t->split_count - 1].match || fail(e, "out of host memory");
}

static bool read_split(struct tokenizer *t, const cJSON *item, const char *where, struct error *e)
{
    const cJSON *pattern = cJSON_GetObjectItemCaseSensitive(item, "pattern");
    const char *regex = json_string(pattern, "Regex"), *literal = json_string(pattern, "String");
    const char *behavior = json_string(item, "behavior");
    bool invert = false;
    if (!json_get_bool(item, "invert", &invert, where, e))
        return false;
    if (!behavior || strcmp(behavior, "Isolated") != 0 || invert)
        return fail(e, "%s: a Split pre-tokenizer that is not Isolated is not supported", where);
    if (!regex && !literal)
        return fail(e, "%s: a Split pre-tokenizer without pattern", where);
    return add_split(t, regex ? regex : literal, !regex, where, e);
}

/* byte_level: whether the last stage made bytes of characters, which the vocabulary needs. */
static bool read_pre_tokenizer(struct tokenizer *t, const cJSON *item, bool *byte_level, const char *where,
                               struct error *e)
{
    const char *type = json_string(item, "type");
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(item, "pretokenizers"), *part;
    bool use_regex = true;
    if (*byte_level || !type)
        return fail(e, "%s: the pre-tokenizer does not end with ByteLevel", where);
    if (strcmp(type, "Sequence") == 0) {
        cJSON_ArrayForEach(part, list)
            if (!read_pre_tokenizer(t, part, byte_level, where, e))
                return false;
        return true;
    }
    if (strcmp(type, "Split") == 0)
        return read_split(t, item, where, e);
    if (strcmp(type, "ByteLevel") != 0)
        return fail(e, "%s: pre-tokenizer %s is not supported", where, type);
    *byte_level = true;
    if (!json_get_bool(item, "add_prefix_space", &t->prefix_space, where, e) ||
        !json_get_bool(item, "use_regex", &use_regex, where, e))
        return false;
    if (t->prefix_space && t->split_count)
        return fail(e, "%s: a ByteLevel pre-tokenizer that adds a space after each Split is not supported", where);
    return (!use_regex || add_split(t, gpt2_pattern, false, where, e));
}

/* ==== >>post-processor and decoder ======================================================================== */

/* A template's pieces: special tokens before and after the one sequence. */
static bool read_template(struct tokenizer *t, const cJSON *item, const char *where, struct error *e)
{
    const cJSON *pieces = cJSON_GetObjectItemCaseSensitive(item, "single"), *piece;
    struct ids *side = &t->before;
    cJSON_ArrayForEach(piece, pieces) {
        const char *token = json_string(cJSON_GetObjectItemCaseSensitive(piece, "SpecialToken"), "id");
        if (cJSON_GetObjectItemCaseSensitive(piece, "Sequence")) {
            side = &t->after;
            continue;
        }
        int32_t id = token ? find_name(t, token, strlen(token)) : -1;
        if (id < 0)
            return fail(e, "%s: the post-processor adds a token that there is not: %s", where, token ? token : "?");
        ids_add(side, id);
    }
    return true;
}

static bool read_post_processor(struct tokenizer *t, const cJSON *item, const char *where, struct error *e)
{
    const char *type = json_string(item, "type");
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(item, "processors"), *part;
    if (!item || cJSON_IsNull(item) || (type && strcmp(type, "ByteLevel") == 0)) /* ByteLevel's concerns offsets */
        return true;
    if (type && strcmp(type, "TemplateProcessing") == 0)
        return read_template(t, item, where, e);
    if (!type || strcmp(type, "Sequence") != 0)
        return fail(e, "%s: post-processor %s is not supported", where, type ? type : "without type");
    cJSON_ArrayForEach(part, list)
        if (!read_post_processor(t, part, where, e))
            return false;
    return true;
}

static bool check_decoder(const cJSON *item, const char *where, struct error *e)
{
    const char *type = json_string(item, "type");
    if (type && strcmp(type, "ByteLevel") == 0)
        return true;
    return fail(e, "%s: decoder %s is not supported", where, type ? type : "without type");
}

/* ==== >>open ============================================================================================== */

struct tokenizer *tokenizer_parse(const char *json, size_t length, const char *where, struct error *e)
{
    cJSON *root = json_parse(json, length, where, e);
    if (!root)
        return NULL;
    struct tokenizer *t = new_bytes(1, sizeof *t);
    fill_alphabet(t);
    bool byte_level = false;
    const cJSON *pre = cJSON_GetObjectItemCaseSensitive(root, "pre_tokenizer");
    bool ok = read_model(t, root, where, e) &&
              read_normalizer(t, cJSON_GetObjectItemCaseSensitive(root, "normalizer"), where, e) &&
              read_pre_tokenizer(t, pre, &byte_level, where, e) &&
              (byte_level || fail(e, "%s: the pre-tokenizer does not end with ByteLevel", where)) &&
              read_post_processor(t, cJSON_GetObjectItemCaseSensitive(root, "post_processor"), where, e) &&
              check_decoder(cJSON_GetObjectItemCaseSensitive(root, "decoder"), where, e);
    cJSON_Delete(root);
    if (ok) {
        index_added(t);
        return t;
    }
    tokenizer_free(t);
    return NULL;
}

struct tokenizer *tokenizer_open(const char *path, struct error *e)
{
    struct text text = { 0 };
    struct tokenizer *t = NULL;
    if (read_whole(&text, path, (size_t)256 << 20, e))
        t = tokenizer_parse(text.data, text.length, path, e);
    text_free(&text);
    return t;
}

void tokenizer_free(struct tokenizer *t)
{
    if (!t)
        return;
    for (int32_t i = 0; i < t->token_count; i++) {
        free(t->tokens[i].name);
        free(t->tokens[i].bytes);
    }
    for (size_t i = 0; i < t->added_count; i++)
        free(t->added[i].content);
    for (int i = 0; i < t->split_count; i++) {
        pcre2_match_data_free(t->splits[i].match);
        pcre2_code_free(t->splits[i].code);
    }
    ids_free(&t->before);
    ids_free(&t->after);
    free(t->tokens);
    free(t->names);
    free(t->merges);
    free(t->added);
    free(t->symbols);
    free(t->heap);
    free(t);
}

/* ==== >>merging =========================================================================================== */

static bool before(const struct candidate *a, const struct candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void heap_push(struct tokenizer *t, struct candidate c)
{
    if (t->heap_count == t->heap_capacity) {
        t->heap_capacity = t->heap_capacity ? t->heap_capacity * 2 : 64;
        t->heap = grow_bytes(t->heap, t->heap_capacity, sizeof *t->heap);
    }
    size_t at = t->heap_count++;
    for (; at && before(&c, &t->heap[(at - 1) / 2]); at = (at - 1) / 2)
        t->heap[at] = t->heap[(at - 1) / 2];
    t->heap[at] = c;
}

static struct candidate heap_pop(struct tokenizer *t)
{
    struct candidate top = t->heap[0], last = t->heap[--t->heap_count];
    size_t at = 0, child;
    while ((child = 2 * at + 1) < t->heap_count) {
        if (child + 1 < t->heap_count && before(&t->heap[child + 1], &t->heap[child]))
            child++;
        if (!before(&t->heap[child], &last))
            break;
        t->heap[at] = t->heap[child];
        at = child;
    }
    t->heap[at] = last;
    return top;
}

/* Considers merging the symbol with its right neighbour. */
static void push_pair(struct tokenizer *t, int at)
{
    if (at < 0 || t->symbols[at].next < 0)
        return;
    int32_t left = t->symbols[at].id, right = t->symbols[t->symbols[at].next].id;
    const struct merge *m = find_merge(t, left, right);
    if (m->rank)
        heap_push(t, (struct candidate){ m->rank, at, left, right, m->result });
}

/* Does the best merge again and again: the lowest rank first, of equals the leftmost. */
static void merge_symbols(struct tokenizer *t, int count)
{
    struct symbol *s = t->symbols;
    t->heap_count = 0;
    for (int i = 0; i + 1 < count; i++)
        push_pair(t, i);
    while (t->heap_count) {
        struct candidate c = heap_pop(t);
        int next = s[c.at].next;
        if (s[c.at].id != c.left || next < 0 || s[next].id != c.right)
            continue; /* one of the two has been merged with another since */
        s[c.at].id = c.result;
        s[c.at].next = s[next].next;
        s[next].id = -1;
        if (s[next].next >= 0)
            s[s[next].next].previous = c.at;
        push_pair(t, s[c.at].previous);
        push_pair(t, c.at);
    }
}

/* The token that the whole word is, or -1. */
static int32_t whole_word(const struct tokenizer *t, const char *word, size_t length)
{
    struct text name = { 0 };
    for (size_t i = 0; i < length; i++) {
        char code[2];
        text_add(&name, code, code_to_utf8(byte_to_code((unsigned char)word[i]), code));
    }
    int32_t id = find_name(t, name.data, name.length);
    text_free(&name);
    return id;
}

static bool encode_word(struct tokenizer *t, const char *word, size_t length, struct ids *ids, struct error *e)
{
    int32_t whole = t->ignore_merges ? whole_word(t, word, length) : -1;
    if (whole >= 0) {
        ids_add(ids, whole);
        return true;
    }
    if (length > INT32_MAX / 2)
        return fail(e, "a word of %zu bytes is too long to tokenize", length);
    if (length > t->symbol_capacity) {
        t->symbol_capacity = length * 2;
        t->symbols = grow_bytes(t->symbols, t->symbol_capacity, sizeof *t->symbols);
    }
    for (size_t i = 0; i < length; i++) {
        int32_t id = t->byte_id[(unsigned char)word[i]];
        if (id < 0)
            return fail(e, "the vocabulary has no token for the byte 0x%02x", (unsigned char)word[i]);
        t->symbols[i] = (struct symbol){ id, (int)i - 1, i + 1 < length ? (int)i + 1 : -1 };
    }
    merge_symbols(t, (int)length);
    for (int i = 0; i >= 0; i = t->symbols[i].next)
        ids_add(ids, t->symbols[i].id);
    return true;
}

/* ==== >>splitting ========================================================================================= */

static int match_from(const struct split *split, const char *text, size_t length, size_t at)
{
    uint32_t options = PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY;
    int found = pcre2_match(split->code, (PCRE2_SPTR)text, length, at, options, split->match, NULL);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) /* the interpreter takes its stack from the heap */
        found = pcre2_match(split->code, (PCRE2_SPTR)text, length, at, options | PCRE2_NO_JIT, split->match, NULL);
    return found;
}

/* Cuts the text by split number `stage`; what lies between two matches is a piece too. */
static bool encode_pieces(struct tokenizer *t, const char *text, size_t length, int stage, struct ids *ids,
                          struct error *e)
{
    if (!length)
        return true;
    if (stage == t->split_count)
        return encode_word(t, text, length, ids, e);
    struct split *split = &t->splits[stage];
    size_t from = 0, at = 0;
    while (at <= length) {
        int found = match_from(split, text, length, at);
        if (found == PCRE2_ERROR_NOMATCH)
            break;
        if (found < 0)
            return fail(e, "the pre-tokenizer's pattern gives up on this text (PCRE2 error %d)", found);
        const PCRE2_SIZE *range = pcre2_get_ovector_pointer(split->match);
        size_t begin = range[0], end = range[1];
        if (!encode_pieces(t, text + from, begin - from, stage + 1, ids, e) ||
            !encode_pieces(t, text + begin, end - begin, stage + 1, ids, e))
            return false;
        from = at = end;
    }
    return encode_pieces(t, text + from, length - from, stage + 1, ids, e);
}

/* Text without added tokens. */
static bool encode_plain(struct tokenizer *t, const char *text, size_t length, struct ids *ids, struct error *e)
{
    if (!length || !t->prefix_space || text[0] == ' ')
        return encode_pieces(t, text, length, 0, ids, e);
    struct text spaced = { 0 };
    text_add(&spaced, " ", 1);
    text_add(&spaced, text, length);
    bool ok = encode_pieces(t, spaced.data, spaced.length, 0, ids, e);
    text_free(&spaced);
    return ok;
}

/* ==== >>added tokens ====================================================================================== */

static bool is_space(int32_t code)
{
    utf8proc_category_t kind = utf8proc_category(code);
    return (code >= 9 && code <= 13) || code == 0x85 || kind == UTF8PROC_CATEGORY_ZS ||
           kind == UTF8PROC_CATEGORY_ZL || kind == UTF8PROC_CATEGORY_ZP;
}

static bool is_word(int32_t code)
{
    utf8proc_category_t kind = utf8proc_category(code);
    return (kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_NL) || kind == UTF8PROC_CATEGORY_PC ||
           code == 0x200c || code == 0x200d || /* joiners, and letters in circles and squares */
           (code >= 0x24b6 && code <= 0x24e9) || (code >= 0x1f130 && code <= 0x1f149) ||
           (code >= 0x1f150 && code <= 0x1f169) || (code >= 0x1f170 && code <= 0x1f189);
}

/* The character that begins at `at`, or ends there; -1 at an edge. Sets its size. */
static int32_t character_at(const char *text, size_t length, size_t at, bool forward, size_t *size)
{
    enum utf8_kind kind;
    int32_t code = -1;
    *size = 0;
    if (forward ? at == length : at == 0)
        return -1;
    if (!forward)
        do
            at--, ++*size;
        while (at && ((unsigned char)text[at] & 0xc0) == 0x80);
    size_t taken = utf8_first(text + at, length - at, &kind, &code);
    if (forward)
        *size = taken;
    return kind == UTF8_VALID ? code : -1;
}

/* Where the white space ends that begins (or ends) at `at`. */
static size_t skip_spaces(const char *text, size_t length, size_t at, bool forward)
{
    size_t size;
    for (;;) {
        int32_t code = character_at(text, length, at, forward, &size);
        if (code < 0 || !is_space(code))
            return at;
        at = forward ? at + size : at - size;
    }
}

static bool stands_alone(const char *text, size_t length, size_t begin, size_t end)
{
    size_t size;
    int32_t left = character_at(text, length, begin, false, &size);
    int32_t right = character_at(text, length, end, true, &size);
    return !(left >= 0 && is_word(left)) && !(right >= 0 && is_word(right));
}

/* The longest added token at this place; NULL: none. */
static const struct added *added_at(const struct tokenizer *t, const char *text, size_t length, size_t at,
                                    bool normalized)
{
    const struct added *best = NULL;
    if (!t->added_first[(unsigned char)text[at]])
        return NULL;
    for (size_t i = 0; i < t->added_count; i++) {
        const struct added *a = &t->added[i];
        if (a->normalized == normalized && a->length <= length - at && (!best || a->length > best->length) &&
            memcmp(text + at, a->content, a->length) == 0)
            best = a;
    }
    return best;
}

static bool encode_stage(struct tokenizer *t, const char *text, size_t length, bool normalized, struct ids *ids,
                         struct error *e);

/* A piece between added tokens: the next stage's whole text. */
static bool encode_between(struct tokenizer *t, const char *text, size_t length, bool normalized, struct ids *ids,
                           struct error *e)
{
    if (normalized)
        return encode_plain(t, text, length, ids, e);
    char *normal = normalize(t, text, &length);
    bool ok = encode_stage(t, normal ? normal : text, length, true, ids, e);
    free(normal);
    return ok;
}

/* Cuts out added tokens: first those of the raw text, then, in what is left, those of the normalized text. */
static bool encode_stage(struct tokenizer *t, const char *text, size_t length, bool normalized, struct ids *ids,
                         struct error *e)
{
    size_t from = 0, at = 0;
    while (at < length) {
        const struct added *a = added_at(t, text, length, at, normalized);
        if (!a || (a->single_word && !stands_alone(text, length, at, at + a->length))) {
            at += a ? a->length : 1;
            continue;
        }
        size_t begin = a->lstrip ? skip_spaces(text, length, at, false) : at;
        if (begin > from && !encode_between(t, text + from, begin - from, normalized, ids, e))
            return false; /* not where the token before took these spaces */
        if (!(a->lstrip && at + a->length <= from)) /* nothing but spaces that the token before took */
            ids_add(ids, a->id);
        at += a->length; /* a token of spaces is found, too, where this one takes them */
        from = a->rstrip ? skip_spaces(text, length, at, true) : at;
    }
    return encode_between(t, text + from, length - from, normalized, ids, e);
}

/* ==== >>encode and decode ================================================================================= */

bool tokenizer_encode(struct tokenizer *t, const char *text, size_t length, bool affixes, struct ids *ids,
                      struct error *e)
{
    size_t valid = utf8_check(text, length);
    if (valid < length)
        return fail(e, "the text is not UTF-8 at byte %zu", valid);
    for (size_t i = 0; affixes && i < t->before.length; i++)
        ids_add(ids, t->before.data[i]);
    if (!encode_stage(t, text, length, false, ids, e))
        return false;
    for (size_t i = 0; affixes && i < t->after.length; i++)
        ids_add(ids, t->after.data[i]);
    return true;
}

void tokenizer_stream(const struct tokenizer *t, int32_t id, struct utf8_stream *stream, struct text *text)
{
    if (id >= 0 && id < t->token_count && t->tokens[id].name)
        utf8_push(stream, t->tokens[id].bytes, t->tokens[id].length, text);
}

void tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t count, struct text *text)
{
    struct utf8_stream stream = { 0 };
    for (size_t i = 0; i < count; i++)
        tokenizer_stream(t, ids[i], &stream, text);
    utf8_flush(&stream, text);
}

int32_t tokenizer_id(const struct tokenizer *t, const char *token)
{
    return find_name(t, token, strlen(token));
}

int32_t tokenizer_size(const struct tokenizer *t)
{
    return t->token_count;
}
