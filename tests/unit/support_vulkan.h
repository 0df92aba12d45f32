/* A Vulkan device of the test's own, which mlxvk adopts; one that fails, if asked. */
#ifndef TESTS_UNIT_SUPPORT_VULKAN_H
#define TESTS_UNIT_SUPPORT_VULKAN_H

#include "support.h"

/* How it was made stays in `adopt`. small_storage: with 8- and 16-bit storage, else with nothing that is optional. */
void own_vulkan(mlxvk_adopt *adopt, bool small_storage);
void end_vulkan(void);                                             /* the last one made */

/* For adopt.get_instance_proc_addr: a driver whose vkQueueSubmit fails after that many calls (below 0: never), so many times
 * (below 0: always), in this way (a VkResult; the device is lost, if nothing else is said). */
extern int fail_submits_after, fail_submits, submit_failure;
void *failing_driver(void);

#endif
