#define VK_NO_PROTOTYPES
#include "support_vulkan.h"

#include <dlfcn.h>
#include <vulkan/vulkan.h>

static void *loader;
static PFN_vkGetInstanceProcAddr get_instance;
static PFN_vkGetDeviceProcAddr get_device;
static VkInstance instance;
static VkPhysicalDevice physical;
static VkDevice logical;
static PFN_vkQueueSubmit real_submit;
int fail_submits_after = -1, fail_submits = -1, submit_failure = VK_ERROR_DEVICE_LOST;

#define LOAD(name) PFN_##name name = (PFN_##name)get_instance(instance, #name)

static bool make_instance(void)
{
    loader = dlopen("libvulkan.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!loader) return false;
    *(void **)&get_instance = dlsym(loader, "vkGetInstanceProcAddr");
    instance = VK_NULL_HANDLE;
    LOAD(vkCreateInstance);
    const VkApplicationInfo application = { .sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
                                            .apiVersion = VK_API_VERSION_1_2 };
    const VkInstanceCreateInfo info = { .sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                                        .pApplicationInfo = &application };
    count_instance();
    return vkCreateInstance(&info, NULL, &instance) == VK_SUCCESS;
}

static VkPhysicalDeviceVulkan11Features features11 = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES };
static VkPhysicalDeviceVulkan12Features features12 = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES,
                                                       .pNext = &features11, .timelineSemaphore = VK_TRUE };
static VkPhysicalDeviceFeatures2 features = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2,
                                            .pNext = &features12 };

/* Storage of bytes and halves, as far as the device has it. */
static void want_small_storage(bool wanted)
{
    VkPhysicalDeviceVulkan11Features has11 = { .sType = features11.sType };
    VkPhysicalDeviceVulkan12Features has12 = { .sType = features12.sType, .pNext = &has11 };
    VkPhysicalDeviceFeatures2 has = { .sType = features.sType, .pNext = &has12 };
    LOAD(vkGetPhysicalDeviceFeatures2);
    vkGetPhysicalDeviceFeatures2(physical, &has);
    features11.storageBuffer16BitAccess = wanted && has11.storageBuffer16BitAccess;
    features12.storageBuffer8BitAccess = wanted && has12.storageBuffer8BitAccess;
}

static bool make_logical(mlxvk_adopt *adopt, bool small_storage)
{
    const float priority = 1;
    uint32_t count = 1;
    VkQueue queue;
    LOAD(vkEnumeratePhysicalDevices);
    LOAD(vkCreateDevice);
    LOAD(vkGetDeviceProcAddr);
    const VkDeviceQueueCreateInfo queues = { .sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO, .queueCount = 1,
                                             .pQueuePriorities = &priority };
    const VkDeviceCreateInfo info = { .sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO, .pNext = &features,
                                      .queueCreateInfoCount = 1, .pQueueCreateInfos = &queues };
    get_device = vkGetDeviceProcAddr;
    if (vkEnumeratePhysicalDevices(instance, &count, &physical) < 0 || !count) return false;
    want_small_storage(small_storage);
    if (vkCreateDevice(physical, &info, NULL, &logical)) return false;
    PFN_vkGetDeviceQueue vkGetDeviceQueue = (PFN_vkGetDeviceQueue)get_device(logical, "vkGetDeviceQueue");
    real_submit = (PFN_vkQueueSubmit)get_device(logical, "vkQueueSubmit");
    vkGetDeviceQueue(logical, 0, 0, &queue);
    *adopt = (mlxvk_adopt){ .instance = instance, .physical_device = physical, .device = logical, .queue = queue,
                            .features = &features };
    return true;
}

void own_vulkan(mlxvk_adopt *adopt, bool small_storage)
{
    if (!make_instance() || !make_logical(adopt, small_storage)) fail_msg("no Vulkan device of the test's own");
}

void *vulkan_function(const char *name)
{
    PFN_vkVoidFunction function = get_device(logical, name);
    void *pointer;
    if (!function) function = get_instance(instance, name);
    memcpy(&pointer, &function, sizeof pointer);
    return pointer;
}

void end_vulkan(void)
{
    LOAD(vkDestroyInstance);
    PFN_vkDestroyDevice vkDestroyDevice = (PFN_vkDestroyDevice)get_device(logical, "vkDestroyDevice");
    vkDestroyDevice(logical, NULL);
    vkDestroyInstance(instance, NULL);
    dlclose(loader);
}

/* ---- a buffer ---- */

#define DEVICE_CALL(name) ((PFN_##name)get_device(logical, #name))

static VkBuffer buffer;
static VkDeviceMemory memory;

/* The first type of those allowed that the host maps, the device's own if one is; UINT32_MAX where there is none. */
static uint32_t mapped_type(VkPhysicalDevice physical, uint32_t allowed)
{
    const VkMemoryPropertyFlags host = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    VkPhysicalDeviceMemoryProperties m;
    LOAD(vkGetPhysicalDeviceMemoryProperties);
    vkGetPhysicalDeviceMemoryProperties(physical, &m);
    for (int own = 1; own >= 0; own--) {
        VkMemoryPropertyFlags wanted = host | (own ? VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT : 0);
        for (uint32_t i = 0; i < m.memoryTypeCount; i++)
            if ((allowed >> i & 1) && (m.memoryTypes[i].propertyFlags & wanted) == wanted) return i;
    }
    return UINT32_MAX;
}

uint64_t own_buffer(size_t size, void **mapped)
{
    const VkBufferUsageFlags usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT |
                                     VK_BUFFER_USAGE_TRANSFER_DST_BIT;
    const VkBufferCreateInfo info = { .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, .size = size, .usage = usage };
    VkMemoryAllocateInfo allocate = { .sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO };
    VkMemoryRequirements need;
    uint64_t handle = 0;
    assert_int_equal(DEVICE_CALL(vkCreateBuffer)(logical, &info, NULL, &buffer), VK_SUCCESS);
    DEVICE_CALL(vkGetBufferMemoryRequirements)(logical, buffer, &need);
    allocate.allocationSize = need.size;
    allocate.memoryTypeIndex = mapped_type(physical, need.memoryTypeBits);
    assert_int_not_equal(allocate.memoryTypeIndex, UINT32_MAX);
    assert_int_equal(DEVICE_CALL(vkAllocateMemory)(logical, &allocate, NULL, &memory), VK_SUCCESS);
    assert_int_equal(DEVICE_CALL(vkBindBufferMemory)(logical, buffer, memory, 0), VK_SUCCESS);
    assert_int_equal(DEVICE_CALL(vkMapMemory)(logical, memory, 0, VK_WHOLE_SIZE, 0, mapped), VK_SUCCESS);
    memcpy(&handle, &buffer, sizeof buffer);
    return handle;
}

void end_own_buffer(void)
{
    DEVICE_CALL(vkDestroyBuffer)(logical, buffer, NULL);
    DEVICE_CALL(vkFreeMemory)(logical, memory, NULL);
}

/* ---- a driver that fails ---- */

static VKAPI_ATTR VkResult VKAPI_CALL failing_submit(VkQueue q, uint32_t count, const VkSubmitInfo *submits,
                                                     VkFence fence)
{
    if (fail_submits_after == 0 && fail_submits && fail_submits-- != 0) return (VkResult)submit_failure;
    if (fail_submits_after > 0) fail_submits_after--;
    return real_submit(q, count, submits, fence);
}

struct driver driver;

static VKAPI_ATTR VkResult VKAPI_CALL failing_wait(VkDevice d, const VkSemaphoreWaitInfo *info, uint64_t timeout)
{
    if (driver.fail_waits && driver.fail_waits--) return (VkResult)driver.wait_failure;
    return DEVICE_CALL(vkWaitSemaphores)(d, info, timeout);
}

static VKAPI_ATTR VkResult VKAPI_CALL exhausted_allocate(VkDevice d, const VkMemoryAllocateInfo *info,
                                                         const VkAllocationCallbacks *callbacks, VkDeviceMemory *memory)
{
    VkMemoryAllocateInfo true_info = *info;
    VkResult r = VK_ERROR_OUT_OF_DEVICE_MEMORY;
    if (driver.types) true_info.memoryTypeIndex = mapped_type(physical, ~0u);
    if (!(driver.exhausted >> info->memoryTypeIndex & 1))
        r = DEVICE_CALL(vkAllocateMemory)(d, &true_info, callbacks, memory);
    if (r == VK_SUCCESS) driver.used |= 1u << info->memoryTypeIndex;
    driver.allocations += r == VK_SUCCESS;
    return r;
}

static VKAPI_ATTR void VKAPI_CALL counted_free(VkDevice d, VkDeviceMemory memory,
                                               const VkAllocationCallbacks *callbacks)
{
    driver.frees += memory != VK_NULL_HANDLE;
    DEVICE_CALL(vkFreeMemory)(d, memory, callbacks);
}

static VKAPI_ATTR void VKAPI_CALL picky_requirements(VkDevice d, VkBuffer buffer, VkMemoryRequirements *need)
{
    DEVICE_CALL(vkGetBufferMemoryRequirements)(d, buffer, need);
    if (driver.types) need->memoryTypeBits = driver.allowed;
}

/* What it does not have is undefined: large here. */
static VKAPI_ATTR VkResult VKAPI_CALL half_ready(VkDevice d, VkQueryPool pool, uint32_t first, uint32_t count,
                                                 size_t size, void *data, VkDeviceSize stride, VkQueryResultFlags flags)
{
    if (driver.lasts && count == 2 && !(flags & VK_QUERY_RESULT_WITH_AVAILABILITY_BIT)) {
        memcpy(data, ((uint64_t[]){ 1000, 1000 + driver.lasts }), 16);
        return VK_SUCCESS;
    }
    if (!driver.half_ready) return DEVICE_CALL(vkGetQueryPoolResults)(d, pool, first, count, size, data, stride, flags);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t result[2] = { i < 2 ? 1000 + 500 * i : (uint64_t)(i % 2) << 60, i < 2 };
        memcpy((char *)data + i * stride, result, flags & VK_QUERY_RESULT_WITH_AVAILABILITY_BIT ? 16 : 8);
    }
    return count > 2 ? VK_NOT_READY : VK_SUCCESS;
}

static VKAPI_ATTR VkResult VKAPI_CALL counted_layout(VkDevice d, const VkDescriptorSetLayoutCreateInfo *info,
                                                     const VkAllocationCallbacks *callbacks,
                                                     VkDescriptorSetLayout *layout)
{
    if (info->bindingCount > driver.largest_layout) driver.largest_layout = info->bindingCount;
    return DEVICE_CALL(vkCreateDescriptorSetLayout)(d, info, callbacks, layout);
}

static VKAPI_ATTR void VKAPI_CALL checked_update(VkDevice d, uint32_t count, const VkWriteDescriptorSet *writes,
                                                 uint32_t copies, const VkCopyDescriptorSet *copy)
{
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t k = 0; k < writes[i].descriptorCount && driver.alignment; k++)
            driver.misaligned += writes[i].pBufferInfo && writes[i].pBufferInfo[k].offset % driver.alignment;
    DEVICE_CALL(vkUpdateDescriptorSets)(d, count, writes, copies, copy);
}

/* Of memory that serves every purpose. */
static VKAPI_ATTR void VKAPI_CALL more_types(VkPhysicalDevice p, VkPhysicalDeviceMemoryProperties *m)
{
    LOAD(vkGetPhysicalDeviceMemoryProperties);
    vkGetPhysicalDeviceMemoryProperties(p, m);
    if (!driver.types) return;
    VkMemoryType mapped = m->memoryTypes[mapped_type(p, ~0u)];
    m->memoryTypeCount = driver.types;
    for (uint32_t i = 0; i < driver.types; i++) m->memoryTypes[i] = mapped;
}

static VKAPI_ATTR void VKAPI_CALL lower_limits(VkPhysicalDevice device, VkPhysicalDeviceProperties2 *p)
{
    LOAD(vkGetPhysicalDeviceProperties2);
    VkPhysicalDeviceLimits *l = &p->properties.limits;
    vkGetPhysicalDeviceProperties2(device, p);
    l->timestampPeriod = 1;
    if (driver.max_buffers) l->maxPerStageDescriptorStorageBuffers = driver.max_buffers;
    if (driver.alignment > l->minStorageBufferOffsetAlignment) l->minStorageBufferOffsetAlignment = driver.alignment;
    if (driver.alignment) driver.alignment = (uint32_t)l->minStorageBufferOffsetAlignment;
    if (driver.max_threads) l->maxComputeWorkGroupInvocations = l->maxComputeWorkGroupSize[0] = driver.max_threads;
}

#define REPLACED(X)                                                                                                   \
    X(vkQueueSubmit, failing_submit) X(vkWaitSemaphores, failing_wait) X(vkAllocateMemory, exhausted_allocate)        \
    X(vkFreeMemory, counted_free) X(vkGetBufferMemoryRequirements, picky_requirements)                                \
    X(vkGetQueryPoolResults, half_ready) X(vkCreateDescriptorSetLayout, counted_layout)                               \
    X(vkUpdateDescriptorSets, checked_update)

static PFN_vkVoidFunction replaced(const char *name)
{
#define X(function, ours) if (!strcmp(name, #function)) return (PFN_vkVoidFunction)ours;
    REPLACED(X)
#undef X
    return NULL;
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL failing_device_proc(VkDevice d, const char *name)
{
    PFN_vkVoidFunction ours = replaced(name);
    return ours ? ours : get_device(d, name);
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL failing_instance_proc(VkInstance i, const char *name)
{
    PFN_vkVoidFunction ours = replaced(name);
    if (ours) return ours;
    if (!strcmp(name, "vkGetDeviceProcAddr")) return (PFN_vkVoidFunction)failing_device_proc;
    if (!strcmp(name, "vkGetPhysicalDeviceMemoryProperties")) return (PFN_vkVoidFunction)more_types;
    if (!strcmp(name, "vkGetPhysicalDeviceProperties2")) return (PFN_vkVoidFunction)lower_limits;
    return get_instance(i, name);
}

void *failing_driver(void)
{
    PFN_vkGetInstanceProcAddr proc = failing_instance_proc;
    void *pointer;
    memcpy(&pointer, &proc, sizeof pointer);
    return pointer;
}

mlxvk_device own_device(const char *gates)
{
    mlxvk_adopt a;
    mlxvk_device d = { NULL };
    mlxvk_error error = { 0 };
    own_vulkan(&a, true);
    if (driver.types && mapped_type(physical, ~0u) == UINT32_MAX) {
        end_vulkan();
        print_message("the device has no memory that the host maps\n");
        skip();
    }
    a.get_instance_proc_addr = failing_driver();
    if (create_device(&d, &(mlxvk_device_desc){ .adopt = &a, .gates = gates, .error = &error }))
        fail_msg("%s", error.text);
    return d;
}
