// RMS normalisation by whoever does it beside something else, with the bits that norm.comp gives. Each step is said, for
// compilers contract what is not.
#ifndef NORMED_GLSL
#define NORMED_GLSL
//! enum NORM_ROW_: elements; of longer rows in bfloat16 norm.comp rounds some results by floats (eights.glsl): of rms_norm the
//! upper four of each eight, of layer_norm all. Whoever makes such a result cuts what is below 2^-126, so that it has the same bits.
const uint SHORT = 1024u;
float cut(const float x)
{
    uint u = floatBitsToUint(x);
    return uintBitsToFloat((u & 0x7f800000u) == 0u ? u & 0xffff0000u : u);
}
vec4 cut(const vec4 x) { return vec4(cut(x.x), cut(x.y), cut(x.z), cut(x.w)); }
// What a row of n is multiplied by whose squares add up to `total`.
float norm_factor(const float total, const uint n, const float eps)
{
    precise float square = total / float(n), x = square + eps;
    return inversesqrt(x);
}
#endif
