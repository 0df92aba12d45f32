/* A Vulkan device of the test's own, which mlxvk adopts; one that fails, if asked. */
#ifndef TESTS_UNIT_SUPPORT_VULKAN_H
#define TESTS_UNIT_SUPPORT_VULKAN_H

#include "support.h"

/* How it was made stays in `adopt`. small_storage: with 8- and 16-bit storage, else with nothing that is optional. */
void own_vulkan(mlxvk_adopt *adopt, bool small_storage);
void end_vulkan(void);                                             /* the last one made */

/* For adopt.get_instance_proc_addr: a driver whose vkQueueSubmit loses the device after that many calls. */
extern int fail_submits_after;                                     /* below 0: never */
void *failing_driver(void);

#endif
