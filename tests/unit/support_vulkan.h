/* A Vulkan device of the test's own, which mlxvk adopts; one that fails, if asked. */
#ifndef TESTS_UNIT_SUPPORT_VULKAN_H
#define TESTS_UNIT_SUPPORT_VULKAN_H

#include "support.h"

/* How it was made stays in `adopt`. small_storage: with 8- and 16-bit storage as far as the device has it, else with
 * nothing that is optional. */
void own_vulkan(mlxvk_adopt *adopt, bool small_storage);
/* Its functions by name, of the device or else of the instance. */
void *vulkan_function(const char *name);
void end_vulkan(void);                                             /* the last one made */
/* A VkBuffer of that device, mapped; one at a time. Freed before end_vulkan(). */
uint64_t own_buffer(size_t size, void **mapped);
void end_own_buffer(void);

/* For adopt.get_instance_proc_addr: a driver whose vkQueueSubmit fails after that many calls (below 0: never), so many times
 * (below 0: always), in this way (a VkResult; the device is lost, if nothing else is said). */
extern int fail_submits_after, fail_submits, submit_failure;
void *failing_driver(void);

/* What else that driver does; all zeros: nothing. */
struct driver {
    int fail_waits, wait_failure;                      /* so many calls of vkWaitSemaphores fail, in this way */
    bool lost_counters;                                /* the device is lost, says vkGetSemaphoreCounterValue alone */
    int frees, allocations;                            /* calls of vkFreeMemory; of vkAllocateMemory that succeeded */
    uint32_t types;                                    /* so many memory types, all alike and mapped; in bits: */
    bool window;                                       /* but the first is not, and the others are of a small heap */
    uint32_t allowed, exhausted, used;                 /* a buffer may have, have no memory left, memory was taken of */
    bool half_ready;                                   /* of each pool's timestamps two are there: 500 apart */
    uint64_t lasts;                                    /* of two timestamps: nanoseconds between them; 0: the truth */
    uint32_t max_buffers, max_threads, largest_layout; /* limits, if not 0; most bindings of a set layout */
    uint32_t max_depth;                                /* of a workgroup, in threads, if not 0 */
    uint32_t device_type;                              /* a VkPhysicalDeviceType that it says it is, if not 0 */
    uint32_t broken;                                   /* kernels whose SPIR-V has that capability do nothing */
    int dispatches;                                    /* so many were recorded */
    bool tells_fault;                                  /* it has VK_EXT_device_fault, and tells of one */
    uint32_t alignment, misaligned;                    /* of bindings, made the device's if that is more; wrong ones */
    bool own_cache;                                    /* a pipeline cache's data are cache_byte(0), (1) ... */
    size_t cache_bytes, cache_given;                   /* so many; so many were given back, */
    bool cache_wrong, refuses_cache, updated;          /* others than those; none is taken; its version is another */
    uint32_t more_families;                            /* queue families beside the device's, which are not there */
    /* The device shares memory by descriptors where it can; says that they are of dma-buf, so many times. Set before it
     * is made. */
    bool shares, renames;
    int renamed, fail_binds, fail_maps;                /* calls that fail: vkBindBufferMemory; vkMapMemory */
    int fail_pools;                                    /* of vkCreateDescriptorPool */
    int semaphores;                                    /* made, and not destroyed */
    uint64_t slow_signal;                              /* the host's of that value takes a tenth of a second */
    bool signalled_back;                               /* the host signalled a value that was not over the last one */
};
extern struct driver driver;
unsigned char cache_byte(size_t i);

/* Barriers and copies of images in the order in which they are recorded, the first IMAGE_COMMANDS of them; each pair is
 * from and to. A barrier of a family that is not there reaches the device without one. */
enum { IMAGE_COMMANDS = 64 };
struct image_command {
    bool copy;
    uint32_t families[2], layouts[2], stages[2], access[2], mip, layer;
    uint64_t image;
};
extern struct image_command image_commands[IMAGE_COMMANDS];
extern int image_command_count;
/* own_vulkan() with that driver, adopted; to be freed before end_vulkan(). */
mlxvk_device own_device(const char *gates);

#endif
