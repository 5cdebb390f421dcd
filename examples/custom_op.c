// Custom operations: C functions as nodes of a graph. An activation with a parameter (gcuda_map_custom1), and the
// distances between two sets of points, whose result has another shape than its sources (gcuda_custom_4d).
//
//   cc -O2 -I. examples/custom_op.c -o custom_op -pthread -lm -ldl && ./custom_op
#define GCUDA_IMPLEMENTATION
#include "gcuda.h"

#include <math.h>
#include <stdio.h>

enum { DIM = 3, N_A = 4, N_B = 5 };

// y = x * sigmoid(beta * x) (Ramachandran et al. 2017, arXiv:1710.05941). Task ith of nth takes every nth-th row, so
// that the tasks may run on any thread in any order. userdata must live until the graph is computed.
static void swish(struct gcuda_tensor * dst, const struct gcuda_tensor * a, int ith, int nth, void * userdata) {
    const float beta = *(const float *) userdata;
    for (int64_t r = ith; r < gcuda_nrows(a); r += nth) {
        const float * x = (const float *) ((const char *) a->data + (size_t) r * a->nb[1]); // contiguous, see main
        float * y = (float *) ((char *) dst->data + (size_t) r * dst->nb[1]);
        for (int64_t i = 0; i < a->ne[0]; ++i) { y[i] = x[i] / (1.0f + expf(-beta * x[i])); }
    }
}

// dst[i, j] = distance of column i of a and column j of b; the sources are in dst->src.
static void distances(struct gcuda_tensor * dst, int ith, int nth, void * userdata) {
    const struct gcuda_tensor *a = dst->src[0], *b = dst->src[1];
    (void) userdata;
    for (int64_t j = ith; j < dst->ne[1]; j += nth) {
        for (int64_t i = 0; i < dst->ne[0]; ++i) {
            float sum = 0.0f;
            for (int64_t k = 0; k < a->ne[0]; ++k) {
                const float d = gcuda_get_f32_nd(a, k, i, 0, 0) - gcuda_get_f32_nd(b, k, j, 0, 0);
                sum += d * d;
            }
            gcuda_set_f32_nd(dst, i, j, 0, 0, sqrtf(sum)); // i and j are in range, so this cannot fail
        }
    }
}

static gcuda_status fill(struct gcuda_tensor * t, float phase) {
    gcuda_status st = GCUDA_STATUS_SUCCESS;
    for (int64_t i = 0; i < gcuda_nelements(t) && st == GCUDA_STATUS_SUCCESS; ++i) {
        st = gcuda_set_f32_1d(t, i, 2.0f * sinf(phase + (float) i));
    }
    return st;
}

static gcuda_status run(struct gcuda_context * ctx) {
    static float beta = 1.5f;
    struct gcuda_tensor * a = gcuda_new_tensor_2d(ctx, GCUDA_TYPE_F32, DIM, N_A);
    struct gcuda_tensor * b = gcuda_new_tensor_2d(ctx, GCUDA_TYPE_F32, DIM, N_B);
    struct gcuda_tensor * active = gcuda_map_custom1(ctx, a, swish, GCUDA_N_TASKS_MAX, &beta);
    struct gcuda_tensor * sources[] = { active, b };
    struct gcuda_tensor * y = gcuda_custom_4d(ctx, GCUDA_TYPE_F32, N_A, N_B, 1, 1, sources, 2, distances, 2, NULL);
    struct gcuda_cgraph * graph = gcuda_new_graph(ctx);
    gcuda_status st = gcuda_build_forward_expand(graph, y);
    if (st == GCUDA_STATUS_SUCCESS) { st = fill(a, 0.0f); }
    if (st == GCUDA_STATUS_SUCCESS) { st = fill(b, 0.5f); }
    if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_graph_compute_with_ctx(ctx, graph, 2); }
    if (st != GCUDA_STATUS_SUCCESS) { return st; }
    printf("distances of %d points after swish from %d others\n", (int) N_A, (int) N_B);
    for (int j = 0; j < N_B; ++j) {
        for (int i = 0; i < N_A; ++i) { printf("%8.4f", (double) gcuda_get_f32_nd(y, i, j, 0, 0)); }
        printf("\n");
    }
    return GCUDA_STATUS_SUCCESS;
}

int main(void) {
    const struct gcuda_init_params params = { 0, NULL, false };
    struct gcuda_context * ctx = gcuda_init(params);
    const gcuda_status st = ctx ? run(ctx) : GCUDA_STATUS_ALLOC_FAILED;
    if (st != GCUDA_STATUS_SUCCESS) { fprintf(stderr, "custom_op: %s\n", gcuda_last_error()); }
    gcuda_free(ctx);
    return st == GCUDA_STATUS_SUCCESS ? 0 : 1;
}
