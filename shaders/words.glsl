// Four words that lie across two fours.
#ifndef WORDS_GLSL
#define WORDS_GLSL
// From word s of a and b on, of which the first four are a; without branches.
uvec4 words_from(const uint s, const uvec4 a, const uvec4 b)
{
    bvec4 two = bvec4((s & 2u) != 0u), one = bvec4((s & 1u) != 0u);
    uvec4 c = mix(a, uvec4(a.zw, b.xy), two);
    return mix(c, uvec4(c.yzw, mix(b.x, b.z, two.x)), one);
}
#endif
