// Working inside somebody else's program, on the simulated device: choosing a device, the caller's stream, context and
// cuBLAS handle, shared memory under a cap, memory and semaphores of other interfaces.
#include "sim-test.h"

// =====================================================================================================================
// >>devices
// =====================================================================================================================
TEST(a_device_is_found_by_whatever_names_it) {
    fresh(3, 64 * MB, 1);
    for (int i = 0; i < 3; ++i) {
        struct gcuda_cuda_device_info info;
        char text[320];
        CHECK_OK(gcuda_backend_cuda_get_device_info(i, &info));
        CHECK_HAS(info.name, "Simulated device");
        CHECK(info.cc == GCUDA_SIM_CC && info.warp_size == 32 && info.n_sm > 0 && info.total_bytes == 64 * MB);
        CHECK(info.shared_bytes == 48 * 1024 && info.shared_bytes_optin > info.shared_bytes && !info.is_integrated);
        CHECK(strlen(info.uuid) == 40 && strncmp(info.uuid, "GPU-", 4) == 0);
        CHECK_EQ_I(gcuda_backend_cuda_find_device(info.uuid), i);
        CHECK_EQ_I(gcuda_backend_cuda_find_device(info.pci), i);
        CHECK_EQ_I(gcuda_backend_cuda_find_device(info.pci + 5), i); // without the domain
        snprintf(text, sizeof text, "0000%s", info.pci);             // as nvidia-smi prints it
        CHECK_EQ_I(gcuda_backend_cuda_find_device(text), i);
        if (info.luid[0] != '\0') { CHECK_EQ_I(gcuda_backend_cuda_find_device(info.luid), i); }
        for (char * c = info.uuid; *c; ++c) { *c = (char) (*c >= 'a' && *c <= 'z' ? *c - 32 : *c); }
        CHECK_EQ_I(gcuda_backend_cuda_find_device(info.uuid), i);
        snprintf(text, sizeof text, "%d", i);
        CHECK_EQ_I(gcuda_backend_cuda_find_device(text), i);
        snprintf(text, sizeof text, "cuda%d", i);
        CHECK_EQ_I(gcuda_backend_cuda_find_device(text), i);
        gcuda_backend_t backend = gcuda_backend_init_by_name(text, NULL);
        CHECK(gcuda_backend_is_cuda(backend));
        gcuda_backend_free(backend);
    }
    clean();
}

TEST(what_names_no_device_or_several_is_refused) {
    static const char * const wrong[] = { NULL, "", "3", "CUDA3", "CUDA", "-1", "GPU-", "GPU-zz", "0000:ff:00.0",
        "LUID-", "0000:01:00.0x", "01:00", "GPU-00000000-0000-0000-0000-0000000000000" };
    fresh(3, 64 * MB, 1);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; ++i) {
        gcuda_clear_last_error();
        CHECK_MSG(gcuda_backend_cuda_find_device(wrong[i]) == -1, "'%s' names a device", wrong[i] ? wrong[i] : "NULL");
        CHECK_HAS(gcuda_last_error(), "of 3 devices");
    }
    struct gcuda_cuda_device_info info;
    CHECK(gcuda_backend_cuda_get_device_info(3, &info) == GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK(gcuda_backend_cuda_get_device_info(0, NULL) == GCUDA_STATUS_INVALID_ARGUMENT);
    clean();
}

// Nothing but questions that need no context.
TEST(listing_devices_makes_no_context) {
    fresh(4, 64 * MB, 1);
    CHECK_EQ_I(gcuda_backend_cuda_get_device_count(), 4);
    CHECK_EQ_I(gcuda_backend_cuda_find_device("2"), 2);
    CHECK(gcuda_backend_dev_by_name("CUDA3") != NULL);
    for (int i = 0; sim_api(i) != NULL; ++i) {
        static const char * const harmless[] = { "cudaGetDeviceCount", "cudaGetDeviceProperties", "cudaGetLastError",
            "cudaDriverGetVersion", "cudaGetDriverEntryPointByVersion", "cudaGetDriverEntryPoint", "cuDeviceGet",
            "cuDeviceGetAttribute", "cuMemGetAllocationGranularity", "cudaDeviceGetAttribute" };
        bool is_harmless = false;
        for (size_t k = 0; k < sizeof harmless / sizeof harmless[0]; ++k) {
            is_harmless = is_harmless || strcmp(sim_api(i), harmless[k]) == 0;
        }
        CHECK_MSG(is_harmless || sim_counts(sim_api(i)) == 0, "listing calls %s", sim_api(i));
    }
    clean();
}

// =====================================================================================================================
// >>shared   the cap that choices of kernels see
// =====================================================================================================================
TEST(shared_memory_of_a_backend_is_capped) {
    struct gcuda_cuda_device_info info;
    CHECK_OK(gcuda_backend_cuda_get_device_info(0, &info));
    const size_t least = info.shared_bytes, most = info.shared_bytes_optin;
    const size_t caps[][2] = { { 0, most }, { 1, least }, { 48 * 1024, least }, { 60 * 1024, 60 * 1024 },
        { most, most }, { (size_t) 1 << 30, most } };
    for (size_t i = 0; i < sizeof caps / sizeof caps[0]; ++i) {
        struct gcuda_cuda_params params;
        memset(&params, 0, sizeof params);
        params.max_shared = caps[i][0];
        gcuda_backend_t backend = gcuda_backend_cuda_init_params(&params);
        CHECK_EQ_I(gcuda_backend_cuda_get_max_shared(backend), caps[i][1]);
        gcuda_backend_free(backend);
    }
    gcuda_backend_t cpu = gcuda_backend_cpu_init();
    CHECK_EQ_I(gcuda_backend_cuda_get_max_shared(cpu), 0);
    gcuda_backend_free(cpu);
    clean();
}

// =====================================================================================================================
// >>contexts   every call leaves the caller's context and device as they were
// =====================================================================================================================
#include "cuda.h"

#include <unistd.h>

typedef CUresult (*ctx_create)(CUcontext *, void *, unsigned, CUdevice);
typedef CUresult (*ctx_one)(CUcontext);
typedef CUresult (*ctx_get)(CUcontext *);

static void * driver(const char * name, unsigned version) {
    void * p = NULL;
    enum cudaDriverEntryPointQueryResult found;
    CHECK(cudaGetDriverEntryPointByVersion(name, &p, version, cudaEnableDefault, &found) == cudaSuccess && p != NULL);
    return p;
}
#define DRIVER(type, name, version) (*(type *) (void *) &(void *[]){ driver(name, version) })

static CUcontext context_new(int device) {
    CUcontext c = NULL, popped = NULL;
    CHECK(DRIVER(ctx_create, "cuCtxCreate", 12050)(&c, NULL, 0, device) == CUDA_SUCCESS);
    CHECK(DRIVER(ctx_get, "cuCtxPopCurrent", 4000)(&popped) == CUDA_SUCCESS && popped == c);
    return c;
}
static void context_free(CUcontext c) { CHECK(DRIVER(ctx_one, "cuCtxDestroy", 4000)(c) == CUDA_SUCCESS); }
static void context_set(CUcontext c) { CHECK(DRIVER(ctx_one, "cuCtxSetCurrent", 4000)(c) == CUDA_SUCCESS); }
static CUcontext context_now(void) {
    CUcontext c = NULL;
    CHECK(DRIVER(ctx_get, "cuCtxGetCurrent", 4000)(&c) == CUDA_SUCCESS);
    return c;
}

struct before {
    CUcontext context;
    int device;
};
static struct before before_now(void) {
    struct before b = { context_now(), -1 };
    CHECK(cudaGetDevice(&b.device) == cudaSuccess);
    return b;
}
static int in_case;
static void check_before(struct before b, const char * what) {
    const struct before now = before_now();
    CHECK_MSG(now.context == b.context, "case %d, %s: another context is current", in_case, what);
    CHECK_MSG(now.device == b.device, "%s: device %d is current, before it was %d", what, now.device, b.device);
}

enum { N_CONTEXT = 300 };

// A context that shares the GPU with graphics may have less than the device: the cap goes down with it, not below 48
// KiB.
TEST(shared_memory_is_capped_by_the_context) {
    enum { CONTEXT_SHARED = 1000 }; // see sim_cuCtxGetLimit
    static const int of_context[] = { 60 * 1024, 48 * 1024, 1024, 0 };
    for (int i = 0; i < 4; ++i) {
        for (int by_context = 0; by_context < 2; ++by_context) {
            struct gcuda_cuda_device_info info;
            struct gcuda_cuda_params params;
            fresh(1, 64 * MB, 1);
            sim_attribute(0, CONTEXT_SHARED, of_context[i]);
            CHECK_OK(gcuda_backend_cuda_get_device_info(0, &info));
            CUcontext c = context_new(0);
            memset(&params, 0, sizeof params);
            params.context = by_context ? c : NULL;
            gcuda_backend_t backend = gcuda_backend_cuda_init_params(&params);
            const size_t cap = gcuda_backend_cuda_get_max_shared(backend), limit = (size_t) of_context[i];
            const size_t least = limit < info.shared_bytes_optin ? limit : info.shared_bytes_optin;
            // 0: the driver does not say
            CHECK_EQ_I(cap, !by_context || limit == 0   ? info.shared_bytes_optin
                            : least > info.shared_bytes ? least
                                                        : info.shared_bytes);
            gcuda_backend_free(backend);
            context_free(c);
        }
    }
    clean();
}

// An uploader of a backend works in the backend's context, on separate threads; an uploader of the device must not
// write to the backend's memory.
TEST(uploads_into_a_context_of_the_callers) {
    enum { N_BYTES = 50000 };
    static unsigned char in[N_BYTES], out[N_BYTES];
    struct gcuda_cuda_params params;
    struct gcuda_cuda_uploader_params of_backend, of_device;
    const struct gcuda_cuda_profile_record * records = NULL;
    size_t n_records = 0;
    fresh(2, 64 * MB, 1);
    CUcontext c1 = context_new(1), other = context_new(0);
    context_set(other);
    const struct before b = before_now();
    memset(&params, 0, sizeof params);
    memset(&of_backend, 0, sizeof of_backend);
    memset(&of_device, 0, sizeof of_device);
    params.device = of_device.device = 1;
    params.context = c1;
    gcuda_backend_t backend = gcuda_backend_cuda_init_params(&params), cpu = gcuda_backend_cpu_init();
    REQUIRE(backend != NULL);
    of_backend.backend = cpu;
    CHECK(gcuda_cuda_uploader_new(&of_backend) == NULL);
    CHECK_HAS(gcuda_last_error(), "CPU");
    of_backend.backend = backend;
    of_backend.slot_bytes = of_device.slot_bytes = 8192;
    of_backend.n_threads = of_device.n_threads = 2;
    struct gcuda_cuda_uploader *up = gcuda_cuda_uploader_new(&of_backend), *plain = gcuda_cuda_uploader_new(&of_device);
    check_before(b, "uploader_new");
    struct place p = place_begin();
    struct gcuda_tensor * x = gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_I8, N_BYTES);
    struct gcuda_tensor * f = gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_F32, 100);
    struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
    CHECK_OK(gcuda_build_forward_expand(graph, gcuda_sqr(p.ctx, f)));
    REQUIRE(up != NULL && plain != NULL && place_alloc(&p, backend));
    for (int i = 0; i < N_BYTES; ++i) { in[i] = (unsigned char) (i * 7 + i / 256); }
    CHECK(gcuda_cuda_upload(plain, x, in, 0, N_BYTES, NULL) == GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_OK(gcuda_cuda_upload_after(up, backend));
    CHECK_OK(gcuda_cuda_upload(up, x, in, 0, N_BYTES, NULL));
    CHECK_OK(gcuda_cuda_upload_event_wait(up, 0, backend));
    check_before(b, "upload_event_wait");
    CHECK_OK(gcuda_cuda_download(up, x, out, 0, N_BYTES, NULL));
    CHECK_OK(gcuda_cuda_upload_wait(up, 0));
    CHECK(memcmp(in, out, N_BYTES) == 0);
    CHECK_OK(gcuda_backend_tensor_memset(f, 0, 0, 400));
    CHECK_OK(gcuda_cuda_profile_begin(backend));
    CHECK_OK(gcuda_backend_graph_compute(backend, graph));
    CHECK_OK(gcuda_cuda_profile_get(backend, &records, &n_records));
    CHECK(n_records == 1 && records[0].us > 0.0);
    check_before(b, "profile_get");
    place_end(&p);
    gcuda_backend_free(backend); // first
    gcuda_cuda_uploader_free(up);
    gcuda_cuda_uploader_free(plain);
    check_before(b, "uploader_free");
    gcuda_backend_free(cpu);
    context_set(NULL);
    context_free(c1);
    context_free(other);
    clean();
}

// Everything a backend does, one call after the other; NULL on success, or the call that failed.
static const char * use_backend(const struct gcuda_cuda_params * params, struct before b, bool must_work) {
    float in[N_CONTEXT], out[N_CONTEXT];
    const char * failed = NULL;
    gcuda_backend_t backend = gcuda_backend_cuda_init_params(params);
    check_before(b, "init");
    if (backend == NULL) { return "init"; }
    struct place p = place_begin();
    struct gcuda_tensor * x = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, 10, 30);
    struct gcuda_tensor * w = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, 10, 20);
    struct gcuda_tensor * y = gcuda_scale(p.ctx, x, 2.0f);
    struct gcuda_tensor * z = gcuda_mul_mat(p.ctx, w, y);
    struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
    CHECK_OK(gcuda_build_forward_expand(graph, z));
    for (int i = 0; i < N_CONTEXT; ++i) { in[i] = 1.0f; }
    gcuda_backend_event_t event = NULL;
#define STEP(call)                                                                    \
    do {                                                                              \
        if (failed == NULL && !(call)) { failed = #call; }                            \
        check_before(b, #call);                                                       \
        CHECK_MSG(!must_work || failed == NULL, "%s: %s", #call, gcuda_last_error()); \
    } while (0)
#define OK(call) STEP((call) == GCUDA_STATUS_SUCCESS)
    STEP(place_alloc(&p, backend));
    STEP((event = gcuda_backend_event_new(gcuda_backend_get_device(backend))) != NULL);
    if (failed == NULL) {
        OK(gcuda_backend_buffer_clear(p.buffer, 0));
        OK(gcuda_backend_tensor_set(x, in, 0, sizeof in));
        OK(gcuda_backend_tensor_set(w, in, 0, 800));
        OK(gcuda_backend_tensor_set_async(backend, x, in, 0, sizeof in));
        OK(gcuda_backend_graph_compute_async(backend, graph));
        OK(gcuda_backend_event_record(event, backend));
        OK(gcuda_backend_event_wait(backend, event));
        OK(gcuda_backend_event_synchronize(event));
        OK(gcuda_backend_tensor_get_async(backend, y, out, 0, sizeof out));
        OK(gcuda_backend_synchronize(backend));
        if (failed == NULL) { CHECK(out[0] == 2.0f && out[N_CONTEXT - 1] == 2.0f); }
        OK(gcuda_backend_tensor_get(z, out, 0, sizeof out));
        if (failed == NULL) { CHECK(out[0] == 20.0f && out[N_CONTEXT - 1] == 20.0f); }
        OK(gcuda_backend_tensor_copy(y, x));
        OK(gcuda_backend_tensor_memset(x, 0, 0, sizeof in));
        OK(gcuda_backend_cuda_trim(backend));
        gcuda_backend_buffer_t host = NULL;
        STEP((host = gcuda_backend_buft_alloc_buffer(gcuda_backend_cuda_host_buffer_type(), 5000)) != NULL);
        gcuda_backend_buffer_free(host);
        check_before(b, "host buffer_free");
        OK(gcuda_backend_cuda_register_host_buffer(in, sizeof in));
        if (failed == NULL && gcuda_backend_cuda_unregister_host_buffer(in) != GCUDA_STATUS_SUCCESS) {
            failed = "unregister";
        }
        check_before(b, "unregister_host_buffer");
    }
#undef STEP
#undef OK
    gcuda_backend_event_free(event);
    check_before(b, "event_free");
    place_end(&p);
    check_before(b, "buffer_free");
    gcuda_backend_free(backend);
    check_before(b, "backend_free");
    return failed;
}

// The caller's thread has no context, the device's primary one, that of another device, or a new one. The backend works
// in the primary context, or in one of the caller's.
TEST(the_callers_context_is_as_before_after_every_call) {
    for (int caller = 0; caller < 5; ++caller) {
        for (int own = 0; own < 3; ++own) {
            fresh(2, 64 * MB, 1);
            in_case = 10 * caller + own;
            CUcontext c1 = context_new(1), other = context_new(0);
            CHECK(cudaSetDevice(caller == 1 ? 1 : 0) == cudaSuccess);
            if (caller == 2) { context_set(other); }
            if (caller == 3) { context_set(c1); }
            if (caller == 4) { context_set(NULL); }
            struct gcuda_cuda_params params;
            memset(&params, 0, sizeof params);
            params.device = 1;
            params.context = own == 1 ? c1 : NULL;
            cudaStream_t stream = NULL;
            if (own == 2) { // the stream says which
                const CUcontext now = context_now();
                context_set(c1);
                CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
                context_set(now);
                params.stream = stream;
            }
            const struct before b = before_now();
            const char * failed = use_backend(&params, b, true);
            CHECK_MSG(failed == NULL, "caller %d, backend %d: %s fails: %s", caller, own, failed, gcuda_last_error());
            if (stream != NULL) { CHECK(cudaStreamDestroy(stream) == cudaSuccess); }
            context_set(NULL);
            context_free(c1);
            context_free(other);
            CHECK_EQ_I(sim_leaks(), 0);
        }
    }
    clean();
}

TEST(the_callers_context_is_as_before_after_every_failure) {
    fresh(2, 64 * MB, 1);
    CUcontext c1 = context_new(1), other = context_new(0);
    context_set(other);
    struct gcuda_cuda_params params;
    memset(&params, 0, sizeof params);
    params.device = 1;
    params.context = c1;
    CHECK(use_backend(&params, before_now(), true) == NULL);
    char names[96][48];
    long counts[96];
    int n = 0;
    for (; n < 96 && sim_api(n) != NULL; ++n) {
        snprintf(names[n], sizeof names[n], "%s", sim_api(n));
        counts[n] = sim_counts(names[n]);
    }
    CHECK(sim_api(n) == NULL); // none is left out
    context_set(NULL);
    context_free(c1);
    context_free(other);
    for (int i = 0; i < n; ++i) {
        // these are what the test itself asks, or cannot be undone when they fail
        if (strcmp(names[i], "cuCtxSetCurrent") == 0 || strcmp(names[i], "kernel") == 0 ||
            strncmp(names[i], "cudaGetDriver", 13) == 0 || strncmp(names[i], "cudaGetDeviceC", 14) == 0 ||
            strncmp(names[i], "cudaGetDeviceP", 14) == 0 || // devices are looked for once
            strcmp(names[i], "cuCtxCreate") == 0 || strcmp(names[i], "cuCtxDestroy") == 0) {
            continue;
        }
        const bool is_question = strcmp(names[i], "cuCtxGetCurrent") == 0 || strcmp(names[i], "cudaGetDevice") == 0;
        const long step = counts[i] <= 8 ? 1 : counts[i] / 8;
        for (long k = 1; k <= counts[i] && !is_question; k += step) {
            fresh(2, 64 * MB, 1);
            c1 = context_new(1);
            other = context_new(0);
            context_set(other);
            params.context = c1;
            const struct before b = before_now();
            sim_fail(names[i], (int) k, strncmp(names[i], "cublas", 6) == 0 ? (cudaError_t) 13 : cudaErrorInvalidValue);
            (void) use_backend(&params, b, false);
            sim_fail(names[i], 0, cudaSuccess);
            const char * failed = use_backend(&params, b, true);
            CHECK_MSG(failed == NULL, "after %s %ld: %s fails: %s", names[i], k, failed, gcuda_last_error());
            context_set(NULL);
            context_free(c1);
            context_free(other);
            CHECK_MSG(sim_leaks() == 0, "%s %ld leaks", names[i], k);
        }
    }
    clean();
}

TEST(a_context_of_another_device_or_memory_of_another_context_is_refused) {
    fresh(2, 64 * MB, 1);
    CUcontext c0 = context_new(0), c1 = context_new(1);
    struct gcuda_cuda_params params;
    memset(&params, 0, sizeof params);
    params.context = c1;
    CHECK(gcuda_backend_cuda_init_params(&params) == NULL);
    CHECK_HAS(gcuda_last_error(), "device 1");
    params.context = c0;
    gcuda_backend_t in = gcuda_backend_cuda_init_params(&params), again = gcuda_backend_cuda_init_params(&params),
                    plain = gcuda_backend_cuda_init(0);
    REQUIRE(in != NULL && again != NULL && plain != NULL);
    CHECK(gcuda_backend_get_default_buffer_type(in) == gcuda_backend_get_default_buffer_type(again));
    CHECK(gcuda_backend_get_default_buffer_type(in) != gcuda_backend_get_default_buffer_type(plain));
    gcuda_backend_t third = gcuda_backend_dev_init(gcuda_backend_get_device(in), NULL); // of the same context
    CHECK(third != NULL && gcuda_backend_get_default_buffer_type(third) == gcuda_backend_get_default_buffer_type(in));
    gcuda_backend_free(third);
    struct place p = place_begin(), q = place_begin();
    struct gcuda_tensor *x = gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_F32, 8), *y = gcuda_sqr(p.ctx, x);
    struct gcuda_tensor * other = gcuda_new_tensor_1d(q.ctx, GCUDA_TYPE_F32, 8);
    struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
    const float three[8] = { 3, 3, 3, 3, 3, 3, 3, 3 };
    float out[8];
    CHECK_OK(gcuda_build_forward_expand(graph, y));
    REQUIRE(place_alloc(&p, in) && place_alloc(&q, plain));
    CHECK_OK(gcuda_backend_tensor_set(x, three, 0, sizeof three));
    CHECK_OK(gcuda_backend_graph_compute(again, graph)); // the same context
    CHECK(gcuda_backend_graph_compute(plain, graph) != GCUDA_STATUS_SUCCESS);
    CHECK_OK(gcuda_backend_tensor_copy(y, other)); // through the host
    CHECK_OK(gcuda_backend_tensor_get(other, out, 0, sizeof out));
    CHECK(out[0] == 9.0f && out[7] == 9.0f);
    CHECK_OK(gcuda_backend_tensor_memset(other, 0, 0, sizeof out));
    CHECK_OK(gcuda_backend_tensor_copy_async(in, plain, y, other));
    CHECK_OK(gcuda_backend_synchronize(plain));
    CHECK_OK(gcuda_backend_tensor_get(other, out, 0, sizeof out));
    CHECK(out[0] == 9.0f && out[7] == 9.0f);
    gcuda_backend_free(in); // the buffer keeps what it needs of the context
    gcuda_backend_free(again);
    CHECK_OK(gcuda_backend_tensor_get(y, out, 0, sizeof out));
    place_end(&p);
    place_end(&q);
    gcuda_backend_free(plain);
    context_free(c0);
    context_free(c1);
    clean();
}

// =====================================================================================================================
// >>cublas   a handle of the caller's
// =====================================================================================================================
extern int cublasCreate_v2(void ** handle);
extern int cublasDestroy_v2(void * handle);
extern int cublasSetStream_v2(void * handle, cudaStream_t stream);
extern int cublasGetStream_v2(void * handle, cudaStream_t * stream);
extern int cublasSetMathMode(void * handle, int mode);
extern int cublasGetMathMode(void * handle, int * mode);
extern int cublasSetPointerMode_v2(void * handle, int mode);
extern int cublasGetPointerMode_v2(void * handle, int * mode);

static gcuda_status product_with(void * handle, float * first) {
    struct gcuda_cuda_params params;
    memset(&params, 0, sizeof params);
    params.cublas = (struct cublasContext *) handle;
    gcuda_backend_t backend = gcuda_backend_cuda_init_params(&params);
    if (backend == NULL) { return GCUDA_STATUS_FAILED; }
    struct place p = place_begin();
    struct gcuda_tensor *a = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, 32, 32), *y = gcuda_mul_mat(p.ctx, a, a);
    struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
    float ones[1024];
    for (int i = 0; i < 1024; ++i) { ones[i] = 1.0f; }
    gcuda_status st = gcuda_build_forward_expand(graph, y);
    CHECK(place_alloc(&p, backend));
    CHECK_OK(gcuda_backend_tensor_set(a, ones, 0, sizeof ones));
    st = st == GCUDA_STATUS_SUCCESS ? gcuda_backend_graph_compute(backend, graph) : st;
    if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_backend_tensor_get(y, first, 0, sizeof *first); }
    place_end(&p);
    gcuda_backend_free(backend);
    return st;
}

// Memory of the caller's, made in a context of the caller's: a buffer of the backend there, and of no other's.
TEST(memory_of_the_callers_context_is_wrapped) {
    const float three[8] = { 3, 3, 3, 3, 3, 3, 3, 3 };
    float out[8];
    void * memory = NULL;
    fresh(1, 64 * MB, 1);
    CUcontext c0 = context_new(0);
    context_set(c0);
    CHECK(cudaMalloc(&memory, 1024) == cudaSuccess);
    context_set(NULL);
    struct gcuda_cuda_params params;
    memset(&params, 0, sizeof params);
    params.context = c0;
    gcuda_backend_t in = gcuda_backend_cuda_init_params(&params), plain = gcuda_backend_cuda_init(0),
                    cpu = gcuda_backend_cpu_init();
    REQUIRE(memory != NULL && in != NULL && plain != NULL);
    CHECK(gcuda_backend_cuda_wrap_ptr(cpu, memory, 1024) == NULL);
    CHECK_HAS(gcuda_last_error(), "not a CUDA device");
    CHECK(gcuda_backend_cuda_wrap_ptr(in, (char *) memory + 4, 1020) == NULL &&
          gcuda_backend_cuda_wrap_ptr(in, NULL, 1024) == NULL);
    CHECK_HAS(gcuda_last_error(), "aligned to 128 bytes");
    const struct before b = before_now();
    gcuda_backend_buffer_t buffer = gcuda_backend_cuda_wrap_ptr(in, memory, 1024);
    REQUIRE(buffer != NULL);
    CHECK(gcuda_backend_buffer_get_base(buffer) == memory && gcuda_backend_buffer_get_size(buffer) == 1024);
    CHECK(gcuda_backend_buffer_get_type(buffer) == gcuda_backend_get_default_buffer_type(in));
    struct place p = place_begin();
    struct gcuda_tensor *x = gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_F32, 8), *y = gcuda_sqr(p.ctx, x);
    struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
    CHECK_OK(gcuda_build_forward_expand(graph, y));
    CHECK_OK(gcuda_backend_tensor_alloc(buffer, x, memory));
    CHECK_OK(gcuda_backend_tensor_alloc(buffer, y, (char *) memory + 512));
    CHECK_OK(gcuda_backend_tensor_set(x, three, 0, sizeof three));
    CHECK(gcuda_backend_graph_compute(plain, graph) == GCUDA_STATUS_UNSUPPORTED);
    CHECK_HAS(gcuda_last_error(), "is on CUDA0 in a context of the caller's, not on CUDA0");
    CHECK_OK(gcuda_backend_graph_compute(in, graph));
    CHECK_OK(gcuda_backend_tensor_get(y, out, 0, sizeof out));
    CHECK(out[0] == 9.0f && out[7] == 9.0f);
    gcuda_backend_free(in); // the buffer keeps what it needs of the context
    CHECK_OK(gcuda_backend_tensor_get(x, out, 0, sizeof out));
    CHECK(out[0] == 3.0f && out[7] == 3.0f);
    place_end(&p);
    gcuda_backend_buffer_free(buffer);
    check_before(b, "wrap_ptr");
    gcuda_backend_free(plain);
    gcuda_backend_free(cpu);
    context_set(c0);
    CHECK(cudaFree(memory) == cudaSuccess); // it was the caller's to free
    context_set(NULL);
    context_free(c0);
    clean();
}

TEST(a_cublas_handle_of_the_callers_is_put_back) {
    static const char * const apis[] = { "", "cublasGetStream_v2", "cublasGetMathMode", "cublasGetPointerMode_v2",
        "cublasSetWorkspace_v2", "cublasGemmStridedBatchedEx" };
    for (size_t i = 0; i < sizeof apis / sizeof apis[0]; ++i) {
        void * handle = NULL;
        cudaStream_t stream = NULL, got = NULL;
        int math = 0, pointer = 0;
        float y = 0.0f;
        CHECK(
            cublasCreate_v2(&handle) == 0 && cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
        CHECK(cublasSetStream_v2(handle, stream) == 0 && cublasSetMathMode(handle, 3) == 0 &&
              cublasSetPointerMode_v2(handle, 1) == 0);
        const long n_made = sim_counts("cublasCreate_v2"), n_used = sim_counts("cublasGemmStridedBatchedEx");
        if (i > 0) { sim_fail(apis[i], 1, (cudaError_t) 13); }
        const gcuda_status st = product_with(handle, &y);
        CHECK_MSG((st == GCUDA_STATUS_SUCCESS) == (i == 0), "%s: status %d", apis[i], (int) st);
        if (i == 0) { CHECK(y == 32.0f && sim_counts("cublasGemmStridedBatchedEx") == n_used + 1); }
        CHECK_EQ_I(sim_counts("cublasCreate_v2"), n_made);
        CHECK(cublasGetStream_v2(handle, &got) == 0 && got == stream);
        CHECK(cublasGetMathMode(handle, &math) == 0 && math == 3);
        CHECK(cublasGetPointerMode_v2(handle, &pointer) == 0 && pointer == 1);
        CHECK(cublasDestroy_v2(handle) == 0 && cudaStreamDestroy(stream) == cudaSuccess); // still the caller's
        clean();
    }
}

// =====================================================================================================================
// >>external   memory and semaphores
// =====================================================================================================================
static struct gcuda_cuda_external_memory memory_of(int fd, size_t size) {
    struct gcuda_cuda_external_memory m;
    memset(&m, 0, sizeof m);
    m.fd = fd;
    m.size = size;
    return m;
}
static bool is_open(int fd) {
    const int copy = dup(fd);
    if (copy >= 0) { close(copy); }
    return copy >= 0;
}

TEST(external_memory_becomes_a_buffer) {
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    REQUIRE(backend != NULL);
    const int fd = sim_memory_fd(1 * MB), copy = dup(fd);
    struct gcuda_cuda_external_memory m = memory_of(fd, 1 * MB);
    m.offset = 4096;
    m.buffer_size = 8192;
    gcuda_backend_buffer_t buffer = gcuda_backend_cuda_import_memory(backend, &m);
    REQUIRE(buffer != NULL);
    CHECK_EQ_I(gcuda_backend_buffer_get_size(buffer), 8192);
    CHECK(gcuda_backend_buffer_get_type(buffer) == gcuda_backend_get_default_buffer_type(backend));
    CHECK_OK(gcuda_backend_buffer_clear(buffer, 7));
    struct gcuda_cuda_external_memory all = memory_of(copy, 1 * MB); // the same memory once more
    gcuda_backend_buffer_t whole = gcuda_backend_cuda_import_memory(backend, &all);
    REQUIRE(whole != NULL);
    CHECK_EQ_I(gcuda_backend_buffer_get_size(whole), 1 * MB);
    gcuda_backend_free(backend); // buffers stay usable
    unsigned char byte = 0;
    const char * base = (const char *) gcuda_backend_buffer_get_base(whole);
    CHECK(cudaMemcpy(&byte, base + 4096 + 8191, 1, cudaMemcpyDeviceToHost) == cudaSuccess && byte == 7);
    CHECK(cudaMemcpy(&byte, base + 4096 + 8192, 1, cudaMemcpyDeviceToHost) == cudaSuccess && byte == 0);
    gcuda_backend_buffer_free(buffer);
    gcuda_backend_buffer_free(whole);
    clean();
}

TEST(wrong_imports_leave_the_descriptor_to_the_caller) {
    gcuda_backend_t backend = gcuda_backend_cuda_init(0), cpu = gcuda_backend_cpu_init();
    const int fd = sim_memory_fd(64 * 1024);
    struct gcuda_cuda_external_memory m = memory_of(fd, 64 * 1024), bad;
    CHECK(gcuda_backend_cuda_import_memory(backend, NULL) == NULL && gcuda_backend_cuda_import_memory(cpu, &m) == NULL);
    for (int i = 0; i < 7; ++i) {
        bad = m;
        if (i == 0) { bad.offset = 64; }
        if (i == 1) { bad.offset = 64 * 1024; }
        if (i == 2) { bad.offset = 128, bad.buffer_size = 64 * 1024; }
        if (i == 3) { bad.size = 0; }
        if (i == 4) { bad.offset = SIZE_MAX - 127, bad.buffer_size = 256; }
        if (i == 5) { bad.fd = -1; }
        if (i == 6) { bad.type = GCUDA_CUDA_HANDLE_D3D12_FENCE, bad.handle = &bad; }
        gcuda_clear_last_error();
        CHECK_MSG(gcuda_backend_cuda_import_memory(backend, &bad) == NULL, "case %d", i);
        CHECK_HAS(gcuda_last_error(), "import_memory");
    }
    bad = m;
    bad.type = GCUDA_CUDA_HANDLE_WIN32; // on this system CUDA says no
    bad.handle = &bad;
    CHECK(gcuda_backend_cuda_import_memory(backend, &bad) == NULL);
    static const char * const apis[] = { "cudaImportExternalMemory", "cudaExternalMemoryGetMappedBuffer" };
    for (int i = 0; i < 2; ++i) {
        sim_fail(apis[i], 1, cudaErrorMemoryAllocation);
        CHECK(gcuda_backend_cuda_import_memory(backend, &m) == NULL);
        CHECK_HAS(gcuda_last_error(), apis[i]);
        CHECK(is_open(fd));
    }
    gcuda_backend_buffer_t buffer = gcuda_backend_cuda_import_memory(backend, &m); // and it is still good
    CHECK(buffer != NULL);
    gcuda_backend_buffer_free(buffer);
    CHECK(!is_open(fd));
    gcuda_backend_free(cpu);
    gcuda_backend_free(backend);
    clean();
}

static struct gcuda_cuda_external_semaphore semaphore_of(int fd, bool is_timeline) {
    struct gcuda_cuda_external_semaphore s;
    memset(&s, 0, sizeof s);
    s.fd = fd;
    s.is_timeline = is_timeline;
    return s;
}

// Work waits for a timeline value that another interface sets, and signals the next one, for every order of streams.
TEST(timeline_semaphores_order_work) {
    for (uint64_t seed = 0; seed < 10; ++seed) {
        fresh(1, 64 * MB, seed);
        const int fd = sim_semaphore_fd(0), mine = dup(fd);
        const struct gcuda_cuda_external_semaphore d = semaphore_of(fd, true);
        gcuda_backend_t a = gcuda_backend_cuda_init(0), b = gcuda_backend_cuda_init(0);
        gcuda_cuda_semaphore_t s = gcuda_backend_cuda_import_semaphore(a, &d);
        struct place p = place_begin();
        struct gcuda_tensor * x = gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_F32, 100);
        gcuda_backend_buffer_t host = gcuda_backend_buft_alloc_buffer(gcuda_backend_cuda_host_buffer_type(), 800);
        REQUIRE(s != NULL && host != NULL && place_alloc(&p, a));
        float *in = (float *) gcuda_backend_buffer_get_base(host), *out = in + 100;
        for (int i = 0; i < 100; ++i) { in[i] = (float) i; }
        CHECK_OK(gcuda_backend_cuda_semaphore_wait(a, s, 1)); // the other interface's turn
        CHECK_OK(gcuda_backend_tensor_set_async(a, x, in, 0, 400));
        CHECK_OK(gcuda_backend_cuda_semaphore_signal(a, s, 2));
        CHECK(sim_semaphore_value(mine) == 0);
        sim_semaphore_signal(mine, 1);
        CHECK_OK(gcuda_backend_synchronize(a));
        CHECK_EQ_I(sim_semaphore_value(mine), 2);
        CHECK_OK(gcuda_backend_cuda_semaphore_wait(b, s, 2)); // any backend of the same context
        CHECK_OK(gcuda_backend_tensor_get_async(b, x, out, 0, 400));
        CHECK_OK(gcuda_backend_synchronize(b));
        CHECK(memcmp(in, out, 400) == 0);
        gcuda_backend_cuda_semaphore_free(s);
        close(mine);
        gcuda_backend_buffer_free(host);
        place_end(&p);
        gcuda_backend_free(a);
        gcuda_backend_free(b);
    }
    clean();
}

TEST(binary_semaphores_and_wrong_ones) {
    fresh(2, 64 * MB, 1);
    gcuda_backend_t a = gcuda_backend_cuda_init(0), b = gcuda_backend_cuda_init(1), cpu = gcuda_backend_cpu_init();
    const int fd = sim_semaphore_fd(0);
    struct gcuda_cuda_external_semaphore d = semaphore_of(fd, false), bad = d;
    CHECK(gcuda_backend_cuda_import_semaphore(a, NULL) == NULL && gcuda_backend_cuda_import_semaphore(cpu, &d) == NULL);
    bad.fd = -1;
    CHECK(gcuda_backend_cuda_import_semaphore(a, &bad) == NULL);
    bad = d;
    bad.type = GCUDA_CUDA_HANDLE_D3D12_HEAP;
    bad.handle = &bad;
    CHECK(gcuda_backend_cuda_import_semaphore(a, &bad) == NULL);
    sim_fail("cudaImportExternalSemaphore", 1, cudaErrorInvalidValue);
    CHECK(gcuda_backend_cuda_import_semaphore(a, &d) == NULL && is_open(fd));
    gcuda_cuda_semaphore_t s = gcuda_backend_cuda_import_semaphore(a, &d);
    REQUIRE(s != NULL);
    CHECK(gcuda_backend_cuda_semaphore_wait(b, s, 0) == GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_HAS(gcuda_last_error(), "another device");
    CHECK(gcuda_backend_cuda_semaphore_wait(a, NULL, 0) == GCUDA_STATUS_INVALID_ARGUMENT &&
          gcuda_backend_cuda_semaphore_signal(cpu, s, 0) == GCUDA_STATUS_INVALID_ARGUMENT);
    sim_fail("cudaSignalExternalSemaphoresAsync", 1, cudaErrorInvalidValue);
    CHECK(gcuda_backend_cuda_semaphore_signal(a, s, 0) == GCUDA_STATUS_FAILED);
    CHECK_OK(gcuda_backend_cuda_semaphore_signal(a, s, 0));
    CHECK_OK(gcuda_backend_cuda_semaphore_wait(a, s, 0));
    CHECK_OK(gcuda_backend_synchronize(a));
    gcuda_backend_free(a);
    gcuda_backend_cuda_semaphore_free(s);
    gcuda_backend_cuda_semaphore_free(NULL);
    gcuda_backend_free(b);
    gcuda_backend_free(cpu);
    clean();
}

// =====================================================================================================================
// >>faults   the k-th call fails while all of the above is used: a status or no harm, no leaks, and then it works again
// =====================================================================================================================
static gcuda_status import_some(gcuda_backend_t backend) {
    const int fd = sim_memory_fd(64 * 1024), semaphore_fd = sim_semaphore_fd(0);
    const struct gcuda_cuda_external_memory m = memory_of(fd, 64 * 1024);
    const struct gcuda_cuda_external_semaphore d = semaphore_of(semaphore_fd, true);
    gcuda_backend_buffer_t buffer = gcuda_backend_cuda_import_memory(backend, &m);
    gcuda_cuda_semaphore_t s = gcuda_backend_cuda_import_semaphore(backend, &d);
    gcuda_status st = buffer != NULL && s != NULL ? gcuda_backend_buffer_clear(buffer, 7) : GCUDA_STATUS_FAILED;
    if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_backend_cuda_semaphore_signal(backend, s, 1); }
    if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_backend_cuda_semaphore_wait(backend, s, 1); }
    const gcuda_status end = gcuda_backend_synchronize(backend);
    if (buffer == NULL) { close(fd); }
    if (s == NULL) { close(semaphore_fd); }
    gcuda_backend_buffer_free(buffer);
    gcuda_backend_cuda_semaphore_free(s);
    return st != GCUDA_STATUS_SUCCESS ? st : end;
}

static gcuda_status ask_an_event(gcuda_backend_t backend) {
    gcuda_backend_event_t event = gcuda_backend_event_new(gcuda_backend_get_device(backend));
    bool is_done = false;
    gcuda_status st = event != NULL ? gcuda_backend_event_record(event, backend) : GCUDA_STATUS_FAILED;
    for (int i = 0; i < 1000 && st == GCUDA_STATUS_SUCCESS && !is_done; ++i) {
        st = gcuda_backend_event_query(event, &is_done);
    }
    if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_backend_event_synchronize(event); }
    gcuda_backend_event_free(event);
    return st;
}

// A product three times, strided rows set and got, imports, events.
static gcuda_status use_of_it_all(const struct gcuda_cuda_params * params) {
    gcuda_backend_t backend = gcuda_backend_cuda_init_params(params);
    if (backend == NULL) { return GCUDA_STATUS_FAILED; }
    struct place p = place_begin();
    struct gcuda_tensor *a = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, 32, 32), *y = gcuda_mul_mat(p.ctx, a, a);
    struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
    float ones[1024], got[64];
    size_t n_free = 0, n_total = 0;
    for (int i = 0; i < 1024; ++i) { ones[i] = 1.0f; }
    gcuda_status st = gcuda_build_forward_expand(graph, y);
    if (!place_alloc(&p, backend)) { st = GCUDA_STATUS_ALLOC_FAILED; }
    if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_backend_tensor_set_2d(a, ones, 0, 128, 32, 128, 128); }
    for (int i = 0; i < 3 && st == GCUDA_STATUS_SUCCESS; ++i) { st = gcuda_backend_graph_compute(backend, graph); }
    if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_backend_tensor_get_2d(y, got, 64, 8, 32, 128, 8); }
    for (int i = 0; i < 64 && st == GCUDA_STATUS_SUCCESS; ++i) { CHECK(got[i] == 32.0f); }
    if (st == GCUDA_STATUS_SUCCESS) { st = ask_an_event(backend); }
    if (st == GCUDA_STATUS_SUCCESS) { st = import_some(backend); }
    if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_backend_cuda_get_device_memory(params->device, &n_free, &n_total); }
    place_end(&p);
    gcuda_backend_free(backend);
    return st;
}

// With the caller's context, stream and handle, one at a time; every way of waiting; and objects that end with the
// library.
static gcuda_status all_settings(CUcontext context, cudaStream_t stream, void * handle) {
    struct gcuda_cuda_params params;
    gcuda_status first = GCUDA_STATUS_SUCCESS;
    for (int i = 0; i < 4; ++i) {
        memset(&params, 0, sizeof params);
        params.device = i == 0 ? 1 : 0;
        if (i == 0) { params.context = context; }
        if (i == 1) { params.stream = stream; }
        if (i == 2) { params.cublas = (struct cublasContext *) handle; }
        params.wait = (enum gcuda_cuda_wait) i;
        // cuBLAS does with a small workspace then: filling a large one takes the simulator's time
        params.memory_budget = 8 * MB;
        const gcuda_status st = use_of_it_all(&params);
        first = first == GCUDA_STATUS_SUCCESS ? st : first;
    }
    if (gcuda_backend_cuda_get_device_count() == 2) { (void) gcuda_backend_cuda_probe_peer(0, 1); }
    gcuda_shutdown();
    return first;
}

static bool interop_fault(const char * api, long k, cudaError_t error) {
    fresh(2, 64 * MB, 1);
    const long alive = sim_leaks();
    CUcontext context = context_new(1);
    cudaStream_t stream = NULL;
    void * handle = NULL;
    CHECK(cudaSetDevice(0) == cudaSuccess && cublasCreate_v2(&handle) == 0 &&
          cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    gcuda_clear_last_error();
    sim_fail(api, (int) k, error);
    const gcuda_status st = all_settings(context, stream, handle);
    const bool came = sim_failed() > 0;
    sim_fail(api, 0, cudaSuccess);
    if (st != GCUDA_STATUS_SUCCESS) {
        CHECK_MSG(came && gcuda_last_error()[0] != '\0', "%s %ld: no fault, or no message", api, k);
    }
    if (error != cudaErrorIllegalAddress) {
        const gcuda_status again = all_settings(context, stream, handle);
        CHECK_MSG(again == GCUDA_STATUS_SUCCESS, "%s %ld with error %d: not usable again: %s", api, k, (int) error,
            gcuda_last_error());
    }
    (void) cublasDestroy_v2(handle);
    (void) cudaStreamDestroy(stream);
    (void) DRIVER(ctx_one, "cuCtxDestroy", 4000)(context);
    CHECK_MSG(
        sim_leaks() == alive && sim_violations() == 0, "%s %ld with error %d: leaks or wrong use", api, k, (int) error);
    return came;
}

TEST(every_cuda_call_of_interop_fails_in_turn) {
    char names[96][48];
    int n = 0;
    CHECK(!interop_fault("cudaMalloc", 100000, cudaErrorMemoryAllocation));
    for (; n < 96 && sim_api(n) != NULL; ++n) { snprintf(names[n], sizeof names[n], "%s", sim_api(n)); }
    CHECK(sim_api(n) == NULL); // none is left out
    CHECK(n < 80);
    for (int i = 0; i < n; ++i) {
        // what the test asks itself
        if (strcmp(names[i], "cuCtxCreate") == 0 || strcmp(names[i], "cuCtxDestroy") == 0) { continue; }
        const bool is_blas = strncmp(names[i], "cublas", 6) == 0, is_kernel = strcmp(names[i], "kernel") == 0;
        for (int e = is_kernel ? 1 : 0; e < (is_blas ? 1 : 2); ++e) {
            long k = 1;
            while (test_all.n_bad_checks == 0 && interop_fault(names[i], k,
                                                     is_blas  ? (cudaError_t) 13
                                                     : e == 0 ? cudaErrorInvalidValue
                                                              : cudaErrorIllegalAddress)) {
                k += test_full() ? 1 : e == 0 ? k : 4 * k; // doubling, or more
            }
        }
    }
    clean();
}

// =====================================================================================================================
// >>capture   of the caller's stream, in the strictest mode, while other threads come and go
// =====================================================================================================================
#include <pthread.h>

static bool never(void * data) {
    (void) data;
    return false;
}

static void * come_and_go(void * stop) {
    for (int i = 0; i < 3; ++i) {
        float x = 1.0f;
        CHECK(product_with(NULL, &x) == GCUDA_STATUS_SUCCESS && x == 32.0f);
        gcuda_backend_buffer_t host = gcuda_backend_buft_alloc_buffer(gcuda_backend_cuda_host_buffer_type(), 1000);
        CHECK(host != NULL && gcuda_backend_buffer_get_type(host) == gcuda_backend_cuda_host_buffer_type());
        gcuda_backend_buffer_free(host);
    }
    return stop;
}

// Rows by index, a product, a sum with scratch.
struct captured {
    struct place p;
    struct gcuda_tensor *table, *ids, *w, *sum;
    struct gcuda_cgraph * graph;
};
enum { N_TABLE = 32 * 40, N_IDS = 32, N_W = 32 * 32 };

static bool captured_make(struct captured * c, gcuda_backend_t backend) {
    c->p = place_begin();
    c->table = gcuda_new_tensor_2d(c->p.ctx, GCUDA_TYPE_F32, 32, 40);
    c->ids = gcuda_new_tensor_1d(c->p.ctx, GCUDA_TYPE_I32, N_IDS);
    c->w = gcuda_new_tensor_2d(c->p.ctx, GCUDA_TYPE_F32, 32, 32);
    c->sum = gcuda_sum(c->p.ctx, gcuda_mul_mat(c->p.ctx, c->w, gcuda_get_rows(c->p.ctx, c->table, c->ids)));
    c->graph = gcuda_new_graph(c->p.ctx);
    return gcuda_build_forward_expand(c->graph, c->sum) == GCUDA_STATUS_SUCCESS && place_alloc(&c->p, backend);
}

static float captured_set(struct captured * c, int round, int bad) {
    static float table[N_TABLE], w[N_W];
    int32_t ids[N_IDS];
    for (int i = 0; i < N_TABLE; ++i) { table[i] = (float) (i / 32 + round); }
    for (int i = 0; i < N_W; ++i) { w[i] = 1.0f; }
    float sum = 0.0f;
    for (int i = 0; i < N_IDS; ++i) {
        ids[i] = i == 5 && bad ? 40 : (i * 7 + round) % 40;
        sum += ids[i] < 40 ? (float) (ids[i] + round) * 32.0f * 32.0f : 0.0f;
    }
    CHECK_OK(gcuda_backend_tensor_set(c->table, table, 0, sizeof table));
    CHECK_OK(gcuda_backend_tensor_set(c->w, w, 0, sizeof w));
    CHECK_OK(gcuda_backend_tensor_set(c->ids, ids, 0, sizeof ids));
    return sum;
}

static void capture_once(uint64_t seed, enum cudaStreamCaptureMode mode, bool is_warm, bool has_callback) {
    fresh(1, 128 * MB, seed);
    cudaStream_t stream = NULL;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    struct gcuda_cuda_params params;
    memset(&params, 0, sizeof params);
    params.stream = stream;
    gcuda_backend_t backend = gcuda_backend_cuda_init_params(&params);
    struct captured c;
    float got = 0.0f;
    REQUIRE(backend != NULL && captured_make(&c, backend));
    const float first = captured_set(&c, 0, 0);
    if (has_callback) { // a graph that is being captured is not stopped, nor cut
        CHECK_OK(gcuda_backend_cuda_set_abort_callback(backend, never, NULL, 1e-9f));
    }
    if (is_warm) {
        CHECK_OK(gcuda_backend_graph_compute(backend, c.graph));
        CHECK_OK(gcuda_backend_tensor_get(c.sum, &got, 0, sizeof got));
        CHECK(got == first);
    }
    CHECK(cudaStreamBeginCapture(stream, mode) == cudaSuccess);
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, come_and_go, NULL) == 0);
    CHECK_OK(gcuda_backend_graph_compute_async(backend, c.graph));
    pthread_join(thread, NULL);
    CHECK(gcuda_backend_synchronize(backend) == GCUDA_STATUS_INVALID_ARGUMENT); // refused, and nothing is spoilt
    CHECK_HAS(gcuda_last_error(), "captured");
    CHECK(gcuda_backend_cuda_init_params(&params) == NULL);
    CHECK_HAS(gcuda_last_error(), "captured");
    const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
    CHECK_MSG(ended == cudaSuccess, "the capture is spoilt: %s", cudaGetErrorString(ended));
    REQUIRE(ended == cudaSuccess && cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
    for (int round = 1; round <= 4; ++round) { // the last one with an index out of range
        const float wanted = captured_set(&c, round, round == 4);
        CHECK_OK(gcuda_backend_cuda_trim(backend)); // keeps what the graph remembers
        CHECK(cudaGraphLaunch(exec, stream) == cudaSuccess);
        const gcuda_status st = gcuda_backend_synchronize(backend);
        CHECK_MSG(
            st == (round == 4 ? GCUDA_STATUS_INVALID_DATA : GCUDA_STATUS_SUCCESS), "round %d: %d", round, (int) st);
        CHECK_OK(gcuda_backend_tensor_get(c.sum, &got, 0, sizeof got));
        CHECK_MSG(got == wanted, "round %d: %g, want %g", round, (double) got, (double) wanted);
    }
    CHECK(cudaGraphExecDestroy(exec) == cudaSuccess && cudaGraphDestroy(graph) == cudaSuccess);
    place_end(&c.p);
    gcuda_backend_free(backend);
    CHECK(cudaStreamDestroy(stream) == cudaSuccess);
    gcuda_shutdown(); // handles of cuBLAS that were put aside
    CHECK_EQ_I(sim_leaks(), 0);
}

TEST(the_callers_stream_is_captured_and_replayed) {
    for (uint64_t seed = 0; seed < (test_full() ? 40u : 4u); ++seed) {
        capture_once(seed, cudaStreamCaptureModeGlobal, true, false);
        capture_once(seed, cudaStreamCaptureModeThreadLocal, true, seed % 2 == 1);
        capture_once(seed, cudaStreamCaptureModeRelaxed, seed % 2 == 0, false); // not warmed up: allocates on the way
    }
    clean();
}
