/* gpu.h - the device and stream that the model runs on, and the first error that happened there. */
#ifndef QWEN3_GPU_H
#define QWEN3_GPU_H

#include "mlxvk.h"
#include "util.h"

struct gpu {
    mlxvk_device device;
    mlxvk_stream stream;
    int          code;      /* mlxvk_result of the first call that failed; 0 while none has */
    mlxvk_error  error;
};

/* name: index or part of the name; NULL lets the library choose. gates: "NAME=value ...", or NULL. */
bool gpu_open(struct gpu *g, const char *name, const char *gates, struct error *e);
void gpu_close(struct gpu *g);

/* Takes the result of a call on g->stream. The first error sticks, and a failed call leaves its handles valid, so a
 * chain of operations needs one look at the end: gpu_ok. */
void gpu_check(struct gpu *g, int code);
/* As fail, with the library's message, where something has gone wrong since the last call; what: what was being done. */
bool gpu_ok(struct gpu *g, const char *what, struct error *e);

/* Releases the array and empties the handle. */
void gpu_drop(mlxvk_array *array);

#endif
