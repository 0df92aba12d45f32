/* The library beside a renderer that has the device: recordings into its command buffers, its semaphores, its images,
 * work in slices of time. */
#define VK_NO_PROTOTYPES
#include "support_vulkan.h"

#include <math.h>
#include <vulkan/vulkan.h>

static const mlxvk_array NONE = { NULL };

/* ---- the renderer ---- */

static struct renderer {
    mlxvk_adopt adopt;
    mlxvk_device device;
    mlxvk_stream s;
    VkDevice vk;
    VkQueue queue;
    VkCommandPool pool;
    VkSemaphore timeline;
    uint64_t buffer;
    unsigned char *mapped;
} r;

#define VK(name) PFN_##name name = (PFN_##name)(void (*)(void))function_of(#name)
static void (*function_of(const char *name))(void)
{
    void *pointer = vulkan_function(name);
    void (*function)(void);
    memcpy(&function, &pointer, sizeof function);
    return function;
}

enum { BYTES = 1 << 20 };

static VkSemaphore new_timeline(void)
{
    const VkSemaphoreTypeCreateInfo type = { .sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
                                             .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE };
    const VkSemaphoreCreateInfo info = { .sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, .pNext = &type };
    VkSemaphore semaphore;
    VK(vkCreateSemaphore);
    assert_int_equal(vkCreateSemaphore(r.vk, &info, NULL, &semaphore), VK_SUCCESS);
    return semaphore;
}

static void renderer_open(const char *gates)
{
    const VkCommandPoolCreateInfo info = { .sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO };
    mlxvk_error error = { 0 };
    void *mapped;
    memset(&r, 0, sizeof r);
    own_vulkan(&r.adopt, true);
    r.adopt.get_instance_proc_addr = failing_driver();
    if (create_device(&r.device, &(mlxvk_device_desc){ .adopt = &r.adopt, .gates = gates, .error = &error }))
        fail_msg("%s", error.text);
    r.s = open_stream(r.device);
    r.vk = r.adopt.device;
    r.queue = r.adopt.queue;
    VK(vkCreateCommandPool);
    assert_int_equal(vkCreateCommandPool(r.vk, &info, NULL, &r.pool), VK_SUCCESS);
    r.timeline = new_timeline();
    r.buffer = own_buffer(BYTES, &mapped);
    r.mapped = mapped;
}

static void renderer_close(void)
{
    VK(vkDestroyCommandPool);
    VK(vkDestroySemaphore);
    mlxvk_stream_free(r.s);
    mlxvk_device_free(r.device);
    vkDestroyCommandPool(r.vk, r.pool, NULL);
    vkDestroySemaphore(r.vk, r.timeline, NULL);
    end_own_buffer();
    end_vulkan();
}

static VkCommandBuffer new_commands(bool secondary)
{
    const VkCommandBufferAllocateInfo info = { .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
        .commandPool = r.pool, .commandBufferCount = 1,
        .level = secondary ? VK_COMMAND_BUFFER_LEVEL_SECONDARY : VK_COMMAND_BUFFER_LEVEL_PRIMARY };
    const VkCommandBufferInheritanceInfo inherited = { .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_INHERITANCE_INFO };
    const VkCommandBufferBeginInfo begin = { .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
        .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT, .pInheritanceInfo = secondary ? &inherited : NULL };
    VkCommandBuffer commands;
    VK(vkAllocateCommandBuffers);
    VK(vkBeginCommandBuffer);
    assert_int_equal(vkAllocateCommandBuffers(r.vk, &info, &commands), VK_SUCCESS);
    assert_int_equal(vkBeginCommandBuffer(commands, &begin), VK_SUCCESS);
    return commands;
}

static void end_commands(VkCommandBuffer commands)
{
    VK(vkEndCommandBuffer);
    assert_int_equal(vkEndCommandBuffer(commands), VK_SUCCESS);
}

/* Waits for what the recording says, and signals the semaphore where there is one. */
static void submit(VkCommandBuffer commands, const mlxvk_recording *m, VkSemaphore semaphore, uint64_t value)
{
    VkSemaphore waits[16];
    uint64_t values[16];
    VkPipelineStageFlags stages[16];
    uint32_t count = m ? m->wait_count : 0;
    VkTimelineSemaphoreSubmitInfo timelines = { .sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
        .waitSemaphoreValueCount = count, .pWaitSemaphoreValues = values,
        .signalSemaphoreValueCount = semaphore ? 1 : 0, .pSignalSemaphoreValues = &value };
    VkSubmitInfo info = { .sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .pNext = &timelines, .waitSemaphoreCount = count,
        .pWaitSemaphores = waits, .pWaitDstStageMask = stages, .commandBufferCount = commands ? 1 : 0,
        .pCommandBuffers = &commands, .signalSemaphoreCount = semaphore ? 1 : 0, .pSignalSemaphores = &semaphore };
    for (uint32_t i = 0; i < count; i++) {
        memcpy(&waits[i], &m->waits[i].vk_semaphore, sizeof *waits);
        values[i] = m->waits[i].value;
        stages[i] = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
    }
    VK(vkQueueSubmit);
    assert_int_equal(vkQueueSubmit(r.queue, 1, &info, VK_NULL_HANDLE), VK_SUCCESS);
}

static void queue_idle(void)
{
    VK(vkQueueWaitIdle);
    assert_int_equal(vkQueueWaitIdle(r.queue), VK_SUCCESS);
}

static void discard(VkCommandBuffer commands)
{
    VK(vkFreeCommandBuffers);
    vkFreeCommandBuffers(r.vk, r.pool, 1, &commands);
}

/* ---- recordings ---- */

enum { N = 1000 };

/* values * factor + 1 of each, `times` times over. */
static mlxvk_array scaled(mlxvk_array x, float factor, int times)
{
    mlxvk_array y = { NULL }, f = floats(r.device, &factor, NULL, 0), one = floats(r.device, (float[]){ 1 }, NULL, 0);
    mlxvk_array_set(&y, x);
    for (int i = 0; i < times; i++) {
        OK(mlxvk_multiply(&y, y, f, r.s), r.s);
        OK(mlxvk_add(&y, y, one, r.s), r.s);
    }
    mlxvk_array_free(f);
    mlxvk_array_free(one);
    return y;
}

static void fill(float *values, int round) { for (int i = 0; i < N; i++) values[i] = (float)((i * 7 + round) % 31); }

static mlxvk_array numbers(int round, float factor, int times, float *want)
{
    fill(want, round);
    mlxvk_array x = floats(r.device, want, (int[]){ N }, 1);
    for (int i = 0; i < N; i++) for (int k = 0; k < times; k++) want[i] = want[i] * factor + 1;
    return x;
}

/* Frame after frame, all of them recorded before any is submitted; sums in counters and softmax in between. */
static void frames(const char *gates, bool secondary, bool by_event)
{
    enum { FRAMES = 6 };
    VkCommandBuffer commands[FRAMES], outer[FRAMES];
    mlxvk_array y[FRAMES], sum[FRAMES];
    mlxvk_recording m[FRAMES];
    mlxvk_event done = { NULL };
    float want[FRAMES][N];
    mlxvk_semaphore_value waits[FRAMES][16];
    uint64_t timeline = 0;
    renderer_open(gates);
    VK(vkCmdExecuteCommands);
    memcpy(&timeline, &r.timeline, sizeof r.timeline);
    OK_DEVICE(mlxvk_event_adopt(&done, timeline, r.device), r.device);
    OK(mlxvk_stream_hold(r.s, true), r.s);
    for (int i = 0; i < FRAMES; i++) {
        mlxvk_array x = numbers(i, 0.5f, 3, want[i]);
        y[i] = scaled(x, 0.5f, 3);
        sum[i] = NONE;
        OK(mlxvk_sum(&sum[i], y[i], false, r.s), r.s);
        mlxvk_array_free(x);
        commands[i] = new_commands(secondary);
        m[i] = (mlxvk_recording){ .waits = waits[i], .wait_room = 16, .done = by_event ? done : (mlxvk_event){ NULL },
                                  .done_value = (uint64_t)i + 1 };
        OK(mlxvk_stream_record(r.s, commands[i], &m[i]), r.s);
        assert_true(by_event == !m[i].ticket);
        end_commands(commands[i]);
    }
    if (!by_event) {
        float none[N];
        REFUSED(mlxvk_array_read(y[0], none, sizeof none, r.s), MLXVK_ERROR_NOT_READY, r.s, "array_read");
    }
    for (int i = 0; i < FRAMES; i++) {
        if (secondary) {
            outer[i] = new_commands(false);
            vkCmdExecuteCommands(outer[i], 1, &commands[i]);
            end_commands(outer[i]);
        }
        submit(secondary ? outer[i] : commands[i], &m[i], r.timeline, (uint64_t)i + 1);
    }
    if (by_event) OK_DEVICE(mlxvk_event_wait_host(done, FRAMES, UINT64_MAX), r.device);
    else { queue_idle(); OK(mlxvk_stream_recorded(r.s, m[FRAMES - 1].ticket), r.s); }
    for (int i = 0; i < FRAMES; i++) {
        float all = 0;
        for (int k = 0; k < N; k++) all += want[i][k];
        expect_floats(y[i], want[i], N, 1e-6, 1e-6, r.s);
        expect_floats(sum[i], &all, 1, 1e-5, 1e-5, r.s);
        mlxvk_array_free(y[i]);
        mlxvk_array_free(sum[i]);
    }
    queue_idle();
    mlxvk_event_free(done);
    renderer_close();
}

static void test_frames(void **state)
{
    (void)state;
    frames(NULL, false, false);
    frames(NULL, false, true);
    frames(NULL, true, true);
    frames("MLX_VK_ENABLE_PUSH_DESCRIPTORS=0 MLX_VK_FORCE_STAGING=1", false, true);
    frames("MLX_VK_ENABLE_REPLAY=0", true, false);
}

/* What cannot be recorded is refused, and the tape stays: nothing is in the command buffer. */
static void test_refused(void **state)
{
    (void)state;
    float want[N], other[N];
    mlxvk_semaphore_value waits[16];
    mlxvk_recording m = { 0 };
    mlxvk_array x, y, z = { NULL };
    VkCommandBuffer commands;
    renderer_open(NULL);
    OK(mlxvk_stream_hold(r.s, true), r.s);
    mlxvk_stream second = open_stream(r.device);
    x = numbers(1, 0.5f, 1, want);
    OK(mlxvk_multiply(&x, x, x, second), second);    /* on another stream's tape */
    for (int i = 0; i < N; i++) want[i] = (want[i] - 1) * 2;
    for (int i = 0; i < N; i++) want[i] *= want[i];
    y = scaled(x, 2, 1);
    commands = new_commands(false);
    REFUSED(mlxvk_stream_record(r.s, NULL, NULL), MLXVK_ERROR_ARGUMENT, r.s, "vk_command_buffer");
    REFUSED(mlxvk_stream_record(r.s, commands, NULL), MLXVK_ERROR_NOT_READY, r.s, "give waits");
    REFUSED(mlxvk_stream_recorded(r.s, 1), MLXVK_ERROR_ARGUMENT, r.s, "ticket 1");
    m = (mlxvk_recording){ .waits = waits, .wait_room = 16 };
    OK(mlxvk_stream_record(r.s, commands, &m), r.s);
    assert_true(m.ticket && m.nanoseconds > 0);
    const mlxvk_recording recorded = m;              /* waits for the other stream, where that is not done by now */
    /* neither another stream nor another recording on an event may use what is not known to be done */
    OK(mlxvk_add(&z, y, y, second), second);
    assert_int_equal(mlxvk_synchronize(second), MLXVK_ERROR_NOT_READY);
    mlxvk_event done = { NULL };
    OK_DEVICE(mlxvk_event_new(&done, r.device), r.device);
    OK(mlxvk_add(&z, y, y, r.s), r.s);
    m.done = done;
    m.done_value = 1;
    REFUSED(mlxvk_stream_record(r.s, commands, &m), MLXVK_ERROR_NOT_READY, r.s, "not known to be done");
    end_commands(commands);
    submit(commands, &recorded, VK_NULL_HANDLE, 0);
    queue_idle();
    OK(mlxvk_stream_recorded(r.s, recorded.ticket), r.s);
    for (int i = 0; i < N; i++) want[i] = 2 * want[i] + 1;
    expect_floats(y, want, N, 1e-6, 1e-6, r.s);      /* submits the sum of r.s's tape, too */
    for (int i = 0; i < N; i++) other[i] = 2 * want[i];
    expect_floats(z, other, N, 1e-6, 1e-6, r.s);
    m = (mlxvk_recording){ .done = done };
    REFUSED(mlxvk_stream_record(r.s, commands, &m), MLXVK_ERROR_ARGUMENT, r.s, "not over");
    mlxvk_event_free(done);
    mlxvk_array_free(x);
    mlxvk_array_free(y);
    mlxvk_array_free(z);
    mlxvk_stream_free(second);
    renderer_close();
}

/* A step that may not have one of its operands leaves nothing behind for what its stream does next. */
static void test_refused_step(void **state)
{
    (void)state;
    float want[N];
    mlxvk_recording m = { 0 };
    mlxvk_stream s = { NULL };
    mlxvk_buffer buffer = { NULL };
    size_t offset;
    renderer_open("MLX_VK_FORCE_STAGING=1");
    OK(mlxvk_get_default_stream(&s, r.device), s);
    OK(mlxvk_stream_hold(r.s, true), r.s);
    mlxvk_array x = numbers(1, 2, 1, want), z = { NULL }, free_one = numbers(2, 2, 1, want);
    OK(mlxvk_synchronize(s), s);
    mlxvk_array y = scaled(x, 2, 1);
    mlxvk_semaphore_value waits[16];
    m = (mlxvk_recording){ .waits = waits, .wait_room = 16 };
    VkCommandBuffer commands = new_commands(false);
    OK(mlxvk_stream_record(r.s, commands, &m), r.s);
    end_commands(commands);
    for (int i = 0; i < 30; i++) {
        OK(mlxvk_add(&z, i % 2 ? free_one : y, i % 2 ? y : free_one, s), s);
        assert_int_equal(mlxvk_synchronize(s), MLXVK_ERROR_NOT_READY);
        mlxvk_array number = array_of(r.device, MLXVK_INT32, &i, NULL, 0);
        OK_DEVICE(mlxvk_array_buffer(&buffer, &offset, number), r.device);      /* written by the queue */
        expect_ints(number, &i, 1, s);
        mlxvk_array_free(number);
    }
    submit(commands, &m, VK_NULL_HANDLE, 0);
    queue_idle();
    OK(mlxvk_stream_recorded(r.s, m.ticket), r.s);
    mlxvk_buffer_free(buffer);
    mlxvk_array_free(x);
    mlxvk_array_free(y);
    mlxvk_array_free(z);
    mlxvk_array_free(free_one);
    mlxvk_stream_free(s);
    renderer_close();
}

/* A tape of many operations in one command buffer; memory that it uses is nobody else's until it has run. */
static void test_reserved(void **state)
{
    (void)state;
    float want[N];
    mlxvk_semaphore_value waits[16];
    mlxvk_recording m = { .waits = waits, .wait_room = 16 };
    renderer_open("MLX_VK_POISON=2");
    OK(mlxvk_stream_hold(r.s, true), r.s);
    mlxvk_array x = numbers(3, 0.75f, 300, want), y = scaled(x, 0.75f, 300);
    mlxvk_array_free(x);
    VkCommandBuffer commands = new_commands(false);
    uint64_t before = stats_of(r.device).submissions;
    OK(mlxvk_stream_record(r.s, commands, &m), r.s);
    end_commands(commands);
    mlxvk_stream second = open_stream(r.device);
    for (int i = 0; i < 30; i++) {                   /* as large as what was recorded */
        float values[N];
        mlxvk_array junk = numbers(i, 1, 0, values);
        OK(mlxvk_multiply(&junk, junk, junk, second), second);
        OK(mlxvk_synchronize(second), second);
        mlxvk_array_free(junk);
    }
    assert_true(stats_of(r.device).submissions > before);
    OK_DEVICE(mlxvk_device_clear_cache(r.device), r.device);
    submit(commands, &m, VK_NULL_HANDLE, 0);
    queue_idle();
    OK(mlxvk_stream_recorded(r.s, m.ticket), r.s);
    expect_floats(y, want, N, 1e-5, 1e-5, r.s);
    mlxvk_array_free(y);
    mlxvk_stream_free(second);
    renderer_close();
}

/* A stream that ends before its recording has run; a recording that is never submitted, and declared done. */
static void test_orphans(void **state)
{
    (void)state;
    float want[N];
    mlxvk_recording m = { .done_value = 5 };
    mlxvk_semaphore_value waits[16];
    renderer_open("MLX_VK_ENABLE_PUSH_DESCRIPTORS=0");
    mlxvk_stream s = r.s;
    OK_DEVICE(mlxvk_event_new(&m.done, r.device), r.device);
    m.waits = waits;
    m.wait_room = 16;
    mlxvk_array x = numbers(2, 0.5f, 1, want), y = scaled(x, 0.5f, 1), lost = scaled(x, 0.25f, 2);
    VkCommandBuffer commands = new_commands(false), unused = new_commands(false);
    OK(mlxvk_stream_record(s, commands, &m), s);
    end_commands(commands);
    mlxvk_recording second = { .waits = waits, .wait_room = 16 };
    mlxvk_array z = scaled(x, 3, 1);
    OK(mlxvk_stream_record(s, unused, &second), s);
    end_commands(unused);
    discard(unused);
    OK(mlxvk_stream_recorded(s, second.ticket), s);
    r.s = open_stream(r.device);
    mlxvk_stream_free(s);
    uint64_t handle = 0;
    VkSemaphore semaphore;
    OK_DEVICE(mlxvk_event_semaphore(&handle, m.done), r.device);
    memcpy(&semaphore, &handle, sizeof semaphore);
    submit(commands, NULL, semaphore, 5);
    OK_DEVICE(mlxvk_event_wait_host(m.done, 5, UINT64_MAX), r.device);
    expect_floats(y, want, N, 1e-6, 1e-6, r.s);
    queue_idle();
    mlxvk_event_free(m.done);
    mlxvk_array_free(x);
    mlxvk_array_free(y);
    mlxvk_array_free(z);
    mlxvk_array_free(lost);
    renderer_close();
}

/* ---- semaphores ---- */

/* The renderer's submission, the library's, the renderer's, by the renderer's semaphore and by an event's. */
static void test_semaphores(void **state)
{
    (void)state;
    float want[N];
    uint64_t timeline = 0, handle = 0;
    mlxvk_event theirs = { NULL }, ours = { NULL };
    VkSemaphore semaphore;
    renderer_open(NULL);
    memcpy(&timeline, &r.timeline, sizeof r.timeline);
    OK_DEVICE(mlxvk_event_adopt(&theirs, timeline, r.device), r.device);
    OK_DEVICE(mlxvk_event_new(&ours, r.device), r.device);
    OK_DEVICE(mlxvk_event_semaphore(&handle, ours), r.device);
    memcpy(&semaphore, &handle, sizeof semaphore);
    assert_int_equal(mlxvk_event_adopt(&theirs, 0, r.device), MLXVK_ERROR_ARGUMENT);
    submit(VK_NULL_HANDLE, NULL, r.timeline, 3);
    mlxvk_array x = numbers(5, 2, 1, want), y;
    OK(mlxvk_event_wait(theirs, 3, r.s), r.s);
    y = scaled(x, 2, 1);
    OK(mlxvk_event_signal(ours, 7, r.s), r.s);
    mlxvk_recording m = { .waits = &(mlxvk_semaphore_value){ handle, 7 }, .wait_count = 1 };
    submit(VK_NULL_HANDLE, &m, r.timeline, 4);
    OK_DEVICE(mlxvk_event_wait_host(theirs, 4, UINT64_MAX), r.device);
    assert_true(mlxvk_event_is_signaled(ours, 7));
    REFUSED(mlxvk_event_signal(theirs, 4, r.s), MLXVK_ERROR_ARGUMENT, r.s, "not over");
    OK(mlxvk_event_signal(theirs, 5, r.s), r.s);
    OK_DEVICE(mlxvk_event_wait_host(theirs, 5, UINT64_MAX), r.device);
    OK_DEVICE(mlxvk_event_signal_host(theirs, 6), r.device);
    expect_floats(y, want, N, 1e-6, 1e-6, r.s);
    /* an event's wait goes along with a recording */
    mlxvk_semaphore_value waits[16];
    m = (mlxvk_recording){ .waits = waits, .wait_room = 16 };
    VkCommandBuffer commands = new_commands(false);
    OK(mlxvk_event_wait(theirs, 8, r.s), r.s);
    OK(mlxvk_stream_record(r.s, commands, &m), r.s);
    end_commands(commands);
    bool found = false;
    for (uint32_t i = 0; i < m.wait_count; i++)
        found = found || (waits[i].vk_semaphore == timeline && waits[i].value == 8);
    assert_true(found);
    OK_DEVICE(mlxvk_event_signal_host(theirs, 8), r.device);
    submit(commands, &m, VK_NULL_HANDLE, 0);
    queue_idle();
    OK(mlxvk_stream_recorded(r.s, m.ticket), r.s);
    mlxvk_event_free(theirs);
    mlxvk_event_free(ours);
    mlxvk_array_free(x);
    mlxvk_array_free(y);
    renderer_close();
}

/* That the device is lost is remembered, whoever heard of it: an event that the host signals, that a stream waits for, a
 * recording that takes its value. The renderer submits, so nothing else may ask the device for long. */
static void test_lost_unasked(void **state)
{
    (void)state;
    for (int by = 0; by < 3; by++) {
        mlxvk_semaphore_value waits[16];
        mlxvk_event event = { NULL };
        mlxvk_array x = { NULL };
        uint64_t timeline = 0;
        renderer_open(NULL);
        memcpy(&timeline, &r.timeline, sizeof r.timeline);
        OK_DEVICE(mlxvk_event_adopt(&event, timeline, r.device), r.device);
        mlxvk_recording m = { .waits = waits, .wait_room = 16, .done = event, .done_value = 1 };
        OK(mlxvk_arange(&x, 0, 4, 1, MLXVK_FLOAT32, r.s), r.s);
        assert_int_equal(mlxvk_device_status(r.device), 0);
        driver.lost_counters = true;
        if (by == 0) assert_int_equal(mlxvk_event_signal_host(event, 1), MLXVK_ERROR_DEVICE_LOST);
        if (by == 1) mlxvk_event_wait(event, 1, r.s);
        if (by == 2) mlxvk_stream_record(r.s, new_commands(false), &m);
        assert_int_equal(mlxvk_device_status(r.device), MLXVK_ERROR_DEVICE_LOST);
        assert_int_equal(mlxvk_synchronize(r.s), MLXVK_ERROR_DEVICE_LOST);
        mlxvk_array_free(x);
        mlxvk_event_free(event);
        renderer_close();
        driver = (struct driver){ 0 };
    }
}

/* ---- images ---- */

enum { W = 13, H = 9, LAYERS = 2, LEVELS = 2 };

static VkDeviceMemory image_memory;

static VkImage new_image(VkFormat format)
{
    const VkImageCreateInfo info = { .sType = VK_STRUCTURE_TYPE_IMAGE_CREATE_INFO, .imageType = VK_IMAGE_TYPE_2D,
        .format = format, .extent = { 2 * W, 2 * H, 1 }, .mipLevels = LEVELS, .arrayLayers = LAYERS,
        .samples = VK_SAMPLE_COUNT_1_BIT, .tiling = VK_IMAGE_TILING_OPTIMAL,
        .usage = VK_IMAGE_USAGE_TRANSFER_SRC_BIT | VK_IMAGE_USAGE_TRANSFER_DST_BIT };
    VkMemoryAllocateInfo allocate = { .sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO };
    VkMemoryRequirements need;
    VkImage image;
    VK(vkCreateImage);
    VK(vkGetImageMemoryRequirements);
    VK(vkAllocateMemory);
    VK(vkBindImageMemory);
    assert_int_equal(vkCreateImage(r.vk, &info, NULL, &image), VK_SUCCESS);
    vkGetImageMemoryRequirements(r.vk, image, &need);
    allocate.allocationSize = need.size;
    while (!(need.memoryTypeBits >> allocate.memoryTypeIndex & 1)) allocate.memoryTypeIndex++;
    assert_int_equal(vkAllocateMemory(r.vk, &allocate, NULL, &image_memory), VK_SUCCESS);
    assert_int_equal(vkBindImageMemory(r.vk, image, image_memory, 0), VK_SUCCESS);
    return image;
}

static void end_image(VkImage image)
{
    VK(vkDestroyImage);
    VK(vkFreeMemory);
    vkDestroyImage(r.vk, image, NULL);
    vkFreeMemory(r.vk, image_memory, NULL);
}

/* The renderer's own look at what is in a region, in layout GENERAL. */
static void copy_out(const mlxvk_image *i)
{
    const VkBufferImageCopy copy = { .imageSubresource = { VK_IMAGE_ASPECT_COLOR_BIT, i->mip, i->layer, 1 },
        .imageOffset = { (int32_t)i->x, (int32_t)i->y, 0 }, .imageExtent = { i->width, i->height, 1 } };
    VkImage image;
    VkBuffer buffer;
    VkCommandBuffer commands = new_commands(false);
    VK(vkCmdCopyImageToBuffer);
    memcpy(&image, &i->vk_image, sizeof image);
    memcpy(&buffer, &r.buffer, sizeof buffer);
    vkCmdCopyImageToBuffer(commands, image, VK_IMAGE_LAYOUT_GENERAL, buffer, 1, &copy);
    end_commands(commands);
    submit(commands, NULL, VK_NULL_HANDLE, 0);
    queue_idle();
}

static double srgb_of_light(double x) { return x <= 0.0031308 ? 12.92 * x : 1.055 * pow(x, 1 / 2.4) - 0.055; }
static double light_of_srgb(double x) { return x <= 0.04045 ? x / 12.92 : pow((x + 0.055) / 1.055, 2.4); }

static const struct { VkFormat format; int channels, bits; bool srgb; } formats[] = {
    { VK_FORMAT_R8_UNORM, 1, 8, false },         { VK_FORMAT_R8G8_UNORM, 2, 8, false },
    { VK_FORMAT_R8G8B8A8_UNORM, 4, 8, false },   { VK_FORMAT_R8G8B8A8_SRGB, 4, 8, true },
    { VK_FORMAT_R16_SFLOAT, 1, 16, false },      { VK_FORMAT_R16G16B16A16_SFLOAT, 4, 16, false },
    { VK_FORMAT_R32_SFLOAT, 1, 32, false },      { VK_FORMAT_R32G32B32A32_SFLOAT, 4, 32, false },
};

static double half_value(uint16_t h)
{
    int e = h >> 10 & 31, m = h & 1023;
    double v = e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
    return h & 0x8000 ? -v : v;
}

/* What the image should hold of a number, and what an array made of that has. */
static double stored(size_t f, int channel, double x)
{
    if (formats[f].bits != 8) return x;
    bool curve = formats[f].srgb && channel < 3;
    x = isnan(x) || x < 0 ? 0 : x > 1 ? 1 : x;
    return nearbyint(255 * (curve ? srgb_of_light(x) : x));
}

static double loaded(size_t f, int channel, double x)
{
    if (formats[f].bits != 8) return x;
    return formats[f].srgb && channel < 3 ? light_of_srgb(x / 255) : x / 255;
}

/* Texel by texel, row by row. */
static double texel(size_t f, size_t i)
{
    float single;
    uint16_t half;
    memcpy(&single, r.mapped + 4 * (formats[f].bits == 32 ? i : 0), 4);
    memcpy(&half, r.mapped + 2 * (formats[f].bits == 16 ? i : 0), 2);
    return formats[f].bits == 8 ? r.mapped[i] : formats[f].bits == 16 ? half_value(half) : single;
}

/* Floats into a region and back, interleaved or planar, beside what the renderer sees there. */
static void float_image(size_t f, const mlxvk_image *region)
{
    enum { MOST = W * H * 4 };
    int n = formats[f].channels, size = W * H * n;
    float values[MOST], back[MOST];
    mlxvk_array x, y = { NULL };
    mlxvk_image image = *region;
    for (int i = 0; i < size; i++) values[i] = (float)((i * 37) % 256) / 255;
    values[0] = -0.5f;
    values[1] = 1.5f;
    if (formats[f].bits == 8) values[2] = NAN;
    x = floats(r.device, values, image.planar ? (int[]){ n, H, W } : (int[]){ H, W, n }, 3);
    OK(mlxvk_image_write(&image, x, r.s), r.s);
    image.layout = image.final_layout;
    OK(mlxvk_image_read(&y, &image, MLXVK_FLOAT32, r.s), r.s);
    assert_int_equal(mlxvk_array_dim(y, 0), image.planar ? n : H);
    OK(mlxvk_array_read(y, back, (size_t)size * sizeof *back, r.s), r.s);
    copy_out(&image);
    for (int row = 0; row < H; row++)
        for (int column = 0; column < W; column++)
            for (int k = 0; k < n; k++) {
                int at = image.planar ? (k * H + row) * W + column : (row * W + column) * n + k;
                double want = stored(f, k, values[at]), is = texel(f, (size_t)((row * W + column) * n + k));
                double slack = formats[f].srgb ? 1 : formats[f].bits == 16 ? 1e-3 : 0;
                if (fabs(is - want) > slack)
                    fail_msg("format %d texel %d: %g, not %g", formats[f].format, at, is, want);
                want = loaded(f, k, is);
                if (fabs(back[at] - want) > 1e-5)
                    fail_msg("format %d at %d: %g, not %g", formats[f].format, at, back[at], want);
            }
    mlxvk_array_free(x);
    mlxvk_array_free(y);
}

/* Bytes in and out of every format; halves out. */
static void byte_image(size_t f, const mlxvk_image *region)
{
    enum { MOST = W * H * 4 };
    int n = formats[f].channels, size = W * H * n;
    uint8_t values[MOST], back[MOST];
    uint16_t halves[MOST];
    mlxvk_array x, y = { NULL };
    mlxvk_image image = *region;
    for (int i = 0; i < size; i++) values[i] = (uint8_t)(i * 41);
    image.planar = false;
    x = array_of(r.device, MLXVK_UINT8, values, (int[]){ H, W, n }, 3);
    OK(mlxvk_image_write(&image, x, r.s), r.s);
    image.layout = image.final_layout;
    OK(mlxvk_image_read(&y, &image, MLXVK_UINT8, r.s), r.s);
    OK(mlxvk_array_read(y, back, (size_t)size, r.s), r.s);
    assert_memory_equal(back, values, (size_t)size);
    OK(mlxvk_image_read(&y, &image, MLXVK_FLOAT16, r.s), r.s);
    OK(mlxvk_array_read(y, halves, (size_t)size * 2, r.s), r.s);
    for (int i = 0; i < size; i++) {
        double want = formats[f].bits == 8 ? loaded(f, i % n, values[i]) : values[i] / 255.0;
        if (fabs(half_value(halves[i]) - want) > 1e-3) fail_msg("format %d at %d", formats[f].format, i);
    }
    mlxvk_array_free(x);
    mlxvk_array_free(y);
}

static void all_images(const char *gates)
{
    renderer_open(gates);
    for (size_t f = 0; f < COUNT(formats); f++) {
        VkImage vk = new_image(formats[f].format);
        mlxvk_image image = { .format = formats[f].format, .x = f % 2 ? 5 : 0, .y = 3, .width = W, .height = H,
                              .layer = 1, .final_layout = VK_IMAGE_LAYOUT_GENERAL, .planar = f % 3 == 1 };
        memcpy(&image.vk_image, &vk, sizeof vk);
        for (int round = 0; round < 3; round++) {
            float_image(f, &image);
            byte_image(f, &image);
        }
        image.mip = 1;
        image.layer = image.x = image.y = 0;
        float_image(f, &image);
        end_image(vk);
    }
    renderer_close();
}

static void test_images(void **state)
{
    (void)state;
    all_images(NULL);
    all_images("MLX_VK_FORCE_STAGING=1 MLX_VK_ENABLE_REPLAY=0");
    all_images("MLX_VK_ENABLE_STORAGE8=0 MLX_VK_ENABLE_STORAGE16=0");
}

static void test_images_refused(void **state)
{
    (void)state;
    mlxvk_array x = { NULL };
    renderer_open(NULL);
    VkImage vk = new_image(VK_FORMAT_R8_UNORM);
    mlxvk_image image = { .format = VK_FORMAT_R8_UNORM, .width = W, .height = H };
    REFUSED(mlxvk_image_read(&x, NULL, MLXVK_UINT8, r.s), MLXVK_ERROR_ARGUMENT, r.s, "image is NULL");
    REFUSED(mlxvk_image_read(&x, &image, MLXVK_UINT8, r.s), MLXVK_ERROR_ARGUMENT, r.s, "no VkImage");
    memcpy(&image.vk_image, &vk, sizeof vk);
    REFUSED(mlxvk_image_read(&x, &image, MLXVK_UINT8, r.s), MLXVK_ERROR_ARGUMENT, r.s, "undefined layout");
    image.layout = VK_IMAGE_LAYOUT_GENERAL;
    REFUSED(mlxvk_image_read(&x, &image, MLXVK_INT32, r.s), MLXVK_ERROR_DTYPE, r.s, "int32");
    image.format = VK_FORMAT_D32_SFLOAT;
    REFUSED(mlxvk_image_read(&x, &image, MLXVK_UINT8, r.s), MLXVK_ERROR_UNSUPPORTED, r.s, "VkFormat 126");
    image.format = VK_FORMAT_R8_UNORM;
    image.width = 0;
    REFUSED(mlxvk_image_read(&x, &image, MLXVK_UINT8, r.s), MLXVK_ERROR_SHAPE, r.s, "0 x 9");
    image.width = W;
    x = floats(r.device, (float[W * H]){ 0 }, (int[]){ H, W }, 2);
    REFUSED(mlxvk_image_write(&image, x, r.s), MLXVK_ERROR_SHAPE, r.s, "(9, 13)", "(9, 13, 1)");
    mlxvk_array_free(x);
    end_image(vk);
    renderer_close();
}

/* ---- images of another queue family ---- */

static void expect_layouts(int at, VkImageLayout from, VkImageLayout to, const mlxvk_image *image)
{
    const struct image_command *m = &image_commands[at];
    if (m->layouts[0] != (uint32_t)from || m->layouts[1] != (uint32_t)to)
        fail_msg("command %d: layout %u to %u, not %d to %d", at, m->layouts[0], m->layouts[1], from, to);
    assert_true(m->image == image->vk_image && m->mip == image->mip && m->layer == image->layer);
}

static void expect_families(int at, uint32_t from, uint32_t to)
{
    const struct image_command *m = &image_commands[at];
    assert_false(m->copy);
    if (m->families[0] != from || m->families[1] != to)
        fail_msg("command %d: family %u to %u, not %u to %u", at, m->families[0], m->families[1], from, to);
}

/* One copy's commands, from the first: acquired as the other family released it, and released as it will acquire it;
 * what lies between stays in the library's family, and only stages of its queue are named. */
static void expect_commands(const mlxvk_image *image, bool write, bool acquired, bool released)
{
    const uint32_t none = VK_QUEUE_FAMILY_IGNORED, ours = 0, graphics = ~(uint32_t)(
        VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT | VK_PIPELINE_STAGE_ALL_COMMANDS_BIT);
    VkImageLayout layout = (VkImageLayout)image->layout, final = (VkImageLayout)image->final_layout,
                  between = VK_IMAGE_LAYOUT_TRANSFER_SRC_OPTIMAL;
    const uint32_t access = write ? VK_ACCESS_TRANSFER_WRITE_BIT : VK_ACCESS_TRANSFER_READ_BIT;
    int at = 0;
    if (write) between = VK_IMAGE_LAYOUT_TRANSFER_DST_OPTIMAL;
    if (!final) final = layout;
    assert_int_equal(image_command_count, 3 + acquired + released);
    if (acquired) {
        expect_families(at, image->family, ours);
        assert_true(image_commands[at].access[1] & access);
        expect_layouts(at++, layout, layout, image);
    }
    expect_families(at, none, none);
    assert_true(image_commands[at].access[1] & access);
    expect_layouts(at++, layout, between, image);
    assert_true(image_commands[at].copy);
    expect_layouts(at++, between, between, image);
    expect_families(at, none, none);
    expect_layouts(at++, between, final, image);
    if (released) {
        expect_families(at, ours, image->family);
        expect_layouts(at++, final, final, image);
    }
    for (int i = 0; i < at && (acquired || released); i++)
        for (int side = 0; side < 2; side++)
            if (image_commands[i].stages[side] & graphics)
                fail_msg("command %d: stages %#x of the other family's", i, image_commands[i].stages[side]);
    for (int i = acquired; i + 1 < at; i++)          /* each behind the one before */
        assert_true(image_commands[i].copy || image_commands[i].stages[0] & VK_PIPELINE_STAGE_TRANSFER_BIT ||
                    image_commands[i].stages[0] & VK_PIPELINE_STAGE_ALL_COMMANDS_BIT);
}

/* A copy of it, submitted. */
static void copy_image(const mlxvk_image *image, bool write, mlxvk_array x)
{
    mlxvk_array y = { NULL };
    image_command_count = 0;
    if (write) OK(mlxvk_image_write(image, x, r.s), r.s);
    else OK(mlxvk_image_read(&y, image, MLXVK_UINT8, r.s), r.s);
    OK(mlxvk_synchronize(r.s), r.s);
    mlxvk_array_free(y);
}

/* Into a layout and the library's hands. */
static mlxvk_image family_image(VkImage vk)
{
    mlxvk_image image = { .format = VK_FORMAT_R8_UNORM, .width = W, .height = H, .mip = 1, .layer = 1,
                          .final_layout = VK_IMAGE_LAYOUT_GENERAL, .planar = true };
    mlxvk_array x = array_of(r.device, MLXVK_UINT8, (uint8_t[W * H]){ 0 }, (int[]){ 1, H, W }, 3);
    memcpy(&image.vk_image, &vk, sizeof vk);
    copy_image(&image, true, x);
    expect_commands(&image, true, false, false);
    image.layout = VK_IMAGE_LAYOUT_GENERAL;
    image.final_layout = 0;
    mlxvk_array_free(x);
    return image;
}

/* Of a family that the device only seems to have, of other devices and APIs, and of the library's own, where nothing is
 * to be transferred. The second round replays the first. */
static void test_families(void **state)
{
    (void)state;
    static const struct { uint32_t family; bool owned; uint32_t stages, access; } ways[] = {
        { 1, true, 0, 0 }, { 1, true, VK_PIPELINE_STAGE_FRAGMENT_SHADER_BIT, VK_ACCESS_SHADER_READ_BIT },
        { VK_QUEUE_FAMILY_EXTERNAL, true, 0, 0 }, { VK_QUEUE_FAMILY_FOREIGN_EXT, true, 0, 0 }, { 0, true, 0, 0 },
        { 1, false, 0, 0 }, { 0, true, VK_PIPELINE_STAGE_FRAGMENT_SHADER_BIT, VK_ACCESS_SHADER_READ_BIT },
    };
    static const uint32_t layouts[] = { VK_IMAGE_LAYOUT_GENERAL, VK_IMAGE_LAYOUT_TRANSFER_SRC_OPTIMAL,
                                        VK_IMAGE_LAYOUT_TRANSFER_DST_OPTIMAL, VK_IMAGE_LAYOUT_GENERAL };
    uint8_t values[W * H];
    driver = (struct driver){ .more_families = 1 };
    renderer_open(NULL);
    VkImage vk = new_image(VK_FORMAT_R8_UNORM);
    mlxvk_image image = family_image(vk);
    for (int i = 0; i < W * H; i++) values[i] = (uint8_t)(i * 3);
    mlxvk_array x = array_of(r.device, MLXVK_UINT8, values, (int[]){ 1, H, W }, 3), y = { NULL };
    for (size_t way = 0; way < COUNT(ways); way++)
        for (int round = 0; round < 2; round++) {
            bool other = ways[way].owned && ways[way].family;
            image.owned = ways[way].owned;
            image.family = ways[way].family;
            image.stages = ways[way].stages;
            image.access = ways[way].access;
            for (size_t k = 0; k + 1 < COUNT(layouts); k++) {
                image.layout = layouts[k];
                image.final_layout = layouts[k + 1];
                bool write = (k + way) % 2;
                copy_image(&image, write, x);
                expect_commands(&image, write, other, other);
                for (int i = 0; i < image_command_count && ways[way].stages && !other; i++)
                    assert_true(image_commands[i].copy || (image_commands[i].stages[0] | image_commands[i].stages[1]) &
                                                              ways[way].stages);
            }
            image.final_layout = 0;
            image.layout = VK_IMAGE_LAYOUT_GENERAL;
            copy_image(&image, false, x);            /* its layout stays */
            expect_commands(&image, false, other, other);
            /* of what is lost nothing is acquired: no layout is undefined behind a barrier */
            image.layout = 0;
            image.final_layout = VK_IMAGE_LAYOUT_GENERAL;
            copy_image(&image, true, x);
            expect_commands(&image, true, false, other);
        }
    image.layout = VK_IMAGE_LAYOUT_GENERAL;
    OK(mlxvk_image_read(&y, &image, MLXVK_UINT8, r.s), r.s);
    uint8_t back[W * H];
    OK(mlxvk_array_read(y, back, sizeof back, r.s), r.s);
    assert_memory_equal(back, values, sizeof values);
    mlxvk_array_free(x);
    mlxvk_array_free(y);
    end_image(vk);
    renderer_close();
    driver = (struct driver){ 0 };
}

/* In a command buffer of the renderer's nothing is transferred; families that there are not are refused, and nothing is
 * recorded. */
static void test_families_refused(void **state)
{
    (void)state;
    mlxvk_semaphore_value waits[16];
    mlxvk_recording m = { .waits = waits, .wait_room = 16 };
    mlxvk_array y = { NULL };
    driver = (struct driver){ .more_families = 1 };
    renderer_open(NULL);
    VkImage vk = new_image(VK_FORMAT_R8_UNORM);
    mlxvk_image image = family_image(vk);
    image.owned = true;
    image.family = VK_QUEUE_FAMILY_IGNORED;
    REFUSED(mlxvk_image_read(&y, &image, MLXVK_UINT8, r.s), MLXVK_ERROR_ARGUMENT, r.s, "queue family");
    image.family = 99;
    REFUSED(mlxvk_image_read(&y, &image, MLXVK_UINT8, r.s), MLXVK_ERROR_ARGUMENT, r.s, "queue family 99");
    image.family = 1;
    VkCommandBuffer commands = new_commands(false);
    image_command_count = 0;
    OK(mlxvk_image_read(&y, &image, MLXVK_UINT8, r.s), r.s);
    OK(mlxvk_stream_record(r.s, commands, &m), r.s);
    expect_commands(&image, false, false, false);
    end_commands(commands);
    submit(commands, &m, VK_NULL_HANDLE, 0);
    queue_idle();
    OK(mlxvk_stream_recorded(r.s, m.ticket), r.s);
    mlxvk_array_free(y);
    end_image(vk);
    renderer_close();
    driver = (struct driver){ 0 };
}

/* A frame: the image in, work, the image out, in the renderer's command buffer, again and again. */
static void image_frames(const char *gates)
{
    enum { FRAMES = 8, SIZE = W * H * 4 };
    uint8_t values[SIZE];
    mlxvk_semaphore_value waits[16];
    renderer_open(gates);
    OK(mlxvk_stream_hold(r.s, true), r.s);
    VkImage vk = new_image(VK_FORMAT_R8G8B8A8_UNORM);
    mlxvk_image image = { .format = VK_FORMAT_R8G8B8A8_UNORM, .width = W, .height = H,
                          .final_layout = VK_IMAGE_LAYOUT_GENERAL };
    memcpy(&image.vk_image, &vk, sizeof vk);
    for (int i = 0; i < SIZE; i++) values[i] = (uint8_t)i;
    mlxvk_array x = array_of(r.device, MLXVK_UINT8, values, (int[]){ H, W, 4 }, 3);
    mlxvk_array one = floats(r.device, (float[]){ 1 }, NULL, 0);
    OK(mlxvk_image_write(&image, x, r.s), r.s);
    OK(mlxvk_synchronize(r.s), r.s);
    image.layout = VK_IMAGE_LAYOUT_GENERAL;
    for (int frame = 0; frame < FRAMES; frame++) {   /* becomes the negative, and back */
        mlxvk_array y = { NULL };
        mlxvk_recording m = { .waits = waits, .wait_room = 16 };
        VkCommandBuffer commands = new_commands(false);
        OK(mlxvk_image_read(&y, &image, MLXVK_FLOAT32, r.s), r.s);
        OK(mlxvk_subtract(&y, one, y, r.s), r.s);
        OK(mlxvk_image_write(&image, y, r.s), r.s);
        mlxvk_array_free(y);
        OK(mlxvk_stream_record(r.s, commands, &m), r.s);
        end_commands(commands);
        submit(commands, &m, VK_NULL_HANDLE, 0);
        queue_idle();
        OK(mlxvk_stream_recorded(r.s, m.ticket), r.s);
        copy_out(&image);
        for (int i = 0; i < SIZE; i++) assert_int_equal(r.mapped[i], frame % 2 ? values[i] : 255 - values[i]);
    }
    assert_true(stats_of(r.device).replayed > 0);
    mlxvk_array_free(x);
    mlxvk_array_free(one);
    end_image(vk);
    renderer_close();
}

/* With a chain's kernel, and kept from the second frame on. */
static void test_image_frames(void **state)
{
    (void)state;
    image_frames("MLX_VK_ENABLE_CHAINS=2");
    image_frames("MLX_VK_ENABLE_CHAINS=0");
}

/* ---- slices of time ---- */

static void test_advance(void **state)
{
    (void)state;
    enum { SIDE = 96, STEPS = 60 };
    renderer_open(NULL);
    mlxvk_array x = normals((int[]){ SIDE, SIDE }, 2, MLXVK_FLOAT32, 7, r.s), y = { NULL }, z = { NULL };
    mlxvk_stream plain = open_stream(r.device);
    float *want = malloc(SIDE * SIDE * sizeof *want);
    OK(mlxvk_stream_hold(r.s, true), r.s);
    for (int round = 0; round < 4; round++) {
        size_t left = 0, before, calls = 0, total;
        mlxvk_array_set(&y, x);
        mlxvk_array_set(&z, x);
        for (int i = 0; i < STEPS; i++) {
            OK(mlxvk_matmul(&z, z, x, plain), plain);
            OK(mlxvk_tanh(&z, z, plain), plain);
        }
        for (int i = 0; i < STEPS; i++) {            /* plain's tape goes when this begins */
            OK(mlxvk_matmul(&y, y, x, r.s), r.s);
            OK(mlxvk_tanh(&y, y, r.s), r.s);
        }
        OK(mlxvk_stream_advance(r.s, 0, &total), r.s);
        assert_true(total >= STEPS);
        for (before = total; before; before = left, calls++) {
            OK(mlxvk_stream_advance(r.s, round == 3 ? 1000000000000 : 1, &left), r.s);
            assert_true(left <= before);
        }
        assert_true(round == 3 ? calls <= 2 : calls >= STEPS / 2);     /* one at a time, or all at once */
        OK(mlxvk_array_read(z, want, SIDE * SIDE * sizeof *want, plain), plain);
        expect_floats(y, want, SIDE * SIDE, 1e-5, 1e-5, r.s);
    }
    free(want);
    mlxvk_array_free(x);
    mlxvk_array_free(y);
    mlxvk_array_free(z);
    mlxvk_stream_free(plain);
    renderer_close();
}

/* What was measured counts: operations that took long are submitted one by one, those that were quick together. */
static void test_measured(void **state)
{
    (void)state;
    enum { SIDE = 32, STEPS = 40, BUDGET = 1000000 };
    for (int slow = 0; slow < 2; slow++) {
        size_t left = 0;
        renderer_open(NULL);
        mlxvk_array x = normals((int[]){ SIDE, SIDE }, 2, MLXVK_FLOAT32, 7, r.s), y = { NULL };
        OK(mlxvk_stream_hold(r.s, true), r.s);
        driver.lasts = slow ? BUDGET : 1000;         /* one operation, or all of them */
        mlxvk_array_set(&y, x);
        for (int i = 0; i < STEPS; i++) OK(mlxvk_matmul(&y, y, x, r.s), r.s);
        for (int i = 0; i < 12; i++) {
            OK(mlxvk_stream_advance(r.s, 1, &left), r.s);
            queue_idle();
        }
        assert_int_equal(left, STEPS - 12);
        OK(mlxvk_stream_advance(r.s, BUDGET + BUDGET / 2, &left), r.s);
        assert_int_equal(left, slow ? STEPS - 13 : 0);
        mlxvk_array_free(x);
        mlxvk_array_free(y);
        driver.lasts = 0;
        renderer_close();
    }
}

/* A product that is many slices long; what else happens on the stream meanwhile. */
static void test_cut(void **state)
{
    (void)state;
    driver = (struct driver){ 0 };
    enum { SIDE = 768 };                              /* rows are cut at multiples of 256 */
    const char *type = "";
    renderer_open(NULL);
    float *want = malloc(SIDE * SIDE * sizeof *want), some[N];
    mlxvk_array x = normals((int[]){ SIDE, SIDE }, 2, MLXVK_FLOAT32, 7, r.s), y = { NULL }, z = { NULL };
    OK(mlxvk_matmul(&y, x, x, r.s), r.s);
    OK(mlxvk_array_read(y, want, SIDE * SIDE * sizeof *want, r.s), r.s);
    OK(mlxvk_stream_hold(r.s, true), r.s);
    for (int way = 0; way < 4; way++) {
        size_t left = 1, calls = 0;
        OK(mlxvk_matmul(&y, x, x, r.s), r.s);
        OK(mlxvk_negative(&z, y, r.s), r.s);
        while (left && (way == 0 || calls < 3)) {
            OK(mlxvk_stream_advance(r.s, 1000, &left), r.s);
            queue_idle();                            /* or a call does nothing but wait */
            calls++;
        }
        OK_DEVICE(mlxvk_device_info_get_string(&type, r.device, "type"), r.device);
        assert_true(calls > 2 || strcmp(type, "cpu"));             /* elsewhere it may be too small to be cut */
        if (way == 1) {                              /* another operation, and a read of it */
            mlxvk_array a = numbers(1, 2, 3, some), b = scaled(a, 2, 3);
            expect_floats(b, some, N, 1e-5, 1e-5, r.s);
            mlxvk_array_free(a);
            mlxvk_array_free(b);
        } else if (way == 2) {                       /* a recording of the rest */
            mlxvk_semaphore_value waits[16];
            mlxvk_recording m = { .waits = waits, .wait_room = 16 };
            VkCommandBuffer commands = new_commands(false);
            OK(mlxvk_stream_record(r.s, commands, &m), r.s);
            end_commands(commands);
            submit(commands, &m, VK_NULL_HANDLE, 0);
            queue_idle();
            OK(mlxvk_stream_recorded(r.s, m.ticket), r.s);
        } else if (way == 3) {                       /* nobody wants it any more */
            mlxvk_array_free(y);
            mlxvk_array_free(z);
            y = z = NONE;
            OK(mlxvk_stream_advance(r.s, 1000, &left), r.s);
            break;
        }
        OK(mlxvk_negative(&z, z, r.s), r.s);
        expect_floats(z, want, SIDE * SIDE, 1e-4, 1e-4, r.s);
        expect_floats(y, want, SIDE * SIDE, 1e-4, 1e-4, r.s);
    }
    free(want);
    mlxvk_array_free(x);
    renderer_close();
}

/* ---- without memory ---- */

static long allocations_left = -1;                   /* below 0: as many as there are */
static long allocations_live;
static void *allocate(size_t size, void *user)
{
    (void)user;
    if (!allocations_left) return NULL;
    if (allocations_left > 0) allocations_left--;
    allocations_live++;
    return malloc(size);
}
static void release(void *pointer, void *user) { (void)user; allocations_live--; free(pointer); }

/* y = x + x in a recording that is done when the event has that value, submitted. */
static void recorded_sum(mlxvk_device d, mlxvk_stream s, mlxvk_array *y, mlxvk_array x, mlxvk_event done, uint64_t value)
{
    mlxvk_semaphore_value waits[16];
    uint64_t semaphore;
    VkSemaphore vk;
    VkCommandBuffer commands = new_commands(false);
    OK_DEVICE(mlxvk_event_semaphore(&semaphore, done), d);
    memcpy(&vk, &semaphore, sizeof vk);
    mlxvk_recording m = { .done = done, .done_value = value, .waits = waits, .wait_room = 16 };
    OK(mlxvk_add(y, x, x, s), s);
    OK(mlxvk_stream_record(s, commands, &m), s);
    end_commands(commands);
    submit(commands, &m, vk, value);
}

/* A frame whose event is its own, of a value that is not the next one's; the result of the one before is its operand. */
static void frame_with_event(mlxvk_device d, mlxvk_stream s, mlxvk_array *x, mlxvk_array less, uint64_t value)
{
    mlxvk_event done = { NULL };
    OK_DEVICE(mlxvk_event_new(&done, d), d);
    recorded_sum(d, s, x, *x, done, value);
    OK(mlxvk_subtract(x, *x, less, s), s);           /* waits for the event */
    OK(mlxvk_finalize(s), s);
    mlxvk_event_free(done);
}

/* A time in nanoseconds, where the device counts that far at once. */
static uint64_t great_value(mlxvk_device d)
{
    const uint64_t value = 1800000000000000000;
    mlxvk_event event = { NULL };
    OK_DEVICE(mlxvk_event_new(&event, d), d);
    int code = mlxvk_event_signal_host(event, value);
    assert_true(!code || code == MLXVK_ERROR_LIMIT);
    mlxvk_event_free(event);
    return code ? INT32_MAX - 1000 : value;
}

/* Recordings that each need the one before, whose event goes when the next is recorded. */
static void chain_of_recordings(mlxvk_device d, mlxvk_stream s, mlxvk_array zero)
{
    mlxvk_array x = { NULL };
    mlxvk_event last = { NULL }, done;
    long live = 0;
    OK(mlxvk_array_set(&x, zero), s);
    for (int i = 0; i < 300; i++) {
        done.ctx = NULL;
        OK_DEVICE(mlxvk_event_new(&done, d), d);
        recorded_sum(d, s, &x, x, done, 1);
        queue_idle();
        mlxvk_event_free(last);
        last = done;
        if (i == 100) live = allocations_live;
    }
    mlxvk_event_free(last);
    assert_true(allocations_live < live + 50);
    mlxvk_array_free(x);
}

/* What an event said was done is still so when the event is gone and the next one has values of its own. */
static void results_of_events_gone(mlxvk_device d, mlxvk_stream s)
{
    const uint64_t values[] = { 1, great_value(d), 2 };
    mlxvk_array x = floats(d, (float[]){ 1, 2 }, (int[]){ 2 }, 1), y[3] = { { NULL }, { NULL }, { NULL } }, z = { NULL };
    mlxvk_event events[2] = { { NULL }, { NULL } };
    OK_DEVICE(mlxvk_event_new(&events[0], d), d);
    for (int i = 0; i < 2; i++) recorded_sum(d, s, &y[i], x, events[0], values[i]);
    queue_idle();
    mlxvk_event_free(events[0]);
    OK_DEVICE(mlxvk_event_new(&events[1], d), d);
    recorded_sum(d, s, &y[2], x, events[1], values[2]);
    queue_idle();
    OK(mlxvk_add(&z, y[0], y[1], s), s);
    OK(mlxvk_add(&z, z, y[2], s), s);
    expect_floats(z, (float[]){ 6, 12 }, 2, 0, 0, s);
    for (int i = 0; i < 3; i++) mlxvk_array_free(y[i]);
    mlxvk_array_free(x);
    mlxvk_array_free(z);
    mlxvk_event_free(events[1]);
}

static mlxvk_event new_event(void)
{
    mlxvk_event event = { NULL };
    OK_DEVICE(mlxvk_event_new(&event, r.device), r.device);
    return event;
}

/* Semaphores that are there once events that may go have gone. */
static int semaphores_left(void)
{
    mlxvk_event_free(new_event());
    return driver.semaphores;
}

static VkSemaphore semaphore_of(mlxvk_event event)
{
    uint64_t handle;
    VkSemaphore semaphore;
    OK_DEVICE(mlxvk_event_semaphore(&handle, event), r.device);
    memcpy(&semaphore, &handle, sizeof semaphore);
    return semaphore;
}

static bool waits_for(const mlxvk_recording *m, mlxvk_event event, uint64_t value)
{
    uint64_t semaphore;
    OK_DEVICE(mlxvk_event_semaphore(&semaphore, event), r.device);
    for (uint32_t i = 0; i < m->wait_count; i++)
        if (m->waits[i].vk_semaphore == semaphore && m->waits[i].value == value) return true;
    return false;
}

/* Work of the stream's own, done. */
static void work(int round)
{
    float want[N];
    mlxvk_array x = numbers(round, 2, 1, want), y = scaled(x, 2, 1);
    expect_floats(y, want, N, 1e-6, 1e-6, r.s);
    mlxvk_array_free(x);
    mlxvk_array_free(y);
}

/* Records what is on the tape. */
static VkCommandBuffer record(mlxvk_recording *m)
{
    VkCommandBuffer commands = new_commands(false);
    OK(mlxvk_stream_record(r.s, commands, m), r.s);
    end_commands(commands);
    return commands;
}

/* An event that the stream waits for is in use until the recording that waits for it, then, is done, whatever the
 * stream itself has done by then; and no longer, though the stream does nothing. */
static void waited_by_recording(bool works)
{
    float want[N];
    mlxvk_semaphore_value waits[16];
    mlxvk_recording m = { .waits = waits, .wait_room = 16 };
    mlxvk_event event = new_event();
    mlxvk_array x = numbers(1, 2, 1, want), y = scaled(x, 2, 1);
    OK(mlxvk_event_wait(event, 1, r.s), r.s);
    VkCommandBuffer commands = record(&m);
    assert_true(waits_for(&m, event, 1));
    OK_DEVICE(mlxvk_event_signal_host(event, 1), r.device);
    int before = semaphores_left();
    mlxvk_event_free(event);
    for (int i = 0; i < 3 && works; i++) work(i);
    assert_int_equal(semaphores_left(), before);
    submit(commands, &m, VK_NULL_HANDLE, 0);
    queue_idle();
    OK(mlxvk_stream_recorded(r.s, m.ticket), r.s);
    assert_int_equal(semaphores_left(), before - 1);
    expect_floats(y, want, N, 1e-6, 1e-6, r.s);
    mlxvk_array_free(x);
    mlxvk_array_free(y);
}

/* The same of an event behind which there is an operand of what nobody wants in the end: it is waited for all the same. */
static void waited_in_vain(void)
{
    float want[N];
    mlxvk_semaphore_value waits[16];
    mlxvk_event done = new_event();
    mlxvk_array x = numbers(1, 2, 0, want), y = { NULL }, z = { NULL };
    mlxvk_recording first = { .waits = waits, .wait_room = 16, .done = done, .done_value = 1 };
    OK(mlxvk_add(&y, x, x, r.s), r.s);
    VkCommandBuffer commands = record(&first);
    VkSemaphore semaphore = semaphore_of(done);
    mlxvk_semaphore_value more[16];
    mlxvk_recording second = { .waits = more, .wait_room = 16 };
    OK(mlxvk_add(&z, y, y, r.s), r.s);
    mlxvk_array_free(z);
    VkCommandBuffer behind = record(&second);
    assert_true(waits_for(&second, done, 1));
    submit(commands, &first, semaphore, 1);
    queue_idle();
    int before = semaphores_left();
    mlxvk_event_free(done);
    assert_int_equal(semaphores_left(), before);
    submit(behind, &second, VK_NULL_HANDLE, 0);
    queue_idle();
    OK(mlxvk_stream_recorded(r.s, second.ticket), r.s);
    assert_int_equal(semaphores_left(), before - 1);
    for (int i = 0; i < N; i++) want[i] *= 2;
    expect_floats(y, want, N, 1e-6, 1e-6, r.s);
    mlxvk_array_free(x);
    mlxvk_array_free(y);
}

/* What a recording waits for is waited for by nobody else, also when all streams are submitted. */
static void waited_by_none_but_it(void)
{
    float want[N];
    mlxvk_semaphore_value waits[16], more[16];
    mlxvk_event done = new_event();
    mlxvk_array x = numbers(1, 2, 0, want), y = { NULL }, z = { NULL };
    mlxvk_recording first = { .waits = waits, .wait_room = 16, .done = done, .done_value = 1 };
    mlxvk_recording second = { .waits = more, .wait_room = 16 };
    OK(mlxvk_add(&y, x, x, r.s), r.s);
    VkCommandBuffer commands = record(&first);
    OK(mlxvk_add(&z, y, y, r.s), r.s);
    VkCommandBuffer behind = record(&second);
    assert_true(waits_for(&second, done, 1));
    uint64_t submissions = stats_of(r.device).submissions;
    OK_DEVICE(mlxvk_clear_streams(r.device), r.device);
    assert_int_equal(stats_of(r.device).submissions, submissions);
    submit(commands, &first, semaphore_of(done), 1);
    submit(behind, &second, VK_NULL_HANDLE, 0);
    queue_idle();
    OK(mlxvk_stream_recorded(r.s, second.ticket), r.s);
    for (int i = 0; i < N; i++) want[i] *= 4;
    expect_floats(z, want, N, 1e-6, 1e-6, r.s);
    mlxvk_event_free(done);
    mlxvk_array_free(x);
    mlxvk_array_free(y);
    mlxvk_array_free(z);
}

/* Where nothing is recorded nothing is given to wait for: no recording would keep the events' semaphores. */
static void refused_waits_for_nothing(void)
{
    mlxvk_semaphore_value waits[16];
    mlxvk_event event = new_event(), done = new_event();
    mlxvk_recording m = { .waits = waits, .wait_room = 16, .done = done, .done_value = 1 };
    OK_DEVICE(mlxvk_event_signal_host(done, 1), r.device);
    OK(mlxvk_event_wait(event, 1, r.s), r.s);
    REFUSED(mlxvk_stream_record(r.s, new_commands(false), &m), MLXVK_ERROR_ARGUMENT, r.s, "not over the last one");
    assert_int_equal(m.wait_count, 0);
    m.done_value = 2;
    VkCommandBuffer commands = record(&m);
    assert_true(waits_for(&m, event, 1));
    OK_DEVICE(mlxvk_event_signal_host(event, 1), r.device);
    submit(commands, &m, semaphore_of(done), 2);
    queue_idle();
    mlxvk_event_free(event);
    mlxvk_event_free(done);
}

/* A recording's value of an event comes behind the one that another stream is to signal before it, on whatever queue
 * that is; its own stream's is waited for anyway. */
static void behind_a_signal(void)
{
    float want[N];
    mlxvk_semaphore_value waits[16];
    mlxvk_stream other = open_stream(r.device);
    mlxvk_event gate = new_event(), done = new_event();
    for (uint64_t value = 1; value < 7; value += 2) {
        mlxvk_array x = numbers((int)value, 2, 1, want), y = scaled(x, 2, 1);
        mlxvk_stream by = value < 5 ? other : r.s;
        mlxvk_recording m = { .done = done, .done_value = value + 1 };
        OK(mlxvk_event_wait(gate, value, by), by);
        OK(mlxvk_event_signal(done, value, by), by);
        REFUSED(mlxvk_stream_record(r.s, new_commands(false), &m), MLXVK_ERROR_NOT_READY, r.s, "give waits");
        m.waits = waits;
        m.wait_room = 16;
        VkCommandBuffer commands = record(&m);
        assert_true(by.ctx == r.s.ctx || waits_for(&m, done, value));
        OK_DEVICE(mlxvk_event_signal_host(gate, value), r.device);
        submit(commands, &m, semaphore_of(done), value + 1);
        OK_DEVICE(mlxvk_event_wait_host(done, value + 1, UINT64_MAX), r.device);
        expect_floats(y, want, N, 1e-6, 1e-6, r.s);
        mlxvk_array_free(x);
        mlxvk_array_free(y);
    }
    queue_idle();
    mlxvk_event_free(gate);
    mlxvk_event_free(done);
    mlxvk_stream_free(other);
}

static void waits_of_recordings(void)
{
    OK(mlxvk_stream_hold(r.s, true), r.s);
    work(0);                                         /* what is made once */
    waited_by_recording(true);
    waited_in_vain();
    waited_by_none_but_it();
    refused_waits_for_nothing();
    for (int i = 0; i < 3; i++) waited_by_recording(false);
    behind_a_signal();
}

/* Events that come and go with frames leave nothing behind. */
static void test_events_of_frames(void **state)
{
    (void)state;
    renderer_open(NULL);
    mlxvk_device d = { NULL };
    const mlxvk_device_desc desc = { .adopt = &r.adopt, .allocator = { allocate, release, NULL } };
    OK_DEVICE(create_device(&d, &desc), d);
    mlxvk_stream s = open_stream(d);
    mlxvk_array x = floats(d, (float[]){ 1, 0 }, (int[]){ 2 }, 1), one = floats(d, (float[]){ 1, 0 }, (int[]){ 2 }, 1);
    OK(mlxvk_stream_hold(s, true), s);
    const uint64_t great = great_value(d);
    long live = 0;
    for (int i = 0; i < 500; i++) {
        frame_with_event(d, s, &x, one, (uint64_t)(i * 7 % 5) + (i % 5 ? great : 1));
        if (i == 100) live = allocations_live;
    }
    assert_true(allocations_live < live + 50);
    expect_floats(x, (float[]){ 1, 0 }, 2, 0, 0, s);
    chain_of_recordings(d, s, x);
    results_of_events_gone(d, s);
    mlxvk_array_free(one);
    mlxvk_array_free(x);
    mlxvk_stream_free(s);
    mlxvk_device_free(d);
    assert_int_equal(allocations_live, 0);
    waits_of_recordings();
    renderer_close();
    assert_int_equal(driver.semaphores, 0);
}

/* A frame with images, recorded, and a slice; 0, or the first error. */
static int frame_without(mlxvk_stream s, mlxvk_event done, const mlxvk_image *image, uint64_t value)
{
    mlxvk_semaphore_value waits[16];
    mlxvk_recording m = { .done = done, .done_value = value, .waits = waits, .wait_room = 16 };
    mlxvk_array x = { NULL };
    VkCommandBuffer commands = new_commands(false);
    int code = mlxvk_image_read(&x, image, MLXVK_FLOAT32, s);
    if (!code) code = mlxvk_add(&x, x, x, s);
    if (!code) code = mlxvk_image_write(image, x, s);
    int recorded = code ? code : mlxvk_stream_record(s, commands, &m);
    if (!code && !recorded) code = mlxvk_add(&x, x, x, s);
    mlxvk_array_free(x);
    end_commands(commands);
    if (!recorded) submit(commands, &m, r.timeline, value);
    queue_idle();
    int advanced = mlxvk_stream_advance(s, 1000000, NULL);
    return code ? code : recorded ? recorded : advanced;
}

/* Each allocation on the way fails once: an error, no crash, no leak, and the next try succeeds. */
static void test_no_memory(void **state)
{
    (void)state;
    long n = 0;
    int code = 1;
    uint64_t timeline = 0, value = 0;
    mlxvk_event done = { NULL };
    renderer_open(NULL);
    mlxvk_device d = { NULL };
    const mlxvk_allocator allocator = { allocate, release, NULL };
    const mlxvk_device_desc desc = { .adopt = &r.adopt, .gates = "MLX_VK_ENABLE_PUSH_DESCRIPTORS=0",
                                     .allocator = allocator };
    OK_DEVICE(create_device(&d, &desc), d);
    memcpy(&timeline, &r.timeline, sizeof r.timeline);
    OK_DEVICE(mlxvk_event_adopt(&done, timeline, d), d);
    VkImage vk = new_image(VK_FORMAT_R8G8B8A8_UNORM);
    mlxvk_image image = { .format = VK_FORMAT_R8G8B8A8_UNORM, .width = W, .height = H,
                          .layout = VK_IMAGE_LAYOUT_GENERAL };
    memcpy(&image.vk_image, &vk, sizeof vk);
    VkCommandBuffer commands = new_commands(false);
    const VkImageMemoryBarrier general = { .sType = VK_STRUCTURE_TYPE_IMAGE_MEMORY_BARRIER, .image = vk,
        .newLayout = VK_IMAGE_LAYOUT_GENERAL, .dstAccessMask = VK_ACCESS_MEMORY_WRITE_BIT,
        .srcQueueFamilyIndex = VK_QUEUE_FAMILY_IGNORED, .dstQueueFamilyIndex = VK_QUEUE_FAMILY_IGNORED,
        .subresourceRange = { VK_IMAGE_ASPECT_COLOR_BIT, 0, LEVELS, 0, LAYERS } };
    VK(vkCmdPipelineBarrier);
    vkCmdPipelineBarrier(commands, VK_PIPELINE_STAGE_TOP_OF_PIPE_BIT, VK_PIPELINE_STAGE_ALL_COMMANDS_BIT, 0, 0, NULL, 0,
                         NULL, 1, &general);
    end_commands(commands);
    submit(commands, NULL, VK_NULL_HANDLE, 0);
    for (; code && n < 500; n++) {
        mlxvk_stream s = open_stream(d);
        allocations_left = n;
        code = frame_without(s, done, &image, ++value);
        bool all = allocations_left > 0;
        allocations_left = -1;
        if (all) assert_int_equal(code, 0);
        if (code) assert_int_equal(frame_without(s, done, &image, ++value), 0);
        mlxvk_stream_free(s);
    }
    assert_true(n > 3 && !code);
    mlxvk_event_free(done);
    mlxvk_device_free(d);
    end_image(vk);
    renderer_close();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frames),      cmocka_unit_test(test_refused),        cmocka_unit_test(test_reserved),
        cmocka_unit_test(test_orphans),     cmocka_unit_test(test_semaphores),     cmocka_unit_test(test_images),
        cmocka_unit_test(test_images_refused), cmocka_unit_test(test_image_frames), cmocka_unit_test(test_advance),
        cmocka_unit_test(test_measured),    cmocka_unit_test(test_cut),            cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_families),    cmocka_unit_test(test_families_refused),
        cmocka_unit_test(test_lost_unasked), cmocka_unit_test(test_refused_step),
        cmocka_unit_test(test_events_of_frames),
    };
    return run_group("engine", tests, NULL, NULL);
}
