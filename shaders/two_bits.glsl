// Two floats as the 16-bit numbers nearest to them, side by side: BF: bfloat16, else float16.
uint two_bits(const vec2 x)
{
#ifdef BF
    return float_to_bf16(x.x) | (float_to_bf16(x.y) << 16);
#else
    return packHalf2x16(x);
#endif
}
