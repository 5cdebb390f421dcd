// Speed of the CUDA kernels on this machine's GPU, against ceilings measured in the same run and against what the
// reference needs on an H200 (bench-targets.h).
//   make bench                 or: build/cuda/bench-gpu --filter 'RMS_NORM' --json rows.json
//
// A row is one operation through the public interface: a graph of at least 50 such nodes, one after the other, on a
// CUDA backend without fusion. The time includes all that the operation needs (conversions, quantizing, scratch).
// Kernels overlap as they do in a user's graph (GCUDA_CUDA_PDL=0: they do not). The graph is captured into a CUDA
// graph; the time is the median of the replays divided by the number of nodes. Launches of more than 20 ms each are
// fewer, as 50 would take more than a second; their rows say so. Copies through host memory, batches of a scheduler,
// and plans compared with and without graphs cannot be captured. The host computes them 50 times; the line or title
// says so. All data is random.
//   rotated   copies of all buffers, used alternately, together more than twice the L2 cache: percent of the ceiling
//   same      the same buffers every time, as the reference was measured: speed relative to it, above 1 is faster
// Ceilings: copying 4 GiB, the best of cudaMemcpyAsync, gcuda's copy and its scale (bytes read plus written). Reading 4
// GiB, the best of gcuda's row sums, its float product and cuBLAS. The F16 product of 8192^3 through cuBLAS.
#include "gcuda.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench-targets.h"
#define LLM_IMPLEMENTATION
#include "../examples/llm.h"

#define COUNT(array) ((int) (sizeof(array) / sizeof((array)[0])))
#define MIN_LAUNCHES 50
#define MAX_LAUNCH_US 20000.0 // of which MIN_LAUNCHES are replayed all the same
#define MAX_COPIES 1024       // of the buffers of small rows
#define MAX_REPLAYS 200

// =====================================================================================================================
// >>state
// =====================================================================================================================
struct cublas {
    void * handle;
    int (*gemm)(void * handle, int ta, int tb, int m, int n, int k, const void * alpha, const void * a, int a_type,
        int lda, const void * b, int b_type, int ldb, const void * beta, void * c, int c_type, int ldc, int compute,
        int algo);
};

struct bench {
    gcuda_backend_t backend;
    const char * product; // the way of its products; "": as dispatch says
    cudaStream_t stream;
    cudaEvent_t begin, end;
    struct cublas blas;
    size_t l2_bytes;
    double copy_gbs, read_gbs, gemm_tflops; // ceilings
    size_t big;                             // bytes that the ceilings move
    double max_us;                          // a row's measurement aims at
    int64_t deadline_us;                    // no row begins after it; 0: none
    const char * filter;
    FILE * json;
    int n_rows, n_no_kernel, n_slower, n_ratios, n_late;
    double log_ratios;
    double us_bare;  // host time of a launch that is not gcuda's
    char host[1024]; // of launchers, as members of a JSON object
    int n_host;
};

static void stop(const char * what) {
    fprintf(stderr, "bench-gpu: %s: %s\n", what, gcuda_last_error());
    exit(2);
}

static void cuda_ok(cudaError_t err, const char * what) {
    if (err != cudaSuccess) {
        fprintf(stderr, "bench-gpu: %s: %s\n", what, cudaGetErrorString(err));
        exit(2);
    }
}
#define CUDA(call) cuda_ok(call, #call)

static uint32_t random_state = 1;
static uint32_t random_bits(void) { // xorshift
    random_state ^= random_state << 13;
    random_state ^= random_state >> 17;
    random_state ^= random_state << 5;
    return random_state;
}
static float random_float(void) { return (float) (random_bits() >> 8) / 8388608.0f - 1.0f; } // [-1, 1)

// =====================================================================================================================
// >>cases   a row's text becomes tensors
// =====================================================================================================================
enum content {
    FLOATS,    // in [-1, 1)
    FRACTIONS, // in [0, 1): decays, second moments
    POSITIONS, // 0, 1, 2 ...
    INDICES,   // below limit, all different within each run of ne[0]
    UNCOUNTED, // FLOATS that the operation does not read as a whole: the bytes are given apart
};

struct leaf {
    struct gcuda_tensor * t;
    enum content content;
    int64_t limit;
};

struct row {
    struct bench * b;
    const char * text; // "NAME key=value,key=[1,2],..."
    struct gcuda_context * ctx;
    struct leaf leafs[10];
    int n_leafs;
    double flop;         // 0: bytes count
    double product_flop; // of products, whatever counts
    double extra;        // bytes moved besides whole leafs and the result
    bool read_only;      // the result is small: percent of the reading ceiling
};

// What stands after "key=", or NULL.
static const char * value(const struct row * r, const char * key) {
    const size_t n = strlen(key);
    for (const char * p = strpbrk(r->text, " "); p != NULL; p = strpbrk(p + 1, " ,")) {
        if (strncmp(p + 1, key, n) == 0 && p[1 + n] == '=') { return p + n + 2; }
    }
    return NULL;
}

static bool is_named(const struct row * r, const char * name) {
    const size_t n = strcspn(r->text, " ");
    return strlen(name) == n && strncmp(name, r->text, n) == 0;
}

static int64_t number(const struct row * r, const char * key, int64_t otherwise) {
    const char * p = value(r, key);
    return p ? strtoll(p, NULL, 10) : otherwise;
}

static bool has(const struct row * r, const char * key, const char * text) {
    const char * p = value(r, key);
    return p != NULL && strncmp(p, text, strlen(text)) == 0;
}

// [a,b,c], filled up with ones.
static void list(const struct row * r, const char * key, int64_t out[4]) {
    const char * p = value(r, key);
    for (int i = 0; i < 4; ++i) { out[i] = 1; }
    for (int i = 0; i < 4 && p != NULL && *p != ']'; ++i) {
        char * end = NULL;
        out[i] = strtoll(p + 1, &end, 10); // after '[' or ','
        p = end;
    }
}

static enum gcuda_type type_of(const struct row * r, const char * key) {
    const char * p = value(r, key);
    for (int i = 0; p != NULL && i < GCUDA_TYPE_COUNT; ++i) {
        const char * name = gcuda_type_is_valid((enum gcuda_type) i) ? gcuda_type_name((enum gcuda_type) i) : "?";
        const size_t n = strlen(name);
        if (strncmp(p, name, n) == 0 && (p[n] == ',' || p[n] == '\0')) { return (enum gcuda_type) i; }
    }
    return GCUDA_TYPE_F32;
}

static struct gcuda_tensor * leaf(
    struct row * r, enum gcuda_type type, const int64_t ne[4], enum content content, int64_t limit) {
    struct gcuda_tensor * t = gcuda_new_tensor(r->ctx, type, 4, ne);
    if (t != NULL && r->n_leafs < COUNT(r->leafs)) {
        r->leafs[r->n_leafs].t = t;
        r->leafs[r->n_leafs].content = content;
        r->leafs[r->n_leafs++].limit = limit;
    }
    return t;
}

static struct gcuda_tensor * leaf4(
    struct row * r, enum gcuda_type type, enum content content, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3) {
    const int64_t ne[4] = { ne0, ne1, ne2, ne3 };
    return leaf(r, type, ne, content, 0);
}

// Floats of the row's type and shape.
static struct gcuda_tensor * input(struct row * r, const char * type_key, const char * ne_key) {
    int64_t ne[4];
    list(r, ne_key, ne);
    return leaf(r, type_of(r, type_key), ne, FLOATS, 0);
}

static struct gcuda_tensor * indices(struct row * r, int64_t ne0, int64_t ne1, int64_t limit) {
    const int64_t ne[4] = { ne0, ne1, 1, 1 };
    return leaf(r, GCUDA_TYPE_I32, ne, INDICES, limit);
}

typedef struct gcuda_tensor * (*map_fn)(struct gcuda_context * ctx, struct gcuda_tensor * a);
typedef struct gcuda_tensor * (*binary_fn)(
    struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b);

static struct gcuda_tensor * binary(struct row * r, binary_fn fn) {
    int64_t ne[4], nr[4], big[4];
    list(r, "ne", ne);
    list(r, "nr", nr);
    for (int i = 0; i < 4; ++i) { big[i] = ne[i] * nr[i]; }
    struct gcuda_tensor * a = leaf(r, type_of(r, "type"), big, FLOATS, 0);
    return fn(r->ctx, a, leaf(r, type_of(r, "type"), ne, FLOATS, 0));
}

static struct gcuda_tensor * map(struct row * r, map_fn fn) {
    return fn(r->ctx, input(r, "type", value(r, "ne_a") ? "ne_a" : "ne"));
}

static struct gcuda_tensor * permuted(struct row * r, struct gcuda_tensor * a, const char * key) {
    int64_t axis[4];
    list(r, key, axis);
    return value(r, key) ? gcuda_permute(r->ctx, a, (int) axis[0], (int) axis[1], (int) axis[2], (int) axis[3]) : a;
}

static struct gcuda_tensor * build_cpy(struct row * r) {
    struct gcuda_tensor * a = permuted(r, input(r, "type_src", "ne_src"), "permute_src");
    return gcuda_cpy(r->ctx, a, leaf(r, type_of(r, "type_dst"), a->ne, FLOATS, 0));
}
static struct gcuda_tensor * build_cont(struct row * r) {
    return gcuda_cont(r->ctx, permuted(r, input(r, "type", "ne"), "permute"));
}
static struct gcuda_tensor * build_add(struct row * r) { return binary(r, gcuda_add); }
static struct gcuda_tensor * build_sub(struct row * r) { return binary(r, gcuda_sub); }
static struct gcuda_tensor * build_mul(struct row * r) { return binary(r, gcuda_mul); }
static struct gcuda_tensor * build_div(struct row * r) { return binary(r, gcuda_div); }
static struct gcuda_tensor * build_silu_back(struct row * r) { return binary(r, gcuda_silu_back); }
static struct gcuda_tensor * build_gelu(struct row * r) { return map(r, gcuda_gelu); }
static struct gcuda_tensor * build_silu(struct row * r) { return map(r, gcuda_silu); }
static struct gcuda_tensor * build_sqr(struct row * r) { return map(r, gcuda_sqr); }
static struct gcuda_tensor * build_sqrt(struct row * r) {
    int64_t ne[4];
    list(r, "ne", ne);
    return gcuda_sqrt(r->ctx, leaf(r, type_of(r, "type"), ne, FRACTIONS, 0));
}
static struct gcuda_tensor * build_sin(struct row * r) { return map(r, gcuda_sin); }
static struct gcuda_tensor * build_cos(struct row * r) { return map(r, gcuda_cos); }
static struct gcuda_tensor * build_dup(struct row * r) { return map(r, gcuda_dup); }
static struct gcuda_tensor * build_diag(struct row * r) { return map(r, gcuda_diag); }
static struct gcuda_tensor * build_log(struct row * r) {
    int64_t ne[4];
    list(r, "ne", ne);
    return gcuda_log(r->ctx, leaf(r, type_of(r, "type"), ne, FRACTIONS, 0));
}
static struct gcuda_tensor * build_add1(struct row * r) {
    struct gcuda_tensor * a = input(r, "type", "ne");
    return gcuda_add1(r->ctx, a, leaf4(r, GCUDA_TYPE_F32, FLOATS, 1, 1, 1, 1));
}
static struct gcuda_tensor * build_unary(struct row * r) { // its kind is what the text ends with
    struct gcuda_tensor * a = input(r, "type", "ne");
    int op = 0;
    while (op < GCUDA_UNARY_OP_COUNT && strcmp(value(r, "op"), gcuda_unary_op_name((enum gcuda_unary_op) op)) != 0) {
        ++op;
    }
    return op == GCUDA_UNARY_OP_XIELU ? gcuda_xielu(r->ctx, a, 0.8f, 0.8f, 0.5f, -1e-6f)
                                      : gcuda_unary(r->ctx, a, (enum gcuda_unary_op) op);
}
static struct gcuda_tensor * build_sum(struct row * r) { return map(r, gcuda_sum); }
static struct gcuda_tensor * build_sum_rows(struct row * r) { return map(r, gcuda_sum_rows); }
static struct gcuda_tensor * build_mean(struct row * r) { return map(r, gcuda_mean); }
static struct gcuda_tensor * build_cumsum(struct row * r) { return map(r, gcuda_cumsum); }
static struct gcuda_tensor * build_argmax(struct row * r) { return map(r, gcuda_argmax); }
static struct gcuda_tensor * build_scale(struct row * r) { return gcuda_scale(r->ctx, input(r, "type", "ne"), 0.75f); }
static struct gcuda_tensor * build_clamp(struct row * r) { // in place
    struct gcuda_tensor * a = input(r, "type", "ne");
    r->extra = (double) gcuda_nbytes(a);
    return gcuda_clamp(r->ctx, a, -0.5f, 0.5f);
}
static struct gcuda_tensor * build_leaky_relu(struct row * r) {
    return gcuda_leaky_relu(r->ctx, input(r, "type", "ne"), 0.1f, false);
}

static struct gcuda_tensor * build_glu(struct row * r) {
    struct gcuda_tensor * a = input(r, "type", "ne_a");
    const bool is_split = strstr(r->text, ",split") != NULL;
    enum gcuda_glu_op op = GCUDA_GLU_OP_REGLU;
    while (op < GCUDA_GLU_OP_COUNT && !is_named(r, gcuda_glu_op_name(op))) { op = (enum gcuda_glu_op)(op + 1); }
    if (op == GCUDA_GLU_OP_SWIGLU_OAI) { return gcuda_swiglu_oai(r->ctx, a, input(r, "type", "ne_a"), 1.702f, 7.0f); }
    return is_split ? gcuda_glu_split(r->ctx, a, input(r, "type", "ne_a"), op) : gcuda_glu(r->ctx, a, op, false);
}

static struct gcuda_tensor * build_norm(struct row * r) { return gcuda_norm(r->ctx, input(r, "type", "ne"), 1e-6f); }
static struct gcuda_tensor * build_rms_norm(struct row * r) {
    return gcuda_rms_norm(r->ctx, input(r, "type", "ne"), 1e-6f);
}
static struct gcuda_tensor * build_l2_norm(struct row * r) {
    return gcuda_l2_norm(r->ctx, input(r, "type", "ne"), 1e-6f);
}
static struct gcuda_tensor * build_group_norm(struct row * r) {
    return gcuda_group_norm(r->ctx, input(r, "type", "ne"), (int) number(r, "groups", 32), 1e-6f);
}
static struct gcuda_tensor * build_rms_norm_back(struct row * r) {
    struct gcuda_tensor * grad = input(r, "type", "ne");
    return gcuda_rms_norm_back(r->ctx, grad, input(r, "type", "ne"), 1e-6f);
}

static struct gcuda_tensor * build_soft_max(struct row * r) {
    struct gcuda_tensor * a = input(r, "type", "ne");
    struct gcuda_tensor * mask =
        number(r, "mask", 0) ? leaf4(r, GCUDA_TYPE_F16, FLOATS, a->ne[0], a->ne[1], 1, 1) : NULL;
    return gcuda_soft_max_ext(r->ctx, a, mask, 1.0f, 0.0f);
}
static struct gcuda_tensor * build_soft_max_back(struct row * r) {
    struct gcuda_tensor * grad = input(r, "type", "ne");
    return gcuda_soft_max_ext_back(r->ctx, grad, input(r, "type", "ne"), 1.0f, 0.0f);
}

static struct gcuda_tensor * build_rope(struct row * r) {
    struct gcuda_tensor * a = input(r, "type", "ne_a");
    struct gcuda_tensor * pos = leaf4(r, GCUDA_TYPE_I32, POSITIONS, a->ne[2], 1, 1, 1);
    return gcuda_rope(r->ctx, a, pos, (int) number(r, "n_dims", 128), (int) number(r, "mode", 0));
}

static struct gcuda_tensor * build_rope_back(struct row * r) {
    struct gcuda_tensor * a = input(r, "type", "ne_a");
    struct gcuda_tensor * pos = leaf4(r, GCUDA_TYPE_I32, POSITIONS, a->ne[2], 1, 1, 1);
    return gcuda_rope_ext_back(r->ctx, a, pos, NULL, (int) number(r, "n_dims", 128), (int) number(r, "mode", 0), 0,
        1e4f, 1.0f, 0.0f, 1.0f, 0.0f, 0.0f);
}

static struct gcuda_tensor * build_get_rows(struct row * r) {
    int64_t ne[4];
    const int64_t n = number(r, "rows", 1);
    list(r, "ne", ne);
    struct gcuda_tensor * a = leaf(r, type_of(r, "type"), ne, UNCOUNTED, 0);
    r->extra = (double) n * (double) gcuda_row_size(a->type, ne[0]);
    return gcuda_get_rows(r->ctx, a, indices(r, n, 1, ne[1]));
}

static struct gcuda_tensor * build_set_rows(struct row * r) {
    int64_t ne[4];
    const int64_t n = number(r, "rows", 1);
    list(r, "ne", ne);
    struct gcuda_tensor * a = leaf(r, type_of(r, "type"), ne, UNCOUNTED, 0);
    r->extra = (double) n * (double) gcuda_row_size(a->type, ne[0]);
    struct gcuda_tensor * b = leaf4(r, GCUDA_TYPE_F32, FLOATS, ne[0], n, 1, 1);
    return gcuda_set_rows(r->ctx, a, b, indices(r, n, 1, ne[1]));
}

static struct gcuda_tensor * build_get_rows_back(struct row * r) {
    int64_t ne[4];
    const int64_t n = number(r, "rows", 1);
    list(r, "ne", ne);
    struct gcuda_tensor * grad = leaf4(r, type_of(r, "type"), FLOATS, ne[0], n, 1, 1);
    struct gcuda_tensor * ids = indices(r, n, 1, ne[1]);
    return gcuda_get_rows_back(r->ctx, grad, ids, leaf(r, GCUDA_TYPE_F32, ne, UNCOUNTED, 0));
}

static struct gcuda_tensor * build_count_equal(struct row * r) {
    int64_t ne[4];
    list(r, "ne", ne);
    struct gcuda_tensor * a = leaf(r, GCUDA_TYPE_I32, ne, POSITIONS, 0);
    return gcuda_count_equal(r->ctx, a, leaf(r, GCUDA_TYPE_I32, ne, POSITIONS, 0));
}

static struct gcuda_tensor * build_cross_entropy_loss(struct row * r) {
    struct gcuda_tensor * a = input(r, "type", "ne");
    return gcuda_cross_entropy_loss(r->ctx, a, input(r, "type", "ne"));
}
static struct gcuda_tensor * build_cross_entropy_loss_back(struct row * r) {
    struct gcuda_tensor * grad = leaf4(r, GCUDA_TYPE_F32, FLOATS, 1, 1, 1, 1);
    struct gcuda_tensor * a = input(r, "type", "ne");
    return gcuda_cross_entropy_loss_back(r->ctx, grad, a, input(r, "type", "ne"));
}

// Weights and moments are read and written, the gradient read.
static struct gcuda_tensor * build_opt_step_adamw(struct row * r) {
    int64_t ne[4];
    list(r, "ne", ne);
    struct gcuda_tensor *a = leaf(r, GCUDA_TYPE_F32, ne, FLOATS, 0), *grad = leaf(r, GCUDA_TYPE_F32, ne, FLOATS, 0);
    struct gcuda_tensor *m = leaf(r, GCUDA_TYPE_F32, ne, FLOATS, 0), *v = leaf(r, GCUDA_TYPE_F32, ne, FRACTIONS, 0);
    gcuda_set_param(a);
    r->extra = 3.0 * (double) gcuda_nbytes(a);
    return gcuda_opt_step_adamw(r->ctx, a, grad, m, v, leaf4(r, GCUDA_TYPE_F32, FRACTIONS, 7, 1, 1, 1));
}
static struct gcuda_tensor * build_opt_step_sgd(struct row * r) {
    int64_t ne[4];
    list(r, "ne", ne);
    struct gcuda_tensor *a = leaf(r, GCUDA_TYPE_F32, ne, FLOATS, 0), *grad = leaf(r, GCUDA_TYPE_F32, ne, FLOATS, 0);
    gcuda_set_param(a);
    r->extra = (double) gcuda_nbytes(a);
    return gcuda_opt_step_sgd(r->ctx, a, grad, leaf4(r, GCUDA_TYPE_F32, FRACTIONS, 2, 1, 1, 1));
}

static struct gcuda_tensor * build_concat(struct row * r) {
    int64_t ne[4];
    const int dim = (int) number(r, "dim", 0);
    list(r, "ne_a", ne);
    struct gcuda_tensor * a = leaf(r, type_of(r, "type"), ne, FLOATS, 0);
    ne[dim] = number(r, "ne_b_d", 1);
    return gcuda_concat(r->ctx, a, leaf(r, type_of(r, "type"), ne, FLOATS, 0), dim);
}
static struct gcuda_tensor * build_repeat(struct row * r) {
    int64_t ne[4], nr[4];
    list(r, "ne", ne);
    list(r, "nr", nr);
    struct gcuda_tensor * a = leaf(r, type_of(r, "type"), ne, FLOATS, 0);
    return gcuda_repeat_4d(r->ctx, a, ne[0] * nr[0], ne[1] * nr[1], ne[2] * nr[2], ne[3] * nr[3]);
}
static struct gcuda_tensor * build_repeat_back(struct row * r) {
    int64_t ne[4], nr[4];
    list(r, "ne", ne);
    list(r, "nr", nr);
    struct gcuda_tensor * a =
        leaf4(r, type_of(r, "type"), FLOATS, ne[0] * nr[0], ne[1] * nr[1], ne[2] * nr[2], ne[3] * nr[3]);
    return gcuda_repeat_back(r->ctx, a, leaf(r, type_of(r, "type"), ne, UNCOUNTED, 0));
}
static struct gcuda_tensor * build_pad(struct row * r) {
    int64_t p[4];
    list(r, "p", p);
    return gcuda_pad(r->ctx, input(r, "type", "ne"), (int) p[0], (int) p[1], 0, 0);
}
static struct gcuda_tensor * build_pad_reflect_1d(struct row * r) {
    int64_t p[4];
    list(r, "p", p);
    return gcuda_pad_reflect_1d(r->ctx, input(r, "type", "ne"), (int) p[0], (int) p[1]);
}
static struct gcuda_tensor * build_roll(struct row * r) {
    int64_t shift[4];
    list(r, "shift", shift);
    return gcuda_roll(r->ctx, input(r, "type", "ne"), (int) shift[0], (int) shift[1], 0, 0);
}
static struct gcuda_tensor * build_diag_mask_inf(struct row * r) {
    return gcuda_diag_mask_inf(r->ctx, input(r, "type", "ne"), 0);
}
static struct gcuda_tensor * build_diag_mask_zero(struct row * r) {
    return gcuda_diag_mask_zero(r->ctx, input(r, "type", "ne"), 0);
}
static struct gcuda_tensor * build_tri(struct row * r) {
    return gcuda_tri(r->ctx, input(r, "type", "ne"), (enum gcuda_tri_type) number(r, "tri_type", 0));
}
static struct gcuda_tensor * build_fill(struct row * r) {
    int64_t ne[4];
    list(r, "ne", ne);
    return gcuda_fill(r->ctx, leaf(r, type_of(r, "type"), ne, UNCOUNTED, 0), 0.3f);
}
static struct gcuda_tensor * build_arange(struct row * r) {
    int64_t ne[4];
    list(r, "ne", ne);
    return gcuda_arange(r->ctx, 0.0f, (float) ne[0], 1.0f);
}
static struct gcuda_tensor * build_part(struct row * r, bool is_acc) {
    int64_t part[4];
    list(r, "part", part);
    struct gcuda_tensor *a = input(r, "type", "ne"), *b = leaf(r, type_of(r, "type"), part, FLOATS, 0);
    return is_acc ? gcuda_acc(r->ctx, a, b, a->nb[1], a->nb[2], a->nb[3], 0)
                  : gcuda_set(r->ctx, a, b, a->nb[1], a->nb[2], a->nb[3], 0);
}
static struct gcuda_tensor * build_acc(struct row * r) { return build_part(r, true); }
static struct gcuda_tensor * build_set(struct row * r) { return build_part(r, false); }

static struct gcuda_tensor * build_upscale(struct row * r) {
    const enum gcuda_scale_mode mode = has(r, "mode", "bilinear")  ? GCUDA_SCALE_MODE_BILINEAR
                                       : has(r, "mode", "bicubic") ? GCUDA_SCALE_MODE_BICUBIC
                                                                   : GCUDA_SCALE_MODE_NEAREST;
    return gcuda_upscale(r->ctx, input(r, "type", "ne"), (int) number(r, "scale_factor", 2), mode);
}
static struct gcuda_tensor * build_pool_2d(struct row * r) {
    const enum gcuda_op_pool op = has(r, "pool", "avg") ? GCUDA_OP_POOL_AVG : GCUDA_OP_POOL_MAX;
    const int k = (int) number(r, "k", 2);
    return gcuda_pool_2d(r->ctx, input(r, "type", "ne"), op, k, k, k, k, 0.0f, 0.0f);
}
static struct gcuda_tensor * build_pool_2d_back(struct row * r) {
    const enum gcuda_op_pool op = has(r, "pool", "avg") ? GCUDA_OP_POOL_AVG : GCUDA_OP_POOL_MAX;
    const int k = (int) number(r, "k", 2);
    struct gcuda_tensor * image = input(r, "type", "ne");
    struct gcuda_tensor * grad =
        leaf4(r, image->type, FLOATS, image->ne[0] / k, image->ne[1] / k, image->ne[2], image->ne[3]);
    return gcuda_pool_2d_back(r->ctx, grad, image, op, k, k, k, k, 0.0f, 0.0f);
}
static struct gcuda_tensor * build_pool_1d(struct row * r) {
    const int k = (int) number(r, "k", 2);
    return gcuda_pool_1d(r->ctx, input(r, "type", "ne"), GCUDA_OP_POOL_MAX, k, k, 0);
}
static struct gcuda_tensor * build_timestep_embedding(struct row * r) {
    return gcuda_timestep_embedding(r->ctx, input(r, "type", "ne"), (int) number(r, "dim", 320), 10000);
}
static struct gcuda_tensor * build_argsort(struct row * r) {
    return gcuda_argsort(r->ctx, input(r, "type", "ne"), GCUDA_SORT_ORDER_ASC);
}
static struct gcuda_tensor * build_top_k(struct row * r) {
    return gcuda_top_k(r->ctx, input(r, "type", "ne"), (int) number(r, "k", 1));
}
static struct gcuda_tensor * build_add_id(struct row * r) {
    const int64_t n = number(r, "n_embd", 1), used = number(r, "n_experts_used", 1), tokens = number(r, "n_token", 1);
    const int64_t n_experts = number(r, "n_experts", 1);
    struct gcuda_tensor * a = leaf4(r, type_of(r, "type_a"), FLOATS, n, used, tokens, 1);
    struct gcuda_tensor * b = leaf4(r, type_of(r, "type_b"), UNCOUNTED, n, n_experts, 1, 1);
    r->extra = 4.0 * (double) (n * (used * tokens < n_experts ? used * tokens : n_experts)); // biases are read once
    return gcuda_add_id(r->ctx, a, b, indices(r, used, tokens, n_experts));
}

// ---- convolutions ----
static struct gcuda_tensor * build_conv_2d(struct row * r) {
    struct gcuda_tensor *w = input(r, "type_kernel", "ne_kernel"), *x = input(r, "type", "ne_input");
    struct gcuda_tensor * y = gcuda_conv_2d_direct(r->ctx, w, x, 1, 1, 0, 0, 1, 1);
    if (y != NULL) { r->flop = 2.0 * (double) gcuda_nelements(y) * (double) (w->ne[0] * w->ne[1] * w->ne[2]); }
    return y;
}
static struct gcuda_tensor * build_conv_2d_dw(struct row * r) {
    const int s = (int) number(r, "stride", 1), p = (int) number(r, "padding", 0), d = (int) number(r, "dilation", 1);
    int64_t x[4], w[4];
    list(r, "ne_input", x);
    list(r, "ne_kernel", w);
    if (number(r, "cwhn", 0)) { // channels innermost in memory
        struct gcuda_tensor * kernel = leaf4(r, type_of(r, "type_kernel"), FLOATS, w[3], w[2], w[0], w[1]);
        struct gcuda_tensor * image = leaf4(r, GCUDA_TYPE_F32, FLOATS, x[2], x[0], x[1], x[3]);
        return gcuda_conv_2d_dw_direct(r->ctx, gcuda_permute(r->ctx, kernel, 3, 2, 0, 1),
            gcuda_permute(r->ctx, image, 2, 0, 1, 3), s, s, p, p, d, d);
    }
    struct gcuda_tensor * kernel = leaf(r, type_of(r, "type_kernel"), w, FLOATS, 0);
    return gcuda_conv_2d_dw_direct(r->ctx, kernel, leaf(r, GCUDA_TYPE_F32, x, FLOATS, 0), s, s, p, p, d, d);
}
static struct gcuda_tensor * build_conv_transpose_2d(struct row * r) {
    struct gcuda_tensor *w = input(r, "kernel_type", "ne_kernel"), *x = input(r, "type", "ne_input");
    r->flop = 2.0 * (double) gcuda_nelements(x) * (double) (w->ne[0] * w->ne[1] * w->ne[2]);
    return gcuda_conv_transpose_2d_p0(r->ctx, w, x, (int) number(r, "stride", 1));
}
static struct gcuda_tensor * build_conv_transpose_1d(struct row * r) {
    struct gcuda_tensor *w = input(r, "type", "ne_kernel"), *x = input(r, "type", "ne_input");
    r->flop = 2.0 * (double) gcuda_nelements(x) * (double) (w->ne[0] * w->ne[1]);
    return gcuda_conv_transpose_1d(r->ctx, w, x, (int) number(r, "stride", 1), 0, 1);
}
static struct gcuda_tensor * build_im2col(struct row * r) {
    int64_t w[4];
    list(r, "ne_kernel", w);
    struct gcuda_tensor * kernel = leaf(r, type_of(r, "type_kernel"), w, UNCOUNTED, 0); // only its shape is used
    return gcuda_im2col(
        r->ctx, kernel, input(r, "type_input", "ne_input"), 1, 1, 1, 1, 1, 1, true, type_of(r, "dst_type"));
}
static struct gcuda_tensor * build_im2col_back(struct row * r) {
    int64_t w[4], x[4];
    list(r, "ne_kernel", w);
    list(r, "ne_input", x);
    struct gcuda_tensor * kernel = leaf(r, GCUDA_TYPE_F16, w, UNCOUNTED, 0);
    struct gcuda_tensor * grad =
        leaf4(r, type_of(r, "type"), FLOATS, w[0] * w[1] * w[2], x[0] + 3 - w[0], x[1] + 3 - w[1], x[3]);
    return gcuda_im2col_back(r->ctx, grad, kernel, x, 1, 1, 1, 1, 1, 1, true);
}
static struct gcuda_tensor * build_im2col_3d(struct row * r) { // of one batch
    int64_t w[4];
    list(r, "ne_kernel", w);
    struct gcuda_tensor * kernel = leaf(r, GCUDA_TYPE_F16, w, UNCOUNTED, 0);
    struct gcuda_tensor * x = input(r, "type_input", "ne_input");
    return gcuda_im2col_3d(r->ctx, kernel, x, x->ne[3], 1, 1, 1, 1, 1, 1, 1, 1, 1, type_of(r, "dst_type"));
}

// ---- recurrences ----
static struct gcuda_tensor * build_ssm_conv(struct row * r) {
    struct gcuda_tensor * x = input(r, "type", "ne_a");
    return gcuda_ssm_conv(r->ctx, x, input(r, "type", "ne_b"));
}
static struct gcuda_tensor * build_ssm_scan(struct row * r) {
    const int64_t n = number(r, "d_state", 1), p = number(r, "head_dim", 1), h = number(r, "n_head", 1);
    const int64_t g = number(r, "n_group", 1), t = number(r, "n_seq_tokens", 1), s = number(r, "n_seqs", 1);
    struct gcuda_tensor * state = leaf4(r, GCUDA_TYPE_F32, FLOATS, n, p, h, s);
    struct gcuda_tensor *x = leaf4(r, GCUDA_TYPE_F32, FLOATS, p, h, t, s),
                        *dt = leaf4(r, GCUDA_TYPE_F32, FLOATS, h, t, s, 1);
    struct gcuda_tensor *a = leaf4(r, GCUDA_TYPE_F32, FLOATS, 1, h, 1, 1),
                        *b = leaf4(r, GCUDA_TYPE_F32, FLOATS, n, g, t, s);
    struct gcuda_tensor * c = leaf4(r, GCUDA_TYPE_F32, FLOATS, n, g, t, s);
    return gcuda_ssm_scan(r->ctx, state, x, dt, a, b, c, leaf4(r, GCUDA_TYPE_I32, POSITIONS, s, 1, 1, 1));
}

// [Z, H, T] inputs and the state of S sequences.
struct recurrence {
    struct gcuda_tensor *in[6], *state;
};
static struct recurrence recurrence(struct row * r, int n_inputs, enum content last) {
    const int64_t z = number(r, "head_size", 64), h = number(r, "head_count", 1), s = number(r, "n_seqs", 1);
    const int64_t t = number(r, "n_seq_tokens", 1) * s;
    struct recurrence c;
    memset(&c, 0, sizeof c);
    for (int i = 0; i < n_inputs; ++i) {
        c.in[i] = leaf4(r, GCUDA_TYPE_F32, i + 1 == n_inputs ? last : FLOATS, z, h, t, 1);
    }
    c.state = leaf4(r, GCUDA_TYPE_F32, FLOATS, z * z * h, s, 1, 1);
    return c;
}
static struct gcuda_tensor * build_rwkv_wkv6(struct row * r) {
    const struct recurrence c = recurrence(r, 4, FRACTIONS);
    struct gcuda_tensor * tf = leaf4(r, GCUDA_TYPE_F32, FLOATS, c.in[0]->ne[0], c.in[0]->ne[1], 1, 1);
    return gcuda_rwkv_wkv6(r->ctx, c.in[0], c.in[1], c.in[2], tf, c.in[3], c.state);
}
static struct gcuda_tensor * build_rwkv_wkv7(struct row * r) {
    const struct recurrence c = recurrence(r, 6, FRACTIONS);
    return gcuda_rwkv_wkv7(r->ctx, c.in[0], c.in[5], c.in[1], c.in[2], c.in[3], c.in[4], c.state);
}
static struct gcuda_tensor * build_gated_linear_attn(struct row * r) {
    const struct recurrence c = recurrence(r, 4, FRACTIONS);
    return gcuda_gated_linear_attn(r->ctx, c.in[0], c.in[1], c.in[2], c.in[3], c.state, 0.125f);
}

// ---- products ----
static struct gcuda_tensor * build_solve_tri(struct row * r) {
    struct gcuda_tensor *a = input(r, "type", "ne_lhs"), *b = input(r, "type", "ne_rhs");
    r->flop = (double) gcuda_nelements(b) * (double) a->ne[0];
    return gcuda_solve_tri(r->ctx, a, b, true, true, false);
}
static struct gcuda_tensor * build_out_prod(struct row * r) {
    const int64_t m = number(r, "m", 1), n = number(r, "n", 1), k = number(r, "k", 1);
    struct gcuda_tensor * a = leaf4(r, type_of(r, "type"), FLOATS, m, k, 1, 1);
    r->flop = 2.0 * (double) m * (double) n * (double) k;
    return gcuda_out_prod(r->ctx, a, leaf4(r, GCUDA_TYPE_F32, FLOATS, n, k, 1, 1));
}
static struct gcuda_tensor * build_mul_mat(struct row * r) {
    const int64_t m = number(r, "m", 1), n = number(r, "n", 1), k = number(r, "k", 1);
    int64_t bs[4], nr[4];
    list(r, "bs", bs);
    list(r, "nr", nr);
    struct gcuda_tensor * a = leaf4(r, type_of(r, "type"), FLOATS, k, m, bs[0], bs[1]);
    r->product_flop = 2.0 * (double) m * (double) n * (double) k * (double) (bs[0] * bs[1] * nr[0] * nr[1]);
    if (n > 8) { r->flop = r->product_flop; }
    r->read_only = true;
    return gcuda_mul_mat(r->ctx, a, leaf4(r, type_of(r, "type_b"), FLOATS, k, n, bs[0] * nr[0], bs[1] * nr[1]));
}
static struct gcuda_tensor * build_mul_mat_id(struct row * r) {
    const int64_t e = number(r, "E", 1), u = number(r, "U", 1), m = number(r, "m", 1), k = number(r, "k", 1);
    const int64_t n = number(r, "n", 1);
    struct gcuda_tensor * as = leaf4(r, type_of(r, "type"), UNCOUNTED, k, m, e, 1);
    struct gcuda_tensor *b = leaf4(r, GCUDA_TYPE_F32, FLOATS, k, 1, n, 1), *ids = indices(r, u, n, e);
    // experts that random choices touch, in the mean
    const double touched = (double) e * (1.0 - pow(1.0 - (double) u / (double) e, (double) n));
    r->extra = touched * (double) (gcuda_row_size(as->type, k) * (size_t) m);
    r->read_only = true;
    r->product_flop = 2.0 * (double) m * (double) k * (double) (n * u);
    if (n > 64) { r->flop = r->product_flop; }
    return gcuda_mul_mat_id(r->ctx, as, b, ids);
}
static struct gcuda_tensor * build_flash_attn_ext(struct row * r) {
    const int64_t k = number(r, "hsk", 64), v = number(r, "hsv", 64), nh = number(r, "nh", 1), nr = number(r, "nr", 1);
    const int64_t kv = number(r, "kv", 1), n = number(r, "nb", 1);
    struct gcuda_tensor * q = leaf4(r, GCUDA_TYPE_F32, FLOATS, k, n, nh * nr, 1);
    struct gcuda_tensor * keys = leaf4(r, type_of(r, "type"), FLOATS, k, kv, nh, 1);
    struct gcuda_tensor * values = leaf4(r, type_of(r, "type"), FLOATS, v, kv, nh, 1);
    struct gcuda_tensor * mask = k == 72 ? NULL : leaf4(r, GCUDA_TYPE_F16, FLOATS, kv, n, 1, 1);
    r->read_only = true;
    if (n > 8) { r->flop = 2.0 * (double) (n * kv) * (double) (k + v) * (double) (nh * nr); }
    return gcuda_flash_attn_ext(r->ctx, q, keys, values, mask, 1.0f / sqrtf((float) k), 0.0f, 0.0f);
}

// products of the formula, of which the kernels compute 7
static struct gcuda_tensor * build_flash_attn_ext_back(struct row * r) {
    const int64_t k = number(r, "hsk", 64), nh = number(r, "nh", 1), nr = number(r, "nr", 1), kv = number(r, "kv", 1),
                  n = number(r, "nb", 1);
    struct gcuda_tensor * q = leaf4(r, GCUDA_TYPE_F32, FLOATS, k, n, nh * nr, 1);
    struct gcuda_tensor *keys = leaf4(r, type_of(r, "type"), FLOATS, k, kv, nh, 1),
                        *values = leaf4(r, type_of(r, "type"), FLOATS, k, kv, nh, 1);
    struct gcuda_tensor *y = leaf4(r, GCUDA_TYPE_F32, FLOATS, k, nh * nr, n, 1),
                        *dy = leaf4(r, GCUDA_TYPE_F32, FLOATS, k, nh * nr, n, 1);
    r->flop = 5.0 * 2.0 * (double) (n * kv) * (double) k * (double) (nh * nr);
    return gcuda_flash_attn_ext_back(r->ctx, q, keys, values, y, dy, NULL, NULL, 1.0f / sqrtf((float) k), 0.0f, 0.0f);
}

static const struct {
    const char * name;
    struct gcuda_tensor * (*build)(struct row * r);
} builders[] = {
    { "ACC", build_acc },
    { "ADD", build_add },
    { "ADD1", build_add1 },
    { "ADD_ID", build_add_id },
    { "ARANGE", build_arange },
    { "ARGMAX", build_argmax },
    { "ARGSORT", build_argsort },
    { "CLAMP", build_clamp },
    { "CONCAT", build_concat },
    { "CONT", build_cont },
    { "CONV_2D", build_conv_2d },
    { "CONV_2D_DW", build_conv_2d_dw },
    { "CONV_TRANSPOSE_1D", build_conv_transpose_1d },
    { "CONV_TRANSPOSE_2D", build_conv_transpose_2d },
    { "COS", build_cos },
    { "COUNT_EQUAL", build_count_equal },
    { "CPY", build_cpy },
    { "CROSS_ENTROPY_LOSS", build_cross_entropy_loss },
    { "CROSS_ENTROPY_LOSS_BACK", build_cross_entropy_loss_back },
    { "CUMSUM", build_cumsum },
    { "DIAG", build_diag },
    { "DIAG_MASK_INF", build_diag_mask_inf },
    { "DIAG_MASK_ZERO", build_diag_mask_zero },
    { "DIV", build_div },
    { "DUP", build_dup },
    { "FILL", build_fill },
    { "FLASH_ATTN_EXT", build_flash_attn_ext },
    { "FLASH_ATTN_EXT_BACK", build_flash_attn_ext_back },
    { "GATED_LINEAR_ATTN", build_gated_linear_attn },
    { "GEGLU", build_glu },
    { "GEGLU_ERF", build_glu },
    { "GEGLU_QUICK", build_glu },
    { "GELU", build_gelu },
    { "GET_ROWS", build_get_rows },
    { "GET_ROWS_BACK", build_get_rows_back },
    { "GROUP_NORM", build_group_norm },
    { "IM2COL", build_im2col },
    { "IM2COL_3D", build_im2col_3d },
    { "IM2COL_BACK", build_im2col_back },
    { "L2_NORM", build_l2_norm },
    { "LEAKY_RELU", build_leaky_relu },
    { "LOG", build_log },
    { "MEAN", build_mean },
    { "MUL", build_mul },
    { "MUL_MAT", build_mul_mat },
    { "MUL_MAT_ID", build_mul_mat_id },
    { "NORM", build_norm },
    { "OPT_STEP_ADAMW", build_opt_step_adamw },
    { "OPT_STEP_SGD", build_opt_step_sgd },
    { "OUT_PROD", build_out_prod },
    { "PAD", build_pad },
    { "PAD_REFLECT_1D", build_pad_reflect_1d },
    { "POOL_1D", build_pool_1d },
    { "POOL_2D", build_pool_2d },
    { "POOL_2D_BACK", build_pool_2d_back },
    { "REGLU", build_glu },
    { "REPEAT", build_repeat },
    { "REPEAT_BACK", build_repeat_back },
    { "RMS_NORM", build_rms_norm },
    { "RMS_NORM_BACK", build_rms_norm_back },
    { "ROLL", build_roll },
    { "ROPE", build_rope },
    { "ROPE_BACK", build_rope_back },
    { "RWKV_WKV6", build_rwkv_wkv6 },
    { "RWKV_WKV7", build_rwkv_wkv7 },
    { "SCALE", build_scale },
    { "SET", build_set },
    { "SET_ROWS", build_set_rows },
    { "SILU", build_silu },
    { "SILU_BACK", build_silu_back },
    { "SIN", build_sin },
    { "SOFT_MAX", build_soft_max },
    { "SOFT_MAX_BACK", build_soft_max_back },
    { "SOLVE_TRI", build_solve_tri },
    { "SQR", build_sqr },
    { "SQRT", build_sqrt },
    { "SSM_CONV", build_ssm_conv },
    { "SSM_SCAN", build_ssm_scan },
    { "SUB", build_sub },
    { "SUM", build_sum },
    { "SUM_ROWS", build_sum_rows },
    { "SWIGLU", build_glu },
    { "SWIGLU_OAI", build_glu },
    { "TIMESTEP_EMBEDDING", build_timestep_embedding },
    { "TOP_K", build_top_k },
    { "TRI", build_tri },
    { "UNARY", build_unary },
    { "UPSCALE", build_upscale },
};

static struct gcuda_tensor * build(struct row * r) {
    for (int i = 0; i < COUNT(builders); ++i) {
        if (is_named(r, builders[i].name)) { return builders[i].build(r); }
    }
    gcuda_set_last_error(GCUDA_STATUS_INVALID_ARGUMENT, "no such row");
    return NULL;
}

// =====================================================================================================================
// >>data
// =====================================================================================================================

// Random blocks of a type that has no quantizer: random codes, finite scales.
static void fill_blocks(enum gcuda_type type, char * out, size_t n_bytes) {
    const size_t block = gcuda_type_size(type);
    for (size_t i = 0; i < n_bytes; ++i) { out[i] = (char) (random_bits() >> 11); }
    for (size_t i = 0; i + block <= n_bytes; i += block) {
        if (type == GCUDA_TYPE_IQ1_M) { // the scale is the top four bits of four words
            struct gcuda_block_iq1_m * b = (struct gcuda_block_iq1_m *) (void *) (out + i);
            for (int j = 0; j < 4; ++j) { b->scales[j] = (uint16_t) ((b->scales[j] & 0x0fff) | (j == 3 ? 0x2000 : 0)); }
        } else {
            const gcuda_fp16_t d = gcuda_fp32_to_fp16(0.01f + 0.001f * random_float());
            memcpy(out + i, &d, sizeof d); // where all of them have it
        }
    }
}

static void fill_host(const struct leaf * l, char * out, size_t n_bytes) {
    const enum gcuda_type type = l->t->type;
    const struct gcuda_type_traits * traits = gcuda_get_type_traits(type);
    const int64_t n = (int64_t) (n_bytes / traits->type_size) * traits->blck_size;
    int32_t * ints = (int32_t *) (void *) out;
    float row[256];
    if (l->content == INDICES) { // a random start and an odd step: all different in a run shorter than the limit
        const int64_t run = l->t->ne[0];
        for (int64_t i = 0; i < n; ++i) {
            static int64_t start, step;
            if (i % run == 0) {
                start = random_bits() % l->limit;
                step = (int64_t) (random_bits() % (uint64_t) l->limit) | 1;
                if (l->limit % step == 0) { step = 1; }
            }
            ints[i] = (int32_t) ((start + i % run * step) % l->limit);
        }
    } else if (type == GCUDA_TYPE_I32) {
        for (int64_t i = 0; i < n; ++i) { ints[i] = (int32_t) i; }
    } else if (traits->from_float_ref == NULL) {
        fill_blocks(type, out, n_bytes);
    } else {
        const int64_t step = traits->blck_size > 1 ? traits->blck_size : n < 256 ? n : 256;
        for (int64_t i = 0; i < n; i += step, out += gcuda_row_size(type, step)) {
            const int64_t count = n - i < step ? n - i : step;
            for (int64_t j = 0; j < count; ++j) {
                row[j] = l->content == FRACTIONS ? 0.5f + 0.5f * random_float() : random_float();
            }
            traits->from_float_ref(row, out, count);
        }
    }
}

// A part from the host, then doubled on the device. Integers come whole: they are small, and their order counts.
static void fill(const struct leaf * l) {
    const size_t n_bytes = gcuda_nbytes(l->t), block = gcuda_type_size(l->t->type);
    const size_t part = (size_t) 1 << 20;
    size_t done = l->t->type == GCUDA_TYPE_I32 || n_bytes < part ? n_bytes : part / block * block;
    char *host = (char *) malloc(done + 1), *at = (char *) l->t->data;
    if (host == NULL) { stop("malloc"); }
    fill_host(l, host, done);
    CUDA(cudaMemcpy(at, host, done, cudaMemcpyHostToDevice));
    while (done < n_bytes) {
        const size_t n = n_bytes - done < done ? n_bytes - done : done;
        CUDA(cudaMemcpy(at + done, at, n, cudaMemcpyDeviceToDevice));
        done += n;
    }
    CUDA(cudaDeviceSynchronize()); // or other streams would copy the old contents
    free(host);
}

// Every input once and the result once; what is changed in place counts as both through the row's extra.
static double bytes_of(const struct row * r, const struct gcuda_tensor * y) {
    double n = r->extra;
    for (int i = 0; i < r->n_leafs; ++i) {
        if (r->leafs[i].content != UNCOUNTED) { n += (double) gcuda_nbytes(r->leafs[i].t); }
    }
    return y->view_src == NULL ? n + (double) gcuda_nbytes(y) : n;
}

// =====================================================================================================================
// >>timing
// =====================================================================================================================
typedef void (*enqueue_fn)(void * user, int i); // the i-th launch; of enqueue_series: as many

struct timing {
    double us;      // of one launch; 0: not measured
    int n_launches; // in the replayed graph
};

static int by_value(const void * a, const void * b) {
    const float x = *(const float *) a, y = *(const float *) b;
    return x < y ? -1 : x > y;
}

static double elapsed_us(struct bench * b) {
    float ms = 0.0f;
    CUDA(cudaEventSynchronize(b->end));
    CUDA(cudaEventElapsedTime(&ms, b->begin, b->end));
    return (double) ms * 1e3;
}

// series: how all of them are enqueued, in the capture; NULL: one by one.
static struct timing time_series(struct bench * b, enqueue_fn enqueue, enqueue_fn series, void * user, int n_copies) {
    struct timing out = { 0.0, 0 };
    float samples[MAX_REPLAYS];
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    for (int i = 0; i < 3; ++i) { // the first ones load modules and make scratch memory
        CUDA(cudaEventRecord(b->begin, b->stream));
        enqueue(user, i);
        CUDA(cudaEventRecord(b->end, b->stream));
        if (elapsed_us(b) > (i == 0 ? 5.0 : 0.3) * MAX_LAUNCH_US) { break; }
    }
    const double once = fmax(elapsed_us(b), 1.0);
    int n = MIN_LAUNCHES;
    if (once > MAX_LAUNCH_US) { n = (int) (10.0 * b->max_us / once); }      // 50 of these would take too long
    if (once * n < 0.1 * b->max_us) { n = (int) (0.1 * b->max_us / once); } // and of these many fit
    n = n < 2 ? 2 : n;
    n = (n + n_copies - 1) / n_copies * n_copies; // every copy as often as the others
    CUDA(cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeRelaxed));
    if (series != NULL) { series(user, n); }
    for (int i = 0; i < n && series == NULL; ++i) { enqueue(user, i); }
    CUDA(cudaStreamEndCapture(b->stream, &graph));
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    if (once * n < b->max_us) { CUDA(cudaGraphLaunch(exec, b->stream)); } // uploads it
    int count = 0;
    double total = 0.0;
    while (count < 2 || (total < b->max_us && count < MAX_REPLAYS)) {
        CUDA(cudaEventRecord(b->begin, b->stream));
        CUDA(cudaGraphLaunch(exec, b->stream));
        CUDA(cudaEventRecord(b->end, b->stream));
        const double us = elapsed_us(b);
        samples[count++] = (float) us;
        total += us;
    }
    CUDA(cudaGraphExecDestroy(exec));
    CUDA(cudaGraphDestroy(graph));
    qsort(samples, (size_t) count, sizeof samples[0], by_value);
    out.us = (double) samples[count / 2] / n;
    out.n_launches = n;
    return out;
}

static struct timing time_launches(struct bench * b, enqueue_fn enqueue, void * user, int n_copies) {
    return time_series(b, enqueue, NULL, user, n_copies);
}

struct computing {
    gcuda_backend_t backend;
    struct gcuda_cgraph ** graphs;
    int n_graphs;
    struct gcuda_context * ctx; // of rows
};
static void enqueue_graph(void * user, int i) {
    struct computing * c = (struct computing *) user;
    if (gcuda_backend_graph_compute_async(c->backend, c->graphs[i % c->n_graphs]) != GCUDA_STATUS_SUCCESS) {
        stop("computing");
    }
}

static struct gcuda_tensor * last_node(struct gcuda_cgraph * graph) { return gcuda_graph_node(graph, -1); }

static bool is_view_op(enum gcuda_op op) {
    return op == GCUDA_OP_RESHAPE || op == GCUDA_OP_VIEW || op == GCUDA_OP_PERMUTE || op == GCUDA_OP_TRANSPOSE;
}

// Whether all before the last node are views.
static bool has_one_kernel(struct gcuda_cgraph * graph) {
    bool is_so = true;
    for (int i = 0; i + 1 < gcuda_graph_n_nodes(graph); ++i) {
        is_so = is_so && is_view_op(gcuda_graph_node(graph, i)->op);
    }
    return is_so;
}

// One graph that takes the copies' last nodes alternately, n in all. Its nodes are new and write to the copies' memory.
static void enqueue_series(void * user, int n) {
    struct computing * c = (struct computing *) user;
    struct gcuda_cgraph * graph = gcuda_new_graph_custom(c->ctx, (size_t) n + 16 * (size_t) c->n_graphs, false);
    for (int i = 0; i < n; ++i) {
        const struct gcuda_tensor * y = last_node(c->graphs[i % c->n_graphs]);
        struct gcuda_tensor * again = gcuda_new_tensor(c->ctx, y->type, GCUDA_MAX_DIMS, y->ne);
        if (graph == NULL || again == NULL) { stop("a series"); }
        *again = *y;
        if (gcuda_build_forward_expand(graph, again) != GCUDA_STATUS_SUCCESS) { stop("a series"); }
    }
    if (gcuda_backend_graph_compute_async(c->backend, graph) != GCUDA_STATUS_SUCCESS) { stop("computing a series"); }
}

// =====================================================================================================================
// >>rows
// =====================================================================================================================
struct result {
    struct timing rotated, same;
    double gbs, tflops, percent; // of the rotated time
    const char * ceiling;
    char other[24]; // products: the share of the other ceiling
    char note[160];
};

static void row_free(struct gcuda_context * ctx, gcuda_backend_buffer_t buffer) {
    gcuda_backend_buffer_free(buffer);
    gcuda_free(ctx);
}

// Copies of the row in one context: enough to pass twice the L2 cache, at least two.
static int build_copies(struct row * r, struct gcuda_tensor * first, struct leaf (*leafs)[10],
    struct gcuda_cgraph ** graphs, size_t set_bytes) {
    const size_t wanted = 2 * r->b->l2_bytes / (set_bytes + 1) + 2;
    const int n = wanted > MAX_COPIES ? MAX_COPIES : (int) wanted;
    struct gcuda_tensor * y = first;
    for (int i = 0; i < n; ++i) {
        if (i > 0) {
            r->n_leafs = 0;
            y = build(r);
        }
        memcpy(leafs[i], r->leafs, sizeof r->leafs);
        graphs[i] = gcuda_new_graph_custom(r->ctx, 16, false);
        if (graphs[i] == NULL || gcuda_build_forward_expand(graphs[i], y) != GCUDA_STATUS_SUCCESS) { stop(r->text); }
    }
    return n;
}

static void rate(struct bench * b, const struct row * r, double bytes, struct result * out) {
    out->gbs = bytes / out->rotated.us * 1e-3;
    out->tflops = r->flop / out->rotated.us * 1e-6;
    const double ceiling = r->flop > 0.0 ? b->gemm_tflops : r->read_only ? b->read_gbs : b->copy_gbs;
    out->ceiling = r->flop > 0.0 ? "gemm" : r->read_only ? "read" : "copy";
    out->percent = ceiling > 0.0 ? 100.0 * (r->flop > 0.0 ? out->tflops : out->gbs) / ceiling : 0.0;
    if (r->product_flop > 0.0 && b->read_gbs > 0.0 && b->gemm_tflops > 0.0) {
        const double share =
            r->flop > 0.0 ? out->gbs / b->read_gbs : r->product_flop / out->rotated.us * 1e-6 / b->gemm_tflops;
        snprintf(out->other, sizeof out->other, "%.1f%% %s", 100.0 * share, r->flop > 0.0 ? "read" : "gemm");
    }
}

// False: no kernel, and the note says why.
static bool measure(struct bench * b, const char * text, struct result * out) {
    static struct leaf leafs[MAX_COPIES][10];
    static struct gcuda_cgraph * graphs[MAX_COPIES];
    const struct gcuda_init_params params = { 0, NULL, true };
    struct row r;
    memset(&r, 0, sizeof r);
    memset(out, 0, sizeof *out);
    r.b = b;
    r.text = text;
    r.ctx = gcuda_init(params);
    struct gcuda_tensor * y = build(&r);
    if (y == NULL) { stop(text); }
    if (!gcuda_backend_supports_op(b->backend, y)) {
        snprintf(out->note, sizeof out->note, "%s", gcuda_last_error());
        row_free(r.ctx, NULL);
        return false;
    }
    const double bytes = bytes_of(&r, y);
    size_t set_bytes = y->view_src == NULL ? gcuda_nbytes(y) : 0;
    for (int i = 0; i < r.n_leafs; ++i) { set_bytes += gcuda_nbytes(r.leafs[i].t); }
    if (gcuda_nbytes(y) * 10 < set_bytes) { r.read_only = true; }
    const int n_copies = build_copies(&r, y, leafs, graphs, set_bytes);
    gcuda_backend_buffer_t buffer = gcuda_backend_alloc_ctx_tensors(r.ctx, b->backend);
    if (buffer == NULL) {
        snprintf(out->note, sizeof out->note, "%s", gcuda_last_error());
        row_free(r.ctx, NULL);
        return false;
    }
    for (int i = 0; i < r.n_leafs; ++i) {
        fill(&leafs[0][i]);
        for (int k = 1; k < n_copies; ++k) {
            CUDA(cudaMemcpyAsync(leafs[k][i].t->data, leafs[0][i].t->data, gcuda_nbytes(leafs[0][i].t),
                cudaMemcpyDeviceToDevice, b->stream));
        }
    }
    struct computing rotated = { b->backend, graphs, n_copies, r.ctx }, same = { b->backend, graphs, 1, r.ctx };
    const enqueue_fn series = has_one_kernel(graphs[0]) ? enqueue_series : NULL;
    out->rotated = time_series(b, enqueue_graph, series, &rotated, n_copies);
    out->same = time_series(b, enqueue_graph, series, &same, 1);
    if (gcuda_backend_synchronize(b->backend) != GCUDA_STATUS_SUCCESS) { stop(text); }
    if (out->same.n_launches < MIN_LAUNCHES) {
        snprintf(
            out->note, sizeof out->note, "%d launches: %d take more than a second", out->same.n_launches, MIN_LAUNCHES);
    }
    rate(b, &r, bytes, out);
    row_free(r.ctx, buffer);
    return true;
}

static void json_row(struct bench * b, const char * text, double target, const struct result * r) {
    fprintf(b->json,
        "%s\n  {\"name\": \"%s\", \"us_rotated\": %.3f, \"us_same\": %.3f, \"gb_s\": %.1f, \"tflop_s\": %.3f, ",
        b->n_rows > 1 ? "," : "", text, r->rotated.us, r->same.us, r->gbs, r->tflops);
    fprintf(b->json,
        "\"percent\": %.1f, \"ceiling\": \"%s\", \"target_us\": %.2f, \"ratio\": "
        "%.3f, \"launches\": %d, \"product\": \"%s\"}",
        r->percent, r->ceiling ? r->ceiling : "", target, r->same.us > 0.0 ? target / r->same.us : 0.0,
        r->same.n_launches, b->product);
}

static bool wanted(const struct bench * b, const char * text) {
    return b->filter == NULL || strstr(text, b->filter) != NULL;
}

static void run_row(struct bench * b, const struct bench_target * t, bool counts) {
    struct result r;
    b->n_rows++;
    const bool is_there = measure(b, t->name, &r);
    if (b->json != NULL) { json_row(b, t->name, t->us, &r); }
    if (!is_there) {
        b->n_no_kernel++;
        printf("%10s %9s %7s %5s %11s %10s %9s %6s  %s\n", "no kernel", "", "", "", "", "", "", "", t->name);
        return;
    }
    char speed[32], ratio[32] = "", target[32] = "";
    snprintf(speed, sizeof speed, r.tflops > 0.0 ? "%.1f TF" : "%.0f GB", r.tflops > 0.0 ? r.tflops : r.gbs);
    if (t->us > 0.0) {
        const double x = t->us / r.same.us;
        snprintf(target, sizeof target, "%.2f", t->us);
        snprintf(ratio, sizeof ratio, "%.2f", x);
        b->n_slower += x < 1.0 / 1.05;
        if (counts && t->us > 6.0) {
            b->log_ratios += log(x);
            b->n_ratios++;
        }
    }
    printf("%10.2f %9s %6.1f%% %-4s %11s %10.2f %9s %6s  %s%s%s\n", r.rotated.us, speed, r.percent, r.ceiling, r.other,
        r.same.us, target, ratio, t->name, r.note[0] ? "   * " : "", r.note);
    fflush(stdout);
}

static void run_table(struct bench * b, const char * title, const struct bench_target * rows, int n, bool counts) {
    bool is_first = true;
    for (int i = 0; i < n; ++i) {
        if (!wanted(b, rows[i].name)) { continue; }
        if (b->deadline_us != 0 && gcuda_time_us() > b->deadline_us) {
            b->n_late++;
            continue;
        }
        if (is_first) {
            printf("\n%s\n%10s %9s %7s %-4s %11s %10s %9s %6s  /s and us of one launch\n", title, "rotated us", "rate",
                "", "of", "and of", "same us", "target us", "ratio");
            is_first = false;
        }
        run_row(b, &rows[i], counts);
    }
}

// =====================================================================================================================
// >>ceilings
// =====================================================================================================================
enum { R_32F = 0, R_16F = 2, R_16BF = 14, COMPUTE_32F = 68, OP_N = 0, OP_T = 1 };

static void open_cublas(struct bench * b) {
    static const char * const names[] = { "libcublas.so.13", "libcublas.so.12" };
    int (*create)(void ** handle) = NULL;
    int (*set_stream)(void * handle, cudaStream_t stream) = NULL;
    int (*set_workspace)(void * handle, void * memory, size_t size) = NULL;
    void *library = NULL, *memory = NULL;
    for (int i = 0; i < COUNT(names) && library == NULL; ++i) { library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL); }
    if (library == NULL) { return; }
    *(void **) (&create) = dlsym(library, "cublasCreate_v2");
    *(void **) (&set_stream) = dlsym(library, "cublasSetStream_v2");
    *(void **) (&set_workspace) = dlsym(library, "cublasSetWorkspace_v2");
    *(void **) (&b->blas.gemm) = dlsym(library, "cublasGemmEx");
    if (create == NULL || set_stream == NULL || set_workspace == NULL || b->blas.gemm == NULL) { return; }
    if (create(&b->blas.handle) != 0 || set_stream(b->blas.handle, b->stream) != 0) {
        b->blas.handle = NULL;
        return;
    }
    CUDA(cudaMalloc(&memory, (size_t) 64 << 20)); // else it would allocate while a graph is captured; kept to the end
    set_workspace(b->blas.handle, memory, (size_t) 64 << 20);
}

struct product {
    struct bench * b;
    int type, m, n, k;
    char *a, *x, *y;
};
static void enqueue_product(void * user, int i) {
    const struct product * p = (const struct product *) user;
    const float one = 1.0f, zero = 0.0f;
    (void) i;
    if (p->b->blas.gemm(p->b->blas.handle, OP_T, OP_N, p->m, p->n, p->k, &one, p->a, p->type, p->k, p->x, p->type, p->k,
            &zero, p->y, p->type, p->m, COMPUTE_32F, -1) != 0) {
        gcuda_set_last_error(GCUDA_STATUS_FAILED, "cublasGemmEx failed");
        stop("cuBLAS");
    }
}

// Random numbers of an F16, BF16 or F32 array in device memory.
static char * device_floats(enum gcuda_type type, int64_t n) {
    struct gcuda_tensor t;
    struct leaf l = { &t, FLOATS, 0 };
    memset(&t, 0, sizeof t);
    t.type = type;
    t.ne[0] = n;
    t.ne[1] = t.ne[2] = t.ne[3] = 1;
    t.nb[0] = gcuda_type_size(type);
    t.nb[1] = t.nb[2] = t.nb[3] = gcuda_row_size(type, n);
    CUDA(cudaMalloc(&t.data, t.nb[1]));
    fill(&l);
    return (char *) t.data;
}

static double cublas_us(struct bench * b, int type, int m, int n, int k) {
    const enum gcuda_type t = type == R_32F ? GCUDA_TYPE_F32 : type == R_16F ? GCUDA_TYPE_F16 : GCUDA_TYPE_BF16;
    struct product p = { b, type, m, n, k, NULL, NULL, NULL };
    p.a = device_floats(t, (int64_t) m * k);
    p.x = device_floats(t, (int64_t) n * k);
    p.y = device_floats(t, (int64_t) m * n);
    const double us = time_launches(b, enqueue_product, &p, 1).us;
    CUDA(cudaFree(p.a));
    CUDA(cudaFree(p.x));
    CUDA(cudaFree(p.y));
    return us;
}

struct memory_copy {
    struct bench * b;
    char *src, *dst;
    size_t size;
};
static void enqueue_copy(void * user, int i) {
    const struct memory_copy * c = (const struct memory_copy *) user;
    (void) i;
    CUDA(cudaMemcpyAsync(c->dst, c->src, c->size, cudaMemcpyDeviceToDevice, c->b->stream));
}

static void better(double * best, double found, const char * unit, const char * what) {
    printf("  %8.1f %s  %s\n", found, unit, what);
    *best = found > *best ? found : *best;
}

// The best of one row of the table's kind, by its name.
static void better_row(struct bench * b, double * best, const char * text) {
    struct result r;
    if (measure(b, text, &r)) { better(best, r.gbs, "GB/s  ", text); }
}

static void ceilings(struct bench * b) {
    const size_t rows = b->big / 32768;
    char text[128];
    printf("ceilings\n");
    struct memory_copy c = { b, device_floats(GCUDA_TYPE_F32, (int64_t) b->big / 4), NULL, b->big };
    CUDA(cudaMalloc((void **) &c.dst, b->big));
    better(&b->copy_gbs, 2.0 * (double) b->big / time_launches(b, enqueue_copy, &c, 1).us * 1e-3, "GB/s  ",
        "cudaMemcpyAsync");
    CUDA(cudaFree(c.src));
    CUDA(cudaFree(c.dst));
    snprintf(text, sizeof text, "CPY type_src=f32,type_dst=f32,ne_src=[8192,%zu]", rows);
    better_row(b, &b->copy_gbs, text);
    snprintf(text, sizeof text, "SCALE type=f32,ne=[8192,%zu]", rows);
    better_row(b, &b->copy_gbs, text);
    snprintf(text, sizeof text, "SUM_ROWS type=f32,ne=[8192,%zu]", rows);
    better_row(b, &b->read_gbs, text);
    snprintf(text, sizeof text, "MUL_MAT type=f32,m=%zu,n=1,k=8192", rows);
    better_row(b, &b->read_gbs, text);
    if (b->blas.handle == NULL) {
        printf("  no cuBLAS\n");
        return;
    }
    const int n = b->big >= (size_t) 1 << 28 ? 8192 : 512;
    const double us = cublas_us(b, R_32F, (int) rows, 1, 8192);
    better(&b->read_gbs, (double) b->big / us * 1e-3, "GB/s  ", "cuBLAS, F32 matrix times vector");
    const double flop = 2.0 * pow((double) n, 3.0), tall = 2.0 * 4096.0 * 14336.0;
    snprintf(text, sizeof text, "cuBLAS F16, %d^3", n);
    better(&b->gemm_tflops, flop / cublas_us(b, R_16F, n, n, n) * 1e-6, "TFLOP/s", text);
    double other = 0.0; // not the ceiling, but what the issues compare with
    snprintf(text, sizeof text, "cuBLAS BF16, %d^3", n);
    better(&other, flop / cublas_us(b, R_16BF, n, n, n) * 1e-6, "TFLOP/s", text);
    better(&other, tall * 512.0 / cublas_us(b, R_16F, 4096, 512, 14336) * 1e-6, "TFLOP/s",
        "cuBLAS F16, m=4096,n=512,k=14336");
    better(&other, tall * 2048.0 / cublas_us(b, R_16F, 4096, 2048, 14336) * 1e-6, "TFLOP/s",
        "cuBLAS F16, m=4096,n=2048,k=14336");
    better(&other, tall * 512.0 / cublas_us(b, R_16BF, 4096, 512, 14336) * 1e-6, "TFLOP/s",
        "cuBLAS BF16, m=4096,n=512,k=14336");
    better(&other, tall * 2048.0 / cublas_us(b, R_16BF, 4096, 2048, 14336) * 1e-6, "TFLOP/s",
        "cuBLAS BF16, m=4096,n=2048,k=14336");
}

// =====================================================================================================================
// >>launches   what a launcher costs the host, against a bare launch of an empty kernel
// =====================================================================================================================
#if CUDART_VERSION >= 12080 && !defined(BENCH_SIM)
#define HAS_LIBRARY 1
#else
#define HAS_LIBRARY 0
#endif

struct launching {
    gcuda_stream stream;
    struct gcuda_map_args scale;
    struct gcuda_binary_args add;
    struct gcuda_norm_args norm;
    struct gcuda_cpy_args cpy;
    struct gcuda_glu_args glu;
    struct gcuda_soft_max_args soft_max;
    struct gcuda_rope_args rope;
    struct gcuda_get_rows_args get_rows, set_rows;
    struct gcuda_reduce_args reduce;
    struct gcuda_sort_args sort;
    const void * empty;
};
static gcuda_status launch_scale(const struct launching * l) { return gcuda_launch_scale(&l->scale, l->stream); }
static gcuda_status launch_add(const struct launching * l) { return gcuda_launch_add(&l->add, l->stream); }
static gcuda_status launch_rms_norm(const struct launching * l) { return gcuda_launch_rms_norm(&l->norm, l->stream); }
static gcuda_status launch_cpy(const struct launching * l) { return gcuda_launch_cpy(&l->cpy, l->stream); }
static gcuda_status launch_glu(const struct launching * l) { return gcuda_launch_glu(&l->glu, l->stream); }
static gcuda_status launch_soft_max(const struct launching * l) {
    return gcuda_launch_soft_max(&l->soft_max, l->stream);
}
static gcuda_status launch_rope(const struct launching * l) { return gcuda_launch_rope(&l->rope, l->stream); }
static gcuda_status launch_get_rows(const struct launching * l) {
    return gcuda_launch_get_rows(&l->get_rows, l->stream);
}
static gcuda_status launch_set_rows(const struct launching * l) {
    return gcuda_launch_set_rows(&l->set_rows, l->stream);
}
static gcuda_status launch_sum_rows(const struct launching * l) { return gcuda_launch_sum_rows(&l->reduce, l->stream); }
static gcuda_status launch_argsort(const struct launching * l) { return gcuda_launch_argsort(&l->sort, l->stream); }
static gcuda_status launch_empty(const struct launching * l) {
#if HAS_LIBRARY
    const dim3 one = { 1, 1, 1 }, threads = { 256, 1, 1 };
    CUDA(cudaLaunchKernel(l->empty, one, threads, NULL, 0, l->stream));
#else
    (void) l;
#endif
    return GCUDA_STATUS_SUCCESS;
}

// Host time of a call, in us: batches that the queue holds, the best of them.
static double host_us(struct bench * b, gcuda_status (*launch)(const struct launching *), const struct launching * l) {
    double best = 1e9;
    for (int i = 0; i < 20; ++i) {
        CUDA(cudaStreamSynchronize(b->stream));
        const int64_t t0 = gcuda_time_us();
        for (int k = 0; k < 500; ++k) {
            if (launch(l) != GCUDA_STATUS_SUCCESS) { stop("launch"); }
        }
        best = fmin(best, (double) (gcuda_time_us() - t0) / 500.0);
    }
    CUDA(cudaStreamSynchronize(b->stream));
    return best;
}

// One call until the GPU has finished it, in ms.
static double first_ms(gcuda_status (*launch)(const struct launching *), const struct launching * l) {
    const int64_t t0 = gcuda_time_us();
    if (launch(l) != GCUDA_STATUS_SUCCESS) { stop("launch"); }
    CUDA(cudaDeviceSynchronize());
    return 1e-3 * (double) (gcuda_time_us() - t0);
}

static struct gcuda_array small_array(char * data) {
    struct gcuda_array a;
    memset(&a, 0, sizeof a);
    a.data = data;
    a.type = GCUDA_TYPE_F32;
    a.ne[0] = 256;
    a.ne[1] = a.ne[2] = a.ne[3] = 1;
    a.nb[0] = 4;
    a.nb[1] = a.nb[2] = a.nb[3] = 1024;
    return a;
}

// A row of 256 for each of them: memory[0..] is read, [1024..] written, [2048..] holds indices of 0, [4096..] is
// scratch.
static void small_args(struct launching * l, char * memory) {
    const struct gcuda_array x = small_array(memory), y = small_array(memory + 1024 * sizeof(float));
    struct gcuda_array one = small_array(memory + 2048 * sizeof(float)),
                       sum = small_array(memory + 1024 * sizeof(float)), order = y;
    one.ne[0] = sum.ne[0] = 1;
    one.nb[1] = one.nb[2] = one.nb[3] = sum.nb[1] = sum.nb[2] = sum.nb[3] = 4;
    one.type = order.type = GCUDA_TYPE_I32;
    l->scale.x = l->scale.y = l->add.a = l->add.b = l->add.y = l->norm.x = l->norm.y = x;
    l->scale.p[0] = l->soft_max.scale = l->rope.freq_scale = l->rope.attn_factor = 1.0f;
    l->norm.eps = 1e-6f;
    l->cpy.x = l->glu.x = l->glu.g = l->soft_max.x = l->rope.x = l->get_rows.x = l->set_rows.x = l->reduce.x =
        l->sort.x = x;
    l->cpy.y = l->glu.y = l->soft_max.y = l->rope.y = l->get_rows.y = l->set_rows.y = y;
    l->glu.op = GCUDA_GLU_OP_SWIGLU;
    l->rope.pos = l->get_rows.ids = l->set_rows.ids = one;
    l->rope.n_dims = 256;
    l->rope.freq_base = 1e4f;
    l->reduce.y = sum;
    l->sort.y = order;
    l->norm.scratch = l->soft_max.scratch = l->set_rows.scratch = l->reduce.scratch = l->sort.scratch =
        memory + 4096 * sizeof(float);
}

static void launches(struct bench * b) {
    struct launching l;
    char * memory = device_floats(GCUDA_TYPE_F32, 1 << 18);
    double bare = 0.0;
    memset(&l, 0, sizeof l);
    l.stream = b->stream;
    CUDA(cudaMemset(memory + 2048 * sizeof(float), 0, 1024));
    small_args(&l, memory);
    printf("\nhost time of a launch, us (256 floats); first: the first one of this process with "
           "its kernel, ms, which loads its code\n");
#if HAS_LIBRARY
    static const char empty[] = ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry empty() { ret; }\n";
    cudaLibrary_t library;
    cudaKernel_t kernel;
    CUDA(cudaLibraryLoadData(&library, empty, NULL, NULL, 0, NULL, NULL, 0));
    CUDA(cudaLibraryGetKernel(&kernel, library, "empty"));
    l.empty = (const void *) kernel;
    bare = host_us(b, launch_empty, &l);
    printf("  %6.2f         an empty kernel, cudaLaunchKernel\n", bare);
#else
    printf("  bare launch: not measured, the runtime is older than 12.8\n");
    (void) launch_empty;
#endif
    const struct {
        const char * name;
        gcuda_status (*launch)(const struct launching *);
    } kinds[] = { { "scale", launch_scale }, { "add", launch_add }, { "rms_norm", launch_rms_norm },
        { "cpy", launch_cpy }, { "glu", launch_glu }, { "soft_max", launch_soft_max }, { "rope", launch_rope },
        { "get_rows", launch_get_rows }, { "set_rows", launch_set_rows }, { "sum_rows", launch_sum_rows },
        { "argsort", launch_argsort } };
    b->us_bare = bare;
    for (int i = 0; i < COUNT(kinds); ++i) {
        const double first = first_ms(kinds[i].launch, &l), us = host_us(b, kinds[i].launch, &l);
        printf("  %6.2f  %+5.2f  first %7.2f  gcuda_launch_%s\n", us, us - bare, first, kinds[i].name);
        b->n_host +=
            snprintf(b->host + b->n_host, sizeof b->host - (size_t) b->n_host, ", \"%s\": %.3f", kinds[i].name, us);
    }
    CUDA(cudaFree(memory));
}

// =====================================================================================================================
// >>stack   decoder blocks without their attention, each with separate weights: what fusion and CUDA graphs gain
// =====================================================================================================================
// 8B shapes: 4096 wide, 32 and 8 heads of 128, 14336 within the block. Experts: 2048 wide, 768 within, 8 of 128. Also
// cases for plans and streams: keys and values that go into a cache, several small stacks in parallel, and chains of
// element-wise operations.
enum stack_kind { BLOCKS, CACHING, TOWERS, CHAINS };
// rows of a cache; stacks in parallel; devices that a stack is distributed over
enum { STACK_CACHE = 512, STACK_TOWERS = 4, STACK_PARTS = 4 };

struct stack {
    const char * name;
    enum gcuda_type type;
    int n_layers, n_experts;
    int64_t width, kv, ff, n;
    bool only_products; // its time shows what the other nodes cost
    enum stack_kind kind;
};

struct stack_mode {
    // lanes: concurrency. The caches' views are elsewhere with every run
    bool has_fusion, has_graphs, has_overlap, has_lanes, moves;
};

struct stack_graph {
    const struct stack * s;
    struct gcuda_context *weights, *ctx; // weights: of the blocks that are made just now
    gcuda_gallocr_t alloc;
    // one block after another, by device
    struct {
        struct gcuda_context * weights;
        gcuda_backend_buffer_t buffer;
    } parts[STACK_PARTS];
    int n_parts;
    struct gcuda_cgraph * graph;
    struct gcuda_tensor * x;
    double bytes; // of weights that are read; of chains: of all operands and results
};

static struct gcuda_tensor * stack_weight(
    struct stack_graph * g, enum gcuda_type type, int64_t ne0, int64_t ne1, int64_t ne2) {
    struct gcuda_tensor * w = gcuda_new_tensor_3d(g->weights, type, ne0, ne1, ne2);
    const int64_t read = ne2 > 1 ? 8 : 1; // experts
    if (w == NULL) { stop("stack"); }
    g->bytes += (double) gcuda_nbytes(w) * (double) read / (double) ne2;
    return w;
}

static struct gcuda_tensor * stack_norm(struct stack_graph * g, struct gcuda_tensor * x) {
    struct gcuda_tensor * w = stack_weight(g, GCUDA_TYPE_F32, g->s->width, 1, 1);
    return g->s->only_products ? x : gcuda_mul(g->ctx, gcuda_rms_norm(g->ctx, x, 1e-5f), w);
}

static struct gcuda_tensor * stack_product(struct stack_graph * g, struct gcuda_tensor * x, int64_t rows) {
    return gcuda_mul_mat(g->ctx, stack_weight(g, g->s->type, x->ne[0], rows, 1), x);
}

static struct gcuda_tensor * stack_add(struct stack_graph * g, struct gcuda_tensor * x, struct gcuda_tensor * y) {
    return g->s->only_products ? y : gcuda_add(g->ctx, x, y);
}

// Copies into a cache, which is allocated separately from the weights.
static struct gcuda_tensor * stack_cached(struct stack_graph * g, struct gcuda_tensor * kv) {
    struct gcuda_tensor * cache = gcuda_new_tensor_2d(g->ctx, GCUDA_TYPE_F16, kv->ne[0], STACK_CACHE);
    gcuda_set_input(cache);
    gcuda_set_output(cache);
    return gcuda_cpy(g->ctx, kv, gcuda_view_2d(g->ctx, cache, kv->ne[0], kv->ne[1], cache->nb[1], 0));
}

// All views of caches to another row.
static void stack_move(const struct stack_graph * g, int row) {
    for (int i = 0; i < gcuda_graph_n_nodes(g->graph); ++i) {
        struct gcuda_tensor * t = gcuda_graph_node(g->graph, i);
        if (t->op != GCUDA_OP_VIEW || t->view_src->type != GCUDA_TYPE_F16 || t->view_src->ne[1] != STACK_CACHE) {
            continue;
        }
        if (gcuda_graph_move_view(g->graph, t, (size_t) row * t->view_src->nb[1]) != GCUDA_STATUS_SUCCESS) {
            stop("a cache's view");
        }
    }
}

// Eight operations, with two operands of the size of what goes through them.
static struct gcuda_tensor * stack_chain(struct stack_graph * g, struct gcuda_tensor * x) {
    struct gcuda_context * c = g->ctx;
    struct gcuda_tensor *a = stack_weight(g, GCUDA_TYPE_F32, g->s->width, g->s->n, 1),
                        *w = stack_weight(g, GCUDA_TYPE_F32, g->s->width, g->s->n, 1);
    g->bytes += 2.0 * (double) gcuda_nbytes(x);
    struct gcuda_tensor * y = gcuda_silu(c, gcuda_mul(c, gcuda_add(c, gcuda_scale(c, x, 0.5f), a), w));
    return gcuda_tanh(c, gcuda_scale(c, gcuda_sub(c, gcuda_mul(c, y, a), w), 0.25f));
}

// Queries take the place of what attention makes of them; keys and values are made and end there.
static struct gcuda_tensor * stack_attention(struct stack_graph * g, struct gcuda_tensor * x) {
    struct gcuda_tensor *h = stack_norm(g, x), *q = stack_product(g, h, g->s->width);
    for (int i = 0; i < 2; ++i) {
        struct gcuda_tensor * kv = stack_product(g, h, g->s->kv);
        kv = g->s->kind == CACHING ? stack_cached(g, kv) : kv;
        gcuda_set_output(kv);
        (void) gcuda_build_forward_expand(g->graph, q);
        (void) gcuda_build_forward_expand(g->graph, kv);
    }
    return stack_add(g, x, stack_product(g, q, g->s->width));
}

static struct gcuda_tensor * stack_dense(struct stack_graph * g, struct gcuda_tensor * x) {
    struct gcuda_tensor *h = stack_norm(g, x), *gate = stack_product(g, h, g->s->ff),
                        *up = stack_product(g, h, g->s->ff);
    struct gcuda_tensor * a = gate;
    if (g->s->only_products) {
        (void) gcuda_build_forward_expand(g->graph, up);
    } else {
        a = gcuda_swiglu_split(g->ctx, gate, up);
    }
    return stack_add(g, x, stack_product(g, a, g->s->width));
}

static struct gcuda_tensor * stack_experts(struct stack_graph * g, struct gcuda_tensor * x) {
    const struct stack * s = g->s;
    const int used = 8;
    struct gcuda_context * c = g->ctx;
    struct gcuda_tensor * h = stack_norm(g, x);
    struct gcuda_tensor * probs =
        gcuda_soft_max(c, gcuda_mul_mat(c, stack_weight(g, GCUDA_TYPE_F32, s->width, s->n_experts, 1), h));
    struct gcuda_tensor * ids = gcuda_argsort_top_k(c, probs, used);
    struct gcuda_tensor * w = gcuda_get_rows(c, gcuda_reshape_3d(c, probs, 1, s->n_experts, s->n), ids); // [1, used, n]
    struct gcuda_tensor * flat = gcuda_reshape_2d(c, w, used, s->n);
    w = gcuda_reshape_3d(c, gcuda_div(c, flat, gcuda_sum_rows(c, flat)), 1, used, s->n);
    (void) gcuda_build_forward_expand(g->graph, w);
    struct gcuda_tensor * in = gcuda_reshape_3d(c, h, s->width, 1, s->n);
    struct gcuda_tensor * gate = gcuda_mul_mat_id(c, stack_weight(g, s->type, s->width, s->ff, s->n_experts), in, ids);
    struct gcuda_tensor * up = gcuda_mul_mat_id(c, stack_weight(g, s->type, s->width, s->ff, s->n_experts), in, ids);
    struct gcuda_tensor * down = stack_weight(g, s->type, s->ff, s->width, s->n_experts);
    struct gcuda_tensor *y = gcuda_mul(c, gcuda_mul_mat_id(c, down, gcuda_swiglu_split(c, gate, up), ids), w), *sum = x;
    (void) gcuda_build_forward_expand(g->graph, y);
    for (int i = 0; i < used; ++i) {
        sum = gcuda_add(c, sum, gcuda_view_2d(c, y, s->width, s->n, y->nb[2], (size_t) i * y->nb[1]));
    }
    return sum;
}

// One block after another.
static struct gcuda_tensor * stack_blocks(struct stack_graph * g, struct gcuda_tensor * x) {
    const struct stack * s = g->s;
    for (int i = 0; i < s->n_layers; ++i) {
        g->weights = g->parts[i * g->n_parts / s->n_layers].weights;
        x = s->n_experts > 0    ? stack_experts(g, x)
            : s->kind == CHAINS ? stack_chain(g, x)
            : s->kind == TOWERS ? stack_dense(g, x)
                                : stack_dense(g, stack_attention(g, x));
        if (s->only_products) { gcuda_set_output(x); }
    }
    return x;
}

static void stack_build(const struct stack * s, struct stack_graph * g, int n_parts) {
    const struct gcuda_init_params params = { 0, NULL, true };
    memset(g, 0, sizeof *g);
    g->s = s;
    g->n_parts = n_parts;
    for (int i = 0; i < n_parts; ++i) { g->parts[i].weights = gcuda_init(params); }
    g->ctx = gcuda_init(params);
    g->graph = gcuda_new_graph_custom(g->ctx, 4096, false);
    struct gcuda_tensor * x = g->x = gcuda_new_tensor_2d(g->ctx, GCUDA_TYPE_F32, s->width, s->n);
    gcuda_set_input(x);
    if (s->kind == TOWERS) { // what all of them begin with
        g->weights = g->parts[0].weights;
        x = stack_norm(g, x);
    }
    struct gcuda_tensor * base = x;
    x = stack_blocks(g, x);
    for (int i = 1; i < STACK_TOWERS && s->kind == TOWERS; ++i) { x = gcuda_add(g->ctx, x, stack_blocks(g, base)); }
    gcuda_set_output(x);
    if (gcuda_build_forward_expand(g->graph, x) != GCUDA_STATUS_SUCCESS) { stop(s->name); }
}

static void stack_weights(struct stack_graph * g, const gcuda_backend_t * backends) {
    for (int i = 0; i < g->n_parts; ++i) {
        struct gcuda_context * weights = g->parts[i].weights;
        g->parts[i].buffer = gcuda_backend_alloc_ctx_tensors(weights, backends[i]);
        if (g->parts[i].buffer == NULL) { stop(g->s->name); }
        gcuda_backend_buffer_set_usage(g->parts[i].buffer, GCUDA_BACKEND_BUFFER_USAGE_WEIGHTS);
        for (struct gcuda_tensor * w = gcuda_get_first_tensor(weights); w != NULL;
             w = gcuda_get_next_tensor(weights, w)) {
            const struct leaf l = { w, FLOATS, 0 };
            fill(&l);
        }
    }
}

static void stack_begin(struct bench * b, const struct stack * s, struct stack_graph * g) {
    stack_build(s, g, 1);
    stack_weights(g, &b->backend);
    g->alloc = gcuda_gallocr_new(gcuda_backend_get_default_buffer_type(b->backend));
    gcuda_gallocr_set_concurrent(g->alloc, s->kind == TOWERS);
    if (gcuda_gallocr_alloc_graph(g->alloc, g->graph) != GCUDA_STATUS_SUCCESS) { stop(s->name); }
    const struct leaf l = { g->x, FLOATS, 0 };
    fill(&l);
}

static void stack_end(struct stack_graph * g) {
    gcuda_gallocr_free(g->alloc);
    gcuda_free(g->ctx);
    for (int i = 0; i < g->n_parts; ++i) {
        gcuda_backend_buffer_free(g->parts[i].buffer);
        gcuda_free(g->parts[i].weights);
    }
}

static size_t stack_kernels(gcuda_backend_t backend, const struct stack_graph * g) {
    const cudaStream_t stream = gcuda_backend_cuda_get_stream(backend);
    cudaGraph_t graph = NULL;
    size_t n = 0;
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    if (gcuda_backend_graph_compute_async(backend, g->graph) != GCUDA_STATUS_SUCCESS) { stop(g->s->name); }
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphGetNodes(graph, NULL, &n));
    CUDA(cudaGraphDestroy(graph));
    return n;
}

static const char * on(bool is_on) { return is_on ? "on" : "off"; }

static gcuda_backend_t stack_backend(const struct bench * b, const struct stack_mode * m) {
    struct gcuda_cuda_params params;
    int device = 0;
    CUDA(cudaGetDevice(&device));
    memset(&params, 0, sizeof params);
    params.device = device;
    params.stream = m->has_lanes ? NULL : b->stream; // with the caller's stream no others are used
    params.fusion = m->has_fusion ? GCUDA_CUDA_ON : GCUDA_CUDA_OFF;
    params.graphs = m->has_graphs ? GCUDA_CUDA_ON : GCUDA_CUDA_OFF;
    params.overlap = m->has_overlap ? GCUDA_CUDA_ON : GCUDA_CUDA_OFF;
    params.concurrency = m->has_lanes ? GCUDA_CUDA_ON : GCUDA_CUDA_OFF;
    gcuda_backend_t backend = gcuda_backend_cuda_init_params(&params);
    if (backend == NULL) { stop("backend"); }
    return backend;
}

// The time of what moves has the host's part in it, which the device waits for.
static void stack_time(struct bench * b, const struct stack_graph * g, const struct stack_mode * m) {
    const struct stack * s = g->s;
    float samples[MIN_LAUNCHES];
    gcuda_backend_t backend = stack_backend(b, m);
    const cudaStream_t stream = gcuda_backend_cuda_get_stream(backend);
    for (int i = -4; i < MIN_LAUNCHES; ++i) {
        if (m->moves) { stack_move(g, i + 4); }
        CUDA(cudaEventRecord(b->begin, stream));
        if (gcuda_backend_graph_compute_async(backend, g->graph) != GCUDA_STATUS_SUCCESS) { stop(s->name); }
        CUDA(cudaEventRecord(b->end, stream));
        const double us = elapsed_us(b);
        if (i >= 0) { samples[i] = (float) us; }
    }
    qsort(samples, MIN_LAUNCHES, sizeof samples[0], by_value);
    const double us = (double) samples[MIN_LAUNCHES / 2], gbs = g->bytes / us * 1e-3;
    struct gcuda_cuda_plan_stats stats;
    char beside[48] = "";
    if (gcuda_backend_cuda_get_plan_stats(backend, &stats) != GCUDA_STATUS_SUCCESS) { stop(s->name); }
    if (s->kind == TOWERS) {
        snprintf(beside, sizeof beside, ", %d launches on other streams", (int) stats.n_concurrent);
    }
    printf("%-34s fusion %-3s graphs %-3s overlap %-3s %9.1f us  %5.2f kernels a block  %7.0f "
           "GB/s%s, %3.0f%% of reading%s%s\n",
        s->name, on(m->has_fusion), on(m->has_graphs), on(m->has_overlap), us,
        (double) stack_kernels(backend, g) / s->n_layers, gbs, s->kind == CHAINS ? "" : " of weights",
        b->read_gbs > 0.0 ? 100.0 * gbs / b->read_gbs : 0.0, beside, m->moves ? ", another place each time" : "");
    fflush(stdout);
    gcuda_backend_free(backend);
}

static void stacks(struct bench * b) {
    static const struct stack all[] = {
        { "8B q4_0, 1 column", GCUDA_TYPE_Q4_0, 32, 0, 4096, 1024, 14336, 1, false, BLOCKS },
        { "8B q4_0, 1 column, products alone", GCUDA_TYPE_Q4_0, 32, 0, 4096, 1024, 14336, 1, true, BLOCKS },
        { "8B f16, 1 column", GCUDA_TYPE_F16, 32, 0, 4096, 1024, 14336, 1, false, BLOCKS },
        { "8 of 128 experts q4_0, 1 column", GCUDA_TYPE_Q4_0, 16, 128, 2048, 0, 768, 1, false, BLOCKS },
        { "8B q4_0, 512 columns", GCUDA_TYPE_Q4_0, 32, 0, 4096, 1024, 14336, 512, false, BLOCKS },
        { "8B q4_0, 512 columns, products alone", GCUDA_TYPE_Q4_0, 32, 0, 4096, 1024, 14336, 512, true, BLOCKS },
        { "8B q4_0, 1 column, into a cache", GCUDA_TYPE_Q4_0, 32, 0, 4096, 1024, 14336, 1, false, CACHING },
        { "4 towers q4_0 1024 wide, 1 column", GCUDA_TYPE_Q4_0, 2, 0, 1024, 0, 2816, 1, false, TOWERS },
        { "chains of 8 operations, 4096 x 512", GCUDA_TYPE_F32, 16, 0, 4096, 0, 0, 512, false, CHAINS },
        { "chains of 8 operations, 4096", GCUDA_TYPE_F32, 16, 0, 4096, 0, 0, 1, false, CHAINS },
    };
    static const struct {
        enum stack_kind kind;
        struct stack_mode mode;
    } modes[] = {
        { BLOCKS, { true, true, true, false, false } },
        { BLOCKS, { true, true, false, false, false } },
        { BLOCKS, { false, true, true, false, false } },
        { BLOCKS, { false, true, false, false, false } },
        { BLOCKS, { true, false, true, false, false } },
        { BLOCKS, { true, false, false, false, false } },
        { BLOCKS, { false, false, true, false, false } },
        { BLOCKS, { false, false, false, false, false } },
        { CACHING, { true, true, true, false, false } },
        { CACHING, { true, true, true, false, true } },
        { CACHING, { true, false, true, false, true } },
        { TOWERS, { true, true, true, false, false } },
        { TOWERS, { true, true, false, false, false } },
        { TOWERS, { true, true, false, true, false } },
        { CHAINS, { true, true, true, false, false } },
        { CHAINS, { false, true, true, false, false } },
    };
    printf("\n=== decoder blocks without attention: median of %d computations by the host, "
           "whose CUDA graphs are compared with none\n",
        MIN_LAUNCHES);
    for (int i = 0; i < COUNT(all); ++i) {
        struct stack_graph g;
        if (!wanted(b, all[i].name)) { continue; }
        stack_begin(b, &all[i], &g);
        for (int k = 0; k < COUNT(modes); ++k) {
            if (modes[k].kind == all[i].kind) { stack_time(b, &g, &modes[k].mode); }
        }
        stack_end(&g);
    }
}

// =====================================================================================================================
// >>decoder   whole models: the graphs that examples/llm.h builds, with weights and caches of random numbers
// =====================================================================================================================
// A row is the graph of one evaluation: embeddings, all layers with their attention and cache writes, last norm and
// output matrix.
//   read   weights that are read (only the experts that a token uses) and the visible part of the cache: share of the
//          ceiling in percent
//   gemm   operations of all products and of attention without its masked half: share of cuBLAS F16, 8192^3, in percent
// Time of each family of kernels: a CUDA graph of its kernels alone, one after another. The difference between their
// sum and the whole is overlap. DECODER_BEST: of the logits, as examples/llm.c asks for
enum { DECODER_CONTEXT = 32768, DECODER_RUNS = 50, DECODER_BEST = 64 };
#define DECODER_MAX_US 0.4e6 // a row's measurement aims at

struct decoder {
    const char *name, *arch;
    // half: of values and last matrix in every second layer, and of the output matrix
    enum gcuda_type type, half;
    int64_t n_layers, n_embd, n_ff, n_heads, n_kv, n_experts, n_used, n_ff_expert;
};
enum { DECODER_HEAD = 128, DECODER_VOCAB = 128256 };

struct decoder_model {
    const struct decoder * d;
    struct llm_model model;
    struct llmi_build build;
    struct gcuda_context * weights; // and caches
    gcuda_backend_buffer_t buffer;
    const struct gcuda_tensor * filled[GCUDA_TYPE_COUNT]; // the first of each type
    double bytes, flop; // of a token: weights that are read, operations of all products but the output's
    double head_bytes, head_flop;
};

static void decoder_ok(bool is_ok, const char * what) {
    if (!is_ok) { stop(what); }
}

static enum gcuda_type decoder_type(const struct decoder * d, const struct llmi_tensor_row * row, int64_t layer) {
    const bool is_half = strstr(row->name, "attn_v.") != NULL || strstr(row->name, "ffn_down") != NULL;
    if (row->ne[1] == LLMI_ONE || strstr(row->name, "ffn_gate_inp") != NULL) { return GCUDA_TYPE_F32; }
    return (is_half && layer % 2 == 0) || strcmp(row->name, "output.weight") == 0 ? d->half : d->type;
}

// Every tensor that the architecture needs.
static void decoder_tensors(
    struct decoder_model * g, const struct llmi_tensor_row * rows, int n_rows, void * fields, int64_t layer) {
    const struct llmi_params * p = &g->model.params;
    for (int i = 0; i < n_rows; ++i) {
        if ((rows[i].needs & g->model.traits) == 0) { continue; }
        struct gcuda_tensor * t = gcuda_new_tensor_3d(g->weights, decoder_type(g->d, &rows[i], layer),
            llmi_size(p, rows[i].ne[0]), llmi_size(p, rows[i].ne[1]), llmi_size(p, rows[i].ne[2]));
        decoder_ok(t != NULL, g->d->name);
        *(struct gcuda_tensor **) (void *) ((char *) fields + rows[i].field) = t;
        const double share = rows[i].ne[2] == LLMI_EXPERTS ? (double) p->n_used / (double) p->n_experts : 1.0;
        const bool is_embd = strcmp(rows[i].name, "token_embd.weight") == 0,
                   is_head = strcmp(rows[i].name, "output.weight") == 0;
        const double flop = rows[i].ne[1] == LLMI_ONE || is_embd ? 0.0 : 2.0 * (double) gcuda_nelements(t) * share;
        g->head_bytes += is_head ? (double) gcuda_nbytes(t) : 0.0;
        g->head_flop += is_head ? flop : 0.0;
        g->bytes += is_embd || is_head ? 0.0 : (double) gcuda_nbytes(t) * share;
        g->flop += is_head ? 0.0 : flop;
    }
}

static void decoder_params(const struct decoder * d, struct llm_model * m) {
    static const struct llmi_rope rope = { 500000.0f, 1.0f, 0.0f, 1.0f, 32.0f, 1.0f };
    struct llmi_params * p = &m->params;
    for (int i = 0; i < COUNT(llmi_archs); ++i) {
        m->arch = strcmp(d->arch, llmi_archs[i].name) == 0 ? &llmi_archs[i] : m->arch;
    }
    decoder_ok(m->arch != NULL, d->name);
    m->traits = m->arch->traits | LLMI_SPLIT_QKV | LLMI_OWN_OUTPUT;
    if (d->n_experts > 0) { m->traits = (m->traits & ~LLMI_DENSE) | LLMI_MOE; }
    p->n_vocab = DECODER_VOCAB;
    p->n_ctx = p->n_ctx_orig = DECODER_CONTEXT;
    p->n_embd = d->n_embd, p->n_layers = d->n_layers, p->n_ff = d->n_ff, p->n_heads = d->n_heads, p->n_kv = d->n_kv;
    p->head = p->n_rot = DECODER_HEAD;
    p->n_experts = d->n_experts, p->n_used = d->n_used, p->n_ff_expert = d->n_ff_expert;
    p->eps = 1e-5f;
    p->q_scale = 1.0f / sqrtf((float) p->head);
    p->rope[0] = p->rope[1] = rope;
}

// Random numbers: of each type one megabyte from the host, and copies of it on the device.
static void decoder_fill(struct decoder_model * g, struct gcuda_tensor * t) {
    const struct gcuda_tensor * like = g->filled[t->type];
    const size_t n_bytes = gcuda_nbytes(t);
    if (like == NULL || gcuda_nbytes(like) < n_bytes / 64) {
        const struct leaf l = { t, FLOATS, 0 };
        fill(&l);
        g->filled[t->type] = t;
        return;
    }
    size_t done = gcuda_nbytes(like) < n_bytes ? gcuda_nbytes(like) : n_bytes;
    CUDA(cudaMemcpy(t->data, like->data, done, cudaMemcpyDeviceToDevice));
    while (done < n_bytes) {
        const size_t n = n_bytes - done < done ? n_bytes - done : done;
        CUDA(cudaMemcpy((char *) t->data + done, t->data, n, cudaMemcpyDeviceToDevice));
        done += n;
    }
}

static void decoder_begin(struct bench * b, const struct decoder * d, struct decoder_model * g) {
    const struct gcuda_init_params params = { 0, NULL, true };
    memset(g, 0, sizeof *g);
    g->d = d;
    g->weights = gcuda_init(params);
    decoder_params(d, &g->model);
    const size_t n = (size_t) d->n_layers;
    g->model.layers = (struct llmi_layer *) calloc(n, sizeof *g->model.layers);
    g->model.has_window = (bool *) calloc(n, sizeof *g->model.has_window);
    g->build.k_cache = (struct gcuda_tensor **) calloc(n, sizeof(struct gcuda_tensor *));
    g->build.v_cache = (struct gcuda_tensor **) calloc(n, sizeof(struct gcuda_tensor *));
    decoder_ok(g->model.layers && g->model.has_window && g->build.k_cache && g->build.v_cache, d->name);
    decoder_tensors(g, llmi_weight_rows, COUNT(llmi_weight_rows), &g->model.w, 0);
    for (int64_t i = 0; i < d->n_layers; ++i) {
        decoder_tensors(g, llmi_layer_rows, COUNT(llmi_layer_rows), &g->model.layers[i], i);
        g->build.k_cache[i] = gcuda_new_tensor_2d(g->weights, GCUDA_TYPE_F16, DECODER_HEAD * d->n_kv, DECODER_CONTEXT);
        g->build.v_cache[i] = gcuda_new_tensor_2d(g->weights, GCUDA_TYPE_F16, DECODER_HEAD * d->n_kv, DECODER_CONTEXT);
    }
    g->buffer = gcuda_backend_alloc_ctx_tensors(g->weights, b->backend);
    decoder_ok(g->buffer != NULL, d->name);
    for (struct gcuda_tensor * t = gcuda_get_first_tensor(g->weights); t != NULL;
         t = gcuda_get_next_tensor(g->weights, t)) {
        decoder_fill(g, t);
    }
    CUDA(cudaDeviceSynchronize());
    g->build.m = &g->model;
    g->build.p = &g->model.params;
    g->build.ctx = gcuda_init(params);
}

static void decoder_end(struct decoder_model * g) {
    gcuda_free(g->build.ctx);
    gcuda_backend_buffer_free(g->buffer);
    gcuda_free(g->weights);
    free(g->model.layers);
    free(g->model.has_window);
    free(g->build.k_cache);
    free(g->build.v_cache);
}

// Inputs that stay for every run. The allocator places them here, unlike in examples/llm.h: without OUTPUT their memory
// would be reused.
static void decoder_keep(const struct llmi_build * g) {
    struct gcuda_tensor * const all[] = { g->in.tokens, g->in.positions, g->in.cells[0], g->in.outputs, g->in.mask[0] };
    for (int i = 0; i < COUNT(all); ++i) { gcuda_set_output(all[i]); }
}

// An input that the graph does not read has no memory: `outputs`, where all tokens are wanted.
static void decoder_set(struct gcuda_tensor * t, const void * data) {
    if (t->data == NULL) { return; }
    decoder_ok(gcuda_backend_tensor_set(t, data, 0, gcuda_nbytes(t)) == GCUDA_STATUS_SUCCESS, t->name);
}

// Tokens at the positions before `context`, all of one sequence.
static void decoder_inputs(const struct llmi_build * g, int context) {
    const int n = g->key.n_tokens, n_kv = g->key.n_kv[0];
    int32_t * ints = (int32_t *) malloc((size_t) n * 2 * sizeof *ints);
    const int32_t last = n - 1;
    uint16_t * mask = (uint16_t *) malloc((size_t) n * (size_t) n_kv * sizeof *mask);
    decoder_ok(ints != NULL && mask != NULL, "malloc");
    for (int i = 0; i < n; ++i) {
        ints[i] = (int32_t) (random_bits() % DECODER_VOCAB);
        ints[n + i] = context - n + i;
        for (int k = 0; k < n_kv; ++k) {
            mask[(size_t) i * (size_t) n_kv + (size_t) k] = k <= ints[n + i] ? 0 : 0xFC00;
        }
    }
    decoder_set(g->in.tokens, ints);
    decoder_set(g->in.positions, ints + n);
    decoder_set(g->in.cells[0], ints + n);
    decoder_set(g->in.outputs, &last);
    decoder_set(g->in.mask[0], mask);
    free(ints);
    free(mask);
}

// ---- families of kernels ----

enum family { ATTENTION, PRODUCTS, ELEMENTS, HEAD, N_FAMILIES }; // HEAD: from the output matrix on
static const char * const family_names[N_FAMILIES] = { "attention", "products and routing", "norms, rope, elements",
    "head" };

struct families {
    double us[N_FAMILIES];
    int n[N_FAMILIES];
};

#if HAS_LIBRARY
enum { MAX_KERNELS = 8192 };

static enum family family_of(const char * kernel) {
    static const struct {
        const char * part;
        enum family family;
    } parts[] = {
        { "k_attn", ATTENTION },
        { "k_flash_attn", ATTENTION },
        { "mul_mat", PRODUCTS },
        { "k_wg_", PRODUCTS },
        { "gemm", PRODUCTS },
        { "k_route", PRODUCTS },
        { "k_gather", PRODUCTS },
        { "k_dequantize", PRODUCTS },
        { "k_half_rows", PRODUCTS },
        { "cublas", PRODUCTS },
        { "cutlass", PRODUCTS },
        { "xmma", PRODUCTS },
        { "nvjet", PRODUCTS },
        { "splitK", PRODUCTS },
    };
    for (int i = 0; i < COUNT(parts); ++i) {
        if (strstr(kernel, parts[i].part) != NULL) { return parts[i].family; }
    }
    return ELEMENTS;
}

static cudaError_t add_edge(cudaGraph_t graph, cudaGraphNode_t from, cudaGraphNode_t to) {
#if CUDART_VERSION >= 13000
    return cudaGraphAddDependencies(graph, &from, &to, NULL, 1);
#else
    return cudaGraphAddDependencies(graph, &from, &to, 1);
#endif
}

// The graph without the nodes of other families; those that were apart follow each other.
static cudaError_t keep_family(
    cudaGraph_t graph, const cudaGraphNode_t * nodes, const enum family * of, size_t n, enum family which) {
    static cudaGraphNode_t own[MAX_KERNELS];
    cudaError_t err = cudaSuccess;
    size_t last = n;
    for (size_t i = 0; i < n && err == cudaSuccess; ++i) {
        err = cudaGraphNodeFindInClone(&own[i], nodes[i], graph);
        if (err != cudaSuccess || of[i] != which) { continue; }
        if (last < n && last + 1 != i) { err = add_edge(graph, own[last], own[i]); }
        last = i;
    }
    for (size_t i = 0; i < n && err == cudaSuccess; ++i) { err = of[i] != which ? cudaGraphDestroyNode(own[i]) : err; }
    return err;
}

// The time of one family's kernels, one after another; -1: CUDA refused, and says why.
static double family_us(struct bench * b, cudaGraph_t captured, const cudaGraphNode_t * nodes, const enum family * of,
    size_t n, enum family which) {
    enum { REPLAYS = 7 };
    float samples[REPLAYS];
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    CUDA(cudaGraphClone(&graph, captured));
    cudaError_t err = keep_family(graph, nodes, of, n, which);
    err = err == cudaSuccess ? cudaGraphInstantiate(&exec, graph, 0) : err;
    for (int i = -2; i < REPLAYS && err == cudaSuccess; ++i) {
        CUDA(cudaEventRecord(b->begin, b->stream));
        CUDA(cudaGraphLaunch(exec, b->stream));
        CUDA(cudaEventRecord(b->end, b->stream));
        const double us = elapsed_us(b);
        if (i >= 0) { samples[i] = (float) us; }
    }
    if (exec != NULL) { CUDA(cudaGraphExecDestroy(exec)); }
    CUDA(cudaGraphDestroy(graph));
    if (err != cudaSuccess) {
        printf("    %s by itself: %s\n", family_names[which], cudaGetErrorString(err));
        (void) cudaGetLastError();
        return -1.0;
    }
    qsort(samples, REPLAYS, sizeof samples[0], by_value);
    return (double) samples[REPLAYS / 2];
}

// The launches of a computation as captured, all on one stream. A family that runs alone reads stale results of the
// others. Routing belongs to the products, so that they get experts that exist.
static void families_of(struct bench * b, gcuda_backend_t backend, struct gcuda_cgraph * graph, struct families * f) {
    static cudaGraphNode_t nodes[MAX_KERNELS];
    static enum family of[MAX_KERNELS];
    cudaGraph_t captured = NULL;
    size_t n = MAX_KERNELS, last_product = 0;
    memset(f, 0, sizeof *f);
    CUDA(cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeRelaxed));
    decoder_ok(gcuda_backend_graph_compute_async(backend, graph) == GCUDA_STATUS_SUCCESS, "a capture");
    CUDA(cudaStreamEndCapture(b->stream, &captured));
    CUDA(cudaGraphGetNodes(captured, nodes, &n));
    for (size_t i = 0; i < n; ++i) {
        enum cudaGraphNodeType type;
        struct cudaKernelNodeParams params;
        const char * name = NULL;
        CUDA(cudaGraphNodeGetType(nodes[i], &type));
        if (type == cudaGraphNodeTypeKernel && cudaGraphKernelNodeGetParams(nodes[i], &params) == cudaSuccess) {
            (void) cudaFuncGetName(&name, params.func);
        }
        (void) cudaGetLastError();
        of[i] = family_of(name != NULL ? name : "");
        if (of[i] == PRODUCTS && strstr(name, "k_route") == NULL) { last_product = i; }
    }
    for (size_t i = last_product; i < n; ++i) { of[i] = HEAD; }
    for (size_t i = 0; i < n; ++i) { f->n[of[i]]++; }
    for (int k = 0; k < N_FAMILIES; ++k) {
        f->us[k] = f->n[k] > 0 ? family_us(b, captured, nodes, of, n, (enum family) k) : 0.0;
    }
    CUDA(cudaGraphDestroy(captured));
    // what it says about indices is about numbers that the other families would have made
    (void) gcuda_backend_synchronize(backend);
}
#else
static void families_of(struct bench * b, gcuda_backend_t backend, struct gcuda_cgraph * graph, struct families * f) {
    (void) b, (void) backend, (void) graph;
    memset(f, 0, sizeof *f);
}
#endif

// ---- rows ----

struct decoder_run {
    const char * name;
    int n_tokens, context; // tokens are the last ones of the context
};

// Two computations in a row, of which the second is timed: it waits for no work of the host.
static double decoder_us(struct bench * b, gcuda_backend_t backend, struct gcuda_cgraph * graph) {
    float samples[DECODER_RUNS];
    int n = 0;
    double total = 0.0;
    // the first ones make scratch and the CUDA graph
    for (int i = -2; n < 3 || (n < DECODER_RUNS && total < DECODER_MAX_US); ++i) {
        decoder_ok(gcuda_backend_graph_compute_async(backend, graph) == GCUDA_STATUS_SUCCESS, "computing");
        CUDA(cudaEventRecord(b->begin, b->stream));
        decoder_ok(gcuda_backend_graph_compute_async(backend, graph) == GCUDA_STATUS_SUCCESS, "computing");
        CUDA(cudaEventRecord(b->end, b->stream));
        const double us = elapsed_us(b);
        if (i < 0) { continue; }
        samples[n++] = (float) us;
        total += 2.0 * us;
    }
    decoder_ok(gcuda_backend_synchronize(backend) == GCUDA_STATUS_SUCCESS, "indices");
    qsort(samples, (size_t) n, sizeof samples[0], by_value);
    return (double) samples[n / 2];
}

// Median time of looking up and launching the graph: what a token costs the host.
static double decoder_host_us(gcuda_backend_t backend, struct gcuda_cgraph * graph) {
    enum { RUNS = 15 };
    float samples[RUNS];
    for (int i = 0; i < RUNS; ++i) {
        const int64_t from = gcuda_time_us();
        decoder_ok(gcuda_backend_graph_compute_async(backend, graph) == GCUDA_STATUS_SUCCESS, "computing");
        samples[i] = (float) (gcuda_time_us() - from);
        decoder_ok(gcuda_backend_synchronize(backend) == GCUDA_STATUS_SUCCESS, "computing");
    }
    qsort(samples, RUNS, sizeof samples[0], by_value);
    return (double) samples[RUNS / 2];
}

static void decoder_print(struct bench * b, const struct decoder_model * g, const struct decoder_run * r, double us,
    double host_us, const struct families * f) {
    const struct llmi_params * p = &g->model.params;
    const double n = (double) r->n_tokens, seen = (double) r->context, layers = (double) p->n_layers;
    const double cache = layers * 2.0 * (double) (p->n_kv * p->head) * 2.0 * seen,
                 visible = n * (seen - n) + n * (n + 1.0) / 2.0;
    const double flop = n * g->flop + g->head_flop + layers * 4.0 * (double) (p->n_heads * p->head) * visible;
    const double gbs = (g->bytes + g->head_bytes + cache) / us * 1e-3, tflops = flop / us * 1e-6;
    const bool is_prompt = r->n_tokens > 1;
    char speed[64], text[96];
    if (is_prompt) {
        snprintf(speed, sizeof speed, "%5.1f TFLOP/s, %4.1f%% of gemm", tflops,
            b->gemm_tflops > 0.0 ? 100.0 * tflops / b->gemm_tflops : 0.0);
    } else {
        snprintf(speed, sizeof speed, "%5.0f GB/s, %4.1f%% of read", gbs,
            b->read_gbs > 0.0 ? 100.0 * gbs / b->read_gbs : 0.0);
    }
    snprintf(text, sizeof text, "%s, %s", g->d->name, r->name);
    printf("%-38s %10.1f us %9.1f tokens/s  %-30s host %.0f us\n", text, us, n / us * 1e6, speed, host_us);
    printf("    ");
    for (int k = 0; k < N_FAMILIES; ++k) {
        printf("%s %.1f us (%d)%s", family_names[k], f->us[k], f->n[k], k + 1 < N_FAMILIES ? ", " : "\n");
    }
    if (b->json != NULL) {
        fprintf(b->json,
            "%s\n  {\"name\": \"%s\", \"us_rotated\": %.3f, \"gb_s\": %.1f, \"tflop_s\": %.3f, \"host_us\": %.1f",
            b->n_rows > 0 ? "," : "", text, us, gbs, tflops, host_us);
        for (int k = 0; k < N_FAMILIES; ++k) { fprintf(b->json, ", \"us_%s\": %.1f", family_names[k], f->us[k]); }
        fprintf(b->json, "}");
    }
    b->n_rows++;
    fflush(stdout);
}

static void decoder_row(
    struct bench * b, struct decoder_model * g, gcuda_backend_t backend, const struct decoder_run * r) {
    struct gcuda_tensor * result = NULL;
    struct families f;
    g->build.key.n_tokens = r->n_tokens;
    g->build.key.n_kv[0] = (int32_t) llmi_pad(r->context, LLMI_KV_STEP);
    g->build.key.n_outputs = 1;
    g->build.n_best = DECODER_BEST;
    decoder_ok(
        llmi_build_graph(&g->build, (size_t) llmi_n_nodes(&g->model), &result) == GCUDA_STATUS_SUCCESS, g->d->name);
    decoder_keep(&g->build);
    gcuda_gallocr_t alloc = gcuda_gallocr_new(gcuda_backend_get_default_buffer_type(backend));
    decoder_ok(gcuda_gallocr_alloc_graph(alloc, g->build.graph) == GCUDA_STATUS_SUCCESS, g->d->name);
    decoder_inputs(&g->build, r->context);
    const double us = decoder_us(b, backend, g->build.graph), host_us = decoder_host_us(backend, g->build.graph);
    families_of(b, backend, g->build.graph, &f);
    decoder_print(b, g, r, us, host_us, &f);
    gcuda_gallocr_free(alloc);
}

static void decoders(struct bench * b) {
    static const struct decoder all[] = {
        { "8B q4_0", "llama", GCUDA_TYPE_Q4_0, GCUDA_TYPE_Q4_0, 32, 4096, 14336, 32, 8, 0, 0, 0 },
        { "8B q4_K, q6_K", "llama", GCUDA_TYPE_Q4_K, GCUDA_TYPE_Q6_K, 32, 4096, 14336, 32, 8, 0, 0, 0 },
        { "8B f16", "llama", GCUDA_TYPE_F16, GCUDA_TYPE_F16, 32, 4096, 14336, 32, 8, 0, 0, 0 },
        { "30B-A3B q4_0", "qwen3moe", GCUDA_TYPE_Q4_0, GCUDA_TYPE_Q4_0, 48, 2048, 6144, 32, 4, 128, 8, 768 },
    };
    static const struct decoder_run runs[] = {
        { "one token at 1", 1, 1 },
        { "one token at 4096", 1, 4096 },
        { "one token at 32768", 1, DECODER_CONTEXT },
        { "prompt of 512", 512, 512 },
        { "prompt of 2048", 2048, 2048 },
        { "prompt of 4096", 4096, 4096 },
    };
    static const struct stack_mode mode = { true, true, true, false, false };
    printf("\n=== whole models, as examples/llm.h computes them: median of up to %d; each "
           "family of kernels by itself (and how many there are)\n",
        DECODER_RUNS);
    for (int i = 0; i < COUNT(all); ++i) {
        struct decoder_model g;
        bool is_made = false;
        gcuda_backend_t backend = NULL;
        for (int k = 0; k < COUNT(runs); ++k) {
            char text[96];
            snprintf(text, sizeof text, "%s, %s", all[i].name, runs[k].name);
            if (!wanted(b, text) || (b->deadline_us != 0 && gcuda_time_us() > b->deadline_us)) { continue; }
            if (!is_made) {
                decoder_begin(b, &all[i], &g);
                backend = stack_backend(b, &mode);
            }
            is_made = true;
            decoder_row(b, &g, backend, &runs[k]);
        }
        if (!is_made) { continue; }
        gcuda_backend_free(backend);
        decoder_end(&g);
    }
}

// =====================================================================================================================
// >>pair   several GPUs: products with row-split weights, and the decoder blocks distributed, with several batches in
//          flight
// =====================================================================================================================
enum { PAIR_RUNS = 5, PAIR_BATCHES = 50, PAIR_UNDER_WAY = 4, PAIR_DEVICES = STACK_PARTS };

struct pair_product {
    struct gcuda_context *weights, *ctx;
    gcuda_backend_buffer_t buffer;
    gcuda_gallocr_t alloc;
    struct gcuda_cgraph * graph;
    struct gcuda_tensor *x, *y;
};

enum { PAIR_K = 16384, PAIR_M = 28672 };

// Blocks of all rows, made once; they stay.
static const char * pair_weights(void) {
    static char * host;
    if (host == NULL) {
        const size_t size = PAIR_M * gcuda_row_size(GCUDA_TYPE_Q4_0, PAIR_K);
        host = (char *) malloc(size);
        if (host == NULL) { stop("malloc"); }
        random_state = 1;
        fill_blocks(GCUDA_TYPE_Q4_0, host, size);
    }
    random_state = 2; // of the columns that follow
    return host;
}

// Q4_0 of m x 16384, by n columns; equal values in every type of buffer.
static void pair_begin(
    struct bench * b, gcuda_backend_buffer_type_t buft, int64_t m, int64_t n, struct pair_product * p) {
    const struct gcuda_init_params params = { 0, NULL, true };
    p->weights = gcuda_init(params);
    p->ctx = gcuda_init(params);
    p->graph = gcuda_new_graph(p->ctx);
    struct gcuda_tensor * w = gcuda_new_tensor_2d(p->weights, GCUDA_TYPE_Q4_0, PAIR_K, m);
    p->x = gcuda_new_tensor_2d(p->ctx, GCUDA_TYPE_F32, PAIR_K, n);
    p->y = gcuda_mul_mat(p->ctx, w, p->x);
    gcuda_set_input(p->x);
    gcuda_set_output(p->y);
    p->buffer = gcuda_backend_alloc_ctx_tensors_from_buft(p->weights, buft);
    p->alloc = gcuda_gallocr_new(gcuda_backend_get_default_buffer_type(b->backend));
    if (p->buffer == NULL || gcuda_build_forward_expand(p->graph, p->y) != GCUDA_STATUS_SUCCESS ||
        gcuda_gallocr_alloc_graph(p->alloc, p->graph) != GCUDA_STATUS_SUCCESS) {
        stop("pair");
    }
    if (gcuda_backend_tensor_set(w, pair_weights(), 0, gcuda_nbytes(w)) != GCUDA_STATUS_SUCCESS) { stop("weights"); }
    const struct leaf l = { p->x, FLOATS, 0 };
    fill(&l);
}

static void pair_end(struct pair_product * p) {
    gcuda_gallocr_free(p->alloc);
    gcuda_backend_buffer_free(p->buffer);
    gcuda_free(p->ctx);
    gcuda_free(p->weights);
}

// Work that cannot be captured: as many computations in a row as a graph would have, enqueued by the host.
static double time_in_a_row(struct bench * b, void (*enqueue)(void *, int), void * user) {
    float samples[PAIR_RUNS];
    for (int i = -1; i < PAIR_RUNS; ++i) {
        CUDA(cudaEventRecord(b->begin, b->stream));
        for (int k = 0; k < MIN_LAUNCHES; ++k) { enqueue(user, k); }
        CUDA(cudaEventRecord(b->end, b->stream));
        const double us = elapsed_us(b);
        if (i >= 0) { samples[i] = (float) (us / MIN_LAUNCHES); }
    }
    qsort(samples, PAIR_RUNS, sizeof samples[0], by_value);
    return (double) samples[PAIR_RUNS / 2];
}

static double pair_time(struct bench * b, gcuda_backend_t backend, struct pair_product * p, bool is_captured) {
    struct computing c = { backend, &p->graph, 1, NULL };
    return is_captured ? time_launches(b, enqueue_graph, &c, 1).us : time_in_a_row(b, enqueue_graph, &c);
}

struct pair_copy {
    struct cudaMemcpy3DPeerParms p;
    cudaStream_t stream;
};
static void enqueue_pair_copy(void * user, int i) {
    const struct pair_copy * c = (const struct pair_copy *) user;
    const struct cudaMemcpy3DPeerParms * p = &c->p;
    (void) i;
    if (p->extent.height == 1) {
        CUDA(cudaMemcpyPeerAsync(p->dstPtr.ptr, p->dstDevice, p->srcPtr.ptr, p->srcDevice, p->extent.width, c->stream));
    } else {
        CUDA(cudaMemcpy3DPeerAsync(p, c->stream));
    }
}

// A rectangle of bytes from one device to the other, as products copy their operand (one row) and their result.
static double pair_copy_us(struct bench * b, size_t width, size_t height, size_t dst_pitch, int from) {
    struct pair_copy c;
    memset(&c, 0, sizeof c);
    CUDA(cudaSetDevice(from));
    CUDA(cudaMalloc(&c.p.srcPtr.ptr, width * height));
    CUDA(cudaSetDevice(1 - from));
    CUDA(cudaMalloc(&c.p.dstPtr.ptr, dst_pitch * height));
    CUDA(cudaSetDevice(0));
    c.stream = b->stream;
    c.p.srcDevice = from;
    c.p.dstDevice = 1 - from;
    c.p.srcPtr.pitch = c.p.srcPtr.xsize = c.p.dstPtr.xsize = c.p.extent.width = width;
    c.p.srcPtr.ysize = c.p.dstPtr.ysize = c.p.extent.height = height;
    c.p.dstPtr.pitch = dst_pitch;
    c.p.extent.depth = 1;
    const double us = time_in_a_row(b, enqueue_pair_copy, &c);
    CUDA(cudaFree(c.p.srcPtr.ptr));
    CUDA(cudaFree(c.p.dstPtr.ptr));
    return us;
}

static double pair_error(const struct pair_product * p, const struct pair_product * q) { // squared, relative
    const size_t n = (size_t) gcuda_nelements(p->y);
    float *one = (float *) malloc(n * sizeof(float)), *two = (float *) malloc(n * sizeof(float));
    double err = 0.0, sum = 0.0;
    if (one == NULL || two == NULL) { stop("malloc"); }
    if (gcuda_backend_tensor_get(p->y, one, 0, n * sizeof(float)) != GCUDA_STATUS_SUCCESS ||
        gcuda_backend_tensor_get(q->y, two, 0, n * sizeof(float)) != GCUDA_STATUS_SUCCESS) {
        stop("pair");
    }
    for (size_t i = 0; i < n; ++i) {
        err += (double) (one[i] - two[i]) * (double) (one[i] - two[i]);
        sum += (double) one[i] * (double) one[i];
    }
    free(one);
    free(two);
    return err / sum;
}

// On the bench's stream; peer access is enabled for as long as the process lives.
static gcuda_backend_t pair_backend(const struct bench * b, enum gcuda_cuda_peer_mode mode, int64_t split_columns) {
    struct gcuda_cuda_params params;
    memset(&params, 0, sizeof params);
    params.stream = b->stream;
    params.peer = mode;
    params.split_columns = split_columns;
    gcuda_backend_t backend = gcuda_backend_cuda_init_params(&params);
    if (backend == NULL) { stop("backend"); }
    return backend;
}

static void pair_line(const char * what, double us, double of, bool is_captured) {
    printf("    %-44s %8.1f us: %.2f of it%s\n", what, us, us / of, is_captured ? "" : ", 50 in a row, no graph");
    fflush(stdout);
}

static void pair_split(struct bench * b, int64_t n, int n_devices) {
    const struct {
        const char * name;
        enum gcuda_cuda_peer_mode peer;
        int64_t columns;
        float shares[GCUDA_CUDA_MAX_DEVICES];
    } ways[] = {
        { "rows split over two", GCUDA_CUDA_PEER_ON, 0, { 1.0f, 1.0f } },
        { "the same, 4 rows on the first for 3 on the other", GCUDA_CUDA_PEER_ON, 0, { 4.0f, 3.0f } },
        { "the same as the first, all columns at once", GCUDA_CUDA_PEER_ON, -1, { 1.0f, 1.0f } },
        { "the same, copies through host memory", GCUDA_CUDA_PEER_OFF, 0, { 1.0f, 1.0f } },
        { "rows split over four", GCUDA_CUDA_PEER_ON, 0, { 1.0f, 1.0f, 1.0f, 1.0f } },
    };
    struct pair_product one, two, some;
    gcuda_backend_buffer_type_t whole = gcuda_backend_get_default_buffer_type(b->backend);
    pair_begin(b, whole, PAIR_M, n, &one);
    const double us = pair_time(b, b->backend, &one, true);
    printf("mul_mat q4_0 %d x %d, %3d columns  one GPU %8.1f us\n", PAIR_M, PAIR_K, (int) n, us);
    for (int i = 0; i < COUNT(ways); ++i) {
        if (n_devices < 4 && ways[i].shares[3] > 0.0f) { continue; }
        gcuda_backend_buffer_type_t split =
            gcuda_backend_cuda_split_buffer_type(0, ways[i].shares, GCUDA_CUDA_MAX_DEVICES);
        if (split == NULL) { stop("split"); }
        gcuda_backend_t backend = pair_backend(b, ways[i].peer, ways[i].columns);
        pair_begin(b, split, PAIR_M, n, &two);
        const bool is_captured = ways[i].peer == GCUDA_CUDA_PEER_ON; // staged copies do not go into captures
        const double both = pair_time(b, backend, &two, is_captured), error = pair_error(&one, &two);
        pair_line(ways[i].name, both, us, is_captured);
        if (!(error < 1e-4)) { stop("pair: the split product is wrong"); }
        pair_end(&two);
        gcuda_backend_free(backend);
    }
    pair_end(&one);
    for (int i = 0; i < 2; ++i) {
        pair_begin(b, whole, i == 0 ? PAIR_M / 2 : PAIR_M / 7 * 4, n, &some);
        pair_line(i == 0 ? "half of the rows, on one" : "4 rows of 7, on one", pair_time(b, b->backend, &some, true),
            us, true);
        pair_end(&some);
    }
    pair_line(
        "its operand, directly", pair_copy_us(b, (size_t) n * PAIR_K * 4, 1, (size_t) n * PAIR_K * 4, 0), us, false);
    pair_line("its result, directly", pair_copy_us(b, PAIR_M / 2 * 4, (size_t) n, PAIR_M * 4, 1), us, false);
}

// us of a batch through the scheduler, the stack's blocks distributed over the first n_devices of backends; the last is
// the CPU
static double pair_pipeline(const struct stack * s, const gcuda_backend_t * backends, int n_devices) {
    struct stack_graph g;
    struct gcuda_backend_sched_params params;
    gcuda_backend_t order[PAIR_DEVICES + 1];
    gcuda_backend_buffer_type_t bufts[PAIR_DEVICES + 1];
    memset(&params, 0, sizeof params);
    for (int i = 0; i < n_devices; ++i) {
        order[i] = backends[i];
        bufts[i] = gcuda_backend_get_default_buffer_type(backends[i]);
    }
    order[n_devices] = backends[PAIR_DEVICES]; // the CPU, with page-locked memory for inputs
    bufts[n_devices] = gcuda_backend_cuda_host_buffer_type();
    params.backends = order;
    params.bufts = bufts;
    params.n_backends = n_devices + 1;
    params.graph_size = 4096;
    params.n_copies = PAIR_UNDER_WAY;
    stack_build(s, &g, n_devices);
    stack_weights(&g, backends);
    gcuda_backend_sched_t sched = gcuda_backend_sched_new_params(&params);
    if (sched == NULL || gcuda_backend_sched_alloc_graph(sched, g.graph) != GCUDA_STATUS_SUCCESS) { stop(s->name); }
    char * host = (char *) malloc(gcuda_nbytes(g.x));
    if (host == NULL) { stop("malloc"); }
    const struct leaf l = { g.x, FLOATS, 0 };
    fill_host(&l, host, gcuda_nbytes(g.x));
    float samples[PAIR_RUNS];
    for (int k = -2; k < PAIR_RUNS; ++k) { // the first two make plans
        const int64_t start = gcuda_time_us();
        for (int i = 0; i < PAIR_BATCHES; ++i) {
            if (gcuda_backend_tensor_set(g.x, host, 0, gcuda_nbytes(g.x)) != GCUDA_STATUS_SUCCESS ||
                gcuda_backend_sched_graph_compute_async(sched, g.graph) != GCUDA_STATUS_SUCCESS) {
                stop(s->name);
            }
        }
        if (gcuda_backend_sched_synchronize(sched) != GCUDA_STATUS_SUCCESS) { stop(s->name); }
        if (k >= 0) { samples[k] = (float) (gcuda_time_us() - start) / PAIR_BATCHES; }
    }
    qsort(samples, PAIR_RUNS, sizeof samples[0], by_value);
    free(host);
    gcuda_backend_sched_free(sched);
    stack_end(&g);
    return (double) samples[PAIR_RUNS / 2];
}

static void pairs(struct bench * b) {
    static const struct stack all[] = {
        { "8B q4_0, 1 column", GCUDA_TYPE_Q4_0, 32, 0, 4096, 1024, 14336, 1, false, BLOCKS },
        { "8B q4_0, 512 columns", GCUDA_TYPE_Q4_0, 32, 0, 4096, 1024, 14336, 512, false, BLOCKS },
    };
    int n_devices = 0;
    CUDA(cudaGetDeviceCount(&n_devices));
    if (n_devices < 2) {
        printf("\nfewer than two GPUs here: no figures of pairs\n");
        return;
    }
    printf("\n=== two GPUs, or four\n");
    n_devices = n_devices < PAIR_DEVICES ? n_devices : PAIR_DEVICES;
    pair_split(b, 1, n_devices);
    pair_split(b, 512, n_devices);
    gcuda_backend_t backends[PAIR_DEVICES + 1] = { NULL };
    for (int i = 0; i <= PAIR_DEVICES; ++i) {
        if (i >= n_devices && i < PAIR_DEVICES) { continue; }
        backends[i] = i < PAIR_DEVICES ? gcuda_backend_cuda_init(i) : gcuda_backend_cpu_init();
        if (backends[i] == NULL) { stop("backends"); }
    }
    for (int i = 0; i < COUNT(all); ++i) {
        const double one = pair_pipeline(&all[i], backends, 1);
        printf("%-24s %d of %d batches by the host under way: one GPU %8.1f us a batch", all[i].name, PAIR_UNDER_WAY,
            PAIR_BATCHES, one);
        for (int n = 2; n <= n_devices; n *= 2) {
            const double us = pair_pipeline(&all[i], backends, n);
            printf(", blocks distributed over %s %8.1f us: %.2f x", n == 2 ? "two" : "four", us, one / us);
        }
        printf("\n");
        fflush(stdout);
    }
    for (int i = 0; i <= PAIR_DEVICES; ++i) { gcuda_backend_free(backends[i]); }
}

// =====================================================================================================================
// >>main
// =====================================================================================================================
// On the bench's stream.
static gcuda_backend_t bench_backend(const struct bench * b, int device, const char * product) {
    struct gcuda_cuda_params params;
    memset(&params, 0, sizeof params);
    params.device = device;
    params.stream = b->stream;
    params.product = product;
    params.fusion = GCUDA_CUDA_OFF; // a row's nodes stay apart
    gcuda_backend_t backend = gcuda_backend_cuda_init_params(&params);
    if (backend == NULL) { stop("backend"); }
    return backend;
}

static void begin(struct bench * b, int device) {
    struct cudaDeviceProp prop;
    CUDA(cudaSetDevice(device));
    CUDA(cudaGetDeviceProperties(&prop, device));
    CUDA(cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking));
    CUDA(cudaEventCreate(&b->begin));
    CUDA(cudaEventCreate(&b->end));
    b->backend = bench_backend(b, device, NULL);
    b->l2_bytes = (size_t) prop.l2CacheSize;
    printf("%s, %d multiprocessors, L2 %.0f MB\n", prop.name, prop.multiProcessorCount, (double) b->l2_bytes * 1e-6);
}

static void end(struct bench * b) {
    printf("\n%d rows, %d without a kernel, %d slower than 1.05 x target\n", b->n_rows, b->n_no_kernel, b->n_slower);
    if (b->n_late > 0) { printf("%d rows were not measured: the time was over\n", b->n_late); }
    if (b->n_ratios > 0) {
        printf("everything else above 6 us: %.2f x the reference's speed in the geometric mean of %d rows\n",
            exp(b->log_ratios / b->n_ratios), b->n_ratios);
    }
    if (b->json != NULL) {
        fprintf(b->json, "\n], \"host_us\": {\"bare\": %.3f%s}", b->us_bare, b->host);
        fprintf(b->json, ", \"copy_gb_s\": %.1f, \"read_gb_s\": %.1f, \"gemm_tflop_s\": %.1f}\n", b->copy_gbs,
            b->read_gbs, b->gemm_tflops);
        fclose(b->json);
    }
    gcuda_backend_free(b->backend);
}

static const struct {
    const char *key, *title;
    const struct bench_target * rows;
    int n;
    const char * product; // path of all products; NULL: chosen by dispatch
} tables[] = {
    { "others", "everything else", targets_others, COUNT(targets_others), NULL },
    { "own", "past the L2 cache, without a target", targets_own, COUNT(targets_own), NULL },
    { "vec", "products, weights far larger than L2", targets_mul_mat_vec, COUNT(targets_mul_mat_vec), NULL },
    { "mul_mat", "products, m=4096 k=14336", targets_mul_mat, COUNT(targets_mul_mat), NULL },
    { "mul_mat_id", "products of experts", targets_mul_mat_id, COUNT(targets_mul_mat_id), NULL },
    { "between", "products, m=4096 k=14336, and of experts, where the way changes", targets_between,
        COUNT(targets_between), NULL },
    { "halves", "products, m=4096 k=14336, weights written out as BF16 for cuBLAS", targets_halves,
        COUNT(targets_halves), "halves" },
    { "gemm", "products of floats without cuBLAS", targets_gemm, COUNT(targets_gemm), "gemm" },
    { "attention", "attention", targets_flash_attn_ext, COUNT(targets_flash_attn_ext), NULL },
};

struct covered { // by rows
    bool op[GCUDA_OP_COUNT + 1], unary[GCUDA_UNARY_OP_COUNT + 1], glu[GCUDA_GLU_OP_COUNT + 1];
};

// How many operations that move data have no row.
static int count_missing(const struct covered * c) {
    int n = 0;
    for (int i = 0; i < GCUDA_OP_COUNT; ++i) {
        const enum gcuda_op op = (enum gcuda_op) i;
        if (c->op[i] || op == GCUDA_OP_NONE || op == GCUDA_OP_CUSTOM || is_view_op(op)) { continue; }
        printf("no row of %s\n", gcuda_op_name(op));
        n++;
    }
    for (int i = 0; i < GCUDA_UNARY_OP_COUNT; ++i) {
        if (!c->unary[i]) { printf("no row of %s\n", gcuda_unary_op_name((enum gcuda_unary_op) i)); }
        n += !c->unary[i];
    }
    for (int i = 0; i < GCUDA_GLU_OP_COUNT; ++i) {
        if (!c->glu[i]) { printf("no row of %s\n", gcuda_glu_op_name((enum gcuda_glu_op) i)); }
        n += !c->glu[i];
    }
    return n;
}

// Every row can be built and has work in it, and every operation has a row; needs no device.
static int check_rows(void) {
    const struct gcuda_init_params params = { 0, NULL, true };
    struct covered covered;
    int n_bad = 0, n = 0;
    memset(&covered, 0, sizeof covered);
    for (int k = 0; k < COUNT(tables); ++k) {
        for (int i = 0; i < tables[k].n; ++i, ++n) {
            struct row r;
            memset(&r, 0, sizeof r);
            r.text = tables[k].rows[i].name;
            r.ctx = gcuda_init(params);
            const struct gcuda_tensor * y = build(&r);
            if (y == NULL || bytes_of(&r, y) <= 0.0) {
                printf("%s: %s\n", r.text, gcuda_last_error());
                n_bad++;
            } else {
                covered.op[y->op] = covered.unary[gcuda_get_unary_op(y)] = covered.glu[gcuda_get_glu_op(y)] = true;
            }
            gcuda_free(r.ctx);
        }
    }
    const int n_missing = count_missing(&covered);
    printf("%d passed, %d failed\n", n - n_bad, n_bad + n_missing);
    return n_bad + n_missing > 0;
}

int main(int argc, char ** argv) {
    struct bench b;
    int device = 0;
    bool only_checks = false;
    const char * table = NULL;
    memset(&b, 0, sizeof b);
    b.big = (size_t) 4 << 30;
    b.max_us = 30000.0;
    for (int i = 1; i < argc; ++i) {
        if (i + 1 < argc && strcmp(argv[i], "--filter") == 0) {
            b.filter = argv[++i];
        } else if (strcmp(argv[i], "--check") == 0) {
            only_checks = true;
        } else if (i + 1 < argc && strcmp(argv[i], "--table") == 0) {
            table = argv[++i];
        } else if (i + 1 < argc && strcmp(argv[i], "--device") == 0) {
            device = atoi(argv[++i]);
        } else if (i + 1 < argc && strcmp(argv[i], "--mb") == 0) {
            b.big = (size_t) atoi(argv[++i]) << 20;
        } else if (i + 1 < argc && strcmp(argv[i], "--seconds") == 0) {
            b.deadline_us = gcuda_time_us() + (int64_t) atoi(argv[++i]) * 1000000;
        } else if (i + 1 < argc && strcmp(argv[i], "--ms") == 0) {
            b.max_us = atof(argv[++i]) * 1e3;
        } else if (i + 1 < argc && strcmp(argv[i], "--json") == 0) {
            b.json = fopen(argv[++i], "w");
            if (b.json == NULL) { stop("--json: cannot write"); }
            fprintf(b.json, "{\"rows\": [");
        } else {
            fprintf(stderr,
                "usage: bench-gpu [--filter TEXT] "
                "[--table vec|mul_mat|mul_mat_id|between|halves|gemm|attention|others|own|stack|decoder|pair]"
                " [--json FILE] [--device N]\n                 [--seconds N: no row begins "
                "later] [--ms N: of measuring a row, 30]"
                " [--mb N: of the ceilings, 4096]\n"
                "                 [--check: only whether every row can be built, "
                "and every operation has one]\n");
            return 2;
        }
    }
    if (only_checks) { return check_rows(); }
    begin(&b, device);
    open_cublas(&b);
    ceilings(&b);
    launches(&b);
    for (int i = 0; i < COUNT(tables); ++i) {
        if (table == NULL || strcmp(table, tables[i].key) == 0) {
            gcuda_backend_t usual = b.backend;
            if (tables[i].product != NULL) { b.backend = bench_backend(&b, device, tables[i].product); }
            b.product = tables[i].product != NULL ? tables[i].product : "";
            run_table(
                &b, tables[i].title, tables[i].rows, tables[i].n, tables[i].key[0] == 'o' && tables[i].key[1] == 't');
            if (b.backend != usual) { gcuda_backend_free(b.backend); }
            b.backend = usual;
        }
    }
    if (table == NULL || strcmp(table, "stack") == 0) { stacks(&b); }
    if (table == NULL || strcmp(table, "decoder") == 0) { decoders(&b); }
    if (table != NULL && strcmp(table, "pair") == 0) { pairs(&b); }
    end(&b);
    return 0;
}
