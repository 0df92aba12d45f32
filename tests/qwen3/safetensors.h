/* safetensors.h - a checkpoint's weights, mapped into memory and checked before anything is read from them.
 *
 * A file is an 8-byte little-endian header length, a JSON header (name -> dtype, shape, byte range), and the data.
 * Accepted is what the format's own library accepts: ranges inside the file that match their dtype and shape, do not
 * overlap, and leave no bytes over. */
#ifndef QWEN3_SAFETENSORS_H
#define QWEN3_SAFETENSORS_H

#include "util.h"

enum { ST_MAX_NDIM = 8 };

enum st_dtype {
    ST_BOOL, ST_U8, ST_I8, ST_U16, ST_I16, ST_F16, ST_BF16, ST_U32, ST_I32, ST_F32, ST_U64, ST_I64, ST_F64,
    ST_DTYPE_COUNT
};

struct st_tensor {
    char         *name;
    enum st_dtype dtype;
    int           ndim;
    int64_t       shape[ST_MAX_NDIM];
    size_t        begin, end;     /* in the data part of its file */
    const void   *data;           /* inside the mapping, not necessarily aligned to the dtype */
    const char   *file;           /* path, for error lines */
};

struct st_file {
    char  *path;
    void  *map;
    size_t size;
};

struct safetensors {
    struct st_file   *files;
    struct st_tensor *tensors;    /* sorted by name */
    size_t            file_count, tensor_count, total_bytes;
};

/* Opens the weights of a model directory: the files that model.safetensors.index.json names, or else every
 * model*.safetensors. On failure nothing is left open. */
bool safetensors_open(struct safetensors *st, const char *dir, struct error *e);
/* Opens one file. */
bool safetensors_open_file(struct safetensors *st, const char *path, struct error *e);
void safetensors_close(struct safetensors *st);

const struct st_tensor *safetensors_find(const struct safetensors *st, const char *name); /* NULL: there is none */

const char *st_dtype_name(enum st_dtype dtype);
size_t      st_dtype_size(enum st_dtype dtype);
/* "BF16 [4096, 256]", for error lines. */
const char *st_describe(const struct st_tensor *t, char *text, size_t size);

#endif
