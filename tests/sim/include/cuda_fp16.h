// cuda_fp16.h - half precision on the simulated device: conversions to the nearest, ties to even; arithmetic in float,
// rounded once to float and once to half.
#ifndef GCUDA_SIM_CUDA_FP16_H
#define GCUDA_SIM_CUDA_FP16_H

#include <math.h>
#include <stdint.h>
#include <string.h>

struct __half {
    uint16_t bits;
};
struct alignas(4) __half2 {
    __half x, y;
};
typedef __half half;
typedef __half2 half2;

static inline float __half2float(__half h) {
    const int exponent = h.bits >> 10 & 31, mantissa = h.bits & 1023;
    float v = exponent == 31  ? (mantissa != 0 ? NAN : INFINITY)
              : exponent == 0 ? ldexpf((float) mantissa, -24)
                              : ldexpf((float) (mantissa + 1024), exponent - 25);
    return copysignf(v, (h.bits & 0x8000u) != 0 ? -1.0f : 1.0f);
}

static inline __half __float2half_rn(float v) {
    uint32_t f;
    memcpy(&f, &v, sizeof(f));
    const uint32_t sign = f >> 16 & 0x8000u, magnitude = f & 0x7fffffffu;
    __half h;
    if (magnitude > 0x7f800000u) {
        h.bits = 0x7fff;                   // as the device writes NaN
    } else if (magnitude >= 0x477ff000u) { // 65520 and more
        h.bits = (uint16_t) (sign | 0x7c00u);
    } else if (magnitude < 0x38800000u) { // below 2^-14: counted in steps of 2^-24
        h.bits = (uint16_t) (sign | (uint32_t) nearbyintf(ldexpf(fabsf(v), 24)));
    } else {
        const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
        h.bits = (uint16_t) (sign | ((rounded - 0x38000000u) >> 13));
    }
    return h;
}

static inline __half __float2half(float v) { return __float2half_rn(v); }
static inline __half __int2half_rn(int v) { return __float2half_rn((float) v); }
static inline __half __ushort_as_half(unsigned short v) { return __half{ v }; }
static inline unsigned short __half_as_ushort(__half v) { return v.bits; }
static inline __half __hadd(__half a, __half b) { return __float2half_rn(__half2float(a) + __half2float(b)); }
static inline __half __hsub(__half a, __half b) { return __float2half_rn(__half2float(a) - __half2float(b)); }
static inline __half __hmul(__half a, __half b) { return __float2half_rn(__half2float(a) * __half2float(b)); }
static inline __half __hfma(__half a, __half b, __half c) {
    return __float2half_rn(fmaf(__half2float(a), __half2float(b), __half2float(c)));
}
static inline __half __hmax(__half a, __half b) { return __float2half_rn(fmaxf(__half2float(a), __half2float(b))); }
static inline __half __hmin(__half a, __half b) { return __float2half_rn(fminf(__half2float(a), __half2float(b))); }
static inline __half __hneg(__half a) { return __half{ (uint16_t) (a.bits ^ 0x8000u) }; }

static inline __half2 __halves2half2(__half x, __half y) { return __half2{ x, y }; }
static inline __half2 __half2half2(__half v) { return __half2{ v, v }; }
static inline __half2 __float2half2_rn(float v) { return __half2half2(__float2half_rn(v)); }
static inline __half2 __floats2half2_rn(float x, float y) { return __half2{ __float2half_rn(x), __float2half_rn(y) }; }
static inline __half __low2half(__half2 v) { return v.x; }
static inline __half __high2half(__half2 v) { return v.y; }
static inline float __low2float(__half2 v) { return __half2float(v.x); }
static inline float __high2float(__half2 v) { return __half2float(v.y); }
static inline __half2 __hadd2(__half2 a, __half2 b) { return __half2{ __hadd(a.x, b.x), __hadd(a.y, b.y) }; }
static inline __half2 __hmul2(__half2 a, __half2 b) { return __half2{ __hmul(a.x, b.x), __hmul(a.y, b.y) }; }
static inline __half2 __hsub2(__half2 a, __half2 b) { return __half2{ __hsub(a.x, b.x), __hsub(a.y, b.y) }; }
static inline __half2 __hmax2(__half2 a, __half2 b) { return __half2{ __hmax(a.x, b.x), __hmax(a.y, b.y) }; }
static inline __half2 __hmin2(__half2 a, __half2 b) { return __half2{ __hmin(a.x, b.x), __hmin(a.y, b.y) }; }
static inline bool __hisnan(__half a) { return (a.bits & 0x7fffu) > 0x7c00u; }
static inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
    return __half2{ __hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y) };
}

#endif // GCUDA_SIM_CUDA_FP16_H
