// gcuda inside a shared library that a program loads, as an engine loads a plug-in. With PLUGIN this is the library:
// the implementation, linked with the kernels. Without, it is the program: plugin LIBRARY DEVICE. Kernels that were not
// compiled for a shared library (-fPIC) cannot be linked into one: their variable of each thread asks for a relocation
// that only programs may have.
#if defined(PLUGIN)
#define GCUDA_IMPLEMENTATION
#include "gcuda.h"
#include <stdio.h>

const char * plugin_run(const char * device);

static gcuda_status compute(struct gcuda_context * ctx, gcuda_backend_t backend, float * got) {
    struct gcuda_tensor * a = gcuda_new_tensor_2d(ctx, GCUDA_TYPE_F32, 32, 2);
    struct gcuda_tensor * y = gcuda_scale(ctx, gcuda_mul_mat(ctx, a, a), 0.5f);
    struct gcuda_cgraph * graph = gcuda_new_graph(ctx);
    float ones[64];
    for (int i = 0; i < 64; ++i) { ones[i] = 1.0f; }
    gcuda_status st = gcuda_build_forward_expand(graph, y);
    gcuda_backend_buffer_t buffer = gcuda_backend_alloc_ctx_tensors(ctx, backend);
    if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_backend_tensor_set(a, ones, 0, sizeof ones); }
    if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_backend_graph_compute(backend, graph); }
    if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_backend_tensor_get(y, got, 0, 4 * sizeof(float)); }
    gcuda_backend_buffer_free(buffer);
    return st;
}

// "" or what went wrong; of one thread at a time.
const char * plugin_run(const char * device) {
    static char text[512];
    const struct gcuda_init_params params = { 0, NULL, true };
    gcuda_backend_t backend = gcuda_backend_init_by_name(device, NULL);
    if (backend == NULL) {
        snprintf(text, sizeof text, "%s", gcuda_last_error());
        return text;
    }
    struct gcuda_context * ctx = gcuda_init(params);
    float got[4] = { 0.0f, 0.0f, 0.0f, 0.0f };
    const gcuda_status st = compute(ctx, backend, got);
    const bool is_right = got[0] == 16.0f && got[1] == 16.0f && got[2] == 16.0f && got[3] == 16.0f;
    snprintf(text, sizeof text, "%s",
        st != GCUDA_STATUS_SUCCESS ? gcuda_last_error()
        : is_right                 ? ""
                                   : "wrong numbers");
    gcuda_free(ctx);
    gcuda_backend_free(backend);
    return text;
}
#else
#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static const char * (*run)(const char * device);
static const char * device;

static void * other_thread(void * result) {
    *(const char **) result = run(device);
    return NULL;
}

int main(int argc, char ** argv) {
    void * library = argc == 3 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    void * symbol = library != NULL ? dlsym(library, "plugin_run") : NULL;
    pthread_t thread;
    if (symbol == NULL) {
        fprintf(stderr, "plugin LIBRARY DEVICE: %s\n", argc == 3 ? dlerror() : "two arguments");
        return 2;
    }
    memcpy(&run, &symbol, sizeof run);
    device = argv[2];
    const char * why = run(device);
    if (why[0] == '\0' && pthread_create(&thread, NULL, other_thread, &why) == 0) { pthread_join(thread, NULL); }
    printf("%s: %s\n%d passed, %d failed\n", device, why[0] == '\0' ? "computed" : why, why[0] == '\0', why[0] != '\0');
    return why[0] != '\0';
}
#endif
