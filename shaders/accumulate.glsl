// What reductions and scans accumulate, by variant:
//   (none)  a 32-bit value: float32, int32, uint32, bool
//   -DPAIR  two words: 64-bit integers, complex64, or maximum and sum of exponentials (logsumexp)
//   -DINDEX a key that orders as the values do (two words) and the position of the first best one (argmax, argmin)
#ifndef ACCUMULATE_GLSL
#define ACCUMULATE_GLSL
#include "common.glsl"
//! enum REDUCE_: operations; EXPSUM: a sum of exponentials relative to what reduce.comp is given
const uint SUM = 0, PROD = 1, MAX = 2, MIN = 3, MEAN = 4, ALL = 5, ANY = 6, LSE = 7, ARGMAX = 8, ARGMIN = 9,
           COMPLEX_LSE = 10, EXPSUM = 11;
const float LOWEST = -3.402823466e+38;                 // a row of nothing but -infinity gives NaN, as 0 / 0
layout(constant_id = 1) const uint OP = 0;
layout(constant_id = 2) const uint FROM = 10;          // operand's dtype; complex64 for LSE, ARGMAX and ARGMIN: results of parts
layout(constant_id = 3) const uint TO = 10;            // result's dtype; complex64 likewise

BUFFER(0, dst)
BUFFER(1, src)
ACCESS(dst)
ACCESS(src)

bool eight() { return FROM == U64 || FROM == I64 || FROM == C64; }

#if defined(PAIR)
#define ACC uvec2
#elif defined(INDEX)
#define ACC uvec3
#else
#define ACC uint
#endif

#if defined(PAIR)
uvec2 pack(const vec2 x) { return floatBitsToUint(x); }
vec2 unpack(const uvec2 a) { return uintBitsToFloat(a); }
bool is_nan2(const uvec2 a) { return is_nan(uintBitsToFloat(a.x)) || is_nan(uintBitsToFloat(a.y)); }
bool less(const uvec2 a, const uvec2 b)                            // 64-bit integers, the high word last; complex numbers, real first
{
    if (FROM == C64) {
        vec2 x = unpack(a), y = unpack(b);
        return x.x < y.x || (x.x == y.x && x.y < y.y);
    }
    uint flip = FROM == I64 ? 0x80000000u : 0u, p = a.y ^ flip, q = b.y ^ flip;
    return p < q || (p == q && a.x < b.x);
}
vec2 complex_product(const vec2 x, const vec2 y)
{
    precise vec2 p = vec2(x.x * y.x - x.y * y.y, x.x * y.y + x.y * y.x);
    return p;
}
uvec2 multiply(const uvec2 a, const uvec2 b)
{
    if (FROM == C64) {
        vec2 x = unpack(a), y = unpack(b);
        if (x == vec2(1.0, 0.0)) return b;             // where there is nothing to multiply with: 0 * infinity is none
        if (y == vec2(1.0, 0.0)) return a;
        vec2 p = complex_product(x, y);
        if (is_nan(p.x) || is_nan(p.y)) {              // two infinities, perhaps of finite numbers: which one is larger?
            const float DOWN = 1.3552527e-20, UP = 7.3786976e19;        // 2^-66, 2^66
            precise vec2 q = complex_product(x * DOWN, y * DOWN) * UP, r = q * UP;      // 2^132 is no number
            p = vec2(is_nan(p.x) ? r.x : p.x, is_nan(p.y) ? r.y : p.y);
        }
        return pack(p);
    }
    uvec2 r;
    umulExtended(a.x, b.x, r.y, r.x);
    r.y += a.x * b.y + a.y * b.x;
    return r;
}
uvec2 add(const uvec2 a, const uvec2 b)
{
    if (FROM == C64) return pack(unpack(a) + unpack(b));
    uint carry;
    uvec2 r;
    r.x = uaddCarry(a.x, b.x, carry);
    r.y = a.y + b.y + carry;
    return r;
}
// The maximum of both, and the sums of exponentials relative to it.
uvec2 join(const uvec2 a, const uvec2 b)
{
    vec2 x = unpack(a), y = unpack(b);
    bool first = x.x >= y.x;
    vec2 high = first ? x : y, low = first ? y : x;
    float e = x.x == y.x ? 1.0 : exp(low.x - high.x);
    precise float sum = high.y + low.y * e;            // rounded alike wherever this is inlined
    return pack(vec2(high.x, sum));
}
#ifdef SCAN
// log(exp(a) + exp(b)) of complex numbers.
uvec2 join_complex(const uvec2 a, const uvec2 b)
{
    vec2 x = unpack(a), y = unpack(b);
    bool first = x.x >= y.x;
    vec2 high = first ? x : y, low = first ? y : x;
    if (low.x == -INFINITY) return pack(high);
    float e = exp(low.x - high.x), turn = low.y - high.y;
    vec2 sum = vec2(1.0 + e * cos(turn), e * sin(turn));
    return pack(high + vec2(0.5 * log(dot(sum, sum)), atan(sum.y, sum.x)));
}
#endif
ACC identity()
{
    if (OP == LSE || OP == COMPLEX_LSE) return pack(vec2(-INFINITY, 0.0));
    if (OP == PROD) return uvec2(FROM == C64 ? 0x3f800000u : 1u, 0u);
    if (FROM == C64) {
        if (OP == MAX) return uvec2(0xff800000u);
        if (OP == MIN) return uvec2(0x7f800000u);
    } else {                                           // no choice between constant vectors: some drivers get it wrong
        if (OP == MAX) return uvec2(0u, FROM == I64 ? 0x80000000u : 0u);
        if (OP == MIN) return uvec2(~0u, FROM == I64 ? 0x7fffffffu : ~0u);
    }
    return uvec2(0u);
}
ACC combine(const ACC a, const ACC b)
{
    if (OP == LSE) return join(a, b);
#ifdef SCAN
    if (OP == COMPLEX_LSE) return join_complex(a, b);
#endif
    if (OP == PROD) return multiply(a, b);
    if (OP == MAX || OP == MIN) {
        if (FROM == C64 && is_nan2(a)) return a;
        if (FROM == C64 && is_nan2(b)) return b;
        return (OP == MAX ? less(a, b) : less(b, a)) ? b : a;
    }
    return add(a, b);
}
ACC value(const uvec2 raw, const uint at)
{
    if (OP == LSE && FROM != C64) return pack(vec2(as_float(raw.x, FROM), 1.0));
    return raw;
}
uvec2 finish(const ACC a)                                    // the bits of a result
{
    if (OP != LSE || TO == C64) return a;
    vec2 x = unpack(a);
    return uvec2(float_to_bits(is_inf(x.x) && !is_nan(x.y) ? x.x : x.x + log(x.y), TO), 0u);
}
ACC scaled(const ACC a, const float scale) { return pack(unpack(a) * scale); }
#elif defined(INDEX)
// Keys grow with the value (argmax) or against it (argmin). What a key starts from, at index 0, is the infinity that no
// element is beyond, so that NaN is never chosen, and 0 where there is nothing else.
ACC identity() { return uvec3(0u); }
ACC combine(const ACC a, const ACC b)
{
    bool wide = FROM == U64 || FROM == I64;
    bool tie = a.x == b.x && (!wide || a.y == b.y);
    bool better = b.x > a.x || (wide && a.x == b.x && b.y > a.y) || (tie && b.z < a.z);
    return better ? b : a;
}
ACC combine_behind(const ACC a, const ACC b)           // where b is behind a
{
    bool wide = FROM == U64 || FROM == I64, better = b.x > a.x || (wide && a.x == b.x && b.y > a.y);
    return better ? b : a;
}
ACC value(const uvec2 raw, const uint at)
{
    if (FROM == C64) return uvec3(raw.x, 0u, raw.y);
    uint flip = OP == ARGMIN ? ~0u : 0u;
    if (eight()) return uvec3((FROM == I64 ? raw.y ^ 0x80000000u : raw.y) ^ flip, raw.x ^ flip, at);
    if (!is_float(FROM)) return uvec3((is_signed(FROM) ? sign_extend(raw.x, FROM) ^ 0x80000000u : raw.x) ^ flip, 0u, at);
    const uint INF = FROM == F16 ? 0x7c000000u : 0x7f800000u;      // one zero, denormals as they are; what is above is NaN
    uint u = FROM == F32 ? raw.x : raw.x << 16, turn = uint(int(u) >> 31) ^ flip;
    uint key = ((u & 0x7fffffffu) ^ turn) - turn + INF;
    return uvec3(key > 2u * INF ? 0u : key, 0u, at);
}
uvec2 finish(const ACC a) { return TO == C64 ? a.xz : uvec2(a.z, 0u); }
ACC scaled(const ACC a, const float scale) { return a; }
#else
bool floats() { return is_float(FROM) || OP == MEAN; }
// The largest and smallest of floats by signed integers in their order, which is one instruction each: NaN, of either sign, is
// beyond all others.
bool ordered() { return floats() && (OP == MAX || OP == MIN); }
uint key_of(const uint u)
{
    uint sign = u >> 31, key = u ^ (0u - sign) >> 1;
    if ((u & 0x7fffffffu) <= 0x7f800000u) return key;
    return OP == MAX ? 0x7ffffffeu | sign : 0x80000001u ^ sign;
}
uint of_key(const uint key)
{
    uint last = OP == MAX ? key : ~key;                // NaN's is 0x7ffffffe or 0x7fffffff so
    return last - 0x7ffffffeu < 2u ? 0x7fc00000u | last << 31 : key ^ (0u - (key >> 31)) >> 1;
}
ACC of_float(const uint bits) { return ordered() ? key_of(bits) : bits; }
ACC identity()
{
    if (OP == ALL) return 1u;
    if (OP == PROD) return floats() ? 0x3f800000u : 1u;
    uint bits = is_small(FROM) ? 8u : is_half(FROM) ? 16u : 32u, top = FROM == BOOL ? 1u : ~0u >> (32u - bits);
    if (OP == MAX) return floats() ? 0x807fffffu : is_signed(FROM) ? ~(top >> 1) : 0u;
    if (OP == MIN) return floats() ? 0x7f800000u : is_signed(FROM) ? top >> 1 : top;
    return 0u;
}
ACC combine(const ACC a, const ACC b)
{
    if (OP == ALL) return a & b;
    if (OP == ANY) return a | b;
    if (floats()) {
        float x = uintBitsToFloat(a), y = uintBitsToFloat(b);
        if (OP == PROD) return floatBitsToUint(x * y);
        if (OP == MAX) return uint(max(int(a), int(b)));
        if (OP == MIN) return uint(min(int(a), int(b)));
        return floatBitsToUint(x + y);
    }
    if (OP == PROD) return a * b;
    if (OP == MAX) return is_signed(FROM) ? uint(max(int(a), int(b))) : max(a, b);
    if (OP == MIN) return is_signed(FROM) ? uint(min(int(a), int(b))) : min(a, b);
    return a + b;
}
ACC value(const uvec2 raw, const uint at)
{
    if (OP == ALL || OP == ANY) {
        uint bits = raw.x | raw.y;
        return (FROM == F32 ? bits & 0x7fffffffu : FROM == F16 || FROM == BF16 ? bits & 0x7fffu : bits) != 0u ? 1u : 0u;
    }
    if (!floats()) return sign_extend(raw.x, FROM);
    uint u = floatBitsToUint(as_float(raw.x, FROM));
#ifdef HALF_ID                                         // the largest and smallest keep NaN's sign, which the device may not
    if (HALF != 0u && FROM == F16 && ordered()) u = (u & 0x7fffffffu) | (raw.x & 0x8000u) << 16;
#endif
    return of_float(u);
}
uvec2 finish(const ACC a)
{
    if (OP == ALL || OP == ANY || !floats()) return uvec2(a, 0u);
    return uvec2(float_to_bits(uintBitsToFloat(ordered() ? of_key(a) : a), TO), 0u);
}
ACC scaled(const ACC a, const float scale) { return floatBitsToUint(uintBitsToFloat(a) * scale); }
#endif

// ---- elements, one and four at a time, as raw bits ----

struct Four { uvec4 low, high; };
Four load_four(const uint i)
{
    if (eight()) return Four(src128[2u * i], src128[2u * i + 1u]);
    return Four(load4_src(i, FROM), uvec4(0u));
}
uvec2 load_one(const uint i) { return eight() ? src64[i] : uvec2(load_src(i, FROM), 0u); }
uvec2 of_four(const Four v, const uint k)                          // k must be known when the kernel is compiled
{
    if (!eight()) return uvec2(v.low[k], 0u);
    return k == 0u ? v.low.xy : k == 1u ? v.low.zw : k == 2u ? v.high.xy : v.high.zw;
}
bool eight_out() { return TO == U64 || TO == I64 || TO == C64; }
void store_one(const uint i, const ACC a)
{
    uvec2 v = finish(a);
    if (eight_out()) dst64[i] = v;
    else store_dst(i, TO, v.x);
}
#endif
