// Linked steps: dispatches that follow each other in a recorded segment without a barrier. A workgroup of the later one asks
// for what cannot have changed, waits until all workgroups of the earlier one have counted themselves, and then reads what
// those wrote. It needs what Vulkan does not promise, that workgroups start in the order of their dispatches: see
// link_table in mlxvk.c. What is read behind the wait, and what others read so, is `coherent`: caches of a processor may
// hold what an address had before.
// link: 1 + the counter of its own in the lowest byte, 1 + the one that it waits for in the next, how many it waits for in 12
// bits above, and in the last three whether x, the results, and what is added to them are told: see TELLS_Y.
layout(std430, set = 0, binding = LINKS) coherent volatile buffer link_words { uint counted[]; };
//! enum LINK_: words from one counter to the next: a cache line of its own, or those who wait for later ones hold up who counts
const uint STEP_APART = 32;

// Where it waits for seconds it gives up, and the last counter says so: the host takes the device for lost.
const uint SPINS = 1u << 24, GAVE_UP = 255u;

// A barrier that orders what its workgroup reads and writes; one thread's release behind it passes on what all of them wrote.
// With fences of the whole device in their place, each a microsecond for NVIDIA's driver, a token of Qwen3-0.6B took 15 %
// longer on an H200. Behind the wait there is none: what is read then is `coherent`.
#define GROUP_BARRIER() \
    controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsBuffer | gl_StorageSemanticsShared, gl_SemanticsAcquireRelease)

// Who uses matrices is in Vulkan's memory model, where the whole device is a capability of its own.
#ifdef MATRICES
#define LINK_SCOPE gl_ScopeQueueFamily
#else
#define LINK_SCOPE gl_ScopeDevice
#endif

// What is told is written twice, to where it belongs and, with the step's tag above its 16 bits, behind the counters: who waits
// for it reads that again until all of it has the tag. So there is no counting, no fence, and no second way to memory. `told`
// says where, by 16 words, and the tag above that.
//! enum TELL_: the first such word; how many there are; bits of link
const uint FROM = 8192, WORDS_TOLD = 262144, HEARS_X = 268435456, TELLS_Y = 536870912, HEARS_RES = 1073741824;
layout(std430, set = 0, binding = LINKS) coherent volatile buffer link_quads { uvec4 told4[]; };
layout(std430, set = 0, binding = LINKS) coherent volatile buffer link_pairs { uvec2 told2[]; };
uint told_at(const uint told, const uint i) { return FROM + ((told & 0xffffu) << 4) + i; }

bool is_linked() { return (link & 0xff00u) != 0u; }
void wait_for_link(const uint thread)
{
    if (thread == 0u) {
        uint i = 0u;
        while (counted[((link >> 8 & 0xffu) - 1u) * STEP_APART] < (link >> 16 & 0xfffu) && i < SPINS) i++;
        if (i == SPINS) counted[GAVE_UP * STEP_APART] = 1u;
    }
    GROUP_BARRIER();
}
void count_for_link(const uint thread)
{
    if ((link & 0xffu) == 0u) return;
    GROUP_BARRIER();
    if (thread == 0u)
        atomicAdd(counted[((link & 0xffu) - 1u) * STEP_APART], 1u, LINK_SCOPE, gl_StorageSemanticsBuffer, gl_SemanticsRelease);
}
