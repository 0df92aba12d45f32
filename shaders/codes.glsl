// What kernels share whose cooperative matrices hold the codes of quantized weights: small integers, which x's type holds exactly,
// go into the matrices as they are, offset by a power of two that takes no conversion (OFFSET). The order of k within a group is
// chosen so that a lane's elements are the codes of words that it reads itself: a class, a quarter of the group, one of each half
// of a word making a pair. Defined before: BF, GROUP, DIGITS_OFF (codes are not cut into digits).
#ifndef CODES_GLSL
#define CODES_GLSL
#ifdef BF
#define T bfloat16_t
#define ELEMENT(bits) uintBitsToBFloat16EXT(uint16_t(bits))
#else
#define T float16_t
#define ELEMENT(bits) uint16BitsToFloat16(uint16_t(bits))
#endif

const uint HALF = 16 / BITS;                           // codes of half a word; one of each half make a pair of elements
const uint CLASS = GROUP / 4;                          // codes of a group that are in one lane's words: a class of columns
const uint WORDS = CLASS * BITS / 32;                  // their words

// 8 bits of a bfloat16 are two digits: its mantissa holds 7.
#ifdef BF
const bool DIGITS = BITS == 8u && !DIGITS_OFF;
const uint MAGIC = 0x43004300u, MAGIC_HIGH = 0x45004500u;                           // 128 + code; 2048 + 16 * code
const float OFFSET = DIGITS ? 2176.0 : 128.0;
#else
const bool DIGITS = false;
const uint MAGIC = 0x64006400u, MAGIC_HIGH = 0u;                                    // 1024 + code
const float OFFSET = 0.0;                              // taken away at once
#endif
const uint PAIR = (DIGITS ? 0xfu : MASK) * 0x00010001u;

uint low_of_pair(const uint v) { return v / HALF * 2u * HALF + v % HALF; }
uint two_of(const uint a, const uint b, const uint first, const uint second)       // 16 bits of each
{
    return (first % 2u == 0u ? a & 0xffffu : a >> 16) | (second % 2u == 0u ? b << 16 : b & 0xffff0000u);
}
// Pair t of a class, or its upper digits, from the word that it is in.
uint code_pair(const uint word, const uint t, const bool high, const uvec2 magics)
{
    return word >> t % HALF * BITS + (high ? 4u : 0u) & PAIR | (high ? magics.y : magics.x);
}
#endif
