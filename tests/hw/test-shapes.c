// Operations on random shapes, types and layouts, on the device and on the CPU. Cases that both accept give the same
// result. Refusals give a reason, both by supports_op and when computed: operations without a kernel, and nodes damaged
// after construction. Thousands of cases with GCUDA_TEST_FULL (on hardware), else hundreds (on the simulated device).
// One case again: --filter 'random/417' --seed 7. Built and run by `make test-gpu` and by tests/sim/run.py.
#include "gcuda.h"
#include "test.h"

#include <ctype.h>
#include <math.h>

// True: it holds. Else a failed check that says so.
#define CHECKED(holds, ...) ((holds) ? true : (test_failed(__FILE__, __LINE__, __VA_ARGS__), false))

#define MOST_ELEMENTS 6000 // of an input
#define MAX_LEAFS 8

enum content { FLOATS, POSITIVE, SMALL_TRIANGLE, INDICES, DECAYS };

struct drawn {
    struct rng rng;
    struct gcuda_context * ctx;
    struct gcuda_tensor * leafs[MAX_LEAFS]; // the whole tensors; operations may see views of them
    enum content content[MAX_LEAFS];
    int64_t limit[MAX_LEAFS];
    int n_leafs;
    double max_nmse;
    bool is_set;     // a row's elements are a set: top_k
    bool is_for_cpu; // the device is to refuse it
};

static int below(struct drawn * d, int n) { return (int) rng_below(&d->rng, n); }
static bool often(struct drawn * d) { return below(d, 4) != 0; }
static enum gcuda_type float_type(struct drawn * d) {
    static const enum gcuda_type types[] = { GCUDA_TYPE_F32, GCUDA_TYPE_F32, GCUDA_TYPE_F16, GCUDA_TYPE_BF16 };
    return types[below(d, 4)];
}
static enum gcuda_type plain_type(struct drawn * d) {
    static const enum gcuda_type types[] = { GCUDA_TYPE_F64, GCUDA_TYPE_I8, GCUDA_TYPE_I16, GCUDA_TYPE_I32 };
    return often(d) ? float_type(d) : types[below(d, 4)];
}
// the last ones have no quantizer: they are read, and to write them is refused
static enum gcuda_type block_type(struct drawn * d) {
    static const enum gcuda_type types[] = { GCUDA_TYPE_Q4_0, GCUDA_TYPE_Q4_1, GCUDA_TYPE_Q5_0, GCUDA_TYPE_Q5_1,
        GCUDA_TYPE_Q8_0, GCUDA_TYPE_IQ4_NL, GCUDA_TYPE_MXFP4, GCUDA_TYPE_Q2_K, GCUDA_TYPE_Q3_K, GCUDA_TYPE_Q4_K,
        GCUDA_TYPE_Q5_K, GCUDA_TYPE_Q6_K, GCUDA_TYPE_IQ4_XS, GCUDA_TYPE_IQ1_S, GCUDA_TYPE_IQ1_M, GCUDA_TYPE_IQ2_XXS,
        GCUDA_TYPE_IQ2_XS, GCUDA_TYPE_IQ2_S, GCUDA_TYPE_IQ3_XXS, GCUDA_TYPE_IQ3_S };
    return types[below(d, 20)];
}

static int64_t extent(struct drawn * d, int64_t most) {
    static const int64_t some[] = { 1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 66, 96, 100,
        127, 128, 130, 192, 255, 256, 257, 384, 512, 640, 1000, 1023, 1024, 1025, 1536, 2048, 2050, 3000, 4096, 4100 };
    int n = 0;
    while (n < (int) (sizeof some / sizeof some[0]) && some[n] <= most) { ++n; }
    return some[below(d, n > 0 ? n : 1)];
}

static void shape(struct drawn * d, int64_t * ne) {
    int64_t left = MOST_ELEMENTS;
    for (int i = 0; i < 4; ++i) {
        ne[i] = i == 3 && often(d) ? 1 : extent(d, i == 0 ? left : left < 70 ? left : 70);
        left /= ne[i];
    }
}

static struct gcuda_tensor * whole(
    struct drawn * d, enum gcuda_type type, const int64_t * ne, enum content content, int64_t limit) {
    if (d->n_leafs == MAX_LEAFS) { return NULL; }
    struct gcuda_tensor * t = gcuda_new_tensor(d->ctx, type, 4, ne);
    d->content[d->n_leafs] = content;
    d->limit[d->n_leafs] = limit;
    return d->leafs[d->n_leafs++] = t;
}

// An input of that shape: packed, cut out of something larger, or with its dimensions in another order.
static struct gcuda_tensor * input(struct drawn * d, enum gcuda_type type, const int64_t * ne) {
    int64_t big[4];
    size_t offset = 0;
    const int layout = below(d, 8);
    if (layout < 3) { return whole(d, type, ne, FLOATS, 0); }
    if (layout < 6) { // gaps
        for (int i = 0; i < 4; ++i) { big[i] = ne[i] + below(d, i == 3 || layout == 3 ? 1 : 4); }
        struct gcuda_tensor * t = whole(d, type, big, FLOATS, 0);
        if (t == NULL) { return NULL; }
        for (int i = 0; i < 4; ++i) { offset += t->nb[i] * (size_t) below(d, (int) (big[i] - ne[i]) + 1); }
        return gcuda_view_4d(d->ctx, t, ne[0], ne[1], ne[2], ne[3], t->nb[1], t->nb[2], t->nb[3], offset);
    }
    int axis[4] = { 0, 1, 2, 3 }; // rows in place, or any order
    for (int i = 3; i > (layout == 6); --i) {
        const int k = (layout == 6) + below(d, i + 1 - (layout == 6)), a = axis[i];
        axis[i] = axis[k];
        axis[k] = a;
    }
    for (int i = 0; i < 4; ++i) { big[i] = ne[axis[i]]; }
    struct gcuda_tensor * t = whole(d, type, big, FLOATS, 0);
    return t == NULL ? NULL : gcuda_permute(d->ctx, t, axis[0], axis[1], axis[2], axis[3]);
}

static struct gcuda_tensor * input4(
    struct drawn * d, enum gcuda_type type, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3) {
    const int64_t ne[4] = { ne0, ne1, ne2, ne3 };
    return input(d, type, ne);
}
static struct gcuda_tensor * packed(struct drawn * d, enum gcuda_type type, enum content content, int64_t limit,
    int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3) {
    const int64_t ne[4] = { ne0, ne1, ne2, ne3 };
    return whole(d, type, ne, content, limit);
}
static struct gcuda_tensor * any_of(struct drawn * d, enum gcuda_type type) {
    int64_t ne[4];
    shape(d, ne);
    return input(d, type, ne);
}
static struct gcuda_tensor * any(struct drawn * d) { return any_of(d, float_type(d)); }
static struct gcuda_tensor * any_plain(struct drawn * d) { return any_of(d, plain_type(d)); }
static struct gcuda_tensor * any_packed(struct drawn * d, enum gcuda_type type, enum content content) {
    int64_t ne[4];
    shape(d, ne);
    return whole(d, type, ne, content, 0);
}
static struct gcuda_tensor * like(struct drawn * d, const struct gcuda_tensor * a, enum content content) { // packed
    return a == NULL ? NULL : whole(d, a->type, a->ne, content, 0);
}
static int64_t blocks(struct drawn * d, enum gcuda_type type, int most) { // elements of a few of them
    return gcuda_blck_size(type) * (1 + below(d, gcuda_blck_size(type) > 32 ? (most + 7) / 8 : most));
}

// =====================================================================================================================
// >>operations
// =====================================================================================================================
static struct gcuda_tensor * draw_unary(struct drawn * d) {
    const enum gcuda_unary_op op = (enum gcuda_unary_op) below(d, GCUDA_UNARY_OP_COUNT);
    const float p = 0.1f * (float) below(d, 12);
    return op == GCUDA_UNARY_OP_XIELU ? gcuda_xielu(d->ctx, any(d), p, 0.8f, 0.5f - p, -1e-6f)
                                      : gcuda_unary(d->ctx, any(d), op);
}
static struct gcuda_tensor * draw_glu(struct drawn * d) {
    const enum gcuda_glu_op op = (enum gcuda_glu_op) below(d, GCUDA_GLU_OP_COUNT);
    int64_t ne[4];
    shape(d, ne);
    const enum gcuda_type type = float_type(d);
    struct gcuda_tensor * a = input(d, type, ne);
    if (op == GCUDA_GLU_OP_SWIGLU_OAI) { return gcuda_swiglu_oai(d->ctx, a, input(d, type, ne), 1.702f, 0.6f); }
    return often(d) ? gcuda_glu_split(d->ctx, a, input(d, type, ne), op) : gcuda_glu(d->ctx, a, op, often(d));
}
static struct gcuda_tensor * draw_binary(struct drawn * d) {
    int64_t ne[4], small[4];
    shape(d, ne);
    for (int i = 0; i < 4; ++i) { small[i] = below(d, 3) ? ne[i] : 1; }
    const enum gcuda_type type = float_type(d);
    struct gcuda_tensor *a = input(d, type, ne), *b = input(d, often(d) ? type : GCUDA_TYPE_F32, small);
    switch (below(d, 3)) {
        case 0: return gcuda_add(d->ctx, a, b);
        case 1: return gcuda_sub(d->ctx, a, b);
        default: return gcuda_mul(d->ctx, a, b);
    }
}
static struct gcuda_tensor * draw_map(struct drawn * d) {
    struct gcuda_tensor * a = any(d);
    switch (below(d, 8)) {
        case 5: return gcuda_clamp(d->ctx, a, -0.5f, 0.25f);
        case 6: return gcuda_fill(d->ctx, a, 0.3f);
        case 7: return gcuda_add1(d->ctx, a, packed(d, GCUDA_TYPE_F32, FLOATS, 0, 1, 1, 1, 1));
        case 0: return gcuda_scale_bias(d->ctx, a, 0.7f, 0.1f);
        case 1: return gcuda_sqr(d->ctx, a);
        case 2: return gcuda_sin(d->ctx, a);
        case 3: return gcuda_cos(d->ctx, a);
        default: return gcuda_leaky_relu(d->ctx, a, 0.1f, false);
    }
}
static struct gcuda_tensor * draw_cpy(struct drawn * d) {
    struct gcuda_tensor *a = any_plain(d), *b = a == NULL ? NULL : input(d, float_type(d), a->ne);
    return gcuda_cpy(d->ctx, a, b);
}
static struct gcuda_tensor * draw_cpy_blocks(struct drawn * d) { // to blocks, from them, as they are, and to others
    const enum gcuda_type type = block_type(d), other = block_type(d);
    const int64_t ne[4] = { blocks(d, gcuda_blck_size(other) > gcuda_blck_size(type) ? other : type, 8),
        1 + below(d, 5), 1 + below(d, 3), 1 + below(d, 2) };
    const int what = below(d, 5);
    const enum gcuda_type from = what == 1  ? other
                                 : what < 3 ? type
                                            : float_type(d),
                          to = what == 2 ? float_type(d) : type;
    d->max_nmse = 0.01; // a code may be the next one, which is a third of what two bits tell apart
    return gcuda_cpy(d->ctx, input(d, from, ne), whole(d, to, ne, FLOATS, 0));
}
static struct gcuda_tensor * draw_add_blocks(struct drawn * d) {
    const enum gcuda_type type = block_type(d);
    const int64_t ne[4] = { blocks(d, type, 8), 1 + below(d, 5), 1 + below(d, 3), 1 };
    struct gcuda_tensor *a = input(d, type, ne), *b = input(d, GCUDA_TYPE_F32, ne);
    d->max_nmse = 0.01;
    return often(d) ? gcuda_add(d->ctx, a, b) : gcuda_add_cast(d->ctx, a, b, GCUDA_TYPE_F32);
}
static struct gcuda_tensor * draw_unwritable(struct drawn * d) { // of the types without a quantizer
    static const enum gcuda_type types[] = { GCUDA_TYPE_IQ1_S, GCUDA_TYPE_IQ1_M, GCUDA_TYPE_IQ2_XXS, GCUDA_TYPE_IQ2_XS,
        GCUDA_TYPE_IQ2_S, GCUDA_TYPE_IQ3_XXS, GCUDA_TYPE_IQ3_S };
    const int64_t n = 256 * (1 + below(d, 3)), rows = 1 + below(d, 9);
    struct gcuda_tensor * a = packed(d, types[below(d, 7)], FLOATS, 0, n, rows, 1, 1);
    struct gcuda_tensor * b = packed(d, GCUDA_TYPE_F32, FLOATS, 0, n, rows, 1, 1);
    switch (below(d, 3)) {
        case 0: return gcuda_cpy(d->ctx, b, a);
        case 1: return gcuda_add(d->ctx, a, b);
        default: return gcuda_set_rows(d->ctx, a, b, packed(d, GCUDA_TYPE_I64, INDICES, rows, rows, 1, 1, 1));
    }
}
static void negate(struct gcuda_tensor * dst, const struct gcuda_tensor * a, int ith, int nth, void * userdata) {
    (void) nth, (void) userdata;
    for (int64_t i = 0; i < gcuda_nelements(dst) && ith == 0; ++i) {
        ((float *) dst->data)[i] = -((const float *) a->data)[i];
    }
}
static struct gcuda_tensor * draw_custom(struct drawn * d) { // with a function for hosts alone
    d->is_for_cpu = true;
    return gcuda_map_custom1(d->ctx, any_packed(d, GCUDA_TYPE_F32, FLOATS), negate, 1, NULL);
}
static struct gcuda_tensor * draw_cont(struct drawn * d) { // transposes above all
    static const enum gcuda_type types[] = { GCUDA_TYPE_I8, GCUDA_TYPE_F16, GCUDA_TYPE_F32, GCUDA_TYPE_F64,
        GCUDA_TYPE_I16 };
    static const int axes[][4] = { { 1, 0, 2, 3 }, { 2, 1, 0, 3 }, { 0, 2, 1, 3 }, { 3, 1, 2, 0 }, { 1, 2, 0, 3 } };
    const int * axis = axes[below(d, 5)];
    const enum gcuda_type type = types[below(d, 5)];
    struct gcuda_tensor * a = input4(d, type, extent(d, 200), extent(d, 200), 1 + below(d, 3), 1 + below(d, 2));
    return gcuda_cont(d->ctx, gcuda_permute(d->ctx, a, axis[0], axis[1], axis[2], axis[3]));
}
static struct gcuda_tensor * draw_repeat(struct drawn * d) {
    struct gcuda_tensor * a = any_plain(d);
    const int n0 = 1 + below(d, 3), n1 = 1 + below(d, 3), n3 = 1 + below(d, 2);
    return a == NULL ? NULL : gcuda_repeat_4d(d->ctx, a, a->ne[0] * n0, a->ne[1] * n1, a->ne[2], a->ne[3] * n3);
}
static struct gcuda_tensor * draw_concat(struct drawn * d) {
    int64_t ne[4];
    shape(d, ne);
    const int dim = below(d, 4);
    const enum gcuda_type type = plain_type(d);
    struct gcuda_tensor * a = input(d, type, ne);
    ne[dim] = 1 + below(d, 40);
    return gcuda_concat(d->ctx, a, input(d, type, ne), dim);
}
static struct gcuda_tensor * draw_move(struct drawn * d) {
    struct gcuda_tensor * a = any_plain(d);
    switch (below(d, 5)) {
        case 4:
            return gcuda_pad_ext_circular(d->ctx, a, below(d, 5), below(d, 5), below(d, 3), 0, 0, below(d, 2), 0, 0);
        case 0: return gcuda_pad(d->ctx, a, below(d, 5), below(d, 5), below(d, 3), below(d, 2));
        case 1: return gcuda_roll(d->ctx, a, below(d, 7) - 3, below(d, 7) - 3, below(d, 3) - 1, 0);
        case 2:
            return a == NULL ? NULL
                             : gcuda_pad_reflect_1d(d->ctx, a, below(d, (int) a->ne[0]), below(d, (int) a->ne[0]));
        default: return gcuda_tri(d->ctx, a, (enum gcuda_tri_type) below(d, 4));
    }
}
static struct gcuda_tensor * draw_get_rows(struct drawn * d) {
    int64_t ne[4];
    shape(d, ne);
    ne[3] = 1;
    struct gcuda_tensor * a = input(d, float_type(d), ne);
    return gcuda_get_rows(d->ctx, a, packed(d, GCUDA_TYPE_I32, INDICES, ne[1], 1 + below(d, 40), ne[2], 1, 1));
}
static struct gcuda_tensor * draw_get_blocks(struct drawn * d) {
    const enum gcuda_type type = block_type(d);
    const int64_t rows = 1 + below(d, 20), planes = 1 + below(d, 3);
    struct gcuda_tensor * a = input4(d, type, blocks(d, type, 8), rows, planes, 1);
    return gcuda_get_rows(d->ctx, a, packed(d, GCUDA_TYPE_I32, INDICES, rows, 1 + below(d, 30), planes, 1, 1));
}
static struct gcuda_tensor * draw_set_rows(struct drawn * d) { // of equal indices the last row stays, everywhere
    const enum gcuda_type type = often(d) ? float_type(d) : block_type(d), from = float_type(d);
    const int64_t n = gcuda_blck_size(type) > 1 ? blocks(d, type, 8) : extent(d, 300), planes = 1 + below(d, 3);
    const int64_t rows = below(d, 6) ? 1 + below(d, 20) : 1030, to = 1 + below(d, 40); // many go another way
    if (gcuda_blck_size(type) > 1) { d->max_nmse = 0.01; }
    struct gcuda_tensor * a = packed(d, type, FLOATS, 0, n, to, planes, 1);
    struct gcuda_tensor * b =
        rows > 1000 ? packed(d, from, FLOATS, 0, n, rows, planes, 1) : input4(d, from, n, rows, planes, 1);
    return gcuda_set_rows(d->ctx, a, b,
        packed(d, often(d) ? GCUDA_TYPE_I64 : GCUDA_TYPE_I32, INDICES, to, rows, often(d) ? planes : 1, 1, 1));
}
static struct gcuda_tensor * draw_get_rows_back(struct drawn * d) {
    const int64_t n = extent(d, 300), rows = below(d, 4) ? 1 + below(d, 40) : 1030, to = 1 + below(d, 30);
    struct gcuda_tensor * a = rows > 1000 ? packed(d, float_type(d), FLOATS, 0, 1 + n % 40, rows, 1, 1)
                                          : input4(d, float_type(d), n, rows, 1, 1);
    struct gcuda_tensor * shape = packed(d, GCUDA_TYPE_F32, FLOATS, 0, a == NULL ? 1 : a->ne[0], to, 1, 1);
    return gcuda_get_rows_back(d->ctx, a, packed(d, GCUDA_TYPE_I32, INDICES, to, rows, 1, 1, 1), shape);
}
static struct gcuda_tensor * draw_region(struct drawn * d) { // a part of a is set or added to
    struct gcuda_tensor * a = any_packed(d, float_type(d), FLOATS);
    if (a == NULL) { return NULL; }
    int64_t ne[4];
    size_t offset = 0;
    for (int i = 0; i < 4; ++i) {
        ne[i] = 1 + below(d, (int) a->ne[i]);
        offset += a->nb[i] * (size_t) below(d, (int) (a->ne[i] - ne[i]) + 1);
    }
    struct gcuda_tensor * b = input(d, a->type, ne);
    switch (below(d, 4)) {
        case 0: return gcuda_set_inplace(d->ctx, a, b, a->nb[1], a->nb[2], a->nb[3], offset);
        case 1: return gcuda_set(d->ctx, a, b, a->nb[1], a->nb[2], a->nb[3], offset);
        case 2: return gcuda_acc_inplace(d->ctx, a, b, a->nb[1], a->nb[2], a->nb[3], offset);
        default: return gcuda_acc(d->ctx, a, b, a->nb[1], a->nb[2], a->nb[3], offset);
    }
}
static struct gcuda_tensor * draw_positive(struct drawn * d) {
    struct gcuda_tensor * a = any_packed(d, float_type(d), POSITIVE);
    switch (below(d, 3)) {
        case 0: return gcuda_sqrt(d->ctx, a);
        case 1: d->max_nmse = 2e-4; return gcuda_log(d->ctx, a); // near 1 few digits are left
        default: return gcuda_div(d->ctx, a, like(d, a, POSITIVE));
    }
}
static struct gcuda_tensor * draw_mask(struct drawn * d) {
    const int64_t n = extent(d, 70);
    struct gcuda_tensor * a = input4(d, float_type(d), n, extent(d, 70), 1 + below(d, 2), 1);
    switch (below(d, 5)) {
        case 0: return gcuda_diag_mask_inf(d->ctx, a, below(d, 40));
        case 1: return gcuda_diag_mask_zero(d->ctx, a, below(d, 40));
        case 2: return gcuda_diag(d->ctx, input4(d, plain_type(d), n, 1, 1 + below(d, 3), 1));
        case 3: return gcuda_dup(d->ctx, a);
        default:
            return gcuda_tri(
                d->ctx, packed(d, float_type(d), FLOATS, 0, n, n, 2, 1), (enum gcuda_tri_type) below(d, 4));
    }
}
static struct gcuda_tensor * draw_made(struct drawn * d) { // out of little
    switch (below(d, 4)) {
        case 0:
            return gcuda_arange(
                d->ctx, 0.25f * (float) below(d, 40), 20.0f + (float) below(d, 400), 0.125f + (float) below(d, 3));
        case 1:
            return gcuda_timestep_embedding(
                d->ctx, packed(d, GCUDA_TYPE_F32, FLOATS, 0, 1 + below(d, 40), 1, 1, 1), 1 + below(d, 200), 10000);
        case 2: {
            struct gcuda_tensor * a = packed(d, GCUDA_TYPE_I32, INDICES, 3, extent(d, 3000), 1 + below(d, 2), 1, 1);
            return gcuda_count_equal(d->ctx, a, a == NULL ? NULL : whole(d, GCUDA_TYPE_I32, a->ne, INDICES, 3));
        }
        default: {
            const int64_t n = extent(d, 300), used = 1 + below(d, 3), tokens = 1 + below(d, 9),
                          experts = 1 + below(d, 8);
            struct gcuda_tensor *a = input4(d, float_type(d), n, used, tokens, 1),
                                *b = input4(d, GCUDA_TYPE_F32, n, experts, 1, 1);
            return gcuda_add_id(d->ctx, a, b, packed(d, GCUDA_TYPE_I32, INDICES, experts, used, tokens, 1, 1));
        }
    }
}
static struct gcuda_tensor * draw_reduce(struct drawn * d) {
    struct gcuda_tensor * a = any(d);
    switch (below(d, 6)) {
        case 0: return gcuda_sum(d->ctx, a);
        case 1: return gcuda_sum_rows(d->ctx, a);
        case 2: return gcuda_mean(d->ctx, a);
        case 3: return gcuda_cumsum(d->ctx, a);
        case 4: return gcuda_argmax(d->ctx, a);
        default:
            d->max_nmse = 0.0;
            return gcuda_argsort(d->ctx, a, often(d) ? GCUDA_SORT_ORDER_DESC : GCUDA_SORT_ORDER_ASC);
    }
}
static struct gcuda_tensor * draw_sort(struct drawn * d) { // rows of every form there is
    static const int64_t rows[] = { 1, 7, 255, 257, 1000, 1025, 4096, 4097, 8193, 9000, 20000 };
    const int64_t n = rows[below(d, 11)];
    struct gcuda_tensor * a =
        packed(d, GCUDA_TYPE_F32, FLOATS, 0, n, n > 4096 ? 1 + below(d, 2) : 1 + below(d, 40), 1, 1);
    d->max_nmse = 0.0;
    if (often(d)) {
        d->is_set = true;
        return gcuda_top_k(d->ctx, a, 1 + below(d, (int) n));
    }
    return gcuda_argsort(d->ctx, a, often(d) ? GCUDA_SORT_ORDER_DESC : GCUDA_SORT_ORDER_ASC);
}
static struct gcuda_tensor * draw_norm(struct drawn * d) {
    static const int64_t rows[] = { 3, 64, 200, 257, 513, 1024, 2048, 3000, 4097, 8192, 8196, 12888, 16384, 17000 };
    const int64_t n = rows[below(d, 14)];
    struct gcuda_tensor * a = input4(d, float_type(d), n, 1 + below(d, n > 4096 ? 2 : 5), 1 + below(d, 2), 1);
    switch (below(d, 4)) {
        case 0: return gcuda_norm(d->ctx, a, 1e-5f);
        case 1: return gcuda_rms_norm(d->ctx, a, 1e-5f);
        case 2: return gcuda_l2_norm(d->ctx, a, 1e-5f);
        default: return gcuda_soft_max_ext(d->ctx, a, NULL, 0.7f, 0.0f);
    }
}
static struct gcuda_tensor * draw_soft_max(struct drawn * d) { // masks, slopes and sinks
    const int64_t n = extent(d, 600), rows = 1 + below(d, 5), heads = 1 + below(d, 4), batch = 1 + below(d, 2);
    const bool has_mask = often(d);
    struct gcuda_tensor * a = input4(d, float_type(d), n, rows, heads, batch);
    struct gcuda_tensor * mask =
        has_mask ? input4(d, often(d) ? GCUDA_TYPE_F16 : GCUDA_TYPE_F32, n, rows + below(d, 2), often(d) ? 1 : heads, 1)
                 : NULL;
    struct gcuda_tensor * y = gcuda_soft_max_ext(d->ctx, a, mask, 0.7f, has_mask && often(d) ? 8.0f : 0.0f);
    if (y != NULL && below(d, 2)) {
        CHECK_OK(gcuda_soft_max_add_sinks(y, packed(d, GCUDA_TYPE_F32, FLOATS, 0, heads, 1, 1, 1)));
    }
    return y;
}
static struct gcuda_tensor * draw_back(struct drawn * d) { // derivatives of rows
    const enum gcuda_type type = float_type(d);
    struct gcuda_tensor *a = any_packed(d, type, POSITIVE), *b = like(d, a, POSITIVE);
    switch (below(d, 7)) {
        case 0: return gcuda_rms_norm_back(d->ctx, a, b, 1e-5f);
        case 1: return gcuda_soft_max_ext_back(d->ctx, a, b, 0.7f, 0.0f);
        case 2: return gcuda_silu_back(d->ctx, a, b);
        case 3: return gcuda_cross_entropy_loss(d->ctx, a, b);
        case 4: return gcuda_cross_entropy_loss_back(d->ctx, packed(d, GCUDA_TYPE_F32, FLOATS, 0, 1, 1, 1, 1), a, b);
        case 5: return gcuda_group_norm(d->ctx, a, 1 + below(d, 4), 1e-5f);
        default:
            return a == NULL
                       ? NULL
                       : gcuda_repeat_back(d->ctx, a, packed(d, GCUDA_TYPE_F32, FLOATS, 0, a->ne[0], 1, a->ne[2], 1));
    }
}
static struct gcuda_tensor * draw_opt_step(struct drawn * d) {
    struct gcuda_tensor *a = any_packed(d, GCUDA_TYPE_F32, FLOATS), *grad = like(d, a, FLOATS);
    if (a != NULL) { gcuda_set_param(a); }
    if (below(d, 2)) { return gcuda_opt_step_sgd(d->ctx, a, grad, packed(d, GCUDA_TYPE_F32, POSITIVE, 0, 2, 1, 1, 1)); }
    struct gcuda_tensor *m = like(d, a, POSITIVE), *v = like(d, a, POSITIVE);
    return gcuda_opt_step_adamw(d->ctx, a, grad, m, v, packed(d, GCUDA_TYPE_F32, POSITIVE, 0, 7, 1, 1, 1));
}
static struct gcuda_tensor * draw_rope(struct drawn * d) {
    static const int modes[] = { GCUDA_ROPE_TYPE_NORMAL, GCUDA_ROPE_TYPE_NEOX, GCUDA_ROPE_TYPE_MROPE,
        GCUDA_ROPE_TYPE_VISION, GCUDA_ROPE_TYPE_IMROPE };
    const int mode = modes[below(d, 5)], size = 4 * (1 + below(d, 40)), tokens = 1 + below(d, 12);
    const int n_dims = mode == GCUDA_ROPE_TYPE_VISION ? size / 2 : 2 * (1 + below(d, size / 2));
    const int sections[4] = { 1 + n_dims / 8, n_dims / 8, n_dims / 8, 0 };
    struct gcuda_tensor * a = input4(d, float_type(d), size, 1 + below(d, 5), tokens, 1 + below(d, 2));
    struct gcuda_tensor * at = packed(d, GCUDA_TYPE_I32, INDICES, 300, tokens * (mode & 8 ? 4 : 1), 1, 1, 1);
    struct gcuda_tensor * factors = often(d) ? NULL : packed(d, GCUDA_TYPE_F32, POSITIVE, 0, size, 1, 1, 1);
    const float ext = often(d) ? 0.0f : 0.75f, scale = often(d) ? 1.0f : 0.7f;
    d->max_nmse = 1e-5; // the CPU multiplies angles up
    return below(d, 3) == 0 ? gcuda_rope_multi_back(d->ctx, a, at, factors, n_dims, sections, mode, 512, 1e4f, scale,
                                  ext, 1.0f, 32.0f, 1.0f)
                            : gcuda_rope_multi(d->ctx, a, at, factors, n_dims, sections, mode, 512, 1e4f, scale, ext,
                                  1.0f, 32.0f, 1.0f);
}
static struct gcuda_tensor * draw_flash_attn(struct drawn * d) {
    static const int64_t sizes[] = { 16, 33, 40, 64, 72, 80, 96, 112, 128, 192, 256 };
    const int64_t groups = 1 + below(d, 4), kv_heads = 1 + below(d, 2), seqs = 1 + below(d, 2), kv = 1 + below(d, 90),
                  n = 1 + below(d, 20);
    const enum gcuda_type type = often(d) ? (often(d) ? GCUDA_TYPE_F16 : float_type(d)) : block_type(d);
    const int64_t size = gcuda_blck_size(type) == 1 ? sizes[below(d, 11)] : gcuda_blck_size(type) == 32 ? 64 : 256;
    const bool has_mask = often(d);
    struct gcuda_tensor * q = input4(d, GCUDA_TYPE_F32, size, n, groups * kv_heads, seqs);
    struct gcuda_tensor *k = input4(d, type, size, kv, kv_heads, seqs), *v = input4(d, type, size, kv, kv_heads, seqs);
    struct gcuda_tensor * mask = has_mask ? packed(d, GCUDA_TYPE_F16, FLOATS, 0, kv, n + below(d, 3), 1, 1) : NULL;
    struct gcuda_tensor * y =
        gcuda_flash_attn_ext(d->ctx, q, k, v, mask, 0.2f, has_mask && !often(d) ? 8.0f : 0.0f, often(d) ? 0.0f : 10.0f);
    d->max_nmse = 1e-3;
    if (y != NULL && !often(d)) {
        CHECK_OK(gcuda_flash_attn_ext_add_sinks(y, packed(d, GCUDA_TYPE_F32, FLOATS, 0, q->ne[2], 1, 1, 1)));
    }
    return y;
}
static struct gcuda_tensor * draw_flash_attn_back(struct drawn * d) {
    static const int64_t sizes[] = { 16, 33, 64, 64, 72, 96, 128, 128 };
    const int64_t kv_heads = 1 + below(d, 2), heads = kv_heads * (1 + below(d, 3)), seqs = 1 + below(d, 2),
                  kv = 1 + below(d, 150), n = 1 + below(d, 70);
    const int64_t size = sizes[below(d, 8)];
    const enum gcuda_type type = float_type(d);
    const bool has_mask = often(d), has_sinks = !often(d);
    struct gcuda_tensor *q = input4(d, GCUDA_TYPE_F32, size, n, heads, seqs),
                        *k = input4(d, type, size, kv, kv_heads, seqs);
    struct gcuda_tensor *v = input4(d, type, size, kv, kv_heads, seqs),
                        *y = input4(d, GCUDA_TYPE_F32, size, heads, n, seqs);
    struct gcuda_tensor * dy = input4(d, GCUDA_TYPE_F32, size, heads, n, seqs);
    struct gcuda_tensor * mask = has_mask ? packed(d, GCUDA_TYPE_F16, FLOATS, 0, kv, n + below(d, 3), 1, 1) : NULL;
    struct gcuda_tensor * sinks = has_sinks ? packed(d, GCUDA_TYPE_F32, FLOATS, 0, heads, 1, 1, 1) : NULL;
    d->max_nmse = 1e-3;
    return gcuda_flash_attn_ext_back(
        d->ctx, q, k, v, y, dy, mask, sinks, 0.2f, has_mask && !often(d) ? 8.0f : 0.0f, often(d) ? 0.0f : 10.0f);
}
static struct gcuda_tensor * draw_transposed(struct drawn * d) {
    const int k = 1 + below(d, 5), c = 1 + below(d, 20), oc = 1 + below(d, 40), wide = 1 + below(d, 40),
              s = 1 + below(d, 3);
    const enum gcuda_type weights = float_type(d), type = float_type(d);
    d->max_nmse = 5e-4;
    if (below(d, 2)) {
        struct gcuda_tensor * w = packed(d, weights, FLOATS, 0, 7 * k, oc, c, 1);
        return gcuda_conv_transpose_1d(d->ctx, w, packed(d, type, FLOATS, 0, wide, c, 1, 1), s, 0, 1);
    }
    struct gcuda_tensor * w = packed(d, weights, FLOATS, 0, k, 1 + below(d, 4), oc, c);
    return gcuda_conv_transpose_2d_p0(
        d->ctx, w, packed(d, type, FLOATS, 0, wide, 1 + below(d, 9), c, 1 + below(d, 2)), s);
}
static struct gcuda_tensor * draw_patches(struct drawn * d) {
    const int k0 = 1 + below(d, 4), k1 = 1 + below(d, 3), c = 1 + below(d, 5), s = 1 + below(d, 2), p = below(d, 2),
              dil = 1 + below(d, 2);
    const int wide = k0 * dil + below(d, 20), high = k1 * dil + below(d, 8);
    if (below(d, 3) == 0) { // a volume
        struct gcuda_tensor * x = input4(d, float_type(d), wide, high, k1 * dil + below(d, 4), 2 * c);
        return gcuda_im2col_3d(d->ctx, packed(d, GCUDA_TYPE_F16, FLOATS, 0, k0, k1, k1, c), x, c, s, s, s, p, p, p, dil,
            dil, dil, float_type(d));
    }
    if (below(d, 3) == 0) { // rows
        struct gcuda_tensor * x = input4(d, float_type(d), wide, c, 1 + below(d, 3), 1);
        return gcuda_im2col(
            d->ctx, packed(d, GCUDA_TYPE_F16, FLOATS, 0, k0, c, 3, 1), x, s, 0, p, 0, dil, 0, false, float_type(d));
    }
    struct gcuda_tensor *w = packed(d, GCUDA_TYPE_F16, FLOATS, 0, k0, k1, c, 3),
                        *x = input4(d, float_type(d), wide, high, c, 2);
    struct gcuda_tensor * y = gcuda_im2col(d->ctx, w, x, s, s, p, p, dil, dil, true, GCUDA_TYPE_F32);
    if (y == NULL || below(d, 2)) { return y; }
    return gcuda_im2col_back(d->ctx, like(d, y, FLOATS), w, x->ne, s, s, p, p, dil, dil, true);
}
static struct gcuda_tensor * draw_pool(struct drawn * d) {
    const int k0 = 1 + below(d, 5), k1 = 1 + below(d, 3), s0 = 1 + below(d, 4), s1 = 1 + below(d, 3),
              p = below(d, 2) && k0 > 1 && k1 > 1;
    const enum gcuda_op_pool op = often(d) ? GCUDA_OP_POOL_AVG : GCUDA_OP_POOL_MAX;
    struct gcuda_tensor * a =
        input4(d, float_type(d), k0 + below(d, 70), k1 + below(d, 9), 1 + below(d, 4), 1 + below(d, 2));
    if (below(d, 3) == 0) { return gcuda_pool_1d(d->ctx, a, op, k0, s0, p); }
    struct gcuda_tensor * y = gcuda_pool_2d(d->ctx, a, op, k0, k1, s0, s1, (float) p, (float) p);
    return y == NULL || below(d, 2)
               ? y
               : gcuda_pool_2d_back(d->ctx, like(d, y, FLOATS), a, op, k0, k1, s0, s1, (float) p, (float) p);
}
static struct gcuda_tensor * draw_resampled(struct drawn * d) {
    static const int modes[] = { GCUDA_SCALE_MODE_NEAREST, GCUDA_SCALE_MODE_BILINEAR, GCUDA_SCALE_MODE_BICUBIC,
        GCUDA_SCALE_MODE_BILINEAR | GCUDA_SCALE_FLAG_ANTIALIAS };
    const int mode = modes[below(d, 4)] | (below(d, 2) ? GCUDA_SCALE_FLAG_ALIGN_CORNERS : 0);
    struct gcuda_tensor * a = input4(d, float_type(d), 1 + below(d, 40), 1 + below(d, 20), 1 + below(d, 3), 1);
    return a == NULL
               ? NULL
               : gcuda_interpolate(d->ctx, a, 1 + below(d, 80), 1 + below(d, 40), a->ne[2], a->ne[3], (uint32_t) mode);
}
static struct gcuda_tensor * draw_conv(struct drawn * d) {
    const int k0 = 1 + below(d, 5), k1 = 1 + below(d, 4), c = 1 + below(d, 20), oc = 1 + below(d, 80);
    const int s = 1 + below(d, 3), p = below(d, 3), dil = 1 + below(d, 2), wide = k0 * dil + below(d, 70),
              high = k1 * dil + below(d, 20);
    const int what = below(d, 5);
    const enum gcuda_type type = float_type(d), weights = float_type(d);
    d->max_nmse = 5e-4;
    if (what < 2) {
        struct gcuda_tensor * w = packed(d, weights, FLOATS, 0, k0, k1, c, oc);
        return gcuda_conv_2d_direct(d->ctx, w, input4(d, type, wide, high, c, 1 + below(d, 2)), s, s, p, p, dil, dil);
    }
    if (what == 2) {
        struct gcuda_tensor * w = packed(d, weights, FLOATS, 0, k0, k1, 1, oc);
        return gcuda_conv_2d_dw_direct(d->ctx, w, input4(d, type, wide, high, oc, 1), s, s, p, p, dil, dil);
    }
    if (what == 3) { // channels innermost
        struct gcuda_tensor *w = packed(d, weights, FLOATS, 0, oc, k0, k1, 1),
                            *x = packed(d, type, FLOATS, 0, oc, wide, high, 1);
        w = gcuda_permute(d->ctx, w, 3, 0, 1, 2);
        return gcuda_conv_2d_dw_direct(d->ctx, w, gcuda_permute(d->ctx, x, 2, 0, 1, 3), s, s, p, p, dil, dil);
    }
    struct gcuda_tensor * x = input4(d, GCUDA_TYPE_F32, wide, high, c, 1);
    return gcuda_im2col(
        d->ctx, packed(d, weights, FLOATS, 0, k0, k1, c, oc), x, s, s, p, p, dil, dil, true, float_type(d));
}
static struct gcuda_tensor * draw_image(struct drawn * d) {
    struct gcuda_tensor * a = any(d);
    const int k = 1 + below(d, 3);
    d->max_nmse = 1e-6;
    return often(d)
               ? gcuda_upscale(d->ctx, a, k, (enum gcuda_scale_mode) below(d, 3))
               : gcuda_pool_2d(d->ctx, a, often(d) ? GCUDA_OP_POOL_AVG : GCUDA_OP_POOL_MAX, k, k, k, k, 0.0f, 0.0f);
}
static struct gcuda_tensor * draw_ssm(struct drawn * d) {
    const int n = often(d) ? 4 * (1 + below(d, 48)) : 1 + below(d, 190), dim = 1 + below(d, 40),
              heads = 1 + below(d, 6);
    const int tokens = 1 + below(d, 30), seqs = 1 + below(d, 2);
    d->max_nmse = 1e-6;
    if (below(d, 3) == 0) {
        const int taps = 1 + below(d, 6), channels = 1 + below(d, 100);
        struct gcuda_tensor * x = input4(d, GCUDA_TYPE_F32, taps - 1 + 1 + below(d, 150), channels, seqs, 1);
        return gcuda_ssm_conv(d->ctx, x, packed(d, GCUDA_TYPE_F32, FLOATS, 0, taps, channels, 1, 1));
    }
    const int groups = heads % 2 == 0 && often(d) ? 2 : 1, wide_dim = often(d) ? 16 * (1 + dim / 16) : dim;
    struct gcuda_tensor * s = packed(d, GCUDA_TYPE_F32, FLOATS, 0, n, wide_dim, heads, seqs);
    struct gcuda_tensor * x = packed(d, GCUDA_TYPE_F32, FLOATS, 0, wide_dim, heads, tokens, seqs);
    struct gcuda_tensor * dt = packed(d, GCUDA_TYPE_F32, FLOATS, 0, heads, tokens, seqs, 1);
    struct gcuda_tensor * a = packed(d, GCUDA_TYPE_F32, FLOATS, 0, often(d) ? 1 : n, heads, 1, 1);
    struct gcuda_tensor * b = packed(d, GCUDA_TYPE_F32, FLOATS, 0, n, groups, tokens, seqs);
    struct gcuda_tensor * c = packed(d, GCUDA_TYPE_F32, FLOATS, 0, n, groups, tokens, seqs);
    struct gcuda_tensor * ids = packed(d, GCUDA_TYPE_I32, INDICES, seqs, seqs, 1, 1, 1);
    return gcuda_ssm_scan(d->ctx, s, x, dt, gcuda_neg(d->ctx, gcuda_sqr(d->ctx, a)), b, c, ids);
}
static struct gcuda_tensor * draw_linear(struct drawn * d) {
    const int size = below(d, 2) ? 8 * (1 + below(d, 20)) : 1 + below(d, below(d, 4) ? 160 : 300),
              heads = 1 + below(d, 3);
    const int seqs = often(d) ? 1 : 1 + below(d, 4), tokens = seqs * (1 + below(d, seqs > 1 ? 6 : 20)),
              what = below(d, 3);
    struct gcuda_tensor * in[6];
    d->max_nmse = 1e-6;
    for (int i = 0; i < 6; ++i) {
        // the decay
        const enum content content = i == (what == 1 ? 1 : 3) ? (below(d, 2) ? POSITIVE : DECAYS) : SMALL_TRIANGLE;
        in[i] = packed(d, often(d) ? GCUDA_TYPE_F32 : float_type(d), content, 0, size, heads, tokens, 1);
    }
    struct gcuda_tensor * state = packed(d, GCUDA_TYPE_F32, FLOATS, 0, size * size * heads, seqs, 1, 1);
    switch (what) {
        case 0: return gcuda_gated_linear_attn(d->ctx, in[0], in[1], in[2], in[3], state, 0.3f);
        case 1: return gcuda_rwkv_wkv7(d->ctx, in[0], in[1], in[2], in[3], in[4], in[5], state);
        default:
            return gcuda_rwkv_wkv6(
                d->ctx, in[0], in[1], in[2], packed(d, GCUDA_TYPE_F32, FLOATS, 0, size, heads, 1, 1), in[3], state);
    }
}
static struct gcuda_tensor * draw_solve_tri(struct drawn * d) {
    const int n = 1 + below(d, 100), columns = 1 + below(d, 70), k = 1 + below(d, 3);
    struct gcuda_tensor * a = packed(d, GCUDA_TYPE_F32, SMALL_TRIANGLE, 0, n, n, k, 1);
    d->max_nmse = 1e-6;
    return gcuda_solve_tri(d->ctx, a, input4(d, GCUDA_TYPE_F32, columns, n, k, 1), true, true, false);
}
static struct gcuda_tensor * draw_mul_mat(struct drawn * d) {
    const int64_t k = extent(d, 300), r = 1 + below(d, 2), n3 = 1 + below(d, 2);
    struct gcuda_tensor * a = input4(d, float_type(d), k, extent(d, 70), n3, 1);
    d->max_nmse = 5e-4;
    return gcuda_mul_mat(d->ctx, a, input4(d, GCUDA_TYPE_F32, k, extent(d, 40), n3 * r, 1));
}
static struct gcuda_tensor * draw_mul_mat_blocks(struct drawn * d) {
    const enum gcuda_type type = block_type(d);
    const int64_t k = blocks(d, type, 16), r = 1 + below(d, 2), n3 = 1 + below(d, 2);
    struct gcuda_tensor * a = input4(d, type, k, extent(d, 50), n3, 1);
    d->max_nmse = 1e-3; // both round columns, in their own ways
    return gcuda_mul_mat(d->ctx, a, input4(d, often(d) ? GCUDA_TYPE_F32 : float_type(d), k, extent(d, 40), n3 * r, 1));
}
static struct gcuda_tensor * draw_mul_mat_id(struct drawn * d) {
    const enum gcuda_type type = often(d) ? block_type(d) : float_type(d);
    const int64_t k = gcuda_blck_size(type) > 1 ? blocks(d, type, 8) : extent(d, 100), experts = 1 + below(d, 6),
                  tokens = 1 + below(d, 20);
    const int64_t used = 1 + below(d, (int) experts);
    struct gcuda_tensor * as = input4(d, type, k, 1 + below(d, 40), experts, 1);
    struct gcuda_tensor * b = input4(d, GCUDA_TYPE_F32, k, below(d, 2) ? 1 : used, tokens, 1);
    d->max_nmse = 1e-3;
    return gcuda_mul_mat_id(d->ctx, as, b, packed(d, GCUDA_TYPE_I32, INDICES, experts, used, tokens, 1, 1));
}
static struct gcuda_tensor * draw_out_prod(struct drawn * d) {
    const int64_t k = extent(d, 60);
    struct gcuda_tensor * a = input4(d, GCUDA_TYPE_F32, extent(d, 70), k, 1, 1);
    d->max_nmse = 5e-4;
    return gcuda_out_prod(d->ctx, a, input4(d, GCUDA_TYPE_F32, extent(d, 70), k, 1 + below(d, 2), 1));
}

static struct gcuda_tensor * (*const draws[])(struct drawn * d) = { draw_unary, draw_glu, draw_binary, draw_map,
    draw_cpy, draw_cont, draw_repeat, draw_concat, draw_move, draw_get_rows, draw_reduce, draw_sort, draw_norm,
    draw_conv, draw_conv, draw_image, draw_ssm, draw_ssm, draw_linear, draw_solve_tri, draw_mul_mat, draw_out_prod,
    draw_cpy_blocks, draw_get_blocks, draw_set_rows, draw_get_rows_back, draw_region, draw_positive, draw_mask,
    draw_made, draw_soft_max, draw_back, draw_opt_step, draw_rope, draw_flash_attn, draw_flash_attn_back,
    draw_transposed, draw_patches, draw_pool, draw_resampled, draw_mul_mat_blocks, draw_mul_mat_id, draw_add_blocks,
    draw_unwritable, draw_custom };
#define N_DRAWS ((int) (sizeof draws / sizeof draws[0]))

// =====================================================================================================================
// >>runs   the same case on one backend, then on the other
// =====================================================================================================================
static double content_of(enum content content, double u, bool is_diagonal) { // u in [0, 1)
    const double v = 2.0 * u - 1.0;
    switch (content) {
        case POSITIVE: return 0.2 + 0.8 * u;
        case SMALL_TRIANGLE: return is_diagonal ? 1.0 + u : 0.1 * v;
        case DECAYS: return fabs(v) < 0.2 ? 0.0 : v;
        default: return v;
    }
}

// Any codes, under scales that are numbers: for the types without a quantizer. All but IQ1_M begin with theirs in half
// precision; its own is the top four bits of four words.
static void fill_blocks(struct drawn * d, enum gcuda_type type, char * bytes, size_t n_bytes) {
    const size_t block = gcuda_type_size(type);
    for (size_t i = 0; i < n_bytes; ++i) { bytes[i] = (char) below(d, 256); }
    for (char * b = bytes; b + block <= bytes + n_bytes; b += block) {
        const gcuda_fp16_t scale = gcuda_fp32_to_fp16((float) rng_between(&d->rng, 0.005, 0.015));
        struct gcuda_block_iq1_m * m = (struct gcuda_block_iq1_m *) (void *) b;
        if (type != GCUDA_TYPE_IQ1_M) { memcpy(b, &scale, sizeof scale); }
        for (int j = 0; j < 4 && type == GCUDA_TYPE_IQ1_M; ++j) {
            m->scales[j] = (uint16_t) ((m->scales[j] & 0x0fff) | (j == 3 ? 0x2000 : 0));
        }
    }
}

static void fill_leaf(struct drawn * d, int k) {
    struct gcuda_tensor * t = d->leafs[k];
    const int64_t n = gcuda_nelements(t);
    char * bytes = (char *) calloc((size_t) n + 1, 8);
    float * floats = (float *) calloc((size_t) n + 1, sizeof *floats);
    for (int64_t i = 0; i < n; ++i) {
        const bool is_diagonal = t->ne[0] == t->ne[1] && i % t->ne[0] == i / t->ne[0] % t->ne[1];
        const double u = rng_unit(&d->rng);
        const float f = (float) content_of(d->content[k], u, is_diagonal);
        const gcuda_fp16_t h = gcuda_fp32_to_fp16(f);
        const gcuda_bf16_t b = gcuda_fp32_to_bf16(f);
        const double wide = (double) f;
        const int32_t index = (int32_t) (u * (double) d->limit[k]);
        const int64_t long_index = index;
        if (gcuda_is_quantized(t->type)) { floats[i] = f; }
        switch (gcuda_is_quantized(t->type) ? GCUDA_TYPE_COUNT : t->type) {
            case GCUDA_TYPE_COUNT: break;
            case GCUDA_TYPE_I64: memcpy(bytes + 8 * i, &long_index, 8); break;
            case GCUDA_TYPE_F32: memcpy(bytes + 4 * i, &f, 4); break;
            case GCUDA_TYPE_F16: memcpy(bytes + 2 * i, &h, 2); break;
            case GCUDA_TYPE_BF16: memcpy(bytes + 2 * i, &b, 2); break;
            case GCUDA_TYPE_F64: memcpy(bytes + 8 * i, &wide, 8); break;
            case GCUDA_TYPE_I32: memcpy(bytes + 4 * i, &index, 4); break;
            default: memcpy(bytes + (size_t) i * gcuda_type_size(t->type), &f, gcuda_type_size(t->type)); break;
        }
    }
    const struct gcuda_type_traits * traits = gcuda_get_type_traits(t->type);
    if (gcuda_is_quantized(t->type) && traits->from_float_ref != NULL) { traits->from_float_ref(floats, bytes, n); }
    if (gcuda_is_quantized(t->type) && traits->from_float_ref == NULL) {
        fill_blocks(d, t->type, bytes, gcuda_nbytes(t));
    }
    CHECK_OK(gcuda_backend_tensor_set(t, bytes, 0, gcuda_nbytes(t)));
    free(floats);
    free(bytes);
}

enum outcome { NOT_MADE, REFUSED, COMPUTED, BROKEN };
struct result {
    double * v; // in the order of the tensor
    int64_t n, row;
    enum gcuda_type type;
    char op[32];
    int n_damaged; // nodes that were refused
};

static double number(enum gcuda_type type, const char * p) {
    union {
        float f;
        double d;
        int8_t i8;
        int16_t i16;
        int32_t i32;
        gcuda_fp16_t h;
        gcuda_bf16_t b;
    } u;
    memcpy(&u, p, gcuda_type_size(type));
    switch (type) {
        case GCUDA_TYPE_F32: return (double) u.f;
        case GCUDA_TYPE_F64: return u.d;
        case GCUDA_TYPE_F16: return (double) gcuda_fp16_to_fp32(u.h);
        case GCUDA_TYPE_BF16: return (double) gcuda_bf16_to_fp32(u.b);
        case GCUDA_TYPE_I8: return (double) u.i8;
        case GCUDA_TYPE_I16: return (double) u.i16;
        default: return (double) u.i32;
    }
}

static void read_result(const struct gcuda_tensor * y, struct result * out) {
    char * bytes = (char *) malloc(gcuda_nbytes(y) + 1);
    CHECK_OK(gcuda_backend_tensor_get(y, bytes, 0, gcuda_nbytes(y)));
    out->n = gcuda_nelements(y);
    out->row = y->ne[0];
    out->type = y->type;
    out->v = (double *) malloc((size_t) (out->n + 1) * sizeof *out->v);
    if (gcuda_is_quantized(y->type)) { // all these are packed
        float * floats = (float *) malloc((size_t) (out->n + 1) * sizeof *floats);
        gcuda_get_type_traits(y->type)->to_float(bytes, floats, out->n);
        for (int64_t i = 0; i < out->n; ++i) { out->v[i] = (double) floats[i]; }
        free(floats);
    }
    for (int64_t i = 0; i < out->n && !gcuda_is_quantized(y->type); ++i) {
        const int64_t i1 = i / y->ne[0] % y->ne[1], i2 = i / y->ne[0] / y->ne[1] % y->ne[2],
                      i3 = i / y->ne[0] / y->ne[1] / y->ne[2];
        const char * row = bytes + (size_t) i1 * y->nb[1] + (size_t) i2 * y->nb[2] + (size_t) i3 * y->nb[3];
        out->v[i] = number(y->type, row + (size_t) (i % y->ne[0]) * y->nb[0]);
    }
    free(bytes);
}

// The node is refused by supports_op; computing it is an error all the same, and both name the operation.
static void is_refused(
    const char * name, gcuda_backend_t backend, struct gcuda_cgraph * graph, const struct gcuda_tensor * y) {
    char op[64], asked[512], computed[512];
    snprintf(op, sizeof op, "%s", gcuda_op_name(y->op));
    for (char * c = op; *c != '\0'; ++c) { *c = (char) tolower((unsigned char) *c); }
    snprintf(asked, sizeof asked, "%s", gcuda_last_error());
    gcuda_clear_last_error();
    const gcuda_status st = gcuda_backend_graph_compute(backend, graph);
    snprintf(computed, sizeof computed, "%s", gcuda_last_error());
    CHECK_MSG(asked[0] != '\0' && strstr(asked, op) != NULL, "%s %s: not supported, and why does not name it: '%s'",
        name, op, asked);
    CHECK_MSG(st != GCUDA_STATUS_SUCCESS, "%s: computed, and supports_op says: %s", name, asked);
    CHECK_MSG(st == GCUDA_STATUS_SUCCESS || strstr(computed, op) != NULL, "%s %s: error %d does not name it: '%s'",
        name, op, (int) st, computed);
    gcuda_clear_last_error();
}

// One thing about the node, or about a source, for which `copy` stands, is no longer as its constructor made it.
static void damage(struct rng * r, struct gcuda_tensor * y, struct gcuda_tensor * copy) {
    int n = 0;
    while (n < GCUDA_MAX_SRC && y->src[n] != NULL) { ++n; }
    const int k = (int) rng_below(r, n > 0 ? n : 1), what = (int) rng_below(r, 6), i = (int) rng_below(r, 4);
    struct gcuda_tensor * t = y;
    if (what < 4 && n > 0 && rng_below(r, 3) != 0) {
        *copy = *y->src[k];
        if (y->view_src == y->src[k]) { y->view_src = copy; }
        y->src[k] = t = copy;
    }
    switch (what) {
        case 0:
            t->type = (enum gcuda_type)(
                ((int64_t) t->type + 1 + rng_below(r, GCUDA_TYPE_COUNT + 1)) % (GCUDA_TYPE_COUNT + 2));
            break;
        case 1: t->ne[i] += 1 + rng_below(r, 3); break;
        case 2: t->ne[i] -= 1; break;
        case 3: t->nb[i] += 1 + (size_t) rng_below(r, 4); break;
        case 4: y->src[k] = NULL; break;
        default: y->op_params[rng_below(r, 4)] = rng_below(r, 2) ? 0x7fc00000 : -7; break; // not a number
    }
}

// How many of some damaged forms of the node were refused; the others are no matter. It is as it was before.
static int try_damaged(
    const char * name, gcuda_backend_t backend, struct gcuda_cgraph * graph, struct gcuda_tensor * y, struct rng * r) {
    const struct gcuda_tensor was = *y;
    int n_refused = 0;
    for (int i = 0; i < 4; ++i) {
        struct gcuda_tensor copy;
        damage(r, y, &copy);
        gcuda_clear_last_error();
        if (!gcuda_backend_supports_op(backend, y)) {
            is_refused(name, backend, graph, y);
            n_refused++;
        }
        *y = was;
    }
    return n_refused;
}

// Damaged before, when there is no plan of the graph, and after; what is computed between is right.
static enum outcome compute(const char * name, gcuda_backend_t backend, struct gcuda_cgraph * graph,
    struct gcuda_tensor * y, struct result * out) {
    struct rng r = rng_for(name);
    out->n_damaged += try_damaged(name, backend, graph, y, &r);
    if (!CHECK_OK(gcuda_backend_graph_compute(backend, graph))) { return BROKEN; }
    read_result(y, out);
    out->n_damaged += try_damaged(name, backend, graph, y, &r);
    return COMPUTED;
}

static enum outcome run(const char * name, int which, gcuda_backend_t backend, struct result * out, struct drawn * d) {
    const struct gcuda_init_params params = { 0, NULL, true };
    enum outcome outcome = NOT_MADE;
    memset(d, 0, sizeof *d);
    memset(out, 0, sizeof *out);
    d->rng = rng_for(name);
    d->ctx = gcuda_init(params);
    d->max_nmse = 1e-6;
    gcuda_clear_last_error();
    struct gcuda_tensor * y = draws[which](d);
    struct gcuda_cgraph * graph = gcuda_new_graph(d->ctx);
    if (y == NULL) {
        CHECK_MSG(gcuda_last_error()[0] != '\0', "%s: refused without a reason", name);
    } else {
        gcuda_backend_buffer_t buffer = gcuda_backend_alloc_ctx_tensors(d->ctx, backend);
        outcome = BROKEN;
        snprintf(out->op, sizeof out->op, "%s", gcuda_op_name(y->op));
        if (CHECKED(buffer != NULL, "%s: %s", name, gcuda_last_error()) &&
            CHECK_OK(gcuda_build_forward_expand(graph, y))) {
            for (int k = 0; k < d->n_leafs; ++k) { fill_leaf(d, k); }
            if (gcuda_backend_supports_op(backend, y)) {
                outcome = compute(name, backend, graph, y, out);
            } else {
                is_refused(name, backend, graph, y);
                outcome = REFUSED;
            }
        }
        gcuda_backend_buffer_free(buffer);
    }
    gcuda_free(d->ctx);
    return outcome;
}

static int by_value(const void * a, const void * b) {
    const double u = *(const double *) a, v = *(const double *) b;
    return (u > v) - (u < v);
}

// The root mean square of finite elements.
static double size_of(const double * v, int64_t n) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; ++i) { sum += isfinite(v[i]) ? v[i] * v[i] : 0.0; }
    return sqrt(sum / (double) (n > 0 ? n : 1));
}

// No single element may be far off relative to its row: among thousands it would not show in their sum. Values rounded
// to few bits may fall on the other side of a boundary.
static void compare_elements(
    const char * name, double max_nmse, const struct result * want, const struct result * got) {
    const double all = size_of(want->v, want->n), digits = got->type == GCUDA_TYPE_BF16  ? 1.0 / 128
                                                           : got->type == GCUDA_TYPE_F16 ? 1.0 / 1024
                                                                                         : 0.0;
    for (int64_t r = 0; r < got->n; r += got->row) {
        const double most = 8.0 * sqrt(max_nmse) * fmax(all, size_of(want->v + r, want->row));
        for (int64_t i = r; i < r + got->row; ++i) {
            const bool is_near =
                !isfinite(want->v[i]) || fabs(got->v[i] - want->v[i]) <= most + digits * fabs(want->v[i]);
            if (!CHECKED(is_near, "%s %s: element %lld of %lld is %g, on the CPU %g", name, got->op, (long long) i,
                    (long long) got->n, got->v[i], want->v[i])) {
                return;
            }
        }
    }
}

static void compare(const char * name, const struct drawn * d, struct result * want, struct result * got) {
    double error = 0.0, scale = 0.0;
    // a few may be rounded the other way
    const double max_nmse = got->type == GCUDA_TYPE_BF16 ? fmax(d->max_nmse, 2e-5) : d->max_nmse;
    if (!CHECKED(want->n == got->n, "%s %s: %lld elements, on the CPU %lld", name, got->op, (long long) got->n,
            (long long) want->n)) {
        return;
    }
    for (int64_t i = 0; d->is_set && i + got->row <= got->n; i += got->row) {
        qsort(got->v + i, (size_t) got->row, sizeof *got->v, by_value);
        qsort(want->v + i, (size_t) got->row, sizeof *want->v, by_value);
    }
    for (int64_t i = 0; i < got->n; ++i) {
        if (isnan(want->v[i]) || isinf(want->v[i])) {
            if (!CHECKED(isnan(want->v[i]) ? isnan(got->v[i]) : got->v[i] == want->v[i],
                    "%s %s: element %lld is %g, on the CPU %g", name, got->op, (long long) i, got->v[i], want->v[i])) {
                return;
            }
            continue;
        }
        error += (got->v[i] - want->v[i]) * (got->v[i] - want->v[i]);
        scale += want->v[i] * want->v[i];
    }
    CHECK_MSG(error <= max_nmse * scale || (scale == 0.0 && error == 0.0), "%s %s: error %g of %g in %lld elements",
        name, got->op, error, scale, (long long) got->n);
    compare_elements(name, max_nmse, want, got);
}

struct counts {
    int computed, not_made, refused, for_cpu, only_cpu, only_device, damaged;
};

static void one_case(const char * name, int which, gcuda_backend_t cpu, gcuda_backend_t device, struct counts * n) {
    struct drawn d;
    struct result want, got;
    memset(&got, 0, sizeof got);
    const enum outcome on_cpu = run(name, which, cpu, &want, &d);
    const enum outcome on_device = on_cpu == NOT_MADE ? NOT_MADE : run(name, which, device, &got, &d);
    n->damaged += got.n_damaged;
    if (on_cpu == COMPUTED && on_device == COMPUTED) {
        compare(name, &d, &want, &got);
        n->computed++;
    } else if (on_cpu == COMPUTED || on_device == COMPUTED) {
        int * which_one = on_device == COMPUTED ? &n->only_device : d.is_for_cpu ? &n->for_cpu : &n->only_cpu;
        if (test_all.verbose) {
            printf("  only on the %s: %s %s\n", on_device == COMPUTED ? "device" : "CPU", name, got.op);
        }
        ++*which_one;
    } else {
        n->refused += on_cpu == REFUSED;
        n->not_made += on_cpu == NOT_MADE;
    }
    free(got.v);
    free(want.v);
}

TEST(random) {
    gcuda_backend_t cpu = gcuda_backend_cpu_init(), device = gcuda_backend_cuda_init(0);
    const int n = test_full() ? 6000 : 460;
    struct counts c;
    memset(&c, 0, sizeof c);
    if (!CHECKED(cpu != NULL && device != NULL, "%s", gcuda_last_error())) { return; }
    for (int i = 0; i < n; ++i) {
        char name[48];
        snprintf(name, sizeof name, "random/%d", i);
        if (!test_case_begin(name)) { continue; }
        one_case(name, i % N_DRAWS, cpu, device, &c);
        test_case_end();
    }
    printf("  %d computed on both, %d refused by their constructors, %d by both, %d for the CPU "
           "alone, %d only on the CPU, %d only on the "
           "device; %d damaged ones refused by the device\n",
        c.computed, c.not_made, c.refused, c.for_cpu, c.only_cpu, c.only_device, c.damaged);
    if (test_all.filter == NULL && test_all.n_parts == 0) {
        CHECK_MSG(c.computed > n / 2 && c.only_cpu == 0 && c.only_device == 0, "of %d", n);
        CHECK_MSG(c.refused > 0 && c.for_cpu > 0 && c.damaged > 2 * n, "of %d", n);
    }
    gcuda_backend_free(device);
    gcuda_backend_free(cpu);
}
