// Tests of the operation harness: custom operations with one defect each must fail, a correct one must pass.
#include "test-ops.h"

enum defect {
    SOUND,
    WRONG_VALUE,
    QUIET_ROW,
    ONE_NAN,
    PAST_THE_END,
    BEFORE_THE_START,
    INTO_THE_SOURCE,
    BY_THREAD,
    FORGOTTEN,
    WRONG_STRIDE
};

static int n_runs;

static void copy_rows(struct gcuda_tensor * y, const struct gcuda_tensor * a, int ith, int nth, void * user) {
    const enum defect d = *(const enum defect *) user;
    float * out = (float *) y->data;
    for (int64_t i1 = ith; i1 < y->ne[1]; i1 += nth) {
        for (int64_t i0 = 0; i0 < y->ne[0]; ++i0) {
            const size_t nb1 = d == WRONG_STRIDE ? (size_t) y->ne[0] * 4 : a->nb[1];
            const float v = *(const float *) ((const char *) a->data + (size_t) i0 * a->nb[0] + (size_t) i1 * nb1);
            const bool here = i0 == y->ne[0] - 1 && i1 == y->ne[1] - 1;
            if (d == FORGOTTEN && here) { continue; }
            out[i1 * y->ne[0] + i0] = v + (d == WRONG_VALUE && here ? 0.05f : 0.0f);
            if (d == QUIET_ROW && here) { out[i1 * y->ne[0] + i0] *= 1.02f; }
            if (d == ONE_NAN && here) { out[i1 * y->ne[0] + i0] = (float) NAN; }
            if (d == BY_THREAD && here && n_runs++ % 2) { out[i1 * y->ne[0] + i0] = nextafterf(v, 2.0f); }
        }
    }
    if (d == PAST_THE_END && ith == 0) { out[gcuda_nelements(y) + 9] = 0.0f; }
    if (d == BEFORE_THE_START && ith == 0) { out[-9] = 0.0f; }
    if (d == INTO_THE_SOURCE && ith == 0) { *(float *) a->data = 0.5f; }
}

static struct gcuda_tensor * build_copy(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    union {
        const void * c;
        void * v;
    } u;
    u.c = p;
    return gcuda_map_custom1(ctx, in[0], copy_rows, GCUDA_N_TASKS_MAX, u.v);
}
static void ref_copy(const struct op_case * c) { arr_copy(c->out, c->in[0]); }

// the last row is a thousand times smaller
static void fill_rows(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    (void) c, (void) k;
    FOR_ARR(a) { AT(a, i0, i1, i2, i3) = rng_between(r, 0.5, 1) * (i1 == a->ne[1] - 1 && a->ne[1] > 1 ? 1e-3 : 1.0); }
}

enum { N_CASES = 2 }; // of a shape and a type: packed, lone

static long failed_cases(enum defect d, bool wide) {
    const struct test_state before = test_all;
    const struct op_test t = { .types = "F32",
        .shapes = "16,9",
        .n_in = 1,
        .build = build_copy,
        .ref = ref_copy,
        .p = &d,
        .max_nmse = 1e-7,
        .in = { { .fill = fill_rows, .layouts = wide ? LAYOUT_PADDED : 0 } } };
    test_all.quiet = true, test_all.filter = NULL;
    op_test_run(&t);
    const long n = test_all.n_failed - before.n_failed;
    test_all = before;
    return n;
}

TEST(defects_are_found) {
    static const enum defect all[] = { WRONG_VALUE, QUIET_ROW, ONE_NAN, PAST_THE_END, BEFORE_THE_START, INTO_THE_SOURCE,
        BY_THREAD, FORGOTTEN };
    CHECK_EQ_I(failed_cases(SOUND, true), 0);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i) {
        CHECK_MSG(failed_cases(all[i], false) == N_CASES, "defect %d passes", (int) all[i]);
    }
    CHECK_EQ_I(failed_cases(WRONG_STRIDE, true), 1); // right when packed
}

static void ref_other_shape(const struct op_case * c) { arr_new(c->out, c->in[0]->ne[1], c->in[0]->ne[0], 1, 1); }
static void ref_off_by_one_ulp(const struct op_case * c) {
    ref_copy(c);
    for (int64_t i = 0; i < arr_n(c->out); ++i) { c->out->d[i] += ulp_of(GCUDA_TYPE_F16, c->out->d[i]); }
}
static struct gcuda_tensor * build_identity(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    (void) p;
    return gcuda_view_tensor(ctx, in[0]);
}

TEST(references_are_held_to_it) { // shape, and one unit in the last place everywhere is too much
    const struct test_state before = test_all;
    enum defect d = SOUND;
    struct op_test t = { .types = "F32",
        .shapes = "16,9",
        .n_in = 1,
        .build = build_copy,
        .ref = ref_other_shape,
        .p = &d,
        .max_nmse = 1e-7 };
    test_all.quiet = true, test_all.filter = NULL;
    op_test_run(&t);
    CHECK(test_all.n_failed == before.n_failed + N_CASES);
    t.types = "F16", t.shapes = "300,9", t.ref = ref_off_by_one_ulp, t.build = build_identity, t.aliases = true;
    op_test_run(&t);
    const long n = test_all.n_failed - before.n_failed;
    test_all = before;
    CHECK_EQ_I(n, 2 * N_CASES);
}

TEST(rounding) { // the tests' own rounding, against values computed by hand
    CHECK(round_f16(65519.99) == 65504.0 && isinf(round_f16(65520.0)) && round_f16(2049.0) == 2048.0 &&
          round_f16(2051.0) == 2052.0);
    CHECK(round_f16(0x1p-25) == 0.0 && round_f16(0x1.8p-25) == 0x1p-24 && round_f16(0x1p-24) == 0x1p-24 &&
          round_f16(-0x1.4p-23) == -0x1p-23);
    CHECK(round_bf16(1.00390625) == 1.0 && round_bf16(1.01171875) == 1.015625 &&
          round_bf16(3.3961775292304601e38) == (double) HUGE_VALF);
    for (uint32_t h = 0; h < 0x10000; ++h) {
        const double v = value_f16((uint16_t) h);
        if (!isnan(v)) { CHECK(round_f16(v) == v && bits_f16(v) == h); }
    }
}
