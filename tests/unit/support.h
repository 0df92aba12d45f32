/* What the unit tests share. */
#ifndef TESTS_UNIT_SUPPORT_H
#define TESTS_UNIT_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "mlxvk.h"
#include "unit/numbers.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* ---- the library ---- */

/* The call must succeed; its error text is printed where it does not. */
#define OK(call, stream) check_ok((call), (stream), #call, __FILE__, __LINE__)
#define OK_DEVICE(call, device) check_ok_device((call), (device), #call, __FILE__, __LINE__)
/* The call must return `code`, and the stream's error must say the same and contain each of the words (a NULL-ended
 * list of strings). */
#define REFUSED(call, code, stream, ...)                                                                              \
    check_refused((call), (code), (stream), #call, __FILE__, __LINE__, (const char *const[]){ __VA_ARGS__, NULL })

void check_ok(int code, mlxvk_stream stream, const char *what, const char *file, int line);
void check_ok_device(int code, mlxvk_device device, const char *what, const char *file, int line);
void check_refused(int code, int want, mlxvk_stream stream, const char *what, const char *file, int line,
                   const char *const *words);

/* The program's device with these gates ("NAME=value ..."), or NULL for none: the same one at each call, with the pipelines
 * that it has by then. The handle is to be freed. Fails the test when there is no device. */
mlxvk_device open_device(const char *gates);
/* One that nobody else has: for tests that count, or that look at how a device begins or ends. */
mlxvk_device open_new_device(const char *gates);
mlxvk_stream open_stream(mlxvk_device device);
/* mlxvk_device_create. NVIDIA's driver refuses a process's 31st VkInstance where none of those before lives on: what makes
 * one counts it, and fails the test beyond MOST_INSTANCES. */
enum { MOST_INSTANCES = 27 };
int create_device(mlxvk_device *res, const mlxvk_device_desc *desc);
void count_instance(void);
/* The loader finds no driver, until it is told of those that there are again. Skips the test on Windows. */
void hide_drivers(void);
void show_drivers(void);
/* cmocka's run of a group; then the program's devices end. */
#define run_group(name, tests, set_up, tear_down) end_devices(cmocka_run_group_tests_name(name, tests, set_up, tear_down))
int end_devices(int failed);

/* A device and a stream: of most programs the only ones, made by the group's set-up. */
extern mlxvk_device device;
extern mlxvk_stream stream;
int set_up(void **state);
int set_up_poisoned(void **state);                                 /* memory holds garbage before it is written */
int tear_down(void **state);

/* The same for one test. */
struct setting { mlxvk_device device; mlxvk_stream stream; };
struct setting start(const char *gates);
void finish(struct setting *s);

mlxvk_stats stats_of(mlxvk_device device);

/* Skips the test where the device has not got it: a key of mlxvk_device_info_get_size whose value is 0. */
void need_capability(const char *key);
/* Skips the test under the validation layer, which reports, and rightly, hazards that some tests make on purpose, and knows
 * no order of dispatches but barriers'. */
void skip_if_validating(void);
/* How many kernels whose names begin so the program's device with these gates dispatched until now. */
uint64_t dispatches_of(const char *gates, const char *kernel);

mlxvk_array array_of(mlxvk_device device, mlxvk_dtype dtype, const void *data, const int *shape, int ndim);
mlxvk_array ints(mlxvk_device device, const int32_t *values, const int *shape, int ndim);
mlxvk_array floats(mlxvk_device device, const float *values, const int *shape, int ndim);
/* Takes a[start:stop:step] along an axis of at most 5, on the program's stream. */
void take_slice(mlxvk_array *a, int axis, int start, int stop, int step);
mlxvk_array counting(mlxvk_device device, int count);              /* int32: 0, 1, 2, ... */
/* Normally distributed, evaluated; the same numbers on every device. */
mlxvk_array normals(const int *shape, int ndim, mlxvk_dtype dtype, uint32_t seed, mlxvk_stream s);
/* The array's elements must be these, bit for bit. */
void expect_ints(mlxvk_array array, const int32_t *want, size_t count, mlxvk_stream stream);
/* Within atol + rtol * |want|. */
void expect_floats(mlxvk_array array, const float *want, size_t count, double rtol, double atol, mlxvk_stream stream);
int eval_one(mlxvk_array array);
int async_eval_one(mlxvk_array array);

/* ---- random numbers: the same ones in every run ---- */

struct rng { uint64_t state; };
uint64_t random_bits(struct rng *r);
int random_int(struct rng *r, int low, int high);                  /* low <= n <= high */
bool random_chance(struct rng *r, int percent);
int random_of(struct rng *r, const int *list, int count);
#define ONE_OF(r, ...) random_of(r, (int[]){ __VA_ARGS__ }, (int)COUNT(((int[]){ __VA_ARGS__ })))

/* ---- int32 tensors on the host, evaluated at once: what the library's arrays are compared with ---- */

struct host {
    int ndim;
    int shape[MLXVK_MAX_NDIM];
    int32_t *data;                                                 /* row-major */
};

/* Element [i, j, ...] is data[offset + i * strides[0] + j * strides[1] + ...]. */
struct view {
    int ndim;
    int shape[MLXVK_MAX_NDIM];
    int64_t strides[MLXVK_MAX_NDIM];
    int64_t offset;
};

struct host host_new(const int *shape, int ndim);
struct host host_random(struct rng *r, int max_ndim, int max_size);
struct host host_copy(const struct host *h);
void host_free(struct host *h);
size_t host_size(const struct host *h);
struct view host_whole(const struct host *h);
void host_apply(struct host *h, const struct view *v);             /* h becomes a row-major copy of the view */
mlxvk_array host_upload(const struct host *h, mlxvk_device device);
void host_expect(const struct host *want, mlxvk_array got, mlxvk_stream stream);

/* A random slice of a shape: start, stop and step of each axis, negative ones too, and what it names. */
struct slice {
    int start[MLXVK_MAX_NDIM], stop[MLXVK_MAX_NDIM], step[MLXVK_MAX_NDIM];
    struct view view;
};
struct slice random_slice(struct rng *r, const struct host *h);

/* Applies the same random view operation to both, of at most max_ndim dimensions and max_size elements. */
void random_view(struct rng *r, mlxvk_array *array, struct host *h, int max_ndim, int max_size, mlxvk_stream stream);

#endif
