// What lies across two groups of 16 bytes, as four words.
#ifndef WORDS_GLSL
#define WORDS_GLSL
// From word s of a and b on, of which the first four are a; without branches.
uvec4 words_from(const uint s, const uvec4 a, const uvec4 b)
{
    bvec4 two = bvec4((s & 2u) != 0u), one = bvec4((s & 1u) != 0u);
    uvec4 c = mix(a, uvec4(a.zw, b.xy), two);
    return mix(c, uvec4(c.yzw, mix(b.x, b.z, two.x)), one);
}
// The word behind those.
uint word_behind(const uint s, const uvec4 b) { return (s & 2u) != 0u ? ((s & 1u) != 0u ? b.w : b.z) : (s & 1u) != 0u ? b.y : b.x; }
// From half s of a and b on, of which the first eight are a.
uvec4 halves_from(const uint s, const uvec4 a, const uvec4 b)
{
    uvec4 w = words_from(s / 2u, a, b);
    return mix(w, w >> 16 | uvec4(w.yzw, word_behind(s / 2u, b)) << 16, bvec4((s & 1u) != 0u));
}
// From byte s of a and b on, of which the first 16 are a.
uvec4 bytes_from(const uint s, const uvec4 a, const uvec4 b)
{
    uvec4 w = words_from(s / 4u, a, b);
    uint bits = s % 4u * 8u;
    return w >> bits | uvec4(w.yzw, word_behind(s / 4u, b)) << 1 << 31u - bits;
}
// The same of elements of which 16 bytes have `each`: words, halves or bytes.
uvec4 elements_from(const uint each, const uint s, const uvec4 a, const uvec4 b)
{
    return each == 4u ? words_from(s, a, b) : each == 8u ? halves_from(s, a, b) : bytes_from(s, a, b);
}
#endif
