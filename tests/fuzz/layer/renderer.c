/* See renderer.h. Mapped as the layer maps it, the file of faults says when calls are the renderer's own. */
#define VK_NO_PROTOTYPES
#include "renderer.h"

#include <dlfcn.h>
#include <string.h>
#include <vulkan/vulkan.h>

static void *loader;
static PFN_vkGetInstanceProcAddr get;
static PFN_vkGetDeviceProcAddr get_of_device;
static VkInstance instance;
static VkPhysicalDevice physical;
static VkDevice device;
static VkQueue queue;
static VkCommandPool pool;
static VkCommandBuffer commands;
static VkSemaphore timeline;
static VkImage image;
static VkDeviceMemory memory;
static struct faults *faults;

#define OF_INSTANCE(name) PFN_##name name = (PFN_##name)get(instance, #name)
#define OF_DEVICE(name) PFN_##name name = (PFN_##name)get_of_device(device, #name)

static VkPhysicalDeviceVulkan11Features features11 = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES };
static VkPhysicalDeviceVulkan12Features features12 = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES,
                                                       .pNext = &features11 };
static VkPhysicalDeviceFeatures2 features = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2,
                                              .pNext = &features12 };
static const char *const extensions[] = { "VK_KHR_portability_subset", "VK_KHR_push_descriptor" };

static bool open_instance(void)
{
    static const char *const enumeration[] = { "VK_KHR_portability_enumeration" };
    const VkApplicationInfo application = { .sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
                                            .apiVersion = VK_API_VERSION_1_2 };
    const VkInstanceCreateInfo info = { .sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
#ifdef VK_KHR_portability_enumeration
        .flags = VK_INSTANCE_CREATE_ENUMERATE_PORTABILITY_BIT_KHR, .enabledExtensionCount = 1,
#endif
        .ppEnabledExtensionNames = enumeration, .pApplicationInfo = &application };
    uint32_t count = 1;
    loader = dlopen("libvulkan.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!loader) return false;
    *(void **)&get = dlsym(loader, "vkGetInstanceProcAddr");
    instance = VK_NULL_HANDLE;
    OF_INSTANCE(vkCreateInstance);
    if (vkCreateInstance(&info, NULL, &instance) != VK_SUCCESS) return false;
    OF_INSTANCE(vkEnumeratePhysicalDevices);
    return vkEnumeratePhysicalDevices(instance, &count, &physical) >= 0 && count;
}

/* Of the first queue family, which has compute on what this runs on. */
static bool open_device(void)
{
    const float priority = 1;
    const VkDeviceQueueCreateInfo queues = { .sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO, .queueCount = 1,
                                             .pQueuePriorities = &priority };
    const VkDeviceCreateInfo info = { .sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO, .pNext = &features,
        .queueCreateInfoCount = 1, .pQueueCreateInfos = &queues, .ppEnabledExtensionNames = extensions,
        .enabledExtensionCount = sizeof extensions / sizeof *extensions };
    OF_INSTANCE(vkGetPhysicalDeviceFeatures2);
    OF_INSTANCE(vkCreateDevice);
    vkGetPhysicalDeviceFeatures2(physical, &features);
    if (vkCreateDevice(physical, &info, NULL, &device)) return false;
    get_of_device = (PFN_vkGetDeviceProcAddr)get(instance, "vkGetDeviceProcAddr");
    OF_DEVICE(vkGetDeviceQueue);
    vkGetDeviceQueue(device, 0, 0, &queue);
    return true;
}

static bool make_image(void)
{
    const VkImageCreateInfo info = { .sType = VK_STRUCTURE_TYPE_IMAGE_CREATE_INFO, .imageType = VK_IMAGE_TYPE_2D,
        .format = VK_FORMAT_R8G8B8A8_UNORM, .extent = { IMAGE_SIDE, IMAGE_SIDE, 1 }, .mipLevels = 1, .arrayLayers = 1,
        .samples = VK_SAMPLE_COUNT_1_BIT, .usage = VK_IMAGE_USAGE_TRANSFER_SRC_BIT | VK_IMAGE_USAGE_TRANSFER_DST_BIT };
    VkMemoryAllocateInfo allocate = { .sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO };
    VkMemoryRequirements need;
    OF_DEVICE(vkCreateImage);
    OF_DEVICE(vkGetImageMemoryRequirements);
    OF_DEVICE(vkAllocateMemory);
    OF_DEVICE(vkBindImageMemory);
    if (vkCreateImage(device, &info, NULL, &image)) return false;
    vkGetImageMemoryRequirements(device, image, &need);
    allocate.allocationSize = need.size;
    while (!(need.memoryTypeBits >> allocate.memoryTypeIndex & 1)) allocate.memoryTypeIndex++;
    return !vkAllocateMemory(device, &allocate, NULL, &memory) && !vkBindImageMemory(device, image, memory, 0);
}

static bool make_objects(void)
{
    const VkSemaphoreTypeCreateInfo type = { .sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
                                             .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE };
    const VkSemaphoreCreateInfo semaphore = { .sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, .pNext = &type };
    const VkCommandPoolCreateInfo info = { .sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO };
    VkCommandBufferAllocateInfo allocate = { .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                             .commandBufferCount = 1 };
    OF_DEVICE(vkCreateSemaphore);
    OF_DEVICE(vkCreateCommandPool);
    OF_DEVICE(vkAllocateCommandBuffers);
    if (vkCreateSemaphore(device, &semaphore, NULL, &timeline)) return false;
    if (vkCreateCommandPool(device, &info, NULL, &pool)) return false;
    allocate.commandPool = pool;
    return !vkAllocateCommandBuffers(device, &allocate, &commands) && make_image();
}

bool renderer_open(struct renderer *r, struct faults *shared)
{
    faults = shared;
    faults->paused = 1;
    bool good = open_instance() && open_device() && make_objects();
    faults->paused = 0;
    memset(r, 0, sizeof *r);
    memcpy(&r->image, &image, sizeof image);
    memcpy(&r->timeline, &timeline, sizeof timeline);
    r->adopt = (mlxvk_adopt){ .instance = instance, .physical_device = physical, .device = device, .queue = queue,
        .features = &features, .extensions = extensions, .extension_count = sizeof extensions / sizeof *extensions };
    return good;
}

void renderer_close(void)
{
    faults->paused = 1;
    OF_DEVICE(vkDestroyImage);
    OF_DEVICE(vkFreeMemory);
    OF_DEVICE(vkDestroyCommandPool);
    OF_DEVICE(vkDestroySemaphore);
    OF_DEVICE(vkDestroyDevice);
    OF_INSTANCE(vkDestroyInstance);
    vkDestroyImage(device, image, NULL);
    vkFreeMemory(device, memory, NULL);
    vkDestroyCommandPool(device, pool, NULL);
    vkDestroySemaphore(device, timeline, NULL);
    vkDestroyDevice(device, NULL);
    vkDestroyInstance(instance, NULL);
    dlclose(loader);
    faults->paused = 0;
}

void *renderer_begin(void)
{
    const VkCommandBufferBeginInfo begin = { .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                             .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT };
    OF_DEVICE(vkResetCommandPool);
    OF_DEVICE(vkBeginCommandBuffer);
    faults->paused = 1;
    VkResult code = vkResetCommandPool(device, pool, 0);
    if (!code) code = vkBeginCommandBuffer(commands, &begin);
    faults->paused = 0;
    return code ? NULL : commands;
}

static bool submit(const mlxvk_recording *m, uint64_t value)
{
    VkSemaphore waits[MOST_WAITS];
    uint64_t values[MOST_WAITS];
    VkPipelineStageFlags stages[MOST_WAITS];
    const VkTimelineSemaphoreSubmitInfo timelines = { .sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
        .waitSemaphoreValueCount = m->wait_count, .pWaitSemaphoreValues = values,
        .signalSemaphoreValueCount = value > 0, .pSignalSemaphoreValues = &value };
    const VkSubmitInfo info = { .sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .pNext = &timelines,
        .waitSemaphoreCount = m->wait_count, .pWaitSemaphores = waits, .pWaitDstStageMask = stages,
        .commandBufferCount = 1, .pCommandBuffers = &commands, .signalSemaphoreCount = value > 0,
        .pSignalSemaphores = &timeline };
    OF_DEVICE(vkEndCommandBuffer);
    OF_DEVICE(vkQueueSubmit);
    OF_DEVICE(vkQueueWaitIdle);
    for (uint32_t i = 0; i < m->wait_count; i++) {
        memcpy(&waits[i], &m->waits[i].vk_semaphore, sizeof *waits);
        values[i] = m->waits[i].value;
        stages[i] = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
    }
    return !vkEndCommandBuffer(commands) && !vkQueueSubmit(queue, 1, &info, VK_NULL_HANDLE) && !vkQueueWaitIdle(queue);
}

bool renderer_submit(const mlxvk_recording *m, uint64_t value)
{
    faults->paused = 1;
    bool good = submit(m, value);
    faults->paused = 0;
    return good;
}

void renderer_discard(uint64_t value)
{
    const VkSemaphoreSignalInfo info = { .sType = VK_STRUCTURE_TYPE_SEMAPHORE_SIGNAL_INFO, .semaphore = timeline,
                                         .value = value };
    OF_DEVICE(vkSignalSemaphore);
    faults->paused = 1;
    if (value) vkSignalSemaphore(device, &info);
    faults->paused = 0;
}
