// Finite differences against the backward graph, for every operation that has a derivative.
//
// The scalar is  L = sum_i w_i * y_i  with fixed positive weights, summed in double here. The numeric derivative is the
// five-point central difference (error of order h^4) of L; the analytic one comes from gcuda_build_backward_expand.
// Both are compared by the mean absolute asymmetry, mean |a - b| / (|a| + |b|). The divisor is at least a tenth of the
// gradient's rms, so that a component that is zero up to rounding does not count as wrong.
#include "test.h"

#define MAX_IN 5

typedef struct gcuda_tensor * (*grad_build_fn)(struct gcuda_context * ctx, struct gcuda_tensor ** in);

struct grad_case {
    const char * name;
    grad_build_fn build;
    int n_in;
    int n_params; // the first n_params sources get a gradient
    int64_t ne[MAX_IN][4];
    double lo, hi;          // of the values
    double bound;           // 0: 1e-4
    double h;               // 0: 0.01
    int64_t n_rows_indexed; // > 0: the last source holds I32 indices below this; -1: all values well apart
};

struct grad_run {
    const struct grad_case * g;
    enum gcuda_type types[MAX_IN];
    bool is_coarse; // some type has so few digits that values are whole 64ths: those, and steps of 32nds, are exact
    struct gcuda_context * ctx;
    struct gcuda_backend * backend;
    struct gcuda_backend_buffer * buffer;
    struct gcuda_tensor * in[MAX_IN];
    struct gcuda_tensor *y, *weights, *loss;
    struct gcuda_cgraph *forward, *both;
    float * y_data;
    float * w_data;
};

// ---------------------------------------------------------------------------------------------------- one case
// types: of the sources; NULL: all F32
static bool grad_make(
    struct grad_run * r, struct gcuda_backend * backend, const struct grad_case * g, const enum gcuda_type * types) {
    const struct gcuda_init_params params = { 4u << 20, NULL, true };
    memset(r, 0, sizeof *r);
    r->g = g;
    r->backend = backend;
    r->ctx = gcuda_init(params);
    if (r->ctx == NULL) { return false; }
    for (int k = 0; k < g->n_in; ++k) {
        const bool is_index = g->n_rows_indexed > 0 && k == g->n_in - 1;
        const int64_t * ne = g->ne[k];
        r->types[k] = is_index ? GCUDA_TYPE_I32 : types != NULL ? types[k] : GCUDA_TYPE_F32;
        r->is_coarse = r->is_coarse || (r->types[k] != GCUDA_TYPE_F32 && !is_index);
        r->in[k] = gcuda_new_tensor_4d(r->ctx, r->types[k], ne[0], ne[1], ne[2], ne[3]);
        if (k < g->n_params) { gcuda_set_param(r->in[k]); }
    }
    r->y = g->build(r->ctx, r->in);
    if (r->y == NULL) { return false; }
    r->weights = gcuda_new_tensor_4d(r->ctx, GCUDA_TYPE_F32, r->y->ne[0], r->y->ne[1], r->y->ne[2], r->y->ne[3]);
    r->loss = gcuda_sum(r->ctx, gcuda_mul(r->ctx, r->y, r->weights));
    if (r->loss == NULL) { return false; }
    gcuda_set_loss(r->loss);
    r->forward = gcuda_new_graph_custom(r->ctx, 256, false);
    r->both = gcuda_new_graph_custom(r->ctx, 1024, true);
    return r->forward != NULL && r->both != NULL &&
           gcuda_build_forward_expand(r->forward, r->y) == GCUDA_STATUS_SUCCESS &&
           gcuda_build_forward_expand(r->both, r->loss) == GCUDA_STATUS_SUCCESS;
}

static bool grad_write(struct grad_run * r, int k, int64_t i, float x) {
    uint16_t half = 0;
    switch (r->types[k]) {
        case GCUDA_TYPE_F16: half = gcuda_fp32_to_fp16(x); break;
        case GCUDA_TYPE_BF16: half = gcuda_fp32_to_bf16(x).bits; break;
        default: return CHECK_OK(gcuda_backend_tensor_set(r->in[k], &x, (size_t) i * 4, 4));
    }
    return CHECK_OK(gcuda_backend_tensor_set(r->in[k], &half, (size_t) i * 2, 2));
}

static float grad_read(struct grad_run * r, int k, int64_t i) {
    uint16_t half = 0;
    float x = 0.0f;
    if (r->types[k] == GCUDA_TYPE_F32) {
        CHECK_OK(gcuda_backend_tensor_get(r->in[k], &x, (size_t) i * 4, 4));
        return x;
    }
    CHECK_OK(gcuda_backend_tensor_get(r->in[k], &half, (size_t) i * 2, 2));
    gcuda_get_type_traits(r->types[k])->to_float(&half, &x, 1);
    return x;
}

static void grad_write_blocks(struct grad_run * r, int k, struct rng * rng) {
    const int64_t n = gcuda_nelements(r->in[k]);
    float * x = (float *) malloc(sizeof(float) * (size_t) n);
    char * blocks = (char *) malloc(gcuda_nbytes(r->in[k]));
    for (int64_t i = 0; x != NULL && i < n; ++i) { x[i] = (float) rng_between(rng, r->g->lo, r->g->hi); }
    if (x != NULL && blocks != NULL) {
        gcuda_get_type_traits(r->types[k])->from_float_ref(x, blocks, n);
        CHECK_OK(gcuda_backend_tensor_set(r->in[k], blocks, 0, gcuda_nbytes(r->in[k])));
    }
    free(blocks);
    free(x);
}

static bool grad_fill(struct grad_run * r) {
    struct rng rng = rng_for(r->g->name);
    const int64_t n_y = gcuda_nelements(r->y);
    r->buffer = gcuda_backend_alloc_ctx_tensors(r->ctx, r->backend);
    r->y_data = (float *) malloc(sizeof(float) * (size_t) n_y);
    r->w_data = (float *) malloc(sizeof(float) * (size_t) n_y);
    if (r->buffer == NULL || r->y_data == NULL || r->w_data == NULL) { return false; }
    for (int k = 0; k < r->g->n_in; ++k) {
        const int64_t n = gcuda_nelements(r->in[k]);
        const int64_t first = rng_below(&rng, n);
        if (gcuda_is_quantized(r->types[k])) {
            grad_write_blocks(r, k, &rng);
            continue;
        }
        for (int64_t i = 0; i < n; ++i) {
            const double place = (double) ((first + i * 37) % n) / (double) n; // a permutation: n has no factor 37
            const double any = rng_between(&rng, r->g->lo, r->g->hi),
                         drawn = r->is_coarse ? floor(any * 64.0) / 64.0 : any;
            const float v = (float) (r->g->n_rows_indexed < 0 ? r->g->lo + place * (r->g->hi - r->g->lo) : drawn);
            const int32_t row = (int32_t) rng_below(&rng, r->g->n_rows_indexed);
            if (r->types[k] == GCUDA_TYPE_I32) {
                CHECK_OK(gcuda_backend_tensor_set(r->in[k], &row, (size_t) i * 4, 4));
            } else {
                grad_write(r, k, i, v);
            }
        }
    }
    for (int64_t i = 0; i < n_y; ++i) { r->w_data[i] = (float) rng_between(&rng, 0.5, 1.5); }
    return CHECK_OK(gcuda_backend_tensor_set(r->weights, r->w_data, 0, sizeof(float) * (size_t) n_y));
}

static void grad_free(struct grad_run * r) {
    free(r->y_data);
    free(r->w_data);
    gcuda_backend_buffer_free(r->buffer);
    gcuda_free(r->ctx);
}

// L with element i of source k moved by `step`
static double grad_value(struct grad_run * r, int k, int64_t i, float x, double step) {
    const float moved = (float) ((double) x + step);
    const int64_t n_y = gcuda_nelements(r->y);
    double sum = 0.0;
    grad_write(r, k, i, moved);
    CHECK_OK(gcuda_backend_graph_compute(r->backend, r->forward));
    CHECK_OK(gcuda_backend_tensor_get(r->y, r->y_data, 0, sizeof(float) * (size_t) n_y));
    grad_write(r, k, i, x);
    for (int64_t j = 0; j < n_y; ++j) { sum += (double) r->y_data[j] * (double) r->w_data[j]; }
    return sum;
}

static double grad_numeric(struct grad_run * r, int k, int64_t i) {
    const float x = grad_read(r, k, i);
    // powers of two: x + step is then exact for most x, and the divisor is what was really stepped
    const double h = r->g->h > 0.0 ? r->g->h : r->is_coarse ? 0.03125 : 0.0078125;
    const double near_diff = grad_value(r, k, i, x, h) - grad_value(r, k, i, x, -h);
    const double far_diff = grad_value(r, k, i, x, 2.0 * h) - grad_value(r, k, i, x, -2.0 * h);
    return (8.0 * near_diff - far_diff) / (12.0 * h);
}

static void grad_compare(struct grad_run * r, int k) {
    const struct gcuda_tensor * grad = gcuda_graph_get_grad(r->both, r->in[k]);
    const int64_t n = gcuda_nelements(r->in[k]);
    const double bound = r->g->bound > 0.0 ? r->g->bound : 1e-4;
    CHECK_MSG(grad != NULL, "source %d has no gradient", k);
    if (grad == NULL) { return; }
    CHECK_MSG(gcuda_are_same_shape(grad, r->in[k]) && grad->type == GCUDA_TYPE_F32,
        "gradient %d has another shape or type", k);
    float * a = (float *) malloc(sizeof(float) * (size_t) n);
    double * b = (double *) malloc(sizeof(double) * (size_t) n);
    double power = 0.0, sum = 0.0;
    if (a != NULL && b != NULL && CHECK_OK(gcuda_backend_tensor_get(grad, a, 0, sizeof(float) * (size_t) n))) {
        for (int64_t i = 0; i < n; ++i) {
            b[i] = grad_numeric(r, k, i);
            power += b[i] * b[i];
        }
        const double least = 0.1 * sqrt(power / (double) n);
        for (int64_t i = 0; i < n; ++i) {
            const double size = fabs((double) a[i]) + fabs(b[i]);
            sum += fabs((double) a[i] - b[i]) / fmax(fmax(size, least), 1e-30);
            CHECK_MSG(!(fabs((double) a[i] - b[i]) > 0.05 * fmax(size, least) + 1e-6),
                "source %d, element %lld: analytic %.7g, numeric %.7g", k, (long long) i, (double) a[i], b[i]);
        }
        CHECK_MSG(
            sum / (double) n <= bound, "source %d: mean absolute asymmetry %.3g, bound %g", k, sum / (double) n, bound);
    }
    free(a);
    free(b);
}

static void grad_case_run(
    struct gcuda_backend * backend, const char * test, const struct grad_case * g, const enum gcuda_type * types) {
    char name[128];
    struct grad_run r;
    snprintf(name, sizeof name, "%s/%s", test, g->name);
    for (int k = 0; types != NULL && k < g->n_in; ++k) {
        snprintf(
            name + strlen(name), sizeof name - strlen(name), "%c%s", k == 0 ? '/' : ',', gcuda_type_name(types[k]));
    }
    if (!test_case_begin(name)) { return; }
    const bool is_made = grad_make(&r, backend, g, types);
    CHECK_MSG(is_made, "not built: %s", gcuda_last_error());
    if (is_made && CHECK_OK(gcuda_build_backward_expand(r.ctx, r.both, NULL)) && grad_fill(&r)) {
        CHECK_OK(gcuda_graph_reset(r.both));
        CHECK_OK(gcuda_backend_graph_compute(backend, r.both));
        for (int k = 0; k < g->n_params; ++k) { grad_compare(&r, k); }
    }
    grad_free(&r);
    test_case_end();
}

static void grad_cases_run(const char * test, const struct grad_case * cases, size_t n) {
    struct gcuda_backend * backend = gcuda_backend_cpu_init();
    CHECK(backend != NULL);
    for (size_t i = 0; backend != NULL && i < n; ++i) { grad_case_run(backend, test, &cases[i], NULL); }
    gcuda_backend_free(backend);
}

#define RUN_CASES(test, cases) grad_cases_run(test, cases, sizeof cases / sizeof cases[0])

// ---------------------------------------------------------------------------------------------------- graphs
#define BUILD(ident, expr) \
    static struct gcuda_tensor * build_##ident(struct gcuda_context * ctx, struct gcuda_tensor ** in) { return expr; }
#define UNARY(ident) BUILD(ident, gcuda_##ident(ctx, in[0]))
#define BINARY(ident) BUILD(ident, gcuda_##ident(ctx, in[0], in[1]))

// clang-format off
UNARY(sqr) UNARY(sqrt) UNARY(log) UNARY(sin) UNARY(cos)
BUILD(leaky_relu, gcuda_leaky_relu(ctx, in[0], 0.1f, false))
UNARY(sum) UNARY(sum_rows) UNARY(mean)
BINARY(add) BINARY(sub) BINARY(mul) BINARY(div) BINARY(add1) BINARY(repeat) BINARY(repeat_back) BINARY(mul_mat)
BINARY(swiglu_split)
BUILD(scale, gcuda_scale(ctx, in[0], 0.75f))
BUILD(scale_bias, gcuda_scale_bias(ctx, in[0], -1.5f, 0.25f))
BUILD(norm, gcuda_norm(ctx, in[0], 1e-5f))
BUILD(rms_norm, gcuda_rms_norm(ctx, in[0], 1e-5f))
BUILD(l2_norm, gcuda_l2_norm(ctx, in[0], 1e-5f))
BUILD(soft_max, gcuda_soft_max(ctx, in[0]))
BUILD(soft_max_ext, gcuda_soft_max_ext(ctx, in[0], in[1], 0.5f, 0.0f))
BUILD(cross_entropy, gcuda_cross_entropy_loss(ctx, in[0], gcuda_soft_max(ctx, in[1])))
BUILD(get_rows, gcuda_get_rows(ctx, in[0], in[1]))
BUILD(dup, gcuda_dup(ctx, in[0]))
BUILD(cont, gcuda_cont(ctx, in[0]))
BUILD(reshape, gcuda_reshape_2d(ctx, in[0], 6, 20))
BUILD(permute, gcuda_cont(ctx, gcuda_permute(ctx, in[0], 2, 0, 3, 1)))
BUILD(transpose, gcuda_cont(ctx, gcuda_transpose(ctx, in[0])))
BUILD(view_rows,
    gcuda_scale(ctx, gcuda_cont(ctx, gcuda_view_2d(ctx, in[0], 3, 2, in[0]->nb[1], in[0]->nb[1] + 4)), 2.0f))
BUILD(view_1d, gcuda_sqr(ctx, gcuda_view_1d(ctx, in[0], 7, 12)))
BUILD(view_cube, gcuda_cont(ctx, gcuda_view_4d(ctx, in[0], 3, 2, 2, 2, in[0]->nb[1], in[0]->nb[2], in[0]->nb[3], 8)))
BUILD(cpy, gcuda_cpy(ctx, gcuda_sqr(ctx, in[0]), in[1]))
BUILD(cast, gcuda_cast(ctx, gcuda_scale(ctx, in[0], 2.0f), GCUDA_TYPE_F32))
BUILD(concat_0, gcuda_concat(ctx, in[0], in[1], 0))
BUILD(concat_1, gcuda_concat(ctx, in[0], in[1], 1))
BUILD(concat_2, gcuda_concat(ctx, in[0], in[1], 2))
BUILD(concat_3, gcuda_concat(ctx, in[0], in[1], 3))
BUILD(acc, gcuda_acc(ctx, in[0], in[1], in[0]->nb[1], in[0]->nb[2], in[0]->nb[3], in[0]->nb[1] + 4))
BUILD(set, gcuda_set(ctx, in[0], in[1], in[0]->nb[1], in[0]->nb[2], in[0]->nb[3], in[0]->nb[1] + 4))
BUILD(set_1d, gcuda_set_1d(ctx, in[0], in[1], 8))
BUILD(diag_mask_zero, gcuda_diag_mask_zero(ctx, in[0], 1))
BUILD(diag_mask_soft_max, gcuda_soft_max(ctx, gcuda_diag_mask_inf(ctx, in[0], 1)))
BUILD(pad, gcuda_pad_ext(ctx, in[0], 1, 2, 0, 1, 2, 0, 1, 0))
BUILD(roll, gcuda_roll(ctx, in[0], 2, -1, 1, 0))
BUILD(tri, gcuda_tri(ctx, in[0], GCUDA_TRI_TYPE_LOWER_DIAG))
BUILD(group_norm, gcuda_group_norm(ctx, in[0], 2, 1e-5f))
BUILD(im2col_1d, gcuda_im2col(ctx, in[1], in[0], 2, 0, 1, 0, 2, 0, false, GCUDA_TYPE_F32))
BUILD(im2col_2d, gcuda_im2col(ctx, in[1], in[0], 2, 1, 1, 2, 1, 2, true, GCUDA_TYPE_F32))
BUILD(conv_2d, gcuda_conv_2d(ctx, in[0], in[1], 1, 1, 1, 1, 1, 1))
BUILD(pool_avg, gcuda_pool_2d(ctx, in[0], GCUDA_OP_POOL_AVG, 3, 2, 2, 1, 1, 0))
BUILD(pool_max, gcuda_pool_2d(ctx, in[0], GCUDA_OP_POOL_MAX, 2, 2, 2, 2, 0, 0))
BUILD(pool_max_overlap, gcuda_pool_2d(ctx, in[0], GCUDA_OP_POOL_MAX, 3, 3, 1, 2, 1, 1))
    // clang-format on

    static struct gcuda_tensor * build_rope_mode(struct gcuda_context * ctx, struct gcuda_tensor ** in, int mode) {
    int sections[4] = { 2, 1, 1, 0 };
    if (mode == 24) { sections[0] = 4, sections[1] = 4, sections[2] = 0; }
    const int n_dims = mode == 24 ? 8 : 8;
    if ((mode & 8) != 0) {
        return gcuda_rope_multi(
            ctx, in[0], in[1], NULL, n_dims, sections, mode, 0, 10000.0f, 0.5f, 0.5f, 1.25f, 32.0f, 1.0f);
    }
    return gcuda_rope_ext(ctx, in[0], in[1], NULL, n_dims, mode, 64, 10000.0f, 0.5f, 0.5f, 1.25f, 32.0f, 1.0f);
}
BUILD(rope_normal, build_rope_mode(ctx, in, 0))
BUILD(rope_neox, build_rope_mode(ctx, in, 2))
BUILD(rope_mrope, build_rope_mode(ctx, in, 8))
BUILD(rope_vision, build_rope_mode(ctx, in, 24))
BUILD(rope_imrope, build_rope_mode(ctx, in, 40))

BUILD(fill, gcuda_add(ctx, gcuda_fill(ctx, in[0], 3.0f), in[0]))
BUILD(rope_back, gcuda_rope_ext_back(ctx, in[0], in[1], NULL, 8, 2, 64, 10000.0f, 0.5f, 0.5f, 1.25f, 32.0f, 1.0f))

// fused kinds of gates split the row; both halves take part
BUILD(swiglu_fused, gcuda_swiglu(ctx, in[0]))
BUILD(swiglu_swapped, gcuda_swiglu_swapped(ctx, in[0]))
BUILD(reglu_fused, gcuda_reglu(ctx, in[0]))
BUILD(geglu_split, gcuda_geglu_split(ctx, in[0], in[1]))
BUILD(geglu_erf_fused, gcuda_geglu_erf(ctx, in[0]))
BUILD(geglu_quick_swapped, gcuda_geglu_quick_swapped(ctx, in[0]))

// operands that are views with other strides than their results
BUILD(mul_permuted, gcuda_mul(ctx, gcuda_permute(ctx, in[0], 1, 2, 0, 3), in[1]))
BUILD(add_transposed, gcuda_add(ctx, in[1], gcuda_transpose(ctx, in[0])))
BUILD(sum_permuted, gcuda_sum_rows(ctx, gcuda_permute(ctx, in[0], 0, 2, 1, 3)))
BUILD(mul_mat_views, gcuda_mul_mat(ctx, gcuda_permute(ctx, in[0], 0, 2, 1, 3), gcuda_permute(ctx, in[1], 0, 3, 1, 2)))
BUILD(view_twice, gcuda_mul(ctx, gcuda_view_2d(ctx, in[0], 3, 4, in[0]->nb[1], 0),
                      gcuda_view_2d(ctx, in[0], 3, 4, in[0]->nb[1], 8))) // the views overlap
BUILD(view_of_view, gcuda_sqr(ctx, gcuda_cont(ctx, gcuda_view_1d(ctx, gcuda_view_1d(ctx, in[0], 12, 16), 5, 8))))
BUILD(square_of_itself, gcuda_mul(ctx, in[0], in[0]))
BUILD(used_three_times, gcuda_sub(ctx, gcuda_mul(ctx, in[0], gcuda_exp(ctx, in[0])), gcuda_sqr(ctx, in[0])))

// two layers, shared weights, a residual and a loss: gradients of one node must add up
static struct gcuda_tensor * build_network(struct gcuda_context * ctx, struct gcuda_tensor ** in) {
    struct gcuda_tensor * h = gcuda_silu(ctx, gcuda_mul_mat(ctx, in[0], in[2]));
    h = gcuda_add(ctx, h, gcuda_mul_mat(ctx, in[0], gcuda_rms_norm(ctx, h, 1e-5f)));
    h = gcuda_add(ctx, h, in[1]);
    return gcuda_cross_entropy_loss(ctx, h, gcuda_soft_max(ctx, in[3]));
}

// one attention head with a causal mask
static struct gcuda_tensor * build_attention(struct gcuda_context * ctx, struct gcuda_tensor ** in) {
    struct gcuda_tensor * q = gcuda_mul_mat(ctx, in[0], in[2]);
    struct gcuda_tensor * k = gcuda_mul_mat(ctx, in[1], in[2]);
    struct gcuda_tensor * kq =
        gcuda_soft_max(ctx, gcuda_diag_mask_inf(ctx, gcuda_scale(ctx, gcuda_mul_mat(ctx, k, q), 0.5f), 0));
    return gcuda_mul_mat(ctx, gcuda_cont(ctx, gcuda_transpose(ctx, in[2])), kq);
}

// grouped heads, as models have them: reshape, permute, a mask, an output projection
static struct gcuda_tensor * build_heads(struct gcuda_context * ctx, struct gcuda_tensor ** in) {
    const int d = 4, n_head = 4, n_head_kv = 2, n_tokens = 3;
    struct gcuda_tensor * q = gcuda_reshape_3d(ctx, gcuda_mul_mat(ctx, in[0], in[2]), d, n_head, n_tokens);
    struct gcuda_tensor * k = gcuda_reshape_3d(ctx, gcuda_mul_mat(ctx, in[1], in[2]), d, n_head_kv, n_tokens);
    struct gcuda_tensor * kq = gcuda_mul_mat(
        ctx, gcuda_permute(ctx, k, 0, 2, 1, 3), gcuda_permute(ctx, q, 0, 2, 1, 3)); // [tokens, tokens, heads]
    kq = gcuda_soft_max_ext(ctx, kq, in[3], 0.5f, 0.0f);
    struct gcuda_tensor * v =
        gcuda_cont(ctx, gcuda_permute(ctx, k, 1, 2, 0, 3)); // keys serve as values: [tokens, d, heads]
    struct gcuda_tensor * y = gcuda_permute(ctx, gcuda_mul_mat(ctx, v, kq), 0, 2, 1, 3);
    return gcuda_cont_2d(ctx, y, d * n_head, n_tokens);
}

// ---------------------------------------------------------------------------------------------------- fused attention
// Sources: q, k, v, sinks, mask, of which some take part. A cast: only what takes part may be a parameter.
static struct gcuda_tensor * flash_attn(struct gcuda_context * ctx, struct gcuda_tensor ** in,
    struct gcuda_tensor * sinks, struct gcuda_tensor * mask, float max_bias, float softcap) {
    struct gcuda_tensor * y = gcuda_flash_attn_ext(ctx, in[0], in[1], in[2], mask, 0.5f, max_bias, softcap);
    if (sinks != NULL && gcuda_flash_attn_ext_add_sinks(y, sinks) != GCUDA_STATUS_SUCCESS) { return NULL; }
    return y;
}
BUILD(flash_plain, flash_attn(ctx, in, NULL, NULL, 0.0f, 0.0f))
BUILD(flash_softcap, flash_attn(ctx, in, NULL, NULL, 0.0f, 1.5f))
BUILD(flash_sinks, flash_attn(ctx, in, in[3], NULL, 0.0f, 0.0f))
BUILD(flash_all, flash_attn(ctx, in, in[3], gcuda_diag_mask_inf(ctx, in[4], 1), 8.0f, 1.5f))
BUILD(flash_causal, flash_attn(ctx, in, NULL, gcuda_diag_mask_inf(ctx, in[3], 0), 0.0f, 0.0f))
BUILD(flash_one_source, gcuda_flash_attn_ext(ctx, in[0], in[0], in[0], NULL, 0.5f, 0.0f, 0.0f))

// grouped heads, as models have them: projections, reshape, permute; keys and values shared by two heads
static struct gcuda_tensor * build_flash_heads(struct gcuda_context * ctx, struct gcuda_tensor ** in) {
    const int d = 4, n_head = 4, n_head_kv = 2, n_tokens = 3;
    struct gcuda_tensor * q = gcuda_reshape_3d(ctx, gcuda_mul_mat(ctx, in[0], in[2]), d, n_head, n_tokens);
    struct gcuda_tensor * k = gcuda_reshape_3d(ctx, gcuda_mul_mat(ctx, in[1], in[2]), d, n_head_kv, n_tokens);
    struct gcuda_tensor * kt = gcuda_permute(ctx, k, 0, 2, 1, 3);
    struct gcuda_tensor * y =
        gcuda_flash_attn_ext(ctx, gcuda_permute(ctx, q, 0, 2, 1, 3), kt, kt, in[3], 0.5f, 0.0f, 0.0f);
    return gcuda_reshape_2d(ctx, y, d * n_head, n_tokens);
}

// ---------------------------------------------------------------------------------------------------- tables
#define SHAPE \
    { 5, 4, 3, 2 }
#define ONE(id, low, high) \
    { #id, build_##id, 1, 1, { SHAPE }, low, high, 0, 0, 0 }

TEST(grad_unary) {
    static const struct grad_case cases[] = {
        ONE(sqr, -1, 1),
        ONE(sqrt, 1, 2),
        ONE(log, 1, 2),
        ONE(leaky_relu, 0.1, 1),
        ONE(scale, -1, 1),
        ONE(scale_bias, -1, 1),
        { "leaky_relu/negative", build_leaky_relu, 1, 1, { SHAPE }, -1, -0.1, 0, 0, 0 },
        { "fill", build_fill, 1, 1, { SHAPE }, -1, 1, 0, 0, 0 },
        { "sin", build_sin, 1, 1, { SHAPE }, -6.5, 6.5, 1e-3, 0, 0 },
        { "cos", build_cos, 1, 1, { SHAPE }, -6.5, 6.5, 1e-3, 0, 0 },
    };
    RUN_CASES("grad_unary", cases);
}

// Every activation and every gate of the registry: a new line of GCUDA_UNARY_OPS or GCUDA_GLU_OPS is tested as it is.
// Values are 1/16 and more away from multiples of a half, where a kink may be, and cover -4 to 4, half of them in each
// case.
#define X(ID, value) BUILD(act_##ID, gcuda_unary(ctx, in[0], GCUDA_UNARY_OP_##ID))
GCUDA_UNARY_OPS(X)
#undef X
#define X(ID, value, act) BUILD(gate_##ID, gcuda_glu_split(ctx, in[0], in[1], GCUDA_GLU_OP_##ID))
GCUDA_GLU_OPS(X)
#undef X

#define EIGHTHS \
    { 4, 4, 2, 1 }
#define HALF_OF(id, label, n, low) \
    { id label, build_##n, 1, 1, { EIGHTHS }, (low) + 0.0625, (low) + 4.0625, 0, 0, -1 }

// Whether a backward graph of it may be refused: those of GCUDAI_STUCK, and the gate without an activation.
static bool has_no_derivative(const char * name) { return strstr(name, "XIELU") || strstr(name, "SWIGLU_OAI"); }

static void grad_registry_run(const char * test, const struct grad_case * cases, size_t n) {
    for (size_t i = 0; i < n; ++i) {
        if (!has_no_derivative(cases[i].name)) { grad_cases_run(test, &cases[i], 1); }
    }
}

TEST(grad_every_activation) {
    static const struct grad_case cases[] = {
#define X(ID, value) HALF_OF(#ID, "/negative", act_##ID, -4.0), HALF_OF(#ID, "/positive", act_##ID, 0.0),
        GCUDA_UNARY_OPS(X)
#undef X
    };
    grad_registry_run("grad_every_activation", cases, sizeof cases / sizeof cases[0]);
}

TEST(grad_every_gate) {
    static const struct grad_case cases[] = {
#define X(ID, value, act) { #ID, build_gate_##ID, 2, 2, { EIGHTHS, EIGHTHS }, -1.9375, 2.0625, 0, 0, -1 },
        GCUDA_GLU_OPS(X)
#undef X
    };
    grad_registry_run("grad_every_gate", cases, sizeof cases / sizeof cases[0]);
}

#define TWO(id, label, bnd, ...) \
    { #id "/" label, build_##id, 2, 2, { SHAPE, __VA_ARGS__ }, 0.5, 1, bnd, 0, 0 }
#define BROADCASTS(id, bnd)                                                                                   \
    TWO(id, "same", bnd, SHAPE), TWO(id, "row", bnd, { 5, 1, 1, 1 }), TWO(id, "column", bnd, { 1, 4, 1, 1 }), \
        TWO(id, "plane", bnd, { 1, 1, 3, 1 }), TWO(id, "batch", bnd, { 1, 1, 1, 2 }),                         \
        TWO(id, "scalar", bnd, { 1, 1, 1, 1 }), TWO(id, "half", bnd, { 5, 2, 3, 1 })

TEST(grad_binary) {
    static const struct grad_case cases[] = {
        BROADCASTS(add, 1e-4),
        BROADCASTS(sub, 1e-3),
        BROADCASTS(mul, 1e-3),
        BROADCASTS(div, 1e-3),
        { "add1", build_add1, 2, 2, { SHAPE, { 1, 1, 1, 1 } }, -1, 1, 0, 0, 0 },
        { "swiglu_split", build_swiglu_split, 2, 2, { SHAPE, SHAPE }, -1, 1, 0, 0, 0 },
        { "swiglu_fused", build_swiglu_fused, 1, 1, { { 6, 4, 3, 2 } }, -1, 1, 0, 0, 0 },
        { "swiglu_swapped", build_swiglu_swapped, 1, 1, { { 6, 4, 3, 2 } }, -1, 1, 0, 0, 0 },
        { "reglu_fused", build_reglu_fused, 1, 1, { { 6, 4, 3, 2 } }, 0.1, 1, 0, 0, 0 },
        { "geglu_split", build_geglu_split, 2, 2, { SHAPE, SHAPE }, -1, 1, 0, 0, 0 },
        { "geglu_erf_fused", build_geglu_erf_fused, 1, 1, { { 6, 4, 3, 2 } }, 0.2, 2, 0, 0, 0 },
        { "geglu_quick_swapped", build_geglu_quick_swapped, 1, 1, { { 6, 4, 3, 2 } }, -1, 1, 0, 0, 0 },
        { "square_of_itself", build_square_of_itself, 1, 1, { SHAPE }, -1, 1, 0, 0, 0 },
        { "used_three_times", build_used_three_times, 1, 1, { SHAPE }, -1, 1, 0, 0, 0 },
        { "mul_permuted", build_mul_permuted, 2, 2, { { 5, 4, 3, 2 }, { 3, 5, 4, 2 } }, 0.5, 1, 1e-3, 0, 0 },
        { "add_transposed", build_add_transposed, 2, 2, { { 5, 4, 3, 2 }, { 4, 5, 3, 2 } }, -1, 1, 0, 0, 0 },
    };
    RUN_CASES("grad_binary", cases);
}

TEST(grad_products) {
    static const struct grad_case cases[] = {
        { "mul_mat/plain", build_mul_mat, 2, 2, { { 7, 5, 1, 1 }, { 7, 3, 1, 1 } }, -1, 1, 0, 0, 0 },
        { "mul_mat/vector", build_mul_mat, 2, 2, { { 16, 3, 1, 1 }, { 16, 1, 1, 1 } }, -1, 1, 0, 0, 0 },
        { "mul_mat/batch", build_mul_mat, 2, 2, { { 4, 3, 2, 3 }, { 4, 5, 2, 3 } }, -1, 1, 0, 0, 0 },
        { "mul_mat/broadcast", build_mul_mat, 2, 2, { { 4, 3, 1, 1 }, { 4, 2, 3, 2 } }, -1, 1, 0, 0, 0 },
        { "mul_mat/grouped", build_mul_mat, 2, 2, { { 4, 3, 2, 1 }, { 4, 2, 4, 3 } }, -1, 1, 0, 0, 0 },
        { "mul_mat/views", build_mul_mat_views, 2, 2, { { 4, 2, 3, 1 }, { 4, 2, 5, 2 } }, -1, 1, 0, 0, 0 },
        { "conv_2d", build_conv_2d, 2, 2, { { 3, 3, 2, 2 }, { 6, 5, 2, 2 } }, -1, 1, 0, 0, 0 },
    };
    RUN_CASES("grad_products", cases);
}

TEST(grad_rows) {
    static const struct grad_case cases[] = {
        { "norm", build_norm, 1, 1, { { 9, 4, 2, 1 } }, -1, 1, 0, 0, 0 },
        { "rms_norm", build_rms_norm, 1, 1, { { 9, 4, 2, 1 } }, -1, 1, 0, 0, 0 },
        { "l2_norm", build_l2_norm, 1, 1, { { 9, 4, 2, 1 } }, -1, 1, 0, 0, 0 },
        { "group_norm", build_group_norm, 1, 1, { { 5, 3, 4, 2 } }, -1, 1, 0, 0, 0 },
        { "tri", build_tri, 1, 1, { { 5, 5, 2, 1 } }, -1, 1, 0, 0, 0 },
        { "soft_max", build_soft_max, 1, 1, { { 9, 4, 2, 1 } }, -1, 1, 0, 0.0625, 0 },
        { "soft_max_ext", build_soft_max_ext, 2, 1, { { 9, 4, 2, 1 }, { 9, 4, 1, 1 } }, -1, 1, 0, 0.125, 0 },
        { "diag_mask_soft_max", build_diag_mask_soft_max, 1, 1, { { 6, 5, 2, 1 } }, -1, 1, 0, 0.125, 0 },
        { "diag_mask_zero", build_diag_mask_zero, 1, 1, { { 6, 5, 2, 1 } }, -1, 1, 0, 0, 0 },
        { "cross_entropy", build_cross_entropy, 2, 1, { { 10, 3, 2, 1 }, { 10, 3, 2, 1 } }, -3, 3, 0, 0.25, 0 },
        { "sum", build_sum, 1, 1, { SHAPE }, -1, 1, 0, 0, 0 },
        { "sum_rows", build_sum_rows, 1, 1, { SHAPE }, -1, 1, 0, 0, 0 },
        { "mean", build_mean, 1, 1, { SHAPE }, -1, 1, 0, 0, 0 },
        { "rope/normal", build_rope_normal, 2, 1, { { 10, 2, 4, 2 }, { 4, 1, 1, 1 } }, -1, 1, 1e-3, 0, 50 },
        { "rope/neox", build_rope_neox, 2, 1, { { 10, 2, 4, 2 }, { 4, 1, 1, 1 } }, -1, 1, 1e-3, 0, 50 },
        { "rope_back", build_rope_back, 2, 1, { { 10, 2, 4, 2 }, { 4, 1, 1, 1 } }, -1, 1, 1e-3, 0, 50 },
        { "rope/mrope", build_rope_mrope, 2, 1, { { 10, 2, 3, 2 }, { 12, 1, 1, 1 } }, -1, 1, 1e-3, 0, 50 },
        { "rope/imrope", build_rope_imrope, 2, 1, { { 10, 2, 3, 2 }, { 12, 1, 1, 1 } }, -1, 1, 1e-3, 0, 50 },
        { "rope/vision", build_rope_vision, 2, 1, { { 16, 2, 3, 2 }, { 12, 1, 1, 1 } }, -1, 1, 1e-3, 0, 50 },
    };
    RUN_CASES("grad_rows", cases);
}

TEST(grad_moves) {
    static const struct grad_case cases[] = {
        { "get_rows", build_get_rows, 2, 1, { { 5, 7, 1, 1 }, { 9, 1, 1, 1 } }, -1, 1, 0, 0, 7 },
        { "dup", build_dup, 1, 1, { SHAPE }, -1, 1, 0, 0, 0 },
        { "cont", build_cont, 1, 1, { SHAPE }, -1, 1, 0, 0, 0 },
        { "reshape", build_reshape, 1, 1, { SHAPE }, -1, 1, 0, 0, 0 },
        { "permute", build_permute, 1, 1, { SHAPE }, -1, 1, 0, 0, 0 },
        { "transpose", build_transpose, 1, 1, { SHAPE }, -1, 1, 0, 0, 0 },
        { "view_1d", build_view_1d, 1, 1, { { 12, 1, 1, 1 } }, -1, 1, 0, 0, 0 },
        { "view_rows", build_view_rows, 1, 1, { { 5, 4, 1, 1 } }, -1, 1, 0, 0, 0 },
        { "view_twice", build_view_twice, 1, 1, { { 6, 4, 1, 1 } }, -1, 1, 0, 0, 0 },
        { "view_of_view", build_view_of_view, 1, 1, { { 20, 1, 1, 1 } }, -1, 1, 0, 0, 0 },
        { "sum_permuted", build_sum_permuted, 1, 1, { SHAPE }, -1, 1, 0, 0, 0 },
        { "view_cube", build_view_cube, 1, 1, { SHAPE }, -1, 1, 0, 0, 0 },
        { "cpy", build_cpy, 2, 1, { SHAPE, { 20, 6, 1, 1 } }, -1, 1, 0, 0, 0 },
        { "cast", build_cast, 1, 1, { SHAPE }, -1, 1, 0, 0, 0 },
        { "repeat", build_repeat, 2, 1, { { 5, 2, 1, 2 }, { 10, 4, 3, 2 } }, -1, 1, 0, 0, 0 },
        { "repeat_back", build_repeat_back, 2, 1, { { 10, 4, 3, 2 }, { 5, 2, 1, 2 } }, -1, 1, 0, 0, 0 },
        { "concat/0", build_concat_0, 2, 2, { SHAPE, { 2, 4, 3, 2 } }, -1, 1, 0, 0, 0 },
        { "concat/1", build_concat_1, 2, 2, { SHAPE, { 5, 3, 3, 2 } }, -1, 1, 0, 0, 0 },
        { "concat/2", build_concat_2, 2, 2, { SHAPE, { 5, 4, 1, 2 } }, -1, 1, 0, 0, 0 },
        { "concat/3", build_concat_3, 2, 2, { SHAPE, { 5, 4, 3, 1 } }, -1, 1, 0, 0, 0 },
        { "acc", build_acc, 2, 2, { SHAPE, { 4, 3, 2, 1 } }, -1, 1, 0, 0, 0 },
        { "set", build_set, 2, 2, { SHAPE, { 4, 3, 2, 1 } }, -1, 1, 0, 0, 0 },
        { "pad", build_pad, 1, 1, { SHAPE }, -1, 1, 0, 0, 0 },
        { "roll", build_roll, 1, 1, { SHAPE }, -1, 1, 0, 0, 0 },
        { "set_1d", build_set_1d, 2, 2, { { 20, 1, 1, 1 }, { 7, 1, 1, 1 } }, -1, 1, 0, 0, 0 },
    };
    RUN_CASES("grad_moves", cases);
}

// The step must not change the winner of a window.
TEST(grad_images) {
    static const struct grad_case cases[] = {
        { "im2col/1d", build_im2col_1d, 2, 1, { { 9, 2, 2, 1 }, { 3, 2, 1, 1 } }, -1, 1, 0, 0, 0 },
        { "im2col/2d", build_im2col_2d, 2, 1, { { 7, 6, 2, 2 }, { 3, 2, 2, 1 } }, -1, 1, 0, 0, 0 },
        { "pool_avg", build_pool_avg, 1, 1, { { 7, 6, 2, 2 } }, -1, 1, 0, 0, 0 },
        { "pool_max", build_pool_max, 1, 1, { { 8, 6, 2, 1 } }, -1, 1, 0, 0.001953125, -1 },
        { "pool_max/overlap", build_pool_max_overlap, 1, 1, { { 7, 6, 2, 1 } }, -1, 1, 0, 0.001953125, -1 },
    };
    RUN_CASES("grad_images", cases);
}

TEST(grad_networks) {
    static const struct grad_case cases[] = {
        { "two_layers", build_network, 4, 2, { { 6, 6, 1, 1 }, { 6, 1, 1, 1 }, { 6, 5, 1, 1 }, { 6, 5, 1, 1 } }, -1, 1,
            0, 0.03125, 0 },
        { "heads", build_heads, 4, 3, { { 6, 16, 1, 1 }, { 6, 8, 1, 1 }, { 6, 3, 1, 1 }, { 3, 3, 1, 1 } }, -1, 1, 0,
            0.03125, 0 },
        { "attention", build_attention, 3, 3, { { 4, 4, 1, 1 }, { 4, 4, 1, 1 }, { 4, 5, 1, 1 } }, -1, 1, 0, 0.125, 0 },
    };
    RUN_CASES("grad_networks", cases);
}

TEST(grad_attention) {
    static const struct grad_case cases[] = {
        { "plain", build_flash_plain, 3, 3, { { 6, 3, 4, 2 }, { 6, 5, 2, 2 }, { 7, 5, 2, 2 } }, -1, 1, 0, 0.0625, 0 },
        { "heads_of_k_and_v", build_flash_plain, 3, 3, { { 6, 3, 4, 1 }, { 6, 5, 4, 1 }, { 3, 5, 1, 1 } }, -1, 1, 0,
            0.0625, 0 },
        { "softcap", build_flash_softcap, 3, 3, { { 6, 3, 2, 1 }, { 6, 5, 1, 1 }, { 7, 5, 1, 1 } }, -1, 1, 0, 0.0625,
            0 },
        { "sinks", build_flash_sinks, 4, 4, { { 6, 3, 4, 2 }, { 6, 5, 2, 2 }, { 7, 5, 2, 2 }, { 4, 1, 1, 1 } }, -1, 1,
            0, 0.0625, 0 },
        { "causal", build_flash_causal, 4, 3, { { 6, 5, 2, 1 }, { 6, 5, 2, 1 }, { 6, 5, 2, 1 }, { 5, 5, 1, 1 } }, -1, 1,
            0, 0.0625, 0 },
        { "all", build_flash_all, 5, 4,
            { { 6, 3, 6, 2 }, { 6, 5, 2, 2 }, { 7, 5, 2, 2 }, { 6, 1, 1, 1 }, { 5, 3, 3, 2 } }, -1, 1, 0, 0.0625, 0 },
        { "one_source", build_flash_one_source, 1, 1, { { 6, 3, 2, 1 } }, -1, 1, 0, 0.0625, 0 },
        { "heads", build_flash_heads, 4, 3, { { 6, 16, 1, 1 }, { 6, 8, 1, 1 }, { 6, 3, 1, 1 }, { 3, 3, 1, 1 } }, -1, 1,
            0, 0.03125, 0 },
    };
    RUN_CASES("grad_attention", cases);
}

// Sources of other types. Results are in F32, or their rounding would hide the steps.
static struct gcuda_tensor * grad_exact(struct gcuda_tensor * y) {
    if (y != NULL) { gcuda_mul_mat_set_prec(y, GCUDA_PREC_F32); }
    return y;
}
BUILD(mul_mat_exact, grad_exact(gcuda_mul_mat(ctx, in[0], in[1])))
BUILD(mul_mat_weights, grad_exact(gcuda_mul_mat(ctx, in[1], in[0])))
BUILD(square_cast, gcuda_sqr(ctx, gcuda_cast(ctx, in[0], GCUDA_TYPE_F32)))
BUILD(add_cast, gcuda_add_cast(ctx, in[0], in[1], GCUDA_TYPE_F32))
BUILD(cpy_to, gcuda_cpy(ctx, in[0], in[1]))

TEST(grad_types) {
    const enum gcuda_type F32 = GCUDA_TYPE_F32, F16 = GCUDA_TYPE_F16, BF16 = GCUDA_TYPE_BF16;
    static const struct grad_case
        product = { "mul_mat", build_mul_mat_exact, 2, 2, { { 7, 5, 2, 1 }, { 7, 3, 2, 1 } }, -1, 1, 0, 0, 0 },
        shared = { "mul_mat/grouped", build_mul_mat_exact, 2, 2, { { 4, 3, 1, 1 }, { 4, 2, 3, 2 } }, -1, 1, 0, 0, 0 },
        rows = { "get_rows", build_get_rows, 2, 1, { { 5, 7, 1, 1 }, { 9, 1, 1, 1 } }, -1, 1, 0, 0, 7 },
        factor = { "mul/row", build_mul, 2, 2, { SHAPE, { 5, 1, 1, 1 } }, 0.5, 1, 1e-3, 0, 0 },
        gate = { "swiglu_split", build_swiglu_split, 2, 2, { SHAPE, SHAPE }, -1, 1, 0, 0, 0 },
        summand = { "add/row", build_add, 2, 2, { SHAPE, { 5, 1, 1, 1 } }, 0.5, 1, 1e-3, 0, 0 },
        divisor = { "div/half", build_div, 2, 2, { SHAPE, { 5, 2, 3, 1 } }, 0.5, 1, 1e-3, 0, 0 },
        region = { "acc", build_acc, 2, 2, { SHAPE, { 4, 3, 2, 1 } }, -1, 1, 0, 0, 0 },
        square = { "square_cast", build_square_cast, 1, 1, { SHAPE }, -1, 1, 0, 0, 0 },
        sum = { "add_cast", build_add_cast, 2, 2, { SHAPE, SHAPE }, -1, 1, 0, 0, 0 },
        copy = { "cpy", build_cpy_to, 2, 1, { SHAPE, { 20, 6, 1, 1 } }, -1, 1, 0, 0, 0 },
        mean = { "mean", build_mean, 1, 1, { SHAPE }, -1, 1, 0, 0, 0 },
        entropy = { "cross_entropy", build_cross_entropy, 2, 1, { { 10, 3, 2, 1 }, { 10, 3, 2, 1 } }, -3, 3, 0, 0.25,
            0 },
        columns = { "im2col/2d", build_im2col_2d, 2, 1, { { 7, 6, 2, 2 }, { 3, 2, 2, 1 } }, -1, 1, 0, 0, 0 },
        pool = { "pool_avg", build_pool_avg, 1, 1, { { 7, 6, 2, 2 } }, -1, 1, 0, 0, 0 },
        blocks = { "mul_mat/weights", build_mul_mat_weights, 2, 1, { { 64, 3, 1, 1 }, { 64, 5, 1, 1 } }, -1, 1, 0, 0,
            0 },
        attention = { "flash_attn", build_flash_sinks, 4, 4,
            { { 6, 3, 4, 2 }, { 6, 5, 2, 2 }, { 7, 5, 2, 2 }, { 4, 1, 1, 1 } }, -1, 1, 0, 0.0625, 0 },
        super_blocks = { "mul_mat/weights", build_mul_mat_weights, 2, 1, { { 256, 2, 2, 1 }, { 256, 3, 1, 1 } }, -1, 1,
            0, 0, 0 };
    const struct {
        const struct grad_case * g;
        enum gcuda_type types[MAX_IN];
    } cases[] = {
        { &product, { F16, F32 } },
        { &product, { BF16, F32 } },
        { &product, { F16, F16 } },
        { &product, { BF16, BF16 } },
        { &shared, { F16, F32 } },
        { &shared, { BF16, F32 } },
        { &rows, { F16, F32 } },
        { &rows, { BF16, F32 } },
        { &factor, { F32, F16 } },
        { &factor, { F32, BF16 } },
        { &summand, { F32, F16 } },
        { &summand, { F32, BF16 } },
        { &gate, { F32, F16 } },
        { &gate, { F32, BF16 } },
        { &divisor, { F32, F16 } },
        { &divisor, { F32, BF16 } },
        { &region, { F32, F16 } },
        { &region, { F32, BF16 } },
        { &square, { F16 } },
        { &square, { BF16 } },
        { &sum, { F16, F32 } },
        { &sum, { BF16, F32 } },
        { &copy, { F16, F32 } },
        { &copy, { BF16, F32 } },
        { &mean, { F16 } },
        { &mean, { BF16 } },
        { &entropy, { F16, F32 } },
        { &entropy, { BF16, F32 } },
        { &columns, { F16, F32 } },
        { &columns, { BF16, F32 } },
        { &pool, { F16 } },
        { &pool, { BF16 } },
        { &attention, { F32, F16, F16, F32 } },
        { &attention, { F32, BF16, BF16, F32 } },
        { &attention, { F16, F16, F16, F16 } },
        { &blocks, { F32, GCUDA_TYPE_Q4_0 } },
        { &blocks, { F32, GCUDA_TYPE_Q5_1 } },
        { &blocks, { F32, GCUDA_TYPE_Q8_0 } },
        { &blocks, { F32, GCUDA_TYPE_MXFP4 } },
        { &super_blocks, { F32, GCUDA_TYPE_Q4_K } },
        { &super_blocks, { F32, GCUDA_TYPE_Q6_K } },
        { &super_blocks, { F16, GCUDA_TYPE_Q3_K } },
    };
    struct gcuda_backend * backend = gcuda_backend_cpu_init();
    CHECK(backend != NULL);
    for (size_t i = 0; backend != NULL && i < sizeof cases / sizeof cases[0]; ++i) {
        grad_case_run(backend, "grad_types", cases[i].g, cases[i].types);
    }
    gcuda_backend_free(backend);
}

// ---------------------------------------------------------------------------------------------------- refusals
BUILD(no_upscale, gcuda_upscale(ctx, in[0], 2, GCUDA_SCALE_MODE_NEAREST))
BUILD(no_cumsum, gcuda_cumsum(ctx, in[0]))
BUILD(no_pad, gcuda_pad_circular(ctx, in[0], 1, 1, 0, 0))
BUILD(no_clamp, gcuda_clamp(ctx, gcuda_sqr(ctx, in[0]), 0.0f, 0.5f))
BUILD(no_flash_attn_blocks, gcuda_flash_attn_ext(ctx, gcuda_repeat_4d(ctx, in[0], 32, 4, 2, 1),
                                gcuda_new_tensor_3d(ctx, GCUDA_TYPE_Q8_0, 32, 4, 2),
                                gcuda_new_tensor_3d(ctx, GCUDA_TYPE_Q8_0, 32, 4, 2), NULL, 1.0f, 0.0f, 0.0f))
BUILD(no_flash_attn_mask,
    gcuda_flash_attn_ext(ctx, in[0], in[0], in[0], gcuda_mul_mat(ctx, in[0], in[0]), 1.0f, 0.0f, 0.0f))
BUILD(no_reflect, gcuda_pad_reflect_1d(ctx, in[0], 1, 1))
BUILD(no_xielu, gcuda_xielu(ctx, in[0], 1.0f, 1.0f, 0.5f, -1.0f))
BUILD(no_swiglu_oai, gcuda_swiglu_oai(ctx, in[0], gcuda_sqr(ctx, in[0]), 1.7f, 7.0f))
BUILD(no_out_prod, gcuda_out_prod(ctx, in[0], in[0]))

TEST(no_derivative_is_an_error_that_names_the_operation) {
    static const struct {
        grad_build_fn build;
        const char * op;
    } cases[] = {
        { build_no_upscale, "upscale" },
        { build_no_cumsum, "cumsum" },
        { build_no_pad, "pad" },
        { build_no_flash_attn_blocks, "quantized" },
        { build_no_flash_attn_mask, "mask" },
        { build_no_reflect, "pad_reflect_1d" },
        { build_no_clamp, "clamp" },
        { build_no_xielu, "XIELU" },
        { build_no_swiglu_oai, "SWIGLU_OAI" },
        { build_no_out_prod, "out_prod" },
    };
    struct gcuda_backend * backend = gcuda_backend_cpu_init();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        const struct grad_case g = { cases[i].op, cases[i].build, 1, 1, { { 8, 4, 2, 1 } }, 0, 1, 0, 0, 0 };
        struct grad_run r;
        CHECK_MSG(grad_make(&r, backend, &g, NULL), "%s: %s", cases[i].op, gcuda_last_error());
        const gcuda_status st = r.both != NULL ? gcuda_build_backward_expand(r.ctx, r.both, NULL) : GCUDA_STATUS_FAILED;
        CHECK_MSG(st != GCUDA_STATUS_SUCCESS, "%s has no derivative, but a backward graph was built", cases[i].op);
        CHECK_HAS(gcuda_last_error(), cases[i].op);
        grad_free(&r);
    }
    gcuda_backend_free(backend);
}

// ---------------------------------------------------------------------------------------------------- several passes
// L = sum(x^2) + sum(w * x), so dL/dx = 2 x + w and dL/dw = x
struct pass_run {
    struct gcuda_context * ctx;
    struct gcuda_backend * backend;
    struct gcuda_backend_buffer * buffer;
    struct gcuda_tensor *x, *w, *loss, *acc;
    struct gcuda_cgraph * graph;
};

static bool pass_make(struct pass_run * r, bool accumulate, float max_norm, struct gcuda_tensor ** norm) {
    const struct gcuda_init_params params = { 1u << 20, NULL, true };
    struct gcuda_tensor * accs[64];
    memset(r, 0, sizeof *r);
    memset(accs, 0, sizeof accs);
    r->backend = gcuda_backend_cpu_init();
    r->ctx = gcuda_init(params);
    if (r->backend == NULL || r->ctx == NULL) { return false; }
    r->x = gcuda_new_tensor_1d(r->ctx, GCUDA_TYPE_F32, 3);
    r->w = gcuda_new_tensor_1d(r->ctx, GCUDA_TYPE_F32, 3);
    gcuda_set_param(r->x);
    gcuda_set_param(r->w);
    r->loss =
        gcuda_add(r->ctx, gcuda_sum(r->ctx, gcuda_sqr(r->ctx, r->x)), gcuda_sum(r->ctx, gcuda_mul(r->ctx, r->x, r->w)));
    r->graph = gcuda_new_graph_custom(r->ctx, 256, true);
    if (r->loss == NULL || r->graph == NULL) { return false; }
    gcuda_set_loss(r->loss);
    if (!CHECK_OK(gcuda_build_forward_expand(r->graph, r->loss))) { return false; }
    for (int i = 0; accumulate && i < gcuda_graph_n_nodes(r->graph) && i < 64; ++i) {
        if (gcuda_graph_node(r->graph, i) == r->x) {
            accs[i] = r->acc = gcuda_new_tensor_1d(r->ctx, GCUDA_TYPE_F32, 3);
        }
    }
    if (!CHECK_OK(gcuda_build_backward_expand(r->ctx, r->graph, accumulate ? accs : NULL))) { return false; }
    if (max_norm > 0.0f && !CHECK_OK(gcuda_graph_clip_grads(r->ctx, r->graph, max_norm, norm))) { return false; }
    r->buffer = gcuda_backend_alloc_ctx_tensors(r->ctx, r->backend);
    return r->buffer != NULL;
}

static void pass_compute(struct pass_run * r, const float * x, const float * w) {
    CHECK_OK(gcuda_backend_tensor_set(r->x, x, 0, 12));
    CHECK_OK(gcuda_backend_tensor_set(r->w, w, 0, 12));
    CHECK_OK(gcuda_backend_graph_compute(r->backend, r->graph));
}

static void pass_expect(const struct gcuda_tensor * grad, double a, double b, double c) {
    float got[3] = { 0, 0, 0 };
    CHECK(grad != NULL);
    if (grad == NULL || !CHECK_OK(gcuda_backend_tensor_get(grad, got, 0, 12))) { return; }
    CHECK_NEAR(got[0], a, 1e-5);
    CHECK_NEAR(got[1], b, 1e-5);
    CHECK_NEAR(got[2], c, 1e-5);
}

static void pass_free(struct pass_run * r) {
    gcuda_backend_buffer_free(r->buffer);
    gcuda_free(r->ctx);
    gcuda_backend_free(r->backend);
}

TEST(grad_accumulates_over_passes) {
    static const float x1[] = { 1, 2, 3 }, x2[] = { -1, 0, 5 }, w[] = { 10, 20, 30 };
    struct pass_run r;
    if (pass_make(&r, true, 0.0f, NULL)) {
        CHECK(r.acc != NULL && gcuda_graph_get_grad_acc(r.graph, r.x) == r.acc);
        CHECK_OK(gcuda_graph_reset(r.graph));
        pass_compute(&r, x1, w);
        pass_expect(r.acc, 12, 24, 36);
        pass_compute(&r, x2, w);
        pass_expect(r.acc, 12 + 8, 24 + 20, 36 + 40);
        pass_expect(gcuda_graph_get_grad(r.graph, r.w), -1, 0, 5); // without an accumulator: of the last pass
        CHECK_OK(gcuda_graph_reset(r.graph));
        pass_compute(&r, x2, w);
        pass_expect(r.acc, 8, 20, 40);
    } else {
        CHECK_MSG(false, "not built: %s", gcuda_last_error());
    }
    pass_free(&r);
}

TEST(grad_clips_by_norm) {
    static const float x[] = { 1, 2, 2 }, w[] = { 0, 0, 0 };
    static const double norm_want = 6.708203932; // of [2 4 4] and [1 2 2] together: sqrt(36 + 9)
    struct gcuda_tensor * norm = NULL;
    struct pass_run r;
    for (int i = 0; i < 2; ++i) {
        const float max_norm = i == 0 ? 1.0f : 100.0f;
        const double factor = i == 0 ? 1.0 / norm_want : 1.0;
        if (pass_make(&r, false, max_norm, &norm)) {
            float got = 0.0f;
            CHECK_OK(gcuda_graph_reset(r.graph));
            pass_compute(&r, x, w);
            pass_expect(gcuda_graph_get_grad(r.graph, r.x), 2 * factor, 4 * factor, 4 * factor);
            pass_expect(gcuda_graph_get_grad(r.graph, r.w), 1 * factor, 2 * factor, 2 * factor);
            CHECK(norm != NULL && CHECK_OK(gcuda_backend_tensor_get(norm, &got, 0, 4)));
            CHECK_NEAR(got, norm_want, 1e-5);
        } else {
            CHECK_MSG(false, "not built: %s", gcuda_last_error());
        }
        pass_free(&r);
    }
}

// Nothing is computed: the gradient's region has to start where the node's does, beyond 4 GiB and as F32 of a wider
// type.
static void check_region(enum gcuda_type type, bool is_acc, int64_t row, size_t size) {
    const struct gcuda_init_params params = { 0, NULL, true };
    struct gcuda_context * ctx = gcuda_init(params);
    struct gcuda_cgraph * graph = gcuda_new_graph_custom(ctx, 64, true);
    struct gcuda_tensor *a = gcuda_new_tensor_2d(ctx, type, 8, 4 * row), *b = gcuda_new_tensor_2d(ctx, type, 2, 2);
    const size_t nb1 = (size_t) row * 8 * size, end = 4 * nb1;
    gcuda_set_param(a);
    gcuda_set_param(b);
    struct gcuda_tensor * y = is_acc ? gcuda_acc(ctx, a, b, nb1, end, end, nb1 + 2 * size)
                                     : gcuda_set(ctx, a, b, nb1, end, end, nb1 + 2 * size);
    struct gcuda_tensor * loss = gcuda_sum(ctx, type == GCUDA_TYPE_F32 ? y : gcuda_cast(ctx, y, GCUDA_TYPE_F32));
    int n_views = 0, n_accs = 0;
    gcuda_set_loss(loss);
    CHECK_OK(gcuda_build_forward_expand(graph, loss));
    CHECK_OK(gcuda_build_backward_expand(ctx, graph, NULL));
    for (int i = 0; i < gcuda_graph_n_nodes(graph); ++i) {
        const struct gcuda_tensor * t = gcuda_graph_node(graph, i);
        if (t == y) { continue; }
        if (t->op == GCUDA_OP_VIEW) {
            CHECK(t->nb[1] == (size_t) row * 32 && t->view_offs == (size_t) row * 32 + 8);
            n_views++;
        } else if (t->op == GCUDA_OP_ACC) { // low halves of strides and offset, then the high ones
            uint32_t p[9];
            memcpy(p, t->op_params, sizeof p);
            CHECK(((uint64_t) p[5] << 32 | p[0]) == (uint64_t) row * 32 &&
                  ((uint64_t) p[8] << 32 | p[3]) == (uint64_t) row * 32 + 8);
            n_accs++;
        }
    }
    CHECK(n_views == (is_acc ? 1 : 2) && n_accs == (is_acc ? 0 : 1));
    gcuda_free(ctx);
}

TEST(gradients_of_regions_far_apart) {
    for (int is_acc = 0; is_acc < 2; ++is_acc) {
        check_region(GCUDA_TYPE_F32, is_acc != 0, 3, 4);
        check_region(GCUDA_TYPE_F32, is_acc != 0, ((int64_t) 1 << 27) + 128, 4); // 4 GiB and a little
        check_region(GCUDA_TYPE_F32, is_acc != 0, (int64_t) 87500000, 4);        // 2.8e9 bytes
        check_region(GCUDA_TYPE_F32, is_acc != 0, (int64_t) 1 << 28, 4);         // 8 GiB
    }
    check_region(GCUDA_TYPE_F16, true, 3, 2);
    check_region(GCUDA_TYPE_F64, false, 3, 8);
}

TEST(gradients_of_a_product_have_its_precision) {
    static const enum gcuda_prec precs[] = { GCUDA_PREC_DEFAULT, GCUDA_PREC_F32 };
    for (int i = 0; i < 2; ++i) {
        const struct gcuda_init_params params = { 0, NULL, true };
        struct gcuda_context * ctx = gcuda_init(params);
        struct gcuda_tensor *w = gcuda_new_tensor_2d(ctx, GCUDA_TYPE_F32, 4, 3),
                            *x = gcuda_new_tensor_2d(ctx, GCUDA_TYPE_F32, 4, 5);
        struct gcuda_tensor *y = gcuda_mul_mat(ctx, w, x), *loss = gcuda_sum(ctx, y);
        struct gcuda_cgraph * graph = gcuda_new_graph_custom(ctx, 64, true);
        gcuda_mul_mat_set_prec(y, precs[i]);
        gcuda_set_param(w);
        gcuda_set_param(x);
        gcuda_set_loss(loss);
        CHECK_OK(gcuda_build_forward_expand(graph, loss));
        CHECK_OK(gcuda_build_backward_expand(ctx, graph, NULL));
        int n = 0;
        for (int k = 0; k < gcuda_graph_n_nodes(graph); ++k) {
            const struct gcuda_tensor * node = gcuda_graph_node(graph, k);
            n += node->op == GCUDA_OP_OUT_PROD && node->op_params[0] == (int32_t) precs[i];
        }
        CHECK_EQ_I(n, 2);
        gcuda_free(ctx);
    }
}

TEST(grad_needs_a_loss_and_a_parameter) {
    const struct gcuda_init_params params = { 1u << 20, NULL, true };
    for (int what = 0; what < 3; ++what) { // no loss, no parameter, a graph made without gradients
        struct gcuda_context * ctx = gcuda_init(params);
        struct gcuda_tensor * x = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F32, 3);
        if (what != 1) { gcuda_set_param(x); }
        struct gcuda_tensor * y = gcuda_sum(ctx, gcuda_sqr(ctx, x));
        if (what != 0) { gcuda_set_loss(y); }
        struct gcuda_cgraph * graph = gcuda_new_graph_custom(ctx, 64, what != 2);
        CHECK_OK(gcuda_build_forward_expand(graph, y));
        const int n_nodes = gcuda_graph_n_nodes(graph);
        CHECK(gcuda_build_backward_expand(ctx, graph, NULL) != GCUDA_STATUS_SUCCESS);
        CHECK(gcuda_last_error()[0] != '\0');
        CHECK_EQ_I(gcuda_graph_n_nodes(graph), n_nodes);
        gcuda_free(ctx);
    }
}
