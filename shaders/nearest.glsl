// The bfloat16 nearest to x, as a float. What converts it then need not round: no specification says how that is done, and
// NVIDIA's driver (580.159) truncates. Conversions to float16 are to nearest on all drivers seen.
// NaN stays as it is: what arithmetic makes has its quiet bit above those that go.
float nearest_bf16(const float x)
{
    uint u = floatBitsToUint(x);
    return is_nan(x) ? x : uintBitsToFloat(u + 0x7fffu + (u >> 16 & 1u) & 0xffff0000u);
}
