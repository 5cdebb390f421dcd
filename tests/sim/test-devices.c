// Choices about devices and the environment on the simulated device: more devices than exist; sources in page-locked
// memory on an integrated GPU; environment variables that a program disables; strided rows.
#define _GNU_SOURCE 1 // setenv
#include "sim-test.h"
#include "products.h"

static struct gcuda_cuda_device_params choice(int n_devices, enum gcuda_cuda_switch host_sources) {
    struct gcuda_cuda_device_params p;
    memset(&p, 0, sizeof p);
    p.n_devices = n_devices;
    p.host_sources = host_sources;
    return p;
}

// =====================================================================================================================
// >>devices   as many as are wanted
// =====================================================================================================================
TEST(devices_are_dealt_out_in_turn) {
    static const int share[5] = { 3, 2, 3, 2, 3 };
    struct gcuda_cuda_device_info info;
    size_t n_free = 0, n_total = 0;
    fresh(2, 120 * MB, 1);
    struct gcuda_cuda_device_params p = choice(5, GCUDA_CUDA_AUTO);
    CHECK_OK(gcuda_backend_cuda_set_devices(&p));
    CHECK_EQ_I(gcuda_backend_cuda_get_device_count(), 5);
    CHECK_EQ_I(gcuda_backend_dev_count(), 6);
    for (int i = 0; i < 5; ++i) {
        char name[16];
        snprintf(name, sizeof name, "CUDA%d", i);
        const gcuda_backend_dev_t dev = gcuda_backend_dev_by_name(name);
        REQUIRE(dev != NULL);
        CHECK(gcuda_backend_dev_buffer_type(dev) == gcuda_backend_cuda_buffer_type(i));
        CHECK(strcmp(gcuda_backend_buft_name(gcuda_backend_cuda_buffer_type(i)), name) == 0);
        CHECK_OK(gcuda_backend_cuda_get_device_info(i, &info));
        CHECK_EQ_I(info.ordinal, i % 2);
        CHECK_EQ_I(info.total_bytes, 120 * MB / (size_t) share[i]);
        CHECK_OK(gcuda_backend_cuda_get_device_memory(i, &n_free, &n_total));
        CHECK(n_total == 120 * MB / (size_t) share[i] && n_free <= n_total && n_free > 0);
        CHECK_EQ_I(gcuda_backend_cuda_find_device(name), i);
    }
    struct gcuda_cuda_device_info first;
    CHECK_OK(gcuda_backend_cuda_get_device_info(0, &first));
    CHECK(gcuda_backend_cuda_find_device(first.uuid) == -1 && gcuda_backend_cuda_find_device(first.pci) == -1);
    CHECK_HAS(gcuda_last_error(), "fits 3 of 5");
    // each is its own: memory of one is not another's, copies go from one to the next
    struct place a = place_begin(), b = place_begin();
    gcuda_backend_t one = gcuda_backend_cuda_init(0), two = gcuda_backend_cuda_init(2);
    struct gcuda_tensor *x = gcuda_new_tensor_1d(a.ctx, GCUDA_TYPE_F32, 1000),
                        *y = gcuda_new_tensor_1d(b.ctx, GCUDA_TYPE_F32, 1000);
    REQUIRE(one != NULL && two != NULL && place_alloc(&a, one) && place_alloc(&b, two));
    static int32_t in[1000], out[1000];
    for (int i = 0; i < 1000; ++i) { in[i] = 7 * i; }
    CHECK_OK(gcuda_backend_tensor_set(x, in, 0, sizeof in));
    CHECK_OK(gcuda_backend_tensor_copy_async(one, two, x, y));
    CHECK_OK(gcuda_backend_tensor_get_async(two, y, out, 0, sizeof out));
    CHECK_OK(gcuda_backend_synchronize(two));
    CHECK(memcmp(in, out, sizeof in) == 0);
    memset(out, 0, sizeof out);
    CHECK_OK(gcuda_backend_tensor_set(y, out, 0, sizeof out));
    CHECK_OK(gcuda_backend_tensor_copy(x, y)); // waits
    CHECK_OK(gcuda_backend_tensor_get(y, out, 0, sizeof out));
    CHECK(memcmp(in, out, sizeof in) == 0);
    CHECK(gcuda_backend_tensor_set_async(two, x, in, 0, sizeof in) == GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK(!gcuda_backend_supports_op(two, gcuda_sqr(b.ctx, x)));
    CHECK_HAS(gcuda_last_error(), "is on CUDA0, not on CUDA2");
    struct gcuda_cuda_stats stats[2];
    CHECK_OK(gcuda_backend_cuda_get_device_stats(0, &stats[0]));
    CHECK_OK(gcuda_backend_cuda_get_device_stats(1, &stats[1]));
    CHECK(stats[0].by[GCUDA_CUDA_PURPOSE_BUFFERS].in_use >= sizeof in && stats[1].reserved == 0);
    place_end(&a);
    place_end(&b);
    gcuda_backend_free(one);
    gcuda_backend_free(two);
    clean();
}

TEST(a_choice_of_devices_that_comes_too_late_or_cannot_be) {
    struct gcuda_cuda_device_params p = choice(GCUDA_CUDA_MAX_DEVICES + 1, GCUDA_CUDA_AUTO);
    fresh(3, 64 * MB, 1);
    CHECK(gcuda_backend_cuda_set_devices(&p) == GCUDA_STATUS_INVALID_ARGUMENT);
    p.n_devices = -1;
    CHECK(gcuda_backend_cuda_set_devices(&p) == GCUDA_STATUS_INVALID_ARGUMENT);
    p.n_devices = 2; // fewer than there are
    CHECK_OK(gcuda_backend_cuda_set_devices(&p));
    CHECK_EQ_I(gcuda_backend_cuda_get_device_count(), 2);
    CHECK_OK(gcuda_backend_cuda_set_devices(&p));
    p.n_devices = 4;
    CHECK(gcuda_backend_cuda_set_devices(&p) == GCUDA_STATUS_FAILED);
    CHECK_HAS(gcuda_last_error(), "gcuda_shutdown");
    CHECK_EQ_I(gcuda_backend_cuda_get_device_count(), 2);
    gcuda_shutdown(); // forgets the choice
    CHECK_EQ_I(gcuda_backend_cuda_get_device_count(), 3);
    fresh(0, 64 * MB, 1);
    CHECK_OK(gcuda_backend_cuda_set_devices(&p));
    CHECK_EQ_I(gcuda_backend_cuda_get_device_count(), 0); // none stays none
    static const char * const texts[] = { "40", "-3", "many" };
    static const int want[] = { GCUDA_CUDA_MAX_DEVICES, 3, 3 };
    for (int i = 0; i < 3; ++i) {
        setenv("GCUDA_CUDA_DEVICES", texts[i], 1);
        fresh(3, 64 * MB, 1);
        CHECK_EQ_I(gcuda_backend_cuda_get_device_count(), want[i]);
        unsetenv("GCUDA_CUDA_DEVICES");
    }
    clean();
}

// =====================================================================================================================
// >>host   sources where the processor has them
// =====================================================================================================================
static gcuda_status sum_with_host_source(
    enum gcuda_type type, int64_t ne0, bool is_integrated, enum gcuda_cuda_switch host, float * sum) {
    struct place p = place_begin(), h = place_begin();
    const struct gcuda_cuda_device_params choose = choice(0, host);
    fresh(1, 64 * MB, 3);
    sim_attribute(0, cudaDevAttrIntegrated, is_integrated);
    CHECK_OK(gcuda_backend_cuda_set_devices(&choose));
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    const bool may = is_integrated && host == GCUDA_CUDA_ON;
    CHECK(gcuda_backend_supports_buft(backend, gcuda_backend_cuda_host_buffer_type()) == may);
    CHECK(!gcuda_backend_supports_buft(backend, gcuda_backend_cpu_buffer_type()));
    struct gcuda_tensor * x = gcuda_new_tensor_2d(h.ctx, type, ne0, 3);
    h.buffer = gcuda_backend_alloc_ctx_tensors_from_buft(h.ctx, gcuda_backend_cuda_host_buffer_type());
    struct gcuda_tensor * y = gcuda_is_quantized(type)
                                  ? gcuda_mul_mat(p.ctx, x, gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, ne0, 1))
                                  : gcuda_sum(p.ctx, gcuda_scale(p.ctx, x, 2.0f));
    struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
    gcuda_status st = gcuda_build_forward_expand(graph, y);
    CHECK(backend != NULL && h.buffer != NULL && place_alloc(&p, backend));
    memset(x->data, 0, gcuda_nbytes(x));
    if (type == GCUDA_TYPE_F32) { gcuda_set_f32_1d(x, 1, 21.0f); }
    st = st == GCUDA_STATUS_SUCCESS ? gcuda_backend_graph_compute(backend, graph) : st;
    if (st == GCUDA_STATUS_SUCCESS && type == GCUDA_TYPE_F32) { st = gcuda_backend_tensor_get(y, sum, 0, sizeof *sum); }
    place_end(&p);
    place_end(&h);
    gcuda_backend_free(backend);
    CHECK(sim_leaks() == 0 && sim_violations() == 0);
    return st;
}

TEST(a_device_that_shares_memory_reads_the_hosts_when_told) {
    float sum = 0.0f;
    CHECK_OK(sum_with_host_source(GCUDA_TYPE_F32, 50, true, GCUDA_CUDA_ON, &sum));
    CHECK(sum == 42.0f);
    CHECK(sum_with_host_source(GCUDA_TYPE_F32, 50, true, GCUDA_CUDA_AUTO, &sum) == GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_HAS(gcuda_last_error(), "has no memory on CUDA0");
    CHECK(sum_with_host_source(GCUDA_TYPE_F32, 50, true, GCUDA_CUDA_OFF, &sum) == GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK(sum_with_host_source(GCUDA_TYPE_F32, 50, false, GCUDA_CUDA_ON, &sum) == GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_OK(sum_with_host_source(GCUDA_TYPE_Q8_0, 512, true, GCUDA_CUDA_ON, &sum)); // nothing to pad
    CHECK(sum_with_host_source(GCUDA_TYPE_Q8_0, 96, true, GCUDA_CUDA_ON, &sum) == GCUDA_STATUS_UNSUPPORTED);
    CHECK_HAS(gcuda_last_error(), "not padded");
    clean();
}

// =====================================================================================================================
// >>environment
// =====================================================================================================================
// A variable says one thing, the program does not want to hear it.
static bool host_memory_is_locked(void) {
    gcuda_backend_buffer_t b = gcuda_backend_buft_alloc_buffer(gcuda_backend_cuda_host_buffer_type(), 1000);
    const bool is_locked = gcuda_backend_buffer_get_type(b) == gcuda_backend_cuda_host_buffer_type();
    gcuda_backend_buffer_free(b);
    return is_locked;
}

static bool memory_is_managed(void) {
    const long before = sim_counts("cudaMallocManaged");
    gcuda_backend_buffer_free(gcuda_backend_buft_alloc_buffer(gcuda_backend_cuda_buffer_type(0), 1000));
    return sim_counts("cudaMallocManaged") > before;
}

static bool is_offloaded(int64_t rows) {
    struct place p = place_begin();
    struct gcuda_tensor * y = gcuda_sqr(p.ctx, gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, 8, rows));
    const bool is = gcuda_backend_dev_offload_op(gcuda_backend_dev_by_name("CUDA0"), y);
    place_end(&p);
    return is;
}

// Three runs of a graph: the second and third as a CUDA graph where that may be.
static bool uses_cuda_graphs(void) {
    struct place p = place_begin();
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
    struct gcuda_cuda_plan_stats stats;
    memset(&stats, 0, sizeof stats);
    CHECK_OK(gcuda_build_forward_expand(graph, gcuda_sqr(p.ctx, gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_F32, 100))));
    CHECK(backend != NULL && place_alloc(&p, backend));
    for (int i = 0; i < 3; ++i) { CHECK_OK(gcuda_backend_graph_compute(backend, graph)); }
    CHECK_OK(gcuda_backend_cuda_get_plan_stats(backend, &stats));
    gcuda_backend_free(backend);
    place_end(&p);
    return stats.n_graph_launches > 0;
}

TEST(a_program_can_ignore_the_environment) {
    static const char * const names[] = { "GCUDA_CUDA_NO_PINNED", "GCUDA_CUDA_ENABLE_UNIFIED_MEMORY",
        "GCUDA_CUDA_DISABLE_GRAPHS", "GCUDA_CUDA_REGISTER_HOST", "GCUDA_OP_OFFLOAD_MIN_BATCH", "GCUDA_CUDA_DEVICES" };
    struct gcuda_cuda_device_info info;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) { setenv(names[i], "5", 1); }
    for (int turn = 0; turn < 3; ++turn) { // heard; ignored; heard again after gcuda_shutdown
        const bool is_heard = turn != 1;
        fresh(1, 64 * MB, 1);
        if (turn < 2) { gcuda_use_environment(is_heard); }
        CHECK_OK(gcuda_backend_cuda_get_device_info(0, &info));
        CHECK_EQ_I(gcuda_backend_cuda_get_device_count(), is_heard ? 5 : 1);
        CHECK(host_memory_is_locked() != is_heard);
        CHECK(memory_is_managed() == is_heard);
        CHECK(is_offloaded(5) == is_heard && is_offloaded(32) && !is_offloaded(4));
        CHECK(uses_cuda_graphs() == (!is_heard && info.cc >= 700));
        gcuda_backend_register_host_buffer_t add = NULL;
        static char mine[5000];
        void * address =
            gcuda_backend_reg_get_proc_address(gcuda_backend_cuda_reg(), "gcuda_backend_register_host_buffer");
        memcpy(&add, &address, sizeof address);
        CHECK(add(mine, sizeof mine) == is_heard);
    }
    gcuda_use_environment(true);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) { unsetenv(names[i]); }
    struct gcuda_cuda_device_params p = choice(0, GCUDA_CUDA_AUTO);
    p.offload_min_batch = 7; // wins over the variable
    fresh(1, 64 * MB, 1);
    setenv("GCUDA_OP_OFFLOAD_MIN_BATCH", "5", 1);
    CHECK_OK(gcuda_backend_cuda_set_devices(&p));
    CHECK(is_offloaded(7) && !is_offloaded(6));
    unsetenv("GCUDA_OP_OFFLOAD_MIN_BATCH");
    clean();
}

TEST(streams_have_the_priority_that_was_asked_for) {
    int least = 0, greatest = 0;
    fresh(2, 64 * MB, 1);
    CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest) == cudaSuccess && greatest < least);
    for (int i = 0; i < 2; ++i) {
        struct gcuda_cuda_params params;
        int priority = 7;
        memset(&params, 0, sizeof params);
        params.priority = i == 0 ? 0 : greatest;
        gcuda_backend_t backend = gcuda_backend_cuda_init_params(&params);
        REQUIRE(backend != NULL);
        CHECK(cudaStreamGetPriority(gcuda_backend_cuda_get_stream(backend), &priority) == cudaSuccess);
        CHECK_EQ_I(priority, params.priority);
        gcuda_backend_free(backend);
    }
    clean();
}

// As written in the README.
TEST(a_launcher_needs_nothing_around_it) {
    cudaStream_t stream = NULL;
    void *x = NULL, *y = NULL, *scratch = NULL;
    static float in[4096 * 32], out[4096 * 32];
    fresh(1, 64 * MB, 1);
    for (int i = 0; i < 4096 * 32; ++i) { in[i] = (float) (i % 7 - 3 + i / 4096); }
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    CHECK(cudaMalloc(&x, sizeof in) == cudaSuccess && cudaMalloc(&y, sizeof out) == cudaSuccess);
    CHECK(cudaMalloc(&scratch, MB) == cudaSuccess);
    CHECK(cudaMemcpy(x, in, sizeof in, cudaMemcpyHostToDevice) == cudaSuccess);
    struct gcuda_norm_args args = { 0 };
    args.x.data = x; // on the device, F32 [4096, 32]: 32 rows of 4096
    args.x.type = GCUDA_TYPE_F32;
    args.x.ne[0] = 4096, args.x.ne[1] = 32, args.x.ne[2] = args.x.ne[3] = 1;
    args.x.nb[0] = sizeof(float), args.x.nb[1] = 4096 * args.x.nb[0]; // strides in bytes
    args.x.nb[2] = args.x.nb[3] = 32 * args.x.nb[1];
    args.y = args.x;
    args.y.data = y;
    args.eps = 1e-6f;
    args.scratch = scratch; // gcuda_rms_norm_scratch_bytes(&args) bytes of device memory
    gcuda_status st = gcuda_launch_rms_norm(&args, stream);
    CHECK_OK(st);
    CHECK(gcuda_rms_norm_scratch_bytes(&args) <= MB);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess &&
          cudaMemcpy(out, y, sizeof out, cudaMemcpyDeviceToHost) == cudaSuccess);
    for (int r = 0; r < 32; ++r) {
        double sum = 0.0;
        for (int i = 0; i < 4096; ++i) { sum += (double) in[4096 * r + i] * (double) in[4096 * r + i]; }
        for (int i = 0; i < 4096; i += 37) {
            CHECK_NEAR(out[4096 * r + i], in[4096 * r + i] / sqrt(sum / 4096.0 + 1e-6), 1e-5);
        }
    }
    CHECK(cudaFree(x) == cudaSuccess && cudaFree(y) == cudaSuccess && cudaFree(scratch) == cudaSuccess);
    CHECK(cudaStreamDestroy(stream) == cudaSuccess);
    clean();
}

// =====================================================================================================================
// >>questions   to the device, which launchers put in the middle of deciding
// =====================================================================================================================
static struct gcuda_tensor * f32(struct gcuda_context * ctx, int64_t ne0, int64_t ne1, int64_t ne2) {
    return gcuda_new_tensor_3d(ctx, GCUDA_TYPE_F32, ne0, ne1, ne2);
}
static struct gcuda_tensor * asks_tiles(struct gcuda_context * ctx) {
    return gcuda_mul_mat(ctx, gcuda_new_tensor_2d(ctx, GCUDA_TYPE_Q8_0, 64, 40), f32(ctx, 64, 40, 1));
}
static struct gcuda_tensor * asks_columns(struct gcuda_context * ctx) {
    return gcuda_mul_mat(ctx, gcuda_new_tensor_2d(ctx, GCUDA_TYPE_Q4_0, 256, 40), f32(ctx, 256, 3, 1));
}
static struct gcuda_tensor * asks_experts(struct gcuda_context * ctx) {
    struct gcuda_tensor * ids = gcuda_new_tensor_2d(ctx, GCUDA_TYPE_I32, 2, 40);
    return gcuda_mul_mat_id(ctx, gcuda_new_tensor_3d(ctx, GCUDA_TYPE_Q8_0, 64, 16, 4), f32(ctx, 64, 1, 40), ids);
}
static struct gcuda_tensor * asks_floats(struct gcuda_context * ctx) {
    return gcuda_mul_mat(ctx, f32(ctx, 256, 40, 1), f32(ctx, 256, 80, 1));
}
static struct gcuda_tensor * asks_scan(struct gcuda_context * ctx) {
    struct gcuda_tensor * ids = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_I32, 1);
    return gcuda_ssm_scan(ctx, f32(ctx, 128, 64, 1), f32(ctx, 64, 1, 256), f32(ctx, 1, 256, 1), f32(ctx, 1, 1, 1),
        f32(ctx, 128, 1, 256), f32(ctx, 128, 1, 256), ids);
}
static struct gcuda_tensor * asks_conv(struct gcuda_context * ctx) {
    return gcuda_conv_2d_direct(
        ctx, gcuda_new_tensor_4d(ctx, GCUDA_TYPE_F16, 3, 3, 16, 64), f32(ctx, 20, 20, 16), 1, 1, 1, 1, 1, 1);
}
static struct gcuda_tensor * asks_transposed(struct gcuda_context * ctx) {
    return gcuda_conv_transpose_2d_p0(
        ctx, gcuda_new_tensor_4d(ctx, GCUDA_TYPE_F16, 2, 2, 64, 64), f32(ctx, 16, 16, 64), 2);
}
static struct gcuda_tensor * asks_argmax(struct gcuda_context * ctx) { return gcuda_argmax(ctx, f32(ctx, 2000, 3, 1)); }
static struct gcuda_tensor * asks_upscale(struct gcuda_context * ctx) {
    return gcuda_upscale(ctx, f32(ctx, 16, 16, 3), 2, GCUDA_SCALE_MODE_BILINEAR);
}

struct asking {
    const char * op;
    struct gcuda_tensor * (*build)(struct gcuda_context * ctx);
    const char * product; // of struct gcuda_cuda_params
};
static const struct asking askings[] = { { "mul_mat", asks_tiles, "tile" }, { "mul_mat", asks_columns, NULL },
    { "mul_mat_id", asks_experts, NULL }, { "mul_mat", asks_floats, "gemm" }, { "ssm_scan", asks_scan, NULL },
    { "conv_2d", asks_conv, NULL }, { "conv_transpose_2d", asks_transposed, NULL }, { "argmax", asks_argmax, NULL },
    { "upscale", asks_upscale, NULL } };

static void ask_fill(struct gcuda_context * ctx) {
    static unsigned char bytes[1 << 20];
    // small numbers in every type
    for (size_t i = 0; i < sizeof bytes; ++i) { bytes[i] = (unsigned char) (i % 3 == 0 ? 0x3c : 0); }
    for (struct gcuda_tensor * x = gcuda_get_first_tensor(ctx); x != NULL; x = gcuda_get_next_tensor(ctx, x)) {
        const size_t n = gcuda_nbytes(x);
        CHECK(n <= sizeof bytes);
        CHECK_OK(x->type == GCUDA_TYPE_I32 ? gcuda_backend_tensor_memset(x, 0, 0, n)
                                           : gcuda_backend_tensor_set(x, bytes, 0, n));
    }
}

// Each call of the function fails once while a graph is planned and enqueued: a status that names the operation, and
// then unchanged bits.
static int ask_in_vain(const struct asking * a, const char * api) {
    struct gcuda_cuda_params params;
    unsigned char *want = NULL, *got = NULL;
    int n_failed = 0;
    memset(&params, 0, sizeof params);
    params.product = a->product;
    for (int k = 0, is_over = 0; !is_over; ++k) { // 0: none fails
        gcuda_backend_t backend = gcuda_backend_cuda_init_params(&params);
        struct place p = place_begin();
        struct gcuda_tensor * y = a->build(p.ctx);
        struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
        CHECK_OK(gcuda_build_forward_expand(graph, y));
        if (backend == NULL || !place_alloc(&p, backend)) {
            CHECK_MSG(false, "%s: %s", a->op, gcuda_last_error());
            break;
        }
        ask_fill(p.ctx);
        const size_t n = gcuda_nbytes(y);
        want = want != NULL ? want : (unsigned char *) malloc(n);
        got = got != NULL ? got : (unsigned char *) malloc(n);
        const int before = sim_failed();
        if (k > 0) { sim_fail(api, k, cudaErrorNotSupported); }
        const gcuda_status st = gcuda_backend_graph_compute(backend, graph);
        if (k > 0) { sim_fail(api, 0, cudaSuccess); }
        is_over = k > 0 && sim_failed() == before;
        CHECK_MSG((st == GCUDA_STATUS_SUCCESS) == (k == 0 || is_over), "%s, call %d: %s", a->op, k,
            gcuda_status_to_string(st));
        if (st != GCUDA_STATUS_SUCCESS) {
            n_failed++;
            CHECK_EQ_I((int) st, (int) GCUDA_STATUS_FAILED);
            CHECK_HAS(gcuda_last_error(), a->op);
            CHECK_HAS(gcuda_last_error(), cudaGetErrorString(cudaErrorNotSupported));
            CHECK_OK(gcuda_backend_graph_compute(backend, graph));
        }
        CHECK_OK(gcuda_backend_tensor_get(y, k == 0 ? want : got, 0, n));
        CHECK_MSG(k == 0 || memcmp(want, got, n) == 0, "%s: other bits after call %d", a->op, k);
        place_end(&p);
        gcuda_backend_free(backend);
    }
    free(want);
    free(got);
    return n_failed;
}

TEST(a_question_to_the_device_that_fails_is_a_status) {
    fresh(1, 256 * MB, 1);
    for (size_t i = 0; i < sizeof askings / sizeof askings[0]; ++i) {
        if (askings[i].product != NULL && GCUDA_SIM_CC < 800) { continue; } // no such way there
        const int n = ask_in_vain(&askings[i], "cudaDeviceGetAttribute");
        CHECK_MSG(n >= 1, "%d, %s: asks nothing", (int) i, askings[i].op);
    }
    clean();
}

// The kernels alone: how much scratch is wanted is not known then, and a launcher does not begin.
TEST(a_launcher_that_cannot_ask_fails) {
    static const char * const apis[] = { "cudaDeviceGetAttribute", "cudaGetDevice" };
    struct gcuda_mul_mat_args p;
    void * memory = NULL;
    fresh(1, 64 * MB, 1);
    CHECK(cudaMalloc(&memory, 8 * MB) == cudaSuccess && cudaMemsetAsync(memory, 0, 8 * MB, NULL) == cudaSuccess);
    memset(&p, 0, sizeof p);
    p.a.type = GCUDA_TYPE_Q8_0, p.b.type = p.y.type = GCUDA_TYPE_F32;
    p.a.ne[0] = p.b.ne[0] = 64, p.a.ne[1] = p.y.ne[0] = p.b.ne[1] = p.y.ne[1] = 40;
    p.a.nb[0] = gcuda_type_size(p.a.type), p.b.nb[0] = p.y.nb[0] = 4;
    p.a.nb[1] = gcuda_row_size(p.a.type, 64), p.b.nb[1] = 256, p.y.nb[1] = 160;
    for (int d = 2; d < 4; ++d) {
        p.a.ne[d] = p.b.ne[d] = p.y.ne[d] = 1;
        p.a.nb[d] = 40 * p.a.nb[1], p.b.nb[d] = 40 * p.b.nb[1], p.y.nb[d] = 40 * p.y.nb[1];
    }
    p.a.data = memory, p.b.data = (char *) memory + MB, p.y.data = (char *) memory + 2 * MB;
    for (int i = 0; i < 2; ++i) {
        void * scratch = (char *) memory + 3 * MB;
        sim_fail(apis[i], 1, cudaErrorNotSupported);
        CHECK(product_scratch(GCUDA_MUL_MAT_TILE, &p, NULL) == SIZE_MAX && cudaGetLastError() == cudaErrorNotSupported);
        const size_t n_bytes = product_scratch(GCUDA_MUL_MAT_TILE, &p, NULL);
        CHECK(n_bytes > 0 && n_bytes <= MB);
        sim_fail(apis[i], 1, cudaErrorNotSupported);
        CHECK(launch_product(GCUDA_MUL_MAT_TILE, &p, NULL, scratch, NULL) == GCUDA_STATUS_FAILED &&
              cudaGetLastError() == cudaErrorNotSupported);
        CHECK_OK(launch_product(GCUDA_MUL_MAT_TILE, &p, NULL, scratch, NULL));
    }
    CHECK(cudaFree(memory) == cudaSuccess);
    clean();
}

// A backend is not made of guesses either.
TEST(a_backend_asks_which_kernels_there_are) {
    fresh(1, 64 * MB, 1);
    sim_fail("cudaFuncGetAttributes", 1, cudaErrorNotSupported);
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    CHECK(backend == NULL);
    CHECK_HAS(gcuda_last_error(), cudaGetErrorString(cudaErrorNotSupported));
    gcuda_backend_free(backend);
    sim_fail("cudaFuncGetAttributes", 0, cudaSuccess);
    backend = gcuda_backend_cuda_init(0);
    CHECK(backend != NULL);
    gcuda_backend_free(backend);
    clean();
}

// An error of the caller's that cudaGetLastError returns is kept by successful calls of gcuda.
TEST(the_callers_pending_error_stays) {
    fresh(2, 256 * MB, 1);
    for (int round = 0; round < 2; ++round) { // the first finds devices and probes the pair
        CHECK(cudaSetDevice(7) == cudaErrorInvalidDevice);
        gcuda_backend_t a = gcuda_backend_cuda_init(0), b = gcuda_backend_cuda_init(1);
        struct place p = place_begin(), q = place_begin();
        struct gcuda_tensor *x = f32(p.ctx, 256, 40, 1), *y = gcuda_mul_mat(p.ctx, x, x), *z = f32(q.ctx, 256, 40, 1);
        struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
        CHECK_OK(gcuda_build_forward_expand(graph, y));
        REQUIRE(a != NULL && b != NULL && place_alloc(&p, a) && place_alloc(&q, b));
        CHECK_OK(gcuda_backend_tensor_memset(x, 0, 0, gcuda_nbytes(x)));
        for (int i = 0; i < 4; ++i) { CHECK_OK(gcuda_backend_graph_compute(a, graph)); }
        CHECK_OK(gcuda_backend_tensor_copy(x, z));
        CHECK_OK(gcuda_backend_tensor_copy_async(a, b, x, z));
        CHECK_OK(gcuda_backend_synchronize(b));
        place_end(&q);
        place_end(&p);
        gcuda_backend_free(b);
        gcuda_backend_free(a);
        CHECK_EQ_I((int) cudaGetLastError(), (int) cudaErrorInvalidDevice);
    }
    clean();
}

// =====================================================================================================================
// >>rows   strided, as one copy
// =====================================================================================================================
static gcuda_status rows_there_and_back(struct gcuda_tensor * x, unsigned char * all) {
    unsigned char in[5 * 7], back[4 * 9];
    for (int i = 0; i < (int) sizeof in; ++i) { in[i] = (unsigned char) (i + 1); }
    memset(back, 0xee, sizeof back);
    gcuda_status st = gcuda_backend_tensor_memset(x, 0, 0, 400);
    st = st == GCUDA_STATUS_SUCCESS ? gcuda_backend_tensor_set_2d(x, in, 20, 5, 4, 32, 7) : st; // rows of 5 bytes
    st = st == GCUDA_STATUS_SUCCESS ? gcuda_backend_tensor_get(x, all, 0, 400) : st;
    st = st == GCUDA_STATUS_SUCCESS ? gcuda_backend_tensor_get_2d(x, back, 20, 5, 4, 32, 9) : st;
    for (int i = 0; i < 4 && st == GCUDA_STATUS_SUCCESS; ++i) {
        CHECK(memcmp(back + 9 * i, in + 7 * i, 5) == 0 && back[9 * i + 5] == 0xee);
    }
    for (int i = 0; i < 400 && st == GCUDA_STATUS_SUCCESS; ++i) {
        const int row = (i - 20) / 32, at = (i - 20) % 32;
        const bool is_in = i >= 20 && row < 4 && at < 5;
        CHECK_MSG(all[i] == (is_in ? in[7 * row + at] : 0), "byte %d is %d", i, all[i]);
    }
    return st;
}

TEST(rows_that_lie_apart_go_in_one_copy) {
    static unsigned char all[400], more[400];
    fresh(1, 64 * MB, 5);
    gcuda_backend_t backend = gcuda_backend_cuda_init(0), cpu = gcuda_backend_cpu_init();
    struct place p = place_begin(), h = place_begin();
    struct gcuda_tensor *x = gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_I8, 400),
                        *y = gcuda_new_tensor_1d(h.ctx, GCUDA_TYPE_I8, 400);
    REQUIRE(backend != NULL && cpu != NULL && place_alloc(&p, backend) && place_alloc(&h, cpu));
    CHECK_OK(rows_there_and_back(x, all));
    CHECK_EQ_I(sim_counts("cudaMemcpy2DAsync"), 2);
    CHECK_OK(rows_there_and_back(y, more)); // row by row
    CHECK(memcmp(all, more, sizeof all) == 0);
    static const cudaError_t errors[] = { cudaErrorInvalidValue, cudaErrorMemoryAllocation };
    for (int k = 1; k <= 2; ++k) {
        for (int e = 0; e < 2; ++e) {
            sim_fail("cudaMemcpy2DAsync", k, errors[e]);
            CHECK(rows_there_and_back(x, all) != GCUDA_STATUS_SUCCESS);
            CHECK_HAS(gcuda_last_error(), "4 rows of 5 bytes");
            CHECK_OK(rows_there_and_back(x, all));
        }
    }
    place_end(&h);
    place_end(&p);
    gcuda_backend_free(cpu);
    gcuda_backend_free(backend);
    clean();
}
