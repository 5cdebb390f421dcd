// Speed of the CPU's matrix products. Two bounds are checked; exit code 1: one is missed. F32 1024^3 reaches at least
// half of OpenBLAS. Q4_0, Q8_0 and Q4_K 4096 x 4096 times a vector is at least four times faster than dequantizing to
// F32 and multiplying that. Best of several runs, 2 threads unless told otherwise.
//   make bench-cpu             or: build/bench --threads 4 --isa avx2 --all
// With --quick everything is done once on small matrices and nothing is judged: whether the program works.
#include "gcuda.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(BENCH_OPENBLAS)
#include <cblas.h>
#endif

struct bench {
    struct gcuda_threadpool * pool;
    int n_threads;
    bool all, is_quick;
    int n_missed;
};

static const enum gcuda_type weights[] = {
    GCUDA_TYPE_Q4_0,
    GCUDA_TYPE_Q8_0,
    GCUDA_TYPE_Q4_K, // these have a bound
    GCUDA_TYPE_Q4_1,
    GCUDA_TYPE_Q5_0,
    GCUDA_TYPE_Q5_1,
    GCUDA_TYPE_Q2_K,
    GCUDA_TYPE_Q3_K,
    GCUDA_TYPE_Q5_K,
    GCUDA_TYPE_Q6_K,
    GCUDA_TYPE_IQ4_NL,
    GCUDA_TYPE_IQ4_XS,
    GCUDA_TYPE_MXFP4,
    GCUDA_TYPE_IQ2_XXS,
    GCUDA_TYPE_IQ2_XS,
    GCUDA_TYPE_IQ2_S,
    GCUDA_TYPE_IQ3_XXS,
    GCUDA_TYPE_IQ3_S,
    GCUDA_TYPE_IQ1_S,
    GCUDA_TYPE_IQ1_M,
};
#define N_WEIGHTS ((int) (sizeof weights / sizeof weights[0]))

static void stop(const char * what) {
    fprintf(stderr, "bench: %s: %s\n", what, gcuda_last_error());
    exit(2);
}

static float number(uint32_t * state) { // uniform in [-1, 1)
    *state = *state * 1664525u + 1013904223u;
    return (float) (*state >> 8) / 8388608.0f - 1.0f;
}

// Floats of any type; types without a quantizer get whatever bytes a constant seed gives, which costs the same time.
static void fill(struct gcuda_tensor * t) {
    const struct gcuda_type_traits * traits = gcuda_get_type_traits(t->type);
    uint32_t state = 1;
    float row[256];
    char * out = (char *) t->data;
    for (int64_t i = 0; i < gcuda_nelements(t); i += 256, out += gcuda_row_size(t->type, 256)) {
        for (int j = 0; j < 256; ++j) { row[j] = number(&state); }
        if (traits->from_float_ref != NULL) {
            traits->from_float_ref(row, out, 256);
        } else {
            for (size_t j = 0; j < traits->type_size; ++j) { out[j] = (char) (j % 7 * 5); } // small positive scales
        }
    }
}

// Whether to measure once more: as often as fits into about 0.4 s, at least 3 times.
static bool goes_on(const struct bench * b, int i, int64_t start) {
    return b->is_quick ? i < 1 : i < 3 || (i < 200 && gcuda_time_us() - start < 400000);
}

static int64_t extent(const struct bench * b, int64_t n) { return b->is_quick ? n / 8 : n; }

// Seconds of one computation: the best of several.
static double seconds(const struct bench * b, struct gcuda_cgraph * graph) {
    struct gcuda_cplan plan = gcuda_graph_plan(graph, b->n_threads, b->pool);
    double best = 1e9;
    const int64_t start = gcuda_time_us();
    plan.work_data = (uint8_t *) malloc(plan.work_size + 1);
    for (int i = 0; goes_on(b, i, start); ++i) {
        const int64_t t0 = gcuda_time_us();
        if (plan.work_data == NULL || gcuda_graph_compute(graph, &plan) != GCUDA_STATUS_SUCCESS) { stop("compute"); }
        best = fmin(best, (double) (gcuda_time_us() - t0) * 1e-6);
    }
    free(plan.work_data);
    return best;
}

// Takes ctx: times y, which is made of a and x, on random numbers.
static double product_seconds(const struct bench * b, struct gcuda_context * ctx, struct gcuda_tensor * a,
    struct gcuda_tensor * x, struct gcuda_tensor * y) {
    struct gcuda_cgraph * graph = gcuda_new_graph(ctx);
    if (graph == NULL || gcuda_build_forward_expand(graph, y) != GCUDA_STATUS_SUCCESS) { stop("graph"); }
    fill(a);
    fill(x);
    const double s = seconds(b, graph);
    gcuda_free(ctx);
    return s;
}

static double mul_mat_seconds(const struct bench * b, enum gcuda_type a_type, int64_t m, int64_t n, int64_t k) {
    struct gcuda_init_params params = { 0, NULL, false };
    struct gcuda_context * ctx = gcuda_init(params);
    struct gcuda_tensor * a = gcuda_new_tensor_2d(ctx, a_type, k, m);
    struct gcuda_tensor * x = gcuda_new_tensor_2d(ctx, GCUDA_TYPE_F32, k, n);
    struct gcuda_tensor * y = gcuda_mul_mat(ctx, a, x);
    return product_seconds(b, ctx, a, x, y);
}

// The way without quantized kernels: the whole matrix to F32 (on all threads), then an F32 product.
static void dequantize(struct gcuda_tensor * dst, int ith, int nth, void * user) {
    const struct gcuda_tensor * a = dst->src[0];
    (void) user;
    for (int64_t r = a->ne[1] * ith / nth; r < a->ne[1] * (ith + 1) / nth; ++r) {
        gcuda_get_type_traits(a->type)->to_float((const char *) a->data + (size_t) r * a->nb[1],
            (float *) (void *) ((char *) dst->data + (size_t) r * dst->nb[1]), a->ne[0]);
    }
}

static double dequantize_seconds(const struct bench * b, enum gcuda_type a_type, int64_t m, int64_t k) {
    struct gcuda_init_params params = { 0, NULL, false };
    struct gcuda_context * ctx = gcuda_init(params);
    struct gcuda_tensor * a = gcuda_new_tensor_2d(ctx, a_type, k, m);
    struct gcuda_tensor * x = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F32, k);
    struct gcuda_tensor * f =
        gcuda_custom_4d(ctx, GCUDA_TYPE_F32, k, m, 1, 1, &a, 1, dequantize, GCUDA_N_TASKS_MAX, NULL);
    struct gcuda_tensor * y = gcuda_mul_mat(ctx, f, x);
    return product_seconds(b, ctx, a, x, y);
}

static void verdict(struct bench * b, double ratio, double bound) {
    const bool ok = b->is_quick || ratio >= bound;
    printf("%6.2fx   %s (bound %.1fx)\n", ratio, b->is_quick ? "not judged" : ok ? "pass" : "MISSED", bound);
    b->n_missed += ok ? 0 : 1;
}

#if defined(BENCH_OPENBLAS)
static double openblas_seconds(const struct bench * b, int n) {
    const size_t count = (size_t) n * (size_t) n;
    float *a = (float *) malloc(count * 3 * sizeof(float)), *x = a + count, *y = x + count;
    uint32_t state = 1;
    double best = 1e9;
    if (a == NULL) { stop("malloc"); }
    for (size_t i = 0; i < 2 * count; ++i) { a[i] = number(&state); }
    openblas_set_num_threads(b->n_threads);
    const int64_t start = gcuda_time_us();
    for (int i = 0; goes_on(b, i, start); ++i) {
        const int64_t t0 = gcuda_time_us();
        cblas_sgemm(CblasColMajor, CblasTrans, CblasNoTrans, n, n, n, 1.0f, a, n, x, n, 0.0f, y, n);
        best = fmin(best, (double) (gcuda_time_us() - t0) * 1e-6);
    }
    free(a);
    return best;
}
#endif

static void float_products(struct bench * b) {
    const enum gcuda_type types[] = { GCUDA_TYPE_F32, GCUDA_TYPE_F16, GCUDA_TYPE_BF16 };
    const int64_t n = extent(b, 1024);
    const double flop = 2.0 * (double) (n * n * n);
    double f32 = 0.0;
    printf("matrix times matrix, %d x %d x %d\n", (int) n, (int) n, (int) n);
    for (int i = 0; i < 3; ++i) {
        const double s = mul_mat_seconds(b, types[i], n, n, n);
        printf("  %-10s %8.2f ms %8.1f GFLOP/s\n", gcuda_type_name(types[i]), s * 1e3, flop / s * 1e-9);
        if (i == 0) { f32 = s; }
    }
#if defined(BENCH_OPENBLAS)
    const double blas = openblas_seconds(b, (int) n);
    printf("  %-10s %8.2f ms %8.1f GFLOP/s\n", "OpenBLAS", blas * 1e3, flop / blas * 1e-9);
    printf("  f32 against OpenBLAS: ");
    verdict(b, blas / f32, 0.5);
#else
    (void) f32;
    printf("  no OpenBLAS to compare with (apt-get install libopenblas-dev)\n");
#endif
}

static void quantized_products(struct bench * b) {
    const int64_t n = extent(b, 4096), columns = extent(b, 512);
    const double area = (double) (n * n);
    printf("\n%d x %d times a vector%s\n", (int) n, (int) n, b->all ? ", and times some columns" : "");
    for (int i = 0; i < (b->all ? N_WEIGHTS : 3); ++i) {
        const double s = mul_mat_seconds(b, weights[i], n, 1, n), slow = dequantize_seconds(b, weights[i], n, n);
        const double bytes = (double) gcuda_row_size(weights[i], n) * (double) n;
        printf("  %-10s %8.3f ms %8.1f GB/s   dequantize + f32 %8.3f ms   ", gcuda_type_name(weights[i]), s * 1e3,
            bytes / s * 1e-9, slow * 1e3);
        if (b->all) {
            const double many = mul_mat_seconds(b, weights[i], n, columns, n);
            printf("%d columns %7.1f GMAC/s   ", (int) columns, area * (double) columns / many * 1e-9);
        }
        if (i < 3) {
            verdict(b, slow / s, 4.0);
        } else {
            printf("%6.2fx\n", slow / s);
        }
    }
    const double f = mul_mat_seconds(b, GCUDA_TYPE_F32, n, 1, n);
    printf("  %-10s %8.3f ms %8.1f GB/s\n", "f32", f * 1e3, area * 4.0 / f * 1e-9);
}

static void set_isa(const char * name) {
    static const char * const names[] = { "auto", "scalar", "neon", "dotprod", "avx2", "avx512", "avx512vnni" };
    for (int i = 0; i < GCUDA_CPU_ISA_COUNT; ++i) {
        if (strcmp(name, names[i]) == 0 && gcuda_cpu_set_isa((enum gcuda_cpu_isa) i) == GCUDA_STATUS_SUCCESS) {
            return;
        }
    }
    stop(name);
}

int main(int argc, char ** argv) {
    struct bench b = { NULL, 2, false, false, 0 };
    for (int i = 1; i < argc; ++i) {
        if (strcmp(argv[i], "--all") == 0) {
            b.all = true;
        } else if (strcmp(argv[i], "--quick") == 0) {
            b.is_quick = true;
        } else if (i + 1 < argc && strcmp(argv[i], "--threads") == 0) {
            b.n_threads = atoi(argv[++i]);
        } else if (i + 1 < argc && strcmp(argv[i], "--isa") == 0) {
            set_isa(argv[++i]);
        } else {
            fprintf(stderr,
                "usage: bench [--threads N] [--isa scalar|neon|dotprod|avx2|avx512|avx512vnni] [--all] [--quick]\n");
            return 2;
        }
    }
    struct gcuda_threadpool_params params = gcuda_threadpool_params_default(b.n_threads);
    b.pool = gcuda_threadpool_new(&params);
    if (b.pool == NULL) { stop("threadpool"); }
    printf("%d threads\n", b.n_threads);
    float_products(&b);
    quantized_products(&b);
    gcuda_threadpool_free(b.pool);
    return b.n_missed == 0 ? 0 : 1;
}
