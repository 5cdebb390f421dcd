// Tensors of 2^31 elements, one less, one more and a few thousand more: each kernel's answer at both ends, around 2^31
// and at random places, against what the element's number alone says. Element i of an input is pattern(i), made on the
// device out of one period, so nothing large is ever on the host. Where memory does not allow it (the simulated device)
// the same cases run with 2^17 elements. 2^31 - 1 is a prime number and 2^31 + 1 three times one: such tensors are one
// row or three, or have rows of one element or of three. Tensors of blocks have a block less than 2^31 elements, and
// one more. Built and run by `make test-gpu`.
#include "gcuda.h"
#include "test.h"

#include <cuda_runtime_api.h>
#include <math.h>

// True: it holds. Else a failed check that says so.
#define CHECKED(holds, ...) ((holds) ? true : (test_failed(__FILE__, __LINE__, __VA_ARGS__), false))

#define PERIOD 1000003
#define BLOCKS_PERIOD (256 * 3907) // of quantized inputs: whole blocks of every type
#define CYCLE 2039                 // elements after which the pattern repeats within a period; their sum is 0
#define ROW 4096                   // elements of a row in cases with rows
#define WINDOW 64                  // elements looked at together: whole blocks of Q8_0
#define NEEDED ((size_t) 48 << 30) // bytes free on the device

static double pattern(int64_t i) { return (double) (i % PERIOD * 7919 % CYCLE - 1019) / 1024.0; } // exact in F16
// of quantized inputs
static double blocks_pattern(int64_t i) { return pattern(i % BLOCKS_PERIOD); }

// The sum of the first n of the pattern. Sums of 16384 elements are exact in F32, in any order.
static double sum_below(int64_t n) {
    static double below[CYCLE]; // of a cycle; the last one is not 0
    for (int64_t i = 0; i < CYCLE - 1 && below[CYCLE - 1] == 0.0; ++i) { below[i + 1] = below[i] + pattern(i); }
    return (double) (n / PERIOD) * below[PERIOD % CYCLE] + below[n % PERIOD % CYCLE];
}

struct large {
    gcuda_backend_t backend;
    struct gcuda_context * ctx;
    struct gcuda_tensor * leafs[5];
    int n_leafs;
    int64_t n; // elements: 2^31 (2^17) and what the case adds
    int64_t base;
    int64_t row;    // elements of a row of the case, where its results depend on them
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
// elements of a row where there are as many rows as can be
static int64_t short_row(const struct large * l) { return n_long(l); }

// Row numbers for get_rows and set_rows: the last rows and some of all.
static int64_t row_number(const struct large * l, int64_t k) {
    return k < 8 ? n_rows(l) - 1 - k : k * (n_rows(l) / 32);
}

// Tokens are at the positions 0 to 999, again and again.
static int64_t position(int64_t token) { return token % 1000; }
static int64_t index_value(const struct large * l, int64_t n, int64_t i) {
    return n == 1 ? n_long(l) - 1 : n == 16 ? row_number(l, i) : position(i);
}

// The first n elements as t has them, in memory to be freed.
static char * first_bytes(const struct large * l, const struct gcuda_tensor * t, int64_t n) {
    char * bytes = (char *) malloc(gcuda_row_size(t->type, n));
    float * f = (float *) malloc((size_t) n * sizeof *f);
    for (int64_t i = 0; i < n; ++i) { f[i] = (float) pattern(i); }
    for (int64_t i = 0; i < n; ++i) {
        if (t->type == GCUDA_TYPE_I8) { ((int8_t *) (void *) bytes)[i] = (int8_t) (f[i] * 100.0f); }
        if (t->type == GCUDA_TYPE_I32) {
            ((int32_t *) (void *) bytes)[i] = (int32_t) index_value(l, gcuda_nelements(t), i);
        }
    }
    if (t->type != GCUDA_TYPE_I8 && t->type != GCUDA_TYPE_I32) {
        CHECK_OK(gcuda_quantize_rows(t->type, f, bytes, 1, n, NULL, 0));
    }
    free(f);
    return bytes;
}

static void fill(const struct large * l, struct gcuda_tensor * t) {
    const int64_t block = gcuda_blck_size(t->type), n = gcuda_nelements(t), period = block > 1 ? BLOCKS_PERIOD : PERIOD;
    const int64_t n_here = n < period ? n : period;
    char *bytes = first_bytes(l, t, n_here), *at = (char *) t->data;
    CHECK_OK(gcuda_backend_tensor_set(t, bytes, 0, gcuda_row_size(t->type, n_here)));
    for (int64_t done = n_here; done < n;) { // whole periods, as many again each time
        const int64_t more = n - done < done ? n - done : done;
        CHECK(cudaMemcpy(at + gcuda_row_size(t->type, done), at, gcuda_row_size(t->type, more),
                  cudaMemcpyDeviceToDevice) == cudaSuccess);
        done += more;
    }
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    free(bytes);
}

static void to_doubles(enum gcuda_type type, const char * p, int64_t n, double * out) {
    const gcuda_to_float_t to_float = gcuda_get_type_traits(type)->to_float;
    float f[WINDOW];
    int32_t i32 = 0;
    if (to_float != NULL) { to_float(p, f, n); }
    for (int64_t i = 0; i < n; ++i) {
        if (type == GCUDA_TYPE_I32) { memcpy(&i32, p + 4 * i, 4); }
        out[i] = to_float != NULL ? (double) f[i] : type == GCUDA_TYPE_I32 ? (double) i32 : (double) (int8_t) p[i];
    }
}

// ---- cases: a graph of one node or two, and what element i of its result is ----
struct large_case {
    const char * name;
    struct gcuda_tensor * (*build)(struct large * l);
    double (*want)(const struct large * l, int64_t i);
    int64_t more; // elements in addition to 2^31; 0: ROW, for whole rows
    double most;  // error of an element by 1 + its size; 0: what the type of the result allows
};

static struct gcuda_tensor * build_neg(struct large * l) {
    return gcuda_neg(l->ctx, leaf(l, GCUDA_TYPE_F16, l->n + 1, 1, 1));
}
static double want_neg(const struct large * l, int64_t i) { return (void) l, -pattern(i); }

static struct gcuda_tensor * build_silu(struct large * l) {
    return gcuda_silu(l->ctx, leaf(l, GCUDA_TYPE_F16, ROW + 1, n_rows(l), 1));
}
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
    return (void) l, sum_below((i + 1) * ROW) - sum_below(i * ROW);
}

static struct gcuda_tensor * build_get_rows(struct large * l) {
    struct gcuda_tensor * a = leaf(l, GCUDA_TYPE_F16, ROW, n_rows(l), 1);
    return gcuda_get_rows(l->ctx, a, leaf(l, GCUDA_TYPE_I32, 16, 1, 1));
}
static double want_get_rows(const struct large * l, int64_t i) {
    return pattern(row_number(l, i / ROW) * ROW + i % ROW);
}

static struct gcuda_tensor * build_set_rows(struct large * l) {
    struct gcuda_tensor *a = leaf(l, GCUDA_TYPE_F16, ROW, n_rows(l), 1), *b = leaf(l, GCUDA_TYPE_F32, ROW, 16, 1);
    return gcuda_set_rows(l->ctx, a, b, leaf(l, GCUDA_TYPE_I32, 16, 1, 1));
}
static int64_t source_row(const struct large * l, int64_t row) { // of what set_rows puts there; -1: nothing
    int64_t k = 15;
    while (k >= 0 && row_number(l, k) != row) { --k; }
    return k;
}
static double want_set_rows(const struct large * l, int64_t i) {
    const int64_t k = source_row(l, i / ROW);
    return pattern(k >= 0 ? k * ROW + i % ROW : i);
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

static struct gcuda_tensor * build_neg_row(struct large * l) {
    return gcuda_neg(l->ctx, leaf(l, GCUDA_TYPE_F16, l->n, 1, 1));
}

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
static double want_transpose_rows(const struct large * l, int64_t i) {
    return pattern(i % n_long(l) * long_row(l) + i / n_long(l));
}

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
static double want_get_long_rows(const struct large * l, int64_t i) {
    return pattern((n_long(l) - 1) * long_row(l) + i);
}

static struct gcuda_tensor * build_set_long_rows(struct large * l) {
    struct gcuda_tensor *a = leaf(l, GCUDA_TYPE_F16, long_row(l), n_long(l), 1),
                        *b = leaf(l, GCUDA_TYPE_F32, long_row(l), 1, 1);
    return gcuda_set_rows(l->ctx, a, b, leaf(l, GCUDA_TYPE_I32, 1, 1, 1));
}
static double want_set_long_rows(const struct large * l, int64_t i) {
    return pattern(i / long_row(l) == n_long(l) - 1 ? i % long_row(l) : i);
}

static struct gcuda_tensor * build_silu_row(struct large * l) {
    return gcuda_silu(l->ctx, leaf(l, GCUDA_TYPE_F16, l->n, 1, 1));
}

static struct gcuda_tensor * build_scale_row(struct large * l) {
    return gcuda_scale(l->ctx, leaf(l, GCUDA_TYPE_F32, l->n, 1, 1), 0.5f);
}
static struct gcuda_tensor * build_clamp_row(struct large * l) {
    return gcuda_clamp(l->ctx, leaf(l, GCUDA_TYPE_F16, l->n, 1, 1), -0.25f, 0.5f);
}
static double want_clamp(const struct large * l, int64_t i) { return (void) l, fmin(fmax(pattern(i), -0.25), 0.5); }

static struct gcuda_tensor * build_fill_row(struct large * l) { // in place: what is left out is still the pattern
    return gcuda_fill_inplace(l->ctx, leaf(l, GCUDA_TYPE_F16, l->n, 1, 1), 1.5f);
}
static double want_fill(const struct large * l, int64_t i) { return (void) l, (void) i, 1.5; }

static struct gcuda_tensor * build_swiglu_row(struct large * l) {
    struct gcuda_tensor * a = leaf(l, GCUDA_TYPE_F16, l->n, 1, 1);
    return gcuda_swiglu_split(l->ctx, a, leaf(l, GCUDA_TYPE_F16, l->n, 1, 1));
}
static double want_swiglu_row(const struct large * l, int64_t i) { return want_silu(l, i) * pattern(i); }

static struct gcuda_tensor * build_mul_short(struct large * l) { // a short row with all rows
    struct gcuda_tensor * a = leaf(l, GCUDA_TYPE_F16, short_row(l), l->n / short_row(l), 1);
    return gcuda_mul(l->ctx, a, leaf(l, GCUDA_TYPE_F16, short_row(l), 1, 1));
}
static double want_mul_short(const struct large * l, int64_t i) { return pattern(i) * pattern(i % short_row(l)); }

static struct gcuda_tensor * build_repeat_short(struct large * l) {
    return gcuda_repeat_4d(
        l->ctx, leaf(l, GCUDA_TYPE_F16, short_row(l), 1, 1), short_row(l), l->n / short_row(l), 1, 1);
}
static double want_repeat_short(const struct large * l, int64_t i) { return pattern(i % short_row(l)); }

static struct gcuda_tensor * build_concat_rows(struct large * l) {
    struct gcuda_tensor * a = leaf(l, GCUDA_TYPE_F16, l->n / 2, 1, 1);
    return gcuda_concat(l->ctx, a, leaf(l, GCUDA_TYPE_F16, l->n - l->n / 2, 1, 1), 0);
}
static double want_concat_rows(const struct large * l, int64_t i) { return pattern(i < l->n / 2 ? i : i - l->n / 2); }

static struct gcuda_tensor * build_bytes_row(struct large * l) { // from an odd address
    return gcuda_cont(l->ctx, gcuda_view_1d(l->ctx, leaf(l, GCUDA_TYPE_I8, l->n + 1, 1, 1), l->n, 1));
}
static double want_bytes_row(const struct large * l, int64_t i) {
    return (void) l, (double) (int8_t) ((float) pattern(i + 1) * 100.0f);
}

static struct gcuda_tensor * build_norm_row(struct large * l) {
    sums_of_rows(l, square);
    return gcuda_norm(l->ctx, leaf(l, GCUDA_TYPE_F16, long_row(l), n_long(l), 1), 1e-5f);
}
static struct gcuda_tensor * build_group_norm_row(struct large * l) { // a channel is a group
    sums_of_rows(l, square);
    return gcuda_group_norm(l->ctx, leaf(l, GCUDA_TYPE_F16, long_row(l), 1, n_long(l)), (int) n_long(l), 1e-5f);
}
static double want_norm_row(const struct large * l, int64_t i) {
    const int64_t n = long_row(l), r = i / n;
    const double mean = (sum_below((r + 1) * n) - sum_below(r * n)) / (double) n;
    return (pattern(i) - mean) / sqrt(l->sums[r] / (double) n - mean * mean + 1e-5);
}

static struct gcuda_tensor * build_sum(struct large * l) {
    return gcuda_sum(l->ctx, leaf(l, GCUDA_TYPE_F32, l->n, 1, 1));
}
static double want_sum(const struct large * l, int64_t i) { return (void) i, sum_below(l->n); }

static struct gcuda_tensor * build_sum_long_rows(struct large * l) {
    return gcuda_sum_rows(l->ctx, leaf(l, GCUDA_TYPE_F32, long_row(l), n_long(l), 1));
}
static double want_sum_long_rows(const struct large * l, int64_t i) {
    return sum_below((i + 1) * long_row(l)) - sum_below(i * long_row(l));
}

// ---- the same with rows of l->row elements, also of one and of three ----
static struct gcuda_tensor * rows_of(struct large * l, enum gcuda_type type, int64_t row) {
    l->row = row;
    return leaf(l, type, row, l->n / row, 1);
}
static double sum_of_squares(const struct large * l, int64_t i) { // of the row that has element i
    double sum = 0.0;
    for (int64_t k = i / l->row * l->row; k < (i / l->row + 1) * l->row; ++k) { sum += square(pattern(k)); }
    return sum;
}

static struct gcuda_tensor * build_norm(struct large * l) {
    return gcuda_norm(l->ctx, rows_of(l, GCUDA_TYPE_F16, 128), 1e-5f);
}
static double want_norm(const struct large * l, int64_t i) {
    const double n = (double) l->row,
                 mean = (sum_below((i / l->row + 1) * l->row) - sum_below(i / l->row * l->row)) / n;
    return (pattern(i) - mean) / sqrt(sum_of_squares(l, i) / n - mean * mean + 1e-5);
}

// A large eps, else the result is nearly 0: gradient and argument are the same.
static struct gcuda_tensor * rms_norm_back_of(struct large * l, int64_t row) {
    struct gcuda_tensor * a = rows_of(l, GCUDA_TYPE_F16, row);
    return gcuda_rms_norm_back(l->ctx, a, rows_of(l, GCUDA_TYPE_F16, row), 0.5f);
}
static struct gcuda_tensor * build_rms_norm_back(struct large * l) { return rms_norm_back_of(l, 128); }
static struct gcuda_tensor * build_rms_norm_back_short(struct large * l) { return rms_norm_back_of(l, short_row(l)); }
static double want_rms_norm_back(const struct large * l, int64_t i) {
    const double sum = sum_of_squares(l, i), n = (double) l->row;
    return pattern(i) * (1.0 - sum / (sum + n * 0.5)) / sqrt(sum / n + 0.5);
}

static struct gcuda_tensor * soft_max_back_of(struct large * l, int64_t row) {
    struct gcuda_tensor * a = rows_of(l, GCUDA_TYPE_F16, row);
    return gcuda_soft_max_ext_back(l->ctx, a, rows_of(l, GCUDA_TYPE_F16, row), 0.5f, 0.0f);
}
static struct gcuda_tensor * build_soft_max_back(struct large * l) { return soft_max_back_of(l, 128); }
static struct gcuda_tensor * build_soft_max_back_short(struct large * l) { return soft_max_back_of(l, short_row(l)); }
static double want_soft_max_back(const struct large * l, int64_t i) {
    return 0.5 * pattern(i) * (pattern(i) - sum_of_squares(l, i));
}

static struct gcuda_tensor * build_cumsum(struct large * l) {
    return gcuda_cumsum(l->ctx, rows_of(l, GCUDA_TYPE_F16, ROW));
}
static struct gcuda_tensor * build_cumsum_row(struct large * l) {
    return gcuda_cumsum(l->ctx, rows_of(l, GCUDA_TYPE_F32, long_row(l)));
}
static double want_cumsum(const struct large * l, int64_t i) {
    return sum_below(i + 1) - sum_below(i / l->row * l->row);
}

static struct gcuda_tensor * build_argmax(struct large * l) {
    return gcuda_argmax(l->ctx, rows_of(l, GCUDA_TYPE_F16, ROW));
}
static struct gcuda_tensor * build_argmax_row(struct large * l) { // its places have to be less than 2^31
    return gcuda_argmax(l->ctx, rows_of(l, GCUDA_TYPE_F16, l->n < l->base ? l->n : short_row(l)));
}
// the last of the largest, and none is larger than a cycle's
static double want_argmax(const struct large * l, int64_t i) {
    int64_t best = (i + 1) * l->row - 1;
    for (int64_t k = best; k >= i * l->row && pattern(best) < 1019.0 / 1024.0; --k) {
        best = pattern(k) > pattern(best) ? k : best;
    }
    return (double) (best - i * l->row);
}

static struct gcuda_tensor * build_swiglu(struct large * l) { // halves of rows
    l->row = ROW;
    return gcuda_swiglu(l->ctx, leaf(l, GCUDA_TYPE_F16, 2 * ROW, n_rows(l), 1));
}
static double want_swiglu(const struct large * l, int64_t i) {
    const int64_t x = i / ROW * 2 * ROW + i % ROW;
    return want_silu(l, x) * pattern(x + ROW);
}

// ---- rope: elements a and b of a row become those of their pair, turned ----
static double turned(int64_t a, int64_t b, bool is_first, double angle) {
    return is_first ? pattern(a) * cos(angle) - pattern(b) * sin(angle)
                    : pattern(a) * sin(angle) + pattern(b) * cos(angle);
}
static struct gcuda_tensor * build_rope(struct large * l) { // 32 heads of 128
    struct gcuda_tensor * a = leaf(l, GCUDA_TYPE_F16, 128, 32, n_rows(l));
    return gcuda_rope(l->ctx, a, leaf(l, GCUDA_TYPE_I32, n_rows(l), 1, 1), 128, GCUDA_ROPE_TYPE_NEOX);
}
static double want_rope(const struct large * l, int64_t i) {
    const int64_t j = i % 64, first = i - i % 128 + j;
    return (void) l,
           turned(first, first + 64, i % 128 < 64, (double) position(i / ROW) * pow(10000.0, -(double) j / 64.0));
}

// Heads of one pair: 2^31 - 2 elements are heads of 2 and three tokens, 2^31 + 1 heads of 3 and one token. 2^31 - 1 is
// prime.
static int64_t few_tokens(const struct large * l) { return l->n % 3 == 0 ? 1 : 3; }
static struct gcuda_tensor * build_rope_heads(struct large * l) {
    l->row = l->n % 3 == 0 ? 3 : 2;
    struct gcuda_tensor * a = leaf(l, GCUDA_TYPE_F16, l->row, l->n / l->row / few_tokens(l), few_tokens(l));
    return gcuda_rope(l->ctx, a, leaf(l, GCUDA_TYPE_I32, few_tokens(l), 1, 1), 2, GCUDA_ROPE_TYPE_NORMAL);
}
static double want_rope_heads(const struct large * l, int64_t i) {
    const int64_t first = i - i % l->row, token = i / (l->n / l->row / few_tokens(l) * l->row);
    const double angle = (double) index_value(l, few_tokens(l), token);
    return i - first == 2 ? pattern(i) : turned(first, first + 1, i == first, angle);
}

// ---- steps of training: all tensors are the pattern, and the numbers of a step are the sizes of its first
//    elements ----
static struct gcuda_tensor * build_sgd(struct large * l) {
    struct gcuda_tensor *a = leaf(l, GCUDA_TYPE_F32, l->n, 1, 1), *grad = leaf(l, GCUDA_TYPE_F32, l->n, 1, 1);
    CHECK_OK(gcuda_set_param(a));
    return gcuda_opt_step_sgd(l->ctx, a, grad, gcuda_abs(l->ctx, leaf(l, GCUDA_TYPE_F32, 2, 1, 1)));
}
static double want_sgd(const struct large * l, int64_t i) {
    const double alpha = fabs(pattern(0));
    return (void) l, pattern(i) * (1.0 - alpha * fabs(pattern(1))) - alpha * pattern(i);
}

static struct gcuda_tensor * build_adamw(struct large * l) { // v is no less than 0
    struct gcuda_tensor *a = leaf(l, GCUDA_TYPE_F32, l->n, 1, 1), *grad = leaf(l, GCUDA_TYPE_F32, l->n, 1, 1);
    struct gcuda_tensor *m = leaf(l, GCUDA_TYPE_F32, l->n, 1, 1), *v = leaf(l, GCUDA_TYPE_F32, l->n, 1, 1);
    struct gcuda_tensor * params = gcuda_abs(l->ctx, leaf(l, GCUDA_TYPE_F32, 7, 1, 1));
    CHECK_OK(gcuda_set_param(a));
    return gcuda_opt_step_adamw(l->ctx, a, grad, m, gcuda_clamp(l->ctx, v, 0.0f, 1.0f), params);
}
static double want_adamw(const struct large * l, int64_t i) {
    double c[7];
    for (int k = 0; k < 7; ++k) { c[k] = fabs(pattern(k)); }
    const double x = pattern(i), v = fmax(x, 0.0) * c[2] + x * x * (1.0 - c[2]); // m stays x
    return (void) l, x * (1.0 - c[0] * c[4]) - c[0] * x * c[5] / (sqrt(v * c[6]) + c[3]);
}

// ---- quantized types ----
static double want_blocks(const struct large * l, int64_t i) { return (void) l, blocks_pattern(i); }

static struct gcuda_tensor * build_to_q8_0(struct large * l) {
    struct gcuda_tensor * a = leaf(l, GCUDA_TYPE_F16, l->n, 1, 1);
    return gcuda_cpy(l->ctx, a, gcuda_new_tensor_1d(l->ctx, GCUDA_TYPE_Q8_0, l->n));
}
static struct gcuda_tensor * build_from_q4_K(struct large * l) {
    struct gcuda_tensor * a = leaf(l, GCUDA_TYPE_Q4_K, l->n, 1, 1);
    return gcuda_cpy(l->ctx, a, gcuda_new_tensor_1d(l->ctx, GCUDA_TYPE_F16, l->n));
}
static struct gcuda_tensor * build_permute_q8_0(struct large * l) {
    return gcuda_cont(l->ctx, gcuda_permute(l->ctx, leaf(l, GCUDA_TYPE_Q8_0, 128, 32, n_rows(l)), 0, 2, 1, 3));
}
static double want_permute_q8_0(const struct large * l, int64_t i) {
    const int64_t i0 = i % 128, i1 = i / 128 % n_rows(l), i2 = i / 128 / n_rows(l);
    return blocks_pattern(i0 + 128 * (i2 + 32 * i1));
}
static struct gcuda_tensor * build_get_rows_q8_0(struct large * l) {
    struct gcuda_tensor * a = leaf(l, GCUDA_TYPE_Q8_0, ROW, n_rows(l), 1);
    return gcuda_get_rows(l->ctx, a, leaf(l, GCUDA_TYPE_I32, 16, 1, 1));
}
static double want_get_rows_q8_0(const struct large * l, int64_t i) {
    return blocks_pattern(row_number(l, i / ROW) * ROW + i % ROW);
}

static struct gcuda_tensor * build_get_long_rows_q4_K(struct large * l) {
    struct gcuda_tensor * a = leaf(l, GCUDA_TYPE_Q4_K, long_row(l), n_long(l), 1);
    return gcuda_get_rows(l->ctx, a, leaf(l, GCUDA_TYPE_I32, 1, 1, 1));
}
static double want_get_long_rows_q4_K(const struct large * l, int64_t i) {
    return blocks_pattern((n_long(l) - 1) * long_row(l) + i);
}

static struct gcuda_tensor * build_set_rows_q8_0(struct large * l) {
    struct gcuda_tensor *a = leaf(l, GCUDA_TYPE_Q8_0, ROW, n_rows(l), 1), *b = leaf(l, GCUDA_TYPE_F32, ROW, 16, 1);
    return gcuda_set_rows(l->ctx, a, b, leaf(l, GCUDA_TYPE_I32, 16, 1, 1));
}
static double want_set_rows_q8_0(const struct large * l, int64_t i) {
    const int64_t k = source_row(l, i / ROW);
    return k >= 0 ? pattern(k * ROW + i % ROW) : blocks_pattern(i);
}

// The same case with one element less than 2^31, and with one more; with a block less, and one more.
#define BOTH(name, build, want, most) \
    { name "_less", build, want, -1, most }, { name "_more", build, want, 1, most }
#define BLOCKS(name, build, want, block, most) \
    { name "_less", build, want, -(block), most }, { name "_more", build, want, block, most }
#define EXACT 1e-6 // in F32, of what can be computed without an error
#define Q8_0 0.005 // half a step of what is as large as 1
#define Q4_K 0.1

static const struct large_case large_cases[] = {
    { "neg", build_neg, want_neg, 0, 0.0 },
    { "silu", build_silu, want_silu, 0, 0.0 },
    { "scale", build_scale, want_scale, 0, 0.0 },
    { "add", build_add, want_add, 0, 0.0 },
    { "mul", build_mul, want_mul, 0, 0.0 },
    { "swiglu", build_swiglu, want_swiglu, 0, 0.0 },
    { "cpy", build_cpy, want_same, 0, 0.0 },
    { "bytes", build_bytes, want_bytes, 0, 0.0 },
    { "transpose", build_transpose, want_transpose, 0, 0.0 },
    { "transpose_bytes", build_transpose_bytes, want_transpose_bytes, 0, 0.0 },
    { "permute", build_permute, want_permute, 0, 0.0 },
    { "permute_q8_0", build_permute_q8_0, want_permute_q8_0, 0, Q8_0 },
    { "concat", build_concat, want_concat, 0, 0.0 },
    { "repeat", build_repeat, want_repeat, 0, 0.0 },
    { "norm", build_norm, want_norm, 0, 0.0 },
    { "rms_norm", build_rms_norm, want_rms_norm, 0, 0.0 },
    { "rms_norm_back", build_rms_norm_back, want_rms_norm_back, 0, 0.0 },
    { "soft_max", build_soft_max, want_soft_max, 0, 0.0 },
    { "soft_max_back", build_soft_max_back, want_soft_max_back, 0, 0.0 },
    { "rope", build_rope, want_rope, 0, 0.0 },
    { "sum_rows", build_sum_rows, want_sum_rows, 0, 0.0 },
    { "cumsum", build_cumsum, want_cumsum, 0, 0.0 },
    { "argmax", build_argmax, want_argmax, 0, 0.0 },
    { "get_rows", build_get_rows, want_get_rows, 0, 0.0 },
    { "get_rows_q8_0", build_get_rows_q8_0, want_get_rows_q8_0, 0, Q8_0 },
    { "set_rows", build_set_rows, want_set_rows, 0, 0.0 },
    { "set_rows_q8_0", build_set_rows_q8_0, want_set_rows_q8_0, 0, Q8_0 },
    BOTH("neg", build_neg_row, want_neg, 0.0),
    BOTH("silu", build_silu_row, want_silu, 0.0),
    BOTH("scale", build_scale_row, want_scale, EXACT),
    BOTH("clamp", build_clamp_row, want_clamp, 0.0),
    BOTH("fill", build_fill_row, want_fill, 0.0),
    BOTH("swiglu", build_swiglu_row, want_swiglu_row, 0.0),
    BOTH("sgd", build_sgd, want_sgd, 1e-5),
    BOTH("adamw", build_adamw, want_adamw, 1e-5),
    BOTH("cpy", build_cpy_row, want_same, EXACT),
    BOTH("bytes", build_bytes_row, want_bytes_row, 0.0),
    BOTH("add", build_add_row, want_add, 0.0),
    BOTH("mul", build_mul_short, want_mul_short, 0.0),
    BOTH("transpose", build_transpose_rows, want_transpose_rows, 0.0),
    BOTH("concat", build_concat_rows, want_concat_rows, 0.0),
    BOTH("repeat", build_repeat_short, want_repeat_short, 0.0),
    BOTH("norm", build_norm_row, want_norm_row, 0.0),
    BOTH("group_norm", build_group_norm_row, want_norm_row, 0.0),
    BOTH("rms_norm", build_rms_norm_row, want_rms_norm_row, 0.0),
    BOTH("rms_norm_back", build_rms_norm_back_short, want_rms_norm_back, 0.0),
    BOTH("l2_norm", build_l2_norm_row, want_l2_norm_row, 0.0),
    BOTH("soft_max", build_soft_max_row, want_soft_max_row, 0.0),
    BOTH("soft_max_back", build_soft_max_back_short, want_soft_max_back, 0.0),
    BOTH("rope", build_rope_heads, want_rope_heads, 0.0),
    BOTH("sum", build_sum, want_sum, EXACT),
    BOTH("sum_rows", build_sum_long_rows, want_sum_long_rows, EXACT),
    BOTH("cumsum", build_cumsum_row, want_cumsum, EXACT),
    BOTH("argmax", build_argmax_row, want_argmax, 0.0),
    BOTH("get_rows", build_get_long_rows, want_get_long_rows, 0.0),
    BOTH("set_rows", build_set_long_rows, want_set_long_rows, 0.0),
    BLOCKS("to_q8_0", build_to_q8_0, want_same, 32, Q8_0),
    BLOCKS("from_q4_K", build_from_q4_K, want_blocks, 256, Q4_K),
    BLOCKS("get_rows_q4_K", build_get_long_rows_q4_K, want_get_long_rows_q4_K, 256, Q4_K),
};

static double most_error(const struct large_case * c, enum gcuda_type type) {
    if (c->most > 0.0) { return c->most; }
    if (type == GCUDA_TYPE_I8 || type == GCUDA_TYPE_I32) { return 0.0; }
    // of long rows a thread adds up thousands of elements in F32
    return type != GCUDA_TYPE_F32 ? 1e-3 : c->more != 0 ? 3e-4 : 1e-5;
}

// A window of the result. False after the first wrong element.
static bool check_window(
    const struct large * l, const struct large_case * c, const struct gcuda_tensor * y, int64_t at) {
    char bytes[WINDOW * 8];
    double got[WINDOW];
    const int64_t n = gcuda_nelements(y), wide = n < WINDOW ? n : WINDOW, block = gcuda_blck_size(y->type);
    const int64_t near = at < 0 ? 0 : at > n - wide ? n - wide : at, first = near - near % block;
    const double most = most_error(c, y->type);
    if (!CHECK_OK(gcuda_backend_tensor_get(y, bytes, gcuda_row_size(y->type, first), gcuda_row_size(y->type, wide)))) {
        return false;
    }
    to_doubles(y->type, bytes, wide, got);
    for (int64_t i = 0; i < wide; ++i) {
        const double want = c->want(l, first + i);
        if (!(fabs(got[i] - want) <= most * (1.0 + fabs(want)))) {
            CHECK_MSG(false, "%s: element %lld of %lld is %g, want %g", c->name, (long long) (first + i), (long long) n,
                got[i], want);
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
            const int64_t n = gcuda_nelements(y),
                          places[] = { 0, n, n / 2, (int64_t) 1 << 30, (int64_t) 1 << 31, (int64_t) 3 << 30 };
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
