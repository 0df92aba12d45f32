/* A safetensors file, mapped: 8 bytes with the header's length, a JSON header, the data. Nothing in it is believed. */
#define _POSIX_C_SOURCE 200809L
#include "golden.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "unit/numbers.h"

static bool map_file(struct golden_file *file, const char *path, struct problem *problem)
{
    struct stat status;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return complain(problem, "%s: %s", path, strerror(errno));
    if (fstat(fd, &status) || status.st_size < 8) {
        close(fd);
        return complain(problem, "%s: shorter than 8 bytes", path);
    }
    file->size = (size_t)status.st_size;
    file->map = mmap(NULL, file->size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (file->map != MAP_FAILED) return true;
    file->map = NULL;
    return complain(problem, "%s: %s", path, strerror(errno));
}

/* A whole number from 0 to limit. */
static bool whole(size_t *value, const cJSON *item, size_t limit)
{
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0) || item->valuedouble > (double)limit) return false;
    *value = (size_t)item->valuedouble;
    return (double)*value == item->valuedouble;
}

static bool dtype_by_code(mlxvk_dtype *dtype, const char *code)
{
    static const struct { const char *code; mlxvk_dtype dtype; } codes[] = {
        { "BOOL", MLXVK_BOOL }, { "U8", MLXVK_UINT8 }, { "U16", MLXVK_UINT16 }, { "U32", MLXVK_UINT32 },
        { "U64", MLXVK_UINT64 }, { "I8", MLXVK_INT8 }, { "I16", MLXVK_INT16 }, { "I32", MLXVK_INT32 },
        { "I64", MLXVK_INT64 }, { "F16", MLXVK_FLOAT16 }, { "BF16", MLXVK_BFLOAT16 }, { "F32", MLXVK_FLOAT32 },
        { "C64", MLXVK_COMPLEX64 },
    };
    for (size_t i = 0; code && i < sizeof codes / sizeof *codes; i++) {
        if (strcmp(codes[i].code, code)) continue;
        *dtype = codes[i].dtype;
        return true;
    }
    return false;
}

static bool tensor_of(struct tensor *res, const struct golden_file *file, const cJSON *item)
{
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(item, "shape"), *extent;
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(item, "data_offsets");
    const char *code = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "dtype"));
    size_t begin, end, bytes, length;
    *res = (struct tensor){ 0 };
    if (!dtype_by_code(&res->dtype, code) || !cJSON_IsArray(shape)) return false;
    if (cJSON_GetArraySize(shape) > MLXVK_MAX_NDIM || cJSON_GetArraySize(offsets) != 2) return false;
    if (!whole(&begin, cJSON_GetArrayItem(offsets, 0), file->data_size) ||
        !whole(&end, cJSON_GetArrayItem(offsets, 1), file->data_size) || begin > end) return false;
    bytes = bytes_of(res->dtype);
    cJSON_ArrayForEach(extent, shape) {
        if (!whole(&length, extent, INT_MAX) || (length && bytes > SIZE_MAX / length)) return false;
        res->shape[res->ndim++] = (int)length;
        bytes *= length;
    }
    res->data = file->data + begin;
    return bytes == end - begin;
}

struct range { size_t begin, end; const char *name; };

static int by_begin(const void *a, const void *b)
{
    const struct range *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

/* Every tensor is inside the data, as long as its shape says, and none overlaps another. */
static bool check_tensors(const struct golden_file *file, const char *path, struct problem *problem)
{
    struct range *ranges = need(calloc((size_t)cJSON_GetArraySize(file->header) + 1, sizeof *ranges));
    size_t count = 0;
    const cJSON *item;
    bool good = true;
    cJSON_ArrayForEach(item, file->header) {
        struct tensor t;
        if (!strcmp(item->string, "__metadata__")) continue;
        if (!tensor_of(&t, file, item)) {
            good = complain(problem, "%s: bad entry of tensor %s", path, item->string);
            break;
        }
        size_t begin = (size_t)(t.data - file->data);
        ranges[count++] = (struct range){ begin, begin + tensor_bytes(&t), item->string };
    }
    qsort(ranges, count, sizeof *ranges, by_begin);
    for (size_t i = 1; good && i < count; i++)
        if (ranges[i].begin < ranges[i - 1].end)
            good = complain(problem, "%s: tensors %s and %s overlap", path, ranges[i - 1].name, ranges[i].name);
    free(ranges);
    return good;
}

static bool read_cases(struct golden_file *file, const char *path, struct problem *problem)
{
    const cJSON *metadata = cJSON_GetObjectItemCaseSensitive(file->header, "__metadata__");
    const char *format = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(metadata, "format"));
    const char *cases = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(metadata, "cases"));
    if (!format || strcmp(format, "mlxvk-golden-1"))
        return complain(problem, "%s: format %s, this reads mlxvk-golden-1", path, format ? format : "not given");
    file->cases = cases ? cJSON_Parse(cases) : NULL;
    return cJSON_IsArray(file->cases) || complain(problem, "%s: no list of cases", path);
}

static bool read_header(struct golden_file *file, const char *path, struct problem *problem)
{
    uint64_t length = 0;
    memcpy(&length, file->map, 8);
    if (length > file->size - 8) return complain(problem, "%s: the header ends behind the file", path);
    file->data = (const unsigned char *)file->map + 8 + length;
    file->data_size = file->size - 8 - (size_t)length;
    file->header = cJSON_ParseWithLength((const char *)file->map + 8, (size_t)length);
    if (!cJSON_IsObject(file->header)) return complain(problem, "%s: the header is not a JSON object", path);
    return check_tensors(file, path, problem) && read_cases(file, path, problem);
}

bool golden_open(struct golden_file *file, const char *path, struct problem *problem)
{
    *file = (struct golden_file){ 0 };
    if (map_file(file, path, problem) && read_header(file, path, problem)) return true;
    golden_close(file);
    return false;
}

void golden_close(struct golden_file *file)
{
    cJSON_Delete(file->header);
    cJSON_Delete(file->cases);
    if (file->map) munmap(file->map, file->size);
    *file = (struct golden_file){ 0 };
}

bool golden_tensor(struct tensor *res, const struct golden_file *file, const char *name, struct problem *problem)
{
    const cJSON *item = name ? cJSON_GetObjectItemCaseSensitive(file->header, name) : NULL;
    if (item && tensor_of(res, file, item)) return true;
    return complain(problem, "there is no tensor %s", name ? name : "without a name");
}
