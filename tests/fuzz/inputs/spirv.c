/* Kernels of the caller's: the first byte says what the device lacks and how many bindings and constants are said, the
 * rest is the SPIR-V. Drivers may do anything with wrong SPIR-V, so it ends in front of the driver: what would be given
 * to it is read once. */
#define VK_NO_PROTOTYPES
#include "input.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <vulkan/vulkan.h>

static PFN_vkGetInstanceProcAddr get_instance;
static PFN_vkGetDeviceProcAddr get_device;
static VkInstance instance;

#define LOAD(name) PFN_##name name = (PFN_##name)get_instance(instance, #name)

static volatile uint32_t read_words;

static VKAPI_ATTR VkResult VKAPI_CALL take_module(VkDevice d, const VkShaderModuleCreateInfo *info,
                                                  const VkAllocationCallbacks *callbacks, VkShaderModule *out)
{
    (void)d, (void)callbacks;
    for (size_t i = 0; i < info->codeSize / 4; i++) read_words += info->pCode[i];
    *out = VK_NULL_HANDLE;
    return VK_SUCCESS;
}

static VKAPI_ATTR VkResult VKAPI_CALL take_pipeline(VkDevice d, VkPipelineCache cache, uint32_t count,
                                                    const VkComputePipelineCreateInfo *info,
                                                    const VkAllocationCallbacks *callbacks, VkPipeline *out)
{
    (void)d, (void)cache, (void)info, (void)callbacks;
    memset(out, 0, count * sizeof *out);
    return VK_SUCCESS;
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL device_proc(VkDevice d, const char *name)
{
    if (!strcmp(name, "vkCreateShaderModule")) return (PFN_vkVoidFunction)take_module;
    if (!strcmp(name, "vkCreateComputePipelines")) return (PFN_vkVoidFunction)take_pipeline;
    return get_device(d, name);
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL instance_proc(VkInstance i, const char *name)
{
    if (!strcmp(name, "vkGetDeviceProcAddr")) return (PFN_vkVoidFunction)device_proc;
    return get_instance(i, name);
}

/* A Vulkan device to be adopted, of which nothing is enabled that is optional but small storage. */
static mlxvk_adopt own_vulkan(void)
{
    static VkPhysicalDeviceVulkan11Features has11 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES, .storageBuffer16BitAccess = VK_TRUE };
    static VkPhysicalDeviceVulkan12Features has12 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES, .pNext = &has11,
        .timelineSemaphore = VK_TRUE, .storageBuffer8BitAccess = VK_TRUE };
    static VkPhysicalDeviceFeatures2 has = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, .pNext = &has12 };
    const VkApplicationInfo application = { .sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
                                            .apiVersion = VK_API_VERSION_1_2 };
    const VkInstanceCreateInfo info = { .sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                                        .pApplicationInfo = &application };
    const VkDeviceQueueCreateInfo queues = { .sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO, .queueCount = 1,
                                             .pQueuePriorities = &(float){ 1 } };
    const VkDeviceCreateInfo create = { .sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO, .pNext = &has,
                                        .queueCreateInfoCount = 1, .pQueueCreateInfos = &queues };
    uint32_t count = 1;
    VkPhysicalDevice physical;
    VkDevice device;
    VkQueue queue;
    void *loader = dlopen("libvulkan.so.1", RTLD_NOW | RTLD_LOCAL);
    EXPECT(loader);
    *(void **)&get_instance = dlsym(loader, "vkGetInstanceProcAddr");
    LOAD(vkCreateInstance);
    EXPECT(!vkCreateInstance(&info, NULL, &instance));
    LOAD(vkEnumeratePhysicalDevices);
    LOAD(vkCreateDevice);
    EXPECT(vkEnumeratePhysicalDevices(instance, &count, &physical) >= 0 && count);
    EXPECT(!vkCreateDevice(physical, &create, NULL, &device));
    get_device = (PFN_vkGetDeviceProcAddr)get_instance(instance, "vkGetDeviceProcAddr");
    ((PFN_vkGetDeviceQueue)get_device(device, "vkGetDeviceQueue"))(device, 0, 0, &queue);
    PFN_vkGetInstanceProcAddr ours = instance_proc;
    mlxvk_adopt adopt = { .instance = instance, .physical_device = physical, .device = device, .queue = queue,
                          .features = &has };
    memcpy(&adopt.get_instance_proc_addr, &ours, sizeof ours);
    return adopt;
}

enum { LACKS = 4 };                                        /* 1: bytes, 2: halves */

static mlxvk_device *devices(void)
{
    static const char *const gates[LACKS] = { "", "MLX_VK_ENABLE_STORAGE8=0", "MLX_VK_ENABLE_STORAGE16=0",
                                              "MLX_VK_ENABLE_STORAGE8=0 MLX_VK_ENABLE_STORAGE16=0" };
    static mlxvk_device made[LACKS];
    if (made[0].ctx) return made;
    mlxvk_adopt adopt = own_vulkan();
    for (int i = 0; i < LACKS; i++) {
        mlxvk_device_desc desc = { .adopt = &adopt, .gates = gates[i] };
        EXPECT(!mlxvk_device_create(&made[i], &desc));
    }
    return made;
}

static void one_kernel(mlxvk_device device, const uint32_t *spirv, size_t bytes, uint32_t how)
{
    static const uint32_t constants[24];
    mlxvk_kernel kernel = { NULL };
    const mlxvk_kernel_desc desc = { .spirv = spirv, .spirv_size = bytes, .bindings = how % 8, .constants = constants,
                                     .constant_count = how % 25, .push_size = 64 };
    mlxvk_error error = { 0 };
    int code = mlxvk_kernel_new(&kernel, &desc, device);
    if (code) mlxvk_device_error(device, &error);
    EXPECT(code == error.code && !code == (kernel.ctx != NULL));
    mlxvk_kernel_free(kernel);
}

/* The kernel in mlx-c's shape reads names, constants and the workgroup when it is made. */
static void one_fast_kernel(mlxvk_stream stream, const uint32_t *spirv, size_t bytes)
{
    static const char *const name = "x";
    mlxvk_vector_string in = mlxvk_vector_string_new(), out = mlxvk_vector_string_new_data((const char **)&name, 1);
    mlxvk_fast_spirv_kernel k = mlxvk_fast_spirv_kernel_new("k", in, out, spirv, bytes, true);
    mlxvk_fast_spirv_kernel_config f = mlxvk_fast_spirv_kernel_config_new();
    mlxvk_vector_array none = mlxvk_vector_array_new(), results = mlxvk_vector_array_new();
    mlxvk_fast_spirv_kernel_config_add_output_arg(f, (int[]){ 0 }, 1, MLXVK_FLOAT32);
    mlxvk_fast_spirv_kernel_config_add_template_arg_int(f, "SIZE", 4);
    mlxvk_fast_spirv_kernel_apply(&results, k, none, f, stream);
    mlxvk_vector_array_free(results);
    mlxvk_vector_array_free(none);
    mlxvk_fast_spirv_kernel_config_free(f);
    mlxvk_fast_spirv_kernel_free(k);
    mlxvk_vector_string_free(in);
    mlxvk_vector_string_free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static mlxvk_stream streams[LACKS];
    uint32_t how = size ? data[0] : 0, lacks = how % LACKS;
    mlxvk_device device = devices()[lacks];
    size_t bytes = size ? size - 1 : 0;
    uint32_t *spirv = malloc(bytes + 4);
    EXPECT(spirv);
    if (bytes) memcpy(spirv, data + 1, bytes);
    uint32_t *exact = realloc(spirv, bytes ? bytes : 4);   /* so that nothing is read behind it */
    if (!streams[lacks].ctx) streams[lacks] = mlxvk_stream_new_device(device);
    one_kernel(device, exact, bytes, how / LACKS);
    one_fast_kernel(streams[lacks], exact, bytes);
    free(exact);
    return 0;
}
