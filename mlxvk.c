/* mlxvk - MLX's GPU backend for every Vulkan device.                                   SPDX-License-Identifier: MIT
 *
 * The whole implementation. Find a section by its anchor; each uses only what stands above it.
 *
 *     >>base         host memory, locks, errors, dtypes
 *     >>gates        one table of switches, read once from the environment
 *     >>kernels      one table of SPIR-V kernels and what they need
 *     >>device       probing and choosing a Vulkan device, capabilities, quirks
 *     >>notes        statistics by kernel and signature
 *     >>memory       blocks, suballocation, the cache, counters
 *     >>timeline     streams' timeline semaphores, who uses a buffer until when, waiting, staging, events' ends
 *     >>modules      SPIR-V rewritten for devices that lack storage of bytes and halves
 *     >>pipelines    kernels with their constants
 *     >>stream       command buffers, submission, the window in flight, order between streams
 *     >>encoder      hazards, descriptors, dispatch
 *     >>array        views on storage
 *     >>plan         dispatches as values: steps, what may be fused, one way to choose
 *     >>bind         steps get memory, an order, and a place in the command buffer
 *     >>tape         recorded operations and how they are lowered
 *     >>elementwise >>creation >>shape ...   one section a family: fronts (checks, shapes) and lowerings
 *     >>composites   operations made of others: creation, padding, comparisons, statistics
 *     >>distributions  random numbers made of others
 *     >>linalg       norms, cross products, factorisations
 *     >>chains       kernels for chains of elementwise operations, written at run time
 *     >>fusion       one table of patterns of nodes that become one dispatch
 *     >>replay       windows of the tape that come again: kept plans, recorded segments
 *     >>public       the rest of mlxvk.h: device, buffers, streams, events, mlx-c's objects, files, encoder, statistics
 *
 * One mutex a device serialises everything but blocking waits, so reference counts and tables are plain integers.
 * An operation's front infers shape, dtype and layout at once; memory and dispatches come when the tape is lowered.
 */
#define MLXVK_C
#include "mlxvk.h"

#include <assert.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifdef _WIN32
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#else
#include <pthread.h>
#endif

/* volk's functions are global symbols: renamed, so that a program with a volk or a libvulkan of its own links and
 * runs. */
#ifndef VOLK_H_
#include "gen/volk_prefix.h"
#define VOLK_IMPLEMENTATION
#endif
#include <volk.h>

/* ==== >>base ====================================================================================================== */

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define MAXD MLXVK_MAX_NDIM

/* The greatest common divisor; that of 0 and b is b. */
static int64_t common_divisor(int64_t a, int64_t b)
{
    while (b) { int64_t t = a % b; a = b; b = t; }
    return a;
}

static size_t min_size(size_t a, size_t b) { return a < b ? a : b; }
static size_t max_size(size_t a, size_t b) { return a > b ? a : b; }
static uint32_t min_u32(uint32_t a, uint32_t b) { return a < b ? a : b; }
static size_t round_up(size_t value, size_t multiple) { return (value + multiple - 1) / multiple * multiple; }
static uint32_t ceil_div(uint64_t a, uint64_t b) { return (uint32_t)((a + b - 1) / b); }
static uint32_t lowest_bit(uint32_t bits)            /* its number; bits is not 0 */
{
#ifdef __GNUC__
    return (uint32_t)__builtin_ctz(bits);
#else
    uint32_t i = 0;
    while (!(bits >> i & 1)) i++;
    return i;
#endif
}
static uint32_t float_bits(float value) { uint32_t bits; memcpy(&bits, &value, 4); return bits; }

#ifdef _WIN32
typedef SRWLOCK mutex;
#define MUTEX_INIT SRWLOCK_INIT
static void mutex_lock(mutex *m) { AcquireSRWLockExclusive(m); }
static void mutex_unlock(mutex *m) { ReleaseSRWLockExclusive(m); }
#else
typedef pthread_mutex_t mutex;
#define MUTEX_INIT PTHREAD_MUTEX_INITIALIZER
static void mutex_lock(mutex *m) { pthread_mutex_lock(m); }
static void mutex_unlock(mutex *m) { pthread_mutex_unlock(m); }
#endif

static uint64_t now_ns(void)                         /* for statistics */
{
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- dtypes: the one table ---- */

enum dtype_kind { KIND_BOOL, KIND_UINT, KIND_INT, KIND_FLOAT, KIND_COMPLEX };

static const struct dtype_row { const char *name; uint8_t size, kind; } dtypes[MLXVK_DTYPE_COUNT] = {
    [MLXVK_BOOL]      = { "bool",      1, KIND_BOOL },
    [MLXVK_UINT8]     = { "uint8",     1, KIND_UINT },
    [MLXVK_UINT16]    = { "uint16",    2, KIND_UINT },
    [MLXVK_UINT32]    = { "uint32",    4, KIND_UINT },
    [MLXVK_UINT64]    = { "uint64",    8, KIND_UINT },
    [MLXVK_INT8]      = { "int8",      1, KIND_INT },
    [MLXVK_INT16]     = { "int16",     2, KIND_INT },
    [MLXVK_INT32]     = { "int32",     4, KIND_INT },
    [MLXVK_INT64]     = { "int64",     8, KIND_INT },
    [MLXVK_FLOAT16]   = { "float16",   2, KIND_FLOAT },
    [MLXVK_FLOAT32]   = { "float32",   4, KIND_FLOAT },
    [MLXVK_FLOAT64]   = { "float64",   8, KIND_FLOAT },
    [MLXVK_BFLOAT16]  = { "bfloat16",  2, KIND_FLOAT },
    [MLXVK_COMPLEX64] = { "complex64", 8, KIND_COMPLEX },
};

static bool is_dtype(int t) { return t >= 0 && t < MLXVK_DTYPE_COUNT; }
static bool is_float(int t) { return dtypes[t].kind == KIND_FLOAT; }
static bool is_integer(int t) { return dtypes[t].kind == KIND_UINT || dtypes[t].kind == KIND_INT; }
static bool is_complex(int t) { return t == MLXVK_COMPLEX64; }
static bool is_inexact(int t) { return dtypes[t].kind >= KIND_FLOAT; }
static bool is_wide(int t) { return t == MLXVK_INT64 || t == MLXVK_UINT64; }

size_t mlxvk_dtype_size(mlxvk_dtype dtype) { return is_dtype((int)dtype) ? dtypes[dtype].size : 0; }
const char *mlxvk_dtype_name(mlxvk_dtype dtype) { return is_dtype((int)dtype) ? dtypes[dtype].name : "?"; }

/* MLX's promotion of two dtypes (mlx/dtype.cpp): the wider of a kind; signed with unsigned goes one signed size up;
 * uint64 with a signed type gives float32; float16 with bfloat16 gives float32. */
static mlxvk_dtype promote(mlxvk_dtype a, mlxvk_dtype b)
{
    int ka = dtypes[a].kind, kb = dtypes[b].kind;
    if (a == b) return a;
    if (ka > kb) return promote(b, a);
    if (kb == KIND_COMPLEX || ka == KIND_BOOL) return b;
    if (kb == KIND_FLOAT) return ka == KIND_FLOAT ? (a == MLXVK_FLOAT64 || b == MLXVK_FLOAT64 ? MLXVK_FLOAT64
                                                                                                : MLXVK_FLOAT32) : b;
    if (ka == kb) return dtypes[a].size > dtypes[b].size ? a : b;
    if (a == MLXVK_UINT64) return MLXVK_FLOAT32;
    if (dtypes[b].size > dtypes[a].size) return b;
    return a == MLXVK_UINT8 ? MLXVK_INT16 : a == MLXVK_UINT16 ? MLXVK_INT32 : MLXVK_INT64;
}

static mlxvk_dtype at_least_float(mlxvk_dtype t) { return is_inexact(t) ? t : MLXVK_FLOAT32; }

/* ---- errors ---- */

const char *mlxvk_result_text(int code)
{
    static const char *const texts[] = {
#define MLXVK_X(name, number, text) [number] = text,
        MLXVK_RESULTS(MLXVK_X)
#undef MLXVK_X
    };
    return code >= 0 && code < MLXVK_RESULT_COUNT ? texts[code] : "unknown result";
}

static void set_error_v(mlxvk_error *error, int code, int vk, int line, const char *operation, const char *format,
                        va_list arguments)
{
    int n;
    error->code = code;
    error->vk_result = vk;
    error->line = line;
    snprintf(error->operation, sizeof error->operation, "%s", operation);
    n = snprintf(error->text, sizeof error->text, "%s: ", operation);
    if (n >= 0 && (size_t)n < sizeof error->text)
        vsnprintf(error->text + n, sizeof error->text - (size_t)n, format, arguments);
}

static void set_error(mlxvk_error *error, int code, int vk, int line, const char *operation, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    set_error_v(error, code, vk, line, operation, format, arguments);
    va_end(arguments);
}

/* ==== >>gates ===================================================================================================== */

/* Names, defaults and meaning; the environment is read once, in read_gates. A gate of 0 takes the general path.
 *
 * Names of an earlier backend that have nothing to switch here:
 *   MLX_VK_ENABLE_QMM_NATIVE_M1_REDUCE_SUBGROUP_G8, _G8_X2, _G16, _G24, _G32, _X2     one kernel with a table of
 *       tunings takes all widths: MLX_VK_QMV_ROWS, _SPLIT and _THREADS force what these chose between
 *   MLX_VK_ENABLE_SDPA_DECODE_SPLITK_REDUCE_L32, _SUBGROUP     parts are added up by the last workgroup
 *   MLX_VK_ENABLE_ALGO_CACHE, _AUTO_DISABLE, MLX_VK_ALGO_CACHE_ZERO_HIT_DISABLE_THRESHOLD     bindings are pushed, or
 *       written into pooled sets: nothing is kept by buffers that could be found again */
#define GATES(X)                                                                                                      \
    X(MAX_OPS, "MLX_VK_MAX_OPS_PER_BUFFER", 100, "operations recorded before a command buffer is committed")          \
    X(MAX_MB,        "MLX_VK_MAX_MB_PER_BUFFER",        50,                                                           \
      "MiB of buffers used before that; of those only read an eighth counts while the GPU is busy")                   \
    X(MAX_US,        "MLX_VK_MAX_US_PER_BUFFER",      5000,                                                           \
      "microseconds of work, by estimate, before that (0: any)")                                                      \
    X(CUT_US,        "MLX_VK_MAX_US_PER_DISPATCH",  100000,                                                           \
      "microseconds, by estimate, from which on a dispatch is cut where it can be (0: never)")                        \
    X(INFLIGHT,      "MLX_VK_MAX_INFLIGHT_SEQUENCES",    8, "submissions in flight a stream")                          \
    X(PUSH_DESC,     "MLX_VK_ENABLE_PUSH_DESCRIPTORS",   1, "push descriptors where the device has them")              \
    X(STAGING,       "MLX_VK_FORCE_STAGING",             0, "treat device memory as not mapped")                       \
    X(SUBGROUP,      "MLX_VK_ENABLE_SUBGROUP",           1, "kernels with subgroup operations")                        \
    X(COOPMAT,       "MLX_VK_ENABLE_COOPERATIVE_MATRIX", 1, "kernels with cooperative matrices")                       \
    X(INT_DOT,       "MLX_VK_ENABLE_INTEGER_DOT",        1, "kernels with integer dot products")                       \
    X(STORAGE8,      "MLX_VK_ENABLE_STORAGE8",           1, "8-bit numbers in buffers (0: bits of words)")             \
    X(STORAGE16,     "MLX_VK_ENABLE_STORAGE16",          1, "16-bit numbers in buffers (0: bits of words)")            \
    X(INT8,          "MLX_VK_ENABLE_INT8",               1, "8-bit integers in shaders")                               \
    X(INT16,         "MLX_VK_ENABLE_INT16",              1, "16-bit integers in shaders")                              \
    X(INT64,         "MLX_VK_ENABLE_INT64",              1, "64-bit integers in shaders")                              \
    X(FLOAT16,       "MLX_VK_ENABLE_FLOAT16",            1, "16-bit floats in shaders")                                \
    X(HALF_CONVERSION, "MLX_VK_ENABLE_HALF_CONVERSION",  1,                                                           \
      "float16 to float32 and back by the device, where it keeps every bit")                                          \
    X(SUBGROUP_SIZE, "MLX_VK_SUBGROUP_SIZE",             0,                                                           \
      "threads of a subgroup, where the device lets one choose (0: its own)")                                         \
    X(GRID,          "MLX_VK_MAX_GRID",                  0,                                                           \
      "workgroups along each dimension of a grid, where that is less than the device's (0: those)")                   \
    X(BINDING_RANGE, "MLX_VK_MAX_BINDING_RANGE",         0,                                                           \
      "bytes that one binding reaches, where that is less than the device's (0: those)")                              \
    X(THREADS,       "MLX_VK_MAX_THREADS",               0,                                                            \
      "threads of a workgroup, where that is less than the device's (0: those)")                                       \
    X(SHARED_MEMORY, "MLX_VK_MAX_SHARED_MEMORY",         0,                                                            \
      "bytes that a workgroup shares, where that is less than the device's (0: those)")                                \
    X(BUFFERS,       "MLX_VK_MAX_STORAGE_BUFFERS",       0,                                                            \
      "storage buffers of a kernel, where that is less than the device's (0: those)")                                  \
    X(DONATION, "MLX_VK_ENABLE_DONATION", 1, "results take over the memory of operands that nobody wants")            \
    X(TRANSPOSE,     "MLX_VK_ENABLE_TRANSPOSE_TILES",    1, "copies of transposed matrices by tiles")                  \
    X(ADD_RMSNORM,   "MLX_VK_ENABLE_ADD_RMSNORM_NATIVE", 1, "add + rms_norm fused")                                    \
    X(SWIGLU,        "MLX_VK_ENABLE_COMPILED_SIGMOID_MUL_MUL_BF16", 1, "sigmoid * x * y (SwiGLU) fused")               \
    X(ROPE_CACHE,    "MLX_VK_ENABLE_ROPE_CACHE_WRITE",   1, "rope + cache write fused")                                \
    X(NORM_ROPE,     "MLX_VK_ENABLE_RMSNORM_ROPE",       1, "rms_norm + rope fused")                                   \
    X(RMSNORM,       "MLX_VK_ENABLE_RMSNORM_NATIVE",     1, "rms_norm in one kernel")                                  \
    X(ROPE,          "MLX_VK_ENABLE_ROPE_NATIVE",        1, "rope in one kernel")                                      \
    X(ROPE_HS,       "MLX_VK_ENABLE_ROPE_HS_TRANSPOSED", 1, "rope reads heads and sequence transposed without a copy") \
    X(QMM_NATIVE,    "MLX_VK_ENABLE_QMM_NATIVE",         1, "specialised quantized matmul kernels")                    \
    X(QMM_M1,        "MLX_VK_ENABLE_QMM_NATIVE_M1",      1, "those for 1 row")                                         \
    X(QMM_M2,        "MLX_VK_ENABLE_QMM_NATIVE_M2",      1, "those for 2 rows")                                        \
    X(QMM_M4,        "MLX_VK_ENABLE_QMM_NATIVE_M4",      1, "those for 3 and 4 rows")                                  \
    X(QMM_M8,        "MLX_VK_ENABLE_QMM_NATIVE_M8",      1, "those for 5 to 8 rows")                                   \
    X(QMM_M16,       "MLX_VK_ENABLE_QMM_NATIVE_M16",     1, "those for 9 to 16 rows")                                  \
    X(QMM_REDUCE,    "MLX_VK_ENABLE_QMM_NATIVE_M1_REDUCE", 1, "those for 1 row that reduce across a workgroup")        \
    X(QMM_SUBGROUP,  "MLX_VK_ENABLE_QMM_NATIVE_M1_REDUCE_SUBGROUP", 1, "the same by subgroup operations")              \
    X(QMM_KERNEL,    "MLX_VK_QMM_KERNEL",                0,                                                           \
      "quantized matmul by: 1 rows, 2 tiles, 3 matrices, 4 unpacking, 5 held rows")                                   \
    X(QMV_ROWS, "MLX_VK_QMV_ROWS", 0, "rows of a quantized weight a subgroup (0: as the table says)")                 \
    X(QMV_SPLIT,     "MLX_VK_QMV_SPLIT",                 0, "subgroups that share such rows (0: as the table says)")   \
    X(QMV_THREADS,   "MLX_VK_QMV_THREADS",               0, "threads of such a workgroup (0: as the table says)")      \
    X(MX_NEAREST,    "MLX_VK_MX_SCALES_NEAREST",         0,                                                           \
      "quantize: powers of two as scales rounded to nearest, as by MLX before 0.31, not up")                          \
    X(QMM_GROUP,     "MLX_VK_ENABLE_QMM_GROUPED",        1, "several quantized matmuls of one input in one dispatch")  \
    X(QMM_ADD,       "MLX_VK_ENABLE_QMM_ADD",            1, "quantized matmul + addition fused")                       \
    X(QMM_NORM,      "MLX_VK_ENABLE_RMSNORM_QMM",        1, "rms_norm + quantized matmul of one row fused")            \
    X(MATMUL_KERNEL,     "MLX_VK_MATMUL_KERNEL",             0,                                                       \
      "matmul: 1 plain, 2 vector, 3 tiled, 4 to 6 cooperative matrix; 0 chooses")                                     \
    X(MATMUL_TILE, "MLX_VK_MATMUL_TILE", 0, "matmul: the row of the table of tiles, from 1; 0 chooses")               \
    X(CONV_KERNEL,   "MLX_VK_CONV_KERNEL",               0,                                                           \
      "convolution: 1 plain, 3 tiled, 4 cooperative matrix, 6 unfolded, 7 Winograd; 0 chooses")                       \
    X(WINOGRAD, "MLX_VK_ENABLE_WINOGRAD", 1, "convolutions by 3 x 3 in Winograd's way where that is faster")          \
    X(FFT_KERNEL,    "MLX_VK_FFT_KERNEL",                0,                                                           \
      "Fourier transforms: 1 lengths as constants, 2 one kernel for all; 0 by device")                                \
    X(SDPA_NATIVE,   "MLX_VK_ENABLE_SDPA_NATIVE",        1, "attention in fused kernels")                              \
    X(SDPA_DECODE,   "MLX_VK_ENABLE_SDPA_DECODE",        1, "attention of few queries in a kernel of its own")         \
    X(SDPA_ROWS,     "MLX_VK_SDPA_DECODE_ROWS",          0, "queries that share the keys they read (0: by device)")    \
    X(SDPA_D128,     "MLX_VK_ENABLE_SDPA_DECODE_D128",   1, "that kernel for heads of 128")                            \
    X(SDPA_K32,      "MLX_VK_ENABLE_SDPA_DECODE_D128_K32",  1, "there for up to 32 keys")                              \
    X(SDPA_K64,      "MLX_VK_ENABLE_SDPA_DECODE_D128_K64",  1, "there for 33 to 64 keys")                              \
    X(SDPA_K128,     "MLX_VK_ENABLE_SDPA_DECODE_D128_K128", 1, "there for 65 to 128 keys")                             \
    X(SDPA_SPLIT,    "MLX_VK_SDPA_SPLIT_K",              0, "parts that attention splits the keys into (0: by shape)") \
    X(SPLIT_MIN,             "MLX_VK_SDPA_SPLITK_MIN_K_LEN",           0, "fewer keys than this are not split")        \
    X(SPLIT_MIN_DECODE,      "MLX_VK_SDPA_SPLITK_MIN_K_LEN_DECODE",    0, "the same for one query (0: as above)")      \
    X(SPLIT_MIN_PREFILL,     "MLX_VK_SDPA_SPLITK_MIN_K_LEN_PREFILL",   0, "the same for several (0: as above)")        \
    X(SPLIT_CHUNK,           "MLX_VK_SDPA_SPLITK_TARGET_CHUNK",         0, "keys of a part at least (0: by device)")   \
    X(SPLIT_CHUNK_DECODE,    "MLX_VK_SDPA_SPLITK_TARGET_CHUNK_DECODE",  0, "the same for one query (0: as above)")     \
    X(SPLIT_CHUNK_PREFILL,   "MLX_VK_SDPA_SPLITK_TARGET_CHUNK_PREFILL", 0, "the same for several (0: as above)")       \
    X(SPLIT_PARTS,           "MLX_VK_SDPA_SPLITK_MAX_PARTS",            0, "most parts (0: by device)")                \
    X(SPLIT_PARTS_DECODE,    "MLX_VK_SDPA_SPLITK_MAX_PARTS_DECODE",     0, "the same for one query (0: as above)")     \
    X(SPLIT_PARTS_PREFILL,   "MLX_VK_SDPA_SPLITK_MAX_PARTS_PREFILL",    0, "the same for several (0: as above)")       \
    X(SPLIT_GROUPS,          "MLX_VK_SDPA_SPLITK_TARGET_WG_DECODE",     0, "workgroups to aim at (0: by device)")      \
    X(SDPA_KEYS, "MLX_VK_SDPA_MAX_K_LEN", 0, "most keys that fused attention takes (0: any)")                         \
    X(SDPA_KEYS_DECODE,      "MLX_VK_SDPA_MAX_K_LEN_DECODE",            0, "the same for one query (0: as above)")     \
    X(SDPA_KEYS_PREFILL,     "MLX_VK_SDPA_MAX_K_LEN_PREFILL",           0, "the same for several (0: as above)")       \
    X(ARGREDUCE,     "MLX_VK_ENABLE_ARGREDUCE_ARGMAX_LASTDIM", 1, "argmax and argmin along contiguous rows")           \
    X(ADD_BF16,      "MLX_VK_ENABLE_ADD_BF16",           1, "bfloat16 additions four at a time")                       \
    X(MUL_BF16,      "MLX_VK_ENABLE_MUL_BF16",           1, "bfloat16 products four at a time")                        \
    X(SHIFT_U32,     "MLX_VK_ENABLE_BITWISE_SHIFT_U32",  1, "uint32 shifts by one number four at a time")              \
    X(DEQUANTIZE_B4, "MLX_VK_ENABLE_FAST_QUANTIZE_DEQ_AFFINE_B4", 1, "dequantize of 4 bits in one kernel")             \
    X(GATHER_WORDS,  "MLX_VK_ENABLE_GATHER_ROWS_WORDS",  1, "gathers of rows by words")                                \
    X(REPLAY,        "MLX_VK_ENABLE_REPLAY",             1, "plans of windows that come again are kept")               \
    X(SEGMENTS,      "MLX_VK_REPLAY_SEGMENT",            0,                                                           \
      "kept steps from which on they are recorded once, not each time (0: by device; -1: never)")                     \
    X(CHAINS, "MLX_VK_ENABLE_CHAINS", 1, "elementwise chains in kernels made at run time, where it pays (2: all)")    \
    X(RADIX, "MLX_VK_ENABLE_RADIX_SORT", 1, "long rows by radix sort on GPUs (2: everywhere; 0: by merges)")          \
    X(PRODUCTS,      "MLX_VK_RANDOM_PRODUCTS",           0,                                                           \
      "additions for random numbers by the multipliers: 1 yes, 2 no (0: by device)")                                  \
    X(STATS,         "MLX_VK_STATS",                     0, "count what ran and what was refused: mlxvk_stats_report") \
    X(QMM_STATS, "MLX_VK_QMM_STATS", 0, "the same for quantized matmul alone, printed when the device goes")          \
    X(SDPA_STATS,    "MLX_VK_SDPA_STATS",                0, "the same for attention")                                  \
    X(ALGO_STATS,    "MLX_VK_ALGO_STATS",                0, "the same for pipelines and memory found again, or made")  \
    X(DEBUG_ROPE,    "MLX_VK_DEBUG_ROPE_REJECT",         0, "print each rope once that takes a slower path, and why")  \
    X(DEBUG_SDPA,    "MLX_VK_DEBUG_SDPA_REJECT",         0, "the same for attention")                                  \
    X(DEBUG_SPLIT, "MLX_VK_DEBUG_SDPA_SPLITK", 0, "print once how attention splits keys, for each signature")         \
    X(DEBUG_ARG,     "MLX_VK_DEBUG_ARGREDUCE_REJECT",    0,                                                           \
      "print each argmax or argmin once that takes a slower path, and why")                                           \
    X(DEBUG_BINARY,  "MLX_VK_DEBUG_BINARY_FALLBACK",     0, "the same for operations of two operands")                 \
    X(DEBUG_BITWISE, "MLX_VK_DEBUG_BITWISE_FALLBACK",    0, "the same for bitwise ones")                               \
    X(DEBUG_DEQUANTIZE, "MLX_VK_DEBUG_FAST_QUANTIZE_FALLBACK", 0, "the same for dequantize")                           \
    X(DEBUG_GATHER,  "MLX_VK_DEBUG_GATHER_FALLBACK",     0, "the same for gathers")                                    \
    X(DEBUG_FUSED,   "MLX_VK_DEBUG_COMPILED_DETAIL",     0, "print once what is fused, for each signature")            \
    X(DEBUG_CHAINS, "MLX_VK_DEBUG_CHAINS", 0, "write each chain's kernel to chain-*.spv in the current folder")       \
    X(PROFILE,       "MLX_VK_PROFILE",                   0, "a timestamp around each dispatch")                        \
    X(PROFILE_FUSED, "MLX_VK_PROFILE_COMPILED_DETAIL",   0, "name fused operations in profiles, not their kernels")    \
    X(POISON, "MLX_VK_POISON", 0, "fill new and freed mapped memory with garbage (2: with NaN)")                      \
    X(NO_BARRIERS,   "MLX_VK_TEST_NO_BARRIERS",          0, "leave barriers out (to prove that tests notice)")

enum gate {
#define X(id, name, value, what) GATE_##id,
    GATES(X)
#undef X
    GATE_COUNT
};

/* The one whose value is text. */
static const struct { const char *name, *what; } device_gate = {
    "MLX_VK_DEVICE", "the device, by index or part of its name" };
enum { WANTED_TEXT = 64 };

static const struct gate_row { const char *name; int value; const char *what; } gate_table[GATE_COUNT] = {
#define X(id, name, value, what) { name, value, what },
    GATES(X)
#undef X
};

/* What follows NAME= in "NAME=value NAME=value", else in the environment; NULL where it is in neither. */
static const char *gate_text(const char *text, const char *name)
{
    size_t n = strlen(name);
    const char *env = getenv(name);
    for (const char *p = text; p && (p = strstr(p, name)); p += n)
        if (p[n] == '=' && (p == text || p[-1] == ' ' || p[-1] == ',')) return p + n + 1;
    return env && *env ? env : NULL;
}

/* wanted: the device's name, where the caller gives none. */
static void read_gates(int values[GATE_COUNT], char wanted[WANTED_TEXT], const char *text, const char *name)
{
    const char *device = name && *name ? name : gate_text(text, device_gate.name);
    for (int i = 0; i < GATE_COUNT; i++) {
        const char *value = gate_text(text, gate_table[i].name);
        values[i] = value ? atoi(value) : gate_table[i].value;
    }
    snprintf(wanted, WANTED_TEXT, "%s", device ? device : "");
    if (!(name && *name) && device != getenv(device_gate.name)) wanted[strcspn(wanted, " ,")] = 0;
}

/* ==== >>kernels =================================================================================================== */

/* What a kernel may need of a device. Shared names: mlxvk_device_info_get_size, the kernel table, messages. */
#define CAPABILITIES(X)                                                                                               \
    X(STORAGE8,  "storage8")   X(STORAGE16, "storage16")  X(INT8,    "int8")     X(INT16,    "int16")                  \
    X(INT64,     "int64")      X(FLOAT16,   "float16")    X(BFLOAT16, "bfloat16") X(SUBGROUP, "subgroup")              \
    X(COOPMAT,   "cooperative_matrix") X(COOPMAT_BF16, "cooperative_matrix_bfloat16")                                  \
    X(COOPMAT2,  "cooperative_matrix2") X(HALF_CONVERSION, "half_conversion")                                         \
    X(INT_DOT, "integer_dot_product") X(MEMORY_MODEL, "vulkan_memory_model")

enum capability_bit {
#define X(id, name) CAPBIT_##id,
    CAPABILITIES(X)
#undef X
    CAPABILITY_COUNT
};
enum capability {
#define X(id, name) CAP_##id = 1 << CAPBIT_##id,
    CAPABILITIES(X)
#undef X
    CAP_NONE = 0
};
static const char *const capability_names[CAPABILITY_COUNT] = {
#define X(id, name) name,
    CAPABILITIES(X)
#undef X
};

#include "gen/spirv.h"

#define CAP_SMALL (CAP_STORAGE8 | CAP_STORAGE16)      /* emulated where a device lacks one of them, see >>modules */

/* What shaders say of themselves: their push constants, constants and bindings by name, and a row of KERNELS each. */
#include "gen/kernels.h"

_Static_assert((int)MLXVK_BOOL == DTYPE_BOOL && (int)MLXVK_UINT8 == DTYPE_U8 && (int)MLXVK_UINT16 == DTYPE_U16 &&
               (int)MLXVK_UINT32 == DTYPE_U32 && (int)MLXVK_UINT64 == DTYPE_U64 && (int)MLXVK_INT8 == DTYPE_I8 &&
               (int)MLXVK_INT16 == DTYPE_I16 && (int)MLXVK_INT32 == DTYPE_I32 && (int)MLXVK_INT64 == DTYPE_I64 &&
               (int)MLXVK_FLOAT16 == DTYPE_F16 && (int)MLXVK_FLOAT32 == DTYPE_F32 &&
               (int)MLXVK_BFLOAT16 == DTYPE_BF16 && (int)MLXVK_COMPLEX64 == DTYPE_C64,
               "shaders/common.glsl has other numbers of dtypes");

enum kernel_id {
#define X(module, ...) K_##module,
    KERNELS(X)
#undef X
    KERNEL_COUNT,
#define X(module, id, ...) K_##id = K_##module,
    KERNELS(X)
#undef X
};

static const struct kernel_row {
    const char *name;
    const uint32_t *spirv;
    size_t size;
    uint32_t bindings, writes, push, constants, needs;
} kernel_table[KERNEL_COUNT] = {
#define X(module, id, bindings, writes, push, constants, needs) \
    { #module, mlxvk_spv_##module, sizeof mlxvk_spv_##module, bindings, writes, push, constants, needs },
    KERNELS(X)
#undef X
};

/* ==== >>device ==================================================================================================== */

enum { MAX_BINDINGS = 16, PUSH_SIZE = 128, MAX_SPEC = 24, MAX_QUEUES = 8, MAX_WAITS = 16, SIZE_BINS = 200 };

/* What some drivers do unlike the others: bit, driver, and what is done about it. */
#define QUIRKS(X)                                                                                                     \
    X(SHORT_LOOPS, MESA_LLVMPIPE,                                                                                     \
      "loops end, without a word, after 65,535 iterations of an invocation in all: longer ones are cut")              \
    X(MULTIPLY_TO_ADD, NVIDIA_PROPRIETARY, "multipliers are idle beside the adders: random bits add by them")         \
    X(UNROLLS_FIRST, GOOGLE_SWIFTSHADER, "loops that ask for it are unrolled before constants are known: none asks")

enum quirk_bit {
#define X(id, driver, text) QUIRKBIT_##id,
    QUIRKS(X)
#undef X
    QUIRK_COUNT
};
enum quirk {
#define X(id, driver, text) QUIRK_##id = 1 << QUIRKBIT_##id,
    QUIRKS(X)
#undef X
    QUIRK_NONE = 0
};

static uint32_t quirks_of(VkDriverId id)
{
    uint32_t bits = 0;
#define X(quirk, driver, text) if (id == VK_DRIVER_ID_##driver) bits |= QUIRK_##quirk;
    QUIRKS(X)
#undef X
    return bits;
}

enum { LOOP_MOST = 65535 };                          /* iterations with QUIRK_SHORT_LOOPS */

/* Device memory; host memory that the queue reads; that it writes. */
enum memory_use { MEMORY_DEVICE, MEMORY_UPLOAD, MEMORY_READBACK, MEMORY_USES };

/* Everything that was asked of the physical device, once. */
struct capabilities {
    char name[VK_MAX_PHYSICAL_DEVICE_NAME_SIZE], driver[VK_MAX_DRIVER_NAME_SIZE], architecture[64];
    uint32_t bits, quirks;                           /* enum capability, enum quirk */
    uint32_t type, api;
    uint32_t subgroup, subgroup_least, subgroup_most, max_threads, max_bindings, max_groups[3], shared_memory,
             push_size;
    size_t max_range, max_elements, max_allocation, offset_align, memory_size;
    double timestamp_ns;
    uint64_t most_ahead;                             /* of a timeline's value, where a signal or a wait may be */
    /* n of n x n x n cooperative matrices, float16 and bfloat16; 0: none */
    uint8_t coopmat_size[2];
    bool push_descriptor, mapped, subgroup_forced, memory_budget, float_controls;
    bool cached;                                     /* the host reads mapped memory as fast as its own */
    uint8_t types[MEMORY_USES][VK_MAX_MEMORY_TYPES]; /* that memory may be of, the best first */
    uint32_t type_count[MEMORY_USES];
    uint32_t host_types, cached_types;               /* bits of those that the host maps; and reads fast */
};

struct list { void *items; uint32_t count, slots; };
struct table { void **items; uint32_t slots, used; };    /* open addressing by the key that each item begins with */

struct pipeline {
    /* hash of kernel and constants; the first member, see struct table */
    uint64_t key;
    const char *name;
    uint32_t kernel, spec_count, spec[MAX_SPEC];
    VkPipeline handle;
    uint32_t bindings;
    struct list words;                               /* its module, written at run time, until the pipeline is made */
};

enum { POOL_MOST = 4096 };
/* free blocks of one size; each begins with a pointer to the next */
struct pool { void *first; uint32_t count; };

struct kernel_count { uint64_t count, ns; };
/* the callers' own; fused ones, with a gate */
enum { FUSIONS_MOST = 16, KERNEL_COUNTS = KERNEL_COUNT + 1 + FUSIONS_MOST };

/* ---- tuning: one row a class of devices ---- */

/* How kernels cut their work. The first row that fits holds: the device's type (-1: any) and GiB of memory. Measured
 * on an NVIDIA H200 (large) and on Mesa's lavapipe (cpu), computed for the others. Gates override some fields by
 * name. */
struct tuning {
    const char *name;
    int type;
    uint32_t memory;
    uint32_t processors;                             /* workgroups that run at once, about */
    /* bytes and multiplications a microsecond, for estimates of time */
    double bandwidth, rate;
    uint32_t row_threads, row_least;                 /* of a workgroup that takes rows: at most, at least */
    uint32_t rope_items;                             /* threads from which on each takes several heads */
    uint32_t vjp_rows;                               /* rows that a workgroup adds up */
    /* float32 tiles: the first, for half types, how many (0: all from there) */
    uint32_t tile_first, tile_half, tile_count;
    bool deep;                                       /* the depth of a tile's step in one go */
    double winograd_byte;                            /* multiplications in the time of a byte between its steps */
    struct decode_row {
        uint32_t groups, keys;                       /* workgroups to aim at, the fewest keys that are worth one */
        /* queries that share what one reads; up to how many of a key's head */
        uint32_t rows, most;
        /* for up to two queries, for more: keys a thread reads at once, eights of each */
        uint32_t ahead[2], chunks[2];
    } decode;
    struct quant_tuning {
        /* rows of x up to which it holds; rows of W a team; of a workgroup */
        uint32_t max_m, rows, threads;
        uint32_t teams, max_split;                   /* teams to aim at, by sharing rows */
    } qmv[3];
    bool held, entries;                              /* products by qmv_held.comp; by index arrays one by one */
    /* rows of x taken a few at a time; from which on the weight is unpacked */
    uint32_t few, unpack;
    /* sorts by digits; Fourier transforms in a pipeline for each length */
    bool radix, fft_fixed;
    uint32_t scatter_batch, factor_threads;
    uint32_t fft_lines;                              /* elements of a workgroup of lines */
    uint32_t chain_seen;                             /* times that a chain is seen before its kernel is made */
    /* steps that pay for a secondary command buffer, without and with graphics */
    uint32_t segment[2];
};

static const struct tuning tunings[] = {
    { .name = "cpu", .type = VK_PHYSICAL_DEVICE_TYPE_CPU, .processors = 2, .bandwidth = 8e3, .rate = 2e4,
      .row_threads = 64, .row_least = 16, .rope_items = 64, .vjp_rows = 16, .tile_first = 2, .tile_half = 2,
          .tile_count = 1,
      .winograd_byte = 1,
      .decode = { 1, 1, 1, UINT32_MAX, { 1, 1 }, { 2, 2 } },           /* its caches do what tiles do elsewhere */
      .qmv = { { 8, 4, 64, 8, 1 } }, .entries = true, .few = UINT32_MAX, .unpack = UINT32_MAX,
      .scatter_batch = 2, .factor_threads = 32, .fft_lines = UINT32_MAX, .chain_seen = 64, .segment = { 4, 4 } },
    { .name = "large", .type = VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU, .memory = 64, .processors = 132, .bandwidth = 4e6,
      .rate = 2e7,
      .row_threads = 512, .row_least = 128, .rope_items = 8192, .vjp_rows = 1024, .tile_half = 1, .deep = true,
          .winograd_byte = 2,
      .decode = { 264, 64, 8, 32, { 4, 4 }, { 2, 1 } },
      .qmv = { { 2, 4, 128, 3072, 4 }, { 4, 4, 128, 3072, 4 }, { 8, 2, 128, 3072, 4 } }, .held = true, .few = 8,
          .unpack = 33,
      .radix = true, .fft_fixed = true, .scatter_batch = 4, .factor_threads = 256, .fft_lines = 1024, .chain_seen = 3,
          .segment = { 12, 32 } },
    { .name = "discrete", .type = VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU, .processors = 132, .bandwidth = 5e5,
      .rate = 5e6,
      .row_threads = 512, .row_least = 128, .rope_items = 8192, .vjp_rows = 1024, .tile_half = 1, .deep = true,
          .winograd_byte = 8,
      .decode = { 264, 64, 8, 32, { 4, 4 }, { 2, 1 } },
      .qmv = { { 2, 4, 128, 3072, 4 }, { 4, 4, 128, 3072, 4 }, { 8, 2, 128, 3072, 4 } }, .held = true, .few = 8,
          .unpack = 33,
      .radix = true, .fft_fixed = true, .scatter_batch = 4, .factor_threads = 256, .fft_lines = 1024, .chain_seen = 3,
          .segment = { 12, 32 } },
    { .name = "shared", .type = -1, .processors = 16, .bandwidth = 5e4, .rate = 5e5,
      .row_threads = 512, .row_least = 128, .rope_items = 8192, .vjp_rows = 1024, .tile_half = 1, .deep = true,
          .winograd_byte = 8,
      .decode = { 64, 128, 8, 32, { 4, 2 }, { 2, 1 } },
      .qmv = { { 2, 4, 128, 3072, 4 }, { 4, 4, 128, 3072, 4 }, { 8, 2, 128, 3072, 4 } }, .held = true, .few = 8,
          .unpack = 33,
      .radix = true, .fft_fixed = true, .scatter_batch = 4, .factor_threads = 256, .fft_lines = 1024, .chain_seen = 3,
          .segment = { 12, 32 } },
};

static const struct tuning *tuning_for(uint32_t type, size_t memory)
{
    const struct tuning *t = tunings;
    while (t->type >= 0 && ((uint32_t)t->type != type || memory >> 30 < t->memory)) t++;
    return t;
}

struct device {
    int refs;
    mutex lock, event_lock;                          /* event_lock: of events' top; taken last, and for moments only */
    mlxvk_allocator allocator;
    void (*on_error)(const mlxvk_error *, void *);
    void (*own_on_error)(const mlxvk_error *, void *);                 /* the description's */
    void *user;
    mlxvk_error error;
    int lost;                                        /* sticky; like all that changes it is the lock's */
    int gate[GATE_COUNT];
    char wanted[WANTED_TEXT];                        /* the device asked for, "" for any */
    const struct tuning *tuning;                     /* of its class */
    struct capabilities caps;

    VkInstance instance;
    PFN_vkDestroyInstance destroy_instance;
    VkPhysicalDevice physical;
    VkDevice handle;
    struct VolkDeviceTable vk;
    mlxvk_adopt adopt;
    bool adopted;
    uint32_t queue_family, queue_count, queue_users[MAX_QUEUES];
    VkQueue queues[MAX_QUEUES];

    VkDescriptorSetLayout set_layouts[MAX_BINDINGS + 1];
    VkPipelineLayout layouts[MAX_BINDINGS + 1];
    VkShaderModule modules[KERNEL_COUNT];
    VkPipelineCache pipeline_cache;
    struct table pipelines;
    struct chain_entry **chains;                     /* kernels made for chains, in buckets by key */
    uint32_t chain_count;

    struct block *blocks;
    struct buffer *cache_newest, *cache_oldest;      /* by age */
    struct buffer *bins[SIZE_BINS], *bins_last[SIZE_BINS];   /* by size, see size_bin */
    size_t active, peak, cached, memory_limit, cache_limit, wired_limit, reserved;

    struct timeline **timelines;
    uint32_t timeline_count, timeline_slots;
    struct stream *streams;
    struct stream *default_stream;
    struct stream *copies;                           /* between the host and memory that it does not map */
    struct buffer *staging[MEMORY_USES];             /* what they go through, where none goes on */
    size_t staged;                                   /* bytes of all of it */
    int stream_index;
    struct event *freed_events;                      /* that submissions may still name */
    uint32_t random_state[2];
    bool random_seeded;
    int index;                                       /* among the Vulkan devices, where it was made by index */

    mlxvk_stats stats;
    struct pool array_pool, storage_pool, buffer_pool;
    uint64_t serials;                                /* of buffers */
    uint32_t segment_least;                          /* steps from which on replay records them for good; 0: never */
    uint64_t array_ids, window;                      /* serial numbers: arrays; windows, */
    uint32_t met_arrays, met_storages;               /* and how many the current one has met */
    uint64_t marks, group, searches,
        polls;          /* serial numbers: command buffers; groups and searches of next_node;
                                                        searches of the cache */
    struct kernel_count kernel_counts[KERNEL_COUNTS];
    uint32_t noted;                                  /* bits of families whose notes are taken */
    struct table notes;
    uint64_t pipelines_found, buffers_found, buffers_made;
};

static void *host_alloc(struct device *d, size_t size)
{
    return d->allocator.allocate ? d->allocator.allocate(size, d->allocator.user) : malloc(size);
}

static void host_free(struct device *d, void *pointer)
{
    if (!pointer) return;
    if (d->allocator.release) d->allocator.release(pointer, d->allocator.user);
    else free(pointer);
}

static void *host_zalloc(struct device *d, size_t size)
{
    void *p = host_alloc(d, size);
    if (p) memset(p, 0, size);
    return p;
}

/* ---- small blocks of one size, kept for the next ---- */

static void *pool_take(struct device *d, struct pool *p, size_t size)
{
    void *block = p->first;
    if (!block) return host_alloc(d, size);
    memcpy(&p->first, block, sizeof p->first);
    p->count--;
    return block;
}

static void pool_keep(struct pool *p, void *block)
{
    memcpy(block, &p->first, sizeof p->first);
    p->first = block;
    p->count++;
}

/* With a caller's allocator, or poison, every block goes back at once: these look for mistakes. */
static void pool_give(struct device *d, struct pool *p, void *block)
{
    if (p->count == POOL_MOST || d->allocator.release || d->gate[GATE_POISON]) host_free(d, block);
    else pool_keep(p, block);
}

static void pool_free(struct device *d, struct pool *p)
{
    while (p->first) { void *block = p->first; memcpy(&p->first, block, sizeof p->first); host_free(d, block); }
}

/* ---- a list that grows ---- */

#define ITEM(list, type, i) (&((type *)(list).items)[i])
#define ADD(d, list, type) ((type *)list_add(d, list, sizeof(type), 1))

/* `n` more items, not written yet; NULL where there is no memory. */
static void *list_add(struct device *d, struct list *l, size_t size, uint32_t n)
{
    if (!l->items || l->count + n > l->slots) {
        uint32_t slots = l->count + n > 32 ? 2 * (l->count + n) : 32;
        void *grown = host_alloc(d, slots * size);
        if (!grown) return NULL;
        if (l->count) memcpy(grown, l->items, l->count * size);
        host_free(d, l->items);
        l->items = grown;
        l->slots = slots;
    }
    l->count += n;
    return (char *)l->items + size * (l->count - n);
}

/* Records an error of a call that has no stream. */
static int device_fail(struct device *d, int code, int vk, int line, const char *operation, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    set_error_v(&d->error, code, vk, line, operation, format, arguments);
    va_end(arguments);
    if (d->on_error) d->on_error(&d->error, d->user);
    return code;
}

/* Turns a VkResult into a result code, and remembers a lost device. */
static int vk_code(struct device *d, VkResult r)
{
    if (r == VK_ERROR_DEVICE_LOST) d->lost = MLXVK_ERROR_DEVICE_LOST;
    return r >= 0 ? 0 : r == VK_ERROR_DEVICE_LOST ? MLXVK_ERROR_DEVICE_LOST
         : r == VK_ERROR_OUT_OF_HOST_MEMORY ? MLXVK_ERROR_HOST_MEMORY
         : r == VK_ERROR_OUT_OF_DEVICE_MEMORY ? MLXVK_ERROR_MEMORY : MLXVK_ERROR_VULKAN;
}

/* Room for one more in a table that stays half empty; false where there is no memory. */
static bool table_room(struct device *d, struct table *t)
{
    struct table grown = { .slots = t->slots ? 2 * t->slots : 128, .used = t->used };
    if (2 * (t->used + 1) <= t->slots) return true;
    if (!(grown.items = host_zalloc(d, grown.slots * sizeof *grown.items))) return false;
    for (uint32_t i = 0; i < t->slots; i++) {
        if (!t->items[i]) continue;
        uint32_t at = (uint32_t)*(const uint64_t *)t->items[i] & (grown.slots - 1);
        while (grown.items[at]) at = (at + 1) & (grown.slots - 1);
        grown.items[at] = t->items[i];
    }
    host_free(d, t->items);
    *t = grown;
    return true;
}

/* ---- structures that older Vulkan headers lack ---- */

#ifndef VK_KHR_cooperative_matrix
typedef struct VkPhysicalDeviceCooperativeMatrixFeaturesKHR {
    VkStructureType sType; void *pNext; VkBool32 cooperativeMatrix, cooperativeMatrixRobustBufferAccess;
} VkPhysicalDeviceCooperativeMatrixFeaturesKHR;
typedef struct VkCooperativeMatrixPropertiesKHR {
    VkStructureType sType; void *pNext; uint32_t MSize, NSize, KSize;
    int32_t AType, BType, CType, ResultType; VkBool32 saturatingAccumulation; int32_t scope;
} VkCooperativeMatrixPropertiesKHR;
#define VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR ((VkStructureType)1000506000)
#define VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_KHR ((VkStructureType)1000506001)
#endif
#ifndef VK_NV_cooperative_matrix2
typedef struct VkPhysicalDeviceCooperativeMatrix2FeaturesNV {
    VkStructureType sType; void *pNext;
    VkBool32 cooperativeMatrixWorkgroupScope, cooperativeMatrixFlexibleDimensions, cooperativeMatrixReductions,
        cooperativeMatrixConversions, cooperativeMatrixPerElementOperations, cooperativeMatrixTensorAddressing,
        cooperativeMatrixBlockLoads;
} VkPhysicalDeviceCooperativeMatrix2FeaturesNV;
#define VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_2_FEATURES_NV ((VkStructureType)1000593000)
#endif
#ifndef VK_KHR_shader_bfloat16
typedef struct VkPhysicalDeviceShaderBfloat16FeaturesKHR {
    VkStructureType sType; void *pNext;
    VkBool32 shaderBFloat16Type, shaderBFloat16DotProduct, shaderBFloat16CooperativeMatrix;
} VkPhysicalDeviceShaderBfloat16FeaturesKHR;
#define VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_BFLOAT16_FEATURES_KHR ((VkStructureType)1000141000)
#endif
enum { COMPONENT_FLOAT16 = 0, COMPONENT_FLOAT32 = 1, COMPONENT_BFLOAT16 = 1000141000, SCOPE_SUBGROUP = 3 };
typedef VkResult (VKAPI_PTR *get_coopmat_properties)(VkPhysicalDevice, uint32_t *, VkCooperativeMatrixPropertiesKHR *);

/* The features that mlxvk looks at, chained in one order for asking and for enabling. */
struct features {
    VkPhysicalDeviceFeatures2 base;
    VkPhysicalDeviceVulkan11Features v11;
    VkPhysicalDeviceVulkan12Features v12;
    VkPhysicalDeviceShaderIntegerDotProductFeatures dot;
    VkPhysicalDeviceSubgroupSizeControlFeatures size_control;
    VkPhysicalDeviceCooperativeMatrixFeaturesKHR coopmat;
    VkPhysicalDeviceCooperativeMatrix2FeaturesNV coopmat2;
    VkPhysicalDeviceShaderBfloat16FeaturesKHR bfloat16;
};

enum extension { EXT_PUSH_DESCRIPTOR, EXT_DOT, EXT_SIZE_CONTROL, EXT_COOPMAT, EXT_COOPMAT2, EXT_BFLOAT16, EXT_BUDGET,
                 EXT_COUNT };
static const char *const extension_names[EXT_COUNT] = {
    "VK_KHR_push_descriptor", "VK_KHR_shader_integer_dot_product", "VK_EXT_subgroup_size_control",
    "VK_KHR_cooperative_matrix", "VK_NV_cooperative_matrix2", "VK_KHR_shader_bfloat16", "VK_EXT_memory_budget",
};

static void chain_features(struct features *f, const bool has[EXT_COUNT], uint32_t api)
{
    void **next = &f->base.pNext;
    memset(f, 0, sizeof *f);
    f->base.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
#define CHAIN(member, type) (f->member.sType = (type), *next = &f->member, next = &f->member.pNext)
    CHAIN(v11, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES);
    CHAIN(v12, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES);
    if (has[EXT_DOT] || api >= VK_API_VERSION_1_3)
        CHAIN(dot, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES);
    if (has[EXT_SIZE_CONTROL] || api >= VK_API_VERSION_1_3)
        CHAIN(size_control, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES);
    if (has[EXT_COOPMAT]) CHAIN(coopmat, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR);
    if (has[EXT_COOPMAT2]) CHAIN(coopmat2, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_2_FEATURES_NV);
    if (has[EXT_BFLOAT16]) CHAIN(bfloat16, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_BFLOAT16_FEATURES_KHR);
#undef CHAIN
}

/* Keeps of what the device supports what mlxvk uses; robust buffer access stays off: kernels check their own bounds. */
static void choose_features(struct features *f)
{
    struct features s = *f;
    VkPhysicalDeviceFeatures base = { .shaderInt64 = s.base.features.shaderInt64,
                                      .shaderInt16 = s.base.features.shaderInt16 };
    f->base.features = base;
    f->v11.multiview = f->v11.multiviewGeometryShader = f->v11.multiviewTessellationShader = VK_FALSE;
    f->v11.protectedMemory = f->v11.samplerYcbcrConversion = f->v11.shaderDrawParameters = VK_FALSE;
    f->v11.storageInputOutput16 = VK_FALSE;
    f->v11.variablePointers = f->v11.variablePointersStorageBuffer = VK_FALSE;
    memset(&f->v12.samplerMirrorClampToEdge, 0,
           sizeof f->v12 - offsetof(VkPhysicalDeviceVulkan12Features, samplerMirrorClampToEdge));
    f->v12.storageBuffer8BitAccess = s.v12.storageBuffer8BitAccess;
    f->v12.shaderFloat16 = s.v12.shaderFloat16;
    f->v12.shaderInt8 = s.v12.shaderInt8;
    f->v12.timelineSemaphore = s.v12.timelineSemaphore;
    f->v12.vulkanMemoryModel = s.v12.vulkanMemoryModel;
    f->v12.vulkanMemoryModelDeviceScope = s.v12.vulkanMemoryModelDeviceScope;
    f->coopmat.cooperativeMatrixRobustBufferAccess = VK_FALSE;
}

/* A feature whose gate is 0 is not there: not enabled, or not used where a program's own device has it. */
static void gate_features(struct features *f, const int gate[GATE_COUNT])
{
    if (!gate[GATE_STORAGE8]) f->v12.storageBuffer8BitAccess = f->v12.uniformAndStorageBuffer8BitAccess = VK_FALSE;
    if (!gate[GATE_STORAGE16]) f->v11.storageBuffer16BitAccess = f->v11.uniformAndStorageBuffer16BitAccess = VK_FALSE;
    if (!gate[GATE_INT8]) f->v12.shaderInt8 = VK_FALSE;
    if (!gate[GATE_INT16]) f->base.features.shaderInt16 = VK_FALSE;
    if (!gate[GATE_INT64]) f->base.features.shaderInt64 = VK_FALSE;
    if (!gate[GATE_FLOAT16]) f->v12.shaderFloat16 = VK_FALSE;
    if (!gate[GATE_INT_DOT]) f->dot.shaderIntegerDotProduct = VK_FALSE;
    if (gate[GATE_COOPMAT]) return;
    f->coopmat.cooperativeMatrix = f->bfloat16.shaderBFloat16CooperativeMatrix = VK_FALSE;
    memset(&f->coopmat2.cooperativeMatrixWorkgroupScope, 0,
           sizeof f->coopmat2 - offsetof(VkPhysicalDeviceCooperativeMatrix2FeaturesNV,
                                         cooperativeMatrixWorkgroupScope));
}

/* What an adopting program enabled: its chain, read into ours. */
static void adopt_features(struct features *f, const void *chain)
{
    for (const VkBaseInStructure *p = chain; p; p = p->pNext) {
#define TAKE(member, type)                                                                                           \
        if (p->sType == (type)) {                                                                                    \
            void *n = f->member.pNext;                                                                               \
            memcpy(&f->member, p, sizeof f->member);                                                                 \
            f->member.pNext = n;                                                                                     \
        }
        TAKE(base, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2)
        TAKE(v11, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES)
        TAKE(v12, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES)
        TAKE(dot, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES)
        TAKE(size_control, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES)
        TAKE(coopmat, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR)
        TAKE(coopmat2, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_2_FEATURES_NV)
        TAKE(bfloat16, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_BFLOAT16_FEATURES_KHR)
#undef TAKE
    }
}

/* The n of the n x n x n tiles of this type that the device multiplies into float32, by subgroup: 16, 8 or 0. */
static uint8_t coopmat_size(struct device *d, int component)
{
    uint8_t best = 0;
    VkCooperativeMatrixPropertiesKHR rows[64];
    uint32_t n = COUNT(rows);
    get_coopmat_properties get = (get_coopmat_properties)(void (*)(void))vkGetInstanceProcAddr(
        d->instance, "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR");
    memset(rows, 0, sizeof rows);
    for (uint32_t i = 0; i < n; i++) rows[i].sType = VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_KHR;
    if (!get || get(d->physical, &n, rows) < 0) return 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t size = rows[i].MSize;
        int a = (int)rows[i].AType, b = (int)rows[i].BType, c = (int)rows[i].CType, result = (int)rows[i].ResultType;
        if ((size == 16 || size == 8) && rows[i].NSize == size && rows[i].KSize == size && a == component &&
            b == component &&
            c == COMPONENT_FLOAT32 && result == COMPONENT_FLOAT32 && (int)rows[i].scope == SCOPE_SUBGROUP &&
                size > best)
            best = (uint8_t)size;
    }
    return best;
}

static uint32_t capability_bits(struct device *d, const struct features *f,
                                const VkPhysicalDeviceSubgroupProperties *sg,
                                const VkPhysicalDeviceFloatControlsProperties *fc)
{
    const VkSubgroupFeatureFlags basic = VK_SUBGROUP_FEATURE_BASIC_BIT | VK_SUBGROUP_FEATURE_ARITHMETIC_BIT |
                                         VK_SUBGROUP_FEATURE_SHUFFLE_BIT | VK_SUBGROUP_FEATURE_BALLOT_BIT;
    uint32_t bits = 0;
    bool nv2 = f->coopmat2.cooperativeMatrixWorkgroupScope && f->coopmat2.cooperativeMatrixFlexibleDimensions &&
               f->coopmat2.cooperativeMatrixTensorAddressing && f->coopmat2.cooperativeMatrixBlockLoads &&
               f->coopmat2.cooperativeMatrixConversions && f->coopmat2.cooperativeMatrixPerElementOperations;
    if (f->v12.storageBuffer8BitAccess) bits |= CAP_STORAGE8;
    if (f->v11.storageBuffer16BitAccess) bits |= CAP_STORAGE16;
    if (f->v12.shaderInt8) bits |= CAP_INT8;
    if (f->base.features.shaderInt16) bits |= CAP_INT16;
    if (f->base.features.shaderInt64) bits |= CAP_INT64;
    if (f->v12.shaderFloat16) bits |= CAP_FLOAT16;
    if (f->bfloat16.shaderBFloat16Type) bits |= CAP_BFLOAT16;
    if (f->v12.vulkanMemoryModel) bits |= CAP_MEMORY_MODEL;
    if (f->dot.shaderIntegerDotProduct) bits |= CAP_INT_DOT;
    if (d->gate[GATE_HALF_CONVERSION] && fc->shaderRoundingModeRTEFloat16 && fc->shaderDenormPreserveFloat16 &&
        fc->roundingModeIndependence != VK_SHADER_FLOAT_CONTROLS_INDEPENDENCE_NONE &&
        fc->denormBehaviorIndependence != VK_SHADER_FLOAT_CONTROLS_INDEPENDENCE_NONE) bits |= CAP_HALF_CONVERSION;
    if ((sg->supportedStages & VK_SHADER_STAGE_COMPUTE_BIT) && (sg->supportedOperations & basic) == basic &&
        d->caps.subgroup >= 4 && d->gate[GATE_SUBGROUP]) bits |= CAP_SUBGROUP;
    if (f->coopmat.cooperativeMatrix && f->v12.vulkanMemoryModel) {
        uint8_t *size = d->caps.coopmat_size;
        size[0] = coopmat_size(d, COMPONENT_FLOAT16);
        size[1] = f->bfloat16.shaderBFloat16CooperativeMatrix ? coopmat_size(d, COMPONENT_BFLOAT16) : 0;
        if (size[0] == 16) bits |= CAP_COOPMAT;
        if (size[1] == 16) bits |= CAP_COOPMAT_BF16;
        if (nv2) bits |= CAP_COOPMAT2;
    }
    return bits;
}

/* How good a memory type is for a use; 0: it is not to be used. Device memory: mapped by the host (unified memory,
 * resizable BAR) unless `plain`, in the largest heap of the device's; types of other kinds (protected, lazy, vendors')
 * want features. */
static int memory_rank(const VkPhysicalDeviceMemoryProperties *m, uint32_t type, enum memory_use use, bool plain,
                       size_t largest)
{
    const VkMemoryPropertyFlags local = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT,
        cached = VK_MEMORY_PROPERTY_HOST_CACHED_BIT,
        host = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    VkMemoryPropertyFlags f = m->memoryTypes[type].propertyFlags;
    const VkMemoryHeap *heap = &m->memoryHeaps[m->memoryTypes[type].heapIndex];
    bool main_heap = heap->size == largest && (heap->flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT);
    if (f & ~(local | host | cached)) return 0;
    if (use == MEMORY_UPLOAD) return (f & host) == host ? 1 + 2 * !(f & local) + !(f & cached) : 0;
    if (use == MEMORY_READBACK) return (f & host) == host ? 1 + !(f & local) + 2 * !!(f & cached) : 0;
    if (!(f & local)) return 0;
    return 1 + 4 * main_heap + ((f & host) == host && !plain ? (f & cached ? 3 : 2) : 0);
}

/* The memory types to use, the best first: see memory_rank. */
static void choose_memory(struct device *d)
{
    VkPhysicalDeviceMemoryProperties m;
    struct capabilities *c = &d->caps;
    bool plain = d->gate[GATE_STAGING] != 0;
    size_t largest = 0;
    vkGetPhysicalDeviceMemoryProperties(d->physical, &m);
    for (uint32_t i = 0; i < m.memoryHeapCount; i++)
        if ((m.memoryHeaps[i].flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT) && m.memoryHeaps[i].size > largest)
            largest = (size_t)m.memoryHeaps[i].size;
    for (uint32_t i = 0; i < m.memoryTypeCount; i++) {
        VkMemoryPropertyFlags f = m.memoryTypes[i].propertyFlags;
        bool host = (f & VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT) && (f & VK_MEMORY_PROPERTY_HOST_COHERENT_BIT);
        if (host) c->host_types |= 1u << i;
        if (host && (f & VK_MEMORY_PROPERTY_HOST_CACHED_BIT)) c->cached_types |= 1u << i;
    }
    for (int use = 0; use < MEMORY_USES; use++)
        for (int rank = 8; rank > 0; rank--)
            for (uint32_t i = 0; i < m.memoryTypeCount; i++)
                if (memory_rank(&m, i, (enum memory_use)use, plain, largest) == rank)
                    c->types[use][c->type_count[use]++] = (uint8_t)i;
    c->memory_size = largest;
    c->mapped = !plain && c->type_count[MEMORY_DEVICE] && (c->host_types >> c->types[MEMORY_DEVICE][0] & 1);
    c->cached = c->mapped && (c->cached_types >> c->types[MEMORY_DEVICE][0] & 1);
}

static void read_limits(struct device *d, const VkPhysicalDeviceProperties *p)
{
    struct capabilities *c = &d->caps;
    snprintf(c->name, sizeof c->name, "%s", p->deviceName);
    c->type = p->deviceType;
    c->api = p->apiVersion;
    c->offset_align = max_size((size_t)p->limits.minStorageBufferOffsetAlignment, 16);
    c->max_range = p->limits.maxStorageBufferRange;
    if (d->gate[GATE_BINDING_RANGE] > 0)
        c->max_range = min_size(c->max_range, max_size((size_t)d->gate[GATE_BINDING_RANGE], 4 * c->offset_align));
    c->max_elements = min_size(c->max_range, (size_t)1 << 31);
    c->max_threads = min_u32(p->limits.maxComputeWorkGroupInvocations, p->limits.maxComputeWorkGroupSize[0]);
    if (d->gate[GATE_THREADS] > 0) c->max_threads = min_u32(c->max_threads, (uint32_t)d->gate[GATE_THREADS]);
    c->max_bindings = min_u32(p->limits.maxPerStageDescriptorStorageBuffers, p->limits.maxDescriptorSetStorageBuffers);
    c->max_bindings = min_u32(min_u32(c->max_bindings, p->limits.maxPerStageResources), MAX_BINDINGS);
    if (d->gate[GATE_BUFFERS] > 0) c->max_bindings = min_u32(c->max_bindings, (uint32_t)d->gate[GATE_BUFFERS]);
    for (int i = 0; i < 3; i++) {
        c->max_groups[i] = p->limits.maxComputeWorkGroupCount[i];
        if (d->gate[GATE_GRID] > 0) c->max_groups[i] = min_u32(c->max_groups[i], (uint32_t)d->gate[GATE_GRID]);
    }
    c->shared_memory = p->limits.maxComputeSharedMemorySize;
    if (d->gate[GATE_SHARED_MEMORY] > 0)
        c->shared_memory = min_u32(c->shared_memory, (uint32_t)d->gate[GATE_SHARED_MEMORY]);
    c->push_size = p->limits.maxPushConstantsSize;
    c->timestamp_ns = p->limits.timestampPeriod;
}

/* The sizes of subgroups that a pipeline may ask for, and the one that a gate makes all of them ask for. */
static void choose_subgroup(struct device *d, const struct features *f,
                            const VkPhysicalDeviceSubgroupSizeControlProperties *p)
{
    struct capabilities *c = &d->caps;
    uint32_t wanted = (uint32_t)d->gate[GATE_SUBGROUP_SIZE];
    bool control = f->size_control.subgroupSizeControl && (p->requiredSubgroupSizeStages & VK_SHADER_STAGE_COMPUTE_BIT);
    c->subgroup_least = control ? p->minSubgroupSize : c->subgroup;
    c->subgroup_most = control ? p->maxSubgroupSize : c->subgroup;
    if (!wanted || wanted < c->subgroup_least || wanted > c->subgroup_most || (wanted & (wanted - 1))) return;
    if (c->subgroup_least == c->subgroup_most) return;                 /* all pipelines have it, without asking */
    c->subgroup = wanted;
    c->subgroup_forced = control;
    if (control) c->max_threads = min_u32(c->max_threads, wanted * p->maxComputeWorkgroupSubgroups);
}

/* Fills d->caps: the only place that asks. */
static void read_capabilities(struct device *d, const struct features *f, const bool has[EXT_COUNT])
{
    VkPhysicalDeviceDriverProperties driver = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES };
    VkPhysicalDeviceFloatControlsProperties fc = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FLOAT_CONTROLS_PROPERTIES,
                                                   .pNext = &driver };
    VkPhysicalDeviceTimelineSemaphoreProperties timeline = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_PROPERTIES, .pNext = &fc };
    VkPhysicalDeviceSubgroupProperties sg = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES,
                                              .pNext = &timeline };
    VkPhysicalDeviceSubgroupSizeControlProperties sizes = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_PROPERTIES, .pNext = &sg };
    VkPhysicalDeviceMaintenance3Properties m3 = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES,
        .pNext = has[EXT_SIZE_CONTROL] ? (void *)&sizes : (void *)&sg };
    VkPhysicalDevicePushDescriptorPropertiesKHR pushed = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PUSH_DESCRIPTOR_PROPERTIES_KHR, .pNext = &m3 };
    VkPhysicalDeviceProperties2 p = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
                                      .pNext = has[EXT_PUSH_DESCRIPTOR] ? (void *)&pushed : (void *)&m3 };
    struct capabilities *c = &d->caps;
    vkGetPhysicalDeviceProperties2(d->physical, &p);
    read_limits(d, &p.properties);
    snprintf(c->driver, sizeof c->driver, "%.120s %.120s", driver.driverName, driver.driverInfo);
    snprintf(c->architecture, sizeof c->architecture, "vulkan-%04x-%04x", p.properties.vendorID, p.properties.deviceID);
    c->subgroup = sg.subgroupSize;
    choose_subgroup(d, f, &sizes);
    c->max_allocation = (size_t)m3.maxMemoryAllocationSize;
    c->push_descriptor = has[EXT_PUSH_DESCRIPTOR] && d->gate[GATE_PUSH_DESC] &&
                         pushed.maxPushDescriptors >= c->max_bindings;
    c->memory_budget = has[EXT_BUDGET];
    c->bits = capability_bits(d, f, &sg, &fc);
    c->quirks = quirks_of(driver.driverID);
    c->most_ahead = timeline.maxTimelineSemaphoreValueDifference;
    choose_memory(d);
    d->tuning = tuning_for(d->caps.type, d->caps.memory_size);
}

/* ---- choosing a physical device ---- */

static const char *const install_hint =
    "install a driver (Debian, Ubuntu: apt install mesa-vulkan-drivers, or the vendor's) and the loader (libvulkan1)";

static int type_rank(uint32_t type)
{
    static const int rank[] = { 4, 1, 0, 2, 3 };     /* other, integrated, discrete, virtual, CPU */
    return type < COUNT(rank) ? rank[type] : 5;
}

static const char *type_name(uint32_t type)
{
    static const char *const names[] = { "other", "integrated", "discrete", "virtual", "cpu" };
    return type < COUNT(names) ? names[type] : "other";
}

/* The queue family to use: compute, without graphics where there is such a family. -1: none. */
static int compute_family(VkPhysicalDevice physical, uint32_t *queues)
{
    VkQueueFamilyProperties f[32];
    uint32_t n = COUNT(f);
    int best = -1;
    vkGetPhysicalDeviceQueueFamilyProperties(physical, &n, f);
    for (uint32_t i = 0; i < n; i++)
        if ((f[i].queueFlags & VK_QUEUE_COMPUTE_BIT) && (best < 0 || !(f[i].queueFlags & VK_QUEUE_GRAPHICS_BIT))) {
            best = (int)i;
            *queues = f[i].queueCount;
            if (!(f[i].queueFlags & VK_QUEUE_GRAPHICS_BIT)) break;
        }
    return best;
}

static bool usable(VkPhysicalDevice physical, VkPhysicalDeviceProperties *p)
{
    VkPhysicalDeviceVulkan12Features v12 = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES };
    VkPhysicalDeviceFeatures2 f = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, .pNext = &v12 };
    uint32_t queues;
    vkGetPhysicalDeviceProperties(physical, p);
    if (p->apiVersion < VK_API_VERSION_1_2 || compute_family(physical, &queues) < 0) return false;
    vkGetPhysicalDeviceFeatures2(physical, &f);
    return v12.timelineSemaphore;
}

static char lower_case(char c) { return c >= 'A' && c <= 'Z' ? (char)(c + 32) : c; }
static bool same_letter(char a, char b) { return lower_case(a) == lower_case(b); }

static bool contains(const char *text, const char *part)
{
    for (; *text; text++) {
        size_t i = 0;
        while (part[i] && text[i] && same_letter(text[i], part[i])) i++;
        if (!part[i]) return true;
    }
    return false;
}

/* Picks by index or part of the name where given, else by type. */
static int choose_physical(struct device *d, const char *wanted, mlxvk_error *error)
{
    VkPhysicalDevice list[32];
    uint32_t n = COUNT(list);
    char *end = NULL;
    long index = *wanted ? strtol(wanted, &end, 10) : -1;
    bool by_index = *wanted && *end == 0;
    int best = -1;
    if (vkEnumeratePhysicalDevices(d->instance, &n, list) < 0) n = 0;
    for (uint32_t i = 0; i < n; i++) {
        VkPhysicalDeviceProperties p;
        if (!usable(list[i], &p)) continue;
        if (by_index ? index != (long)i : *wanted && !contains(p.deviceName, wanted)) continue;
        if (best < 0 || type_rank(p.deviceType) < best) {
            best = type_rank(p.deviceType);
            d->physical = list[i];
        }
    }
    if (best >= 0) return 0;
    if (*wanted && n)
        set_error(error, MLXVK_ERROR_NO_DEVICE, 0, __LINE__, "device", "no usable device matches \"%s\" (of %u found)",
                  wanted, n);
    else
        set_error(error, MLXVK_ERROR_NO_DEVICE, 0, __LINE__, "device",
                  "%u Vulkan devices, none with Vulkan 1.2, compute and timeline semaphores; %s", n, install_hint);
    return MLXVK_ERROR_NO_DEVICE;
}

/* Held while volk's functions of instances are loaded and used, for they are global: those of devices are the
 * device's. */
static mutex volk_lock = MUTEX_INIT;

static int load_vulkan(PFN_vkGetInstanceProcAddr custom, mlxvk_error *error)
{
    if (custom) volkInitializeCustom(custom);
    else if (volkInitialize() != VK_SUCCESS) {
        set_error(error, MLXVK_ERROR_NO_LOADER, 0, __LINE__, "device", "libvulkan was not found; %s", install_hint);
        return MLXVK_ERROR_NO_LOADER;
    }
    return 0;
}

static int create_instance(VkInstance *instance, mlxvk_error *error)
{
    VkApplicationInfo app = { .sType = VK_STRUCTURE_TYPE_APPLICATION_INFO, .pApplicationName = "mlxvk",
                              .apiVersion = VK_API_VERSION_1_3 };
    VkInstanceCreateInfo info = { .sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO, .pApplicationInfo = &app };
    VkResult r;
    if (volkGetInstanceVersion() < VK_API_VERSION_1_2) {
        set_error(error, MLXVK_ERROR_NO_LOADER, 0, __LINE__, "device", "the Vulkan loader is older than 1.2; %s",
                  install_hint);
        return MLXVK_ERROR_NO_LOADER;
    }
    r = vkCreateInstance(&info, NULL, instance);
    if (r != VK_SUCCESS) {
        set_error(error, MLXVK_ERROR_NO_DEVICE, r, __LINE__, "device", "no Vulkan instance (VkResult %d); %s", r,
                  install_hint);
        return MLXVK_ERROR_NO_DEVICE;
    }
    volkLoadInstanceOnly(*instance);
    return 0;
}

static void find_extensions(struct device *d, bool has[EXT_COUNT])
{
    uint32_t n = 0;
    VkExtensionProperties *list;
    memset(has, 0, EXT_COUNT * sizeof *has);
    if (vkEnumerateDeviceExtensionProperties(d->physical, NULL, &n, NULL) < 0) return;
    list = host_alloc(d, (n + 1) * sizeof *list);
    if (list && vkEnumerateDeviceExtensionProperties(d->physical, NULL, &n, list) >= 0)
        for (uint32_t i = 0; i < n; i++)
            for (int e = 0; e < EXT_COUNT; e++)
                if (!strcmp(list[i].extensionName, extension_names[e])) has[e] = true;
    host_free(d, list);
    if (!has[EXT_COOPMAT]) has[EXT_COOPMAT2] = false;
}

/* Makes the VkDevice with every queue of the compute family up to MAX_QUEUES. */
static int create_logical(struct device *d, struct features *f, const bool has[EXT_COUNT], mlxvk_error *error)
{
    static const float priorities[MAX_QUEUES] = { 1, 1, 1, 1, 1, 1, 1, 1 };
    const char *names[EXT_COUNT];
    uint32_t available = 1, count = 0;
    VkResult r;
    VkDeviceQueueCreateInfo queue = { .sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                      .pQueuePriorities = priorities };
    VkDeviceCreateInfo info = { .sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO, .pNext = &f->base,
                                .queueCreateInfoCount = 1,
                                .pQueueCreateInfos = &queue, .ppEnabledExtensionNames = names };
    for (int e = 0; e < EXT_COUNT; e++) if (has[e]) names[count++] = extension_names[e];
    info.enabledExtensionCount = count;
    d->queue_family = queue.queueFamilyIndex = (uint32_t)compute_family(d->physical, &available);
    d->queue_count = queue.queueCount = min_u32(available, MAX_QUEUES);
    r = vkCreateDevice(d->physical, &info, NULL, &d->handle);
    if (r == VK_SUCCESS) return 0;
    set_error(error, MLXVK_ERROR_NO_DEVICE, r, __LINE__, "device", "vkCreateDevice failed on %s (VkResult %d)",
              d->caps.name, r);
    return MLXVK_ERROR_NO_DEVICE;
}

/* What a gate asks of the device, and it cannot do. */
static int check_gates(struct device *d, mlxvk_error *error)
{
    uint32_t wanted = (uint32_t)d->gate[GATE_SUBGROUP_SIZE];
    if (!wanted || wanted == d->caps.subgroup) return 0;
    set_error(error, MLXVK_ERROR_UNSUPPORTED, 0, __LINE__, "device",
              "%s=%u: %s lets a kernel have subgroups of %u to %u",
              gate_table[GATE_SUBGROUP_SIZE].name, wanted, d->caps.name, d->caps.subgroup_least, d->caps.subgroup_most);
    return MLXVK_ERROR_UNSUPPORTED;
}

static int open_device(struct device *d, mlxvk_error *error)
{
    struct features f;
    bool has[EXT_COUNT];
    int code = load_vulkan(NULL, error);
    if (!code) code = create_instance(&d->instance, error);
    d->destroy_instance = vkDestroyInstance;
    if (!code) code = choose_physical(d, d->wanted, error);
    if (code) return code;
    find_extensions(d, has);
    chain_features(&f, has, VK_API_VERSION_1_2);
    vkGetPhysicalDeviceFeatures2(d->physical, &f.base);
    choose_features(&f);
    gate_features(&f, d->gate);
    read_capabilities(d, &f, has);
    code = check_gates(d, error);
    if (!code) code = create_logical(d, &f, has, error);
    if (code) return code;
    volkLoadDeviceTable(&d->vk, d->handle);
    for (uint32_t i = 0; i < d->queue_count; i++) d->vk.vkGetDeviceQueue(d->handle, d->queue_family, i, &d->queues[i]);
    return 0;
}

static int adopt_device(struct device *d, const mlxvk_adopt *a, mlxvk_error *error)
{
    struct features f;
    bool has[EXT_COUNT] = { false };
    PFN_vkGetInstanceProcAddr get;
    int code;
    if (!a->instance || !a->physical_device || !a->device || !a->queue || (a->extension_count && !a->extensions)) {
        set_error(error, MLXVK_ERROR_ARGUMENT, 0, __LINE__, "device",
                  "adopt wants an instance, a physical device, a device, a queue, and extensions if it counts some");
        return MLXVK_ERROR_ARGUMENT;
    }
    memcpy(&get, &a->get_instance_proc_addr, sizeof get);
    code = load_vulkan(get, error);
    if (code) return code;
    d->adopt = *a;
    d->adopted = true;
    d->instance = (VkInstance)a->instance;
    d->physical = (VkPhysicalDevice)a->physical_device;
    d->handle = (VkDevice)a->device;
    volkLoadInstanceOnly(d->instance);
    volkLoadDeviceTable(&d->vk, d->handle);
    d->queue_family = a->queue_family;
    d->queue_count = 1;
    d->queues[0] = (VkQueue)a->queue;
    for (uint32_t i = 0; i < a->extension_count; i++)
        for (int e = 0; e < EXT_COUNT; e++)
            if (!strcmp(a->extensions[i], extension_names[e])) has[e] = true;
    chain_features(&f, has, VK_API_VERSION_1_2);
    adopt_features(&f, a->features);
    gate_features(&f, d->gate);
    read_capabilities(d, &f, has);
    if (f.v12.timelineSemaphore) return check_gates(d, error);
    set_error(error, MLXVK_ERROR_NO_DEVICE, 0, __LINE__, "device",
              "the adopted device was made without timelineSemaphore (VkPhysicalDeviceVulkan12Features)");
    return MLXVK_ERROR_NO_DEVICE;
}

/* ==== >>notes ===================================================================================================== */

/* What ran and what was refused, counted by family, kernel and signature where a gate asks for it. */

enum family { NOTE_QMM, NOTE_SDPA, NOTE_SPLIT, NOTE_ROPE, NOTE_ARG, NOTE_BINARY, NOTE_BITWISE, NOTE_DEQUANTIZE,
              NOTE_GATHER, NOTE_FUSED, NOTE_MATMUL, NOTE_CONV, NOTE_ALGO, FAMILIES };

/* stats: counts, and prints the counts when the device goes; debug: prints each refusal once (`all`: each note).
 * GATE_COUNT: none. */
static const struct family_row { const char *name; enum gate stats, debug; bool all; } family_table[FAMILIES] = {
    [NOTE_QMM]        = { "quantized_matmul", GATE_QMM_STATS,  GATE_COUNT,            false },
    [NOTE_SDPA]       = { "attention",        GATE_SDPA_STATS, GATE_DEBUG_SDPA,       false },
    [NOTE_SPLIT]      = { "attention parts",  GATE_COUNT,      GATE_DEBUG_SPLIT,      true },
    [NOTE_ROPE]       = { "rope",             GATE_COUNT,      GATE_DEBUG_ROPE,       false },
    [NOTE_ARG]        = { "argreduce",        GATE_COUNT,      GATE_DEBUG_ARG,        false },
    [NOTE_BINARY]     = { "binary",           GATE_COUNT,      GATE_DEBUG_BINARY,     false },
    [NOTE_BITWISE]    = { "bitwise",          GATE_COUNT,      GATE_DEBUG_BITWISE,    false },
    [NOTE_DEQUANTIZE] = { "dequantize",       GATE_COUNT,      GATE_DEBUG_DEQUANTIZE, false },
    [NOTE_GATHER]     = { "gather",           GATE_COUNT,      GATE_DEBUG_GATHER,     false },
    [NOTE_FUSED]      = { "fused",            GATE_COUNT,      GATE_DEBUG_FUSED,      true },
    [NOTE_MATMUL]     = { "matmul",           GATE_COUNT,      GATE_COUNT,            false },
    [NOTE_CONV]       = { "convolution",      GATE_COUNT,      GATE_COUNT,            false },
    [NOTE_ALGO]       = { "algorithms",       GATE_ALGO_STATS, GATE_COUNT,            false },
};

enum { NOTE_TEXT = 192 };

/* kernel and reason are constant texts; reason: why something was refused, or NULL. */
struct note { uint64_t key, count; enum family family; const char *kernel, *reason; char signature[NOTE_TEXT]; };

static bool gate_on(const int *gate, enum gate g) { return g != GATE_COUNT && gate[g]; }

static uint32_t noted_families(const int *gate)
{
    uint32_t bits = 0;
    for (int i = 0; i < FAMILIES; i++) {
        const struct family_row *row = &family_table[i];
        if (gate[GATE_STATS] || gate_on(gate, row->stats) || gate_on(gate, row->debug)) bits |= 1u << i;
    }
    return bits;
}

static void print_note(const struct note *n, bool count)
{
    fprintf(stderr, "[mlxvk] %s: %s%s%s: %s", family_table[n->family].name, n->kernel, n->reason ? " not taken, " : "",
            n->reason ? n->reason : "", n->signature);
    if (count) fprintf(stderr, ": %llu", (unsigned long long)n->count);
    fputc('\n', stderr);
}

static void free_notes(struct device *d)
{
    for (uint32_t i = 0; i < d->notes.slots; i++) host_free(d, d->notes.items[i]);
    host_free(d, d->notes.items);
    d->notes = (struct table){ 0 };
}

/* Without memory nothing is counted. */
static void note(struct device *d, enum family family, const char *kernel, const char *reason, const char *format, ...)
{
    struct note n = { .family = family, .kernel = kernel, .reason = reason }, *kept;
    const struct family_row *row = &family_table[family];
    struct table *t = &d->notes;
    va_list arguments;
    uint32_t at;
    va_start(arguments, format);
    vsnprintf(n.signature, sizeof n.signature, format, arguments);
    va_end(arguments);
    n.key = 0xcbf29ce484222325u ^ (uint64_t)(uintptr_t)kernel ^ (uint64_t)(uintptr_t)reason << 20;
    n.key ^= (uint64_t)family << 56;
    for (const char *p = n.signature; *p; p++) n.key = (n.key ^ (unsigned char)*p) * 0x100000001b3u;
    n.key ^= n.key >> 32;
    if (!table_room(d, t)) return;
    for (at = (uint32_t)n.key & (t->slots - 1); (kept = t->items[at]) != NULL; at = (at + 1) & (t->slots - 1))
        if (kept->key == n.key && kept->family == family && kept->kernel == kernel && kept->reason == reason &&
            !strcmp(kept->signature, n.signature)) { kept->count++; return; }
    if (!(kept = host_alloc(d, sizeof *kept))) return;
    n.count = 1;
    *kept = n;
    t->items[at] = kept;
    t->used++;
    if (gate_on(d->gate, row->debug) && (reason || row->all)) print_note(kept, false);
}

/* Arguments are looked at only where the family is noted. */
#define NOTE(d, family, ...) ((d)->noted >> (family) & 1 ? note((struct device *)(d), family, __VA_ARGS__) : (void)0)
#define NOTED(d, family, text) ((d)->noted >> (family) & 1 ? (text) : "")

static int by_family_and_count(const void *a, const void *b)
{
    const struct note *x = a, *y = b;
    if (x->family != y->family) return x->family < y->family ? -1 : 1;
    if (!x->reason != !y->reason) return x->reason ? 1 : -1;
    return x->count != y->count ? (x->count < y->count ? 1 : -1) : strcmp(x->signature, y->signature);
}

/* A sorted copy of the notes, with those that are counters; NULL without memory. The lock is held. */
static struct note *list_notes(struct device *d, uint32_t *count)
{
    const struct { const char *kernel; uint64_t count; } counters[] = {
        { "pipelines found", d->pipelines_found }, { "pipelines made", d->stats.pipelines },
        { "descriptor sets", d->stats.descriptor_sets }, { "buffers found in the cache", d->buffers_found },
        { "buffers allocated", d->buffers_made },
    };
    struct note *list = host_alloc(d, (d->notes.used + COUNT(counters)) * sizeof *list);
    *count = 0;
    if (!list) return NULL;
    for (uint32_t i = 0; i < d->notes.slots; i++)
        if (d->notes.items[i]) list[(*count)++] = *(const struct note *)d->notes.items[i];
    for (size_t i = 0; i < COUNT(counters) && d->noted >> NOTE_ALGO & 1; i++)
        list[(*count)++] = (struct note){ .count = counters[i].count, .family = NOTE_ALGO, .kernel = counters[i].kernel,
                                          .signature = "all" };
    qsort(list, *count, sizeof *list, by_family_and_count);
    return list;
}

/* The families whose gate asks for it. */
static void print_notes(struct device *d)
{
    uint32_t n;
    struct note *list;
    bool any = false;
    for (int i = 0; i < FAMILIES; i++) any = any || gate_on(d->gate, family_table[i].stats);
    if (!any || !(list = list_notes(d, &n))) return;
    for (uint32_t i = 0; i < n; i++)
        if (gate_on(d->gate, family_table[list[i].family].stats)) print_note(&list[i], true);
    host_free(d, list);
}

/* Sizes that vary from step to step, by powers of two. */
static uint32_t size_class(uint32_t n)
{
    uint32_t p = 1;
    while (p < n && p < 1u << 31) p *= 2;
    return p;
}

/* ==== >>memory ==================================================================================================== */

enum { BLOCK_ALIGN = 256, PAGE = 16384, FEW_USES = 4 };
static const size_t BLOCK_SIZE = (size_t)64 << 20;   /* larger allocations get a block of their own */

struct range { size_t offset, size; struct range *next; };

/* One VkDeviceMemory with one VkBuffer over it. */
struct block {
    VkDeviceMemory memory;
    VkBuffer handle;
    size_t size, used;
    char *map;
    bool mapped, cached;                             /* by the host; and it reads it as fast as its own */
    struct range *free;                              /* by offset, never adjacent */
    struct block *next;
};

/* A stream's counter of submissions; outlives the stream, so that uses can be asked about. */
struct timeline {
    VkSemaphore semaphore;
    struct stream *stream;                           /* NULL once the stream is gone */
    uint64_t open, submitted, completed;             /* value of the submission being recorded, ... */
    uint64_t polled;                                 /* d->polls when it was last asked */
    uint32_t index;
};

struct use { struct timeline *line; uint64_t value; bool write; };

/* A piece of device memory. refs counts arrays' storage and the caller's handles. */
struct buffer {
    int refs;
    struct device *device;
    struct block *block;                             /* NULL: the caller's VkBuffer, or no bytes */
    VkBuffer handle;
    size_t offset, size, bytes;                      /* size is what it can hold, bytes what was asked for */
    char *map;
    struct use *uses, first_uses[FEW_USES];          /* unfinished submissions that touch it */
    int use_count, use_slots;
    uint64_t mark;                                   /* last command buffer that counted its size */
    uint64_t serial;                                 /* never the same twice; 0: its bytes were given back */
    int bin;                                         /* -1: not in the cache; while it is: */
    struct buffer *bin_next, *bin_previous, *newer, *older;
};

static VkBufferCreateInfo buffer_info(size_t size)
{
    VkBufferCreateInfo info = { .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, .size = size,
        .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT |
                 VK_BUFFER_USAGE_TRANSFER_DST_BIT };
    return info;
}

/* Memory of the best type that the buffer may have and that has so much left. */
static VkResult allocate_memory(struct device *d, const VkMemoryRequirements *need, enum memory_use use,
                                struct block *out)
{
    const struct capabilities *c = &d->caps;
    VkMemoryAllocateInfo info = { .sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, .allocationSize = need->size };
    VkResult r = VK_ERROR_OUT_OF_DEVICE_MEMORY;
    for (uint32_t i = 0; i < c->type_count[use] && r == VK_ERROR_OUT_OF_DEVICE_MEMORY; i++) {
        info.memoryTypeIndex = c->types[use][i];
        if (need->memoryTypeBits >> info.memoryTypeIndex & 1)
            r = d->vk.vkAllocateMemory(d->handle, &info, NULL, &out->memory);
    }
    out->cached = c->cached_types >> info.memoryTypeIndex & 1;
    out->mapped = (c->host_types >> info.memoryTypeIndex & 1) && (use != MEMORY_DEVICE || !d->gate[GATE_STAGING]);
    return r;
}

/* Memory with a buffer over it, mapped where the host can. */
static int raw_allocate(struct device *d, size_t size, enum memory_use use, struct block *out)
{
    VkBufferCreateInfo info = buffer_info(size);
    VkMemoryRequirements need;
    VkResult r = d->vk.vkCreateBuffer(d->handle, &info, NULL, &out->handle);
    void *map = NULL;
    if (r < 0) return vk_code(d, r);
    d->vk.vkGetBufferMemoryRequirements(d->handle, out->handle, &need);
    r = allocate_memory(d, &need, use, out);
    if (r >= 0) r = d->vk.vkBindBufferMemory(d->handle, out->handle, out->memory, 0);
    if (r >= 0 && out->mapped) r = d->vk.vkMapMemory(d->handle, out->memory, 0, VK_WHOLE_SIZE, 0, &map);
    out->map = map;
    out->size = size;
    if (r >= 0) return 0;
    d->vk.vkDestroyBuffer(d->handle, out->handle, NULL);
    d->vk.vkFreeMemory(d->handle, out->memory, NULL);
    memset(out, 0, sizeof *out);
    return vk_code(d, r);
}

static void block_destroy(struct device *d, struct block *b)
{
    struct block **link = &d->blocks;
    while (*link && *link != b) link = &(*link)->next;
    if (*link) *link = b->next;
    for (struct range *r = b->free, *next; r; r = next) { next = r->next; host_free(d, r); }
    d->vk.vkDestroyBuffer(d->handle, b->handle, NULL);
    d->vk.vkFreeMemory(d->handle, b->memory, NULL);
    d->reserved -= b->size;
    host_free(d, b);
}

static int block_create(struct device *d, size_t size, struct block **out)
{
    struct block *b = host_zalloc(d, sizeof *b);
    struct range *all = host_alloc(d, sizeof *all);
    int code = b && all ? raw_allocate(d, size, MEMORY_DEVICE, b) : MLXVK_ERROR_HOST_MEMORY;
    if (code) {
        host_free(d, b);
        host_free(d, all);
        return code;
    }
    *all = (struct range){ 0, size, NULL };
    b->free = all;
    b->next = d->blocks;
    d->blocks = b;
    d->reserved += size;
    *out = b;
    return 0;
}

static struct buffer *buffer_new(struct device *d)
{
    struct buffer *b = pool_take(d, &d->buffer_pool, sizeof *b);
    if (!b) return NULL;
    *b = (struct buffer){ .device = d, .uses = b->first_uses, .use_slots = FEW_USES, .bin = -1,
                          .serial = ++d->serials };
    return b;
}

/* Stays readable until the device goes: kept windows ask for the serial of buffers that they knew. */
static void buffer_end(struct device *d, struct buffer *b)
{
    if (b->uses != b->first_uses) host_free(d, b->uses);
    b->serial = 0;
    pool_keep(&d->buffer_pool, b);
}

/* First fit. The offset, or SIZE_MAX. */
static size_t block_take(struct device *d, struct block *b, size_t size)
{
    for (struct range **link = &b->free; *link; link = &(*link)->next) {
        struct range *r = *link;
        size_t offset = r->offset;
        if (r->size < size) continue;
        r->offset += size;
        r->size -= size;
        b->used += size;
        if (!r->size) { *link = r->next; host_free(d, r); }
        return offset;
    }
    return SIZE_MAX;
}

/* Gives bytes back and joins neighbours; a block that is all free goes, except one that is kept for reuse. Where
 * there is no memory for the list entry, the bytes stay unused until the block goes. */
static void block_give(struct device *d, struct block *b, size_t offset, size_t size)
{
    struct range *previous = NULL, *next = b->free, *fresh;
    b->used -= size;
    if (!b->used) { block_destroy(d, b); return; }
    while (next && next->offset < offset) { previous = next; next = next->next; }
    if (previous && previous->offset + previous->size == offset) {
        previous->size += size;
        if (next && offset + size == next->offset) {
            previous->size += next->size;
            previous->next = next->next;
            host_free(d, next);
        }
    } else if (next && offset + size == next->offset) {
        next->offset = offset;
        next->size += size;
    } else if ((fresh = host_alloc(d, sizeof *fresh)) != NULL) {
        *fresh = (struct range){ offset, size, next };
        if (previous) previous->next = fresh;
        else b->free = fresh;
    }
}

/* ---- the cache: freed buffers, by size for finding and by age for dropping ---- */

/* Four bins a power of two. */
static int size_bin(size_t size)
{
    int log = 0;
    for (size_t s = size; s > 1; s >>= 1) log++;
    if (log >= 2) log = 4 * log + (int)((size >> (log - 2)) & 3);
    return log < SIZE_BINS ? log : SIZE_BINS - 1;
}

static void cache_insert(struct device *d, struct buffer *b)
{
    struct buffer **bin = &d->bins[b->bin = size_bin(b->size)];
    b->bin_next = NULL;
    b->bin_previous = d->bins_last[b->bin];
    if (b->bin_previous) b->bin_previous->bin_next = b;
    else *bin = b;                                   /* at the end: the one that waited longest is taken first, */
    d->bins_last[b->bin] = b;                        /* which spares barriers between unrelated temporaries */
    b->older = d->cache_newest;
    b->newer = NULL;
    if (d->cache_newest) d->cache_newest->newer = b;
    else d->cache_oldest = b;
    d->cache_newest = b;
    d->cached += b->size;
}

static void cache_remove(struct device *d, struct buffer *b)
{
    if (b->bin_previous) b->bin_previous->bin_next = b->bin_next;
    else d->bins[b->bin] = b->bin_next;
    if (b->bin_next) b->bin_next->bin_previous = b->bin_previous;
    else d->bins_last[b->bin] = b->bin_previous;
    if (b->newer) b->newer->older = b->older;
    else d->cache_newest = b->older;
    if (b->older) b->older->newer = b->newer;
    else d->cache_oldest = b->newer;
    d->cached -= b->size;
    b->bin = -1;
}

/* Asks the driver once a search of the cache: see cache_find. */
static uint64_t timeline_completed(struct device *d, struct timeline *t)
{
    uint64_t value = 0;
    if (t->completed >= t->submitted || t->polled == d->polls) return t->completed;
    t->polled = d->polls;
    if (d->vk.vkGetSemaphoreCounterValue(d->handle, t->semaphore, &value) >= 0 && value > t->completed)
        t->completed = value;
    return t->completed;
}

/* Drops the uses that are done; true when none is left but those on `line` (which may be NULL). */
static bool buffer_idle(struct device *d, struct buffer *b, const struct timeline *line)
{
    bool idle = true;
    for (int i = 0; i < b->use_count;) {
        if (b->uses[i].value <= b->uses[i].line->completed ||
            (b->uses[i].line != line && b->uses[i].value <= timeline_completed(d, b->uses[i].line)))
            b->uses[i] = b->uses[--b->use_count];
        else {
            if (b->uses[i].line != line) idle = false;
            i++;
        }
    }
    return idle;
}

static void buffer_destroy(struct device *d, struct buffer *b)
{
    if (b->block) block_give(d, b->block, b->offset, b->size);
    buffer_end(d, b);
}

/* The same as timeline_wait with the lock held, in the middle of what others must not see: where nothing gets done for
 * two seconds it is NOT_READY, for the work may wait for a thread that waits for the lock. */
static int timeline_wait_locked(struct device *d, struct timeline *t, uint64_t value)
{
    VkSemaphoreWaitInfo info = { .sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO, .semaphoreCount = 1,
                                 .pSemaphores = &t->semaphore, .pValues = &value };
    while (t->completed < value) {
        uint64_t now = 0;
        VkResult r = d->vk.vkWaitSemaphores(d->handle, &info, 2000000000u);
        if (r == VK_SUCCESS) now = value;
        else if (r == VK_TIMEOUT) r = d->vk.vkGetSemaphoreCounterValue(d->handle, t->semaphore, &now);
        if (r < 0) return vk_code(d, r);
        if (now <= t->completed) return MLXVK_ERROR_NOT_READY;
        t->completed = now;
    }
    return 0;
}

/* Waits until what was submitted with the buffer is done; not for what was not submitted. */
static int wait_uses(struct device *d, struct buffer *b)
{
    for (int i = 0; i < b->use_count; i++) {
        struct use *u = &b->uses[i];
        int code = u->value > u->line->submitted ? MLXVK_ERROR_MEMORY : timeline_wait_locked(d, u->line, u->value);
        if (code) return code;
    }
    b->use_count = 0;
    return 0;
}

/* Releases cached buffers, oldest first, until `bytes` are gone. Those still in flight are waited for only if
 * `wait`. */
static void cache_trim(struct device *d, size_t bytes, bool wait)
{
    size_t released = 0;
    d->polls++;
    for (struct buffer *b = d->cache_oldest, *newer; b && released < bytes; b = newer) {
        newer = b->newer;
        if (!d->lost && !buffer_idle(d, b, NULL)) {
            int code = wait ? wait_uses(d, b) : MLXVK_ERROR_NOT_READY;
            wait = wait && code != MLXVK_ERROR_NOT_READY;    /* what comes behind it would not be done either */
            if (code) continue;
        }
        released += b->size;
        cache_remove(d, b);
        buffer_destroy(d, b);
    }
}

/* MLX's rule: the smallest cached buffer that fits and is less than twice, or two pages over, what is asked. One
 * that is in flight fits only for the stream that uses it: submission order and a barrier make that safe. */
static struct buffer *cache_find(struct device *d, size_t size, const struct timeline *line)
{
    size_t limit = min_size(2 * size, size + 2 * (size_t)PAGE);
    struct buffer *best = NULL;
    d->polls++;
    for (int bin = size_bin(size), last = size_bin(limit); bin <= last && !best; bin++)
        for (struct buffer *b = d->bins[bin]; b; b = b->bin_next)
            if (b->size >= size && b->size < limit && (!best || b->size < best->size) && buffer_idle(d, b, line)) {
                best = b;
                if (b->size == size) break;
            }
    if (best) cache_remove(d, best);
    return best;
}

static size_t capacity_for(size_t size)
{
    return size > PAGE ? round_up(size, PAGE) : round_up(size, BLOCK_ALIGN);
}

/* A buffer as it was known: it may be gone by now, or another's. */
struct known_buffer { struct buffer *buffer; uint64_t serial; };

static int buffer_fresh(struct device *d, size_t capacity, struct buffer **out)
{
    struct buffer *b = buffer_new(d);
    struct block *block = NULL;
    size_t offset = SIZE_MAX;
    int code = 0;
    if (!b) return MLXVK_ERROR_HOST_MEMORY;
    if (capacity <= BLOCK_SIZE / 2) {
        for (block = d->blocks; block; block = block->next)
            if (block->size == BLOCK_SIZE && (offset = block_take(d, block, capacity)) != SIZE_MAX) break;
        if (!block) code = block_create(d, BLOCK_SIZE, &block);
    } else code = block_create(d, capacity, &block);
    if (code) { buffer_end(d, b); return code; }
    if (offset == SIZE_MAX) offset = block_take(d, block, capacity);
    b->block = block;
    b->handle = block->handle;
    b->offset = offset;
    b->size = capacity;
    b->map = block->map ? block->map + offset : NULL;
    *out = b;
    return 0;
}

static void poison(const struct device *d, struct buffer *b)
{
    if (d->gate[GATE_POISON] && b->map) memset(b->map, d->gate[GATE_POISON] == 2 ? 0xff : 0xcd, b->size);
}

static void hand_out(struct device *d, struct buffer *b, size_t size)
{
    b->refs = 1;
    b->bytes = size;
    d->active += b->size;
    if (d->active > d->peak) d->peak = d->active;
}

/* Memory for `size` bytes, to be used on `line` first (NULL: by the host). */
static int buffer_allocate(struct device *d, size_t size, const struct timeline *line, struct buffer **out)
{
    size_t capacity = capacity_for(size);
    struct buffer *b = NULL;
    int code = 0;
    *out = NULL;
    if (size == 0) {
        if (!(b = buffer_new(d))) return MLXVK_ERROR_HOST_MEMORY;
    } else {
        if (capacity < size || capacity > d->caps.max_allocation) return MLXVK_ERROR_LIMIT;
        b = cache_find(d, capacity, line);
        if (b) d->buffers_found++;
        else {
            d->buffers_made++;
            size_t need = d->active + d->cached + capacity;
            if (need > d->memory_limit) cache_trim(d, need - d->memory_limit, false);
            code = buffer_fresh(d, capacity, &b);
            if (code == MLXVK_ERROR_MEMORY) {        /* give the cache back and try once more */
                cache_trim(d, SIZE_MAX, true);
                code = buffer_fresh(d, capacity, &b);
            }
            if (code) return code;
        }
        if (!b->use_count) poison(d, b);
    }
    hand_out(d, b, size);
    *out = b;
    return 0;
}

/* The same memory as last time for `size` bytes, where it is free; else NULL. */
static struct buffer *buffer_again(struct device *d, const struct known_buffer *known, size_t size,
                                   const struct timeline *line)
{
    struct buffer *b = known->buffer;
    if (!b || b->serial != known->serial || b->bin < 0 || b->size < size || !buffer_idle(d, b, line)) return NULL;
    cache_remove(d, b);
    d->buffers_found++;
    if (!b->use_count) poison(d, b);
    hand_out(d, b, size);
    return b;
}

static void buffer_release(struct device *d, struct buffer *b)
{
    if (!b || --b->refs > 0) return;
    if (!b->block) {                                 /* no bytes, or the caller's */
        if (b->handle) d->active -= b->size;
        buffer_end(d, b);
        return;
    }
    d->active -= b->size;
    if (d->gate[GATE_POISON] && buffer_idle(d, b, NULL)) poison(d, b);
    if (d->cached + b->size > d->cache_limit) d->polls++;
    if (d->cached + b->size <= d->cache_limit || !buffer_idle(d, b, NULL)) cache_insert(d, b);
    else buffer_destroy(d, b);
    if (d->cached > d->cache_limit) cache_trim(d, d->cached - d->cache_limit, false);
}

/* ==== >>timeline ================================================================================================== */

/* The timeline of a stream that is gone goes on with the next one. */
static struct timeline *timeline_create(struct device *d)
{
    VkSemaphoreTypeCreateInfo type = { .sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
                                       .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE };
    VkSemaphoreCreateInfo info = { .sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, .pNext = &type };
    struct timeline *t;
    for (uint32_t i = 0; i < d->timeline_count; i++)
        if (!d->timelines[i]->stream) return d->timelines[i];
    if (d->timeline_count == d->timeline_slots) {
        uint32_t slots = d->timeline_slots ? 2 * d->timeline_slots : 16;
        struct timeline **grown = host_alloc(d, slots * sizeof *grown);
        if (!grown) return NULL;
        if (d->timelines) memcpy(grown, d->timelines, d->timeline_count * sizeof *grown);
        host_free(d, d->timelines);
        d->timelines = grown;
        d->timeline_slots = slots;
    }
    t = host_zalloc(d, sizeof *t);
    if (!t || vk_code(d, d->vk.vkCreateSemaphore(d->handle, &info, NULL, &t->semaphore))) {
        host_free(d, t);
        return NULL;
    }
    t->open = 1;
    t->index = d->timeline_count;
    d->timelines[d->timeline_count++] = t;
    return t;
}

/* Blocks until the timeline reaches value. The lock is held on entry and on return, but not while waiting: what is
 * waited for may need another thread's signal. */
static int timeline_wait(struct device *d, struct timeline *t, uint64_t value)
{
    VkSemaphoreWaitInfo info = { .sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO, .semaphoreCount = 1,
                                 .pSemaphores = &t->semaphore, .pValues = &value };
    VkResult r;
    if (t->completed >= value) return 0;
    mutex_unlock(&d->lock);
    r = d->vk.vkWaitSemaphores(d->handle, &info, UINT64_MAX);
    mutex_lock(&d->lock);
    if (r == VK_SUCCESS && t->completed < value) t->completed = value;
    return vk_code(d, r);
}

static int grow_uses(struct device *d, struct buffer *b)
{
    struct use *grown;
    buffer_idle(d, b, NULL);
    if (b->use_count < b->use_slots) return 0;
    grown = host_alloc(d, 2 * (size_t)b->use_slots * sizeof *grown);
    if (!grown) return MLXVK_ERROR_HOST_MEMORY;
    memcpy(grown, b->uses, (size_t)b->use_count * sizeof *grown);
    if (b->uses != b->first_uses) host_free(d, b->uses);
    b->uses = grown;
    b->use_slots *= 2;
    return 0;
}

/* Notes that the timeline's open submission touches the buffer. */
static int buffer_use(struct device *d, struct buffer *b, struct timeline *line, bool write)
{
    for (int i = 0; i < b->use_count; i++)
        if (b->uses[i].line == line) {
            b->uses[i].write = write || (b->uses[i].write && b->uses[i].value > line->completed);
            b->uses[i].value = line->open;
            return 0;
        }
    if (b->use_count == b->use_slots) {
        int code = grow_uses(d, b);
        if (code) return code;
    }
    b->uses[b->use_count++] = (struct use){ line, line->open, write };
    return 0;
}

/* ---- staging: host memory that the device sees, for copies where the host does not see the device's ---- */

enum { STAGING_MOST = 64 << 20, STAGING_CHUNK = 16 << 20, STAGING_LEAST = 64 << 10 };

static void staging_destroy(struct device *d, struct buffer *b)
{
    d->staged -= b->size;
    d->vk.vkDestroyBuffer(d->handle, b->handle, NULL);
    d->vk.vkFreeMemory(d->handle, b->block->memory, NULL);
    host_free(d, b->block);
    buffer_end(d, b);
}

static int staging_create(struct device *d, enum memory_use use, size_t size, struct buffer **out)
{
    struct buffer *b = buffer_new(d);
    struct block *block = b ? host_zalloc(d, sizeof *block) : NULL;
    int code = block ? raw_allocate(d, size, use, block) : MLXVK_ERROR_HOST_MEMORY;
    if (code) {
        host_free(d, block);
        host_free(d, b);
        return code;
    }
    b->block = block;
    b->handle = block->handle;
    b->map = block->map;
    b->size = b->bytes = size;
    d->staged += size;
    *out = b;
    return 0;
}

/* The first piece, off its list, of at least that size that no submission uses. */
static struct buffer *staging_find(struct device *d, enum memory_use use, size_t size)
{
    d->polls++;
    for (struct buffer **link = &d->staging[use], *b; (b = *link) != NULL; link = &b->bin_next)
        if (b->size >= size && buffer_idle(d, b, NULL)) {
            *link = b->bin_next;
            return b;
        }
    return NULL;
}

static void staging_trim(struct device *d)
{
    for (int use = 0; use < MEMORY_USES; use++)
        for (struct buffer *b; (b = staging_find(d, (enum memory_use)use, 0)) != NULL;) staging_destroy(d, b);
}

/* A piece of its own for a transfer, until staging_give. Where too much is under way it waits, without the lock. */
static int staging_take(struct device *d, enum memory_use use, size_t size, struct buffer **out)
{
    size_t wanted = STAGING_LEAST;
    while (wanted < size) wanted *= 2;
    while ((*out = staging_find(d, use, size)) == NULL) {
        const struct buffer *oldest;
        int code;
        if (d->lost) return d->lost;
        if (d->staged + wanted > STAGING_MOST) staging_trim(d);
        oldest = d->staging[use];
        if (d->staged + wanted <= STAGING_MOST || !oldest) return staging_create(d, use, wanted, out);
        while (oldest->bin_next) oldest = oldest->bin_next;
        code = timeline_wait(d, oldest->uses[0].line, oldest->uses[0].value);
        if (code) return code;
    }
    return 0;
}

static void staging_give(struct device *d, enum memory_use use, struct buffer *b)
{
    b->bin_next = d->staging[use];
    d->staging[use] = b;
}

/* ---- events ---- */

/* top: the greatest value that was signalled, or recorded to be. uses: the last submission of each timeline that names
 * the semaphore. */
struct event {
    struct device *device;
    VkSemaphore semaphore;
    uint64_t top;
    struct event *next;                              /* once it is freed */
    struct list uses;
};

static void event_destroy(struct device *d, struct event *ev)
{
    d->vk.vkDestroySemaphore(d->handle, ev->semaphore, NULL);
    host_free(d, ev->uses.items);
    host_free(d, ev);
}

/* One submission more than those that name it must be done: Mesa (22.3) looks at what a submission waited for once more
 * after it has signalled. */
static bool event_idle(struct device *d, const struct event *ev)
{
    for (uint32_t i = 0; i < ev->uses.count; i++) {
        const struct use *u = ITEM(ev->uses, struct use, i);
        if (timeline_completed(d, u->line) <= u->value) return false;
    }
    return true;
}

/* Destroys freed events that no submission names any more. */
static void reap_events(struct device *d, bool all)
{
    d->polls++;
    for (struct event **link = &d->freed_events, *ev; (ev = *link) != NULL;) {
        if (!all && !event_idle(d, ev)) { link = &ev->next; continue; }
        *link = ev->next;
        event_destroy(d, ev);
    }
}

/* ==== >>modules: SPIR-V as the device takes it ==================================================================== */

/* Kernels load, store and convert bytes and halves of words where they lie; they compute in 32 bits. For a device
 * without such storage their SPIR-V is rewritten when its module is made, instruction by instruction:
 *   an array of bytes or halves becomes one of words, and the small integer type becomes uint;
 *   a pointer to element i is one to word i / 4 (i / 2), with the bits' place beside it;
 *   a load takes those bits of the word; a store is a call of a function that exchanges the word for one with them,
 *   until no other thread has changed a neighbour in between.
 * Anything else that a module does with small integers is not emulated: there is none in mlxvk's own. */

enum spirv { SPIRV_HEADER = 5, SPIRV_BOUND = 3, SPIRV_STORAGE_BUFFER = 12, SPIRV_ARRAY_STRIDE = 6, SPIRV_GL_COMPUTE = 5,
             SPIRV_LOCAL_SIZE = 17, SPIRV_LOCAL_SIZE_ID = 38, SPIRV_SPEC_ID = 1, SPIRV_BUILT_IN = 11,
             SPIRV_WORKGROUP_SIZE = 25, SPIRV_BINDING = 33, SPIRV_SET = 34 };
enum spirv_op { SPIRV_NAME = 5, SPIRV_ENTRY_POINT = 15, SPIRV_EXECUTION_MODE = 16, SPIRV_CAPABILITY = 17,
                SPIRV_TYPE_VOID = 19, SPIRV_TYPE_BOOL = 20, SPIRV_TYPE_INT = 21, SPIRV_TYPE_FLOAT = 22,
                SPIRV_TYPE_RUNTIME_ARRAY = 29, SPIRV_TYPE_POINTER = 32, SPIRV_TYPE_FUNCTION = 33, SPIRV_TYPE_LAST = 39,
                SPIRV_CONSTANT_TRUE = 41, SPIRV_CONSTANT = 43, SPIRV_COMPOSITE = 44, SPIRV_SPEC_TRUE = 48,
                SPIRV_SPEC_CONSTANT = 50, SPIRV_SPEC_COMPOSITE = 51, SPIRV_FUNCTION = 54, SPIRV_PARAMETER = 55,
                SPIRV_FUNCTION_END = 56, SPIRV_CALL = 57, SPIRV_VARIABLE = 59, SPIRV_LOAD = 61, SPIRV_STORE = 62,
                SPIRV_ACCESS_CHAIN = 65, SPIRV_IN_BOUNDS_CHAIN = 66, SPIRV_DECORATE = 71, SPIRV_COPY_OBJECT = 83,
                SPIRV_U_CONVERT = 113, SPIRV_S_CONVERT = 114, SPIRV_EQUAL = 170, SPIRV_SHIFT_RIGHT = 194,
                SPIRV_SHIFT_LEFT = 196, SPIRV_AND = 199, SPIRV_INSERT = 201, SPIRV_EXTRACT = 203,
                SPIRV_COMPARE_EXCHANGE = 230, SPIRV_PHI = 245, SPIRV_LOOP_MERGE = 246, SPIRV_LABEL = 248,
                SPIRV_BRANCH = 249, SPIRV_BRANCH_IF = 250, SPIRV_RETURN = 253, SPIRV_EXECUTION_MODE_ID = 331 };

/* Instructions, one after the other: op, its n operands, and in w the first of these before zeros. */
struct spirv_instruction {
    uint32_t op, n, w[6];
    const uint32_t *operands, *next, *end;           /* next: where the instruction behind this one begins */
    bool cut;                                        /* the last one says that it is longer than what is there */
};

static struct spirv_instruction spirv_between(const uint32_t *from, const uint32_t *end)
{
    return (struct spirv_instruction){ .next = from, .end = end };
}

static struct spirv_instruction spirv_open(const uint32_t *spirv, size_t words)
{
    return spirv_between(spirv + min_size(SPIRV_HEADER, words), spirv + words);
}

/* Goes on to the next; false behind the last. */
static bool spirv_next(struct spirv_instruction *i)
{
    uint32_t size = i->next < i->end ? *i->next >> 16 : 0;
    i->cut = i->next < i->end && (!size || size > (size_t)(i->end - i->next));
    if (!size || i->cut) return false;
    i->op = *i->next & 0xffff;
    i->n = size - 1;
    i->operands = i->next + 1;
    memset(i->w, 0, sizeof i->w);
    memcpy(i->w, i->operands, min_size(i->n, COUNT(i->w)) * sizeof *i->w);
    i->next += size;
    return true;
}

static uint32_t spirv_need(uint32_t capability)
{
    static const struct { uint32_t capability, needs; } table[] = {
#define X(capability, needs) { capability, needs },
        SPIRV_NEEDS(X)
#undef X
    };
    for (size_t i = 0; i < COUNT(table); i++) if (table[i].capability == capability) return table[i].needs;
    return 0;
}

/* What SPIR-V says it needs. */
static uint32_t module_needs(const uint32_t *spirv, size_t words)
{
    struct spirv_instruction i = spirv_open(spirv, words);
    uint32_t needs = 0;
    while (spirv_next(&i) && i.op == SPIRV_CAPABILITY) needs |= spirv_need(i.w[0]);
    return needs;
}

/* What of that the device lacks. Storage of bytes and halves is emulated, but not that of float types. Cooperative
 * matrices may be of any size, of which CAP_COOPMAT says one, but where a module needs the second extension. */
static uint32_t lacking(const struct device *d, uint32_t needs)
{
    uint32_t missing = needs & ~d->caps.bits;
    if (!(needs & (CAP_FLOAT16 | CAP_BFLOAT16))) missing &= ~(uint32_t)CAP_SMALL;
    if (!(needs & CAP_COOPMAT2) && d->caps.coopmat_size[0]) missing &= ~(uint32_t)CAP_COOPMAT;
    if (!(needs & CAP_COOPMAT2) && d->caps.coopmat_size[1]) missing &= ~(uint32_t)(CAP_COOPMAT | CAP_COOPMAT_BF16);
    return missing;
}

/* The same of a module that is not in the table. How it rounds halves is between it and the driver. */
static uint32_t module_lacks(const struct device *d, const uint32_t *spirv, size_t words)
{
    return lacking(d, module_needs(spirv, words) & ~(uint32_t)CAP_HALF_CONVERSION);
}

/* Why a module cannot be a kernel of so many bindings and threads; NULL: it can. What a driver does with such a
 * module is undefined. */
static const char *module_refusal(const uint32_t *spirv, size_t words, uint32_t bindings, uint64_t threads)
{
    struct spirv_instruction i = spirv_open(spirv, words);
    uint32_t entry = 0;
    bool found = false;
    while (spirv_next(&i)) {
        const uint32_t *w = i.w;
        if (i.op == SPIRV_ENTRY_POINT && i.n >= 4 && w[0] == SPIRV_GL_COMPUTE && !memcmp(w + 2, "main\0\0\0", 8))
            entry = w[1];
        if (i.op == SPIRV_FUNCTION && entry && w[1] == entry) found = true;
        if (i.op == SPIRV_DECORATE && i.n == 3 && w[1] == SPIRV_BINDING && w[2] >= bindings)
            return "spirv has more bindings than were said";
        if (i.op == SPIRV_DECORATE && i.n == 3 && w[1] == SPIRV_SET && w[2])
            return "spirv has descriptors beside set 0";
        if (i.op == SPIRV_EXECUTION_MODE && i.n == 5 && w[1] == SPIRV_LOCAL_SIZE && threads &&
            (!w[2] || !w[3] || !w[4] || w[2] > threads || (uint64_t)w[2] * w[3] > threads ||
             (uint64_t)w[2] * w[3] * w[4] > threads))
            return "spirv has a larger workgroup than the device takes";
    }
    if (i.cut) return "spirv is cut off";
    if (!entry) return "spirv has no compute entry point \"main\"";
    return found && i.op == SPIRV_FUNCTION_END ? NULL : "spirv is cut off";
}

enum small_constant { SMALL_0, SMALL_1, SMALL_2, SMALL_3, SMALL_4, SMALL_8, SMALL_16, SMALL_BYTE, SMALL_HALF,
                      SMALL_COUNT };
static const uint32_t small_constants[SMALL_COUNT] = { 0, 1, 2, 3, 4, 8, 16, 0xff, 0xffff };

/* How elements of 8 bits lie in words, and those of 16: i >> down is the word, (i & rest) << up the lowest bit. */
static const struct small { uint32_t needs; enum small_constant down, rest, up, width, mask; } smalls[] = {
    [1] = { CAP_STORAGE8, SMALL_2, SMALL_3, SMALL_3, SMALL_8, SMALL_BYTE },
    [2] = { CAP_STORAGE16, SMALL_1, SMALL_1, SMALL_4, SMALL_16, SMALL_HALF },
};

/* What an id of the module is; sizes are in bytes, 0: none of that. */
struct spirv_id {
    /* the small type, an array of it, a pointer to it, a value that was of it */
    uint8_t type, array, pointer, value;
    uint32_t variable, member, word, place;          /* a pointer to an element: where it points */
    /* a variable: the function that writes elements of so many bytes */
    uint32_t store, stored, pointer_type;
};

struct rewrite {
    struct device *device;
    struct list out;
    struct spirv_id *ids;
    uint32_t bound, next, lacks;                     /* ids below bound are the module's; next is fresh */
    uint32_t uint_type, bool_type, void_type, function_type, constant[SMALL_COUNT];
    bool failed, no_memory, hoisted, declared;
};

static uint32_t fresh(struct rewrite *r) { return r->next++; }
static struct spirv_id *id_of(struct rewrite *r, uint32_t id) { return r->ids + (id < r->bound ? id : 0); }

#define EMIT(r, op, ...) emit(r, op, (uint32_t[]){ __VA_ARGS__ }, COUNT(((uint32_t[]){ __VA_ARGS__ })))
static void emit(struct rewrite *r, uint32_t op, const uint32_t *operands, uint32_t n)
{
    uint32_t *out = list_add(r->device, &r->out, sizeof *out, n + 1);
    if (!out) { r->failed = r->no_memory = true; return; }
    out[0] = (n + 1) << 16 | op;
    if (n) memcpy(out + 1, operands, n * sizeof *out);
}

/* Finds the types: those to be replaced and those to be used. */
static void find_type(struct rewrite *r, const struct spirv_instruction *i)
{
    struct spirv_id *id = id_of(r, i->w[0]);
    uint32_t op = i->op, size = i->w[1] / 8;
    if (op == SPIRV_TYPE_VOID) r->void_type = i->w[0];
    if (op == SPIRV_TYPE_BOOL) r->bool_type = i->w[0];
    if (op == SPIRV_TYPE_INT && i->w[1] == 32 && !i->w[2]) r->uint_type = i->w[0];
    if (op == SPIRV_TYPE_INT && size && size < COUNT(smalls) && (smalls[size].needs & r->lacks)) {
        id->type = (uint8_t)size;
        r->failed = r->failed || i->w[2];            /* signed ones would be extended */
    }
    if (op == SPIRV_TYPE_FLOAT && i->w[1] == 16) r->failed = r->failed || (r->lacks & CAP_STORAGE16);
    if (op == SPIRV_TYPE_FUNCTION && i->n == 5 && i->w[1] == r->void_type && i->w[2] == r->uint_type &&
        i->w[3] == i->w[2] && i->w[4] == i->w[2])
        r->function_type = i->w[0];
    if (op == SPIRV_TYPE_RUNTIME_ARRAY) id->array = id_of(r, i->w[1])->type;
    else if (op == SPIRV_TYPE_POINTER) {
        id->pointer = id_of(r, i->w[2])->type;
        r->failed = r->failed || (id->pointer && i->w[1] != SPIRV_STORAGE_BUFFER);
    } else if (op > SPIRV_TYPE_FLOAT)
        for (uint32_t k = 1; k < i->n; k++) r->failed = r->failed || id_of(r, i->operands[k])->type;
}

/* Types that others are made of come first; each is declared once. */
static void hoist_types(struct rewrite *r)
{
    r->hoisted = true;
    if (!r->uint_type) r->uint_type = fresh(r);
    if (!r->bool_type) r->bool_type = fresh(r);
    EMIT(r, SPIRV_TYPE_INT, r->uint_type, 32, 0);
    EMIT(r, SPIRV_TYPE_BOOL, r->bool_type);
    EMIT(r, SPIRV_TYPE_VOID, r->void_type);
}

/* Before the first function. */
static void declare_constants(struct rewrite *r)
{
    r->declared = true;
    for (int i = 0; i < SMALL_COUNT; i++)
        EMIT(r, SPIRV_CONSTANT, r->uint_type, r->constant[i] = fresh(r), small_constants[i]);
    if (r->function_type) return;
    EMIT(r, SPIRV_TYPE_FUNCTION, r->function_type = fresh(r), r->void_type, r->uint_type, r->uint_type, r->uint_type);
}

static void rewrite_chain(struct rewrite *r, const struct spirv_instruction *i)
{
    uint8_t size = id_of(r, i->w[0])->pointer;
    const struct small *s = &smalls[size];
    struct spirv_id *id = id_of(r, i->w[1]);
    uint32_t low = fresh(r);
    if (i->n != 5) { r->failed = true; return; }
    *id = (struct spirv_id){ .pointer = size, .variable = i->w[2], .member = i->w[3], .word = fresh(r),
                             .place = fresh(r), .pointer_type = i->w[0] };
    EMIT(r, SPIRV_SHIFT_RIGHT, r->uint_type, id->word, i->w[4], r->constant[s->down]);
    EMIT(r, SPIRV_AND, r->uint_type, low, i->w[4], r->constant[s->rest]);
    EMIT(r, SPIRV_SHIFT_LEFT, r->uint_type, id->place, low, r->constant[s->up]);
    EMIT(r, i->op, i->w[0], i->w[1], i->w[2], i->w[3], id->word);
}

static void rewrite_load(struct rewrite *r, const struct spirv_instruction *i)
{
    struct spirv_id *id = id_of(r, i->w[1]);
    uint32_t word = fresh(r), operands[6] = { r->uint_type, word, i->w[2], i->w[3], i->w[4], i->w[5] };
    if (i->n > COUNT(operands) || !id_of(r, i->w[2])->word) { r->failed = true; return; }
    id->value = id_of(r, i->w[0])->type;
    emit(r, SPIRV_LOAD, operands, i->n);
    EMIT(r, SPIRV_EXTRACT, r->uint_type, i->w[1], word, id_of(r, i->w[2])->place, r->constant[smalls[id->value].width]);
}

static void rewrite_store(struct rewrite *r, const struct spirv_instruction *i)
{
    const struct spirv_id *at = id_of(r, i->w[0]);
    struct spirv_id *variable = id_of(r, at->variable);
    if (!at->word) { r->failed = true; return; }
    if (!variable->store) {
        variable->store = fresh(r);
        variable->stored = at->pointer;
        variable->member = at->member;
        variable->pointer_type = at->pointer_type;
    }
    EMIT(r, SPIRV_CALL, r->void_type, fresh(r), variable->store, at->word, at->place, i->w[1]);
}

/* To a small type: the low bits; from one: they are all there. */
static void rewrite_convert(struct rewrite *r, const struct spirv_instruction *i)
{
    uint8_t size = id_of(r, i->w[0])->type;
    id_of(r, i->w[1])->value = size;
    if (size) EMIT(r, SPIRV_AND, r->uint_type, i->w[1], i->w[2], r->constant[smalls[size].mask]);
    else if (i->w[0] == r->uint_type) EMIT(r, SPIRV_COPY_OBJECT, i->w[0], i->w[1], i->w[2]);
    else emit(r, i->op, i->operands, i->n);
}

/* void store(uint word, uint place, uint value), for one variable. */
static void emit_store(struct rewrite *r, uint32_t variable)
{
    const struct spirv_id *v = r->ids + variable;
    enum { WORD, PLACE, VALUE, ENTRY, AT, FIRST, LOOP, OLD, SEEN, NEXT, BODY, FRESH, SAME, DONE, NAMES };
    uint32_t x[NAMES], t = r->uint_type, zero = r->constant[SMALL_0], device_scope = r->constant[SMALL_1];
    for (int i = 0; i < NAMES; i++) x[i] = fresh(r);
    EMIT(r, SPIRV_FUNCTION, r->void_type, v->store, 0, r->function_type);
    for (int i = WORD; i <= VALUE; i++) EMIT(r, SPIRV_PARAMETER, t, x[i]);
    EMIT(r, SPIRV_LABEL, x[ENTRY]);
    EMIT(r, SPIRV_ACCESS_CHAIN, v->pointer_type, x[AT], variable, v->member, x[WORD]);
    EMIT(r, SPIRV_LOAD, t, x[FIRST], x[AT]);
    EMIT(r, SPIRV_BRANCH, x[LOOP]);
    EMIT(r, SPIRV_LABEL, x[LOOP]);
    EMIT(r, SPIRV_PHI, t, x[OLD], x[FIRST], x[ENTRY], x[SEEN], x[NEXT]);
    EMIT(r, SPIRV_LOOP_MERGE, x[DONE], x[NEXT], 0);
    EMIT(r, SPIRV_BRANCH, x[BODY]);
    EMIT(r, SPIRV_LABEL, x[BODY]);
    EMIT(r, SPIRV_INSERT, t, x[FRESH], x[OLD], x[VALUE], x[PLACE], r->constant[smalls[v->stored].width]);
    EMIT(r, SPIRV_COMPARE_EXCHANGE, t, x[SEEN], x[AT], device_scope, zero, zero, x[FRESH], x[OLD]);
    EMIT(r, SPIRV_EQUAL, r->bool_type, x[SAME], x[SEEN], x[OLD]);
    EMIT(r, SPIRV_BRANCH, x[NEXT]);
    EMIT(r, SPIRV_LABEL, x[NEXT]);
    EMIT(r, SPIRV_BRANCH_IF, x[SAME], x[DONE], x[LOOP]);
    EMIT(r, SPIRV_LABEL, x[DONE]);
    emit(r, SPIRV_RETURN, NULL, 0);
    emit(r, SPIRV_FUNCTION_END, NULL, 0);
}

/* One instruction of the module: as it is, replaced, or left out. */
static void rewrite_one(struct rewrite *r, const struct spirv_instruction *i)
{
    const uint32_t *w = i->w;
    const struct spirv_id *id = id_of(r, w[0]);
    bool type = i->op >= SPIRV_TYPE_VOID && i->op <= SPIRV_TYPE_LAST, in_code = r->declared;
    if (type && !r->hoisted) hoist_types(r);
    if (i->op == SPIRV_FUNCTION && !r->declared) declare_constants(r);
    if (i->op == SPIRV_CAPABILITY && (spirv_need(w[0]) & r->lacks & CAP_SMALL)) return;
    if (type && (id->type || w[0] == r->uint_type || w[0] == r->bool_type || w[0] == r->void_type)) return;
    if (i->op == SPIRV_DECORATE && id->array && w[1] == SPIRV_ARRAY_STRIDE) EMIT(r, i->op, w[0], w[1], 4);
    else if (i->op == SPIRV_TYPE_RUNTIME_ARRAY && id->array) EMIT(r, i->op, w[0], r->uint_type);
    else if (i->op == SPIRV_TYPE_POINTER && id->pointer) EMIT(r, i->op, w[0], w[1], r->uint_type);
    else if ((i->op == SPIRV_ACCESS_CHAIN || i->op == SPIRV_IN_BOUNDS_CHAIN) && id->pointer) rewrite_chain(r, i);
    else if (i->op == SPIRV_LOAD && id->type) rewrite_load(r, i);
    else if (i->op == SPIRV_STORE && id->pointer) rewrite_store(r, i);
    else if (i->op == SPIRV_U_CONVERT && (id->type || id_of(r, w[2])->value)) rewrite_convert(r, i);
    else {
        if (!type && (in_code || i->op >= SPIRV_CONSTANT_TRUE))        /* before: words that are no ids */
            r->failed = r->failed || id->type || (i->op == SPIRV_S_CONVERT && id_of(r, w[2])->value);
        emit(r, i->op, i->operands, i->n);
    }
}

/* Calls of every instruction; false where they are no SPIR-V. */
static bool each_instruction(struct rewrite *r, const uint32_t *spirv, size_t words,
                             void (*call)(struct rewrite *, const struct spirv_instruction *), uint32_t first,
                             uint32_t last)
{
    struct spirv_instruction i = spirv_open(spirv, words);
    while (spirv_next(&i)) if (i.op >= first && i.op <= last) call(r, &i);
    return !i.cut && !r->failed;
}

/* The module without storage of bytes, of halves, or both, which the caller frees. VK_ERROR_FEATURE_NOT_PRESENT
 * where it does more with them than is emulated. */
static VkResult rewrite_module(struct device *d, const uint32_t *spirv, size_t *words, uint32_t **out)
{
    struct rewrite r = { .device = d, .bound = spirv[SPIRV_BOUND], .next = spirv[SPIRV_BOUND], .lacks = ~d->caps.bits };
    uint32_t *head;
    bool good = false;
    if (r.bound >= 1u << 22) return VK_ERROR_FEATURE_NOT_PRESENT;      /* SPIR-V's own limit */
    r.ids = host_zalloc(d, (r.bound + 1) * sizeof *r.ids);
    head = list_add(d, &r.out, sizeof *head, SPIRV_HEADER);
    r.no_memory = !r.ids || !head;
    if (!r.no_memory) {
        memcpy(head, spirv, SPIRV_HEADER * sizeof *spirv);
        good = each_instruction(&r, spirv, *words, find_type, SPIRV_TYPE_VOID, SPIRV_TYPE_LAST) && r.void_type &&
               each_instruction(&r, spirv, *words, rewrite_one, 0, 0xffff);
        for (uint32_t i = 0; good && i < r.bound; i++) if (r.ids[i].store) emit_store(&r, i);
        *ITEM(r.out, uint32_t, SPIRV_BOUND) = r.next;
    }
    host_free(d, r.ids);
    *out = r.out.items;
    *words = r.out.count;
    if (good && !r.failed) return VK_SUCCESS;
    host_free(d, r.out.items);
    *out = NULL;
    return r.no_memory ? VK_ERROR_OUT_OF_HOST_MEMORY : VK_ERROR_FEATURE_NOT_PRESENT;
}

/* Takes the wish to be unrolled from all loops. */
static void clear_unroll(uint32_t *spirv, size_t words)
{
    for (size_t at = 5; at < words && spirv[at] >> 16; at += spirv[at] >> 16)
        if ((spirv[at] & 0xffff) == SPIRV_LOOP_MERGE) spirv[at + 3] &= ~1u;
}

/* Makes the module, rewritten where the device lacks the storage that it declares, or is in trouble with its loops. */
static VkResult build_module(struct device *d, const uint32_t *spirv, size_t size, VkShaderModule *out)
{
    VkShaderModuleCreateInfo info = { .sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO, .codeSize = size,
                                      .pCode = spirv };
    size_t words = size / 4;
    uint32_t *rewritten = NULL;
    VkResult r = VK_SUCCESS;
    if (module_needs(spirv, words) & CAP_SMALL & ~d->caps.bits) {
        r = rewrite_module(d, spirv, &words, &rewritten);
        info.pCode = rewritten;
        info.codeSize = 4 * words;
    }
    if (r >= 0 && d->caps.quirks & QUIRK_UNROLLS_FIRST) {
        if (!rewritten && !(rewritten = host_alloc(d, size))) return VK_ERROR_OUT_OF_HOST_MEMORY;
        if (info.pCode == spirv) memcpy(rewritten, spirv, size);
        clear_unroll(rewritten, words);
        info.pCode = rewritten;
    }
    if (r >= 0) r = d->vk.vkCreateShaderModule(d->handle, &info, NULL, out);
    host_free(d, rewritten);
    return r;
}

/* ==== >>pipelines: and what streams and encoders are ============================================================== */

enum { SEEN_WINDOWS = 256, MAX_LIVE = 512, MAX_PENDING = 24, MAX_BOUND = MAX_PENDING, MAX_DONORS = 8, SLOTS = 128,
       SETS_PER_POOL = 128, QUERIES = 1024 };

struct access { struct buffer *buffer; VkBuffer handle; size_t low, high; bool write; };   /* buffer: while pending */

/* ---- a dispatch as a value: what to run on which memory, before there is any ---- */

struct storage;
struct array;

/* A range of memory: bytes from where its storage or buffer begins; a table's lie in the plan. */
enum bound_kind { BOUND_NOTHING, BOUND_STORAGE, BOUND_BUFFER, BOUND_TABLE, BOUND_COUNTERS };
struct bound {
    uint8_t kind, slot;
    bool write, last;                                /* last: of a kept plan's own memory, which goes then */
    uint16_t storage_number, array_number;           /* of a window that is kept, see >>replay */
    union { struct storage *storage; struct buffer *buffer; };         /* held until the step is encoded or forgotten */
    int64_t low, high;
    /* while the step is set up: what is bound, for the judge of fusions */
    const struct array *view;
};

struct step {
    struct pipeline *pipeline;                       /* NULL: to be found by kernel and constants */
    uint32_t kernel, constant_count;
    uint32_t set_mask, write_mask;                   /* bindings that are set, and those of them that are written */
    /* its ranges are plan.bounds[first...]; some may not be bound, only accessed */
    uint32_t first, bounds;
    uint32_t groups[3], push_used;
    float work, time;                                /* multiplications, and an estimate of its microseconds */
    /* 4 + where push has the node's late parameter, and what is added to that */
    uint32_t late_at, late_plus;
    uint16_t late_node;
    uint8_t push[PUSH_SIZE];
    uint32_t constants[MAX_SPEC];
};

/* A result may take over the memory of an operand that nobody wants by then; done in front of a step. `reads`: how
 * often the operand is read where the result is written; -1: elsewhere, too. */
struct donation {
    struct storage *to, *from[MAX_DONORS];
    uint16_t to_number, from_number[MAX_DONORS];
    int reads[MAX_DONORS], count;
    uint32_t before, skip_to;                        /* where it succeeds, steps before skip_to have nothing to do */
};

struct plan { struct list steps, bounds, donations, tables; };

/* Everything one submission needs until it is done. */
struct slot {
    VkCommandPool pool;
    VkCommandBuffer commands;
    uint64_t value;                                  /* of the timeline; 0: never used */
    VkDescriptorPool *sets;                          /* where there are no push descriptors */
    uint32_t set_pools, sets_used;
    VkQueryPool queries;                             /* with profiling on */
    uint32_t query_count;
    uint16_t query_kernel[QUERIES / 2];
};

struct encoder {
    struct stream *stream;
    struct device *device;
    VkCommandBuffer commands;                        /* NULL: none open */
    const struct pipeline *in_use;
    struct step step;                                /* that is being set up, with its ranges by slot */
    struct bound bound[MAX_BOUND];
    uint32_t registered;                             /* of them, at the end: accessed, but not bound */
    struct plan plan;
    struct access pending[MAX_PENDING], live[MAX_LIVE];   /* of the dispatch being encoded; since the last barrier */
    uint32_t pending_count, live_count;
    /* the command buffer, by its mark, that pending accesses were noted for */
    uint64_t pending_in;
    bool concurrent;
    uint32_t concurrent_from;                        /* live accesses before this index are checked in a scope */
    void (*give_out)(struct encoder *e);             /* records what replay holds back; NULL: nothing is */
    struct window *held_in;                          /* steps of that window from `held` on */
    uint32_t held, held_count;
    /* the row of the table of fusions that is being applied, from 1; 0: none */
    uint32_t fusion;
    int code;                                        /* the first error since it was cleared */
    mlxvk_error error;
};

struct wait { struct timeline *line; VkSemaphore semaphore; uint64_t value; };

struct stream {
    int refs;
    struct device *device;
    int index;
    uint32_t queue;
    struct timeline *line;
    mlxvk_error error;
    int deferred;                                    /* first error of deferred work since the last synchronize, */
    char deferred_text[sizeof ((mlxvk_error *)0)->text];             /* and the last one's words */
    struct encoder encoder;
    struct slot slots[SLOTS];
    uint32_t slot, slot_count;
    struct wait waits[MAX_WAITS], signals[MAX_WAITS];
    uint32_t wait_count, signal_count, ops;
    size_t bytes;
    double time;                                     /* microseconds of what is recorded, by estimate */
    uint64_t mark;                                   /* serial of the open command buffer, unique on the device */
    uint64_t *seen;                                  /* by timeline: highest value waited for */
    uint32_t seen_count;
    struct buffer *counters;                         /* zeros, see set_counters */
    /* kept, last used first; the one that is being filled; see >>replay */
    struct window *windows, *keeping;
    /* of what replay recorded once, and what of that is not wanted any more */
    VkCommandPool segment_pool;
    struct list dropped_segments;
    uint32_t seen_windows[SEEN_WINDOWS];             /* hashes */
    bool undecided;                                  /* the next such window may be planned otherwise */
    struct node *nodes;                              /* the tape */
    uint32_t node_count, node_slots;
    struct stream *next;
};

static int encoder_fail(struct encoder *e, int code, int vk, int line, const char *operation, const char *format, ...)
{
    va_list arguments;
    if (e->code) return e->code;
    va_start(arguments, format);
    set_error_v(&e->error, code, vk, line, operation, format, arguments);
    va_end(arguments);
    return e->code = code;
}

static uint64_t hash_words(uint64_t h, const uint32_t *words, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        h = (h ^ words[i]) * 0x9E3779B97F4A7C15u;
        h ^= h >> 29;
    }
    return h;
}

static VkResult build_pipeline(struct device *d, VkShaderModule module, uint32_t bindings, const uint32_t *spec,
                               uint32_t spec_count, VkPipeline *out)
{
    VkSpecializationMapEntry entries[MAX_SPEC];
    VkSpecializationInfo info = { spec_count, entries, spec_count * sizeof *spec, spec };
    VkPipelineShaderStageRequiredSubgroupSizeCreateInfo size = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO,
            .requiredSubgroupSize = d->caps.subgroup };
    VkComputePipelineCreateInfo create = { .sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
        .stage = { .sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                   .pNext = d->caps.subgroup_forced ? &size : NULL, .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                       .module = module, .pName = "main", .pSpecializationInfo = &info },
        .layout = d->layouts[bindings] };
    for (uint32_t i = 0; i < spec_count; i++) entries[i] = (VkSpecializationMapEntry){ i, 4 * i, 4 };
    d->stats.pipelines++;
    return d->vk.vkCreateComputePipelines(d->handle, d->pipeline_cache, 1, &create, NULL, out);
}

static void name_missing(uint32_t bits, char *text, size_t size)
{
    size_t n = 0;
    text[0] = 0;
    for (int i = 0; i < CAPABILITY_COUNT && n < size; i++)
        if (bits & (1u << i)) n += (size_t)snprintf(text + n, size - n, "%s%s", n ? ", " : "", capability_names[i]);
}

static bool has_kernel(const struct device *d, enum kernel_id k)
{
    return !lacking(d, kernel_table[k].needs) && kernel_table[k].bindings <= d->caps.max_bindings;
}

/* Limits of the device that a kernel is over; constant 0 is its threads. false with an error: it cannot run. */
static bool within_limits(struct encoder *e, const struct kernel_row *row, const uint32_t *spec)
{
    const struct capabilities *c = &e->device->caps;
    if (row->bindings > c->max_bindings)
        encoder_fail(e, MLXVK_ERROR_UNSUPPORTED, 0, __LINE__, row->name,
                     "the kernel has %u storage buffers; %s takes %u", row->bindings, c->name, c->max_bindings);
    if (spec[0] > c->max_threads)
        encoder_fail(e, MLXVK_ERROR_UNSUPPORTED, 0, __LINE__, row->name,
                     "the kernel has workgroups of %u threads; %s takes %u", spec[0], c->name, c->max_threads);
    return !e->code;
}

static struct pipeline *new_pipeline(struct encoder *e, enum kernel_id k, const uint32_t *spec, uint32_t n,
                                           uint64_t key, uint32_t at)
{
    struct device *d = e->device;
    const struct kernel_row *row = &kernel_table[k];
    struct pipeline *p;
    VkResult r = VK_SUCCESS;
    uint32_t missing = lacking(d, row->needs);
    if (missing) {
        char names[128];
        name_missing(missing, names, sizeof names);
        encoder_fail(e, MLXVK_ERROR_UNSUPPORTED, 0, __LINE__, row->name, "%s lacks %s", d->caps.name, names);
        return NULL;
    }
    if (!within_limits(e, row, spec)) return NULL;
    p = host_zalloc(d, sizeof *p);
    if (!p) {
        encoder_fail(e, MLXVK_ERROR_HOST_MEMORY, 0, __LINE__, row->name, "out of host memory");
        return NULL;
    }
    *p = (struct pipeline){ .name = row->name, .key = key, .kernel = k, .spec_count = n, .bindings = row->bindings };
    memcpy(p->spec, spec, n * sizeof *spec);
    if (!d->modules[k]) r = build_module(d, row->spirv, row->size, &d->modules[k]);
    if (r >= 0) r = build_pipeline(d, d->modules[k], row->bindings, spec, n, &p->handle);
    if (r < 0) {
        host_free(d, p);
        encoder_fail(e, vk_code(d, r), r, __LINE__, row->name, "the pipeline could not be made (VkResult %d)", r);
        return NULL;
    }
    d->pipelines.items[at] = p;
    d->pipelines.used++;
    return p;
}

static struct pipeline *find_pipeline(struct encoder *e, enum kernel_id k, const uint32_t *spec, uint32_t n)
{
    struct device *d = e->device;
    struct table *t = &d->pipelines;
    uint64_t key = hash_words(hash_words(0x51ED270B, (uint32_t[]){ (uint32_t)k }, 1), spec, n);
    uint32_t at;
    if (!table_room(d, t)) {
        encoder_fail(e, MLXVK_ERROR_HOST_MEMORY, 0, __LINE__, kernel_table[k].name, "out of host memory");
        return NULL;
    }
    for (at = (uint32_t)key & (t->slots - 1); t->items[at]; at = (at + 1) & (t->slots - 1)) {
        struct pipeline *p = t->items[at];
        if (p->key == key && p->kernel == (uint32_t)k && p->spec_count == n &&
            !memcmp(p->spec, spec, n * sizeof *spec)) {
            d->pipelines_found++;
            return p;
        }
    }
    return new_pipeline(e, k, spec, n, key, at);
}

/* ==== >>stream ==================================================================================================== */

/* ---- command buffers ---- */

static int slot_create(struct device *d, struct slot *slot)
{
    VkCommandPoolCreateInfo pool = { .sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
        .flags = VK_COMMAND_POOL_CREATE_TRANSIENT_BIT, .queueFamilyIndex = d->queue_family };
    VkCommandBufferAllocateInfo info = { .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
        .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY, .commandBufferCount = 1 };
    VkQueryPoolCreateInfo query = { .sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO,
                                    .queryType = VK_QUERY_TYPE_TIMESTAMP, .queryCount = QUERIES };
    VkResult r = d->vk.vkCreateCommandPool(d->handle, &pool, NULL, &slot->pool);
    if (r < 0) return vk_code(d, r);
    info.commandPool = slot->pool;
    r = d->vk.vkAllocateCommandBuffers(d->handle, &info, &slot->commands);
    if (r >= 0 && d->gate[GATE_PROFILE]) r = d->vk.vkCreateQueryPool(d->handle, &query, NULL, &slot->queries);
    if (r >= 0) return 0;
    d->vk.vkDestroyCommandPool(d->handle, slot->pool, NULL);
    memset(slot, 0, sizeof *slot);
    return vk_code(d, r);
}

/* Adds the times of a finished submission to the kernels' counts: of dispatches whose two times the driver has. */
static void read_queries(struct device *d, struct slot *slot)
{
    struct { uint64_t time, there; } q[QUERIES];
    VkResult r;
    if (!slot->query_count) return;
    memset(q, 0, sizeof q);
    r = d->vk.vkGetQueryPoolResults(d->handle, slot->queries, 0, slot->query_count, sizeof q, q, sizeof *q,
                                    VK_QUERY_RESULT_64_BIT | VK_QUERY_RESULT_WITH_AVAILABILITY_BIT);
    for (uint32_t i = 0; i + 1 < slot->query_count && r >= 0; i += 2)
        if (q[i].there && q[i + 1].there && q[i + 1].time >= q[i].time)
            d->kernel_counts[slot->query_kernel[i / 2]].ns +=
                (uint64_t)((double)(q[i + 1].time - q[i].time) * d->caps.timestamp_ns);
    slot->query_count = 0;
}

static void slot_recycle(struct device *d, struct slot *slot)
{
    read_queries(d, slot);
    d->vk.vkResetCommandPool(d->handle, slot->pool, 0);
    for (uint32_t i = 0; i < slot->set_pools; i++) d->vk.vkResetDescriptorPool(d->handle, slot->sets[i], 0);
    slot->sets_used = 0;
}

/* The slot whose submission is done, or a fresh one. The window is kept by end(), without the lock; only a call that
 * makes more submissions than there are slots waits here. */
static struct slot *next_slot(struct stream *s)
{
    uint32_t next = s->slot_count ? (s->slot + 1) % s->slot_count : 0;
    s->device->polls++;
    if (s->slot_count && s->slots[next].value > timeline_completed(s->device, s->line) && s->slot_count < SLOTS) {
        memmove(s->slots + next + 1, s->slots + next, (s->slot_count - next) * sizeof *s->slots);
        memset(&s->slots[next], 0, sizeof *s->slots);
        s->slot_count++;
    } else if (!s->slot_count) s->slot_count = 1;
    s->slot = next;
    return &s->slots[next];
}

/* Opens a command buffer in the next slot, waiting for its submission where that is still in flight. */
static int open_commands(struct stream *s)
{
    struct device *d = s->device;
    struct encoder *e = &s->encoder;
    struct slot *slot = next_slot(s);
    VkCommandBufferBeginInfo begin = { .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                       .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT };
    VkResult r = VK_SUCCESS;
    int code = 0;
    if (d->lost) return encoder_fail(e, d->lost, 0, __LINE__, "stream", "the device was lost");
    if (!slot->pool) code = slot_create(d, slot);
    else if (!(code = timeline_wait_locked(d, s->line, slot->value))) slot_recycle(d, slot);
    if (!code && r >= 0) r = d->vk.vkBeginCommandBuffer(slot->commands, &begin);
    if (code || r < 0)
        return encoder_fail(e, code ? code : vk_code(d, r), r, __LINE__, "stream", "no command buffer (VkResult %d)",
                            r);
    if (slot->queries) d->vk.vkCmdResetQueryPool(slot->commands, slot->queries, 0, QUERIES);
    slot->value = s->line->open;
    e->commands = slot->commands;
    e->in_use = NULL;
    s->mark = ++d->marks;
    return 0;
}

static void full_barrier(struct encoder *e, VkPipelineStageFlags from, VkPipelineStageFlags to, VkAccessFlags source,
                         VkAccessFlags target)
{
    VkMemoryBarrier barrier = { .sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER, .srcAccessMask = source,
                                .dstAccessMask = target };
    e->device->vk.vkCmdPipelineBarrier(e->commands, from, to, 0, 1, &barrier, 0, NULL, 0, NULL);
}

enum { STAGES = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT,
       WRITES = VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT,
       READS = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_TRANSFER_READ_BIT };

static void encoder_barrier(struct encoder *e)
{
    e->live_count = e->concurrent_from = 0;
    if (!e->commands || e->device->gate[GATE_NO_BARRIERS]) return;
    e->device->stats.barriers++;
    full_barrier(e, STAGES, STAGES, WRITES, READS | WRITES);
}

/* ---- submission ---- */

static void lock_queue(struct device *d)
{
    if (d->adopted && d->adopt.lock_queue) d->adopt.lock_queue(d->adopt.user);
}

static void unlock_queue(struct device *d)
{
    if (d->adopted && d->adopt.unlock_queue) d->adopt.unlock_queue(d->adopt.user);
}

static VkResult queue_submit(struct stream *s, VkCommandBuffer commands)
{
    struct device *d = s->device;
    VkSemaphore waits[MAX_WAITS], signals[MAX_WAITS + 1];
    uint64_t wait_values[MAX_WAITS], signal_values[MAX_WAITS + 1];
    VkPipelineStageFlags stages[MAX_WAITS];
    VkTimelineSemaphoreSubmitInfo values = { .sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
        .waitSemaphoreValueCount = s->wait_count, .pWaitSemaphoreValues = wait_values,
        .signalSemaphoreValueCount = s->signal_count + 1, .pSignalSemaphoreValues = signal_values };
    VkSubmitInfo info = { .sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .pNext = &values, .waitSemaphoreCount = s->wait_count,
        .pWaitSemaphores = waits, .pWaitDstStageMask = stages, .commandBufferCount = commands ? 1 : 0,
        .pCommandBuffers = &commands, .signalSemaphoreCount = s->signal_count + 1, .pSignalSemaphores = signals };
    VkResult r;
    for (uint32_t i = 0; i < s->wait_count; i++) {
        waits[i] = s->waits[i].semaphore;
        wait_values[i] = s->waits[i].value;
        stages[i] = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
    }
    for (uint32_t i = 0; i < s->signal_count; i++) {
        signals[i] = s->signals[i].semaphore;
        signal_values[i] = s->signals[i].value;
    }
    signals[s->signal_count] = s->line->semaphore;   /* last: who waits for the stream sees its events signalled */
    signal_values[s->signal_count] = s->line->open;
    lock_queue(d);
    r = d->vk.vkQueueSubmit(d->queues[s->queue], 1, &info, VK_NULL_HANDLE);
    unlock_queue(d);
    return r;
}

/* Submits the open command buffer; nothing to do where there is none and nothing to wait for or signal. */
static int stream_submit(struct stream *s)
{
    struct device *d = s->device;
    struct encoder *e = &s->encoder;
    uint64_t start = now_ns();
    VkResult r = VK_SUCCESS;
    if (e->give_out) e->give_out(e);
    if (!e->commands && !s->signal_count && !s->wait_count) return e->code;
    if (e->commands) {
        full_barrier(e, STAGES, VK_PIPELINE_STAGE_HOST_BIT | STAGES, WRITES, VK_ACCESS_HOST_READ_BIT);
        r = d->vk.vkEndCommandBuffer(e->commands);
    }
    if (r >= 0) {
        r = queue_submit(s, e->commands);
        if (r == VK_ERROR_OUT_OF_HOST_MEMORY ||
            r == VK_ERROR_OUT_OF_DEVICE_MEMORY) {      /* nothing has happened, then */
            cache_trim(d, SIZE_MAX, true);
            r = queue_submit(s, e->commands);
        }
    }
    e->commands = NULL;
    s->wait_count = s->signal_count = s->ops = 0;
    s->bytes = 0;
    s->time = 0;
    if (r < 0) {                                     /* what was recorded is gone, and arrays count as computed */
        d->lost = MLXVK_ERROR_DEVICE_LOST;
        return encoder_fail(e, d->lost, r, __LINE__, "submit",
                            "the queue refused the work, which is lost (VkResult %d)", r);
    }
    s->line->submitted = s->line->open++;
    d->stats.submissions++;
    d->stats.submit_ns += now_ns() - start;
    return 0;
}

/* Where the stream was submitted while a dispatch was being set up: what it accesses is used by the next submission. */
static int note_again(struct encoder *e)
{
    struct stream *s = e->stream;
    int code = 0;
    if (!e->pending_count || (e->commands && e->pending_in == s->mark)) return 0;
    if (!e->commands) code = open_commands(s);
    for (uint32_t i = 0; i < e->pending_count && !code; i++)
        code = buffer_use(e->device, e->pending[i].buffer, s->line, e->pending[i].write);
    e->pending_in = s->mark;
    return code;
}

/* Makes the open submission wait for a timeline's value, which must have been submitted. */
static int stream_wait(struct stream *s, VkSemaphore semaphore, uint64_t value)
{
    for (uint32_t i = 0; i < s->wait_count; i++)
        if (s->waits[i].semaphore == semaphore) {
            if (s->waits[i].value < value) s->waits[i].value = value;
            return 0;
        }
    if (s->wait_count == MAX_WAITS) {
        int code = stream_submit(s);
        if (!code) code = note_again(&s->encoder);
        if (code) return code;
    }
    s->waits[s->wait_count++] = (struct wait){ NULL, semaphore, value };
    return 0;
}

/* Orders the stream's open submission after another timeline's value, submitting that one first where needed. */
static int stream_after(struct stream *s, struct timeline *line, uint64_t value)
{
    struct device *d = s->device;
    if (line->index >= s->seen_count) {
        uint32_t n = d->timeline_slots;
        uint64_t *grown = host_zalloc(d, n * sizeof *grown);
        if (!grown)
            return encoder_fail(&s->encoder, MLXVK_ERROR_HOST_MEMORY, 0, __LINE__, "stream", "out of host memory");
        if (s->seen) memcpy(grown, s->seen, s->seen_count * sizeof *grown);
        host_free(d, s->seen);
        s->seen = grown;
        s->seen_count = n;
    }
    if (s->seen[line->index] >= value) return 0;
    if (value > line->submitted && line->stream) {
        int code = stream_submit(line->stream);
        if (code)
            return encoder_fail(&s->encoder, code, 0, __LINE__, "stream", "another stream failed: %s",
                                line->stream->encoder.error.text);
    }
    if (stream_wait(s, line->semaphore, value)) return s->encoder.code;
    s->seen[line->index] = value;
    return 0;
}

/* ---- made and found ---- */

static struct stream *stream_create(struct device *d)
{
    struct stream *s = host_zalloc(d, sizeof *s);
    uint32_t queue = 0;
    if (s) s->line = timeline_create(d);
    if (!s || !s->line) { host_free(d, s); return NULL; }
    for (uint32_t i = 1; i < d->queue_count; i++) if (d->queue_users[i] < d->queue_users[queue]) queue = i;
    d->queue_users[queue]++;
    s->device = d;
    s->queue = queue;
    s->index = d->stream_index++;
    s->line->stream = s;
    s->encoder.stream = s;
    s->encoder.device = d;
    s->encoder.step.kernel = KERNEL_COUNT;
    s->next = d->streams;
    d->streams = s;
    return s;
}

static struct stream *default_stream(struct device *d)
{
    if (!d->default_stream) d->default_stream = stream_create(d);
    return d->default_stream;
}

static void slot_destroy(struct device *d, struct slot *slot)
{
    for (uint32_t i = 0; i < slot->set_pools; i++) d->vk.vkDestroyDescriptorPool(d->handle, slot->sets[i], NULL);
    host_free(d, slot->sets);
    d->vk.vkDestroyQueryPool(d->handle, slot->queries, NULL);
    d->vk.vkDestroyCommandPool(d->handle, slot->pool, NULL);
}

/* ==== >>encoder =================================================================================================== */

/* ---- hazards ---- */

/* What a buffer adds to the bytes after which a command buffer is committed. Commits serve to start the GPU early:
 * while it is at work what is only read (weights, mostly) counts an eighth, since a submission for each 50 MiB of
 * weights costs the host more than it brings (Qwen3-8B on an NVIDIA H200: 57 a token and 266 tokens/s, so 10 and
 * 285). */
static size_t counted_size(const struct stream *s, const struct buffer *b, bool write)
{
    bool at_work = s->line->submitted > s->line->completed;
    return at_work && !write ? b->size / 8 : b->size;
}

/* Notes that the next dispatch reads or writes bytes of a buffer: orders it after other streams, and remembers the
 * range for hazards. low and high are offsets in the VkBuffer. */
static void encoder_access(struct encoder *e, struct buffer *b, size_t low, size_t high, bool write)
{
    struct stream *s = e->stream;
    int code;
    if (e->code || low >= high) return;
    for (int i = b->use_count == 1 && b->uses[0].line == s->line; i < b->use_count; i++) {
        struct use *u = &b->uses[i];
        if (u->line != s->line && (write || u->write) && stream_after(s, u->line, u->value)) return;
    }
    if (!e->commands && open_commands(s)) return;
    code = buffer_use(e->device, b, s->line, write);
    if (code) { encoder_fail(e, code, 0, __LINE__, "buffer", "out of host memory"); return; }
    if (b->mark != s->mark) { b->mark = s->mark; s->bytes += counted_size(s, b, write); }
    if (!e->pending_count) e->pending_in = s->mark;
    if (e->pending_count < MAX_PENDING)
        e->pending[e->pending_count++] = (struct access){ b, b->handle, low, high, write };
    else encoder_fail(e, MLXVK_ERROR_LIMIT, 0, __LINE__, "dispatch", "more than %d ranges of memory", MAX_PENDING);
}

/* Does what is pending overlap what ran since the last barrier, where one of the two writes? */
static bool find_hazard(const struct encoder *e)
{
    uint32_t until = e->concurrent ? e->concurrent_from : e->live_count;
    if (e->live_count + e->pending_count > MAX_LIVE) return true;
    for (uint32_t i = 0; i < e->pending_count; i++)
        for (uint32_t j = 0; j < until; j++) {
            const struct access *p = &e->pending[i], *l = &e->live[j];
            if (p->handle == l->handle && p->low < l->high && l->low < p->high && (p->write || l->write)) return true;
        }
    return false;
}

static void pending_to_live(struct encoder *e)
{
    memcpy(e->live + e->live_count, e->pending, e->pending_count * sizeof *e->pending);
    e->live_count += e->pending_count;
    e->pending_count = 0;
}

/* Records a barrier in front of the next dispatch where it needs one. */
static void insert_barrier(struct encoder *e)
{
    if (e->give_out) e->give_out(e);
    if (find_hazard(e)) encoder_barrier(e);
    pending_to_live(e);
}

/* ==== >>array ===================================================================================================== */

enum { INLINE_BYTES = 16 };

/* What arrays view: memory that comes when the first node that writes it is lowered. */
struct storage {
    int refs, owned;                                 /* arrays on it; those that a handle is held on */
    int readers, writers;                            /* nodes on the tape of its stream */
    int failed;                                      /* the error of the node that should have written it */
    struct device *device;
    struct timeline *line;                           /* of the stream whose tape holds, or held, nodes that touch it */
    struct buffer *buffer;
    size_t nbytes;
    /* last group of independent nodes that read, wrote it: see next_node */
    uint64_t group_read, group_write;
    uint64_t skip_read, skip_write;                  /* last search that passed over a node which reads, writes it */
    uint64_t window;                                 /* as an array's */
    uint16_t number;
    bool read;                                       /* planning looked at the contents of a literal */
    bool literal;                                    /* the contents are in `bytes`, no buffer needed yet */
    _Alignas(8) uint8_t bytes[INLINE_BYTES];         /* mlxvk_array_data points here */
};

/* The stream that last recorded something with it; NULL where there was none, or it is gone. */
static struct stream *stream_of(const struct storage *st) { return st->line ? st->line->stream : NULL; }

struct array {
    int refs, handles;                               /* all references; those of the caller */
    /* never the same twice; the window in which it has the number, see >>replay */
    uint64_t id, window;
    uint16_t number;
    struct storage *storage;
    struct array *next_temporary;
    mlxvk_dtype dtype;
    int ndim;
    bool row;                                        /* row-contiguous */
    size_t size;                                     /* elements */
    int64_t offset;                                  /* bytes from the storage's start to element [0, ...] */
    int shape[MAXD];
    int64_t strides[MAXD];                           /* elements */
};

static void storage_release(struct storage *st)
{
    struct device *d = st->device;
    if (--st->refs > 0) return;
    buffer_release(d, st->buffer);
    pool_give(d, &d->storage_pool, st);
}

static void array_release(struct array *a)
{
    struct device *d;
    if (!a || --a->refs > 0) return;
    d = a->storage->device;
    storage_release(a->storage);
    pool_give(d, &d->array_pool, a);
}

static struct storage *storage_create(struct device *d, size_t nbytes)
{
    struct storage *st = pool_take(d, &d->storage_pool, sizeof *st);
    if (!st) return NULL;
    memset(st, 0, offsetof(struct storage, bytes));
    st->device = d;
    st->nbytes = nbytes;
    return st;
}

static bool row_contiguous(const struct array *a)
{
    int64_t expected = 1;
    for (int i = a->ndim - 1; i >= 0; i--) {
        if (a->shape[i] != 1 && a->strides[i] != expected) return false;
        expected *= a->shape[i];
    }
    return true;
}

static void row_strides(int ndim, const int *shape, int64_t *strides)
{
    int64_t step = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        strides[i] = step;
        step *= shape[i];
    }
}

/* An array of refs 1 on a storage (one more reference on it). strides NULL: row-major. */
static struct array *array_create(struct storage *st, mlxvk_dtype dtype, int ndim, const int *shape,
                                  const int64_t *strides,
                                  int64_t offset)
{
    struct array *a = pool_take(st->device, &st->device->array_pool, sizeof *a);
    if (!a) return NULL;
    memset(a, 0, offsetof(struct array, shape));
    a->refs = 1;
    a->id = ++st->device->array_ids;
    a->storage = st;
    a->dtype = dtype;
    a->ndim = ndim;
    a->offset = offset;
    a->size = 1;
    st->refs++;
    for (int i = 0; i < ndim; i++) a->size *= (size_t)shape[i];
    if (ndim) memcpy(a->shape, shape, (size_t)ndim * sizeof *shape);
    if (strides) {
        if (ndim) memcpy(a->strides, strides, (size_t)ndim * sizeof *strides);
        a->row = a->size == 0 || row_contiguous(a);
    } else {
        row_strides(ndim, shape, a->strides);
        a->row = true;
    }
    return a;
}

static size_t item_size(const struct array *a) { return dtypes[a->dtype].size; }
static size_t array_bytes(const struct array *a) { return a->size * item_size(a); }
static int dim_of(const struct array *a, int axis) { return a->shape[axis < 0 ? axis + a->ndim : axis]; }
static bool same_shape(const struct array *a, const struct array *b)
{
    return a->ndim == b->ndim && (!a->ndim || !memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape));
}

static bool same_view(const struct array *a, const struct array *b)
{
    return a->storage == b->storage && a->offset == b->offset && a->dtype == b->dtype && same_shape(a, b) &&
           (!a->ndim || !memcmp(a->strides, b->strides, (size_t)a->ndim * sizeof *a->strides));
}

static const char *shape_text(const struct array *a, char *text, size_t size)
{
    size_t n = (size_t)snprintf(text, size, "%s (", dtypes[a->dtype].name);
    for (int i = 0; i < a->ndim && n < size; i++)
        n += (size_t)snprintf(text + n, size - n, "%s%d", i ? ", " : "", a->shape[i]);
    if (n < size) snprintf(text + n, size - n, ")");
    return text;
}
#define TEXT(a) shape_text(a, (char[160]){ 0 }, 160)

/* Dtype and shape alone, of an array that is not there: for TEXT. */
static struct array outline(mlxvk_dtype dtype, int ndim, const int *shape)
{
    struct array a = { .dtype = dtype, .ndim = ndim };
    if (ndim) memcpy(a.shape, shape, (size_t)ndim * sizeof *shape);
    return a;
}

/* The bytes of its storage that an array touches: [low, high). */
static void array_span(const struct array *a, int64_t *low, int64_t *high)
{
    int64_t first = 0, last = 0;
    for (int i = 0; i < a->ndim; i++) {
        int64_t reach = a->strides[i] * (a->shape[i] - 1);
        if (reach < 0) first += reach;
        else last += reach;
    }
    *low = a->offset + first * (int64_t)item_size(a);
    *high = a->size ? a->offset + (last + 1) * (int64_t)item_size(a) : *low;
}

/* A storage that a handle is held on holds the device; what only a tape still knows does not. The public call that
 * drops the last handle destroys the device. */
static void take_handle(struct array *a)
{
    a->refs++;
    if (!a->handles++ && !a->storage->owned++) a->storage->device->refs++;
}
static void drop_handle(struct array *a)
{
    if (!--a->handles && !--a->storage->owned) a->storage->device->refs--;
    array_release(a);
}

/* Writes the first bytes of a buffer by the queue: `size` bytes of data (a multiple of 4), or zeros where data is
 * NULL. */
static void write_first(struct encoder *e, struct buffer *b, const void *data, size_t size)
{
    assert(!e->pending_count);
    encoder_access(e, b, b->offset, b->offset + size, true);
    if (e->code) return;
    insert_barrier(e);
    if (data) e->device->vk.vkCmdUpdateBuffer(e->commands, b->handle, b->offset, size, data);
    else e->device->vk.vkCmdFillBuffer(e->commands, b->handle, b->offset, size, 0);
}

/* Gives a storage its memory. The contents of a literal are written by the host where it can, else by the queue. */
static int storage_allocate(struct encoder *e, struct storage *st)
{
    int code;
    if (st->buffer) return 0;
    code = buffer_allocate(st->device, st->nbytes, st->literal && st->device->caps.mapped ? NULL : e->stream->line,
                           &st->buffer);
    if (code) {
        encoder_fail(e, code, 0, __LINE__, "memory", code == MLXVK_ERROR_LIMIT
            ? "%zu bytes are more than one Vulkan allocation may have (%zu)"
                : "%zu bytes are not to be had (largest allocation %zu)",
            st->nbytes, st->device->caps.max_allocation);
        return code;
    }
    if (!st->literal || !st->nbytes) return 0;
    if (st->buffer->map) memcpy(st->buffer->map, st->bytes, st->nbytes);
    else write_first(e, st->buffer, st->bytes, INLINE_BYTES);
    return e->code;
}

/* Bytes that a binding may have: to SPIR-V an index is a signed number of 32 bits. */
static size_t binding_range(const struct device *d, size_t item) { return min_size(d->caps.max_range, item << 31); }

/* Those that fit wherever they begin. */
static size_t binding_room(const struct device *d, size_t item)
{
    return binding_range(d, item) - d->caps.offset_align - 16;
}

static bool fits_binding(const struct device *d, const struct array *a)
{
    int64_t low, high;
    array_span(a, &low, &high);
    return (size_t)(high - low) <= binding_room(d, item_size(a));
}

/* ==== >>plan: dispatches set up as values ========================================================================= */

/* Nothing here allocates device memory or calls Vulkan. Lowerings describe steps: a kernel with its constants,
 * bindings, push constants and a grid. Our own memory begins at multiples of every device's alignment, adopted
 * memory brings its remainder: so where a binding begins is known before its memory is. */

static void bound_forget(struct device *d, const struct bound *b)
{
    if (b->kind == BOUND_STORAGE) storage_release(b->storage);
    else if (b->kind == BOUND_BUFFER) buffer_release(d, b->buffer);
}

/* All ranges of the step that is being set up: bindings, and what it accesses besides. */
static uint32_t bound_mask(const struct encoder *e)
{
    return e->step.set_mask | (((1u << e->registered) - 1) << (MAX_BOUND - e->registered));
}

static void step_open(struct encoder *e)
{
    struct step *t = &e->step;
    t->pipeline = NULL;
    t->kernel = KERNEL_COUNT;
    t->set_mask = t->write_mask = t->push_used = t->late_at = 0;
    t->work = 0;
    e->registered = 0;
}

/* Forgets the step that is being set up. */
static void encoder_reset(struct encoder *e)
{
    for (uint32_t bits = bound_mask(e); bits; bits &= bits - 1) bound_forget(e->device, &e->bound[lowest_bit(bits)]);
    step_open(e);
}

/* Forgets all steps. */
static void plan_clear(struct encoder *e)
{
    struct plan *p = &e->plan;
    encoder_reset(e);
    for (uint32_t i = 0; i < p->bounds.count; i++) bound_forget(e->device, ITEM(p->bounds, struct bound, i));
    p->steps.count = p->bounds.count = p->donations.count = p->tables.count = 0;
}

static void plan_free(struct device *d, struct plan *p)
{
    host_free(d, p->steps.items);
    host_free(d, p->bounds.items);
    host_free(d, p->donations.items);
    host_free(d, p->tables.items);
}

static void set_bytes(struct encoder *e, const void *data, uint32_t size)
{
    struct step *t = &e->step;
    if (e->code || t->push_used + size > PUSH_SIZE) {
        encoder_fail(e, MLXVK_ERROR_LIMIT, 0, __LINE__, "push constants", "%u bytes", size);
        return;
    }
    memcpy(t->push + t->push_used, data, size);
    t->push_used += size;
}

/* USE(e, sort, &push, .threads = 128, ...): the step's kernel by name, its push constants and its constants, as
 * gen/kernels.h has them. USE_AS(e, id, sort, ...): another kernel, of the same push constants and constants. */
#define USE(e, kernel, push, ...) USE_AS(e, K_##kernel, kernel, push, __VA_ARGS__)
#define USE_AS(e, id, kernel, push, ...) use_kernel(e, id, (const kernel##_push *){ push }, sizeof(kernel##_push), \
                                                    &(kernel##_constants){ __VA_ARGS__ }, sizeof(kernel##_constants))
static void use_kernel(struct encoder *e, enum kernel_id k, const void *push, size_t push_size, const void *constants,
                       size_t size)
{
    const struct kernel_row *row = &kernel_table[k];
    struct step *t = &e->step;
    uint32_t missing = lacking(e->device, row->needs);
    char names[128];
    if (e->code) return;
    if (push_size != row->push || size != 4 * row->constants) {
        encoder_fail(e, MLXVK_ERROR_ARGUMENT, 0, __LINE__, row->name, "another kernel's constants");
        return;
    }
    if (missing) {
        name_missing(missing, names, sizeof names);
        encoder_fail(e, MLXVK_ERROR_UNSUPPORTED, 0, __LINE__, row->name, "%s lacks %s", e->device->caps.name, names);
        return;
    }
    t->pipeline = NULL;
    t->kernel = (uint32_t)k;
    t->constant_count = (uint32_t)(size / 4);
    memcpy(t->constants, constants, size);
    set_bytes(e, push, (uint32_t)push_size);
}

/* The word at `offset` of the push constants is the node's late parameter, or that with a number added. */
static void set_late(struct encoder *e, size_t offset) { e->step.late_at = 4 + (uint32_t)offset; }

/* How many multiplications the step does, where that, not memory, may be what it takes its time for. */
static void set_work(struct encoder *e, double multiplications) { e->step.work = (float)multiplications; }

/* Would a step of so many multiplications take too long for one dispatch? Drivers with a watchdog lose the device. */
static bool too_long(const struct encoder *e, double multiplications)
{
    int limit = e->device->gate[GATE_CUT_US];
    return limit > 0 && multiplications > limit * e->device->tuning->rate;
}

static void set_bound(struct encoder *e, uint32_t slot, bool binding, struct bound b)
{
    struct step *t = &e->step;
    if (binding && t->set_mask >> slot & 1) bound_forget(e->device, &e->bound[slot]);
    else if (slot >= MAX_BOUND || bound_mask(e) >> slot & 1) {
        encoder_fail(e, MLXVK_ERROR_LIMIT, 0, __LINE__, "dispatch", "more than %d ranges of memory", MAX_BOUND);
        return;
    }
    b.slot = (uint8_t)slot;
    e->bound[slot] = b;
    if (b.kind == BOUND_STORAGE) b.storage->refs++;
    else if (b.kind == BOUND_BUFFER) b.buffer->refs++;
    if (!binding) { e->registered++; return; }
    t->set_mask |= 1u << slot;
    t->write_mask = (t->write_mask & ~(1u << slot)) | (uint32_t)b.write << slot;
}

/* How far behind a multiple of the device's alignment a storage begins. */
static int64_t storage_shift(const struct storage *st)
{
    return st->buffer && !st->buffer->block ? (int64_t)(st->buffer->offset % st->device->caps.offset_align) : 0;
}

/* The byte of a storage where a binding begins that has its byte `low`: at the device's alignment, a power of two. */
static int64_t binding_low(const struct encoder *e, const struct storage *st, int64_t low)
{
    int64_t shift = storage_shift(st);
    return ((shift + low) & -(int64_t)e->device->caps.offset_align) - shift;
}

/* Elements from where an array's binding begins to element [0, ...]. */
static uint32_t place_of_array(const struct encoder *e, const struct array *a)
{
    int64_t low, high;
    array_span(a, &low, &high);
    return low == high ? 0 : (uint32_t)((a->offset - binding_low(e, a->storage, low)) / (int64_t)item_size(a));
}

/* Binds the bytes an array spans, from the device's alignment on. Returns the elements from there to element [0,
 * ...]. */
static uint32_t bind_array(struct encoder *e, uint32_t slot, struct array *a, bool write)
{
    struct storage *st = a->storage;
    int64_t low, high, shift = storage_shift(st);
    if (e->code) return 0;
    array_span(a, &low, &high);
    if (low == high) return 0;
    low = binding_low(e, st, low);
    high = (int64_t)round_up((size_t)(shift + high), 16) - shift;
    if ((size_t)(high - low) > binding_range(e->device, item_size(a))) {
        encoder_fail(e, MLXVK_ERROR_LIMIT, 0, __LINE__, "binding", "%s spans %lld bytes; one binding reaches %zu",
                     TEXT(a),
                     (long long)(high - low), binding_range(e->device, item_size(a)));
        return 0;
    }
    set_bound(e, slot, true, (struct bound){ .kind = BOUND_STORAGE, .write = write, .storage = st, .low = low,
                                             .high = high, .view = a,
                                                .array_number = a->window == e->device->window ? a->number
                                                    : UINT16_MAX });
    return (uint32_t)((a->offset - low) / (int64_t)item_size(a));
}

static uint32_t set_input(struct encoder *e, uint32_t slot, struct array *a) { return bind_array(e, slot, a, false); }
static uint32_t set_output(struct encoder *e, uint32_t slot, struct array *a) { return bind_array(e, slot, a, true); }

/* A step's parameters that do not fit into push constants, as a storage buffer. */
static void set_table(struct encoder *e, uint32_t slot, const void *data, size_t size)
{
    uint32_t from = e->plan.tables.count, room = (uint32_t)round_up(size, 16);
    uint8_t *table = e->code ? NULL : list_add(e->device, &e->plan.tables, 1, room);
    if (e->code) return;
    if (!table) { encoder_fail(e, MLXVK_ERROR_HOST_MEMORY, 0, __LINE__, "memory", "out of host memory"); return; }
    memset(table, 0, room);
    memcpy(table, data, size);
    set_bound(e, slot, true, (struct bound){ .kind = BOUND_TABLE, .low = from, .high = from + room });
}

enum { COUNTERS = 4096 };

/* Binds the stream's counters: a kernel finds zeros there and leaves zeros. They are no array, and not counted as
 * memory. */
static void set_counters(struct encoder *e, uint32_t slot)
{
    if (!e->code) set_bound(e, slot, true, (struct bound){ .kind = BOUND_COUNTERS, .low = 0, .high = 4 * COUNTERS });
}

/* ---- what may be fused: one judge of steps ---- */

/* What the kernels of fusions assume of their bindings, bit by bit: dense: rows have no gaps between elements; flat:
 * the whole array has none; own: read only where, and by the thread or workgroup that, the result is written, before
 * that. What is read otherwise must not lie where a result is written. */
static const struct layout_row { uint32_t kernel, dense, flat, own; } layout_table[] = {
    { K_BINARY,        0, 0, ~0u },
    { K_BINARY_HALF,   0, 0, ~0u },
    { K_NORM,          1 << 0 | 1 << 3, 0, 1 << 1 | 1 << 2 },
    { K_QMV,           0, 1 << 4 | 1 << 5, 1 << 5 },
    { K_QMV_PLAIN,     0, 1 << 4 | 1 << 5, 1 << 5 },
    { K_QMV_HELD,      0, 1 << 4 | 1 << 5, 1 << 5 },
    { K_QMV_SETS,      0, 15 << 10, 1 << 13 },
    { K_QMV_HELD_SETS, 0, 15 << 10, 1 << 13 },
};

/* Kernels made for chains walk every layout, each element by one thread. */
static struct layout_row layout_of(const struct step *t)
{
    if (t->pipeline) return (struct layout_row){ .own = ~0u };
    for (size_t i = 0; i < COUNT(layout_table); i++) if (layout_table[i].kernel == t->kernel) return layout_table[i];
    return (struct layout_row){ .kernel = t->kernel };
}

static bool overlap(const struct array *a, const struct array *b)
{
    int64_t low[2], high[2];
    if (a->storage != b->storage) return false;
    array_span(a, &low[0], &high[0]);
    array_span(b, &low[1], &high[1]);
    return low[0] < high[1] && low[1] < high[0];
}

/* Why a step of a fusion would not do what its nodes do one by one; NULL where it does. */
static const char *objection(const struct encoder *e)
{
    const struct step *t = &e->step;
    struct layout_row row = layout_of(t);
    for (uint32_t bits = t->set_mask; bits; bits &= bits - 1) {
        uint32_t i = lowest_bit(bits);
        const struct array *a = e->bound[i].view;
        if (!a) continue;
        if (row.dense >> i & 1 && dim_of(a, -1) > 1 && a->strides[a->ndim - 1] != 1) return "a row has gaps";
        if (row.flat >> i & 1 && !row_contiguous(a)) return "an operand has gaps";
        for (uint32_t others = t->write_mask; others; others &= others - 1) {
            uint32_t k = lowest_bit(others);
            const struct array *w = e->bound[k].view;
            if (k == i || !w || !overlap(a, w)) continue;
            if (t->write_mask >> i & 1 || !(row.own >> i & 1) || !same_view(a, w))
                return "it would write what it still reads";
        }
    }
    return NULL;
}

/* Judges a step that is being set up for a fusion. The fusion's nodes are planned one by one where it is refused. */
static bool judge(struct encoder *e)
{
    const char *why = e->fusion ? objection(e) : NULL;
    if (why) encoder_fail(e, MLXVK_ERROR_LIMIT, 0, __LINE__, "fusion", "%s", why);
    return !why;
}

/* Moves the step that was set up into the plan. */
static void step_add(struct encoder *e)
{
    struct plan *p = &e->plan;
    uint32_t all = bound_mask(e), count = 0;
    double bytes = 0;
    struct step *t = ADD(e->device, &p->steps, struct step);
    struct bound *b;
    for (uint32_t bits = all; bits; bits &= bits - 1) count++;
    b = t ? list_add(e->device, &p->bounds, sizeof *b, count) : NULL;
    if (!b) {
        if (t) p->steps.count--;
        encoder_fail(e, MLXVK_ERROR_HOST_MEMORY, 0, __LINE__, "plan", "out of host memory");
        encoder_reset(e);
        return;
    }
    e->step.time = e->step.work / (float)e->device->tuning->rate;
    for (uint32_t bits = all; bits; bits &= bits - 1) {
        *b = e->bound[lowest_bit(bits)];
        bytes += (double)(b->high - b->low);
        b++;
    }
    if (e->step.time < bytes / e->device->tuning->bandwidth)
        e->step.time = (float)(bytes / e->device->tuning->bandwidth);
    e->step.bounds = count;
    e->step.first = p->bounds.count - count;
    memcpy(t, &e->step, offsetof(struct step, constants) + e->step.constant_count * sizeof *t->constants);
    step_open(e);
}

/* Ends the step: kernel, bindings and push constants were set, in any order. A grid of zero is no dispatch. */
static void dispatch(struct encoder *e, uint32_t x, uint32_t y, uint32_t z)
{
    struct step *t = &e->step;
    const uint32_t *limit = e->device->caps.max_groups;
    if (!e->code && (x > limit[0] || y > limit[1] || z > limit[2]) && x && y && z)
        encoder_fail(e, MLXVK_ERROR_LIMIT, 0, __LINE__, t->pipeline ? t->pipeline->name : kernel_table[t->kernel].name,
                     "a grid of %u x %u x %u workgroups is over the limit of %u x %u x %u", x, y, z, limit[0], limit[1],
                         limit[2]);
    if (e->code || !x || !y || !z || !judge(e)) { encoder_reset(e); return; }
    memcpy(t->groups, (uint32_t[]){ x, y, z }, sizeof t->groups);
    step_add(e);
}

/* `groups` workgroups in as many dimensions as the device needs; kernels ask group_index() for theirs. */
static void dispatch_groups(struct encoder *e, uint64_t groups)
{
    const uint32_t *limit = e->device->caps.max_groups;
    uint32_t x, y, z;
    if (!groups) { encoder_reset(e); return; }
    x = groups < limit[0] ? (uint32_t)groups : limit[0] < 32768 ? limit[0] : 32768;
    y = (uint32_t)min_size((size_t)((groups + x - 1) / x), min_u32(limit[1], 32768));
    z = (uint32_t)((groups + (uint64_t)x * y - 1) / ((uint64_t)x * y));
    dispatch(e, x, y, z);
}

/* Threads of workgroups whose kernels take any power of two: every device has 128. */
static uint32_t flat_threads(const struct device *d) { return d->caps.max_threads < 256 ? 128 : 256; }

static void dispatch_elements(struct encoder *e, uint64_t count)
{
    dispatch_groups(e, ceil_div(count, flat_threads(e->device)));
}

/* ---- one way to choose ---- */

/* A way to do a family's job. fits: NULL, or the reason why not, which statistics and debug output print as it
 * stands. cost: an estimate of its time in microseconds, from bytes, operations and the device's tuning; NULL:
 * nothing, so the first that fits. */
struct candidate {
    const char *name;
    const char *(*fits)(const struct encoder *e, const void *job);
    double (*cost)(const struct encoder *e, const void *job);
    void (*plan)(struct encoder *e, const void *job);
};

/* The cheapest that fits. forced, from 1: that one, where it fits (a gate). family and text: for notes of what was
 * refused. */
static const struct candidate *choose(const struct encoder *e, const struct candidate *table, size_t count, int forced,
                                      int family,
                                      const void *job, const char *text)
{
    const struct candidate *best = NULL;
    double least = 0;
    for (size_t i = 0; i < count && !(best && least <= 0); i++) {      /* nothing costs less than nothing */
        const struct candidate *c = &table[forced > 0 && (size_t)forced <= count ? (i + (size_t)forced - 1) % count
                                           : i];
        const char *refusal = c->fits ? c->fits(e, job) : NULL;
        double cost = refusal || !c->cost ? 0 : c->cost(e, job);
        if (refusal) NOTE(e->device, family, c->name, refusal, "%s", text);
        else if (!best || cost < least) { best = c; least = cost; }
        if (!refusal && forced > 0 && !i) break;
    }
    return best;
}

/* ---- results in the place of operands ---- */

/* Do elements of the operand lie where the result's will lie? */
static bool same_place(const struct array *in, const struct array *out)
{
    return in->row && !in->offset && in->size == out->size && item_size(in) == item_size(out);
}

/* Lets a result take over the memory of an operand that nobody wants any more: for kernels whose threads read no
 * element of it after another thread may have written there. in: all that is read, and read by nothing else; entries
 * may be NULL. In front of the next step. */
static struct donation *donate(struct encoder *e, struct array *out, struct array *const *in, int count)
{
    const struct storage *to = out->storage;
    struct plan *p = &e->plan;
    struct donation *n;
    if (e->code || !e->device->gate[GATE_DONATION] || to->literal || out->offset || !out->row ||
        to->nbytes != array_bytes(out)) return NULL;
    n = ADD(e->device, &p->donations, struct donation);
    if (!n) return NULL;
    n->to = out->storage;
    n->count = 0;
    n->before = n->skip_to = p->steps.count;
    for (int i = 0; i < count; i++) {
        int k = 0;
        if (!in[i]) continue;
        while (k < n->count && n->from[k] != in[i]->storage) k++;
        if (k == MAX_DONORS) continue;
        if (k == n->count) { n->from[k] = in[i]->storage; n->reads[k] = 0; n->count++; }
        if (!same_place(in[i], out)) n->reads[k] = -1;
        else if (n->reads[k] >= 0) n->reads[k]++;
    }
    return n;
}

/* ==== >>bind: steps get memory, an order, and a place in the command buffer ======================================= */

static VkDescriptorSet pool_set(struct encoder *e, uint32_t bindings)
{
    struct device *d = e->device;
    struct slot *slot = &e->stream->slots[e->stream->slot];
    VkDescriptorSetAllocateInfo info = { .sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO,
                                         .descriptorSetCount = 1,
                                         .pSetLayouts = &d->set_layouts[bindings] };
    VkDescriptorSet set = VK_NULL_HANDLE;
    uint32_t pool = slot->sets_used / SETS_PER_POOL;
    VkResult r = VK_SUCCESS;
    if (pool == slot->set_pools) {
        VkDescriptorPoolSize size = { VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, SETS_PER_POOL * MAX_BINDINGS };
        VkDescriptorPoolCreateInfo create = { .sType = VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO,
            .maxSets = SETS_PER_POOL, .poolSizeCount = 1, .pPoolSizes = &size };
        VkDescriptorPool *grown = host_alloc(d, (pool + 1) * sizeof *grown);
        if (!grown) {
            encoder_fail(e, MLXVK_ERROR_HOST_MEMORY, 0, __LINE__, "descriptors", "out of host memory");
            return set;
        }
        if (slot->sets) memcpy(grown, slot->sets, pool * sizeof *grown);
        host_free(d, slot->sets);
        slot->sets = grown;
        r = d->vk.vkCreateDescriptorPool(d->handle, &create, NULL, &grown[pool]);
        if (r >= 0) slot->set_pools++;
    }
    if (r >= 0) {
        info.descriptorPool = slot->sets[pool];
        r = d->vk.vkAllocateDescriptorSets(d->handle, &info, &set);
    }
    if (r < 0) encoder_fail(e, vk_code(d, r), r, __LINE__, "descriptors", "no descriptor set (VkResult %d)", r);
    slot->sets_used++;
    d->stats.descriptor_sets++;
    return set;
}

static void bind_descriptors(struct encoder *e, const struct step *t, const struct pipeline *pipeline,
                             VkDescriptorBufferInfo *ranges)
{
    struct device *d = e->device;
    uint32_t n = pipeline->bindings, first = 0;
    VkWriteDescriptorSet write = { .sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET, .descriptorCount = n,
        .descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, .pBufferInfo = ranges };
    if (!n) return;
    /* An unused binding gets what the dispatch writes anyway: to the validation layer every binding that a shader names
     * is one that it writes. */
    while (first < n && !((t->write_mask ? t->write_mask : t->set_mask) & (1u << first))) first++;
    for (uint32_t i = 0; i < n; i++) {
        if (t->set_mask & (1u << i)) continue;
        if (first == n || pipeline->kernel == KERNEL_COUNT) {
            encoder_fail(e, MLXVK_ERROR_ARGUMENT, 0, __LINE__, pipeline->name, "binding %u is not bound", i);
            return;
        }
        ranges[i] = ranges[first];                   /* a binding that this variant of the kernel does not use */
    }
    if (d->caps.push_descriptor)
        d->vk.vkCmdPushDescriptorSetKHR(e->commands, VK_PIPELINE_BIND_POINT_COMPUTE, d->layouts[n], 0, 1, &write);
    else {
        write.dstSet = pool_set(e, n);
        if (e->code) return;
        d->vk.vkUpdateDescriptorSets(d->handle, 1, &write, 0, NULL);
        d->vk.vkCmdBindDescriptorSets(e->commands, VK_PIPELINE_BIND_POINT_COMPUTE, d->layouts[n], 0, 1, &write.dstSet,
                                      0, NULL);
    }
}

/* Where a dispatch is counted. */
static uint32_t counted_as(const struct encoder *e, const struct pipeline *p)
{
    return e->fusion && e->device->gate[GATE_PROFILE_FUSED] ? KERNEL_COUNT + e->fusion : p->kernel;
}

static void write_timestamp(struct encoder *e, const struct pipeline *p)
{
    struct slot *slot = &e->stream->slots[e->stream->slot];
    if (!slot->queries || slot->query_count >= QUERIES) return;
    slot->query_kernel[slot->query_count / 2] = (uint16_t)counted_as(e, p);
    e->device->vk.vkCmdWriteTimestamp(e->commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, slot->queries,
                                      slot->query_count++);
}

/* The stream's counters, made and zeroed at first use. */
static struct buffer *counters_of(struct encoder *e)
{
    const size_t size = 4 * COUNTERS;
    struct buffer *b = e->stream->counters;
    int code = b ? 0 : buffer_fresh(e->device, size, &b);
    if (code) { encoder_fail(e, code, 0, __LINE__, "memory", "no counters"); return NULL; }
    if (e->stream->counters) return b;
    e->stream->counters = b;
    if (b->map) memset(b->map, 0, size);
    else write_first(e, b, NULL, size);
    return b;
}

/* The buffer of a range, with memory: allocated, and written where its contents are known here. */
static struct buffer *bound_buffer(struct encoder *e, const struct bound *b)
{
    struct buffer *table = NULL;
    int code;
    switch (b->kind) {
    case BOUND_BUFFER: return b->buffer;
    case BOUND_COUNTERS: return counters_of(e);
    case BOUND_STORAGE:
        if (!b->write && !b->storage->buffer && !b->storage->literal)
            encoder_fail(e, MLXVK_ERROR_NOT_READY, 0, __LINE__, "input", "an operand was never computed");
        return e->code || storage_allocate(e, b->storage) ? NULL : b->storage->buffer;
    default:
        code = buffer_allocate(e->device, (size_t)(b->high - b->low), e->stream->line, &table);
        if (code) {
            encoder_fail(e, code, 0, __LINE__, "memory", "%lld bytes of parameters", (long long)(b->high - b->low));
            return NULL;
        }
        write_first(e, table, ITEM(e->plan.tables, uint8_t, b->low), (size_t)(b->high - b->low));
        return table;
    }
}

/* Where a range lies in its VkBuffer, which may end before the range does. */
static VkDescriptorBufferInfo place_bound(const struct bound *b, const struct buffer *memory)
{
    size_t base = memory->offset, start = b->kind == BOUND_TABLE ? base : (size_t)((int64_t)base + b->low);
    size_t end = b->kind == BOUND_TABLE ? base + (size_t)(b->high - b->low) : (size_t)((int64_t)base + b->high);
    return (VkDescriptorBufferInfo){ memory->handle, start, min_size(end, base + memory->size) - start };
}

/* Binds all that a step touches: memory for everything first, then what the dispatch accesses. */
static void bind_ranges(struct encoder *e, const struct bound *b, uint32_t count, VkDescriptorBufferInfo *ranges)
{
    struct buffer *memory[MAX_BOUND];
    for (uint32_t i = 0; i < count && !e->code; i++) memory[i] = bound_buffer(e, &b[i]);
    for (uint32_t i = 0; i < count && !e->code; i++) {
        VkDescriptorBufferInfo r = place_bound(&b[i], memory[i]);
        ranges[b[i].slot] = r;
        encoder_access(e, memory[i], r.offset, r.offset + r.range, b[i].write);
        /* the stream reuses it only behind this */
        if (b[i].kind == BOUND_TABLE) buffer_release(e->device, memory[i]);
    }
}

/* The pipeline of a step; one whose module planning wrote is made here. */
static struct pipeline *pipeline_of(struct encoder *e, const struct step *t)
{
    struct pipeline *p = t->pipeline;
    struct device *d = e->device;
    VkShaderModule module = VK_NULL_HANDLE;
    VkResult r;
    if (!p) return find_pipeline(e, (enum kernel_id)t->kernel, t->constants, t->constant_count);
    if (p->handle) return p;
    r = build_module(d, p->words.items, p->words.count * sizeof(uint32_t), &module);
    if (r >= 0) r = build_pipeline(d, module, p->bindings, p->spec, p->spec_count, &p->handle);
    d->vk.vkDestroyShaderModule(d->handle, module, NULL);
    if (r < 0) {
        encoder_fail(e, vk_code(d, r), r, __LINE__, p->name, "the pipeline could not be made (VkResult %d)", r);
        return NULL;
    }
    host_free(d, p->words.items);
    p->words = (struct list){ 0 };
    return p;
}

/* Records a dispatch: pipeline, descriptors, push constants. */
static void record_dispatch(struct encoder *e, const struct step *t, const struct pipeline *p,
                            VkDescriptorBufferInfo *ranges)
{
    struct device *d = e->device;
    if (e->in_use != p) {
        d->vk.vkCmdBindPipeline(e->commands, VK_PIPELINE_BIND_POINT_COMPUTE, p->handle);
        e->in_use = p;
    }
    bind_descriptors(e, t, p, ranges);
    if (e->code) return;
    if (t->push_used)
        d->vk.vkCmdPushConstants(e->commands, d->layouts[p->bindings], VK_SHADER_STAGE_COMPUTE_BIT, 0,
                                 (t->push_used + 3) & ~3u, t->push);
    write_timestamp(e, p);
    d->vk.vkCmdDispatch(e->commands, t->groups[0], t->groups[1], t->groups[2]);
    write_timestamp(e, p);
}

static void count_dispatch(struct encoder *e, const struct step *t, const struct pipeline *p)
{
    e->stream->time += t->time;
    e->device->stats.dispatches++;
    e->device->kernel_counts[counted_as(e, p)].count++;
    e->stream->ops++;
}

/* Is there a command buffer for the dispatch whose accesses are noted? */
static bool ready_to_record(struct encoder *e)
{
    if (!e->code && note_again(e))
        encoder_fail(e, MLXVK_ERROR_HOST_MEMORY, 0, __LINE__, "dispatch", "out of host memory");
    return !e->code && (e->commands || !open_commands(e->stream));
}

static void encode_step(struct encoder *e, const struct step *t, const struct bound *bounds)
{
    const struct pipeline *p = pipeline_of(e, t);
    VkDescriptorBufferInfo ranges[MAX_BOUND];
    e->pending_count = 0;
    if (p) bind_ranges(e, bounds, t->bounds, ranges);
    if (!ready_to_record(e)) return;
    insert_barrier(e);
    record_dispatch(e, t, p, ranges);
    if (!e->code) count_dispatch(e, t, p);
}

/* ---- results in the place of operands ---- */

enum { DONATE_ANYWAY = 1 << 20, DONATE_EXTRA = PAGE };

static bool read_since_barrier(const struct encoder *e, const struct buffer *b)
{
    for (uint32_t i = 0; i < e->live_count; i++) {
        const struct access *l = &e->live[i];
        if (l->handle == b->handle && !l->write && l->low < b->offset + b->size && b->offset < l->high) return true;
    }
    return false;
}

/* Where nobody but the plan reads an operand's memory, and it fits. Other readers of small operands since the last
 * barrier would make one necessary, which costs more than memory. */
static bool donate_memory(struct encoder *e, const struct donation *n)
{
    struct storage *to = n->to;
    for (int i = 0; i < n->count && !to->buffer; i++) {
        struct storage *st = n->from[i];
        struct buffer *b = st->buffer;
        if (!b || !b->block || b->refs != 1 || st->owned || st->writers || b->size < to->nbytes ||
            b->size > to->nbytes + DONATE_EXTRA || n->reads[i] != st->readers ||
            (to->nbytes < DONATE_ANYWAY && read_since_barrier(e, b)))
            continue;
        to->buffer = b;
        b->refs++;
        b->bytes = to->nbytes;
        return true;
    }
    return false;
}

/* Submits what is recorded, if it is enough. */
static void maybe_commit(struct stream *s)
{
    const int *gate = s->device->gate;
    if (s->encoder.give_out) return;                 /* a segment is about to end */
    if (s->ops >= (uint32_t)(gate[GATE_MAX_OPS] > 0 ? gate[GATE_MAX_OPS] : 1) ||
        (s->bytes >> 20) >= (size_t)(gate[GATE_MAX_MB] > 0 ? gate[GATE_MAX_MB] : 1) ||
        (gate[GATE_MAX_US] > 0 && s->time >= gate[GATE_MAX_US])) stream_submit(s);
}

/* Encodes what was planned, and forgets it. After an error what is left is forgotten, too. */
static void bind_plan(struct encoder *e)
{
    struct plan *p = &e->plan;
    uint32_t skip_to = 0;
    for (uint32_t i = 0, n = 0; i < p->steps.count; i++) {
        const struct step *t = ITEM(p->steps, struct step, i);
        const struct bound *bounds = ITEM(p->bounds, struct bound, t->first);
        for (; n < p->donations.count && ITEM(p->donations, struct donation, n)->before <= i; n++) {
            const struct donation *donation = ITEM(p->donations, struct donation, n);
            if (!e->code && donate_memory(e, donation)) skip_to = donation->skip_to;
        }
        if (!e->code && i >= skip_to) { encode_step(e, t, bounds); maybe_commit(e->stream); }
        for (uint32_t k = 0; k < t->bounds; k++) bound_forget(e->device, &bounds[k]);
    }
    p->steps.count = p->bounds.count = p->donations.count = p->tables.count = 0;
}

/* ==== >>tape ====================================================================================================== */

enum { NODE_INPUTS = 8, NODE_OUTPUTS = 4, LOWER_AT = 192, LOWER_KEEP = 32 };

/* One row an operation: lower_<name> turns its nodes into steps; its member of union params; where in there a number
 * is that does not shape the plan, which replay writes anew (0: nowhere). */
#define OPERATIONS(X)                                                                        \
    X(ELEMENTWISE,      elementwise,      elementwise, 0)                                    \
    X(MATMUL,           matmul,           matmul,      0)                                    \
    X(CONVOLUTION,      convolution,      conv,        0)                                    \
    X(FFT,              fft,              fft,         0)                                    \
    X(QUANTIZE,         quantize,         quant,       0)                                    \
    X(DEQUANTIZE,       dequantize,       quant,       0)                                    \
    X(QUANTIZED_MATMUL, quantized_matmul, quant,       0)                                    \
    X(GATHER_MM,        gather_mm,        gather_mm,   0)                                    \
    X(MASKED_MM,        masked_mm,        matmul,      0)                                    \
    X(SEGMENTED_MM,     segmented_mm,     matmul,      0)                                    \
    X(HADAMARD,         hadamard,         hadamard,    0)                                    \
    X(GATHER_QMM,       gather_qmm,       gather_qmm,  0)                                    \
    X(ARANGE,           arange,           arange,      0)                                    \
    X(REDUCE,           reduce,           reduce,      0)                                    \
    X(SOFTMAX,          softmax,          reduce,      0)                                    \
    X(SCAN,             scan,             scan,        0)                                    \
    X(GATHER,           gather,           gather,      0)                                    \
    X(POSITIONS,        positions,        positions,   0)                                    \
    X(NORM,             norm,             norm,        0)                                    \
    X(FACTOR,           factor,           factor,      0)                                    \
    X(JACOBI,           jacobi,           jacobi,      0)                                    \
    X(NORM_VJP,         norm_vjp,         norm_vjp,    0)                                    \
    X(ROPE,             rope,             rope,        offsetof(struct rope_params, offset)) \
    X(ATTENTION,        attention,        attention,   offsetof(struct attention_params, keys)) \
    X(RANDOM,           random,           random,      0)                                    \
    X(CATEGORICAL,      categorical,      random,      0)                                    \
    X(SORT,             sort,             sort,        0)                                    \
    X(SCATTER,          scatter,          scatter,     0)                                    \
    X(SEARCH,           search,           search,      0)                                   

enum operation {
#define X(id, name, params, late) OP_##id,
    OPERATIONS(X)
#undef X
    OP_COUNT
};

/* What an operation needs besides its arrays. Replay compares bytes: so there are none between members that nobody
 * sets. */
#ifdef __GNUC__
#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded"
#endif
struct elementwise_params { uint16_t kernel, op; };
struct matmul_params { float alpha, beta; int block; };
/* missing axes first */
struct conv_params { int stride[3], low[3], kernel_dilation[3], input_dilation[3], groups, flip; };
struct fft_params { uint8_t kind, axis; uint16_t inverse; int n; float scale; };
struct quant_params { uint16_t group; uint8_t bits, mode; uint32_t transpose; };
struct hadamard_params { float scale; };
struct gather_mm_params { uint32_t every; };
struct gather_qmm_params { struct quant_params quant; uint32_t every; };
struct arange_params { double start, step; };
struct reduce_params { uint32_t op, mask; float scale; };
struct scan_params { uint8_t op, axis, flags; };
struct gather_params { uint8_t mode, axis; uint16_t unit; uint32_t room; };
struct positions_params { uint32_t flags, none, size[2], room[2], step[2]; };
struct norm_params { uint32_t flags; float eps; };
struct factor_params { uint8_t op, flags; uint16_t count; uint32_t first; };
struct jacobi_params { uint8_t op; };
struct norm_vjp_params { uint32_t flags, each; float eps; };
struct rope_params { double rate; uint16_t dims, traditional; int32_t offset; float scale, none; };
struct attention_params { uint32_t flags; float scale; uint32_t keys; };
struct random_params { uint32_t kind; float low, high; };
struct sort_params { bool index; };
struct search_params { bool right; };
struct scatter_params { uint32_t op, scale, none; };
#ifdef __GNUC__
#pragma GCC diagnostic pop
#endif
union params {
    struct elementwise_params elementwise;
    struct matmul_params matmul;
    struct conv_params conv;
    struct fft_params fft;
    struct quant_params quant;
    struct hadamard_params hadamard;
    struct gather_mm_params gather_mm;
    struct gather_qmm_params gather_qmm;
    struct arange_params arange;
    struct reduce_params reduce;
    struct scan_params scan;
    struct gather_params gather;
    struct positions_params positions;
    struct norm_params norm;
    struct factor_params factor;
    struct jacobi_params jacobi;
    struct norm_vjp_params norm_vjp;
    struct rope_params rope;
    struct attention_params attention;
    struct random_params random;
    struct sort_params sort;
    struct scatter_params scatter;
    struct search_params search;
};
#define PARAMS(...) ((union params){ __VA_ARGS__ })

struct node {
    uint16_t op;
    uint8_t inputs, outputs;
    bool done;
    struct array *in[NODE_INPUTS], *out[NODE_OUTPUTS];
    union params p;
};

typedef void (*lower_function)(struct encoder *e, const struct node *n);
struct op_row { const char *name; lower_function lower; size_t params, late; };
static const struct op_row op_table[OP_COUNT];       /* at the end of >>fusion */

/* The nodes of a fusion, ascending; the first is where lowering stands. */
enum { MEMBERS_MOST = 16 };
struct members { uint32_t node[MEMBERS_MOST]; int count; };

/* What may take more than one node at once. */
static const struct passes {
    bool (*replay)(struct stream *s, uint32_t count);                /* the window: encoded, or to be kept */
    bool (*fuse)(struct encoder *e, struct stream *s, struct members *all, uint32_t end);
    void (*keep_group)(struct stream *s, const struct members *all);
    void (*keep_window)(struct stream *s);
    void (*forget)(struct stream *s);
} passes;                                            /* at the end of >>replay */

static void node_retire(struct node *n)
{
    for (int i = 0; i < n->inputs; i++)
        if (n->in[i]) { n->in[i]->storage->readers--; array_release(n->in[i]); }
    for (int i = 0; i < n->outputs; i++)
        if (n->out[i]) { n->out[i]->storage->writers--; array_release(n->out[i]); }
    n->done = true;
}

/* Nobody owns or reads what it writes. */
static bool node_dead(const struct node *n)
{
    for (int i = 0; i < n->outputs; i++)
        if (n->out[i] && (n->out[i]->storage->owned || n->out[i]->storage->readers)) return false;
    return true;
}

static void drop_dead_nodes(struct stream *s)
{
    for (uint32_t i = s->node_count; i-- > 0;)
        if (!s->nodes[i].done && node_dead(&s->nodes[i])) {
            node_retire(&s->nodes[i]);
            s->device->stats.dropped++;
        }
}

/* An error while lowering: the results of this node are unusable, and say why; the stream goes on. */
static void node_failed(struct stream *s, struct node *n)
{
    struct encoder *e = &s->encoder;
    struct device *d = s->device;
    bool follows = false;                            /* the operand's own failure was told already */
    for (int i = 0; i < n->inputs; i++) follows = follows || (n->in[i] && n->in[i]->storage->failed);
    if (!follows) snprintf(s->deferred_text, sizeof s->deferred_text, "%s", e->error.text);
    for (int i = 0; i < n->outputs; i++)
        if (n->out[i]) n->out[i]->storage->failed = e->code;
    if (!s->deferred) {
        s->deferred = e->code;
        set_error(&s->error, e->code, e->error.vk_result, e->error.line, op_table[n->op].name, "%s", e->error.text);
        if (d->on_error) d->on_error(&s->error, d->user);
    }
    e->code = d->lost;
    plan_clear(e);
}

static void check_operands(struct encoder *e, const struct node *n)
{
    for (int i = 0; i < n->inputs; i++)
        if (n->in[i] && n->in[i]->storage->failed)
            encoder_fail(e, n->in[i]->storage->failed, 0, __LINE__, "input", "an operand could not be computed");
}

static void enter_group(const struct node *n, uint64_t group)
{
    for (int i = 0; i < n->inputs; i++) if (n->in[i]) n->in[i]->storage->group_read = group;
    for (int i = 0; i < n->outputs; i++) if (n->out[i]) n->out[i]->storage->group_write = group;
}

/* The nodes were encoded, or failed, together. */
static void group_done(struct stream *s, const struct members *all)
{
    struct encoder *e = &s->encoder;
    int code = e->code;
    e->fusion = 0;
    for (int i = 0; i < all->count; i++) {
        struct node *n = &s->nodes[all->node[i]];
        e->code = code;
        if (code) node_failed(s, n);
        node_retire(n);
    }
    if (all->count > 1) s->device->stats.fused += (uint64_t)all->count;
    maybe_commit(s);
}

/* Plans the node, or the fusion that begins with it, and encodes the plan. */
static void lower_node(struct stream *s, uint32_t at, uint32_t end)
{
    struct encoder *e = &s->encoder;
    struct members all = { { at }, 1 };
    check_operands(e, &s->nodes[at]);
    if (!e->code && !passes.fuse(e, s, &all, end)) {
        all.count = 1;
        op_table[s->nodes[at].op].lower(e, &s->nodes[at]);
    }
    if (s->keeping) passes.keep_group(s, &all);
    bind_plan(e);
    for (int i = 1; i < all.count; i++) enter_group(&s->nodes[all.node[i]], s->device->group);
    group_done(s, &all);
}

/* ---- order: nodes that do not depend on each other run side by side, between the same two barriers ---- */

enum { LOOK_AHEAD = 20 };

static bool joins_group(const struct node *n, uint64_t group)
{
    for (int i = 0; i < n->inputs; i++)
        if (n->in[i] && n->in[i]->storage->group_write == group) return false;
    for (int i = 0; i < n->outputs; i++)
        if (n->out[i] && (n->out[i]->storage->group_write == group || n->out[i]->storage->group_read == group))
            return false;
    return true;
}

/* May it go before the nodes that the search passed over? */
static bool overtakes(const struct node *n, uint64_t search)
{
    for (int i = 0; i < n->inputs; i++)
        if (n->in[i] && n->in[i]->storage->skip_write == search) return false;
    for (int i = 0; i < n->outputs; i++)
        if (n->out[i] && (n->out[i]->storage->skip_write == search || n->out[i]->storage->skip_read == search))
            return false;
    return true;
}

static void pass_over(const struct node *n, uint64_t search)
{
    for (int i = 0; i < n->inputs; i++) if (n->in[i]) n->in[i]->storage->skip_read = search;
    for (int i = 0; i < n->outputs; i++) if (n->out[i]) n->out[i]->storage->skip_write = search;
}

/* The node to lower next: the first one, or, where that would need a barrier, a near one that does not and may go
 * first. */
static uint32_t next_node(struct stream *s, uint32_t first)
{
    struct device *d = s->device;
    uint32_t last = min_u32(s->node_count, first + LOOK_AHEAD);
    uint64_t search;
    if (!joins_group(&s->nodes[first], d->group)) {
        search = ++d->searches;
        for (uint32_t i = first; i < last; i++) {
            if (s->nodes[i].done) continue;
            if (joins_group(&s->nodes[i], d->group) && overtakes(&s->nodes[i], search)) { first = i; break; }
            pass_over(&s->nodes[i], search);
        }
        if (!joins_group(&s->nodes[first], d->group)) d->group++;
    }
    enter_group(&s->nodes[first], d->group);
    return first;
}

/* Turns the tape's nodes but the last `keep` into dispatches. */
static void stream_lower(struct stream *s, uint32_t keep)
{
    uint32_t count = s->node_count > keep ? s->node_count - keep : 0, kept = 0;
    uint64_t start = now_ns();
    if (!count) return;
    encoder_reset(&s->encoder);                      /* what a caller of mlxvk_stream_encoder set up and left */
    s->encoder.concurrent = false;
    drop_dead_nodes(s);
    if (!passes.replay(s, count)) {
        for (uint32_t i = 0; i < count; i++)
            while (!s->nodes[i].done) lower_node(s, next_node(s, i), s->node_count);
        passes.keep_window(s);
    }
    for (uint32_t i = count; i < s->node_count; i++)
        if (!s->nodes[i].done) s->nodes[kept++] = s->nodes[i];
    s->node_count = kept;
    s->device->stats.lowering_ns += now_ns() - start;
}

/* ---- streams: waited for, ended ---- */

/* Submits and waits for everything, also for what other threads record meanwhile. A lost device may be at work still;
 * it does not block. */
static int stream_drain(struct stream *s)
{
    struct device *d = s->device;
    int code;
    do {
        stream_lower(s, 0);
        stream_submit(s);
        code = timeline_wait(d, s->line, s->line->submitted);
    } while (!code && !d->lost && (s->node_count || s->encoder.commands || s->line->completed < s->line->submitted));
    return d->lost ? d->lost : code;
}

/* Submits and waits for what all streams have recorded. */
static void wait_streams(struct device *d)
{
    for (struct stream *s = d->streams; s; s = s->next) { stream_lower(s, 0); stream_submit(s); }
    for (uint32_t i = 0; i < d->timeline_count && !d->lost; i++)
        timeline_wait(d, d->timelines[i], d->timelines[i]->submitted);
}

/* A stream that is drained, or all of whose device goes. Where the wait failed, what its queue may be using stays. */
static void stream_destroy(struct stream *s)
{
    struct device *d = s->device;
    struct stream **link = &d->streams;
    bool idle = d->lost || s->line->completed >= s->line->submitted;
    passes.forget(s);
    plan_clear(&s->encoder);
    plan_free(d, &s->encoder.plan);
    for (uint32_t i = 0; i < s->slot_count && idle; i++)
        if (s->slots[i].pool) slot_destroy(d, &s->slots[i]);
    while (*link != s) link = &(*link)->next;
    *link = s->next;
    if (d->default_stream == s) d->default_stream = NULL;
    if (s->counters && idle) buffer_destroy(d, s->counters);
    if (idle) d->vk.vkDestroyCommandPool(d->handle, s->segment_pool, NULL);
    d->queue_users[s->queue]--;
    s->line->stream = NULL;
    host_free(d, s->nodes);
    host_free(d, s->seen);
    host_free(d, s);
}

/* Gives a reference back. The last one ends the stream, where it is not the device's default, when its work is done. */
static void stream_drop(struct stream *s)
{
    struct device *d = s->device;
    if (s->refs == 1 && s != d->default_stream) stream_drain(s);     /* others may take references meanwhile */
    if (--s->refs == 0 && s != d->default_stream) stream_destroy(s);
}

/* ---- the front's side: a call ---- */

/* One public call: the lock, the first error, and the arrays made on the way. */
struct call {
    struct stream *stream;
    struct device *device;
    const char *name;
    int code;
    /* replaced: of other devices, by results: end() frees them without the lock */
    struct array *temporaries, *replaced[2];
    int replaced_count;
};

/* The device, or the default one, with one more reference, and locked; NULL: there is none. Until unlock_and_drop. */
static struct device *lock_device(struct device *d);
static int unlock_and_drop(struct device *d);

/* A call holds its stream, and by it the device, as a handle does: it may let go of the lock while it waits. */
static struct call begin_on(const char *name, struct device *d, struct stream *s)
{
    struct call c = { .name = name };
    if (!d) { c.code = MLXVK_ERROR_NO_DEVICE; return c; }
    if (!s && !(s = default_stream(d))) {
        c.code = d->lost ? d->lost : MLXVK_ERROR_HOST_MEMORY;
        unlock_and_drop(d);
        return c;
    }
    s->refs++;
    c.stream = s;
    c.device = d;
    return c;
}

/* The operation's name of a function made by a row of a table, which has the whole name, for grep. */
#define CALLED(function) (&#function[sizeof "mlxvk_" - 1])

static struct call begin(const char *name, mlxvk_stream handle)
{
    struct stream *s = handle.ctx;
    struct call c = begin_on(name, lock_device(s ? s->device : NULL), s);
    if (c.device && c.device->lost) {
        c.code = c.device->lost;
        set_error(&c.stream->error, c.code, VK_ERROR_DEVICE_LOST, __LINE__, name, "the device was lost");
    }
    return c;
}

/* The first error of a call sticks. */
#define FAIL(c, code, ...) call_fail(c, code, __LINE__, __VA_ARGS__)
static void *call_fail(struct call *c, int code, int line, const char *format, ...)
{
    va_list arguments;
    if (c->code || !c->stream) return NULL;
    va_start(arguments, format);
    set_error_v(&c->stream->error, code, 0, line, c->name, format, arguments);
    va_end(arguments);
    c->code = code;
    if (c->device->on_error) c->device->on_error(&c->stream->error, c->device->user);
    return NULL;
}

static struct array *temporary(struct call *c, struct array *a)
{
    if (!a) return FAIL(c, MLXVK_ERROR_HOST_MEMORY, "out of host memory");
    a->next_temporary = c->temporaries;
    c->temporaries = a;
    return a;
}

/* Ends a call, and waits for the window of submissions in flight. */
static int end(struct call *c)
{
    struct device *d = c->device;
    struct stream *s = c->stream;
    uint64_t window;
    if (!d) return c->code;
    for (struct array *a = c->temporaries, *next; a; a = next) { next = a->next_temporary; array_release(a); }
    if (s->node_count >= LOWER_AT) stream_lower(s, LOWER_KEEP);
    window = (uint64_t)(d->gate[GATE_INFLIGHT] > 0 ? d->gate[GATE_INFLIGHT] : 1);
    if (s->line->submitted > s->line->completed + window) timeline_wait(d, s->line, s->line->submitted - window);
    stream_drop(s);
    unlock_and_drop(d);
    for (int i = 0; i < c->replaced_count; i++) mlxvk_array_free((mlxvk_array){ c->replaced[i] });
    return c->code;
}

/* Puts an array into a result handle, releasing what that held. */
static void put_result(struct call *c, mlxvk_array *res, struct array *a)
{
    struct array *old = res->ctx;
    take_handle(a);
    res->ctx = a;
    if (old && old->storage->device != c->device) c->replaced[c->replaced_count++] = old;
    else if (old) drop_handle(old);
}

/* Ends a call with one result. */
static int finish(struct call *c, struct array *a, mlxvk_array *res)
{
    if (!c->code && !a) FAIL(c, MLXVK_ERROR_HOST_MEMORY, "no result");
    if (!c->code && !res) FAIL(c, MLXVK_ERROR_ARGUMENT, "res is NULL");
    if (!c->code) put_result(c, res, a);
    return end(c);
}

/* The same with strides, for notes. */
static const char *layout_text(const struct array *a, char *text, size_t size)
{
    size_t n = strlen(shape_text(a, text, size));
    if (n + 3 < size) n += (size_t)snprintf(text + n, size - n, " (");
    for (int i = 0; i < a->ndim && n < size; i++)
        n += (size_t)snprintf(text + n, size - n, "%s%lld", i ? ", " : "", (long long)a->strides[i]);
    if (n < size) snprintf(text + n, size - n, ")");
    return text;
}
#define LAYOUT(a) layout_text(a, (char[96]){ 0 }, 96)

static struct array *input(struct call *c, const char *name, mlxvk_array handle)
{
    struct array *a = handle.ctx;
    if (c->code) return NULL;
    if (!a) return FAIL(c, MLXVK_ERROR_ARGUMENT, "%s is { NULL }", name);
    if (a->storage->device != c->device) return FAIL(c, MLXVK_ERROR_ARGUMENT, "%s belongs to another device", name);
    return a;
}

static struct array *optional_input(struct call *c, const char *name, mlxvk_array handle)
{
    return handle.ctx ? input(c, name, handle) : NULL;
}

/* A shape whose sizes are not negative and whose bytes can be counted. */
static bool check_shape(struct call *c, int ndim, const int *shape, mlxvk_dtype dtype)
{
    size_t size = 1;
    if (c->code) return false;
    if (ndim < 0 || ndim > MAXD) return FAIL(c, MLXVK_ERROR_SHAPE, "%d dimensions; at most %d", ndim, MAXD), false;
    if (ndim && !shape) return FAIL(c, MLXVK_ERROR_ARGUMENT, "shape is NULL"), false;
    if (!is_dtype((int)dtype)) return FAIL(c, MLXVK_ERROR_DTYPE, "%d is no dtype", (int)dtype), false;
    if (dtype == MLXVK_FLOAT64) return FAIL(c, MLXVK_ERROR_DTYPE, "float64 is not supported on the GPU"), false;
    for (int i = 0; i < ndim; i++) {
        if (shape[i] < 0) return FAIL(c, MLXVK_ERROR_SHAPE, "dimension %d is %d", i, shape[i]), false;
        if (shape[i] && size > SIZE_MAX / 32 / (size_t)shape[i])
            return FAIL(c, MLXVK_ERROR_LIMIT, "a shape of more than %zu elements", SIZE_MAX / 32), false;
        size *= (size_t)shape[i];
    }
    return true;
}

/* Strides whose reach can be counted in bytes. */
static bool check_strides(struct call *c, int ndim, const int *shape, const int64_t *strides)
{
    if (c->code || (ndim && !strides)) return !c->code;
    for (int i = 0; i < ndim; i++) {
        int64_t most = INT64_MAX / 8 / MAXD / 2 / (shape[i] ? shape[i] : 1);     /* sums in bytes stay within 64 bits */
        if (strides[i] > most || strides[i] < -most)
            return FAIL(c, MLXVK_ERROR_SHAPE, "stride %lld of axis %d is too large", (long long)strides[i], i), false;
    }
    return true;
}

/* A fresh row-major result. */
static struct array *output(struct call *c, int ndim, const int *shape, mlxvk_dtype dtype)
{
    struct storage *st;
    struct array *a;
    size_t size = 1;
    if (!check_shape(c, ndim, shape, dtype)) return NULL;
    for (int i = 0; i < ndim; i++) size *= (size_t)shape[i];
    if (size * dtypes[dtype].size > c->device->caps.max_allocation) {
        struct array wanted = outline(dtype, ndim, shape);
        return FAIL(c, MLXVK_ERROR_LIMIT, "a result %s of %zu bytes is over the device's largest allocation of %zu",
                    TEXT(&wanted),
                    size * dtypes[dtype].size, c->device->caps.max_allocation);
    }
    st = storage_create(c->device, size * dtypes[dtype].size);
    if (!st) return FAIL(c, MLXVK_ERROR_HOST_MEMORY, "out of host memory");
    st->refs = 1;
    a = array_create(st, dtype, ndim, shape, NULL, 0);
    storage_release(st);
    return temporary(c, a);
}

/* Another view of an array's storage; offset in bytes. */
static struct array *view_of(struct call *c, struct array *a, mlxvk_dtype dtype, int ndim, const int *shape,
                             const int64_t *strides,
                             int64_t offset)
{
    if (c->code || !a || !check_shape(c, ndim, shape, dtype)) return NULL;
    return temporary(c, array_create(a->storage, dtype, ndim, shape, strides, offset));
}

/* Another stream's tape must not hold nodes on a storage that this call touches. */
static void claim(struct call *c, struct storage *st)
{
    struct stream *s = stream_of(st);
    if (s && s != c->stream && (st->readers || st->writers)) stream_lower(s, 0);
    st->line = c->stream->line;
}

static struct node *new_node(struct call *c)
{
    struct stream *s = c->stream;
    if (s->node_count == s->node_slots) {
        uint32_t slots = s->node_slots ? 2 * s->node_slots : 2 * LOWER_AT;
        struct node *grown = host_alloc(c->device, slots * sizeof *grown);
        if (!grown) return FAIL(c, MLXVK_ERROR_HOST_MEMORY, "out of host memory");
        if (s->nodes) memcpy(grown, s->nodes, s->node_count * sizeof *grown);
        host_free(c->device, s->nodes);
        s->nodes = grown;
        s->node_slots = slots;
    }
    return &s->nodes[s->node_count];
}

/* Records an operation. Operands and results may be NULL (absent). Nothing is recorded where no result has elements. */
#define ARRAYS(...) ((struct array *[]){ __VA_ARGS__ }), (int)COUNT(((struct array *[]){ __VA_ARGS__ }))
static void append(struct call *c, int op, union params p, struct array **in, int inputs, struct array **out,
                   int outputs)
{
    struct node *n;
    size_t elements = 0;
    if (c->code) return;
    for (int i = 0; i < outputs; i++) if (out[i]) elements += out[i]->size;
    if (!elements) return;
    for (int i = 0; i < inputs; i++) if (in[i]) claim(c, in[i]->storage);
    for (int i = 0; i < outputs; i++) if (out[i]) claim(c, out[i]->storage);
    n = new_node(c);
    if (!n) return;
    n->op = (uint16_t)op;
    n->done = false;
    n->inputs = (uint8_t)inputs;
    n->outputs = (uint8_t)outputs;
    n->p = p;
    for (int i = 0; i < inputs; i++)
        if ((n->in[i] = in[i]) != NULL) { in[i]->refs++; in[i]->storage->readers++; }
    for (int i = 0; i < outputs; i++)
        if ((n->out[i] = out[i]) != NULL) { out[i]->refs++; out[i]->storage->writers++; }
    c->stream->node_count++;
    c->device->stats.operations++;
}

/* ==== >>elementwise: copies, unary, binary, select ================================================================ */

/* ---- tables ---- */

enum unary_rule {
    U_FLOAT = 1,                                     /* integers and bool are cast to float32 */
    U_NO_COMPLEX = 2, U_NO_BOOL = 4, U_INTEGER = 8,  /* rejected dtypes; integers only */
    U_KEEP_INTEGER = 16, U_KEEP_REAL = 32,           /* returned unchanged */
    U_TO_REAL = 64, U_TO_BOOL = 128, U_FROM_BOOL = 256
};

/* The public functions of one operand: name, what follows U_, its name in the shader, rules. */
#define UNARY_FUNCTIONS(X) \
    X(mlxvk_abs, abs, ABS, U_TO_REAL) X(mlxvk_negative, negative, NEGATIVE, U_NO_BOOL) X(mlxvk_sign, sign, SIGN, 0) \
    X(mlxvk_square, square, SQUARE, 0) X(mlxvk_logical_not, logical_not, LOGICAL_NOT, U_FROM_BOOL | U_TO_BOOL) \
    X(mlxvk_bitwise_invert, bitwise_invert, BITWISE_INVERT, U_INTEGER) \
    X(mlxvk_floor, floor, FLOOR, U_NO_COMPLEX | U_KEEP_INTEGER) \
    X(mlxvk_ceil, ceil, CEIL, U_NO_COMPLEX | U_KEEP_INTEGER) X(mlxvk_conjugate, conjugate, CONJUGATE, U_KEEP_REAL) \
    X(mlxvk_real, real, REAL, U_KEEP_REAL | U_TO_REAL) X(mlxvk_imag, imag, IMAG, U_TO_REAL) \
    X(mlxvk_sqrt, sqrt, SQRT, U_FLOAT) X(mlxvk_rsqrt, rsqrt, RSQRT, U_FLOAT) \
    X(mlxvk_reciprocal, reciprocal, RECIPROCAL, U_FLOAT) X(mlxvk_exp, exp, EXP, U_FLOAT) \
    X(mlxvk_expm1, expm1, EXPM1, U_FLOAT | U_NO_COMPLEX) X(mlxvk_log, log, LOG, U_FLOAT) \
    X(mlxvk_log2, log2, LOG2, U_FLOAT) X(mlxvk_log10, log10, LOG10, U_FLOAT) X(mlxvk_log1p, log1p, LOG1P, U_FLOAT) \
    X(mlxvk_sin, sin, SIN, U_FLOAT) X(mlxvk_cos, cos, COS, U_FLOAT) X(mlxvk_tan, tan, TAN, U_FLOAT) \
    X(mlxvk_sinh, sinh, SINH, U_FLOAT) X(mlxvk_cosh, cosh, COSH, U_FLOAT) X(mlxvk_tanh, tanh, TANH, U_FLOAT) \
    X(mlxvk_arcsin, arcsin, ARCSIN, U_FLOAT) X(mlxvk_arccos, arccos, ARCCOS, U_FLOAT) \
    X(mlxvk_arctan, arctan, ARCTAN, U_FLOAT) X(mlxvk_arcsinh, arcsinh, ARCSINH, U_FLOAT) \
    X(mlxvk_arccosh, arccosh, ARCCOSH, U_FLOAT) X(mlxvk_arctanh, arctanh, ARCTANH, U_FLOAT) \
    X(mlxvk_erf, erf, ERF, U_FLOAT | U_NO_COMPLEX) X(mlxvk_erfinv, erfinv, ERFINV, U_FLOAT | U_NO_COMPLEX) \
    X(mlxvk_sigmoid, sigmoid, SIGMOID, U_FLOAT | U_NO_COMPLEX) X(mlxvk_isnan, isnan, ISNAN, U_TO_BOOL) \
    X(mlxvk_isinf, isinf, ISINF, U_TO_BOOL) X(mlxvk_isfinite, isfinite, ISFINITE, U_TO_BOOL) \
    X(mlxvk_isposinf, isposinf, ISPOSINF, U_TO_BOOL) X(mlxvk_isneginf, isneginf, ISNEGINF, U_TO_BOOL) \
    X(mlxvk_degrees, degrees, DEGREES, U_FLOAT) X(mlxvk_radians, radians, RADIANS, U_FLOAT)

#define X(function, name, id, rules) U_##name = UNARY_##id,
enum unary { UNARY_FUNCTIONS(X) U_round = UNARY_ROUND, U_COUNT };
#undef X
#define X(function, name, id, rules) [U_##name] = rules,
static const int unary_rules[U_COUNT] = { UNARY_FUNCTIONS(X) [U_round] = U_KEEP_INTEGER };
#undef X

enum binary_rule { B_FLOAT = 1, B_NO_COMPLEX = 2, B_INTEGER = 4, B_SHIFT = 8, B_COMPARE = 16, B_LOGICAL = 32 };

/* The same of two operands. */
#define BINARY_FUNCTIONS(X) \
    X(mlxvk_add, add, ADD, 0) X(mlxvk_subtract, subtract, SUBTRACT, 0) X(mlxvk_multiply, multiply, MULTIPLY, 0) \
    X(mlxvk_divide, divide, DIVIDE, B_FLOAT) X(mlxvk_floor_divide, floor_divide, FLOOR_DIVIDE, 0) \
    X(mlxvk_remainder, remainder, REMAINDER, B_NO_COMPLEX) X(mlxvk_power, power, POWER, 0) \
    X(mlxvk_maximum, maximum, MAXIMUM, 0) X(mlxvk_minimum, minimum, MINIMUM, 0) \
    X(mlxvk_logaddexp, logaddexp, LOGADDEXP, B_FLOAT) X(mlxvk_arctan2, arctan2, ARCTAN2, B_FLOAT | B_NO_COMPLEX) \
    X(mlxvk_bitwise_and, bitwise_and, BITWISE_AND, B_INTEGER) X(mlxvk_bitwise_or, bitwise_or, BITWISE_OR, B_INTEGER) \
    X(mlxvk_bitwise_xor, bitwise_xor, BITWISE_XOR, B_INTEGER) \
    X(mlxvk_left_shift, left_shift, LEFT_SHIFT, B_INTEGER | B_SHIFT) \
    X(mlxvk_right_shift, right_shift, RIGHT_SHIFT, B_INTEGER | B_SHIFT) X(mlxvk_equal, equal, EQUAL, B_COMPARE) \
    X(mlxvk_not_equal, not_equal, NOT_EQUAL, B_COMPARE) X(mlxvk_greater, greater, GREATER, B_COMPARE) \
    X(mlxvk_greater_equal, greater_equal, GREATER_EQUAL, B_COMPARE) X(mlxvk_less, less, LESS, B_COMPARE) \
    X(mlxvk_less_equal, less_equal, LESS_EQUAL, B_COMPARE) \
    X(mlxvk_logical_and, logical_and, LOGICAL_AND, B_COMPARE | B_LOGICAL) \
    X(mlxvk_logical_or, logical_or, LOGICAL_OR, B_COMPARE | B_LOGICAL)
/* Not public by these names */
#define BINARY_OWN(X) \
    X(, floor_quotient, FLOOR_QUOTIENT, B_NO_COMPLEX) X(, nan_equal, NAN_EQUAL, B_COMPARE) \
    X(, silu_product, SILU_PRODUCT, B_FLOAT | B_NO_COMPLEX) X(, truncated_quotient, TRUNCATED_QUOTIENT, B_NO_COMPLEX)

#define X(function, name, id, rules) B_##name = BINARY_##id,
enum binary { BINARY_FUNCTIONS(X) BINARY_OWN(X) B_COUNT };
#undef X
#define X(function, name, id, rules) [B_##name] = { #name, rules },
static const struct binary_row { const char *name; int rules; }
binary_table[B_COUNT] = { BINARY_FUNCTIONS(X) BINARY_OWN(X) };
#undef X

/* ---- lowering ---- */

enum { MAX_OPERANDS = 4, MAX_MERGED = 16, PUSH_DIMS = 4 };

/* Kernels that take and search say more than a walk, behind fewer strides. */
union walk_push { struct elementwise_push all; take_push take; search_push search; };
static_assert(offsetof(take_push, stride) == offsetof(struct elementwise_push, stride) &&
              offsetof(search_push, stride) == offsetof(struct elementwise_push, stride), "walks begin alike");

/* Dimensions common to some arrays, merged where all of them allow it. */
struct dims { int ndim; int64_t shape[MAXD], stride[MAX_MERGED][MAXD]; };

static struct dims merge_dims(struct array *const *a, int count)
{
    struct dims g;
    g.ndim = 0;
    for (int i = 0; i < a[0]->ndim; i++) {
        bool joins = g.ndim > 0;
        if (a[0]->shape[i] == 1) continue;
        for (int k = 0; k < count && joins; k++)
            joins = g.stride[k][g.ndim - 1] == a[k]->strides[i] * a[0]->shape[i];
        if (joins) g.shape[g.ndim - 1] *= a[0]->shape[i];
        else g.shape[g.ndim++] = a[0]->shape[i];
        for (int k = 0; k < count; k++) g.stride[k][g.ndim - 1] = a[k]->strides[i];
    }
    return g;
}

/* Bit k: operand k is one element. UINT32_MAX: not a flat walk. */
static uint32_t flat_scalars(const struct dims *g, int count)
{
    uint32_t scalars = 0;
    if (g->ndim > 1) return UINT32_MAX;
    for (int k = 0; k < count; k++) {
        int64_t stride = g->ndim ? g->stride[k][0] : 1;
        if (stride == 0 && k > 0) scalars |= 1u << k;
        else if (stride != 1) return UINT32_MAX;
    }
    return scalars;
}

/* The dimensions, and what divides by all but the first without a division. */
static void push_dims(struct elementwise_push *p, const struct dims *g, int count)
{
    p->divisor_shifts = 0;
    for (int i = 0; i < g->ndim; i++) {
        uint64_t n = p->shape[i] = (uint32_t)g->shape[i];
        uint32_t up = 0;
        for (int k = 0; k < count; k++) p->stride[k][i] = (uint32_t)g->stride[k][i];
        if (!i) continue;
        while ((uint64_t)1 << up < n) up++;
        p->divisor[i - 1] = (uint32_t)(((((uint64_t)1 << up) - n) << 32) / n + 1);
        p->divisor_shifts |= ((up ? up - 1 : 0) << 1 | (up > 0)) << (8 * i - 8);
    }
}

/* The same for a walk of more dimensions than push constants have room for. */
static void table_dims(struct encoder *e, uint32_t slot, const struct dims *g, int count)
{
    uint32_t table[(1 + MAX_OPERANDS) * MAXD] = { 0 };
    for (int i = 0; i < g->ndim; i++) {
        table[i] = (uint32_t)g->shape[i];
        for (int k = 0; k < count; k++) table[(1 + k) * g->ndim + i] = (uint32_t)g->stride[k][i];
    }
    set_table(e, slot, table, (size_t)((1 + MAX_OPERANDS) * g->ndim) * 4);
}

/* One or the other, with the table in `slot`: which walk it is. */
static uint32_t set_dims(struct encoder *e, struct elementwise_push *p, uint32_t slot, const struct dims *g, int count)
{
    p->ndim = (uint32_t)g->ndim;
    if (g->ndim <= PUSH_DIMS) push_dims(p, g, count);
    else table_dims(e, slot, g, count);
    return g->ndim <= PUSH_DIMS ? MODE_STRIDES : MODE_TABLE;
}

/* Kernels that take four elements a thread. */
static bool is_vector_kernel(enum kernel_id k)
{
    return k == K_COPY || k == K_UNARY || k == K_BINARY || k == K_SELECT || k == K_FP8;
}

/* Does a gate keep an operation from walks without strides? */
static bool walk_by_strides(const struct encoder *e, const struct elementwise_params *p, const struct array *first,
                            uint32_t scalars)
{
    const int *gate = e->device->gate;
    if (p->kernel != K_BINARY) return false;
    if (first->dtype == MLXVK_BFLOAT16)
        return (p->op == B_add && !gate[GATE_ADD_BF16]) || (p->op == B_multiply && !gate[GATE_MUL_BF16]);
    return first->dtype == MLXVK_UINT32 && (p->op == B_left_shift || p->op == B_right_shift) && scalars &&
        !gate[GATE_SHIFT_U32];
}

static void note_walk(const struct encoder *e, const struct elementwise_params *p, struct array *const *a,
                      uint32_t mode)
{
    const char *reason = mode == MODE_TABLE ? "more than 4 dimensions do not merge" :
                         mode == MODE_STRIDES ? "strided, not aligned, or a gate" : NULL;
    if (p->kernel != K_BINARY && p->kernel != K_BINARY_WIDE && p->kernel != K_BINARY_COMPLEX) return;
    NOTE(e->device, binary_table[p->op].rules & B_INTEGER ? NOTE_BITWISE : NOTE_BINARY, binary_table[p->op].name,
         reason, "%s, %s", LAYOUT(a[1]), LAYOUT(a[2]));
}

/* A copy whose operand is contiguous along another dimension than the result: by tiles of these two. */
enum { TRANSPOSE_LEAST = 8 };

/* The side of tiles of bytes and halves where both sides' rows are groups of 16 bytes; 0: they are not, or elements
 * change. */
static uint32_t tile_of_quads(const struct encoder *e, struct array *const *a, const transpose_push *p)
{
    uint32_t size = (uint32_t)item_size(a[0]), all = p->rows | p->columns | p->to | p->from | p->row_out | p->column_in;
    if (a[0]->dtype != a[1]->dtype || size > 2) return 0;
    for (size_t i = 0; i < COUNT(p->shape); i++) if (p->shape[i] > 1) all |= p->in_stride[i] | p->out_stride[i];
    if (all % (16 / size)) return 0;
    return size == 2 && (p->rows <= 64 || p->columns <= 64 || e->device->caps.shared_memory < 32768) ? 64 : 128;
}

static bool copy_by_tiles(struct encoder *e, struct array *const *a, const struct dims *g)
{
    transpose_push p = { .matrices = 1, .shape = { 1, 1, 1 } };
    bool wide = item_size(a[0]) == 8;
    uint32_t tile, quads;
    int last = g->ndim - 1, row = -1, outer = 0;
    if (!e->device->gate[GATE_TRANSPOSE] || e->device->caps.max_threads < 256 || (wide && a[0]->dtype != a[1]->dtype))
        return false;
    for (int i = 0; i < last; i++) if (g->stride[1][i] == 1) row = i;
    if (row < 0 || g->stride[0][last] != 1 || g->shape[row] < TRANSPOSE_LEAST || g->shape[last] < TRANSPOSE_LEAST ||
        (size_t)g->ndim > 2 + COUNT(p.shape))
        return false;
    for (int i = 0; i < last; i++) {
        if (i == row) continue;
        p.shape[outer] = (uint32_t)g->shape[i];
        p.in_stride[outer] = (uint32_t)g->stride[1][i];
        p.out_stride[outer++] = (uint32_t)g->stride[0][i];
        p.matrices *= (uint32_t)g->shape[i];
    }
    p.rows = (uint32_t)g->shape[row];
    p.columns = (uint32_t)g->shape[last];
    p.row_out = (uint32_t)g->stride[0][row];
    p.column_in = (uint32_t)g->stride[1][last];
    p.to = set_output(e, SLOT_transpose_dst, a[0]);
    p.from = set_input(e, SLOT_transpose_src, a[1]);
    quads = tile_of_quads(e, a, &p);
    tile = quads ? quads : wide || e->device->caps.shared_memory < 4 * 64 * 65 ? 32 : 64;
    p.tiles_down = ceil_div(p.rows, tile);
    p.tiles_across = ceil_div(p.columns, tile);
    if (quads) USE(e, transpose_quads, &p, .threads = 256, .tile = tile, .size = (uint32_t)item_size(a[0]));
    else USE(e, transpose, &p, .threads = 256, .tile = tile, .to = a[0]->dtype, .from = a[1]->dtype);
    dispatch_groups(e, (uint64_t)p.tiles_down * p.tiles_across * p.matrices);
    return true;
}

/* How many elements a thread takes of the kernels above: 16 bytes of the wider side, where none has elements of
 * four. */
static uint32_t lanes_of(uint16_t kernel, mlxvk_dtype to, mlxvk_dtype from)
{
    uint32_t most = (uint32_t)(dtypes[to].size > dtypes[from].size ? dtypes[to].size : dtypes[from].size);
    return kernel == K_FP8 || most > 2 ? 4 : 16 / most;
}

/* The device's own conversion of f16, where there is one. */
static enum kernel_id kernel_of_lanes(const struct encoder *e, uint16_t kernel, uint32_t lanes, mlxvk_dtype to,
                                      mlxvk_dtype from)
{
    enum kernel_id half = kernel == K_UNARY ? K_UNARY_HALF : kernel == K_BINARY ? K_BINARY_HALF : K_COPY_HALF;
    bool copy = kernel == K_COPY && to != from, narrows = copy && lanes == 4 && from == MLXVK_FLOAT32;
    bool has_half = (copy && to == MLXVK_FLOAT16) ||
        ((copy || kernel == K_UNARY || kernel == K_BINARY) && from == MLXVK_FLOAT16);
    return (lanes == 8 || narrows) && has_half && has_kernel(e->device, half) ? half : (enum kernel_id)kernel;
}

/* Copies of bits from rows to rows: as words, where both sides' rows are whole words. */
static bool count_words(struct dims *g, uint32_t offset[2], size_t size)
{
    int last = g->ndim - 1;
    uint32_t each = size < 4 ? 4 / (uint32_t)size : 1, more = size > 4 ? (uint32_t)size / 4 : 1;
    if (size == 4 || last < 0 || g->stride[0][last] != 1 || g->stride[1][last] != 1) return false;
    if (g->shape[last] % each || (offset[0] | offset[1]) % each) return false;
    for (int i = 0; i < last; i++) if (g->stride[0][i] % each || g->stride[1][i] % each) return false;
    for (int k = 0; k < 2; k++) {
        offset[k] = offset[k] / each * more;
        for (int i = 0; i < last; i++) g->stride[k][i] = g->stride[k][i] / each * more;
    }
    g->shape[last] = g->shape[last] / each * more;
    return true;
}

/* Strided walks by vectors of some elements: operands either run along the last dimension, in whole vectors, or stay in
 * it. */
static bool count_vectors(struct dims *g, uint32_t *offset, int count, int lanes, uint32_t *scalars)
{
    int last = g->ndim - 1;
    *scalars = 0;
    if (last < 0 || g->ndim > PUSH_DIMS || g->shape[last] % lanes) return false;
    for (int k = 0; k < count; k++) {
        bool stays = k > 0 && !g->stride[k][last];
        if (stays) *scalars |= 1u << k;
        else if (g->stride[k][last] != 1 || offset[k] % (uint32_t)lanes) return false;
        for (int i = 0; i < last && !stays; i++) if (g->stride[k][i] % lanes) return false;
    }
    g->shape[last] /= lanes;
    for (int k = 0; k < count; k++) {
        if (*scalars >> k & 1) continue;
        offset[k] /= (uint32_t)lanes;
        for (int i = 0; i < last; i++) g->stride[k][i] /= lanes;
    }
    return true;
}

static void elementwise_dispatch(struct encoder *e, const struct elementwise_params *p, struct array *const *a,
                                 int count)
{
    struct dims g = merge_dims(a, count);
    struct elementwise_push push = { .n = (uint32_t)a[0]->size };
    uint32_t scalars = flat_scalars(&g, count), mode = MODE_FLAT, misaligned = 0, threads, lanes;
    mlxvk_dtype to = a[0]->dtype, from = a[count - 1]->dtype;
    bool small = is_vector_kernel(p->kernel) && item_size(a[0]) <= 4 && item_size(a[count - 1]) <= 4;
    if (p->kernel == K_COPY && scalars == UINT32_MAX && copy_by_tiles(e, a, &g)) return;
    for (int k = 0; k < count; k++) push.offset[k] = bind_array(e, SLOT_elementwise_dst + (uint32_t)k, a[k], !k);
    if (p->kernel == K_COPY && to == from && array_bytes(a[0]) / 4 <= UINT32_MAX &&
        count_words(&g, push.offset, item_size(a[0]))) {
        push.n = (uint32_t)(array_bytes(a[0]) / 4);
        to = from = MLXVK_UINT32;
        small = true;
    }
    threads = push.n;
    for (int k = 0; k < count; k++) if (!(scalars & (1u << k))) misaligned |= push.offset[k];
    lanes = !small || walk_by_strides(e, p, a[1], scalars) ? 1 :
        lanes_of(p->kernel, to, p->kernel == K_COPY && scalars == 2 ? to : from);
    if (scalars != UINT32_MAX && lanes > 4 && misaligned % lanes) lanes = 4;
    if (scalars != UINT32_MAX && lanes > 1 && !(misaligned & 3)) {
        mode = lanes == 16 ? MODE_FLAT_16 : lanes == 8 ? MODE_FLAT_8 : MODE_FLAT_4;
        threads = push.n / lanes + push.n % lanes;
    } else if (scalars == UINT32_MAX || small) {
        while (lanes > 1 && !count_vectors(&g, push.offset, count, (int)lanes, &scalars)) lanes = lanes > 4 ? 4 : 1;
        mode = set_dims(e, &push, SLOT_elementwise_dst + (uint32_t)count, &g, count);
        if (lanes > 1) mode = lanes == 16 ? MODE_STRIDES_16 : lanes == 8 ? MODE_STRIDES_8 : MODE_STRIDES_4;
        else scalars = 0;
        threads /= lanes;
    }
    note_walk(e, p, a, mode);
    USE_AS(e, kernel_of_lanes(e, p->kernel, lanes, to, from), binary, &push, .threads = flat_threads(e->device),
           .mode = mode,
           .scalars = scalars, .op = p->op, .to = to, .from = from);
    dispatch_elements(e, threads);
}

/* ---- operands that a device cannot bind whole ---- */

/* Can it be bound, or copied to where it can? Where axes that stay whole reach too far by themselves, no other cut
 * helps: then it is enough that the elements, maybe as a wider type, fit. */
static bool is_cut_enough(const struct encoder *e, const struct array *a, uint32_t whole)
{
    size_t reach = 0, range = binding_range(e->device, item_size(a));
    if (fits_binding(e->device, a)) return true;
    for (int i = 0; i < a->ndim; i++)
        if (whole >> i & 1) reach += (size_t)(llabs(a->strides[i]) * (a->shape[i] - 1)) * item_size(a);
    return reach > range / 2 && array_bytes(a) <= range / 4;
}

/* The axis along which to halve arrays where one of them is too large; -1: none is. Axes of a mask stay whole. */
static int axis_to_split(const struct encoder *e, struct array *const *a, int count, uint32_t whole)
{
    for (int k = 0; k < count; k++) {
        int64_t widest = 0;
        int axis = -1;
        if (!a[k] || is_cut_enough(e, a[k], whole)) continue;
        for (int i = 0; i < a[k]->ndim; i++) {
            int64_t reach = llabs(a[k]->strides[i]) * (a[k]->shape[i] - 1);
            if (reach > widest && !(whole >> i & 1)) { widest = reach; axis = i; }
        }
        if (axis >= 0) return axis;
    }
    return -1;
}

static int longest_axis(const struct array *a, uint32_t whole)
{
    int axis = -1;
    for (int i = 0; i < a->ndim; i++)
        if (a->shape[i] > 1 && !(whole >> i & 1) && (axis < 0 || a->shape[i] > a->shape[axis])) axis = i;
    return axis;
}

/* The same for one array whose elements are more than a dispatch can count, however few there are in memory. */
static int axis_to_count(const struct encoder *e, const struct array *a, uint32_t whole)
{
    return a->size <= e->device->caps.max_elements ? -1 : longest_axis(a, whole);
}

/* Part of an array along an axis, as a view that lives on the caller's stack. */
static struct array part_of(const struct array *a, int axis, int64_t first, int64_t count)
{
    struct array part = *a;
    part.refs = 1;
    part.shape[axis] = (int)count;
    part.size = a->size / (size_t)a->shape[axis] * (size_t)count;
    part.offset += first * a->strides[axis] * (int64_t)item_size(a);
    part.row = row_contiguous(&part);
    return part;
}

/* One half of an array along an axis; all of it where it has one position there, or no such axis. */
static struct array half_of(const struct array *a, int axis, int half)
{
    struct array whole = *a;
    int first = axis < a->ndim ? a->shape[axis] / 2 : 0;
    whole.refs = 1;
    return !first ? whole : half ? part_of(a, axis, first, a->shape[axis] - first) : part_of(a, axis, 0, first);
}

/* A row-contiguous array as a matrix: all that kernels which take row after row need to know. */
static struct array matrix_of(struct encoder *e, const struct array *a)
{
    struct array m = *a;
    int n = a->ndim ? a->shape[a->ndim - 1] : 1;
    m.refs = 1;
    m.ndim = 2;
    if (a->size / (size_t)n > INT_MAX)
        encoder_fail(e, MLXVK_ERROR_LIMIT, 0, __LINE__, "rows", "%s has %zu rows; at most %d", TEXT(a),
                     a->size / (size_t)n, INT_MAX);
    m.shape[0] = (int)min_size(a->size / (size_t)n, INT_MAX);
    m.shape[1] = n;
    m.strides[0] = n;
    m.strides[1] = 1;
    return m;
}

/* Lowers a job on arrays of the same positions along every axis but those of a mask, in halves where they cannot be
 * bound whole. */
enum { PARTS_MOST = 8 };
typedef void (*part_function)(struct encoder *e, struct array *const *a, const void *job);

static void in_parts(struct encoder *e, struct array *const *a, int count, uint32_t whole, part_function lower,
                     const void *job)
{
    struct array part[PARTS_MOST], *parts[PARTS_MOST];
    int axis = axis_to_split(e, a, count, whole);
    assert(count <= PARTS_MOST);
    if (axis < 0) { lower(e, a, job); return; }
    for (int half = 0; half < 2 && !e->code; half++) {
        for (int k = 0; k < count; k++) {
            if (a[k]) part[k] = half_of(a[k], axis, half);
            parts[k] = a[k] ? &part[k] : NULL;
        }
        in_parts(e, parts, count, whole, lower, job);
    }
}

struct elementwise_job { const struct elementwise_params *p; int count; };

static void elementwise_part(struct encoder *e, struct array *const *a, const void *job)
{
    const struct elementwise_job *j = job;
    elementwise_dispatch(e, j->p, a, j->count);
}

static void elementwise_split(struct encoder *e, const struct elementwise_params *p, struct array *const *a, int count)
{
    in_parts(e, a, count, 0, elementwise_part, &(struct elementwise_job){ p, count });
}

/* Records no operation: a fresh row-major array of the lowering's own. NULL with an error where there is none. */
static struct array *lowering_array(struct encoder *e, mlxvk_dtype dtype, int ndim, const int *shape)
{
    size_t size = dtypes[dtype].size;
    struct array *a = NULL;
    for (int i = 0; i < ndim; i++) size *= (size_t)shape[i];
    struct storage *st = e->code ? NULL : storage_create(e->device, size);
    if (st) {
        st->refs = 1;
        a = array_create(st, dtype, ndim, shape, NULL, 0);
        storage_release(st);
    }
    if (!a) encoder_fail(e, MLXVK_ERROR_HOST_MEMORY, 0, __LINE__, "scratch", "out of host memory");
    return a;
}

static void copy_split(struct encoder *e, struct array *to, struct array *from)
{
    elementwise_split(e, &(struct elementwise_params){ .kernel = K_COPY }, (struct array *[]){ to, from }, 2);
}

/* For lowering: a row-contiguous version of an operand, copied on the spot where it is not. */
static struct array *rows_of(struct encoder *e, struct array *a)
{
    struct array *copy = e->code || a->row ? NULL : lowering_array(e, a->dtype, a->ndim, a->shape);
    if (copy) copy_split(e, copy, a);
    else a->refs++;
    return copy ? copy : a;
}

/* An array of the lowering's own; to be released after its last dispatch. */
static struct array *scratch(struct encoder *e, size_t count, mlxvk_dtype dtype)
{
    if (count <= INT_MAX) return lowering_array(e, dtype, 1, (int[]){ (int)count });
    encoder_fail(e, MLXVK_ERROR_LIMIT, 0, __LINE__, "scratch", "a temporary of %zu elements is too large", count);
    return NULL;
}

/* Is an operand better copied first, by tiles, than read along the wrong dimension? Many elements, each once,
 * neighbours elsewhere. */
enum { ACROSS_LEAST = 1 << 20 };

static bool runs_across(const struct array *a)
{
    int last = a->ndim - 1;
    bool along = false;
    if (a->size < ACROSS_LEAST || !a->storage->device->gate[GATE_TRANSPOSE]) return false;
    while (last >= 0 && a->shape[last] == 1) last--;
    for (int i = 0; i <= last; i++) {
        if (!a->strides[i] && a->shape[i] > 1) return false;
        if (i < last && a->strides[i] == 1 && a->shape[i] >= TRANSPOSE_LEAST) along = true;
    }
    return along && a->strides[last] != 1 && a->shape[last] >= TRANSPOSE_LEAST;
}

static void lower_elementwise(struct encoder *e, const struct node *n)
{
    struct array *a[MAX_OPERANDS] = { n->out[0] }, *own[MAX_OPERANDS] = { NULL };
    bool copy = n->p.elementwise.kernel == K_COPY;
    for (int i = 0; i < n->inputs; i++) a[i + 1] = n->in[i];
    struct donation *donation = donate(e, n->out[0], n->in, n->inputs);
    for (int i = 1; i <= n->inputs && !copy; i++) if (runs_across(a[i])) a[i] = own[i] = rows_of(e, a[i]);
    elementwise_split(e, &n->p.elementwise, a, n->inputs + 1);
    if (donation && copy && a[0]->dtype == a[1]->dtype) donation->skip_to = e->plan.steps.count;   /* it is there */
    for (int i = 1; i <= n->inputs; i++) if (own[i]) array_release(own[i]);
}

/* ---- fronts: shared helpers ---- */

/* Public functions of one array, x, or of two, x and y: operands, the result as an expression, the other parameters. */
#define FUNCTION(name, a, result, ...)                                                                                \
    int name(mlxvk_array *res, mlxvk_array a, __VA_ARGS__)                                                            \
    {                                                                                                                 \
        struct call c = begin(CALLED(name), s);                                                                       \
        struct array *x = input(&c, #a, a);                                                                           \
        return finish(&c, result, res);                                                                               \
    }
#define FUNCTION_TWO(name, a, b, result, ...)                                                                         \
    int name(mlxvk_array *res, mlxvk_array a, mlxvk_array b, __VA_ARGS__)                                             \
    {                                                                                                                 \
        struct call c = begin(CALLED(name), s);                                                                       \
        struct array *x = input(&c, #a, a), *y = input(&c, #b, b);                                                    \
        return finish(&c, result, res);                                                                               \
    }
#define FRONT(name, a, result, ...) FUNCTION(mlxvk_##name, a, result, __VA_ARGS__)
#define FRONT_TWO(name, a, b, result, ...) FUNCTION_TWO(mlxvk_##name, a, b, result, __VA_ARGS__)

static enum kernel_id copy_kernel(mlxvk_dtype to, mlxvk_dtype from)
{
    return to != from && (dtypes[to].size == 8 || dtypes[from].size == 8) ? K_COPY_WIDE : K_COPY;
}

/* Records a copy of `from`, cast, into the elements of `to`, which have the same shape. */
static void append_copy(struct call *c, struct array *to, struct array *from)
{
    if (c->code || !to || !from) return;
    append(c, OP_ELEMENTWISE, PARAMS(.elementwise = { .kernel = (uint16_t)copy_kernel(to->dtype, from->dtype) }),
           ARRAYS(from), ARRAYS(to));
}

static struct array *as_type(struct call *c, struct array *a, mlxvk_dtype dtype)
{
    if (c->code || !a || a->dtype == dtype) return a;
    struct array *out = output(c, a->ndim, a->shape, dtype);
    append_copy(c, out, a);
    return out;
}

static struct array *as_float(struct call *c, struct array *a)
{
    return a ? as_type(c, a, at_least_float(a->dtype)) : NULL;
}

/* A fresh row-major copy. */
static struct array *copy_of(struct call *c, struct array *a)
{
    struct array *out = a ? output(c, a->ndim, a->shape, a->dtype) : NULL;
    append_copy(c, out, a);
    return out;
}

static struct array *contiguous(struct call *c, struct array *a) { return c->code || !a || a->row ? a : copy_of(c, a); }

/* A number as an array of no dimensions. */
static struct array *scalar_bytes(struct call *c, const void *value, mlxvk_dtype dtype)
{
    struct array *a = output(c, 0, NULL, dtype);
    if (!a) return NULL;
    a->storage->literal = true;
    memset(a->storage->bytes, 0, INLINE_BYTES);
    memcpy(a->storage->bytes, value, dtypes[dtype].size);
    return a;
}

static uint32_t half_bits(float x)
{
    uint32_t u = float_bits(x), sign = (u >> 16) & 0x8000u, m = u & 0x7fffffffu;
    float scaled;
    if (m > 0x7f800000u) return sign | 0x7e00u;
    if (m >= 0x477ff000u) return sign | 0x7c00u;
    if (m >= 0x38800000u) return sign | ((m - 0x38000000u + 0xfffu + ((m >> 13) & 1u)) >> 13);
    memcpy(&scaled, &m, 4);
    return sign | (uint32_t)rintf(scaled * 16777216.0f);
}

static uint32_t bfloat_bits(float x)
{
    uint32_t u = float_bits(x);
    return (u & 0x7fffffffu) > 0x7f800000u ? (u >> 16) | 0x40u : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
}

/* A double as an element of any dtype. */
static void number_bytes(double value, mlxvk_dtype dtype, uint8_t bytes[8])
{
    int64_t whole = value >= 9223372036854775808.0 ? INT64_MAX : value <= -9223372036854775808.0 ? INT64_MIN :
        value == value ? (int64_t)value : 0;
    uint64_t bits = (uint64_t)whole;
    if (dtype == MLXVK_UINT64 && value >= 9223372036854775808.0)
        bits = value < 18446744073709551616.0 ? (uint64_t)value : UINT64_MAX;
    if (dtype == MLXVK_BOOL) bits = value != 0;
    if (dtype == MLXVK_FLOAT32 || dtype == MLXVK_COMPLEX64) bits = float_bits((float)value);
    if (dtype == MLXVK_FLOAT16) bits = half_bits((float)value);
    if (dtype == MLXVK_BFLOAT16) bits = bfloat_bits((float)value);
    for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)(bits >> (8 * i));
}

static struct array *scalar(struct call *c, double value, mlxvk_dtype dtype)
{
    uint8_t bytes[8];
    number_bytes(value, dtype, bytes);
    return scalar_bytes(c, bytes, dtype);
}

/* The shape that a and b broadcast to; false with an error where they do not. */
static bool broadcast_shape(struct call *c, const struct array *a, const struct array *b, int *ndim, int *shape)
{
    *ndim = a->ndim > b->ndim ? a->ndim : b->ndim;
    for (int i = 0; i < *ndim; i++) {
        int ia = i - (*ndim - a->ndim), ib = i - (*ndim - b->ndim);
        int x = ia < 0 ? 1 : a->shape[ia], y = ib < 0 ? 1 : b->shape[ib];
        if (x != y && x != 1 && y != 1)
            return FAIL(c, MLXVK_ERROR_SHAPE, "%s and %s cannot be broadcast", TEXT(a), TEXT(b)), false;
        shape[i] = x == 1 ? y : x;
    }
    return true;
}

/* a seen with a larger shape: strides of 0 where it repeats. */
static struct array *broadcast(struct call *c, struct array *a, int ndim, const int *shape)
{
    int64_t strides[MAXD];
    if (c->code || !a) return NULL;
    if (a->ndim == ndim && (!ndim || !memcmp(a->shape, shape, (size_t)ndim * sizeof *shape))) return a;
    bool fits = ndim >= a->ndim;
    for (int i = 0; i < ndim; i++) {
        int k = i - (ndim - a->ndim);
        fits = fits && (k < 0 || a->shape[k] == shape[i] || a->shape[k] == 1);
        if (fits) strides[i] = k < 0 || (a->shape[k] == 1 && shape[i] != 1) ? 0 : a->strides[k];
    }
    if (!fits) {
        struct array wanted = outline(a->dtype, ndim, shape);
        return FAIL(c, MLXVK_ERROR_SHAPE, "%s cannot be broadcast to %s", TEXT(a), TEXT(&wanted));
    }
    return view_of(c, a, a->dtype, ndim, shape, strides, a->offset);
}

/* ---- unary ---- */

static uint16_t unary_kernel(mlxvk_dtype t)
{
    return is_complex(t) ? K_unary_complex : is_wide(t) ? K_unary_wide : K_unary;
}

static uint16_t binary_kernel(mlxvk_dtype t)
{
    return is_complex(t) ? K_binary_complex : is_wide(t) ? K_binary_wide : K_binary;
}

static struct array *apply_unary(struct call *c, enum unary op, struct array *a)
{
    mlxvk_dtype to = a->dtype;
    int rules = unary_rules[op];
    if (rules & U_TO_REAL && is_complex(to)) to = MLXVK_FLOAT32;
    if (rules & U_TO_BOOL) to = MLXVK_BOOL;
    struct array *out = output(c, a->ndim, a->shape, to);
    append(c, OP_ELEMENTWISE, PARAMS(.elementwise = { .kernel = unary_kernel(a->dtype), .op = (uint16_t)op }),
           ARRAYS(a), ARRAYS(out));
    return out;
}

static struct array *constant_like(struct call *c, struct array *a, double value, mlxvk_dtype dtype)
{
    struct array *out = output(c, a->ndim, a->shape, dtype);
    append_copy(c, out, broadcast(c, scalar(c, value, dtype), a->ndim, a->shape));
    return out;
}

static struct array *do_unary(struct call *c, enum unary op, struct array *a)
{
    int rules = unary_rules[op];
    if (c->code || !a) return NULL;
    if (((rules & U_NO_COMPLEX) && is_complex(a->dtype)) || ((rules & U_NO_BOOL) && a->dtype == MLXVK_BOOL) ||
        ((rules & U_INTEGER) && a->dtype != MLXVK_BOOL && !is_integer(a->dtype)))
        return FAIL(c, MLXVK_ERROR_DTYPE, "%s is not taken", TEXT(a));
    if ((rules & U_KEEP_REAL) && !is_complex(a->dtype)) return a;
    if ((rules & U_KEEP_INTEGER) && !is_inexact(a->dtype)) return a;
    if (op == U_bitwise_invert && a->dtype == MLXVK_BOOL) op = U_logical_not;
    if (op == U_abs && (a->dtype == MLXVK_BOOL || dtypes[a->dtype].kind == KIND_UINT)) return a;
    if (op == U_imag && !is_complex(a->dtype)) return constant_like(c, a, 0, a->dtype);
    if ((rules & U_TO_BOOL) && !(rules & U_FROM_BOOL) && !is_inexact(a->dtype))
        return constant_like(c, a, op == U_isfinite, MLXVK_BOOL);
    if (rules & U_FROM_BOOL) a = as_type(c, a, MLXVK_BOOL);
    if (rules & U_FLOAT) a = as_float(c, a);
    return a ? apply_unary(c, op, a) : NULL;
}

#define X(function, name, id, rules) FUNCTION(function, a, do_unary(&c, U_##name, x), mlxvk_stream s)
UNARY_FUNCTIONS(X)
#undef X

/* ---- binary ---- */

static struct array *do_binary(struct call *c, enum binary op, struct array *a, struct array *b)
{
    int rules = binary_table[op].rules, ndim, shape[MAXD];
    if (c->code || !a || !b) return NULL;
    mlxvk_dtype t = rules & B_LOGICAL ? MLXVK_BOOL : promote(a->dtype, b->dtype);
    if (op == B_floor_divide && is_complex(t)) op = B_divide;   /* as MLX: nothing is rounded */
    if (rules & B_FLOAT) t = at_least_float(t);
    if ((rules & B_SHIFT) && t == MLXVK_BOOL) t = MLXVK_UINT8;
    if (((rules & B_NO_COMPLEX) && is_complex(t)) || ((rules & B_INTEGER) && is_inexact(t)))
        return FAIL(c, MLXVK_ERROR_DTYPE, "%s and %s are not taken", TEXT(a), TEXT(b));
    if (!broadcast_shape(c, a, b, &ndim, shape)) return NULL;
    a = broadcast(c, as_type(c, a, t), ndim, shape);
    b = broadcast(c, as_type(c, b, t), ndim, shape);
    struct array *out = output(c, ndim, shape, rules & B_COMPARE ? MLXVK_BOOL : t);
    append(c, OP_ELEMENTWISE, PARAMS(.elementwise = { .kernel = binary_kernel(t), .op = (uint16_t)op }),
           ARRAYS(a, b), ARRAYS(out));
    return out;
}

#define X(function, name, id, rules) FUNCTION_TWO(function, a, b, do_binary(&c, B_##name, x, y), mlxvk_stream s)
BINARY_FUNCTIONS(X)
#undef X
FUNCTION_TWO(mlxvk_equal_nan, a, b, do_binary(&c, B_nan_equal, x, y), mlxvk_stream s)
FUNCTION_TWO(mlxvk_divide_truncate, a, b,
             do_binary(&c, x && y && is_inexact(promote(x->dtype, y->dtype)) ? B_divide : B_truncated_quotient, x, y),
             mlxvk_stream s)

/* MLX rounds to decimals by scaling: round(x * 10^d) * (1 / 10^d), the factor in float32. */
int mlxvk_round(mlxvk_array *res, mlxvk_array a, int decimals, mlxvk_stream s)
{
    struct call c = begin("round", s);
    struct array *x = input(&c, "a", a);
    if (x && decimals == 0) x = do_unary(&c, U_round, x);
    else if (x) {
        float scale = (float)pow(10.0, decimals);
        mlxvk_dtype t = x->dtype, wide = is_inexact(t) ? t : MLXVK_FLOAT32;
        x = do_binary(&c, B_multiply, as_type(&c, x, wide), scalar(&c, scale, wide));
        x = do_binary(&c, B_multiply, do_unary(&c, U_round, x), scalar(&c, 1.0f / scale, wide));
        x = as_type(&c, x, t);
    }
    return finish(&c, x, res);
}

/* ---- select ---- */

static struct array *do_select(struct call *c, struct array *condition, struct array *x, struct array *y)
{
    int ndim, shape[MAXD];
    if (c->code || !condition || !x || !y || !broadcast_shape(c, x, y, &ndim, shape)) return NULL;
    struct array both = outline(x->dtype, ndim, shape);
    if (!broadcast_shape(c, condition, &both, &ndim, shape)) return NULL;
    struct array *out = output(c, ndim, shape, promote(x->dtype, y->dtype));
    if (!out) return NULL;
    condition = broadcast(c, as_type(c, condition, MLXVK_BOOL), ndim, shape);
    x = broadcast(c, as_type(c, x, out->dtype), ndim, shape);
    y = broadcast(c, as_type(c, y, out->dtype), ndim, shape);
    append(c, OP_ELEMENTWISE, PARAMS(.elementwise = { .kernel = K_SELECT }), ARRAYS(condition, x, y), ARRAYS(out));
    return out;
}

int mlxvk_where(mlxvk_array *res, mlxvk_array condition, mlxvk_array x, mlxvk_array y, mlxvk_stream s)
{
    struct call c = begin("where", s);
    struct array *k = input(&c, "condition", condition), *a = input(&c, "x", x), *b = input(&c, "y", y);
    return finish(&c, do_select(&c, k, a, b), res);
}

int mlxvk_clip(mlxvk_array *res, mlxvk_array a, mlxvk_array a_min, mlxvk_array a_max, mlxvk_stream s)
{
    struct call c = begin("clip", s);
    struct array *x = input(&c, "a", a), *low = optional_input(&c, "a_min", a_min);
    struct array *high = optional_input(&c, "a_max", a_max);
    if (!low && !high) FAIL(&c, MLXVK_ERROR_ARGUMENT, "a_min and a_max are both { NULL }");
    if (low) x = do_binary(&c, B_maximum, x, low);
    if (high) x = do_binary(&c, B_minimum, x, high);
    return finish(&c, x, res);
}

/* ==== >>creation ================================================================================================== */

static void arange_part(struct encoder *e, struct array *const *a, const void *job)
{
    const struct node *n = job;
    struct array *out = a[0];
    uint8_t start[8], next[8];
    struct arange_push push = { .n = (uint32_t)out->size,
                                .first = (uint32_t)((out->offset - n->out[0]->offset) / (int64_t)item_size(out)) };
    number_bytes(n->p.arange.start, out->dtype, start);
    number_bytes(n->p.arange.start + n->p.arange.step, out->dtype, next);
    push.offset = set_output(e, SLOT_arange_dst, out);
    memcpy(push.start, start, 8);
    memcpy(push.next, next, 8);
    USE_AS(e, is_wide(out->dtype) ? K_arange_wide : K_arange, arange, &push, .threads = flat_threads(e->device),
           .to = out->dtype);
    dispatch_elements(e, is_wide(out->dtype) ? out->size : ceil_div(out->size, 4));
}

static void lower_arange(struct encoder *e, const struct node *n)
{
    in_parts(e, n->out, 1, 0, arange_part, n);
}

static struct array *do_arange(struct call *c, double start, double stop, double step, mlxvk_dtype dtype)
{
    if (c->code) return NULL;
    if (!is_dtype((int)dtype) || dtype == MLXVK_BOOL || is_complex(dtype))
        return FAIL(c, MLXVK_ERROR_DTYPE, "%s is not taken", mlxvk_dtype_name(dtype));
    if (isnan(start) || isnan(stop) || isnan(step) || isinf(start) || isinf(stop))
        return FAIL(c, MLXVK_ERROR_ARGUMENT, "bounds must be finite: %g, %g, %g", start, stop, step);
    if (step == 0) return FAIL(c, MLXVK_ERROR_ARGUMENT, "step is 0");
    double count = isinf(step) ? ((step > 0) == (start < stop) && start != stop ? 1 : 0) : ceil((stop - start) / step);
    if (count > INT_MAX) return FAIL(c, MLXVK_ERROR_LIMIT, "%.0f elements; at most %d", count, INT_MAX);
    int n = count > 0 ? (int)count : 0;
    struct array *out = output(c, 1, &n, dtype);
    append(c, OP_ARANGE, PARAMS(.arange = { start, isinf(step) ? 0 : step }), NULL, 0, ARRAYS(out));
    return out;
}

int mlxvk_arange(mlxvk_array *res, double start, double stop, double step, mlxvk_dtype dtype, mlxvk_stream s)
{
    struct call c = begin("arange", s);
    return finish(&c, do_arange(&c, start, stop, step, dtype), res);
}

/* A shape filled with the values of an array that broadcasts to it. */
static struct array *do_full(struct call *c, int ndim, const int *shape, struct array *values, mlxvk_dtype dtype)
{
    if (c->code || !values || !check_shape(c, ndim, shape, dtype)) return NULL;
    values = broadcast(c, values, ndim, shape);
    struct array *out = output(c, ndim, shape, dtype);
    append_copy(c, out, values);
    return out;
}

static int constant(const char *name, mlxvk_array *res, const int *shape, size_t shape_num, double value,
                    mlxvk_dtype dtype, mlxvk_stream s)
{
    struct call c = begin(name, s);
    struct array *out = NULL;
    if (check_shape(&c, (int)min_size(shape_num, MAXD + 1), shape, dtype))
        out = do_full(&c, (int)shape_num, shape, scalar(&c, value, dtype), dtype);
    return finish(&c, out, res);
}

int mlxvk_full(mlxvk_array *res, const int *shape, size_t shape_num, mlxvk_array vals, mlxvk_dtype dtype,
               mlxvk_stream s)
{
    struct call c = begin("full", s);
    struct array *v = input(&c, "vals", vals);
    return finish(&c, do_full(&c, (int)min_size(shape_num, MAXD + 1), shape, v, dtype), res);
}

FUNCTION_TWO(mlxvk_full_like, a, vals, x ? do_full(&c, x->ndim, x->shape, y, dtype) : NULL, mlxvk_dtype dtype,
             mlxvk_stream s)

#define X(name, value)                                                                                                \
    int name(mlxvk_array *res, const int *shape, size_t shape_num, mlxvk_dtype dtype, mlxvk_stream s)                 \
    { return constant(CALLED(name), res, shape, shape_num, value, dtype, s); }
X(mlxvk_zeros, 0)
X(mlxvk_ones, 1)
#undef X

FUNCTION(mlxvk_zeros_like, a, x ? constant_like(&c, x, 0, x->dtype) : NULL, mlxvk_stream s)
FUNCTION(mlxvk_ones_like, a, x ? constant_like(&c, x, 1, x->dtype) : NULL, mlxvk_stream s)

/* ==== >>shape ===================================================================================================== */

/* The axis as 0 .. ndim-1; -1 with an error. */
static int normal_axis(struct call *c, const struct array *a, int axis)
{
    if (c->code || !a) return -1;
    if (axis < -a->ndim || axis >= a->ndim) return FAIL(c, MLXVK_ERROR_AXIS, "axis %d of %s", axis, TEXT(a)), -1;
    return axis < 0 ? axis + a->ndim : axis;
}

/* The length of an axis that would have n elements; 0 with an error where shapes cannot say it. */
static int length_of(struct call *c, const struct array *a, uint64_t n)
{
    if (n <= INT_MAX) return (int)n;
    return FAIL(c, MLXVK_ERROR_LIMIT, "%s would get an axis of %llu elements; at most %d", TEXT(a),
                (unsigned long long)n, INT_MAX), 0;
}

/* Normalises axes into a mask; duplicates are an error. */
static bool axes_mask(struct call *c, const struct array *a, const int *axes, size_t count, uint32_t *mask)
{
    *mask = 0;
    if (c->code || !a) return false;
    if (count && !axes) return FAIL(c, MLXVK_ERROR_ARGUMENT, "axes is NULL"), false;
    for (size_t i = 0; i < count; i++) {
        int axis = normal_axis(c, a, axes[i]);
        if (axis < 0) return false;
        if (*mask & (1u << axis))
            return FAIL(c, MLXVK_ERROR_AXIS, "axis %d of %s is named twice", axes[i], TEXT(a)), false;
        *mask |= 1u << axis;
    }
    return true;
}

/* Strides for another shape of the same elements without moving them; false where that cannot be. */
static bool view_strides(const struct array *a, int ndim, const int *shape, int64_t *strides)
{
    struct array *one[1] = { (struct array *)(uintptr_t)a };
    struct dims g = merge_dims(one, 1);
    int d = g.ndim - 1;
    int64_t left = d >= 0 ? g.shape[d] : 1, step = d >= 0 ? g.stride[0][d] : 1;
    for (int i = ndim - 1; i >= 0; i--) {
        strides[i] = step;
        if (shape[i] == 1) continue;
        while (left == 1 && d > 0) { d--; left = g.shape[d]; step = g.stride[0][d]; }
        if (left % shape[i]) return false;
        strides[i] = step;
        left /= shape[i];
        step *= shape[i];
    }
    return true;
}

static struct array *do_reshape(struct call *c, struct array *a, int ndim, const int *shape)
{
    int64_t strides[MAXD];
    size_t size = 1;
    if (c->code || !a || !check_shape(c, ndim, shape, a->dtype)) return NULL;
    for (int i = 0; i < ndim; i++) size *= (size_t)shape[i];
    if (size != a->size)
        return FAIL(c, MLXVK_ERROR_SHAPE, "%s has %zu elements, the new shape %zu", TEXT(a), a->size, size);
    if (a->row || !a->size) return view_of(c, a, a->dtype, ndim, shape, NULL, a->offset);
    if (view_strides(a, ndim, shape, strides)) return view_of(c, a, a->dtype, ndim, shape, strides, a->offset);
    return view_of(c, copy_of(c, a), a->dtype, ndim, shape, NULL, 0);
}

/* A shape with at most one -1, which stands for what is left of `size`. */
static bool infer_shape(struct call *c, const struct array *a, size_t size, const int *shape, size_t count, int *out)
{
    size_t known = 1;
    int unknown = -1;
    if (count > MAXD) return FAIL(c, MLXVK_ERROR_SHAPE, "%zu dimensions; at most %d", count, MAXD), false;
    if (count && !shape) return FAIL(c, MLXVK_ERROR_ARGUMENT, "shape is NULL"), false;
    for (size_t i = 0; i < count; i++) {
        out[i] = shape[i];
        if (shape[i] == -1 && unknown < 0) unknown = (int)i;
        else if (shape[i] < 0)
            return FAIL(c, MLXVK_ERROR_SHAPE, "dimension %zu of the new shape of %s is %d", i, TEXT(a), shape[i]),
                false;
        else if (shape[i] && known > SIZE_MAX / 64 / (size_t)shape[i])
            return FAIL(c, MLXVK_ERROR_LIMIT, "the shape has too many elements"), false;
        else known *= (size_t)shape[i];
    }
    if (unknown < 0) return true;
    if (!known || size % known)
        return FAIL(c, MLXVK_ERROR_SHAPE, "%s cannot be reshaped: %zu elements are no multiple of %zu", TEXT(a), size,
                    known), false;
    out[unknown] = length_of(c, a, size / known);
    return !c->code;
}

static struct array *reshape_to(struct call *c, struct array *a, const int *shape, size_t count)
{
    int full[MAXD];
    return a && infer_shape(c, a, a->size, shape, count, full) ? do_reshape(c, a, (int)count, full) : NULL;
}

FUNCTION(mlxvk_reshape, a, reshape_to(&c, x, shape, shape_num), const int *shape, size_t shape_num, mlxvk_stream s)

static struct array *do_flatten(struct call *c, struct array *a, int start, int stop)
{
    int shape[MAXD], n = 0;
    if (c->code || !a) return NULL;
    if (!a->ndim) return do_reshape(c, a, 1, (int[]){ 1 });
    start = start < 0 ? start + a->ndim : start;
    stop = stop < 0 ? stop + a->ndim : stop;
    start = start < 0 ? 0 : start;
    stop = stop >= a->ndim ? a->ndim - 1 : stop;
    if (start >= a->ndim || stop < 0 || stop < start)
        return FAIL(c, MLXVK_ERROR_AXIS, "axes %d to %d of %s", start, stop, TEXT(a));
    for (int i = 0; i < a->ndim; i++) {
        if (i > start && i <= stop) shape[n - 1] = length_of(c, a, (uint64_t)shape[n - 1] * (uint64_t)a->shape[i]);
        else shape[n++] = a->shape[i];
    }
    return do_reshape(c, a, n, shape);
}

FUNCTION(mlxvk_flatten, a, do_flatten(&c, x, start_axis, end_axis), int start_axis, int end_axis, mlxvk_stream s)

int mlxvk_unflatten(mlxvk_array *res, mlxvk_array a, int axis, const int *shape, size_t shape_num, mlxvk_stream s)
{
    struct call c = begin("unflatten", s);
    struct array *x = input(&c, "a", a);
    int part[MAXD], full[MAXD], n = 0;
    axis = normal_axis(&c, x, axis);
    if (axis >= 0 && !shape_num) FAIL(&c, MLXVK_ERROR_SHAPE, "the new shape is empty");
    if (axis >= 0 && (size_t)x->ndim + shape_num > MAXD + 1)
        FAIL(&c, MLXVK_ERROR_SHAPE, "more than %d dimensions", MAXD);
    if (!c.code && axis >= 0 && infer_shape(&c, x, (size_t)x->shape[axis], shape, shape_num, part)) {
        for (int i = 0; i < x->ndim; i++) {
            if (i != axis) full[n++] = x->shape[i];
            else for (size_t k = 0; k < shape_num; k++) full[n++] = part[k];
        }
        x = do_reshape(&c, x, n, full);
    }
    return finish(&c, x, res);
}

/* a seen as the caller changed a copy of it. */
static struct array *seen_as(struct call *c, struct array *a, const struct array *v)
{
    return view_of(c, a, a->dtype, v->ndim, v->shape, v->strides, v->offset);
}

static struct array *do_transpose(struct call *c, struct array *a, const int *axes)
{
    if (c->code || !a) return NULL;
    struct array v = *a;
    for (int i = 0; i < a->ndim; i++) { v.shape[i] = a->shape[axes[i]]; v.strides[i] = a->strides[axes[i]]; }
    return seen_as(c, a, &v);
}

static struct array *do_reverse_axes(struct call *c, struct array *a)
{
    int axes[MAXD];
    for (int i = 0; a && i < a->ndim; i++) axes[i] = a->ndim - 1 - i;
    return do_transpose(c, a, axes);
}

FUNCTION(mlxvk_transpose, a, do_reverse_axes(&c, x), mlxvk_stream s)

int mlxvk_transpose_axes(mlxvk_array *res, mlxvk_array a, const int *axes, size_t axes_num, mlxvk_stream s)
{
    struct call c = begin("transpose_axes", s);
    struct array *x = input(&c, "a", a);
    int order[MAXD];
    uint32_t mask;
    if (x && axes_num != (size_t)x->ndim) FAIL(&c, MLXVK_ERROR_AXIS, "%zu axes for %s", axes_num, TEXT(x));
    if (axes_mask(&c, x, axes, axes_num, &mask))
        for (size_t i = 0; i < axes_num; i++) order[i] = normal_axis(&c, x, axes[i]);
    return finish(&c, do_transpose(&c, x, order), res);
}

static struct array *do_swap(struct call *c, struct array *a, int axis1, int axis2)
{
    int order[MAXD];
    axis1 = normal_axis(c, a, axis1);
    axis2 = normal_axis(c, a, axis2);
    if (c->code || !a) return NULL;
    for (int i = 0; i < a->ndim; i++) order[i] = i == axis1 ? axis2 : i == axis2 ? axis1 : i;
    return do_transpose(c, a, order);
}

FUNCTION(mlxvk_swapaxes, a, do_swap(&c, x, axis1, axis2), int axis1, int axis2, mlxvk_stream s)

static struct array *do_moveaxis(struct call *c, struct array *a, int source, int destination)
{
    int order[MAXD], n = 0;
    source = normal_axis(c, a, source);
    destination = normal_axis(c, a, destination);
    if (c->code || !a) return NULL;
    for (int i = 0, k = 0; i < a->ndim; i++) {
        if (i == destination) { order[n++] = source; continue; }
        if (k == source) k++;
        order[n++] = k++;
    }
    return do_transpose(c, a, order);
}

FUNCTION(mlxvk_moveaxis, a, do_moveaxis(&c, x, source, destination), int source, int destination, mlxvk_stream s)

static struct array *do_expand(struct call *c, struct array *a, const int *axes, size_t count)
{
    uint32_t mask;
    int k = 0;
    if (c->code || !a) return NULL;
    if ((size_t)a->ndim + count > MAXD) return FAIL(c, MLXVK_ERROR_SHAPE, "more than %d dimensions", MAXD);
    struct array v = *a;
    v.ndim += (int)count;
    for (int i = a->ndim; i < v.ndim; i++) v.shape[i] = 1;
    if (!axes_mask(c, &v, axes, count, &mask)) return NULL;
    for (int i = 0; i < v.ndim; i++) {
        bool fresh = mask & (1u << i);
        v.shape[i] = fresh ? 1 : a->shape[k];
        v.strides[i] = fresh ? 1 : a->strides[k++];
    }
    return seen_as(c, a, &v);
}

FUNCTION(mlxvk_expand_dims, a, do_expand(&c, x, &axis, 1), int axis, mlxvk_stream s)
FUNCTION(mlxvk_expand_dims_axes, a, do_expand(&c, x, axes, axes_num), const int *axes, size_t axes_num, mlxvk_stream s)

static struct array *do_squeeze(struct call *c, struct array *a, uint32_t mask)
{
    if (c->code || !a) return NULL;
    struct array v = *a;
    v.ndim = 0;
    for (int i = 0; i < a->ndim; i++) {
        if ((mask & (1u << i)) && a->shape[i] != 1)
            return FAIL(c, MLXVK_ERROR_AXIS, "axis %d of %s is not 1", i, TEXT(a));
        if (mask & (1u << i)) continue;
        v.shape[v.ndim] = a->shape[i];
        v.strides[v.ndim++] = a->strides[i];
    }
    return seen_as(c, a, &v);
}

static uint32_t ones_of(const struct array *a)       /* axes of length 1 */
{
    uint32_t mask = 0;
    for (int i = 0; a && i < a->ndim; i++) if (a->shape[i] == 1) mask |= 1u << i;
    return mask;
}

FUNCTION(mlxvk_squeeze, a, do_squeeze(&c, x, ones_of(x)), mlxvk_stream s)

static struct array *squeeze_axes(struct call *c, struct array *a, const int *axes, size_t count)
{
    uint32_t mask;
    return axes_mask(c, a, axes, count, &mask) ? do_squeeze(c, a, mask) : NULL;
}

FUNCTION(mlxvk_squeeze_axis, a, squeeze_axes(&c, x, &axis, 1), int axis, mlxvk_stream s)
FUNCTION(mlxvk_squeeze_axes, a, squeeze_axes(&c, x, axes, axes_num), const int *axes, size_t axes_num, mlxvk_stream s)

FUNCTION(mlxvk_broadcast_to, a, x && check_shape(&c, (int)min_size(shape_num, MAXD + 1), shape, x->dtype) ?
         broadcast(&c, x, (int)shape_num, shape) : NULL, const int *shape, size_t shape_num, mlxvk_stream s)

int mlxvk_as_strided(mlxvk_array *res, mlxvk_array a, const int *shape, size_t shape_num, const int64_t *strides,
                     size_t strides_num, size_t offset, mlxvk_stream s)
{
    struct call c = begin("as_strided", s);
    struct array *x = contiguous(&c, input(&c, "a", a)), *out = NULL;
    if (shape_num != strides_num)
        FAIL(&c, MLXVK_ERROR_ARGUMENT, "%zu dimensions and %zu strides", shape_num, strides_num);
    if (x && shape_num && !strides) FAIL(&c, MLXVK_ERROR_ARGUMENT, "strides is NULL");
    if (x && offset > x->size) FAIL(&c, MLXVK_ERROR_SHAPE, "offset %zu of %s", offset, TEXT(x));
    if (x && check_shape(&c, (int)min_size(shape_num, MAXD + 1), shape, x->dtype) &&
        check_strides(&c, (int)shape_num, shape, strides))
        out = view_of(&c, x, x->dtype, (int)shape_num, shape, strides, x->offset + (int64_t)(offset * item_size(x)));
    if (out) {
        int64_t low, high, first = x->offset;
        array_span(out, &low, &high);
        if (out->size && (low < first || high > first + (int64_t)array_bytes(x)))
            FAIL(&c, MLXVK_ERROR_SHAPE, "the view reaches outside %s", TEXT(x));
    }
    return finish(&c, out, res);
}

FUNCTION(mlxvk_copy, a, x ? seen_as(&c, x, x) : NULL, mlxvk_stream s)

static bool column_contiguous(const struct array *a)
{
    int64_t expected = 1;
    bool columns = true;
    for (int i = 0; i < a->ndim; expected *= a->shape[i++]) columns &= a->shape[i] == 1 || a->strides[i] == expected;
    return columns;
}

FUNCTION(mlxvk_contiguous, a, x && allow_col_major && column_contiguous(x) ? x : contiguous(&c, x),
         bool allow_col_major, mlxvk_stream s)
FUNCTION(mlxvk_astype, a, as_type(&c, x, dtype), mlxvk_dtype dtype, mlxvk_stream s)

/* Reinterprets the bits; the last dimension scales with the item size. */
static struct array *do_view(struct call *c, struct array *a, mlxvk_dtype dtype)
{
    if (c->code || !a || !check_shape(c, 0, NULL, dtype)) return NULL;
    size_t from = item_size(a), to = dtypes[dtype].size;
    if (from == to) return view_of(c, a, dtype, a->ndim, a->shape, a->strides, a->offset);
    if (!a->ndim)
        return FAIL(c, MLXVK_ERROR_SHAPE, "a scalar of %s cannot be viewed as %s", dtypes[a->dtype].name,
                    dtypes[dtype].name);
    size_t bytes = (size_t)dim_of(a, -1) * from;
    if (bytes % to)
        return FAIL(c, MLXVK_ERROR_SHAPE, "the last axis of %s is no multiple of %s", TEXT(a), dtypes[dtype].name);
    if (a->offset % (int64_t)to) a = copy_of(c, a);
    else if (!(to < from && a->strides[a->ndim - 1] == 1)) a = contiguous(c, a);
    if (!a) return NULL;
    struct array v = *a;
    for (int i = 0; i < a->ndim; i++) v.strides[i] = a->strides[i] * (int64_t)from / (int64_t)to;
    v.shape[a->ndim - 1] = length_of(c, a, bytes / to);
    v.strides[a->ndim - 1] = 1;
    return view_of(c, a, dtype, a->ndim, v.shape, a->row ? NULL : v.strides, a->offset);
}

FUNCTION(mlxvk_view, a, do_view(&c, x, dtype), mlxvk_dtype dtype, mlxvk_stream s)

/* ---- slices ---- */

/* One axis of a slice by NumPy's rules: the first element and how many. */
static int slice_axis(int n, int start, int stop, int step, int *first)
{
    start = start < 0 ? start + n : start;
    stop = stop < 0 ? stop + n : stop;
    if (step > 0) {
        start = start < 0 ? 0 : start > n ? n : start;
        stop = stop < start ? start : stop > n ? n : stop;
        *first = start;
        return (int)(((int64_t)stop - start + step - 1) / step);
    }
    start = start > n - 1 ? n - 1 : start;
    stop = stop < -1 ? -1 : stop;
    if (start < 0) start = -1;
    if (stop > start) stop = start;
    *first = start < 0 ? 0 : start;
    return (int)(((int64_t)start - stop - (int64_t)step - 1) / -(int64_t)step);
}

static struct array *do_slice(struct call *c, struct array *a, const int *start, const int *stop, const int *step)
{
    size_t size = 1;
    if (c->code || !a) return NULL;
    struct array v = *a;
    for (int i = 0; i < a->ndim; i++) {
        int first, by = step ? step[i] : 1;
        if (by == 0) return FAIL(c, MLXVK_ERROR_ARGUMENT, "a step of 0 on axis %d", i);
        v.shape[i] = slice_axis(a->shape[i], start[i], stop[i], by, &first);
        v.strides[i] *= v.shape[i] == 1 ? 1 : by;
        if (v.shape[i]) v.offset += first * a->strides[i] * (int64_t)item_size(a);
        size *= (size_t)v.shape[i];
    }
    if (!size) v.offset = a->offset;
    return seen_as(c, a, &v);
}

/* Checks the lengths of a slice's lists. */
static bool slice_lists(struct call *c, const struct array *a, const int *start, size_t start_num, const int *stop,
                        size_t stop_num, const int *strides, size_t strides_num)
{
    if (c->code || !a) return false;
    if (start_num != (size_t)a->ndim || stop_num != (size_t)a->ndim || strides_num != (size_t)a->ndim)
        return FAIL(c, MLXVK_ERROR_ARGUMENT, "%zu starts, %zu stops and %zu strides for %s", start_num, stop_num,
                    strides_num, TEXT(a)), false;
    if (a->ndim && (!start || !stop || !strides))
        return FAIL(c, MLXVK_ERROR_ARGUMENT, "start, stop or strides is NULL"), false;
    return true;
}

FUNCTION(mlxvk_slice, a, slice_lists(&c, x, start, start_num, stop, stop_num, strides, strides_num) ?
         do_slice(&c, x, start, stop, strides) : NULL, const int *start, size_t start_num, const int *stop,
         size_t stop_num, const int *strides, size_t strides_num, mlxvk_stream s)

/* Rows [first, first + count) of one axis. */
static struct array *slice_one(struct call *c, struct array *a, int axis, int first, int count)
{
    int start[MAXD] = { 0 }, stop[MAXD];
    if (c->code || !a) return NULL;
    memcpy(stop, a->shape, sizeof stop);
    start[axis] = first;
    stop[axis] = first + count;
    return do_slice(c, a, start, stop, NULL);
}

/* Does no element lie where another one does? Taken by size, each stride must reach over all that the smaller ones
 * span. */
static bool distinct_elements(const struct array *a)
{
    int64_t span = 1;
    uint32_t taken = 0;
    for (int round = 0; round < a->ndim; round++) {
        int next = -1;
        for (int i = 0; i < a->ndim; i++)
            if (!(taken & (1u << i)) && (next < 0 || llabs(a->strides[i]) < llabs(a->strides[next]))) next = i;
        taken |= 1u << next;
        if (a->shape[next] <= 1) continue;
        if (llabs(a->strides[next]) < span) return false;
        span += llabs(a->strides[next]) * (a->shape[next] - 1);
    }
    return true;
}

/* May the contents of *res, which is also the operand, be overwritten? Only this handle sees them, each element
 * once. */
static bool updates_in_place(const mlxvk_array *res, const struct array *a)
{
    return res && res->ctx == a && a->handles == 1 && a->storage->owned == 1 && !a->storage->literal &&
        distinct_elements(a);
}

/* What an update is written into: the operand itself where *res holds it and b and d, which are read, lie elsewhere. */
static struct array *target_of(struct call *c, const mlxvk_array *res, struct array *a, const struct array *b,
                               const struct array *d)
{
    bool in_place = updates_in_place(res, a) && b->storage != a->storage && (!d || d->storage != a->storage);
    return in_place ? seen_as(c, a, a) : copy_of(c, a);
}

/* op: a binary operation on what is there and the update; B_COUNT: the update replaces it. */
static struct array *do_slice_update(struct call *c, const mlxvk_array *res, struct array *a, struct array *update,
                                     const int *start, const int *stop, const int *step, enum binary op)
{
    if (c->code || !a || !update) return NULL;
    struct array *out = target_of(c, res, a, update, NULL);
    struct array *target = do_slice(c, out, start, stop, step);
    if (!target) return NULL;
    update = broadcast(c, update, target->ndim, target->shape);
    if (op == B_COUNT) append_copy(c, target, update);
    else if ((update = as_type(c, update, a->dtype)) != NULL)
        append(c, OP_ELEMENTWISE, PARAMS(.elementwise = { .kernel = binary_kernel(a->dtype), .op = (uint16_t)op }),
               ARRAYS(target, update), ARRAYS(target));
    return out;
}

#define X(name, op) \
    int name(mlxvk_array *res, mlxvk_array src, mlxvk_array update, const int *start, size_t start_num, \
                     const int *stop, size_t stop_num, const int *strides, size_t strides_num, mlxvk_stream s) \
    { \
        struct call c = begin(CALLED(name), s); \
        struct array *x = input(&c, "src", src), *u = input(&c, "update", update); \
        if (!slice_lists(&c, x, start, start_num, stop, stop_num, strides, strides_num)) x = NULL; \
        while (u && x && u->ndim > x->ndim && u->shape[0] == 1) u = do_squeeze(&c, u, 1); \
        return finish(&c, do_slice_update(&c, res, x, u, start, stop, strides, op), res); \
    }
X(mlxvk_slice_update, B_COUNT)
X(mlxvk_slice_update_add, B_add)
X(mlxvk_slice_update_prod, B_multiply)
X(mlxvk_slice_update_max, B_maximum)
X(mlxvk_slice_update_min, B_minimum)
#undef X

/* ---- joining and splitting ---- */

/* What containers hold, and how it is copied and let go. They belong to the host, not to a device. */
struct item_kind {
    size_t size;
    int (*copy)(void *to, const void *from);
    void (*drop)(void *item);
    bool keyed;                                      /* an entry of a map, whose value is copied and let go so */
};

struct vector { const struct item_kind *kind; size_t size, slots; char *data; };

static const struct item_kind array_kind;            /* >>public: strings, vectors and maps */

static void *list_at(const struct vector *l, size_t i) { return l->data + i * l->kind->size; }
static struct array *array_at(const struct vector *l, size_t i) { return ((const mlxvk_array *)list_at(l, i))->ctx; }

static struct vector *list_new(const struct item_kind *kind)
{
    struct vector *l = calloc(1, sizeof *l);
    if (l) l->kind = kind;
    return l;
}

static struct array *vector_input(struct call *c, const struct vector *v, size_t i)
{
    char name[32];
    snprintf(name, sizeof name, "arrays[%zu]", i);
    return input(c, name, (mlxvk_array){ array_at(v, i) });
}

/* The dtype that all arrays of a list promote to. */
static bool vector_dtype(struct call *c, const struct vector *v, mlxvk_dtype *dtype)
{
    if (c->code) return false;
    if (!v || !v->size) return FAIL(c, MLXVK_ERROR_ARGUMENT, "no arrays"), false;
    for (size_t i = 0; i < v->size; i++) {
        struct array *a = vector_input(c, v, i);
        if (!a) return false;
        *dtype = i ? promote(*dtype, a->dtype) : a->dtype;
    }
    return true;
}

/* stack: each array gets an axis of length 1 there first. */
static struct array *do_concatenate(struct call *c, const struct vector *v, int axis, bool stack)
{
    int shape[MAXD], at = 0;
    int64_t total = 0;
    mlxvk_dtype dtype;
    if (!vector_dtype(c, v, &dtype)) return NULL;
    struct array *first = array_at(v, 0);
    if (!stack && v->size == 1) return first;        /* even where it has no axis, as in MLX */
    if (stack) first = do_expand(c, first, &axis, 1);
    axis = normal_axis(c, first, axis);
    if (axis < 0) return NULL;
    memcpy(shape, first->shape, sizeof shape);
    for (size_t i = 0; i < v->size; i++) {
        struct array *a = array_at(v, i);
        int ndim = a->ndim + stack;
        if (ndim != first->ndim)
            return FAIL(c, MLXVK_ERROR_SHAPE, "%s and %s have different dimensions", TEXT(first), TEXT(a));
        for (int k = 0; k < ndim; k++) {
            int n = stack ? (k == axis ? 1 : a->shape[k - (k > axis)]) : a->shape[k];
            if (k != axis && n != shape[k])
                return FAIL(c, MLXVK_ERROR_SHAPE, "%s does not fit %s beside axis %d", TEXT(a), TEXT(first), axis);
            if (k == axis) total += n;
        }
    }
    shape[axis] = length_of(c, first, (uint64_t)total);
    struct array *out = output(c, first->ndim, shape, dtype);
    for (size_t i = 0; i < v->size && !c->code; i++) {
        struct array *part = array_at(v, i);
        if (stack) part = do_expand(c, part, &axis, 1);
        if (!part) return NULL;
        append_copy(c, slice_one(c, out, axis, at, part->shape[axis]), part);
        at += part->shape[axis];
    }
    return out;
}

#define JOIN(name, at, stack, ...)                                                                                    \
    int name(mlxvk_array *res, mlxvk_vector_array arrays, __VA_ARGS__)                                                \
    {                                                                                                                 \
        struct call c = begin(CALLED(name), s);                                                                       \
        return finish(&c, do_concatenate(&c, arrays.ctx, at, stack), res);                                            \
    }
JOIN(mlxvk_concatenate, 0, false, mlxvk_stream s)
JOIN(mlxvk_stack, 0, true, mlxvk_stream s)
JOIN(mlxvk_concatenate_axis, axis, false, int axis, mlxvk_stream s)
JOIN(mlxvk_stack_axis, axis, true, int axis, mlxvk_stream s)
#undef JOIN

/* Ends a call with several results in a vector, which replaces what *res held. */
static int finish_vector(struct call *c, struct array **results, size_t count, mlxvk_vector_array *res)
{
    struct vector *v = NULL;
    mlxvk_array *data = NULL;
    if (!c->code && !res) FAIL(c, MLXVK_ERROR_ARGUMENT, "res is NULL");
    for (size_t i = 0; i < count && !c->code; i++) if (!results[i]) FAIL(c, MLXVK_ERROR_HOST_MEMORY, "no result");
    if (c->code) return end(c);
    v = res->ctx ? res->ctx : list_new(&array_kind);
    data = count ? malloc(count * sizeof *data) : NULL;
    if (!v || (count && !data)) {
        if (v != res->ctx) free(v);
        free(data);
        FAIL(c, MLXVK_ERROR_HOST_MEMORY, "out of host memory");
        return end(c);
    }
    for (size_t i = 0; i < count; i++) {
        data[i].ctx = results[i];
        take_handle(results[i]);
    }
    struct vector old = *v;
    *v = (struct vector){ .kind = &array_kind, .data = (char *)data, .size = count, .slots = count };
    res->ctx = v;
    int code = end(c);
    for (size_t i = 0; i < old.size; i++) array_kind.drop(list_at(&old, i));     /* without the lock: of any device */
    free(old.data);
    return code;
}

enum { MAX_SPLIT = 4096 };

static int finish_split(struct call *c, struct array *x, int axis, const int *cuts, size_t parts,
                        mlxvk_vector_array *res)
{
    struct array **list;
    if (c->code || !x) return finish_vector(c, NULL, 0, res);
    list = host_zalloc(c->device, (parts + 1) * sizeof *list);
    if (!list) FAIL(c, MLXVK_ERROR_HOST_MEMORY, "out of host memory");
    for (size_t i = 0; i < parts && !c->code; i++) {
        int n = x->shape[axis], first, stop = i + 1 < parts ? cuts[i] : n;
        int count = slice_axis(n, i ? cuts[i - 1] : 0, stop, 1, &first);
        list[i] = slice_one(c, x, axis, first, count);
    }
    int code = finish_vector(c, list, parts, res);
    host_free(c->device, list);
    return code;
}

int mlxvk_split(mlxvk_vector_array *res, mlxvk_array a, int num_splits, int axis, mlxvk_stream s)
{
    struct call c = begin("split", s);
    struct array *x = input(&c, "a", a);
    int cuts[MAX_SPLIT];
    axis = normal_axis(&c, x, axis);
    if (axis >= 0 && (num_splits < 1 || num_splits > MAX_SPLIT || x->shape[axis] % num_splits))
        FAIL(&c, MLXVK_ERROR_SHAPE, "%s cannot be split into %d equal parts along axis %d", TEXT(x), num_splits, axis);
    for (int i = 0; !c.code && i + 1 < num_splits; i++) cuts[i] = (i + 1) * (x->shape[axis] / num_splits);
    return finish_split(&c, x, axis, cuts, (size_t)(num_splits > 0 ? num_splits : 0), res);
}

int mlxvk_split_sections(mlxvk_vector_array *res, mlxvk_array a, const int *indices, size_t indices_num, int axis,
                         mlxvk_stream s)
{
    struct call c = begin("split_sections", s);
    struct array *x = input(&c, "a", a);
    axis = normal_axis(&c, x, axis);
    if (indices_num && !indices) FAIL(&c, MLXVK_ERROR_ARGUMENT, "indices is NULL");
    return finish_split(&c, x, axis, indices, indices_num + 1, res);
}

/* ==== >>gather: elements at computed positions of an axis ========================================================= */

enum gather_mode {
    GATHER_TAKE, GATHER_ALONG,
    GATHER_PUT,                                      /* the result is indexed, the source is not */
    GATHER_SLICES,                                   /* windows of some size, at an index of one axis */
    GATHER_STARTS,                                   /* windows at offsets in elements, all of which `unit` divides */
    GATHER_MASKED                                    /* elements in order, where the number of those so far grows */
};
static uint32_t take_op(int mode)
{
    return mode == GATHER_PUT ? TAKE_PUT : mode == GATHER_STARTS ? TAKE_STARTS :
           mode == GATHER_MASKED ? TAKE_MASKED : TAKE_AT;
}

/* Result, source or values, and indices, all in the shape of the walk; the array indexed stands still along the
 * axis. */
static void gather_views(const struct gather_params *p, struct array view[3])
{
    struct array a = view[1], indices = view[2];
    int first = p->mode == GATHER_TAKE ? p->axis : 0, last = first + indices.ndim, from = p->mode == GATHER_TAKE;
    if (p->mode == GATHER_TAKE || p->mode == GATHER_SLICES || p->mode == GATHER_STARTS) {
        view[1].ndim = view[2].ndim = view[0].ndim;
        for (int i = 0; i < view[0].ndim; i++) {
            bool indexed = i >= first && i < last;
            view[1].strides[i] = indexed ? 0 : a.strides[i < first ? i : i - last + first + from];
            view[2].strides[i] = indexed ? indices.strides[i - first] : 0;
        }
        memcpy(view[1].shape, view[0].shape, sizeof view[0].shape);
        memcpy(view[2].shape, view[0].shape, sizeof view[0].shape);
    } else if (p->mode == GATHER_MASKED) {
        view[1].ndim = view[0].ndim;
        memset(view[1].strides, 0, sizeof view[1].strides);
    } else {
        struct array *indexed = &view[p->mode == GATHER_PUT ? 0 : 1];
        indexed->shape[p->axis] = indices.shape[p->axis];
        indexed->strides[p->axis] = 0;
    }
}

static mlxvk_dtype raw_dtype(size_t size)            /* of that many bytes, to move bits */
{
    return size == 1 ? MLXVK_UINT8 : size == 2 ? MLXVK_UINT16 : size == 4 ? MLXVK_UINT32 :
           size == 8 ? MLXVK_UINT64 : MLXVK_COMPLEX64;
}

/* How many elements can be moved as one: neighbours in result and source that share an index, with everything else in
 * multiples of them. */
static uint32_t gather_width(const struct gather_params *p, const struct dims *g, const take_push *push, size_t item)
{
    int last = g->ndim - 1;
    if (last < 0 || g->stride[0][last] != 1 || g->stride[1][last] != 1 || g->stride[2][last] != 0) return 1;
    int64_t odd = g->shape[last] | push->offset[0] | push->offset[1];
    odd |= p->mode == GATHER_STARTS ? p->unit : (int32_t)push->axis_stride;
    for (int i = 0; i < last; i++) odd |= g->stride[0][i] | g->stride[1][i];
    for (size_t width = 16 / item; width > 1; width /= 2) if (!(odd & (int64_t)(width - 1))) return (uint32_t)width;
    return 1;
}

static void widen(struct dims *g, take_push *push, uint32_t width)
{
    int last = g->ndim - 1;
    g->shape[last] /= width;
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < last; i++) g->stride[k][i] /= width;
        push->offset[k] /= width;
    }
    push->axis_stride = (uint32_t)((int32_t)push->axis_stride / (int32_t)width);
    push->n /= width;
}

/* Offsets in elements as offsets in units of some bytes: all are powers of two. */
static int32_t shift_to_units(size_t item, size_t unit)
{
    int32_t shift = 0;
    for (; item < unit; item *= 2) shift--;
    for (; item > unit; item /= 2) shift++;
    return shift;
}

static void gather_elements(struct encoder *e, const struct gather_params *p, struct array *const in[3],
                            union walk_push *walk)
{
    take_push *push = &walk->take;
    struct array view[3] = { *in[0], *in[1], *in[2] }, *views[3] = { &view[0], &view[1], &view[2] };
    size_t item = item_size(in[0]);
    gather_views(p, view);
    push->n = (uint32_t)in[p->mode == GATHER_PUT || p->mode == GATHER_ALONG ? 2 : 0]->size;
    struct dims g = merge_dims(views, 3);
    uint32_t width = gather_width(p, &g, push, item);
    if (width > 1) widen(&g, push, width);
    push->shift = shift_to_units(item, item * width);
    uint32_t mode = set_dims(e, &walk->all, SLOT_take_table, &g, 3);
    USE(e, take, push, .threads = flat_threads(e->device), .mode = mode, .op = take_op(p->mode),
        .to = raw_dtype(item * width),
        .from = in[2]->dtype);
    dispatch_elements(e, push->n);
}

/* Dimensions [first, last) as one, with its stride; false where they do not merge. */
static bool one_stride(const struct array *a, int first, int last, int64_t *size, int64_t *stride)
{
    *size = 1;
    *stride = 1;
    for (int i = last - 1; i >= first; i--) {
        if (a->shape[i] == 1) continue;
        if (*size == 1) *stride = a->strides[i];
        else if (a->strides[i] != *stride * *size) return false;
        *size *= a->shape[i];
    }
    return true;
}

/* Rows of 4-byte or 16-byte words, where what is taken at an index is contiguous and aligned; NULL, or why not. */
static const char *try_gather_rows(struct encoder *e, const struct gather_params *p, struct array *const in[3],
                                   take_push *push)
{
    struct array window = *in[1];
    size_t item = item_size(in[1]), unit;
    int64_t outer = 1, outer_stride = 0, axis_stride = window.strides[p->axis];
    int64_t row, row_stride, count, index_stride, odd;
    if (!e->device->gate[GATE_GATHER_WORDS]) return "a gate";
    if (!in[0]->row) return "part of a result";
    if (p->mode == GATHER_SLICES || p->mode == GATHER_STARTS) {
        memcpy(window.shape, in[0]->shape + in[2]->ndim, (size_t)window.ndim * sizeof *window.shape);
        if (!one_stride(&window, 0, window.ndim, &row, &row_stride)) return "what is taken is strided";
        if (p->mode == GATHER_STARTS) axis_stride = p->unit;
    } else if (p->mode != GATHER_TAKE || !one_stride(&window, 0, p->axis, &outer, &outer_stride) ||
               !one_stride(&window, p->axis + 1, window.ndim, &row, &row_stride))
        return "what is taken is strided, or no rows";
    if (row_stride != 1 || !one_stride(in[2], 0, in[2]->ndim, &count, &index_stride))
        return "rows or indices are strided";
    odd = (row | axis_stride | (outer > 1 ? outer_stride : 0) | push->offset[0] | push->offset[1]) * (int64_t)item;
    if (odd & 3) return "rows are not whole words";
    unit = odd & 15 ? 4 : 16;
    push->n = (uint32_t)(in[0]->size * item / unit);
    push->shape[0] = (uint32_t)(row * (int64_t)item / (int64_t)unit);
    push->shape[1] = (uint32_t)count;
    push->stride[1][0] = (uint32_t)(outer_stride * (int64_t)item / (int64_t)unit);
    push->stride[1][1] = p->mode == GATHER_STARTS ? 1 : (uint32_t)(axis_stride * (int64_t)item / (int64_t)unit);
    push->stride[2][0] = (uint32_t)index_stride;
    for (int k = 0; k < 2; k++) push->offset[k] = (uint32_t)(push->offset[k] * item / unit);
    push->shift = shift_to_units(item, unit);
    USE(e, take, push, .threads = flat_threads(e->device), .mode = MODE_FLAT, .op = take_op(p->mode),
        .to = raw_dtype(unit),
        .from = in[2]->dtype);
    dispatch_groups(e, ceil_div(push->n, 4 * flat_threads(e->device)));
    return NULL;
}

/* How many positions of the axis can be bound at once. */
static int axis_part(struct encoder *e, const struct array *a, int axis)
{
    struct array one = *a;
    int64_t room = (int64_t)binding_room(e->device, item_size(a));
    int64_t low, high, step = llabs(a->strides[axis]) * (int64_t)item_size(a);
    array_span(a, &low, &high);
    if (high - low <= room || !step) return a->shape[axis];
    one.shape[axis] = 1;
    array_span(&one, &low, &high);
    return high - low + step > room ? 1 : (int)min_size((size_t)((room - (high - low)) / step), (size_t)a->shape[axis]);
}

/* Serves the axis in as many dispatches as the array that is indexed needs. */
static void gather_along(struct encoder *e, const struct gather_params *p, struct array *const *a)
{
    struct array *in[3] = { a[0], a[1], a[2] }, part, **indexed = &in[p->mode == GATHER_PUT ? 0 : 1];
    const struct array *whole = *indexed;
    int size = whole->shape[p->axis];
    int step = p->mode < GATHER_STARTS && p->room == (uint32_t)size ? axis_part(e, whole, p->axis) : size;
    for (int first = 0; first < size && !e->code; first += step) {
        union walk_push push = { .take = {
            .axis_size = (uint32_t)size, .axis_stride = (uint32_t)whole->strides[p->axis], .room = p->room,
            .part_first = (uint32_t)first, .part_size = (uint32_t)(first + step < size ? step : size - first) } };
        part = *whole;
        part.shape[p->axis] = (int)push.take.part_size;
        part.offset += first * whole->strides[p->axis] * (int64_t)item_size(whole);
        *indexed = &part;
        push.take.offset[0] = set_output(e, SLOT_take_dst, in[0]);
        push.take.offset[1] = set_input(e, SLOT_take_src, in[1]);
        push.take.offset[2] = set_input(e, SLOT_take_index, in[2]);
        const char *refusal = try_gather_rows(e, p, in, &push.take);
        NOTE(e->device, NOTE_GATHER, "rows", refusal, "%s at %s", LAYOUT(in[1]), LAYOUT(in[2]));
        if (refusal) gather_elements(e, p, in, &push);
        if (step > size - first) break;
    }
}

/* The axis of array k (result, source or values, indices) that dimension d of the walk goes along; -1 where there is
 * none, -2 where the walk must not be cut. */
static int gather_dim(const struct gather_params *p, const struct array *indices, int k, int d)
{
    int axis = p->axis, last = axis + indices->ndim;
    switch (p->mode) {
    case GATHER_ALONG: return k == 1 && d == axis ? -1 : d;
    case GATHER_PUT: return k == 0 && d == axis ? -1 : d;
    case GATHER_TAKE:
        if (k == 2) return d >= axis && d < last ? d - axis : -1;
        return k == 0 || d < axis ? d : d >= last ? d - indices->ndim + 1 : -1;
    case GATHER_SLICES: case GATHER_STARTS:
        if (d >= indices->ndim && (p->mode == GATHER_STARTS || d - indices->ndim == axis)) return -2;
        return k == 0 ? d : k == 2 ? d < indices->ndim ? d : -1 : d - (d < indices->ndim ? d + 1 : indices->ndim);
    default: return -2;
    }
}

/* Where to halve the walk, as one of the arrays is too large but for the axis that is indexed, or the walk is; -1:
 * nowhere. */
static int gather_axis(struct encoder *e, const struct gather_params *p, struct array *const *a)
{
    const struct array *walk = a[p->mode == GATHER_PUT ? 2 : 0];
    int64_t widest = 0;
    int best = -1;
    for (int k = 0; k < 3 && best < 0; k++) {
        struct array rest = *a[k];
        if (k == (p->mode != GATHER_PUT) && p->mode < GATHER_STARTS) rest.shape[p->axis] = 1;
        for (int d = 0; d < walk->ndim && !fits_binding(e->device, &rest); d++) {
            int i = gather_dim(p, a[2], k, d);
            int64_t reach = i < 0 ? 0 : llabs(a[k]->strides[i]) * (walk->shape[d] - 1);
            if (reach > widest) { widest = reach; best = d; }
        }
    }
    return best < 0 && p->mode == GATHER_PUT ? axis_to_count(e, walk, 0) : best;
}

static void gather_split(struct encoder *e, const struct gather_params *p, struct array *const *a)
{
    int d = gather_axis(e, p, a), first;
    if (d < 0) { gather_along(e, p, a); return; }
    first = a[p->mode == GATHER_PUT ? 2 : 0]->shape[d] / 2;
    for (int half = 0; half < 2 && !e->code; half++) {
        struct array part[3] = { *a[0], *a[1], *a[2] }, *parts[3] = { &part[0], &part[1], &part[2] };
        for (int k = 0; k < 3; k++) {
            int i = gather_dim(p, a[2], k, d);
            if (i < 0) continue;
            part[k].size = a[k]->size / (size_t)a[k]->shape[i];
            part[k].shape[i] = half ? a[p->mode == GATHER_PUT ? 2 : 0]->shape[d] - first : first;
            part[k].size *= (size_t)part[k].shape[i];
            if (half) part[k].offset += first * a[k]->strides[i] * (int64_t)item_size(a[k]);
            part[k].row = row_contiguous(&part[k]);
        }
        gather_split(e, p, parts);
    }
}

static void lower_gather(struct encoder *e, const struct node *n)
{
    gather_split(e, &n->p.gather, (struct array *[]){ n->out[0], n->in[0], n->in[1] });
}

/* ---- where windows start: several index arrays as one array of offsets ---- */

static void positions_part(struct encoder *e, struct array *const *a, const void *job)
{
    const struct node *n = job;
    const struct positions_params *p = &n->p.positions;
    struct positions_push push = { .n = (uint32_t)a[3]->size, .flags = p->flags | n->inputs, .none = p->none,
                                   .from = (uint32_t)(a[0]->offset - n->out[1]->offset) };
    struct dims g = merge_dims(a, 1 + n->inputs);
    push.ndim = (uint32_t)g.ndim;
    push.dst_at = set_output(e, SLOT_positions_dst, a[3]);
    for (uint32_t k = 0; k < n->inputs; k++) {
        push.at[k] = set_input(e, k ? SLOT_positions_b : SLOT_positions_a, a[1 + k]);
        push.dtype = a[1 + k]->dtype;
        push.size[k] = p->size[k];
        push.room[k] = p->room[k];
        push.step[k] = p->step[k];
    }
    if (g.ndim > PUSH_DIMS) {
        push.flags |= POSITIONS_TABLE;
        table_dims(e, SLOT_positions_table, &g, 3);
    }
    for (int i = 0; i < g.ndim && g.ndim <= PUSH_DIMS; i++) {
        push.shape[i] = (uint32_t)g.shape[i];
        for (int k = 0; k < 3; k++) push.stride[k][i] = (uint32_t)g.stride[k][i];
    }
    USE(e, positions, &push, .threads = flat_threads(e->device));
    dispatch_elements(e, push.n);
}

/* out[1] is the result once more, with the strides of the base: what the walk's coordinates add to the offsets. It is
 * not bound, and counted in elements here. */
static void lower_positions(struct encoder *e, const struct node *n)
{
    struct array walk = *n->out[1], *a[4] = { &walk, NULL, NULL, n->out[0] };
    walk.dtype = MLXVK_UINT8;
    for (int k = 0; k < n->inputs; k++) a[1 + k] = n->in[k];
    in_parts(e, a, 4, 0, positions_part, n);
}

/* Windows of an array: `count` index arrays of one shape and dtype say where they start along as many axes. */
struct windows { int count, ndim, shape[MAXD], axes[MAXD], sizes[MAXD]; struct array *index[MAXD]; };

/* Sums of index times step over the axes, and of the coordinates of a walk of some shape times base (NULL: none).
 * Strict: windows that do not fit into `a` get the value `none`. */
static struct array *do_positions(struct call *c, const struct array *a, const struct windows *w, int ndim,
    const int *shape, const int64_t *base, const int64_t *steps, uint32_t none, bool strict)
{
    static const int64_t zeros[MAXD] = { 0 };
    struct array *out = output(c, ndim, shape, MLXVK_UINT32), *walk;
    walk = out ? view_of(c, out, MLXVK_UINT32, ndim, shape, base ? base : zeros, 0) : NULL;
    for (int first = 0; !first || first < w->count; first += 2) {
        struct positions_params p = { .none = none,
                                      .flags = (strict ? POSITIONS_STRICT : 0) | (first ? POSITIONS_ADD : 0) };
        struct array *in[2] = { NULL, NULL };
        int inputs = w->count - first < 2 ? w->count - first : 2;
        if (first && walk) walk = view_of(c, out, MLXVK_UINT32, ndim, shape, zeros, 0);
        for (int k = 0; k < inputs; k++) {
            int axis = w->axes[first + k];
            in[k] = w->index[first + k];
            p.size[k] = (uint32_t)a->shape[axis];
            p.room[k] = (uint32_t)(a->shape[axis] - w->sizes[axis] + 1);
            p.step[k] = (uint32_t)steps[axis];
            while (in[k] && in[k]->ndim < ndim) in[k] = do_expand(c, in[k], &in[k]->ndim, 1);
            in[k] = broadcast(c, in[k], ndim, shape);
        }
        append(c, OP_POSITIONS, PARAMS(.positions = p), in, inputs, (struct array *[]){ out, walk }, 2);
    }
    return out;
}

/* ---- fronts ---- */

static bool check_indices(struct call *c, const struct array *indices)
{
    if (c->code || !indices) return false;
    if (!is_integer(indices->dtype))
        return FAIL(c, MLXVK_ERROR_DTYPE, "indices must be integers, not %s", TEXT(indices)), false;
    return true;
}

static struct array *do_take(struct call *c, struct array *a, struct array *indices, int axis)
{
    int shape[2 * MAXD], ndim = 0;
    axis = normal_axis(c, a, axis);
    if (!check_indices(c, indices) || axis < 0) return NULL;
    if (!a->size && indices->size)
        return FAIL(c, MLXVK_ERROR_SHAPE, "nothing can be taken from %s, which is empty", TEXT(a));
    for (int i = 0; i < axis; i++) shape[ndim++] = a->shape[i];
    for (int i = 0; i < indices->ndim; i++) shape[ndim++] = indices->shape[i];
    for (int i = axis + 1; i < a->ndim; i++) shape[ndim++] = a->shape[i];
    struct array *out = output(c, ndim, shape, a->dtype);
    append(c, OP_GATHER, PARAMS(.gather = { GATHER_TAKE, (uint8_t)axis, 1, (uint32_t)a->shape[axis] }),
           ARRAYS(a, indices), ARRAYS(out));
    return out;
}

FUNCTION_TWO(mlxvk_take_axis, a, indices, do_take(&c, x, y, axis), int axis, mlxvk_stream s)
FUNCTION_TWO(mlxvk_take, a, indices, do_take(&c, do_flatten(&c, x, 0, -1), y, 0), mlxvk_stream s)

/* ---- windows: gather ---- */

/* Index arrays for distinct axes of a: broadcast together, of one integer dtype. */
static bool broadcast_windows(struct call *c, const struct array *a, struct windows *w, const int *axes,
                              size_t axes_num)
{
    struct array probe = { .dtype = MLXVK_BOOL };
    mlxvk_dtype dtype = MLXVK_BOOL;
    uint32_t mask = 0;
    if (c->code) return false;
    if (axes_num != (size_t)w->count)
        return FAIL(c, MLXVK_ERROR_ARGUMENT, "%zu axes for %d index arrays", axes_num, w->count), false;
    if (w->count && !axes) return FAIL(c, MLXVK_ERROR_ARGUMENT, "axes is NULL"), false;
    for (int k = 0; k < w->count; k++) {
        if (!check_indices(c, w->index[k])) return false;
        if (axes[k] < 0 || axes[k] >= a->ndim || (mask >> axes[k] & 1))
            return FAIL(c, MLXVK_ERROR_AXIS, "axis %d of %s is outside, or named twice", axes[k], TEXT(a)), false;
        mask |= 1u << axes[k];
        w->axes[k] = axes[k];
        dtype = k ? promote(dtype, w->index[k]->dtype) : w->index[k]->dtype;
        if (!broadcast_shape(c, &probe, w->index[k], &w->ndim, w->shape)) return false;
        probe.ndim = w->ndim;
        memcpy(probe.shape, w->shape, sizeof w->shape);
    }
    if (w->count && !is_integer(dtype))
        return FAIL(c, MLXVK_ERROR_DTYPE, "index arrays of uint64 and of a signed dtype"), false;
    for (int k = 0; k < w->count; k++)
        w->index[k] = broadcast(c, as_type(c, w->index[k], dtype), w->ndim, w->shape);
    return !c->code;
}

/* The windows' sizes fit into a; where there is no window they need not. */
static bool check_windows(struct call *c, const struct array *a, struct windows *w, const int *sizes)
{
    bool none = false;
    for (int i = 0; i < w->ndim; i++) none = none || !w->shape[i];
    for (int i = 0; i < a->ndim && !c->code; i++) {
        w->sizes[i] = sizes[i];
        if (sizes[i] < 0 || (sizes[i] > a->shape[i] && !none))
            FAIL(c, MLXVK_ERROR_SHAPE, "windows of %d along axis %d of %s", sizes[i], i, TEXT(a));
    }
    return !c->code;
}

static bool index_inputs(struct call *c, const struct array *a, const struct vector *v, struct windows *w)
{
    w->count = 0;
    w->ndim = 0;
    if (c->code || !a || !v) return !c->code;
    if (v->size > (size_t)a->ndim)
        return FAIL(c, MLXVK_ERROR_ARGUMENT, "%zu index arrays for %s", v->size, TEXT(a)), false;
    for (size_t k = 0; k < v->size; k++) w->index[w->count++] = vector_input(c, v, k);
    return !c->code;
}

/* Every element by its position in an array without gaps: where that, or one window, is larger than a binding. */
static struct array *gather_elements_of(struct call *c, struct array *a, const struct windows *w,
                                        const struct array *out)
{
    int64_t strides[MAXD], base[MAXD] = { 0 };
    struct array *at;
    if (a->size > INT_MAX) return FAIL(c, MLXVK_ERROR_LIMIT, "%s has too many elements", TEXT(a));
    row_strides(a->ndim, a->shape, strides);
    memcpy(base + w->ndim, strides, (size_t)a->ndim * sizeof *strides);
    at = do_positions(c, a, w, out->ndim, out->shape, base, strides, UINT32_MAX, false);
    return do_take(c, do_flatten(c, a, 0, -1), at, 0);
}

static struct array *do_gather(struct call *c, struct array *a, struct windows *w, const int *axes, size_t axes_num,
                               const int *sizes, size_t sizes_num)
{
    struct array one;
    struct gather_params p = { GATHER_STARTS, 0, 16, 0 };
    struct array *starts;
    int shape[2 * MAXD], start[MAXD] = { 0 };
    if (c->code || !a) return NULL;
    if (sizes_num != (size_t)a->ndim || (sizes_num && !sizes))
        return FAIL(c, MLXVK_ERROR_ARGUMENT, "%zu slice_sizes for %s", sizes ? sizes_num : 0, TEXT(a));
    if (!broadcast_windows(c, a, w, axes, axes_num) || !check_windows(c, a, w, sizes)) return NULL;
    if (!w->count) return do_slice(c, a, start, sizes, NULL);
    if (w->ndim) memcpy(shape, w->shape, (size_t)w->ndim * sizeof *shape);
    memcpy(shape + w->ndim, sizes, (size_t)a->ndim * sizeof *shape);
    struct array *out = output(c, w->ndim + a->ndim, shape, a->dtype);
    if (!out || !out->size) return out;
    one = *out;
    for (int i = 0; i < w->ndim; i++) one.shape[i] = 1;
    if ((w->count > 1 || sizes[w->axes[0]] > 1) && (!fits_binding(c->device, a) || !fits_binding(c->device, &one)))
        return gather_elements_of(c, a, w, out);
    if (w->count == 1) {
        int axis = w->axes[0];
        p = (struct gather_params){ GATHER_SLICES, (uint8_t)axis, 1, (uint32_t)(a->shape[axis] - sizes[axis] + 1) };
        starts = w->index[0];
    } else {
        for (int k = 0; k < w->count; k++) {
            int64_t stride = a->strides[w->axes[k]];
            while (stride < 0 ? p.unit > 1 : stride % p.unit != 0) p.unit /= 2;
        }
        starts = do_positions(c, a, w, w->ndim, w->shape, NULL, a->strides, UINT32_MAX, false);
    }
    append(c, OP_GATHER, PARAMS(.gather = p), ARRAYS(a, starts), ARRAYS(out));
    return out;
}

int mlxvk_gather(mlxvk_array *res, mlxvk_array a, mlxvk_vector_array indices, const int *axes, size_t axes_num,
                 const int *slice_sizes, size_t slice_sizes_num, mlxvk_stream s)
{
    struct call c = begin("gather", s);
    struct array *x = input(&c, "a", a);
    struct windows w;
    if (!index_inputs(&c, x, indices.ctx, &w)) x = NULL;
    return finish(&c, do_gather(&c, x, &w, axes, axes_num, slice_sizes, slice_sizes_num), res);
}

int mlxvk_gather_single(mlxvk_array *res, mlxvk_array a, mlxvk_array indices, int axis, const int *slice_sizes,
                        size_t slice_sizes_num, mlxvk_stream s)
{
    struct call c = begin("gather_single", s);
    struct array *x = input(&c, "a", a);
    struct windows w = { .count = 1, .index = { input(&c, "indices", indices) } };
    return finish(&c, do_gather(&c, x, &w, &axis, 1, slice_sizes, slice_sizes_num), res);
}

/* ---- slices that start where an array says ---- */

/* The elements of `start` as index arrays of no dimensions, and their axes from 0 on. */
static bool dynamic_windows(struct call *c, const struct array *a, struct array *start, const int *axes,
                            size_t axes_num, struct windows *w, int *normal)
{
    uint32_t mask;
    w->count = w->ndim = 0;
    if (c->code || !a || !start) return false;
    if (start->ndim > 1 || start->size != axes_num || axes_num > (size_t)a->ndim)
        return FAIL(c, MLXVK_ERROR_SHAPE, "start %s for %zu axes of %s", TEXT(start), axes_num, TEXT(a)), false;
    if (!check_indices(c, start) || !axes_mask(c, a, axes, axes_num, &mask)) return false;
    for (size_t k = 0; k < axes_num; k++) {
        int64_t at = start->ndim ? (int64_t)k * start->strides[0] * (int64_t)item_size(start) : 0;
        normal[k] = normal_axis(c, a, axes[k]);
        w->index[w->count++] = view_of(c, start, start->dtype, 0, NULL, NULL, start->offset + at);
    }
    return !c->code;
}

int mlxvk_slice_dynamic(mlxvk_array *res, mlxvk_array a, mlxvk_array start, const int *axes, size_t axes_num,
                        const int *slice_size, size_t slice_size_num, mlxvk_stream s)
{
    struct call c = begin("slice_dynamic", s);
    struct array *x = input(&c, "a", a), *i = input(&c, "start", start);
    struct windows w;
    int normal[MAXD];
    if (!dynamic_windows(&c, x, i, axes, axes_num, &w, normal)) x = NULL;
    return finish(&c, do_gather(&c, x, &w, normal, axes_num, slice_size, slice_size_num), res);
}

/* ---- diagonals ---- */

/* A view: the two axes go, one for the diagonal comes last. */
static struct array *do_diagonal(struct call *c, struct array *a, int offset, int axis1, int axis2)
{
    int64_t row = offset < 0 ? -(int64_t)offset : 0, column = offset > 0 ? offset : 0;
    if (c->code || !a) return NULL;
    if (a->ndim < 2) return FAIL(c, MLXVK_ERROR_SHAPE, "%s has no diagonal", TEXT(a));
    axis1 = normal_axis(c, a, axis1);
    axis2 = normal_axis(c, a, axis2);
    if (axis1 < 0 || axis2 < 0) return NULL;
    if (axis1 == axis2) return FAIL(c, MLXVK_ERROR_AXIS, "axis %d twice for a diagonal of %s", axis1, TEXT(a));
    int64_t down = a->shape[axis1] - row, across = a->shape[axis2] - column, length = down < across ? down : across;
    struct array v = *a;
    v.ndim = 0;
    for (int i = 0; i < a->ndim; i++) {
        if (i == axis1 || i == axis2) continue;
        v.shape[v.ndim] = a->shape[i];
        v.strides[v.ndim++] = a->strides[i];
    }
    v.shape[v.ndim] = length > 0 ? (int)length : 0;
    v.strides[v.ndim++] = a->strides[axis1] + a->strides[axis2];
    if (length > 0) v.offset += (row * a->strides[axis1] + column * a->strides[axis2]) * (int64_t)item_size(a);
    return seen_as(c, a, &v);
}

static struct array *do_diag(struct call *c, struct array *a, int k)
{
    if (c->code || !a) return NULL;
    if (a->ndim == 2) return do_diagonal(c, a, k, 0, 1);
    if (a->ndim != 1) return FAIL(c, MLXVK_ERROR_SHAPE, "%s is neither a diagonal nor a matrix", TEXT(a));
    int64_t n = a->shape[0] + llabs(k);
    if (n > INT_MAX) return FAIL(c, MLXVK_ERROR_LIMIT, "a matrix of %lld rows for %s", (long long)n, TEXT(a));
    struct array *out = do_full(c, 2, (int[]){ (int)n, (int)n }, scalar(c, 0, a->dtype), a->dtype);
    append_copy(c, do_diagonal(c, out, k, 0, 1), a);
    return out;
}

FUNCTION(mlxvk_diagonal, a, do_diagonal(&c, x, offset, axis1, axis2), int offset, int axis1, int axis2, mlxvk_stream s)
FUNCTION(mlxvk_diag, a, do_diag(&c, x, k), int k, mlxvk_stream s)

/* ---- along an axis ---- */

/* a seen with the shape of `like` but along the axis, where it keeps its length. */
static struct array *broadcast_beside(struct call *c, struct array *a, int axis, const struct array *like)
{
    if (c->code || !a) return NULL;
    struct array wanted = *like;
    wanted.shape[axis] = a->shape[axis];
    return broadcast(c, a, a->ndim, wanted.shape);
}

/* The shape that a and b broadcast to without regard to the axis, in `probe`. */
static bool beside_shape(struct call *c, const struct array *a, const struct array *b, int axis, struct array *probe)
{
    struct array x = *a;
    *probe = *b;
    x.shape[axis] = b->shape[axis];
    return broadcast_shape(c, &x, b, &probe->ndim, probe->shape);
}

static struct array *do_take_along(struct call *c, struct array *a, struct array *indices, int axis)
{
    struct array probe;
    axis = normal_axis(c, a, axis);
    if (!check_indices(c, indices) || axis < 0) return NULL;
    if (indices->ndim != a->ndim)
        return FAIL(c, MLXVK_ERROR_SHAPE, "indices %s must have the dimensions of %s", TEXT(indices), TEXT(a));
    if (!beside_shape(c, a, indices, axis, &probe)) return NULL;
    if (!a->shape[axis] && indices->size)
        return FAIL(c, MLXVK_ERROR_SHAPE, "nothing can be taken from %s, which is empty", TEXT(a));
    a = broadcast_beside(c, a, axis, &probe);
    indices = broadcast_beside(c, indices, axis, &probe);
    if (!a || !indices) return NULL;
    struct array *out = output(c, probe.ndim, probe.shape, a->dtype);
    append(c, OP_GATHER, PARAMS(.gather = { GATHER_ALONG, (uint8_t)axis, 1, (uint32_t)a->shape[axis] }),
           ARRAYS(a, indices), ARRAYS(out));
    return out;
}

FUNCTION_TWO(mlxvk_take_along_axis, a, indices, do_take_along(&c, x, y, axis), int axis, mlxvk_stream s)

/* Array, indices and values of put_along_axis and its like, broadcast together beside the axis. */
static bool put_operands(struct call *c, struct array **a, struct array **indices, struct array **values, int axis)
{
    struct array probe, *v = *values;
    int ndim, shape[MAXD];
    if (!check_indices(c, *indices) || axis < 0 || !v) return false;
    if ((*indices)->ndim != (*a)->ndim)
        return FAIL(c, MLXVK_ERROR_SHAPE, "indices %s must have the dimensions of %s", TEXT(*indices), TEXT(*a)), false;
    if (!(*a)->size) return true;
    while (v->ndim > (*indices)->ndim && v->shape[0] == 1 && (v = do_squeeze(c, v, 1)) != NULL) {}
    if (!v || !broadcast_shape(c, *indices, v, &ndim, shape)) return false;
    if (ndim != (*a)->ndim)
        return FAIL(c, MLXVK_ERROR_SHAPE, "values %s have too many dimensions for %s", TEXT(v), TEXT(*a)), false;
    v = broadcast(c, v, ndim, shape);
    *indices = broadcast(c, *indices, ndim, shape);
    if (!v || !*indices || !beside_shape(c, *a, *indices, axis, &probe)) return false;
    *a = broadcast_beside(c, *a, axis, &probe);
    *values = broadcast_beside(c, as_type(c, v, *a ? (*a)->dtype : MLXVK_BOOL), axis, &probe);
    *indices = broadcast_beside(c, *indices, axis, &probe);
    return *a && *values && *indices;
}

static struct array *do_put_along(struct call *c, const mlxvk_array *res, struct array *a, struct array *indices,
                                  struct array *values, int axis)
{
    axis = normal_axis(c, a, axis);
    if (!put_operands(c, &a, &indices, &values, axis) || !a->size) return a;
    struct array *out = target_of(c, res, a, values, indices);
    if (indices->size)
        append(c, OP_GATHER, PARAMS(.gather = { GATHER_PUT, (uint8_t)axis, 1, (uint32_t)a->shape[axis] }),
               ARRAYS(values, indices), ARRAYS(out));
    return out;
}

int mlxvk_put_along_axis(mlxvk_array *res, mlxvk_array a, mlxvk_array indices, mlxvk_array values, int axis,
                         mlxvk_stream s)
{
    struct call c = begin("put_along_axis", s);
    struct array *x = input(&c, "a", a), *i = input(&c, "indices", indices), *v = input(&c, "values", values);
    return finish(&c, do_put_along(&c, res, x, i, v, axis), res);
}

/* ==== >>reduce: reductions, arg reductions, softmax, scans ======================================================== */

enum reduction {
    R_sum = REDUCE_SUM, R_prod = REDUCE_PROD, R_max = REDUCE_MAX, R_min = REDUCE_MIN, R_mean = REDUCE_MEAN,
    R_all = REDUCE_ALL, R_any = REDUCE_ANY, R_logsumexp = REDUCE_LSE, R_argmax = REDUCE_ARGMAX,
    R_argmin = REDUCE_ARGMIN, R_complex_logsumexp = REDUCE_COMPLEX_LSE, R_expsum = REDUCE_EXPSUM
};

/* Rows are reduced by the tree that shaders/reduce.comp tells of: a row's result has the same bits whatever lies beside
 * it. What keeps to it: the cut into pieces (piece_of), the ranges of what cannot be bound whole (reduce_range),
 * the order of several axes (number_runs), softmax (softmax_rows, softmax_given). */
enum { REDUCE_THREADS = 256, REDUCE_GROUPS = 2048, REDUCE_DIMS = 4, REDUCE_LANE = 16, REDUCE_BLOCK = 256,
       REDUCE_PIECE = 4096, REDUCE_LONGEST = 1 << 20, ROWS_ENOUGH = 512, COLUMNS_ENOUGH = 512 };

/* A dimension of a reduction: its strides in the operand and, where it is kept, in the result. */
struct reduce_dim {
    uint32_t size;
    int64_t in, out;
    int run, axis;                                   /* reduced as one row, highest first; 0: kept. The last axis */
    bool later;                                      /* results of pieces */
};

/* What is left to do: reduce `from` (elements of dtype `type`, from element `shift` on) over the reduced dimensions. */
struct reduce_job {
    enum reduction op;
    float scale;
    struct array *from, *out, *most;                 /* most: of R_expsum */
    mlxvk_dtype type;
    int64_t shift;
    uint32_t place;                                  /* the position of the first element, for arg reductions */
    bool ordered;
    int ndim;
    struct reduce_dim dim[MAXD + 2];                 /* the widest strides first */
};

static bool is_arg(enum reduction op) { return op == R_argmax || op == R_argmin; }

/* Does the order in which elements meet show in the result? */
static bool order_matters(enum reduction op, mlxvk_dtype type)
{
    if (op == R_max || op == R_min) return is_complex(type);
    return op == R_mean || op == R_logsumexp || op == R_expsum || ((op == R_sum || op == R_prod) && is_inexact(type));
}

static uint32_t pow2_at_least(uint64_t n)
{
    uint32_t p = 1;
    while (p < n && p < 1u << 31) p *= 2;
    return p;
}

/* ---- lowering: dimensions ---- */

static uint64_t stride_order(int64_t stride) { return stride ? (uint64_t)llabs(stride) : UINT64_MAX; }

static void insert_dim(struct reduce_job *j, struct reduce_dim d)
{
    int at = j->ndim++;
    for (; at > 0 && stride_order(j->dim[at - 1].in) < stride_order(d.in); at--) j->dim[at] = j->dim[at - 1];
    j->dim[at] = d;
}

/* Joins neighbours of one kind that are evenly spaced. */
static void join_dims(struct reduce_job *j)
{
    int n = 0;
    for (int i = 0; i < j->ndim; i++) {
        struct reduce_dim *a = &j->dim[n > 0 ? n - 1 : 0], *b = &j->dim[i];
        if (n && a->run == b->run && a->in == b->in * b->size && (a->run || a->out == b->out * b->size) &&
            (uint64_t)a->size * b->size <= INT_MAX && (a->axis < b->axis || !a->run || !j->ordered))
            *a = (struct reduce_dim){ a->size * b->size, b->in, b->out, b->run, b->axis, false };
        else j->dim[n++] = *b;
    }
    j->ndim = n;
}

/* Which reduced axes make one row, by shape alone: those side by side, the last axes first. An axis that repeats its
 * elements is a row of its own, which need not be written out. */
static void number_runs(const struct reduce_job *j, uint32_t mask, int *run)
{
    const struct array *a = j->from;
    int number = MAXD + 1, last = -1;
    uint64_t length = 0;
    for (int i = a->ndim - 1; i >= 0; i--) {
        bool open = length > 0;
        run[i] = 0;
        if (a->shape[i] == 1) continue;
        if (!(mask >> i & 1)) { length = 0; continue; }
        open = open && a->strides[i] && a->strides[last] && length * (uint64_t)a->shape[i] <= INT_MAX;
        length = open ? length * (uint64_t)a->shape[i] : (uint64_t)a->shape[i];
        if (!open) number--;
        run[i] = j->ordered ? number : 1;
        last = i;
    }
}

static void plan_dims(struct reduce_job *j, const int *run)
{
    bool any = false;
    j->ndim = 0;
    for (int i = 0; i < j->from->ndim; i++) {
        struct reduce_dim d = { .size = (uint32_t)j->from->shape[i], .in = j->from->strides[i],
                                .out = j->out->strides[i], .run = run[i], .axis = i };
        if (d.size == 1) continue;
        any |= d.run > 0;
        if (d.run && d.in < 0 && !is_arg(j->op) && !j->ordered) {      /* the order does not matter: walk it upwards */
            j->shift += d.in * (d.size - 1);
            d.in = -d.in;
        }
        insert_dim(j, d);
    }
    if (!any) insert_dim(j, (struct reduce_dim){ .size = 1, .in = j->ndim ? 0 : 1, .run = 1 });
    join_dims(j);
}

/* More outer dimensions than the shader has, or a row that is none in memory: the operand copied into row-major order,
 * reduced dimensions last. */
static void copy_rows(struct encoder *e, struct reduce_job *j, uint32_t mask, const int *run)
{
    struct array view = *j->from;
    struct reduce_dim dim[MAXD];
    view.refs = 1;
    view.ndim = j->ndim = 0;
    for (uint32_t reduced = 0; reduced < 2; reduced++)
        for (int i = 0; i < j->from->ndim; i++)
            if ((mask >> i & 1) == reduced) {
                view.shape[view.ndim] = j->from->shape[i];
                view.strides[view.ndim] = j->from->strides[i];
                dim[view.ndim++] = (struct reduce_dim){ .out = j->out->strides[i], .run = run[i], .axis = i };
            }
    view.row = row_contiguous(&view);
    struct array *copy = rows_of(e, &view);
    if (e->code) return;
    for (int i = 0; i < view.ndim; i++) {
        dim[i].size = (uint32_t)view.shape[i];
        dim[i].in = copy->strides[i];
        if (dim[i].size > 1) j->dim[j->ndim++] = dim[i];
    }
    if (!j->ndim || !j->dim[j->ndim - 1].run) j->dim[j->ndim++] = (struct reduce_dim){ .size = 1, .in = 1, .run = 1 };
    join_dims(j);
    j->shift = 0;
    if (copy == &view) return;                       /* these rows lie so already */
    array_release(j->from);
    j->from = copy;
}

/* Which dimension is reduced next. */
static int next_reduced(const struct reduce_job *j, int *count)
{
    int next = -1;
    *count = 0;
    for (int i = 0; i < j->ndim; i++)
        if (j->dim[i].run) {
            if (next < 0 || j->dim[i].run >= j->dim[next].run) next = i;
            ++*count;
        }
    return next;
}

static bool must_copy(const struct reduce_job *j)
{
    int outer = j->ndim - 1, count, at = next_reduced(j, &count);
    if (at < j->ndim - 1) outer--;
    for (int i = 0; i < j->ndim && j->ordered; i++)
        for (int k = 0; k < i; k++) if (j->dim[i].run && j->dim[i].run == j->dim[k].run) return true;
    return outer > REDUCE_DIMS;
}

/* ---- lowering: one dispatch ---- */

/* What is accumulated takes two words. */
static bool in_pairs(enum reduction op, mlxvk_dtype type)
{
    return op == R_logsumexp || (dtypes[type].size == 8 && op != R_all && op != R_any);
}

static enum kernel_id reduce_kernel(enum reduction op, mlxvk_dtype type)
{
    return is_arg(op) ? K_reduce_index : in_pairs(op, type) ? K_reduce_pair : K_reduce;
}

/* What results of parts are kept as: the accumulator; complex64 for the two words of logsumexp and arg reductions. */
static mlxvk_dtype part_type(enum reduction op, mlxvk_dtype type)
{
    if (is_arg(op) || op == R_logsumexp) return MLXVK_COMPLEX64;
    if (op == R_all || op == R_any) return MLXVK_BOOL;
    if (dtypes[type].size == 8) return type;
    if (is_float(type) || op == R_mean) return MLXVK_FLOAT32;
    return dtypes[type].kind == KIND_INT ? MLXVK_INT32 : MLXVK_UINT32;
}

/* How a step is laid out on workgroups. */
struct reduce_grid { uint32_t layout, width, later, piece, bound; };

/* The elements of a part: all n where there are groups enough, else the longest pieces of the tree that make enough. */
static uint32_t piece_of(const struct reduce_grid *g, uint32_t n, uint64_t groups, uint32_t least, uint32_t most,
                         uint32_t enough)
{
    if (n <= least || (n <= most && n <= g->bound && groups >= enough)) return n;
    for (uint32_t piece = REDUCE_LONGEST; piece > least; piece /= 16)
        if (piece < n && piece <= most && piece <= g->bound && groups * ceil_div(n, piece) >= enough) return piece;
    return least;
}

static void grid_of_rows(struct reduce_grid *g, uint32_t n, uint32_t outer, bool whole)
{
    uint32_t least = g->bound < REDUCE_PIECE ? REDUCE_BLOCK : REDUCE_PIECE;
    bool few = g->later && n <= 8 * REDUCE_PIECE;
    g->piece = whole ? n : piece_of(g, n, outer, least, REDUCE_LONGEST, few ? 1 : ROWS_ENOUGH);
    uint32_t lanes = ceil_div(g->piece, REDUCE_LANE);
    if (!g->later && lanes <= 4) lanes = lanes > 1 ? 4 : 1;
    else if (!g->later) lanes = (uint32_t)round_up(lanes, 16);
    g->width = min_u32(pow2_at_least(lanes), REDUCE_THREADS);
}

/* `units`: columns, or fours of them. */
static void grid_of_columns(struct reduce_grid *g, uint32_t n, uint64_t units, bool whole)
{
    uint32_t height = min_u32(pow2_at_least(ceil_div(n, g->later ? REDUCE_LANE : 4)), 16);
    if (n > REDUCE_BLOCK && g->bound >= REDUCE_PIECE)
        height = min_u32(REDUCE_THREADS / pow2_at_least(min_size(units, 16)),
                         16 * pow2_at_least(ceil_div(n, REDUCE_BLOCK)));
    else if (n <= 4 * REDUCE_LANE && units >= (uint64_t)COLUMNS_ENOUGH * REDUCE_THREADS) height = 1;
    g->width = REDUCE_THREADS / height;
    g->piece = whole ? n : piece_of(g, n, (units + g->width - 1) / g->width, height > 16 ? REDUCE_PIECE : REDUCE_BLOCK,
                                    256 * REDUCE_BLOCK, COLUMNS_ENOUGH);
}

/* The push constants of a step that reduces dimension `at` of `from` into `out`, whose positions there are parts. */
static void reduce_shape(const struct reduce_job *j, const struct array *from, const struct array *out, int at,
                         struct reduce_push *p)
{
    int inner = at < from->ndim - 1 ? from->ndim - 1 : -1;
    *p = (struct reduce_push){ .n = (uint32_t)from->shape[at], .stride = (uint32_t)from->strides[at],
                               .outer = 1, .inner = 1, .scale = j->scale, .place = j->place,
                               .parts = (uint32_t)out->shape[at], .part_out = (uint32_t)out->strides[at] };
    if (inner >= 0) {
        p->inner = (uint32_t)from->shape[inner];
        p->inner_stride = (uint32_t)from->strides[inner];
        p->inner_out = (uint32_t)out->strides[inner];
    }
    for (int i = 0; i < from->ndim; i++) {
        if (i == at || i == inner) continue;
        p->shape[p->ndim] = (uint32_t)from->shape[i];
        p->in_stride[p->ndim] = (uint32_t)from->strides[i];
        p->out_stride[p->ndim++] = (uint32_t)out->strides[i];
        p->outer *= (uint32_t)from->shape[i];
    }
}

/* Columns that four-wide loads can take. */
static bool by_fours(uint32_t inner, uint32_t inner_stride, uint32_t others, const uint32_t *outer_strides,
                     uint32_t ndim)
{
    for (uint32_t i = 0; i < ndim; i++) others |= outer_strides[i];
    return inner > 1 && inner_stride == 1 && !((inner | others) & 3);
}

/* How rows lie: by aligned fours, side by side, or with gaps. Eight bytes each and unaligned are read one by one. */
static uint32_t row_layout(const struct reduce_push *p, uint32_t from, mlxvk_dtype type)
{
    for (uint32_t i = 0; i < p->ndim; i++) from |= p->in_stride[i];
    if (p->stride == 1 && !(from & 3)) return REDUCE_FOURS;
    return p->stride != 1 || dtypes[type].size == 8 ? REDUCE_STRIDED : REDUCE_ANYWHERE;
}

static void reduce_dispatch(struct encoder *e, const struct reduce_job *j, struct array *from, struct array *out,
                            int at, struct reduce_grid g)
{
    struct reduce_push p;
    uint64_t groups;
    reduce_shape(j, from, out, at, &p);
    p.chunk = g.piece;
    p.from = set_input(e, SLOT_reduce_src, from);
    p.to = set_output(e, SLOT_reduce_dst, out);
    if (j->most) p.most = set_input(e, SLOT_reduce_largest, j->most);
    if (out->storage != j->out->storage) p.scale = 1;
    if (g.layout < REDUCE_COLUMNS) {
        g.layout = row_layout(&p, p.from, j->type);
        groups = ceil_div((uint64_t)p.outer * p.parts, REDUCE_THREADS / g.width);
    } else {
        uint32_t each = g.layout == REDUCE_FOUR_COLUMNS ? 4 : 1;
        if (each == 4 && !by_fours(p.inner, p.inner_stride, p.stride | p.from, p.in_stride, p.ndim)) each = 1;
        g.layout = each == 4 ? REDUCE_FOUR_COLUMNS : REDUCE_COLUMNS;
        groups = ceil_div((uint64_t)p.outer * (p.inner / each), g.width) * (uint64_t)p.parts;
    }
    USE_AS(e, reduce_kernel(j->op, j->type), reduce, &p, .threads = REDUCE_THREADS, .op = j->op, .from = j->type,
           .to = out->dtype, .layout = g.layout, .width = g.width, .later = g.later);
    dispatch_groups(e, groups);
}

/* The same in ranges that a device can bind, and count; those along the row are whole pieces. */
static void reduce_range(struct encoder *e, const struct reduce_job *j, struct array *from, struct array *out, int at,
                         struct reduce_grid g)
{
    struct array *both[] = { from, out };
    int axis = axis_to_split(e, both, 2, 0);
    if (axis == at && out->shape[at] == 1) axis = axis_to_split(e, both, 2, 1u << at);
    if (axis < 0 && from->size > e->device->caps.max_elements) axis = longest_axis(from, 1u << at);
    if (axis < 0) { reduce_dispatch(e, j, from, out, at, g); return; }
    for (int half = 0; half < 2 && !e->code; half++) {
        struct reduce_job part = *j;
        int64_t parts = out->shape[axis], first = half ? parts / 2 : 0, count = half ? parts - parts / 2 : parts / 2;
        int64_t unit = axis == at ? g.piece : 1;
        int64_t end = (int64_t)min_size((size_t)((first + count) * unit), (size_t)from->shape[axis]);
        struct array some = part_of(from, axis, first * unit, end - first * unit);
        struct array result = part_of(out, axis, first, count);
        if (axis == at) part.place += (uint32_t)(first * unit);
        reduce_range(e, &part, &some, &result, at, g);
    }
}

/* ---- lowering: all steps ---- */

/* The job's operand with its dimensions. */
static struct array operand_of(const struct reduce_job *j)
{
    struct array view = *j->from;
    view.refs = 1;
    view.ndim = j->ndim;
    view.size = 1;
    view.offset += j->shift * (int64_t)dtypes[j->type].size;
    for (int i = 0; i < j->ndim; i++) {
        view.shape[i] = (int)j->dim[i].size;
        view.strides[i] = j->dim[i].in;
        view.size *= j->dim[i].size;
    }
    view.row = row_contiguous(&view);
    return view;
}

/* Room for the results of a step's parts, as (other dimensions, parts, the last dimension); row-major. */
static struct array *room_of_parts(struct encoder *e, const struct reduce_job *j, int at, uint32_t parts,
                                   struct array *view)
{
    int inner = at < j->ndim - 1 ? j->ndim - 1 : -1;
    int64_t step = 1;
    size_t size = parts;
    for (int i = 0; i < j->ndim; i++) if (i != at) size *= j->dim[i].size;
    struct array *room = scratch(e, size, part_type(j->op, j->type));
    if (!room) return NULL;
    *view = *room;
    view->refs = 1;
    view->ndim = j->ndim;
    for (int i = 0; i < j->ndim; i++) view->shape[i] = i == at ? (int)parts : (int)j->dim[i].size;
    if (inner >= 0) { view->strides[inner] = step; step *= view->shape[inner]; }
    view->strides[at] = step;
    step *= parts;
    for (int i = j->ndim - 1; i >= 0; i--)
        if (i != at && i != inner) { view->strides[i] = step; step *= view->shape[i]; }
    view->row = row_contiguous(view);
    return room;
}

/* The job that is left behind a step which wrote parts into `room`. */
static void reduce_next(struct reduce_job *j, int at, struct array *room, const struct array *view)
{
    struct reduce_dim dim[MAXD + 2];
    int n = 0, inner = at < j->ndim - 1 ? j->ndim - 1 : -1, count = j->ndim;
    for (int i = 0; i < j->ndim; i++) {
        j->dim[i].in = view->strides[i];
        j->dim[i].size = (uint32_t)view->shape[i];
        if (i != at && i != inner) dim[n++] = j->dim[i];
    }
    j->dim[at].later = true;
    dim[n++] = j->dim[at];
    if (inner >= 0) dim[n++] = j->dim[inner];
    j->ndim = 0;
    for (int i = 0; i < count; i++) if (dim[i].size > 1 || count == 1) j->dim[j->ndim++] = dim[i];
    array_release(j->from);
    j->from = room;
    j->type = room->dtype;
    j->shift = 0;
    j->place = 0;
}

/* How many elements along dimension `at` a binding takes, of all that lies between them. */
static uint32_t bindable(const struct encoder *e, const struct array *from, int at)
{
    struct array one = *from;
    uint64_t step = max_size((size_t)llabs(from->strides[at]), 1) * item_size(from);
    for (int i = 0; i < one.ndim; i++) if (llabs(one.strides[i]) > llabs(one.strides[at])) one.shape[i] = 1;
    if (fits_binding(e->device, &one)) return UINT32_MAX;
    return (uint32_t)min_size(e->device->caps.max_range / 4 / step, UINT32_MAX);
}

/* Keys of 64 bits with an index have no dtype to be kept in: their rows are not cut. */
static bool is_whole(const struct reduce_job *j) { return is_arg(j->op) && is_wide(j->type); }

static struct reduce_grid grid_of(const struct encoder *e, const struct reduce_job *j, const struct array *from, int at)
{
    struct reduce_grid g = { .later = j->dim[at].later, .bound = bindable(e, from, at) };
    uint32_t n = (uint32_t)from->shape[at], inner = at < from->ndim - 1 ? (uint32_t)from->shape[from->ndim - 1] : 1;
    bool whole = is_whole(j), pairs = reduce_kernel(j->op, j->type) == K_REDUCE_PAIR;
    bool rows = at == from->ndim - 1 && (!is_arg(j->op) || e->device->gate[GATE_ARGREDUCE]);
    size_t others = from->size / n;
    if (is_arg(j->op))
        NOTE(e->device, NOTE_ARG, "rows", rows && from->strides[at] == 1 ? NULL :
             rows || inner > 1 ? "not along contiguous rows" : "a gate", "%s", LAYOUT(from));
    if (rows) { grid_of_rows(&g, n, (uint32_t)min_size(others, UINT32_MAX), whole); return g; }
    g.layout = REDUCE_COLUMNS;
    if (!pairs && inner > 1 && from->strides[from->ndim - 1] == 1 && !(inner & 3)) g.layout = REDUCE_FOUR_COLUMNS;
    grid_of_columns(&g, n, others / (g.layout == REDUCE_FOUR_COLUMNS ? 4 : 1), whole);
    return g;
}

/* Does a piece, or a row that is not cut, reach further than one binding? */
static bool beyond_binding(const struct encoder *e, const struct reduce_job *j)
{
    struct array from = operand_of(j);
    int count, at = next_reduced(j, &count);
    uint32_t bound = bindable(e, &from, at);
    return bound < (uint32_t)from.shape[at] && (bound < REDUCE_BLOCK || is_whole(j));
}

/* Reduces one row's dimension, or the parts of it; true when that gave the result. */
static bool reduce_step(struct encoder *e, struct reduce_job *j)
{
    struct array from = operand_of(j), out = *j->out, *room;
    int count, at = next_reduced(j, &count);
    struct reduce_grid g = grid_of(e, j, &from, at);
    uint32_t parts = ceil_div((uint32_t)from.shape[at], g.piece);
    if (count == 1 && parts == 1) {
        out.refs = 1;
        out.ndim = j->ndim;
        for (int i = 0; i < j->ndim; i++) {
            out.shape[i] = i == at ? 1 : from.shape[i];
            out.strides[i] = i == at ? 0 : j->dim[i].out;
        }
        reduce_range(e, j, &from, &out, at, g);
        return true;
    }
    room = room_of_parts(e, j, at, parts, &out);
    if (!room) return true;
    reduce_range(e, j, &from, &out, at, g);
    reduce_next(j, at, room, &out);
    return false;
}

/* Room of its own for a result that must be row-major, where `out` is not; unpack copies it there. */
static struct array *pack(struct encoder *e, const struct array *out, struct array *packed)
{
    struct array *room = out->row ? NULL : scratch(e, out->size, out->dtype);
    *packed = *out;
    if (!room) return NULL;
    packed->storage = room->storage;
    packed->offset = 0;
    packed->row = true;
    row_strides(packed->ndim, packed->shape, packed->strides);
    return room;
}

static void unpack(struct encoder *e, struct array *out, struct array *packed, struct array *room)
{
    if (room && !e->code) copy_split(e, out, packed);
    array_release(room);
}

/* Reduces the axes of a mask. `out` has the operand's dimensions, 1 where they are reduced, and any strides. most: the
 * rows' largest elements, for R_expsum. */
static void reduce(struct encoder *e, enum reduction op, float scale, struct array *from, uint32_t mask,
                   struct array *out, struct array *most)
{
    struct reduce_job j = { .op = op, .scale = scale, .from = from, .out = out, .most = most, .type = from->dtype,
                            .ordered = order_matters(op, from->dtype) };
    int run[MAXD];
    number_runs(&j, mask, run);
    plan_dims(&j, run);
    from->refs++;
    if (must_copy(&j) || beyond_binding(e, &j)) copy_rows(e, &j, mask, run);
    while (!e->code && !reduce_step(e, &j)) {}
    array_release(j.from);
}

/* A row-major result seen with the operand's dimensions. */
static struct array full_rank(const struct array *from, uint32_t mask, const struct array *out)
{
    struct array view = *out;
    view.ndim = from->ndim;
    for (int i = 0; i < from->ndim; i++) view.shape[i] = mask >> i & 1 ? 1 : from->shape[i];
    row_strides(view.ndim, view.shape, view.strides);
    return view;
}

static void lower_reduce(struct encoder *e, const struct node *n)
{
    uint32_t mask = n->p.reduce.mask;
    enum reduction op = n->p.reduce.op;
    struct array out = full_rank(n->in[0], mask, n->out[0]), from = *n->in[0];
    bool once = is_arg(op) || op == R_max || op == R_min || op == R_all || op == R_any;
    from.refs = 1;
    for (int i = 0; i < from.ndim && once; i++)                      /* what repeats is looked at once */
        if ((mask >> i & 1) && !from.strides[i]) { from.size /= (size_t)from.shape[i]; from.shape[i] = 1; }
    reduce(e, op, n->p.reduce.scale, &from, mask, &out, NULL);
}

/* ---- fronts ---- */

/* The shape without the axes of a mask, or with 1 there. */
static int reduced_shape(const struct array *a, uint32_t mask, bool keepdims, int *shape)
{
    int n = 0;
    for (int i = 0; i < a->ndim; i++) {
        if (!(mask >> i & 1)) shape[n++] = a->shape[i];
        else if (keepdims) shape[n++] = 1;
    }
    return n;
}

static mlxvk_dtype reduced_dtype(enum reduction op, mlxvk_dtype t)
{
    if (op == R_all || op == R_any) return MLXVK_BOOL;
    if (is_arg(op)) return MLXVK_UINT32;
    if ((op != R_sum && op != R_prod) || is_inexact(t) || is_wide(t)) return t;
    return dtypes[t].kind == KIND_UINT ? MLXVK_UINT32 : MLXVK_INT32;
}

/* The operand of a reduction over no axes, as MLX gives it back. */
static struct array *not_reduced(struct call *c, enum reduction op, struct array *a)
{
    if (op == R_all || op == R_any) return as_type(c, a, MLXVK_BOOL);
    return op == R_mean || op == R_logsumexp ? as_float(c, a) : a;
}

static struct array *reduce_empty(struct call *c, enum reduction op, struct array *a, int ndim, const int *shape,
                                  mlxvk_dtype dtype, uint32_t mask)
{
    for (int i = 0; i < a->ndim; i++)
        if ((mask >> i & 1) && !a->shape[i] && (op == R_max || op == R_min))
            return FAIL(c, MLXVK_ERROR_SHAPE, "axis %d of %s is empty", i, TEXT(a));
    if (op == R_logsumexp || is_arg(op)) return FAIL(c, MLXVK_ERROR_SHAPE, "%s is empty", TEXT(a));
    return do_full(c, ndim, shape, scalar(c, op == R_mean ? NAN : op == R_prod || op == R_all, dtype), dtype);
}

static struct array *do_reduce(struct call *c, enum reduction op, struct array *a, uint32_t mask, bool keepdims)
{
    int shape[MAXD];
    size_t n = 1;
    if (c->code || !a) return NULL;
    if (is_arg(op) && is_complex(a->dtype)) return FAIL(c, MLXVK_ERROR_DTYPE, "%s is not taken", TEXT(a));
    if (op == R_logsumexp || (op == R_mean && is_wide(a->dtype))) a = as_float(c, a);
    if (!a) return NULL;
    mlxvk_dtype dtype = op == R_mean ? at_least_float(a->dtype) : reduced_dtype(op, a->dtype);
    int ndim = reduced_shape(a, mask, keepdims, shape);
    if (!a->size) return reduce_empty(c, op, a, ndim, shape, dtype, mask);
    for (int i = 0; i < a->ndim; i++) if (mask >> i & 1) n *= (size_t)a->shape[i];
    struct array *out = output(c, ndim, shape, dtype);
    append(c, OP_REDUCE, PARAMS(.reduce = { (uint16_t)op, mask, (float)(1.0 / (double)n) }), ARRAYS(a), ARRAYS(out));
    return out;
}

/* Keeps the axis. Rows of 64-bit keys are never cut (see is_whole): of one that no binding holds each part has its
 * winner, and a later one must be better. */
static struct array *do_arg(struct call *c, enum reduction op, struct array *a, int axis)
{
    struct array *part, *at, *value, *best = NULL, *place = NULL, *better;
    size_t room = c->device ? binding_range(c->device, 8) - c->device->caps.offset_align - 16 : 0;
    int step = (int)min_size(room / 8, INT_MAX);
    if (c->code || !a || !is_wide(a->dtype) || a->shape[axis] <= step) return do_reduce(c, op, a, 1u << axis, true);
    for (int64_t first = 0; first < a->shape[axis] && !c->code; first += step) {
        int64_t left = a->shape[axis] - first;
        part = slice_one(c, a, axis, (int)first, (int)(left < step ? left : step));
        at = do_reduce(c, op, part, 1u << axis, true);
        value = do_take_along(c, part, at, axis);
        at = first ? do_binary(c, B_add, at, scalar(c, (double)first, MLXVK_UINT32)) : at;
        better = first ? do_binary(c, op == R_argmax ? B_greater : B_less, value, best) : NULL;
        place = first ? do_select(c, better, at, place) : at;
        best = first ? do_select(c, better, value, best) : value;
    }
    return place;
}

/* A logarithm of sums of complex exponentials is MLX's composition. */
static struct array *complex_logsumexp(struct call *c, struct array *a, uint32_t mask, bool keepdims)
{
    struct array *most = do_reduce(c, R_max, a, mask, true), *out;
    int shape[MAXD], ndim = reduced_shape(a, mask, keepdims, shape);
    out = do_reduce(c, R_sum, do_unary(c, U_exp, do_binary(c, B_subtract, a, most)), mask, keepdims);
    most = do_reshape(c, most, ndim, shape);
    out = do_binary(c, B_add, do_unary(c, U_log, out), most);
    return do_select(c, do_unary(c, U_isinf, most), most, out);
}

/* Over all axes, counted in row-major order: the last axis first, then those of its winners. */
static struct array *arg_of_all(struct call *c, enum reduction op, struct array *a)
{
    struct array *at, *place = NULL;
    double step = 1;
    if (c->code || !a) return NULL;
    if (a->size <= INT_MAX) return do_arg(c, op, do_flatten(c, a, 0, -1), 0);
    if (a->size > UINT32_MAX) return FAIL(c, MLXVK_ERROR_LIMIT, "%s has more elements than indices can count", TEXT(a));
    for (int axis = a->ndim - 1; axis >= 0 && !c->code; axis--) {
        double next = step * a->shape[axis];
        at = do_arg(c, op, a, axis);
        a = do_squeeze(c, do_take_along(c, a, at, axis), 1u << axis);
        if (place) place = do_squeeze(c, do_take_along(c, place, at, axis), 1u << axis);
        at = at ? do_binary(c, B_multiply, do_squeeze(c, at, 1u << axis), scalar(c, step, MLXVK_UINT32)) : NULL;
        place = place ? do_binary(c, B_add, place, at) : at;
        step = next;
    }
    return place;
}

/* The axes that a call names, or all, as a mask. */
static uint32_t call_axes(struct call *c, const struct array *a, bool all, const int *axes, size_t count)
{
    uint32_t mask = 0;
    if (all && a) return (1u << a->ndim) - 1;
    axes_mask(c, a, axes, count, &mask);
    return mask;
}

static struct array *reduce_axes(struct call *c, enum reduction op, struct array *a, bool all, const int *axes,
                                 size_t count, bool keepdims)
{
    uint32_t mask = call_axes(c, a, all, axes, count);
    if (c->code || !a) return NULL;
    if (is_arg(op)) {
        int shape[MAXD], ndim = reduced_shape(a, mask, keepdims, shape);
        a = all ? arg_of_all(c, op, a) : do_arg(c, op, a, normal_axis(c, a, *axes));
        return do_reshape(c, a, ndim, shape);
    }
    if (op == R_logsumexp && !a->size) return FAIL(c, MLXVK_ERROR_SHAPE, "%s is empty", TEXT(a));
    if (!mask) return not_reduced(c, op, a);
    if (op == R_logsumexp && is_complex(a->dtype)) return complex_logsumexp(c, a, mask, keepdims);
    return do_reduce(c, op, a, mask, keepdims);
}

#define ARG(all, one, op)                                                                                             \
    FUNCTION(all, a, reduce_axes(&c, op, x, true, NULL, 0, keepdims), bool keepdims, mlxvk_stream s)                  \
    FUNCTION(one, a, reduce_axes(&c, op, x, false, &axis, 1, keepdims), int axis, bool keepdims, mlxvk_stream s)
#define X(all, one, some, op)                                                                                         \
    ARG(all, one, op)                                                                                                 \
    FUNCTION(some, a, reduce_axes(&c, op, x, false, axes, axes_num, keepdims), const int *axes, size_t axes_num,      \
             bool keepdims, mlxvk_stream s)
ARG(mlxvk_argmax, mlxvk_argmax_axis, R_argmax)
ARG(mlxvk_argmin, mlxvk_argmin_axis, R_argmin)
X(mlxvk_sum, mlxvk_sum_axis, mlxvk_sum_axes, R_sum)
X(mlxvk_prod, mlxvk_prod_axis, mlxvk_prod_axes, R_prod)
X(mlxvk_max, mlxvk_max_axis, mlxvk_max_axes, R_max)
X(mlxvk_min, mlxvk_min_axis, mlxvk_min_axes, R_min)
X(mlxvk_mean, mlxvk_mean_axis, mlxvk_mean_axes, R_mean)
X(mlxvk_all, mlxvk_all_axis, mlxvk_all_axes, R_all)
X(mlxvk_any, mlxvk_any_axis, mlxvk_any_axes, R_any)
X(mlxvk_logsumexp, mlxvk_logsumexp_axis, mlxvk_logsumexp_axes, R_logsumexp)
#undef ARG
#undef X

int mlxvk_trace(mlxvk_array *res, mlxvk_array a, int offset, int axis1, int axis2, mlxvk_dtype dtype, mlxvk_stream s)
{
    struct call c = begin("trace", s);
    struct array *x = do_diagonal(&c, input(&c, "a", a), offset, axis1, axis2);
    if (x && check_shape(&c, 0, NULL, dtype)) x = as_type(&c, x, dtype);
    return finish(&c, x ? do_reduce(&c, R_sum, x, 1u << (x->ndim - 1), false) : NULL, res);
}

/* ---- softmax ---- */

/* Rows side by side in memory, with up to four outer dimensions. */
static bool softmax_rows(struct encoder *e, struct array *x, struct array *out)
{
    struct array outer = *x, *list[1] = { &outer };
    struct softmax_push p = { .n = (uint32_t)dim_of(x, -1), .inner = 1 };
    uint32_t mode = SOFTMAX_HELD;
    uint32_t limit = min_u32(e->device->caps.max_threads, 1024);
    if (x->strides[x->ndim - 1] != 1 && p.n > 1) return false;
    outer.ndim--;
    struct dims g = merge_dims(list, 1);
    if (g.ndim > REDUCE_DIMS) return false;
    p.outer = (uint32_t)(x->size / p.n);
    p.ndim = (uint32_t)g.ndim;
    p.from = set_input(e, SLOT_softmax_src, x);
    p.to = set_output(e, SLOT_softmax_dst, out);
    uint32_t odd = p.from | p.to | p.n;
    for (int i = 0; i < g.ndim; i++) {
        p.shape[i] = (uint32_t)g.shape[i];
        p.stride[i] = (uint32_t)g.stride[0][i];
        odd |= p.stride[i];
    }
    uint32_t blocks = pow2_at_least(ceil_div(p.n, REDUCE_BLOCK));
    uint32_t step = odd & 3 ? 1 : item_size(x) == 2 && !(odd & 7) ? 8 : 4;     /* 16 bytes where rows allow it */
    uint32_t hold = p.n > 4 * REDUCE_LANE && (step == 8 || p.n > REDUCE_PIECE) ? 8 : 4;
    uint32_t width = p.n <= REDUCE_LANE ? 1 : p.n <= 4 * REDUCE_LANE ? 4 : (64 / hold) * blocks;
    if (width > limit) {
        width = pow2_at_least(limit / 2 + 1);
        hold = 4;
        mode = SOFTMAX_LOOPED;
        step = min_u32(step, 4);
    }
    uint32_t threads = width > REDUCE_THREADS ? width : REDUCE_THREADS;
    USE(e, softmax, &p, .threads = threads, .mode = mode, .t = x->dtype, .step = step, .width = width, .hold = hold);
    dispatch_groups(e, ceil_div(p.outer, threads / width));
    return true;
}

/* Over several axes, one that is not the last, or few long rows: maximum and sum first, then every element. The reduced
 * axes of `mask` are side by side in x, which is row-major. */
static void softmax_given(struct encoder *e, struct array *x, struct array *out, uint32_t mask)
{
    struct softmax_push p = { .n = 1, .outer = 1, .inner = 1 };
    struct array each;
    for (int i = 0; i < x->ndim; i++) {
        uint32_t size = (uint32_t)x->shape[i];
        if (mask >> i & 1) p.n *= size;
        else if (mask >> i) p.outer *= size;
        else p.inner *= size;
    }
    struct array *most = scratch(e, (size_t)p.outer * p.inner, MLXVK_FLOAT32);
    struct array *sums = scratch(e, (size_t)p.outer * p.inner, MLXVK_FLOAT32);
    if (most && sums) {
        each = full_rank(x, mask, most);
        reduce(e, R_max, 1, x, mask, &each, NULL);
        each = full_rank(x, mask, sums);
        reduce(e, R_expsum, 1, x, mask, &each, most);
    }
    if (e->code || !most || !sums) goto done;
    p.n *= p.inner;
    p.from = set_input(e, SLOT_softmax_src, x);
    p.to = set_output(e, SLOT_softmax_dst, out);
    p.most_at = set_input(e, SLOT_softmax_largest, most);
    p.sums_at = set_input(e, SLOT_softmax_total, sums);
    uint32_t step = ((p.inner == 1 ? p.n : p.inner) | p.from | p.to) & 3 ? 1 : 4;
    USE(e, softmax, &p, .threads = REDUCE_THREADS, .mode = SOFTMAX_APPLY, .t = x->dtype, .step = step, .width = 1,
        .hold = 1);
    dispatch_groups(e, ceil_div(x->size / step, REDUCE_THREADS));
done:
    array_release(most);
    array_release(sums);
}

enum { SOFTMAX_LONG = 32768, SOFTMAX_FEW = 64 };

static void softmax_part(struct encoder *e, struct array *const *a, const void *job)
{
    struct array *x = a[0], *rows, packed;
    uint32_t mask = *(const uint32_t *)job, last = 1u << (x->ndim - 1);
    size_t length = (size_t)dim_of(x, -1);
    bool few = length >= SOFTMAX_LONG && x->size / length < SOFTMAX_FEW;
    struct array *room = pack(e, a[1], &packed);
    if (mask != last || few || !fits_binding(e->device, x) || !softmax_rows(e, x, &packed)) {
        rows = rows_of(e, x);
        if (!e->code && (mask != last || few)) softmax_given(e, rows, &packed, mask);
        else if (!e->code) softmax_rows(e, rows, &packed);
        array_release(rows);
    }
    unpack(e, a[1], &packed, room);
}

static void lower_softmax(struct encoder *e, const struct node *n)
{
    donate(e, n->out[0], n->in, 1);
    in_parts(e, (struct array *[]){ n->in[0], n->out[0] }, 2, n->p.reduce.mask, softmax_part, &n->p.reduce.mask);
}

/* The axes of a mask last, the others in order. */
static void axes_last(int ndim, uint32_t mask, int *order)
{
    int n = 0;
    for (uint32_t reduced = 0; reduced < 2; reduced++)
        for (int i = 0; i < ndim; i++) if ((mask >> i & 1) == reduced) order[n++] = i;
}

/* Do the axes follow each other, but for those of length 1? */
static bool axes_adjacent(const struct array *a, uint32_t mask)
{
    int runs = 0;
    bool inside = false;
    for (int i = 0; i < a->ndim; i++) {
        if (a->shape[i] == 1) continue;
        runs += !inside && (mask >> i & 1);
        inside = mask >> i & 1;
    }
    return runs <= 1;
}

static struct array *apply_softmax(struct call *c, struct array *a, uint32_t mask)
{
    struct array *out = output(c, a->ndim, a->shape, a->dtype);
    append(c, OP_SOFTMAX, PARAMS(.reduce = { R_logsumexp, mask, 1 }), ARRAYS(a), ARRAYS(out));
    return out;
}

/* Over the last axis alone integers give float32; over others MLX's composition casts back to the operand's dtype. */
static struct array *do_softmax(struct call *c, struct array *a, uint32_t mask)
{
    struct array *x;
    if (c->code || !a || !a->size) return a;
    mlxvk_dtype dtype = a->ndim && mask == 1u << (a->ndim - 1) ? at_least_float(a->dtype) : a->dtype;
    if (is_complex(dtype) || !mask) {
        struct array *most = mask ? do_reduce(c, R_max, a, mask, true) : a;
        x = do_unary(c, U_exp, do_binary(c, B_subtract, a, most));
        return as_type(c, do_binary(c, B_divide, x, mask ? do_reduce(c, R_sum, x, mask, true) : x), dtype);
    }
    x = as_float(c, a);
    if (!x) return NULL;
    mask &= ~ones_of(a);
    if (axes_adjacent(a, mask)) x = apply_softmax(c, x, mask);
    else {
        int order[MAXD], back[MAXD];
        axes_last(a->ndim, mask, order);
        for (int i = 0; i < a->ndim; i++) back[order[i]] = i;
        mask = (1u << a->ndim) - (1u << reduced_shape(a, mask, false, (int[MAXD]){ 0 }));
        x = do_transpose(c, x, order);
        x = x ? copy_of(c, do_transpose(c, apply_softmax(c, x, mask), back)) : NULL;
    }
    return as_type(c, x, dtype);
}

#define SOFTMAX(all, axes, count) ((void)precise, do_softmax(&c, x, call_axes(&c, x, all, axes, count)))
FUNCTION(mlxvk_softmax, a, SOFTMAX(true, NULL, 0), bool precise, mlxvk_stream s)
FUNCTION(mlxvk_softmax_axis, a, SOFTMAX(false, &axis, 1), int axis, bool precise, mlxvk_stream s)
FUNCTION(mlxvk_softmax_axes, a, SOFTMAX(false, axes, axes_num), const int *axes, size_t axes_num, bool precise,
         mlxvk_stream s)
#undef SOFTMAX

/* ---- scans ---- */

enum { SCAN_ROUND = 16 * REDUCE_THREADS, SCAN_COLUMN = 64, SCAN_COLUMNS = 128 * REDUCE_GROUPS };

/* The total of each part, as (outer, parts, inner). */
static void scan_totals(struct encoder *e, enum reduction op, struct array *from, const struct scan_push *s,
                        uint32_t by, struct array *totals)
{
    struct reduce_job j = { .op = op, .scale = 1, .from = from, .out = totals, .type = from->dtype };
    struct reduce_grid g = { .layout = by ? REDUCE_COLUMNS : REDUCE_FOURS, .piece = s->chunk,
                             .width = by ? REDUCE_THREADS / 16 : REDUCE_THREADS };
    struct array rows = *from, parts = *totals;
    int at = (int)s->ndim;
    if (by == 4 && reduce_kernel(op, from->dtype) == K_reduce) g.layout = REDUCE_FOUR_COLUMNS;
    for (int i = 0; i < at; i++) { rows.shape[i] = (int)s->shape[i]; rows.strides[i] = (int32_t)s->in_stride[i]; }
    rows.shape[at] = (int)s->n;
    rows.strides[at] = (int32_t)s->stride;
    rows.shape[at + 1] = (int)s->inner;
    rows.strides[at + 1] = (int32_t)s->inner_stride;
    parts.ndim = rows.ndim = at + 1 + (s->inner > 1);
    memcpy(parts.shape, rows.shape, sizeof rows.shape);
    parts.shape[at] = (int)s->parts;
    row_strides(parts.ndim, parts.shape, parts.strides);
    reduce_dispatch(e, &j, &rows, &parts, at, g);
}

/* Cuts long rows or columns, where there are too few to fill the device. */
static void scan_cut(struct scan_push *p, uint32_t by)
{
    uint64_t tasks = by ? (uint64_t)p->outer * (p->inner / by) : p->outer, enough = by ? SCAN_COLUMNS : REDUCE_GROUPS;
    uint32_t least = by ? SCAN_COLUMN : SCAN_ROUND, most = p->n / least;
    p->parts = 1;
    p->chunk = p->n;
    if (2 * tasks >= enough || most < 2) return;
    most = (uint32_t)min_size(most, (enough + tasks - 1) / tasks);
    p->chunk = (uint32_t)round_up((p->n + most - 1) / most, least);
    p->parts = ceil_div(p->n, p->chunk);
}

static void scan(struct encoder *e, enum reduction op, struct array *from, struct array *out, struct scan_push p)
{
    bool rows = p.inner == 1 && p.stride == 1;
    uint32_t odd = p.stride | place_of_array(e, from) | place_of_array(e, out), width, hold;
    uint32_t by = rows ? 0 : by_fours(p.inner, p.inner_stride, odd, p.in_stride, p.ndim) ? 4 : 1;
    struct array *totals = NULL, *carry = NULL;          /* of each part, and of all before it */
    scan_cut(&p, by);
    if (p.parts > 1) {
        size_t size = (size_t)p.outer * p.parts * p.inner;
        totals = scratch(e, size, part_type(op, from->dtype));
        carry = scratch(e, size, part_type(op, from->dtype));
        if (e->code) goto done;
        scan_totals(e, op, from, &p, by, totals);
        scan(e, op, totals, carry, (struct scan_push){ .n = p.parts, .outer = p.outer, .inner = p.inner,
            .stride = p.inner, .inner_stride = 1, .flags = p.flags | SCAN_EXCLUSIVE, .ndim = 1, .shape = { p.outer },
            .in_stride = { p.parts * p.inner } });
        p.before = set_input(e, SLOT_scan_carry, carry);
        p.flags |= SCAN_CARRY;
    }
    p.from = set_input(e, SLOT_scan_src, from);
    p.to = set_output(e, SLOT_scan_dst, out);
    hold = rows && p.chunk > 4 * REDUCE_THREADS ? 4 : 1;
    width = rows ? min_u32(pow2_at_least((p.chunk + 6) / 4), REDUCE_THREADS) : 1;
    if (width == 2) width = 4;                           /* the kernel walks by fours */
    USE_AS(e, in_pairs(op, from->dtype) ? K_scan_pair : K_scan, scan, &p, .threads = REDUCE_THREADS, .op = op,
           .from = from->dtype, .to = out->dtype, .columns = by, .width = width, .hold = hold);
    dispatch_groups(e, ceil_div((uint64_t)p.outer * p.parts * (rows ? width : p.inner / by), REDUCE_THREADS));
done:
    array_release(totals);
    array_release(carry);
}

/* The dimensions around an axis; false where there are too many, or wide steps between what a thread group reads. */
static bool scan_dims(const struct array *x, int axis, struct scan_push *p)
{
    struct array around = *x, *list[1] = { &around };
    *p = (struct scan_push){ .n = (uint32_t)x->shape[axis], .outer = 1, .inner = 1,
                             .stride = (uint32_t)x->strides[axis] };
    around.ndim = axis;
    struct dims g = merge_dims(list, 1);
    if (g.ndim > REDUCE_DIMS) return false;
    p->ndim = (uint32_t)g.ndim;
    for (int i = 0; i < g.ndim; i++) {
        p->shape[i] = (uint32_t)g.shape[i];
        p->in_stride[i] = (uint32_t)g.stride[0][i];
        p->outer *= p->shape[i];
    }
    around.ndim = x->ndim - axis - 1;
    for (int i = 0; i < around.ndim; i++) {
        around.shape[i] = x->shape[axis + 1 + i];
        around.strides[i] = x->strides[axis + 1 + i];
    }
    g = merge_dims(list, 1);
    if (g.ndim > 1) return false;
    if (!g.ndim) return p->stride == 1 || p->n == 1;
    p->inner = (uint32_t)g.shape[0];
    p->inner_stride = (uint32_t)g.stride[0][0];
    return llabs(g.stride[0][0]) <= 4;
}

static void scan_part(struct encoder *e, struct array *const *a, const void *job)
{
    const struct scan_params *f = job;
    struct array *x = a[0], *rows = NULL, packed;
    struct scan_push p;
    struct array *room = pack(e, a[1], &packed);
    if (!fits_binding(e->device, x) || !scan_dims(x, f->axis, &p)) {
        x = rows = rows_of(e, x);
        scan_dims(x, f->axis, &p);
    }
    if (p.n == 1) p.stride = 1;
    p.flags = f->flags;
    scan(e, f->op, x, &packed, p);
    array_release(rows);
    unpack(e, a[1], &packed, room);
}

static void lower_scan(struct encoder *e, const struct node *n)
{
    donate(e, n->out[0], n->in, 1);
    in_parts(e, (struct array *[]){ n->in[0], n->out[0] }, 2, 1u << n->p.scan.axis, scan_part, &n->p.scan);
}

static struct array *do_scan(struct call *c, enum reduction op, struct array *a, int axis, bool reverse, bool inclusive)
{
    bool from_bool = a && a->dtype == MLXVK_BOOL;
    axis = normal_axis(c, a, axis);
    if (op == R_logsumexp) a = as_float(c, a);
    if (c->code || !a) return NULL;
    if (op == R_logsumexp && is_complex(a->dtype)) op = R_complex_logsumexp;
    struct array *out = output(c, a->ndim, a->shape, op == R_sum && from_bool ? MLXVK_INT32 : a->dtype);
    if (op == R_prod && from_bool) op = R_min;
    int flags = (reverse ? SCAN_REVERSE : 0) | (inclusive ? 0 : SCAN_EXCLUSIVE);
    append(c, OP_SCAN, PARAMS(.scan = { (uint8_t)op, (uint8_t)axis, (uint8_t)flags }), ARRAYS(a), ARRAYS(out));
    return out;
}

#define X(name, op)                                                                                                   \
    FUNCTION(name, a, do_scan(&c, op, x, axis, reverse, inclusive), int axis, bool reverse, bool inclusive,           \
             mlxvk_stream s)
X(mlxvk_cumsum, R_sum) X(mlxvk_cumprod, R_prod) X(mlxvk_cummax, R_max)
X(mlxvk_cummin, R_min) X(mlxvk_logcumsumexp, R_logsumexp)
#undef X

/* ==== >>norms ===================================================================================================== */

enum { NORM_DIMS = 3, NORM_HELD = 8, NORM_LANES = 256, NORM_MANY = 1024, NORM_LONGEST = LOOP_MOST / 5 * 64,
       NORM_PLACES = 512 };

static uint32_t last_stride(const struct array *a) { return a->ndim ? (uint32_t)a->strides[a->ndim - 1] : 1; }

/* Do all steps of 16 bytes along rows of an array stay aligned? shift: elements from the binding's start. */
static bool aligned_rows(const struct array *a, uint32_t shift, uint32_t unit)
{
    bool aligned = !(shift % unit) && (last_stride(a) == 1 || dim_of(a, -1) == 1);
    for (int i = 0; i + 1 < a->ndim; i++) aligned = aligned && (a->shape[i] == 1 || !(a->strides[i] % unit));
    return aligned;
}

/* What all dimensions but the last make, merged for all operands. */
static struct dims row_dims(struct array *const *a, int count)
{
    struct array part[MAX_OPERANDS], *parts[MAX_OPERANDS];
    for (int k = 0; k < count; k++) {
        part[k] = *a[k];
        part[k].ndim--;
        parts[k] = &part[k];
    }
    return merge_dims(parts, count);
}

/* The workgroup and the threads a row of `steps` steps. */
static uint32_t row_lanes(const struct encoder *e, uint32_t steps, uint32_t *threads)
{
    const struct tuning *t = e->device->tuning;
    uint32_t limit = min_u32(t->row_threads, e->device->caps.max_threads), lanes = pow2_at_least(steps);
    while (lanes > limit) lanes /= 2;
    *threads = lanes < t->row_least ? min_u32(t->row_least, e->device->caps.max_threads) : lanes;
    return lanes;
}

struct norm_job { uint32_t flags; struct array *weight, *bias; float eps; };

/* Normalises the rows of a[1] into a[0]. With a[2] and a[3]: those of the sum of a[1] and a[2], which goes to a[3].
 * weight and bias of the row's length, or NULL. All of one dtype; rows of a[0] and a[3] have no gaps. */
static void norm_rows(struct encoder *e, const struct norm_job *j, struct array **a)
{
    int count = a[2] ? 4 : 2;
    struct dims g = row_dims(a, count);
    struct array *weight = j->weight, *bias = j->bias;
    uint32_t n = (uint32_t)dim_of(a[0], -1), unit = 16 / (uint32_t)item_size(a[0]), lanes, threads, held;
    uint32_t places = min_u32(pow2_at_least(ceil_div(n, 8)), NORM_PLACES);       /* of the tree in shaders/norm.comp */
    struct norm_push p = { .rows = (uint32_t)(a[0]->size / n), .n = n, .ndim = (uint32_t)g.ndim, .eps = j->eps,
                           .x_step = last_stride(a[1]), .residual_step = a[2] ? last_stride(a[2]) : 1 };
    bool eights = n % 8 == 0;
    p.flags = j->flags | (weight ? NORM_WEIGHT : 0) | (bias ? NORM_BIAS : 0) | (a[2] ? NORM_ADD : 0);
    if (g.ndim > NORM_DIMS) {
        encoder_fail(e, MLXVK_ERROR_LIMIT, 0, __LINE__, "norm", "the rows' layout is too complex");
        return;
    }
    for (int i = 0; i < g.ndim; i++) {
        p.shape[i] = (uint32_t)g.shape[i];
        for (int k = 0; k < count; k++) p.stride[k][i] = (uint32_t)g.stride[k][i];
    }
    for (int k = 0; k < count; k++) {
        p.offset[k] = bind_array(e, SLOT_norm_y + (uint32_t)k, a[k], k == 0 || k == 3);
        eights = eights && aligned_rows(a[k], p.offset[k], unit);
    }
    if (weight) {
        p.weight_at = set_input(e, SLOT_norm_weight, weight);
        p.weight_step = last_stride(weight);
        eights = eights && aligned_rows(weight, p.weight_at, unit);
    }
    if (bias) {
        p.bias_at = set_input(e, SLOT_norm_bias, bias);
        p.bias_step = last_stride(bias);
        eights = eights && aligned_rows(bias, p.bias_at, unit);
    }
    lanes = row_lanes(e, places, &threads);
    if (lanes > NORM_LANES && p.rows >= NORM_MANY && ceil_div(n / 8, NORM_LANES) <= NORM_HELD)
        lanes = threads = NORM_LANES;                /* more bytes in flight a thread, fewer threads to wait for */
    held = eights ? (uint32_t)round_up(ceil_div(n / 8, lanes), places / lanes) : 0;
    USE(e, norm, &p, .threads = threads, .lanes = lanes, .held = held > NORM_HELD ? 0 : held, .dtype = a[0]->dtype,
        .kind = p.flags & (NORM_MEAN | NORM_ADD), .slots = places / lanes);
    dispatch_groups(e, ceil_div(p.rows, threads / lanes));
}

/* An operand whose rows the kernel can walk beside those of the others, with a reference for the caller. */
static struct array *walkable(struct encoder *e, struct array *a)
{
    if (!a || (row_dims(&a, 1).ndim <= NORM_DIMS && fits_binding(e->device, a))) {
        if (a) a->refs++;
        return a;
    }
    return rows_of(e, a);
}

static void norm_part(struct encoder *e, struct array *const *given, const void *job)
{
    struct array *a[4] = { given[0], walkable(e, given[1]), walkable(e, given[2]), given[3] };
    if (row_dims(a, a[2] ? 4 : 2).ndim > NORM_DIMS)                  /* walkable one by one, but not together */
        for (int k = 1; k < 3 && a[k]; k++) {
            struct array *one = a[k];
            a[k] = rows_of(e, one);
            array_release(one);
        }
    norm_rows(e, job, a);
    array_release(a[1]);
    array_release(a[2]);
}

/* out: x normalised, or with a residual: sum = x + residual, rounded, and that normalised. weight, bias may be NULL. */
static void norm_dispatch(struct encoder *e, uint32_t flags, struct array *x, struct array *residual, struct array *sum,
                          struct array *weight, struct array *bias, struct array *out, float eps)
{
    in_parts(e, (struct array *[]){ out, x, residual, residual ? sum : NULL }, 4, 1u << (out->ndim - 1), norm_part,
             &(struct norm_job){ flags, weight, bias, eps });
}

static void lower_norm(struct encoder *e, const struct node *n)
{
    const struct norm_params *p = &n->p.norm;
    donate(e, n->out[0], n->in, 1);
    norm_dispatch(e, p->flags, n->in[0], NULL, NULL, n->in[1], n->in[2], n->out[0], p->eps);
}

static bool check_norm(struct call *c, const struct array *x, const struct array *weight, const char *name)
{
    if (weight && (weight->ndim != 1 || weight->shape[0] != dim_of(x, -1)))
        FAIL(c, MLXVK_ERROR_SHAPE, "%s must have one dimension, the size of x's last, but is %s for %s", name,
             TEXT(weight), TEXT(x));
    if (c->device->caps.quirks & QUIRK_SHORT_LOOPS && dim_of(x, -1) > NORM_LONGEST)
        FAIL(c, MLXVK_ERROR_LIMIT, "rows of %s are too long for this driver", TEXT(x));
    return !c->code;
}

/* rms_norm in steps, in float32, with the gate off. */
static struct array *compose_norm(struct call *c, struct array *x, struct array *weight, mlxvk_dtype t, float eps)
{
    const mlxvk_dtype f = MLXVK_FLOAT32;
    struct array *y = as_type(c, x, f), *mean;
    if (!y || !y->size) return as_type(c, x, t);
    mean = do_reduce(c, R_mean, do_unary(c, U_square, y), 1u << (x->ndim - 1), true);
    y = do_binary(c, B_multiply, y, do_unary(c, U_rsqrt, do_binary(c, B_add, mean, scalar(c, eps, f))));
    return as_type(c, weight ? do_binary(c, B_multiply, y, as_type(c, weight, f)) : y, t);
}

static struct array *do_norm(struct call *c, uint8_t flags, struct array *x, struct array *weight, struct array *bias,
                             float eps)
{
    if (c->code || !x) return NULL;
    if (!x->ndim) return FAIL(c, MLXVK_ERROR_SHAPE, "x must have one dimension at least");
    if (!check_norm(c, x, weight, "weight") || !check_norm(c, x, bias, "bias")) return NULL;
    mlxvk_dtype t = weight ? promote(x->dtype, weight->dtype) : x->dtype;
    if (weight && bias) t = promote(t, bias->dtype);
    if (!is_float(t)) return FAIL(c, MLXVK_ERROR_DTYPE, "%s is not taken", TEXT(x));
    if (!flags && !c->device->gate[GATE_RMSNORM]) return compose_norm(c, x, weight, t, eps);
    x = as_type(c, x, t);
    struct array *out = output(c, x ? x->ndim : 0, x ? x->shape : NULL, t);
    append(c, OP_NORM, PARAMS(.norm = { flags, eps }), ARRAYS(x, as_type(c, weight, t), as_type(c, bias, t)),
           ARRAYS(out));
    return out;
}

int mlxvk_fast_rms_norm(mlxvk_array *res, mlxvk_array x, mlxvk_array weight, float eps, mlxvk_stream s)
{
    struct call c = begin("fast_rms_norm", s);
    struct array *a = input(&c, "x", x), *w = optional_input(&c, "weight", weight);
    return finish(&c, do_norm(&c, 0, a, w, NULL, eps), res);
}

int mlxvk_fast_layer_norm(mlxvk_array *res, mlxvk_array x, mlxvk_array weight, mlxvk_array bias, float eps,
                          mlxvk_stream s)
{
    struct call c = begin("fast_layer_norm", s);
    struct array *a = input(&c, "x", x), *w = optional_input(&c, "weight", weight);
    return finish(&c, do_norm(&c, NORM_MEAN, a, w, optional_input(&c, "bias", bias), eps), res);
}

/* ---- gradients ---- */

enum { NORM_VJP_HELD = 16 };

/* How many rows a workgroup adds up before a reduction over workgroups. */
static uint32_t norm_vjp_rows(const struct call *c, size_t rows, size_t n)
{
    size_t most = c->device->tuning->vjp_rows;
    most = max_size(min_size(most, ((size_t)1 << 24) / n), 1);
    if (c->device->caps.quirks & QUIRK_SHORT_LOOPS) most = max_size(most, rows / (LOOP_MOST / 32));
    return ceil_div(rows, min_size(rows, most));
}

/* Rows of x and of the gradient of y, with those rows of the sums that they make. */
static void norm_vjp_part(struct encoder *e, const struct node *n, struct array *x, struct array *g,
                          struct array *out[3])
{
    struct array *weight = n->in[2];
    uint32_t length = (uint32_t)x->shape[1], threads, held;
    struct norm_vjp_push push = { .rows = (uint32_t)x->shape[0], .n = length, .each = n->p.norm_vjp.each,
                                  .eps = n->p.norm_vjp.eps };
    row_lanes(e, length, &threads);
    held = ceil_div(length, threads);
    push.dx_at = set_output(e, SLOT_norm_vjp_dx, out[0]);
    push.x_at = set_input(e, SLOT_norm_vjp_x, x);
    push.g_at = set_input(e, SLOT_norm_vjp_g, g);
    if (weight) push.weight_at = set_input(e, SLOT_norm_vjp_weight, weight);
    if (weight) push.dweight_at = set_output(e, SLOT_norm_vjp_dweight, out[1]);
    if (out[2]) push.dbias_at = set_output(e, SLOT_norm_vjp_dbias, out[2]);
    USE(e, norm_vjp, &push, .threads = threads, .lanes = threads, .held = held > NORM_VJP_HELD ? 0 : held,
        .dtype = x->dtype, .flags = n->p.norm_vjp.flags | (weight ? NORM_WEIGHT : 0));
    dispatch_groups(e, ceil_div(push.rows, push.each));
}

static void lower_norm_vjp(struct encoder *e, const struct node *n)
{
    struct array x = matrix_of(e, n->in[0]), g = matrix_of(e, n->in[1]), dx = matrix_of(e, n->out[0]), part[5];
    struct array *out[3] = { &part[2] };
    int64_t each = n->p.norm_vjp.each, rows = x.shape[0], step = rows;
    while (step > each) {                            /* as many workgroups' rows as can be bound */
        part[0] = part_of(&x, 0, 0, step);
        if (n->out[1] && each < 4) part[0].dtype = MLXVK_FLOAT32;    /* the sums of few rows may be larger than these */
        if (fits_binding(e->device, &part[0])) break;
        step = (step / 2 + each - 1) / each * each;
    }
    for (int64_t first = 0; first < rows && !e->code; first += step) {
        int64_t count = step < rows - first ? step : rows - first;
        part[0] = part_of(&x, 0, first, count);
        part[1] = part_of(&g, 0, first, count);
        part[2] = part_of(&dx, 0, first, count);
        for (int k = 1; k < 3; k++) {
            out[k] = n->out[k] ? &part[2 + k] : NULL;
            if (out[k]) part[2 + k] = part_of(n->out[k], 0, first / each, (count + each - 1) / each);
        }
        norm_vjp_part(e, n, &part[0], &part[1], out);
    }
}

/* out: gradients of x, weight and bias, those that there are. */
static size_t do_norm_vjp(struct call *c, uint8_t flags, struct array *x, struct array *weight, struct array *bias,
                          struct array *cotangent, float eps, struct array *out[3])
{
    uint32_t each = 1;
    struct array *sums[2] = { NULL, NULL }, *whole;
    int shape[2];
    if (c->code || !x || !cotangent) return 0;
    if (!x->ndim || !same_shape(x, cotangent))
        return FAIL(c, MLXVK_ERROR_SHAPE, "cotangent %s for x %s", TEXT(cotangent), TEXT(x)), 0;
    if (!check_norm(c, x, weight, "weight") || !check_norm(c, x, bias, "bias")) return 0;
    mlxvk_dtype t = promote(x->dtype, cotangent->dtype);
    if (weight) t = promote(t, weight->dtype);
    if (!is_float(t)) return FAIL(c, MLXVK_ERROR_DTYPE, "%s is not taken", TEXT(x)), 0;
    int n = dim_of(x, -1);
    if (x->size && weight) each = norm_vjp_rows(c, x->size / (size_t)n, (size_t)n);
    shape[0] = x->size ? (int)ceil_div(x->size / (size_t)n, each) : 0;
    shape[1] = n;
    if (weight) sums[0] = output(c, 2, shape, MLXVK_FLOAT32);
    if (weight && flags & NORM_MEAN) sums[1] = output(c, 2, shape, MLXVK_FLOAT32);
    whole = output(c, x->ndim, x->shape, t);
    append(c, OP_NORM_VJP, PARAMS(.norm_vjp = { flags, each, eps }),
           ARRAYS(contiguous(c, as_type(c, x, t)), contiguous(c, as_type(c, cotangent, t)),
                  contiguous(c, as_type(c, weight, t))), ARRAYS(whole, sums[0], sums[1]));
    out[0] = as_type(c, whole, x->dtype);
    if (weight) out[1] = as_type(c, do_reduce(c, R_sum, sums[0], 1, false), weight->dtype);
    if (weight && bias) out[2] = as_type(c, do_reduce(c, R_sum, sums[1], 1, false), bias->dtype);
    return weight ? bias ? 3 : 2 : 1;
}

int mlxvk_fast_rms_norm_vjp(mlxvk_vector_array *res, mlxvk_array x, mlxvk_array weight, mlxvk_array cotangent,
                            float eps, mlxvk_stream s)
{
    struct call c = begin("fast_rms_norm_vjp", s);
    struct array *a = input(&c, "x", x), *w = optional_input(&c, "weight", weight), *out[3];
    return finish_vector(&c, out, do_norm_vjp(&c, 0, a, w, NULL, input(&c, "cotangent", cotangent), eps, out), res);
}

int mlxvk_fast_layer_norm_vjp(mlxvk_vector_array *res, mlxvk_array x, mlxvk_array weight, mlxvk_array bias,
                              mlxvk_array cotangent, float eps, mlxvk_stream s)
{
    struct call c = begin("fast_layer_norm_vjp", s);
    struct array *a = input(&c, "x", x), *w = optional_input(&c, "weight", weight);
    struct array *b = optional_input(&c, "bias", bias), *g = input(&c, "cotangent", cotangent), *out[3];
    return finish_vector(&c, out, do_norm_vjp(&c, NORM_MEAN, a, w, b, g, eps, out), res);
}

/* ==== >>rope ====================================================================================================== */

/* (batch, heads, tokens, width) of an array whose middle dimensions merge; false where they do not. */
static bool rope_strides(const struct array *a, uint32_t shape[4], uint32_t stride[4])
{
    struct array middle = *a;
    const int last = a->ndim - 1;
    middle.ndim -= 3;
    memmove(middle.shape, a->shape + 1, (size_t)middle.ndim * sizeof *a->shape);
    memmove(middle.strides, a->strides + 1, (size_t)middle.ndim * sizeof *a->strides);
    struct dims g = merge_dims((struct array *[]){ &middle }, 1);
    if (g.ndim > 1) return false;
    for (int i = 0; i < 4; i++) {
        int from = i ? last - 3 + i : 0;
        shape[i] = (uint32_t)a->shape[from];
        stride[i] = (uint32_t)a->strides[from];
    }
    shape[1] = g.ndim ? (uint32_t)g.shape[0] : 1;
    stride[1] = g.ndim ? (uint32_t)g.stride[0][0] : 0;
    return true;
}

/* Can rope_dispatch normalise the rows of x into out on the way? */
static bool rope_norm_fits(const struct rope_params *r, const struct array *x, const struct array *out,
                           const struct array *weight)
{
    uint32_t shape[4], stride[4], size = (uint32_t)item_size(x);
    return r->dims % 8 == 0 && r->dims <= 8 * 128 && x->shape[x->ndim - 1] == r->dims &&
           rope_strides(x, shape, stride) && x->offset % (4 * size) == 0 && out->offset % (4 * size) == 0 &&
           aligned_rows(x, 0, 4) && aligned_rows(out, 0, 4) &&
           (!weight || (weight->row && weight->offset % (4 * size) == 0));
}

/* Shapes and strides, of a copy of x where it has too many. Returns the array to read, with a reference. */
static struct array *rope_layout(struct encoder *e, const struct rope_params *r, struct array *x, struct array *out,
                                 struct rope_push *p)
{
    uint32_t shape[4];
    bool gate = e->device->gate[GATE_ROPE_HS], copy = !rope_strides(x, shape, p->x_stride) || !(x->row || gate);
    if (copy) NOTE(e->device, NOTE_ROPE, "without a copy", gate ? "the layout is too complex" : "a gate", "%d of %s",
                   r->dims, LAYOUT(x));
    if (copy) x = rows_of(e, x);
    else x->refs++;
    rope_strides(x, shape, p->x_stride);
    if (!rope_strides(out, shape, p->y_stride))
        encoder_fail(e, MLXVK_ERROR_LIMIT, 0, __LINE__, "rope", "the result's layout is too complex");
    p->batches = shape[0];
    p->heads = shape[1];
    p->tokens = shape[2];
    p->width = shape[3];
    return x;
}

static void rope_whole(struct encoder *e, const struct rope_params *r, struct array *x, struct array *out,
                       struct array *offsets, struct array *freqs, bool norm, struct array *weight, float eps)
{
    double high = (double)(float)(floor(r->rate * 1024) / 1024);     /* few bits: exact when multiplied by an index */
    struct rope_push p = { .eps = eps, .dims = r->dims, .offset = r->offset, .scale = r->scale, .heads_each = 1,
                           .base_high = (float)high, .base_low = (float)(r->rate - high) };
    uint32_t threads, most = e->device->tuning->rope_items;
    bool fours = r->dims % 8 == 0;
    if (norm && !rope_norm_fits(r, x, out, weight))
        encoder_fail(e, MLXVK_ERROR_LIMIT, 0, __LINE__, "rope", "no norm of these rows");
    x = rope_layout(e, r, x, out, &p);
    p.flags = (r->traditional ? ROPE_TRADITIONAL : 0) | (freqs ? ROPE_FREQS : 0) | (offsets ? ROPE_OFFSETS : 0);
    p.y_at = set_output(e, SLOT_rope_y, out);
    p.x_at = set_input(e, SLOT_rope_x, x);
    if (offsets) p.offsets_at = set_input(e, SLOT_rope_offsets, offsets);
    if (offsets && offsets->size > 1) p.offsets_step = last_stride(offsets);
    if (freqs) p.freqs_at = set_input(e, SLOT_rope_freqs, freqs);
    if (freqs) p.freqs_step = last_stride(freqs);
    if (weight) p.weight_at = set_input(e, SLOT_rope_weight, weight);
    fours = fours && aligned_rows(x, p.x_at, 4) && aligned_rows(out, p.y_at, 4);
    NOTE(e->device, NOTE_ROPE, "by four pairs",
         fours ? NULL : r->dims % 8 ? "dims is no multiple of 8" : "rows are not aligned", "%d of %s", r->dims,
         LAYOUT(x));
    uint32_t lanes = row_lanes(e, fours ? r->dims / 8u : r->dims / 2u, &threads);
    uint32_t items = p.batches * p.tokens * p.heads;          /* more heads a thread once there are threads enough */
    while (p.heads_each < p.heads && p.heads_each < 8 && items / p.heads_each > most) p.heads_each *= 2;
    USE(e, rope, &p, .threads = threads, .lanes = lanes, .by_four = fours, .dtype = x->dtype,
        .norm = norm ? weight ? 2 : 1 : 0);
    set_late(e, offsetof(struct rope_push, offset));
    dispatch_groups(e, ceil_div((uint64_t)p.batches * p.tokens * ceil_div(p.heads, p.heads_each), threads / lanes));
    array_release(x);
}

/* out = rope(x), out with any strides (a slice of a cache). offsets (int32: one, one a batch), freqs (float32) or NULL.
 * norm, where rope_norm_fits: rope(rms_norm(x, weight or NULL, eps)). Later tokens are those of a larger offset. */
static void rope_dispatch(struct encoder *e, const struct rope_params *r, struct array *x, struct array *out,
                          struct array *offsets, struct array *freqs, bool norm, struct array *weight, float eps)
{
    int tokens = x->ndim - 2, axis = axis_to_split(e, (struct array *[]){ out, x }, 2, 2u << tokens);
    if (axis < 0) { rope_whole(e, r, x, out, offsets, freqs, norm, weight, eps); return; }
    for (int half = 0; half < 2 && !e->code; half++) {
        struct array from = half_of(x, axis, half), to = half_of(out, axis, half), at;
        struct rope_params later = *r;
        if (axis == tokens && half) later.offset = (int32_t)((uint32_t)r->offset + (uint32_t)(x->shape[axis] / 2));
        if (offsets) at = axis == 0 && offsets->size > 1 ? half_of(offsets, 0, half) : *offsets;
        rope_dispatch(e, &later, &from, &to, offsets ? &at : NULL, freqs, norm, weight, eps);
    }
}

static void lower_rope(struct encoder *e, const struct node *n)
{
    donate(e, n->out[0], n->in, 1);
    rope_dispatch(e, &n->p.rope, n->in[0], n->out[0], n->in[1], n->in[2], false, NULL, 0);
}

/* Features first, first + step, ... of x, `count` of them. */
static struct array *features(struct call *c, struct array *x, int first, int count, int step)
{
    if (c->code || !x) return NULL;
    struct array part = part_of(x, x->ndim - 1, first, count);
    part.strides[x->ndim - 1] *= step;
    return seen_as(c, x, &part);
}

/* The angles of all tokens, (B or nothing, 1 ..., T, dims / 2). */
static struct array *rope_angles(struct call *c, const struct rope_params *r, const struct array *x,
                                 struct array *offsets, struct array *freqs)
{
    const mlxvk_dtype f = MLXVK_FLOAT32;
    int shape[MAXD] = { 0 };
    struct array *at = scalar(c, r->offset, f), *steps;
    for (int i = 0; i < x->ndim - 1; i++) shape[i] = i || !offsets ? 1 : (int)offsets->size;
    if (offsets) at = do_reshape(c, as_type(c, offsets, f), x->ndim - 1, shape);
    at = do_binary(c, B_add, do_arange(c, 0, dim_of(x, -2), 1, f), at);
    at = do_binary(c, B_multiply, at, scalar(c, r->scale, f));
    if (freqs) steps = do_unary(c, U_reciprocal, as_type(c, freqs, f));
    else steps = do_unary(c, U_exp, do_binary(c, B_multiply, do_arange(c, 0, r->dims / 2, 1, f),
                                              scalar(c, r->rate * 0.69314718055994531, f)));
    return at ? do_binary(c, B_multiply, do_expand(c, at, (int[]){ at->ndim }, 1), steps) : NULL;
}

/* rope in steps, in float32, with the gate off. */
static struct array *compose_rope(struct call *c, const struct rope_params *r, struct array *x, struct array *offsets,
                                  struct array *freqs)
{
    int half = r->dims / 2, step = r->traditional ? 2 : 1, second = r->traditional ? 1 : half;
    int rest = dim_of(x, -1) - r->dims;
    struct array *angles = rope_angles(c, r, x, offsets, freqs), *k = do_unary(c, U_cos, angles);
    struct array *s = do_unary(c, U_sin, angles), *y = as_type(c, x, MLXVK_FLOAT32);
    struct array *a = features(c, y, 0, half, step), *b = features(c, y, second, half, step);
    struct array *out = output(c, x->ndim, x->shape, x->dtype);
    append_copy(c, features(c, out, 0, half, step),
                do_binary(c, B_subtract, do_binary(c, B_multiply, a, k), do_binary(c, B_multiply, b, s)));
    append_copy(c, features(c, out, second, half, step),
                do_binary(c, B_add, do_binary(c, B_multiply, a, s), do_binary(c, B_multiply, b, k)));
    if (rest > 0) append_copy(c, features(c, out, r->dims, rest, 1), features(c, x, r->dims, rest, 1));
    return out;
}

static bool check_rope(struct call *c, const struct array *x, int dims, bool base, const struct array *offsets,
                       const struct array *freqs)
{
    if (c->code || !x) return false;
    if (x->ndim < 3) FAIL(c, MLXVK_ERROR_SHAPE, "x must have three dimensions at least, but is %s", TEXT(x));
    else if (!is_float(x->dtype)) FAIL(c, MLXVK_ERROR_DTYPE, "x must be floating, but is %s", TEXT(x));
    else if (dims <= 0 || dims % 2 || dims > dim_of(x, -1) || dims > UINT16_MAX)
        FAIL(c, MLXVK_ERROR_ARGUMENT, "dims must be even, positive and at most x's last dimension; %d for %s", dims,
             TEXT(x));
    else if (base == (freqs != NULL)) FAIL(c, MLXVK_ERROR_ARGUMENT, "exactly one of base and freqs must be given");
    else if (freqs && (freqs->ndim != 1 || freqs->shape[0] != dims / 2))
        FAIL(c, MLXVK_ERROR_SHAPE, "freqs must have one dimension of %d, but is %s", dims / 2, TEXT(freqs));
    else if (offsets && (offsets->ndim > 1 || (offsets->size != 1 && offsets->shape[0] != x->shape[0])))
        FAIL(c, MLXVK_ERROR_SHAPE, "offset must be one number or one for each of %d, but is %s", x->shape[0],
             TEXT(offsets));
    else if (offsets && !is_integer(offsets->dtype))
        FAIL(c, MLXVK_ERROR_DTYPE, "offset must be an integer, but is %s", TEXT(offsets));
    return !c->code;
}

static struct array *do_rope(struct call *c, struct array *x, int dims, bool traditional, mlxvk_optional_float base,
                             float scale, int offset, struct array *offsets, struct array *freqs)
{
    struct rope_params r = { .dims = (uint16_t)dims, .traditional = traditional, .offset = offset, .scale = scale };
    if (!check_rope(c, x, dims, base.has_value, offsets, freqs)) return NULL;
    if (base.has_value) r.rate = -log2((double)base.value) / (dims / 2);
    if (!c->device->gate[GATE_ROPE]) {
        NOTE(c->device, NOTE_ROPE, "in one kernel", "a gate", "%d of %s", dims, LAYOUT(x));
        return compose_rope(c, &r, x, offsets, freqs);
    }
    struct array *out = output(c, x->ndim, x->shape, x->dtype);
    append(c, OP_ROPE, PARAMS(.rope = r),
           ARRAYS(x, as_type(c, offsets, MLXVK_INT32), as_type(c, freqs, MLXVK_FLOAT32)), ARRAYS(out));
    return out;
}

int mlxvk_fast_rope(mlxvk_array *res, mlxvk_array x, int dims, bool traditional, mlxvk_optional_float base, float scale,
                    int offset, mlxvk_array freqs, mlxvk_stream s)
{
    struct call c = begin("fast_rope", s);
    struct array *a = input(&c, "x", x), *f = optional_input(&c, "freqs", freqs);
    return finish(&c, do_rope(&c, a, dims, traditional, base, scale, offset, NULL, f), res);
}

int mlxvk_fast_rope_dynamic(mlxvk_array *res, mlxvk_array x, int dims, bool traditional, mlxvk_optional_float base,
                            float scale, mlxvk_array offset, mlxvk_array freqs, mlxvk_stream s)
{
    struct call c = begin("fast_rope_dynamic", s);
    struct array *a = input(&c, "x", x), *at = input(&c, "offset", offset), *f = optional_input(&c, "freqs", freqs);
    return finish(&c, do_rope(&c, a, dims, traditional, base, scale, 0, at, f), res);
}

/* ==== >>matrix ==================================================================================================== */

/* One product as kernels see it: out = alpha * a @ b + beta * c for each matrix of a batch. Strides in elements. */
enum { MAT_A, MAT_B, MAT_C, MAT_OUT, MATRICES, BATCH_DIMS = 3 };
enum { AXIS_NONE = -4, AXIS_M, AXIS_N, AXIS_K };     /* of a product; from 0: of its batch */

/* Which matrix of a meets which matrix of b (x and weights): `entries` products of the same shape. Entry i takes
 * matrix lhs[i] of a, or i / every where that is not 0, and matrix rhs[i] of b. `first`: the entry to begin with. Where
 * b is cut, `part` of its `weights` are bound, from number `from` on. */
struct gather { struct array *lhs, *rhs; uint32_t every, entries, first, matrices, weights, from, part; };

struct product {
    struct array *array[MATRICES];                   /* c may be NULL */
    int64_t m, n, k;
    int64_t a_row, a_k, b_k, b_col, c_row, c_col, out_row, out_col;
    int ndim;                                        /* of the batch, outermost first */
    int64_t shape[MAXD], stride[MATRICES][MAXD], offset[MATRICES];
    float alpha, beta;
    const struct gather *gather;          /* then the batch is entries: one dimension, with the matrices' strides */
    uint32_t low[2], count[2];                       /* of a's and b's matrices that are bound; other entries wait */
    struct array *segments;                          /* ranges of K, one for each of a batch of one dimension */
    int64_t first, k_first;                          /* entry, and element of K, from which on this is */
};

/* Joins a batch dimension to the one outside it where every operand allows it. */
static void merge_batch(struct product *p)
{
    int kept = 0;
    for (int i = 0; i < p->ndim; i++) {
        bool joins = kept > 0;
        if (p->shape[i] == 1) continue;
        for (int k = 0; k < MATRICES && joins; k++) joins = p->stride[k][kept - 1] == p->stride[k][i] * p->shape[i];
        if (joins) p->shape[kept - 1] *= p->shape[i];
        else p->shape[kept++] = p->shape[i];
        for (int k = 0; k < MATRICES; k++) p->stride[k][kept - 1] = p->stride[k][i];
    }
    p->ndim = kept;
}

/* One larger product instead of several with the same b, where the rows of a, c and the result go on evenly. */
static void merge_rows(struct product *p)
{
    while (p->ndim) {
        int i = p->ndim - 1;
        int64_t *a = p->stride[MAT_A], *b = p->stride[MAT_B], *c = p->stride[MAT_C], *out = p->stride[MAT_OUT];
        if (b[i]) return;
        if (p->m > 1 && (a[i] != p->m * p->a_row || c[i] != p->m * p->c_row || out[i] != p->m * p->out_row)) return;
        if (p->m == 1) { p->a_row = a[i]; p->c_row = c[i]; p->out_row = out[i]; }
        p->m *= p->shape[i];
        p->ndim--;
    }
}

/* Strides that do not count become what suits kernels. */
static void suit_strides(struct product *p)
{
    if (p->m == 1) { p->a_row = p->a_k != 1; p->out_row = p->c_row = 0; }
    if (p->n == 1) { p->b_col = p->b_k != 1; p->out_col = 1; p->c_col = 0; }
    if (p->k == 1) { p->a_k = p->a_row != 1; p->b_k = p->b_col != 1; }
}

static struct product product_as_is(struct array *a, struct array *b, struct array *c, struct array *out, float alpha,
                                    float beta)
{
    int i = out->ndim - 1;
    struct product p = { .array = { a, b, c, out }, .m = out->shape[i - 1], .n = out->shape[i], .k = a->shape[i],
        .a_row = a->strides[i - 1], .a_k = a->strides[i], .b_k = b->strides[i - 1], .b_col = b->strides[i],
        .out_row = out->strides[i - 1], .out_col = out->strides[i], .ndim = i - 1, .alpha = alpha, .beta = beta };
    if (c) { p.c_row = c->strides[i - 1]; p.c_col = c->strides[i]; }
    for (i = 0; i < p.ndim; i++) p.shape[i] = out->shape[i];
    for (int k = 0; k < MATRICES; k++)
        for (i = 0; i < p.ndim && p.array[k]; i++) p.stride[k][i] = p.array[k]->strides[i];
    return p;
}

static struct product product_of(struct array *a, struct array *b, struct array *c, struct array *out, float alpha,
                                 float beta)
{
    struct product p = product_as_is(a, b, c, out, alpha, beta);
    merge_batch(&p);
    merge_rows(&p);
    suit_strides(&p);
    return p;
}

static int64_t product_batches(const struct product *p)
{
    int64_t count = 1;
    for (int i = 0; i < p->ndim; i++) count *= p->shape[i];
    return count;
}

static void put_batch(const struct product *p, int operand, uint32_t to[BATCH_DIMS])
{
    for (int i = 0; i < p->ndim && i < BATCH_DIMS; i++) to[i] = (uint32_t)p->stride[operand][p->ndim - 1 - i];
}

static uint32_t inner_size(const struct product *p) { return p->ndim > 0 ? (uint32_t)p->shape[p->ndim - 1] : 1; }
static uint32_t middle_size(const struct product *p) { return p->ndim > 1 ? (uint32_t)p->shape[p->ndim - 2] : 1; }

static int64_t axis_length(const struct product *p, int axis)
{
    return axis == AXIS_M ? p->m : axis == AXIS_N ? p->n : axis == AXIS_K ? p->k : p->shape[axis];
}

static int64_t axis_step(const struct product *p, int operand, int axis)
{
    const int64_t steps[MATRICES][3] = { { p->a_row, 0, p->a_k }, { 0, p->b_col, p->b_k }, { p->c_row, p->c_col, 0 },
                                         { p->out_row, p->out_col, 0 } };
    return axis < 0 ? steps[operand][axis - AXIS_M] : p->stride[operand][axis];
}

/* Do index arrays say which of the operand's matrices an entry takes? */
static bool is_chosen(const struct product *p, int operand) { return p->gather && operand <= MAT_B; }

static int64_t operand_length(const struct product *p, int operand, int axis)
{
    return axis >= 0 && is_chosen(p, operand) ? p->count[operand] : axis_length(p, axis);
}

/* What a product reads or writes of an operand: its batch, rows and columns. */
static struct array operand_view(const struct product *p, int operand)
{
    static const int8_t matrix[MATRICES][2] = { { AXIS_M, AXIS_K }, { AXIS_K, AXIS_N }, { AXIS_M, AXIS_N },
                                                { AXIS_M, AXIS_N } };
    struct array v = *p->array[operand];
    v.refs = 1;
    v.ndim = p->ndim + 2;
    v.offset += p->offset[operand] * (int64_t)item_size(&v);
    v.size = 1;
    for (int i = 0; i < v.ndim; i++) {
        int axis = i < p->ndim ? i : matrix[operand][i - p->ndim];
        v.shape[i] = (int)operand_length(p, operand, axis);
        v.strides[i] = axis_step(p, operand, axis);
        v.size *= (size_t)v.shape[i];
    }
    v.row = row_contiguous(&v);
    return v;
}

/* One dispatch to come: K may be cut into parts whose float32 results go to a temporary. */
struct launch {
    struct product p;
    struct array view[MATRICES + 2];                 /* operands and index arrays as they are bound */
    uint32_t at[MATRICES];                           /* where operands begin */
    uint32_t parts, part, batches, epilogue;
    bool split;
    union { struct matmul_push strided; struct matmul_gather_push gather; } push;
};

static void bind_operands(struct encoder *e, struct launch *l)
{
    static const uint32_t slot[MATRICES] = { SLOT_matmul_a, SLOT_matmul_b, SLOT_matmul_c, SLOT_matmul_d };
    for (int k = 0; k < MATRICES; k++) {
        if (!l->p.array[k]) continue;
        l->view[k] = k == MAT_OUT && l->split ? *l->p.array[k] : operand_view(&l->p, k);
        l->at[k] = bind_array(e, slot[k], &l->view[k], k == MAT_OUT);
    }
}

/* Members that push constants of all products have; those for c. */
#define PUSHED(p, at) \
    .M = (uint32_t)(p)->m, .N = (uint32_t)(p)->n, .K = (uint32_t)(p)->k, .offset_a = (at)[MAT_A], \
    .offset_b = (at)[MAT_B], .offset_out = (at)[MAT_OUT], .a_row = (uint32_t)(p)->a_row, .a_k = (uint32_t)(p)->a_k, \
    .b_k = (uint32_t)(p)->b_k, .b_col = (uint32_t)(p)->b_col, .out_row = (uint32_t)(p)->out_row, \
    .out_col = (uint32_t)(p)->out_col
#define PUSHED_C(p, at) .offset_c = (at)[MAT_C], .c_row = (uint32_t)(p)->c_row, .c_col = (uint32_t)(p)->c_col

static struct matmul_push strided_push(const struct launch *l)
{
    const struct product *p = &l->p;
    struct matmul_push q = { PUSHED(p, l->at), PUSHED_C(p, l->at), .inner = inner_size(p), .middle = middle_size(p),
                             .alpha = p->alpha, .beta = p->beta, .part = l->part };
    put_batch(p, MAT_A, q.batch_a);
    put_batch(p, MAT_B, q.batch_b);
    put_batch(p, MAT_C, q.batch_c);
    put_batch(p, MAT_OUT, q.batch_out);
    return q;
}

/* Binds `each` numbers an entry of a row-major array. */
static uint32_t bind_entries(struct encoder *e, struct launch *l, int view, uint32_t slot, const struct array *of,
                             int each)
{
    struct array *v = &l->view[MATRICES + view];
    *v = *of;
    v->ndim = 1;
    v->shape[0] = each * (int)l->p.shape[0];
    v->strides[0] = 1;
    v->size = (size_t)v->shape[0];
    v->offset += 4 * each * l->p.first;
    return set_input(e, slot, v);
}

static struct matmul_gather_push gather_push(struct encoder *e, struct launch *l)
{
    const struct product *p = &l->p;
    const struct gather *g = p->gather;
    struct matmul_gather_push q = { PUSHED(p, l->at), PUSHED_C(p, l->at), .c_matrix = (uint32_t)p->stride[MAT_C][0],
        .out_matrix = (uint32_t)p->stride[MAT_OUT][0], .a_count = 1, .b_count = 1, .part = l->part };
    if (p->segments) {
        q.ranges = 1;
        q.ranges_at = bind_entries(e, l, 0, SLOT_matmul_gather_ranges, p->segments, 2);
        q.k_first = (uint32_t)p->k_first;
    }
    if (!g) return q;
    q.a_matrix = (uint32_t)p->stride[MAT_A][0];
    q.b_matrix = (uint32_t)p->stride[MAT_B][0];
    q.every = g->every;
    if (!g->every) q.lhs_at = bind_entries(e, l, 0, SLOT_matmul_gather_lhs, g->lhs, 1);
    q.rhs_at = bind_entries(e, l, 1, SLOT_matmul_gather_rhs, g->rhs, 1);
    q.lhs_last = (g->every ? p->count[MAT_A] : g->matrices) - 1;
    q.rhs_last = g->weights - 1;
    q.a_first = p->low[MAT_A];
    q.a_count = p->count[MAT_A];
    q.b_first = p->low[MAT_B];
    q.b_count = p->count[MAT_B];
    return q;
}

enum { FEW_ROWS = 8, SMALL_PRODUCT = 1 << 15 };

/* b^T @ a^T: the same product with rows and columns exchanged. */
static struct product transposed(const struct product *p)
{
    struct product t = *p;
    t.array[MAT_A] = p->array[MAT_B];
    t.array[MAT_B] = p->array[MAT_A];
    memcpy(t.stride[MAT_A], p->stride[MAT_B], sizeof *t.stride);
    memcpy(t.stride[MAT_B], p->stride[MAT_A], sizeof *t.stride);
    t.offset[MAT_A] = p->offset[MAT_B];
    t.offset[MAT_B] = p->offset[MAT_A];
    t.m = p->n;          t.n = p->m;
    t.a_row = p->b_col;  t.a_k = p->b_k;
    t.b_k = p->a_k;      t.b_col = p->a_row;
    t.c_row = p->c_col;  t.c_col = p->c_row;
    t.out_row = p->out_col;
    t.out_col = p->out_row;
    return t;
}

/* Can a bound operand be accessed `count` elements at a time, along a dimension of stride 1, the other's being lead? */
static bool evenly(const struct launch *l, int operand, int64_t unit, int64_t lead, uint32_t count)
{
    const struct product *p = &l->p;
    int64_t odd = l->at[operand] | lead;
    for (int i = 0; i < p->ndim; i++) odd |= p->stride[operand][i];
    if (p->segments && ((operand == MAT_A && p->a_k == 1) || (operand == MAT_B && p->b_k == 1))) return false;
    return p->array[operand] && unit == 1 && !(odd & (count - 1));       /* but segments begin anywhere */
}

static struct array *parts_array(struct encoder *e, const struct product *p, uint32_t parts)
{
    int size = (int)(p->m * p->n * product_batches(p) * parts);
    struct storage *st = storage_create(e->device, (size_t)size * 4);
    struct array *a = st ? array_create(st, MLXVK_FLOAT32, 1, &size, NULL, 0) : NULL;
    if (a) return a;
    if (st) { st->refs = 1; storage_release(st); }
    encoder_fail(e, MLXVK_ERROR_HOST_MEMORY, 0, __LINE__, "matmul", "out of host memory");
    return NULL;
}

/* How long K of one dispatch may be: kernels take at least 16 of it an iteration; their other loops are short. */
static int64_t longest_k(const struct device *d)
{
    return d->caps.quirks & QUIRK_SHORT_LOOPS ? LOOP_MOST / 2 * 16 : INT64_MAX;
}

static bool has_epilogue(const struct product *p) { return p->array[MAT_C] || p->alpha != 1; }

/* Binds a product's operands, K cut into so many parts of a multiple of `step`; 0: one, alpha and c added behind it. */
static void prepare(struct encoder *e, struct launch *l, const struct product *p, uint32_t parts, uint32_t step)
{
    *l = (struct launch){ .p = *p, .parts = 1, .batches = (uint32_t)product_batches(p), .split = parts != 1,
                          .epilogue = has_epilogue(p) ? EPILOGUE_SCALE : EPILOGUE_NONE };
    if (l->split) {
        parts = parts ? parts : 1;
        l->p.array[MAT_OUT] = parts_array(e, p, parts);
        l->p.array[MAT_C] = NULL;
        l->p.out_row = p->n;
        l->p.out_col = 1;
        memset(l->p.stride[MAT_OUT], 0, sizeof *l->p.stride);
        l->epilogue = EPILOGUE_PART;
        l->part = ceil_div(ceil_div((uint64_t)p->k, parts), step) * step;
        l->parts = ceil_div((uint64_t)p->k, l->part);
    }
    bind_operands(e, l);
    if (p->gather || p->segments) l->push.gather = gather_push(e, l);
    else l->push.strided = strided_push(l);
}

/* The kernel of a product, of its two variants; both have the same constants. */
#define USE_PRODUCT(e, l, strided, gathered, kernel, ...) \
    use_product(e, l, strided, gathered, &(kernel##_constants){ __VA_ARGS__ }, sizeof(kernel##_constants))
static void use_product(struct encoder *e, const struct launch *l, enum kernel_id strided, enum kernel_id gathered,
                        const void *constants, size_t size)
{
    bool gather = l->p.gather || l->p.segments;
    use_kernel(e, gather ? gathered : strided, &l->push,
               gather ? sizeof l->push.gather : sizeof l->push.strided, constants, size);
}

/* Adds up the parts of a product: [part][row][column] in float32. */
static void product_sum(struct encoder *e, const struct product *p, struct array *sums, uint32_t parts)
{
    struct array c, out = operand_view(p, MAT_OUT);
    struct matmul_sum_push push = { .M = (uint32_t)p->m, .N = (uint32_t)p->n, .matrices = (uint32_t)product_batches(p),
        .parts = parts, .c_row = (uint32_t)p->c_row, .c_col = (uint32_t)p->c_col, .out_row = (uint32_t)p->out_row,
        .out_col = (uint32_t)p->out_col, .inner = inner_size(p), .middle = middle_size(p), .alpha = p->alpha,
        .beta = p->beta };
    push.sums_at = set_input(e, SLOT_matmul_sum_a, sums);
    push.offset_out = set_output(e, SLOT_matmul_sum_d, &out);
    if (p->array[MAT_C]) {
        c = operand_view(p, MAT_C);
        push.offset_c = set_input(e, SLOT_matmul_sum_c, &c);
    }
    put_batch(p, MAT_OUT, push.batch_out);
    put_batch(p, MAT_C, push.batch_c);
    USE(e, matmul_sum, &push, .threads = flat_threads(e->device), .type = out.dtype, .has_c = p->array[MAT_C] != NULL);
    dispatch_elements(e, (uint64_t)(p->m * p->n) * push.matrices);
}

/* Dispatches over x by y tiles; then adds up the parts, if there are any. */
static void launch(struct encoder *e, const struct product *p, struct launch *l, uint32_t x, uint32_t y)
{
    dispatch(e, x, y, l->batches * l->parts);
    if (!l->split) return;
    if (l->p.array[MAT_OUT]) product_sum(e, p, l->p.array[MAT_OUT], l->parts);
    array_release(l->p.array[MAT_OUT]);
}

/* At most so many parts of K fit into a temporary and the grid. */
static int64_t most_parts(const struct encoder *e, const struct product *p)
{
    bool some = p->gather && (p->count[MAT_B] < p->gather->weights ||
                              (!p->gather->every && p->count[MAT_A] < p->gather->matrices));
    if (p->segments || some) return 0;               /* ranges of their own; results that must stay as they are */
    int64_t room = (int64_t)min_size(e->device->caps.max_range / 4, 1 << 26) / (p->m * p->n * product_batches(p));
    int64_t grid = e->device->caps.max_groups[2] / product_batches(p);
    return room < grid ? room : grid;
}

/* In how many parts to cut K so that `groups` workgroups become enough; each part at least `least` long. */
static uint32_t parts_for(const struct encoder *e, const struct product *p, int64_t groups, int64_t enough,
                          int64_t least)
{
    int64_t parts = groups < enough ? enough / groups : 1, most = most_parts(e, p);
    if (parts > p->k / least) parts = p->k / least;
    if (parts > most) parts = most;
    return parts > 1 ? (uint32_t)parts : 1;
}

/* ---- the kernels ---- */

static void product_plain(struct encoder *e, const void *job)
{
    const struct product *p = job;
    mlxvk_dtype t = p->array[MAT_OUT]->dtype;
    struct launch l;
    prepare(e, &l, p, 1, 1);
    USE_AS(e, is_complex(t) ? K_MATMUL_COMPLEX : K_MATMUL_PLAIN, matmul_plain, &l.push.strided,
           .threads = flat_threads(e->device), .type = t, .epilogue = l.epilogue);
    launch(e, p, &l, ceil_div((uint64_t)p->n, 16), ceil_div((uint64_t)p->m, 16));
}

/* Few rows times a matrix that lies along K. */
static void product_matvec(struct encoder *e, const struct product *p)
{
    uint32_t type = (uint32_t)p->array[MAT_A]->dtype, chunk = type == MLXVK_FLOAT32 ? 4 : 8, groups, y;
    uint32_t few = p->m > 4 ? 8 : p->m > 2 ? 4 : (uint32_t)p->m, wide = few > 4 ? 2 : 4, threads = 32;
    int64_t batches = product_batches(p), enough = 8 * (int64_t)e->device->tuning->processors;
    bool subgroup = has_kernel(e->device, K_MATVEC_SUBGROUP), vector;
    struct launch l;
    while (wide > 1 && p->n * batches < wide * enough) wide /= 2;
    groups = ceil_div((uint64_t)p->n, wide);
    prepare(e, &l, p, parts_for(e, p, groups * batches, enough / 4, 2048), chunk);
    while (threads < (subgroup ? flat_threads(e->device) : 64) && threads * chunk * 8 < p->k / l.parts) threads *= 2;
    vector = evenly(&l, MAT_A, p->a_k, p->a_row, chunk) && evenly(&l, MAT_B, p->b_k, p->b_col, chunk);
    USE_PRODUCT(e, &l, subgroup ? K_MATVEC_SUBGROUP : K_MATVEC,
                subgroup ? K_GATHER_MATVEC_SUBGROUP : K_GATHER_MATVEC, matvec, .threads = threads, .type = type,
           .epilogue = l.epilogue, .few = few, .wide = wide, .vector = vector);
    y = ceil_div(groups, e->device->caps.max_groups[0]);       /* where one dimension of the grid is too short */
    launch(e, p, &l, ceil_div(groups, y), y);
}

/* Few rows times a matrix that lies along its rows. */
static void product_vecmat(struct encoder *e, const struct product *p)
{
    uint32_t type = (uint32_t)p->array[MAT_A]->dtype, chunk = type == MLXVK_FLOAT32 ? 4 : 8, lanes = 16, y;
    uint32_t few = p->m > 4 ? 8 : p->m > 2 ? 4 : (uint32_t)p->m, groups = ceil_div((uint64_t)p->n, lanes * chunk);
    int64_t enough = 4 * (int64_t)e->device->tuning->processors;
    struct launch l;
    prepare(e, &l, p, parts_for(e, p, groups * product_batches(p), enough, 128), 1);
    USE_PRODUCT(e, &l, K_VECMAT, K_GATHER_VECMAT, vecmat, .threads = flat_threads(e->device), .type = type,
                .epilogue = l.epilogue, .few = few, .lanes = lanes,
                .vector = evenly(&l, MAT_B, p->b_col, p->b_k, chunk));
    y = ceil_div(groups, e->device->caps.max_groups[0]);
    launch(e, p, &l, ceil_div(groups, y), y);
}

/* Few rows, or few columns: of the transposed product. */
static bool few_columns(const struct product *p) { return p->n <= FEW_ROWS && p->n < p->m && !p->gather; }

static void product_vector(struct encoder *e, const void *job)
{
    struct product p = few_columns(job) ? transposed(job) : *(const struct product *)job;
    if (p.b_k == 1) product_matvec(e, &p);
    else product_vecmat(e, &p);
}

/* Shapes of tiles by kernel: rows and columns of a workgroup, depth; rows and columns of a thread or a subgroup;
 * threads; speed where there are plenty of them, in millions of multiplications a microsecond on one multiprocessor of
 * an H200. As measured there; elsewhere their order matters, not their values. */
struct tile_row { uint16_t bm, bn, bk, tm, tn, threads; float speed; };
static const struct tile_row tiled_rows[] = {
    { 128, 128, 16, 8, 8, 256, 0.14f },
    { 128,  64, 16, 8, 4, 256, 0.12f },
    {  64,  64, 16, 4, 4, 256, 0.10f },
    {  32,  32, 16, 4, 4,  64, 0.06f },
};
static const struct tile_row coopmat_rows[] = {
    { 128, 128, 32, 64, 64,  4, 0.68f },             /* threads: subgroups here */
    { 128,  64, 32, 64, 32,  4, 0.50f },
    {  64,  64, 32, 32, 32,  4, 0.40f },
    {  32,  64, 32, 16, 32,  4, 0.25f },
    { 128, 256, 32, 64, 64,  8, 0.68f },
    { 128, 128, 16, 64, 64,  4, 0.68f },          /* the last: not for convolutions, which are a quarter slower by it */
};
static const struct tile_row coopmat2_rows[] = {
    { 128, 256, 64, 0, 0, 256, 1.09f },
    { 128, 128, 64, 0, 0, 256, 1.01f },
    { 128, 128, 32, 0, 0, 128, 0.97f },
    { 256, 128, 64, 0, 0, 256, 1.05f },
    {  64, 128, 64, 0, 0, 256, 0.75f },
    {  64,  64, 64, 0, 0, 128, 0.60f },
    {  32,  64, 64, 0, 0, 128, 0.35f },
    {  64, 256, 64, 0, 0, 256, 0.80f },
};

/* Results of a thread that make the kernel with c slow: 4096^3 took 59 ms, not 4.6, on an H200 (580.159). */
enum { SLOW_EPILOGUE = 64, EPILOGUE_TIMES = 13 };

/* Microseconds that a product takes by tiles of a shape and with K in parts, about: rounds of workgroups over the
 * device, and what adding up the parts costs. No parts: one, with alpha and c left to what adds up. */
static double tile_cost(const struct encoder *e, const struct product *p, const struct tile_row *r, int64_t parts)
{
    int64_t n = parts ? parts : 1, depth = ceil_div((uint64_t)p->k, (uint64_t)n) + r->bk, rounds;
    int64_t tiles = (int64_t)ceil_div((uint64_t)p->m, r->bm) * ceil_div((uint64_t)p->n, r->bn) * product_batches(p) * n;
    double cost;
    rounds = ceil_div((uint64_t)tiles, e->device->tuning->processors);
    cost = (double)(rounds * r->bm * r->bn * depth) * 1e-6 / (double)r->speed;
    if (parts != 1) return cost + 3 + (double)(n * p->m * p->n * product_batches(p)) * 3e-6;
    if (!r->tm && p->array[MAT_C]) return INFINITY;  /* cooperative matrices of a workgroup take no c */
    return r->tm * r->tn == SLOW_EPILOGUE && has_epilogue(p) ? EPILOGUE_TIMES * cost : cost;
}

/* Cooperative matrices of subgroups count these, of which there are a few, in place of threads. */
static bool tile_fits(const struct encoder *e, const struct tile_row *r)
{
    uint32_t most = e->device->caps.max_threads;
    return (r->threads > 8 ? r->threads : r->threads * e->device->caps.subgroup) <= most;
}

static const struct tile_row *choose_tile(const struct encoder *e, const struct product *p, const struct tile_row *rows,
                                          int count, uint32_t *parts)
{
    int forced = e->device->gate[GATE_MATMUL_TILE], first = 0;
    int64_t most = most_parts(e, p);
    const struct tile_row *best = NULL;
    double least = 0;
    if (forced > 0 && forced <= count && tile_fits(e, &rows[forced - 1])) { first = forced - 1; count = forced; }
    for (int i = first; i < count; i++) {
        if (!tile_fits(e, &rows[i])) continue;
        for (int64_t n = has_epilogue(p) && most > 0 ? 0 : 1; n <= 16; n++) {
            double cost = tile_cost(e, p, &rows[i], n);
            if (n > 1 && (n > most || p->k < n * 4 * rows[i].bk)) break;
            if (best && cost >= least) continue;
            best = &rows[i];
            least = cost;
            *parts = (uint32_t)n;
        }
    }
    return best;
}

/* The same of tiles in float32 arithmetic: small ones for CPUs, which have few registers. Not the largest for half
 * types: a convolution by it took 14 times as long as in float32 on an H200 (580.159). */
static const struct tile_row *choose_tiled(const struct encoder *e, const struct product *p, uint32_t *parts)
{
    const struct tuning *t = e->device->tuning;
    bool largest = p->array[MAT_A]->dtype == MLXVK_FLOAT32 && e->device->caps.shared_memory >= 32768;
    uint32_t first = largest ? t->tile_first : t->tile_half;
    uint32_t count = t->tile_count ? t->tile_count : (uint32_t)COUNT(tiled_rows) - first;
    const struct tile_row *r = choose_tile(e, p, tiled_rows + first, (int)count, parts);
    if (t->tile_count || !r) *parts = 1;
    return r ? r : &tiled_rows[COUNT(tiled_rows) - 1];
}

/* Bit 0: a is read along its columns, not its rows; bit 1: b is read along its columns. */
static uint32_t reading_order(const struct product *p)
{
    return (p->a_k == 1 || p->a_row != 1 ? 0u : 1u) | (p->b_col == 1 || p->b_k != 1 ? 0u : 2u);
}

/* Bits: a, b and the result can be accessed `count` elements at a time. */
static uint32_t even_operands(const struct launch *l, uint32_t along, uint32_t count)
{
    const struct product *p = &l->p;
    bool a = evenly(l, MAT_A, along & 1 ? p->a_row : p->a_k, along & 1 ? p->a_k : p->a_row, count);
    bool b = evenly(l, MAT_B, along & 2 ? p->b_k : p->b_col, along & 2 ? p->b_col : p->b_k, count);
    bool out = evenly(l, MAT_OUT, p->out_col, p->out_row, count) && !(l->split && p->m * p->n % count);
    return (a ? 1u : 0u) | (b ? 2u : 0u) | (out ? 4u : 0u);
}

static void launch_tiles(struct encoder *e, const struct product *p, struct launch *l, const struct tile_row *r)
{
    launch(e, p, l, ceil_div((uint64_t)p->n, r->bn), ceil_div((uint64_t)p->m, r->bm));
}

static void product_tiled(struct encoder *e, const void *job)
{
    const struct product *p = job;
    uint32_t parts, along = reading_order(p);
    const struct tile_row *r = choose_tiled(e, p, &parts);
    struct launch l;
    prepare(e, &l, p, parts, r->bk);
    USE_PRODUCT(e, &l, K_MATMUL_TILED, K_GATHER_TILED, matmul_tiled, .threads = r->threads,
                .type = p->array[MAT_A]->dtype, .epilogue = l.epilogue, .bm = r->bm, .bn = r->bn, .bk = r->bk,
                .tm = r->tm, .tn = r->tn, .along = along, .vector = even_operands(&l, along, 4),
                .unroll = e->device->tuning->deep ? r->bk : 1);
    launch_tiles(e, p, &l, r);
}

static void product_coopmat(struct encoder *e, const void *job)
{
    const struct product *p = job;
    bool bf16 = p->array[MAT_A]->dtype == MLXVK_BFLOAT16;
    uint32_t parts, along = reading_order(p), lanes = e->device->caps.subgroup;
    const struct tile_row *r = choose_tile(e, p, coopmat_rows, COUNT(coopmat_rows), &parts);
    struct launch l;
    prepare(e, &l, p, parts, r->bk);
    USE_PRODUCT(e, &l, bf16 ? K_MATMUL_COOPMAT_BF16 : K_MATMUL_COOPMAT_F16,
                bf16 ? K_GATHER_COOPMAT_BF16 : K_GATHER_COOPMAT_F16, matmul_coopmat_f16,
                .threads = r->threads * lanes, .type = p->array[MAT_A]->dtype, .epilogue = l.epilogue, .bm = r->bm,
                .bn = r->bn, .bk = r->bk, .wm = r->tm, .wn = r->tn, .size = e->device->caps.coopmat_size[bf16],
                .lanes = lanes, .along = along, .aligned = even_operands(&l, along, 8));
    launch_tiles(e, p, &l, r);
}

static void product_coopmat2(struct encoder *e, const void *job)
{
    const struct product *p = job;
    bool bf16 = p->array[MAT_A]->dtype == MLXVK_BFLOAT16;
    uint32_t parts;
    const struct tile_row *r = choose_tile(e, p, coopmat2_rows, COUNT(coopmat2_rows), &parts);
    struct launch l;
    prepare(e, &l, p, parts, r->bk);
    USE_PRODUCT(e, &l, bf16 ? K_MATMUL_COOPMAT2_BF16 : K_MATMUL_COOPMAT2_F16,
                bf16 ? K_GATHER_COOPMAT2_BF16 : K_GATHER_COOPMAT2_F16, matmul_coopmat2_f16, .threads = r->threads,
                .type = p->array[MAT_A]->dtype, .epilogue = l.epilogue, .bm = r->bm, .bn = r->bn, .bk = r->bk,
                .along = reading_order(p));
    launch_tiles(e, p, &l, r);
}

/* Are all rows read and written in whole steps of 16 bytes (of half types)? */
static bool in_eights(const struct product *p)
{
    const int64_t lead[MATRICES] = { [MAT_A] = p->a_k == 1 ? p->a_row : p->a_k,
                                     [MAT_B] = p->b_k == 1 ? p->b_col : p->b_k, [MAT_OUT] = p->out_row };
    if (p->n & 7) return false;                      /* parts of K have rows of n */
    for (int i = 0; i < MATRICES; i++) {
        int64_t odd = lead[i] | p->offset[i];
        if (i == MAT_C) continue;
        if (lead[i] <= 0) return false;        /* strides of tensor layouts have no sign: the GPU would not come back */
        for (int k = 0; k < p->ndim; k++) odd |= p->stride[i][k];
        if ((odd & 7) || p->array[i]->offset % 16) return false;
    }
    return true;
}

/* ---- odd rows of half types: copies with rows of whole eights, for cooperative matrices 2 ---- */

/* The strides of an operand's batch, rows and columns. */
static void set_strides(struct product *p, int operand, const int64_t *strides)
{
    int64_t *matrix[MATRICES][2] = { { &p->a_row, &p->a_k }, { &p->b_k, &p->b_col }, { &p->c_row, &p->c_col },
                                     { &p->out_row, &p->out_col } };
    memcpy(p->stride[operand], strides, (size_t)p->ndim * sizeof *strides);
    for (int i = 0; i < 2; i++) *matrix[operand][i] = strides[p->ndim + i];
}

static void copy_elements(struct encoder *e, struct array *to, struct array *from)
{
    elementwise_split(e, &(struct elementwise_params){ .kernel = K_COPY }, (struct array *[]){ to, from }, 2);
}

/* Lets a product of two matrices read a copy of one of them, which is returned, with room for whole eights of rows and
 * columns; what is more than the operand's holds anything. */
static struct array *padded_copy(struct encoder *e, struct product *p, int operand)
{
    struct array from = operand_view(p, operand), to = from, *copy;
    int inner = from.strides[1] == 1, outer = 1 - inner;
    to.strides[inner] = 1;
    to.strides[outer] = (int64_t)round_up((size_t)from.shape[inner], 8);
    copy = scratch(e, round_up((size_t)from.shape[outer], 8) * (size_t)to.strides[outer], from.dtype);
    if (!copy) return NULL;
    to.storage = copy->storage;
    to.offset = 0;
    to.row = row_contiguous(&to);
    copy_elements(e, &to, &from);
    p->array[operand] = copy;
    p->offset[operand] = 0;
    set_strides(p, operand, to.strides);
    return copy;
}

/* Whole eights of columns: what lies beyond n is computed, and not copied. */
static void product_evenly(struct encoder *e, const void *job)
{
    const struct product *p = job;
    struct product q = *p;
    struct array *a = padded_copy(e, &q, MAT_A), *b = padded_copy(e, &q, MAT_B), *y;
    struct array to = operand_view(p, MAT_OUT), from;
    q.n = q.out_row = (int64_t)round_up((size_t)p->n, 8);
    q.out_col = 1;
    q.offset[MAT_OUT] = 0;
    q.array[MAT_OUT] = y = scratch(e, (size_t)(p->m * q.n), to.dtype);
    if (!e->code) {
        product_coopmat2(e, &q);
        q.n = p->n;
        from = operand_view(&q, MAT_OUT);
        copy_elements(e, &to, &from);
    }
    array_release(a);
    array_release(b);
    array_release(y);
}

/* ---- ways to do a product ---- */

/* Multiplications: views may be longer than memory. */
static double product_work(const struct product *p)
{
    return (double)p->m * (double)p->n * (double)p->k * (double)product_batches(p);
}

/* Microseconds of kernels that are `speed` times as fast as the device multiplies without them, once they run, and
 * faster than product_plain from `least` multiplications on. As measured on an H200; elsewhere the order counts, not
 * the times. */
static const double PLAIN_SPEED = 0.5;
static double speed_cost(const struct encoder *e, double work, double speed, double least)
{
    return (work / speed + (least - 1) * (1 / PLAIN_SPEED - 1 / speed)) / e->device->tuning->rate;
}

static double job_cost(const struct encoder *e, const void *job, double speed, double least)
{
    return speed_cost(e, product_work(job), speed, least);
}

static double plain_cost(const struct encoder *e, const void *p) { return job_cost(e, p, PLAIN_SPEED, 1); }
static double tiled_cost(const struct encoder *e, const void *p) { return job_cost(e, p, 1.5, SMALL_PRODUCT); }
static double coopmat_cost(const struct encoder *e, const void *p)
{
    return job_cost(e, p, in_eights(p) ? 9 : 3, SMALL_PRODUCT);
}

static double coopmat2_cost(const struct encoder *e, const void *p) { return job_cost(e, p, 14, SMALL_PRODUCT); }

/* Twice what the fastest tiles reach: few rows leave most of a tile empty. */
static double vector_cost(const struct encoder *e, const void *p) { return job_cost(e, p, 30, SMALL_PRODUCT / 8); }

/* And each operand is read and written once more. */
static double even_cost(const struct encoder *e, const void *job)
{
    const struct product *p = job;
    double m = (double)p->m, n = (double)p->n, k = (double)p->k;
    return coopmat2_cost(e, p) + 4 * (m * k + k * n + m * n) / e->device->tuning->bandwidth;
}

static const char *plain_fits(const struct encoder *e, const void *job)
{
    const struct product *p = job;
    (void)e;
    return p->gather || p->segments ? "index arrays or ranges of K" : NULL;
}

static const char *tiled_fits(const struct encoder *e, const void *job)
{
    const struct product *p = job;
    (void)e;
    return is_complex(p->array[MAT_OUT]->dtype) ? "a complex dtype" : !p->k ? "nothing to multiply" : NULL;
}

static const char *units_fit(const struct encoder *e, const struct product *p)
{
    const char *refusal = tiled_fits(e, p);
    bool units = (p->a_k == 1 || p->a_row == 1) && (p->b_k == 1 || p->b_col == 1);
    return refusal ? refusal : units ? NULL : "an operand has no unit stride";
}

static const char *vector_fits(const struct encoder *e, const void *job)
{
    const struct product *p = job;
    if (p->m > FEW_ROWS && !few_columns(p)) return "more than 8 rows and columns";
    return p->segments ? "ranges of K" : units_fit(e, p);
}

/* Has the device a kernel for products of this half type? */
static const char *half_fits(const struct encoder *e, const struct product *p, enum kernel_id f16, enum kernel_id bf16)
{
    mlxvk_dtype t = p->array[MAT_OUT]->dtype;
    if (t != MLXVK_BFLOAT16 && t != MLXVK_FLOAT16) return "no half type";
    return has_kernel(e->device, t == MLXVK_BFLOAT16 ? bf16 : f16) && tile_fits(e, &coopmat_rows[0]) ? units_fit(e, p)
        : "the device lacks cooperative matrices";
}

static const char *coopmat_fits(const struct encoder *e, const void *job)
{
    const struct product *p = job;
    if (!e->device->caps.coopmat_size[p->array[MAT_OUT]->dtype == MLXVK_BFLOAT16])
        return "the device lacks cooperative matrices";
    return half_fits(e, p, K_MATMUL_COOPMAT_F16, K_MATMUL_COOPMAT_BF16);
}

/* Even operands only: with others some tiles do not come back from NVIDIA's driver (580.159). */
static const char *coopmat2_fits(const struct encoder *e, const void *job)
{
    const struct product *p = job;
    if (p->segments) return "ranges of K";
    if (p->out_col != 1 || !in_eights(p)) return "rows are not of whole 16 bytes";
    if (p->array[MAT_C] && most_parts(e, p) <= 0) return "there is no room for the product without c";
    return half_fits(e, p, K_MATMUL_COOPMAT2_F16, K_MATMUL_COOPMAT2_BF16);
}

enum { EVEN_LEAST = 64, EVEN_WORK = 1 << 29, EVEN_MOST = 1 << 30 };    /* rows and columns, multiplications, elements */

static const char *even_fits(const struct encoder *e, const void *job)
{
    const struct product *p = job;
    double m = (double)p->m + 8, n = (double)p->n + 8, k = (double)p->k + 8;
    double most = min_size(EVEN_MOST, e->device->caps.max_range / 2);
    if (p->array[MAT_C] || p->gather || p->segments || p->ndim) return "more than two matrices";
    if (in_eights(p)) return "rows are of whole 16 bytes";
    if (p->m < EVEN_LEAST || p->n < EVEN_LEAST || p->k < EVEN_LEAST || m * n * k < EVEN_WORK)
        return "too small a product";
    if (m * k > most || n * k > most || m * n > most) return "there is no room for copies";
    return half_fits(e, p, K_MATMUL_COOPMAT2_F16, K_MATMUL_COOPMAT2_BF16);
}

/* In the order of MLX_VK_MATMUL_KERNEL. */
static const struct candidate product_ways[] = {
    { "matmul_plain",                   plain_fits,    plain_cost,    product_plain },
    { "matvec and vecmat",              vector_fits,   vector_cost,   product_vector },
    { "matmul_tiled",                   tiled_fits,    tiled_cost,    product_tiled },
    { "matmul_coopmat",                 coopmat_fits,  coopmat_cost,  product_coopmat },
    { "matmul_coopmat2",                coopmat2_fits, coopmat2_cost, product_coopmat2 },
    { "matmul_coopmat2 of even copies", even_fits,     even_cost,     product_evenly },
};

static const struct candidate *choose_product(const struct encoder *e, const struct product *p)
{
    return choose(e, product_ways, COUNT(product_ways), e->device->gate[GATE_MATMUL_KERNEL], NOTE_MATMUL, p,
                  NOTED(e->device, NOTE_MATMUL, TEXT(p->array[MAT_OUT])));
}

/* ---- one splitter ---- */

/* Where a product is cut: pieces of `size` along an axis; an operand (MATRICES: none) that is too large to be bound
 * asks for it. copy: its elements lie too far apart, so pieces of it are copied. */
struct cut { int axis, operand; int64_t size; bool copy; };

/* The operand that reaches further than a binding, the result first; MATRICES where none does. */
static int wide_operand(const struct encoder *e, const struct product *p)
{
    for (int k = MATRICES; k--;) {
        struct array view;
        if (!p->array[k] || p->array[k]->storage->nbytes <= binding_range(e->device, item_size(p->array[k])) / 2)
            continue;
        view = operand_view(p, k);
        if (!fits_binding(e->device, &view)) return k;
    }
    return MATRICES;
}

/* Is it matrices that are left out then, and with them the entries that take them? */
static bool cuts_matrices(const struct product *p, const struct cut *cut)
{
    return cut->axis == 0 && is_chosen(p, cut->operand) && (cut->operand == MAT_B || !p->gather->every);
}

static int64_t cut_length(const struct product *p, const struct cut *cut)
{
    return cuts_matrices(p, cut) ? p->count[cut->operand] : axis_length(p, cut->axis);
}

/* In halves, along the axis on which that operand reaches furthest. Of K, not its length is cut, as long as there are
 * rows or columns of the operand, but what lies between its elements left out. */
static struct cut binding_cut(const struct encoder *e, const struct product *p)
{
    struct cut cut = { .axis = AXIS_NONE, .operand = wide_operand(e, p) };
    int64_t widest = 0, every = p->gather && p->gather->every ? p->gather->every : 1;
    if (cut.operand == MATRICES) {
        size_t numbers = p->gather ? 4 : p->segments ? 8 : 0;
        if (numbers * (size_t)p->shape[0] + e->device->caps.offset_align + 16 > binding_range(e->device, 4) && numbers)
            cut.axis = 0;
    } else for (int axis = AXIS_M; axis < p->ndim; axis++) {
        int64_t reach = llabs(axis_step(p, cut.operand, axis)) * (operand_length(p, cut.operand, axis) - 1);
        if (reach > widest) { widest = reach; cut.axis = axis; }
    }
    if (cut.axis == AXIS_K && cut.operand <= MAT_B) {
        int other = cut.operand == MAT_A ? AXIS_M : AXIS_N;
        cut.copy = axis_length(p, other) > 1;
        if (cut.copy) cut.axis = other;
    }
    if (cut.axis == AXIS_NONE) return cut;
    cut.size = (cut_length(p, &cut) + 1) / 2;
    if (cut.axis == 0 && !cuts_matrices(p, &cut) && axis_length(p, 0) > every)
        cut.size = (cut.size + every - 1) / every * every;
    return cut;
}

/* Rows or columns of one dispatch, by the smallest tiles, or one by one. */
static int64_t most_rows(const struct device *d)
{
    const uint32_t *grid = d->caps.max_groups;
    return (int64_t)min_size(min_size((size_t)16 * min_u32(grid[0], grid[1]), (size_t)grid[0] * grid[1]), INT_MAX);
}

/* Halves of a product that would take too long: of its longest axis but K, by whole tiles. */
static struct cut time_cut(const struct product *p)
{
    struct cut cut = { .axis = AXIS_M, .operand = MATRICES };
    int64_t every = p->gather && p->gather->every ? p->gather->every : 1, unit = 256;
    for (int axis = AXIS_N; axis < p->ndim; axis++)
        if (axis != AXIS_K && axis_length(p, axis) > axis_length(p, cut.axis)) cut.axis = axis;
    if (cut.axis >= 0) unit = cut.axis == 0 ? every : 1;
    cut.size = ((axis_length(p, cut.axis) + 1) / 2 + unit - 1) / unit * unit;
    if (cut.size >= axis_length(p, cut.axis)) cut.axis = AXIS_NONE;
    return cut;
}

/* Where kernels cannot do a product in one dispatch; AXIS_NONE: they can. */
static struct cut product_cut(const struct encoder *e, const struct product *p)
{
    int64_t most = most_rows(e->device), longest = longest_k(e->device), grid = e->device->caps.max_groups[2];
    int64_t batches = product_batches(p), every = p->gather && p->gather->every ? p->gather->every : 1;
    if (p->m > most) return (struct cut){ AXIS_M, MATRICES, most, false };
    if (p->n > most) return (struct cut){ AXIS_N, MATRICES, most, false };
    if (p->ndim > BATCH_DIMS) return (struct cut){ 0, MATRICES, 1, false };
    if (batches > grid) {
        int64_t size = grid / (batches / p->shape[0]) / every * every;
        return (struct cut){ 0, MATRICES, size > 1 ? size : 1, false };
    }
    if (p->k > longest) return (struct cut){ AXIS_K, MATRICES, longest, false };
    if (too_long(e, product_work(p))) {
        struct cut cut = time_cut(p);
        if (cut.axis != AXIS_NONE) return cut;
    }
    return binding_cut(e, p);
}

/* Cuts all of a product but `count` from `at` on, along an axis. */
static void take_part(struct product *p, const struct cut *cut, int64_t at, int64_t count)
{
    uint32_t every = p->gather ? p->gather->every : 0;
    int axis = cut->axis, k = cut->operand;
    if (cuts_matrices(p, cut)) {
        p->low[k] += (uint32_t)at;
        p->count[k] = (uint32_t)count;
        p->offset[k] += at * p->stride[k][0];
        return;
    }
    for (k = 0; k < MATRICES; k++)
        if (axis < 0 || !is_chosen(p, k)) p->offset[k] += at * axis_step(p, k, axis);
    if (axis == 0 && every) {
        p->offset[MAT_A] += at / every * p->stride[MAT_A][0];
        p->count[MAT_A] = ceil_div((uint64_t)count, every);
    }
    if (axis == AXIS_K) p->k_first += at;
    if (axis >= 0) p->first += at;
    *(axis == AXIS_M ? &p->m : axis == AXIS_N ? &p->n : axis == AXIS_K ? &p->k : &p->shape[axis]) = count;
}

/* A product that is added to the result that is there. */
static void add_to_result(struct product *p)
{
    p->array[MAT_C] = p->array[MAT_OUT];
    p->c_row = p->out_row;
    p->c_col = p->out_col;
    p->offset[MAT_C] = p->offset[MAT_OUT];
    memcpy(p->stride[MAT_C], p->stride[MAT_OUT], sizeof p->stride[MAT_C]);
    p->beta = 1;
}

/* A row-major copy of an operand, seen through `view` with the operand's shape; dimensions that repeat are not
 * multiplied. NULL, and the operand itself seen, where that is row-major. */
static struct array *packed_copy(struct encoder *e, const struct array *a, struct array *view)
{
    struct array compact = *a, *copy;
    for (int i = 0; i < a->ndim; i++)
        if (a->strides[i] == 0 && a->shape[i] > 1) { compact.size /= (size_t)a->shape[i]; compact.shape[i] = 1; }
    compact.row = row_contiguous(&compact);
    *view = *a;
    if (compact.row || e->code) return NULL;
    copy = rows_of(e, &compact);
    if (copy == &compact) return NULL;               /* it failed */
    *view = *copy;
    for (int i = 0; i < a->ndim; i++) {
        view->shape[i] = a->shape[i];
        if (a->strides[i] == 0) view->strides[i] = 0;
    }
    view->size = a->size;
    return copy;
}

/* Lets a product read a or b from a row-major copy, which is returned; NULL where it does so already. */
static struct array *pack_operand(struct encoder *e, struct product *p, int operand)
{
    struct array view = operand_view(p, operand), packed, *copy = packed_copy(e, &view, &packed);
    if (!copy) return NULL;
    p->array[operand] = copy;
    p->offset[operand] = 0;
    set_strides(p, operand, packed.strides);
    return copy;
}

/* Plans a product, in pieces where the device demands it. Pieces of K are added up in the result. */
static void product_batch(struct encoder *e, const struct product *p)
{
    struct cut cut = product_cut(e, p);
    int64_t length;
    if (cut.axis == AXIS_NONE) {
        set_work(e, product_work(p));
        choose_product(e, p)->plan(e, p);
        return;
    }
    length = cut_length(p, &cut);
    for (int64_t at = 0; at < length && !e->code; at += cut.size) {
        struct product part = *p;
        struct array *copy = NULL;
        take_part(&part, &cut, at, length - at < cut.size ? length - at : cut.size);
        if (cut.axis == AXIS_K && at) add_to_result(&part);
        if (cut.copy) copy = pack_operand(e, &part, cut.operand);
        if (!p->gather && !p->segments) merge_batch(&part);
        product_batch(e, &part);
        array_release(copy);
    }
}

/* Operands that fast kernels cannot read are copied where it is worth it. */
static void plan_matmul(struct encoder *e, struct array *const *arrays, float alpha, float beta)
{
    struct product p = product_of(arrays[MAT_A], arrays[MAT_B], arrays[MAT_C], arrays[MAT_OUT], alpha, beta);
    bool large = product_work(&p) >= 1 << 21 && !is_complex(arrays[MAT_A]->dtype);
    struct array views[2], *copies[2] = { NULL }, *a = arrays[MAT_A], *b = arrays[MAT_B];
    if (large && p.a_k != 1 && p.a_row != 1) { copies[0] = packed_copy(e, a, &views[0]); a = &views[0]; }
    if (large && p.b_k != 1 && p.b_col != 1) { copies[1] = packed_copy(e, b, &views[1]); b = &views[1]; }
    if (copies[0] || copies[1]) p = product_of(a, b, arrays[MAT_C], arrays[MAT_OUT], alpha, beta);
    if (!e->code) product_batch(e, &p);
    array_release(copies[0]);
    array_release(copies[1]);
}

static void lower_matmul(struct encoder *e, const struct node *n)
{
    plan_matmul(e, (struct array *[MATRICES]){ n->in[0], n->in[1], n->in[2], n->out[0] }, n->p.matmul.alpha,
                n->p.matmul.beta);
}

/* ---- gather_mm: matrices chosen by index arrays ---- */

static bool dense_matrix(const struct array *a)
{
    return !a || ((a->shape[a->ndim - 1] == 1 || a->strides[a->ndim - 1] == 1) &&
                  (a->shape[a->ndim - 2] == 1 || a->strides[a->ndim - 2] == a->shape[a->ndim - 1]));
}

/* The one stride between the matrices of an operand, over all its batch dimensions; false where there is none. */
static bool matrix_stride(const struct array *a, uint32_t *stride)
{
    int64_t step = 0, reach = 0;
    bool begun = false;
    for (int i = a->ndim - 3; i >= 0; i--) {
        if (a->shape[i] == 1) continue;
        if (!begun) step = a->strides[i];
        else if (a->strides[i] != reach) return false;
        reach = a->strides[i] * a->shape[i];
        begun = true;
    }
    *stride = (uint32_t)step;
    return step >= 0;
}

/* The operand itself where kernels can read it, else a row-major copy. */
static struct array *matrices_of(struct encoder *e, struct array *a, bool dense, uint32_t *stride)
{
    struct array *rows;
    bool unit;
    if (!a) return NULL;
    unit = a->strides[a->ndim - 1] == 1 || a->shape[a->ndim - 1] == 1;
    if (matrix_stride(a, stride) && (dense ? dense_matrix(a) : unit)) {
        a->refs++;
        return a;
    }
    rows = rows_of(e, a);
    if (!matrix_stride(rows, stride))
        encoder_fail(e, MLXVK_ERROR_LIMIT, 0, __LINE__, "gather", "no stride of the matrices");
    return rows;
}

/* An operand's matrices: what index arrays count, so fronts see to it that they are at most INT_MAX. */
static size_t matrix_count(const struct array *a)
{
    size_t count = 1;
    for (int i = 0; i < a->ndim - 2; i++) count *= (size_t)a->shape[i];
    return count;
}

static struct gather gather_of(const struct node *n, struct array *lhs, struct array *rhs, uint32_t every)
{
    uint32_t weights = (uint32_t)matrix_count(n->in[1]);
    return (struct gather){ .lhs = lhs, .rhs = rhs, .every = every, .entries = (uint32_t)matrix_count(n->out[0]),
                            .matrices = (uint32_t)matrix_count(n->in[0]), .weights = weights, .part = weights };
}

enum { GROUP_WEIGHTS = 4096, GROUP_ROWS = 4 }; /* weights that can be counted; rows a weight from which grouping pays */

/* Entries sorted by weight and the tiles of `size` rows that they make, for kernels GROUPED. */
struct row_groups { struct array *tiles, *order; uint32_t count; };

static struct row_groups group_rows(struct encoder *e, const struct gather *g, uint32_t m, uint32_t size)
{
    uint64_t rows = (uint64_t)g->entries * m;
    uint32_t threads = min_u32(1024, e->device->caps.max_threads), most = GROUP_WEIGHTS;
    while (4 * most + 8 * threads > e->device->caps.shared_memory) most /= 2;
    bool grouped = g->part <= most && m < size;
    uint64_t count = grouped ? (rows + size - 1) / size + min_u32(g->part, g->entries)
                             : (uint64_t)g->entries * ceil_div(m, size);
    /* whole layers of a grid, if several */
    count = round_up(count, ceil_div(count, e->device->caps.max_groups[1]));
    struct row_groups r = { scratch(e, (size_t)count * 4, MLXVK_UINT32), scratch(e, g->entries, MLXVK_UINT32),
                            (uint32_t)count };
    struct group_rows_push push = { .entries = g->entries, .weights = g->weights, .first = g->from, .part = g->part,
                                    .each = m, .tile_rows = size, .tile_count = r.count };
    if (e->code) return r;
    push.tiles_at = set_output(e, SLOT_group_rows_tiles, r.tiles) / 4;
    push.order_at = set_output(e, SLOT_group_rows_order, r.order);
    push.rhs_at = set_input(e, SLOT_group_rows_rhs, g->rhs);
    if (!grouped) threads = min_u32(threads, 256);
    USE(e, group_rows, &push, .threads = threads, .grouped = grouped, .most = grouped ? most : 1);
    dispatch_groups(e, grouped ? 1 : ceil_div(max_size(g->entries, r.count), threads));
    return r;
}

/* Rows of a tile by how many of them meet a matrix of b, about. */
static const struct tile_row *gather_tile(const struct encoder *e, const struct product *p, bool coopmat)
{
    uint64_t each = (uint64_t)p->m * p->gather->entries / p->gather->weights;
    bool largest;
    if (coopmat) return &coopmat_rows[each > 96 ? 0 : each > 40 ? 2 : 3];
    largest = !e->device->tuning->tile_count && e->device->caps.shared_memory >= 32768;
    if (!tile_fits(e, &tiled_rows[0])) return &tiled_rows[COUNT(tiled_rows) - 1];
    return &tiled_rows[each > 96 && largest ? 0 : each > 40 ? 2 : 3];
}

/* Rows of a sorted by the matrix of b that they meet, in tiles, which read a along its rows. */
static void gather_grouped(struct encoder *e, const struct product *p, bool coopmat)
{
    const struct gather *g = p->gather;
    const struct tile_row *t = gather_tile(e, p, coopmat);
    uint32_t type = (uint32_t)p->array[MAT_A]->dtype, along = reading_order(p) & 2, lanes = e->device->caps.subgroup;
    bool bf16 = type == MLXVK_BFLOAT16;
    struct row_groups r = group_rows(e, g, (uint32_t)p->m, t->bm);
    struct launch l = { .p = *p };
    struct array *rows = p->k > 1 && p->a_k != 1 ? pack_operand(e, &l.p, MAT_A) : NULL;
    struct matmul_grouped_push q;
    bind_operands(e, &l);
    p = &l.p;
    q = (struct matmul_grouped_push){ PUSHED(p, l.at), .a_matrix = (uint32_t)p->stride[MAT_A][0],
        .b_matrix = (uint32_t)p->stride[MAT_B][0], .every = g->every, .lhs_last = g->matrices - 1 };
    if (!e->code) {
        if (!g->every) q.lhs_at = set_input(e, SLOT_matmul_grouped_lhs, g->lhs);
        q.tiles_at = set_input(e, SLOT_matmul_grouped_tiles, r.tiles);
        q.order_at = set_input(e, SLOT_matmul_grouped_order, r.order);
    }
    if (coopmat)
        USE_AS(e, bf16 ? K_MATMUL_GROUPED_BF16 : K_MATMUL_GROUPED_F16, matmul_grouped_f16, &q,
               .threads = t->threads * lanes, .type = type, .bm = t->bm, .bn = t->bn, .bk = t->bk, .wm = t->tm,
               .wn = t->tn, .size = e->device->caps.coopmat_size[bf16], .lanes = lanes, .along = along,
               .aligned = even_operands(&l, along, 8));
    else
        USE(e, matmul_grouped, &q, .threads = t->threads, .type = type, .bm = t->bm, .bn = t->bn, .bk = t->bk,
            .tm = t->tm, .tn = t->tn, .along = along, .vector = even_operands(&l, along, 4),
            .unroll = e->device->tuning->deep ? t->bk : 1);
    dispatch(e, ceil_div((uint64_t)p->n, t->bn), r.count, 1);
    array_release(rows);
    array_release(r.tiles);
    array_release(r.order);
}

static void grouped_tiled(struct encoder *e, const void *job) { gather_grouped(e, job, false); }
static void grouped_coopmat(struct encoder *e, const void *job) { gather_grouped(e, job, true); }

static void gather_entries(struct encoder *e, const void *job)
{
    struct product p = *(const struct product *)job;
    suit_strides(&p);
    product_batch(e, &p);
}

static const char *grouped_fits(const struct encoder *e, const void *job)
{
    const struct product *p = job;
    const struct gather *g = p->gather;
    if (p->m > 64 || g->entries < 2) return "an entry's rows fill tiles";
    if (g->weights > GROUP_WEIGHTS) return "more than 4096 matrices";
    if (binding_cut(e, p).axis != AXIS_NONE || p->k > longest_k(e->device)) return "an operand is too large";
    return (uint64_t)g->entries * (uint64_t)p->m / 32 + g->weights < e->device->caps.max_groups[1] ? NULL
        : "more tiles than a grid";
}

static const char *grouped_coopmat_fits(const struct encoder *e, const void *job)
{
    const struct product *p = job;
    bool bf16 = p->array[MAT_A]->dtype == MLXVK_BFLOAT16;
    if (!bf16 && p->array[MAT_A]->dtype != MLXVK_FLOAT16) return "no half type";
    if (!e->device->caps.coopmat_size[bf16] || !tile_fits(e, &coopmat_rows[0]) ||
        !has_kernel(e->device, bf16 ? K_MATMUL_GROUPED_BF16 : K_MATMUL_GROUPED_F16))
        return "the device lacks cooperative matrices";
    return p->b_k == 1 || p->b_col == 1 ? grouped_fits(e, p) : "an operand has no unit stride";
}

/* Reading so many matrices of b. */
static double matrices_cost(const struct encoder *e, const struct product *p, double matrices)
{
    return matrices * (double)(p->k * p->n) * (double)item_size(p->array[MAT_B]) / e->device->tuning->bandwidth;
}

static double grouped_cost(const struct encoder *e, const void *job)
{
    return matrices_cost(e, job, ((const struct product *)job)->gather->weights);
}

static double entries_cost(const struct encoder *e, const void *job)
{
    const struct product *p = job;
    return matrices_cost(e, p, (double)p->gather->entries * (double)p->m / GROUP_ROWS);
}

static const struct candidate gather_ways[] = {
    { "matmul_grouped by cooperative matrices", grouped_coopmat_fits, grouped_cost, grouped_coopmat },
    { "matmul_grouped",                         grouped_fits,         grouped_cost, grouped_tiled },
    { "entry by entry",                         NULL,                 entries_cost, gather_entries },
};

static bool unit_stride(const struct array *a)
{
    int i = a->ndim - 1;
    return a->strides[i] == 1 || a->strides[i - 1] == 1 || a->shape[i] == 1 || a->shape[i - 1] == 1;
}

static void lower_gather_mm(struct encoder *e, const struct node *n)
{
    static const uint8_t forced[] = { 0, 3, 3, 2, 1, 1, 1 };             /* by MLX_VK_MATMUL_KERNEL */
    struct array *y = n->out[0], *in[2];
    uint32_t stride[2], rows = (uint32_t)dim_of(y, -2), columns = (uint32_t)dim_of(y, -1);
    int wanted = e->device->gate[GATE_MATMUL_KERNEL];
    struct gather g = gather_of(n, n->in[2], n->in[3], n->p.gather_mm.every);
    struct product p;
    for (int i = 0; i < 2; i++) {
        bool fits = matrix_stride(n->in[i], &stride[i]) && unit_stride(n->in[i]);
        in[i] = fits ? n->in[i] : rows_of(e, n->in[i]);
        if (fits) in[i]->refs++;
        else matrix_stride(in[i], &stride[i]);
    }
    p = (struct product){ .array = { in[0], in[1], NULL, y }, .m = rows, .n = columns, .k = dim_of(n->in[0], -1),
        .a_row = in[0]->strides[in[0]->ndim - 2], .a_k = in[0]->strides[in[0]->ndim - 1],
        .b_k = in[1]->strides[in[1]->ndim - 2], .b_col = in[1]->strides[in[1]->ndim - 1], .out_row = columns,
        .out_col = 1, .ndim = 1, .shape = { g.entries }, .alpha = 1, .gather = &g,
        .count = { g.matrices, g.weights },
        .stride = { [MAT_A] = { stride[0] }, [MAT_B] = { stride[1] }, [MAT_OUT] = { (int64_t)rows * columns } } };
    if (!e->code)
        choose(e, gather_ways, COUNT(gather_ways), wanted > 0 && wanted < (int)COUNT(forced) ? forced[wanted] : 0,
               NOTE_MATMUL, &p, "by index arrays")->plan(e, &p);
    array_release(in[0]);
    array_release(in[1]);
}

/* ---- segmented_mm ---- */

static void lower_segmented_mm(struct encoder *e, const struct node *n)
{
    struct array *a = n->in[0], *b = n->in[1], *y = n->out[0], *copies[2] = { NULL };
    int64_t size = (int64_t)dim_of(y, -1) * dim_of(y, -2);
    struct product p;
    if (!unit_stride(a)) a = copies[0] = rows_of(e, a);
    if (!unit_stride(b)) b = copies[1] = rows_of(e, b);
    p = (struct product){ .array = { a, b, NULL, y }, .m = dim_of(y, -2), .n = dim_of(y, -1), .k = dim_of(a, -1),
        .a_row = a->strides[0], .a_k = a->strides[1], .b_k = b->strides[0], .b_col = b->strides[1],
        .out_row = dim_of(y, -1), .out_col = 1, .ndim = 1, .shape = { (int64_t)y->size / size },
        .stride = { [MAT_OUT] = { size } }, .alpha = 1, .segments = n->in[2] };
    suit_strides(&p);
    if (!e->code) product_batch(e, &p);
    array_release(copies[0]);
    array_release(copies[1]);
}

/* ---- block_masked_mm ---- */

/* The product of what masks left, without the parts of K that they say to be zero, in the kernel for large ones in
 * float32; where another kernel is faster, or the product must be cut, with them: they are zero by then. in: a, b, and
 * bool masks of the blocks of the result, a and b, or NULL. */
static void lower_masked_mm(struct encoder *e, const struct node *n)
{
    struct array *arrays[MATRICES] = { n->in[0], n->in[1], NULL, n->out[0] };
    struct product p = product_as_is(arrays[MAT_A], arrays[MAT_B], NULL, arrays[MAT_OUT], 1, 0);
    uint32_t parts = 1, along = reading_order(&p);
    const struct tile_row *r;
    struct matmul_masked_push q;
    struct launch l;
    if (p.m <= FEW_ROWS || p.n <= FEW_ROWS || product_cut(e, &p).axis != AXIS_NONE ||
        choose_product(e, &p)->plan != product_tiled) {
        plan_matmul(e, arrays, 1, 0);
        return;
    }
    r = choose_tiled(e, &p, &parts);
    prepare(e, &l, &p, parts, r->bk);
    q = (struct matmul_masked_push){ PUSHED(&l.p, l.at), .inner = inner_size(&p), .middle = middle_size(&p),
        .part = l.part, .block = (uint32_t)n->p.matmul.block,
        .masks = (n->in[2] ? 1u : 0u) | (n->in[3] ? 2u : 0u) | (n->in[4] ? 4u : 0u) };
    put_batch(&l.p, MAT_A, q.batch_a);
    put_batch(&l.p, MAT_B, q.batch_b);
    put_batch(&l.p, MAT_OUT, q.batch_out);
    if (n->in[2]) q.mask_at = set_input(e, SLOT_matmul_masked_c, n->in[2]);
    if (n->in[3]) q.a_mask_at = set_input(e, SLOT_matmul_masked_of_a, n->in[3]);
    if (n->in[4]) q.b_mask_at = set_input(e, SLOT_matmul_masked_of_b, n->in[4]);
    USE(e, matmul_masked, &q, .threads = r->threads, .type = n->in[0]->dtype, .epilogue = l.epilogue, .bm = r->bm,
        .bn = r->bn, .bk = r->bk, .tm = r->tm, .tn = r->tn, .along = along, .vector = even_operands(&l, along, 4),
        .unroll = e->device->tuning->deep ? r->bk : 1);
    launch_tiles(e, &p, &l, r);
}

/* ---- fronts ---- */

/* A vector as a matrix of one row (at = 0) or one column (at = 1). */
static struct array *as_matrix(struct call *c, struct array *a, int at)
{
    int shape[2] = { 1, 1 };
    int64_t strides[2] = { 0, 0 };
    if (c->code || !a || a->ndim != 1) return a;
    shape[1 - at] = a->shape[0];
    strides[1 - at] = a->strides[0];
    return view_of(c, a, a->dtype, 2, shape, strides, a->offset);
}

/* Operands of a product as matrices of one dtype, the bias's too. row, column: were they vectors? */
static bool as_matrices(struct call *c, struct array **a, struct array **b, const struct array *bias, bool complex,
                        bool *row, bool *column)
{
    mlxvk_dtype t;
    if (c->code || !*a || !*b) return false;
    if (!(*a)->ndim || !(*b)->ndim)
        return FAIL(c, MLXVK_ERROR_SHAPE, "%s and %s: operands have at least one dimension", TEXT(*a), TEXT(*b)), false;
    t = promote((*a)->dtype, (*b)->dtype);
    if (bias) t = promote(t, bias->dtype);
    if (complex ? !is_inexact(t) : !is_float(t))
        return FAIL(c, MLXVK_ERROR_DTYPE, "%s and %s: floating dtypes only", TEXT(*a), TEXT(*b)), false;
    *row = (*a)->ndim == 1;
    *column = (*b)->ndim == 1;
    if (dim_of(*a, -1) != dim_of(*b, *column ? -1 : -2)) {
        FAIL(c, MLXVK_ERROR_SHAPE, "the last dimension of %s does not match the rows of %s", TEXT(*a), TEXT(*b));
        return false;
    }
    *a = as_matrix(c, as_type(c, *a, t), 0);
    *b = as_matrix(c, as_type(c, *b, t), 1);
    return !c->code;
}

/* The batch dimensions of two operands broadcast; the shape of the product, with the last two of each. */
static bool product_shape(struct call *c, const struct array *a, const struct array *b, int *ndim, int *shape)
{
    int nd = a->ndim > b->ndim ? a->ndim : b->ndim;
    for (int i = 0; i < nd - 2; i++) {
        int ia = i - (nd - a->ndim), ib = i - (nd - b->ndim), x = ia < 0 ? 1 : a->shape[ia], y = ib < 0 ? 1
            : b->shape[ib];
        if (x != y && x != 1 && y != 1)
            return FAIL(c, MLXVK_ERROR_SHAPE, "the batch dimensions of %s and %s cannot be broadcast", TEXT(a),
                        TEXT(b)), false;
        shape[i] = x == 1 ? y : x;
    }
    shape[nd - 2] = dim_of(a, -2);
    shape[nd - 1] = dim_of(b, -1);
    *ndim = nd;
    return true;
}

/* An operand with the product's batch dimensions and its own last two. */
static struct array *with_batch(struct call *c, struct array *a, int ndim, const int *shape)
{
    int full[MAXD];
    if (c->code || !a) return NULL;
    memcpy(full, shape, (size_t)ndim * sizeof *full);
    full[ndim - 2] = dim_of(a, -2);
    full[ndim - 1] = dim_of(a, -1);
    return broadcast(c, a, ndim, full);
}

/* A matrix result without the unit dimensions that vectors were given. */
static struct array *without_units(struct call *c, struct array *out, bool row, bool column)
{
    int ndim, shape[MAXD];
    if (c->code || !out || (!row && !column)) return out;
    ndim = out->ndim - row - column;
    memcpy(shape, out->shape, (size_t)ndim * sizeof *shape);
    if (row && !column) shape[ndim - 1] = out->shape[out->ndim - 1];
    return view_of(c, out, out->dtype, ndim, shape, NULL, out->offset);
}

/* bias seen with the shape of the result, before vectors lose their unit dimensions. */
static struct array *product_bias(struct call *c, struct array *bias, const struct array *out, bool row, bool column)
{
    int ndim = out->ndim - row - column, shape[MAXD];
    int64_t strides[MAXD];
    memcpy(shape, out->shape, (size_t)ndim * sizeof *shape);
    if (row && !column) shape[ndim - 1] = out->shape[out->ndim - 1];
    bias = broadcast(c, bias, ndim, shape);
    if (!bias || (!row && !column)) return bias;
    memcpy(strides, bias->strides, (size_t)ndim * sizeof *strides);
    if (row && !column) { strides[ndim] = strides[ndim - 1]; strides[ndim - 1] = 0; }
    else for (int i = ndim; i < out->ndim; i++) strides[i] = 0;
    return view_of(c, bias, bias->dtype, out->ndim, out->shape, strides, bias->offset);
}

/* alpha * a @ b + beta * bias; bias may be NULL, and counts for nothing where beta is 0. */
static struct array *do_addmm(struct call *c, struct array *bias, struct array *a, struct array *b, float alpha,
                              float beta)
{
    int ndim, shape[MAXD];
    bool row, column;
    struct array *out;
    if (!as_matrices(c, &a, &b, bias, true, &row, &column)) return NULL;
    if (!product_shape(c, a, b, &ndim, shape)) return NULL;
    out = output(c, ndim, shape, a->dtype);
    a = with_batch(c, a, ndim, shape);
    b = with_batch(c, b, ndim, shape);
    if (c->code || !out) return NULL;
    if (bias) bias = product_bias(c, as_type(c, bias, out->dtype), out, row, column);
    append(c, OP_MATMUL, PARAMS(.matmul = { .alpha = alpha, .beta = beta }), ARRAYS(a, b, beta != 0 ? bias : NULL),
           ARRAYS(out));
    return without_units(c, out, row, column);
}

static struct array *do_matmul(struct call *c, struct array *a, struct array *b)
{
    return do_addmm(c, NULL, a, b, 1, 0);
}

int mlxvk_matmul(mlxvk_array *res, mlxvk_array a, mlxvk_array b, mlxvk_stream s)
{
    struct call c = begin("matmul", s);
    struct array *x = input(&c, "a", a), *y = input(&c, "b", b);
    return finish(&c, do_matmul(&c, x, y), res);
}

int mlxvk_addmm(mlxvk_array *res, mlxvk_array c, mlxvk_array a, mlxvk_array b, float alpha, float beta, mlxvk_stream s)
{
    struct call k = begin("addmm", s);
    struct array *z = input(&k, "c", c), *x = input(&k, "a", a), *y = input(&k, "b", b);
    return finish(&k, z ? do_addmm(&k, z, x, y, alpha, beta) : NULL, res);
}

/* Index arrays of the matrices of two operands, as uint32 of one shape, row-major. One that is absent counts its
 * operand's matrices; *every: where that is lhs's, and each number comes so many times in a row, no array is made of
 * it. */
static bool matrix_indices(struct call *c, const struct array *a, const struct array *b, struct array **lhs,
                           struct array **rhs, uint32_t *every, int *ndim, int *shape)
{
    const struct array *operands[2] = { a, b };
    struct array **index[2] = { lhs, rhs }, whole[2];
    uint64_t products = 1;
    *every = 0;
    for (int i = 0; i < 2; i++) {
        struct array *given = *index[i];
        if (c->code || (given && !is_integer(given->dtype)))
            return FAIL(c, MLXVK_ERROR_DTYPE, "indices %s are no integers", given ? TEXT(given) : ""), false;
        if (matrix_count(operands[i]) > INT_MAX)
            return FAIL(c, MLXVK_ERROR_LIMIT, "%s has %zu matrices; at most %d", TEXT(operands[i]),
                        matrix_count(operands[i]), INT_MAX), false;
        if (given) { whole[i] = *given; continue; }
        whole[i] = *operands[i];
        whole[i].ndim -= 2;
    }
    if (!broadcast_shape(c, &whole[0], &whole[1], ndim, shape)) return false;
    for (int i = 0; i < *ndim; i++) {
        products *= (uint64_t)shape[i];
        if (products > INT_MAX)
            return FAIL(c, MLXVK_ERROR_LIMIT, "more than %d products of matrices of %s", INT_MAX, TEXT(a)), false;
    }
    for (int i = 0; i < 2; i++) {
        uint64_t repeats = 1;
        int same = 0;
        if (!*index[i]) {
            int lead = *ndim - whole[i].ndim, total = (int)matrix_count(operands[i]);
            while (lead + same < *ndim && whole[i].shape[same] == shape[lead + same]) same++;
            for (int k = lead + same; k < *ndim; k++) {
                repeats *= (uint64_t)shape[k];
                if (whole[i].shape[k - lead] != 1) same = -1;
            }
            for (int k = 0; k < lead; k++) if (shape[k] != 1) same = -1;
            if (i == 0 && same >= 0 && repeats && repeats <= min_u32(1 << 14, c->device->caps.max_groups[2])) {
                *every = (uint32_t)repeats;
                continue;
            }
            *index[i] = do_reshape(c, do_arange(c, 0, total, 1, MLXVK_UINT32), whole[i].ndim, whole[i].shape);
        }
        *index[i] = contiguous(c, broadcast(c, as_type(c, *index[i], MLXVK_UINT32), *ndim, shape));
    }
    return !c->code;
}

static struct array *do_gather_mm(struct call *c, struct array *a, struct array *b, struct array *lhs,
                                  struct array *rhs)
{
    struct gather_mm_params f = { 0 };
    struct array *out;
    int ndim, shape[MAXD];
    bool row, column;
    mlxvk_dtype t;
    if (!lhs && !rhs) return do_matmul(c, a, b);
    if (!as_matrices(c, &a, &b, NULL, false, &row, &column)) return NULL;
    t = a->dtype;
    if (!matrix_indices(c, a, b, &lhs, &rhs, &f.every, &ndim, shape)) return NULL;
    if (ndim + 2 > MAXD) return FAIL(c, MLXVK_ERROR_SHAPE, "the result has more than %d dimensions", MAXD);
    shape[ndim] = dim_of(a, -2);
    shape[ndim + 1] = dim_of(b, -1);
    out = output(c, ndim + 2, shape, t);
    if (!out) return NULL;
    if (out->size && dim_of(a, -1) == 0) append_copy(c, out, broadcast(c, scalar(c, 0, t), out->ndim, out->shape));
    else if (out->size && (!a->size || !b->size))
        return FAIL(c, MLXVK_ERROR_SHAPE, "there are no matrices to choose from in %s and %s", TEXT(a), TEXT(b));
    else append(c, OP_GATHER_MM, PARAMS(.gather_mm = f), ARRAYS(a, b, f.every ? NULL : lhs, rhs), ARRAYS(out));
    return without_units(c, out, row, column);
}

int mlxvk_gather_mm(mlxvk_array *res, mlxvk_array a, mlxvk_array b, mlxvk_array lhs_indices, mlxvk_array rhs_indices,
                    bool sorted_indices, mlxvk_stream s)
{
    struct call c = begin("gather_mm", s);
    struct array *x = input(&c, "a", a), *y = input(&c, "b", b), *lhs = optional_input(&c, "lhs_indices", lhs_indices),
        *rhs = optional_input(&c, "rhs_indices", rhs_indices);
    (void)sorted_indices;                            /* rows are grouped on the GPU where that pays */
    return finish(&c, do_gather_mm(&c, x, y, lhs, rhs), res);
}

static struct array *do_segmented_mm(struct call *c, struct array *a, struct array *b, struct array *segments)
{
    int shape[MAXD];
    struct array *out;
    mlxvk_dtype t;
    if (c->code || !a || !b || !segments) return NULL;
    if (a->ndim != 2 || b->ndim != 2) return FAIL(c, MLXVK_ERROR_SHAPE, "%s and %s: matrices only", TEXT(a), TEXT(b));
    if (!segments->ndim || dim_of(segments, -1) != 2)
        return FAIL(c, MLXVK_ERROR_SHAPE, "the last dimension of segments %s is not 2", TEXT(segments));
    if (!is_integer(segments->dtype)) return FAIL(c, MLXVK_ERROR_DTYPE, "segments %s are no integers", TEXT(segments));
    t = promote(a->dtype, b->dtype);
    if (!is_float(t)) return FAIL(c, MLXVK_ERROR_DTYPE, "%s and %s: floating dtypes only", TEXT(a), TEXT(b));
    if (a->shape[1] != b->shape[0])
        return FAIL(c, MLXVK_ERROR_SHAPE, "the last dimension of %s does not match the rows of %s", TEXT(a), TEXT(b));
    if (segments->ndim + 1 > MAXD) return FAIL(c, MLXVK_ERROR_SHAPE, "the result has more than %d dimensions", MAXD);
    memcpy(shape, segments->shape, (size_t)segments->ndim * sizeof *shape);
    shape[segments->ndim - 1] = a->shape[0];
    shape[segments->ndim] = b->shape[1];
    out = output(c, segments->ndim + 1, shape, t);
    if (!a->size || !b->size) append_copy(c, out, broadcast(c, scalar(c, 0, t), segments->ndim + 1, shape));
    else append(c, OP_SEGMENTED_MM, PARAMS(.matmul = { 0 }), ARRAYS(as_type(c, a, t), as_type(c, b, t),
                contiguous(c, as_type(c, segments, MLXVK_UINT32))), ARRAYS(out));
    return out;
}

int mlxvk_segmented_mm(mlxvk_array *res, mlxvk_array a, mlxvk_array b, mlxvk_array segments, mlxvk_stream s)
{
    struct call c = begin("segmented_mm", s);
    struct array *x = input(&c, "a", a), *y = input(&c, "b", b), *k = input(&c, "segments", segments);
    return finish(&c, do_segmented_mm(&c, x, y, k), res);
}

/* A mask of blocks as one of elements, rows x columns. */
static struct array *spread_mask(struct call *c, struct array *mask, int rows, int columns, int block)
{
    int down = (rows + block - 1) / block, across = (columns + block - 1) / block;
    int ndim, shape[MAXD + 2];
    struct array *wide;
    if (c->code || !mask) return NULL;
    ndim = mask->ndim < 2 ? 2 : mask->ndim;
    if (ndim + 2 > MAXD) return FAIL(c, MLXVK_ERROR_SHAPE, "mask %s has too many dimensions", TEXT(mask));
    for (int i = 0; i < ndim - 2; i++) shape[i] = mask->shape[i];
    shape[ndim - 2] = down;
    shape[ndim - 1] = across;
    mask = broadcast(c, mask, ndim, shape);
    shape[ndim - 1] = 1;
    shape[ndim] = across;
    shape[ndim + 1] = 1;
    if (mask) {
        int64_t strides[MAXD + 2];
        memcpy(strides, mask->strides, (size_t)ndim * sizeof *strides);
        strides[ndim] = strides[ndim - 1];
        strides[ndim - 1] = strides[ndim + 1] = 0;
        shape[ndim - 1] = shape[ndim + 1] = block;
        mask = view_of(c, mask, mask->dtype, ndim + 2, shape, strides, mask->offset);
    }
    if (!mask) return NULL;
    wide = copy_of(c, mask);
    shape[ndim - 2] = length_of(c, mask, (uint64_t)down * (uint64_t)block);
    shape[ndim - 1] = length_of(c, mask, (uint64_t)across * (uint64_t)block);
    wide = do_reshape(c, wide, ndim, shape);
    return slice_one(c, slice_one(c, wide, ndim - 2, 0, rows), ndim - 1, 0, columns);
}

/* x where a bool mask of blocks holds, else 0; x times another mask. */
static struct array *apply_mask(struct call *c, struct array *x, struct array *mask, int block)
{
    if (c->code || !x || !mask) return x;
    mask = spread_mask(c, mask, dim_of(x, -2), dim_of(x, -1), block);
    if (!mask) return NULL;
    if (mask->dtype == MLXVK_BOOL) return do_select(c, mask, x, scalar(c, 0, x->dtype));
    return do_binary(c, B_multiply, x, as_type(c, mask, x->dtype));
}

/* A product of matrices that masks have been applied to; those that are bool say what need not be multiplied. */
static struct array *do_masked_product(struct call *c, struct array *a, struct array *b, int block,
                                       struct array *const masks[3])
{
    int ndim, shape[MAXD], blocks[3];
    struct array *in[3] = { NULL }, *out;
    if (c->code || !a || !b || !is_float(a->dtype) || dim_of(a, -1) != dim_of(b, -2)) return do_matmul(c, a, b);
    if (!product_shape(c, a, b, &ndim, shape)) return NULL;
    out = output(c, ndim, shape, a->dtype);
    a = with_batch(c, a, ndim, shape);
    b = with_batch(c, b, ndim, shape);
    if (c->code || !a || !b) return NULL;
    blocks[0] = (int)ceil_div((uint64_t)dim_of(a, -2), (uint64_t)block);
    blocks[1] = (int)ceil_div((uint64_t)dim_of(a, -1), (uint64_t)block);
    blocks[2] = (int)ceil_div((uint64_t)dim_of(b, -1), (uint64_t)block);
    for (int i = 0; i < 3; i++) {
        if (!masks[i] || masks[i]->dtype != MLXVK_BOOL) continue;
        shape[ndim - 2] = blocks[i == 2];
        shape[ndim - 1] = blocks[i == 1 ? 1 : 2];
        in[i] = contiguous(c, broadcast(c, masks[i], ndim, shape));
    }
    append(c, OP_MASKED_MM, PARAMS(.matmul = { .alpha = 1, .block = block }), ARRAYS(a, b, in[0], in[1], in[2]),
           ARRAYS(out));
    return out;
}

static struct array *do_block_masked_mm(struct call *c, struct array *a, struct array *b, int block, struct array *out,
                                        struct array *lhs, struct array *rhs)
{
    struct array *y;
    bool row, column;
    if (c->code || !a || !b) return NULL;
    if (!out && !lhs && !rhs) return do_matmul(c, a, b);
    if (block != 32 && block != 64) return FAIL(c, MLXVK_ERROR_ARGUMENT, "blocks are of 32 or 64, not %d", block);
    if (!as_matrices(c, &a, &b, NULL, true, &row, &column)) return NULL;
    a = apply_mask(c, a, lhs, block);
    b = apply_mask(c, b, rhs, block);
    y = apply_mask(c, do_masked_product(c, a, b, block, (struct array *const[3]){ out, lhs, rhs }), out, block);
    return without_units(c, contiguous(c, y), row, column);
}

int mlxvk_block_masked_mm(mlxvk_array *res, mlxvk_array a, mlxvk_array b, int block_size, mlxvk_array mask_out,
                          mlxvk_array mask_lhs, mlxvk_array mask_rhs, mlxvk_stream s)
{
    struct call c = begin("block_masked_mm", s);
    struct array *x = input(&c, "a", a), *y = input(&c, "b", b), *out = optional_input(&c, "mask_out", mask_out),
        *lhs = optional_input(&c, "mask_lhs", mask_lhs), *rhs = optional_input(&c, "mask_rhs", mask_rhs);
    return finish(&c, do_block_masked_mm(&c, x, y, block_size, out, lhs, rhs), res);
}

/* ==== >>contraction: tensordot, inner, outer, kron, einsum ======================================================== */

/* a with its axes in this order, as a matrix: the first `lead` of them are its rows, the others its columns. */
static struct array *grouped_axes(struct call *c, struct array *a, const int *axes, int lead)
{
    int shape[2] = { 1, 1 }, ndim;
    int64_t size[2] = { 1, 1 };
    a = do_transpose(c, a, axes);
    if (c->code || !a) return NULL;
    ndim = a->ndim;
    for (int i = 0; i < ndim; i++) size[i >= lead] *= a->shape[i];
    shape[0] = length_of(c, a, (uint64_t)size[0]);
    shape[1] = length_of(c, a, (uint64_t)size[1]);
    return do_reshape(c, a, 2, shape);
}

/* Sums products over pairs of axes: what remains are a's other axes, then b's. */
static struct array *do_tensordot(struct call *c, struct array *a, struct array *b, const int *axes_a,
                                  const int *axes_b, size_t count)
{
    int order_a[MAXD], order_b[MAXD], shape[2 * MAXD], n = 0, kept = 0, at = 0;
    uint32_t mask_a, mask_b;
    if (!axes_mask(c, a, axes_a, count, &mask_a) || !axes_mask(c, b, axes_b, count, &mask_b)) return NULL;
    for (int i = 0; i < a->ndim; i++) if (!(mask_a >> i & 1)) { shape[n++] = a->shape[i]; order_a[kept++] = i; }
    for (size_t i = 0; i < count; i++) {
        int x = normal_axis(c, a, axes_a[i]), y = normal_axis(c, b, axes_b[i]);
        if (a->shape[x] != b->shape[y])
            return FAIL(c, MLXVK_ERROR_SHAPE, "axis %d of %s and axis %d of %s have different lengths", axes_a[i],
                        TEXT(a), axes_b[i], TEXT(b));
        order_a[kept + (int)i] = x;
        order_b[at++] = y;
    }
    for (int i = 0; i < b->ndim; i++) if (!(mask_b >> i & 1)) { shape[n++] = b->shape[i]; order_b[at++] = i; }
    if (n > MAXD) return FAIL(c, MLXVK_ERROR_SHAPE, "the result has more than %d dimensions", MAXD);
    a = grouped_axes(c, a, order_a, kept);
    b = grouped_axes(c, b, order_b, (int)count);
    return do_reshape(c, do_matmul(c, a, b), n, shape);
}

int mlxvk_tensordot(mlxvk_array *res, mlxvk_array a, mlxvk_array b, const int *axes_a, size_t axes_a_num,
                    const int *axes_b, size_t axes_b_num, mlxvk_stream s)
{
    struct call c = begin("tensordot", s);
    struct array *x = input(&c, "a", a), *y = input(&c, "b", b);
    if (axes_a_num != axes_b_num) FAIL(&c, MLXVK_ERROR_ARGUMENT, "%zu axes of a, %zu of b", axes_a_num, axes_b_num);
    return finish(&c, do_tensordot(&c, x, y, axes_a, axes_b, axes_a_num), res);
}

int mlxvk_tensordot_axis(mlxvk_array *res, mlxvk_array a, mlxvk_array b, int axis, mlxvk_stream s)
{
    struct call c = begin("tensordot_axis", s);
    struct array *x = input(&c, "a", a), *y = input(&c, "b", b);
    int axes_a[MAXD], axes_b[MAXD];
    if (!c.code && (axis < 0 || axis > x->ndim || axis > y->ndim))
        FAIL(&c, MLXVK_ERROR_AXIS, "%d axes of %s and %s", axis, TEXT(x), TEXT(y));
    for (int i = 0; i < axis && !c.code; i++) { axes_a[i] = x->ndim - axis + i; axes_b[i] = i; }
    return finish(&c, do_tensordot(&c, x, y, axes_a, axes_b, c.code ? 0 : (size_t)axis), res);
}

int mlxvk_inner(mlxvk_array *res, mlxvk_array a, mlxvk_array b, mlxvk_stream s)
{
    struct call c = begin("inner", s);
    struct array *x = input(&c, "a", a), *y = input(&c, "b", b);
    int last = -1;
    if (!c.code && (!x->ndim || !y->ndim)) x = do_binary(&c, B_multiply, x, y);
    else x = do_tensordot(&c, x, y, &last, &last, 1);
    return finish(&c, x, res);
}

int mlxvk_outer(mlxvk_array *res, mlxvk_array a, mlxvk_array b, mlxvk_stream s)
{
    struct call c = begin("outer", s);
    struct array *x = do_flatten(&c, input(&c, "a", a), 0, -1), *y = do_flatten(&c, input(&c, "b", b), 0, -1);
    return finish(&c, do_binary(&c, B_multiply, do_expand(&c, x, (int[]){ 1 }, 1), y), res);
}

/* Each axis of a beside an axis of length 1 (`at` 0: before it), with leading axes of 1. */
static struct array *interleaved(struct call *c, struct array *a, int ndim, int at)
{
    int shape[2 * MAXD];
    int64_t strides[2 * MAXD];
    if (c->code || !a) return NULL;
    for (int i = 0; i < ndim; i++) {
        int k = i - (ndim - a->ndim);
        shape[2 * i + at] = 1;
        strides[2 * i + at] = 0;
        shape[2 * i + 1 - at] = k < 0 ? 1 : a->shape[k];
        strides[2 * i + 1 - at] = k < 0 ? 0 : a->strides[k];
    }
    return view_of(c, a, a->dtype, 2 * ndim, shape, strides, a->offset);
}

int mlxvk_kron(mlxvk_array *res, mlxvk_array a, mlxvk_array b, mlxvk_stream s)
{
    struct call c = begin("kron", s);
    struct array *x = input(&c, "a", a), *y = input(&c, "b", b), *out = NULL;
    int shape[MAXD], ndim;
    if (!c.code) {
        ndim = x->ndim > y->ndim ? x->ndim : y->ndim;
        if (!x->size || !y->size)
            FAIL(&c, MLXVK_ERROR_SHAPE, "%s and %s: operands must not be empty", TEXT(x), TEXT(y));
        else if (2 * ndim > MAXD)
            FAIL(&c, MLXVK_ERROR_SHAPE, "%s and %s: at most %d dimensions", TEXT(x), TEXT(y), MAXD / 2);
        for (int i = 0; i < ndim && !c.code; i++) {
            int k = i - (ndim - x->ndim), l = i - (ndim - y->ndim);
            int64_t size = (int64_t)(k < 0 ? 1 : x->shape[k]) * (l < 0 ? 1 : y->shape[l]);
            if (size > INT_MAX)
                FAIL(&c, MLXVK_ERROR_LIMIT, "%s and %s: an axis of %lld elements", TEXT(x), TEXT(y), (long long)size);
            shape[i] = (int)size;
        }
        out = do_binary(&c, B_multiply, interleaved(&c, x, ndim, 1), interleaved(&c, y, ndim, 0));
        out = do_reshape(&c, out, ndim, shape);
    }
    return finish(&c, out, res);
}

/* ---- einsum ---- */

/* Labels: letters in their order as characters, then dimensions that dots stand for, the last dimension last. */
enum { LABEL_DOTS = 'z' - 'A' + 1, EINSUM_LABELS = LABEL_DOTS + MAXD, EINSUM_TERMS = 32 };

struct labels { int count, dots, label[MAXD]; };     /* dots: where they stand, -1: nowhere */

/* An operand, or what several were contracted to: a dimension for each of its labels. */
struct einsum_term { struct array *a; int label[MAXD]; };

struct einsum {
    int size[EINSUM_LABELS];                         /* 0: no operand has it so far, where seen is false */
    bool seen[EINSUM_LABELS];
    int count;
    struct einsum_term term[EINSUM_TERMS];
    struct labels out;
};

/* Labels up to a comma, an arrow or the end. */
static const char *read_labels(struct call *c, const char *at, struct labels *l)
{
    *l = (struct labels){ .dots = -1 };
    for (; *at && *at != ',' && !(at[0] == '-' && at[1] == '>'); at++) {
        if (*at == ' ') continue;
        if (!strncmp(at, "...", 3) && l->dots < 0) { l->dots = l->count; at += 2; continue; }
        if (!((*at >= 'A' && *at <= 'Z') || (*at >= 'a' && *at <= 'z')))
            return FAIL(c, MLXVK_ERROR_ARGUMENT, "subscripts must be letters, but got '%c'", *at);
        if (l->count == MAXD) return FAIL(c, MLXVK_ERROR_ARGUMENT, "more than %d subscripts of one operand", MAXD);
        l->label[l->count++] = *at - 'A';
    }
    return at;
}

/* Puts labels for `dims` dimensions where the dots are. */
static bool spread_dots(struct call *c, struct labels *l, int dims)
{
    if (l->dots < 0) return true;
    if (l->count + dims > MAXD) return FAIL(c, MLXVK_ERROR_SHAPE, "more than %d dimensions", MAXD), false;
    memmove(l->label + l->dots + dims, l->label + l->dots, (size_t)(l->count - l->dots) * sizeof *l->label);
    for (int i = 0; i < dims; i++) l->label[l->dots + i] = EINSUM_LABELS - dims + i;
    l->count += dims;
    return true;
}

static bool einsum_operand(struct call *c, struct einsum *e, struct array *a, struct labels *l)
{
    int dims = a->ndim - l->count;
    if (l->dots < 0 ? dims != 0 : dims < 0)
        return FAIL(c, MLXVK_ERROR_SHAPE, "%d subscripts for operand %d, %s", l->count, e->count, TEXT(a)), false;
    if (!spread_dots(c, l, dims)) return false;
    for (int i = 0; i < a->ndim; i++) {
        int *size = &e->size[l->label[i]];
        for (int k = 0; k < i; k++)
            if (l->label[k] == l->label[i] && a->shape[k] != a->shape[i])
                return FAIL(c, MLXVK_ERROR_SHAPE, "dimensions %d and %d of operand %d, %s, are to be equal", k, i,
                            e->count, TEXT(a)), false;
        if (!e->seen[l->label[i]] || *size == 1) *size = a->shape[i];
        else if (a->shape[i] != 1 && a->shape[i] != *size)
            return FAIL(c, MLXVK_ERROR_SHAPE, "dimension %d of operand %d, %s, cannot be broadcast to %d", i, e->count,
                        TEXT(a), *size), false;
        e->seen[l->label[i]] = true;
        e->term[e->count].label[i] = l->label[i];
    }
    e->term[e->count++].a = a;
    return true;
}

/* The labels of the result: given, or dots and then the letters that occur once, in order. */
static bool einsum_result(struct call *c, struct einsum *e, const char *at, const int *uses, int dots)
{
    uint8_t named[EINSUM_LABELS] = { 0 };
    if (*at) {
        at = read_labels(c, at + 2, &e->out);
        if (!at) return false;
        if (*at) return FAIL(c, MLXVK_ERROR_ARGUMENT, "subscripts must be letters, but got '%c'", *at), false;
        for (int i = 0; i < e->out.count; i++) {
            if (!e->seen[e->out.label[i]])
                return FAIL(c, MLXVK_ERROR_ARGUMENT, "no operand has subscript '%c' of the result",
                            e->out.label[i] + 'A'), false;
            if (named[e->out.label[i]]++)
                return FAIL(c, MLXVK_ERROR_ARGUMENT, "'%c' is repeated in the result", e->out.label[i] + 'A'), false;
        }
    } else {
        e->out = (struct labels){ .dots = 0 };
        for (int i = 0; i < LABEL_DOTS && e->out.count < MAXD; i++) if (uses[i] == 1) e->out.label[e->out.count++] = i;
    }
    return spread_dots(c, &e->out, dots);
}

static bool einsum_parse(struct call *c, struct einsum *e, const char *at, const struct vector *v)
{
    int uses[EINSUM_LABELS] = { 0 }, dots = 0;
    if (c->code) return false;
    if (!at || !v || !v->size) return FAIL(c, MLXVK_ERROR_ARGUMENT, "at least one operand is required"), false;
    for (size_t i = 0;; at++) {
        struct labels l;
        struct array *a;
        at = read_labels(c, at, &l);
        if (!at) return false;
        if (i >= v->size || i >= EINSUM_TERMS || (*at == ',') != (i + 1 < v->size))
            return FAIL(c, MLXVK_ERROR_ARGUMENT,
                        "%zu operands, which is not the number of lists of subscripts (or more than %d)", v->size,
                (int)EINSUM_TERMS), false;
        for (int k = 0; k < l.count; k++) uses[l.label[k]]++;
        a = vector_input(c, v, i++);
        if (!a || !einsum_operand(c, e, a, &l)) return false;
        if (*at != ',') break;
    }
    for (int i = LABEL_DOTS; i < EINSUM_LABELS; i++) dots += e->seen[i];
    return einsum_result(c, e, at, uses, dots);
}

/* A term with one dimension a label: repeated labels take the diagonal, dimensions of 1 are broadcast. */
static void einsum_simplify(struct call *c, struct einsum *e, struct einsum_term *t)
{
    int shape[MAXD], labels[MAXD], n = 0;
    int64_t strides[MAXD];
    for (int i = 0; i < t->a->ndim; i++) {
        int label = t->label[i], k = 0;
        while (k < n && labels[k] != label) k++;
        if (k == n) { labels[n] = label; shape[n] = e->size[label]; strides[n++] = 0; }
        if (t->a->shape[i] == e->size[label]) strides[k] += t->a->strides[i];
    }
    memcpy(t->label, labels, (size_t)n * sizeof *labels);
    t->a = view_of(c, t->a, t->a->dtype, n, shape, strides, t->a->offset);
}

static bool has_label(const struct einsum_term *t, int label)
{
    for (int i = 0; i < t->a->ndim; i++) if (t->label[i] == label) return true;
    return false;
}

/* Is a label wanted by the result, or by a term other than i and j? */
static bool label_needed(const struct einsum *e, int label, int i, int j)
{
    for (int k = 0; k < e->out.count; k++) if (e->out.label[k] == label) return true;
    for (int k = 0; k < e->count; k++) if (k != i && k != j && has_label(&e->term[k], label)) return true;
    return false;
}

/* Sums term i over labels that neither term j nor anybody else has. */
static void einsum_sum(struct call *c, struct einsum *e, int i, int j)
{
    struct einsum_term *t = &e->term[i];
    uint32_t mask = 0;
    int n = 0;
    for (int k = 0; k < t->a->ndim; k++)
        if (!label_needed(e, t->label[k], i, j) && (i == j || !has_label(&e->term[j], t->label[k]))) mask |= 1u << k;
    if (!mask) return;
    for (int k = 0; k < t->a->ndim; k++) if (!(mask >> k & 1)) t->label[n++] = t->label[k];
    t->a = do_reduce(c, R_sum, t->a, mask, false);
}

/* A term's view with its dimensions in this order, of length 1 where it has no such label. */
static struct array *einsum_view(struct call *c, const struct einsum_term *t, const int *labels, int count)
{
    int shape[MAXD];
    int64_t strides[MAXD];
    if (c->code || !t->a) return NULL;
    for (int k = 0; k < count; k++) {
        shape[k] = 1;
        strides[k] = 0;
        for (int i = 0; i < t->a->ndim; i++)
            if (t->label[i] == labels[k]) { shape[k] = t->a->shape[i]; strides[k] = t->a->strides[i]; }
    }
    return view_of(c, t->a, t->a->dtype, count, shape, strides, t->a->offset);
}

/* The same with the dimensions behind the first `lead` made two, of which the first `rows` are one. */
static struct array *einsum_matrices(struct call *c, const struct einsum_term *t, const int *labels, int count,
                                     int lead, int rows)
{
    struct array *a = einsum_view(c, t, labels, count);
    int shape[MAXD + 2];
    int64_t size[2] = { 1, 1 };
    if (!a) return NULL;
    for (int i = 0; i < lead; i++) shape[i] = a->shape[i];
    for (int i = lead; i < count; i++) size[i >= lead + rows] *= a->shape[i];
    shape[lead] = length_of(c, a, (uint64_t)size[0]);
    shape[lead + 1] = length_of(c, a, (uint64_t)size[1]);
    return do_reshape(c, a, lead + 2, shape);
}

/* Contracts terms i < j into term i: a matrix product over labels that nobody else needs, or a product of elements. */
static void einsum_pair(struct call *c, struct einsum *e, int i, int j)
{
    struct einsum_term *a = &e->term[i], *b = &e->term[j];
    int both[MAXD], sums[MAXD], left[MAXD], right[MAXD], order[3 * MAXD], shape[3 * MAXD], nb = 0, ns = 0, nl = 0,
        nr = 0, n = 0;
    einsum_sum(c, e, i, j);
    if (!c->code) einsum_sum(c, e, j, i);
    if (c->code || !a->a || !b->a) return;
    for (int k = 0; k < a->a->ndim; k++) {
        if (!has_label(b, a->label[k])) left[nl++] = a->label[k];
        else if (label_needed(e, a->label[k], i, j)) both[nb++] = a->label[k];
        else sums[ns++] = a->label[k];
    }
    for (int k = 0; k < b->a->ndim; k++) if (!has_label(a, b->label[k])) right[nr++] = b->label[k];
    if (nb + nl + nr > MAXD || nb + 2 > MAXD) {
        FAIL(c, MLXVK_ERROR_SHAPE, "an intermediate result has more than %d dimensions", MAXD);
        return;
    }
    memcpy(order, both, (size_t)nb * sizeof *order);
    if (ns) {
        struct array *x, *y;
        memcpy(order + nb, left, (size_t)nl * sizeof *order);
        memcpy(order + nb + nl, sums, (size_t)ns * sizeof *order);
        x = einsum_matrices(c, a, order, nb + nl + ns, nb, nl);
        memcpy(order + nb, sums, (size_t)ns * sizeof *order);
        memcpy(order + nb + ns, right, (size_t)nr * sizeof *order);
        y = einsum_matrices(c, b, order, nb + ns + nr, nb, ns);
        x = do_matmul(c, x, y);
        memcpy(order + nb, left, (size_t)nl * sizeof *order);
        memcpy(order + nb + nl, right, (size_t)nr * sizeof *order);
        for (n = 0; n < nb + nl + nr; n++) shape[n] = e->size[order[n]];
        a->a = do_reshape(c, x, n, shape);
    } else {
        memcpy(order + nb, left, (size_t)nl * sizeof *order);
        memcpy(order + nb + nl, right, (size_t)nr * sizeof *order);
        n = nb + nl + nr;
        a->a = do_binary(c, B_multiply, einsum_view(c, a, order, n), einsum_view(c, b, order, n));
    }
    memcpy(a->label, order, (size_t)n * sizeof *order);
    memmove(b, b + 1, (size_t)(e->count - j - 1) * sizeof *b);
    e->count--;
}

/* What a pair costs: how much larger than its operands the result is, and, where that is equal, multiplications. */
struct einsum_cost { double growth, work; };

static struct einsum_cost einsum_cost(const struct einsum *e, int i, int j)
{
    const struct einsum_term *t[2] = { &e->term[i], &e->term[j] };
    struct einsum_cost cost = { .work = 1 };
    double size = 1;
    for (int which = 0; which < 2; which++)
        for (int k = 0; k < t[which]->a->ndim; k++) {
            if (which && has_label(t[0], t[1]->label[k])) continue;
            cost.work *= t[which]->a->shape[k];
            if (label_needed(e, t[which]->label[k], i, j)) size *= t[which]->a->shape[k];
        }
    cost.growth = size - (double)t[0]->a->size - (double)t[1]->a->size;
    return cost;
}

static struct array *do_einsum(struct call *c, const char *subscripts, const struct vector *v)
{
    struct einsum e = { .count = 0 };
    mlxvk_dtype to;
    if (!vector_dtype(c, v, &to) || !einsum_parse(c, &e, subscripts, v)) return NULL;
    for (int i = 0; i < e.count && !c->code; i++) {
        einsum_simplify(c, &e, &e.term[i]);
        /* half types round once */
        if (v->size > 2 && is_float(to)) e.term[i].a = as_type(c, e.term[i].a, MLXVK_FLOAT32);
    }
    while (e.count > 1 && !c->code) {                /* the pair that leaves least, first */
        int best[2] = { 0, 1 };
        struct einsum_cost least = { 0 };
        for (int i = 0; i < e.count; i++)
            for (int j = i + 1; j < e.count; j++) {
                struct einsum_cost cost = einsum_cost(&e, i, j);
                bool better = cost.growth < least.growth || (cost.growth == least.growth && cost.work < least.work);
                if ((i || j > 1) && !better) continue;
                least = cost;
                best[0] = i;
                best[1] = j;
            }
        einsum_pair(c, &e, best[0], best[1]);
    }
    if (c->code) return NULL;
    einsum_sum(c, &e, 0, 0);
    if (c->code) return NULL;
    if (v->size > 2 && is_float(to)) e.term[0].a = as_type(c, e.term[0].a, to);
    return einsum_view(c, &e.term[0], e.out.label, e.out.count);
}

int mlxvk_einsum(mlxvk_array *res, const char *subscripts, mlxvk_vector_array operands, mlxvk_stream s)
{
    struct call c = begin("einsum", s);
    return finish(&c, do_einsum(&c, subscripts, operands.ctx), res);
}

/* ==== >>hadamard ================================================================================================== */

/* of an index, that a step takes; that one workgroup takes of longer rows */
enum { HADAMARD_BITS = 4, HADAMARD_CHUNK = 12 };

/* n as m * 2^bits with m of 1, 12, 20, 28; 0 where it is no such number. */
static uint32_t hadamard_factor(uint32_t n, uint32_t *bits)
{
    static const uint32_t factors[] = { 1, 12, 20, 28 };
    for (size_t i = 0; i < COUNT(factors); i++)
        for (*bits = 0; *bits < 31 && n; ++*bits)
            if ((uint64_t)factors[i] << *bits == n) return factors[i];
    return 0;
}

/* Rows of m << bits elements that fit into shared memory. */
static void hadamard_rows(struct encoder *e, struct array *x, struct array *y, uint32_t m, uint32_t bits, float scale)
{
    struct hadamard_push p = { .count = (uint32_t)x->size, .scale = scale };
    uint32_t n = m << bits, length = n < 2048 ? 2048 / n * n : n, threads = 64;
    bool vector;
    p.dst_at = set_output(e, SLOT_hadamard_dst, y);
    p.src_at = set_input(e, SLOT_hadamard_src, x);
    vector = !((p.dst_at | p.src_at | length) & 3);
    while (threads < flat_threads(e->device) && threads * 16 < length) threads *= 2;
    USE(e, hadamard, &p, .threads = threads, .from = x->dtype, .to = y->dtype, .m = m, .k = bits, .length = length,
        .vector = vector);
    dispatch_groups(e, ceil_div(x->size, length));
}

/* One step over elements `stride` apart: m of them, or 1 << bits. */
static void hadamard_step(struct encoder *e, struct array *x, struct array *y, uint32_t m, uint32_t bits,
                          uint32_t stride, float scale)
{
    struct hadamard_step_push p = { .scale = scale, .stride = stride };
    p.count = (uint32_t)(x->size / (m > 1 ? m : 1u << bits));
    p.dst_at = set_output(e, SLOT_hadamard_step_dst, y);
    p.src_at = set_input(e, SLOT_hadamard_step_src, x);
    USE(e, hadamard_step, &p, .threads = flat_threads(e->device), .from = x->dtype, .to = y->dtype, .m = m,
        .k = m > 1 ? 0 : bits);
    dispatch_elements(e, p.count);
}

static void hadamard_part(struct encoder *e, struct array *const *a, const void *job)
{
    struct array *x = a[0], *y = a[1], *sums;
    uint32_t bits, m, size = (uint32_t)x->shape[1], done = HADAMARD_CHUNK;
    float scale = *(const float *)job;
    while ((4u << done) + (1u << done) / 8 > e->device->caps.shared_memory) done--;
    m = hadamard_factor(size, &bits);
    if ((uint64_t)size * 4 + size / 8 + 4 <= e->device->caps.shared_memory) hadamard_rows(e, x, y, m, bits, scale);
    else {
        if (y->dtype == MLXVK_FLOAT32) { sums = y; y->refs++; }
        else sums = scratch(e, x->size, MLXVK_FLOAT32);
        if (bits < done) done = bits;
        if (sums) hadamard_rows(e, x, sums, 1, done, 1);
        while (sums && (done < bits || m > 1)) {
            uint32_t step = bits - done < HADAMARD_BITS ? bits - done : HADAMARD_BITS, factor = step ? 1 : m;
            bool last = !step || (done + step == bits && m == 1);
            hadamard_step(e, sums, last ? y : sums, factor, step, 1u << done, last ? scale : 1);
            done += step;
            if (!step) break;
        }
        array_release(sums);
    }
}

static void lower_hadamard(struct encoder *e, const struct node *n)
{
    struct array *x = rows_of(e, n->in[0]), from = matrix_of(e, x), to = matrix_of(e, n->out[0]), sums = to;
    sums.dtype = MLXVK_FLOAT32;                      /* what lies between steps */
    in_parts(e, (struct array *[]){ &from, &to, &sums }, 3, 2, hadamard_part, &n->p.hadamard.scale);
    array_release(x);
}

int mlxvk_hadamard_transform(mlxvk_array *res, mlxvk_array a, mlxvk_optional_float scale, mlxvk_stream s)
{
    struct call c = begin("hadamard_transform", s);
    struct array *x = input(&c, "a", a), *out = NULL;
    uint32_t bits, size;
    if (x && !x->size) x = FAIL(&c, MLXVK_ERROR_SHAPE, "%s is empty", TEXT(x));
    if (x) {
        size = x->ndim ? (uint32_t)dim_of(x, -1) : 1;
        if (!hadamard_factor(size, &bits))
            FAIL(&c, MLXVK_ERROR_SHAPE, "rows of %s are not of m * 2^k elements, m of 1, 12, 20, 28", TEXT(x));
        x = as_type(&c, x, is_float(x->dtype) ? x->dtype : MLXVK_FLOAT32);
        if (x) out = output(&c, x->ndim, x->shape, x->dtype);
        append(&c, OP_HADAMARD, PARAMS(.hadamard = { scale.has_value ? scale.value : (float)(1 / sqrt((double)size)) }),
               ARRAYS(x), ARRAYS(out));
    }
    return finish(&c, out, res);
}

/* ==== >>convolution =============================================================================================== */

/* A convolution as conv.glsl sees it, a zero-dilated input taken apart. Axes outermost first; sizes in elements. */
enum { SPACE = 3 };

struct conv {
    struct array *in, *kernel, *out;
    int64_t batch, groups, channels, c, n;           /* channels of the input; input and output channels of a group */
    int64_t in_size[SPACE], out_size[SPACE], taps[SPACE], step[SPACE], tap_step[SPACE], base[SPACE];
    int64_t b_row, b_tap[SPACE], out_step[SPACE], in_batch, out_batch;
    int64_t in_first, b_first, out_first;
};

static int64_t conv_rows(const struct conv *v) { return v->batch * v->out_size[0] * v->out_size[1] * v->out_size[2]; }
static int64_t conv_depth(const struct conv *v) { return v->taps[0] * v->taps[1] * v->taps[2] * v->c; }
static double conv_work(const struct conv *v) { return (double)(conv_rows(v) * conv_depth(v) * v->n * v->groups); }

enum { CONV_UNFOLDED = 1 << 28 };                    /* bytes of a matrix written out, at most */
enum { CONV_ROUNDS = LOOP_MOST + 1 };          /* of K a workgroup with QUIRK_SHORT_LOOPS: an iteration takes several */

/* Do the result's positions follow each other in memory? */
static bool conv_linear(const struct conv *v)
{
    int64_t step = v->out_step[2];
    for (int i = SPACE - 1; i >= 0; step *= v->out_size[i], i--)
        if (v->out_step[i] != step) return false;
    return v->out_batch == step;
}

/* The convolution as a product of matrices, whose first one is the input itself only where the kernel has one tap. */
static struct product conv_product(const struct conv *v)
{
    struct product p = { .array = { v->in, v->kernel, NULL, v->out }, .m = conv_rows(v), .n = v->n, .k = conv_depth(v),
        .a_row = v->channels, .a_k = 1, .b_k = 1, .b_col = v->b_row, .out_row = v->out_step[2], .out_col = 1,
        .ndim = v->groups > 1, .shape = { v->groups },
        .stride = { [MAT_A] = { v->c }, [MAT_B] = { v->n * v->b_row }, [MAT_OUT] = { v->n } },
        .offset = { [MAT_A] = v->in_first, [MAT_B] = v->b_first, [MAT_OUT] = v->out_first }, .alpha = 1 };
    return p;
}

static struct conv_push bind_conv(struct encoder *e, const struct conv *v, struct array *out)
{
    struct conv_push q = {
        .M = (uint32_t)conv_rows(v), .N = (uint32_t)v->n, .C = (uint32_t)v->c, .channels = (uint32_t)v->channels,
        .b_row = (uint32_t)v->b_row, .part = (uint32_t)v->groups, .out_batch = (uint32_t)v->out_batch };
    q.offset_a = set_input(e, SLOT_conv_a, v->in) + (uint32_t)v->in_first;
    if (v->kernel) q.offset_b = set_input(e, SLOT_conv_b, v->kernel) + (uint32_t)v->b_first;
    q.offset_out = set_output(e, SLOT_conv_d, out) + (out == v->out ? (uint32_t)v->out_first : 0);
    for (int i = 0; i < SPACE; i++) {
        if (v->step[i] > 0xffff || v->tap_step[i] > 0xffff)
            encoder_fail(e, MLXVK_ERROR_LIMIT, 0, __LINE__, "convolution", "strides and dilations are at most 65535");
        q.steps[i] = (uint32_t)v->step[i] | (uint32_t)v->tap_step[i] << 16;
        q.out_size[i] = (uint32_t)v->out_size[i];
        q.in_size[i] = (uint32_t)v->in_size[i];
        q.taps[i] = (uint32_t)v->taps[i];
        q.base[i] = (uint32_t)v->base[i];
        q.b_tap[i] = (uint32_t)v->b_tap[i];
        q.out_step[i] = (uint32_t)v->out_step[i];
    }
    return q;
}

/* Bits: the input, the kernel, the result can be accessed `count` channels at a time; the result's rows follow on. */
static uint32_t conv_even(const struct conv *v, const struct conv_push *q, bool split, uint32_t count)
{
    uint32_t in = q->offset_a | q->channels | q->C, kernel = q->offset_b | q->b_row | q->C, out = q->offset_out | q->N;
    for (int i = 0; i < SPACE && !split; i++) out |= q->out_step[i];
    if (!split) out |= q->out_batch;
    return (in & (count - 1) ? 0u : 1u) | (kernel & (count - 1) ? 0u : 2u) | (out & (count - 1) ? 0u : 4u) |
           (conv_linear(v) ? 8u : 0u);
}

static void conv_plain(struct encoder *e, const void *job)
{
    const struct conv *v = job;
    struct conv_push q = bind_conv(e, v, v->out);
    USE(e, conv_plain, &q, .threads = flat_threads(e->device), .type = v->out->dtype,
        .vector = conv_even(v, &q, false, 4) & 3);
    dispatch_elements(e, (uint64_t)q.M * q.N * q.part);
}

static void conv_depthwise(struct encoder *e, const void *job)
{
    const struct conv *v = job;
    struct conv all = *v;
    struct conv_push q;
    uint32_t run = 4, even;
    uint64_t runs = (uint64_t)(v->batch * v->out_size[0] * v->out_size[1]) * ceil_div((uint64_t)v->out_size[2], run);
    all.n = all.c = v->channels;                     /* of all groups */
    q = bind_conv(e, &all, v->out);
    even = conv_even(&all, &q, false, 4);
    q.C = 1;
    USE(e, conv_depthwise, &q, .threads = flat_threads(e->device), .type = v->out->dtype, .run = run,
        .vector = (even & 1) | (even >> 1 & 2));
    dispatch_elements(e, runs * ceil_div((uint64_t)v->channels, 4));
}

/* By tiles, in float32 or (matrices) by cooperative matrices; K may be cut into parts. */
static void conv_tiles(struct encoder *e, const struct conv *v, bool matrices)
{
    bool deep = e->device->tuning->deep, bf16 = v->out->dtype == MLXVK_BFLOAT16;
    uint32_t type = (uint32_t)v->out->dtype, parts = 1, along = 2, even, lanes = e->device->caps.subgroup, epilogue;
    struct product p = conv_product(v);
    const struct tile_row *r = matrices ? choose_tile(e, &p, coopmat_rows, COUNT(coopmat_rows) - 1, &parts)
                                        : choose_tiled(e, &p, &parts);
    struct array *sums = NULL;
    struct conv_push q;
    if (!conv_linear(v) || (e->device->tuning->tile_count && !matrices)) parts = 1;
    if (e->device->caps.quirks & QUIRK_SHORT_LOOPS && conv_linear(v) && p.k > CONV_ROUNDS)
        parts = (uint32_t)ceil_div((uint64_t)p.k, CONV_ROUNDS);
    if (parts > 1) sums = parts_array(e, &p, parts);
    epilogue = sums ? EPILOGUE_PART : EPILOGUE_NONE;
    q = bind_conv(e, v, sums ? sums : v->out);
    q.part = ceil_div(ceil_div((uint64_t)p.k, parts), r->bk) * r->bk;
    parts = sums ? ceil_div((uint64_t)p.k, q.part) : 1;
    even = conv_even(v, &q, sums != NULL, matrices ? 8 : 4);
    if (matrices)
        USE_AS(e, bf16 ? K_CONV_COOPMAT_BF16 : K_CONV_COOPMAT_F16, conv_coopmat_f16, &q, .threads = r->threads * lanes,
               .type = type, .epilogue = epilogue, .bm = r->bm, .bn = r->bn, .bk = r->bk, .wm = r->tm, .wn = r->tn,
               .size = e->device->caps.coopmat_size[bf16], .lanes = lanes, .along = along, .aligned = even);
    else
        USE(e, conv_tiled, &q, .threads = r->threads, .type = type, .epilogue = epilogue, .bm = r->bm, .bn = r->bn,
            .bk = r->bk, .tm = r->tm, .tn = r->tn, .along = along, .vector = even, .unroll = deep ? r->bk : 1);
    dispatch(e, ceil_div(q.N, r->bn), ceil_div(q.M, r->bm), (uint32_t)v->groups * parts);
    if (sums) product_sum(e, &p, sums, parts);
    array_release(sums);
}

static void conv_tiled(struct encoder *e, const void *job) { conv_tiles(e, job, false); }
static void conv_coopmat(struct encoder *e, const void *job) { conv_tiles(e, job, true); }

static void conv_as_product(struct encoder *e, const void *job)
{
    struct product p = conv_product(job);
    product_batch(e, &p);
}

/* Rows of the first matrix that are written out at a time. */
static int64_t unfolded_rows(const struct encoder *e, const struct conv *v)
{
    int64_t room = (int64_t)min_size(CONV_UNFOLDED, e->device->caps.max_range / 2);
    return room / (conv_depth(v) * (int64_t)item_size(v->in));
}

/* Is the kernel a matrix as it lies in memory, and the input to be read in steps of 16 bytes? */
static bool conv_unfolds(const struct encoder *e, const struct conv *v)
{
    int64_t step = v->c, count = 16 / (int64_t)item_size(v->in);
    for (int i = SPACE - 1; i >= 0; step *= v->taps[i], i--)
        if (v->taps[i] > 1 && v->b_tap[i] != step) return false;
    return v->groups == 1 && conv_linear(v) && v->b_row == step && unfolded_rows(e, v) >= 128 &&
        !((v->c | v->in_first) % count || v->in->offset % 16);
}

/* By the kernels of matrix products, from the first matrix written out, some rows at a time. */
static void conv_unfolded(struct encoder *e, const void *job)
{
    const struct conv *v = job;
    struct conv input = *v;
    struct product p = conv_product(v);
    int64_t most = unfolded_rows(e, v), rows = p.m;
    uint32_t chunks = (uint32_t)(v->c * (int64_t)item_size(v->in) / 16);
    struct array *matrix;
    if (rows > most) rows = most / 128 * 128;
    matrix = scratch(e, (size_t)(rows * p.k), v->in->dtype);
    p.array[MAT_A] = matrix;
    p.a_row = p.k;
    p.offset[MAT_A] = 0;
    input.kernel = NULL;                             /* that is not read yet */
    for (int64_t at = 0; at < conv_rows(v) && !e->code; at += rows) {
        struct conv_push q = bind_conv(e, &input, matrix);
        p.m = conv_rows(v) - at < rows ? conv_rows(v) - at : rows;
        p.offset[MAT_OUT] = v->out_first + at * p.out_row;
        q.part = (uint32_t)at;
        q.N = (uint32_t)p.m;
        USE(e, conv_unfold, &q, .threads = flat_threads(e->device), .type = v->in->dtype);
        dispatch_elements(e, (uint64_t)p.m * chunks);
        product_batch(e, &p);
    }
    array_release(matrix);
}

/* ---- Winograd's way: winograd.comp ---- */

/* matrices; bytes of those of the input or the result, at most */
enum { WINOGRAD_POINTS = 36, WINOGRAD_BYTES = 1 << 28 };

static int64_t winograd_tiles(const struct conv *v)
{
    return v->batch * ceil_div((uint64_t)v->out_size[1], 4) * ceil_div((uint64_t)v->out_size[2], 4);
}

/* Tiles at a time: so many that what lies between the steps stays within bounds. */
static int64_t winograd_rows(const struct encoder *e, const struct conv *v)
{
    int64_t room = (int64_t)min_size(WINOGRAD_BYTES, e->device->caps.max_range), tiles = winograd_tiles(v);
    int64_t most = room / (4 * WINOGRAD_POINTS * (v->c > v->n ? v->c : v->n));
    return tiles <= most ? tiles : most / 128 * 128;
}

/* Is it a convolution by 3 x 3 in steps of 1? */
static bool conv_by_three(const struct encoder *e, const struct conv *v)
{
    bool plane = v->in_size[0] == 1 && v->out_size[0] == 1 && v->taps[0] == 1 && !v->base[0] && v->groups == 1;
    for (int i = 1; i < SPACE; i++) plane = plane && v->taps[i] == 3 && v->tap_step[i] == 1 && v->step[i] <= 1;
    return plane && v->c && winograd_rows(e, v) > 0 &&
        (size_t)(v->n * v->c) <= e->device->caps.max_range / (4 * WINOGRAD_POINTS);
}

static void winograd_step(struct encoder *e, const struct conv *v, uint32_t step, struct array *from, int64_t first,
                          struct array *to, int64_t tile, int64_t rows)
{
    struct conv one = *v;
    struct conv_push q;
    one.in = from;
    one.in_first = first;
    one.kernel = NULL;
    q = bind_conv(e, &one, to);
    q.part = (uint32_t)tile;
    q.M = (uint32_t)rows;
    USE(e, winograd, &q, .threads = flat_threads(e->device), .type = v->out->dtype, .step = step);
    dispatch_elements(e, (uint64_t)(rows * (step == WINOGRAD_RESULT ? v->n : v->c)));
}

/* In float32 between the steps, whatever the dtype. */
static void conv_winograd(struct encoder *e, const void *job)
{
    const struct conv *v = job;
    int64_t tiles = winograd_tiles(v), rows = winograd_rows(e, v);
    struct array *kernel = scratch(e, (size_t)(WINOGRAD_POINTS * v->n * v->c), MLXVK_FLOAT32);
    struct array *input = scratch(e, (size_t)(WINOGRAD_POINTS * rows * v->c), MLXVK_FLOAT32);
    struct array *result = scratch(e, (size_t)(WINOGRAD_POINTS * rows * v->n), MLXVK_FLOAT32);
    struct product p = { .array = { input, kernel, NULL, result }, .n = v->n, .k = v->c, .a_row = v->c, .a_k = 1,
                         .b_k = 1, .b_col = v->c, .out_row = v->n, .out_col = 1, .ndim = 1,
                         .shape = { WINOGRAD_POINTS }, .stride = { [MAT_B] = { v->n * v->c } }, .alpha = 1 };
    if (!e->code) winograd_step(e, v, WINOGRAD_KERNEL, v->kernel, v->b_first, kernel, 0, v->n);
    for (int64_t at = 0; at < tiles && !e->code; at += rows) {
        p.m = tiles - at < rows ? tiles - at : rows;
        p.stride[MAT_A][0] = p.m * v->c;
        p.stride[MAT_OUT][0] = p.m * v->n;
        winograd_step(e, v, WINOGRAD_INPUT, v->in, v->in_first, input, at, p.m);
        product_batch(e, &p);
        winograd_step(e, v, WINOGRAD_RESULT, result, 0, v->out, at, p.m);
    }
    array_release(kernel);
    array_release(input);
    array_release(result);
}

/* ---- choosing kernels ---- */

/* Channels and multiplications from which unfolding pays, and elements of the result from which it does not. */
enum { CONV_WIDE = 128, CONV_LARGE = 1 << 28, CONV_MANY = 1 << 24 };
/* products of an element from which few elements keep few threads busy */
enum { CONV_DEEP = 1 << 14, CONV_FEW = 1 << 16 };

/* One tap over every position: the input itself is the first matrix. */
static bool conv_pointwise(const struct conv *v)
{
    for (int i = 0; i < SPACE; i++)
        if (v->taps[i] != 1 || v->base[i] || v->in_size[i] != v->out_size[i] || (v->out_size[i] > 1 && v->step[i] != 1))
            return false;
    return conv_linear(v);
}

/* Are there more products of an element than an invocation has iterations? Tiles cut them into parts. */
static bool conv_too_deep(const struct device *d, const struct conv *v)
{
    return d->caps.quirks & QUIRK_SHORT_LOOPS && conv_depth(v) > CONV_DEEP;
}

/* Why no kernel of one dispatch can do it. */
static const char *conv_refused(const struct encoder *e, const struct conv *v)
{
    if (!conv_depth(v)) return "nothing to multiply";
    return conv_too_deep(e->device, v) ? "too many products of an element for this driver" : NULL;
}

static const char *conv_plain_fits(const struct encoder *e, const void *job)
{
    return conv_depth(job) ? conv_refused(e, job) : NULL;
}

static const char *conv_depthwise_fits(const struct encoder *e, const void *job)
{
    const struct conv *v = job;
    return v->c == 1 && v->n == 1 && v->groups > 1 && v->groups == v->channels ? conv_refused(e, v)
        : "not one channel a group, of all";
}

static const char *conv_tiled_fits(const struct encoder *e, const void *job)
{
    const struct conv *v = job;
    return !conv_depth(v) ? "nothing to multiply" : v->groups > e->device->caps.max_groups[2]
        ? "more groups than a grid" : NULL;
}

static const char *conv_coopmat_fits(const struct encoder *e, const void *job)
{
    const struct conv *v = job;
    bool bf16 = v->out->dtype == MLXVK_BFLOAT16;
    if (!bf16 && v->out->dtype != MLXVK_FLOAT16) return "no half type";
    if (!e->device->caps.coopmat_size[bf16] || !tile_fits(e, &coopmat_rows[0]) ||
        !has_kernel(e->device, bf16 ? K_CONV_COOPMAT_BF16 : K_CONV_COOPMAT_F16))
        return "the device lacks cooperative matrices";
    if (((v->c | v->channels | v->b_row | v->in_first | v->b_first) & 7) || v->in->offset % 16 ||
        v->kernel->offset % 16)
        return "channels are not of whole 16 bytes";
    return conv_too_deep(e->device, v) ? conv_refused(e, v) : conv_tiled_fits(e, v);
}

static const char *conv_product_fits(const struct encoder *e, const void *job)
{
    const struct conv *v = job;
    (void)e;
    return !conv_pointwise(v) ? "more than one tap" : !v->c ? "nothing to multiply" : NULL;
}

static const char *conv_unfolded_fits(const struct encoder *e, const void *job)
{
    const char *refusal = conv_refused(e, job);
    return refusal || conv_unfolds(e, job) ? refusal : "the kernel is no matrix in memory";
}

static const char *conv_winograd_fits(const struct encoder *e, const void *job)
{
    if (!e->device->gate[GATE_WINOGRAD]) return "a gate";
    return conv_by_three(e, job) ? conv_refused(e, job) : "not by 3 x 3 in steps of 1";
}

/* Costs are as those of products. INFINITY: not where nobody asks for it. */
static double conv_plain_cost(const struct encoder *e, const void *v)
{
    return speed_cost(e, conv_work(v), PLAIN_SPEED, 1);
}

static double conv_depthwise_cost(const struct encoder *e, const void *v) { return conv_plain_cost(e, v) / 10; }

/* Plenty of products for few elements: by tiles, which are cut into parts. */
static bool conv_deep(const struct conv *v)
{
    return conv_depth(v) > CONV_DEEP && conv_linear(v) && conv_rows(v) * v->n * v->groups < CONV_FEW;
}

static double conv_tiled_cost(const struct encoder *e, const void *job)
{
    const struct conv *v = job;
    return v->n < 8 && !conv_deep(v) ? INFINITY : speed_cost(e, conv_work(v), 1.5, conv_deep(v) ? 1 : SMALL_PRODUCT);
}

static double conv_coopmat_cost(const struct encoder *e, const void *job)
{
    const struct conv *v = job;
    return v->n < 16 || conv_depth(v) < 32 || conv_deep(v) ? INFINITY : speed_cost(e, conv_work(v), 4, SMALL_PRODUCT);
}

/* Nothing but the product, where one channel a group does not leave its tiles empty. */
static double conv_product_cost(const struct encoder *e, const void *job)
{
    const struct conv *v = job;
    return v->c == 1 && v->n == 1 && v->groups > 1 ? conv_plain_cost(e, v) : speed_cost(e, conv_work(v), 14, 1);
}

/* By cooperative matrices 2; the first matrix is written and read besides. */
static double conv_unfolded_cost(const struct encoder *e, const void *job)
{
    const struct conv *v = job;
    struct product p = conv_product(v);
    double matrix = (double)conv_rows(v) * (double)conv_depth(v) * (double)item_size(v->in);
    if (v->n < CONV_WIDE || v->n & 7 || conv_work(v) < CONV_LARGE || conv_rows(v) * v->n >= CONV_MANY ||
        v->out->offset % 16 || half_fits(e, &p, K_MATMUL_COOPMAT2_F16, K_MATMUL_COOPMAT2_BF16) ||
        e->device->gate[GATE_MATMUL_KERNEL]) return INFINITY;
    return speed_cost(e, conv_work(v), 14, 1) + matrix / e->device->tuning->bandwidth;
}

/* In float32 products, by tiles of 64 rows. A few multiplications are not worth the steps. */
static double conv_winograd_cost(const struct encoder *e, const void *job)
{
    const struct conv *v = job;
    double tiles = (double)winograd_tiles(v), pairs = (double)(v->n * v->c), padded = ceil((double)tiles / 64) * 64;
    double bytes = 4 * (2 * WINOGRAD_POINTS + 16) * tiles * (double)(v->n + v->c) + 8 * WINOGRAD_POINTS * pairs;
    double work = WINOGRAD_POINTS * padded * pairs + e->device->tuning->winograd_byte * bytes;
    if (conv_work(v) < 1 << 26 || work >= conv_work(v) || !conv_coopmat_fits(e, v)) return INFINITY;
    return speed_cost(e, work, 1.5, 1);
}

/* In the order of MLX_VK_CONV_KERNEL. */
static const struct candidate conv_ways[] = {
    { "conv_plain",                  conv_plain_fits,     conv_plain_cost,     conv_plain },
    { "conv_depthwise",              conv_depthwise_fits, conv_depthwise_cost, conv_depthwise },
    { "conv_tiled",                  conv_tiled_fits,     conv_tiled_cost,     conv_tiled },
    { "conv_coopmat",                conv_coopmat_fits,   conv_coopmat_cost,   conv_coopmat },
    { "a matrix product",            conv_product_fits,   conv_product_cost,   conv_as_product },
    { "conv_unfold and a product",   conv_unfolded_fits,  conv_unfolded_cost,  conv_unfolded },
    { "winograd",                    conv_winograd_fits,  conv_winograd_cost,  conv_winograd },
};

static void conv_choose(struct encoder *e, const struct conv *v)
{
    const struct candidate *way = choose(e, conv_ways, COUNT(conv_ways), e->device->gate[GATE_CONV_KERNEL], NOTE_CONV,
                                         v, NOTED(e->device, NOTE_CONV, TEXT(v->in)));
    if (way) way->plan(e, v);
    else encoder_fail(e, MLXVK_ERROR_LIMIT, 0, __LINE__, "convolution", "too many groups and products for this driver");
}

/* With the result in memory of its own, where its positions follow each other, and copied from there. */
static void conv_aside(struct encoder *e, const struct conv *v)
{
    struct conv one = *v;
    struct array to = *v->out, from, *sums = scratch(e, (size_t)(conv_rows(v) * v->n * v->groups), v->out->dtype);
    if (!sums) return;
    one.out = sums;
    one.out_first = 0;
    one.out_batch = v->n * v->groups;
    for (int i = SPACE - 1; i >= 0; one.out_batch *= v->out_size[i], i--) one.out_step[i] = one.out_batch;
    conv_choose(e, &one);
    to.refs = 1;
    to.ndim = SPACE + 2;
    to.size = sums->size;
    to.row = false;
    to.offset += v->out_first * (int64_t)item_size(&to);
    to.shape[0] = (int)v->batch;
    to.strides[0] = v->out_batch;
    for (int i = 0; i < SPACE; i++) { to.shape[1 + i] = (int)v->out_size[i]; to.strides[1 + i] = v->out_step[i]; }
    to.shape[SPACE + 1] = (int)(v->n * v->groups);
    to.strides[SPACE + 1] = 1;
    from = to;
    from.storage = sums->storage;
    from.offset = 0;
    from.row = true;
    row_strides(from.ndim, from.shape, from.strides);
    if (!e->code) copy_elements(e, &to, &from);
    array_release(sums);
}

/* ---- from MLX's parameters to kernels' ---- */

/* `size` elements from `first` on: a view for the caller's stack, which begins there. */
static struct array *narrowed(struct array *view, const struct array *a, int64_t *first, int64_t size)
{
    *view = *a;
    view->refs = 1;
    view->ndim = 1;
    view->shape[0] = (int)(size < INT_MAX ? size : INT_MAX);
    view->strides[0] = 1;
    view->size = (size_t)size;
    view->offset += *first * (int64_t)item_size(a);
    *first = 0;
    return view;
}

/* Leaves out what the result's positions do not meet of the input's outermost axis, where that is one image. */
static void conv_crop(struct conv *v)
{
    int64_t low, high, step = v->channels;
    int axis = 0;
    while (axis < SPACE - 1 && v->in_size[axis] == 1) axis++;
    if (v->batch > 1) return;
    low = v->base[axis] > 0 ? v->base[axis] : 0;
    high = v->base[axis] + (v->out_size[axis] - 1) * v->step[axis] + (v->taps[axis] - 1) * v->tap_step[axis] + 1;
    if (high > v->in_size[axis]) high = v->in_size[axis];
    if (high <= low) { low = 0; high = 1; }          /* nothing: then this does not matter */
    for (int i = SPACE - 1; i > axis; i--) step *= v->in_size[i];
    v->in_first += low * step;
    v->base[axis] -= low;
    v->in_size[axis] = high - low;
}

/* Half of the images, of the positions along an axis, of the groups, or of the output channels, whichever are several;
 * false where nothing is. */
static bool conv_half(struct conv *v, bool second)
{
    int64_t *what = v->batch > 1 ? &v->batch : v->groups > 1 ? &v->groups : &v->n, first;
    int64_t in = 0, b = v->b_row, out = 1;
    int axis = 0;
    while (axis < SPACE && v->out_size[axis] == 1) axis++;
    if (v->batch > 1) { in = v->in_batch; out = v->out_batch; b = 0; }
    else if (axis < SPACE) { what = &v->out_size[axis]; out = v->out_step[axis]; b = 0; }
    else if (v->groups > 1) { in = v->c; out = v->n; b = v->n * v->b_row; }
    first = *what / 2;
    if (!first) return false;
    *what = second ? *what - first : first;
    if (!second) return true;
    if (what == &v->out_size[axis]) v->base[axis] += first * v->step[axis];
    v->in_first += first * in;
    v->out_first += first * out;
    v->b_first += first * b;
    return true;
}

static bool conv_fits(const struct encoder *e, const struct conv *v)
{
    return fits_binding(e->device, v->in) && fits_binding(e->device, v->out) && fits_binding(e->device, v->kernel);
}

/* The same with arrays, which are the caller's, of what it reads and writes. */
static struct conv conv_narrow(const struct conv *v, struct array view[3])
{
    struct conv part = *v;
    int64_t points = v->batch * v->in_size[0] * v->in_size[1] * v->in_size[2];
    int64_t within = v->b_row ? v->b_first % v->b_row : 0, spread = v->n * v->groups + (v->batch - 1) * v->out_batch;
    for (int i = 0; i < SPACE; i++) spread += (v->out_size[i] - 1) * v->out_step[i];
    part.b_first -= within;
    part.in = narrowed(&view[0], v->in, &part.in_first, points ? (points - 1) * v->channels + v->groups * v->c : 0);
    part.out = narrowed(&view[1], v->out, &part.out_first, spread);
    part.kernel = narrowed(&view[2], v->kernel, &part.b_first, v->n * v->groups * v->b_row);
    part.b_first = within;
    return part;
}

/* In halves where the grid, in rows of the smallest tiles, or bindings do not take all of it. */
static void conv_parts(struct encoder *e, const struct conv *v)
{
    struct array view[3];
    struct conv part = conv_fits(e, v) ? *v : conv_narrow(v, view), half = *v;
    if ((conv_rows(v) <= (int64_t)32 * e->device->caps.max_groups[1] && conv_fits(e, &part) &&
         !too_long(e, conv_work(v))) || !conv_half(&half, false)) {
        set_work(e, conv_work(v));
        if (conv_too_deep(e->device, v) && !conv_linear(v)) conv_aside(e, &part);
        else conv_choose(e, &part);
        return;
    }
    for (int second = 0; second < 2 && !e->code; second++) {
        half = *v;
        conv_half(&half, second);
        if (!fits_binding(e->device, part.in)) conv_crop(&half);
        conv_parts(e, &half);
    }
}

/* One axis, for those positions o of the result with o % (how many there are) == which. At these, tap t meets the input
 * at o * stride - low + t * kernel_dilation, which a dilated input has at multiples of input_dilation only: every few
 * taps. Returns how many remainders there are. */
static int64_t conv_axis(struct conv *v, int axis, int64_t size, int64_t taps, const struct conv_params *p,
                         int64_t which)
{
    int64_t stride = p->stride[axis], low = p->low[axis], across = p->kernel_dilation[axis],
        within = p->input_dilation[axis];
    int64_t count = within / common_divisor(stride, within), every = within / common_divisor(across, within), first = 0;
    int64_t start = which * stride - low, unit = v->b_tap[axis];
    while (first < every && (start + first * across) % within) first++;
    v->out_size[axis] = which < size ? (size - which + count - 1) / count : 0;
    v->taps[axis] = first < every && first < taps ? (taps - first + every - 1) / every : 0;
    v->base[axis] = v->taps[axis] ? (start + first * across) / within : 0;
    v->step[axis] = v->out_size[axis] > 1 ? stride * count / within : 0;
    v->tap_step[axis] = v->taps[axis] > 1 ? across * every / within : 0;
    v->b_first += unit * (p->flip ? taps - 1 - first : first);
    v->b_tap[axis] = unit * (p->flip ? -every : every);
    v->out_first += which * v->out_step[axis];
    v->out_step[axis] *= count;
    return count;
}

/* A dispatch for each remainder that a dilated input has. */
static void conv_remainders(struct encoder *e, const struct conv_params *p, struct array *in, struct array *kernel,
                            struct array *out)
{
    int space = out->ndim - 2, lead = SPACE - space;
    int64_t counts[SPACE] = { 1, 1, 1 };
    struct conv v = { .in = in, .kernel = kernel, .out = out, .batch = out->shape[0], .groups = p->groups,
                      .channels = dim_of(in, -1), .c = dim_of(kernel, -1), .n = dim_of(out, -1) / p->groups,
                      .in_size = { 1, 1, 1 } };
    int64_t taps[SPACE] = { 1, 1, 1 }, sizes[SPACE] = { 1, 1, 1 }, in_units = v.channels, b_units = v.c,
        out_units = dim_of(out, -1);
    for (int i = SPACE - 1; i >= 0; i--) {
        if (i >= lead) {
            v.in_size[i] = in->shape[1 + i - lead];
            taps[i] = kernel->shape[1 + i - lead];
            sizes[i] = out->shape[1 + i - lead];
        }
        v.b_tap[i] = b_units;
        v.out_step[i] = out_units;
        b_units *= taps[i];
        in_units *= v.in_size[i];
        out_units *= sizes[i];
    }
    v.b_row = b_units;
    v.in_batch = in_units;
    v.out_batch = out_units;
    for (int i = 0; i < SPACE; i++) {
        struct conv probe = v;
        counts[i] = conv_axis(&probe, i, sizes[i], taps[i], p, 0);
    }
    for (int64_t x = 0; x < counts[0] && x < sizes[0]; x++)
        for (int64_t y = 0; y < counts[1] && y < sizes[1]; y++)
            for (int64_t z = 0; z < counts[2] && z < sizes[2]; z++) {
                struct conv one = v;
                conv_axis(&one, 0, sizes[0], taps[0], p, x);
                conv_axis(&one, 1, sizes[1], taps[1], p, y);
                conv_axis(&one, 2, sizes[2], taps[2], p, z);
                if (!(one.taps[0] && one.taps[1] && one.taps[2])) one.b_first = 0;
                conv_parts(e, &one);
            }
}

static void lower_convolution(struct encoder *e, const struct node *n)
{
    struct array *in = rows_of(e, n->in[0]), *kernel = rows_of(e, n->in[1]);
    conv_remainders(e, &n->p.conv, in, kernel, n->out[0]);
    array_release(in);
    array_release(kernel);
}

/* ---- fronts ---- */

/* One value a spatial axis; one for all of them, or none, is allowed too. */
struct ints { const int *values; size_t count; };
struct conv_sizes { struct ints stride, low, high, kernel_dilation, input_dilation; };

static bool conv_values(struct call *c, const char *name, struct ints from, int space, int missing, int least, int *to)
{
    if (from.count > 1 && from.count != (size_t)space)
        return FAIL(c, MLXVK_ERROR_ARGUMENT, "%zu values of %s for %d spatial axes", from.count, name, space), false;
    if (from.count && !from.values) return FAIL(c, MLXVK_ERROR_ARGUMENT, "%s is NULL", name), false;
    for (int i = 0; i < space; i++) {
        to[i] = from.count ? from.values[from.count == 1 ? 0 : i] : missing;
        if (to[i] < least) return FAIL(c, MLXVK_ERROR_ARGUMENT, "%s is %d; at least %d", name, to[i], least), false;
    }
    return true;
}

static bool check_conv(struct call *c, const struct array *in, const struct array *w, int groups)
{
    if (in->ndim < 3 || in->ndim > 5)
        return FAIL(c, MLXVK_ERROR_SHAPE, "input %s: (batch, 1 to 3 spatial axes, channels) is expected", TEXT(in)),
            false;
    if (w->ndim != in->ndim)
        return FAIL(c, MLXVK_ERROR_SHAPE, "weight %s has not as many axes as input %s", TEXT(w), TEXT(in)), false;
    if (!is_float(in->dtype) || !is_float(promote(in->dtype, w->dtype)))
        return FAIL(c, MLXVK_ERROR_DTYPE, "input %s, weight %s: floating dtypes only", TEXT(in), TEXT(w)), false;
    if (groups < 1) return FAIL(c, MLXVK_ERROR_ARGUMENT, "%d groups", groups), false;
    if (groups > 1 && in->ndim == 5)
        return FAIL(c, MLXVK_ERROR_ARGUMENT, "groups of three-dimensional convolutions are not supported"), false;
    if (dim_of(in, -1) % groups || w->shape[0] % groups)
        return FAIL(c, MLXVK_ERROR_SHAPE, "the channels of input %s and weight %s are not multiples of %d groups",
                    TEXT(in), TEXT(w), groups), false;
    if (dim_of(in, -1) / groups != dim_of(w, -1))
        return FAIL(c, MLXVK_ERROR_SHAPE, "input %s in %d groups does not have the channels of weight %s", TEXT(in),
                    groups, TEXT(w)), false;
    return true;
}

/* Negative padding cuts from the input, before it is dilated. */
static struct array *conv_cut(struct call *c, struct array *in, int *low, int *high)
{
    int start[MAXD] = { 0 }, stop[MAXD], step[MAXD];
    bool cut = false;
    for (int i = 0; i < in->ndim; i++) {
        int *lo = &low[i - 1], *hi = &high[i - 1];
        stop[i] = in->shape[i];
        step[i] = 1;
        if (i == 0 || i == in->ndim - 1) continue;
        if (*lo < 0) { start[i] = *lo < -in->shape[i] ? in->shape[i] : -*lo; *lo = 0; cut = true; }
        if (*hi < 0) { stop[i] = *hi < -in->shape[i] ? 0 : in->shape[i] + *hi; *hi = 0; cut = true; }
        if (stop[i] < start[i]) stop[i] = start[i];
    }
    return cut ? do_slice(c, in, start, stop, step) : in;
}

static struct array *do_conv(struct call *c, struct array *in, struct array *w, const struct conv_sizes *s, int groups,
                             bool flip)
{
    struct conv_params p = { .groups = groups, .flip = flip };
    int high[SPACE], low[SPACE], space, shape[SPACE + 2];
    int *const all[4] = { p.stride, p.low, p.kernel_dilation, p.input_dilation };
    mlxvk_dtype t;
    struct array *out;
    if (c->code || !in || !w || !check_conv(c, in, w, groups)) return NULL;
    space = in->ndim - 2;
    if (!conv_values(c, "stride", s->stride, space, 1, 1, p.stride) ||
        !conv_values(c, "padding", s->low, space, 0, INT_MIN, low) ||
        !conv_values(c, "padding", s->high, space, 0, INT_MIN, high) ||
        !conv_values(c, "kernel_dilation", s->kernel_dilation, space, 1, 1, p.kernel_dilation) ||
        !conv_values(c, "input_dilation", s->input_dilation, space, 1, 1, p.input_dilation)) return NULL;
    t = promote(in->dtype, w->dtype);
    in = conv_cut(c, as_type(c, in, t), low, high);
    w = as_type(c, w, t);
    if (c->code || !in || !w) return NULL;
    for (int i = 0; i < space; i++) {
        int64_t inside = 1 + (int64_t)p.input_dilation[i] * (in->shape[1 + i] - 1) + low[i] + high[i];
        int64_t kernel = 1 + (int64_t)p.kernel_dilation[i] * (w->shape[1 + i] - 1);
        /* as MLX: one position where less than a stride is missing */
        int64_t size = (inside - kernel) / p.stride[i] + 1;
        if (size < 1 || !w->shape[1 + i])
            return FAIL(c, MLXVK_ERROR_SHAPE, "input %s with padding %d + %d is smaller than weight %s along axis %d",
                        TEXT(in), low[i], high[i], TEXT(w), 1 + i);
        if (inside > INT_MAX || kernel > INT_MAX)
            return FAIL(c, MLXVK_ERROR_LIMIT, "axis %d has more than %d positions", 1 + i, INT_MAX);
        shape[1 + i] = (int)size;
        p.low[i] = low[i];
    }
    shape[0] = in->shape[0];
    shape[1 + space] = w->shape[0];
    out = output(c, in->ndim, shape, t);
    for (int k = 0; k < 4; k++) {                    /* to the last of three axes */
        memmove(all[k] + SPACE - space, all[k], (size_t)space * sizeof **all);
        for (int i = 0; i < SPACE - space; i++) all[k][i] = k != 1;
    }
    append(c, OP_CONVOLUTION, PARAMS(.conv = p), ARRAYS(in, w), ARRAYS(out));
    return out;
}

int mlxvk_conv_general(mlxvk_array *res, mlxvk_array input_, mlxvk_array weight, const int *stride, size_t stride_num,
                       const int *padding_lo, size_t padding_lo_num, const int *padding_hi, size_t padding_hi_num,
                       const int *kernel_dilation, size_t kernel_dilation_num, const int *input_dilation,
                           size_t input_dilation_num,
                       int groups, bool flip, mlxvk_stream s)
{
    struct call c = begin("conv_general", s);
    struct array *x = input(&c, "input", input_), *w = input(&c, "weight", weight);
    struct conv_sizes sizes = { { stride, stride_num }, { padding_lo, padding_lo_num }, { padding_hi, padding_hi_num },
                                { kernel_dilation, kernel_dilation_num }, { input_dilation, input_dilation_num } };
    return finish(&c, do_conv(&c, x, w, &sizes, groups, flip), res);
}

static int conv(mlxvk_array *res, const char *name, mlxvk_array in, mlxvk_array weight, const int *stride,
                const int *padding, const int *dilation, int space, int groups, mlxvk_stream s)
{
    struct call c = begin(name, s);
    struct array *x = input(&c, "input", in), *w = input(&c, "weight", weight);
    size_t n = (size_t)space;
    struct conv_sizes sizes = { { stride, n }, { padding, n }, { padding, n }, { dilation, n }, { NULL, 0 } };
    return finish(&c, do_conv(&c, x, w, &sizes, groups, false), res);
}

int mlxvk_conv1d(mlxvk_array *res, mlxvk_array input, mlxvk_array weight, int stride, int padding, int dilation,
                 int groups, mlxvk_stream s)
{
    return conv(res, "conv1d", input, weight, &stride, &padding, &dilation, 1, groups, s);
}

int mlxvk_conv2d(mlxvk_array *res, mlxvk_array input, mlxvk_array weight, int stride_0, int stride_1, int padding_0,
                 int padding_1, int dilation_0, int dilation_1, int groups, mlxvk_stream s)
{
    return conv(res, "conv2d", input, weight, (int[]){ stride_0, stride_1 }, (int[]){ padding_0, padding_1 },
                (int[]){ dilation_0, dilation_1 }, 2, groups, s);
}

int mlxvk_conv3d(mlxvk_array *res, mlxvk_array input, mlxvk_array weight, int stride_0, int stride_1, int stride_2,
                 int padding_0, int padding_1, int padding_2, int dilation_0, int dilation_1, int dilation_2,
    int groups, mlxvk_stream s)
{
    return conv(res, "conv3d", input, weight, (int[]){ stride_0, stride_1, stride_2 },
                (int[]){ padding_0, padding_1, padding_2 }, (int[]){ dilation_0, dilation_1, dilation_2 }, 3, groups,
                    s);
}

/* A convolution over the input with stride - 1 zeros between its elements, by the mirrored kernel. */
static int conv_transpose(mlxvk_array *res, const char *name, mlxvk_array in, mlxvk_array weight, const int *stride,
        const int *padding, const int *dilation, const int *output_padding, int space, int groups, mlxvk_stream s)
{
    struct call c = begin(name, s);
    struct array *x = input(&c, "input", in), *w = input(&c, "weight", weight);
    int low[SPACE] = { 0 }, high[SPACE] = { 0 };
    size_t n = (size_t)space;
    struct conv_sizes sizes = { { NULL, 0 }, { low, n }, { high, n }, { dilation, n }, { stride, n } };
    if (x && w && (x->ndim != space + 2 || w->ndim != space + 2))
        FAIL(&c, MLXVK_ERROR_SHAPE, "input %s and weight %s: %d axes are expected", TEXT(x), TEXT(w), space + 2);
    for (int i = 0; i < space && x && w && !c.code; i++) {
        int64_t reach = (int64_t)dilation[i] * (w->shape[1 + i] - 1), lo = reach - padding[i],
            hi = lo + output_padding[i];
        if (lo > INT_MAX || lo < INT_MIN || hi > INT_MAX || hi < INT_MIN)
            FAIL(&c, MLXVK_ERROR_ARGUMENT, "padding %d is too large", padding[i]);
        low[i] = (int)lo;
        high[i] = (int)hi;
    }
    return finish(&c, do_conv(&c, x, w, &sizes, groups, true), res);
}

int mlxvk_conv_transpose1d(mlxvk_array *res, mlxvk_array input, mlxvk_array weight, int stride, int padding,
                           int dilation, int output_padding, int groups, mlxvk_stream s)
{
    return conv_transpose(res, "conv_transpose1d", input, weight, &stride, &padding, &dilation, &output_padding, 1,
                          groups, s);
}

int mlxvk_conv_transpose2d(mlxvk_array *res, mlxvk_array input, mlxvk_array weight, int stride_0, int stride_1,
                           int padding_0, int padding_1, int dilation_0, int dilation_1, int output_padding_0,
    int output_padding_1, int groups, mlxvk_stream s)
{
    return conv_transpose(res, "conv_transpose2d", input, weight, (int[]){ stride_0, stride_1 },
                          (int[]){ padding_0, padding_1 }, (int[]){ dilation_0, dilation_1 },
                          (int[]){ output_padding_0, output_padding_1 }, 2, groups, s);
}

int mlxvk_conv_transpose3d(mlxvk_array *res, mlxvk_array input, mlxvk_array weight, int stride_0, int stride_1,
                           int stride_2, int padding_0, int padding_1, int padding_2, int dilation_0, int dilation_1,
    int dilation_2, int output_padding_0, int output_padding_1, int output_padding_2, int groups, mlxvk_stream s)
{
    return conv_transpose(res, "conv_transpose3d", input, weight, (int[]){ stride_0, stride_1, stride_2 },
                          (int[]){ padding_0, padding_1, padding_2 }, (int[]){ dilation_0, dilation_1, dilation_2 },
                          (int[]){ output_padding_0, output_padding_1, output_padding_2 }, 3, groups, s);
}

/* ==== >>attention ================================================================================================= */

/* One attention: o (B, L, H, Dv) seen as (B, H, L, Dv); mask and sinks may be NULL. Of the keys that k and v have, the
 * first `keys` count. */
struct attention { struct array *o, *q, *k, *v, *mask, *sinks; uint32_t flags, keys; float scale; };

static const char *attention_text(const struct array *q, const struct array *k, const struct array *v, uint32_t flags,
                                  char text[NOTE_TEXT])
{
    const char *mask = flags & ATTEND_CAUSAL ? "causal" : flags & ATTEND_MASK_BOOL ? "bool"
                     : flags & ATTEND_MASK_ADDS ? "additive" : "none";
    snprintf(text, NOTE_TEXT, "%s, batch %d, heads %d on %d, queries %u, keys up to %u, width %d and %d, mask %s",
             dtypes[q->dtype].name, q->shape[0], q->shape[1], k->shape[1], size_class((uint32_t)q->shape[2]),
             size_class((uint32_t)k->shape[2]), q->shape[3], v->shape[3], mask);
    return text;
}
#define ATTENTION(a) attention_text((a)->q, (a)->k, (a)->v, (a)->flags, (char[NOTE_TEXT]){ 0 })

/* Heads of queries for one of keys. */
static uint32_t head_group(const struct attention *a) { return (uint32_t)(a->q->shape[1] / a->k->shape[1]); }

/* Can all features be read by 16 bytes? */
static bool reads_wide(const struct encoder *e, const struct attention *a)
{
    const struct array *operands[] = { a->q, a->k, a->v };
    uint32_t unit = 16 / (uint32_t)item_size(a->q);
    for (int i = 0; i < 3; i++)
        if (!operands[i]->shape[3] || operands[i]->shape[3] % 8 ||
            !aligned_rows(operands[i], place_of_array(e, operands[i]), unit)) return false;
    return true;
}

static void copy_strides(uint32_t *to, const struct array *a, int count)
{
    for (int i = 0; i < count; i++) to[i] = (uint32_t)a->strides[i];
}

/* Binds the operands. folded: all heads that share keys go together. How many keys there are is a late parameter: steps
 * depend on it as decode_cut says, others not. */
static struct attention_push bind_attention(struct encoder *e, const struct attention *a, bool folded)
{
    struct attention_push p = { .batches = (uint32_t)a->q->shape[0], .query_heads = (uint32_t)a->q->shape[1],
        .query_count = (uint32_t)a->q->shape[2], .key_count = a->keys, .splits = 1,
        .key_width = (uint32_t)a->q->shape[3], .value_width = (uint32_t)a->v->shape[3], .group_size = head_group(a),
        .flags = a->flags | (folded ? ATTEND_FOLDED : 0), .scale = a->scale * 1.44269504088896341f,
        .o_stride = { (uint32_t)a->o->strides[0], (uint32_t)a->o->strides[2] } };
    set_late(e, offsetof(struct attention_push, key_count));
    p.o_at = set_output(e, SLOT_attention_o, a->o);
    p.q_at = set_input(e, SLOT_attention_q, a->q);
    p.k_at = set_input(e, SLOT_attention_k, a->k);
    p.v_at = set_input(e, SLOT_attention_v, a->v);
    copy_strides(p.q_stride, a->q, 3);
    copy_strides(p.k_stride, a->k, 3);
    copy_strides(p.v_stride, a->v, 3);
    if (a->mask) { p.mask_at = set_input(e, SLOT_attention_mask, a->mask); copy_strides(p.mask_stride, a->mask, 4); }
    if (a->sinks) p.sinks_at = set_input(e, SLOT_attention_sinks, a->sinks);
    return p;
}

/* As many workgroups as blocks of `rows` queries, of one head or of all that share keys, make. */
static void dispatch_rows(struct encoder *e, const struct attention_push *p, uint32_t rows)
{
    uint32_t heads = p->flags & ATTEND_FOLDED ? p->group_size : 1;
    uint64_t blocks = (uint64_t)ceil_div((uint64_t)p->query_count * heads, rows) * (p->query_heads / heads);
    dispatch_groups(e, blocks * p->splits * p->batches);
}

enum { ATTEND_WIDTH = 256 };                         /* features at most */

/* Shared memory of attention.comp: a tile of 32 keys, and for each row its query, weights and partial sums. */
static uint32_t attention_memory(uint32_t rows, uint32_t wide) { return 4 * (32 * 65 + rows * (wide + 42)); }

static void attention_general(struct encoder *e, const void *job)
{
    const struct attention *a = job;
    bool folded = a->q->shape[2] < 32;
    struct attention_push p = bind_attention(e, a, folded);
    uint32_t wide = p.key_width > p.value_width ? p.key_width : p.value_width, rows;
    wide = wide <= 64 ? 64 : wide <= 128 ? 128 : ATTEND_WIDTH;
    rows = p.query_count * (folded ? p.group_size : 1) <= 8 ? 8 : wide > 128 ? 16 : 32;
    while (attention_memory(rows, wide) > e->device->caps.shared_memory) rows /= 2;
    USE(e, attention, &p, .threads = 4 * rows, .dtype = (uint32_t)a->q->dtype, .rows = rows, .width = wide,
        .aligned = reads_wide(e, a));
    dispatch_rows(e, &p, rows);
}

/* Where the gate says how many queries share what a workgroup reads, all else is as on a GPU. */
static const struct decode_row *decode_tuning(const struct encoder *e)
{
    return &(e->device->gate[GATE_SDPA_ROWS] ? &tunings[1] : e->device->tuning)->decode;
}

/* Queries of a workgroup; the kernel has at most 8. */
static uint32_t decode_rows(const struct encoder *e)
{
    uint32_t forced = (uint32_t)e->device->gate[GATE_SDPA_ROWS];
    return forced ? min_u32(forced, 8) : decode_tuning(e)->rows;
}

enum { SPLIT_MOST = 128, DECODE_MEMORY = 17 << 10 };

/* A gate of three: for one query, for several, or else for both. 0 where none is set. */
static uint32_t by_queries(const struct device *d, enum gate both, int queries)
{
    int own = d->gate[both + (queries > 1 ? 2 : 1)], value = own ? own : d->gate[both];
    return value > 0 ? (uint32_t)value : 0;
}

/* How the kernel for few queries cuts the work: rows of a workgroup, keys of a part, parts. The plan depends on the
 * count of keys by this alone, but for pushing it: it holds until keys make another part. */
struct decode_cut { uint32_t rows, each, splits; };

/* All keys are one part where one or two workgroups can have them, for a second step does not pay then. */
static struct decode_cut cut_decode(const struct encoder *e, const struct attention *a)
{
    const struct decode_row *t = decode_tuning(e);
    const struct device *d = e->device;
    int queries = a->q->shape[2];
    uint32_t all = head_group(a) * (uint32_t)queries, blocks = ceil_div(all, decode_rows(e)), n, aim = t->groups;
    uint32_t groups = blocks * (uint32_t)(a->k->shape[0] * a->k->shape[1]), chunk;
    uint32_t forced = (uint32_t)d->gate[GATE_SDPA_SPLIT], most = by_queries(d, GATE_SPLIT_PARTS, queries);
    struct decode_cut cut = { ceil_div(all, blocks), UINT32_MAX, 1 };
    chunk = by_queries(d, GATE_SPLIT_CHUNK, queries);
    if (!chunk) chunk = t->keys;
    if (queries == 1 && d->gate[GATE_SPLIT_GROUPS] > 0) aim = (uint32_t)d->gate[GATE_SPLIT_GROUPS];
    if (!a->keys || groups > COUNTERS || a->keys < by_queries(d, GATE_SPLIT_MIN, queries)) return cut;
    n = min_u32(ceil_div(aim, groups), ceil_div(a->keys, chunk));
    n = min_u32(n, most ? min_u32(most, SPLIT_MOST) : SPLIT_MOST);
    if (forced) cut.each = ceil_div(a->keys, min_u32(forced, SPLIT_MOST));
    else if (n > 2 || (n == 2 && most == 2)) cut.each = (uint32_t)round_up(ceil_div(a->keys, n), chunk);
    cut.splits = ceil_div(a->keys, cut.each);
    if (cut.splits == 1) cut.each = UINT32_MAX;
    return cut;
}

/* Why the kernel for few queries of each head of keys does not take these; NULL where it does. */
static const char *decode_fits(const struct encoder *e, const void *job)
{
    const struct attention *a = job;
    const int *gate = e->device->gate;
    if ((int64_t)a->q->shape[2] * head_group(a) > decode_tuning(e)->most) return "more queries";
    if (!has_kernel(e->device, K_ATTENTION_DECODE)) return "the device lacks subgroup operations";
    if (e->device->caps.shared_memory < DECODE_MEMORY) return "the device has too little shared memory";
    if (!reads_wide(e, a)) return "rows are not aligned";
    if (!gate[GATE_SDPA_DECODE]) return "a gate";
    if (a->q->shape[3] != 128 || a->v->shape[3] != 128) return NULL;
    if (a->keys <= 128 && !gate[a->keys <= 32 ? GATE_SDPA_K32 : a->keys <= 64 ? GATE_SDPA_K64 : GATE_SDPA_K128])
        return "a gate";
    return gate[GATE_SDPA_D128] ? NULL : "a gate";
}

/* One dispatch: where the keys are split, the last workgroup to finish a row adds up the parts. */
static void attention_decode(struct encoder *e, const void *job)
{
    const struct attention *a = job;
    const struct decode_row *t = decode_tuning(e);
    struct decode_cut cut = cut_decode(e, a);
    uint32_t d = (uint32_t)a->q->shape[3], dv = (uint32_t)a->v->shape[3], size = e->device->caps.subgroup;
    uint32_t lanes = min_u32(pow2_at_least(ceil_div(d > dv ? d : dv, 8 * t->chunks[cut.rows > 2])), size);
    struct attention_push p;
    struct array *parts = NULL;
    NOTE(e->device, NOTE_SPLIT, "attention_decode", NULL, "%s: %u parts of up to %u keys", ATTENTION(a), cut.splits,
         size_class(min_u32(cut.each, a->keys)));
    if (cut.splits > 1 && !(parts = scratch(e, a->q->size / d * cut.splits * (dv + 2), MLXVK_FLOAT32))) return;
    p = bind_attention(e, a, true);
    p.splits = cut.splits;
    p.split_keys = cut.each;
    if (parts) {
        set_output(e, SLOT_attention_decode_part, parts);
        set_counters(e, SLOT_attention_decode_finished);
    }
    USE(e, attention_decode, &p, .threads = min_u32(8, min_u32(256, e->device->caps.max_threads) / size) * size,
        .dtype = (uint32_t)a->q->dtype, .rows = cut.rows, .lanes = lanes, .chunks = ceil_div(d, 8 * lanes),
        .value_chunks = ceil_div(dv, 8 * lanes), .ahead = t->ahead[cut.rows > 2], .parts = parts != NULL);
    dispatch_rows(e, &p, cut.rows);
    array_release(parts);
}

enum { COOPMAT_KEYS = 32, COOPMAT_SUBGROUPS = 4 };

static enum kernel_id attention_matrices(const struct attention *a)
{
    return a->q->dtype == MLXVK_BFLOAT16 ? K_ATTENTION_BF16 : K_ATTENTION_F16;
}

/* Why cooperative matrices do not take these. */
static const char *matrices_fit(const struct encoder *e, const void *job)
{
    const struct attention *a = job;
    const struct capabilities *c = &e->device->caps;
    uint32_t size = c->coopmat_size[a->q->dtype == MLXVK_BFLOAT16], lanes = c->subgroup, d, dv;
    size_t need;
    if (a->q->dtype == MLXVK_FLOAT32) return "float32";
    if (!size || !has_kernel(e->device, attention_matrices(a))) return "the device lacks cooperative matrices";
    if (!reads_wide(e, a)) return "rows are not aligned";
    if (lanes % size || COOPMAT_KEYS % (8 * (lanes / size)) || COOPMAT_SUBGROUPS * lanes > c->max_threads)
        return "the device's subgroups do not fit";
    d = (uint32_t)round_up((size_t)a->q->shape[3], size) / 8 + 1;          /* groups of eight of a row, padded */
    dv = (uint32_t)round_up((size_t)a->v->shape[3], size) / 8 + 1;
    need = max_size(COOPMAT_KEYS * (d + dv), COOPMAT_SUBGROUPS * size * d);
    need += COOPMAT_SUBGROUPS * size * (COOPMAT_KEYS / 4 + 1);
    return 16 * need > c->shared_memory ? "the device has too little shared memory" : NULL;
}

static void attention_coopmat(struct encoder *e, const void *job)
{
    const struct attention *a = job;
    const struct capabilities *c = &e->device->caps;
    uint32_t size = c->coopmat_size[a->q->dtype == MLXVK_BFLOAT16], rows = COOPMAT_SUBGROUPS * size;
    struct attention_push p = bind_attention(e, a, (uint32_t)a->q->shape[2] < rows);
    USE_AS(e, attention_matrices(a), attention_f16, &p, .threads = COOPMAT_SUBGROUPS * c->subgroup,
           .dtype = (uint32_t)a->q->dtype, .width = (uint32_t)round_up(p.key_width, size),
           .value_width = (uint32_t)round_up(p.value_width, size), .keys = COOPMAT_KEYS, .size = size,
           .lanes = c->subgroup, .even = !e->device->tuning->deep);
    dispatch_rows(e, &p, rows);
}

/* The first that fits. */
static const struct candidate attention_kernels[] = {
    { "attention_decode", decode_fits, NULL, attention_decode },
    { "attention by cooperative matrices", matrices_fit, NULL, attention_coopmat },
    { "attention", NULL, NULL, attention_general },
};

/* The job as a device can bind it: what reaches further than its elements need is copied. */
static void attention_whole(struct encoder *e, struct attention *a)
{
    struct array **operand[] = { &a->q, &a->k, &a->v, &a->mask }, *copies[COUNT(operand)] = { NULL };
    const char *text = NOTED(e->device, NOTE_SDPA, ATTENTION(a));
    const struct candidate *c;
    for (size_t i = 0; i < COUNT(operand); i++)
        if (*operand[i] && !fits_binding(e->device, *operand[i])) *operand[i] = copies[i] = rows_of(e, *operand[i]);
    if (!e->code) {
        c = choose(e, attention_kernels, COUNT(attention_kernels), 0, NOTE_SDPA, a, text);
        NOTE(e->device, NOTE_SDPA, c->name, NULL, "%s", text);
        c->plan(e, a);
    }
    for (size_t i = 0; i < COUNT(operand); i++) array_release(copies[i]);
}

/* For lowering: the operand itself where its matrices, or only its rows, are dense, else a copy; with a reference. */
static struct array *dense_of(struct encoder *e, struct array *a, bool matrix)
{
    if (!a) return NULL;
    if (matrix ? !dense_matrix(a) : dim_of(a, -1) > 1 && a->strides[a->ndim - 1] != 1) return rows_of(e, a);
    a->refs++;
    return a;
}

static double attention_work(const struct attention *a)
{
    return (double)a->q->size * a->k->shape[2] * (1 + (double)a->v->shape[3] / a->q->shape[3]);
}

/* What the device cannot bind whole, by batches, by heads of keys with those of queries that read them, or by queries
 * (of which, with a causal mask, the first ones do not see the last keys). */
static void attention_split(struct encoder *e, const struct attention *a)
{
    static const int8_t axes[3][6] = { { 0, 0, 0, 0, 0, -1 }, { 1, 1, 1, 1, 1, 0 }, { 2, 2, -1, -1, 2, -1 } };
    struct array part[6], *const arrays[6] = { a->o, a->q, a->k, a->v, a->mask, a->sinks };
    struct attention one = *a;
    struct array **const to[6] = { &one.o, &one.q, &one.k, &one.v, &one.mask, &one.sinks };
    int heads = a->k->shape[1], queries = a->q->shape[2], axis = axis_to_split(e, arrays + 2, 2, 4 | 8), first;
    if (axis < 0) axis = axis_to_split(e, (struct array *[]){ a->o, a->q, a->mask }, 3, 8);
    if (axis < 0 && too_long(e, attention_work(a)))
        axis = a->q->shape[0] > 1 ? 0 : heads > 1 ? 1 : queries > 1 ? 2 : -1;
    if (axis < 0) { set_work(e, attention_work(a)); attention_whole(e, &one); return; }
    first = axis == 1 && heads > 1 ? heads / 2 * (int)head_group(a) : a->q->shape[axis] / 2;
    for (int half = 0; half < 2 && !e->code; half++) {
        one = *a;
        if (axis == 2 && a->flags & ATTEND_CAUSAL && !half)
            one.keys = a->keys - min_u32((uint32_t)(queries - first), a->keys);
        for (int i = 0; i < 6; i++) {
            bool of_keys = i == 2 || i == 3;
            int along = axes[axis][i], at = of_keys && axis == 1 ? heads / 2 : first;
            if (!arrays[i]) continue;
            *to[i] = &part[i];
            part[i] = *arrays[i];
            part[i].refs = 1;
            if (of_keys && one.keys != a->keys) part[i] = part_of(arrays[i], 2, 0, one.keys ? one.keys : 1);
            else if (along >= 0 && at)
                part[i] = part_of(arrays[i], along, half ? at : 0, half ? arrays[i]->shape[along] - at : at);
        }
        attention_split(e, &one);
    }
}

static void lower_attention(struct encoder *e, const struct node *n)
{
    struct array *q = dense_of(e, n->in[0], false), *k = dense_of(e, n->in[1], false);
    struct array *v = dense_of(e, n->in[2], false), o = *n->out[0];  /* o: seen as (B, H, L, Dv) */
    struct array *sinks = n->in[4] ? rows_of(e, n->in[4]) : NULL;
    struct attention a = { &o, q, k, v, n->in[3], sinks, n->p.attention.flags, n->p.attention.keys,
                           n->p.attention.scale };
    o.shape[1] = n->out[0]->shape[2];
    o.shape[2] = n->out[0]->shape[1];
    o.strides[1] = n->out[0]->strides[2];
    o.strides[2] = n->out[0]->strides[1];
    attention_split(e, &a);
    array_release(q);
    array_release(k);
    array_release(v);
    array_release(sinks);
}

static bool check_attention(struct call *c, const struct array *q, const struct array *k, const struct array *v)
{
    if (c->code || !q || !k || !v) return false;
    if (q->ndim != 4 || k->ndim != 4 || v->ndim != 4)
        return FAIL(c, MLXVK_ERROR_SHAPE, "queries, keys and values must have 4 dimensions, but are %s, %s and %s",
                    TEXT(q), TEXT(k), TEXT(v)), false;
    if (q->shape[0] != k->shape[0] || q->shape[0] != v->shape[0] || q->shape[3] != k->shape[3] ||
        k->shape[2] != v->shape[2])
        return FAIL(c, MLXVK_ERROR_SHAPE, "%s, %s and %s do not match", TEXT(q), TEXT(k), TEXT(v)), false;
    if (k->shape[1] != v->shape[1] || !k->shape[1] || q->shape[1] % k->shape[1])
        return FAIL(c, MLXVK_ERROR_SHAPE, "%d heads of queries must be a multiple of those of keys (%d) and values "
                    "(%d)", q->shape[1], k->shape[1], v->shape[1]), false;
    return true;
}

/* The mask's kind from mode and array; -1 with an error. */
static int mask_flags(struct call *c, const char *mode, const struct array *mask)
{
    if (c->code) return -1;
    if (!mode) mode = "";
    if (strcmp(mode, "") && strcmp(mode, "causal") && strcmp(mode, "array"))
        return FAIL(c, MLXVK_ERROR_ARGUMENT, "mask_mode \"%s\" is none of \"\", \"causal\", \"array\"", mode), -1;
    if (!strcmp(mode, "causal"))
        return mask ? (FAIL(c, MLXVK_ERROR_ARGUMENT, "mask_mode \"causal\" takes no mask_arr"), -1) : ATTEND_CAUSAL;
    if (!mask && strcmp(mode, "array")) return 0;
    if (!mask) return FAIL(c, MLXVK_ERROR_ARGUMENT, "mask_mode \"array\" needs mask_arr"), -1;
    return mask->dtype == MLXVK_BOOL ? ATTEND_MASK_BOOL : ATTEND_MASK_ADDS;
}

/* The same in steps that keep all scores, in float32: for very wide heads, and with the gate off. */
static struct array *compose_attention(struct call *c, struct array *q, struct array *k, struct array *v, float scale,
                                       int flags, struct array *mask, struct array *sinks)
{
    const mlxvk_dtype f = MLXVK_FLOAT32;
    int b = q->shape[0], h = q->shape[1], kv = k->shape[1], l = q->shape[2], n = k->shape[2];
    const int scores[5] = { b, kv, h / kv, l, n };
    struct array *low = scalar(c, -1e30, f), *s, *p;
    q = do_binary(c, B_multiply, as_type(c, q, f), scalar(c, scale, f));
    q = q ? do_reshape(c, q, 5, (int[]){ b, kv, h / kv, l, q->shape[3] }) : NULL;
    s = do_matmul(c, q, do_swap(c, do_expand(c, as_type(c, k, f), (int[]){ 2 }, 1), 3, 4));
    if (flags & ATTEND_CAUSAL) {
        struct array *last = do_arange(c, (double)n - l, n, 1, MLXVK_INT32);
        mask = do_binary(c, B_greater_equal, do_expand(c, last, (int[]){ 1 }, 1), do_arange(c, 0, n, 1, MLXVK_INT32));
    } else if (mask) mask = do_reshape(c, mask, 5, scores);
    if (flags & ATTEND_MASK_ADDS) s = do_binary(c, B_add, s, as_type(c, mask, f));
    else if (mask) s = do_select(c, mask, s, low);
    s = do_binary(c, B_maximum, s, low);                       /* rows without keys have scores too, and weights of 0 */
    p = do_softmax(c, s, 1u << 4);
    if (sinks && s) {                                                /* one more score changes the sum alone */
        sinks = do_reshape(c, as_type(c, sinks, f), 4, (int[]){ kv, h / kv, 1, 1 });
        struct array *more = do_binary(c, B_subtract, do_reduce(c, R_logsumexp, s, 1u << 4, true), sinks);
        p = do_binary(c, B_multiply, p, do_unary(c, U_sigmoid, more));
    }
    p = do_select(c, do_binary(c, B_less_equal, s, low), scalar(c, 0, f), p);
    p = do_matmul(c, p, do_expand(c, as_type(c, v, f), (int[]){ 2 }, 1));
    return p ? do_reshape(c, p, 4, (int[]){ b, h, l, v->shape[3] }) : NULL;
}

/* Why attention is composed of other operations; NULL where it is not. */
static const char *fused_refusal(const struct device *d, const struct array *q, const struct array *k,
                                 const struct array *v, size_t item)
{
    uint32_t most = by_queries(d, GATE_SDPA_KEYS, q->shape[2]);
    if (!k->size) return NULL;
    if (!d->gate[GATE_SDPA_NATIVE]) return "a gate";
    if (q->shape[3] > ATTEND_WIDTH || v->shape[3] > ATTEND_WIDTH) return "features beyond 256";
    if (q->shape[1] / k->shape[1] > UINT16_MAX) return "more heads of queries for one of keys than 65535";
    if ((size_t)k->shape[2] * item * max_size((size_t)q->shape[3], (size_t)v->shape[3]) > binding_room(d, item))
        return "a head's keys are more than a binding reaches";
    return most && (uint32_t)k->shape[2] > most ? "more keys than a gate allows" : NULL;
}

static struct array *do_attention(struct call *c, struct array *q, struct array *k, struct array *v, float scale,
                                  const char *mode, struct array *mask, struct array *sinks)
{
    int flags = mask_flags(c, mode, mask), shape[4];
    struct array *out;
    const char *refusal;
    mlxvk_dtype t;
    if (!check_attention(c, q, k, v)) return NULL;
    t = promote(promote(q->dtype, k->dtype), v->dtype);
    if (!is_float(t)) return FAIL(c, MLXVK_ERROR_DTYPE, "%s is not taken", TEXT(q));
    if (flags == ATTEND_MASK_ADDS && promote(mask->dtype, t) != t)
        return FAIL(c, MLXVK_ERROR_DTYPE, "mask_arr must promote to %s, but is %s", mlxvk_dtype_name(t), TEXT(mask));
    if (sinks && (sinks->ndim != 1 || sinks->shape[0] != q->shape[1]))
        return FAIL(c, MLXVK_ERROR_SHAPE, "sinks must have one dimension of %d, but is %s", q->shape[1], TEXT(sinks));
    if (sinks && promote(sinks->dtype, t) != t)
        return FAIL(c, MLXVK_ERROR_DTYPE, "sinks must promote to %s, but is %s", mlxvk_dtype_name(t), TEXT(sinks));
    if (flags == ATTEND_CAUSAL && q->shape[2] == 1) flags = 0;
    if (sinks) flags |= ATTEND_SINKS;
    memcpy(shape, (int[]){ q->shape[0], q->shape[1], q->shape[2], k->shape[2] }, sizeof shape);
    if (mask) mask = broadcast(c, flags & ATTEND_MASK_ADDS ? as_type(c, mask, t) : mask, 4, shape);
    refusal = fused_refusal(c->device, q, k, v, dtypes[t].size);
    if (refusal) {
        NOTE(c->device, NOTE_SDPA, "fused kernels", refusal, "%s",
             attention_text(q, k, v, (uint32_t)flags, (char[NOTE_TEXT]){ 0 }));
        return as_type(c, compose_attention(c, q, k, v, scale, flags, mask, sinks), t);
    }
    out = output(c, 4, (int[]){ shape[0], shape[2], shape[1], v->shape[3] }, t);   /* (B, L, H * Dv) is a view */
    append(c, OP_ATTENTION, PARAMS(.attention = { (uint32_t)flags, scale, (uint32_t)k->shape[2] }),
           ARRAYS(as_type(c, q, t), as_type(c, k, t), as_type(c, v, t), mask, as_type(c, sinks, t)), ARRAYS(out));
    return do_swap(c, out, 1, 2);
}

int mlxvk_fast_scaled_dot_product_attention(mlxvk_array *res, mlxvk_array queries, mlxvk_array keys, mlxvk_array values,
                                            float scale, const char *mask_mode, mlxvk_array mask_arr, mlxvk_array sinks,
                                            mlxvk_stream s)
{
    struct call c = begin("fast_scaled_dot_product_attention", s);
    struct array *q = input(&c, "queries", queries), *k = input(&c, "keys", keys), *v = input(&c, "values", values);
    struct array *m = optional_input(&c, "mask_arr", mask_arr), *si = optional_input(&c, "sinks", sinks);
    return finish(&c, do_attention(&c, q, k, v, scale, mask_mode, m, si), res);
}

/* ==== >>random: MLX's threefry generator ========================================================================== */

enum { RANDOM_PART = 1 << 30 };

/* Threefry on the host, for keys that need no device. */
static void threefry(const uint32_t key[2], uint32_t x, uint32_t y, uint32_t out[2])
{
    static const uint8_t rotations[8] = { 13, 15, 26, 6, 17, 29, 16, 24 };
    uint32_t k[3] = { key[0], key[1], key[0] ^ key[1] ^ 0x1bd11bdau };
    x += k[0];
    y += k[1];
    for (uint32_t round = 0; round < 20; round++) {
        int r = rotations[round % 8];
        x += y;
        y = (y << r | y >> (32 - r)) ^ x;
        if (round % 4 < 3) continue;
        x += k[(round / 4 + 1) % 3];
        y += k[(round / 4 + 2) % 3] + round / 4 + 1;
    }
    out[0] = x;
    out[1] = y;
}

/* The two keys that one splits into, as rows. */
static void split_words(const uint32_t key[2], uint32_t rows[4])
{
    uint32_t first[2], second[2];
    threefry(key, 0, 2, first);
    threefry(key, 1, 3, second);
    rows[0] = first[0];
    rows[1] = second[0];
    rows[2] = first[1];
    rows[3] = second[1];
}

static struct array *key_literal(struct call *c, const uint32_t words[2])
{
    struct array *a = output(c, 1, (int[]){ 2 }, MLXVK_UINT32);
    if (!a) return NULL;
    a->storage->literal = true;
    memcpy(a->storage->bytes, words, 8);
    return a;
}

static bool is_literal(const struct array *a) { return a->storage->literal && !a->storage->buffer; }

static void literal_words(const struct array *key, uint32_t words[2])
{
    key->storage->read = true;
    for (int i = 0; i < 2; i++) memcpy(&words[i], key->storage->bytes + key->offset + 4 * i * key->strides[0], 4);
}

static void seed_words(uint64_t seed, uint32_t words[2])
{
    words[0] = (uint32_t)(seed >> 32);
    words[1] = (uint32_t)seed;
}

/* Row 0 of the split becomes the device's state, row 1 is what is used. */
static struct array *next_key(struct call *c)
{
    struct device *d = c->device;
    uint32_t rows[4];
    if (c->code) return NULL;
    if (!d->random_seeded) seed_words((uint64_t)time(NULL) * 1000u + now_ns() / 1000000u % 1000u, d->random_state);
    d->random_seeded = true;
    split_words(d->random_state, rows);
    memcpy(d->random_state, rows, 8);
    return key_literal(c, rows + 2);
}

static struct array *check_key(struct call *c, struct array *key)
{
    if (c->code || !key) return NULL;
    if (key->dtype != MLXVK_UINT32) return FAIL(c, MLXVK_ERROR_DTYPE, "a key is uint32, not %s", TEXT(key));
    if (key->ndim != 1 || key->shape[0] != 2)
        return FAIL(c, MLXVK_ERROR_SHAPE, "a key has shape (2), not %s", TEXT(key));
    return key;
}

static struct array *key_input(struct call *c, mlxvk_array key)
{
    return key.ctx ? check_key(c, input(c, "key", key)) : next_key(c);
}

/* ---- lowering ---- */

/* A key that the host knows is pushed, another one bound. */
static void set_key(struct encoder *e, uint32_t slot, struct array *key, uint32_t push[5])
{
    push[KEY_STEP_BETWEEN] = (uint32_t)key->strides[0];
    push[KEY_PUSHED] = is_literal(key);
    if (push[KEY_PUSHED]) literal_words(key, push + KEY_FIRST);
    else push[KEY_AT] = set_input(e, slot, key);
}

static void lower_random(struct encoder *e, const struct node *n)
{
    const struct random_params *p = &n->p.random;
    struct array *out = n->out[0], part = *out;
    uint32_t threads = min_u32(256, e->device->caps.max_threads), fours;
    size_t each, words, room = min_size(binding_room(e->device, 4), RANDOM_PART);
    random_push push = { .low = p->low, .high = p->high, .one = 1, .count = (uint32_t)(room / 4) };
    int gate = e->device->gate[GATE_PRODUCTS];
    bool products = gate ? gate == 1 : (e->device->caps.quirks & QUIRK_MULTIPLY_TO_ADD) != 0;
    if (is_complex(out->dtype)) { part.dtype = MLXVK_FLOAT32; part.size *= 2; }
    each = p->kind == RANDOM_BITS ? 4 / item_size(out) : 1;          /* elements a word */
    words = (part.size + each - 1) / each;
    if (words > UINT32_MAX)
        encoder_fail(e, MLXVK_ERROR_LIMIT, 0, __LINE__, "random", "%s takes %zu words", TEXT(out), words);
    push.words = (uint32_t)words;
    part.ndim = 1;
    part.strides[0] = 1;
    for (size_t first = 0; first < words && !e->code; first += push.count) {
        push.first = (uint32_t)first;
        push.elements = (uint32_t)min_size(part.size - first * each, push.count * each);
        part.shape[0] = (int)push.elements;
        part.offset = out->offset + (int64_t)(first * each * item_size(&part));
        push.offset = set_output(e, SLOT_random_dst, &part);
        set_key(e, SLOT_random_key, n->in[0], push.key);
        fours = p->kind != RANDOM_BITS ? 1 : item_size(out) == 4 ? 2 : 0;
        if (is_complex(out->dtype) || words > push.count || (words & 7) || (push.offset & 3)) fours = 0;
        USE(e, random, &push, .threads = threads, .op = p->kind, .to = out->dtype, .fours = fours,
            .products = products);
        dispatch_groups(e, ceil_div((words + 1) / 2, fours ? 4 * fours * threads : threads));
    }
}

/* One distribution: largest and sum of each tile, then a workgroup a sample, as many tiles at a time as are bound. */
static void lower_categorical(struct encoder *e, const struct node *n)
{
    struct array *out = n->out[0], *logits = n->in[0], *key = n->in[1], flat = *logits;
    uint32_t threads = min_u32(256, e->device->caps.max_threads), tile = CATEGORICAL_EACH * threads;
    uint32_t tiles = ceil_div(logits->size, tile), most;
    struct array *stats = scratch(e, tiles, MLXVK_COMPLEX64);
    categorical_push push = { .n = (uint32_t)logits->size, .tiles = tiles, .samples = (uint32_t)out->size };
    if (!stats) return;
    for (int i = 0; i < logits->ndim; i++) if (logits->shape[i] > 1) flat.strides[0] = logits->strides[i];
    flat.refs = flat.ndim = 1;
    flat.shape[0] = (int)logits->size;
    push.stride = (uint32_t)flat.strides[0];
    most = (uint32_t)min_size(binding_room(e->device, item_size(logits)) / item_size(logits) / tile /
                              max_size((size_t)llabs(flat.strides[0]), 1), tiles);
    if (!most) most = 1;
    for (uint32_t step = 0; step < 2; step++)
        for (push.first_tile = 0; push.first_tile < tiles; push.first_tile += most) {
            size_t first = (size_t)push.first_tile * tile, count = min_size((size_t)most * tile, logits->size - first);
            struct array part = part_of(&flat, 0, (int64_t)first, (int64_t)count);
            push.bound = min_u32(most, tiles - push.first_tile);
            push.dst_at = set_output(e, SLOT_categorical_dst, step ? out : stats);
            push.src_at = set_input(e, SLOT_categorical_src, &part);
            if (step) set_key(e, SLOT_categorical_key, key, push.key);
            if (step) push.tile_at = set_input(e, SLOT_categorical_tile, stats);
            USE(e, categorical, &push, .threads = threads, .step = step, .from = logits->dtype);
            dispatch_groups(e, step ? out->size : push.bound);
        }
    array_release(stats);
}

/* ---- fronts ---- */

/* low and high: bounds (uniform); loc and scale (normal). */
static struct array *do_random(struct call *c, int kind, int ndim, const int *shape, mlxvk_dtype dtype, float low,
                               float high, struct array *key)
{
    struct array *out = c->code || !key ? NULL : output(c, ndim, shape, dtype);
    if (!out) return NULL;
    append(c, OP_RANDOM, PARAMS(.random = { (uint8_t)kind, low, high }), ARRAYS(key), ARRAYS(out));
    return out;
}

/* The shape argument of a call, whose length fits an int. */
static int shape_count(size_t shape_num) { return (int)min_size(shape_num, MAXD + 1); }

int mlxvk_random_key(mlxvk_array *res, uint64_t seed)
{
    struct call c = begin("random_key", (mlxvk_stream){ NULL });
    uint32_t words[2];
    seed_words(seed, words);
    return finish(&c, c.code ? NULL : key_literal(&c, words), res);
}

int mlxvk_random_seed(uint64_t seed)
{
    struct call c = begin("random_seed", (mlxvk_stream){ NULL });
    if (!c.code) {
        seed_words(seed, c.device->random_state);
        c.device->random_seeded = true;
    }
    return end(&c);
}

static struct array *do_split(struct call *c, struct array *key, int num)
{
    if (num < 0) return FAIL(c, MLXVK_ERROR_SHAPE, "%d keys", num);
    return do_random(c, RANDOM_BITS, 2, (int[]){ num, 2 }, MLXVK_UINT32, 0, 0, key);
}

int mlxvk_random_split_num(mlxvk_array *res, mlxvk_array key, int num, mlxvk_stream s)
{
    struct call c = begin("random_split_num", s);
    return finish(&c, do_split(&c, key_input(&c, key), num), res);
}

int mlxvk_random_split(mlxvk_array *res_0, mlxvk_array *res_1, mlxvk_array key, mlxvk_stream s)
{
    struct call c = begin("random_split", s);
    struct array *k = key_input(&c, key), *row[2] = { NULL, NULL };
    if (!res_0 || !res_1) FAIL(&c, MLXVK_ERROR_ARGUMENT, "a result is NULL");
    if (k && is_literal(k)) {
        uint32_t words[2], rows[4];
        literal_words(k, words);
        split_words(words, rows);
        for (int i = 0; i < 2; i++) row[i] = key_literal(&c, rows + 2 * i);
    } else {
        struct array *both = do_split(&c, k, 2);
        for (int i = 0; i < 2 && both; i++) row[i] = view_of(&c, both, MLXVK_UINT32, 1, (int[]){ 2 }, NULL, 8 * i);
    }
    if (!c.code && row[0] && row[1]) put_result(&c, res_0, row[0]);
    return finish(&c, row[1], res_1);
}

int mlxvk_random_bits(mlxvk_array *res, const int *shape, size_t shape_num, int width, mlxvk_array key, mlxvk_stream s)
{
    struct call c = begin("random_bits", s);
    struct array *k = key_input(&c, key);
    mlxvk_dtype t = width == 1 ? MLXVK_UINT8 : width == 2 ? MLXVK_UINT16 : MLXVK_UINT32;
    if (width != 1 && width != 2 && width != 4)
        FAIL(&c, MLXVK_ERROR_ARGUMENT, "width must be 1, 2 or 4 bytes, not %d", width);
    return finish(&c, do_random(&c, RANDOM_BITS, shape_count(shape_num), shape, t, 0, 0, k), res);
}

static bool check_float(struct call *c, mlxvk_dtype dtype)
{
    if (c->code) return false;
    if (!is_dtype((int)dtype) || !is_float(dtype))
        return FAIL(c, MLXVK_ERROR_DTYPE, "dtype must be floating, not %s", mlxvk_dtype_name(dtype)), false;
    return true;
}

/* The value of one number that the host knows. */
static bool literal_float(const struct array *a, float *value)
{
    if (!a || a->size != 1 || !is_literal(a) || a->dtype != MLXVK_FLOAT32) return false;
    memcpy(value, a->storage->bytes + a->offset, 4);
    return true;
}

static struct array *do_uniform(struct call *c, struct array *low, struct array *high, int ndim, const int *shape,
                                mlxvk_dtype dtype, struct array *key)
{
    float from = 0, to = 1;
    struct array *range, *out;
    int n, full[MAXD];
    if (c->code || !low || !high || !check_float(c, dtype) || !check_shape(c, ndim, shape, dtype)) return NULL;
    if (!broadcast_shape(c, low, high, &n, full)) return NULL;
    if (literal_float(low, &from) && literal_float(high, &to) && n <= ndim)
        return do_random(c, RANDOM_UNIFORM, ndim, shape, dtype, from, to, key);
    low = as_type(c, low, dtype);
    range = do_binary(c, B_subtract, as_type(c, high, dtype), low);
    out = do_random(c, RANDOM_UNIFORM, ndim, shape, dtype, 0, 1, key);
    out = do_binary(c, B_multiply, broadcast(c, range, ndim, shape), out);
    return do_binary(c, B_add, out, low);
}

int mlxvk_random_uniform(mlxvk_array *res, mlxvk_array low, mlxvk_array high, const int *shape, size_t shape_num,
                         mlxvk_dtype dtype, mlxvk_array key, mlxvk_stream s)
{
    struct call c = begin("random_uniform", s);
    struct array *x = input(&c, "low", low), *y = input(&c, "high", high), *k;
    check_float(&c, dtype);
    k = key_input(&c, key);
    return finish(&c, do_uniform(&c, x, y, shape_count(shape_num), shape, dtype, k), res);
}

int mlxvk_random_normal(mlxvk_array *res, const int *shape, size_t shape_num, mlxvk_dtype dtype, float loc, float scale,
                        mlxvk_array key, mlxvk_stream s)
{
    struct call c = begin("random_normal", s);
    struct array *k;
    if (dtype != MLXVK_COMPLEX64) check_float(&c, dtype);
    k = key_input(&c, key);
    return finish(&c, do_random(&c, RANDOM_NORMAL, shape_count(shape_num), shape, dtype, loc, scale, k), res);
}

int mlxvk_random_gumbel(mlxvk_array *res, const int *shape, size_t shape_num, mlxvk_dtype dtype, mlxvk_array key,
                        mlxvk_stream s)
{
    struct call c = begin("random_gumbel", s);
    struct array *k;
    check_float(&c, dtype);
    k = key_input(&c, key);
    return finish(&c, do_random(&c, RANDOM_GUMBEL, shape_count(shape_num), shape, dtype, 0, 0, k), res);
}

/* shape: of the samples; the logits without their axis broadcast to it. Several distributions: the largest of logits
 * plus Gumbel noise. One: where a uniform number falls in the cumulative sum, if the samples have dimensions. */
static struct array *do_categorical(struct call *c, struct array *logits, int axis, int ndim, const int *shape,
                                    struct array *key)
{
    int noise[MAXD + 1], at = axis + ndim - logits->ndim + 1;
    struct array *out;
    if (c->code || !key || !check_shape(c, ndim, shape, MLXVK_UINT32)) return NULL;
    if (is_complex(logits->dtype)) return FAIL(c, MLXVK_ERROR_DTYPE, "logits %s are not real", TEXT(logits));
    if (!logits->shape[axis]) return FAIL(c, MLXVK_ERROR_SHAPE, "logits %s have no classes", TEXT(logits));
    if (ndim && logits->size == (size_t)logits->shape[axis]) {
        if (is_wide(logits->dtype)) logits = as_type(c, logits, MLXVK_FLOAT32);
        out = logits ? output(c, ndim, shape, MLXVK_UINT32) : NULL;
        append(c, OP_CATEGORICAL, PARAMS(.random = { 0 }), ARRAYS(logits, key), ARRAYS(out));
        return out;
    }
    for (int i = 0, k = 0; i <= ndim; i++) noise[i] = i == at ? logits->shape[axis] : shape[k++];
    out = do_random(c, RANDOM_GUMBEL, ndim + 1, noise, MLXVK_FLOAT32, 0, 0, key);
    return out && !out->size ? output(c, ndim, shape, MLXVK_UINT32)
                             : do_reduce(c, R_argmax, do_binary(c, B_add, out, logits), 1u << at, false);
}

int mlxvk_random_categorical_shape(mlxvk_array *res, mlxvk_array logits, int axis, const int *shape, size_t shape_num,
                                   mlxvk_array key, mlxvk_stream s)
{
    struct call c = begin("random_categorical_shape", s);
    struct array *x = input(&c, "logits", logits), *k, *out = NULL;
    int ndim = shape_count(shape_num), full[MAXD], n;
    axis = normal_axis(&c, x, axis);
    k = key_input(&c, key);
    if (axis >= 0 && check_shape(&c, ndim, shape, MLXVK_UINT32)) {
        struct array rest = *x, samples = *x;
        rest.ndim--;
        memmove(rest.shape + axis, rest.shape + axis + 1, (size_t)(rest.ndim - axis) * sizeof *rest.shape);
        samples.ndim = ndim;
        if (ndim) memcpy(samples.shape, shape, (size_t)ndim * sizeof *shape);
        if (!broadcast_shape(&c, &rest, &samples, &n, full)) n = -1;
        else if (n != ndim || (n && memcmp(full, shape, (size_t)n * sizeof *full)))
            FAIL(&c, MLXVK_ERROR_SHAPE, "logits %s without axis %d do not broadcast to the shape of the samples",
                 TEXT(x), axis);
        else out = do_categorical(&c, x, axis, ndim, shape, k);
    }
    return finish(&c, out, res);
}

/* num_samples: NULL: one, without a dimension for them. */
static int categorical(const char *name, mlxvk_array *res, mlxvk_array logits, int axis, const int *num_samples,
                       mlxvk_array key, mlxvk_stream s)
{
    struct call c = begin(name, s);
    struct array *x = input(&c, "logits", logits), *k, *out = NULL;
    int shape[MAXD + 1], ndim = 0;
    if (num_samples && *num_samples < 0) FAIL(&c, MLXVK_ERROR_SHAPE, "%d samples", *num_samples);
    axis = normal_axis(&c, x, axis);
    k = key_input(&c, key);
    for (int i = 0; axis >= 0 && i < x->ndim; i++) if (i != axis) shape[ndim++] = x->shape[i];
    if (axis >= 0 && num_samples) {
        shape[ndim++] = *num_samples;
        x = do_expand(&c, x, (int[]){ x->ndim }, 1);
    }
    if (axis >= 0 && x) out = do_categorical(&c, x, axis, ndim, shape, k);
    return finish(&c, out, res);
}

int mlxvk_random_categorical(mlxvk_array *res, mlxvk_array logits, int axis, mlxvk_array key, mlxvk_stream s)
{
    return categorical("random_categorical", res, logits, axis, NULL, key, s);
}

int mlxvk_random_categorical_num_samples(mlxvk_array *res, mlxvk_array logits, int axis, int num_samples,
                                         mlxvk_array key, mlxvk_stream s)
{
    return categorical("random_categorical_num_samples", res, logits, axis, &num_samples, key, s);
}

/* ==== >>quantized: quantize, dequantize, quantized_matmul ========================================================= */

/* One row a mode: what is the default, what is taken; how kernels name its scales (0: by their dtype). Modes with
 * scales of their own have no biases. */
static const struct quant_mode { const char *name; int group, bits; uint32_t groups, widths, scales; } quant_modes[] = {
    { "affine", 64, 4, 32 | 64 | 128, 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 8, 0 },
    { "mxfp4",  32, 4, 32, 1 << 4, QUANT_E8M0 },
    { "mxfp8",  32, 8, 32, 1 << 8, QUANT_E8M0 },
    { "nvfp4",  16, 4, 16, 1 << 4, QUANT_E4M3 },
};

static struct quant_params quant_format(struct call *c, mlxvk_optional_int group, mlxvk_optional_int bits,
                                        const char *mode, bool transpose)
{
    struct quant_params p = { .transpose = transpose };
    const struct quant_mode *row = NULL;
    for (size_t i = 0; i < COUNT(quant_modes); i++)
        if (mode && !strcmp(mode, quant_modes[i].name)) row = &quant_modes[i];
    if (!row) { FAIL(c, MLXVK_ERROR_ARGUMENT, "\"%s\" is no quantization mode", mode ? mode : "(NULL)"); return p; }
    p.mode = (uint8_t)(row - quant_modes);
    p.group = (uint16_t)(group.has_value ? group.value : row->group);
    p.bits = (uint8_t)(bits.has_value ? bits.value : row->bits);
    if (group.has_value && (group.value < 0 || group.value > 128 || (group.value & (group.value - 1)) ||
                            !(row->groups & (uint32_t)group.value)))
        FAIL(c, MLXVK_ERROR_ARGUMENT, "a group of %d is not taken in mode %s", group.value, mode);
    else if (bits.has_value && (bits.value < 1 || bits.value > 8 || !(row->widths >> bits.value & 1)))
        FAIL(c, MLXVK_ERROR_ARGUMENT, "%d bits are not taken in mode %s", bits.value, mode);
    return p;
}

/* A group is 16 << shift codes. */
static uint32_t group_shift(const struct quant_params *p) { return (uint32_t)lowest_bit(p->group) - 4; }

static bool is_affine(const struct quant_params *p) { return !quant_modes[p->mode].scales; }
static uint32_t scales_kind(const struct quant_params *p, const struct array *scales)
{
    return is_affine(p) ? (uint32_t)scales->dtype : quant_modes[p->mode].scales;
}

/* Values that a row of packed words holds. */
static int64_t quant_width(const struct array *w, const struct quant_params *p)
{
    return (int64_t)w->shape[w->ndim - 1] * 32 / p->bits;
}

/* Do scales and biases fit to the words? */
static bool check_quantized(struct call *c, const struct array *w, const struct array *s, const struct array *b,
                            const struct quant_params *p)
{
    bool affine = is_affine(p);
    if (c->code || !w || !s) return false;
    if (affine && !b) return FAIL(c, MLXVK_ERROR_ARGUMENT, "biases is { NULL }, which mode affine needs"), false;
    if (!affine && b) return FAIL(c, MLXVK_ERROR_ARGUMENT, "mode %s has no biases", quant_modes[p->mode].name), false;
    if (w->dtype != MLXVK_UINT32) return FAIL(c, MLXVK_ERROR_DTYPE, "w is %s, not uint32", TEXT(w)), false;
    if (affine && !is_float(promote(s->dtype, b->dtype)))
        return FAIL(c, MLXVK_ERROR_DTYPE, "scales %s and biases %s are not floating", TEXT(s), TEXT(b)), false;
    if (!affine && s->dtype != MLXVK_UINT8)
        return FAIL(c, MLXVK_ERROR_DTYPE, "scales are %s, not uint8", TEXT(s)), false;
    if (w->ndim < 2 || (b && !same_shape(s, b)) || s->ndim != w->ndim ||
        memcmp(s->shape, w->shape, (size_t)(w->ndim - 1) * sizeof *w->shape) ||
        (int64_t)w->shape[w->ndim - 1] * 32 != (int64_t)s->shape[s->ndim - 1] * p->group * p->bits)
        return FAIL(c, MLXVK_ERROR_SHAPE, "w %s, scales %s and biases %s do not fit with groups of %d and %d bits",
                    TEXT(w), TEXT(s), b ? TEXT(b) : "(none)", p->group, p->bits), false;
    if (quant_width(w, p) > INT_MAX - QUANT_BLOCK)
        return FAIL(c, MLXVK_ERROR_LIMIT, "w %s has rows of %lld values", TEXT(w), (long long)quant_width(w, p)), false;
    return true;
}

/* ---- quantize, dequantize ---- */

/* One result: x through the format and back, times a scale (in[2]); two: codes and scales. */
static void quantize_fp(struct encoder *e, const struct node *n, struct array *const *a)
{
    struct array *x = a[0], *y = a[1], *times = n->inputs > 2 ? n->in[2] : NULL;
    bool back = n->outputs == 1;
    struct quantize_fp_push p = { .groups = ceil_div(x->size, n->p.quant.group) };
    p.x_at = set_input(e, SLOT_quantize_fp_x, x);
    p.w_at = set_output(e, SLOT_quantize_fp_w, y);
    if (!back) p.s_at = set_output(e, SLOT_quantize_fp_s, a[2]);
    if (n->in[1]) p.g_at = set_input(e, SLOT_quantize_fp_g, n->in[1]);
    if (times) p.h_at = set_input(e, SLOT_quantize_fp_h, times);
    USE(e, quantize_fp, &p, .threads = 64, .bits = n->p.quant.bits, .tx = (uint32_t)x->dtype,
        .ts = scales_kind(&n->p.quant, NULL), .ty = (uint32_t)y->dtype, .scaled = n->in[1] != NULL, .back = back,
        .times = times != NULL, .nearest = e->device->gate[GATE_MX_NEAREST] != 0);
    dispatch_groups(e, ceil_div(p.groups, 64));
}

static void quantize_part(struct encoder *e, struct array *const *a, const void *job)
{
    const struct node *n = job;
    struct quantize_push p = { ceil_div(a[0]->size, QUANT_BLOCK), .group_shift = group_shift(&n->p.quant) - 1 };
    if (!is_affine(&n->p.quant)) { quantize_fp(e, n, a); return; }
    p.x_at = set_input(e, SLOT_quantize_x, a[0]);
    p.w_at = set_output(e, SLOT_quantize_w, a[1]);
    p.s_at = set_output(e, SLOT_quantize_s, a[2]);
    p.b_at = set_output(e, SLOT_quantize_b, a[3]);
    USE(e, quantize, &p, .threads = 64, .bits = n->p.quant.bits, .tx = (uint32_t)a[0]->dtype);
    dispatch_groups(e, ceil_div(p.blocks, 64));
}

static void lower_quantize(struct encoder *e, const struct node *n)
{
    struct array *x = rows_of(e, n->in[0]), rows[4] = { matrix_of(e, x) }, *a[4] = { &rows[0] };
    for (int i = 0; i < n->outputs; i++) {
        rows[1 + i] = matrix_of(e, n->out[i]);
        a[1 + i] = &rows[1 + i];
    }
    in_parts(e, a, 4, 2, quantize_part, n);
    array_release(x);
}

/* A tensor's scale: one float32, in mode nvfp4 only; NULL where there is none. */
static struct array *tensor_scale(struct call *c, const char *name, mlxvk_array scale, const struct quant_params *p)
{
    struct array *g = optional_input(c, name, scale);
    if (c->code || !g) return NULL;
    if (quant_modes[p->mode].scales != QUANT_E4M3)
        return FAIL(c, MLXVK_ERROR_ARGUMENT, "%s is not taken in mode %s", name, quant_modes[p->mode].name);
    if (g->dtype != MLXVK_FLOAT32 || g->size != 1)
        return FAIL(c, MLXVK_ERROR_ARGUMENT, "%s is %s, not one float32", name, TEXT(g));
    return g;
}

/* Codes, scales and, in mode affine, biases of x; how many that are. */
static int do_quantize(struct call *c, struct array *x, struct array *scale, struct quant_params p, struct array **out)
{
    int shape[MAXD], last, count = is_affine(&p) ? 3 : 2;
    if (c->code || !x) return 0;
    if (!is_float(x->dtype)) return FAIL(c, MLXVK_ERROR_DTYPE, "%s is not floating", TEXT(x)), 0;
    if (x->ndim < 2 || x->shape[x->ndim - 1] % p.group)
        return FAIL(c, MLXVK_ERROR_SHAPE, "%s needs two dimensions, the last a multiple of the group of %d", TEXT(x),
                    p.group), 0;
    last = x->shape[x->ndim - 1];
    memcpy(shape, x->shape, (size_t)x->ndim * sizeof *shape);
    shape[x->ndim - 1] = (int)((int64_t)last * p.bits / 32);
    out[0] = output(c, x->ndim, shape, MLXVK_UINT32);
    shape[x->ndim - 1] = last / p.group;
    out[1] = output(c, x->ndim, shape, count == 3 ? x->dtype : MLXVK_UINT8);
    if (count == 3) out[2] = output(c, x->ndim, shape, x->dtype);
    append(c, OP_QUANTIZE, PARAMS(.quant = p), ARRAYS(x, scale), out, count);
    return count;
}

int mlxvk_quantize(mlxvk_vector_array *res, mlxvk_array w, mlxvk_optional_int group_size, mlxvk_optional_int bits,
                   const char *mode, mlxvk_array global_scale, mlxvk_stream s)
{
    struct call c = begin("quantize", s);
    struct array *x = input(&c, "w", w), *out[3] = { NULL };
    struct quant_params p = quant_format(&c, group_size, bits, mode, true);
    struct array *scale = tensor_scale(&c, "global_scale", global_scale, &p);
    int count = do_quantize(&c, x, scale, p, out);
    return finish_vector(&c, out, (size_t)count, res);
}

/* Unpacks into a row-major array, rounding to a dtype first; w, scales and biases are row-contiguous. */
static void unpack_dispatch(struct encoder *e, const struct quant_params *f, struct array *w, struct array *scales,
                            struct array *biases, struct array *scale, struct array *out, mlxvk_dtype first)
{
    struct dequantize_push p = { .count = ceil_div(out->size, 8), .group_shift = group_shift(f) };
    uint32_t threads = min_u32(256, e->device->caps.max_threads);
    p.w_at = set_input(e, SLOT_dequantize_w, w);
    p.s_at = set_input(e, SLOT_dequantize_s, scales);
    if (biases) p.b_at = set_input(e, SLOT_dequantize_b, biases);
    p.y_at = set_output(e, SLOT_dequantize_y, out);
    if (scale) p.g_at = set_input(e, SLOT_dequantize_g, scale);
    USE(e, dequantize, &p, .threads = threads, .bits = f->bits, .tx = (uint32_t)first, .ts = scales_kind(f, scales),
        .ty = (uint32_t)out->dtype, .vector = p.y_at % 8 == 0, .scaled = scale != NULL);
    dispatch_groups(e, ceil_div(p.count, threads));
}

static void dequantize_part(struct encoder *e, struct array *const *a, const void *job)
{
    const struct node *n = job;
    unpack_dispatch(e, &n->p.quant, a[1], a[2], a[3], n->in[3], a[0], a[3] ? a[2]->dtype : a[0]->dtype);
}

static void lower_dequantize(struct encoder *e, const struct node *n)
{
    struct array *in[3] = { NULL }, rows[4] = { matrix_of(e, n->out[0]) }, *a[4] = { &rows[0] };
    bool dense = n->in[0]->row && n->in[1]->row && (!n->in[2] || n->in[2]->row);
    NOTE(e->device, NOTE_DEQUANTIZE, "dequantize without copies", dense ? NULL : "an operand is strided",
         "%u bits of %s", n->p.quant.bits, LAYOUT(n->in[0]));
    for (int i = 0; i < 3; i++) {
        if (!n->in[i]) continue;
        in[i] = rows_of(e, n->in[i]);
        rows[1 + i] = matrix_of(e, in[i]);
        a[1 + i] = &rows[1 + i];
    }
    in_parts(e, a, 4, 2, dequantize_part, n);
    for (int i = 0; i < 3; i++) array_release(in[i]);
}

/* dequantize of 4 bits in mode affine in steps, with the gate off. */
static struct array *compose_dequantize(struct call *c, struct array *w, struct array *k, struct array *b,
                                        struct quant_params p, mlxvk_dtype to)
{
    const mlxvk_dtype f = MLXVK_FLOAT32;
    int ndim = w->ndim + 1, shape[MAXD];
    struct array *codes = do_expand(c, w, (int[]){ w->ndim }, 1), *shift = do_arange(c, 0, 32, 4, MLXVK_UINT32), *y;
    mlxvk_dtype t = promote(k->dtype, b->dtype);
    codes = do_binary(c, B_bitwise_and, do_binary(c, B_right_shift, codes, shift), scalar(c, 15, MLXVK_UINT32));
    memcpy(shape, k->shape, (size_t)k->ndim * sizeof *shape);
    shape[ndim - 1] = p.group;
    codes = do_reshape(c, codes, ndim, shape);
    y = do_binary(c, B_multiply, as_type(c, codes, f), do_expand(c, as_type(c, k, f), (int[]){ k->ndim }, 1));
    y = as_type(c, do_binary(c, B_add, y, do_expand(c, as_type(c, b, f), (int[]){ b->ndim }, 1)), t);
    memcpy(shape, w->shape, (size_t)w->ndim * sizeof *shape);
    shape[w->ndim - 1] = (int)quant_width(w, &p);
    return as_type(c, do_reshape(c, y, w->ndim, shape), to);
}

/* Checked operands as values of a dtype. */
static struct array *do_dequantize(struct call *c, struct array *w, struct array *k, struct array *b,
                                   struct array *scale, struct quant_params p, mlxvk_dtype to)
{
    struct array *out;
    int shape[MAXD];
    if (c->code || !w || !k) return NULL;
    if (!is_dtype((int)to) || !is_float(to))
        return FAIL(c, MLXVK_ERROR_DTYPE, "%s is not floating", mlxvk_dtype_name(to));
    if (is_affine(&p) && b && p.bits == 4 && w->ndim < MAXD && !c->device->gate[GATE_DEQUANTIZE_B4]) {
        NOTE(c->device, NOTE_DEQUANTIZE, "dequantize", "a gate", "4 bits of %s", LAYOUT(w));
        return compose_dequantize(c, w, k, b, p, to);
    }
    memcpy(shape, w->shape, (size_t)w->ndim * sizeof *shape);
    shape[w->ndim - 1] = (int)quant_width(w, &p);
    out = output(c, w->ndim, shape, to);
    if (b) {
        mlxvk_dtype t = promote(k->dtype, b->dtype);
        k = as_type(c, k, t);
        b = as_type(c, b, t);
    }
    append(c, OP_DEQUANTIZE, PARAMS(.quant = p), ARRAYS(w, k, b, scale), ARRAYS(out));
    return out;
}

int mlxvk_dequantize(mlxvk_array *res, mlxvk_array w, mlxvk_array scales, mlxvk_array biases,
                     mlxvk_optional_int group_size, mlxvk_optional_int bits, const char *mode, mlxvk_array global_scale,
                     mlxvk_optional_dtype dtype, mlxvk_stream s)
{
    struct call c = begin("dequantize", s);
    struct array *q = input(&c, "w", w), *k = input(&c, "scales", scales), *b = optional_input(&c, "biases", biases);
    struct quant_params p = quant_format(&c, group_size, bits, mode, true);
    struct array *scale = tensor_scale(&c, "global_scale", global_scale, &p), *out = NULL;
    if (check_quantized(&c, q, k, b, &p)) {
        mlxvk_dtype own = b ? promote(k->dtype, b->dtype) : MLXVK_BFLOAT16;
        out = do_dequantize(&c, q, k, b, scale, p, dtype.has_value ? dtype.value : own);
    }
    return finish(&c, out, res);
}

/* ---- fp8 ---- */

static struct array *convert_fp8(struct call *c, struct array *x, mlxvk_dtype to, bool encode)
{
    struct array *out;
    if (c->code || !x) return NULL;
    if (!is_dtype((int)to) || !is_float(encode ? x->dtype : to))
        return FAIL(c, MLXVK_ERROR_DTYPE, "%s is not floating", encode ? TEXT(x) : mlxvk_dtype_name(to));
    if (!encode && x->dtype != MLXVK_UINT8) return FAIL(c, MLXVK_ERROR_DTYPE, "%s is not uint8", TEXT(x));
    out = output(c, x->ndim, x->shape, to);
    append(c, OP_ELEMENTWISE, PARAMS(.elementwise = { .kernel = K_FP8, .op = !encode }), ARRAYS(x), ARRAYS(out));
    return out;
}

int mlxvk_to_fp8(mlxvk_array *res, mlxvk_array x, mlxvk_stream s)
{
    struct call c = begin("to_fp8", s);
    return finish(&c, convert_fp8(&c, input(&c, "x", x), MLXVK_UINT8, true), res);
}

int mlxvk_from_fp8(mlxvk_array *res, mlxvk_array x, mlxvk_dtype dtype, mlxvk_stream s)
{
    struct call c = begin("from_fp8", s);
    return finish(&c, convert_fp8(&c, input(&c, "x", x), dtype, false), res);
}

/* ---- quantized_matmul: the jobs of its kernels ---- */

enum { QMV_SETS = sizeof(((struct quant_push *)0)->rows) / sizeof(uint32_t) };

/* Matrix products with the same x (m rows of k, the last dimension dense) and one format. A set is a weight with its
 * scales and biases (NULL in modes without), each dense in its last two dimensions, and a result of m rows with stride
 * `y_row`. QMV_ADD adds `residual` (a result's shape) to the rounded product; QMV_SWIGLU stores silu(set 0) * set 1 in
 * set 0's result. */
struct quant_set { struct array *w, *scales, *biases, *y; uint32_t rows, y_row; };

struct quant_job {
    struct quant_params format;
    struct array *x, *residual;
    uint32_t m, k, x_row, batch, x_batch, w_batch, s_batch, y_batch;   /* the strides of a batch in elements */
    mlxvk_dtype to;
    int sets;
    uint32_t epilogue;                               /* QMV_STORE, ... */
    struct quant_set set[QMV_SETS];
    const struct gather *gather;
    struct array *norm;                              /* the weight of x's rms_norm, for qmv_held.comp alone; or NULL */
    float eps;
};

/* For the kernel that holds x in registers: rows of W a round, threads a workgroup, subgroups to have on each
 * multiprocessor (half as many for 8 bits): as many as its registers have room for. */
static const struct held_tuning { uint32_t max_m, rows, threads, teams; } held_tunings[] = {
    { 2, 2, 256, 24 },
    { UINT32_MAX, 1, 256, 32 },
};
enum {
    HELD_PARTS = 1024,                               /* partial sums a workgroup keeps in shared memory */
    HELD_BLOCKS = 8,                                 /* blocks of x that a lane holds at most, of all rows of x */
    HELD_LONG = 64,                                /* rounds of a team from which twice as many workgroups take turns */
    HELD_SUBGROUPS = 64                        /* of a workgroup, at most: what their sums of squares have room for */
};

/* Shared memory of that kernel, where so many lanes span K. */
static uint32_t held_memory(uint32_t lanes) { return 76 * lanes + 4 * HELD_PARTS + 4 * HELD_SUBGROUPS; }

static const char *job_text(const struct quant_job *j, char text[NOTE_TEXT])
{
    static const char *const epilogues[] = { "", [QMV_ADD] = ", added", [QMV_SWIGLU] = ", silu(y0) * y1" };
    const struct quant_params *f = &j->format;
    size_t n = (size_t)snprintf(text, NOTE_TEXT, "rows %u, groups per column %u, %u x ",
                                j->m > 16 ? size_class(j->m) : j->m, j->k / f->group, j->k);
    for (int i = 0; i < j->sets && n < NOTE_TEXT; i++)
        n += (size_t)snprintf(text + n, NOTE_TEXT - n, "%s%u", i ? " and " : "", j->set[i].rows);
    if (n < NOTE_TEXT)
        snprintf(text + n, NOTE_TEXT - n, ", %s of %u bits in groups of %u, %s, batch %u%s%s",
                 quant_modes[f->mode].name, f->bits, f->group, dtypes[j->to].name, j->batch,
                 f->transpose ? "" : ", not transposed", epilogues[j->epilogue]);
    return text;
}
#define JOB(j) job_text(j, (char[NOTE_TEXT]){ 0 })

/* Do the gates allow kernels made for so many rows of x? */
static bool specialised(const struct device *d, uint32_t m)
{
    const int *gate = d->gate;
    if (!gate[GATE_QMM_NATIVE] || (m == 1 && !gate[GATE_QMM_REDUCE])) return false;
    return m > 16 || gate[m == 1 ? GATE_QMM_M1 : m == 2 ? GATE_QMM_M2 : m <= 4 ? GATE_QMM_M4 : m <= 8 ? GATE_QMM_M8
                                                                                             : GATE_QMM_M16];
}

/* May those kernels use subgroup operations? */
static bool by_subgroups(const struct device *d, uint32_t m) { return m > 1 || d->gate[GATE_QMM_SUBGROUP]; }

/* Rounds that the rows of a job's matrices make. */
static uint32_t held_rounds(const struct quant_job *j, uint32_t rows)
{
    uint32_t rounds = 0;
    for (int i = 0; i < j->sets; i += j->epilogue == QMV_SWIGLU ? 2 : 1) rounds += ceil_div(j->set[i].rows, rows);
    return rounds;
}

enum { UNPACK_MOST = 1 << 27 };                      /* more values than this are rather not unpacked: the temporary */

/* Tiles of the cooperative matrix kernel: as tile_row says, rows and columns of a subgroup, subgroups. The deeper ones
 * need more shared memory. */
static const struct tile_row qmm_rows[] = {
    { 128, 128, 64, 64, 32, 8, 0.45f },
    {  64, 128, 64, 32, 32, 8, 0.35f },
    {  32, 128, 64, 32, 16, 8, 0.20f },
    { 128, 128, 32, 64, 32, 8, 0.40f },
    {  64, 128, 32, 32, 32, 8, 0.30f },
    {  32, 128, 32, 32, 16, 8, 0.18f },
};
enum { QMM_SHALLOW = 3, QMM_DEEP_MEMORY = 47 << 10, QMM_TILE_MEMORY = 17 << 10, QMM_LEAST_ROWS = 16 };

enum { QMV_MAX_M = 8, QMV_MAX_SUMS = 64 };

/* The row that holds, with what the gates force. */
static struct quant_tuning qmv_tuning(const struct device *d, uint32_t m)
{
    const int *gate = d->gate;
    struct quant_tuning t;
    int i = 0;
    while (d->tuning->qmv[i].max_m < m) i++;
    t = d->tuning->qmv[i];
    if (gate[GATE_QMV_ROWS] > 0 && gate[GATE_QMV_ROWS] * (int)m <= QMV_MAX_SUMS)
        t.rows = min_u32((uint32_t)gate[GATE_QMV_ROWS], 8);
    if (gate[GATE_QMV_THREADS] > 0) t.threads = min_u32((uint32_t)gate[GATE_QMV_THREADS], d->caps.max_threads);
    return t;
}

/* ---- few rows of x ---- */

/* The operands of kernels whose push constants are of quant_push; for others these are copied. */
static struct quant_push quant_bind(struct encoder *e, const struct quant_job *j)
{
    struct quant_push p = { .m = j->m, .k = j->k, .group_shift = group_shift(&j->format), .x_row = j->x_row,
                            .x_batch = j->x_batch, .w_batch = j->w_batch, .s_batch = j->s_batch,
                            .y_batch = j->y_batch, .eps = j->eps };
    bool sets = j->sets > 1;
    p.x_at = set_input(e, SLOT_qmv_x, j->x);
    for (uint32_t i = 0; i < (uint32_t)j->sets; i++) {
        const struct quant_set *t = &j->set[i];
        p.rows[i] = t->rows;
        p.y_row[i] = t->y_row;
        p.w_at[i] = set_input(e, SLOT_qmv_wa + 3 * i, t->w);
        p.s_at[i] = set_input(e, SLOT_qmv_sa + 3 * i, t->scales);
        if (t->biases) p.b_at[i] = set_input(e, SLOT_qmv_ba + 3 * i, t->biases);
        if (t->y) p.y_at[i] = set_output(e, (sets ? SLOT_qmv_sets_ya : SLOT_qmv_ya) + i, t->y);
    }
    if (j->residual) p.r_at = set_input(e, sets ? SLOT_qmv_sets_res : SLOT_qmv_res, j->residual);
    if (j->norm) p.weight_at = set_input(e, sets ? SLOT_qmv_held_sets_weight : SLOT_qmv_held_weight, j->norm);
    return p;
}

/* The step's kernel and push constants, with index arrays where the job has them. groups: what kernels GROUPED follow,
 * let go here. */
static void use_quant(struct encoder *e, enum kernel_id kernel, const struct quant_job *j, const struct quant_push *p,
                      const struct row_groups *groups, const void *constants, size_t size)
{
    const struct gather *g = j->gather;
    struct quant_gather_push q;
    if (!g) { use_kernel(e, kernel, p, sizeof *p, constants, size); return; }
    q = (struct quant_gather_push){ .m = p->m, .k = p->k, .group_shift = p->group_shift, .rounds = p->rounds,
        .x_at = p->x_at, .x_row = p->x_row, .x_batch = p->x_batch, .w_batch = p->w_batch, .s_batch = p->s_batch,
        .y_batch = p->y_batch, .r_at = p->r_at, .rows = { p->rows[0] }, .w_at = { p->w_at[0] }, .s_at = { p->s_at[0] },
        .b_at = { p->b_at[0] }, .y_at = { p->y_at[0] }, .y_row = { p->y_row[0] }, .first_entry = g->first,
        .every = g->every, .lhs_last = g->matrices - 1, .rhs_last = g->weights - 1, .first_weight = g->from,
        .weights = g->part };
    if (!e->code && !g->every) q.lhs_at = set_input(e, groups ? SLOT_qmm_grouped_lhs : SLOT_qmv_gather_lhs, g->lhs);
    if (!e->code && !groups) q.rhs_at = set_input(e, SLOT_qmv_gather_rhs, g->rhs);
    if (!e->code && groups) {
        q.tiles_at = set_input(e, SLOT_qmm_grouped_tiles, groups->tiles);
        q.order_at = set_input(e, SLOT_qmm_grouped_order, groups->order);
    }
    use_kernel(e, kernel, &q, sizeof q, constants, size);
    if (!groups) return;
    array_release(groups->tiles);
    array_release(groups->order);
}

/* The constants that all kernels of products have. */
#define FORMAT(j) .bits = (j)->format.bits, .tx = (uint32_t)(j)->x->dtype, \
                  .ts = scales_kind(&(j)->format, (j)->set[0].scales), .ty = (uint32_t)(j)->to

/* What can be read 16 bytes at a time: QUANT_EVEN_X, QUANT_EVEN_W. */
static uint32_t quant_alignment(const struct encoder *e, const struct quant_job *j)
{
    uint32_t unit = j->x->dtype == MLXVK_FLOAT32 ? 4 : 8, words = j->format.bits % 4 ? 2 : 4;
    bool x = (place_of_array(e, j->x) | j->x_row | j->x_batch) % unit == 0;
    bool w = j->format.bits % 2 == 0 && j->w_batch % words == 0;
    for (int i = 0; i < j->sets; i++) w = w && place_of_array(e, j->set[i].w) % words == 0;
    return (x ? QUANT_EVEN_X : 0) | (w ? QUANT_EVEN_W : 0);
}

static const char *few_fits(const struct encoder *e, const void *job)
{
    (void)e;
    return ((const struct quant_job *)job)->format.transpose ? NULL : "not transposed";
}

/* Products with a few rows of x, by qmv.comp: all formats and alignments. */
static void plan_few(struct encoder *e, const void *job)
{
    const struct quant_job *j = job;
    struct quant_tuning t = qmv_tuning(e->device, min_u32(j->m, QMV_MAX_M));
    bool subgroup = has_kernel(e->device, K_QMV) && by_subgroups(e->device, j->m);
    uint32_t lanes = subgroup ? e->device->caps.subgroup : 32, m = 1, step = j->epilogue == QMV_SWIGLU ? 2 : 1;
    uint32_t teams = t.threads > lanes ? t.threads / lanes : 1, split = 1, rows = 0, per, groups = 0;
    int forced = e->device->gate[GATE_QMV_SPLIT];
    struct quant_push p = quant_bind(e, j);
    enum kernel_id kernel = j->gather ? (subgroup ? K_QMV_GATHER : K_QMV_GATHER_PLAIN)
                          : j->sets > 1 ? K_QMV_SETS : subgroup ? K_QMV : K_QMV_PLAIN;
    if (t.rows < step) t.rows = step;
    while (m < j->m && m < QMV_MAX_M) m *= 2;
    for (int i = 0; i < j->sets; i++) rows += j->set[i].rows;
    while (2 * split <= teams &&
           (forced > 0 ? 2 * split <= (uint32_t)forced
                       : 2 * split <= t.max_split && split * lanes < j->k / QUANT_BLOCK &&
                         ceil_div(rows, t.rows) * split < t.teams)) split *= 2;
    per = teams / split * t.rows / step;
    for (int i = 0; i < j->sets; i += (int)step) groups += ceil_div(j->set[i].rows, per);
    use_quant(e, kernel, j, &p, NULL, &(struct qmv_constants){ .threads = teams * lanes, FORMAT(j), .m = m, .r = t.rows,
            .split = split, .lanes = lanes, .aligned = quant_alignment(e, j), .epilogue = j->epilogue },
            sizeof(struct qmv_constants));
    dispatch(e, groups, ceil_div(j->m, m), j->batch);
}

static enum kernel_id held_kernel(const struct quant_job *j)
{
    return j->gather ? K_QMV_HELD_GATHER : j->sets > 1 ? K_QMV_HELD_SETS : K_QMV_HELD;
}

/* How qmv_held.comp cuts a job: rows of x a workgroup, rows of W a round, teams that span K, blocks of a row that a
 * lane holds, rounds at a time, in all, and of a workgroup (0: its rows are more than pay at a time), sums kept. */
struct held_cut { uint32_t m, rows, split, held, per, all, rounds, parts; };

static struct held_cut cut_held(const struct encoder *e, const struct quant_job *j)
{
    const struct device *d = e->device;
    const struct held_tuning *t = held_tunings;
    const int *gate = d->gate;
    struct held_cut h = { .m = j->m > 2 ? 4 : j->m };
    uint32_t lanes = d->caps.subgroup, blocks = j->k / QUANT_BLOCK, entries = j->gather ? j->batch : 1;
    uint32_t step = j->epilogue == QMV_SWIGLU ? 2 : 1, fewest = UINT32_MAX, threads, groups;
    while (t->max_m < h.m) t++;
    h.rows = gate[GATE_QMV_ROWS] > 0 ? min_u32((uint32_t)gate[GATE_QMV_ROWS], 8) : t->rows;
    while (h.rows & (h.rows - 1)) h.rows &= h.rows - 1;                /* lanes add up by halves */
    threads = gate[GATE_QMV_THREADS] > 0 ? (uint32_t)gate[GATE_QMV_THREADS] : t->threads;
    threads = min_u32(threads, min_u32(d->caps.max_threads, HELD_SUBGROUPS * lanes));
    h.split = gate[GATE_QMV_SPLIT] > 0 ? (uint32_t)gate[GATE_QMV_SPLIT] : (uint32_t)max_size(threads / lanes, 1);
    h.held = ceil_div(blocks, lanes * h.split);
    h.split = ceil_div(blocks, lanes * h.held);
    h.per = (uint32_t)max_size(threads / lanes / h.split, 1);
    groups = d->tuning->processors * ceil_div(j->format.bits == 8 ? t->teams / 2 : t->teams, h.per * h.split);
    for (int i = 0; i < j->sets; i++) fewest = min_u32(fewest, j->set[i].rows);
    while (h.rows > step && (h.rows / step > fewest || (!gate[GATE_QMV_ROWS] &&
           (uint64_t)held_rounds(j, h.rows / step) * entries < (uint64_t)h.per * groups))) h.rows /= 2;
    if (h.rows < step) return h;
    h.all = held_rounds(j, h.rows / step);
    if (h.all / h.per / groups >= HELD_LONG) groups *= 2;
    h.rounds = h.per * ceil_div((uint64_t)h.all * entries, (uint64_t)h.per * groups);
    h.rounds = min_u32(h.rounds, (uint32_t)round_up(h.all, h.per));
    while (h.rounds * h.m * h.rows * h.split > HELD_PARTS && h.rounds > h.per) h.rounds -= h.per;
    h.parts = (uint32_t)max_size(256, h.rounds * h.m * h.rows * h.split);
    return h;
}

/* What keeps qmv_held.comp from a job. */
static const char *held_fits(const struct encoder *e, const void *job)
{
    const struct device *d = e->device;
    const struct quant_job *j = job;
    uint32_t bits = j->format.bits, threads;
    struct held_cut h;
    if (!is_affine(&j->format) && bits != 4) return "floats of 8 bits";
    if (j->to == MLXVK_FLOAT32 || j->x->dtype != j->to) return "not in one half type";
    if (bits != 2 && bits != 4 && bits != 8) return "neither 2, 4 nor 8 bits";
    if (j->k < QUANT_BLOCK) return "nothing to add up";
    if (!has_kernel(d, held_kernel(j))) return "the device lacks subgroup operations or integer dot products";
    if (!by_subgroups(d, j->m)) return "a gate";
    if (!j->format.transpose) return "not transposed";
    h = cut_held(e, j);
    threads = h.split * d->caps.subgroup;
    if (h.held > HELD_BLOCKS / h.m) return "long rows";
    if (h.split > HELD_SUBGROUPS || threads > d->caps.max_threads || held_memory(threads) > d->caps.shared_memory)
        return "the device's workgroups are small";
    if (!h.rounds) return "more rows than pay at a time";
    if (h.rows * h.m > d->caps.subgroup) return "the device's subgroups are small";
    if (j->norm && place_of_array(e, j->norm) % 8) return "not aligned";
    return quant_alignment(e, j) == (QUANT_EVEN_X | QUANT_EVEN_W) ? NULL : "not aligned";
}

static void plan_held(struct encoder *e, const void *job)
{
    const struct quant_job *j = job;
    struct held_cut h = cut_held(e, j);
    uint32_t lanes = e->device->caps.subgroup;
    struct quant_push p = quant_bind(e, j);
    p.rounds = h.rounds;
    use_quant(e, held_kernel(j), j, &p, NULL, &(struct qmv_held_constants){ .threads = h.per * h.split * lanes,
            FORMAT(j), .m = h.m, .r = h.rows, .split = h.split, .lanes = lanes, .bl = h.held,
            .blocks = j->k / QUANT_BLOCK, .shift = is_affine(&j->format) ? group_shift(&j->format) - 1 : 0,
            .epilogue = j->epilogue, .norm = j->norm != NULL, .parts = pow2_at_least(h.parts) },
            sizeof(struct qmv_held_constants));
    dispatch(e, ceil_div(h.all, h.rounds), ceil_div(j->m, h.m), j->batch);
}

/* Costs are ranks here: which kernel is the faster was measured, and changes with the rows of x where the device's
 * tuning says. Held are at most 4 rows, of which a lane has one block: the general kernel is faster beyond. */
static double held_cost(const struct encoder *e, const void *job)
{
    const struct quant_job *j = job;
    return e->device->tuning->held && j->m <= 4 && cut_held(e, j).held == 1 ? 0 : 8;
}

static double few_cost(const struct encoder *e, const void *job)
{
    return ((const struct quant_job *)job)->m <= e->device->tuning->few ? 1 : 6;
}

/* For one matrix, for several sets, by index arrays. */
static const struct candidate few_kernels[3][2] = {
    { { "qmv_held", held_fits, held_cost, plan_held }, { "qmv", few_fits, few_cost, plan_few } },
    { { "qmv_held_sets", held_fits, held_cost, plan_held }, { "qmv_sets", few_fits, few_cost, plan_few } },
    { { "qmv_held_gather", held_fits, held_cost, plan_held }, { "qmv_gather", few_fits, few_cost, plan_few } },
};

/* Rows of quant_kernels from 1, as gate QMM_KERNEL forces them; 0: none. */
enum { QMM_HELD = 1, QMM_FEW, QMM_TILES, QMM_COOPMAT, QMM_UNPACKED };
static int forced_kernel(const struct device *d)
{
    int wanted = d->gate[GATE_QMM_KERNEL];
    return wanted < 1 || wanted > 5 ? 0 : wanted == 5 ? QMM_HELD : wanted + 1;
}

/* By the best of a table. False: x has a norm, which one kernel alone does, and that is not the best. */
static bool quant_by(struct encoder *e, const struct quant_job *j, const struct candidate *table, size_t count,
                     int forced)
{
    const char *text = NOTED(e->device, NOTE_QMM, JOB(j));
    const struct candidate *c = choose(e, table, count, forced, NOTE_QMM, j, text);
    if (j->norm && c->plan != plan_held) return false;
    NOTE(e->device, NOTE_QMM, c->name, NULL, "%s", text);
    c->plan(e, j);
    return true;
}

/* Products with a few rows of x: any epilogue, several sets where there is one batch. */
static bool qmv_dispatch(struct encoder *e, const struct quant_job *j)
{
    int forced = forced_kernel(e->device);
    if (forced > QMM_FEW) forced = QMM_FEW;
    return quant_by(e, j, few_kernels[j->gather ? 2 : j->sets > 1], COUNT(few_kernels[0]), forced);
}

/* ---- many rows of x ---- */

/* Rows of x that meet one weight, about. */
static uint64_t rows_a_weight(const struct quant_job *j)
{
    return j->gather ? (uint64_t)j->gather->entries * j->m / j->gather->weights : j->m;
}

/* Products of any shape, by qmm.comp: one set, no epilogue; rows grouped by weight where index arrays choose it. */
static void plan_tiles(struct encoder *e, const void *job)
{
    const struct quant_job *j = job;
    bool large = e->device->caps.max_threads >= 256 && e->device->caps.shared_memory >= QMM_TILE_MEMORY;
    bool small = j->m <= 16 && rows_a_weight(j) <= 16;
    uint32_t bm = small ? QMM_LEAST_ROWS : large ? 64 : 32, bn = 64, z;
    struct row_groups r = { .count = ceil_div(j->m, bm) };
    struct quant_push p;
    if (j->gather) r = group_rows(e, j->gather, j->m, bm);
    p = quant_bind(e, j);
    z = ceil_div(r.count, e->device->caps.max_groups[1]);
    use_quant(e, j->gather ? K_QMM_GROUPED : K_QMM, j, &p, &r, &(struct qmm_constants){ .threads = small ? 128 : 4 * bm,
              FORMAT(j), .transposed = j->format.transpose, .bm = bm, .bn = bn, .tm = small ? 2 : 4, .tn = 4 },
              sizeof(struct qmm_constants));
    dispatch(e, ceil_div(j->set[0].rows, bn), ceil_div(r.count, z), j->gather ? z : j->batch);
}

static struct product product_of_job(const struct quant_job *j, struct array *a, struct array *b)
{
    bool transpose = j->format.transpose;
    uint32_t n = j->set[0].rows;
    return (struct product){ .array = { [MAT_A] = a, [MAT_B] = b, [MAT_OUT] = j->set[0].y }, .m = j->m, .n = n,
        .k = j->k, .a_row = j->x_row, .a_k = 1, .b_k = transpose ? 1 : n, .b_col = transpose ? j->k : 1,
        .out_row = j->set[0].y_row, .out_col = 1, .alpha = 1 };
}

static enum kernel_id matrices_kernel(const struct quant_job *j)
{
    if (j->gather) return j->to == MLXVK_BFLOAT16 ? K_QMM_GROUPED_BF16 : K_QMM_GROUPED_F16;
    return j->to == MLXVK_BFLOAT16 ? K_QMM_BF16 : K_QMM_F16;
}

/* Why qmm_coopmat.comp does not take a job: W transposed, half types. */
static const char *quant_matrices_fit(const struct encoder *e, const void *job)
{
    const struct device *d = e->device;
    const struct quant_job *j = job;
    if (j->to == MLXVK_FLOAT32 || j->x->dtype != j->to) return "not in one half type";
    if (!j->format.transpose) return "not transposed";
    if (!d->caps.coopmat_size[j->to == MLXVK_BFLOAT16] || !has_kernel(d, matrices_kernel(j)) ||
        8 * d->caps.subgroup > d->caps.max_threads) return "the device lacks cooperative matrices";
    if (!d->gate[GATE_QMM_NATIVE]) return "a gate";
    return quant_alignment(e, j) & QUANT_EVEN_X ? NULL : "not aligned";
}

static double tiles_cost(const struct encoder *e, const void *job) { (void)e; (void)job; return 5; }
static double quant_matrices_cost(const struct encoder *e, const void *job) { (void)e; (void)job; return 3; }

/* p: of the operands as they were bound. */
static struct qmm_coopmat_constants matrices_constants(const struct encoder *e, const struct quant_job *j,
                                                       const struct quant_push *p, const struct tile_row *t, bool parts)
{
    uint32_t lanes = e->device->caps.subgroup, even = (p->y_at[0] | p->y_row[0] | p->y_batch) % 8 ? 0 : QUANT_EVEN_Y;
    return (struct qmm_coopmat_constants){ .threads = t->threads * lanes, FORMAT(j), .bm = t->bm, .bn = t->bn,
        .wm = t->tm, .wn = t->tn, .size = e->device->caps.coopmat_size[j->to == MLXVK_BFLOAT16], .lanes = lanes,
        .depth = t->bk / QUANT_BLOCK, .aligned = even | quant_alignment(e, j), .parts = parts };
}

/* By cooperative matrices, K maybe in parts; or rows grouped by weight. */
static void plan_matrices(struct encoder *e, const void *job)
{
    const struct quant_job *j = job;
    bool deep = e->device->caps.shared_memory >= QMM_DEEP_MEMORY + (j->gather ? 1024 : 0);
    const struct tile_row *tiles = qmm_rows + (deep ? 0 : QMM_SHALLOW), *t;
    uint32_t parts = 1, blocks = j->k / QUANT_BLOCK, step;
    uint64_t each = max_size(rows_a_weight(j), j->m);
    struct product product = product_of_job(j, NULL, NULL);
    struct row_groups r = { 0 };
    struct quant_job part = *j;
    struct qmm_coopmat_constants c;
    struct quant_push p;
    if (j->gather) t = tiles + (each > 96 ? 0 : each > 40 ? 1 : 2);
    else t = choose_tile(e, &product, tiles, (int)(qmm_rows + COUNT(qmm_rows) - tiles), &parts);
    if (j->gather) r = group_rows(e, j->gather, j->m, t->bm);
    else r.count = ceil_div(j->m, t->bm);
    if (j->batch > 1) parts = 1;
    if (parts > 1) part.set[0].y = scratch(e, (size_t)j->m * j->set[0].rows * parts, MLXVK_FLOAT32);
    if (!part.set[0].y) return;
    p = quant_bind(e, &part);
    step = t->bk / QUANT_BLOCK;
    p.rounds = ceil_div(blocks, parts * step) * step;
    c = matrices_constants(e, j, &p, t, parts > 1);
    use_quant(e, matrices_kernel(j), j, &p, &r, &c, sizeof c);
    dispatch(e, r.count, ceil_div(j->set[0].rows, t->bn), parts > 1 ? ceil_div(blocks, p.rounds) : j->batch);
    if (parts > 1) {
        product_sum(e, &product, part.set[0].y, ceil_div(blocks, p.rounds));
        array_release(part.set[0].y);
    }
}

static const char *unpacked_fits(const struct encoder *e, const void *job)
{
    const struct quant_job *j = job;
    size_t count = (size_t)j->k * j->set[0].rows;
    if (j->x->dtype != j->to) return "not in one dtype";
    if (j->batch > 1) return "a batch";
    return count > INT_MAX || count * dtypes[j->to].size > e->device->caps.max_range ? "a large weight" : NULL;
}

/* Pays for many rows, or where W lies along the result's rows; a large weight only where matrices do not take it. */
static double unpacked_cost(const struct encoder *e, const void *job)
{
    const struct quant_job *j = job;
    uint64_t count = (uint64_t)j->k * j->set[0].rows;
    if (j->format.transpose ? j->m < e->device->tuning->unpack : count < 1 << 16) return 7;
    return count > UNPACK_MOST ? 4 : 2;
}

/* The weight is unpacked, rounded to the result's dtype, and the plain matmul does the rest. */
static void plan_unpacked(struct encoder *e, const void *job)
{
    const struct quant_job *j = job;
    const struct quant_set *t = &j->set[0];
    struct array *w = scratch(e, (size_t)j->k * t->rows, j->to);
    if (w) {
        struct product p = product_of_job(j, j->x, w);
        unpack_dispatch(e, &j->format, t->w, t->scales, t->biases, NULL, w, j->to);
        product_batch(e, &p);
    }
    array_release(w);
}

/* ---- gather_qmm: what meets which weight, index arrays say ---- */

/* As many tiles as rows can make, grouped or not. */
static uint64_t most_tiles(uint64_t entries, uint64_t m) { return 2 * entries * ceil_div(m, QMM_LEAST_ROWS); }

static const char *gather_matrices_fit(const struct encoder *e, const void *job)
{
    const struct quant_job *j = job;
    if (most_tiles(j->gather->entries, j->m) > e->device->caps.max_groups[0]) return "more tiles than a grid";
    return quant_matrices_fit(e, job);
}

/* Entry by entry, which pays where few rows meet each weight. */
static double quant_entries_cost(const struct encoder *e, const void *job)
{
    const struct quant_job *j = job;
    bool many = j->m > QMV_MAX_M || (uint64_t)j->gather->entries * j->m >= (uint64_t)GROUP_ROWS * j->gather->weights;
    return e->device->tuning->entries || !many ? 0 : 6;
}

static void plan_entries(struct encoder *e, const void *job)
{
    struct quant_job j = *(const struct quant_job *)job;
    struct gather g = *j.gather;
    uint32_t most = e->device->caps.max_groups[2];
    j.gather = &g;
    for (g.first = 0; g.first < g.entries && !e->code; g.first += j.batch) {
        j.batch = min_u32(g.entries - g.first, most);
        qmv_dispatch(e, &j);
    }
}

/* ---- one way to choose, one to cut ---- */

/* For a job of one set without an epilogue, in the order of QMM_HELD, ... */
static const struct candidate quant_kernels[] = {
    { "qmv_held", held_fits, held_cost, plan_held },
    { "qmv", few_fits, few_cost, plan_few },
    { "qmm", NULL, tiles_cost, plan_tiles },
    { "qmm by cooperative matrices", quant_matrices_fit, quant_matrices_cost, plan_matrices },
    { "unpacked, matmul", unpacked_fits, unpacked_cost, plan_unpacked },
};

static const struct candidate gather_kernels[] = {
    { "entry by entry", few_fits, quant_entries_cost, plan_entries },
    { "qmm_grouped", NULL, tiles_cost, plan_tiles },
    { "qmm_grouped by cooperative matrices", gather_matrices_fit, quant_matrices_cost, plan_matrices },
};

static void quant_choose(struct encoder *e, const struct quant_job *j)
{
    static const int gathered[] = { 0, [QMM_HELD] = 1, [QMM_FEW] = 1, [QMM_TILES] = 2, [QMM_COOPMAT] = 3,
                                    [QMM_UNPACKED] = 3 };
    bool special = j->gather || specialised(e->device, j->m);
    int forced = special ? forced_kernel(e->device) : QMM_TILES;
    if (!special) NOTE(e->device, NOTE_QMM, "specialised kernels", "a gate", "%s", JOB(j));
    if (j->gather) quant_by(e, j, gather_kernels, COUNT(gather_kernels), gathered[forced]);
    else quant_by(e, j, quant_kernels, COUNT(quant_kernels), forced);
}

/* A job's arrays, each as a batch of matrices; where index arrays choose, x's and weights' are all there are. */
enum { JOB_X, JOB_W, JOB_SCALES, JOB_BIASES, JOB_Y, JOB_LHS, JOB_RHS, JOB_ARRAYS };

/* What a job can be cut along, and the axis of each array that is cut then. */
enum { CUT_BATCH, CUT_ENTRIES, CUT_WEIGHTS, CUT_ROWS, CUT_COLUMNS, CUT_K, CUT_NOTHING };
static const int8_t cut_axes[][JOB_ARRAYS] = {
    [CUT_BATCH]   = {  0,  0,  0,  0,  0, -1, -1 },
    [CUT_ENTRIES] = {  0, -1, -1, -1,  0,  0,  0 },  /* x where entries follow its matrices */
    [CUT_WEIGHTS] = { -1,  0,  0,  0, -1, -1, -1 },  /* entries of those that are not bound are left alone */
    [CUT_ROWS]    = {  1, -1, -1, -1,  1, -1, -1 },
    [CUT_COLUMNS] = { -1,  1,  1,  1,  2, -1, -1 },  /* of W transposed */
    [CUT_K]       = {  2,  1,  1,  1, -1, -1, -1 },  /* of W not transposed: sums in float32 are added up */
};

static struct array stack_of(const struct array *a, int batch, int64_t step, int rows, int64_t row_step, int columns)
{
    struct array v = *a;
    v.refs = 1;
    v.ndim = 3;
    memcpy(v.shape, ((int[]){ batch, rows, columns }), 3 * sizeof *v.shape);
    memcpy(v.strides, ((int64_t[]){ batch > 1 ? step : 0, row_step, 1 }), 3 * sizeof *v.strides);
    v.size = (size_t)batch * (size_t)rows * (size_t)columns;
    v.row = row_contiguous(&v);
    return v;
}

/* The matrices of an array, which are one stride apart. */
static struct array matrices_in(const struct array *a, int64_t step)
{
    return stack_of(a, (int)matrix_count(a), step, dim_of(a, -2), a->strides[a->ndim - 2], dim_of(a, -1));
}

/* Columns of W transposed that fit into a binding, the result's too, and into the grids of all kernels. */
static uint32_t columns_at_once(const struct device *d, const struct quant_job *j, const struct array *a)
{
    const uint32_t *grid = d->caps.max_groups;
    size_t row = max_size((size_t)a[JOB_X].shape[2] / QUANT_BLOCK * j->format.bits * 4, item_size(&a[JOB_Y]));
    uint32_t most = (uint32_t)min_size(binding_room(d, 4) / row, min_size(grid[0], (size_t)64 * grid[1]));
    return most > 32 ? most & ~31u : most > 0 ? most : 1;
}

/* Along what to cut a job, and where. long_job: it would take too long. */
static int where_to_cut(const struct device *d, const struct quant_job *j, const struct array *a, bool long_job,
                        int64_t *first)
{
    const uint32_t *grid = d->caps.max_groups;
    const struct array *y = &a[JOB_Y];
    int64_t batch = y->shape[0], rows = y->shape[1], columns = y->shape[2], every = j->gather ? j->gather->every : 0;
    bool x_fits = fits_binding(d, &a[JOB_X]), y_fits = fits_binding(d, y), w_fits = true, sums;
    for (int i = JOB_W; i <= JOB_BIASES; i++) w_fits = w_fits && fits_binding(d, &a[i]);
    sums = !w_fits && !j->format.transpose && !j->gather;
    *first = batch / 2;
    if (!j->gather && batch > 1 && (batch > grid[2] || !x_fits || !y_fits || !w_fits)) return CUT_BATCH;
    /* entries first: kernels that group them take the rows of all for one matrix */
    if (j->gather && batch > 1 && (!y_fits || (every && !x_fits) || long_job || rows > QMV_MAX_M * (int64_t)grid[1] ||
                                   most_tiles((uint64_t)batch, (uint64_t)rows) > (uint64_t)grid[1] * grid[2])) {
        if (batch > every && every) *first = max_size((size_t)(*first / every), 1) * every;
        return CUT_ENTRIES;
    }
    *first = a[JOB_W].shape[0] / 2;
    if (j->gather && *first && !w_fits) return CUT_WEIGHTS;
    *first = rows / 2;
    if (*first && !(j->gather && batch > 1) &&
        (rows > QMV_MAX_M * (int64_t)grid[1] || !x_fits || !y_fits || long_job ||
         (sums && 8 * (size_t)(rows * columns) > binding_room(d, 4)))) return CUT_ROWS;
    *first = columns_at_once(d, j, a);
    if (j->format.transpose && columns > *first) return CUT_COLUMNS;
    *first = a[JOB_X].shape[2] / 2;
    return sums && *first ? CUT_K : CUT_NOTHING;
}

/* Sets what a job says of its arrays. */
static void set_arrays(struct quant_job *j, struct gather *g, struct array *a)
{
    const struct array *y = &a[JOB_Y];
    j->x = &a[JOB_X];
    j->m = (uint32_t)y->shape[1];
    j->k = (uint32_t)a[JOB_X].shape[2];
    j->x_row = (uint32_t)a[JOB_X].strides[1];
    j->x_batch = (uint32_t)a[JOB_X].strides[0];
    j->w_batch = (uint32_t)a[JOB_W].strides[0];
    j->s_batch = (uint32_t)a[JOB_SCALES].strides[0];
    j->y_batch = (uint32_t)y->strides[0];
    j->set[0] = (struct quant_set){ &a[JOB_W], &a[JOB_SCALES], is_affine(&j->format) ? &a[JOB_BIASES] : NULL,
                                    &a[JOB_Y], (uint32_t)y->shape[2], (uint32_t)y->strides[1] };
    j->batch = j->gather ? 1 : (uint32_t)y->shape[0];
    if (!j->gather) return;
    *g = *j->gather;
    g->lhs = &a[JOB_LHS];
    g->rhs = &a[JOB_RHS];
    g->entries = (uint32_t)y->shape[0];
    g->part = (uint32_t)a[JOB_W].shape[0];
    if (g->every) g->matrices = (uint32_t)a[JOB_X].shape[0];
    j->gather = g;
}

/* Runs a job of one set, in parts where the device cannot bind an operand whole, or the grid would be too large. */
static void quant_run(struct encoder *e, const struct quant_job *job, struct array *a)
{
    int64_t first, every = job->gather ? job->gather->every : 0;
    double work = (double)a[JOB_Y].size * a[JOB_X].shape[2];
    int way = where_to_cut(e->device, job, a, too_long(e, work), &first);
    struct array *sums = NULL;
    struct quant_job j = *job;
    struct product whole;
    struct gather g;
    set_arrays(&j, &g, a);
    if (way == CUT_NOTHING) { set_work(e, work); quant_choose(e, &j); return; }
    whole = product_of_job(&j, NULL, NULL);
    if (way == CUT_K && !(sums = scratch(e, 2 * (size_t)j.m * j.set[0].rows, MLXVK_FLOAT32))) return;
    for (int half = 0; half < 2 && !e->code; half++) {
        struct array cut[JOB_ARRAYS];
        struct quant_job part = j;
        struct gather some = g;
        for (int i = 0; i < JOB_ARRAYS; i++) {
            int axis = cut_axes[way][i];
            int64_t at = way == CUT_ENTRIES && i == JOB_X ? (every ? first / every : 0) : first;
            cut[i] = a[i];
            if (axis >= 0 && at) cut[i] = part_of(&a[i], axis, half ? at : 0, half ? a[i].shape[axis] - at : at);
        }
        if (way == CUT_WEIGHTS && half) some.from += (uint32_t)first;
        if (part.gather) part.gather = &some;
        if (sums) {
            cut[JOB_Y] = stack_of(sums, 1, 0, (int)j.m, j.set[0].rows, (int)j.set[0].rows);
            cut[JOB_Y].offset += half * 4 * (int64_t)cut[JOB_Y].size;
            part.to = MLXVK_FLOAT32;
        }
        quant_run(e, &part, cut);
    }
    if (sums) product_sum(e, &whole, sums, 2);
    array_release(sums);
}

/* ---- quantized_matmul: from arrays to jobs ---- */

/* The one stride between the rows of all leading dimensions; false where there is none. */
static bool one_row_stride(const struct array *x, uint32_t *stride)
{
    int64_t step = 0, reach = 0;
    for (int i = x->ndim - 2; i >= 0; i--) {
        if (x->shape[i] == 1) continue;
        if (!reach) step = x->strides[i];
        else if (x->strides[i] != reach) return false;
        reach = (reach ? reach : step) * x->shape[i];
        if (step <= 0) return false;
    }
    *stride = (uint32_t)step;
    return x->shape[x->ndim - 1] == 1 || x->strides[x->ndim - 1] == 1;
}

/* The job of a quantized_matmul whose weight has no batch; its operands are held until quant_close. */
static void quant_open(struct encoder *e, const struct node *n, struct quant_job *j)
{
    struct array *x = n->in[0], *y = n->out[0];
    uint32_t stride, rows = (uint32_t)y->shape[y->ndim - 1];
    *j = (struct quant_job){ .format = n->p.quant, .k = (uint32_t)dim_of(x, -1), .batch = 1, .to = y->dtype,
                             .sets = 1 };
    if (one_row_stride(x, &stride)) x->refs++;
    else { x = rows_of(e, x); stride = j->k; }
    j->x = x;
    j->x_row = stride;
    j->m = (uint32_t)(y->size / rows);
    j->set[0] = (struct quant_set){ dense_of(e, n->in[1], true), dense_of(e, n->in[2], true),
                                    dense_of(e, n->in[3], true), y, rows, rows };
}

static void quant_close(struct quant_job *j)
{
    array_release(j->x);
    for (int i = 0; i < j->sets; i++) {
        array_release(j->set[i].w);
        array_release(j->set[i].scales);
        array_release(j->set[i].biases);
    }
}

/* One weight: all rows of x are one matrix. */
static void one_weight(struct encoder *e, const struct node *n)
{
    struct quant_job j;
    quant_open(e, n, &j);
    struct quant_set *t = &j.set[0];
    struct array *in[] = { t->w, t->scales, t->biases ? t->biases : t->scales }, a[JOB_ARRAYS] = { 0 };
    a[JOB_X] = stack_of(j.x, 1, 0, (int)j.m, (int32_t)j.x_row, (int)j.k);
    a[JOB_Y] = stack_of(t->y, 1, 0, (int)j.m, t->y_row, (int)t->rows);
    for (int i = 0; i < 3; i++) a[JOB_W + i] = matrices_in(in[i], 0);
    quant_run(e, &j, a);
    quant_close(&j);
}

/* A batch of weights: a job each for its outer dimensions. The arrays have the same number of dimensions, the batch's
 * broadcast. */
static void many_weights(struct encoder *e, const struct node *n)
{
    struct array *y = n->out[0], *in[5] = { NULL }, a[JOB_ARRAYS] = { 0 };
    struct quant_job j = { .format = n->p.quant, .to = y->dtype, .sets = 1 };
    int outer = y->ndim - 3;
    size_t count = 1;
    for (int i = 0; i < outer; i++) count *= (size_t)y->shape[i];
    for (int i = 0; i < 4; i++) in[i] = dense_of(e, n->in[i], i > 0);
    for (size_t at = 0; at < count && !e->code; at++)
        for (int k = 0; k < 5; k++) {
            struct array v = *(k == JOB_Y ? y : in[k] ? in[k] : in[JOB_SCALES]);
            size_t left = at;
            for (int i = outer - 1; i >= 0; left /= (size_t)y->shape[i--])
                v.offset += (int64_t)(left % (size_t)y->shape[i]) * v.strides[i] * (int64_t)item_size(&v);
            a[k] = stack_of(&v, v.shape[outer], v.strides[outer], dim_of(&v, -2), v.strides[outer + 1], dim_of(&v, -1));
            if (k == JOB_Y) quant_run(e, &j, a);
        }
    for (int i = 0; i < 4; i++) array_release(in[i]);
}

static void lower_quantized_matmul(struct encoder *e, const struct node *n)
{
    if (n->in[1]->ndim == 2) one_weight(e, n);
    else many_weights(e, n);
}

static void lower_gather_qmm(struct encoder *e, const struct node *n)
{
    struct array *y = n->out[0], *in[4], a[JOB_ARRAYS] = { 0 };
    int rows = dim_of(y, -2), columns = dim_of(y, -1);
    uint32_t step[4] = { 0 };
    struct gather g = gather_of(n, n->in[4], n->in[5], n->p.gather_qmm.every);
    struct quant_job j = { .format = n->p.gather_qmm.quant, .to = y->dtype, .sets = 1, .gather = &g };
    for (int i = 0; i < 4; i++) in[i] = matrices_of(e, n->in[i], i > 0, &step[i]);
    for (int i = 0; i < 4 && !e->code; i++) {        /* kernels have one stride for scales and biases */
        struct array *old = in[i];
        if (i ? !in[3] || i == 1 || step[3] == step[2] : g.every || fits_binding(e->device, old)) continue;
        matrix_stride(in[i] = rows_of(e, old), &step[i]);
        array_release(old);
    }
    if (!e->code) {
        for (int i = 0; i < 4; i++) a[i] = matrices_in(in[in[i] ? i : 2], step[in[i] ? i : 2]);
        a[JOB_Y] = stack_of(y, (int)g.entries, (int64_t)rows * columns, rows, columns, columns);
        a[JOB_RHS] = stack_of(g.rhs, (int)g.entries, 1, 1, 1, 1);
        a[JOB_LHS] = g.lhs ? stack_of(g.lhs, (int)g.entries, 1, 1, 1, 1) : a[JOB_RHS];
        quant_run(e, &j, a);
    }
    for (int i = 0; i < 4; i++) array_release(in[i]);
}

/* a with zeros behind its last dimension's elements. */
static struct array *with_zeros(struct call *c, struct array *a, int count)
{
    struct array *out, *part;
    int shape[MAXD], last;
    if (c->code || !a) return NULL;
    last = a->ndim - 1;
    memcpy(shape, a->shape, (size_t)a->ndim * sizeof *shape);
    shape[last] += count;
    out = output(c, a->ndim, shape, a->dtype);
    part = slice_one(c, out, last, a->shape[last], count);
    if (!part) return NULL;
    append_copy(c, part, broadcast(c, scalar(c, 0, a->dtype), part->ndim, part->shape));
    append_copy(c, slice_one(c, out, last, 0, a->shape[last]), a);
    return out;
}

/* A product with quantized weights: dtypes of scales and result; the result's columns, and how many of them count. */
struct quant_shape { mlxvk_dtype scales, to; int n, columns; };

/* What no cut makes fit into a binding: rows of x; where W is not transposed, its columns (into a grid, too), what
 * adding up its parts takes, or one of several weights. */
static bool within_reach(struct call *c, const struct array *x, const struct array *w, const struct quant_params *p,
                         const struct quant_shape *f, bool several)
{
    const size_t room = binding_room(c->device, 4), matrix = (size_t)dim_of(w, -1) * (size_t)dim_of(w, -2) * 4;
    if ((size_t)dim_of(x, -1) * item_size(x) > room)
        return FAIL(c, MLXVK_ERROR_LIMIT, "x %s has rows longer than a binding reaches (%zu bytes)", TEXT(x),
                    room), false;
    if (!p->transpose && ((size_t)f->n > min_size(room / 4, (size_t)64 * c->device->caps.max_groups[0]) ||
                          (matrix > room && (several || (size_t)f->n > room / 8))))
        return FAIL(c, MLXVK_ERROR_LIMIT, "w %s, not transposed, has matrices larger than a binding or a grid "
                    "reaches (%zu bytes)", TEXT(w), room), false;
    return true;
}

/* Checks and promotes the operands of a product, of which x has `least` dimensions. Kernels take rows of whole blocks:
 * what groups of 16 leave over is filled with zeros, rows of x with them. */
static bool quant_operands(struct call *c, int least, struct array *in[4], const struct quant_params *p,
                           struct quant_shape *f)
{
    struct array *x = in[0], *w = in[1], *s = in[2], *b = in[3];
    int n, k;
    if (c->code || !x || !check_quantized(c, w, s, b, p)) return false;
    f->scales = b ? promote(s->dtype, b->dtype) : s->dtype;
    f->to = b ? promote(x->dtype, f->scales) : x->dtype;
    n = p->transpose ? dim_of(w, -2) : (int)quant_width(w, p);
    k = p->transpose ? (int)quant_width(w, p) : dim_of(w, -2);
    if (!is_float(f->to)) return FAIL(c, MLXVK_ERROR_DTYPE, "%s is not taken", TEXT(x)), false;
    if (x->ndim < least || dim_of(x, -1) != k)
        return FAIL(c, MLXVK_ERROR_SHAPE, "%s and weights of %d x %d values (w %s, %s transposed) cannot be multiplied",
                    TEXT(x), p->transpose ? n : k, p->transpose ? k : n, TEXT(w), p->transpose ? "" : "not"), false;
    f->columns = n;
    if (quant_width(w, p) % QUANT_BLOCK) {
        in[1] = with_zeros(c, w, p->bits / 2);
        in[2] = with_zeros(c, s, 1);
        if (p->transpose) in[0] = with_zeros(c, x, QUANT_BLOCK / 2);
    }
    if (c->code) return false;
    f->n = p->transpose ? n : (int)quant_width(in[1], p);
    if (!is_float(x->dtype)) in[0] = as_type(c, in[0], f->to);
    in[2] = as_type(c, in[2], f->scales);
    in[3] = as_type(c, b, f->scales);
    return !c->code;
}

/* Operands and the result's shape with one batch for all. */
static bool one_batch(struct call *c, struct array *in[4], int *ndim, int *shape)
{
    struct array rows = *in[0], cols = *in[1];
    if (rows.ndim < 2)
        return FAIL(c, MLXVK_ERROR_SHAPE, "%s has no rows for a batch of weights %s", TEXT(in[0]), TEXT(in[1])), false;
    rows.ndim -= 2;
    cols.ndim -= 2;
    if (!broadcast_shape(c, &rows, &cols, ndim, shape)) return false;
    *ndim += 2;
    for (int i = 3; i >= 0; i--) {                   /* x last: the result has its rows */
        if (!in[i]) continue;
        shape[*ndim - 2] = dim_of(in[i], -2);
        shape[*ndim - 1] = dim_of(in[i], -1);
        in[i] = broadcast(c, in[i], *ndim, shape);
    }
    if (in[2] && in[3] && memcmp(in[2]->strides, in[3]->strides, (size_t)in[2]->ndim * sizeof *in[2]->strides))
        for (int i = 2; i < 4; i++) in[i] = copy_of(c, in[i]);
    return !c->code;
}

/* in[] = x, w, scales, biases. */
static struct array *do_quantized_matmul(struct call *c, struct array *x, struct array *w, struct array *s,
                                         struct array *b, struct quant_params p)
{
    struct array *in[4] = { x, w, s, b }, *out;
    struct quant_shape f;
    int ndim, shape[MAXD];
    if (!quant_operands(c, 1, in, &p, &f) || !within_reach(c, in[0], in[1], &p, &f, false)) return NULL;
    if (matrix_count(w) == 1 && (x->ndim >= w->ndim || w->ndim == 2)) {
        for (int i = 1; i < 4 && w->ndim > 2; i++)
            if (in[i]) in[i] = view_of(c, in[i], in[i]->dtype, 2, in[i]->shape + in[i]->ndim - 2,
                                       in[i]->strides + in[i]->ndim - 2, in[i]->offset);
        ndim = x->ndim;
        memcpy(shape, x->shape, (size_t)ndim * sizeof *shape);
    } else if (!one_batch(c, in, &ndim, shape)) return NULL;
    shape[ndim - 1] = f.n;
    out = output(c, ndim, shape, f.to);
    append(c, OP_QUANTIZED_MATMUL, PARAMS(.quant = p), in, 4, ARRAYS(out));
    return f.columns == f.n ? out : slice_one(c, out, ndim - 1, 0, f.columns);
}

int mlxvk_quantized_matmul(mlxvk_array *res, mlxvk_array x, mlxvk_array w, mlxvk_array scales, mlxvk_array biases,
                           bool transpose, mlxvk_optional_int group_size, mlxvk_optional_int bits, const char *mode,
                           mlxvk_stream s)
{
    struct call c = begin("quantized_matmul", s);
    struct array *a = input(&c, "x", x), *q = input(&c, "w", w), *k = input(&c, "scales", scales),
        *b = optional_input(&c, "biases", biases);
    struct quant_params p = quant_format(&c, group_size, bits, mode, transpose);
    return finish(&c, do_quantized_matmul(&c, a, q, k, b, p), res);
}

static struct array *do_gather_qmm(struct call *c, struct array *x, struct array *w, struct array *s, struct array *b,
                                   struct array *lhs, struct array *rhs, struct quant_params p)
{
    struct gather_qmm_params g = { .quant = p };
    struct array *in[4] = { x, w, s, b }, *out;
    struct quant_shape f;
    int ndim, shape[MAXD];
    if (!lhs && !rhs) return do_quantized_matmul(c, x, w, s, b, p);
    if (!quant_operands(c, 2, in, &p, &f) || !within_reach(c, in[0], in[1], &p, &f, true)) return NULL;
    if (!matrix_indices(c, in[0], in[1], &lhs, &rhs, &g.every, &ndim, shape)) return NULL;
    if (ndim + 2 > MAXD) return FAIL(c, MLXVK_ERROR_SHAPE, "the result has more than %d dimensions", MAXD);
    shape[ndim] = dim_of(x, -2);
    shape[ndim + 1] = f.n;
    out = output(c, ndim + 2, shape, f.to);
    if (!out) return NULL;
    if (out->size && (!x->size || !w->size)) {
        if (!dim_of(x, -1)) return append_copy(c, out, broadcast(c, scalar(c, 0, f.to), out->ndim, out->shape)), out;
        return FAIL(c, MLXVK_ERROR_SHAPE, "there are no matrices to choose from in %s and %s", TEXT(x), TEXT(w));
    }
    if (!g.every && array_bytes(in[0]) > binding_room(c->device, item_size(in[0]))) {
        int all[3] = { (int)matrix_count(x), dim_of(x, -2), dim_of(in[0], -1) };
        in[0] = do_take(c, do_reshape(c, in[0], 3, all), lhs, 0);      /* what each entry has of its own can be cut */
        g.every = 1;
    }
    append(c, OP_GATHER_QMM, PARAMS(.gather_qmm = g), ARRAYS(in[0], in[1], in[2], in[3], g.every ? NULL : lhs, rhs),
           ARRAYS(out));
    return f.columns == f.n ? out : slice_one(c, out, out->ndim - 1, 0, f.columns);
}

int mlxvk_gather_qmm(mlxvk_array *res, mlxvk_array x, mlxvk_array w, mlxvk_array scales, mlxvk_array biases,
                     mlxvk_array lhs_indices, mlxvk_array rhs_indices, bool transpose, mlxvk_optional_int group_size,
                     mlxvk_optional_int bits, const char *mode, bool sorted_indices, mlxvk_stream s)
{
    struct call c = begin("gather_qmm", s);
    struct array *a = input(&c, "x", x), *q = input(&c, "w", w), *k = input(&c, "scales", scales),
        *b = optional_input(&c, "biases", biases), *lhs = optional_input(&c, "lhs_indices", lhs_indices),
        *rhs = optional_input(&c, "rhs_indices", rhs_indices);
    struct quant_params p = quant_format(&c, group_size, bits, mode, transpose);
    (void)sorted_indices;                            /* entries are sorted on the GPU where that pays */
    return finish(&c, do_gather_qmm(&c, a, q, k, b, lhs, rhs, p), res);
}

/* x through the format and back, which is what the other operand's codes meet, times that one's scale. */
static struct array *requantized(struct call *c, struct array *x, struct array *scale_x, struct array *scale_w,
                                 struct quant_params p, mlxvk_dtype to)
{
    struct array *out;
    if (c->code || !x) return NULL;
    if (dim_of(x, -1) % p.group)
        return FAIL(c, MLXVK_ERROR_SHAPE, "the last dimension of %s is no multiple of the group of %d", TEXT(x),
                    p.group);
    out = output(c, x->ndim, x->shape, to);
    append(c, OP_QUANTIZE, PARAMS(.quant = p), ARRAYS(x, scale_x, scale_w), ARRAYS(out));
    return out;
}

static struct array *do_qqmm(struct call *c, struct array *x, struct array *w, struct array *k, struct array *scale_x,
                             struct array *scale_w, struct quant_params p)
{
    struct array *parts[3] = { w, k, NULL };
    mlxvk_dtype to, t;
    bool one;
    if (c->code || !x || !w) return NULL;
    if (is_affine(&p)) return FAIL(c, MLXVK_ERROR_ARGUMENT, "mode affine is not taken");
    if (!scale_x != !scale_w)
        return FAIL(c, MLXVK_ERROR_ARGUMENT, "global_scale_x and global_scale_w come together or not at all");
    if (!is_float(x->dtype)) return FAIL(c, MLXVK_ERROR_DTYPE, "x %s is not floating", TEXT(x));
    if (!x->ndim || w->ndim != 2) return FAIL(c, MLXVK_ERROR_SHAPE, "x %s and w %s: w is a matrix", TEXT(x), TEXT(w));
    if (!k && !is_float(w->dtype)) return FAIL(c, MLXVK_ERROR_DTYPE, "w %s without scales is not floating", TEXT(w));
    if (k && !check_quantized(c, w, k, NULL, &p)) return NULL;
    if (!k && !do_quantize(c, w, scale_w, p, parts)) return NULL;
    if (!c->code && quant_width(parts[0], &p) != dim_of(x, -1))
        return FAIL(c, MLXVK_ERROR_SHAPE, "the last dimension of x %s does not match w %s", TEXT(x), TEXT(w));
    to = x->dtype;
    t = to == MLXVK_FLOAT16 && scale_w ? MLXVK_FLOAT32 : to;           /* codes times their scales reach 2688 */
    one = x->ndim == 1;
    x = requantized(c, one ? do_expand(c, x, (int[]){ 0 }, 1) : x, scale_x, scale_w, p, t);
    x = do_quantized_matmul(c, x, parts[0], parts[1], NULL, p);
    if (one && x) x = do_reshape(c, x, 1, &x->shape[1]);
    return as_type(c, x, to);
}

int mlxvk_qqmm(mlxvk_array *res, mlxvk_array x, mlxvk_array w, mlxvk_array w_scales, mlxvk_optional_int group_size,
               mlxvk_optional_int bits, const char *mode, mlxvk_array global_scale_x, mlxvk_array global_scale_w,
               mlxvk_stream s)
{
    struct call c = begin("qqmm", s);
    struct array *a = input(&c, "x", x), *q = input(&c, "w", w), *k = optional_input(&c, "w_scales", w_scales);
    struct quant_params p = quant_format(&c, group_size, bits, mode, true);
    struct array *scale_x = tensor_scale(&c, "global_scale_x", global_scale_x, &p);
    struct array *scale_w = tensor_scale(&c, "global_scale_w", global_scale_w, &p);
    return finish(&c, do_qqmm(&c, a, q, k, scale_x, scale_w, p), res);
}

/* ==== >>sort ====================================================================================================== */

enum { RADIX_FEW_TILES = 96 };

/* Elements of an array without gaps, from number `first` on: a view on the caller's stack. */
static struct array elements_of(const struct array *a, size_t first, size_t count)
{
    struct array part = *a;
    part.refs = part.ndim = 1;
    part.strides[0] = 1;
    part.shape[0] = (int)count;
    part.size = count;
    part.offset += (int64_t)(first * item_size(a));
    return part;
}

/* What is bound whole, whatever is cut: a row, a matrix. */
static bool check_room(struct call *c, const char *what, const struct array *a, size_t bytes)
{
    if (!c->code && bytes > binding_room(c->device, 8))
        FAIL(c, MLXVK_ERROR_LIMIT, "a %s of %s takes %zu bytes; one binding reaches %zu", what, TEXT(a), bytes,
             c->device->caps.max_range);
    return !c->code;
}

/* Some rows of a sort: `in` holds data, `out` gets data or positions. Steps write their keys and positions to one of
 * two arrays in turn, the last one to what is first here. */
struct sort_rows {
    struct array in, out, out_as_keys;
    uint32_t rows, n, steps, phase_steps;            /* 64 bits are sorted in two phases: low words, then high words */
    bool index;
    struct array *sorted;                            /* NULL, or for the keys of an argsort */
    struct array *keys[2], *places[2], *owned[4];    /* the last: a radix sort's counts */
};
struct sort_step { struct array *src, *place, *dst, *dst_place; uint32_t flags; };

static struct array *sort_scratch(struct encoder *e, struct sort_rows *s, int i, bool needed)
{
    return s->owned[i] = needed ? scratch(e, (size_t)s->rows * s->n, MLXVK_UINT32) : NULL;
}

static void sort_begin(struct encoder *e, struct sort_rows *s, uint32_t phase_steps)
{
    bool in_out = !s->index && item_size(&s->out) == 4;
    s->phase_steps = phase_steps;
    s->steps = phase_steps * (item_size(&s->in) == 8 ? 2 : 1);
    s->out_as_keys = s->out;
    s->out_as_keys.dtype = MLXVK_UINT32;
    s->keys[0] = sort_scratch(e, s, 0, s->steps > 2 && !in_out && !s->sorted);
    s->keys[1] = sort_scratch(e, s, 1, s->steps > 1);
    s->places[0] = s->index ? &s->out : NULL;
    s->places[1] = sort_scratch(e, s, 2, s->steps > 1 && s->index);
    if (in_out) s->keys[0] = &s->out_as_keys;
    if (s->sorted) s->keys[0] = s->sorted;
}

static struct sort_step sort_step(struct sort_rows *s, uint32_t i)
{
    bool raw = i % s->phase_steps == 0, last = i + 1 == s->steps;
    bool keys = last ? s->sorted != NULL : (i + 1) % s->phase_steps != 0;
    uint32_t target = (s->steps - 1 - i) & 1;
    struct sort_step p = {
        .src = raw ? &s->in : s->keys[!target], .place = i ? s->places[!target] : NULL,
        .dst = keys ? s->keys[target] : NULL, .dst_place = s->places[target],
        .flags = (raw ? SORT_RAW : 0) | (keys ? SORT_KEYS_OUT : 0)
    };
    if (s->index) p.flags |= SORT_INDEX_OUT | (i ? SORT_INDEX_IN : 0) | (i && raw ? SORT_GATHER | SORT_HIGH : 0);
    else if (last) { p.flags |= SORT_VALUES_OUT; p.dst = &s->out; }
    return p;
}

/* ---- rows or blocks in shared memory, merges ---- */

/* Threads of the largest workgroup whose elements fit into shared memory. */
static uint32_t sort_threads(const struct encoder *e, bool index)
{
    const struct capabilities *c = &e->device->caps;
    uint32_t threads = 512;
    while (threads > 64 &&
           (threads > c->max_threads || threads * SORT_EACH * 33 / 32 * (index ? 8 : 4) > c->shared_memory))
        threads /= 2;
    return threads;
}

static void sort_blocks(struct encoder *e, const struct sort_rows *s, const struct sort_step *p)
{
    uint32_t most = sort_threads(e, s->index), row_threads = 1, threads;
    struct sort_push push = { .rows = s->rows, .n = s->n, .dtype = s->in.dtype, .flags = p->flags };
    while (row_threads < most && row_threads * SORT_EACH < s->n) row_threads *= 2;
    threads = row_threads > 256 ? row_threads : min_u32(most, 256);
    push.blocks = ceil_div(s->n, row_threads * SORT_EACH);
    push.row_threads = row_threads;
    if (p->dst) push.dst_at = set_output(e, SLOT_sort_dst, p->dst);
    push.src_at = set_input(e, SLOT_sort_src, p->src);
    if (p->flags & SORT_INDEX_IN) push.place_at = set_input(e, SLOT_sort_place, p->place);
    if (p->dst_place) push.dst_place_at = set_output(e, SLOT_sort_dst_place, p->dst_place);
    USE(e, sort, &push, .threads = threads, .indexed = s->index);
    dispatch_groups(e, push.blocks > 1 ? (uint64_t)s->rows * push.blocks : ceil_div(s->rows, threads / row_threads));
}

static void sort_merge(struct encoder *e, const struct sort_rows *s, const struct sort_step *p, uint32_t run)
{
    struct merge_push push = { .rows = s->rows, .n = s->n, .run = run, .parts = ceil_div(s->n, MERGE_EACH),
                               .dtype = s->in.dtype, .flags = p->flags };
    if (p->dst) push.dst_at = set_output(e, SLOT_merge_dst, p->dst);
    push.src_at = set_input(e, SLOT_merge_src, p->src);
    if (p->flags & SORT_INDEX_IN) push.place_at = set_input(e, SLOT_merge_place, p->place);
    if (p->dst_place) push.dst_place_at = set_output(e, SLOT_merge_dst_place, p->dst_place);
    USE(e, merge, &push, .threads = 128);
    dispatch_groups(e, ceil_div((uint64_t)s->rows * push.parts, 128));
}

/* ---- radix sort, a digit of eight bits a step ---- */

/* Elements of a row that a workgroup takes. */
static uint32_t radix_tile(const struct sort_rows *s)
{
    return RADIX_DIGITS * ((size_t)s->rows * s->n < (1u << 20) ? 8 : 16);
}

static void radix_step(struct encoder *e, const struct sort_rows *s, const struct sort_step *p, uint32_t shift)
{
    uint32_t tiles = ceil_div(s->n, radix_tile(s)), flags[3] = { 0, 0, p->flags };
    struct radix_push push = { .rows = s->rows, .n = s->n, .tiles = tiles, .shift = shift };
    if (p->flags & SORT_RAW) flags[0] = p->flags & (SORT_RAW | SORT_INDEX_OUT | SORT_HIGH | SORT_GATHER);
    if (p->flags & SORT_GATHER) flags[0] |= SORT_INDEX_IN;
    for (uint32_t pass = 0; pass < 3; pass++) {      /* count, sum up, move */
        uint32_t dtype = flags[pass] & (SORT_RAW | SORT_VALUES_OUT) ? (uint32_t)s->in.dtype : MLXVK_UINT32;
        if (pass == 1 && tiles <= RADIX_FEW_TILES) continue;
        if (pass != 1) push.src_at = set_input(e, SLOT_radix_src, p->src);
        if (flags[pass] & SORT_INDEX_IN) push.place_at = set_input(e, SLOT_radix_place, p->place);
        if (pass == 2 && p->dst) push.dst_at = set_output(e, SLOT_radix_dst, p->dst);
        if (pass == 2 && p->dst_place) push.dst_place_at = set_output(e, SLOT_radix_dst_place, p->dst_place);
        push.counts_at = (pass == 2 ? set_input : set_output)(e, SLOT_radix_counts, s->owned[3]);
        USE(e, radix, &push, .threads = RADIX_DIGITS, .step = pass, .from = dtype, .flags = flags[pass],
            .each = radix_tile(s) / RADIX_DIGITS, .subgroups = RADIX_DIGITS / e->device->caps.subgroup,
            .summed = tiles > RADIX_FEW_TILES);
        dispatch_groups(e, (uint64_t)s->rows * (pass == 1 ? RADIX_DIGITS : tiles));
    }
}

/* Radix sort where subgroups are wide enough for it; a CPU is faster with merges. */
static bool use_radix(const struct encoder *e, const struct sort_rows *s)
{
    const struct capabilities *c = &e->device->caps;
    int gate = e->device->gate[GATE_RADIX];
    if (s->n <= sort_threads(e, s->index) * SORT_EACH || !has_kernel(e->device, K_RADIX) ||
        c->max_threads < RADIX_DIGITS)
        return false;
    return c->subgroup >= 8 && c->subgroup <= 128 && (gate == 2 || (gate && e->device->tuning->radix));
}

/* digits: of 8 bits, that the keys' words have. */
static void sort_words(struct encoder *e, struct sort_rows *s, uint32_t digits)
{
    bool radix = use_radix(e, s);
    uint32_t block = sort_threads(e, s->index) * SORT_EACH, merges = 0;
    while ((uint64_t)block << merges < s->n) merges++;
    if (radix) {
        size_t tiles = ceil_div(s->n, radix_tile(s));
        s->owned[3] = scratch(e, (size_t)s->rows * RADIX_DIGITS * (tiles + 1), MLXVK_UINT32);
    }
    sort_begin(e, s, radix ? digits : 1 + merges);
    for (uint32_t i = 0; i < s->steps && !e->code; i++) {
        struct sort_step p = sort_step(s, i);
        uint32_t round = i % s->phase_steps;
        if (radix) radix_step(e, s, &p, 8 * round);
        else if (!round) sort_blocks(e, s, &p);
        else sort_merge(e, s, &p, block << (round - 1));
    }
    for (size_t i = 0; i < COUNT(s->owned); i++) array_release(s->owned[i]);
}

static size_t sort_bytes(const struct array *rows) { return max_size(item_size(rows), 4); }

/* As many rows at once as the device can bind. */
static void lower_sort(struct encoder *e, const struct node *n)
{
    struct array *in = n->in[0], *out = n->out[0];
    uint32_t length = (uint32_t)dim_of(in, -1);
    size_t rows = in->size / length, step = binding_room(e->device, sort_bytes(in)) / sort_bytes(in) / length;
    for (size_t first = 0; first < rows && !e->code; first += step) {
        size_t count = min_size(step, rows - first), at = first * length, size = count * length;
        struct sort_rows s = { .in = elements_of(in, at, size), .out = elements_of(out, at, size),
                               .rows = (uint32_t)count, .n = length, .index = n->p.sort.index };
        sort_words(e, &s, (uint32_t)min_size(item_size(in), 4));
    }
}

/* For other lowerings: uint32 keys up to `most` in order, and where each one was. Stable. */
static void sort_keys(struct encoder *e, struct array *keys, uint32_t most, struct array *sorted, struct array *places)
{
    struct sort_rows s =
        { .in = *keys, .out = *places, .rows = 1, .n = (uint32_t)keys->size, .index = true, .sorted = sorted };
    uint32_t digits = 1;
    while (digits < 4 && most >> 8 * digits) digits++;
    sort_words(e, &s, digits);
}

/* ---- fronts ---- */

/* Sorted values, or positions. The axis is last in memory: the result is a view where it was not. */
static struct array *do_sort(struct call *c, struct array *a, int axis, bool index)
{
    struct array *rows, *out;
    axis = normal_axis(c, a, axis);
    if (axis < 0) return NULL;
    if (!index && item_size(a) == 8) return do_take_along(c, a, do_sort(c, a, axis, true), axis);
    rows = contiguous(c, do_moveaxis(c, a, axis, -1));
    if (!rows || !check_room(c, "row", a, (size_t)a->shape[axis] * sort_bytes(a))) return NULL;
    out = output(c, rows->ndim, rows->shape, index ? MLXVK_UINT32 : a->dtype);
    append(c, OP_SORT, PARAMS(.sort = { index }), ARRAYS(rows), ARRAYS(out));
    return axis == a->ndim - 1 ? out : do_moveaxis(c, out, -1, axis);
}

/* A full sort has every partition's properties. */
static struct array *do_partition(struct call *c, struct array *a, int kth, int axis, bool index)
{
    axis = normal_axis(c, a, axis);
    if (axis < 0) return NULL;
    if (kth < -a->shape[axis] || kth >= a->shape[axis])
        return FAIL(c, MLXVK_ERROR_ARGUMENT, "kth %d along axis %d of %s", kth, axis, TEXT(a));
    return do_sort(c, a, axis, index);
}

static struct array *do_topk(struct call *c, struct array *a, int k, int axis)
{
    axis = normal_axis(c, a, axis);
    if (axis < 0) return NULL;
    if (k < 0 || k > a->shape[axis]) return FAIL(c, MLXVK_ERROR_ARGUMENT, "k %d along axis %d of %s", k, axis, TEXT(a));
    if (k == a->shape[axis]) return a;
    return slice_one(c, do_sort(c, a, axis, false), axis, a->shape[axis] - k, k);
}

/* A public function that is one expression, of parameters up to the stream s. IN: an operand. */
#define PUBLIC(name, result, ...)                                                                                     \
    int name(mlxvk_array *res, __VA_ARGS__, mlxvk_stream s)                                                           \
    {                                                                                                                 \
        struct call c = begin(CALLED(name), s);                                                                       \
        return finish(&c, result, res);                                                                               \
    }
#define IN(a) input(&c, #a, a)
#define FLAT(a) do_flatten(&c, IN(a), 0, -1)

PUBLIC(mlxvk_sort, do_sort(&c, FLAT(a), 0, false), mlxvk_array a)
PUBLIC(mlxvk_sort_axis, do_sort(&c, IN(a), axis, false), mlxvk_array a, int axis)
PUBLIC(mlxvk_argsort, do_sort(&c, FLAT(a), 0, true), mlxvk_array a)
PUBLIC(mlxvk_argsort_axis, do_sort(&c, IN(a), axis, true), mlxvk_array a, int axis)
PUBLIC(mlxvk_partition, do_partition(&c, FLAT(a), kth, 0, false), mlxvk_array a, int kth)
PUBLIC(mlxvk_partition_axis, do_partition(&c, IN(a), kth, axis, false), mlxvk_array a, int kth, int axis)
PUBLIC(mlxvk_argpartition, do_partition(&c, FLAT(a), kth, 0, true), mlxvk_array a, int kth)
PUBLIC(mlxvk_argpartition_axis, do_partition(&c, IN(a), kth, axis, true), mlxvk_array a, int kth, int axis)
PUBLIC(mlxvk_topk, do_topk(&c, FLAT(a), k, 0), mlxvk_array a, int k)
PUBLIC(mlxvk_topk_axis, do_topk(&c, IN(a), k, axis), mlxvk_array a, int k, int axis)

/* ==== >>scatter: windows written, added, multiplied ... where indices say ========================================= */

enum { RUN_FEW = 8, RUN_MANY = 32, RUN_THREADS = 1 << 18, PUT_FEW = 32 };

/* Windows of one shape: key i says where window i goes, `none` nowhere. What is bound of the result is a part of it,
 * and the windows that begin there have `count` keys. */
struct scatter_work {
    struct array *out, *updates, *keys, part;
    struct dims window;                              /* in the result, merged */
    size_t number, each;                             /* windows; elements of one */
    uint32_t op, scale, none, first, count;
};

/* The result's next part; false after the last one. */
static bool next_part(const struct encoder *e, struct scatter_work *w)
{
    int64_t item = (int64_t)item_size(w->out), reach = 1, low, high, keys, from;
    w->first += w->count;
    if (e->code || w->first >= w->none) { w->first = w->count = 0; return false; }
    w->part = *w->out;
    w->count = w->none;
    if (fits_binding(e->device, w->out)) return true;
    for (int i = 0; i < w->window.ndim; i++) reach += w->window.stride[0][i] * (w->window.shape[i] - 1);
    keys = ((int64_t)binding_room(e->device, (size_t)item) / item - reach) / w->scale + 1;
    w->count = (uint32_t)min_size((size_t)keys, w->none - w->first);
    array_span(w->out, &low, &high);
    from = (int64_t)w->first * w->scale;
    reach += (int64_t)(w->count - 1) * w->scale;
    w->part = elements_of(w->out, (size_t)from, min_size((size_t)reach, (size_t)((high - low) / item - from)));
    return true;
}

/* How many elements can be moved as one: `most` or, where `less` is allowed, a smaller power of two. */
static uint32_t window_width(const struct scatter_work *w, const struct scatter_push *p, size_t most, bool less)
{
    int last = w->window.ndim - 1;
    int64_t odd;
    if (last < 0 || w->window.stride[0][last] != 1) return 1;
    odd = w->window.shape[last] | w->scale | p->dst_at | p->src_at;
    for (int i = 0; i < last; i++) odd |= w->window.stride[0][i];
    for (size_t width = most; width > 1; width = less ? width / 2 : 1)
        if (!(odd & (int64_t)(width - 1))) return (uint32_t)width;
    return 1;
}

/* Binds result and source, and fills in what all kernels take: windows in units of the width that is returned. */
static uint32_t set_window(struct encoder *e, struct scatter_work *w, struct array *src, struct scatter_push *p,
                           size_t most, bool less)
{
    uint32_t width;
    p->dst_at = set_output(e, SLOT_scatter_dst, &w->part);
    p->src_at = set_input(e, SLOT_scatter_src, src);
    width = window_width(w, p, most, less);
    p->dst_at /= width;
    p->src_at /= width;
    p->units = (uint32_t)(w->each / width);
    p->none = w->none;
    p->key_first = w->first;
    p->key_count = w->count;
    p->scale = w->scale / width;
    p->ndim = (uint32_t)w->window.ndim;
    for (int i = 0; i < w->window.ndim; i++) {
        bool last = i + 1 == w->window.ndim;
        p->shape[i] = (uint32_t)(w->window.shape[i] / (last ? width : 1));
        p->stride[i] = (uint32_t)(w->window.stride[0][i] / (last ? 1 : width));
    }
    return width;
}

/* The last of those with one key wins, whatever order they run in. */
static void scatter_put(struct encoder *e, struct scatter_work *w)
{
    struct array *winner = w->number > PUT_FEW ? scratch(e, w->none, MLXVK_UINT32) : NULL;
    struct scatter_push p = { .n = (uint32_t)w->number, .none = w->none };
    for (uint32_t step = SCATTER_CLEAR; winner && step < SCATTER_PUT; step++) {
        p.key_at = set_input(e, SLOT_scatter_key, w->keys);
        set_output(e, SLOT_scatter_winner, winner);
        USE(e, scatter, &p, .threads = flat_threads(e->device), .step = step);
        dispatch_elements(e, p.n);
    }
    while (next_part(e, w)) {
        uint32_t width = set_window(e, w, w->updates, &p, 16 / item_size(w->out), true);
        p.key_at = set_input(e, SLOT_scatter_key, w->keys);
        p.flags = winner ? SCATTER_WINNERS : w->number > 1 ? SCATTER_SEARCH : 0;
        if (winner) set_input(e, SLOT_scatter_winner, winner);
        USE(e, scatter, &p, .threads = flat_threads(e->device), .step = SCATTER_PUT,
            .to = raw_dtype(item_size(w->out) * width));
        dispatch_groups(e, ceil_div((uint64_t)p.n * p.units, 4 * flat_threads(e->device)));
    }
    array_release(winner);
}

static void scatter_atomic(struct encoder *e, struct scatter_work *w)
{
    while (next_part(e, w)) {
        struct scatter_push p = { .n = (uint32_t)w->number };
        set_window(e, w, w->updates, &p, 1, false);
        p.key_at = set_input(e, SLOT_scatter_key, w->keys);
        USE(e, scatter, &p, .threads = flat_threads(e->device), .step = SCATTER_ATOMIC, .op = w->op,
            .to = w->out->dtype);
        dispatch_elements(e, (uint64_t)p.n * p.units);
    }
}

/* One level: `n` entries by key, `each` a thread. What reaches over an edge goes into parts and slots, which come
 * back. */
static void scatter_level(struct encoder *e, struct scatter_work *w, struct scatter_push p, struct array *values,
    struct array *keys, struct array *places, struct array *parts, struct array *slots, bool upper)
{
    uint32_t width = set_window(e, w, values, &p, 16 / item_size(w->out), false);
    p.key_at = set_input(e, SLOT_scatter_runs_key, keys);
    p.flags = places ? 0 : SCATTER_IN_ORDER;
    if (places) p.place_at = set_input(e, SLOT_scatter_runs_place, places);
    if (parts) set_output(e, SLOT_scatter_runs_part, parts);
    if (slots) set_output(e, SLOT_scatter_runs_slot, slots);
    USE(e, scatter_runs, &p, .threads = 128, .op = w->op, .to = w->out->dtype, .width = width, .upper = upper,
        .batch = e->device->tuning->scatter_batch);
    dispatch_groups(e, ceil_div((uint64_t)ceil_div(p.n, p.each) * p.units, 128));
}

/* In the order of the windows with one key, by sorting them: sums of floats, and what has no atomics. */
static void scatter_sorted(struct encoder *e, struct scatter_work *w)
{
    struct scatter_push p = { .n = (uint32_t)w->number };
    struct array *places = NULL, *keys = w->keys, *values = w->updates;
    mlxvk_dtype wide = item_size(w->out) == 8 ? MLXVK_UINT64 : MLXVK_UINT32;
    p.each = w->number * w->each < RUN_THREADS ? RUN_FEW : RUN_MANY;
    keys->refs++;
    values->refs++;
    if (w->number > 1) {
        struct array *sorted = scratch(e, w->number, MLXVK_UINT32);
        places = scratch(e, w->number, MLXVK_UINT32);
        if (!e->code) sort_keys(e, keys, w->none, sorted, places);
        array_release(keys);
        keys = sorted;
    }
    for (bool upper = false; !e->code; upper = true) {
        uint32_t chunks = ceil_div(p.n, p.each);
        struct array *parts = chunks > 1 ? scratch(e, 2 * (size_t)chunks * w->each, wide) : NULL;
        struct array *slots = chunks > 1 ? scratch(e, 2 * (size_t)chunks, MLXVK_UINT64) : NULL;
        while (next_part(e, w)) scatter_level(e, w, p, values, keys, upper ? NULL : places, parts, slots, upper);
        array_release(values);
        array_release(keys);
        values = parts;
        keys = slots;
        if (chunks == 1) break;
        p.n = 2 * chunks;
        p.each = RUN_MANY;
    }
    array_release(values);
    array_release(keys);
    array_release(places);
}

static bool atomic_dtype(int t) { return dtypes[t].kind <= KIND_INT && dtypes[t].size <= 4; }

static void scatter_windows(struct encoder *e, const struct scatter_params *p, struct array *out,
                            struct array *updates, struct array *keys)
{
    struct scatter_work w = { .out = out, .updates = rows_of(e, updates), .keys = keys, .number = keys->size,
                              .each = updates->size / keys->size, .op = p->op, .scale = p->scale, .none = p->none };
    if (w.each > 1) {
        struct array window = *out, *one = &window;
        memcpy(window.shape, updates->shape + keys->ndim, (size_t)out->ndim * sizeof *window.shape);
        w.window = merge_dims(&one, 1);
    }
    if (w.op == SCATTER_NONE &&
        (w.number <= PUT_FEW || (size_t)w.none * 4 <= min_size(e->device->caps.max_range, (size_t)1 << 30)))
        scatter_put(e, &w);
    else if (w.op != SCATTER_NONE && atomic_dtype(out->dtype)) scatter_atomic(e, &w);
    else scatter_sorted(e, &w);
    array_release(w.updates);
}

/* Where to halve windows: in order, where there are too many, else each of them; -1: they are few and short enough.
 * What sorted ones leave to be combined takes two bytes an element at most, or as many as they have. */
static int scatter_axis(const struct encoder *e, const struct array *out, const struct array *updates,
                        const struct array *keys)
{
    size_t item = item_size(out), reach = 0, most = 0, room = binding_room(e->device, item);
    bool many = updates->size * max_size(item, 2) > room || keys->size * 4 > room;
    int axis = -1;
    for (int i = 0; i < keys->ndim && many; i++) if (keys->shape[i] > 1) return i;
    for (int i = keys->ndim; i < updates->ndim; i++) {
        size_t far = (size_t)(out->strides[i - keys->ndim] * (updates->shape[i] - 1));
        if (far > most) { most = far; axis = i; }
        reach += far;
    }
    return many || (reach > room / item / 2 && !fits_binding(e->device, out)) ? axis : -1;
}

static void scatter_split(struct encoder *e, const struct scatter_params *p, struct array *out, struct array *updates,
                          struct array *keys)
{
    int axis = scatter_axis(e, out, updates, keys), within = axis - keys->ndim;
    if (axis < 0) scatter_windows(e, p, out, updates, keys);
    for (int half = 0; half < 2 && axis >= 0 && !e->code; half++) {
        struct array some = half_of(updates, axis, half), where = *keys, to = *out;
        if (within < 0) where = half_of(keys, axis, half);
        else to = part_of(out, within, half ? updates->shape[axis] - some.shape[axis] : 0,
                          out->shape[within] - updates->shape[axis] + some.shape[axis]);
        scatter_split(e, p, &to, &some, &where);
    }
}

static void lower_scatter(struct encoder *e, const struct node *n)
{
    scatter_split(e, &n->p.scatter, n->out[0], n->in[0], n->in[1]);
}

/* ---- fronts ---- */

/* A copy to be changed, or the operand itself where only this call sees it. */
static struct array *scatter_target(struct call *c, const mlxvk_array *res, struct array *a,
                                    const struct array *updates, const struct windows *w)
{
    bool in_place = updates_in_place(res, a) && a->row && updates->storage != a->storage;
    for (int k = 0; k < w->count; k++) in_place = in_place && w->index[k]->storage != a->storage;
    return in_place ? view_of(c, a, a->dtype, a->ndim, a->shape, NULL, a->offset) : copy_of(c, a);
}

/* Keys of whole windows, where those of two keys never overlap: each axis with indices has windows of 1, or as long as
 * the axis. A key counts steps of `scale` elements. */
static struct array *window_keys(struct call *c, const struct array *a, const struct windows *w, const int64_t *strides,
                                 struct scatter_params *p)
{
    struct array probe = *a, *one = &probe;
    int64_t steps[MAXD] = { 0 }, scale = 0, most = 0;
    memcpy(probe.shape, w->sizes, (size_t)a->ndim * sizeof *w->sizes);
    row_strides(a->ndim, a->shape, probe.strides);
    if (merge_dims(&one, 1).ndim > PUSH_DIMS) return NULL;
    for (int k = 0; k < w->count; k++) {
        int axis = w->axes[k];
        if (w->sizes[axis] != 1 && w->sizes[axis] != a->shape[axis]) return NULL;
        if (a->shape[axis] > w->sizes[axis]) scale = common_divisor(scale, strides[axis]);
    }
    if (!scale) scale = 1;
    for (int k = 0; k < w->count; k++) {
        int axis = w->axes[k];
        steps[axis] = strides[axis] / scale;
        most += (a->shape[axis] - w->sizes[axis]) * steps[axis];
    }
    if (most >= UINT32_MAX || scale > UINT32_MAX)
        return FAIL(c, MLXVK_ERROR_LIMIT, "%s has too many elements", TEXT(a));
    p->scale = (uint32_t)scale;
    p->none = (uint32_t)most + 1;
    return do_positions(c, a, w, w->ndim, w->shape, NULL, steps, p->none, true);
}

/* Keys of the windows' elements, one by one. base: what the walk's coordinates add. */
static struct array *element_keys(struct call *c, const struct array *a, const struct windows *w, int ndim,
    const int *shape, const int64_t *base, const int64_t *strides, struct scatter_params *p)
{
    if (c->code) return NULL;
    if (a->size >= UINT32_MAX) return FAIL(c, MLXVK_ERROR_LIMIT, "%s has too many elements", TEXT(a));
    p->scale = 1;
    p->none = (uint32_t)a->size;
    return do_positions(c, a, w, ndim, shape, base, strides, p->none, true);
}

static struct array *do_scatter(struct call *c, const mlxvk_array *res, struct array *a, struct windows *w,
                                struct array *updates, const int *axes, size_t axes_num, int op)
{
    struct scatter_params p = { .op = (uint8_t)op };
    struct array *out, *keys;
    int64_t strides[MAXD], base[MAXD] = { 0 };
    if (c->code || !a || !updates || !broadcast_windows(c, a, w, axes, axes_num)) return NULL;
    if (updates->ndim != w->ndim + a->ndim ||
        (w->ndim && memcmp(updates->shape, w->shape, (size_t)w->ndim * sizeof *w->shape)))
        return FAIL(c, MLXVK_ERROR_SHAPE, "updates %s do not have the shape of the indices, then windows of %s",
                    TEXT(updates), TEXT(a));
    if (!check_windows(c, a, w, updates->shape + w->ndim)) return NULL;
    updates = as_type(c, updates, a->dtype);
    if (!updates || !a->size || !updates->size) return updates ? a : NULL;
    row_strides(a->ndim, a->shape, strides);
    keys = window_keys(c, a, w, strides, &p);
    if (!keys) {
        memcpy(base + w->ndim, strides, (size_t)a->ndim * sizeof *strides);
        keys = element_keys(c, a, w, updates->ndim, updates->shape, base, strides, &p);
    }
    out = c->code ? NULL : scatter_target(c, res, a, updates, w);
    append(c, OP_SCATTER, PARAMS(.scatter = p), ARRAYS(updates, keys), ARRAYS(out));
    return out;
}

/* At `count` index arrays, for as many axes. */
static int scatter_call(const char *name, mlxvk_array *res, mlxvk_array a, const mlxvk_array *one,
                        mlxvk_vector_array several, mlxvk_array updates, const int *axes, size_t count, int op,
                        mlxvk_stream s)
{
    struct call c = begin(name, s);
    struct array *x = IN(a), *u = IN(updates);
    struct windows w = { .count = 1 };
    if (one) w.index[0] = input(&c, "indices", *one);
    else if (!index_inputs(&c, x, several.ctx, &w)) x = NULL;
    return finish(&c, do_scatter(&c, res, x, &w, u, axes, count, op), res);
}

#define SCATTER_FUNCTIONS(name, single, op)                                                                           \
    int name(mlxvk_array *res, mlxvk_array a, mlxvk_vector_array indices, mlxvk_array updates, const int *axes,       \
             size_t axes_num, mlxvk_stream s)                                                                         \
    { return scatter_call(CALLED(name), res, a, NULL, indices, updates, axes, axes_num, op, s); }                     \
    int single(mlxvk_array *res, mlxvk_array a, mlxvk_array indices, mlxvk_array updates, int axis, mlxvk_stream s)   \
    { return scatter_call(CALLED(single), res, a, &indices, (mlxvk_vector_array){ NULL }, updates, &axis, 1, op, s); }
SCATTER_FUNCTIONS(mlxvk_scatter, mlxvk_scatter_single, SCATTER_NONE)
SCATTER_FUNCTIONS(mlxvk_scatter_add, mlxvk_scatter_add_single, SCATTER_SUM)
SCATTER_FUNCTIONS(mlxvk_scatter_prod, mlxvk_scatter_prod_single, SCATTER_PROD)
SCATTER_FUNCTIONS(mlxvk_scatter_max, mlxvk_scatter_max_single, SCATTER_MAX)
SCATTER_FUNCTIONS(mlxvk_scatter_min, mlxvk_scatter_min_single, SCATTER_MIN)

int mlxvk_scatter_add_axis(mlxvk_array *res, mlxvk_array a, mlxvk_array indices, mlxvk_array values, int axis,
                           mlxvk_stream s)
{
    struct call c = begin("scatter_add_axis", s);
    struct array *x = IN(a), *v = IN(values), *keys, *out;
    struct windows w = { .count = 1, .index = { IN(indices) } };
    struct scatter_params p = { .op = SCATTER_SUM };
    int64_t strides[MAXD], base[MAXD];
    w.axes[0] = axis = normal_axis(&c, x, axis);
    if (!put_operands(&c, &x, &w.index[0], &v, axis) || !x->size || !v->size) return finish(&c, x, res);
    for (int i = 0; i < x->ndim; i++) w.sizes[i] = 1;
    row_strides(x->ndim, x->shape, strides);
    memcpy(base, strides, sizeof base);
    base[axis] = 0;
    keys = element_keys(&c, x, &w, v->ndim, v->shape, base, strides, &p);
    out = c.code ? NULL : scatter_target(&c, res, x, v, &w);
    append(&c, OP_SCATTER, PARAMS(.scatter = p), ARRAYS(v, keys), ARRAYS(out));
    return finish(&c, out, res);
}

/* update: along the axes as long as it is, beside them broadcast to src. */
static struct array *do_slice_update_dynamic(struct call *c, const mlxvk_array *res, struct array *a,
    struct array *update, struct array *start, const int *axes, size_t axes_num)
{
    struct windows w;
    int normal[MAXD], shape[MAXD];
    if (!update || !dynamic_windows(c, a, start, axes, axes_num, &w, normal)) return NULL;
    while (update->ndim > a->ndim && update->shape[0] == 1)
        if (!(update = do_squeeze(c, update, 1))) return NULL;
    if (update->ndim > a->ndim) return FAIL(c, MLXVK_ERROR_SHAPE, "update %s for %s", TEXT(update), TEXT(a));
    memcpy(shape, a->shape, sizeof shape);
    for (size_t k = 0; k < axes_num; k++) {
        int i = normal[k] - (a->ndim - update->ndim);
        shape[normal[k]] = i < 0 ? 1 : update->shape[i];
    }
    return do_scatter(c, res, a, &w, broadcast(c, update, a->ndim, shape), normal, axes_num, SCATTER_NONE);
}

PUBLIC(mlxvk_slice_update_dynamic,
         do_slice_update_dynamic(&c, res, IN(src), IN(update), IN(start), axes, axes_num), mlxvk_array src,
         mlxvk_array update, mlxvk_array start, const int *axes, size_t axes_num)

/* The mask has the first dimensions of a, and src a row for each true element, or one for all of them. Where the
 * running count of what is true grows, the next element of src is put. */
static struct array *do_masked_scatter(struct call *c, const mlxvk_array *res, struct array *a, struct array *mask,
                                       struct array *src)
{
    struct array *counts, *out;
    int shape[MAXD + 1], rest;
    if (c->code || !a || !mask || !src) return NULL;
    rest = a->ndim - mask->ndim;
    if (mask->dtype != MLXVK_BOOL) return FAIL(c, MLXVK_ERROR_DTYPE, "the mask must be bool, not %s", TEXT(mask));
    if (rest < 0 || (mask->ndim && memcmp(mask->shape, a->shape, (size_t)mask->ndim * sizeof *a->shape)))
        return FAIL(c, MLXVK_ERROR_SHAPE, "mask %s does not have the first dimensions of %s", TEXT(mask), TEXT(a));
    if (src->ndim > rest + 1)
        return FAIL(c, MLXVK_ERROR_SHAPE, "src %s has more dimensions than rows of %s", TEXT(src), TEXT(a));
    while (mask && mask->ndim < a->ndim) mask = do_expand(c, mask, &mask->ndim, 1);
    mask = broadcast(c, mask, a->ndim, a->shape);
    src = as_type(c, src, a->dtype);
    if (!mask || !src) return NULL;
    if (src->ndim <= rest) return do_select(c, mask, broadcast(c, src, a->ndim, a->shape), a);
    shape[0] = src->shape[0];
    for (int i = 0; i < rest; i++) shape[1 + i] = a->shape[a->ndim - rest + i];
    src = do_flatten(c, broadcast(c, src, rest + 1, shape), 0, -1);
    mask = do_flatten(c, mask, 0, -1);
    if (!src || !mask || !src->size || !a->size) return c->code ? NULL : a;
    if (!check_room(c, "mask", a, 4 * a->size) || !check_room(c, "result like all", a, array_bytes(a)) ||
        !check_room(c, "source like all", src, array_bytes(src))) return NULL;
    counts = output(c, 1, mask->shape, MLXVK_INT32);
    append(c, OP_SCAN, PARAMS(.scan = { R_sum, 0, 0 }), ARRAYS(mask), ARRAYS(counts));
    counts = do_reshape(c, counts, a->ndim, a->shape);
    out = c->code ? NULL : scatter_target(c, res, a, src, &(struct windows){ .count = 0 });
    append(c, OP_GATHER, PARAMS(.gather = { GATHER_MASKED, 0, 1, (uint32_t)src->size }), ARRAYS(src, counts),
           ARRAYS(out));
    return out;
}

PUBLIC(mlxvk_masked_scatter, do_masked_scatter(&c, res, IN(a), IN(mask), IN(src)), mlxvk_array a, mlxvk_array mask,
         mlxvk_array src)

/* ---- where values belong in a sorted sequence ---- */

static void search_part(struct encoder *e, struct array *const *a, const void *job)
{
    const struct node *n = job;
    struct array *sequence = n->in[0];
    union walk_push push = { .search = {
        .n = (uint32_t)a[0]->size, .length = (uint32_t)sequence->size, .step = (uint32_t)sequence->strides[0],
        .dtype = sequence->dtype, .right = n->p.search.right } };
    struct dims g = merge_dims(a, 2);
    uint32_t mode = set_dims(e, &push.all, SLOT_search_table, &g, 2);
    push.search.offset[0] = set_output(e, SLOT_search_dst, a[0]);
    push.search.offset[1] = set_input(e, SLOT_search_src, a[1]);
    push.search.offset[2] = set_input(e, SLOT_search_seq, sequence);
    USE(e, search, &push.search, .threads = flat_threads(e->device), .mode = mode);
    dispatch_elements(e, push.all.n);
}

static void lower_search(struct encoder *e, const struct node *n)
{
    in_parts(e, (struct array *[]){ n->out[0], n->in[1] }, 2, 0, search_part, n);
}

/* Of a sequence that cannot be bound whole: the places in both halves add up. */
static struct array *do_search(struct call *c, struct array *x, struct array *y, bool right)
{
    int half = x ? x->shape[0] / 2 : 0;
    struct array *out;
    if (c->code || !x || !y) return NULL;
    if (half && !fits_binding(c->device, x))
        return do_binary(c, B_add, do_search(c, slice_one(c, x, 0, 0, half), y, right),
                         do_search(c, slice_one(c, x, 0, half, x->shape[0] - half), y, right));
    out = output(c, y->ndim, y->shape, MLXVK_UINT32);
    append(c, OP_SEARCH, PARAMS(.search = { right }), ARRAYS(x, y), ARRAYS(out));
    return out;
}

int mlxvk_searchsorted(mlxvk_array *res, mlxvk_array a, mlxvk_array v, const char *side, mlxvk_stream s)
{
    struct call c = begin("searchsorted", s);
    struct array *x = IN(a), *y = IN(v);
    mlxvk_dtype t = x && y ? promote(x->dtype, y->dtype) : MLXVK_FLOAT32;
    bool right = side && !strcmp(side, "right");
    if (!side || (!right && strcmp(side, "left")))
        FAIL(&c, MLXVK_ERROR_ARGUMENT, "side is \"%s\", not left or right", side ? side : "NULL");
    if (x && x->ndim != 1) FAIL(&c, MLXVK_ERROR_SHAPE, "%s is no sequence", TEXT(x));
    return finish(&c, c.code ? NULL : do_search(&c, as_type(&c, x, t), as_type(&c, y, t), right), res);
}

/* ==== >>composites: operations made of others ===================================================================== */

/* ---- creation ---- */

static struct array *filled(struct call *c, int ndim, const int *shape, double value, mlxvk_dtype dtype)
{
    return check_shape(c, ndim, shape, dtype) ? do_full(c, ndim, shape, scalar(c, value, dtype), dtype) : NULL;
}

/* With a number of the array's dtype. */
static struct array *by_number(struct call *c, enum binary op, struct array *a, double value)
{
    return c->code || !a ? NULL : do_binary(c, op, a, scalar(c, value, a->dtype));
}

static struct array *do_eye(struct call *c, int n, int m, int k, mlxvk_dtype dtype)
{
    int64_t row = k < 0 ? -(int64_t)k : 0, column = k > 0 ? k : 0;
    int64_t rows = n > row ? n - row : 0, columns = m > column ? m - column : 0;
    int64_t count = rows < columns ? rows : columns, step = (int64_t)m + 1;
    struct array *out = filled(c, 2, (int[]){ n, m }, 0, dtype), *diagonal;
    if (!out || !count) return out;
    diagonal = view_of(c, out, dtype, 1, (int[]){ (int)count }, &step, (row * m + column) * (int64_t)item_size(out));
    append_copy(c, diagonal, broadcast(c, scalar(c, 1, dtype), 1, (int[]){ (int)count }));
    return out;
}

PUBLIC(mlxvk_eye, do_eye(&c, n, m, k, dtype), int n, int m, int k, mlxvk_dtype dtype)
PUBLIC(mlxvk_identity, do_eye(&c, n, n, 0, dtype), int n, mlxvk_dtype dtype)

/* True at and below diagonal k. */
static struct array *do_tri(struct call *c, int n, int m, int k)
{
    struct array *rows, *columns;
    mlxvk_dtype t = (int64_t)n + m > INT_MAX ? MLXVK_INT64 : MLXVK_INT32;
    int last = 1;
    if (!check_shape(c, 2, (int[]){ n, m }, MLXVK_BOOL)) return NULL;
    k = k > m ? m : k < -n ? -n : k;
    rows = do_expand(c, do_arange(c, 0, n, 1, t), &last, 1);
    columns = do_arange(c, -(double)k, (double)m - k, 1, t);
    return do_binary(c, B_greater_equal, rows, columns);
}

PUBLIC(mlxvk_tri, check_shape(&c, 0, NULL, type) ? as_type(&c, do_tri(&c, n, m, k), type) : NULL, int n, int m, int k,
         mlxvk_dtype type)

/* Zeros above (upper: below) diagonal k of each matrix. */
static struct array *do_triangle(struct call *c, struct array *x, int k, bool upper)
{
    struct array *mask, *zero;
    if (c->code || !x) return NULL;
    if (x->ndim < 2) return FAIL(c, MLXVK_ERROR_SHAPE, "%s has fewer than two dimensions", TEXT(x));
    mask = do_tri(c, dim_of(x, -2), dim_of(x, -1), upper ? k - (k > INT_MIN) : k);
    zero = scalar(c, 0, x->dtype);
    return upper ? do_select(c, mask, zero, x) : do_select(c, mask, x, zero);
}

PUBLIC(mlxvk_tril, do_triangle(&c, IN(x), k, false), mlxvk_array x, int k)
PUBLIC(mlxvk_triu, do_triangle(&c, IN(x), k, true), mlxvk_array x, int k)

static struct array *do_linspace(struct call *c, double start, double stop, int num, mlxvk_dtype dtype)
{
    struct array *t, *rest;
    if (num < 0) return FAIL(c, MLXVK_ERROR_SHAPE, "%d elements", num);
    if (!check_shape(c, 0, NULL, dtype)) return NULL;
    if (num == 1) return as_type(c, filled(c, 1, &num, start, MLXVK_FLOAT32), dtype);
    t = by_number(c, B_divide, do_arange(c, 0, num, 1, MLXVK_FLOAT32), (double)num - 1);
    rest = by_number(c, B_multiply, do_binary(c, B_subtract, scalar(c, 1, MLXVK_FLOAT32), t), start);
    return as_type(c, do_binary(c, B_add, rest, by_number(c, B_multiply, t, stop)), dtype);
}

PUBLIC(mlxvk_linspace, do_linspace(&c, start, stop, num, dtype), double start, double stop, int num,
         mlxvk_dtype dtype)

/* terms[0] + terms[1] cos x + terms[2] cos 2x, where x goes from 0 to 2 pi; without terms 1 - |x / pi - 1|. */
static struct array *do_window(struct call *c, int m, const double *terms)
{
    struct array *x, *out;
    int n = m < 0 ? 0 : m;
    if (m <= 1) return filled(c, 1, &n, 1, MLXVK_FLOAT32);
    x = do_arange(c, 0, n, 1, MLXVK_FLOAT32);
    x = by_number(c, B_multiply, x, (terms ? 6.283185307179586 : 2.0) / (n - 1));
    if (!terms)
        return do_binary(c, B_subtract, scalar(c, 1, MLXVK_FLOAT32),
                         do_unary(c, U_abs, by_number(c, B_subtract, x, 1)));
    out = scalar(c, terms[0], MLXVK_FLOAT32);
    for (int i = 1; i < 3 && terms[i] != 0; i++)
        out = do_binary(c, B_add, out,
                        by_number(c, B_multiply, do_unary(c, U_cos, by_number(c, B_multiply, x, i)), terms[i]));
    return out;
}

PUBLIC(mlxvk_bartlett, do_window(&c, M, NULL), int M)
PUBLIC(mlxvk_hanning, do_window(&c, M, ((double[]){ 0.5, -0.5, 0 })), int M)
PUBLIC(mlxvk_hamming, do_window(&c, M, ((double[]){ 0.54, -0.46, 0 })), int M)
PUBLIC(mlxvk_blackman, do_window(&c, M, ((double[]){ 0.42, -0.5, 0.08 })), int M)

/* ---- lists of arrays ---- */

/* The arrays of a vector in a list to be freed by finish_list. */
static struct array **vector_list(struct call *c, const char *name, mlxvk_vector_array arrays, size_t *count)
{
    struct vector *v = arrays.ctx;
    struct array **list;
    *count = 0;
    if (c->code) return NULL;
    if (!v) return FAIL(c, MLXVK_ERROR_ARGUMENT, "%s is { NULL }", name);
    list = host_zalloc(c->device, (v->size + 1) * sizeof *list);
    if (!list) return FAIL(c, MLXVK_ERROR_HOST_MEMORY, "out of host memory");
    for (size_t i = 0; i < v->size; i++) list[i] = vector_input(c, v, i);
    if (!c->code) *count = v->size;
    return list;
}

static int finish_list(struct call *c, struct array **list, size_t count, mlxvk_vector_array *res)
{
    int code = finish_vector(c, list, count, res);
    if (list) host_free(c->device, list);
    return code;
}

/* The shape that all broadcast to. */
static struct array common_shape(struct call *c, struct array *const *list, size_t count)
{
    struct array all = { .dtype = MLXVK_BOOL };
    for (size_t i = 0; i < count && !c->code; i++) {
        struct array before = all;
        broadcast_shape(c, list[i], &before, &all.ndim, all.shape);
    }
    return all;
}

int mlxvk_broadcast_arrays(mlxvk_vector_array *res, mlxvk_vector_array inputs, mlxvk_stream s)
{
    struct call c = begin("broadcast_arrays", s);
    size_t count;
    struct array **list = vector_list(&c, "inputs", inputs, &count), all = common_shape(&c, list, count);
    for (size_t i = 0; i < count && !c.code; i++) list[i] = broadcast(&c, list[i], all.ndim, all.shape);
    return finish_list(&c, list, count, res);
}

int mlxvk_meshgrid(mlxvk_vector_array *res, mlxvk_vector_array arrays, bool sparse, const char *indexing,
                   mlxvk_stream s)
{
    struct call c = begin("meshgrid", s);
    size_t count;
    struct array **list = vector_list(&c, "arrays", arrays, &count);
    bool swap = indexing && !strcmp(indexing, "xy");
    int full[MAXD] = { 0 };
    if (!swap && (!indexing || strcmp(indexing, "ij")))
        FAIL(&c, MLXVK_ERROR_ARGUMENT, "indexing must be \"xy\" or \"ij\"");
    if (count > MAXD) FAIL(&c, MLXVK_ERROR_SHAPE, "%zu dimensions; at most %d", count, MAXD);
    for (size_t i = 0; i < count && !c.code; i++) {
        int shape[MAXD];
        size_t axis = swap && count > 1 && i < 2 ? 1 - i : i;
        for (size_t k = 0; k < count; k++) shape[k] = 1;
        full[axis] = shape[axis] = length_of(&c, list[i], list[i]->size);
        list[i] = do_reshape(&c, list[i], (int)count, shape);
    }
    for (size_t i = 0; i < count && !sparse && !c.code; i++) list[i] = broadcast(&c, list[i], (int)count, full);
    return finish_list(&c, list, count, res);
}

int mlxvk_depends(mlxvk_vector_array *res, mlxvk_vector_array inputs, mlxvk_vector_array dependencies)
{
    struct vector *v = inputs.ctx;
    return v && dependencies.ctx ? mlxvk_vector_array_set(res, inputs) : MLXVK_ERROR_ARGUMENT;
}

int mlxvk_divmod(mlxvk_vector_array *res, mlxvk_array a, mlxvk_array b, mlxvk_stream s)
{
    struct call c = begin("divmod", s);
    struct array *x = input(&c, "a", a), *y = input(&c, "b", b), *both[2];
    both[0] = do_binary(&c, B_floor_quotient, x, y);
    both[1] = do_binary(&c, B_remainder, x, y);
    return finish_vector(&c, both, 2, res);
}

/* ---- shapes ---- */

/* The array itself, as another handle. */
int mlxvk_stop_gradient(mlxvk_array *res, mlxvk_array a, mlxvk_stream s) { return mlxvk_copy(res, a, s); }

static struct array *do_at_least(struct call *c, struct array *a, int ndim)
{
    int shape[3] = { 1, 1, 1 };
    if (c->code || !a || a->ndim >= ndim) return a;
    if (a->ndim == 1) shape[ndim > 1] = a->shape[0];
    if (a->ndim == 2) memcpy(shape, a->shape, 2 * sizeof *shape);
    return do_reshape(c, a, ndim, shape);
}

PUBLIC(mlxvk_atleast_1d, do_at_least(&c, IN(a), 1), mlxvk_array a)
PUBLIC(mlxvk_atleast_2d, do_at_least(&c, IN(a), 2), mlxvk_array a)
PUBLIC(mlxvk_atleast_3d, do_at_least(&c, IN(a), 3), mlxvk_array a)

int mlxvk_number_of_elements(mlxvk_array *res, mlxvk_array a, const int *axes, size_t axes_num, bool inverted,
                             mlxvk_dtype dtype, mlxvk_stream s)
{
    struct call c = begin("number_of_elements", s);
    struct array *x = IN(a);
    double count = 1;
    if (axes_num && !axes) FAIL(&c, MLXVK_ERROR_ARGUMENT, "axes is NULL");
    for (size_t i = 0; i < axes_num && !c.code; i++) {
        int axis = normal_axis(&c, x, axes[i]);
        if (axis >= 0) count *= x->shape[axis];
    }
    if (!check_shape(&c, 0, NULL, dtype)) return finish(&c, NULL, res);
    return finish(&c, scalar(&c, inverted ? 1 / count : count, dtype), res);
}

/* Every element of an axis `repeats` times in a row. */
static struct array *do_repeat(struct call *c, struct array *a, int repeats, int axis)
{
    int shape[MAXD], next;
    axis = normal_axis(c, a, axis);
    if (axis < 0) return NULL;
    if (repeats < 0) return FAIL(c, MLXVK_ERROR_ARGUMENT, "%d repeats", repeats);
    if (repeats == 1) return a;
    if ((int64_t)a->shape[axis] * repeats > INT_MAX)
        return FAIL(c, MLXVK_ERROR_LIMIT, "axis %d of %s %d times is too long", axis, TEXT(a), repeats);
    next = axis + 1;
    a = do_expand(c, a, &next, 1);
    if (!a) return NULL;
    memcpy(shape, a->shape, sizeof shape);
    shape[next] = repeats;
    return do_flatten(c, broadcast(c, a, a->ndim, shape), axis, next);
}

PUBLIC(mlxvk_repeat_axis, do_repeat(&c, IN(arr), repeats, axis), mlxvk_array arr, int repeats, int axis)
PUBLIC(mlxvk_repeat, do_repeat(&c, FLAT(arr), repeats, 0), mlxvk_array arr, int repeats)

int mlxvk_tile(mlxvk_array *res, mlxvk_array arr, const int *reps, size_t reps_num, mlxvk_stream s)
{
    struct call c = begin("tile", s);
    struct array *x = input(&c, "arr", arr);
    int parts[2 * MAXD], from[2 * MAXD], final[MAXD], count = 0;
    int ndim = x && (size_t)x->ndim > reps_num ? x->ndim : shape_count(reps_num);
    if (reps_num && !reps) FAIL(&c, MLXVK_ERROR_ARGUMENT, "reps is NULL");
    if (ndim > MAXD) FAIL(&c, MLXVK_ERROR_SHAPE, "%d dimensions; at most %d", ndim, MAXD);
    for (int i = 0; i < ndim && x && !c.code; i++) {     /* (2, 3) tiled by (4, 5): (1, 2, 1, 3) seen as (4, 2, 5, 3) */
        int k = i - (ndim - (int)reps_num), rep = k < 0 ? 1 : reps[k];
        int size = i < ndim - x->ndim ? 1 : x->shape[i - (ndim - x->ndim)];
        if (rep < 0) { FAIL(&c, MLXVK_ERROR_SHAPE, "%d repetitions of %s", rep, TEXT(x)); break; }
        if ((int64_t)rep * size > INT_MAX) {
            FAIL(&c, MLXVK_ERROR_LIMIT, "axis %d of %s %d times is too long", i, TEXT(x), rep);
            break;
        }
        if (rep != 1) { parts[count] = rep; from[count++] = 1; }
        parts[count] = from[count] = size;
        count++;
        final[i] = rep * size;
    }
    if (count > MAXD)
        FAIL(&c, MLXVK_ERROR_SHAPE, "%s tiled along so many axes has more than %d dimensions", TEXT(x), MAXD);
    if (c.code) return finish(&c, NULL, res);
    return finish(&c, do_reshape(&c, broadcast(&c, do_reshape(&c, x, count, from), count, parts), ndim, final), res);
}

/* Shifted along an axis, what falls off one end coming back at the other. */
static struct array *do_roll(struct call *c, struct array *a, int64_t shift, int axis)
{
    struct array *out;
    int n, by;
    axis = normal_axis(c, a, axis);
    if (axis < 0 || !a->size) return axis < 0 ? NULL : a;
    n = a->shape[axis];
    by = (int)(shift % n);
    by = by < 0 ? by + n : by;
    if (!by) return a;
    out = output(c, a->ndim, a->shape, a->dtype);
    append_copy(c, slice_one(c, out, axis, by, n - by), slice_one(c, a, axis, 0, n - by));
    append_copy(c, slice_one(c, out, axis, 0, by), slice_one(c, a, axis, n - by, by));
    return out;
}

static int64_t total_shift(struct call *c, const int *shift, size_t count)
{
    int64_t total = 0;
    if (count && !shift) FAIL(c, MLXVK_ERROR_ARGUMENT, "shift is NULL");
    for (size_t i = 0; i < count && !c->code; i++) total += shift[i];
    return total;
}

static struct array *roll_flat(struct call *c, struct array *a, int64_t shift)
{
    struct array *flat = do_roll(c, do_flatten(c, a, 0, -1), shift, 0);
    return flat ? do_reshape(c, flat, a->ndim, a->shape) : NULL;
}

PUBLIC(mlxvk_roll, roll_flat(&c, IN(a), total_shift(&c, shift, shift_num)), mlxvk_array a, const int *shift,
         size_t shift_num)
PUBLIC(mlxvk_roll_axis, do_roll(&c, IN(a), total_shift(&c, shift, shift_num), axis), mlxvk_array a, const int *shift,
         size_t shift_num, int axis)

int mlxvk_roll_axes(mlxvk_array *res, mlxvk_array a, const int *shift, size_t shift_num, const int *axes,
                    size_t axes_num, mlxvk_stream s)
{
    struct call c = begin("roll_axes", s);
    struct array *x = IN(a);
    if (shift_num < axes_num) FAIL(&c, MLXVK_ERROR_ARGUMENT, "%zu shifts for %zu axes", shift_num, axes_num);
    if (axes_num && (!shift || !axes)) FAIL(&c, MLXVK_ERROR_ARGUMENT, "shift or axes is NULL");
    for (size_t i = 0; i < axes_num && !c.code; i++) x = do_roll(&c, x, shift[i], axes[i]);
    return finish(&c, x, res);
}

/* ---- padding ---- */

enum pad_mode { PAD_CONSTANT, PAD_EDGE, PAD_REFLECT, PAD_SYMMETRIC, PAD_MODES };
static const char *const pad_modes[PAD_MODES] = { "constant", "edge", "reflect", "symmetric" };

/* Which element of an axis of n stands at each position of the padded axis. */
static struct array *pad_indices(struct call *c, enum pad_mode mode, int n, int low, int high)
{
    struct array *at = do_arange(c, -(double)low, (double)n + high, 1, MLXVK_INT32);
    double period = mode == PAD_REFLECT ? 2.0 * (n - 1) : 2.0 * n;
    if (n == 1 || mode == PAD_EDGE) return by_number(c, B_minimum, by_number(c, B_maximum, at, 0), n - 1);
    if (period > INT_MAX) return FAIL(c, MLXVK_ERROR_LIMIT, "an axis of %d elements cannot be mirrored", n);
    at = by_number(c, B_remainder, at, period);
    return do_binary(c, B_minimum, at,
                     do_binary(c, B_subtract, scalar(c, period - (mode == PAD_SYMMETRIC), MLXVK_INT32), at));
}

/* low, high: of each axis of a. */
static struct array *do_pad(struct call *c, struct array *a, const int *low, const int *high, struct array *value,
                            const char *name)
{
    enum pad_mode mode = PAD_CONSTANT;
    int shape[MAXD], stop[MAXD];
    struct array *out;
    if (c->code || !a) return NULL;
    while (mode < PAD_MODES && (!name || strcmp(name, pad_modes[mode]))) mode++;
    if (mode == PAD_MODES)
        return FAIL(c, MLXVK_ERROR_ARGUMENT, "mode must be constant, edge, reflect or symmetric, not %s",
                    name ? name : "NULL");
    if (value && value->size != 1) return FAIL(c, MLXVK_ERROR_SHAPE, "pad_value %s is not one number", TEXT(value));
    for (int i = 0; i < a->ndim; i++) {
        int64_t n = (int64_t)a->shape[i] + low[i] + high[i];
        if (low[i] < 0 || high[i] < 0)
            return FAIL(c, MLXVK_ERROR_ARGUMENT, "axis %d of %s padded by %d and %d", i, TEXT(a), low[i], high[i]);
        shape[i] = length_of(c, a, (uint64_t)n);
        if (c->code) return NULL;
        stop[i] = low[i] + a->shape[i];
    }
    if (!memcmp(shape, a->shape, (size_t)a->ndim * sizeof *shape)) return a;
    if (mode == PAD_CONSTANT || !a->size) {
        value = value && mode == PAD_CONSTANT ? do_reshape(c, as_type(c, value, a->dtype), 0, NULL) :
            scalar(c, 0, a->dtype);
        out = do_full(c, a->ndim, shape, value, a->dtype);
        append_copy(c, do_slice(c, out, low, stop, NULL), a);
        return out;
    }
    for (int i = 0; a && i < a->ndim; i++)
        if (low[i] || high[i]) a = do_take(c, a, pad_indices(c, mode, a->shape[i], low[i], high[i]), i);
    return a;
}

int mlxvk_pad(mlxvk_array *res, mlxvk_array a, const int *axes, size_t axes_num, const int *low_pad_size,
              size_t low_pad_size_num, const int *high_pad_size, size_t high_pad_size_num, mlxvk_array pad_value,
              const char *mode, mlxvk_stream s)
{
    struct call c = begin("pad", s);
    struct array *x = input(&c, "a", a), *value = optional_input(&c, "pad_value", pad_value);
    int low[MAXD] = { 0 }, high[MAXD] = { 0 };
    uint32_t mask;
    if (axes_num != low_pad_size_num || axes_num != high_pad_size_num)
        FAIL(&c, MLXVK_ERROR_ARGUMENT, "%zu axes, %zu low and %zu high sizes", axes_num, low_pad_size_num,
             high_pad_size_num);
    if (axes_num && (!low_pad_size || !high_pad_size))
        FAIL(&c, MLXVK_ERROR_ARGUMENT, "low_pad_size or high_pad_size is NULL");
    if (!axes_mask(&c, x, axes, axes_num, &mask)) return finish(&c, NULL, res);
    for (size_t i = 0; i < axes_num; i++) {
        int axis = normal_axis(&c, x, axes[i]);
        low[axis] = low_pad_size[i];
        high[axis] = high_pad_size[i];
    }
    return finish(&c, do_pad(&c, x, low, high, value, mode), res);
}

static struct array *pad_evenly(struct call *c, struct array *a, int width, struct array *value, const char *mode)
{
    int each[MAXD];
    for (int i = 0; i < MAXD; i++) each[i] = width;
    return do_pad(c, a, each, each, value, mode);
}

PUBLIC(mlxvk_pad_symmetric, pad_evenly(&c, IN(a), pad_width, optional_input(&c, "pad_value", pad_value), mode),
         mlxvk_array a, int pad_width, mlxvk_array pad_value, const char *mode)

/* ---- comparisons ---- */

/* |a - b| <= atol + rtol |b|; infinities are close to themselves. */
static struct array *do_isclose(struct call *c, struct array *a, struct array *b, double rtol, double atol,
                                bool equal_nan)
{
    struct array *bound, *out, *finite;
    if (c->code || !a || !b) return NULL;
    bound = do_binary(c, B_multiply, scalar(c, rtol, MLXVK_FLOAT32), do_unary(c, U_abs, b));
    bound = do_binary(c, B_add, scalar(c, atol, MLXVK_FLOAT32), bound);
    out = do_binary(c, B_less_equal, do_unary(c, U_abs, do_binary(c, B_subtract, a, b)), bound);
    if (is_inexact(a->dtype) || is_inexact(b->dtype)) {
        finite = do_binary(c, B_logical_and, do_unary(c, U_isfinite, a), do_unary(c, U_isfinite, b));
        out = do_select(c, finite, out, do_binary(c, equal_nan ? B_nan_equal : B_equal, a, b));
    }
    return out;
}

static struct array *all_of(struct call *c, struct array *a)
{
    return a && a->ndim ? do_reduce(c, R_all, a, (1u << a->ndim) - 1, false) : a;
}

static struct array *do_array_equal(struct call *c, struct array *a, struct array *b, bool equal_nan)
{
    if (a && b && !same_shape(a, b)) return scalar(c, 0, MLXVK_BOOL);
    return all_of(c, do_binary(c, equal_nan ? B_nan_equal : B_equal, a, b));
}

PUBLIC(mlxvk_isclose, do_isclose(&c, IN(a), IN(b), rtol, atol, equal_nan), mlxvk_array a, mlxvk_array b, double rtol,
         double atol, bool equal_nan)
PUBLIC(mlxvk_allclose, all_of(&c, do_isclose(&c, IN(a), IN(b), rtol, atol, equal_nan)), mlxvk_array a, mlxvk_array b,
         double rtol, double atol, bool equal_nan)
PUBLIC(mlxvk_array_equal, do_array_equal(&c, IN(a), IN(b), equal_nan), mlxvk_array a, mlxvk_array b, bool equal_nan)

int mlxvk_nan_to_num(mlxvk_array *res, mlxvk_array a, float nan, mlxvk_optional_float posinf,
                     mlxvk_optional_float neginf, mlxvk_stream s)
{
    struct call c = begin("nan_to_num", s);
    struct array *x = IN(a);
    mlxvk_dtype t = x ? x->dtype : MLXVK_FLOAT32;
    double most = t == MLXVK_FLOAT16 ? 65504.0 : t == MLXVK_BFLOAT16 ? 0x1.fep127 : (double)FLT_MAX;
    struct { enum unary test; double value; } changes[] = {
        { U_isnan, nan }, { U_isposinf, posinf.has_value ? posinf.value : most },
        { U_isneginf, neginf.has_value ? neginf.value : -most } };
    if (x && is_complex(t)) FAIL(&c, MLXVK_ERROR_DTYPE, "%s is not taken", TEXT(x));
    for (size_t i = 0; i < COUNT(changes) && is_float(t) && x; i++)
        x = do_select(&c, do_unary(&c, changes[i].test, x), scalar(&c, changes[i].value, t), x);
    return finish(&c, x, res);
}

/* ---- statistics ---- */

/* Mean square of the distances from the mean, or with root its square root: in two passes, in float32. */
static struct array *do_variance(struct call *c, struct array *a, uint32_t mask, bool keepdims, int ddof, bool root)
{
    struct array *x, *away;
    mlxvk_dtype t;
    double n = 1;
    if (c->code || !a) return NULL;
    t = at_least_float(a->dtype);
    x = as_type(c, a, is_complex(t) ? t : MLXVK_FLOAT32);
    if (!x) return NULL;
    for (int i = 0; i < x->ndim; i++) if (mask >> i & 1) n *= x->shape[i];
    away = do_binary(c, B_subtract, x, mask ? do_reduce(c, R_mean, x, mask, true) : x);
    if (is_complex(t)) away = do_unary(c, U_abs, away);
    x = do_unary(c, U_square, away);
    if (mask) x = do_reduce(c, R_sum, x, mask, keepdims);
    x = by_number(c, B_multiply, x, 1 / (n > ddof ? n - ddof : 0));
    if (root) x = do_unary(c, U_sqrt, x);
    return is_complex(t) ? x : as_type(c, x, t);
}

static struct array *spread(struct call *c, struct array *a, bool all, const int *axes, size_t count, bool keepdims,
                            int ddof, bool root)
{
    uint32_t mask = all && a ? (1u << a->ndim) - 1 : 0;
    if (!all) axes_mask(c, a, axes, count, &mask);
    return do_variance(c, a, mask, keepdims, ddof, root);
}

#define VARIANCE(all, one, some, root)                                                                                \
    PUBLIC(all, spread(&c, IN(a), true, NULL, 0, keepdims, ddof, root), mlxvk_array a, bool keepdims, int ddof)     \
    PUBLIC(one, spread(&c, IN(a), false, &axis, 1, keepdims, ddof, root), mlxvk_array a, int axis, bool keepdims,   \
             int ddof)                                                                                                \
    PUBLIC(some, spread(&c, IN(a), false, axes, axes_num, keepdims, ddof, root), mlxvk_array a, const int *axes,    \
             size_t axes_num, bool keepdims, int ddof)
VARIANCE(mlxvk_var, mlxvk_var_axis, mlxvk_var_axes, false)
VARIANCE(mlxvk_std, mlxvk_std_axis, mlxvk_std_axes, true)

/* The middle of the sorted elements, or the mean of the two in the middle; NaN where there is one. */
static struct array *do_median(struct call *c, struct array *a, uint32_t mask, bool keepdims)
{
    int order[MAXD], shape[MAXD], ndim;
    struct array *middle, *last;
    mlxvk_dtype t;
    if (c->code || !a) return NULL;
    t = at_least_float(a->dtype);
    if (!mask) return as_type(c, a, t);
    ndim = reduced_shape(a, mask, false, shape);
    shape[ndim] = 1;
    for (int i = 0; i < a->ndim; i++)
        if (mask >> i & 1) shape[ndim] = length_of(c, a, (uint64_t)shape[ndim] * (uint64_t)a->shape[i]);
    if (!shape[ndim]) return FAIL(c, MLXVK_ERROR_SHAPE, "%s is empty along its axes", TEXT(a));
    axes_last(a->ndim, mask, order);
    middle = do_sort(c, do_reshape(c, do_transpose(c, a, order), ndim + 1, shape), -1, false);
    last = slice_one(c, middle, ndim, shape[ndim] - 1, 1);
    middle = slice_one(c, middle, ndim, (shape[ndim] - 1) / 2, shape[ndim] % 2 ? 1 : 2);
    middle = do_reduce(c, R_mean, as_type(c, middle, t), 1u << ndim, false);
    last = do_squeeze(c, last, 1u << ndim);
    if (is_inexact(a->dtype)) middle = do_select(c, do_unary(c, U_isnan, last), last, middle);
    ndim = reduced_shape(a, mask, keepdims, shape);
    return do_reshape(c, middle, ndim, shape);
}

int mlxvk_median(mlxvk_array *res, mlxvk_array a, const int *axes, size_t axes_num, bool keepdims, mlxvk_stream s)
{
    struct call c = begin("median", s);
    struct array *x = IN(a);
    uint32_t mask;
    if (x && x->ndim && !axes_num) FAIL(&c, MLXVK_ERROR_AXIS, "no axes of %s", TEXT(x));
    return finish(&c, axes_mask(&c, x, axes, axes_num, &mask) ? do_median(&c, x, mask, keepdims) : NULL, res);
}

/* ==== >>distributions: made of random bits and uniform numbers ==================================================== */

/* True with probability p. */
int mlxvk_random_bernoulli(mlxvk_array *res, mlxvk_array p, const int *shape, size_t shape_num, mlxvk_array key,
                           mlxvk_stream s)
{
    struct call c = begin("random_bernoulli", s);
    struct array *x = IN(p), *k, *bits;
    int ndim = shape_count(shape_num);
    if (x && !is_float(x->dtype)) FAIL(&c, MLXVK_ERROR_DTYPE, "p must be floating, not %s", TEXT(x));
    k = key_input(&c, key);
    x = do_binary(&c, B_multiply, x, scalar(&c, nextafterf(4294967296.0f, FLT_MAX), MLXVK_FLOAT32));
    x = x && check_shape(&c, ndim, shape, x->dtype) ? broadcast(&c, x, ndim, shape) : NULL;
    bits = do_random(&c, RANDOM_BITS, ndim, shape, MLXVK_UINT32, 0, 0, k);
    return finish(&c, do_binary(&c, B_less, bits, x), res);
}

/* Whole numbers from float32 ones, as MLX makes them, kept below high where float32 rounds up to it. */
int mlxvk_random_randint(mlxvk_array *res, mlxvk_array low, mlxvk_array high, const int *shape, size_t shape_num,
                         mlxvk_dtype dtype, mlxvk_array key, mlxvk_stream s)
{
    struct call c = begin("random_randint", s);
    struct array *x = IN(low), *y = IN(high), *k, *out;
    if (!is_dtype((int)dtype) || is_inexact(dtype))
        FAIL(&c, MLXVK_ERROR_DTYPE, "dtype must be an integer or bool, not %s", mlxvk_dtype_name(dtype));
    k = key_input(&c, key);
    out = do_uniform(&c, x, y, shape_count(shape_num), shape, MLXVK_FLOAT32, k);
    out = c.code ? NULL : as_type(&c, do_unary(&c, U_floor, out), dtype);
    if (out && dtype != MLXVK_BOOL) {
        out = do_binary(&c, B_minimum, out, by_number(&c, B_subtract, as_type(&c, y, dtype), 1));
        out = do_binary(&c, B_maximum, out, as_type(&c, x, dtype));
    }
    return finish(&c, out, res);
}

/* erfinv of a uniform number between -1 and 1: a normal one over the root of 2. */
static struct array *normal_samples(struct call *c, int ndim, const int *shape, mlxvk_dtype dtype, struct array *key)
{
    int full[MAXD + 1];
    struct array *out;
    if (!check_shape(c, ndim, shape, dtype)) return NULL;
    for (int i = 0; i < ndim; i++) full[i] = shape[i];
    full[ndim] = 2;
    out = do_random(c, RANDOM_UNIFORM, ndim + is_complex(dtype), full, MLXVK_FLOAT32, nextafterf(-1, 0), 1, key);
    out = do_unary(c, U_erfinv, out);
    if (!is_complex(dtype)) return as_type(c, out, dtype);
    out = do_view(c, out, dtype);
    return out ? do_reshape(c, out, ndim, shape) : NULL;
}

int mlxvk_random_normal_broadcast(mlxvk_array *res, const int *shape, size_t shape_num, mlxvk_dtype dtype,
                                  mlxvk_array loc, mlxvk_array scale, mlxvk_array key, mlxvk_stream s)
{
    struct call c = begin("random_normal_broadcast", s);
    struct array *at = optional_input(&c, "loc", loc), *by = optional_input(&c, "scale", scale), *k, *out;
    if (dtype != MLXVK_COMPLEX64) check_float(&c, dtype);
    k = key_input(&c, key);
    out = normal_samples(&c, shape_count(shape_num), shape, dtype, k);
    if (!c.code && !is_complex(dtype)) {
        struct array *root = scalar(&c, 1.4142135623730951, dtype);
        by = by ? do_binary(&c, B_multiply, root, as_type(&c, by, dtype)) : root;
        at = as_type(&c, at, dtype);
    }
    if (by) out = do_binary(&c, B_multiply, by, out);
    if (at) out = do_binary(&c, B_add, at, out);
    return finish(&c, out, res);
}

int mlxvk_random_truncated_normal(mlxvk_array *res, mlxvk_array lower, mlxvk_array upper, const int *shape,
                                  size_t shape_num, mlxvk_dtype dtype, mlxvk_array key, mlxvk_stream s)
{
    struct call c = begin("random_truncated_normal", s);
    const double root = 1.4142135623730951;
    struct array *low = IN(lower), *high = IN(upper), *k, *from, *to, *out;
    check_float(&c, dtype);
    k = key_input(&c, key);
    low = c.code ? NULL : as_type(&c, low, dtype);
    high = c.code ? NULL : as_type(&c, high, dtype);
    from = do_unary(&c, U_erf, by_number(&c, B_divide, low, root));
    to = do_unary(&c, U_erf, by_number(&c, B_divide, high, root));
    out = do_uniform(&c, from, to, shape_count(shape_num), shape, dtype, k);
    out = by_number(&c, B_multiply, do_unary(&c, U_erfinv, out), root);
    return finish(&c, do_binary(&c, B_maximum, do_binary(&c, B_minimum, high, out), low), res);
}

int mlxvk_random_laplace(mlxvk_array *res, const int *shape, size_t shape_num, mlxvk_dtype dtype, float loc,
                         float scale, mlxvk_array key, mlxvk_stream s)
{
    struct call c = begin("random_laplace", s);
    struct array *k, *u, *out;
    check_float(&c, dtype);
    k = key_input(&c, key);
    u = do_random(&c, RANDOM_UNIFORM, shape_count(shape_num), shape, MLXVK_FLOAT32, nextafterf(-1, 0), 1, k);
    out = do_unary(&c, U_log1p, do_unary(&c, U_negative, do_unary(&c, U_abs, u)));
    out = do_binary(&c, B_multiply, do_unary(&c, U_sign, u), out);
    if (!c.code) out = as_type(&c, out, dtype);
    if (scale != 1) out = by_number(&c, B_multiply, out, scale);
    return finish(&c, loc != 0 ? by_number(&c, B_add, out, loc) : out, res);
}

/* The numbers below n in random order: the order of as many random words. */
static struct array *permuted_numbers(struct call *c, int n, struct array *key)
{
    return do_sort(c, do_random(c, RANDOM_BITS, 1, &n, MLXVK_UINT32, 0, 0, key), 0, true);
}

PUBLIC(mlxvk_random_permutation_arange, permuted_numbers(&c, x, key_input(&c, key)), int x, mlxvk_array key)

int mlxvk_random_permutation(mlxvk_array *res, mlxvk_array x, int axis, mlxvk_array key, mlxvk_stream s)
{
    struct call c = begin("random_permutation", s);
    struct array *a = IN(x), *k = NULL;
    axis = normal_axis(&c, a, axis);
    if (axis >= 0) k = permuted_numbers(&c, a->shape[axis], key_input(&c, key));
    return finish(&c, a && a->size ? do_take(&c, a, k, axis) : a, res);
}

/* ==== >>linalg ==================================================================================================== */

static struct array *reduced(struct call *c, enum reduction op, struct array *a, uint32_t mask, bool keepdims)
{
    return mask ? do_reduce(c, op, a, mask, keepdims) : a;
}

static struct array *root_of_squares(struct call *c, struct array *x, uint32_t mask, bool keepdims)
{
    return do_unary(c, U_sqrt, reduced(c, R_sum, do_unary(c, U_square, x), mask, keepdims));
}

/* The magnitudes of elements in float32, in which norms are computed. */
static struct array *magnitudes(struct call *c, struct array *a)
{
    return a ? as_type(c, do_unary(c, U_abs, a), MLXVK_FLOAT32) : NULL;
}

static struct array *vector_norm(struct call *c, struct array *a, double order, uint32_t mask, bool keepdims)
{
    struct array *x = magnitudes(c, a);
    if (!x) return NULL;
    if (order == 0) {                                /* how many are not 0 */
        x = as_type(c, by_number(c, B_not_equal, x, 0), MLXVK_FLOAT32);
        order = 1;
    }
    if (order == 1) return reduced(c, R_sum, x, mask, keepdims);
    if (order == 2) return root_of_squares(c, x, mask, keepdims);
    if (isinf(order)) return reduced(c, order > 0 ? R_max : R_min, x, mask, keepdims);
    return by_number(c, B_power, reduced(c, R_sum, by_number(c, B_power, x, order), mask, keepdims), 1 / order);
}

/* ---- factorisations: float32, in batches ----
 *
 * A working copy of all matrices, (batch, rows, columns), is factorised in place, a block of columns after the other:
 * a step that is no matrix product by the kernel, the rest of the matrix by products. Triangles are inverted by
 * halves. */

static void factor_part(struct encoder *e, struct array *const *arrays, const void *job)
{
    const struct factor_params *p = job;
    struct array *a = arrays[0], *b = arrays[1], *order = arrays[2];
    bool small = p->op == FACTOR_CHOLESKY || p->op == FACTOR_INVERSE;
    uint32_t threads = small ? FACTOR_BLOCK : min_u32(e->device->tuning->factor_threads, e->device->caps.max_threads);
    struct factor_push push = {
        .matrices = (uint32_t)a->shape[0], .rows = (uint32_t)a->shape[1], .columns = (uint32_t)a->shape[2],
        .first = p->first, .count = p->count, .flags = p->flags, .a_matrix = (uint32_t)a->strides[0],
        .a_row = (uint32_t)a->strides[1], .a_column = (uint32_t)a->strides[2] };
    /* not all steps write all: the validation layer takes it that they do */
    push.a_at = set_output(e, SLOT_factor_a, a);
    if (b) {
        push.b_at = set_output(e, SLOT_factor_b, b);
        push.b_matrix = (uint32_t)b->strides[0];
        push.b_row = (uint32_t)b->strides[1];
        push.b_column = b->ndim > 2 ? (uint32_t)b->strides[2] : 0;
    }
    if (order) push.order_at = set_output(e, SLOT_factor_order, order);
    USE(e, factor, &push, .threads = threads, .op = p->op);
    if (p->op != FACTOR_SWAP) { dispatch_groups(e, push.matrices); return; }
    dispatch(e, ceil_div(push.columns + 1, threads), min_u32(push.matrices, e->device->caps.max_groups[1]),
             ceil_div(push.matrices, e->device->caps.max_groups[1]));
}

static void lower_factor(struct encoder *e, const struct node *n)
{
    const struct factor_params *p = &n->p.factor;
    struct array *a = p->op == FACTOR_INVERSE ? n->in[0] : n->out[0];
    struct array *b = p->op == FACTOR_SWAP ? n->in[0] : p->op == FACTOR_INVERSE ? n->out[0] : n->out[1];
    in_parts(e, (struct array *[]){ a, b, p->op == FACTOR_SWAP ? n->out[1] : NULL }, 3, ~1u, factor_part, p);
}

static void append_factor(struct call *c, int op, uint8_t flags, int first, int count, struct array *in,
                          struct array *out, struct array *more)
{
    if (c->code || !out) return;
    append(c, OP_FACTOR, PARAMS(.factor = { (uint8_t)op, flags, (uint16_t)count, (uint32_t)first }), ARRAYS(in),
           ARRAYS(out, more));
}

/* Two sweeps: as many rounds as bring the matrix back into the buffer where it was. */
static void jacobi_part(struct encoder *e, struct array *const *arrays, const void *job)
{
    const struct jacobi_params *p = job;
    struct array *a = arrays[0], *v = arrays[1], *go = arrays[2], *swap;
    struct array *other = p->op == JACOBI_EIGEN ? scratch(e, a->size, MLXVK_FLOAT32) : NULL;
    uint32_t size = (uint32_t)v->shape[1], half = (size + 1) / 2, matrices = (uint32_t)v->shape[0], threads;
    struct jacobi_push push = { .matrices = matrices, .n = size, .length = (uint32_t)a->shape[2],
                                .checked = go != NULL };
    row_lanes(e, push.length, &threads);
    if (p->op == JACOBI_EIGEN && !other) return;
    if (other) threads = 64;
    for (uint32_t i = 0; i < 2 * (2 * half - 1) && !e->code; i++) {
        push.round = i % (2 * half - 1);
        push.a_at = bind_array(e, SLOT_jacobi_a, a, !other);
        if (other) push.b_at = set_output(e, SLOT_jacobi_b, other);
        push.v_at = set_output(e, SLOT_jacobi_v, v);
        if (go) push.go_at = set_input(e, SLOT_jacobi_go, go);
        USE(e, jacobi, &push, .threads = threads, .lanes = threads, .op = p->op);
        dispatch_groups(e, other ? ceil_div((uint64_t)matrices * half * (half + size), threads)
                        : (uint64_t)matrices * half);
        if (other) { swap = a; a = other; other = swap; }
    }
    array_release(other);
}

static void lower_jacobi(struct encoder *e, const struct node *n)
{
    in_parts(e, (struct array *[]){ n->out[0], n->out[1], n->in[0] }, 3, ~1u, jacobi_part, &n->p.jacobi);
}

/* ---- matrices of a batch ---- */

/* (batch, rows, columns) of an operand of float32 matrices. */
static struct array *matrices(struct call *c, struct array *a, bool square)
{
    int shape[3] = { 0, 0, 0 };
    if (c->code || !a) return NULL;
    if (a->dtype != MLXVK_FLOAT32) return FAIL(c, MLXVK_ERROR_DTYPE, "matrices must be float32, not %s", TEXT(a));
    if (a->ndim < 2) return FAIL(c, MLXVK_ERROR_SHAPE, "%s has fewer than two dimensions", TEXT(a));
    shape[1] = dim_of(a, -2);
    shape[2] = dim_of(a, -1);
    if (square && shape[1] != shape[2]) return FAIL(c, MLXVK_ERROR_SHAPE, "the matrices of %s are not square", TEXT(a));
    if (!shape[1] || !shape[2]) return FAIL(c, MLXVK_ERROR_SHAPE, "the matrices of %s are empty", TEXT(a));
    if (a->size / (size_t)shape[1] / (size_t)shape[2] > INT_MAX)
        return FAIL(c, MLXVK_ERROR_LIMIT, "%s has too many matrices", TEXT(a));
    shape[0] = (int)(a->size / (size_t)shape[1] / (size_t)shape[2]);
    return check_room(c, "matrix", a, 4 * (size_t)shape[1] * (size_t)shape[2]) ? do_reshape(c, a, 3, shape) : NULL;
}

/* The batch dimensions of `like` again, in front of an array's dimensions but the first. */
static struct array *batched(struct call *c, struct array *a, const struct array *like)
{
    int shape[MAXD], n = 0;
    if (c->code || !a) return NULL;
    for (int i = 0; i < like->ndim - 2; i++) shape[n++] = like->shape[i];
    for (int i = 1; i < a->ndim; i++) shape[n++] = a->shape[i];
    return do_reshape(c, a, n, shape);
}

/* Blocks of the matrices; a square one on their diagonals. */
static struct array *block_of(struct call *c, struct array *a, int row, int rows, int column, int columns)
{
    if (c->code || !a) return NULL;
    return do_slice(c, a, (int[]){ 0, row, column }, (int[]){ a->shape[0], row + rows, column + columns }, NULL);
}

static struct array *corner_of(struct call *c, struct array *a, int at, int size)
{
    return block_of(c, a, at, size, at, size);
}

static struct array *flipped(struct call *c, struct array *a) { return do_swap(c, a, 1, 2); }

/* Ones on the diagonal of each matrix, in memory of its own. */
static struct array *eyes(struct call *c, int batch, int rows, int columns)
{
    struct array *one = do_eye(c, rows, columns, 0, MLXVK_FLOAT32);
    return one ? copy_of(c, broadcast(c, one, 3, (int[]){ batch, rows, columns })) : NULL;
}

/* a becomes a - b @ d; it may be a view of a larger array. */
static void subtract_product(struct call *c, struct array *a, struct array *b, struct array *d)
{
    append_copy(c, a, do_addmm(c, a, b, d, -1, 1));
}

/* Inverses of lower triangles; what stands above them is not read. */
static struct array *lower_inverse(struct call *c, struct array *a, uint8_t flags)
{
    int n = a ? a->shape[1] : 0, half = (n / 2 + FACTOR_BLOCK - 1) / FACTOR_BLOCK * FACTOR_BLOCK;
    struct array *out, *first, *second, *rest;
    if (c->code || !a) return NULL;
    if (n <= FACTOR_BLOCK) {
        out = output(c, 3, a->shape, MLXVK_FLOAT32);
        append_factor(c, FACTOR_INVERSE, flags, 0, n, a, out, NULL);
        return out;
    }
    out = filled(c, 3, a->shape, 0, MLXVK_FLOAT32);
    first = lower_inverse(c, corner_of(c, a, 0, half), flags);
    second = lower_inverse(c, corner_of(c, a, half, n - half), flags);
    rest = do_matmul(c, block_of(c, a, half, n - half, 0, half), first);
    append_copy(c, corner_of(c, out, 0, half), first);
    append_copy(c, corner_of(c, out, half, n - half), second);
    append_copy(c, block_of(c, out, half, n - half, 0, half), do_addmm(c, NULL, second, rest, -1, 0));
    return out;
}

static struct array *triangle_inverse(struct call *c, struct array *a, bool upper)
{
    return upper ? flipped(c, lower_inverse(c, flipped(c, a), 0)) : lower_inverse(c, a, 0);
}

/* ---- Cholesky ---- */

/* Lower factors; NaN where a matrix is not positive definite. Only lower triangles are read. */
static struct array *do_cholesky(struct call *c, struct array *a)
{
    struct array *w = a ? copy_of(c, a) : NULL, *corner, *below;
    int n = a ? a->shape[1] : 0;
    for (int k = 0; k < n && !c->code; k += FACTOR_BLOCK) {
        int size = n - k < FACTOR_BLOCK ? n - k : FACTOR_BLOCK, rest = n - k - size;
        corner = corner_of(c, w, k, size);
        append_factor(c, FACTOR_CHOLESKY, 0, 0, size, NULL, corner, NULL);
        if (!rest) break;
        below = block_of(c, w, k + size, rest, k, size);
        append_copy(c, below, do_matmul(c, below, flipped(c, lower_inverse(c, corner, 0))));
        subtract_product(c, corner_of(c, w, k + size, rest), below, flipped(c, below));
    }
    return n > FACTOR_BLOCK ? do_triangle(c, w, 0, false) : w;
}

/* ---- LU ---- */

/* Factors in one matrix, the exchanges of rows, and the order of rows that they make. */
struct lu { struct array *factors, *pivots, *order; };

static struct lu do_lu(struct call *c, struct array *a)
{
    struct lu r = { a ? copy_of(c, a) : NULL, NULL, NULL };
    int batch = a ? a->shape[0] : 0, m = a ? a->shape[1] : 0, n = a ? a->shape[2] : 0, least = m < n ? m : n;
    if (!r.factors) return r;
    r.pivots = output(c, 2, (int[]){ batch, least }, MLXVK_UINT32);
    r.order = do_arange(c, 0, m, 1, MLXVK_UINT32);
    r.order = r.order ? copy_of(c, broadcast(c, r.order, 2, (int[]){ batch, m })) : NULL;
    for (int k = 0; k < least && !c->code; k += FACTOR_BLOCK) {
        int size = least - k < FACTOR_BLOCK ? least - k : FACTOR_BLOCK, down = m - k - size, right = n - k - size;
        struct array *top, *inverse;
        append_factor(c, FACTOR_PANEL, 0, k, size, NULL, r.factors, r.pivots);
        append_factor(c, FACTOR_SWAP, 0, k, size, r.pivots, r.factors, r.order);
        if (right <= 0) continue;
        top = block_of(c, r.factors, k, size, k + size, right);
        inverse = lower_inverse(c, corner_of(c, r.factors, k, size), FACTOR_UNIT);
        append_copy(c, top, do_matmul(c, inverse, top));
        if (down <= 0) continue;
        subtract_product(c, block_of(c, r.factors, k + size, down, k + size, right),
                         block_of(c, r.factors, k + size, down, k, size), top);
    }
    return r;
}

/* ---- QR by Householder reflections ---- */

struct qr { struct array *q, *r; };

/* Takes V T V^T a from a, where I - V T V^T is a product of reflections, or with T transposed. */
static void reflect(struct call *c, struct array *a, struct array *v, struct array *t)
{
    subtract_product(c, a, v, do_matmul(c, t, do_matmul(c, flipped(c, v), a)));
}

/* Q with `columns` columns, R with min(rows, columns of a) rows. */
static struct qr do_qr(struct call *c, struct array *a, int columns)
{
    struct qr r = { NULL, NULL };
    struct array *w = a ? copy_of(c, a) : NULL, **v, **t;
    int batch, m, n, least, blocks;
    if (!w) return r;
    batch = a->shape[0];
    m = a->shape[1];
    n = a->shape[2];
    least = m < n ? m : n;
    blocks = (least + FACTOR_BLOCK - 1) / FACTOR_BLOCK;
    v = host_zalloc(c->device, 2 * (size_t)blocks * sizeof *v);
    if (!v) { FAIL(c, MLXVK_ERROR_HOST_MEMORY, "out of host memory"); return r; }
    t = v + blocks;
    for (int i = 0; i < blocks && !c->code; i++) {
        int k = i * FACTOR_BLOCK, size = least - k < FACTOR_BLOCK ? least - k : FACTOR_BLOCK, right = n - k - size;
        v[i] = output(c, 3, (int[]){ batch, m - k, size }, MLXVK_FLOAT32);
        append_factor(c, FACTOR_REFLECT, 0, k, size, NULL, w, v[i]);
        /* T^T: its inverse is V^T V's lower triangle with half the diagonal */
        t[i] = lower_inverse(c, do_matmul(c, flipped(c, v[i]), v[i]), FACTOR_HALF);
        if (right > 0) reflect(c, block_of(c, w, k, m - k, k + size, right), v[i], t[i]);
    }
    r.q = eyes(c, batch, m, columns);
    for (int i = blocks - 1, k; i >= 0 && !c->code; i--)
        if ((k = i * FACTOR_BLOCK) < columns)
            reflect(c, block_of(c, r.q, k, m - k, k, columns - k), v[i], flipped(c, t[i]));
    host_free(c->device, v);
    r.r = do_triangle(c, block_of(c, w, 0, least, 0, n), 0, true);
    return r;
}

/* ---- eigenvalues and singular values by Jacobi rotations ---- */

/* 1 for each matrix whose pairs are not yet orthogonal: by elements off the diagonal of a, or of the products of its
 * rows. */
static struct array *unfinished(struct call *c, int op, struct array *a)
{
    int n = a->shape[1], last = 2, middle = 1;
    struct array *x = a, *most, *bound = NULL;
    if (op == JACOBI_SINGULAR) {
        struct array *scale, *zero = scalar(c, 0, MLXVK_FLOAT32);
        x = do_matmul(c, a, flipped(c, a));
        if (!x) return NULL;
        scale = do_diagonal(c, x, 0, 1, 2);
        scale = do_select(c, do_binary(c, B_greater, scale, zero), do_unary(c, U_rsqrt, scale), zero);
        x = do_binary(c, B_multiply, do_binary(c, B_multiply, x, do_expand(c, scale, &last, 1)),
                      do_expand(c, scale, &middle, 1));
        bound = scalar(c, 4 * FLT_EPSILON * sqrt(a->shape[2]), MLXVK_FLOAT32);
    }
    x = do_unary(c, U_abs, x);
    if (!bound) bound = by_number(c, B_multiply, do_reduce(c, R_max, x, 6, false), 4 * FLT_EPSILON);
    most = do_select(c, do_eye(c, n, n, 0, MLXVK_BOOL), scalar(c, 0, MLXVK_FLOAT32), x);
    return as_type(c, do_binary(c, B_greater, do_reduce(c, R_max, most, 6, false), bound), MLXVK_FLOAT32);
}

/* Sweeps grow with the logarithm of the size; each node makes two. Matrices that are finished are left alone. */
static void append_jacobi(struct call *c, int op, struct array *a, struct array *v)
{
    int nodes = 4;
    if (c->code || !a || !v || !a->size) return;
    for (int n = v->shape[1]; n > 8; n /= 8) nodes++;
    for (int i = 0; i < (v->shape[1] > 1 ? nodes : 0) && !c->code; i++) {
        struct array *go = i >= 2 && v->shape[1] > FACTOR_BLOCK / 2 ? unfinished(c, op, a) : NULL;
        append(c, OP_JACOBI, PARAMS(.jacobi = { (uint8_t)op }), ARRAYS(go), ARRAYS(a, v));
    }
}

/* Rows of a (batch, n, length) in the order of indices (batch, n). */
static struct array *rows_in_order(struct call *c, struct array *a, struct array *order)
{
    int last = 2;
    return do_take_along(c, a, do_expand(c, order, &last, 1), 1);
}

struct eigen { struct array *values, *vectors; };

static struct eigen do_eigh(struct call *c, struct array *like, const char *uplo)
{
    struct eigen r = { NULL, NULL };
    struct array *a, *w, *v, *order, *mask, *turned;
    if (!uplo || (strcmp(uplo, "L") && strcmp(uplo, "U"))) FAIL(c, MLXVK_ERROR_ARGUMENT, "UPLO must be \"L\" or \"U\"");
    a = matrices(c, like, true);
    turned = flipped(c, a);
    if (c->code || !turned) return r;
    mask = do_tri(c, a->shape[1], a->shape[1], 0);
    w = uplo[0] == 'U' ? do_select(c, mask, turned, a) : do_select(c, mask, a, turned);
    v = eyes(c, a->shape[0], a->shape[1], a->shape[1]);
    append_jacobi(c, JACOBI_EIGEN, w, v);
    if (c->code) return r;
    w = do_diagonal(c, w, 0, 1, 2);
    order = do_sort(c, w, 1, true);
    r.values = batched(c, do_take_along(c, w, order, 1), like);
    r.vectors = batched(c, flipped(c, rows_in_order(c, flipped(c, v), order)), like);
    return r;
}

/* u (batch, m, m), s (batch, min), v^T (batch, n, n). */
struct svd { struct array *u, *s, *vt; };

static struct svd do_svd(struct call *c, struct array *a, bool vectors)
{
    struct svd r = { NULL, NULL, NULL };
    struct array *w, *vt, *s, *order, *signs;
    struct qr whole;
    int m, n, one = 1;
    if (c->code || !a) return r;
    m = a->shape[1];
    n = a->shape[2];
    if (m < n) {
        struct svd t = do_svd(c, flipped(c, a), vectors);
        r.s = t.s;
        if (vectors) { r.u = flipped(c, t.vt); r.vt = flipped(c, t.u); }
        return r;
    }
    w = copy_of(c, flipped(c, a));
    vt = eyes(c, a->shape[0], n, n);
    append_jacobi(c, JACOBI_SINGULAR, w, vt);
    s = root_of_squares(c, w, 1u << 2, false);
    order = do_sort(c, do_unary(c, U_negative, s), 1, true);
    r.s = do_take_along(c, s, order, 1);
    if (!vectors || c->code) return r;
    r.vt = rows_in_order(c, vt, order);
    w = flipped(c, rows_in_order(c, w, order));
    s = do_select(c, by_number(c, B_equal, r.s, 0), scalar(c, 1, MLXVK_FLOAT32), r.s);
    s = do_expand(c, s, &one, 1);
    whole = do_qr(c, do_binary(c, B_divide, w, s), m);   /* columns of length 0 or 1: Q has them, and completes them */
    if (c->code || !whole.r) return r;
    signs = by_number(c, B_less, do_expand(c, do_diagonal(c, whole.r, 0, 1, 2), &one, 1), 0);
    signs = do_select(c, signs, scalar(c, -1, MLXVK_FLOAT32), scalar(c, 1, MLXVK_FLOAT32));
    r.u = whole.q;
    w = block_of(c, r.u, 0, m, 0, n);
    append_copy(c, w, do_binary(c, B_multiply, w, signs));
    return r;
}

/* ---- fronts ---- */

static int finish_two(struct call *c, struct array *a, struct array *b, mlxvk_array *res_0, mlxvk_array *res_1)
{
    if (!res_0 || !res_1) FAIL(c, MLXVK_ERROR_ARGUMENT, "a result is NULL");
    if (!c->code) put_result(c, res_0, a);
    return finish(c, b, res_1);
}

int mlxvk_linalg_tri_inv(mlxvk_array *res, mlxvk_array a, bool upper, mlxvk_stream s)
{
    struct call c = begin("linalg_tri_inv", s);
    struct array *x = IN(a);
    return finish(&c, batched(&c, triangle_inverse(&c, matrices(&c, x, true), upper), x), res);
}

int mlxvk_linalg_cholesky(mlxvk_array *res, mlxvk_array a, bool upper, mlxvk_stream s)
{
    struct call c = begin("linalg_cholesky", s);
    struct array *x = input(&c, "a", a), *w = matrices(&c, x, true);
    w = do_cholesky(&c, upper ? flipped(&c, w) : w);
    return finish(&c, batched(&c, upper ? flipped(&c, w) : w, x), res);
}

int mlxvk_linalg_cholesky_inv(mlxvk_array *res, mlxvk_array a, bool upper, mlxvk_stream s)
{
    struct call c = begin("linalg_cholesky_inv", s);
    struct array *x = input(&c, "a", a), *inverse = triangle_inverse(&c, matrices(&c, x, true), upper),
        *turned = flipped(&c, inverse);
    return finish(&c, batched(&c, upper ? do_matmul(&c, inverse, turned) : do_matmul(&c, turned, inverse), x), res);
}

int mlxvk_linalg_lu_factor(mlxvk_array *res_0, mlxvk_array *res_1, mlxvk_array a, mlxvk_stream s)
{
    struct call c = begin("linalg_lu_factor", s);
    struct array *x = IN(a);
    struct lu f = do_lu(&c, matrices(&c, x, false));
    return finish_two(&c, batched(&c, f.factors, x), batched(&c, f.pivots, x), res_0, res_1);
}

int mlxvk_linalg_lu(mlxvk_vector_array *res, mlxvk_array a, mlxvk_stream s)
{
    struct call c = begin("linalg_lu", s);
    struct array *x = input(&c, "a", a), *out[3] = { NULL, NULL, NULL };
    struct lu f = do_lu(&c, matrices(&c, x, false));
    if (f.factors && !c.code) {
        int m = f.factors->shape[1], n = f.factors->shape[2], least = m < n ? m : n;
        struct array *l = do_triangle(&c, block_of(&c, f.factors, 0, m, 0, least), -1, false);
        out[0] = batched(&c, do_sort(&c, f.order, 1, true), x);
        out[1] = batched(&c, do_binary(&c, B_add, l, do_eye(&c, m, least, 0, MLXVK_FLOAT32)), x);
        out[2] = batched(&c, do_triangle(&c, block_of(&c, f.factors, 0, least, 0, n), 0, true), x);
    }
    return finish_vector(&c, out, 3, res);
}

int mlxvk_linalg_qr(mlxvk_array *res_0, mlxvk_array *res_1, mlxvk_array a, mlxvk_stream s)
{
    struct call c = begin("linalg_qr", s);
    struct array *x = IN(a), *w = matrices(&c, x, false);
    struct qr f = do_qr(&c, w, w ? (w->shape[1] < w->shape[2] ? w->shape[1] : w->shape[2]) : 0);
    return finish_two(&c, batched(&c, f.q, x), batched(&c, f.r, x), res_0, res_1);
}

int mlxvk_linalg_inv(mlxvk_array *res, mlxvk_array a, mlxvk_stream s)
{
    struct call c = begin("linalg_inv", s);
    struct array *x = input(&c, "a", a), *w = matrices(&c, x, true), *back, *out = NULL;
    struct lu f = do_lu(&c, w);
    int one = 1;
    if (!c.code) {
        back = do_expand(&c, do_sort(&c, f.order, 1, true), &one, 1);        /* columns go where their rows came from */
        out = do_matmul(&c, triangle_inverse(&c, f.factors, true), lower_inverse(&c, f.factors, FACTOR_UNIT));
        out = do_take_along(&c, out, back, 2);
    }
    return finish(&c, batched(&c, out, x), res);
}

/* x of a x = b, of operands with the same batch dimensions; b is a vector where it has one dimension. */
static struct array *do_solve(struct call *c, struct array *a, struct array *b, bool triangular, bool upper)
{
    int ndim, shape[MAXD], last = 1;
    struct array probe, *w, *x;
    struct lu f;
    bool vector = b && b->ndim == 1;
    if (c->code || !a || !b || !matrices(c, a, true)) return NULL;
    if (b->dtype != MLXVK_FLOAT32) return FAIL(c, MLXVK_ERROR_DTYPE, "b must be float32, not %s", TEXT(b));
    if (vector && !(b = do_expand(c, b, &last, 1))) return NULL;
    if (b->ndim < 2 || dim_of(b, -2) != dim_of(a, -1))
        return FAIL(c, MLXVK_ERROR_SHAPE, "%s and %s are no system of equations", TEXT(a), TEXT(b));
    probe = *b;
    probe.shape[probe.ndim - 1] = 1;
    if (!broadcast_shape(c, a, &probe, &ndim, shape)) return NULL;
    a = broadcast(c, a, ndim, shape);
    shape[ndim - 1] = dim_of(b, -1);
    b = broadcast(c, b, ndim, shape);
    w = matrices(c, a, true);
    if (!w || !b) return NULL;
    b = do_reshape(c, b, 3, (int[]){ w->shape[0], dim_of(b, -2), dim_of(b, -1) });
    if (triangular) x = do_matmul(c, triangle_inverse(c, w, upper), b);
    else {                                           /* U^-1 L^-1 b, its rows exchanged */
        f = do_lu(c, w);
        x = c->code ? NULL : do_matmul(c, lower_inverse(c, f.factors, FACTOR_UNIT), rows_in_order(c, b, f.order));
        x = do_matmul(c, triangle_inverse(c, f.factors, true), x);
    }
    x = batched(c, x, a);
    return x && vector ? do_squeeze(c, x, 1u << (x->ndim - 1)) : x;
}

PUBLIC(mlxvk_linalg_solve, do_solve(&c, IN(a), IN(b), false, false), mlxvk_array a, mlxvk_array b)
PUBLIC(mlxvk_linalg_solve_triangular, do_solve(&c, IN(a), IN(b), true, upper), mlxvk_array a, mlxvk_array b,
         bool upper)

int mlxvk_linalg_eigh(mlxvk_array *res_0, mlxvk_array *res_1, mlxvk_array a, const char *UPLO, mlxvk_stream s)
{
    struct call c = begin("linalg_eigh", s);
    struct eigen f = do_eigh(&c, IN(a), UPLO);
    return finish_two(&c, f.values, f.vectors, res_0, res_1);
}

PUBLIC(mlxvk_linalg_eigvalsh, do_eigh(&c, IN(a), UPLO).values, mlxvk_array a, const char *UPLO)

int mlxvk_linalg_svd(mlxvk_vector_array *res, mlxvk_array a, bool compute_uv, mlxvk_stream s)
{
    struct call c = begin("linalg_svd", s);
    struct array *x = input(&c, "a", a), *out[3];
    struct svd f = do_svd(&c, matrices(&c, x, false), compute_uv);
    out[0] = batched(&c, compute_uv ? f.u : f.s, x);
    out[1] = batched(&c, f.s, x);
    out[2] = batched(&c, f.vt, x);
    return finish_vector(&c, out, compute_uv ? 3 : 1, res);
}

/* V S^-1 U^T, without singular values that float32 cannot tell from 0. */
int mlxvk_linalg_pinv(mlxvk_array *res, mlxvk_array a, mlxvk_stream s)
{
    struct call c = begin("linalg_pinv", s);
    struct array *x = input(&c, "a", a), *w = matrices(&c, x, false), *out = NULL, *least, *inverse;
    struct svd f = do_svd(&c, w, true);
    int last = 2;
    if (!c.code && w) {
        int m = w->shape[1], n = w->shape[2], k = m < n ? m : n;
        least = do_binary(&c, B_multiply, do_reduce(&c, R_max, f.s, 2, true),
                          scalar(&c, 10.0 * (m > n ? m : n) * FLT_EPSILON, MLXVK_FLOAT32));
        inverse = do_select(&c, do_binary(&c, B_greater, f.s, least), do_unary(&c, U_reciprocal, f.s),
                            scalar(&c, 0, MLXVK_FLOAT32));
        out = do_binary(&c, B_multiply, block_of(&c, f.vt, 0, k, 0, n), do_expand(&c, inverse, &last, 1));
        out = do_matmul(&c, flipped(&c, out), flipped(&c, block_of(&c, f.u, 0, m, 0, k)));
    }
    return finish(&c, batched(&c, out, x), res);
}

static struct array *no_eigenvalues(struct call *c, struct array *a)
{
    a = matrices(c, a, true);
    return a ? FAIL(c, MLXVK_ERROR_UNSUPPORTED, "eigenvalues of matrices that are not symmetric: %s", TEXT(a)) : NULL;
}

PUBLIC(mlxvk_linalg_eigvals, no_eigenvalues(&c, IN(a)), mlxvk_array a)
int mlxvk_linalg_eig(mlxvk_array *res_0, mlxvk_array *res_1, mlxvk_array a, mlxvk_stream s)
{
    struct call c = begin("linalg_eig", s);
    return finish_two(&c, no_eigenvalues(&c, IN(a)), NULL, res_0, res_1);
}

/* mean + z S, where S S = cov and z is normal. */
int mlxvk_random_multivariate_normal(mlxvk_array *res, mlxvk_array mean, mlxvk_array cov, const int *shape,
                                     size_t shape_num, mlxvk_dtype dtype, mlxvk_array key, mlxvk_stream s)
{
    struct call c = begin("random_multivariate_normal", s);
    struct array *m = IN(mean), *v = IN(cov), *w = NULL, *k, *z, *out = NULL, lead[3], all;
    int one = 1;
    if (dtype != MLXVK_FLOAT32) FAIL(&c, MLXVK_ERROR_DTYPE, "dtype must be float32, not %s", mlxvk_dtype_name(dtype));
    if (m && m->ndim < 1) FAIL(&c, MLXVK_ERROR_SHAPE, "mean must have one dimension at least");
    w = c.code ? NULL : matrices(&c, as_type(&c, v, MLXVK_FLOAT32), true);
    if (w && dim_of(m, -1) != w->shape[1])
        FAIL(&c, MLXVK_ERROR_SHAPE, "mean %s and cov %s do not fit", TEXT(m), TEXT(v));
    k = key_input(&c, key);
    if (!check_shape(&c, shape_count(shape_num), shape, dtype) || !w) return finish(&c, NULL, res);
    lead[0] = outline(dtype, (int)shape_num, shape);
    lead[1] = *v;
    lead[1].ndim -= 2;
    lead[2] = *m;
    lead[2].ndim -= 1;
    all = common_shape(&c, (struct array *[]){ &lead[0], &lead[1], &lead[2] }, 3);
    if (all.ndim >= MAXD) FAIL(&c, MLXVK_ERROR_SHAPE, "more than %d dimensions", MAXD - 1);
    if (!c.code) {
        struct svd f = do_svd(&c, w, true);
        all.shape[all.ndim] = w->shape[1];
        w = do_binary(&c, B_multiply, f.u, do_expand(&c, do_unary(&c, U_sqrt, f.s), &one, 1));
        w = batched(&c, do_matmul(&c, w, f.vt), v);
        z = do_random(&c, RANDOM_NORMAL, all.ndim + 1, all.shape, dtype, 0, 1, k);
        out = do_matmul(&c, do_expand(&c, z, &all.ndim, 1), w);
        out = out ? do_binary(&c, B_add, m, do_squeeze(&c, out, 1u << (out->ndim - 2))) : NULL;
    }
    return finish(&c, out, res);
}

/* The largest or smallest singular value (2, -2), or the sum of them (0: the nuclear norm), of the matrices of two
 * axes. */
static struct array *singular_norm(struct call *c, struct array *a, double order, const int axis[2], bool keepdims)
{
    int from = axis[0] < axis[1] ? axis[0] : axis[1], to = axis[0] < axis[1] ? axis[1] : axis[0];
    struct array *x = do_moveaxis(c, do_moveaxis(c, as_type(c, a, MLXVK_FLOAT32), to, -1), from, -2), *s;
    s = batched(c, do_svd(c, matrices(c, x, false), false).s, x);
    s = s ? do_reduce(c, order > 0 ? R_max : order < 0 ? R_min : R_sum, s, 1u << (s->ndim - 1), false) : NULL;
    return keepdims && s ? do_expand(c, s, (int[]){ from, to }, 2) : s;
}

/* The largest or smallest sum of magnitudes of a column (order 1, -1) or a row (infinite orders), or singular value. */
static struct array *matrix_norm(struct call *c, struct array *a, double order, const int axis[2], bool keepdims)
{
    int sum = isinf(order) ? axis[1] : axis[0], most = isinf(order) ? axis[0] : axis[1];
    struct array *x;
    if (c->code || !a) return NULL;
    if (fabs(order) == 2 && is_complex(a->dtype))
        return FAIL(c, MLXVK_ERROR_UNSUPPORTED, "singular values of %s", TEXT(a));
    if (fabs(order) == 2) return singular_norm(c, a, order, axis, keepdims);
    if (fabs(order) != 1 && !isinf(order)) return FAIL(c, MLXVK_ERROR_ARGUMENT, "order %g of matrices", order);
    x = magnitudes(c, a);
    if (!x) return NULL;
    x = do_reduce(c, order > 0 ? R_max : R_min, do_reduce(c, R_sum, x, 1u << sum, true), 1u << most, true);
    return keepdims ? x : do_squeeze(c, x, 1u << sum | 1u << most);
}

/* Normal axes of a norm: those given, or where axis is NULL all of them. Returns how many. */
static int norm_axes(struct call *c, const struct array *a, const int *axis, size_t count, int most, int *axes,
                     uint32_t *mask)
{
    *mask = 0;
    if (c->code || !a) return 0;
    if (!axis) count = (size_t)a->ndim;
    if (count > (size_t)most) {
        FAIL(c, MLXVK_ERROR_AXIS, "%zu axes of %s; at most %d", count, TEXT(a), most);
        return 0;
    }
    for (int i = 0; i < (int)count; i++) axes[i] = axis ? normal_axis(c, a, axis[i]) : i;
    if (!axes_mask(c, a, axes, count, mask)) return 0;
    return (int)count;
}

static struct array *order_norm(struct call *c, struct array *a, double order, const int *axis, size_t axis_num,
                                bool keepdims)
{
    int axes[MAXD], count;
    uint32_t mask;
    struct array *x;
    count = norm_axes(c, a, axis, axis_num, 2, axes, &mask);
    if (c->code) return NULL;
    x = count == 2 ? matrix_norm(c, a, order, axes, keepdims) : vector_norm(c, a, order, mask, keepdims);
    return as_type(c, x, order == 2 && is_complex(a->dtype) ? MLXVK_FLOAT32 : at_least_float(a->dtype));
}

/* order: NULL for the root of the sum of squares, else of a matrix. */
static struct array *named_norm(struct call *c, struct array *a, const char *order, const int *axis, size_t axis_num,
                                bool keepdims)
{
    int axes[MAXD], count;
    uint32_t mask;
    struct array *x;
    count = norm_axes(c, a, axis, axis_num, axis ? 2 : MAXD, axes, &mask);
    if (order && count != 2) FAIL(c, MLXVK_ERROR_AXIS, "norm %s needs two axes, not %d", order, count);
    if (order && strcmp(order, "fro") && strcmp(order, "f") && strcmp(order, "nuc"))
        FAIL(c, MLXVK_ERROR_ARGUMENT, "norm %s of a matrix", order);
    if (order && order[0] == 'n' && a && is_complex(a->dtype))
        FAIL(c, MLXVK_ERROR_UNSUPPORTED, "singular values of %s", TEXT(a));
    if (c->code) return NULL;
    x = order && order[0] == 'n' ? singular_norm(c, a, 0, axes, keepdims)
        : root_of_squares(c, magnitudes(c, a), mask, keepdims);
    return as_type(c, x, is_complex(a->dtype) ? MLXVK_FLOAT32 : at_least_float(a->dtype));
}

PUBLIC(mlxvk_linalg_norm, order_norm(&c, IN(a), ord, axis, axis_num, keepdims), mlxvk_array a, double ord,
         const int *axis, size_t axis_num, bool keepdims)
PUBLIC(mlxvk_linalg_norm_matrix, named_norm(&c, IN(a), ord ? ord : "NULL", axis, axis_num, keepdims), mlxvk_array a,
         const char *ord, const int *axis, size_t axis_num, bool keepdims)
PUBLIC(mlxvk_linalg_norm_l2, named_norm(&c, IN(a), NULL, axis, axis_num, keepdims), mlxvk_array a, const int *axis,
         size_t axis_num, bool keepdims)

/* Vectors of two elements get a third one, 0. */
static struct array *three_long(struct call *c, struct array *a, int axis)
{
    int low[MAXD] = { 0 }, high[MAXD] = { 0 };
    if (c->code || !a) return NULL;
    if (a->shape[axis] != 2 && a->shape[axis] != 3)
        return FAIL(c, MLXVK_ERROR_SHAPE, "axis %d of %s must have 2 or 3 elements", axis, TEXT(a));
    high[axis] = 3 - a->shape[axis];
    return do_pad(c, a, low, high, NULL, "constant");
}

int mlxvk_linalg_cross(mlxvk_array *res, mlxvk_array a, mlxvk_array b, int axis, mlxvk_stream s)
{
    struct call c = begin("linalg_cross", s);
    struct array *x = input(&c, "a", a), *y = input(&c, "b", b), *forth, *back;
    int at_x = normal_axis(&c, x, axis), at_y = normal_axis(&c, y, axis);
    x = three_long(&c, x, at_x);
    y = three_long(&c, y, at_y);
    if (x && y && x->ndim - at_x != y->ndim - at_y)
        FAIL(&c, MLXVK_ERROR_AXIS, "axis %d is not the same of %s and %s", axis, TEXT(x), TEXT(y));
    forth = do_binary(&c, B_multiply, do_roll(&c, x, -1, at_x), do_roll(&c, y, -2, at_y));
    back = do_binary(&c, B_multiply, do_roll(&c, x, -2, at_x), do_roll(&c, y, -1, at_y));
    return finish(&c, do_binary(&c, B_subtract, forth, back), res);
}

/* ==== >>fft ======================================================================================================= */

/* Beside the kernels' flags: the kernel with more ways; those that are about loading. */
enum { FFT_MORE = 1 << 25, FFT_OF_LOAD = FFT_LOAD | FFT_SWAP_IN | FFT_TABLE_IN };
enum { FFT_ROWS = 3, FFT_STEPS = 3, FFT_THREADS = 256, FFT_MANY = 1 << 18 };

enum fft_kind { FFT_COMPLEX, FFT_FROM_REAL, FFT_TO_REAL };

/* Rows to transform: `len` elements each, of which the operand has `valid` and the result takes `limit`. */
struct fft {
    struct array *in, *out, *first, *last;           /* tables to multiply with; or NULL */
    uint32_t flags, len, valid, limit, c1, c2, rows, row_a[FFT_ROWS], step_a, row_d[FFT_ROWS], step_d;
    float scale;
};

/* How one step cuts a row into lines: see fft_lines.glsl. */
struct fft_lines { uint32_t size, subs, inner, a1, a2, a_step, b1, b2, b_step, turn; };

/* A pipeline for each length, or one for all: where compiling takes longer than transforming. */
static bool fft_fixed(const struct device *d)
{
    return d->gate[GATE_FFT_KERNEL] ? d->gate[GATE_FFT_KERNEL] == 1 : d->tuning->fft_fixed;
}

static uint32_t fft_threads(const struct device *d) { return min_u32(FFT_THREADS, d->caps.max_threads / 32 * 32); }

/* Rows that are columns, in memory, of the operand and of the result. */
static bool fft_columns(const struct fft *f)
{
    return f->c1 == 1 && f->rows == f->c2 && f->row_a[2] == 1 && f->row_d[2] == 1 && f->step_a > 1 && f->step_d > 1;
}

static bool fft_binary(uint32_t n) { return !(n & (n - 1)); }

/* Places in shared memory of a line of n elements: so many that sixteen threads, which look for one element of each
 * of the lines or for the next few ones as well, never want the same bank. */
static uint32_t fft_pitch(uint32_t n, uint32_t lines)
{
    uint32_t gap = lines > 16 ? 1 : 16 / lines, base = fft_binary(n) ? n + n / 16 : n;
    return base + (3 * gap - base % (2 * gap)) % (2 * gap);
}

/* Elements that the kernel for all lengths holds, in each half of shared memory. */
static uint32_t fft_plain_room(const struct device *d)
{
    uint32_t room = FFT_HELD * FFT_THREADS;
    while (16 * room > d->caps.shared_memory) room /= 2;
    return room;
}

/* Has a step a pipeline of its own length? A compiler may take a second for each: not for what the kernel for all
 * lengths does in microseconds. */
static bool fft_constant(const struct device *d, uint32_t rows, uint32_t len, uint32_t size)
{
    return fft_fixed(d) && (d->gate[GATE_FFT_KERNEL] == 1 || (uint64_t)rows * len >= FFT_MANY ||
                            size > fft_plain_room(d));
}

/* Elements that a workgroup can hold, in registers and shared memory. */
static uint32_t fft_room(const struct encoder *e)
{
    const struct device *d = e->device;
    uint32_t room = FFT_HELD * FFT_THREADS;
    if (!fft_fixed(d)) return fft_plain_room(d);
    while (9 * room > d->caps.shared_memory || room > FFT_HELD * fft_threads(d)) room /= 2;
    return room;
}

/* The longest rows that are transformed in one step: of columns several must fit, others may be exchanged in halves. */
static uint32_t fft_one_step(const struct encoder *e, const struct fft *f)
{
    const struct device *d = e->device;
    uint32_t room = fft_room(e);
    if (fft_columns(f)) return room / 4;
    if (!fft_fixed(d) || ((f->flags & FFT_STORE) == FFT_STORE_SPLIT && !f->valid)) return room;
    while (room <= FFT_HELD * FFT_THREADS && 4 * fft_pitch(2 * room, 1) <= d->caps.shared_memory &&
           2 * room <= FFT_HELD * d->caps.max_threads)
        room *= 2;
    return room;
}

/* The radices of a length, less one, four bits each; 0 where it has other factors (and for 1). Odd ones come first:
 * what they leave in shared memory does not collide. */
static uint32_t fft_radices(uint32_t n)
{
    static const uint8_t radices[] = { 13, 11, 9, 7, 3, 10, 5, 16, 8, 4, 2 };
    uint32_t list = 0, shift = 0;
    if (n == 8192) { list = 0x777; shift = 12; n /= 512; }        /* 8, 8, 8, 16 in place of 16, 16, 16, 2 */
    for (size_t i = 0; i < COUNT(radices); i++)
        for (; n % radices[i] == 0 && shift < 32; n /= radices[i], shift += 4)
            list |= (uint32_t)(radices[i] - 1) << shift;
    return n == 1 ? list : 0;
}

static bool fft_smooth(uint32_t n)
{
    static const uint8_t primes[] = { 2, 3, 5, 7, 11, 13 };
    for (size_t i = 0; i < COUNT(primes); i++) while (n % primes[i] == 0) n /= primes[i];
    return n == 1;
}

/* What a step of lines of n elements costs beside one that reads and writes whole sectors of memory in one or two
 * passes, at 20. */
static uint32_t fft_cost(uint32_t n, uint32_t room, bool paired)
{
    uint32_t lines = room / n / (paired ? 2 : 1), radices = fft_radices(n), passes = 0;
    for (; radices; radices >>= 4) passes++;
    return 20 + (lines >= 16 ? 0 : lines >= 8 ? 1 : lines >= 4 ? 3 : 40) + (passes > 2 ? passes - 2 : 0) +
        (n < 32 ? 4 : 0);
}

/* at most of a length that may be factors: smooth ones of 31 bits have fewer */
enum { FFT_DIVISORS = 1024 };

/* Cuts a smooth length into two or three factors of `room` at most, of which the first or the last may be
 * transformed in pairs of lines: what costs least, and of these what has the smallest largest factor. Returns how
 * many, or 0. */
static int fft_cut(uint32_t n, uint32_t room, bool first, bool last, uint32_t part[FFT_STEPS])
{
    uint32_t best = UINT32_MAX, room_first = first ? room / 2 : room, room_last = last ? room / 2 : room;
    int count = 0, divisors = 0;
    uint32_t divisor[FFT_DIVISORS];
    for (uint32_t a = 1; a <= room && a <= n / 2 && divisors < FFT_DIVISORS; a++)
        if (n % a == 0) divisor[divisors++] = a;
    for (int i = 1; i < divisors && divisor[i] <= room_first; i++) {
        uint32_t a = divisor[i], m = n / a;
        for (int k = 0; k < divisors && divisor[k] <= m / 2; k++) {            /* 1: there is no second of three */
            uint32_t b = divisor[k], c = m / b, largest = a > b ? a : b, cost;
            if (m % b || c > room_last) continue;
            cost = fft_cost(a, room, first) + fft_cost(c, room, last) + (b > 1 ? fft_cost(b, room, false) : 0);
            if (b > 1) cost += (a > 128 ? 3 : 0) + (c > 128 ? 3 : 0);
            if (c > largest) largest = c;
            if ((cost << 16 | largest) >= best) continue;
            best = cost << 16 | largest;
            count = b > 1 ? 3 : 2;
            part[0] = a;
            part[1] = b > 1 ? b : c;
            part[2] = b > 1 ? c : 1;
        }
    }
    return count;
}

static bool even_rows(uint32_t offset, const uint32_t place[FFT_ROWS])
{
    return !((offset | place[0] | place[1] | place[2]) & 1);
}

/* Pairs of reals that are complex numbers in memory, taken as these. */
static void fft_whole_pairs(struct fft_push *q, const struct fft *f)
{
    if ((q->flags & FFT_LOAD) == FFT_LOAD_PAIRS && f->step_a == 1 && f->valid >= 2 * f->len &&
        even_rows(q->offset_a, f->row_a)) {
        q->flags &= ~(uint32_t)FFT_LOAD;
        for (int i = 0; i < FFT_ROWS; i++) q->row_a[i] = (uint32_t)((int32_t)q->row_a[i] / 2);   /* negative ones too */
        q->offset_a /= 2;
        q->valid /= 2;
    }
    if ((q->flags & FFT_STORE) == FFT_STORE_PAIRS && f->step_d == 1 && even_rows(q->offset_d, f->row_d)) {
        q->flags &= ~(uint32_t)FFT_STORE;
        for (int i = 0; i < FFT_ROWS; i++) q->row_d[i] = (uint32_t)((int32_t)q->row_d[i] / 2);
        q->offset_d /= 2;
    }
}

/* What needs no test while loading and storing, and where neighbouring lines are. */
static uint32_t fft_access(const struct fft_push *q, const struct fft *f)
{
    uint32_t all = q->size * q->subs, flags = 0;     /* elements of a row, zeros behind len among them */
    if (!(q->flags & FFT_LOAD) && q->len >= all && q->valid >= all) flags |= FFT_ALL_IN;
    if (!(q->flags & FFT_STORE) && q->limit >= all) flags |= FFT_ALL_OUT;
    if (f->c1 == 1 && f->rows == f->c2) flags |= FFT_FLAT;
    if (fft_columns(f)) flags |= FFT_ACROSS;
    return flags;
}

/* So many that few can transform one after the other, and load the next one's elements before? */
static bool fft_many_groups(const struct device *d, uint32_t groups) { return groups > 4 * d->tuning->processors; }

/* The kernel of one length, or the one with more ways to transform: what that one does otherwise, and what depends
 * on how much the workgroup holds. */
static void fft_constant_length(struct encoder *e, struct fft_push *q)
{
    const struct device *d = e->device;
    const uint32_t spectrum = FFT_LOAD | FFT_TABLE_IN;
    uint32_t threads = (uint32_t)round_up(ceil_div((uint64_t)q->lines * q->size, FFT_HELD), 32);
    uint32_t pitch = fft_pitch(q->size, q->lines);
    bool fits = 8 * q->lines * pitch <= d->caps.shared_memory, loads, more;
    bool whole = (q->subs == 1 && (q->valid || fits)) || q->flags & FFT_PAIRED;
    if (!fits) q->flags |= FFT_HALVES;
    if ((q->flags & spectrum) == FFT_LOAD_MERGE && whole && q->len == q->size * q->subs && q->size >= FFT_HELD)
        q->flags |= FFT_MERGED;
    else if (!(q->flags & FFT_HALVES) && q->size < 64 && !(q->flags & FFT_LINES_IN)) q->flags |= FFT_SHORT;
    loads = (q->flags & FFT_LOAD) == FFT_LOAD_COMPLEX || (q->flags & FFT_LOAD) == FFT_LOAD_REAL ||
        q->flags & FFT_MERGED;
    more = q->flags & FFT_MORE || (q->valid && q->flags & (FFT_PAIRED | FFT_CONVOLVED | FFT_HALVES | FFT_MERGED));
    if (more && q->flags & FFT_HALVES && loads && !(q->flags & FFT_MERGED) && q->subs == 1 &&
        fft_many_groups(d, q->ids))
        q->flags |= FFT_AHEAD;
    else if (more && !(q->flags & FFT_CONVOLVED)) q->flags |= FFT_STRAIGHT;
    if (more && q->flags & FFT_MERGED && q->valid > q->len) q->flags |= FFT_ALL_IN;
    q->flags &= ~(uint32_t)FFT_MORE;
    USE_AS(e, more ? K_fft_more : K_fft_fixed, fft_fixed, q, .threads = threads, .room = pitch, .size = q->size,
           .radices = q->radices, .lines = q->lines, .flags = q->flags, .subs = q->subs, .inner = q->inner);
}

/* How many lines a workgroup transforms together. */
static uint32_t fft_together(const struct encoder *e, const struct fft_push *q, bool fixed)
{
    const struct device *d = e->device;
    uint32_t room = q->radices && !fixed ? fft_plain_room(d) : fft_room(e), lines;
    uint32_t few = q->flags & (FFT_LINES_IN | FFT_LINES_OUT) ? d->tuning->fft_lines / 32
        : ceil_div(d->tuning->fft_lines, q->size);
    lines = min_u32(min_u32(few, room > q->size ? room / q->size : 1), q->ids);
    while (lines > 4 && q->ids / lines < 2 * d->tuning->processors) lines /= 2;
    return lines > 1 && q->flags & FFT_PAIRED ? lines & ~1u : lines;
}

/* One dispatch: transforms of l->size elements, or with that many elements of each row none. */
static void fft_step(struct encoder *e, const struct fft *f, const struct fft_lines *l, bool transform)
{
    struct device *d = e->device;
    uint32_t radices = transform ? fft_radices(l->size) : 0, pairs = ceil_div(l->subs, 2), groups;
    bool fixed = radices && (f->flags & FFT_CONVOLVED || fft_constant(d, f->rows, f->len, l->size));
    struct fft_push q = {
        .size = l->size, .radices = radices, .ids = f->rows * l->subs, .flags = f->flags, .len = f->len,
        .valid = f->valid, .limit = f->limit, .subs = l->subs, .inner = l->inner, .a1 = l->a1, .a2 = l->a2,
        .a_step = l->a_step, .b1 = l->b1, .b2 = l->b2, .b_step = l->b_step, .turn = l->turn, .c1 = f->c1,
        .c2 = f->c2, .step_a = f->step_a, .step_d = f->step_d, .scale = f->scale };
    memcpy(q.row_a, f->row_a, sizeof q.row_a);
    memcpy(q.row_d, f->row_d, sizeof q.row_d);
    if (l->a_step * f->step_a != 1) q.flags |= FFT_LINES_IN;
    if (l->b_step * f->step_d != 1) q.flags |= FFT_LINES_OUT;
    if ((f->flags & FFT_STORE) == FFT_STORE_SPLIT && l->subs > 1) q.flags |= FFT_PAIRED;
    if (fixed && f->valid && (f->flags & (FFT_LOAD | FFT_TABLE_IN)) == FFT_LOAD_MERGE && l->subs > 1 &&
        l->size >= FFT_HELD)
        q.flags |= FFT_PAIRED;
    q.lines = fft_together(e, &q, fixed);
    q.offset_a = set_input(e, SLOT_fft_a, f->in);    /* the same in all kernels of the family */
    q.offset_d = set_output(e, SLOT_fft_d, f->out);
    if (f->first) q.offset_first = set_input(e, SLOT_fft_first, f->first);
    if (f->last) q.offset_last = set_input(e, SLOT_fft_last, f->last);
    fft_whole_pairs(&q, f);
    q.flags |= fft_access(&q, f);
    if (fixed) fft_constant_length(e, &q);
    else USE(e, fft, &q, .threads = fft_threads(d), .room = fft_plain_room(d), .size = 1, .lines = 1, .subs = 1,
             .inner = 1);
    groups = q.flags & FFT_PAIRED ? ceil_div(f->rows * pairs, q.lines / 2) : ceil_div(q.ids, q.lines);
    if (q.flags & FFT_AHEAD) groups = ceil_div(groups, ceil_div(groups, 2 * d->tuning->processors));
    dispatch_groups(e, groups);
}

/* Lets rows lie in an array of the lowering's own: one after the other, or as columns beside each other. */
static void fft_between(uint32_t place[FFT_ROWS], uint32_t *step, const struct fft *f, uint32_t n)
{
    place[2] = n;
    place[1] = n * f->c2;
    place[0] = n * f->c2 * f->c1;
    *step = 1;
    if (fft_columns(f)) {
        place[2] = 1;
        *step = f->c2;
    }
}

/* The result, or the operand, in such an array. */
static void fft_into(struct fft *part, const struct fft *f, struct array *between, uint32_t n)
{
    part->out = between;
    part->limit = n;
    part->scale = 1;
    fft_between(part->row_d, &part->step_d, f, n);
}

static void fft_out_of(struct fft *part, const struct fft *f, struct array *between, uint32_t n)
{
    part->in = between;
    part->len = part->valid = n;
    fft_between(part->row_a, &part->step_a, f, n);
}

/* Transforms of a smooth length n, whose elements from f->len on are zero: one step, or two or three with twiddles
 * between. In the last one neighbouring lines write neighbouring elements. */
static void fft_rows(struct encoder *e, const struct fft *f, uint32_t n)
{
    uint32_t p[FFT_STEPS] = { n }, room = fft_room(e), rest;
    bool merge = (f->flags & FFT_LOAD) == FFT_LOAD_MERGE, split = (f->flags & FFT_STORE) == FFT_STORE_SPLIT;
    int count = n <= fft_one_step(e, f) ? 1 : fft_columns(f) ? fft_cut(n, room / 8, merge, split, p) : 0;
    struct array *between = NULL;
    if (!count) count = fft_cut(n, room, merge, split, p);
    if (!count) encoder_fail(e, MLXVK_ERROR_LIMIT, 0, __LINE__, "fft", "a length of %u is not supported", n);
    if (count > 1) between = scratch(e, (size_t)f->rows * n, MLXVK_COMPLEX64);
    rest = n / p[0];
    for (int k = 0; k < count && !e->code; k++) {
        const struct fft_lines steps[FFT_STEPS][FFT_STEPS] = {
            { { n, 1, 1, 0, 0, 1, 0, 0, 1, 0 } },
            { { p[0], rest, rest, 0, 1, rest, 0, 1, rest, n }, { p[1], p[0], p[0], 0, p[1], 1, 0, 1, p[0], 0 } },
            { { p[0], rest, rest, 0, 1, rest, 0, 1, rest, n },
              { p[1], p[0] * p[2], p[2], rest, 1, p[2], rest, 1, p[2], rest },
              { p[2], p[0] * p[1], p[0], p[2], rest, 1, p[0], 1, p[0] * p[1], 0 } } };
        bool first = !k, last = k == count - 1;
        struct fft part = *f;
        if (!first) { fft_out_of(&part, f, between, n); part.first = NULL; }
        if (!last) { fft_into(&part, f, between, n); part.last = NULL; }
        part.flags = (first ? f->flags & FFT_OF_LOAD : 0) | (last ? f->flags & ~(uint32_t)FFT_OF_LOAD : FFT_TURN);
        if (count == 3 && f->valid) part.flags |= FFT_MORE;
        fft_step(e, &part, &steps[count - 1][k], true);
    }
    array_release(between);
}

/* The smooth length that Bluestein's convolution of n elements takes. */
static uint32_t fft_convolved(uint32_t n)
{
    static const uint8_t odd[] = { 1, 3, 5, 7, 9, 15 };
    uint64_t best = UINT64_MAX;
    for (size_t i = 0; i < COUNT(odd); i++) {
        uint64_t m = odd[i];
        while (m < 2 * (uint64_t)n - 1) m *= 2;
        if (m < best) best = m;
    }
    return (uint32_t)best;
}

/* Can one kernel do a whole convolution of m elements? */
static bool fft_fused(const struct encoder *e, const struct fft *f, uint32_t m)
{
    const struct device *d = e->device;
    if (!f->valid || !fft_constant(d, f->rows, m, m)) return false;
    if (m <= fft_room(e)) return true;
    return fft_many_groups(d, f->rows) && 4 * fft_pitch(m, 1) <= d->caps.shared_memory &&
        m <= FFT_HELD * d->caps.max_threads;
}

/* Any length, as a convolution with a chirp: x w, transformed, times the chirp's transform, transformed back, times
 * w. */
static void fft_bluestein(struct encoder *e, const struct fft *f)
{
    uint32_t n = f->len, m = fft_convolved(n);
    struct fft_chirp_push push = { .n = n, .room = m };
    bool fused = fft_fused(e, f, m);
    struct array *w = scratch(e, n, MLXVK_COMPLEX64), *chirp = scratch(e, m, MLXVK_COMPLEX64);
    struct array *spectrum = scratch(e, m, MLXVK_COMPLEX64);
    struct array *product = fused ? NULL : scratch(e, (size_t)f->rows * m, MLXVK_COMPLEX64);
    struct fft there = *f, back = *f, one = { .in = chirp, .out = spectrum, .len = m, .valid = m, .limit = m, .c1 = 1,
                                              .c2 = 1, .rows = 1, .step_a = 1, .step_d = 1, .scale = 1 };
    if (!e->code) {
        push.offset_w = set_output(e, SLOT_fft_chirp_w, w);
        push.offset_b = set_output(e, SLOT_fft_chirp_b, chirp);
        USE(e, fft_chirp, &push, .threads = flat_threads(e->device));
        dispatch_elements(e, m);
        fft_rows(e, &one, m);
        there.first = back.last = w;
        there.last = spectrum;
        there.flags = (f->flags & FFT_OF_LOAD) | FFT_TABLE_IN | FFT_TABLE_OUT;
        back.flags = (f->flags & FFT_STORE) | FFT_SWAP_IN | FFT_SWAP_OUT | FFT_TABLE_OUT;
        if (f->flags & FFT_SWAP_OUT) back.flags |= FFT_SWAP_LAST;
        back.scale = f->scale / (float)m;
    }
    if (!e->code && fused) {
        there.flags |= FFT_CONVOLVED | (back.flags & ~FFT_SWAP_IN);
        there.scale = back.scale;
        fft_step(e, &there, &(struct fft_lines){ m, 1, 1, 0, 0, 1, 0, 0, 1, 0 }, true);
    } else if (!e->code) {
        fft_into(&there, f, product, m);
        fft_out_of(&back, f, product, m);
        fft_rows(e, &there, m);
        fft_rows(e, &back, m);
    }
    array_release(w);
    array_release(chirp);
    array_release(spectrum);
    array_release(product);
}

static void fft_any(struct encoder *e, const struct fft *f)
{
    if (fft_smooth(f->len)) fft_rows(e, f, f->len);
    else fft_bluestein(e, f);
}

/* Real rows of even length: the transform of their pairs, in its last step with what makes a half spectrum of it, or
 * before that. */
static void fft_pairs(struct encoder *e, const struct fft *f)
{
    uint32_t n = f->len, chunk = min_u32(n + 1, fft_room(e));
    struct fft part = *f;
    struct array *between;
    part.flags |= FFT_STORE_SPLIT;
    if (fft_smooth(n) && (n <= fft_one_step(e, &part) || (f->valid && fft_constant(e->device, f->rows, n, 0)))) {
        fft_rows(e, &part, n);
        return;
    }
    part.flags = f->flags;
    between = scratch(e, (size_t)f->rows * n, MLXVK_COMPLEX64);
    if (!between) return;
    fft_into(&part, f, between, n);
    fft_any(e, &part);
    part = *f;
    fft_out_of(&part, f, between, n);
    part.flags = FFT_LOAD_SPLIT;
    fft_step(e, &part, &(struct fft_lines){ chunk, ceil_div(n + 1, chunk), ceil_div(n + 1, chunk), 0, chunk, 1, 0,
                                            chunk, 1, 0 }, false);
    array_release(between);
}

/* The rows of an operand and its result as up to three dimensions; false: there are more. */
static bool fft_layout(struct fft *f, int axis)
{
    struct array view[2] = { *f->out, *f->in }, *views[2] = { &view[0], &view[1] };
    uint32_t sizes[FFT_ROWS] = { 1, 1, 1 };
    struct dims g;
    f->step_d = (uint32_t)f->out->strides[axis];
    f->step_a = (uint32_t)f->in->strides[axis];
    view[0].shape[axis] = view[1].shape[axis] = 1;
    g = merge_dims(views, 2);
    if (g.ndim > FFT_ROWS) return false;
    for (int i = 0; i < g.ndim; i++) {
        int to = FFT_ROWS - g.ndim + i;
        sizes[to] = (uint32_t)g.shape[i];
        f->row_d[to] = (uint32_t)g.stride[0][i];
        f->row_a[to] = (uint32_t)g.stride[1][i];
    }
    f->c1 = sizes[1];
    f->c2 = sizes[2];
    f->rows = sizes[0] * sizes[1] * sizes[2];
    return true;
}

static void fft_whole(struct encoder *e, const struct fft_params *p, struct array *in, struct array *out)
{
    bool even = p->n % 2 == 0, real = is_float(in->dtype);
    struct array packed = *out, *copy = NULL, *room = fits_binding(e->device, out) ? NULL : pack(e, out, &packed);
    struct fft f = { .in = in, .out = &packed, .len = (uint32_t)p->n, .valid = (uint32_t)in->shape[p->axis],
                     .limit = (uint32_t)out->shape[p->axis], .scale = p->scale };
    if (!fits_binding(e->device, in) || !fft_layout(&f, p->axis)) {
        copy = f.in = rows_of(e, in);
        fft_layout(&f, p->axis);
    }
    f.flags = p->inverse ? FFT_SWAP_IN | FFT_SWAP_OUT : 0;
    if (p->kind == FFT_TO_REAL) {
        f.flags |= even ? FFT_LOAD_MERGE | FFT_STORE_PAIRS : FFT_LOAD_HALF | FFT_STORE_REAL;
        if (even) f.limit = f.len /= 2;
        fft_any(e, &f);
    } else if (p->kind == FFT_FROM_REAL && even) {
        f.flags |= FFT_LOAD_PAIRS;
        f.len /= 2;
        fft_pairs(e, &f);
    } else {
        f.flags |= real ? FFT_LOAD_REAL : FFT_LOAD_COMPLEX;
        fft_any(e, &f);
    }
    array_release(copy);
    unpack(e, out, &packed, room);
}

/* Halves rows where operands cannot be bound whole, or what lies between steps would be too large. */
static void fft_split(struct encoder *e, const struct fft_params *p, struct array *in, struct array *out)
{
    size_t room = min_size(binding_room(e->device, 8), (size_t)1 << 28), len;
    size_t rows = out->size / (size_t)out->shape[p->axis];
    int axis = longest_axis(out, 1u << p->axis);
    bool smooth = fft_smooth((uint32_t)p->n), small;
    len = smooth ? (size_t)p->n : fft_convolved((uint32_t)p->n);
    small = rows * len <= room / 8 || (len <= fft_room(e) / (in->strides[p->axis] != 1 ? 4 : 1) &&
                                       (smooth || rows * len <= binding_room(e->device, 8) / 8));
    if (axis < 0 || (small && axis_to_split(e, (struct array *[]){ in, out }, 2, 0) < 0)) {
        fft_whole(e, p, in, out);
        return;
    }
    for (int half = 0; half < 2 && !e->code; half++) {
        struct array from = half_of(in, axis, half), to = half_of(out, axis, half);
        fft_split(e, p, &from, &to);
    }
}

static void lower_fft(struct encoder *e, const struct node *n) { fft_split(e, &n->p.fft, n->in[0], n->out[0]); }

/* ---- fronts ---- */

enum { FFT_LONGEST = 1 << 26 };

/* Transforms one axis to a length of n, cutting or padding with zeros; of a half spectrum n is the length of the
 * real result. */
static struct array *fft_axis(struct call *c, struct array *a, int axis, int n, enum fft_kind kind, bool inverse,
                              double scale)
{
    int shape[MAXD], used = kind == FFT_TO_REAL ? n / 2 + 1 : n;
    uint32_t length;
    struct array *out;
    if (c->code || !a) return NULL;
    if (n > FFT_LONGEST) return FAIL(c, MLXVK_ERROR_LIMIT, "a length of %d; at most %d", n, FFT_LONGEST);
    length = kind != FFT_COMPLEX && n % 2 == 0 ? (uint32_t)n / 2 : (uint32_t)n;
    if (!check_room(c, "row", a, 8 * (fft_smooth(length) ? (size_t)length + 1 : fft_convolved(length)))) return NULL;
    if (a->shape[axis] > used) a = slice_one(c, a, axis, 0, used);
    if (!is_complex(a->dtype) || kind == FFT_FROM_REAL)
        a = as_type(c, a, kind == FFT_TO_REAL ? MLXVK_COMPLEX64 : MLXVK_FLOAT32);
    if (!a) return NULL;
    memcpy(shape, a->shape, (size_t)a->ndim * sizeof *shape);
    shape[axis] = kind == FFT_FROM_REAL ? n / 2 + 1 : n;
    out = output(c, a->ndim, shape, kind == FFT_TO_REAL ? MLXVK_FLOAT32 : MLXVK_COMPLEX64);
    append(c, OP_FFT, PARAMS(.fft = { (uint8_t)kind, (uint8_t)axis, inverse, n, (float)scale }), ARRAYS(a),
           ARRAYS(out));
    return out;
}

/* Checked axes and lengths of a transform of several axes; without axes the last ones, without lengths the
 * operand's. */
struct fft_shape { int count, axis[MAXD], n[MAXD]; };

static bool fft_axes(struct call *c, const struct array *a, const struct ints *n, const struct ints *axes,
                     enum fft_kind kind, struct fft_shape *s)
{
    uint32_t seen = 0;
    if (c->code || !a) return false;
    if (!a->ndim) return FAIL(c, MLXVK_ERROR_SHAPE, "%s: at least one dimension is needed", TEXT(a)), false;
    if (n->count && n->count != axes->count)
        return FAIL(c, MLXVK_ERROR_ARGUMENT, "%zu lengths for %zu axes", n->count, axes->count), false;
    if (axes->count > MAXD || (axes->count && !axes->values) || (n->count && !n->values))
        return FAIL(c, MLXVK_ERROR_ARGUMENT, "%zu axes", axes->count), false;
    s->count = (int)axes->count;
    for (int i = 0; i < s->count; i++) {
        int axis = s->axis[i] = normal_axis(c, a, axes->values[i]), halved = kind == FFT_TO_REAL && i == s->count - 1;
        if (axis < 0) return false;
        if (seen >> axis & 1) return FAIL(c, MLXVK_ERROR_AXIS, "axis %d is there twice", axis), false;
        seen |= 1u << axis;
        s->n[i] = n->count ? n->values[i] : a->shape[axis];
        if (!n->count && halved) s->n[i] = length_of(c, a, 2 * max_size((size_t)a->shape[axis], 1) - 2);
        if (c->code) return false;
        if (s->n[i] < 1)
            return FAIL(c, MLXVK_ERROR_ARGUMENT, "a length of %d along axis %d of %s", s->n[i], axis, TEXT(a)), false;
    }
    return true;
}

/* Transforms over several axes. Of real transforms the last axis has the half spectrum, and is done first or last.
 * The whole scale is applied with the last one. */
static struct array *do_fft(struct call *c, struct array *a, struct ints n, struct ints axes, enum fft_kind kind,
                            bool inverse, int norm)
{
    struct fft_shape s;
    double size = 1, scale;
    if (!fft_axes(c, a, &n, &axes, kind, &s)) return NULL;
    for (int i = 0; i < s.count; i++) size *= s.n[i];
    if (norm < MLXVK_FFT_NORM_BACKWARD || norm > MLXVK_FFT_NORM_FORWARD)
        return FAIL(c, MLXVK_ERROR_ARGUMENT, "%d is no norm", norm);
    scale = norm == MLXVK_FFT_NORM_ORTHO ? 1 / sqrt(size) : (norm == MLXVK_FFT_NORM_FORWARD) != inverse ? 1 / size : 1;
    for (int k = 0; k < s.count; k++) {
        int i = inverse ? k : s.count - 1 - k;
        a = fft_axis(c, a, s.axis[i], s.n[i], i == s.count - 1 ? kind : FFT_COMPLEX, inverse,
                     k == s.count - 1 ? scale : 1);
    }
    return a;
}

/* The functions of one axis, two, several; what they transform; inverse? */
#define SEVERAL(name, kind, inverse)                                                                                  \
    PUBLIC(name, do_fft(&c, IN(a), (struct ints){ n, count }, (struct ints){ axes, axis_count }, kind, inverse,     \
                          (int)norm),                                                                                 \
             mlxvk_array a, const int *n, size_t count, const int *axes, size_t axis_count, mlxvk_fft_norm norm)
#define TRANSFORMS(one, two, several, kind, inverse)                                                                  \
    PUBLIC(one, do_fft(&c, IN(a), (struct ints){ &n, 1 }, (struct ints){ &axis, 1 }, kind, inverse, (int)norm),     \
             mlxvk_array a, int n, int axis, mlxvk_fft_norm norm)                                                     \
    SEVERAL(two, kind, inverse)                                                                                       \
    SEVERAL(several, kind, inverse)
TRANSFORMS(mlxvk_fft_fft, mlxvk_fft_fft2, mlxvk_fft_fftn, FFT_COMPLEX, false)
TRANSFORMS(mlxvk_fft_ifft, mlxvk_fft_ifft2, mlxvk_fft_ifftn, FFT_COMPLEX, true)
TRANSFORMS(mlxvk_fft_rfft, mlxvk_fft_rfft2, mlxvk_fft_rfftn, FFT_FROM_REAL, false)
TRANSFORMS(mlxvk_fft_irfft, mlxvk_fft_irfft2, mlxvk_fft_irfftn, FFT_TO_REAL, true)

/* Rolls axes by half their length, forward (up) or back (down). */
static struct array *fft_shift(struct call *c, struct array *a, const int *axes, size_t axes_num, bool back)
{
    if (axes_num && !axes) FAIL(c, MLXVK_ERROR_ARGUMENT, "axes is NULL");
    for (size_t i = 0; i < axes_num && !c->code; i++) {
        int axis = normal_axis(c, a, axes[i]), n = axis < 0 ? 0 : a->shape[axis];
        if (n) a = do_roll(c, a, back ? n - n / 2 : n / 2, axis);
    }
    return a;
}

PUBLIC(mlxvk_fft_fftshift, fft_shift(&c, IN(a), axes, axes_num, false), mlxvk_array a, const int *axes,
         size_t axes_num)
PUBLIC(mlxvk_fft_ifftshift, fft_shift(&c, IN(a), axes, axes_num, true), mlxvk_array a, const int *axes,
         size_t axes_num)

/* Whole numbers from `first` on, divided by n * d. */
static struct array *frequencies(struct call *c, int n, double d, int first, int count)
{
    float scale = (float)(1 / (n * d));
    struct array *a;
    if (c->code) return NULL;
    if (n < 1) return FAIL(c, MLXVK_ERROR_ARGUMENT, "n is %d; at least 1", n);
    if (d == 0) return FAIL(c, MLXVK_ERROR_ARGUMENT, "d is 0");
    a = do_arange(c, first, first + count, 1, MLXVK_FLOAT32);
    return do_binary(c, B_multiply, a, scalar_bytes(c, &scale, MLXVK_FLOAT32));
}

static struct array *both_signs(struct call *c, int n, double d)
{
    struct array *a = frequencies(c, n, d, -(n / 2), n);
    return a ? do_roll(c, a, n - n / 2, 0) : NULL;
}

PUBLIC(mlxvk_fft_fftfreq, both_signs(&c, n, d), int n, double d)
PUBLIC(mlxvk_fft_rfftfreq, frequencies(&c, n, d, 0, n / 2 + 1), int n, double d)

/* ==== >>chains: SPIR-V written at run time ======================================================================== */

/* A chain is some element-by-element operations with results of one shape that read each other's results: one
 * kernel, made for it, keeps what only the chain wants in registers. Its main is written here word by word: loads,
 * calls, stores. What it calls is copied from the module of shaders/chain.comp, so that each step computes, and
 * rounds, what its own kernel would. What a step hands on is combined with a zero that only the push constants tell:
 * a compiler that knew where it came from (from bool, say, or from a product) would rearrange the next step. Another
 * zero goes into second operands, for x - x is not 0 where x is NaN, as it knows only while it takes the two for
 * different numbers. */

enum { CHAIN_STEPS = 16, CHAIN_OPERANDS = 12, CHAIN_RESULTS = 4, CHAIN_PUSH = PUSH_SIZE / 4, CHAIN_FIRST = 3,
       CHAINS_MOST = 1024,
       CHAIN_BUCKETS = 256, CHAIN_KEY = 4 + CHAIN_OPERANDS + 2 * CHAIN_STEPS };

/* In the order of main in shaders/chain.comp. */
#define CHAIN_FUNCTIONS(X)                                                                                            \
    X(thread_index) X(convert) X(choose) X(byte_of) X(half_of) X(join_bytes) X(join_halves)
#define CHAIN_REAL_UNARY(X)                                                                                           \
    X(square) X(floor) X(ceil) X(round) X(sqrt) X(rsqrt) X(reciprocal) X(exp) X(expm1) X(log) X(log2) X(log10) \
    X(log1p) X(sin) X(cos) X(tan) X(sinh) X(cosh) X(tanh) X(arcsin) X(arccos) X(arctan) X(arcsinh) X(arccosh) \
    X(arctanh) X(erf) X(erfinv) X(sigmoid) X(degrees) X(radians) X(isnan) X(isinf) X(isfinite) X(isposinf) X(isneginf) \
    X(abs) X(negative) X(sign)
#define CHAIN_REAL_BINARY(X)                                                                                          \
    X(add) X(subtract) X(multiply) X(divide) X(floor_divide) X(floor_quotient) X(remainder) X(power) X(logaddexp) \
    X(arctan2) X(maximum) X(minimum) X(equal) X(not_equal) X(greater) X(greater_equal) X(less) X(less_equal) \
    X(nan_equal)
#define CHAIN_INTEGER_UNARY(X) X(abs) X(negative) X(sign) X(square) X(logical_not) X(bitwise_invert)
#define CHAIN_INTEGER_BINARY(X)                                                                                       \
    X(add) X(subtract) X(multiply) X(maximum) X(minimum) X(bitwise_and) X(bitwise_or) X(bitwise_xor) X(logical_and) \
    X(logical_or) X(equal) X(not_equal) X(greater) X(greater_equal) X(less) X(less_equal) X(nan_equal)

enum chain_function {
#define X(name) CHAIN_##name,
    CHAIN_FUNCTIONS(X)
#undef X
#define X(name) CHAIN_real_##name,
    CHAIN_REAL_UNARY(X)
    CHAIN_REAL_BINARY(X)
#undef X
#define X(name) CHAIN_integer_unary_##name,
    CHAIN_INTEGER_UNARY(X)
#undef X
#define X(name) CHAIN_integer_##name,
    CHAIN_INTEGER_BINARY(X)
#undef X
    CHAIN_FUNCTION_COUNT
};

/* The function of an operation on floats and on integers; 0: it is left out of chains. */
static const uint8_t chain_unary[U_COUNT][2] = {
#define X(name) [U_##name][0] = CHAIN_real_##name,
    CHAIN_REAL_UNARY(X)
#undef X
#define X(name) [U_##name][1] = CHAIN_integer_unary_##name,
    CHAIN_INTEGER_UNARY(X)
#undef X
};
static const uint8_t chain_binary[B_COUNT][2] = {
#define X(name) [B_##name][0] = CHAIN_real_##name,
    CHAIN_REAL_BINARY(X)
#undef X
#define X(name) [B_##name][1] = CHAIN_integer_##name,
    CHAIN_INTEGER_BINARY(X)
#undef X
};

/* How an operand's elements are found: beside the result's; the same one always; in the push constants; by strides:
 * each by its own, four in a row, or one for four. */
enum walk { WALK_FLAT, WALK_ONE, WALK_LITERAL, WALK_STRIDED, WALK_FOUR, WALK_SAME };

struct chain_step {
    struct array *out;
    uint8_t function, from, to, inputs, in[3];       /* in: operands; from CHAIN_OPERANDS on, steps */
    bool wanted;                                     /* by others than the chain */
};

struct chain {
    struct chain_step step[CHAIN_STEPS];
    struct array *operand[CHAIN_OPERANDS];
    uint8_t walk[CHAIN_OPERANDS], slot[CHAIN_OPERANDS];
    int steps, operands, bound, results, strided;
    bool four, leftover;                             /* four elements a thread; and, behind them, up to three alone */
    struct dims dims;                                /* of the results and those operands that go by strides */
    uint32_t push[CHAIN_PUSH], pushed;
};

/* A chain's kernel; without a pipeline, how often the like was seen. */
struct chain_entry {
    struct chain_entry *next;
    uint64_t hash;
    uint32_t seen, words, key[CHAIN_KEY];
    struct pipeline pipeline;
};

static void free_chains(struct device *d)
{
    for (int i = 0; d->chains && i < CHAIN_BUCKETS; i++)
        for (struct chain_entry *c = d->chains[i], *next; c; c = next) {
            next = c->next;
            d->vk.vkDestroyPipeline(d->handle, c->pipeline.handle, NULL);
            host_free(d, c->pipeline.words.items);
            host_free(d, c);
        }
    host_free(d, d->chains);
}

/* ---- what a chain is made of ---- */

static enum walk walk_of(const struct array *a)
{
    bool one = true;
    for (int i = 0; i < a->ndim; i++) one = one && (a->shape[i] == 1 || !a->strides[i]);
    return one ? is_literal(a) ? WALK_LITERAL : WALK_ONE : a->row ? WALK_FLAT : WALK_STRIDED;
}

/* The function of a node; -1 where chains do not have it. */
static int chain_function_of(const struct node *n)
{
    const struct elementwise_params *p = &n->p.elementwise;
    const struct array *x;
    int function;
    if (n->op != OP_ELEMENTWISE) return -1;
    x = n->in[n->inputs - 1];
    if (item_size(x) > 4 || item_size(n->out[0]) > 4) return -1;
    /* by tiles */
    if (p->kernel == K_COPY) return x->dtype == n->out[0]->dtype && walk_of(x) >= WALK_STRIDED ? -1 : CHAIN_convert;
    if (p->kernel == K_SELECT) return CHAIN_choose;
    if (p->kernel != K_UNARY && p->kernel != K_BINARY) return -1;
    function = p->kernel == K_UNARY ? chain_unary[p->op][!is_float(x->dtype)]
        : chain_binary[p->op][!is_float(x->dtype)];
    return function ? function : -1;
}

/* Can the node be part of a chain? Its result is a fresh one, whole. */
static bool chain_takes(const struct node *n)
{
    const struct array *out = n->out[0];
    if (n->done || chain_function_of(n) < 0 || !out->row || out->offset || out->storage->writers != 1 ||
        out->storage->buffer ||
        out->storage->literal || out->storage->nbytes != array_bytes(out) || out->size > INT32_MAX) return false;
    for (int i = 0; i < n->inputs; i++) if (n->in[i]->storage->failed || n->in[i]->ndim != out->ndim) return false;
    return true;
}

/* The number by which steps name an array, which becomes an operand where it is none; -1 where that cannot be. */
static int chain_operand(struct chain *c, struct array *a)
{
    for (int i = 0; i < c->steps; i++)
        if (c->step[i].out->storage == a->storage) return same_view(c->step[i].out, a) ? CHAIN_OPERANDS + i : -1;
    for (int i = 0; i < c->operands; i++) if (same_view(c->operand[i], a)) return i;
    if (c->operands == CHAIN_OPERANDS || runs_across(a)) return -1;
    c->walk[c->operands] = (uint8_t)walk_of(a);
    c->operand[c->operands] = a;
    return c->operands++;
}

/* Merges the dimensions of those that go by strides, and counts what must be pushed. */
static bool chain_fits(struct chain *c)
{
    struct array *list[1 + CHAIN_OPERANDS] = { c->step[0].out };
    c->strided = 0;
    for (int i = 0; i < c->operands; i++) if (c->walk[i] >= WALK_STRIDED) list[++c->strided] = c->operand[i];
    c->dims = c->strided ? merge_dims(list, 1 + c->strided) : (struct dims){ .ndim = 1 };
    return CHAIN_FIRST + c->operands + CHAIN_RESULTS + c->dims.ndim * (1 + c->strided) <= CHAIN_PUSH;
}

/* Appends a node's operation; false where it does not fit, with the chain as it was but for its count of operands. */
static bool chain_add(struct chain *c, const struct node *n)
{
    struct chain_step *step = &c->step[c->steps];
    if (c->steps == CHAIN_STEPS) return false;
    *step = (struct chain_step){ .out = n->out[0], .function = (uint8_t)chain_function_of(n),
                                 .from = (uint8_t)n->in[n->inputs - 1]->dtype,
                                 .to = (uint8_t)n->out[0]->dtype, .inputs = n->inputs };
    for (int i = 0; i < n->inputs; i++) {
        int k = chain_operand(c, n->in[i]);
        if (k < 0) return false;
        step->in[i] = (uint8_t)k;
    }
    if (!chain_fits(c)) return false;
    c->steps++;
    return true;
}

static bool chain_reads(const struct chain *c, const struct node *n)
{
    for (int i = 0; i < n->inputs; i++)
        for (int k = 0; k < c->steps && n->in[i]; k++) if (c->step[k].out->storage == n->in[i]->storage) return true;
    return false;
}

/* Finds the steps whose results others want too. */
static void chain_results(struct chain *c)
{
    c->results = 0;
    for (int i = 0; i < c->steps; i++) {
        const struct storage *st = c->step[i].out->storage;
        int inside = 0;
        for (int j = i + 1; j < c->steps; j++)
            for (int k = 0; k < c->step[j].inputs; k++) inside += c->step[j].in[k] == CHAIN_OPERANDS + i;
        c->step[i].wanted = st->owned || st->readers > inside;
        c->results += c->step[i].wanted;
    }
}

/* What two chains have in common that the same kernel serves, with how they walk or without. */
static uint32_t chain_key(const struct chain *c, bool walks, uint32_t *key)
{
    uint32_t n = 0;
    key[n++] = (uint32_t)c->steps | (uint32_t)c->operands << 8 | (uint32_t)walks << 16;
    if (walks) key[n++] = (uint32_t)c->four | (uint32_t)c->leftover << 1 | (uint32_t)c->dims.ndim << 8;
    for (int i = 0; i < c->operands; i++)
        key[n++] = (uint32_t)c->operand[i]->dtype | (walks ? (uint32_t)c->walk[i] << 8 : 0);
    for (int i = 0; i < c->steps; i++) {
        const struct chain_step *s = &c->step[i];
        key[n++] = (uint32_t)s->function | (uint32_t)s->from << 8 | (uint32_t)s->to << 16 | (uint32_t)s->wanted << 24;
        key[n++] = (uint32_t)s->in[0] | (uint32_t)s->in[1] << 8 | (uint32_t)s->in[2] << 16;
    }
    return n;
}

/* ---- writing a module ---- */

enum { SPIRV_NAME_FIRST = 3, SPIRV_NAME_LAST = 8, SPIRV_TYPE_VECTOR = 23,
       SPIRV_TYPE_ARRAY = 28, SPIRV_TYPE_STRUCT = 30, SPIRV_MEMBER_DECORATE = 72, SPIRV_COMPOSITE_CONSTRUCT = 80,
       SPIRV_COMPOSITE_EXTRACT = 81, SPIRV_ADD = 128, SPIRV_SUBTRACT = 130, SPIRV_MULTIPLY = 132, SPIRV_U_DIVIDE = 134,
           SPIRV_SELECT = 169,
       SPIRV_U_LESS = 176, SPIRV_XOR = 198, SPIRV_MERGE = 247, SPIRV_LAST_BRANCH = 255 };
/* Decorations; a storage class */
enum { SPIRV_BLOCK = 2, SPIRV_ALIASED = 20, SPIRV_OFFSET = 35, SPIRV_PUSH_CONSTANT = 9 };

/* The parts of a module, in this order: its head, decorations, types and globals, functions. */
enum { PART_HEAD, PART_DECORATE, PART_DECLARE, PART_CODE, PARTS };
/* Views of a binding: elements of one, two, four, eight and sixteen bytes. */
enum { VIEW_BYTE, VIEW_HALF, VIEW_WORD, VIEW_PAIR, VIEW_QUAD, VIEWS };

struct writer {
    struct device *device;
    struct list part[PARTS];                         /* of words */
    const uint32_t *library, *declarations, *functions, *library_end;   /* of chain.comp: where they begin */
    uint32_t bound, main, function[CHAIN_FUNCTION_COUNT];
    bool called[CHAIN_FUNCTION_COUNT], failed;
    uint32_t uint_type, bool_type, push, index;
    uint32_t view_type[VIEWS], view[MAX_BINDINGS][VIEWS];
    uint32_t global[2 + MAX_BINDINGS * VIEWS], globals;
    uint32_t value[CHAIN_OPERANDS + CHAIN_STEPS][4];   /* of the operands and steps, for each of four elements */
};

static void put_words(struct writer *m, int part, const uint32_t *words, uint32_t n)
{
    uint32_t *to = m->failed || !n ? NULL : list_add(m->device, &m->part[part], sizeof *to, n);
    if (to) memcpy(to, words, n * sizeof *words);
    else m->failed = m->failed || n;
}

#define PUT(m, part, op, ...) put(m, part, op, (uint32_t[]){ __VA_ARGS__ }, COUNT(((uint32_t[]){ __VA_ARGS__ })))
static void put(struct writer *m, int part, uint32_t op, const uint32_t *words, uint32_t n)
{
    uint32_t first = (n + 1) << 16 | op;
    put_words(m, part, &first, 1);
    put_words(m, part, words, n);
}

/* A declaration with these words, type first where it has one, else a new one. */
#define TYPE(m, op, ...) declare(m, op, 0, (uint32_t[]){ __VA_ARGS__ }, COUNT(((uint32_t[]){ __VA_ARGS__ })))
static uint32_t declare(struct writer *m, uint32_t op, uint32_t type, const uint32_t *words, uint32_t n)
{
    const struct list *own = &m->part[PART_DECLARE];
    uint32_t head = type ? 1 : 0, line[8] = { (head + 2 + n) << 16 | op, type };
    for (int pass = 0; pass < (own->count ? 2 : 1); pass++) {
        struct spirv_instruction i = pass ? spirv_between(own->items, ITEM(*own, uint32_t, own->count))
                                          : spirv_between(m->declarations, m->functions);
        while (spirv_next(&i))
            if (i.op == op && i.n == head + 1 + n && (!type || i.w[0] == type) &&
                (!n || !memcmp(i.operands + head + 1, words, n * sizeof *words))) return i.w[head];
    }
    line[head + 1] = m->bound++;
    if (n) memcpy(line + head + 2, words, n * sizeof *words);
    put_words(m, PART_DECLARE, line, head + 2 + n);
    return line[head + 1];
}

static uint32_t constant_word(struct writer *m, uint32_t value)
{
    return declare(m, SPIRV_CONSTANT, m->uint_type, &value, 1);
}

/* An instruction of main with a result. */
#define VALUE(m, op, type, ...) \
    put_value(m, op, type, (uint32_t[]){ __VA_ARGS__ }, COUNT(((uint32_t[]){ __VA_ARGS__ })))
static uint32_t put_value(struct writer *m, uint32_t op, uint32_t type, const uint32_t *words, uint32_t n)
{
    uint32_t head[3] = { (n + 3) << 16 | op, type, m->bound++ };
    put_words(m, PART_CODE, head, 3);
    put_words(m, PART_CODE, words, n);
    return head[2];
}
#define WORD(m, op, ...) VALUE(m, op, (m)->uint_type, __VA_ARGS__)

#define CALL(m, function, ...) WORD(m, SPIRV_CALL, called(m, function), __VA_ARGS__)
static uint32_t called(struct writer *m, uint32_t function)
{
    m->called[function] = true;
    return m->function[function];
}

static uint32_t put_label(struct writer *m, uint32_t label) { PUT(m, PART_CODE, SPIRV_LABEL, label); return label; }

/* if (condition): a block `yes`, else `no`; both come together in the label returned, which may be `no`. */
static void put_branch(struct writer *m, uint32_t condition, uint32_t yes, uint32_t no, uint32_t together)
{
    PUT(m, PART_CODE, SPIRV_MERGE, together, 0);
    PUT(m, PART_CODE, SPIRV_BRANCH_IF, condition, yes, no);
}

/* A block of one array at a binding, or of push constants; returns the variable. */
static uint32_t put_global(struct writer *m, uint32_t storage, uint32_t array, uint32_t stride)
{
    uint32_t block = m->bound++, pointer, variable = m->bound++;
    PUT(m, PART_DECORATE, SPIRV_DECORATE, array, SPIRV_ARRAY_STRIDE, stride);
    PUT(m, PART_DECLARE, SPIRV_TYPE_STRUCT, block, array);
    PUT(m, PART_DECORATE, SPIRV_DECORATE, block, SPIRV_BLOCK);
    PUT(m, PART_DECORATE, SPIRV_MEMBER_DECORATE, block, 0, SPIRV_OFFSET, 0);
    pointer = TYPE(m, SPIRV_TYPE_POINTER, storage, block);
    PUT(m, PART_DECLARE, SPIRV_VARIABLE, pointer, variable, storage);
    m->global[m->globals++] = variable;
    return variable;
}

/* A view of a binding. Results may lie where operands lie: Aliased. */
static uint32_t view_of_binding(struct writer *m, uint32_t slot, int view)
{
    uint32_t array, variable = m->view[slot][view];
    if (variable) return variable;
    if (!m->view_type[view])
        m->view_type[view] = view < VIEW_WORD ? TYPE(m, SPIRV_TYPE_INT, view == VIEW_BYTE ? 8 : 16, 0) : view ==
            VIEW_WORD ? m->uint_type
                           : TYPE(m, SPIRV_TYPE_VECTOR, m->uint_type, view == VIEW_PAIR ? 2 : 4);
    array = m->bound++;
    PUT(m, PART_DECLARE, SPIRV_TYPE_RUNTIME_ARRAY, array, m->view_type[view]);
    variable = m->view[slot][view] = put_global(m, SPIRV_STORAGE_BUFFER, array, 1u << view);
    PUT(m, PART_DECORATE, SPIRV_DECORATE, variable, SPIRV_SET, 0);
    PUT(m, PART_DECORATE, SPIRV_DECORATE, variable, SPIRV_BINDING, slot);
    PUT(m, PART_DECORATE, SPIRV_DECORATE, variable, SPIRV_ALIASED);
    return variable;
}

static uint32_t element(struct writer *m, uint32_t slot, int view, uint32_t index)
{
    uint32_t variable = view_of_binding(m, slot, view), pointer = TYPE(m, SPIRV_TYPE_POINTER, SPIRV_STORAGE_BUFFER,
        m->view_type[view]);
    return VALUE(m, SPIRV_ACCESS_CHAIN, pointer, variable, constant_word(m, 0), index);
}

static int view_of_type(int dtype)
{
    return dtypes[dtype].size == 1 ? VIEW_BYTE : dtypes[dtype].size == 2 ? VIEW_HALF : VIEW_WORD;
}

static uint32_t load_one(struct writer *m, uint32_t slot, int dtype, uint32_t index)
{
    int view = view_of_type(dtype);
    uint32_t from = element(m, slot, view, index), v = VALUE(m, SPIRV_LOAD, m->view_type[view], from);
    return view == VIEW_WORD ? v : WORD(m, SPIRV_U_CONVERT, v);
}

static void store_one(struct writer *m, uint32_t slot, int dtype, uint32_t index, uint32_t v)
{
    int view = view_of_type(dtype);
    uint32_t to = element(m, slot, view, index);
    if (view != VIEW_WORD) v = VALUE(m, SPIRV_U_CONVERT, m->view_type[view], v);
    PUT(m, PART_CODE, SPIRV_STORE, to, v);
}

/* Four elements in a row; index counts fours. */
static void load_four(struct writer *m, uint32_t slot, int dtype, uint32_t index, uint32_t *v)
{
    int view = view_of_type(dtype) + 2;
    uint32_t from = element(m, slot, view, index), all = VALUE(m, SPIRV_LOAD, m->view_type[view], from);
    for (uint32_t k = 0; k < 4; k++) {
        if (view == VIEW_WORD) v[k] = CALL(m, CHAIN_byte_of, all, constant_word(m, k));
        else if (view == VIEW_QUAD) v[k] = WORD(m, SPIRV_COMPOSITE_EXTRACT, all, k);
        else {
            uint32_t word = WORD(m, SPIRV_COMPOSITE_EXTRACT, all, k / 2);
            v[k] = CALL(m, CHAIN_half_of, word, constant_word(m, k % 2));
        }
    }
}

static void store_four(struct writer *m, uint32_t slot, int dtype, uint32_t index, const uint32_t *v)
{
    int view = view_of_type(dtype) + 2;
    uint32_t to = element(m, slot, view, index), all;
    if (view == VIEW_WORD) all = CALL(m, CHAIN_join_bytes, v[0], v[1], v[2], v[3]);
    else if (view == VIEW_QUAD) all = VALUE(m, SPIRV_COMPOSITE_CONSTRUCT, m->view_type[view], v[0], v[1], v[2], v[3]);
    else {
        uint32_t low = CALL(m, CHAIN_join_halves, v[0], v[1]), high = CALL(m, CHAIN_join_halves, v[2], v[3]);
        all = VALUE(m, SPIRV_COMPOSITE_CONSTRUCT, m->view_type[view], low, high);
    }
    PUT(m, PART_CODE, SPIRV_STORE, to, all);
}

/* ---- a chain's main ---- */

static uint32_t push_word(struct writer *m, uint32_t index)
{
    uint32_t pointer = TYPE(m, SPIRV_TYPE_POINTER, SPIRV_PUSH_CONSTANT, m->uint_type);
    uint32_t at = VALUE(m, SPIRV_ACCESS_CHAIN, pointer, m->push, constant_word(m, 0), constant_word(m, index));
    return WORD(m, SPIRV_LOAD, at);
}

/* Where the words pushed for operands, results, the shape and the strides begin, behind the count and the zeros. */
static uint32_t push_of_operand(int i) { return CHAIN_FIRST + (uint32_t)i; }
static uint32_t push_of_result(const struct chain *c, int r) { return CHAIN_FIRST + (uint32_t)(c->operands + r); }
static uint32_t push_of_dims(const struct chain *c) { return CHAIN_FIRST + (uint32_t)(c->operands + c->results); }

/* The positions, without the offset, of element i of those operands that go by strides, in order. */
static void put_positions(struct writer *m, const struct chain *c, uint32_t i, uint32_t *at)
{
    uint32_t dims = (uint32_t)c->dims.ndim, strides = push_of_dims(c) + dims;
    for (uint32_t d = dims; d-- > 0;) {
        uint32_t q = 0, coordinate = i;
        if (d) {
            uint32_t size = push_word(m, push_of_dims(c) + d);
            q = WORD(m, SPIRV_U_DIVIDE, i, size);
            coordinate = WORD(m, SPIRV_MULTIPLY, q, size);
            coordinate = WORD(m, SPIRV_SUBTRACT, i, coordinate);
        }
        for (uint32_t k = 0; k < (uint32_t)c->strided; k++) {
            uint32_t step = WORD(m, SPIRV_MULTIPLY, coordinate, push_word(m, strides + k * dims + d));
            at[k] = d + 1 == dims ? step : WORD(m, SPIRV_ADD, at[k], step);
        }
        i = q;
    }
}

static uint32_t fours_at(struct writer *m, uint32_t offset, uint32_t i)
{
    offset = WORD(m, SPIRV_SHIFT_RIGHT, offset, constant_word(m, 2));
    return WORD(m, SPIRV_ADD, offset, i);
}

/* Loads of operands that lie as the results do: element i, or the i-th four. */
static void load_flat(struct writer *m, const struct chain *c, uint32_t i, bool four, uint32_t v[CHAIN_OPERANDS][4])
{
    for (int k = 0; k < c->operands; k++) {
        uint32_t offset;
        if (c->walk[k] != WALK_FLAT) continue;
        offset = push_word(m, push_of_operand(k));
        if (four) load_four(m, c->slot[k], c->operand[k]->dtype, fours_at(m, offset, i), v[k]);
        else v[k][0] = load_one(m, c->slot[k], c->operand[k]->dtype, WORD(m, SPIRV_ADD, offset, i));
    }
}

/* Loads of the others. */
static void load_others(struct writer *m, const struct chain *c, uint32_t i)
{
    uint32_t at[CHAIN_OPERANDS], strided = 0, strides = push_of_dims(c) + (uint32_t)c->dims.ndim;
    if (c->strided) put_positions(m, c, c->four ? WORD(m, SPIRV_SHIFT_LEFT, i, constant_word(m, 2)) : i, at);
    for (int k = 0; k < c->operands; k++) {
        uint32_t *v = m->value[k], word, place, inner;
        int dtype = c->operand[k]->dtype;
        if (c->walk[k] == WALK_FLAT) continue;
        word = push_word(m, push_of_operand(k));
        if (c->walk[k] == WALK_LITERAL || c->walk[k] == WALK_ONE) {
            v[0] = v[1] = v[2] = v[3] = c->walk[k] == WALK_LITERAL ? word : load_one(m, c->slot[k], dtype, word);
            continue;
        }
        place = WORD(m, SPIRV_ADD, word, at[strided]);
        inner = strides + ++strided * (uint32_t)c->dims.ndim - 1;
        if (c->walk[k] == WALK_FOUR)
            load_four(m, c->slot[k], dtype, WORD(m, SPIRV_SHIFT_RIGHT, place, constant_word(m, 2)), v);
        else v[0] = v[1] = v[2] = v[3] = load_one(m, c->slot[k], dtype, place);
        for (int j = 1; j < 4 && c->four && c->walk[k] == WALK_STRIDED; j++) {
            place = WORD(m, SPIRV_ADD, place, push_word(m, inner));
            v[j] = load_one(m, c->slot[k], dtype, place);
        }
    }
}

static void store_results(struct writer *m, const struct chain *c, uint32_t i, bool four)
{
    int r = 0;
    for (int k = 0; k < c->steps; k++) {
        const struct chain_step *s = &c->step[k];
        uint32_t offset, *v = m->value[CHAIN_OPERANDS + k], slot = (uint32_t)(c->bound + r);
        if (!s->wanted) continue;
        offset = push_word(m, push_of_result(c, r++));
        if (four) store_four(m, slot, s->to, fours_at(m, offset, i), v);
        else store_one(m, slot, s->to, WORD(m, SPIRV_ADD, offset, i), v[0]);
    }
}

static void put_steps(struct writer *m, const struct chain *c)
{
    uint32_t zero = push_word(m, 1), other = push_word(m, 2);
    for (int k = 0; k < c->steps; k++)
        for (int j = 0; j < (c->four ? 4 : 1); j++) {
            const struct chain_step *s = &c->step[k];
            uint32_t words[6] = { called(m, s->function) }, n = 1;
            for (int i = 0; i < s->inputs; i++) words[n++] = m->value[s->in[i]][j];
            if (s->inputs == 2) words[2] = WORD(m, SPIRV_XOR, words[2], other);
            words[n++] = constant_word(m, s->from);
            words[n++] = constant_word(m, s->to);
            m->value[CHAIN_OPERANDS + k][j] = put_value(m, SPIRV_CALL, m->uint_type, words, n);
            if (k + 1 < c->steps)
                m->value[CHAIN_OPERANDS + k][j] = WORD(m, SPIRV_XOR, m->value[CHAIN_OPERANDS + k][j], zero);
        }
}

/* Loads by fours or, behind the last four, of one element; the steps; stores. */
static void put_leftover_body(struct writer *m, const struct chain *c, uint32_t i, uint32_t four)
{
    uint32_t fours[CHAIN_OPERANDS][4], ones[CHAIN_OPERANDS][4], label[6];
    for (int k = 0; k < 6; k++) label[k] = m->bound++;
    load_others(m, c, i);
    put_branch(m, four, label[0], label[1], label[2]);
    put_label(m, label[0]);
    load_flat(m, c, i, true, fours);
    PUT(m, PART_CODE, SPIRV_BRANCH, label[2]);
    put_label(m, label[1]);
    load_flat(m, c, i, false, ones);
    PUT(m, PART_CODE, SPIRV_BRANCH, label[2]);
    put_label(m, label[2]);
    for (int k = 0; k < c->operands; k++)
        for (int j = 0; j < 4 && c->walk[k] == WALK_FLAT; j++)
            m->value[k][j] = WORD(m, SPIRV_PHI, fours[k][j], label[0], ones[k][0], label[1]);
    put_steps(m, c);
    put_branch(m, four, label[3], label[4], label[5]);
    put_label(m, label[3]);
    store_results(m, c, i, true);
    PUT(m, PART_CODE, SPIRV_BRANCH, label[5]);
    put_label(m, label[4]);
    store_results(m, c, i, false);
    PUT(m, PART_CODE, SPIRV_BRANCH, label[5]);
    put_label(m, label[5]);
}

static void put_main(struct writer *m, const struct chain *c)
{
    uint32_t nothing = declare(m, SPIRV_TYPE_VOID, 0, NULL, 0), type = TYPE(m, SPIRV_TYPE_FUNCTION, nothing);
    uint32_t words, i, n, inside = 0, four = 0;
    uint32_t body = m->bound++, out = m->bound++;
    words = m->bound++;
    PUT(m, PART_DECLARE, SPIRV_TYPE_ARRAY, words, m->uint_type, constant_word(m, CHAIN_PUSH));
    m->push = put_global(m, SPIRV_PUSH_CONSTANT, words, 4);
    m->main = m->bound++;
    PUT(m, PART_CODE, SPIRV_FUNCTION, nothing, m->main, 0, type);
    put_label(m, m->bound++);
    i = WORD(m, SPIRV_CALL, called(m, CHAIN_thread_index));
    n = push_word(m, 0);
    if (c->four) {
        uint32_t quarter = WORD(m, SPIRV_SHIFT_RIGHT, n, constant_word(m, 2));
        four = inside = VALUE(m, SPIRV_U_LESS, m->bool_type, i, quarter);
        if (c->leftover) {
            uint32_t behind = WORD(m, SPIRV_MULTIPLY, quarter, constant_word(m, 3));
            behind = WORD(m, SPIRV_ADD, behind, i);
            i = WORD(m, SPIRV_SELECT, four, i, behind);
        }
    }
    if (!c->four || c->leftover) inside = VALUE(m, SPIRV_U_LESS, m->bool_type, i, n);
    put_branch(m, inside, body, out, out);
    put_label(m, body);
    if (c->leftover) put_leftover_body(m, c, i, four);
    else {
        load_others(m, c, i);
        load_flat(m, c, i, c->four, m->value);
        put_steps(m, c);
        store_results(m, c, i, c->four);
    }
    PUT(m, PART_CODE, SPIRV_BRANCH, out);
    put_label(m, out);
    put_words(m, PART_CODE, (uint32_t[]){ 1u << 16 | SPIRV_RETURN, 1u << 16 | SPIRV_FUNCTION_END }, 2);
}

/* ---- what is taken from the library ---- */

static bool has_result(const struct spirv_instruction *i)
{
    return i->n > 1 && i->op != SPIRV_STORE && !(i->op >= SPIRV_LOOP_MERGE && i->op <= SPIRV_LAST_BRANCH);
}

/* Finds the sections of the module of chain.comp, and its functions by the order of main's calls. */
static void open_library(struct writer *m)
{
    struct spirv_instruction i;
    uint32_t entry = 0, current = 0, n = 0;
    m->library = mlxvk_spv_chain;
    m->library_end = m->library + sizeof mlxvk_spv_chain / sizeof *m->library;
    for (i = spirv_open(m->library, sizeof mlxvk_spv_chain / sizeof *m->library); spirv_next(&i);) {
        if (i.op == SPIRV_ENTRY_POINT) entry = i.w[1];
        if (i.op >= SPIRV_TYPE_VOID && i.op < SPIRV_FUNCTION && !m->declarations) m->declarations = i.operands - 1;
        if (i.op == SPIRV_FUNCTION && !m->functions) m->functions = i.operands - 1;
        if (i.op == SPIRV_FUNCTION) current = i.w[1];
        if (i.op == SPIRV_CALL && current == entry && n < CHAIN_FUNCTION_COUNT) m->function[n++] = i.w[2];
    }
    m->bound = m->library[SPIRV_BOUND];
    m->uint_type = TYPE(m, SPIRV_TYPE_INT, 32, 0);
    m->bool_type = declare(m, SPIRV_TYPE_BOOL, 0, NULL, 0);
}

/* Marks in `used` (by id) the functions that are called, by main or by each other, and, as 2, what others define. */
static void mark_functions(const struct writer *m, uint8_t *used)
{
    struct spirv_instruction i;
    bool inside = false;
    for (int k = 0; k < CHAIN_FUNCTION_COUNT; k++) if (m->called[k]) used[m->function[k]] = 1;
    for (bool more = true; more;) {
        more = false;
        for (i = spirv_between(m->functions, m->library_end); spirv_next(&i);) {
            if (i.op == SPIRV_FUNCTION) inside = used[i.w[1]] == 1;
            if (inside && i.op == SPIRV_CALL && !used[i.w[2]]) used[i.w[2]] = more = true;
        }
    }
    for (i = spirv_between(m->functions, m->library_end); spirv_next(&i);) {
        if (i.op == SPIRV_FUNCTION) inside = used[i.w[1]] == 1;
        if (!inside && has_result(&i) && !used[i.w[1]]) used[i.w[1]] = 2;
    }
}

/* Copies the library's functions that are used, and what they need. */
static void copy_library(struct writer *m, const uint8_t *used)
{
    struct spirv_instruction i = spirv_open(m->library, (size_t)(m->library_end - m->library));
    bool inside = false;
    while (spirv_next(&i)) {
        const uint32_t *w = i.operands - 1;
        if (i.op == SPIRV_FUNCTION) inside = used[i.w[1]] == 1;
        if (w >= m->functions) { if (inside) put_words(m, PART_CODE, w, i.n + 1); }
        else if (i.op == SPIRV_ENTRY_POINT) {                /* with the globals of this module beside its own */
            uint32_t head[3] = { (i.n + 1 + m->globals) << 16 | i.op, i.w[0], m->main };
            put_words(m, PART_HEAD, head, 3);
            put_words(m, PART_HEAD, w + 3, i.n - 2);
            put_words(m, PART_HEAD, m->global, m->globals);
        } else if (i.op == SPIRV_EXECUTION_MODE) {
            put_words(m, PART_HEAD, (uint32_t[]){ w[0], m->main }, 2);
            put_words(m, PART_HEAD, w + 2, i.n - 1);
        } else if (i.op >= SPIRV_NAME_FIRST && i.op <= SPIRV_NAME_LAST) continue;
        else if (i.op == SPIRV_DECORATE || i.op == SPIRV_MEMBER_DECORATE) {
            if (used[i.w[0]] != 2) put_words(m, PART_DECORATE, w, i.n + 1);
        } else if (w < m->declarations) put_words(m, PART_HEAD, w, i.n + 1);
    }
}

/* All parts behind the first, and those let go. */
static struct list join_parts(struct writer *m)
{
    struct list *head = &m->part[PART_HEAD];
    for (int i = PART_DECORATE; i < PARTS; i++) {
        struct list *part = &m->part[i];
        if (i == PART_DECLARE) put_words(m, PART_HEAD, m->declarations, (uint32_t)(m->functions - m->declarations));
        put_words(m, PART_HEAD, part->items, part->count);
        host_free(m->device, part->items);
    }
    if (m->failed) { host_free(m->device, head->items); return (struct list){ 0 }; }
    *ITEM(*head, uint32_t, SPIRV_BOUND) = m->bound;
    return *head;
}

/* The module of a chain's kernel; without memory no words. */
static struct list write_chain(struct device *d, const struct chain *c)
{
    static const uint32_t capability[2] = { 4448, 4433 };   /* StorageBuffer8BitAccess, StorageBuffer16BitAccess */
    struct writer *m = host_zalloc(d, sizeof *m);
    struct list all = { 0 };
    uint8_t *used;
    if (!m) return all;
    m->device = d;
    open_library(m);
    put_main(m, c);
    put_words(m, PART_HEAD, m->library, SPIRV_HEADER);
    for (int i = 0; i < 2; i++) if (m->view_type[i]) PUT(m, PART_HEAD, SPIRV_CAPABILITY, capability[i]);
    used = host_zalloc(d, m->library[SPIRV_BOUND]);
    if (used) {
        mark_functions(m, used);
        copy_library(m, used);
    } else m->failed = true;
    host_free(d, used);
    all = join_parts(m);
    host_free(d, m);
    return all;
}

/* ---- kernels kept ---- */

/* The entry of a key, made where there is none yet; NULL where there are `most`. */
static struct chain_entry *find_chain(struct device *d, const uint32_t *key, uint32_t words, uint32_t most)
{
    uint64_t hash = hash_words(0x7C4A11, key, words);
    struct chain_entry **bucket, *c;
    if (!d->chains) d->chains = host_zalloc(d, CHAIN_BUCKETS * sizeof *d->chains);
    if (!d->chains) return NULL;
    bucket = &d->chains[hash % CHAIN_BUCKETS];
    for (c = *bucket; c; c = c->next)
        if (c->hash == hash && c->words == words && !memcmp(c->key, key, words * sizeof *key)) return c;
    if (d->chain_count >= most || !(c = host_zalloc(d, sizeof *c))) return NULL;
    *c = (struct chain_entry){ .next = *bucket, .hash = hash, .words = words };
    memcpy(c->key, key, words * sizeof *key);
    d->chain_count++;
    return *bucket = c;
}

/* Has the like been seen so often that its kernel pays for its making? Until then a window with it is not kept. */
static bool chain_pays(struct stream *s, const struct chain *c)
{
    struct device *d = s->device;
    uint32_t key[CHAIN_KEY], words = chain_key(c, false, key);
    struct chain_entry *entry = find_chain(d, key, words, CHAINS_MOST);
    bool pays = entry && (++entry->seen >= d->tuning->chain_seen || d->gate[GATE_CHAINS] > 1);
    if (entry && !pays) s->undecided = true;
    return pays;
}

static void dump_chain(const struct chain_entry *entry)
{
    const struct list *words = &entry->pipeline.words;
    char name[48];
    FILE *f;
    snprintf(name, sizeof name, "chain-%016llx.spv", (unsigned long long)entry->hash);
    f = fopen(name, "wb");
    if (!f) return;
    fwrite(words->items, sizeof(uint32_t), words->count, f);
    fclose(f);
}

static uint32_t chain_threads(const struct device *d) { return min_u32(256, d->caps.max_threads); }

/* Writes the kernel; its pipeline is made where the first step of it is encoded. */
static void plan_chain(struct encoder *e, struct chain_entry *entry, const struct chain *c)
{
    struct device *d = e->device;
    entry->pipeline = (struct pipeline){ .name = "chain", .kernel = KERNEL_COUNT + e->fusion, .spec_count = 1,
        .spec = { chain_threads(d) }, .bindings = (uint32_t)(c->bound + c->results), .words = write_chain(d, c) };
    if (!entry->pipeline.words.count)
        encoder_fail(e, MLXVK_ERROR_HOST_MEMORY, 0, __LINE__, "chain", "out of host memory");
    else if (d->gate[GATE_DEBUG_CHAINS]) dump_chain(entry);
}

/* ---- dispatch ---- */

/* Binds the arrays and pushes where they begin. Returns the bits of all offsets that must be multiples of four. */
static uint32_t bind_chain(struct encoder *e, struct chain *c)
{
    uint32_t mask = 0;
    c->pushed = CHAIN_FIRST;
    c->bound = 0;
    c->push[0] = (uint32_t)c->step[0].out->size;
    c->push[1] = c->push[2] = 0;
    for (int i = 0; i < c->operands; i++) {
        struct array *a = c->operand[i];
        uint32_t *word = &c->push[c->pushed++];
        *word = 0;
        if (c->walk[i] == WALK_LITERAL) {
            a->storage->read = true;
            memcpy(word, a->storage->bytes + a->offset, item_size(a));
            continue;
        }
        c->slot[i] = (uint8_t)c->bound;
        *word = set_input(e, (uint32_t)c->bound++, a);
        if (c->walk[i] == WALK_FLAT) mask |= *word;
    }
    for (int i = 0, r = 0; i < c->steps; i++)
        if (c->step[i].wanted) mask |= c->push[c->pushed++] = set_output(e, (uint32_t)(c->bound + r++), c->step[i].out);
    return mask;
}

/* Chooses between four elements a thread and one, and how operands with strides go then. */
static void choose_walks(struct chain *c, uint32_t mask)
{
    const struct dims *g = &c->dims;
    int inner = g->ndim - 1, k = 0;
    c->four = !(mask & 3) && (!c->strided || g->shape[inner] % 4 == 0);
    c->leftover = c->four && !c->strided;
    for (int i = 0; i < c->operands; i++) {
        bool aligned = !(c->push[push_of_operand(i)] & 3);
        if (c->walk[i] < WALK_STRIDED) continue;
        k++;
        for (int j = 0; j < inner; j++) aligned = aligned && g->stride[k][j] % 4 == 0;
        if (c->four && g->stride[k][inner] == 1 && aligned) c->walk[i] = WALK_FOUR;
        else if (c->four && !g->stride[k][inner]) c->walk[i] = WALK_SAME;
    }
    if (!c->strided) return;
    for (int j = 0; j < g->ndim; j++) c->push[c->pushed++] = (uint32_t)g->shape[j];
    for (k = 1; k <= c->strided; k++)
        for (int j = 0; j < g->ndim; j++) c->push[c->pushed++] = (uint32_t)g->stride[k][j];
}

/* Does it have an array that the device cannot bind whole, or more of them than it binds? */
static bool too_large(struct encoder *e, const struct chain *c)
{
    uint32_t bindings = (uint32_t)c->results;
    for (int i = 0; i < c->operands; i++) bindings += c->walk[i] != WALK_LITERAL;
    if (bindings > e->device->caps.max_bindings) return true;
    for (int i = 0; i < c->operands; i++) if (!fits_binding(e->device, c->operand[i])) return true;
    for (int i = 0; i < c->steps; i++) if (!fits_binding(e->device, c->step[i].out)) return true;
    return false;
}

static void chain_dispatch(struct encoder *e, struct chain *c)
{
    uint32_t key[CHAIN_KEY], words, n = (uint32_t)c->step[0].out->size;
    struct chain_entry *entry;
    choose_walks(c, bind_chain(e, c));
    words = chain_key(c, true, key);
    if (e->code) { encoder_reset(e); return; }
    entry = find_chain(e->device, key, words, 4 * CHAINS_MOST);
    if (!entry) encoder_fail(e, MLXVK_ERROR_HOST_MEMORY, 0, __LINE__, "chain", "out of host memory");
    else if (!entry->pipeline.handle && !entry->pipeline.words.count) plan_chain(e, entry, c);
    if (e->code) { encoder_reset(e); return; }
    e->step.pipeline = &entry->pipeline;
    set_bytes(e, c->push, c->pushed * 4);
    dispatch_groups(e, ceil_div(!c->four ? n : n / 4 + (c->leftover ? n & 3 : 0), chain_threads(e->device)));
}

/* ==== >>fusion ==================================================================================================== */

/* A fusion applies where the results in between are wanted by nobody else. Its nodes are lowered at the first one's
 * place: the others must be able to go before what lies between. */

enum { FUSE_WINDOW = 24 };

/* Nobody owns it, and one node reads it. */
static bool only_between(const struct array *a)
{
    return !a->storage->owned && a->storage->readers == 1 && a->storage->writers == 1;
}

/* The first node after `at` that reads the array's storage; `end` where there is none near. */
static uint32_t reader_of(const struct stream *s, uint32_t at, uint32_t end, const struct array *a)
{
    end = min_u32(end, at + FUSE_WINDOW);
    for (uint32_t i = at + 1; i < end; i++)
        for (int k = 0; k < s->nodes[i].inputs && !s->nodes[i].done; k++)
            if (s->nodes[i].in[k] && s->nodes[i].in[k]->storage == a->storage) return i;
    return UINT32_MAX;
}

/* May node j be lowered together with the nodes of `members` (ascending, the first one where lowering stands)? */
static bool can_join(struct stream *s, const uint32_t *members, int count, uint32_t j)
{
    uint64_t search = ++s->device->searches;
    /* the first one may have gone ahead too */
    for (uint32_t i = members[0] - min_u32(members[0], LOOK_AHEAD); i < j; i++) {
        bool member = s->nodes[i].done;
        for (int k = 0; k < count; k++) member = member || members[k] == i;
        if (!member) pass_over(&s->nodes[i], search);
    }
    return overtakes(&s->nodes[j], search);
}

static bool is_binary(const struct node *n, enum binary op)
{
    return n->op == OP_ELEMENTWISE && n->p.elementwise.kernel == K_BINARY && n->p.elementwise.op == (uint16_t)op;
}

/* Does `seen` consist of whole rows of `written`, which is row-contiguous? */
static bool sees_rows(const struct array *seen, const struct array *written)
{
    int64_t n = dim_of(written, -1);
    if (seen->storage != written->storage || seen->dtype != written->dtype || dim_of(seen, -1) != n ||
        (n > 1 && seen->strides[seen->ndim - 1] != 1) ||
            (seen->offset - written->offset) % (n * (int64_t)item_size(seen))) return false;
    for (int i = 0; i < seen->ndim - 1; i++) if (seen->shape[i] > 1 && seen->strides[i] % n) return false;
    return true;
}

/* sigmoid(g), g * that, times u, into m. */
static bool find_swiglu(struct stream *s, uint32_t at, uint32_t end, uint32_t m[3])
{
    const struct node *sigmoid = &s->nodes[at], *silu, *product;
    struct array *gate = sigmoid->in[0], *up;
    if (sigmoid->p.elementwise.kernel != K_UNARY || sigmoid->p.elementwise.op != U_sigmoid ||
        !only_between(sigmoid->out[0])) return false;
    m[0] = at;
    m[1] = reader_of(s, at, end, sigmoid->out[0]);
    if (m[1] == UINT32_MAX) return false;
    silu = &s->nodes[m[1]];
    if (!is_binary(silu, B_multiply) || !only_between(silu->out[0]) || !can_join(s, m, 1, m[1])) return false;
    if (!(same_view(silu->in[0], gate) && same_view(silu->in[1], sigmoid->out[0])) &&
        !(same_view(silu->in[1], gate) && same_view(silu->in[0], sigmoid->out[0]))) return false;
    m[2] = reader_of(s, m[1], end, silu->out[0]);
    if (m[2] == UINT32_MAX) return false;
    product = &s->nodes[m[2]];
    if (!is_binary(product, B_multiply) || !can_join(s, m, 2, m[2])) return false;
    up = product->in[product->in[0]->storage == silu->out[0]->storage];
    return same_view(product->in[up == product->in[0]], silu->out[0]) && up->storage != silu->out[0]->storage &&
        same_shape(up, gate) && same_shape(product->out[0], gate);
}

/* The three roundings become one, in one dispatch. */
static bool fuse_swiglu(struct encoder *e, struct stream *s, struct members *all, uint32_t end)
{
    uint32_t *m = all->node, at = m[0];
    const struct node *product;
    struct array *gate, *up, *a[3];
    struct elementwise_params p = { .kernel = K_BINARY, .op = B_silu_product };
    if (!find_swiglu(s, at, end, m)) return false;
    product = &s->nodes[m[2]];
    gate = s->nodes[at].in[0];
    up = product->in[product->in[0]->storage == s->nodes[m[1]].out[0]->storage];
    a[0] = product->out[0];
    a[1] = gate;
    a[2] = up;
    donate(e, a[0], ((struct array *[]){ gate, gate, up }), 3);
    elementwise_split(e, &p, a, 3);
    all->count = 3;
    return true;
}

/* h = a + b, then rms_norm(h): one pass over the rows. h is written too, for whoever reads it. */
static bool fuse_add_norm(struct encoder *e, struct stream *s, struct members *all, uint32_t end)
{
    uint32_t *m = all->node, at = m[0];
    const struct node *add = &s->nodes[at], *norm;
    struct array *h = add->out[0];
    if (!is_binary(add, B_add) || !is_float(h->dtype) || !same_shape(add->in[0], h) || !same_shape(add->in[1], h))
        return false;
    m[1] = reader_of(s, at, end, h);
    if (m[1] == UINT32_MAX) return false;
    norm = &s->nodes[m[1]];
    if (norm->op != OP_NORM || norm->p.norm.flags || !same_view(norm->in[0], h) || !can_join(s, m, 1, m[1]))
        return false;
    donate(e, h, add->in, 2);
    donate(e, norm->out[0], add->in, 2);
    norm_dispatch(e, 0, add->in[0], add->in[1], h, norm->in[1], NULL, norm->out[0], norm->p.norm.eps);
    all->count = 2;
    return true;
}

/* The copy node that is all that reads what node `at` wrote, unchanged; UINT32_MAX where there is none. */
static uint32_t copy_behind(struct stream *s, const uint32_t *members, int count, uint32_t end)
{
    uint32_t at = members[count - 1], copy;
    const struct array *out = s->nodes[at].out[0];
    const struct node *n;
    if (!only_between(out) || (copy = reader_of(s, at, end, out)) == UINT32_MAX) return UINT32_MAX;
    n = &s->nodes[copy];
    return n->op == OP_ELEMENTWISE && n->p.elementwise.kernel == K_COPY && same_view(n->in[0], out) &&
        n->out[0]->dtype == out->dtype &&
           can_join(s, members, count, copy) ? copy : UINT32_MAX;
}

/* rope, then the write of its result into a slice of a cache. */
static bool fuse_rope_cache(struct encoder *e, struct stream *s, struct members *all, uint32_t end)
{
    uint32_t *m = all->node, shape[4], stride[4];
    const struct node *rope = &s->nodes[m[0]];
    m[1] = copy_behind(s, m, 1, end);
    if (m[1] == UINT32_MAX || !rope_strides(s->nodes[m[1]].out[0], shape, stride)) return false;
    rope_dispatch(e, &rope->p.rope, rope->in[0], s->nodes[m[1]].out[0], rope->in[1], rope->in[2], false, NULL, 0);
    all->count = 2;
    return true;
}

/* The rows of x seen as `later` sees the norm's result, which has x's shape and is row-major. */
static struct array as_seen_by(const struct array *x, const struct array *result, const struct array *later)
{
    struct array view = *later;
    view.storage = x->storage;
    view.offset = x->offset + later->offset - result->offset;
    return view;
}

/* rms_norm of each head, then rope (of the transposed view), then, where it follows, the write into a cache. */
static bool fuse_norm_rope(struct encoder *e, struct stream *s, struct members *all, uint32_t end)
{
    uint32_t *m = all->node, at = m[0];
    const struct node *norm = &s->nodes[at], *rope;
    struct array *out, x;
    all->count = 2;
    if (norm->p.norm.flags || !norm->in[0]->row || !only_between(norm->out[0])) return false;
    m[1] = reader_of(s, at, end, norm->out[0]);
    if (m[1] == UINT32_MAX || s->nodes[m[1]].op != OP_ROPE || !can_join(s, m, 1, m[1])) return false;
    rope = &s->nodes[m[1]];
    if (!sees_rows(rope->in[0], norm->out[0])) return false;
    x = as_seen_by(norm->in[0], norm->out[0], rope->in[0]);
    out = rope->out[0];
    m[2] = s->device->gate[GATE_ROPE_CACHE] ? copy_behind(s, m, 2, end) : UINT32_MAX;
    if (m[2] != UINT32_MAX && rope_norm_fits(&rope->p.rope, &x, s->nodes[m[2]].out[0], norm->in[1])) {
        out = s->nodes[m[2]].out[0];
        all->count = 3;
    } else if (!rope_norm_fits(&rope->p.rope, &x, out, norm->in[1])) return false;
    rope_dispatch(e, &rope->p.rope, &x, out, rope->in[1], rope->in[2], true, norm->in[1], norm->p.norm.eps);
    return true;
}

/* Can the product go into one dispatch with others of the same x? */
static bool groups_well(const struct encoder *e, const struct node *n)
{
    const struct array *x = n->in[0], *w = n->in[1];
    uint32_t stride;
    int64_t low, high;
    size_t rows;
    if (n->op != OP_QUANTIZED_MATMUL) return false;
    rows = n->out[0]->size / (size_t)dim_of(n->out[0], -1);
    array_span(w, &low, &high);
    return n->p.quant.transpose && w->ndim == 2 && x->ndim && one_row_stride(x, &stride) && rows <= QMV_MAX_M &&
           specialised(e->device, (uint32_t)rows) && by_subgroups(e->device, (uint32_t)rows) && dense_matrix(w) &&
           dense_matrix(n->in[2]) && dense_matrix(n->in[3]) &&
           (size_t)(high - low) + 2 * e->device->caps.offset_align <= e->device->caps.max_range;
}

static bool same_product_kind(const struct node *a, const struct node *b)
{
    return same_view(a->in[0], b->in[0]) && a->p.quant.bits == b->p.quant.bits &&
        a->p.quant.group == b->p.quant.group && a->p.quant.mode == b->p.quant.mode &&
           a->in[2]->dtype == b->in[2]->dtype && a->out[0]->dtype == b->out[0]->dtype;
}

/* The nodes of silu(y0) * y1 behind the products m[0] and m[1], into m[2..4]; false where something else follows. */
static bool swiglu_behind(struct stream *s, uint32_t m[5], uint32_t end)
{
    struct array *gate = s->nodes[m[0]].out[0], *up = s->nodes[m[1]].out[0];
    const struct node *sigmoid, *silu, *product;
    if (gate->storage->owned || gate->storage->readers != 2 || gate->storage->writers != 1 || !only_between(up))
        return false;
    m[2] = reader_of(s, m[1], end, gate);
    if (m[2] == UINT32_MAX || !can_join(s, m, 2, m[2])) return false;
    sigmoid = &s->nodes[m[2]];
    if (sigmoid->op != OP_ELEMENTWISE || sigmoid->p.elementwise.kernel != K_UNARY ||
        sigmoid->p.elementwise.op != U_sigmoid ||
        !same_view(sigmoid->in[0], gate) || !only_between(sigmoid->out[0])) return false;
    m[3] = reader_of(s, m[2], end, sigmoid->out[0]);
    if (m[3] == UINT32_MAX || !can_join(s, m, 3, m[3])) return false;
    silu = &s->nodes[m[3]];
    if (!is_binary(silu, B_multiply) || !only_between(silu->out[0]) ||
        !same_view(silu->in[silu->in[0]->storage != gate->storage], gate) ||
        !same_view(silu->in[silu->in[0]->storage == gate->storage], sigmoid->out[0])) return false;
    m[4] = reader_of(s, m[3], end, silu->out[0]);
    if (m[4] == UINT32_MAX || !can_join(s, m, 4, m[4])) return false;
    product = &s->nodes[m[4]];
    return is_binary(product, B_multiply) && same_view(product->in[product->in[0]->storage != up->storage], up) &&
           same_shape(product->out[0], gate) && same_view(product->in[product->in[0]->storage == up->storage],
                                                          silu->out[0]);
}

/* The products that read x behind node m[0], into m[1..]: their number; 0 where something else reads x, too, or they
 * do not go together. */
static int products_of(struct encoder *e, struct stream *s, uint32_t m[1 + QMV_SETS], uint32_t end,
                       const struct array *x)
{
    uint32_t last = min_u32(end, m[0] + FUSE_WINDOW);
    int count = 0;
    for (uint32_t i = m[0] + 1; i < last && count < QMV_SETS; i++) {
        const struct node *n = &s->nodes[i];
        if (n->done || n->op != OP_QUANTIZED_MATMUL || n->in[0]->storage != x->storage) continue;
        if (!groups_well(e, n) || !can_join(s, m, 1 + count, i) || (count && !same_product_kind(&s->nodes[m[1]], n)))
            return 0;
        m[1 + count++] = i;
    }
    return x->storage->readers == count ? count : 0;
}

/* Adds the products m[1..count-1] to the job of m[0], and silu(y0) * y1 where that is all that follows: the nodes in
 * m then. */
static int join_products(struct stream *s, struct quant_job *j, uint32_t m[5], int count, uint32_t end)
{
    for (int i = 1; i < count; i++) {
        const struct node *n = &s->nodes[m[i]];
        uint32_t rows = (uint32_t)dim_of(n->out[0], -1);
        for (int k = 1; k < 4; k++) if (n->in[k]) n->in[k]->refs++;
        j->set[j->sets++] = (struct quant_set){ n->in[1], n->in[2], n->in[3], n->out[0], rows, rows };
    }
    if (count == 2 && s->device->gate[GATE_SWIGLU] && j->set[0].rows == j->set[1].rows && swiglu_behind(s, m, end)) {
        j->epilogue = QMV_SWIGLU;
        j->set[0].y = s->nodes[m[4]].out[0];
        j->set[1].y = NULL;
        count = 5;
    }
    return count;
}

/* Products of one x with several weights, for a few rows: one dispatch; with silu(y0) * y1 where that is all that
 * follows. */
static bool fuse_products(struct encoder *e, struct stream *s, struct members *all, uint32_t end)
{
    uint32_t *m = all->node, at = m[0], last = min_u32(end, at + FUSE_WINDOW);
    const struct node *first = &s->nodes[at];
    struct quant_job j;
    int count = 1;
    if (!has_kernel(e->device, K_QMV_SETS) || !groups_well(e, first)) return false;
    for (uint32_t i = at + 1; i < last && count < QMV_SETS; i++) {
        const struct node *n = &s->nodes[i];
        if (!n->done && groups_well(e, n) && same_product_kind(first, n) && can_join(s, m, count, i)) m[count++] = i;
    }
    if (count == 1) return false;
    quant_open(e, first, &j);
    all->count = join_products(s, &j, m, count, end);
    qmv_dispatch(e, &j);
    quant_close(&j);
    return true;
}

/* rms_norm, then all products that read its result, a row each: one dispatch, whose workgroups each do the norm for
 * themselves. */
static bool fuse_norm_products(struct encoder *e, struct stream *s, struct members *all, uint32_t end)
{
    uint32_t *m = all->node, stride;
    const struct node *norm = &s->nodes[m[0]], *first;
    struct array *x = norm->in[0], *weight = norm->in[1], *out = norm->out[0];
    struct quant_job j;
    bool taken;
    int count;
    if (norm->p.norm.flags || !weight || x->dtype != out->dtype || weight->dtype != out->dtype || weight->ndim != 1 ||
        !weight->row ||
        out->storage->owned || out->storage->writers != 1 || !has_kernel(e->device, K_QMV_HELD_SETS)) return false;
    if ((size_t)dim_of(out, -1) != out->size || !one_row_stride(x, &stride)) return false;
    count = products_of(e, s, m, end, out);
    if (!count || (count > 1 && !e->device->gate[GATE_QMM_GROUP])) return false;
    first = &s->nodes[m[1]];
    if (dim_of(first->in[0], -1) != dim_of(out, -1)) return false;
    quant_open(e, first, &j);
    array_release(j.x);
    x->refs++;
    j.x = x;
    j.x_row = stride;
    j.norm = weight;
    j.eps = norm->p.norm.eps;
    count = join_products(s, &j, m + 1, count, end);
    taken = qmv_dispatch(e, &j);
    quant_close(&j);
    if (!taken) return false;
    all->count = 1 + count;
    return true;
}

/* A product of few rows, then the addition of something of its shape. */
static bool fuse_product_add(struct encoder *e, struct stream *s, struct members *all, uint32_t end)
{
    uint32_t *m = all->node, at = m[0];
    const struct node *product = &s->nodes[at], *add;
    struct array *y = product->out[0], *residual;
    struct quant_job j;
    if (!groups_well(e, product) || !only_between(y)) return false;
    m[1] = reader_of(s, at, end, y);
    if (m[1] == UINT32_MAX || !can_join(s, m, 1, m[1])) return false;
    add = &s->nodes[m[1]];
    if (!is_binary(add, B_add) || add->in[0]->storage == add->in[1]->storage) return false;
    residual = add->in[add->in[0]->storage == y->storage];
    if (!same_view(add->in[residual == add->in[0]], y) || !same_shape(add->out[0], y) || !same_shape(residual, y) ||
        !residual->row ||
        residual->dtype != y->dtype || add->out[0]->dtype != y->dtype) return false;
    quant_open(e, product, &j);
    j.epilogue = QMV_ADD;
    j.residual = residual;
    j.set[0].y = add->out[0];
    qmv_dispatch(e, &j);
    quant_close(&j);
    all->count = 2;
    return true;
}

/* ---- chains of elementwise operations ---- */

/* The undone node between `from` and `to` that writes what an array views; UINT32_MAX where there is none. */
static uint32_t writer_of(const struct stream *s, uint32_t from, uint32_t to, const struct array *a)
{
    for (uint32_t i = to; i-- > from;)
        for (int k = 0; k < s->nodes[i].outputs && !s->nodes[i].done; k++)
            if (s->nodes[i].out[k] && s->nodes[i].out[k]->storage == a->storage) return i;
    return UINT32_MAX;
}

/* Adds node j to a chain whose nodes are `members`, ascending, and before it the nodes that it needs. */
static bool join_chain(struct stream *s, struct chain *c, uint32_t *members, uint32_t j, uint32_t end, int depth)
{
    const struct node *n = &s->nodes[j];
    uint32_t swiglu[3];
    int at;
    if (!chain_takes(n) || !same_shape(n->out[0], c->step[0].out) || (s->device->gate[GATE_SWIGLU] &&
                                                                      find_swiglu(s, j, end, swiglu)))
        return false;
    for (int i = 0; i < n->inputs; i++) {
        uint32_t w = writer_of(s, members[0] + 1, j, n->in[i]);
        bool member = w == UINT32_MAX;
        for (int k = 0; k < c->steps; k++) member = member || members[k] == w;
        if (!member && (!depth || !join_chain(s, c, members, w, end, depth - 1))) return false;
    }
    if (!can_join(s, members, c->steps, j) || !chain_add(c, n)) return false;
    for (at = c->steps - 1; members[at - 1] > j; at--) members[at] = members[at - 1];
    members[at] = j;
    return true;
}

/* Results may take over the memory of operands: a thread reads all that it reads before it writes. */
static void donate_chain(struct encoder *e, const struct chain *c)
{
    struct array *in[3 * CHAIN_STEPS];
    int count = 0;
    for (int i = 0; i < c->steps; i++)
        for (int k = 0; k < c->step[i].inputs; k++)
            if (c->step[i].in[k] < CHAIN_OPERANDS) in[count++] = c->operand[c->step[i].in[k]];
    for (int i = 0; i < c->steps; i++) if (c->step[i].wanted) donate(e, c->step[i].out, in, count);
}

/* Operations with results of one shape that read each other's results: one kernel, made for them. */
static bool fuse_chain(struct encoder *e, struct stream *s, struct members *all, uint32_t end)
{
    uint32_t *m = all->node, at = m[0], kept[CHAIN_STEPS], last = min_u32(end, at + FUSE_WINDOW);
    struct chain c, before;
    if (!has_kernel(e->device, K_BINARY) || !chain_takes(&s->nodes[at])) return false;
    if (reader_of(s, at, end, s->nodes[at].out[0]) == UINT32_MAX) return false;
    c.steps = c.operands = 0;
    if (!chain_add(&c, &s->nodes[at])) return false;
    for (uint32_t j = at + 1; j < last; j++) {
        bool member = s->nodes[j].done || !chain_reads(&c, &s->nodes[j]);
        for (int k = 0; k < c.steps; k++) member = member || m[k] == j;
        if (member) continue;
        before = c;
        memcpy(kept, m, sizeof kept);
        if (!join_chain(s, &c, m, j, end, 2)) { c = before; memcpy(m, kept, sizeof kept); }
    }
    chain_results(&c);
    if (c.steps < 2 || c.results > CHAIN_RESULTS || too_large(e, &c) || !chain_pays(s, &c)) return false;
    donate_chain(e, &c);
    chain_dispatch(e, &c);
    all->count = c.steps;
    return true;
}

/* One row a fusion: tries to plan the nodes that begin with the first member as one; true where it did. */
typedef bool (*fuse_function)(struct encoder *e, struct stream *s, struct members *all, uint32_t end);
static const struct fusion_row { const char *name; enum gate gate; int op; fuse_function apply; } fusion_table[] = {
    { "silu * x", GATE_SWIGLU, OP_ELEMENTWISE, fuse_swiglu },
    { "add + rms_norm", GATE_ADD_RMSNORM, OP_ELEMENTWISE, fuse_add_norm },
    { "rms_norm + rope (+ cache write)", GATE_NORM_ROPE, OP_NORM, fuse_norm_rope },
    { "rope + cache write", GATE_ROPE_CACHE, OP_ROPE, fuse_rope_cache },
    { "products of one x", GATE_QMM_GROUP, OP_QUANTIZED_MATMUL, fuse_products },
    { "product + addition", GATE_QMM_ADD, OP_QUANTIZED_MATMUL, fuse_product_add },
    { "rms_norm + products", GATE_QMM_NORM, OP_NORM, fuse_norm_products },
    { "chain", GATE_CHAINS, OP_ELEMENTWISE, fuse_chain },       /* last: what the others want comes first */
};

static_assert(COUNT(fusion_table) <= FUSIONS_MOST, "a counter for each fusion");
static_assert((int)CHAIN_STEPS <= (int)MEMBERS_MOST, "members of any fusion");

/* Plans a fusion that begins at the first member; e->fusion stays set until the plan is bound. What a limit of the
 * device or the judge refuses leaves nothing behind. */
static bool fuse(struct encoder *e, struct stream *s, struct members *all, uint32_t end)
{
    const struct node *n = &s->nodes[all->node[0]];
    char text[160] = "";
    if ((e->device->noted >> NOTE_FUSED & 1) && n->out[0]) shape_text(n->out[0], text, sizeof text);
    for (size_t i = 0; i < COUNT(fusion_table); i++) {
        const struct fusion_row *f = &fusion_table[i];
        if (f->op != n->op || !s->device->gate[f->gate]) continue;
        e->fusion = (uint32_t)i + 1;
        if (f->apply(e, s, all, end) && !e->code) {
            NOTE(e->device, NOTE_FUSED, f->name, NULL, "%s", text);
            return true;
        }
        plan_clear(e);
        e->code = 0;
    }
    e->fusion = 0;
    return false;
}

static const struct op_row op_table[OP_COUNT] = {
#define X(id, name, member, late) [OP_##id] = { #name, lower_##name, sizeof ((union params *)0)->member, late },
    OPERATIONS(X)
#undef X
};

/* ==== >>replay: windows of the tape that come again =============================================================== */

/* A window that was seen before is planned once more and kept: its nodes as a key, the steps of its groups as the
 * value. A later one that matches, node by node and array by array, is encoded from these, without search, choice or
 * fusion. Arrays and storages are named by the order in which the window first meets them.
 *
 * What may differ (the late half): where a view begins, by multiples of the device's alignment, if nothing that was
 * decided depends on it; the parameter that op_table calls late, which steps say where they push it; contents of
 * literals, unless planning read them. A node that differs otherwise is planned anew if it is a group of its own. */

enum { KEPT_MOST = 48, KEPT_NODES = 1024, OWN_MEMORY = 0x8000, NO_NUMBER = UINT16_MAX };

struct kept_storage {
    struct storage *now;                             /* the one that matched, or a plan's own */
    struct known_buffer known;                       /* where it lay last */
    uint64_t state;                                  /* who reads, writes and owns it, see storage_state */
    size_t nbytes;
    /* planning looked at the contents of a literal, which are others now */
    bool read, differs;
    bool fixed;                                      /* its arrays begin where they did */
    uint8_t bytes[INLINE_BYTES];
};
struct kept_array {
    uint64_t id;                                     /* of the array that matched last, */
    int64_t moved;                                   /* how many bytes behind `offset` it begins, */
    bool changed;                                    /* and whether its layout is another */
    uint8_t ndim;
    uint16_t storage;
    int dtype;
    int64_t offset;
    int shape[MAXD];
    int64_t strides[MAXD];
};
struct kept_node { struct node node; uint16_t group, in[NODE_INPUTS], out[NODE_OUTPUTS]; };   /* arrays by number */
struct kept_group {
    struct members all;
    uint32_t fusion, step, steps, donation, donations;
    bool planned, anew;                              /* planned: there are steps; anew: a node differs this time */
};

/* A step's place in a recorded segment; barrier: one stands in front of it; same: so often in a row all it touches
 * lay where it did before. Where each of its ranges lies is in places, by the numbers of plan.bounds. */
struct kept_step { uint16_t segment; bool barrier; uint8_t same, misses; };
struct place { struct known_buffer known; VkDescriptorBufferInfo range; };
/* value: of its last submission */
struct segment { VkCommandBuffer commands; uint32_t first, count; uint64_t value; };

struct window {
    struct window *next;
    uint64_t hash;
    struct list storages, arrays, nodes, groups, own;   /* own: kept_storage of what plans made for themselves */
    struct list steps, places, segments;             /* kept_step, of plan.steps; place, of plan.bounds; segment */
    struct plan plan;
    bool failed, settling;                           /* settling: steps that may be recorded are not yet */
    bool steady;                                     /* so many may be in a row that memory is wanted where it was */
};

/* ---- segments: steps that are recorded once, in a secondary command buffer ---- */

enum { SEGMENT_MOST = 64, SEGMENT_MISSES = 3 };

/* Ends a segment. Its command buffer is freed when no submission has it. */
static void drop_segment(struct stream *s, struct window *w, struct segment *g)
{
    struct segment *dropped = g->commands ? ADD(s->device, &s->dropped_segments, struct segment) : NULL;
    if (dropped) *dropped = *g;                      /* else it is freed with its pool */
    g->commands = NULL;
    for (uint32_t i = 0; i < g->count; i++) ITEM(w->steps, struct kept_step, g->first + i)->segment = NO_NUMBER;
    g->count = 0;
    w->settling = true;
}

static void free_dropped(struct stream *s)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < s->dropped_segments.count; i++) {
        struct segment g = *ITEM(s->dropped_segments, struct segment, i);
        if (g.value > s->line->completed) *ITEM(s->dropped_segments, struct segment, kept++) = g;
        else s->device->vk.vkFreeCommandBuffers(s->device->handle, s->segment_pool, 1, &g.commands);
    }
    s->dropped_segments.count = kept;
}

/* Records a kept step as it was encoded last. */
static void record_kept(struct encoder *e, const struct window *w, uint32_t at)
{
    const struct step *t = ITEM(w->plan.steps, struct step, at);
    const struct bound *b = ITEM(w->plan.bounds, struct bound, t->first);
    const struct place *place = ITEM(w->places, struct place, t->first);
    VkDescriptorBufferInfo ranges[MAX_BOUND];
    for (uint32_t i = 0; i < t->bounds; i++) ranges[b[i].slot] = place[i].range;
    record_dispatch(e, t, t->pipeline, ranges);
}

static void record_steps(struct encoder *e, const struct window *w, uint32_t first, uint32_t count)
{
    for (uint32_t i = first; i < first + count; i++) {
        if (i > first && ITEM(w->steps, struct kept_step, i)->barrier)
            full_barrier(e, STAGES, STAGES, WRITES, READS | WRITES);
        record_kept(e, w, i);
    }
}

/* Records the held steps one by one: their segment did not come to its end. */
static void give_out_held(struct encoder *e)
{
    uint32_t count = e->held_count;
    e->give_out = NULL;
    e->held_count = 0;
    record_steps(e, e->held_in, e->held, count);
}

static VkCommandBuffer segment_commands(struct stream *s)
{
    struct device *d = s->device;
    VkCommandPoolCreateInfo pool = { .sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                     .queueFamilyIndex = d->queue_family,
                                     .flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT };
    VkCommandBufferAllocateInfo info = { .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                         .commandBufferCount = 1,
                                         .level = VK_COMMAND_BUFFER_LEVEL_SECONDARY };
    VkCommandBufferInheritanceInfo inherited = { .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_INHERITANCE_INFO };
    VkCommandBufferBeginInfo begin = { .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                       .pInheritanceInfo = &inherited,
                                       .flags = VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT };
    VkCommandBuffer commands;
    if (!s->segment_pool && d->vk.vkCreateCommandPool(d->handle, &pool, NULL, &s->segment_pool) < 0) return NULL;
    info.commandPool = s->segment_pool;
    if (d->vk.vkAllocateCommandBuffers(d->handle, &info, &commands) < 0) return NULL;
    if (d->vk.vkBeginCommandBuffer(commands, &begin) >= 0) return commands;
    d->vk.vkFreeCommandBuffers(d->handle, s->segment_pool, 1, &commands);
    return NULL;
}

/* Records steps into a segment of their own. Where that cannot be had, they go on being recorded each time. */
static void record_segment(struct stream *s, struct window *w, uint32_t first, uint32_t count)
{
    struct encoder *e = &s->encoder;
    VkCommandBuffer open = e->commands, commands = w->segments.count < NO_NUMBER ? segment_commands(s) : NULL;
    struct segment *g = commands ? ADD(s->device, &w->segments, struct segment) : NULL;
    if (!commands) return;
    e->commands = commands;
    e->in_use = NULL;
    record_steps(e, w, first, count);
    e->commands = open;
    e->in_use = NULL;
    if (s->device->vk.vkEndCommandBuffer(commands) < 0 || !g) {
        s->device->vk.vkFreeCommandBuffers(s->device->handle, s->segment_pool, 1, &commands);
        if (g) w->segments.count--;
        return;
    }
    *g = (struct segment){ commands, first, count, 0 };
    for (uint32_t i = first; i < first + count; i++)
        ITEM(w->steps, struct kept_step, i)->segment = (uint16_t)(w->segments.count - 1);
}

static bool may_be_recorded(const struct window *w, uint32_t at)
{
    const struct kept_step *k = ITEM(w->steps, struct kept_step, at);
    return k->segment == NO_NUMBER && k->same && k->misses < SEGMENT_MISSES &&
        !ITEM(w->plan.steps, struct step, at)->late_at;
}

/* Records what stayed where it was, behind a replay of the whole window. */
static void record_settled(struct stream *s, struct window *w)
{
    w->settling = false;
    free_dropped(s);
    for (uint32_t first = 0, end; first < w->steps.count; first = end + 1) {
        end = first;
        while (end < w->steps.count && end - first < SEGMENT_MOST && may_be_recorded(w, end)) end++;
        if (end - first >= s->device->segment_least) record_segment(s, w, first, end - first);
        if (end - first == SEGMENT_MOST) end--;
    }
}

/* ---- windows ---- */

static void window_free(struct stream *s, struct window *w)
{
    struct device *d = s->device;
    for (uint32_t i = 0; i < w->segments.count; i++) drop_segment(s, w, ITEM(w->segments, struct segment, i));
    for (uint32_t i = 0; i < w->own.count; i++) {
        struct storage *st = ITEM(w->own, struct kept_storage, i)->now;
        buffer_release(d, st->buffer);
        host_free(d, st);
    }
    host_free(d, w->storages.items);
    host_free(d, w->arrays.items);
    host_free(d, w->nodes.items);
    host_free(d, w->groups.items);
    host_free(d, w->own.items);
    host_free(d, w->steps.items);
    host_free(d, w->places.items);
    host_free(d, w->segments.items);
    plan_free(d, &w->plan);
    host_free(d, w);
}

static void free_windows(struct stream *s)
{
    for (struct window *w = s->windows, *next; w; w = next) { next = w->next; window_free(s, w); }
    s->windows = NULL;
    host_free(s->device, s->dropped_segments.items);
}

/* ---- the key ---- */

static uint64_t window_hash(const struct stream *s, uint32_t count)
{
    uint64_t h = hash_words(0x57494E44, (uint32_t[]){ count, s->node_count }, 2);
    for (uint32_t i = 0; i < s->node_count; i++) {
        const struct node *n = &s->nodes[i];
        h = hash_words(h, (uint32_t[]){ n->op, n->inputs | (uint32_t)n->outputs << 8 | (uint32_t)n->done << 16 }, 2);
    }
    return h;
}

static uint64_t storage_state(const struct storage *st)
{
    return (uint64_t)(uint32_t)st->readers << 32 | (uint64_t)(uint32_t)st->writers << 16 | (st->owned > 0) |
           (st->buffer != NULL) << 1 | st->literal << 2 | (st->failed != 0) << 3 | (uint64_t)storage_shift(st) << 4;
}

static void note_storage(struct kept_storage *k, struct storage *st)
{
    *k = (struct kept_storage){ .now = st, .state = storage_state(st), .nbytes = st->nbytes };
    if (st->literal) memcpy(k->bytes, st->bytes, INLINE_BYTES);
}

static inline bool storage_matches(struct kept_storage *k, struct storage *st)
{
    k->now = st;
    if (k->read) k->differs = memcmp(k->bytes, st->bytes, INLINE_BYTES) != 0;
    return k->state == storage_state(st) && k->nbytes == st->nbytes;
}

static void note_array(struct kept_array *k, const struct array *a)
{
    *k = (struct kept_array){ .id = a->id, .ndim = (uint8_t)a->ndim, .storage = a->storage->number,
                              .dtype = (int)a->dtype, .offset = a->offset };
    memcpy(k->shape, a->shape, sizeof k->shape);
    memcpy(k->strides, a->strides, sizeof k->strides);
}

/* The same but for where it begins, or another layout? */
static bool array_matches(const struct device *d, const struct window *w, struct kept_array *k, const struct array *a)
{
    const struct kept_storage *st = ITEM(w->storages, struct kept_storage, k->storage);
    bool same = true;
    if (k->dtype != (int)a->dtype || k->ndim != a->ndim) return false;
    for (int i = 0; i < a->ndim; i++) same = same && k->shape[i] == a->shape[i] && k->strides[i] == a->strides[i];
    k->id = a->id;
    k->moved = a->offset - k->offset;
    k->changed = !same || st->differs || (k->moved && (st->fixed || k->moved & (int64_t)(d->caps.offset_align - 1)));
    return true;
}

/* Is it the array of that number? Arrays, and storages, are met in the order in which they were. */
static bool match_array(struct device *d, struct window *w, struct array *a, uint16_t number)
{
    struct kept_array *k = ITEM(w->arrays, struct kept_array, number);
    struct storage *st = a->storage;
    if (a->window == d->window) return a->number == number;
    if (number != d->met_arrays) return false;
    if (st->window != d->window) {
        if (k->storage != d->met_storages || !storage_matches(ITEM(w->storages, struct kept_storage, k->storage), st))
            return false;
        st->window = d->window;
        st->number = (uint16_t)d->met_storages++;
    } else if (st->number != k->storage) return false;
    a->window = d->window;
    a->number = (uint16_t)d->met_arrays++;
    return k->id == a->id || array_matches(d, w, k, a);
}

/* Numbers an array of a window that is to be kept; false where there is no memory, or there are too many. */
static bool name_array(struct device *d, struct window *w, struct array *a)
{
    struct storage *st = a->storage;
    struct kept_storage *place = NULL;
    struct kept_array *k;
    if (a->window == d->window) return true;
    if (st->window != d->window) {
        if (w->storages.count == OWN_MEMORY || !(place = ADD(d, &w->storages, struct kept_storage))) return false;
        note_storage(place, st);
        st->window = d->window;
        st->number = (uint16_t)(w->storages.count - 1);
    }
    if (w->arrays.count == NO_NUMBER || !(k = ADD(d, &w->arrays, struct kept_array))) return false;
    note_array(k, a);
    a->window = d->window;
    a->number = (uint16_t)(w->arrays.count - 1);
    return true;
}

static bool name_arrays(struct device *d, struct window *w, struct array *const *a, uint16_t *numbers, int count)
{
    for (int i = 0; i < count; i++) {
        if (a[i] && !name_array(d, w, a[i])) return false;
        numbers[i] = a[i] ? a[i]->number : NO_NUMBER;
    }
    return true;
}

static bool match_arrays(struct device *d, struct window *w, struct array *const *a, const uint16_t *numbers, int count,
                         bool *changed)
{
    for (int i = 0; i < count; i++) {
        if (!a[i] || numbers[i] == NO_NUMBER) {
            if (a[i] || numbers[i] != NO_NUMBER) return false;
            continue;
        }
        if (!match_array(d, w, a[i], numbers[i])) return false;
        *changed |= ITEM(w->arrays, struct kept_array, numbers[i])->changed;
    }
    return true;
}

/* Are parameters the same, but for the late one? */
static bool params_match(int op, const union params *a, const union params *b)
{
    const struct op_row *row = &op_table[op];
    const char *x = (const char *)a, *y = (const char *)b;
    if (!row->late) return !memcmp(x, y, row->params);
    return !memcmp(x, y, row->late) && !memcmp(x + row->late + 4, y + row->late + 4, row->params - row->late - 4);
}

static uint32_t late_of(const struct node *n)
{
    uint32_t value = 0;
    if (op_table[n->op].late) memcpy(&value, (const char *)&n->p + op_table[n->op].late, 4);
    return value;
}

static bool node_matches(struct device *d, struct window *w, struct kept_node *k, const struct node *n)
{
    struct kept_group *g;
    bool changed = false;
    if (k->node.op != n->op || k->node.inputs != n->inputs || k->node.outputs != n->outputs || k->node.done != n->done)
        return false;
    if (n->done) return true;
    if (!match_arrays(d, w, n->in, k->in, n->inputs, &changed) || !match_arrays(d, w, n->out, k->out, n->outputs,
                                                                                &changed)) return false;
    if (!changed && params_match(n->op, &k->node.p, &n->p)) return true;
    /* it was looked at, but not lowered: order depends on storages alone */
    if (k->group == NO_NUMBER) return true;
    g = ITEM(w->groups, struct kept_group, k->group);
    g->anew = true;
    return g->all.count == 1;
}

static void next_window(struct device *d)
{
    d->window++;
    d->met_arrays = d->met_storages = 0;
}

static bool window_matches(struct stream *s, struct window *w)
{
    if (w->nodes.count != s->node_count) return false;
    next_window(s->device);
    for (uint32_t i = 0; i < w->groups.count; i++) {
        struct kept_group *g = ITEM(w->groups, struct kept_group, i);
        g->anew = !g->planned;
    }
    for (uint32_t i = 0; i < s->node_count; i++)
        if (!node_matches(s->device, w, ITEM(w->nodes, struct kept_node, i), &s->nodes[i])) return false;
    return true;
}

/* ---- keeping ---- */

/* A window whose nodes are numbered, to be filled group by group while they are lowered. */
static struct window *window_open(struct stream *s, uint64_t hash)
{
    struct device *d = s->device;
    struct window *w = host_zalloc(d, sizeof *w);
    if (!w) return NULL;
    w->hash = hash;
    next_window(d);
    for (uint32_t i = 0; i < s->node_count && !w->failed; i++) {
        struct kept_node *k = ADD(d, &w->nodes, struct kept_node);
        if (!k) { w->failed = true; break; }
        k->node = s->nodes[i];
        k->group = NO_NUMBER;
        w->failed = !k->node.done && (!name_arrays(d, w, s->nodes[i].in, k->in, k->node.inputs) ||
                                      !name_arrays(d, w, s->nodes[i].out, k->out, k->node.outputs));
    }
    return w;
}

/* The number of a storage that plans made for themselves, with one of the window's in its place. */
static uint16_t own_storage(struct device *d, struct window *w, const struct storage *st, struct list *seen)
{
    struct storage *own;
    struct kept_storage *slot;
    const struct storage **name;
    for (uint32_t i = 0; i < seen->count; i++)
        if (*ITEM(*seen, const struct storage *, i) == st)
            return (uint16_t)(OWN_MEMORY | (w->own.count - seen->count + i));
    own = host_zalloc(d, sizeof *own);
    name = own ? ADD(d, seen, const struct storage *) : NULL;
    slot = name ? ADD(d, &w->own, struct kept_storage) : NULL;
    if (!slot) { host_free(d, own); w->failed = true; return 0; }
    own->refs = 1;
    own->device = d;
    own->nbytes = st->nbytes;
    *name = st;
    *slot = (struct kept_storage){ .now = own };
    w->failed = w->failed || w->own.count >= OWN_MEMORY;
    return (uint16_t)(OWN_MEMORY | (w->own.count - 1));
}

/* Names what a range is of; what nobody can name stays where it is. */
static void name_bound(struct device *d, struct window *w, struct bound *b, struct list *seen)
{
    if (b->kind != BOUND_STORAGE) return;
    if (b->storage->window != d->window) {
        b->storage_number = own_storage(d, w, b->storage, seen);
        b->array_number = 0;
        return;
    }
    b->storage_number = b->storage->number;
    if (b->array_number == NO_NUMBER || ITEM(w->arrays, struct kept_array,
                                             b->array_number)->storage != b->storage_number) {
        ITEM(w->storages, struct kept_storage, b->storage_number)->fixed = true;
        b->array_number = NO_NUMBER;
    }
}

/* In a fusion, arrays that view one storage stay as they are to each other. */
static void fix_views(struct window *w, const struct stream *s, const struct members *all)
{
    struct array *seen[MEMBERS_MOST * (NODE_INPUTS + NODE_OUTPUTS)];
    int count = 0;
    for (int i = 0; i < all->count; i++) {
        const struct node *n = &s->nodes[all->node[i]];
        for (int k = 0; k < n->inputs; k++) if (n->in[k]) seen[count++] = n->in[k];
        for (int k = 0; k < n->outputs; k++) if (n->out[k]) seen[count++] = n->out[k];
    }
    for (int i = 0; i < count; i++)
        for (int k = 0; k < i; k++)
            if (seen[i]->storage == seen[k]->storage && seen[i] != seen[k])
                ITEM(w->storages, struct kept_storage, seen[i]->storage->number)->fixed = true;
}

static void keep_donation(struct window *w, struct donation *n)
{
    n->to_number = n->to->number;
    for (int i = 0; i < n->count; i++) {
        n->from_number[i] = n->from[i]->number;
        ITEM(w->storages, struct kept_storage, n->from_number[i])->fixed = true;
    }
}

/* Copies the plan's steps behind those that are kept. */
static void keep_steps(struct encoder *e, struct window *w, struct kept_group *g, uint32_t late, uint16_t late_node)
{
    struct device *d = e->device;
    const struct plan *p = &e->plan;
    struct list seen = { 0 };
    uint32_t first = w->plan.bounds.count;
    struct step *steps = list_add(d, &w->plan.steps, sizeof *steps, p->steps.count);
    struct bound *bounds = list_add(d, &w->plan.bounds, sizeof *bounds, p->bounds.count);
    struct donation *donations = list_add(d, &w->plan.donations, sizeof *donations, p->donations.count);
    struct kept_step *kept = list_add(d, &w->steps, sizeof *kept, p->steps.count);
    struct place *places = list_add(d, &w->places, sizeof *places, p->bounds.count);
    if (!steps || !bounds || !donations || !kept || !places) { w->failed = true; return; }
    for (uint32_t i = 0; i < p->steps.count; i++) kept[i] = (struct kept_step){ .segment = NO_NUMBER };
    memset(places, 0, p->bounds.count * sizeof *places);
    memcpy(steps, p->steps.items, p->steps.count * sizeof *steps);
    memcpy(bounds, p->bounds.items, p->bounds.count * sizeof *bounds);
    if (p->donations.count) memcpy(donations, p->donations.items, p->donations.count * sizeof *donations);
    for (uint32_t i = 0; i < p->bounds.count && !w->failed; i++) {
        w->failed = bounds[i].kind == BOUND_TABLE || bounds[i].kind == BOUND_BUFFER;
        name_bound(d, w, &bounds[i], &seen);
    }
    for (uint32_t i = p->bounds.count; i-- > 0 && !w->failed;) {       /* what of its own is used for the last time? */
        bool again = false;
        for (uint32_t k = i + 1; k < p->bounds.count; k++)
            again = again || (bounds[k].kind == BOUND_STORAGE && bounds[k].storage_number == bounds[i].storage_number);
        bounds[i].last = bounds[i].kind == BOUND_STORAGE && bounds[i].storage_number & OWN_MEMORY && !again;
    }
    for (uint32_t i = 0; i < p->steps.count && !w->failed; i++) {
        uint32_t word;
        steps[i].first += first;
        steps[i].pipeline = pipeline_of(e, &steps[i]);
        w->failed = w->failed || !steps[i].pipeline;
        if (!steps[i].late_at) continue;
        memcpy(&word, steps[i].push + steps[i].late_at - 4, 4);
        steps[i].late_plus = word - late;
        steps[i].late_node = late_node;
    }
    for (uint32_t i = 0; i < p->donations.count && !w->failed; i++) keep_donation(w, &donations[i]);
    g->planned = true;
    host_free(d, seen.items);
}

/* Keeps the group that was planned, before its plan is bound. */
static void keep_group(struct stream *s, const struct members *all)
{
    struct encoder *e = &s->encoder;
    struct window *w = s->keeping;
    struct kept_group *g = ADD(s->device, &w->groups, struct kept_group);
    uint32_t late = 0;
    uint16_t late_node = 0;
    bool tables = e->plan.tables.count > 0;
    if (e->code || !g || w->groups.count == NO_NUMBER) { w->failed = true; return; }
    *g = (struct kept_group){ .all = *all, .fusion = e->fusion,
                              .step = w->plan.steps.count, .steps = e->plan.steps.count,
                              .donation = w->plan.donations.count, .donations = e->plan.donations.count };
    for (int i = 0; i < all->count; i++) {
        const struct node *n = &s->nodes[all->node[i]];
        struct kept_node *k = ITEM(w->nodes, struct kept_node, all->node[i]);
        k->group = (uint16_t)(w->groups.count - 1);
        if (op_table[n->op].late) { late = late_of(n); late_node = (uint16_t)all->node[i]; }
        for (int j = 0; j < n->inputs; j++)
            if (n->in[j] && n->in[j]->storage->read)
                ITEM(w->storages, struct kept_storage, n->in[j]->storage->number)->read = true;
    }
    if (all->count > 1) fix_views(w, s, all);
    if (tables && all->count == 1) g->steps = g->donations = 0;        /* planned each time */
    else if (!w->failed) keep_steps(e, w, g, late, late_node);
}

/* ---- encoding what was kept ---- */

static struct kept_storage *named(const struct window *w, uint16_t number)
{
    return number & OWN_MEMORY ? ITEM(w->own, struct kept_storage, number & ~OWN_MEMORY)
        : ITEM(w->storages, struct kept_storage, number);
}

static struct storage *named_storage(const struct window *w, uint16_t number) { return named(w, number)->now; }

/* The memory of a kept range, if it can be the same as last time. */
static struct buffer *kept_memory(struct encoder *e, const struct window *w, struct kept_storage *k, struct bound *b)
{
    struct storage *st = b->storage = k->now;
    if (w->steady && !st->buffer && b->write && !st->literal)
        st->buffer = buffer_again(e->device, &k->known, st->nbytes, e->stream->line);
    if (!st->buffer && !bound_buffer(e, b)) return NULL;
    k->known = (struct known_buffer){ st->buffer, st->buffer->serial };
    return st->buffer;
}

/* Where a kept range lies now; false: elsewhere than last time. */
static bool place_kept(struct encoder *e, const struct window *w, const struct bound *b, struct place *place)
{
    struct bound now = *b;
    struct place is;
    if (b->kind == BOUND_STORAGE) {
        bool moves = b->array_number != NO_NUMBER && !(b->storage_number & OWN_MEMORY);
        int64_t moved = moves ? ITEM(w->arrays, struct kept_array, b->array_number)->moved : 0;
        now.low += moved;
        now.high += moved;
        is.known.buffer = kept_memory(e, w, named(w, b->storage_number), &now);
    } else is.known.buffer = bound_buffer(e, &now);
    if (!is.known.buffer) return false;
    is.known.serial = is.known.buffer->serial;
    is.range = place_bound(&now, is.known.buffer);
    if (place->known.serial == is.known.serial && place->range.offset == is.range.offset &&
        place->range.range == is.range.range)
        return true;
    *place = is;
    return false;
}

/* Holds a step back that its segment has recorded as it is now: the segment is executed when its last step has come.
 * barrier: the step needs one in front; the first one's is not in the segment. */
static bool hold_step(struct encoder *e, struct window *w, uint32_t at, bool barrier)
{
    struct kept_step *k = ITEM(w->steps, struct kept_step, at);
    struct segment *g = k->segment == NO_NUMBER ? NULL : ITEM(w->segments, struct segment, k->segment);
    const struct step *t = ITEM(w->plan.steps, struct step, at);
    if (e->give_out && at != e->held + e->held_count) e->give_out(e);
    if (!g || (at != g->first && (!e->give_out || barrier != k->barrier))) return false;
    if (at == g->first) {
        if (barrier) encoder_barrier(e);
        e->held_in = w;
        e->held = at;
        e->give_out = give_out_held;
    } else if (barrier) {
        e->live_count = 0;
        e->device->stats.barriers++;
    }
    pending_to_live(e);
    count_dispatch(e, t, t->pipeline);
    if (++e->held_count < g->count) return true;
    e->give_out = NULL;
    e->held_count = 0;
    e->in_use = NULL;
    g->value = e->stream->line->open;
    e->device->stats.recorded += g->count;
    e->device->vk.vkCmdExecuteCommands(e->commands, 1, &g->commands);
    return true;
}

/* The step is not what its segment has recorded. */
static void miss_step(struct encoder *e, struct window *w, uint32_t at)
{
    struct kept_step *k = ITEM(w->steps, struct kept_step, at);
    k->same = 0;
    if (k->segment == NO_NUMBER) return;
    if (e->give_out) e->give_out(e);
    k->misses++;
    drop_segment(e->stream, w, ITEM(w->segments, struct segment, k->segment));
}

/* Encodes a step whose places are known. */
static void encode_kept(struct encoder *e, const struct window *w, uint32_t at, bool barrier)
{
    struct step *t = ITEM(w->plan.steps, struct step, at);
    if (e->give_out) e->give_out(e);
    if (barrier) encoder_barrier(e);
    pending_to_live(e);
    ITEM(w->steps, struct kept_step, at)->barrier = barrier;
    if (t->late_at) {
        uint32_t word = late_of(&e->stream->nodes[t->late_node]) + t->late_plus;
        memcpy(t->push + t->late_at - 4, &word, 4);
    }
    record_kept(e, w, at);
    if (!e->code) count_dispatch(e, t, t->pipeline);
}

static void replay_step(struct encoder *e, struct window *w, uint32_t at)
{
    const struct step *t = ITEM(w->plan.steps, struct step, at);
    const struct bound *b = ITEM(w->plan.bounds, struct bound, t->first);
    struct place *place = ITEM(w->places, struct place, t->first);
    struct kept_step *k = ITEM(w->steps, struct kept_step, at);
    bool same = true;
    e->pending_count = 0;
    for (uint32_t i = 0; i < t->bounds && !e->code; i++) same = place_kept(e, w, &b[i], &place[i]) && same;
    for (uint32_t i = 0; i < t->bounds && !e->code; i++)
        encoder_access(e, place[i].known.buffer, place[i].range.offset, place[i].range.offset + place[i].range.range,
                       b[i].write);
    if (ready_to_record(e)) {
        bool barrier = find_hazard(e);
        if (!same || !hold_step(e, w, at, barrier)) {
            if (!same || k->segment != NO_NUMBER) miss_step(e, w, at);
            else if (!k->same) { k->same = 1; w->settling = true; }
            encode_kept(e, w, at, barrier);
        }
    }
    for (uint32_t i = 0; i < t->bounds; i++)
        if (b[i].last) {
            struct storage *st = named_storage(w, b[i].storage_number);
            buffer_release(e->device, st->buffer);
            st->buffer = NULL;
        }
}

static void replay_group(struct encoder *e, struct window *w, const struct kept_group *g)
{
    uint32_t skip_to = 0, at = 0;
    for (uint32_t i = 0; i < g->steps; i++) {
        for (; at < g->donations; at++) {
            struct donation n = *ITEM(w->plan.donations, struct donation, g->donation + at);
            if (n.before > i) break;
            n.to = named_storage(w, n.to_number);
            for (int k = 0; k < n.count; k++) n.from[k] = named_storage(w, n.from_number[k]);
            if (!e->code && donate_memory(e, &n)) skip_to = n.skip_to;
        }
        if (i >= skip_to && !e->code) { replay_step(e, w, g->step + i); maybe_commit(e->stream); }
    }
}

/* Encodes a window that matches. */
static void window_replay(struct stream *s, struct window *w)
{
    struct encoder *e = &s->encoder;
    bool failures = false;                           /* the key says that there were none before */
    for (uint32_t i = 0; i < w->groups.count; i++) {
        const struct kept_group *g = ITEM(w->groups, struct kept_group, i);
        for (int k = 0; k < g->all.count && failures; k++) check_operands(e, &s->nodes[g->all.node[k]]);
        e->fusion = g->fusion;
        if (!g->anew) replay_group(e, w, g);
        else if (!e->code) {
            for (uint32_t k = 0; k < g->steps; k++) miss_step(e, w, g->step + k);
            e->fusion = 0;
            op_table[s->nodes[g->all.node[0]].op].lower(e, &s->nodes[g->all.node[0]]);
            bind_plan(e);
        }
        failures = failures || e->code;
        s->device->stats.replayed += (uint64_t)g->all.count;
        group_done(s, &g->all);
    }
    if (e->give_out) e->give_out(e);
    if (w->settling && w->steady && !e->code) record_settled(s, w);
    s->device->group++;
}

/* The kept window that the tape's nodes are; in front of the list from then on. */
static struct window *find_window(struct stream *s, uint64_t hash)
{
    for (struct window **link = &s->windows; *link; link = &(*link)->next) {
        struct window *w = *link;
        if (w->hash != hash || !window_matches(s, w)) continue;
        *link = w->next;
        w->next = s->windows;
        return s->windows = w;
    }
    return NULL;
}

/* Encodes the first `count` nodes from a kept window, or says that what follows is to be kept: from the second time
 * on. */
static bool replay(struct stream *s, uint32_t count)
{
    struct device *d = s->device;
    uint64_t hash;
    struct window *w;
    s->keeping = NULL;
    s->undecided = false;
    if (!d->gate[GATE_REPLAY] || d->noted || s->node_count > KEPT_NODES || s->encoder.code) return false;
    hash = window_hash(s, count);
    w = find_window(s, hash);
    if (w) { window_replay(s, w); return true; }
    if (s->seen_windows[hash % SEEN_WINDOWS] == (uint32_t)(hash >> 32)) s->keeping = window_open(s, hash);
    s->seen_windows[hash % SEEN_WINDOWS] = (uint32_t)(hash >> 32);
    return false;
}

/* Are there means to record anything for longer than a submission, and so many steps in a row that look alike each
 * time? */
static bool is_steady(const struct stream *s, const struct window *w)
{
    const struct device *d = s->device;
    uint32_t run = 0;
    if (!d->segment_least || !d->caps.push_descriptor || d->gate[GATE_PROFILE] || d->gate[GATE_NO_BARRIERS])
        return false;
    for (uint32_t i = 0; i < w->plan.steps.count && run < d->segment_least; i++)
        run = ITEM(w->plan.steps, struct step, i)->late_at ? 0 : run + 1;
    return run >= d->segment_least;
}

/* Ends the keeping of a window that was lowered. */
static void window_keep(struct stream *s)
{
    struct window *w = s->keeping, **link = &s->windows;
    uint32_t count = 0;
    s->keeping = NULL;
    if (!w) return;
    if (w->failed || s->undecided) { window_free(s, w); return; }
    w->steady = is_steady(s, w);
    w->next = s->windows;
    s->windows = w;
    while (*link && count++ < KEPT_MOST) link = &(*link)->next;
    if (*link) { window_free(s, *link); *link = NULL; }
}

static const struct passes passes = { replay, fuse, keep_group, window_keep, free_windows };

/* ==== >>public: devices =========================================================================================== */

/* lock comes before those of devices, handler_lock (of what stands behind it) after them. */
static struct {
    mutex lock, handler_lock;
    struct device *device;
    mlxvk_error_handler_func handler;                /* mlxvk_set_error_handler */
    void *data;
    void (*dtor)(void *);
} the_default = { .lock = MUTEX_INIT, .handler_lock = MUTEX_INIT };

static int create_layouts(struct device *d)
{
    VkDescriptorSetLayoutBinding b[MAX_BINDINGS];
    const VkPushConstantRange push = { VK_SHADER_STAGE_COMPUTE_BIT, 0, PUSH_SIZE };
    for (uint32_t i = 0; i < MAX_BINDINGS; i++)
        b[i] = (VkDescriptorSetLayoutBinding){ .binding = i, .descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                                               .descriptorCount = 1, .stageFlags = VK_SHADER_STAGE_COMPUTE_BIT };
    for (uint32_t n = 0; n <= d->caps.max_bindings; n++) {
        const VkDescriptorSetLayoutCreateInfo set = {
            .sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO, .bindingCount = n, .pBindings = b,
            .flags = d->caps.push_descriptor ? VK_DESCRIPTOR_SET_LAYOUT_CREATE_PUSH_DESCRIPTOR_BIT_KHR : 0 };
        const VkPipelineLayoutCreateInfo layout = {
            .sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO, .setLayoutCount = 1,
            .pSetLayouts = &d->set_layouts[n], .pushConstantRangeCount = 1, .pPushConstantRanges = &push };
        VkResult r = d->vk.vkCreateDescriptorSetLayout(d->handle, &set, NULL, &d->set_layouts[n]);
        if (r >= 0) r = d->vk.vkCreatePipelineLayout(d->handle, &layout, NULL, &d->layouts[n]);
        if (r < 0) return vk_code(d, r);
    }
    return 0;
}

static int create_pipeline_cache(struct device *d, const mlxvk_device_desc *desc)
{
    const VkPipelineCacheCreateInfo info = { .sType = VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO,
        .initialDataSize = desc ? desc->pipeline_cache_size : 0, .pInitialData = desc ? desc->pipeline_cache : NULL };
    return vk_code(d, d->vk.vkCreatePipelineCache(d->handle, &info, NULL, &d->pipeline_cache));
}

static size_t working_set(const struct device *d) { return d->caps.memory_size / 20 * 19; }

/* Mesa (22.3) looks at the semaphores that a submission waited for once more after it has signalled. */
static void settle(struct device *d)
{
    if (d->lost) return;
    if (!d->adopted) { d->vk.vkDeviceWaitIdle(d->handle); return; }
    lock_queue(d);
    d->vk.vkQueueWaitIdle(d->queues[0]);
    unlock_queue(d);
}

static void destroy_objects(struct device *d)
{
    while (d->streams) { stream_drain(d->streams); stream_destroy(d->streams); }
    settle(d);
    reap_events(d, true);
    cache_trim(d, SIZE_MAX, true);
    for (int use = 0; use < MEMORY_USES; use++)
        for (struct buffer *b; (b = d->staging[use]) != NULL; staging_destroy(d, b)) d->staging[use] = b->bin_next;
    while (d->blocks) block_destroy(d, d->blocks);
    for (uint32_t i = 0; i < d->pipelines.slots; i++) {
        struct pipeline *p = d->pipelines.items[i];
        if (p) d->vk.vkDestroyPipeline(d->handle, p->handle, NULL);
        host_free(d, p);
    }
    host_free(d, d->pipelines.items);
    free_chains(d);
    pool_free(d, &d->array_pool);
    pool_free(d, &d->storage_pool);
    pool_free(d, &d->buffer_pool);
    for (int i = 0; i < KERNEL_COUNT; i++) d->vk.vkDestroyShaderModule(d->handle, d->modules[i], NULL);
    for (int i = 0; i <= MAX_BINDINGS; i++) {
        d->vk.vkDestroyPipelineLayout(d->handle, d->layouts[i], NULL);
        d->vk.vkDestroyDescriptorSetLayout(d->handle, d->set_layouts[i], NULL);
    }
    d->vk.vkDestroyPipelineCache(d->handle, d->pipeline_cache, NULL);
    for (uint32_t i = 0; i < d->timeline_count; i++) {
        d->vk.vkDestroySemaphore(d->handle, d->timelines[i]->semaphore, NULL);
        host_free(d, d->timelines[i]);
    }
    host_free(d, d->timelines);
}

static void device_destroy(struct device *d)
{
    print_notes(d);
    free_notes(d);
    if (d->handle) {
        mutex_lock(&d->lock);
        destroy_objects(d);
        mutex_unlock(&d->lock);
        if (!d->adopted) d->vk.vkDestroyDevice(d->handle, NULL);
    }
    if (d->instance && !d->adopted) d->destroy_instance(d->instance, NULL);
    host_free(d, d);
}

/* Ends of a call with its code: where it has a reference to the device, and where it only has the lock. */
static int drop_with(struct device *d, int code)
{
    unlock_and_drop(d);
    return code;
}

static int unlock_with(struct device *d, int code)
{
    mutex_unlock(&d->lock);
    return code;
}

/* What a call gives away, where somebody takes it: its code. */
#define GIVE(res, value) ((res) ? (*(res) = (value), 0) : MLXVK_ERROR_ARGUMENT)

/* Ends a call that may have dropped the device's last reference. */
static void unlock_and_release(struct device *d)
{
    bool last = d->refs == 0;
    mutex_unlock(&d->lock);
    if (last) device_destroy(d);
}

/* The same for the reference that the call itself has, or the handle that it frees. */
static int unlock_and_drop(struct device *d)
{
    d->refs--;
    unlock_and_release(d);
    return 0;
}

/* What executing a secondary command buffer costs the GPU (an NVIDIA H200: 1.7 us where the queue family has no
 * graphics, 3.5 us where it has) must be less than what recording its steps costs the host. */
static uint32_t least_segment(const struct device *d)
{
    VkQueueFamilyProperties f[32];
    uint32_t n = COUNT(f);
    int gate = d->gate[GATE_SEGMENTS];
    if (gate) return gate < 0 ? 0 : (uint32_t)gate;
    vkGetPhysicalDeviceQueueFamilyProperties(d->physical, &n, f);
    return d->tuning->segment[d->queue_family < n && f[d->queue_family].queueFlags & VK_QUEUE_GRAPHICS_BIT];
}

int mlxvk_device_create(mlxvk_device *res, const mlxvk_device_desc *desc)
{
    mlxvk_error local = { 0 }, *error = desc && desc->error ? desc->error : &local;
    mlxvk_allocator a = { 0 };
    struct device *d;
    int code;
    if (!res) { set_error(error, MLXVK_ERROR_ARGUMENT, 0, __LINE__, "device", "res is NULL"); return error->code; }
    if (desc) a = desc->allocator;
    d = a.allocate ? a.allocate(sizeof *d, a.user) : malloc(sizeof *d);
    if (!d) {
        set_error(error, MLXVK_ERROR_HOST_MEMORY, 0, __LINE__, "device", "out of host memory");
        return error->code;
    }
    memset(d, 0, sizeof *d);
    d->refs = 1;
    d->lock = d->event_lock = (mutex)MUTEX_INIT;
    d->allocator = a;
    if (desc) { d->on_error = d->own_on_error = desc->on_error; d->user = desc->user; }
    read_gates(d->gate, d->wanted, desc ? desc->gates : NULL, desc ? desc->name : NULL);
    d->noted = noted_families(d->gate);
    mutex_lock(&volk_lock);
    code = desc && desc->adopt ? adopt_device(d, desc->adopt, error) : open_device(d, error);
    if (!code) d->segment_least = least_segment(d);
    mutex_unlock(&volk_lock);
    if (!code) code = create_layouts(d);
    if (!code) code = create_pipeline_cache(d, desc);
    if (code) {
        if (!error->code) set_error(error, code, 0, __LINE__, "device", "%s could not be set up", d->caps.name);
        if (d->on_error) d->on_error(error, d->user);
        device_destroy(d);
        return code;
    }
    d->memory_limit = d->cache_limit = working_set(d);
    if (res->ctx) mlxvk_device_free(*res);
    res->ctx = d;
    return 0;
}

static void call_handler(const mlxvk_error *error, void *user)
{
    (void)user;
    mutex_lock(&the_default.handler_lock);
    if (the_default.handler) the_default.handler(error->text, the_default.data);
    mutex_unlock(&the_default.handler_lock);
}

/* The errors of the default device go to the handler, where there is one. */
static void choose_handler(struct device *d, bool is_default)
{
    if (!d) return;
    mutex_lock(&the_default.handler_lock);
    bool handled = is_default && the_default.handler;
    mutex_unlock(&the_default.handler_lock);
    mutex_lock(&d->lock);
    d->on_error = handled ? call_handler : d->own_on_error;
    mutex_unlock(&d->lock);
}

static void print_default(void) { if (the_default.device) print_notes(the_default.device); }

/* Its lock is held. */
static struct device *make_default(void)
{
    mlxvk_device handle = { NULL };
    if (the_default.device || mlxvk_device_create(&handle, NULL)) return the_default.device;
    the_default.device = handle.ctx;
    choose_handler(the_default.device, true);
    if (the_default.device->noted) atexit(print_default);              /* it is never destroyed */
    return the_default.device;
}

static struct device *default_device(void)
{
    mutex_lock(&the_default.lock);
    struct device *d = make_default();
    mutex_unlock(&the_default.lock);
    return d;
}

static struct device *device_or_default(mlxvk_device device) { return device.ctx ? device.ctx : default_device(); }

static struct device *lock_device(struct device *d)
{
    if (d) mutex_lock(&d->lock);
    else {                                           /* both locks: or mlxvk_set_default_device might end it between */
        mutex_lock(&the_default.lock);
        if ((d = make_default()) != NULL) mutex_lock(&d->lock);
        mutex_unlock(&the_default.lock);
    }
    if (d) d->refs++;
    return d;
}

/* One more handle for the device, or the default one. */
static struct device *keep_device(struct device *d)
{
    d = lock_device(d);
    if (d) mutex_unlock(&d->lock);
    return d;
}

mlxvk_device mlxvk_device_new(void) { return (mlxvk_device){ keep_device(NULL) }; }

int mlxvk_device_free(mlxvk_device device)
{
    struct device *d = device.ctx;
    if (!d) return 0;
    mutex_lock(&d->lock);
    return unlock_and_drop(d);
}

int mlxvk_device_error(mlxvk_device device, mlxvk_error *error)
{
    struct device *d = error ? lock_device(device.ctx) : NULL;
    return d ? drop_with(d, GIVE(error, d->error)) : MLXVK_ERROR_ARGUMENT;
}

int mlxvk_device_status(mlxvk_device device)
{
    struct device *d = lock_device(device.ctx);
    return d ? drop_with(d, d->lost) : MLXVK_ERROR_NO_DEVICE;
}

/* Lists the physical devices of a fresh instance; the caller's function may call the library. */
int mlxvk_device_list(void (*each)(int index, const char *name, const char *type, void *user), void *user)
{
    mlxvk_error error;
    VkInstance instance;
    VkPhysicalDevice list[32];
    VkPhysicalDeviceProperties p[COUNT(list)];
    bool good[COUNT(list)] = { false };
    uint32_t n = COUNT(list);
    if (!each) return MLXVK_ERROR_ARGUMENT;
    mutex_lock(&volk_lock);
    int code = load_vulkan(NULL, &error);
    if (!code) code = create_instance(&instance, &error);
    if (!code) {
        if (vkEnumeratePhysicalDevices(instance, &n, list) < 0) n = 0;
        for (uint32_t i = 0; i < n; i++) good[i] = usable(list[i], &p[i]);
        vkDestroyInstance(instance, NULL);
    }
    mutex_unlock(&volk_lock);
    for (uint32_t i = 0; i < COUNT(list); i++)
        if (good[i]) each((int)i, p[i].deviceName, type_name(p[i].deviceType), user);
    return code;
}

static void count_device(int index, const char *name, const char *type, void *user)
{
    (void)index, (void)name, (void)type;
    ++*(int *)user;
}

int mlxvk_device_count(int *count, mlxvk_device_type type)
{
    if (!count) return MLXVK_ERROR_ARGUMENT;
    *count = 0;
    if (type == MLXVK_GPU) mlxvk_device_list(count_device, count);
    return 0;
}

bool mlxvk_is_available(void)
{
    int count = 0;
    return !mlxvk_device_count(&count, MLXVK_GPU) && count > 0;
}

/* What is known of a device beside its capabilities, by name. */
#define INFO_STRINGS(X) \
    X("device_name", c->name) X("driver", c->driver) X("architecture", c->architecture) X("type", type_name(c->type))
#define INFO_SIZES(X) \
    X("max_buffer_length", c->max_allocation) X("max_recommended_working_set_size", working_set(d)) \
    X("memory_size", c->memory_size) X("cached", c->cached) X("subgroup_size", c->subgroup) \
    X("max_storage_buffer_range", c->max_range) X("shared_memory_size", c->shared_memory) X("unified", c->mapped) \
    X("push_descriptor", c->push_descriptor) X("storage_buffer_alignment", c->offset_align) \
    X("subgroup_size_least", c->subgroup_least) X("subgroup_size_most", c->subgroup_most) \
    X("max_threads", c->max_threads) X("max_storage_buffers", c->max_bindings) \
    X("cooperative_matrix_size", c->coopmat_size[0] ? c->coopmat_size[0] : c->coopmat_size[1])

int mlxvk_device_info_get_string(const char **value, mlxvk_device device, const char *key)
{
    const struct device *d = device_or_default(device);
    if (!d || !value || !key) return MLXVK_ERROR_ARGUMENT;
    const struct capabilities *c = &d->caps;
#define X(name, text) if (!strcmp(key, name)) { *value = text; return 0; }
    INFO_STRINGS(X)
#undef X
    return MLXVK_ERROR_ARGUMENT;
}

int mlxvk_device_info_get_size(size_t *value, mlxvk_device device, const char *key)
{
    const struct device *d = device_or_default(device);
    if (!d || !value || !key) return MLXVK_ERROR_ARGUMENT;
    const struct capabilities *c = &d->caps;
#define X(name, size) if (!strcmp(key, name)) { *value = size; return 0; }
    INFO_SIZES(X)
#undef X
    for (int i = 0; i < CAPABILITY_COUNT; i++)
        if (!strcmp(key, capability_names[i])) { *value = c->bits >> i & 1; return 0; }
    return MLXVK_ERROR_ARGUMENT;
}

int mlxvk_pipeline_cache_data(mlxvk_device device, void *data, size_t *size)
{
    struct device *d = size ? lock_device(device.ctx) : NULL;
    if (!d) return MLXVK_ERROR_ARGUMENT;
    VkResult r = d->vk.vkGetPipelineCacheData(d->handle, d->pipeline_cache, size, data);
    return drop_with(d, r == VK_INCOMPLETE ? MLXVK_ERROR_ARGUMENT : vk_code(d, r));
}

/* ==== >>public: memory ============================================================================================ */

/* Keeps at most so many bytes of freed buffers. Those in flight are waited for without the lock. */
static void cache_keep(struct device *d, size_t most)
{
    if (d->cached > most) cache_trim(d, d->cached - most, false);
    if (d->cached <= most) return;
    wait_streams(d);
    if (d->cached > most) cache_trim(d, d->cached - most, false);
}

/* One member of the device, read and where `set` is given changed, under the lock. */
static int memory_value(mlxvk_device device, size_t *res, size_t member, const size_t *set)
{
    struct device *d = lock_device(device.ctx);
    if (!d) return MLXVK_ERROR_NO_DEVICE;
    size_t *field = (size_t *)(void *)((char *)d + member);
    cache_keep(d, d->cache_limit);
    if (res) *res = *field;
    if (set) *field = *set;
    if (d->cached > d->cache_limit) cache_trim(d, d->cached - d->cache_limit, false);
    return unlock_and_drop(d);
}

/* mlx-c's forms name no device: the default one's. */
#define DEFAULT ((mlxvk_device){ NULL })
#define X(of_default, of_device, member) \
    int of_device(size_t *res, mlxvk_device d) { return memory_value(d, res, offsetof(struct device, member), NULL); } \
    int of_default(size_t *res) { return of_device(res, DEFAULT); }
X(mlxvk_get_active_memory, mlxvk_device_get_active_memory, active)
X(mlxvk_get_peak_memory, mlxvk_device_get_peak_memory, peak)
X(mlxvk_get_cache_memory, mlxvk_device_get_cache_memory, cached)
X(mlxvk_get_memory_limit, mlxvk_device_get_memory_limit, memory_limit)
#undef X
#define X(of_default, of_device, member) \
    int of_device(size_t *res, size_t limit, mlxvk_device d) \
    { \
        return memory_value(d, res, offsetof(struct device, member), &limit); \
    } \
    int of_default(size_t *res, size_t limit) { return of_device(res, limit, DEFAULT); }
X(mlxvk_set_memory_limit, mlxvk_device_set_memory_limit, memory_limit)
X(mlxvk_set_cache_limit, mlxvk_device_set_cache_limit, cache_limit)
#undef X

int mlxvk_device_reset_peak_memory(mlxvk_device d)
{
    return memory_value(d, NULL, offsetof(struct device, peak), &(size_t){ 0 });
}
int mlxvk_reset_peak_memory(void) { return mlxvk_device_reset_peak_memory(DEFAULT); }

int mlxvk_device_set_wired_limit(size_t *res, size_t limit, mlxvk_device device)
{
    struct device *d = lock_device(device.ctx);
    if (!d) return MLXVK_ERROR_NO_DEVICE;
    if (limit > working_set(d))
        return drop_with(d, device_fail(d, MLXVK_ERROR_ARGUMENT, 0, __LINE__, "set_wired_limit",
                                        "%zu is over the recommended working set", limit));
    unlock_and_drop(d);
    return memory_value(device, res, offsetof(struct device, wired_limit), &limit);
}
int mlxvk_set_wired_limit(size_t *res, size_t limit) { return mlxvk_device_set_wired_limit(res, limit, DEFAULT); }

int mlxvk_device_clear_cache(mlxvk_device device)
{
    struct device *d = lock_device(device.ctx);
    if (!d) return MLXVK_ERROR_NO_DEVICE;
    cache_keep(d, 0);
    staging_trim(d);
    return unlock_and_drop(d);
}
int mlxvk_clear_cache(void) { return mlxvk_device_clear_cache(DEFAULT); }
#undef DEFAULT

/* Ends a call that gives a buffer away. What the handle held may be of another device: it is freed without the lock. */
static int give_buffer(struct device *d, mlxvk_buffer *res, struct buffer *b, int code)
{
    mlxvk_buffer old = { NULL };
    if (!code) { old = *res; res->ctx = b; d->refs++; }
    unlock_and_drop(d);
    mlxvk_buffer_free(old);
    return code;
}

int mlxvk_buffer_new(mlxvk_buffer *res, size_t size, mlxvk_device device)
{
    struct device *d = res ? lock_device(device.ctx) : NULL;
    struct buffer *b = NULL;
    if (!d) return MLXVK_ERROR_ARGUMENT;
    int code = d->lost ? d->lost : buffer_allocate(d, size, NULL, &b);
    if (code)
        device_fail(d, code, 0, __LINE__, "buffer", "%zu bytes are not to be had (largest allocation %zu)", size,
                    d->caps.max_allocation);
    return give_buffer(d, res, b, code);
}

int mlxvk_buffer_adopt(mlxvk_buffer *res, uint64_t vk_buffer, size_t offset, size_t size, void *mapped,
                       mlxvk_device device)
{
    struct device *d = res ? lock_device(device.ctx) : NULL;
    if (!d) return MLXVK_ERROR_ARGUMENT;
    if ((offset + size) % 4 && CAP_SMALL & ~d->caps.bits)              /* words are all that shaders see there */
        return drop_with(d, device_fail(d, MLXVK_ERROR_ARGUMENT, 0, __LINE__, "buffer_adopt",
                                        "on a device without 8- and 16-bit storage memory must end at a multiple of 4 "
                                        "bytes, not at %zu", offset + size));
    struct buffer *b = buffer_new(d);
    if (!b)
        return drop_with(d, device_fail(d, MLXVK_ERROR_HOST_MEMORY, 0, __LINE__, "buffer_adopt", "out of host memory"));
    memcpy(&b->handle, &vk_buffer, sizeof b->handle);
    b->refs = 1;
    b->offset = offset;
    b->size = b->bytes = size;
    b->map = mapped;
    d->active += size;
    return give_buffer(d, res, b, 0);
}

size_t mlxvk_buffer_size(mlxvk_buffer buffer) { return buffer.ctx ? ((struct buffer *)buffer.ctx)->bytes : 0; }
void *mlxvk_buffer_data(mlxvk_buffer buffer) { return buffer.ctx ? ((struct buffer *)buffer.ctx)->map : NULL; }

/* Blocks until the buffer's submitted uses (or only its writes) are done, submitting what is recorded. The lock is held
 * on entry and on return, but not while waiting. */
static int wait_buffer(struct device *d, struct buffer *b, bool writes_only)
{
    struct use uses[MAX_WAITS];
    int n = MAX_WAITS, code = 0;
    if (!b) return 0;
    b->refs++;
    while (n == MAX_WAITS && !code) {                /* there may be more */
        n = 0;
        for (int i = 0; i < b->use_count && n < MAX_WAITS && !code; i++) {
            struct use u = b->uses[i];
            if ((writes_only && !u.write) || u.value <= u.line->completed) continue;
            if (u.value > u.line->submitted && u.line->stream) code = stream_submit(u.line->stream);
            /* it never will be: the queue refused it, and its stream is gone */
            if (u.value > u.line->submitted && !code) continue;
            uses[n++] = u;
        }
        for (int i = 0; i < n && !code; i++) code = timeline_wait(d, uses[i].line, uses[i].value);
    }
    buffer_release(d, b);
    return code;
}

int mlxvk_buffer_wait(mlxvk_buffer buffer)
{
    struct buffer *b = buffer.ctx;
    if (!b) return MLXVK_ERROR_ARGUMENT;
    mutex_lock(&b->device->lock);
    return unlock_with(b->device, wait_buffer(b->device, b, false));
}

/* ---- copies through staging ---- */

/* memcpy; long ones without the lock. */
static void copy_bytes(struct device *d, void *to, const void *from, size_t n)
{
    if (n > STAGING_LEAST) mutex_unlock(&d->lock);
    memcpy(to, from, n);
    if (n > STAGING_LEAST) mutex_lock(&d->lock);
}

static int transfer_chunk(struct device *d, struct buffer *b, size_t offset, void *data, size_t n, enum memory_use use)
{
    struct encoder *e = &d->copies->encoder;
    bool upload = use == MEMORY_UPLOAD;
    const VkBufferCopy copy = { upload ? 0 : offset, upload ? offset : 0, n };
    struct buffer *staging;
    int code = staging_take(d, use, n, &staging);
    if (code) return code;
    const struct buffer *from = upload ? staging : b, *to = upload ? b : staging;
    if (upload) copy_bytes(d, staging->map, data, n);
    encoder_access(e, staging, 0, n, !upload);
    encoder_access(e, b, offset, offset + n, upload);
    if (!e->code) {
        insert_barrier(e);
        d->vk.vkCmdCopyBuffer(e->commands, from->handle, to->handle, 1, &copy);
    }
    int submitted = stream_submit(d->copies);        /* in any case: both are noted as used by it */
    code = e->code ? e->code : submitted;
    if (!code && !upload) code = timeline_wait(d, d->copies->line, d->copies->line->submitted);
    if (!code && !upload) copy_bytes(d, data, staging->map, n);
    staging_give(d, use, staging);
    if (e->code) { e->code = d->lost; encoder_reset(e); }
    return code;
}

/* Moves bytes between the host and a buffer; reading blocks, without the lock. Nothing that others have recorded or set
 * up is touched: copies have a stream of their own, and none is submitted that would have to wait there for another's
 * work. */
static int transfer(struct device *d, struct buffer *b, size_t offset, void *data, size_t size, enum memory_use use)
{
    int code = 0;
    if (!d->copies) {
        d->copies = stream_create(d);
        if (!d->copies) return d->lost ? d->lost : MLXVK_ERROR_HOST_MEMORY;
        d->copies->refs++;
    }
    b->refs++;
    if (use == MEMORY_READBACK) code = wait_buffer(d, b, true);
    for (size_t at = 0, n; at < size && !code; at += n) {
        n = min_size(STAGING_CHUNK, size - at);
        code = transfer_chunk(d, b, b->offset + offset + at, (char *)data + at, n, use);
    }
    buffer_release(d, b);
    return code;
}

/* ==== >>public: streams =========================================================================================== */

static mlxvk_stream stream_handle(mlxvk_device device, bool shared)
{
    struct device *d = lock_device(device.ctx);
    if (!d) return (mlxvk_stream){ NULL };
    struct stream *s = d->lost ? NULL : shared ? default_stream(d) : stream_create(d);
    if (s) { s->refs++; d->refs++; }
    else device_fail(d, d->lost ? d->lost : MLXVK_ERROR_HOST_MEMORY, 0, __LINE__, "stream", "no stream could be made");
    unlock_and_drop(d);
    return (mlxvk_stream){ s };
}

mlxvk_stream mlxvk_stream_new_device(mlxvk_device device) { return stream_handle(device, false); }
mlxvk_stream mlxvk_stream_new(void) { return stream_handle((mlxvk_device){ NULL }, false); }
mlxvk_stream mlxvk_default_gpu_stream_new(void) { return stream_handle((mlxvk_device){ NULL }, true); }

mlxvk_device mlxvk_stream_device(mlxvk_stream stream)
{
    return (mlxvk_device){ stream.ctx ? ((struct stream *)stream.ctx)->device : NULL };
}

int mlxvk_stream_get_index(int *index, mlxvk_stream stream)
{
    const struct stream *s = stream.ctx;
    return s ? GIVE(index, s->index) : MLXVK_ERROR_ARGUMENT;
}

int mlxvk_stream_error(mlxvk_stream stream, mlxvk_error *error)
{
    struct stream *s = stream.ctx;
    if (!s) return MLXVK_ERROR_ARGUMENT;
    mutex_lock(&s->device->lock);
    return unlock_with(s->device, GIVE(error, s->error));
}

/* Submits what is recorded; the first error of deferred work, which it clears, or of this. */
static int finalize(struct stream *s)
{
    stream_lower(s, 0);
    int submitted = stream_submit(s), code = s->deferred;
    s->deferred = 0;
    return code ? code : s->device->lost ? s->device->lost : submitted;
}

int mlxvk_finalize(mlxvk_stream stream)
{
    struct call c = begin("finalize", stream);
    if (!c.code) c.code = finalize(c.stream);
    return end(&c);
}

int mlxvk_synchronize(mlxvk_stream stream)
{
    struct call c = begin("synchronize", stream);
    if (c.code) return end(&c);
    c.code = finalize(c.stream);
    int waited = c.device->lost ? 0 : timeline_wait(c.device, c.stream->line, c.stream->line->submitted);
    if (!c.code) c.code = waited;
    return end(&c);
}

int mlxvk_clear_streams(mlxvk_device device)
{
    struct device *d = lock_device(device.ctx);
    if (!d) return MLXVK_ERROR_NO_DEVICE;
    wait_streams(d);
    struct stream *unheld = d->default_stream;       /* unless somebody holds it, too */
    if (unheld && !unheld->refs++) { d->default_stream = NULL; stream_drop(unheld); }
    else if (unheld) unheld->refs--;
    return drop_with(d, d->lost);
}

/* ---- evaluation ---- */

/* Calls on an array without a stream: its device, locked. */
static struct device *lock_array(const struct array *a)
{
    mutex_lock(&a->storage->device->lock);
    return a->storage->device;
}

/* Lowers and submits what computes the array. The lock is held. */
static int array_submit(struct array *a)
{
    struct storage *st = a->storage;
    struct stream *s = stream_of(st);
    if (s && (st->writers || st->readers)) stream_lower(s, 0);
    if (s && !st->failed && s->encoder.commands) stream_submit(s);     /* not a wait alone, for what comes later */
    return st->failed ? st->failed : st->device->lost;
}

/* The same, and waits until it is written, and where `readers` until nothing reads it either. */
static int array_wait(struct array *a, bool readers)
{
    int code = array_submit(a);
    return code ? code : wait_buffer(a->storage->device, a->storage->buffer, !readers);
}

static int eval_vector(mlxvk_vector_array outputs, bool wait)
{
    const struct vector *v = outputs.ctx;
    int code = 0;
    if (!v) return MLXVK_ERROR_ARGUMENT;
    for (int pass = 0; pass <= (int)wait; pass++)
        for (size_t i = 0; i < v->size; i++) {
            struct array *a = array_at(v, i);
            if (!a) return MLXVK_ERROR_ARGUMENT;
            struct device *d = lock_array(a);
            int waited = unlock_with(d, pass ? array_wait(a, false) : array_submit(a));
            code = code ? code : waited;
        }
    return code;
}

int mlxvk_eval(mlxvk_vector_array outputs) { return eval_vector(outputs, true); }
int mlxvk_async_eval(mlxvk_vector_array outputs) { return eval_vector(outputs, false); }

/* ==== >>public: events ============================================================================================ */

/* Why the device does not take a value, 0 where it does. It is lost by a signal that is not over those before it, and
 * by what is farther ahead than it counts. */
static int event_fault(const struct event *ev, uint64_t value, bool signal)
{
    const struct device *d = ev->device;
    uint64_t now = 0;
    if (signal && value <= ev->top) return MLXVK_ERROR_ARGUMENT;
    if (d->vk.vkGetSemaphoreCounterValue(d->handle, ev->semaphore, &now) < 0) return 0;
    return value > now && value - now > d->caps.most_ahead ? MLXVK_ERROR_LIMIT : 0;
}

static const char *event_fault_text(int fault)
{
    return fault == MLXVK_ERROR_LIMIT
        ? "value %llu is farther from where the event is than the device counts (last one: %llu)"
        : "value %llu is not over the last one that was signalled, %llu";
}

/* Can the stream wait for that value, or signal it? Else false with an error. Leaves room to note the use. */
static bool event_ready(struct call *c, struct event *ev, uint64_t value, bool signal)
{
    if (c->code) return false;
    if (!ev) return FAIL(c, MLXVK_ERROR_ARGUMENT, "event is { NULL }"), false;
    if (ev->device != c->device)
        return FAIL(c, MLXVK_ERROR_ARGUMENT, "event is of another device than the stream"), false;
    if (!ADD(c->device, &ev->uses, struct use)) return FAIL(c, MLXVK_ERROR_HOST_MEMORY, "out of host memory"), false;
    ev->uses.count--;
    mutex_lock(&c->device->event_lock);
    int fault = event_fault(ev, value, signal);
    unsigned long long top = ev->top;
    if (signal && !fault) ev->top = value;
    mutex_unlock(&c->device->event_lock);
    if (fault) FAIL(c, fault, event_fault_text(fault), (unsigned long long)value, top);
    return !fault;
}

/* The stream's open submission names the event. */
static void event_use(struct event *ev, struct timeline *line)
{
    uint32_t i = 0;
    while (i < ev->uses.count && ITEM(ev->uses, struct use, i)->line != line) i++;
    *ITEM(ev->uses, struct use, i) = (struct use){ line, line->open, true };
    if (i == ev->uses.count) ev->uses.count++;
}

int mlxvk_event_new(mlxvk_event *res, mlxvk_device device)
{
    const VkSemaphoreTypeCreateInfo type = { .sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
                                             .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE };
    const VkSemaphoreCreateInfo info = { .sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, .pNext = &type };
    struct device *d = res ? lock_device(device.ctx) : NULL;
    VkResult r = VK_ERROR_OUT_OF_HOST_MEMORY;
    if (!d) return MLXVK_ERROR_ARGUMENT;
    reap_events(d, false);
    struct event *event = host_zalloc(d, sizeof *event);
    if (event) r = d->vk.vkCreateSemaphore(d->handle, &info, NULL, &event->semaphore);
    if (r < 0) {
        host_free(d, event);
        return drop_with(d, device_fail(d, vk_code(d, r), r, __LINE__, "event", "no semaphore (VkResult %d)", r));
    }
    event->device = d;
    d->refs++;
    unlock_and_drop(d);
    mlxvk_event_free(*res);
    res->ctx = event;
    return 0;
}

/* Streams may have unsubmitted or unfinished work that names the semaphore: it goes when that is done. */
static void event_release(struct device *d, struct event *ev)
{
    ev->next = d->freed_events;
    d->freed_events = ev;
    reap_events(d, false);
}

int mlxvk_event_signal(mlxvk_event event, uint64_t value, mlxvk_stream stream)
{
    struct call c = begin("event_signal", stream);
    struct event *ev = event.ctx;
    if (!event_ready(&c, ev, value, true)) return end(&c);
    stream_lower(c.stream, 0);
    event_use(ev, c.stream->line);
    c.stream->signals[c.stream->signal_count++] = (struct wait){ NULL, ev->semaphore, value };
    c.code = stream_submit(c.stream);
    return end(&c);
}

int mlxvk_event_wait(mlxvk_event event, uint64_t value, mlxvk_stream stream)
{
    struct call c = begin("event_wait", stream);
    struct event *ev = event.ctx;
    if (!event_ready(&c, ev, value, false)) return end(&c);
    stream_lower(c.stream, 0);
    c.code = stream_submit(c.stream);
    if (!c.code) c.code = stream_wait(c.stream, ev->semaphore, value);
    if (!c.code) event_use(ev, c.stream->line);
    return end(&c);
}

/* Without the device's lock: who holds it may be waiting for this. */
int mlxvk_event_signal_host(mlxvk_event event, uint64_t value)
{
    struct event *ev = event.ctx;
    VkResult r = VK_SUCCESS;
    if (!ev) return MLXVK_ERROR_ARGUMENT;
    struct device *d = ev->device;
    const VkSemaphoreSignalInfo info = { .sType = VK_STRUCTURE_TYPE_SEMAPHORE_SIGNAL_INFO,
                                         .semaphore = ev->semaphore, .value = value };
    mutex_lock(&d->event_lock);
    int fault = event_fault(ev, value, true);
    unsigned long long top = ev->top;
    if (!fault) r = d->vk.vkSignalSemaphore(d->handle, &info);
    if (!fault && r >= 0) ev->top = value;
    mutex_unlock(&d->event_lock);
    if (!fault && r >= 0) return 0;
    mutex_lock(&d->lock);
    if (!fault) return unlock_with(d, vk_code(d, r));
    return unlock_with(d, device_fail(d, fault, 0, __LINE__, "event_signal_host", event_fault_text(fault),
                                      (unsigned long long)value, top));
}

int mlxvk_event_wait_host(mlxvk_event event, uint64_t value, uint64_t timeout_ns)
{
    struct event *ev = event.ctx;
    if (!ev) return MLXVK_ERROR_ARGUMENT;
    struct device *d = ev->device;
    const VkSemaphoreWaitInfo info = { .sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO, .semaphoreCount = 1,
                                       .pSemaphores = &ev->semaphore, .pValues = &value };
    VkResult r = d->vk.vkWaitSemaphores(d->handle, &info, timeout_ns);
    if (r >= 0) return r == VK_TIMEOUT ? MLXVK_ERROR_NOT_READY : 0;
    mutex_lock(&d->lock);
    return unlock_with(d, vk_code(d, r));
}

bool mlxvk_event_is_signaled(mlxvk_event event, uint64_t value)
{
    const struct event *ev = event.ctx;
    const struct device *d = ev ? ev->device : NULL;
    uint64_t now = 0;
    return d && d->vk.vkGetSemaphoreCounterValue(d->handle, ev->semaphore, &now) >= 0 && now >= value;
}

/* ==== >>public: arrays ============================================================================================ */

mlxvk_array mlxvk_array_new(void) { return (mlxvk_array){ NULL }; }

int mlxvk_array_free(mlxvk_array array)
{
    struct array *a = array.ctx;
    if (!a) return 0;
    struct device *d = lock_array(a);
    drop_handle(a);
    unlock_and_release(d);
    return 0;
}

int mlxvk_array_set(mlxvk_array *res, mlxvk_array source)
{
    struct array *a = source.ctx;
    if (!res) return MLXVK_ERROR_ARGUMENT;
    mlxvk_array old = *res;
    if (a) { struct device *d = lock_array(a); take_handle(a); mutex_unlock(&d->lock); }
    res->ctx = a;
    return mlxvk_array_free(old);
}

/* Copies host data into a fresh array. */
static void fill_array(struct call *c, struct array *a, const void *data)
{
    struct storage *st = a->storage;
    if (data && st->nbytes <= INLINE_BYTES) {
        st->literal = true;
        memcpy(st->bytes, data, st->nbytes);
        return;
    }
    int code = buffer_allocate(st->device, st->nbytes, data ? NULL : c->stream->line, &st->buffer);
    if (code)
        FAIL(c, code, "%zu bytes are not to be had (largest allocation %zu)", st->nbytes,
             c->device->caps.max_allocation);
    if (code || !data || !st->nbytes) return;
    if (st->buffer->map) copy_bytes(c->device, st->buffer->map, data, st->nbytes);
    else code = transfer(c->device, st->buffer, 0, (void *)(uintptr_t)data, st->nbytes, MEMORY_UPLOAD);
    if (code) FAIL(c, code, "the upload failed: %s", mlxvk_result_text(code));
}

/* Ends a call that has a device, but no stream: the error is the device's. */
static int finish_on(struct call *c, struct array *a, mlxvk_array *res)
{
    if (c->code && c->device) c->device->error = c->stream->error;
    return finish(c, a, res);
}

int mlxvk_array_new_data_device(mlxvk_array *res, const void *data, const int *shape, int dim, mlxvk_dtype dtype,
                                mlxvk_device device)
{
    struct call c = begin_on("array", lock_device(device.ctx), NULL);
    struct array *a = output(&c, dim, shape, dtype);
    if (a) fill_array(&c, a, data);
    return finish_on(&c, a, res);
}

int mlxvk_array_set_data(mlxvk_array *arr, const void *data, const int *shape, int dim, mlxvk_dtype dtype)
{
    return mlxvk_array_new_data_device(arr, data, shape, dim, dtype, (mlxvk_device){ NULL });
}

mlxvk_array mlxvk_array_new_data(const void *data, const int *shape, int dim, mlxvk_dtype dtype)
{
    mlxvk_array res = { NULL };
    mlxvk_array_set_data(&res, data, shape, dim, dtype);
    return res;
}

#define X(make, set, type, dtype) \
    int set(mlxvk_array *arr, type value) { return mlxvk_array_set_data(arr, &value, NULL, 0, dtype); } \
    mlxvk_array make(type value) { return mlxvk_array_new_data(&value, NULL, 0, dtype); }
X(mlxvk_array_new_bool, mlxvk_array_set_bool, bool, MLXVK_BOOL)
X(mlxvk_array_new_int, mlxvk_array_set_int, int, MLXVK_INT32)
X(mlxvk_array_new_float, mlxvk_array_set_float, float, MLXVK_FLOAT32)
X(mlxvk_array_new_float32, mlxvk_array_set_float32, float, MLXVK_FLOAT32)
X(mlxvk_array_new_double, mlxvk_array_set_double, double, MLXVK_FLOAT64)
X(mlxvk_array_new_float64, mlxvk_array_set_float64, double, MLXVK_FLOAT64)
#undef X

int mlxvk_array_set_complex(mlxvk_array *arr, float real, float imag)
{
    return mlxvk_array_set_data(arr, (float[]){ real, imag }, NULL, 0, MLXVK_COMPLEX64);
}
mlxvk_array mlxvk_array_new_complex(float real, float imag)
{
    return mlxvk_array_new_data((float[]){ real, imag }, NULL, 0, MLXVK_COMPLEX64);
}

int mlxvk_array_empty(mlxvk_array *res, const int *shape, size_t shape_num, mlxvk_dtype dtype, mlxvk_stream s)
{
    struct call c = begin("array_empty", s);
    struct array *a = output(&c, (int)min_size(shape_num, MAXD + 1), shape, dtype);
    if (a) fill_array(&c, a, NULL);
    return finish(&c, a, res);
}

/* ---- views of memory ---- */

/* A call that makes a view: can one begin there? */
static void check_view(struct call *c, const int *shape, const int64_t *strides, int dim, mlxvk_dtype dtype,
                       size_t offset, size_t bytes)
{
    if (check_shape(c, dim, shape, dtype) && (offset > bytes || offset % dtypes[dtype].size))
        FAIL(c, MLXVK_ERROR_ARGUMENT, "offset %zu of %zu bytes (a multiple of the item size is wanted)", offset, bytes);
    check_strides(c, dim, shape, strides);
}

/* Ends it, where the view does not reach beyond. */
static int finish_view(struct call *c, struct array *a, size_t bytes, mlxvk_array *res)
{
    int64_t low = 0, high = 0;
    if (a && a->size) array_span(a, &low, &high);
    if (low < 0 || high > (int64_t)bytes)
        FAIL(c, MLXVK_ERROR_SHAPE, "%s reaches from byte %lld to %lld of %zu", TEXT(a), (long long)low, (long long)high,
             bytes);
    return finish_on(c, a, res);
}

int mlxvk_array_new_buffer(mlxvk_array *res, mlxvk_buffer buffer, const int *shape, const int64_t *strides, int dim,
                           mlxvk_dtype dtype, size_t offset)
{
    struct buffer *b = buffer.ctx;
    struct array *a = NULL;
    if (!b) return MLXVK_ERROR_ARGUMENT;
    struct call c = begin_on("array_new_buffer", lock_device(b->device), NULL);
    check_view(&c, shape, strides, dim, dtype, offset, b->bytes);
    struct storage *st = c.code ? NULL : storage_create(c.device, b->bytes);
    if (st) {
        st->refs = 1;
        st->buffer = b;
        b->refs++;
        a = temporary(&c, array_create(st, dtype, dim, shape, strides, (int64_t)offset));
        storage_release(st);
    }
    return finish_view(&c, a, b->bytes, res);
}

int mlxvk_array_new_view(mlxvk_array *res, mlxvk_array base, const int *shape, const int64_t *strides, int dim,
                         mlxvk_dtype dtype, size_t offset)
{
    struct array *from = base.ctx;
    if (!from) return MLXVK_ERROR_ARGUMENT;
    struct call c = begin_on("array_new_view", lock_device(from->storage->device), NULL);
    size_t bytes = from->storage->nbytes;
    check_view(&c, shape, strides, dim, dtype, offset, bytes);
    return finish_view(&c, view_of(&c, from, dtype, dim, shape, strides, (int64_t)offset), bytes, res);
}

/* ---- what arrays are, and what is in them ---- */

/* The row's end is what { NULL } is. */
#define X(name, type, value, none) \
    type name(mlxvk_array array) { const struct array *a = array.ctx; return a ? value : none; }
X(mlxvk_array_itemsize, size_t, item_size(a), 0)
X(mlxvk_array_size, size_t, a->size, 0)
X(mlxvk_array_nbytes, size_t, array_bytes(a), 0)
X(mlxvk_array_ndim, size_t, (size_t)a->ndim, 0)
X(mlxvk_array_shape, const int *, a->shape, NULL)
X(mlxvk_array_strides, const int64_t *, a->strides, NULL)
X(mlxvk_array_dtype, mlxvk_dtype, a->dtype, MLXVK_DTYPE_COUNT)
X(mlxvk_array_is_row_contiguous, bool, a->row, false)
X(mlxvk_array_offset, size_t, (size_t)a->offset, 0)
X(mlxvk_array_memory_size, size_t, a->storage->nbytes, 0)
#undef X

int mlxvk_array_dim(mlxvk_array array, int dim)
{
    const struct array *a = array.ctx;
    return a && dim >= -a->ndim && dim < a->ndim ? dim_of(a, dim) : 0;
}

/* The memory of an array that nothing has written yet, outside of any dispatch. */
static int storage_ready(struct device *d, struct storage *st)
{
    if (st->buffer) return 0;
    struct stream *s = default_stream(d);
    int code = s ? storage_allocate(&s->encoder, st) : MLXVK_ERROR_HOST_MEMORY;
    if (code && s) {
        d->error = s->encoder.error;
        s->encoder.code = d->lost;                   /* the stream's own work goes on */
    }
    return code;
}

int mlxvk_array_buffer(mlxvk_buffer *res, size_t *offset, mlxvk_array array)
{
    struct array *a = array.ctx;
    if (!a || !res) return MLXVK_ERROR_ARGUMENT;
    struct storage *st = a->storage;
    struct device *d = lock_device(st->device);
    int code = array_wait(a, false);
    if (!code && !st->buffer) {
        code = storage_ready(d, st);
        if (!code) code = wait_buffer(d, st->buffer, true);
    }
    if (!code) st->buffer->refs++;
    if (!code && offset) *offset = (size_t)a->offset;
    return give_buffer(d, res, st->buffer, code);
}

int mlxvk_array_wait(mlxvk_array array, bool readers)
{
    struct array *a = array.ctx;
    if (!a) return MLXVK_ERROR_ARGUMENT;
    struct device *d = lock_array(a);
    return unlock_with(d, array_wait(a, readers));
}

int mlxvk_array_eval(mlxvk_array array) { return mlxvk_array_wait(array, false); }

/* Host memory that is mapped uncached is read through cached staging from this many bytes on. */
enum { DIRECT_READ = 16384 };

/* Copies the bytes of a computed row-contiguous array to the host. The lock is held. */
static int read_bytes(struct array *a, void *data)
{
    struct storage *st = a->storage;
    struct device *d = st->device;
    size_t n = array_bytes(a);
    if (!n) return 0;
    if (st->literal && !st->buffer) { memcpy(data, st->bytes + a->offset, n); return 0; }
    if (!st->buffer) return MLXVK_ERROR_NOT_READY;
    if (st->buffer->map && (n <= DIRECT_READ || !st->buffer->block || st->buffer->block->cached)) {
        int code = wait_buffer(d, st->buffer, true);
        if (!code) copy_bytes(d, data, st->buffer->map + a->offset, n);
        return code;
    }
    return transfer(d, st->buffer, (size_t)a->offset, data, n, MEMORY_READBACK);
}

int mlxvk_array_read(mlxvk_array array, void *data, size_t size, mlxvk_stream s)
{
    struct call c = begin("array_read", s);
    struct array *a = input(&c, "array", array);
    if (a && size != array_bytes(a)) FAIL(&c, MLXVK_ERROR_ARGUMENT, "%zu bytes of memory for %s", size, TEXT(a));
    if (a && size && !data) FAIL(&c, MLXVK_ERROR_ARGUMENT, "data is NULL");
    if (a && !c.code) a = contiguous(&c, a);
    if (!a || c.code) return end(&c);
    take_handle(a);                                  /* somebody wants it: not to be dropped from the tape */
    int code = array_submit(a);
    if (!code) code = read_bytes(a, data);
    drop_handle(a);
    if (code && !c.code) {
        const struct stream *of = a->storage->failed ? stream_of(a->storage) : NULL;
        FAIL(&c, code, "%s could not be computed: %s", TEXT(a), of ? of->deferred_text : mlxvk_result_text(code));
    }
    return end(&c);
}

static int item(void *res, mlxvk_array array, mlxvk_dtype dtype)
{
    struct array *a = array.ctx;
    uint8_t *byte = res;
    int code;
    if (!a || !res) return MLXVK_ERROR_ARGUMENT;
    struct device *d = lock_array(a);
    if (a->size != 1) code = device_fail(d, MLXVK_ERROR_SHAPE, 0, __LINE__, "item", "%s has not one element", TEXT(a));
    else if (a->dtype != dtype)
        code = device_fail(d, MLXVK_ERROR_DTYPE, 0, __LINE__, "item", "%s read as %s", TEXT(a), dtypes[dtype].name);
    else if (!(code = array_submit(a))) code = read_bytes(a, res);
    if (!code && dtype == MLXVK_BOOL) *byte = *byte != 0;              /* as a bool of C's must be */
    return unlock_with(d, code);
}

const void *mlxvk_array_data(mlxvk_array array)
{
    const struct array *a = array.ctx;
    const void *data = NULL;
    if (!a) return NULL;
    const struct storage *st = a->storage;
    struct device *d = lock_array(a);
    if (st->literal && !st->buffer) data = st->bytes + a->offset;
    else if (st->buffer && st->buffer->map && !st->writers) data = st->buffer->map + a->offset;
    mutex_unlock(&d->lock);
    return data;
}

/* ---- memory under a front end's own arrays ---- */

bool mlxvk_array_shares_memory(mlxvk_array a, mlxvk_array b)
{
    return a.ctx && b.ctx && ((struct array *)a.ctx)->storage == ((struct array *)b.ctx)->storage;
}

int mlxvk_array_host(void **data, mlxvk_array array)
{
    struct array *a = array.ctx;
    if (!a || !data) return MLXVK_ERROR_ARGUMENT;
    struct storage *st = a->storage;
    struct device *d = lock_array(a);
    if (st->writers && stream_of(st)) stream_lower(stream_of(st), 0);
    int code = st->failed ? st->failed : d->lost;
    if (!code) code = storage_ready(d, st);
    if (!code) *data = st->buffer->map;
    return unlock_with(d, code);
}

/* ==== >>public: strings, vectors and maps ========================================================================= */

/* An entry of a map. */
union value { void *any; const char *text; mlxvk_array array; struct vector *list; };
struct entry { char *key; union value value; };

static char *text_copy(const char *text)
{
    size_t n = strlen(text) + 1;
    char *copy = malloc(n);
    if (copy) memcpy(copy, text, n);
    return copy;
}

static int item_copy(const struct item_kind *kind, void *to, const void *from)
{
    const struct entry *source = from;
    struct entry *e = to;
    if (!kind->keyed) return kind->copy(to, from);
    e->key = text_copy(source->key);
    int code = e->key ? kind->copy(&e->value, &source->value) : MLXVK_ERROR_HOST_MEMORY;
    if (code) free(e->key);
    return code;
}

static void item_drop(const struct item_kind *kind, void *item)
{
    struct entry *e = item;
    if (kind->keyed) { free(e->key); kind->drop(&e->value); }
    else if (kind->drop) kind->drop(item);
}

/* Opens a place for one item at position i; its contents are the caller's to write. */
static void *list_open(struct vector *l, size_t i)
{
    if (l->size == l->slots) {
        size_t slots = l->slots ? 2 * l->slots : 8;
        char *grown = realloc(l->data, slots * l->kind->size);
        if (!grown) return NULL;
        l->data = grown;
        l->slots = slots;
    }
    memmove(l->data + (i + 1) * l->kind->size, l->data + i * l->kind->size, (l->size - i) * l->kind->size);
    l->size++;
    return list_at(l, i);
}

/* Lets items go from `first` on. */
static void list_cut(struct vector *l, size_t first)
{
    while (l->size > first) item_drop(l->kind, list_at(l, --l->size));
}

/* All items, or none. */
static int list_append(struct vector *l, const void *items, size_t count)
{
    size_t before = l ? l->size : 0;
    if (!l || (count && !items)) return MLXVK_ERROR_ARGUMENT;
    for (size_t i = 0; i < count; i++) {
        void *place = list_open(l, l->size);
        int code = place ? item_copy(l->kind, place, (const char *)items + i * l->kind->size) : MLXVK_ERROR_HOST_MEMORY;
        if (!code) continue;
        l->size -= place != NULL;
        list_cut(l, before);
        return code;
    }
    return 0;
}

static int list_free(struct vector *l)
{
    if (!l) return 0;
    list_cut(l, 0);
    free(l->data);
    free(l);
    return 0;
}

/* *slot becomes a list that was just made, unless there was an error. */
static int list_give(void **slot, struct vector *fresh, int code)
{
    if (code) { list_free(fresh); return code; }
    list_free(*slot);
    *slot = fresh;
    return 0;
}

/* *slot becomes a list of its own with these items; they may be those of the list that it was. */
static int list_set(void **slot, const struct item_kind *kind, const void *items, size_t count)
{
    struct vector *fresh = slot ? list_new(kind) : NULL;
    if (!fresh) return slot ? MLXVK_ERROR_HOST_MEMORY : MLXVK_ERROR_ARGUMENT;
    return list_give(slot, fresh, list_append(fresh, items, count));
}

static struct vector *list_from(const struct item_kind *kind, const void *items, size_t count)
{
    void *list = NULL;
    list_set(&list, kind, items, count);
    return list;
}

static int list_assign(void **slot, const struct item_kind *kind, const struct vector *from)
{
    return from ? list_set(slot, kind, from->data, from->size) : list_set(slot, kind, NULL, 0);
}

static int copy_int(void *to, const void *from) { memcpy(to, from, sizeof(int)); return 0; }
static int copy_string(void *to, const void *from)
{
    const char *source = *(const char *const *)from;
    char *text = source ? text_copy(source) : NULL;
    memcpy(to, &text, sizeof text);
    return text ? 0 : source ? MLXVK_ERROR_HOST_MEMORY : MLXVK_ERROR_ARGUMENT;
}
static void drop_string(void *item) { free(*(char **)item); }

static int copy_array(void *to, const void *from)
{
    mlxvk_array copy = { NULL };
    mlxvk_array_set(&copy, *(const mlxvk_array *)from);
    memcpy(to, &copy, sizeof copy);
    return 0;
}
static void drop_array(void *item) { mlxvk_array_free(*(mlxvk_array *)item); }

/* Handles of lists hold a pointer to them, as values of maps do. */
static struct vector *list_of(const void *item)
{
    struct vector *l;
    memcpy(&l, item, sizeof l);
    return l;
}
static int copy_list(void *to, const void *from)
{
    const struct vector *source = list_of(from);
    void *copy = NULL;
    int code = list_assign(&copy, source ? source->kind : &array_kind, source);
    memcpy(to, &copy, sizeof copy);
    return code;
}
static void drop_list(void *item) { list_free(list_of(item)); }

static const struct item_kind int_kind = { sizeof(int), copy_int, NULL, false };
static const struct item_kind array_kind = { sizeof(mlxvk_array), copy_array, drop_array, false };
static const struct item_kind string_kind = { sizeof(char *), copy_string, drop_string, false };
static const struct item_kind vector_array_kind = { sizeof(mlxvk_vector_array), copy_list, drop_list, false };
static const struct item_kind array_entry = { sizeof(struct entry), copy_array, drop_array, true };
static const struct item_kind string_entry = { sizeof(struct entry), copy_string, drop_string, true };
static const struct item_kind list_entry = { sizeof(struct entry), copy_list, drop_list, true };

/* What getters make of an item, in *res: texts stay the container's. */
static int give_string(void *res, const void *item) { memcpy(res, item, sizeof(char *)); return 0; }
static int give_array(void *res, const void *item) { return mlxvk_array_set(res, *(const mlxvk_array *)item); }
static int give_vector(void *res, const void *item)
{
    return mlxvk_vector_array_set(res, *(const mlxvk_vector_array *)item);
}

/* The functions of one kind of vector. */
#define VECTOR_FUNCTIONS(kind, type, in, out, give, NEW, FREE, NEW_DATA, NEW_VALUE, \
                         SET, SET_DATA, SET_VALUE, APPEND, PUSH, SIZE, GET) \
    type NEW(void) { return (type){ list_new(&kind) }; } \
    int FREE(type v) { return list_free(v.ctx); } \
    type NEW_DATA(in *data, size_t size) { return (type){ list_from(&kind, data, size) }; } \
    type NEW_VALUE(in value) { return (type){ list_from(&kind, &value, 1) }; } \
    int SET(type *v, const type source) { return list_assign(v ? &v->ctx : NULL, &kind, source.ctx); } \
    int SET_DATA(type *v, in *data, size_t size) { return list_set(v ? &v->ctx : NULL, &kind, data, size); } \
    int SET_VALUE(type *v, in value) { return list_set(v ? &v->ctx : NULL, &kind, &value, 1); } \
    int APPEND(type v, in *data, size_t size) { return list_append(v.ctx, data, size); } \
    int PUSH(type v, in value) { return list_append(v.ctx, &value, 1); } \
    size_t SIZE(type v) { return v.ctx ? ((struct vector *)v.ctx)->size : 0; } \
    int GET(out *res, const type v, size_t i) \
    { \
        const struct vector *l = v.ctx; \
        return l && res && i < l->size ? give(res, list_at(l, i)) : MLXVK_ERROR_ARGUMENT; \
    }

VECTOR_FUNCTIONS(int_kind, mlxvk_vector_int, const int, int, copy_int,
                 mlxvk_vector_int_new, mlxvk_vector_int_free, mlxvk_vector_int_new_data, mlxvk_vector_int_new_value,
                 mlxvk_vector_int_set, mlxvk_vector_int_set_data, mlxvk_vector_int_set_value,
                 mlxvk_vector_int_append_data, mlxvk_vector_int_append_value, mlxvk_vector_int_size,
                 mlxvk_vector_int_get)
VECTOR_FUNCTIONS(array_kind, mlxvk_vector_array, const mlxvk_array, mlxvk_array, give_array,
                 mlxvk_vector_array_new, mlxvk_vector_array_free, mlxvk_vector_array_new_data,
                 mlxvk_vector_array_new_value, mlxvk_vector_array_set, mlxvk_vector_array_set_data,
                 mlxvk_vector_array_set_value, mlxvk_vector_array_append_data, mlxvk_vector_array_append_value,
                 mlxvk_vector_array_size, mlxvk_vector_array_get)
VECTOR_FUNCTIONS(string_kind, mlxvk_vector_string, const char *, char *, give_string,
                 mlxvk_vector_string_new, mlxvk_vector_string_free, mlxvk_vector_string_new_data,
                 mlxvk_vector_string_new_value, mlxvk_vector_string_set, mlxvk_vector_string_set_data,
                 mlxvk_vector_string_set_value, mlxvk_vector_string_append_data, mlxvk_vector_string_append_value,
                 mlxvk_vector_string_size, mlxvk_vector_string_get)
VECTOR_FUNCTIONS(vector_array_kind, mlxvk_vector_vector_array, const mlxvk_vector_array, mlxvk_vector_array,
                 give_vector,
                 mlxvk_vector_vector_array_new, mlxvk_vector_vector_array_free, mlxvk_vector_vector_array_new_data,
                 mlxvk_vector_vector_array_new_value, mlxvk_vector_vector_array_set,
                 mlxvk_vector_vector_array_set_data, mlxvk_vector_vector_array_set_value,
                 mlxvk_vector_vector_array_append_data, mlxvk_vector_vector_array_append_value,
                 mlxvk_vector_vector_array_size, mlxvk_vector_vector_array_get)

/* ---- strings ---- */

mlxvk_string mlxvk_string_new(void) { return (mlxvk_string){ NULL }; }
mlxvk_string mlxvk_string_new_data(const char *str) { return (mlxvk_string){ str ? text_copy(str) : NULL }; }
const char *mlxvk_string_data(mlxvk_string str) { return str.ctx ? str.ctx : ""; }
int mlxvk_string_free(mlxvk_string str) { free(str.ctx); return 0; }

/* Replaces what *res held by `text`, which it frees where that cannot be. */
static int put_string(mlxvk_string *res, char *text)
{
    if (!res || !text) { free(text); return res ? MLXVK_ERROR_HOST_MEMORY : MLXVK_ERROR_ARGUMENT; }
    free(res->ctx);
    res->ctx = text;
    return 0;
}

int mlxvk_string_set(mlxvk_string *str, mlxvk_string src) { return put_string(str, text_copy(mlxvk_string_data(src))); }

/* Text that grows. */
struct text { char *data; size_t size, slots; bool failed; };

static void text_add(struct text *t, const char *format, ...)
{
    va_list arguments, again;
    int n;
    va_start(arguments, format);
    va_copy(again, arguments);
    n = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    if (n >= 0 && t->size + (size_t)n + 1 > t->slots && !t->failed) {
        size_t slots = 2 * t->slots + (size_t)n + 64;
        char *grown = realloc(t->data, slots);
        if (grown) { t->data = grown; t->slots = slots; }
        else t->failed = true;
    }
    if (n >= 0 && !t->failed) {
        vsnprintf(t->data + t->size, t->slots - t->size, format, again);
        t->size += (size_t)n;
    }
    va_end(again);
}

static int put_text(mlxvk_string *res, struct text *t)
{
    if (t->failed) { free(t->data); t->data = NULL; }
    return put_string(res, t->data);
}

/* ---- maps: entries in the order of their keys ---- */

/* The place of a key, or where it would be. */
static size_t map_place(const struct vector *m, const char *key, bool *found)
{
    size_t low = 0, high = m->size;
    *found = false;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(((struct entry *)list_at(m, middle))->key, key);
        if (!order) { *found = true; return middle; }
        if (order < 0) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* Takes the value over, also where it fails. An entry of that key is replaced. */
static int map_take(struct vector *m, const char *key, union value value)
{
    bool found;
    size_t at = map_place(m, key, &found);
    if (found) {
        struct entry *e = list_at(m, at);
        m->kind->drop(&e->value);
        e->value = value;
        return 0;
    }
    char *copy = text_copy(key);
    struct entry *e = copy ? list_open(m, at) : NULL;
    if (e) { *e = (struct entry){ copy, value }; return 0; }
    m->kind->drop(&value);
    free(copy);
    return MLXVK_ERROR_HOST_MEMORY;
}

/* A copy of the value. */
static int map_put(struct vector *m, const char *key, union value value)
{
    union value copy;
    if (!m || !key || !value.any) return MLXVK_ERROR_ARGUMENT;
    int code = m->kind->copy(&copy, &value);
    return code ? code : map_take(m, key, copy);
}

static const struct entry *map_find(const struct vector *m, const char *key)
{
    bool found = false;
    size_t at = m && key ? map_place(m, key, &found) : 0;
    return found ? list_at(m, at) : NULL;
}

struct map_walk { const struct vector *map; size_t next; };

static const struct entry *walk_on(struct map_walk *w)
{
    return w && w->map && w->next < w->map->size ? list_at(w->map, w->next++) : NULL;
}

static void *walk_new(const struct vector *m)
{
    struct map_walk *w = calloc(1, sizeof *w);
    if (w) w->map = m;
    return w;
}

#define MAP_FUNCTIONS(kind, type, in, out, member, give, NEW, SET, FREE, INSERT, GET, walk, WALK_NEW, WALK_FREE, NEXT) \
    type NEW(void) { return (type){ list_new(&kind) }; } \
    int SET(type *map, const type src) { return list_assign(map ? &map->ctx : NULL, &kind, src.ctx); } \
    int FREE(type map) { return list_free(map.ctx); } \
    int INSERT(type map, const char *key, in v) { return map_put(map.ctx, key, (union value){ .member = v }); } \
    int GET(out *value, const type map, const char *key) \
    { \
        const struct entry *e = value ? map_find(map.ctx, key) : NULL; \
        return e ? give(value, &e->value.member) : MLXVK_ERROR_ARGUMENT; \
    } \
    walk WALK_NEW(type map) { return (walk){ walk_new(map.ctx) }; } \
    int WALK_FREE(walk it) { free(it.ctx); return 0; } \
    int NEXT(const char **key, out *value, walk it) \
    { \
        const struct entry *e = key && value ? walk_on(it.ctx) : NULL; \
        if (e) *key = e->key; \
        return e ? give(value, &e->value.member) : MLXVK_ERROR_ARGUMENT; \
    }

MAP_FUNCTIONS(array_entry, mlxvk_map_string_to_array, const mlxvk_array, mlxvk_array, array, give_array,
              mlxvk_map_string_to_array_new, mlxvk_map_string_to_array_set, mlxvk_map_string_to_array_free,
              mlxvk_map_string_to_array_insert, mlxvk_map_string_to_array_get, mlxvk_map_string_to_array_iterator,
              mlxvk_map_string_to_array_iterator_new, mlxvk_map_string_to_array_iterator_free,
              mlxvk_map_string_to_array_iterator_next)
MAP_FUNCTIONS(string_entry, mlxvk_map_string_to_string, const char *, const char *, text, give_string,
              mlxvk_map_string_to_string_new, mlxvk_map_string_to_string_set, mlxvk_map_string_to_string_free,
              mlxvk_map_string_to_string_insert, mlxvk_map_string_to_string_get, mlxvk_map_string_to_string_iterator,
              mlxvk_map_string_to_string_iterator_new, mlxvk_map_string_to_string_iterator_free,
              mlxvk_map_string_to_string_iterator_next)

/* ==== >>public: devices, streams and arrays in mlx-c's words ====================================================== */

mlxvk_device mlxvk_device_new_type(mlxvk_device_type type, int index)
{
    mlxvk_device res = { NULL };
    char name[16];
    (void)type;
    if (!index) return mlxvk_device_new();
    snprintf(name, sizeof name, "%d", index);
    if (!mlxvk_device_create(&res, &(mlxvk_device_desc){ .name = name })) ((struct device *)res.ctx)->index = index;
    return res;
}

int mlxvk_device_set(mlxvk_device *dev, const mlxvk_device src)
{
    if (!dev) return MLXVK_ERROR_ARGUMENT;
    mlxvk_device old = *dev;
    dev->ctx = src.ctx ? keep_device(src.ctx) : NULL;
    return mlxvk_device_free(old);
}

bool mlxvk_device_equal(mlxvk_device lhs, mlxvk_device rhs) { return device_or_default(lhs) == device_or_default(rhs); }

int mlxvk_device_get_index(int *index, mlxvk_device dev)
{
    const struct device *d = device_or_default(dev);
    return d ? GIVE(index, d->index) : MLXVK_ERROR_ARGUMENT;
}

int mlxvk_device_get_type(mlxvk_device_type *type, mlxvk_device dev)
{
    (void)dev;
    return GIVE(type, MLXVK_GPU);
}

int mlxvk_device_tostring(mlxvk_string *str, mlxvk_device dev)
{
    const struct device *d = device_or_default(dev);
    struct text t = { 0 };
    if (!d || !str) return MLXVK_ERROR_ARGUMENT;
    text_add(&t, "Device(gpu, %d)", d->index);
    return put_text(str, &t);
}

int mlxvk_get_default_device(mlxvk_device *dev)
{
    struct device *d = default_device();
    return d ? mlxvk_device_set(dev, (mlxvk_device){ d }) : MLXVK_ERROR_NO_DEVICE;
}

int mlxvk_set_default_device(mlxvk_device dev)
{
    mlxvk_device old = { NULL };
    if (!dev.ctx) return MLXVK_ERROR_ARGUMENT;
    mlxvk_device_set(&old, dev);                     /* one more handle, for the library to keep */
    mutex_lock(&the_default.lock);
    old.ctx = the_default.device;
    the_default.device = dev.ctx;
    choose_handler(old.ctx, false);
    choose_handler(dev.ctx, true);
    mutex_unlock(&the_default.lock);
    return mlxvk_device_free(old);
}

int mlxvk_device_is_available(bool *avail, mlxvk_device dev)
{
    return GIVE(avail, dev.ctx && !mlxvk_device_status(dev));
}

mlxvk_device_info mlxvk_device_info_new(void) { return (mlxvk_device_info){ NULL }; }
int mlxvk_device_info_get(mlxvk_device_info *info, mlxvk_device dev)
{
    return mlxvk_device_set(info, dev.ctx ? dev : (mlxvk_device){ default_device() });
}
int mlxvk_device_info_free(mlxvk_device_info info) { return mlxvk_device_free(info); }

int mlxvk_device_info_is_string(bool *is_string, mlxvk_device_info info, const char *key)
{
    const char *text;
    return GIVE(is_string, !mlxvk_device_info_get_string(&text, info, key));
}

int mlxvk_device_info_has_key(bool *exists, mlxvk_device_info info, const char *key)
{
    size_t value;
    int code = mlxvk_device_info_is_string(exists, info, key);
    if (!code && !*exists) *exists = !mlxvk_device_info_get_size(&value, info, key);
    return code;
}

int mlxvk_device_info_get_keys(mlxvk_vector_string *keys, mlxvk_device_info info)
{
    static const char *const names[] = {
#define X(name, value) name,
        INFO_STRINGS(X) INFO_SIZES(X)
#undef X
    };
    struct vector *l = device_or_default(info) && keys ? list_new(&string_kind) : NULL;
    int code = l ? list_append(l, names, COUNT(names)) : MLXVK_ERROR_ARGUMENT;
    if (!code) code = list_append(l, capability_names, CAPABILITY_COUNT);
    return list_give(keys ? &keys->ctx : NULL, l, code);
}

/* ---- streams ---- */

mlxvk_stream mlxvk_default_cpu_stream_new(void) { return mlxvk_default_gpu_stream_new(); }

int mlxvk_stream_set(mlxvk_stream *stream, const mlxvk_stream src)
{
    struct stream *s = src.ctx;
    if (!stream) return MLXVK_ERROR_ARGUMENT;
    if (s) {
        lock_device(s->device);
        s->refs++;
        mutex_unlock(&s->device->lock);
    }
    mlxvk_stream old = *stream;
    stream->ctx = s;
    return mlxvk_stream_free(old);
}

bool mlxvk_stream_equal(mlxvk_stream lhs, mlxvk_stream rhs) { return lhs.ctx == rhs.ctx; }

int mlxvk_stream_get_device(mlxvk_device *dev, mlxvk_stream stream)
{
    return stream.ctx ? mlxvk_device_set(dev, mlxvk_stream_device(stream)) : MLXVK_ERROR_ARGUMENT;
}

int mlxvk_stream_tostring(mlxvk_string *str, mlxvk_stream stream)
{
    const struct stream *s = stream.ctx;
    struct text t = { 0 };
    if (!s || !str) return MLXVK_ERROR_ARGUMENT;
    text_add(&t, "Stream(Device(gpu, %d), %d)", s->device->index, s->index);
    return put_text(str, &t);
}

int mlxvk_get_default_stream(mlxvk_stream *stream, mlxvk_device dev)
{
    if (!stream) return MLXVK_ERROR_ARGUMENT;
    mlxvk_stream fresh = stream_handle(dev, true), old = *stream;
    if (!fresh.ctx) return MLXVK_ERROR_NO_DEVICE;
    *stream = fresh;
    return mlxvk_stream_free(old);
}

int mlxvk_set_default_stream(mlxvk_stream stream)
{
    struct stream *s = stream.ctx, *old;
    if (!s) return MLXVK_ERROR_ARGUMENT;
    lock_device(s->device);
    old = s->device->default_stream;
    s->device->default_stream = s;
    if (old && old != s) { old->refs++; stream_drop(old); }
    return unlock_and_drop(s->device);
}

/* ---- errors ---- */

void mlxvk_set_error_handler(mlxvk_error_handler_func handler, void *data, void (*dtor)(void *))
{
    mutex_lock(&the_default.lock);
    mutex_lock(&the_default.handler_lock);
    void (*old_dtor)(void *) = the_default.dtor;
    void *old = the_default.data;
    the_default.handler = handler;
    the_default.data = data;
    the_default.dtor = dtor;
    mutex_unlock(&the_default.handler_lock);
    choose_handler(make_default(), true);
    mutex_unlock(&the_default.lock);
    if (old_dtor) old_dtor(old);
}

/* ---- arrays ---- */

mlxvk_array mlxvk_array_new_data_managed_payload(void *data, const int *shape, int dim, mlxvk_dtype dtype,
                                                 void *payload, void (*dtor)(void *))
{
    mlxvk_array res = mlxvk_array_new_data(data, shape, dim, dtype);
    if (dtor) dtor(payload);
    return res;
}

mlxvk_array mlxvk_array_new_data_managed(void *data, const int *shape, int dim, mlxvk_dtype dtype, void (*dtor)(void *))
{
    return mlxvk_array_new_data_managed_payload(data, shape, dim, dtype, data, dtor);
}

#define X(one, data, type, dtype) \
    int one(type *res, const mlxvk_array arr) { return item(res, arr, dtype); } \
    const type *data(const mlxvk_array arr) { return mlxvk_array_dtype(arr) == dtype ? mlxvk_array_data(arr) : NULL; }
X(mlxvk_array_item_bool, mlxvk_array_data_bool, bool, MLXVK_BOOL)
X(mlxvk_array_item_uint8, mlxvk_array_data_uint8, uint8_t, MLXVK_UINT8)
X(mlxvk_array_item_uint16, mlxvk_array_data_uint16, uint16_t, MLXVK_UINT16)
X(mlxvk_array_item_uint32, mlxvk_array_data_uint32, uint32_t, MLXVK_UINT32)
X(mlxvk_array_item_uint64, mlxvk_array_data_uint64, uint64_t, MLXVK_UINT64)
X(mlxvk_array_item_int8, mlxvk_array_data_int8, int8_t, MLXVK_INT8)
X(mlxvk_array_item_int16, mlxvk_array_data_int16, int16_t, MLXVK_INT16)
X(mlxvk_array_item_int32, mlxvk_array_data_int32, int32_t, MLXVK_INT32)
X(mlxvk_array_item_int64, mlxvk_array_data_int64, int64_t, MLXVK_INT64)
X(mlxvk_array_item_float32, mlxvk_array_data_float32, float, MLXVK_FLOAT32)
X(mlxvk_array_item_float64, mlxvk_array_data_float64, double, MLXVK_FLOAT64)
X(mlxvk_array_item_complex64, mlxvk_array_data_complex64, mlxvk_complex64_t, MLXVK_COMPLEX64)
X(mlxvk_array_item_float16, mlxvk_array_data_float16, mlxvk_float16_t, MLXVK_FLOAT16)
X(mlxvk_array_item_bfloat16, mlxvk_array_data_bfloat16, mlxvk_bfloat16_t, MLXVK_BFLOAT16)
#undef X

/* ---- arrays as text, as MLX prints them ---- */

enum { PRINT_WHOLE = 6, PRINT_EDGE = 3 };

static double half_value(uint32_t bits)
{
    int exponent = (int)(bits >> 10 & 31), mantissa = (int)(bits & 1023);
    double size = exponent == 31 ? (mantissa ? NAN : INFINITY)
        : exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
    return bits & 0x8000u ? -size : size;
}

/* A number of n bytes, the lowest one first, as files and devices have them. */
static uint64_t little(const uint8_t *bytes, size_t n)
{
    uint64_t value = 0;
    while (n--) value = value << 8 | bytes[n];
    return value;
}

static double float_value(const void *data, mlxvk_dtype dtype, size_t i)
{
    uint32_t bits = (uint32_t)little((const uint8_t *)data + dtypes[dtype].size * i, dtypes[dtype].size);
    float value;
    if (dtype == MLXVK_FLOAT16) return half_value(bits);
    if (dtype == MLXVK_BFLOAT16) bits <<= 16;
    memcpy(&value, &bits, 4);
    return (double)value;
}

static void print_element(struct text *t, const void *data, mlxvk_dtype dtype, size_t i)
{
    size_t size = dtypes[dtype].size;
    if (is_complex(dtype))
        text_add(t, "%g%+gj", float_value(data, MLXVK_FLOAT32, 2 * i), float_value(data, MLXVK_FLOAT32, 2 * i + 1));
    else if (is_float(dtype)) text_add(t, "%g", float_value(data, dtype, i));
    else {
        uint64_t bits = little((const uint8_t *)data + i * size, size);
        if (dtype == MLXVK_BOOL) text_add(t, bits ? "True" : "False");
        else if (dtypes[dtype].kind == KIND_UINT) text_add(t, "%llu", (unsigned long long)bits);
        else text_add(t, "%lld", (long long)(int64_t)(bits << (64 - 8 * size)) >> (64 - 8 * size));
    }
}

/* Dimension `axis` of the printed part; whole: the array's own shape. */
static void print_axis(struct text *t, const void *data, const struct array *part, const int *whole, int axis,
                       size_t *next)
{
    if (axis == part->ndim) { print_element(t, data, part->dtype, (*next)++); return; }
    text_add(t, "[");
    for (int i = 0; i < part->shape[axis]; i++) {
        const char *between = axis + 1 < part->ndim ? ",\n" : ", ";
        for (int gap = 0; gap < 1 + (i == PRINT_EDGE && whole[axis] > PRINT_WHOLE); gap++) {
            if (gap) text_add(t, "...");
            if (i || gap) text_add(t, "%s", between);
            if ((i || gap) && axis + 1 < part->ndim) text_add(t, "%*s", 7 + axis, "");
        }
        print_axis(t, data, part, whole, axis + 1, next);
    }
    text_add(t, "]");
}

/* The first and last elements of long axes, which is what is printed. */
static struct array *corners(struct call *c, struct array *a)
{
    for (int axis = 0; a && axis < a->ndim; axis++) {
        int shape[MAXD], n = a->shape[axis];
        struct array *out;
        if (n <= PRINT_WHOLE) continue;
        memcpy(shape, a->shape, sizeof shape);
        shape[axis] = 2 * PRINT_EDGE;
        out = output(c, a->ndim, shape, a->dtype);
        append_copy(c, slice_one(c, out, axis, 0, PRINT_EDGE), slice_one(c, a, axis, 0, PRINT_EDGE));
        append_copy(c, slice_one(c, out, axis, PRINT_EDGE, PRINT_EDGE),
                    slice_one(c, a, axis, n - PRINT_EDGE, PRINT_EDGE));
        a = out;
    }
    return a;
}

/* The elements of an array, row-major, in memory that is to be freed. */
static int array_elements(mlxvk_array array, void **data, size_t *size)
{
    mlxvk_stream s = { NULL };
    *size = mlxvk_array_nbytes(array);
    *data = malloc(*size + 1);
    int code = mlxvk_get_default_stream(&s, (mlxvk_device){ ((struct array *)array.ctx)->storage->device });
    if (!code) code = *data ? mlxvk_array_read(array, *data, *size, s) : MLXVK_ERROR_HOST_MEMORY;
    mlxvk_stream_free(s);
    if (code) free(*data);
    return code;
}

int mlxvk_array_tostring(mlxvk_string *str, const mlxvk_array arr)
{
    const struct array *a = arr.ctx;
    mlxvk_array part = { NULL };
    struct text t = { 0 };
    size_t size, next = 0;
    void *data;
    if (!a || !str) return MLXVK_ERROR_ARGUMENT;
    struct call c = begin_on("array_tostring", lock_device(a->storage->device), NULL);
    int code = finish(&c, corners(&c, input(&c, "arr", arr)), &part);
    if (!code) code = array_elements(part, &data, &size);
    if (!code) {
        text_add(&t, "array(");
        print_axis(&t, data, part.ctx, a->shape, 0, &next);
        text_add(&t, ", dtype=%s)", dtypes[a->dtype].name);
        free(data);
        code = put_text(str, &t);
    }
    mlxvk_array_free(part);
    return code;
}

/* ==== >>public: files: safetensors, npy and GGUF ================================================================== */

struct io { void *descriptor; mlxvk_io_vtable calls; };

/* One call that reads or writes; its first error sticks. */
struct file {
    const char *name, *path;                         /* of the call; of a file of the system, which ends with it */
    mlxvk_stream stream;
    struct io *io;
    size_t size, at;                                 /* of what is there to read; what was read, or written, so far */
    int code;
};

static struct io *io_new(void *descriptor, mlxvk_io_vtable calls)
{
    struct io *io = calloc(1, sizeof *io);
    if (io) *io = (struct io){ descriptor, calls };
    return io;
}

static int io_free(struct io *io)
{
    if (io && io->calls.free) io->calls.free(io->descriptor);
    free(io);
    return 0;
}

static int io_descriptor(void **res, const struct io *io)
{
    return io ? GIVE(res, io->descriptor) : MLXVK_ERROR_ARGUMENT;
}

static const char *io_label(const struct io *io)
{
    return io && io->calls.label ? io->calls.label(io->descriptor) : "(no name)";
}

#define X(type, NEW, DESCRIPTOR, TOSTRING, FREE) \
    type NEW(void *desc, mlxvk_io_vtable vtable) { return (type){ io_new(desc, vtable) }; } \
    int DESCRIPTOR(void **desc, type io) { return io_descriptor(desc, io.ctx); } \
    int TOSTRING(mlxvk_string *str, type io) { return put_string(str, text_copy(io_label(io.ctx))); } \
    int FREE(type io) { return io_free(io.ctx); }
X(mlxvk_io_reader, mlxvk_io_reader_new, mlxvk_io_reader_descriptor, mlxvk_io_reader_tostring, mlxvk_io_reader_free)
X(mlxvk_io_writer, mlxvk_io_writer_new, mlxvk_io_writer_descriptor, mlxvk_io_writer_tostring, mlxvk_io_writer_free)
#undef X

/* ---- a file of the system as such an object ---- */

struct disk { struct io io; FILE *file; const char *path; bool good; };      /* io is freed as what begins with it */

#ifdef _WIN32
#define seek_file _fseeki64
#define tell_file _ftelli64
#else
#define seek_file(file, at, whence) fseek(file, (long)(at), whence)
#define tell_file ftell
#endif

static FILE *disk_stream(void *d) { return ((struct disk *)d)->file; }
static void disk_note(struct disk *d, bool good) { d->good = good && d->good; }

static bool disk_good(void *d) { return ((struct disk *)d)->good; }
static const char *disk_label(void *d) { return ((struct disk *)d)->path; }
static size_t disk_tell(void *d) { return (size_t)tell_file(disk_stream(d)); }
static void disk_seek(void *d, int64_t at, int whence) { disk_note(d, !seek_file(disk_stream(d), at, whence)); }
static void disk_read(void *d, char *data, size_t n) { disk_note(d, fread(data, 1, n, disk_stream(d)) == n); }
static void disk_write(void *d, const char *data, size_t n) { disk_note(d, fwrite(data, 1, n, disk_stream(d)) == n); }
static void disk_close(void *d) { fclose(disk_stream(d)); }

static struct io *disk_open(const char *path, const char *mode)
{
    static const mlxvk_io_vtable calls = { .is_open = disk_good, .good = disk_good, .tell = disk_tell,
                                           .seek = disk_seek, .read = disk_read,
                                           .write = disk_write, .label = disk_label, .free = disk_close };
    FILE *file = path ? fopen(path, mode) : NULL;
    struct disk *d = file ? malloc(sizeof *d) : NULL;
    if (d) *d = (struct disk){ { d, calls }, file, path, true };
    else if (file) fclose(file);
    return d ? &d->io : NULL;
}

static struct file disk_file(const char *call, const char *path, const char *mode, mlxvk_stream s)
{
    return (struct file){ .name = call, .path = path ? path : "NULL", .stream = s, .io = disk_open(path, mode) };
}

/* ---- reading and writing with errors ---- */

static int file_fail(struct file *f, int code, const char *format, ...)
{
    va_list arguments;
    char text[300];
    if (f->code) return f->code;
    f->code = code;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    struct call c = begin(f->name, f->stream);
    FAIL(&c, code, "%s: %s", io_label(f->io), text);
    if (c.device && c.stream) c.device->error = c.stream->error;
    end(&c);
    return code;
}

static int file_no_memory(struct file *f) { return file_fail(f, MLXVK_ERROR_HOST_MEMORY, "out of host memory"); }

/* Memory for what is read or written; NULL after an error. */
static void *file_memory(struct file *f, size_t n)
{
    void *data = f->code ? NULL : malloc(n + 1);
    if (!data) file_fail(f, MLXVK_ERROR_HOST_MEMORY, "no memory for %zu bytes", n);
    return data;
}

static bool io_good(const struct io *io) { return !io->calls.good || io->calls.good(io->descriptor); }

/* n bytes from `at` on. */
static bool file_read(struct file *f, size_t at, void *data, size_t n)
{
    const mlxvk_io_vtable *v = &f->io->calls;
    if (f->code) return false;
    if (at > f->size || n > f->size - at)
        return file_fail(f, MLXVK_ERROR_ARGUMENT, "%zu bytes at %zu of %zu", n, at, f->size), false;
    if (n && v->read_at_offset) v->read_at_offset(f->io->descriptor, data, n, at);
    else if (n) { v->seek(f->io->descriptor, (int64_t)at, SEEK_SET); v->read(f->io->descriptor, data, n); }
    if (!io_good(f->io)) file_fail(f, MLXVK_ERROR_ARGUMENT, "%zu bytes at %zu cannot be read", n, at);
    return !f->code;
}

/* The next n bytes. */
static bool take_bytes(struct file *f, void *data, size_t n)
{
    bool good = file_read(f, f->at, data, n);
    if (good) f->at += n;
    return good;
}

/* The next number of so many bytes; 0 after an error. */
static uint64_t take_number(struct file *f, size_t bytes)
{
    uint8_t raw[8];
    return take_bytes(f, raw, bytes) ? little(raw, bytes) : 0;
}

/* The next n bytes as a text, to be freed; NULL after an error. */
static char *take_text(struct file *f, uint64_t n)
{
    char *text = f->code || n > f->size ? NULL : file_memory(f, (size_t)n);
    if (!text) file_fail(f, MLXVK_ERROR_ARGUMENT, "a text of %llu bytes", (unsigned long long)n);
    if (text && !take_bytes(f, text, (size_t)n)) { free(text); return NULL; }
    if (text) text[n] = 0;
    return text;
}

static bool file_open(struct file *f)
{
    const mlxvk_io_vtable *v = f->io ? &f->io->calls : NULL;
    if (f->code) return false;
    if (!v && f->path) return file_fail(f, MLXVK_ERROR_ARGUMENT, "%s cannot be opened", f->path), false;
    if (!v || !v->seek || !v->tell || !v->read)
        return file_fail(f, MLXVK_ERROR_ARGUMENT, "the reader lacks seek, tell or read"), false;
    v->seek(f->io->descriptor, 0, SEEK_END);
    f->size = v->tell(f->io->descriptor);
    v->seek(f->io->descriptor, 0, SEEK_SET);
    if (!io_good(f->io)) file_fail(f, MLXVK_ERROR_ARGUMENT, "cannot be read");
    return !f->code;
}

static bool file_create(struct file *f)
{
    if (!f->io && f->path) file_fail(f, MLXVK_ERROR_ARGUMENT, "%s cannot be opened for writing", f->path);
    else if (!f->io || !f->io->calls.write) file_fail(f, MLXVK_ERROR_ARGUMENT, "cannot be written");
    return !f->code;
}

static void file_write(struct file *f, const void *data, size_t n)
{
    if (f->code) return;
    f->io->calls.write(f->io->descriptor, data, n);
    f->at += n;
    if (!io_good(f->io)) file_fail(f, MLXVK_ERROR_ARGUMENT, "%zu bytes cannot be written", n);
}

static void write_number(struct file *f, uint64_t value, size_t bytes)
{
    uint8_t raw[8];
    for (int i = 0; i < 8; i++) raw[i] = (uint8_t)(value >> (8 * i));
    file_write(f, raw, bytes);
}

/* Writes a text that was made, and frees it. */
static void write_made(struct file *f, struct text *t)
{
    if (t->failed) file_no_memory(f);
    file_write(f, t->data, t->size);
    free(t->data);
}

/* Ends a call. What was written may fail until now, where it is buffered. */
static int file_end(struct file *f, bool written)
{
    if (f->path && f->io && written && fflush(disk_stream(f->io)))
        file_fail(f, MLXVK_ERROR_ARGUMENT, "cannot be written");
    if (f->path) io_free(f->io);
    return f->code;
}

/* A shape as it stands in a file, or reversed, of elements of so many bits, that are all in the file; their bytes. */
static uint64_t file_shape(struct file *f, const char *name, uint64_t ndim, const uint64_t *sizes, bool reversed,
                           int bits, int *shape)
{
    uint64_t all = (uint64_t)bits;
    for (uint64_t i = 0; i < ndim && !f->code; i++) {
        if (sizes[i] > INT_MAX || (sizes[i] && all > 8 * (uint64_t)f->size / sizes[i]))
            file_fail(f, MLXVK_ERROR_SHAPE, "%s is larger than the file", name);
        shape[reversed ? ndim - 1 - i : i] = (int)sizes[i];
        all *= sizes[i];
    }
    return all / 8;
}

/* The bytes of a file from `at` on as an array of the stream's device. */
static mlxvk_array file_array(struct file *f, size_t at, int ndim, const int *shape, mlxvk_dtype dtype)
{
    mlxvk_array res = { NULL };
    size_t n = dtypes[dtype].size;
    for (int i = 0; i < ndim; i++) n *= (size_t)shape[i];
    void *data = file_memory(f, n);
    if (data && file_read(f, at, data, n)) {
        int code = mlxvk_array_new_data_device(&res, data, shape, ndim, dtype, mlxvk_stream_device(f->stream));
        if (code) file_fail(f, code, "an array of %zu bytes of %s cannot be made", n, dtypes[dtype].name);
    }
    free(data);
    return res;
}

/* The map takes an array over. */
static void file_keep(struct file *f, struct vector *m, const char *key, mlxvk_array array)
{
    if (f->code) mlxvk_array_free(array);
    else if (map_take(m, key, (union value){ .array = array })) file_no_memory(f);
}

/* The elements of an array, row-major. */
static void file_write_array(struct file *f, mlxvk_array array)
{
    size_t n;
    void *data;
    int code = f->code ? f->code : array_elements(array, &data, &n);
    if (code) { file_fail(f, code, "an array cannot be read"); return; }
    file_write(f, data, n);
    free(data);
}

/* Each begins at a multiple of so many bytes, and so does what would come behind the last. */
static void write_arrays(struct file *f, const struct vector *arrays, size_t align)
{
    for (size_t i = 0; i <= arrays->size; i++) {
        while (!f->code && f->at % align) write_number(f, 0, 1);
        if (i < arrays->size) file_write_array(f, ((const struct entry *)list_at(arrays, i))->value.array);
    }
}

/* ---- as much JSON as a safetensors header is ---- */

/* The text's end is a 0. */
struct json { const char *at, *end; bool bad; };

static bool json_take(struct json *j, char wanted)
{
    while (j->at < j->end && strchr(" \t\r\n", *j->at) && *j->at) j->at++;
    if (j->at < j->end && *j->at == wanted) { j->at++; return true; }
    return false;
}

static void json_want(struct json *j, char wanted) { if (!json_take(j, wanted)) j->bad = true; }

static bool json_null(struct json *j)
{
    json_take(j, 0);                                     /* white space */
    bool null = !strncmp(j->at, "null", 4);
    if (null) j->at += 4;
    return null;
}

static uint32_t json_hex(struct json *j)
{
    char digits[5] = "";
    if (strspn(j->at, "0123456789abcdefABCDEF") < 4) { j->bad = true; return 0; }
    memcpy(digits, j->at, 4);
    j->at += 4;
    return (uint32_t)strtoul(digits, NULL, 16);
}

static char *utf8(char *to, uint32_t c)
{
    int more = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;     /* bytes behind the first, which counts them */
    *to++ = (char)((more ? 0xff00u >> (more + 1) & 0xff : 0) | c >> 6 * more);
    while (more--) *to++ = (char)(0x80 | (c >> 6 * more & 63));
    return to;
}

/* A string, to be freed; NULL where there is none. */
static char *json_string(struct json *j)
{
    static const char escapes[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    const char *p;
    json_want(j, '"');
    for (p = j->at; p < j->end && *p != '"'; p++) if (*p == '\\') p++;
    /* escapes are longer than what they stand for */
    char *text = j->bad || p >= j->end ? NULL : malloc((size_t)(p - j->at) + 1), *to = text;
    if (!text) { j->bad = true; return NULL; }
    while (j->at < j->end && *j->at != '"' && !j->bad) {
        if (*j->at != '\\') { *to++ = *j->at++; continue; }
        j->at++;
        const char *e = *j->at ? strchr(escapes, *j->at) : NULL;
        if (!e && *j->at != 'u') { j->bad = true; break; }
        j->at++;
        if (e) { *to++ = meant[e - escapes]; continue; }
        uint32_t c = json_hex(j);
        if (c >= 0xd800 && c < 0xdc00 && j->end - j->at > 6 && j->at[0] == '\\' && j->at[1] == 'u') {
            j->at += 2;
            c = 0x10000 + ((c - 0xd800) << 10) + ((json_hex(j) - 0xdc00) & 0x3ff);
        }
        to = utf8(to, c);
    }
    *to = 0;
    json_want(j, '"');
    if (!j->bad) return text;
    free(text);
    return NULL;
}

/* The next key of an object, of which so many were read: a text, to be freed; NULL behind the last. */
static char *json_key(struct json *j, int *count)
{
    bool more = (*count)++ ? json_take(j, ',') : (json_want(j, '{'), !json_take(j, '}'));
    char *key = more ? json_string(j) : NULL;
    if (key) json_want(j, ':');
    else if (*count > 1) json_want(j, '}');
    return key;
}

/* One that is too large is the largest, which nothing takes. */
static uint64_t json_number(struct json *j)
{
    char *end;
    json_take(j, 0);                                     /* white space */
    if (*j->at < '0' || *j->at > '9') { j->bad = true; return 0; }
    unsigned long long value = strtoull(j->at, &end, 10);
    j->at = end;
    return value;
}

/* [number, number, ...] of at most `most`; returns how many. */
static int json_numbers(struct json *j, uint64_t *values, int most)
{
    int n = 0;
    json_want(j, '[');
    if (json_take(j, ']')) return 0;
    do {
        uint64_t value = json_number(j);
        if (n == most) j->bad = true;
        if (j->bad) return 0;
        values[n++] = value;
    } while (json_take(j, ','));
    json_want(j, ']');
    return n;
}

static void json_quote(struct text *t, const char *text)
{
    text_add(t, "\"");
    for (const char *p = text; *p; p++) {
        if (*p == '"' || *p == '\\') text_add(t, "\\%c", *p);
        else if ((unsigned char)*p < 0x20) text_add(t, "\\u%04x", (unsigned)*p);
        else text_add(t, "%c", *p);
    }
    text_add(t, "\"");
}

/* ---- safetensors ---- */

enum { SAFETENSORS_HEADER = 100 << 20 };

/* Names of dtypes in safetensors, and in npy: kind and size. */
static const struct { const char *name, *npy; } file_dtypes[MLXVK_DTYPE_COUNT] = {
    [MLXVK_BOOL]   = { "BOOL", "|b1" }, [MLXVK_UINT8]    = { "U8", "|u1" },   [MLXVK_UINT16]    = { "U16", "<u2" },
    [MLXVK_UINT32] = { "U32", "<u4" },  [MLXVK_UINT64]   = { "U64", "<u8" },  [MLXVK_INT8]      = { "I8", "|i1" },
    [MLXVK_INT16]  = { "I16", "<i2" },  [MLXVK_INT32]    = { "I32", "<i4" },  [MLXVK_INT64]     = { "I64", "<i8" },
    [MLXVK_FLOAT16] = { "F16", "<f2" }, [MLXVK_FLOAT32]  = { "F32", "<f4" },  [MLXVK_FLOAT64]   = { "F64", "<f8" },
    [MLXVK_BFLOAT16] = { "BF16", "<V2" }, [MLXVK_COMPLEX64] = { "C64", "<c8" },
};

static int file_dtype(const char *name, bool npy)
{
    /* as MLX: for from_fp8, and scales */
    if (!strcmp(name, "F8_E4M3") || !strcmp(name, "F8_E8M0")) return MLXVK_UINT8;
    for (int t = 0; t < MLXVK_DTYPE_COUNT; t++)
        if (!strcmp(npy ? file_dtypes[t].npy + 1 : file_dtypes[t].name, name)) return t;
    return -1;
}

/* {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]} */
static void load_tensor(struct file *f, struct json *j, const char *key, struct vector *arrays)
{
    uint64_t sizes[MAXD] = { 0 }, range[2] = { 0, 0 };
    int ndim = -1, dtype = -1, shape[MAXD], count = 0;
    bool placed = false;
    for (char *name; (name = json_key(j, &count)) != NULL; free(name)) {
        if (!strcmp(name, "dtype")) {
            char *type = json_string(j);
            dtype = type ? file_dtype(type, false) : -1;
            free(type);
        }
        else if (!strcmp(name, "shape")) ndim = json_numbers(j, sizes, MAXD);
        else if (!strcmp(name, "data_offsets")) placed = json_numbers(j, range, 2) == 2;
        else j->bad = true;
    }
    if (j->bad || ndim < 0 || !placed) { j->bad = true; return; }
    if (dtype < 0 || dtype == MLXVK_FLOAT64) {
        file_fail(f, MLXVK_ERROR_DTYPE, "%s has a dtype that is not taken", key);
        return;
    }
    uint64_t bytes = file_shape(f, key, (uint64_t)ndim, sizes, false, 8 * dtypes[dtype].size, shape);
    if (range[0] > f->size || range[1] < range[0] || range[1] - range[0] != bytes)
        file_fail(f, MLXVK_ERROR_SHAPE, "%s has %llu bytes, which is not what its shape says", key,
                  (unsigned long long)(range[1] - range[0]));
    if (!f->code) file_keep(f, arrays, key, file_array(f, f->at + range[0], ndim, shape, (mlxvk_dtype)dtype));
}

/* {"key": "text", ...}, or what MLX writes where there is nothing: null */
static void load_metadata(struct file *f, struct json *j, struct vector *strings)
{
    int count = 0;
    if (json_null(j)) return;
    for (char *key; (key = json_key(j, &count)) != NULL; free(key)) {
        char *value = json_string(j);
        if (value && map_take(strings, key, (union value){ .text = value })) file_no_memory(f);
    }
}

static void load_header(struct file *f, const char *header, size_t size, struct vector *arrays, struct vector *strings)
{
    struct json j = { header, header + size, false };
    int count = 0;
    for (char *key; !f->code && (key = json_key(&j, &count)) != NULL; free(key)) {
        if (!strcmp(key, "__metadata__")) load_metadata(f, &j, strings);
        else load_tensor(f, &j, key, arrays);
    }
    if (j.bad) file_fail(f, MLXVK_ERROR_ARGUMENT, "the header is not that of a safetensors file");
}

static int load_safetensors(struct file f, mlxvk_map_string_to_array *res_0, mlxvk_map_string_to_string *res_1)
{
    struct vector *arrays = list_new(&array_entry), *strings = list_new(&string_entry);
    if (!res_0 || !res_1) file_fail(&f, MLXVK_ERROR_ARGUMENT, "a result is NULL");
    if (!arrays || !strings) file_no_memory(&f);
    uint64_t size = file_open(&f) ? take_number(&f, 8) : 0;
    if (size > SAFETENSORS_HEADER)
        file_fail(&f, MLXVK_ERROR_ARGUMENT, "a header of %llu bytes", (unsigned long long)size);
    char *header = f.code ? NULL : take_text(&f, size);
    if (header) load_header(&f, header, (size_t)size, arrays, strings);
    free(header);
    if (!f.code) list_give(&res_1->ctx, strings, 0);
    else list_free(strings);
    return list_give(res_0 ? &res_0->ctx : NULL, arrays, file_end(&f, false));
}

int mlxvk_load_safetensors(mlxvk_map_string_to_array *res_0, mlxvk_map_string_to_string *res_1, const char *file,
                           mlxvk_stream s)
{
    return load_safetensors(disk_file("load_safetensors", file, "rb", s), res_0, res_1);
}

int mlxvk_load_safetensors_reader(mlxvk_map_string_to_array *res_0, mlxvk_map_string_to_string *res_1,
                                  mlxvk_io_reader in_stream, mlxvk_stream s)
{
    struct file f = { .name = "load_safetensors_reader", .stream = s, .io = in_stream.ctx };
    return load_safetensors(f, res_0, res_1);
}

static int save_safetensors(struct file f, const struct vector *arrays, const struct vector *strings)
{
    struct text t = { 0 };
    size_t at = 0;
    if (!arrays) file_fail(&f, MLXVK_ERROR_ARGUMENT, "the map of arrays is { NULL }");
    if (!file_create(&f)) return file_end(&f, true);
    text_add(&t, "{\"__metadata__\":{");
    for (size_t i = 0; strings && i < strings->size; i++) {
        const struct entry *e = list_at(strings, i);
        text_add(&t, i ? "," : "");
        json_quote(&t, e->key);
        text_add(&t, ":");
        json_quote(&t, e->value.text);
    }
    text_add(&t, "}");
    for (size_t i = 0; i < arrays->size; i++) {
        const struct entry *e = list_at(arrays, i);
        const struct array *a = e->value.array.ctx;
        text_add(&t, ",");
        json_quote(&t, e->key);
        text_add(&t, ":{\"dtype\":\"%s\",\"shape\":[", file_dtypes[a->dtype].name);
        for (int k = 0; k < a->ndim; k++) text_add(&t, k ? ",%d" : "%d", a->shape[k]);
        text_add(&t, "],\"data_offsets\":[%zu,%zu]}", at, at + array_bytes(a));
        at += array_bytes(a);
    }
    text_add(&t, "}");
    while (!t.failed && t.size % 8) text_add(&t, " ");
    write_number(&f, t.size, 8);
    write_made(&f, &t);
    write_arrays(&f, arrays, 1);
    return file_end(&f, true);
}

int mlxvk_save_safetensors(const char *file, mlxvk_map_string_to_array param, mlxvk_map_string_to_string metadata)
{
    struct file f = disk_file("save_safetensors", file, "wb", (mlxvk_stream){ NULL });
    return save_safetensors(f, param.ctx, metadata.ctx);
}

int mlxvk_save_safetensors_writer(mlxvk_io_writer in_stream, mlxvk_map_string_to_array param,
                                  mlxvk_map_string_to_string metadata)
{
    struct file f = { .name = "save_safetensors_writer", .io = in_stream.ctx };
    return save_safetensors(f, param.ctx, metadata.ctx);
}

/* ---- npy ---- */

enum { NPY_HEADER = 1 << 16 };

/* What stands behind 'key': in the header's dictionary. */
static const char *npy_field(const char *header, const char *key)
{
    const char *p = strstr(header, key);
    if (p) p = strchr(p, ':');
    if (p) for (p++; *p == ' '; p++) {}
    return p;
}

/* The header of an npy file, a text that is to be freed; its data come next. NULL after an error. */
static char *npy_header(struct file *f)
{
    uint8_t start[8];
    if (!take_bytes(f, start, sizeof start)) return NULL;
    if (memcmp(start, "\x93NUMPY", 6) || start[6] < 1 || start[6] > 3)
        return file_fail(f, MLXVK_ERROR_ARGUMENT, "is not an npy file"), NULL;
    uint64_t size = take_number(f, start[6] == 1 ? 2 : 4);
    if (size > NPY_HEADER) file_fail(f, MLXVK_ERROR_LIMIT, "a header of %llu bytes", (unsigned long long)size);
    return f->code ? NULL : take_text(f, size);
}

/* The array whose data come next. */
static mlxvk_array npy_array(struct file *f, const char *header)
{
    const char *descr = npy_field(header, "'descr'"), *order = npy_field(header, "'fortran_order'"),
        *dims = npy_field(header, "'shape'");
    char type[4] = "";
    uint64_t sizes[MAXD];
    int ndim = 0, shape[MAXD];
    mlxvk_array res = { NULL };
    if (!descr || !order || !dims || *dims != '(')
        return file_fail(f, MLXVK_ERROR_ARGUMENT, "is not an npy file"), res;
    sscanf(descr, "'%*[<|=]%3[^']", type);
    int dtype = file_dtype(type, true);
    if (dtype < 0 || dtype == MLXVK_FLOAT64)
        return file_fail(f, MLXVK_ERROR_DTYPE, "has a dtype that is not taken: %.5s", descr), res;
    for (dims++; *dims && *dims != ')'; dims += strspn(dims, " ,")) {
        char *next;
        unsigned long long n = strtoull(dims, &next, 10);
        if (next == dims || ndim == MAXD)
            return file_fail(f, MLXVK_ERROR_SHAPE, "has a shape that is not taken"), res;
        sizes[ndim++] = n;
        dims = next;
    }
    bool reversed = *order == 'T';                       /* the last axis is the outermost in memory */
    file_shape(f, "the array", (uint64_t)ndim, sizes, reversed, 8 * dtypes[dtype].size, shape);
    if (f->code) return res;
    res = file_array(f, f->at, ndim, shape, (mlxvk_dtype)dtype);
    if (!f->code && reversed) f->code = mlxvk_transpose(&res, res, f->stream);
    return res;
}

static int load_array(struct file f, mlxvk_array *res)
{
    mlxvk_array fresh = { NULL };
    if (!res) file_fail(&f, MLXVK_ERROR_ARGUMENT, "res is NULL");
    char *header = file_open(&f) ? npy_header(&f) : NULL;
    if (header) fresh = npy_array(&f, header);
    free(header);
    if (f.code) { mlxvk_array_free(fresh); return file_end(&f, false); }
    mlxvk_array_free(*res);
    *res = fresh;
    return file_end(&f, false);
}

int mlxvk_load(mlxvk_array *res, const char *file, mlxvk_stream s)
{
    return load_array(disk_file("load", file, "rb", s), res);
}

int mlxvk_load_reader(mlxvk_array *res, mlxvk_io_reader in_stream, mlxvk_stream s)
{
    return load_array((struct file){ .name = "load_reader", .stream = s, .io = in_stream.ctx }, res);
}

static int save_array(struct file f, const struct array *a)
{
    struct text t = { 0 };
    if (!a) file_fail(&f, MLXVK_ERROR_ARGUMENT, "the array is { NULL }");
    if (!file_create(&f)) return file_end(&f, true);
    text_add(&t, "{'descr': '%s', 'fortran_order': False, 'shape': (", file_dtypes[a->dtype].npy);
    for (int i = 0; i < a->ndim; i++) text_add(&t, i + 1 < a->ndim || a->ndim == 1 ? "%d," : "%d", a->shape[i]);
    text_add(&t, "), }");
    while (!t.failed && (t.size + 11) % 64) text_add(&t, " ");
    text_add(&t, "\n");
    file_write(&f, "\x93NUMPY\1", 8);                    /* version 1.0: the terminating 0 is part of it */
    write_number(&f, t.size, 2);
    write_made(&f, &t);
    file_write_array(&f, (mlxvk_array){ (void *)(uintptr_t)a });
    return file_end(&f, true);
}

int mlxvk_save(const char *file, mlxvk_array a)
{
    return save_array(disk_file("save", file, "wb", (mlxvk_stream){ NULL }), a.ctx);
}

int mlxvk_save_writer(mlxvk_io_writer out_stream, mlxvk_array a)
{
    return save_array((struct file){ .name = "save_writer", .io = out_stream.ctx }, a.ctx);
}

/* ---- GGUF ---- */

/* Tensors, and metadata by what it is: numbers (one, or a list), a text, a list of texts. */
struct gguf { struct vector *arrays, *numbers, *texts, *lists; };

static int gguf_free(struct gguf *g)
{
    if (!g) return 0;
    list_free(g->arrays);
    list_free(g->numbers);
    list_free(g->texts);
    list_free(g->lists);
    free(g);
    return 0;
}

static struct gguf *gguf_new(void)
{
    struct gguf *g = calloc(1, sizeof *g);
    if (g) *g = (struct gguf){ list_new(&array_entry), list_new(&array_entry), list_new(&string_entry),
                               list_new(&list_entry) };
    if (g && g->arrays && g->numbers && g->texts && g->lists) return g;
    gguf_free(g);
    return NULL;
}

mlxvk_io_gguf mlxvk_io_gguf_new(void) { return (mlxvk_io_gguf){ gguf_new() }; }
int mlxvk_io_gguf_free(mlxvk_io_gguf io) { return gguf_free(io.ctx); }

int mlxvk_io_gguf_get_keys(mlxvk_vector_string *keys, mlxvk_io_gguf io)
{
    const struct gguf *g = io.ctx;
    struct vector *l = g && keys ? list_new(&string_kind) : NULL;
    int code = l ? 0 : MLXVK_ERROR_ARGUMENT;
    for (size_t i = 0; !code && i < g->arrays->size; i++)
        code = list_append(l, &((struct entry *)list_at(g->arrays, i))->key, 1);
    return list_give(keys ? &keys->ctx : NULL, l, code);
}

/* One of the maps, where there is an object. */
#define GGUF(io, map) ((io).ctx ? ((struct gguf *)(io).ctx)->map : NULL)

#define X(has, map) \
    int has(bool *flag, mlxvk_io_gguf io, const char *key) \
    { \
        return io.ctx && key ? GIVE(flag, map_find(GGUF(io, map), key) != NULL) : MLXVK_ERROR_ARGUMENT; \
    }
X(mlxvk_io_gguf_has_metadata_array, numbers)
X(mlxvk_io_gguf_has_metadata_string, texts)
X(mlxvk_io_gguf_has_metadata_vector_string, lists)
#undef X

#define X(get, type, map, give) \
    int get(type *res, mlxvk_io_gguf io, const char *key) \
    { \
        const struct entry *e = map_find(GGUF(io, map), key); \
        return e && res ? give : MLXVK_ERROR_ARGUMENT; \
    }
X(mlxvk_io_gguf_get_array, mlxvk_array, arrays, mlxvk_array_set(res, e->value.array))
X(mlxvk_io_gguf_get_metadata_array, mlxvk_array, numbers, mlxvk_array_set(res, e->value.array))
X(mlxvk_io_gguf_get_metadata_string, mlxvk_string, texts, put_string(res, text_copy(e->value.text)))
X(mlxvk_io_gguf_get_metadata_vector_string, mlxvk_vector_string, lists,
  list_assign(&res->ctx, &string_kind, e->value.list))
#undef X

#define X(set, type, map, member, from) \
    int set(mlxvk_io_gguf io, const char *key, type v) \
    { \
        return map_put(GGUF(io, map), key, (union value){ .member = from }); \
    }
X(mlxvk_io_gguf_set_array, mlxvk_array, arrays, array, v)
X(mlxvk_io_gguf_set_metadata_array, mlxvk_array, numbers, array, v)
X(mlxvk_io_gguf_set_metadata_string, const char *, texts, text, v)
X(mlxvk_io_gguf_set_metadata_vector_string, mlxvk_vector_string, lists, list, v.ctx)
#undef X

/* Types of metadata; texts and lists are by themselves. */
enum { GGUF_MAGIC = 0x46554747, GGUF_TEXT = 8, GGUF_LIST = 9, GGUF_DOUBLE = 12, GGUF_TYPES = 13, GGUF_ALIGN = 32 };
static const mlxvk_dtype gguf_types[GGUF_TYPES] = {
    MLXVK_UINT8, MLXVK_INT8, MLXVK_UINT16, MLXVK_INT16, MLXVK_UINT32, MLXVK_INT32, MLXVK_FLOAT32, MLXVK_BOOL,
    MLXVK_DTYPE_COUNT, MLXVK_DTYPE_COUNT, MLXVK_UINT64, MLXVK_INT64, MLXVK_FLOAT64 };

/* Types of tensors: whole elements, or blocks of 32 codes (bits; bytes of a block; the code of 0, or -1: the block
 * says). */
static const struct ggml_type { int type; mlxvk_dtype dtype; int bits, bytes, zero; } ggml_types[] = {
    { 0, MLXVK_FLOAT32, 0, 0, 0 }, { 1, MLXVK_FLOAT16, 0, 0, 0 }, { 30, MLXVK_BFLOAT16, 0, 0, 0 },
    { 24, MLXVK_INT8, 0, 0, 0 }, { 25, MLXVK_INT16, 0, 0, 0 }, { 26, MLXVK_INT32, 0, 0, 0 },
    { 27, MLXVK_INT64, 0, 0, 0 },
    { 2, MLXVK_UINT32, 4, 18, 8 }, { 3, MLXVK_UINT32, 4, 20, -1 }, { 8, MLXVK_UINT32, 8, 34, 128 },
};

/* A text with its length before it. */
static char *take_string(struct file *f) { return take_text(f, take_number(f, 8)); }

static void write_string(struct file *f, const char *text)
{
    write_number(f, strlen(text), 8);
    file_write(f, text, strlen(text));
}

/* Numbers of metadata as an array: one (ndim 0), or a list of n. */
static void take_numbers(struct file *f, struct gguf *g, const char *key, int type, int ndim, uint64_t n)
{
    mlxvk_dtype t = gguf_types[type];
    size_t size = dtypes[t].size, at = f->at;
    mlxvk_array a = { NULL };
    if (n > INT_MAX || n > f->size / size) {
        file_fail(f, MLXVK_ERROR_SHAPE, "%s has %llu numbers", key, (unsigned long long)n);
        return;
    }
    if (type != GGUF_DOUBLE) a = file_array(f, at, ndim, (int[]){ (int)n }, t);
    else {
        float *values = file_memory(f, (size_t)n * sizeof *values);
        for (uint64_t i = 0; values && i < n && !f->code; i++) {
            uint64_t bits = take_number(f, 8);
            double value;
            memcpy(&value, &bits, 8);
            values[i] = (float)value;
        }
        if (values && mlxvk_array_new_data_device(&a, values, (int[]){ (int)n }, ndim, MLXVK_FLOAT32,
                                                  mlxvk_stream_device(f->stream)))
            file_fail(f, MLXVK_ERROR_HOST_MEMORY, "no array of %llu numbers", (unsigned long long)n);
        free(values);
    }
    f->at = at + (size_t)n * size;
    file_keep(f, g->numbers, key, a);
}

static void take_strings(struct file *f, struct gguf *g, const char *key, uint64_t n)
{
    struct vector *l = list_new(&string_kind);
    for (uint64_t i = 0; i < n && l && !f->code; i++) {
        char *text = take_string(f), **place = text ? list_open(l, l->size) : NULL;
        if (place) *place = text;
        else { free(text); file_no_memory(f); }
    }
    if (f->code) list_free(l);
    else if (!l || map_take(g->lists, key, (union value){ .list = l })) file_no_memory(f);
}

static void take_metadata(struct file *f, struct gguf *g, uint64_t *align)
{
    char *key = take_string(f);
    uint64_t type = key ? take_number(f, 4) : 0;
    if (!key) return;
    if (type == GGUF_TEXT) {
        char *text = take_string(f);
        if (text && map_take(g->texts, key, (union value){ .text = text })) file_no_memory(f);
    } else if (type == GGUF_LIST) {
        uint64_t of = take_number(f, 4), n = take_number(f, 8);
        if (of == GGUF_TEXT) take_strings(f, g, key, n);
        else if (of >= GGUF_TYPES || of == GGUF_LIST)
            file_fail(f, MLXVK_ERROR_DTYPE, "%s is a list of what is not taken", key);
        else take_numbers(f, g, key, (int)of, 1, n);
    } else if (type >= GGUF_TYPES)
        file_fail(f, MLXVK_ERROR_DTYPE, "%s has type %llu", key, (unsigned long long)type);
    else {
        uint8_t number[4];
        if (!strcmp(key, "general.alignment") && type == 4 && file_read(f, f->at, number, 4))
            *align = little(number, 4);
        take_numbers(f, g, key, (int)type, 0, 1);
    }
    free(key);
}

/* A block's 32 codes in words, its scale and bias. */
static void unpack_block(const struct ggml_type *t, const uint8_t *in, uint8_t *codes, uint16_t *scale, uint16_t *bias)
{
    memcpy(scale, in, 2);
    if (t->zero < 0) memcpy(bias, in + 2, 2);
    else *bias = (uint16_t)half_bits((float)(-t->zero * half_value(*scale)));
    in += t->zero < 0 ? 4 : 2;
    for (int i = 0; i < 32 && t->bits == 8; i++) codes[i] = in[i] ^ 0x80;
    for (int i = 0; i < 8 && t->bits == 4; i++) {        /* low halves are the first 16 codes */
        codes[i] = (uint8_t)((in[2 * i] & 15) | in[2 * i + 1] << 4);
        codes[i + 8] = (uint8_t)(in[2 * i] >> 4 | (in[2 * i + 1] & 0xf0));
    }
}

/* Codes of blocks as MLX's quantized weights: words, and scales and biases of each block of 32 in float16. */
static void take_blocks(struct file *f, struct gguf *g, const char *key, size_t at, int ndim, int *shape,
                        const struct ggml_type *t)
{
    size_t blocks = 1, stem = strlen(key), suffix = strlen(".weight"), bytes = (size_t)t->bytes;
    int last = ndim ? shape[ndim - 1] / 32 : 0;
    if (!ndim || shape[ndim - 1] % 32) file_fail(f, MLXVK_ERROR_SHAPE, "%s has no whole blocks", key);
    for (int i = 0; i < ndim; i++) blocks *= (size_t)shape[i];
    blocks /= 32;
    uint8_t *raw = file_memory(f, blocks * bytes), *codes = file_memory(f, blocks * (size_t)t->bits * 4);
    uint16_t *scales = file_memory(f, blocks * 2), *biases = file_memory(f, blocks * 2);
    char *name = file_memory(f, stem + suffix);
    if (!f->code && file_read(f, at, raw, blocks * bytes))
        for (size_t b = 0; b < blocks; b++)
            unpack_block(t, raw + b * bytes, codes + b * (size_t)t->bits * 4, &scales[b], &biases[b]);
    if (stem >= suffix && !strcmp(key + stem - suffix, ".weight")) stem -= suffix;
    const struct { const char *suffix; const void *data; int last; mlxvk_dtype dtype; } parts[] = {
        { key + stem, codes, last * t->bits, MLXVK_UINT32 },
        { ".scales", scales, last, MLXVK_FLOAT16 }, { ".biases", biases, last, MLXVK_FLOAT16 } };
    for (size_t i = 0; i < COUNT(parts) && !f->code; i++) {
        mlxvk_array a = { NULL };
        shape[ndim - 1] = parts[i].last;
        snprintf(name, strlen(key) + suffix + 1, "%.*s%s", (int)stem, key, parts[i].suffix);
        if (mlxvk_array_new_data_device(&a, parts[i].data, shape, ndim, parts[i].dtype, mlxvk_stream_device(f->stream)))
            file_fail(f, MLXVK_ERROR_MEMORY, "no array for %s", key);
        file_keep(f, g->arrays, name, a);
    }
    free(raw); free(codes); free(scales); free(biases); free(name);
}

/* One tensor, whose description comes next; its data begin `data` bytes into the file. With data 0: only skip it. */
static void take_tensor(struct file *f, struct gguf *g, size_t data)
{
    char *key = take_string(f);
    uint64_t ndim = key ? take_number(f, 4) : 0, sizes[MAXD];
    int shape[MAXD];
    size_t kind = 0;
    if (ndim > MAXD) file_fail(f, MLXVK_ERROR_SHAPE, "%s has %llu dimensions", key, (unsigned long long)ndim);
    for (uint64_t i = 0; i < ndim && !f->code; i++) sizes[i] = take_number(f, 8);
    uint64_t type = take_number(f, 4), at = take_number(f, 8);
    if (!data || f->code) { free(key); return; }
    while (kind < COUNT(ggml_types) && ggml_types[kind].type != (int)type) kind++;
    const struct ggml_type *t = &ggml_types[kind];
    if (kind == COUNT(ggml_types))
        file_fail(f, MLXVK_ERROR_DTYPE, "%s has tensor type %llu, which is not taken", key, (unsigned long long)type);
    else                                                 /* the fastest dimension comes first */
        file_shape(f, key, ndim, sizes, true, t->bits ? t->bits : 8 * dtypes[t->dtype].size, shape);
    if (at > f->size) file_fail(f, MLXVK_ERROR_ARGUMENT, "%s lies outside", key);
    if (!f->code && t->bits) take_blocks(f, g, key, data + (size_t)at, (int)ndim, shape, t);
    else if (!f->code) file_keep(f, g->arrays, key, file_array(f, data + (size_t)at, (int)ndim, shape, t->dtype));
    free(key);
}

int mlxvk_load_gguf(mlxvk_io_gguf *gguf, const char *file, mlxvk_stream s)
{
    struct file f = disk_file("load_gguf", file, "rb", s);
    struct gguf *g = gguf_new();
    uint64_t align = GGUF_ALIGN;
    if (!gguf || !g) file_fail(&f, gguf ? MLXVK_ERROR_HOST_MEMORY : MLXVK_ERROR_ARGUMENT, "no result");
    if (file_open(&f)) {
        uint64_t magic = take_number(&f, 4), version = take_number(&f, 4);
        if (magic != GGUF_MAGIC || version < 2 || version > 3)
            file_fail(&f, MLXVK_ERROR_ARGUMENT, "is not a GGUF file of version 2 or 3");
        uint64_t count = take_number(&f, 8), pairs = take_number(&f, 8);
        for (uint64_t i = 0; i < pairs && !f.code; i++) take_metadata(&f, g, &align);
        size_t tensors = f.at;
        for (uint64_t i = 0; i < count && !f.code; i++) take_tensor(&f, g, 0);
        if (!align || align > 1 << 20)
            file_fail(&f, MLXVK_ERROR_ARGUMENT, "an alignment of %llu", (unsigned long long)align);
        size_t data = f.code ? 0 : round_up(f.at, (size_t)align);
        f.at = tensors;
        for (uint64_t i = 0; i < count && !f.code; i++) take_tensor(&f, g, data);
    }
    if (f.code) { gguf_free(g); return file_end(&f, false); }
    gguf_free(gguf->ctx);
    gguf->ctx = g;
    return file_end(&f, false);
}

static void save_metadata(struct file *f, const struct gguf *g)
{
    for (size_t i = 0; i < g->texts->size; i++) {
        const struct entry *e = list_at(g->texts, i);
        write_string(f, e->key);
        write_number(f, GGUF_TEXT, 4);
        write_string(f, e->value.text);
    }
    for (size_t i = 0; i < g->lists->size; i++) {
        const struct entry *e = list_at(g->lists, i);
        const struct vector *l = e->value.list;
        write_string(f, e->key);
        write_number(f, GGUF_LIST, 4);
        write_number(f, GGUF_TEXT, 4);
        write_number(f, l->size, 8);
        for (size_t k = 0; k < l->size; k++) write_string(f, *(char **)list_at(l, k));
    }
    for (size_t i = 0; i < g->numbers->size; i++) {
        const struct entry *e = list_at(g->numbers, i);
        const struct array *a = e->value.array.ctx;
        uint32_t type = 0;
        while (type < GGUF_TYPES && gguf_types[type] != a->dtype) type++;
        if (type == GGUF_TYPES || a->ndim > 1) {
            file_fail(f, MLXVK_ERROR_DTYPE, "%s cannot be metadata", e->key);
            return;
        }
        write_string(f, e->key);
        if (a->ndim) write_number(f, GGUF_LIST, 4);
        write_number(f, type, 4);
        if (a->ndim) write_number(f, a->size, 8);
        file_write_array(f, e->value.array);
    }
}

static void save_tensors(struct file *f, const struct vector *arrays)
{
    size_t at = 0;
    for (size_t i = 0; i < arrays->size && !f->code; i++) {
        const struct entry *e = list_at(arrays, i);
        const struct array *a = e->value.array.ctx;
        size_t kind = 0;
        while (kind < COUNT(ggml_types) && (ggml_types[kind].dtype != a->dtype || ggml_types[kind].bits)) kind++;
        if (kind == COUNT(ggml_types)) {
            file_fail(f, MLXVK_ERROR_DTYPE, "%s cannot be a tensor of %s", e->key, dtypes[a->dtype].name);
            return;
        }
        write_string(f, e->key);
        write_number(f, (uint64_t)a->ndim, 4);
        for (int k = a->ndim - 1; k >= 0; k--) write_number(f, (uint64_t)a->shape[k], 8);
        write_number(f, (uint64_t)ggml_types[kind].type, 4);
        write_number(f, at, 8);
        at += round_up(array_bytes(a), GGUF_ALIGN);
    }
}

int mlxvk_save_gguf(const char *file, mlxvk_io_gguf gguf)
{
    const struct gguf *g = gguf.ctx;
    struct file f = disk_file("save_gguf", file, "wb", (mlxvk_stream){ NULL });
    if (!g) file_fail(&f, MLXVK_ERROR_ARGUMENT, "gguf is { NULL }");
    if (!file_create(&f)) return file_end(&f, true);
    write_number(&f, GGUF_MAGIC, 4);
    write_number(&f, 3, 4);
    write_number(&f, g->arrays->size, 8);
    write_number(&f, g->texts->size + g->lists->size + g->numbers->size, 8);
    save_metadata(&f, g);
    save_tensors(&f, g->arrays);
    write_arrays(&f, g->arrays, GGUF_ALIGN);
    return file_end(&f, true);
}

/* ==== >>public: the encoder ======================================================================================= */

struct kernel {
    struct device *device;
    VkShaderModule module;
    struct pipeline pipeline;
    uint32_t push_size, threads[3];
    char name[64];
};

static int kernel_build(struct device *d, struct kernel *k, const mlxvk_kernel_desc *desc)
{
    uint32_t missing = module_lacks(d, desc->spirv, desc->spirv_size / 4);
    VkResult r = missing ? VK_ERROR_FEATURE_NOT_PRESENT : build_module(d, desc->spirv, desc->spirv_size, &k->module);
    if (r == VK_ERROR_FEATURE_NOT_PRESENT) {
        char names[128];
        name_missing(missing ? missing : CAP_SMALL & ~d->caps.bits, names, sizeof names);
        return device_fail(d, MLXVK_ERROR_UNSUPPORTED, r, __LINE__, "kernel", "%s cannot run: %s lacks %s", k->name,
                           d->caps.name, names);
    }
    if (r >= 0)
        r = build_pipeline(d, k->module, desc->bindings, desc->constants, desc->constant_count, &k->pipeline.handle);
    if (r >= 0) return 0;
    d->vk.vkDestroyShaderModule(d->handle, k->module, NULL);
    return device_fail(d, vk_code(d, r), r, __LINE__, "kernel", "%s could not be made (VkResult %d)", k->name, r);
}

static int kernel_check(struct device *d, const mlxvk_kernel_desc *desc)
{
    uint64_t threads = 1;
    if (!desc->spirv || desc->spirv_size < 20 || desc->spirv_size % 4 || desc->spirv[0] != 0x07230203u)
        return device_fail(d, MLXVK_ERROR_ARGUMENT, 0, __LINE__, "kernel", "spirv is no SPIR-V module");
    if (desc->bindings > d->caps.max_bindings || desc->push_size > PUSH_SIZE || desc->constant_count > MAX_SPEC ||
        (desc->constant_count && !desc->constants))
        return device_fail(d, MLXVK_ERROR_LIMIT, 0, __LINE__, "kernel",
                           "at most %u bindings, %d bytes of push constants, %d constants", d->caps.max_bindings,
                           PUSH_SIZE, MAX_SPEC);
    for (int i = 0; i < 3; i++) {
        threads *= desc->threads[i] ? desc->threads[i] : 1;
        if (threads > d->caps.max_threads)
            return device_fail(d, MLXVK_ERROR_LIMIT, 0, __LINE__, "kernel",
                               "%llu threads a workgroup; the device allows %u", (unsigned long long)threads,
                               d->caps.max_threads);
    }
    const char *refusal = module_refusal(desc->spirv, desc->spirv_size / 4, desc->bindings, d->caps.max_threads);
    return refusal ? device_fail(d, MLXVK_ERROR_ARGUMENT, 0, __LINE__, "kernel", "%s", refusal) : 0;
}

/* A kernel, with the device's error where there is none. The lock is held. */
static int kernel_make(struct device *d, const mlxvk_kernel_desc *desc, struct kernel **out)
{
    int code = d->lost ? d->lost : kernel_check(d, desc);
    if (code) return code;
    struct kernel *k = host_zalloc(d, sizeof *k);
    if (!k) return device_fail(d, MLXVK_ERROR_HOST_MEMORY, 0, __LINE__, "kernel", "out of host memory");
    snprintf(k->name, sizeof k->name, "%s", desc->name ? desc->name : "kernel");
    k->device = d;
    k->pipeline.name = k->name;
    k->pipeline.kernel = KERNEL_COUNT;
    k->pipeline.bindings = desc->bindings;
    k->push_size = desc->push_size;
    for (int i = 0; i < 3; i++) k->threads[i] = desc->threads[i] ? desc->threads[i] : 1;
    code = kernel_build(d, k, desc);
    if (code) { host_free(d, k); return code; }
    d->refs++;
    *out = k;
    return 0;
}

int mlxvk_kernel_new(mlxvk_kernel *res, const mlxvk_kernel_desc *desc, mlxvk_device device)
{
    struct device *d = res && desc ? lock_device(device.ctx) : NULL;
    struct kernel *k;
    if (!d) return MLXVK_ERROR_ARGUMENT;
    int code = drop_with(d, kernel_make(d, desc, &k));
    if (code) return code;
    mlxvk_kernel_free(*res);
    res->ctx = k;
    return 0;
}

/* Waits for the streams: the pipeline may be in use. */
static void kernel_release(struct device *d, struct kernel *k)
{
    wait_streams(d);
    for (struct stream *s = d->streams; s; s = s->next)
        if (s->encoder.step.pipeline == &k->pipeline) encoder_reset(&s->encoder);
    d->vk.vkDestroyPipeline(d->handle, k->pipeline.handle, NULL);
    d->vk.vkDestroyShaderModule(d->handle, k->module, NULL);
    host_free(d, k);
}

/* Frees a handle, and with it its reference to the device. */
#define X(name, type, kind, release) \
    int name(type handle) \
    { \
        struct kind *x = handle.ctx; \
        if (!x) return 0; \
        struct device *d = x->device; \
        mutex_lock(&d->lock); \
        release; \
        return unlock_and_drop(d); \
    }
X(mlxvk_buffer_free, mlxvk_buffer, buffer, buffer_release(d, x))
X(mlxvk_stream_free, mlxvk_stream, stream, stream_drop(x))
X(mlxvk_event_free, mlxvk_event, event, event_release(d, x))
X(mlxvk_kernel_free, mlxvk_kernel, kernel, kernel_release(d, x))
#undef X

int mlxvk_stream_encoder(mlxvk_encoder *res, mlxvk_stream stream)
{
    struct call c = begin("stream_encoder", stream);
    if (!res) FAIL(&c, MLXVK_ERROR_ARGUMENT, "res is NULL");
    if (c.code) return end(&c);
    stream_lower(c.stream, 0);
    encoder_reset(&c.stream->encoder);
    res->ctx = &c.stream->encoder;
    return end(&c);
}

/* Each encoder call runs under the lock; an error of it becomes the stream's. */
static struct encoder *lock_encoder(mlxvk_encoder handle)
{
    struct encoder *e = handle.ctx;
    if (e) mutex_lock(&e->device->lock);
    return e;
}

static int unlock_encoder(struct encoder *e)
{
    int code = e->code;
    if (code) {
        e->stream->error = e->error;
        e->code = e->device->lost;
        encoder_reset(e);
    }
    return unlock_with(e->device, code);
}

/* The caller's kernel of the next dispatch. */
int mlxvk_set_kernel(mlxvk_encoder handle, mlxvk_kernel kernel)
{
    struct encoder *e = lock_encoder(handle);
    struct kernel *k = kernel.ctx;
    if (!e) return MLXVK_ERROR_ARGUMENT;
    encoder_reset(e);
    if (!k || k->device != e->device)
        encoder_fail(e, MLXVK_ERROR_ARGUMENT, 0, __LINE__, "set_kernel", "no kernel of this device");
    else {
        e->step.pipeline = &k->pipeline;
        e->step.push_used = k->push_size;
        memset(e->step.push, 0, sizeof e->step.push);
    }
    return unlock_encoder(e);
}

/* Binds an array that another stream may have on its tape; the step keeps its memory until the dispatch. */
static uint32_t bind_held(struct encoder *e, uint32_t binding, struct array *a, bool write)
{
    struct stream *s = stream_of(a->storage);
    if (s && s != e->stream && a->storage->writers) stream_lower(s, 0);
    if (!write && !a->storage->buffer && !a->storage->literal && a->size)
        encoder_fail(e, MLXVK_ERROR_NOT_READY, 0, __LINE__, "input", "an operand was never computed");
    return bind_array(e, binding, a, write);
}

static int set_array(mlxvk_encoder handle, mlxvk_array array, uint32_t binding, uint32_t *shift, const char *name,
                     bool write)
{
    struct encoder *e = lock_encoder(handle);
    struct array *a = array.ctx;
    uint32_t at = 0;
    if (!e) return MLXVK_ERROR_ARGUMENT;
    if (!a || binding >= MAX_BINDINGS || a->storage->device != e->device)
        encoder_fail(e, MLXVK_ERROR_ARGUMENT, 0, __LINE__, name, "no array of this device, or binding %u", binding);
    else at = bind_held(e, binding, a, write);
    if (shift) *shift = at;
    return unlock_encoder(e);
}

#define X(name, write) \
    int name(mlxvk_encoder e, mlxvk_array array, uint32_t binding, uint32_t *shift) \
    { \
        return set_array(e, array, binding, shift, CALLED(name), write); \
    }
X(mlxvk_set_input_array, false)
X(mlxvk_set_output_array, true)
#undef X

int mlxvk_register_output_array(mlxvk_encoder handle, mlxvk_array array)
{
    struct encoder *e = lock_encoder(handle);
    struct array *a = array.ctx;
    int64_t low, high;
    if (!e) return MLXVK_ERROR_ARGUMENT;
    if (!a || a->storage->device != e->device)
        encoder_fail(e, MLXVK_ERROR_ARGUMENT, 0, __LINE__, "register_output_array", "no array of this device");
    else {
        array_span(a, &low, &high);
        if (low < high)
            set_bound(e, MAX_BOUND - 1 - e->registered, false,
                      (struct bound){ .kind = BOUND_STORAGE, .write = true, .storage = a->storage, .low = low,
                                      .high = high });
    }
    return unlock_encoder(e);
}

int mlxvk_set_buffer(mlxvk_encoder handle, mlxvk_buffer buffer, size_t offset, size_t size, uint32_t binding)
{
    struct encoder *e = lock_encoder(handle);
    struct buffer *b = buffer.ctx;
    if (!e) return MLXVK_ERROR_ARGUMENT;
    const struct capabilities *c = &e->device->caps;
    if (!b || b->device != e->device || binding >= MAX_BINDINGS || !size || offset > b->size ||
        size > b->size - offset || (b->offset + offset) % c->offset_align)
        encoder_fail(e, MLXVK_ERROR_ARGUMENT, 0, __LINE__, "set_buffer", "%zu bytes from %zu at binding %u", size,
                     offset, binding);
    else if (size > c->max_range)
        encoder_fail(e, MLXVK_ERROR_LIMIT, 0, __LINE__, "set_buffer", "%zu bytes; one binding reaches %zu", size,
                     c->max_range);
    else
        set_bound(e, binding, true, (struct bound){ .kind = BOUND_BUFFER, .write = true, .buffer = b,
                                                    .low = (int64_t)offset, .high = (int64_t)(offset + size) });
    return unlock_encoder(e);
}

int mlxvk_set_bytes(mlxvk_encoder handle, const void *data, uint32_t size, uint32_t offset)
{
    struct encoder *e = lock_encoder(handle);
    if (!e) return MLXVK_ERROR_ARGUMENT;
    struct step *t = &e->step;
    if (!data || offset > PUSH_SIZE || size > PUSH_SIZE - offset)
        encoder_fail(e, MLXVK_ERROR_LIMIT, 0, __LINE__, "set_bytes", "%u bytes at %u of %d", size, offset, PUSH_SIZE);
    else {
        memcpy(t->push + offset, data, size);
        if (offset + size > t->push_used) t->push_used = offset + size;
    }
    return unlock_encoder(e);
}

/* Of so many workgroups, or threads. */
static int dispatch_public(mlxvk_encoder handle, uint32_t x, uint32_t y, uint32_t z, bool threads)
{
    struct encoder *e = lock_encoder(handle);
    const uint32_t *per = (const uint32_t[]){ 1, 1, 1 };
    if (!e) return MLXVK_ERROR_ARGUMENT;
    const char *p = (const char *)e->step.pipeline;
    if (p && threads) per = ((const struct kernel *)(const void *)(p - offsetof(struct kernel, pipeline)))->threads;
    if (!p && !e->code) encoder_fail(e, MLXVK_ERROR_ARGUMENT, 0, __LINE__, "dispatch", "no kernel is set");
    dispatch(e, ceil_div(x, per[0]), ceil_div(y, per[1]), ceil_div(z, per[2]));
    bind_plan(e);
    maybe_commit(e->stream);
    return unlock_encoder(e);
}

#define X(name, threads) \
    int name(mlxvk_encoder e, uint32_t x, uint32_t y, uint32_t z) { return dispatch_public(e, x, y, z, threads); }
X(mlxvk_dispatch_threadgroups, false)
X(mlxvk_dispatch_threads, true)
#undef X

#define X(name, what) \
    int name(mlxvk_encoder handle) \
    { \
        struct encoder *e = lock_encoder(handle); \
        if (!e) return MLXVK_ERROR_ARGUMENT; \
        what; \
        return unlock_encoder(e); \
    }
X(mlxvk_encoder_barrier, encoder_barrier(e))
X(mlxvk_start_concurrent, e->concurrent = true; e->concurrent_from = e->live_count)
X(mlxvk_end_concurrent, e->concurrent = false)
#undef X

/* ==== >>public: kernels of the caller's in mlx-c's shape: new, config, apply ====================================== */

/* With what apply must know of the module: its specialization constants of 32 bits and the bools (by number, with their
 * values where nobody sets them, and their names where the module has names), and what its workgroup is made of. */
struct spirv_kernel {
    char *name;
    uint32_t *spirv;
    size_t words;
    uint32_t inputs, outputs;
    bool rows;                                       /* inputs are made row-contiguous */
    uint32_t count, values[MAX_SPEC];
    bool declared[MAX_SPEC], other[MAX_SPEC];        /* other: of other widths, which cannot be set */
    const char *names[MAX_SPEC];
    int group_constant[3];                           /* that is this side of the workgroup; -1: it is fixed */
    uint32_t group[3];
    mutex lock;                                      /* of the list, behind those of devices */
    struct spirv_variant *variants;
};

/* The kernel for a device and values of the constants. */
struct spirv_variant {
    mlxvk_kernel kernel;
    uint32_t values[MAX_SPEC];
    struct spirv_variant *next;
};

struct spirv_config {
    uint32_t outputs, arguments, grid[3], group[3];
    struct { int ndim, shape[MAXD]; mlxvk_dtype dtype; } output[MAX_BINDINGS];
    struct { char *name; uint32_t value; } argument[MAX_SPEC];
    bool filled;
    float value;
};

enum { SPIRV_ANY = -1 };

/* The first instruction of a kind whose operands begin with these, none of which is beyond its end; without: op 0. */
#define FIND(k, op, ...) spirv_find(k, op, (const int64_t[]){ __VA_ARGS__, SPIRV_ANY, SPIRV_ANY })
static struct spirv_instruction spirv_find(const struct spirv_kernel *k, uint32_t op, const int64_t want[3])
{
    struct spirv_instruction i = spirv_open(k->spirv, k->words);
    while (spirv_next(&i)) {
        uint32_t same = 0;
        while (i.op == op && same < 3 && (want[same] == SPIRV_ANY || (same < i.n && i.w[same] == want[same]))) same++;
        if (same == 3) return i;
    }
    return (struct spirv_instruction){ 0 };          /* where it is cut off, making the kernel says so */
}

static void read_constant(struct spirv_kernel *k, uint32_t number, uint32_t id)
{
    const struct spirv_instruction i = FIND(k, SPIRV_SPEC_CONSTANT, SPIRV_ANY, id), name = FIND(k, SPIRV_NAME, id);
    bool wide = !FIND(k, SPIRV_TYPE_INT, i.w[0], 32).op && !FIND(k, SPIRV_TYPE_FLOAT, i.w[0], 32).op;
    k->other[number] = i.op && (i.n != 3 || wide);
    if (!i.op) k->values[number] = FIND(k, SPIRV_SPEC_TRUE, SPIRV_ANY, id).op != 0;
    else if (!k->other[number]) k->values[number] = i.w[2];
    k->declared[number] = true;
    if (name.n > 1 && !(name.operands[name.n - 1] >> 24))              /* it ends there */
        k->names[number] = (const char *)(name.operands + 1);
    k->count = number + 1;
}

/* The workgroup's size is a constant called WorkgroupSize, or the operands of an execution mode: numbers, constants. */
static void read_group(struct spirv_kernel *k)
{
    const struct spirv_instruction built = FIND(k, SPIRV_DECORATE, SPIRV_ANY, SPIRV_BUILT_IN, SPIRV_WORKGROUP_SIZE),
        size = FIND(k, SPIRV_EXECUTION_MODE, SPIRV_ANY, SPIRV_LOCAL_SIZE);
    struct spirv_instruction parts;
    if (!built.op) parts = FIND(k, SPIRV_EXECUTION_MODE_ID, SPIRV_ANY, SPIRV_LOCAL_SIZE_ID);
    else if (!(parts = FIND(k, SPIRV_SPEC_COMPOSITE, SPIRV_ANY, built.w[0])).op)
        parts = FIND(k, SPIRV_COMPOSITE, SPIRV_ANY, built.w[0]);
    for (int i = 0; i < 3; i++) {
        struct spirv_instruction of = { 0 }, fixed = { 0 };
        if (parts.n == 5) of = FIND(k, SPIRV_DECORATE, parts.w[2 + i], SPIRV_SPEC_ID);
        if (parts.n == 5) fixed = FIND(k, SPIRV_CONSTANT, SPIRV_ANY, parts.w[2 + i]);
        k->group_constant[i] = of.n == 3 ? (int)min_u32(of.w[2], MAX_SPEC) : -1;
        k->group[i] = parts.n != 5 && size.n == 5 ? size.w[2 + i] : !of.op && fixed.n == 3 ? fixed.w[2] : 1;
    }
}

/* Constants with higher numbers keep their own values. */
static void read_constants(struct spirv_kernel *k)
{
    for (uint32_t number = 0; number < MAX_SPEC; number++) {
        const struct spirv_instruction i = FIND(k, SPIRV_DECORATE, SPIRV_ANY, SPIRV_SPEC_ID, number);
        if (i.op) read_constant(k, number, i.w[0]);
    }
    read_group(k);
}

mlxvk_fast_spirv_kernel mlxvk_fast_spirv_kernel_new(const char *name, mlxvk_vector_string input_names,
                                                    mlxvk_vector_string output_names, const uint32_t *spirv,
                                                    size_t spirv_size, bool ensure_row_contiguous)
{
    struct spirv_kernel *k = calloc(1, sizeof *k);
    const mlxvk_fast_spirv_kernel none = { NULL }, made = { k };
    size_t inputs = mlxvk_vector_string_size(input_names), outputs = mlxvk_vector_string_size(output_names);
    if (!k) return none;
    k->name = text_copy(name ? name : "kernel");
    k->spirv = spirv && spirv_size >= 4 * SPIRV_HEADER && spirv_size % 4 == 0 ? malloc(spirv_size) : NULL;
    if (!k->name || !k->spirv || inputs > MAX_BINDINGS || outputs > MAX_BINDINGS - inputs || !outputs) {
        mlxvk_fast_spirv_kernel_free(made);
        return none;
    }
    memcpy(k->spirv, spirv, spirv_size);
    k->words = spirv_size / 4;
    k->inputs = (uint32_t)inputs;
    k->outputs = (uint32_t)outputs;
    k->rows = ensure_row_contiguous;
    k->lock = (mutex)MUTEX_INIT;
    read_constants(k);
    return made;
}

int mlxvk_fast_spirv_kernel_free(mlxvk_fast_spirv_kernel cls)
{
    struct spirv_kernel *k = cls.ctx;
    if (!k) return 0;
    for (struct spirv_variant *v = k->variants, *next; v; v = next) {
        next = v->next;
        mlxvk_kernel_free(v->kernel);
        free(v);
    }
    free(k->name);
    free(k->spirv);
    free(k);
    return 0;
}

/* ---- config ---- */

mlxvk_fast_spirv_kernel_config mlxvk_fast_spirv_kernel_config_new(void)
{
    struct spirv_config *f = calloc(1, sizeof *f);
    for (int i = 0; f && i < 3; i++) f->grid[i] = f->group[i] = 1;
    return (mlxvk_fast_spirv_kernel_config){ f };
}

int mlxvk_fast_spirv_kernel_config_free(mlxvk_fast_spirv_kernel_config cls)
{
    struct spirv_config *f = cls.ctx;
    for (uint32_t i = 0; f && i < f->arguments; i++) free(f->argument[i].name);
    free(f);
    return 0;
}

int mlxvk_fast_spirv_kernel_config_add_output_arg(mlxvk_fast_spirv_kernel_config cls, const int *shape, size_t size,
                                                  mlxvk_dtype dtype)
{
    struct spirv_config *f = cls.ctx;
    if (!f || (size && !shape) || size > MAXD || !is_dtype((int)dtype)) return MLXVK_ERROR_ARGUMENT;
    if (f->outputs == MAX_BINDINGS) return MLXVK_ERROR_LIMIT;
    f->output[f->outputs].ndim = (int)size;
    f->output[f->outputs].dtype = dtype;
    if (size) memcpy(f->output[f->outputs].shape, shape, size * sizeof *shape);
    f->outputs++;
    return 0;
}

static int set_sizes(uint32_t to[3], int x, int y, int z, int least)
{
    if (!to || x < least || y < least || z < least) return MLXVK_ERROR_ARGUMENT;
    memcpy(to, (const uint32_t[]){ (uint32_t)x, (uint32_t)y, (uint32_t)z }, 3 * sizeof *to);
    return 0;
}

int mlxvk_fast_spirv_kernel_config_set_grid(mlxvk_fast_spirv_kernel_config cls, int grid1, int grid2, int grid3)
{
    return set_sizes(cls.ctx ? ((struct spirv_config *)cls.ctx)->grid : NULL, grid1, grid2, grid3, 0);
}

int mlxvk_fast_spirv_kernel_config_set_thread_group(mlxvk_fast_spirv_kernel_config cls, int thread1, int thread2,
                                                    int thread3)
{
    return set_sizes(cls.ctx ? ((struct spirv_config *)cls.ctx)->group : NULL, thread1, thread2, thread3, 1);
}

int mlxvk_fast_spirv_kernel_config_set_init_value(mlxvk_fast_spirv_kernel_config cls, float value)
{
    struct spirv_config *f = cls.ctx;
    if (!f) return MLXVK_ERROR_ARGUMENT;
    f->filled = true;
    f->value = value;
    return 0;
}

int mlxvk_fast_spirv_kernel_config_add_template_arg_int(mlxvk_fast_spirv_kernel_config cls, const char *name, int value)
{
    struct spirv_config *f = cls.ctx;
    if (!f || !name) return MLXVK_ERROR_ARGUMENT;
    if (f->arguments == MAX_SPEC) return MLXVK_ERROR_LIMIT;
    if (!(f->argument[f->arguments].name = text_copy(name))) return MLXVK_ERROR_HOST_MEMORY;
    f->argument[f->arguments++].value = (uint32_t)value;
    return 0;
}

int mlxvk_fast_spirv_kernel_config_add_template_arg_bool(mlxvk_fast_spirv_kernel_config cls, const char *name,
                                                         bool value)
{
    return mlxvk_fast_spirv_kernel_config_add_template_arg_int(cls, name, value);
}

int mlxvk_fast_spirv_kernel_config_add_template_arg_dtype(mlxvk_fast_spirv_kernel_config cls, const char *name,
                                                          mlxvk_dtype dtype)
{
    if (!is_dtype((int)dtype)) return MLXVK_ERROR_ARGUMENT;
    return mlxvk_fast_spirv_kernel_config_add_template_arg_int(cls, name, (int)dtype);
}

/* ---- apply ---- */

/* The constant of that name, or of that number; MAX_SPEC: none. */
static uint32_t constant_named(const struct spirv_kernel *k, const char *name)
{
    char *end;
    unsigned long number = strtoul(name, &end, 10);
    if (end != name && !*end) return number < k->count && k->declared[number] ? (uint32_t)number : MAX_SPEC;
    for (uint32_t i = 0; i < k->count; i++) if (k->names[i] && !strcmp(k->names[i], name)) return i;
    return MAX_SPEC;
}

static void set_constants(struct call *c, const struct spirv_kernel *k, const struct spirv_config *f,
                          uint32_t values[MAX_SPEC])
{
    memcpy(values, k->values, sizeof k->values);
    for (uint32_t i = 0; i < f->arguments; i++) {
        uint32_t at = constant_named(k, f->argument[i].name);
        if (at < MAX_SPEC) values[at] = f->argument[i].value;
        else FAIL(c, MLXVK_ERROR_ARGUMENT, "%s has no specialization constant %s", k->name, f->argument[i].name);
    }
    for (int i = 0; i < 3; i++) {
        int at = k->group_constant[i];
        if (at == MAX_SPEC)
            FAIL(c, MLXVK_ERROR_LIMIT, "%s has its workgroup in a constant over %d", k->name, MAX_SPEC - 1);
        else if (at >= 0) values[at] = f->group[i];
        else if (k->group[i] != f->group[i])
            FAIL(c, MLXVK_ERROR_ARGUMENT, "%s has workgroups of %u threads along axis %d, not %u", k->name,
                 k->group[i], i, f->group[i]);
    }
    for (uint32_t i = 0; i < k->count; i++)
        if (k->other[i])
            FAIL(c, MLXVK_ERROR_UNSUPPORTED, "%s has a specialization constant, %u, that is not of 32 bits", k->name,
                 i);
}

static struct kernel *find_variant(struct call *c, struct spirv_kernel *k, const struct spirv_config *f)
{
    uint32_t values[MAX_SPEC], bindings = k->inputs + k->outputs;
    struct spirv_variant *v;
    struct kernel *made;
    set_constants(c, k, f, values);
    if (c->code) return NULL;
    mutex_lock(&k->lock);
    for (v = k->variants; v; v = v->next) {
        made = v->kernel.ctx;
        if (made->device == c->device && !memcmp(v->values, values, sizeof values)) break;
    }
    mutex_unlock(&k->lock);
    if (v) return made;
    const mlxvk_kernel_desc desc = {
        .name = k->name, .spirv = k->spirv, .spirv_size = 4 * k->words, .bindings = bindings,
        .push_size = 4 * bindings, .constants = values, .constant_count = k->count,
        .threads = { f->group[0], f->group[1], f->group[2] } };
    if (!(v = calloc(1, sizeof *v))) return FAIL(c, MLXVK_ERROR_HOST_MEMORY, "out of host memory");
    if (kernel_make(c->device, &desc, &made)) {
        free(v);
        return FAIL(c, c->device->error.code, "%s", c->device->error.text);
    }
    v->kernel.ctx = made;
    memcpy(v->values, values, sizeof values);
    mutex_lock(&k->lock);
    v->next = k->variants;
    k->variants = v;
    mutex_unlock(&k->lock);
    return made;
}

/* Encodes the dispatch behind all operations recorded before. Where an array is empty, a result that is not is bound in
 * its place; nothing is to be done where all are. */
static void run_variant(struct call *c, struct kernel *k, struct array **arrays, uint32_t inputs, uint32_t count,
                        const uint32_t grid[3])
{
    struct encoder *e = &c->stream->encoder;
    uint32_t shift[MAX_BINDINGS], some = inputs;
    while (some < count && !arrays[some]->size) some++;
    if (some == count) return;
    /* or their copies and fillings would be dropped: nobody has them */
    for (uint32_t i = 0; i < count; i++) take_handle(arrays[i]);
    stream_lower(c->stream, 0);
    encoder_reset(e);
    e->step.pipeline = &k->pipeline;
    for (uint32_t i = 0; i < count; i++)
        shift[i] = arrays[i]->size ? bind_held(e, i, arrays[i], i >= inputs) : bind_held(e, i, arrays[some], true);
    set_bytes(e, shift, 4 * count);
    dispatch(e, ceil_div(grid[0], k->threads[0]), ceil_div(grid[1], k->threads[1]), ceil_div(grid[2], k->threads[2]));
    bind_plan(e);
    maybe_commit(c->stream);
    if (e->code) {
        FAIL(c, e->code, "%s", e->error.text);
        e->code = c->device->lost;
        encoder_reset(e);
    }
    for (uint32_t i = 0; i < count; i++) drop_handle(arrays[i]);
}

int mlxvk_fast_spirv_kernel_apply(mlxvk_vector_array *outputs, mlxvk_fast_spirv_kernel cls, mlxvk_vector_array inputs,
                                  mlxvk_fast_spirv_kernel_config config, mlxvk_stream stream)
{
    struct call c = begin("fast_spirv_kernel_apply", stream);
    struct spirv_kernel *k = cls.ctx;
    const struct spirv_config *f = config.ctx;
    const struct vector *v = inputs.ctx;
    struct array *arrays[MAX_BINDINGS] = { NULL };
    if (!k || !f) FAIL(&c, MLXVK_ERROR_ARGUMENT, "%s is { NULL }", k ? "config" : "the kernel");
    else if ((v ? v->size : 0) != k->inputs || f->outputs != k->outputs)
        FAIL(&c, MLXVK_ERROR_ARGUMENT, "%s has %u inputs and %u outputs, not %zu and %u", k->name, k->inputs,
             k->outputs, v ? v->size : 0, f->outputs);
    if (c.code) return finish_vector(&c, NULL, 0, outputs);
    for (uint32_t i = 0; i < k->inputs; i++) {
        arrays[i] = vector_input(&c, v, i);
        if (k->rows) arrays[i] = contiguous(&c, arrays[i]);
    }
    for (uint32_t i = 0; i < k->outputs && !c.code; i++) {
        int ndim = f->output[i].ndim;
        const int *shape = f->output[i].shape;
        mlxvk_dtype dtype = f->output[i].dtype;
        struct array *out = f->filled ? do_full(&c, ndim, shape, scalar(&c, f->value, dtype), dtype)
            : output(&c, ndim, shape, dtype);
        if (out && !f->filled) fill_array(&c, out, NULL);
        arrays[k->inputs + i] = out;
        if (!out) FAIL(&c, MLXVK_ERROR_HOST_MEMORY, "out of host memory");
    }
    struct kernel *made = c.code ? NULL : find_variant(&c, k, f);
    if (made) run_variant(&c, made, arrays, k->inputs, k->inputs + k->outputs, f->grid);
    return finish_vector(&c, arrays + k->inputs, k->outputs, outputs);
}

/* ==== >>public: observability ===================================================================================== */

int mlxvk_gates(mlxvk_device device, void (*print)(const char *line, void *user), void *user)
{
    const struct device *d = device_or_default(device);
    char line[256];
    if (!print) return MLXVK_ERROR_ARGUMENT;
    snprintf(line, sizeof line, "%-47s %4s (default any)  %s", device_gate.name, d && *d->wanted ? d->wanted : "any",
             device_gate.what);
    print(line, user);
    for (int i = 0; i < GATE_COUNT; i++) {
        const struct gate_row *g = &gate_table[i];
        snprintf(line, sizeof line, "%-47s %4d (default %d)  %s", g->name, d ? d->gate[i] : g->value, g->value,
                 g->what);
        print(line, user);
    }
    return 0;
}

int mlxvk_get_stats(mlxvk_stats *res, mlxvk_device device)
{
    struct device *d = lock_device(device.ctx);
    return d ? drop_with(d, GIVE(res, d->stats)) : MLXVK_ERROR_ARGUMENT;
}

int mlxvk_reset_stats(mlxvk_device device)
{
    struct device *d = lock_device(device.ctx);
    if (!d) return MLXVK_ERROR_ARGUMENT;
    memset(&d->stats, 0, sizeof d->stats);
    memset(d->kernel_counts, 0, sizeof d->kernel_counts);
    d->pipelines_found = d->buffers_found = d->buffers_made = 0;
    free_notes(d);
    return unlock_and_drop(d);
}

int mlxvk_kernel_stats(mlxvk_device device,
                       void (*each)(const char *kernel, uint64_t count, uint64_t nanoseconds, void *user), void *user)
{
    struct device *d = each ? lock_device(device.ctx) : NULL;
    struct kernel_count counts[KERNEL_COUNTS];
    if (!d) return MLXVK_ERROR_ARGUMENT;
    if (d->gate[GATE_PROFILE]) wait_streams(d);
    for (struct stream *s = d->streams; s && d->gate[GATE_PROFILE] && !d->lost; s = s->next)
        for (uint32_t i = 0; i < s->slot_count; i++)
            if (s->slots[i].value <= s->line->completed) read_queries(d, &s->slots[i]);
    memcpy(counts, d->kernel_counts, sizeof counts);
    unlock_and_drop(d);
    for (int i = 0; i < KERNEL_COUNTS; i++)
        if (counts[i].count)
            each(i < KERNEL_COUNT ? kernel_table[i].name : i == KERNEL_COUNT ? "custom"
                 : fusion_table[i - KERNEL_COUNT - 1].name, counts[i].count, counts[i].ns, user);
    return 0;
}

int mlxvk_stats_report(mlxvk_device device, void (*each)(const mlxvk_stat *stat, void *user), void *user)
{
    struct device *d = each ? lock_device(device.ctx) : NULL;
    uint32_t n;
    if (!d) return MLXVK_ERROR_ARGUMENT;
    struct note *list = list_notes(d, &n);
    int code = list ? 0 : MLXVK_ERROR_HOST_MEMORY;
    mutex_unlock(&d->lock);                          /* the reference stays */
    for (uint32_t i = 0; i < n; i++)
        each(&(mlxvk_stat){ family_table[list[i].family].name, list[i].kernel, list[i].signature, list[i].reason,
                            list[i].count }, user);
    mutex_lock(&d->lock);
    host_free(d, list);
    return drop_with(d, code);
}

#define TEXT_OF(x) #x
#define VERSION_TEXT(a, b, c) TEXT_OF(a) "." TEXT_OF(b) "." TEXT_OF(c)
const char *mlxvk_version_text(void)
{
    return VERSION_TEXT(MLXVK_VERSION_MAJOR, MLXVK_VERSION_MINOR, MLXVK_VERSION_PATCH);
}
int mlxvk_version(mlxvk_string *str) { return put_string(str, text_copy(mlxvk_version_text())); }
