/* tokenizer.h - text to token ids and back, as a tokenizer.json of the Hugging Face tokenizers library says.
 *
 * Taken: byte-level BPE (merges as "a b" or ["a", "b"], ignore_merges); a normalizer of Unicode's four forms or none;
 * a pre-tokenizer of Split patterns and ByteLevel; a ByteLevel decoder; a post-processor that adds fixed tokens before
 * or after the text. Anything else is refused by name when the file is read, rather than tokenized differently.
 *
 * A tokenizer does not change after it is made, but for encoding scratch space: use it from one thread at a time. */
#ifndef QWEN3_TOKENIZER_H
#define QWEN3_TOKENIZER_H

#include "util.h"

struct tokenizer;

struct tokenizer *tokenizer_open(const char *path, struct error *e);                         /* NULL on error */
/* The same from JSON in memory; where: what error lines call it. */
struct tokenizer *tokenizer_parse(const char *json, size_t length, const char *where, struct error *e);
void tokenizer_free(struct tokenizer *t); /* NULL is allowed */

/* Appends the ids of text, in which special tokens are recognised. affixes: also those tokens that the post-processor
 * puts around a text. Fails where text is not UTF-8 or has a byte that the vocabulary lacks. */
bool tokenizer_encode(struct tokenizer *t, const char *text, size_t length, bool affixes, struct ids *ids,
                      struct error *e);

/* Appends the text of ids, special tokens kept; what is not UTF-8 becomes U+FFFD. Ids that there are not are skipped. */
void tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t count, struct text *text);

/* One token at a time: appends what has become whole characters. utf8_flush(stream, text) ends the stream. */
void tokenizer_stream(const struct tokenizer *t, int32_t id, struct utf8_stream *stream, struct text *text);

/* The id of a token by its spelling in the file, or -1. */
int32_t tokenizer_id(const struct tokenizer *t, const char *token);
/* One more than the largest id. */
int32_t tokenizer_size(const struct tokenizer *t);

#endif
