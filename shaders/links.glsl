// Linked steps: dispatches that follow each other in a recorded segment without a barrier. A workgroup of the later one asks
// for what cannot have changed, waits until all workgroups of the earlier one have counted themselves, and then reads what
// those wrote. It needs what Vulkan does not promise, that workgroups start in the order of their dispatches: see
// link_table in mlxvk.c. What is read behind the wait, and what others read so, is `coherent`: caches of a processor may
// hold what an address had before.
// link: 1 + the counter of its own in the lowest byte, 1 + the one that it waits for in the next, how many it waits for above.
layout(std430, set = 0, binding = LINKS) coherent volatile buffer link_words { uint counted[]; };
//! enum LINK_: words from one counter to the next: a cache line of its own, or those who wait for later ones hold up who counts
const uint STEP_APART = 32;

// Where it waits for seconds it gives up, and the last counter says so: the host takes the device for lost.
const uint SPINS = 1u << 24, GAVE_UP = 255u;

bool is_linked() { return (link & 0xff00u) != 0u; }
void wait_for_link(const uint thread)
{
    if (thread == 0u) {
        uint i = 0u;
        while (counted[((link >> 8 & 0xffu) - 1u) * STEP_APART] < link >> 16 && i < SPINS) i++;
        if (i == SPINS) counted[GAVE_UP * STEP_APART] = 1u;
        memoryBarrierBuffer();
    }
    barrier();
}
void count_for_link(const uint thread)
{
    if ((link & 0xffu) == 0u) return;
    groupMemoryBarrier();
    barrier();
    if (thread == 0u) {
        memoryBarrierBuffer();
        atomicAdd(counted[((link & 0xffu) - 1u) * STEP_APART], 1u);
    }
}
