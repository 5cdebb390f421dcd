// Sizes that the table of test-ops leaves out, because every kernel of it that they reach takes them alone: on the
// simulated device and on the CPU, node by node.
#include "sim-test.h"

#include <math.h>

static uint32_t state = 1;
static float next_float(float lo, float hi) {
    state = state * 1664525u + 1013904223u;
    return lo + (hi - lo) * (float) (state >> 8) / 16777216.0f;
}

static void fill(struct gcuda_tensor * t, float lo, float hi) {
    const size_t n = (size_t) gcuda_nelements(t);
    float * v = (float *) malloc((n + 1) * sizeof(float));
    for (size_t i = 0; i < n; ++i) { v[i] = next_float(lo, hi); }
    CHECK_OK(gcuda_backend_tensor_set(t, v, 0, n * sizeof(float)));
    free(v);
}

static double worst;
static bool note_error(int i, struct gcuda_tensor * a, struct gcuda_tensor * b, void * user) {
    float *x = (float *) malloc(gcuda_nbytes(a)), *y = (float *) malloc(gcuda_nbytes(a));
    (void) i, (void) user;
    CHECK_OK(gcuda_backend_tensor_get(a, x, 0, gcuda_nbytes(a)));
    CHECK_OK(gcuda_backend_tensor_get(b, y, 0, gcuda_nbytes(a)));
    worst = fmax(worst, error_of(y, x, gcuda_nbytes(a) / sizeof(float)));
    free(x), free(y);
    return true;
}

// States of more numbers than a thread's registers are made for.
static void scan(int64_t n, int64_t channels, int64_t heads, int64_t groups, int64_t tokens, bool is_mamba_1) {
    gcuda_backend_t cpu = gcuda_backend_cpu_init(), cuda = gcuda_backend_cuda_init(0);
    struct place p = place_begin();
    const int64_t sequences = 2, pool = 3;
    const int32_t slots[2] = { 2, 0 };
    struct gcuda_tensor * s = gcuda_new_tensor_4d(p.ctx, GCUDA_TYPE_F32, n, channels, heads, pool);
    struct gcuda_tensor * x = gcuda_new_tensor_4d(p.ctx, GCUDA_TYPE_F32, channels, heads, tokens, sequences);
    struct gcuda_tensor * dt = gcuda_new_tensor_3d(p.ctx, GCUDA_TYPE_F32, heads, tokens, sequences);
    struct gcuda_tensor * a = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, is_mamba_1 ? n : 1, heads);
    struct gcuda_tensor * b = gcuda_new_tensor_4d(p.ctx, GCUDA_TYPE_F32, n, groups, tokens, sequences);
    struct gcuda_tensor * c = gcuda_new_tensor_4d(p.ctx, GCUDA_TYPE_F32, n, groups, tokens, sequences);
    struct gcuda_tensor * ids = gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_I32, sequences);
    struct gcuda_tensor * y = gcuda_ssm_scan(p.ctx, s, x, dt, a, b, c, ids);
    struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
    CHECK_OK(gcuda_build_forward_expand(graph, y));
    REQUIRE(cpu != NULL && cuda != NULL && place_alloc(&p, cpu));
    struct gcuda_tensor * all[] = { s, x, dt, b, c };
    for (int i = 0; i < 5; ++i) { fill(all[i], -2.0f, 2.0f); }
    fill(a, -1.0f, -0.05f);
    CHECK_OK(gcuda_backend_tensor_set(ids, slots, 0, sizeof slots));
    worst = 0.0;
    CHECK_OK(gcuda_backend_compare_graph_backend(cpu, cuda, graph, note_error, NULL, NULL, 0));
    CHECK_MSG(worst < 1e-9, "%d states, %d channels of %d heads, %d tokens: error %g", (int) n, (int) channels,
        (int) heads, (int) tokens, worst);
    place_end(&p);
    gcuda_backend_free(cuda);
    gcuda_backend_free(cpu);
}

TEST(ssm_scan_of_more_than_256_states) {
    for (int is_mamba_1 = 0; is_mamba_1 < 2; ++is_mamba_1) {
        scan(257, 3, 4, 2, 1, is_mamba_1);
        scan(300, 2, 2, 1, 5, is_mamba_1);
        scan(512, 1, 9, 3, 2, is_mamba_1);
        scan(1030, 5, 1, 1, 3, is_mamba_1);
    }
    clean();
}

// Rows go in batches of 2^24 elements: the last of these are of the second. Minutes, so at level full.
TEST(rows_of_a_second_batch_are_sorted_too) {
    enum { ROW = 1 << 20, ROWS = 18 };
    if (!test_full()) {
        test_skip("half a minute");
        return;
    }
    fresh(1, 1024 * MB, 1);
    gcuda_backend_t cuda = gcuda_backend_cuda_init(0);
    struct place p = place_begin();
    struct gcuda_tensor *x = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, ROW, ROWS),
                        *y = gcuda_argsort(p.ctx, x, GCUDA_SORT_ORDER_ASC);
    struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
    CHECK_OK(gcuda_build_forward_expand(graph, y));
    REQUIRE(cuda != NULL && place_alloc(&p, cuda));
    float * v = (float *) malloc((size_t) ROW * ROWS * sizeof(float));
    int32_t * order = (int32_t *) malloc((size_t) ROW * ROWS * sizeof(int32_t));
    for (size_t i = 0; i < (size_t) ROW * ROWS; ++i) { v[i] = next_float(-1.0f, 1.0f); }
    CHECK_OK(gcuda_backend_tensor_set(x, v, 0, gcuda_nbytes(x)));
    CHECK_OK(gcuda_backend_graph_compute(cuda, graph));
    CHECK_OK(gcuda_backend_tensor_get(y, order, 0, gcuda_nbytes(y)));
    static bool is_there[ROW];
    for (int r = 0; r < ROWS; ++r) {
        const float * row = v + (size_t) r * ROW;
        const int32_t * at = order + (size_t) r * ROW;
        int n = 0;
        memset(is_there, 0, sizeof is_there);
        for (int i = 0;
             i < ROW && at[i] >= 0 && at[i] < ROW && !is_there[at[i]] && (i == 0 || row[at[i]] >= row[at[i - 1]]);
             ++i, ++n) {
            is_there[at[i]] = true;
        }
        CHECK_MSG(n == ROW, "row %d is in order up to %d", r, n);
    }
    free(order), free(v);
    place_end(&p);
    gcuda_backend_free(cuda);
    clean();
}
