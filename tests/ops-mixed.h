// Mixtures of F32, F16 and BF16 among the sources of one node. Each source in each type has cases next to its
// operation; these find kernels that take the type of one source for that of another.
//
// The sources written as * below accept any mixture. Other float sources have to be F32 (states, the gradient of a
// loss, all of an optimizer step) or of the type of another source (set, concat).
#ifndef OPS_MIXED_H
#define OPS_MIXED_H

#include "test-ops.h"

// of the inputs of one entry, those of has[3] = { F32, F16, BF16 }
static int mixed_n_types(const char * entry, bool * has) {
    const size_t end = strcspn(entry, "> ");
    has[0] = has[1] = has[2] = false;
    for (size_t at = 0; at < end; at += strcspn(entry + at, ",> ") + 1) {
        for (int k = 0; k < 3; ++k) {
            const size_t n = strlen(op_types[k].name);
            has[k] = has[k] || (strncmp(entry + at, op_types[k].name, n) == 0 && strchr(",> ", entry[at + n]) != NULL);
        }
    }
    return has[0] + has[1] + has[2];
}

// One entry: each * of the pattern replaced. Up to three of them get every combination, one per row. Of four to six any
// two get all nine pairs: each takes another sum of the row's digits, and no two of these sums are multiples modulo 3.
static size_t mixed_entry(const char * pattern, int n_free, int row, char * out, size_t size) {
    static const int all[3][3] = { { 1, 0, 0 }, { 0, 1, 0 }, { 0, 0, 1 } };
    static const int pairs[6][3] = { { 1, 0, 0 }, { 0, 1, 0 }, { 1, 1, 0 }, { 1, 2, 0 }, { 0, 0, 1 }, { 1, 0, 1 } };
    size_t used = 0;
    for (int k = 0; *pattern != '\0'; ++pattern) {
        if (*pattern == '*') {
            const int * w = n_free <= 3 ? all[k] : pairs[k];
            const int type = (w[0] * (row % 3) + w[1] * (row / 3 % 3) + w[2] * (row / 9)) % 3;
            used += (size_t) snprintf(out + used, size - used, "%s", op_types[type].name);
            ++k;
        } else {
            used += (size_t) snprintf(out + used, size - used, "%c", *pattern);
        }
    }
    return used;
}

// "*,*,I32>F32" as the types of an op_test: all mixtures, without those where all floating inputs are of one type. The
// text stays valid until the next call.
static const char * mixed_types(const char * pattern) {
    static char text[2048];
    int n_free = 0;
    size_t used = 0;
    text[0] = '\0';
    for (const char * p = pattern; *p; ++p) { n_free += *p == '*'; }
    const int n_rows = n_free == 1 ? 3 : n_free == 2 || n_free == 4 ? 9 : 27;
    for (int row = 0; row < n_rows; ++row) {
        char entry[64];
        bool has[3];
        const size_t n = mixed_entry(pattern, n_free, row, entry, sizeof entry);
        if (mixed_n_types(entry, has) > 1 && used + n + 2 < sizeof text) {
            used += (size_t) snprintf(text + used, sizeof text - used, "%s%s", used > 0 ? " " : "", entry);
        }
    }
    return text;
}

TEST(mixed_types) { // any two sources get all pairs of types
    static const char * const patterns[] = { "*,F64", "*,*", "*,*,*", "*,*,*,*", "*,*,*,*,*", "*,*,*,*,*,*" };
    static const int counts[] = { 0, 6, 24, 8, 26, 26 };
    for (int i = 0; i < 6; ++i) {
        int n = 0, met[6][6][3][3];
        memset(met, 0, sizeof met);
        for (const char * p = mixed_types(patterns[i]); *p; p += strcspn(p, " "), p += *p == ' ') {
            int type[6], k = 0;
            for (const char * q = p; k <= i; q += strcspn(q, ", ") + 1) { type[k++] = q[0] == 'B' ? 2 : q[1] == '1'; }
            for (int a = 0; a < 36; ++a) {
                if (a / 6 < k && a % 6 < k) { met[a / 6][a % 6][type[a / 6]][type[a % 6]]++; }
            }
            ++n;
        }
        CHECK_EQ_I(n, counts[i]);
        for (int a = 0; a < 36 * 9; ++a) {
            const int k = a / 9 / 6, l = a / 9 % 6, x = a % 9 / 3, y = a % 3;
            if (k < l && l <= i && x != y) { CHECK_MSG(met[k][l][x][y] > 0, "%s: %d and %d", patterns[i], k, l); }
        }
    }
}

static void mixed_run(const char * pattern, const char * shapes, const char * tag, struct op_test t) {
    t.types = mixed_types(pattern), t.shapes = shapes, t.tag = tag;
    op_test_run(&t);
}

// ---------------------------------------------------------------------------------------- element by element
struct mixed_cast_p {
    struct binary_p b;
    enum gcuda_type type;
};
static struct gcuda_tensor * build_mixed_cast(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    return gcuda_add_cast(ctx, in[0], in[1], ((const struct mixed_cast_p *) p)->type);
}

TEST(mixed_elementwise) {
    static const struct binary_p ops[] = { { '+', gcuda_add, gcuda_add_inplace }, { '-', gcuda_sub, gcuda_sub_inplace },
        { '*', gcuda_mul, gcuda_mul_inplace }, { '/', gcuda_div, gcuda_div_inplace } };
    static const char * const names[] = { "add", "sub", "mul", "div" };
    for (int i = 0; i < 4; ++i) {
        const double lo = i < 2 ? -1.0 : 0.9, hi = i < 2 ? 1.0 : 1.1;
        const struct op_test t = { .n_in = 2,
            .build = build_binary,
            .inplace = build_binary_inplace,
            .ref = ref_binary,
            .p = &ops[i],
            .max_nmse = 1e-7,
            .reuse = 3,
            .in = { { lo, hi, .layouts = i == 0 ? LAYOUT_GAPS | LAYOUT_TRANSPOSED : 0 },
                { lo, hi, .layouts = i == 0 ? LAYOUT_GAPS | LAYOUT_TRANSPOSED : 0 } } };
        mixed_run("*,*", "256,5|256,5 257,3|257 10,5,4,3|1,5,1,3 64,3|1 10,6,4,2|5,3,2,1", names[i], t);
    }
    static const struct binary_p add1 = { '+', gcuda_add1, gcuda_add1_inplace };
    const struct op_test one = { .n_in = 2,
        .build = build_binary,
        .inplace = build_binary_inplace,
        .ref = ref_add1,
        .p = &add1,
        .max_nmse = 1e-7,
        .reuse = 1,
        .in = { { .layouts = LAYOUT_TRANSPOSED } } };
    mixed_run("*,*", "256,3|1 7,5,3|1", "add1", one);
    for (int k = 0; k < 3; ++k) {
        const struct mixed_cast_p p = { ops[0], op_types[k].type };
        const struct op_test cast = {
            .n_in = 2, .build = build_mixed_cast, .ref = ref_binary, .p = &p, .max_nmse = 1e-7, .in = { { 0 } }
        };
        for (int a = 1; a < 3; ++a) { // F32 needs no cast
            mixed_run(tagf("%s,*>%s", op_types[a].name, op_types[k].name), "256,3|256,3 257,3|257 10,5,4,3|10,1,4,3",
                "add_cast", cast);
        }
    }
    const struct op_test id = { .n_in = 3,
        .build = build_add_id,
        .ref = ref_add_id,
        .max_nmse = 1e-7,
        .reuse = 1,
        .in = { { .layouts = LAYOUT_GAPS }, { .layouts = LAYOUT_GAPS }, { .fill = fill_expert } } };
    mixed_run("*,*,I32", "129,2,7|129,8|2,7 64,3,2|64,4|3,2", "add_id", id);
    const struct op_test silu = { .n_in = 2,
        .build = build_silu_back,
        .ref = ref_silu_back,
        .max_nmse = 1e-7,
        .reuse = 3,
        .in = { { .layouts = LAYOUT_TRANSPOSED }, { .lo = -8, .hi = 8, .layouts = LAYOUT_TRANSPOSED } } };
    mixed_run("*,*", "256,3|256,3 9,5,4,3|9,5,4,3", "silu_back", silu);
    for (int op = 0; op < 6; ++op) {
        const struct glu_p p = { op, false, 1.702, 7.0 };
        const struct op_test glu = { .n_in = 2,
            .build = build_glu_split,
            .ref = ref_glu,
            .p = &p,
            .max_nmse = 1e-7,
            .reuse = 3,
            .in = { { .lo = -4, .hi = 4, .layouts = LAYOUT_GAPS }, { .lo = -4, .hi = 4, .layouts = LAYOUT_GAPS } } };
        mixed_run("*,*", "256,3|256,3 7,5,2|7,5,2", glu_names[op], glu);
    }
}

TEST(mixed_rows) { // acc, set_rows
    static const struct region_p whole = { 256, 4352, 4352, 256, true, 0 }, part = { 12, 60, 120, 7, true, 0 };
    struct op_test t = { .n_in = 2,
        .build = build_region,
        .inplace = build_region_inplace,
        .ref = ref_region,
        .p = &whole,
        .max_nmse = 1e-7,
        .in = { { .lo = -90, .hi = 90 }, { .lo = -90, .hi = 90, .layouts = LAYOUT_GAPS | LAYOUT_TRANSPOSED } } };
    mixed_run("*,*", "256,17|256,16", "acc", t);
    t.p = &part;
    mixed_run("*,*", "12,5,4|3,2,2", "acc", t);
    struct op_test rows = { .n_in = 3,
        .build = build_set_rows,
        .ref = ref_set_rows,
        .aliases = true,
        .keep_blocks = true,
        .in = {
            { .layouts = LAYOUT_GAPS }, { .lo = -4, .hi = 4, .layouts = LAYOUT_GAPS }, { .fill = fill_set_index } } };
    mixed_run("*,*,I32", "256,8,2|256,5,2|5 33,11,2,3|33,4,2,3|4,2,3", "set_rows", rows);
    mixed_run("*,*,I64", "31,7|31,5|5", "set_rows", rows);
    static const enum gcuda_type to[] = { GCUDA_TYPE_Q4_0, GCUDA_TYPE_Q4_1, GCUDA_TYPE_Q5_0, GCUDA_TYPE_Q5_1,
        GCUDA_TYPE_Q8_0, GCUDA_TYPE_IQ4_NL, GCUDA_TYPE_MXFP4, GCUDA_TYPE_Q8_1, GCUDA_TYPE_Q2_K, GCUDA_TYPE_Q3_K,
        GCUDA_TYPE_Q4_K, GCUDA_TYPE_Q5_K, GCUDA_TYPE_Q6_K, GCUDA_TYPE_IQ4_XS, GCUDA_TYPE_Q8_K };
    for (size_t i = 0; i < sizeof to / sizeof to[0]; ++i) { // formats with a quantizer, from 16 bits
        char types[64];
        const char * name = op_type_of(to[i])->name;
        snprintf(types, sizeof types, "%s,F16,I32 %s,BF16,I64", name, name);
        rows.types = types, rows.shapes = "256,7|256,5|5", rows.no_max_error = true;
        rows.max_nmse = fmin(cpy_bound(to[i], 160.0), 0.0625 / 160.0);
        op_test_run(&rows);
    }
}

// ---------------------------------------------------------------------------------------- row by row
TEST(mixed_norms) { // rms_norm_back, soft_max and back, cross_entropy_loss and back
    static const double eps = 1e-6f;
    const struct op_test back = { .n_in = 2,
        .build = build_rms_norm_back,
        .ref = ref_rms_norm_back,
        .p = &eps,
        .max_nmse = 1e-7,
        .reuse = 3,
        .in = { { .layouts = LAYOUT_GAPS }, { .lo = -10, .hi = 10, .layouts = LAYOUT_GAPS } } };
    mixed_run("*,*", "64,5,2 257,2 5001", "rms_norm_back", back);
    static const struct p_soft_max masked = { 0.1f, 8.0f, 1, 0 }, both = { 0.1f, 0.0f, 1, 2 },
                                   sinks = { 0.5f, 0.0f, 0, 1 };
    soft_max_cases(mixed_types("*,*"), "16,15|16,15 257,3,4|257,4 1024,5,2,2|1024,5,1,2", "alibi", &masked, fill_mask);
    soft_max_cases(mixed_types("*,*,*"), "17,5,4,2|17,6,2,1|4 20008,2,2|20008,2|2", "mask-sinks", &both, fill_mask);
    soft_max_cases(mixed_types("*,*"), "17,5,4,2|4 257,2,3|3", "sinks", &sinks, NULL);
    const struct op_test soft = { .n_in = 2,
        .build = build_soft_max_back,
        .inplace = inplace_soft_max_back,
        .ref = ref_soft_max_back,
        .p = &masked,
        .max_nmse = 1e-7,
        .reuse = 3,
        .in = { { 0 }, { .lo = 0.0, .hi = 1.0 } } };
    mixed_run("*,*", "7,5 256,3,2 5001,2", "soft_max_back", soft);
    const struct op_test loss = { .n_in = 2,
        .build = build_cross_entropy,
        .ref = ref_cross_entropy,
        .max_nmse = 1e-7,
        .in = { { .lo = -100, .hi = 100 }, { .fill = fill_labels } } };
    mixed_run("*,*>F32", "10,5,4,3 257,3 30000", "cross_entropy_loss", loss);
    const struct op_test loss_back = { .n_in = 3,
        .build = build_cross_entropy_back,
        .ref = ref_cross_entropy_back,
        .max_nmse = 1e-7,
        .in = { { .lo = 0.5, .hi = 2 }, { .lo = -20, .hi = 20 }, { .fill = fill_labels } } };
    mixed_run("F32,F32,*>F32", "1|10,5,4,3|10,5,4,3 1|257,3|257,3", "cross_entropy_loss_back", loss_back);
    mixed_run("F32,F16,*>F16", "1|10,5,4,3|10,5,4,3 1|257,3|257,3", "cross_entropy_loss_back", loss_back);
    mixed_run("F32,BF16,*>BF16", "1|10,5,4,3|10,5,4,3 1|257,3|257,3", "cross_entropy_loss_back", loss_back);
}

// ---------------------------------------------------------------------------------------- products
TEST(mixed_products) { // a column, a few, more than fit into a tile
    mul_mat_cases(mixed_types("*,*>F32"), "67,9|67,1 256,16|256,3 129,17|129,9 160,40|160,33 64,5,3,2|64,3,3,4", 0);
    mul_mat_cases(mixed_types("*,*>F32"), "520,16|520,66 32,7|32,4", LAYOUT_GAPS);
    mul_mat_id_cases(mixed_types("*,*,I32>F32"), "256,9,8|256,2,1|4,1 72,17,4|72,2,17|4,17", "b", fill_experts);
    struct op_test t = mul_mat_test(NULL, NULL);
    t.build = build_mul_mat_f32;
    mixed_run("*,*>F32", "256,17|256,3 64,20|64,20", "precision", t);
    t.build = build_out_prod, t.ref = ref_out_prod;
    mixed_run("*,*>F32", "7,5,2,1|3,5,4,2 257,33|19,33", "out_prod", t);
}

TEST(mixed_products_quantized) { // every weight type with activations of 16 bits
    static const char * const kinds[] = { "F16", "BF16" };
    for (int k = 0; k < 2; ++k) {
        char types[2048], suffix[32];
        struct op_test t = mul_mat_test(types, "256,5|3,5");
        snprintf(suffix, sizeof suffix, ",%s>F32", kinds[k]);
        snprintf(types, sizeof types, "%s", op_types_with(WEIGHT_TYPES, suffix));
        mul_mat_cases(types, "512,9|512,1 256,17|256,5 256,20|256,33", 0);
        t.build = build_out_prod, t.ref = ref_out_prod, t.tag = "out_prod";
        op_test_run(&t);
        snprintf(suffix, sizeof suffix, ",%s,I32>F32", kinds[k]);
        snprintf(types, sizeof types, "%s", op_types_with(WEIGHT_TYPES, suffix));
        mul_mat_id_cases(types, "256,9,8|256,2,1|4,1 256,17,4|256,2,17|4,17", "b", fill_experts);
    }
}

// ---------------------------------------------------------------------------------------- attention
TEST(mixed_attention) { // one query, a few, a tile of them; heads that share keys
    static const struct p_flash_attn plain = { 0.125f, 0.0f, 0.0f, 0, 0, 0, 0 },
                                     mask = { 0.125f, 0.0f, 0.0f, 3, 0, 0, 0 },
                                     alibi = { 0.125f, 8.0f, 0.0f, 3, 4, 0, 0 },
                                     exact = { 0.125f, 0.0f, 0.0f, 3, 0, 1, 0 },
                                     inside = { 0.2f, 0.0f, 0.0f, 2, 0, 0, 32 };
    flash_attn_cases(
        mixed_types("*,*,*>F32"), "64,1,4|64,35,2|64,35,2 40,9,2|40,33,2|40,33,2", "plain", &plain, 0, NULL);
    flash_attn_cases(mixed_types("*,*,*,*>F32"),
        "128,1,4|128,70,2|128,70,2|70,1 64,5,4,2|64,35,2,2|48,35,2,2|35,6,1,2 80,20,2|80,64,1|80,64,1|64,20", "mask",
        &mask, LAYOUT_GAPS, fill_mask);
    flash_attn_cases(mixed_types("*,*,*,*,*>F32"), "96,3,4|96,37,2|96,37,2|37,3|4 64,1,8|64,113,1|64,113,1|113,1|8",
        "alibi", &alibi, 0, fill_mask);
    flash_attn_cases(mixed_types("*,*,*,*>F32"), "64,5,4|64,35,2|64,35,2|35,5", "exact", &exact, 0, fill_mask);
    flash_attn_cases(mixed_types("*,*,*>F32"), "64,3,4|64,64,2|64,3", "v-in-k", &inside, 0, fill_mask);
    flash_attn_cases(mixed_types("*,Q8_0,Q4_0,*>F32"), "64,1,4|64,35,2|64,35,2|35,1 128,5,2|128,64,2|128,64,2|64,6",
        "quantized", &mask, 0, fill_mask);
}

TEST(mixed_rope) {
    static const int modes[] = { 0, 2, 8, 40, 24 };
    for (int i = 0; i < 10; ++i) {
        const struct p_rope p =
            rope_params(modes[i / 2], modes[i / 2] == 24 ? 40 : 20, 4096, 0.25f, 1.0f, 1.0f, 32.0f, 1.0f, i % 2);
        rope_cases(mixed_types("*,I32,*"), modes[i / 2] & 8 ? "80,2,3,2|12|40" : "80,2,3,2|3|10",
            tagf("mode=%d%s", modes[i / 2], i % 2 ? ",back" : ""), &p, true, 0);
    }
}

// ---------------------------------------------------------------------------------------- convolutions
static void fill_short_numbers(struct rng * r, const struct op_case * c, int k, struct arr * a) { // of 8 bits
    (void) r, (void) c, (void) k;
    for (int64_t i = 0; i < arr_n(a); ++i) { a->d[i] = round_bf16(a->d[i]); }
}

TEST(mixed_conv) {
    struct p_conv p = conv_params(2, 1, 1, 2, 1, 1);
    struct p_conv_3d q = conv_3d_params(2, 1, 1, 1, false);
    for (int k = 0; k < 3; ++k) {
        const char * to = op_types[k].name;
        struct op_test t = conv_test(NULL, NULL, NULL, &p, build_im2col, ref_im2col, 1e-7);
        p.type = q.type = op_types[k].type;
        mixed_run(tagf("*,*>%s", to), "3,3,3,2|20,15,3,2", "im2col", t);
        t = conv_test(NULL, NULL, NULL, &q, build_im2col_3d, ref_im2col_3d, 1e-7);
        mixed_run(tagf("*,*>%s", to), "1,2,3,4|5,4,3,6", "im2col_3d", t);
        // the type of the result is that of the image; its last place tells more where nothing of an F32 kernel is
        // rounded off
        t = conv_test(NULL, NULL, NULL, &p, build_conv_2d_direct, ref_conv_2d, 5e-4);
        t.in[0].fill = fill_short_numbers;
        mixed_run(tagf("*,%s>%s", to, to), "3,2,5,3|17,9,5,2 3,3,33,70|9,8,33,1 1,1,24,40|18,17,24,1", "conv_2d", t);
        t.build = build_conv_2d_exact, t.max_nmse = 1e-7, t.in[0].fill = NULL;
        mixed_run(tagf("*,%s>%s", to, to), "3,3,20,33|9,8,20,2", "conv_2d-exact", t);
        t = conv_test(NULL, NULL, NULL, &p, build_conv_2d_dw_direct, ref_conv_2d_dw, 1e-7);
        mixed_run(tagf("*,%s>%s", to, to), "2,3,1,5|9,7,5,3 3,3,1,33|16,8,33,1", "conv_2d_dw", t);
        t.build = build_conv_2d_dw_channels;
        mixed_run(tagf("*,%s>%s", to, to), "2,3,1,5|9,7,5,3 3,3,1,33|16,8,33,1", "conv_2d_dw-channels", t);
    }
    const int64_t ne[4] = { 11, 9, 3, 2 };
    memcpy(p.ne, ne, sizeof ne);
    struct op_test t = conv_test(NULL, NULL, NULL, &p, build_im2col_back, ref_im2col_back, 1e-7);
    mixed_run("*,*>F32", "18,6,11,2|2,3,3,1", "im2col_back", t);
    t = conv_test(NULL, NULL, NULL, &p, build_conv_transpose_1d, ref_conv_transpose_1d, 1e-7);
    mixed_run("*,*>F32", "3,9,7|13,7 2,32,5|97,5", "conv_transpose_1d", t);
    t = conv_test(NULL, NULL, NULL, &p, build_conv_transpose_2d, ref_conv_transpose_2d, 5e-4);
    mixed_run("*,*>F32", "2,3,4,3|5,4,3,3 3,3,7,40|9,7,40", "conv_transpose_2d", t);
    static const struct p_pool pools[] = { { 0, 3, 2, 2, 1, 1, 0, 0, 0 }, { 1, 3, 2, 2, 1, 1, 0, 0, 0 } };
    for (int i = 0; i < 2; ++i) {
        t = conv_test(NULL, NULL, NULL, &pools[i], build_pool_2d_back, ref_pool_2d_back, 1e-7);
        t.in[1].fill = fill_all_distinct;
        mixed_run("*,*>F32", "6,6,2,3|11,7,2,3", i == 0 ? "pool_2d_back-max" : "pool_2d_back-avg", t);
    }
}

// ---------------------------------------------------------------------------------------- recurrences
TEST(mixed_recurrent) { // states are F32
    struct op_test t;
    memset(&t, 0, sizeof t);
    t.n_in = 2, t.build = build_ssm_conv, t.ref = ref_ssm_conv, t.max_nmse = 1e-7;
    mixed_run("*,*>F32", "7,128,2|4,128 13,33,2|9,33 60,5|3,5", "ssm_conv", t);
    t = ssm_scan_test();
    mixed_run("F32,*,*,*,*,*,I32>F32",
        "16,1,4,2|1,4,5,2|4,5,2|16,4|16,1,5,2|16,1,5,2|2 128,4,2,2|4,2,3,1|2,3,1|1,2|128,1,3,1|128,1,3,1|1", "ssm_scan",
        t);
    memset(&t, 0, sizeof t);
    t.n_in = 6, t.build = build_rwkv_wkv6, t.ref = ref_rwkv_wkv6, t.max_nmse = 1e-7, t.in[4].lo = 0.2,
    t.in[4].hi = 0.999;
    mixed_run("*,*,*,*,*,F32>F32",
        "20,3,4|20,3,4|20,3,4|20,3,1|20,3,4|1200,2 64,2,3|64,2,3|64,2,3|64,2,1|64,2,3|8192,1", "rwkv_wkv6", t);
    static const struct p_linear_attn p = { 0.125f };
    memset(&t, 0, sizeof t);
    t.n_in = 5, t.build = build_gated_linear_attn, t.ref = ref_gated_linear_attn, t.p = &p, t.max_nmse = 1e-7;
    t.in[3].lo = 0.2, t.in[3].hi = 0.999;
    mixed_run("*,*,*,*,F32>F32", "20,3,4|20,3,4|20,3,4|20,3,4|1200,2 64,2,3|64,2,3|64,2,3|64,2,3|8192,1",
        "gated_linear_attn", t);
    memset(&t, 0, sizeof t);
    t.n_in = 7, t.build = build_rwkv_wkv7, t.ref = ref_rwkv_wkv7, t.max_nmse = 1e-7, t.in[1].lo = 0.2,
    t.in[1].hi = 0.999;
    t.in[4].fill = t.in[5].fill = fill_unit_rows;
    mixed_run("*,*,*,*,*,*,F32>F32",
        "20,3,4|20,3,4|20,3,4|20,3,4|20,3,4|20,3,4|1200,2 64,2,3|64,2,3|64,2,3|64,2,3|64,2,3|64,2,3|8192,1",
        "rwkv_wkv7", t);
    memset(&t, 0, sizeof t);
    t.n_in = 2, t.build = build_solve_tri, t.ref = ref_solve_tri, t.max_nmse = 1e-7;
    t.in[0].lo = 0.1, t.in[0].hi = 1.0, t.in[0].fill = fill_lower;
    mixed_run("*,*>F32", "7,7,3,2|5,7,3,2 40,40,2|33,40,2", "solve_tri", t);
}

#endif
