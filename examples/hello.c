// The smallest complete program: the probabilities of two classes from three numbers.
//
//   cc -O2 -I. examples/hello.c -o hello -pthread -lm -ldl && ./hello
#define GCUDA_IMPLEMENTATION
#include "gcuda.h"
#include <stdio.h>

int main(void) {
    const struct gcuda_init_params params = { 0, NULL, false }; // an arena that grows, with the data inside
    struct gcuda_context * ctx = gcuda_init(params);
    struct gcuda_tensor * w = gcuda_new_tensor_2d(ctx, GCUDA_TYPE_F32, 3, 2); // 2 rows of 3: ne[0] is the row length
    struct gcuda_tensor * x = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F32, 3);
    struct gcuda_tensor * y = gcuda_soft_max(ctx, gcuda_mul_mat(ctx, w, x));
    struct gcuda_cgraph * graph = gcuda_new_graph(ctx);
    gcuda_status st = gcuda_build_forward_expand(graph, y); // reports what any line above got wrong

    for (int i = 0; i < 6 && st == GCUDA_STATUS_SUCCESS; ++i) { st = gcuda_set_f32_1d(w, i, 0.1f * (float) i); }
    if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_set_f32(x, 2.0f); }
    if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_graph_compute_with_ctx(ctx, graph, 2); } // two threads
    if (st == GCUDA_STATUS_SUCCESS) {
        printf("%.3f %.3f\n", (double) gcuda_get_f32_1d(y, 0), (double) gcuda_get_f32_1d(y, 1));
    } else {
        fprintf(stderr, "%s\n", gcuda_last_error());
    }
    gcuda_free(ctx);
    return st == GCUDA_STATUS_SUCCESS ? 0 : 1;
}
