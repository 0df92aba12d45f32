// The angles of rotary position embedding. Who includes this has base_high, base_low, freqs32, freqs_at, freqs_step, FREQS.
#ifndef ROPE_GLSL
#define ROPE_GLSL
#include "polynomials.glsl"

// 2^(j * log2 of the ratio): the exponent in two parts, so that no bit of the frequency is lost.
float inverse_frequency(const uint j)
{
    if (has(FREQS)) return 1.0 / uintBitsToFloat(freqs32[freqs_at + j * freqs_step]);
    precise float k = float(j), high = k * base_high, whole = clamp(roundEven(high), -126.0, 127.0), rest = high - whole;
    float f = fma(k, base_low, rest);
    return fma(exp2_tail(f), f, 1.0) * uintBitsToFloat(uint(int(whole) + 127) << 23);
}

// (cos, sin) of any float below 2^55: its 24 bits times 96 bits of 2/pi give the quadrant and 32 bits of the rest.
vec2 cos_sin(const float angle)
{
    uint bits = floatBitsToUint(angle) & 0x7fffffffu, quadrant = 0u;
    float r = uintBitsToFloat(bits);
    if (bits >= 0x7f800000u) return vec2(NOT_A_NUMBER);
    if (r >= 0.7853981634) {
        uint m = (bits & 0x7fffffu) | 0x800000u, h0, h1, h2, l0, l1, l2, carry;
        int e = min(int(bits >> 23) - 150, 31);
        umulExtended(m, 0xA2F9836Eu, h0, l0);
        umulExtended(m, 0x4E441529u, h1, l1);
        umulExtended(m, 0xFC2757D1u, h2, l2);
        uint w1 = uaddCarry(h2, l1, carry), c = carry;
        uint w2 = uaddCarry(h1, l0, carry);
        uint w3 = h0 + carry;
        w2 = uaddCarry(w2, c, carry);
        w3 += carry;
        if (e < 0) {
            w2 = (w2 >> uint(-e)) | (w3 << uint(32 + e));
            w3 >>= uint(-e);
        } else if (e > 0) {
            w3 = (w3 << uint(e)) | (w2 >> uint(32 - e));
            w2 = (w2 << uint(e)) | (w1 >> uint(32 - e));
        }
        quadrant = w3 + (w2 >> 31);
        r = float(int(w2)) * 3.6572952e-10;              // pi / 2 / 2^32
    }
    float z = r * r;
    float s = fma(sin_tail_short(z) * z, r, r), k = fma(fma(cos_tail(z), z, -0.5), z, 1.0);
    if ((quadrant & 1u) != 0u) { float swap = s; s = k; k = -swap; }
    if ((quadrant & 2u) != 0u) { s = -s; k = -k; }
    return vec2(k, angle < 0.0 ? -s : s);
}

// The first and the second of rotated pairs. Where products meet sums is said, so that a row has the same bits by fours, by
// twos and one by one, whatever lies beside it.
#define TURNED(type) \
    type turned_first(const type a, const type b, const type c, const type s) { precise type t = b * s; return fma(a, c, -t); } \
    type turned_second(const type a, const type b, const type c, const type s) { precise type t = b * c; return fma(a, s, t); }
TURNED(vec2)
TURNED(vec4)
#endif
