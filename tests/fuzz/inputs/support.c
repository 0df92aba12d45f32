#define _XOPEN_SOURCE 700
#include "input.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void expect(bool condition, const char *text, const char *file, int line)
{
    if (condition) return;
    fflush(stdout);
    fprintf(stderr, "%s:%d: not so: %s\n", file, line, text);
    abort();
}

mlxvk_stream input_stream(void)
{
    static mlxvk_stream stream;
    if (!stream.ctx) stream = mlxvk_default_gpu_stream_new();
    EXPECT(stream.ctx);
    return stream;
}

/* ---- files ---- */

static char folder[64], path[128];

static void remove_folder(void)
{
    if (*path) unlink(path);
    rmdir(folder);
}

const char *input_folder(void)
{
    if (*folder) return folder;
    snprintf(folder, sizeof folder, "%s/mlxvk-input-XXXXXX", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
    EXPECT(mkdtemp(folder));
    atexit(remove_folder);
    return folder;
}

const char *input_file(const char *name, const uint8_t *data, size_t size)
{
    snprintf(path, sizeof path, "%s/%s", input_folder(), name);
    FILE *file = fopen(path, "wb");
    EXPECT(file);
    EXPECT(fwrite(data, 1, size, file) == size);
    EXPECT(!fclose(file));
    return path;
}

/* ---- bytes as a reader ---- */

struct bytes { const uint8_t *data; size_t size, at; bool good; };

static bool bytes_good(void *d) { return ((struct bytes *)d)->good; }
static size_t bytes_tell(void *d) { return ((struct bytes *)d)->at; }
static const char *bytes_label(void *d) { (void)d; return "input"; }

static void bytes_seek(void *d, int64_t to, int whence)
{
    struct bytes *b = d;
    b->at = (size_t)(to + (int64_t)(whence == SEEK_CUR ? b->at : whence == SEEK_END ? b->size : 0));
}

static void bytes_read(void *d, char *data, size_t n)
{
    struct bytes *b = d;
    b->good = b->good && b->at <= b->size && n <= b->size - b->at;
    if (!b->good) return;
    memcpy(data, b->data + b->at, n);
    b->at += n;
}

mlxvk_io_reader input_reader(const uint8_t *data, size_t size)
{
    static const mlxvk_io_vtable calls = { .is_open = bytes_good, .good = bytes_good, .tell = bytes_tell,
                                           .seek = bytes_seek, .read = bytes_read, .label = bytes_label, .free = free };
    struct bytes *b = malloc(sizeof *b);
    EXPECT(b);
    *b = (struct bytes){ data, size, 0, true };
    return mlxvk_io_reader_new(b, calls);
}

/* ---- what calls give ---- */

void expect_refusal(int code)
{
    mlxvk_error error = { 0 };
    mlxvk_stream_error(input_stream(), &error);
    EXPECT(code == error.code && error.text[0]);
    EXPECT(code != MLXVK_ERROR_VULKAN && code != MLXVK_ERROR_DEVICE_LOST);
}

void expect_whole(mlxvk_array array)
{
    size_t n = mlxvk_array_nbytes(array);
    char *data = malloc(n + 1);
    EXPECT(data && array.ctx);
    EXPECT(!mlxvk_array_read(array, data, n, input_stream()));
    free(data);
}
