// RMS normalisation by whoever does it beside something else, with the bits that norm.comp gives. Each step is said, for
// compilers contract what is not.
#ifndef NORMED_GLSL
#define NORMED_GLSL
// What a row of n is multiplied by whose squares add up to `total`.
float norm_factor(const float total, const uint n, const float eps)
{
    precise float square = total / float(n), x = square + eps;
    return inversesqrt(x);
}
#endif
