// Random graphs on the simulated device. One seed makes the same graph twice. One has separate memory and is launched
// node by node. The other has memory that the graph allocator reuses, and is planned, fused, captured and replayed on
// other data. Bits are equal. Without rounding, sorting and blocks the CPU's results are near, too. Half of the graphs
// are strict. In the others scale and soft_max may round less often; their results are near. Then the same graphs
// through the scheduler, over GPUs and the CPU.
//
//   GCUDA_RANDOM_SEED=17 build/sim/test-random      that seed alone
#define GCUDA_IMPLEMENTATION
#include "gcuda.h"

#include <float.h>
#include <math.h>

#include "sim-test.h"

enum { MAX_POOL = 64, MAX_LEAFS = 192, MAX_EARLY = 24, MOST_ELEMENTS = 3000 };

struct gen {
    uint64_t state;
    struct gcuda_context * ctx;
    gcuda_backend_t device, cpu; // both must be able to compute it
    bool is_smooth;              // only what is continuous
    struct gcuda_tensor * pool[MAX_POOL];
    int n_pool;
    struct gcuda_tensor * leafs[MAX_LEAFS];
    int64_t limits[MAX_LEAFS]; // of indices
    int n_leafs;
    struct gcuda_tensor * early[MAX_EARLY]; // the graph begins with these, in this order
    int n_early;
};

static uint64_t next(struct gen * g) {
    uint64_t z = g->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}
static int below(struct gen * g, int n) { return (int) (next(g) % (uint64_t) n); }

static struct gcuda_tensor * leaf(
    struct gen * g, enum gcuda_type type, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3, int64_t limit) {
    if (g->n_leafs == MAX_LEAFS) { return NULL; }
    struct gcuda_tensor * t = gcuda_new_tensor_4d(g->ctx, type, ne0, ne1, ne2, ne3);
    if (t != NULL) {
        gcuda_set_input(t);
        g->limits[g->n_leafs] = limit > 0 ? limit : 100; // 0: no indices, even if integers
        g->leafs[g->n_leafs++] = t;
    }
    return t;
}
static struct gcuda_tensor * f32(struct gen * g, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3) {
    return leaf(g, GCUDA_TYPE_F32, ne0, ne1, ne2, ne3, 0);
}

// Floats: what is only moved has no sums, and the first is an input in F32.
static struct gcuda_tensor * any(struct gen * g) {
    struct gcuda_tensor * t = g->pool[below(g, g->n_pool)];
    return t->type == GCUDA_TYPE_F32 || t->type == GCUDA_TYPE_F16 || t->type == GCUDA_TYPE_BF16 ? t : g->pool[0];
}
static struct gcuda_tensor * dense(struct gen * g, struct gcuda_tensor * t) {
    return gcuda_is_contiguous(t) ? t : gcuda_cont(g->ctx, t);
}
// Something of t's shape and type, from the pool if there is any.
static struct gcuda_tensor * like(struct gen * g, struct gcuda_tensor * t) {
    for (int tries = 0; tries < 6; ++tries) {
        struct gcuda_tensor * other = any(g);
        if (other != t && other->type == t->type && gcuda_are_same_shape(other, t)) { return other; }
    }
    return leaf(g, t->type, t->ne[0], t->ne[1], t->ne[2], t->ne[3], 0);
}
// Something that repeats to t's shape.
static struct gcuda_tensor * small(struct gen * g, struct gcuda_tensor * t) {
    const int kind = below(g, 4);
    return kind == 0 ? like(g, t) : f32(g, kind == 1 ? 1 : t->ne[0], kind == 2 ? t->ne[1] : 1, 1, 1);
}

enum { N_SMOOTH = 50, N_ROUGH = 74, N_KINDS = 105 }; // and the blocks, see below

// A random node on existing tensors; NULL: it does not fit.
static struct gcuda_tensor * smooth_node(struct gen * g, int kind) {
    static const enum gcuda_unary_op unary[] = { GCUDA_UNARY_OP_NEG, GCUDA_UNARY_OP_TANH, GCUDA_UNARY_OP_ELU,
        GCUDA_UNARY_OP_SIGMOID, GCUDA_UNARY_OP_GELU, GCUDA_UNARY_OP_GELU_QUICK, GCUDA_UNARY_OP_SILU,
        GCUDA_UNARY_OP_HARDSWISH, GCUDA_UNARY_OP_SOFTPLUS, GCUDA_UNARY_OP_GELU_ERF, GCUDA_UNARY_OP_RELU,
        GCUDA_UNARY_OP_ABS };
    struct gcuda_context * c = g->ctx;
    struct gcuda_tensor *a = any(g), *d = NULL;
    switch (kind) {
        case 0:
        case 1: return gcuda_add(c, a, small(g, a));
        case 2: return gcuda_sub(c, a, small(g, a));
        case 3:
        case 4: return gcuda_mul(c, a, small(g, a));
        case 5: return gcuda_scale_bias(c, a, 0.7f, below(g, 2) ? 0.0f : 0.1f);
        case 6:
        case 7: return gcuda_unary(c, dense(g, a), unary[below(g, 12)]);
        case 8: return gcuda_rms_norm(c, dense(g, a), 1e-5f);
        case 9:
        case 10: d = dense(g, a); return gcuda_mul(c, gcuda_rms_norm(c, d, 1e-5f), f32(g, d->ne[0], 1, 1, 1));
        case 11:
            d = gcuda_add(c, dense(g, a), like(g, a));
            return gcuda_mul(c, gcuda_rms_norm(c, d, 1e-5f), f32(g, d->ne[0], 1, 1, 1));
        case 12: return gcuda_norm(c, dense(g, a), 1e-3f);
        case 13: return gcuda_l2_norm(c, dense(g, a), 1e-3f);
        case 14: return gcuda_soft_max(c, dense(g, a));
        case 15: return gcuda_soft_max(c, gcuda_scale(c, dense(g, a), 0.5f));
        case 16: return gcuda_soft_max_ext(c, dense(g, a), f32(g, a->ne[0], a->ne[1], 1, 1), 0.5f, 0.0f);
        case 17: return gcuda_sum_rows(c, dense(g, a));
        case 18: return gcuda_mean(c, dense(g, a));
        case 19: return gcuda_mul_mat(c, f32(g, a->ne[0], 1 + below(g, 20), 1, 1), a);
        case 20: return gcuda_mul_mat(c, dense(g, a), f32(g, a->ne[0], 1 + below(g, 20), a->ne[2], a->ne[3]));
        case 21:
            d = dense(g, a);
            return gcuda_rope(
                c, d, leaf(g, GCUDA_TYPE_I32, d->ne[2], 1, 1, 1, 100), (int) d->ne[0] / 2 * 2, below(g, 2) ? 2 : 0);
        case 22: return gcuda_concat(c, a, like(g, a), below(g, 4));
        case 23: return gcuda_pad(c, a, below(g, 4), below(g, 3), 0, below(g, 2));
        case 24: return gcuda_transpose(c, a);
        case 25: return gcuda_permute(c, a, 0, 2, 1, 3);
        case 26: d = dense(g, a); return gcuda_reshape_2d(c, d, d->ne[0] * d->ne[1], d->ne[2] * d->ne[3]);
        case 27:
            return a->ne[1] > 1 ? gcuda_view_3d(c, a, a->ne[0], a->ne[1] - 1, a->ne[2], a->nb[1], a->nb[2], a->nb[1])
                                : NULL;
        case 28: return gcuda_cont(c, a);
        case 29: return gcuda_dup(c, a);
        case 30: return gcuda_repeat_4d(c, a, a->ne[0] * 2, a->ne[1], a->ne[2] * (1 + below(g, 2)), a->ne[3]);
        case 31: return gcuda_roll(c, a, below(g, 3), below(g, 2), 0, 0);
        case 32: return gcuda_glu_split(c, dense(g, a), dense(g, like(g, a)), (enum gcuda_glu_op) below(g, 3));
        case 33: return gcuda_leaky_relu(c, a, 0.1f, false);
        case 34: return gcuda_sqr(c, gcuda_relu(c, dense(g, a)));
        case 35: return gcuda_mul(c, gcuda_silu(c, dense(g, a)), like(g, a));
        case 36: return gcuda_scale(c, gcuda_tanh(c, gcuda_scale(c, dense(g, a), 0.2f)), 3.0f);
        case 37: return gcuda_sin(c, a);
        case 38: return gcuda_cos(c, a);
        case 39:
            return gcuda_get_rows(c, dense(g, gcuda_reshape_2d(c, dense(g, a), a->ne[0], gcuda_nrows(a))),
                leaf(g, GCUDA_TYPE_I32, 1 + below(g, 6), 1, 1, 1, gcuda_nrows(a)));
        case 40:
            d = dense(g, a);
            return gcuda_set_rows(c, f32(g, d->ne[0], d->ne[1] + 3, d->ne[2], d->ne[3]), d,
                leaf(g, GCUDA_TYPE_I64, d->ne[1], 1, 1, 1, d->ne[1] + 3));
        case 41: return gcuda_upscale(c, a, 2, below(g, 2) ? GCUDA_SCALE_MODE_NEAREST : GCUDA_SCALE_MODE_BILINEAR);
        case 42: return gcuda_diag_mask_zero(c, dense(g, a), below(g, 3));
        case 43: return gcuda_cumsum(c, dense(g, a));
        case 44: return gcuda_group_norm(c, dense(g, a), 1, 1e-3f);
        case 45: return gcuda_add1(c, a, f32(g, 1, 1, 1, 1));
        case 46: return gcuda_div(c, a, gcuda_scale_bias(c, gcuda_sigmoid(c, dense(g, like(g, a))), 1.0f, 1.0f));
        case 47: return gcuda_pad_reflect_1d(c, dense(g, a), below(g, 2), below(g, 2));
        case 48: return gcuda_repeat_back(c, a, f32(g, a->ne[0], 1, 1, 1));
        case 49: return gcuda_acc(c, dense(g, a), f32(g, a->ne[0], 1, 1, 1), a->nb[1], a->nb[2], a->nb[3], 0);
        default: return NULL;
    }
}

static const enum gcuda_type weights[] = { GCUDA_TYPE_F32, GCUDA_TYPE_F16, GCUDA_TYPE_BF16, GCUDA_TYPE_Q4_0,
    GCUDA_TYPE_Q4_1, GCUDA_TYPE_Q5_0, GCUDA_TYPE_Q5_1, GCUDA_TYPE_Q8_0, GCUDA_TYPE_MXFP4, GCUDA_TYPE_IQ4_NL,
    GCUDA_TYPE_Q2_K, GCUDA_TYPE_Q3_K, GCUDA_TYPE_Q4_K, GCUDA_TYPE_Q5_K, GCUDA_TYPE_Q6_K, GCUDA_TYPE_IQ4_XS,
    GCUDA_TYPE_IQ2_XXS, GCUDA_TYPE_IQ2_XS, GCUDA_TYPE_IQ2_S, GCUDA_TYPE_IQ3_XXS, GCUDA_TYPE_IQ3_S, GCUDA_TYPE_IQ1_S,
    GCUDA_TYPE_IQ1_M };
static bool is_codebook(enum gcuda_type type) { // nothing quantizes to it
    bool is_so = false;
    for (size_t i = sizeof weights / sizeof weights[0] - 7; i < sizeof weights / sizeof weights[0]; ++i) {
        is_so = is_so || type == weights[i];
    }
    return is_so;
}

static struct gcuda_tensor * rough_node(struct gen * g, int kind) {
    struct gcuda_context * c = g->ctx;
    struct gcuda_tensor *a = any(g), *d = NULL, *e = NULL;
    const int n_weights = (int) (sizeof weights / sizeof weights[0]);
    const enum gcuda_type type = weights[below(g, a->ne[0] % 256 == 0 ? n_weights : a->ne[0] % 32 == 0 ? 10 : 3)];
    const enum gcuda_type half = below(g, 2) ? GCUDA_TYPE_F16 : GCUDA_TYPE_BF16;
    switch (kind) {
        case 50: return gcuda_mul_mat(c, leaf(g, type, a->ne[0], 1 + below(g, 30), 1, 1, 0), dense(g, a));
        case 51: return gcuda_cast(c, a, below(g, 3) ? half : GCUDA_TYPE_F32);
        case 52:
            d = gcuda_cast(c, dense(g, a), type);
            return gcuda_cast(
                c, gcuda_is_quantized(type) && below(g, 2) ? gcuda_cast(c, d, GCUDA_TYPE_Q8_0) : d, GCUDA_TYPE_F32);
        case 53:
            return gcuda_get_rows(
                c, leaf(g, type, a->ne[0], 9, 1, 1, 0), leaf(g, GCUDA_TYPE_I32, 1 + below(g, 6), 1, 1, 1, 9));
        case 54: return gcuda_unary(c, dense(g, a), (enum gcuda_unary_op) below(g, GCUDA_UNARY_OP_COUNT));
        case 55: d = gcuda_argsort(c, dense(g, a), GCUDA_SORT_ORDER_DESC); return gcuda_cast(c, d, GCUDA_TYPE_F32);
        case 56:
            d = gcuda_reshape_2d(c, dense(g, a), a->ne[0], gcuda_nrows(a));
            return gcuda_get_rows(c, f32(g, 7, a->ne[0], 1, 1), gcuda_argmax(c, d));
        case 57: return gcuda_clamp(c, a, -0.5f, 0.5f);
        case 58: return gcuda_diag_mask_inf(c, dense(g, a), below(g, 3));
        case 59: return gcuda_tri(c, f32(g, a->ne[0], a->ne[0], 1, 1), (enum gcuda_tri_type) below(g, 4));
        case 60: return gcuda_sum(c, dense(g, a));
        case 61: return gcuda_log(c, a);
        case 62: return gcuda_sqrt(c, gcuda_sqr(c, a));
        case 63:
            d = gcuda_cast(c, a, half);
            return gcuda_mul(c, gcuda_gelu(c, dense(g, d)), gcuda_add(c, dense(g, d), f32(g, 1, 1, 1, 1)));
        case 64:
            return gcuda_pool_2d(
                c, dense(g, a), below(g, 2) ? GCUDA_OP_POOL_MAX : GCUDA_OP_POOL_AVG, 2, 2, 2, 2, 0.0f, 0.0f);
        case 65:
            d = dense(g, a);
            return gcuda_conv_2d(c, leaf(g, GCUDA_TYPE_F16, 2, 2, d->ne[2], 3, 0), d, 1, 1, 1, 1, 1, 1);
        case 66:
            d = dense(g, a);
            return gcuda_mul_mat_id(c, leaf(g, type, d->ne[0], 12, 4, 1, 0),
                gcuda_reshape_3d(c, d, d->ne[0], 1, gcuda_nrows(d)),
                leaf(g, GCUDA_TYPE_I32, 2, gcuda_nrows(d), 1, 1, 4));
        case 67: return gcuda_out_prod(c, dense(g, a), f32(g, 1 + below(g, 5), a->ne[1], a->ne[2], a->ne[3]));
        case 68: return gcuda_glu(c, dense(g, a), (enum gcuda_glu_op) below(g, 3), below(g, 2) != 0);
        case 69:
            d = gcuda_rope(c, f32(g, 16, 2, 5, 1), leaf(g, GCUDA_TYPE_I32, 5, 1, 1, 1, 50), 16, below(g, 2) ? 2 : 0);
            return gcuda_cast(c,
                gcuda_set_rows(c, leaf(g, half, 32, 9, 1, 1, 0), gcuda_reshape_2d(c, d, 32, 5),
                    leaf(g, GCUDA_TYPE_I64, 5, 1, 1, 1, 9)),
                GCUDA_TYPE_F32);
        case 70:
            d = leaf(g, GCUDA_TYPE_F16, 64, 12, 2, 1, 0), e = leaf(g, GCUDA_TYPE_F16, 64, 12, 2, 1, 0);
            return gcuda_flash_attn_ext(c, f32(g, 64, 1 + below(g, 3), 4, 1), d, e, NULL, 0.125f, 0.0f, 0.0f);
        case 71: return gcuda_silu_back(c, dense(g, a), dense(g, like(g, a)));
        case 72: return gcuda_rms_norm_back(c, dense(g, a), dense(g, like(g, a)), 1e-5f);
        case 73: return gcuda_cross_entropy_loss(c, dense(g, a), dense(g, like(g, a)));
        default: return NULL;
    }
}

static struct gcuda_tensor * some_f32(struct gen * g, int64_t ne0, int64_t ne1, int64_t ne2) {
    return f32(g, ne0, ne1, ne2, 1);
}

// Nodes of models with recurrences, images and training: inputs of special shapes, results in F32 for the next nodes.
static struct gcuda_tensor * other_node(struct gen * g, int kind) {
    struct gcuda_context * c = g->ctx;
    struct gcuda_tensor *a = any(g), *d = dense(g, a), *e = NULL, *in[6];
    const enum gcuda_type half = below(g, 2) ? GCUDA_TYPE_F16 : GCUDA_TYPE_BF16;
    const int64_t ne0 = a->ne[0], n = gcuda_nrows(a), n_tokens = 1 + below(g, 5);
    const int axis = below(g, 2);
    switch (kind) {
        case 74: // into the middle of something larger, all of which is read
            e = leaf(g, half, ne0, n + 2, 1, 1, 0);
            d = gcuda_cpy(
                c, gcuda_reshape_2d(c, d, ne0, n), e == NULL ? NULL : gcuda_view_2d(c, e, ne0, n, e->nb[1], e->nb[1]));
            return gcuda_cast(c, d, GCUDA_TYPE_F32);
        case 75:
            return gcuda_set(c, d, some_f32(g, ne0, 1, 1), d->nb[1], d->nb[2], d->nb[3],
                (size_t) below(g, (int) a->ne[1]) * d->nb[1]);
        case 76:
            return gcuda_get_rows_back(
                c, gcuda_reshape_2d(c, d, ne0, n), leaf(g, GCUDA_TYPE_I32, n, 1, 1, 1, 5), some_f32(g, ne0, 5, 1));
        case 77: return gcuda_diag(c, some_f32(g, 1 + below(g, 40), 1, 1 + below(g, 2)));
        case 78: return gcuda_add(c, gcuda_fill(c, d, 0.25f), d);
        case 79: return gcuda_timestep_embedding(c, some_f32(g, 1 + below(g, 6), 1, 1), 2 * (1 + below(g, 40)), 100);
        case 80:
            return gcuda_add_id(
                c, some_f32(g, ne0, 2, 3), some_f32(g, ne0, 4, 1), leaf(g, GCUDA_TYPE_I32, 2, 3, 1, 1, 4));
        case 81:
            d = gcuda_argmax(c, gcuda_reshape_2d(c, d, ne0, n));
            return gcuda_cast(c, gcuda_count_equal(c, d, leaf(g, GCUDA_TYPE_I32, n, 1, 1, 1, 3)), GCUDA_TYPE_F32);
        case 82: return gcuda_cast(c, gcuda_top_k(c, d, 1 + below(g, (int) ne0)), GCUDA_TYPE_F32);
        case 83: return gcuda_soft_max_ext_back(c, d, gcuda_soft_max(c, dense(g, like(g, a))), 0.5f, 0.0f);
        case 84:
            return gcuda_rope_ext_back(c, some_f32(g, 16, 3, n_tokens), leaf(g, GCUDA_TYPE_I32, n_tokens, 1, 1, 1, 50),
                NULL, 16, below(g, 2) ? 2 : 0, 0, 10000.0f, 1.0f, 0.0f, 1.0f, 32.0f, 1.0f);
        case 85: return gcuda_cross_entropy_loss_back(c, some_f32(g, 1, 1, 1), d, dense(g, like(g, a)));
        case 86:
        case 87: // parameters change where they are
            e = leaf(g, GCUDA_TYPE_F32, ne0, a->ne[1], a->ne[2], a->ne[3], 0);
            if (e == NULL || gcuda_set_param(e) != GCUDA_STATUS_SUCCESS) { return NULL; }
            if (kind == 86) { return gcuda_opt_step_sgd(c, e, d, some_f32(g, 2, 1, 1)); }
            return gcuda_opt_step_adamw(c, e, d, f32(g, ne0, a->ne[1], a->ne[2], a->ne[3]),
                f32(g, ne0, a->ne[1], a->ne[2], a->ne[3]), some_f32(g, 7, 1, 1));
        case 88:
            return gcuda_im2col(
                c, leaf(g, half, 3, 2, a->ne[2], 1, 0), d, 1, 1 + axis, 1, 0, 1, 1, true, axis ? half : GCUDA_TYPE_F32);
        case 89: {
            const int64_t ne[4] = { 6, 5, 2, 1 };
            e = leaf(g, GCUDA_TYPE_F32, 3, 2, 2, 1, 0);
            d = gcuda_im2col(c, e, f32(g, 6, 5, 2, 1), 1, 1, 1, 0, 1, 1, true, GCUDA_TYPE_F32);
            return gcuda_im2col_back(c, d, e, ne, 1, 1, 1, 0, 1, 1, true);
        }
        case 90:
            return gcuda_im2col_3d(
                c, leaf(g, half, 2, 2, 2, 3, 0), f32(g, 6, 5, 4, 3), 3, 1, 1, 1, 0, 1, 0, 1, 1, 1, GCUDA_TYPE_F32);
        case 91: return gcuda_conv_2d_direct(c, leaf(g, half, 3, 3, a->ne[2], 4, 0), d, 1, 1, 1, 1, 1, 1);
        case 92: return gcuda_conv_2d_dw_direct(c, leaf(g, half, 3, 3, 1, a->ne[2], 0), d, 1, 1 + axis, 1, 1, 1, 1);
        case 93: return gcuda_conv_transpose_1d(c, leaf(g, half, 3, 2, 4, 1, 0), some_f32(g, 9, 4, 1), 1 + axis, 0, 1);
        case 94: return gcuda_conv_transpose_2d_p0(c, leaf(g, half, 2, 3, 2, 4, 0), some_f32(g, 6, 5, 4), 2);
        case 95: return gcuda_pool_1d(c, d, axis ? GCUDA_OP_POOL_MAX : GCUDA_OP_POOL_AVG, 2, 2, 0);
        case 96:
            return gcuda_pool_2d_back(c, some_f32(g, 4, 3, 2), some_f32(g, 8, 6, 2),
                axis ? GCUDA_OP_POOL_MAX : GCUDA_OP_POOL_AVG, 2, 2, 2, 2, 0.0f, 0.0f);
        case 97: return gcuda_silu(c, gcuda_ssm_conv(c, some_f32(g, n_tokens + 3, 20, 2), some_f32(g, 4, 20, 1)));
        case 98:
            e = gcuda_neg(c, gcuda_sqr(c, some_f32(g, axis ? 16 : 1, 4, 1)));
            for (int i = 0; i < 2; ++i) { in[i] = f32(g, 16, 2, n_tokens, 2); }
            return gcuda_ssm_scan(c, f32(g, 16, 8, 4, 3), f32(g, 8, 4, n_tokens, 2), some_f32(g, 4, n_tokens, 2), e,
                in[0], in[1], leaf(g, GCUDA_TYPE_I32, 2, 1, 1, 1, 3));
        case 99:
        case 100:
        case 101: // the decay is between 0 and 1
            for (int i = 0; i < 6; ++i) { in[i] = some_f32(g, 16, 2, n_tokens); }
            e = some_f32(g, 16 * 16 * 2, 1, 1);
            if (kind == 99) {
                return gcuda_gated_linear_attn(c, in[0], in[1], in[2], gcuda_sigmoid(c, in[3]), e, 0.3f);
            }
            if (kind == 100) {
                return gcuda_rwkv_wkv6(c, in[0], in[1], in[2], some_f32(g, 16, 2, 1), gcuda_sigmoid(c, in[3]), e);
            }
            return gcuda_rwkv_wkv7(c, in[0], gcuda_sigmoid(c, in[1]), in[2], in[3], in[4], in[5], e);
        case 102: return gcuda_solve_tri(c, some_f32(g, 9, 9, 2), some_f32(g, 5, 9, 2), true, true, false);
        case 104: // some of the three gradients
            for (int i = 0; i < 2; ++i) { in[i] = leaf(g, half, 64, 12, 2, 1, 0); }
            d = f32(g, 64, n_tokens, 4, 1);
            e = gcuda_flash_attn_ext(c, d, in[0], in[1], NULL, 0.125f, 0.0f, 0.0f);
            e = gcuda_flash_attn_ext_back(
                c, d, in[0], in[1], e, f32(g, 64, 4, n_tokens, 1), NULL, NULL, 0.125f, 0.0f, 0.0f);
            return gcuda_cont(c, gcuda_flash_attn_ext_back_part(c, e, (enum gcuda_flash_attn_grad) below(g, 3)));
        case 103: return gcuda_add(c, gcuda_arange(c, 0.0f, (float) ne0, 1.0f), some_f32(g, 1, 1, 1));
        default: return NULL;
    }
}

// =====================================================================================================================
// >>blocks   what models are made of: nodes in the order in which plans look for them
// =====================================================================================================================

// What one launch may compute together is a result now and then, and then has to be written.
static struct gcuda_tensor * seen(struct gen * g, struct gcuda_tensor * t) {
    if (t != NULL && below(g, 12) == 0) { gcuda_set_output(t); }
    return t;
}

// Columns that a node of the graph computes, so that what reads them may be given their memory.
static struct gcuda_tensor * columns(struct gen * g, int64_t ne0, int64_t ne1, int64_t ne2) {
    struct gcuda_tensor *x = some_f32(g, ne0, ne1, ne2), *a = dense(g, any(g));
    const bool is_apart = a == NULL || a->type != GCUDA_TYPE_F32 || below(g, 4) != 0; // few: what is not finite spreads
    return is_apart ? gcuda_relu(g->ctx, x) : gcuda_add(g->ctx, x, gcuda_view_1d(g->ctx, a, 1, 0));
}

// floats; rows at multiples of 32
enum { N_WEIGHTS = (int) (sizeof weights / sizeof weights[0]), N_FLOATS = 3, N_SHORT = 10 };

// A type of weights from `first` on, and a length of rows that it takes.
static enum gcuda_type weights_of(struct gen * g, int first, int64_t * ne0) {
    const int i = first + below(g, N_WEIGHTS - first);
    *ne0 = i < N_SHORT ? 32 * (1 + below(g, 4)) : 256;
    return weights[i];
}

// One, as while tokens are generated, few, which are rounded to bytes, and more, which go in tiles.
static int64_t some_columns(struct gen * g) {
    switch (below(g, 3)) {
        case 0: return 1;
        case 1: return 2 + below(g, 7);
        default: return 9 + below(g, 9);
    }
}

static struct gcuda_tensor * block_routing(struct gen * g) {
    struct gcuda_context * c = g->ctx;
    const int64_t experts = 4 + below(g, 60), tokens = 1 + below(g, 4), used = 1 + below(g, 4);
    const int gate = below(g, 3); // the last: soft_max of what was chosen
    struct gcuda_tensor * logits = columns(g, experts, tokens, 1);
    struct gcuda_tensor * probs =
        gate == 2 ? logits : seen(g, gate == 1 ? gcuda_sigmoid(c, logits) : gcuda_soft_max(c, logits));
    struct gcuda_tensor * key =
        gate < 2 && below(g, 2) ? seen(g, gcuda_add(c, probs, some_f32(g, experts, 1, 1))) : probs;
    struct gcuda_tensor * ids = gcuda_argsort_top_k(c, key, (int) used);
    struct gcuda_tensor * w = seen(g, gcuda_get_rows(c, gcuda_reshape_3d(c, probs, 1, experts, tokens), ids));
    struct gcuda_tensor * flat = gcuda_reshape_2d(c, w, used, tokens);
    if (gate == 2) {
        flat = gcuda_soft_max(c, flat);
    } else if (below(g, 2)) {
        struct gcuda_tensor * sum = seen(g, gcuda_sum_rows(c, flat));
        flat = gcuda_div(c, flat, below(g, 2) ? gcuda_clamp(c, sum, 0.1f, INFINITY) : sum);
    }
    if (below(g, 2)) { flat = gcuda_scale(c, seen(g, flat), 2.5f); }
    return gcuda_concat(c, flat, gcuda_cast(c, gcuda_cont(c, ids), GCUDA_TYPE_F32), 0);
}

// What experts make of x; bias NULL: has none.
static struct gcuda_tensor * by_experts(
    struct gen * g, struct gcuda_tensor * as, struct gcuda_tensor * x, struct gcuda_tensor * ids, bool has_bias) {
    struct gcuda_tensor * y = seen(g, gcuda_mul_mat_id(g->ctx, as, x, ids));
    return has_bias && as != NULL ? gcuda_add_id(g->ctx, y, some_f32(g, as->ne[1], as->ne[2], 1), ids) : y;
}

static struct gcuda_tensor * block_experts(struct gen * g) {
    struct gcuda_context * c = g->ctx;
    const int64_t experts = 2 + below(g, 3), used = 1 + below(g, 2), tokens = 1 + below(g, 2), rows = 32;
    int64_t ne0 = 0;
    const enum gcuda_type type = weights_of(g, N_FLOATS, &ne0), down = weights[N_FLOATS + below(g, N_SHORT - N_FLOATS)];
    const bool has_bias = below(g, 2) != 0;
    struct gcuda_tensor *x = columns(g, ne0, 1, tokens), *ids = leaf(g, GCUDA_TYPE_I32, used, tokens, 1, 1, experts);
    struct gcuda_tensor * gate = by_experts(g, leaf(g, type, ne0, rows, experts, 1, 0), x, ids, has_bias);
    struct gcuda_tensor * up = by_experts(g, leaf(g, type, ne0, rows, experts, 1, 0), x, ids, has_bias);
    struct gcuda_tensor * h = seen(g, has_bias ? gcuda_swiglu_oai(c, gate, up, 1.702f, 7.0f)
                                               : gcuda_glu_split(c, gate, up, (enum gcuda_glu_op) below(g, 3)));
    struct gcuda_tensor * y =
        by_experts(g, leaf(g, down, rows, 1 + below(g, 8), experts, 1, 0), h, ids, below(g, 2) != 0);
    return below(g, 2) ? gcuda_mul(c, y, some_f32(g, 1, used, tokens)) : y;
}

// Queries, keys, values: two to four products of the same columns, joined afterwards.
static struct gcuda_tensor * block_beside(struct gen * g) {
    int64_t ne0 = 0;
    const enum gcuda_type type = weights_of(g, below(g, 4) ? N_FLOATS : 0, &ne0);
    const int n = 2 + below(g, 3);
    // fewer rows do not go in tiles
    const int64_t n_columns = below(g, 3) ? some_columns(g) : 9 + below(g, 12), least = below(g, 4) ? 16 : 1;
    struct gcuda_tensor *x = columns(g, ne0, n_columns, 1), *all = columns(g, 1, n_columns, 1), *y[4];
    for (int i = 0; i < n; ++i) {
        y[i] = seen(g, gcuda_mul_mat(g->ctx, leaf(g, type, ne0, least + below(g, 12), 1, 1, 0), x));
    }
    // from the last on: none lies between them
    for (int i = n - 1; i >= 0; --i) { all = gcuda_concat(g->ctx, y[i], all, 0); }
    return all;
}

// Gate and up of the same columns, with a bias each or without, and what reads their glu.
static struct gcuda_tensor * block_gate(struct gen * g) {
    struct gcuda_context * c = g->ctx;
    int64_t ne0 = 0;
    const enum gcuda_type type = weights_of(g, below(g, 4) ? N_FLOATS : 0, &ne0), down = weights[below(g, N_SHORT)];
    const int64_t n = some_columns(g), rows = 32;
    const bool has_bias = below(g, 3) == 0;
    struct gcuda_tensor *x = columns(g, ne0, n, 1), *y[2];
    for (int i = 0; i < 2; ++i) {
        y[i] = seen(g, gcuda_mul_mat(c, leaf(g, type, ne0, rows, 1, 1, 0), x));
        if (has_bias) { y[i] = seen(g, gcuda_add(c, y[i], some_f32(g, rows, 1, 1))); }
    }
    struct gcuda_tensor * h =
        seen(g, gcuda_glu_split(c, y[0], y[1], (enum gcuda_glu_op) below(g, GCUDA_GLU_OP_SWIGLU_OAI)));
    return gcuda_mul_mat(c, leaf(g, down, rows, 1 + below(g, 10), 1, 1, 0), h);
}

// A product of a gate, and the residual.
static struct gcuda_tensor * block_down(struct gen * g) {
    struct gcuda_context * c = g->ctx;
    int64_t ne0 = 0;
    const enum gcuda_type type = weights_of(g, 0, &ne0);
    const int64_t n = some_columns(g), rows = 1 + below(g, 20);
    struct gcuda_tensor * h =
        seen(g, gcuda_glu_split(c, columns(g, ne0, n, 1), columns(g, ne0, n, 1), (enum gcuda_glu_op) below(g, 3)));
    struct gcuda_tensor * y = seen(g, gcuda_mul_mat(c, leaf(g, type, ne0, rows, 1, 1, 0), h));
    return gcuda_add(c, y, columns(g, rows, n, 1));
}

// A product and what may follow it, some of it, in order.
static struct gcuda_tensor * block_steps(struct gen * g) {
    struct gcuda_context * c = g->ctx;
    int64_t ne0 = 0;
    const enum gcuda_type type = weights_of(g, 0, &ne0);
    const int64_t n = some_columns(g), rows = 4 * (1 + below(g, 6));
    struct gcuda_tensor *residual = columns(g, rows, n, 1),
                        *y = gcuda_mul_mat(c, leaf(g, type, ne0, rows, 1, 1, 0), columns(g, ne0, n, 1));
    if (below(g, 2)) { y = gcuda_add(c, seen(g, y), some_f32(g, rows, 1, 1)); }
    if (below(g, 2)) { y = below(g, 2) ? gcuda_silu(c, seen(g, y)) : gcuda_gelu(c, seen(g, y)); }
    if (below(g, 2)) { y = gcuda_mul(c, seen(g, y), some_f32(g, rows, 1, 1)); }
    if (below(g, 2)) { y = gcuda_scale(c, seen(g, y), 0.3f); }
    if (below(g, 2)) { y = gcuda_add(c, seen(g, y), residual); }
    return y;
}

// Of keys and values: what has a float form, and rows at multiples of 32.
static enum gcuda_type cache_type(struct gen * g) { return weights[below(g, N_SHORT)]; }

static struct gcuda_tensor * attention(
    struct gen * g, struct gcuda_tensor * q, struct gcuda_tensor * k, int64_t n_positions, int64_t kv_heads) {
    if (q == NULL || k == NULL) { return NULL; }
    struct gcuda_tensor * v = leaf(g, below(g, 2) ? k->type : cache_type(g), k->ne[0], n_positions, kv_heads, 1, 0);
    struct gcuda_tensor * mask = below(g, 2) ? leaf(g, GCUDA_TYPE_F16, n_positions, q->ne[1], 1, 1, 0) : NULL;
    return gcuda_flash_attn_ext(g->ctx, q, k, v, mask, 0.125f, 0.0f, below(g, 3) ? 0.0f : 5.0f);
}

enum { HEADS_BIAS = 1, HEADS_NORM = 2, HEADS_HADAMARD = 4 };

// What rope is given: columns, with a bias and a norm of heads or without.
static struct gcuda_tensor * heads_of(struct gen * g, int64_t head, int64_t heads, int64_t tokens, int steps) {
    struct gcuda_context * c = g->ctx;
    struct gcuda_tensor * x = columns(g, head * heads, tokens, 1);
    if (g->n_early < MAX_EARLY && x != NULL) { g->early[g->n_early++] = x; } // else it comes between the ropes
    if (steps & HEADS_BIAS) { x = seen(g, gcuda_add(c, x, f32(g, head * heads, 1, 1, 1))); }
    x = gcuda_reshape_3d(c, x, head, heads, tokens);
    return steps & HEADS_NORM ? seen(g, gcuda_mul(c, seen(g, gcuda_rms_norm(c, x, 1e-5f)), f32(g, head, 1, 1, 1))) : x;
}

// Rotated by the Hadamard matrix, which fill_leafs knows by its name.
static struct gcuda_tensor * rotated(struct gen * g, struct gcuda_tensor * x, int steps) {
    enum { N = 64 };
    if (!(steps & HEADS_HADAMARD) || x == NULL) { return x; }
    struct gcuda_tensor * y = gcuda_mul_mat(
        g->ctx, gcuda_set_name(f32(g, N, N, 1, 1), "hadamard"), gcuda_reshape_2d(g->ctx, x, N, gcuda_nelements(x) / N));
    CHECK_OK(gcuda_mul_mat_set_prec(y, GCUDA_PREC_F32));
    CHECK_OK(gcuda_mul_mat_set_hint(y, GCUDA_HINT_SRC0_IS_HADAMARD));
    return gcuda_reshape(g->ctx, seen(g, y), x);
}

// Queries turned next to keys that go into their cache, whose attention reads them there; values that go into theirs.
// The graph has the queries before the keys, between these and the write, or after it, next to the values or not.
static struct gcuda_tensor * block_rope(struct gen * g) {
    struct gcuda_context * c = g->ctx;
    const int64_t head = 32 * (1 + below(g, 2)), kv_heads = 1 + below(g, 2), heads = kv_heads * (1 + below(g, 3)),
                  tokens = 1 + below(g, 4), positions = 12;
    const int mode = below(g, 2) ? GCUDA_ROPE_TYPE_NEOX : GCUDA_ROPE_TYPE_NORMAL, place = below(g, 5),
              order = below(g, 4);
    const int steps = (below(g, 2) ? below(g, 4) : 0) | (head == 64 && below(g, 2) ? HEADS_HADAMARD : 0);
    const enum gcuda_type type = cache_type(g);
    struct gcuda_tensor *pos = leaf(g, GCUDA_TYPE_I32, tokens, 1, 1, 1, 50),
                        *ids = leaf(g, GCUDA_TYPE_I64, tokens, 1, 1, 1, positions);
    struct gcuda_tensor *x = heads_of(g, head, kv_heads, tokens, steps),
                        *of_q = heads_of(g, head, heads, tokens, steps);
    struct gcuda_tensor * q = rotated(g, seen(g, gcuda_rope(c, of_q, pos, (int) head, mode)), steps);
    struct gcuda_tensor * k = rotated(g, seen(g, gcuda_rope(c, x, pos, (int) head, mode)), steps);
    struct gcuda_tensor * set = gcuda_set_rows(
        c, leaf(g, type, head * kv_heads, positions, 1, 1, 0), gcuda_reshape_2d(c, k, head * kv_heads, tokens), ids);
    struct gcuda_tensor *v = order == 0 ? NULL
                                        : rotated(g, heads_of(g, head, kv_heads, tokens, steps & HEADS_BIAS), steps),
                        *v_set = NULL;
    if (v != NULL) {
        v_set = gcuda_set_rows(c, leaf(g, type, head * kv_heads, positions, 1, 1, 0),
            gcuda_reshape_2d(c, v, head * kv_heads, tokens), ids);
    }
    if (set == NULL || q == NULL || (v_set == NULL) != (order == 0) || g->n_early + 4 > MAX_EARLY) { return NULL; }
    const size_t of_head = gcuda_row_size(set->type, head);
    struct gcuda_tensor * keys = gcuda_view_3d(c, set, head, positions, kv_heads, set->nb[1], of_head, 0);
    if (place > 2) { g->early[g->n_early++] = q; } // before memory of keys and values is used again
    if (order == 1) { g->early[g->n_early++] = v_set; }
    if (place > 0) { g->early[g->n_early++] = place == 1 ? k : set; }
    if (order > 1) { g->early[g->n_early++] = v_set; }
    return attention(g, gcuda_permute(c, q, 0, 2, 1, 3), keys, positions, kv_heads);
}

static struct gcuda_tensor * block_attention(struct gen * g) {
    const int64_t head = 32 * (1 + below(g, 4)), kv_heads = 1 + below(g, 2), positions = 1 + below(g, 20);
    struct gcuda_tensor * q = columns(g, head, 1 + below(g, 3), kv_heads * (1 + below(g, 3)));
    return attention(g, q, leaf(g, cache_type(g), head, positions, kv_heads, 1, 0), positions, kv_heads);
}

// 16-bit sums in F32, followed by element-wise operations.
static struct gcuda_tensor * block_add_cast(struct gen * g) {
    struct gcuda_context * c = g->ctx;
    struct gcuda_tensor * a = any(g);
    const enum gcuda_type half = below(g, 2) ? GCUDA_TYPE_F16 : GCUDA_TYPE_BF16;
    struct gcuda_tensor * b = leaf(g, below(g, 2) ? half : GCUDA_TYPE_F32, a->ne[0], 1, 1, 1, 0);
    struct gcuda_tensor * y = gcuda_add_cast(c, gcuda_cast(c, a, half), b, GCUDA_TYPE_F32);
    for (int i = below(g, 4); i > 0 && y != NULL; --i) {
        y = seen(g, y);
        y = below(g, 2) ? gcuda_mul(c, y, small(g, y)) : below(g, 2) ? gcuda_silu(c, y) : gcuda_scale(c, y, 0.5f);
    }
    return y;
}

enum { N_PLAIN = 5 };
static const enum gcuda_type plain_types[N_PLAIN] = { GCUDA_TYPE_F64, GCUDA_TYPE_I8, GCUDA_TYPE_I16, GCUDA_TYPE_I32,
    GCUDA_TYPE_I64 };

// Types that are only moved; the result is compared as it is, or as F32 where there is such a copy.
static struct gcuda_tensor * block_plain(struct gen * g) {
    struct gcuda_context * c = g->ctx;
    const int64_t ne0 = 1 + below(g, 9), ne1 = 1 + below(g, 7), ne2 = 1 + below(g, 3);
    struct gcuda_tensor *x = leaf(g, plain_types[below(g, N_PLAIN)], ne0, ne1, ne2, 1, 100), *y = NULL;
    if (x == NULL) { return NULL; }
    for (int i = 1 + below(g, 3); i > 0 && x != NULL; --i, x = y) {
        switch (below(g, 8)) {
            case 0: y = gcuda_repeat_4d(c, x, 2 * x->ne[0], x->ne[1], x->ne[2], 2 * x->ne[3]); break;
            case 1: y = gcuda_concat(c, x, gcuda_cont(c, x), below(g, 4)); break;
            case 2: y = gcuda_cont(c, gcuda_permute(c, x, 1, 0, 2, 3)); break;
            case 3:
                y = gcuda_get_rows(c, x, leaf(g, GCUDA_TYPE_I32, 1 + below(g, 6), x->ne[2], x->ne[3], 1, x->ne[1]));
                break;
            case 4: y = gcuda_roll(c, x, 0, x->ne[1] > 1, 0, 0); break;
            case 5: y = gcuda_pad(c, x, below(g, 3), below(g, 2), 0, 1); break;
            case 6: y = gcuda_cpy(c, x, leaf(g, x->type, x->ne[0], x->ne[1], x->ne[2], x->ne[3], 100)); break;
            default: y = gcuda_dup(c, x); break;
        }
    }
    y = x != NULL && below(g, 2) ? gcuda_cast(c, x, GCUDA_TYPE_F32) : x;
    if (y != NULL && g->n_early < MAX_EARLY && y->op != GCUDA_OP_NONE) {
        gcuda_set_output(y);
        g->early[g->n_early++] = y;
    }
    return y;
}

// The only block without jumps.
static struct gcuda_tensor * block_soft_max(struct gen * g) {
    struct gcuda_context * c = g->ctx;
    struct gcuda_tensor *a = any(g), *x = seen(g, gcuda_scale(c, dense(g, a), 0.5f));
    switch (below(g, 3)) {
        case 0: return gcuda_soft_max(c, x);
        case 1: return gcuda_soft_max_ext(c, x, NULL, 0.7f, 0.0f);
        default: return gcuda_soft_max_ext(c, x, some_f32(g, a->ne[0], a->ne[1], 1), below(g, 2) ? 1.0f : 0.3f, 0.0f);
    }
}

// Parts of one row, added in order, and the norm of what they are added to.
static struct gcuda_tensor * block_parts(struct gen * g) {
    struct gcuda_context * c = g->ctx;
    const int64_t n = 512 + 4 * below(g, 57), used = 2 + below(g, 3);
    struct gcuda_tensor *y = columns(g, n, used, 1), *sum = NULL;
    for (int64_t i = 0; i < used && y != NULL; ++i) {
        struct gcuda_tensor * one = gcuda_view_2d(c, y, n, 1, y->nb[2], (size_t) i * y->nb[1]);
        sum = i == 0 ? one : seen(g, gcuda_add(c, sum, one));
    }
    sum = seen(g, gcuda_add(c, f32(g, n, 1, 1, 1), sum));
    return gcuda_mul(c, seen(g, gcuda_rms_norm(c, sum, 1e-5f)), f32(g, n, 1, 1, 1));
}

// The norm before experts, with a sum or without, and the router's product, of which a bias may be a step.
static struct gcuda_tensor * block_router(struct gen * g) {
    struct gcuda_context * c = g->ctx;
    const int64_t n = 516 + 4 * below(g, 57), experts = 2 + below(g, 20);
    struct gcuda_tensor * x = below(g, 2) ? columns(g, n, 1, 1) : f32(g, n, 1, 1, 1);
    if (below(g, 2)) { x = seen(g, gcuda_add(c, x, f32(g, n, 1, 1, 1))); }
    struct gcuda_tensor * h = gcuda_mul(c, seen(g, gcuda_rms_norm(c, x, 1e-5f)), f32(g, n, 1, 1, 1));
    struct gcuda_tensor * y = gcuda_mul_mat(c, f32(g, n, experts, 1, 1), seen(g, h));
    if (below(g, 4) == 0) { y = gcuda_add(c, seen(g, y), f32(g, experts, 1, 1, 1)); }
    // a later use of the residual, so that h does not reuse its memory
    return gcuda_concat(c, y, gcuda_add(c, h, x), 0);
}

enum { N_BLOCKS = 13 };
static struct gcuda_tensor * block(struct gen * g, int kind) {
    static struct gcuda_tensor * (*const blocks[N_BLOCKS])(struct gen * g) = { block_routing, block_experts,
        block_beside, block_gate, block_down, block_steps, block_rope, block_attention, block_add_cast, block_plain,
        block_soft_max, block_parts, block_router };
    return g->is_smooth ? block_soft_max(g) : blocks[kind](g);
}

// =====================================================================================================================
// >>graphs   of such nodes, the numbers that they start from, and their memory
// =====================================================================================================================

// Down to what is known to be computable.
static bool can_be_computed(struct gen * g, const struct gcuda_tensor * t) {
    bool is_known = t == NULL || t->op == GCUDA_OP_NONE;
    for (int i = 0; i < g->n_pool && !is_known; ++i) { is_known = g->pool[i] == t; }
    bool ok = is_known || (gcuda_backend_supports_op(g->device, t) && gcuda_backend_supports_op(g->cpu, t));
    for (int k = 0; ok && !is_known && k < GCUDA_MAX_SRC; ++k) { ok = can_be_computed(g, t->src[k]); }
    return ok;
}
static bool can(struct gen * g, const struct gcuda_tensor * t) {
    return t != NULL && gcuda_nelements(t) > 0 && gcuda_nelements(t) <= MOST_ELEMENTS && t->op != GCUDA_OP_NONE &&
           can_be_computed(g, t);
}

static struct gcuda_tensor * single(struct gen * g, int kind) {
    return kind < N_SMOOTH ? smooth_node(g, kind) : kind < N_ROUGH ? rough_node(g, kind) : other_node(g, kind);
}

// Into the pool, if it can be computed.
static bool take(struct gen * g, struct gcuda_tensor * (*of)(struct gen * g, int kind), int kind) {
    const int n_early = g->n_early;
    struct gcuda_tensor * t = of(g, kind);
    const bool is_taken = can(g, t);
    gcuda_context_clear_error(g->ctx);
    if (is_taken) {
        g->pool[g->n_pool++] = t;
    } else {
        g->n_early = n_early;
    }
    return is_taken;
}

// One of this kind: where it is in the pool; 0, which is an input, if it does not fit what there is.
static int insist(struct gen * g, struct gcuda_tensor * (*of)(struct gen * g, int kind), int kind) {
    int tries = 20;
    while (tries > 0 && !take(g, of, kind)) { --tries; }
    return tries > 0 ? g->n_pool - 1 : 0;
}

static void grow(struct gen * g, int n_nodes) {
    for (int tries = 0; g->n_pool < n_nodes && tries < 20 * n_nodes; ++tries) {
        if (below(g, g->is_smooth ? 40 : 16) == 0) {
            (void) take(g, block, below(g, N_BLOCKS));
        } else {
            (void) take(g, single, below(g, g->is_smooth || below(g, 4) == 0 ? N_SMOOTH : N_KINDS));
        }
    }
}

// turn: selects a block and a kind of node that the graph must have as outputs, so that consecutive graphs have all of
// them.
static struct gcuda_cgraph * make(struct gen * g, int n_nodes, int turn) {
    static const int64_t shapes[][4] = { { 32, 6, 1, 1 }, { 24, 4, 3, 1 }, { 256, 3, 1, 1 }, { 33, 5, 2, 2 },
        { 64, 1, 1, 1 }, { 7, 9, 2, 1 } };
    for (int i = 0; i < 3; ++i) {
        const int64_t * ne = shapes[below(g, 6)];
        g->pool[g->n_pool++] = f32(g, ne[0], ne[1], ne[2], ne[3]);
    }
    grow(g, 3 + below(g, n_nodes - 4));
    const int of_block = g->is_smooth && turn % 3 != 0 ? 0 : insist(g, block, turn % N_BLOCKS);
    const int of_kind = insist(g, single, turn % (g->is_smooth ? N_SMOOTH : N_KINDS));
    grow(g, n_nodes);
    struct gcuda_cgraph * graph = gcuda_new_graph(g->ctx);
    for (int i = 0; i < g->n_early; ++i) { CHECK_OK(gcuda_build_forward_expand(graph, g->early[i])); }
    const int shown[4] = { g->n_pool - 1, of_block, of_kind, below(g, g->n_pool) };
    for (int i = 0; i < 4; ++i) {
        struct gcuda_tensor * t = g->pool[shown[i]];
        if (t->op != GCUDA_OP_NONE) {
            gcuda_set_output(t);
            CHECK_OK(gcuda_build_forward_expand(graph, t));
        }
    }
    return graph;
}

// Values as rows of t's type. Quantizing is slow: weights repeat their first few rows.
static void fill_rows(const struct gcuda_tensor * t, const float * values, char * bytes) {
    enum { N_ROWS = 13 }; // no number of rows that kernels take at a time
    const int64_t n_rows = gcuda_nrows(t), n = gcuda_is_quantized(t->type) && n_rows > N_ROWS ? N_ROWS : n_rows;
    const size_t size = gcuda_row_size(t->type, t->ne[0]);
    CHECK_OK(gcuda_quantize_rows(t->type, values, bytes, n, t->ne[0], NULL, 1));
    for (int64_t i = n; i < n_rows; ++i) { memcpy(bytes + (size_t) i * size, bytes + (size_t) (i - n) * size, size); }
}

static bool is_plain(enum gcuda_type type) {
    bool is_so = false;
    for (int i = 0; i < N_PLAIN; ++i) { is_so = is_so || type == plain_types[i]; }
    return is_so;
}

// Any bytes, and a scale of 1/16: before each block, but of IQ1_M in the upper four bits of its last four numbers.
static void fill_codebook(struct gen * r, enum gcuda_type type, char * blocks, size_t n) {
    static const uint16_t spread[4] = { 0x0249, 0x0249, 0xc249, 0x2249 };
    const size_t size = gcuda_type_size(type);
    const gcuda_fp16_t scale = gcuda_fp32_to_fp16(0.0625f);
    for (size_t i = 0; i < n; ++i) { blocks[i] = (char) below(r, 256); }
    for (char * b = blocks; b < blocks + n; b += size) {
        if (type == GCUDA_TYPE_IQ1_M) {
            memcpy(b + size - sizeof spread, spread, sizeof spread);
        } else {
            memcpy(b, &scale, sizeof scale);
        }
    }
}

// The data of leaf i in a round, which the caller frees. nudge: 0, or which way to move numbers by some units of their
// last place
static char * leaf_data(struct gen * g, int i, int round, int nudge) {
    const struct gcuda_tensor * t = g->leafs[i];
    struct gen r;
    r.state = (uint64_t) i * 1000003u + (uint64_t) round * 7919u + 5;
    const int64_t n = gcuda_nelements(t);
    float * v = (float *) malloc((size_t) n * sizeof(float));
    char * bytes = (char *) calloc(1, gcuda_nbytes(t) + 8);
    for (int64_t k = 0; k < n; ++k) { v[k] = (float) below(&r, 2001) / 1000.0f - 1.0f; }
    for (int64_t k = 0; k < n && strcmp(t->name, "hadamard") == 0; ++k) { // 64 x 64
        int is_odd = 0;
        for (int64_t common = k / 64 & k % 64; common != 0; common &= common - 1) { is_odd = !is_odd; }
        v[k] = is_odd ? -0.125f : 0.125f;
    }
    for (int64_t k = 0; k < n && nudge != 0; ++k) { v[k] *= 1.0f + (float) ((k * nudge) % 7 - 3) * FLT_EPSILON; }
    for (int64_t k = 0; k < n && t->type == GCUDA_TYPE_I32; ++k) {
        ((int32_t *) (void *) bytes)[k] = below(&r, (int) g->limits[i]);
    }
    for (int64_t k = 0; k < n && t->type == GCUDA_TYPE_I64; ++k) {
        ((int64_t *) (void *) bytes)[k] = below(&r, (int) g->limits[i]);
    }
    for (int64_t k = 0; k < n && t->type == GCUDA_TYPE_F64; ++k) { ((double *) (void *) bytes)[k] = (double) v[k]; }
    for (int64_t k = 0; k < n && t->type == GCUDA_TYPE_I16; ++k) {
        ((int16_t *) (void *) bytes)[k] = (int16_t) (1000.0f * v[k]);
    }
    for (int64_t k = 0; k < n && t->type == GCUDA_TYPE_I8; ++k) { bytes[k] = (char) (100.0f * v[k]); }
    if (t->type == GCUDA_TYPE_F32) {
        memcpy(bytes, v, (size_t) n * sizeof(float));
    } else if (is_codebook(t->type)) {
        fill_codebook(&r, t->type, bytes, gcuda_nbytes(t));
    } else if (!is_plain(t->type)) {
        fill_rows(t, v, bytes);
    }
    free(v);
    return bytes;
}

static void fill_leafs(struct gen * g, int round, int nudge) {
    for (int i = 0; i < g->n_leafs; ++i) {
        struct gcuda_tensor * t = g->leafs[i];
        if (t->data == NULL) { continue; } // not part of the graph
        char * bytes = leaf_data(g, i, round, nudge);
        CHECK_OK(gcuda_backend_tensor_set(t, bytes, 0, gcuda_nbytes(t)));
        free(bytes);
    }
}

struct one {
    struct gen g;
    struct place p;
    struct gcuda_cgraph * graph;
    gcuda_gallocr_t alloc;
};

// place_on NULL: a scheduler gives it memory.
static bool one_make(
    struct one * o, uint64_t seed, gcuda_backend_t device, gcuda_backend_t cpu, gcuda_backend_t place_on, bool reuses) {
    memset(o, 0, sizeof *o);
    o->p = place_begin();
    o->g.state = seed;
    o->g.ctx = o->p.ctx;
    o->g.device = device;
    o->g.cpu = cpu;
    o->g.is_smooth = seed % 2 == 0;
    o->graph = make(&o->g, 8 + (int) (seed % 40), (int) (seed / 2 % 100000));
    if (place_on == NULL) { return true; }
    if (!reuses) { return place_alloc(&o->p, place_on); }
    o->alloc = gcuda_gallocr_new(gcuda_backend_get_default_buffer_type(place_on));
    gcuda_gallocr_set_concurrent(o->alloc, seed % 8 == 7); // or branches get each other's memory
    return o->alloc != NULL && gcuda_gallocr_alloc_graph(o->alloc, o->graph) == GCUDA_STATUS_SUCCESS;
}
static void one_free(struct one * o) {
    gcuda_gallocr_free(o->alloc);
    place_end(&o->p);
}

static double float_at(const struct gcuda_tensor * t, const char * bytes, size_t i) {
    const char * p = bytes + i * gcuda_type_size(t->type);
    float v = 0.0f;
    uint16_t h = 0;
    if (t->type == GCUDA_TYPE_F32) {
        memcpy(&v, p, 4);
    } else if (t->type == GCUDA_TYPE_F16 || t->type == GCUDA_TYPE_BF16) {
        memcpy(&h, p, 2);
        const uint32_t bits = (uint32_t) h << 16;
        memcpy(&v, &bits, 4);
        v = t->type == GCUDA_TYPE_F16 ? gcuda_fp16_to_fp32(h) : v;
    }
    return (double) v;
}

static bool is_float(const struct gcuda_tensor * t) {
    return t->type == GCUDA_TYPE_F32 || t->type == GCUDA_TYPE_F16 || t->type == GCUDA_TYPE_BF16;
}

// Sum of squared changes of node i when the inputs change in their last bits. This is what remains when sums cancel;
// any two ways of computing differ by as much.
static double noise_of(struct one * o, gcuda_backend_t by, int round, int i, const char * want) {
    enum { N_NUDGES = 4 };
    const struct gcuda_tensor * t = o->graph->nodes[i];
    const size_t size = gcuda_nbytes(t), n = (size_t) gcuda_nelements(t);
    char * got = (char *) malloc(size);
    double most = 0.0;
    for (int nudge = 1; nudge <= N_NUDGES; ++nudge) {
        double moved = 0.0;
        fill_leafs(&o->g, round, nudge);
        CHECK_OK(gcuda_backend_graph_compute(by, o->graph));
        CHECK_OK(gcuda_backend_tensor_get(t, got, 0, size));
        for (size_t k = 0; k < n; ++k) {
            const double d = float_at(t, want, k) - float_at(t, got, k);
            moved += isfinite(d) ? d * d : 0.0;
        }
        most = moved > most ? moved : most;
    }
    free(got);
    fill_leafs(&o->g, round, 0);
    CHECK_OK(gcuda_backend_graph_compute(by, o->graph));
    return most;
}

// The sum of squares of what node t was made from: sums that cancel are as wrong as their terms are large.
static double power_of_sources(const struct gcuda_tensor * t) {
    double power = 0.0;
    for (int i = 0; i < GCUDA_MAX_SRC; ++i) {
        const struct gcuda_tensor * x = t->src[i];
        if (x == NULL || x->type != GCUDA_TYPE_F32 || !gcuda_is_contiguous(x)) { continue; }
        const size_t size = gcuda_nbytes(x);
        char * bytes = (char *) malloc(size);
        CHECK_OK(gcuda_backend_tensor_get(x, bytes, 0, size));
        for (size_t k = 0; k < (size_t) gcuda_nelements(x); ++k) {
            const double v = float_at(x, bytes, k);
            power += isfinite(v) ? v * v : 0.0;
        }
        free(bytes);
    }
    return power;
}

// Whether t comes of a norm whose rows are summed up: of 256 numbers of about 1 nothing is left but what rounding
// leaves of them.
static bool is_of_cancelled(const struct gcuda_tensor * t) {
    bool is_so = t->op == GCUDA_OP_SUM_ROWS && t->src[0]->op == GCUDA_OP_NORM;
    for (int i = 0; i < 2 && !is_so; ++i) { is_so = t->src[i] != NULL && is_of_cancelled(t->src[i]); }
    return is_so;
}

// Results that are views are left out: bytes between their elements are undefined.
static bool is_compared(const struct gcuda_tensor * t) {
    return (t->flags & GCUDA_TENSOR_FLAG_OUTPUT) != 0 && gcuda_is_contiguous(t);
}

// Compares a with b. near_to NULL: bits are equal. Else the backend that computed a: squared errors are at most 1e-6 of
// the squares, or changes of the inputs' last bits explain them. kept: b's results, contiguous; NULL: in its tensors.
static void compare(
    uint64_t seed, int round, struct one * a, struct one * b, const char * kept, gcuda_backend_t near_to) {
    const bool is_exact = near_to == NULL;
    for (int i = 0; i < a->graph->n_nodes; ++i) {
        const struct gcuda_tensor *t = a->graph->nodes[i], *u = b->graph->nodes[i];
        if (!is_compared(t)) { continue; }
        const size_t size = gcuda_nbytes(t), n = (size_t) gcuda_nelements(t);
        char *want = (char *) malloc(size), *got = (char *) malloc(size);
        CHECK_OK(gcuda_backend_tensor_get(t, want, 0, size));
        if (kept != NULL) {
            memcpy(got, kept, size);
            kept += size;
        } else {
            CHECK_OK(gcuda_backend_tensor_get(u, got, 0, size));
        }
        double error = 0.0, power = 1e-6 * (double) n;
        size_t n_bad = 0;
        for (size_t k = 0; k < n && is_float(t); ++k) {
            const double x = float_at(t, want, k), y = float_at(t, got, k);
            const bool is_same = x == y || (isnan(x) && isnan(y));
            n_bad += !is_same;
            error += is_same || isinf(x) ? 0.0 : (x - y) * (x - y);
            power += isfinite(x) ? x * x : 0.0;
        }
        n_bad += !is_float(t) && memcmp(want, got, size) != 0;
        bool is_ok = is_exact ? n_bad == 0 : error <= 1e-6 * power;
        if (!is_ok && !is_exact && isfinite(error)) {
            is_ok = error <= 1e-12 * power_of_sources(t) + 100.0 * noise_of(a, near_to, round, i, want);
        }
        if (!is_ok && !is_exact && is_of_cancelled(t)) { is_ok = error <= 1e-10 * (double) n; }
        CHECK_MSG(is_ok, "seed %d, round %d: %s '%s' differs in %d of %d (error %g of %g)%s", (int) seed, round,
            gcuda_op_desc(t), t->name, (int) n_bad, (int) n, error, power,
            is_exact                        ? ""
            : gcuda_backend_is_cpu(near_to) ? " from the CPU"
                                            : " from node by node");
        free(want);
        free(got);
    }
}

enum { N_PATTERNS = (int) (sizeof gcudai_cuda_patterns / sizeof gcudai_cuda_patterns[0]) };
static int n_of_op[GCUDA_OP_COUNT];                                   // computed so far
static int n_of_pattern[N_PATTERNS];                                  // launches planned so far
static int n_of_type[GCUDA_TYPE_COUNT], n_of_cache[GCUDA_TYPE_COUNT]; // of sources; of keys and values
static int n_near; // graphs in which scale and soft_max may round less often

static void count_nodes(const struct gcuda_cgraph * graph) {
    for (int i = 0; i < graph->n_nodes; ++i) {
        const struct gcuda_tensor * t = graph->nodes[i];
        n_of_op[t->op]++;
        for (int k = 0; k < GCUDA_MAX_SRC; ++k) {
            if (t->src[k] != NULL) { n_of_type[t->src[k]->type]++; }
            if (t->op == GCUDA_OP_FLASH_ATTN_EXT && (k == 1 || k == 2)) { n_of_cache[t->src[k]->type]++; }
        }
    }
}

// Quantized types that are only moved, those of keys and values, and all types if there are enough graphs.
static void check_types(void) {
    int n_in_blocks = 0;
    for (int i = 0; i < N_WEIGHTS; ++i) {
        CHECK_MSG(n_of_type[weights[i]] > 0 || !test_full(), "no %s in any graph", gcuda_type_name(weights[i]));
        CHECK_MSG(
            i >= N_SHORT || n_of_cache[weights[i]] > 0 || !test_full(), "no keys in %s", gcuda_type_name(weights[i]));
        n_in_blocks += i >= N_FLOATS ? n_of_cache[weights[i]] : 0;
    }
    for (int i = 0; i < N_PLAIN; ++i) {
        CHECK_MSG(n_of_type[plain_types[i]] > 0, "no %s in any graph", gcuda_type_name(plain_types[i]));
    }
    CHECK(n_of_cache[GCUDA_TYPE_F32] + n_of_cache[GCUDA_TYPE_BF16] > 0 && n_in_blocks > 0);
}

// In the plans that a backend has made and keeps.
static void count_patterns(gcuda_backend_t planned) {
    for (const struct gcudai_cuda_plan * p = ((struct gcudai_cuda *) planned)->plans.first; p != NULL; p = p->next) {
        for (int i = 0; i < p->n_steps; ++i) {
            if (p->steps[i].pattern != NULL) { n_of_pattern[p->steps[i].pattern - gcudai_cuda_patterns]++; }
        }
    }
}

// Path WGMMA needs wgmma, which the simulated device reports as missing; plans do without it.
static bool may_be_planned(const char * pattern) {
    const bool is_on_warp_groups =
        strcmp(pattern, "several products, wgmma") == 0 || strcmp(pattern, "glu + mul_mat") == 0;
    return !is_on_warp_groups && (GCUDA_SIM_CC >= 800 || strcmp(pattern, "several products, tiles") != 0);
}

// Exempt patterns must not be reached either: that finds renamed patterns, and patterns that can run by now.
static void check_patterns(void) {
    for (int i = 0; i < N_PATTERNS; ++i) {
        const char * name = gcudai_cuda_patterns[i].name;
        printf("  %5d %s\n", n_of_pattern[i], name);
        CHECK_MSG((n_of_pattern[i] > 0) == may_be_planned(name), "%d launches of '%s'", n_of_pattern[i], name);
    }
}

// Scale and soft_max that as one launch round less often: a mask is added, or both have a factor.
static bool may_round_less(const struct gcuda_cgraph * graph) {
    bool may = false;
    for (int i = 0; i < graph->n_nodes; ++i) {
        const struct gcuda_tensor * t = graph->nodes[i];
        if (t->op != GCUDA_OP_SOFT_MAX || t->src[0]->op != GCUDA_OP_SCALE) { continue; }
        may = may || t->src[1] != NULL || gcudai_soft_max_params_of(t).scale != 1.0f;
    }
    return may;
}

// Half of the seeds; and graphs that round less often and then jump, where nothing could be told from the results.
static bool is_strict(uint64_t seed, const struct one * o) {
    return seed / 2 % 2 == 0 || (!o->g.is_smooth && may_round_less(o->graph));
}

static void run_seed(uint64_t seed, uint64_t * n_fused, uint64_t * n_replayed, uint64_t * n_concurrent) {
    struct gcuda_cuda_params params;
    fresh(1, 64 * MB, seed);
    memset(&params, 0, sizeof params);
    params.max_plans = -1;
    gcuda_backend_t plain = gcuda_backend_cuda_init_params(&params), cpu = gcuda_backend_cpu_init();
    struct one a, b, on_cpu;
    REQUIRE(plain != NULL && cpu != NULL && one_make(&a, seed, plain, cpu, plain, false));
    params.max_plans = 0;
    params.graphs = GCUDA_CUDA_ON; // AUTO leaves them out below 7.0
    params.strict = is_strict(seed, &a);
    params.concurrency = seed % 4 == 3 ? GCUDA_CUDA_ON : GCUDA_CUDA_OFF; // branches on forked streams
    params.overlap = seed % 3 == 2 ? GCUDA_CUDA_ON : GCUDA_CUDA_OFF;
    gcuda_backend_t planned = gcuda_backend_cuda_init_params(&params);
    const bool is_near = !params.strict && may_round_less(a.graph);
    REQUIRE(planned != NULL);
    gcuda_backend_cpu_set_n_threads(cpu, 1);
    REQUIRE(one_make(&b, seed, plain, cpu, planned, true) && one_make(&on_cpu, seed, plain, cpu, cpu, false));
    REQUIRE(a.graph->n_nodes == b.graph->n_nodes && a.graph->n_nodes == on_cpu.graph->n_nodes);
    count_nodes(a.graph);
    n_near += is_near;
    const int n_rounds = a.g.is_smooth ? 4 : 3; // launched, captured, replayed once or twice
    for (int round = 0; round < n_rounds; ++round) {
        fill_leafs(&a.g, round, 0);
        fill_leafs(&b.g, round, 0);
        CHECK_OK(gcuda_backend_graph_compute(plain, a.graph));
        CHECK_OK(gcuda_backend_graph_compute(planned, b.graph));
        compare(seed, round, &a, &b, NULL, is_near ? plain : NULL);
        if (a.g.is_smooth && round == n_rounds - 1) {
            fill_leafs(&on_cpu.g, round, 0);
            CHECK_OK(gcuda_backend_graph_compute(cpu, on_cpu.graph));
            compare(seed, round, &on_cpu, &b, NULL, cpu);
        }
    }
    struct gcuda_cuda_plan_stats s;
    CHECK_OK(gcuda_backend_cuda_get_plan_stats(planned, &s));
    count_patterns(planned);
    *n_fused += s.n_fused;
    *n_replayed += s.n_graph_launches;
    *n_concurrent += s.n_concurrent;
    one_free(&on_cpu);
    one_free(&b);
    one_free(&a);
    gcuda_backend_free(planned);
    gcuda_backend_free(cpu);
    gcuda_backend_free(plain);
}

TEST(random_graphs_give_the_same_bits_planned_and_node_by_node) {
    const char * only = getenv("GCUDA_RANDOM_SEED");
    const uint64_t first = only ? strtoull(only, NULL, 10) : 1, n = only ? 1 : test_full() ? 10000 : 240;
    uint64_t n_fused = 0, n_replayed = 0, n_concurrent = 0;
    for (uint64_t seed = first; seed < first + n; ++seed) { run_seed(seed, &n_fused, &n_replayed, &n_concurrent); }
    printf("  %d graphs (%d rounded less), %d fused launches, %d replays, %d launches beside others\n", (int) n, n_near,
        (int) n_fused, (int) n_replayed, (int) n_concurrent);
    // it does reach what it is about
    CHECK(only != NULL || (2 * n_fused >= n && n_replayed >= 2 * n && 4 * n_concurrent >= n));
    for (int op = GCUDA_OP_NONE + 1; op < GCUDA_OP_COUNT && only == NULL; ++op) { // custom ones are the caller's
        CHECK_MSG(n_of_op[op] > 0 || op == GCUDA_OP_CUSTOM, "no %s in any graph", gcuda_op_name((enum gcuda_op) op));
    }
    if (only == NULL) {
        check_patterns();
        check_types();
        CHECK(n_near > 0);
    }
    clean();
}

// =====================================================================================================================
// >>sched   the same graphs over GPUs and the CPU, each of which refuses some operations
// =====================================================================================================================
enum { MAX_GPUS = 4, N_QUEUED = 4 };
static struct refusal {
    gcuda_backend_dev_t dev;
    gcuda_status (*ask)(gcuda_backend_dev_t dev, const struct gcuda_tensor * op);
    uint64_t salt;
    int percent; // of operations, by what they are and their shapes
} refusals[MAX_GPUS + 1];

static gcuda_status ask_or_refuse(gcuda_backend_dev_t dev, const struct gcuda_tensor * op) {
    struct refusal * r = refusals;
    while (r->dev != dev) { ++r; }
    struct gen chance;
    chance.state = r->salt + 977 * (uint64_t) op->op + 31 * (uint64_t) op->ne[0] + (uint64_t) op->ne[1];
    const bool is_work = op->op != GCUDA_OP_NONE && op->op != GCUDA_OP_RESHAPE && op->op != GCUDA_OP_VIEW &&
                         op->op != GCUDA_OP_PERMUTE && op->op != GCUDA_OP_TRANSPOSE;
    return is_work && below(&chance, 100) < r->percent
               ? gcuda_set_last_error(GCUDA_STATUS_UNSUPPORTED, "refused by chance")
               : r->ask(dev, op);
}

static void refuse(int i, gcuda_backend_t backend, uint64_t salt, int percent) {
    struct refusal * r = &refusals[i];
    r->dev = gcuda_backend_get_device(backend);
    r->ask = r->dev->iface.supports_op;
    r->salt = salt;
    r->percent = percent;
    r->dev->iface.supports_op = ask_or_refuse;
}

// Nodes by themselves go where chance says and where they can be.
static void choose_backends(
    struct one * o, uint64_t seed, gcuda_backend_sched_t sched, const gcuda_backend_t * b, int n) {
    struct gen chance;
    chance.state = seed;
    for (int i = 0; i < o->graph->n_nodes; ++i) {
        struct gcuda_tensor * t = o->graph->nodes[i];
        const int at = below(&chance, n + 2);
        bool is_alone = t->view_src == NULL;
        for (int k = 0; k < o->graph->n_nodes && is_alone; ++k) { is_alone = o->graph->nodes[k]->view_src != t; }
        if (at < n && is_alone && gcuda_backend_supports_op(b[at], t)) {
            CHECK_OK(gcuda_backend_sched_set_tensor_backend(sched, t, b[at]));
        }
    }
}

// Inputs of a round, queued after the work that still reads those of the previous round. Inputs that are copied later
// stay in data.
static void queue_leafs(struct one * o, int round, gcuda_backend_sched_t sched, char ** data) {
    for (int i = 0; i < o->g.n_leafs; ++i) {
        struct gcuda_tensor * t = o->g.leafs[i];
        if (t->data == NULL) { continue; }
        data[i] = leaf_data(&o->g, i, round, 0);
        CHECK_OK(gcuda_backend_tensor_set_async(
            gcuda_backend_sched_get_tensor_backend(sched, t), t, data[i], 0, gcuda_nbytes(t)));
    }
}

static size_t queue_results(struct one * o, gcuda_backend_sched_t sched, char * to) {
    size_t size = 0;
    for (int i = 0; i < o->graph->n_nodes; ++i) {
        struct gcuda_tensor * t = o->graph->nodes[i];
        if (!is_compared(t)) { continue; }
        if (to != NULL) {
            CHECK_OK(gcuda_backend_tensor_get_async(
                gcuda_backend_sched_get_tensor_backend(sched, t), t, to + size, 0, gcuda_nbytes(t)));
        }
        size += gcuda_nbytes(t);
    }
    return size;
}

// Rounds in flight together: copies alternate, and with is_placed_anew inputs, too. The caller frees the buffer of all
// results.
static gcuda_backend_buffer_t run_queued(struct one * o, gcuda_backend_sched_t sched, bool is_placed_anew) {
    static char * data[N_QUEUED][MAX_LEAFS];
    const size_t size = queue_results(o, sched, NULL);
    gcuda_backend_buffer_t buffer =
        gcuda_backend_buft_alloc_buffer(gcuda_backend_cuda_host_buffer_type(), N_QUEUED * size + 1);
    char * to = (char *) gcuda_backend_buffer_get_base(buffer);
    memset(data, 0, sizeof data);
    for (int round = 0; round < N_QUEUED && to != NULL; ++round) {
        if (is_placed_anew && round > 0) { CHECK_OK(gcuda_backend_sched_alloc_graph(sched, o->graph)); }
        queue_leafs(o, round, sched, data[round]);
        CHECK_OK(gcuda_backend_sched_graph_compute_async(sched, o->graph));
        (void) queue_results(o, sched, to + (size_t) round * size);
    }
    CHECK_OK(gcuda_backend_sched_synchronize(sched));
    for (int i = 0; i < N_QUEUED * MAX_LEAFS; ++i) { free(data[i / MAX_LEAFS][i % MAX_LEAFS]); }
    return buffer;
}

// Smooth graphs are compared with the CPU's results. Others run on GPUs alone, with the bits of one GPU. One graph in
// three is waited for each time; two have several rounds in flight.
static void run_scheduled(uint64_t seed, int * n_splits) {
    const int n_gpus = 1 + (int) (seed / 2 % MAX_GPUS);
    const bool is_smooth = seed % 2 == 0;
    gcuda_backend_t b[MAX_GPUS + 1];
    struct gcuda_cuda_params params;
    struct one a, scheduled;
    fresh(n_gpus, 64 * MB, seed);
    memset(&params, 0, sizeof params);
    params.max_plans = -1;
    gcuda_backend_t plain = gcuda_backend_cuda_init_params(&params), cpu = gcuda_backend_cpu_init();
    REQUIRE(plain != NULL && cpu != NULL && one_make(&a, seed, plain, cpu, is_smooth ? cpu : plain, false));
    for (int i = 0; i < n_gpus; ++i) {
        memset(&params, 0, sizeof params);
        params.device = i;
        params.strict = is_strict(seed, &a);
        params.concurrency = seed % 5 == 0 ? GCUDA_CUDA_ON : GCUDA_CUDA_AUTO;
        b[i] = gcuda_backend_cuda_init_params(&params);
    }
    b[n_gpus] = gcuda_backend_cpu_init();
    struct gcuda_backend_sched_params p;
    memset(&p, 0, sizeof p);
    const bool is_queued = seed % 3 != 0;
    p.backends = b, p.n_backends = n_gpus + 1,
    p.n_copies = is_queued ? 1 + (int) (seed / 6 % 4) : 1 + (int) (seed / 6 % 2);
    gcuda_backend_sched_t sched = gcuda_backend_sched_new_params(&p);
    gcuda_backend_cpu_set_n_threads(cpu, 1);
    REQUIRE(sched != NULL && one_make(&scheduled, seed, plain, cpu, NULL, false));
    for (int i = 0; i <= n_gpus; ++i) { // one computes everything: the CPU, or the last GPU
        const bool can_all = i == (is_smooth ? n_gpus : n_gpus - 1);
        refuse(i, b[i], seed * 13 + (uint64_t) i, can_all ? 0 : i == n_gpus ? 100 : 30);
    }
    choose_backends(&scheduled, seed, sched, b, n_gpus + 1);
    CHECK_OK(gcuda_backend_sched_alloc_graph(sched, scheduled.graph));
    *n_splits += gcuda_backend_sched_get_n_splits(sched);
    gcuda_backend_buffer_t results = is_queued ? run_queued(&scheduled, sched, seed % 3 == 2) : NULL;
    const long n_bad = test_all.n_bad_checks;
    const size_t size = queue_results(&scheduled, sched, NULL);
    for (int round = 0; round < (is_queued ? N_QUEUED : 3) && test_all.n_bad_checks == n_bad; ++round) {
        fill_leafs(&a.g, round, 0);
        CHECK_OK(gcuda_backend_graph_compute(is_smooth ? cpu : plain, a.graph));
        if (!is_queued) {
            fill_leafs(&scheduled.g, round, 0);
            CHECK_OK(gcuda_backend_sched_graph_compute(sched, scheduled.graph));
        }
        const char * kept =
            is_queued ? (const char *) gcuda_backend_buffer_get_base(results) + (size_t) round * size : NULL;
        compare(seed, round, &a, &scheduled, kept, is_smooth ? cpu : NULL);
    }
    gcuda_backend_buffer_free(results);
    for (int i = 0; i <= n_gpus; ++i) { refusals[i].dev->iface.supports_op = refusals[i].ask; }
    gcuda_backend_sched_free(sched);
    one_free(&scheduled);
    one_free(&a);
    for (int i = 0; i <= n_gpus; ++i) { gcuda_backend_free(b[i]); }
    gcuda_backend_free(cpu);
    gcuda_backend_free(plain);
}

TEST(random_graphs_over_gpus_and_the_cpu_that_refuse_operations) {
    const char *only = getenv("GCUDA_RANDOM_SEED"), *orders = getenv("GCUDA_TEST_SEEDS");
    const uint64_t first = only ? strtoull(only, NULL, 10) : 1,
                   n = only          ? 1
                       : test_full() ? 10000
                                     : 20 * (orders ? strtoull(orders, NULL, 10) : 2);
    int n_splits = 0;
    for (uint64_t seed = first; seed < first + n; ++seed) { run_scheduled(seed, &n_splits); }
    printf("  %d graphs in %d splits\n", (int) n, n_splits);
    CHECK(only != NULL || n_splits >= 2 * (int) n); // copies and waits are what it is about
    clean();
}
