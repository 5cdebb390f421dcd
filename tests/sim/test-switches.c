// Switches that leave kernels out (GCUDA_KERNEL_NO_...): the device refuses what is gone and names the switch, and
// keeps the rest. Here all kernels exist and some switches are set for the implementation. tests/sim/run.py (group
// switches) builds it again with all switches for both (TEST_ALL_SWITCHES) and runs the rest. Each by itself is
// tests/compile/switches.py's.
#if !defined(TEST_ALL_SWITCHES)
#define GCUDA_KERNEL_NO_BF16
#define GCUDA_KERNEL_NO_Q4_0 1
#define GCUDA_KERNEL_NO_IQ_QUANTS
#define GCUDA_KERNEL_NO_CONV
#define GCUDA_KERNEL_NO_RECURRENT
#define GCUDA_KERNEL_NO_ATTENTION
#endif
#define GCUDA_IMPLEMENTATION
#include "sim-test.h"

#if defined(TEST_ALL_SWITCHES)
#if GCUDAI_KERNEL_HAS(Q8_0) || GCUDAI_KERNEL_HAS(Q6_K) || GCUDAI_KERNEL_HAS(RECURRENT) || GCUDAI_KERNEL_HAS(MXFP4)
#error "not all switches are set"
#endif
#elif GCUDAI_KERNEL_HAS(BF16) || GCUDAI_KERNEL_HAS(Q4_0) || GCUDAI_KERNEL_HAS(IQ4_XS) || !GCUDAI_KERNEL_HAS(Q8_0)
#error "a switch set as nothing, as 1, by its group, or not at all"
#endif

// A product of weights of this type: "" or why the device refuses it.
static const char * refusal(gcuda_backend_t backend, enum gcuda_type type) {
    struct place p = place_begin();
    struct gcuda_tensor * w = gcuda_new_tensor_2d(p.ctx, type, 256, 2);
    struct gcuda_tensor * y = gcuda_mul_mat(p.ctx, w, gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, 256, 3));
    gcuda_clear_last_error();
    const bool can = gcuda_backend_supports_op(backend, y);
    place_end(&p);
    return can ? "" : gcuda_last_error();
}

TEST(what_is_left_out_is_refused_by_the_name_of_its_switch) {
    fresh(1, 256 * MB, 1);
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    CHECK(backend != NULL);
    CHECK_HAS(refusal(backend, GCUDA_TYPE_BF16), "GCUDA_KERNEL_NO_BF16 left kernels for bf16");
    CHECK_HAS(refusal(backend, GCUDA_TYPE_Q4_0), "GCUDA_KERNEL_NO_Q4_0 left kernels for q4_0");
    CHECK_HAS(refusal(backend, GCUDA_TYPE_IQ4_XS), "GCUDA_KERNEL_NO_IQ4_XS left kernels for iq4_xs");
    CHECK(refusal(backend, GCUDA_TYPE_F16)[0] == '\0' &&
          (refusal(backend, GCUDA_TYPE_Q8_0)[0] == '\0') == GCUDAI_KERNEL_HAS(Q8_0));
    gcuda_backend_free(backend);
    clean();
}

// A device, and tensors on it.
struct bench {
    gcuda_backend_t backend;
    struct place p;
};
static struct bench bench_begin(void) {
    struct bench b;
    fresh(1, 256 * MB, 1);
    b.backend = gcuda_backend_cuda_init(0);
    b.p = place_begin();
    return b;
}
static void bench_end(struct bench * b) {
    place_end(&b->p);
    gcuda_backend_free(b->backend);
    clean();
}

TEST(sources_count_as_the_result_does) {
    struct bench b = bench_begin();
    struct gcuda_tensor * a = gcuda_new_tensor_1d(b.p.ctx, GCUDA_TYPE_F32, 8);
    CHECK(!gcuda_backend_supports_op(b.backend, gcuda_cast(b.p.ctx, a, GCUDA_TYPE_BF16)));
    CHECK_HAS(gcuda_last_error(), "GCUDA_KERNEL_NO_BF16");
    struct gcuda_tensor * bf16 = gcuda_new_tensor_1d(b.p.ctx, GCUDA_TYPE_BF16, 8);
    CHECK(!gcuda_backend_supports_op(b.backend, gcuda_cast(b.p.ctx, bf16, GCUDA_TYPE_F32)));
    CHECK(gcuda_backend_supports_op(b.backend, gcuda_reshape_2d(b.p.ctx, bf16, 4, 2))); // a view needs no kernel
    CHECK(gcuda_backend_supports_op(b.backend, gcuda_cast(b.p.ctx, a, GCUDA_TYPE_F16)));
    bench_end(&b);
}

TEST(families_of_operations) {
    struct bench b = bench_begin();
    struct gcuda_tensor * a = gcuda_new_tensor_2d(b.p.ctx, GCUDA_TYPE_F32, 64, 8);
    struct gcuda_tensor * w = gcuda_new_tensor_2d(b.p.ctx, GCUDA_TYPE_F32, 4, 64);
    const struct {
        struct gcuda_tensor * y;
        const char * message;
    } cases[] = {
        { gcuda_pool_2d(b.p.ctx, a, GCUDA_OP_POOL_AVG, 2, 2, 2, 2, 0.0f, 0.0f),
            "GCUDA_KERNEL_NO_CONV left this operation" },
        { gcuda_upscale(b.p.ctx, a, 2, GCUDA_SCALE_MODE_NEAREST), "GCUDA_KERNEL_NO_CONV left this operation" },
        { gcuda_ssm_conv(b.p.ctx, gcuda_new_tensor_2d(b.p.ctx, GCUDA_TYPE_F32, 8, 64), w),
            "GCUDA_KERNEL_NO_RECURRENT left" },
        { gcuda_flash_attn_ext(b.p.ctx, a, a, a, NULL, 1.0f, 0.0f, 0.0f),
            "GCUDA_KERNEL_NO_ATTENTION left this operation" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        CHECK_MSG(cases[i].y != NULL, "%s", gcuda_last_error());
        CHECK(!gcuda_backend_supports_op(b.backend, cases[i].y));
        CHECK_HAS(gcuda_last_error(), cases[i].message);
    }
    CHECK(gcuda_backend_supports_op(b.backend, gcuda_soft_max(b.p.ctx, a)));
    bench_end(&b);
}

// ssm_conv and SiLU were one launch, by a pattern that named a launcher that is gone; chains, norms and products still
// fuse.
TEST(what_is_kept_is_computed) {
    struct bench b = bench_begin();
    struct gcuda_tensor * a = gcuda_new_tensor_2d(b.p.ctx, GCUDA_TYPE_F32, 64, 3);
    struct gcuda_tensor * w = gcuda_new_tensor_2d(b.p.ctx, GCUDA_TYPE_F32, 64, 5);
    struct gcuda_tensor * gain = gcuda_new_tensor_1d(b.p.ctx, GCUDA_TYPE_F32, 64);
    struct gcuda_tensor * y = gcuda_mul_mat(b.p.ctx, w, gcuda_mul(b.p.ctx, gcuda_rms_norm(b.p.ctx, a, 1e-6f), gain));
    y = gcuda_scale(b.p.ctx, gcuda_silu(b.p.ctx, y), 2.0f);
    CHECK(place_alloc(&b.p, b.backend));
    float ones[64 * 5];
    for (int i = 0; i < 64 * 5; ++i) { ones[i] = 1.0f; }
    gcuda_backend_tensor_set(a, ones, 0, gcuda_nbytes(a));
    gcuda_backend_tensor_set(w, ones, 0, gcuda_nbytes(w));
    gcuda_backend_tensor_set(gain, ones, 0, gcuda_nbytes(gain));
    struct gcuda_cgraph * graph = gcuda_new_graph(b.p.ctx);
    gcuda_build_forward_expand(graph, y);
    CHECK_MSG(gcuda_backend_graph_compute(b.backend, graph) == GCUDA_STATUS_SUCCESS, "%s", gcuda_last_error());
    float got[15];
    gcuda_backend_tensor_get(y, got, 0, sizeof got);
    for (int i = 0; i < 15; ++i) { CHECK_NEAR(got[i], 128.0, 1e-3); } // 2 silu(64)
    bench_end(&b);
}
