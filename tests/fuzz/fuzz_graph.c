// Graphs from bytes: any constructor with any sources and numbers, then the small ones are computed on the CPU.
// Whatever comes, nothing may crash, leak, or touch foreign memory. For libFuzzer (`make build/fuzz/fuzz_graph`);
// tests/test-fuzz.c runs the same function on random bytes, for compilers without it.
#include "gcuda.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// =====================================================================================================================
// >>bytes
// =====================================================================================================================
struct bytes {
    const uint8_t * p;
    size_t n;
};

static unsigned take(struct bytes * b) { // one byte; 0 when they have run out
    if (b->n == 0) { return 0; }
    b->n--;
    return *b->p++;
}
static unsigned below(struct bytes * b, unsigned n) { return take(b) % n; }

static int64_t take_extent(struct bytes * b) { // mostly small, sometimes a block, rarely absurd
    static const int64_t some[] = { 1, 1, 2, 2, 3, 4, 4, 5, 6, 7, 8, 8, 16, 32, 32, 64, 256, 256, 0, 33 };
    static const int64_t absurd[] = { -1, INT64_MAX, INT64_MIN, INT64_C(1) << 32, INT64_C(1) << 62, 65536, 1000003 };
    const unsigned k = take(b);
    return k < 250 ? some[k % (sizeof some / sizeof some[0])] : absurd[take(b) % (sizeof absurd / sizeof absurd[0])];
}

static int take_int(struct bytes * b) {
    static const int some[] = { 1, 1, 1, 0, 2, 3, 2, 1, 4, 0, 8, -1, 5, 16, 32, 7 };
    const unsigned k = take(b);
    return k < 248 ? some[k % 16] : k < 252 ? INT32_MAX - (int) (k - 248) : INT32_MIN + (int) (k - 252);
}

static float take_float(struct bytes * b) {
    static const float some[] = { 1.0f, 0.0f, 0.5f, -1.0f, 2.0f, 1e-5f, 10000.0f, 1e30f, -0.0f, 3.5f };
    const unsigned k = take(b);
    return k < 240 ? some[k % 10] : k < 248 ? (float) NAN : HUGE_VALF;
}

static size_t take_size(struct bytes * b) {
    const unsigned k = take(b);
    return k < 230 ? (size_t) 4 * (k % 48) : k < 245 ? take(b) : SIZE_MAX - take(b);
}

static enum gcuda_type take_type(struct bytes * b) {
    static const enum gcuda_type often[] = { GCUDA_TYPE_F32, GCUDA_TYPE_F32, GCUDA_TYPE_F32, GCUDA_TYPE_F16,
        GCUDA_TYPE_BF16, GCUDA_TYPE_I32 };
    const unsigned k = take(b);
    return k < 200 ? often[k % 6] : (enum gcuda_type)(take(b) % (GCUDA_TYPE_COUNT + 2));
}

// =====================================================================================================================
// >>operations   one per number; sources come from what has been made so far
// =====================================================================================================================
#define N_TENSORS 24
struct world {
    struct gcuda_context * ctx;
    struct gcuda_tensor * t[N_TENSORS];
    int n;
    struct bytes in;
};

#define I() take_int(in)
#define F() take_float(in)
#define E() take_extent(in)
#define Z() take_size(in)

static struct gcuda_tensor * pick(struct world * w) {
    const unsigned k = take(&w->in);
    if (w->n == 0 || k == 255) { return NULL; }
    return w->t[k < 128 ? (unsigned) w->n - 1 - k % (unsigned) (w->n < 3 ? w->n : 3) : k % (unsigned) w->n];
}

static struct gcuda_tensor * new_leaf(struct world * w) { // of a new shape, or that of an existing tensor
    struct bytes * in = &w->in;
    const enum gcuda_type type = take_type(in);
    int64_t ne[4] = { E(), 1, 1, 1 };
    const unsigned like = below(in, 4);
    if (like == 0) {
        const struct gcuda_tensor * t = pick(w);
        if (t) { memcpy(ne, t->ne, sizeof ne); }
        if (t && take(in) < 60) { ne[below(in, 4)] = E(); }
    } else {
        for (unsigned d = 1; d < like + 1 && d < 4; ++d) { ne[d] = E(); }
    }
    return gcuda_new_tensor(w->ctx, type, 4, ne);
}

static struct gcuda_tensor * view_op(struct world * w, struct gcuda_tensor * a) {
    struct gcuda_context * c = w->ctx;
    struct bytes * in = &w->in;
    switch (below(in, 12)) {
        case 0: return gcuda_view_1d(c, a, E(), Z());
        case 1: return gcuda_view_2d(c, a, E(), E(), Z(), Z());
        case 2: return gcuda_view_3d(c, a, E(), E(), E(), Z(), Z(), Z());
        case 3: return gcuda_view_4d(c, a, E(), E(), E(), E(), Z(), Z(), Z(), Z());
        case 4: return gcuda_reshape(c, a, pick(w));
        case 5: return gcuda_reshape_2d(c, a, E(), E());
        case 6: return gcuda_reshape_3d(c, a, E(), E(), E());
        case 7: return gcuda_transpose(c, a);
        case 8: return gcuda_permute(c, a, 0, 2, 1, 3);
        case 9: return gcuda_permute(c, a, 3, 1, 0, 2);
        case 10: return gcuda_permute(c, a, I(), I(), I(), I());
        default: return gcuda_view_tensor(c, a);
    }
}

static struct gcuda_tensor * movement_op(struct world * w, struct gcuda_tensor * a) {
    struct gcuda_context * c = w->ctx;
    struct bytes * in = &w->in;
    switch (below(in, 26)) {
        case 0: return gcuda_dup(c, a);
        case 1: return gcuda_cont(c, a);
        case 2: return gcuda_cpy(c, a, pick(w));
        case 3: return gcuda_cast(c, a, take_type(in));
        case 4: return gcuda_get_rows(c, a, pick(w));
        case 5: return gcuda_get_rows_back(c, a, pick(w), pick(w));
        case 6: return gcuda_set_rows(c, a, pick(w), pick(w));
        case 7: return gcuda_set(c, a, pick(w), Z(), Z(), Z(), Z());
        case 8: return gcuda_set_inplace(c, a, pick(w), Z(), Z(), Z(), Z());
        case 9: return gcuda_acc(c, a, pick(w), Z(), Z(), Z(), Z());
        case 10: return gcuda_acc_inplace(c, a, pick(w), Z(), Z(), Z(), Z());
        case 11: return gcuda_repeat(c, a, pick(w));
        case 12: return gcuda_repeat_4d(c, a, E(), E(), E(), E());
        case 13: return gcuda_repeat_back(c, a, pick(w));
        case 14: return gcuda_concat(c, a, pick(w), I());
        case 15: return gcuda_pad_ext(c, a, I(), I(), I(), I(), I(), I(), I(), I());
        case 16: return gcuda_pad_ext_circular(c, a, I(), I(), I(), I(), I(), I(), I(), I());
        case 17: return gcuda_pad_reflect_1d(c, a, I(), I());
        case 18: return gcuda_roll(c, a, I(), I(), I(), I());
        case 19: return gcuda_diag(c, a);
        case 20: return gcuda_diag_mask_inf(c, a, I());
        case 21: return gcuda_tri(c, a, (enum gcuda_tri_type) I());
        case 22: return gcuda_fill(c, a, F());
        case 23: return gcuda_arange(c, F(), F(), F());
        case 24: return gcuda_timestep_embedding(c, a, I(), I());
        default: return gcuda_cont_2d(c, a, E(), E());
    }
}

static struct gcuda_tensor * element_op(struct world * w, struct gcuda_tensor * a) {
    struct gcuda_context * c = w->ctx;
    struct bytes * in = &w->in;
    switch (below(in, 26)) {
        case 0: return gcuda_add(c, a, pick(w));
        case 1: return gcuda_sub_inplace(c, a, pick(w));
        case 2: return gcuda_mul(c, a, pick(w));
        case 3: return gcuda_div(c, a, pick(w));
        case 4: return gcuda_add1(c, a, pick(w));
        case 5: return gcuda_add_id(c, a, pick(w), pick(w));
        case 6: return gcuda_add_cast(c, a, pick(w), take_type(in));
        case 7: return gcuda_unary(c, a, (enum gcuda_unary_op)(int) take(in));
        case 8: return gcuda_unary_inplace(c, a, (enum gcuda_unary_op)(int) below(in, 22));
        case 9: return gcuda_glu(c, a, (enum gcuda_glu_op)(int) below(in, 7), take(in) & 1);
        case 10: return gcuda_glu_split(c, a, pick(w), (enum gcuda_glu_op)(int) below(in, 7));
        case 11: return gcuda_swiglu_oai(c, a, pick(w), F(), F());
        case 12: return gcuda_scale_bias(c, a, F(), F());
        case 13: return gcuda_sqr(c, a);
        case 14: return gcuda_log(c, a);
        case 15: return gcuda_sin(c, a);
        case 16: return gcuda_clamp(c, a, F(), F());
        case 17: return gcuda_leaky_relu(c, a, F(), take(in) & 1);
        case 18: return gcuda_silu_back(c, a, pick(w));
        case 19: return gcuda_xielu(c, a, F(), F(), F(), F());
        case 20: return gcuda_norm(c, a, F());
        case 21: return gcuda_rms_norm(c, a, F());
        case 22: return gcuda_l2_norm(c, a, F());
        case 23: return gcuda_group_norm(c, a, I(), F());
        case 24: return gcuda_rms_norm_back(c, a, pick(w), F());
        default: return gcuda_unary(c, a, (enum gcuda_unary_op)(int) below(in, 22));
    }
}

static struct gcuda_tensor * reduce_op(struct world * w, struct gcuda_tensor * a) {
    struct gcuda_context * c = w->ctx;
    struct bytes * in = &w->in;
    switch (below(in, 18)) {
        case 0: return gcuda_sum(c, a);
        case 1: return gcuda_sum_rows(c, a);
        case 2: return gcuda_mean(c, a);
        case 3: return gcuda_cumsum(c, a);
        case 4: return gcuda_argmax(c, a);
        case 5: return gcuda_count_equal(c, a, pick(w));
        case 6: return gcuda_argsort(c, a, (enum gcuda_sort_order) I());
        case 7: return gcuda_top_k(c, a, I());
        case 8: return gcuda_argsort_top_k(c, a, I());
        case 9: return gcuda_mul_mat(c, a, pick(w));
        case 10: return gcuda_mul_mat_id(c, a, pick(w), pick(w));
        case 11: return gcuda_out_prod(c, a, pick(w));
        case 12: return gcuda_cross_entropy_loss(c, a, pick(w));
        case 13: return gcuda_cross_entropy_loss_back(c, a, pick(w), pick(w));
        case 14: return gcuda_opt_step_sgd(c, a, pick(w), pick(w));
        case 15: return gcuda_opt_step_adamw(c, a, pick(w), pick(w), pick(w), pick(w));
        case 16: return gcuda_mul_mat(c, a, a);
        default: return gcuda_solve_tri(c, a, pick(w), true, true, false);
    }
}

static struct gcuda_tensor * rope_op(struct world * w, struct gcuda_tensor * a) {
    struct gcuda_context * c = w->ctx;
    struct bytes * in = &w->in;
    int sections[4] = { I(), I(), I(), I() };
    static const int modes[] = { 0, 2, 8, 24, 40, 1 };
    const int mode = modes[below(in, 6)], n_dims = (int) (2u * (unsigned) I());
    struct gcuda_tensor *pos = pick(w), *factors = take(in) & 1 ? pick(w) : NULL;
    switch (below(in, 3)) {
        case 0: return gcuda_rope_ext(c, a, pos, factors, n_dims, mode, I(), F(), F(), F(), F(), F(), F());
        case 1: return gcuda_rope_multi(c, a, pos, factors, n_dims, sections, mode, I(), F(), F(), F(), F(), F(), F());
        default: return gcuda_rope_ext_back(c, a, pos, factors, n_dims, mode, I(), F(), F(), F(), F(), F(), F());
    }
}

static struct gcuda_tensor * attention_op(struct world * w, struct gcuda_tensor * a) {
    struct gcuda_context * c = w->ctx;
    struct bytes * in = &w->in;
    struct gcuda_tensor * y = NULL;
    switch (below(in, 11)) {
        case 0: return gcuda_soft_max(c, a);
        case 1:
            y = gcuda_soft_max_ext(c, a, take(in) & 1 ? pick(w) : NULL, F(), F());
            if (y && take(in) & 1) { gcuda_soft_max_add_sinks(y, pick(w)); }
            return y;
        case 2: return gcuda_soft_max_ext_back(c, a, pick(w), F(), F());
        case 3:
            y = gcuda_flash_attn_ext(c, a, pick(w), pick(w), take(in) & 1 ? pick(w) : NULL, F(), F(), F());
            if (y && take(in) & 1) { gcuda_flash_attn_ext_add_sinks(y, pick(w)); }
            return y;
        case 10:
            y = gcuda_flash_attn_ext_back(c, a, pick(w), pick(w), pick(w), pick(w), take(in) & 1 ? pick(w) : NULL,
                take(in) & 1 ? pick(w) : NULL, F(), F(), F());
            return y && take(in) & 1 ? gcuda_flash_attn_ext_back_part(c, y, (enum gcuda_flash_attn_grad) below(in, 5))
                                     : y;
        case 4: return gcuda_ssm_conv(c, a, pick(w));
        case 5: return gcuda_ssm_scan(c, a, pick(w), pick(w), pick(w), pick(w), pick(w), pick(w));
        case 6: return gcuda_rwkv_wkv6(c, a, pick(w), pick(w), pick(w), pick(w), pick(w));
        case 7: return gcuda_rwkv_wkv7(c, a, pick(w), pick(w), pick(w), pick(w), pick(w), pick(w));
        case 8: return gcuda_gated_linear_attn(c, a, pick(w), pick(w), pick(w), pick(w), F());
        default: return rope_op(w, a);
    }
}

static struct gcuda_tensor * image_op(struct world * w, struct gcuda_tensor * a) {
    struct gcuda_context * c = w->ctx;
    struct bytes * in = &w->in;
    switch (below(in, 13)) {
        case 0: return gcuda_im2col(c, a, pick(w), I(), I(), I(), I(), I(), I(), take(in) & 1, take_type(in));
        case 1: return gcuda_im2col_3d(c, a, pick(w), E(), I(), I(), I(), I(), I(), I(), I(), I(), I(), take_type(in));
        case 2: return gcuda_conv_1d(c, a, pick(w), I(), I(), I());
        case 3: return gcuda_conv_2d(c, a, pick(w), I(), I(), I(), I(), I(), I());
        case 4: return gcuda_conv_2d_direct(c, a, pick(w), I(), I(), I(), I(), I(), I());
        case 5: return gcuda_conv_2d_dw_direct(c, a, pick(w), I(), I(), I(), I(), I(), I());
        case 6: return gcuda_conv_transpose_1d(c, a, pick(w), I(), I(), I());
        case 7: return gcuda_conv_transpose_2d_p0(c, a, pick(w), I());
        case 8: return gcuda_pool_2d(c, a, (enum gcuda_op_pool) I(), I(), I(), I(), I(), F(), F());
        case 9: return gcuda_pool_1d(c, a, (enum gcuda_op_pool) I(), I(), I(), I());
        case 10:
            return gcuda_interpolate(c, a, E(), E(), E(), E(), (uint32_t) below(in, 3) | (uint32_t) below(in, 4) << 8);
        case 11: return gcuda_upscale(c, a, I(), (enum gcuda_scale_mode) below(in, 4));
        default: return gcuda_conv_2d_dw(c, a, pick(w), I(), I(), I(), I(), I(), I());
    }
}

// A source as the operation wants it, but for one in sixteen.
static struct gcuda_tensor * fit(
    struct world * w, enum gcuda_type type, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3) {
    struct bytes * in = &w->in;
    int64_t ne[4] = { ne0, ne1, ne2, ne3 };
    const unsigned k = take(in);
    if (k < 8) { ne[k & 3] = E(); }
    if (k >= 8 && k < 16) { type = take_type(in); }
    return k == 16 ? pick(w) : gcuda_new_tensor(w->ctx, type, 4, ne);
}

// Operations with several sources that random shapes hardly ever meet.
static struct gcuda_tensor * fitted_op(struct world * w) {
    struct gcuda_context * c = w->ctx;
    struct bytes * in = &w->in;
    const enum gcuda_type F = GCUDA_TYPE_F32, I = GCUDA_TYPE_I32,
                          F_OR_ANY = take(in) < 160 ? GCUDA_TYPE_F32 : take_type(in);
    const int64_t n = take(in) < 200 ? 1 + take(in) % 9 : 256, m = 1 + take(in) % 7, t = 1 + take(in) % 6,
                  s = 1 + take(in) % 3;
    const int k = (int) (take(in) % 3) + 1;
    struct gcuda_tensor * a;
    switch (below(in, 20)) {
        case 0: return gcuda_get_rows(c, fit(w, F_OR_ANY, n, m, s, 1), fit(w, I, t, s, 1, 1));
        case 1: return gcuda_get_rows_back(c, fit(w, F, n, t, 1, 1), fit(w, I, t, 1, 1, 1), fit(w, F, n, m, 1, 1));
        case 2: return gcuda_set_rows(c, fit(w, F_OR_ANY, n, m, s, 1), fit(w, F, n, t, s, 1), fit(w, I, t, s, 1, 1));
        case 3: return gcuda_add_id(c, fit(w, F, n, s, t, 1), fit(w, F, n, m, 1, 1), fit(w, I, s, t, 1, 1));
        case 4:
            return gcuda_mul_mat_id(
                c, fit(w, F_OR_ANY, n, m, 4, 1), fit(w, F, n, take(in) & 1 ? 1 : s, t, 1), fit(w, I, s, t, 1, 1));
        case 5: return gcuda_mul_mat(c, fit(w, F_OR_ANY, n, m, 1, 1), fit(w, take(in) & 1 ? F : F_OR_ANY, n, t, s, 1));
        case 6:
            return gcuda_rope(
                c, fit(w, F, 2 * n, m, t, s), fit(w, I, t, 1, 1, 1), (int) (2 * (take(in) % n + 1)), take(in) & 2);
        case 7: {
            int sections[4] = { (int) (take(in) % 3), 1, (int) (take(in) % 2), 0 };
            static const int modes[] = { 8, 24, 40 };
            const int mode = modes[below(in, 3)];
            a = fit(w, F, 8, m, t, s);
            return (take(in) & 1 ? gcuda_rope_multi : gcuda_rope_multi_back)(c, a, fit(w, I, 4 * t, 1, 1, 1), NULL,
                mode == 24 ? 4 : 8, sections, mode, take_int(in), 10000, take_float(in), take_float(in), take_float(in),
                take_float(in), take_float(in));
        }
        case 8:
            a = fit(w, F, n, m, 1, 1);
            (void) gcuda_set_param(a);
            return gcuda_opt_step_adamw(
                c, a, fit(w, F, n, m, 1, 1), fit(w, F, n, m, 1, 1), fit(w, F, n, m, 1, 1), fit(w, F, 7, 1, 1, 1));
        case 9:
            a = fit(w, F, n, m, 1, 1);
            (void) gcuda_set_param(a);
            return gcuda_opt_step_sgd(c, a, fit(w, F, n, m, 1, 1), fit(w, F, 2, 1, 1, 1));
        case 10:
            return gcuda_flash_attn_ext(c, fit(w, F, n, t, m * s, 1), fit(w, F_OR_ANY, n, t + 3, m, 1),
                fit(w, F_OR_ANY, n, t + 3, m, 1), take(in) & 1 ? fit(w, GCUDA_TYPE_F16, t + 3, t, 1, 1) : NULL, 0.3f, 0,
                take_float(in));
        case 11:
            return gcuda_ssm_scan(c, fit(w, F, n, m, t * 2, s + 1), fit(w, F, m, t * 2, k, s),
                fit(w, F, t * 2, k, s, 1), fit(w, F, take(in) & 1 ? 1 : n, t * 2, 1, 1), fit(w, F, n, t, k, s),
                fit(w, F, n, t, k, s), fit(w, I, s, 1, 1, 1));
        case 12:
            return gcuda_rwkv_wkv6(c, fit(w, F, 8, m, t * s, 1), fit(w, F, 8, m, t * s, 1), fit(w, F, 8, m, t * s, 1),
                fit(w, F, 8, m, 1, 1), fit(w, F, 8, m, t * s, 1), fit(w, F, 64 * m, s, 1, 1));
        case 13:
            return gcuda_rwkv_wkv7(c, fit(w, F, 8, m, t * s, 1), fit(w, F, 8, m, t * s, 1), fit(w, F, 8, m, t * s, 1),
                fit(w, F, 8, m, t * s, 1), fit(w, F, 8, m, t * s, 1), fit(w, F, 8, m, t * s, 1),
                fit(w, F, 64 * m, s, 1, 1));
        case 14:
            return gcuda_gated_linear_attn(c, fit(w, F, 8, m, t * s, 1), fit(w, F, 8, m, t * s, 1),
                fit(w, F, 8, m, t * s, 1), fit(w, F, 8, m, t * s, 1), fit(w, F, 64 * m, s, 1, 1), take_float(in));
        case 15:
            return gcuda_conv_2d_direct(c, fit(w, F, k, 2, m, s), fit(w, F, n, 5, m, t), take_int(in), take_int(in),
                take_int(in), take_int(in), 1, 1);
        case 16: return gcuda_conv_transpose_1d(c, fit(w, F, k, s, m, 1), fit(w, F, n, m, 1, 1), take_int(in), 0, 1);
        case 17:
            return gcuda_im2col_3d(c, fit(w, F, k, 2, 2, m * s), fit(w, F, n, 4, 4, m * t), m, take_int(in), 1, 1,
                take_int(in), 0, 1, take_int(in), 1, 1, take_type(in));
        case 18:
            return gcuda_cross_entropy_loss_back(
                c, fit(w, F, 1, 1, 1, 1), fit(w, F, n, m, 1, 1), fit(w, F, n, m, 1, 1));
        default: return gcuda_diag_mask_zero(c, gcuda_sqrt(c, gcuda_cos(c, fit(w, F, n, m, 1, 1))), take_int(in));
    }
}

static void step(struct world * w) {
    struct gcuda_tensor *y = NULL, *a = w->n < 2 ? NULL : pick(w);
    const unsigned kind = w->n < 2 ? 0 : below(&w->in, 11);
    switch (kind) {
        case 3: y = view_op(w, a); break;
        case 4: y = movement_op(w, a); break;
        case 5: y = element_op(w, a); break;
        case 6: y = reduce_op(w, a); break;
        case 7: y = attention_op(w, a); break;
        case 8: y = image_op(w, a); break;
        case 9:
        case 10: y = fitted_op(w); break;
        default: y = new_leaf(w); break;
    }
    if (y && take(&w->in) < 30) { (void) gcuda_set_param(y); }
    if (y) { w->t[w->n++] = y; }
    gcuda_context_clear_error(w->ctx);
}

// =====================================================================================================================
// >>compute
// =====================================================================================================================
static gcuda_backend_t fuzz_backend(int which) { // two of them, for the life of the process
    static gcuda_backend_t made[2];
    if (made[which] == NULL) {
        made[which] = gcuda_backend_cpu_init();
        if (made[which]) { gcuda_backend_cpu_set_n_threads(made[which], 1 + 2 * which); }
    }
    return made[which];
}

static long fuzz_computed[GCUDA_OP_COUNT]; // nodes that ran, by operation: says whether the bytes reach anything

static bool is_small(const struct gcuda_context * ctx) {
    size_t sum = 0;
    for (const struct gcuda_tensor * t = gcuda_get_first_tensor(ctx); t; t = gcuda_get_next_tensor(ctx, t)) {
        const size_t n = gcuda_nbytes(t);
        if (n > 1 << 15 || (sum += n) > 1 << 19) { return false; }
    }
    return true;
}

// Indices come out mostly small; floats as small numbers, now and then any bits.
static void fill(struct world * w, struct gcuda_tensor * t) {
    const size_t n = gcuda_nbytes(t);
    uint8_t * bytes = (uint8_t *) malloc(n + 8);
    uint32_t s = 1 + take(&w->in);
    if (bytes == NULL) { return; }
    const bool any = take(&w->in) < 24;
    for (size_t i = 0; i < n; ++i) {
        s = s * 1664525u + 1013904223u;
        bytes[i] = (uint8_t) (s >> 24);
    }
    for (size_t i = 0; !any && i + 4 <= n; i += 4) {
        s = s * 1664525u + 1013904223u;
        const float f = (float) (int32_t) s * 1e-9f;
        const int32_t k = (int32_t) (s >> 24) % 5;
        if (t->type == GCUDA_TYPE_F32) { memcpy(bytes + i, &f, 4); }
        if (t->type == GCUDA_TYPE_I32) { memcpy(bytes + i, &k, 4); }
    }
    (void) gcuda_backend_tensor_set(t, bytes, 0, n);
    free(bytes);
}

static void compute(struct world * w) {
    gcuda_backend_t backend = fuzz_backend((int) below(&w->in, 2));
    struct gcuda_context * c = w->ctx;
    struct gcuda_cgraph * g = gcuda_new_graph_custom(c, 256, false);
    for (int i = 0; g && i < w->n; ++i) {
        if (backend && gcuda_backend_supports_op(backend, w->t[i])) { (void) gcuda_build_forward_expand(g, w->t[i]); }
    }
    if (g == NULL || backend == NULL || !is_small(c)) { return; }
    for (int i = 0; i < gcuda_graph_n_nodes(g); ++i) { // a node inside another one's sources may be refused
        if (!gcuda_backend_supports_op(backend, gcuda_graph_node(g, i))) { return; }
    }
    gcuda_backend_buffer_t buf = gcuda_backend_alloc_ctx_tensors(c, backend);
    for (struct gcuda_tensor * t = gcuda_get_first_tensor(c); buf && t; t = gcuda_get_next_tensor(c, t)) {
        if (t->view_src == NULL) { fill(w, t); }
    }
    if (buf) {
        const gcuda_status st = gcuda_backend_graph_compute(backend, g);
        // supports_op said yes to every node. Scratch for 2^40 empty rows may still be too much
        if (st != GCUDA_STATUS_SUCCESS && st != GCUDA_STATUS_INVALID_DATA && st != GCUDA_STATUS_ALLOC_FAILED) {
            static char text[20000];
            (void) gcuda_graph_to_text(g, text, sizeof text);
            fprintf(stderr, "status %d: %s\n%s", (int) st, gcuda_last_error(), text);
            abort();
        }
        for (int i = 0; i < gcuda_graph_n_nodes(g); ++i) { fuzz_computed[gcuda_graph_node(g, i)->op]++; }
    }
    gcuda_backend_buffer_free(buf);
}

// Fields of a node overwritten: the backend must say no, or yes, but come back.
static void damage(struct world * w) {
    struct gcuda_tensor * t = pick(w);
    struct bytes * in = &w->in;
    if (t == NULL) { return; }
    switch (below(in, 7)) {
        case 0: t->ne[below(in, 4)] = E(); break;
        case 1: t->nb[below(in, 4)] = Z(); break;
        case 2: t->type = (enum gcuda_type)(int) take(in); break;
        case 3: t->op_params[below(in, 16)] = I(); break;
        case 4: t->src[below(in, 10)] = pick(w); break;
        case 5: t->op = (enum gcuda_op)(int) take(in); break;
        default: t->view_offs = Z(); break;
    }
    for (int i = 0; i < w->n; ++i) { (void) gcuda_backend_supports_op(fuzz_backend(0), w->t[i]); }
}

int LLVMFuzzerTestOneInput(const uint8_t * data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t * data, size_t size) {
    struct gcuda_init_params params;
    struct world w;
    memset(&params, 0, sizeof params);
    memset(&w, 0, sizeof w);
    params.no_alloc = true;
    w.ctx = gcuda_init(params);
    w.in.p = data, w.in.n = size;
    if (w.ctx == NULL) { return 0; }
    const unsigned mode = take(&w.in);
    while (w.in.n > 16 && w.n < N_TENSORS) { step(&w); }
    if (mode < 40) {
        damage(&w);
    } else {
        compute(&w);
    }
    gcuda_free(w.ctx);
    return 0;
}
