// The bfloat16 nearest to x, as a float. What converts it then need not round: no specification says how that is done, and
// NVIDIA's driver (580.159) truncates. Conversions to float16 are to nearest on all drivers seen.
float nearest_bf16(float x) { return bf16_to_float(float_to_bf16(x)); }
