// cuBLAS loaded when it is needed, where it may be missing or another version than was expected: products then take
// gcuda's own kernels. The loader's functions are this file's.
#undef GCUDA_CUBLAS_LINK
#define dlopen(name, flags) loader_open(name, flags)
#define dlsym(library, name) loader_symbol(library, name)
#define dlclose(library) loader_close(library)
#define GCUDA_IMPLEMENTATION
#include "gcuda.h"
#undef dlopen
#undef dlsym
#undef dlclose

#include "sim-test.h"

#define X(name, args) extern int name args;
GCUDAI_CUBLAS_FUNCTIONS(X)
#undef X

static const struct function {
    const char * name;
    void (*address)(void);
} functions[] = {
#define X(name, args) { #name, (void (*)(void)) name },
    GCUDAI_CUBLAS_FUNCTIONS(X)
#undef X
};
enum { N_FUNCTIONS = (int) (sizeof functions / sizeof functions[0]) };

static const char *library_name, *missing; // NULL: no library; all functions
static int n_open, n_warnings;
static char warning[200];
static gcuda_backend_t opener; // whose stream must not be captured while the library is opened; NULL: not looked at

void * loader_open(const char * name, int flags) {
    const bool is_there = library_name != NULL && strcmp(name, library_name) == 0;
    (void) flags;
    CHECK(opener == NULL || !gcudai_cuda_is_captured((struct gcudai_cuda *) opener));
    n_open += is_there;
    return is_there ? &library_name : NULL;
}
void * loader_symbol(void * library, const char * name) {
    void * address = NULL;
    CHECK(library == &library_name && n_open > 0);
    for (int i = 0; i < N_FUNCTIONS && (missing == NULL || strcmp(name, missing) != 0); ++i) {
        if (strcmp(name, functions[i].name) == 0) { memcpy(&address, &functions[i].address, sizeof address); }
    }
    return address;
}
int loader_close(void * library) {
    CHECK(library == &library_name);
    return --n_open;
}

static void listen(enum gcuda_log_level level, const char * text, void * user) {
    (void) user;
    if (level == GCUDA_LOG_LEVEL_WARN && strstr(text, "cuBLAS") != NULL) {
        ++n_warnings;
        snprintf(warning, sizeof warning, "%s", text);
    }
}

// A product of 64 ones with 64 twos on a new backend; how many calls of cuBLAS it took.
static long product(const char * library, const char * without) {
    float in[64 * 20], out[20 * 20];
    library_name = library;
    missing = without;
    n_warnings = 0;
    fresh(1, 256 * MB, 1);
    gcuda_log_set(listen, GCUDA_LOG_LEVEL_WARN, NULL);
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    struct place p = place_begin();
    struct gcuda_tensor *a = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, 64, 20),
                        *b = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, 64, 20);
    struct gcuda_tensor * y = gcuda_mul_mat(p.ctx, a, b);
    struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
    CHECK_OK(gcuda_build_forward_expand(graph, y));
    const bool is_ready = backend != NULL && place_alloc(&p, backend);
    CHECK_MSG(is_ready, "%s", gcuda_last_error());
    if (is_ready) {
        for (int i = 0; i < 64 * 20; ++i) { in[i] = 1.0f; }
        CHECK_OK(gcuda_backend_tensor_set(a, in, 0, sizeof in));
        for (int i = 0; i < 64 * 20; ++i) { in[i] = 2.0f; }
        CHECK_OK(gcuda_backend_tensor_set(b, in, 0, sizeof in));
        CHECK_OK(gcuda_backend_graph_compute(backend, graph));
        CHECK_OK(gcuda_backend_tensor_get(y, out, 0, sizeof out));
        for (int i = 0; i < 20 * 20; ++i) { CHECK_MSG(out[i] == 128.0f, "element %d is %g", i, (double) out[i]); }
    }
    const long n_calls = sim_counts("cublasGemmStridedBatchedEx");
    place_end(&p);
    gcuda_backend_free(backend);
    clean();
    CHECK_EQ_I(n_open, 0);
    return n_calls;
}

TEST(each_version_of_the_library_is_found) {
    CHECK(product("libcublas.so.13", NULL) == 1 && n_warnings == 0);
    CHECK(product("libcublas.so.12", NULL) == 1 && n_warnings == 0);
}

TEST(without_the_library_products_take_own_kernels) {
    CHECK_EQ_I(product(NULL, NULL), 0);
    CHECK(product("libcublas.so.11", NULL) == 0 && n_warnings == 0); // never looked up
}

TEST(a_library_without_a_function_is_named_and_left) {
    for (int i = 0; i < N_FUNCTIONS; ++i) {
        CHECK_EQ_I(product("libcublas.so.13", functions[i].name), 0);
        CHECK_EQ_I(n_warnings, 1);
        CHECK_HAS(warning, functions[i].name);
        CHECK_HAS(warning, "libcublas.so.13");
    }
}

// A graph of one operation: a product of n columns, or an outer product.
struct one {
    struct place p;
    struct gcuda_tensor *a, *b, *y;
    struct gcuda_cgraph * graph;
};
static bool one_make(struct one * o, gcuda_backend_t backend, enum gcuda_type type, int n, bool is_outer) {
    float ones[64 * 64];
    for (int i = 0; i < 64 * 64; ++i) { ones[i] = 1.0f; }
    o->p = place_begin();
    o->a = gcuda_new_tensor_2d(o->p.ctx, type, 64, 64);
    o->b = gcuda_new_tensor_2d(o->p.ctx, GCUDA_TYPE_F32, 64, is_outer ? 64 : n);
    o->y = is_outer ? gcuda_out_prod(o->p.ctx, o->a, o->b) : gcuda_mul_mat(o->p.ctx, o->a, o->b);
    o->graph = gcuda_new_graph(o->p.ctx);
    CHECK_OK(gcuda_build_forward_expand(o->graph, o->y));
    if (!place_alloc(&o->p, backend)) { return false; }
    if (type == GCUDA_TYPE_F32) {
        CHECK_OK(gcuda_backend_tensor_set(o->a, ones, 0, gcuda_nbytes(o->a)));
    } else {
        unsigned char rows[64 * 68];
        CHECK(gcuda_quantize_chunk(type, ones, rows, 0, 64, 64, NULL) == gcuda_nbytes(o->a));
        CHECK_OK(gcuda_backend_tensor_set(o->a, rows, 0, gcuda_nbytes(o->a)));
    }
    CHECK_OK(gcuda_backend_tensor_set(o->b, ones, 0, gcuda_nbytes(o->b)));
    return true;
}
static void one_run(const struct one * o, gcuda_backend_t backend) {
    float out[64 * 64];
    memset(out, 0, sizeof out);
    CHECK_OK(gcuda_backend_graph_compute(backend, o->graph));
    CHECK_OK(gcuda_backend_tensor_get(o->y, out, 0, gcuda_nbytes(o->y)));
    for (size_t i = 0; i < gcuda_nbytes(o->y) / sizeof(float); ++i) {
        CHECK_MSG(fabsf(out[i] - 64.0f) < 0.1f, "%d: %g", (int) i, (double) out[i]);
    }
}

TEST(it_is_opened_by_the_first_product_that_needs_it) {
    library_name = "libcublas.so.13";
    missing = NULL;
    for (int is_outer = 0; is_outer < 2; ++is_outer) {
        struct one token, prompt;
        fresh(1, 256 * MB, 1);
        gcuda_backend_t backend = opener = gcuda_backend_cuda_init(0);
        REQUIRE(backend != NULL && one_make(&token, backend, GCUDA_TYPE_Q8_0, 1, false) &&
                one_make(&prompt, backend, GCUDA_TYPE_F32, 20, is_outer == 1));
        CHECK_EQ_I(n_open, 0);
        for (int i = 0; i < 3; ++i) { one_run(&token, backend); } // eager, captured, replayed
        CHECK_EQ_I(n_open, 0);
        CHECK_EQ_I(sim_counts("cublasCreate_v2"), 0);
        for (int i = 0; i < 3; ++i) { one_run(&prompt, backend); }
        CHECK_EQ_I(n_open, 1);
        CHECK_EQ_I(sim_counts("cublasCreate_v2"), 1);
        CHECK_EQ_I(sim_counts("cublasGemmStridedBatchedEx"), 2); // the third run replays
        place_end(&token.p);
        place_end(&prompt.p);
        opener = NULL;
        gcuda_backend_free(backend);
        clean();
        CHECK_EQ_I(n_open, 0);
    }
}

// The next backend gets the handle of one that was freed, and another workspace.
TEST(a_handle_is_handed_on_without_its_workspace) {
    library_name = "libcublas.so.13";
    missing = NULL;
    fresh(1, 256 * MB, 1);
    gcuda_backend_t stays = gcuda_backend_cuda_init(0);
    for (int i = 0; i < 2; ++i) {
        struct one o;
        struct gcuda_cuda_stats stats;
        gcuda_backend_t backend = gcuda_backend_cuda_init(0);
        REQUIRE(backend != NULL && one_make(&o, backend, GCUDA_TYPE_F32, 20, false));
        one_run(&o, backend);
        CHECK_OK(gcuda_backend_cuda_get_stats(backend, &stats));
        CHECK_EQ_I(stats.by[GCUDA_CUDA_PURPOSE_WORKSPACE].reserved, (GCUDA_SIM_CC >= 900 ? 32 : 4) * MB);
        CHECK_EQ_I(sim_counts("cublasCreate_v2"), 1);
        place_end(&o.p);
        gcuda_backend_free(backend);
        CHECK_EQ_I(n_open, 1);
    }
    gcuda_backend_free(stays);
    clean();
    CHECK_EQ_I(n_open, 0);
}

// On a stream of the caller's the first product may be in a capture of the caller's.
TEST(on_the_callers_stream_it_is_opened_before_any_capture) {
    struct gcuda_cuda_params params;
    struct one o;
    cudaStream_t stream = NULL;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    float out[64 * 20];
    library_name = "libcublas.so.13";
    missing = NULL;
    fresh(1, 256 * MB, 1);
    memset(&params, 0, sizeof params);
    REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    params.stream = stream;
    gcuda_backend_t backend = opener = gcuda_backend_cuda_init_params(&params);
    CHECK_EQ_I(n_open, 1);
    REQUIRE(backend != NULL && one_make(&o, backend, GCUDA_TYPE_F32, 20, false));
    CHECK_OK(gcuda_backend_synchronize(backend));
    REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed) == cudaSuccess);
    CHECK_OK(gcuda_backend_graph_compute_async(backend, o.graph));
    REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
    REQUIRE(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
    CHECK_EQ_I(sim_counts("cublasGemmStridedBatchedEx"), 1);
    CHECK(cudaGraphLaunch(exec, stream) == cudaSuccess && cudaStreamSynchronize(stream) == cudaSuccess);
    CHECK_OK(gcuda_backend_tensor_get(o.y, out, 0, sizeof out));
    CHECK(out[0] == 64.0f && out[64 * 20 - 1] == 64.0f);
    CHECK(cudaGraphExecDestroy(exec) == cudaSuccess && cudaGraphDestroy(graph) == cudaSuccess);
    place_end(&o.p);
    opener = NULL;
    gcuda_backend_free(backend);
    CHECK(cudaStreamDestroy(stream) == cudaSuccess);
    clean();
    CHECK_EQ_I(n_open, 0);
}
