// One network over several backends: each layer's weights are on another GPU, the last layer's on the CPU. The
// scheduler sends every node to its weights and copies what has to cross. Without a GPU all of it is the CPU's.
//
//   cc -O2 -I. examples/sched.c -o sched -pthread -lm -ldl && ./sched
//
// With CUDA: as README.md says of examples/digits.c.
#define GCUDA_IMPLEMENTATION
#include "gcuda.h"
#include <stdio.h>

enum { N_LAYERS = 4, WIDTH = 256, N_TOKENS = 4, MAX_BACKENDS = 9 };

static void print_line(enum gcuda_log_level level, const char * text, void * user) {
    (void) level;
    (void) user;
    printf("  %s\n", text);
}

// A layer's weights in a separate buffer, all of the same value, so that the answer is easy to see.
static gcuda_backend_buffer_t make_weights(
    struct gcuda_context * ctx, gcuda_backend_t backend, struct gcuda_tensor ** w) {
    static float values[WIDTH * WIDTH];
    *w = gcuda_new_tensor_2d(ctx, GCUDA_TYPE_F32, WIDTH, WIDTH);
    gcuda_backend_buffer_t buffer = gcuda_backend_alloc_ctx_tensors(ctx, backend);
    for (int i = 0; i < WIDTH * WIDTH; ++i) { values[i] = 2.0f / WIDTH; }
    if (buffer != NULL && gcuda_backend_tensor_set(*w, values, 0, sizeof values) != GCUDA_STATUS_SUCCESS) {
        gcuda_backend_buffer_free(buffer);
        return NULL;
    }
    gcuda_backend_buffer_set_usage(buffer, GCUDA_BACKEND_BUFFER_USAGE_WEIGHTS); // nodes follow buffers of this usage
    return buffer;
}

int main(void) {
    const struct gcuda_init_params params = { 0, NULL, true }; // descriptions only: backends have the data
    gcuda_backend_t backends[MAX_BACKENDS];
    struct gcuda_context * contexts[N_LAYERS + 1] = { NULL };
    gcuda_backend_buffer_t buffers[N_LAYERS] = { NULL };
    float x[WIDTH * N_TOKENS], y[WIDTH * N_TOKENS];
    int n = 0;
    gcuda_log_set(print_line, GCUDA_LOG_LEVEL_INFO, NULL);
    for (int i = 0; i < gcuda_backend_cuda_get_device_count() && n < MAX_BACKENDS - 1; ++i) {
        backends[n] = gcuda_backend_cuda_init(i);
        if (backends[n] != NULL) { ++n; }
    }
    backends[n] = gcuda_backend_cpu_init();
    if (backends[n] != NULL) { ++n; } // last: it takes what no other does

    struct gcuda_context * ctx = contexts[N_LAYERS] = gcuda_init(params);
    struct gcuda_tensor *input = gcuda_new_tensor_2d(ctx, GCUDA_TYPE_F32, WIDTH, N_TOKENS), *h = input;
    if (input != NULL) { gcuda_set_input(input); }
    for (int i = 0; i < N_LAYERS && n > 0; ++i) {
        struct gcuda_tensor * w = NULL;
        contexts[i] = gcuda_init(params);
        buffers[i] = make_weights(contexts[i], backends[i * n / N_LAYERS], &w);
        h = gcuda_relu(ctx, gcuda_mul_mat(ctx, buffers[i] ? w : NULL, h)); // NULL passes through to the graph
    }
    if (h != NULL) { gcuda_set_output(h); }
    struct gcuda_cgraph * graph = gcuda_new_graph(ctx);
    gcuda_status st = gcuda_build_forward_expand(graph, h);

    gcuda_backend_sched_t sched = gcuda_backend_sched_new(backends, NULL, n, GCUDA_DEFAULT_GRAPH_SIZE, false, true);
    if (st == GCUDA_STATUS_SUCCESS && sched == NULL) { st = GCUDA_STATUS_FAILED; }
    if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_backend_sched_alloc_graph(sched, graph); }
    for (int i = 0; i < WIDTH * N_TOKENS; ++i) { x[i] = (float) (1 + i / WIDTH); }
    if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_backend_tensor_set(input, x, 0, sizeof x); }
    if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_backend_sched_graph_compute(sched, graph); }
    if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_backend_tensor_get(h, y, 0, sizeof y); }
    if (st == GCUDA_STATUS_SUCCESS) {
        gcuda_backend_sched_print(sched);
        // 16 times its number
        for (int i = 0; i < N_TOKENS; ++i) { printf("token %d: %g\n", i, (double) y[i * WIDTH]); }
    } else {
        fprintf(stderr, "%s\n", gcuda_last_error());
    }
    gcuda_backend_sched_free(sched); // before its backends
    for (int i = 0; i < N_LAYERS; ++i) { gcuda_backend_buffer_free(buffers[i]); }
    for (int i = 0; i <= N_LAYERS; ++i) { gcuda_free(contexts[i]); }
    for (int i = 0; i < n; ++i) { gcuda_backend_free(backends[i]); }
    return st == GCUDA_STATUS_SUCCESS ? 0 : 1;
}
