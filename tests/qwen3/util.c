/* util.c - see util.h. */
#define _POSIX_C_SOURCE 200809L

#include "util.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ==== >>error ============================================================================================= */

bool fail(struct error *e, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(e->text, sizeof e->text, format, args);
    va_end(args);
    for (char *c = e->text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
    return false;
}

/* ==== >>memory ============================================================================================ */

static void *checked(void *memory)
{
    if (!memory) {
        fputs("qwen3: out of host memory\n", stderr);
        exit(1);
    }
    return memory;
}

void *new_bytes(size_t count, size_t size)
{
    return checked(calloc(count ? count : 1, size ? size : 1));
}

void *grow_bytes(void *old, size_t count, size_t size)
{
    return checked(size && count > SIZE_MAX / size ? NULL : realloc(old, count && size ? count * size : 1));
}

char *copy_text(const char *text, size_t length)
{
    char *copy = new_bytes(length + 1, 1);
    if (length)
        memcpy(copy, text, length);
    return copy;
}

void text_add(struct text *t, const void *bytes, size_t length)
{
    if (length >= t->capacity - t->length) {
        t->capacity = (t->length + length + 1) * 2;
        t->data = grow_bytes(t->data, t->capacity, 1);
    }
    if (length)
        memcpy(t->data + t->length, bytes, length);
    t->length += length;
    t->data[t->length] = 0;
}

void text_add_string(struct text *t, const char *string)
{
    text_add(t, string, strlen(string));
}

void text_free(struct text *t)
{
    free(t->data);
    *t = (struct text){ 0 };
}

void ids_add(struct ids *list, int32_t id)
{
    if (list->length == list->capacity) {
        list->capacity = list->capacity ? list->capacity * 2 : 64;
        list->data = grow_bytes(list->data, list->capacity, sizeof *list->data);
    }
    list->data[list->length++] = id;
}

void ids_free(struct ids *list)
{
    free(list->data);
    *list = (struct ids){ 0 };
}

/* ==== >>files ============================================================================================= */

char *path_join(const char *dir, const char *name)
{
    struct text path = { 0 };
    text_add_string(&path, dir);
    if (path.length && path.data[path.length - 1] != '/')
        text_add_string(&path, "/");
    text_add_string(&path, name);
    return path.data;
}

bool file_exists(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

bool read_whole(struct text *into, const char *path, size_t limit, struct error *e)
{
    FILE *file = path ? fopen(path, "rb") : stdin;
    if (!file)
        return fail(e, "%s: %s", path, strerror(errno));
    const char *name = path ? path : "standard input";
    size_t start = into->length, got;
    char block[16384];
    bool ok = true;
    text_add(into, "", 0);
    while (ok && (got = fread(block, 1, sizeof block, file)) > 0) {
        text_add(into, block, got);
        if (into->length - start > limit)
            ok = fail(e, "%s: larger than %zu MB", name, limit >> 20);
    }
    if (ok && ferror(file))
        ok = fail(e, "%s: %s", name, strerror(errno));
    if (path)
        fclose(file);
    return ok;
}

/* ==== >>utf8 ============================================================================================== */

/* For a lead byte: how many bytes follow, and what the first of them may be. 0 for a byte that cannot lead. */
static int utf8_lead(unsigned char lead, unsigned char *low, unsigned char *high)
{
    *low = 0x80;
    *high = 0xbf;
    if (lead >= 0xc2 && lead <= 0xdf)
        return 1;
    if (lead >= 0xe0 && lead <= 0xef) {
        if (lead == 0xe0) *low = 0xa0;  /* no overlong forms */
        if (lead == 0xed) *high = 0x9f; /* no surrogates */
        return 2;
    }
    if (lead >= 0xf0 && lead <= 0xf4) {
        if (lead == 0xf0) *low = 0x90;
        if (lead == 0xf4) *high = 0x8f; /* nothing beyond U+10FFFF */
        return 3;
    }
    return 0;
}

size_t utf8_first(const char *bytes, size_t length, enum utf8_kind *kind, int32_t *code)
{
    const unsigned char *b = (const unsigned char *)bytes;
    unsigned char low, high;
    int follow = b[0] < 0x80 ? 0 : utf8_lead(b[0], &low, &high);
    if (b[0] >= 0x80 && follow == 0) {
        *kind = UTF8_INVALID;
        return 1;
    }
    int32_t value = follow ? b[0] & (0x3f >> follow) : b[0];
    for (int i = 1; i <= follow; i++) {
        if ((size_t)i == length) {
            *kind = UTF8_INCOMPLETE;
            return length;
        }
        if (b[i] < low || b[i] > high) {
            *kind = UTF8_INVALID;
            return (size_t)i;
        }
        value = value << 6 | (b[i] & 0x3f);
        low = 0x80;
        high = 0xbf;
    }
    *kind = UTF8_VALID;
    if (code)
        *code = value;
    return (size_t)follow + 1;
}

size_t utf8_check(const char *bytes, size_t length)
{
    size_t at = 0;
    while (at < length) {
        enum utf8_kind kind;
        size_t taken = utf8_first(bytes + at, length - at, &kind, NULL);
        if (kind != UTF8_VALID)
            break;
        at += taken;
    }
    return at;
}

void utf8_push(struct utf8_stream *stream, const char *bytes, size_t length, struct text *out)
{
    struct text all = { 0 };
    text_add(&all, stream->pending, stream->count);
    text_add(&all, bytes, length);
    stream->count = 0;
    for (size_t at = 0; at < all.length;) {
        enum utf8_kind kind;
        size_t taken = utf8_first(all.data + at, all.length - at, &kind, NULL);
        if (kind == UTF8_VALID) {
            text_add(out, all.data + at, taken);
        } else if (kind == UTF8_INVALID) {
            text_add_string(out, "\xef\xbf\xbd");
        } else {
            memcpy(stream->pending, all.data + at, taken);
            stream->count = taken;
        }
        at += taken;
    }
    text_free(&all);
}

void utf8_flush(struct utf8_stream *stream, struct text *out)
{
    if (stream->count)
        text_add_string(out, "\xef\xbf\xbd");
    stream->count = 0;
}
