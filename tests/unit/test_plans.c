/* Plans for devices that are not here: the golden cases' calls and large random ones are recorded on devices that are
 * nothing but their limits and features, planned without binding memory, and every step is checked against that
 * device's limits. No Vulkan is needed. */
#define _POSIX_C_SOURCE 200809L
#include "mlxvk.c"

#include <glob.h>
#include <setjmp.h>
#include <cmocka.h>
#include "bench/support_cliffs.h"
#include "golden/watch.h"

enum { CALLS = 1000, SHOWN = 12 };

/* ---- devices ---- */

#define SMALL_TYPES (CAP_STORAGE8 | CAP_STORAGE16 | CAP_INT8 | CAP_INT16)
#define DESKTOP (SMALL_TYPES | CAP_INT64 | CAP_FLOAT16 | CAP_SUBGROUP | CAP_HALF_CONVERSION | CAP_INT_DOT | \
                 CAP_MEMORY_MODEL)

/* Limits as read_limits reads them. subgroup: what kernels run with; bindings: at most MAX_BINDINGS; align: at least
 * 16; range, allocation: bytes; memory: GiB. Khronos's database (vulkan.gpuinfo.org) could not be looked up where these
 * were collected. `source` says which report of vulkaninfo (owner/repository#thread on GitHub) or which driver's source
 * was read instead, and for what; what it calls assumed is a guess, and what it does not name at all is one, too. */
static const struct row {
    const char *name, *source;
    uint32_t type, bits, subgroup, threads, bindings, groups[3], shared;
    size_t range, allocation, align, memory;
    uint8_t coopmat[2];
} rows[] = {
    { "RX 6800 (RDNA2), RADV",
      "Mesa's radv_physical_device.c and radv_constants.h: all limits; ggml-org/llama.cpp#17117: the same",
      VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU, DESKTOP, 64, 1024, 16, { UINT32_MAX, 65535, 65535 }, 65536,
      UINT32_MAX, 0xfffffffc, 16, 16, { 0, 0 } },
    { "RX 7900 (RDNA3), RADV, subgroups of 32",
      "as above, 32 being its least subgroup; cooperative matrices of 16, assumed for bfloat16",
      VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU, DESKTOP | CAP_BFLOAT16 | CAP_COOPMAT | CAP_COOPMAT_BF16, 32, 1024, 16,
      { UINT32_MAX, 65535, 65535 }, 65536, UINT32_MAX, 0xfffffffc, 16, 24, { 16, 16 } },
    { "RX 7900 (RDNA3), AMD's driver",
      "ggml-org/llama.cpp#5698 (RX 7800 XT): range, bindings; #13024: 32 KiB shared; KomputeProject/kompute#275 "
      "(RX 6500 XT): subgroups of 64; GPUOpen-Drivers/AMDVLK#119: grid, threads; allocation, matrices assumed",
      VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU, DESKTOP | CAP_COOPMAT, 64, 1024, 16, { 65535, 65535, 65535 }, 32768,
      UINT32_MAX, 0x80000000, 16, 24, { 16, 0 } },
    { "HD 8750M (GCN), AMD's driver", "GPUOpen-Drivers/AMDVLK#119: grid, threads, shared; the rest assumed",
      VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU, SMALL_TYPES | CAP_INT64 | CAP_SUBGROUP | CAP_MEMORY_MODEL, 64, 1024, 16,
      { 65535, 65535, 65535 }, 32768, UINT32_MAX, 0x80000000, 16, 2, { 0, 0 } },
    { "Arc A770 (Xe), ANV",
      "Mesa's anv_physical_device.c: range, grid, threads; anv_private.h: alignment of 4; gpuweb/gpuweb#6243: 56 "
      "subgroups; 64 KiB shared, allocation assumed; tiles of 8 x 16: none that fit",
      VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU, DESKTOP, 32, 1024, 16, { 65535, 65535, 65535 }, 65536,
      UINT32_MAX, UINT32_MAX, 16, 16, { 0, 0 } },
    { "Arc (Xe), Intel's driver, subgroups of 16",
      "KhronosGroup/Vulkan-Profiles#621: range; 56 subgroups of 16 (MLX_VK_SUBGROUP_SIZE): 896 threads; rest assumed",
      VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU, DESKTOP, 16, 896, 16, { 65535, 65535, 65535 }, 65536,
      0x3ffffffc, UINT32_MAX, 64, 8, { 0, 0 } },
    { "UHD 630 (Gen9), subgroups of 8",
      "KhronosGroup/Vulkan-Tools#491: range, bindings; smxi/inxi#284: subgroups of 8 to 32, 56 of them; rest assumed",
      VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU, DESKTOP, 8, 448, 16, { 65535, 65535, 65535 }, 65536,
      0x40000000, 0x40000000, 64, 4, { 0, 0 } },
    { "Vulkan's least, with subgroups",
        "the specification: 128 threads, 16 KiB, 128 MiB, alignment of 256; rest assumed",
      VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU, SMALL_TYPES | CAP_SUBGROUP | CAP_INT_DOT | CAP_MEMORY_MODEL, 32, 128, 16,
      { 65535, 65535, 65535 }, 16384, 1 << 27, 1 << 30, 256, 2, { 0, 0 } },
    { "GTX 1080 (Pascal)",
      "KhronosGroup/Vulkan-Tools#106 (GTX 1050 Ti): range, bindings; doitsujin/dxvk#267: grid, shared; threads as in "
      "Mesa's nvk_physical_device.c; alignment, allocation, no arithmetic in halves assumed",
      VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU, DESKTOP & ~CAP_FLOAT16, 32, 1024, 16, { INT32_MAX, 65535, 65535 }, 49152,
      UINT32_MAX, 0xffe00000, 32, 8, { 0, 0 } },
    { "RTX 2080 (Turing)",
      "KhronosGroup/Vulkan-Tools#446: range; grid, threads as in Mesa's nvk_physical_device.c; rest assumed",
      VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU, DESKTOP | CAP_COOPMAT, 32, 1024, 16, { INT32_MAX, 65535, 65535 }, 49152,
      UINT32_MAX, 0xffe00000, 16, 8, { 16, 0 } },
    { "RTX 4090 (Ada)", "as above; extensions of NVIDIA's driver 575 on",
      VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU,
      DESKTOP | CAP_BFLOAT16 | CAP_COOPMAT | CAP_COOPMAT_BF16 | CAP_COOPMAT2, 32, 1024, 16,
      { INT32_MAX, 65535, 65535 }, 49152, UINT32_MAX, 0xffe00000, 16, 24, { 16, 16 } },
    { "H200 (Hopper)", "as above, more memory",
      VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU,
      DESKTOP | CAP_BFLOAT16 | CAP_COOPMAT | CAP_COOPMAT_BF16 | CAP_COOPMAT2, 32, 1024, 16,
      { INT32_MAX, 65535, 65535 }, 49152, UINT32_MAX, 0xffe00000, 16, 140, { 16, 16 } },
    { "M1, MoltenVK",
      "vulkano-rs/vulkano#1919: range; hanatos/vkdt#87 (M1 Pro): 31 buffers; gfx-rs/wgpu#5551: grid, threads, shared; "
      "MoltenVK's MVKDevice.mm: alignment; allocation assumed",
      VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU, DESKTOP & ~(CAP_HALF_CONVERSION | CAP_INT_DOT), 32, 1024, 16,
      { 1 << 30, 1 << 30, 1 << 30 }, 32768, UINT32_MAX, 0xffffffff, 16, 10, { 0, 0 } },
    { "Adreno 650 (6xx)",
      "Mesa's tu_common.h: Qualcomm's range; ggml-org/llama.cpp#5198: alignment; bits, threads, allocation assumed",
      VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU,
      CAP_STORAGE16 | CAP_INT16 | CAP_FLOAT16 | CAP_SUBGROUP | CAP_MEMORY_MODEL, 64, 1024, 16,
      { 65535, 65535, 65535 }, 32768, 1 << 27, 0x80000000, 64, 4, { 0, 0 } },
    { "Adreno 610",
      "ggml-org/whisper.cpp#3035: 16 KiB shared, no 16-bit storage, no halves, subgroups of 64; gpuweb/gpuweb#2832: 16 "
      "KiB; 256 threads, no operations of subgroups, range as above: assumed",
      VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU, 0, 64, 256, 16,
      { 65535, 65535, 65535 }, 16384, 1 << 27, 0x40000000, 64, 2, { 0, 0 } },
    { "Adreno 740 (7xx)",
      "kde-yyds/android-vulkan-bridge#2: grid, threads, shared; ggml-org/llama.cpp#19569 (X1-85): subgroups of 64; "
      "range as above; bits, allocation assumed",
      VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU, DESKTOP & ~CAP_HALF_CONVERSION, 64, 1024, 16,
      { 65535, 65535, 65535 }, 32768, 1 << 27, 0x80000000, 64, 8, { 0, 0 } },
    { "Mali-G76",
      "mpv-android/mpv-android#544: 512 threads, 32 KiB shared (of another Mali); the rest assumed: subgroups of 8, "
      "range and alignment of drivers before r32",
      VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU, DESKTOP & ~CAP_HALF_CONVERSION, 8, 512, 16,
      { 65535, 65535, 65535 }, 32768, 1 << 27, 0x40000000, 256, 4, { 0, 0 } },
    { "Mali-G710, ARM's driver",
      "ggml-org/whisper.cpp#3590: grid, threads, shared, alignment; ggml-org/llama.cpp#27163 (G720): subgroups of 16; "
      "range and allocation assumed",
      VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU, DESKTOP, 16, 1024, 16, { UINT32_MAX, UINT32_MAX, UINT32_MAX }, 32768,
      UINT32_MAX, UINT32_MAX, 16, 8, { 0, 0 } },
    { "V3D 4.2 (Raspberry Pi 4)",
      "Mesa's v3dv_device.c: grid, threads, shared, alignment, subgroups; bevyengine/bevy#18867: range, 8 buffers; "
      "raspberrypi/linux#4767, DTolm/VkFFT#19: the same; allocations of 1 GiB, bits: v3dv_device.c",
      VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU, CAP_STORAGE8 | CAP_STORAGE16 | CAP_MEMORY_MODEL | CAP_HALF_CONVERSION,
      16, 256, 8, { 65535, 65535, 65535 }, 16384, 1 << 30, 1 << 30, 32, 2, { 0, 0 } },
    { "workgroups of 128", "what Vulkan asks of every device at least, but for storage: assumed",
      VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU, CAP_MEMORY_MODEL, 4, 128, 8, { 65535, 65535, 65535 }, 16384,
      1 << 27, 1 << 30, 256, 2, { 0, 0 } },
    { "lavapipe", "read from Mesa 22.3.6 (Debian 12) itself",
      VK_PHYSICAL_DEVICE_TYPE_CPU, DESKTOP & ~CAP_HALF_CONVERSION, 8, 1024, 16, { 65535, 65535, 65535 }, 32768,
      1 << 27, 0x80000000, 16, 2, { 0, 0 } },
    { "lavapipe, cooperative matrices of 8", "read from Mesa 26.2.6 itself",
      VK_PHYSICAL_DEVICE_TYPE_CPU, DESKTOP & ~CAP_HALF_CONVERSION, 8, 1024, 16, { 65535, 65535, 65535 }, 32768,
      1 << 27, 0x80000000, 16, 24, { 8, 0 } },
    { "SwiftShader", "read from it (Debian's chromium-common); its VkConfig.hpp: the same",
      VK_PHYSICAL_DEVICE_TYPE_CPU, CAP_SUBGROUP | CAP_MEMORY_MODEL | CAP_INT_DOT, 4, 256, 16, { 65535, 65535, 65535 },
      32768, 1 << 30, 1 << 30, 256, 2, { 0, 0 } },
};

/* A chain's kernel is written while it is planned: what becomes of it, no test here looks at. */
static VkResult VKAPI_CALL no_module(VkDevice d, const VkShaderModuleCreateInfo *i, const VkAllocationCallbacks *a,
    VkShaderModule *m)
{
    (void)d, (void)i, (void)a;
    memset(m, 1, sizeof *m);
    return VK_SUCCESS;
}
static void VKAPI_CALL no_module_less(VkDevice d, VkShaderModule m, const VkAllocationCallbacks *a) { (void)d,
    (void)m, (void)a; }
static void VKAPI_CALL no_pipeline_less(VkDevice d, VkPipeline p, const VkAllocationCallbacks *a) { (void)d, (void)p,
    (void)a; }
static VkResult VKAPI_CALL no_pipeline(VkDevice d, VkPipelineCache c, uint32_t n, const VkComputePipelineCreateInfo *i,
                                       const VkAllocationCallbacks *a, VkPipeline *p)
{
    (void)d, (void)c, (void)i, (void)a;
    memset(p, 1, n * sizeof *p);
    return VK_SUCCESS;
}

/* Memory of the host in place of the device's: golden cases put their operands there. A buffer is its size. */
static VkResult VKAPI_CALL make_buffer(VkDevice d, const VkBufferCreateInfo *i, const VkAllocationCallbacks *a,
                                       VkBuffer *b)
{
    (void)d, (void)a;
    *b = (VkBuffer)(uintptr_t)i->size;
    return VK_SUCCESS;
}
static void VKAPI_CALL need_of(VkDevice d, VkBuffer b, VkMemoryRequirements *need)
{
    (void)d;
    *need = (VkMemoryRequirements){ (VkDeviceSize)(uintptr_t)b, 256, 1 };
}
static VkResult VKAPI_CALL take_memory(VkDevice d, const VkMemoryAllocateInfo *i, const VkAllocationCallbacks *a,
                                       VkDeviceMemory *m)
{
    (void)d, (void)a;
    *m = (VkDeviceMemory)(uintptr_t)malloc((size_t)i->allocationSize);
    return *m ? VK_SUCCESS : VK_ERROR_OUT_OF_HOST_MEMORY;
}
static VkResult VKAPI_CALL join_memory(VkDevice d, VkBuffer b, VkDeviceMemory m, VkDeviceSize at)
{
    (void)d, (void)b, (void)m, (void)at;
    return VK_SUCCESS;
}
static VkResult VKAPI_CALL map_memory(VkDevice d, VkDeviceMemory m, VkDeviceSize at, VkDeviceSize size,
                                      VkMemoryMapFlags flags, void **to)
{
    (void)d, (void)size, (void)flags;
    *to = (char *)(uintptr_t)m + at;
    return VK_SUCCESS;
}
static void VKAPI_CALL drop_buffer(VkDevice d, VkBuffer b, const VkAllocationCallbacks *a)
{
    (void)d, (void)b, (void)a;
}
static void VKAPI_CALL drop_memory(VkDevice d, VkDeviceMemory m, const VkAllocationCallbacks *a)
{
    (void)d, (void)a;
    free((void *)(uintptr_t)m);
}

/* A device, a stream on it, random numbers, and what was found. */
struct lab {
    const struct row *row;
    struct device device;
    struct stream stream;
    struct timeline line;
    mlxvk_stream s;
    uint64_t random;
    mlxvk_array made[16];                                /* handles of this call's operands */
    int made_count, mistakes;
    unsigned steps, refused, planned, most_steps, calls;  /* calls: of golden cases */
    double longest;                                      /* microseconds of a step, by estimate: the most, */
    char slowest[128];                                   /* and its kernel */
    const char *call;
    char told[256];                                      /* the call in words, for messages */
    FILE *ways;                                          /* what is chosen is written there, if anywhere */
};

/* A plan that takes more than this is a mistake: tens of thousands of steps. */
enum { PLAN_BYTES = 16 << 20 };

static void *allocate_some(size_t size, void *user) { (void)user; return size > PLAN_BYTES ? NULL : malloc(size); }
static void release(void *pointer, void *user) { (void)user; free(pointer); }

static void lab_open(struct lab *l, const struct row *row)
{
    struct capabilities *c = &l->device.caps;
    struct device *d = &l->device;
    memset(l, 0, sizeof *l);
    l->row = row;
    *c = (struct capabilities){ .type = row->type, .bits = row->bits, .subgroup = row->subgroup,
        .subgroup_least = row->subgroup,
        .subgroup_most = row->subgroup, .max_threads = row->threads, .max_bindings = row->bindings,
            .shared_memory = row->shared,
        .push_size = PUSH_SIZE, .max_range = row->range, .max_elements = min_size(row->range, (size_t)1 << 31),
        .max_allocation = row->allocation, .offset_align = row->align, .memory_size = row->memory << 30,
        .timestamp_ns = 1, .mapped = true };
    snprintf(c->name, sizeof c->name, "%s", row->name);
    memcpy(c->max_groups, row->groups, sizeof c->max_groups);
    memcpy(c->coopmat_size, row->coopmat, sizeof c->coopmat_size);
    if (row->type == VK_PHYSICAL_DEVICE_TYPE_CPU && row->subgroup == 8) c->quirks = QUIRK_SHORT_LOOPS;
    if (!strncmp(row->name, "H200", 4)) c->quirks = quirks_of(VK_DRIVER_ID_NVIDIA_PROPRIETARY, 0x2335);
    for (int i = 0; i < GATE_COUNT; i++) d->gate[i] = gate_table[i].value;
    d->tuning = tuning_for(row->type, c->memory_size, 0);
    d->vk.vkCreateShaderModule = no_module;
    d->vk.vkDestroyShaderModule = no_module_less;
    d->vk.vkCreateComputePipelines = no_pipeline;
    d->vk.vkDestroyPipeline = no_pipeline_less;
    d->vk.vkCreateBuffer = make_buffer;
    d->vk.vkGetBufferMemoryRequirements = need_of;
    d->vk.vkAllocateMemory = take_memory;
    d->vk.vkBindBufferMemory = join_memory;
    d->vk.vkMapMemory = map_memory;
    d->vk.vkDestroyBuffer = drop_buffer;
    d->vk.vkFreeMemory = drop_memory;
    d->memory_limit = d->cache_limit = SIZE_MAX;
    for (int use = 0; use < MEMORY_USES; use++) c->type_count[use] = 1;
    c->host_types = c->cached_types = 1;
    d->lock = (mutex)MUTEX_INIT(LOCK_DEVICE);
    d->event_lock = (mutex)MUTEX_INIT(LOCK_EVENTS);
    d->refs = 1;
    d->allocator = (mlxvk_allocator){ .allocate = allocate_some, .release = release };
    d->random_seeded = true;
    d->streams = d->default_stream = &l->stream;
    l->stream.refs = 2;                                  /* never dropped */
    l->stream.device = d;
    l->stream.line = &l->line;
    l->line.stream = &l->stream;
    l->stream.encoder.stream = &l->stream;
    l->stream.encoder.device = d;
    l->s.ctx = &l->stream;
    step_open(&l->stream.encoder);
    d->random_state[1] = 7;
}

static void lab_close(struct lab *l)
{
    struct device *d = &l->device;
    plan_clear(&l->stream.encoder);
    plan_free(d, &l->stream.encoder.plan);
    host_free(d, l->stream.nodes);
    free_chains(d);
    cache_trim(d, SIZE_MAX, true);
    pool_free(d, &d->array_pool);
    pool_free(d, &d->storage_pool);
    pool_free(d, &d->buffer_pool);
}

/* ---- random numbers ---- */

static uint32_t below(struct lab *l, uint32_t n)
{
    l->random = l->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((l->random >> 33) % n);
}

static bool one_in(struct lab *l, uint32_t n) { return !below(l, n); }

/* From 1 to about `most`, each order of magnitude as likely as another; often a multiple of what kernels like. */
static int size_to(struct lab *l, int most)
{
    uint32_t bits = 0;
    int n;
    while (most >> bits > 1) bits++;
    n = 1 << below(l, bits + 1);
    if (!one_in(l, 3)) n += (int)below(l, (uint32_t)n);
    if (n > 64 && one_in(l, 3)) n &= -64;
    return n > most ? most : n;
}

#define PICK(l, ...) ((int[]){ __VA_ARGS__ })[below(l, (uint32_t)COUNT(((int[]){ __VA_ARGS__ })))]

static mlxvk_dtype floating(struct lab *l) { return (mlxvk_dtype)PICK(l, MLXVK_FLOAT32, MLXVK_FLOAT16,
    MLXVK_BFLOAT16); }
static mlxvk_dtype any_dtype(struct lab *l)
{
    return (mlxvk_dtype)PICK(l, MLXVK_FLOAT32, MLXVK_FLOAT16, MLXVK_BFLOAT16, MLXVK_INT32, MLXVK_UINT8, MLXVK_BOOL,
        MLXVK_INT64, MLXVK_UINT32,
                             MLXVK_INT16, MLXVK_COMPLEX64);
}

/* ---- operands ---- */

/* An array with contents, as far as plans go, and without memory. */
static mlxvk_array adopt_view(struct lab *l, mlxvk_dtype dtype, int ndim, const int *shape, const int64_t *strides,
    size_t from, size_t bytes)
{
    struct storage *st = storage_create(&l->device, bytes);
    struct array *a;
    st->refs = 1;
    st->skip_write = 1;                                  /* it has contents; nothing here searches the tape */
    a = array_create(st, dtype, ndim, shape, strides, (int64_t)from);
    storage_release(st);
    a->refs = 0;
    take_handle(a);
    assert_true(l->made_count < (int)COUNT(l->made));
    return l->made[l->made_count++] = (mlxvk_array){ a };
}

enum layout { ROWS, ANY };

/* Strides of some layout: rows, two axes swapped, room between rows, reversed,
    one row for all. Returns elements spanned. */
static int64_t choose_strides(struct lab *l, int ndim, const int *shape, int64_t *strides, int64_t *first)
{
    int64_t step = 1;
    int axes[8], swap = ndim > 1 && one_in(l, 3) ? (int)below(l, (uint32_t)ndim - 1) : -1, gap = one_in(l, 4) ?
        1 + (int)below(l, 9) : 0;
    *first = one_in(l, 4) ? 1 + (int)below(l, 100) : 0;
    for (int i = 0; i < ndim; i++) axes[i] = i;
    if (swap >= 0) { axes[swap] = ndim - 1; axes[ndim - 1] = swap; }
    for (int i = ndim - 1; i >= 0; i--) {
        bool same = i < ndim - 1 && one_in(l, 12), back = one_in(l, 24);
        strides[axes[i]] = same ? 0 : step;
        if (!same) step = step * shape[axes[i]] + (i == ndim - 1 ? gap : 0);
        if (!same && back) { *first += strides[axes[i]] * (shape[axes[i]] - 1); strides[axes[i]] = -strides[axes[i]]; }
    }
    return step + 110;
}

static mlxvk_array make(struct lab *l, enum layout layout, mlxvk_dtype dtype, int ndim, const int *shape)
{
    size_t item = dtypes[dtype].size, most = l->row->allocation;
    int64_t strides[8], first = 0, span = 1;
    for (int i = 0; i < ndim; i++) span *= shape[i];
    row_strides(ndim, shape, strides);
    if (layout == ANY && one_in(l, 2)) span = choose_strides(l, ndim, shape, strides, &first);
    for (int i = 0; i < ndim && (size_t)span * item > most; i++) {       /* more than the device holds:
        the same rows again */
        first = 0;
        span = 1;
        for (int k = 0; k <= i; k++) strides[k] = 0;
        for (int k = ndim - 1; k > i; k--) { strides[k] = span; span *= shape[k]; }
    }
    return adopt_view(l, dtype, ndim, shape, strides, (size_t)first * item,
        ((size_t)first + (size_t)span + 110) * item);
}

#define SHAPE(...) (int)COUNT(((int[]){ __VA_ARGS__ })), ((int[]){ __VA_ARGS__ })

/* A shape of up to 4 axes whose elements are not more than `most`. */
static int random_shape(struct lab *l, int64_t most, int *shape)
{
    int ndim = 1 + (int)below(l, 4);
    for (int i = ndim - 1; i >= 0; i--) {
        shape[i] = size_to(l, (int)(most > 1 << 28 ? 1 << 28 : most));
        most = most / shape[i] > 0 ? most / shape[i] : 1;
    }
    return ndim;
}

/* Elements of the largest result that this device can hold, and that a test plans: 2^31, less for wide types. */
static int64_t most_elements(const struct lab *l, mlxvk_dtype dtype)
{
    size_t most = l->row->allocation / 2 / dtypes[dtype].size;
    return (int64_t)min_size(most, (size_t)1 << 30);
}

/* ---- checks ---- */

#define WRONG(l, ...) wrong(l, __LINE__, __VA_ARGS__)
static void wrong(struct lab *l, int line, const char *format, ...)
{
    va_list arguments;
    if (l->mistakes++ >= SHOWN) return;
    va_start(arguments, format);
    fprintf(stderr, "line %d: %s: %s: %s: ", line, l->row->name, l->call, l->told);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
}

/* Given, or written by a step that was planned. */
static bool has_contents(const struct storage *st) { return st->literal || st->buffer || st->skip_write; }

static void check_range(struct lab *l, const char *kernel, const struct bound *b, size_t range)
{
    const struct storage *st = b->storage;
    if (b->high <= b->low) WRONG(l, "%s: binding %u from %lld to %lld", kernel, b->slot, (long long)b->low,
        (long long)b->high);
    if ((size_t)(b->high - b->low) > range)
        WRONG(l, "%s: binding %u of %lld bytes", kernel, b->slot, (long long)(b->high - b->low));
    if (b->kind != BOUND_STORAGE) return;
    if (b->low % (int64_t)l->row->align) WRONG(l, "%s: binding %u begins at %lld", kernel, b->slot, (long long)b->low);
    if (b->low < 0 || (size_t)b->high > round_up(st->nbytes, 16))
        WRONG(l, "%s: binding %u ends at %lld of %zu bytes", kernel, b->slot, (long long)b->high, st->nbytes);
    if (!b->write && !has_contents(st)) WRONG(l, "%s: binding %u is read before it is written", kernel,
        b->slot);
}

/* ---- shared memory: what a module declares for its workgroups, with a step's constants ---- */

enum { SPIRV_IDS = 8192, SPIRV_WORKGROUP = 4 };

/* What is known of an id: a type's bytes, a constant's value, or where a composite's components are listed. */
struct known { uint32_t spec, bytes; uint64_t value; const uint32_t *components; };

static uint64_t fold(const struct known *k, uint32_t op, const uint32_t *in)
{
    uint64_t a = k[in[0]].value, b = op == 81 || op == 113 || op == 124 || op == 168 || op == 200 ? 0 : k[in[1]].value;
    switch (op) {
    case 81: return k[k[in[0]].components[in[1]]].value;                 /* OpCompositeExtract */
    case 113: case 124: return a;                                        /* OpUConvert, OpBitcast */
    case 128: return (uint32_t)(a + b);
    case 130: return (uint32_t)(a - b);
    case 132: return (uint32_t)(a * b);
    case 134: case 135: return b ? a / b : 0;
    case 137: return b ? a % b : 0;
    case 164: case 170: return a == b;                                   /* OpLogicalEqual, OpIEqual */
    case 165: case 171: return a != b;
    case 166: return a || b;
    case 167: return a && b;
    case 168: return !a;
    case 169: return a ? b : k[in[2]].value;
    case 172: case 173: return a > b;
    case 174: case 175: return a >= b;
    case 176: case 177: return a < b;
    case 178: case 179: return a <= b;
    case 194: case 195: return a >> b;
    case 196: return (uint32_t)(a << b);
    case 197: return a | b;
    case 198: return a ^ b;
    case 199: return a & b;
    case 200: return (uint32_t)~a;
    default: fail_msg("the constants of a kernel have operation %u", op); return 0;
    }
}

/* One instruction. Returns the bytes of shared memory that it declares. */
static uint32_t look_at(struct known *k, const uint32_t *w, uint32_t length, const struct step *t)
{
    uint32_t given;
    switch (w[0] & 0xffff) {
    case 71: if (w[2] == 1) k[w[1]].spec = w[3] + 1; break;              /* OpDecorate SpecId */
    case 20: k[w[1]].bytes = 4; break;                                   /* types: bool, int, float, vector, array,
        struct, pointer */
    case 21: case 22: k[w[1]].bytes = w[2] / 8; break;
    case 23: k[w[1]].bytes = k[w[2]].bytes * w[3]; break;
    case 28: k[w[1]].bytes = k[w[2]].bytes * (uint32_t)k[w[3]].value; break;
    case 30: for (uint32_t i = 2; i < length; i++) k[w[1]].bytes += k[w[i]].bytes; break;
    case 32: k[w[1]].bytes = k[w[3]].bytes; break;
    case 41: case 48: case 42: case 49: case 43: case 50:                /* constants: true, false, numbers */
        given = k[w[2]].spec;
        k[w[2]].value = (w[0] & 0xffff) == 43 || (w[0] & 0xffff) == 50 ? w[3] : (w[0] & 0xffff) == 41 ||
            (w[0] & 0xffff) == 48;
        if (given && given <= t->constant_count) k[w[2]].value = t->constants[given - 1];
        break;
    case 44: case 51: k[w[2]].components = w + 3; break;
    case 52: k[w[2]].value = fold(k, w[3], w + 4); break;
    case 59: return w[3] == SPIRV_WORKGROUP ? k[w[1]].bytes : 0;         /* OpVariable */
    }
    return 0;
}

static uint32_t shared_memory(const struct step *t)
{
    static struct known known[SPIRV_IDS];
    const struct kernel_row *row = &kernel_table[t->kernel];
    uint32_t bytes = 0;
    assert_true(row->spirv[3] <= SPIRV_IDS);
    memset(known, 0, row->spirv[3] * sizeof *known);
    for (size_t at = 5; at < row->size / 4 && (row->spirv[at] & 0xffff) != 54; at += row->spirv[at] >> 16)
        bytes += look_at(known, &row->spirv[at], row->spirv[at] >> 16, t);
    return bytes;
}

static void check_shared(struct lab *l, const struct step *t)
{
    uint32_t bytes = shared_memory(t);
    if (bytes > l->row->shared) WRONG(l, "%s: %u bytes of shared memory", kernel_table[t->kernel].name, bytes);
}

/* ---- pruning: what is left of a module names nothing that is gone ---- */

enum { SPIRV_FUNCTIONS = 1, SPIRV_LABELS = 2, PRUNED_SEEN = 1 << 14 };

/* The functions and labels that a module defines; `to` has room for each of its ids. */
static void find_places(const uint32_t *spirv, size_t words, uint8_t *to)
{
    struct spirv_instruction i = spirv_open(spirv, words);
    while (spirv_next(&i)) {
        if (i.op == SPIRV_FUNCTION) to[i.w[1]] = SPIRV_FUNCTIONS;
        if (i.op == SPIRV_LABEL) to[i.w[0]] = SPIRV_LABELS;
    }
    assert_false(i.cut);
}

/* From which operand on are a function's instruction's no ids but numbers? */
static uint32_t first_number(uint32_t op)
{
    switch (op) {
    case SPIRV_STORE: case SPIRV_MERGE: return 1;
    case SPIRV_LOOP_MERGE: case SPIRV_FUNCTION: case SPIRV_VARIABLE: case SPIRV_LOAD: return 2;
    case 12: case 81: return 3;                                          /* OpExtInst, OpCompositeExtract */
    case 79: case 82: case 4458: return 4;                               /* OpVectorShuffle, OpCompositeInsert, */
    case 4457: return 5;                                                 /* OpCooperativeMatrixStoreKHR and -Load */
    default: return UINT32_MAX;
    }
}

/* Has a pipeline of these constants been looked at, on whatever device? */
static bool was_pruned(const struct step *t)
{
    static uint64_t seen[PRUNED_SEEN];
    const uint64_t key = pipeline_key((enum kernel_id)t->kernel, t->constants, t->constant_count);
    uint32_t at;
    for (at = (uint32_t)key % PRUNED_SEEN; seen[at] && seen[at] != key; ) at = (at + 1) % PRUNED_SEEN;
    if (seen[at]) return true;
    seen[at] = key;
    return false;
}

static void check_pruned(struct lab *l, const struct step *t)
{
    static uint8_t before[SPIRV_IDS], after[SPIRV_IDS];
    const struct kernel_row *row = &kernel_table[t->kernel];
    size_t size = row->size;
    struct spirv_instruction i;
    uint32_t *left, functions = 0;
    if (was_pruned(t)) return;
    left = prune_module(&l->device, row->spirv, &size, t->constants, t->constant_count);
    if (!left) {
        WRONG(l, "%s: is not pruned", row->name);
        return;
    }
    memset(before, 0, sizeof before);
    memset(after, 0, sizeof after);
    find_places(row->spirv, row->size / 4, before);
    find_places(left, size / 4, after);
    i = spirv_open(left, size / 4);
    while (spirv_next(&i)) {
        functions += i.op == SPIRV_FUNCTION;
        for (uint32_t k = 0; functions && k < i.n && k < first_number(i.op); k++) {
            uint32_t id = i.operands[k];
            bool number = i.op == SPIRV_SWITCH && k > 1 && k % 2 == 0;
            if (!number && id < SPIRV_IDS && before[id] != after[id])
                WRONG(l, "%s: operation %u names %u, which is gone", row->name, i.op, id);
        }
    }
    if (!functions) WRONG(l, "%s: nothing is left", row->name);
    host_free(&l->device, left);
}

/* Kernels that want workgroups of 256, which Vulkan does not promise: no plan for these yet. */
static const uint32_t many_threads[] = {
    K_REDUCE, K_REDUCE_INDEX, K_REDUCE_PAIR, K_SOFTMAX, K_SCAN, K_SCAN_PAIR,
};

static bool wants_many_threads(uint32_t kernel)
{
    for (size_t i = 0; i < COUNT(many_threads); i++) if (many_threads[i] == kernel) return true;
    return false;
}

/* matvec_subgroup counts its subgroups itself, and takes part of one; others are told how wide one is. */
static void check_kernel(struct lab *l, const struct step *t)
{
    const struct kernel_row *row = &kernel_table[t->kernel];
    if (!has_kernel(&l->device, (enum kernel_id)t->kernel)) WRONG(l, "the device has no %s", row->name);
    if (t->constants[0] > l->row->threads && !(t->constants[0] <= 256 && wants_many_threads(t->kernel)))
        WRONG(l, "%s: workgroups of %u", row->name, t->constants[0]);
    if ((row->needs & CAP_SUBGROUP) && t->kernel != K_MATVEC_SUBGROUP && t->constants[0] % l->row->subgroup)
        WRONG(l, "%s: a workgroup of %u is no number of subgroups", row->name, t->constants[0]);
    check_shared(l, t);
    check_pruned(l, t);
    if (t->constant_count > row->constants) WRONG(l, "%s: %u constants", row->name, t->constant_count);
    if (t->push_used != row->push) WRONG(l, "%s: %u bytes pushed", row->name, t->push_used);
    if (t->set_mask >> row->bindings) WRONG(l, "%s: bindings %x", row->name, t->set_mask);
    if (t->write_mask & ~row->writes) WRONG(l, "%s: writes %x", row->name, t->write_mask);
}

static void check_step(struct lab *l, const struct step *t, const struct bound *bounds)
{
    const char *name = t->pipeline ? t->pipeline->name : kernel_table[t->kernel].name;
    uint32_t bindings = 0;
    for (uint32_t bits = t->set_mask; bits; bits &= bits - 1) bindings++;
    for (int i = 0; i < 3; i++)
        if (!t->groups[i] || t->groups[i] > l->row->groups[i]) WRONG(l, "%s: a grid with %u in dimension %d", name,
            t->groups[i], i);
    if (t->time > l->longest) {
        l->longest = t->time;
        snprintf(l->slowest, sizeof l->slowest, "%s of %s", name, l->call ? l->call : "?");
    }
    if (t->push_used > PUSH_SIZE) WRONG(l, "%s: %u bytes pushed", name, t->push_used);
    if (t->late_at && t->late_at > t->push_used) WRONG(l, "%s: late parameter at %u", name, t->late_at - 4);
    if (bindings > l->row->bindings) WRONG(l, "%s: %u bindings", name, bindings);
    if (!t->pipeline) check_kernel(l, t);
    for (uint32_t i = 0; i < t->bounds; i++)
        check_range(l, name, &bounds[i], (t->set_mask >> bounds[i].slot & 1) ? l->row->range : SIZE_MAX);
    for (uint32_t i = 0; i < t->bounds; i++)
        if (bounds[i].kind == BOUND_STORAGE && bounds[i].write) bounds[i].storage->skip_write = 1;
}

/* ---- refusals ---- */

/* A refusal is right where its text contains this, of the call (NULL: of any),
    on devices whose bindings reach no further
 * than `range` (0: on any), or that have the quirk. What is not here fails the test. */
static const struct allowed { const char *call, *text, *why; size_t range; uint32_t quirk; } allowed[] = {
    { "chain", "too long for this driver", "a thread's loop would be longer than the driver's loops are", 0,
        QUIRK_SHORT_LOOPS },
    { "gather_qmm", "not transposed, has matrices larger than", "an expert's weight is not cut along K", 1 << 27, 0 },
    { "attention_vjp", "this driver's loops", "a thread's loop would be longer than the driver's loops are", 0,
        QUIRK_SHORT_LOOPS },
    { "attention_vjp", "a head's rows, or the mask", "tiles read all of a head's rows, and of its mask", 1 << 27, 0 },
    { "sort", "a row of", "a row longer than a binding: refused by the call itself", 1 << 27, 0 },
};

static bool is_allowed(const struct lab *l, const char *text)
{
    for (size_t i = 0; i < COUNT(allowed); i++) {
        const struct allowed *a = &allowed[i];
        if ((!a->call || !strcmp(a->call, l->call)) && strstr(text, a->text) && (!a->range ||
            l->row->range <= a->range) &&
            (!a->quirk || (l->device.caps.quirks & a->quirk))) return true;
    }
    return false;
}

static void refusal(struct lab *l, int code, const mlxvk_error *error)
{
    l->refused++;
    if ((code == MLXVK_ERROR_LIMIT || code == MLXVK_ERROR_UNSUPPORTED) && is_allowed(l, error->text)) return;
    WRONG(l, "refused with %d by %s (line %d): %s", code, error->operation, error->line, error->text);
}

/* ---- planning ---- */

/* What a step is: its kernel, the kernel's constants, its grid. */
static void write_way(FILE *to, const struct step *t)
{
    uint32_t constants = t->constant_count;
    while (constants && !t->constants[constants - 1]) constants--;
    fprintf(to, "    %s(", t->pipeline ? t->pipeline->name : kernel_table[t->kernel].name);
    for (uint32_t i = 0; i < constants; i++) fprintf(to, "%s%u", i ? "," : "", t->constants[i]);
    fprintf(to, ") %u %u %u\n", t->groups[0], t->groups[1], t->groups[2]);
}

static void plan_node(struct lab *l, uint32_t at)
{
    struct stream *s = &l->stream;
    struct encoder *e = &s->encoder;
    struct members all = { { at }, 1 };
    if (!fuse(e, s, &all, s->node_count)) {
        all.count = 1;
        op_table[s->nodes[at].op].lower(e, &s->nodes[at]);
    }
    for (uint32_t i = 0; i < e->plan.steps.count; i++) {
        const struct step *t = ITEM(e->plan.steps, struct step, i);
        check_step(l, t, ITEM(e->plan.bounds, struct bound, t->first));
        if (l->ways) write_way(l->ways, t);
    }
    l->steps += e->plan.steps.count;
    if (e->plan.steps.count > l->most_steps) l->most_steps = e->plan.steps.count;
    if (e->code) {
        refusal(l, e->code, &e->error);
        for (int i = 0; i < s->nodes[at].outputs;
            i++) if (s->nodes[at].out[i]) s->nodes[at].out[i]->storage->skip_write = 1;
    }
    plan_clear(e);
    e->code = 0;
    e->fusion = 0;
    for (int i = 0; i < all.count; i++) node_retire(&s->nodes[all.node[i]]);
    l->planned++;
}

static void plan_all(struct lab *l)
{
    struct stream *s = &l->stream;
    mutex_lock(&l->device.lock);
    drop_dead_nodes(s);
    for (uint32_t i = 0; i < s->node_count; i++)
        if (!s->nodes[i].done) plan_node(l, i);
    s->node_count = 0;
    mutex_unlock(&l->device.lock);
}

/* What a call returned: its error is judged; its result is let go after it was planned. */
static void done(struct lab *l, int code, mlxvk_array res)
{
    mlxvk_error error = { 0 };
    if (code) {
        mlxvk_stream_error(l->s, &error);
        refusal(l, code, &error);
    }
    plan_all(l);
    mlxvk_array_free(res);
}

static const char *words_of(const mlxvk_array *made, int count, char *text, size_t size)
{
    size_t n = 0;
    text[0] = 0;
    for (int i = 0; i < count && n < size; i++) n += (size_t)snprintf(text + n, size - n, "%s%s", i ? ", " : "",
        LAYOUT((struct array *)made[i].ctx));
    return text;
}
#define TOLD(l) words_of((l)->made, (l)->made_count, (l)->told, sizeof (l)->told)

/* ---- calls ---- */

static const mlxvk_array none = { NULL };

static mlxvk_array index_array(struct lab *l, int ndim, const int *shape) { return make(l, ROWS, MLXVK_UINT32, ndim,
    shape); }
static mlxvk_array number(struct lab *l, mlxvk_dtype dtype) { return make(l, ROWS, dtype, 0, NULL); }
static mlxvk_array random_key(struct lab *l) { return make(l, ROWS, MLXVK_UINT32, SHAPE(2)); }

static void call_unary(struct lab *l)
{
    int shape[8], ndim;
    mlxvk_array x, y = none;
    mlxvk_dtype dtype = any_dtype(l), to = any_dtype(l);
    ndim = random_shape(l, most_elements(l, MLXVK_COMPLEX64), shape);
    x = make(l, ANY, dtype, ndim, shape);
    TOLD(l);
    switch (below(l, 6)) {
    case 0: done(l, mlxvk_astype(&y, x, to, l->s), y); break;
    case 1: done(l, mlxvk_abs(&y, x, l->s), y); break;
    case 2: done(l, mlxvk_exp(&y, x, l->s), y); break;
    case 3: done(l, mlxvk_contiguous(&y, x, false, l->s), y); break;
    case 4: done(l, mlxvk_logical_not(&y, x, l->s), y); break;
    default: done(l, mlxvk_square(&y, x, l->s), y);
    }
}

static void call_binary(struct lab *l)
{
    static int (*const calls[])(mlxvk_array *, mlxvk_array, mlxvk_array, mlxvk_stream) = { mlxvk_add, mlxvk_multiply,
        mlxvk_less, mlxvk_maximum,
        mlxvk_power, mlxvk_divide, mlxvk_logical_and };
    int shape[8], other[8], ndim = random_shape(l, most_elements(l, MLXVK_COMPLEX64), shape);
    mlxvk_array x = make(l, ANY, any_dtype(l), ndim, shape), y, z = none;
    for (int i = 0; i < ndim; i++) other[i] = one_in(l, 3) ? 1 : shape[i];
    y = make(l, ANY, any_dtype(l), ndim, other);
    TOLD(l);
    done(l, calls[below(l, COUNT(calls))](&z, x, y, l->s), z);
}

static void call_where(struct lab *l)
{
    int shape[8], other[8], ndim = random_shape(l, most_elements(l, MLXVK_COMPLEX64), shape);
    mlxvk_dtype dtype = any_dtype(l);
    mlxvk_array c = make(l, ANY, MLXVK_BOOL, ndim, shape), x = make(l, ANY, dtype, ndim, shape), y, z = none;
    for (int i = 0; i < ndim; i++) other[i] = one_in(l, 3) ? 1 : shape[i];
    y = make(l, ANY, dtype, ndim, other);
    TOLD(l);
    done(l, mlxvk_where(&z, c, x, y, l->s), z);
}

/* Several at once, most of whose results nobody wants. */
static void call_chain(struct lab *l)
{
    int shape[8], ndim = random_shape(l, most_elements(l, MLXVK_COMPLEX64), shape);
    mlxvk_dtype dtype = floating(l);
    mlxvk_array x = make(l, ANY, dtype, ndim, shape), w = make(l, ANY, dtype, ndim, shape), a = none, b = none;
    int code;
    TOLD(l);
    code = mlxvk_sigmoid(&a, x, l->s);
    if (!code) code = mlxvk_multiply(&b, a, x, l->s);
    if (!code) code = mlxvk_multiply(&a, b, w, l->s);
    if (!code && one_in(l, 2)) code = mlxvk_add(&a, a, x, l->s);
    if (!code && one_in(l, 2)) code = mlxvk_fast_rms_norm(&a, a, none, 1e-5f, l->s);
    mlxvk_array_free(b);
    done(l, code, a);
}

static void call_matmul(struct lab *l)
{
    int64_t most = most_elements(l, MLXVK_FLOAT32);
    int batch = one_in(l, 2) ? 1 : size_to(l, 64), m = size_to(l, 1 << 16), n = size_to(l, 1 << 18),
        k = size_to(l, one_in(l, 8) ? 1 << 28 : 1 << 16);
    mlxvk_dtype dtype = one_in(l, 12) ? MLXVK_COMPLEX64 : floating(l);
    mlxvk_array a, b, y = none;
    while ((int64_t)batch * m * n > most) { m = (m + 1) / 2; n = (n + 1) / 2; }
    a = make(l, ANY, dtype, SHAPE(batch, m, k));
    b = make(l, ANY, dtype, SHAPE(one_in(l, 3) ? 1 : batch, k, n));
    if (dtype != MLXVK_COMPLEX64 && one_in(l, 3)) {
        mlxvk_array c = make(l, ANY, dtype, SHAPE(n));
        TOLD(l);
        done(l, mlxvk_addmm(&y, c, a, b, 1, 1, l->s), y);
        return;
    }
    TOLD(l);
    done(l, mlxvk_matmul(&y, a, b, l->s), y);
}

static void call_gather_mm(struct lab *l)
{
    int experts = size_to(l, 128), tokens = size_to(l, 1 << 14), m = one_in(l, 2) ? 1 : size_to(l, 64),
        n = size_to(l, 1 << 14), k = size_to(l, 1 << 14);
    mlxvk_dtype dtype = floating(l);
    mlxvk_array a, b, rhs, y = none;
    while ((int64_t)tokens * m * n > most_elements(l, MLXVK_FLOAT32)) tokens = (tokens + 1) / 2;
    a = make(l, ANY, dtype, SHAPE(tokens, m, k));
    b = make(l, ANY, dtype, SHAPE(experts, k, n));
    rhs = index_array(l, SHAPE(tokens));
    TOLD(l);
    done(l, mlxvk_gather_mm(&y, a, b, none, rhs, one_in(l, 2), l->s), y);
}

static void call_blocks(struct lab *l)
{
    int block = PICK(l, 32, 64), m = block * size_to(l, 256), n = block * size_to(l, 256),
        k = block * size_to(l, 256);
    mlxvk_dtype dtype = floating(l);
    mlxvk_array a = make(l, ANY, dtype, SHAPE(m, k)), b = make(l, ANY, dtype, SHAPE(k, n)), y = none, mask;
    if (one_in(l, 2)) {
        mask = make(l, ANY, one_in(l, 2) ? MLXVK_BOOL : dtype, SHAPE(m / block, n / block));
        TOLD(l);
        done(l, mlxvk_block_masked_mm(&y, a, b, block, mask, none, none, l->s), y);
        return;
    }
    mask = index_array(l, SHAPE((int)min_size((size_t)size_to(l, 64),
                                              (size_t)(1 + most_elements(l, MLXVK_FLOAT32) / m / n)), 2));
    TOLD(l);
    done(l, mlxvk_segmented_mm(&y, a, b, mask, l->s), y);
}

/* Codes, scales and biases of weights (count, n, k), or (n, k) where count is 0. */
struct weight { mlxvk_array w, scales, biases; mlxvk_optional_int group, bits; const char *mode; };
static struct weight make_weight(struct lab *l, int count, int n, int k, mlxvk_dtype dtype)
{
    static const char *const modes[] = { "affine", "affine", "affine", "mxfp4", "mxfp8", "nvfp4" };
    struct weight q = { .mode = modes[below(l, COUNT(modes))] };
    bool affine = !strcmp(q.mode, "affine");
    int group = affine ? PICK(l, 32, 64, 128) : q.mode[0] == 'n' ? 16 : 32, bits = affine ? PICK(l, 2, 3, 4, 4, 4, 5,
        6, 8) : q.mode[3] == 'p' && q.mode[4] == '8' ? 8 : 4;
    int words[3] = { count, n, k * bits / 32 }, groups[3] = { count, n, k / group }, ndim = count ? 3 : 2;
    q.group = (mlxvk_optional_int){ group, true };
    q.bits = (mlxvk_optional_int){ bits, true };
    q.w = make(l, ROWS, MLXVK_UINT32, ndim, words + 3 - ndim);
    q.scales = make(l, ROWS, affine ? dtype : MLXVK_UINT8, ndim, groups + 3 - ndim);
    q.biases = affine ? make(l, ROWS, dtype, ndim, groups + 3 - ndim) : none;
    return q;
}

static void call_quantized(struct lab *l)
{
    bool transpose = !one_in(l, 4);
    int m = one_in(l, 2) ? size_to(l, 16) : size_to(l, 1 << 16), n = 128 * size_to(l, 1500), k = 128 * size_to(l, 256);
    mlxvk_dtype dtype = floating(l);
    struct weight q;
    mlxvk_array x, y = none;
    while ((int64_t)m * n > most_elements(l, MLXVK_FLOAT32)) m = (m + 1) / 2;
    q = make_weight(l, 0, transpose ? n : k, transpose ? k : n, dtype);
    x = make(l, ANY, dtype, SHAPE(m, k));
    TOLD(l);
    done(l, mlxvk_quantized_matmul(&y, x, q.w, q.scales, q.biases, transpose, q.group, q.bits, q.mode, l->s), y);
}

static void call_gather_qmm(struct lab *l)
{
    int experts = size_to(l, 256), tokens = size_to(l, 1 << 13), n = 128 * size_to(l, 64), k = 128 * size_to(l, 64);
    bool transpose = !one_in(l, 4), sorted = one_in(l, 2);
    mlxvk_dtype dtype = floating(l);
    struct weight q = make_weight(l, experts, transpose ? n : k, transpose ? k : n, dtype);
    mlxvk_array x, rhs, y = none;
    while ((int64_t)tokens * 8 * n > most_elements(l, MLXVK_FLOAT32)) tokens = (tokens + 1) / 2;
    x = make(l, ANY, dtype, SHAPE(tokens, 1, 1, k));
    rhs = index_array(l, SHAPE(tokens, 8));
    TOLD(l);
    done(l, mlxvk_gather_qmm(&y, x, q.w, q.scales, q.biases, none, rhs, transpose, q.group, q.bits, q.mode, sorted,
        l->s), y);
}

static void call_quantize(struct lab *l)
{
    int n = size_to(l, 1 << 18), k = 128 * size_to(l, 64), code;
    mlxvk_dtype dtype = floating(l);
    mlxvk_array y = none, w;
    mlxvk_vector_array parts = { NULL };
    struct weight q;
    while ((int64_t)n * k > most_elements(l, MLXVK_FLOAT32)) n = (n + 1) / 2;
    q = make_weight(l, 0, n, k, dtype);
    if (one_in(l, 2)) {
        TOLD(l);
        done(l, mlxvk_dequantize(&y, q.w, q.scales, q.biases, q.group, q.bits, q.mode, none,
            (mlxvk_optional_dtype){ dtype, true }, l->s), y);
        return;
    }
    w = make(l, ANY, dtype, SHAPE(n, k));
    TOLD(l);
    parts = mlxvk_vector_array_new();
    code = mlxvk_quantize(&parts, w, q.group, q.bits, q.mode, none, l->s);
    done(l, code, none);
    mlxvk_vector_array_free(parts);
}

static void call_attention(struct lab *l)
{
    int kv = PICK(l, 1, 2, 4, 8), share = PICK(l, 1, 1, 2, 4, 8, 16), batch = size_to(l, 16), d = PICK(l, 64, 80, 96,
        128, 128, 256, 40, 512), mask = (int)below(l, 4);
    int queries = one_in(l, 2) ? size_to(l, 8) : size_to(l, 1 << 13), keys = size_to(l, 1 << 16);
    mlxvk_dtype dtype = floating(l);
    mlxvk_array q, k, v, m = none, y = none;
    while ((int64_t)batch * kv * share * queries * d > most_elements(l, MLXVK_FLOAT32)) batch = (batch + 1) / 2,
        queries = (queries + 1) / 2;
    while ((int64_t)batch * kv * share * queries * keys > most_elements(l, MLXVK_FLOAT32)) keys = (keys + 1) / 2,
        queries = (queries + 1) / 2;
    q = make(l, ANY, dtype, SHAPE(batch, kv * share, queries, d));
    k = make(l, ANY, dtype, SHAPE(batch, kv, keys, d));
    v = make(l, ANY, dtype, SHAPE(batch, kv, keys, d));
    if (mask == 2) m = make(l, ANY, MLXVK_BOOL, SHAPE(one_in(l, 2) ? 1 : batch, 1, queries, keys));
    if (mask == 3) m = make(l, ANY, dtype, SHAPE(queries, keys));
    TOLD(l);
    done(l, mlxvk_fast_scaled_dot_product_attention(&y, q, k, v, 0.1f, mask == 1 ? "causal" : mask ? "array" : "", m,
        none, l->s), y);
}

static void call_norm(struct lab *l)
{
    int rows = size_to(l, 1 << 20), n = size_to(l, 1 << 18), code;
    mlxvk_dtype dtype = floating(l);
    mlxvk_array x, w, g, y = none;
    mlxvk_vector_array parts;
    while ((int64_t)rows * n > most_elements(l, MLXVK_FLOAT32)) rows = (rows + 1) / 2;
    x = make(l, ANY, dtype, SHAPE(rows, n));
    w = make(l, ANY, dtype, SHAPE(n));
    g = make(l, ANY, dtype, SHAPE(rows, n));
    TOLD(l);
    if (one_in(l, 3)) { done(l, mlxvk_fast_rms_norm(&y, x, w, 1e-5f, l->s), y); return; }
    if (one_in(l, 2)) { done(l, mlxvk_fast_layer_norm(&y, x, w, w, 1e-5f, l->s), y); return; }
    parts = mlxvk_vector_array_new();
    code = one_in(l, 2) ? mlxvk_fast_rms_norm_vjp(&parts, x, w, g, 1e-5f, l->s) : mlxvk_fast_layer_norm_vjp(&parts, x,
        w, w, g, 1e-5f, l->s);
    done(l, code, none);
    mlxvk_vector_array_free(parts);
}

static void call_delta(struct lab *l)
{
    int batch = size_to(l, 16), tokens = size_to(l, 1 << 14), hk = PICK(l, 1, 2, 16), hv = hk * PICK(l, 1, 1, 2, 4);
    int dk = PICK(l, 128, 128, 64, 20, 256, 500), dv = PICK(l, 128, 128, 64, 7), code;
    mlxvk_dtype dtype = floating(l);
    mlxvk_array q, k, v, gate, beta, state, y, last;
    mlxvk_vector_array parts = mlxvk_vector_array_new();
    while ((int64_t)batch * tokens * hv * (dk > dv ? dk : dv) > most_elements(l, MLXVK_FLOAT32) / 4)
        batch = (batch + 1) / 2, tokens = (tokens + 1) / 2;
    q = make(l, ANY, dtype, SHAPE(batch, tokens, hk, dk));
    k = make(l, ANY, dtype, SHAPE(batch, tokens, hk, dk));
    v = make(l, ANY, dtype, SHAPE(batch, tokens, hv, dv));
    gate = one_in(l, 4) ? make(l, ANY, dtype, SHAPE(batch, tokens, hv, dk)) : make(l, ANY, dtype, SHAPE(batch, tokens, hv));
    beta = make(l, ANY, dtype, SHAPE(batch, tokens, hv));
    state = one_in(l, 3) ? none : make(l, ANY, MLXVK_FLOAT32, SHAPE(batch, hv, dv, dk));
    y = make(l, ANY, dtype, SHAPE(batch, tokens, hv, dv));
    last = one_in(l, 3) ? none : make(l, ANY, MLXVK_FLOAT32, SHAPE(batch, hv, dv, dk));
    TOLD(l);
    code = one_in(l, 2) ? mlxvk_fast_gated_delta_update(&parts, q, k, v, gate, beta, state, none, l->s)
        : mlxvk_fast_gated_delta_update_vjp(&parts, q, k, v, gate, beta, state, y, last, l->s);
    done(l, code, none);
    mlxvk_vector_array_free(parts);
}

static void call_entropy(struct lab *l)
{
    int rows = size_to(l, 1 << 16), n = size_to(l, 1 << 18);
    mlxvk_dtype dtype = floating(l);
    mlxvk_array x, classes, loss, g, y = none;
    while ((int64_t)rows * n > most_elements(l, MLXVK_FLOAT32)) rows = (rows + 1) / 2;
    x = make(l, ANY, dtype, SHAPE(rows, n));
    classes = make(l, ANY, MLXVK_INT32, SHAPE(rows));
    loss = make(l, ANY, MLXVK_FLOAT32, SHAPE(rows));
    g = make(l, ANY, MLXVK_FLOAT32, SHAPE(rows));
    TOLD(l);
    done(l, one_in(l, 2) ? mlxvk_fast_cross_entropy(&y, x, classes, l->s)
        : mlxvk_fast_cross_entropy_vjp(&y, x, classes, loss, g, l->s), y);
}

static void call_attention_vjp(struct lab *l)
{
    int kv = PICK(l, 1, 2, 8), share = PICK(l, 1, 1, 2, 8), batch = size_to(l, 16), d = PICK(l, 64, 80, 128, 128, 256, 40),
        mask = (int)below(l, 4), queries = size_to(l, 1 << 13), keys = size_to(l, 1 << 15);
    mlxvk_dtype dtype = floating(l);
    mlxvk_array q, k, v, g, o, m = none;
    mlxvk_vector_array parts = mlxvk_vector_array_new();
    while ((int64_t)batch * kv * share * (queries + keys) * d > most_elements(l, MLXVK_FLOAT32))
        batch = (batch + 1) / 2, queries = (queries + 1) / 2, keys = (keys + 1) / 2;
    q = make(l, ANY, dtype, SHAPE(batch, kv * share, queries, d));
    k = make(l, ANY, dtype, SHAPE(batch, kv, keys, d));
    v = make(l, ANY, dtype, SHAPE(batch, kv, keys, d));
    g = make(l, ANY, dtype, SHAPE(batch, kv * share, queries, d));
    o = make(l, ANY, dtype, SHAPE(batch, kv * share, queries, d));
    if (mask > 1 && (int64_t)queries * keys <= most_elements(l, MLXVK_FLOAT32))
        m = make(l, ANY, mask == 2 ? MLXVK_BOOL : dtype, SHAPE(queries, keys));
    TOLD(l);
    done(l, mlxvk_fast_scaled_dot_product_attention_vjp(&parts, q, k, v, 0.1f, mask == 1 ? "causal" : "", m, none, o, none, g,
        l->s), none);
    mlxvk_vector_array_free(parts);
}

static void call_rope(struct lab *l)
{
    int batch = size_to(l, 64), heads = size_to(l, 64), tokens = size_to(l, 1 << 14), d = PICK(l, 32, 64, 80, 128,
        256), dims = one_in(l, 3) ? d / 2 : d;
    mlxvk_dtype dtype = floating(l);
    mlxvk_array x, at, y = none;
    bool norm = one_in(l, 3), dynamic = one_in(l, 3), pairs = one_in(l, 2);
    mlxvk_optional_float base = { 10000, true };
    int code = 0;
    while ((int64_t)batch * heads * tokens * d > most_elements(l, MLXVK_FLOAT32)) batch = (batch + 1) / 2,
        tokens = (tokens + 1) / 2;
    x = make(l, ANY, dtype, SHAPE(batch, heads, tokens, d));
    at = make(l, ROWS, MLXVK_INT32, SHAPE(batch));
    TOLD(l);
    if (norm) code = mlxvk_fast_rms_norm(&y, x, none, 1e-5f, l->s);
    else mlxvk_array_set(&y, x);
    if (!code) code = dynamic ? mlxvk_fast_rope_dynamic(&y, y, dims, pairs, base, 1, at, none, l->s) :
        mlxvk_fast_rope(&y, y, dims, pairs, base, 1, 77, none, l->s);
    done(l, code, y);
}

static void call_reduce(struct lab *l)
{
    static int (*const calls[])(mlxvk_array *, mlxvk_array, const int *, size_t, bool,
        mlxvk_stream) = { mlxvk_sum_axes, mlxvk_prod_axes,
        mlxvk_max_axes, mlxvk_mean_axes, mlxvk_any_axes, mlxvk_logsumexp_axes };
    int shape[8], axes[8], count = 0, ndim = random_shape(l, most_elements(l, MLXVK_COMPLEX64), shape);
    mlxvk_array x = make(l, ANY, one_in(l, 3) ? any_dtype(l) : floating(l), ndim, shape), y = none;
    for (int i = 0; i < ndim; i++) if (one_in(l, 2)) axes[count++] = i;
    if (!count) axes[count++] = (int)below(l, (uint32_t)ndim);
    TOLD(l);
    if (((struct array *)x.ctx)->dtype == MLXVK_COMPLEX64) done(l, mlxvk_sum_axes(&y, x, axes, (size_t)count, false,
        l->s), y);
    else if (one_in(l, 4)) done(l, mlxvk_argmax_axis(&y, x, axes[0], false, l->s), y);
    else if (one_in(l, 6)) done(l, mlxvk_argmin(&y, x, false, l->s), y);
    else if (one_in(l, 6)) done(l, mlxvk_var_axes(&y, x, axes, (size_t)count, false, 0, l->s), y);
    else done(l, calls[below(l, COUNT(calls))](&y, x, axes, (size_t)count, one_in(l, 2), l->s), y);
}

static void call_softmax(struct lab *l)
{
    int shape[8], ndim = random_shape(l, most_elements(l, MLXVK_FLOAT32), shape);
    mlxvk_array x = make(l, ANY, floating(l), ndim, shape), y = none;
    TOLD(l);
    done(l, mlxvk_softmax_axis(&y, x, one_in(l, 3) ? 0 : -1, one_in(l, 2), l->s), y);
}

static void call_scan(struct lab *l)
{
    static int (*const calls[])(mlxvk_array *, mlxvk_array, int, bool, bool, mlxvk_stream) = { mlxvk_cumsum,
        mlxvk_cumprod, mlxvk_cummax,
        mlxvk_cummin, mlxvk_logcumsumexp };
    int shape[8], ndim = random_shape(l, most_elements(l, MLXVK_COMPLEX64), shape);
    mlxvk_array x = make(l, ANY, one_in(l, 3) ? any_dtype(l) : floating(l), ndim, shape), y = none;
    TOLD(l);
    done(l, calls[below(l, COUNT(calls))](&y, x, (int)below(l, (uint32_t)ndim), one_in(l, 2), one_in(l, 2), l->s), y);
}

static void call_sort(struct lab *l)
{
    int shape[8], axis, kth, ndim = random_shape(l, most_elements(l, MLXVK_COMPLEX64) / 4, shape);
    mlxvk_array x = make(l, ANY, any_dtype(l), ndim, shape), y = none, v;
    axis = (int)below(l, (uint32_t)ndim);
    kth = (int)below(l, (uint32_t)shape[axis]);
    TOLD(l);
    switch (below(l, 5)) {
    case 0: done(l, mlxvk_sort_axis(&y, x, axis, l->s), y); break;
    case 1: done(l, mlxvk_argsort_axis(&y, x, axis, l->s), y); break;
    case 2: done(l, mlxvk_partition_axis(&y, x, kth, axis, l->s), y); break;
    case 3: done(l, mlxvk_topk_axis(&y, x, kth + 1, axis, l->s), y); break;
    default:
        v = make(l, ANY, MLXVK_FLOAT32, ndim, shape);
        x = make(l, ROWS, MLXVK_FLOAT32, SHAPE(size_to(l, 1 << 24)));
        TOLD(l);
        done(l, mlxvk_searchsorted(&y, x, v, one_in(l, 2) ? "left" : "right", l->s), y);
    }
}

static void call_take(struct lab *l)
{
    int rows = size_to(l, 1 << 18), width = size_to(l, 1 << 14), count = size_to(l, 1 << 20), axis = (int)below(l, 2);
    mlxvk_dtype dtype = any_dtype(l);
    mlxvk_array x, at, y = none;
    while ((int64_t)count * (axis ? rows : width) > most_elements(l, MLXVK_COMPLEX64)) count = (count + 1) / 2,
        rows = (rows + 1) / 2;
    x = make(l, ANY, dtype, SHAPE(rows, width));
    if (one_in(l, 2)) {
        at = make(l, ANY, MLXVK_INT32, SHAPE(count));
        TOLD(l);
        done(l, mlxvk_take_axis(&y, x, at, axis, l->s), y);
        return;
    }
    at = make(l, ANY, MLXVK_INT32, SHAPE(axis ? rows : count, axis ? count : width));
    TOLD(l);
    done(l, mlxvk_take_along_axis(&y, x, at, axis, l->s), y);
}

/* Windows at several indices. */
static void call_windows(struct lab *l)
{
    int shape[3] = { size_to(l, 256), size_to(l, 1 << 16), size_to(l, 1 << 10) }, sizes[5], count = size_to(l, 1 << 16);
    int64_t each = 1, most = most_elements(l, MLXVK_COMPLEX64);
    mlxvk_dtype dtype = one_in(l, 2) ? floating(l) : any_dtype(l);
    mlxvk_array x, u, y = none, at[2];
    mlxvk_vector_array both;
    while ((int64_t)shape[0] * shape[1] * shape[2] > most) shape[1] = (shape[1] + 1) / 2, shape[0] = (shape[0] + 1) / 2;
    for (int i = 0; i < 3; i++) each *= sizes[2 + i] = one_in(l, 3) ? shape[i] : size_to(l, shape[i]);
    while (count > 1 && count * each > most) count /= 2;
    sizes[0] = count;
    sizes[1] = 1;
    x = make(l, ANY, dtype, 3, shape);
    at[0] = make(l, ANY, MLXVK_INT32, SHAPE(count, 1));
    at[1] = make(l, ANY, MLXVK_INT32, SHAPE(1, 1));
    u = make(l, ANY, dtype, 5, sizes);
    both = mlxvk_vector_array_new_data(at, 2);
    TOLD(l);
    switch (below(l, 3)) {
    case 0: done(l, mlxvk_gather(&y, x, both, (int[]){ 0, 1 }, 2, sizes + 2, 3, l->s), y); break;
    case 1: done(l, mlxvk_scatter(&y, x, both, u, (int[]){ 0, 1 }, 2, l->s), y); break;
    default: done(l, mlxvk_scatter_add(&y, x, both, u, (int[]){ 0, 2 }, 2, l->s), y);
    }
    mlxvk_vector_array_free(both);
}

static void call_scatter(struct lab *l)
{
    int rows = size_to(l, 1 << 18), width = size_to(l, 1 << 12), count = size_to(l, 1 << 18), kind = (int)below(l, 5);
    mlxvk_dtype dtype = one_in(l, 2) ? floating(l) : any_dtype(l);
    mlxvk_array x, at, u, y = none;
    if (one_in(l, 3)) { call_windows(l); return; }
    while ((int64_t)(count > rows ? count : rows) * width > most_elements(l,
        MLXVK_COMPLEX64)) count = (count + 1) / 2, rows = (rows + 1) / 2;
    x = make(l, ANY, dtype, SHAPE(rows, width));
    if (kind > 2) {
        at = make(l, ANY, MLXVK_INT32, SHAPE(count, width));
        u = make(l, ANY, dtype, SHAPE(count, width));
        TOLD(l);
        done(l, kind == 3 ? mlxvk_put_along_axis(&y, x, at, u, 0, l->s) : mlxvk_scatter_add_axis(&y, x, at, u, 0,
            l->s), y);
        return;
    }
    at = make(l, ANY, MLXVK_INT32, SHAPE(count));
    u = make(l, ANY, dtype, SHAPE(count, 1, width));
    TOLD(l);
    done(l, kind == 0 ? mlxvk_scatter_single(&y, x, at, u, 0, l->s) : kind == 1 ? mlxvk_scatter_add_single(&y, x, at,
        u, 0, l->s) :
                        mlxvk_scatter_max_single(&y, x, at, u, 0, l->s), y);
}

static void call_conv(struct lab *l)
{
    int dims = 1 + (int)below(l, 3), groups = dims < 3 && one_in(l, 5) ? PICK(l, 2, 4, 8) : 1,
        in = groups * size_to(l, 512), out = groups * size_to(l, 512);
    int shape[5] = { size_to(l, 32) }, weight[5] = { out }, stride[3], pad[3];
    int64_t size = shape[0];
    mlxvk_array x, w, y = none;
    mlxvk_dtype dtype = floating(l);
    for (int i = 0; i < dims; i++) {
        weight[1 + i] = PICK(l, 1, 3, 3, 3, 5, 7);
        shape[1 + i] = weight[1 + i] + size_to(l, dims == 1 ? 1 << 18 : dims == 2 ? 1 << 10 : 128);
        stride[i] = PICK(l, 1, 1, 2);
        pad[i] = (int)below(l, (uint32_t)weight[1 + i]);
        size *= shape[1 + i] + 2 * pad[i];
    }
    while (size * (in > out ? in : out) > most_elements(l, MLXVK_FLOAT32) &&
        (in > groups || out > groups)) { in = groups * (in / groups / 2 ? in / groups / 2 : 1); out = groups * (out / groups / 2 ?
            out / groups / 2 : 1); }
    shape[1 + dims] = in;
    weight[0] = out;
    weight[1 + dims] = in / groups;
    x = make(l, ANY, dtype, dims + 2, shape);
    w = make(l, ANY, dtype, dims + 2, weight);
    TOLD(l);
    done(l, mlxvk_conv_general(&y, x, w, stride, (size_t)dims, pad, (size_t)dims, pad, (size_t)dims, NULL, 0, NULL, 0,
        groups, one_in(l, 3), l->s), y);
}

static void call_fft(struct lab *l)
{
    int n = one_in(l, 3) ? size_to(l, 1 << 22) : 1 << below(l, 22), rows = size_to(l, 1 << 16), kind = (int)below(l,
        5), axis = one_in(l, 4) ? 0 : 1;
    mlxvk_array x, y = none;
    while ((int64_t)rows * n > most_elements(l, MLXVK_COMPLEX64) / 8) rows = (rows + 1) / 2, n = rows == 1 ? n / 2 : n;
    x = make(l, ANY, kind == 2 ? MLXVK_FLOAT32 : MLXVK_COMPLEX64, SHAPE(axis ? rows : n, axis ? n : rows));
    TOLD(l);
    switch (kind) {
    case 0: done(l, mlxvk_fft_fft(&y, x, n, axis, MLXVK_FFT_NORM_BACKWARD, l->s), y); break;
    case 1: done(l, mlxvk_fft_ifft(&y, x, n, axis, MLXVK_FFT_NORM_BACKWARD, l->s), y); break;
    case 2: done(l, mlxvk_fft_rfft(&y, x, n, axis, MLXVK_FFT_NORM_ORTHO, l->s), y); break;
    case 3: done(l, mlxvk_fft_irfft(&y, x, n > 1 ? 2 * n - 2 : 1, axis, MLXVK_FFT_NORM_BACKWARD, l->s), y); break;
    default: done(l, mlxvk_fft_fft2(&y, x, NULL, 0, (int[]){ 0, 1 }, 2, MLXVK_FFT_NORM_BACKWARD, l->s), y);
    }
}

static void call_random(struct lab *l)
{
    int shape[8], ndim = random_shape(l, most_elements(l, MLXVK_FLOAT32), shape);
    mlxvk_array key = random_key(l), y = none, x;
    TOLD(l);
    switch (below(l, 4)) {
    case 0: done(l, mlxvk_random_bits(&y, shape, (size_t)ndim, PICK(l, 1, 2, 4), key, l->s), y); break;
    case 1: done(l, mlxvk_random_normal(&y, shape, (size_t)ndim, floating(l), 0, 1, key, l->s), y); break;
    case 2: done(l, mlxvk_random_uniform(&y, number(l, MLXVK_FLOAT32), number(l, MLXVK_FLOAT32), shape, (size_t)ndim,
        floating(l), key, l->s), y); break;
    default:
        x = make(l, ANY, floating(l), ndim, shape);
        TOLD(l);
        done(l, mlxvk_random_categorical(&y, x, -1, key, l->s), y);
    }
}

static void call_move(struct lab *l)
{
    int shape[8], from[8] = { 0 }, to[8], one[8], pads[8], ndim = random_shape(l, most_elements(l,
        MLXVK_COMPLEX64) / 4, shape), axis, axes[8];
    mlxvk_dtype dtype = any_dtype(l);
    mlxvk_array x = make(l, ANY, dtype, ndim, shape), y = none, parts[2] = { x, make(l, ANY, dtype, ndim, shape) };
    mlxvk_vector_array both;
    axis = (int)below(l, (uint32_t)ndim);
    for (int i = 0; i < ndim; i++) { one[i] = 1; pads[i] = i == axis; axes[i] = i; to[i] = shape[i]; }
    TOLD(l);
    switch (below(l, 5)) {
    case 0:
        both = mlxvk_vector_array_new_data(parts, 2);
        done(l, mlxvk_concatenate_axis(&y, both, axis, l->s), y);
        mlxvk_vector_array_free(both);
        break;
    case 1: done(l, mlxvk_roll_axis(&y, x, (int[]){ 3 }, 1, axis, l->s), y); break;
    case 2: done(l, mlxvk_repeat_axis(&y, x, 2, axis, l->s), y); break;
    case 3: done(l, mlxvk_pad(&y, x, axes, (size_t)ndim, pads, (size_t)ndim, pads, (size_t)ndim, none, "constant",
        l->s), y); break;
    default:
        to[axis] = shape[axis] / 2 + 1;
        shape[axis] = to[axis];
        parts[1] = make(l, ANY, dtype, ndim, shape);
        TOLD(l);
        done(l, mlxvk_slice_update(&y, x, parts[1], from, (size_t)ndim, to, (size_t)ndim, one, (size_t)ndim, l->s), y);
    }
}

static void call_hadamard(struct lab *l)
{
    int n = PICK(l, 1, 1, 12, 20, 28) << below(l, 16), rows = size_to(l, 1 << 16);
    mlxvk_array x, y = none;
    while ((int64_t)rows * n > most_elements(l, MLXVK_FLOAT32)) rows = (rows + 1) / 2;
    x = make(l, ANY, floating(l), SHAPE(rows, n));
    TOLD(l);
    done(l, mlxvk_hadamard_transform(&y, x, (mlxvk_optional_float){ 0 }, l->s), y);
}

static void call_factor(struct lab *l)
{
    int n = size_to(l, 128), batch = size_to(l, 64), code;
    mlxvk_array x = make(l, ANY, MLXVK_FLOAT32, SHAPE(batch, n, n)), y = none, z = none;
    TOLD(l);
    switch (below(l, 4)) {
    case 0: done(l, mlxvk_linalg_cholesky(&y, x, one_in(l, 2), l->s), y); break;
    case 1: done(l, mlxvk_linalg_inv(&y, x, l->s), y); break;
    case 2:
        code = mlxvk_linalg_qr(&y, &z, x, l->s);
        done(l, code, y);
        mlxvk_array_free(z);
        break;
    default: done(l, mlxvk_linalg_solve(&y, x, x, l->s), y);
    }
}

static const struct caller { const char *name; void (*call)(struct lab *l); uint32_t weight; } callers[] = {
    { "unary", call_unary, 3 }, { "binary", call_binary, 3 }, { "where", call_where, 2 }, { "chain", call_chain, 3 },
    { "matmul", call_matmul, 6 }, { "gather_mm", call_gather_mm, 2 }, { "blocks", call_blocks, 1 }, { "quantized",
        call_quantized, 6 },
    { "gather_qmm", call_gather_qmm, 3 }, { "quantize", call_quantize, 2 }, { "attention", call_attention, 6 },
        { "norm", call_norm, 4 },
    { "rope", call_rope, 3 }, { "reduce", call_reduce, 5 }, { "softmax", call_softmax, 3 }, { "scan", call_scan, 3 },
        { "sort", call_sort, 4 },
    { "take", call_take, 4 }, { "scatter", call_scatter, 4 }, { "conv", call_conv, 6 }, { "fft", call_fft, 4 },
        { "random", call_random, 3 },
    { "move", call_move, 4 }, { "hadamard", call_hadamard, 1 }, { "factor", call_factor, 1 },
};
/* By themselves, so that the calls of the others stay what they were. */
static const struct caller newest[] = {
    { "delta", call_delta, 3 }, { "entropy", call_entropy, 2 }, { "attention_vjp", call_attention_vjp, 3 },
};

static void one_call(struct lab *l, const struct caller *callers, size_t count, uint64_t seed)
{
    uint32_t all = 0, at;
    size_t i = 0;
    l->random = seed * 0x9E3779B97F4A7C15u + 1;
    for (size_t k = 0; k < count; k++) all += callers[k].weight;
    for (at = below(l, all); at >= callers[i].weight; i++) at -= callers[i].weight;
    l->call = callers[i].name;
    l->told[0] = 0;
    l->made_count = 0;
    callers[i].call(l);
    for (int k = 0; k < l->made_count; k++) mlxvk_array_free(l->made[k]);
}

static void plan_for(void **state)
{
    struct lab *l = calloc(1, sizeof *l);
    assert_non_null(l);
    lab_open(l, *state);
    for (uint64_t i = 0; i < CALLS; i++) one_call(l, callers, COUNT(callers), i);
    for (uint64_t i = 0; i < CALLS / 8; i++) one_call(l, newest, COUNT(newest), i);
    print_message("%s: %u nodes, %u steps, %u of one node at most; %u refused\n", l->row->name, l->planned, l->steps,
        l->most_steps, l->refused);
    assert_int_equal(l->mistakes, 0);
    lab_close(l);
    free(l);
}

/* ---- how long one dispatch takes on a device of 1 TFLOP/s: the tuning of those that share the host's memory ---- */

enum { LONGEST_US = 500000 };

static bool is_slow(const struct row *row)
{
    const struct tuning *t = tuning_for(row->type, row->memory << 30, 0);
    return t->type < 0 && t->rate == 5e5;
}

static void expect_short(const struct lab *l)
{
    if (is_slow(l->row) && l->longest > LONGEST_US)
        fail_msg("%s: a dispatch of %.0f ms: %s", l->row->name, l->longest / 1e3, l->slowest);
}

/* ---- golden cases ---- */

static void case_begins(void *user, const char *name, const char *op)
{
    struct lab *l = user;
    l->call = op;
    snprintf(l->told, sizeof l->told, "%s", name);
}

/* A golden case is small: no device may refuse it, and it is planned when each of its results has been written. */
static bool case_called(void *user, const mlxvk_array *results, int count)
{
    struct lab *l = user;
    int mistakes = l->mistakes;
    unsigned refused = l->refused;
    plan_all(l);
    for (int i = 0; i < count; i++) {
        const struct array *a = results[i].ctx;
        if (!a || (a->size && !has_contents(a->storage))) WRONG(l, "result %d was not planned", i);
    }
    if (l->refused > refused) WRONG(l, "a golden case was refused");
    l->calls++;
    return l->mistakes == mistakes;
}

static void case_failed(void *user, const char *text) { WRONG((struct lab *)user, "%s", text); }

static void plan_golden(void **state)
{
    struct lab *l = calloc(1, sizeof *l);
    struct watch watch = { l, { NULL }, case_begins, case_called, case_failed };
    int cases = 0;
    glob_t files;
    assert_non_null(l);
    lab_open(l, *state);
    the_default.device = &l->device;
    watch.stream = l->s;
    assert_int_equal(glob("tests/golden/data/*.safetensors", 0, NULL, &files), 0);
    for (size_t i = 0; i < files.gl_pathc; i++) cases += golden_watch(files.gl_pathv[i], &watch);
    globfree(&files);
    print_message("%s: %d golden cases, %u calls, %u nodes, %u steps, %u of one node at most\n", l->row->name, cases,
                  l->calls, l->planned, l->steps, l->most_steps);
    assert_int_equal(l->mistakes, 0);
    assert_true(cases > 2500 && l->calls > 6000);
    expect_short(l);
    the_default.device = NULL;
    lab_close(l);
    free(l);
}

/* ---- benchmarks ---- */

/* The call may be more than the device takes. */
static void bench_done(struct lab *l, int code, mlxvk_array res)
{
    if (code != MLXVK_ERROR_LIMIT) done(l, code, res);
}

/* One call of a benchmark, which is planned. */
#define BENCH(function, ...)                                                                                          \
    do {                                                                                                              \
        l->call = #function;                                                                                          \
        y = none;                                                                                                     \
        bench_done(l, function(&y, __VA_ARGS__, l->s), y);                                                            \
        for (int n = 0; n < l->made_count; n++) mlxvk_array_free(l->made[n]);                                         \
        l->made_count = 0;                                                                                            \
    } while (0)
#define OF(dtype, ...) make(l, ROWS, MLXVK_##dtype, SHAPE(__VA_ARGS__))

/* Those of bench_ops, bench_elementwise, bench_reduce and bench_indexing. */
static void bench_bytes(struct lab *l)
{
    mlxvk_array y;
    BENCH(mlxvk_add, OF(FLOAT32, 1 << 28), OF(FLOAT32, 1 << 28));
    BENCH(mlxvk_exp, OF(BFLOAT16, 1 << 28));
    BENCH(mlxvk_where, OF(BOOL, 1 << 28), OF(FLOAT32, 1 << 28), OF(FLOAT32, 1 << 28));
    BENCH(mlxvk_softmax_axis, OF(BFLOAT16, 16384, 8192), 1, true);
    BENCH(mlxvk_fast_rms_norm, OF(BFLOAT16, 16384, 8192), OF(BFLOAT16, 8192), 1e-5f);
    BENCH(mlxvk_fast_layer_norm, OF(BFLOAT16, 16384, 8192), OF(BFLOAT16, 8192), OF(BFLOAT16, 8192), 1e-5f);
    BENCH(mlxvk_sum, OF(FLOAT32, 1 << 28), false);
    BENCH(mlxvk_sum_axis, OF(FLOAT32, 16384, 8192), 0, false);
    BENCH(mlxvk_cumsum, OF(FLOAT32, 1 << 28), 0, false, true);
    BENCH(mlxvk_take_axis, OF(BFLOAT16, 1048576, 512), OF(UINT32, 1048576), 0);
    BENCH(mlxvk_scatter_add_single, OF(BFLOAT16, 1048576, 512), OF(UINT32, 1048576), OF(BFLOAT16, 1048576, 1, 512), 0);
    BENCH(mlxvk_sort_axis, OF(FLOAT32, 1 << 26), 0);
    BENCH(mlxvk_argsort_axis, OF(FLOAT32, 4096, 16384), 1);
    BENCH(mlxvk_random_bits, (int[]){ 1 << 28 }, 1, 4, OF(UINT32, 2));
    BENCH(mlxvk_fft_fft, OF(COMPLEX64, 4096, 4096), 4096, 1, MLXVK_FFT_NORM_BACKWARD);
    BENCH(mlxvk_fft_fft, OF(COMPLEX64, 1, 1 << 24), 1 << 24, 1, MLXVK_FFT_NORM_BACKWARD);
    BENCH(mlxvk_fft_fft, OF(COMPLEX64, 4093, 4099), 4099, 1, MLXVK_FFT_NORM_BACKWARD);
    BENCH(mlxvk_linalg_inv, OF(FLOAT32, 256, 96, 96));
}

/* Those of bench_matmul, bench_qmv, bench_conv and bench_attention, and a prompt of Qwen3-8B. */
static void bench_products(struct lab *l)
{
    const mlxvk_optional_int group = { 64, true }, bits = { 4, true };
    mlxvk_array y;
    BENCH(mlxvk_matmul, OF(FLOAT32, 8192, 8192), OF(FLOAT32, 8192, 8192));
    BENCH(mlxvk_matmul, OF(BFLOAT16, 8192, 8192), OF(BFLOAT16, 8192, 8192));
    BENCH(mlxvk_matmul, OF(BFLOAT16, 512, 4096), OF(BFLOAT16, 4096, 14336));
    BENCH(mlxvk_matmul, OF(FLOAT16, 32, 2048, 2048), OF(FLOAT16, 32, 2048, 2048));
    BENCH(mlxvk_matmul, OF(FLOAT32, 1, 1 << 20), OF(FLOAT32, 1 << 20, 512));
    for (int m = 1; m <= 4096; m *= 8) {
        BENCH(mlxvk_quantized_matmul, OF(BFLOAT16, m, 4096), OF(UINT32, 14336, 512), OF(BFLOAT16, 14336, 64),
              OF(BFLOAT16, 14336, 64), true, group, bits, "affine");
        BENCH(mlxvk_quantized_matmul, OF(BFLOAT16, m, 4096), OF(UINT32, 151936, 512), OF(BFLOAT16, 151936, 64),
              OF(BFLOAT16, 151936, 64), true, group, bits, "affine");
    }
    BENCH(mlxvk_gather_mm, OF(BFLOAT16, 4096, 1, 4096), OF(BFLOAT16, 64, 4096, 1536), none, OF(UINT32, 4096), false);
    BENCH(mlxvk_conv2d, OF(BFLOAT16, 32, 64, 64, 256), OF(BFLOAT16, 256, 3, 3, 256), 1, 1, 1, 1, 1, 1, 1);
    BENCH(mlxvk_conv2d, OF(FLOAT32, 32, 64, 64, 256), OF(FLOAT32, 256, 3, 3, 256), 1, 1, 1, 1, 1, 1, 1);
    BENCH(mlxvk_fast_scaled_dot_product_attention, OF(BFLOAT16, 1, 32, 8192, 128), OF(BFLOAT16, 1, 8, 8192, 128),
          OF(BFLOAT16, 1, 8, 8192, 128), 0.1f, "causal", none, none);
    BENCH(mlxvk_fast_scaled_dot_product_attention, OF(BFLOAT16, 8, 32, 1, 128), OF(BFLOAT16, 8, 8, 131072, 128),
          OF(BFLOAT16, 8, 8, 131072, 128), 0.1f, "", none, none);
}

/* Those of bench_cliffs: its operands, each in memory of its own. What a device has no room for is left out. */
static struct lab *cliffs_of;
static mlxvk_array cliff_operands[CLIFF_OPERANDS];
static unsigned cliff_cases;
static bool no_room;

static mlxvk_array cliff_strided(mlxvk_dtype dtype, int offset, const int *shape, const int64_t *strides, size_t ndim,
                                 int64_t elements)
{
    size_t item = dtypes[dtype].size, bytes = ((size_t)offset + (size_t)elements) * item;
    cliffs_of->made_count = 0;                           /* they are cliff_operands' */
    no_room = no_room || bytes > cliffs_of->row->allocation;
    return adopt_view(cliffs_of, dtype, (int)ndim, shape, strides, (size_t)offset * item, bytes);
}

static mlxvk_array cliff_rows(mlxvk_dtype dtype, int rows, int columns)
{
    return cliff_strided(dtype, 0, (int[]){ rows, columns }, (int64_t[]){ columns, 1 }, 2, (int64_t)rows * columns);
}

static mlxvk_array cliff_positions(int count, int n)
{
    (void)n;
    return cliff_strided(MLXVK_INT32, 0, &count, (int64_t[]){ 1 }, 1, count);
}

/* Neighbours have neighbours: which cases were met? */
static bool is_new(const struct lab *l)
{
    static char met[2048][sizeof l->told + 32];
    static unsigned count;
    char text[sizeof *met];
    if (!cliff_cases) count = 0;
    snprintf(text, sizeof text, "%.30s: %s", l->call, l->told);
    for (unsigned i = 0; i < count; i++) if (!strcmp(met[i], text)) return false;
    assert_true(count < COUNT(met));
    memcpy(met[count++], text, sizeof text);
    return true;
}

static int plan_cliff(const struct cliff_family *f, const int *p)
{
    struct lab *l = cliffs_of;
    mlxvk_array y = none;
    no_room = false;
    l->call = f->name;
    cliff_text(f, p, l->told);
    f->prepare(p);
    if (!no_room && (!l->ways || is_new(l))) {
        unsigned before = l->steps;
        if (l->ways) fprintf(l->ways, "%s: %s\n", f->name, l->told);
        int code = f->apply(p, &y);
        bench_done(l, code, y);
        if (!code && l->steps == before) WRONG(l, "nothing was planned");
        cliff_cases++;
    }
    for (int i = 0; i < CLIFF_OPERANDS; i++) mlxvk_array_free(cliff_operands[i]);
    memset(cliff_operands, 0, sizeof cliff_operands);
    return 0;
}

static void no_neighbours(int a, int b) { (void)a, (void)b; }

static void bench_cliffs(struct lab *l)
{
    const struct cliff_walker walker = { plan_cliff, no_neighbours };
    cliffs = (struct cliffs){ .gpu = l->row->type != VK_PHYSICAL_DEVICE_TYPE_CPU, .stream = l->s, .x = cliff_operands,
        .strided = cliff_strided, .positions = cliff_positions, .zeros = cliff_rows };
    cliffs_of = l;
    cliff_cases = 0;
    for (int i = 0; i < cliff_family_count; i++) cliff_follow(&cliff_families[i], &walker);
}

static void plan_benchmarks(void **state)
{
    struct lab *l = calloc(1, sizeof *l);
    assert_non_null(l);
    lab_open(l, *state);
    the_default.device = &l->device;
    bench_bytes(l);
    bench_products(l);
    bench_cliffs(l);
    print_message("%s: %u cases of bench_cliffs\n", l->row->name, cliff_cases);
    assert_true(cliff_cases > 500);
    print_message("%s: the longest dispatch takes %.0f ms: %s\n", l->row->name, l->longest / 1e3, l->slowest);
    assert_true(l->steps > 40);
    assert_int_equal(l->mistakes, 0);
    expect_short(l);
    the_default.device = NULL;
    lab_close(l);
    free(l);
}

/* ---- what is chosen ---- */

/* Of these, bench_cliffs has measured what is chosen. */
static const struct { const char *row, *file; } measured[] = {
    { "lavapipe", "tests/unit/ways_lavapipe.txt" }, { "H200 (Hopper)", "tests/unit/ways_h200.txt" },
};

static char *whole_file(const char *path)
{
    FILE *f = fopen(path, "r");
    char *text = NULL;
    size_t size = 0;
    if (!f) fail_msg("%s cannot be opened", path);
    if (getdelim(&text, &size, 0, f) < 0) fail_msg("%s has nothing in it", path);
    fclose(f);
    return text;
}

/* The first line that is not the same, and the case that it belongs to. */
static void expect_ways(const char *path, const char *want, const char *got)
{
    const char *of = got;
    while (*want && *got) {
        size_t length = strcspn(want, "\n"), here = strcspn(got, "\n");
        if (*got != ' ') of = got;
        if (length != here || memcmp(want, got, length)) break;
        want += length + !!want[length];
        got += here + !!got[here];
    }
    if (!*want && !*got) return;
    fail_msg("%.*s\n%s has\n%.*s\nwhat is chosen now is\n%.*s\nWhere that is meant, measure it (bench_cliffs), then write what is "
             "chosen now over the file: WAYS=write build/unit/test_plans \"ways*\"", (int)strcspn(of, "\n"), of, path,
             (int)strcspn(want, "\n"), want, (int)strcspn(got, "\n"), got);
}

/* The kernels, their constants and grids of every case of bench_cliffs are those of a file: results do not show it where a
 * slower way is taken than the one that was measured. */
static void ways_choice(void **state)
{
    const char *path = measured[(size_t)*state].file, *asked = getenv("WAYS");
    struct lab *l = calloc(1, sizeof *l);
    size_t row = 0, size = 0;
    char *got = NULL, *want;
    assert_non_null(l);
    while (strcmp(rows[row].name, measured[(size_t)*state].row)) row++;
    lab_open(l, &rows[row]);
    the_default.device = &l->device;
    l->ways = open_memstream(&got, &size);
    assert_non_null(l->ways);
    bench_cliffs(l);
    fclose(l->ways);
    assert_int_equal(l->mistakes, 0);
    the_default.device = NULL;
    lab_close(l);
    free(l);
    if (asked && !strcmp(asked, "write")) {
        FILE *f = fopen(path, "w");
        assert_true(f && fputs(got, f) >= 0 && !fclose(f));
    }
    want = whole_file(path);
    expect_ways(path, want, got);
    free(want);
    free(got);
}

static const char *chosen_for(struct lab *l, int m, int n, int k, int group, int bits, mlxvk_dtype dtype)
{
    mlxvk_array a[] = { make(l, ROWS, dtype, SHAPE(m, k)), make(l, ROWS, MLXVK_UINT32, SHAPE(n, k * bits / 32)),
                        make(l, ROWS, dtype, SHAPE(n, k / group)), make(l, ROWS, dtype, SHAPE(n, k / group)),
                        make(l, ROWS, dtype, SHAPE(m, n)) };
    struct quant_job j = { .format = { .bits = bits, .group = group, .transpose = true }, .x = a[0].ctx,
        .m = (uint32_t)m, .k = (uint32_t)k, .x_row = (uint32_t)k, .batch = 1, .to = dtype, .sets = 1,
        .set = { { a[1].ctx, a[2].ctx, a[3].ctx, a[4].ctx, (uint32_t)n, (uint32_t)n } } };
    l->made_count = 0;
    const char *name = choose(&l->stream.encoder, quant_kernels, COUNT(quant_kernels), 0, NOTE_QMM, &j, "")->name;
    for (size_t i = 0; i < COUNT(a); i++) mlxvk_array_free(a[i]);
    return name;
}

static bool goes_together(struct lab *l, int m, int n, int k)
{
    const mlxvk_dtype dtype = MLXVK_BFLOAT16;
    mlxvk_array a[] = { make(l, ROWS, dtype, SHAPE(m, k)), make(l, ROWS, MLXVK_UINT32, SHAPE(n, k / 8)),
                        make(l, ROWS, dtype, SHAPE(n, k / 64)), make(l, ROWS, dtype, SHAPE(n, k / 64)), make(l, ROWS, dtype, SHAPE(m, n)) };
    struct node product = { .op = OP_QUANTIZED_MATMUL, .p.quant = { .bits = 4, .group = 64, .transpose = true },
                            .in = { a[0].ctx, a[1].ctx, a[2].ctx, a[3].ctx }, .out = { a[4].ctx } };
    l->made_count = 0;
    bool together = goes_with_others(&l->stream.encoder, &product);
    for (size_t i = 0; i < COUNT(a); i++) mlxvk_array_free(a[i]);
    return together;
}

/* By rows of x, as measured on an H200; each condition of qmv_matrix's choice, and of qmm_codes', broken once. */
static void few_rows_choice(void **state)
{
    static const struct { int m, n, k, group, bits; mlxvk_dtype dtype; const char *name; } cases[] = {
        { 1, 4096, 4096, 64, 4, MLXVK_BFLOAT16, "qmv_held" }, { 2, 4096, 4096, 64, 4, MLXVK_BFLOAT16, "qmv_held" },
        { 3, 4096, 4096, 64, 4, MLXVK_BFLOAT16, "qmv_matrix" }, { 8, 4096, 4096, 64, 4, MLXVK_FLOAT16, "qmv_matrix" },
        { 16, 4096, 12288, 128, 8, MLXVK_BFLOAT16, "qmv_matrix" }, { 64, 4096, 4096, 64, 4, MLXVK_BFLOAT16, "qmm_codes" },
        { 33, 12288, 4096, 64, 4, MLXVK_BFLOAT16, "qmm_codes" }, { 32, 12288, 4096, 64, 4, MLXVK_BFLOAT16, "qmv_matrix" },
        { 64, 1024, 3072, 64, 4, MLXVK_BFLOAT16, "qmv_matrix" }, { 96, 4096, 4096, 64, 4, MLXVK_FLOAT16, "qmm_codes" },
        { 97, 4096, 4096, 64, 4, MLXVK_BFLOAT16, "unpacked, matmul" }, { 8, 704, 4096, 64, 4, MLXVK_BFLOAT16, "qmv_matrix" },
        { 8, 4096, 4096, 64, 4, MLXVK_FLOAT32, "qmv" }, { 8, 4096, 4096, 32, 4, MLXVK_BFLOAT16, "qmv_held" },
        { 8, 688, 4096, 64, 4, MLXVK_BFLOAT16, "qmv_held" }, { 8, 4096, 960, 64, 4, MLXVK_BFLOAT16, "qmv_held" },
        { 8, 4096, 16448, 64, 4, MLXVK_BFLOAT16, "qmv" }, { 8, 4096, 4096, 64, 6, MLXVK_BFLOAT16, "qmv" },
    };
    struct lab *l = calloc(1, sizeof *l);
    (void)state;
    assert_non_null(l);
    for (size_t r = 0; r < COUNT(rows); r++) if (!strncmp(rows[r].name, "H200", 4)) lab_open(l, &rows[r]);
    assert_non_null(l->row);
    for (size_t i = 0; i < COUNT(cases); i++)
        assert_string_equal(chosen_for(l, cases[i].m, cases[i].n, cases[i].k, cases[i].group, cases[i].bits,
                                       cases[i].dtype), cases[i].name);
    for (int m = 1; m <= 9; m++) {
        assert_int_equal(goes_together(l, m, 4096, 4096), m <= 2);
        assert_int_equal(goes_together(l, m, 8448, 4096), m <= 2);
        assert_int_equal(goes_together(l, m, 688, 4096), m <= 8);                /* which matrices do not take */
    }
    l->device.caps.quirks = quirks_of(VK_DRIVER_ID_NVIDIA_PROPRIETARY, 0x2684);          /* another chip of theirs */
    assert_string_equal(chosen_for(l, 8, 4096, 4096, 64, 4, MLXVK_BFLOAT16), "qmv_held");
    lab_close(l);
    free(l);
}

/* Where cooperative matrices of a workgroup read c, each condition broken once: its dtype, column 1 where a row begins
 * after `at` elements and rows are so far apart, and what the product is scaled by. */
static bool takes_c(struct lab *l, mlxvk_dtype dtype, int64_t at, int64_t row, int64_t column, float beta)
{
    const int m = 128, n = 128;
    mlxvk_array a[] = { make(l, ROWS, MLXVK_BFLOAT16, SHAPE(m, n)), make(l, ROWS, MLXVK_BFLOAT16, SHAPE(m, n)),
                        make(l, ROWS, dtype, SHAPE(m, 2 * n)), make(l, ROWS, MLXVK_BFLOAT16, SHAPE(m, n)) };
    struct product p = { .m = m, .n = n, .k = n, .a_row = n, .a_k = 1, .b_k = 1, .b_col = n, .c_row = row,
        .c_col = column, .out_row = n, .out_col = 1, .alpha = 1, .beta = beta, .offset = { [MAT_C] = at },
        .array = { [MAT_A] = a[0].ctx, [MAT_B] = a[1].ctx, [MAT_C] = a[2].ctx, [MAT_OUT] = a[3].ctx } };
    const struct candidate *way = choose_product(&l->stream.encoder, &p);
    bool taken = c_in_eights(&p);
    l->made_count = 0;
    if (taken) assert_string_equal(way->name, "matmul_coopmat2");
    for (size_t i = 0; i < COUNT(a); i++) mlxvk_array_free(a[i]);
    return taken;
}

static void c_choice(void **state)
{
    struct lab *l = calloc(1, sizeof *l);
    (void)state;
    assert_non_null(l);
    for (size_t r = 0; r < COUNT(rows); r++) if (!strncmp(rows[r].name, "H200", 4)) lab_open(l, &rows[r]);
    assert_non_null(l->row);
    assert_true(takes_c(l, MLXVK_BFLOAT16, 0, 128, 1, 1));
    assert_true(takes_c(l, MLXVK_BFLOAT16, 8, 136, 1, 0.5f));
    assert_true(takes_c(l, MLXVK_BFLOAT16, 0, 0, 1, 1));                          /* a row for all */
    assert_false(takes_c(l, MLXVK_BFLOAT16, 4, 0, 1, 1));
    assert_false(takes_c(l, MLXVK_BFLOAT16, 0, 132, 1, 1));
    assert_false(takes_c(l, MLXVK_BFLOAT16, 127 * 128, -128, 1, 1));
    assert_false(takes_c(l, MLXVK_BFLOAT16, 0, 1, 0, 1));                         /* a column for all */
    assert_false(takes_c(l, MLXVK_BFLOAT16, 0, 128, 1, 0));
    assert_false(takes_c(l, MLXVK_FLOAT16, 0, 128, 1, 1));
    lab_close(l);
    free(l);
}

/* Few rows, or few columns, of a large matrix: K along the rows of both. */
static const char *product_chosen(struct lab *l, int m, int k, int n)
{
    mlxvk_array a[] = { make(l, ROWS, MLXVK_BFLOAT16, SHAPE(m, k)), make(l, ROWS, MLXVK_BFLOAT16, SHAPE(n, k)),
                        make(l, ROWS, MLXVK_BFLOAT16, SHAPE(m, n)) };
    struct product p = { .m = m, .n = n, .k = k, .a_row = k, .a_k = 1, .b_k = 1, .b_col = k, .out_row = n, .out_col = 1,
        .alpha = 1, .array = { [MAT_A] = a[0].ctx, [MAT_B] = a[1].ctx, [MAT_OUT] = a[2].ctx } };
    const char *name = choose_product(&l->stream.encoder, &p)->name;
    l->made_count = 0;
    for (size_t i = 0; i < COUNT(a); i++) mlxvk_array_free(a[i]);
    return name;
}

static void few_choice(void **state)
{
    struct lab *l = calloc(1, sizeof *l);
    (void)state;
    assert_non_null(l);
    for (size_t r = 0; r < COUNT(rows); r++) if (!strncmp(rows[r].name, "H200", 4)) lab_open(l, &rows[r]);
    assert_non_null(l->row);
    assert_string_equal(product_chosen(l, 16, 4096, 4096), "matmul_few");
    assert_string_equal(product_chosen(l, 24, 4096, 4096), "matmul_coopmat2");
    for (int n = 16; n <= 32; n++) assert_string_equal(product_chosen(l, 4096, 4096, n), "matmul_few");
    assert_string_equal(product_chosen(l, 4096, 4096, 40), "matmul_coopmat2");
    lab_close(l);
    free(l);
}

/* What keeps a weight from GATE_INVARIANT's chains, each condition broken once. */
static bool has_chains_of(const struct lab *l, int n, int k, mlxvk_dtype to)
{
    return has_chains(&l->device, &(struct quant_job){ .k = (uint32_t)k, .to = to, .set = { { .rows = (uint32_t)n } } });
}

static void chains_choice(void **state)
{
    struct lab *l = calloc(1, sizeof *l);
    (void)state;
    assert_non_null(l);
    for (size_t r = 0; r < COUNT(rows); r++) if (!strncmp(rows[r].name, "H200", 4)) lab_open(l, &rows[r]);
    assert_non_null(l->row);
    assert_false(has_chains_of(l, 4096, 4096, MLXVK_BFLOAT16));
    l->device.gate[GATE_INVARIANT] = 2;
    assert_false(has_chains_of(l, 4096, 4096, MLXVK_BFLOAT16));
    l->device.gate[GATE_INVARIANT] = 1;
    assert_true(has_chains_of(l, 4096, 4096, MLXVK_BFLOAT16));
    assert_true(has_chains_of(l, 128, 256, MLXVK_FLOAT16));
    assert_false(has_chains_of(l, 4096, 4096 + 64, MLXVK_BFLOAT16));
    assert_false(has_chains_of(l, 4100, 4096, MLXVK_BFLOAT16));
    assert_false(has_chains_of(l, 120, 4096, MLXVK_BFLOAT16));
    assert_false(has_chains_of(l, 151936, 4096, MLXVK_BFLOAT16));
    for (int bit = 0; bit < QUIRK_COUNT; bit++) {
        uint32_t quirks = l->device.caps.quirks;
        bool needed = bit == QUIRKBIT_SAME_SUMS || bit == QUIRKBIT_KNOWN_PLACES;
        l->device.caps.quirks &= ~(1u << bit);
        assert_int_equal(has_chains_of(l, 4096, 4096, MLXVK_BFLOAT16), !needed);
        l->device.caps.quirks = quirks;
    }
    lab_close(l);
    free(l);
}

int main(int argc, char **argv)
{
    struct CMUnitTest tests[3 * COUNT(rows) + COUNT(measured) + 4];
    char names[COUNT(rows)][64], slow_names[COUNT(rows)][64], way_names[COUNT(measured)][64];
    size_t count = 2 * COUNT(rows);
    for (size_t i = 0; i < COUNT(rows); i++) {
        void *row = (void *)(uintptr_t)&rows[i];
        snprintf(names[i], sizeof names[i], "golden cases: %s", rows[i].name);
        tests[i] = (struct CMUnitTest){ rows[i].name, plan_for, NULL, NULL, row };
        tests[COUNT(rows) + i] = (struct CMUnitTest){ names[i], plan_golden, NULL, NULL, row };
    }
    for (size_t i = 0; i < COUNT(rows); i++) {
        snprintf(slow_names[i], sizeof slow_names[i], "benchmarks: %s", rows[i].name);
        if (is_slow(&rows[i]))
            tests[count++] = (struct CMUnitTest){ slow_names[i], plan_benchmarks, NULL, NULL, (void *)(uintptr_t)&rows[i] };
    }
    for (size_t i = 0; i < COUNT(measured); i++) {
        snprintf(way_names[i], sizeof way_names[i], "ways of %s", measured[i].row);
        tests[count++] = (struct CMUnitTest){ way_names[i], ways_choice, NULL, NULL, (void *)(uintptr_t)i };
    }
    tests[count++] = (struct CMUnitTest){ "few rows", few_rows_choice, NULL, NULL, NULL };
    tests[count++] = (struct CMUnitTest){ "where c is read", c_choice, NULL, NULL, NULL };
    tests[count++] = (struct CMUnitTest){ "few of a product", few_choice, NULL, NULL, NULL };
    tests[count++] = (struct CMUnitTest){ "chains", chains_choice, NULL, NULL, NULL };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return _cmocka_run_group_tests("plans", tests, count, NULL, NULL);
}
