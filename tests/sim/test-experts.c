// Products of experts on INT8 with the experts and lists of tests/hw/test-warp-groups.c, but fewer and shorter rows.
// That test gives each of 170 SMs several tasks, which takes the simulation nine minutes of processor time (level full
// only). This one gives as many to each of four SMs.
#include "../hw/device.h"

#pragma push_macro("TEST")
#undef TEST // that program's tests are its own
#define TEST(ident) TEST_UNUSED static void ident(void)
#include "../hw/test-warp-groups.c"
#pragma pop_macro("TEST")

static const enum gcuda_type byte_types[] = { GCUDA_TYPE_Q8_0, GCUDA_TYPE_Q4_0, GCUDA_TYPE_Q4_K, GCUDA_TYPE_IQ4_NL,
    GCUDA_TYPE_Q6_K, GCUDA_TYPE_Q5_K, GCUDA_TYPE_IQ4_XS, GCUDA_TYPE_IQ2_XS, GCUDA_TYPE_MXFP4 };
enum { N_BYTE_TYPES = sizeof byte_types / sizeof byte_types[0] };

TEST(experts_of_every_byte_type) {
    static const struct experts shapes[] = { { 576, 130, 5, 2, 1, 24, 0, ANY }, { 256, 40, 70, 3, 1, 20, 4, RISING },
        { 64, 128, 4, 2, 2, 10, 3, SAME } };
    if (!has_byte_products()) {
        test_skip("no tensor cores for bytes");
        return;
    }
    for (int t = 0; t < N_BYTE_TYPES; ++t) {
        for (int i = 0; i < 3; ++i) { experts_by_both(&by_bytes, byte_types[t], shapes[i]); }
    }
}

TEST(long_rows_and_many_lists) { // each type has one of each
    static const struct experts deep[] = { { 2880, 100, 8, 4, 4, 33, 1, BAD }, { 4096, 257, 3, 1, 1, 20, 0, FEW },
        { 9216, 260, 4, 2, 1, 9, 0, ANY } };
    static const struct experts many[] = { { 256, 160, 32, 4, 1, 32, 0, ANY }, { 256, 96, 128, 8, 1, 32, 0, RISING },
        { 288, 144, 32, 4, 1, 32, 0, BAD } };
    if (!has_byte_products()) {
        test_skip("no tensor cores for bytes");
        return;
    }
    for (int t = 0; t < N_BYTE_TYPES; ++t) {
        experts_by_both(&by_bytes, byte_types[t], deep[t % 3]);
        experts_by_both(&by_bytes, byte_types[t], many[(t + t / 3) % 3]);
    }
}

TEST(warp_groups_are_refused_where_there_are_none) {
    const struct shape s = { 256, 63, 129, 1 };
    for (int t = 0; t < 3; ++t) { product(types[t], GCUDA_TYPE_F32, s, 1.0); }
}
