#define VK_NO_PROTOTYPES
#include "support_vulkan.h"

#include <dlfcn.h>
#include <vulkan/vulkan.h>

static void *loader;
static PFN_vkGetInstanceProcAddr get_instance;
static PFN_vkGetDeviceProcAddr get_device;
static VkInstance instance;
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

static bool make_logical(mlxvk_adopt *adopt)
{
    const float priority = 1;
    uint32_t count = 1;
    VkPhysicalDevice physical;
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
    features11.storageBuffer16BitAccess = features12.storageBuffer8BitAccess = small_storage;
    if (!make_instance() || !make_logical(adopt)) fail_msg("no Vulkan device of the test's own");
}

void end_vulkan(void)
{
    LOAD(vkDestroyInstance);
    PFN_vkDestroyDevice vkDestroyDevice = (PFN_vkDestroyDevice)get_device(logical, "vkDestroyDevice");
    vkDestroyDevice(logical, NULL);
    vkDestroyInstance(instance, NULL);
    dlclose(loader);
}

/* ---- a driver that fails ---- */

static VKAPI_ATTR VkResult VKAPI_CALL failing_submit(VkQueue q, uint32_t count, const VkSubmitInfo *submits,
                                                     VkFence fence)
{
    if (fail_submits_after == 0 && fail_submits && fail_submits-- != 0) return (VkResult)submit_failure;
    if (fail_submits_after > 0) fail_submits_after--;
    return real_submit(q, count, submits, fence);
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL failing_device_proc(VkDevice d, const char *name)
{
    return strcmp(name, "vkQueueSubmit") ? get_device(d, name) : (PFN_vkVoidFunction)failing_submit;
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL failing_instance_proc(VkInstance i, const char *name)
{
    if (!strcmp(name, "vkGetDeviceProcAddr")) return (PFN_vkVoidFunction)failing_device_proc;
    if (!strcmp(name, "vkQueueSubmit")) return (PFN_vkVoidFunction)failing_submit;
    return get_instance(i, name);
}

void *failing_driver(void)
{
    PFN_vkGetInstanceProcAddr proc = failing_instance_proc;
    void *pointer;
    memcpy(&pointer, &proc, sizeof pointer);
    return pointer;
}
