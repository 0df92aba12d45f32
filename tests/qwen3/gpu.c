/* gpu.c - see gpu.h. */
#include "gpu.h"

#include "parallel.h"

#include <string.h>

bool gpu_open(struct gpu *g, const char *name, const char *gates, struct error *e)
{
    mlxvk_error error = { 0 };
    mlxvk_device_desc desc = { .name = name, .gates = gates, .error = &error, .parallel = parallel };
    *g = (struct gpu){ 0 };
    int code = mlxvk_device_create(&g->device, &desc);
    if (code)
        return fail(e, "no device: %s", error.text[0] ? error.text : mlxvk_result_text(code));
    g->stream = mlxvk_stream_new_device(g->device);
    if (g->stream.ctx)
        return true;
    mlxvk_device_error(g->device, &error);
    gpu_close(g);
    return fail(e, "no stream on the device: %s", error.text);
}

void gpu_close(struct gpu *g)
{
    if (g->stream.ctx)
        mlxvk_stream_free(g->stream);
    if (g->device.ctx)
        mlxvk_device_free(g->device);
    *g = (struct gpu){ 0 };
}

void gpu_check(struct gpu *g, int code)
{
    if (!code || g->code)
        return;
    g->code = code;
    mlxvk_stream_error(g->stream, &g->error);
    if (g->error.code != code) /* a call without a stream keeps its text with the device */
        mlxvk_device_error(g->device, &g->error);
    if (g->error.code != code)
        g->error.text[0] = 0;
}

bool gpu_ok(struct gpu *g, const char *what, struct error *e)
{
    if (!g->code)
        return true;
    const char *text = mlxvk_result_text(g->code);
    bool known = strstr(g->error.text, text) != NULL;
    fail(e, "%s: %s%s%s", what, known ? "" : text, known || !g->error.text[0] ? "" : ": ", g->error.text);
    g->code = 0;
    return false;
}

void gpu_drop(mlxvk_array *array)
{
    if (array->ctx)
        mlxvk_array_free(*array);
    array->ctx = NULL;
}
