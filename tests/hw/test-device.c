// Behaviour of a real device: memory that runs out, contexts, streams and threads of the driver, captures concurrent
// with other work, peers. It uses the public interface alone, so it also runs on the simulated device (make
// build/sim/test-device, GCUDA_SIM_DEVICES=2 for the last tests). Built and run by `make test-gpu`.
#include "test.h"

#include <cuda_runtime_api.h>
#include <pthread.h>

#define MIB ((size_t) 1 << 20)

// =====================================================================================================================
// >>model   y = w x, then soft_max: a product, scratch and a row kernel
// =====================================================================================================================
struct model {
    gcuda_backend_t backend;
    struct gcuda_context * ctx;
    gcuda_backend_buffer_t buffer;
    struct gcuda_tensor *w, *x, *y;
    struct gcuda_cgraph * graph;
};
enum { ROWS = 256, DEPTH = 512, COLUMNS = 64, N_OUT = ROWS * COLUMNS };

static float * numbers(int64_t n, uint64_t seed) {
    float * out = (float *) malloc((size_t) n * sizeof *out);
    struct rng rng = { seed };
    for (int64_t i = 0; i < n; ++i) { out[i] = (float) rng_between(&rng, -1.0, 1.0); }
    return out;
}

static void set_numbers(struct gcuda_tensor * t, uint64_t seed) {
    float * data = numbers(gcuda_nelements(t), seed);
    CHECK_OK(gcuda_backend_tensor_set(t, data, 0, gcuda_nbytes(t)));
    free(data);
}

static void model_free(struct model * m) {
    gcuda_backend_buffer_free(m->buffer);
    gcuda_free(m->ctx);
    gcuda_backend_free(m->backend);
    memset(m, 0, sizeof *m);
}

// On a backend that the model then owns.
static bool model_make(struct model * m, gcuda_backend_t backend) {
    const struct gcuda_init_params params = { 0, NULL, true };
    memset(m, 0, sizeof *m);
    m->backend = backend;
    m->ctx = gcuda_init(params);
    m->w = gcuda_new_tensor_2d(m->ctx, GCUDA_TYPE_F16, DEPTH, ROWS);
    m->x = gcuda_new_tensor_2d(m->ctx, GCUDA_TYPE_F32, DEPTH, COLUMNS);
    m->y = gcuda_soft_max(m->ctx, gcuda_mul_mat(m->ctx, m->w, m->x));
    m->graph = gcuda_new_graph(m->ctx);
    m->buffer = backend ? gcuda_backend_alloc_ctx_tensors(m->ctx, backend) : NULL;
    if (m->buffer == NULL || !CHECK_OK(gcuda_build_forward_expand(m->graph, m->y))) {
        test_failed(__FILE__, __LINE__, "no model: %s", gcuda_last_error());
        model_free(m);
        return false;
    }
    gcuda_fp16_t * half = (gcuda_fp16_t *) malloc(gcuda_nbytes(m->w));
    float * data = numbers(gcuda_nelements(m->w), 7);
    gcuda_fp32_to_fp16_row(data, half, gcuda_nelements(m->w));
    CHECK_OK(gcuda_backend_tensor_set(m->w, half, 0, gcuda_nbytes(m->w)));
    free(half);
    free(data);
    set_numbers(m->x, 8);
    return true;
}

static float * model_result(struct model * m) {
    float * out = (float *) calloc(N_OUT, sizeof *out);
    CHECK_OK(gcuda_backend_graph_compute(m->backend, m->graph));
    CHECK_OK(gcuda_backend_tensor_get(m->y, out, 0, N_OUT * sizeof *out));
    return out;
}

// Compares with the CPU's result, as closely as half precision allows.
static bool result_is_right(const float * got) {
    struct model m;
    double worst = 0.0;
    if (!model_make(&m, gcuda_backend_cpu_init())) { return false; }
    float * want = model_result(&m);
    for (int i = 0; i < N_OUT; ++i) { worst = fmax(worst, fabs((double) got[i] - (double) want[i])); }
    CHECK_MSG(worst < 2e-3, "differs from the CPU by %g", worst);
    free(want);
    model_free(&m);
    return worst < 2e-3;
}

static bool model_works(gcuda_backend_t backend) { // and is freed
    struct model m;
    if (!model_make(&m, backend)) { return false; }
    float * got = model_result(&m);
    const bool ok = result_is_right(got);
    free(got);
    model_free(&m);
    return ok;
}

static size_t free_memory(int device) {
    size_t n_free = 0, n_total = 0;
    CHECK_OK(gcuda_backend_cuda_get_device_memory(device, &n_free, &n_total));
    return n_free;
}

// =====================================================================================================================
// >>one device
// =====================================================================================================================
TEST(devices_say_what_they_are) {
    const int n = gcuda_backend_cuda_get_device_count();
    CHECK(n > 0);
    for (int i = 0; i < n; ++i) {
        struct gcuda_cuda_device_info info;
        CHECK_OK(gcuda_backend_cuda_get_device_info(i, &info));
        CHECK(info.name[0] != '\0' && info.cc >= 600 && info.n_sm > 0 && info.total_bytes >= 64 * MIB);
        CHECK(info.shared_bytes >= 48 * 1024 && info.warp_size == 32);
        CHECK_EQ_I(gcuda_backend_cuda_find_device(info.pci), i);
        CHECK_EQ_I(gcuda_backend_cuda_find_device(info.uuid), i);
        printf("  CUDA%d: %s, capability %d.%d, %d multiprocessors\n", i, info.name, info.cc / 100, info.cc / 10 % 10,
            info.n_sm);
    }
}

static bool is_simulated(int device) { // there time is that of a processor which others use too
    struct gcuda_cuda_device_info info;
    CHECK_OK(gcuda_backend_cuda_get_device_info(device, &info));
    return strstr(info.name, "Simulated") != NULL;
}

TEST(the_selftest_passes_within_a_second) {
    for (int i = 0; i < gcuda_backend_cuda_get_device_count(); ++i) {
        struct gcuda_cuda_selftest_result r;
        CHECK(model_works(gcuda_backend_cuda_init(i))); // the context, which takes longer, and modules
        CHECK_OK(gcuda_cuda_selftest(i, &r));
        CHECK_MSG(r.n_failed == 0 && r.n_passed > 0 && r.message[0] == '\0', "%s", r.message);
        CHECK_MSG(r.ms < 1000.0f || is_simulated(i), "%g ms", (double) r.ms);
        printf("  CUDA%d: self-test, %d families in %.1f ms, code for %d.%d\n", i, r.n_passed, (double) r.ms,
            r.binary_cc / 100, r.binary_cc / 10 % 10);
    }
}

TEST(more_memory_than_there_is) {
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    size_t n_free = 0, n_total = 0;
    CHECK_OK(gcuda_backend_cuda_get_device_memory(0, &n_free, &n_total));
    CHECK(gcuda_backend_alloc_buffer(backend, n_total + n_total / 2) == NULL);
    CHECK_HAS(gcuda_last_error(), "CUDA0");
    CHECK(cudaPeekAtLastError() == cudaSuccess); // nothing is left for the caller's next call to stumble over
    CHECK(model_works(backend));
}

TEST(a_budget_holds_and_is_no_loss) {
    struct gcuda_cuda_params params;
    struct gcuda_cuda_stats stats;
    struct model m;
    memset(&params, 0, sizeof params);
    params.memory_budget = 4 * MIB; // less than some scratch, which is then refused or done without
    if (!model_make(&m, gcuda_backend_cuda_init_params(&params))) { return; }
    (void) gcuda_backend_graph_compute(m.backend, m.graph);
    CHECK_OK(gcuda_backend_cuda_get_stats(m.backend, &stats));
    CHECK_MSG(stats.peak <= stats.budget, "%zu bytes held, the budget is %zu", stats.peak, stats.budget);
    model_free(&m);
    CHECK(model_works(gcuda_backend_cuda_init(0)));
}

TEST(created_and_destroyed_without_growth) {
    CHECK(model_works(gcuda_backend_cuda_init(0))); // the context, modules and cuBLAS's own
    const size_t before = free_memory(0);
    for (int i = 0; i < (test_full() ? 200 : 10); ++i) {
        struct model m;
        if (!model_make(&m, gcuda_backend_cuda_init(0))) { return; }
        CHECK_OK(gcuda_backend_graph_compute(m.backend, m.graph));
        model_free(&m);
    }
    const size_t after = free_memory(0);
    CHECK_MSG(after + 32 * MIB >= before, "%zu MiB are gone", (before - after) / MIB);
}

TEST(on_the_callers_stream_and_memory) {
    struct gcuda_cuda_params params;
    const struct gcuda_init_params ctx_params = { 0, NULL, true };
    void * memory = NULL;
    cudaStream_t stream = NULL;
    CHECK(cudaSetDevice(0) == cudaSuccess && cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    CHECK(cudaMalloc(&memory, 4096) == cudaSuccess);
    memset(&params, 0, sizeof params);
    params.stream = stream;
    gcuda_backend_t backend = gcuda_backend_cuda_init_params(&params);
    gcuda_backend_buffer_t buffer = gcuda_backend_cuda_buffer_from_ptr(0, memory, 4096);
    struct gcuda_context * ctx = gcuda_init(ctx_params);
    struct gcuda_tensor * x = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F32, 256);
    struct gcuda_tensor * y = gcuda_scale_inplace(ctx, x, 2.0f);
    struct gcuda_cgraph * graph = gcuda_new_graph(ctx);
    CHECK(gcuda_backend_cuda_get_stream(backend) == stream);
    CHECK_OK(gcuda_backend_tensor_alloc(buffer, x, memory));
    CHECK_OK(gcuda_backend_view_init(y));
    CHECK_OK(gcuda_build_forward_expand(graph, y));
    float *data = numbers(256, 3), got[256];
    CHECK(cudaMemcpyAsync(memory, data, 1024, cudaMemcpyHostToDevice, stream) == cudaSuccess);
    CHECK_OK(gcuda_backend_graph_compute_async(backend, graph)); // after the caller's copy, before the caller's next
    CHECK(cudaMemcpyAsync(got, memory, 1024, cudaMemcpyDeviceToHost, stream) == cudaSuccess);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    for (int i = 0; i < 256; ++i) { CHECK(got[i] == 2.0f * data[i]); }
    free(data);
    gcuda_free(ctx);
    gcuda_backend_buffer_free(buffer);
    gcuda_backend_free(backend);
    CHECK(cudaFree(memory) == cudaSuccess && cudaStreamDestroy(stream) == cudaSuccess);
}

static bool stops_at(void * data) { return ++*(int *) data > 3; }

TEST(a_graph_that_is_stopped) {
    const struct gcuda_init_params params = { 0, NULL, true };
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    struct gcuda_context * ctx = gcuda_init(params);
    struct gcuda_tensor *x = gcuda_new_tensor_2d(ctx, GCUDA_TYPE_F32, 1024, 256), *y = x;
    struct gcuda_cgraph * graph = gcuda_new_graph(ctx);
    int n_asked = 0;
    for (int i = 0; i < 1000; ++i) { y = gcuda_scale_inplace(ctx, y, 1.0f); }
    gcuda_backend_buffer_t buffer = gcuda_backend_alloc_ctx_tensors(ctx, backend);
    CHECK_OK(gcuda_build_forward_expand(graph, y));
    set_numbers(x, 5);
    CHECK_OK(gcuda_backend_graph_compute(backend, graph));
    CHECK_OK(gcuda_backend_cuda_set_abort_callback(backend, stops_at, &n_asked, 0.05f));
    CHECK_EQ_I(gcuda_backend_graph_compute(backend, graph), GCUDA_STATUS_ABORTED);
    CHECK_OK(gcuda_backend_cuda_set_abort_callback(backend, NULL, NULL, 0.0f));
    CHECK_OK(gcuda_backend_graph_compute(backend, graph));
    float *got = (float *) malloc(gcuda_nbytes(x)), *want = numbers(gcuda_nelements(x), 5);
    CHECK_OK(gcuda_backend_tensor_get(x, got, 0, gcuda_nbytes(x)));
    CHECK(memcmp(got, want, gcuda_nbytes(x)) == 0); // times 1, however often
    free(got);
    free(want);
    gcuda_backend_buffer_free(buffer);
    gcuda_free(ctx);
    gcuda_backend_free(backend);
}

TEST(what_is_uploaded_comes_back) {
    const struct gcuda_init_params params = { 0, NULL, true };
    const int64_t n = (int64_t) (test_full() ? 256 : 4) * (int64_t) MIB / 4 + 3;
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    struct gcuda_context * ctx = gcuda_init(params);
    struct gcuda_tensor * x = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F32, n);
    gcuda_backend_buffer_t buffer = gcuda_backend_alloc_ctx_tensors(ctx, backend);
    struct gcuda_cuda_uploader * up = gcuda_cuda_uploader_new(NULL);
    float *data = numbers(n, 9), *got = (float *) calloc((size_t) n, 4);
    CHECK(buffer != NULL && up != NULL);
    CHECK_OK(gcuda_cuda_upload(up, x, data, 0, gcuda_nbytes(x), NULL));
    CHECK_OK(gcuda_cuda_download(up, x, got, 0, gcuda_nbytes(x), NULL));
    CHECK_OK(gcuda_cuda_upload_wait(up, 0));
    CHECK(memcmp(data, got, gcuda_nbytes(x)) == 0);
    gcuda_cuda_uploader_free(up);
    free(data);
    free(got);
    gcuda_backend_buffer_free(buffer);
    gcuda_free(ctx);
    gcuda_backend_free(backend);
}

// =====================================================================================================================
// >>threads
// =====================================================================================================================
struct worker {
    pthread_t thread;
    int n_rounds, n_bad;
    float * first;
};

static void * compute_often(void * user) {
    struct worker * w = (struct worker *) user;
    struct model m;
    if (!model_make(&m, gcuda_backend_cuda_init(0))) { return NULL; }
    for (int i = 0; i < w->n_rounds; ++i) {
        float * got = model_result(&m);
        if (w->first == NULL) {
            w->first = got;
        } else {
            w->n_bad += memcmp(got, w->first, N_OUT * sizeof *got) != 0;
            free(got);
        }
    }
    model_free(&m);
    return NULL;
}

TEST(backends_on_threads_give_the_same_bits) {
    struct worker workers[4];
    memset(workers, 0, sizeof workers);
    for (int i = 0; i < 4; ++i) {
        workers[i].n_rounds = test_full() ? 50 : 4;
        CHECK(pthread_create(&workers[i].thread, NULL, compute_often, &workers[i]) == 0);
    }
    for (int i = 0; i < 4; ++i) {
        CHECK(pthread_join(workers[i].thread, NULL) == 0);
        CHECK(workers[i].n_bad == 0 && workers[i].first != NULL);
        CHECK(workers[i].first != NULL && memcmp(workers[i].first, workers[0].first, N_OUT * sizeof(float)) == 0);
    }
    if (workers[0].first != NULL) { CHECK(result_is_right(workers[0].first)); }
    for (int i = 0; i < 4; ++i) { free(workers[i].first); }
}

struct visitors { // backends that come and go
    struct worker worker;
    int n;
    pthread_mutex_t lock;
    bool are_gone;
};

static void * come_and_go(void * user) {
    struct visitors * v = (struct visitors *) user;
    for (int i = 0; i < v->n; ++i) { (void) compute_often(&v->worker); }
    pthread_mutex_lock(&v->lock);
    v->are_gone = true;
    pthread_mutex_unlock(&v->lock);
    return NULL;
}

static bool are_gone(struct visitors * v) {
    pthread_mutex_lock(&v->lock);
    const bool they_are = v->are_gone;
    pthread_mutex_unlock(&v->lock);
    return they_are;
}

static bool capture_and_replay(struct model * m, const float * want, float * got) {
    cudaStream_t stream = gcuda_backend_cuda_get_stream(m->backend);
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    if (cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) != cudaSuccess) { return false; }
    bool ok = CHECK_OK(gcuda_backend_graph_compute_async(m->backend, m->graph));
    ok = cudaStreamEndCapture(stream, &graph) == cudaSuccess && ok &&
         cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess;
    if (ok) {
        CHECK_OK(gcuda_backend_tensor_memset(m->y, 0xFF, 0, gcuda_nbytes(m->y)));
        ok = cudaGraphLaunch(exec, stream) == cudaSuccess && CHECK_OK(gcuda_backend_synchronize(m->backend)) &&
             CHECK_OK(gcuda_backend_tensor_get(m->y, got, 0, N_OUT * sizeof *got)) &&
             memcmp(got, want, N_OUT * sizeof *got) == 0;
        CHECK(cudaGraphExecDestroy(exec) == cudaSuccess);
    }
    CHECK(graph == NULL || cudaGraphDestroy(graph) == cudaSuccess);
    return ok;
}

// One thread captures again and again while another makes, uses and destroys backends.
TEST(a_capture_beside_other_work) {
    struct visitors other;
    struct model m;
    int n = 0;
    bool ok = true;
    memset(&other, 0, sizeof other);
    other.n = test_full() ? 50 : 3;
    other.worker.n_rounds = 3;
    if (!model_make(&m, gcuda_backend_cuda_init(0))) { return; }
    float *want = model_result(&m), *got = (float *) calloc(N_OUT, sizeof *got);
    CHECK(pthread_mutex_init(&other.lock, NULL) == 0 &&
          pthread_create(&other.worker.thread, NULL, come_and_go, &other) == 0);
    while (ok && !are_gone(&other)) {
        ok = capture_and_replay(&m, want, got);
        CHECK_MSG(ok, "capture %d is spoilt: %s", n, cudaGetErrorString(cudaGetLastError()));
        ++n;
    }
    CHECK(pthread_join(other.worker.thread, NULL) == 0);
    CHECK(other.worker.n_bad == 0);
    printf("  %d captures beside %d backends that came and went\n", n, other.n);
    pthread_mutex_destroy(&other.lock);
    free(other.worker.first);
    free(want);
    free(got);
    model_free(&m);
}

// =====================================================================================================================
// >>two devices
// =====================================================================================================================
// The caller's launch is an ordinary node: in order with its neighbours, with data that changes, and captured into the
// CUDA graph of repeated runs.
static gcuda_status enqueue_thirds(struct gcuda_tensor * dst, struct CUstream_st * stream, void * userdata) {
    struct gcuda_map_args args;
    memset(&args, 0, sizeof args);
    args.x.data = dst->src[0]->data;
    args.y.data = dst->data;
    args.x.type = args.y.type = GCUDA_TYPE_F32;
    for (int d = 0; d < 4; ++d) {
        args.x.ne[d] = args.y.ne[d] = dst->ne[d];
        args.x.nb[d] = dst->src[0]->nb[d];
        args.y.nb[d] = dst->nb[d];
    }
    args.p[0] = 3.0f;
    args.p[1] = 1.0f;
    ++*(int *) userdata;
    return gcuda_launch_scale(&args, stream);
}

TEST(a_callers_kernel_is_a_node) {
    enum { N = 100003 };
    const struct gcuda_init_params params = { 0, NULL, true };
    int n_calls = 0;
    const struct gcuda_custom_params custom = { NULL, enqueue_thirds, &n_calls, 0 };
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    struct gcuda_context * ctx = gcuda_init(params);
    struct gcuda_tensor *x = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F32, N), *square = gcuda_sqr(ctx, x);
    struct gcuda_tensor * y = gcuda_neg(ctx, gcuda_custom_4d_ext(ctx, GCUDA_TYPE_F32, N, 1, 1, 1, &square, 1, &custom));
    struct gcuda_cgraph * graph = gcuda_new_graph(ctx);
    gcuda_backend_buffer_t buffer = backend ? gcuda_backend_alloc_ctx_tensors(ctx, backend) : NULL;
    float * got = (float *) malloc(N * sizeof *got);
    REQUIRE(buffer != NULL && got != NULL);
    CHECK_OK(gcuda_build_forward_expand(graph, y));
    for (int turn = 0; turn < 6; ++turn) {
        float * data = numbers(N, 100 + (uint64_t) turn);
        int n_bad = 0;
        CHECK_OK(gcuda_backend_tensor_set(x, data, 0, N * sizeof *data));
        CHECK_OK(gcuda_backend_graph_compute(backend, graph));
        CHECK_OK(gcuda_backend_tensor_get(y, got, 0, N * sizeof *got));
        for (int i = 0; i < N; ++i) { n_bad += !(fabsf(got[i] + 3.0f * (data[i] * data[i]) + 1.0f) <= 1e-5f); }
        CHECK_MSG(n_bad == 0, "turn %d: %d of %d elements are wrong", turn, n_bad, N);
        free(data);
    }
    CHECK(n_calls > 0);
    free(got);
    gcuda_backend_buffer_free(buffer);
    gcuda_free(ctx);
    gcuda_backend_free(backend);
}

static bool has_two(void) {
    if (gcuda_backend_cuda_get_device_count() >= 2) { return true; }
    test_skip("one device only");
    return false;
}

TEST(the_current_device_stays) {
    if (!has_two()) { return; }
    int device = -1;
    struct gcuda_cuda_device_info second; // which may be the first once more (GCUDA_CUDA_DEVICES)
    CHECK_OK(gcuda_backend_cuda_get_device_info(1, &second));
    CHECK(cudaSetDevice(second.ordinal) == cudaSuccess);
    CHECK(model_works(gcuda_backend_cuda_init(0)));
    CHECK(cudaGetDevice(&device) == cudaSuccess && device == second.ordinal);
    CHECK(cudaSetDevice(0) == cudaSuccess);
    CHECK(model_works(gcuda_backend_cuda_init(1)));
    CHECK(cudaGetDevice(&device) == cudaSuccess && device == 0);
}

TEST(copies_between_devices) {
    const struct gcuda_init_params params = { 0, NULL, true };
    const int64_t sizes[] = { 1, 4096, 262144, (int64_t) ((test_full() ? 256 : 2) * MIB / 4) };
    if (!has_two()) { return; }
    for (int mode = GCUDA_CUDA_PEER_ON; mode <= GCUDA_CUDA_PEER_OFF; ++mode) {
        struct gcuda_cuda_params p;
        gcuda_backend_t backends[2];
        for (int i = 0; i < 2; ++i) {
            memset(&p, 0, sizeof p);
            p.device = i;
            p.peer = (enum gcuda_cuda_peer_mode) mode;
            backends[i] = gcuda_backend_cuda_init_params(&p);
        }
        for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; ++k) {
            struct gcuda_context * ctx[2] = { gcuda_init(params), gcuda_init(params) };
            struct gcuda_tensor * t[2];
            gcuda_backend_buffer_t buffer[2];
            for (int i = 0; i < 2; ++i) {
                t[i] = gcuda_new_tensor_1d(ctx[i], GCUDA_TYPE_F32, sizes[k]);
                buffer[i] = gcuda_backend_alloc_ctx_tensors(ctx[i], backends[i]);
            }
            float *data = numbers(sizes[k], 11), *got = (float *) calloc((size_t) sizes[k], 4);
            CHECK_OK(gcuda_backend_tensor_set(t[0], data, 0, gcuda_nbytes(t[0])));
            // the first makes staging memory
            CHECK_OK(gcuda_backend_tensor_copy_async(backends[0], backends[1], t[0], t[1]));
            CHECK_OK(gcuda_backend_synchronize(backends[1]));
            const int64_t t0 = gcuda_time_us();
            for (int i = 0; i < 10; ++i) {
                CHECK_OK(gcuda_backend_tensor_copy_async(backends[0], backends[1], t[0], t[1]));
            }
            CHECK_OK(gcuda_backend_synchronize(backends[0]));
            CHECK_OK(gcuda_backend_synchronize(backends[1]));
            const double us = (double) (gcuda_time_us() - t0) / 10.0;
            CHECK_OK(gcuda_backend_tensor_get(t[1], got, 0, gcuda_nbytes(t[1])));
            CHECK(memcmp(data, got, gcuda_nbytes(t[0])) == 0);
            printf("  peer access %s, %zu bytes: %.1f us, %.1f GB/s\n", mode == GCUDA_CUDA_PEER_ON ? "on " : "off",
                gcuda_nbytes(t[0]), us, (double) gcuda_nbytes(t[0]) / us * 1e-3);
            free(data);
            free(got);
            for (int i = 0; i < 2; ++i) {
                gcuda_backend_buffer_free(buffer[i]);
                gcuda_free(ctx[i]);
            }
        }
        gcuda_backend_free(backends[0]);
        gcuda_backend_free(backends[1]);
    }
    struct gcuda_cuda_peer info;
    CHECK_OK(gcuda_backend_cuda_get_peer(0, 1, &info));
    printf("  CUDA0 to CUDA1: access %s%s%s\n", info.is_in_use ? "in use" : "not in use", info.reason[0] ? ": " : "",
        info.reason);
}

// The same product from weights on one device and split over two.
TEST(a_split_product_is_the_whole_bit_for_bit) {
    const struct gcuda_init_params params = { 0, NULL, true };
    float * got[2];
    if (!has_two()) { return; }
    for (int is_split = 0; is_split < 2; ++is_split) {
        gcuda_backend_t backend = gcuda_backend_cuda_init(0);
        struct gcuda_context *ctx_w = gcuda_init(params), *ctx = gcuda_init(params);
        struct gcuda_tensor * w = gcuda_new_tensor_2d(ctx_w, GCUDA_TYPE_Q8_0, 1024, 2048);
        struct gcuda_tensor * x = gcuda_new_tensor_2d(ctx, GCUDA_TYPE_F32, 1024, 7);
        gcuda_backend_buffer_type_t split = gcuda_backend_cuda_split_buffer_type(0, NULL, 0);
        gcuda_backend_buffer_t buffer_w = is_split ? gcuda_backend_alloc_ctx_tensors_from_buft(ctx_w, split)
                                                   : gcuda_backend_alloc_ctx_tensors(ctx_w, backend);
        struct gcuda_tensor * y = gcuda_mul_mat(ctx, w, x);
        gcuda_backend_buffer_t buffer = gcuda_backend_alloc_ctx_tensors(ctx, backend);
        struct gcuda_cgraph * graph = gcuda_new_graph(ctx);
        CHECK(buffer_w != NULL && buffer != NULL);
        CHECK_OK(gcuda_build_forward_expand(graph, y));
        float * data = numbers(gcuda_nelements(w), 21);
        void * blocks = malloc(gcuda_nbytes(w));
        CHECK(gcuda_quantize_chunk(GCUDA_TYPE_Q8_0, data, blocks, 0, 2048, 1024, NULL) == gcuda_nbytes(w));
        CHECK_OK(gcuda_backend_tensor_set(w, blocks, 0, gcuda_nbytes(w)));
        set_numbers(x, 22);
        CHECK_OK(gcuda_backend_graph_compute(backend, graph));
        got[is_split] = (float *) calloc(2048 * 7, sizeof(float));
        CHECK_OK(gcuda_backend_tensor_get(y, got[is_split], 0, gcuda_nbytes(y)));
        free(data);
        free(blocks);
        gcuda_backend_buffer_free(buffer);
        gcuda_backend_buffer_free(buffer_w);
        gcuda_free(ctx);
        gcuda_free(ctx_w);
        gcuda_backend_free(backend);
    }
    CHECK(got[0][0] != 0.0f && memcmp(got[0], got[1], 2048 * 7 * sizeof(float)) == 0);
    free(got[0]);
    free(got[1]);
}
