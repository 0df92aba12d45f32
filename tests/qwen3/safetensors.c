/* safetensors.c - see safetensors.h. */
#define _POSIX_C_SOURCE 200809L

#include "safetensors.h"

#include "json.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEADER_LIMIT = 100000000 }; /* bytes, as in the format's own library */

/* ==== >>dtypes ============================================================================================ */

static const struct { const char *name; size_t size; } dtypes[ST_DTYPE_COUNT] = {
    [ST_BOOL] = { "BOOL", 1 }, [ST_U8] = { "U8", 1 },   [ST_I8] = { "I8", 1 },   [ST_U16] = { "U16", 2 },
    [ST_I16] = { "I16", 2 },   [ST_F16] = { "F16", 2 }, [ST_BF16] = { "BF16", 2 }, [ST_U32] = { "U32", 4 },
    [ST_I32] = { "I32", 4 },   [ST_F32] = { "F32", 4 }, [ST_U64] = { "U64", 8 }, [ST_I64] = { "I64", 8 },
    [ST_F64] = { "F64", 8 },
};

const char *st_dtype_name(enum st_dtype dtype)
{
    return dtypes[dtype].name;
}

size_t st_dtype_size(enum st_dtype dtype)
{
    return dtypes[dtype].size;
}

const char *st_describe(const struct st_tensor *t, char *text, size_t size)
{
    int used = snprintf(text, size, "%s [", st_dtype_name(t->dtype));
    for (int i = 0; i < t->ndim && used > 0 && (size_t)used < size; i++)
        used += snprintf(text + used, size - (size_t)used, "%s%lld", i ? ", " : "", (long long)t->shape[i]);
    if (used > 0 && (size_t)used < size)
        snprintf(text + used, size - (size_t)used, "]");
    return text;
}

/* ==== >>header ============================================================================================ */

static bool parse_dtype(struct st_tensor *t, const cJSON *entry, struct error *e)
{
    const char *name = json_string(entry, "dtype");
    if (!name)
        return fail(e, "%s: tensor %s has no dtype", t->file, t->name);
    for (int i = 0; i < ST_DTYPE_COUNT; i++)
        if (strcmp(name, dtypes[i].name) == 0) {
            t->dtype = (enum st_dtype)i;
            return true;
        }
    return fail(e, "%s: tensor %s has unknown dtype %s", t->file, t->name, name);
}

/* Reads the shape, and from it and the dtype the size in bytes. */
static bool parse_shape(struct st_tensor *t, const cJSON *entry, size_t *bytes, struct error *e)
{
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(entry, "shape"), *item;
    if (!cJSON_IsArray(shape))
        return fail(e, "%s: tensor %s has no shape", t->file, t->name);
    *bytes = st_dtype_size(t->dtype);
    cJSON_ArrayForEach(item, shape) {
        if (t->ndim == ST_MAX_NDIM)
            return fail(e, "%s: tensor %s has more than %d dimensions", t->file, t->name, ST_MAX_NDIM);
        int64_t dim;
        struct error why;
        if (!json_integer(item, 0, INT32_MAX, &dim, t->file, "shape", &why))
            return fail(e, "%s: tensor %s: a dimension is not an integer from 0 to 2^31-1", t->file, t->name);
        if (dim && *bytes > SIZE_MAX / (size_t)dim)
            return fail(e, "%s: tensor %s: the shape overflows", t->file, t->name);
        *bytes *= (size_t)dim;
        t->shape[t->ndim++] = dim;
    }
    return true;
}

static bool parse_range(struct st_tensor *t, const cJSON *entry, size_t data_size, size_t bytes, struct error *e)
{
    const cJSON *range = cJSON_GetObjectItemCaseSensitive(entry, "data_offsets");
    int64_t begin, end;
    struct error why;
    if (!cJSON_IsArray(range) || cJSON_GetArraySize(range) != 2 ||
        !json_integer(range->child, 0, INT64_MAX, &begin, t->file, "", &why) ||
        !json_integer(range->child->next, 0, INT64_MAX, &end, t->file, "", &why))
        return fail(e, "%s: tensor %s: data_offsets are not two integers", t->file, t->name);
    if (begin > end || (uint64_t)end > data_size)
        return fail(e, "%s: tensor %s: bytes %lld to %lld lie outside the file's %zu bytes of data", t->file, t->name,
                    (long long)begin, (long long)end, data_size);
    if ((size_t)(end - begin) != bytes)
        return fail(e, "%s: tensor %s: %lld bytes, but its dtype and shape take %zu", t->file, t->name,
                    (long long)(end - begin), bytes);
    t->begin = (size_t)begin;
    t->end = (size_t)end;
    return true;
}

static bool parse_tensor(struct st_tensor *t, const cJSON *entry, const char *data, size_t data_size, struct error *e)
{
    size_t bytes;
    if (!cJSON_IsObject(entry))
        return fail(e, "%s: the header's entry %s is not an object", t->file, t->name);
    if (!parse_dtype(t, entry, e) || !parse_shape(t, entry, &bytes, e) || !parse_range(t, entry, data_size, bytes, e))
        return false;
    t->data = data + t->begin;
    return true;
}

static int by_begin(const void *a, const void *b)
{
    const struct st_tensor *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

/* Every byte of the data belongs to exactly one tensor. tensors: those of one file. */
static bool check_cover(struct st_tensor *tensors, size_t count, size_t data_size, const char *path, struct error *e)
{
    size_t at = 0;
    if (count)
        qsort(tensors, count, sizeof *tensors, by_begin);
    for (size_t i = 0; i < count; i++) {
        const struct st_tensor *t = &tensors[i];
        if (t->begin < at)
            return fail(e, "%s: tensors %s and %s overlap", path, tensors[i - 1].name, t->name);
        if (t->begin > at)
            return fail(e, "%s: bytes %zu to %zu before tensor %s belong to no tensor", path, at, t->begin, t->name);
        at = t->end;
    }
    if (at != data_size)
        return fail(e, "%s: %zu bytes after the last tensor belong to none", path, data_size - at);
    return true;
}

/* Appends the file's tensors. */
static bool parse_header(struct safetensors *st, const struct st_file *file, struct error *e)
{
    const unsigned char *map = file->map;
    uint64_t length = 0;
    for (int i = 0; i < 8; i++)
        length |= (uint64_t)map[i] << (8 * i);
    if (length > HEADER_LIMIT)
        return fail(e, "%s: header of %llu bytes, more than the format allows", file->path, (unsigned long long)length);
    if (length > file->size - 8)
        return fail(e, "%s: truncated: header of %llu bytes in a file of %zu", file->path, (unsigned long long)length,
                    file->size);
    cJSON *root = json_parse((const char *)map + 8, (size_t)length, file->path, e), *entry;
    if (!root)
        return false;
    bool ok = cJSON_IsObject(root) || fail(e, "%s: the header is not a JSON object", file->path);
    const char *data = (const char *)map + 8 + length;
    size_t data_size = file->size - 8 - (size_t)length, first = st->tensor_count;
    size_t entries = ok ? (size_t)cJSON_GetArraySize(root) : 0;
    st->tensors = grow_bytes(st->tensors, first + entries, sizeof *st->tensors);
    for (entry = ok ? root->child : NULL; ok && entry; entry = entry->next) {
        if (strcmp(entry->string, "__metadata__") == 0)
            continue;
        struct st_tensor *t = &st->tensors[st->tensor_count++];
        *t = (struct st_tensor){ .name = copy_text(entry->string, strlen(entry->string)), .file = file->path };
        ok = parse_tensor(t, entry, data, data_size, e);
    }
    cJSON_Delete(root);
    return ok && check_cover(st->tensors + first, st->tensor_count - first, data_size, file->path, e);
}

/* ==== >>files ============================================================================================= */

static bool map_file(struct st_file *file, struct error *e)
{
    struct stat info;
    int fd = open(file->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return fail(e, "%s: %s", file->path, strerror(errno));
    bool ok = fstat(fd, &info) == 0 || fail(e, "%s: %s", file->path, strerror(errno));
    if (ok && !S_ISREG(info.st_mode))
        ok = fail(e, "%s: not a regular file", file->path);
    if (ok && info.st_size < 8)
        ok = fail(e, "%s: truncated: %lld bytes, too short for a header", file->path, (long long)info.st_size);
    if (ok) {
        file->size = (size_t)info.st_size;
        file->map = mmap(NULL, file->size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (file->map == MAP_FAILED) {
            file->map = NULL;
            ok = fail(e, "%s: cannot map it: %s", file->path, strerror(errno));
        }
    }
    close(fd);
    return ok;
}

/* Takes over path. */
static bool add_file(struct safetensors *st, char *path, struct error *e)
{
    struct st_file *file;
    st->files = grow_bytes(st->files, st->file_count + 1, sizeof *st->files);
    file = &st->files[st->file_count++];
    *file = (struct st_file){ .path = path };
    return map_file(file, e) && parse_header(st, file, e);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct st_tensor *)a)->name, ((const struct st_tensor *)b)->name);
}

static bool finish(struct safetensors *st, struct error *e)
{
    if (st->tensor_count)
        qsort(st->tensors, st->tensor_count, sizeof *st->tensors, by_name);
    for (size_t i = 0; i < st->tensor_count; i++) {
        const struct st_tensor *t = &st->tensors[i];
        st->total_bytes += t->end - t->begin;
        if (i && strcmp(t[-1].name, t->name) == 0)
            return fail(e, "%s: tensor %s is there twice", t->file, t->name);
    }
    return true;
}

bool safetensors_open_file(struct safetensors *st, const char *path, struct error *e)
{
    *st = (struct safetensors){ 0 };
    if (add_file(st, copy_text(path, strlen(path)), e) && finish(st, e))
        return true;
    safetensors_close(st);
    return false;
}

/* ==== >>index ============================================================================================= */

static bool has_file(const struct safetensors *st, const char *path)
{
    for (size_t i = 0; i < st->file_count; i++)
        if (strcmp(st->files[i].path, path) == 0)
            return true;
    return false;
}

/* Adds each file that the index's weight_map names, once. */
static bool add_indexed(struct safetensors *st, const char *dir, const cJSON *map, const char *index, struct error *e)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, map) {
        const char *name = cJSON_GetStringValue(item);
        if (!name || !*name || strchr(name, '/'))
            return fail(e, "%s: the file of tensor %s is not a plain file name", index, item->string);
        char *path = path_join(dir, name);
        if (has_file(st, path))
            free(path);
        else if (!add_file(st, path, e))
            return false;
    }
    return true;
}

/* Each tensor lies in the file that the index says. */
static bool check_index(const struct safetensors *st, const char *dir, const cJSON *map, const char *index,
                        struct error *e)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, map) {
        const struct st_tensor *t = safetensors_find(st, item->string);
        char *path = path_join(dir, cJSON_GetStringValue(item));
        bool there = t && strcmp(t->file, path) == 0;
        free(path);
        if (!there)
            return fail(e, "%s: tensor %s is not in %s", index, item->string, cJSON_GetStringValue(item));
    }
    return true;
}

static bool open_index(struct safetensors *st, const char *dir, const char *index, struct error *e)
{
    cJSON *root = json_read(index, e);
    if (!root)
        return false;
    const cJSON *map = cJSON_GetObjectItemCaseSensitive(root, "weight_map");
    bool ok = (cJSON_IsObject(map) && map->child) || fail(e, "%s: no weight_map", index);
    ok = ok && add_indexed(st, dir, map, index, e) && finish(st, e) && check_index(st, dir, map, index, e);
    cJSON_Delete(root);
    return ok;
}

/* Backslashes before what glob would read as a pattern. */
static char *glob_quote(const char *dir)
{
    struct text quoted = { 0 };
    text_add(&quoted, "", 0);
    for (; *dir; dir++) {
        if (strchr("*?[]\\", *dir))
            text_add(&quoted, "\\", 1);
        text_add(&quoted, dir, 1);
    }
    return quoted.data;
}

static bool open_all(struct safetensors *st, const char *dir, struct error *e)
{
    glob_t found = { 0 };
    char *quoted = glob_quote(dir), *pattern = path_join(quoted, "model*.safetensors");
    bool ok = glob(pattern, 0, NULL, &found) == 0 ||
              fail(e, "%s: no model.safetensors.index.json and no model*.safetensors there", dir);
    for (size_t i = 0; ok && i < found.gl_pathc; i++)
        ok = add_file(st, copy_text(found.gl_pathv[i], strlen(found.gl_pathv[i])), e);
    globfree(&found);
    free(pattern);
    free(quoted);
    return ok && finish(st, e);
}

bool safetensors_open(struct safetensors *st, const char *dir, struct error *e)
{
    *st = (struct safetensors){ 0 };
    char *index = path_join(dir, "model.safetensors.index.json");
    bool ok = file_exists(index) ? open_index(st, dir, index, e) : open_all(st, dir, e);
    free(index);
    if (!ok)
        safetensors_close(st);
    return ok;
}

void safetensors_close(struct safetensors *st)
{
    for (size_t i = 0; i < st->tensor_count; i++)
        free(st->tensors[i].name);
    for (size_t i = 0; i < st->file_count; i++) {
        if (st->files[i].map)
            munmap(st->files[i].map, st->files[i].size);
        free(st->files[i].path);
    }
    free(st->tensors);
    free(st->files);
    *st = (struct safetensors){ 0 };
}

const struct st_tensor *safetensors_find(const struct safetensors *st, const char *name)
{
    size_t low = 0, high = st->tensor_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(name, st->tensors[middle].name);
        if (order == 0)
            return &st->tensors[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}
