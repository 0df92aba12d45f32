// Keys that order as MLX sorts: unsigned integers of the dtype's width; NaN after everything, all NaN alike. 64-bit
// dtypes are sorted by the low word and then, stably, by the high one.
#ifndef SORT_GLSL
#define SORT_GLSL
#include "common.glsl"
//! enum SORT_: flags of the kernels that sort
const uint RAW = 1;                                    // the source is data, not keys yet
const uint INDEX_IN = 2, INDEX_OUT = 4;                // positions are read (else counted), are written
const uint KEYS_OUT = 8, VALUES_OUT = 16;              // keys are written as they are; as the data they stand for
const uint GATHER = 32;                                // the source is in its first order: read where the positions say
const uint HIGH = 64;                                  // the high word of 64 bits

uint key_width(const uint t) { return is_small(t) ? 8u : is_half(t) ? 16u : 32u; }

// zeros_equal: -0 and 0 keep their order; else -0 comes first, and comes back from its key.
uint key_of(const uint raw, const uint t, const bool zeros_equal)
{
    uint width = key_width(t), top = 1u << (width - 1u), mask = top | (top - 1u);
    if (is_float(t)) {
        uint exponent = t == F32 ? 0x7f800000u : t == F16 ? 0x7c00u : 0x7f80u, magnitude = raw & ~top;
        if (magnitude > exponent) return mask;
        if (magnitude == 0u && zeros_equal) return top;
        return (raw & top) != 0u ? ~raw & mask : raw | top;
    }
    return is_signed(t) ? (raw ^ top) & mask : raw;
}
uint raw_of(const uint key, const uint t)
{
    uint width = key_width(t), top = 1u << (width - 1u), mask = top | (top - 1u);
    if (is_float(t)) return (key & top) != 0u ? key ^ top : ~key & mask;
    return is_signed(t) ? (key ^ top) & mask : key;
}
uint key_of_pair(const uvec2 raw, const uint t, const bool high)
{
    if (t == C64) {                                    // real part first; NaN in any part
        uint re = key_of(raw.x, F32, true), im = key_of(raw.y, F32, true);
        return re == 0xffffffffu || im == 0xffffffffu ? 0xffffffffu : high ? re : im;
    }
    return high ? (t == I64 ? raw.y ^ 0x80000000u : raw.y) : raw.x;
}
#endif
