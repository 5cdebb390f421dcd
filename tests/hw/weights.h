// Weights of any type for the tests of products.
#ifndef HW_WEIGHTS_H
#define HW_WEIGHTS_H

#include "test.h"

#include <math.h>

static const enum gcuda_type types[] = { GCUDA_TYPE_F16, GCUDA_TYPE_BF16, GCUDA_TYPE_F32, GCUDA_TYPE_Q4_0,
    GCUDA_TYPE_Q4_1, GCUDA_TYPE_Q5_0, GCUDA_TYPE_Q5_1, GCUDA_TYPE_Q8_0, GCUDA_TYPE_Q2_K, GCUDA_TYPE_Q3_K,
    GCUDA_TYPE_Q4_K, GCUDA_TYPE_Q5_K, GCUDA_TYPE_Q6_K, GCUDA_TYPE_IQ4_NL, GCUDA_TYPE_IQ4_XS, GCUDA_TYPE_MXFP4,
    GCUDA_TYPE_IQ1_S, GCUDA_TYPE_IQ1_M, GCUDA_TYPE_IQ2_XXS, GCUDA_TYPE_IQ2_XS, GCUDA_TYPE_IQ2_S, GCUDA_TYPE_IQ3_XXS,
    GCUDA_TYPE_IQ3_S };
enum { N_TYPES = sizeof types / sizeof types[0] };
// Those that GCUDA_MUL_MAT_INT8 takes as experts.
TEST_UNUSED static const enum gcuda_type types_by_bytes[] = { GCUDA_TYPE_Q8_0, GCUDA_TYPE_Q4_0, GCUDA_TYPE_Q4_K,
    GCUDA_TYPE_IQ4_NL, GCUDA_TYPE_Q6_K, GCUDA_TYPE_Q5_K, GCUDA_TYPE_IQ4_XS, GCUDA_TYPE_IQ2_XS, GCUDA_TYPE_MXFP4 };
enum { N_TYPES_BY_BYTES = sizeof types_by_bytes / sizeof types_by_bytes[0] };

// n elements at p as floats.
static void weights_to_float(enum gcuda_type type, const char * p, float * out, int64_t n) {
    if (type == GCUDA_TYPE_F32) {
        memcpy(out, p, (size_t) n * sizeof(float));
    } else {
        gcuda_get_type_traits(type)->to_float(p, out, n);
    }
}

// Random bytes that decode to something ordinary.
static void fill_block(enum gcuda_type type, char * p, struct rng * r) {
    const int64_t n = gcuda_blck_size(type);
    for (bool is_good = false; !is_good;) {
        float v[256], big = 0.0f;
        for (size_t i = 0; i < gcuda_type_size(type); ++i) { p[i] = (char) rng_u64(r); }
        weights_to_float(type, p, v, n);
        is_good = true;
        for (int64_t i = 0; i < n; ++i) {
            is_good = is_good && isfinite(v[i]);
            big = fmaxf(big, fabsf(v[i]));
        }
        is_good = is_good && big >= 0.1f && big <= 8.0f;
    }
}

// Rows of a few different blocks; a's sizes and strides count, and all bits are set between rows.
static char * weights_of(enum gcuda_type type, const struct gcuda_array * a, struct rng * r) {
    enum { N = 64 };
    const size_t size = gcuda_type_size(type);
    char pool[N][320], *data = (char *) malloc((size_t) a->ne[1] * a->nb[1]);
    for (int i = 0; i < N; ++i) { fill_block(type, pool[i], r); }
    for (int64_t m = 0; m < a->ne[1]; ++m) {
        memset(data + (size_t) m * a->nb[1], 0xff, a->nb[1]);
        for (int64_t i = 0; i < a->ne[0] / gcuda_blck_size(type); ++i) {
            memcpy(data + (size_t) m * a->nb[1] + (size_t) i * size, pool[rng_below(r, N)], size);
        }
    }
    return data;
}

#endif
