// Refusals by the constructors of ops-matmul.h, ops-attention.h, ops-conv.h and ops-recurrent.h: wrong shapes, types,
// layouts, parameters and NULL, each with a message that names the operation and the numbers. Part of test-ops.c.
#ifndef OPS_REFUSE_H
#define OPS_REFUSE_H

#include "test-ops.h"

static struct gcuda_tensor * leaf(
    struct gcuda_context * ctx, enum gcuda_type type, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3) {
    struct gcuda_tensor * t = gcuda_new_tensor_4d(ctx, type, ne0, ne1, ne2, ne3);
    CHECK(t != NULL);
    return t;
}

#define F32(...) leaf(ctx, GCUDA_TYPE_F32, __VA_ARGS__)
#define F16(...) leaf(ctx, GCUDA_TYPE_F16, __VA_ARGS__)
#define I32(...) leaf(ctx, GCUDA_TYPE_I32, __VA_ARGS__)

// NULL in, NULL out, and the first message stays: `call` uses `bad`, which is NULL because of an earlier error
#define CHECK_PASSES_NULL(ctx, call)                                                   \
    do {                                                                               \
        struct gcuda_tensor * bad = gcuda_permute((ctx), F32(1, 1, 1, 1), 0, 0, 0, 0); \
        CHECK(bad == NULL);                                                            \
        CHECK((call) == NULL);                                                         \
        CHECK_HAS(gcuda_context_error(ctx), "permute");                                \
        gcuda_context_clear_error(ctx);                                                \
    } while (0)

TEST(refuse_products) {
    struct gcuda_context * ctx = op_context();
    REQUIRE(ctx != NULL);
    CHECK_REFUSED(ctx, gcuda_mul_mat(ctx, F32(5, 4, 1, 1), F32(6, 3, 1, 1)), "mul_mat", "[5, 4, 1, 1]", "[6, 3, 1, 1]");
    CHECK_REFUSED(ctx, gcuda_mul_mat(ctx, F32(5, 4, 2, 1), F32(5, 3, 3, 1)), "mul_mat", "[5, 4, 2, 1]");
    CHECK_REFUSED(ctx, gcuda_mul_mat(ctx, F32(5, 4, 1, 2), F32(5, 3, 1, 3)), "mul_mat", "[5, 3, 1, 3]");
    CHECK_REFUSED(ctx, gcuda_mul_mat(ctx, gcuda_transpose(ctx, F32(4, 5, 1, 1)), F32(5, 3, 1, 1)), "mul_mat");
    CHECK_REFUSED(ctx, gcuda_mul_mat(ctx, F32(5, 4, 1, 1), I32(5, 3, 1, 1)), "mul_mat", "i32");
    CHECK_REFUSED(ctx, gcuda_mul_mat(ctx, I32(5, 4, 1, 1), F32(5, 3, 1, 1)), "mul_mat", "i32");
    CHECK_REFUSED(ctx, gcuda_mul_mat(ctx, NULL, F32(5, 3, 1, 1)), "mul_mat", "NULL");
    CHECK_REFUSED(ctx, gcuda_mul_mat(ctx, F32(5, 3, 1, 1), NULL), "mul_mat", "NULL");
    CHECK_PASSES_NULL(ctx, gcuda_mul_mat(ctx, bad, F32(5, 3, 1, 1)));
    CHECK_REFUSED(
        ctx, gcuda_mul_mat_id(ctx, F32(8, 4, 3, 2), F32(8, 1, 5, 1), I32(2, 5, 1, 1)), "mul_mat_id", "[8, 4, 3, 2]");
    CHECK_REFUSED(
        ctx, gcuda_mul_mat_id(ctx, F32(8, 4, 3, 1), F32(7, 1, 5, 1), I32(2, 5, 1, 1)), "mul_mat_id", "[7, 1, 5, 1]");
    CHECK_REFUSED(
        ctx, gcuda_mul_mat_id(ctx, F32(8, 4, 3, 1), F32(8, 1, 5, 1), I32(2, 4, 1, 1)), "mul_mat_id", "[2, 4, 1, 1]");
    CHECK_REFUSED(
        ctx, gcuda_mul_mat_id(ctx, F32(8, 4, 3, 1), F32(8, 2, 5, 1), I32(3, 5, 1, 1)), "mul_mat_id", "[3, 5, 1, 1]");
    CHECK_REFUSED(ctx, gcuda_mul_mat_id(ctx, F32(8, 4, 3, 1), F32(8, 1, 5, 1), F32(2, 5, 1, 1)), "mul_mat_id", "f32");
    CHECK_REFUSED(ctx, gcuda_mul_mat_id(ctx, F32(8, 4, 3, 1), F32(8, 1, 5, 1), NULL), "mul_mat_id", "NULL");
    CHECK_REFUSED(ctx, gcuda_out_prod(ctx, F32(5, 4, 1, 1), F32(3, 6, 1, 1)), "out_prod", "[3, 6, 1, 1]");
    CHECK_REFUSED(ctx, gcuda_out_prod(ctx, F32(5, 4, 2, 1), F32(3, 4, 3, 1)), "out_prod", "[3, 4, 3, 1]");
    CHECK_REFUSED(ctx, gcuda_out_prod(ctx, NULL, F32(3, 4, 3, 1)), "out_prod", "NULL");
    gcuda_free(ctx);
}

// A source or result, `offset` bytes past an address that is aligned for its type. The graph is refused by name before
// anything runs: a misaligned access would make the device unusable. 0: aligned.
static void check_placed(enum gcuda_type type, size_t offset, bool is_result) {
    struct gcuda_context * ctx = op_context();
    REQUIRE(ctx != NULL && op_backends_ready());
    struct gcuda_tensor * x = leaf(ctx, type, 256, 3, 1, 1);
    struct gcuda_tensor * y = gcuda_is_quantized(type) ? gcuda_cast(ctx, x, GCUDA_TYPE_F32) : gcuda_cont(ctx, x);
    struct gcuda_cgraph * g = gcuda_new_graph_custom(ctx, 16, false);
    gcuda_backend_buffer_t buf = gcuda_backend_alloc_buffer(op_backends[0], 65536);
    REQUIRE(y != NULL && g != NULL && buf != NULL);
    char * base = (char *) gcuda_backend_buffer_get_base(buf);
    (void) gcuda_set_name(x, "placed-x");
    (void) gcuda_set_name(y, "placed-y");
    CHECK_OK(gcuda_backend_buffer_clear(buf, 0));
    CHECK_OK(gcuda_backend_tensor_alloc(buf, x, base + (is_result ? 0 : offset)));
    CHECK_OK(gcuda_backend_tensor_alloc(buf, y, base + 32768 + (is_result ? offset : 0)));
    CHECK_OK(gcuda_build_forward_expand(g, y));
    const gcuda_status st = gcuda_backend_graph_compute(op_backends[0], g);
    CHECK_MSG((st == GCUDA_STATUS_SUCCESS) == (offset == 0 || type == GCUDA_TYPE_MXFP4), "%s at %d: %d",
        gcuda_type_name(type), (int) offset, (int) st);
    if (st != GCUDA_STATUS_SUCCESS) {
        CHECK(st == GCUDA_STATUS_INVALID_ARGUMENT);
        CHECK_HAS(gcuda_last_error(), is_result ? "placed-y" : "placed-x");
        CHECK_HAS(gcuda_last_error(), "aligned");
    }
    gcuda_backend_buffer_free(buf);
    gcuda_free(ctx);
}

TEST(refuse_misaligned) {
    static const struct {
        enum gcuda_type type;
        size_t offset;
    } all[] = { { GCUDA_TYPE_F32, 0 }, { GCUDA_TYPE_F32, 1 }, { GCUDA_TYPE_F32, 2 }, { GCUDA_TYPE_F16, 1 },
        { GCUDA_TYPE_BF16, 1 }, { GCUDA_TYPE_I32, 2 }, { GCUDA_TYPE_Q4_0, 1 }, { GCUDA_TYPE_Q6_K, 1 },
        { GCUDA_TYPE_Q4_K, 1 }, { GCUDA_TYPE_MXFP4, 1 } };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i) {
        check_placed(all[i].type, all[i].offset, false);
        if (!gcuda_is_quantized(all[i].type)) { check_placed(all[i].type, all[i].offset, true); }
    }
    struct gcuda_context * ctx = op_context(); // strides and offsets of views, which constructors refuse, set by hand
    REQUIRE(ctx != NULL && op_backends_ready());
    struct gcuda_tensor *x = gcuda_view_2d(ctx, F32(16, 8, 1, 1), 8, 4, 64, 8), *y = gcuda_scale(ctx, x, 2.0f);
    REQUIRE(y != NULL);
    CHECK(gcuda_backend_supports_op(op_backends[0], y));
    x->nb[1] += 2;
    CHECK(!gcuda_backend_supports_op(op_backends[0], y));
    CHECK_HAS(gcuda_last_error(), "not multiples of 4 bytes");
    x->nb[1] -= 2, x->view_offs += 1;
    CHECK(!gcuda_backend_supports_op(op_backends[0], y));
    CHECK_HAS(gcuda_last_error(), "not multiples of 4 bytes");
    gcuda_free(ctx);
}

TEST(refuse_soft_max) {
    struct gcuda_context * ctx = op_context();
    REQUIRE(ctx != NULL);
    struct gcuda_tensor * a = F32(8, 5, 4, 2);
    CHECK_REFUSED(ctx, gcuda_soft_max(ctx, I32(8, 5, 1, 1)), "soft_max", "i32");
    CHECK_REFUSED(ctx, gcuda_soft_max(ctx, NULL), "soft_max", "NULL");
    CHECK_REFUSED(ctx, gcuda_soft_max_ext(ctx, a, F32(7, 5, 1, 1), 1.0f, 0.0f), "soft_max", "[7, 5, 1, 1]");
    CHECK_REFUSED(ctx, gcuda_soft_max_ext(ctx, a, F32(8, 4, 1, 1), 1.0f, 0.0f), "soft_max", "[8, 4, 1, 1]");
    CHECK_REFUSED(ctx, gcuda_soft_max_ext(ctx, a, F32(8, 5, 3, 1), 1.0f, 0.0f), "soft_max", "[8, 5, 3, 1]");
    CHECK_REFUSED(ctx, gcuda_soft_max_ext(ctx, a, F32(8, 5, 1, 3), 1.0f, 0.0f), "soft_max", "[8, 5, 1, 3]");
    CHECK_REFUSED(ctx, gcuda_soft_max_ext(ctx, a, I32(8, 5, 1, 1), 1.0f, 0.0f), "soft_max", "i32");
    CHECK_REFUSED(ctx, gcuda_soft_max_ext(ctx, a, NULL, 1.0f, 8.0f), "soft_max"); // a bias needs a mask
    CHECK_PASSES_NULL(ctx, gcuda_soft_max(ctx, bad));
    CHECK_REFUSED(ctx, gcuda_soft_max_ext_back(ctx, a, F32(8, 5, 4, 1), 1.0f, 0.0f), "soft_max", "[8, 5, 4, 1]");
    CHECK_REFUSED(ctx, gcuda_soft_max_ext_back(ctx, a, NULL, 1.0f, 0.0f), "soft_max", "NULL");
    gcuda_free(ctx);
}

TEST(refuse_flash_attn) {
    struct gcuda_context * ctx = op_context();
    REQUIRE(ctx != NULL);
    struct gcuda_tensor * q = F32(16, 3, 4, 2);
    struct gcuda_tensor * k = F16(16, 9, 2, 2);
    struct gcuda_tensor * v = F16(24, 9, 2, 2);
#define ATTN(q, k, v, m, bias) gcuda_flash_attn_ext(ctx, q, k, v, m, 1.0f, bias, 0.0f)
    CHECK_REFUSED(ctx, ATTN(I32(16, 3, 4, 2), k, v, NULL, 0.0f), "flash_attn_ext", "i32");
    CHECK_REFUSED(ctx, ATTN(q, F16(8, 9, 2, 2), v, NULL, 0.0f), "flash_attn_ext", "[8, 9, 2, 2]");
    CHECK_REFUSED(ctx, ATTN(q, k, F16(24, 8, 2, 2), NULL, 0.0f), "flash_attn_ext", "[24, 8, 2, 2]");
    CHECK_REFUSED(ctx, ATTN(q, F16(16, 9, 3, 2), v, NULL, 0.0f), "flash_attn_ext", "[16, 9, 3, 2]");
    CHECK_REFUSED(ctx, ATTN(q, F16(16, 9, 2, 1), F16(24, 9, 2, 1), NULL, 0.0f), "flash_attn_ext", "[16, 9, 2, 1]");
    CHECK_REFUSED(ctx, ATTN(q, k, I32(24, 9, 2, 2), NULL, 0.0f), "flash_attn_ext", "i32");
    CHECK_REFUSED(ctx, ATTN(q, k, v, F16(8, 3, 1, 1), 0.0f), "flash_attn_ext", "[8, 3, 1, 1]");
    CHECK_REFUSED(ctx, ATTN(q, k, v, F16(9, 2, 1, 1), 0.0f), "flash_attn_ext", "[9, 2, 1, 1]");
    CHECK_REFUSED(ctx, ATTN(q, k, v, F16(9, 3, 3, 1), 0.0f), "flash_attn_ext", "[9, 3, 3, 1]");
    CHECK_REFUSED(ctx, ATTN(q, k, v, I32(9, 3, 1, 1), 0.0f), "flash_attn_ext", "i32");
    CHECK_REFUSED(ctx, ATTN(q, k, v, NULL, 8.0f), "flash_attn_ext");
    CHECK_REFUSED(ctx, ATTN(q, NULL, v, NULL, 0.0f), "flash_attn_ext", "NULL");
    CHECK_PASSES_NULL(ctx, ATTN(q, k, bad, NULL, 0.0f));
#undef ATTN
    gcuda_free(ctx);
}

#define CHECK_NO_SINKS(call, ...)                                           \
    do {                                                                    \
        const char * const parts_[] = { __VA_ARGS__ };                      \
        CHECK_MSG((call) != GCUDA_STATUS_SUCCESS, "%s is accepted", #call); \
        for (size_t i_ = 0; i_ < sizeof parts_ / sizeof parts_[0]; ++i_) {  \
            CHECK_HAS(gcuda_last_error(), parts_[i_]);                      \
        }                                                                   \
    } while (0)

TEST(refuse_sinks) { // those of soft_max stay, and the graph is refused; those of flash_attn_ext keep the old sinks
    struct gcuda_context * ctx = op_context();
    REQUIRE(ctx != NULL);
    struct gcuda_tensor *p = gcuda_soft_max(ctx, F32(8, 5, 4, 2)), *few = F32(3, 1, 1, 1), *good = F16(4, 1, 1, 1);
    struct gcuda_tensor * y =
        gcuda_flash_attn_ext(ctx, F32(16, 3, 4, 2), F16(16, 9, 2, 2), F16(24, 9, 2, 2), NULL, 1.0f, 0.0f, 0.0f);
    struct gcuda_cgraph * g = gcuda_new_graph_custom(ctx, 16, false);
    REQUIRE(p != NULL && y != NULL && g != NULL && op_backends_ready());
    CHECK_NO_SINKS(gcuda_soft_max_add_sinks(NULL, good), "soft_max");
    CHECK_NO_SINKS(gcuda_soft_max_add_sinks(y, good), "soft_max");
    CHECK_NO_SINKS(gcuda_soft_max_add_sinks(p, I32(4, 1, 1, 1)), "soft_max", "i32");
    CHECK_NO_SINKS(gcuda_soft_max_add_sinks(p, F32(4, 2, 1, 1)), "soft_max", "[4, 2, 1, 1]");
    CHECK_NO_SINKS(gcuda_soft_max_add_sinks(p, few), "soft_max", "[3, 1, 1, 1]");
    CHECK(p->src[2] == few && !gcuda_backend_supports_op(op_backends[0], p));
    CHECK_OK(gcuda_soft_max_add_sinks(p, good));
    CHECK(gcuda_backend_supports_op(op_backends[0], p));
    CHECK_OK(gcuda_soft_max_add_sinks(p, NULL));
    CHECK(p->src[2] == NULL);
    CHECK_OK(gcuda_flash_attn_ext_add_sinks(y, good));
    CHECK_NO_SINKS(gcuda_flash_attn_ext_add_sinks(NULL, good), "flash_attn_ext");
    CHECK_NO_SINKS(gcuda_flash_attn_ext_add_sinks(p, good), "flash_attn_ext");
    CHECK_NO_SINKS(gcuda_flash_attn_ext_add_sinks(y, I32(4, 1, 1, 1)), "flash_attn_ext", "i32");
    CHECK_NO_SINKS(gcuda_flash_attn_ext_add_sinks(y, F32(4, 2, 1, 1)), "flash_attn_ext");
    CHECK_NO_SINKS(gcuda_flash_attn_ext_add_sinks(y, few), "flash_attn_ext", "3 sinks");
    CHECK(y->src[4] == good && gcuda_backend_supports_op(op_backends[0], y));
    CHECK_OK(gcuda_flash_attn_ext_add_sinks(y, NULL));
    CHECK(y->src[4] == NULL);
    gcuda_free(ctx);
}

TEST(refuse_flash_attn_back) {
    struct gcuda_context * ctx = op_context();
    REQUIRE(ctx != NULL);
    struct gcuda_tensor *q = F32(16, 3, 4, 2), *k = F16(16, 9, 2, 2), *v = F16(24, 9, 2, 2), *y = F32(24, 4, 3, 2),
                        *sinks = F32(4, 1, 1, 1);
#define BACK(q, k, v, y, dy, m, bias) gcuda_flash_attn_ext_back(ctx, q, k, v, y, dy, m, NULL, 1.0f, bias, 0.0f)
    struct gcuda_tensor * good = BACK(q, k, v, y, y, NULL, 0.0f);
    REQUIRE(good != NULL);
    CHECK(good->ne[0] == 16 * 3 * 4 * 2 + 16 * 9 * 2 * 2 + 24 * 9 * 2 * 2);
    CHECK_NO_SINKS(gcuda_flash_attn_ext_add_sinks(good, sinks), "flash_attn_ext");
    CHECK(good->src[4] == y);
    CHECK_REFUSED(
        ctx, gcuda_flash_attn_ext_back_part(ctx, good, GCUDA_FLASH_ATTN_GRAD_SINKS), "flash_attn_ext_back", "3");
    CHECK_REFUSED(
        ctx, gcuda_flash_attn_ext_back_part(ctx, good, (enum gcuda_flash_attn_grad) 4), "flash_attn_ext_back", "4");
    CHECK_REFUSED(ctx, gcuda_flash_attn_ext_back_part(ctx, q, GCUDA_FLASH_ATTN_GRAD_Q), "flash_attn_ext_back");
    CHECK_REFUSED(ctx, BACK(q, k, v, F32(24, 3, 4, 2), y, NULL, 0.0f), "flash_attn_ext_back", "[24, 3, 4, 2]");
    CHECK_REFUSED(ctx, BACK(q, k, v, y, F32(16, 4, 3, 2), NULL, 0.0f), "flash_attn_ext_back", "[16, 4, 3, 2]");
    CHECK_REFUSED(ctx, BACK(q, k, v, y, I32(24, 4, 3, 2), NULL, 0.0f), "flash_attn_ext_back", "i32");
    CHECK_REFUSED(ctx,
        BACK(q, k, gcuda_new_tensor_4d(ctx, GCUDA_TYPE_Q8_0, 32, 9, 2, 2), F32(32, 4, 3, 2), F32(32, 4, 3, 2), NULL,
            0.0f),
        "flash_attn_ext_back", "q8_0");
    CHECK_REFUSED(ctx, BACK(q, k, v, y, y, F16(9, 2, 1, 1), 0.0f), "flash_attn_ext_back", "[9, 2, 1, 1]");
    CHECK_REFUSED(ctx, BACK(q, k, v, y, y, NULL, 8.0f), "flash_attn_ext_back");
    CHECK_REFUSED(ctx, BACK(q, k, v, y, NULL, NULL, 0.0f), "flash_attn_ext_back", "NULL");
    CHECK_PASSES_NULL(ctx, BACK(q, k, v, y, bad, NULL, 0.0f));
#undef BACK
    gcuda_free(ctx);
}

typedef gcuda_status (*set_prec_fn)(struct gcuda_tensor * node, enum gcuda_prec prec);

// Each function changes its slot of its operations, and nothing of any other node.
TEST(refuse_precision_of_other_nodes) {
    static const struct {
        set_prec_fn set;
        int slot;
        const char * of[4];
    } all[] = { { gcuda_mul_mat_set_prec, 0, { "MUL_MAT", "MUL_MAT_ID", "OUT_PROD", NULL } },
        { gcuda_conv_2d_set_prec, 7, { "CONV_2D", "CONV_TRANSPOSE_2D", NULL, NULL } },
        { gcuda_flash_attn_ext_set_prec, 3, { "FLASH_ATTN_EXT", "FLASH_ATTN_EXT_BACK", NULL, NULL } } };
    struct gcuda_context * ctx = op_context();
    REQUIRE(ctx != NULL);
    struct gcuda_tensor * node = F32(4, 1, 1, 1);
    for (int i = 0; i < 3; ++i) {
        for (int op = 0; op < GCUDA_OP_COUNT; ++op) {
            const char * name = gcuda_op_name((enum gcuda_op) op);
            bool is_own = false;
            for (int k = 0; k < 4 && all[i].of[k] != NULL; ++k) { is_own = is_own || strcmp(name, all[i].of[k]) == 0; }
            memset(node->op_params, 0x55, sizeof node->op_params);
            node->op = (enum gcuda_op) op;
            struct gcuda_tensor want = *node;
            if (is_own) { want.op_params[all[i].slot] = GCUDA_PREC_F32; }
            const gcuda_status st = all[i].set(node, GCUDA_PREC_F32);
            CHECK_MSG(st == (is_own ? GCUDA_STATUS_SUCCESS : GCUDA_STATUS_INVALID_ARGUMENT), "%s, slot %d: %s", name,
                all[i].slot, gcuda_status_to_string(st));
            CHECK_MSG(memcmp(&want, node, sizeof want) == 0, "%s, slot %d: the node is changed", name, all[i].slot);
            if (!is_own) { CHECK_HAS(gcuda_last_error(), "_set_prec: node "); }
            CHECK(all[i].set(node, (enum gcuda_prec) 77) == GCUDA_STATUS_INVALID_ARGUMENT);
            CHECK_MSG(memcmp(&want, node, sizeof want) == 0, "%s, slot %d: a precision that does not exist", name,
                all[i].slot);
        }
    }
    gcuda_free(ctx);
}
#undef CHECK_NO_SINKS

TEST(refuse_rope) {
    struct gcuda_context * ctx = op_context();
    REQUIRE(ctx != NULL);
    struct gcuda_tensor * a = F32(16, 2, 5, 1);
    struct gcuda_tensor * pos = I32(5, 1, 1, 1);
    int sections[4] = { 4, 4, 0, 0 }, none[4] = { 0, 0, 0, 4 }, many[4] = { 9, 9, 0, 0 };
#define MULTI(p, s, n, mode) gcuda_rope_multi(ctx, a, p, NULL, n, s, mode, 0, 10000.0f, 1.0f, 0.0f, 1.0f, 0.0f, 0.0f)
    CHECK_REFUSED(ctx, gcuda_rope(ctx, a, I32(4, 1, 1, 1), 16, 0), "rope", "[4, 1, 1, 1]");
    CHECK_REFUSED(ctx, gcuda_rope(ctx, a, F32(5, 1, 1, 1), 16, 0), "rope", "f32");
    CHECK_REFUSED(ctx, gcuda_rope(ctx, I32(16, 2, 5, 1), pos, 16, 0), "rope", "i32");
    CHECK_REFUSED(ctx, gcuda_rope(ctx, a, pos, 18, 0), "rope", "18");
    CHECK_REFUSED(ctx, gcuda_rope(ctx, a, pos, 7, 0), "rope", "7");
    CHECK_REFUSED(ctx, gcuda_rope(ctx, a, pos, -2, 0), "rope", "-2");
    CHECK_REFUSED(ctx, gcuda_rope(ctx, a, pos, 16, 1), "rope", "1");
    CHECK_REFUSED(ctx, gcuda_rope(ctx, a, NULL, 16, 0), "rope", "NULL");
    CHECK_REFUSED(ctx, gcuda_rope_ext(ctx, a, pos, F32(7, 1, 1, 1), 16, 0, 0, 10000.0f, 1.0f, 0.0f, 1.0f, 0.0f, 0.0f),
        "rope", "[7, 1, 1, 1]");
    CHECK_REFUSED(ctx, gcuda_rope_ext(ctx, a, pos, I32(8, 1, 1, 1), 16, 0, 0, 10000.0f, 1.0f, 0.0f, 1.0f, 0.0f, 0.0f),
        "rope", "i32");
    CHECK_REFUSED(ctx, MULTI(pos, sections, 16, 8), "rope", "[5, 1, 1, 1]");
    CHECK_REFUSED(ctx, MULTI(I32(20, 1, 1, 1), none, 16, 8), "rope");
    CHECK_REFUSED(ctx, MULTI(I32(20, 1, 1, 1), many, 16, 8), "rope");
    CHECK_REFUSED(ctx, MULTI(I32(20, 1, 1, 1), sections, 16, 24), "rope", "16"); // vision turns the whole row
    CHECK_PASSES_NULL(ctx, gcuda_rope(ctx, bad, pos, 16, 0));
#undef MULTI
    gcuda_free(ctx);
}

TEST(refuse_convolutions) {
    struct gcuda_context * ctx = op_context();
    REQUIRE(ctx != NULL);
    struct gcuda_tensor * k = F32(3, 3, 2, 4);
    struct gcuda_tensor * b = F32(8, 8, 2, 1);
    CHECK_REFUSED(
        ctx, gcuda_im2col(ctx, k, F32(8, 8, 3, 1), 1, 1, 0, 0, 1, 1, true, GCUDA_TYPE_F32), "im2col", "[8, 8, 3, 1]");
    CHECK_REFUSED(
        ctx, gcuda_im2col(ctx, k, F32(2, 8, 2, 1), 1, 1, 0, 0, 1, 1, true, GCUDA_TYPE_F32), "im2col", "[2, 8, 2, 1]");
    CHECK_REFUSED(ctx, gcuda_im2col(ctx, k, b, 0, 1, 0, 0, 1, 1, true, GCUDA_TYPE_F32), "im2col");
    CHECK_REFUSED(ctx, gcuda_im2col(ctx, k, b, 1, 1, 0, 0, 1, 1, true, GCUDA_TYPE_I32), "im2col");
    CHECK_REFUSED(ctx, gcuda_im2col(ctx, k, NULL, 1, 1, 0, 0, 1, 1, true, GCUDA_TYPE_F32), "im2col", "NULL");
    CHECK_REFUSED(ctx,
        gcuda_im2col_3d(ctx, F32(3, 3, 3, 4), F32(8, 8, 8, 3), 2, 1, 1, 1, 0, 0, 0, 1, 1, 1, GCUDA_TYPE_F32),
        "im2col_3d", "3");
    CHECK_REFUSED(ctx,
        gcuda_im2col_3d(ctx, F32(3, 3, 3, 4), F32(8, 8, 2, 2), 2, 1, 1, 1, 0, 0, 0, 1, 1, 1, GCUDA_TYPE_F32),
        "im2col_3d", "[8, 8, 2, 2]");
    CHECK_REFUSED(ctx, gcuda_conv_2d_direct(ctx, k, F32(8, 8, 3, 1), 1, 1, 0, 0, 1, 1), "conv_2d", "[8, 8, 3, 1]");
    CHECK_REFUSED(ctx, gcuda_conv_2d_direct(ctx, k, I32(8, 8, 2, 1), 1, 1, 0, 0, 1, 1), "conv_2d", "i32");
    CHECK_REFUSED(ctx, gcuda_conv_2d_direct(ctx, k, b, 1, 0, 0, 0, 1, 1), "conv_2d");
    CHECK_REFUSED(
        ctx, gcuda_conv_2d_dw_direct(ctx, F32(3, 3, 1, 3), b, 1, 1, 0, 0, 1, 1), "conv_2d_dw", "[3, 3, 1, 3]");
    CHECK_REFUSED(
        ctx, gcuda_conv_2d_dw_direct(ctx, F32(3, 3, 2, 2), b, 1, 1, 0, 0, 1, 1), "conv_2d_dw", "[3, 3, 2, 2]");
    CHECK_REFUSED(ctx, gcuda_conv_transpose_1d(ctx, F32(3, 4, 2, 1), F32(8, 3, 1, 1), 1, 0, 1), "conv_transpose_1d",
        "[8, 3, 1, 1]");
    CHECK_REFUSED(ctx, gcuda_conv_transpose_1d(ctx, F32(3, 4, 2, 1), F32(8, 2, 1, 1), 1, 1, 1), "conv_transpose_1d");
    CHECK_REFUSED(ctx, gcuda_conv_transpose_1d(ctx, F32(3, 4, 2, 1), F32(8, 2, 1, 1), 1, 0, 2), "conv_transpose_1d");
    CHECK_REFUSED(
        ctx, gcuda_conv_transpose_2d_p0(ctx, F16(3, 3, 4, 2), F32(8, 8, 3, 1), 1), "conv_transpose_2d", "[8, 8, 3, 1]");
    CHECK_REFUSED(ctx, gcuda_conv_transpose_2d_p0(ctx, F16(3, 3, 4, 2), b, 0), "conv_transpose_2d");
    CHECK_PASSES_NULL(ctx, gcuda_conv_2d(ctx, k, bad, 1, 1, 0, 0, 1, 1));
    CHECK_PASSES_NULL(ctx, gcuda_conv_2d_dw(ctx, bad, b, 1, 1, 0, 0, 1, 1));
    CHECK_PASSES_NULL(ctx, gcuda_conv_1d(ctx, bad, b, 1, 0, 1));
    gcuda_free(ctx);
}

TEST(refuse_pooling) {
    struct gcuda_context * ctx = op_context();
    REQUIRE(ctx != NULL);
    struct gcuda_tensor * b = F32(8, 8, 2, 1);
    CHECK_REFUSED(ctx, gcuda_pool_2d(ctx, b, GCUDA_OP_POOL_MAX, 9, 2, 1, 1, 0.0f, 0.0f), "pool_2d", "[8, 8, 2, 1]");
    CHECK_REFUSED(ctx, gcuda_pool_2d(ctx, b, GCUDA_OP_POOL_MAX, 2, 2, 0, 1, 0.0f, 0.0f), "pool_2d");
    CHECK_REFUSED(ctx, gcuda_pool_2d(ctx, b, GCUDA_OP_POOL_AVG, 0, 2, 1, 1, 0.0f, 0.0f), "pool_2d");
    CHECK_REFUSED(
        ctx, gcuda_pool_2d(ctx, I32(8, 8, 2, 1), GCUDA_OP_POOL_AVG, 2, 2, 1, 1, 0.0f, 0.0f), "pool_2d", "i32");
    CHECK_REFUSED(ctx, gcuda_pool_2d(ctx, NULL, GCUDA_OP_POOL_AVG, 2, 2, 1, 1, 0.0f, 0.0f), "pool_2d", "NULL");
    CHECK_REFUSED(ctx, gcuda_pool_2d_back(ctx, F32(3, 4, 2, 1), b, GCUDA_OP_POOL_AVG, 2, 2, 2, 2, 0.0f, 0.0f),
        "pool_2d_back", "[3, 4, 2, 1]");
    CHECK_REFUSED(ctx, gcuda_upscale(ctx, I32(8, 8, 2, 1), 2, GCUDA_SCALE_MODE_NEAREST), "upscale", "i32");
    CHECK_REFUSED(ctx, gcuda_interpolate(ctx, b, 4, 4, 2, 1, 7), "upscale", "7");
    CHECK_REFUSED(ctx, gcuda_interpolate(ctx, b, 4, -4, 2, 1, 0), "upscale", "-4");
    CHECK_REFUSED(ctx, gcuda_interpolate(ctx, b, 4, 4, 2, 1, 0x200 | 2), "upscale"); // antialias is bilinear only
    CHECK_PASSES_NULL(ctx, gcuda_upscale(ctx, bad, 2, GCUDA_SCALE_MODE_NEAREST));
    gcuda_free(ctx);
}

TEST(refuse_recurrences) {
    struct gcuda_context * ctx = op_context();
    REQUIRE(ctx != NULL);
    struct gcuda_tensor * w = F32(8, 2, 6, 1);
    struct gcuda_tensor * tf = F32(8, 2, 1, 1);
    struct gcuda_tensor * state = F32(8 * 8 * 2, 3, 1, 1);
    CHECK_REFUSED(ctx, gcuda_ssm_conv(ctx, F32(6, 5, 2, 1), F32(4, 6, 1, 1)), "ssm_conv", "[4, 6, 1, 1]");
    CHECK_REFUSED(ctx, gcuda_ssm_conv(ctx, F32(2, 5, 2, 1), F32(4, 5, 1, 1)), "ssm_conv", "[2, 5, 2, 1]");
    CHECK_REFUSED(ctx, gcuda_ssm_conv(ctx, F32(6, 5, 2, 1), NULL), "ssm_conv", "NULL");
#define SCAN(s, x, dt, a, b, c, ids) gcuda_ssm_scan(ctx, s, x, dt, a, b, c, ids)
    struct gcuda_tensor *s = F32(8, 4, 6, 3), *x = F32(4, 6, 5, 2), *dt = F32(6, 5, 2, 1), *a = F32(1, 6, 1, 1),
                        *b = F32(8, 2, 5, 2), *ids = I32(2, 1, 1, 1);
    CHECK(SCAN(s, x, dt, a, b, b, ids) != NULL);
    CHECK_REFUSED(ctx, SCAN(F32(8, 5, 6, 3), x, dt, a, b, b, ids), "ssm_scan", "[8, 5, 6, 3]");
    CHECK_REFUSED(ctx, SCAN(s, x, F32(6, 4, 2, 1), a, b, b, ids), "ssm_scan", "[6, 4, 2, 1]");
    CHECK_REFUSED(ctx, SCAN(s, x, dt, F32(2, 6, 1, 1), b, b, ids), "ssm_scan", "[2, 6, 1, 1]");
    CHECK_REFUSED(ctx, SCAN(s, x, dt, a, F32(8, 4, 5, 2), F32(8, 4, 5, 2), ids), "ssm_scan", "[8, 4, 5, 2]");
    CHECK_REFUSED(ctx, SCAN(s, x, dt, a, b, F32(8, 1, 5, 2), ids), "ssm_scan", "[8, 1, 5, 2]");
    CHECK_REFUSED(ctx, SCAN(s, x, dt, a, b, b, I32(3, 1, 1, 1)), "ssm_scan", "[3, 1, 1, 1]");
    CHECK_REFUSED(ctx, SCAN(s, x, dt, a, b, b, F32(2, 1, 1, 1)), "ssm_scan");
#undef SCAN
    CHECK(gcuda_rwkv_wkv6(ctx, w, w, w, tf, w, state) != NULL);
    CHECK_REFUSED(ctx, gcuda_rwkv_wkv6(ctx, w, F32(8, 2, 5, 1), w, tf, w, state), "rwkv_wkv6", "[8, 2, 5, 1]");
    CHECK_REFUSED(ctx, gcuda_rwkv_wkv6(ctx, w, w, w, F32(8, 3, 1, 1), w, state), "rwkv_wkv6", "[8, 3, 1, 1]");
    CHECK_REFUSED(ctx, gcuda_rwkv_wkv6(ctx, w, w, w, tf, w, F32(128, 4, 1, 1)), "rwkv_wkv6",
        "[128, 4, 1, 1]"); // 6 tokens, 4 sequences
    CHECK_REFUSED(ctx, gcuda_rwkv_wkv6(ctx, w, w, w, tf, w, F32(100, 3, 1, 1)), "rwkv_wkv6", "[100, 3, 1, 1]");
    CHECK_REFUSED(ctx, gcuda_rwkv_wkv7(ctx, w, w, w, w, w, F32(8, 3, 6, 1), state), "rwkv_wkv7", "[8, 3, 6, 1]");
    CHECK_REFUSED(ctx, gcuda_rwkv_wkv7(ctx, w, w, w, w, w, w, F16(128, 3, 1, 1)), "rwkv_wkv7", "f16");
    CHECK_REFUSED(
        ctx, gcuda_gated_linear_attn(ctx, w, w, w, F32(4, 2, 6, 1), state, 1.0f), "gated_linear_attn", "[4, 2, 6, 1]");
    CHECK_REFUSED(ctx, gcuda_gated_linear_attn(ctx, w, w, w, NULL, state, 1.0f), "gated_linear_attn", "NULL");
    CHECK_REFUSED(
        ctx, gcuda_solve_tri(ctx, F32(5, 4, 1, 1), F32(3, 5, 1, 1), true, true, false), "solve_tri", "[5, 4, 1, 1]");
    CHECK_REFUSED(
        ctx, gcuda_solve_tri(ctx, F32(5, 5, 1, 1), F32(3, 4, 1, 1), true, true, false), "solve_tri", "[3, 4, 1, 1]");
    CHECK_REFUSED(
        ctx, gcuda_solve_tri(ctx, F32(5, 5, 2, 1), F32(3, 5, 1, 1), true, true, false), "solve_tri", "[5, 5, 2, 1]");
    CHECK_REFUSED(ctx, gcuda_solve_tri(ctx, F32(5, 5, 1, 1), F32(3, 5, 1, 1), false, true, false), "solve_tri");
    CHECK_REFUSED(ctx, gcuda_solve_tri(ctx, F32(5, 5, 1, 1), F32(3, 5, 1, 1), true, false, false), "solve_tri");
    CHECK_REFUSED(ctx, gcuda_solve_tri(ctx, F32(5, 5, 1, 1), F32(3, 5, 1, 1), true, true, true), "solve_tri");
    CHECK_PASSES_NULL(ctx, gcuda_solve_tri(ctx, bad, F32(3, 5, 1, 1), true, true, false));
    gcuda_free(ctx);
}

// Integers at the ends of their range for each parameter: refused or built, but never an overflow (UBSan) or an
// unwanted allocation. The memory of a graph that is built can be measured.
static struct gcuda_tensor * extreme(struct gcuda_context * ctx, int which, const int * v) {
    struct gcuda_tensor * k = F32(3, 3, 2, 4);
    struct gcuda_tensor * b = F32(8, 8, 2, 1);
    int64_t ne[4] = { v[6], 8, 2, 1 };
    switch (which) {
        case 0: return gcuda_im2col(ctx, k, b, v[0], v[1], v[2], v[3], v[4], v[5], true, GCUDA_TYPE_F32);
        case 1: return gcuda_im2col(ctx, k, F32(8, 3, 1, 1), v[0], v[1], v[2], v[3], v[4], v[5], false, GCUDA_TYPE_F16);
        case 2: return gcuda_im2col_back(ctx, F32(18, 6, 6, 1), k, ne, v[0], v[1], v[2], v[3], v[4], v[5], true);
        case 3: return gcuda_conv_2d_direct(ctx, k, b, v[0], v[1], v[2], v[3], v[4], v[5]);
        case 4: return gcuda_conv_2d(ctx, k, b, v[0], v[1], v[2], v[3], v[4], v[5]);
        case 5: return gcuda_conv_2d_dw_direct(ctx, F32(3, 3, 1, 2), b, v[0], v[1], v[2], v[3], v[4], v[5]);
        case 6:
            return gcuda_im2col_3d(
                ctx, k, F32(8, 8, 8, 4), v[6], v[0], 1, v[1], v[2], 1, v[3], v[4], 1, v[5], GCUDA_TYPE_F32);
        case 7: return gcuda_conv_transpose_1d(ctx, F32(3, 4, 2, 1), F32(8, 2, 1, 1), v[0], v[2], v[4]);
        case 8: return gcuda_conv_transpose_2d_p0(ctx, F16(3, 3, 4, 2), b, v[0]);
        case 9: return gcuda_pool_2d(ctx, b, GCUDA_OP_POOL_AVG, v[4], v[5], v[0], v[1], (float) v[2], (float) v[3]);
        case 10:
            return gcuda_pool_2d_back(ctx, b, b, GCUDA_OP_POOL_MAX, v[4], v[5], v[0], v[1], (float) v[2], (float) v[3]);
        case 11: return gcuda_pool_1d(ctx, b, GCUDA_OP_POOL_MAX, v[4], v[0], v[2]);
        case 12: return gcuda_upscale(ctx, b, v[0], GCUDA_SCALE_MODE_BILINEAR);
        case 13: return gcuda_interpolate(ctx, b, v[0], v[1], v[2], v[3], (uint32_t) v[4]);
        case 14: return gcuda_rope(ctx, b, I32(2, 1, 1, 1), v[4], v[0]);
        case 15:
            return gcuda_rope_multi(
                ctx, b, I32(8, 1, 1, 1), NULL, v[4], (int *) ne, v[0], v[5], 1e4f, 1.0f, 0.0f, 1.0f, 0.0f, 0.0f);
        case 16: return gcuda_conv_1d(ctx, F16(3, 8, 2, 1), F32(9, 8, 2, 1), v[0], v[2], v[4]);
        case 17: return gcuda_conv_3d(ctx, k, F32(8, 8, 8, 4), v[6], v[0], 1, v[1], v[2], 1, v[3], v[4], 1, v[5]);
        default:
            return gcuda_rope_multi(
                ctx, b, I32(8, 1, 1, 1), NULL, 8, (int *) v, 8, 0, 1e4f, 1.0f, 0.0f, 1.0f, 0.0f, 0.0f);
    }
}

TEST(extreme_parameters) {
    static const int values[] = { INT32_MIN, INT32_MIN + 1, -65536, -1, 0, 1, 2, 65536, 1 << 30, INT32_MAX - 1,
        INT32_MAX };
    for (int which = 0; which < 19; ++which) {
        for (int at = 0; at < 7 * 11; ++at) {
            int v[7] = { 1, 1, 1, 1, 2, 2, 2 };
            struct gcuda_context * ctx = op_context();
            REQUIRE(ctx != NULL);
            v[at / 11] = values[at % 11];
            if (at % 3 == 0) { v[(at / 11 + 2) % 7] = values[at % 11]; }
            const struct gcuda_tensor * y = extreme(ctx, which, v);
            if (y != NULL) {
                CHECK_MSG(gcuda_nelements(y) >= 0 && gcuda_nbytes(y) <= SIZE_MAX / 2,
                    "constructor %d, parameter set %d", which, at);
            } else {
                CHECK_MSG(gcuda_context_error(ctx)[0] != '\0',
                    "constructor %d, parameter set %d: refused without a word", which, at);
            }
            gcuda_free(ctx);
        }
    }
}

#undef F32
#undef F16
#undef I32

#endif
