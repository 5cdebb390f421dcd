// Two layers on a backend, placed by a graph allocator: exclusive or (^), as y = relu(a - b) + relu(b - a).
//
//   cc -O2 -I. examples/mlp.c -o mlp -pthread -lm -ldl && ./mlp
#define GCUDA_IMPLEMENTATION
#include "gcuda.h"
#include <stdio.h>

int main(void) {
    const float w1[] = { 1, -1, -1, 1 }, w2[] = { 1, 1 }, x[] = { 0, 0, 0, 1, 1, 0, 1, 1 };
    float y[4] = { 0 };
    const struct gcuda_init_params params = { 0, NULL, true }; // descriptions only: the backend's buffers have the data
    gcuda_backend_t backend = gcuda_backend_init_best();       // a GPU if one works, else the CPU
    struct gcuda_context *weights = gcuda_init(params), *ctx = gcuda_init(params);
    struct gcuda_tensor * t_w1 = gcuda_new_tensor_2d(weights, GCUDA_TYPE_F32, 2, 2); // 2 rows of ne[0] = 2 numbers
    struct gcuda_tensor * t_w2 = gcuda_new_tensor_2d(weights, GCUDA_TYPE_F32, 2, 1);
    gcuda_backend_buffer_t buffer = gcuda_backend_alloc_ctx_tensors(weights, backend); // for both; kept between runs

    struct gcuda_tensor * t_x = gcuda_new_tensor_2d(ctx, GCUDA_TYPE_F32, 2, 4); // 4 inputs, computed together
    struct gcuda_tensor * t_y = gcuda_mul_mat(ctx, t_w2, gcuda_relu(ctx, gcuda_mul_mat(ctx, t_w1, t_x)));
    struct gcuda_cgraph * graph = gcuda_new_graph(ctx);
    gcuda_set_input(t_x);  // set before every run
    gcuda_set_output(t_y); // read after it: its memory is not reused

    gcuda_gallocr_t galloc = gcuda_gallocr_new(gcuda_backend_get_default_buffer_type(backend));
    gcuda_status st = gcuda_build_forward_expand(graph, t_y); // reports what any constructor above got wrong
    if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_gallocr_alloc_graph(galloc, graph); }
    if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_backend_tensor_set(t_w1, w1, 0, sizeof w1); }
    if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_backend_tensor_set(t_w2, w2, 0, sizeof w2); }
    if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_backend_tensor_set(t_x, x, 0, sizeof x); }
    if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_backend_graph_compute(backend, graph); }
    if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_backend_tensor_get(t_y, y, 0, sizeof y); }
    for (int i = 0; i < 4 && st == GCUDA_STATUS_SUCCESS; ++i) { printf("%d ^ %d = %g\n", i / 2, i % 2, (double) y[i]); }
    if (st != GCUDA_STATUS_SUCCESS) { fprintf(stderr, "mlp: %s\n", gcuda_last_error()); }
    gcuda_gallocr_free(galloc);
    gcuda_backend_buffer_free(buffer);
    gcuda_free(ctx);
    gcuda_free(weights);
    gcuda_backend_free(backend);
    return st == GCUDA_STATUS_SUCCESS ? 0 : 1;
}
