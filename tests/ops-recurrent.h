// State-space and recurrent operations, triangular solve: references in float64 and the tables of cases.
// Part of test-ops.c.
#ifndef OPS_RECURRENT_H
#define OPS_RECURRENT_H

#include "test-ops.h"

// ---------------------------------------------------------------------------------------------------- references

// >>op:ssm_conv   sources: sx [K-1+T, D, S], c [K, D]
static void ref_ssm_conv(const struct op_case * c) {
    struct arr * y = c->out;
    arr_new(y, c->in[0]->ne[1], c->in[0]->ne[0] - c->in[1]->ne[0] + 1, c->in[0]->ne[2], 1);
    for (int64_t s = 0; s < y->ne[2]; ++s) {
        for (int64_t t = 0; t < y->ne[1]; ++t) {
            for (int64_t i = 0; i < y->ne[0]; ++i) {
                double sum = 0.0;
                for (int64_t k = 0; k < c->in[1]->ne[0]; ++k) {
                    sum += AT(c->in[0], t + k, i, s, 0) * AT(c->in[1], k, i, 0, 0);
                }
                AT(y, i, t, s, 0) = sum;
            }
        }
    }
}

// >>op:ssm_scan   sources: s, x, dt, A, B, C, ids; result: y [Pd, H, T, S], then states [N, Pd, H, S], one row of
//                 numbers
static void ref_ssm_token(const struct op_case * c, double * st, const int64_t * at, double * y) {
    const struct arr * a = c->in[3];
    const struct arr * b = c->in[4];
    const int64_t p = at[0], h = at[1], t = at[2], q = at[3];
    const int64_t g = h / (c->in[1]->ne[1] / b->ne[1]);
    const double dt = AT(c->in[2], h, t, q, 0);
    const double delta = dt > 20.0 ? dt : log(1.0 + exp(dt));
    const double xd = AT(c->in[1], p, h, t, q) * delta;
    *y = 0.0;
    for (int64_t n = 0; n < b->ne[0]; ++n) {
        st[n] = st[n] * exp(delta * AT(a, a->ne[0] == 1 ? 0 : n, h, 0, 0)) + AT(b, n, g, t, q) * xd;
        *y += st[n] * AT(c->in[5], n, g, t, q);
    }
}

struct p_ssm_scan {
    int64_t n_pad; // additional heads or groups of x, B and C, which a view leaves out
};

static void ref_ssm_scan(const struct op_case * c) {
    const struct arr * s = c->in[0];
    const int64_t * xe = c->in[1]->ne; // Pd, H, T, S
    const int64_t n_state = s->ne[0];
    arr_new(c->out, xe[0] * xe[1] * xe[2] * xe[3] + n_state * xe[0] * xe[1] * xe[3], 1, 1, 1);
    double * states = c->out->d + xe[0] * xe[1] * xe[2] * xe[3];
    for (int64_t i = 0; i < xe[0] * xe[1] * xe[3]; ++i) {
        const int64_t p = i % xe[0], h = i / xe[0] % xe[1], q = i / xe[0] / xe[1];
        double * st = states + i * n_state;
        const int64_t id = (int64_t) c->in[6]->d[q]; // one that does not exist: zeros
        for (int64_t n = 0; n < n_state; ++n) { st[n] = id >= 0 && id < s->ne[3] ? AT(s, n, p, h, id) : 0.0; }
        for (int64_t t = 0; t < xe[2]; ++t) {
            const int64_t at[4] = { p, h, t, q };
            ref_ssm_token(c, st, at, c->out->d + ((q * xe[2] + t) * xe[1] + h) * xe[0] + p);
        }
    }
}

// The three recurrences keep an Sz x Sz matrix per head and sequence after the rows of y. All are traversed alike.
struct p_linear_attn {
    float scale;
};

typedef void (*ref_step_fn)(const struct op_case * c, double * w, int64_t h, int64_t t, double * y);

static void ref_recurrence(const struct op_case * c, const struct arr * state, ref_step_fn step) {
    const int64_t sz = c->in[0]->ne[0], n_heads = c->in[0]->ne[1], n_tokens = c->in[0]->ne[2];
    const int64_t n_seqs = state->ne[1];
    arr_new(c->out, sz * n_heads, n_tokens + sz * n_seqs, 1, 1);
    double * w = c->out->d + sz * n_heads * n_tokens;
    memcpy(w, state->d, sizeof(double) * (size_t) (sz * sz * n_heads * n_seqs));
    for (int64_t t = 0; t < n_tokens; ++t) {
        const int64_t q = t / (n_tokens / n_seqs);
        for (int64_t h = 0; h < n_heads; ++h) {
            step(c, w + (q * n_heads + h) * sz * sz, h, t, c->out->d + (t * n_heads + h) * sz);
        }
    }
}

// >>op:rwkv_wkv6   sources: k, v, r, tf, td, state; w[key][value], the answer uses the state before the update
static void ref_wkv6_step(const struct op_case * c, double * w, int64_t h, int64_t t, double * y) {
    const int64_t sz = c->in[0]->ne[0];
    for (int64_t j = 0; j < sz; ++j) { y[j] = 0.0; }
    for (int64_t i = 0; i < sz; ++i) {
        for (int64_t j = 0; j < sz; ++j) {
            const double kv = AT(c->in[0], i, h, t, 0) * AT(c->in[1], j, h, t, 0);
            y[j] += AT(c->in[2], i, h, t, 0) * (AT(c->in[3], i, h, 0, 0) * kv + w[i * sz + j]);
            w[i * sz + j] = w[i * sz + j] * AT(c->in[4], i, h, t, 0) + kv;
        }
    }
}

static void ref_rwkv_wkv6(const struct op_case * c) { ref_recurrence(c, c->in[5], ref_wkv6_step); }

// >>op:gated_linear_attn   sources: k, v, q, g, state; w[key][value], the answer uses the updated state
static void ref_gla_step(const struct op_case * c, double * w, int64_t h, int64_t t, double * y) {
    const double scale = (double) ((const struct p_linear_attn *) c->p)->scale;
    const int64_t sz = c->in[0]->ne[0];
    for (int64_t j = 0; j < sz; ++j) { y[j] = 0.0; }
    for (int64_t i = 0; i < sz; ++i) {
        for (int64_t j = 0; j < sz; ++j) {
            w[i * sz + j] =
                w[i * sz + j] * AT(c->in[3], i, h, t, 0) + AT(c->in[0], i, h, t, 0) * AT(c->in[1], j, h, t, 0);
            y[j] += scale * AT(c->in[2], i, h, t, 0) * w[i * sz + j];
        }
    }
}

static void ref_gated_linear_attn(const struct op_case * c) { ref_recurrence(c, c->in[4], ref_gla_step); }

// >>op:rwkv_wkv7   sources: r, w, k, v, a, b, state; here the state is w[value][key]
static void ref_wkv7_step(const struct op_case * c, double * w, int64_t h, int64_t t, double * y) {
    const int64_t sz = c->in[0]->ne[0];
    for (int64_t i = 0; i < sz; ++i) {
        double sa = 0.0;
        for (int64_t j = 0; j < sz; ++j) { sa += AT(c->in[4], j, h, t, 0) * w[i * sz + j]; }
        y[i] = 0.0;
        for (int64_t j = 0; j < sz; ++j) {
            w[i * sz + j] = w[i * sz + j] * AT(c->in[1], j, h, t, 0) +
                            AT(c->in[3], i, h, t, 0) * AT(c->in[2], j, h, t, 0) + sa * AT(c->in[5], j, h, t, 0);
            y[i] += w[i * sz + j] * AT(c->in[0], j, h, t, 0);
        }
    }
}

static void ref_rwkv_wkv7(const struct op_case * c) { ref_recurrence(c, c->in[6], ref_wkv7_step); }

// >>op:solve_tri   forward substitution, all columns of a right side
static void ref_solve_tri(const struct op_case * c) {
    const struct arr * a = c->in[0];
    const struct arr * b = c->in[1];
    struct arr * y = c->out;
    arr_like(y, b);
    for (int64_t m = 0; m < b->ne[2] * b->ne[3]; ++m) {
        const int64_t i2 = m % b->ne[2], i3 = m / b->ne[2];
        for (int64_t col = 0; col < b->ne[0]; ++col) {
            for (int64_t i = 0; i < b->ne[1]; ++i) {
                double rest = AT(b, col, i, i2, i3);
                for (int64_t t = 0; t < i; ++t) { rest -= AT(a, t, i, i2, i3) * AT(y, col, t, i2, i3); }
                AT(y, col, i, i2, i3) = rest / AT(a, i, i, i2, i3);
            }
        }
    }
}

// ---------------------------------------------------------------------------------------------------- tables
static struct gcuda_tensor * build_ssm_conv(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    (void) p;
    return gcuda_ssm_conv(ctx, in[0], in[1]);
}

TEST(ssm_conv) {
    struct op_test t;
    memset(&t, 0, sizeof t);
    t.types = "F32", t.n_in = 2, t.build = build_ssm_conv, t.ref = ref_ssm_conv, t.max_nmse = 1e-7;
    t.types = "F32 F16,F32>F32 F32,F16>F32 BF16>F32";
    t.shapes = "3,128,1|3,128 7,128,4|4,128 13,256,2|9,256 4,5,3|4,5 1,7,2|1,7 60,33,2|4,33 "
               "3,6,2|4,6 300,33,2|4,33 290,40|9,40";
    t.in[0].layouts = t.in[1].layouts = LAYOUT_OFFSET;
    op_test_run(&t);
    t.types = "F32";
    t.shapes = "3,5,2|4,5 4,0,2|2,0 4,3,0|2,3"; // no tokens, channels, sequences
    op_test_run(&t);
    if (test_full()) {
        t.shapes = "4,1024,1|4,1024 8,1536,4|4,1536 18,2048,4|9,2048 67,1024,4|4,1024";
        t.in[0].layouts = t.in[1].layouts = 0;
        op_test_run(&t);
    }
}

// >>op:ssm_scan
static struct gcuda_tensor * build_ssm_scan(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    (void) p;
    return gcuda_ssm_scan(ctx, in[0], in[1], in[2], in[3], in[4], in[5], in[6]);
}

static struct gcuda_tensor * without_last(
    struct gcuda_context * ctx, struct gcuda_tensor * t, int64_t n) { // in dimension 1
    return gcuda_view_4d(ctx, t, t->ne[0], t->ne[1] - n, t->ne[2], t->ne[3], t->nb[1], t->nb[2], t->nb[3], 0);
}

static struct gcuda_tensor * build_ssm_scan_views(
    struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    const int64_t n = ((const struct p_ssm_scan *) p)->n_pad;
    return gcuda_ssm_scan(ctx, in[0], without_last(ctx, in[1], n), in[2], in[3], without_last(ctx, in[4], n),
        without_last(ctx, in[5], n), in[6]);
}

static void arr_without_last(struct arr * y, const struct arr * a, int64_t n) {
    memset(y, 0, sizeof *y);
    arr_new(y, a->ne[0], a->ne[1] - n, a->ne[2], a->ne[3]);
    FOR_ARR(y) { AT(y, i0, i1, i2, i3) = AT(a, i0, i1, i2, i3); }
}

static void ref_ssm_scan_views(const struct op_case * c) {
    struct op_case inner = *c;
    struct arr cut[3];
    for (int k = 0; k < 3; ++k) {
        const int from = k == 0 ? 1 : k + 3;
        arr_without_last(&cut[k], c->in[from], ((const struct p_ssm_scan *) c->p)->n_pad);
        inner.in[from] = &cut[k];
    }
    ref_ssm_scan(&inner);
    for (int k = 0; k < 3; ++k) { arr_free(&cut[k]); }
}

static void fill_slots(struct rng * r, const struct op_case * c, int k, struct arr * a) { // distinct slots of the pool
    (void) k;
    fill_permutation(r, a, c->in[0]->ne[3]);
}

static void fill_steps(
    struct rng * r, const struct op_case * c, int k, struct arr * a) { // some where softplus is the identity
    (void) c, (void) k;
    for (int64_t i = 0; i < arr_n(a); i += 17) { a->d[i] = rng_between(r, 19.0, 22.0); }
}

static struct op_test ssm_scan_test(void) {
    struct op_test t;
    memset(&t, 0, sizeof t);
    t.types = "F32,F32,F32,F32,F32,F32,I32>F32", t.n_in = 7, t.build = build_ssm_scan, t.ref = ref_ssm_scan,
    t.max_nmse = 1e-7;
    t.in[2].lo = -2.0, t.in[2].hi = 2.0, t.in[2].fill = fill_steps;
    t.in[3].lo = -1.0, t.in[3].hi = -0.05;
    t.in[6].fill = fill_slots;
    return t;
}

TEST(ssm_scan) {
    static const struct {
        int n, pd, h, g, t, s, pool;
        bool mamba_1;
    } sizes[] = {
        { 16, 1, 128, 1, 32, 4, 4, true },
        { 16, 1, 64, 1, 1, 2, 3, true },
        { 128, 64, 8, 2, 9, 2, 2, false },
        { 256, 64, 4, 2, 5, 2, 4, false },
        { 5, 3, 6, 3, 4, 2, 2, false },
        { 7, 2, 4, 4, 3, 1, 1, true },
        { 1, 1, 1, 1, 1, 1, 1, false },
        { 4, 3, 2, 1, 0, 2, 2, false },
        { 64, 80, 6, 2, 45, 2, 3, false },
        { 128, 48, 3, 1, 70, 1, 1, false },
        { 128, 16, 2, 2, 33, 2, 2, false },
        { 128, 32, 1, 1, 300, 2, 3, false },
        { 16, 1, 1024, 1, 32, 4, 4, true },
        { 128, 64, 16, 2, 32, 4, 4, false },
        { 256, 64, 8, 2, 32, 4, 4, false },
    };
    struct op_test t = ssm_scan_test();
    for (int i = 0; i < (test_full() ? 15 : 12); ++i) {
        char shape[256];
        const int n = sizes[i].n, pd = sizes[i].pd, h = sizes[i].h, g = sizes[i].g, n_t = sizes[i].t, s = sizes[i].s;
        snprintf(shape, sizeof shape, "%d,%d,%d,%d|%d,%d,%d,%d|%d,%d,%d|%d,%d|%d,%d,%d,%d|%d,%d,%d,%d|%d", n, pd, h,
            sizes[i].pool, pd, h, n_t, s, h, n_t, s, sizes[i].mamba_1 ? n : 1, h, n, g, n_t, s, n, g, n_t, s, s);
        t.shapes = shape;
        op_test_run(&t);
    }
    static const struct p_ssm_scan p = { 2 };
    t.shapes = "8,4,6,3|4,8,5,2|6,5,2|1,6|8,5,5,2|8,5,5,2|2 16,1,6,3|1,8,5,2|6,5,2|16,6|16,3,5,2|16,3,5,2|2";
    t.tag = "views", t.p = &p, t.build = build_ssm_scan_views, t.ref = ref_ssm_scan_views;
    op_test_run(&t);
}

static void fill_bad_slots(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    fill_slots(r, c, k, a);
    a->d[0] = -1.0;
    a->d[a->ne[0] - 1] = (double) c->in[0]->ne[3];
}

TEST(ssm_scan_bad_slots) {
    struct op_test t = ssm_scan_test();
    t.shapes = "5,3,6,4|3,6,4,3|6,4,3|1,6|5,3,4,3|5,3,4,3|3 16,1,4,2|1,4,2,2|4,2,2|16,4|16,1,2,2|16,1,2,2|2 "
               "128,16,1,4|16,1,300,2|1,300,2|1,1|128,1,300,2|128,1,300,2|2";
    t.in[6].fill = fill_bad_slots, t.status = GCUDA_STATUS_INVALID_DATA;
    op_test_run(&t);
}

// Inputs that are not finite reach the results that depend on them, and no others: those are held to the reference one
// by one.
static const char * judge_finite(const struct op_case * c, const struct arr * got) {
    int64_t n_finite = 0;
    for (int64_t i = 0; i < arr_n(got); ++i) {
        const double want = c->out->d[i];
        n_finite += isfinite(want);
        if (isfinite(want) ? !(fabs(got->d[i] - want) <= 1e-4 * (1.0 + fabs(want))) : isfinite(got->d[i])) {
            return tagf("element %" PRId64 ": want %.9g, got %.9g", i, want, got->d[i]);
        }
    }
    return 4 * n_finite < arr_n(got) ? "too few finite results to judge" : NULL;
}

// three of four channels, each its token
static void fill_late_infinite(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    (void) r, (void) c, (void) k;
    FOR_ARR(a) {
        if (i0 % 4 < 3 && i2 == a->ne[2] / 2 + i0 % 16) {
            AT(a, i0, i1, i2, i3) = i0 % 4 == 0 ? HUGE_VAL : i0 % 4 == 1 ? -HUGE_VAL : (double) NAN;
        }
    }
}

TEST(ssm_scan_infinite) { // no token reaches one before it
    struct op_test t = ssm_scan_test();
    t.shapes =
        "64,80,6,3|80,6,45,2|6,45,2|1,6|64,2,45,2|64,2,45,2|2 128,48,3,1|48,3,70,1|3,70,1|1,3|128,1,70,1|128,1,70,1|1 "
        "128,32,1,3|32,1,300,2|1,300,2|1,1|128,1,300,2|128,1,300,2|2 "
        "16,8,4,1|8,4,45,1|4,45,1|16,4|16,1,45,1|16,1,45,1|1 "
        "5,3,6,2|3,6,45,2|6,45,2|1,6|5,3,45,2|5,3,45,2|2";
    t.in[1].fill = fill_late_infinite, t.judge = judge_finite;
    op_test_run(&t);
}

static void fill_some_minus_infinite(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    (void) r, (void) c, (void) k;
    for (int64_t i = 0; i < arr_n(a); i += 2) { a->d[i] = -HUGE_VAL; }
}

TEST(ssm_scan_forgets) { // decays of exactly 0; tokens that fill no group
    struct op_test t = ssm_scan_test();
    t.shapes = "64,80,6,3|80,6,45,2|6,45,2|1,6|64,2,45,2|64,2,45,2|2 "
               "16,1,128,1|1,128,45,1|128,45,1|16,128|16,1,45,1|16,1,45,1|1 "
               "64,16,2,1|16,2,9,1|2,9,1|1,2|64,1,9,1|64,1,9,1|1 5,3,6,2|3,6,45,2|6,45,2|1,6|5,3,45,2|5,3,45,2|2";
    t.in[3].fill = fill_some_minus_infinite;
    op_test_run(&t);
}

TEST(ssm_scan_types) {
    struct op_test t = ssm_scan_test();
    t.types = "F32,F16,F32,F32,F16,F16,I32>F32 F32,BF16,F16,BF16,F32,F16,I32>F32 F32,F32,BF16,F16,BF16,BF16,I32>F32 "
              "F32,BF16,F32,F32,F32,F32,I32>F32";
    t.shapes = "5,3,6,4|3,6,4,3|6,4,3|1,6|5,3,4,3|5,3,4,3|3 16,1,4,2|1,4,2,2|4,2,2|16,4|16,1,2,2|16,1,2,2|2";
    op_test_run(&t);
}

// ---------------------------------------------------------------------------------------------------- recurrences
static struct gcuda_tensor * build_rwkv_wkv6(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    (void) p;
    return gcuda_rwkv_wkv6(ctx, in[0], in[1], in[2], in[3], in[4], in[5]);
}

static struct gcuda_tensor * build_rwkv_wkv7(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    (void) p;
    return gcuda_rwkv_wkv7(ctx, in[0], in[1], in[2], in[3], in[4], in[5], in[6]);
}

static struct gcuda_tensor * build_gated_linear_attn(
    struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    return gcuda_gated_linear_attn(ctx, in[0], in[1], in[2], in[3], in[4], ((const struct p_linear_attn *) p)->scale);
}

static void fill_unit_rows(struct rng * r, const struct op_case * c, int k, struct arr * a) { // else the state explodes
    (void) r, (void) c, (void) k;
    FOR_ROWS(a) {
        double sum = 0.0;
        for (int64_t i = 0; i < a->ne[0]; ++i) { sum += AT(a, i, i1, i2, i3) * AT(a, i, i1, i2, i3); }
        for (int64_t i = 0; i < a->ne[0]; ++i) { AT(a, i, i1, i2, i3) /= sqrt(sum); }
    }
}

// Sources [Sz, H, T], then the state; `small` is the place of the one source [Sz, H], or -1
static void recurrence_case(struct op_test * t, int sz, int h, int n_tokens, int n_seqs, int small) {
    char shape[256];
    int used = 0;
    for (int k = 0; k < t->n_in - 1; ++k) {
        used += snprintf(shape + used, sizeof shape - (size_t) used, "%d,%d,%d|", sz, h, k == small ? 1 : n_tokens);
    }
    snprintf(shape + used, sizeof shape - (size_t) used, "%d,%d", sz * sz * h, n_seqs);
    t->shapes = shape;
    op_test_run(t);
}

static void recurrence_cases(struct op_test * t, int n_in, int small) {
    static const struct {
        int sz, h, t, s;
    } sizes[] = {
        { 64, 4, 1, 1 },
        { 64, 4, 32, 1 },
        { 64, 3, 20, 4 },
        { 128, 2, 6, 2 },
        { 5, 3, 6, 3 },
        { 33, 2, 4, 4 },
        { 1, 1, 2, 1 },
        { 64, 32, 32, 1 },
        { 64, 32, 128, 4 },
        { 64, 32, 512, 4 },
    };
    t->types = "F32", t->n_in = n_in, t->max_nmse = 1e-7;
    for (int i = 0; i < (test_full() ? 10 : 7); ++i) {
        recurrence_case(t, sizes[i].sz, sizes[i].h, sizes[i].t, sizes[i].s, small);
    }
}

// each input as 16 bits, one at a time; the state stays F32
static void recurrence_types(struct op_test * t, int n_in, int small) { // each source in each type
    char types[384] = "", shape[256] = "";
    for (int first = 0; first < 3; ++first) {
        for (int k = 0; k < n_in - 1; ++k) {
            strcat(types, (k + first) % 3 == 0 ? "F16," : (k + first) % 3 == 1 ? "BF16," : "F32,");
        }
        strcat(types, "F32>F32 ");
    }
    for (int k = 0; k < n_in - 1; ++k) { strcat(shape, k == small ? "20,3,1|" : "20,3,6|"); }
    strcat(shape, "1200,2");
    t->types = types, t->shapes = shape, t->n_in = n_in, t->max_nmse = 1e-7;
    op_test_run(t);
}

// No tokens: the states stay as they are. No heads: nothing at all.
static void recurrence_empty(struct op_test * t, int n_in, int small) {
    static const int heads[] = { 3, 0 }, tokens[] = { 0, 4 };
    for (int i = 0; i < 2; ++i) {
        char shape[256];
        int used = 0;
        for (int k = 0; k < n_in - 1; ++k) {
            used +=
                snprintf(shape + used, sizeof shape - (size_t) used, "20,%d,%d|", heads[i], k == small ? 1 : tokens[i]);
        }
        snprintf(shape + used, sizeof shape - (size_t) used, "%d,2", 20 * 20 * heads[i]);
        t->types = "F32", t->shapes = shape, t->n_in = n_in, t->max_nmse = 1e-7;
        op_test_run(t);
    }
}

// Decays at and below zero, which a method in logarithms could not take. The sums are those of any other decay.
static void fill_zeros(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    (void) r, (void) c, (void) k;
    for (int64_t i = 0; i < arr_n(a); ++i) { a->d[i] = 0.0; }
}

// Zeros of both signs, negative and positive numbers mixed. Every fifth token is all zeros: earlier state is forgotten.
static void fill_mixed_decays(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    (void) c, (void) k;
    FOR_ARR(a) {
        const int64_t what = rng_below(r, 8);
        if (i2 % 5 == 3 || what < 2) { AT(a, i0, i1, i2, i3) = 0.0; }
        if (what == 2) { AT(a, i0, i1, i2, i3) = -0.0; }
    }
}

// Single tokens, also of many sequences, and long inputs, in every kernel variant for a head size. Variants: registers
// of 4 to 32 lanes, sizes that fill no vector, sizes too large for registers.
static void recurrence_decays(struct op_test * t, int n_in, int small, int decay) {
    static const struct {
        const char * tag;
        double lo, hi;
        fill_fn fill;
    } kinds[] = { { "zero", 0.0, 0.0, fill_zeros }, { "negative", -0.95, -0.2, NULL },
        { "mixed", -0.95, 0.95, fill_mixed_decays } };
    static const struct {
        int sz, h, t, s;
    } sizes[] = { { 64, 2, 1, 1 }, { 32, 2, 7, 7 }, { 64, 1, 84, 2 }, { 16, 1, 75, 1 }, { 128, 1, 22, 2 },
        { 33, 2, 51, 3 }, { 160, 1, 10, 1 }, { 260, 1, 6, 2 } };
    t->types = "F32", t->n_in = n_in, t->max_nmse = 1e-7;
    // keys, queries: where all is forgotten, a row is v times their
    t->in[0].lo = t->in[2].lo = 0.1, t->in[0].hi = t->in[2].hi = 1.0;
    for (int i = 0; i < 24; ++i) { // product, which must not cancel
        const int at = i / 3;
        t->tag = kinds[i % 3].tag;
        t->in[decay].lo = kinds[i % 3].lo, t->in[decay].hi = kinds[i % 3].hi, t->in[decay].fill = kinds[i % 3].fill;
        recurrence_case(t, sizes[at].sz, sizes[at].h, sizes[at].t, sizes[at].s, small);
    }
    recurrence_types(t, n_in, small); // mixed ones, of which 16 bits keep zeros and signs
}

TEST(rwkv_wkv6) {
    struct op_test t;
    memset(&t, 0, sizeof t);
    t.build = build_rwkv_wkv6, t.ref = ref_rwkv_wkv6;
    t.in[4].lo = 0.2, t.in[4].hi = 0.999;
    recurrence_cases(&t, 6, 3);
    recurrence_types(&t, 6, 3);
    recurrence_empty(&t, 6, 3);
    recurrence_decays(&t, 6, 3, 4);
}

TEST(gated_linear_attn) {
    static const struct p_linear_attn p = { 0.125f };
    struct op_test t;
    memset(&t, 0, sizeof t);
    t.build = build_gated_linear_attn, t.ref = ref_gated_linear_attn, t.p = &p;
    t.in[3].lo = 0.2, t.in[3].hi = 0.999;
    recurrence_cases(&t, 5, -1);
    recurrence_types(&t, 5, -1);
    recurrence_empty(&t, 5, -1);
    recurrence_decays(&t, 5, -1, 3);
}

TEST(rwkv_wkv7) {
    struct op_test t;
    memset(&t, 0, sizeof t);
    t.build = build_rwkv_wkv7, t.ref = ref_rwkv_wkv7;
    t.in[1].lo = 0.2, t.in[1].hi = 0.999;
    t.in[4].fill = t.in[5].fill = fill_unit_rows;
    recurrence_cases(&t, 7, -1);
    recurrence_types(&t, 7, -1);
    recurrence_empty(&t, 7, -1);
    recurrence_decays(&t, 7, -1, 1);
}

// of the last token, one key
static void fill_last_key(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    (void) r, (void) c, (void) k;
    FOR_ARR(a) {
        if (i0 == 3 && i2 == a->ne[2] - 1) { AT(a, i0, i1, i2, i3) = HUGE_VAL; }
    }
}

TEST(rwkv_wkv7_infinite) { // an element of the last state, and only that
    struct op_test t;
    memset(&t, 0, sizeof t);
    t.build = build_rwkv_wkv7, t.ref = ref_rwkv_wkv7, t.judge = judge_finite;
    t.types = "F32", t.n_in = 7, t.max_nmse = 1e-7;
    t.in[1].lo = 0.2, t.in[1].hi = 0.999;
    t.in[2].fill = fill_last_key;
    t.in[4].fill = t.in[5].fill = fill_unit_rows;
    recurrence_case(&t, 64, 2, 13, 1, -1);
    recurrence_case(&t, 128, 1, 6, 1, -1);
    recurrence_case(&t, 33, 2, 5, 1, -1);
}

// ---------------------------------------------------------------------------------------------------- solve_tri
static struct gcuda_tensor * build_solve_tri(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    (void) p;
    return gcuda_solve_tri(ctx, in[0], in[1], true, true, false);
}

static void fill_lower(struct rng * r, const struct op_case * c, int k, struct arr * a) { // what is never read is NaN
    (void) r, (void) c, (void) k;
    FOR_ARR(a) {
        if (i0 > i1) { AT(a, i0, i1, i2, i3) = (double) NAN; }
    }
}

TEST(solve_tri) {
    struct op_test t;
    memset(&t, 0, sizeof t);
    t.types = "F32", t.n_in = 2, t.build = build_solve_tri, t.ref = ref_solve_tri, t.max_nmse = 1e-7;
    t.shapes = "1,1|1,1 10,10,4,4|3,10,4,4 11,11|5,11 17,17,2,4|18,17,2,4 30,30,2|40,30,2 42,42,2,2|10,42,2,2 "
               "64,64,2,1|64,64,2,1 79,79|417,79 "
               "100,100,2|41,100,2 128,128|3,128";
    t.in[0].lo = 0.1, t.in[0].hi = 1.0, t.in[0].fill = fill_lower;
    t.in[0].layouts = t.in[1].layouts = LAYOUT_OFFSET;
    op_test_run(&t);
    if (test_full()) {
        t.shapes = "64,64,8,8|64,64,8,8 80,80,2|80,80,2 84,84,2|84,84,2 95,95,8|40,95,8 128,128,4,4|300,128,4,4";
        // of 64 such systems of 128 unknowns one has a row that cancels so far that F32 in numpy misses the
        // row's bound too; what is promised is the NMSE
        t.no_max_error = true;
        op_test_run(&t);
        t.no_max_error = false;
    }
    t.types = "F32 F16,F32>F32 F32,BF16>F32 BF16,F16>F32", t.shapes = "7,7,3,2|5,7,3,2 40,40,2|33,40,2", t.tag = "rows";
    t.in[0].layouts = t.in[1].layouts = LAYOUT_ROWS;
    op_test_run(&t);
    t.types = "F32", t.shapes = "0,0|3,0 4,4|0,4 4,4,0|3,4,0", t.tag = "empty";
    t.in[0].layouts = t.in[1].layouts = 0;
    op_test_run(&t);
}

#endif
