/* A program that uses each part of the library, with one fault a run: a call of Vulkan's that fails with a code it may
 * return (by the layer beside it), a device that is lost at the n-th submission or wait, host memory that is refused.
 * Each run is a process: it must not crash, hang, leak or compute wrongly; a call that fails says why; a lost device is
 * an error from then on, and another can be made; after any other fault the same program runs.
 *
 *     fuzz_faults [--sample k/n] [--only FUNCTION,...] [--variant NAME] [--jobs n] [--qwen3 PROGRAM MODEL] LAYER_FOLDER
 *
 * --sample: each n-th run from the k-th on. --only: faults of these functions ("host memory" is one); --variant: in this
 * run of the program alone (see `variants`). Ends with "N passed, N failed". */
#define _POSIX_C_SOURCE 200809L
#include "layer/faults.h"
#include "layer/renderer.h"
#include "mlxvk.h"
#include "examples/saxpy_spv.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RESULT_BYTES = 1 << 14, MOST_JOBS = 16, SECONDS = 60, HOST = FAULT_FUNCTIONS, QWEN3_TOKENS = 6 };

/* What parent and child share: the layer's part first. */
struct shared {
    struct faults faults;
    uint32_t allocations;                            /* of host memory, in a run without a fault */
    uint32_t used;
    uint8_t want[RESULT_BYTES];
    char why[640];
};

/* ---- the program ---- */

struct run {
    mlxvk_device device;
    mlxvk_stream s;
    int code;                                        /* the first error; nothing is done behind it */
    bool lent;                                       /* the device is the renderer's */
    struct renderer renderer;
    uint32_t used;
    uint8_t got[RESULT_BYTES];
};
static const mlxvk_array NONE = { NULL };

/* lent: on a renderer's device, and with its parts of the program. */
static const struct variant { const char *name, *gates; bool lent; } variants[] = {
    { "as it is", "", false },
    { "staged", "MLX_VK_FORCE_STAGING=1 MLX_VK_PROFILE=2 MLX_VK_ENABLE_PUSH_DESCRIPTORS=0 MLX_VK_MAX_OPS_PER_BUFFER=3", false },
    { "lent", "MLX_VK_REPLAY_SEGMENT=2", true },
    { "qwen3", "", false },
};
enum { VARIANTS = sizeof variants / sizeof *variants };

#define DO(call) do { if (!r->code) r->code = (call); } while (0)

static void done(struct run *r, mlxvk_array a)
{
    size_t n = mlxvk_array_nbytes(a);
    if (!r->code && r->used + n <= RESULT_BYTES) DO(mlxvk_array_read(a, r->got + r->used, n, r->s));
    r->used += (uint32_t)n;
    mlxvk_array_free(a);
}

static mlxvk_array numbers(struct run *r, int rows, int columns, mlxvk_dtype dtype)
{
    float x[1024];
    mlxvk_array a = NONE;
    for (int i = 0; i < rows * columns; i++) x[i] = (float)((i * 37 + 11) % 29) / 8 - 1.5f;
    DO(mlxvk_array_new_data_device(&a, x, (int[]){ rows, columns }, 2, MLXVK_FLOAT32, r->device));
    if (dtype != MLXVK_FLOAT32) DO(mlxvk_astype(&a, a, dtype, r->s));
    return a;
}

static void elementwise(struct run *r)
{
    mlxvk_array x = numbers(r, 8, 24, MLXVK_FLOAT32), y = numbers(r, 1, 24, MLXVK_FLOAT32), z = NONE;
    DO(mlxvk_add(&z, x, y, r->s));
    DO(mlxvk_exp(&z, z, r->s));
    DO(mlxvk_multiply(&z, z, x, r->s));
    DO(mlxvk_transpose(&z, z, r->s));
    DO(mlxvk_softmax_axis(&z, z, 1, true, r->s));
    DO(mlxvk_cumsum(&x, z, 0, false, true, r->s));
    DO(mlxvk_sort_axis(&z, x, 0, r->s));
    DO(mlxvk_argmax(&y, x, false, r->s));
    DO(mlxvk_astype(&x, x, MLXVK_FLOAT16, r->s));
    done(r, x);
    done(r, y);
    done(r, z);
}

static void matrices(struct run *r)
{
    mlxvk_array x = numbers(r, 16, 16, MLXVK_FLOAT32), y = NONE, image = NONE, kernel = NONE, f = NONE;
    DO(mlxvk_matmul(&y, x, x, r->s));
    DO(mlxvk_reshape(&image, x, (int[]){ 1, 8, 8, 4 }, 4, r->s));
    DO(mlxvk_slice(&kernel, image, (int[]){ 0, 0, 0, 0 }, 4, (int[]){ 1, 3, 3, 4 }, 4, (int[]){ 1, 1, 1, 1 }, 4, r->s));
    DO(mlxvk_conv2d(&image, image, kernel, 1, 1, 1, 1, 1, 1, 1, r->s));
    DO(mlxvk_fft_rfft(&f, y, 16, 1, MLXVK_FFT_NORM_BACKWARD, r->s));
    DO(mlxvk_linalg_inv(&x, x, r->s));
    mlxvk_array_free(kernel);
    done(r, y);
    done(r, image);
    done(r, f);
    mlxvk_array_free(x);
}

static void quantized(struct run *r)
{
    const mlxvk_optional_int group = { 32, true }, bits = { 4, true };
    mlxvk_array w = numbers(r, 8, 64, MLXVK_FLOAT32), x = numbers(r, 2, 64, MLXVK_FLOAT32), part[3] = { { NULL } };
    mlxvk_vector_array parts = { NULL };
    DO(mlxvk_quantize(&parts, w, group, bits, "affine", NONE, r->s));
    for (size_t i = 0; i < 3; i++) DO(mlxvk_vector_array_get(&part[i], parts, i));
    DO(mlxvk_quantized_matmul(&x, x, part[0], part[1], part[2], true, group, bits, "affine", r->s));
    for (int i = 0; i < 3; i++) mlxvk_array_free(part[i]);
    mlxvk_vector_array_free(parts);
    mlxvk_array_free(w);
    done(r, x);
}

/* The same step again and again, which is recorded once and executed. */
static void decoding(struct run *r)
{
    const int one[] = { 1, 1, 1, 1 };
    mlxvk_array cache = NONE, k = NONE, x = numbers(r, 2, 64, MLXVK_FLOAT32), y = NONE, w = NONE;
    DO(mlxvk_zeros(&cache, (int[]){ 1, 2, 16, 64 }, 4, MLXVK_FLOAT32, r->s));
    DO(mlxvk_ones(&w, (int[]){ 64 }, 1, MLXVK_FLOAT32, r->s));
    DO(mlxvk_reshape(&x, x, (int[]){ 1, 2, 1, 64 }, 4, r->s));
    for (int at = 0; at < 6; at++) {
        DO(mlxvk_fast_rms_norm(&k, x, w, 1e-6f, r->s));
        DO(mlxvk_fast_rope(&k, k, 64, false, (mlxvk_optional_float){ 10000, true }, 1, at, NONE, r->s));
        DO(mlxvk_slice_update(&cache, cache, k, (int[]){ 0, 0, at, 0 }, 4, (int[]){ 1, 2, at + 1, 64 }, 4, one, 4, r->s));
        DO(mlxvk_fast_scaled_dot_product_attention(&y, k, cache, cache, 0.125f, "", NONE, NONE, r->s));
        DO(mlxvk_array_eval(y));
    }
    mlxvk_array_free(cache);
    mlxvk_array_free(k);
    mlxvk_array_free(x);
    mlxvk_array_free(w);
    done(r, y);
}

static void streams(struct run *r)
{
    mlxvk_stream other = { NULL };
    mlxvk_event event = { NULL };
    mlxvk_array x = numbers(r, 4, 8, MLXVK_FLOAT32), y = NONE;
    mlxvk_vector_array list = { NULL };
    if (!r->code && !(other = mlxvk_stream_new_device(r->device)).ctx) {
        mlxvk_error error = { 0 };
        mlxvk_device_error(r->device, &error);
        r->code = error.code ? error.code : -1;
    }
    DO(mlxvk_event_new(&event, r->device));
    DO(mlxvk_square(&y, x, other));
    DO(mlxvk_event_signal(event, 1, other));
    DO(mlxvk_finalize(other));
    DO(mlxvk_event_wait(event, 1, r->s));
    DO(mlxvk_add(&x, x, y, r->s));
    if (!r->code) list = mlxvk_vector_array_new_value(x);
    DO(list.ctx ? mlxvk_async_eval(list) : MLXVK_ERROR_HOST_MEMORY);
    DO(mlxvk_event_wait_host(event, 1, UINT64_MAX));
    DO(mlxvk_event_signal_host(event, 2));
    DO(mlxvk_synchronize(other));
    mlxvk_vector_array_free(list);
    mlxvk_event_free(event);
    mlxvk_stream_free(other);
    mlxvk_array_free(y);
    done(r, x);
}

static void own_kernel(struct run *r)
{
    struct { uint32_t n, x_shift, y_shift; float a; } push = { .n = 64, .a = 2 };
    const mlxvk_kernel_desc desc = { .name = "saxpy", .spirv = saxpy_spv, .spirv_size = sizeof saxpy_spv, .bindings = 2,
                                     .push_size = sizeof push, .threads = { 64 } };
    mlxvk_kernel saxpy = { NULL };
    mlxvk_encoder e = { NULL };
    mlxvk_array x = NONE, y = NONE;
    DO(mlxvk_kernel_new(&saxpy, &desc, r->device));
    DO(mlxvk_arange(&x, 0, 64, 1, MLXVK_FLOAT32, r->s));
    DO(mlxvk_ones(&y, (int[]){ 64 }, 1, MLXVK_FLOAT32, r->s));
    DO(mlxvk_stream_encoder(&e, r->s));
    DO(mlxvk_set_kernel(e, saxpy));
    DO(mlxvk_set_input_array(e, x, 0, &push.x_shift));
    DO(mlxvk_set_output_array(e, y, 1, &push.y_shift));
    DO(mlxvk_set_bytes(e, &push, sizeof push, 0));
    DO(mlxvk_dispatch_threads(e, 64, 1, 1));
    mlxvk_array_free(x);
    done(r, y);
    mlxvk_kernel_free(saxpy);
}

static void buffers(struct run *r)
{
    mlxvk_buffer b = { NULL };
    mlxvk_array x = NONE, y = NONE;
    size_t size = 0;
    char *cache;
    DO(mlxvk_buffer_new(&b, 4096, r->device));
    DO(mlxvk_array_new_buffer(&x, b, (int[]){ 16 }, NULL, 1, MLXVK_FLOAT32, 0));
    DO(mlxvk_ones(&y, (int[]){ 16 }, 1, MLXVK_FLOAT32, r->s));
    DO(mlxvk_slice_update(&x, x, y, (int[]){ 0 }, 1, (int[]){ 16 }, 1, (int[]){ 1 }, 1, r->s));
    DO(mlxvk_device_clear_cache(r->device));
    DO(mlxvk_pipeline_cache_data(r->device, NULL, &size));
    if (!r->code && (cache = malloc(size))) {
        DO(mlxvk_pipeline_cache_data(r->device, cache, &size));
        free(cache);
    }
    mlxvk_array_free(y);
    done(r, x);
    mlxvk_buffer_free(b);
}

static void indices(struct run *r)
{
    const uint32_t where[] = { 3, 0, 2 }, seed[] = { 1, 2 };
    mlxvk_array x = numbers(r, 4, 8, MLXVK_FLOAT32), at = NONE, key = NONE, y = NONE, part = NONE;
    DO(mlxvk_array_new_data_device(&at, where, (int[]){ 3 }, 1, MLXVK_UINT32, r->device));
    DO(mlxvk_array_new_data_device(&key, seed, (int[]){ 2 }, 1, MLXVK_UINT32, r->device));
    DO(mlxvk_take_axis(&part, x, at, 0, r->s));
    DO(mlxvk_random_normal(&y, (int[]){ 3, 8 }, 2, MLXVK_FLOAT32, 0, 1, key, r->s));
    DO(mlxvk_add(&part, part, y, r->s));
    DO(mlxvk_reshape(&part, part, (int[]){ 3, 1, 8 }, 3, r->s));
    DO(mlxvk_scatter_add_single(&x, x, at, part, 0, r->s));
    mlxvk_array_free(at);
    mlxvk_array_free(key);
    mlxvk_array_free(part);
    done(r, y);
    done(r, x);
}

static void files(struct run *r)
{
    char path[80];
    mlxvk_array x = numbers(r, 4, 8, MLXVK_FLOAT16), y = NONE;
    snprintf(path, sizeof path, "%s.npy", getenv("FAULTS_FILE"));
    DO(mlxvk_save(path, x));
    DO(mlxvk_load(&y, path, r->s));
    unlink(path);
    mlxvk_array_free(x);
    done(r, y);
}

/* Work that goes in slices: what takes a nanosecond at most, which is one dispatch, then the rest. */
static void slices(struct run *r)
{
    size_t left = 1;
    mlxvk_array x = numbers(r, 8, 8, MLXVK_FLOAT32), y = NONE;
    DO(mlxvk_synchronize(r->s));
    DO(mlxvk_stream_hold(r->s, true));
    for (int i = 0; i < 4; i++) {
        DO(mlxvk_matmul(&y, x, x, r->s));
        DO(mlxvk_softmax_axis(&x, y, 1, true, r->s));
    }
    DO(mlxvk_stream_advance(r->s, 1, &left));
    if (!r->code && !left) r->code = -1;
    while (!r->code && left) DO(mlxvk_stream_advance(r->s, 1000000000000, &left));
    mlxvk_stream_hold(r->s, false);
    mlxvk_array_free(y);
    done(r, x);
}

/* Ones into memory of that buffer. */
static void ones_into(struct run *r, mlxvk_buffer b)
{
    mlxvk_array x = NONE, y = NONE;
    DO(mlxvk_array_new_buffer(&x, b, (int[]){ 16 }, NULL, 1, MLXVK_FLOAT32, 0));
    DO(mlxvk_ones(&y, (int[]){ 16 }, 1, MLXVK_FLOAT32, r->s));
    DO(mlxvk_slice_update(&x, x, y, (int[]){ 0 }, 1, (int[]){ 16 }, 1, (int[]){ 1 }, 1, r->s));
    mlxvk_array_free(y);
    done(r, x);
}

/* Given out and taken in by a descriptor. Where the driver has none of it, there is nothing to do. */
static void descriptors(struct run *r, mlxvk_memory_kind kind)
{
    mlxvk_buffer given = { NULL }, taken = { NULL };
    uintptr_t handle = 0;
    if (!r->code) r->code = mlxvk_buffer_new_shared(&given, kind, 4096, r->device);
    if (r->code == MLXVK_ERROR_UNSUPPORTED) { r->code = 0; return; }
    DO(mlxvk_buffer_export(&handle, kind, given));
    bool had = !r->code;
    DO(mlxvk_buffer_import(&taken, kind, handle, 4096, r->device));
    if (had && !taken.ctx) close((int)handle);
    if (!r->code) ones_into(r, taken);
    mlxvk_buffer_free(given);
    mlxvk_buffer_free(taken);
}

static void opaque_memory(struct run *r) { descriptors(r, MLXVK_MEMORY_FD); }
static void dma_buf(struct run *r) { descriptors(r, MLXVK_MEMORY_DMA_BUF); }

static void hosts_memory(struct run *r)
{
    mlxvk_buffer hosts = { NULL };
    size_t align = 0;
    char *pages = NULL;
    DO(mlxvk_device_info_get_size(&align, r->device, "memory_import_alignment"));
    if (!r->code && align && (pages = aligned_alloc(align, align))) {
        DO(mlxvk_buffer_import(&hosts, MLXVK_MEMORY_HOST, (uintptr_t)pages, align, r->device));
        if (!r->code) ones_into(r, hosts);
    }
    mlxvk_synchronize(r->s);                                        /* nothing uses the pages any more */
    mlxvk_buffer_free(hosts);
    free(pages);
}

/* ---- beside a renderer ---- */

/* What was computed goes into the renderer's command buffer, which it submits; a recording that fails it forgets. by: the
 * event that says when that is done; { NULL }: the program does. */
static void record(struct run *r, mlxvk_event by, uint64_t value)
{
    mlxvk_semaphore_value waits[MOST_WAITS];
    mlxvk_recording m = { .waits = waits, .wait_room = MOST_WAITS, .done = by, .done_value = value };
    void *commands = r->code ? NULL : renderer_begin();
    if (!commands) return;
    DO(mlxvk_stream_record(r->s, commands, &m));
    if (r->code) renderer_discard(value);
    else if (!renderer_submit(&m, value) && !(r->code = mlxvk_device_status(r->device))) r->code = -1;
    if (m.ticket) {                                  /* also where it failed: the device waits for it else */
        int code = mlxvk_stream_recorded(r->s, m.ticket);
        DO(code);
    }
}

static mlxvk_array next_values(struct run *r, mlxvk_array x)
{
    mlxvk_array y = NONE;
    DO(mlxvk_softmax_axis(&y, x, 1, true, r->s));
    DO(mlxvk_matmul(&y, x, y, r->s));
    DO(mlxvk_cumsum(&y, y, 0, false, true, r->s));
    return y;
}

/* The same frame a few times, so that its plan is kept; by tickets and by an event of the renderer's. The timeline goes on
 * from run to run. */
static void recordings(struct run *r)
{
    static uint64_t value;
    mlxvk_event frame = { NULL };
    mlxvk_array x = numbers(r, 16, 16, MLXVK_FLOAT32);
    DO(mlxvk_event_adopt(&frame, r->renderer.timeline, r->device));
    DO(mlxvk_stream_hold(r->s, true));
    for (int i = 0; i < 8; i++) {
        bool by_event = i % 4 == 3;
        mlxvk_array y = next_values(r, x);
        record(r, by_event ? frame : (mlxvk_event){ NULL }, by_event ? ++value : 0);
        if (i % 2) done(r, y);
        else mlxvk_array_free(y);
    }
    mlxvk_stream_hold(r->s, false);
    mlxvk_event_free(frame);
    mlxvk_array_free(x);
}

/* The renderer's image written, read, and changed in a frame of its own: read there, subtracted from 1, written. */
static void images(struct run *r)
{
    mlxvk_image image = { .vk_image = r->renderer.image, .format = 37, .width = IMAGE_SIDE, .height = IMAGE_SIDE,
                          .final_layout = 1 };       /* VK_FORMAT_R8G8B8A8_UNORM, VK_IMAGE_LAYOUT_GENERAL */
    mlxvk_array x = numbers(r, 16, 16, MLXVK_FLOAT32), one = NONE, y = NONE;
    DO(mlxvk_reshape(&x, x, (int[]){ IMAGE_SIDE, IMAGE_SIDE, 4 }, 3, r->s));
    DO(mlxvk_ones(&one, (int[]){ 1 }, 1, MLXVK_FLOAT32, r->s));
    DO(mlxvk_image_write(&image, x, r->s));
    image.layout = 1;
    for (int frame = 0; frame < 3; frame++) {
        DO(mlxvk_image_read(&y, &image, MLXVK_FLOAT32, r->s));
        DO(mlxvk_subtract(&y, one, y, r->s));
        DO(mlxvk_image_write(&image, y, r->s));
        record(r, (mlxvk_event){ NULL }, 0);
        DO(mlxvk_image_read(&y, &image, MLXVK_UINT8, r->s));
        DO(mlxvk_synchronize(r->s));
    }
    mlxvk_array_free(x);
    mlxvk_array_free(one);
    done(r, y);
}

static void each_time(const mlxvk_dispatch *d, void *user) { (void)d, (void)user; }

static int work(struct run *r)
{
    void (*const own[])(struct run *) = { elementwise, matrices, quantized, decoding, streams, own_kernel, buffers,
        indices, files, slices, opaque_memory, dma_buf, hosts_memory, NULL };
    void (*const lent[])(struct run *) = { recordings, images, elementwise, NULL };
    r->used = 0;
    r->code = 0;
    memset(r->got, 0, sizeof r->got);
    for (void (*const *part)(struct run *) = r->lent ? lent : own; *part && !r->code; part++) (*part)(r);
    DO(mlxvk_synchronize(r->s));
    DO(mlxvk_dispatch_trace(r->device, each_time, NULL));
    DO(mlxvk_reset_stats(r->device));
    return r->code;
}

/* ---- a run, in a process of its own ---- */

static struct shared *shared;
static struct { long live; uint32_t calls, fail_at; } host;

static void *allocate(size_t size, void *user)
{
    (void)user;
    if (++host.calls == host.fail_at) { shared->faults.fired++; return NULL; }
    void *p = malloc(size ? size : 1);
    host.live += p != NULL;
    return p;
}
static void release(void *p, void *user) { (void)user; host.live -= p != NULL; free(p); }

static int wrong(const char *why, int code, const char *text)
{
    snprintf(shared->why, sizeof shared->why, "%s; code %d %s", why, code, text);
    return 1;
}

/* What a call may return after the fault. A submission that is refused loses what was recorded. */
static bool expected(int code)
{
    const struct faults *f = &shared->faults;
    if (f->function == HOST) return code == MLXVK_ERROR_HOST_MEMORY;
    if (code == MLXVK_ERROR_DEVICE_LOST) return f->code == -4 || f->function == FAULT_vkQueueSubmit ||
                                                f->function == FAULT_vkEndCommandBuffer ||
                                                f->function == FAULT_vkGetDeviceFaultInfoEXT;
    if (f->function == FAULT_vkCreateInstance || f->function == FAULT_vkEnumeratePhysicalDevices ||
        f->function == FAULT_vkEnumerateDeviceExtensionProperties || f->function == FAULT_vkCreateDevice)
        return code == MLXVK_ERROR_VULKAN || code == MLXVK_ERROR_NO_DEVICE || code == MLXVK_ERROR_HOST_MEMORY ||
               code == MLXVK_ERROR_MEMORY || code == MLXVK_ERROR_NO_LOADER;
    if (f->code == -1000072003) return code == MLXVK_ERROR_ARGUMENT;   /* the driver knows no such memory */
    if (f->code == -1) return code == MLXVK_ERROR_HOST_MEMORY;
    if (f->code == -2) return code == MLXVK_ERROR_MEMORY;
    return code == MLXVK_ERROR_VULKAN || code == MLXVK_ERROR_MEMORY;
}

static int check(struct run *r)
{
    mlxvk_error error = { 0 };
    bool lost = mlxvk_device_status(r->device) == MLXVK_ERROR_DEVICE_LOST;
    mlxvk_stream_error(r->s, &error);
    if (!r->code) {
        if (r->used != shared->used || memcmp(r->got, shared->want, r->used)) return wrong("wrong results", 0, "");
        return lost ? wrong("lost, but no call said so", 0, "") : 0;
    }
    if (r->code == MLXVK_ERROR_NOT_READY) r->code = mlxvk_synchronize(r->s);    /* what it was computed by has failed */
    if (!expected(r->code)) return wrong("an unexpected error", r->code, error.text);
    if (lost != (r->code == MLXVK_ERROR_DEVICE_LOST)) return wrong("lost or not lost?", r->code, error.text);
    if (lost) return work(r) == MLXVK_ERROR_DEVICE_LOST ? 0 : wrong("not lost for good", r->code, "");
    mlxvk_synchronize(r->s);                                        /* tells again what failed when it was lowered */
    if (work(r)) {
        mlxvk_stream_error(r->s, &error);
        return wrong("an error later, too", r->code, error.text);
    }
    return r->used != shared->used || memcmp(r->got, shared->want, r->used) ? wrong("wrong results later", 0, "") : 0;
}

/* A device, the program, and nothing left of it. first: its results are what those of others must be. */
static int one_run(const struct variant *v, bool first)
{
    static struct run r;
    mlxvk_error error = { 0 };
    const mlxvk_device_desc desc = { .gates = v->gates, .allocator = { allocate, release, NULL }, .error = &error,
                                     .adopt = v->lent ? &r.renderer.adopt : NULL };
    r.device.ctx = NULL;
    r.lent = v->lent;
    if (r.lent && !renderer_open(&r.renderer, &shared->faults)) return wrong("no renderer", 0, "");
    int code = mlxvk_device_create(&r.device, &desc), bad = 0;
    if (code) {
        if (r.lent) renderer_close();
        return expected(code) && !first ? 0 : wrong("no device", code, error.text);
    }
    r.s = mlxvk_stream_new_device(r.device);
    if (!r.s.ctx) {
        mlxvk_device_error(r.device, &error);
        bad = expected(error.code) && !first ? 0 : wrong("no stream", error.code, error.text);
    } else {
        work(&r);
        if (first && r.code) bad = wrong("fails without a fault", r.code, "");
        if (first) { memcpy(shared->want, r.got, r.used); shared->used = r.used; shared->allocations = host.calls; }
        if (!first) bad = check(&r);
    }
    mlxvk_stream_free(r.s);
    mlxvk_device_free(r.device);
    if (r.lent) renderer_close();
    if (!bad && host.live) bad = wrong("host memory is left", (int)host.live, "");
    return bad;
}

static int child(const struct variant *v, bool first)
{
    const struct faults *f = &shared->faults;
    if (f->function == HOST) host.fail_at = f->call;
    int bad = one_run(v, first);
    if (!bad && f->lost) bad = one_run(v, false);                    /* a new device after a lost one */
    return bad;
}

/* ---- planning ---- */

static const char *const names[] = {
#define X(name, ...) #name,
    FAULTS(X)
#undef X
    "host memory"
};
static const int codes[][MOST_CODES + 1] = {
#define X(name, ...) { __VA_ARGS__ },
    FAULTS(X)
#undef X
    { -1 }
};

static struct { const char *only, *variant, *qwen3, *model; int jobs, sample, of; unsigned tried, failed, runs, fired; } o =
    { .jobs = 2, .sample = 0, .of = 1 };
static struct job { pid_t pid; struct shared *shared; char path[64]; uint32_t function, call; int code, variant; } jobs[MOST_JOBS];

/* Of what qwen3 writes. */
static const char *text_path(const struct job *j, char path[80])
{
    snprintf(path, 80, "%s.out", j->path);
    return path;
}

/* Is it what qwen3 wrote without a fault, which is kept? */
static bool same_text(const struct job *j)
{
    static char first[4096], now[4096];
    char path[80];
    FILE *file = fopen(text_path(j, path), "rb");
    size_t n = file ? fread(now, 1, sizeof now - 1, file) : 0;
    if (file) fclose(file);
    now[n] = 0;
    if (strstr(now, "\nPrompt: ")) *strstr(now, "\nPrompt: ") = 0;    /* times follow */
    if (!*first) strcpy(first, now);
    return n && !strcmp(first, now);
}

static void start(struct job *j, bool first)
{
    struct faults *f = &j->shared->faults;
    memset(f, 0, sizeof *f);
    *f = (struct faults){ .function = j->function, .call = j->call, .code = j->code };
    j->shared->why[0] = 0;
    fflush(NULL);
    j->pid = fork();
    if (j->pid) return;
    shared = j->shared;
    setenv("FAULTS_FILE", j->path, 1);
    alarm(SECONDS);
    if (strcmp(variants[j->variant].name, "qwen3")) exit(child(&variants[j->variant], first));
    char count[8];
    snprintf(count, sizeof count, "%d", QWEN3_TOKENS);
    char text[80];
    if (!freopen(text_path(j, text), "w", stdout) || !freopen("/dev/null", "w", stderr)) exit(9);
    execl(o.qwen3, o.qwen3, "--model", o.model, "--prompt", "The ls command lists", "--max-tokens", count, (char *)NULL);
    exit(9);
}

/* Waits for a job, and judges it. */
static bool finish(struct job *j, int status)
{
    const struct faults *f = &j->shared->faults;
    const char *why = j->shared->why;
    bool qwen3 = !strcmp(variants[j->variant].name, "qwen3");
    bool good = WIFEXITED(status) && (WEXITSTATUS(status) == 0 || (qwen3 && WEXITSTATUS(status) == 1 && f->fired));
    j->pid = 0;
    if (good && qwen3 && !WEXITSTATUS(status) && !same_text(j)) { good = false; why = "wrong text"; }
    if (good && f->live) { good = false; why = "Vulkan's objects are left"; }
    o.runs++;
    o.fired += f->fired > 0;
    if (good) return true;
    o.failed++;
    printf("%s, %s, call %u, code %d: %s %d: %s\n", variants[j->variant].name, names[j->function], j->call, j->code,
           WIFEXITED(status) ? "exit status" : "signal", WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status), why);
    return false;
}

static struct job *free_job(void)
{
    for (;;) {
        int status;
        for (int i = 0; i < o.jobs; i++) if (!jobs[i].pid) return &jobs[i];
        pid_t pid = wait(&status);
        for (int i = 0; i < o.jobs; i++) if (jobs[i].pid == pid) finish(&jobs[i], status);
    }
}

static void wait_for_all(void)
{
    int status;
    for (pid_t pid; (pid = wait(&status)) > 0;)
        for (int i = 0; i < o.jobs; i++) if (jobs[i].pid == pid) finish(&jobs[i], status);
}

static void open_job(struct job *j)
{
    strcpy(j->path, "/tmp/mlxvk-faults-XXXXXX");
    int file = mkstemp(j->path);
    if (file < 0 || ftruncate(file, sizeof *j->shared)) exit(2);
    j->shared = mmap(NULL, sizeof *j->shared, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (j->shared == MAP_FAILED) exit(2);
    close(file);
}

/* Is it one of those that --only names? */
static bool wanted(const char *name)
{
    size_t n = strlen(name);
    for (const char *at = o.only; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (!strncmp(at, name, n) && (!at[n] || at[n] == ',')) return true;
    return !o.only;
}

static void run_variant(int variant)
{
    int status;
    struct shared *first = jobs[0].shared;
    jobs[0].variant = variant, jobs[0].function = jobs[0].call = 0, jobs[0].code = 0;
    first->used = 0;
    start(&jobs[0], true);
    waitpid(jobs[0].pid, &status, 0);
    if (!finish(&jobs[0], status)) return;
    struct shared whole = *first;
    if (!whole.faults.calls[FAULT_vkQueueSubmit]) { puts("the layer is not there"); o.failed++; return; }
    if (!strcmp(variants[variant].name, "qwen3")) whole.used = 1, whole.allocations = 0;
    if (!variants[variant].lent) whole.faults.calls[FAULT_vkGetDeviceFaultInfoEXT] = 1;   /* once a device is lost */
    for (int i = 0; i < o.jobs; i++) *jobs[i].shared = whole;
    unsigned before = o.tried;
    for (uint32_t f = 0; f <= HOST; f++) {
        uint32_t calls = f == HOST ? whole.allocations : whole.faults.calls[f];
        if (!wanted(names[f])) continue;
        for (uint32_t call = 1; call <= calls; call++)
            for (int c = 0; codes[f][c]; c++) {
                if ((int)(o.tried++ % (unsigned)o.of) != o.sample) continue;
                struct job *j = free_job();
                j->variant = variant, j->function = f, j->call = call, j->code = codes[f][c];
                start(j, false);
            }
    }
    wait_for_all();
    printf("%s: %u faults, %u of them in allocations of host memory\n", variants[variant].name, o.tried - before,
           whole.allocations);
}

static const char *options(int argc, char **argv)
{
    int i = 1;
    for (; i + 1 < argc; i++) {
        if (!strcmp(argv[i], "--sample")) sscanf(argv[++i], "%d/%d", &o.sample, &o.of);
        else if (!strcmp(argv[i], "--only")) o.only = argv[++i];
        else if (!strcmp(argv[i], "--variant")) o.variant = argv[++i];
        else if (!strcmp(argv[i], "--jobs")) o.jobs = atoi(argv[++i]);
        else if (!strcmp(argv[i], "--qwen3") && i + 2 < argc) { o.qwen3 = argv[++i]; o.model = argv[++i]; }
        else return NULL;
    }
    return o.of > 0 && o.jobs > 0 && o.jobs <= MOST_JOBS && i < argc ? argv[i] : NULL;
}

int main(int argc, char **argv)
{
    const char *folder = options(argc, argv);
    if (!folder) { fputs("usage: see the head of fuzz_faults.c\n", stderr); return 2; }
    o.sample %= o.of;
    setenv("VK_LAYER_PATH", folder, 1);
    setenv("NODEVICE_SELECT", "1", 1);                              /* Mesa's own layer, which does not survive */
    setenv("VK_INSTANCE_LAYERS", "VK_LAYER_MLXVK_faults", 1);
    for (int i = 0; i < o.jobs; i++) open_job(&jobs[i]);
    for (int v = 0; v < VARIANTS; v++) {
        const char *name = variants[v].name;
        if ((!o.variant || !strcmp(o.variant, name)) && (o.qwen3 || strcmp(name, "qwen3"))) run_variant(v);
    }
    for (int i = 0; i < o.jobs; i++) {
        char text[80];
        unlink(text_path(&jobs[i], text));
        unlink(jobs[i].path);
    }
    printf("%u runs of %u, %u of them with the fault\n", o.runs, o.tried, o.fired);
    printf("%u passed, %u failed\n", o.runs - o.failed, o.failed);
    return o.failed != 0;
}
