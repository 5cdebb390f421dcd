// The CUDA backend's host side on the simulated device: registry, memory, asynchronous access, copies between devices,
// events, scratch and its budget, refusals, bad indices, training. Each CUDA call fails once. Results of the operations
// are tested by tests/test-ops.c (GCUDA_TEST_BACKEND=CUDA0).
#define _GNU_SOURCE 1 // setenv
#define GCUDA_IMPLEMENTATION
#define main digits_main
#include "../../examples/digits.c"
#undef main

#include <pthread.h>

#include "sim-test.h"
#include "products.h"

static const struct data * digits(void) {
    static struct data data;
    static bool is_ready;
    if (!is_ready) {
        split_data(&data);
        is_ready = true;
    }
    return &data;
}

// =====================================================================================================================
// >>registry
// =====================================================================================================================
TEST(devices_are_listed_without_touching_them) {
    for (int n = 0; n <= 3; ++n) {
        fresh(n, 256 * MB, 1);
        CHECK_EQ_I(gcuda_backend_cuda_get_device_count(), n);
        CHECK_EQ_I(gcuda_backend_dev_count(), n + 1);
        CHECK(sim_counts("cudaSetDevice") == 0 && sim_counts("cudaMalloc") == 0);
        char text[64];
        CHECK(gcuda_backend_cuda_get_device_description(n, text, sizeof text) == GCUDA_STATUS_INVALID_ARGUMENT &&
              text[0] == '\0');
        CHECK(gcuda_backend_cuda_buffer_type(n) == NULL && gcuda_backend_cuda_buffer_type(-1) == NULL &&
              gcuda_backend_cuda_init(n) == NULL);
        gcuda_backend_t best = gcuda_backend_init_best();
        CHECK(best != NULL && gcuda_backend_is_cuda(best) == (n > 0));
        gcuda_backend_free(best);
        for (int i = 0; i < n; ++i) {
            size_t n_free = 0, n_total = 0;
            CHECK_OK(gcuda_backend_cuda_get_device_description(i, text, sizeof text));
            CHECK_HAS(text, "Simulated device");
            CHECK(gcuda_backend_cuda_get_device_memory(i, &n_free, &n_total) == GCUDA_STATUS_SUCCESS &&
                  n_total == 256 * MB && n_free == n_total);
        }
    }
    clean();
}

TEST(a_failed_discovery_is_no_device) {
    sim_fail("cudaGetDeviceCount", 1, cudaErrorInsufficientDriver);
    CHECK_EQ_I(gcuda_backend_cuda_get_device_count(), 0);
    gcuda_backend_t backend = gcuda_backend_init_best();
    CHECK(backend != NULL && gcuda_backend_is_cpu(backend));
    gcuda_backend_free(backend);
    clean();
}

static void count_warnings(enum gcuda_log_level level, const char * text, void * user) {
    (void) level;
    *(int *) user += strstr(text, "the CPU computes instead") != NULL && strstr(text, "CUDA0") != NULL;
}

TEST(a_gpu_that_fails_is_no_silent_fallback) {
    int n_warnings = 0;
    fresh(1, 256 * MB, 1);
    gcuda_log_set(count_warnings, GCUDA_LOG_LEVEL_WARN, &n_warnings);
    sim_fail("cudaStreamCreateWithPriority", 1, cudaErrorUnknown);
    gcuda_backend_t backend = gcuda_backend_init_best();
    CHECK(backend != NULL && gcuda_backend_is_cpu(backend));
    CHECK_EQ_I(n_warnings, 1);
    gcuda_backend_free(backend);
    backend = gcuda_backend_init_best();
    CHECK(backend != NULL && gcuda_backend_is_cuda(backend) && n_warnings == 1);
    gcuda_backend_free(backend);
    clean();
}

TEST(created_and_destroyed_again_and_again) {
    const int n = test_full() ? 1000 : 100;
    for (int i = 0; i < n; ++i) {
        gcuda_backend_t backend = gcuda_backend_init_by_name("CUDA0", NULL);
        REQUIRE(backend != NULL);
        gcuda_backend_event_t event = gcuda_backend_event_new(gcuda_backend_get_device(backend));
        CHECK(event != NULL);
        CHECK_OK(gcuda_backend_event_record(event, backend));
        gcuda_backend_event_free(event);
        gcuda_backend_free(backend);
    }
    CHECK_EQ_I(sim_counts("cudaMalloc"), sim_counts("cudaFree"));
    CHECK_EQ_I(sim_counts("cudaStreamCreateWithPriority"), sim_counts("cudaStreamDestroy"));
    clean();
}

// =====================================================================================================================
// >>memory
// =====================================================================================================================
TEST(more_memory_than_there_is_and_none_at_all) {
    fresh(1, 1 * MB, 1);
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    REQUIRE(backend != NULL);
    CHECK(gcuda_backend_alloc_buffer(backend, 2 * MB) == NULL);
    CHECK_HAS(gcuda_last_error(), "2097152");
    CHECK_HAS(gcuda_last_error(), "cudaMalloc");
    gcuda_backend_buffer_t empty = gcuda_backend_alloc_buffer(backend, 0);
    CHECK(empty != NULL);
    CHECK_OK(gcuda_backend_buffer_clear(empty, 1));
    gcuda_backend_buffer_free(empty);
    gcuda_backend_buffer_t half = gcuda_backend_alloc_buffer(backend, MB / 2);
    CHECK(half != NULL); // still usable
    gcuda_backend_buffer_free(half);
    gcuda_backend_free(backend);
    clean();
}

TEST(host_buffers_are_page_locked_or_ordinary) {
    gcuda_backend_buffer_t host = gcuda_backend_buft_alloc_buffer(gcuda_backend_cuda_host_buffer_type(), 1000);
    CHECK(host != NULL && gcuda_backend_buffer_get_type(host) == gcuda_backend_cuda_host_buffer_type() &&
          sim_counts("cudaHostAlloc") == 1);
    gcuda_backend_buffer_free(host);
    sim_fail("cudaHostAlloc", 1, cudaErrorMemoryAllocation);
    host = gcuda_backend_buft_alloc_buffer(gcuda_backend_cuda_host_buffer_type(), 1000);
    CHECK(host != NULL && gcuda_backend_buffer_get_type(host) == gcuda_backend_cpu_buffer_type());
    gcuda_backend_buffer_free(host);
    float mine[100];
    CHECK_OK(gcuda_backend_cuda_register_host_buffer(mine, sizeof mine));
    CHECK(gcuda_backend_cuda_register_host_buffer(mine, sizeof mine) == GCUDA_STATUS_FAILED);
    CHECK_OK(gcuda_backend_cuda_unregister_host_buffer(mine));
    CHECK(gcuda_backend_cuda_unregister_host_buffer(mine) == GCUDA_STATUS_INVALID_ARGUMENT);
    clean();
}

// The backend's scratch pool directly: no operation of this version needs scratch.
TEST(scratch_is_reused_trimmed_and_kept_within_its_budget) {
    struct gcuda_cuda_params params;
    struct gcuda_cuda_stats stats;
    memset(&params, 0, sizeof params);
    params.memory_budget = 1 * MB;
    gcuda_backend_t backend = gcuda_backend_cuda_init_params(&params);
    REQUIRE(backend != NULL);
    struct gcudai_cuda * cu = (struct gcudai_cuda *) backend;
    void * p[4];
    CHECK_OK(gcudai_cuda_pool_acquire(&cu->pool, cu->stream, 300 * 1024, "test", &p[0]));
    CHECK_OK(gcudai_cuda_pool_acquire(&cu->pool, cu->stream, 300 * 1024, "test", &p[1]));
    CHECK(gcudai_cuda_pool_acquire(&cu->pool, cu->stream, 600 * 1024, "test", &p[2]) == GCUDA_STATUS_ALLOC_FAILED &&
          p[2] == NULL);
    CHECK_HAS(gcuda_last_error(), "budget");
    gcudai_cuda_pool_release(&cu->pool, p[0]); // out of order
    gcudai_cuda_pool_release(&cu->pool, p[1]);
    CHECK_OK(gcudai_cuda_pool_acquire(&cu->pool, cu->stream, 310 * 1024, "test", &p[3]));
    CHECK(p[3] == p[0] || p[3] == p[1]); // a little larger fits the old block
    gcudai_cuda_pool_release(&cu->pool, p[3]);
    CHECK_OK(gcudai_cuda_pool_acquire(&cu->pool, cu->stream, 900 * 1024, "test", &p[2])); // cached blocks make room
    CHECK_OK(gcuda_backend_cuda_get_stats(backend, &stats));
    const struct gcuda_cuda_purpose_stats * scratch = &stats.by[GCUDA_CUDA_PURPOSE_SCRATCH];
    CHECK(scratch->in_use >= 900 * 1024 && stats.in_use == stats.reserved && stats.peak <= MB && stats.budget == MB);
    gcudai_cuda_pool_release(&cu->pool, p[2]);
    CHECK_OK(gcuda_backend_cuda_trim(backend));
    CHECK_OK(gcuda_backend_cuda_get_stats(backend, &stats));
    CHECK(scratch->in_use == 0 && scratch->reserved == 0 && scratch->peak >= 900 * 1024);
    gcuda_backend_t cpu = gcuda_backend_cpu_init();
    CHECK(gcuda_backend_cuda_get_stats(cpu, &stats) == GCUDA_STATUS_INVALID_ARGUMENT &&
          gcuda_backend_cuda_trim(cpu) == GCUDA_STATUS_INVALID_ARGUMENT);
    gcuda_backend_free(cpu);
    gcuda_backend_free(backend);
    clean();
}

// =====================================================================================================================
// >>access   for every seed the same
// =====================================================================================================================
enum { N = 1000 };

static void access_once(uint64_t seed) {
    fresh(2, 64 * MB, seed);
    struct gcuda_cuda_params params;
    memset(&params, 0, sizeof params);
    params.wait = (enum gcuda_cuda_wait)(seed % 4);
    gcuda_backend_t a = gcuda_backend_cuda_init_params(&params);
    params.device = 1;
    gcuda_backend_t b = gcuda_backend_cuda_init_params(&params);
    REQUIRE(a != NULL && b != NULL);
    CHECK(cudaSetDevice(1) == cudaSuccess); // the caller's, to be left alone
    struct place pa = place_begin(), pb = place_begin();
    struct gcuda_tensor *x = gcuda_new_tensor_1d(pa.ctx, GCUDA_TYPE_F32, N),
                        *y = gcuda_new_tensor_1d(pb.ctx, GCUDA_TYPE_F32, N);
    struct gcuda_tensor * twice = gcuda_scale(pa.ctx, x, 2.0f);
    struct gcuda_cgraph * graph = gcuda_new_graph(pa.ctx);
    CHECK_OK(gcuda_build_forward_expand(graph, twice));
    REQUIRE(place_alloc(&pa, a) && place_alloc(&pb, b));
    gcuda_backend_buffer_t host =
        gcuda_backend_buft_alloc_buffer(gcuda_backend_cuda_host_buffer_type(), 2 * N * sizeof(float));
    REQUIRE(host != NULL);
    float *in = (float *) gcuda_backend_buffer_get_base(host), *out = in + N;
    for (int i = 0; i < N; ++i) { in[i] = (float) i; }
    gcuda_backend_event_t event = gcuda_backend_event_new(gcuda_backend_get_device(a));
    CHECK_OK(gcuda_backend_tensor_set_async(a, x, in, 0, N * sizeof(float)));
    CHECK_OK(gcuda_backend_graph_compute_async(a, graph));
    CHECK_OK(gcuda_backend_tensor_copy_async(a, b, twice, y));
    CHECK_OK(gcuda_backend_event_record(event, a));
    CHECK_OK(gcuda_backend_event_wait(b, event));
    CHECK_OK(gcuda_backend_tensor_get_async(b, y, out, 0, N * sizeof(float)));
    CHECK_OK(gcuda_backend_synchronize(b));
    for (int i = 0; i < N; ++i) { CHECK(out[i] == 2.0f * (float) i); }
    bool done = false;
    for (int i = 0; i < 1000 && !done; ++i) { CHECK_OK(gcuda_backend_event_query(event, &done)); }
    CHECK(done);
    CHECK_OK(gcuda_backend_synchronize(a));
    // blocking access, across devices too
    float part[3] = { 5, 6, 7 };
    CHECK_OK(gcuda_backend_tensor_set(y, part, 8, sizeof part));
    CHECK_OK(gcuda_backend_tensor_copy(y, x));
    CHECK_OK(gcuda_backend_tensor_get(x, out, 0, N * sizeof(float)));
    for (int i = 0; i < N; ++i) { CHECK(out[i] == (i >= 2 && i < 5 ? (float) (i + 3) : 2.0f * (float) i)); }
    CHECK_OK(gcuda_backend_tensor_memset(x, 0, 0, N * sizeof(float)));
    CHECK_OK(gcuda_backend_tensor_get(x, out, 0, N * sizeof(float)));
    CHECK(out[0] == 0.0f && out[N - 1] == 0.0f);
    CHECK(gcuda_backend_tensor_set_async(b, x, in, 0, 4) == GCUDA_STATUS_INVALID_ARGUMENT); // of the other device
    CHECK(gcuda_backend_graph_compute(b, graph) != GCUDA_STATUS_SUCCESS);
    CHECK_HAS(gcuda_last_error(), "CUDA0");
    gcuda_backend_event_free(event);
    gcuda_backend_buffer_free(host);
    place_end(&pa);
    place_end(&pb);
    int device = -1;
    gcuda_backend_free(a);
    gcuda_backend_free(b);
    CHECK(cudaGetDevice(&device) == cudaSuccess && device == 1);
}

TEST(asynchronous_access_is_ordered_for_every_seed) {
    for (uint64_t seed = 0; seed < (test_full() ? 400u : 40u); ++seed) { access_once(seed); }
    clean();
}

TEST(a_stream_and_memory_of_the_callers) {
    cudaStream_t stream;
    void * memory = NULL;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess &&
          cudaMalloc(&memory, 4096) == cudaSuccess);
    struct gcuda_cuda_params params;
    memset(&params, 0, sizeof params);
    params.stream = stream;
    gcuda_backend_t backend = gcuda_backend_cuda_init_params(&params);
    REQUIRE(backend != NULL);
    CHECK(gcuda_backend_cuda_get_stream(backend) == stream);
    struct place p = place_begin();
    struct gcuda_tensor * x = gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_F32, 4);
    REQUIRE(place_alloc(&p, backend));
    const long n_waits = sim_counts("cudaStreamSynchronize");
    CHECK_OK(gcuda_backend_tensor_set_async(backend, x, NULL, 16, 0)); // nothing is no reason to wait
    CHECK_OK(gcuda_backend_tensor_get_async(backend, x, NULL, 0, 0));
    CHECK_EQ_I(sim_counts("cudaStreamSynchronize"), n_waits);
    place_end(&p);
    CHECK(gcuda_backend_cuda_buffer_from_ptr(0, (char *) memory + 4, 64) == NULL &&
          gcuda_backend_cuda_buffer_from_ptr(0, NULL, 64) == NULL);
    gcuda_backend_buffer_t buffer = gcuda_backend_cuda_buffer_from_ptr(0, memory, 4096);
    CHECK(buffer != NULL);
    CHECK_OK(gcuda_backend_buffer_clear(buffer, 3));
    gcuda_backend_buffer_free(buffer);
    gcuda_backend_free(backend);
    unsigned char byte = 0;
    CHECK(cudaMemcpy(&byte, (char *) memory + 4095, 1, cudaMemcpyDeviceToHost) == cudaSuccess && byte == 3);
    CHECK(cudaFree(memory) == cudaSuccess && cudaStreamDestroy(stream) == cudaSuccess); // both are still the caller's
    clean();
}

// =====================================================================================================================
// >>products
// =====================================================================================================================
static struct gcuda_array packed_array(enum gcuda_type type, int64_t ne0, int64_t ne1, int64_t ne2) {
    struct gcuda_array a;
    size_t size = 0;
    GCUDAI_ZERO(a);
    a.type = type;
    a.ne[0] = ne0, a.ne[1] = ne1, a.ne[2] = ne2, a.ne[3] = 1;
    CHECK_OK(gcudai_layout(type, a.ne, a.nb, &size));
    return a;
}

// The path by the rules, on a device of capability cc; and whether a path is taken.
static struct gcudai_cuda_mm_device device_of(bool has_cublas, bool has_wgmma, int cc) {
    struct gcudai_cuda_mm_device d;
    d.kernels.capability = cc;
    d.kernels.has_wgmma = has_wgmma;
    d.has_cublas = has_cublas;
    return d;
}

// Paths as letters: Vector, Tile, warp Groups, cuBlas, Converted, Halves, geMm, Own, bYtes.
static char way_letter(enum gcudai_cuda_mm_path product) {
    switch (product) {
        case GCUDAI_CUDA_MM_PLAIN: return 'O';
        case GCUDAI_CUDA_MM_TILE: return 'T';
        case GCUDAI_CUDA_MM_VEC: return 'V';
        case GCUDAI_CUDA_MM_WGMMA: return 'G';
        case GCUDAI_CUDA_MM_CUBLAS: return 'B';
        case GCUDAI_CUDA_MM_CUBLAS_F32: return 'C';
        case GCUDAI_CUDA_MM_CUBLAS_16: return 'H';
        case GCUDAI_CUDA_MM_PACKED: return 'M';
        case GCUDAI_CUDA_MM_INT8: return 'Y';
        case GCUDAI_CUDA_MM_GEMM: return '?'; // only after packing
    }
    return '?';
}

static enum gcudai_cuda_mm_path chosen(const struct gcuda_mul_mat_args * p, bool has_cublas, bool has_wgmma, int cc) {
    const struct gcudai_cuda_mm_device d = device_of(has_cublas, has_wgmma, cc);
    const struct gcudai_cuda_mm_case c = gcudai_cuda_mm_case_of(p, &d);
    return gcudai_cuda_mm_path_of(&c, ~0u);
}
static void check_chosen(const struct gcuda_mul_mat_args * p, bool has_cublas, bool has_wgmma, int cc, int want) {
    const enum gcudai_cuda_mm_path got = chosen(p, has_cublas, has_wgmma, cc);
    CHECK_MSG((int) got == want, "%s [%d, %d] x %s [%d]%s, %d%s%s: path %c, not %c", gcuda_type_name(p->a.type),
        (int) p->a.ne[0], (int) p->a.ne[1], gcuda_type_name(p->b.type), (int) p->b.ne[1],
        p->prec == GCUDA_PREC_F32 ? " in F32" : "", cc, has_wgmma ? " with wgmma" : "", has_cublas ? " and cuBLAS" : "",
        way_letter(got), way_letter((enum gcudai_cuda_mm_path) want));
}
static enum gcudai_cuda_mm_path chosen_of_experts(const struct gcuda_mul_mat_id_args * p, bool has_wgmma, int cc) {
    const struct gcudai_cuda_mm_device d = device_of(true, has_wgmma, cc);
    const struct gcudai_cuda_mm_case c = gcudai_cuda_mm_experts_of(p, &d);
    return gcudai_cuda_mm_path_of(&c, ~0u);
}
static bool is_taken(
    enum gcudai_cuda_mm_path path, const struct gcuda_mul_mat_args * p, bool has_cublas, bool has_wgmma, int cc) {
    const struct gcudai_cuda_mm_device d = device_of(has_cublas, has_wgmma, cc);
    const struct gcudai_cuda_mm_case c = gcudai_cuda_mm_case_of(p, &d);
    return gcudai_cuda_mm_takes(&c, path);
}
static bool is_taken_of_experts(
    enum gcudai_cuda_mm_path path, const struct gcuda_mul_mat_id_args * p, bool has_wgmma, int cc) {
    const struct gcudai_cuda_mm_device d = device_of(true, has_wgmma, cc);
    const struct gcudai_cuda_mm_case c = gcudai_cuda_mm_experts_of(p, &d);
    return gcudai_cuda_mm_takes(&c, path);
}

static bool has_rule(enum gcudai_cuda_mm_path path, enum gcuda_type type) {
    bool is_there = false;
    for (size_t i = 0; i < sizeof gcudai_cuda_mm_rules / sizeof gcudai_cuda_mm_rules[0]; ++i) {
        is_there =
            is_there || (gcudai_cuda_mm_rules[i].path == path && (gcudai_cuda_mm_rules[i].types >> type & 1) != 0);
    }
    return is_there;
}

TEST(products_take_the_way_that_the_table_says) {
    enum {
        OWN = GCUDAI_CUDA_MM_PLAIN,
        TILE = GCUDAI_CUDA_MM_TILE,
        CUBLAS = GCUDAI_CUDA_MM_CUBLAS,
        CONVERTED = GCUDAI_CUDA_MM_CUBLAS_F32,
        HALVES = GCUDAI_CUDA_MM_CUBLAS_16,
        VECTOR = GCUDAI_CUDA_MM_VEC,
        GROUPS = GCUDAI_CUDA_MM_WGMMA,
        GEMM = GCUDAI_CUDA_MM_PACKED
    };
    static const struct {
        enum gcuda_type a, b;
        int64_t k, m, n;
        enum gcuda_prec prec;
        int with_cublas, without, older; // older: with cuBLAS below 8.0
    } cases[] = {
        // two matrices of a, four of b: twice n columns meet each
        { GCUDA_TYPE_F32, GCUDA_TYPE_F32, 64, 32, 1, GCUDA_PREC_DEFAULT, VECTOR, VECTOR, VECTOR },
        { GCUDA_TYPE_F32, GCUDA_TYPE_F32, 64, 32, 4, GCUDA_PREC_DEFAULT, CUBLAS, VECTOR, CUBLAS },
        { GCUDA_TYPE_F16, GCUDA_TYPE_F32, 64, 32, 4, GCUDA_PREC_DEFAULT, VECTOR, VECTOR, VECTOR },
        { GCUDA_TYPE_F16, GCUDA_TYPE_BF16, 64, 32, 4, GCUDA_PREC_DEFAULT, HALVES, VECTOR, HALVES },
        { GCUDA_TYPE_BF16, GCUDA_TYPE_F32, 63, 32, 4, GCUDA_PREC_DEFAULT, HALVES, VECTOR, HALVES },
        { GCUDA_TYPE_BF16, GCUDA_TYPE_F32, 63, 32, 4, GCUDA_PREC_F32, VECTOR, VECTOR, VECTOR },
        { GCUDA_TYPE_F32, GCUDA_TYPE_F32, 64, 32, 5, GCUDA_PREC_DEFAULT, CUBLAS, TILE, CUBLAS },
        { GCUDA_TYPE_BF16, GCUDA_TYPE_F16, 63, 3, 1, GCUDA_PREC_DEFAULT, VECTOR, VECTOR, VECTOR },
        { GCUDA_TYPE_F16, GCUDA_TYPE_Q8_0, 64, 32, 1, GCUDA_PREC_DEFAULT, OWN, OWN, OWN },
        { GCUDA_TYPE_F32, GCUDA_TYPE_F16, 64, 32, 20, GCUDA_PREC_DEFAULT, CONVERTED, TILE, CONVERTED },
        { GCUDA_TYPE_F16, GCUDA_TYPE_F32, 64, 32, 512, GCUDA_PREC_DEFAULT, HALVES, GEMM, HALVES },
        { GCUDA_TYPE_F16, GCUDA_TYPE_F32, 65, 32, 65, GCUDA_PREC_DEFAULT, HALVES, GEMM, HALVES },
        { GCUDA_TYPE_BF16, GCUDA_TYPE_F32, 64, 8, 512, GCUDA_PREC_DEFAULT, OWN, OWN, OWN },
        { GCUDA_TYPE_F32, GCUDA_TYPE_F32, 63, 32, 70, GCUDA_PREC_DEFAULT, CUBLAS, GEMM, CUBLAS },
        { GCUDA_TYPE_Q4_0, GCUDA_TYPE_F32, 64, 32, 256, GCUDA_PREC_DEFAULT, HALVES, GEMM, HALVES },
        { GCUDA_TYPE_F16, GCUDA_TYPE_F32, 64, 32, 512, GCUDA_PREC_F32, CONVERTED, OWN, CONVERTED },
        { GCUDA_TYPE_BF16, GCUDA_TYPE_F32, 64, 32, 8, GCUDA_PREC_DEFAULT, HALVES, TILE, HALVES },
        { GCUDA_TYPE_F16, GCUDA_TYPE_F32, 64, 32, 1, GCUDA_PREC_F32, VECTOR, VECTOR, VECTOR },
        { GCUDA_TYPE_BF16, GCUDA_TYPE_F32, 65, 32, 40, GCUDA_PREC_DEFAULT, HALVES, OWN, HALVES },
        { GCUDA_TYPE_Q4_0, GCUDA_TYPE_F32, 64, 32, 9, GCUDA_PREC_DEFAULT, TILE, TILE, HALVES },
        { GCUDA_TYPE_Q4_0, GCUDA_TYPE_F32, 64, 32, 4, GCUDA_PREC_DEFAULT, VECTOR, VECTOR, VECTOR },
        { GCUDA_TYPE_Q4_0, GCUDA_TYPE_F32, 64, 32, 5, GCUDA_PREC_DEFAULT, TILE, TILE, HALVES },
        { GCUDA_TYPE_Q4_0, GCUDA_TYPE_F32, 64, 32, 4, GCUDA_PREC_F32, OWN, OWN, OWN },
        { GCUDA_TYPE_IQ2_XS, GCUDA_TYPE_F16, 256, 32, 64, GCUDA_PREC_DEFAULT, TILE, TILE, HALVES },
        { GCUDA_TYPE_IQ2_XS, GCUDA_TYPE_F16, 256, 32, 65, GCUDA_PREC_DEFAULT, HALVES, TILE, HALVES },
        { GCUDA_TYPE_Q4_0, GCUDA_TYPE_F32, 64, 32, 96, GCUDA_PREC_DEFAULT, HALVES, TILE, HALVES },
        { GCUDA_TYPE_Q4_0, GCUDA_TYPE_F32, 64, 8, 96, GCUDA_PREC_DEFAULT, OWN, OWN, OWN },
        { GCUDA_TYPE_Q4_0, GCUDA_TYPE_Q8_0, 64, 32, 96, GCUDA_PREC_DEFAULT, OWN, OWN, OWN },
        { GCUDA_TYPE_Q6_K, GCUDA_TYPE_BF16, 256, 32, 16, GCUDA_PREC_F32, CONVERTED, OWN, CONVERTED },
        { GCUDA_TYPE_F32, GCUDA_TYPE_F32, 0, 32, 16, GCUDA_PREC_DEFAULT, OWN, OWN, OWN },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        struct gcuda_mul_mat_args p;
        GCUDAI_ZERO(p);
        p.a = packed_array(cases[i].a, cases[i].k, cases[i].m, 2);
        p.b = packed_array(cases[i].b, cases[i].k, cases[i].n, 4);
        p.y = packed_array(GCUDA_TYPE_F32, cases[i].m, cases[i].n, 4);
        p.prec = cases[i].prec;
        check_chosen(&p, true, false, 900, cases[i].with_cublas);
        check_chosen(&p, false, false, 800, cases[i].without);
        check_chosen(&p, true, false, 750, cases[i].older);
        const bool is_vector = cases[i].with_cublas == TILE && 2 * cases[i].n <= vec_layout_of(cases[i].a).max_columns;
        const int with_groups = is_vector ? VECTOR : cases[i].with_cublas; // none has one large matrix
        check_chosen(&p, true, true, 900, with_groups);
    }
    static const struct {
        enum gcuda_type a, b;
        int64_t k, m, n, n2;
        enum gcuda_prec prec;
        int with_cublas, without;
    } large[] = {
        // with wgmma
        { GCUDA_TYPE_Q4_0, GCUDA_TYPE_F32, 14336, 4096, 512, 1, GCUDA_PREC_DEFAULT, GROUPS, GROUPS },
        { GCUDA_TYPE_Q6_K, GCUDA_TYPE_F16, 4096, 4096, 128, 1, GCUDA_PREC_DEFAULT, GROUPS, GROUPS },
        { GCUDA_TYPE_Q6_K, GCUDA_TYPE_BF16, 4096, 4096, 32, 4, GCUDA_PREC_DEFAULT, GROUPS, GROUPS }, // joined
        { GCUDA_TYPE_Q4_K, GCUDA_TYPE_F32, 4096, 4096, 17, 1, GCUDA_PREC_DEFAULT, GROUPS, GROUPS },
        { GCUDA_TYPE_Q3_K, GCUDA_TYPE_F32, 4096, 4096, 17, 1, GCUDA_PREC_DEFAULT, GROUPS, GROUPS },
        { GCUDA_TYPE_Q3_K, GCUDA_TYPE_F32, 4096, 4096, 16, 1, GCUDA_PREC_DEFAULT, TILE, TILE },
        { GCUDA_TYPE_Q6_K, GCUDA_TYPE_F32, 4096, 4096, 17, 1, GCUDA_PREC_DEFAULT, GROUPS, GROUPS },
        { GCUDA_TYPE_Q6_K, GCUDA_TYPE_F32, 4096, 4096, 16, 1, GCUDA_PREC_DEFAULT, TILE, TILE },
        { GCUDA_TYPE_Q8_0, GCUDA_TYPE_F32, 4096, 4096, 17, 1, GCUDA_PREC_DEFAULT, GROUPS, GROUPS },
        { GCUDA_TYPE_Q8_0, GCUDA_TYPE_F32, 4096, 4096, 16, 1, GCUDA_PREC_DEFAULT, VECTOR, VECTOR },
        { GCUDA_TYPE_Q4_0, GCUDA_TYPE_F16, 4096, 40, 9, 1, GCUDA_PREC_DEFAULT, VECTOR, VECTOR },
        { GCUDA_TYPE_Q4_0, GCUDA_TYPE_F32, 4096, 40, 17, 1, GCUDA_PREC_DEFAULT, TILE, TILE },
        { GCUDA_TYPE_Q4_0, GCUDA_TYPE_F32, 96, 40, 9, 1, GCUDA_PREC_DEFAULT, TILE, TILE },      // 54 bytes a row
        { GCUDA_TYPE_Q4_0, GCUDA_TYPE_F32, 1 << 22, 40, 9, 1, GCUDA_PREC_DEFAULT, TILE, TILE }, // 2.25 MiB a row
        { GCUDA_TYPE_Q6_K, GCUDA_TYPE_F32, 4096, 4096, 9, 1, GCUDA_PREC_DEFAULT, TILE, TILE },  // scales for 16
        { GCUDA_TYPE_Q6_K, GCUDA_TYPE_F32, 4096, 4095, 128, 1, GCUDA_PREC_DEFAULT, TILE, TILE },
        { GCUDA_TYPE_Q4_0, GCUDA_TYPE_F32, 3840, 4096, 129, 1, GCUDA_PREC_DEFAULT, HALVES, TILE },
        { GCUDA_TYPE_Q6_K, GCUDA_TYPE_F32, 4096, 4096, 128, 1, GCUDA_PREC_F32, CONVERTED, OWN },
        { GCUDA_TYPE_Q6_K, GCUDA_TYPE_F32, 4352, 4096, 129, 1, GCUDA_PREC_DEFAULT, HALVES, TILE }, // 3570 bytes a row
        { GCUDA_TYPE_Q8_0, GCUDA_TYPE_Q8_0, 4096, 4096, 128, 1, GCUDA_PREC_DEFAULT, OWN, OWN },
        { GCUDA_TYPE_IQ2_XS, GCUDA_TYPE_F32, 14336, 4096, 4096, 1, GCUDA_PREC_DEFAULT, GROUPS, GROUPS },
        { GCUDA_TYPE_IQ2_XS, GCUDA_TYPE_F32, 14336, 4096, 4097, 1, GCUDA_PREC_DEFAULT, HALVES, GROUPS },
        { GCUDA_TYPE_F16, GCUDA_TYPE_F32, 4096, 4096, 512, 1, GCUDA_PREC_DEFAULT, HALVES, GEMM },
        { GCUDA_TYPE_BF16, GCUDA_TYPE_F32, 4104, 4096, 512, 1, GCUDA_PREC_DEFAULT, HALVES, GEMM },
        { GCUDA_TYPE_F32, GCUDA_TYPE_F32, 4096, 4096, 512, 1, GCUDA_PREC_DEFAULT, CUBLAS, GROUPS },
        { GCUDA_TYPE_F32, GCUDA_TYPE_F32, 8192, 4096, 4, 1, GCUDA_PREC_DEFAULT, VECTOR, VECTOR },
        { GCUDA_TYPE_F32, GCUDA_TYPE_F32, 8192, 4096, 4, 1, GCUDA_PREC_F32, CUBLAS, VECTOR },
        { GCUDA_TYPE_F32, GCUDA_TYPE_F32, 8192, 4095, 4, 1, GCUDA_PREC_DEFAULT, CUBLAS, VECTOR },
        { GCUDA_TYPE_F16, GCUDA_TYPE_F32, 8192, 4096, 1, 1, GCUDA_PREC_DEFAULT, VECTOR, VECTOR },
        { GCUDA_TYPE_F16, GCUDA_TYPE_F32, 8192, 4096, 2, 1, GCUDA_PREC_DEFAULT, VECTOR, VECTOR },
        { GCUDA_TYPE_F16, GCUDA_TYPE_F32, 8196, 4096, 2, 1, GCUDA_PREC_DEFAULT, HALVES, VECTOR }, // 16392 bytes a row
        { GCUDA_TYPE_F16, GCUDA_TYPE_BF16, 8192, 4096, 2, 1, GCUDA_PREC_DEFAULT, HALVES, VECTOR },
        { GCUDA_TYPE_F16, GCUDA_TYPE_F32, 8192, 4096, 2, 1, GCUDA_PREC_F32, VECTOR, VECTOR },
        { GCUDA_TYPE_BF16, GCUDA_TYPE_BF16, 8192, 4096, 8, 1, GCUDA_PREC_DEFAULT, VECTOR, VECTOR },
        { GCUDA_TYPE_BF16, GCUDA_TYPE_F32, 8192, 4095, 8, 1, GCUDA_PREC_DEFAULT, VECTOR, VECTOR },
        // would be read twice
        { GCUDA_TYPE_BF16, GCUDA_TYPE_F32, 8192, 4096, 1, 2, GCUDA_PREC_DEFAULT, VECTOR, VECTOR },
    };
    for (size_t i = 0; i < sizeof large / sizeof large[0]; ++i) {
        struct gcuda_mul_mat_args p;
        GCUDAI_ZERO(p);
        p.a = packed_array(large[i].a, large[i].k, large[i].m, 1);
        p.b = packed_array(large[i].b, large[i].k, large[i].n, large[i].n2);
        p.y = packed_array(GCUDA_TYPE_F32, large[i].m, large[i].n, large[i].n2);
        p.prec = large[i].prec;
        check_chosen(&p, true, true, 900, large[i].with_cublas);
        check_chosen(&p, false, true, 900, large[i].without);
        p.a.nb[1] += gcuda_type_size(p.a.type) % 16 == 0 ? 8 : gcuda_type_size(p.a.type); // not at multiples of 16
        CHECK((int) chosen(&p, true, true, 900) != GROUPS);
        // below 8.0 there are no tensor cores for few columns of floats, and a large matrix of halves is cuBLAS's from
        // two on
        if (large[i].a == GCUDA_TYPE_BF16 && large[i].n == 8 && large[i].prec == GCUDA_PREC_DEFAULT) {
            p.a.nb[1] -= gcuda_type_size(p.a.type);
            const bool is_large = p.a.ne[0] * p.a.ne[1] >= GCUDAI_CUDA_MM_HUGE;
            check_chosen(&p, true, false, 750, is_large ? HALVES : VECTOR);
        }
    }
    static const struct {
        int kib;       // of shared memory that a block may have
        int few, many; // columns of a large matrix of Q4_0, with cuBLAS
    } caps[] = { { 48, TILE, HALVES }, { 99, TILE, HALVES }, { 163, TILE, HALVES }, { 226, TILE, HALVES },
        { 227, GROUPS, GROUPS } };
    for (size_t i = 0; i < sizeof caps / sizeof caps[0]; ++i) {
        const bool fits = gcudai_cuda_fits_wgmma((size_t) caps[i].kib << 10);
        struct gcuda_mul_mat_args p;
        GCUDAI_ZERO(p);
        p.a = packed_array(GCUDA_TYPE_Q4_0, 14336, 4096, 1);
        p.b = packed_array(GCUDA_TYPE_F32, 14336, 64, 1);
        p.y = packed_array(GCUDA_TYPE_F32, 4096, 64, 1);
        check_chosen(&p, true, fits, 900, caps[i].few);
        p.b.ne[1] = p.y.ne[1] = 512;
        check_chosen(&p, true, fits, 900, caps[i].many);
    }
}

TEST(products_of_experts_go_slot_by_slot_while_these_are_few) {
    static const struct {
        enum gcuda_type as, b;
        int64_t k, n_experts, n_used, n_tokens;
        bool by_slots;
    } cases[] = {
        { GCUDA_TYPE_Q4_0, GCUDA_TYPE_F32, 256, 128, 8, 18, true },
        { GCUDA_TYPE_Q4_0, GCUDA_TYPE_F32, 256, 128, 8, 19, false },
        { GCUDA_TYPE_Q6_K, GCUDA_TYPE_F32, 256, 32, 4, 9, true },
        { GCUDA_TYPE_Q6_K, GCUDA_TYPE_F32, 256, 32, 4, 10, false },
        { GCUDA_TYPE_Q6_K, GCUDA_TYPE_BF16, 256, 4, 2, 4, true },
        { GCUDA_TYPE_Q6_K, GCUDA_TYPE_F16, 256, 4, 2, 5, false },
        { GCUDA_TYPE_IQ1_S, GCUDA_TYPE_F32, 256, 0, 4, 2, true },
        { GCUDA_TYPE_MXFP4, GCUDA_TYPE_Q8_0, 256, 8, 1, 1, false },
        { GCUDA_TYPE_F16, GCUDA_TYPE_F32, 256, 128, 8, 12, true },
        { GCUDA_TYPE_F16, GCUDA_TYPE_F32, 256, 128, 8, 13, false },
        { GCUDA_TYPE_F32, GCUDA_TYPE_F32, 33, 32, 4, 8, true },
        { GCUDA_TYPE_F32, GCUDA_TYPE_F32, 33, 32, 4, 9, false },
        { GCUDA_TYPE_BF16, GCUDA_TYPE_F32, 33, 2, 2, 4, true },
        { GCUDA_TYPE_Q4_0, GCUDA_TYPE_F32, 0, 8, 1, 1, false },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        struct gcuda_mul_mat_id_args p;
        GCUDAI_ZERO(p);
        p.as = packed_array(cases[i].as, cases[i].k, 32, cases[i].n_experts);
        p.b = packed_array(cases[i].b, cases[i].k, 1, cases[i].n_tokens);
        p.ids = packed_array(GCUDA_TYPE_I32, cases[i].n_used, cases[i].n_tokens, 1);
        p.y = packed_array(GCUDA_TYPE_F32, 32, cases[i].n_used, cases[i].n_tokens);
        CHECK_MSG((chosen_of_experts(&p, false, 750) == GCUDAI_CUDA_MM_VEC) == cases[i].by_slots, "case %d", (int) i);
    }
}

TEST(products_of_large_experts_go_to_tensor_cores) {
    enum { V = GCUDAI_CUDA_MM_VEC, B = GCUDAI_CUDA_MM_INT8, W = GCUDAI_CUDA_MM_WGMMA, OWN = GCUDAI_CUDA_MM_PLAIN };
    static const struct {
        enum gcuda_type as, b;
        int64_t k, m, n_experts, n_used, n_tokens;
        size_t off;                     // bytes of the experts' address
        int with, without, old;         // chosen with wgmma, without, and below 8.0
        bool takes_groups, takes_bytes; // by name
    } cases[] = {
        { GCUDA_TYPE_Q8_0, GCUDA_TYPE_F32, 2048, 1792, 32, 4, 9, 0, V, V, V, true, true },
        { GCUDA_TYPE_Q8_0, GCUDA_TYPE_F32, 2048, 1792, 32, 4, 10, 0, B, B, OWN, true, true },
        { GCUDA_TYPE_Q8_0, GCUDA_TYPE_F32, 2048, 1792, 32, 4, 64, 0, B, B, OWN, true, true },
        { GCUDA_TYPE_Q8_0, GCUDA_TYPE_F32, 2048, 1792, 32, 4, 65, 0, W, OWN, OWN, true, true },
        { GCUDA_TYPE_Q4_0, GCUDA_TYPE_F32, 2048, 1792, 32, 4, 95, 0, OWN, OWN, OWN, true, true },
        { GCUDA_TYPE_Q4_0, GCUDA_TYPE_F32, 2048, 1792, 32, 4, 96, 0, W, OWN, OWN, true, true },
        { GCUDA_TYPE_Q4_K, GCUDA_TYPE_F32, 2048, 1792, 32, 4, 191, 0, OWN, OWN, OWN, true, true },
        { GCUDA_TYPE_Q4_K, GCUDA_TYPE_F32, 2048, 1792, 32, 4, 192, 0, W, OWN, OWN, true, true },
        { GCUDA_TYPE_MXFP4, GCUDA_TYPE_F16, 2880, 2880, 32, 4, 512, 0, W, OWN, OWN, true, true },
        // rows at odd bytes
        { GCUDA_TYPE_MXFP4, GCUDA_TYPE_F16, 2912, 2880, 32, 4, 512, 0, OWN, OWN, OWN, false, true },
        { GCUDA_TYPE_MXFP4, GCUDA_TYPE_F16, 2912, 2880, 32, 4, 20, 0, B, B, OWN, false, true },
        // no kernels for lists
        { GCUDA_TYPE_Q5_1, GCUDA_TYPE_F32, 2048, 2880, 32, 4, 20, 0, OWN, OWN, OWN, true, false },
        { GCUDA_TYPE_Q6_K, GCUDA_TYPE_F32, 2048, 1792, 32, 4, 48, 0, B, B, OWN, true, true },
        { GCUDA_TYPE_Q6_K, GCUDA_TYPE_F32, 2048, 1792, 32, 4, 49, 0, OWN, OWN, OWN, true, true },
        { GCUDA_TYPE_IQ2_XS, GCUDA_TYPE_F32, 2048, 1792, 32, 4, 32, 0, B, B, OWN, true, true },
        { GCUDA_TYPE_IQ2_XS, GCUDA_TYPE_F32, 2048, 1792, 32, 4, 33, 0, OWN, OWN, OWN, true, true },
        { GCUDA_TYPE_Q4_K, GCUDA_TYPE_F32, 1280, 256, 8, 2, 100, 0, W, OWN, OWN, true, true },
        { GCUDA_TYPE_Q6_K, GCUDA_TYPE_F32, 1280, 256, 8, 2, 100, 0, OWN, OWN, OWN, false, false }, // rows of 1050 bytes
        { GCUDA_TYPE_Q8_0, GCUDA_TYPE_F32, 512, 1792, 32, 4, 20, 0, OWN, OWN, OWN, true, true },   // small
        { GCUDA_TYPE_Q8_0, GCUDA_TYPE_F32, 2048, 100, 32, 4, 20, 0, OWN, OWN, OWN, true, true },
        { GCUDA_TYPE_Q8_0, GCUDA_TYPE_F32, 2048, 1792, 32, 4, 20, 2, OWN, OWN, OWN, false, false },
        { GCUDA_TYPE_Q8_0, GCUDA_TYPE_F32, 2048, 1792, 32, 4, 20, 4, B, B, OWN, false, true },
        { GCUDA_TYPE_Q8_0, GCUDA_TYPE_F32, 2048, 1792, 32, 4, 20, 1, OWN, OWN, OWN, false, false },
        { GCUDA_TYPE_Q4_K, GCUDA_TYPE_F32, 2048, 1792, 32, 4, 20, 2, OWN, OWN, OWN, false, false },
        { GCUDA_TYPE_F16, GCUDA_TYPE_F32, 2048, 1792, 32, 4, 100, 0, OWN, OWN, OWN, false, false },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        struct gcuda_mul_mat_id_args p;
        GCUDAI_ZERO(p);
        p.as = packed_array(cases[i].as, cases[i].k, cases[i].m, cases[i].n_experts);
        p.b = packed_array(cases[i].b, cases[i].k, 1, cases[i].n_tokens);
        p.ids = packed_array(GCUDA_TYPE_I32, cases[i].n_used, cases[i].n_tokens, 1);
        p.y = packed_array(GCUDA_TYPE_F32, cases[i].m, cases[i].n_used, cases[i].n_tokens);
        p.as.data = (void *) (uintptr_t) (4096 + cases[i].off);
        CHECK_MSG((int) chosen_of_experts(&p, true, 900) == cases[i].with, "case %d", (int) i);
        CHECK_MSG((int) chosen_of_experts(&p, false, 900) == cases[i].without, "case %d", (int) i);
        CHECK_MSG((int) chosen_of_experts(&p, false, 750) == cases[i].old, "case %d", (int) i);
        CHECK_MSG(
            is_taken_of_experts(GCUDAI_CUDA_MM_WGMMA, &p, true, 900) == cases[i].takes_groups, "case %d", (int) i);
        CHECK_MSG(is_taken_of_experts(GCUDAI_CUDA_MM_INT8, &p, true, 900) == cases[i].takes_bytes, "case %d", (int) i);
        CHECK(!is_taken_of_experts(GCUDAI_CUDA_MM_WGMMA, &p, false, 900));
        CHECK(!is_taken_of_experts(GCUDAI_CUDA_MM_INT8, &p, true, 750));
    }
}

// ---- the table of products, as it is to be: all types, capabilities, caps of shared memory; letters: way_letter ----
// Classes of weights: blocks with a scale for 32 elements (a, and k, whose tiles want 16 bytes), with one for 16 (b),
// F32 (f), halves (h). Of mul_mat_id: pairs per expert up to which lists take INT8 (0: never), and from which they take
// WGMMA.
static const struct weight_type {
    enum gcuda_type type;
    char of;
    int bytes_to, groups_from;
} weight_types[] = {
    { GCUDA_TYPE_F32, 'f', 0, 0 },
    { GCUDA_TYPE_F16, 'h', 0, 0 },
    { GCUDA_TYPE_BF16, 'h', 0, 0 },
    { GCUDA_TYPE_Q4_0, 'a', 8, 12 },
    { GCUDA_TYPE_Q4_1, 'a', 0, 24 },
    { GCUDA_TYPE_Q5_0, 'a', 0, 4 },
    { GCUDA_TYPE_Q5_1, 'a', 0, 24 },
    { GCUDA_TYPE_Q8_0, 'a', 8, 4 },
    { GCUDA_TYPE_IQ4_NL, 'a', 4, 4 },
    { GCUDA_TYPE_MXFP4, 'a', 8, 12 },
    { GCUDA_TYPE_Q2_K, 'b', 0, 24 },
    { GCUDA_TYPE_Q3_K, 'b', 0, 12 },
    { GCUDA_TYPE_Q4_K, 'k', 8, 24 },
    { GCUDA_TYPE_Q5_K, 'k', 6, 24 },
    { GCUDA_TYPE_Q6_K, 'b', 6, 12 },
    { GCUDA_TYPE_IQ4_XS, 'a', 4, 4 },
    { GCUDA_TYPE_IQ2_XXS, 'a', 0, 12 },
    { GCUDA_TYPE_IQ2_XS, 'b', 4, 12 },
    { GCUDA_TYPE_IQ2_S, 'b', 0, 4 },
    { GCUDA_TYPE_IQ3_XXS, 'a', 0, 12 },
    { GCUDA_TYPE_IQ3_S, 'a', 0, 12 },
    { GCUDA_TYPE_IQ1_S, 'a', 0, 4 },
    { GCUDA_TYPE_IQ1_M, 'b', 0, 4 },
};
enum { N_WEIGHT_TYPES = sizeof weight_types / sizeof weight_types[0], N_COUNTS = 12 };

// Devices: old ones, new ones, and one with wgmma.
static const struct {
    int cc;
    char kind;
} capabilities[] = { { 500, 'o' }, { 610, 'o' }, { 700, 'o' }, { 750, 'o' }, { 800, 'n' }, { 860, 'n' }, { 890, 'n' },
    { 900, 'n' }, { 900, 'g' }, { 1000, 'n' }, { 1030, 'n' }, { 1200, 'n' }, { 1210, 'n' } };
static const int64_t column_counts[N_COUNTS] = { 1, 2, 8, 9, 16, 17, 64, 65, 128, 129, 256, 512 };
// Weights: low (8 rows), small, large, and so large that halves are cuBLAS's.
static const struct {
    char kind;
    int64_t k, m;
} matrix_sizes[] = { { 'l', 4096, 8 }, { 's', 4096, 40 }, { 's', 4096, 4095 }, { 'L', 4096, 4096 },
    { 'X', 8192, 4096 } };

// Path of a product by its number of columns; the first matching line counts.
struct way_rule {
    const char *types, *sizes, *at, *devices, *cublas; // at: bytes by which weights miss a multiple of 16
    const char * ways;                                 // of column_counts
};
static const struct way_rule way_rules[] = {
    // columns                                1 2 8 9 16 17 64 65 128 129 256 512
    { "ak", "l", "04", "g", "+-", "VVVVVOOOOOOO" },
    { "akb", "l", "024", "ong", "+-", "VVVOOOOOOOOO" },
    { "akb", "sLX", "024", "o", "+", "VVVHHHHHHHHH" },
    { "akb", "sLX", "024", "o", "-", "VVVOOOOOOOOO" },
    { "ak", "LX", "0", "g", "+-", "VVVVVGGGGGGG" },
    { "b", "LX", "0", "g", "+-", "VVVTTGGGGGGG" },
    { "a", "sLX", "04", "g", "+", "VVVVVTTTTHHH" },
    { "a", "sLX", "04", "g", "-", "VVVVVTTTTTMM" },
    { "k", "s", "0", "g", "+", "VVVVVTTTTHHH" },
    { "k", "s", "0", "g", "-", "VVVVVTTTTTMM" },
    { "k", "sLX", "4", "g", "+", "VVVVVHHHHHHH" },
    { "k", "sLX", "4", "g", "-", "VVVVVOOOOOMM" },
    { "k", "sLX", "24", "ng", "+", "VVVHHHHHHHHH" },
    { "k", "sLX", "24", "ng", "-", "VVVOOOOOOOMM" },
    { "akb", "sLX", "024", "ng", "+", "VVVTTTTTTHHH" },
    { "akb", "sLX", "024", "ng", "-", "VVVTTTTTTTMM" },
    { "f", "X", "0", "ng", "+", "VVVBBBBBBBBB" },
    { "f", "lsLX", "04", "ong", "+", "VVBBBBBBBBBB" },
    { "fh", "lsLX", "024", "o", "-", "VVVOOOOOOOOO" },
    { "fh", "l", "024", "ng", "-", "VVVOOOOOOOOO" },
    { "f", "LX", "0", "g", "-", "VVVTTTTMGGGG" },
    { "fh", "sLX", "0", "ng", "-", "VVVTTTTMMMMM" },
    { "fh", "sLX", "24", "ng", "-", "VVVOOOOMMMMM" },
    { "h", "l", "0", "ong", "+", "VVVOOOOOOOOO" },
    { "h", "l", "24", "ong", "+", "VVOOOOOOOOOO" },
    { "h", "X", "0", "ng", "+", "VVVHHHHHHHHH" },
    { "h", "X", "024", "ong", "+", "VHHHHHHHHHHH" },
    { "h", "sL", "0", "ong", "+", "VVVHHHHHHHHH" },
    { "h", "sL", "24", "ong", "+", "VVHHHHHHHHHH" },
};
// In full precision: nothing is rounded to 16 bits, and blocks do not meet columns of bytes.
static const struct way_rule exact_rules[] = {
    { "akb", "l", "024", "ong", "+-", "OOOOOOOOOOOO" },
    { "akb", "sLX", "024", "ong", "+", "OOOOCCCCCCCC" },
    { "akb", "sLX", "024", "ong", "-", "OOOOOOOOOOOO" },
    { "f", "lsLX", "04", "ong", "+", "VVBBBBBBBBBB" },
    { "h", "sLX", "024", "ong", "+", "VVVOCCCCCCCC" },
    { "h", "l", "024", "ong", "+", "VVVOOOOOOOOO" },
    { "fh", "lsLX", "024", "ong", "-", "VVVOOOOOOOOO" },
};
#define WAY_RULES (sizeof way_rules / sizeof way_rules[0])
#define EXACT_RULES (sizeof exact_rules / sizeof exact_rules[0])

static const char * ways_of(
    const struct way_rule * rules, size_t n, char type, char size, int at, char device, bool has_cublas) {
    for (size_t i = 0; i < n; ++i) {
        const struct way_rule * r = &rules[i];
        if (strchr(r->types, type) && strchr(r->sizes, size) && strchr(r->at, '0' + at) && strchr(r->devices, device) &&
            strchr(r->cublas, has_cublas ? '+' : '-')) {
            return r->ways;
        }
    }
    return "????????????";
}

static struct gcuda_mul_mat_args table_product(
    enum gcuda_type type, enum gcuda_type columns, int64_t k, int64_t m, int64_t n) {
    struct gcuda_mul_mat_args p;
    GCUDAI_ZERO(p);
    p.a = packed_array(type, k, m, 1);
    p.b = packed_array(columns, k, n, 1);
    p.y = packed_array(GCUDA_TYPE_F32, m, n, 1);
    p.a.data = p.b.data = p.y.data = (void *) (uintptr_t) 4096;
    return p;
}

// Weights of one type and size on one device; address or rows not at a multiple of 16 bytes. Types of activations:
// 16-bit weights with others than F32 and their own type follow other rules (see above).
static void check_ways(const struct weight_type * w, char size, int64_t k, int64_t m, int cc, char device) {
    for (int c = 0; c < 4 * 2 * 5; ++c) {
        const bool has_cublas = c % 2 == 0, is_exact = c / 2 % 2 == 1;
        const int at = c / 8 == 0 ? 0 : c / 8 % 2 == 1 ? 2 : 4, type_of_columns = c / 4 % 2;
        // no whole elements; converted
        if (w->type == GCUDA_TYPE_F32 && (at == 2 || type_of_columns == 1)) { continue; }
        const enum gcuda_type columns = type_of_columns == 0 ? GCUDA_TYPE_F32 : w->of == 'h' ? w->type : GCUDA_TYPE_F16;
        const char * want = ways_of(is_exact ? exact_rules : way_rules, is_exact ? EXACT_RULES : WAY_RULES, w->of, size,
            at, device, has_cublas);
        char got[N_COUNTS + 1] = { 0 };
        for (int i = 0; i < N_COUNTS; ++i) {
            struct gcuda_mul_mat_args p = table_product(w->type, columns, k, m, column_counts[i]);
            p.prec = is_exact ? GCUDA_PREC_F32 : GCUDA_PREC_DEFAULT;
            if (c / 8 < 3) {
                p.a.data = (char *) p.a.data + at;
            } else {
                p.a.nb[1] += (size_t) at;
            }
            got[i] = way_letter(chosen(&p, has_cublas, device == 'g', cc));
        }
        CHECK_MSG(strcmp(got, want) == 0, "%s, [%d, %d] %d bytes off, columns %s, on %d%s, %s, %s: %s, not %s",
            gcuda_type_name(w->type), (int) k, (int) m, at, gcuda_type_name(columns), cc,
            device == 'g' ? " with wgmma" : "", has_cublas ? "cuBLAS" : "no cuBLAS", is_exact ? "exact" : "default",
            got, want);
    }
}

TEST(products_of_all_types_take_the_way_of_the_table) {
    for (int t = 0; t < N_WEIGHT_TYPES; ++t) {
        for (size_t s = 0; s < sizeof matrix_sizes / sizeof matrix_sizes[0]; ++s) {
            for (size_t d = 0; d < sizeof capabilities / sizeof capabilities[0]; ++d) {
                check_ways(&weight_types[t], matrix_sizes[s].kind, matrix_sizes[s].k, matrix_sizes[s].m,
                    capabilities[d].cc, capabilities[d].kind);
            }
        }
        // very many columns: codebooks are written out once for cuBLAS
        const char * name = gcuda_type_name(weight_types[t].type);
        const bool is_codebook = strncmp(name, "iq", 2) == 0 && strncmp(name, "iq4", 3) != 0;
        const struct gcuda_mul_mat_args p = table_product(weight_types[t].type, GCUDA_TYPE_F32, 4096, 4096, 4097);
        const char with = weight_types[t].of == 'f' ? 'B' : weight_types[t].of == 'h' || is_codebook ? 'H' : 'G';
        CHECK_MSG(way_letter(chosen(&p, true, true, 900)) == with, "%s", name);
        CHECK_MSG(way_letter(chosen(&p, false, true, 900)) == (weight_types[t].of == 'h' ? 'M' : 'G'), "%s", name);
    }
}

TEST(the_table_has_every_type_of_weights_with_kernels) {
    for (int type = 0; type < GCUDA_TYPE_COUNT; ++type) {
        const struct gcudai_type_info * info = gcudai_type_of((enum gcuda_type) type);
        if (info == NULL || info->left_out_by != NULL || gcudai_q_kinds[info->line] == GCUDAI_Q_NONE) { continue; }
        int t = 0;
        while (t < N_WEIGHT_TYPES && (int) weight_types[t].type != type) { ++t; }
        CHECK_MSG(t < N_WEIGHT_TYPES, "weight_types lacks %s", info->traits.type_name);
    }
}

// Shared memory decides for WGMMA alone, which needs 227 KiB. Sizes: maximum per block on 6.1, 7.5, 7.0, 8.6, 8.0 and
// 9.0, and those around the limit.
static const struct {
    size_t bytes;
    char kind;
} shared_caps[] = { { 0, 'n' }, { 48 << 10, 'n' }, { 64 << 10, 'n' }, { 96 << 10, 'n' }, { 99 << 10, 'n' },
    { 163 << 10, 'n' }, { 226 << 10, 'n' }, { (227 << 10) - 1, 'n' }, { 227 << 10, 'g' }, { 228 << 10, 'g' } };
enum { N_CAPS = sizeof shared_caps / sizeof shared_caps[0] };

TEST(shared_memory_decides_on_warp_groups) {
    for (int i = 0; i < N_CAPS; ++i) {
        CHECK(gcudai_cuda_fits_wgmma(shared_caps[i].bytes) == (shared_caps[i].kind == 'g'));
        for (int t = 0; t < N_WEIGHT_TYPES * 2; ++t) {
            const struct weight_type * w = &weight_types[t / 2];
            const char * want = ways_of(way_rules, WAY_RULES, w->of, 'L', 0, shared_caps[i].kind, t % 2 == 0);
            for (int c = 0; c < N_COUNTS; ++c) {
                const struct gcuda_mul_mat_args p =
                    table_product(w->type, GCUDA_TYPE_F32, 4096, 4096, column_counts[c]);
                const bool fits = gcudai_cuda_fits_wgmma(shared_caps[i].bytes);
                CHECK_MSG(way_letter(chosen(&p, t % 2 == 0, fits, 900)) == want[c], "%s, %d columns, %d bytes",
                    gcuda_type_name(w->type), (int) column_counts[c], (int) shared_caps[i].bytes);
            }
        }
    }
}

// Experts, by pairs per expert. INT8 needs rows at multiples of 4 bytes (MXFP4: at any byte). WGMMA needs experts at
// multiples of 16 bytes and rows at even bytes; blocks of 256 elements need rows at multiples of 16 too.
static char id_way_of(const struct weight_type * w, int64_t k, int64_t m, int at, char device, int slots) {
    const size_t row = gcuda_row_size(w->type, k), of_groups = gcuda_blck_size(w->type) == 32 ? 2 : 16;
    const bool is_block = w->of != 'f' && w->of != 'h', is_large = k >= 1024 && m >= 256;
    const bool at_words = w->type == GCUDA_TYPE_MXFP4 || (at % 4 == 0 && row % 4 == 0);
    if (slots <= 1) { return 'V'; }
    const bool is_prompt = k >= 512 && m >= 256 && slots >= 48; // of shorter rows
    if (!is_block || (!is_large && !is_prompt)) { return 'O'; }
    if (is_large && device != 'o' && at_words && slots <= w->bytes_to) { return 'Y'; }
    return device == 'g' && at == 0 && row % of_groups == 0 && (is_prompt || slots >= w->groups_from) ? 'G' : 'O';
}

static struct gcuda_mul_mat_id_args table_experts(
    enum gcuda_type type, enum gcuda_type columns, int64_t k, int64_t m, int64_t experts, int64_t tokens) {
    struct gcuda_mul_mat_id_args p;
    GCUDAI_ZERO(p);
    p.as = packed_array(type, k, m, experts);
    p.b = packed_array(columns, k, 1, tokens);
    p.ids = packed_array(GCUDA_TYPE_I32, 4, tokens, 1);
    p.y = packed_array(GCUDA_TYPE_F32, m, 4, tokens);
    p.as.data = (void *) (uintptr_t) 4096;
    return p;
}

static void check_experts(const struct weight_type * w, int64_t k, int64_t m, int64_t experts, int cc, char device) {
    static const int slots[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 16, 23, 24, 64 };
    static const enum gcuda_type columns[] = { GCUDA_TYPE_F32, GCUDA_TYPE_F16, GCUDA_TYPE_BF16 };
    for (int c = 0; c < 3 * 3 * 15; ++c) {
        const int at = c % 3 * 2, n = slots[c / 9];
        if (w->type == GCUDA_TYPE_F32 && at == 2) { continue; } // no whole elements
        struct gcuda_mul_mat_id_args p = table_experts(w->type, columns[c / 3 % 3], k, m, experts, n * experts / 4);
        p.as.data = (char *) p.as.data + at;
        const char want = id_way_of(w, k, m, at, device, n);
        const char got = way_letter(chosen_of_experts(&p, device == 'g', cc));
        CHECK_MSG(got == want, "%s, [%d, %d] of %d experts %d bytes off, %d slots each, on %d%s: %c, not %c",
            gcuda_type_name(w->type), (int) k, (int) m, (int) experts, at, n, cc, device == 'g' ? " with wgmma" : "",
            got, want);
    }
}

TEST(products_of_experts_of_all_types_take_the_way_of_the_table) {
    static const int64_t sizes[][3] = { { 2048, 1792, 32 }, { 4096, 256, 8 }, { 1024, 4097, 64 }, { 1280, 768, 16 },
        { 1056, 512, 24 }, { 2048, 255, 32 }, { 768, 1792, 32 }, { 256, 16, 16 } };
    for (int t = 0; t < N_WEIGHT_TYPES; ++t) {
        for (int s = 0; s < 8; ++s) {
            if (sizes[s][0] % gcuda_blck_size(weight_types[t].type) != 0) { continue; }
            for (size_t d = 0; d < sizeof capabilities / sizeof capabilities[0]; ++d) {
                check_experts(
                    &weight_types[t], sizes[s][0], sizes[s][1], sizes[s][2], capabilities[d].cc, capabilities[d].kind);
            }
        }
    }
}

TEST(shared_memory_decides_on_warp_groups_of_experts) {
    for (int i = 0; i < N_CAPS; ++i) {
        const bool fits = gcudai_cuda_fits_wgmma(shared_caps[i].bytes);
        for (int t = 0; t < N_WEIGHT_TYPES; ++t) {
            check_experts(&weight_types[t], 2048, 1792, 32, 900, fits ? 'g' : 'n');
        }
        for (int t = 3; t < N_WEIGHT_TYPES; ++t) { // blocks, with very many pairs: WGMMA if it fits
            const struct gcuda_mul_mat_id_args p =
                table_experts(weight_types[t].type, GCUDA_TYPE_F32, 2048, 1792, 32, 512);
            CHECK(way_letter(chosen_of_experts(&p, fits, 900)) == (shared_caps[i].kind == 'g' ? 'G' : 'O'));
            CHECK(is_taken_of_experts(GCUDAI_CUDA_MM_WGMMA, &p, fits, 900) == (shared_caps[i].kind == 'g'));
        }
    }
}

// Few columns of every block format, with the most, the least and other shared memory that a block may have: rows in
// one step and rows that take several passes. Weights are blocks of any bits whose halves are finite.
static double few_columns_error(gcuda_backend_t backend, enum gcuda_type type, int64_t k, int64_t m, int64_t n) {
    const struct gcuda_type_traits * traits = gcuda_get_type_traits(type);
    struct place p = place_begin();
    struct gcuda_tensor *a = gcuda_new_tensor_2d(p.ctx, type, k, m),
                        *b = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, k, n);
    struct gcuda_tensor * y = gcuda_mul_mat(p.ctx, a, b);
    struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
    uint32_t bits = 1;
    CHECK_OK(gcuda_build_forward_expand(graph, y));
    CHECK(place_alloc(&p, backend));
    unsigned char * weights = (unsigned char *) malloc(gcuda_nbytes(a));
    float *x = (float *) malloc(gcuda_nbytes(b)), *out = (float *) malloc(gcuda_nbytes(y)),
          *row = (float *) malloc((size_t) k * 4);
    for (size_t i = 0; i < gcuda_nbytes(a); ++i) {
        weights[i] = (unsigned char) ((bits = bits * 1664525u + 1013904223u) >> 24 & 0xbbu);
    }
    for (int64_t i = 0; i < k * n; ++i) {
        x[i] = (float) ((bits = bits * 1664525u + 1013904223u) >> 8) / 8388608.0f - 1.0f;
    }
    CHECK_OK(gcuda_backend_tensor_set(a, weights, 0, gcuda_nbytes(a)));
    CHECK_OK(gcuda_backend_tensor_set(b, x, 0, gcuda_nbytes(b)));
    CHECK_OK(gcuda_backend_graph_compute(backend, graph));
    CHECK_OK(gcuda_backend_tensor_get(y, out, 0, gcuda_nbytes(y)));
    double error = 0.0, all = 0.0;
    for (int64_t i = 0; i < m; ++i) {
        traits->to_float(weights + (size_t) i * a->nb[1], row, k);
        for (int64_t c = 0; c < n; ++c) {
            double sum = 0.0;
            for (int64_t j = 0; j < k; ++j) { sum += (double) row[j] * (double) x[c * k + j]; }
            error += (sum - (double) out[c * m + i]) * (sum - (double) out[c * m + i]);
            all += sum * sum;
        }
    }
    free(row);
    free(out);
    free(x);
    free(weights);
    place_end(&p);
    return error / all;
}

// A number that is none makes its own column so, and no other: on tensor cores, by vectors, and for experts.
static void check_nan(gcuda_backend_t backend, int64_t n, bool by_experts) {
    enum { K = 256, M = 20 };
    struct place p = place_begin();
    struct gcuda_tensor * a = gcuda_new_tensor_3d(p.ctx, GCUDA_TYPE_Q4_0, K, M, by_experts ? 2 : 1);
    struct gcuda_tensor * b = gcuda_new_tensor_3d(p.ctx, GCUDA_TYPE_F32, K, by_experts ? 1 : n, by_experts ? n : 1);
    struct gcuda_tensor * ids = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_I32, 1, n);
    struct gcuda_tensor * y = by_experts ? gcuda_mul_mat_id(p.ctx, a, b, ids) : gcuda_mul_mat(p.ctx, a, b);
    struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
    const int64_t bad = n / 2;
    CHECK_OK(gcuda_build_forward_expand(graph, y));
    CHECK(place_alloc(&p, backend));
    unsigned char * weights = (unsigned char *) calloc(1, gcuda_nbytes(a));
    float *x = (float *) calloc(1, gcuda_nbytes(b)), *out = (float *) calloc(1, gcuda_nbytes(y));
    for (size_t i = 0; i < gcuda_nbytes(a); ++i) {
        weights[i] = (unsigned char) (i % 18 == 1 ? 0x3c : i % 18 == 0 ? 0 : 37 * i);
    }
    for (int64_t i = 0; i < K * n; ++i) { x[i] = (float) (i % 7) - 3.0f; }
    x[K * bad + 77] = NAN;
    CHECK_OK(gcuda_backend_tensor_set(a, weights, 0, gcuda_nbytes(a)));
    CHECK_OK(gcuda_backend_tensor_set(b, x, 0, gcuda_nbytes(b)));
    for (int32_t i = 0; by_experts && i < (int32_t) n; ++i) {
        const int32_t id = i % 2;
        CHECK_OK(gcuda_backend_tensor_set(ids, &id, (size_t) i * sizeof id, sizeof id));
    }
    CHECK_OK(gcuda_backend_graph_compute(backend, graph));
    CHECK_OK(gcuda_backend_tensor_get(y, out, 0, gcuda_nbytes(y)));
    for (int64_t i = 0; i < M * n; ++i) {
        CHECK_MSG((i / M == bad) == (bool) isnan(out[i]), "%d columns%s: column %d is %g", (int) n,
            by_experts ? " of experts" : "", (int) (i / M), (double) out[i]);
    }
    free(out);
    free(x);
    free(weights);
    place_end(&p);
}

// What cuBLAS was told of a product of the type with 64 columns.
static int compute_type(enum gcuda_type type, enum gcuda_cuda_switch full_precision, const char * env,
    enum gcuda_prec prec, bool by_out_prod) {
    struct gcuda_cuda_params params;
    memset(&params, 0, sizeof params);
    params.full_precision = full_precision;
    fresh(1, 64 * MB, 1);
    if (env != NULL) { setenv("GCUDA_CUDA_CUBLAS_COMPUTE_TYPE", env, 1); }
    gcuda_backend_t backend = gcuda_backend_cuda_init_params(&params);
    unsetenv("GCUDA_CUDA_CUBLAS_COMPUTE_TYPE");
    struct place p = place_begin();
    struct gcuda_tensor *a = gcuda_new_tensor_2d(p.ctx, type, 32, 64),
                        *b = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, 32, 64);
    struct gcuda_tensor * y = by_out_prod ? gcuda_out_prod(p.ctx, a, b) : gcuda_mul_mat(p.ctx, a, b);
    gcuda_mul_mat_set_prec(y, prec);
    struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
    CHECK_OK(gcuda_build_forward_expand(graph, y));
    CHECK(place_alloc(&p, backend));
    CHECK_OK(gcuda_backend_buffer_clear(p.buffer, 0));
    CHECK_OK(gcuda_backend_graph_compute(backend, graph));
    place_end(&p);
    gcuda_backend_free(backend);
    return sim_gemm_compute();
}

TEST(products_take_the_way_that_is_named) {
    static const struct {
        const char * name;
        enum gcudai_cuda_mm_path path;
    } cases[] = { { "cublas", GCUDAI_CUDA_MM_CUBLAS }, { "converted", GCUDAI_CUDA_MM_CUBLAS_F32 },
        { "halves", GCUDAI_CUDA_MM_CUBLAS_16 }, { "gemm", GCUDAI_CUDA_MM_PACKED },
#define X(ID, name, product) { product, GCUDAI_CUDA_MM_##ID },
        GCUDA_MUL_MAT_PATH_LIST(X)
#undef X
    };
    struct gcuda_cuda_params params;
    memset(&params, 0, sizeof params);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        const enum gcudai_cuda_mm_path path = cases[i].path;
        if (cases[i].name[0] == '\0') { continue; }
        // by the parameter, by the environment, by the parameter against it
        for (int by_env = 0; by_env < 3; ++by_env) {
            char name[16];
            snprintf(name, sizeof name, "%s", cases[i].name);
            if (by_env > 0) { setenv("GCUDA_CUDA_PRODUCT", by_env == 1 ? cases[i].name : "nonsense", 1); }
            params.product = by_env == 1 ? NULL : name;
            gcuda_backend_t backend = gcuda_backend_cuda_init_params(&params);
            memset(name, 'x', sizeof name); // it was the caller's
            REQUIRE(backend != NULL);
            struct gcudai_cuda * cu = (struct gcudai_cuda *) backend;
            const bool has_cublas = gcudai_cublas_is_there(cu);
            struct gcuda_mul_mat_args p;
            GCUDAI_ZERO(p);
            p.a = packed_array(GCUDA_TYPE_F32, 256, 40, 1);
            p.b = packed_array(GCUDA_TYPE_F32, 256, 30, 1);
            p.y = packed_array(GCUDA_TYPE_F32, 40, 30, 1);
            CHECK_EQ_I(cu->product, 1 + (int) path);
            const bool takes = is_taken(path, &p, has_cublas, cu->kernels.has_wgmma, cu->device->cc) &&
                               (path != GCUDAI_CUDA_MM_TILE || cu->device->cc >= 800);
            CHECK_EQ_I((int) gcudai_cuda_mm_choose(cu, &p, NULL).path,
                (int) (takes ? path : chosen(&p, has_cublas, cu->kernels.has_wgmma, cu->device->cc)));
            gcuda_backend_free(backend);
            unsetenv("GCUDA_CUDA_PRODUCT");
        }
    }
    params.product = "tiles";
    CHECK(gcuda_backend_cuda_init_params(&params) == NULL);
    CHECK_HAS(gcuda_last_error(), "tiles");
    params.product = "";
    setenv("GCUDA_CUDA_PRODUCT", "own", 1);
    gcuda_backend_t backend = gcuda_backend_cuda_init_params(&params);
    CHECK(backend != NULL && ((struct gcudai_cuda *) backend)->product == 0);
    gcuda_backend_free(backend);
    unsetenv("GCUDA_CUDA_PRODUCT");
    clean();
}

// The product of raw pointers has the bits of the node, whichever way it goes; what the operation refuses is refused.
static void same_as_node(
    gcuda_backend_t backend, enum gcuda_type type, int64_t k, int64_t m, int64_t n, int64_t n_experts) {
    struct place p = place_begin();
    const bool by_id = n_experts > 0;
    struct gcuda_tensor * a = gcuda_new_tensor_3d(p.ctx, type, k, m, by_id ? n_experts : 2);
    struct gcuda_tensor * b = gcuda_new_tensor_3d(p.ctx, GCUDA_TYPE_F32, k, by_id ? 1 : n, by_id ? n : 4);
    struct gcuda_tensor * ids = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_I32, 2, n);
    struct gcuda_tensor * y = by_id ? gcuda_mul_mat_id(p.ctx, a, b, ids) : gcuda_mul_mat(p.ctx, a, b);
    struct gcuda_tensor * raw = gcuda_new_tensor(p.ctx, GCUDA_TYPE_F32, 4, y->ne);
    struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
    CHECK_OK(gcuda_build_forward_expand(graph, y));
    REQUIRE(place_alloc(&p, backend));
    const size_t size = gcuda_nbytes(y);
    unsigned char * weights = (unsigned char *) malloc(gcuda_nbytes(a));
    float *x = (float *) malloc(gcuda_nbytes(b)), *want = (float *) malloc(size), *got = (float *) malloc(size);
    int32_t * chosen = (int32_t *) malloc(gcuda_nbytes(ids));
    // no half is NaN
    for (size_t i = 0; i < gcuda_nbytes(a); ++i) { weights[i] = (unsigned char) (37 * i >> 3 & 0xbb); }
    for (int64_t i = 0; i < gcuda_nelements(b); ++i) { x[i] = (float) (i % 17) - 8.0f; }
    for (int64_t i = 0; i < 2 * n; ++i) { chosen[i] = (int32_t) (i * 5 % (by_id ? n_experts : 1)); }
    CHECK_OK(gcuda_backend_tensor_set(a, weights, 0, gcuda_nbytes(a)));
    CHECK_OK(gcuda_backend_tensor_set(b, x, 0, gcuda_nbytes(b)));
    CHECK_OK(gcuda_backend_tensor_set(ids, chosen, 0, gcuda_nbytes(ids)));
    CHECK_OK(gcuda_backend_graph_compute(backend, graph));
    struct gcuda_mul_mat_args args;
    struct gcuda_mul_mat_id_args id_args;
    GCUDAI_ZERO(args);
    GCUDAI_ZERO(id_args);
    args.a = id_args.as = gcudai_array(a), args.b = id_args.b = gcudai_array(b), args.y = id_args.y = gcudai_array(raw);
    id_args.ids = gcudai_array(ids);
    CHECK_OK(by_id ? gcuda_backend_cuda_mul_mat_id(backend, &id_args) : gcuda_backend_cuda_mul_mat(backend, &args));
    CHECK_OK(gcuda_backend_synchronize(backend));
    CHECK_OK(gcuda_backend_tensor_get(y, want, 0, size));
    CHECK_OK(gcuda_backend_tensor_get(raw, got, 0, size));
    CHECK_MSG(
        memcmp(want, got, size) == 0, "%s, %d columns, %d experts", gcuda_type_name(type), (int) n, (int) n_experts);
    if (by_id) {
        chosen[1] = (int32_t) n_experts;
        CHECK_OK(gcuda_backend_tensor_set(ids, chosen, 0, gcuda_nbytes(ids)));
        CHECK_OK(gcuda_backend_cuda_mul_mat_id(backend, &id_args));
        CHECK(gcuda_backend_synchronize(backend) == GCUDA_STATUS_INVALID_DATA);
        CHECK_OK(gcuda_backend_tensor_get(raw, got, 0, size));
        for (int64_t i = m; i < 2 * m; ++i) { CHECK(got[i] == 0.0f && want[i] != 0.0f); }
    }
    id_args.b.ne[0] = args.b.ne[0] = k + 32;
    CHECK((by_id ? gcuda_backend_cuda_mul_mat_id(backend, &id_args) : gcuda_backend_cuda_mul_mat(backend, &args)) ==
          GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_HAS(gcuda_last_error(), by_id ? "mul_mat_id" : "mul_mat");
    id_args.b = args.b = gcudai_array(b);
    id_args.b.data = args.b.data = NULL;
    CHECK((by_id ? gcuda_backend_cuda_mul_mat_id(backend, &id_args) : gcuda_backend_cuda_mul_mat(backend, &args)) ==
          GCUDA_STATUS_INVALID_ARGUMENT);
    id_args.b.data = args.b.data = (char *) b->data + 2;
    CHECK((by_id ? gcuda_backend_cuda_mul_mat_id(backend, &id_args) : gcuda_backend_cuda_mul_mat(backend, &args)) ==
          GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_HAS(gcuda_last_error(), "not aligned to 4 bytes");
    free(chosen);
    free(got);
    free(want);
    free(x);
    free(weights);
    place_end(&p);
}

TEST(products_of_raw_pointers) {
    static const enum gcuda_type types[] = { GCUDA_TYPE_F32, GCUDA_TYPE_F16, GCUDA_TYPE_Q4_0, GCUDA_TYPE_Q6_K,
        GCUDA_TYPE_IQ2_XS };
    static const int64_t columns[] = { 1, 3, 20, 70 };
    static const char * const ways[] = { NULL, "own", "gemm" };
    for (int w = 0; w < 3; ++w) {
        struct gcuda_cuda_params params;
        memset(&params, 0, sizeof params);
        params.product = ways[w];
        gcuda_backend_t backend = gcuda_backend_cuda_init_params(&params);
        REQUIRE(backend != NULL);
        for (int t = 0; t < 5; ++t) {
            for (int i = 0; i < 4; ++i) {
                same_as_node(backend, types[t], 256, 20, columns[i], 0);
                if (w == 0) { same_as_node(backend, types[t], 256, 20, columns[i], 3); }
            }
        }
        gcuda_backend_free(backend);
    }
    struct gcuda_mul_mat_args args;
    GCUDAI_ZERO(args);
    gcuda_backend_t cpu = gcuda_backend_cpu_init(), cuda = gcuda_backend_cuda_init(0);
    CHECK(gcuda_backend_cuda_mul_mat(cpu, &args) == GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_HAS(gcuda_last_error(), "not a CUDA device");
    args.y.type = GCUDA_TYPE_COUNT;
    CHECK(gcuda_backend_cuda_mul_mat(cuda, &args) == GCUDA_STATUS_INVALID_ARGUMENT);
    args.y.type = GCUDA_TYPE_F32;
    args.a.type = GCUDA_TYPE_COUNT;
    CHECK(gcuda_backend_cuda_mul_mat(cuda, &args) == GCUDA_STATUS_INVALID_ARGUMENT);
    gcuda_backend_free(cpu);
    gcuda_backend_free(cuda);
    clean();
}

// Launchers store results of 16 bits as well: the F32 results, rounded. Weights are of any bits whose halves are
// finite, and not so large that all results in F16 would be infinite.
static void * upload(const void * data, size_t n_bytes) {
    void * p = NULL;
    CHECK(
        cudaMalloc(&p, n_bytes) == cudaSuccess && cudaMemcpy(p, data, n_bytes, cudaMemcpyHostToDevice) == cudaSuccess);
    return p;
}

static void upload_weights(struct gcuda_array * a) {
    const size_t n_bytes = a->nb[3];
    unsigned char * weights = (unsigned char *) malloc(n_bytes);
    for (size_t i = 0; i < n_bytes; ++i) {
        const bool is_exponent = a->type == GCUDA_TYPE_MXFP4 && i % 17 == 0;
        weights[i] = (unsigned char) (is_exponent ? 120 + i % 5 : 37 * i >> 3 & 0xbb); // no half is NaN
    }
    for (size_t i = 0; i < n_bytes / 4 && a->type == GCUDA_TYPE_F32; ++i) {
        ((float *) (void *) weights)[i] = (float) (i % 13) - 6.0f;
    }
    for (size_t i = 0; i < n_bytes / 2 && a->type == GCUDA_TYPE_BF16; ++i) { // not whole numbers
        ((gcuda_bf16_t *) (void *) weights)[i] = gcuda_fp32_to_bf16((float) (i % 29) * 0.37f - 5.0f);
    }
    a->data = upload(weights, n_bytes);
    free(weights);
}

static void upload_columns(struct gcuda_array * b) {
    float * x = (float *) malloc(b->nb[3]);
    for (size_t i = 0; i < b->nb[3] / 4; ++i) { x[i] = (float) (i % 11) * 0.01f; }
    b->data = upload(x, b->nb[3]);
    free(x);
}

static void check_rounded(
    const float * want, const uint16_t * got, int64_t n, enum gcuda_type to, const char * what, int columns, int way) {
    int64_t n_numbers = 0;
    for (int64_t i = 0; i < n; ++i) {
        const uint16_t rounded = to == GCUDA_TYPE_F16 ? gcuda_fp32_to_fp16(want[i]) : gcuda_fp32_to_bf16(want[i]).bits;
        CHECK_MSG(rounded == got[i], "%s to %s, %d columns, way %d: result %d", what, gcuda_type_name(to), columns, way,
            (int) i);
        n_numbers += fabsf(want[i]) < 65504.0f && want[i] != 0.0f;
    }
    CHECK_MSG(2 * n_numbers > n, "%s, %d columns, way %d: few results say anything", what, columns, way);
}

enum { PLAIN_WAY, VECTOR_WAY, TILE_WAY, FUSED_WAY, N_SHORT_WAYS };
static gcuda_status launch_short(const struct gcuda_mul_mat_args * p, int way) {
    static const struct gcuda_mul_mat_epilogue none; // leaves the sums alone
    const bool is_quantized = gcuda_is_quantized(p->a.type);
    const size_t size = way == TILE_WAY ? product_scratch(GCUDA_MUL_MAT_TILE, p, NULL)
                        : is_quantized  ? product_scratch(GCUDA_MUL_MAT_VEC, p, NULL)
                                        : 0;
    void * scratch = NULL;
    CHECK(cudaMalloc(&scratch, size + 16) == cudaSuccess);
    const gcuda_status st = way == PLAIN_WAY  ? launch_product(GCUDA_MUL_MAT_PLAIN, p, NULL, NULL, NULL)
                            : way == TILE_WAY ? launch_product(GCUDA_MUL_MAT_TILE, p, NULL, scratch, NULL)
                            : is_quantized
                                ? launch_product(GCUDA_MUL_MAT_VEC, p, way == FUSED_WAY ? &none : NULL, scratch, NULL)
                                : launch_product(GCUDA_MUL_MAT_VEC, p, NULL, NULL, NULL);
    CHECK(cudaStreamSynchronize(NULL) == cudaSuccess && cudaFree(scratch) == cudaSuccess);
    return st;
}

static const enum gcuda_type result_types[3] = { GCUDA_TYPE_F32, GCUDA_TYPE_F16, GCUDA_TYPE_BF16 };

static void results_of_16_bits(enum gcuda_type type, int64_t k, int64_t n) {
    enum { M = 40 };
    struct gcuda_mul_mat_args p;
    GCUDAI_ZERO(p);
    p.a = packed_array(type, k, M, 1);
    p.b = packed_array(GCUDA_TYPE_F32, k, n, 1);
    upload_weights(&p.a);
    upload_columns(&p.b);
    const size_t most = (size_t) (M * n) * sizeof(float);
    float *want = (float *) malloc(most), *got = (float *) malloc(most);
    void * y = NULL;
    CHECK(cudaMalloc(&y, most) == cudaSuccess);
    const bool is_wide = gcuda_is_quantized(type) && GCUDA_SIM_CC >= 800 && p.a.nb[1] % 4 == 0;
    for (int way = 0; way < N_SHORT_WAYS; ++way) {
        const bool is_vector = way == VECTOR_WAY || way == FUSED_WAY;
        if (is_vector && n > (is_wide ? vec_layout_of(type).max_columns : 8)) { continue; }
        if (way == FUSED_WAY && !gcuda_is_quantized(type)) { continue; } // F32 alone, see below
        for (int to = 0; to < 3; ++to) {
            p.y = packed_array(result_types[to], M, n, 1);
            p.y.data = y;
            CHECK_OK(launch_short(&p, way));
            CHECK(cudaMemcpy(to > 0 ? got : want, y, p.y.nb[2], cudaMemcpyDeviceToHost) == cudaSuccess);
            if (to > 0) {
                check_rounded(
                    want, (const uint16_t *) (const void *) got, M * n, p.y.type, gcuda_type_name(type), (int) n, way);
            }
        }
    }
    CHECK(cudaFree(p.a.data) == cudaSuccess && cudaFree(p.b.data) == cudaSuccess && cudaFree(y) == cudaSuccess);
    free(got);
    free(want);
}

TEST(launchers_of_products_round_results) {
    static const int64_t columns[] = { 1, 2, 3, 7, 8, 15, 16, 33, 70 };
    for (int t = 0; t < N_WEIGHT_TYPES; ++t) {
        for (int i = 0; i < 9; ++i) { // rows of one block of 256 are at any multiple of 2 bytes, of two at 4
            results_of_16_bits(
                weight_types[t].type, columns[i] == 2 || columns[i] == 7 || columns[i] == 16 ? 512 : 256, columns[i]);
        }
    }
    clean();
}

// Of experts: any way, slots one by one, and lists of them as bytes.
static gcuda_status launch_short_id(struct gcuda_mul_mat_id_args * p, int way) {
    const size_t size = way == 0   ? experts_scratch(GCUDA_MUL_MAT_PLAIN, p)
                        : way == 2 ? experts_scratch(GCUDA_MUL_MAT_INT8, p)
                                   : 0;
    CHECK(cudaMalloc(&p->scratch, size + 16) == cudaSuccess);
    const enum gcuda_mul_mat_path path = way == 0   ? GCUDA_MUL_MAT_PLAIN
                                         : way == 2 ? GCUDA_MUL_MAT_INT8
                                                    : GCUDA_MUL_MAT_VEC;
    const gcuda_status st = launch_experts(path, p, NULL, NULL);
    CHECK(cudaStreamSynchronize(NULL) == cudaSuccess && cudaFree(p->scratch) == cudaSuccess);
    return st;
}

static void results_of_experts_of_16_bits(const struct weight_type * w, int64_t tokens) {
    enum { K = 512, M = 20, USED = 2, EXPERTS = 3 };
    struct gcuda_mul_mat_id_args p;
    GCUDAI_ZERO(p);
    p.as = packed_array(w->type, K, M, EXPERTS);
    p.b = packed_array(GCUDA_TYPE_F32, K, 1, tokens);
    p.ids = packed_array(GCUDA_TYPE_I32, USED, tokens, 1);
    upload_weights(&p.as);
    upload_columns(&p.b);
    int32_t * ids = (int32_t *) malloc(p.ids.nb[2]);
    for (int64_t i = 0; i < USED * tokens; ++i) { ids[i] = (int32_t) (i * 5 % 7 % EXPERTS); }
    p.ids.data = upload(ids, p.ids.nb[2]);
    const size_t most = (size_t) (M * USED * tokens) * sizeof(float);
    float *want = (float *) malloc(most), *got = (float *) malloc(most);
    void * y = NULL;
    CHECK(cudaMalloc(&y, most) == cudaSuccess);
    for (int way = 0; way < 3; ++way) {
        const bool is_refused = way == 2 && (w->bytes_to == 0 || GCUDA_SIM_CC < 800);
        for (int to = 0; to < 3; ++to) {
            p.y = packed_array(result_types[to], M, USED, tokens);
            p.y.data = y;
            CHECK_EQ_I(launch_short_id(&p, way), is_refused ? GCUDA_STATUS_UNSUPPORTED : GCUDA_STATUS_SUCCESS);
            CHECK(cudaMemcpy(to > 0 ? got : want, y, p.y.nb[3], cudaMemcpyDeviceToHost) == cudaSuccess);
            if (to == 0 || is_refused) { continue; }
            const char * name = gcuda_type_name(w->type);
            check_rounded(
                want, (const uint16_t *) (const void *) got, M * USED * tokens, p.y.type, name, (int) tokens, 10 + way);
        }
    }
    CHECK(cudaFree(p.as.data) == cudaSuccess && cudaFree(p.b.data) == cudaSuccess);
    CHECK(cudaFree(p.ids.data) == cudaSuccess && cudaFree(y) == cudaSuccess);
    free(got);
    free(want);
    free(ids);
}

TEST(launchers_of_products_of_experts_round_results) {
    static const int64_t tokens[] = { 1, 2, 8, 16, 33, 70 };
    for (int t = 0; t < N_WEIGHT_TYPES; ++t) {
        for (int i = 0; i < 6; ++i) { results_of_experts_of_16_bits(&weight_types[t], tokens[i]); }
    }
    clean();
}

// Paths that cannot round results refuse, launch nothing and write nothing. In F32 they compute, except WGMMA, which
// the simulated device lacks. Groups of blocks on path VEC do round.
enum {
    REFUSE_WG,
    REFUSE_WG_FUSED,
    REFUSE_WG_GROUP,
    REFUSE_GEMM,
    REFUSE_TILE_FUSED,
    REFUSE_FLOAT_FUSED,
    REFUSE_FLOAT_GROUP,
    N_REFUSE
};
static gcuda_status launch_of_f32(const struct gcuda_mul_mat_args * p, int way, void * scratch) {
    static const struct gcuda_mul_mat_epilogue none;
    switch (way) {
        case REFUSE_WG: return launch_product(GCUDA_MUL_MAT_WGMMA, p, NULL, scratch, NULL);
        case REFUSE_WG_FUSED: return launch_product(GCUDA_MUL_MAT_WGMMA, p, &none, scratch, NULL);
        case REFUSE_WG_GROUP: return launch_group(GCUDA_MUL_MAT_WGMMA, p, 1, scratch, NULL);
        case REFUSE_GEMM: return launch_product(GCUDA_MUL_MAT_GEMM, p, NULL, scratch, NULL);
        case REFUSE_TILE_FUSED: return launch_product(GCUDA_MUL_MAT_TILE, p, &none, scratch, NULL);
        case REFUSE_FLOAT_FUSED: return launch_product(GCUDA_MUL_MAT_VEC, p, &none, NULL, NULL);
        default: return launch_group(GCUDA_MUL_MAT_VEC, p, 1, NULL, NULL);
    }
}

static void refuses_16_bits(enum gcuda_type type, int way, enum gcuda_type to) {
    enum { K = 256, M = 40, SCRATCH = 1 << 20 };
    const int64_t n = way == REFUSE_FLOAT_GROUP ? 1 : way == REFUSE_FLOAT_FUSED ? 2 : 16;
    struct gcuda_mul_mat_args p;
    GCUDAI_ZERO(p);
    p.a = packed_array(type, K, M, 1);
    p.b = packed_array(way == REFUSE_GEMM ? type : GCUDA_TYPE_F32, K, n, 1);
    p.y = packed_array(to, M, n, 1);
    upload_weights(&p.a);
    char *y = (char *) malloc((size_t) (M * n) * 4), *scratch = NULL;
    memset(y, 0x5a, (size_t) (M * n) * 4);
    CHECK(cudaMalloc(&p.b.data, p.b.nb[3]) == cudaSuccess && cudaMalloc((void **) &scratch, SCRATCH) == cudaSuccess);
    CHECK(cudaMemsetAsync(p.b.data, 0, p.b.nb[3], NULL) == cudaSuccess);
    p.y.data = upload(y, (size_t) (M * n) * 4);
    static const struct gcuda_mul_mat_epilogue none;
    CHECK(product_scratch(GCUDA_MUL_MAT_TILE, &p, &none) <= SCRATCH);
    const bool is_block_group = way == REFUSE_FLOAT_GROUP && gcuda_is_quantized(type); // VEC of blocks rounds results
    const bool takes_f32 =
        way >= REFUSE_GEMM && to == GCUDA_TYPE_F32 && (way == REFUSE_TILE_FUSED || !gcuda_is_quantized(type));
    const bool is_taken = takes_f32 || is_block_group;
    const int64_t n_written = is_taken ? M * n * (int64_t) gcuda_type_size(to) : 0;
    const long before = sim_counts("cudaLaunchKernelEx");
    CHECK_MSG(launch_of_f32(&p, way, scratch) == (is_taken ? GCUDA_STATUS_SUCCESS : GCUDA_STATUS_UNSUPPORTED),
        "%s to %s, launcher %d", gcuda_type_name(type), gcuda_type_name(to), way);
    CHECK((sim_counts("cudaLaunchKernelEx") > before) == is_taken);
    CHECK(cudaStreamSynchronize(NULL) == cudaSuccess &&
          cudaMemcpy(y, p.y.data, (size_t) (M * n) * 4, cudaMemcpyDeviceToHost) == cudaSuccess);
    for (int64_t i = 0; i < M * n * 4; ++i) { CHECK(y[i] == (i < n_written ? 0 : 0x5a)); }
    CHECK(cudaFree(p.a.data) == cudaSuccess && cudaFree(p.b.data) == cudaSuccess);
    CHECK(cudaFree(p.y.data) == cudaSuccess && cudaFree(scratch) == cudaSuccess);
    free(y);
}

static void experts_refuse_16_bits(enum gcuda_type type, enum gcuda_type to) {
    struct gcuda_mul_mat_id_args p;
    char y[16 * 2 * 4 * 2];
    GCUDAI_ZERO(p);
    p.as = packed_array(type, 512, 16, 3);
    p.b = packed_array(GCUDA_TYPE_F32, 512, 1, 4);
    p.ids = packed_array(GCUDA_TYPE_I32, 2, 4, 1);
    p.y = packed_array(to, 16, 2, 4);
    memset(y, 0x5a, sizeof y);
    p.y.data = upload(y, sizeof y);
    CHECK(launch_experts(GCUDA_MUL_MAT_WGMMA, &p, NULL, NULL) == GCUDA_STATUS_UNSUPPORTED);
    const struct gcuda_mul_mat_epilogue none = { .scale = 0.0f };
    if (!gcuda_is_quantized(type)) {
        CHECK(launch_experts(GCUDA_MUL_MAT_VEC, &p, &none, NULL) == GCUDA_STATUS_UNSUPPORTED);
    }
    CHECK(cudaStreamSynchronize(NULL) == cudaSuccess &&
          cudaMemcpy(y, p.y.data, sizeof y, cudaMemcpyDeviceToHost) == cudaSuccess);
    for (size_t i = 0; i < sizeof y; ++i) { CHECK(y[i] == 0x5a); }
    CHECK(cudaFree(p.y.data) == cudaSuccess);
}

TEST(launchers_of_f32_refuse_other_results) {
    for (int t = 0; t < N_WEIGHT_TYPES * 3; ++t) {
        const enum gcuda_type type = weight_types[t / 3].type;
        for (int way = 0; way < N_REFUSE; ++way) { refuses_16_bits(type, way, result_types[t % 3]); }
        if (t % 3 > 0) { experts_refuse_16_bits(type, result_types[t % 3]); }
    }
    clean();
}

static void upload_floats(struct gcuda_array * to, int step, int range) { // to memory of no more bytes than it has
    const int64_t n = to->ne[0] * to->ne[1];
    char * values = (char *) malloc(to->nb[2]);
    for (int64_t i = 0; i < n; ++i) {
        const float v = (float) (step * i % range - range / 2);
        gcudai_store(to->type, values + i * (int64_t) to->nb[0], to->nb[0], 1, &v);
    }
    CHECK(cudaMalloc(&to->data, to->nb[2]) == cudaSuccess);
    CHECK(cudaMemcpy(to->data, values, to->nb[2], cudaMemcpyHostToDevice) == cudaSuccess);
    free(values);
}

// Sums of small integers, which are exact in TF32 too.
static void floats_on_exact_memory(enum gcuda_type type, int64_t k, int64_t m, int64_t n, size_t max_shared) {
    struct gcuda_mul_mat_args p;
    GCUDAI_ZERO(p);
    p.a = packed_array(type, k, m, 1);
    p.b = packed_array(GCUDA_TYPE_F32, k, n, 1);
    p.y = packed_array(GCUDA_TYPE_F32, m, n, 1);
    p.max_shared = max_shared;
    upload_floats(&p.a, 7, 13);
    upload_floats(&p.b, 3, 11);
    float * got = (float *) malloc(p.y.nb[2]);
    CHECK(cudaMalloc(&p.y.data, p.y.nb[2]) == cudaSuccess);
    CHECK_OK(launch_product(GCUDA_MUL_MAT_VEC, &p, NULL, NULL, NULL));
    CHECK(cudaMemcpy(got, p.y.data, p.y.nb[2], cudaMemcpyDeviceToHost) == cudaSuccess);
    for (int64_t i = 0; i < m * n; ++i) {
        int64_t want = 0;
        for (int64_t j = 0; j < k; ++j) { want += (7 * (i % m * k + j) % 13 - 6) * (3 * (i / m * k + j) % 11 - 5); }
        CHECK_MSG(got[i] == (float) want, "%s, [%d, %d] and %d columns: result %d is %g, not %d", gcuda_type_name(type),
            (int) k, (int) m, (int) n, (int) i, (double) got[i], (int) want);
    }
    free(got);
    CHECK(cudaFree(p.a.data) == cudaSuccess && cudaFree(p.b.data) == cudaSuccess && cudaFree(p.y.data) == cudaSuccess);
}

// Nothing is read past the last row, though up to 16 rows are read at a time, nor past the last column:
// AddressSanitizer would report it.
TEST(products_of_floats_read_nothing_beyond) {
    static const enum gcuda_type types[] = { GCUDA_TYPE_F32, GCUDA_TYPE_F16, GCUDA_TYPE_BF16 };
    static const int64_t sizes[][2] = { { 72, 1 }, { 200, 83 }, { 1096, 35 } }; // elements of a row, rows
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    for (int i = 0; i < 3 * 3; ++i) {
        for (int64_t n = 1; n <= 8; ++n) {
            floats_on_exact_memory(types[i / 3], sizes[i % 3][0], sizes[i % 3][1], n, 0);
            floats_on_exact_memory(
                types[i / 3], sizes[i % 3][0], sizes[i % 3][1], n, gcuda_backend_cuda_get_max_shared(backend));
            floats_on_exact_memory(types[i / 3], sizes[i % 3][0] + 3, sizes[i % 3][1], n, 0); // no pieces of 16 bytes
        }
    }
    gcuda_backend_free(backend);
    clean();
}

// Products of [32, 20, a2, a3] with [32, 16, b2, b3] in F32, through cuBLAS: how often it is called, and how.
struct batches {
    int64_t a2, a3, b2, b3;
    bool is_permuted; // b is stored with its columns outside of its matrices
    long n_strided, n_pointers;
};

static void check_batches(const struct batches * c, const struct gcuda_cuda_params * params) {
    fresh(1, 64 * MB, 1);
    gcuda_backend_t backend = gcuda_backend_cuda_init_params(params);
    struct place p = place_begin();
    struct gcuda_tensor * a = gcuda_new_tensor_4d(p.ctx, GCUDA_TYPE_F32, 32, 20, c->a2, c->a3);
    struct gcuda_tensor * b =
        gcuda_new_tensor_4d(p.ctx, GCUDA_TYPE_F32, 32, c->is_permuted ? c->b2 : 16, c->is_permuted ? 16 : c->b2, c->b3);
    struct gcuda_tensor * y = gcuda_mul_mat(p.ctx, a, c->is_permuted ? gcuda_permute(p.ctx, b, 0, 2, 1, 3) : b);
    struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
    CHECK_OK(gcuda_build_forward_expand(graph, y));
    REQUIRE(backend != NULL && place_alloc(&p, backend));
    CHECK_OK(gcuda_backend_buffer_clear(p.buffer, 0));
    CHECK_OK(gcuda_backend_graph_compute(backend, graph));
    CHECK_OK(gcuda_backend_synchronize(backend));
    CHECK_MSG(
        sim_counts("cublasGemmStridedBatchedEx") == c->n_strided && sim_counts("cublasGemmBatchedEx") == c->n_pointers,
        "[%d, %d] and [%d, %d]: %ld and %ld calls, want %ld and %ld", (int) c->a2, (int) c->a3, (int) c->b2,
        (int) c->b3, sim_counts("cublasGemmStridedBatchedEx"), sim_counts("cublasGemmBatchedEx"), c->n_strided,
        c->n_pointers);
    place_end(&p);
    gcuda_backend_free(backend);
    clean();
}

TEST(many_matrices_are_one_call_of_cublas) {
    static const struct batches cases[] = {
        // one, joined columns, a batch
        { 1, 1, 1, 1, false, 1, 0 }, { 1, 1, 6, 1, false, 1, 0 }, { 6, 1, 6, 1, false, 1, 0 },
        // a batch of joined columns, of two dimensions
        { 3, 1, 6, 1, false, 1, 0 }, { 3, 2, 3, 2, false, 1, 0 }, { 3, 2, 6, 2, false, 1, 0 },
        { 1, 1, 2, 3, false, 1, 0 }, { 1, 2, 1, 6, false, 1, 0 }, { 1, 1, 6, 1, true, 1, 0 },
        { 3, 1, 3, 2, false, 0, 1 }, { 3, 2, 6, 4, false, 0, 1 }, { 3, 1, 6, 1, true, 0, 1 },
        { 3, 2, 6, 2, true, 0, 1 }, { 5, 1, 5, 2, false, 2, 0 }, // each call has tiles for all four SMs
    };
    struct gcuda_cuda_params params;
    memset(&params, 0, sizeof params);
    params.graphs = GCUDA_CUDA_OFF;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) { check_batches(&cases[i], &params); }
}

// One product of activations that only F32 holds and weights of the type, whose first element of a row is 1 and others
// are 0; by_id: of the only expert.
static float one_activation(
    enum gcuda_type type, int64_t columns, bool by_id, const struct gcuda_cuda_params * params, int * cc) {
    enum { K = 32, M = 64 };
    fresh(1, 64 * MB, 1);
    gcuda_backend_t backend = gcuda_backend_cuda_init_params(params);
    struct place p = place_begin();
    struct gcuda_tensor *a = gcuda_new_tensor_2d(p.ctx, type, K, M),
                        *ids = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_I32, 1, columns);
    struct gcuda_tensor * b = gcuda_new_tensor_3d(p.ctx, GCUDA_TYPE_F32, K, by_id ? 1 : columns, by_id ? columns : 1);
    struct gcuda_tensor * y = by_id ? gcuda_mul_mat_id(p.ctx, a, b, ids) : gcuda_mul_mat(p.ctx, a, b);
    struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
    CHECK_OK(gcuda_build_forward_expand(graph, y));
    CHECK(place_alloc(&p, backend));
    CHECK_OK(gcuda_backend_buffer_clear(p.buffer, 0));
    float w[K * M], *x = (float *) malloc(gcuda_nbytes(b)), out = NAN;
    char typed[sizeof w];
    for (int i = 0; i < K * M; ++i) { w[i] = i % K == 0 ? 1.0f : 0.0f; }
    for (int64_t i = 0; i < K * columns; ++i) { x[i] = 1.0f + 1.0f / 65536.0f; }
    if (type == GCUDA_TYPE_F32) {
        memcpy(typed, w, sizeof w);
    } else {
        gcuda_get_type_traits(type)->from_float_ref(w, typed, K * M);
    }
    CHECK_OK(gcuda_backend_tensor_set(a, typed, 0, gcuda_nbytes(a)));
    CHECK_OK(gcuda_backend_tensor_set(b, x, 0, gcuda_nbytes(b)));
    CHECK_OK(gcuda_backend_graph_compute(backend, graph));
    CHECK_OK(gcuda_backend_tensor_get(y, &out, 0, sizeof out));
    CHECK(fabsf(out - x[0]) < 1e-3f);
    *cc = ((struct gcudai_cuda *) backend)->device->cc;
    free(x);
    place_end(&p);
    gcuda_backend_free(backend);
    return out;
}

TEST(products_are_in_full_precision_when_asked) {
    enum { FULL = 68, TF32 = 77 }; // cublasComputeType_t
    for (int by_out_prod = 0; by_out_prod < 2; ++by_out_prod) {
        CHECK_EQ_I(compute_type(GCUDA_TYPE_F32, GCUDA_CUDA_AUTO, NULL, GCUDA_PREC_DEFAULT, by_out_prod), TF32);
        CHECK_EQ_I(compute_type(GCUDA_TYPE_F32, GCUDA_CUDA_ON, NULL, GCUDA_PREC_DEFAULT, by_out_prod), FULL);
        CHECK_EQ_I(compute_type(GCUDA_TYPE_F32, GCUDA_CUDA_AUTO, "32f", GCUDA_PREC_DEFAULT, by_out_prod), FULL);
        CHECK_EQ_I(compute_type(GCUDA_TYPE_F32, GCUDA_CUDA_AUTO, "other", GCUDA_PREC_DEFAULT, by_out_prod), TF32);
        CHECK_EQ_I(compute_type(GCUDA_TYPE_F32, GCUDA_CUDA_OFF, "32f", GCUDA_PREC_DEFAULT, by_out_prod), TF32);
        // of this node alone
        CHECK_EQ_I(compute_type(GCUDA_TYPE_F32, GCUDA_CUDA_OFF, NULL, GCUDA_PREC_F32, by_out_prod), FULL);
    }
    static const struct {
        enum gcuda_type type;
        int64_t columns;
        bool by_id;
        int rounds_from; // compute capability, unless asked for full precision
        const char * product;
    } cases[] = {
        { GCUDA_TYPE_F16, 64, false, 0, NULL },
        { GCUDA_TYPE_BF16, 64, false, 0, NULL }, // cuBLAS
        // few columns, on tensor cores
        { GCUDA_TYPE_F16, 8, false, 800, NULL },
        { GCUDA_TYPE_BF16, 8, false, 800, NULL },
        { GCUDA_TYPE_F16, 2, false, 800, NULL },
        { GCUDA_TYPE_F16, 1, false, INT32_MAX, NULL },
        { GCUDA_TYPE_F32, 1, false, INT32_MAX, NULL },
        // as where there is no cuBLAS
        { GCUDA_TYPE_F32, 64, false, 800, "tile" },
        { GCUDA_TYPE_F16, 64, false, 800, "tile" },
        { GCUDA_TYPE_BF16, 64, false, 800, "tile" },
        { GCUDA_TYPE_F32, 200, true, 800, NULL },
        { GCUDA_TYPE_F16, 200, true, 800, NULL },
        { GCUDA_TYPE_BF16, 200, true, 800, NULL },
        { GCUDA_TYPE_F16, 2, true, INT32_MAX, NULL },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        for (int on = 0; on < 2; ++on) {
            const struct gcuda_cuda_params params = { .full_precision = on ? GCUDA_CUDA_ON : GCUDA_CUDA_OFF,
                .product = cases[i].product };
            int cc = 0;
            const float out = one_activation(cases[i].type, cases[i].columns, cases[i].by_id, &params, &cc);
            CHECK_MSG((out == 1.0f + 1.0f / 65536.0f) == (on != 0 || cc < cases[i].rounds_from), "case %d, %s: %.9g",
                (int) i, on ? "on" : "off", (double) out);
        }
    }
    clean();
}

TEST(products_keep_nan) {
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    CHECK(backend != NULL);
    check_nan(backend, 12, false);
    check_nan(backend, 33, false);
    check_nan(backend, 70, true);
    gcuda_backend_free(backend);
}

// Few pairs per expert, INT8, against the CPU backend: two shared-memory caps, rows in one pass and in several, lists
// of more than eight, unused experts, invalid ids.
static void run_experts(
    gcuda_backend_t backend, enum gcuda_type type, const int64_t * shape, const int32_t * ids, float * out) {
    const int64_t k = shape[0], m = shape[1], n_experts = shape[2], used = shape[3], tokens = shape[4];
    struct place p = place_begin();
    struct gcuda_tensor *a = gcuda_new_tensor_3d(p.ctx, type, k, m, n_experts),
                        *b = gcuda_new_tensor_3d(p.ctx, GCUDA_TYPE_F32, k, 1, tokens);
    struct gcuda_tensor *at = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_I32, used, tokens),
                        *y = gcuda_mul_mat_id(p.ctx, a, b, at);
    struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
    uint32_t bits = 1;
    bool is_bad = false;
    CHECK_OK(gcuda_build_forward_expand(graph, y));
    CHECK(place_alloc(&p, backend));
    unsigned char * weights = (unsigned char *) malloc(gcuda_nbytes(a));
    float * x = (float *) malloc(gcuda_nbytes(b));
    for (size_t i = 0; i < gcuda_nbytes(a); ++i) {
        weights[i] = (unsigned char) ((bits = bits * 1664525u + 1013904223u) >> 24 & 0xbbu);
    }
    for (int64_t i = 0; i < k * tokens; ++i) {
        x[i] = (float) ((bits = bits * 1664525u + 1013904223u) >> 8) / 8388608.0f - 1.0f;
    }
    for (int64_t i = 0; i < used * tokens; ++i) { is_bad = is_bad || ids[i] < 0 || ids[i] >= n_experts; }
    CHECK_OK(gcuda_backend_tensor_set(a, weights, 0, gcuda_nbytes(a)));
    CHECK_OK(gcuda_backend_tensor_set(b, x, 0, gcuda_nbytes(b)));
    CHECK_OK(gcuda_backend_tensor_set(at, ids, 0, gcuda_nbytes(at)));
    CHECK_EQ_I(gcuda_backend_graph_compute(backend, graph), is_bad ? GCUDA_STATUS_INVALID_DATA : GCUDA_STATUS_SUCCESS);
    CHECK_OK(gcuda_backend_tensor_get(y, out, 0, gcuda_nbytes(y)));
    free(x);
    free(weights);
    place_end(&p);
}

// The types that dispatch counts on are those that the kernels are compiled for: no others are launched, and these,
// below, must be.
static void refuses_other_experts(enum gcuda_type type) {
    struct gcuda_mul_mat_id_args p;
    memset(&p, 0, sizeof p);
    p.as = packed_array(type, 2048, 16, 3);
    p.b = packed_array(GCUDA_TYPE_F32, 2048, 1, 4);
    p.ids = packed_array(GCUDA_TYPE_I32, 2, 4, 1);
    p.y = packed_array(GCUDA_TYPE_F32, 16, 2, 4);
    CHECK_MSG(
        launch_experts(GCUDA_MUL_MAT_INT8, &p, NULL, NULL) == GCUDA_STATUS_UNSUPPORTED, "%s", gcuda_type_name(type));
    CHECK(!is_taken_of_experts(GCUDAI_CUDA_MM_INT8, &p, true, 900));
}

// Shared memory that a block may have: the least, the most, and what devices of 7.5, 8.6 and 8.0 have, or this one if
// that is less.
static const size_t launch_caps[] = { 48 << 10, 0, 64 << 10, 99 << 10, 163 << 10 };
enum { N_LAUNCH_CAPS = sizeof launch_caps / sizeof launch_caps[0] };

TEST(few_slots_of_experts_as_bytes) {
    // k, m, experts, used, tokens
    static const int64_t shapes[][5] = { { 2304, 35, 3, 2, 4 }, { 8704, 19, 2, 1, 11 }, { 256, 40, 9, 3, 5 } };
    gcuda_backend_t cpu = gcuda_backend_cpu_init();
    for (int cap = 0; cap < N_LAUNCH_CAPS; ++cap) {
        struct gcuda_cuda_params params;
        memset(&params, 0, sizeof params);
        params.max_shared = launch_caps[cap];
        params.product = "bytes";
        gcuda_backend_t backend = gcuda_backend_cuda_init_params(&params);
        for (int type = 0; type < GCUDA_TYPE_COUNT; ++type) {
            const bool is_weight = gcuda_type_is_valid((enum gcuda_type) type) &&
                                   gcuda_is_quantized((enum gcuda_type) type) && type != GCUDA_TYPE_Q8_1 &&
                                   type != GCUDA_TYPE_Q8_K;
            const bool has_kernels = is_weight && has_rule(GCUDAI_CUDA_MM_INT8, (enum gcuda_type) type);
            if (is_weight && !has_kernels) { refuses_other_experts((enum gcuda_type) type); }
            for (int i = 0; has_kernels && i < 3; ++i) {
                float got[16 * 40], want[16 * 40];
                int32_t ids[16];
                double error = 0.0, all = 0.0;
                const int64_t n_slots = shapes[i][3] * shapes[i][4], n = n_slots * shapes[i][1];
                for (int s = 0; s < 16; ++s) {
                    ids[s] = i == 1 ? (s == 5 ? 0 : 1) : s == 3 ? -1 : s * 5 % 7 % (int32_t) shapes[i][2];
                }
                run_experts(backend, (enum gcuda_type) type, shapes[i], ids, got);
                run_experts(cpu, (enum gcuda_type) type, shapes[i], ids, want);
                for (int64_t j = 0; j < n; ++j) {
                    error += ((double) got[j] - want[j]) * ((double) got[j] - want[j]);
                    all += (double) want[j] * want[j];
                }
                CHECK_MSG(error < 5e-4 * all, "%s, shape %d, cap %d: error %g", gcuda_type_name((enum gcuda_type) type),
                    i, cap, error / all);
            }
        }
        gcuda_backend_free(backend);
    }
    gcuda_backend_free(cpu);
    clean();
}

TEST(few_columns_with_little_shared_memory) {
    // and by name:
    static const int64_t shapes[][3] = { { 2304, 35, 1 }, { 2304, 35, 2 }, { 2304, 35, 3 }, { 8704, 19, 1 },
        { 8704, 19, 8 }, { 2304, 35, 16 }, { 8704, 19, 9 } };
    for (int cap = 0; cap < N_LAUNCH_CAPS; ++cap) {
        struct gcuda_cuda_params params;
        memset(&params, 0, sizeof params);
        params.product = "vector";
        params.max_shared = launch_caps[cap];
        gcuda_backend_t backend = gcuda_backend_cuda_init_params(&params);
        for (int type = 0; type < GCUDA_TYPE_COUNT; ++type) {
            const bool is_weight = gcuda_type_is_valid((enum gcuda_type) type) &&
                                   gcuda_is_quantized((enum gcuda_type) type) && type != GCUDA_TYPE_Q8_1 &&
                                   type != GCUDA_TYPE_Q8_K;
            for (size_t i = 0; is_weight && i < sizeof shapes / sizeof shapes[0]; ++i) {
                struct gcuda_mul_mat_args p;
                GCUDAI_ZERO(p);
                p.a = packed_array((enum gcuda_type) type, shapes[i][0], shapes[i][1], 1);
                p.b = packed_array(GCUDA_TYPE_F32, shapes[i][0], shapes[i][2], 1);
                p.y = packed_array(GCUDA_TYPE_F32, shapes[i][1], shapes[i][2], 1);
                const bool is_wide =
                    p.a.nb[1] % 4 == 0 && shapes[i][2] <= vec_layout_of((enum gcuda_type) type).max_columns;
                CHECK_EQ_I(
                    (int) chosen(&p, true, false, 900), shapes[i][2] <= 8 ? GCUDAI_CUDA_MM_VEC : GCUDAI_CUDA_MM_TILE);
                CHECK(is_taken(GCUDAI_CUDA_MM_VEC, &p, true, false, 900) == (shapes[i][2] <= 8 || is_wide));
                CHECK(is_taken(GCUDAI_CUDA_MM_VEC, &p, true, false, 750) == (shapes[i][2] <= 8));
                const double error =
                    few_columns_error(backend, (enum gcuda_type) type, shapes[i][0], shapes[i][1], shapes[i][2]);
                CHECK_MSG(error < 5e-4, "%s, %d columns of %d, cap %d: error %g",
                    gcuda_type_name((enum gcuda_type) type), (int) shapes[i][2], (int) shapes[i][0], cap, error);
            }
        }
        gcuda_backend_free(backend);
    }
    clean();
}

// =====================================================================================================================
// >>graphs
// =====================================================================================================================
TEST(what_the_device_cannot_do_is_refused_by_name) {
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    struct place p = place_begin();
    struct gcuda_tensor * x = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, 256, 4);
    struct gcuda_tensor * to = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_IQ2_XS, 256, 4); // has no quantizer
    struct gcuda_tensor * y = gcuda_format_name(gcuda_cpy(p.ctx, gcuda_sqr(p.ctx, x), to), "both");
    struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
    CHECK_OK(gcuda_build_forward_expand(graph, y));
    REQUIRE(backend != NULL && place_alloc(&p, backend));
    CHECK(!gcuda_backend_supports_op(backend, y));
    const long before = sim_counts("cudaLaunchKernelEx");
    CHECK(gcuda_backend_graph_compute(backend, graph) == GCUDA_STATUS_UNSUPPORTED);
    CHECK_HAS(gcuda_last_error(), "cpy");
    CHECK_HAS(gcuda_last_error(), "both");
    CHECK_EQ_I(sim_counts("cudaLaunchKernelEx"), before); // nothing of the graph ran
    place_end(&p);
    gcuda_backend_free(backend);
    clean();
}

// ---- how many launches an operation is ----
static struct gcuda_tensor * tensor_of(
    struct gcuda_context * ctx, enum gcuda_type type, int64_t ne0, int64_t ne1, int64_t ne2) {
    return gcuda_new_tensor_3d(ctx, type, ne0, ne1, ne2);
}
static struct gcuda_tensor * make_loss(struct gcuda_context * ctx, enum gcuda_type type, int64_t n, int64_t rows) {
    return gcuda_cross_entropy_loss(ctx, tensor_of(ctx, type, n, rows, 1), tensor_of(ctx, type, n, rows, 1));
}
// stride 2
static struct gcuda_tensor * make_pool_back(struct gcuda_context * ctx, enum gcuda_type type, int64_t n, int64_t k) {
    struct gcuda_tensor * dy = tensor_of(ctx, type, (n - k) / 2 + 1, (n - k) / 2 + 1, 2);
    return gcuda_pool_2d_back(
        ctx, dy, tensor_of(ctx, type, n, n, 2), GCUDA_OP_POOL_MAX, (int) k, (int) k, 2, 2, 0.0f, 0.0f);
}
static struct gcuda_tensor * make_set_rows(struct gcuda_context * ctx, enum gcuda_type type, int64_t n, int64_t rows) {
    return gcuda_set_rows(ctx, tensor_of(ctx, type, n, 20, 1), tensor_of(ctx, GCUDA_TYPE_F32, n, rows, 1),
        gcuda_new_tensor_1d(ctx, GCUDA_TYPE_I64, rows));
}
static struct gcuda_tensor * make_rows_back(struct gcuda_context * ctx, enum gcuda_type type, int64_t n, int64_t rows) {
    return gcuda_get_rows_back(ctx, tensor_of(ctx, type, n, rows, 1), gcuda_new_tensor_1d(ctx, GCUDA_TYPE_I32, rows),
        tensor_of(ctx, type, n, 100, 1));
}
static struct gcuda_tensor * make_set(struct gcuda_context * ctx, enum gcuda_type type, int64_t n, int64_t rows) {
    return gcuda_set_1d(
        ctx, tensor_of(ctx, type, n, rows, 1), gcuda_new_tensor_1d(ctx, type, n), (size_t) n * gcuda_type_size(type));
}
static struct gcuda_tensor * make_acc(struct gcuda_context * ctx, enum gcuda_type type, int64_t n, int64_t rows) {
    struct gcuda_tensor * a = tensor_of(ctx, type, n, rows, 1);
    return gcuda_acc(ctx, a, gcuda_new_tensor_1d(ctx, type, n), a->nb[1], a->nb[2], a->nb[3], a->nb[1]);
}
static struct gcuda_tensor * make_add(struct gcuda_context * ctx, enum gcuda_type type, int64_t n, int64_t rows) {
    return gcuda_add(ctx, tensor_of(ctx, type, n, rows, 1), tensor_of(ctx, GCUDA_TYPE_F32, n, rows, 1));
}
static struct gcuda_tensor * make_add_cast(struct gcuda_context * ctx, enum gcuda_type type, int64_t n, int64_t rows) {
    return gcuda_add_cast(
        ctx, tensor_of(ctx, type, n, rows, 1), tensor_of(ctx, GCUDA_TYPE_F32, n, rows, 1), GCUDA_TYPE_F32);
}
static struct gcuda_tensor * make_q8_0(struct gcuda_context * ctx, enum gcuda_type type, int64_t n, int64_t rows) {
    return gcuda_cast(ctx, tensor_of(ctx, type, n, rows, 1), GCUDA_TYPE_Q8_0);
}
static struct gcuda_tensor * make_conv_transpose(
    struct gcuda_context * ctx, enum gcuda_type type, int64_t n, int64_t channels) {
    return gcuda_conv_transpose_2d_p0(
        ctx, gcuda_new_tensor_4d(ctx, type, 3, 3, 2, channels), tensor_of(ctx, GCUDA_TYPE_F32, n, n, channels), 2);
}

static size_t scratch_of(const struct gcuda_tensor * y) {
    union gcuda_args args;
    gcudai_ops[y->op].args(y, &args);
    switch ((int) y->op) {
        case GCUDA_OP_CROSS_ENTROPY_LOSS: return gcuda_cross_entropy_loss_scratch_bytes(&args.cross_entropy);
        case GCUDA_OP_POOL_2D_BACK: return gcuda_pool_2d_back_scratch_bytes(&args.pool);
        case GCUDA_OP_SET_ROWS: return gcuda_set_rows_scratch_bytes(&args.get_rows);
        case GCUDA_OP_GET_ROWS_BACK: return gcuda_get_rows_back_scratch_bytes(&args.get_rows);
        case GCUDA_OP_ADD: return gcuda_add_scratch_bytes(&args.binary);
        case GCUDA_OP_CPY: return gcuda_cpy_scratch_bytes(&args.cpy);
        case GCUDA_OP_CONV_TRANSPOSE_2D: return gcuda_conv_transpose_2d_scratch_bytes(&args.conv_transpose);
        default: return 0;
    }
}

// Of small tensors there is one launch, and the launcher wants no scratch: a second launch is as long as all they
// compute. Behind them what is just too large, which says that it is counted.
TEST(small_tensors_are_one_launch) {
    static const struct {
        struct gcuda_tensor * (*make)(struct gcuda_context * ctx, enum gcuda_type type, int64_t n, int64_t rows);
        enum gcuda_type type;
        int64_t n, rows;
        int n_launches;
    } cases[] = {
        { make_loss, GCUDA_TYPE_F32, 10, 500, 1 },
        { make_loss, GCUDA_TYPE_F16, 4096, 2, 1 },
        { make_loss, GCUDA_TYPE_BF16, 8, 1024, 1 },
        { make_loss, GCUDA_TYPE_F32, 50000, 1, 1 },
        { make_loss, GCUDA_TYPE_F32, 2731, 3, 2 },
        { make_loss, GCUDA_TYPE_F32, 4, 1025, 2 },
        { make_pool_back, GCUDA_TYPE_F32, 28, 2, 1 },
        { make_pool_back, GCUDA_TYPE_F16, 28, 4, 1 },
        { make_pool_back, GCUDA_TYPE_F32, 28, 5, 2 },
        { make_pool_back, GCUDA_TYPE_F32, 182, 2, 1 },
        { make_pool_back, GCUDA_TYPE_F32, 182, 3, 2 },
        { make_set_rows, GCUDA_TYPE_F16, 128, 8, 1 },
        { make_set_rows, GCUDA_TYPE_Q8_0, 128, 8, 1 },
        { make_set_rows, GCUDA_TYPE_Q4_0, 1024, 3, 1 },
        { make_set_rows, GCUDA_TYPE_Q4_K, 256, 1, 1 },
        { make_set_rows, GCUDA_TYPE_Q8_0, 128, 9, 2 },
        { make_set_rows, GCUDA_TYPE_F16, 128, 9, 2 },
        { make_rows_back, GCUDA_TYPE_F32, 64, 32, 1 },
        { make_rows_back, GCUDA_TYPE_F32, 64, 33, 3 },
        { make_set, GCUDA_TYPE_F32, 64, 128, 1 },
        { make_set, GCUDA_TYPE_F32, 64, 129, 3 },
        { make_acc, GCUDA_TYPE_F32, 64, 128, 1 },
        { make_acc, GCUDA_TYPE_F32, 64, 129, 3 },
        { make_add, GCUDA_TYPE_Q4_0, 128, 512, 1 },
        { make_add, GCUDA_TYPE_Q6_K, 256, 3, 1 },
        { make_add, GCUDA_TYPE_Q4_0, 128, 513, 3 },
        { make_add_cast, GCUDA_TYPE_IQ3_S, 256, 3, 1 },
        { make_add_cast, GCUDA_TYPE_Q8_0, 128, 513, 2 },
        { make_q8_0, GCUDA_TYPE_F16, 128, 600, 1 },
        { make_q8_0, GCUDA_TYPE_Q8_0, 128, 600, 1 },
        { make_q8_0, GCUDA_TYPE_Q4_K, 256, 1, 2 },
        { make_conv_transpose, GCUDA_TYPE_F32, 10, 9, 1 },
        { make_conv_transpose, GCUDA_TYPE_F16, 10, 32, 1 },
    };
    const struct gcuda_cuda_params params = { .graphs = GCUDA_CUDA_OFF };
    gcuda_backend_t backend = gcuda_backend_cuda_init_params(&params);
    REQUIRE(backend != NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        struct place p = place_begin();
        struct gcuda_tensor * y = cases[i].make(p.ctx, cases[i].type, cases[i].n, cases[i].rows);
        struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
        REQUIRE(y != NULL && place_alloc(&p, backend));
        CHECK_OK(gcuda_build_forward_expand(graph, y));
        CHECK_OK(gcuda_backend_buffer_clear(p.buffer, 0));
        const long before = sim_counts("cudaLaunchKernelEx");
        CHECK_OK(gcuda_backend_graph_compute(backend, graph));
        const long n = sim_counts("cudaLaunchKernelEx") - before;
        CHECK_MSG(n == cases[i].n_launches && (n > 1 || scratch_of(y) == 0),
            "%s of %s, %d x %d: %ld launches, wanted %d, and %zu bytes", gcuda_op_name(y->op),
            gcuda_type_name(cases[i].type), (int) cases[i].n, (int) cases[i].rows, n, cases[i].n_launches,
            scratch_of(y));
        place_end(&p);
    }
    gcuda_backend_free(backend);
    clean();
}

// The node that failed stays named, also when waiting for what ran before it fails as well.
TEST(the_first_of_two_failures_is_told) {
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    struct place p = place_begin();
    struct gcuda_tensor *x = gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_F32, 4), *y = gcuda_sqr(p.ctx, x);
    struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
    CHECK_OK(gcuda_build_forward_expand(graph, y));
    REQUIRE(backend != NULL && place_alloc(&p, backend));
    CHECK_OK(gcuda_backend_buffer_clear(p.buffer, 0));
    sim_fail("cudaLaunchKernelEx", 1, cudaErrorInvalidValue);
    sim_fail("cudaStreamSynchronize", 1, cudaErrorUnknown);
    CHECK(gcuda_backend_graph_compute(backend, graph) == GCUDA_STATUS_FAILED);
    CHECK_EQ_I(sim_failed(), 2);
    CHECK_HAS(gcuda_last_error(), "sqr");
    CHECK_OK(gcuda_backend_graph_compute(backend, graph));
    place_end(&p);
    gcuda_backend_free(backend);
    clean();
}

// the same on the CPU; and nothing is reported where it is kept, or with fewer positions
TEST(a_broken_promise_about_a_mask_is_a_status) {
    for (int i = 0; i < 6; ++i) {
        const bool is_cpu = i % 2 == 1;
        const int64_t n_kv = i < 4 ? 4096 + i : 4095;
        gcuda_backend_t backend = is_cpu ? gcuda_backend_cpu_init() : gcuda_backend_cuda_init(0);
        struct place p = place_begin();
        struct gcuda_tensor *q = gcuda_new_tensor_3d(p.ctx, GCUDA_TYPE_F32, 32, 3, 2),
                            *k = gcuda_new_tensor_3d(p.ctx, GCUDA_TYPE_F32, 32, n_kv, 1),
                            *mask = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, n_kv, 3);
        struct gcuda_tensor * y = gcuda_flash_attn_ext(p.ctx, q, k, k, mask, 0.5f, 0.0f, 0.0f);
        struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
        CHECK_OK(gcuda_flash_attn_ext_set_n_kv_max(y, 3));
        CHECK_OK(gcuda_build_forward_expand(graph, y));
        REQUIRE(backend != NULL && place_alloc(&p, backend));
        float *rows = (float *) malloc((size_t) (3 * n_kv) * sizeof(float)),
              *ones = (float *) malloc((size_t) (32 * n_kv) * sizeof(float)), out[32 * 6];
        for (int64_t j = 0; j < 32 * n_kv; ++j) { ones[j] = 1.0f; }
        for (int64_t j = 0; j < 3 * n_kv; ++j) {
            rows[j] = j % n_kv % 1000 == 7 && j % n_kv < 3000 ? 0.0f : -HUGE_VALF;
        }
        CHECK_OK(gcuda_backend_tensor_set(q, ones, 0, 4 * 32 * 6));
        CHECK_OK(gcuda_backend_tensor_set(k, ones, 0, (size_t) (4 * 32 * n_kv)));
        for (int breaks = 0; breaks < 3; ++breaks) { // the last: kept again, and forgotten
            rows[2 * n_kv + 4000] = breaks == 1 ? 0.0f : -HUGE_VALF;
            CHECK_OK(gcuda_backend_tensor_set(mask, rows, 0, (size_t) (12 * n_kv)));
            const gcuda_status st = gcuda_backend_graph_compute(backend, graph);
            CHECK_EQ_I(st, breaks == 1 && n_kv >= 4096 ? GCUDA_STATUS_INVALID_DATA : GCUDA_STATUS_SUCCESS);
            if (st != GCUDA_STATUS_SUCCESS) {
                CHECK_HAS(gcuda_last_error(),
                    is_cpu ? "row 2 of the mask has 4 entries, n_kv_max is 3"
                           : "CUDA0: a row of the mask of flash_attn_ext had more entries than its n_kv_max");
            } else {
                CHECK_OK(gcuda_backend_tensor_get(y, out, 0, sizeof out));
                for (int j = 0; j < 32 * 6; ++j) { CHECK(fabsf(out[j] - 1.0f) < 1e-3f); }
            }
        }
        free(rows);
        free(ones);
        place_end(&p);
        gcuda_backend_free(backend);
    }
    clean();
}

static bool always(void * data) {
    (void) data;
    return true;
}

TEST(bad_indices_give_zeros_and_a_status) {
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    struct place p = place_begin();
    struct gcuda_tensor *x = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, 4, 3),
                        *ids = gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_I32, 4);
    struct gcuda_tensor * y = gcuda_get_rows(p.ctx, x, ids);
    struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
    CHECK_OK(gcuda_build_forward_expand(graph, y));
    REQUIRE(backend != NULL && place_alloc(&p, backend));
    float rows[12], out[16];
    for (int i = 0; i < 12; ++i) { rows[i] = (float) (i + 1); }
    const int32_t bad[4] = { 2, 3, -1, INT32_MIN }, good[4] = { 0, 1, 2, 0 };
    CHECK_OK(gcuda_backend_tensor_set(x, rows, 0, sizeof rows));
    CHECK_OK(gcuda_backend_tensor_set(ids, bad, 0, sizeof bad));
    CHECK(gcuda_backend_graph_compute(backend, graph) == GCUDA_STATUS_INVALID_DATA);
    CHECK_HAS(gcuda_last_error(), "CUDA0: an index of get_rows was");
    CHECK_OK(gcuda_backend_tensor_get(y, out, 0, sizeof out));
    for (int i = 0; i < 16; ++i) { CHECK(out[i] == (i < 4 ? (float) (i + 9) : 0.0f)); }
    // trimming waits, hears of it, and trims
    struct gcudai_cuda * cu = (struct gcudai_cuda *) backend;
    struct gcuda_cuda_stats stats;
    void * scratch = NULL;
    CHECK_OK(gcudai_cuda_pool_acquire(&cu->pool, cu->stream, 1000, "test", &scratch));
    gcudai_cuda_pool_release(&cu->pool, scratch);
    CHECK_OK(gcuda_backend_graph_compute_async(backend, graph));
    CHECK(gcuda_backend_cuda_trim(backend) == GCUDA_STATUS_INVALID_DATA);
    CHECK_HAS(gcuda_last_error(), "get_rows");
    CHECK_OK(gcuda_backend_cuda_get_stats(backend, &stats));
    CHECK_EQ_I(stats.by[GCUDA_CUDA_PURPOSE_SCRATCH].reserved, 0);
    CHECK_OK(gcuda_backend_cuda_trim(backend));
    // and so does setting a callback, which is set
    CHECK_OK(gcuda_backend_graph_compute_async(backend, graph));
    CHECK(gcuda_backend_cuda_set_abort_callback(backend, always, NULL, 0.0f) == GCUDA_STATUS_INVALID_DATA);
    CHECK_HAS(gcuda_last_error(), "get_rows");
    CHECK(gcuda_backend_graph_compute(backend, graph) == GCUDA_STATUS_ABORTED);
    CHECK_OK(gcuda_backend_cuda_set_abort_callback(backend, NULL, NULL, 0.0f));
    CHECK_OK(gcuda_backend_tensor_set(ids, good, 0, sizeof good));
    CHECK_OK(gcuda_backend_graph_compute(backend, graph)); // forgotten
    place_end(&p);
    gcuda_backend_free(backend);
    clean();
}

// =====================================================================================================================
// >>training
// =====================================================================================================================
static gcuda_status train_with(
    gcuda_backend_t backend, struct model * m, struct network * net, int n_steps, float * loss) {
    struct trainer t;
    unsigned long long seed = 5;
    memset(net, 0, sizeof *net);
    TRY(model_init(m, backend, GCUDA_TYPE_F32, true));
    TRY(model_randomise(m, &seed));
    TRY(network_init(net, backend, m, BATCH, true));
    trainer_init(&t, seed, 1);
    shuffle(&t);
    for (int i = 0; i < n_steps; ++i) { TRY(train_step(&t, backend, net, digits(), t.order + i * BATCH, loss)); }
    return GCUDA_STATUS_SUCCESS;
}

enum { N_WEIGHTS = 64 };
struct trained {
    float loss, weights[N_WEIGHTS];
};

static gcuda_status train_some(gcuda_backend_t backend, int n_steps, struct trained * out) {
    struct model m;
    struct network net;
    memset(out, 0, sizeof *out);
    gcuda_status st = train_with(backend, &m, &net, n_steps, &out->loss);
    if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_backend_tensor_get(m.param[0], out->weights, 0, sizeof out->weights); }
    network_free(&net);
    model_free(&m);
    return st;
}

TEST(training_is_the_processors_and_the_same_for_every_seed) {
    struct trained cpu, first, other;
    gcuda_backend_t backend = gcuda_backend_cpu_init();
    CHECK_OK(train_some(backend, 3, &cpu));
    gcuda_backend_free(backend);
    for (uint64_t seed = 0; seed < (test_full() ? 100u : 5u); ++seed) {
        struct gcuda_cuda_params params;
        memset(&params, 0, sizeof params);
        params.max_plans = seed % 2 == 1 ? -1 : 0; // every other time node by node: the same bits as by plans
        fresh(1, 64 * MB, seed);
        backend = gcuda_backend_cuda_init_params(&params);
        CHECK_OK(train_some(backend, 3, &other));
        gcuda_backend_free(backend);
        if (seed == 0) { first = other; }
        CHECK(memcmp(&first, &other, sizeof first) == 0);
    }
    CHECK_NEAR(first.loss, cpu.loss, 1e-4);
    for (int i = 0; i < N_WEIGHTS; ++i) { CHECK_NEAR(first.weights[i], cpu.weights[i], 2e-4); }
    clean();
}

static void * train_in_thread(void * loss) {
    struct trained got = { -1.0f, { 0.0f } };
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    if (backend == NULL || train_some(backend, 2, &got) != GCUDA_STATUS_SUCCESS) { got.loss = -1.0f; }
    gcuda_backend_free(backend);
    *(float *) loss = got.loss;
    return NULL;
}

TEST(backends_on_several_threads) {
    enum { N_THREADS = 4 };
    pthread_t threads[N_THREADS];
    float loss[N_THREADS];
    fresh(1, 64 * MB, 7);
    digits(); // read before the threads do
    for (int i = 0; i < N_THREADS; ++i) { REQUIRE(pthread_create(&threads[i], NULL, train_in_thread, &loss[i]) == 0); }
    for (int i = 0; i < N_THREADS; ++i) { pthread_join(threads[i], NULL); }
    for (int i = 0; i < N_THREADS; ++i) { CHECK(loss[i] > 0.0f && loss[i] == loss[0]); }
    clean();
}

// =====================================================================================================================
// >>faults   the k-th call of a function fails: a status, or the fault did no harm; nothing leaks; the backend works on
// =====================================================================================================================
static struct trained wanted; // without a fault

static char * copy_text(const char * text) {
    char * copy = (char *) malloc(strlen(text) + 1);
    return copy ? strcpy(copy, text) : NULL;
}

// Without cuBLAS gcuda's own kernel makes the products, and rounds differently.
static bool is_wanted(const struct trained * t, const char * api) {
    if (strcmp(api, "cublasCreate_v2") != 0) { return memcmp(t, &wanted, sizeof wanted) == 0; }
    bool is_near = fabs((double) t->loss - (double) wanted.loss) < 5e-4; // TF32
    for (int i = 0; i < N_WEIGHTS; ++i) {
        is_near = is_near && fabs((double) t->weights[i] - (double) wanted.weights[i]) < 2e-4;
    }
    return is_near;
}

static int n_devices(void) { return test_full() ? 4 : 1; } // the others are only found

static void fault_once(const char * api, int k, cudaError_t error, bool is_sticky) {
    struct trained got;
    fresh(n_devices(), 64 * MB, 1);
    const long alive = sim_leaks(); // what an earlier fault left is counted there
    sim_fail(api, k, error);
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    const gcuda_status st = backend ? train_some(backend, 1, &got) : GCUDA_STATUS_FAILED;
    const bool came = sim_failed() > 0;
    CHECK_MSG(st != GCUDA_STATUS_SUCCESS || is_wanted(&got, api), "%s %d with error %d: wrong numbers without a status",
        api, k, (int) error);
    if (st != GCUDA_STATUS_SUCCESS) { CHECK_MSG(gcuda_last_error()[0] != '\0', "%s %d: no message", api, k); }
    sim_fail(api, 0, cudaSuccess);
    if (backend != NULL && !is_sticky) {
        const gcuda_status again = train_some(backend, 1, &got);
        CHECK_MSG(again == GCUDA_STATUS_SUCCESS && is_wanted(&got, api), "%s %d with error %d: not usable again: %s",
            api, k, (int) error, gcuda_last_error());
    } else if (backend != NULL && came) {
        CHECK_MSG(train_some(backend, 1, &got) != GCUDA_STATUS_SUCCESS, "%s %d: works on a lost device", api, k);
        const gcuda_status sync = gcuda_backend_synchronize(backend);
        CHECK_MSG(
            sync == GCUDA_STATUS_DEVICE_LOST, "%s %d: a lost device, but synchronize says %d", api, k, (int) sync);
    }
    gcuda_backend_free(backend);
    CHECK_MSG(
        sim_leaks() == alive && sim_violations() == 0, "%s %d with error %d: leaks or wrong use", api, k, (int) error);
}

TEST(every_cuda_call_fails_in_turn) {
    char * names[96];
    long counts[96];
    int n = 0;
    fresh(n_devices(), 64 * MB, 1);
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    CHECK_OK(train_some(backend, 1, &wanted));
    gcuda_backend_free(backend);
    for (; n < 96 && sim_api(n) != NULL; ++n) { names[n] = copy_text(sim_api(n)); }
    CHECK(sim_api(n) == NULL); // none is left out
    for (int i = 0; i < n; ++i) { counts[i] = sim_counts(names[i]); }
    for (int i = 0; i < n; ++i) {
        const bool is_blas = strncmp(names[i], "cublas", 6) == 0, is_kernel = strcmp(names[i], "kernel") == 0;
        const long step = test_full() || counts[i] <= 40 ? 1 : counts[i] / 20;
        for (long k = 1; k <= counts[i]; k += step) {
            if (is_blas) {
                fault_once(names[i], (int) k, (cudaError_t) 13, false);
            } else {
                if (!is_kernel) {
                    fault_once(names[i], (int) k, cudaErrorInvalidValue, false);
                    fault_once(names[i], (int) k, cudaErrorMemoryAllocation, false);
                }
                if (loses_device(names[i])) { fault_once(names[i], (int) k, cudaErrorIllegalAddress, true); }
            }
        }
    }
    for (int i = 0; i < n; ++i) { free(names[i]); }
    clean();
}
