// Refusals. Every constructor gets NULL, wrong shapes and wrong types; the message names the operation and the shape.
// Then parameters, hostile sizes, and how a context keeps its first error.
#if !defined(_WIN32)
#define _GNU_SOURCE 1 // setenv, dup2
#endif
#include "test-ops.h"

#include <ctype.h>
#if !defined(_WIN32)
#include <unistd.h>
#endif

static struct gcuda_context * ctx; // of the running test

// =====================================================================================================================
// >>inputs   "F32:8,4" or "F32:8,4:transposed" or "F32:8,4:strided"; "-" is NULL
// =====================================================================================================================
static struct gcuda_tensor * make(enum gcuda_type type, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3) {
    return gcuda_new_tensor_4d(ctx, type, ne0, ne1, ne2, ne3);
}
static struct gcuda_tensor * f32(int64_t ne0, int64_t ne1) { return make(GCUDA_TYPE_F32, ne0, ne1, 1, 1); }

struct input {
    enum gcuda_type type;
    int64_t ne[4];
    enum layout layout;
    bool null, param;
};

static const char * parse_input(const char * s, struct input * in) {
    const char * end = s + strcspn(s, "|");
    memset(in, 0, sizeof *in);
    in->ne[0] = in->ne[1] = in->ne[2] = in->ne[3] = 1;
    if (*s == '-') {
        in->null = true;
    } else {
        const size_t n = strcspn(s, ":");
        parse_type(s, n, &in->type);
        s += n;
        for (int d = 0; d < 4 && *s == (d == 0 ? ':' : ','); ++d) {
            char * next;
            in->ne[d] = strtoll(s + 1, &next, 10);
            s = next;
        }
        const bool transposed = strncmp(s, ":transposed", 11) == 0, strided = strncmp(s, ":strided", 8) == 0;
        in->layout = transposed ? TRANSPOSED : strided ? GAPS : PACKED;
        in->param = strncmp(s, ":param", 6) == 0;
    }
    return *end ? end + 1 : NULL;
}

static int make_inputs(const char * s, struct gcuda_tensor ** t, struct input * in) {
    int n = 0;
    for (; s != NULL; ++n) {
        s = parse_input(s, &in[n]);
        t[n] = in[n].null ? NULL : make_input(ctx, in[n].type, in[n].ne, in[n].layout);
        if (t[n] && in[n].param) { gcuda_set_param(t[n]); }
        CHECK_MSG(t[n] != NULL || in[n].null, "input %d cannot be made: %s", n, gcuda_last_error());
    }
    return n;
}

// =====================================================================================================================
// >>constructors   one function each, with parameters that fit the good inputs of the table
// =====================================================================================================================
#define BUILD(ident, call)                                                                                        \
    static struct gcuda_tensor * b_##ident(struct gcuda_context * c, struct gcuda_tensor ** in, const void * p) { \
        (void) p, (void) in;                                                                                      \
        return call;                                                                                              \
    }
static const int64_t image_size[4] = { 8, 7, 2, 2 };
#define ONE(name) BUILD(name, gcuda_##name(c, in[0]))
#define TWO(name) BUILD(name, gcuda_##name(c, in[0], in[1]))
#define THREE(name) BUILD(name, gcuda_##name(c, in[0], in[1], in[2]))

// clang-format off
#define FLOAT_FUNCTIONS(X) /* one input, any float */ \
    X(sqr) X(sqr_inplace) X(sqrt) X(sqrt_inplace) X(log) X(log_inplace) X(sin) X(sin_inplace) X(cos) X(cos_inplace) \
    X(sum_rows) X(mean) X(soft_max) X(soft_max_inplace)
#define UNARY_FUNCTIONS(X) \
    X(abs) X(abs_inplace) X(sgn) X(sgn_inplace) X(neg) X(neg_inplace) X(step) X(step_inplace) X(tanh) X(tanh_inplace) \
    X(elu) X(elu_inplace) X(relu) X(relu_inplace) X(sigmoid) X(sigmoid_inplace) X(gelu) X(gelu_inplace) X(gelu_erf) \
    X(gelu_erf_inplace) X(gelu_quick) X(gelu_quick_inplace) X(silu) X(silu_inplace) X(exp) X(exp_inplace) X(expm1) \
    X(expm1_inplace) X(softplus) X(softplus_inplace) X(floor) X(floor_inplace) X(ceil) X(ceil_inplace) X(round) \
    X(round_inplace) X(trunc) X(trunc_inplace) X(hardswish) X(hardsigmoid)
#define GLU_FUNCTIONS(X) \
    X(reglu) X(reglu_swapped) X(geglu) X(geglu_swapped) X(swiglu) X(swiglu_swapped) X(geglu_erf) X(geglu_erf_swapped) \
    X(geglu_quick) X(geglu_quick_swapped)
// clang-format on
#define PAIRS(X) /* two inputs, floats of one shape (the second may repeat in the first) */ \
    X(add) X(add_inplace) X(sub) X(sub_inplace) X(mul) X(mul_inplace) X(div) X(div_inplace)
#define SPLITS(X) X(reglu_split) X(geglu_split) X(swiglu_split) X(geglu_erf_split) X(geglu_quick_split)

FLOAT_FUNCTIONS(ONE)
UNARY_FUNCTIONS(ONE)
GLU_FUNCTIONS(ONE)
PAIRS(TWO)
SPLITS(TWO)
// clang-format off
ONE(dup) ONE(dup_inplace) ONE(cont) ONE(transpose) ONE(sum) ONE(cumsum) ONE(argmax) ONE(diag)
TWO(add1) TWO(add1_inplace) TWO(reshape) TWO(repeat) TWO(repeat_back) TWO(cpy) TWO(get_rows) TWO(silu_back)
TWO(count_equal) TWO(cross_entropy_loss) TWO(mul_mat) TWO(out_prod) TWO(ssm_conv)
THREE(get_rows_back) THREE(set_rows) THREE(add_id) THREE(cross_entropy_loss_back) THREE(opt_step_sgd) THREE(mul_mat_id)
BUILD(opt_step_adamw, gcuda_opt_step_adamw(c, in[0], in[1], in[2], in[3], in[4]))
BUILD(unary, gcuda_unary(c, in[0], GCUDA_UNARY_OP_RELU))
BUILD(unary_inplace, gcuda_unary_inplace(c, in[0], GCUDA_UNARY_OP_RELU))
BUILD(xielu, gcuda_xielu(c, in[0], 1, 1, 1, 1))
BUILD(glu, gcuda_glu(c, in[0], GCUDA_GLU_OP_REGLU, false))
BUILD(glu_split, gcuda_glu_split(c, in[0], in[1], GCUDA_GLU_OP_REGLU))
BUILD(swiglu_oai, gcuda_swiglu_oai(c, in[0], in[1], 1.7f, 7))
BUILD(norm, gcuda_norm(c, in[0], 1e-5f))
BUILD(norm_inplace, gcuda_norm_inplace(c, in[0], 1e-5f))
BUILD(rms_norm, gcuda_rms_norm(c, in[0], 1e-5f))
BUILD(rms_norm_inplace, gcuda_rms_norm_inplace(c, in[0], 1e-5f))
BUILD(l2_norm, gcuda_l2_norm(c, in[0], 1e-5f))
BUILD(l2_norm_inplace, gcuda_l2_norm_inplace(c, in[0], 1e-5f))
BUILD(group_norm, gcuda_group_norm(c, in[0], 2, 1e-5f))
BUILD(group_norm_inplace, gcuda_group_norm_inplace(c, in[0], 2, 1e-5f))
BUILD(rms_norm_back, gcuda_rms_norm_back(c, in[0], in[1], 1e-5f))
BUILD(scale, gcuda_scale(c, in[0], 2))
BUILD(scale_inplace, gcuda_scale_inplace(c, in[0], 2))
BUILD(scale_bias, gcuda_scale_bias(c, in[0], 2, 1))
BUILD(scale_bias_inplace, gcuda_scale_bias_inplace(c, in[0], 2, 1))
BUILD(clamp, gcuda_clamp(c, in[0], -1, 1))
BUILD(leaky_relu, gcuda_leaky_relu(c, in[0], 0.1f, false))
BUILD(fill, gcuda_fill(c, in[0], 1))
BUILD(fill_inplace, gcuda_fill_inplace(c, in[0], 1))
BUILD(tri, gcuda_tri(c, in[0], GCUDA_TRI_TYPE_LOWER))
BUILD(diag_mask_inf, gcuda_diag_mask_inf(c, in[0], 1))
BUILD(diag_mask_inf_inplace, gcuda_diag_mask_inf_inplace(c, in[0], 1))
BUILD(diag_mask_zero, gcuda_diag_mask_zero(c, in[0], 1))
BUILD(diag_mask_zero_inplace, gcuda_diag_mask_zero_inplace(c, in[0], 1))
BUILD(concat, gcuda_concat(c, in[0], in[1], 1))
BUILD(acc, gcuda_acc(c, in[0], in[1], 32, 128, 128, 0))
BUILD(acc_inplace, gcuda_acc_inplace(c, in[0], in[1], 32, 128, 128, 0))
BUILD(set, gcuda_set(c, in[0], in[1], 32, 128, 128, 0))
BUILD(set_inplace, gcuda_set_inplace(c, in[0], in[1], 32, 128, 128, 0))
BUILD(set_1d, gcuda_set_1d(c, in[0], in[1], 4))
BUILD(set_2d, gcuda_set_2d(c, in[0], in[1], 32, 0))
BUILD(pad, gcuda_pad(c, in[0], 1, 0, 0, 0))
BUILD(pad_circular, gcuda_pad_circular(c, in[0], 1, 0, 0, 0))
BUILD(pad_reflect_1d, gcuda_pad_reflect_1d(c, in[0], 1, 1))
BUILD(roll, gcuda_roll(c, in[0], 1, 0, 0, 0))
BUILD(timestep_embedding, gcuda_timestep_embedding(c, in[0], 8, 100))
BUILD(argsort, gcuda_argsort(c, in[0], GCUDA_SORT_ORDER_ASC))
BUILD(top_k, gcuda_top_k(c, in[0], 3))
BUILD(argsort_top_k, gcuda_argsort_top_k(c, in[0], 3))
BUILD(add_cast, gcuda_add_cast(c, in[0], in[1], GCUDA_TYPE_F32))
BUILD(cast, gcuda_cast(c, in[0], GCUDA_TYPE_F16))
BUILD(cont_2d, gcuda_cont_2d(c, in[0], 16, 2))
BUILD(reshape_1d, gcuda_reshape_1d(c, in[0], 32))
BUILD(reshape_3d, gcuda_reshape_3d(c, in[0], 4, 4, 2))
BUILD(repeat_4d, gcuda_repeat_4d(c, in[0], 16, 4, 1, 1))
BUILD(view_1d, gcuda_view_1d(c, in[0], 32, 0))
BUILD(view_2d, gcuda_view_2d(c, in[0], 8, 4, 32, 0))
BUILD(permute, gcuda_permute(c, in[0], 0, 2, 1, 3))
BUILD(soft_max_ext, gcuda_soft_max_ext(c, in[0], in[1], 1, 0))
BUILD(soft_max_ext_inplace, gcuda_soft_max_ext_inplace(c, in[0], in[1], 1, 0))
BUILD(soft_max_ext_back, gcuda_soft_max_ext_back(c, in[0], in[1], 1, 0))
BUILD(soft_max_ext_back_inplace, gcuda_soft_max_ext_back_inplace(c, in[0], in[1], 1, 0))
BUILD(flash_attn_ext, gcuda_flash_attn_ext(c, in[0], in[1], in[2], in[3], 1, 0, 0))
BUILD(flash_attn_ext_back, gcuda_flash_attn_ext_back(c, in[0], in[1], in[2], in[3], in[4], in[5], in[6], 1, 0, 0))
BUILD(flash_attn_ext_back_part,
    gcuda_flash_attn_ext_back_part(c,
        gcuda_flash_attn_ext_back(c, in[0], in[1], in[2], in[3], in[4], in[5], in[6], 1, 0, 0),
        GCUDA_FLASH_ATTN_GRAD_V))
BUILD(rope, gcuda_rope(c, in[0], in[1], 8, 0))
BUILD(rope_inplace, gcuda_rope_inplace(c, in[0], in[1], 8, 0))
BUILD(rope_ext, gcuda_rope_ext(c, in[0], in[1], in[2], 8, 0, 0, 10000, 1, 0, 1, 0, 0))
BUILD(rope_ext_back, gcuda_rope_ext_back(c, in[0], in[1], in[2], 8, 0, 0, 10000, 1, 0, 1, 0, 0))
BUILD(im2col, gcuda_im2col(c, in[0], in[1], 1, 1, 0, 0, 1, 1, true, GCUDA_TYPE_F32))
BUILD(im2col_3d, gcuda_im2col_3d(c, in[0], in[1], 3, 1, 1, 1, 0, 0, 0, 1, 1, 1, GCUDA_TYPE_F32))
BUILD(conv_1d, gcuda_conv_1d(c, in[0], in[1], 1, 0, 1))
BUILD(conv_2d, gcuda_conv_2d(c, in[0], in[1], 1, 1, 0, 0, 1, 1))
BUILD(conv_2d_direct, gcuda_conv_2d_direct(c, in[0], in[1], 1, 1, 0, 0, 1, 1))
BUILD(conv_2d_dw_direct, gcuda_conv_2d_dw_direct(c, in[0], in[1], 1, 1, 0, 0, 1, 1))
BUILD(conv_transpose_1d, gcuda_conv_transpose_1d(c, in[0], in[1], 1, 0, 1))
BUILD(pool_2d, gcuda_pool_2d(c, in[0], GCUDA_OP_POOL_MAX, 2, 2, 1, 1, 0, 0))
BUILD(upscale, gcuda_upscale(c, in[0], 2, GCUDA_SCALE_MODE_NEAREST))
BUILD(interpolate, gcuda_interpolate(c, in[0], 9, 9, 1, 1, GCUDA_SCALE_MODE_BILINEAR))
BUILD(ssm_scan, gcuda_ssm_scan(c, in[0], in[1], in[2], in[3], in[4], in[5], in[6]))
BUILD(rwkv_wkv6, gcuda_rwkv_wkv6(c, in[0], in[1], in[2], in[3], in[4], in[5]))
BUILD(rwkv_wkv7, gcuda_rwkv_wkv7(c, in[0], in[1], in[2], in[3], in[4], in[5], in[6]))
BUILD(gated_linear_attn, gcuda_gated_linear_attn(c, in[0], in[1], in[2], in[3], in[4], 1))
BUILD(solve_tri, gcuda_solve_tri(c, in[0], in[1], true, true, false))
// no inputs, or any
BUILD(new_tensor_1d, gcuda_new_tensor_1d(c, GCUDA_TYPE_F32, 8))
BUILD(new_tensor_2d, gcuda_new_tensor_2d(c, GCUDA_TYPE_F32, 8, 4))
BUILD(new_tensor_3d, gcuda_new_tensor_3d(c, GCUDA_TYPE_F32, 8, 4, 2))
BUILD(new_tensor_4d, gcuda_new_tensor_4d(c, GCUDA_TYPE_F32, 8, 4, 2, 3))
BUILD(new_tensor, gcuda_new_tensor(c, GCUDA_TYPE_F32, 1, image_size))
BUILD(arange, gcuda_arange(c, 0, 4, 1))
ONE(dup_tensor) ONE(view_tensor)
// the same operation by other names, or with more or fewer numbers
BUILD(cont_1d, gcuda_cont_1d(c, in[0], 32))
BUILD(cont_3d, gcuda_cont_3d(c, in[0], 4, 4, 2))
BUILD(cont_4d, gcuda_cont_4d(c, in[0], 4, 2, 2, 2))
BUILD(reshape_2d, gcuda_reshape_2d(c, in[0], 16, 2))
BUILD(reshape_4d, gcuda_reshape_4d(c, in[0], 4, 2, 2, 2))
BUILD(view_3d, gcuda_view_3d(c, in[0], 8, 2, 2, 32, 64, 0))
BUILD(view_4d, gcuda_view_4d(c, in[0], 4, 2, 2, 2, 16, 32, 64, 0))
BUILD(set_1d_inplace, gcuda_set_1d_inplace(c, in[0], in[1], 4))
BUILD(set_2d_inplace, gcuda_set_2d_inplace(c, in[0], in[1], 32, 0))
BUILD(pad_ext, gcuda_pad_ext(c, in[0], 1, 0, 0, 1, 0, 0, 0, 0))
BUILD(pad_ext_circular, gcuda_pad_ext_circular(c, in[0], 1, 0, 0, 1, 0, 0, 0, 0))
BUILD(upscale_ext, gcuda_upscale_ext(c, in[0], 9, 9, 1, 1, GCUDA_SCALE_MODE_NEAREST))
BUILD(rope_ext_inplace, gcuda_rope_ext_inplace(c, in[0], in[1], in[2], 8, 0, 0, 10000, 1, 0, 1, 0, 0))
BUILD(rope_custom, gcuda_rope_custom(c, in[0], in[1], 8, 0, 0, 10000, 1, 0, 1, 0, 0))
BUILD(rope_custom_inplace, gcuda_rope_custom_inplace(c, in[0], in[1], 8, 0, 0, 10000, 1, 0, 1, 0, 0))
static const int rope_sections[4] = { 2, 1, 1, 0 };
BUILD(rope_multi, gcuda_rope_multi(c, in[0], in[1], in[2], 8, rope_sections, 8, 0, 10000, 1, 0, 1, 0, 0))
BUILD(rope_multi_inplace,
    gcuda_rope_multi_inplace(c, in[0], in[1], in[2], 8, rope_sections, 8, 0, 10000, 1, 0, 1, 0, 0))
BUILD(rope_multi_back, gcuda_rope_multi_back(c, in[0], in[1], in[2], 8, rope_sections, 8, 0, 10000, 1, 0, 1, 0, 0))
BUILD(conv_1d_ph, gcuda_conv_1d_ph(c, in[0], in[1], 1, 1))
BUILD(conv_1d_dw, gcuda_conv_1d_dw(c, in[0], in[1], 1, 0, 1))
BUILD(conv_1d_dw_ph, gcuda_conv_1d_dw_ph(c, in[0], in[1], 1, 1))
BUILD(conv_2d_dw, gcuda_conv_2d_dw(c, in[0], in[1], 1, 1, 0, 0, 1, 1))
BUILD(conv_2d_s1_ph, gcuda_conv_2d_s1_ph(c, in[0], in[1]))
BUILD(conv_2d_sk_p0, gcuda_conv_2d_sk_p0(c, in[0], in[1]))
BUILD(conv_3d, gcuda_conv_3d(c, in[0], in[1], 3, 1, 1, 1, 0, 0, 0, 1, 1, 1))
BUILD(conv_transpose_2d_p0, gcuda_conv_transpose_2d_p0(c, in[0], in[1], 1))
BUILD(im2col_back, gcuda_im2col_back(c, in[0], in[1], image_size, 1, 1, 0, 0, 1, 1, true))
BUILD(pool_1d, gcuda_pool_1d(c, in[0], GCUDA_OP_POOL_MAX, 2, 2, 0))
BUILD(pool_2d_back, gcuda_pool_2d_back(c, in[0], in[1], GCUDA_OP_POOL_MAX, 2, 2, 1, 1, 0, 0))
// clang-format on

static void callback1(struct gcuda_tensor * y, const struct gcuda_tensor * a, int ith, int nth, void * user) {
    (void) y, (void) a, (void) ith, (void) nth, (void) user;
}
static void callback2(struct gcuda_tensor * y, const struct gcuda_tensor * a, const struct gcuda_tensor * b, int ith,
    int nth, void * user) {
    (void) b;
    callback1(y, a, ith, nth, user);
}
static void callback3(struct gcuda_tensor * y, const struct gcuda_tensor * a, const struct gcuda_tensor * b,
    const struct gcuda_tensor * c, int ith, int nth, void * user) {
    (void) b, (void) c;
    callback1(y, a, ith, nth, user);
}
static void callback(struct gcuda_tensor * y, int ith, int nth, void * user) { callback1(y, NULL, ith, nth, user); }
static const struct gcuda_custom_params callbacks = { callback, NULL, NULL, 0 };
BUILD(map_custom1, gcuda_map_custom1(c, in[0], callback1, 1, NULL))
BUILD(map_custom1_inplace, gcuda_map_custom1_inplace(c, in[0], callback1, 1, NULL))
BUILD(map_custom2, gcuda_map_custom2(c, in[0], in[1], callback2, 1, NULL))
BUILD(map_custom2_inplace, gcuda_map_custom2_inplace(c, in[0], in[1], callback2, 1, NULL))
BUILD(map_custom3, gcuda_map_custom3(c, in[0], in[1], in[2], callback3, 1, NULL))
BUILD(map_custom3_inplace, gcuda_map_custom3_inplace(c, in[0], in[1], in[2], callback3, 1, NULL))
BUILD(custom_4d, gcuda_custom_4d(c, GCUDA_TYPE_F32, 8, 4, 1, 1, in, 2, callback, 1, NULL))
BUILD(custom_inplace, gcuda_custom_inplace(c, in[0], in + 1, 1, callback, 1, NULL))
BUILD(custom_4d_ext, gcuda_custom_4d_ext(c, GCUDA_TYPE_F32, 8, 4, 1, 1, in, 2, &callbacks))
BUILD(custom_inplace_ext, gcuda_custom_inplace_ext(c, in[0], in + 1, 1, &callbacks))

struct ctor {
    const char *name, *op; // op: what the message must contain
    build_fn build;
    const char * good;
    int n_required;
    const char * bad[10];
};

#define FLOAT_ROW_AS(n, op) { #n, op, b_##n, "F32:8,4", 1, { "I32:8,4", "Q4_0:32,4", "I8:8,4" } },
#define FLOAT_ROW(n) FLOAT_ROW_AS(n, NULL)
#define UNARY_ROW(n) FLOAT_ROW_AS(n, "unary")
#define GLU_ROW(n) FLOAT_ROW_AS(n, "glu")
#define PAIR_ROW(n)                                                                                         \
    { #n, NULL, b_##n, "F32:8,4|F32:8,4", 2,                                                                \
        { "F32:8,4|F32:5,4", "F32:8,4|F32:8,3", "F32:8,4|F32:8,4,2", "F32:8,4|F32:16,4", "F32:8,4|I32:8,4", \
            "I32:8,4|I32:8,4", "F32:8,4|Q4_0:32,4", "I64:8,4|F32:8,4" } },
#define SPLIT_ROW(n)                                                                                           \
    { #n, "glu", b_##n, "F32:8,4|F32:8,4", 2,                                                                  \
        { "F32:8,4|F32:4,4", "F32:8,4|F32:8,4,2", "F32:8,4|I32:8,4", "I32:8,4|I32:8,4", "Q4_0:32,4|Q4_0:32,4", \
            "F32:8,4:transposed|F32:8,4" } },
#define NORM_ROW(n) { #n, NULL, b_##n, "F32:8,4", 1, { "I32:8,4", "Q4_0:32,4", "F32:8,4:transposed" } },
#define MOVE_ROW(n, op) { #n, op, b_##n, "F32:8,4", 1, { "Q4_0:32,4" } }, // any plain type
#define ANY_ROW(n) { #n, NULL, b_##n, "F32:8,4", 1, { NULL } },
#define NO_INPUT(n) { #n, NULL, b_##n, "-", 0, { NULL } },
#define CUSTOM_ROW(n, good, n_required) { #n, "custom", b_##n, good, n_required, { NULL } }, // any shapes and types
#define HEADS "F32:4,2,6" // [head size, heads, tokens]

static const struct ctor ctors[] = {
    FLOAT_FUNCTIONS(FLOAT_ROW) UNARY_FUNCTIONS(UNARY_ROW) GLU_FUNCTIONS(GLU_ROW) PAIRS(PAIR_ROW) SPLITS(SPLIT_ROW)
        ANY_ROW(dup) ANY_ROW(dup_inplace) ANY_ROW(cont) ANY_ROW(transpose) ANY_ROW(view_1d) ANY_ROW(view_2d)
            ANY_ROW(permute) FLOAT_ROW(sum) FLOAT_ROW(cumsum) FLOAT_ROW(unary) FLOAT_ROW(unary_inplace) UNARY_ROW(xielu)
                FLOAT_ROW(glu) FLOAT_ROW(scale) FLOAT_ROW(scale_inplace) FLOAT_ROW_AS(scale_bias, "scale")
                    FLOAT_ROW_AS(scale_bias_inplace, "scale") FLOAT_ROW(clamp) FLOAT_ROW(leaky_relu) FLOAT_ROW(fill)
                        FLOAT_ROW(fill_inplace) FLOAT_ROW(diag_mask_inf) FLOAT_ROW(diag_mask_inf_inplace)
                            FLOAT_ROW(diag_mask_zero) FLOAT_ROW(diag_mask_zero_inplace) MOVE_ROW(pad, NULL)
                                MOVE_ROW(pad_circular, "pad") MOVE_ROW(pad_reflect_1d, NULL) MOVE_ROW(roll, NULL)
                                    FLOAT_ROW(norm) NORM_ROW(norm_inplace) FLOAT_ROW(rms_norm)
                                        NORM_ROW(rms_norm_inplace) FLOAT_ROW(l2_norm) NORM_ROW(l2_norm_inplace)
                                            NORM_ROW(group_norm) NORM_ROW(group_norm_inplace){ "argmax", NULL, b_argmax,
                                                "F32:8,4", 1, { "I32:8,4", "F32:8,4,2", "F32:8,4:transposed" } },
    { "diag", NULL, b_diag, "F32:8", 1, { "F32:8,4", "Q4_0:32" } },
    { "tri", NULL, b_tri, "F32:8,8", 1, { "F32:8,4", "I32:8,8" } },
    { "argsort", NULL, b_argsort, "F32:8,4", 1, { "I32:8,4", "Q4_0:32,4" } },
    { "top_k", NULL, b_top_k, "F32:8,4", 1, { "I32:8,4", "F32:2,4" } },
    { "argsort_top_k", "top_k", b_argsort_top_k, "F32:8,4", 1, { "F32:2,4" } },
    { "timestep_embedding", NULL, b_timestep_embedding, "F32:5", 1, { "F16:5", "F32:5,2" } },
    { "cast", "cpy", b_cast, "F32:8,4", 1, { NULL } },
    { "cont_2d", "cont", b_cont_2d, "F32:8,4", 1, { "F32:8,3", "F32:9,4" } },
    { "reshape", NULL, b_reshape, "F32:8,4|F32:4,8", 2, { "F32:8,4|F32:8,5", "F32:8,4:transposed|F32:8,4" } },
    { "reshape_1d", "reshape", b_reshape_1d, "F32:8,4", 1, { "F32:8,5", "F32:8,4:transposed" } },
    { "reshape_3d", "reshape", b_reshape_3d, "F32:8,4", 1, { "F32:8,5", "F32:8,4:strided" } },
    { "repeat", NULL, b_repeat, "F32:4,2|F32:8,4", 2,
        { "F32:4,2|F32:9,4", "F32:4,2|F32:8,3", "F32:8,4|F32:4,2", "Q4_0:32,2|F32:64,4" } },
    { "repeat_4d", "repeat", b_repeat_4d, "F32:8,4", 1, { "F32:7,4", "F32:8,4,2", "F32:32,4" } },
    { "repeat_back", NULL, b_repeat_back, "F32:8,4|F32:4,2", 2,
        { "F32:9,4|F32:4,2", "F32:4,2|F32:8,4", "I32:8,4|F32:4,2" } },
    { "concat", NULL, b_concat, "F32:8,4|F32:8,2", 2, { "F32:8,4|F32:7,2", "F32:8,4|F32:8,2,2", "F32:8,4|F16:8,2" } },
    { "cpy", NULL, b_cpy, "F32:8,4|F16:4,8", 2,
        { "F32:8,4|F32:8,3", "I32:32,4|Q4_0:32,4", "Q4_0:32,4|I32:32,4", "F32:32,4|IQ2_XXS:256,1",
            "Q4_0:32,8:strided|Q8_K:256,1", "Q4_K:256,1|Q8_0:32,8:strided" } },
    { "add1", NULL, b_add1, "F32:8,4|F32:1", 2, { "F32:8,4|F32:8", "F32:8,4|I32:1", "I32:8,4|I32:1" } },
    { "add1_inplace", "add1", b_add1_inplace, "F32:8,4|F32:1", 2, { "F32:8,4|F32:2" } },
    { "add_cast", "add", b_add_cast, "F16:8,4|F32:8,4", 2,
        { "F16:8,4|F32:5,4", "F16:8,4|F32:4,4", "F32:8,4|F32:8,4" } },
    { "add_id", NULL, b_add_id, "F32:8,2,4|F32:8,5|I32:2,4", 3,
        { "F32:8,2,4|F32:7,5|I32:2,4", "F32:8,2,4|F32:8,5|I32:3,4", "F32:8,2,4|F32:8,5|I32:2,3",
            "F32:8,2,4|F32:8,5|F32:2,4", "F32:8,2,4,2|F32:8,5|I32:2,4" } },
    { "acc", NULL, b_acc, "F32:8,4|F32:8,4", 2,
        { "F32:8,4|F32:9,4", "F32:8,4|F32:8,5", "I32:8,4|I32:8,4", "F32:8,4|I32:8,4", "F32:8,4:transposed|F32:8,4" } },
    { "acc_inplace", "acc", b_acc_inplace, "F32:8,4|F32:8,4", 2, { "F32:8,4|F32:8,5" } },
    { "set", NULL, b_set, "F32:8,4|F32:8,4", 2,
        { "F32:8,4|F32:9,4", "F32:8,4|F32:8,5", "F32:8,4|I32:8,4", "F32:8,4:transposed|F32:8,4" } },
    { "set_inplace", "set", b_set_inplace, "F32:8,4|F32:8,4", 2, { "F32:8,4|F32:8,5", "F32:8,4|F16:8,4" } },
    { "set_1d", "set", b_set_1d, "F32:8,4|F32:8", 2, { "F32:8,4|F32:40", "F32:8,4|F32:32" } },
    { "set_2d", "set", b_set_2d, "F32:8,4|F32:8,2", 2, { "F32:8,4|F32:8,5" } },
    { "get_rows", NULL, b_get_rows, "F32:8,4|I32:3", 2,
        { "F32:8,4|F32:3", "F32:8,4|I64:3", "F32:8,4,2|I32:3", "F32:8,4,2,3|I32:5,2,2", "F32:8,4|I32:3,1,1,2" } },
    { "get_rows_back", NULL, b_get_rows_back, "F32:8,3|I32:3|F32:8,4", 3,
        { "F32:8,3|I32:4|F32:8,4", "F32:8,3|F32:3|F32:8,4", "F32:8,3|I32:3|F32:7,4", "I32:8,3|I32:3|F32:8,4",
            "F32:8,3|I32:3|F32:8,4,2" } },
    { "set_rows", NULL, b_set_rows, "F32:8,4|F32:8,2|I64:2", 3,
        { "F32:8,4|F32:7,2|I64:2", "F32:8,4|F32:8,2|I64:3", "F32:8,4|F32:8,2|F32:2", "F32:8,4,2|F32:8,2,3|I64:2",
            "F32:8,4,3|F32:8,2,3|I64:2,2", "F32:8,4|I32:8,2|I64:2", "F32:8,4:transposed|F32:8,2|I64:2" } },
    { "silu_back", NULL, b_silu_back, "F32:8,4|F32:8,4", 2, { "F32:8,4|F32:8,3", "I32:8,4|I32:8,4" } },
    { "rms_norm_back", NULL, b_rms_norm_back, "F32:8,4|F32:8,4", 2, { "F32:8,4|F32:8,3", "I32:8,4|I32:8,4" } },
    { "count_equal", NULL, b_count_equal, "I32:8,4|I32:8,4", 2,
        { "I32:8,4|I32:8,3", "F32:8,4|F32:8,4", "I32:8,4|I64:8,4" } },
    { "cross_entropy_loss", NULL, b_cross_entropy_loss, "F32:8,4|F32:8,4", 2,
        { "F32:8,4|F32:8,3", "F32:8,4|I32:8,4", "I32:8,4|F32:8,4" } },
    { "cross_entropy_loss_back", NULL, b_cross_entropy_loss_back, "F32:1|F32:8,4|F32:8,4", 3,
        { "F32:2|F32:8,4|F32:8,4", "F32:1|F32:8,4|F32:8,3", "F32:1|I32:8,4|F32:8,4" } },
    { "opt_step_adamw", NULL, b_opt_step_adamw, "F32:8,4:param|F32:8,4|F32:8,4|F32:8,4|F32:7", 5,
        { "F32:8,4|F32:8,4|F32:8,4|F32:8,4|F32:7", "F32:8,4:param|F32:8,3|F32:8,4|F32:8,4|F32:7",
            "F32:8,4:param|F32:8,4|F32:8,5|F32:8,4|F32:7", "F32:8,4:param|F32:8,4|F32:8,4|F32:4,8|F32:7",
            "F32:8,4:param|F32:8,4|F32:8,4|F32:8,4|F32:6", "F32:8,4:param|I32:8,4|F32:8,4|F32:8,4|F32:7" } },
    { "opt_step_sgd", NULL, b_opt_step_sgd, "F32:8,4:param|F32:8,4|F32:2", 3,
        { "F32:8,4|F32:8,4|F32:2", "F32:8,4:param|F32:8,3|F32:2", "F32:8,4:param|F32:8,4|F32:3",
            "F32:8,4:param|F16:8,4|F32:2" } },
    { "swiglu_oai", "glu", b_swiglu_oai, "F32:8,4|F32:8,4", 2, { "F32:8,4|F32:8,3", "I32:8,4|I32:8,4" } },
    { "glu_split", "glu", b_glu_split, "F32:8,4|F32:8,4", 2, { "F32:8,4|F32:8,3", "F32:8,4|I32:8,4" } },
    { "mul_mat", NULL, b_mul_mat, "F32:8,4|F32:8,3", 2,
        { "F32:8,4|F32:7,3", "F32:8,4,2|F32:8,3,3", "F32:8,4,1,2|F32:8,3,1,3", "F32:8,4:transposed|F32:8,3",
            "I32:8,4|F32:8,3", "F32:8,4|I32:8,3", "F32:8,4,4|F32:8,3,2" } },
    { "mul_mat_id", NULL, b_mul_mat_id, "F32:8,4,5|F32:8,1,3|I32:2,3", 3,
        { "F32:8,4,5|F32:7,1,3|I32:2,3", "F32:8,4,5|F32:8,1,3|I32:2,4", "F32:8,4,5|F32:8,1,3|F32:2,3",
            "F32:8,4,5|F32:8,3,3|I32:2,3", "F32:8,4,5,2|F32:8,1,3|I32:2,3", "F32:8,4,5|F32:8,1,3|I32:2,3,2" } },
    { "out_prod", NULL, b_out_prod, "F32:8,4|F32:6,4", 2,
        { "F32:8,4|F32:6,3", "F32:8,4,2|F32:6,4,3", "I32:8,4|F32:6,4" } },
    { "soft_max_ext", "soft_max", b_soft_max_ext, "F32:8,4|F32:8,4", 1,
        { "F32:8,4|F32:7,4", "F32:8,4|F32:8,3", "F32:8,4|I32:8,4", "F32:8,4,3|F32:8,4,2", "F32:8,4|F32:8,4:transposed",
            "I32:8,4|F32:8,4" } },
    { "soft_max_ext_inplace", "soft_max", b_soft_max_ext_inplace, "F32:8,4|F32:8,4", 1, { "F32:8,4|F32:7,4" } },
    { "soft_max_ext_back", "soft_max_back", b_soft_max_ext_back, "F32:8,4|F32:8,4", 2,
        { "F32:8,4|F32:8,3", "I32:8,4|I32:8,4" } },
    { "soft_max_ext_back_inplace", "soft_max_back", b_soft_max_ext_back_inplace, "F32:8,4|F32:8,4", 2,
        { "F32:8,4|F32:8,3" } },
    { "flash_attn_ext_back", NULL, b_flash_attn_ext_back,
        "F32:16,3,4|F16:16,5,2|F16:32,5,2|F32:32,4,3|F32:32,4,3|F16:5,3|F32:4", 5,
        { "F32:16,3,4|F16:8,5,2|F16:32,5,2|F32:32,4,3|F32:32,4,3|F16:5,3|F32:4",
            "F32:16,3,4|F16:16,5,2|F16:32,5,2|F32:32,4,2|F32:32,4,3|F16:5,3|F32:4",
            "F32:16,3,4|F16:16,5,2|F16:32,5,2|F32:32,4,3|F32:32,3,4|F16:5,3|F32:4",
            "F32:16,3,4|F16:16,5,2|F16:32,5,2|I32:32,4,3|F32:32,4,3|F16:5,3|F32:4",
            "F32:16,3,4|F16:16,5,2|F16:32,5,2|F32:32,4,3|I32:32,4,3|F16:5,3|F32:4",
            "F32:16,3,4|F16:16,5,2|Q8_0:32,5,2|F32:32,4,3|F32:32,4,3|F16:5,3|F32:4",
            "F32:16,3,4|F16:16,5,2|F16:32,5,2|F32:32,4,3|F32:32,4,3|F16:5,2|F32:4",
            "F32:16,3,4|F16:16,5,2|F16:32,5,2|F32:32,4,3|F32:32,4,3|F16:5,3|F32:3" } },
    { "flash_attn_ext_back_part", "flash_attn_ext_back", b_flash_attn_ext_back_part,
        "F32:16,3,4|F16:16,5,2|F16:32,5,2|F32:32,4,3|F32:32,4,3|F16:5,3|F32:4", 5,
        { "F32:16,3,4|F16:16,5,2|F16:32,5,2|F32:32,4,3|F32:32,4,3|F16:5,3|F32:3" } },
    { "flash_attn_ext", NULL, b_flash_attn_ext, "F32:16,3,4|F16:16,5,2|F16:16,5,2|F16:5,3", 3,
        { "F32:16,3,4|F16:8,5,2|F16:16,5,2|F16:5,3", "F32:16,3,4|F16:16,5,3|F16:16,5,2|F16:5,3",
            "F32:16,3,4|F16:16,5,2|F16:16,6,2|F16:5,3", "F32:16,3,4|F16:16,5,2|F16:16,5,2|F16:4,3",
            "F32:16,3,4|F16:16,5,2|F16:16,5,2|F16:5,2", "F32:16,3,4|F16:16,5,2|F16:16,5,2|I32:5,3",
            "F16:16,3,4|F16:16,5,2|F16:16,5,2|I32:5,3", "F32:16,3,4|I32:16,5,2|I32:16,5,2|F16:5,3",
            "F32:16,3,4,2|F16:16,5,2|F16:16,5,2|F16:5,3" } },
    { "rope", NULL, b_rope, "F32:8,2,6|I32:6", 2,
        { "F32:8,2,6|I32:5", "F32:8,2,6|F32:6", "F32:6,2,6|I32:6", "I32:8,2,6|I32:6", "F32:8,2,6|I32:6,2" } },
    { "rope_inplace", "rope", b_rope_inplace, "F32:8,2,6|I32:6", 2, { "F32:8,2,6|I32:5" } },
    { "rope_ext", "rope", b_rope_ext, "F32:8,2,6|I32:6|F32:4", 2,
        { "F32:8,2,6|I32:6|F32:3", "F32:8,2,6|I32:6|I32:4", "F32:8,2,6|I32:7|F32:4" } },
    { "rope_ext_back", "rope_back", b_rope_ext_back, "F32:8,2,6|I32:6|F32:4", 2,
        { "F32:8,2,6|I32:6|F32:3", "F32:8,2,6|I32:7|F32:4" } },
    { "im2col", NULL, b_im2col, "F32:3,3,2,4|F32:8,7,2,2", 2,
        { "F32:3,3,2,4|F32:8,7,3,2", "F32:3,3,2,4|F32:2,7,2,2", "F32:3,3,2,4|F32:8,2,2,2",
            "F32:3,3,2,4|I32:8,7,2,2" } },
    { "im2col_3d", NULL, b_im2col_3d, "F32:3,3,3,12|F32:8,7,6,6", 2,
        { "F32:3,3,3,12|F32:8,7,6,7", "F32:3,3,3,12|F32:2,7,6,6", "F32:3,3,3,12|F32:8,7,2,6" } },
    { "conv_1d", "im2col", b_conv_1d, "F16:3,2,4|F32:8,2", 2, { "F16:3,2,4|F32:8,3", "F16:3,2,4|F32:2,2" } },
    { "conv_2d", "im2col", b_conv_2d, "F16:3,3,2,4|F32:8,7,2", 2,
        { "F16:3,3,2,4|F32:8,7,3", "F16:3,3,2,4|F32:2,7,2" } },
    { "conv_2d_direct", "conv_2d", b_conv_2d_direct, "F32:3,3,2,4|F32:8,7,2,2", 2,
        { "F32:3,3,2,4|F32:8,7,3,2", "F32:3,3,2,4|I32:8,7,2,2", "I32:3,3,2,4|F32:8,7,2,2" } },
    { "conv_2d_dw_direct", "conv_2d_dw", b_conv_2d_dw_direct, "F32:3,3,1,4|F32:8,7,4,2", 2,
        { "F32:3,3,1,4|F32:8,7,3,2", "F32:3,3,2,4|F32:8,7,4,2", "I32:3,3,1,4|F32:8,7,4,2" } },
    { "conv_transpose_1d", NULL, b_conv_transpose_1d, "F32:3,4,2|F32:8,2", 2,
        { "F32:3,4,2|F32:8,3", "F32:3,4,2|F32:8,2,2", "F32:3,4,2,2|F32:8,2", "I32:3,4,2|F32:8,2" } },
    { "conv_transpose_2d_p0", "conv_transpose_2d", b_conv_transpose_2d_p0, "F16:3,3,4,2|F32:8,7,2", 2,
        { "F16:3,3,4,2|F32:8,7,3", "I32:3,3,4,2|F32:8,7,2" } },
    { "pool_2d", NULL, b_pool_2d, "F32:8,7,2", 1, { "F32:1,7,2", "F32:8,1,2", "I32:8,7,2" } },
    { "upscale", NULL, b_upscale, "F32:8,7", 1, { "I32:8,7", "Q4_0:32,2" } },
    { "interpolate", "upscale", b_interpolate, "F32:8,7", 1, { "I32:8,7" } },
    { "ssm_conv", NULL, b_ssm_conv, "F32:7,8,2|F32:4,8", 2,
        { "F32:7,8,2|F32:4,9", "F32:2,8,2|F32:4,8", "I32:7,8,2|F32:4,8", "F32:7,8,2:strided|F32:4,8" } },
    { "ssm_scan", NULL, b_ssm_scan, "F32:4,2,6,3|F32:2,6,5,3|F32:6,5,3|F32:1,6|F32:4,2,5,3|F32:4,2,5,3|I32:3", 7,
        { "F32:5,2,6,3|F32:2,6,5,3|F32:6,5,3|F32:1,6|F32:4,2,5,3|F32:4,2,5,3|I32:3",
            "F32:4,2,6,3|F32:3,6,5,3|F32:6,5,3|F32:1,6|F32:4,2,5,3|F32:4,2,5,3|I32:3",
            "F32:4,2,6,3|F32:2,6,5,3|F32:6,4,3|F32:1,6|F32:4,2,5,3|F32:4,2,5,3|I32:3",
            "F32:4,2,6,3|F32:2,6,5,3|F32:6,5,3|F32:2,6|F32:4,2,5,3|F32:4,2,5,3|I32:3",
            "F32:4,2,6,3|F32:2,6,5,3|F32:6,5,3|F32:1,6|F32:4,4,5,3|F32:4,4,5,3|I32:3",
            "F32:4,2,6,3|F32:2,6,5,3|F32:6,5,3|F32:1,6|F32:4,2,5,3|F32:4,3,5,3|I32:3",
            "F32:4,2,6,3|F32:2,6,5,3|F32:6,5,3|F32:1,6|F32:4,2,5,3|F32:4,2,5,3|F32:3",
            "F32:4,2,6,3|F32:2,6,5,3|F32:6,5,3|F32:1,6|F32:4,2,5,3|F32:4,2,5,3|I32:2" } },
    { "rwkv_wkv6", NULL, b_rwkv_wkv6, HEADS "|" HEADS "|" HEADS "|F32:4,2|" HEADS "|F32:32,3", 6,
        { HEADS "|F32:4,2,5|" HEADS "|F32:4,2|" HEADS "|F32:32,3",
            HEADS "|" HEADS "|" HEADS "|F32:4,3|" HEADS "|F32:32,3",
            HEADS "|" HEADS "|" HEADS "|F32:4,2|" HEADS "|F32:32,4" } },
    { "rwkv_wkv7", NULL, b_rwkv_wkv7, HEADS "|" HEADS "|" HEADS "|" HEADS "|" HEADS "|" HEADS "|F32:32,3", 7,
        { HEADS "|F32:4,3,6|" HEADS "|" HEADS "|" HEADS "|" HEADS "|F32:32,3",
            HEADS "|" HEADS "|" HEADS "|" HEADS "|" HEADS "|" HEADS "|F32:32,4" } },
    { "gated_linear_attn", NULL, b_gated_linear_attn, HEADS "|" HEADS "|" HEADS "|" HEADS "|F32:32,3", 5,
        { HEADS "|" HEADS "|F32:4,2,5|" HEADS "|F32:32,3", HEADS "|" HEADS "|" HEADS "|" HEADS "|F32:32,4",
            "I32:4,2,6|" HEADS "|" HEADS "|" HEADS "|F32:32,3" } },
    { "solve_tri", NULL, b_solve_tri, "F32:8,8|F32:3,8", 2,
        { "F32:8,7|F32:3,8", "F32:8,8|F32:3,7", "F32:8,8,2|F32:3,8,3", "I32:8,8|F32:3,8" } },
    NO_INPUT(new_tensor) NO_INPUT(new_tensor_1d) NO_INPUT(new_tensor_2d) NO_INPUT(new_tensor_3d) NO_INPUT(new_tensor_4d)
        NO_INPUT(arange) ANY_ROW(dup_tensor)
            ANY_ROW(view_tensor){ "cont_1d", "cont", b_cont_1d, "F32:8,4", 1, { "F32:8,3", "F32:9,4" } },
    { "cont_3d", "cont", b_cont_3d, "F32:8,4", 1, { "F32:8,3", "F32:9,4" } },
    { "cont_4d", "cont", b_cont_4d, "F32:8,4", 1, { "F32:8,3", "F32:9,4" } },
    { "reshape_2d", "reshape", b_reshape_2d, "F32:8,4", 1, { "F32:8,5", "F32:8,4:transposed" } },
    { "reshape_4d", "reshape", b_reshape_4d, "F32:8,4", 1, { "F32:8,5", "F32:8,4:strided" } },
    { "view_3d", "view", b_view_3d, "F32:8,4", 1, { "F32:8,3", "F16:8,4" } },
    { "view_4d", "view", b_view_4d, "F32:8,4", 1, { "F32:8,3", "F16:8,4" } },
    { "set_1d_inplace", "set", b_set_1d_inplace, "F32:8,4|F32:8", 2, { "F32:8,4|F32:40", "F32:8,4|F32:32" } },
    { "set_2d_inplace", "set", b_set_2d_inplace, "F32:8,4|F32:8,2", 2, { "F32:8,4|F32:8,5", "F32:8,4|I32:8,2" } },
    MOVE_ROW(pad_ext, "pad")
        MOVE_ROW(pad_ext_circular, "pad"){ "upscale_ext", "upscale", b_upscale_ext, "F32:8,7", 1, { "I32:8,7" } },
    { "rope_ext_inplace", "rope", b_rope_ext_inplace, "F32:8,2,6|I32:6|F32:4", 2,
        { "F32:8,2,6|I32:6|F32:3", "F32:8,2,6|I32:7|F32:4" } },
    { "rope_custom", "rope", b_rope_custom, "F32:8,2,6|I32:6", 2, { "F32:8,2,6|I32:5", "I32:8,2,6|I32:6" } },
    { "rope_custom_inplace", "rope", b_rope_custom_inplace, "F32:8,2,6|I32:6", 2, { "F32:8,2,6|F32:6" } },
    { "rope_multi", "rope", b_rope_multi, "F32:8,2,6|I32:24|F32:4", 2,
        { "F32:8,2,6|I32:6|F32:4", "F32:6,2,6|I32:24|F32:4", "F32:8,2,6|F32:24|F32:4", "F32:8,2,6|I32:24|F32:3" } },
    { "rope_multi_inplace", "rope", b_rope_multi_inplace, "F32:8,2,6|I32:24|F32:4", 2, { "F32:8,2,6|I32:6|F32:4" } },
    { "rope_multi_back", "rope_back", b_rope_multi_back, "F32:8,2,6|I32:24|F32:4", 2,
        { "F32:8,2,6|I32:6|F32:4", "I32:8,2,6|I32:24|F32:4" } },
    { "conv_1d_ph", "im2col", b_conv_1d_ph, "F16:3,2,4|F32:8,2", 2, { "F16:3,2,4|F32:8,3", "F16:3,2,4|I32:8,2" } },
    { "conv_1d_dw", "", b_conv_1d_dw, "F16:3,1,2|F32:8,2", 2, { "F16:3,1,2|F32:8,3" } },
    { "conv_1d_dw_ph", "", b_conv_1d_dw_ph, "F16:3,1,2|F32:8,2", 2, { "F16:3,1,2|F32:8,3" } },
    { "conv_2d_dw", "", b_conv_2d_dw, "F16:3,3,1,2|F32:8,7,2", 2, { "F16:3,3,1,2|F32:8,7,3" } },
    { "conv_2d_s1_ph", "im2col", b_conv_2d_s1_ph, "F16:3,3,2,4|F32:8,7,2", 2, { "F16:3,3,2,4|F32:8,7,3" } },
    { "conv_2d_sk_p0", "im2col", b_conv_2d_sk_p0, "F16:3,3,2,4|F32:8,7,2", 2, { "F16:3,3,2,4|F32:8,7,3" } },
    { "conv_3d", "im2col_3d", b_conv_3d, "F16:3,3,3,12|F32:8,7,6,6", 2,
        { "F16:3,3,3,12|F32:8,7,6,7", "F16:3,3,3,12|I32:8,7,6,6" } },
    { "im2col_back", NULL, b_im2col_back, "F32:18,6,5,2|F32:3,3,2,4", 2,
        { "F32:17,6,5,2|F32:3,3,2,4", "F32:18,5,5,2|F32:3,3,2,4", "I32:18,6,5,2|F32:3,3,2,4" } },
    { "pool_1d", NULL, b_pool_1d, "F32:8,7", 1, { "F32:1,7", "I32:8,7" } },
    { "pool_2d_back", NULL, b_pool_2d_back, "F32:7,6,2|F32:8,7,2", 2,
        { "F32:6,6,2|F32:8,7,2", "F32:7,6,2|I32:8,7,2", "I32:7,6,2|F32:8,7,2" } },
    CUSTOM_ROW(map_custom1, "F32:8,4", 1) CUSTOM_ROW(map_custom1_inplace, "F32:8,4", 1)
        CUSTOM_ROW(map_custom2, "F32:8,4|F32:3", 2) CUSTOM_ROW(map_custom2_inplace, "F32:8,4|F32:3", 2)
            CUSTOM_ROW(map_custom3, "F32:8,4|F32:3|I32:5", 3) CUSTOM_ROW(map_custom3_inplace, "F32:8,4|F32:3|I32:5", 3)
                CUSTOM_ROW(custom_4d, "F32:8,4|F32:3", 2) CUSTOM_ROW(custom_inplace, "F32:8,4|F32:3", 2)
                    CUSTOM_ROW(custom_4d_ext, "F32:8,4|F32:3", 2) CUSTOM_ROW(custom_inplace_ext, "F32:8,4|F32:3", 2)
};
#define N_CTORS (sizeof ctors / sizeof ctors[0])

static void shape_text(const struct input * in, char * out, size_t size) {
    snprintf(
        out, size, "[%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64 "]", in->ne[0], in->ne[1], in->ne[2], in->ne[3]);
}

// The operation that a constructor is called after: without _inplace, unless the table says more.
static const char * op_name(const struct ctor * c) {
    static char name[64];
    snprintf(name, sizeof name, "%s", c->op ? c->op : c->name);
    char * tail = strstr(name, "_inplace");
    if (tail) { *tail = '\0'; }
    return name;
}

// The message shows the shape, or at least the number in it that is wrong.
static bool shows(const char * message, const struct input * in, const struct input * good) {
    char text[96];
    shape_text(in, text, sizeof text);
    bool found = strstr(message, text) != NULL;
    for (int d = 0; d < 4; ++d) {
        snprintf(text, sizeof text, "%" PRId64, in->ne[d]);
        found = found || (in->ne[d] != good->ne[d] && strstr(message, text) != NULL);
    }
    return found;
}

static void check_bad(const struct ctor * c, const char * bad) {
    struct gcuda_tensor *t[OP_MAX_IN], *g[OP_MAX_IN];
    struct input in[OP_MAX_IN], good[OP_MAX_IN];
    const int n = make_inputs(bad, t, in);
    const int n_good = make_inputs(c->good, g, good);
    CHECK_EQ_I(n, n_good);
    struct gcuda_tensor * y = c->build(ctx, t, NULL);
    const char * message = gcuda_last_error();
    CHECK_MSG(y == NULL, "%s(%s) is accepted and should not be", c->name, bad);
    for (int k = 0; y == NULL && k < n; ++k) {
        const bool differs =
            in[k].type != good[k].type || in[k].layout != good[k].layout || !same_ne(in[k].ne, good[k].ne);
        CHECK_MSG(!differs || shows(message, &in[k], &good[k]),
            "%s(%s): \"%s\" does not show what is wrong with input %d", c->name, bad, message, k);
    }
    CHECK_MSG(y != NULL || strstr(message, op_name(c)) != NULL, "%s(%s): \"%s\" does not name the operation", c->name,
        bad, message);
    gcuda_context_clear_error(ctx);
}

static void check_null(const struct ctor * c) {
    struct gcuda_tensor * t[OP_MAX_IN];
    struct input in[OP_MAX_IN];
    make_inputs(c->good, t, in);
    CHECK_MSG(c->build(NULL, t, NULL) == NULL, "%s makes a tensor without a context", c->name);
    for (int k = 0; k < c->n_required; ++k) {
        struct gcuda_tensor * kept = t[k];
        t[k] = NULL;
        CHECK_MSG(c->build(ctx, t, NULL) == NULL, "%s accepts NULL as input %d", c->name, k);
        CHECK_MSG(gcuda_last_error()[0] != '\0', "%s says nothing about input %d being NULL", c->name, k);
        t[k] = kept;
        gcuda_context_clear_error(ctx);
    }
    CHECK_MSG(c->build(ctx, t, NULL) != NULL, "%s(%s) is refused: %s", c->name, c->good, gcuda_last_error());
    gcuda_context_clear_error(ctx);
}

TEST(constructors) { // each one is a case
    for (size_t i = 0; i < N_CTORS; ++i) {
        char name[96];
        snprintf(name, sizeof name, "constructors/%s", ctors[i].name);
        if (!test_case_begin(name)) { continue; }
        ctx = op_context();
        CHECK(ctx != NULL);
        if (ctx) {
            check_null(&ctors[i]);
            for (int k = 0; k < 10 && ctors[i].bad[k]; ++k) { check_bad(&ctors[i], ctors[i].bad[k]); }
        }
        gcuda_free(ctx);
        test_case_end();
    }
}

// =====================================================================================================================
// >>parameters   good inputs, bad numbers
// =====================================================================================================================
#define REFUSES(call, ...) CHECK_REFUSED(ctx, call, __VA_ARGS__)
#define NOT_A_NUMBER ((float) NAN)

static bool begin(void) {
    ctx = op_context();
    CHECK(ctx != NULL);
    return ctx != NULL;
}
static void end(void) {
    gcuda_free(ctx);
    ctx = NULL;
}

TEST(parameters_of_movement) {
    if (!begin()) { return; }
    struct gcuda_tensor *a = f32(8, 4), *b = f32(8, 2), *q = make(GCUDA_TYPE_Q4_0, 64, 4, 1, 1);
    REFUSES(gcuda_view_1d(ctx, a, 33, 0), "view", "8, 4, 1, 1");
    REFUSES(gcuda_view_1d(ctx, a, 8, 4 * 25), "view");
    REFUSES(gcuda_view_1d(ctx, a, -1, 0), "view");
    REFUSES(gcuda_view_1d(ctx, a, 4, SIZE_MAX - 3), "view");
    REFUSES(gcuda_view_1d(ctx, a, 4, 2), "view"); // between two elements
    REFUSES(gcuda_view_1d(ctx, q, 16, 0), "view");
    REFUSES(gcuda_view_2d(ctx, a, 8, 4, 36, 0), "view");
    REFUSES(gcuda_view_2d(ctx, a, 8, 2, SIZE_MAX - 3, 0), "view");
    REFUSES(gcuda_view_3d(ctx, a, 1, 2, INT64_MAX, 4, 4, 0), "view");
    REFUSES(gcuda_view_4d(ctx, a, 2, 2, 2, 9, 8, 16, 16, 0), "view");
    REFUSES(gcuda_reshape_1d(ctx, a, 31), "reshape");
    REFUSES(gcuda_reshape_2d(ctx, a, -8, -4), "reshape");
    REFUSES(gcuda_reshape_2d(ctx, a, INT64_C(0x4000000000000000), 32), "reshape"); // 2^67, which is 0 in 64 bits
    REFUSES(gcuda_reshape_4d(ctx, a, 0, 0, 0, 0), "reshape");
    REFUSES(gcuda_permute(ctx, a, 0, 1, 2, 2), "permute");
    REFUSES(gcuda_permute(ctx, a, 0, 1, 2, 4), "permute");
    REFUSES(gcuda_permute(ctx, a, -1, 1, 2, 3), "permute");
    REFUSES(gcuda_concat(ctx, a, b, 4), "concat", "4");
    REFUSES(gcuda_concat(ctx, a, b, -1), "concat", "-1");
    REFUSES(gcuda_concat(ctx, a, b, 0), "concat");
    REFUSES(gcuda_cont_1d(ctx, a, 33), "cont");
    REFUSES(gcuda_repeat_4d(ctx, a, 8, -4, 1, 1), "repeat");
    REFUSES(gcuda_pad(ctx, a, -1, 0, 0, 0), "pad");
    REFUSES(gcuda_pad_ext(ctx, a, 0, 0, -2, 0, 0, 0, 0, 0), "pad");
    REFUSES(gcuda_pad_reflect_1d(ctx, a, 8, 0), "pad_reflect_1d");
    REFUSES(gcuda_pad_reflect_1d(ctx, a, 0, -1), "pad_reflect_1d");
    REFUSES(gcuda_roll(ctx, a, 8, 0, 0, 0), "roll");
    REFUSES(gcuda_roll(ctx, a, 0, -4, 0, 0), "roll");
    REFUSES(gcuda_tri(ctx, f32(4, 4), (enum gcuda_tri_type) 4), "tri");
    REFUSES(gcuda_cast(ctx, a, GCUDA_TYPE_COUNT), "cpy");
    REFUSES(gcuda_cast(ctx, a, GCUDA_TYPE_Q4_0), "cpy");
    end();
}

TEST(parameters_of_regions) { // acc and set: strides and offset must stay inside, and fit their 32-bit slots
    if (!begin()) { return; }
    struct gcuda_tensor *a = f32(8, 4), *b = f32(8, 2);
    CHECK(gcuda_acc(ctx, a, b, 32, 64, 64, 64) != NULL);
    REFUSES(gcuda_acc(ctx, a, b, 32, 64, 64, 68), "acc");
    REFUSES(gcuda_acc(ctx, a, b, 128, 128, 128, 0), "acc");
    REFUSES(gcuda_acc(ctx, a, b, 32, 64, 64, 2), "acc");
    REFUSES(gcuda_acc(ctx, a, b, SIZE_MAX - 31, 64, 64, 64), "acc");
    REFUSES(gcuda_acc(ctx, a, b, (size_t) 1 << 32, 64, 64, 0), "acc");
    REFUSES(gcuda_set(ctx, a, b, 32, 64, 64, (size_t) 1 << 30), "set");
    REFUSES(gcuda_set(ctx, a, b, 32, 64, 64, ((size_t) 1 << 32) + 64), "set");
    REFUSES(gcuda_set_1d(ctx, a, f32(8, 1), 100), "set");
    REFUSES(gcuda_set_2d(ctx, a, b, 128, 0), "set");
    REFUSES(gcuda_set_2d_inplace(ctx, a, b, 32, 96), "set");
    end();
}

TEST(parameters_of_functions) {
    if (!begin()) { return; }
    struct gcuda_tensor *a = f32(8, 4), *t = f32(5, 1);
    REFUSES(gcuda_unary(ctx, a, GCUDA_UNARY_OP_COUNT), "unary", "does not exist");
    REFUSES(gcuda_unary(ctx, a, (enum gcuda_unary_op) - 1), "unary", "-1");
    REFUSES(gcuda_glu(ctx, a, GCUDA_GLU_OP_COUNT, false), "glu", "does not exist");
    REFUSES(gcuda_glu_split(ctx, a, a, (enum gcuda_glu_op) - 1), "glu", "-1");
    REFUSES(gcuda_norm(ctx, a, -1e-5f), "norm", "-1e-05");
    REFUSES(gcuda_rms_norm(ctx, a, NOT_A_NUMBER), "rms_norm", "nan");
    REFUSES(gcuda_l2_norm(ctx, a, -1.0f), "l2_norm", "-1");
    REFUSES(gcuda_rms_norm_back(ctx, a, a, -1.0f), "rms_norm_back", "-1");
    REFUSES(gcuda_group_norm(ctx, a, 0, 1e-5f), "group_norm", "0");
    REFUSES(gcuda_group_norm(ctx, a, -3, 1e-5f), "group_norm", "-3");
    REFUSES(gcuda_clamp(ctx, a, 1.0f, -1.0f), "clamp");
    REFUSES(gcuda_argsort(ctx, a, (enum gcuda_sort_order) 2), "argsort");
    REFUSES(gcuda_top_k(ctx, a, 9), "top_k", "9");
    REFUSES(gcuda_top_k(ctx, a, -1), "top_k", "-1");
    REFUSES(gcuda_timestep_embedding(ctx, t, -8, 100), "timestep_embedding", "-8");
    REFUSES(gcuda_arange(ctx, 0, 0, 1), "arange");
    REFUSES(gcuda_arange(ctx, 3, 1, 1), "arange");
    REFUSES(gcuda_arange(ctx, 0, 10, 0), "arange");
    REFUSES(gcuda_arange(ctx, 0, 10, -1), "arange");
    REFUSES(gcuda_arange(ctx, 0, NOT_A_NUMBER, 1), "arange");
    REFUSES(gcuda_arange(ctx, 0, HUGE_VALF, 1), "arange");
    REFUSES(gcuda_arange(ctx, 0, 3e38f, 1e-30f), "arange");
    end();
}

TEST(promises_about_a_mask) {
    if (!begin()) { return; }
    struct gcuda_tensor *q = make(GCUDA_TYPE_F32, 8, 2, 6, 1), *mask = f32(2, 2), *x = f32(8, 2);
    struct gcuda_tensor *y = gcuda_flash_attn_ext(ctx, q, q, q, mask, 1.0f, 0.0f, 0.0f),
                        *bare = gcuda_flash_attn_ext(ctx, q, q, q, NULL, 1.0f, 0.0f, 0.0f);
    CHECK_OK(gcuda_flash_attn_ext_set_n_kv_max(y, 7));
    CHECK(gcuda_flash_attn_ext_set_n_kv_max(y, -1) == GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_HAS(gcuda_last_error(), "-1");
    CHECK_EQ_I(y->op_params[4], 7); // as before
    CHECK(gcuda_flash_attn_ext_set_n_kv_max(bare, 7) == GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_HAS(gcuda_last_error(), "no mask");
    CHECK_EQ_I(bare->op_params[4], 0);
    CHECK_OK(gcuda_flash_attn_ext_set_n_kv_max(bare, 0));
    CHECK(gcuda_flash_attn_ext_set_n_kv_max(x, 1) == GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK(gcuda_flash_attn_ext_set_n_kv_max(NULL, 1) == GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_OK(gcuda_flash_attn_ext_set_n_kv_max(y, 0));
    end();
}

TEST(parameters_of_attention) {
    if (!begin()) { return; }
    struct gcuda_tensor *a = f32(8, 4), *pos = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_I32, 6);
    struct gcuda_tensor *x = make(GCUDA_TYPE_F32, 8, 2, 6, 1), *pos4 = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_I32, 24);
    int none[4] = { 0, 0, 0, 0 }, many[4] = { 5, 5, 0, 0 };
    REFUSES(gcuda_soft_max_ext(ctx, a, NULL, 1.0f, 8.0f), "soft_max");
    REFUSES(gcuda_soft_max_ext_back(ctx, a, f32(8, 3), 1.0f, 0.0f), "soft_max_back");
    REFUSES(gcuda_flash_attn_ext(ctx, x, x, x, NULL, 1.0f, 8.0f, 0.0f), "flash_attn_ext");
    REFUSES(gcuda_flash_attn_ext_back(ctx, x, x, x, x, x, NULL, NULL, 1.0f, 8.0f, 0.0f), "flash_attn_ext_back");
    REFUSES(gcuda_flash_attn_ext_back_part(ctx, x, GCUDA_FLASH_ATTN_GRAD_Q), "flash_attn_ext_back_part");
    REFUSES(gcuda_flash_attn_ext_back_part(ctx, NULL, GCUDA_FLASH_ATTN_GRAD_Q), "flash_attn_ext_back_part");
    REFUSES(gcuda_rope(ctx, x, pos, 7, 0), "rope", "7");
    REFUSES(gcuda_rope(ctx, x, pos, 10, 0), "rope", "10");
    REFUSES(gcuda_rope(ctx, x, pos, -2, 0), "rope", "-2");
    REFUSES(gcuda_rope(ctx, x, pos, 8, 1), "rope", "1");
    // positions of one plane only
    REFUSES(gcuda_rope_multi(ctx, x, pos, NULL, 8, many, 8, 0, 10000, 1, 0, 1, 0, 0), "rope");
    REFUSES(gcuda_rope_multi(ctx, x, pos4, NULL, 8, none, 8, 0, 10000, 1, 0, 1, 0, 0), "rope");
    REFUSES(gcuda_rope_multi(ctx, x, pos4, NULL, 8, many, 8, 0, 10000, 1, 0, 1, 0, 0), "rope");
    end();
}

TEST(parameters_of_images) {
    if (!begin()) { return; }
    struct gcuda_tensor *k = make(GCUDA_TYPE_F32, 3, 3, 2, 4), *x = make(GCUDA_TYPE_F32, 8, 7, 2, 1);
    struct gcuda_tensor *k1 = make(GCUDA_TYPE_F32, 3, 4, 2, 1), *x1 = f32(8, 2), *dw = make(GCUDA_TYPE_F32, 3, 3, 1, 2);
    REFUSES(gcuda_im2col(ctx, k, x, 0, 1, 0, 0, 1, 1, true, GCUDA_TYPE_F32), "im2col");
    REFUSES(gcuda_im2col(ctx, k, x, 1, -1, 0, 0, 1, 1, true, GCUDA_TYPE_F32), "im2col");
    REFUSES(gcuda_im2col(ctx, k, x, 1, 1, 0, 0, 0, 1, true, GCUDA_TYPE_F32), "im2col");
    REFUSES(gcuda_im2col(ctx, k, x, 1, 1, 0, 0, 4, 1, true, GCUDA_TYPE_F32), "im2col"); // nothing left of the width
    REFUSES(gcuda_im2col(ctx, k, x, 1, 1, 0, 0, INT32_MAX, 1, true, GCUDA_TYPE_F32), "im2col");
    REFUSES(gcuda_im2col(ctx, k, x, 1, 1, 0, 0, 1, 1, true, GCUDA_TYPE_Q4_0), "im2col");
    REFUSES(gcuda_conv_2d_direct(ctx, k, x, 0, 1, 0, 0, 1, 1), "conv_2d");
    REFUSES(gcuda_conv_2d_dw_direct(ctx, dw, x, 1, 0, 0, 0, 1, 1), "conv_2d_dw");
    REFUSES(gcuda_conv_transpose_1d(ctx, k1, x1, 1, 1, 1), "conv_transpose_1d");
    REFUSES(gcuda_conv_transpose_1d(ctx, k1, x1, 1, 0, 2), "conv_transpose_1d");
    REFUSES(gcuda_conv_transpose_1d(ctx, k1, x1, 0, 0, 1), "conv_transpose_1d");
    REFUSES(gcuda_conv_transpose_2d_p0(ctx, make(GCUDA_TYPE_F16, 3, 3, 4, 2), x, 0), "conv_transpose_2d");
    REFUSES(gcuda_pool_2d(ctx, x, (enum gcuda_op_pool) 2, 2, 2, 1, 1, 0, 0), "pool_2d");
    REFUSES(gcuda_pool_2d(ctx, x, GCUDA_OP_POOL_AVG, 0, 2, 1, 1, 0, 0), "pool_2d");
    REFUSES(gcuda_pool_2d(ctx, x, GCUDA_OP_POOL_AVG, 2, 2, 1, 0, 0, 0), "pool_2d");
    REFUSES(gcuda_pool_2d(ctx, x, GCUDA_OP_POOL_AVG, 2, 2, 1, 1, NOT_A_NUMBER, 0), "pool_2d");
    REFUSES(gcuda_pool_2d(ctx, x, GCUDA_OP_POOL_AVG, 2, 2, 1, 1, 3e38f, 0), "pool_2d");
    REFUSES(gcuda_upscale(ctx, x, 0, GCUDA_SCALE_MODE_NEAREST), "upscale");
    REFUSES(gcuda_interpolate(ctx, x, 4, 4, -2, 1, GCUDA_SCALE_MODE_NEAREST), "upscale");
    REFUSES(gcuda_interpolate(ctx, x, 4, 4, 2, 1, 7), "upscale");
    // antialias needs bilinear
    REFUSES(gcuda_interpolate(ctx, x, 4, 4, 2, 1, (uint32_t) GCUDA_SCALE_MODE_NEAREST | 0x200u), "upscale");
    REFUSES(gcuda_solve_tri(ctx, f32(8, 8), f32(3, 8), false, true, false), "solve_tri");
    REFUSES(gcuda_solve_tri(ctx, f32(8, 8), f32(3, 8), true, false, false), "solve_tri");
    REFUSES(gcuda_solve_tri(ctx, f32(8, 8), f32(3, 8), true, true, true), "solve_tri");
    end();
}

// Well-formed, but nothing that the CPU can do: the backend says no, and a graph with such a node is refused by its
// name.
TEST(unsupported_nodes) {
    static const char * const pairs[] = { "F32:256|IQ2_XXS:256", "F32:256|IQ1_M:256", "Q8_0:32,8|IQ3_S:256",
        "IQ2_XS:256|IQ2_S:256", "I8:32|Q4_0:32", "Q4_0:32,4|I32:32,4" };
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0] && op_backends_ready(); ++i) {
        struct gcuda_tensor * t[OP_MAX_IN];
        struct input in[OP_MAX_IN];
        if (!begin()) { return; }
        make_inputs(pairs[i], t, in);
        struct gcuda_tensor * y = gcuda_cpy(ctx, t[0], t[1]);
        if (y != NULL) { // the constructor may refuse it already
            op_check_unsupported(ctx, y);
        } else {
            CHECK_HAS(gcuda_last_error(), "cpy");
        }
        end();
    }
}

// =====================================================================================================================
// >>hostile sizes   products that overflow, whichever operation makes them
// =====================================================================================================================
#define HUGE_N (INT64_C(1) << 40)

TEST(hostile_tensors) {
    if (!begin()) { return; }
    static const int64_t shapes[][4] = { { -1, 1, 1, 1 }, { 1, -1, 1, 1 }, { 1, 1, 1, INT64_MIN },
        { INT64_MAX, 1, 1, 1 }, { INT64_MAX / 4, 2, 1, 1 }, { HUGE_N, HUGE_N, 1, 1 },
        { INT64_C(1) << 32, INT64_C(1) << 32, 1, 1 }, { 65536, 65536, 65536, 65536 }, { 0, HUGE_N, HUGE_N, 1 },
        { INT64_C(3037000500), INT64_C(3037000500), 1, 1 } };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; ++i) {
        struct gcuda_tensor * t = gcuda_new_tensor(ctx, GCUDA_TYPE_F32, 4, shapes[i]);
        CHECK_MSG(t == NULL || (i == 8 && gcuda_nbytes(t) == 0), "shape %d is accepted", (int) i);
        CHECK(t != NULL || strlen(gcuda_last_error()) > 0);
        gcuda_context_clear_error(ctx);
    }
    static const int64_t one[5] = { 1, 1, 1, 1, 1 };
    REFUSES(gcuda_new_tensor(ctx, GCUDA_TYPE_F32, 0, one), "0");
    REFUSES(gcuda_new_tensor(ctx, GCUDA_TYPE_F32, 5, one), "5");
    REFUSES(gcuda_new_tensor(ctx, (enum gcuda_type) 4, 1, one), "4");
    char no_type[16];
    snprintf(no_type, sizeof no_type, "%d", (int) GCUDA_TYPE_COUNT);
    REFUSES(gcuda_new_tensor(ctx, GCUDA_TYPE_COUNT, 1, one), no_type);
    REFUSES(gcuda_new_tensor(ctx, (enum gcuda_type) - 1, 1, one), "-1");
    REFUSES(gcuda_new_tensor(ctx, GCUDA_TYPE_F32, 1, NULL), "");
    REFUSES(gcuda_new_tensor_1d(ctx, GCUDA_TYPE_Q4_0, 33), "33", "32");
    REFUSES(gcuda_new_tensor_2d(ctx, GCUDA_TYPE_Q4_K, 128, 4), "128", "256");
    REFUSES(gcuda_new_tensor_2d(ctx, GCUDA_TYPE_Q6_K, INT64_C(256) << 48, 1 << 8), "too large");
    end();
}

TEST(hostile_results) { // every source is fine, the result would not be
    if (!begin()) { return; }
    struct gcuda_tensor *big = f32(1, HUGE_N), *row = f32(HUGE_N, 1), *one = f32(1, 1);
    struct gcuda_tensor *ids = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_I32, HUGE_N),
                        *bytes = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_I8, INT64_C(1) << 62);
    CHECK(big && row && one && ids && bytes);
    REFUSES(gcuda_mul_mat(ctx, big, big), "mul_mat");
    REFUSES(gcuda_out_prod(ctx, row, row), "out_prod");
    REFUSES(gcuda_get_rows(ctx, row, ids), "get_rows");
    REFUSES(gcuda_diag(ctx, row), "diag");
    REFUSES(gcuda_concat(ctx, bytes, bytes, 0), "concat");
    REFUSES(gcuda_repeat_4d(ctx, one, HUGE_N, HUGE_N, 1, 1), "repeat");
    REFUSES(gcuda_repeat_4d(ctx, one, INT64_MAX, 1, 1, 1), "repeat");
    REFUSES(gcuda_timestep_embedding(ctx, gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F32, INT64_C(1) << 33), 1 << 30, 100),
        "timestep_embedding");
    REFUSES(gcuda_interpolate(ctx, one, INT64_MAX, 1, 1, 1, GCUDA_SCALE_MODE_NEAREST), "upscale");
    REFUSES(gcuda_interpolate(ctx, one, HUGE_N, HUGE_N, 1, 1, GCUDA_SCALE_MODE_NEAREST), "upscale");
    REFUSES(gcuda_upscale(ctx, make(GCUDA_TYPE_F32, 1 << 20, 1 << 20, 1, 1), INT32_MAX, GCUDA_SCALE_MODE_NEAREST),
        "upscale");
    REFUSES(gcuda_cast(ctx, bytes, GCUDA_TYPE_F32), "");
    REFUSES(gcuda_pad(ctx, make(GCUDA_TYPE_F32, 1, 1 << 30, 1 << 20, 1), INT32_MAX, 0, 0, 0), "pad");
    REFUSES(gcuda_conv_transpose_1d(ctx, make(GCUDA_TYPE_F32, 3, 4, 1, 1), row, INT32_MAX, 0, 1), "conv_transpose_1d");
    REFUSES(gcuda_im2col(ctx, make(GCUDA_TYPE_F32, 1 << 20, 1 << 20, 1, 1), one, 1, 1, 1 << 21, 1 << 21, 1, 1, true,
                GCUDA_TYPE_F32),
        "im2col");
    REFUSES(gcuda_top_k(ctx, one, INT32_MAX), "top_k");
    end();
}

TEST(hostile_nodes) { // made by hand: asked about, never believed
    if (!begin() || !op_backends_ready()) { return; }
    struct rng r = rng_for("hostile_nodes");
    for (size_t i = 0; i < N_CTORS; ++i) {
        for (int round = 0; round < 40; ++round) {
            struct gcuda_tensor * t[OP_MAX_IN];
            struct input in[OP_MAX_IN];
            gcuda_reset(ctx);
            make_inputs(ctors[i].good, t, in);
            struct gcuda_tensor * y = ctors[i].build(ctx, t, NULL);
            if (y == NULL || y->op == GCUDA_OP_NONE) { continue; }
            static const int64_t odd[] = { -1, 0, INT64_MAX, INT64_MIN, HUGE_N, 7 };
            struct gcuda_tensor * victim = rng_below(&r, 2) ? y : y->src[0];
            if (victim == NULL) { victim = y; }
            const int d = (int) rng_below(&r, 4);
            switch (rng_below(&r, 7)) {
                case 0: victim->ne[d] = odd[rng_below(&r, 6)]; break;
                case 1: victim->nb[d] = (size_t) rng_u64(&r); break;
                case 2: victim->type = (enum gcuda_type) rng_below(&r, 45); break;
                case 3: y->op_params[rng_below(&r, 16)] = (int32_t) rng_u64(&r); break;
                case 4: y->src[rng_below(&r, 10)] = rng_below(&r, 2) ? NULL : t[0]; break;
                case 5: y->op = (enum gcuda_op) rng_below(&r, 200); break;
                default: victim->view_src = y, victim->view_offs = (size_t) rng_u64(&r); break;
            }
            (void) gcuda_backend_supports_op(op_backends[0], y); // must come back, whatever it says
        }
    }
    struct gcuda_tensor *a = f32(8, 4), *y = gcuda_rms_norm(ctx, a, 1e-5f);
    REQUIRE(a != NULL && y != NULL);
    y->ne[1] = 5;
    CHECK(!gcuda_backend_supports_op(op_backends[0], y));
    y->ne[1] = 4, y->src[0] = NULL;
    CHECK(!gcuda_backend_supports_op(op_backends[0], y));
    y->src[0] = a, y->op = (enum gcuda_op) 10000;
    CHECK(!gcuda_backend_supports_op(op_backends[0], y));
    end();
}

// =====================================================================================================================
// >>contexts   the first error stays; good work goes on; graphs refuse until it is cleared
// =====================================================================================================================
TEST(context_keeps_the_first_error) {
    if (!begin()) { return; }
    struct gcuda_tensor *a = f32(8, 4), *b = f32(5, 4);
    CHECK_EQ_I(gcuda_context_status(ctx), GCUDA_STATUS_SUCCESS);
    struct gcuda_tensor * bad = gcuda_add(ctx, a, b);
    CHECK(bad == NULL);
    CHECK_EQ_I(gcuda_context_status(ctx), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_HAS(gcuda_context_error(ctx), "add");
    CHECK_HAS(gcuda_context_error(ctx), "[5, 4, 1, 1]");
    CHECK(gcuda_rms_norm(ctx, bad, 1e-5f) == NULL); // passes through
    CHECK(gcuda_rms_norm(ctx, a, -1.0f) == NULL);   // another error, not the first
    CHECK_HAS(gcuda_context_error(ctx), "add");
    struct gcuda_tensor * good = gcuda_mul(ctx, a, a); // goes on working
    CHECK(good != NULL);
    struct gcuda_cgraph * g = gcuda_new_graph(ctx);
    REQUIRE(g != NULL);
    CHECK_EQ_I(gcuda_build_forward_expand(g, good), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_HAS(gcuda_last_error(), "[5, 4, 1, 1]");
    CHECK_EQ_I(gcuda_graph_n_nodes(g), 0);
    gcuda_context_clear_error(ctx);
    CHECK(strcmp(gcuda_context_error(ctx), "") == 0);
    CHECK_OK(gcuda_build_forward_expand(g, good));
    CHECK_EQ_I(gcuda_graph_n_nodes(g), 1);
    end();
}

TEST(null_without_an_error_is_an_error) {
    if (!begin()) { return; }
    CHECK(gcuda_sqr(ctx, NULL) == NULL);
    CHECK_EQ_I(gcuda_context_status(ctx), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_HAS(gcuda_context_error(ctx), "sqr");
    struct gcuda_cgraph * g = gcuda_new_graph(ctx);
    CHECK(g != NULL && gcuda_build_forward_expand(g, NULL) != GCUDA_STATUS_SUCCESS);
    gcuda_context_clear_error(ctx);
    CHECK(gcuda_build_forward_expand(g, NULL) != GCUDA_STATUS_SUCCESS);
    CHECK(gcuda_build_forward_expand(NULL, f32(1, 1)) != GCUDA_STATUS_SUCCESS);
    end();
}

TEST(full_context_and_full_graph) {
    struct gcuda_init_params params;
    memset(&params, 0, sizeof params);
    params.mem_size = 2048;
    params.no_alloc = true;
    ctx = gcuda_init(params);
    REQUIRE(ctx != NULL);
    int n = 0;
    while (n < 100 && f32(2, 2) != NULL) { ++n; }
    CHECK(n > 0 && n < 100);
    CHECK_EQ_I(gcuda_context_status(ctx), GCUDA_STATUS_ALLOC_FAILED);
    struct gcuda_tensor * first = gcuda_get_first_tensor(ctx);
    gcuda_context_clear_error(ctx);
    CHECK(gcuda_sqr(ctx, first) == NULL);
    CHECK_HAS(gcuda_last_error(), "sqr");
    CHECK_EQ_I(gcuda_context_status(ctx), GCUDA_STATUS_ALLOC_FAILED);
    end();

    if (!begin()) { return; }
    struct gcuda_tensor * y = f32(4, 4);
    for (int i = 0; i < 5; ++i) { y = gcuda_sqr(ctx, y); }
    struct gcuda_cgraph * g = gcuda_new_graph_custom(ctx, 3, false);
    REQUIRE(y != NULL && g != NULL);
    CHECK(gcuda_build_forward_expand(g, y) != GCUDA_STATUS_SUCCESS);
    CHECK_EQ_I(gcuda_graph_n_nodes(g), 0); // unchanged
    CHECK_OK(gcuda_build_forward_expand(g, y->src[0]->src[0]));
    CHECK_EQ_I(gcuda_graph_n_nodes(g), 3);
    CHECK(gcuda_new_graph_custom(ctx, SIZE_MAX / 2, false) == NULL);
    gcuda_context_clear_error(ctx);
    end();
}

TEST(flags_and_data) {
    if (!begin() || !op_backends_ready()) { return; }
    struct gcuda_tensor *a = f32(8, 4), *y = gcuda_sqr(ctx, a);
    REQUIRE(y != NULL);
    CHECK(gcuda_set_param(y) != GCUDA_STATUS_SUCCESS);
    CHECK(gcuda_set_loss(y) != GCUDA_STATUS_SUCCESS);
    CHECK_OK(gcuda_set_loss(gcuda_sum(ctx, y)));
    float v[32] = { 0 };
    CHECK(gcuda_backend_tensor_set(a, v, 0, sizeof v) != GCUDA_STATUS_SUCCESS); // no memory yet
    gcuda_backend_buffer_t buf = op_place(ctx);
    REQUIRE(buf != NULL);
    CHECK_OK(gcuda_backend_tensor_set(a, v, 0, sizeof v));
    CHECK(gcuda_backend_tensor_set(a, v, 4, sizeof v) != GCUDA_STATUS_SUCCESS);
    CHECK(gcuda_backend_tensor_set(a, v, SIZE_MAX, 4) != GCUDA_STATUS_SUCCESS);
    CHECK(gcuda_backend_tensor_get(a, v, sizeof v, 4) != GCUDA_STATUS_SUCCESS);
    CHECK(gcuda_backend_tensor_memset(a, 0, 8, SIZE_MAX) != GCUDA_STATUS_SUCCESS);
    // has a place already
    CHECK(gcuda_backend_tensor_alloc(buf, a, gcuda_backend_buffer_get_base(buf)) != GCUDA_STATUS_SUCCESS);
    // is no view
    CHECK(gcuda_backend_view_init(a) != GCUDA_STATUS_SUCCESS);
    // another layout
    CHECK(gcuda_backend_tensor_copy(a, gcuda_view_1d(ctx, a, 8, 0)) != GCUDA_STATUS_SUCCESS);
    gcuda_backend_buffer_free(buf);
    end();
}

TEST(a_graph_without_memory_is_refused) {
    if (!begin() || !op_backends_ready()) { return; }
    struct gcuda_tensor * y = gcuda_sqr(ctx, f32(8, 4));
    struct gcuda_cgraph * g = gcuda_new_graph(ctx);
    REQUIRE(g != NULL && CHECK_OK(gcuda_build_forward_expand(g, y)));
    gcuda_set_name(y, "no_place");
    CHECK(gcuda_backend_graph_compute(op_backends[0], g) != GCUDA_STATUS_SUCCESS);
    CHECK_HAS(gcuda_last_error(), "no_place");
    end();
}

TEST(what_failed_first_is_not_lost) { // by the calls that are given the NULL that it gave
    const struct gcuda_init_params params = { 4096, NULL, true };
    struct gcuda_context * small = gcuda_init(params);
    REQUIRE(small != NULL);
    struct gcuda_tensor * y = gcuda_new_tensor_1d(small, GCUDA_TYPE_F32, 4);
    struct gcuda_cgraph * g = gcuda_new_graph(small); // does not fit
    CHECK(y != NULL && g == NULL);
    CHECK_EQ_I(gcuda_build_forward_expand(g, y), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_HAS(gcuda_last_error(), "graph is NULL");
    CHECK_HAS(gcuda_last_error(), "context is full");
    gcuda_free(small);
    gcuda_clear_last_error();
    CHECK(gcuda_backend_dev_init(gcuda_backend_dev_by_name("TPU7"), NULL) == NULL);
    CHECK_HAS(gcuda_last_error(), "dev_init: device is NULL; the error before: no device 'TPU7'");
    CHECK(gcuda_backend_sched_reserve(gcuda_backend_sched_new(NULL, NULL, 0, 0, false, false), NULL) !=
          GCUDA_STATUS_SUCCESS);
    CHECK_HAS(gcuda_last_error(), "scheduler is NULL; the error before: sched_new: list of backends is NULL");
}

TEST(a_full_context_names_mem_size) { // also one that has no room at all
    for (size_t size = 1; size <= 4096; size *= 8) {
        const struct gcuda_init_params params = { size, NULL, true };
        struct gcuda_context * small = gcuda_init(params);
        REQUIRE(small != NULL);
        CHECK(gcuda_new_graph(small) == NULL);
        CHECK_HAS(gcuda_context_error(small), "context is full");
        CHECK_HAS(gcuda_context_error(small), "mem_size");
        gcuda_free(small);
    }
}

TEST(messages_say_which_one_and_what_helps) {
    if (!begin() || !op_backends_ready()) { return; }
    struct gcuda_cgraph * g = gcuda_new_graph(ctx);
    CHECK(gcuda_backend_graph_compute(NULL, g) != GCUDA_STATUS_SUCCESS);
    CHECK_HAS(gcuda_last_error(), "backend is NULL");
    gcuda_clear_last_error();
    CHECK(gcuda_backend_graph_compute(op_backends[0], NULL) != GCUDA_STATUS_SUCCESS);
    CHECK_HAS(gcuda_last_error(), "graph is NULL");
    CHECK(gcuda_backend_graph_plan_compute(op_backends[0], NULL) != GCUDA_STATUS_SUCCESS);
    CHECK_HAS(gcuda_last_error(), "graph_plan_compute: plan is NULL");
    CHECK(gcuda_graph_compute(g, NULL) != GCUDA_STATUS_SUCCESS);
    CHECK_HAS(gcuda_last_error(), "graph_compute: plan is NULL");
    CHECK(gcuda_backend_tensor_set(NULL, "", 0, 1) != GCUDA_STATUS_SUCCESS);
    CHECK_HAS(gcuda_last_error(), "tensor is NULL");
    gcuda_clear_last_error();
    CHECK(gcuda_backend_sched_new(NULL, NULL, 2, 16, false, true) == NULL);
    CHECK_HAS(gcuda_last_error(), "list of backends is NULL");
    gcuda_clear_last_error();
    CHECK(gcuda_backend_alloc_ctx_tensors(ctx, NULL) == NULL);
    CHECK_HAS(gcuda_last_error(), "backend or buffer type is NULL");
    CHECK(gcuda_backend_alloc_ctx_tensors(NULL, op_backends[0]) == NULL);
    CHECK_HAS(gcuda_last_error(), "context is NULL");
    CHECK(gcuda_set_f32_1d(f32(8, 1), 0, 1.0f) != GCUDA_STATUS_SUCCESS);
    CHECK_HAS(gcuda_last_error(), "allocate its context or its graph first");
    struct gcuda_cgraph * unplaced = gcuda_new_graph_custom(ctx, 8, false);
    CHECK_OK(gcuda_build_forward_expand(unplaced, gcuda_sqr(ctx, f32(8, 1))));
    CHECK(gcuda_backend_graph_compute(op_backends[0], unplaced) != GCUDA_STATUS_SUCCESS);
    CHECK_HAS(gcuda_last_error(), "gcuda_backend_alloc_ctx_tensors");
    CHECK(gcuda_backend_init_by_name("TPU7", NULL) == NULL);
    CHECK_HAS(gcuda_last_error(), "no device 'TPU7'; there are: ");
    CHECK_HAS(gcuda_last_error(), "CPU");
#if !defined(GCUDA_CUDA)
    CHECK_HAS(gcuda_last_error(), "no CUDA backend");
#endif

    struct gcuda_tensor *a = f32(8, 4), *view = gcuda_view_1d(ctx, a, 8, 0);
    float v[8] = { 0 };
    REQUIRE(view != NULL);
    CHECK(gcuda_backend_tensor_set(view, v, 0, sizeof v) != GCUDA_STATUS_SUCCESS);
    CHECK_HAS(gcuda_last_error(), "allocate its owner first");
    gcuda_backend_buffer_t buf = gcuda_backend_alloc_buffer(op_backends[0], gcuda_nbytes(a));
    REQUIRE(buf != NULL);
    CHECK_OK(gcuda_backend_tensor_alloc(buf, a, gcuda_backend_buffer_get_base(buf)));
    CHECK(gcuda_backend_tensor_set(view, v, 0, sizeof v) != GCUDA_STATUS_SUCCESS);
    CHECK_HAS(gcuda_last_error(), "gcuda_backend_view_init");
    CHECK_OK(gcuda_backend_view_init(view));
    CHECK_OK(gcuda_backend_tensor_set(view, v, 0, sizeof v));
    gcuda_backend_buffer_free(buf);
    end();
}

TEST(a_tensor_without_a_name_is_called_by_its_place) {
    if (!begin()) { return; }
    struct gcuda_tensor *x = f32(8, 4), *quantized = gcuda_new_tensor_2d(ctx, GCUDA_TYPE_Q4_0, 32, 4);
    REQUIRE(x != NULL && quantized != NULL);
    x->name[0] = quantized->name[0] = '\0';
    CHECK(gcuda_soft_max(ctx, quantized) == NULL);
    CHECK_HAS(gcuda_context_error(ctx), "type of src0 is q4_0");
    gcuda_context_clear_error(ctx);
    CHECK(gcuda_pad(ctx, quantized, 1, 0, 0, 0) == NULL);
    CHECK_HAS(gcuda_context_error(ctx), "type of src0 [32, 4, 1, 1] is q4_0");
    gcuda_context_clear_error(ctx);
    char byte = 0;
    CHECK(gcuda_backend_tensor_set(x, &byte, 0, 1) != GCUDA_STATUS_SUCCESS); // no memory
    CHECK_HAS(gcuda_last_error(), "an unnamed tensor has no memory yet");
    CHECK(gcuda_set_loss(x) != GCUDA_STATUS_SUCCESS);
    CHECK_HAS(gcuda_last_error(), "an unnamed tensor is NULL or not a scalar");
    CHECK(gcuda_set_loss(NULL) != GCUDA_STATUS_SUCCESS);
    CHECK_HAS(gcuda_last_error(), "the tensor is NULL");
    CHECK(gcuda_reshape_1d(ctx, x, 7) == NULL);
    CHECK_HAS(gcuda_context_error(ctx), "from an unnamed tensor [8, 4, 1, 1]");
    gcuda_context_clear_error(ctx);
    CHECK(gcuda_pad(ctx, x, -1, 0, 0, 0) == NULL);
    CHECK_HAS(gcuda_context_error(ctx), "of an unnamed tensor [8, 4, 1, 1]");
    gcuda_context_clear_error(ctx);
    CHECK(gcuda_view_1d(ctx, x, 100, 0) == NULL);
    CHECK_HAS(gcuda_context_error(ctx), "into an unnamed tensor of 128 bytes");
    gcuda_context_clear_error(ctx);
    CHECK(gcuda_backend_tensor_copy(x, quantized) != GCUDA_STATUS_SUCCESS);
    CHECK_HAS(gcuda_last_error(), "an unnamed tensor and an unnamed tensor");
    CHECK(gcuda_backend_view_init(x) != GCUDA_STATUS_SUCCESS);
    CHECK_HAS(gcuda_last_error(), "an unnamed tensor is NULL, no view");
    end();
}

TEST(nodes_are_checked_without_a_device) {
    if (!begin()) { return; }
    struct gcuda_tensor * y = gcuda_mul_mat(ctx, f32(8, 4), f32(8, 3));
    REQUIRE(y != NULL);
    CHECK_OK(gcuda_check_node(y));
    y->src[1]->ne[0] = 16;
    CHECK(gcuda_check_node(y) == GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_HAS(gcuda_last_error(), "mul_mat");
    CHECK(gcuda_check_node(NULL) == GCUDA_STATUS_INVALID_ARGUMENT);
    end();
}

// ---- a thread of the caller's: its status and message come with the join ----

struct thread_work {
    gcuda_status status;
    const char * message;
    long n_runs;
};
static gcuda_status thread_work(void * user) {
    struct thread_work * w = (struct thread_work *) user;
    ++w->n_runs;
    return w->status == GCUDA_STATUS_SUCCESS ? w->status : gcuda_set_last_error(w->status, w->message);
}

TEST(a_thread_brings_its_error) {
    struct thread_work works[] = {
        { GCUDA_STATUS_SUCCESS, "", 0 },
        { GCUDA_STATUS_IO, "no such file", 0 },
        { GCUDA_STATUS_ABORTED, "stopped", 0 },
    };
    struct gcuda_thread * threads[3];
    gcuda_set_last_error(GCUDA_STATUS_FAILED, "older");
    for (int i = 0; i < 3; ++i) { REQUIRE((threads[i] = gcuda_thread_start(thread_work, &works[i])) != NULL); }
    const int64_t end_us = gcuda_time_us() + 10 * 1000000;
    while (!gcuda_thread_is_done(threads[1]) && gcuda_time_us() < end_us) {}
    CHECK(gcuda_thread_is_done(threads[1]));
    for (int i = 0; i < 3; ++i) {
        CHECK_EQ_I(gcuda_thread_join(threads[i]), works[i].status);
        CHECK_EQ_I(works[i].n_runs, 1);
        CHECK_HAS(gcuda_last_error(), i == 0 ? "older" : works[i].message);
    }
    CHECK(gcuda_thread_start(NULL, NULL) == NULL);
    CHECK_HAS(gcuda_last_error(), "function is NULL");
    CHECK(gcuda_thread_is_done(NULL));
    CHECK(gcuda_thread_join(NULL) == GCUDA_STATUS_INVALID_ARGUMENT);
    struct fault f;
    fault_begin(&f, 1);
    CHECK(gcuda_thread_start(thread_work, &works[0]) == NULL);
    CHECK_EQ_I(f.live, 0);
    fault_end(&f);
    CHECK_EQ_I(works[0].n_runs, 1);
}

static void keep_line(enum gcuda_log_level level, const char * text, void * user) {
    if (level == GCUDA_LOG_LEVEL_DEBUG && strncmp(text, "CPU: ", 5) == 0) { snprintf((char *) user, 256, "%s", text); }
}

TEST(a_backend_says_what_it_computes_with) {
    char line[256] = "";
    gcuda_log_set(keep_line, GCUDA_LOG_LEVEL_DEBUG, line);
    gcuda_backend_t cpu = gcuda_backend_cpu_init();
    gcuda_log_set(NULL, GCUDA_LOG_LEVEL_NONE, NULL);
    CHECK(cpu != NULL);
    CHECK_HAS(line, "threads");
    CHECK_HAS(line, "MiB");
    gcuda_backend_free(cpu);
}

#if !defined(_WIN32)
// What stderr gets while a CPU backend is made, which logs one debug line; GCUDA_LOG=value, NULL: not set.
static void stderr_of_a_backend(const char * value, bool is_allowed, char * text, size_t size) {
    FILE * file = tmpfile();
    REQUIRE(file != NULL);
    (void) (value != NULL ? setenv("GCUDA_LOG", value, 1) : unsetenv("GCUDA_LOG"));
    gcuda_use_environment(is_allowed);
    fflush(stderr);
    const int kept = dup(2);
    REQUIRE(kept >= 0 && dup2(fileno(file), 2) == 2);
    gcuda_backend_free(gcuda_backend_cpu_init());
    fflush(stderr);
    dup2(kept, 2);
    close(kept);
    rewind(file);
    text[fread(text, 1, size - 1, file)] = '\0';
    fclose(file);
    unsetenv("GCUDA_LOG");
    gcuda_use_environment(true);
}

TEST(the_environment_asks_for_a_log) {
    static const struct {
        const char * value;
        bool is_allowed, is_said;
    } cases[] = {
        { NULL, true, false },
        { "debug", true, true },
        { "info", true, false },
        { "error", true, false },
        { "none", true, false },
        { "everything", true, true },
        { "debug", false, false },
    };
    char text[1024], line[256] = "";
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        stderr_of_a_backend(cases[i].value, cases[i].is_allowed, text, sizeof text);
        CHECK(cases[i].is_said == (strncmp(text, "gcuda: debug: CPU: ", 19) == 0));
        CHECK(cases[i].is_said || text[0] == '\0');
    }
    gcuda_log_set(keep_line, GCUDA_LOG_LEVEL_DEBUG, line); // a callback gets all lines
    stderr_of_a_backend("debug", true, text, sizeof text);
    gcuda_log_set(NULL, GCUDA_LOG_LEVEL_NONE, NULL);
    CHECK(text[0] == '\0');
    CHECK_HAS(line, "threads");
}
#endif
