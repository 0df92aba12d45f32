/* test_tokenizer.c - the tokenizer against the Hugging Face library's answers, and against files that are wrong. */
#include "../qwen3/json.h"
#include "../qwen3/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MODEL "tests/models/tiny-qwen3/"

static struct tokenizer *tokenizer;

static int open_tokenizer(void **state)
{
    struct error e = { "" };
    (void)state;
    tokenizer = tokenizer_open(MODEL "tokenizer.json", &e);
    if (!tokenizer)
        fprintf(stderr, "%s\n", e.text);
    return tokenizer ? 0 : -1;
}

static int close_tokenizer(void **state)
{
    (void)state;
    tokenizer_free(tokenizer);
    return 0;
}

/* ==== >>helpers =========================================================================================== */

static void encode(struct tokenizer *t, const char *text, struct ids *ids)
{
    struct error e = { "" };
    ids->length = 0;
    bool ok = tokenizer_encode(t, text, strlen(text), true, ids, &e);
    if (!ok)
        print_error("%s: %s\n", text, e.text);
    assert_true(ok);
}

static void expect_ids(struct tokenizer *t, const char *text, const int32_t *want, size_t count)
{
    struct ids ids = { 0 };
    encode(t, text, &ids);
    bool same = ids.length == count && (!count || memcmp(ids.data, want, count * sizeof *want) == 0);
    for (size_t i = 0; !same && i < ids.length; i++)
        print_error("%d ", ids.data[i]);
    if (!same)
        print_error("<- wrong ids of \"%s\"\n", text);
    assert_true(same);
    ids_free(&ids);
}

#define EXPECT_IDS(t, text, ...) \
    expect_ids(t, text, (int32_t[]){ __VA_ARGS__ }, sizeof((int32_t[]){ __VA_ARGS__ }) / sizeof(int32_t))

/* Text that comes back as it was. */
static void round_trip(const char *text, const char *want)
{
    struct ids ids = { 0 };
    struct text back = { 0 };
    encode(tokenizer, text, &ids);
    tokenizer_decode(tokenizer, ids.data, ids.length, &back);
    assert_string_equal(back.data ? back.data : "", want);
    ids_free(&ids);
    text_free(&back);
}

/* ==== >>cases ============================================================================================= */

static void each_case(void (*check)(const char *text, const struct ids *ids, const char *decoded))
{
    struct error e = { "" };
    struct text file = { 0 };
    assert_true(read_whole(&file, MODEL "tokenizer_cases.json", 1 << 20, &e));
    cJSON *cases = json_parse(file.data, file.length, "cases", &e), *item, *id;
    assert_true(cJSON_GetArraySize(cases) > 10);
    cJSON_ArrayForEach(item, cases) {
        struct ids ids = { 0 };
        cJSON_ArrayForEach(id, cJSON_GetObjectItem(item, "ids"))
            ids_add(&ids, id->valueint);
        check(json_string(item, "text"), &ids, json_string(item, "decoded"));
        ids_free(&ids);
    }
    cJSON_Delete(cases);
    text_free(&file);
}

static void check_encode(const char *text, const struct ids *ids, const char *decoded)
{
    (void)decoded;
    expect_ids(tokenizer, text, ids->data, ids->length);
}

static void check_decode(const char *text, const struct ids *ids, const char *decoded)
{
    struct text back = { 0 };
    (void)text;
    tokenizer_decode(tokenizer, ids->data, ids->length, &back);
    assert_string_equal(back.data ? back.data : "", decoded);
    text_free(&back);
}

/* Token by token: every piece is whole characters, and the pieces make the text. */
static void check_stream(const char *text, const struct ids *ids, const char *decoded)
{
    struct utf8_stream stream = { 0 };
    struct text back = { 0 };
    (void)text;
    for (size_t i = 0; i < ids->length; i++) {
        size_t before = back.length;
        tokenizer_stream(tokenizer, ids->data[i], &stream, &back);
        assert_int_equal(utf8_check(back.data + before, back.length - before), back.length - before);
    }
    assert_int_equal(stream.count, 0);
    assert_string_equal(back.data ? back.data : "", decoded);
    text_free(&back);
}

static void test_cases_encode(void **state) { (void)state; each_case(check_encode); }
static void test_cases_decode(void **state) { (void)state; each_case(check_decode); }
static void test_cases_stream(void **state) { (void)state; each_case(check_stream); }

/* ==== >>particulars ======================================================================================= */

static void test_special_tokens(void **state)
{
    (void)state;
    EXPECT_IDS(tokenizer, "<|im_start|>", 1);
    EXPECT_IDS(tokenizer, "<|im_end|><|im_end|>", 2, 2);
    EXPECT_IDS(tokenizer, "<|endoftext|>!<|im_start|>", 0, 3, 1);
    round_trip("<|im_start|", "<|im_start|");           /* almost a special token */
    round_trip("a<|im_end|>b", "a<|im_end|>b");
    assert_int_equal(tokenizer_id(tokenizer, "<|im_end|>"), 2);
    assert_int_equal(tokenizer_id(tokenizer, "<|no_such|>"), -1);
    assert_int_equal(tokenizer_size(tokenizer), 4096);
}

static void test_normalization(void **state)
{
    struct ids composed = { 0 }, decomposed = { 0 };
    (void)state;
    encode(tokenizer, "caf\xc3\xa9", &composed);
    encode(tokenizer, "cafe\xcc\x81", &decomposed);
    assert_int_equal(composed.length, decomposed.length);
    assert_memory_equal(composed.data, decomposed.data, composed.length * sizeof *composed.data);
    ids_free(&composed);
    ids_free(&decomposed);
    round_trip("\xe1\x84\x80\xe1\x85\xa1", "\xea\xb0\x80"); /* Hangul jamo become a syllable */
}

static void test_round_trips(void **state)
{
    (void)state;
    static const char *const texts[] = {
        " ", "\n", "\r\n\r\n", " \n \n ", "a  b   c    d", "\t\t\tif (x) {\n\t\t\t\treturn;\n",
        "don't DON'T \xe2\x80\x99s", "1 22 333 4444", "\xe0\xa4\xb9\xe0\xa4\xbf\xe0\xa4\xa8\xe0\xa5\x8d\xe0\xa4\xa6\xe0\xa5\x80",
        "\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x9a\x80 \xf0\x9f\x87\xa9\xf0\x9f\x87\xaa", "\xe1\xa0\x8e x \xe1\xa0\x8e", "\xc2\x85\xe2\x80\xa8\xe3\x80\x80",
        "supercalifragilisticexpialidocious", "___---===", "\x01\x02\x7f",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        round_trip(texts[i], texts[i]);
}

/* A NUL is a character like others. */
static void test_embedded_nul(void **state)
{
    struct error e = { "" };
    struct ids ids = { 0 };
    struct text back = { 0 };
    (void)state;
    assert_true(tokenizer_encode(tokenizer, "a\0b", 3, true, &ids, &e));
    tokenizer_decode(tokenizer, ids.data, ids.length, &back);
    assert_int_equal(back.length, 3);
    assert_memory_equal(back.data, "a\0b", 3);
    ids_free(&ids);
    text_free(&back);
}

/* One word of 200,000 bytes, and 200,000 spaces: no quadratic time, no stack. */
static void test_long_words(void **state)
{
    enum { LENGTH = 200000 };
    char *text = new_bytes(LENGTH + 1, 1);
    (void)state;
    for (int i = 0; i < LENGTH; i++)
        text[i] = (char)('a' + i * 7 % 26);
    round_trip(text, text);
    memset(text, ' ', LENGTH);
    round_trip(text, text);
    memset(text, '\n', LENGTH);
    round_trip(text, text);
    free(text);
}

static void test_invalid_text(void **state)
{
    static const char *const texts[] = { "ab\xff", "\xc3", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "a\x80" };
    struct ids ids = { 0 };
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct error e = { "" };
        assert_false(tokenizer_encode(tokenizer, texts[i], strlen(texts[i]), true, &ids, &e));
        assert_non_null(strstr(e.text, "not UTF-8"));
    }
    ids_free(&ids);
}

static void test_unknown_ids(void **state)
{
    int32_t ids[] = { -1, 3, 4096, INT32_MAX, 3, INT32_MIN };
    struct text back = { 0 };
    (void)state;
    tokenizer_decode(tokenizer, ids, sizeof ids / sizeof *ids, &back);
    assert_string_equal(back.data, "!!");
    text_free(&back);
}

/* ==== >>streaming ========================================================================================= */

static void push(struct utf8_stream *stream, const char *bytes, const char *want)
{
    struct text out = { 0 };
    utf8_push(stream, bytes, strlen(bytes), &out);
    assert_string_equal(out.data ? out.data : "", want);
    text_free(&out);
}

static void test_stream_splits(void **state)
{
    struct utf8_stream s = { 0 };
    struct text out = { 0 };
    (void)state;
    push(&s, "a\xf0", "a");
    push(&s, "\x9f", "");
    push(&s, "\x99\x82z", "\xf0\x9f\x99\x82z");
    push(&s, "\xe4", "");
    push(&s, "x", "\xef\xbf\xbdx");                     /* cut short by another character */
    push(&s, "\x80\xff", "\xef\xbf\xbd\xef\xbf\xbd");
    push(&s, "\xf0\x9f", "");
    push(&s, "\xf0\x9f\x99\x82", "\xef\xbf\xbd\xf0\x9f\x99\x82");
    push(&s, "\xe2\x82", "");
    utf8_flush(&s, &out);                               /* the stream ends within a character */
    assert_string_equal(out.data, "\xef\xbf\xbd");
    text_free(&out);
    utf8_flush(&s, &out);
    assert_int_equal(out.length, 0);
}

/* ==== >>files ============================================================================================= */

/* A small tokenizer around which the tests vary one part, or its added tokens. */
static const char *more_added = "";

static char *small(const char *merges, const char *pre, const char *extra)
{
    static const char format[] =
        "{\"added_tokens\": [{\"id\": 9, \"content\": \"[X]\", \"lstrip\": true, \"rstrip\": true, \"normalized\": false},"
        "                    {\"id\": 10, \"content\": \"word\", \"single_word\": true, \"normalized\": false}%s],"
        " \"normalizer\": {\"type\": \"NFD\"}, \"pre_tokenizer\": %s, \"decoder\": {\"type\": \"ByteLevel\"}, %s"
        " \"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"c\": 2, \"ab\": 3, \"bc\": 4, \"abc\": 5, \"\\u0120\": 6,"
        "   \"\\u0120a\": 7, \"w\": 8, \"[X]\": 9, \"word\": 10, \"s\": 11}, \"merges\": %s}}";
    size_t size = sizeof format + strlen(more_added) + strlen(merges) + strlen(pre) + strlen(extra);
    char *json = new_bytes(size, 1);
    snprintf(json, size, format, more_added, pre, extra, merges);
    return json;
}

#define BYTE_LEVEL "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}"
#define MERGES "[\"b c\", \"a b\", \"a bc\", \"\\u0120 a\"]"

static struct tokenizer *parse_small(const char *merges, const char *pre, const char *extra, struct error *e)
{
    char *json = small(merges, pre, extra);
    struct tokenizer *t = tokenizer_parse(json, strlen(json), "small.json", e);
    free(json);
    return t;
}

static void test_merge_forms(void **state)
{
    static const char *const forms[] = {
        MERGES, "[[\"b\", \"c\"], [\"a\", \"b\"], [\"a\", \"bc\"], [\"\\u0120\", \"a\"]]" };
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct error e = { "" };
        struct tokenizer *t = parse_small(forms[i], BYTE_LEVEL, "", &e);
        assert_string_equal(e.text, "");
        assert_non_null(t);
        EXPECT_IDS(t, "abc", 5);                        /* b c first, then a bc: not ab + c */
        EXPECT_IDS(t, "ab abcab", 3, 6, 5, 3);
        EXPECT_IDS(t, "aab", 0, 3);
        tokenizer_free(t);
    }
}

static void test_added_token_flags(void **state)
{
    struct error e = { "" };
    struct tokenizer *t = parse_small(MERGES, BYTE_LEVEL, "", &e);
    (void)state;
    assert_non_null(t);
    EXPECT_IDS(t, "a [X] b", 0, 9, 1);                  /* takes the spaces around it */
    EXPECT_IDS(t, "a [X]  [X]b", 0, 9, 9, 1);
    EXPECT_IDS(t, "word a", 10, 7);
    struct ids ids = { 0 };
    assert_false(tokenizer_encode(t, "words", 5, true, &ids, &e)); /* no word by itself; and "o" has no token */
    assert_non_null(strstr(e.text, "0x6f"));
    ids_free(&ids);
    tokenizer_free(t);
}

/* As the tokenizers library has them. */
static void test_added_tokens_that_meet(void **state)
{
    struct error e = { "" };
    (void)state;
    more_added = ", {\"id\": 12, \"content\": \"  \", \"normalized\": false},"
                 "{\"id\": 13, \"content\": \"\\u00e9a\", \"normalized\": true}";
    struct tokenizer *t = parse_small(MERGES, BYTE_LEVEL, "", &e);
    more_added = "";
    assert_string_equal(e.text, "");
    EXPECT_IDS(t, "a[X]   b", 0, 9, 12, 6, 1);          /* spaces that [X] takes, but not from a token */
    EXPECT_IDS(t, "a[X]  ", 0, 9, 12);
    EXPECT_IDS(t, "\xc3\xa9" "ab", 13, 1);              /* normalized, as the text is */
    EXPECT_IDS(t, "e\xcc\x81" "ab", 13, 1);
    struct ids ids = { 0 };
    assert_false(tokenizer_encode(t, "\xe2\x80\x8dword", 7, true, &ids, &e)); /* a joiner belongs to the word */
    assert_false(tokenizer_encode(t, "word\xe2\x93\x90", 7, true, &ids, &e)); /* a letter in a circle, too */
    ids_free(&ids);
    tokenizer_free(t);
}

static void test_templates_and_regex(void **state)
{
    struct error e = { "" };
    (void)state;
    struct tokenizer *t = parse_small(
        MERGES, "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"String\": \"bc\"},"
        "\"behavior\": \"Isolated\", \"invert\": false}, " BYTE_LEVEL "]}",
        "\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"[X]\"}},"
        "{\"Sequence\": {\"id\": \"A\"}}, {\"SpecialToken\": {\"id\": \"word\"}}]},", &e);
    assert_string_equal(e.text, "");
    EXPECT_IDS(t, "abc", 9, 0, 4, 10);
    EXPECT_IDS(t, "bcbc", 9, 4, 4, 10);
    tokenizer_free(t);
    t = parse_small(MERGES, "{\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"use_regex\": true}", "", &e);
    EXPECT_IDS(t, "a a", 7, 7);
    tokenizer_free(t);
}

static void refused(const char *merges, const char *pre, const char *extra, const char *why)
{
    struct error e = { "" };
    struct tokenizer *t = parse_small(merges, pre, extra, &e);
    if (t || !strstr(e.text, why))
        print_error("expected \"%s\", got \"%s\"\n", why, e.text);
    assert_null(t);
    assert_non_null(strstr(e.text, why));
    assert_non_null(strstr(e.text, "small.json"));
}

static void test_bad_files(void **state)
{
    (void)state;
    refused("[\"b c\", \"a", BYTE_LEVEL, "", "invalid JSON");
    refused("[\"bc\"]", BYTE_LEVEL, "", "merge 1");
    refused("[\"b c\", [\"a\"]]", BYTE_LEVEL, "", "merge 2");
    refused("[\"a c\"]", BYTE_LEVEL, "", "not all in the vocabulary");
    refused("[[\"b\", 3]]", BYTE_LEVEL, "", "merge 1");
    refused("{}", BYTE_LEVEL, "", "model.merges");
    refused(MERGES, "null", "", "ByteLevel");
    refused(MERGES, "{\"type\": \"Metaspace\"}", "", "Metaspace");
    refused(MERGES, "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"(\"}, \"behavior\": \"Isolated\"}", "", "pattern");
    refused(MERGES, "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"a\"}, \"behavior\": \"Removed\"}", "", "Isolated");
    refused(MERGES, BYTE_LEVEL, "\"post_processor\": {\"type\": \"Bert\"},", "Bert");
    refused(MERGES, BYTE_LEVEL,
            "\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"?\"}}]},",
            "post-processor");
}

static void test_bad_roots(void **state)
{
    static const char *const files[] = {
        "", "[]", "{}", "nul", "{\"model\": 3}", "{\"model\": {\"type\": \"WordPiece\"}}",
        "{\"model\": {\"type\": \"BPE\"}}", "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": -1}, \"merges\": []}}",
        "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 1e300}, \"merges\": []}}",
        "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0.5}, \"merges\": []}}",
        "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 0}, \"merges\": []}}",
        "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": []}, \"added_tokens\": [{\"id\": 1}]}",
    };
    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct error e = { "" };
        assert_null(tokenizer_parse(files[i], strlen(files[i]), "f.json", &e));
        assert_non_null(strstr(e.text, "f.json"));
    }
    struct error e = { "" };
    assert_null(tokenizer_open("no/such/file.json", &e));
    assert_non_null(strstr(e.text, "no/such/file.json"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases_encode),      cmocka_unit_test(test_cases_decode),
        cmocka_unit_test(test_cases_stream),      cmocka_unit_test(test_special_tokens),
        cmocka_unit_test(test_normalization),     cmocka_unit_test(test_round_trips),
        cmocka_unit_test(test_embedded_nul),      cmocka_unit_test(test_long_words),
        cmocka_unit_test(test_invalid_text),      cmocka_unit_test(test_unknown_ids),
        cmocka_unit_test(test_stream_splits),     cmocka_unit_test(test_merge_forms),
        cmocka_unit_test(test_added_token_flags), cmocka_unit_test(test_templates_and_regex),
        cmocka_unit_test(test_added_tokens_that_meet),
        cmocka_unit_test(test_bad_files),         cmocka_unit_test(test_bad_roots),
    };
    return cmocka_run_group_tests_name("tokenizer", tests, open_tokenizer, close_tokenizer);
}
