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

// Experiment. LINK_WAIT: 0 a fence behind the wait; 1 none, but the barrier's own; 2 the barrier's, of the device.
// LINK_COUNT: 0 a fence of the group, a barrier, a fence; 1 a barrier that orders the group's, a fence; 2 the same, which only
// releases; 3 the same, of the atomic itself; 4 no group's fence, a fence by each thread in front of the barrier.
#ifndef LINK_WAIT
#define LINK_WAIT 0
#endif
#ifndef LINK_COUNT
#define LINK_COUNT 0
#endif
bool is_linked() { return (link & 0xff00u) != 0u; }
void wait_for_link(const uint thread)
{
    if (thread == 0u) {
        uint i = 0u;
        while (counted[((link >> 8 & 0xffu) - 1u) * STEP_APART] < link >> 16 && i < SPINS) i++;
        if (i == SPINS) counted[GAVE_UP * STEP_APART] = 1u;
#if LINK_WAIT == 0
        memoryBarrierBuffer();
#elif LINK_WAIT == 3
        memoryBarrier(gl_ScopeDevice, gl_StorageSemanticsBuffer, gl_SemanticsAcquire);
#endif
    }
#if LINK_WAIT == 2
    controlBarrier(gl_ScopeWorkgroup, gl_ScopeDevice, gl_StorageSemanticsBuffer, gl_SemanticsAcquireRelease);
#else
    barrier();
#endif
}
void count_for_link(const uint thread)
{
    if ((link & 0xffu) == 0u) return;
#if LINK_COUNT == 0
    groupMemoryBarrier();
    barrier();
#elif LINK_COUNT == 4
    memoryBarrierBuffer();
    barrier();
#else
    controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsBuffer, gl_SemanticsAcquireRelease);
#endif
    if (thread == 0u) {
#if LINK_COUNT == 0 || LINK_COUNT == 1
        memoryBarrierBuffer();
#elif LINK_COUNT == 2
        memoryBarrier(gl_ScopeDevice, gl_StorageSemanticsBuffer, gl_SemanticsRelease);
#endif
#if LINK_COUNT == 3
        atomicAdd(counted[((link & 0xffu) - 1u) * STEP_APART], 1u, gl_ScopeDevice, gl_StorageSemanticsBuffer, gl_SemanticsRelease);
#else
        atomicAdd(counted[((link & 0xffu) - 1u) * STEP_APART], 1u);
#endif
    }
}
