// Threefry 2x32 with 20 rounds, and the stream of words that MLX makes of it.
#ifndef THREEFRY_GLSL
#define THREEFRY_GLSL
//! enum KEY_: push constants that say a key: where it lies, how far apart its words are; or that they are here, and they
const uint AT = 0, STEP_BETWEEN = 1, PUSHED = 2, FIRST = 3, SECOND = 4;
#define KEY (key[PUSHED] != 0u ? uvec2(key[FIRST], key[SECOND]) : uvec2(key32[key[AT]], key32[key[AT] + key[STEP_BETWEEN]]))

// SUM may be defined otherwise: additions are half of the work.
#ifndef SUM
#define SUM(a, b) ((a) + (b))
#endif
#define ROUND(r) x.x = SUM(x.x, x.y); x.y = (x.y << r) | (x.y >> (32 - r)); x.y ^= x.x;
#define EVEN_ROUNDS ROUND(13) ROUND(15) ROUND(26) ROUND(6)
#define ODD_ROUNDS ROUND(17) ROUND(29) ROUND(16) ROUND(24)
#define INJECT(first, second) x.x += first; x.y = SUM(x.y, second);
#ifdef ROUNDS_LOOPED                                    // the same in a tenth of the code, for what draws a word or two
uvec2 threefry(const uvec2 key, uvec2 x)
{
    uvec3 k = uvec3(key, key.x ^ key.y ^ 0x1bd11bdau);
    x += k.xy;
    for (uint i = 0u; i < 20u; i++) {
        uint r = ((i & 4u) == 0u ? 0x061a0f0du : 0x18101d11u) >> (i % 4u * 8u) & 31u;
        ROUND(r)
        if (i % 4u < 3u) continue;
        k = k.yzx;
        INJECT(k.x, k.y + (i / 4u + 1u))
    }
    return x;
}
#else
uvec2 threefry(const uvec2 key, uvec2 x)
{
    uint third = key.x ^ key.y ^ 0x1bd11bdau;
    INJECT(key.x, key.y)
    EVEN_ROUNDS INJECT(key.y, third + 1u)
    ODD_ROUNDS  INJECT(third, key.x + 2u)
    EVEN_ROUNDS INJECT(key.x, key.y + 3u)
    ODD_ROUNDS  INJECT(key.y, third + 4u)
    EVEN_ROUNDS INJECT(third, key.x + 5u)
    return x;
}
#endif

// Words pair `i` of a stream of `words`: word i and word i + ceil(words / 2); of an odd number the middle one stands alone.
uvec2 random_pair(const uvec2 key, const uint i, const uint words)
{
    uint half_up = words / 2u + (words & 1u);
    return threefry(key, uvec2(i, i < words / 2u ? i + half_up : 0u));
}
uint random_word(const uvec2 key, const uint w, const uint words)
{
    uint half_up = words / 2u + (words & 1u);
    return w < half_up ? random_pair(key, w, words).x : random_pair(key, w - half_up, words).y;
}

// [0, 1): not rounded up to 1 in the dtype it goes into
float unit_float(const uint bits, const uint t)
{
    return min(float(bits) * 2.3283064365386963e-10, t == F16 ? 0.99951171875 : t == BF16 ? 0.99609375 : 0.999999940395355224609375);
}
#endif
