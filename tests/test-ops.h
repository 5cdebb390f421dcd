// test-ops.h: tests of one operation against a float64 reference
//
//   static void ref_scale(const struct op_case * c) {               // from the formula alone, none of the library's
// code
//       const struct arr * a = c->in[0];
//       arr_new(c->out, a->ne[0], a->ne[1], a->ne[2], a->ne[3]);    // the shape is part of what is tested
//       for (int64_t i = 0; i < arr_n(a); ++i) { c->out->d[i] = 2.0 * a->d[i]; }
//   }
//   static struct gcuda_tensor * build_scale(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
//       (void) p;
//       return gcuda_scale(ctx, in[0], 2.0f);
//   }
//   TEST(scale) {
//       const struct op_test t = { .types = "F32 F16", .shapes = "1 257,3 5,4,3,2", .n_in = 1, .build = build_scale,
//                                  .ref = ref_scale, .max_nmse = 1e-7, .in = { { .layouts = LAYOUT_ROWS } } };
//       op_test_run(&t);
//   }
//
// types    one entry per combination, separated by blanks; within it the type of each input, the last one repeating,
// and
//          after '>' the type of the result (without it: that of input 0): "F32 F16,F32 F16,F32>F32 Q4_0,F32>F32"
// shapes   the same with '|' between inputs: "10,5,4,3 10,5,4,3|10,1,4,1" Every combination runs packed, then in each
// layout that the inputs allow; in place and on a source's memory if the operation can. One case is named
// test/types/ne=shapes/tag/layout and can be run alone:
//   build/test-ops --filter 'scale/F16/ne=257,3/view' --seed 7
// Each case: 1024 floats of guard around every tensor and 0xFF in every gap stay unchanged. Results are prefilled with
// NaN and have the same bits with 1 and 3 threads. supports_op says yes. Inputs are unchanged unless the reference says
// so.
#ifndef GCUDA_TEST_OPS_H
#define GCUDA_TEST_OPS_H

#include "test.h"

#include <float.h>
#include <inttypes.h>

#define OP_MAX_IN 10

// =====================================================================================================================
// >>arr   dense float64 arrays
// =====================================================================================================================
struct arr {
    int64_t ne[4];
    double * d; // ne[0] fastest
};

#define AT(a, i0, i1, i2, i3) ((a)->d[(i0) + (a)->ne[0] * ((i1) + (a)->ne[1] * ((i2) + (a)->ne[2] * (int64_t) (i3)))])

// for (i3..) for (i2..) for (i1..) for (i0..) over the elements of a, as `FOR_ARR(a) { AT(a, i0, i1, i2, i3) = 0; }`
#define FOR_ROWS(a)                                 \
    for (int64_t i3 = 0; i3 < (a)->ne[3]; ++i3)     \
        for (int64_t i2 = 0; i2 < (a)->ne[2]; ++i2) \
            for (int64_t i1 = 0; i1 < (a)->ne[1]; ++i1)
#define FOR_ARR(a) FOR_ROWS(a) for (int64_t i0 = 0; i0 < (a)->ne[0]; ++i0)

TEST_UNUSED static int64_t arr_n(const struct arr * a) { return a->ne[0] * a->ne[1] * a->ne[2] * a->ne[3]; }

static void arr_new(struct arr * a, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3) { // zeroed
    free(a->d);
    a->ne[0] = ne0, a->ne[1] = ne1, a->ne[2] = ne2, a->ne[3] = ne3;
    a->d = (double *) calloc((size_t) arr_n(a) + 1, sizeof(double));
    if (a->d == NULL) { perror("calloc"), exit(3); }
}

TEST_UNUSED static void arr_like(struct arr * a, const struct arr * shape) {
    arr_new(a, shape->ne[0], shape->ne[1], shape->ne[2], shape->ne[3]);
}

TEST_UNUSED static void arr_copy(struct arr * a, const struct arr * from) {
    arr_like(a, from);
    memcpy(a->d, from->d, (size_t) arr_n(a) * sizeof(double));
}

static void arr_free(struct arr * a) {
    free(a->d);
    memset(a, 0, sizeof *a);
}

// A result that the specification leaves open: anything but an access fault is right.
#define REF_ANY (-0x1.8p1000)

// =====================================================================================================================
// >>types   sizes and conversions written for the tests: float64 to the nearest value of a type and back
// =====================================================================================================================
struct op_type {
    const char * name;
    enum gcuda_type type;
    int64_t blck;
    size_t size;
};
static const struct op_type op_types[] = {
    { "F32", GCUDA_TYPE_F32, 1, 4 },
    { "F16", GCUDA_TYPE_F16, 1, 2 },
    { "BF16", GCUDA_TYPE_BF16, 1, 2 },
    { "F64", GCUDA_TYPE_F64, 1, 8 },
    { "I8", GCUDA_TYPE_I8, 1, 1 },
    { "I16", GCUDA_TYPE_I16, 1, 2 },
    { "I32", GCUDA_TYPE_I32, 1, 4 },
    { "I64", GCUDA_TYPE_I64, 1, 8 },
    { "Q4_0", GCUDA_TYPE_Q4_0, 32, 18 },
    { "Q4_1", GCUDA_TYPE_Q4_1, 32, 20 },
    { "Q5_0", GCUDA_TYPE_Q5_0, 32, 22 },
    { "Q5_1", GCUDA_TYPE_Q5_1, 32, 24 },
    { "Q8_0", GCUDA_TYPE_Q8_0, 32, 34 },
    { "Q8_1", GCUDA_TYPE_Q8_1, 32, 36 },
    { "IQ4_NL", GCUDA_TYPE_IQ4_NL, 32, 18 },
    { "MXFP4", GCUDA_TYPE_MXFP4, 32, 17 },
    { "Q2_K", GCUDA_TYPE_Q2_K, 256, 84 },
    { "Q3_K", GCUDA_TYPE_Q3_K, 256, 110 },
    { "Q4_K", GCUDA_TYPE_Q4_K, 256, 144 },
    { "Q5_K", GCUDA_TYPE_Q5_K, 256, 176 },
    { "Q6_K", GCUDA_TYPE_Q6_K, 256, 210 },
    { "Q8_K", GCUDA_TYPE_Q8_K, 256, 292 },
    { "IQ2_XXS", GCUDA_TYPE_IQ2_XXS, 256, 66 },
    { "IQ2_XS", GCUDA_TYPE_IQ2_XS, 256, 74 },
    { "IQ3_XXS", GCUDA_TYPE_IQ3_XXS, 256, 98 },
    { "IQ1_S", GCUDA_TYPE_IQ1_S, 256, 50 },
    { "IQ3_S", GCUDA_TYPE_IQ3_S, 256, 110 },
    { "IQ2_S", GCUDA_TYPE_IQ2_S, 256, 82 },
    { "IQ4_XS", GCUDA_TYPE_IQ4_XS, 256, 136 },
    { "IQ1_M", GCUDA_TYPE_IQ1_M, 256, 56 },
};
#define OP_N_TYPES (sizeof op_types / sizeof op_types[0])

// The weight types, for `.types = "F32 " WEIGHT_TYPES`; write ",F32" forms with op_types_with
#define WEIGHT_TYPES_OF_32 "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 IQ4_NL MXFP4" // elements in a block
#define WEIGHT_TYPES_OF_256 "Q2_K Q3_K Q4_K Q5_K Q6_K IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ4_XS"
#define WEIGHT_TYPES WEIGHT_TYPES_OF_32 " " WEIGHT_TYPES_OF_256

static const struct op_type * op_type_find(enum gcuda_type type) { // NULL: no type
    for (size_t i = 0; i < OP_N_TYPES; ++i) {
        if (op_types[i].type == type) { return &op_types[i]; }
    }
    return NULL;
}
static const struct op_type * op_type_of(enum gcuda_type type) {
    const struct op_type * t = op_type_find(type);
    if (t == NULL) {
        fprintf(
            stderr, "op_types in tests/test-ops.h has no row for type %d (%s)\n", (int) type, gcuda_type_name(type));
        exit(1);
    }
    return t;
}

// "Q4_0 Q8_0" with ",F32>F32" becomes "Q4_0,F32>F32 Q8_0,F32>F32". The text stays valid until the next call.
TEST_UNUSED static const char * op_types_with(const char * types, const char * suffix) {
    static char text[2048];
    char * out = text;
    for (const char * p = types; *p;) {
        const size_t n = strcspn(p, " ");
        out +=
            snprintf(out, sizeof text - (size_t) (out - text), "%s%.*s%s", out == text ? "" : " ", (int) n, p, suffix);
        p += n + strspn(p + n, " ");
    }
    return text;
}

// x rounded to nearest even with `digits` binary digits, the smallest normal exponent, and the largest finite value.
static double round_binary(double x, int digits, int min_exp, double max) {
    if (!isfinite(x) || x == 0.0) { return x; }
    int e;
    (void) frexp(x, &e); // |x| = f * 2^e, f in [0.5, 1)
    if (e < min_exp) { e = min_exp; }
    const double y = ldexp(rint(ldexp(x, digits - e)), e - digits);
    return fabs(y) > max ? copysign(HUGE_VAL, x) : y;
}

static double round_f16(double x) { return round_binary(x, 11, -13, 65504.0); }
static double round_bf16(double x) { return round_binary(x, 8, -125, 0x1.FEp127); }

static uint16_t bits_f16(double x) { // of a value that is one of F16
    const uint16_t sign = signbit(x) ? 0x8000 : 0;
    if (isnan(x)) { return 0x7E00; }
    if (isinf(x)) { return (uint16_t) (sign | 0x7C00); }
    if (x == 0.0) { return sign; }
    int e;
    const double f = frexp(fabs(x), &e);
    if (e < -13) { return (uint16_t) (sign | (uint16_t) ldexp(fabs(x), 24)); }
    return (uint16_t) (sign | ((e + 14) << 10) | ((int) ldexp(f, 11) & 0x3FF));
}

static double value_f16(uint16_t h) {
    const int e = (h >> 10) & 31, m = h & 0x3FF;
    const double s = h & 0x8000 ? -1.0 : 1.0;
    if (e == 31) { return m ? (double) NAN : s * HUGE_VAL; }
    return s * (e == 0 ? ldexp(m, -24) : ldexp(m + 1024, e - 25));
}

static double value_f32_bits(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return (double) f;
}

static uint32_t bits_f32(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

// One element of a plain type at p.
static double value_read(enum gcuda_type type, const void * p) {
    uint16_t h;
    float f;
    double d;
    int8_t i8;
    int16_t i16;
    int32_t i32;
    int64_t i64;
    switch (type) {
        case GCUDA_TYPE_F32: memcpy(&f, p, 4); return (double) f;
        case GCUDA_TYPE_F16: memcpy(&h, p, 2); return value_f16(h);
        case GCUDA_TYPE_BF16: memcpy(&h, p, 2); return value_f32_bits((uint32_t) h << 16);
        case GCUDA_TYPE_F64: memcpy(&d, p, 8); return d;
        case GCUDA_TYPE_I8: memcpy(&i8, p, 1); return i8;
        case GCUDA_TYPE_I16: memcpy(&i16, p, 2); return i16;
        case GCUDA_TYPE_I32: memcpy(&i32, p, 4); return i32;
        default: memcpy(&i64, p, 8); return (double) i64;
    }
}

static void value_write(enum gcuda_type type, void * p, double x) { // rounded to nearest even; integers: truncated
    const uint16_t h = bits_f16(round_f16(x)), b = (uint16_t) (bits_f32((float) round_bf16(x)) >> 16);
    const float f = (float) x;
    const bool is_int =
        type == GCUDA_TYPE_I8 || type == GCUDA_TYPE_I16 || type == GCUDA_TYPE_I32 || type == GCUDA_TYPE_I64;
    const int64_t i64 = is_int && fabs(x) < 9e18 ? (int64_t) x : 0;
    const int32_t i32 = (int32_t) i64;
    const int16_t i16 = (int16_t) i64;
    const int8_t i8 = (int8_t) i64;
    switch (type) {
        case GCUDA_TYPE_F32: memcpy(p, &f, 4); break;
        case GCUDA_TYPE_F16: memcpy(p, &h, 2); break;
        case GCUDA_TYPE_BF16: memcpy(p, &b, 2); break;
        case GCUDA_TYPE_F64: memcpy(p, &x, 8); break;
        case GCUDA_TYPE_I8: memcpy(p, &i8, 1); break;
        case GCUDA_TYPE_I16: memcpy(p, &i16, 2); break;
        case GCUDA_TYPE_I32: memcpy(p, &i32, 4); break;
        default: memcpy(p, &i64, 8); break;
    }
}

// =====================================================================================================================
// >>quantizers   the 32-element formats, in F32 from their formulas; others through the library's own
// functions
// =====================================================================================================================
static float q_f16(float x) { return (float) round_f16((double) x); }

static int q_min(float x, int top) { return (int) x < top ? (int) x : top; }

// absmax keeps its sign, first on ties
static void q_extremes(const float * x, float * absmax, float * lo, float * hi) {
    *absmax = 0.0f, *lo = x[0], *hi = x[0];
    for (int j = 0; j < 32; ++j) {
        if (fabsf(x[j]) > fabsf(*absmax)) { *absmax = x[j]; }
        if (x[j] < *lo) { *lo = x[j]; }
        if (x[j] > *hi) { *hi = x[j]; }
    }
}

static void q_iq4_nl(const float * x, float absmax, double * y) {
    static const int table[16] = { -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113 };
    const float d0 = absmax / -127.0f, id = fabsf(absmax) < 1e-15f ? 0.0f : 1.0f / d0;
    float num = 0.0f, den = 0.0f;
    int q[32];
    for (int j = 0; j < 32; ++j) {
        const float t = x[j] * id;
        q[j] = 0;
        for (int k = 1; k < 16; ++k) {
            if (fabsf(t - (float) table[k]) <= fabsf(t - (float) table[q[j]])) { q[j] = k; }
        }
        num += x[j] * x[j] * (float) table[q[j]] * x[j];
        den += x[j] * x[j] * (float) table[q[j]] * (float) table[q[j]];
    }
    const float d = id != 0.0f && den > 0.0f ? q_f16(num / den) : 0.0f;
    for (int j = 0; j < 32; ++j) { y[j] = (double) (d * (float) table[q[j]]); }
}

// 32 values through a format and back; false: a format that this file does not know.
static bool q_block(enum gcuda_type type, const float * x, double * y) {
    float absmax, lo, hi;
    q_extremes(x, &absmax, &lo, &hi);
    if (type == GCUDA_TYPE_IQ4_NL) {
        q_iq4_nl(x, absmax, y);
        return true;
    }
    if (type == GCUDA_TYPE_Q8_0) {
        const float d = fabsf(absmax) / 127.0f, id = d != 0.0f ? 1.0f / d : 0.0f;
        for (int j = 0; j < 32; ++j) { y[j] = (double) (roundf(x[j] * id) * q_f16(d)); }
        return true;
    }
    const int top = type == GCUDA_TYPE_Q4_0 || type == GCUDA_TYPE_Q4_1 ? 15 : 31;
    if (type == GCUDA_TYPE_Q4_0 || type == GCUDA_TYPE_Q5_0) {
        const int half = (top + 1) / 2;
        const float d = absmax / (float) -half, id = d != 0.0f ? 1.0f / d : 0.0f;
        for (int j = 0; j < 32; ++j) {
            y[j] = (double) ((float) (q_min(x[j] * id + (float) half + 0.5f, top) - half) * q_f16(d));
        }
        return true;
    }
    if (type == GCUDA_TYPE_Q4_1 || type == GCUDA_TYPE_Q5_1) {
        const float d = (hi - lo) / (float) top, id = d != 0.0f ? 1.0f / d : 0.0f;
        for (int j = 0; j < 32; ++j) {
            y[j] = (double) ((float) q_min((x[j] - lo) * id + 0.5f, top) * q_f16(d) + q_f16(lo));
        }
        return true;
    }
    return false;
}

static void decode_blocks(enum gcuda_type type, const void * p, int64_t n, double * out) { // n elements, whole blocks
    float tmp[256];
    const struct op_type * t = op_type_of(type);
    for (int64_t i = 0; i < n; i += t->blck) {
        gcuda_get_type_traits(type)->to_float((const char *) p + (size_t) (i / t->blck) * t->size, tmp, t->blck);
        for (int64_t j = 0; j < t->blck; ++j) { out[i + j] = (double) tmp[j]; }
    }
}

// Rounds x to values of `type`. Quantized: whole blocks along dimension 0.
static void arr_round(struct arr * a, enum gcuda_type type) {
    const struct op_type * t = op_type_of(type);
    const int64_t n = arr_n(a);
    if (t->blck == 1) {
        for (int64_t i = 0; i < n; ++i) {
            char raw[8];
            if (a->d[i] == REF_ANY) { continue; }
            value_write(type, raw, a->d[i]);
            a->d[i] = value_read(type, raw);
        }
        return;
    }
    for (int64_t i = 0; i + t->blck <= n; i += t->blck) {
        float x[256];
        char raw[512];
        for (int64_t j = 0; j < t->blck; ++j) { x[j] = (float) a->d[i + j]; }
        if (q_block(type, x, &a->d[i])) { continue; }
        gcuda_get_type_traits(type)->from_float_ref(x, raw, t->blck);
        decode_blocks(type, raw, t->blck, &a->d[i]);
    }
}

// A random valid block with values of about 1: random bytes, drawn again until they decode to something ordinary. That
// needs no knowledge of any layout. A few dozen good ones per type are kept, and a tensor is made of these.
static const char * random_block(enum gcuda_type type, struct rng * r) {
    enum { N = 48 };
    static char * pool[GCUDA_TYPE_COUNT];
    const struct op_type * t = op_type_of(type);
    if (pool[type] == NULL) {
        struct rng own = rng_for(t->name);
        pool[type] = (char *) calloc(N, t->size); // lives as long as the program
        for (int k = 0; k < N;) {
            char * p = pool[type] + (size_t) k * t->size;
            double v[256], big = 0.0;
            bool good = true;
            for (size_t i = 0; i < t->size; ++i) { p[i] = (char) rng_u64(&own); }
            decode_blocks(type, p, t->blck, v);
            for (int64_t j = 0; j < t->blck; ++j) {
                good = good && isfinite(v[j]);
                big = fmax(big, fabs(v[j]));
            }
            if (good && big >= 0.25 && big <= 4.0) { ++k; }
        }
    }
    return pool[type] + (size_t) rng_below(r, N) * t->size;
}

// =====================================================================================================================
// >>cases   what a reference and a builder get to see
// =====================================================================================================================
struct op_case {
    const struct arr * in[OP_MAX_IN];
    struct arr * out;              // the reference calls arr_new on it
    struct arr * after[OP_MAX_IN]; // and on after[k] when the operation also changes input k
    const void * p;                // the test's own parameters
    int n_in;
    enum gcuda_type types[OP_MAX_IN];
};

typedef void (*ref_fn)(const struct op_case * c);
typedef struct gcuda_tensor * (*build_fn)(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p);
// Fills input k, whose shape is set; inputs 0..k-1 are filled already. Indices are numbers like all others.
typedef void (*fill_fn)(struct rng * r, const struct op_case * c, int k, struct arr * a);

enum layout { PACKED, OFFSET, PADDED, GAPS, PERMUTED, TRANSPOSED, SHUFFLED, N_LAYOUTS, LONE = N_LAYOUTS };
static const char * const layout_names[] = { "packed", "offset", "padded", "view", "permuted", "transposed", "shuffled",
    "lone" };
#define LAYOUT_OFFSET (1u << OFFSET)         // contiguous, at an odd place of a larger tensor
#define LAYOUT_PADDED (1u << PADDED)         // gaps after the rows, all else dense: contiguous_1
#define LAYOUT_GAPS (1u << GAPS)             // a box cut out of a larger tensor: gaps in every dimension
#define LAYOUT_PERMUTED (1u << PERMUTED)     // dimensions 1 and 2 exchanged
#define LAYOUT_TRANSPOSED (1u << TRANSPOSED) // dimensions 0 and 1 exchanged; plain types only
#define LAYOUT_SHUFFLED (1u << SHUFFLED)     // every dimension somewhere else; plain types only
// LONE: packed, and so for every input; but where a dimension has one element, its stride is anything, as views leave
// it
#define LAYOUT_ROWS (LAYOUT_OFFSET | LAYOUT_PADDED | LAYOUT_GAPS | LAYOUT_PERMUTED) // packed rows, anything else
#define LAYOUT_ANY (LAYOUT_ROWS | LAYOUT_TRANSPOSED | LAYOUT_SHUFFLED)

struct op_in {
    double lo, hi;    // uniform numbers between them; both 0: [-1, 1]
    fill_fn fill;     // NULL: uniform; quantized types: random valid blocks unless lo and hi or fill say more
    unsigned layouts; // LAYOUT_ bits besides packed
    bool is_param;    // carries the flag of a trainable parameter
};

struct op_test {
    const char * name; // name of the cases; begins with that of the running test. NULL: equal to it
    const char *types, *shapes, *tag;
    int n_in;
    struct op_in in[OP_MAX_IN];
    build_fn build, inplace; // inplace may be NULL; its result must be input 0
    ref_fn ref;
    const void * p;
    double max_nmse;     // 0: exact
    unsigned reuse;      // bit k: the result may be placed on source k
    bool aliases;        // the result is a view of an input also in `build` (cpy, clamp, set_rows ...)
    bool expect_nan;     // NaN in the reference means NaN wanted
    bool keep_blocks;    // quantized result: the reference has decoded blocks, not numbers to quantize
    bool no_max_error;   // only the NMSE counts
    gcuda_status status; // what computing must return
    // types that source 0 of `build` must not have, such as "I32 Q4_0"; NULL as source 0 is tried too
    const char * refuses;
    // Instead of comparing with `ref`: says what is wrong in the result, or NULL
    const char * (*judge)(const struct op_case * c, const struct arr * got);
};

// The text of .tag, valid until the next call.
TEST_PRINTF(1, 2) TEST_UNUSED static const char * tagf(const char * fmt, ...) {
    static char text[128];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return text;
}

TEST_UNUSED static void fill_below(struct rng * r, struct arr * a, int64_t n) { // indices in [0, n)
    for (int64_t i = 0; i < arr_n(a); ++i) { a->d[i] = (double) rng_below(r, n); }
}

// rows of distinct indices below n
TEST_UNUSED static void fill_permutation(struct rng * r, struct arr * a, int64_t n) {
    int64_t * pick = (int64_t *) malloc((size_t) (n + 1) * sizeof *pick);
    for (int64_t row = 0; a->ne[0] > 0 && row < arr_n(a) / a->ne[0]; ++row) {
        for (int64_t i = 0; i < n; ++i) { pick[i] = i; }
        for (int64_t i = 0; i < a->ne[0] && i < n; ++i) {
            const int64_t j = i + rng_below(r, n - i), t = pick[i];
            pick[i] = pick[j], pick[j] = t;
            a->d[row * a->ne[0] + i] = (double) pick[i];
        }
    }
    free(pick);
}

// Rows of distinct values in random order (sorting, argmax).
TEST_UNUSED static void fill_distinct(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    (void) c, (void) k;
    fill_permutation(r, a, a->ne[0]);
    for (int64_t i = 0; i < arr_n(a); ++i) { a->d[i] = a->d[i] * 0.25 - 10.0; }
}

// =====================================================================================================================
// >>layouts   an input as a tensor inside memory that is larger than it
// =====================================================================================================================
static size_t row_bytes(enum gcuda_type type, int64_t n) {
    const struct op_type * t = op_type_of(type);
    return t->size * (size_t) (n / t->blck);
}

// Bytes from the first to the last element of a tensor.
static size_t tensor_bytes(const struct gcuda_tensor * t) {
    const struct op_type * type = op_type_of(t->type);
    size_t n = type->size;
    for (int i = 0; i < 4; ++i) {
        if (t->ne[i] <= 0) { return 0; }
        n += (size_t) ((i == 0 ? t->ne[0] / type->blck : t->ne[i]) - 1) * t->nb[i];
    }
    return n;
}

static struct gcuda_tensor * make_input(
    struct gcuda_context * ctx, enum gcuda_type type, const int64_t * ne, enum layout layout) {
    const int64_t b = op_type_of(type)->blck;
    const int64_t n = ne[0] * ne[1] * ne[2] * ne[3];
    if (n == 0) { return gcuda_new_tensor_4d(ctx, type, ne[0], ne[1], ne[2], ne[3]); }
    if (layout == OFFSET) {
        struct gcuda_tensor * base = gcuda_new_tensor_1d(ctx, type, n + 8 * b);
        const size_t r = row_bytes(type, ne[0]);
        return gcuda_view_4d(ctx, base, ne[0], ne[1], ne[2], ne[3], r, r * (size_t) ne[1], r * (size_t) (ne[1] * ne[2]),
            row_bytes(type, 3 * b));
    }
    if (layout == PADDED) {
        struct gcuda_tensor * base = gcuda_new_tensor_4d(ctx, type, ne[0] + 3 * b, ne[1], ne[2], ne[3]);
        if (base == NULL) { return NULL; }
        return gcuda_view_4d(
            ctx, base, ne[0], ne[1], ne[2], ne[3], base->nb[1], base->nb[2], base->nb[3], row_bytes(type, b));
    }
    if (layout == GAPS) {
        struct gcuda_tensor * base = gcuda_new_tensor_4d(ctx, type, ne[0] + 3 * b, ne[1] + 2, ne[2] + 1, ne[3] + 1);
        if (base == NULL) { return NULL; }
        return gcuda_view_4d(ctx, base, ne[0], ne[1], ne[2], ne[3], base->nb[1], base->nb[2], base->nb[3],
            base->nb[1] + row_bytes(type, b));
    }
    if (layout == PERMUTED) {
        return gcuda_permute(ctx, gcuda_new_tensor_4d(ctx, type, ne[0], ne[2], ne[1], ne[3]), 0, 2, 1, 3);
    }
    if (layout == TRANSPOSED) {
        return gcuda_transpose(ctx, gcuda_new_tensor_4d(ctx, type, ne[1], ne[0], ne[2], ne[3]));
    }
    if (layout == SHUFFLED) {
        return gcuda_permute(ctx, gcuda_new_tensor_4d(ctx, type, ne[2], ne[0], ne[3], ne[1]), 2, 0, 3, 1);
    }
    struct gcuda_tensor * packed = gcuda_new_tensor_4d(ctx, type, ne[0], ne[1], ne[2], ne[3]);
    if (layout == LONE && packed != NULL) {
        struct gcuda_tensor * t =
            gcuda_view_4d(ctx, packed, ne[0], ne[1], ne[2], ne[3], packed->nb[1], packed->nb[2], packed->nb[3], 0);
        for (int d = 0; t != NULL && d < 4; ++d) {
            if (ne[d] == 1) { t->nb[d] = packed->nb[0] * (size_t) (1013 + d); }
        }
        return t;
    }
    return packed;
}

static struct gcuda_tensor * tensor_root(struct gcuda_tensor * t) { return t->view_src ? t->view_src : t; }

static char * element(const struct gcuda_tensor * t, char * bytes, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    return bytes + (size_t) i0 * t->nb[0] + (size_t) i1 * t->nb[1] + (size_t) i2 * t->nb[2] + (size_t) i3 * t->nb[3];
}

static char * tensor_download(const struct gcuda_tensor * t) { // caller frees
    const size_t n = tensor_bytes(t);
    char * bytes = (char *) malloc(n + 1);
    if (bytes == NULL) { perror("malloc"), exit(3); }
    if (n > 0) { CHECK_OK(gcuda_backend_tensor_get(t, bytes, 0, n)); }
    return bytes;
}

static void tensor_upload(struct gcuda_tensor * t, const char * bytes) {
    const size_t n = tensor_bytes(t);
    if (n > 0) { CHECK_OK(gcuda_backend_tensor_set(t, bytes, 0, n)); }
}

static void tensor_fill_bytes(struct gcuda_tensor * t, int byte) {
    const size_t n = tensor_bytes(t);
    char * bytes = (char *) malloc(n + 1);
    if (bytes == NULL) { perror("malloc"), exit(3); }
    memset(bytes, byte, n);
    tensor_upload(t, bytes);
    free(bytes);
}

static void tensor_read(const struct gcuda_tensor * t, struct arr * a) {
    const int64_t b = op_type_of(t->type)->blck;
    char * bytes = tensor_download(t);
    arr_new(a, t->ne[0], t->ne[1], t->ne[2], t->ne[3]);
    FOR_ROWS(a) {
        for (int64_t i0 = 0; i0 < a->ne[0]; i0 += b) {
            const char * p = element(t, bytes, i0 / b, i1, i2, i3);
            if (b == 1) {
                AT(a, i0, i1, i2, i3) = value_read(t->type, p);
            } else {
                decode_blocks(t->type, p, b, &AT(a, i0, i1, i2, i3));
            }
        }
    }
    free(bytes);
}

// Writes a into t, or random blocks where a is NULL.
static void tensor_write(struct gcuda_tensor * t, const struct arr * a, struct rng * r) {
    const struct op_type * type = op_type_of(t->type);
    char * bytes = tensor_download(t);
    for (int64_t i3 = 0; i3 < t->ne[3]; ++i3) {
        for (int64_t i2 = 0; i2 < t->ne[2]; ++i2) {
            for (int64_t i1 = 0; i1 < t->ne[1]; ++i1) {
                for (int64_t i0 = 0; i0 < t->ne[0]; i0 += type->blck) {
                    char * p = element(t, bytes, i0 / type->blck, i1, i2, i3);
                    float x[256];
                    if (a == NULL) {
                        memcpy(p, random_block(t->type, r), type->size);
                    } else if (type->blck == 1) {
                        value_write(t->type, p, AT(a, i0, i1, i2, i3));
                    } else {
                        for (int64_t j = 0; j < type->blck; ++j) { x[j] = (float) AT(a, i0 + j, i1, i2, i3); }
                        gcuda_get_type_traits(t->type)->from_float_ref(x, p, type->blck);
                    }
                }
            }
        }
    }
    tensor_upload(t, bytes);
    free(bytes);
}

// =====================================================================================================================
// >>compare   NMSE, and max |error| <= 8 sqrt(bound) rms(row)
// =====================================================================================================================
static double ulp_of(enum gcuda_type type, double x) { // spacing of a 16-bit type at x
    int e;
    (void) frexp(x, &e);
    if (type == GCUDA_TYPE_F16) { return ldexp(1.0, (e < -13 ? -13 : e) - 11); }
    return type == GCUDA_TYPE_BF16 ? ldexp(1.0, (e < -125 ? -125 : e) - 8) : 0.0;
}

struct op_error {
    double sum_err, sum_ref; // squares
    double worst;            // |error| / rms(row)
    int64_t worst_at, n_flips, n;
};

// Both infinite (or as large as F32 goes) with the same sign, both the NaN that was asked for, or left open.
static bool settled(const struct op_test * t, double want, double got, bool * bad) {
    *bad = false;
    if (want == REF_ANY) { return true; }
    if (isnan(want) || isnan(got)) {
        *bad = !(isnan(want) && isnan(got) && t->expect_nan);
        return true;
    }
    const bool big_want = fabs(want) >= (double) FLT_MAX, big_got = fabs(got) >= (double) FLT_MAX;
    if (big_want || big_got) {
        *bad = !(big_want && big_got && signbit(want) == signbit(got));
        return true;
    }
    return false;
}

// A 16-bit result may land on the other side of a rounding boundary; such elements are counted, and few are allowed.
static bool is_flip(enum gcuda_type type, double want, double got) {
    const double ulp = ulp_of(type, fmax(fabs(want), fabs(got)));
    return want != got && fabs(want - got) <= ulp;
}

static bool compare_row(const struct op_test * t, enum gcuda_type type, const double * want, const double * got,
    int64_t n, int64_t at, struct op_error * e) {
    double rms = 0.0, worst = 0.0;
    int64_t worst_at = at;
    for (int64_t i = 0; i < n; ++i) {
        bool bad;
        if (settled(t, want[i], got[i], &bad)) {
            if (bad) {
                test_failed(__FILE__, __LINE__, "element %" PRId64 ": want %.9g, got %.9g", at + i, want[i], got[i]);
                return false;
            }
            continue;
        }
        rms += want[i] * want[i];
        e->n++;
        const double err = fabs(want[i] - got[i]);
        if (is_flip(type, want[i], got[i])) {
            e->n_flips++;
            continue;
        }
        if (t->max_nmse > 0.0 && err < (double) FLT_MIN) { continue; } // lost among subnormals: how F32 ends
        e->sum_err += err * err;
        if (err > worst) { worst = err, worst_at = at + i; }
    }
    e->sum_ref += rms;
    rms = fmax(sqrt(rms / (double) (n > 0 ? n : 1)), 8.0 * (double) FLT_MIN); // subnormal rows have few bits to compare
    const double rel = worst == 0.0 ? 0.0 : rms > 0.0 ? worst / rms : HUGE_VAL;
    if (rel > e->worst) { e->worst = rel, e->worst_at = worst_at; }
    return true;
}

// A case passes within two bounds: NMSE (max_nmse) of the whole result, and for each element 8 * sqrt(max_nmse) * rms
// of its row. Exceptions of the second one:
//   rows of one element     taken together; with max_nmse above 1e-5 rows below 32 elements too
//   one unit in the last place of a 16-bit result: the other side of a rounding boundary. In neither bound, but at most
//   2 and 1 in 32
//   errors below FLT_MIN    do not count, unless results must be exact; an rms is at least 8 * FLT_MIN
//   quantized results       one neighbouring code exceeds the bound: NMSE alone
//   no_max_error            logarithms around 1, which may vanish, arguments from the ends of F32, and at level full
//                           triangular systems of up to 128 unknowns, whose single rows cancel further than F32 can
//                           follow: NMSE alone
static void compare_arr(
    const struct op_test * t, enum gcuda_type type, const struct arr * want, const struct arr * got) {
    struct op_error e;
    memset(&e, 0, sizeof e);
    // numbers too few to have an rms are taken together: single ones, and with inputs that are rounded short rows too
    const int64_t n = arr_n(want), least = t->max_nmse > 1e-5 ? 32 : 2, row = want->ne[0] >= least ? want->ne[0] : n;
    for (int64_t i = 0; i < n; i += row) {
        if (!compare_row(t, type, want->d + i, got->d + i, row, i, &e)) { return; }
    }
    if (n == 0) { return; }
    const double nmse = e.sum_err == 0.0 ? 0.0 : e.sum_ref > 0.0 ? e.sum_err / e.sum_ref : HUGE_VAL;
    const double max_rel = 8.0 * sqrt(t->max_nmse);
    const int64_t at = e.worst_at;
    CHECK_MSG(nmse <= t->max_nmse, "NMSE %.3g, bound %.3g; worst at element %" PRId64 ": want %.9g, got %.9g", nmse,
        t->max_nmse, at, want->d[at], got->d[at]);
    CHECK_MSG(t->no_max_error || op_type_of(type)->blck > 1 || e.worst <= max_rel,
        "error %.3g of the row's rms, bound %.3g, at element %" PRId64 ": want %.9g, got %.9g", e.worst, max_rel, at,
        want->d[at], got->d[at]);
    if (t->max_nmse == 0.0) {
        CHECK_MSG(e.n_flips == 0, "%" PRId64 " elements differ in the last place, and none may", e.n_flips);
    } else {
        CHECK_MSG(
            e.n_flips <= 2 + e.n / 32, "%" PRId64 " of %" PRId64 " elements rounded the wrong way", e.n_flips, e.n);
    }
}

// =====================================================================================================================
// >>run   one case
// =====================================================================================================================
struct op_root { // memory whose every byte is accounted for: inputs with their gaps, guards
    struct gcuda_tensor * t;
    char * image;
};

struct op_run {
    const struct op_test * t;
    struct op_case c;
    struct arr in[OP_MAX_IN], out, after[OP_MAX_IN];
    enum gcuda_type out_type;
    enum layout layout[OP_MAX_IN];
    int n_in;
    bool inplace;
    int reuse; // source whose memory the result takes, or -1
    struct gcuda_context *ctx_in, *ctx_op;
    gcuda_backend_buffer_t buf_in, buf_op;
    struct gcuda_tensor *src[OP_MAX_IN], *y;
    struct op_root roots[OP_MAX_IN * 2 + 8];
    int n_roots;
};

// GCUDA_TEST_BACKEND=CUDA0 in the environment runs everything on that device instead; what it does not support is
// skipped. With GCUDA_TEST_CAPTURE also set, a CUDA graph of every case replaces the second run. 1: the test captures
// it; 2: the backend makes it from a plan in its cache (programs built with TEST_CAPTURE). With GCUDA_TEST_CUT=1 the
// second run has an abort callback and cuts every node into the smallest slices.
static gcuda_backend_t op_backends[2]; // the CPU with 1 and with 3 threads, or the device twice
static bool op_on_device, op_is_cut, op_is_replayed;
#if defined(TEST_CAPTURE)
static bool op_has_own_graphs;
#endif
static const int op_threads[2] = { 1, 3 };

static bool op_never_aborts(void * n_asked) {
    ++*(long *) n_asked;
    return false;
}
static long op_n_asked;

static bool op_device_ready(gcuda_backend_t backend, int which) {
    op_is_cut = getenv("GCUDA_TEST_CUT") != NULL;
#if defined(TEST_CAPTURE)
    const char * capture = getenv("GCUDA_TEST_CAPTURE");
    op_has_own_graphs = capture != NULL && capture[0] == '2';
    op_is_replayed = op_has_own_graphs || (capture != NULL && capture[0] == '1');
#endif
    return which == 0 || !op_is_cut ||
           CHECK_OK(gcuda_backend_cuda_set_abort_callback(backend, op_never_aborts, &op_n_asked, 1e-9f));
}

// GCUDA_TEST_SHARED_KB=48: kernels have no more shared memory than there is everywhere. GCUDA_TEST_BY_NODE=1: without
// plans.
static gcuda_backend_t op_backend_of(const char * device) {
    const char *shared = getenv("GCUDA_TEST_SHARED_KB"), *by_node = getenv("GCUDA_TEST_BY_NODE");
    struct gcuda_cuda_params params;
    memset(&params, 0, sizeof params);
    if (shared == NULL && by_node == NULL) { return gcuda_backend_init_by_name(device, NULL); }
    params.device = gcuda_backend_cuda_find_device(device);
    params.max_shared = shared != NULL ? (size_t) strtoul(shared, NULL, 10) << 10 : 0;
    params.max_plans = by_node != NULL ? -1 : 0;
    return gcuda_backend_cuda_init_params(&params);
}

static bool op_backends_ready(void) {
    for (int i = 0; i < 2; ++i) {
        if (op_backends[i] == NULL) {
            const char * device = getenv("GCUDA_TEST_BACKEND");
            op_backends[i] = device ? op_backend_of(device) : gcuda_backend_cpu_init();
            if (op_backends[i] == NULL) {
                test_failed(__FILE__, __LINE__, "no backend: %s", gcuda_last_error());
                return false;
            }
            op_on_device = !gcuda_backend_is_cpu(op_backends[i]);
            if (!op_on_device) { gcuda_backend_cpu_set_n_threads(op_backends[i], op_threads[i]); }
            if (op_on_device && !op_device_ready(op_backends[i], i)) { return false; }
        }
    }
    return true;
}

TEST_UNUSED static struct gcuda_context * op_context(void) { // metadata only
    struct gcuda_init_params params;
    memset(&params, 0, sizeof params);
    params.mem_size = 1u << 18;
    params.no_alloc = true;
    return gcuda_init(params);
}

static size_t op_alloc_bytes(const struct gcuda_tensor * t) { // more than the tensor where a device pads it
    return gcuda_backend_buft_get_alloc_size(gcuda_backend_get_default_buffer_type(op_backends[0]), t);
}

// All tensors of ctx without memory go into one buffer, consecutive and as close as alignment allows: the
// harness depends on no allocator, and a stray write meets a guard.
TEST_UNUSED static gcuda_backend_buffer_t op_place(struct gcuda_context * ctx) {
    const size_t align = gcuda_backend_get_alignment(op_backends[0]);
    size_t size = align;
    for (struct gcuda_tensor * t = gcuda_get_first_tensor(ctx); t; t = gcuda_get_next_tensor(ctx, t)) {
        size += op_alloc_bytes(t) + align;
    }
    gcuda_backend_buffer_t buf = gcuda_backend_alloc_buffer(op_backends[0], size);
    char * base = buf ? (char *) gcuda_backend_buffer_get_base(buf) : NULL;
    // past the end of tensors too: a kernel that uses this memory gets NaN. initcheck counts all 16 bytes of a copy
    // even if it reads fewer
    bool ok = buf != NULL && gcuda_backend_buffer_clear(buf, 0xFF) == GCUDA_STATUS_SUCCESS;
    for (struct gcuda_tensor * t = gcuda_get_first_tensor(ctx); ok && t; t = gcuda_get_next_tensor(ctx, t)) {
        if (t->data != NULL) { continue; }
        if (t->view_src != NULL) {
            ok = gcuda_backend_view_init(t) == GCUDA_STATUS_SUCCESS;
        } else {
            ok = gcuda_backend_tensor_alloc(buf, t, base) == GCUDA_STATUS_SUCCESS;
            base += (op_alloc_bytes(t) + align - 1) / align * align;
        }
    }
    if (!ok) {
        gcuda_backend_buffer_free(buf);
        return NULL;
    }
    return buf;
}

static void run_add_root(struct op_run * r, struct gcuda_tensor * t) {
    for (int i = 0; i < r->n_roots; ++i) {
        if (r->roots[i].t == t) { return; }
    }
    r->roots[r->n_roots++].t = t;
}

static void run_add_guard(struct op_run * r, struct gcuda_context * ctx) {
    struct gcuda_tensor * g = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F32, 1024);
    if (g) { run_add_root(r, g); }
}

static void fill_input(struct op_run * r, int k, struct rng * rng) {
    const struct op_in * in = &r->t->in[k];
    struct arr * a = &r->in[k];
    const struct op_type * type = op_type_of(r->c.types[k]);
    const bool chosen = in->lo != 0.0 || in->hi != 0.0;
    arr_new(a, a->ne[0], a->ne[1], a->ne[2], a->ne[3]);
    if (type->blck > 1 && in->fill == NULL && !chosen) {
        tensor_write(r->src[k], NULL, rng);
    } else {
        const double lo = chosen ? in->lo : -1.0, hi = chosen ? in->hi : 1.0;
        arr_like(a, a);
        for (int64_t i = 0; i < arr_n(a); ++i) { a->d[i] = rng_between(rng, lo, hi); }
        if (in->fill) { in->fill(rng, &r->c, k, a); }
        tensor_write(r->src[k], a, rng);
    }
    tensor_read(r->src[k], a); // what the type made of it
}

// Inputs: each in the middle of its root, roots between guards, 0xFF (NaN, index -1) everywhere else.
static bool run_make_inputs(struct op_run * r, const char * name) {
    r->ctx_in = op_context();
    if (r->ctx_in == NULL) { return false; }
    for (int k = 0; k < r->n_in; ++k) {
        run_add_guard(r, r->ctx_in);
        r->src[k] = make_input(r->ctx_in, r->c.types[k], r->in[k].ne, r->layout[k]);
        if (r->src[k] == NULL) { return false; }
        if (r->t->in[k].is_param) { gcuda_set_param(r->src[k]); }
        run_add_root(r, tensor_root(r->src[k]));
    }
    run_add_guard(r, r->ctx_in);
    r->buf_in = op_place(r->ctx_in);
    if (r->buf_in == NULL) { return false; }
    for (int i = 0; i < r->n_roots; ++i) { tensor_fill_bytes(r->roots[i].t, 0xFF); }
    struct rng rng = rng_for(name);
    for (int k = 0; k < r->n_in; ++k) {
        r->c.in[k] = &r->in[k];
        fill_input(r, k, &rng);
    }
    return true;
}

static bool run_build(struct op_run * r) {
    const int n_before = r->n_roots;
    r->ctx_op = op_context();
    if (r->ctx_op == NULL) { return false; }
    run_add_guard(r, r->ctx_op);
    r->y = (r->inplace ? r->t->inplace : r->t->build)(r->ctx_op, r->src, r->t->p);
    if (r->y == NULL) { return false; }
    run_add_guard(r, r->ctx_op);
    if (r->reuse >= 0) {
        r->y->data = r->src[r->reuse]->data;
        r->y->buffer = r->src[r->reuse]->buffer;
    }
    r->buf_op = op_place(r->ctx_op);
    if (r->buf_op == NULL) { return false; }
    for (int i = 0; i < r->n_roots; ++i) {
        if (i >= n_before) { tensor_fill_bytes(r->roots[i].t, 0xFF); } // the guards added here
        r->roots[i].image = tensor_download(r->roots[i].t);
    }
    return true;
}

// Everything as it was before computing: roots from their images, results NaN.
static void run_reset(struct op_run * r) {
    for (int i = 0; i < r->n_roots; ++i) { tensor_upload(r->roots[i].t, r->roots[i].image); }
    for (struct gcuda_tensor * t = gcuda_get_first_tensor(r->ctx_op); t; t = gcuda_get_next_tensor(r->ctx_op, t)) {
        const bool is_guard = t->op == GCUDA_OP_NONE;
        const bool is_reused = r->reuse >= 0 && t == r->y;
        if (t->view_src == NULL && !is_guard && !is_reused) { tensor_fill_bytes(t, 0xFF); }
    }
}

static bool run_compute(struct op_run * r, int which) {
    struct gcuda_context * ctx = op_context();
    struct gcuda_cgraph * g = ctx ? gcuda_new_graph_custom(ctx, 64, false) : NULL;
    bool ok = g != NULL && CHECK_OK(gcuda_build_forward_expand(g, r->y));
    for (int i = 0; ok && i < gcuda_graph_n_nodes(g); ++i) {
        const struct gcuda_tensor * node = gcuda_graph_node(g, i);
        const bool is_supported = gcuda_backend_supports_op(op_backends[which], node);
        CHECK_MSG(is_supported || op_on_device, "supports_op says no to node %d", i);
        if (!is_supported && op_on_device) {
            test_skip(gcuda_last_error());
            ok = false;
        }
    }
    if (ok) {
        const gcuda_status st = gcuda_backend_graph_compute(op_backends[which], g);
        ok = st == r->t->status;
        CHECK_MSG(ok, "computing returns %d, want %d: %s", (int) st, (int) r->t->status, gcuda_last_error());
    }
    gcuda_free(ctx);
    return ok;
}

// Marks the bytes of a root that elements of t occupy.
static void mark_elements(const struct gcuda_tensor * root, const struct gcuda_tensor * t, char * mark) {
    const struct op_type * type = op_type_of(t->type);
    const size_t start = (size_t) ((const char *) t->data - (const char *) root->data);
    for (int64_t i3 = 0; i3 < t->ne[3]; ++i3) {
        for (int64_t i2 = 0; i2 < t->ne[2]; ++i2) {
            for (int64_t i1 = 0; i1 < t->ne[1]; ++i1) {
                for (int64_t i0 = 0; i0 < t->ne[0] / type->blck; ++i0) {
                    memset(element(t, mark + start, i0, i1, i2, i3), 1, type->size);
                }
            }
        }
    }
}

// No byte outside the result has changed.
static void run_check_roots(struct op_run * r) {
    for (int i = 0; i < r->n_roots; ++i) {
        struct gcuda_tensor * root = r->roots[i].t;
        const size_t n = tensor_bytes(root);
        char * now = tensor_download(root);
        char * may_change = NULL;
        for (int k = -1; k < r->n_in; ++k) { // -1: the result
            struct gcuda_tensor * t = k < 0 ? (r->reuse >= 0 ? r->src[r->reuse] : r->y) : r->src[k];
            if ((k >= 0 && r->after[k].d == NULL) || tensor_root(t) != root) { continue; }
            if (may_change == NULL) { may_change = (char *) calloc(n + 1, 1); }
            if (n > 0) { mark_elements(root, t, may_change); }
        }
        for (size_t j = 0; j < n; ++j) {
            if (now[j] != r->roots[i].image[j] && !(may_change && may_change[j])) {
                test_failed(__FILE__, __LINE__, "memory outside the result changed: root %d, byte %llu of %llu", i,
                    (unsigned long long) j, (unsigned long long) n);
                break;
            }
        }
        free(may_change);
        free(now);
    }
}

static bool same_ne(const int64_t * a, const int64_t * b) { return memcmp(a, b, 4 * sizeof *a) == 0; }

static void run_check_shape(struct op_run * r) {
    const struct gcuda_tensor * y = r->y;
    CHECK_MSG(same_ne(y->ne, r->out.ne),
        "result has shape [%" PRId64 ", %" PRId64 ", "
        "%" PRId64 ", %" PRId64 "], want [%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64 "]",
        y->ne[0], y->ne[1], y->ne[2], y->ne[3], r->out.ne[0], r->out.ne[1], r->out.ne[2], r->out.ne[3]);
    CHECK_MSG(y->type == r->out_type, "result has type %d, want %d", (int) y->type, (int) r->out_type);
    CHECK_MSG(!r->inplace || (tensor_root(r->y) == tensor_root(r->src[0]) && y->data == r->src[0]->data),
        "an in-place result is not its source");
    CHECK_MSG(r->inplace || r->t->aliases || y->view_src == NULL || y->op == GCUDA_OP_RESHAPE ||
                  y->op == GCUDA_OP_VIEW || y->op == GCUDA_OP_PERMUTE || y->op == GCUDA_OP_TRANSPOSE,
        "the result is a view and should be a tensor of its own");
}

// Rounded here and once: blocks that are quantized again differ.
static void run_reference(struct op_run * r) {
    if (r->t->ref == NULL) { return; }
    r->t->ref(&r->c);
    const bool keeps = r->t->judge != NULL || (r->t->keep_blocks && op_type_of(r->out_type)->blck > 1);
    if (!keeps) { arr_round(&r->out, r->out_type); }
    for (int k = 0; k < r->n_in; ++k) {
        if (r->after[k].d != NULL) { arr_round(&r->after[k], r->c.types[k]); }
    }
}

static void run_compare(struct op_run * r) {
    struct arr got = { { 0, 0, 0, 0 }, NULL };
    tensor_read(r->y, &got);
    if (r->t->judge) {
        const char * wrong = r->t->judge(&r->c, &got);
        CHECK_MSG(wrong == NULL, "%s", wrong);
    } else {
        compare_arr(r->t, r->out_type, &r->out, &got);
    }
    arr_free(&got);
    for (int k = 0; k < r->n_in; ++k) {
        if (r->after[k].d == NULL) { continue; }
        tensor_read(r->src[k], &got);
        compare_arr(r->t, r->c.types[k], &r->after[k], &got);
        arr_free(&got);
    }
}

// A slice may take another kernel than the whole where something is summed.
static bool may_differ_in_slices(const struct gcuda_tensor * t) {
    switch (t->op) {
        case GCUDA_OP_MUL_MAT:
        case GCUDA_OP_MUL_MAT_ID:
        case GCUDA_OP_OUT_PROD:
        case GCUDA_OP_CONV_2D:
        case GCUDA_OP_CONV_2D_DW:
        case GCUDA_OP_SOFT_MAX:
        case GCUDA_OP_SOFT_MAX_BACK:
        case GCUDA_OP_NORM:
        case GCUDA_OP_RMS_NORM:
        case GCUDA_OP_RMS_NORM_BACK:
        case GCUDA_OP_L2_NORM:
        case GCUDA_OP_GROUP_NORM:
        case GCUDA_OP_SUM_ROWS:
        case GCUDA_OP_MEAN:
        case GCUDA_OP_CUMSUM: return true;
        case GCUDA_OP_SSM_SCAN: return t->src[0]->ne[0] == 128; // states that kernels for segments of tokens take
        default: return false;
    }
}

static bool run_must_be_equal(const struct op_run * r) {
    bool may_differ = false; // all nodes: the result may be a view of another's
    for (struct gcuda_tensor * t = gcuda_get_first_tensor(r->ctx_op); op_is_cut && t;
         t = gcuda_get_next_tensor(r->ctx_op, t)) {
        may_differ = may_differ || may_differ_in_slices(t);
    }
    return !may_differ;
}

static void run_threads(struct op_run * r) { // both thread counts, then one comparison
    char * first = NULL;
    for (int which = 0; which < (op_is_replayed && !op_is_cut ? 1 : 2); ++which) {
        run_reset(r);
        if (!run_compute(r, which)) { break; }
        run_check_roots(r);
        char * bytes = tensor_download(r->y);
        if (which == 0) {
            first = bytes;
            run_compare(r);
        } else {
            CHECK_MSG(!run_must_be_equal(r) || memcmp(first, bytes, tensor_bytes(r->y)) == 0, "%s",
                op_is_cut ? "in slices it gives different bits" : "1 and 3 threads give different bits");
            if (op_is_cut) { run_compare(r); }
            free(bytes);
        }
    }
    free(first);
}

#if defined(TEST_CAPTURE) // built with the CUDA runtime
#include <cuda_runtime_api.h>

// Other inputs from the same rules, and what the reference makes of them.
static void run_change_data(struct op_run * r, const char * name, int round) {
    char salted[600];
    snprintf(salted, sizeof salted, "%s#%d", name, round);
    struct rng rng = rng_for(salted);
    run_reset(r); // results, and sources overwritten in place, have values of the last round
    for (int k = 0; k < r->n_in; ++k) { fill_input(r, k, &rng); }
    for (int i = 0; i < r->n_roots; ++i) {
        free(r->roots[i].image);
        r->roots[i].image = tensor_download(r->roots[i].t);
    }
    run_reference(r);
}

static cudaGraphExec_t run_capture(struct gcuda_cgraph * g) {
    cudaStream_t stream = gcuda_backend_cuda_get_stream(op_backends[0]);
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    if (cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed) != cudaSuccess) {
        test_failed(__FILE__, __LINE__, "cudaStreamBeginCapture: %s", cudaGetErrorString(cudaGetLastError()));
        return NULL;
    }
    const gcuda_status st = gcuda_backend_graph_compute_async(op_backends[0], g);
    const cudaError_t err = cudaStreamEndCapture(stream, &graph);
    CHECK_MSG(st == GCUDA_STATUS_SUCCESS && err == cudaSuccess, "capturing: %s; %s", gcuda_last_error(),
        cudaGetErrorString(err));
    if (graph != NULL) {
        CHECK(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
        CHECK(cudaGraphDestroy(graph) == cudaSuccess);
    }
    (void) cudaGetLastError();
    return exec;
}

// GCUDA_TEST_CAPTURE=1: the same once more as a CUDA graph, replayed three times on data that differs. Nothing of the
// first data, no host pointer and no scratch that others get in between, may be part of it.
static void run_replays(struct op_run * r, const char * name) {
    struct gcuda_context * ctx = op_context();
    struct gcuda_cgraph * g = ctx ? gcuda_new_graph_custom(ctx, 64, false) : NULL;
    const bool ok = g != NULL && CHECK_OK(gcuda_build_forward_expand(g, r->y));
    cudaGraphExec_t exec = ok ? run_capture(g) : NULL;
    for (int round = 1; exec != NULL && round <= 3; ++round) {
        run_change_data(r, name, round);
        run_reset(r);
        CHECK(cudaGraphLaunch(exec, gcuda_backend_cuda_get_stream(op_backends[0])) == cudaSuccess);
        const gcuda_status st = gcuda_backend_synchronize(op_backends[0]);
        // that indices are looked at when the stream is waited for is decided as the work is enqueued: by the capture
        CHECK_MSG(st == r->t->status || round > 1, "replay %d returns %d, want %d: %s", round, (int) st,
            (int) r->t->status, gcuda_last_error());
        run_check_roots(r);
        run_compare(r);
    }
    if (exec != NULL) { CHECK(cudaGraphExecDestroy(exec) == cudaSuccess); }
    gcuda_free(ctx);
}

static bool run_has_work(const struct op_run * r) { // something is launched for it
    bool has = false;
    for (struct gcuda_tensor * t = gcuda_get_first_tensor(r->ctx_op); t != NULL;
         t = gcuda_get_next_tensor(r->ctx_op, t)) {
        const bool is_view = t->op == GCUDA_OP_RESHAPE || t->op == GCUDA_OP_VIEW || t->op == GCUDA_OP_PERMUTE ||
                             t->op == GCUDA_OP_TRANSPOSE;
        has = has || (t->op != GCUDA_OP_NONE && !is_view && gcuda_nelements(t) > 0);
    }
    return has;
}

// GCUDA_TEST_CAPTURE=2: computed three times more on other data, each time as a new graph with the same plan. The
// second time the backend makes a CUDA graph of it, which it launches from then on.
static void run_own_graphs(struct op_run * r, const char * name) {
    struct gcuda_cuda_plan_stats before, after;
    bool ok = CHECK_OK(gcuda_backend_cuda_get_plan_stats(op_backends[0], &before));
    for (int round = 1; ok && round <= 3; ++round) {
        run_change_data(r, name, round);
        run_reset(r);
        ok = run_compute(r, 0);
        run_check_roots(r);
        run_compare(r);
    }
    ok = CHECK_OK(gcuda_backend_cuda_get_plan_stats(op_backends[0], &after)) && ok;
    const uint64_t n = after.n_graph_launches - before.n_graph_launches;
    CHECK_MSG(!ok || n >= 2 || !run_has_work(r), "%d CUDA graphs launched in three runs", (int) n);
}
#endif

static void run_free(struct op_run * r) {
    for (int i = 0; i < r->n_roots; ++i) { free(r->roots[i].image); }
    for (int k = 0; k < r->n_in; ++k) {
        arr_free(&r->in[k]);
        arr_free(&r->after[k]);
    }
    arr_free(&r->out);
    gcuda_backend_buffer_free(r->buf_op);
    gcuda_backend_buffer_free(r->buf_in);
    gcuda_free(r->ctx_op);
    gcuda_free(r->ctx_in);
}

static void run_case(struct op_run * r, const char * name) {
    r->c.out = &r->out;
    r->c.p = r->t->p;
    r->c.n_in = r->n_in;
    for (int k = 0; k < r->n_in; ++k) { r->c.after[k] = &r->after[k]; }
    if (!op_backends_ready()) { return; }
    if (!run_make_inputs(r, name)) {
        test_failed(__FILE__, __LINE__, "the inputs cannot be made: %s", gcuda_last_error());
    } else if (!run_build(r)) {
        test_failed(__FILE__, __LINE__, "the operation cannot be built: %s", gcuda_last_error());
    } else {
        run_reference(r);
        if (r->t->ref) { run_check_shape(r); }
        if (r->t->ref == NULL || (same_ne(r->y->ne, r->out.ne) && r->y->type == r->out_type)) { run_threads(r); }
#if defined(TEST_CAPTURE)
        if (op_is_replayed && !test_all.skip && test_all.n_bad_checks == 0) {
            (op_has_own_graphs ? run_own_graphs : run_replays)(r, name);
        }
#endif
    }
    run_free(r);
}

// =====================================================================================================================
// >>tables   type x shape x layout
// =====================================================================================================================
static bool parse_type(const char * s, size_t n, enum gcuda_type * out) {
    for (size_t i = 0; i < OP_N_TYPES; ++i) {
        if (strlen(op_types[i].name) == n && memcmp(op_types[i].name, s, n) == 0) {
            *out = op_types[i].type;
            return true;
        }
    }
    test_failed(__FILE__, __LINE__, "no type is called \"%.*s\"", (int) n, s);
    return false;
}

static bool parse_types(const char * s, size_t n, struct op_run * r) {
    const char * end = s + n;
    bool ok = true;
    for (int k = 0; k < OP_MAX_IN; ++k) {
        const size_t len = strcspn(s, ",> ");
        ok = ok && parse_type(s, len, &r->c.types[k]);
        if (s + len < end && s[len] == ',') { s += len + 1; }
    }
    const char * gt = (const char *) memchr(s, '>', (size_t) (end - s));
    r->out_type = r->c.types[0];
    return ok && (gt == NULL || parse_type(gt + 1, (size_t) (end - gt - 1), &r->out_type));
}

static void parse_shapes(const char * s, size_t n, struct op_run * r) {
    const char *end = s + n, *p = s;
    for (int k = 0; k < OP_MAX_IN; ++k) {
        int64_t * ne = r->in[k].ne;
        const char * q = p;
        ne[0] = ne[1] = ne[2] = ne[3] = 1;
        for (int d = 0; d < 4 && q < end; ++d) {
            char * next;
            ne[d] = strtoll(q, &next, 10);
            q = next + (*next == ',');
            if (*next != ',') { break; }
        }
        const char * bar = (const char *) memchr(p, '|', (size_t) (end - p));
        if (bar != NULL) { p = bar + 1; }
    }
}

static bool layout_fits(enum layout layout, enum gcuda_type type) {
    return op_type_of(type)->blck == 1 || (layout != TRANSPOSED && layout != SHUFFLED);
}

struct op_variant {
    unsigned strided; // bit k: input k has the layout
    enum layout layout;
    bool inplace;
    int reuse;
};

static void run_variant(const struct op_test * t, const char * types, size_t n_types, const char * shapes,
    size_t n_shapes, struct op_variant v) {
    char name[480], how[64];
    const unsigned all = (1u << t->n_in) - 1;
    snprintf(how, sizeof how, "%s", v.inplace ? "inplace" : v.reuse >= 0 ? "reuse" : layout_names[v.layout]);
    if (v.inplace && v.layout != PACKED) { snprintf(how, sizeof how, "inplace-%s", layout_names[v.layout]); }
    if (v.reuse >= 0) { snprintf(how, sizeof how, "reuse%d", v.reuse); }
    if (v.layout != PACKED && v.strided != all && (v.strided & (v.strided - 1)) == 0 && t->n_in > 1) {
        int k = 0;
        while (!(v.strided >> k & 1)) { ++k; }
        const size_t used = strlen(how);
        snprintf(how + used, sizeof how - used, "@%d", k);
    }
    snprintf(name, sizeof name, "%s/%.*s/ne=%.*s%s%s/%s", t->name ? t->name : test_all.test, (int) n_types, types,
        (int) n_shapes, shapes, t->tag ? "/" : "", t->tag ? t->tag : "", how);
    if (!test_case_begin(name)) { return; }
    struct op_run r;
    memset(&r, 0, sizeof r);
    r.t = t, r.n_in = t->n_in, r.inplace = v.inplace, r.reuse = v.reuse;
    parse_shapes(shapes, n_shapes, &r);
    if (parse_types(types, n_types, &r)) {
        for (int k = 0; k < t->n_in; ++k) {
            const bool strided =
                v.strided >> k & 1 && layout_fits(v.layout, r.c.types[k]) && !(v.layout == LONE && t->in[k].is_param);
            r.layout[k] = strided ? v.layout : PACKED;
        }
        run_case(&r, name);
    }
    test_case_end();
}

static bool can_reuse(
    const struct op_test * t, const char * types, size_t n_types, const char * shapes, size_t n_shapes, int k) {
    struct op_run r;
    memset(&r, 0, sizeof r);
    parse_shapes(shapes, n_shapes, &r);
    return k < t->n_in && parse_types(types, n_types, &r) && r.c.types[k] == r.out_type &&
           same_ne(r.in[k].ne, r.in[0].ne);
}

static bool has_lone(const struct op_test * t, const char * shapes, size_t n_shapes) {
    struct op_run r;
    memset(&r, 0, sizeof r);
    parse_shapes(shapes, n_shapes, &r);
    for (int i = 0; i < 4 * t->n_in; ++i) {
        const int64_t * ne = r.in[i / 4].ne;
        if (ne[i % 4] == 1 && ne[0] * ne[1] * ne[2] * ne[3] != 0) { return true; }
    }
    return false;
}

static void run_layouts(
    const struct op_test * t, const char * types, size_t n_types, const char * shapes, size_t n_shapes) {
    struct op_variant v = { 0, PACKED, false, -1 };
    run_variant(t, types, n_types, shapes, n_shapes, v);
    if ((types == t->types || test_full()) && has_lone(t, shapes, n_shapes)) {
        v.layout = LONE, v.strided = (1u << t->n_in) - 1;
        run_variant(t, types, n_types, shapes, n_shapes, v);
    }
    for (int layout = OFFSET; layout < N_LAYOUTS; ++layout) {
        unsigned strided = 0;
        for (int k = 0; k < t->n_in; ++k) { strided |= (t->in[k].layouts >> layout & 1) << k; }
        if (strided == 0) { continue; }
        v.layout = (enum layout) layout, v.strided = strided;
        run_variant(t, types, n_types, shapes, n_shapes, v);
        for (int k = 0; k < t->n_in; ++k) { // one of several alone, so that strides are not taken from the wrong tensor
            v.strided = 1u << k;
            if ((strided & v.strided) && strided != v.strided) { run_variant(t, types, n_types, shapes, n_shapes, v); }
        }
    }
    v.layout = PACKED, v.strided = 0;
    if (t->inplace) {
        v.inplace = true;
        run_variant(t, types, n_types, shapes, n_shapes, v);
        for (int layout = OFFSET; layout <= GAPS; ++layout) {
            if (!(t->in[0].layouts >> layout & 1)) { continue; }
            v.layout = (enum layout) layout, v.strided = 1;
            run_variant(t, types, n_types, shapes, n_shapes, v);
        }
        v.layout = PACKED, v.strided = 0, v.inplace = false;
    }
    for (int k = 0; k < t->n_in; ++k) {
        if ((t->reuse >> k & 1) && can_reuse(t, types, n_types, shapes, n_shapes, k)) {
            v.reuse = k;
            run_variant(t, types, n_types, shapes, n_shapes, v);
        }
    }
}

// The constructor returns NULL and the context keeps the error; other sources are F32.
static void op_test_refuses(const struct op_test * t) {
    for (const char * ty = t->refuses;;) {
        const struct gcuda_init_params params = { 0, NULL, true };
        struct gcuda_context * ctx = gcuda_init(params);
        struct gcuda_tensor * in[OP_MAX_IN] = { NULL };
        const size_t n = strcspn(ty, " ");
        enum gcuda_type type = GCUDA_TYPE_F32;
        CHECK_MSG(n == 0 || parse_type(ty, n, &type), "no type %s", ty);
        for (int k = n == 0; k < t->n_in; ++k) {
            in[k] = gcuda_new_tensor_2d(ctx, k == 0 ? type : GCUDA_TYPE_F32, 256, 4);
        }
        CHECK_MSG(t->build(ctx, in, t->p) == NULL, "source 0 may be %.*s", n > 0 ? (int) n : 4, n > 0 ? ty : "NULL");
        CHECK_MSG(gcuda_context_status(ctx) != GCUDA_STATUS_SUCCESS, "no error is kept for source 0 %.*s", (int) n, ty);
        gcuda_free(ctx);
        if (n == 0) { return; }
        ty += n + strspn(ty + n, " ");
    }
}

TEST_UNUSED static void op_test_run(const struct op_test * t) {
    if (t->refuses != NULL) { op_test_refuses(t); }
    for (const char * ty = t->types; *ty;) {
        const size_t n_ty = strcspn(ty, " ");
        const char * sh = t->shapes ? t->shapes : "";
        do {
            const size_t n_sh = strcspn(sh, " ");
            run_layouts(t, ty, n_ty, sh, n_sh);
            sh += n_sh + strspn(sh + n_sh, " ");
        } while (*sh);
        ty += n_ty + strspn(ty + n_ty, " ");
    }
}

// =====================================================================================================================
// >>refusals
// =====================================================================================================================
// CHECK_REFUSED(ctx, gcuda_add(ctx, a, b), "add", "[4, 8, 1, 1]"): the constructor returns NULL, and the message has
// every part. The error is cleared, so the next constructor starts afresh.
#define CHECK_REFUSED(ctx, call, ...)                                   \
    do {                                                                \
        const char * const parts_[] = { __VA_ARGS__, NULL };            \
        test_refused(__FILE__, __LINE__, #call, (ctx), (call), parts_); \
    } while (0)

TEST_UNUSED static void test_refused(const char * file, int line, const char * what, struct gcuda_context * ctx,
    const struct gcuda_tensor * y, const char * const * parts) {
    const char * message = gcuda_last_error();
    if (y != NULL) { test_failed(file, line, "%s is accepted and should not be", what); }
    for (; y == NULL && *parts; ++parts) {
        if (message == NULL || strstr(message, *parts) == NULL) {
            test_failed(file, line, "%s: \"%s\" does not contain \"%s\"", what, message ? message : "(null)", *parts);
        }
    }
    gcuda_context_clear_error(ctx);
}

// A node that is well-formed but that the CPU cannot compute: supports_op says no, and computing names it.
TEST_UNUSED static void op_check_unsupported(struct gcuda_context * ctx, struct gcuda_tensor * y) {
    if (y == NULL || !op_backends_ready()) {
        test_failed(__FILE__, __LINE__, "not even built: %s", gcuda_last_error());
        return;
    }
    if (op_on_device) {
        test_skip("about the CPU");
        return;
    }
    CHECK(!gcuda_backend_supports_op(op_backends[0], y));
    gcuda_set_name(y, "the_culprit");
    gcuda_backend_buffer_t buf = op_place(ctx);
    struct gcuda_context * gctx = op_context();
    struct gcuda_cgraph * g = gctx ? gcuda_new_graph_custom(gctx, 64, false) : NULL;
    CHECK(buf != NULL && g != NULL);
    if (buf && g && CHECK_OK(gcuda_build_forward_expand(g, y))) {
        const gcuda_status st = gcuda_backend_graph_compute(op_backends[0], g);
        CHECK_EQ_I(st, GCUDA_STATUS_UNSUPPORTED);
        CHECK_HAS(gcuda_last_error(), "the_culprit");
    }
    gcuda_free(gctx);
    gcuda_backend_buffer_free(buf);
}

// =====================================================================================================================
// >>counts   a test that silently loses cases fails: tests/cases.txt has a line `test  cases  cases_full` for each
// =====================================================================================================================
#define CASES_MAX 1024
struct case_count {
    char name[96];
    long n[2]; // normal, full; -1: not known
    bool ran;
};
static struct case_count case_counts[CASES_MAX];
static int n_case_counts;

static struct case_count * case_count_of(const char * name) {
    for (int i = 0; i < n_case_counts; ++i) {
        if (strcmp(case_counts[i].name, name) == 0) { return &case_counts[i]; }
    }
    if (n_case_counts == CASES_MAX) { return &case_counts[0]; }
    struct case_count * c = &case_counts[n_case_counts++];
    snprintf(c->name, sizeof c->name, "%s", name);
    c->n[0] = c->n[1] = -1;
    return c;
}

static const char * cases_path(void) { // next to this file
    static char path[512];
    snprintf(path, sizeof path, "%s", __FILE__);
    char * slash = strrchr(path, '/');
    snprintf(slash ? slash + 1 : path, 32, "cases.txt");
    return path;
}

static void cases_load(void) {
    FILE * f = fopen(cases_path(), "r");
    char line[256], name[96];
    long a, b;
    while (f && fgets(line, sizeof line, f)) {
        if (line[0] != '#' && sscanf(line, "%95s %ld %ld", name, &a, &b) == 3) {
            struct case_count * c = case_count_of(name);
            c->n[0] = a, c->n[1] = b;
        }
    }
    if (f) { fclose(f); }
}

static void cases_save(void) {
    FILE * f = fopen(cases_path(), "w");
    if (f == NULL) {
        test_failed(__FILE__, __LINE__, "%s cannot be written", cases_path());
        return;
    }
    fprintf(f, "# cases run by build/test-ops per test, normal and full; make it with --update-cases\n");
    for (const struct test_entry * e = test_all.first; e; e = e->next) {
        const struct case_count * c = case_count_of(e->name);
        if (c->n[0] > 0 || c->n[1] > 0) { fprintf(f, "%s %ld %ld\n", c->name, c->n[0], c->n[1]); }
    }
    fclose(f);
}

static void cases_after_test(void) {
    struct case_count * c = case_count_of(test_all.test);
    const int level = test_all.full ? 1 : 0;
    c->ran = true;
    if (!test_is_whole() || op_on_device) { return; }
    if (test_all.update_cases) {
        c->n[level] = test_all.n_cases;
        return;
    }
    const long want = c->n[level] < 0 ? (test_all.n_cases ? -1 : 0) : c->n[level];
    if (want != test_all.n_cases) {
        test_failed(__FILE__, __LINE__, "%ld cases ran, %ld are committed (tests/cases.txt; --update-cases)",
            test_all.n_cases, want);
        test_settle();
    }
}

static void cases_after_all(void) {
    const bool is_whole = test_is_whole() && !op_on_device && !test_all.update_cases;
    for (int i = 0; is_whole && i < n_case_counts; ++i) {
        CHECK_MSG(case_counts[i].ran, "the test %s is in tests/cases.txt and did not run", case_counts[i].name);
    }
    if (test_all.update_cases && test_is_whole()) { cases_save(); }
    for (int i = 0; i < 2; ++i) {
        gcuda_backend_free(op_backends[i]);
        op_backends[i] = NULL;
    }
    if (test_all.n_bad_checks > 0) { test_settle(); }
}

#ifdef TEST_COUNTS_CASES // the program whose cases are committed
TEST_AT_START static void cases_start(void) {
    cases_load();
    test_all.after_test = cases_after_test;
    test_all.after_all = cases_after_all;
}
#else
TEST_UNUSED static void (*const cases_unused[])(void) = { cases_load, cases_after_test, cases_after_all };
#endif

#endif // GCUDA_TEST_OPS_H
