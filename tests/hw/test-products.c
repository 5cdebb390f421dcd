// Products as large as those of models, the way that dispatch sends them: every type of weights, a few columns to many, against
// float64 on all four edges of the result and on 4096 elements anywhere. Rows of the weights and columns repeat after a prime number
// of them, so that little is made on the host and a tile that went to a wrong place still shows. The simulated device runs the same
// with small matrices (make build/sim/test-products).
#include "test.h"
#include "weights.h"

#include <cuda_runtime_api.h>

#if defined(GCUDAI_SIM)
#define SIZE(device, simulated) (simulated)
#else
#define SIZE(device, simulated) (device)
#endif

enum { ROWS = SIZE(509, 53), COLUMNS = SIZE(251, 13), SAMPLES = 4096 };
#define MAX_NMSE 5e-4 // ops.md

struct large {
    gcuda_backend_t backend;
    enum gcuda_type type;
    int64_t k;
    char * weights;       // [ROWS] of the type
    float * rows, * columns; // as numbers: [ROWS][k], [COLUMNS][k]
    double * products;    // of each row with each column; NAN: not asked for yet
    double errors, results, most; // what the check has found
    int64_t n;
};

static void large_begin(struct large * l, enum gcuda_type type, int64_t k) {
    struct rng r = rng_for(gcuda_type_name(type));
    struct gcuda_array rows;
    memset(&rows, 0, sizeof rows);
    rows.ne[0] = k, rows.ne[1] = ROWS, rows.nb[1] = gcuda_row_size(type, k);
    l->type = type, l->k = k;
    l->weights = weights_of(type, &rows, &r);
    l->rows = (float *) malloc((size_t) (ROWS * k) * sizeof(float));
    l->columns = (float *) malloc((size_t) (COLUMNS * k) * sizeof(float));
    l->products = (double *) malloc(ROWS * COLUMNS * sizeof(double));
    for (int i = 0; i < ROWS * COLUMNS; ++i) { l->products[i] = (double) NAN; }
    for (int64_t i = 0; i < ROWS; ++i) { weights_to_float(type, l->weights + (size_t) i * gcuda_row_size(type, k), l->rows + i * k, k); }
    for (int64_t i = 0; i < COLUMNS * k; ++i) { l->columns[i] = (float) rng_between(&r, -1.0, 1.0); }
}

static void large_end(struct large * l) {
    free(l->weights);
    free(l->rows);
    free(l->columns);
    free(l->products);
}

// The same rows again and again, to the end of the tensor.
static void repeat(struct gcuda_tensor * t, const void * rows, size_t size) {
    const size_t n = gcuda_nbytes(t);
    size_t done = n < size ? n : size;
    char * to = (char *) t->data;
    CHECK(cudaMemcpy(to, rows, done, cudaMemcpyHostToDevice) == cudaSuccess);
    while (done < n) {
        const size_t more = n - done < done ? n - done : done;
        CHECK(cudaMemcpy(to + done, to, more, cudaMemcpyDeviceToDevice) == cudaSuccess);
        done += more;
    }
}

static double product64(const struct large * l, int64_t row, int64_t column) { // k is a multiple of four
    double * known = &l->products[row % ROWS * COLUMNS + column % COLUMNS];
    if (isnan(*known)) {
        const float * w = l->rows + row % ROWS * l->k, * x = l->columns + column % COLUMNS * l->k;
        double sum[4] = { 0.0, 0.0, 0.0, 0.0 };
        for (int64_t i = 0; i < l->k; i += 4) {
            for (int j = 0; j < 4; ++j) { sum[j] += (double) w[i + j] * (double) x[i + j]; }
        }
        *known = sum[0] + sum[1] + sum[2] + sum[3];
    }
    return *known;
}

static void check_one(struct large * l, int64_t row, int64_t column, float got) {
    const double want = product64(l, row, column), error = fabs((double) got - want);
    l->errors += error * error;
    l->results += want * want;
    l->most = fmax(l->most, isfinite(error) ? error : INFINITY);
    l->n++;
}

static void check_all(const struct large * l) {
    const double rms = sqrt(l->results / (double) l->n);
    CHECK_MSG(l->errors <= MAX_NMSE * l->results, "NMSE %g, allowed %g", l->errors / l->results, MAX_NMSE);
    CHECK_MSG(l->most <= 8.0 * sqrt(MAX_NMSE) * rms, "error %g, rms %g", l->most, rms);
}

// y, computed and on the host; NULL after a failed check.
static float * computed(struct large * l, struct gcuda_context * ctx, struct gcuda_tensor * y) {
    struct gcuda_cgraph * graph = gcuda_new_graph(ctx);
    float * out = (float *) malloc(gcuda_nbytes(y));
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    if (CHECK_OK(gcuda_build_forward_expand(graph, y)) && CHECK_OK(gcuda_backend_graph_compute(l->backend, graph)) &&
        CHECK_OK(gcuda_backend_tensor_get(y, out, 0, gcuda_nbytes(y)))) { return out; }
    free(out);
    return NULL;
}

static void multiply(struct large * l, int64_t m, int64_t n) {
    const struct gcuda_init_params params = { 0, NULL, true };
    struct gcuda_context * ctx = gcuda_init(params);
    struct gcuda_tensor * a = gcuda_new_tensor_2d(ctx, l->type, l->k, m), * b = gcuda_new_tensor_2d(ctx, GCUDA_TYPE_F32, l->k, n);
    struct gcuda_tensor * y = gcuda_mul_mat(ctx, a, b);
    gcuda_backend_buffer_t buffer = gcuda_backend_alloc_ctx_tensors(ctx, l->backend);
    CHECK_MSG(buffer != NULL, "%s", gcuda_last_error());
    if (buffer != NULL) {
        struct rng r = rng_for("samples");
        CHECK_OK(gcuda_backend_buffer_clear(buffer, 0xff)); // NaN where nothing is written
        repeat(a, l->weights, ROWS * gcuda_row_size(l->type, l->k));
        repeat(b, l->columns, (size_t) (COLUMNS * l->k) * sizeof(float));
        float * out = computed(l, ctx, y);
        l->errors = l->results = l->most = 0.0;
        l->n = 0;
        for (int64_t i = 0; out != NULL && i < 2 * m; ++i) { check_one(l, i / 2, i % 2 * (n - 1), out[i % 2 * (n - 1) * m + i / 2]); }
        for (int64_t i = 0; out != NULL && i < 2 * n; ++i) { check_one(l, i % 2 * (m - 1), i / 2, out[i / 2 * m + i % 2 * (m - 1)]); }
        for (int i = 0; out != NULL && i < SAMPLES; ++i) {
            const int64_t row = rng_below(&r, m), column = rng_below(&r, n);
            check_one(l, row, column, out[column * m + row]);
        }
        if (out != NULL) { check_all(l); }
        free(out);
    }
    gcuda_backend_buffer_free(buffer);
    gcuda_free(ctx);
}

// Any u of the experts for each token, which share its column.
static void multiply_id(struct large * l, int64_t m, int64_t n_experts, int64_t u, int64_t n) {
    const struct gcuda_init_params params = { 0, NULL, true };
    struct gcuda_context * ctx = gcuda_init(params);
    struct gcuda_tensor * as = gcuda_new_tensor_3d(ctx, l->type, l->k, m, n_experts), * b = gcuda_new_tensor_3d(ctx, GCUDA_TYPE_F32, l->k, 1, n);
    struct gcuda_tensor * ids = gcuda_new_tensor_2d(ctx, GCUDA_TYPE_I32, u, n), * y = gcuda_mul_mat_id(ctx, as, b, ids);
    gcuda_backend_buffer_t buffer = gcuda_backend_alloc_ctx_tensors(ctx, l->backend);
    CHECK_MSG(buffer != NULL, "%s", gcuda_last_error());
    if (buffer != NULL) {
        struct rng r = rng_for("experts");
        int32_t * chosen = (int32_t *) malloc(gcuda_nbytes(ids));
        CHECK_OK(gcuda_backend_buffer_clear(buffer, 0xff));
        for (int64_t i = 0; i < u * n; ++i) { chosen[i] = (int32_t) rng_below(&r, n_experts); }
        repeat(as, l->weights, ROWS * gcuda_row_size(l->type, l->k));
        repeat(b, l->columns, (size_t) (COLUMNS * l->k) * sizeof(float));
        CHECK_OK(gcuda_backend_tensor_set(ids, chosen, 0, gcuda_nbytes(ids)));
        float * out = computed(l, ctx, y);
        l->errors = l->results = l->most = 0.0;
        l->n = 0;
        for (int64_t i = 0; out != NULL && i < 2 * u * n; ++i) { // the first and the last row of every slot
            const int64_t row = i % 2 * (m - 1), slot = i / 2;
            check_one(l, chosen[slot] * m + row, slot / u, out[slot * m + row]);
        }
        for (int i = 0; out != NULL && i < SAMPLES; ++i) {
            const int64_t row = rng_below(&r, m), slot = rng_below(&r, u * n);
            check_one(l, chosen[slot] * m + row, slot / u, out[slot * m + row]);
        }
        if (out != NULL) { check_all(l); }
        free(out);
        free(chosen);
    }
    gcuda_backend_buffer_free(buffer);
    gcuda_free(ctx);
}

TEST(products_of_models) {
    static const int64_t shapes[][2] = { { SIZE(14336, 512), SIZE(4096, 70) }, { SIZE(4096, 256), SIZE(14336, 33) }, { SIZE(4096, 256), SIZE(28672, 130) } };
    static const int64_t columns[] = { 1, 8, 13, SIZE(64, 9), SIZE(128, 17), SIZE(512, 34), SIZE(2048, 40) };
    struct large l;
    memset(&l, 0, sizeof l);
    l.backend = gcuda_backend_cuda_init(0);
    CHECK_MSG(l.backend != NULL, "%s", gcuda_last_error());
    for (int t = 0; l.backend != NULL && t < N_TYPES; ++t) {
        for (int i = 0; i < SIZE(3, 1); ++i) {
            large_begin(&l, types[t], shapes[(i + SIZE(0, t)) % 3][0]);
            for (int j = 0; j < 7; ++j) {
                char name[96];
                snprintf(name, sizeof name, "products_of_models/%s,k=%d,m=%d,n=%d", gcuda_type_name(l.type), (int) l.k,
                    (int) shapes[(i + SIZE(0, t)) % 3][1], (int) columns[j]);
                if (!test_case_begin(name)) { continue; }
                multiply(&l, shapes[(i + SIZE(0, t)) % 3][1], columns[j]);
                test_case_end();
            }
            large_end(&l);
        }
    }
    gcuda_backend_free(l.backend);
}

TEST(experts_of_models) {
    static const enum gcuda_type some[] = { GCUDA_TYPE_F32, GCUDA_TYPE_F16, GCUDA_TYPE_BF16, GCUDA_TYPE_Q4_0, GCUDA_TYPE_Q8_0, GCUDA_TYPE_Q4_K,
        GCUDA_TYPE_Q6_K, GCUDA_TYPE_IQ2_XS, GCUDA_TYPE_MXFP4 };
    static const int64_t tokens[] = { 1, 8, SIZE(32, 9), SIZE(128, 17), SIZE(512, 33) };
    struct large l;
    memset(&l, 0, sizeof l);
    l.backend = gcuda_backend_cuda_init(0);
    CHECK_MSG(l.backend != NULL, "%s", gcuda_last_error());
    for (int t = 0; l.backend != NULL && t < (int) (sizeof some / sizeof some[0]); ++t) {
        large_begin(&l, some[t], SIZE(2048, 256));
        for (int i = 0; i < 10; ++i) {
            const bool is_many = i % 2 != 0;
            char name[96];
            snprintf(name, sizeof name, "experts_of_models/%s,%s,n=%d", gcuda_type_name(l.type), is_many ? "8 of many" : "4 of few", (int) tokens[i / 2]);
            if (!test_case_begin(name)) { continue; }
            multiply_id(&l, is_many ? SIZE(768, 20) : SIZE(1792, 33), is_many ? SIZE(128, 16) : SIZE(32, 6), is_many ? 8 : 4, tokens[i / 2]);
            test_case_end();
        }
        large_end(&l);
    }
    gcuda_backend_free(l.backend);
}
