// Prints a checksum per operation of what the CPU computes with the instruction set that GCUDA_CPU_ISA names:
//   isa [names of sets] prints one line per set and operation.
// matrix.py builds it with flags that let compilers contract and compares the lines.
#define GCUDA_IMPLEMENTATION
#include "gcuda.h"

#include <stdio.h>
#include <string.h>

static uint32_t state = 1;
static float next_value(void) {
    state = state * 1664525u + 1013904223u;
    return (float) (state >> 8) / 8388608.0f - 1.0f;
}

static struct gcuda_context * ctx;

static struct gcuda_tensor * in(enum gcuda_type type, int64_t ne0, int64_t ne1, int64_t ne2) {
    static float values[1 << 16];
    struct gcuda_tensor * t = gcuda_new_tensor_3d(ctx, type, ne0, ne1, ne2);
    const int64_t n = ne0 * ne1 * ne2;
    state = (uint32_t) (ne0 * 7 + ne1 * 131 + ne2 * 1009 + (int64_t) type); // arguments are made in any order
    for (int64_t i = 0; i < n; ++i) { values[i] = next_value(); }
    if (type == GCUDA_TYPE_F32) {
        memcpy(t->data, values, (size_t) n * sizeof(float));
    } else if (type == GCUDA_TYPE_F16) {
        gcuda_fp32_to_fp16_row(values, (gcuda_fp16_t *) t->data, n);
    } else if (type == GCUDA_TYPE_BF16) {
        gcuda_fp32_to_bf16_row(values, (gcuda_bf16_t *) t->data, n);
    } else {
        (void) gcuda_quantize_rows(type, values, t->data, n / ne0, ne0, NULL, 1);
    }
    return t;
}

static struct gcuda_tensor * f32(int64_t ne0, int64_t ne1, int64_t ne2) { return in(GCUDA_TYPE_F32, ne0, ne1, ne2); }

static struct gcuda_tensor * positions(int64_t n) {
    struct gcuda_tensor * t = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_I32, n);
    for (int64_t i = 0; i < n; ++i) { ((int32_t *) t->data)[i] = (int32_t) i; }
    return t;
}

static struct gcuda_tensor * with_nan(enum gcuda_type from, enum gcuda_type to) { // payloads of NaN are bits too
    struct gcuda_tensor * x = in(from, 67, 3, 1);
    // little-endian
    const uint32_t bits = from == GCUDA_TYPE_F32 ? 0x7fd12345u : from == GCUDA_TYPE_F16 ? 0x7ed5u : 0x7fd5u;
    memcpy((char *) x->data + 5 * gcuda_type_size(from), &bits, gcuda_type_size(from));
    return gcuda_cast(ctx, x, to);
}

static struct gcuda_tensor * attention(enum gcuda_type type) {
    return gcuda_flash_attn_ext(ctx, f32(96, 5, 4), in(type, 96, 37, 2), in(type, 96, 37, 2), NULL, 0.125f, 0.0f, 0.0f);
}

// Results whose sums are cut by the instruction set
static struct gcuda_tensor * product(int which) {
    static const enum gcuda_type types[] = { GCUDA_TYPE_F32, GCUDA_TYPE_F16, GCUDA_TYPE_BF16, GCUDA_TYPE_Q4_0,
        GCUDA_TYPE_Q4_1, GCUDA_TYPE_Q5_0, GCUDA_TYPE_Q5_1, GCUDA_TYPE_Q8_0, GCUDA_TYPE_Q2_K, GCUDA_TYPE_Q3_K,
        GCUDA_TYPE_Q4_K, GCUDA_TYPE_Q5_K, GCUDA_TYPE_Q6_K, GCUDA_TYPE_IQ4_NL, GCUDA_TYPE_IQ4_XS, GCUDA_TYPE_MXFP4 };
    const int n_types = (int) (sizeof(types) / sizeof(types[0]));
    if (which < 2 * n_types) {
        return gcuda_mul_mat(ctx, in(types[which / 2], 512, 33, 1), f32(512, which % 2 ? 67 : 3, 1));
    }
    switch (which - 2 * n_types) {
        case 0: return gcuda_out_prod(ctx, f32(33, 40, 1), f32(21, 40, 1));
        case 1: return gcuda_conv_2d(ctx, f32(3, 3, 5), f32(17, 19, 5), 1, 1, 1, 1, 1, 1);
        case 2: return gcuda_solve_tri(ctx, f32(16, 16, 1), f32(4, 16, 1), true, true, false);
        default: return NULL;
    }
}

static struct gcuda_tensor * lanes(int which) {
    struct gcuda_tensor * x[6];
    switch (which) {
        case 0: return attention(GCUDA_TYPE_F16);
        case 1: return attention(GCUDA_TYPE_F32);
        case 2: return attention(GCUDA_TYPE_Q8_0);
        case 3: return gcuda_conv_2d_direct(ctx, f32(3, 3, 5), f32(17, 19, 5), 1, 1, 1, 1, 1, 1);
        case 4: return gcuda_conv_2d_dw_direct(ctx, f32(3, 3, 1), f32(17, 19, 1), 1, 1, 1, 1, 1, 1);
        case 5: return gcuda_conv_transpose_2d_p0(ctx, f32(3, 3, 7), f32(9, 8, 1), 2);
        case 6: return gcuda_conv_transpose_1d(ctx, f32(5, 6, 7), f32(33, 7, 1), 2, 0, 1);
        case 7:
            for (int i = 0; i < 6; ++i) { x[i] = f32(64, 2, 9); }
            return gcuda_rwkv_wkv7(ctx, x[0], x[1], x[2], x[3], x[4], x[5], f32(64 * 64 * 2, 1, 1));
        case 8:
            for (int i = 0; i < 5; ++i) { x[i] = f32(64, 2, 9); }
            return gcuda_gated_linear_attn(ctx, x[0], x[1], x[2], x[3], f32(64 * 64 * 2, 1, 1), 1.0f);
        case 9:
            for (int i = 0; i < 5; ++i) { x[i] = f32(64, 2, 9); }
            return gcuda_rwkv_wkv6(ctx, x[0], x[1], x[2], f32(64, 2, 1), x[4], f32(64 * 64 * 2, 1, 1));
        default: return NULL;
    }
}

static struct gcuda_tensor * others(int which) {
    switch (which) {
        case 0: return with_nan(GCUDA_TYPE_F32, GCUDA_TYPE_F16);
        case 1: return with_nan(GCUDA_TYPE_F16, GCUDA_TYPE_F32);
        case 2: return with_nan(GCUDA_TYPE_F32, GCUDA_TYPE_BF16);
        case 3: return with_nan(GCUDA_TYPE_BF16, GCUDA_TYPE_F32);
        case 4: return gcuda_cast(ctx, f32(512, 3, 1), GCUDA_TYPE_Q4_K);
        case 5: return gcuda_cast(ctx, in(GCUDA_TYPE_Q5_1, 512, 3, 1), GCUDA_TYPE_F32);
        case 6: return gcuda_rms_norm(ctx, f32(133, 3, 1), 1e-6f);
        case 7: return gcuda_norm(ctx, f32(133, 3, 1), 1e-6f);
        case 8: return gcuda_group_norm(ctx, f32(13, 3, 8), 4, 1e-6f);
        case 9: return gcuda_soft_max(ctx, f32(133, 3, 1));
        case 10: return gcuda_rope(ctx, f32(64, 2, 5), positions(5), 64, 0);
        case 11: return gcuda_gelu(ctx, f32(133, 3, 1));
        case 12: return gcuda_silu(ctx, f32(133, 3, 1));
        case 13: return gcuda_gelu_erf(ctx, f32(133, 3, 1));
        case 14: return gcuda_swiglu(ctx, f32(134, 3, 1));
        case 15: return gcuda_upscale(ctx, f32(13, 9, 2), 3, GCUDA_SCALE_MODE_BILINEAR);
        case 16: return gcuda_cumsum(ctx, f32(133, 3, 1));
        case 17: return gcuda_cross_entropy_loss(ctx, f32(133, 3, 1), f32(133, 3, 1));
        case 18: return gcuda_scale_bias(ctx, f32(133, 3, 1), 1.1f, 0.3f);
        default: return NULL;
    }
}

// FNV-1a of the result; false at the end of the family
static bool print_sum(const char * isa, const char * family, struct gcuda_tensor * (*make)(int which), int which) {
    const struct gcuda_init_params params = { 0, NULL, false };
    ctx = gcuda_init(params);
    struct gcuda_tensor * y = make(which);
    const bool is_made = y != NULL;
    if (is_made) {
        struct gcuda_cgraph * graph = gcuda_new_graph(ctx);
        gcuda_status st = gcuda_build_forward_expand(graph, y);
        if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_graph_compute_with_ctx(ctx, graph, 2); }
        uint64_t sum = 14695981039346656037ull;
        for (size_t i = 0; i < gcuda_nbytes(y); ++i) {
            sum = (sum ^ ((const uint8_t *) y->data)[i]) * 1099511628211ull;
        }
        printf("%s %s %d %s %016llx%s\n", isa, family, which, gcuda_op_desc(y), (unsigned long long) sum,
            st == GCUDA_STATUS_SUCCESS ? "" : " failed");
    } else if (gcuda_context_error(ctx)[0] != 0) {
        printf("%s %s %d failed: %s\n", isa, family, which, gcuda_context_error(ctx));
    }
    gcuda_free(ctx);
    return is_made;
}

int main(void) {
    static const char * const names[] = { "auto", "scalar", "neon", "dotprod", "avx2", "avx512", "avx512vnni" };
    for (int isa = GCUDA_CPU_ISA_SCALAR; isa < GCUDA_CPU_ISA_COUNT; ++isa) {
        if (gcuda_cpu_set_isa((enum gcuda_cpu_isa) isa) != GCUDA_STATUS_SUCCESS) { continue; }
        for (int i = 0; print_sum(names[isa], "product", product, i); ++i) {}
        for (int i = 0; print_sum(names[isa], "lanes", lanes, i); ++i) {}
        for (int i = 0; print_sum(names[isa], "others", others, i); ++i) {}
    }
    gcuda_shutdown();
    return 0;
}
