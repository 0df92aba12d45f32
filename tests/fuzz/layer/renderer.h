/* A Vulkan device of the program's own, which mlxvk adopts: what a renderer does beside it. None of its calls fails but
 * those on a device that is lost: they are no calls of mlxvk's. */
#ifndef TESTS_FUZZ_LAYER_RENDERER_H
#define TESTS_FUZZ_LAYER_RENDERER_H

#include "faults.h"
#include "mlxvk.h"

enum { IMAGE_SIDE = 8, MOST_WAITS = 16 };

struct renderer {
    mlxvk_adopt adopt;
    uint64_t image, timeline;                        /* R8G8B8A8_UNORM, IMAGE_SIDE a side; a timeline semaphore */
};

bool renderer_open(struct renderer *r, struct faults *faults);      /* one at a time; false: there is no such device */
void renderer_close(void);
/* A VkCommandBuffer that is open; the one before is over by then. */
void *renderer_begin(void);
/* Ends it, submits it behind what the recording waits for, and waits; the timeline gets the value, if that is not 0. */
bool renderer_submit(const mlxvk_recording *m, uint64_t value);
/* It is not submitted; the timeline gets the value all the same. */
void renderer_discard(uint64_t value);

#endif
