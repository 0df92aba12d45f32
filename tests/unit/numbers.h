/* Half types, and elements of any dtype as numbers. For the tests; nothing here depends on the library's code. */
#ifndef TESTS_UNIT_NUMBERS_H
#define TESTS_UNIT_NUMBERS_H

#include <math.h>
#include <stdint.h>
#include <string.h>
#include "mlxvk.h"

static inline uint32_t bits_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float bf16_to_float(uint16_t b) { return float_of_bits((uint32_t)b << 16); }

/* To nearest, ties to even; a NaN stays one. */
static inline uint16_t float_to_bf16(float value)
{
    uint32_t bits = bits_of_float(value);
    if (isnan(value)) return (uint16_t)((bits >> 16) | 0x40);
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

static inline float half_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 0x3ff;
    if (exponent == 31) return float_of_bits(sign | 0x7f800000 | mantissa << 13);
    if (exponent) return float_of_bits(sign | (exponent + 112) << 23 | mantissa << 13);
    float tiny = ldexpf((float)mantissa, -24);
    return sign ? -tiny : tiny;
}

static inline uint16_t float_to_half(float value)
{
    uint16_t sign = (uint16_t)(bits_of_float(value) >> 16 & 0x8000);
    if (isnan(value)) return sign | 0x7e00;
    float size = fabsf(value);
    if (size >= 65520.0f) return sign | 0x7c00;               /* half the step beyond the largest: infinity */
    if (size < 0x1p-14f) return sign | (uint16_t)nearbyintf(ldexpf(size, 24));
    uint32_t bits = bits_of_float(size) - (112u << 23);
    return sign | (uint16_t)((bits + 0xfff + ((bits >> 13) & 1)) >> 13);
}

static inline bool dtype_is_float(mlxvk_dtype dtype)
{
    return dtype == MLXVK_FLOAT16 || dtype == MLXVK_FLOAT32 || dtype == MLXVK_BFLOAT16;
}

static inline bool dtype_is_inexact(mlxvk_dtype dtype) { return dtype_is_float(dtype) || dtype == MLXVK_COMPLEX64; }

/* Bytes of an element, not asked of the library. */
static inline size_t bytes_of(mlxvk_dtype dtype)
{
    static const uint8_t sizes[MLXVK_DTYPE_COUNT] = { 1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 2, 8 };
    return sizes[dtype];
}

/* An element: integers in i or u (bool and unsigned in u), floats exactly in re, complex numbers in re and im. */
struct number {
    double re, im;
    int64_t i;
    uint64_t u;
};

static inline bool dtype_is_signed(mlxvk_dtype dtype) { return dtype >= MLXVK_INT8 && dtype <= MLXVK_INT64; }

/* Reads element `index` of packed data, which need not be aligned. */
static inline struct number load_number(mlxvk_dtype dtype, const void *data, size_t index)
{
    struct number n = { 0 };
    size_t size = bytes_of(dtype);
    const unsigned char *p = (const unsigned char *)data + index * size;
    uint64_t bits = 0;
    memcpy(&bits, p, size);                                    /* the hosts that these tests run on are little-endian */
    switch (dtype) {
    case MLXVK_FLOAT16:  n.re = half_to_float((uint16_t)bits); break;
    case MLXVK_BFLOAT16: n.re = bf16_to_float((uint16_t)bits); break;
    case MLXVK_FLOAT32:  n.re = float_of_bits((uint32_t)bits); break;
    case MLXVK_FLOAT64:  memcpy(&n.re, p, 8); break;
    case MLXVK_COMPLEX64:
        n.re = float_of_bits((uint32_t)bits);
        n.im = float_of_bits((uint32_t)(bits >> 32));
        break;
    default:
        n.u = bits;
        n.i = (int64_t)(bits << (64 - 8 * size)) >> (64 - 8 * size);
        n.re = dtype_is_signed(dtype) ? (double)n.i : (double)n.u;
    }
    return n;
}

/* The value nearest to a double, in any dtype; integers wrap as C's conversions of the same width do. */
static inline void store_number(mlxvk_dtype dtype, void *data, size_t index, double value)
{
    unsigned char *p = (unsigned char *)data + index * bytes_of(dtype);
    float single = (float)value;
    uint16_t half = dtype == MLXVK_BFLOAT16 ? float_to_bf16(single) : float_to_half(single);
    int64_t whole = dtype_is_inexact(dtype) ? 0 : (int64_t)value;
    uint8_t truth = value != 0;
    const float complex_value[2] = { single, 0 };
    switch (dtype) {
    case MLXVK_BOOL:      memcpy(p, &truth, 1); break;
    case MLXVK_FLOAT16:
    case MLXVK_BFLOAT16:  memcpy(p, &half, 2); break;
    case MLXVK_FLOAT32:   memcpy(p, &single, 4); break;
    case MLXVK_FLOAT64:   memcpy(p, &value, 8); break;
    case MLXVK_COMPLEX64: memcpy(p, complex_value, 8); break;
    default:              memcpy(p, &whole, bytes_of(dtype));
    }
}

#endif
