// Types, conversions, tensors, contexts, graphs, custom operations, allocation failures: everything below the
// operations.
#include "test-ops.h"

#include <ctype.h>

// =====================================================================================================================
// >>types
// =====================================================================================================================
TEST(type_table) {
    int n = 0;
    for (int id = -2; id < GCUDA_TYPE_COUNT + 3; ++id) {
        const enum gcuda_type type = (enum gcuda_type) id;
        const struct op_type * want = op_type_find(type);
        const struct gcuda_type_traits * got = gcuda_get_type_traits(type);
        CHECK_MSG((want != NULL) == (got != NULL), "type %d", id);
        CHECK(gcuda_type_is_valid(type) == (want != NULL));
        CHECK_EQ_I(gcuda_blck_size(type), want ? want->blck : 0);
        CHECK_EQ_I(gcuda_type_size(type), want ? want->size : 0);
        if (want == NULL || got == NULL) {
            CHECK(strcmp(gcuda_type_name(type), "invalid") == 0);
            continue;
        }
        ++n;
        CHECK(gcuda_is_quantized(type) == (want->blck > 1) && got->is_quantized == (want->blck > 1));
        const bool is_int = id >= GCUDA_TYPE_I8 && id <= GCUDA_TYPE_I64;
        CHECK_MSG((got->to_float != NULL) == !is_int, "%s to_float", want->name);
        for (int i = 0; want->name[i]; ++i) {
            CHECK(tolower((unsigned char) want->name[i]) == tolower((unsigned char) gcuda_type_name(type)[i]));
        }
        CHECK_EQ_I(gcuda_row_size(type, 4 * want->blck), 4 * want->size);
        CHECK_EQ_I(gcuda_row_size(type, want->blck + 1), want->blck == 1 ? 2 * want->size : 0);
        CHECK_EQ_I(gcuda_row_size(type, -want->blck), 0);
        const int64_t huge = INT64_MAX / 256 * 256;
        const size_t bytes = gcuda_row_size(type, huge);
        CHECK_MSG(bytes == 0 || (bytes % want->size == 0 && bytes / want->size == (size_t) (huge / want->blck)),
            "%s wraps", want->name);
    }
    CHECK_EQ_I(n, (int) OP_N_TYPES);
}

static bool same_f32(double want, float got) {
    return isnan(want) ? isnan(got) : want == (double) got && !signbit(want) == !signbit(got);
}

TEST(half_to_float) { // all 65536 of both kinds
    for (uint32_t h = 0; h < 65536; ++h) {
        gcuda_bf16_t b;
        b.bits = (uint16_t) h;
        CHECK_MSG(same_f32(value_f16((uint16_t) h), gcuda_fp16_to_fp32((gcuda_fp16_t) h)), "F16 0x%04X", (unsigned) h);
        CHECK_MSG(same_f32(value_f32_bits(h << 16), gcuda_bf16_to_fp32(b)), "BF16 0x%04X", (unsigned) h);
    }
}

static void check_rounding(float x) {
    const float h = gcuda_fp16_to_fp32(gcuda_fp32_to_fp16(x)), b = gcuda_bf16_to_fp32(gcuda_fp32_to_bf16(x));
    CHECK_MSG(same_f32(round_f16((double) x), h), "%.9g as F16: want %.9g, got %.9g", (double) x, round_f16((double) x),
        (double) h);
    CHECK_MSG(same_f32(round_bf16((double) x), b), "%.9g as BF16: want %.9g, got %.9g", (double) x,
        round_bf16((double) x), (double) b);
}

TEST(float_to_half) { // every tie between two neighbours, the floats next to it, and random bits
    for (uint32_t h = 0; h < 0x7C00; ++h) {
        const float tie =
            (float) ((value_f16((uint16_t) h) + (h == 0x7BFF ? 65536.0 : value_f16((uint16_t) (h + 1)))) / 2);
        const float all[] = { (float) value_f16((uint16_t) h), tie, nextafterf(tie, 0), nextafterf(tie, 1e9f) };
        for (int i = 0; i < 4; ++i) { check_rounding(all[i]), check_rounding(-all[i]); }
    }
    for (uint32_t h = 0; h < 0x7F80; ++h) {
        const float tie = (float) value_f32_bits(h << 16 | 0x8000);
        check_rounding(tie), check_rounding(-tie), check_rounding(nextafterf(tie, 0)),
            check_rounding(nextafterf(tie, HUGE_VALF));
    }
    struct rng r = rng_for("float_to_half");
    for (int i = 0; i < 300000; ++i) { check_rounding((float) value_f32_bits((uint32_t) rng_u64(&r))); }
}

TEST(half_rows) { // the vector forms do the same, at every length and for NaN
    enum { N = 67 };
    float x[N], y[N];
    gcuda_fp16_t h[N];
    gcuda_bf16_t b[N];
    struct rng r = rng_for("half_rows");
    for (int n = 0; n <= N; ++n) {
        for (int i = 0; i < N; ++i) { x[i] = (float) value_f32_bits((uint32_t) rng_u64(&r)); }
        gcuda_fp32_to_fp16_row(x, h, n);
        gcuda_fp16_to_fp32_row(h, y, n);
        for (int i = 0; i < n; ++i) {
            CHECK_MSG(same_f32(round_f16((double) x[i]), y[i]), "%d of %d: %.9g", i, n, (double) x[i]);
        }
        gcuda_fp32_to_bf16_row(x, b, n);
        gcuda_bf16_to_fp32_row(b, y, n);
        for (int i = 0; i < n; ++i) {
            CHECK_MSG(same_f32(round_bf16((double) x[i]), y[i]), "%d of %d: %.9g", i, n, (double) x[i]);
        }
    }
}

// =====================================================================================================================
// >>tensors
// =====================================================================================================================
static bool want_contiguous(const struct gcuda_tensor * t, int n) {
    const int64_t blk = op_type_of(t->type)->blck;
    size_t expect = op_type_of(t->type)->size;
    if (t->ne[0] != blk && t->nb[0] != expect) { return false; }
    expect *= (size_t) (t->ne[0] / blk);
    for (int i = 1; i < 4; ++i) {
        if (i > n) {
            if (t->ne[i] != 1 && t->nb[i] != expect) { return false; }
            expect *= (size_t) t->ne[i];
        } else {
            expect = (size_t) t->ne[i] * t->nb[i];
        }
    }
    return true;
}

TEST(layout_predicates) { // on random strides, some of them dense
    struct rng r = rng_for("layout_predicates");
    for (int round = 0; round < 20000; ++round) {
        struct gcuda_tensor t;
        memset(&t, 0, sizeof t);
        t.type = rng_below(&r, 3) ? GCUDA_TYPE_F32 : rng_below(&r, 2) ? GCUDA_TYPE_Q4_0 : GCUDA_TYPE_F16;
        const struct op_type * ty = op_type_of(t.type);
        size_t dense = ty->size;
        for (int i = 0; i < 4; ++i) {
            t.ne[i] = (1 + rng_below(&r, 3)) * (i == 0 ? ty->blck : 1);
            t.nb[i] = rng_below(&r, 4) ? dense : dense + ty->size * (size_t) rng_below(&r, 3);
            if (rng_below(&r, 12) == 0) { t.nb[i] = ty->size * (size_t) (1 + rng_below(&r, 8)); }
            dense = t.nb[i] * (size_t) (i == 0 ? t.ne[i] / ty->blck : t.ne[i]);
        }
        CHECK(gcuda_is_contiguous(&t) == want_contiguous(&t, 0) && gcuda_is_contiguous_0(&t) == want_contiguous(&t, 0));
        CHECK(gcuda_is_contiguous_1(&t) == want_contiguous(&t, 1));
        CHECK(gcuda_is_contiguous_2(&t) == want_contiguous(&t, 2));
        CHECK(gcuda_is_contiguous_rows(&t) == (t.ne[0] == ty->blck || t.nb[0] == ty->size));
        CHECK(gcuda_is_transposed(&t) == (t.nb[0] > t.nb[1]));
        CHECK(gcuda_is_permuted(&t) == (t.nb[0] > t.nb[1] || t.nb[1] > t.nb[2] || t.nb[2] > t.nb[3]));
        CHECK(gcuda_is_padded_1d(&t) ==
              (t.nb[0] == ty->size && t.nb[2] == t.nb[1] * (size_t) t.ne[1] && t.nb[3] == t.nb[2] * (size_t) t.ne[2]));
        size_t n = t.ne[0] == ty->blck || ty->blck > 1 ? t.nb[0] * (size_t) (t.ne[0] / ty->blck)
                                                       : ty->size + (size_t) (t.ne[0] - 1) * t.nb[0];
        if (ty->blck == 1) { n = ty->size + (size_t) (t.ne[0] - 1) * t.nb[0]; }
        for (int i = 1; i < 4; ++i) { n += (size_t) (t.ne[i] - 1) * t.nb[i]; }
        CHECK_EQ_I(gcuda_nbytes(&t), n);
        const int64_t elements = t.ne[0] * t.ne[1] * t.ne[2] * t.ne[3];
        CHECK_EQ_I(gcuda_nelements(&t), elements);
        CHECK(gcuda_is_contiguously_allocated(&t) == (n == (size_t) (elements / ty->blck) * ty->size));
        CHECK_EQ_I(gcuda_n_dims(&t), t.ne[3] > 1 ? 4 : t.ne[2] > 1 ? 3 : t.ne[1] > 1 ? 2 : 1);
    }
}

TEST(empty_and_repeat_predicates) {
    struct gcuda_context * ctx = op_context();
    REQUIRE(ctx != NULL);
    struct gcuda_tensor *e = gcuda_new_tensor_2d(ctx, GCUDA_TYPE_F32, 4, 0),
                        *a = gcuda_new_tensor_2d(ctx, GCUDA_TYPE_F32, 4, 6);
    struct gcuda_tensor *b = gcuda_new_tensor_2d(ctx, GCUDA_TYPE_F32, 2, 3),
                        *row = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F32, 4);
    REQUIRE(e && a && b && row);
    CHECK(gcuda_is_empty(e) && !gcuda_is_empty(a) && gcuda_nbytes(e) == 0);
    CHECK(gcuda_can_repeat(b, a) && !gcuda_can_repeat(a, b) && gcuda_can_repeat(row, a) && gcuda_can_repeat(row, e));
    CHECK(gcuda_can_repeat(e, e) && !gcuda_can_repeat(e, a));
    CHECK(gcuda_can_repeat_rows(row, a) && !gcuda_can_repeat_rows(b, a));
    CHECK(gcuda_is_vector(row) && gcuda_is_matrix(a) && !gcuda_is_vector(a) && !gcuda_is_scalar(row));
    gcuda_free(ctx);
}

TEST(questions_about_no_tensor) { // 0, false, or nothing happens
    typedef bool (*is_fn)(const struct gcuda_tensor *);
    typedef bool (*pair_fn)(const struct gcuda_tensor *, const struct gcuda_tensor *);
    static const is_fn is[] = { gcuda_is_empty, gcuda_is_scalar, gcuda_is_vector, gcuda_is_matrix, gcuda_is_3d,
        gcuda_is_view, gcuda_is_transposed, gcuda_is_permuted, gcuda_is_contiguous, gcuda_is_contiguous_0,
        gcuda_is_contiguous_1, gcuda_is_contiguous_2, gcuda_is_contiguous_rows, gcuda_is_contiguously_allocated,
        gcuda_is_contiguous_channels, gcuda_is_padded_1d };
    static const pair_fn pairs[] = { gcuda_are_same_shape, gcuda_are_same_stride, gcuda_can_repeat,
        gcuda_can_repeat_rows };
    const struct gcuda_init_params params = { 0, NULL, true };
    struct gcuda_context * ctx = gcuda_init(params);
    struct gcuda_tensor * t = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F32, 4);
    int64_t at[4] = { 5, 5, 5, 5 };
    struct gcuda_backend_buffer_i iface;
    memset(&iface, 0, sizeof iface);
    for (size_t i = 0; i < sizeof is / sizeof is[0]; ++i) { CHECK_MSG(!is[i](NULL), "question %d", (int) i); }
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; ++i) {
        CHECK_MSG(!pairs[i](NULL, t) && !pairs[i](t, NULL) && !pairs[i](NULL, NULL), "question %d about two", (int) i);
    }
    CHECK(
        gcuda_nelements(NULL) == 0 && gcuda_nrows(NULL) == 0 && gcuda_nbytes(NULL) == 0 && gcuda_nbytes_pad(NULL) == 0);
    CHECK(gcuda_element_size(NULL) == 0 && gcuda_n_dims(NULL) == 0);
    gcuda_unravel_index(NULL, 3, &at[0], &at[1], NULL, &at[3]);
    CHECK(at[0] == 0 && at[1] == 0 && at[2] == 5 && at[3] == 0);
    gcuda_unravel_index(NULL, 3, NULL, NULL, NULL, NULL);
    CHECK(gcuda_format_name(NULL, NULL) == NULL && gcuda_format_name(gcuda_set_name(t, "t"), NULL) == t);
    CHECK(strcmp(gcuda_get_name(t), "") == 0);
    gcuda_rope_yarn_corr_dims(64, 4096, 10000.0f, 32.0f, 1.0f, NULL);
    gcuda_threadpool_params_init(NULL, 2);
    gcuda_backend_buffer_type_t buft = gcuda_backend_cpu_buffer_type();
    CHECK(gcuda_backend_buft_get_alloc_size(buft, NULL) == 0 && gcuda_backend_buffer_get_alloc_size(NULL, NULL) == 0);
    CHECK(gcuda_backend_buft_get_alloc_size(buft, t) == 16 && gcuda_backend_buft_get_alloc_size(NULL, t) == 16);
    gcuda_clear_last_error();
    CHECK(gcuda_backend_buffer_init(buft, NULL, NULL, 0) == NULL && strstr(gcuda_last_error(), "iface") != NULL);
    CHECK(gcuda_backend_buffer_init(NULL, &iface, NULL, 0) == NULL && strstr(gcuda_last_error(), "buft") != NULL);
    gcuda_free(ctx);
}

TEST(views_have_a_root) {
    struct gcuda_init_params params;
    memset(&params, 0, sizeof params);
    struct gcuda_context * ctx = gcuda_init(params); // grows, with data
    REQUIRE(ctx != NULL);
    struct gcuda_tensor * a = gcuda_new_tensor_2d(ctx, GCUDA_TYPE_F32, 8, 4);
    REQUIRE(a != NULL && a->data != NULL && (uintptr_t) a->data % GCUDA_MEM_ALIGN == 0);
    struct gcuda_tensor *v = gcuda_view_1d(ctx, a, 16, 32), *w = gcuda_view_1d(ctx, v, 4, 8),
                        *t = gcuda_transpose(ctx, gcuda_view_tensor(ctx, a));
    REQUIRE(v && w && t);
    CHECK(v->view_src == a && w->view_src == a && t->view_src == a);
    CHECK_EQ_I(w->view_offs, 40);
    CHECK(w->data == (char *) a->data + 40 && w->src[0] == v && t->data == a->data);
    CHECK(t->ne[0] == 4 && t->ne[1] == 8 && t->nb[0] == 32 && t->nb[1] == 4);
    CHECK_OK(gcuda_set_f32_nd(a, 2, 1, 0, 0, 7.5f));
    CHECK(gcuda_get_f32_nd(t, 1, 2, 0, 0) == 7.5f && gcuda_get_f32_1d(v, 2) == 7.5f && gcuda_get_f32_1d(w, 0) == 7.5f);
    CHECK(gcuda_set_f32_nd(a, 8, 0, 0, 0, 1.0f) != GCUDA_STATUS_SUCCESS);
    CHECK(gcuda_get_f32_1d(a, 32) == 0.0f && gcuda_get_f32_1d(a, -1) == 0.0f);
    struct gcuda_tensor * d = gcuda_dup_tensor(ctx, t);
    CHECK(d != NULL && d->view_src == NULL && d->ne[0] == 4 && gcuda_is_contiguous(d));
    gcuda_free(ctx);
}

TEST(elements_as_integers) {
    struct gcuda_init_params params;
    memset(&params, 0, sizeof params);
    struct gcuda_context * ctx = gcuda_init(params);
    REQUIRE(ctx != NULL);
    struct gcuda_tensor *ids = gcuda_new_tensor_2d(ctx, GCUDA_TYPE_I32, 3, 4), *t = gcuda_transpose(ctx, ids);
    struct gcuda_tensor *x = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F32, 6),
                        *wide = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_I64, 2),
                        *small = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_I8, 2);
    REQUIRE(ids && t && x && wide && small);
    for (int i = 0; i < 12; ++i) { CHECK_OK(gcuda_set_i32_1d(ids, i, INT32_MAX - i)); } // more digits than a float has
    CHECK_OK(gcuda_set_i32_nd(t, 3, 1, 0, 0, INT32_MIN));
    CHECK(((const int32_t *) ids->data)[10] == INT32_MIN && ((const int32_t *) ids->data)[11] == INT32_MAX - 11);
    CHECK(gcuda_get_i32_nd(ids, 1, 3, 0, 0) == INT32_MIN && gcuda_get_i32_1d(t, 7) == INT32_MIN);
    CHECK(gcuda_get_i32_1d(t, 1) == INT32_MAX - 3 && gcuda_get_i32_nd(t, 2, 2, 0, 0) == INT32_MAX - 8);
    const float numbers[6] = { 2.75f, -2.75f, 3e9f, -3e9f, (float) NAN, 16777217.0f };
    const int32_t want[6] = { 2, -2, INT32_MAX, INT32_MIN, 0, 16777216 };
    for (int i = 0; i < 6; ++i) {
        CHECK_OK(gcuda_set_f32_1d(x, i, numbers[i]));
        CHECK_EQ_I(gcuda_get_i32_1d(x, i), want[i]);
    }
    ((int64_t *) wide->data)[0] = (int64_t) 1 << 40;
    CHECK_OK(gcuda_set_i32_1d(wide, 1, -5));
    CHECK(gcuda_get_i32_1d(wide, 0) == INT32_MAX && ((const int64_t *) wide->data)[1] == -5);
    CHECK_OK(gcuda_set_i32_1d(small, 0, 300));
    CHECK_EQ_I(gcuda_get_i32_1d(small, 0), 127);
    CHECK(gcuda_set_i32_1d(ids, 12, 1) == GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_HAS(gcuda_last_error(), "set_i32");
    CHECK(gcuda_set_i32_nd(ids, 0, 4, 0, 0, 1) == GCUDA_STATUS_INVALID_ARGUMENT &&
          gcuda_set_i32_1d(NULL, 0, 1) != GCUDA_STATUS_SUCCESS);
    CHECK(gcuda_get_i32_1d(ids, -1) == 0 && gcuda_get_i32_nd(NULL, 0, 0, 0, 0) == 0);
    CHECK_HAS(gcuda_last_error(), "get_i32");
    gcuda_free(ctx);
}

TEST(names_and_order) {
    struct gcuda_context * ctx = op_context();
    REQUIRE(ctx != NULL);
    struct gcuda_tensor * t[5];
    for (int i = 0; i < 5; ++i) {
        t[i] = gcuda_format_name(gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F32, 4), "t%d", i);
        REQUIRE(t[i] != NULL);
    }
    struct gcuda_tensor * at = gcuda_get_first_tensor(ctx);
    for (int i = 0; i < 5; ++i, at = gcuda_get_next_tensor(ctx, at)) { CHECK(at == t[i]); }
    CHECK(at == NULL && gcuda_get_tensor(ctx, "t3") == t[3] && gcuda_get_tensor(ctx, "t5") == NULL);
    char longer[200];
    memset(longer, 'x', sizeof longer);
    longer[199] = '\0';
    gcuda_set_name(t[0], longer);
    CHECK_EQ_I(strlen(gcuda_get_name(t[0])), GCUDA_MAX_NAME - 1);
    CHECK(strcmp(gcuda_get_name(NULL), "") == 0);
    gcuda_reset(ctx);
    CHECK(gcuda_get_first_tensor(ctx) == NULL && gcuda_used_mem(ctx) < 64);
    gcuda_free(ctx);
}

TEST(memory_of_the_caller) {
    char memory[4096 + 1];
    struct gcuda_init_params params;
    memset(&params, 0, sizeof params);
    params.mem_size = sizeof memory - 1, params.mem_buffer = memory + 1; // not aligned
    struct gcuda_context * ctx = gcuda_init(params);
    REQUIRE(ctx != NULL);
    int n = 0;
    for (struct gcuda_tensor * t; n < 100 && (t = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F32, 3)) != NULL; ++n) {
        CHECK((char *) t >= memory && (char *) (t + 1) <= memory + sizeof memory);
        CHECK((char *) t->data >= memory && (char *) t->data + 12 <= memory + sizeof memory &&
              (uintptr_t) t->data % 16 == 0);
    }
    CHECK(n >= 3 && n < 100);
    CHECK_EQ_I(gcuda_context_status(ctx), GCUDA_STATUS_ALLOC_FAILED);
    gcuda_free(ctx);
    params.mem_size = 0;
    CHECK(gcuda_init(params) == NULL);
}

// =====================================================================================================================
// >>graphs
// =====================================================================================================================
static void add_one(struct gcuda_tensor * dst, const struct gcuda_tensor * a, int ith, int nth, void * user) {
    const float plus = user ? *(const float *) user : 1.0f;
    for (int64_t i = ith; i < gcuda_nelements(dst); i += nth) {
        ((float *) dst->data)[i] = ((const float *) a->data)[i] + plus;
    }
}
static struct gcuda_tensor * plus(struct gcuda_context * ctx, struct gcuda_tensor * a) {
    return gcuda_map_custom1(ctx, a, add_one, 1, NULL);
}

static void sum_of_sources(struct gcuda_tensor * dst, int ith, int nth, void * user) {
    (void) user;
    for (int64_t i = ith; i < gcuda_nelements(dst); i += nth) {
        float s = 0.0f;
        for (int k = 0; k < GCUDA_MAX_SRC && dst->src[k]; ++k) { s += ((const float *) dst->src[k]->data)[i]; }
        ((float *) dst->data)[i] = s;
    }
}
static void minus(struct gcuda_tensor * dst, const struct gcuda_tensor * a, const struct gcuda_tensor * b, int ith,
    int nth, void * user) {
    (void) user;
    for (int64_t i = ith; i < gcuda_nelements(dst); i += nth) {
        ((float *) dst->data)[i] = ((const float *) a->data)[i] - ((const float *) b->data)[i];
    }
}

static int position(const struct gcuda_cgraph * g, const struct gcuda_tensor * t) {
    for (int i = 0; i < gcuda_graph_n_nodes(g); ++i) {
        if (gcuda_graph_node(g, i) == t) { return i; }
    }
    return -1;
}

TEST(graph_order) { // sources first, each node once, leafs apart; random graphs
    struct rng r = rng_for("graph_order");
    for (int round = 0; round < 200; ++round) {
        struct gcuda_init_params params;
        memset(&params, 0, sizeof params);
        params.no_alloc = true;
        struct gcuda_context * ctx = gcuda_init(params);
        REQUIRE(ctx != NULL);
        struct gcuda_tensor *t[40], *args[3];
        const int n_leafs = 1 + (int) rng_below(&r, 4);
        for (int i = 0; i < 40; ++i) {
            for (int k = 0; k < 3; ++k) { args[k] = i > 0 ? t[rng_below(&r, i)] : NULL; }
            t[i] = i < n_leafs ? gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F32, 4)
                               : gcuda_custom_4d(ctx, GCUDA_TYPE_F32, 4, 1, 1, 1, args, 1 + (int) rng_below(&r, 3),
                                     sum_of_sources, 1, NULL);
            REQUIRE(t[i] != NULL);
        }
        struct gcuda_cgraph * g = gcuda_new_graph_custom(ctx, 64, false);
        REQUIRE(g != NULL);
        const int goal = n_leafs + (int) rng_below(&r, 40 - n_leafs);
        CHECK_OK(gcuda_build_forward_expand(g, t[goal]));
        CHECK(position(g, t[goal]) == gcuda_graph_n_nodes(g) - 1 && gcuda_graph_node(g, -1) == t[goal]);
        CHECK_OK(gcuda_build_forward_expand(g, t[goal])); // again changes nothing
        CHECK_OK(gcuda_build_forward_expand(g, t[39]));
        for (int i = 0; i < gcuda_graph_n_nodes(g); ++i) {
            const struct gcuda_tensor * node = gcuda_graph_node(g, i);
            CHECK(position(g, node) == i && node->op == GCUDA_OP_CUSTOM && (node->flags & GCUDA_TENSOR_FLAG_COMPUTE));
            for (int k = 0; k < GCUDA_MAX_SRC; ++k) {
                if (node->src[k] && node->src[k]->op != GCUDA_OP_NONE) {
                    CHECK(position(g, node->src[k]) >= 0 && position(g, node->src[k]) < i);
                }
            }
        }
        CHECK(g->n_leafs <= n_leafs);
        gcuda_free(ctx);
    }
}

// A cache of eight rows; the last node reads what cpy into row 2 returned, from its second element on.
TEST(a_view_moves_with_what_is_made_of_it) {
    struct gcuda_context * ctx = gcuda_init((struct gcuda_init_params){ 0, NULL, false });
    REQUIRE(ctx != NULL);
    struct gcuda_tensor *cache = gcuda_new_tensor_2d(ctx, GCUDA_TYPE_F32, 4, 8),
                        *x = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F32, 4);
    struct gcuda_tensor *upper = gcuda_view_2d(ctx, cache, 4, 7, 16, 16), *row = gcuda_view_1d(ctx, upper, 4, 16);
    struct gcuda_tensor *put = gcuda_cpy(ctx, x, row), *rest = gcuda_view_1d(ctx, put, 3, 4),
                        *y = gcuda_scale(ctx, rest, 2.0f);
    // another view of row 2: stays
    struct gcuda_tensor * first = gcuda_scale(ctx, gcuda_view_1d(ctx, cache, 4, 32), 1.0f);
    struct gcuda_cgraph * g = gcuda_new_graph(ctx);
    CHECK_OK(gcuda_build_forward_expand(g, y));
    CHECK_OK(gcuda_build_forward_expand(g, first));
    for (int i = 0; i < 4; ++i) { gcuda_set_f32_1d(x, i, (float) (i + 1)); }
    static const struct {
        size_t to;
        int row;
    } places[] = { { 32, 2 }, { 112, 7 }, { 16, 1 }, { 64, 4 } };
    for (int i = 0; i < 4; ++i) {
        for (int k = 0; k < 32; ++k) { gcuda_set_f32_1d(cache, k, -1.0f); }
        CHECK_OK(gcuda_graph_move_view(g, row, places[i].to));
        CHECK_OK(gcuda_graph_compute_with_ctx(ctx, g, 1));
        for (int k = 0; k < 32; ++k) {
            CHECK(gcuda_get_f32_1d(cache, k) == (k / 4 == places[i].row ? (float) (k % 4 + 1) : -1.0f));
        }
        for (int k = 0; k < 3; ++k) { CHECK(gcuda_get_f32_1d(y, k) == 2.0f * (float) (k + 2)); }
        CHECK(rest->view_offs == places[i].to + 4 && first->src[0]->view_offs == 32);
    }
    // before `upper`, which it is a view of; beyond the end
    static const size_t wrong[] = { 0, 12, 116, SIZE_MAX, SIZE_MAX - 3 };
    for (int i = 0; i < 5; ++i) { CHECK(gcuda_graph_move_view(g, row, wrong[i]) == GCUDA_STATUS_INVALID_ARGUMENT); }
    CHECK(gcuda_graph_move_view(g, x, 0) == GCUDA_STATUS_INVALID_ARGUMENT &&
          gcuda_graph_move_view(g, put, 0) == GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK(gcuda_graph_move_view(g, NULL, 0) == GCUDA_STATUS_INVALID_ARGUMENT &&
          gcuda_graph_move_view(NULL, row, 32) == GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK(row->view_offs == 64 && put->view_offs == 64 && rest->view_offs == 68 &&
          row->data == (char *) cache->data + 64);
    CHECK_OK(gcuda_graph_compute_with_ctx(ctx, g, 1));
    gcuda_free(ctx);
}

TEST(graph_functions) {
    struct gcuda_context * ctx = op_context();
    REQUIRE(ctx != NULL);
    struct gcuda_tensor * a = gcuda_set_name(gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F32, 4), "a");
    struct gcuda_tensor *b = gcuda_set_name(plus(ctx, a), "b\"quote"), *c = gcuda_set_name(plus(ctx, b), "c");
    struct gcuda_tensor * d = gcuda_set_name(gcuda_map_custom2(ctx, c, b, minus, 1, NULL), "d");
    struct gcuda_cgraph * g = gcuda_new_graph_custom(ctx, 16, false);
    REQUIRE(d != NULL && g != NULL);
    CHECK_OK(gcuda_build_forward_expand(g, d));
    CHECK_EQ_I(gcuda_graph_n_nodes(g), 3);
    CHECK_EQ_I(g->n_leafs, 1);
    CHECK_EQ_I(gcuda_graph_size(g), 16);
    CHECK(gcuda_graph_get_tensor(g, "c") == c && gcuda_graph_get_tensor(g, "a") == a &&
          gcuda_graph_get_tensor(g, "z") == NULL);
    CHECK_EQ_I(gcuda_graph_use_count(g, b), 2);
    CHECK_EQ_I(gcuda_graph_use_count(g, d), 0);
    CHECK(gcuda_graph_node(g, 3) == NULL && gcuda_graph_node(g, -4) == NULL && gcuda_graph_node(g, -3) == b);
    struct gcuda_cgraph view = gcuda_graph_view(g, 1, 3);
    CHECK(gcuda_graph_n_nodes(&view) == 2 && gcuda_graph_node(&view, 0) == c);
    CHECK_EQ_I(view.n_after, 0);
    view = gcuda_graph_view(g, -5, 100);
    CHECK_EQ_I(gcuda_graph_n_nodes(&view), 3);
    view = gcuda_graph_view(&view, 0, 2);
    struct gcuda_cgraph first = gcuda_graph_view(&view, 0, 1); // of a slice
    CHECK(view.n_after == 1 && first.n_after == 2 && g->n_after == 0);
    struct gcuda_cgraph * copy = gcuda_graph_dup(ctx, g, false);
    CHECK(copy && gcuda_graph_n_nodes(copy) == 3 && gcuda_graph_node(copy, 2) == d &&
          gcuda_graph_use_count(copy, b) == 2 && !copy->no_fusion);
    gcuda_graph_set_fusion(NULL, false);
    gcuda_graph_set_fusion(g, false);
    view = gcuda_graph_view(g, 0, 1);
    CHECK(view.no_fusion && gcuda_graph_cpy(g, copy) == GCUDA_STATUS_SUCCESS && copy->no_fusion);
    gcuda_graph_clear(copy);
    CHECK(copy->no_fusion);
    gcuda_graph_set_fusion(g, true);
    CHECK(!g->no_fusion && view.no_fusion);
    struct gcuda_cgraph * small = gcuda_new_graph_custom(ctx, 2, false);
    CHECK(small && gcuda_graph_cpy(g, small) != GCUDA_STATUS_SUCCESS);
    char text[8192], part[20];
    const size_t n = gcuda_graph_to_text(g, text, sizeof text);
    CHECK(n == strlen(text) && gcuda_graph_to_text(g, part, sizeof part) == n && strlen(part) == 19);
    CHECK_HAS(text, "CUSTOM");
    CHECK(gcuda_graph_to_dot(g, text, sizeof text) == strlen(text));
    CHECK_HAS(text, "digraph");
    CHECK(strstr(text, "b\"quote") == NULL); // escaped
    gcuda_graph_clear(g);
    CHECK(gcuda_graph_n_nodes(g) == 0 && g->n_leafs == 0);
    CHECK_OK(gcuda_build_forward_expand(g, c));
    CHECK_EQ_I(gcuda_graph_n_nodes(g), 2);
    gcuda_free(ctx);
}

// =====================================================================================================================
// >>computing   custom operations, refusals, finite check, failing allocations
// =====================================================================================================================
static void check_values(const struct gcuda_tensor * t, double first, double step) {
    struct arr got = { { 0, 0, 0, 0 }, NULL };
    tensor_read(t, &got);
    for (int64_t i = 0; i < arr_n(&got); ++i) { CHECK_NEAR(got.d[i], first + step * (double) i, 0.0); }
    arr_free(&got);
}

TEST(custom_operations) { // >>op:custom   any number of tasks and threads
    static const int tasks[] = { 1, 2, 7, GCUDA_N_TASKS_MAX };
    if (!op_backends_ready()) { return; }
    for (int i = 0; i < 8; ++i) {
        struct gcuda_context * ctx = op_context();
        REQUIRE(ctx != NULL);
        float by = 2.0f;
        struct gcuda_tensor * a = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F32, 1000);
        struct gcuda_tensor *b = gcuda_map_custom1(ctx, a, add_one, tasks[i / 2], &by),
                            *c = gcuda_map_custom2(ctx, b, a, minus, tasks[i / 2], NULL);
        struct gcuda_tensor * args[3] = { a, b, c };
        struct gcuda_tensor * d =
            gcuda_custom_4d(ctx, GCUDA_TYPE_F32, 10, 100, 1, 1, args, 3, sum_of_sources, tasks[i / 2], NULL);
        struct gcuda_tensor * e = gcuda_map_custom1_inplace(ctx, d, add_one, tasks[i / 2], NULL);
        struct gcuda_cgraph * g = gcuda_new_graph_custom(ctx, 16, false);
        REQUIRE(e != NULL && g != NULL && e->view_src == d);
        CHECK_OK(gcuda_build_forward_expand(g, e));
        gcuda_backend_buffer_t buf = op_place(ctx);
        float v[1000];
        for (int k = 0; k < 1000; ++k) { v[k] = (float) k; }
        CHECK_OK(gcuda_backend_tensor_set(a, v, 0, sizeof v));
        CHECK_OK(gcuda_backend_graph_compute(op_backends[i & 1], g));
        check_values(b, 2, 1);
        check_values(c, 2, 0);
        check_values(e, 5, 2); // a + (a + 2) + 2 + 1
        gcuda_backend_buffer_free(buf);
        gcuda_free(ctx);
    }
    struct gcuda_context * ctx = op_context();
    struct gcuda_tensor * a = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F32, 4);
    CHECK_REFUSED(ctx, gcuda_map_custom1(ctx, NULL, add_one, 1, NULL), "custom");
    CHECK_REFUSED(ctx, gcuda_map_custom1(ctx, a, NULL, 1, NULL), "custom");
    CHECK_REFUSED(ctx, gcuda_map_custom1(ctx, a, add_one, 0, NULL), "custom");
    struct gcuda_tensor * many[11] = { a, a, a, a, a, a, a, a, a, a, a };
    CHECK_REFUSED(ctx, gcuda_custom_4d(ctx, GCUDA_TYPE_F32, 4, 1, 1, 1, many, 11, sum_of_sources, 1, NULL), "custom");
    gcuda_free(ctx);
}

static void subtract_both(struct gcuda_tensor * dst, const struct gcuda_tensor * a, const struct gcuda_tensor * b,
    const struct gcuda_tensor * c, int ith, int nth, void * user) {
    minus(dst, a, b, ith, nth, user);
    minus(dst, dst, c, ith, nth, user);
}
// adds source 1 to source 0, which is where dst is
static void add_to_first(struct gcuda_tensor * dst, int ith, int nth, void * user) {
    const float factor = user ? *(const float *) user : 1.0f;
    for (int64_t i = ith; i < gcuda_nelements(dst); i += nth) {
        ((float *) dst->data)[i] =
            ((const float *) dst->src[0]->data)[i] + factor * ((const float *) dst->src[1]->data)[i];
    }
}

TEST(custom_operations_of_every_form) { // what the test before leaves out
    enum { N = 300 };
    if (!op_backends_ready()) { return; }
    struct gcuda_context * ctx = op_context();
    float by = 3.0f, v[N];
    const struct gcuda_custom_params sum = { sum_of_sources, NULL, NULL, 5 }, add = { add_to_first, NULL, &by, 0 };
    struct gcuda_tensor *a = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F32, N),
                        *one = gcuda_map_custom2(ctx, plus(ctx, a), a, minus, 1, NULL);
    struct gcuda_tensor * args[2] = { a, one };
    struct gcuda_tensor * three = gcuda_map_custom3(ctx, a, a, one, subtract_both, GCUDA_N_TASKS_MAX, NULL); // -1
    struct gcuda_tensor * ext = gcuda_custom_4d_ext(ctx, GCUDA_TYPE_F32, N, 1, 1, 1, args, 2, &sum);         // a + 1
    struct gcuda_tensor * in2 = gcuda_map_custom2_inplace(ctx, ext, one, minus, 3, NULL);                    // a
    struct gcuda_tensor * in3 = gcuda_map_custom3_inplace(ctx, in2, one, three, subtract_both, 2, NULL);     // a
    args[0] = one;
    struct gcuda_tensor * in = gcuda_custom_inplace(ctx, in3, args, 1, add_to_first, 4, NULL); // a + 1
    struct gcuda_tensor * in_ext = gcuda_custom_inplace_ext(ctx, in, args, 1, &add);           // a + 4
    struct gcuda_cgraph * g = gcuda_new_graph_custom(ctx, 16, false);
    REQUIRE(in_ext != NULL && g != NULL && in_ext->view_src == ext && in2->view_src == ext && three->view_src == NULL);
    CHECK_OK(gcuda_build_forward_expand(g, three));
    CHECK_OK(gcuda_build_forward_expand(g, in_ext));
    gcuda_backend_buffer_t buf = op_place(ctx);
    for (int k = 0; k < N; ++k) { v[k] = (float) k; }
    CHECK_OK(gcuda_backend_tensor_set(a, v, 0, sizeof v));
    CHECK_OK(gcuda_backend_graph_compute(op_backends[1], g));
    check_values(three, -1, 0);
    check_values(in_ext, 4, 1);
    gcuda_backend_buffer_free(buf);
    gcuda_free(ctx);
}

// Slots of op_params that programs know by number. expected: slot=value, other slots are 0; f: a float.
static void check_slots(const struct gcuda_tensor * y, const char * expected) {
    int32_t want[GCUDA_MAX_OP_PARAMS / sizeof(int32_t)] = { 0 };
    REQUIRE(y != NULL);
    for (const char * s = expected; *s != '\0'; s += strspn(s, " ")) {
        char * end;
        const long slot = strtol(s, &end, 10);
        const double value = strtod(end + 1, &end); // after =
        const float f = (float) value;
        if (*end == 'f') {
            memcpy(&want[slot], &f, sizeof f);
        } else {
            want[slot] = (int32_t) value;
        }
        s = end + (*end == 'f');
    }
    for (size_t i = 0; i < sizeof want / sizeof want[0]; ++i) { CHECK_EQ_I(y->op_params[i], want[i]); }
}

TEST(op_params_by_slot) {
    struct gcuda_context * ctx = op_context();
    const int sections[4] = { 1, 2, 1, 0 };
    const int64_t ne[4] = { 8, 8, 2, 1 };
    struct gcuda_tensor * a = gcuda_new_tensor_4d(ctx, GCUDA_TYPE_F32, 8, 8, 2, 1);
    struct gcuda_tensor * b = gcuda_new_tensor_4d(ctx, GCUDA_TYPE_F32, 4, 4, 2, 1);
    struct gcuda_tensor * heads = gcuda_new_tensor_4d(ctx, GCUDA_TYPE_F32, 8, 2, 8, 1);
    struct gcuda_tensor * k = gcuda_new_tensor_4d(ctx, GCUDA_TYPE_F32, 3, 3, 2, 2);
    struct gcuda_tensor * k3 = gcuda_new_tensor_4d(ctx, GCUDA_TYPE_F32, 1, 1, 1, 1);
    struct gcuda_tensor * mask = gcuda_new_tensor_4d(ctx, GCUDA_TYPE_F32, 8, 8, 1, 1);
    struct gcuda_tensor * pos = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_I32, 32);
    check_slots(gcuda_view_1d(ctx, a, 4, 16), "0=16");
    check_slots(gcuda_permute(ctx, a, 1, 0, 3, 2), "0=1 2=3 3=2");
    check_slots(gcuda_set(ctx, a, b, 32, 256, 512, 4), "0=32 1=256 2=512 3=4");
    check_slots(gcuda_set_inplace(ctx, a, b, 32, 256, 512, 4), "0=32 1=256 2=512 3=4 4=1");
    check_slots(gcuda_pad_ext_circular(ctx, a, 1, 2, 3, 4, 0, 1, 0, 2), "0=1 1=2 2=3 3=4 5=1 7=2 8=1");
    check_slots(gcuda_roll(ctx, a, 1, -2, 1, 0), "0=1 1=-2 2=1");
    check_slots(gcuda_arange(ctx, 1.0f, 5.0f, 0.5f), "0=1f 1=5f 2=0.5f");
    check_slots(gcuda_glu(ctx, a, GCUDA_GLU_OP_GEGLU, true), "0=1 1=1");
    check_slots(gcuda_swiglu_oai(ctx, a, a, 1.5f, 7.0f), "0=3 2=1.5f 3=7f");
    check_slots(gcuda_scale_bias(ctx, a, 2.0f, 3.0f), "0=2f 1=3f");
    check_slots(gcuda_group_norm(ctx, a, 2, 0.25f), "0=2 1=0.25f");
    check_slots(gcuda_soft_max_ext(ctx, a, mask, 0.5f, 8.0f), "0=0.5f 1=8f");
    check_slots(gcuda_rope_multi(ctx, heads, pos, NULL, 8, sections, GCUDA_ROPE_TYPE_MROPE, 64, 100.0f, 0.5f, 0.25f,
                    2.0f, 32.0f, 4.0f),
        "1=8 2=8 4=64 5=100f 6=0.5f 7=0.25f 8=2f 9=32f 10=4f 11=1 12=2 13=1");
    struct gcuda_tensor * y = gcuda_flash_attn_ext(ctx, a, a, a, mask, 0.5f, 8.0f, 30.0f);
    CHECK_OK(gcuda_flash_attn_ext_set_prec(y, GCUDA_PREC_F32));
    CHECK_OK(gcuda_flash_attn_ext_set_n_kv_max(y, 5));
    check_slots(y, "0=0.5f 1=8f 2=30f 3=10 4=5");
    y = gcuda_mul_mat(ctx, mask, a);
    CHECK_OK(gcuda_mul_mat_set_prec(y, GCUDA_PREC_F32));
    CHECK_OK(gcuda_mul_mat_set_hint(y, GCUDA_HINT_SRC0_IS_HADAMARD));
    y->op_params[1] -= (int32_t) GCUDA_HINT_SRC0_IS_HADAMARD;
    check_slots(y, "0=10");
    y = gcuda_im2col(ctx, k, a, 1, 2, 1, 0, 1, 2, true, GCUDA_TYPE_F32);
    check_slots(y, "0=1 1=2 2=1 4=1 5=2 6=1");
    check_slots(gcuda_im2col_back(ctx, y, k, ne, 1, 2, 1, 0, 1, 2, true), "0=1 1=2 2=1 4=1 5=2 6=1");
    check_slots(gcuda_im2col_3d(ctx, k3, a, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, GCUDA_TYPE_F32),
        "0=1 1=2 2=3 3=4 4=5 5=6 6=7 7=8 8=9 9=1");
    y = gcuda_conv_2d_direct(ctx, k, a, 2, 1, 0, 1, 1, 2);
    CHECK_OK(gcuda_conv_2d_set_prec(y, GCUDA_PREC_F32));
    check_slots(y, "0=2 1=1 3=1 4=1 5=2 7=10");
    y = gcuda_conv_transpose_2d_p0(ctx, k, b, 3);
    CHECK_OK(gcuda_conv_2d_set_prec(y, GCUDA_PREC_F32));
    check_slots(y, "0=3 7=10");
    check_slots(
        gcuda_pool_2d(ctx, a, GCUDA_OP_POOL_AVG, 2, 3, 1, 2, 0.5f, 1.25f), "0=1 1=2 2=3 3=1 4=2 6=1 7=0.5f 8=0.25f");
    CHECK(gcuda_context_error(ctx)[0] == '\0');
    gcuda_free(ctx);
}

static bool same_node(const struct gcuda_tensor * a, const struct gcuda_tensor * b) {
    return a != NULL && b != NULL && a->op == b->op && a->type == b->type && gcuda_are_same_shape(a, b) &&
           (a->view_src == NULL) == (b->view_src == NULL) &&
           memcmp(a->op_params, b->op_params, sizeof a->op_params) == 0;
}

TEST(other_names_and_scalars) { // constructors that are another one under its older name, and those of a single number
    struct gcuda_context * ctx = op_context();
    struct gcuda_tensor *x = gcuda_new_tensor_3d(ctx, GCUDA_TYPE_F32, 8, 2, 6),
                        *pos = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_I32, 6);
    CHECK(same_node(gcuda_rope_custom(ctx, x, pos, 6, 2, 64, 500.0f, 0.5f, 0.25f, 1.5f, 32.0f, 2.0f),
        gcuda_rope_ext(ctx, x, pos, NULL, 6, 2, 64, 500.0f, 0.5f, 0.25f, 1.5f, 32.0f, 2.0f)));
    CHECK(same_node(gcuda_rope_custom_inplace(ctx, x, pos, 6, 2, 64, 500.0f, 0.5f, 0.25f, 1.5f, 32.0f, 2.0f),
        gcuda_rope_ext_inplace(ctx, x, pos, NULL, 6, 2, 64, 500.0f, 0.5f, 0.25f, 1.5f, 32.0f, 2.0f)));
    CHECK(same_node(gcuda_upscale_ext(ctx, x, 9, 5, 6, 1, GCUDA_SCALE_MODE_BILINEAR),
        gcuda_interpolate(ctx, x, 9, 5, 6, 1, GCUDA_SCALE_MODE_BILINEAR)));
    CHECK_REFUSED(ctx, gcuda_new_f32(ctx, 1.0f), "no_alloc");
    CHECK_REFUSED(ctx, gcuda_new_i32(ctx, 1), "no_alloc");
    CHECK(gcuda_new_i32(NULL, 1) == NULL && gcuda_new_f32(NULL, 1.0f) == NULL);
    gcuda_free(ctx);
    const struct gcuda_init_params params = { 0, NULL, false };
    ctx = gcuda_init(params);
    const struct gcuda_tensor *i = gcuda_new_i32(ctx, -70000), *f = gcuda_new_f32(ctx, 0.375f);
    REQUIRE(i != NULL && f != NULL);
    CHECK(i->type == GCUDA_TYPE_I32 && *(const int32_t *) i->data == -70000);
    CHECK(f->type == GCUDA_TYPE_F32 && *(const float *) f->data == 0.375f && gcuda_is_scalar(f));
    gcuda_free(ctx);
}

TEST(finite_check_names_the_node) {
    struct gcuda_context * ctx = op_context();
    gcuda_backend_t cpu = gcuda_backend_cpu_init();
    REQUIRE(ctx != NULL && cpu != NULL && op_backends_ready());
    float inf = HUGE_VALF;
    struct gcuda_tensor *a = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F32, 4), *b = gcuda_set_name(plus(ctx, a), "fine");
    struct gcuda_tensor *c = gcuda_set_name(gcuda_map_custom1(ctx, b, add_one, 1, &inf), "exploded"),
                        *d = gcuda_set_name(plus(ctx, c), "later");
    struct gcuda_cgraph * g = gcuda_new_graph_custom(ctx, 16, false);
    REQUIRE(d != NULL && g != NULL && CHECK_OK(gcuda_build_forward_expand(g, d)));
    gcuda_backend_buffer_t buf = op_place(ctx);
    REQUIRE(buf != NULL);
    CHECK_OK(gcuda_backend_tensor_memset(a, 0, 0, 16));
    CHECK_OK(gcuda_backend_graph_compute(cpu, g));
    CHECK_OK(gcuda_backend_cpu_set_check_finite(cpu, true));
    CHECK(gcuda_backend_graph_compute(cpu, g) != GCUDA_STATUS_SUCCESS);
    CHECK_HAS(gcuda_last_error(), "exploded");
    gcuda_backend_buffer_free(buf);
    gcuda_backend_free(cpu);
    gcuda_free(ctx);
}

// A whole life: context, backend, memory, a graph with threads. Returns what first failed.
static gcuda_status whole_life(void) {
    gcuda_status st = GCUDA_STATUS_FAILED;
    struct gcuda_init_params params;
    memset(&params, 0, sizeof params);
    params.no_alloc = true;
    struct gcuda_context * ctx = gcuda_init(params);
    gcuda_backend_t cpu = gcuda_backend_cpu_init();
    gcuda_backend_buffer_t buf = NULL;
    if (ctx && cpu && gcuda_backend_cpu_set_n_threads(cpu, 3) == GCUDA_STATUS_SUCCESS) {
        struct gcuda_tensor *a = gcuda_new_tensor_2d(ctx, GCUDA_TYPE_F32, 512, 64),
                            *y = gcuda_rms_norm(ctx, plus(ctx, a), 1e-5f);
        struct gcuda_cgraph * g = gcuda_new_graph(ctx);
        if (g && y && gcuda_build_forward_expand(g, y) == GCUDA_STATUS_SUCCESS) {
            buf = gcuda_backend_alloc_ctx_tensors(ctx, cpu);
            st = buf && a ? gcuda_backend_tensor_memset(a, 0, 0, gcuda_nbytes(a)) : GCUDA_STATUS_ALLOC_FAILED;
            if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_backend_graph_compute(cpu, g); }
        }
    }
    gcuda_backend_buffer_free(buf);
    gcuda_backend_free(cpu);
    gcuda_free(ctx);
    gcuda_shutdown();
    return st;
}

TEST(every_allocation_may_fail) {
    gcuda_shutdown();
    for (int k = 1; k < 1000; ++k) {
        struct fault f;
        fault_begin(&f, k);
        gcuda_clear_last_error();
        const gcuda_status st = whole_life();
        fault_end(&f);
        CHECK_MSG(f.live == 0, "allocation %d of %ld failed and left %ld alive", k, f.n_calls, f.live);
        CHECK_MSG((st == GCUDA_STATUS_SUCCESS) == !f.fired, "allocation %d failed and the status is %d", k, (int) st);
        CHECK(!f.fired || gcuda_last_error()[0] != '\0');
        if (!f.fired) {
            CHECK(k > 5);
            return;
        }
    }
    CHECK(!"it never runs through");
}

static long n_taken = 0, n_lines = 0;
static void * take(void * user, size_t size, size_t alignment) {
    (void) user, (void) alignment;
    ++n_taken;
    return malloc(size);
}
static void give(void * user, void * p, size_t size) {
    (void) user, (void) size;
    free(p);
}
static void count_line(enum gcuda_log_level level, const char * text, void * user) {
    (void) level, (void) text;
    ++*(long *) user;
}

// A callback that asks what the registry's lock guards, and what logs in its turn.
static struct gcuda_cgraph * logged_graph;
static void ask_in_a_line(enum gcuda_log_level level, const char * text, void * user) {
    CHECK(gcuda_backend_dev_count() >= 1 && gcuda_backend_reg_count() >= 1);
    gcuda_graph_print(logged_graph);
    if (strstr(text, "stop") != NULL) { gcuda_log_set(NULL, GCUDA_LOG_LEVEL_NONE, NULL); }
    count_line(level, text, user);
}

TEST(a_log_callback_may_ask) {
    struct gcuda_context * ctx = op_context();
    struct gcuda_tensor * a = gcuda_set_name(gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F32, 4), "a");
    struct gcuda_tensor * b = gcuda_set_name(gcuda_sqr(ctx, a), "b");
    long n_said = 0;
    logged_graph = gcuda_new_graph(ctx);
    CHECK_OK(gcuda_build_forward_expand(logged_graph, gcuda_set_name(gcuda_sqrt(ctx, b), "stop")));
    gcuda_log_set(ask_in_a_line, GCUDA_LOG_LEVEL_DEBUG, &n_said);
    gcuda_graph_print(logged_graph); // "b", "stop" and the leaf
    CHECK_EQ_I(n_said, 2);
    gcuda_graph_print(logged_graph);
    CHECK_EQ_I(n_said, 2);
    gcuda_free(ctx);
}

TEST(start_stop_start) {
    const enum gcuda_cpu_isa best = gcuda_cpu_get_isa();
    const struct gcuda_allocator counting = { take, give, NULL };
    CHECK_EQ_I(gcuda_version(), GCUDA_VERSION);
    for (int i = 0; i < 3; ++i) {
        CHECK(gcuda_backend_dev_count() >= 1 && gcuda_backend_dev_by_name("CPU") != NULL);
        CHECK(gcuda_backend_dev_by_name("cpu") == gcuda_backend_dev_by_name("CPU") &&
              gcuda_backend_dev_by_name("CPU ") == NULL);
        CHECK(gcuda_backend_dev_by_name("CP") == NULL && gcuda_backend_dev_by_name("") == NULL &&
              gcuda_backend_dev_by_name("cP0") == NULL);
        CHECK_EQ_I(gcuda_cpu_get_isa(), best);
        CHECK_OK(gcuda_cpu_set_isa(GCUDA_CPU_ISA_SCALAR)); // forgotten, like the allocator and the log
        gcuda_set_allocator(&counting);
        gcuda_log_set(count_line, GCUDA_LOG_LEVEL_DEBUG, &n_lines);
        CHECK_OK(whole_life()); // ends with a shutdown
        const long n = n_taken;
        gcuda_free(op_context());
        CHECK(n > 0 && n_taken == n);
    }
    gcuda_shutdown();
    gcuda_shutdown();
}
