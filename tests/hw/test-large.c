// Tensors of 2^31 elements, one less, one more and a few thousand more: each kernel's answer at both ends, around 2^31 and at
// random places, against what the element's number alone says. Element i of an input is pattern(i), made on the device out of
// one period, so nothing large is ever on the host. Where memory does not allow it (the simulated device) the same cases run
// with 2^17 elements. Built and run by `make test-gpu`.
#include "gcuda.h"
#include "test.h"

#include <cuda_runtime_api.h>
#include <math.h>

// True: it holds. Else a failed check that says so.
#define CHECKED(holds, ...) ((holds) ? true : (test_failed(__FILE__, __LINE__, __VA_ARGS__), false))

#define PERIOD 1000003
#define ROW 4096 // elements of a row in cases with rows
#define WINDOW 48
#define NEEDED ((size_t) 48 << 30) // bytes free on the device

static double pattern(int64_t i) { return (double) (i % PERIOD * 7919 % 2039 - 1019) / 1024.0; } // exact in F16

struct large {
    gcuda_backend_t backend;
    struct gcuda_context * ctx;
    struct gcuda_tensor * leafs[3];
    int n_leafs;
    int64_t n; // elements: 2^31 (2^17) and what the case adds
    int64_t base;
    double sums[3]; // of long rows
    struct rng rng;
};

static struct gcuda_tensor * leaf(struct large * l, enum gcuda_type type, int64_t ne0, int64_t ne1, int64_t ne2) {
    return l->leafs[l->n_leafs++] = gcuda_new_tensor_3d(l->ctx, type, ne0, ne1, ne2);
}

static int64_t n_rows(const struct large * l) { return l->n / ROW; }

// Long rows of one element less than 2^31, which is a prime number, or of one more.
static int64_t n_long(const struct large * l) { return l->n % 3 == 0 ? 3 : 1; }
static int64_t long_row(const struct large * l) { return l->n / n_long(l); }

// Row numbers for get_rows and set_rows: the last rows and some of all.
static int64_t row_number(const struct large * l, int64_t k) { return k < 8 ? n_rows(l) - 1 - k : k * (n_rows(l) / 32); }

static void fill(const struct large * l, struct gcuda_tensor * t) {
    const size_t size = gcuda_type_size(t->type);
    const int64_t n = gcuda_nelements(t), n_here = n < PERIOD ? n : PERIOD;
    char * bytes = (char *) malloc((size_t) n_here * size), * at = (char *) t->data;
    float * f = (float *) malloc((size_t) n_here * sizeof *f);
    for (int64_t i = 0; i < n_here; ++i) { f[i] = (float) pattern(i); }
    for (int64_t i = 0; i < n_here; ++i) {
        if (t->type == GCUDA_TYPE_I8) { ((int8_t *) (void *) bytes)[i] = (int8_t) (f[i] * 100.0f); }
        if (t->type == GCUDA_TYPE_I32) { ((int32_t *) (void *) bytes)[i] = (int32_t) (n == 1 ? n_long(l) - 1 : row_number(l, i)); }
        if (t->type == GCUDA_TYPE_F32) { ((float *) (void *) bytes)[i] = f[i]; }
    }
    if (t->type == GCUDA_TYPE_F16) { gcuda_fp32_to_fp16_row(f, (gcuda_fp16_t *) (void *) bytes, n_here); }
    CHECK_OK(gcuda_backend_tensor_set(t, bytes, 0, (size_t) n_here * size));
    for (int64_t done = n_here; done < n;) { // whole periods, as many again each time
        const int64_t more = n - done < done ? n - done : done;
        CHECK(cudaMemcpy(at + (size_t) done * size, at, (size_t) more * size, cudaMemcpyDeviceToDevice) == cudaSuccess);
        done += more;
    }
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    free(f);
    free(bytes);
}

static double value(enum gcuda_type type, const char * p) {
    float f = 0.0f;
    int8_t i = 0;
    gcuda_fp16_t h = 0;
    switch (type) {
        case GCUDA_TYPE_F32: memcpy(&f, p, 4); return (double) f;
        case GCUDA_TYPE_F16: memcpy(&h, p, 2); return (double) gcuda_fp16_to_fp32(h);
        default: memcpy(&i, p, 1); return (double) i;
    }
}

// ---- cases: a graph of one node, and what element i of its result is ----
struct large_case {
    const char * name;
    struct gcuda_tensor * (*build)(struct large * l);
    double (*want)(const struct large * l, int64_t i);
    int64_t more; // elements beside 2^31; 0: ROW, so that there are whole rows
};

static struct gcuda_tensor * build_neg(struct large * l) { return gcuda_neg(l->ctx, leaf(l, GCUDA_TYPE_F16, l->n + 1, 1, 1)); }
static double want_neg(const struct large * l, int64_t i) { return (void) l, -pattern(i); }

static struct gcuda_tensor * build_silu(struct large * l) { return gcuda_silu(l->ctx, leaf(l, GCUDA_TYPE_F16, ROW + 1, n_rows(l), 1)); }
static double want_silu(const struct large * l, int64_t i) { return (void) l, pattern(i) / (1.0 + exp(-pattern(i))); }

static struct gcuda_tensor * build_scale(struct large * l) {
    return gcuda_scale(l->ctx, leaf(l, GCUDA_TYPE_F32, l->n + 1, 1, 1), 0.5f);
}
static double want_scale(const struct large * l, int64_t i) { return (void) l, pattern(i) * 0.5; }

static struct gcuda_tensor * build_add(struct large * l) {
    struct gcuda_tensor * a = leaf(l, GCUDA_TYPE_F16, ROW, n_rows(l), 1);
    return gcuda_add(l->ctx, a, leaf(l, GCUDA_TYPE_F16, ROW, n_rows(l), 1));
}
static double want_add(const struct large * l, int64_t i) { return (void) l, 2.0 * pattern(i); }

static struct gcuda_tensor * build_mul(struct large * l) { // a row with all rows
    struct gcuda_tensor * a = leaf(l, GCUDA_TYPE_F16, ROW, n_rows(l), 1);
    return gcuda_mul(l->ctx, a, leaf(l, GCUDA_TYPE_F16, ROW, 1, 1));
}
static double want_mul(const struct large * l, int64_t i) { return (void) l, pattern(i) * pattern(i % ROW); }

static struct gcuda_tensor * build_cpy(struct large * l) {
    struct gcuda_tensor * a = leaf(l, GCUDA_TYPE_F16, l->n + 1, 1, 1);
    return gcuda_cpy(l->ctx, a, gcuda_new_tensor_1d(l->ctx, GCUDA_TYPE_F32, l->n + 1));
}
static double want_same(const struct large * l, int64_t i) { return (void) l, pattern(i); }

static struct gcuda_tensor * build_bytes(struct large * l) { // two views of bytes that end past 2^31
    struct gcuda_tensor * a = leaf(l, GCUDA_TYPE_I8, ROW, n_rows(l), 1);
    return gcuda_cont(l->ctx, gcuda_view_2d(l->ctx, a, ROW - 1, n_rows(l), a->nb[1], 1));
}
static double want_bytes(const struct large * l, int64_t i) {
    return (void) l, (double) (int8_t) ((float) pattern(i / (ROW - 1) * ROW + i % (ROW - 1) + 1) * 100.0f);
}

static struct gcuda_tensor * build_transpose(struct large * l) {
    return gcuda_cont(l->ctx, gcuda_transpose(l->ctx, leaf(l, GCUDA_TYPE_F16, ROW, n_rows(l), 1)));
}
static double want_transpose(const struct large * l, int64_t i) { return pattern(i % n_rows(l) * ROW + i / n_rows(l)); }

static struct gcuda_tensor * build_transpose_bytes(struct large * l) { // neither side in words
    return gcuda_cont(l->ctx, gcuda_transpose(l->ctx, leaf(l, GCUDA_TYPE_I8, ROW - 1, n_rows(l) + 3, 1)));
}
static double want_transpose_bytes(const struct large * l, int64_t i) {
    const int64_t n = n_rows(l) + 3;
    return (double) (int8_t) ((float) pattern(i % n * (ROW - 1) + i / n) * 100.0f);
}

static struct gcuda_tensor * build_permute(struct large * l) {
    return gcuda_cont(l->ctx, gcuda_permute(l->ctx, leaf(l, GCUDA_TYPE_F16, 128, 32, n_rows(l)), 0, 2, 1, 3));
}
static double want_permute(const struct large * l, int64_t i) {
    const int64_t i0 = i % 128, i1 = i / 128 % n_rows(l), i2 = i / 128 / n_rows(l);
    return pattern(i0 + 128 * (i2 + 32 * i1));
}

static struct gcuda_tensor * build_concat(struct large * l) {
    struct gcuda_tensor * a = leaf(l, GCUDA_TYPE_F16, ROW, n_rows(l) / 2, 1);
    return gcuda_concat(l->ctx, a, leaf(l, GCUDA_TYPE_F16, ROW, n_rows(l) - n_rows(l) / 2, 1), 1);
}
static double want_concat(const struct large * l, int64_t i) {
    const int64_t first = n_rows(l) / 2 * ROW;
    return pattern(i < first ? i : i - first);
}

static struct gcuda_tensor * build_repeat(struct large * l) {
    return gcuda_repeat_4d(l->ctx, leaf(l, GCUDA_TYPE_F16, ROW, 1, 1), ROW, n_rows(l), 1, 1);
}
static double want_repeat(const struct large * l, int64_t i) { return (void) l, pattern(i % ROW); }

static struct gcuda_tensor * build_rms_norm(struct large * l) {
    return gcuda_rms_norm(l->ctx, leaf(l, GCUDA_TYPE_F16, ROW, n_rows(l), 1), 1e-5f);
}
static double want_rms_norm(const struct large * l, int64_t i) {
    double sum = 0.0;
    for (int64_t k = i / ROW * ROW; k < i / ROW * ROW + ROW; ++k) { sum += pattern(k) * pattern(k); }
    return (void) l, pattern(i) / sqrt(sum / ROW + 1e-5);
}

static struct gcuda_tensor * build_soft_max(struct large * l) {
    return gcuda_soft_max(l->ctx, leaf(l, GCUDA_TYPE_F16, 64, l->n / 64, 1));
}
static double want_soft_max(const struct large * l, int64_t i) {
    double sum = 0.0;
    for (int64_t k = i / 64 * 64; k < i / 64 * 64 + 64; ++k) { sum += exp(pattern(k)); }
    return (void) l, exp(pattern(i)) / sum;
}

static struct gcuda_tensor * build_sum_rows(struct large * l) {
    return gcuda_sum_rows(l->ctx, leaf(l, GCUDA_TYPE_F32, ROW, n_rows(l), 1));
}
static double want_sum_rows(const struct large * l, int64_t i) {
    double sum = 0.0;
    for (int64_t k = i * ROW; k < (i + 1) * ROW; ++k) { sum += pattern(k); }
    return (void) l, sum;
}

static struct gcuda_tensor * build_get_rows(struct large * l) {
    struct gcuda_tensor * a = leaf(l, GCUDA_TYPE_F16, ROW, n_rows(l), 1);
    return gcuda_get_rows(l->ctx, a, leaf(l, GCUDA_TYPE_I32, 16, 1, 1));
}
static double want_get_rows(const struct large * l, int64_t i) { return pattern(row_number(l, i / ROW) * ROW + i % ROW); }

static struct gcuda_tensor * build_set_rows(struct large * l) {
    struct gcuda_tensor * a = leaf(l, GCUDA_TYPE_F16, ROW, n_rows(l), 1), * b = leaf(l, GCUDA_TYPE_F32, ROW, 16, 1);
    return gcuda_set_rows(l->ctx, a, b, leaf(l, GCUDA_TYPE_I32, 16, 1, 1));
}
static double want_set_rows(const struct large * l, int64_t i) {
    for (int64_t k = 0; k < 16; ++k) {
        if (row_number(l, k) == i / ROW) { return pattern(k * ROW + i % ROW); }
    }
    return pattern(i);
}

// ---- one element less than 2^31, and one more: a row, or three ----
static double square(double x) { return x * x; }
// The sum of f(pattern(i)) over a long row, out of that of a period and what is left of one.
static double sum_of_row(const struct large * l, int64_t row, double (*f)(double)) {
    const int64_t first = row * long_row(l), n_periods = long_row(l) / PERIOD;
    double period = 0.0, rest = 0.0;
    for (int64_t i = 0; i < PERIOD && n_periods > 0; ++i) { period += f(pattern(i)); }
    for (int64_t i = first + n_periods * PERIOD; i < first + long_row(l); ++i) { rest += f(pattern(i)); }
    return (double) n_periods * period + rest;
}
static void sums_of_rows(struct large * l, double (*f)(double)) {
    for (int64_t r = 0; r < n_long(l); ++r) { l->sums[r] = sum_of_row(l, r, f); }
}

static struct gcuda_tensor * build_neg_row(struct large * l) { return gcuda_neg(l->ctx, leaf(l, GCUDA_TYPE_F16, l->n, 1, 1)); }

static struct gcuda_tensor * build_cpy_row(struct large * l) {
    struct gcuda_tensor * a = leaf(l, GCUDA_TYPE_F16, l->n, 1, 1);
    return gcuda_cpy(l->ctx, a, gcuda_new_tensor_1d(l->ctx, GCUDA_TYPE_F32, l->n));
}
static struct gcuda_tensor * build_add_row(struct large * l) {
    struct gcuda_tensor * a = leaf(l, GCUDA_TYPE_F16, l->n, 1, 1);
    return gcuda_add(l->ctx, a, leaf(l, GCUDA_TYPE_F16, l->n, 1, 1));
}
static struct gcuda_tensor * build_transpose_rows(struct large * l) {
    return gcuda_cont(l->ctx, gcuda_transpose(l->ctx, leaf(l, GCUDA_TYPE_F16, long_row(l), n_long(l), 1)));
}
static double want_transpose_rows(const struct large * l, int64_t i) { return pattern(i % n_long(l) * long_row(l) + i / n_long(l)); }

static struct gcuda_tensor * build_rms_norm_row(struct large * l) {
    sums_of_rows(l, square);
    return gcuda_rms_norm(l->ctx, leaf(l, GCUDA_TYPE_F16, long_row(l), n_long(l), 1), 1e-5f);
}
static double want_rms_norm_row(const struct large * l, int64_t i) {
    return pattern(i) / sqrt(l->sums[i / long_row(l)] / (double) long_row(l) + 1e-5);
}
static struct gcuda_tensor * build_l2_norm_row(struct large * l) { // times the root of its elements: no number is tiny
    sums_of_rows(l, square);
    struct gcuda_tensor * y = gcuda_l2_norm(l->ctx, leaf(l, GCUDA_TYPE_F32, long_row(l), n_long(l), 1), 0.0f);
    return gcuda_scale_inplace(l->ctx, y, (float) sqrt((double) long_row(l)));
}
static double want_l2_norm_row(const struct large * l, int64_t i) {
    return pattern(i) * sqrt((double) long_row(l) / l->sums[i / long_row(l)]);
}
static struct gcuda_tensor * build_soft_max_row(struct large * l) { // the same, by their number
    sums_of_rows(l, exp);
    struct gcuda_tensor * y = gcuda_soft_max(l->ctx, leaf(l, GCUDA_TYPE_F32, long_row(l), n_long(l), 1));
    return gcuda_scale_inplace(l->ctx, y, (float) long_row(l));
}
static double want_soft_max_row(const struct large * l, int64_t i) {
    return exp(pattern(i)) / l->sums[i / long_row(l)] * (double) long_row(l);
}
static struct gcuda_tensor * build_get_long_rows(struct large * l) { // the last row, by its number
    struct gcuda_tensor * a = leaf(l, GCUDA_TYPE_F16, long_row(l), n_long(l), 1);
    return gcuda_get_rows(l->ctx, a, leaf(l, GCUDA_TYPE_I32, 1, 1, 1));
}
static double want_get_long_rows(const struct large * l, int64_t i) { return pattern((n_long(l) - 1) * long_row(l) + i); }

static struct gcuda_tensor * build_set_long_rows(struct large * l) {
    struct gcuda_tensor * a = leaf(l, GCUDA_TYPE_F16, long_row(l), n_long(l), 1), * b = leaf(l, GCUDA_TYPE_F32, long_row(l), 1, 1);
    return gcuda_set_rows(l->ctx, a, b, leaf(l, GCUDA_TYPE_I32, 1, 1, 1));
}
static double want_set_long_rows(const struct large * l, int64_t i) {
    return pattern(i / long_row(l) == n_long(l) - 1 ? i % long_row(l) : i);
}

// The same case with one element less than 2^31, and with one more.
#define BOTH(name, build, want) { name "_less", build, want, -1 }, { name "_more", build, want, 1 }

static const struct large_case large_cases[] = {
    { "neg", build_neg, want_neg, 0 },
    { "silu", build_silu, want_silu, 0 },
    { "scale", build_scale, want_scale, 0 },
    { "add", build_add, want_add, 0 },
    { "mul", build_mul, want_mul, 0 },
    { "cpy", build_cpy, want_same, 0 },
    { "bytes", build_bytes, want_bytes, 0 },
    { "transpose", build_transpose, want_transpose, 0 },
    { "transpose_bytes", build_transpose_bytes, want_transpose_bytes, 0 },
    { "permute", build_permute, want_permute, 0 },
    { "concat", build_concat, want_concat, 0 },
    { "repeat", build_repeat, want_repeat, 0 },
    { "rms_norm", build_rms_norm, want_rms_norm, 0 },
    { "soft_max", build_soft_max, want_soft_max, 0 },
    { "sum_rows", build_sum_rows, want_sum_rows, 0 },
    { "get_rows", build_get_rows, want_get_rows, 0 },
    { "set_rows", build_set_rows, want_set_rows, 0 },
    BOTH("neg", build_neg_row, want_neg),
    BOTH("cpy", build_cpy_row, want_same),
    BOTH("add", build_add_row, want_add),
    BOTH("transpose", build_transpose_rows, want_transpose_rows),
    BOTH("rms_norm", build_rms_norm_row, want_rms_norm_row),
    BOTH("l2_norm", build_l2_norm_row, want_l2_norm_row),
    BOTH("soft_max", build_soft_max_row, want_soft_max_row),
    BOTH("get_rows", build_get_long_rows, want_get_long_rows),
    BOTH("set_rows", build_set_long_rows, want_set_long_rows),
};

// A window of the result. False after the first wrong element.
static bool check_window(const struct large * l, const struct large_case * c, const struct gcuda_tensor * y, int64_t at) {
    char bytes[WINDOW * 8];
    const size_t size = gcuda_type_size(y->type);
    const int64_t n = gcuda_nelements(y), wide = n < WINDOW ? n : WINDOW, first = at < 0 ? 0 : at > n - wide ? n - wide : at;
    if (!CHECK_OK(gcuda_backend_tensor_get(y, bytes, (size_t) first * size, (size_t) wide * size))) { return false; }
    for (int64_t i = first; i < first + wide; ++i) {
        const double want = c->want(l, i), got = value(y->type, bytes + (size_t) (i - first) * size);
        // of long rows a thread adds up thousands of elements in F32
        const double most = (y->type != GCUDA_TYPE_F32 ? 1e-3 : c->more != 0 ? 3e-4 : 1e-5) * (1.0 + fabs(want));
        if (!(fabs(got - want) <= most)) {
            CHECK_MSG(false, "%s: element %lld of %lld is %g, want %g", c->name, (long long) i, (long long) n, got, want);
            return false;
        }
    }
    return true;
}

static void run_large(struct large * l, const struct large_case * c) {
    const struct gcuda_init_params params = { 0, NULL, true };
    l->ctx = gcuda_init(params);
    l->n_leafs = 0;
    l->n = l->base + (c->more != 0 ? c->more : ROW);
    struct gcuda_tensor * y = c->build(l);
    struct gcuda_cgraph * graph = gcuda_new_graph(l->ctx);
    gcuda_backend_buffer_t buffer = y ? gcuda_backend_alloc_ctx_tensors(l->ctx, l->backend) : NULL;
    if (buffer == NULL || !CHECK_OK(gcuda_build_forward_expand(graph, y))) {
        CHECK_MSG(false, "%s: %s", c->name, gcuda_last_error());
    } else {
        for (int i = 0; i < l->n_leafs; ++i) { fill(l, l->leafs[i]); }
        if (CHECK_OK(gcuda_backend_graph_compute(l->backend, graph))) {
            const int64_t n = gcuda_nelements(y), places[] = { 0, n, n / 2, (int64_t) 1 << 30, (int64_t) 1 << 31, (int64_t) 3 << 30 };
            bool is_ok = true;
            for (int i = 0; i < 6 && is_ok; ++i) { is_ok = check_window(l, c, y, places[i] - WINDOW / 2); }
            for (int i = 0; i < 100 && is_ok; ++i) { is_ok = check_window(l, c, y, rng_below(&l->rng, n)); }
        }
    }
    gcuda_backend_buffer_free(buffer);
    gcuda_free(l->ctx);
}

TEST(large_tensors) {
    struct large l;
    size_t n_free = 0, n_all = 0;
    memset(&l, 0, sizeof l);
    l.backend = gcuda_backend_cuda_init(0);
    if (!CHECKED(l.backend != NULL, "%s", gcuda_last_error())) { return; }
    CHECK(cudaMemGetInfo(&n_free, &n_all) == cudaSuccess);
    l.base = n_free >= NEEDED ? (int64_t) 1 << 31 : 32 * ROW;
    printf("  %lld elements, one less, one more and %d more\n", (long long) l.base, ROW);
    for (size_t i = 0; i < sizeof large_cases / sizeof large_cases[0]; ++i) {
        char name[64];
        snprintf(name, sizeof name, "large_tensors/%s", large_cases[i].name);
        if (!test_case_begin(name)) { continue; }
        l.rng = rng_for(name);
        run_large(&l, &large_cases[i]);
        test_case_end();
    }
    gcuda_backend_free(l.backend);
}
