/* The Qwen3 program's tokenizer.json, then behind a byte of 0 a text to be encoded. */
#include "input.h"
#include "qwen3/tokenizer.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *end = size ? memchr(data, 0, size) : NULL;
    size_t length = end ? (size_t)(end - data) : size;
    const char *text = end ? (const char *)end + 1 : "abc [X] w ab bc  a";
    struct error e = { "" }, ignored = { "" };
    struct text json = { 0 }, back = { 0 };
    struct ids ids = { 0 };
    text_add(&json, (const char *)data, length);
    text_add(&json, "", 0);
    struct tokenizer *t = tokenizer_parse(json.data ? json.data : "", length, "tokenizer.json", &e);
    EXPECT(t || e.text[0]);
    if (t && tokenizer_encode(t, text, end ? size - length - 1 : strlen(text), true, &ids, &ignored))
        tokenizer_decode(t, ids.data, ids.length, &back);
    ids_free(&ids);
    text_free(&back);
    text_free(&json);
    tokenizer_free(t);
    return 0;
}
