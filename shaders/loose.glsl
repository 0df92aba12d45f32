// Eight elements that lie anywhere, as words, by the aligned 16 bytes that hold them: a CPU driver takes a load's threads one
// after the other, so four numbers in one load cost it little more than one. Of words and halves alone.
#ifndef LOOSE_GLSL
#define LOOSE_GLSL
#include "eights.glsl"
#include "words.glsl"
struct Loose { uvec4 a, b; };                          // halves: a alone

Loose loose_of(const uint i, const uint t, const uvec4 a, const uvec4 b, const uvec4 c)
{
    if (t == F32) return Loose(words_from(i & 3u, a, b), words_from(i & 3u, b, c));
    return Loose(halves_from(i & 7u, a, b), uvec4(0u));
}
eight loose_eight(const Loose w, const uint t)
{
    if (t == F32) return eight(uintBitsToFloat(w.a), uintBitsToFloat(w.b));
    return eight(four_halves(w.a.xy, t), four_halves(w.a.zw, t));
}

// From element i of buffer `which` on, as loose_quad(which, 16 bytes) has it; behind element `last` anything, from no other 16
// bytes than it lies in.
uvec4 loose_quad(const uint which, const uint i);
Loose loose_load(const uint which, const uint i, const uint last, const uint t)
{
    uint each = t == F32 ? 4u : 8u, q = i / each, end = last / each;
    uvec4 a = loose_quad(which, min(q, end)), b = loose_quad(which, min(q + 1u, end));
    return loose_of(i, t, a, b, t == F32 ? loose_quad(which, min(q + 2u, end)) : b);
}
// Eight to element i and those behind it, three pairs and two alone, without branches; the first `count`, at most 7, of them.
#define LOOSE_STORE(name) \
    void loose_##name(const uint i, const uint t, const Loose w) { \
        bool odd = (i & 1u) != 0u; \
        uint p = (i + 1u) / 2u, alone = odd ? i : i + 6u; \
        if (t == F32) { \
            name##64[p] = mix(w.a.xy, w.a.yz, bvec2(odd)); \
            name##64[p + 1u] = mix(w.a.zw, uvec2(w.a.w, w.b.x), bvec2(odd)); \
            name##64[p + 2u] = mix(w.b.xy, w.b.yz, bvec2(odd)); \
            name##32[alone] = odd ? w.a.x : w.b.z; \
            name##32[i + 7u] = w.b.w; \
        } else { \
            uvec3 y = mix(w.a.xyz, w.a.xyz >> 16 | w.a.yzw << 16, bvec3(odd)); \
            [[unroll]] for (uint k = 0u; k < 3u; k++) name##32[p + k] = y[k]; \
            name##16[alone] = uint16_t(odd ? w.a.x : w.a.w); \
            name##16[i + 7u] = uint16_t(w.a.w >> 16); \
        } } \
    void loose_few_##name(const uint i, const uint count, const uint t, const Loose w) { \
        [[dont_unroll]] for (uint k = 0u; k < count; k++) \
            if (t == F32) name##32[i + k] = k < 4u ? w.a[k & 3u] : w.b[k & 3u]; \
            else name##16[i + k] = uint16_t(w.a[k / 2u] >> 16u * (k % 2u)); }
// A row of n from element `at` on by the aligned 16 bytes that hold it, from staged[first] on, shared memory that has it by eights:
// where stores cost the lines that they touch, whatever they write of each. By `lanes` threads, of which this is number `lane`.
#define LOOSE_ROW(name) \
    void loose_row_##name(const uint first, const uint at, const uint n, const uint t, const uint lane, const uint lanes) { \
        const uint each = t == F32 ? 4u : 8u; \
        uint s = at % each, end = s + n, last = (n - 1u) / each; \
        for (uint c = lane; c * each < end; c += lanes) { \
            uvec4 b = staged[first + min(c, last)], a = s == 0u ? b : staged[first + max(c, 1u) - 1u]; \
            uvec4 w = loose_of(each - s, t, a, b, b).a; \
            if (c * each >= s && c * each + each <= end) { \
                name##128[at / each + c] = w; \
                continue; \
            } \
            [[unroll]] for (uint k = 0u; k < each; k++) { \
                uint i = c * each + k; \
                if (i < s || i >= end) continue; \
                if (t == F32) name##32[at - s + i] = w[k & 3u]; \
                else name##16[at - s + i] = uint16_t(w[k / 2u] >> 16u * (k % 2u)); \
            } \
        } }

#endif
