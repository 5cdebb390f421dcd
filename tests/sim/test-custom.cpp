// Custom operations on the simulated device: the caller's own kernel as a node among others, on the backend's stream
// and memory. Refused callbacks; errors of the callback and of its launch.
#include "cuda_runtime.h"
#include "sim-test.h"

static __global__ void k_axpy(const float * x, const float * y, float * out, float a, int n) {
    for (int i = (int) (blockIdx.x * blockDim.x + threadIdx.x); i < n; i += (int) (gridDim.x * blockDim.x)) {
        out[i] = a * x[i] + y[i];
    }
}

struct axpy {
    float a;
    int n_calls;
    gcuda_stream stream;
    gcuda_status result;
};

// out = a src0 + src1
static gcuda_status axpy_cuda(struct gcuda_tensor * dst, gcuda_stream stream, void * userdata) {
    struct axpy * p = (struct axpy *) userdata;
    ++p->n_calls;
    p->stream = stream;
    if (p->result != GCUDA_STATUS_SUCCESS) { return p->result; }
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(4);
    config.blockDim = dim3(64);
    config.stream = stream;
    return cudaLaunchKernelEx(&config, k_axpy, (const float *) dst->src[0]->data, (const float *) dst->src[1]->data,
               (float *) dst->data, p->a, (int) gcuda_nelements(dst)) == cudaSuccess
               ? GCUDA_STATUS_SUCCESS
               : GCUDA_STATUS_FAILED;
}

static void axpy_cpu(struct gcuda_tensor * dst, int ith, int nth, void * userdata) {
    const float a = ((const struct axpy *) userdata)->a;
    const float *x = (const float *) dst->src[0]->data, *y = (const float *) dst->src[1]->data;
    const int64_t n = gcuda_nelements(dst);
    for (int64_t i = n * ith / nth; i < n * (ith + 1) / nth; ++i) { ((float *) dst->data)[i] = a * x[i] + y[i]; }
}

#define N 1000

struct graph {
    struct place place;
    struct gcuda_tensor *x, *y, *custom, *out;
    struct gcuda_cgraph * g;
};

// out = 2 (a (x + x) + y) with the custom node in the middle
static struct graph graph_begin(gcuda_backend_t backend, const struct gcuda_custom_params * params, bool inplace) {
    struct graph t = {};
    t.place = place_begin();
    t.x = gcuda_new_tensor_1d(t.place.ctx, GCUDA_TYPE_F32, N);
    t.y = gcuda_new_tensor_1d(t.place.ctx, GCUDA_TYPE_F32, N);
    struct gcuda_tensor * args[2] = { gcuda_add(t.place.ctx, t.x, t.x), t.y };
    t.custom = inplace ? gcuda_custom_inplace_ext(t.place.ctx, args[0], &args[1], 1, params)
                       : gcuda_custom_4d_ext(t.place.ctx, GCUDA_TYPE_F32, N, 1, 1, 1, args, 2, params);
    t.out = gcuda_scale(t.place.ctx, t.custom, 2.0f);
    t.g = gcuda_new_graph_custom(t.place.ctx, 16, false);
    CHECK(t.out != NULL && t.g != NULL);
    CHECK_OK(gcuda_build_forward_expand(t.g, t.out));
    CHECK(place_alloc(&t.place, backend));
    return t;
}

static void check_result(const struct graph * t, gcuda_backend_t backend, float a, float first) {
    float x[N], y[N], out[N];
    for (int i = 0; i < N; ++i) {
        x[i] = first + (float) i;
        y[i] = (float) (i % 7);
    }
    CHECK_OK(gcuda_backend_tensor_set(t->x, x, 0, sizeof x));
    CHECK_OK(gcuda_backend_tensor_set(t->y, y, 0, sizeof y));
    CHECK_OK(gcuda_backend_graph_compute(backend, t->g));
    CHECK_OK(gcuda_backend_tensor_get(t->out, out, 0, sizeof out));
    for (int i = 0; i < N; ++i) { CHECK(out[i] == 2.0f * (a * 2.0f * x[i] + y[i])); }
}

TEST(own_kernels_are_nodes_of_the_graph) { // >>op:custom
    for (uint64_t seed = 1; seed < 5; ++seed) {
        fresh(1, 256 * MB, seed);
        struct axpy p = { 3.0f, 0, NULL, GCUDA_STATUS_SUCCESS };
        const struct gcuda_custom_params params = { axpy_cpu, axpy_cuda, &p, 3 };
        for (int k = 0; k < 2; ++k) {
            gcuda_backend_t cuda = gcuda_backend_cuda_init(0), cpu = gcuda_backend_cpu_init();
            struct graph on_device = graph_begin(cuda, &params, k == 1), on_host = graph_begin(cpu, &params, k == 1);
            CHECK(gcuda_backend_supports_op(cuda, on_device.custom) && gcuda_backend_supports_op(cpu, on_host.custom));
            p.n_calls = 0;
            for (int i = 0; i < 3; ++i) { check_result(&on_device, cuda, p.a, (float) i); }
            CHECK(p.n_calls == 3 && p.stream == gcuda_backend_cuda_get_stream(cuda));
            check_result(&on_host, cpu, p.a, 5.0f);
            CHECK_EQ_I(p.n_calls, 3);
            place_end(&on_device.place);
            place_end(&on_host.place);
            gcuda_backend_free(cpu);
            gcuda_backend_free(cuda);
        }
    }
    clean();
}

TEST(a_backend_without_a_callback_refuses) {
    gcuda_backend_t cuda = gcuda_backend_cuda_init(0), cpu = gcuda_backend_cpu_init();
    struct axpy p = { 1.0f, 0, NULL, GCUDA_STATUS_SUCCESS };
    const struct gcuda_custom_params host = { axpy_cpu, NULL, &p, 0 }, device = { NULL, axpy_cuda, &p, 0 };
    struct graph t = graph_begin(cuda, &host, false), u = graph_begin(cpu, &device, false);
    CHECK(!gcuda_backend_supports_op(cuda, t.custom) && gcuda_backend_supports_op(cpu, t.custom));
    CHECK(gcuda_backend_supports_op(cuda, u.custom) && !gcuda_backend_supports_op(cpu, u.custom));
    CHECK(gcuda_backend_graph_compute(cuda, t.g) == GCUDA_STATUS_UNSUPPORTED);
    CHECK_HAS(gcuda_last_error(), "no CUDA callback");
    CHECK(gcuda_backend_graph_compute(cpu, u.g) == GCUDA_STATUS_UNSUPPORTED);
    CHECK_HAS(gcuda_last_error(), "no host callback");
    place_end(&t.place);
    place_end(&u.place);
    gcuda_backend_free(cpu);
    gcuda_backend_free(cuda);
    clean();
}

TEST(neither_callback_is_refused_at_once) {
    struct place place = place_begin();
    struct gcuda_tensor * a = gcuda_new_tensor_1d(place.ctx, GCUDA_TYPE_F32, 4);
    const struct gcuda_custom_params none = { NULL, NULL, NULL, 0 }, negative = { axpy_cpu, NULL, NULL, -5 };
    CHECK(gcuda_custom_4d_ext(place.ctx, GCUDA_TYPE_F32, 4, 1, 1, 1, &a, 1, &none) == NULL);
    CHECK_HAS(gcuda_last_error(), "callback is NULL");
    place_end(&place);
    place = place_begin();
    a = gcuda_new_tensor_1d(place.ctx, GCUDA_TYPE_F32, 4);
    CHECK(gcuda_custom_inplace_ext(place.ctx, a, NULL, 0, NULL) == NULL);
    CHECK_HAS(gcuda_last_error(), "callback is NULL");
    place_end(&place);
    place = place_begin();
    a = gcuda_new_tensor_1d(place.ctx, GCUDA_TYPE_F32, 4);
    CHECK(gcuda_custom_4d_ext(place.ctx, GCUDA_TYPE_F32, 4, 1, 1, 1, &a, 1, &negative) == NULL);
    CHECK_HAS(gcuda_last_error(), "n_tasks is -5");
    place_end(&place);
    clean();
}

TEST(errors_of_the_callback_end_the_computation) {
    gcuda_backend_t cuda = gcuda_backend_cuda_init(0);
    struct axpy p = { 1.0f, 0, NULL, GCUDA_STATUS_SUCCESS };
    const struct gcuda_custom_params params = { NULL, axpy_cuda, &p, 0 };
    struct graph t = graph_begin(cuda, &params, false);
    gcuda_set_name(t.custom, "mine");
    p.result = GCUDA_STATUS_INVALID_DATA;
    CHECK(gcuda_backend_graph_compute(cuda, t.g) == GCUDA_STATUS_INVALID_DATA);
    CHECK_HAS(gcuda_last_error(), "'mine'");
    CHECK_HAS(gcuda_last_error(), "CUDA callback returned");
    p.result = GCUDA_STATUS_SUCCESS;
    for (int k = 1; k <= 3; ++k) { // add, the callback's, scale
        sim_fail("cudaLaunchKernelEx", k, cudaErrorInvalidConfiguration);
        CHECK(gcuda_backend_graph_compute(cuda, t.g) == GCUDA_STATUS_FAILED);
        CHECK_HAS(gcuda_last_error(), k == 1 ? "add" : k == 2 ? "custom 'mine'" : "scale");
        CHECK(cudaGetLastError() == cudaSuccess);
    }
    check_result(&t, cuda, p.a, 1.0f);
    place_end(&t.place);
    gcuda_backend_free(cuda);
    clean();
}
