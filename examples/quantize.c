// What each weight format costs: a random matrix is quantized to every type there is a quantizer for, then multiplied
// by a vector in that type. The table says how many bits a weight takes and how far weights and product are off.
//
//   cc -O2 -I. examples/quantize.c -o quantize -pthread -lm -ldl && ./quantize
#define GCUDA_IMPLEMENTATION
#include "gcuda.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { N_IN = 512, N_OUT = 256 };

// clang-format off
static const enum gcuda_type types[] = {
    GCUDA_TYPE_F32,  GCUDA_TYPE_F16,  GCUDA_TYPE_BF16, GCUDA_TYPE_Q8_0, GCUDA_TYPE_Q6_K,   GCUDA_TYPE_Q5_K,
    GCUDA_TYPE_Q5_1, GCUDA_TYPE_Q5_0, GCUDA_TYPE_Q4_K, GCUDA_TYPE_Q4_1, GCUDA_TYPE_IQ4_NL, GCUDA_TYPE_IQ4_XS,
    GCUDA_TYPE_Q4_0, GCUDA_TYPE_MXFP4, GCUDA_TYPE_Q3_K, GCUDA_TYPE_Q2_K,
};
// clang-format on
enum { N_TYPES = sizeof types / sizeof types[0] };

struct numbers {
    float weights[N_IN * N_OUT], restored[N_IN * N_OUT], x[N_IN], exact[N_OUT], y[N_OUT];
};

static float random_normal(void) { // the sum of 12 uniform numbers is close enough
    static uint32_t state = 1;
    float sum = -6.0f;
    for (int i = 0; i < 12; ++i) {
        state = state * 1664525u + 1013904223u;
        sum += (float) (state >> 8) / 16777216.0f;
    }
    return sum;
}

// root of the squared differences over that of the squared values
static double relative_error(const float * got, const float * want, int n) {
    double error = 0.0, norm = 0.0;
    for (int i = 0; i < n; ++i) {
        const double d = (double) got[i] - (double) want[i];
        error += d * d;
        norm += (double) want[i] * (double) want[i];
    }
    return sqrt(error / norm);
}

// y = W x with W in the given type. ctx is the caller's to free.
static gcuda_status multiply(struct gcuda_context * ctx, enum gcuda_type type, struct numbers * num) {
    struct gcuda_tensor * w = gcuda_new_tensor_2d(ctx, type, N_IN, N_OUT);
    struct gcuda_tensor * x = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F32, N_IN);
    struct gcuda_tensor * y = gcuda_mul_mat(ctx, w, x);
    struct gcuda_cgraph * graph = gcuda_new_graph(ctx);
    gcuda_status st = gcuda_build_forward_expand(graph, y);
    if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_quantize_rows(type, num->weights, w->data, N_OUT, N_IN, NULL, 2); }
    if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_backend_tensor_set(x, num->x, 0, sizeof num->x); }
    if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_graph_compute_with_ctx(ctx, graph, 2); }
    if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_backend_tensor_get(y, num->y, 0, sizeof num->y); }
    if (st != GCUDA_STATUS_SUCCESS) { return st; }
    gcuda_get_type_traits(type)->to_float(w->data, num->restored, N_IN * N_OUT);
    return st;
}

static gcuda_status show_type(enum gcuda_type type, struct numbers * num) {
    const struct gcuda_init_params params = { 0, NULL, false };
    struct gcuda_context * ctx = gcuda_init(params);
    const gcuda_status st = ctx ? multiply(ctx, type, num) : GCUDA_STATUS_ALLOC_FAILED;
    gcuda_free(ctx);
    if (st != GCUDA_STATUS_SUCCESS) { return st; }
    const double bits = 8.0 * (double) gcuda_type_size(type) / (double) gcuda_blck_size(type);
    printf("%-8s %12.4g %13.5f %% %13.5f %%\n", gcuda_type_name(type), bits,
        100.0 * relative_error(num->restored, num->weights, N_IN * N_OUT),
        100.0 * relative_error(num->y, num->exact, N_OUT));
    return st;
}

static void fill(struct numbers * num) {
    for (int i = 0; i < N_IN * N_OUT; ++i) { num->weights[i] = random_normal(); }
    for (int i = 0; i < N_IN; ++i) { num->x[i] = random_normal(); }
    for (int r = 0; r < N_OUT; ++r) {
        double sum = 0.0;
        for (int i = 0; i < N_IN; ++i) { sum += (double) num->weights[r * N_IN + i] * (double) num->x[i]; }
        num->exact[r] = (float) sum;
    }
}

int main(void) {
    struct numbers * num = (struct numbers *) malloc(sizeof *num);
    if (num == NULL) { return 1; }
    fill(num);
    printf("type     bits/weight  weights are off  product is off\n");
    gcuda_status st = GCUDA_STATUS_SUCCESS;
    for (int i = 0; i < (int) N_TYPES && st == GCUDA_STATUS_SUCCESS; ++i) { st = show_type(types[i], num); }
    if (st != GCUDA_STATUS_SUCCESS) { fprintf(stderr, "quantize: %s\n", gcuda_last_error()); }
    free(num);
    return st == GCUDA_STATUS_SUCCESS ? 0 : 1;
}
