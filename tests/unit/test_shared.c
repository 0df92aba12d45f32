/* Memory of others and for others: the host's pages, descriptors, the program's own allocator; what a device of the
 * program's may be asked for beside it. */
#define VK_NO_PROTOTYPES
#define _POSIX_C_SOURCE 200809L
#include "support_vulkan.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <unistd.h>
#include <vulkan/vulkan.h>

enum { N = 4096, BYTES = N * sizeof(float) };

static mlxvk_array over(mlxvk_buffer buffer, int count, size_t offset)
{
    mlxvk_array a = { NULL };
    OK_DEVICE(mlxvk_array_new_buffer(&a, buffer, &count, NULL, 1, MLXVK_FLOAT32, offset), device);
    return a;
}

/* a + a, written into the same memory. */
static void double_it(mlxvk_buffer buffer)
{
    mlxvk_array a = over(buffer, N, 0), sum = { NULL };
    OK(mlxvk_add(&sum, a, a, stream), stream);
    OK(mlxvk_slice_update(&a, a, sum, (int[]){ 0 }, 1, (int[]){ N }, 1, (int[]){ 1 }, 1, stream), stream);
    OK(mlxvk_array_eval(a), stream);
    mlxvk_array_free(sum);
    mlxvk_array_free(a);
}

static size_t info_of(const char *key)
{
    size_t value = 0;
    OK_DEVICE(mlxvk_device_info_get_size(&value, device, key), device);
    return value;
}

/* How many descriptors the process has; 0 where that is not said. */
static int open_now(void)
{
    int count = 0;
    DIR *all = opendir("/proc/self/fd");
    while (all && readdir(all)) count++;
    if (all) closedir(all);
    return count;
}

static bool is_open(uintptr_t fd) { return fd <= INT_MAX && fcntl((int)fd, F_GETFD) >= 0; }

/* The import fails, says so, and a descriptor stays as it was. */
static void refuse(mlxvk_device d, mlxvk_memory_kind kind, uintptr_t fd, size_t size, int code, const char *words)
{
    mlxvk_buffer buffer = { NULL };
    mlxvk_error error = { 0 };
    bool was_open = kind != MLXVK_MEMORY_HOST && is_open(fd);
    int before = open_now(), is = mlxvk_buffer_import(&buffer, kind, fd, size, d);
    mlxvk_device_error(d, &error);
    if (is != code || buffer.ctx || error.code != code || !strstr(error.text, words))
        fail_msg("%s: %d, not %d: %s", words, is, code, error.text);
    if (kind != MLXVK_MEMORY_HOST && is_open(fd) != was_open) fail_msg("%s: the descriptor is not as it was", words);
    assert_int_equal(open_now(), before);
}

/* Pages of the host's are read and written where they are. */
static void test_host(void **state)
{
    (void)state;
    size_t align = info_of("memory_import_alignment"), size = align > BYTES ? align : BYTES, before = 0, after = 0;
    mlxvk_buffer buffer = { NULL };
    void *pages = NULL;
    if (!align) {
        assert_int_equal(mlxvk_buffer_import(&buffer, MLXVK_MEMORY_HOST, 4096, 4096, device), MLXVK_ERROR_UNSUPPORTED);
        skip();
    }
    assert_int_equal(posix_memalign(&pages, align, size), 0);
    OK_DEVICE(mlxvk_device_get_active_memory(&before, device), device);
    if (mlxvk_buffer_import(&buffer, MLXVK_MEMORY_HOST, (uintptr_t)pages, size, device) == MLXVK_ERROR_UNSUPPORTED) {
        free(pages);                                 /* SwiftShader: not for buffers */
        skip();
    }
    float *values = pages;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < N; i++) values[i] = (float)(i + round);
        OK_DEVICE(mlxvk_buffer_import(&buffer, MLXVK_MEMORY_HOST, (uintptr_t)pages, size, device), device);
        assert_ptr_equal(mlxvk_buffer_data(buffer), pages);
        double_it(buffer);
        for (int i = 0; i < N; i++) assert_true(values[i] == 2 * (float)(i + round));
    }
    /* a result that is wanted only by what still runs when the last handle goes */
    mlxvk_array a = over(buffer, N / 2, BYTES / 2), y = { NULL };
    OK(mlxvk_multiply(&y, a, a, stream), stream);
    mlxvk_array_free(a);
    mlxvk_buffer_free(buffer);
    OK(mlxvk_finalize(stream), stream);
    float want[N / 2];
    for (int i = 0; i < N / 2; i++) want[i] = values[N / 2 + i] * values[N / 2 + i];
    expect_floats(y, want, N / 2, 0, 0, stream);
    mlxvk_array_free(y);
    OK(mlxvk_synchronize(stream), stream);
    OK_DEVICE(mlxvk_device_get_active_memory(&after, device), device);
    assert_int_equal(before, after);
    buffer.ctx = NULL;
    const struct { uintptr_t at; size_t size; } wrong[] = { { (uintptr_t)pages + 16, size }, { 0, size },
                                                            { (uintptr_t)pages, size + 4 } };
    for (size_t i = 0; i < COUNT(wrong); i++)
        refuse(device, MLXVK_MEMORY_HOST, wrong[i].at, wrong[i].size, MLXVK_ERROR_ARGUMENT, "must be multiples of");
    assert_int_equal(mlxvk_buffer_import(&buffer, MLXVK_MEMORY_KINDS, (uintptr_t)pages, size, device),
                     MLXVK_ERROR_ARGUMENT);
    OK_DEVICE(mlxvk_device_clear_cache(device), device);
    free(pages);
}

/* Two devices that see the same memory, which the other one may know as another kind; false where there is none to be
 * had. */
static bool descriptors(mlxvk_device mine, mlxvk_memory_kind kind, mlxvk_device other, mlxvk_memory_kind known_as)
{
    mlxvk_device before = device;
    mlxvk_stream stream_before = stream;
    mlxvk_buffer buffer = { NULL }, again = { NULL };
    uintptr_t fd = 0;
    int code = mlxvk_buffer_new_shared(&buffer, kind, BYTES, mine);
    if (code == MLXVK_ERROR_UNSUPPORTED) return false;
    mlxvk_stream s = open_stream(other), own = open_stream(mine);
    device = mine;
    stream = own;
    OK_DEVICE(code, mine);
    OK_DEVICE(mlxvk_buffer_export(&fd, kind, buffer), mine);
    assert_int_equal(mlxvk_buffer_export(&fd, MLXVK_MEMORY_WIN32, buffer), MLXVK_ERROR_ARGUMENT);
    OK_DEVICE(mlxvk_buffer_import(&again, known_as, fd, BYTES, other), other);
    float want[N];
    mlxvk_array a = over(buffer, N, 0), x;
    for (int i = 0; i < N; i++) want[i] = (float)(i % 99);
    x = floats(mine, want, (int[]){ N }, 1);
    OK(mlxvk_slice_update(&a, a, x, (int[]){ 0 }, 1, (int[]){ N }, 1, (int[]){ 1 }, 1, own), own);
    OK(mlxvk_array_eval(a), own);
    device = other;
    stream = s;
    mlxvk_array b = over(again, N, 0);
    expect_floats(b, want, N, 0, 0, s);
    double_it(again);
    for (int i = 0; i < N; i++) want[i] *= 2;
    device = mine;
    stream = own;
    expect_floats(a, want, N, 0, 0, own);
    assert_int_equal(mlxvk_buffer_export(&fd, MLXVK_MEMORY_HOST, buffer), MLXVK_ERROR_ARGUMENT);
    mlxvk_array_free(a);
    mlxvk_array_free(b);
    mlxvk_array_free(x);
    mlxvk_buffer_free(buffer);
    mlxvk_buffer_free(again);
    mlxvk_stream_free(s);
    mlxvk_stream_free(own);
    device = before;
    stream = stream_before;
    return true;
}

static void test_descriptors(void **state)
{
    (void)state;
    mlxvk_device other = open_new_device(NULL);
    bool there = descriptors(device, MLXVK_MEMORY_FD, other, MLXVK_MEMORY_FD);
    mlxvk_device_free(other);
    if (!there) skip();
}

static void test_dma_buf(void **state)
{
    (void)state;
    mlxvk_buffer buffer = { NULL };
    int code = mlxvk_buffer_new_shared(&buffer, MLXVK_MEMORY_DMA_BUF, BYTES, device);
    mlxvk_buffer_free(buffer);
    if (code) skip();                                /* it wants a kernel, too */
    mlxvk_device other = open_new_device(NULL);
    assert_true(descriptors(device, MLXVK_MEMORY_DMA_BUF, other, MLXVK_MEMORY_DMA_BUF));
    mlxvk_device_free(other);
}

/* ---- descriptors that are wrong ---- */

/* A descriptor of `buffer`, which the caller closes. */
static uintptr_t descriptor_of(mlxvk_buffer buffer, mlxvk_memory_kind kind)
{
    uintptr_t fd = (uintptr_t)-1;
    OK_DEVICE(mlxvk_buffer_export(&fd, kind, buffer), device);
    assert_true(is_open(fd));
    return fd;
}

/* The library goes on: memory by that descriptor, doubled, is what `buffer` has. A second import is another matter. */
static void import_twice(mlxvk_device d, mlxvk_memory_kind kind, mlxvk_buffer buffer)
{
    mlxvk_buffer one = { NULL }, two = { NULL };
    float values[N], want[N];
    uintptr_t fd = descriptor_of(buffer, kind), other = descriptor_of(buffer, kind);
    OK_DEVICE(mlxvk_buffer_import(&one, kind, fd, BYTES, d), d);
    refuse(d, kind, (uintptr_t)-1, BYTES, MLXVK_ERROR_ARGUMENT, "descriptor -1 is not open");
    if (!is_open(fd)) refuse(d, kind, fd, BYTES, MLXVK_ERROR_ARGUMENT, "is not open");
    OK_DEVICE(mlxvk_buffer_import(&two, kind, other, BYTES, d), d);
    mlxvk_array whole = over(buffer, N, 0), x;
    for (int i = 0; i < N; i++) { values[i] = (float)(i % 77); want[i] = 4 * values[i]; }
    x = floats(d, values, (int[]){ N }, 1);
    OK(mlxvk_slice_update(&whole, whole, x, (int[]){ 0 }, 1, (int[]){ N }, 1, (int[]){ 1 }, 1, stream), stream);
    OK(mlxvk_array_eval(whole), stream);
    double_it(one);
    double_it(two);
    expect_floats(whole, want, N, 0, 0, stream);
    mlxvk_array small = { NULL };
    mlxvk_error error = { 0 };
    assert_int_equal(mlxvk_array_new_buffer(&small, one, (int[]){ N + 1 }, NULL, 1, MLXVK_FLOAT32, 0),
                     MLXVK_ERROR_SHAPE);
    mlxvk_device_error(d, &error);
    if (!strstr(error.text, "16384")) fail_msg("too small: %s", error.text);
    assert_int_equal(mlxvk_array_new_buffer(&small, one, (int[]){ N }, NULL, 1, MLXVK_FLOAT32, 4), MLXVK_ERROR_SHAPE);
    mlxvk_array_free(x);
    mlxvk_array_free(whole);
    mlxvk_buffer_free(one);
    mlxvk_buffer_free(two);
}

/* Of memory that has fewer bytes, or is none of the driver's; which only a driver for the CPU is asked, since to others
 * it may be anything. */
static void foreign(mlxvk_device d, mlxvk_memory_kind kind, mlxvk_buffer buffer)
{
    const char *type = "";
    OK_DEVICE(mlxvk_device_info_get_string(&type, d, "type"), d);
    if (strcmp(type, "cpu")) return;
    uintptr_t fd = descriptor_of(buffer, kind);
    refuse(d, kind, fd, 64 * BYTES, MLXVK_ERROR_ARGUMENT, "bytes");
    close((int)fd);
    FILE *file = tmpfile();
    static const char zeros[2 * BYTES];
    assert_non_null(file);
    refuse(d, kind, (uintptr_t)fileno(file), BYTES, MLXVK_ERROR_ARGUMENT, "cannot have 16384 bytes of descriptors");
    fwrite(zeros, 1, sizeof zeros, file);
    fflush(file);
    refuse(d, kind, (uintptr_t)fileno(file), BYTES, MLXVK_ERROR_ARGUMENT, "cannot have 16384 bytes of descriptors");
    refuse(d, kind, (uintptr_t)fileno(file), 4 * BYTES, MLXVK_ERROR_ARGUMENT, "has fewer bytes");
    fclose(file);
}

/* Wrong ones of a kind, by a device that a test's driver lends: what fails behind the import, too. */
static void wrong_descriptors(mlxvk_memory_kind kind)
{
    mlxvk_device d = own_device(NULL), before = device;
    mlxvk_stream stream_before = stream;
    mlxvk_buffer buffer = { NULL };
    int pair[2], code = mlxvk_buffer_new_shared(&buffer, kind, BYTES, d);
    if (code == MLXVK_ERROR_UNSUPPORTED) {
        mlxvk_device_free(d);
        end_vulkan();
        skip();
    }
    OK_DEVICE(code, d);
    device = d;
    stream = open_stream(d);
    import_twice(d, kind, buffer);
    OK(mlxvk_synchronize(stream), stream);
    int count = open_now();
    assert_int_equal(pipe(pair), 0);
    for (int round = 0; round < 3; round++) {
        uintptr_t fd = descriptor_of(buffer, kind);
        if (sizeof fd > sizeof(int)) refuse(d, kind, fd | (uintptr_t)1 << (sizeof fd * 8 - 2), BYTES,
                                            MLXVK_ERROR_ARGUMENT, "is not open");
        refuse(d, kind, fd, 0, MLXVK_ERROR_ARGUMENT, "0 bytes");
        if (round == 1) driver.fail_binds = 1;
        else driver.exhausted = UINT32_MAX;
        refuse(d, kind, fd, BYTES, MLXVK_ERROR_MEMORY, "cannot have 16384 bytes of descriptors");
        driver.exhausted = 0;
        close((int)fd);
        refuse(d, kind, fd, BYTES, MLXVK_ERROR_ARGUMENT, "is not open");
        refuse(d, kind, (uintptr_t)-1, BYTES, MLXVK_ERROR_ARGUMENT, "descriptor -1 is not open");
        refuse(d, kind, (uintptr_t)pair[0], BYTES, MLXVK_ERROR_ARGUMENT, "is none of memory");
        foreign(d, kind, buffer);
        import_twice(d, kind, buffer);
    }
    close(pair[0]);
    close(pair[1]);
    OK(mlxvk_synchronize(stream), stream);
    OK_DEVICE(mlxvk_device_clear_cache(d), d);
    assert_int_equal(open_now(), count);
    mlxvk_buffer_free(buffer);
    mlxvk_stream_free(stream);
    mlxvk_device_free(d);
    device = before;
    stream = stream_before;
    end_vulkan();
}

static void test_wrong_descriptors(void **state)
{
    (void)state;
    driver = (struct driver){ .shares = true };
    wrong_descriptors(MLXVK_MEMORY_FD);
    driver = (struct driver){ .shares = true, .renames = true };
    wrong_descriptors(MLXVK_MEMORY_DMA_BUF);
    driver = (struct driver){ 0 };
}

/* ---- dma-buf, which the tests' driver makes of opaque descriptors ---- */

/* Through one device of the lent VkDevice and another, and to a VkDevice of the library's own, which knows them as what
 * they are; both ways, each by every name that a call can have it by. */
static void test_dma_buf_renamed(void **state)
{
    (void)state;
    mlxvk_adopt adopt;
    mlxvk_device mine = { NULL }, other = { NULL };
    driver = (struct driver){ .shares = true, .renames = true };
    own_vulkan(&adopt, true);
    adopt.get_instance_proc_addr = failing_driver();
    const mlxvk_device_desc desc = { .adopt = &adopt };
    assert_int_equal(create_device(&mine, &desc), 0);
    assert_int_equal(create_device(&other, &desc), 0);
    bool there = descriptors(mine, MLXVK_MEMORY_DMA_BUF, other, MLXVK_MEMORY_DMA_BUF);
    if (there) {
        /* whether it can be exported, and imported; two buffers, two allocations, an export, an import's types */
        assert_true(driver.renamed >= 8);
        driver.renamed = 0;
        assert_true(descriptors(mine, MLXVK_MEMORY_DMA_BUF, device, MLXVK_MEMORY_FD));
        assert_true(driver.renamed >= 4);
        driver.renamed = 0;
        assert_true(descriptors(device, MLXVK_MEMORY_FD, mine, MLXVK_MEMORY_DMA_BUF));
        assert_true(driver.renamed >= 4);
        driver.renamed = 0;
        assert_true(descriptors(mine, MLXVK_MEMORY_FD, other, MLXVK_MEMORY_FD));
        assert_int_equal(driver.renamed, 0);
    }
    mlxvk_device_free(mine);
    mlxvk_device_free(other);
    end_vulkan();
    driver = (struct driver){ 0 };
    if (!there) skip();
}

/* Its extension alone decides: without it there are opaque descriptors, and none of dma-buf. */
static void test_no_dma_buf(void **state)
{
    (void)state;
    mlxvk_buffer buffer = { NULL };
    mlxvk_error error = { 0 };
    driver = (struct driver){ .shares = true };
    mlxvk_device d = own_device(NULL);
    bool there = mlxvk_buffer_new_shared(&buffer, MLXVK_MEMORY_FD, BYTES, d) != MLXVK_ERROR_UNSUPPORTED;
    if (there) {
        uintptr_t fd = 0;
        assert_int_equal(mlxvk_buffer_export(&fd, MLXVK_MEMORY_DMA_BUF, buffer), MLXVK_ERROR_ARGUMENT);
        OK_DEVICE(mlxvk_buffer_export(&fd, MLXVK_MEMORY_FD, buffer), d);
        refuse(d, MLXVK_MEMORY_DMA_BUF, fd, BYTES, MLXVK_ERROR_UNSUPPORTED, "does not share descriptors of dma-buf");
        close((int)fd);
        mlxvk_buffer_free(buffer);
        buffer.ctx = NULL;
        assert_int_equal(mlxvk_buffer_new_shared(&buffer, MLXVK_MEMORY_DMA_BUF, BYTES, d), MLXVK_ERROR_UNSUPPORTED);
        mlxvk_device_error(d, &error);
        assert_non_null(strstr(error.text, "does not share descriptors of dma-buf"));
    }
    mlxvk_device_free(d);
    end_vulkan();
    driver = (struct driver){ 0 };
    if (!there) skip();
}

/* Mapping fails behind an import that was good, where the device maps its memory. */
static void test_not_mapped(void **state)
{
    (void)state;
    mlxvk_buffer buffer = { NULL };
    driver = (struct driver){ .shares = true };
    mlxvk_device d = own_device(NULL), before = device;
    if (mlxvk_buffer_new_shared(&buffer, MLXVK_MEMORY_FD, BYTES, d) == MLXVK_ERROR_UNSUPPORTED) {
        mlxvk_device_free(d);
        end_vulkan();
        skip();
    }
    assert_non_null(buffer.ctx);
    device = d;
    uintptr_t fd = descriptor_of(buffer, MLXVK_MEMORY_FD);
    if (mlxvk_buffer_data(buffer)) {
        driver.fail_maps = 1;
        refuse(d, MLXVK_MEMORY_FD, fd, BYTES, MLXVK_ERROR_VULKAN, "cannot have 16384 bytes of descriptors");
        assert_int_equal(driver.fail_maps, 0);
    }
    close((int)fd);
    device = before;
    mlxvk_buffer_free(buffer);
    mlxvk_device_free(d);
    end_vulkan();
    driver = (struct driver){ 0 };
}

/* Of kinds that the device has not got, or that there are not; what is not shared cannot be exported. */
static void test_refused(void **state)
{
    (void)state;
    mlxvk_buffer buffer = { NULL };
    uintptr_t handle;
    assert_int_equal(mlxvk_buffer_new_shared(&buffer, MLXVK_MEMORY_HOST, BYTES, device), MLXVK_ERROR_ARGUMENT);
    assert_int_equal(mlxvk_buffer_new_shared(&buffer, MLXVK_MEMORY_FD, 0, device), MLXVK_ERROR_ARGUMENT);
    assert_int_equal(mlxvk_buffer_new_shared(&buffer, MLXVK_MEMORY_WIN32, BYTES, device), MLXVK_ERROR_UNSUPPORTED);
    assert_int_equal(mlxvk_buffer_import(&buffer, MLXVK_MEMORY_WIN32, 1, BYTES, device), MLXVK_ERROR_UNSUPPORTED);
    OK_DEVICE(mlxvk_buffer_new(&buffer, BYTES, device), device);
    assert_int_equal(mlxvk_buffer_export(&handle, MLXVK_MEMORY_FD, buffer), MLXVK_ERROR_ARGUMENT);
    mlxvk_buffer_free(buffer);
}

/* ---- the program's own allocator ---- */

enum { PIECES = 64 };
static struct pieces { VkDevice vk; int taken, given, refused; VkDeviceMemory memory[PIECES]; } pieces;

#define VK(name) PFN_##name name = (PFN_##name)(void (*)(void))function_of(#name)
static void (*function_of(const char *name))(void)
{
    void *pointer = vulkan_function(name);
    void (*function)(void);
    memcpy(&function, &pointer, sizeof function);
    return function;
}

/* Each begins some way into memory of its own. */
static int take_piece(mlxvk_memory_piece *piece, const mlxvk_memory_request *request, void *user)
{
    struct pieces *p = user;
    void *mapped = NULL;
    uint64_t begin = (request->alignment + 4095) / request->alignment * request->alignment;
    const VkMemoryAllocateInfo info = { .sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
        .allocationSize = begin + request->size, .memoryTypeIndex = request->type };
    VK(vkAllocateMemory);
    VK(vkMapMemory);
    if (p->refused && p->refused--) return 1;
    assert_true(request->vk_buffer && request->size && p->taken < PIECES);
    if (vkAllocateMemory(p->vk, &info, NULL, &p->memory[p->taken])) return 1;
    vkMapMemory(p->vk, p->memory[p->taken], begin, request->size, 0, &mapped);
    *piece = (mlxvk_memory_piece){ .offset = begin, .mapped = mapped, .token = &p->memory[p->taken] };
    memcpy(&piece->vk_memory, &p->memory[p->taken], sizeof(VkDeviceMemory));
    p->taken++;
    return 0;
}

static void give_piece(const mlxvk_memory_piece *piece, void *user)
{
    struct pieces *p = user;
    VkDeviceMemory *memory = piece->token;
    VK(vkFreeMemory);
    assert_true(memory >= p->memory && memory < p->memory + p->taken && *memory);
    vkFreeMemory(p->vk, *memory, NULL);
    *memory = VK_NULL_HANDLE;
    p->given++;
}

static int lines;
static void count_line(const char *line, void *user)
{
    (void)user;
    lines += !strncmp(line, "[mlxvk] ", 8);
}

/* keeps: no piece is given back before the end. */
static void own_allocator(const char *gates, bool keeps)
{
    const mlxvk_device_memory memory = { take_piece, keeps ? NULL : give_piece, &pieces };
    mlxvk_adopt adopt;
    mlxvk_device d = { NULL };
    mlxvk_error error = { 0 };
    float values[N], want[N];
    own_vulkan(&adopt, true);
    adopt.families = &(uint32_t){ 0 };
    adopt.family_count = 1;
    pieces = (struct pieces){ .vk = adopt.device };
    const mlxvk_device_desc desc = { .adopt = &adopt, .gates = gates, .memory = &memory, .memory_priority = 0.75f,
                                     .on_log = count_line, .error = &error };
    if (create_device(&d, &desc)) fail_msg("%s", error.text);
    mlxvk_stream s = open_stream(d);
    for (int i = 0; i < N; i++) values[i] = (float)i;
    for (int i = 0; i < N; i++) want[i] = 2 * (float)i;
    mlxvk_array x = floats(d, values, (int[]){ N }, 1), y = { NULL };
    OK(mlxvk_add(&y, x, x, s), s);
    expect_floats(y, want, N, 0, 0, s);
    assert_true(pieces.taken > 0);
    pieces.refused = 1000;
    mlxvk_buffer buffer = { NULL };
    assert_int_equal(mlxvk_buffer_new(&buffer, (size_t)100 << 20, d), MLXVK_ERROR_MEMORY);
    pieces.refused = 0;
    OK_DEVICE(mlxvk_buffer_new(&buffer, (size_t)100 << 20, d), d);
    mlxvk_buffer_free(buffer);
    mlxvk_array_free(x);
    mlxvk_array_free(y);
    mlxvk_stream_free(s);
    mlxvk_device_free(d);
    for (int i = 0; keeps && i < pieces.taken; i++) give_piece(&(mlxvk_memory_piece){ .token = &pieces.memory[i] }, &pieces);
    assert_int_equal(pieces.taken, pieces.given);
    end_vulkan();
}

static void test_own_allocator(void **state)
{
    (void)state;
    lines = 0;
    own_allocator("MLX_VK_ALGO_STATS=1", false);
    assert_true(lines > 0);
    own_allocator("MLX_VK_FORCE_STAGING=1", false);
    own_allocator(NULL, true);
}

/* Takes and gives back `bytes`, then clears the cache; how often memory was asked for meanwhile. */
static int took_and_cleared(mlxvk_device d, size_t bytes)
{
    int before = pieces.taken;
    size_t cached = 1;
    mlxvk_buffer buffer = { NULL };
    OK_DEVICE(mlxvk_buffer_new(&buffer, bytes, d), d);
    mlxvk_buffer_free(buffer);
    OK_DEVICE(mlxvk_device_clear_cache(d), d);
    assert_int_equal(mlxvk_device_get_cache_memory(&cached, d), 0);
    assert_int_equal(cached, 0);
    return pieces.taken - before;
}

/* What clear_cache leaves for what comes next goes when it was not used three times, and where it is in the way. */
static void test_clear_keeps(void **state)
{
    const size_t large = (size_t)40 << 20, larger = (size_t)50 << 20;
    const mlxvk_device_memory memory = { take_piece, give_piece, &pieces };
    static const char *const gates[] = { "", "MLX_VK_CLEAR_KEEPS_MB=60" };
    (void)state;
    for (int keeps = 0; keeps < 2; keeps++) {
        mlxvk_adopt adopt;
        mlxvk_device d = { NULL };
        mlxvk_error error = { 0 };
        own_vulkan(&adopt, true);
        adopt.families = &(uint32_t){ 0 };
        adopt.family_count = 1;
        pieces = (struct pieces){ .vk = adopt.device };
        const mlxvk_device_desc desc = { .adopt = &adopt, .gates = gates[keeps], .memory = &memory, .error = &error };
        if (create_device(&d, &desc)) fail_msg("%s", error.text);
        bool kept = keeps && info_of("memory_size") / 64 >= larger;
        assert_int_equal(took_and_cleared(d, large), 1);
        assert_int_equal(took_and_cleared(d, large), !kept);
        for (int calls = 0; calls < 2; calls++) OK_DEVICE(mlxvk_device_clear_cache(d), d);
        assert_int_equal(took_and_cleared(d, large), !kept);   /* used after two */
        int given = pieces.given;
        for (int calls = 1; calls <= 3; calls++) {
            OK_DEVICE(mlxvk_device_clear_cache(d), d);
            assert_int_equal(pieces.given - given, kept && calls == 3);
        }
        assert_int_equal(took_and_cleared(d, large), 1);
        assert_int_equal(took_and_cleared(d, larger), 1);      /* of another size: 40 MiB are there, 50 more are too much */
        for (int calls = 0; calls < 3; calls++) OK_DEVICE(mlxvk_device_clear_cache(d), d);
        assert_int_equal(took_and_cleared(d, large), 1);
        pieces.refused = 1;
        assert_int_equal(took_and_cleared(d, larger), 1);      /* the 40 MiB made room */
        mlxvk_device_free(d);
        assert_int_equal(pieces.taken, pieces.given);
        end_vulkan();
    }
}

/* Whether the driver says what the process may use; a device that stands behind others. */
static void test_neighbours(void **state)
{
    (void)state;
    size_t budget = info_of("memory_budget"), used = info_of("memory_used");
    assert_true(budget >= used || !budget);
    mlxvk_device d = { NULL };
    mlxvk_error error = { 0 };
    if (create_device(&d, &(mlxvk_device_desc){ .low_priority = true, .memory_priority = 0.25f, .error = &error }))
        fail_msg("%s", error.text);
    mlxvk_array x = floats(d, (float[]){ 1, 2 }, (int[]){ 2 }, 1);
    mlxvk_stream s = open_stream(d);
    OK(mlxvk_add(&x, x, x, s), s);
    expect_floats(x, (float[]){ 2, 4 }, 2, 0, 0, s);
    mlxvk_array_free(x);
    mlxvk_stream_free(s);
    mlxvk_device_free(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host),              cmocka_unit_test(test_descriptors),
        cmocka_unit_test(test_refused),           cmocka_unit_test(test_wrong_descriptors),
        cmocka_unit_test(test_not_mapped),        cmocka_unit_test(test_dma_buf_renamed),
        cmocka_unit_test(test_no_dma_buf),        cmocka_unit_test(test_dma_buf),
        cmocka_unit_test(test_own_allocator),     cmocka_unit_test(test_clear_keeps),
        cmocka_unit_test(test_neighbours),
    };
    return run_group("shared", tests, set_up, tear_down);
}
