// test-quants: block formats, host quantizers, validation. Vectors are fixed bytes and values.
// The comparison with other implementations is tests/oracle/quants.py.
#include "test.h"

#include <float.h>

enum { MAX_BLOCK = 292, GUARD = 64 };

// clang-format off
static const enum gcuda_type quantizable[] = {
    GCUDA_TYPE_F32, GCUDA_TYPE_F16, GCUDA_TYPE_BF16, GCUDA_TYPE_Q4_0, GCUDA_TYPE_Q4_1, GCUDA_TYPE_Q5_0, GCUDA_TYPE_Q5_1,
    GCUDA_TYPE_Q8_0, GCUDA_TYPE_Q8_1, GCUDA_TYPE_IQ4_NL, GCUDA_TYPE_IQ4_XS, GCUDA_TYPE_MXFP4, GCUDA_TYPE_Q2_K,
    GCUDA_TYPE_Q3_K, GCUDA_TYPE_Q4_K, GCUDA_TYPE_Q5_K, GCUDA_TYPE_Q6_K, GCUDA_TYPE_Q8_K,
};
enum { N_QUANTIZABLE = sizeof quantizable / sizeof quantizable[0] };

static const enum gcuda_type grids[] = {
    GCUDA_TYPE_IQ2_XXS, GCUDA_TYPE_IQ2_XS, GCUDA_TYPE_IQ2_S, GCUDA_TYPE_IQ3_XXS, GCUDA_TYPE_IQ3_S, GCUDA_TYPE_IQ1_S,
    GCUDA_TYPE_IQ1_M,
};
enum { N_GRIDS = sizeof grids / sizeof grids[0] };
// clang-format on

static void put_u16(uint8_t * p, unsigned v) {
    p[0] = (uint8_t) (v & 255);
    p[1] = (uint8_t) (v >> 8);
}

static void put_f32(uint8_t * p, float v) { memcpy(p, &v, sizeof v); }

// The F16 fields of a block, d first; -1: none.
static void half_fields(enum gcuda_type type, int at[2]) {
    at[0] = 0;
    at[1] = -1;
    switch ((int) type) {
        case GCUDA_TYPE_Q4_1:
        case GCUDA_TYPE_Q5_1:
        case GCUDA_TYPE_Q4_K:
        case GCUDA_TYPE_Q5_K: at[1] = 2; break;
        case GCUDA_TYPE_Q2_K:
            at[0] = 80;
            at[1] = 82;
            break;
        case GCUDA_TYPE_Q3_K: at[0] = 108; break;
        case GCUDA_TYPE_Q6_K: at[0] = 208; break;
        case GCUDA_TYPE_Q8_K:
        case GCUDA_TYPE_IQ1_M:
        case GCUDA_TYPE_MXFP4: at[0] = -1; break;
        default: break;
    }
}

static void set_iq1_m_scale(uint8_t * block, unsigned half) {
    for (int k = 0; k < 4; ++k) {
        block[49 + 2 * k] = (uint8_t) ((block[49 + 2 * k] & 15u) | (half >> 4 * k & 15u) << 4);
    }
}

// =====================================================================================================
// >>formats
// =====================================================================================================
struct dequantize_vector {
    enum gcuda_type type;
    double head[4], tail[2], s1, s2; // first and last values, sum of v[i], sum of (i + 1) v[i]
};

static const struct dequantize_vector dequantize_vectors[] = {
    { GCUDA_TYPE_Q4_0, { 3, -4, 5, -2 }, { 3, -8 }, -33, -799 },
    { GCUDA_TYPE_Q4_1, { 13.5, 6.5, 15.5, 8.5 }, { 4.5, 9.5 }, 241, 3730 },
    { GCUDA_TYPE_Q5_0, { 15, 8, -15, 10 }, { -3, 2 }, -45, -1185 },
    { GCUDA_TYPE_Q5_1, { 17.5, 10.5, 19.5, 28.5 }, { 6.5, 11.5 }, 517, 8312 },
    { GCUDA_TYPE_Q8_0, { -69, 4, 77, -106 }, { 73, -110 }, -48, -688 },
    { GCUDA_TYPE_Q2_K, { 8, 17, 26, -1 }, { -3.5, -3.5 }, 2043, 250990 },
    { GCUDA_TYPE_Q3_K, { -7, 14, -21, 28 }, { 24, -24 }, 234, 34746 },
    { GCUDA_TYPE_Q4_K, { 92.5, 1.5, 118.5, 27.5 }, { -11.5, -11.5 }, 53352, 7369368 },
    { GCUDA_TYPE_Q5_K, { 300.5, 1.5, 326.5, 27.5 }, { -11.5, -11.5 }, 110072, 14904504 },
    { GCUDA_TYPE_Q6_K, { 161, -46, -621, 644 }, { -720, 288 }, -14844, -1628128 },
    { GCUDA_TYPE_Q8_K, { 77, -106, -33, 40 }, { -69, 4 }, -128, 65920 },
    { GCUDA_TYPE_IQ4_NL, { 38, -49, 69, -22 }, { 38, -127 }, -481, -12076 },
    { GCUDA_TYPE_IQ4_XS, { -3016, 725, -1885, 1537 }, { 1050, -750 }, -6450, 883051 },
    { GCUDA_TYPE_MXFP4, { 2, -3, 4, -6 }, { 12, -3 }, 25, 626 },
    { GCUDA_TYPE_IQ2_XXS, { -123.625, -123.625, -23, -23 }, { 23, -71.875 }, -298.25, 37614 },
    { GCUDA_TYPE_IQ2_XS, { 23, -71.875, 23, 23 }, { -31, 31 }, 665.75, 29240.625 },
    { GCUDA_TYPE_IQ2_S, { -7, -21.875, 21.875, -7 }, { 9, -48.375 }, -251.5, -5880.75 },
    { GCUDA_TYPE_IQ3_XXS, { -297, -243, 189, -243 }, { 27, 243 }, 1941.5, 421172.5 },
    { GCUDA_TYPE_IQ3_S, { -35, -7, 105, 77 }, { 63, 77 }, 162, -13838 },
    { GCUDA_TYPE_IQ1_S, { 0.625, 0.625, -4.375, -4.375 }, { 0.625, -4.375 }, -73, -11804 },
    { GCUDA_TYPE_IQ1_M, { 2.625, -3.375, -3.375, -3.375 }, { -1.125, -10.125 }, -61, -6908 },
};

TEST(dequantize_vectors) {
    for (size_t k = 0; k < sizeof dequantize_vectors / sizeof dequantize_vectors[0]; ++k) {
        const struct dequantize_vector * e = &dequantize_vectors[k];
        const struct gcuda_type_traits * t = gcuda_get_type_traits(e->type);
        uint64_t aligned[(MAX_BLOCK + 7) / 8];
        uint8_t * b = (uint8_t *) aligned;
        float v[256];
        int at[2];
        for (int i = 0; i < (int) t->type_size; ++i) { b[i] = (uint8_t) (73 * i + 41); }
        half_fields(e->type, at);
        if (at[0] >= 0) { put_u16(b + at[0], 0x3C00); }
        if (at[1] >= 0) { put_u16(b + at[1], 0x3800); }
        if (e->type == GCUDA_TYPE_Q8_K) { put_f32(b, 1.0f); }
        if (e->type == GCUDA_TYPE_MXFP4) { b[0] = 128; }
        if (e->type == GCUDA_TYPE_IQ1_M) { set_iq1_m_scale(b, 0x3C00); }
        t->to_float(b, v, t->blck_size);
        double s1 = 0, s2 = 0;
        for (int i = 0; i < (int) t->blck_size; ++i) {
            s1 += v[i];
            s2 += (i + 1) * (double) v[i];
        }
        const float * tail = v + t->blck_size - 2;
        for (int i = 0; i < 4; ++i) {
            CHECK_MSG(v[i] == e->head[i], "%s [%d] is %g, want %g", t->type_name, i, v[i], e->head[i]);
        }
        for (int i = 0; i < 2; ++i) {
            CHECK_MSG(tail[i] == e->tail[i], "%s tail %g, want %g", t->type_name, tail[i], e->tail[i]);
        }
        CHECK_MSG(
            s1 == e->s1 && s2 == e->s2, "%s sums %.10g %.10g, want %.10g %.10g", t->type_name, s1, s2, e->s1, e->s2);
    }
}

struct quantize_vector {
    enum gcuda_type type;
    bool offline;  // gcuda_quantize_chunk, not the rule of copies
    uint32_t hash; // FNV-1a of the block; 0: `bytes` is all of it
    const char * bytes;
};

static const struct quantize_vector quantize_vectors[] = {
    { GCUDA_TYPE_Q4_0, false, 0, "4036f258be1379df359bf147ac0268ce248a" },
    { GCUDA_TYPE_Q4_1, false, 0, "893640c2f257bd1379cf358ae146ac0268bd2479" },
    { GCUDA_TYPE_Q5_0, false, 0, "4032b4b4a525f4bf7b27e3ae5a16d19d4904c08c38f4" },
    { GCUDA_TYPE_Q5_1, false, 0, "533240c2b4b4a525f3bf6b27e2ae5a16d19d4904c07c38f3" },
    { GCUDA_TYPE_Q8_0, false, 0, "4d269dfb59b61472d02e8be947a50361be1c7ad73593f14fac0a68c62481df3d9af8" },
    { GCUDA_TYPE_Q8_1, false, 0, "4d261cc49dfb59b61472d02e8be947a50361be1c7ad73593f14fac0a68c62481df3d9af8" },
    { GCUDA_TYPE_IQ4_NL, false, 0, "5426f157ce137adf249cf036bd0258ce137a" },
    { GCUDA_TYPE_IQ4_NL, true, 0, "9826f157ce137adf249be146bd0258ce137a" },
    { GCUDA_TYPE_IQ4_XS, true, 0x11c06769, "ab923c0ce00ee021f157ce137adf249b" },
    { GCUDA_TYPE_MXFP4, false, 0, "7e7ec056fe9267ec147fda35feb056ed93" },
    { GCUDA_TYPE_Q8_K, false, 0x63be7cac, "2693c93c9dfb59b61472d02e8be947a5" },
    { GCUDA_TYPE_Q2_K, false, 0x44499a3a, "bcdfeebeefaceeacdedecddffedeffce" },
    { GCUDA_TYPE_Q3_K, false, 0x1b27085d, "66cdb366d9336c9936cc9b66cdb366d9" },
    { GCUDA_TYPE_Q4_K, false, 0xb257fdd6, "de1e802afffffffafff8fafaceafbfbc" },
    { GCUDA_TYPE_Q5_K, false, 0xbcf97e33, "861a532afdfdfdfdfefbfdfeffcdedfd" },
    { GCUDA_TYPE_Q6_K, false, 0x125dc5fb, "45df28bc069f137cf08ad367f14ade28" },
};

static uint32_t fnv(const uint8_t * p, size_t n) {
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < n; ++i) { h = (h ^ p[i]) * 16777619u; }
    return h;
}

TEST(quantize_vectors) {
    float x[256];
    for (int i = 0; i < 256; ++i) { x[i] = (float) ((37 * i + 11) % 101 - 50) / 16.0f; }
    for (size_t k = 0; k < sizeof quantize_vectors / sizeof quantize_vectors[0]; ++k) {
        const struct quantize_vector * e = &quantize_vectors[k];
        const struct gcuda_type_traits * t = gcuda_get_type_traits(e->type);
        uint64_t aligned[(MAX_BLOCK + 7) / 8];
        uint8_t * b = (uint8_t *) aligned;
        char hex[33] = "";
        memset(b, 0xAA, MAX_BLOCK);
        if (e->offline) {
            CHECK_EQ_I(gcuda_quantize_chunk(e->type, x, b, 0, 1, t->blck_size, NULL), t->type_size);
        } else {
            t->from_float_ref(x, b, t->blck_size);
        }
        for (size_t i = 0; i < 16; ++i) { snprintf(hex + 2 * i, 3, "%02x", b[i]); }
        CHECK_MSG(strncmp(hex, e->bytes, 32) == 0, "%s is %s, want %s", t->type_name, hex, e->bytes);
        if (e->hash != 0) {
            CHECK_MSG(fnv(b, t->type_size) == e->hash, "%s hash %08x, want %08x", t->type_name, fnv(b, t->type_size),
                e->hash);
        } else {
            CHECK_EQ_I(strlen(e->bytes), 2 * t->type_size);
            for (size_t i = 0; i < t->type_size; ++i) {
                unsigned want = 0;
                sscanf(e->bytes + 2 * i, "%2x", &want);
                CHECK_MSG(b[i] == want, "%s byte %d is %02x, want %02x", t->type_name, (int) i, b[i], want);
            }
        }
    }
}

TEST(mxfp4_reads_the_smallest_scales) {
    uint8_t b[17] = { 0, 0x71 }; // codes 1 and 7: 1 and 12 units
    float v[32];
    const gcuda_to_float_t to_float = gcuda_get_type_traits(GCUDA_TYPE_MXFP4)->to_float;
    for (int e = 0; e < 255; ++e) {
        b[0] = (uint8_t) e;
        to_float(b, v, 32);
        CHECK_MSG(v[0] == (float) ldexp(1.0, e - 128) && v[16] == (float) ldexp(12.0, e - 128) && v[1] == 0.0f,
            "exponent %d gives %g and %g", e, v[0], v[16]);
    }
}

// =====================================================================================================
// >>quality   errors of quantization
// =====================================================================================================
static double round_trip_limit(enum gcuda_type type) {
    return type == GCUDA_TYPE_Q2_K ? 0.0075 : type == GCUDA_TYPE_Q3_K ? 0.0040 : 0.002;
}
static double dot_limit(enum gcuda_type type) { return type == GCUDA_TYPE_Q2_K ? 0.04 : 0.02; }

TEST(round_trip) {
    enum { N = 4096 };
    static float x[N], y[N], back[N], fast[N];
    static uint64_t blocks[N];
    for (int i = 0; i < N; ++i) {
        x[i] = 0.1f + 2.0f * cosf((float) i);
        y[i] = 0.1f + 2.0f * cosf((float) i + 1.0f);
    }
    for (int k = 0; k < N_QUANTIZABLE; ++k) {
        const struct gcuda_type_traits * t = gcuda_get_type_traits(quantizable[k]);
        CHECK_EQ_I(gcuda_quantize_chunk(quantizable[k], x, blocks, 0, 1, N, NULL), gcuda_row_size(quantizable[k], N));
        t->to_float(blocks, back, N);
        t->from_float_ref(x, blocks, N);
        t->to_float(blocks, fast, N);
        double error = 0, difference = 0, dot = 0, want = 0;
        for (int i = 0; i < N; ++i) {
            error += (x[i] - back[i]) * (double) (x[i] - back[i]);
            difference += (fast[i] - back[i]) * (double) (fast[i] - back[i]);
            dot += back[i] * (double) y[i];
            want += x[i] * (double) y[i];
        }
        CHECK_MSG(
            sqrt(error) / N < round_trip_limit(quantizable[k]), "%s: round trip %g", t->type_name, sqrt(error) / N);
        CHECK_MSG(
            sqrt(difference) / N < 0.002, "%s: offline and quick differ by %g", t->type_name, sqrt(difference) / N);
        CHECK_MSG(fabs(dot - want) / N < dot_limit(quantizable[k]), "%s: dot %g, want %g", t->type_name, dot, want);
    }
}

TEST(more_bits_are_better) {
    static const enum gcuda_type order[] = { GCUDA_TYPE_Q2_K, GCUDA_TYPE_Q3_K, GCUDA_TYPE_Q4_K, GCUDA_TYPE_Q5_K,
        GCUDA_TYPE_Q6_K, GCUDA_TYPE_Q8_0, GCUDA_TYPE_F16, GCUDA_TYPE_F32 };
    static float x[4096], back[4096];
    static uint64_t blocks[4096];
    struct rng r = rng_for("more_bits_are_better");
    double last = 1e30;
    for (int i = 0; i < 4096; ++i) { x[i] = (float) (rng_between(&r, -1, 1) * rng_between(&r, -1, 1)); }
    for (size_t k = 0; k < sizeof order / sizeof order[0]; ++k) {
        CHECK(gcuda_quantize_chunk(order[k], x, blocks, 0, 4, 1024, NULL) > 0);
        gcuda_get_type_traits(order[k])->to_float(blocks, back, 4096);
        double error = 0;
        for (int i = 0; i < 4096; ++i) { error += (x[i] - back[i]) * (double) (x[i] - back[i]); }
        CHECK_MSG(error < last, "%s: error %g, the one before %g", gcuda_type_name(order[k]), error, last);
        last = error;
    }
    CHECK(last == 0);
}

// =====================================================================================================
// >>edges
// =====================================================================================================
TEST(zero_blocks) {
    float x[256] = { 0 }, back[256];
    for (int k = 0; k < N_QUANTIZABLE; ++k) {
        const struct gcuda_type_traits * t = gcuda_get_type_traits(quantizable[k]);
        uint64_t blocks[128];
        for (int rule = 0; rule < 2; ++rule) {
            memset(blocks, 0xAA, sizeof blocks);
            if (rule == 0) {
                t->from_float_ref(x, blocks, 256);
            } else {
                CHECK(gcuda_quantize_chunk(quantizable[k], x, blocks, 0, 1, 256, NULL) > 0);
            }
            t->to_float(blocks, back, 256);
            for (int i = 0; i < 256; ++i) { CHECK_MSG(back[i] == 0.0f, "%s gives %g", t->type_name, back[i]); }
        }
    }
}

static void check_bytes(enum gcuda_type type, const float * x, const char * hex) {
    uint64_t aligned[(MAX_BLOCK + 7) / 8];
    char got[2 * MAX_BLOCK + 1] = "";
    gcuda_get_type_traits(type)->from_float_ref(x, aligned, gcuda_blck_size(type));
    for (size_t i = 0; i < gcuda_type_size(type); ++i) { snprintf(got + 2 * i, 3, "%02x", ((uint8_t *) aligned)[i]); }
    CHECK_MSG(strcmp(got, hex) == 0, "%s is %s, want %s", gcuda_type_name(type), got, hex);
}

// A block too small for a reciprocal of its scale is a block of zeros, byte for byte.
TEST(zero_and_tiny_blocks_have_known_bytes) {
    for (int sign = -1; sign <= 1; ++sign) {
        float x[256];
        for (int i = 0; i < 256; ++i) { x[i] = (float) sign * 1e-41f * (float) (i % 7); }
        check_bytes(GCUDA_TYPE_Q4_0, x, "008088888888888888888888888888888888");
        check_bytes(GCUDA_TYPE_Q5_0, x, "0080ffffffff00000000000000000000000000000000");
        check_bytes(GCUDA_TYPE_Q8_0, x, "00000000000000000000000000000000000000000000000000000000000000000000");
        check_bytes(GCUDA_TYPE_IQ4_NL, x, "000088888888888888888888888888888888");
        if (sign == 0) {
            check_bytes(GCUDA_TYPE_Q4_1, x, "0000000000000000000000000000000000000000");
            check_bytes(GCUDA_TYPE_Q5_1, x, "000000000000000000000000000000000000000000000000");
            check_bytes(GCUDA_TYPE_MXFP4, x, "0000000000000000000000000000000000");
        }
        uint64_t b[(MAX_BLOCK + 7) / 8], none[(MAX_BLOCK + 7) / 8] = { 0 };
        gcuda_get_type_traits(GCUDA_TYPE_Q8_K)->from_float_ref(x, b, 256);
        CHECK(memcmp(b, none, gcuda_type_size(GCUDA_TYPE_Q8_K)) == 0);
    }
}

TEST(codes_at_the_rounding_boundaries) {
    float x[32] = { -8.0f, 7.5f, 7.49999f, 0.5f, -0.5f, 1e-30f }; // Q4_0: d = 1, ties go up, 7.5 is cut to 15
    uint64_t aligned[8];
    const uint8_t * b = (const uint8_t *) aligned;
    gcuda_get_type_traits(GCUDA_TYPE_Q4_0)->from_float_ref(x, aligned, 32);
    static const int want[6] = { 0, 15, 15, 9, 8, 8 };
    for (int i = 0; i < 6; ++i) { CHECK_EQ_I(b[2 + i] & 15, want[i]); }
    // Q8_0: d = 1, ties away from zero
    float y[32] = { 127.0f, 0.49999997f, 0.5f, -0.5f, 2.5f, -2.5f, 126.5f, -126.49999f };
    static const int codes[8] = { 127, 0, 1, -1, 3, -3, 127, -126 };
    gcuda_get_type_traits(GCUDA_TYPE_Q8_0)->from_float_ref(y, aligned, 32);
    for (int i = 0; i < 8; ++i) { CHECK_EQ_I((int8_t) b[2 + i], codes[i]); }
    float z[32] = { 8.0f, 0.5f, -0.5f, 0.25f, 0.75f, 2.5f, 3.5f, 5.0f, 5.0000005f, -15.9f }; // MXFP4: unit 1
    static const int e2m1[10] = { 6, 0, 0, 0, 1, 2, 3, 4, 5, 15 };
    gcuda_get_type_traits(GCUDA_TYPE_MXFP4)->from_float_ref(z, aligned, 32);
    CHECK_EQ_I(b[0], 128);
    for (int i = 0; i < 10; ++i) { CHECK_EQ_I(b[1 + i] & 15, e2m1[i]); }
}

static float bad_number(struct rng * r) {
    static const float numbers[] = { NAN, -NAN, INFINITY, -INFINITY, FLT_MAX, -FLT_MAX, FLT_MIN, -FLT_MIN, 1e-45f,
        -1e-45f, 0.0f, -0.0f, 1e30f, -1e30f, 1e-30f, -1e-38f, 65504.0f, 65520.0f, 1.0f, -1.0f };
    return numbers[rng_below(r, sizeof numbers / sizeof numbers[0])];
}

// Any input: nothing outside the block is written, all bytes inside are, the same each time. The sanitizers check that
// no float is converted that does not fit.
TEST(no_input_does_harm) {
    enum { ROWS = 2, COLS = 512, BYTES = GUARD + ROWS * COLS * 4 + GUARD };
    static float x[ROWS * COLS], iw[COLS], back[ROWS * COLS];
    static uint64_t first[BYTES / 8], second[BYTES / 8];
    uint8_t *a = (uint8_t *) first, *b = (uint8_t *) second;
    struct rng r = rng_for("no_input_does_harm");
    for (int round = 0; round < (test_full() ? 2000 : 150); ++round) {
        const double share = rng_unit(&r) * rng_unit(&r);
        const float scale = (float) pow(10.0, rng_between(&r, -44, 38));
        for (int i = 0; i < ROWS * COLS; ++i) {
            x[i] = rng_unit(&r) < share ? bad_number(&r) : scale * (float) rng_between(&r, -1, 1);
        }
        static const float ends[] = { 0.0f, -0.0f, 1e-45f, FLT_MIN, 1e-30f, 1e15f };
        for (int i = 0; i < COLS; ++i) { iw[i] = rng_unit(&r) < 0.1 ? ends[rng_below(&r, 6)] : (float) rng_unit(&r); }
        for (int k = 0; k < N_QUANTIZABLE * 2; ++k) {
            const enum gcuda_type type = quantizable[k / 2];
            const size_t n = gcuda_row_size(type, ROWS * COLS);
            memset(a, 0xAA, BYTES);
            memset(b, 0x55, BYTES);
            CHECK_EQ_I(gcuda_quantize_chunk(type, x, a + GUARD, 0, ROWS, COLS, k % 2 ? iw : NULL), n);
            CHECK_EQ_I(gcuda_quantize_chunk(type, x, b + GUARD, 0, ROWS, COLS, k % 2 ? iw : NULL), n);
            CHECK_MSG(memcmp(a + GUARD, b + GUARD, n) == 0, "%s: a byte is not written", gcuda_type_name(type));
            for (int i = 0; i < GUARD; ++i) { CHECK(a[i] == 0xAA && a[GUARD + n + (size_t) i] == 0xAA); }
            gcuda_get_type_traits(type)->from_float_ref(x, a + GUARD, ROWS * COLS);
            gcuda_get_type_traits(type)->to_float(a + GUARD, back, ROWS * COLS);
        }
    }
}

TEST(dequantize_any_bytes) {
    struct rng r = rng_for("dequantize_any_bytes");
    for (int round = 0; round < 200; ++round) {
        uint64_t block[(MAX_BLOCK + 7) / 8];
        float v[256 + 2];
        for (size_t i = 0; i < sizeof block / 8; ++i) { block[i] = rng_u64(&r); }
        for (int id = 0; id < GCUDA_TYPE_COUNT; ++id) {
            const struct gcuda_type_traits * t = gcuda_get_type_traits((enum gcuda_type) id);
            if (t == NULL || !t->is_quantized) { continue; }
            v[0] = v[t->blck_size + 1] = 12345.0f;
            t->to_float(block, v + 1, t->blck_size);
            CHECK(v[0] == 12345.0f && v[t->blck_size + 1] == 12345.0f);
            t->to_float(block, v + 1, 0); // no elements: nothing happens
        }
    }
}

// =====================================================================================================
// >>chunk
// =====================================================================================================
static void check_refused(enum gcuda_type type, const float * x, void * y, int64_t start, int64_t n_rows,
    int64_t n_per_row, const char * message) {
    gcuda_clear_last_error();
    CHECK_EQ_I(gcuda_quantize_chunk(type, x, y, start, n_rows, n_per_row, NULL), 0);
    CHECK_HAS(gcuda_last_error(), message);
}

static bool is_row_of_types(int id) {
    static const int ids[] = {
#define X(ID, id, ...) id,
        GCUDA_TYPES(X)
#undef X
    };
    bool is_row = false;
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; ++i) { is_row = is_row || ids[i] == id; }
    return is_row;
}

TEST(chunk_refuses) {
    static float x[1024];
    static uint64_t y[1024];
    int n_gaps = 0; // below GCUDA_TYPE_COUNT: at least 4 and 5, which formats of long ago had
    for (int id = -1; id < GCUDA_TYPE_COUNT + 60; ++id) {
        if (is_row_of_types(id)) { continue; }
        check_refused((enum gcuda_type) id, x, y, 0, 1, 256, "cannot make invalid");
        n_gaps += id >= 0 && id < GCUDA_TYPE_COUNT;
    }
    CHECK(n_gaps >= 2);
    check_refused((enum gcuda_type)(1 << 30), x, y, 0, 1, 256, "cannot make invalid");
    for (int i = 0; i < N_GRIDS; ++i) { check_refused(grids[i], x, y, 0, 1, 256, "cannot make iq"); }
    check_refused(GCUDA_TYPE_I32, x, y, 0, 1, 256, "cannot make i32");
    check_refused(GCUDA_TYPE_Q4_K, x, y, 0, 1, 128, "whole q4_K blocks of 256");
    check_refused(GCUDA_TYPE_Q4_0, x, y, 0, 1, 33, "whole q4_0 blocks");
    check_refused(GCUDA_TYPE_Q4_0, x, y, 0, 1, 0, "whole q4_0 blocks");
    check_refused(GCUDA_TYPE_Q4_0, x, y, 0, 1, -32, "whole q4_0 blocks");
    check_refused(GCUDA_TYPE_Q4_0, x, y, 0, -1, 32, "-1 rows");
    check_refused(GCUDA_TYPE_Q4_0, x, y, 32, 1, 64, "start 32 is not the start of a row of 64");
    check_refused(GCUDA_TYPE_Q4_0, x, y, -64, 1, 64, "start -64");
    check_refused(GCUDA_TYPE_Q4_0, NULL, y, 0, 1, 64, "src is NULL");
    check_refused(GCUDA_TYPE_Q4_0, x, NULL, 0, 1, 64, "dst is NULL");
    check_refused(GCUDA_TYPE_Q4_0, x, (char *) y + 1, 0, 1, 64, "not aligned");
    check_refused(GCUDA_TYPE_Q8_K, x, (char *) y + 2, 0, 1, 256, "not aligned");
    check_refused(GCUDA_TYPE_Q4_0, x, y, 0, INT64_MAX / 32, 64, "too many bytes");
    check_refused(GCUDA_TYPE_Q8_K, x, y, 0, INT64_MAX / 256, 256, "too many bytes");
    check_refused(GCUDA_TYPE_F32, x, y, INT64_MAX, 1, 1, "too many bytes");
    check_refused(GCUDA_TYPE_Q4_0, x, y, INT64_MAX - INT64_MAX % 32, 2, 32, "too many bytes");
    gcuda_clear_last_error();
    CHECK_EQ_I(gcuda_quantize_chunk(GCUDA_TYPE_Q4_0, NULL, NULL, 0, 0, 32, NULL), 0); // no rows is no error
    CHECK(gcuda_last_error()[0] == '\0');
    CHECK(gcuda_quantize_chunk(GCUDA_TYPE_MXFP4, x, (char *) y + 1, 0, 1, 32, NULL) == 17); // bytes need no alignment
}

TEST(rows_refuse_with_a_status) {
    static float x[256];
    static uint64_t y[256];
    CHECK_EQ_I(gcuda_quantize_rows(GCUDA_TYPE_IQ2_XXS, x, y, 1, 256, NULL, 1), GCUDA_STATUS_UNSUPPORTED);
    CHECK_EQ_I(gcuda_quantize_rows(GCUDA_TYPE_Q4_K, x, y, 1, 255, NULL, 1), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_EQ_I(gcuda_quantize_rows(GCUDA_TYPE_Q4_K, x, NULL, 1, 256, NULL, 1), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_EQ_I(gcuda_quantize_rows(GCUDA_TYPE_Q4_K, x, y, INT64_MAX, 256, NULL, 1), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_OK(gcuda_quantize_rows(GCUDA_TYPE_Q4_K, NULL, NULL, 0, 256, NULL, 4));
}

TEST(pieces_make_the_whole) {
    enum { ROWS = 7, COLS = 256 };
    static float x[ROWS * COLS], iw[COLS];
    static uint64_t whole[ROWS * COLS], pieces[ROWS * COLS];
    struct rng r = rng_for("pieces_make_the_whole");
    for (int i = 0; i < ROWS * COLS; ++i) { x[i] = (float) rng_between(&r, -1, 1); }
    for (int i = 0; i < COLS; ++i) { iw[i] = (float) rng_unit(&r); }
    for (int k = 0; k < N_QUANTIZABLE * 2; ++k) {
        const enum gcuda_type type = quantizable[k / 2];
        const float * w = k % 2 ? iw : NULL;
        const size_t row = gcuda_row_size(type, COLS);
        memset(pieces, 0xAA, sizeof pieces);
        CHECK_EQ_I(gcuda_quantize_chunk(type, x, whole, 0, ROWS, COLS, w), ROWS * row);
        CHECK_EQ_I(gcuda_quantize_chunk(type, x, pieces, 2 * COLS, 3, COLS, w), 3 * row);
        for (size_t i = 0; i < 2 * row; ++i) { CHECK(((uint8_t *) pieces)[i] == 0xAA); }
        for (size_t i = 5 * row; i < 7 * row; ++i) { CHECK(((uint8_t *) pieces)[i] == 0xAA); }
        CHECK_EQ_I(gcuda_quantize_chunk(type, x, pieces, 0, 2, COLS, w), 2 * row);
        CHECK_EQ_I(gcuda_quantize_chunk(type, x, pieces, 5 * COLS, 2, COLS, w), 2 * row);
        CHECK_MSG(memcmp(whole, pieces, ROWS * row) == 0, "%s", gcuda_type_name(type));
    }
}

TEST(threads_make_the_same_bytes) {
    enum { ROWS = 301, COLS = 256 };
    static float x[ROWS * COLS], iw[COLS];
    static uint64_t one[ROWS * COLS], many[ROWS * COLS];
    struct rng r = rng_for("threads_make_the_same_bytes");
    for (int i = 0; i < ROWS * COLS; ++i) { x[i] = (float) rng_between(&r, -1, 1); }
    for (int i = 0; i < COLS; ++i) { iw[i] = (float) rng_unit(&r); }
    static const int counts[] = { 0, 2, 3, 8, 1000, -5 };
    for (int k = 0; k < N_QUANTIZABLE; ++k) {
        const float * w = k % 2 ? iw : NULL;
        const size_t n = gcuda_row_size(quantizable[k], ROWS * COLS);
        CHECK_OK(gcuda_quantize_rows(quantizable[k], x, one, ROWS, COLS, w, 1));
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; ++i) {
            memset(many, 0xAA, n);
            CHECK_OK(gcuda_quantize_rows(quantizable[k], x, many, ROWS, COLS, w, counts[i]));
            CHECK_MSG(memcmp(one, many, n) == 0, "%s with %d threads", gcuda_type_name(quantizable[k]), counts[i]);
        }
    }
}

TEST(which_types_want_importance) {
    for (int id = -1; id < 100; ++id) {
        const bool want = id == GCUDA_TYPE_IQ2_XXS || id == GCUDA_TYPE_IQ2_XS || id == GCUDA_TYPE_IQ1_S;
        CHECK(gcuda_quantize_requires_imatrix((enum gcuda_type) id) == want);
    }
}

TEST(importance_makes_no_bad_blocks) { // of finite data: refused, or the blocks are finite
    enum { COLS = 512 };
    static float x[COLS], w[COLS];
    static uint64_t bytes[COLS];
    static const float bad[] = { FLT_MAX, HUGE_VALF, NAN, -1.0f, 1.1e15f }, sizes[] = { 1e-30f, 1.0f, 6e4f };
    struct rng r = rng_for("importance_makes_no_bad_blocks");
    for (int k = 0; k < N_QUANTIZABLE; ++k) {
        const enum gcuda_type type = quantizable[k];
        const char * name = gcuda_type_name(type);
        const bool is_used = gcuda_is_quantized(type) && type != GCUDA_TYPE_Q8_0 && type != GCUDA_TYPE_Q8_1 &&
                             type != GCUDA_TYPE_Q8_K && type != GCUDA_TYPE_MXFP4;
        for (int i = 0; i < COLS; ++i) { x[i] = (float) rng_between(&r, -1, 1), w[i] = (float) rng_unit(&r); }
        for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
            const float before = w[77];
            w[77] = bad[i];
            const gcuda_status st = gcuda_quantize_rows(type, x, bytes, 1, COLS, w, 1);
            CHECK_MSG(st == (is_used ? GCUDA_STATUS_INVALID_ARGUMENT : GCUDA_STATUS_SUCCESS), "%s, importance %g", name,
                (double) bad[i]);
            if (is_used) { CHECK_HAS(gcuda_last_error(), "column 77"); }
            CHECK_MSG((gcuda_quantize_chunk(type, x, bytes, 0, 1, COLS, w) == 0) == is_used, "%s, importance %g", name,
                (double) bad[i]);
            w[77] = before;
        }
        for (int i = 0; i < COLS; ++i) { w[i] = i % 3 == 0 ? 1e15f : 0.0f; }
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; ++i) {
            for (int j = 0; j < COLS; ++j) { x[j] = sizes[i] * (float) rng_between(&r, -1, 1); }
            CHECK_OK(gcuda_quantize_rows(type, x, bytes, 1, COLS, w, 1));
            CHECK_MSG(gcuda_validate_row_data(type, bytes, gcuda_row_size(type, COLS)), "%s of %g: %s", name,
                (double) sizes[i], gcuda_last_error());
        }
    }
}

// =====================================================================================================
// >>validation   of row data
// =====================================================================================================
static void make_valid(enum gcuda_type type, uint8_t * b) {
    int at[2];
    half_fields(type, at);
    for (int k = 0; k < 2; ++k) {
        if (at[k] >= 0) { put_u16(b + at[k], 0x7BFF); } // the largest finite one
    }
    if (type == GCUDA_TYPE_Q8_K) { put_f32(b, FLT_MAX); }
    if (type == GCUDA_TYPE_MXFP4) { b[0] = 0xFE; }
    if (type == GCUDA_TYPE_IQ1_M) { set_iq1_m_scale(b, 0xFBFF); }
}

static void check_bad_block(enum gcuda_type type, const uint8_t * data, size_t n_bytes, int64_t want) {
    int64_t block = 77;
    CHECK(gcuda_check_row_data(type, data, n_bytes, &block) ==
          (want < 0 ? GCUDA_STATUS_SUCCESS : GCUDA_STATUS_INVALID_DATA));
    CHECK_MSG(
        block == want, "%s: bad block %lld, want %lld", gcuda_type_name(type), (long long) block, (long long) want);
    CHECK(gcuda_validate_row_data(type, data, n_bytes) == (want < 0));
}

TEST(validation_of_blocks) {
    static uint8_t data[3 * MAX_BLOCK + 1];
    uint8_t * base = data + 1; // odd on purpose
    struct rng r = rng_for("validation_of_blocks");
    for (int id = 0; id < GCUDA_TYPE_COUNT; ++id) {
        const enum gcuda_type type = (enum gcuda_type) id;
        const size_t size = gcuda_type_size(type);
        if (!gcuda_is_quantized(type)) { continue; }
        for (size_t i = 0; i < sizeof data; ++i) { data[i] = (uint8_t) rng_u64(&r); }
        for (size_t i = 0; i < 3; ++i) { make_valid(type, base + i * size); }
        check_bad_block(type, base, 3 * size, -1);
        int at[2];
        half_fields(type, at);
        for (int k = 0; k < 2; ++k) {
            static const unsigned bad[] = { 0x7C00, 0xFC00, 0x7C01, 0xFFFF };
            for (int j = 0; j < 4 && at[k] >= 0; ++j) {
                put_u16(base + size + at[k], bad[j]);
                check_bad_block(type, base, 3 * size, 1);
                check_bad_block(type, base, size, -1);
                make_valid(type, base + size);
            }
        }
        if (type == GCUDA_TYPE_Q8_K) {
            put_f32(base + 2 * size, -INFINITY);
            check_bad_block(type, base, 3 * size, 2);
        }
        if (type == GCUDA_TYPE_MXFP4) {
            base[2 * size] = 0xFF;
            check_bad_block(type, base, 3 * size, 2);
        }
        if (type == GCUDA_TYPE_IQ1_M) {
            for (unsigned half = 0; half < 65536; ++half) {
                set_iq1_m_scale(base + 2 * size, half);
                CHECK(gcuda_validate_row_data(type, base, 3 * size) == ((half & 0x7C00u) != 0x7C00u));
            }
        }
    }
}

TEST(validation_of_plain_types) {
    const float f[3] = { FLT_MAX, -0.0f, NAN };
    const double d[3] = { DBL_MAX, INFINITY, 1 };
    const uint16_t h[4] = { 0x7BFF, 0x8000, 0x03FF, 0xFC00 }, bf[3] = { 0x7F7F, 0x7FC0, 0x7F80 };
    const int64_t i[2] = { -1, INT64_MIN };
    check_bad_block(GCUDA_TYPE_F32, (const uint8_t *) f, 12, 2);
    check_bad_block(GCUDA_TYPE_F32, (const uint8_t *) f, 8, -1);
    check_bad_block(GCUDA_TYPE_F64, (const uint8_t *) d, 24, 1);
    check_bad_block(GCUDA_TYPE_F16, (const uint8_t *) h, 8, 3);
    check_bad_block(GCUDA_TYPE_BF16, (const uint8_t *) bf, 6, 1);
    check_bad_block(GCUDA_TYPE_I8, (const uint8_t *) i, 16, -1);
    check_bad_block(GCUDA_TYPE_I16, (const uint8_t *) i, 16, -1);
    check_bad_block(GCUDA_TYPE_I32, (const uint8_t *) i, 16, -1);
    check_bad_block(GCUDA_TYPE_I64, (const uint8_t *) i, 16, -1);
}

TEST(validation_refuses) {
    const uint8_t b[64] = { 0 };
    int64_t block = 5;
    CHECK_EQ_I(gcuda_check_row_data(GCUDA_TYPE_Q4_0, b, 17, &block), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_HAS(gcuda_last_error(), "17 bytes");
    CHECK_EQ_I(block, -1);
    CHECK_EQ_I(gcuda_check_row_data(GCUDA_TYPE_Q4_0, NULL, 18, NULL), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_EQ_I(gcuda_check_row_data((enum gcuda_type) 4, b, 18, NULL), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_EQ_I(gcuda_check_row_data((enum gcuda_type) - 1, b, 18, NULL), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_OK(gcuda_check_row_data(GCUDA_TYPE_Q4_0, NULL, 0, NULL));
    CHECK(!gcuda_validate_row_data(GCUDA_TYPE_Q4_0, b, 19));
}

// =====================================================================================================
// >>halves
// =====================================================================================================
static double half_value(unsigned h) {
    const int exponent = (int) (h >> 10 & 31);
    const double fraction = h & 1023;
    const double v = exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, exponent - 25);
    return h & 0x8000 ? -v : v;
}

TEST(fp16_all_values) {
    for (unsigned h = 0; h < 65536; ++h) {
        const float v = gcuda_fp16_to_fp32((gcuda_fp16_t) h);
        if ((h & 0x7FFF) > 0x7C00) {
            CHECK(isnan(v) && !signbit(v) == !(h & 0x8000) && gcuda_fp32_to_fp16(v) == (h | 0x0200));
        } else if ((h & 0x7FFF) == 0x7C00) {
            CHECK(isinf(v) && !signbit(v) == !(h & 0x8000) && gcuda_fp32_to_fp16(v) == h);
        } else {
            CHECK(v == half_value(h) && !signbit(v) == !(h & 0x8000) && gcuda_fp32_to_fp16(v) == h);
        }
    }
}

TEST(fp16_rounds_to_nearest_even) {
    for (unsigned h = 0; h < 0x7BFF; ++h) {
        const double low = half_value(h), high = half_value(h + 1), middle = (low + high) / 2;
        const float m = (float) middle; // exact
        const gcuda_fp16_t even = (gcuda_fp16_t) (h & 1 ? h + 1 : h);
        CHECK(gcuda_fp32_to_fp16(m) == even && gcuda_fp32_to_fp16(-m) == (even | 0x8000));
        CHECK(gcuda_fp32_to_fp16(nextafterf(m, 0)) == h && gcuda_fp32_to_fp16(nextafterf(m, 1e9f)) == h + 1);
    }
    CHECK(gcuda_fp32_to_fp16(65519.996f) == 0x7BFF && gcuda_fp32_to_fp16(65520.0f) == 0x7C00);
    CHECK(gcuda_fp32_to_fp16(-1e30f) == 0xFC00 && gcuda_fp32_to_fp16(1e-45f) == 0 &&
          gcuda_fp32_to_fp16(-1e-45f) == 0x8000);
}

TEST(bf16_rounds_to_nearest_even) {
    static const struct {
        uint32_t in;
        uint16_t out;
    } v[] = {
        { 0x3F800000, 0x3F80 },
        { 0x3F808000, 0x3F80 },
        { 0x3F808001, 0x3F81 },
        { 0x3F818000, 0x3F82 },
        { 0x3F817FFF, 0x3F81 },
        { 0x00000001, 0x0000 },
        { 0x00008001, 0x0001 },
        { 0x80018000, 0x8002 },
        { 0x7F7FFFFF, 0x7F80 },
        { 0x7F800000, 0x7F80 },
        { 0xFF800000, 0xFF80 },
        { 0x7F800001, 0x7FC0 },
        { 0xFFFFFFFF, 0xFFFF },
        { 0x7FC00000, 0x7FC0 },
    };
    for (size_t i = 0; i < sizeof v / sizeof v[0]; ++i) {
        float f;
        memcpy(&f, &v[i].in, 4);
        CHECK_MSG(
            gcuda_fp32_to_bf16(f).bits == v[i].out, "%08x gives %04x", (unsigned) v[i].in, gcuda_fp32_to_bf16(f).bits);
    }
    for (unsigned h = 0; h < 65536; ++h) {
        const gcuda_bf16_t b = { (uint16_t) h };
        const float f = gcuda_bf16_to_fp32(b);
        const bool quiet = isnan(f);
        CHECK(gcuda_fp32_to_bf16(f).bits == (quiet ? h | 0x40 : h));
    }
}

// The row forms may take another way (SIMD), but not to another result.
TEST(conversion_rows_equal_single_values) {
    enum { N = 1000 };
    static float x[N], back[N];
    static gcuda_fp16_t h[N];
    static gcuda_bf16_t b[N];
    struct rng r = rng_for("conversion_rows_equal_single_values");
    for (int n = 0; n < N; n = n < 40 ? n + 1 : n + 97) {
        for (int i = 0; i < n; ++i) {
            const uint32_t bits = (uint32_t) rng_u64(&r);
            memcpy(&x[i], &bits, 4);
            if (i % 3 == 0) { x[i] = (float) rng_between(&r, -1e-4, 1e-4); }
            if (isnan(x[i])) { x[i] = 1.0f; }
        }
        gcuda_fp32_to_fp16_row(x, h, n);
        gcuda_fp16_to_fp32_row(h, back, n);
        gcuda_fp32_to_bf16_row(x, b, n);
        for (int i = 0; i < n; ++i) {
            CHECK(h[i] == gcuda_fp32_to_fp16(x[i]) && back[i] == gcuda_fp16_to_fp32(h[i]));
            CHECK(b[i].bits == gcuda_fp32_to_bf16(x[i]).bits);
        }
        gcuda_bf16_to_fp32_row(b, back, n);
        for (int i = 0; i < n; ++i) { CHECK(back[i] == gcuda_bf16_to_fp32(b[i])); }
    }
}
