/* A Vulkan layer in which one call of one function fails, as the file says that FAULTS_FILE names; see faults.h. A device
 * that a fault has lost stays lost. Objects are counted as they are made and destroyed.
 * The driver seems to be one of those that are Vulkan but for some of it, as MoltenVK is: instances must ask for these,
 * and devices enable their extension (faults.json names it for the loader). It seems to have what CPU drivers lack, too,
 * so that it is asked for: memory as dma-buf, which is opaque descriptors; cooperative matrices, of which no size is
 * offered; VK_EXT_device_fault, which tells a line. */
#define _POSIX_C_SOURCE 200809L
#define VK_NO_PROTOTYPES
#include "faults.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <vulkan/vulkan.h>
#include <vulkan/vk_layer.h>

#define PORTABILITY_SUBSET "VK_KHR_portability_subset"
static const char *const offered[] = { PORTABILITY_SUBSET, "VK_EXT_external_memory_dma_buf", "VK_KHR_cooperative_matrix",
                                       "VK_EXT_device_fault" };
enum { OFFERED = sizeof offered / sizeof *offered };

static struct faults *faults, none;
static PFN_vkGetInstanceProcAddr next_instance_proc;
static PFN_vkGetDeviceProcAddr next_device_proc;
static VkInstance instance;
/* Of the instance, asked for as soon as it is there: later the loader gives those of the first layer. */
static PFN_vkEnumeratePhysicalDevices next_devices;
static PFN_vkEnumerateDeviceExtensionProperties next_extensions;
static PFN_vkDestroyInstance next_destroy;
static PFN_vkGetPhysicalDeviceFeatures2 next_features;
static PFN_vkGetPhysicalDeviceExternalBufferProperties next_external;
/* All are of one driver, with the same functions: those of the last are asked for. */
static VkDevice devices[64];
static int device_count;

static void open_faults(void)
{
    const char *path = getenv("FAULTS_FILE");
    int file = path ? open(path, O_RDWR) : -1;
    void *map = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *faults, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file >= 0) close(file);
    faults = map == MAP_FAILED ? &none : map;
}

static void *next(const char *name)
{
    PFN_vkVoidFunction f = device_count ? next_device_proc(devices[device_count - 1], name) : NULL;
    void *pointer;
    if (!strcmp(name, "vkEnumeratePhysicalDevices")) f = (PFN_vkVoidFunction)next_devices;
    memcpy(&pointer, &f, sizeof pointer);
    return pointer;
}

/* What a lost device did is over: all of it may be destroyed. The driver's, which is not lost, goes on. */
static void end_work(void)
{
    for (int i = 0; i < device_count; i++)
        ((PFN_vkDeviceWaitIdle)next_device_proc(devices[i], "vkDeviceWaitIdle"))(devices[i]);
}

enum { LOST_FIRST = 3 };                             /* the submission that is lost where the fault is in asking why */

/* 0, or what this call is to return. */
static VkResult fault(enum fault_function function)
{
    static const bool loses[FAULT_FUNCTIONS] = { [FAULT_vkQueueSubmit] = true, [FAULT_vkWaitSemaphores] = true,
        [FAULT_vkGetSemaphoreCounterValue] = true, [FAULT_vkQueueWaitIdle] = true, [FAULT_vkDeviceWaitIdle] = true,
        [FAULT_vkGetQueryPoolResults] = true };
    uint32_t call;
    if (faults->lost && loses[function]) return VK_ERROR_DEVICE_LOST;
    if (faults->paused) return VK_SUCCESS;
    call = __atomic_add_fetch(&faults->calls[function], 1, __ATOMIC_SEQ_CST);
    if (function == FAULT_vkQueueSubmit && call == LOST_FIRST && faults->function == FAULT_vkGetDeviceFaultInfoEXT) {
        faults->lost = 1;                            /* nobody would ask why, else */
        end_work();
        return VK_ERROR_DEVICE_LOST;
    }
    if (faults->function != function || faults->call != call) return VK_SUCCESS;
    faults->fired++;
    faults->lost = faults->code == VK_ERROR_DEVICE_LOST && loses[function];
    if (faults->lost) end_work();
    return (VkResult)faults->code;
}

static void count(VkResult r, int32_t objects)
{
    if (r >= 0) __atomic_add_fetch(&faults->live, objects, __ATOMIC_SEQ_CST);
}

/* ---- dma-buf: opaque descriptors to the driver ---- */

/* Room for a copy of what a call is told. */
struct opaque {
    VkMemoryAllocateInfo memory;
    VkBufferCreateInfo buffer;
    VkMemoryGetFdInfoKHR get;
    VkImportMemoryFdInfoKHR import;
    VkExportMemoryAllocateInfo exported;
    VkExternalMemoryBufferCreateInfo external;
};

static VkExternalMemoryHandleTypeFlagBits opaque_type(VkExternalMemoryHandleTypeFlags type)
{
    return (VkExternalMemoryHandleTypeFlagBits)(type == VK_EXTERNAL_MEMORY_HANDLE_TYPE_DMA_BUF_BIT_EXT
                                                    ? VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT : type);
}

/* mlxvk puts what tells the type in front. */
static const void *opaque_chain(struct opaque *o, const VkBaseInStructure *first)
{
    switch (first ? (int)first->sType : -1) {
    case VK_STRUCTURE_TYPE_IMPORT_MEMORY_FD_INFO_KHR:
        memcpy(&o->import, first, sizeof o->import);
        o->import.handleType = opaque_type(o->import.handleType);
        return &o->import;
    case VK_STRUCTURE_TYPE_EXPORT_MEMORY_ALLOCATE_INFO:
        memcpy(&o->exported, first, sizeof o->exported);
        o->exported.handleTypes = opaque_type(o->exported.handleTypes);
        return &o->exported;
    case VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO:
        memcpy(&o->external, first, sizeof o->external);
        o->external.handleTypes = opaque_type(o->external.handleTypes);
        return &o->external;
    default: return first;
    }
}

static const VkMemoryAllocateInfo *opaque_memory(struct opaque *o, const VkMemoryAllocateInfo *c)
{
    o->memory = *c;
    o->memory.pNext = opaque_chain(o, c->pNext);
    return &o->memory;
}

static const VkBufferCreateInfo *opaque_buffer(struct opaque *o, const VkBufferCreateInfo *c)
{
    o->buffer = *c;
    o->buffer.pNext = opaque_chain(o, c->pNext);
    return &o->buffer;
}

static const VkMemoryGetFdInfoKHR *opaque_get(struct opaque *o, const VkMemoryGetFdInfoKHR *i)
{
    o->get = *i;
    o->get.handleType = opaque_type(i->handleType);
    return &o->get;
}

static VKAPI_ATTR void VKAPI_CALL our_vkGetPhysicalDeviceExternalBufferProperties(
    VkPhysicalDevice p, const VkPhysicalDeviceExternalBufferInfo *i, VkExternalBufferProperties *o)
{
    VkPhysicalDeviceExternalBufferInfo info = *i;
    info.handleType = opaque_type(i->handleType);
    next_external(p, &info, o);
}

/* Of opaque ones nobody may ask the driver: all types, and the import shows which is right. */
static VKAPI_ATTR VkResult VKAPI_CALL our_vkGetMemoryFdPropertiesKHR(VkDevice d, VkExternalMemoryHandleTypeFlagBits type,
                                                                     int fd, VkMemoryFdPropertiesKHR *o)
{
    (void)d, (void)type, (void)fd;
    VkResult r = fault(FAULT_vkGetMemoryFdPropertiesKHR);
    if (r == VK_SUCCESS) o->memoryTypeBits = ~0u;
    return r;
}

/* ---- matrices, and why a device was lost: structures that older headers lack, as far as they are looked at ---- */

enum { COOPERATIVE_MATRIX_FEATURES = 1000506000, FAULT_FEATURES = 1000341000 };
struct one_feature { VkStructureType type; void *next; VkBool32 has; };
struct fault_counts { VkStructureType type; void *next; uint32_t addresses, vendors; VkDeviceSize binary; };
struct fault_info { VkStructureType type; void *next; char description[VK_MAX_DESCRIPTION_SIZE]; };

/* The features of `from` that the driver lacks. */
static void pretend(void *from, VkBool32 has)
{
    for (struct one_feature *c = from; c; c = c->next)
        if ((int)c->type == COOPERATIVE_MATRIX_FEATURES || (int)c->type == FAULT_FEATURES) c->has = has;
}

static VKAPI_ATTR void VKAPI_CALL our_vkGetPhysicalDeviceFeatures2(VkPhysicalDevice p, VkPhysicalDeviceFeatures2 *f)
{
    next_features(p, f);
    pretend(f->pNext, VK_TRUE);
}

static VKAPI_ATTR VkResult VKAPI_CALL our_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR(VkPhysicalDevice p,
                                                                                            uint32_t *n, void *o)
{
    (void)p, (void)o;
    VkResult r = fault(FAULT_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR);
    if (r == VK_SUCCESS) *n = 0;
    return r;
}

static VKAPI_ATTR VkResult VKAPI_CALL our_vkGetDeviceFaultInfoEXT(VkDevice d, struct fault_counts *counts,
                                                                  struct fault_info *info)
{
    (void)d;
    VkResult r = fault(FAULT_vkGetDeviceFaultInfoEXT);
    if (r != VK_SUCCESS) return r;
    counts->addresses = counts->vendors = 0;
    counts->binary = 0;
    if (info) strcpy(info->description, FAULT_TEXT);
    return r;
}

/* ---- functions: name, parameters, arguments, objects that it makes ---- */

#define ALLOCATOR const VkAllocationCallbacks *a
#define CALLS(X)                                                                                                      \
    X(vkEnumeratePhysicalDevices, (VkInstance i, uint32_t *n, VkPhysicalDevice *p), (i, n, p), 0)                     \
    X(vkAllocateMemory, (VkDevice d, const VkMemoryAllocateInfo *c, ALLOCATOR, VkDeviceMemory *o),                    \
      (d, opaque_memory(&(struct opaque){ 0 }, c), a, o), 1)                                                          \
    X(vkMapMemory, (VkDevice d, VkDeviceMemory m, VkDeviceSize at, VkDeviceSize n, VkMemoryMapFlags f, void **o),     \
      (d, m, at, n, f, o), 0)                                                                                         \
    X(vkCreateBuffer, (VkDevice d, const VkBufferCreateInfo *c, ALLOCATOR, VkBuffer *o),                              \
      (d, opaque_buffer(&(struct opaque){ 0 }, c), a, o), 1)                                                          \
    X(vkBindBufferMemory, (VkDevice d, VkBuffer b, VkDeviceMemory m, VkDeviceSize at), (d, b, m, at), 0)              \
    X(vkCreateSemaphore, (VkDevice d, const VkSemaphoreCreateInfo *c, ALLOCATOR, VkSemaphore *o), (d, c, a, o), 1)    \
    X(vkSignalSemaphore, (VkDevice d, const VkSemaphoreSignalInfo *i), (d, i), 0)                                     \
    X(vkWaitSemaphores, (VkDevice d, const VkSemaphoreWaitInfo *i, uint64_t t), (d, i, t), 0)                         \
    X(vkGetSemaphoreCounterValue, (VkDevice d, VkSemaphore s, uint64_t *o), (d, s, o), 0)                             \
    X(vkCreateCommandPool, (VkDevice d, const VkCommandPoolCreateInfo *c, ALLOCATOR, VkCommandPool *o), (d, c, a, o), \
      1)                                                                                                              \
    X(vkResetCommandPool, (VkDevice d, VkCommandPool p, VkCommandPoolResetFlags f), (d, p, f), 0)                     \
    X(vkAllocateCommandBuffers, (VkDevice d, const VkCommandBufferAllocateInfo *i, VkCommandBuffer *o), (d, i, o), 0) \
    X(vkBeginCommandBuffer, (VkCommandBuffer b, const VkCommandBufferBeginInfo *i), (b, i), 0)                        \
    X(vkEndCommandBuffer, (VkCommandBuffer b), (b), 0)                                                                \
    X(vkQueueSubmit, (VkQueue q, uint32_t n, const VkSubmitInfo *s, VkFence f), (q, n, s, f), 0)                      \
    X(vkQueueWaitIdle, (VkQueue q), (q), 0)                                                                           \
    X(vkDeviceWaitIdle, (VkDevice d), (d), 0)                                                                         \
    X(vkCreateShaderModule, (VkDevice d, const VkShaderModuleCreateInfo *c, ALLOCATOR, VkShaderModule *o),            \
      (d, c, a, o), 1)                                                                                                \
    X(vkCreatePipelineLayout, (VkDevice d, const VkPipelineLayoutCreateInfo *c, ALLOCATOR, VkPipelineLayout *o),      \
      (d, c, a, o), 1)                                                                                                \
    X(vkCreateComputePipelines, (VkDevice d, VkPipelineCache p, uint32_t n, const VkComputePipelineCreateInfo *c,     \
                                 ALLOCATOR, VkPipeline *o), (d, p, n, c, a, o), (int32_t)n)                           \
    X(vkCreatePipelineCache, (VkDevice d, const VkPipelineCacheCreateInfo *c, ALLOCATOR, VkPipelineCache *o),         \
      (d, c, a, o), 1)                                                                                                \
    X(vkGetPipelineCacheData, (VkDevice d, VkPipelineCache p, size_t *n, void *o), (d, p, n, o), 0)                   \
    X(vkCreateDescriptorSetLayout,                                                                                    \
      (VkDevice d, const VkDescriptorSetLayoutCreateInfo *c, ALLOCATOR, VkDescriptorSetLayout *o), (d, c, a, o), 1)   \
    X(vkCreateDescriptorPool, (VkDevice d, const VkDescriptorPoolCreateInfo *c, ALLOCATOR, VkDescriptorPool *o),      \
      (d, c, a, o), 1)                                                                                                \
    X(vkAllocateDescriptorSets, (VkDevice d, const VkDescriptorSetAllocateInfo *i, VkDescriptorSet *o), (d, i, o), 0) \
    X(vkCreateQueryPool, (VkDevice d, const VkQueryPoolCreateInfo *c, ALLOCATOR, VkQueryPool *o), (d, c, a, o), 1)    \
    X(vkGetQueryPoolResults, (VkDevice d, VkQueryPool p, uint32_t first, uint32_t n, size_t size, void *o,            \
                              VkDeviceSize stride, VkQueryResultFlags f), (d, p, first, n, size, o, stride, f), 0)    \
    X(vkGetMemoryFdKHR, (VkDevice d, const VkMemoryGetFdInfoKHR *i, int *o),                                          \
      (d, opaque_get(&(struct opaque){ 0 }, i), o), 0)                                                                \
    X(vkGetMemoryHostPointerPropertiesEXT,                                                                            \
      (VkDevice d, VkExternalMemoryHandleTypeFlagBits t, const void *p, VkMemoryHostPointerPropertiesEXT *o),         \
      (d, t, p, o), 0)

#define X(name, parameters, arguments, objects)                                                                       \
    static VKAPI_ATTR VkResult VKAPI_CALL our_##name parameters                                                       \
    {                                                                                                                 \
        VkResult r = fault(FAULT_##name);                                                                             \
        PFN_##name real;                                                                                              \
        if (r != VK_SUCCESS) return r;                                                                                \
        *(void **)&real = next(#name);                                                                                \
        r = real arguments;                                                                                           \
        count(r, objects);                                                                                            \
        return r;                                                                                                     \
    }
CALLS(X)
#undef X

#define DESTROYERS(X)                                                                                                 \
    X(vkFreeMemory, VkDeviceMemory) X(vkDestroyBuffer, VkBuffer) X(vkDestroySemaphore, VkSemaphore)                   \
    X(vkDestroyCommandPool, VkCommandPool) X(vkDestroyShaderModule, VkShaderModule)                                   \
    X(vkDestroyPipelineLayout, VkPipelineLayout) X(vkDestroyPipeline, VkPipeline)                                     \
    X(vkDestroyPipelineCache, VkPipelineCache) X(vkDestroyDescriptorSetLayout, VkDescriptorSetLayout)                 \
    X(vkDestroyDescriptorPool, VkDescriptorPool) X(vkDestroyQueryPool, VkQueryPool)
#define X(name, type)                                                                                                 \
    static VKAPI_ATTR void VKAPI_CALL our_##name(VkDevice d, type object, ALLOCATOR)                                  \
    {                                                                                                                 \
        PFN_##name f;                                                                                                 \
        *(void **)&f = next(#name);                                                                                   \
        count(VK_SUCCESS, object ? -1 : 0);                                                                           \
        f(d, object, a);                                                                                              \
    }
DESTROYERS(X)
#undef X

/* ---- instances and devices: the chain of layers ---- */

/* The link for this layer, taken off the chain for the next. */
static void *take_link(const void *chain, VkStructureType type)
{
    for (VkLayerInstanceCreateInfo *c = (VkLayerInstanceCreateInfo *)chain; c; c = (VkLayerInstanceCreateInfo *)c->pNext)
        if (c->sType == type && c->function == VK_LAYER_LINK_INFO) return c;
    return NULL;
}

static bool named(const char *name, const char *const *names, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) if (!strcmp(names[i], name)) return true;
    return false;
}

/* Loaders that are older than the flag show all drivers. */
static bool asks_for_portability(const VkInstanceCreateInfo *info)
{
#ifdef VK_KHR_portability_enumeration
    return (info->flags & VK_INSTANCE_CREATE_ENUMERATE_PORTABILITY_BIT_KHR) &&
           named("VK_KHR_portability_enumeration", info->ppEnabledExtensionNames, info->enabledExtensionCount);
#else
    return info->flags == 0;
#endif
}

static VKAPI_ATTR VkResult VKAPI_CALL our_vkCreateInstance(const VkInstanceCreateInfo *info, ALLOCATOR, VkInstance *out)
{
    VkLayerInstanceCreateInfo *link = take_link(info->pNext, VK_STRUCTURE_TYPE_LOADER_INSTANCE_CREATE_INFO);
    VkResult r;
    if (!faults) open_faults();
    r = fault(FAULT_vkCreateInstance);
    if (r != VK_SUCCESS) return r;
    if (!asks_for_portability(info)) return VK_ERROR_INCOMPATIBLE_DRIVER;
    next_instance_proc = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    link->u.pLayerInfo = link->u.pLayerInfo->pNext;
    r = ((PFN_vkCreateInstance)next_instance_proc(NULL, "vkCreateInstance"))(info, a, out);
    count(r, 1);
    if (r != VK_SUCCESS) return r;
    instance = *out;
    next_devices = (PFN_vkEnumeratePhysicalDevices)next_instance_proc(instance, "vkEnumeratePhysicalDevices");
    next_extensions = (PFN_vkEnumerateDeviceExtensionProperties)
        next_instance_proc(instance, "vkEnumerateDeviceExtensionProperties");
    next_destroy = (PFN_vkDestroyInstance)next_instance_proc(instance, "vkDestroyInstance");
    next_features = (PFN_vkGetPhysicalDeviceFeatures2)next_instance_proc(instance, "vkGetPhysicalDeviceFeatures2");
    next_external = (PFN_vkGetPhysicalDeviceExternalBufferProperties)
        next_instance_proc(instance, "vkGetPhysicalDeviceExternalBufferProperties");
    return r;
}

static VKAPI_ATTR void VKAPI_CALL our_vkDestroyInstance(VkInstance i, ALLOCATOR)
{
    count(VK_SUCCESS, i ? -1 : 0);
    next_destroy(i, a);
}

/* The driver's, and those that it lacks. */
static VKAPI_ATTR VkResult VKAPI_CALL our_vkEnumerateDeviceExtensionProperties(VkPhysicalDevice p, const char *layer,
                                                                               uint32_t *n, VkExtensionProperties *e)
{
    uint32_t room = *n, count;
    VkResult r = fault(FAULT_vkEnumerateDeviceExtensionProperties);
    if (r != VK_SUCCESS) return r;
    r = next_extensions(p, layer, n, e);
    if (r != VK_SUCCESS) return r;
    count = *n;
    if (!e) *n += OFFERED;                           /* as many at most */
    for (int i = 0; e && i < OFFERED; i++) {
        bool has = false;
        for (uint32_t k = 0; k < count; k++) has = has || !strcmp(e[k].extensionName, offered[i]);
        if (has) continue;
        if (room == *n) return VK_INCOMPLETE;
        memset(&e[*n], 0, sizeof *e);
        strcpy(e[*n].extensionName, offered[i]);
        e[(*n)++].specVersion = 1;
    }
    return r;
}

static VKAPI_ATTR VkResult VKAPI_CALL our_vkCreateDevice(VkPhysicalDevice p, const VkDeviceCreateInfo *info, ALLOCATOR,
                                                         VkDevice *out)
{
    VkLayerDeviceCreateInfo *link = take_link(info->pNext, VK_STRUCTURE_TYPE_LOADER_DEVICE_CREATE_INFO);
    VkResult r = fault(FAULT_vkCreateDevice);
    if (r != VK_SUCCESS) return r;
    if (!named(PORTABILITY_SUBSET, info->ppEnabledExtensionNames, info->enabledExtensionCount))
        return VK_ERROR_FEATURE_NOT_PRESENT;
    PFN_vkGetInstanceProcAddr proc = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    next_device_proc = link->u.pLayerInfo->pfnNextGetDeviceProcAddr;
    link->u.pLayerInfo = link->u.pLayerInfo->pNext;
    pretend((void *)info->pNext, VK_FALSE);          /* in the caller's own, which it wrote a moment ago, and back */
    r = ((PFN_vkCreateDevice)proc(instance, "vkCreateDevice"))(p, info, a, out);
    pretend((void *)info->pNext, VK_TRUE);
    if (r == VK_SUCCESS && device_count < 64) devices[device_count++] = *out;
    if (r == VK_SUCCESS) faults->lost = 0;
    count(r, 1);
    return r;
}

static VKAPI_ATTR void VKAPI_CALL our_vkDestroyDevice(VkDevice d, ALLOCATOR)
{
    count(VK_SUCCESS, d ? -1 : 0);
    ((PFN_vkDestroyDevice)next_device_proc(d, "vkDestroyDevice"))(d, a);
    for (int i = 0; i < device_count; i++) if (devices[i] == d) devices[i] = devices[--device_count];
}

/* ---- names ---- */

static PFN_vkVoidFunction ours(const char *name)
{
#define OURS(function) if (!strcmp(name, #function)) return (PFN_vkVoidFunction)our_##function;
#define X(function, ...) OURS(function)
    CALLS(X)
    DESTROYERS(X)
#undef X
    OURS(vkEnumerateDeviceExtensionProperties) OURS(vkGetPhysicalDeviceFeatures2)
    OURS(vkGetPhysicalDeviceExternalBufferProperties) OURS(vkGetMemoryFdPropertiesKHR)
    OURS(vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR) OURS(vkGetDeviceFaultInfoEXT)
    OURS(vkCreateInstance) OURS(vkDestroyInstance) OURS(vkCreateDevice) OURS(vkDestroyDevice)
    return NULL;
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL device_proc(VkDevice d, const char *name)
{
    PFN_vkVoidFunction f = ours(name);
    return f ? f : next_device_proc(d, name);
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL instance_proc(VkInstance i, const char *name)
{
    PFN_vkVoidFunction f = ours(name);
    if (f) return f;
    if (!strcmp(name, "vkGetDeviceProcAddr")) return (PFN_vkVoidFunction)device_proc;
    if (!strcmp(name, "vkGetInstanceProcAddr")) return (PFN_vkVoidFunction)instance_proc;
    return next_instance_proc ? next_instance_proc(i, name) : NULL;
}

/* What loaders do not know they ask for here. */
static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL physical_proc(VkInstance i, const char *name)
{
    (void)i;
    return strcmp(name, "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR") ? NULL : ours(name);
}

__attribute__((visibility("default")))
VKAPI_ATTR VkResult VKAPI_CALL vkNegotiateLoaderLayerInterfaceVersion(VkNegotiateLayerInterface *version)
{
    if (!faults) open_faults();
    version->loaderLayerInterfaceVersion = 2;
    version->pfnGetInstanceProcAddr = instance_proc;
    version->pfnGetDeviceProcAddr = device_proc;
    version->pfnGetPhysicalDeviceProcAddr = physical_proc;
    return VK_SUCCESS;
}
