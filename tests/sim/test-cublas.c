// cuBLAS loaded when it is needed, where it may be missing or another version than was expected: products then take gcuda's
// own kernels. The loader's functions are this file's.
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

void * loader_open(const char * name, int flags) {
    const bool is_there = library_name != NULL && strcmp(name, library_name) == 0;
    (void) flags;
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
    struct gcuda_tensor *a = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, 64, 20), *b = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, 64, 20);
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
    CHECK(product("libcublas.so.11", NULL) == 0 && n_warnings == 0); // nobody has asked for it
}

TEST(a_library_without_a_function_is_named_and_left) {
    for (int i = 0; i < N_FUNCTIONS; ++i) {
        CHECK_EQ_I(product("libcublas.so.13", functions[i].name), 0);
        CHECK_EQ_I(n_warnings, 1);
        CHECK_HAS(warning, functions[i].name);
        CHECK_HAS(warning, "libcublas.so.13");
    }
}
