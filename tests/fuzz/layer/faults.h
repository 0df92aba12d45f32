/* The layer (faults.c) and who plans its faults (../fuzz_faults.c) share a file, which both map: FAULTS_FILE. */
#ifndef TESTS_FUZZ_LAYER_FAULTS_H
#define TESTS_FUZZ_LAYER_FAULTS_H

#include <stdint.h>

enum { MOST_CODES = 6 };
#define FAULT_TEXT "a fault that the layer made"     /* what VK_EXT_device_fault says of a lost device */

/* Vulkan's functions that return a VkResult and that mlxvk calls, each with the codes that it may return (vk.xml). Level
 * I: of an instance, D: of a device. */
#define MEMORY -1, -2
#define LOST MEMORY, -4
#define FAULTS(X)                                                                                                     \
    X(vkCreateInstance, MEMORY, -3, -6, -7, -9)                                                                       \
    X(vkEnumeratePhysicalDevices, MEMORY, -3)                                                                         \
    X(vkEnumerateDeviceExtensionProperties, MEMORY)                                                                   \
    X(vkCreateDevice, MEMORY, -3, -4, -7, -8)                                                                         \
    X(vkAllocateMemory, MEMORY, -10)                                                                                  \
    X(vkMapMemory, MEMORY, -5)                                                                                        \
    X(vkCreateBuffer, MEMORY)                                                                                         \
    X(vkBindBufferMemory, MEMORY)                                                                                     \
    X(vkCreateSemaphore, MEMORY)                                                                                      \
    X(vkSignalSemaphore, MEMORY)                                                                                      \
    X(vkWaitSemaphores, LOST)                                                                                         \
    X(vkGetSemaphoreCounterValue, LOST)                                                                               \
    X(vkCreateCommandPool, MEMORY)                                                                                    \
    X(vkResetCommandPool, -2)                                                                                         \
    X(vkAllocateCommandBuffers, MEMORY)                                                                               \
    X(vkBeginCommandBuffer, MEMORY)                                                                                   \
    X(vkEndCommandBuffer, MEMORY)                                                                                     \
    X(vkQueueSubmit, LOST)                                                                                            \
    X(vkQueueWaitIdle, LOST)                                                                                          \
    X(vkDeviceWaitIdle, LOST)                                                                                         \
    X(vkCreateShaderModule, MEMORY)                                                                                   \
    X(vkCreatePipelineLayout, MEMORY)                                                                                 \
    X(vkCreateComputePipelines, MEMORY)                                                                               \
    X(vkCreatePipelineCache, MEMORY)                                                                                  \
    X(vkGetPipelineCacheData, MEMORY)                                                                                 \
    X(vkCreateDescriptorSetLayout, MEMORY)                                                                            \
    X(vkCreateDescriptorPool, MEMORY, -1000161000)                                                                    \
    X(vkAllocateDescriptorSets, MEMORY, -12, -1000069000)                                                             \
    X(vkCreateQueryPool, MEMORY)                                                                                      \
    X(vkGetQueryPoolResults, LOST)                                                                                    \
    X(vkGetMemoryFdKHR, -1, -10)                                                                                      \
    X(vkGetMemoryHostPointerPropertiesEXT, -1, -1000072003)                                                           \
    X(vkGetMemoryFdPropertiesKHR, -1, -1000072003)                                                                    \
    X(vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR, MEMORY)                                                      \
    X(vkGetDeviceFaultInfoEXT, -1)

enum fault_function {
#define X(name, ...) FAULT_##name,
    FAULTS(X)
#undef X
    FAULT_FUNCTIONS
};

struct faults {
    uint32_t calls[FAULT_FUNCTIONS];                 /* so far */
    uint32_t function, call;                         /* the one that fails: its first call is 1; 0: none */
    int32_t code;
    uint32_t fired, lost;                            /* it did; the device is lost, until another is made */
    uint32_t paused;                                 /* calls are the program's own: not counted, and none fails */
    int32_t live;                                    /* objects that were made and not destroyed */
};

#endif
