#define _POSIX_C_SOURCE 200809L
#define VK_NO_PROTOTYPES
#include "support_vulkan.h"

#include <dlfcn.h>
#include <time.h>
#include <vulkan/vulkan.h>

static void *loader;
static PFN_vkGetInstanceProcAddr get_instance;
static PFN_vkGetDeviceProcAddr get_device;
static VkInstance instance;
static VkPhysicalDevice physical;
static VkDevice logical;
static PFN_vkQueueSubmit real_submit;
struct driver driver;
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

/* So many of the list at `names`: what the device is made with, and dma-buf where that is to be pretended. */
static uint32_t sharing_extensions(const char *const **names)
{
    static const char *const list[] = { "VK_KHR_external_memory_fd", "VK_EXT_external_memory_dma_buf" };
    VkExtensionProperties has[512];
    uint32_t count = COUNT(has);
    LOAD(vkEnumerateDeviceExtensionProperties);
    *names = list;
    if (!driver.shares || vkEnumerateDeviceExtensionProperties(physical, NULL, &count, has) < 0) return 0;
    for (uint32_t i = 0; i < count; i++) if (!strcmp(has[i].extensionName, list[0])) return driver.renames ? 2 : 1;
    return 0;
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
    VkDeviceCreateInfo info = { .sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO, .pNext = &features,
                                .queueCreateInfoCount = 1, .pQueueCreateInfos = &queues };
    const char *const *extensions;
    uint32_t extension_count;
    get_device = vkGetDeviceProcAddr;
    if (vkEnumeratePhysicalDevices(instance, &count, &physical) < 0 || !count) return false;
    want_small_storage(small_storage);
    extension_count = sharing_extensions(&extensions);
    info.enabledExtensionCount = extension_count > 0;              /* the second one is not there */
    info.ppEnabledExtensionNames = extensions;
    if (vkCreateDevice(physical, &info, NULL, &logical)) return false;
    PFN_vkGetDeviceQueue vkGetDeviceQueue = (PFN_vkGetDeviceQueue)get_device(logical, "vkGetDeviceQueue");
    real_submit = (PFN_vkQueueSubmit)get_device(logical, "vkQueueSubmit");
    vkGetDeviceQueue(logical, 0, 0, &queue);
    *adopt = (mlxvk_adopt){ .instance = instance, .physical_device = physical, .device = logical, .queue = queue,
                            .features = &features, .extensions = extensions, .extension_count = extension_count };
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

static VKAPI_ATTR VkResult VKAPI_CALL failing_wait(VkDevice d, const VkSemaphoreWaitInfo *info, uint64_t timeout)
{
    if (driver.fail_waits && driver.fail_waits--) return (VkResult)driver.wait_failure;
    return DEVICE_CALL(vkWaitSemaphores)(d, info, timeout);
}

static VKAPI_ATTR VkResult VKAPI_CALL lost_counter(VkDevice d, VkSemaphore semaphore, uint64_t *value)
{
    return driver.lost_counters ? VK_ERROR_DEVICE_LOST : DEVICE_CALL(vkGetSemaphoreCounterValue)(d, semaphore, value);
}

static VKAPI_ATTR VkResult VKAPI_CALL counted_semaphore(VkDevice d, const VkSemaphoreCreateInfo *info,
                                                        const VkAllocationCallbacks *a, VkSemaphore *semaphore)
{
    VkResult r = DEVICE_CALL(vkCreateSemaphore)(d, info, a, semaphore);
    driver.semaphores += r == VK_SUCCESS;
    return r;
}

static VKAPI_ATTR void VKAPI_CALL counted_end(VkDevice d, VkSemaphore semaphore, const VkAllocationCallbacks *a)
{
    driver.semaphores -= semaphore != VK_NULL_HANDLE;
    DEVICE_CALL(vkDestroySemaphore)(d, semaphore, a);
}

static VKAPI_ATTR VkResult VKAPI_CALL slow_signal(VkDevice d, const VkSemaphoreSignalInfo *info)
{
    uint64_t now = 0;
    if (info->value == driver.slow_signal) nanosleep(&(struct timespec){ 0, 100000000 }, NULL);
    DEVICE_CALL(vkGetSemaphoreCounterValue)(d, info->semaphore, &now);
    if (now < info->value) return DEVICE_CALL(vkSignalSemaphore)(d, info);
    driver.signalled_back = true;
    return VK_SUCCESS;
}

/* ---- descriptors of dma-buf, which are opaque ones to the device ---- */

static VkExternalMemoryHandleTypeFlagBits renamed(VkExternalMemoryHandleTypeFlags types)
{
    if (!driver.renames || types != VK_EXTERNAL_MEMORY_HANDLE_TYPE_DMA_BUF_BIT_EXT)
        return (VkExternalMemoryHandleTypeFlagBits)types;
    driver.renamed++;
    return VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT;
}

static VKAPI_ATTR void VKAPI_CALL renamed_properties(VkPhysicalDevice p, const VkPhysicalDeviceExternalBufferInfo *info,
                                                     VkExternalBufferProperties *properties)
{
    VkPhysicalDeviceExternalBufferInfo opaque = *info;
    LOAD(vkGetPhysicalDeviceExternalBufferProperties);
    opaque.handleType = renamed(info->handleType);
    vkGetPhysicalDeviceExternalBufferProperties(p, &opaque, properties);
}

static VKAPI_ATTR VkResult VKAPI_CALL renamed_buffer(VkDevice d, const VkBufferCreateInfo *info,
                                                     const VkAllocationCallbacks *callbacks, VkBuffer *buffer)
{
    VkBufferCreateInfo opaque = *info;
    VkExternalMemoryBufferCreateInfo external;
    const VkBaseInStructure *first = info->pNext;
    if (first && first->sType == VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO) {
        memcpy(&external, first, sizeof external);
        external.handleTypes = renamed(external.handleTypes);
        opaque.pNext = &external;
    }
    return DEVICE_CALL(vkCreateBuffer)(d, &opaque, callbacks, buffer);
}

/* What leads the chain of an allocation. */
struct renamed_chain { VkImportMemoryFdInfoKHR import; VkExportMemoryAllocateInfo exported; };

static const void *renamed_chain(struct renamed_chain *c, const void *chain)
{
    const VkBaseInStructure *first = chain;
    if (first && first->sType == VK_STRUCTURE_TYPE_IMPORT_MEMORY_FD_INFO_KHR) {
        memcpy(&c->import, first, sizeof c->import);
        c->import.handleType = renamed(c->import.handleType);
        return &c->import;
    }
    if (first && first->sType == VK_STRUCTURE_TYPE_EXPORT_MEMORY_ALLOCATE_INFO) {
        memcpy(&c->exported, first, sizeof c->exported);
        c->exported.handleTypes = renamed(c->exported.handleTypes);
        return &c->exported;
    }
    return chain;
}

static VKAPI_ATTR VkResult VKAPI_CALL renamed_fd(VkDevice d, const VkMemoryGetFdInfoKHR *info, int *fd)
{
    VkMemoryGetFdInfoKHR opaque = *info;
    opaque.handleType = renamed(info->handleType);
    return DEVICE_CALL(vkGetMemoryFdKHR)(d, &opaque, fd);
}

/* Of opaque ones the device may not be asked: all types, and whether it is good shows in the import. */
static VKAPI_ATTR VkResult VKAPI_CALL renamed_fd_properties(VkDevice d, VkExternalMemoryHandleTypeFlagBits type, int fd,
                                                            VkMemoryFdPropertiesKHR *properties)
{
    if (renamed(type) == type) return DEVICE_CALL(vkGetMemoryFdPropertiesKHR)(d, type, fd, properties);
    properties->memoryTypeBits = ~0u;
    return VK_SUCCESS;
}

static VKAPI_ATTR VkResult VKAPI_CALL failing_bind(VkDevice d, VkBuffer buffer, VkDeviceMemory memory, VkDeviceSize at)
{
    if (driver.fail_binds && driver.fail_binds--) return VK_ERROR_OUT_OF_DEVICE_MEMORY;
    return DEVICE_CALL(vkBindBufferMemory)(d, buffer, memory, at);
}

static VKAPI_ATTR VkResult VKAPI_CALL failing_pool(VkDevice d, const VkDescriptorPoolCreateInfo *info,
                                                   const VkAllocationCallbacks *callbacks, VkDescriptorPool *pool)
{
    if (driver.fail_pools && driver.fail_pools--) return VK_ERROR_OUT_OF_DEVICE_MEMORY;
    return DEVICE_CALL(vkCreateDescriptorPool)(d, info, callbacks, pool);
}

static VKAPI_ATTR VkResult VKAPI_CALL failing_map(VkDevice d, VkDeviceMemory memory, VkDeviceSize at, VkDeviceSize size,
                                                  VkMemoryMapFlags flags, void **data)
{
    if (driver.fail_maps && driver.fail_maps--) return VK_ERROR_MEMORY_MAP_FAILED;
    return DEVICE_CALL(vkMapMemory)(d, memory, at, size, flags, data);
}

static VKAPI_ATTR VkResult VKAPI_CALL exhausted_allocate(VkDevice d, const VkMemoryAllocateInfo *info,
                                                         const VkAllocationCallbacks *callbacks, VkDeviceMemory *memory)
{
    VkMemoryAllocateInfo true_info = *info;
    VkResult r = VK_ERROR_OUT_OF_DEVICE_MEMORY;
    struct renamed_chain chain;
    true_info.pNext = renamed_chain(&chain, info->pNext);
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

#ifdef VK_EXT_device_fault
static VKAPI_ATTR VkResult VKAPI_CALL tell_fault(VkDevice d, VkDeviceFaultCountsEXT *counts, VkDeviceFaultInfoEXT *info)
{
    (void)d;
    assert_true(counts->addressInfoCount && counts->vendorInfoCount);
    strcpy(info->description, "a page that is not there");
    info->pAddressInfos[0] = (VkDeviceFaultAddressInfoEXT){
        VK_DEVICE_FAULT_ADDRESS_TYPE_WRITE_INVALID_EXT, 0xabcd000, 1 };
    info->pVendorInfos[0] = (VkDeviceFaultVendorInfoEXT){ "unit 7", 77, 0 };
    counts->addressInfoCount = counts->vendorInfoCount = 1;
    return VK_INCOMPLETE;
}
#else
#define tell_fault NULL                                        /* the headers are older */
#endif

/* Of memory that serves every purpose. */
static VKAPI_ATTR void VKAPI_CALL more_types(VkPhysicalDevice p, VkPhysicalDeviceMemoryProperties *m)
{
    LOAD(vkGetPhysicalDeviceMemoryProperties);
    vkGetPhysicalDeviceMemoryProperties(p, m);
    if (!driver.types) return;
    VkMemoryType mapped = m->memoryTypes[mapped_type(p, ~0u)];
    m->memoryTypeCount = driver.types;
    for (uint32_t i = 0; i < driver.types; i++) m->memoryTypes[i] = mapped;
    if (!driver.window) return;
    m->memoryHeapCount = 2;
    m->memoryHeaps[0] = m->memoryHeaps[mapped.heapIndex];
    m->memoryHeaps[1] = (VkMemoryHeap){ .size = 256 << 20, .flags = m->memoryHeaps[0].flags };
    for (uint32_t i = 0; i < driver.types; i++) m->memoryTypes[i].heapIndex = i > 0;
    m->memoryTypes[0].propertyFlags = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT;
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
    if (driver.device_type) p->properties.deviceType = (VkPhysicalDeviceType)driver.device_type;
    if (driver.updated) { p->properties.driverVersion++; p->properties.pipelineCacheUUID[0] ^= 1; }
    if (driver.max_depth) l->maxComputeWorkGroupSize[2] = driver.max_depth;
    if (driver.max_threads) l->maxComputeWorkGroupInvocations = l->maxComputeWorkGroupSize[0] = driver.max_threads;
}

/* ---- pipeline caches whose data are of any size ---- */

unsigned char cache_byte(size_t i) { return (unsigned char)(i * 7 + i / 256 + 3); }

static VKAPI_ATTR VkResult VKAPI_CALL own_cache(VkDevice d, const VkPipelineCacheCreateInfo *info,
                                                const VkAllocationCallbacks *callbacks, VkPipelineCache *cache)
{
    const unsigned char *data = info->pInitialData;
    VkPipelineCacheCreateInfo empty = *info;
    if (!driver.own_cache) return DEVICE_CALL(vkCreatePipelineCache)(d, info, callbacks, cache);
    driver.cache_given = info->initialDataSize;
    driver.cache_wrong = false;
    for (size_t i = 0; i < info->initialDataSize; i++)
        driver.cache_wrong = driver.cache_wrong || data[i] != cache_byte(i);
    if (driver.refuses_cache && info->initialDataSize) return VK_ERROR_INITIALIZATION_FAILED;
    empty.initialDataSize = 0;
    empty.pInitialData = NULL;
    return DEVICE_CALL(vkCreatePipelineCache)(d, &empty, callbacks, cache);
}

static VKAPI_ATTR VkResult VKAPI_CALL own_cache_data(VkDevice d, VkPipelineCache cache, size_t *size, void *data)
{
    size_t room = *size;
    if (!driver.own_cache) return DEVICE_CALL(vkGetPipelineCacheData)(d, cache, size, data);
    *size = driver.cache_bytes;
    if (!data) return VK_SUCCESS;
    if (room < *size) *size = room;
    for (size_t i = 0; i < *size; i++) ((unsigned char *)data)[i] = cache_byte(i);
    return *size < driver.cache_bytes ? VK_INCOMPLETE : VK_SUCCESS;
}

/* ---- images of queue families ---- */

struct image_command image_commands[IMAGE_COMMANDS];
int image_command_count;

static void note_image(struct image_command c, VkImage image)
{
    memcpy(&c.image, &image, sizeof image);
    if (image_command_count < IMAGE_COMMANDS) image_commands[image_command_count++] = c;
}

static VKAPI_ATTR void VKAPI_CALL noted_barrier(VkCommandBuffer b, VkPipelineStageFlags from, VkPipelineStageFlags to,
    VkDependencyFlags flags, uint32_t memories, const VkMemoryBarrier *memory, uint32_t buffers,
    const VkBufferMemoryBarrier *buffer, uint32_t images, const VkImageMemoryBarrier *image)
{
    VkImageMemoryBarrier passed[8];
    assert_true(images <= COUNT(passed));
    for (uint32_t i = 0; i < images; i++) {
        const VkImageMemoryBarrier *m = &image[i];
        passed[i] = *m;
        note_image((struct image_command){ false, { m->srcQueueFamilyIndex, m->dstQueueFamilyIndex },
            { m->oldLayout, m->newLayout }, { from, to }, { m->srcAccessMask, m->dstAccessMask },
            m->subresourceRange.baseMipLevel, m->subresourceRange.baseArrayLayer, 0 }, m->image);
        if (!driver.more_families) continue;
        passed[i].srcQueueFamilyIndex = passed[i].dstQueueFamilyIndex = VK_QUEUE_FAMILY_IGNORED;
    }
    DEVICE_CALL(vkCmdPipelineBarrier)(b, from, to, flags, memories, memory, buffers, buffer, images, passed);
}

static VKAPI_ATTR void VKAPI_CALL noted_read(VkCommandBuffer b, VkImage image, VkImageLayout layout, VkBuffer buffer,
                                             uint32_t count, const VkBufferImageCopy *copies)
{
    note_image((struct image_command){ .copy = true, .layouts = { layout, layout },
        .mip = copies->imageSubresource.mipLevel, .layer = copies->imageSubresource.baseArrayLayer }, image);
    DEVICE_CALL(vkCmdCopyImageToBuffer)(b, image, layout, buffer, count, copies);
}

static VKAPI_ATTR void VKAPI_CALL noted_write(VkCommandBuffer b, VkBuffer buffer, VkImage image, VkImageLayout layout,
                                              uint32_t count, const VkBufferImageCopy *copies)
{
    note_image((struct image_command){ .copy = true, .layouts = { layout, layout },
        .mip = copies->imageSubresource.mipLevel, .layer = copies->imageSubresource.baseArrayLayer }, image);
    DEVICE_CALL(vkCmdCopyBufferToImage)(b, buffer, image, layout, count, copies);
}

/* As the last of the device's own. */
static VKAPI_ATTR void VKAPI_CALL more_families(VkPhysicalDevice p, uint32_t *count, VkQueueFamilyProperties *families)
{
    uint32_t own = 0, room = *count;
    VkQueueFamilyProperties last;
    LOAD(vkGetPhysicalDeviceQueueFamilyProperties);
    vkGetPhysicalDeviceQueueFamilyProperties(p, families ? count : &own, families);
    if (!families) { *count = own + driver.more_families; return; }
    for (last = families[*count - 1], own = *count; *count < own + driver.more_families && *count < room; ++*count)
        families[*count] = last;
}

/* ---- kernels with a capability that do nothing ---- */

/* Handles of one kind; one that comes again is another object. */
struct broken { void *handle[256]; int count; };
static struct broken broken_modules, broken_pipelines;
static bool bound_broken;

static bool is_broken(const struct broken *b, void *handle)
{
    for (int i = 0; i < b->count; i++) if (b->handle[i] == handle) return true;
    return false;
}

static void set_broken(struct broken *b, void *handle, bool broken)
{
    for (int i = 0; i < b->count; i++) if (b->handle[i] == handle) b->handle[i--] = b->handle[--b->count];
    if (broken && b->count < (int)COUNT(b->handle)) b->handle[b->count++] = handle;
}

/* Pointers, but on 32-bit machines. */
#define HANDLE(object) ((void *)(uintptr_t)(object))

static VKAPI_ATTR VkResult VKAPI_CALL breaking_module(VkDevice d, const VkShaderModuleCreateInfo *info,
                                                      const VkAllocationCallbacks *callbacks, VkShaderModule *module)
{
    VkResult r = DEVICE_CALL(vkCreateShaderModule)(d, info, callbacks, module);
    const uint32_t capability = 2 << 16 | 17;
    bool broken = false;
    for (size_t at = 5; at + 1 < info->codeSize / 4 && info->pCode[at] == capability; at += 2)
        broken = broken || (driver.broken && info->pCode[at + 1] == driver.broken);
    if (r == VK_SUCCESS) set_broken(&broken_modules, HANDLE(*module), broken);
    return r;
}

static VKAPI_ATTR VkResult VKAPI_CALL breaking_pipeline(VkDevice d, VkPipelineCache cache, uint32_t count,
                                                        const VkComputePipelineCreateInfo *info,
                                                        const VkAllocationCallbacks *callbacks, VkPipeline *pipeline)
{
    VkResult r = DEVICE_CALL(vkCreateComputePipelines)(d, cache, count, info, callbacks, pipeline);
    if (r == VK_SUCCESS)
        set_broken(&broken_pipelines, HANDLE(*pipeline), is_broken(&broken_modules, HANDLE(info->stage.module)));
    return r;
}

static VKAPI_ATTR void VKAPI_CALL breaking_bind(VkCommandBuffer b, VkPipelineBindPoint point, VkPipeline pipeline)
{
    bound_broken = is_broken(&broken_pipelines, HANDLE(pipeline));
    DEVICE_CALL(vkCmdBindPipeline)(b, point, pipeline);
}

static VKAPI_ATTR void VKAPI_CALL breaking_dispatch(VkCommandBuffer b, uint32_t x, uint32_t y, uint32_t z)
{
    driver.dispatches++;
    if (!bound_broken) DEVICE_CALL(vkCmdDispatch)(b, x, y, z);
}

#define REPLACED(X)                                                                                                   \
    X(vkQueueSubmit, failing_submit) X(vkWaitSemaphores, failing_wait) X(vkAllocateMemory, exhausted_allocate)        \
    X(vkFreeMemory, counted_free) X(vkGetBufferMemoryRequirements, picky_requirements)                                \
    X(vkGetQueryPoolResults, half_ready) X(vkCreateDescriptorSetLayout, counted_layout)                               \
    X(vkUpdateDescriptorSets, checked_update) X(vkCreateShaderModule, breaking_module)                                \
    X(vkCreateComputePipelines, breaking_pipeline) X(vkCmdBindPipeline, breaking_bind)                                \
    X(vkCmdDispatch, breaking_dispatch) X(vkCreatePipelineCache, own_cache)                                           \
    X(vkGetPipelineCacheData, own_cache_data) X(vkCmdPipelineBarrier, noted_barrier)                                  \
    X(vkCmdCopyImageToBuffer, noted_read) X(vkCmdCopyBufferToImage, noted_write)                                      \
    X(vkCreateBuffer, renamed_buffer) X(vkBindBufferMemory, failing_bind) X(vkMapMemory, failing_map)                 \
    X(vkGetMemoryFdKHR, renamed_fd) X(vkGetMemoryFdPropertiesKHR, renamed_fd_properties)                              \
    X(vkGetSemaphoreCounterValue, lost_counter) X(vkCreateDescriptorPool, failing_pool)             \
    X(vkCreateSemaphore, counted_semaphore) X(vkDestroySemaphore, counted_end)               \
    X(vkSignalSemaphore, slow_signal)

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
    if (driver.tells_fault && !strcmp(name, "vkGetDeviceFaultInfoEXT")) return (PFN_vkVoidFunction)tell_fault;
    return ours ? ours : get_device(d, name);
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL failing_instance_proc(VkInstance i, const char *name)
{
    PFN_vkVoidFunction ours = replaced(name);
    if (ours) return ours;
    if (!strcmp(name, "vkGetDeviceProcAddr")) return (PFN_vkVoidFunction)failing_device_proc;
    if (!strcmp(name, "vkGetPhysicalDeviceMemoryProperties")) return (PFN_vkVoidFunction)more_types;
    if (!strcmp(name, "vkGetPhysicalDeviceProperties2")) return (PFN_vkVoidFunction)lower_limits;
    if (!strcmp(name, "vkGetPhysicalDeviceQueueFamilyProperties")) return (PFN_vkVoidFunction)more_families;
    if (!strcmp(name, "vkGetPhysicalDeviceExternalBufferProperties")) return (PFN_vkVoidFunction)renamed_properties;
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
