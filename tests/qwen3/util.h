/* util.h - what every part of the Qwen3 program shares: one-line errors, growing text, whole-file reads, UTF-8.
 *
 * Functions that can fail for a reason outside the program return false and leave one line in a struct error.
 * Running out of host memory is the one failure without a way back: it prints a line and exits with code 1. */
#ifndef QWEN3_UTIL_H
#define QWEN3_UTIL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ==== >>error ============================================================================================= */

struct error {
    char text[768]; /* one line: what is wrong and where; empty while nothing is */
};

#if defined(__GNUC__)
#define PRINTF_LIKE(text, first) __attribute__((__format__(__printf__, text, first)))
#else
#define PRINTF_LIKE(text, first)
#endif

/* Writes the line and returns false, so that a check reads `return fail(e, ...)`.
 * Control characters that came in with a name from a file are shown as '?'. */
bool fail(struct error *e, const char *format, ...) PRINTF_LIKE(2, 3);

/* ==== >>memory ============================================================================================ */

void *new_bytes(size_t count, size_t size);              /* zeroed */
void *grow_bytes(void *old, size_t count, size_t size);
char *copy_text(const char *text, size_t length);        /* NUL terminated */

/* Bytes that grow. data is NUL terminated whenever it is not NULL; the length does not count the NUL. */
struct text {
    char  *data;
    size_t length, capacity;
};

void text_add(struct text *t, const void *bytes, size_t length);
void text_add_string(struct text *t, const char *string);
void text_free(struct text *t);

/* Token ids that grow. */
struct ids {
    int32_t *data;
    size_t   length, capacity;
};

void ids_add(struct ids *list, int32_t id);
void ids_free(struct ids *list);

/* ==== >>files ============================================================================================= */

/* "dir/name", to be freed. */
char *path_join(const char *dir, const char *name);
bool  file_exists(const char *path);

/* Appends a whole file, or what is left of stdin when path is NULL. limit: refuse more bytes than that. */
bool read_whole(struct text *into, const char *path, size_t limit, struct error *e);

/* ==== >>utf8 ============================================================================================== */

enum utf8_kind { UTF8_VALID, UTF8_INVALID, UTF8_INCOMPLETE };

/* Looks at the first character of length > 0 bytes. Returns how many bytes it takes: of an invalid one the part
 * that U+FFFD replaces (the maximal subpart, as Unicode advises), of an incomplete one all that there is.
 * code may be NULL. */
size_t utf8_first(const char *bytes, size_t length, enum utf8_kind *kind, int32_t *code);

/* The offset of the first invalid or incomplete character; length when there is none. */
size_t utf8_check(const char *bytes, size_t length);

/* Cuts a byte stream into whole characters: what is complete goes to out, what is invalid becomes U+FFFD, and the
 * beginning of a character waits for its other bytes. */
struct utf8_stream {
    char   pending[4];
    size_t count;
};

void utf8_push(struct utf8_stream *stream, const char *bytes, size_t length, struct text *out);
void utf8_flush(struct utf8_stream *stream, struct text *out);

#endif
