/* mlxvk - MLX's GPU backend for every Vulkan device, in one C file.                       SPDX-License-Identifier: MIT
 *
 * Arrays, streams and operations with MLX's semantics, as Vulkan compute shaders, in plain C11: no C++, no Python, no
 * shader compiler at run time.
 *
 *     #include <stdio.h>
 *     #include "mlxvk.h"
 *
 *     int main(void)
 *     {
 *         float x[] = { 1, 2, 3, 4 }, y[4];
 *         mlxvk_stream s = mlxvk_default_gpu_stream_new();
 *         mlxvk_array a = mlxvk_array_new_data(x, (int[]){ 2, 2 }, 2, MLXVK_FLOAT32);
 *         mlxvk_matmul(&a, a, a, s);
 *         if (mlxvk_array_read(a, y, sizeof y, s)) return 1;
 *         printf("%g %g %g %g\n", y[0], y[1], y[2], y[3]);
 *         mlxvk_array_free(a);
 *         mlxvk_stream_free(s);
 *     }
 *
 *     cc example.c mlxvk.c -ldl -lpthread -lm          (or one file: #define MLXVK_IMPLEMENTATION before the include)
 *
 * A program that is compiled with -ffast-math compiles mlxvk.c with -fno-finite-math-only behind that.
 *
 * Macros to define before including or when compiling mlxvk.c
 *     MLXVK_IMPLEMENTATION   the header brings the implementation (mlxvk.c must lie beside it), in one translation
 *                            unit, which does not use Vulkan itself
 *     MLXVK_API              linkage of public functions, default extern (e.g. static, or a visibility attribute)
 *
 * Rules
 *   Names      mlxvk_<name> is mlx-c's mlx_<name>, with the same parameter order: result pointer first, operands, the
 *              stream last. What each operation computes is what MLX computes; the comment names what is particular.
 *   Results    Functions that can fail return 0 or one of the codes below; the text (operation, shapes, dtypes) is with
 *              the stream (mlxvk_stream_error), or for calls without a stream with the device (mlxvk_device_error).
 *              Nothing prints, aborts or exits. A failed call leaves its result handle, and every array, as it was.
 *   Handles    A handle is a struct of one pointer, passed by value; { NULL } is "none". A result handle must be
 *              initialised ({ NULL } or an array); what it held is released. A result that is also an operand, with no
 *              other owner, may be updated in place (slice_update on a cache). Free every handle once. As a stream,
 *              { NULL } is the default device's default stream.
 *   Laziness   An operation records; nothing runs before mlxvk_eval, mlxvk_async_eval, mlxvk_array_read, an item, a
 *              synchronize or the stream's own threshold. Results that nobody owns when it runs need not be computed.
 *   Threads    Every function may be called from any thread; a stream may be used by one thread at a time. Arrays may
 *              be shared between streams: the library orders them. It has no threads of its own, but takes a program's
 *              to make pipelines side by side (mlxvk_device_desc.parallel).
 *   Devices    A device lives until mlxvk_device_free and the last handle made from it. The default device is made at
 *              first use by calls that name none, and is the library's only global.
 *
 * What it does not do: gradients, vmap, compile, distributed (MLX's front end does these); float64; graphics.
 */
#ifndef MLXVK_H
#define MLXVK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef MLXVK_API
#define MLXVK_API extern
#endif

#define MLXVK_VERSION_MAJOR 0
#define MLXVK_VERSION_MINOR 1
#define MLXVK_VERSION_PATCH 0

enum { MLXVK_MAX_NDIM = 16 };        /* most dimensions an array can have */

/* ==== >>errors ==================================================================================================== */

/* Result codes and their texts: mlxvk_result_text(code). */
#define MLXVK_RESULTS(X)                                                                                              \
    X(SUCCESS,            0, "success")                                                                               \
    X(ERROR_ARGUMENT,     1, "invalid argument")                                                                      \
    X(ERROR_SHAPE,        2, "shapes do not fit")                                                                     \
    X(ERROR_AXIS,         3, "axis out of range")                                                                     \
    X(ERROR_DTYPE,        4, "dtype not taken by this operation")                                                     \
    X(ERROR_UNSUPPORTED,  5, "unsupported on this device")                                                            \
    X(ERROR_HOST_MEMORY,  6, "out of host memory")                                                                    \
    X(ERROR_MEMORY,       7, "out of device memory")                                                                  \
    X(ERROR_LIMIT,        8, "a limit of the device is exceeded")                                                     \
    X(ERROR_NO_LOADER,    9, "no Vulkan loader")                                                                      \
    X(ERROR_NO_DEVICE,   10, "no usable Vulkan device")                                                               \
    X(ERROR_DEVICE_LOST, 11, "device lost")                                                                           \
    X(ERROR_VULKAN,      12, "a Vulkan call failed")                                                                  \
    X(ERROR_NOT_READY,   13, "not evaluated yet")

typedef enum mlxvk_result {
#define MLXVK_X(name, code, text) MLXVK_##name = code,
    MLXVK_RESULTS(MLXVK_X)
#undef MLXVK_X
    MLXVK_RESULT_COUNT
} mlxvk_result;

typedef struct mlxvk_error {
    int code;                        /* mlxvk_result */
    int vk_result;                   /* VkResult behind it, or 0 */
    int line;                        /* where in mlxvk.c */
    char operation[48];
    char text[464];                  /* the whole message: operation, shapes, dtypes, what was expected */
} mlxvk_error;

MLXVK_API const char *mlxvk_result_text(int code);

/* ==== >>types ===================================================================================================== */

/* MLX's dtypes in MLX's order. FLOAT64 exists as a name only: MLX's GPU backends refuse it, and so does mlxvk. */
typedef enum mlxvk_dtype {
    MLXVK_BOOL, MLXVK_UINT8, MLXVK_UINT16, MLXVK_UINT32, MLXVK_UINT64, MLXVK_INT8, MLXVK_INT16, MLXVK_INT32,
    MLXVK_INT64, MLXVK_FLOAT16, MLXVK_FLOAT32, MLXVK_FLOAT64, MLXVK_BFLOAT16, MLXVK_COMPLEX64,
    MLXVK_DTYPE_COUNT
} mlxvk_dtype;

typedef enum mlxvk_device_type { MLXVK_CPU, MLXVK_GPU } mlxvk_device_type;   /* every Vulkan device counts as a GPU */

typedef struct mlxvk_device  { void *ctx; } mlxvk_device;
typedef struct mlxvk_stream  { void *ctx; } mlxvk_stream;
typedef struct mlxvk_buffer  { void *ctx; } mlxvk_buffer;    /* device memory */
typedef struct mlxvk_array   { void *ctx; } mlxvk_array;     /* dtype, shape, strides and offset over a buffer */
typedef struct mlxvk_event   { void *ctx; } mlxvk_event;     /* a timeline: a counter that only grows */
typedef struct mlxvk_kernel  { void *ctx; } mlxvk_kernel;    /* a SPIR-V compute kernel of the caller's */
typedef struct mlxvk_encoder { void *ctx; } mlxvk_encoder;   /* a stream's command recorder */
typedef struct mlxvk_vector_array { void *ctx; } mlxvk_vector_array;

typedef mlxvk_device mlxvk_device_info;                       /* mlx-c's: here the device itself, one more handle */

typedef struct mlxvk_optional_int   { int value; bool has_value; } mlxvk_optional_int;
typedef struct mlxvk_optional_float { float value; bool has_value; } mlxvk_optional_float;
typedef struct mlxvk_optional_dtype { mlxvk_dtype value; bool has_value; } mlxvk_optional_dtype;

MLXVK_API size_t mlxvk_dtype_size(mlxvk_dtype dtype);               /* bytes; 0 for no dtype */
MLXVK_API const char *mlxvk_dtype_name(mlxvk_dtype dtype);          /* "float32", "bfloat16", ...; "?" for no dtype */

/* ==== >>device ==================================================================================================== */

/* Device memory of the caller's own allocator, in place of vkAllocateMemory: for blocks of 64 MiB or more and a few
 * small ones. Any thread that calls the library may call both, under the device's lock: they must not call it. */
typedef struct mlxvk_memory_request {
    uint64_t size, alignment;        /* VkMemoryRequirements of the buffer, */
    uint64_t vk_buffer;              /* which is this one; the library binds it */
    uint32_t type;                   /* memory type */
    float priority;                  /* 0 to 1 */
} mlxvk_memory_request;

typedef struct mlxvk_memory_piece {
    uint64_t vk_memory, offset;      /* VkDeviceMemory, and where in it */
    void *mapped;                    /* the host's pointer to that, as long as the piece lives, where the type is
                                        HOST_VISIBLE and HOST_COHERENT (no other is mapped: nothing is flushed); NULL:
                                        not mapped */
    void *token;                     /* the caller's */
} mlxvk_memory_piece;

typedef struct mlxvk_device_memory {
    /* 0, or not: there is none of that type, and the next one is asked for */
    int (*allocate)(mlxvk_memory_piece *piece, const mlxvk_memory_request *request, void *user);
    void (*free)(const mlxvk_memory_piece *piece, void *user);         /* NULL: pieces are the caller's to the end */
    void *user;
} mlxvk_device_memory;

/* What memory may be shared as: pointers of the host, POSIX file descriptors (opaque; of dma-buf), Windows' handles. */
typedef enum mlxvk_memory_kind {
    MLXVK_MEMORY_HOST, MLXVK_MEMORY_FD, MLXVK_MEMORY_DMA_BUF, MLXVK_MEMORY_WIN32, MLXVK_MEMORY_KINDS
} mlxvk_memory_kind;

typedef struct mlxvk_allocator {     /* host memory; NULL functions mean malloc and free */
    void *(*allocate)(size_t size, void *user);                    /* may return NULL: the call fails cleanly */
    void (*release)(void *pointer, void *user);
    void *user;
} mlxvk_allocator;

/* A device of the caller's. The handles must outlive the mlxvk device. Vulkan 1.2 or later with timelineSemaphore. */
typedef struct mlxvk_adopt {
    void *instance, *physical_device, *device;                     /* VkInstance, VkPhysicalDevice, VkDevice */
    void *queue;                                                   /* VkQueue with compute */
    uint32_t queue_family;
    void *get_instance_proc_addr;                                  /* PFN_vkGetInstanceProcAddr; NULL: the loader's */
    const char *const *extensions;                                 /* device extensions that were enabled */
    uint32_t extension_count;
    const void *features;                                          /* the pNext chain (VkPhysicalDeviceFeatures2) that
                                                                      the device was created with, in the structures of
                                                                      any version; NULL: none enabled */
    void (*lock_queue)(void *user), (*unlock_queue)(void *user);   /* around each use of the queue; both, or neither:
                                                                      nobody else uses it meanwhile */
    void *user;
    const uint32_t *families;                                      /* other queue families that use arrays' memory, */
    uint32_t family_count;                                         /* which is CONCURRENT for them, then */
} mlxvk_adopt;

/* One of several pieces of work that may be done side by side. */
typedef void mlxvk_task(void *with, uint32_t i);

/* Zero means default in every field; a gate in `gates` wins over the environment. */
typedef struct mlxvk_device_desc {
    const char *name;                /* device by index ("1") or part of its name; NULL: MLX_VK_DEVICE, else the first
                                        of discrete, integrated, virtual, CPU */
    const mlxvk_adopt *adopt;        /* use this device instead of making one */
    mlxvk_allocator allocator;
    const char *gates;               /* "NAME=value NAME=value ...", names as mlxvk_gates prints them */
    const void *pipeline_cache;      /* bytes from mlxvk_pipeline_cache_data of an earlier run; used if they fit and are
                                        as they were: a damaged file is no error */
    size_t pipeline_cache_size;
    void (*on_error)(const mlxvk_error *error, void *user);        /* called for each error, inside the failing call,
                                                                      and must not call the library; NULL: none */
    void *user;
    void (*on_log)(const char *line, void *user);                  /* lines that gates ask for (NULL: stderr), and
                                                                      what a self-test finds wrong (NULL: nobody); as
                                                                      on_error */
    void (*parallel)(mlxvk_task *task, void *with, uint32_t count, void *user);
                                     /* has task(with, i) done once for each i below count, in any order, by any threads
                                        side by side, and returns when all are: so pipelines are made, where several
                                        are missing. NULL: one after the other. Called under the device's lock: neither
                                        it nor a task may call the library */
    const mlxvk_device_memory *memory;                             /* the caller's allocator of device memory, copied */
    float memory_priority;           /* over 0 to 1, where the device has VK_EXT_memory_priority */
    bool low_priority;               /* queues of low global priority, where the device has them and lets the program:
                                        behind a renderer's */
    mlxvk_error *error;              /* filled when mlxvk_device_create fails (there is no device to ask) */
} mlxvk_device_desc;

/* Makes a device. desc may be NULL. Errors: NO_LOADER, NO_DEVICE (the text says what to install), HOST_MEMORY, VULKAN.
 * Keep one open in a program that closes and opens devices over and over, or lists them: NVIDIA's driver starts 30
 * times in a process and no more, and it ends with the process's last VkInstance. */
MLXVK_API int mlxvk_device_create(mlxvk_device *res, const mlxvk_device_desc *desc);
/* The default device, made at first use; { NULL } when there is none. Not to be freed more often than got. */
MLXVK_API mlxvk_device mlxvk_device_new(void);
/* Releases the handle; the device itself goes with its last handle, stream, buffer and array. NULL is allowed. */
MLXVK_API int mlxvk_device_free(mlxvk_device device);
/* Copies the last error of calls that had no stream; { NULL }: of the default device, or why there is none. */
MLXVK_API int mlxvk_device_error(mlxvk_device device, mlxvk_error *error);
/* 0, or DEVICE_LOST once the device was lost: every later call that needs it returns that code. The text of such an
 * error tells what the driver says of it (VK_EXT_device_fault) and the last dispatches. Another device can be made. */
MLXVK_API int mlxvk_device_status(mlxvk_device device);

/* How many Vulkan devices there are, and what they are called; neither makes an mlxvk device. */
MLXVK_API bool mlxvk_is_available(void);
MLXVK_API int mlxvk_device_count(int *count, mlxvk_device_type type);   /* of CPUs: 0 */
MLXVK_API int mlxvk_device_list(void (*each)(int index, const char *name, const char *type, void *user), void *user);

/* What a device is. Keys of strings: device_name, architecture, driver, type (discrete, integrated, virtual, cpu,
 * other: so does mlxvk_device_list say it). Keys of numbers: max_buffer_length,
 * max_recommended_working_set_size, memory_size, memory_budget and memory_used (of the process, as the driver says at
 * that moment; 0: it does not), memory_import_alignment (0: the host's memory cannot be imported),
 * subgroup_size (that of the kernels; those a kernel may ask for:
 * subgroup_size_least, subgroup_size_most), max_storage_buffer_range, shared_memory_size, unified
 * (1 where the host maps device memory), cached (1 where it does, and reads it as fast as its own),
 * max_threads (of a workgroup), max_storage_buffers (of a kernel), storage_buffer_alignment (where bindings begin),
 * cooperative_matrix_size (of the tiles that a subgroup multiplies: 16, 8 or 0), and one per capability (1 or 0): int8,
 * int16, int64, float16, storage8, storage16, half_conversion, bfloat16, cooperative_matrix (of size 16),
 * cooperative_matrix2, push_descriptor, integer_dot_product.
 * Returns ARGUMENT for a key that there is not. */
MLXVK_API int mlxvk_device_info_get_string(const char **value, mlxvk_device device, const char *key);
MLXVK_API int mlxvk_device_info_get_size(size_t *value, mlxvk_device device, const char *key);

/* The pipelines made so far, and what a self-test has found out about the driver, for a later run's mlxvk_device_desc.
 * Call with data NULL for the size. */
MLXVK_API int mlxvk_pipeline_cache_data(mlxvk_device device, void *data, size_t *size);

/* ==== >>memory ==================================================================================================== */

/* MLX's counters and limits, in bytes, of the default device. Freed memory is kept in a cache for reuse up to the cache
 * limit; the memory limit makes the cache shrink first and never makes an allocation fail. Setters return the old value
 * in res (may be NULL). clear_cache waits for work that still uses what is freed, as do the others where that is more
 * than the cache limit. */
MLXVK_API int mlxvk_get_active_memory(size_t *res);
MLXVK_API int mlxvk_get_peak_memory(size_t *res);
MLXVK_API int mlxvk_reset_peak_memory(void);                         /* to 0, as MLX does */
MLXVK_API int mlxvk_get_cache_memory(size_t *res);
MLXVK_API int mlxvk_clear_cache(void);
MLXVK_API int mlxvk_get_memory_limit(size_t *res);
MLXVK_API int mlxvk_set_memory_limit(size_t *res, size_t limit);
MLXVK_API int mlxvk_set_cache_limit(size_t *res, size_t limit);
MLXVK_API int mlxvk_set_wired_limit(size_t *res, size_t limit);      /* a stored value */
/* Bytes between the steps of a convolution in Winograd's way: it is done in parts, or another way, where it would take
 * more; 0: as it likes. Source: MLX_CONV_WINOGRAD_WORKING_SET. */
MLXVK_API int mlxvk_set_winograd_limit(size_t *res, size_t limit);
/* The same of a device. */
MLXVK_API int mlxvk_device_get_active_memory(size_t *res, mlxvk_device device);
MLXVK_API int mlxvk_device_get_peak_memory(size_t *res, mlxvk_device device);
MLXVK_API int mlxvk_device_reset_peak_memory(mlxvk_device device);
MLXVK_API int mlxvk_device_get_cache_memory(size_t *res, mlxvk_device device);
MLXVK_API int mlxvk_device_clear_cache(mlxvk_device device);
MLXVK_API int mlxvk_device_get_memory_limit(size_t *res, mlxvk_device device);
MLXVK_API int mlxvk_device_set_memory_limit(size_t *res, size_t limit, mlxvk_device device);
MLXVK_API int mlxvk_device_set_cache_limit(size_t *res, size_t limit, mlxvk_device device);
MLXVK_API int mlxvk_device_set_wired_limit(size_t *res, size_t limit, mlxvk_device device);
MLXVK_API int mlxvk_device_set_winograd_limit(size_t *res, size_t limit, mlxvk_device device);

/* Device memory of `size` bytes; zero bytes are allowed. The contents are undefined. */
MLXVK_API int mlxvk_buffer_new(mlxvk_buffer *res, size_t size, mlxvk_device device);
/* A VkBuffer of the caller's (usage STORAGE_BUFFER | TRANSFER_SRC | TRANSFER_DST) from byte `offset`, with the host
 * pointer to that byte where it is mapped, else NULL. It must outlive the mlxvk buffer. On a device without 8-bit and
 * 16-bit storage offset + size must be a multiple of 4, else MLXVK_ERROR_ARGUMENT. */
MLXVK_API int mlxvk_buffer_adopt(mlxvk_buffer *res, uint64_t vk_buffer, size_t offset, size_t size, void *mapped,
                                 mlxvk_device device);
/* Memory of another's, without a copy. HOST: `size` bytes at a pointer, both multiples of memory_import_alignment (see
 * mlxvk_device_info_get_size); it must live as long as the buffer and the work that uses it. FD: a descriptor of a
 * Vulkan allocation of the same driver that is a buffer's of `size` bytes and nothing else's, as mlxvk_buffer_export
 * gives it; DMA_BUF: of any; the library's from then on, where the call succeeds, else still the caller's. WIN32: an
 * opaque handle, which stays the caller's. The buffer's memory is given back with its last handle or array, when no
 * submission uses it any more. Errors: ARGUMENT (also where the driver knows no such memory), UNSUPPORTED where the
 * device has no extension for it, MEMORY, HOST_MEMORY, VULKAN. */
MLXVK_API int mlxvk_buffer_import(mlxvk_buffer *res, mlxvk_memory_kind kind, uintptr_t handle, size_t size,
                                  mlxvk_device device);
/* Device memory that others may import: of a kind that is not HOST. */
MLXVK_API int mlxvk_buffer_new_shared(mlxvk_buffer *res, mlxvk_memory_kind kind, size_t size, mlxvk_device device);
/* A new descriptor or handle of it, the caller's to close. ARGUMENT: it is not of that kind. */
MLXVK_API int mlxvk_buffer_export(uintptr_t *handle, mlxvk_memory_kind kind, mlxvk_buffer buffer);
MLXVK_API int mlxvk_buffer_free(mlxvk_buffer buffer);
MLXVK_API size_t mlxvk_buffer_size(mlxvk_buffer buffer);
/* The host's pointer to it, or NULL where it is not mapped. Reading or writing is right only when no submitted or
 * recorded work uses it: synchronize first. */
MLXVK_API void *mlxvk_buffer_data(mlxvk_buffer buffer);
/* Blocks until no submitted work uses the buffer. */
MLXVK_API int mlxvk_buffer_wait(mlxvk_buffer buffer);

/* ==== >>stream ==================================================================================================== */

/* A new stream on a device ({ NULL }: the default device). Returns { NULL } on failure: ask mlxvk_device_error. */
MLXVK_API mlxvk_stream mlxvk_stream_new_device(mlxvk_device device);
MLXVK_API mlxvk_stream mlxvk_stream_new(void);
/* The default device's default stream (one more handle on it). */
MLXVK_API mlxvk_stream mlxvk_default_gpu_stream_new(void);
/* Waits for what it has submitted; on a device that is lost no longer than that goes on. */
MLXVK_API int mlxvk_stream_free(mlxvk_stream stream);
MLXVK_API mlxvk_device mlxvk_stream_device(mlxvk_stream stream);     /* not a new handle: do not free it */
MLXVK_API int mlxvk_stream_get_index(int *index, mlxvk_stream stream);
MLXVK_API int mlxvk_stream_error(mlxvk_stream stream, mlxvk_error *error);   /* copies the last error */
/* Submits what is recorded, without waiting. Returns the first error of deferred work since the last call. */
MLXVK_API int mlxvk_finalize(mlxvk_stream stream);
/* Submits what is recorded and blocks until it is done. Returns errors as mlxvk_finalize does. */
MLXVK_API int mlxvk_synchronize(mlxvk_stream stream);
/* Synchronises and frees all streams of the device but those that handles are held on. */
MLXVK_API int mlxvk_clear_streams(mlxvk_device device);

/* Computes the arrays and waits; async_eval submits and returns. */
MLXVK_API int mlxvk_eval(mlxvk_vector_array outputs);
MLXVK_API int mlxvk_async_eval(mlxvk_vector_array outputs);

/* ==== >>event ===================================================================================================== */

/* An event starts at 0 and only grows. Waits and signals on a stream are ordered with the operations around them. A
 * signal's value must be over those of all signals before it, of streams and of the host: else ARGUMENT. LIMIT: a value
 * farther ahead of where the event is than the device counts (2^31 - 1 or more).
 * Streams share the device's queues (two, or MLX_VK_QUEUES, or what the driver has): while one waits for an event, so
 * does what others submit to its queue. What an event is to be signalled by must be submitted before what waits for
 * it, then, or come from the host. */
MLXVK_API int mlxvk_event_new(mlxvk_event *res, mlxvk_device device);
/* never blocks: submitted work may still wait for it or signal it */
MLXVK_API int mlxvk_event_free(mlxvk_event event);
MLXVK_API int mlxvk_event_signal(mlxvk_event event, uint64_t value, mlxvk_stream stream);
MLXVK_API int mlxvk_event_wait(mlxvk_event event, uint64_t value, mlxvk_stream stream);
/* Blocks while a stream's signal before it is still to come. */
MLXVK_API int mlxvk_event_signal_host(mlxvk_event event, uint64_t value);
/* Blocks at most timeout_ns nanoseconds; NOT_READY when that ran out. UINT64_MAX waits for ever. On a device that is
 * lost: DEVICE_LOST, unless the event has the value. */
MLXVK_API int mlxvk_event_wait_host(mlxvk_event event, uint64_t value, uint64_t timeout_ns);
MLXVK_API bool mlxvk_event_is_signaled(mlxvk_event event, uint64_t value);

/* ==== >>engine: a GPU that a renderer uses, too =================================================================== */

/* For programs that lend their VkDevice (mlxvk_adopt). Handles, stages, accesses, formats and layouts are Vulkan's, as
 * numbers: this header includes none of its. */

/* An event over a timeline VkSemaphore of the caller's, which must outlive the event and the work that names it; the
 * event is freed when that work is done. Both sides may signal it, each with values over those before. */
MLXVK_API int mlxvk_event_adopt(mlxvk_event *res, uint64_t vk_semaphore, mlxvk_device device);
/* The VkSemaphore of an event, a timeline: for submissions of the caller's that wait for it or signal it. It goes with
 * the event. */
MLXVK_API int mlxvk_event_semaphore(uint64_t *vk_semaphore, mlxvk_event event);

/* A held stream's tape grows until a call says what is to happen with it: mlxvk_stream_record, mlxvk_stream_advance,
 * an eval, a read, finalize, synchronize, an event, the encoder, another stream's work on the same arrays. Others lower
 * and submit a part by themselves, from about 200 operations on. */
MLXVK_API int mlxvk_stream_hold(mlxvk_stream stream, bool hold);

typedef struct mlxvk_semaphore_value { uint64_t vk_semaphore, value; } mlxvk_semaphore_value;

/* Zero means default in every field. */
typedef struct mlxvk_recording {
    /* VkPipelineStageFlags and VkAccessFlags of the caller's commands in front that wrote what is read; default
     * ALL_COMMANDS and MEMORY_WRITE */
    uint32_t before_stages, before_access;
    /* of those behind that use what is computed; default ALL_COMMANDS and MEMORY_READ | MEMORY_WRITE */
    uint32_t after_stages, after_access;
    /* the caller's submission is done when this event has this value, which the submission signals, or one behind it,
     * and nobody else does before that; { NULL }: when mlxvk_stream_recorded says so */
    mlxvk_event done;
    uint64_t done_value;
    /* where to put what the submission has to wait for, at stage ALL_COMMANDS; events' semaphores among that stay until
     * it is done, though the event is freed */
    mlxvk_semaphore_value *waits;
    uint32_t wait_room, wait_count;  /* how many there is room for (16 are enough); how many there are: set here */
    uint64_t ticket;                 /* for mlxvk_stream_recorded; set here */
    uint64_t nanoseconds;            /* what it will take, by estimate; set here */
} mlxvk_recording;

/* Lowers what is on the tape into the caller's VkCommandBuffer, which is open, of a family with compute, primary or
 * secondary, outside a render pass. In front of it is a barrier from the caller's commands, behind it one to them.
 * Compute's pipeline, descriptors and push constants are others afterwards. recording may be NULL.
 *
 * What it uses stays reserved until the recording is done, and is ordered as by a submission: later work of streams on
 * the same arrays waits for the event, so on a shared queue the command buffer must be submitted before that work is;
 * without an event such work is refused (NOT_READY), as is reading a result on the host before the recording is done:
 * the library never waits for a submission that it does not make. Events that the stream waits for are waited for by
 * the recording: the stream's own work comes behind them where it uses the same arrays, or is submitted to the same
 * queue behind the recording. Recordings with the same event, or of one stream without one, must run in the order in
 * which they were made. Each is submitted once, or declared done without.
 * Before the device is freed all of them must be done.
 *
 * Errors, with nothing recorded, nothing in waits and the tape as it was: NOT_READY where the submission has to wait
 * (for what the stream or others submitted, copies of the host's data among it, or events) and there is no room in
 * waits, or for a recording without an event that is not done; ARGUMENT; LIMIT: 128 recordings that are not done. An
 * error of an operation is returned and makes its results unusable; the command buffer may be submitted, or reset, all
 * the same. */
MLXVK_API int mlxvk_stream_record(mlxvk_stream stream, void *vk_command_buffer, mlxvk_recording *recording);
/* The submissions of the recording with that ticket, and of those before it, are done. Errors: ARGUMENT. */
MLXVK_API int mlxvk_stream_recorded(mlxvk_stream stream, uint64_t ticket);

/* Submits only as much of the tape as fits into so many nanoseconds of GPU time, less what of earlier calls is still
 * under way: by the plans' estimates, corrected by the times that earlier calls took (where the queue has timestamps).
 * What takes longer is cut where it can be (products, convolutions, attention); a dispatch that alone does not fit goes
 * alone, when nothing is under way. Holds the stream. left: operations that are still on the tape, or not all of whose
 * dispatches are submitted (may be NULL). Never blocks but as every call does, when 8 submissions
 * are in flight. Returns errors as mlxvk_finalize does. */
MLXVK_API int mlxvk_stream_advance(mlxvk_stream stream, uint64_t nanoseconds, size_t *left);

/* A region of one level and layer of a colour VkImage, not multisampled, of usage TRANSFER_SRC to be read and
 * TRANSFER_DST to be written. */
typedef struct mlxvk_image {
    uint64_t vk_image;
    uint32_t format;                 /* VkFormat: R8, R8G8, R8G8B8A8 as UNORM and SRGB; R16, R16G16B16A16, R32,
                                        R32G32B32A32 as SFLOAT */
    uint32_t x, y, width, height, mip, layer;
    uint32_t layout, final_layout;   /* VkImageLayout when the work gets there, and afterwards; default of that: the
                                        same. UNDEFINED: what was there is lost (to be written only) */
    uint32_t stages, access;         /* of the caller's commands in front and behind that use it, on queues of the
                                        library's family; default ALL_COMMANDS, MEMORY_READ | MEMORY_WRITE */
    bool owned;                      /* queue family `family` (of the device, VK_QUEUE_FAMILY_EXTERNAL, or FOREIGN_EXT
                                        where the program has enabled its extension) has released it to the library's */
    uint32_t family;                 /* and will acquire it back, both without a change of layout; where the layout is
                                        UNDEFINED there is nothing to release to the library's. Not in recordings */
    bool planar;                     /* arrays are (channels, height, width), else (height, width, channels) */
} mlxvk_image;

/* The image as an array of dtype uint8, float16 or float32, when the stream gets there. Bytes count as 0 to 1 in
 * floats, SRGB's colours as light (as a sampler gives them); floats as bytes are clamped and rounded to nearest even.
 * An SRGB image as uint8 is what is stored. Planar: a view. The image must live until the work is done.
 * Copies of images keep their order within a stream; between streams, and with the caller's commands, events,
 * semaphores and recordings order them.
 * Errors: ARGUMENT, DTYPE, SHAPE, UNSUPPORTED for other formats. */
MLXVK_API int mlxvk_image_read(mlxvk_array *res, const mlxvk_image *image, mlxvk_dtype dtype, mlxvk_stream stream);
/* The array into the image, the same way back; NaN becomes 0 in bytes. */
MLXVK_API int mlxvk_image_write(const mlxvk_image *image, mlxvk_array array, mlxvk_stream stream);

/* ==== >>array ===================================================================================================== */

MLXVK_API mlxvk_array mlxvk_array_new(void);                         /* { NULL } */
MLXVK_API int mlxvk_array_free(mlxvk_array array);                   /* NULL is allowed */
MLXVK_API int mlxvk_array_set(mlxvk_array *res, mlxvk_array source); /* res becomes another handle on source */
/* From host data, copied before the call returns, row-major; on the default device. { NULL } on failure. */
MLXVK_API mlxvk_array mlxvk_array_new_data(const void *data, const int *shape, int dim, mlxvk_dtype dtype);
MLXVK_API mlxvk_array mlxvk_array_new_bool(bool value);              /* scalars: no dimensions */
MLXVK_API mlxvk_array mlxvk_array_new_int(int value);                /* int32 */
MLXVK_API mlxvk_array mlxvk_array_new_float(float value);            /* float32 */
MLXVK_API mlxvk_array mlxvk_array_new_float32(float value);
MLXVK_API mlxvk_array mlxvk_array_new_complex(float real, float imag);
/* The same with a device. data NULL leaves the contents undefined. */
MLXVK_API int mlxvk_array_new_data_device(mlxvk_array *res, const void *data, const int *shape, int dim,
                                          mlxvk_dtype dtype, mlxvk_device device);
/* Over memory the caller owns: `offset` in bytes, strides in elements (NULL: row-major), any sign, zero too. Every
 * element must lie inside the buffer. The array holds a reference on the buffer. Operations are put in order by arrays,
 * not by bytes: of two arrays over the same ones, what is written through one must be evaluated before the other is
 * used, and what reads through one before the other is updated in place. */
MLXVK_API int mlxvk_array_new_buffer(mlxvk_array *res, mlxvk_buffer buffer, const int *shape, const int64_t *strides,
                                     int dim, mlxvk_dtype dtype, size_t offset);

MLXVK_API size_t mlxvk_array_itemsize(mlxvk_array array);
MLXVK_API size_t mlxvk_array_size(mlxvk_array array);                /* elements */
MLXVK_API size_t mlxvk_array_nbytes(mlxvk_array array);
MLXVK_API size_t mlxvk_array_ndim(mlxvk_array array);
MLXVK_API const int *mlxvk_array_shape(mlxvk_array array);           /* valid while the handle is */
/* in elements; mlx-c has size_t, but they have signs */
MLXVK_API const int64_t *mlxvk_array_strides(mlxvk_array array);
MLXVK_API int mlxvk_array_dim(mlxvk_array array, int dim);           /* negative counts from the end; 0 if outside */
MLXVK_API mlxvk_dtype mlxvk_array_dtype(mlxvk_array array);
MLXVK_API bool mlxvk_array_is_row_contiguous(mlxvk_array array);
/* Where the array's memory is: evaluates it; res is one more handle on the buffer. offset in bytes. */
MLXVK_API int mlxvk_array_buffer(mlxvk_buffer *res, size_t *offset, mlxvk_array array);

MLXVK_API int mlxvk_array_eval(mlxvk_array array);
/* Computes the array, waits, and copies its elements in row-major order. size must be its nbytes. */
MLXVK_API int mlxvk_array_read(mlxvk_array array, void *data, size_t size, mlxvk_stream s);
/* The one element of an array of size 1, evaluated; the dtype must match. More of these: >>objects. */
MLXVK_API int mlxvk_array_item_bool(bool *res, mlxvk_array array);
/* The host's pointer to element [0, ...] of an evaluated array, as its strides say; NULL where the memory is not
 * mapped. */
MLXVK_API const void *mlxvk_array_data(mlxvk_array array);

/* For front ends with arrays of their own, which keep one handle on each piece of memory and lay views over it. An
 * array's memory need not exist yet when these are called: it comes when the operation that writes it is lowered. */

/* Another layout of the memory that base lies in: `offset` in bytes from the memory's start (not from base's first
 * element), strides in elements (NULL: row-major), any sign, zero too. Every element must lie inside the memory. */
MLXVK_API int mlxvk_array_new_view(mlxvk_array *res, mlxvk_array base, const int *shape, const int64_t *strides,
                                   int dim, mlxvk_dtype dtype, size_t offset);
/* bytes from the memory's start to element [0, ...] */
MLXVK_API size_t mlxvk_array_offset(mlxvk_array array);
MLXVK_API size_t mlxvk_array_memory_size(mlxvk_array array);         /* bytes of the memory */
MLXVK_API size_t mlxvk_array_memory_capacity(mlxvk_array array);     /* and of what the cache found for it */
MLXVK_API bool mlxvk_array_shares_memory(mlxvk_array a, mlxvk_array b);
/* The host's pointer to the memory's start, or NULL where it is not mapped. The memory exists afterwards; it does not
 * wait: what is there is right only after mlxvk_array_wait, or an event behind the work that writes it. */
MLXVK_API int mlxvk_array_host(void **data, mlxvk_array array);
/* Submits, and blocks until the work that writes the array's memory (with `readers`: all that uses it) is done. */
MLXVK_API int mlxvk_array_wait(mlxvk_array array, bool readers);

MLXVK_API mlxvk_vector_array mlxvk_vector_array_new(void);
MLXVK_API mlxvk_vector_array mlxvk_vector_array_new_data(const mlxvk_array *data, size_t size);
MLXVK_API mlxvk_vector_array mlxvk_vector_array_new_value(mlxvk_array value);
MLXVK_API int mlxvk_vector_array_free(mlxvk_vector_array vector);
MLXVK_API int mlxvk_vector_array_append_value(mlxvk_vector_array vector, mlxvk_array value);
MLXVK_API int mlxvk_vector_array_append_data(mlxvk_vector_array vector, const mlxvk_array *data, size_t size);
MLXVK_API size_t mlxvk_vector_array_size(mlxvk_vector_array vector);
MLXVK_API int mlxvk_vector_array_get(mlxvk_array *res, mlxvk_vector_array vector, size_t index);   /* one more handle */
MLXVK_API int mlxvk_vector_array_set_data(mlxvk_vector_array *vector, const mlxvk_array *data, size_t size);
MLXVK_API int mlxvk_vector_array_set_value(mlxvk_vector_array *vector, mlxvk_array value);
MLXVK_API int mlxvk_vector_array_set(mlxvk_vector_array *vector, mlxvk_vector_array source);

/* ==== >>objects: mlx-c's strings, vectors and maps ================================================================ */

/* They belong to the host and hold copies; a container is used by one thread at a time. `get` of a string gives a
 * pointer into the container. Iterators go in the order of the keys; next returns 0, or not 0 behind the last entry. */
typedef struct mlxvk_string { void *ctx; } mlxvk_string;
MLXVK_API mlxvk_string mlxvk_string_new(void);
MLXVK_API mlxvk_string mlxvk_string_new_data(const char *str);
MLXVK_API int mlxvk_string_set(mlxvk_string *str, mlxvk_string src);
MLXVK_API const char *mlxvk_string_data(mlxvk_string str);
MLXVK_API int mlxvk_string_free(mlxvk_string str);

#define MLXVK_VECTOR(kind, in, out)                                                                                   \
    typedef struct mlxvk_vector_##kind { void *ctx; } mlxvk_vector_##kind;                                            \
    MLXVK_API mlxvk_vector_##kind mlxvk_vector_##kind##_new(void);                                                    \
    MLXVK_API int mlxvk_vector_##kind##_set(mlxvk_vector_##kind *v, const mlxvk_vector_##kind src);                   \
    MLXVK_API int mlxvk_vector_##kind##_free(mlxvk_vector_##kind v);                                                  \
    MLXVK_API mlxvk_vector_##kind mlxvk_vector_##kind##_new_data(in *data, size_t size);                              \
    MLXVK_API mlxvk_vector_##kind mlxvk_vector_##kind##_new_value(in value);                                          \
    MLXVK_API int mlxvk_vector_##kind##_set_data(mlxvk_vector_##kind *v, in *data, size_t size);                      \
    MLXVK_API int mlxvk_vector_##kind##_set_value(mlxvk_vector_##kind *v, in value);                                  \
    MLXVK_API int mlxvk_vector_##kind##_append_data(mlxvk_vector_##kind v, in *data, size_t size);                    \
    MLXVK_API int mlxvk_vector_##kind##_append_value(mlxvk_vector_##kind v, in value);                                \
    MLXVK_API size_t mlxvk_vector_##kind##_size(mlxvk_vector_##kind v);                                               \
    MLXVK_API int mlxvk_vector_##kind##_get(out *res, const mlxvk_vector_##kind v, size_t idx);
MLXVK_VECTOR(int, const int, int)
MLXVK_VECTOR(string, const char *, char *)
MLXVK_VECTOR(vector_array, const mlxvk_vector_array, mlxvk_vector_array)
#undef MLXVK_VECTOR

#define MLXVK_MAP(name, in, out)                                                                                      \
    typedef struct mlxvk_##name { void *ctx; } mlxvk_##name;                                                          \
    typedef struct mlxvk_##name##_iterator { void *ctx; } mlxvk_##name##_iterator;                                    \
    MLXVK_API mlxvk_##name mlxvk_##name##_new(void);                                                                  \
    MLXVK_API int mlxvk_##name##_set(mlxvk_##name *map, const mlxvk_##name src);                                      \
    MLXVK_API int mlxvk_##name##_free(mlxvk_##name map);                                                              \
    MLXVK_API int mlxvk_##name##_insert(mlxvk_##name map, const char *key, in value);                                 \
    MLXVK_API int mlxvk_##name##_get(out *value, const mlxvk_##name map, const char *key);                            \
    MLXVK_API mlxvk_##name##_iterator mlxvk_##name##_iterator_new(mlxvk_##name map);                                  \
    MLXVK_API int mlxvk_##name##_iterator_free(mlxvk_##name##_iterator it);                                           \
    MLXVK_API int mlxvk_##name##_iterator_next(const char **key, out *value, mlxvk_##name##_iterator it);
MLXVK_MAP(map_string_to_array, const mlxvk_array, mlxvk_array)
MLXVK_MAP(map_string_to_string, const char *, const char *)
#undef MLXVK_MAP

/* ---- the rest of mlx-c's devices, streams and arrays ---- */

/* Index 0: one more handle on the default device; else a device of its own by index in mlxvk_device_list's order. All
 * work runs on Vulkan, so a device or stream asked for as a CPU's is the GPU's. */
MLXVK_API mlxvk_device mlxvk_device_new_type(mlxvk_device_type type, int index);
MLXVK_API int mlxvk_device_set(mlxvk_device *dev, const mlxvk_device src);
MLXVK_API int mlxvk_device_tostring(mlxvk_string *str, mlxvk_device dev);         /* "Device(gpu, 0)" */
MLXVK_API bool mlxvk_device_equal(mlxvk_device lhs, mlxvk_device rhs);
MLXVK_API int mlxvk_device_get_index(int *index, mlxvk_device dev);
MLXVK_API int mlxvk_device_get_type(mlxvk_device_type *type, mlxvk_device dev);
MLXVK_API int mlxvk_device_is_available(bool *avail, mlxvk_device dev);
MLXVK_API int mlxvk_get_default_device(mlxvk_device *dev);
/* Not while another thread uses the default device. Arrays of the old one stay there. */
MLXVK_API int mlxvk_set_default_device(mlxvk_device dev);
MLXVK_API mlxvk_device_info mlxvk_device_info_new(void);
MLXVK_API int mlxvk_device_info_get(mlxvk_device_info *info, mlxvk_device dev);
MLXVK_API int mlxvk_device_info_free(mlxvk_device_info info);
MLXVK_API int mlxvk_device_info_has_key(bool *exists, mlxvk_device_info info, const char *key);
MLXVK_API int mlxvk_device_info_is_string(bool *is_string, mlxvk_device_info info, const char *key);
MLXVK_API int mlxvk_device_info_get_keys(mlxvk_vector_string *keys, mlxvk_device_info info);

MLXVK_API mlxvk_stream mlxvk_default_cpu_stream_new(void);           /* the default GPU stream */
MLXVK_API int mlxvk_stream_set(mlxvk_stream *stream, const mlxvk_stream src);
MLXVK_API bool mlxvk_stream_equal(mlxvk_stream lhs, mlxvk_stream rhs);
MLXVK_API int mlxvk_stream_get_device(mlxvk_device *dev, mlxvk_stream stream);
MLXVK_API int mlxvk_stream_tostring(mlxvk_string *str, mlxvk_stream stream);
MLXVK_API int mlxvk_get_default_stream(mlxvk_stream *stream, mlxvk_device dev);
MLXVK_API int mlxvk_set_default_stream(mlxvk_stream stream);

/* Called with the text of each error of the default device, and of making it; there is none by default, and no call
 * exits the program. It runs inside the failing call and must not call the library. */
typedef void (*mlxvk_error_handler_func)(const char *msg, void *data);
MLXVK_API void mlxvk_set_error_handler(mlxvk_error_handler_func handler, void *data, void (*dtor)(void *));

/* float64: refused. managed: data is copied, and freed by dtor before the call returns. */
MLXVK_API mlxvk_array mlxvk_array_new_float64(double value);
MLXVK_API mlxvk_array mlxvk_array_new_double(double value);
MLXVK_API mlxvk_array mlxvk_array_new_data_managed(void *data, const int *shape, int dim, mlxvk_dtype dtype,
                                                   void (*dtor)(void *));
MLXVK_API mlxvk_array mlxvk_array_new_data_managed_payload(void *data, const int *shape, int dim, mlxvk_dtype dtype,
                                                           void *payload, void (*dtor)(void *));
MLXVK_API int mlxvk_array_set_bool(mlxvk_array *arr, bool val);
MLXVK_API int mlxvk_array_set_int(mlxvk_array *arr, int val);
MLXVK_API int mlxvk_array_set_float32(mlxvk_array *arr, float val);
MLXVK_API int mlxvk_array_set_float(mlxvk_array *arr, float val);
MLXVK_API int mlxvk_array_set_float64(mlxvk_array *arr, double val);
MLXVK_API int mlxvk_array_set_double(mlxvk_array *arr, double val);
MLXVK_API int mlxvk_array_set_complex(mlxvk_array *arr, float real, float imag);
MLXVK_API int mlxvk_array_set_data(mlxvk_array *arr, const void *data, const int *shape, int dim, mlxvk_dtype dtype);

/* Half types are given as their bits. */
typedef uint16_t mlxvk_float16_t, mlxvk_bfloat16_t;
#if defined(__cplusplus) || defined(_MSC_VER)
typedef struct mlxvk_complex64_t { float real, imag; } mlxvk_complex64_t;
#else
typedef float _Complex mlxvk_complex64_t;
#endif
/* The one element of an array of that dtype, evaluated; and the host's pointer to element [0, ...] as mlxvk_array_data
 * gives it, NULL for another dtype. bool has both too. */
#define MLXVK_ITEM_TYPES(X)                                                                                           \
    X(uint8, uint8_t, MLXVK_UINT8)     X(uint16, uint16_t, MLXVK_UINT16)       X(uint32, uint32_t, MLXVK_UINT32)       \
    X(uint64, uint64_t, MLXVK_UINT64)  X(int8, int8_t, MLXVK_INT8)             X(int16, int16_t, MLXVK_INT16)          \
    X(int32, int32_t, MLXVK_INT32)     X(int64, int64_t, MLXVK_INT64)          X(float32, float, MLXVK_FLOAT32)        \
    X(float64, double, MLXVK_FLOAT64)  X(complex64, mlxvk_complex64_t, MLXVK_COMPLEX64)                                \
    X(float16, mlxvk_float16_t, MLXVK_FLOAT16) X(bfloat16, mlxvk_bfloat16_t, MLXVK_BFLOAT16)
#define MLXVK_X(name, type, dtype)                                                                                    \
    MLXVK_API int mlxvk_array_item_##name(type *res, const mlxvk_array arr);                                          \
    MLXVK_API const type *mlxvk_array_data_##name(const mlxvk_array arr);
MLXVK_ITEM_TYPES(MLXVK_X)
#undef MLXVK_X
MLXVK_API const bool *mlxvk_array_data_bool(const mlxvk_array arr);
/* As MLX prints arrays: "array([1, 2, 3], dtype=int32)", long axes cut short. */
MLXVK_API int mlxvk_array_tostring(mlxvk_string *str, const mlxvk_array arr);

/* ==== >>files ===================================================================================================== */

/* What reads or writes for load_..._reader and save_..._writer, on a descriptor of the caller's. Readers need seek,
 * tell and read (or read_at_offset beside seek and tell), writers write; the others may be NULL. What is read begins at
 * offset 0 and ends where seek with SEEK_END leads. label: a name for errors, or NULL. good: did all go well so far?
 * free: called by mlxvk_io_reader_free and mlxvk_io_writer_free. They may call the library. */
typedef struct mlxvk_io_vtable {
    bool (*is_open)(void *);
    bool (*good)(void *);
    size_t (*tell)(void *);
    void (*seek)(void *, int64_t off, int whence);
    void (*read)(void *, char *data, size_t n);
    void (*read_at_offset)(void *, char *data, size_t n, size_t off);
    void (*write)(void *, const char *data, size_t n);
    const char *(*label)(void *);
    void (*free)(void *);
} mlxvk_io_vtable;
typedef struct mlxvk_io_reader { void *ctx; } mlxvk_io_reader;
typedef struct mlxvk_io_writer { void *ctx; } mlxvk_io_writer;
MLXVK_API mlxvk_io_reader mlxvk_io_reader_new(void *desc, mlxvk_io_vtable vtable);
MLXVK_API int mlxvk_io_reader_descriptor(void **desc, mlxvk_io_reader io);
MLXVK_API int mlxvk_io_reader_tostring(mlxvk_string *str, mlxvk_io_reader io);
MLXVK_API int mlxvk_io_reader_free(mlxvk_io_reader io);
MLXVK_API mlxvk_io_writer mlxvk_io_writer_new(void *desc, mlxvk_io_vtable vtable);
MLXVK_API int mlxvk_io_writer_descriptor(void **desc, mlxvk_io_writer io);
MLXVK_API int mlxvk_io_writer_tostring(mlxvk_string *str, mlxvk_io_writer io);
MLXVK_API int mlxvk_io_writer_free(mlxvk_io_writer io);

/* Arrays by name, and the metadata's strings. Everything is read before the call returns; nothing of a wrong file is
 * kept. F8_E4M3 and F8_E8M0 become uint8. */
MLXVK_API int mlxvk_load_safetensors(mlxvk_map_string_to_array *res_0, mlxvk_map_string_to_string *res_1,
                                     const char *file, mlxvk_stream s);
MLXVK_API int mlxvk_load_safetensors_reader(mlxvk_map_string_to_array *res_0, mlxvk_map_string_to_string *res_1,
                                            mlxvk_io_reader in_stream, mlxvk_stream s);
/* metadata may be { NULL }. Errors are with the arrays' device (mlxvk_device_error). */
MLXVK_API int mlxvk_save_safetensors(const char *file, mlxvk_map_string_to_array param,
                                     mlxvk_map_string_to_string metadata);
MLXVK_API int mlxvk_save_safetensors_writer(mlxvk_io_writer in_stream, mlxvk_map_string_to_array param,
                                            mlxvk_map_string_to_string metadata);
/* NumPy's npy files, little-endian. bfloat16 is written as its bytes (V2). */
MLXVK_API int mlxvk_load(mlxvk_array *res, const char *file, mlxvk_stream s);
MLXVK_API int mlxvk_load_reader(mlxvk_array *res, mlxvk_io_reader in_stream, mlxvk_stream s);
MLXVK_API int mlxvk_save(const char *file, mlxvk_array a);
MLXVK_API int mlxvk_save_writer(mlxvk_io_writer out_stream, mlxvk_array a);

/* GGUF files of versions 2 and 3: tensors by name, and metadata: numbers (an array: one, or a list), texts, lists
 * of texts. Tensors in blocks (Q4_0, Q4_1, Q8_0) become what quantized_matmul takes: "x.weight" (words of codes),
 * "x.scales" and "x.biases" (float16), group size 32. float64 metadata become float32. Saved are whole elements
 * only. */
typedef struct mlxvk_io_gguf { void *ctx; } mlxvk_io_gguf;
MLXVK_API mlxvk_io_gguf mlxvk_io_gguf_new(void);
MLXVK_API int mlxvk_io_gguf_free(mlxvk_io_gguf io);
MLXVK_API int mlxvk_io_gguf_get_keys(mlxvk_vector_string *keys, mlxvk_io_gguf io);                /* of the tensors */
MLXVK_API int mlxvk_io_gguf_get_array(mlxvk_array *arr, mlxvk_io_gguf io, const char *key);
MLXVK_API int mlxvk_io_gguf_get_metadata_array(mlxvk_array *arr, mlxvk_io_gguf io, const char *key);
MLXVK_API int mlxvk_io_gguf_get_metadata_string(mlxvk_string *str, mlxvk_io_gguf io, const char *key);
MLXVK_API int mlxvk_io_gguf_get_metadata_vector_string(mlxvk_vector_string *vstr, mlxvk_io_gguf io, const char *key);
MLXVK_API int mlxvk_io_gguf_has_metadata_array(bool *flag, mlxvk_io_gguf io, const char *key);
MLXVK_API int mlxvk_io_gguf_has_metadata_string(bool *flag, mlxvk_io_gguf io, const char *key);
MLXVK_API int mlxvk_io_gguf_has_metadata_vector_string(bool *flag, mlxvk_io_gguf io, const char *key);
MLXVK_API int mlxvk_io_gguf_set_array(mlxvk_io_gguf io, const char *key, mlxvk_array arr);
MLXVK_API int mlxvk_io_gguf_set_metadata_array(mlxvk_io_gguf io, const char *key, mlxvk_array marr);
MLXVK_API int mlxvk_io_gguf_set_metadata_string(mlxvk_io_gguf io, const char *key, const char *mstr);
MLXVK_API int mlxvk_io_gguf_set_metadata_vector_string(mlxvk_io_gguf io, const char *key, mlxvk_vector_string mvstr);
MLXVK_API int mlxvk_load_gguf(mlxvk_io_gguf *gguf, const char *file, mlxvk_stream s);
MLXVK_API int mlxvk_save_gguf(const char *file, mlxvk_io_gguf gguf);

/* ==== >>creation ================================================================================================== */

/* n = max(ceil((stop - start) / step), 0) elements start + i * step, computed as MLX does: in dtype. */
MLXVK_API int mlxvk_arange(mlxvk_array *res, double start, double stop, double step, mlxvk_dtype dtype, mlxvk_stream s);
/* vals broadcast to shape and cast to dtype. */
MLXVK_API int mlxvk_full(mlxvk_array *res, const int *shape, size_t shape_num, mlxvk_array vals, mlxvk_dtype dtype,
                         mlxvk_stream s);
MLXVK_API int mlxvk_full_like(mlxvk_array *res, mlxvk_array a, mlxvk_array vals, mlxvk_dtype dtype, mlxvk_stream s);
MLXVK_API int mlxvk_zeros(mlxvk_array *res, const int *shape, size_t shape_num, mlxvk_dtype dtype, mlxvk_stream s);
MLXVK_API int mlxvk_zeros_like(mlxvk_array *res, mlxvk_array a, mlxvk_stream s);
MLXVK_API int mlxvk_ones(mlxvk_array *res, const int *shape, size_t shape_num, mlxvk_dtype dtype, mlxvk_stream s);
MLXVK_API int mlxvk_ones_like(mlxvk_array *res, mlxvk_array a, mlxvk_stream s);
/* num elements from start to stop, both included; computed in float32. */
MLXVK_API int mlxvk_linspace(mlxvk_array *res, double start, double stop, int num, mlxvk_dtype dtype, mlxvk_stream s);
/* ones on diagonal k */
MLXVK_API int mlxvk_eye(mlxvk_array *res, int n, int m, int k, mlxvk_dtype dtype, mlxvk_stream s);
MLXVK_API int mlxvk_identity(mlxvk_array *res, int n, mlxvk_dtype dtype, mlxvk_stream s);
/* Ones at and below diagonal k; x with zeros above (tril) or below (triu) it. */
MLXVK_API int mlxvk_tri(mlxvk_array *res, int n, int m, int k, mlxvk_dtype type, mlxvk_stream s);
MLXVK_API int mlxvk_tril(mlxvk_array *res, mlxvk_array x, int k, mlxvk_stream s);
MLXVK_API int mlxvk_triu(mlxvk_array *res, mlxvk_array x, int k, mlxvk_stream s);
/* Windows of M points, float32. */
MLXVK_API int mlxvk_bartlett(mlxvk_array *res, int M, mlxvk_stream s);
MLXVK_API int mlxvk_blackman(mlxvk_array *res, int M, mlxvk_stream s);
MLXVK_API int mlxvk_hamming(mlxvk_array *res, int M, mlxvk_stream s);
MLXVK_API int mlxvk_hanning(mlxvk_array *res, int M, mlxvk_stream s);
/* Coordinates of a grid; indexing "xy" (the first two axes swapped) or "ij". sparse: not broadcast. */
MLXVK_API int mlxvk_meshgrid(mlxvk_vector_array *res, mlxvk_vector_array arrays, bool sparse, const char *indexing,
                             mlxvk_stream s);

/* ==== >>shape: views where MLX makes views; a kernel runs only where memory must move ============================= */

MLXVK_API int mlxvk_copy(mlxvk_array *res, mlxvk_array a, mlxvk_stream s);
MLXVK_API int mlxvk_contiguous(mlxvk_array *res, mlxvk_array a, bool allow_col_major, mlxvk_stream s);
MLXVK_API int mlxvk_astype(mlxvk_array *res, mlxvk_array a, mlxvk_dtype dtype, mlxvk_stream s);
MLXVK_API int mlxvk_view(mlxvk_array *res, mlxvk_array a, mlxvk_dtype dtype, mlxvk_stream s);   /* reinterpret bits */
MLXVK_API int mlxvk_reshape(mlxvk_array *res, mlxvk_array a, const int *shape, size_t shape_num, mlxvk_stream s);
MLXVK_API int mlxvk_flatten(mlxvk_array *res, mlxvk_array a, int start_axis, int end_axis, mlxvk_stream s);
MLXVK_API int mlxvk_unflatten(mlxvk_array *res, mlxvk_array a, int axis, const int *shape, size_t shape_num,
                              mlxvk_stream s);
MLXVK_API int mlxvk_transpose(mlxvk_array *res, mlxvk_array a, mlxvk_stream s);
MLXVK_API int mlxvk_transpose_axes(mlxvk_array *res, mlxvk_array a, const int *axes, size_t axes_num, mlxvk_stream s);
MLXVK_API int mlxvk_swapaxes(mlxvk_array *res, mlxvk_array a, int axis1, int axis2, mlxvk_stream s);
MLXVK_API int mlxvk_moveaxis(mlxvk_array *res, mlxvk_array a, int source, int destination, mlxvk_stream s);
MLXVK_API int mlxvk_expand_dims(mlxvk_array *res, mlxvk_array a, int axis, mlxvk_stream s);
MLXVK_API int mlxvk_expand_dims_axes(mlxvk_array *res, mlxvk_array a, const int *axes, size_t axes_num, mlxvk_stream s);
MLXVK_API int mlxvk_squeeze(mlxvk_array *res, mlxvk_array a, mlxvk_stream s);
MLXVK_API int mlxvk_squeeze_axis(mlxvk_array *res, mlxvk_array a, int axis, mlxvk_stream s);
MLXVK_API int mlxvk_squeeze_axes(mlxvk_array *res, mlxvk_array a, const int *axes, size_t axes_num, mlxvk_stream s);
MLXVK_API int mlxvk_broadcast_to(mlxvk_array *res, mlxvk_array a, const int *shape, size_t shape_num, mlxvk_stream s);
MLXVK_API int mlxvk_broadcast_arrays(mlxvk_vector_array *res, mlxvk_vector_array inputs, mlxvk_stream s);
MLXVK_API int mlxvk_atleast_1d(mlxvk_array *res, mlxvk_array a, mlxvk_stream s);
MLXVK_API int mlxvk_atleast_2d(mlxvk_array *res, mlxvk_array a, mlxvk_stream s);
MLXVK_API int mlxvk_atleast_3d(mlxvk_array *res, mlxvk_array a, mlxvk_stream s);
/* A view of a (row-major; a copy of it where it is not): strides and offset in elements from a's first one, any sign,
 * zero too. SHAPE where it would reach outside a. */
MLXVK_API int mlxvk_as_strided(mlxvk_array *res, mlxvk_array a, const int *shape, size_t shape_num,
                               const int64_t *strides, size_t strides_num, size_t offset, mlxvk_stream s);
/* a[start:stop:strides] by axis, NumPy's rules for negative and out-of-range values. Always a view. */
MLXVK_API int mlxvk_slice(mlxvk_array *res, mlxvk_array a, const int *start, size_t start_num, const int *stop,
                          size_t stop_num, const int *strides, size_t strides_num, mlxvk_stream s);
/* src with that slice replaced by update (broadcast, cast to src's dtype). In place where *res is src's only owner. */
MLXVK_API int mlxvk_slice_update(mlxvk_array *res, mlxvk_array src, mlxvk_array update, const int *start,
                                 size_t start_num, const int *stop, size_t stop_num, const int *strides,
                                 size_t strides_num, mlxvk_stream s);
/* The same with what is there and update added, multiplied, or the greater or lesser one. */
#define MLXVK_SLICE_UPDATE_FUNCTIONS(X) X(slice_update_add) X(slice_update_prod) X(slice_update_max) X(slice_update_min)
#define MLXVK_X(name)                                                                                                 \
    MLXVK_API int mlxvk_##name(mlxvk_array *res, mlxvk_array src, mlxvk_array update, const int *start,               \
                               size_t start_num, const int *stop, size_t stop_num, const int *strides,                \
                               size_t strides_num, mlxvk_stream s);
MLXVK_SLICE_UPDATE_FUNCTIONS(MLXVK_X)
#undef MLXVK_X
/* slice_size elements of a, from start (integers, one an axis of axes; 0 along others) on. A slice that would reach
 * over a's end is moved to where it fits. slice_update_dynamic: src with update there, broadcast to src's shape beside
 * the axes; one that would reach over src's end is left out. In place where *res is src's only owner. */
MLXVK_API int mlxvk_slice_dynamic(mlxvk_array *res, mlxvk_array a, mlxvk_array start, const int *axes, size_t axes_num,
                                  const int *slice_size, size_t slice_size_num, mlxvk_stream s);
MLXVK_API int mlxvk_slice_update_dynamic(mlxvk_array *res, mlxvk_array src, mlxvk_array update, mlxvk_array start,
                                         const int *axes, size_t axes_num, mlxvk_stream s);
/* Elements offset to the right of the diagonal of two axes, as a last axis: a view. trace: their sum, in dtype. */
MLXVK_API int mlxvk_diagonal(mlxvk_array *res, mlxvk_array a, int offset, int axis1, int axis2, mlxvk_stream s);
MLXVK_API int mlxvk_trace(mlxvk_array *res, mlxvk_array a, int offset, int axis1, int axis2, mlxvk_dtype dtype,
                          mlxvk_stream s);
/* of a matrix, or a matrix with it */
MLXVK_API int mlxvk_diag(mlxvk_array *res, mlxvk_array a, int k, mlxvk_stream s);
MLXVK_API int mlxvk_concatenate(mlxvk_array *res, mlxvk_vector_array arrays, mlxvk_stream s);          /* axis 0 */
MLXVK_API int mlxvk_concatenate_axis(mlxvk_array *res, mlxvk_vector_array arrays, int axis, mlxvk_stream s);
MLXVK_API int mlxvk_stack(mlxvk_array *res, mlxvk_vector_array arrays, mlxvk_stream s);
MLXVK_API int mlxvk_stack_axis(mlxvk_array *res, mlxvk_vector_array arrays, int axis, mlxvk_stream s);
MLXVK_API int mlxvk_split(mlxvk_vector_array *res, mlxvk_array a, int num_splits, int axis, mlxvk_stream s);
MLXVK_API int mlxvk_split_sections(mlxvk_vector_array *res, mlxvk_array a, const int *indices, size_t indices_num,
                                   int axis, mlxvk_stream s);
/* mode: "constant" (pad_value, one number; { NULL }: 0), "edge", "reflect" (without the edge) or "symmetric" (with
 * it). */
MLXVK_API int mlxvk_pad(mlxvk_array *res, mlxvk_array a, const int *axes, size_t axes_num, const int *low_pad_size,
                        size_t low_pad_size_num, const int *high_pad_size, size_t high_pad_size_num,
                        mlxvk_array pad_value, const char *mode, mlxvk_stream s);
MLXVK_API int mlxvk_pad_symmetric(mlxvk_array *res, mlxvk_array a, int pad_width, mlxvk_array pad_value,
                                  const char *mode, mlxvk_stream s);
/* Shifted along an axis, what falls off one end coming back at the other; several shifts of one axis add up. Without
 * axis: of the flattened array. */
MLXVK_API int mlxvk_roll(mlxvk_array *res, mlxvk_array a, const int *shift, size_t shift_num, mlxvk_stream s);
MLXVK_API int mlxvk_roll_axis(mlxvk_array *res, mlxvk_array a, const int *shift, size_t shift_num, int axis,
                              mlxvk_stream s);
MLXVK_API int mlxvk_roll_axes(mlxvk_array *res, mlxvk_array a, const int *shift, size_t shift_num, const int *axes,
                              size_t axes_num, mlxvk_stream s);
MLXVK_API int mlxvk_tile(mlxvk_array *res, mlxvk_array arr, const int *reps, size_t reps_num, mlxvk_stream s);
MLXVK_API int mlxvk_repeat(mlxvk_array *res, mlxvk_array arr, int repeats, mlxvk_stream s);      /* flattened */
MLXVK_API int mlxvk_repeat_axis(mlxvk_array *res, mlxvk_array arr, int repeats, int axis, mlxvk_stream s);
/* The product of a's sizes along the axes, or its inverse, as a scalar. */
MLXVK_API int mlxvk_number_of_elements(mlxvk_array *res, mlxvk_array a, const int *axes, size_t axes_num, bool inverted,
                                       mlxvk_dtype dtype, mlxvk_stream s);
MLXVK_API int mlxvk_stop_gradient(mlxvk_array *res, mlxvk_array a, mlxvk_stream s);              /* a itself */
MLXVK_API int mlxvk_depends(mlxvk_vector_array *res, mlxvk_vector_array inputs, mlxvk_vector_array dependencies);
/* Rows of a along axis (of a flattened: mlxvk_take) at integer indices; negative ones count from the end. */
MLXVK_API int mlxvk_take(mlxvk_array *res, mlxvk_array a, mlxvk_array indices, mlxvk_stream s);
MLXVK_API int mlxvk_take_axis(mlxvk_array *res, mlxvk_array a, mlxvk_array indices, int axis, mlxvk_stream s);
MLXVK_API int mlxvk_take_along_axis(mlxvk_array *res, mlxvk_array a, mlxvk_array indices, int axis, mlxvk_stream s);
/* Windows of a, of slice_sizes, that start at the indices along axes (0 to a.ndim - 1, each once) and at 0 along the
 * others. The index arrays (one an axis, integers) are broadcast; res: their shape, then slice_sizes. Negative indices
 * wrap once; a window that does not fit into a then is moved to the nearest place where it does. */
MLXVK_API int mlxvk_gather(mlxvk_array *res, mlxvk_array a, mlxvk_vector_array indices, const int *axes,
                           size_t axes_num, const int *slice_sizes, size_t slice_sizes_num, mlxvk_stream s);
MLXVK_API int mlxvk_gather_single(mlxvk_array *res, mlxvk_array a, mlxvk_array indices, int axis,
                                  const int *slice_sizes, size_t slice_sizes_num, mlxvk_stream s);
/* a with values put, or added, along axis; put: of several values for one place any one stays. Positions outside are
 * left out. */
MLXVK_API int mlxvk_put_along_axis(mlxvk_array *res, mlxvk_array a, mlxvk_array indices, mlxvk_array values, int axis,
                                   mlxvk_stream s);
MLXVK_API int mlxvk_scatter_add_axis(mlxvk_array *res, mlxvk_array a, mlxvk_array indices, mlxvk_array values, int axis,
                                     mlxvk_stream s);
/* a with updates (cast to its dtype) put, added, multiplied, ... into windows that start at the indices, as for gather.
 * updates: the index arrays' broadcast shape, then one dimension for each of a's, at most as long. Windows that do not
 * fit into a are left out. Where several go to one place, the result is the same in every run: of mlxvk_scatter the
 * last one stays; sums and products of floats are taken in order, in float32. max and min pass over NaN among the
 * updates. In place where *res is a's only owner. _single: one index array. */
#define MLXVK_SCATTER_FUNCTIONS(X) X(scatter) X(scatter_add) X(scatter_prod) X(scatter_max) X(scatter_min)
#define MLXVK_X(name)                                                                                                 \
    MLXVK_API int mlxvk_##name(mlxvk_array *res, mlxvk_array a, mlxvk_vector_array indices, mlxvk_array updates,      \
                               const int *axes, size_t axes_num, mlxvk_stream s);                                     \
    MLXVK_API int mlxvk_##name##_single(mlxvk_array *res, mlxvk_array a, mlxvk_array indices, mlxvk_array updates,    \
                                        int axis, mlxvk_stream s);
MLXVK_SCATTER_FUNCTIONS(MLXVK_X)
#undef MLXVK_X
/* a with the rows of src, in order, where mask is true. mask: bool, the first dimensions of a; src: a row for each true
 * element (what it lacks stays a's), or, with fewer dimensions, one row for all. */
MLXVK_API int mlxvk_masked_scatter(mlxvk_array *res, mlxvk_array a, mlxvk_array mask, mlxvk_array src, mlxvk_stream s);
/* For each element of v, how many of the sorted sequence a are less (side "left") or not greater ("right"): uint32. NaN
 * is the greatest, as in sort. In MLX, but not in mlx-c yet. */
MLXVK_API int mlxvk_searchsorted(mlxvk_array *res, mlxvk_array a, mlxvk_array v, const char *side, mlxvk_stream s);

/* ==== >>elementwise =============================================================================================== */

/* One line a function: name, and what is particular. Integers and bool are cast to float32 by those marked f. */
#define MLXVK_UNARY_FUNCTIONS(X)                                                                                      \
    X(abs) X(negative) X(sign) X(square) X(logical_not) X(bitwise_invert) X(floor) X(ceil) X(conjugate) X(real)       \
    X(imag) X(sqrt) X(rsqrt) X(reciprocal) X(exp) X(expm1) X(log) X(log2) X(log10) X(log1p) X(sin) X(cos) X(tan)      \
    X(sinh) X(cosh) X(tanh) X(arcsin) X(arccos) X(arctan) X(arcsinh) X(arccosh) X(arctanh) X(erf) X(erfinv)           \
    X(sigmoid) X(isnan) X(isinf) X(isfinite) X(isposinf) X(isneginf) X(degrees) X(radians)
#define MLXVK_X(name) MLXVK_API int mlxvk_##name(mlxvk_array *res, mlxvk_array a, mlxvk_stream s);
MLXVK_UNARY_FUNCTIONS(MLXVK_X)
#undef MLXVK_X
MLXVK_API int mlxvk_round(mlxvk_array *res, mlxvk_array a, int decimals, mlxvk_stream s);

/* Operands are broadcast and promoted by MLX's table. divide, logaddexp and arctan2 cast integers to float32;
 * comparisons and logical functions give bool. */
#define MLXVK_BINARY_FUNCTIONS(X)                                                                                     \
    X(add) X(subtract) X(multiply) X(divide) X(floor_divide) X(remainder) X(power) X(maximum) X(minimum) X(logaddexp)  \
    X(arctan2) X(bitwise_and) X(bitwise_or) X(bitwise_xor) X(left_shift) X(right_shift) X(equal) X(not_equal)          \
    X(greater) X(greater_equal) X(less) X(less_equal) X(logical_and) X(logical_or)
#define MLXVK_X(name) MLXVK_API int mlxvk_##name(mlxvk_array *res, mlxvk_array a, mlxvk_array b, mlxvk_stream s);
MLXVK_BINARY_FUNCTIONS(MLXVK_X)
#undef MLXVK_X
/* { floor(a / b), remainder with b's sign }; of integers { 0, a } where b is 0, and so each by itself above. */
MLXVK_API int mlxvk_divmod(mlxvk_vector_array *res, mlxvk_array a, mlxvk_array b, mlxvk_stream s);
/* Not in mlx-c: divide where integers stay integers and are rounded towards 0 (0 where b is 0), which is MLX's
 * primitive Divide; equality where NaN equals NaN. */
MLXVK_API int mlxvk_divide_truncate(mlxvk_array *res, mlxvk_array a, mlxvk_array b, mlxvk_stream s);
MLXVK_API int mlxvk_equal_nan(mlxvk_array *res, mlxvk_array a, mlxvk_array b, mlxvk_stream s);
/* |a - b| <= atol + rtol |b|, infinities equal to themselves; of all elements as one bool: allclose. array_equal: one
 * bool, false where shapes differ. */
MLXVK_API int mlxvk_isclose(mlxvk_array *res, mlxvk_array a, mlxvk_array b, double rtol, double atol, bool equal_nan,
                            mlxvk_stream s);
MLXVK_API int mlxvk_allclose(mlxvk_array *res, mlxvk_array a, mlxvk_array b, double rtol, double atol, bool equal_nan,
                             mlxvk_stream s);
MLXVK_API int mlxvk_array_equal(mlxvk_array *res, mlxvk_array a, mlxvk_array b, bool equal_nan, mlxvk_stream s);
/* condition ? x : y, element by element. */
MLXVK_API int mlxvk_where(mlxvk_array *res, mlxvk_array condition, mlxvk_array x, mlxvk_array y, mlxvk_stream s);
/* a_min and a_max may be { NULL }, not both. */
MLXVK_API int mlxvk_clip(mlxvk_array *res, mlxvk_array a, mlxvk_array a_min, mlxvk_array a_max, mlxvk_stream s);
/* posinf and neginf default to the dtype's largest and smallest finite numbers. */
MLXVK_API int mlxvk_nan_to_num(mlxvk_array *res, mlxvk_array a, float nan, mlxvk_optional_float posinf,
                               mlxvk_optional_float neginf, mlxvk_stream s);

/* ==== >>reductions ================================================================================================ */

/* Three forms each: over all axes, one axis, several axes. Result dtypes as MLX: sums and products of small integers
 * widen to 32 bits; NaN makes max and min NaN. Sums of half types are accumulated in float32 and rounded once. */
#define MLXVK_REDUCE_FUNCTIONS(X) X(sum) X(prod) X(max) X(min) X(mean) X(all) X(any) X(logsumexp)
#define MLXVK_X(name)                                                                                                 \
    MLXVK_API int mlxvk_##name(mlxvk_array *res, mlxvk_array a, bool keepdims, mlxvk_stream s);                       \
    MLXVK_API int mlxvk_##name##_axis(mlxvk_array *res, mlxvk_array a, int axis, bool keepdims, mlxvk_stream s);      \
    MLXVK_API int mlxvk_##name##_axes(mlxvk_array *res, mlxvk_array a, const int *axes, size_t axes_num,              \
                                      bool keepdims, mlxvk_stream s);
MLXVK_REDUCE_FUNCTIONS(MLXVK_X)
#undef MLXVK_X
/* uint32 index of the first largest (smallest) element; NaN is never chosen. Without axis: of the flattened array. */
MLXVK_API int mlxvk_argmax(mlxvk_array *res, mlxvk_array a, bool keepdims, mlxvk_stream s);
MLXVK_API int mlxvk_argmax_axis(mlxvk_array *res, mlxvk_array a, int axis, bool keepdims, mlxvk_stream s);
MLXVK_API int mlxvk_argmin(mlxvk_array *res, mlxvk_array a, bool keepdims, mlxvk_stream s);
MLXVK_API int mlxvk_argmin_axis(mlxvk_array *res, mlxvk_array a, int axis, bool keepdims, mlxvk_stream s);
/* precise: half types are computed in float32 (mlxvk always does). Integers give float32 over the last axis alone, else
 * their own dtype, as in MLX. What is below 2^-126 in bfloat16 is cut, not rounded. */
MLXVK_API int mlxvk_softmax(mlxvk_array *res, mlxvk_array a, bool precise, mlxvk_stream s);
MLXVK_API int mlxvk_softmax_axis(mlxvk_array *res, mlxvk_array a, int axis, bool precise, mlxvk_stream s);
MLXVK_API int mlxvk_softmax_axes(mlxvk_array *res, mlxvk_array a, const int *axes, size_t axes_num, bool precise,
                                 mlxvk_stream s);
/* Sum of the squared distances from the mean over n - ddof, in two passes in float32; std: its square root. */
#define MLXVK_VARIANCE_FUNCTIONS(X) X(var) X(std)
#define MLXVK_X(name)                                                                                                 \
    MLXVK_API int mlxvk_##name(mlxvk_array *res, mlxvk_array a, bool keepdims, int ddof, mlxvk_stream s);             \
    MLXVK_API int mlxvk_##name##_axis(mlxvk_array *res, mlxvk_array a, int axis, bool keepdims, int ddof,             \
                                      mlxvk_stream s);                                                                \
    MLXVK_API int mlxvk_##name##_axes(mlxvk_array *res, mlxvk_array a, const int *axes, size_t axes_num,              \
                                      bool keepdims, int ddof, mlxvk_stream s);
MLXVK_VARIANCE_FUNCTIONS(MLXVK_X)
#undef MLXVK_X
/* The middle of the sorted elements, or the mean of the two in the middle; NaN where there is one. */
MLXVK_API int mlxvk_median(mlxvk_array *res, mlxvk_array a, const int *axes, size_t axes_num, bool keepdims,
                           mlxvk_stream s);
#define MLXVK_SCAN_FUNCTIONS(X) X(cumsum) X(cumprod) X(cummax) X(cummin) X(logcumsumexp)
#define MLXVK_X(name)                                                                                                 \
    MLXVK_API int mlxvk_##name(mlxvk_array *res, mlxvk_array a, int axis, bool reverse, bool inclusive, mlxvk_stream s);
MLXVK_SCAN_FUNCTIONS(MLXVK_X)
#undef MLXVK_X
/* Ascending, stable, NaN last; argsort gives uint32. Without axis: of the flattened array. topk: the k largest. */
MLXVK_API int mlxvk_sort(mlxvk_array *res, mlxvk_array a, mlxvk_stream s);
MLXVK_API int mlxvk_sort_axis(mlxvk_array *res, mlxvk_array a, int axis, mlxvk_stream s);
MLXVK_API int mlxvk_argsort(mlxvk_array *res, mlxvk_array a, mlxvk_stream s);
MLXVK_API int mlxvk_argsort_axis(mlxvk_array *res, mlxvk_array a, int axis, mlxvk_stream s);
MLXVK_API int mlxvk_partition(mlxvk_array *res, mlxvk_array a, int kth, mlxvk_stream s);
MLXVK_API int mlxvk_partition_axis(mlxvk_array *res, mlxvk_array a, int kth, int axis, mlxvk_stream s);
MLXVK_API int mlxvk_argpartition(mlxvk_array *res, mlxvk_array a, int kth, mlxvk_stream s);
MLXVK_API int mlxvk_argpartition_axis(mlxvk_array *res, mlxvk_array a, int kth, int axis, mlxvk_stream s);
MLXVK_API int mlxvk_topk(mlxvk_array *res, mlxvk_array a, int k, mlxvk_stream s);
MLXVK_API int mlxvk_topk_axis(mlxvk_array *res, mlxvk_array a, int k, int axis, mlxvk_stream s);

/* ==== >>matrix ==================================================================================================== */

/* NumPy's matmul for floating dtypes; batch dimensions broadcast; sums in float32. */
MLXVK_API int mlxvk_matmul(mlxvk_array *res, mlxvk_array a, mlxvk_array b, mlxvk_stream s);
/* alpha * a @ b + beta * c, c broadcast to the result. */
MLXVK_API int mlxvk_addmm(mlxvk_array *res, mlxvk_array c, mlxvk_array a, mlxvk_array b, float alpha, float beta,
                          mlxvk_stream s);
/* Products of matrices chosen by index arrays, which broadcast: res[i...] = a[lhs[i...]] @ b[rhs[i...]], the batch
 * dimensions of a and b counted flat; an absent array counts 0, 1, 2, ... An index outside is taken as the last matrix.
 * sorted_indices needs not be true: rows are grouped by the matrix of b on the GPU where that pays. */
MLXVK_API int mlxvk_gather_mm(mlxvk_array *res, mlxvk_array a, mlxvk_array b, mlxvk_array lhs_indices,
                              mlxvk_array rhs_indices, bool sorted_indices, mlxvk_stream s);
/* Sums of products over pairs of axes, or over the last `axis` axes of a and the first of b; what remains are a's
 * other axes, then b's. inner: over the last axis of both. Floating dtypes, but for inner with an operand of no
 * dimensions. */
MLXVK_API int mlxvk_tensordot(mlxvk_array *res, mlxvk_array a, mlxvk_array b, const int *axes_a, size_t axes_a_num,
                              const int *axes_b, size_t axes_b_num, mlxvk_stream s);
MLXVK_API int mlxvk_tensordot_axis(mlxvk_array *res, mlxvk_array a, mlxvk_array b, int axis, mlxvk_stream s);
MLXVK_API int mlxvk_inner(mlxvk_array *res, mlxvk_array a, mlxvk_array b, mlxvk_stream s);
/* All products of an element of a and one of b, both flattened; kron: blocks of b times an element of a. Any dtype. */
MLXVK_API int mlxvk_outer(mlxvk_array *res, mlxvk_array a, mlxvk_array b, mlxvk_stream s);
MLXVK_API int mlxvk_kron(mlxvk_array *res, mlxvk_array a, mlxvk_array b, mlxvk_stream s);
/* NumPy's einsum ("bij,bjk->bik", "...i,i", "ii->i"): two operands at a time, those that leave least first, as matrix
 * products. */
MLXVK_API int mlxvk_einsum(mlxvk_array *res, const char *subscripts, mlxvk_vector_array operands, mlxvk_stream s);
/* res[...] = a[:, s:e] @ b[s:e, :] for each pair (s, e) of segments (..., 2); a and b are matrices. Empty ranges give
 * zeros. */
MLXVK_API int mlxvk_segmented_mm(mlxvk_array *res, mlxvk_array a, mlxvk_array b, mlxvk_array segments, mlxvk_stream s);
/* a @ b with masks of blocks of block_size (32, 64) squared elements of a, b and the result: bool ones keep a block or
 * make it 0, others are multiplied. Masks have a dimension for each of blocks down and across, and batch dimensions; or
 * are { NULL }. */
MLXVK_API int mlxvk_block_masked_mm(mlxvk_array *res, mlxvk_array a, mlxvk_array b, int block_size,
                                    mlxvk_array mask_out, mlxvk_array mask_lhs, mlxvk_array mask_rhs, mlxvk_stream s);
/* x (..., M, K) times w, uint32 words that hold `bits`-bit codes in groups of group_size along w's last axis; scales
 * and biases of each group. transpose: w is (N, K * bits / 32) and the result x @ w^T; else w is (K, N * bits / 32).
 * mode "affine": value = scale * code + bias; bits 1, 2, 3, 4, 5, 6, 8, groups of 32, 64, 128; default 4 and 64. Modes
 * "mxfp4", "mxfp8" (groups of 32) and "nvfp4" (of 16): codes are small floats (e2m1, e4m3), scales uint8 (powers of
 * two, e4m3 for nvfp4), biases { NULL }; the result has x's dtype. */
MLXVK_API int mlxvk_quantized_matmul(mlxvk_array *res, mlxvk_array x, mlxvk_array w, mlxvk_array scales,
                                     mlxvk_array biases, bool transpose, mlxvk_optional_int group_size,
                                     mlxvk_optional_int bits, const char *mode, mlxvk_stream s);
/* quantized_matmul of matrices chosen by index arrays, which broadcast: res[i...] = x[lhs[i...]] times w[rhs[i...]],
 * the batch dimensions of x and w counted flat; an absent array counts 0, 1, 2, ... An index outside is taken as the
 * last matrix. sorted_indices needs not be true: rows are grouped by weight on the GPU. */
MLXVK_API int mlxvk_gather_qmm(mlxvk_array *res, mlxvk_array x, mlxvk_array w, mlxvk_array scales, mlxvk_array biases,
                               mlxvk_array lhs_indices, mlxvk_array rhs_indices, bool transpose,
                               mlxvk_optional_int group_size, mlxvk_optional_int bits, const char *mode,
                               bool sorted_indices, mlxvk_stream s);
/* res: { codes, scales, biases }, or { codes, scales } in the modes without biases. global_scale: one float32 for
 * nvfp4, the largest magnitude of the whole tensor, to which the scales become relative; else { NULL }. Scales that
 * are powers of two are rounded up, as MLX has it since 0.31; gate MLX_VK_MX_SCALES_NEAREST: to the nearest one, as
 * before. */
MLXVK_API int mlxvk_quantize(mlxvk_vector_array *res, mlxvk_array w, mlxvk_optional_int group_size,
                             mlxvk_optional_int bits, const char *mode, mlxvk_array global_scale, mlxvk_stream s);
MLXVK_API int mlxvk_dequantize(mlxvk_array *res, mlxvk_array w, mlxvk_array scales, mlxvk_array biases,
                               mlxvk_optional_int group_size, mlxvk_optional_int bits, const char *mode,
                               mlxvk_array global_scale, mlxvk_optional_dtype dtype, mlxvk_stream s);
/* x @ w^T with both operands quantized: x through the mode (not "affine") and back, w (N x K) codes with w_scales, or
 * floating and w_scales { NULL }. The global scales are for nvfp4, both or neither. The result has x's dtype. */
MLXVK_API int mlxvk_qqmm(mlxvk_array *res, mlxvk_array x, mlxvk_array w, mlxvk_array w_scales,
                         mlxvk_optional_int group_size, mlxvk_optional_int bits, const char *mode,
                         mlxvk_array global_scale_x, mlxvk_array global_scale_w, mlxvk_stream s);
/* qqmm of matrices chosen as gather_qmm does: x and w (..., N, K) through the mode and back once, whatever is chosen.
 * w floating, w_scales { NULL }: quantized here. Not in mlx-c. Source: MLX gather_qqmm. */
MLXVK_API int mlxvk_gather_qqmm(mlxvk_array *res, mlxvk_array x, mlxvk_array w, mlxvk_array w_scales,
                                mlxvk_array lhs_indices, mlxvk_array rhs_indices, mlxvk_optional_int group_size,
                                mlxvk_optional_int bits, const char *mode, mlxvk_array global_scale_x,
                                mlxvk_array global_scale_w, bool sorted_indices, mlxvk_stream s);
/* The Hadamard transform of rows of m * 2^k elements, m of 1, 12, 20, 28, times scale (1 / sqrt of their number); in
 * float32, rounded once. Dtypes that are not floating are cast to float32. */
MLXVK_API int mlxvk_hadamard_transform(mlxvk_array *res, mlxvk_array a, mlxvk_optional_float scale, mlxvk_stream s);
/* To e4m3 bytes (nearest, ties to even; 448 is the largest, NaN becomes it too), and from them (0x7f and 0xff are
 * +-480). */
MLXVK_API int mlxvk_to_fp8(mlxvk_array *res, mlxvk_array x, mlxvk_stream s);
MLXVK_API int mlxvk_from_fp8(mlxvk_array *res, mlxvk_array x, mlxvk_dtype dtype, mlxvk_stream s);

/* ==== >>convolution =============================================================================================== */

/* Convolutions as neural networks have them (cross-correlations): input (N, spatial axes, C), weight (O, kernel's axes,
 * C / groups), result (N, spatial axes, O), of a floating dtype, sums in float32. One to three spatial axes; groups,
 * which cut both kinds of channels into as many parts, with one or two. Along an axis the result at o is the sum over
 * taps t of
 *     weight[t] * input[(o * stride - padding_lo + t * kernel_dilation) / input_dilation]
 * where that position exists; flip mirrors the kernel. Negative padding cuts from the input before it is dilated.
 * Large ones of a plane by 2 to 5 taps along each axis are computed in Winograd's way where that is faster: errors are
 * then relative to the largest values of a neighbourhood of 6 x 6, and what is not finite reaches all results there, 4
 * x 4 of 3 x 3 taps (gate MLX_VK_ENABLE_WINOGRAD=0: it is not; mlxvk_set_winograd_limit: in less memory). A list has a
 * value for each spatial axis, or one for all, or none (0 for padding, else 1). Errors: _SHAPE when shapes do not fit
 * or the padded input is smaller than the kernel (by a stride or more: by less there is one position, as in MLX),
 * _DTYPE when not floating, _ARGUMENT. Source: MLX conv_general. */
MLXVK_API int mlxvk_conv_general(mlxvk_array *res, mlxvk_array input, mlxvk_array weight, const int *stride,
                                 size_t stride_num, const int *padding_lo, size_t padding_lo_num, const int *padding_hi,
                                 size_t padding_hi_num, const int *kernel_dilation, size_t kernel_dilation_num,
                                 const int *input_dilation, size_t input_dilation_num, int groups, bool flip,
                                 mlxvk_stream s);
MLXVK_API int mlxvk_conv1d(mlxvk_array *res, mlxvk_array input, mlxvk_array weight, int stride, int padding,
                           int dilation, int groups, mlxvk_stream s);
MLXVK_API int mlxvk_conv2d(mlxvk_array *res, mlxvk_array input, mlxvk_array weight, int stride_0, int stride_1,
                           int padding_0, int padding_1, int dilation_0, int dilation_1, int groups, mlxvk_stream s);
MLXVK_API int mlxvk_conv3d(mlxvk_array *res, mlxvk_array input, mlxvk_array weight, int stride_0, int stride_1,
                           int stride_2, int padding_0, int padding_1, int padding_2, int dilation_0, int dilation_1,
                           int dilation_2, int groups, mlxvk_stream s);
/* The gradient of a convolution with respect to its input: an axis of n becomes
 * (n - 1) * stride - 2 * padding + dilation * (kernel - 1) + 1 + output_padding. */
MLXVK_API int mlxvk_conv_transpose1d(mlxvk_array *res, mlxvk_array input, mlxvk_array weight, int stride, int padding,
                                     int dilation, int output_padding, int groups, mlxvk_stream s);
MLXVK_API int mlxvk_conv_transpose2d(mlxvk_array *res, mlxvk_array input, mlxvk_array weight, int stride_0,
                                     int stride_1, int padding_0, int padding_1, int dilation_0, int dilation_1,
                                     int output_padding_0, int output_padding_1, int groups, mlxvk_stream s);
MLXVK_API int mlxvk_conv_transpose3d(mlxvk_array *res, mlxvk_array input, mlxvk_array weight, int stride_0,
                                     int stride_1, int stride_2, int padding_0, int padding_1, int padding_2,
                                     int dilation_0, int dilation_1, int dilation_2, int output_padding_0,
                                     int output_padding_1, int output_padding_2, int groups, mlxvk_stream s);

/* ==== >>fft ======================================================================================================= */

typedef enum mlxvk_fft_norm { MLXVK_FFT_NORM_BACKWARD, MLXVK_FFT_NORM_ORTHO, MLXVK_FFT_NORM_FORWARD } mlxvk_fft_norm;

/* Discrete Fourier transforms along an axis, to complex64 (irfft: float32), of any length up to 2^26. n: the length, to
 * which the operand is cut or padded with zeros. rfft takes real numbers and gives the n / 2 + 1 first bins, irfft
 * makes n real numbers of such. norm: the inverse is divided by n (backward), the forward transform (forward), or both
 * by sqrt(n) (ortho). The forms for two and more axes are one: n may be empty (the operand's lengths; the last one of
 * irfft2 and irfftn is 2 (length - 1)); of real transforms the last axis is the one that is halved. Without axes the
 * operand is the result. Errors: _AXIS out of range or twice, _ARGUMENT lengths below 1 or not as many as axes, _LIMIT.
 * Source: MLX fft. */
MLXVK_API int mlxvk_fft_fft(mlxvk_array *res, mlxvk_array a, int n, int axis, mlxvk_fft_norm norm, mlxvk_stream s);
MLXVK_API int mlxvk_fft_ifft(mlxvk_array *res, mlxvk_array a, int n, int axis, mlxvk_fft_norm norm, mlxvk_stream s);
MLXVK_API int mlxvk_fft_rfft(mlxvk_array *res, mlxvk_array a, int n, int axis, mlxvk_fft_norm norm, mlxvk_stream s);
MLXVK_API int mlxvk_fft_irfft(mlxvk_array *res, mlxvk_array a, int n, int axis, mlxvk_fft_norm norm, mlxvk_stream s);
MLXVK_API int mlxvk_fft_fft2(mlxvk_array *res, mlxvk_array a, const int *n, size_t n_num, const int *axes,
                             size_t axes_num, mlxvk_fft_norm norm, mlxvk_stream s);
MLXVK_API int mlxvk_fft_ifft2(mlxvk_array *res, mlxvk_array a, const int *n, size_t n_num, const int *axes,
                              size_t axes_num, mlxvk_fft_norm norm, mlxvk_stream s);
MLXVK_API int mlxvk_fft_rfft2(mlxvk_array *res, mlxvk_array a, const int *n, size_t n_num, const int *axes,
                              size_t axes_num, mlxvk_fft_norm norm, mlxvk_stream s);
MLXVK_API int mlxvk_fft_irfft2(mlxvk_array *res, mlxvk_array a, const int *n, size_t n_num, const int *axes,
                               size_t axes_num, mlxvk_fft_norm norm, mlxvk_stream s);
MLXVK_API int mlxvk_fft_fftn(mlxvk_array *res, mlxvk_array a, const int *n, size_t n_num, const int *axes,
                             size_t axes_num, mlxvk_fft_norm norm, mlxvk_stream s);
MLXVK_API int mlxvk_fft_ifftn(mlxvk_array *res, mlxvk_array a, const int *n, size_t n_num, const int *axes,
                              size_t axes_num, mlxvk_fft_norm norm, mlxvk_stream s);
MLXVK_API int mlxvk_fft_rfftn(mlxvk_array *res, mlxvk_array a, const int *n, size_t n_num, const int *axes,
                              size_t axes_num, mlxvk_fft_norm norm, mlxvk_stream s);
MLXVK_API int mlxvk_fft_irfftn(mlxvk_array *res, mlxvk_array a, const int *n, size_t n_num, const int *axes,
                               size_t axes_num, mlxvk_fft_norm norm, mlxvk_stream s);
/* The zero frequency to the middle of each axis, and back. */
MLXVK_API int mlxvk_fft_fftshift(mlxvk_array *res, mlxvk_array a, const int *axes, size_t axes_num, mlxvk_stream s);
MLXVK_API int mlxvk_fft_ifftshift(mlxvk_array *res, mlxvk_array a, const int *axes, size_t axes_num, mlxvk_stream s);
/* The frequencies of the bins of fft and rfft, in cycles per unit of the sample spacing d; float32. */
MLXVK_API int mlxvk_fft_fftfreq(mlxvk_array *res, int n, double d, mlxvk_stream s);
MLXVK_API int mlxvk_fft_rfftfreq(mlxvk_array *res, int n, double d, mlxvk_stream s);

/* ==== >>fast ====================================================================================================== */

/* x * rsqrt(mean(x^2) + eps) over the last axis, rounded to x's dtype, times weight ({ NULL }: none). In bfloat16, of
 * rows of more than 1024 elements, some results below 2^-126 are cut, not rounded; layer_norm's all. */
MLXVK_API int mlxvk_fast_rms_norm(mlxvk_array *res, mlxvk_array x, mlxvk_array weight, float eps, mlxvk_stream s);
MLXVK_API int mlxvk_fast_layer_norm(mlxvk_array *res, mlxvk_array x, mlxvk_array weight, mlxvk_array bias, float eps,
                                    mlxvk_stream s);
/* Not in mlx-c: their gradients for the cotangent of the result. res: { dx }, { dx, dweight } where weight is given, or
 * { dx, dweight, dbias } where bias is too. Deterministic. */
MLXVK_API int mlxvk_fast_rms_norm_vjp(mlxvk_vector_array *res, mlxvk_array x, mlxvk_array weight, mlxvk_array cotangent,
                                      float eps, mlxvk_stream s);
MLXVK_API int mlxvk_fast_layer_norm_vjp(mlxvk_vector_array *res, mlxvk_array x, mlxvk_array weight, mlxvk_array bias,
                                        mlxvk_array cotangent, float eps, mlxvk_stream s);
/* Rotary embedding of the first dims features of x (B, ..., T, D) at positions scale * (offset + t). Exactly one of
 * base and freqs (float32, dims / 2). traditional: pairs (2j, 2j+1), else (j, j + dims/2). A scale of the other sign
 * rotates back, which is rope's gradient. */
MLXVK_API int mlxvk_fast_rope(mlxvk_array *res, mlxvk_array x, int dims, bool traditional, mlxvk_optional_float base,
                              float scale, int offset, mlxvk_array freqs, mlxvk_stream s);
/* offset as an integer array: one value, or one for each of B. */
MLXVK_API int mlxvk_fast_rope_dynamic(mlxvk_array *res, mlxvk_array x, int dims, bool traditional,
                                      mlxvk_optional_float base, float scale, mlxvk_array offset, mlxvk_array freqs,
                                      mlxvk_stream s);
/* softmax(scale * q k^T + mask) v for q (B, H, Lq, D), k (B, Hkv, Lk, D), v (B, Hkv, Lk, Dv); H a multiple of Hkv.
 * mask_mode: "" (none, or mask_arr where given), "causal" (aligned to the bottom right: query i attends to
 * the keys up to i + Lk - Lq, and where those are none its result is zero) or "array"; mask_arr: bool (true
 * attends) or additive, broadcast to (B, H, Lq, Lk). A score below -1e30 is that of a key which is not seen, and the
 * result of a query that sees none is zero. sinks: one extra logit a head, or { NULL }. */
MLXVK_API int mlxvk_fast_scaled_dot_product_attention(mlxvk_array *res, mlxvk_array queries, mlxvk_array keys,
                                                      mlxvk_array values, float scale, const char *mask_mode,
                                                      mlxvk_array mask_arr, mlxvk_array sinks, mlxvk_stream s);

/* Not in mlx-c: its gradients for the cotangent of its result `output`, both (B, H, Lq, Dv), in tiles: the scores are
 * not kept. logsumexp: float32 (B, H, Lq, 1), as the function after this has it, or { NULL }: computed. Features up to
 * 256. res: { dqueries, dkeys, dvalues }, each of its operand's dtype; mask and sinks have none, as in MLX.
 * Deterministic. */
MLXVK_API int mlxvk_fast_scaled_dot_product_attention_vjp(mlxvk_vector_array *res, mlxvk_array queries,
                                                          mlxvk_array keys, mlxvk_array values, float scale,
                                                          const char *mask_mode, mlxvk_array mask_arr,
                                                          mlxvk_array sinks, mlxvk_array output, mlxvk_array logsumexp,
                                                          mlxvk_array cotangent, mlxvk_stream s);
/* log(sum of exp(scale * q k^T + mask)) with the sink, for each query: float32 (B, H, Lq, 1), -inf where it sees no
 * key. MLX's primitive has it as a second result when a gradient is wanted. */
MLXVK_API int mlxvk_fast_scaled_dot_product_attention_logsumexp(mlxvk_array *res, mlxvk_array queries,
                                                                mlxvk_array keys, float scale, const char *mask_mode,
                                                                mlxvk_array mask_arr, mlxvk_array sinks,
                                                                mlxvk_stream s);
/* Not in mlx-c: MLX's fast::cross_entropy and its gradient. logits (..., n) of a floating dtype, targets (...): integer
 * classes, below 0 from the end (outside of the row: its first or last). logsumexp(logits) - logits[target] in float32,
 * computed in float32; -inf everywhere gives NaN. n is not 0. */
MLXVK_API int mlxvk_fast_cross_entropy(mlxvk_array *res, mlxvk_array logits, mlxvk_array targets, mlxvk_stream s);
/* For the cotangent (...) of the loss (...): cotangent * (softmax(logits) - 1 at the target), of logits' dtype; it may
 * take over the logits' memory. */
MLXVK_API int mlxvk_fast_cross_entropy_vjp(mlxvk_array *res, mlxvk_array logits, mlxvk_array targets, mlxvk_array loss,
                                           mlxvk_array cotangent, mlxvk_stream s);
/* Not in mlx-c: MLX's fast::gated_delta_update, the recurrence of a gated delta net. For each batch, each head of
 * values and token after token, from the initial state S (B, Hv, Dv, Dk) ({ NULL }: zeros):
 *     S = gate S;   S = S + beta (v - S k) k^T;   y = S q
 * queries, keys (B, T, Hk, Dk), Dk up to 512; values (B, T, Hv, Dv), Hv a multiple of Hk; gates (B, T, Hv), or
 * (B, T, Hv, Dk) for one of each column of S; beta (B, T, Hv). mask (B, T) or { NULL }: where it is false the token's
 * result is 0 and S stays. res: { y (B, T, Hv, Dv) of the dtype that queries, keys and values promote to (gates and
 * beta are rounded to it, all else is float32), S behind the last token in float32 }. */
MLXVK_API int mlxvk_fast_gated_delta_update(mlxvk_vector_array *res, mlxvk_array queries, mlxvk_array keys,
                                            mlxvk_array values, mlxvk_array gates, mlxvk_array beta,
                                            mlxvk_array initial_state, mlxvk_array mask, mlxvk_stream s);

/* Its gradients, without a mask, for the cotangents of y and of the last state ({ NULL }: zeros). res: { dqueries,
 * dkeys, dvalues, dgates, dbeta, dstate }, each of its operand's dtype (dstate float32 where there is no state).
 * Deterministic; keeps states of about every sqrt(T)th token. */
MLXVK_API int mlxvk_fast_gated_delta_update_vjp(mlxvk_vector_array *res, mlxvk_array queries, mlxvk_array keys,
                                                mlxvk_array values, mlxvk_array gates, mlxvk_array beta,
                                                mlxvk_array initial_state, mlxvk_array cotangent,
                                                mlxvk_array state_cotangent, mlxvk_stream s);

/* ==== >>random: MLX's threefry generator, bit for bit ============================================================= */

/* key: uint32[2]; { NULL } takes the device's next key (mlxvk_random_seed sets it; else seeded by the clock). */
MLXVK_API int mlxvk_random_key(mlxvk_array *res, uint64_t seed);
MLXVK_API int mlxvk_random_seed(uint64_t seed);
MLXVK_API int mlxvk_random_split(mlxvk_array *res_0, mlxvk_array *res_1, mlxvk_array key, mlxvk_stream s);
MLXVK_API int mlxvk_random_split_num(mlxvk_array *res, mlxvk_array key, int num, mlxvk_stream s);
MLXVK_API int mlxvk_random_bits(mlxvk_array *res, const int *shape, size_t shape_num, int width, mlxvk_array key,
                                mlxvk_stream s);                     /* width in bytes: 1, 2 or 4 */
MLXVK_API int mlxvk_random_uniform(mlxvk_array *res, mlxvk_array low, mlxvk_array high, const int *shape,
                                   size_t shape_num, mlxvk_dtype dtype, mlxvk_array key, mlxvk_stream s);
MLXVK_API int mlxvk_random_normal(mlxvk_array *res, const int *shape, size_t shape_num, mlxvk_dtype dtype, float loc,
                                  float scale, mlxvk_array key, mlxvk_stream s);
MLXVK_API int mlxvk_random_gumbel(mlxvk_array *res, const int *shape, size_t shape_num, mlxvk_dtype dtype,
                                  mlxvk_array key, mlxvk_stream s);
MLXVK_API int mlxvk_random_categorical(mlxvk_array *res, mlxvk_array logits, int axis, mlxvk_array key, mlxvk_stream s);
MLXVK_API int mlxvk_random_categorical_shape(mlxvk_array *res, mlxvk_array logits, int axis, const int *shape,
                                             size_t shape_num, mlxvk_array key, mlxvk_stream s);
MLXVK_API int mlxvk_random_categorical_num_samples(mlxvk_array *res, mlxvk_array logits, int axis, int num_samples,
                                                   mlxvk_array key, mlxvk_stream s);
MLXVK_API int mlxvk_random_bernoulli(mlxvk_array *res, mlxvk_array p, const int *shape, size_t shape_num,
                                     mlxvk_array key, mlxvk_stream s);
/* From low to below high. Made of float32 numbers, as in MLX 0.32.4: not every integer beyond 2^24 can come. */
MLXVK_API int mlxvk_random_randint(mlxvk_array *res, mlxvk_array low, mlxvk_array high, const int *shape,
                                   size_t shape_num, mlxvk_dtype dtype, mlxvk_array key, mlxvk_stream s);
/* loc and scale broadcast to shape; { NULL }: 0 and 1. */
MLXVK_API int mlxvk_random_normal_broadcast(mlxvk_array *res, const int *shape, size_t shape_num, mlxvk_dtype dtype,
                                            mlxvk_array loc, mlxvk_array scale, mlxvk_array key, mlxvk_stream s);
MLXVK_API int mlxvk_random_truncated_normal(mlxvk_array *res, mlxvk_array lower, mlxvk_array upper, const int *shape,
                                            size_t shape_num, mlxvk_dtype dtype, mlxvk_array key, mlxvk_stream s);
MLXVK_API int mlxvk_random_laplace(mlxvk_array *res, const int *shape, size_t shape_num, mlxvk_dtype dtype, float loc,
                                   float scale, mlxvk_array key, mlxvk_stream s);
/* Samples of shape (shape with the batch dimensions of mean and cov, n); mean (..., n), cov (..., n, n), float32. */
MLXVK_API int mlxvk_random_multivariate_normal(mlxvk_array *res, mlxvk_array mean, mlxvk_array cov, const int *shape,
                                               size_t shape_num, mlxvk_dtype dtype, mlxvk_array key, mlxvk_stream s);
/* x in another order along axis; arange: the numbers below x, uint32. */
MLXVK_API int mlxvk_random_permutation(mlxvk_array *res, mlxvk_array x, int axis, mlxvk_array key, mlxvk_stream s);
MLXVK_API int mlxvk_random_permutation_arange(mlxvk_array *res, int x, mlxvk_array key, mlxvk_stream s);

/* ==== >>linalg ==================================================================================================== */

/* axis: one axis (vectors) or two (matrices), NULL: all. ord of vectors: any; of matrices 1, -1, inf, -inf, 2, -2
 * (singular values). norm_matrix: "fro", "nuc". norm_l2: root of the sum of squares. Computed in float32. */
MLXVK_API int mlxvk_linalg_norm(mlxvk_array *res, mlxvk_array a, double ord, const int *axis, size_t axis_num,
                                bool keepdims, mlxvk_stream s);
MLXVK_API int mlxvk_linalg_norm_matrix(mlxvk_array *res, mlxvk_array a, const char *ord, const int *axis,
                                       size_t axis_num, bool keepdims, mlxvk_stream s);
MLXVK_API int mlxvk_linalg_norm_l2(mlxvk_array *res, mlxvk_array a, const int *axis, size_t axis_num, bool keepdims,
                                   mlxvk_stream s);
/* Of vectors of 2 or 3 elements along axis. */
MLXVK_API int mlxvk_linalg_cross(mlxvk_array *res, mlxvk_array a, mlxvk_array b, int axis, mlxvk_stream s);
/* Factorisations of float32 matrices (..., rows, columns), on the GPU, where MLX has them on the CPU. Matrices that
 * cannot be inverted or factorised give infinities and NaN, not errors. Triangles: only that triangle of a is read. */
MLXVK_API int mlxvk_linalg_tri_inv(mlxvk_array *res, mlxvk_array a, bool upper, mlxvk_stream s);
MLXVK_API int mlxvk_linalg_cholesky(mlxvk_array *res, mlxvk_array a, bool upper, mlxvk_stream s);
/* of a factor a */
MLXVK_API int mlxvk_linalg_cholesky_inv(mlxvk_array *res, mlxvk_array a, bool upper, mlxvk_stream s);
/* { P, L, U }: row i of the matrix is row P[i] of L U. lu_factor: L and U in one matrix, and the exchanges of rows. */
MLXVK_API int mlxvk_linalg_lu(mlxvk_vector_array *res, mlxvk_array a, mlxvk_stream s);
MLXVK_API int mlxvk_linalg_lu_factor(mlxvk_array *res_0, mlxvk_array *res_1, mlxvk_array a, mlxvk_stream s);
/* Q, R; reduced */
MLXVK_API int mlxvk_linalg_qr(mlxvk_array *res_0, mlxvk_array *res_1, mlxvk_array a, mlxvk_stream s);
MLXVK_API int mlxvk_linalg_inv(mlxvk_array *res, mlxvk_array a, mlxvk_stream s);
MLXVK_API int mlxvk_linalg_pinv(mlxvk_array *res, mlxvk_array a, mlxvk_stream s);
/* x of a x = b; b (..., rows, columns) or one vector. */
MLXVK_API int mlxvk_linalg_solve(mlxvk_array *res, mlxvk_array a, mlxvk_array b, mlxvk_stream s);
MLXVK_API int mlxvk_linalg_solve_triangular(mlxvk_array *res, mlxvk_array a, mlxvk_array b, bool upper, mlxvk_stream s);
/* Eigenvalues, ascending, and eigenvectors as columns, by Jacobi rotations; UPLO "L" or "U": the triangle that is
 * read. */
MLXVK_API int mlxvk_linalg_eigh(mlxvk_array *res_0, mlxvk_array *res_1, mlxvk_array a, const char *UPLO,
                                mlxvk_stream s);
MLXVK_API int mlxvk_linalg_eigvalsh(mlxvk_array *res, mlxvk_array a, const char *UPLO, mlxvk_stream s);
/* { U, S, V^T } with square U and V, S descending; { S } without compute_uv. By Jacobi rotations. */
MLXVK_API int mlxvk_linalg_svd(mlxvk_vector_array *res, mlxvk_array a, bool compute_uv, mlxvk_stream s);
/* Of matrices that need not be symmetric: always UNSUPPORTED. */
MLXVK_API int mlxvk_linalg_eig(mlxvk_array *res_0, mlxvk_array *res_1, mlxvk_array a, mlxvk_stream s);
MLXVK_API int mlxvk_linalg_eigvals(mlxvk_array *res, mlxvk_array a, mlxvk_stream s);

/* ==== >>encoder: kernels of the caller's, with the contract of Metal's CommandEncoder ============================= */

typedef struct mlxvk_kernel_desc {
    const char *name;                /* for errors and statistics */
    const uint32_t *spirv;           /* a compute module with entry point "main"; copied; UNSUPPORTED where it declares
                                        what the device lacks (storage of bytes and halves that it loads and stores is
                                        emulated); accesses beyond what is bound are Vulkan's robust ones where the
                                        device has VK_EXT_pipeline_robustness, else the driver's affair */
    size_t spirv_size;               /* bytes */
    uint32_t bindings;               /* storage buffers: set 0, bindings 0 .. bindings-1 */
    uint32_t push_size;              /* bytes of push constants, at most 128 */
    const uint32_t *constants;       /* specialization constants 0 .. constant_count-1 */
    uint32_t constant_count;
    uint32_t threads[3];             /* local size, for dispatch_threads and limit checks; 0 counts as 1 */
} mlxvk_kernel_desc;

MLXVK_API int mlxvk_kernel_new(mlxvk_kernel *res, const mlxvk_kernel_desc *desc, mlxvk_device device);
MLXVK_API int mlxvk_kernel_free(mlxvk_kernel kernel);                /* waits for what the device's streams do */

/* An array without contents, to be written by a kernel. */
MLXVK_API int mlxvk_array_empty(mlxvk_array *res, const int *shape, size_t shape_num, mlxvk_dtype dtype,
                                mlxvk_stream s);

/* The stream's encoder, with all operations before this call encoded. Use it until the next operation on the stream,
 * which forgets what was set up; it is not freed. Set the kernel first, then arrays and bytes, in any order, for each
 * dispatch anew: a dispatch, and a call that fails, forget them. What is bound may be freed. Barriers are inserted
 * where bound byte ranges overlap and one of them is written. Errors: ARGUMENT, and LIMIT for a grid, a range or bytes
 * over the device's limits. */
MLXVK_API int mlxvk_stream_encoder(mlxvk_encoder *res, mlxvk_stream stream);
MLXVK_API int mlxvk_set_kernel(mlxvk_encoder e, mlxvk_kernel kernel);
/* Binds the bytes that the array spans, rounded down to the device's alignment; *shift, where not NULL, receives the
 * elements between the binding's start and the array's first element. */
MLXVK_API int mlxvk_set_input_array(mlxvk_encoder e, mlxvk_array array, uint32_t binding, uint32_t *shift);
MLXVK_API int mlxvk_set_output_array(mlxvk_encoder e, mlxvk_array array, uint32_t binding, uint32_t *shift);
/* Declares a write to an array that is not bound as an output (for kernels that reach it some other way). */
MLXVK_API int mlxvk_register_output_array(mlxvk_encoder e, mlxvk_array array);
/* Binds a byte range of a buffer, for reading and writing; offset must be a multiple of
 * storage_buffer_alignment (mlxvk_device_info_get_size). What other streams have recorded with arrays over it must be
 * evaluated before. */
MLXVK_API int mlxvk_set_buffer(mlxvk_encoder e, mlxvk_buffer buffer, size_t offset, size_t size, uint32_t binding);
MLXVK_API int mlxvk_set_bytes(mlxvk_encoder e, const void *data, uint32_t size, uint32_t offset);   /* push constants */
MLXVK_API int mlxvk_dispatch_threads(mlxvk_encoder e, uint32_t x, uint32_t y, uint32_t z);          /* rounded up */
MLXVK_API int mlxvk_dispatch_threadgroups(mlxvk_encoder e, uint32_t x, uint32_t y, uint32_t z);
MLXVK_API int mlxvk_encoder_barrier(mlxvk_encoder e);
/* Between start and end the caller vouches that dispatches do not depend on each other: no barrier between them. */
MLXVK_API int mlxvk_start_concurrent(mlxvk_encoder e);
MLXVK_API int mlxvk_end_concurrent(mlxvk_encoder e);

/* A kernel of the caller's as an operation, in the shape of mlx-c's fast_metal_kernel: new, config, apply. The source
 * is SPIR-V (a compute module with entry point "main"; copied), so it needs no device yet: apply makes the kernel on
 * its stream's, once for each device and choice of constants. In the module
 *     set 0, binding i    is input i, and after the inputs output i, each a storage buffer;
 *     push constants      are, if declared, a uint for each binding: the element of the buffer that is the array's
 *                         first (bindings start at the device's alignment, so it may be other than 0);
 *     local_size          is the thread group where its sides are specialization constants (local_size_x_id = n); a
 *                         fixed one must be what config says;
 *     constants           are set by template arguments, by their name in the module (glslang writes it unless told
 *                         -g0) or by their number in decimal ("3"); a dtype is the number of its mlxvk_dtype. Of 32
 *                         bits or bool.
 * ensure_row_contiguous: inputs that are not row-contiguous are copied; else views come as they are, and strides are
 * the kernel's affair. new returns { NULL } without memory, for what is no module, without outputs, and for more than
 * 31 arrays in all (as many as a kernel of Metal's takes); apply fails where the device binds fewer. */
typedef struct mlxvk_fast_spirv_kernel { void *ctx; } mlxvk_fast_spirv_kernel;
typedef struct mlxvk_fast_spirv_kernel_config { void *ctx; } mlxvk_fast_spirv_kernel_config;
MLXVK_API mlxvk_fast_spirv_kernel mlxvk_fast_spirv_kernel_new(const char *name, mlxvk_vector_string input_names,
                                                              mlxvk_vector_string output_names, const uint32_t *spirv,
                                                              size_t spirv_size, bool ensure_row_contiguous);
MLXVK_API int mlxvk_fast_spirv_kernel_free(mlxvk_fast_spirv_kernel cls);     /* waits for the devices that it ran on */
/* a grid and a thread group of 1 x 1 x 1 */
MLXVK_API mlxvk_fast_spirv_kernel_config mlxvk_fast_spirv_kernel_config_new(void);
MLXVK_API int mlxvk_fast_spirv_kernel_config_free(mlxvk_fast_spirv_kernel_config cls);
MLXVK_API int mlxvk_fast_spirv_kernel_config_add_output_arg(mlxvk_fast_spirv_kernel_config cls, const int *shape,
                                                            size_t size, mlxvk_dtype dtype);
/* Threads in all, rounded up to whole thread groups: the kernel checks its bounds. */
MLXVK_API int mlxvk_fast_spirv_kernel_config_set_grid(mlxvk_fast_spirv_kernel_config cls, int grid1, int grid2,
                                                      int grid3);
MLXVK_API int mlxvk_fast_spirv_kernel_config_set_thread_group(mlxvk_fast_spirv_kernel_config cls, int thread1,
                                                              int thread2, int thread3);
/* The kernel writes this input, too, counted from 0: in place, and all who have the array, or a view of its memory, see
 * that (unless ensure_row_contiguous had it copied). ARGUMENT, from apply, where there are not so many. */
MLXVK_API int mlxvk_fast_spirv_kernel_config_add_written_input(mlxvk_fast_spirv_kernel_config cls, int input);
/* outputs begin with it */
MLXVK_API int mlxvk_fast_spirv_kernel_config_set_init_value(mlxvk_fast_spirv_kernel_config cls, float value);
MLXVK_API int mlxvk_fast_spirv_kernel_config_add_template_arg_dtype(mlxvk_fast_spirv_kernel_config cls,
                                                                    const char *name, mlxvk_dtype dtype);
MLXVK_API int mlxvk_fast_spirv_kernel_config_add_template_arg_int(mlxvk_fast_spirv_kernel_config cls, const char *name,
                                                                  int value);
MLXVK_API int mlxvk_fast_spirv_kernel_config_add_template_arg_bool(mlxvk_fast_spirv_kernel_config cls, const char *name,
                                                                   bool value);
/* *outputs receives the results, row-contiguous. The dispatch is encoded at once, behind all that the stream has
 * recorded. Of one kernel, from one thread at a time. Errors: ARGUMENT for another number of inputs or outputs than
 * names, unknown constants, a thread group that the module does not have; LIMIT and UNSUPPORTED as in
 * mlxvk_kernel_new. */
MLXVK_API int mlxvk_fast_spirv_kernel_apply(mlxvk_vector_array *outputs, mlxvk_fast_spirv_kernel cls,
                                            mlxvk_vector_array inputs, mlxvk_fast_spirv_kernel_config config,
                                            mlxvk_stream stream);

/* ==== >>observability ============================================================================================= */

/* Prints a line for each gate: name, value, default, what it switches. */
MLXVK_API int mlxvk_gates(mlxvk_device device, void (*print)(const char *line, void *user), void *user);

typedef struct mlxvk_stats {
    uint64_t operations;             /* nodes recorded on tapes */
    uint64_t dispatches, barriers, submissions, pipelines, descriptor_sets;
    uint64_t fused, dropped;         /* nodes that went into fused kernels; nodes nobody wanted */
    uint64_t lowering_ns, submit_ns; /* CPU time spent lowering and recording; in queue submissions */
    uint64_t replayed;               /* nodes that were encoded from plans kept, of windows that came again */
    uint64_t recorded;               /* dispatches of these that were recorded once and executed again as they are, */
    uint64_t linked;                 /* those of them that wait for the one in front themselves, without a barrier */
} mlxvk_stats;

MLXVK_API int mlxvk_get_stats(mlxvk_stats *res, mlxvk_device device);
MLXVK_API int mlxvk_reset_stats(mlxvk_device device);                /* with profiling on it waits for what runs */
/* One line per kernel that ran: name, dispatches, and with profiling on (gate MLX_VK_PROFILE=1) GPU time. */
MLXVK_API int mlxvk_kernel_stats(mlxvk_device device,
                                 void (*each)(const char *kernel, uint64_t count, uint64_t nanoseconds, void *user),
                                 void *user);

typedef struct mlxvk_dispatch {
    const char *kernel;              /* as mlxvk_kernel_stats names it; valid as long as the library */
    /* nanoseconds of the device's clock; where no barrier is between two, one's time may count as the other's */
    uint64_t begin, end;
    uint64_t submission;             /* the value of its stream's timeline: the same for all of one command buffer */
    uint64_t read, written;          /* bytes of the arrays that it reads, and that it may write: a gather reads less */
    double multiplications;          /* by the estimate that submissions are cut by; 0 where memory takes the time */
    uint32_t groups[3];              /* workgroups */
} mlxvk_dispatch;

/* Each dispatch since the last call or mlxvk_reset_stats, once, in the order in which they began: kept with the gate
 * MLX_VK_PROFILE=2, else there is none. Waits for what runs. A command buffer has times for its first 512 dispatches;
 * those without are not told. The function may call the library. Errors: ARGUMENT; DEVICE_LOST, after what was known
 * is told. */
MLXVK_API int mlxvk_dispatch_trace(mlxvk_device device, void (*each)(const mlxvk_dispatch *dispatch, void *user),
                                   void *user);

/* What ran how often, or was refused (reason; else NULL), by signature: rows, groups per column, shapes, strides; sizes
 * that change from step to step by powers of two. Counted where a gate asks for it: MLX_VK_STATS=1 all of it,
 * MLX_VK_QMM_STATS, MLX_VK_SDPA_STATS and MLX_VK_ALGO_STATS their families, which are also printed to stderr when the
 * device goes (the default device: at exit). Families: "quantized_matmul", "attention", "attention parts", "rope",
 * "argreduce", "binary", "bitwise", "dequantize", "gather", "fused", "algorithms". In order of family and count;
 * strings are valid during the call. */
typedef struct mlxvk_stat { const char *family, *kernel, *signature, *reason; uint64_t count; } mlxvk_stat;

MLXVK_API int mlxvk_stats_report(mlxvk_device device, void (*each)(const mlxvk_stat *stat, void *user), void *user);
MLXVK_API int mlxvk_version(mlxvk_string *str);                      /* "0.1.0" */
MLXVK_API const char *mlxvk_version_text(void);

#ifdef __cplusplus
}
#endif
#endif /* MLXVK_H */

#if defined(MLXVK_IMPLEMENTATION) && !defined(MLXVK_C)
#include "mlxvk.c"
#endif
