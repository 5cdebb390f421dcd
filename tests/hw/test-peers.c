// All devices of this machine together: what the probe of each pair finds, copies on every route, and products with
// row-split weights against those of one device. With a single device only the products run. Public interface alone.
#include "test.h"

#include <math.h>

static int n_devices(void) { return gcuda_backend_cuda_get_device_count(); }

// GCUDA_TEST_POOL=best_fit: compute-sanitizer takes a bulk copy that goes from one mapping of a pool into the next, in one range of
// addresses, for one that is out of bounds.
static struct gcuda_cuda_params params_of(int device) {
    const char * pool = getenv("GCUDA_TEST_POOL");
    struct gcuda_cuda_params params;
    memset(&params, 0, sizeof params);
    params.device = device;
    params.pool = pool != NULL && strcmp(pool, "best_fit") == 0 ? GCUDA_CUDA_POOL_BEST_FIT : GCUDA_CUDA_POOL_AUTO;
    return params;
}

static gcuda_backend_t backend_on(int device, enum gcuda_cuda_peer_mode mode) {
    struct gcuda_cuda_params params = params_of(device);
    params.peer = mode;
    return gcuda_backend_cuda_init_params(&params);
}

static struct gcuda_context * new_context(void) {
    const struct gcuda_init_params params = { 0, NULL, true };
    return gcuda_init(params);
}

TEST(every_pair_is_probed) {
    static const char * const routes[] = { "not probed", "direct", "staged by the driver", "staged by gcuda" };
    if (n_devices() < 2) {
        test_skip("one device");
        return;
    }
    for (int i = 0; i < n_devices(); ++i) {
        for (int k = 0; k < n_devices(); ++k) {
            struct gcuda_cuda_peer p;
            if (i == k) { continue; }
            CHECK_OK(gcuda_backend_cuda_probe_peer(i, k));
            CHECK_OK(gcuda_backend_cuda_get_peer(i, k, &p));
            CHECK(p.is_probed && p.route != GCUDA_CUDA_ROUTE_UNKNOWN);
            CHECK(p.is_in_use == (p.reason[0] == '\0'));
            printf("  CUDA%d to CUDA%d: %s%s%s%s\n", i, k, routes[p.route], p.is_linked ? ", linked" : "",
                p.is_in_use ? "" : ", because ", p.reason);
        }
    }
}

// There and back, through a tensor on each device; then blocking.
static void copy_once(int from, int to, enum gcuda_cuda_peer_mode mode, int64_t n) {
    gcuda_backend_t a = backend_on(from, mode), b = backend_on(to, mode);
    struct gcuda_context *ca = new_context(), *cb = new_context();
    struct gcuda_tensor *x = gcuda_new_tensor_1d(ca, GCUDA_TYPE_F32, n),
                        *end = gcuda_new_tensor_1d(ca, GCUDA_TYPE_F32, n),
                        *y = gcuda_new_tensor_1d(cb, GCUDA_TYPE_F32, n);
    gcuda_backend_buffer_t ba = gcuda_backend_alloc_ctx_tensors(ca, a), bb = gcuda_backend_alloc_ctx_tensors(cb, b);
    const size_t size = (size_t) n * sizeof(float);
    float *in = (float *) malloc(size), *out = (float *) calloc(1, size);
    REQUIRE(a && b && ba && bb && in && out);
    for (int64_t i = 0; i < n; ++i) { in[i] = (float) (i % 8191); }
    CHECK_OK(gcuda_backend_tensor_set(x, in, 0, size));
    CHECK_OK(gcuda_backend_tensor_copy_async(a, b, x, y));
    CHECK_OK(gcuda_backend_tensor_copy_async(b, a, y, end));
    CHECK_OK(gcuda_backend_tensor_get_async(a, end, out, 0, size));
    CHECK_OK(gcuda_backend_synchronize(a));
    CHECK(memcmp(in, out, size) == 0);
    const int64_t start = gcuda_time_us();
    for (int i = 0; i < 10; ++i) { CHECK_OK(gcuda_backend_tensor_copy_async(a, b, x, y)); }
    CHECK_OK(gcuda_backend_synchronize(b));
    printf("  CUDA%d to CUDA%d, mode %d: %lld MB at %.1f GB/s\n", from, to, (int) mode, (long long) (size >> 20),
        10.0 * (double) size / 1e3 / (double) (gcuda_time_us() - start));
    CHECK_OK(gcuda_backend_synchronize(a));
    CHECK_OK(gcuda_backend_tensor_memset(y, 0, 0, size));
    CHECK_OK(gcuda_backend_tensor_copy(x, y));
    memset(out, 0, size);
    CHECK_OK(gcuda_backend_tensor_get(y, out, 0, size));
    CHECK(memcmp(in, out, size) == 0);
    free(in);
    free(out);
    gcuda_backend_buffer_free(ba);
    gcuda_backend_buffer_free(bb);
    gcuda_free(ca);
    gcuda_free(cb);
    gcuda_backend_free(a);
    gcuda_backend_free(b);
}

TEST(copies_arrive_whole) {
    if (n_devices() < 2) {
        test_skip("one device");
        return;
    }
    for (int mode = GCUDA_CUDA_PEER_AUTO; mode <= GCUDA_CUDA_PEER_OFF; mode += 2) {
        copy_once(0, 1, (enum gcuda_cuda_peer_mode) mode, 1001);
        copy_once(0, 1, (enum gcuda_cuda_peer_mode) mode, 9000001);
        copy_once(1, 0, (enum gcuda_cuda_peer_mode) mode, 64 << 20);
    }
}

static float * random_floats(int64_t n, uint64_t seed) {
    float * f = (float *) malloc((size_t) n * sizeof *f);
    for (int64_t i = 0; i < n; ++i) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        f[i] = (float) (int32_t) (seed >> 33) / 1073741824.0f - 1.0f;
    }
    return f;
}

// w x, a few times in a row without waiting; the caller frees the result.
static float * product(gcuda_backend_t backend, gcuda_backend_buffer_type_t t, enum gcuda_type type, int64_t k,
    int64_t m, int64_t n) {
    struct gcuda_context *cw = new_context(), *cx = new_context();
    struct gcuda_tensor *w = gcuda_new_tensor_2d(cw, type, k, m), *x = gcuda_new_tensor_2d(cx, GCUDA_TYPE_F32, k, n);
    struct gcuda_tensor * y = gcuda_mul_mat(cx, w, x);
    struct gcuda_cgraph * graph = gcuda_new_graph(cx);
    CHECK_OK(gcuda_build_forward_expand(graph, y));
    gcuda_backend_buffer_t bw = gcuda_backend_alloc_ctx_tensors_from_buft(cw, t),
                           bx = gcuda_backend_alloc_ctx_tensors(cx, backend);
    float *fw = random_floats(k * m, 1), *fx = random_floats(k * n, 2), *out = (float *) malloc(gcuda_nbytes(y));
    void * rows = malloc(gcuda_nbytes(w));
    if (bw != NULL && bx != NULL && out != NULL && rows != NULL) {
        CHECK_OK(gcuda_quantize_rows(type, fw, rows, m, k, NULL, 0));
        CHECK_OK(gcuda_backend_tensor_set(w, rows, 0, gcuda_nbytes(w)));
        for (int i = 0; i < 5; ++i) {
            CHECK_OK(gcuda_backend_tensor_set_async(backend, x, fx, 0, gcuda_nbytes(x)));
            CHECK_OK(gcuda_backend_graph_compute_async(backend, graph));
        }
        CHECK_OK(gcuda_backend_tensor_get_async(backend, y, out, 0, gcuda_nbytes(y)));
        CHECK_OK(gcuda_backend_synchronize(backend));
    } else {
        CHECK_MSG(false, "%s", gcuda_last_error());
    }
    free(rows);
    free(fw);
    free(fx);
    gcuda_backend_buffer_free(bw);
    gcuda_backend_buffer_free(bx);
    gcuda_free(cw);
    gcuda_free(cx);
    return out;
}

// Relative squared error of a product in F32, and whether cuBLAS has made it.
static double error_of(enum gcuda_cuda_switch full_precision, bool * by_cublas) {
    enum { K = 512, M = 256, N = 64 };
    struct gcuda_cuda_params params = params_of(0);
    struct gcuda_cuda_stats stats;
    params.full_precision = full_precision;
    gcuda_backend_t backend = gcuda_backend_cuda_init_params(&params);
    float *fw = random_floats(K * M, 1), *fx = random_floats(K * N, 2);
    float * y = product(backend, gcuda_backend_get_default_buffer_type(backend), GCUDA_TYPE_F32, K, M, N);
    double error = 0.0, size = 0.0;
    for (int i = 0; i < M * N; ++i) {
        double sum = 0.0;
        for (int k = 0; k < K; ++k) { sum += (double) fw[i % M * K + k] * (double) fx[i / M * K + k]; }
        error += (sum - (double) y[i]) * (sum - (double) y[i]);
        size += sum * sum;
    }
    CHECK_OK(gcuda_backend_cuda_get_stats(backend, &stats));
    *by_cublas = stats.by[GCUDA_CUDA_PURPOSE_WORKSPACE].reserved > 0;
    free(fw);
    free(fx);
    free(y);
    gcuda_backend_free(backend);
    return error / size;
}

TEST(full_precision_where_it_is_asked_for) {
    bool by_cublas = false;
    const double rounded = error_of(GCUDA_CUDA_OFF, &by_cublas), full = error_of(GCUDA_CUDA_ON, &by_cublas);
    printf("  relative squared error of F32 products: %.1e, in full precision %.1e\n", rounded, full);
    if (by_cublas) { CHECK(full < 1e-12 && rounded > 1e-10); }
}

// gcuda's own kernels sum each row the same way for any number of rows; cuBLAS may choose another kernel for fewer.
static void compare(const float * got, const float * wanted, int64_t n, bool is_exact, const char * name) {
    double error = 0.0, size = 0.0;
    for (int64_t i = 0; i < n; ++i) {
        error += ((double) got[i] - (double) wanted[i]) * ((double) got[i] - (double) wanted[i]);
        size += (double) wanted[i] * (double) wanted[i];
    }
    CHECK_MSG(size > 0.0 && error <= 1e-8 * size, "%s: relative squared error %g", name, error / size);
    if (is_exact) { CHECK_MSG(memcmp(got, wanted, (size_t) n * 4) == 0, "%s: other bits", name); }
}

static uint64_t graph_launches(gcuda_backend_t backend) {
    struct gcuda_cuda_plan_stats stats;
    memset(&stats, 0, sizeof stats);
    CHECK_OK(gcuda_backend_cuda_get_plan_stats(backend, &stats));
    return stats.n_graph_launches;
}

static bool is_all_direct(int device) {
    struct gcuda_cuda_peer peer;
    bool is_direct = true;
    for (int i = 0; i < n_devices(); ++i) {
        is_direct = is_direct && (i == device || (gcuda_backend_cuda_get_peer(device, i, &peer) == GCUDA_STATUS_SUCCESS && peer.is_in_use));
    }
    return is_direct;
}

TEST(split_products_are_those_of_one_device) {
    static const enum gcuda_type types[] = { GCUDA_TYPE_F32, GCUDA_TYPE_F16, GCUDA_TYPE_Q4_0, GCUDA_TYPE_Q8_0,
        GCUDA_TYPE_Q4_K };
    static const int64_t columns[] = { 1, 7, 130 };
    const int main_device = n_devices() - 1;
    float shares[GCUDA_CUDA_MAX_DEVICES];
    for (int i = 0; i < GCUDA_CUDA_MAX_DEVICES; ++i) { shares[i] = i < n_devices() ? (float) (i + 1) : 0.0f; }
    gcuda_backend_buffer_type_t t =
        gcuda_backend_cuda_split_buffer_type(main_device, shares, GCUDA_CUDA_MAX_DEVICES);
    for (int turn = 0; turn < 3; ++turn) { // any number of columns directly; none; those with few
        struct gcuda_cuda_params params = params_of(main_device);
        params.peer = turn == 1 ? GCUDA_CUDA_PEER_OFF : GCUDA_CUDA_PEER_AUTO;
        params.peer_max_batch = turn == 0 ? -1 : 5;
        gcuda_backend_t backend = gcuda_backend_cuda_init_params(&params);
        REQUIRE(t != NULL && backend != NULL);
        for (int i = 0; i < 15; ++i) {
            const enum gcuda_type type = types[i / 3];
            const int64_t n = columns[i % 3], k = 1024, m = 2500;
            char name[96];
            snprintf(name, sizeof name, "%s, %lld columns, turn %d", gcuda_type_name(type), (long long) n, turn);
            float * wanted = product(backend, gcuda_backend_get_default_buffer_type(backend), type, k, m, n);
            const uint64_t before = graph_launches(backend);
            float * got = product(backend, t, type, k, m, n);
            if (turn == 0 && is_all_direct(main_device)) { // copies between devices among them
                CHECK_MSG(graph_launches(backend) > before, "%s: never a CUDA graph", name);
            }
            compare(got, wanted, m * n, n < 9 && gcuda_is_quantized(type), name);
            free(wanted);
            free(got);
        }
        gcuda_backend_free(backend);
    }
}

// In strips, on devices with warp-group instructions: with a CUDA graph and without, columns rounded by the main device or by each, rows
// shared out evenly or not. Sums may be cut otherwise than those of one device.
TEST(split_products_of_many_columns) {
    static const struct {
        enum gcuda_type type;
        int64_t m, n, split_columns;
    } cases[] = { { GCUDA_TYPE_Q4_0, 9000, 300, 0 }, { GCUDA_TYPE_Q4_K, 4500, 513, 0 }, { GCUDA_TYPE_Q8_0, 16000, 1100, 256 },
        { GCUDA_TYPE_Q4_0, 20000, 513, 512 }, { GCUDA_TYPE_Q6_K, 4500, 400, 128 }, { GCUDA_TYPE_Q4_0, 9000, 400, -1 } };
    const int main_device = n_devices() - 1;
    for (int i = 0; i < 12; ++i) {
        const int c = i / 2;
        float shares[GCUDA_CUDA_MAX_DEVICES], * got[2];
        char name[96];
        snprintf(name, sizeof name, "%s, %d columns in strips of %d, %s", gcuda_type_name(cases[c].type), (int) cases[c].n,
            (int) cases[c].split_columns, i % 2 ? "uneven" : "even");
        for (int k = 0; k < GCUDA_CUDA_MAX_DEVICES; ++k) { shares[k] = k < n_devices() ? (float) (1 + k * (i % 2)) : 0.0f; }
        gcuda_backend_buffer_type_t t = gcuda_backend_cuda_split_buffer_type(main_device, shares, GCUDA_CUDA_MAX_DEVICES);
        float * wanted = NULL;
        for (int k = 0; k < 2; ++k) {
            struct gcuda_cuda_params params = params_of(main_device);
            params.peer_max_batch = -1;
            params.graphs = k == 0 ? GCUDA_CUDA_AUTO : GCUDA_CUDA_OFF;
            params.split_columns = cases[c].split_columns;
            gcuda_backend_t backend = gcuda_backend_cuda_init_params(&params);
            REQUIRE(t != NULL && backend != NULL);
            if (k == 0) {
                wanted = product(backend, gcuda_backend_get_default_buffer_type(backend), cases[c].type, 4096, cases[c].m, cases[c].n);
            }
            got[k] = product(backend, t, cases[c].type, 4096, cases[c].m, cases[c].n);
            gcuda_backend_free(backend);
        }
        compare(got[0], wanted, cases[c].m * cases[c].n, false, name);
        compare(got[1], got[0], cases[c].m * cases[c].n, true, name);
        free(got[0]);
        free(got[1]);
        free(wanted);
    }
}
