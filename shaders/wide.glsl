// 64-bit integers as two words, the low one first: no device needs to have them.
#ifndef WIDE_GLSL
#define WIDE_GLSL
const uvec2 ZERO = uvec2(0u), ONE = uvec2(1u, 0u);

uvec2 wide(const int x) { return uvec2(uint(x), uint(x >> 31)); }
uvec2 wide_sum(const uvec2 x, const uvec2 y)
{
    uint carry, low = uaddCarry(x.x, y.x, carry);
    return uvec2(low, x.y + y.y + carry);
}
uvec2 wide_negative(const uvec2 x) { return wide_sum(~x, ONE); }
uvec2 wide_difference(const uvec2 x, const uvec2 y)
{
    uint borrow, low = usubBorrow(x.x, y.x, borrow);
    return uvec2(low, x.y - y.y - borrow);
}
uvec2 wide_product(const uvec2 x, const uvec2 y)
{
    uint high, low;
    umulExtended(x.x, y.x, high, low);
    return uvec2(low, high + x.x * y.y + x.y * y.x);
}
bool wide_less(const uvec2 x, const uvec2 y, const bool with_sign)
{
    uint flip = with_sign ? 0x80000000u : 0u, p = x.y ^ flip, q = y.y ^ flip;
    return p < q || (p == q && x.x < y.x);
}
uvec2 wide_left(const uvec2 x, const uint n)                                       // n < 64
{
    if (n >= 32u) return uvec2(0u, x.x << (n - 32u));
    return n == 0u ? x : uvec2(x.x << n, x.y << n | x.x >> (32u - n));
}
uvec2 wide_right(const uvec2 x, const uint n, const bool with_sign)
{
    uint fill = with_sign ? uint(int(x.y) >> 31) : 0u;
    if (n == 0u) return x;
    if (n == 32u) return uvec2(x.y, fill);
    if (n > 32u) return uvec2(x.y >> (n - 32u) | fill << (64u - n), fill);
    return uvec2(x.x >> n | x.y << (32u - n), x.y >> n | fill << (32u - n));
}
uint wide_bits(const uvec2 x) { return x.y != 0u ? uint(findMSB(x.y)) + 33u : uint(findMSB(x.x) + 1); }
uvec2 wide_quotient(uvec2 x, const uvec2 y)                                  // without signs; 0 for y = 0
{
    uvec2 q = ZERO;
    if (y == ZERO || wide_less(x, y, false)) return q;
    if (x.y == 0u) return uvec2(x.x / y.x, 0u);
    for (int k = int(wide_bits(x) - wide_bits(y)); k >= 0; k--) {
        uvec2 part = wide_left(y, uint(k));
        q = wide_left(q, 1u);
        if (!wide_less(x, part, false)) {
            x = wide_difference(x, part);
            q.x |= 1u;
        }
    }
    return q;
}
#endif
