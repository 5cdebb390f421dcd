// Products as large as those of models, on the path that dispatch chooses: every type of weights, few to many columns.
// Compared with float64 on all four edges of the result and on 4096 random elements. Weight rows and columns repeat
// with a prime period, so the host makes little data and a misplaced tile still shows. The simulated device runs the
// same with small matrices (make build/sim/test-products). Then the same products replayed as CUDA graphs and by raw
// pointers, bit for bit.
#include "device.h"
#include "weights.h"

#include <cuda_runtime_api.h>

#if defined(GCUDAI_SIM)
#define SIZE(device, simulated) (simulated)
#else
#define SIZE(device, simulated) (device)
#endif

enum { ROWS = SIZE(509, 53), COLUMNS = SIZE(251, 13), SAMPLES = 4096 };
#define MAX_NMSE 5e-4

struct large {
    gcuda_backend_t backend;
    enum gcuda_type type;
    int64_t k;
    char * weights;               // [ROWS] of the type
    float *rows, *columns;        // as numbers: [ROWS][k], [COLUMNS][k]
    double * products;            // of each row with each column; NAN: not asked for yet
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
    for (int64_t i = 0; i < ROWS; ++i) {
        weights_to_float(type, l->weights + (size_t) i * gcuda_row_size(type, k), l->rows + i * k, k);
    }
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
        const float *w = l->rows + row % ROWS * l->k, *x = l->columns + column % COLUMNS * l->k;
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
        CHECK_OK(gcuda_backend_tensor_get(y, out, 0, gcuda_nbytes(y)))) {
        return out;
    }
    free(out);
    return NULL;
}

static void multiply(struct large * l, int64_t m, int64_t n) {
    const struct gcuda_init_params params = { 0, NULL, true };
    struct gcuda_context * ctx = gcuda_init(params);
    struct gcuda_tensor *a = gcuda_new_tensor_2d(ctx, l->type, l->k, m),
                        *b = gcuda_new_tensor_2d(ctx, GCUDA_TYPE_F32, l->k, n);
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
        for (int64_t i = 0; out != NULL && i < 2 * m; ++i) {
            check_one(l, i / 2, i % 2 * (n - 1), out[i % 2 * (n - 1) * m + i / 2]);
        }
        for (int64_t i = 0; out != NULL && i < 2 * n; ++i) {
            check_one(l, i % 2 * (m - 1), i / 2, out[i / 2 * m + i % 2 * (m - 1)]);
        }
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
    struct gcuda_tensor *as = gcuda_new_tensor_3d(ctx, l->type, l->k, m, n_experts),
                        *b = gcuda_new_tensor_3d(ctx, GCUDA_TYPE_F32, l->k, 1, n);
    struct gcuda_tensor *ids = gcuda_new_tensor_2d(ctx, GCUDA_TYPE_I32, u, n), *y = gcuda_mul_mat_id(ctx, as, b, ids);
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
    static const int64_t shapes[][2] = { { SIZE(14336, 512), SIZE(4096, 70) }, { SIZE(4096, 256), SIZE(14336, 33) },
        { SIZE(4096, 256), SIZE(28672, 130) } };
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
    static const enum gcuda_type some[] = { GCUDA_TYPE_F32, GCUDA_TYPE_F16, GCUDA_TYPE_BF16, GCUDA_TYPE_Q4_0,
        GCUDA_TYPE_Q8_0, GCUDA_TYPE_Q4_K, GCUDA_TYPE_Q6_K, GCUDA_TYPE_IQ2_XS, GCUDA_TYPE_MXFP4 };
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
            snprintf(name, sizeof name, "experts_of_models/%s,%s,n=%d", gcuda_type_name(l.type),
                is_many ? "8 of many" : "4 of few", (int) tokens[i / 2]);
            if (!test_case_begin(name)) { continue; }
            multiply_id(&l, is_many ? SIZE(768, 20) : SIZE(1792, 33), is_many ? SIZE(128, 16) : SIZE(32, 6),
                is_many ? 8 : 4, tokens[i / 2]);
            test_case_end();
        }
        large_end(&l);
    }
    gcuda_backend_free(l.backend);
}

// ---- bit for bit ----
static gcuda_backend_t backend_of(const char * product, enum gcuda_cuda_switch graphs) {
    struct gcuda_cuda_params params;
    memset(&params, 0, sizeof params);
    params.product = product;
    params.graphs = graphs;
    gcuda_backend_t backend = gcuda_backend_cuda_init_params(&params);
    CHECK_MSG(backend != NULL, "%s", gcuda_last_error());
    return backend;
}

// NaN where nothing is written afterwards.
static void unwrite(struct gcuda_tensor * t) {
    CHECK(
        cudaMemsetAsync(t->data, 0xff, gcuda_nbytes(t), NULL) == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess);
}

// Columns from `first` on, which begin again after the last one.
static void set_columns(const struct large * l, struct gcuda_tensor * b, int64_t first) {
    const int64_t n = gcuda_nrows(b);
    float * data = (float *) malloc(gcuda_nbytes(b));
    for (int64_t i = 0; i < n; ++i) {
        memcpy(data + i * l->k, l->columns + (first + i) % COLUMNS * l->k, (size_t) l->k * sizeof(float));
    }
    CHECK_OK(gcuda_backend_tensor_set(b, data, 0, gcuda_nbytes(b)));
    free(data);
}

// Experts large enough for the INT8 or WGMMA path, given enough expert-token pairs.
enum { EXPERTS = SIZE(8, 4), USED = 2, ID_K = SIZE(2048, 256), ID_M = SIZE(256, 20) };

struct routed {
    struct large * l;
    struct gcuda_context * ctx;
    struct gcuda_cgraph * graph;
    struct gcuda_tensor *as, *b, *ids, *y, *raw; // raw: for the product of raw pointers
    gcuda_backend_buffer_t buffer;
    int32_t * chosen;
    int64_t n, first; // tokens; the first one's column
};

static bool routed_begin(struct routed * p, struct large * l, int64_t n) {
    const struct gcuda_init_params params = { 0, NULL, true };
    memset(p, 0, sizeof *p);
    p->l = l, p->n = n;
    p->ctx = gcuda_init(params);
    p->as = gcuda_new_tensor_3d(p->ctx, l->type, l->k, ID_M, EXPERTS);
    p->b = gcuda_new_tensor_3d(p->ctx, GCUDA_TYPE_F32, l->k, 1, n);
    p->ids = gcuda_new_tensor_2d(p->ctx, GCUDA_TYPE_I32, USED, n);
    p->y = gcuda_mul_mat_id(p->ctx, p->as, p->b, p->ids);
    p->raw = gcuda_new_tensor(p->ctx, GCUDA_TYPE_F32, 4, p->y->ne);
    p->graph = gcuda_new_graph(p->ctx);
    p->buffer = gcuda_backend_alloc_ctx_tensors_from_buft(p->ctx, gcuda_backend_cuda_buffer_type(0));
    p->chosen = (int32_t *) malloc(gcuda_nbytes(p->ids));
    CHECK_OK(gcuda_build_forward_expand(p->graph, p->y));
    CHECK_MSG(p->buffer != NULL, "%s", gcuda_last_error());
    if (p->buffer != NULL) { repeat(p->as, l->weights, ROWS * gcuda_row_size(l->type, l->k)); }
    return p->buffer != NULL;
}

static void routed_end(struct routed * p) {
    gcuda_backend_buffer_free(p->buffer);
    gcuda_free(p->ctx);
    free(p->chosen);
}

// Other columns and other lists of slots: of all experts, of one, of two, more and more often of the last ones.
static void routed_set(struct routed * p, int run) {
    struct rng r = { (uint64_t) run + 1 };
    for (int64_t i = 0; i < USED * p->n; ++i) {
        const int32_t any = (int32_t) rng_below(&r, EXPERTS), other = (int32_t) rng_below(&r, EXPERTS);
        p->chosen[i] = run % 4 == 0   ? any
                       : run % 4 == 1 ? EXPERTS / 2
                       : run % 4 == 2 ? any % 2
                       : any > other  ? any
                                      : other;
    }
    p->first = 29 * run;
    CHECK_OK(gcuda_backend_tensor_set(p->ids, p->chosen, 0, gcuda_nbytes(p->ids)));
    set_columns(p->l, p->b, p->first);
    unwrite(p->y);
    unwrite(p->raw);
}

static void routed_compute(struct routed * p, gcuda_backend_t backend, int run, float * out) {
    routed_set(p, run);
    CHECK_OK(gcuda_backend_graph_compute(backend, p->graph));
    CHECK_OK(gcuda_backend_tensor_get(p->y, out, 0, gcuda_nbytes(p->y)));
}

// As routed_set has left it: the first and the last row of every slot, then any.
static void routed_check(struct routed * p, const float * out) {
    struct rng r = rng_for("routed");
    const int64_t n_slots = USED * p->n;
    p->l->errors = p->l->results = p->l->most = 0.0;
    p->l->n = 0;
    for (int64_t i = 0; i < 2 * n_slots + 1000; ++i) {
        const bool is_edge = i < 2 * n_slots;
        const int64_t slot = is_edge ? i / 2 : rng_below(&r, n_slots),
                      row = is_edge ? i % 2 * (ID_M - 1) : rng_below(&r, ID_M);
        check_one(p->l, p->chosen[slot] * ID_M + row, p->first + slot / USED, out[slot * ID_M + row]);
    }
    check_all(p->l);
}

enum { N_REPLAYS = SIZE(6, 4) }; // by the node, captured, then replayed
enum { AS_ALWAYS, BY_BYTES, ON_WARP_GROUPS, N_ID_WAYS };
static const char * const id_ways[] = { "", "bytes", "warp_groups" };

// Two backends, without CUDA graphs and with, have the same bits run after run, which wanted gets.
static void replay(struct routed * p, const gcuda_backend_t pair[2], const char * way, float * wanted) {
    const size_t size = gcuda_nbytes(p->y), n = size / sizeof(float);
    float * got = (float *) malloc(size);
    const uint64_t n_before = graph_launches(pair[1]);
    for (int run = 0; run < N_REPLAYS; ++run) { routed_compute(p, pair[0], run, wanted + (size_t) run * n); }
    for (int run = 0; run < N_REPLAYS; ++run) {
        routed_compute(p, pair[1], run, got);
        CHECK_MSG(memcmp(got, wanted + (size_t) run * n, size) == 0, "run %d has other bits as a CUDA graph, way '%s'",
            run, way);
        CHECK(run == 0 || memcmp(wanted, wanted + (size_t) run * n, size) != 0); // as its data are others
    }
    CHECK(graph_launches(pair[1]) > n_before);
    CHECK(graph_launches(pair[0]) == 0);
    routed_check(p, got);
    free(got);
}

static bool is_of_bytes(enum gcuda_type type) { // has kernels for experts by bytes
    bool is_so = false;
    for (int t = 0; t < N_TYPES_BY_BYTES; ++t) { is_so = is_so || types_by_bytes[t] == type; }
    return is_so;
}

// On a device: what dispatch does with few slots of an expert, and with many, is what the way of that name does.
static void replay_all(struct routed * p, gcuda_backend_t backends[N_ID_WAYS][2]) {
    const size_t size = N_REPLAYS * gcuda_nbytes(p->y);
    float * wanted[N_ID_WAYS];
    int major = 0;
    CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess);
    for (int w = 0; w < N_ID_WAYS; ++w) {
        wanted[w] = (float *) malloc(size);
        replay(p, backends[w], id_ways[w], wanted[w]);
    }
    const bool is_many = p->n > 24 * EXPERTS / USED, is_quantized = gcuda_is_quantized(p->l->type);
    if (SIZE(true, false) && gcuda_has_warp_groups() && is_many && is_quantized) {
        CHECK(memcmp(wanted[AS_ALWAYS], wanted[ON_WARP_GROUPS], size) == 0);
        CHECK(memcmp(wanted[AS_ALWAYS], wanted[BY_BYTES], size) != 0 || !is_of_bytes(p->l->type));
    }
    if (SIZE(true, false) && major >= 8 && !is_many && is_of_bytes(p->l->type)) {
        CHECK(memcmp(wanted[AS_ALWAYS], wanted[BY_BYTES], size) == 0);
        CHECK(memcmp(wanted[AS_ALWAYS], wanted[ON_WARP_GROUPS], size) != 0 || !gcuda_has_warp_groups());
    }
    for (int w = 0; w < N_ID_WAYS; ++w) { free(wanted[w]); }
}

TEST(experts_replayed_with_other_data) { // each type on each way that takes it, as dispatch likes and forced
    static const int64_t tokens[] = { SIZE(10, 7), SIZE(100, 19) };
    gcuda_backend_t backends[N_ID_WAYS][2];
    bool are_there = true;
    for (int i = 0; i < 2 * N_ID_WAYS; ++i) {
        backends[i / 2][i % 2] = backend_of(id_ways[i / 2], i % 2 != 0 ? GCUDA_CUDA_ON : GCUDA_CUDA_OFF);
        are_there = are_there && backends[i / 2][i % 2] != NULL;
    }
    for (int t = 0; t < N_TYPES && are_there; ++t) {
        struct large l;
        memset(&l, 0, sizeof l);
        large_begin(&l, types[t], ID_K);
        for (int i = 0; i < 2; ++i) {
            struct routed p;
            char name[96];
            snprintf(name, sizeof name, "experts_replayed_with_other_data/%s,n=%d", gcuda_type_name(l.type),
                (int) tokens[i]);
            if (!test_case_begin(name)) { continue; }
            if (routed_begin(&p, &l, tokens[i])) { replay_all(&p, backends); }
            routed_end(&p);
            test_case_end();
        }
        large_end(&l);
    }
    for (int i = 0; i < 2 * N_ID_WAYS; ++i) { gcuda_backend_free(backends[i / 2][i % 2]); }
}

static struct gcuda_array array_of(const struct gcuda_tensor * t) {
    struct gcuda_array a;
    memset(&a, 0, sizeof a);
    a.type = t->type, a.data = t->data;
    memcpy(a.ne, t->ne, sizeof a.ne);
    memcpy(a.nb, t->nb, sizeof a.nb);
    return a;
}

// The node's result, all of which is written, and that of raw pointers.
static void same_bits(const struct gcuda_tensor * y, const struct gcuda_tensor * raw, const char * way) {
    const size_t size = gcuda_nbytes(y);
    uint32_t *want = (uint32_t *) malloc(size), *got = (uint32_t *) malloc(size);
    int64_t n_left = 0;
    CHECK_OK(gcuda_backend_tensor_get(y, want, 0, size));
    CHECK_OK(gcuda_backend_tensor_get(raw, got, 0, size));
    for (size_t i = 0; i < size / sizeof *want; ++i) { n_left += want[i] == 0xffffffffu; }
    CHECK_MSG(n_left == 0, "%lld elements are not written, way '%s'", (long long) n_left, way);
    CHECK_MSG(memcmp(want, got, size) == 0, "other bits than the node's, way '%s'", way);
    free(want);
    free(got);
}

static const char * const raw_ways[] = {
    "cublas", "converted", "halves", "gemm",
#define X(ID, name, product) product,
    GCUDA_MUL_MAT_PATH_LIST(X) // "", too: as always
#undef X
};
enum { N_RAW_WAYS = sizeof raw_ways / sizeof raw_ways[0] };

// matrices: of weights; of columns there are twice as many if it is more than one.
static void raw_like_node(
    const struct large * l, const gcuda_backend_t * backends, int64_t m, int64_t n, int64_t matrices) {
    const struct gcuda_init_params params = { 0, NULL, true };
    struct gcuda_context * ctx = gcuda_init(params);
    struct gcuda_tensor * a = gcuda_new_tensor_3d(ctx, l->type, l->k, m, matrices);
    struct gcuda_tensor * b = gcuda_new_tensor_3d(ctx, GCUDA_TYPE_F32, l->k, n, matrices > 1 ? 2 * matrices : 1);
    struct gcuda_tensor * y = gcuda_mul_mat(ctx, a, b);
    struct gcuda_tensor * raw = gcuda_new_tensor(ctx, GCUDA_TYPE_F32, 4, y->ne);
    struct gcuda_cgraph * graph = gcuda_new_graph(ctx);
    gcuda_backend_buffer_t buffer = gcuda_backend_alloc_ctx_tensors_from_buft(ctx, gcuda_backend_cuda_buffer_type(0));
    CHECK_OK(gcuda_build_forward_expand(graph, y));
    CHECK_MSG(buffer != NULL, "%s", gcuda_last_error());
    if (buffer != NULL) {
        struct gcuda_mul_mat_args args;
        memset(&args, 0, sizeof args);
        args.a = array_of(a), args.b = array_of(b), args.y = array_of(raw);
        repeat(a, l->weights, ROWS * gcuda_row_size(l->type, l->k));
        set_columns(l, b, 0);
        for (int w = 0; w < N_RAW_WAYS; ++w) {
            unwrite(y);
            unwrite(raw);
            CHECK_OK(gcuda_backend_graph_compute(backends[w], graph));
            CHECK_OK(gcuda_backend_cuda_mul_mat(backends[w], &args));
            CHECK_OK(gcuda_backend_synchronize(backends[w]));
            same_bits(y, raw, raw_ways[w]);
        }
    }
    gcuda_backend_buffer_free(buffer);
    gcuda_free(ctx);
}

static void raw_like_node_id(struct large * l, const gcuda_backend_t * backends, int64_t n) {
    struct routed p;
    if (routed_begin(&p, l, n)) {
        struct gcuda_mul_mat_id_args args;
        memset(&args, 0, sizeof args);
        args.as = array_of(p.as), args.b = array_of(p.b), args.ids = array_of(p.ids), args.y = array_of(p.raw);
        for (int w = 0; w < N_RAW_WAYS; ++w) {
            routed_set(&p, w);
            CHECK_OK(gcuda_backend_graph_compute(backends[w], p.graph));
            CHECK_OK(gcuda_backend_cuda_mul_mat_id(backends[w], &args));
            CHECK_OK(gcuda_backend_synchronize(backends[w]));
            same_bits(p.y, p.raw, raw_ways[w]);
        }
    }
    routed_end(&p);
}

TEST(products_of_raw_pointers) { // have the bits of the nodes, on every way
    static const int64_t columns[] = { 1, 3, 8, 16, SIZE(40, 20), SIZE(200, 34) },
                         tokens[] = { 1, SIZE(10, 7), SIZE(100, 19) };
    gcuda_backend_t backends[N_RAW_WAYS];
    bool are_there = true;
    for (int w = 0; w < N_RAW_WAYS; ++w) {
        backends[w] = backend_of(raw_ways[w], GCUDA_CUDA_AUTO);
        are_there = are_there && backends[w] != NULL;
    }
    for (int t = 0; t < N_TYPES && are_there; ++t) {
        struct large l;
        char name[96];
        memset(&l, 0, sizeof l);
        large_begin(&l, types[t], SIZE(4096, 256));
        for (int i = 0; i < SIZE(12, 9); ++i) { // one matrix large enough for wgmma, several small ones
            const int64_t matrices = i < 6 ? 1 : 2;
            snprintf(name, sizeof name, "products_of_raw_pointers/%s,n=%d,matrices=%d", gcuda_type_name(l.type),
                (int) columns[i % 6], (int) matrices);
            if (!test_case_begin(name)) { continue; }
            raw_like_node(&l, backends, i < 6 ? SIZE(4096, 33) : SIZE(130, 20), columns[i % 6], matrices);
            test_case_end();
        }
        large_end(&l);
        large_begin(&l, types[t], ID_K);
        for (int i = 0; i < 3; ++i) {
            snprintf(name, sizeof name, "products_of_raw_pointers/%s,experts,n=%d", gcuda_type_name(l.type),
                (int) tokens[i]);
            if (!test_case_begin(name)) { continue; }
            raw_like_node_id(&l, backends, tokens[i]);
            test_case_end();
        }
        large_end(&l);
    }
    for (int w = 0; w < N_RAW_WAYS; ++w) { gcuda_backend_free(backends[w]); }
}
