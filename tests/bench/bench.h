/* What the benchmarks share: a device and a stream, the clock, and calls that must succeed. */
#ifndef TESTS_BENCH_BENCH_H
#define TESTS_BENCH_BENCH_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "mlxvk.h"

static mlxvk_device device;
static mlxvk_stream stream;
static const char *device_name = "", *driver = "";
static bool gpu;                                     /* not a driver that computes on the CPU */

static double now(void)
{
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void check(int code, const char *what)
{
    mlxvk_error error = { 0 };
    if (!code) return;
    mlxvk_stream_error(stream, &error);
    fprintf(stderr, "%s failed: %s (%s)\n", what, mlxvk_result_text(code), error.text);
    exit(1);
}

/* Gates under which all that is recorded before a call that submits is one submission. */
#define ONE_SUBMISSION "MLX_VK_MAX_OPS_PER_BUFFER=100000000 MLX_VK_MAX_MB_PER_BUFFER=100000000 MLX_VK_MAX_MS_PER_BUFFER=0"

static void open_device(const char *gates)
{
    mlxvk_error error = { 0 };
    mlxvk_device_desc desc = { .error = &error, .gates = gates };
    const char *type = "";
    if (mlxvk_device_create(&device, &desc)) { fprintf(stderr, "%s\n", error.text); exit(1); }
    stream = mlxvk_stream_new_device(device);
    mlxvk_device_info_get_string(&device_name, device, "device_name");
    mlxvk_device_info_get_string(&driver, device, "driver");
    mlxvk_device_info_get_string(&type, device, "type");
    gpu = strcmp(type, "cpu") != 0;
}

/* Results that were not what they should be: a benchmark that compares ends with verdict(), which is then 1. */
static int wrong_results;

static inline const char *judge(bool right)
{
    wrong_results += !right;
    return right ? "ok" : "WRONG";
}

static inline int verdict(void)
{
    if (wrong_results) printf("\n%d WRONG\n", wrong_results);
    return wrong_results > 0;
}

static void close_device(void)
{
    mlxvk_stream_free(stream);
    mlxvk_device_free(device);
    device.ctx = stream.ctx = NULL;
}

#endif
