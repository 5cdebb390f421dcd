// All devices of this machine together: the probe of each pair, copies on every path, whole networks through the
// scheduler. Products with row-split weights and experts are compared with those of one device. With a single device
// all but the scheduler's tests run. Public interface alone.
//
// In the simulation, without what is large: GCUDA_SIM_DEVICES=2 build/sim/test-peers --filter scheduler, and
// split_experts
#include "device.h"

#include <math.h>

#include "sched-test.h"

static int n_devices(void) { return gcuda_backend_cuda_get_device_count(); }

// GCUDA_TEST_POOL=best_fit: compute-sanitizer takes a bulk copy that goes from one mapping of a pool into the next, in
// one range of addresses, for one that is out of bounds.
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
            CHECK(p.is_probed && p.path != GCUDA_CUDA_PEER_PATH_UNKNOWN);
            CHECK(p.is_in_use == (p.reason[0] == '\0'));
            printf("  CUDA%d to CUDA%d: %s%s%s%s\n", i, k, routes[p.path], p.is_linked ? ", linked" : "",
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

// Two of the experts for each column.
static bool set_ids(struct gcuda_tensor * ids, int n_experts) {
    const int n = (int) gcuda_nelements(ids);
    int32_t * values = (int32_t *) malloc((size_t) n * sizeof *values);
    for (int i = 0; i < n; ++i) { values[i] = (i / 2 * 5 + i % 2 * 3) % n_experts; }
    const bool is_ok = CHECK_OK(gcuda_backend_tensor_set(ids, values, 0, gcuda_nbytes(ids)));
    free(values);
    return is_ok;
}

// w x, a few times in a row without waiting; the caller frees the result. n_experts > 0: the weight is that of experts.
static float * product_of(gcuda_backend_t backend, gcuda_backend_buffer_type_t t, enum gcuda_type type, int64_t k,
    int64_t m, int64_t n, int n_experts) {
    struct gcuda_context *cw = new_context(), *cx = new_context();
    struct gcuda_tensor * w = gcuda_new_tensor_3d(cw, type, k, m, n_experts > 0 ? n_experts : 1);
    struct gcuda_tensor * x = gcuda_new_tensor_2d(cx, GCUDA_TYPE_F32, k, n);
    struct gcuda_tensor * ids = n_experts > 0 ? gcuda_new_tensor_2d(cx, GCUDA_TYPE_I32, 2, n) : NULL;
    struct gcuda_tensor * y =
        ids ? gcuda_mul_mat_id(cx, w, gcuda_reshape_3d(cx, x, k, 1, n), ids) : gcuda_mul_mat(cx, w, x);
    struct gcuda_cgraph * graph = gcuda_new_graph(cx);
    CHECK_OK(gcuda_build_forward_expand(graph, y));
    gcuda_backend_buffer_t bw = gcuda_backend_alloc_ctx_tensors_from_buft(cw, t),
                           bx = gcuda_backend_alloc_ctx_tensors(cx, backend);
    float *fw = random_floats(gcuda_nelements(w), 1), *fx = random_floats(k * n, 2),
          *out = (float *) malloc(gcuda_nbytes(y));
    void * rows = malloc(gcuda_nbytes(w));
    if (bw != NULL && bx != NULL && out != NULL && rows != NULL && (ids == NULL || set_ids(ids, n_experts))) {
        CHECK_OK(gcuda_quantize_rows(type, fw, rows, gcuda_nrows(w), k, NULL, 0));
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

static float * product(
    gcuda_backend_t backend, gcuda_backend_buffer_type_t t, enum gcuda_type type, int64_t k, int64_t m, int64_t n) {
    return product_of(backend, t, type, k, m, n, 0);
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
static void compare_within(
    const float * got, const float * wanted, int64_t n, double bound, bool is_exact, const char * name) {
    double error = 0.0, size = 0.0;
    for (int64_t i = 0; i < n; ++i) {
        error += ((double) got[i] - (double) wanted[i]) * ((double) got[i] - (double) wanted[i]);
        size += (double) wanted[i] * (double) wanted[i];
    }
    CHECK_MSG(size > 0.0 && error <= bound * size, "%s: relative squared error %g", name, error / size);
    if (is_exact) { CHECK_MSG(memcmp(got, wanted, (size_t) n * 4) == 0, "%s: other bits", name); }
}

static void compare(const float * got, const float * wanted, int64_t n, bool is_exact, const char * name) {
    compare_within(got, wanted, n, 1e-8, is_exact, name);
}

static bool is_all_direct(int device) {
    struct gcuda_cuda_peer peer;
    bool is_direct = true;
    for (int i = 0; i < n_devices(); ++i) {
        is_direct =
            is_direct &&
            (i == device || (gcuda_backend_cuda_get_peer(device, i, &peer) == GCUDA_STATUS_SUCCESS && peer.is_in_use));
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
    gcuda_backend_buffer_type_t t = gcuda_backend_cuda_split_buffer_type(main_device, shares, GCUDA_CUDA_MAX_DEVICES);
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

// Strips, on devices with wgmma: with a CUDA graph and without; activations quantized by the main device or by each;
// rows distributed evenly or not. Split-K may differ from that of one device.
TEST(split_products_of_many_columns) {
    static const struct {
        enum gcuda_type type;
        int64_t m, n, split_columns;
    } cases[] = { { GCUDA_TYPE_Q4_0, 9000, 300, 0 }, { GCUDA_TYPE_Q4_K, 4500, 513, 0 },
        { GCUDA_TYPE_Q8_0, 16000, 1100, 256 }, { GCUDA_TYPE_Q4_0, 20000, 513, 512 },
        { GCUDA_TYPE_Q6_K, 4500, 400, 128 }, { GCUDA_TYPE_Q4_0, 9000, 400, -1 } };
    const int main_device = n_devices() - 1;
    for (int i = 0; i < 12; ++i) {
        const int c = i / 2;
        float shares[GCUDA_CUDA_MAX_DEVICES], *got[2];
        char name[96];
        snprintf(name, sizeof name, "%s, %d columns in strips of %d, %s", gcuda_type_name(cases[c].type),
            (int) cases[c].n, (int) cases[c].split_columns, i % 2 ? "uneven" : "even");
        for (int k = 0; k < GCUDA_CUDA_MAX_DEVICES; ++k) {
            shares[k] = k < n_devices() ? (float) (1 + k * (i % 2)) : 0.0f;
        }
        gcuda_backend_buffer_type_t t =
            gcuda_backend_cuda_split_buffer_type(main_device, shares, GCUDA_CUDA_MAX_DEVICES);
        float * wanted = NULL;
        for (int k = 0; k < 2; ++k) {
            struct gcuda_cuda_params params = params_of(main_device);
            params.peer_max_batch = -1;
            params.graphs = k == 0 ? GCUDA_CUDA_AUTO : GCUDA_CUDA_OFF;
            params.split_columns = cases[c].split_columns;
            gcuda_backend_t backend = gcuda_backend_cuda_init_params(&params);
            REQUIRE(t != NULL && backend != NULL);
            if (k == 0) {
                wanted = product(backend, gcuda_backend_get_default_buffer_type(backend), cases[c].type, 4096,
                    cases[c].m, cases[c].n);
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

// Rows of every expert on every device, evenly or not, directly and through the host. On tensor cores the number of
// rows says how sums are cut.
TEST(split_experts_are_those_of_one_device) {
    enum { K = 256, M = 1000, N_EXPERTS = 8 };
    static const enum gcuda_type types[] = { GCUDA_TYPE_F32, GCUDA_TYPE_F16, GCUDA_TYPE_Q4_0, GCUDA_TYPE_Q8_0,
        GCUDA_TYPE_Q4_K };
    static const int64_t columns[] = { 1, 4, 60 };
    const int main_device = n_devices() - 1;
    for (int turn = 0; turn < 3; ++turn) { // directly, with a CUDA graph and without; through the host
        float shares[GCUDA_CUDA_MAX_DEVICES];
        for (int i = 0; i < GCUDA_CUDA_MAX_DEVICES; ++i) {
            shares[i] = i < n_devices() ? (float) (1 + i * (turn % 2)) : 0.0f;
        }
        gcuda_backend_buffer_type_t t =
            gcuda_backend_cuda_split_buffer_type(main_device, shares, GCUDA_CUDA_MAX_DEVICES);
        struct gcuda_cuda_params params = params_of(main_device);
        params.peer = turn == 2 ? GCUDA_CUDA_PEER_OFF : GCUDA_CUDA_PEER_AUTO;
        params.peer_max_batch = -1;
        params.graphs = turn == 0 ? GCUDA_CUDA_AUTO : GCUDA_CUDA_OFF;
        gcuda_backend_t backend = gcuda_backend_cuda_init_params(&params);
        REQUIRE(t != NULL && backend != NULL);
        for (int i = 0; i < 15; ++i) {
            const enum gcuda_type type = types[i / 3];
            const int64_t n = columns[i % 3];
            char name[96];
            snprintf(name, sizeof name, "%s, %d tokens, turn %d", gcuda_type_name(type), (int) n, turn);
            float * wanted =
                product_of(backend, gcuda_backend_get_default_buffer_type(backend), type, K, M, n, N_EXPERTS);
            float * got = product_of(backend, t, type, K, M, n, N_EXPERTS);
            compare(got, wanted, M * 2 * n, 2 * n < 9 && gcuda_is_quantized(type), name);
            free(wanted);
            free(got);
        }
        gcuda_backend_free(backend);
    }
}

// ---- networks through the scheduler ----

enum { N_LAYERS = 4, N_RUNS = 6 };
enum placing { ON_ONE, ON_EACH, SPLIT }; // layers: on the last device; on all, in order; with rows on all, for the last

static gcuda_backend_buffer_type_t placed(int layer, void * user) {
    const enum placing how = *(const enum placing *) user;
    float shares[GCUDA_CUDA_MAX_DEVICES];
    for (int i = 0; i < GCUDA_CUDA_MAX_DEVICES; ++i) { shares[i] = i < n_devices() ? 1.0f : 0.0f; }
    return how == SPLIT
               ? gcuda_backend_cuda_split_buffer_type(n_devices() - 1, shares, GCUDA_CUDA_MAX_DEVICES)
               : gcuda_backend_cuda_buffer_type(how == ON_ONE ? n_devices() - 1 : layer * n_devices() / N_LAYERS);
}

// Runs queued one after the other, each with other inputs, in new descriptions or the same.
static gcuda_status queue_runs(gcuda_backend_sched_t sched, struct net * net, bool is_anew, float * out) {
    gcuda_status st = GCUDA_STATUS_SUCCESS;
    for (int run = 0; run < N_RUNS && st == GCUDA_STATUS_SUCCESS; ++run) {
        if (is_anew || run == 0) {
            gcuda_backend_sched_reset(sched);
            st = net_build(net) ? gcuda_backend_sched_alloc_graph(sched, net->graph) : GCUDA_STATUS_FAILED;
        }
        if (st == GCUDA_STATUS_SUCCESS) { st = net_set(net, (uint64_t) run); }
        if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_backend_sched_graph_compute_async(sched, net->graph); }
        if (st == GCUDA_STATUS_SUCCESS) {
            gcuda_backend_t last = gcuda_backend_sched_get_tensor_backend(sched, net->out);
            st = gcuda_backend_tensor_get_async(
                last, net->out, out + run * gcuda_nelements(net->out), 0, gcuda_nbytes(net->out));
        }
    }
    const gcuda_status end = gcuda_backend_sched_synchronize(sched);
    return st == GCUDA_STATUS_SUCCESS ? end : st;
}

// By all devices and the CPU. The results are in page-locked memory, so that getting them does not wait.
static gcuda_backend_buffer_t scheduled(
    enum net_kind kind, int64_t n_tokens, enum gcuda_type type, enum placing how, bool is_anew) {
    gcuda_backend_t backends[GCUDA_CUDA_MAX_DEVICES + 1];
    struct gcuda_backend_sched_params p;
    struct net net;
    const int n = n_devices();
    memset(&p, 0, sizeof p);
    memset(&net, 0, sizeof net);
    for (int i = 0; i < n; ++i) {
        struct gcuda_cuda_params params = params_of(i);
        params.strict = true; // a layer's end is fused with the next one's beginning only where they are on one device
        backends[i] = gcuda_backend_cuda_init_params(&params);
    }
    backends[n] = gcuda_backend_cpu_init();
    p.backends = backends, p.n_backends = n + 1, p.n_copies = 4;
    gcuda_backend_sched_t sched = gcuda_backend_sched_new_params(&p);
    gcuda_backend_buffer_t out = gcuda_backend_buft_alloc_buffer(
        gcuda_backend_cuda_host_buffer_type(), (size_t) (N_RUNS * net_wide * NET_D * n_tokens) * sizeof(float));
    if (sched != NULL && out != NULL && net_begin(&net, kind, N_LAYERS, n_tokens, type, placed, &how)) {
        CHECK_OK(queue_runs(sched, &net, is_anew, (float *) gcuda_backend_buffer_get_base(out)));
        if (how == ON_EACH) { CHECK(gcuda_backend_sched_get_n_splits(sched) == (n < N_LAYERS ? n : N_LAYERS)); }
    } else {
        CHECK_MSG(false, "%s", gcuda_last_error());
    }
    net_end(&net);
    gcuda_backend_sched_free(sched);
    for (int i = 0; i <= n; ++i) { gcuda_backend_free(backends[i]); }
    return out;
}

static void compare_scheduled(enum net_kind kind, int64_t n_tokens, enum gcuda_type type) {
    const int64_t n = N_RUNS * net_wide * NET_D * n_tokens;
    gcuda_backend_buffer_t whole = scheduled(kind, n_tokens, type, ON_ONE, false);
    for (int i = 0; i < 4 && whole != NULL; ++i) {
        const enum placing how = i < 2 ? ON_EACH : SPLIT;
        char name[96];
        snprintf(name, sizeof name, "%s, %s, %d tokens, %s, %s descriptions",
            kind == NET_EXPERTS ? "experts" : "transformer", gcuda_type_name(type), (int) n_tokens,
            how == SPLIT ? "split" : "layer by layer", i % 2 ? "new" : "the same");
        gcuda_backend_buffer_t got = scheduled(kind, n_tokens, type, how, i % 2 == 1);
        if (got != NULL) {
            compare_within((const float *) gcuda_backend_buffer_get_base(got),
                (const float *) gcuda_backend_buffer_get_base(whole), n, 1e-6, how == ON_EACH, name);
        }
        gcuda_backend_buffer_free(got);
    }
    gcuda_backend_buffer_free(whole);
}

// Layer by layer over all devices the bits are those of the last device alone. With split weights a sum may differ in
// its last bit, and that may be the last one of 16 where experts round it.
TEST(networks_through_a_scheduler_are_those_of_one_device) {
    if (n_devices() < 2) {
        test_skip("one device");
        return;
    }
    net_wide = NET_MAX_WIDE;
    compare_scheduled(NET_TRANSFORMER, 5, GCUDA_TYPE_F32);
    compare_scheduled(NET_TRANSFORMER, 1, GCUDA_TYPE_Q8_0);
    compare_scheduled(NET_EXPERTS, 1, GCUDA_TYPE_Q4_0);
    compare_scheduled(NET_EXPERTS, 5, GCUDA_TYPE_F32);
    net_wide = 1;
}
