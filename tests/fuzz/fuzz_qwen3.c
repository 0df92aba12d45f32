/* fuzz_qwen3.c - damaged files for everything that the Qwen3 program reads: safetensors, config.json, tokenizer.json.
 *
 * Good files are mutated at random, deterministically from a seed, and read. Nothing may crash, and what is refused must
 * be refused with a line. Meant for a build with sanitizers:  make SAN=1 build/san/fuzz/fuzz_qwen3 && build/san/fuzz/...
 *
 *     fuzz_qwen3 [iterations, 2000] [seed, 1] */
#define _POSIX_C_SOURCE 200809L

#include "../qwen3/config.h"
#include "../qwen3/safetensors.h"
#include "../qwen3/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint64_t state = 1;

static uint64_t next_random(void)
{
    uint64_t z = state += 0x9e3779b97f4a7c15u; /* splitmix64 */
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static size_t below(size_t limit)
{
    return limit ? (size_t)(next_random() % limit) : 0;
}

/* ==== >>mutation ========================================================================================== */

/* Pieces that matter to JSON, to numbers and to UTF-8. */
static const char *const pieces[] = {
    "0", "-1", "1e300", "18446744073709551616", "2147483648", "0.5", "null", "true", "[]", "{}", "\"\"", "\"", "[", "]", "{", "}",
    ",", ":", "\\u0000", "\\ud800", "\xff", "\xc4\xa0", "F32", "U32", "BF16", "BPE", "Sequence", "Split", " ", "\n",
};

static void replace(struct text *t, size_t at, size_t length, const char *with)
{
    struct text out = { 0 };
    text_add(&out, t->data, at);
    text_add_string(&out, with);
    text_add(&out, t->data + at + length, t->length - at - length);
    text_free(t);
    *t = out;
}

static void mutate(struct text *t, size_t from)
{
    for (size_t times = 1 + below(4); times && t->length > from; times--) {
        size_t at = from + below(t->length - from), most = t->length - at, some = below(most < 24 ? most : 24);
        switch (below(6)) {
        case 0: t->data[at] = (char)next_random(); break;
        case 1: t->data[at] ^= (char)(1 << below(8)); break;
        case 2: replace(t, at, some, ""); break;
        case 3: replace(t, at, 0, pieces[below(sizeof pieces / sizeof *pieces)]); break;
        case 4: replace(t, at, some, pieces[below(sizeof pieces / sizeof *pieces)]); break;
        default: t->length = at; t->data[at] = 0; break;
        }
    }
}

/* ==== >>seeds ============================================================================================= */

static const char config_seed[] =
    "{\"model_type\": \"qwen3\", \"hidden_size\": 64, \"intermediate_size\": 128, \"num_hidden_layers\": 2,"
    "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 32, \"vocab_size\": 100, \"rms_norm_eps\": 1e-6,"
    "\"rope_theta\": 1e6, \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4}, \"eos_token_id\": [1, 2],"
    "\"quantization\": {\"group_size\": 64, \"bits\": 4, \"model.norm\": false, \"lm_head\": {\"bits\": 8}}}";

static const char tokenizer_seed[] =
    "{\"added_tokens\": [{\"id\": 9, \"content\": \"[X]\", \"lstrip\": true, \"rstrip\": true, \"normalized\": false},"
    "{\"id\": 10, \"content\": \"w\", \"single_word\": true}], \"normalizer\": {\"type\": \"NFC\"},"
    "\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\":"
    "{\"Regex\": \"\\\\p{L}+| ?[^\\\\s\\\\p{L}]+|\\\\s+(?!\\\\S)|\\\\s+\"}, \"behavior\": \"Isolated\", \"invert\": false},"
    "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}]},"
    "\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"[X]\"}},"
    "{\"Sequence\": {\"id\": \"A\"}}]}, \"decoder\": {\"type\": \"ByteLevel\"}, \"model\": {\"type\": \"BPE\","
    "\"ignore_merges\": true, \"vocab\": {\"a\": 0, \"b\": 1, \"c\": 2, \"ab\": 3, \"bc\": 4, \"abc\": 5, \"\\u0120\": 6,"
    "\"\\u0120a\": 7, \"w\": 10, \"[X]\": 9}, \"merges\": [\"b c\", \"a b\", [\"a\", \"bc\"], \"\\u0120 a\"]}}";

static const char weights_seed[] =
    "{\"__metadata__\": {\"format\": \"mlx\"}, \"a\": {\"dtype\": \"F16\", \"shape\": [2, 3], \"data_offsets\": [0, 12]},"
    "\"b\": {\"dtype\": \"U32\", \"shape\": [4], \"data_offsets\": [12, 28]}}";

/* ==== >>targets: each returns whether the input was taken =================================================== */

static char dir[] = "/tmp/mlxvk-fuzz-XXXXXX";

static void write_file(const char *name, const struct text *text)
{
    char *path = path_join(dir, name);
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(text->data, 1, text->length, file) != text->length || fclose(file)) {
        perror(path);
        exit(1);
    }
    free(path);
}

static bool read_config(struct error *e)
{
    struct text text = { 0 };
    struct config c;
    text_add_string(&text, config_seed);
    mutate(&text, 0);
    write_file("config.json", &text);
    text_free(&text);
    bool ok = config_read(&c, dir, e);
    if (ok) {
        config_quantization(&c, "lm_head");
        config_free(&c);
    }
    return ok;
}

static bool read_weights(struct error *e)
{
    struct text text = { 0 };
    struct safetensors st;
    uint64_t length = sizeof weights_seed - 1;
    unsigned sum = 0;
    text_add(&text, &length, 8);
    text_add_string(&text, weights_seed);
    text_add(&text, "0123456789012345678901234567", 28);
    mutate(&text, below(4) ? 8 : 0); /* the length itself now and then */
    write_file("model.safetensors", &text);
    text_free(&text);
    bool ok = safetensors_open(&st, dir, e);
    for (size_t i = 0; ok && i < st.tensor_count; i++) /* every byte that is promised is there */
        for (size_t j = 0; j < st.tensors[i].end - st.tensors[i].begin; j++)
            sum += ((const unsigned char *)st.tensors[i].data)[j];
    if (ok)
        safetensors_close(&st);
    return ok && sum != 1;
}

static bool read_tokenizer(struct error *e)
{
    struct text text = { 0 };
    text_add_string(&text, tokenizer_seed);
    mutate(&text, 0);
    struct tokenizer *t = tokenizer_parse(text.data, text.length, "tokenizer.json", e);
    text.length = 0;
    text_add_string(&text, "abc [X] w ab\xc3\xa9 bc  a");
    mutate(&text, 0);
    struct ids ids = { 0 };
    struct text back = { 0 };
    struct error ignored;
    if (t && tokenizer_encode(t, text.data, text.length, true, &ids, &ignored))
        tokenizer_decode(t, ids.data, ids.length, &back);
    ids_free(&ids);
    text_free(&back);
    text_free(&text);
    tokenizer_free(t);
    return t != NULL;
}

int main(int argc, char **argv)
{
    static const struct { const char *name; bool (*run)(struct error *); } targets[] = {
        { "config", read_config }, { "weights", read_weights }, { "tokenizer", read_tokenizer } };
    const long iterations = argc > 1 ? atol(argv[1]) : 2000;
    long taken[3] = { 0 };
    state = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    if (!mkdtemp(dir) || chdir(dir))
        return 1;
    for (long i = 0; i < iterations; i++)
        for (int target = 0; target < 3; target++) {
            struct error e = { "" };
            bool ok = targets[target].run(&e);
            if (!ok && !e.text[0]) {
                fprintf(stderr, "%s refused without a line in iteration %ld\n", targets[target].name, i);
                return 1;
            }
            taken[target] += ok;
        }
    unlink("config.json");
    unlink("model.safetensors");
    rmdir(dir);
    for (int target = 0; target < 3; target++)
        printf("%s: %ld taken, %ld refused\n", targets[target].name, taken[target], iterations - taken[target]);
    return 0;
}
