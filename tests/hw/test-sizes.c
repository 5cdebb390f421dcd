// Sizes from which an operation takes another path on a device (two-pass rows, products of copies), against the CPU
// backend. They are too large for test-ops, whose references are loops in double. The simulated device runs small ones.
// Sizes suffice for 170 SMs.
#include "gcuda.h"
#include "test.h"

#include <cuda_runtime_api.h> // says whether the device is simulated
#include <math.h>

#if defined(GCUDAI_SIM)
#define SIZE(device, simulated) (simulated)
#else
#define SIZE(device, simulated) (device)
#endif

struct sizes {
    const char * name;
    struct gcuda_tensor * (*build)(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b);
    int64_t a[4], b[4];   // b: 0 if there is none
    enum gcuda_type type; // of a
    float size;           // numbers of the last operand lie between -size and size
    double bound;         // of the squared error, relative
};

static struct gcuda_tensor * norm(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b) {
    (void) b;
    return gcuda_norm(ctx, a, 1e-5f);
}
static struct gcuda_tensor * norm_inplace(
    struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b) {
    (void) b;
    return gcuda_norm_inplace(ctx, a, 1e-5f);
}
static struct gcuda_tensor * group_norm(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b) {
    (void) b;
    return gcuda_group_norm(ctx, a, 8, 1e-5f);
}
static struct gcuda_tensor * cumsum(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b) {
    (void) b;
    return gcuda_cumsum(ctx, a);
}
static struct gcuda_tensor * conv_transpose(
    struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b) {
    return gcuda_conv_transpose_2d_p0(ctx, a, b, 2);
}
static struct gcuda_tensor * conv_transpose_f32(
    struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b) {
    struct gcuda_tensor * y = gcuda_conv_transpose_2d_p0(ctx, a, b, 2);
    gcuda_conv_2d_set_prec(y, GCUDA_PREC_F32);
    return y;
}

// ---- 64 timesteps of a frequency ----
static struct gcuda_tensor * timesteps(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b) {
    (void) b;
    return gcuda_timestep_embedding(ctx, a, 321, 10000);
}

// ---- depthwise convolutions without a special kernel: tiles in shared memory, or four channels of a thread ----
static struct gcuda_tensor * dw_wide(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b) {
    return gcuda_conv_2d_dw_direct(ctx, a, b, 1, 1, 3, 3, 1, 1);
}
// in F16
static struct gcuda_tensor * dw_apart(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b) {
    return gcuda_conv_2d_dw_direct(ctx, a, gcuda_cast(ctx, b, GCUDA_TYPE_F16), 2, 2, 2, 2, 2, 2);
}
static struct gcuda_tensor * dw_channels(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b) {
    return dw_wide(ctx, gcuda_permute(ctx, a, 3, 0, 1, 2), gcuda_permute(ctx, b, 2, 0, 1, 3));
}
// in F16
static struct gcuda_tensor * dw_channels_apart(
    struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b) {
    struct gcuda_tensor * x = gcuda_permute(ctx, gcuda_cast(ctx, b, GCUDA_TYPE_F16), 2, 0, 1, 3);
    return gcuda_conv_2d_dw_direct(ctx, gcuda_permute(ctx, a, 3, 0, 1, 2), x, 1, 1, 2, 2, 2, 2);
}

// ---- patches: tiles of several lines ----
static struct gcuda_tensor * patches(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b) {
    return gcuda_im2col(ctx, a, b, 1, 1, 1, 1, 1, 1, true, GCUDA_TYPE_F16);
}
static struct gcuda_tensor * patches_apart(
    struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b) {
    return gcuda_im2col(ctx, a, b, 2, 2, 1, 1, 1, 1, true, GCUDA_TYPE_F16);
}
static struct gcuda_tensor * patches_f32(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b) {
    return gcuda_im2col(ctx, a, b, 1, 1, 1, 1, 1, 1, true, GCUDA_TYPE_F32);
}

// ---- images: strips of more than four rows, four columns of a thread, two, or one ----
static struct gcuda_tensor * linear(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b) {
    (void) b;
    return gcuda_upscale(ctx, a, 3, GCUDA_SCALE_MODE_BILINEAR);
}
// wider and less high
static struct gcuda_tensor * cubic(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b) {
    (void) b;
    return gcuda_interpolate(ctx, a, a->ne[0] * 3 / 2, a->ne[1] * 2 / 3, a->ne[2], 1, GCUDA_SCALE_MODE_BICUBIC);
}

// ---- positions: several tokens of a block ----
static struct gcuda_tensor * rope(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b) {
    return gcuda_rope(ctx, a, gcuda_cast(ctx, b, GCUDA_TYPE_I32), (int) a->ne[0], GCUDA_ROPE_TYPE_NEOX);
}
// of a row
static struct gcuda_tensor * rope_half(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b) {
    return gcuda_rope(ctx, a, gcuda_cast(ctx, b, GCUDA_TYPE_I32), (int) a->ne[0] / 2, GCUDA_ROPE_TYPE_NORMAL);
}

// ---- rows longer than the cache, more of them than SMs; the gradient is the first label ----
static struct gcuda_tensor * loss_back(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b) {
    return gcuda_cross_entropy_loss_back(ctx, gcuda_view_1d(ctx, b, 1, 0), a, b);
}

#define ROWS_OF(n) \
    { SIZE(n, 20008), SIZE(16, 5), 1, 1 }
static const struct sizes cases[] = {
    { "norm", norm, ROWS_OF(1000008), { 0 }, GCUDA_TYPE_F32, 1.0f, 1e-7 },
    { "norm, in place", norm_inplace, ROWS_OF(1000008), { 0 }, GCUDA_TYPE_F32, 1.0f, 1e-7 },
    { "group_norm", group_norm, { SIZE(512, 60), SIZE(512, 40), 64, 1 }, { 0 }, GCUDA_TYPE_F32, 1.0f, 1e-7 },
    { "group_norm of F16", group_norm, { SIZE(512, 60), SIZE(512, 40), SIZE(128, 64), 1 }, { 0 }, GCUDA_TYPE_F16, 1.0f,
        1e-6 },
    { "cumsum", cumsum, ROWS_OF(1000004), { 0 }, GCUDA_TYPE_F32, 1.0f, 1e-7 },
    { "out_prod", gcuda_out_prod, { SIZE(2300, 40), SIZE(1001, 17), 1, 1 }, { SIZE(2100, 33), SIZE(1001, 17), 1, 1 },
        GCUDA_TYPE_F32, 1.0f, 5e-4 },
    { "conv_transpose_2d", conv_transpose, { 3, 3, SIZE(256, 16), SIZE(64, 32) },
        { SIZE(128, 5), SIZE(128, 4), SIZE(64, 32), 2 }, GCUDA_TYPE_F16, 1.0f, 5e-4 },
    { "conv_transpose_2d of F32", conv_transpose, { 3, 3, SIZE(256, 16), SIZE(64, 32) },
        { SIZE(128, 5), SIZE(128, 4), SIZE(64, 32), 2 }, GCUDA_TYPE_F32, 1e5f, 5e-4 },
    { "conv_transpose_2d in F32", conv_transpose_f32, { 3, 3, SIZE(256, 16), SIZE(64, 32) },
        { SIZE(128, 5), SIZE(128, 4), SIZE(64, 32), 2 }, GCUDA_TYPE_F16, 1e5f, 1e-10 },
    { "repeat_back", gcuda_repeat_back, { SIZE(2056, 40), SIZE(1026, 10), 3, 1 },
        { SIZE(1028, 20), SIZE(513, 5), 1, 1 }, GCUDA_TYPE_F32, 1.0f, 1e-12 },
    { "repeat_back of F16", gcuda_repeat_back, { SIZE(4112, 80), SIZE(1026, 10), 3, 1 },
        { SIZE(2056, 40), SIZE(513, 5), 1, 1 }, GCUDA_TYPE_F16, 1.0f, 1e-8 },
    { "timestep_embedding", timesteps, { SIZE(104900, 70), 1, 1, 1 }, { 0 }, GCUDA_TYPE_F32, 1000.0f, 1e-10 },
    { "conv_2d_dw, in tiles", dw_wide, { 7, 7, 1, SIZE(64, 2) }, { SIZE(112, 70), SIZE(100, 20), SIZE(64, 2), 1 },
        GCUDA_TYPE_F32, 1.0f, 1e-10 },
    { "conv_2d_dw of F16, in tiles", dw_apart, { 3, 3, 1, SIZE(64, 2) },
        { SIZE(150, 70), SIZE(150, 40), SIZE(64, 2), 2 }, GCUDA_TYPE_F16, 1.0f, 1e-8 },
    { "conv_2d_dw, channels innermost", dw_channels, { SIZE(64, 8), 7, 7, 1 },
        { SIZE(64, 8), SIZE(74, 18), SIZE(72, 17), 1 }, GCUDA_TYPE_F32, 1.0f, 1e-10 },
    { "conv_2d_dw of F16, channels innermost", dw_channels_apart, { SIZE(64, 8), 3, 3, 1 },
        { SIZE(64, 8), SIZE(74, 18), SIZE(72, 17), 1 }, GCUDA_TYPE_F16, 1.0f, 1e-8 },
    { "im2col", patches, { 3, 3, SIZE(16, 4), 1 }, { SIZE(28, 12), SIZE(30, 9), SIZE(16, 4), SIZE(160, 3) },
        GCUDA_TYPE_F16, 1.0f, 1e-12 },
    { "im2col, every second", patches_apart, { 3, 3, SIZE(16, 4), 1 },
        { SIZE(57, 17), SIZE(60, 17), SIZE(16, 4), SIZE(160, 3) }, GCUDA_TYPE_F16, 1.0f, 1e-12 },
    { "im2col to F32", patches_f32, { 3, 3, SIZE(16, 4), 1 }, { SIZE(28, 12), SIZE(30, 9), SIZE(16, 4), SIZE(160, 3) },
        GCUDA_TYPE_F16, 1.0f, 1e-12 },
    { "upscale, bilinear", linear, { SIZE(128, 16), SIZE(128, 30), SIZE(64, 4), 1 }, { 0 }, GCUDA_TYPE_F16, 1.0f,
        1e-8 },
    { "upscale, bicubic", cubic, { SIZE(128, 8), SIZE(288, 105), SIZE(128, 4), 1 }, { 0 }, GCUDA_TYPE_F32, 1.0f, 1e-8 },
    { "upscale, bicubic, odd rows", cubic, { SIZE(82, 10), SIZE(384, 105), SIZE(350, 4), 1 }, { 0 }, GCUDA_TYPE_F32,
        1.0f, 1e-8 },
    { "rope", rope, { SIZE(128, 16), 2, SIZE(10001, 13), 2 }, { SIZE(10001, 13), 1, 1, 1 }, GCUDA_TYPE_F32, 1000.0f,
        1e-10 },
    { "rope of half a row", rope_half, { SIZE(128, 32), 2, SIZE(10001, 13), 2 }, { SIZE(10001, 13), 1, 1, 1 },
        GCUDA_TYPE_F16, 1000.0f, 1e-8 },
    { "cross_entropy_loss_back", loss_back, { SIZE(32000, 1100), SIZE(200, 6), 1, 1 },
        { SIZE(32000, 1100), SIZE(200, 6), 1, 1 }, GCUDA_TYPE_F32, 1.0f, 1e-10 },
};

static void fill(struct gcuda_tensor * t, uint64_t seed, float size) {
    const int64_t n = gcuda_nelements(t);
    struct rng r = { seed };
    float * values = (float *) malloc((size_t) n * sizeof *values);
    void * data = malloc(gcuda_nbytes(t));
    for (int64_t i = 0; i < n; ++i) { values[i] = size * (float) (rng_unit(&r) * 2.0 - 1.0); }
    CHECK_OK(gcuda_quantize_rows(t->type, values, data, gcuda_nrows(t), t->ne[0], NULL, 1));
    CHECK_OK(gcuda_backend_tensor_set(t, data, 0, gcuda_nbytes(t)));
    free(values);
    free(data);
}

// The backend's result of the case, to be freed; NULL: a failed check has reported why.
static float * computed(const struct sizes * c, gcuda_backend_t backend, int64_t * n) {
    const struct gcuda_init_params params = { 0, NULL, true };
    struct gcuda_context * ctx = gcuda_init(params);
    struct gcuda_tensor *a = gcuda_new_tensor(ctx, c->type, 4, c->a),
                        *b = c->b[0] > 0 ? gcuda_new_tensor(ctx, GCUDA_TYPE_F32, 4, c->b) : NULL;
    struct gcuda_tensor * y = c->build(ctx, a, b);
    struct gcuda_cgraph * graph = gcuda_new_graph(ctx);
    if (y != NULL && y->type != GCUDA_TYPE_F32) { y = gcuda_cast(ctx, y, GCUDA_TYPE_F32); } // floats are compared
    gcuda_backend_buffer_t buffer = y != NULL ? gcuda_backend_alloc_ctx_tensors(ctx, backend) : NULL;
    float * result = NULL;
    *n = y != NULL ? gcuda_nelements(y) : 0;
    CHECK_MSG(buffer != NULL, "%s: %s", c->name, gcuda_last_error());
    if (buffer != NULL && CHECK_OK(gcuda_build_forward_expand(graph, y))) {
        fill(a, 1, b != NULL ? 1.0f : c->size);
        if (b != NULL) { fill(b, 2, c->size); }
        if (CHECK_OK(gcuda_backend_graph_compute(backend, graph))) {
            result = (float *) malloc(gcuda_nbytes(y));
            CHECK_OK(gcuda_backend_tensor_get(y, result, 0, gcuda_nbytes(y)));
        }
    }
    gcuda_backend_buffer_free(buffer);
    gcuda_free(ctx);
    return result;
}

TEST(sizes_of_other_ways) {
    gcuda_backend_t cuda = gcuda_backend_cuda_init(0), cpu = gcuda_backend_cpu_init();
    CHECK_MSG(cuda != NULL, "%s", gcuda_last_error());
    for (size_t i = 0; i < sizeof cases / sizeof cases[0] && cuda != NULL; ++i) {
        char name[80];
        snprintf(name, sizeof name, "sizes_of_other_ways/%s", cases[i].name);
        if (!test_case_begin(name)) { continue; }
        int64_t n = 0;
        float *want = computed(&cases[i], cpu, &n), *got = computed(&cases[i], cuda, &n);
        double error = 0.0, size = 0.0;
        for (int64_t k = 0; k < n && want != NULL && got != NULL; ++k) {
            error += ((double) got[k] - want[k]) * ((double) got[k] - want[k]);
            size += (double) want[k] * want[k];
        }
        CHECK_MSG(size > 0.0 && error <= cases[i].bound * size, "%s: error %g of %g", cases[i].name, error, size);
        free(want);
        free(got);
        test_case_end();
    }
    gcuda_backend_free(cpu);
    gcuda_backend_free(cuda);
}
