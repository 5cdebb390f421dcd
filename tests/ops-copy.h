// Copies, views and data movement
#define PLAIN_TYPES "F32 F16 BF16 F64 I8 I16 I32 I64"
#define CPU_WEIGHTS WEIGHT_TYPES " Q8_1 Q8_K"

static int64_t wrap(int64_t i, int64_t n) { return ((i % n) + n) % n; }

// =====================================================================================================================
// >>views   reshape, view, permute, transpose
// =====================================================================================================================
// same elements, same order
static void ref_reorder_into(const struct op_case * c, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3) {
    arr_new(c->out, ne0, ne1, ne2, ne3);
    memcpy(c->out->d, c->in[0]->d, (size_t) arr_n(c->in[0]) * sizeof(double));
}

static void ref_shape_of_p(const struct op_case * c) {
    const int64_t * ne = (const int64_t *) c->p;
    ref_reorder_into(c, ne[0], ne[1], ne[2], ne[3]);
}
static struct gcuda_tensor * build_reshape(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    const int64_t * ne = (const int64_t *) p;
    return ne[3] > 1   ? gcuda_reshape_4d(ctx, in[0], ne[0], ne[1], ne[2], ne[3])
           : ne[2] > 1 ? gcuda_reshape_3d(ctx, in[0], ne[0], ne[1], ne[2])
           : ne[1] > 1 ? gcuda_reshape_2d(ctx, in[0], ne[0], ne[1])
                       : gcuda_reshape_1d(ctx, in[0], ne[0]);
}
static struct gcuda_tensor * build_reshape_like(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    (void) p;
    return gcuda_reshape(ctx, in[0], in[1]);
}
static void ref_reshape_like(const struct op_case * c) {
    const int64_t * ne = c->in[1]->ne;
    ref_reorder_into(c, ne[0], ne[1], ne[2], ne[3]);
}

TEST(reshape) { // >>op:reshape
    static const int64_t to[][4] = { { 96, 1, 1, 1 }, { 32, 3, 1, 1 }, { 32, 1, 3, 1 }, { 32, 1, 1, 3 } };
    for (int i = 0; i < 4; ++i) {
        const struct op_test t = { .types = PLAIN_TYPES " Q4_0 Q8_0",
            .shapes = "32,3 96",
            .n_in = 1,
            .build = build_reshape,
            .ref = ref_shape_of_p,
            .p = to[i],
            .tag = tagf("to=%d", i),
            .keep_blocks = true,
            .aliases = true,
            .in = { { .lo = -100, .hi = 100, .layouts = LAYOUT_OFFSET } } };
        op_test_run(&t);
    }
    const struct op_test like = { .types = "F32,I32 F16,F32",
        .shapes = "6,4|3,2,4 0,4|2,0",
        .n_in = 2,
        .build = build_reshape_like,
        .ref = ref_reshape_like,
        .tag = "like",
        .aliases = true,
        .in = { { .layouts = LAYOUT_OFFSET }, { .layouts = LAYOUT_TRANSPOSED } } };
    op_test_run(&like);
}

struct view_p {
    int dims;
    int64_t ne[4], nb[4], offset;
}; // nb and offset in elements
static struct gcuda_tensor * build_view(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    const struct view_p * v = (const struct view_p *) p;
    const size_t s = op_type_of(in[0]->type)->size, o = (size_t) v->offset * s;
    const size_t nb1 = (size_t) v->nb[1] * s, nb2 = (size_t) v->nb[2] * s, nb3 = (size_t) v->nb[3] * s;
    if (v->dims == 1) { return gcuda_view_1d(ctx, in[0], v->ne[0], o); }
    if (v->dims == 2) { return gcuda_view_2d(ctx, in[0], v->ne[0], v->ne[1], nb1, o); }
    if (v->dims == 3) { return gcuda_view_3d(ctx, in[0], v->ne[0], v->ne[1], v->ne[2], nb1, nb2, o); }
    return gcuda_view_4d(ctx, in[0], v->ne[0], v->ne[1], v->ne[2], v->ne[3], nb1, nb2, nb3, o);
}
static void ref_view(const struct op_case * c) { // of a packed source
    const struct view_p * v = (const struct view_p *) c->p;
    arr_new(c->out, v->ne[0], v->ne[1], v->ne[2], v->ne[3]);
    FOR_ARR(c->out) {
        AT(c->out, i0, i1, i2, i3) = c->in[0]->d[v->offset + i0 + i1 * v->nb[1] + i2 * v->nb[2] + i3 * v->nb[3]];
    }
}

TEST(view) { // >>op:view
    static const struct view_p views[] = {
        { 1, { 7, 1, 1, 1 }, { 1, 0, 0, 0 }, 5 },
        { 1, { 0, 1, 1, 1 }, { 1, 0, 0, 0 }, 3 },
        { 2, { 5, 4, 1, 1 }, { 1, 11, 0, 0 }, 3 },
        { 2, { 3, 4, 1, 1 }, { 1, 0, 0, 0 }, 2 }, // stride 0: every row the same
        { 3, { 4, 3, 2, 1 }, { 1, 12, 48, 0 }, 1 },
        { 4, { 2, 3, 2, 2 }, { 1, 60, 12, 24 }, 6 },
    };
    for (size_t i = 0; i < sizeof views / sizeof views[0]; ++i) {
        const struct op_test t = { .types = PLAIN_TYPES,
            .shapes = "12,20",
            .n_in = 1,
            .build = build_view,
            .ref = ref_view,
            .p = &views[i],
            .tag = tagf("view=%d", (int) i),
            .aliases = true,
            .in = { { .lo = -100, .hi = 100, .layouts = LAYOUT_OFFSET } } };
        op_test_run(&t);
    }
}

static void ref_permute(const struct op_case * c) { // dimension k of the source goes to axis[k]
    const int * axis = (const int *) c->p;
    int64_t ne[4];
    for (int k = 0; k < 4; ++k) { ne[axis[k]] = c->in[0]->ne[k]; }
    arr_new(c->out, ne[0], ne[1], ne[2], ne[3]);
    FOR_ARR(c->in[0]) {
        const int64_t i[4] = { i0, i1, i2, i3 };
        int64_t o[4];
        for (int k = 0; k < 4; ++k) { o[axis[k]] = i[k]; }
        AT(c->out, o[0], o[1], o[2], o[3]) = AT(c->in[0], i0, i1, i2, i3);
    }
}
static struct gcuda_tensor * build_permute(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    const int * axis = (const int *) p;
    return gcuda_permute(ctx, in[0], axis[0], axis[1], axis[2], axis[3]);
}
static struct gcuda_tensor * build_permute_cont(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    return gcuda_cont(ctx, build_permute(ctx, in, p));
}
static struct gcuda_tensor * build_transpose(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    (void) p;
    return gcuda_transpose(ctx, in[0]);
}

// Views of rows of blocks: some rows, part of each, and both in another order.
static void ref_view_blocks(const struct op_case * c) {
    const struct arr * a = c->in[0];
    arr_new(c->out, 256, a->ne[2], a->ne[1] - 1, 1);
    FOR_ARR(c->out) { AT(c->out, i0, i1, i2, i3) = AT(a, i0 + 256, i2 + 1, i1, 0); }
}
static struct gcuda_tensor * build_view_blocks(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    const size_t * nb = in[0]->nb;
    (void) p;
    return gcuda_permute(ctx,
        gcuda_view_3d(
            ctx, in[0], 256, in[0]->ne[1] - 1, in[0]->ne[2], nb[1], nb[2], nb[1] + row_bytes(in[0]->type, 256)),
        0, 2, 1, 3);
}
TEST(view_blocks) {
    struct op_test t = { .types = CPU_WEIGHTS,
        .shapes = "768,4,3 512,2,1",
        .n_in = 1,
        .build = build_view_blocks,
        .ref = ref_view_blocks,
        .keep_blocks = true,
        .aliases = true,
        .in = { { .layouts = LAYOUT_GAPS } } };
    op_test_run(&t);
    static const int64_t rows[] = { 256, 3, 2, 1 };
    t.build = build_reshape, t.ref = ref_shape_of_p, t.p = rows, t.shapes = "512,3 768,2", t.tag = "reshape";
    t.in[0].layouts = LAYOUT_OFFSET;
    op_test_run(&t);
}

TEST(permute) { // >>op:permute, and cont of the result: all 24 orders
    for (int a = 0; a < 256; ++a) {
        const int axis[4] = { a & 3, a >> 2 & 3, a >> 4 & 3, a >> 6 };
        if ((1 << axis[0] | 1 << axis[1] | 1 << axis[2] | 1 << axis[3]) != 15) { continue; }
        struct op_test t = { .types = "F32 F16 I8",
            .shapes = "5,4,3,2 5,0,3",
            .n_in = 1,
            .build = build_permute,
            .ref = ref_permute,
            .p = axis,
            .tag = tagf("%d%d%d%d", axis[0], axis[1], axis[2], axis[3]),
            .aliases = true,
            .in = { { .lo = -100, .hi = 100, .layouts = LAYOUT_GAPS } } };
        op_test_run(&t);
        char name[32];
        snprintf(name, sizeof name, "permute+cont");
        t.name = name, t.build = build_permute_cont, t.aliases = false, t.types = PLAIN_TYPES;
        op_test_run(&t);
    }
}

TEST(transpose) { // >>op:transpose
    static const int axis[4] = { 1, 0, 2, 3 };
    const struct op_test t = { .types = "F32 BF16 I64",
        .shapes = "5,4,3,2 1,7 0,3",
        .n_in = 1,
        .build = build_transpose,
        .ref = ref_permute,
        .p = axis,
        .aliases = true,
        .in = { { .lo = -100, .hi = 100, .layouts = LAYOUT_ANY } } };
    op_test_run(&t);
}

// =====================================================================================================================
// >>copies   dup, cont, cpy, cast
// =====================================================================================================================
static void ref_same(const struct op_case * c) { arr_copy(c->out, c->in[0]); }
static struct gcuda_tensor * build_dup(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    (void) p;
    return gcuda_dup(ctx, in[0]);
}
static struct gcuda_tensor * build_dup_inplace(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    (void) p;
    return gcuda_dup_inplace(ctx, in[0]);
}
static struct gcuda_tensor * build_cont(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    (void) p;
    return gcuda_cont(ctx, in[0]);
}
static struct gcuda_tensor * build_cont_to(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    const int64_t * ne = (const int64_t *) p;
    return ne[3] > 1   ? gcuda_cont_4d(ctx, in[0], ne[0], ne[1], ne[2], ne[3])
           : ne[2] > 1 ? gcuda_cont_3d(ctx, in[0], ne[0], ne[1], ne[2])
           : ne[1] > 1 ? gcuda_cont_2d(ctx, in[0], ne[0], ne[1])
                       : gcuda_cont_1d(ctx, in[0], ne[0]);
}

TEST(dup) { // >>op:dup
    struct op_test t = { .types = PLAIN_TYPES,
        .shapes = "1 7 257,3 5,4,3,2 0,3 3,0,2",
        .n_in = 1,
        .build = build_dup,
        .inplace = build_dup_inplace,
        .ref = ref_same,
        .in = { { .lo = -100, .hi = 100, .layouts = LAYOUT_ANY } } };
    op_test_run(&t);
    t.types = CPU_WEIGHTS, t.shapes = "256 512,3,2", t.in[0].layouts = LAYOUT_ROWS, t.in[0].lo = t.in[0].hi = 0,
    t.keep_blocks = true;
    op_test_run(&t);
}

TEST(cont) { // >>op:cont
    struct op_test t = { .types = PLAIN_TYPES,
        .shapes = "1 255,3 256,4,3 5,4,3,2 2,0",
        .n_in = 1,
        .build = build_cont,
        .ref = ref_same,
        .in = { { .lo = -100, .hi = 100, .layouts = LAYOUT_ANY } } };
    op_test_run(&t);
    t.types = CPU_WEIGHTS, t.shapes = "256,3,2", t.in[0].layouts = LAYOUT_ROWS, t.in[0].lo = t.in[0].hi = 0,
    t.keep_blocks = true;
    op_test_run(&t);
    static const int64_t to[][4] = { { 24, 1, 1, 1 }, { 2, 12, 1, 1 }, { 3, 2, 4, 1 }, { 1, 4, 3, 2 } };
    for (int i = 0; i < 4; ++i) {
        const struct op_test r = { .types = PLAIN_TYPES,
            .shapes = "4,3,2",
            .n_in = 1,
            .build = build_cont_to,
            .ref = ref_shape_of_p,
            .p = to[i],
            .tag = tagf("to=%d", i),
            .in = { { .lo = -100, .hi = 100, .layouts = LAYOUT_ANY } } };
        op_test_run(&r);
    }
}

static void ref_cpy(const struct op_case * c) { // k-th element to k-th element; the harness rounds
    const int64_t * ne = c->in[1]->ne;
    ref_reorder_into(c, ne[0], ne[1], ne[2], ne[3]);
}
static struct gcuda_tensor * build_cpy(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    (void) p;
    return gcuda_cpy(ctx, in[0], in[1]);
}

#define CPY_FLOATS                                                                              \
    "F32,F32>F32 F32,F16>F16 F32,BF16>BF16 F16,F32>F32 F16,F16>F16 F16,BF16>BF16 BF16,F32>F32 " \
    "BF16,F16>F16 "                                                                             \
    "BF16,BF16>BF16 F32,I32>I32 I32,F32>F32 I32,I32>I32"

TEST(cpy) { // >>op:cpy between plain types
    struct op_test t = { .types = CPY_FLOATS " F64,F64>F64 I8,I8>I8 I16,I16>I16 I64,I64>I64",
        .shapes = "1 7|7 257,3 5,4,3,2 6,4|3,8 6,4|2,3,2,2 5,3,2|30 0,2|2,0 0,4|0,4 3,0,2|3,0,2",
        .n_in = 2,
        .build = build_cpy,
        .ref = ref_cpy,
        .aliases = true,
        .in = { { .lo = -120, .hi = 120, .layouts = LAYOUT_ANY }, { .lo = -1, .hi = 1, .layouts = LAYOUT_ANY } } };
    op_test_run(&t);
    t.types = CPY_FLOATS, t.shapes = "256,2,3,4 256,4,3,3 256,4,1,1", t.in[0].lo = -150, t.in[0].hi = 150;
    op_test_run(&t);
}

TEST(cpy_any_plain) { // every other pair of plain types, small numbers
    static const char * const names[] = { "F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64" };
    for (int k = 0; k < 64; ++k) {
        char types[32];
        if (k / 8 == k % 8 || (k / 8 < 3 && k % 8 < 3)) { continue; }
        snprintf(types, sizeof types, "%s,%s>%s", names[k / 8], names[k % 8], names[k % 8]);
        const struct op_test t = { .types = types,
            .shapes = "1 257,3 6,4|2,3,2,2",
            .n_in = 2,
            .build = build_cpy,
            .ref = ref_cpy,
            .aliases = true,
            .in = { { .lo = -120, .hi = 120, .layouts = LAYOUT_ROWS | LAYOUT_TRANSPOSED },
                { .lo = -1, .hi = 1, .layouts = LAYOUT_TRANSPOSED } } };
        op_test_run(&t);
        const struct op_test wide = { .types = types,
            .shapes = "8228 516,5,3 12,6|8,9",
            .n_in = 2,
            .build = build_cpy,
            .ref = ref_cpy,
            .aliases = true,
            .tag = "wide",
            .in = { { .lo = -120, .hi = 120, .layouts = LAYOUT_ROWS | LAYOUT_OFFSET },
                { .lo = -1, .hi = 1, .layouts = LAYOUT_ROWS | LAYOUT_OFFSET } } };
        op_test_run(&wide);
    }
}

// beyond every integer type
static void fill_extremes(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    static const double v[] = { 127, 127.9, 128, -128.9, -129, 32767.5, 32768, -32769, 2147483647, 2147483520,
        2147483648.0, -2147483648.0, -2147483904.0, 9.3e18, -9.3e18, 9223371487098961920.0, 1e30, -1e30, HUGE_VAL,
        -HUGE_VAL, (double) NAN, 0.99, -0.99 };
    (void) r, (void) c, (void) k;
    for (int64_t i = 0; i < arr_n(a); ++i) { a->d[i] = v[(size_t) i % (sizeof v / sizeof v[0])]; }
}
static void ref_cpy_saturating(const struct op_case * c) { // the harness truncates what is within
    const enum gcuda_type type = c->types[1];
    const int bits = type == GCUDA_TYPE_I8 ? 7 : type == GCUDA_TYPE_I16 ? 15 : type == GCUDA_TYPE_I32 ? 31 : 63;
    const double top = ldexp(1.0, bits);
    ref_cpy(c);
    for (int64_t i = 0; i < arr_n(c->out); ++i) {
        double * x = &c->out->d[i];
        *x = isnan(*x) ? 0.0 : *x < -top ? -top : *x >= top ? (bits == 63 ? REF_ANY : top - 1.0) : *x;
        if (bits == 63 && fabs(*x) > 9e18) { *x = REF_ANY; } // more digits than this harness carries
    }
}
TEST(cpy_saturates) { // floats to integers: towards zero, to the nearest end, NaN to 0
    const struct op_test t = { .types = "F32,I32>I32 F32,I8>I8 F32,I16>I16 F32,I64>I64 F64,I32>I32 F16,I32>I32 "
                                        "BF16,I32>I32 F16,I8>I8 F16,I16>I16 BF16,I64>I64 F64,I64>I64 F64,I8>I8",
        .shapes = "69 23,3 92 24,6",
        .n_in = 2,
        .build = build_cpy,
        .ref = ref_cpy_saturating,
        .aliases = true,
        .in = {
            { .fill = fill_extremes, .layouts = LAYOUT_TRANSPOSED }, { .lo = -1, .hi = 1, .layouts = LAYOUT_GAPS } } };
    op_test_run(&t);
}

static double cpy_bound(enum gcuda_type type, double n) {
    switch (type) {
        case GCUDA_TYPE_Q8_0: return 0.0009765625 / n;
        case GCUDA_TYPE_Q5_0:
        case GCUDA_TYPE_Q5_1: return 0.015625 / n;
        case GCUDA_TYPE_Q4_0:
        case GCUDA_TYPE_Q4_1: return 0.0625 / n;
        case GCUDA_TYPE_IQ4_NL: return 0.25 / n;
        default: return 0.0; // the reference comes from the library's own row function
    }
}

TEST(cpy_quantize) { // F32, F16, BF16 to the formats of appendix A: results within one step of the tests' own quantizer
    static const enum gcuda_type to[] = { GCUDA_TYPE_Q4_0, GCUDA_TYPE_Q4_1, GCUDA_TYPE_Q5_0, GCUDA_TYPE_Q5_1,
        GCUDA_TYPE_Q8_0, GCUDA_TYPE_IQ4_NL };
    for (size_t i = 0; i < sizeof to / sizeof to[0]; ++i) {
        char types[96];
        const char * name = op_type_of(to[i])->name;
        snprintf(types, sizeof types, "F32,%s>%s F16,%s>%s BF16,%s>%s", name, name, name, name, name, name);
        struct op_test t = { .types = types,
            .shapes = "32 64,3 96,2,3,2 64,4,3|128,2,3",
            .n_in = 2,
            .build = build_cpy,
            .ref = ref_cpy,
            .aliases = true,
            .no_max_error = true,
            .in = { { .lo = -3, .hi = 3, .layouts = LAYOUT_ROWS } } };
        t.max_nmse = cpy_bound(to[i], 256.0);
        op_test_run(&t);
        snprintf(types, sizeof types, "F32,%s>%s", name, name);
        t.types = types, t.shapes = "256,4,4,4 256,2,3,4", t.in[0].lo = -150, t.in[0].hi = 150,
        t.in[1].layouts = LAYOUT_ROWS;
        t.max_nmse = cpy_bound(to[i], 256.0 * 24);
        op_test_run(&t);
    }
    const struct op_test own = { .types = "F32,MXFP4>MXFP4 F32,Q2_K>Q2_K F32,Q3_K>Q3_K F32,Q4_K>Q4_K F32,Q5_K>Q5_K "
                                          "F32,Q6_K>Q6_K "
                                          "F32,IQ4_XS>IQ4_XS F32,Q8_1>Q8_1 F32,Q8_K>Q8_K",
        .shapes = "256 512,3",
        .n_in = 2,
        .build = build_cpy,
        .ref = ref_cpy,
        .aliases = true,
        .tag = "own",
        .no_max_error = true,
        .in = { { .lo = -3, .hi = 3, .layouts = LAYOUT_GAPS } } };
    op_test_run(&own);
}

// Values at a quantizer's decisions: block i of 32 numbers.
static void fill_block(struct rng * r, int i, float * x) {
    static const float middle[15] = { -115.5f, -93.5f, -74.0f, -57.0f, -42.0f, -28.5f, -16.0f, -4.5f, 7.0f, 19.0f,
        31.5f, 45.5f, 61.0f, 79.0f, 101.0f };
    for (int j = 0; j < 32; ++j) {
        const float v = (float) rng_between(r, -1.0, 1.0), sign = j % 2 == i / 10 % 2 ? 1.0f : -1.0f;
        switch (i % 10) {
            case 0: x[j] = v; break;
            case 1: x[j] = j % 11 == 3 ? 1000.0f * v : 0.01f * v; break; // outliers
            case 2: x[j] = (float) (i - 60); break;
            case 3: x[j] = 0.0f * sign; break;
            case 4: x[j] = v < 0.3f ? 0.0f * sign : v; break;
            case 5: x[j] = v < 0.3f ? 0.0f * sign : -v; break;
            case 6: // halfway between codes and next to it; the scale is a power of two
                x[j] = ldexpf(j == 31   ? -127.0f
                              : j == 30 ? 127.0f
                              : j < 15  ? middle[j]
                                        : nextafterf(middle[j - 15], 999.0f * sign),
                    i / 10 - 6);
                break;
            case 7: x[j] = j % 5 == 2 ? 3.0f * sign : v; break; // both ends as far from zero
            case 8: x[j] = v * (i / 10 % 3 == 0 ? 3e38f : i / 10 % 3 == 1 ? 1e-38f : 1e-15f); break;
            default: x[j] = j == i / 10 % 4 ? i / 10 % 3 == 0 ? HUGE_VALF : NAN : v; break;
        }
    }
}

// Values at the decisions of a quantizer of 256 and of its sub-blocks. Every eighth block has NaN or infinity.
static void fill_k_block(struct rng * r, int i, float * x) {
    const int round = i / 8;
    for (int j = 0; j < 256; ++j) {
        const float v = (float) rng_between(r, -1.0, 1.0);
        switch (i % 8) {
            case 0: // each 32 another way
            case 1: // all one way
                if (j % 32 == 0) {
                    fill_block(r, 10 * (round % 12 + j / 32) + (i % 8 ? round : round + j / 32) % 9, x + j);
                }
                break;
            case 2: x[j] = v; break;
            case 3: x[j] = ldexpf(v, 2 * (j / 16) - round % 32); break; // sub-blocks whose scale becomes 0
            case 4: x[j] = floorf(v * 8.0f) / 8.0f * (round % 2 ? 1.0f : 3.0f); break; // ties
            case 5: x[j] = v * powf(10.0f, (float) (4 * (round % 20) - 38)); break;
            case 6: x[j] = (round % 2 ? -1.0f : 1.0f) - (round % 4 < 2 ? 0.0f : 1e-6f * v); break;
            default:
                x[j] = j == 13 * round % 256 ? round % 3 == 0 ? HUGE_VALF : round % 3 == 1 ? -HUGE_VALF : NAN : v;
                break;
        }
    }
}

// Whether `size` bytes of a block are those that the host makes of it; with numbers that no rule is for, it need not be
// them.
typedef bool block_is_same(const uint8_t * want, const uint8_t * got, size_t size, enum gcuda_type type, int i);
static bool is_same_32(const uint8_t * want, const uint8_t * got, size_t size, enum gcuda_type type, int i) {
    const unsigned scale = want[0] | (unsigned) want[1] << 8;
    const bool is_nan = type != GCUDA_TYPE_MXFP4 && (scale & 0x7fffu) > 0x7c00u; // whichever NaN
    const size_t skip = i % 10 == 9 || is_nan ? 4 : 0;
    return memcmp(want + skip, got + skip, size - skip) == 0;
}
static bool is_same_256(const uint8_t * want, const uint8_t * got, size_t size, enum gcuda_type type, int i) {
    (void) type;
    return i % 8 == 7 || memcmp(want, got, size) == 0;
}

// `data` are n elements of type `from`, x the same as floats.
static void check_quantizer(
    enum gcuda_type from, enum gcuda_type to, const void * data, const float * x, int64_t n, block_is_same * is_same) {
    struct gcuda_context * ctx = op_context();
    struct gcuda_cgraph * g = ctx ? gcuda_new_graph(ctx) : NULL;
    struct gcuda_tensor * a = gcuda_new_tensor_1d(ctx, from, n);
    struct gcuda_tensor * y = gcuda_cast(ctx, a, to);
    gcuda_backend_buffer_t buf = op_backends_ready() ? op_place(ctx) : NULL;
    const size_t size = gcuda_type_size(to), n_bytes = gcuda_row_size(to, n);
    uint8_t *want = (uint8_t *) malloc(n_bytes), *got = (uint8_t *) malloc(n_bytes);
    CHECK(buf != NULL && g != NULL && want != NULL && got != NULL);
    if (buf != NULL && g != NULL && want != NULL && got != NULL && CHECK_OK(gcuda_build_forward_expand(g, y)) &&
        CHECK_OK(gcuda_backend_tensor_set(a, data, 0, gcuda_nbytes(a))) &&
        CHECK_OK(gcuda_backend_graph_compute(op_backends[0], g)) &&
        CHECK_OK(gcuda_backend_tensor_get(y, got, 0, n_bytes))) {
        gcuda_get_type_traits(to)->from_float_ref(x, want, n);
        for (int i = 0; i < (int) (n_bytes / size); ++i) {
            CHECK_MSG(is_same(want + size * (size_t) i, got + size * (size_t) i, size, to, i),
                "%s of %s: block %d differs", gcuda_type_name(to), gcuda_type_name(from), i);
        }
    }
    free(want);
    free(got);
    gcuda_backend_buffer_free(buf);
    gcuda_free(ctx);
}

// The bytes are those of the host's quantizer, by whole rows (F32) and by single blocks (F64).
TEST(cpy_quantizes_like_the_host) {
    enum { N = 32 * 130 };
    static const enum gcuda_type to[] = { GCUDA_TYPE_Q4_0, GCUDA_TYPE_Q4_1, GCUDA_TYPE_Q5_0, GCUDA_TYPE_Q5_1,
        GCUDA_TYPE_Q8_0, GCUDA_TYPE_Q8_1, GCUDA_TYPE_IQ4_NL, GCUDA_TYPE_MXFP4 };
    static float x[N];
    static double wide[N];
    struct rng r = rng_for("blocks");
    for (int i = 0; i < N / 32; ++i) { fill_block(&r, i, x + 32 * i); }
    for (int i = 0; i < N; ++i) { wide[i] = (double) x[i]; }
    for (size_t k = 0; k < sizeof to / sizeof *to; ++k) {
        check_quantizer(GCUDA_TYPE_F32, to[k], x, x, N, is_same_32);
        check_quantizer(GCUDA_TYPE_F64, to[k], wide, x, N, is_same_32);
    }
}

// Blocks of 256, read by 16 bytes (F32) and by elements (F64); 163 is not a multiple of the blocks of a warp.
TEST(cpy_quantizes_k_like_the_host) {
    enum { N = 256 * 163 };
    static const enum gcuda_type to[] = { GCUDA_TYPE_Q2_K, GCUDA_TYPE_Q3_K, GCUDA_TYPE_Q4_K, GCUDA_TYPE_Q5_K,
        GCUDA_TYPE_Q6_K, GCUDA_TYPE_IQ4_XS };
    static float x[N];
    static double wide[N];
    struct rng r = rng_for("blocks");
    for (int i = 0; i < N / 256; ++i) { fill_k_block(&r, i, x + 256 * i); }
    for (int i = 0; i < N; ++i) { wide[i] = (double) x[i]; }
    for (size_t k = 0; k < sizeof to / sizeof *to; ++k) {
        check_quantizer(GCUDA_TYPE_F32, to[k], x, x, N, is_same_256);
        check_quantizer(GCUDA_TYPE_F64, to[k], wide, x, N, is_same_256);
    }
}

// Enough blocks that a warp gets several.
TEST(cpy_quantizes_k_in_rounds) {
    enum { N_BLOCKS = 33795 };
    float * x = (float *) malloc(N_BLOCKS * 256 * sizeof *x);
    struct rng r = rng_for("blocks");
    CHECK(x != NULL);
    for (int i = 0; i < N_BLOCKS && x != NULL; ++i) {
        for (int j = 0; j < 256; ++j) { x[256 * i + j] = (float) rng_between(&r, -1.0, 1.0); }
    }
    if (x != NULL) { check_quantizer(GCUDA_TYPE_F32, GCUDA_TYPE_Q3_K, x, x, (int64_t) N_BLOCKS * 256, is_same_256); }
    free(x);
}

TEST(cpy_dequantize) {
    const struct op_test t = { .types = op_types_with(CPU_WEIGHTS, ",F32>F32"),
        .shapes = "256 512,3,2 256,4|128,8",
        .n_in = 2,
        .build = build_cpy,
        .ref = ref_cpy,
        .aliases = true,
        .in = { { .layouts = LAYOUT_ROWS }, { .layouts = LAYOUT_OFFSET } } };
    op_test_run(&t);
}

TEST(cpy_same_quantized) { // bytes move, nothing is decoded
    for (size_t i = 0; i < OP_N_TYPES; ++i) {
        if (op_types[i].blck == 1) { continue; }
        char types[48];
        snprintf(types, sizeof types, "%s,%s>%s", op_types[i].name, op_types[i].name, op_types[i].name);
        const struct op_test t = { .types = types,
            .shapes = "256 768,2,3 512,2|256,4",
            .n_in = 2,
            .build = build_cpy,
            .ref = ref_cpy,
            .aliases = true,
            .keep_blocks = true,
            .in = { { .layouts = LAYOUT_ROWS }, { .layouts = LAYOUT_ROWS } } };
        op_test_run(&t);
    }
}

// To blocks of another type: those that are made of the decoded ones. In types from appendix A one element may be a
// step off.
static void requantize_cases(
    const char * from, const char * to, const char * shapes, unsigned x_layouts, unsigned y_layouts, const char * tag) {
    char types[48];
    snprintf(types, sizeof types, "%s,%s>%s", from, to, to);
    struct op_test t = { .types = types,
        .shapes = shapes,
        .tag = tag,
        .n_in = 2,
        .build = build_cpy,
        .ref = ref_cpy,
        .aliases = true,
        .no_max_error = true,
        .in = { { .layouts = x_layouts }, { .layouts = y_layouts } } };
    for (size_t i = 0; i < OP_N_TYPES; ++i) {
        if (strcmp(op_types[i].name, to) == 0) { t.max_nmse = cpy_bound(op_types[i].type, 256.0); }
    }
    op_test_run(&t);
}
TEST(cpy_requantize) {
    static const char * const pairs[][2] = { { "Q4_0", "Q8_0" }, { "Q8_0", "Q4_0" }, { "Q6_K", "Q4_K" },
        { "IQ2_XXS", "Q8_0" }, { "Q4_K", "IQ4_NL" }, { "MXFP4", "Q5_1" }, { "Q5_1", "MXFP4" }, { "Q8_1", "Q6_K" },
        { "Q8_K", "Q8_1" }, { "IQ1_M", "IQ4_XS" } };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; ++i) {
        requantize_cases(pairs[i][0], pairs[i][1], "256 512,3,2 256,4|512,2 1280,2", LAYOUT_ROWS, LAYOUT_ROWS, NULL);
    }
    // rows of shorter blocks need not be multiples of the other side's blocks, if all rows are packed
    requantize_cases("Q4_0", "Q6_K", "64,12|256,3 32,8,2|512", LAYOUT_OFFSET, LAYOUT_ROWS, "short");
    requantize_cases("Q3_K", "Q8_0", "256,3|64,12 512|32,8,2", LAYOUT_ROWS, LAYOUT_OFFSET, "short");
    requantize_cases("Q4_0", "Q8_0", "32 96,2,3 96,4|64,6", LAYOUT_ROWS, LAYOUT_ROWS, "short");
}
TEST(cpy_requantize_all) { // every type of blocks to every one that has a quantizer
    for (size_t i = 0; i < OP_N_TYPES * OP_N_TYPES && test_full(); ++i) {
        const struct op_type *x = &op_types[i / OP_N_TYPES], *y = &op_types[i % OP_N_TYPES];
        if (x != y && x->blck > 1 && y->blck > 1 && gcuda_get_type_traits(y->type)->from_float_ref != NULL) {
            requantize_cases(x->name, y->name, "256,3", 0, 0, NULL);
        }
    }
}

// what survives a float conversion
static void fill_special(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    static const double v[] = { HUGE_VAL, -HUGE_VAL, 65504, 65519.99, 65520, -70000, 1e-8, -3e-8, 5.9604645e-8, 6.1e-5,
        0, 3.3e38, 1e-40, 2049, 2051, 1.00390625, 1.01171875 };
    (void) r, (void) c, (void) k;
    for (int64_t i = 0; i < arr_n(a); ++i) { a->d[i] = v[(size_t) i % (sizeof v / sizeof v[0])]; }
    a->d[arr_n(a) - 1] = (double) NAN;
}
TEST(cpy_special_values) { // NaN and infinities survive; above 65504 F16 is infinite
    const struct op_test t = { .types = "F32,F16>F16 F32,BF16>BF16 F16,F32>F32 BF16,F16>F16 F16,BF16>BF16",
        .shapes = "52 17,2",
        .n_in = 2,
        .build = build_cpy,
        .ref = ref_cpy,
        .aliases = true,
        .expect_nan = true,
        .in = { { .fill = fill_special, .layouts = LAYOUT_TRANSPOSED } } };
    op_test_run(&t);
}

// just next to the midpoint of two neighbours of F16 or BF16: rounding to float first gives the midpoint, and then the
// tie goes the wrong way
static void fill_beside_halfway(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    static const double f16[] = { 0x1p0 + 0x1p-11 + 0x1p-40, 0x1p0 + 0x3p-11 - 0x1p-40, 65520.0 - 0x1p-30,
        0x1p-25 + 0x1p-60, 0x3p-25 - 0x1p-60, 0x1p-14 + 0x1p-25 + 0x1p-52, 1e300, 1e-300, 0x1p0 + 0x1p-11,
        0x1p0 + 0x3p-11, 65520.0, HUGE_VAL };
    static const double bf16[] = { 0x1p0 + 0x1p-8 + 0x1p-40, 0x1p0 + 0x3p-8 - 0x1p-40, 0x1.FFp127 - 0x1p80,
        0x1p-134 + 0x1p-170, 0x3p-134 - 0x1p-170, 0x1p-126 + 0x1p-134 + 0x1p-160, 1e300, 1e-300, 0x1p0 + 0x1p-8,
        0x1p0 + 0x3p-8, 0x1.FFp127, HUGE_VAL };
    static const double i32[] = { 0x101p22 + 1, 0x103p22 - 1, 0x101p22, 0x103p22, 2147483647.0, 3, 0, -5 };
    static const double i64[] = { 0x101p44 + 1, 0x103p44 - 1, 0x101p44, 0x103p44, 0x1000001p28 + 1, 0x1000003p28 - 1, 0,
        -7 };
    const enum gcuda_type from = c->types[0];
    const bool is_int = from != GCUDA_TYPE_F64;
    const double * v = from == GCUDA_TYPE_I64 ? i64 : is_int ? i32 : c->types[1] == GCUDA_TYPE_F16 ? f16 : bf16;
    (void) r, (void) k;
    for (int64_t i = 0; i < arr_n(a); ++i) { a->d[i] = (i / 12 % 2 ? -1.0 : 1.0) * v[i % (is_int ? 8 : 12)]; }
}
TEST(cpy_rounds_once) {
    const struct op_test t = { .types = "F64,F16>F16 F64,BF16>BF16 I32,BF16>BF16 I64,BF16>BF16 I64,F32>F32",
        .shapes = "24 257,3 6,4|2,3,2,2",
        .n_in = 2,
        .build = build_cpy,
        .ref = ref_cpy,
        .aliases = true,
        .in = { { .fill = fill_beside_halfway, .layouts = LAYOUT_ROWS | LAYOUT_TRANSPOSED },
            { .lo = -1, .hi = 1, .layouts = LAYOUT_TRANSPOSED } } };
    op_test_run(&t);
}

// integers with more digits than F64 has
TEST(cpy_rounds_long_integers_once) {
    static const int64_t v[8] = { (1ll << 60) + (1ll << 36) + 1, -(1ll << 60) - (1ll << 36) - 1,
        (1ll << 60) + (1ll << 36), (1ll << 60) + 3 * (1ll << 36) - 1, (1ll << 60) + (1ll << 52) + 1, INT64_MAX,
        INT64_MIN, (1ll << 53) + 1 };
    struct gcuda_context * ctx = op_context();
    struct gcuda_cgraph * g = ctx ? gcuda_new_graph(ctx) : NULL;
    struct gcuda_tensor * x = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_I64, 8);
    struct gcuda_tensor *single = gcuda_cast(ctx, x, GCUDA_TYPE_F32), *wide = gcuda_cast(ctx, x, GCUDA_TYPE_F64);
    struct gcuda_tensor * half = gcuda_cast(ctx, x, GCUDA_TYPE_BF16);
    gcuda_backend_buffer_t buf = op_backends_ready() ? op_place(ctx) : NULL;
    CHECK(buf != NULL && g != NULL);
    if (buf != NULL && g != NULL && CHECK_OK(gcuda_build_forward_expand(g, single)) &&
        CHECK_OK(gcuda_build_forward_expand(g, wide)) && CHECK_OK(gcuda_build_forward_expand(g, half)) &&
        CHECK_OK(gcuda_backend_tensor_set(x, v, 0, sizeof v)) &&
        CHECK_OK(gcuda_backend_graph_compute(op_backends[0], g))) {
        float f[8];
        double d[8];
        uint16_t h[8];
        CHECK_OK(gcuda_backend_tensor_get(single, f, 0, sizeof f));
        CHECK_OK(gcuda_backend_tensor_get(wide, d, 0, sizeof d));
        CHECK_OK(gcuda_backend_tensor_get(half, h, 0, sizeof h));
        for (int i = 0; i < 8; ++i) {
            CHECK_MSG(f[i] == (float) v[i] && d[i] == (double) v[i], "%lld gives %.17g and %.17g", (long long) v[i],
                (double) f[i], d[i]);
        }
        CHECK_EQ_I(h[4], 0x5D81); // the tie of a float or a double would be even
    }
    gcuda_backend_buffer_free(buf);
    gcuda_free(ctx);
}

static struct gcuda_tensor * build_cast(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    return gcuda_cast(ctx, in[0], *(const enum gcuda_type *) p);
}
TEST(cast) {
    static const enum gcuda_type to[] = { GCUDA_TYPE_F32, GCUDA_TYPE_F16, GCUDA_TYPE_BF16, GCUDA_TYPE_I32,
        GCUDA_TYPE_Q8_0 };
    static const char * const types[] = { "F32 F16>F32 BF16>F32 I32>F32 Q4_0>F32 Q6_K>F32", "F32>F16 F16 BF16>F16",
        "F32>BF16 F16>BF16 BF16", "F32>I32 I32", "F32>Q8_0 F16>Q8_0 Q5_K>Q8_0" };
    for (int i = 0; i < 5; ++i) {
        const struct op_test t = { .types = types[i],
            .shapes = "256 256,3,2",
            .n_in = 1,
            .build = build_cast,
            .ref = ref_same,
            .p = &to[i],
            .max_nmse = cpy_bound(to[i], 256),
            .in = { { .lo = -50, .hi = 50, .layouts = LAYOUT_ROWS } } };
        op_test_run(&t);
    }
}

// =====================================================================================================================
// >>rows   get_rows, get_rows_back, set_rows
// =====================================================================================================================
static void ref_get_rows(const struct op_case * c) { // an index out of range gives zeros
    const struct arr *a = c->in[0], *b = c->in[1];
    arr_new(c->out, a->ne[0], b->ne[0], b->ne[1], b->ne[2]);
    FOR_ARR(c->out) {
        const double row = AT(b, i1, i2, i3, 0);
        AT(c->out, i0, i1, i2, i3) = row >= 0 && row < (double) a->ne[1] ? AT(a, i0, (int64_t) row, i2, i3) : 0.0;
    }
}
static struct gcuda_tensor * build_get_rows(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    (void) p;
    return gcuda_get_rows(ctx, in[0], in[1]);
}
static void fill_row_index(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    (void) k;
    fill_below(r, a, c->in[0]->ne[1]);
}
static void fill_bad_row_index(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    fill_row_index(r, c, k, a);
    a->d[0] = -1, a->d[arr_n(a) / 2] = (double) c->in[0]->ne[1], a->d[arr_n(a) - 1] = 2147483647.0;
}

TEST(get_rows) { // >>op:get_rows
    struct op_test t = { .types = "F32,I32>F32 F16,I32>F32 BF16,I32>F32 I32,I32>I32",
        .shapes = "1,5|3 256,5|4 257,80|7 31,4,3|5,3 5,4,3,2|6,3,2 8,3|0 0,3|2",
        .n_in = 2,
        .build = build_get_rows,
        .ref = ref_get_rows,
        .in = {
            { .lo = -100, .hi = 100, .layouts = LAYOUT_ROWS }, { .fill = fill_row_index, .layouts = LAYOUT_ROWS } } };
    op_test_run(&t);
    t.types = op_types_with(WEIGHT_TYPES, ",I32>F32"), t.shapes = "256,5|4 512,3,2|5,2", t.in[0].lo = t.in[0].hi = 0;
    op_test_run(&t);
    t.types = "F32,I32>F32 F16,I32>F32 I8,I32>I8", t.shapes = "31,4,3|5,3 257,7|5", t.tag = "any";
    t.in[0].lo = -100, t.in[0].hi = 100, t.in[0].layouts = t.in[1].layouts = LAYOUT_TRANSPOSED | LAYOUT_SHUFFLED;
    op_test_run(&t);
    t.tag = NULL;
    t.types = "F32,I32>F32",
    t.shapes = test_full() ? "1,80000,2|70000,2 76800,5|3 3,5,700,100|2,700,100" : "3,5,70,10|2,70,10 7680,5|3";
    t.in[0].layouts = t.in[1].layouts = 0;
    op_test_run(&t);
}

TEST(get_rows_any) { // integers keep their type
    const struct op_test t = { .types = "F64,I32>F32 I8,I32>I8 I16,I32>I16 I64,I32>I64 Q8_1,I32>F32 Q8_K,I32>F32",
        .shapes = "256,5|4 256,4,3|5,3",
        .n_in = 2,
        .build = build_get_rows,
        .ref = ref_get_rows,
        .in = { { .layouts = LAYOUT_ROWS }, { .fill = fill_row_index, .layouts = LAYOUT_TRANSPOSED } } };
    op_test_run(&t);
}

TEST(get_rows_out_of_range) { // zero rows, an error, and everything else is right
    const struct op_test t = { .types = "F32,I32>F32 F16,I32>F32 I32,I32>I32 Q8_0,I32>F32",
        .shapes = "32,5|9 64,4,3|5,3",
        .n_in = 2,
        .build = build_get_rows,
        .ref = ref_get_rows,
        .status = GCUDA_STATUS_INVALID_DATA,
        .in = { { 0 }, { .fill = fill_bad_row_index } } };
    op_test_run(&t);
}

static void ref_get_rows_back(const struct op_case * c) {
    const struct arr *a = c->in[0], *b = c->in[1];
    arr_new(c->out, c->in[2]->ne[0], c->in[2]->ne[1], 1, 1);
    for (int64_t r = 0; r < b->ne[0]; ++r) {
        if (b->d[r] < 0 || b->d[r] >= (double) c->out->ne[1]) { continue; }
        for (int64_t i = 0; i < a->ne[0]; ++i) { AT(c->out, i, (int64_t) b->d[r], 0, 0) += AT(a, i, r, 0, 0); }
    }
}
static struct gcuda_tensor * build_get_rows_back(
    struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    (void) p;
    return gcuda_get_rows_back(ctx, in[0], in[1], in[2]);
}
static void fill_back_index(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    (void) c, (void) k;
    fill_below(r, a, 4);
}
static void fill_bad_back_index(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    fill_back_index(r, c, k, a);
    a->d[0] = -7, a->d[arr_n(a) - 1] = 1e6;
}

TEST(get_rows_back) { // >>op:get_rows_back; rows repeat, and row 4 is never named
    struct op_test t = { .types = "F32,I32,F32",
        .shapes = "1,5|5|1,5 257,9|9|257,5 8,1|1|8,5 4,0|0|4,5 259,1100|1100|259,7 1100,1030|1030|1100,7 "
                  "1025,1030|1030|1025,5 8,1500|1500|8,9",
        .n_in = 3,
        .build = build_get_rows_back,
        .ref = ref_get_rows_back,
        .max_nmse = 1e-7,
        .in = { { 0 }, { .fill = fill_back_index }, { 0 } } };
    op_test_run(&t);
    t.types = "F16,I32,F32>F32";
    op_test_run(&t);
    t.types = "F32,I32,F32 F16,I32,F32>F32 BF16,I32,F32>F32", t.shapes = "257,9|9|257,5 65,1100|1100|65,7",
    t.tag = "any";
    t.in[0].layouts = LAYOUT_ANY, t.in[1].layouts = LAYOUT_OFFSET;
    op_test_run(&t);
    // fewer indices than rows: other rows are not read; few indices, and enough to be sorted or chained
    t.tag = "fewer", t.in[0].layouts = LAYOUT_ROWS, t.in[1].layouts = 0;
    t.types = "F32,I32,F32 F16,I32,F32>F32", t.shapes = "257,9|5|257,5 8,3|0|8,2 64,90|41|64,9 259,1100|1050|259,7";
    op_test_run(&t);
    t.tag = NULL, t.in[0].layouts = t.in[1].layouts = 0;
    t.types = "F32,I32,F32", t.shapes = "8,6|6|8,5", t.in[1].fill = fill_bad_back_index,
    t.status = GCUDA_STATUS_INVALID_DATA, t.tag = "bad";
    op_test_run(&t);
}

// a destination, b data, c indices. The reference converts row by row: other rows keep their blocks.
static void ref_set_rows(const struct op_case * c) {
    const struct arr *b = c->in[1], *ids = c->in[2];
    struct arr row = { { 0, 0, 0, 0 }, NULL };
    arr_copy(c->out, c->in[0]);
    FOR_ROWS(b) {
        const double to = AT(ids, i1, i2 % ids->ne[1], i3 % ids->ne[2], 0);
        if (to < 0 || to >= (double) c->out->ne[1]) { continue; }
        arr_new(&row, b->ne[0], 1, 1, 1);
        for (int64_t i = 0; i < b->ne[0]; ++i) { row.d[i] = AT(b, i, i1, i2, i3); }
        arr_round(&row, c->types[0]);
        for (int64_t i = 0; i < b->ne[0]; ++i) { AT(c->out, i, (int64_t) to, i2, i3) = row.d[i]; }
    }
    arr_free(&row);
}
static struct gcuda_tensor * build_set_rows(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    (void) p;
    struct gcuda_tensor * y = gcuda_set_rows(ctx, in[0], in[1], in[2]);
    CHECK(y == NULL || (y->src[0] == in[1] && y->src[1] == in[2] && y->src[2] == in[0]));
    return y;
}
static void fill_set_index(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    (void) k;
    fill_permutation(r, a, c->in[0]->ne[1]);
}
static void fill_bad_set_index(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    fill_set_index(r, c, k, a);
    a->d[0] = (double) c->in[0]->ne[1], a->d[arr_n(a) - 1] = -2;
}

TEST(set_rows) { // >>op:set_rows
    struct op_test t = { .types = "F32,F32,I32 F32,F32,I64 F16,F32,I32 F16,F32,I64 BF16,F32,I64",
        .shapes = "1,3|1,2|2 31,7|31,5|5 33,11,2,3|33,4,2,3|4,2,3 32,9,4,6|32,3,4,6|3,2,3 5,4|5,0|0 256,8,2|256,8,2|8 "
                  "3,2000|3,1200|1200 0,4|0,3|3 3,0,2|3,0,2|0",
        .n_in = 3,
        .build = build_set_rows,
        .ref = ref_set_rows,
        .aliases = true,
        .keep_blocks = true,
        .in = { { .layouts = LAYOUT_ROWS }, { .lo = -4, .hi = 4, .layouts = LAYOUT_ROWS },
            { .fill = fill_set_index, .layouts = LAYOUT_ROWS } } };
    op_test_run(&t);
    static const enum gcuda_type to[] = { GCUDA_TYPE_Q4_0, GCUDA_TYPE_Q4_1, GCUDA_TYPE_Q5_0, GCUDA_TYPE_Q5_1,
        GCUDA_TYPE_Q8_0, GCUDA_TYPE_IQ4_NL };
    for (int i = 0; i < 6; ++i) {
        char types[64];
        const char * name = op_type_of(to[i])->name;
        snprintf(types, sizeof types, "%s,F32,I32 %s,F32,I64", name, name);
        t.types = types, t.shapes = "32,7|32,5|5 96,11,2,3|96,4,2,3|4,2 96,12,2|96,9,2|9,2 256,3|256,0|0 "
                                    "1120,4,2|1120,3,2|3,2 1120,12|1120,9|9";
        t.max_nmse = fmin(cpy_bound(to[i], 160.0), 0.0625 / 160.0), t.no_max_error = true;
        op_test_run(&t);
    }
}

static void fill_few(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    (void) c, (void) k;
    fill_below(r, a, 3);
}
TEST(set_rows_repeated_index) { // the last row stays, with any number of threads
    const struct op_test t = { .types = "F32,F32,I32 F16,F32,I64 Q8_0,F32,I64 F64,F16,I32 BF16,BF16,I32",
        .shapes = "32,7|32,20|20 32,7,4|32,9,4|9,2 32,90|32,700|700 32,5,2|32,1100,2|1100,2",
        .n_in = 3,
        .build = build_set_rows,
        .ref = ref_set_rows,
        .aliases = true,
        .keep_blocks = true,
        .max_nmse = 1e-5,
        .in = { { 0 }, { .lo = -4, .hi = 4 }, { .fill = fill_few, .layouts = LAYOUT_GAPS } } };
    op_test_run(&t);
}

TEST(set_rows_own) { // formats whose reference is the library's own row function
    const struct op_test t = { .types = "MXFP4,F32,I32 Q2_K,F32,I32 Q3_K,F32,I32 Q4_K,F32,I32 Q5_K,F32,I32 "
                                        "Q6_K,F16,I64 IQ4_XS,F32,I32 Q8_K,F32,I32 Q8_1,F32,I32",
        .shapes = "256,5|256,3|3 256,12|256,9|9",
        .n_in = 3,
        .build = build_set_rows,
        .ref = ref_set_rows,
        .aliases = true,
        .keep_blocks = true,
        .no_max_error = true,
        .in = {
            { .layouts = LAYOUT_ROWS }, { .lo = -4, .hi = 4, .layouts = LAYOUT_ROWS }, { .fill = fill_set_index } } };
    op_test_run(&t);
}

TEST(set_rows_out_of_range) { // dropped, reported, all other rows written
    const struct op_test t = { .types = "F32,F32,I32 F16,F32,I64 Q8_0,F32,I64",
        .shapes = "32,7|32,5|5 32,7,2|32,3,2|3",
        .n_in = 3,
        .build = build_set_rows,
        .ref = ref_set_rows,
        .aliases = true,
        .keep_blocks = true,
        .max_nmse = 1e-5,
        .status = GCUDA_STATUS_INVALID_DATA,
        .in = { { 0 }, { 0 }, { .fill = fill_bad_set_index } } };
    op_test_run(&t);
}

// =====================================================================================================================
// >>regions   set, acc: b written to, or added to, a region of a with other strides (in elements here)
// =====================================================================================================================
struct region_p {
    int64_t nb1, nb2, nb3, offset;
    bool add;
    int form;
}; // form 1, 2: set_1d, set_2d
static void ref_region(const struct op_case * c) {
    const struct region_p * p = (const struct region_p *) c->p;
    arr_copy(c->out, c->in[0]);
    FOR_ARR(c->in[1]) {
        double * y = &c->out->d[p->offset + i0 + i1 * p->nb1 + i2 * p->nb2 + i3 * p->nb3];
        *y = (p->add ? *y : 0.0) + AT(c->in[1], i0, i1, i2, i3);
    }
}
static struct gcuda_tensor * build_region_as(
    struct gcuda_context * ctx, struct gcuda_tensor ** in, const struct region_p * p, bool inplace) {
    const size_t s = op_type_of(in[0]->type)->size;
    const size_t nb1 = (size_t) p->nb1 * s, nb2 = (size_t) p->nb2 * s, nb3 = (size_t) p->nb3 * s,
                 o = (size_t) p->offset * s;
    if (p->add) { return (inplace ? gcuda_acc_inplace : gcuda_acc)(ctx, in[0], in[1], nb1, nb2, nb3, o); }
    if (p->form == 1) { return (inplace ? gcuda_set_1d_inplace : gcuda_set_1d)(ctx, in[0], in[1], o); }
    if (p->form == 2) { return (inplace ? gcuda_set_2d_inplace : gcuda_set_2d)(ctx, in[0], in[1], nb1, o); }
    return (inplace ? gcuda_set_inplace : gcuda_set)(ctx, in[0], in[1], nb1, nb2, nb3, o);
}
static struct gcuda_tensor * build_region(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    return build_region_as(ctx, in, (const struct region_p *) p, false);
}
static struct gcuda_tensor * build_region_inplace(
    struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    return build_region_as(ctx, in, (const struct region_p *) p, true);
}

static void run_regions(bool add, const char * types) {
    static const struct {
        struct region_p p;
        const char * shapes;
    } all[] = {
        { { 256, 4352, 4352, 256, false, 0 }, "256,17|256,16" }, // all rows but the first
        { { 6, 30, 120, 0, false, 0 }, "12,5,4,3|6,5,4,3" },     // dense, not along the rows of a
        { { 12, 30, 60, 7, false, 0 }, "12,10,4|3,2,2,2" },      // free strides
        { { 10, 40, 120, 11, false, 0 }, "10,4,3|4,2,1" },
        { { 5, 5, 5, 2, false, 0 }, "5,4|3" },
        { { 1, 2, 4, 3, false, 0 }, "9|2" },
        { { 4, 4, 4, 0, false, 0 }, "4,2|0 4,2|4,0 4,2|2,1,0" },
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i) {
        struct region_p p = all[i].p;
        p.add = add;
        const struct op_test t = { .types = types,
            .shapes = all[i].shapes,
            .n_in = 2,
            .build = build_region,
            .inplace = build_region_inplace,
            .ref = ref_region,
            .p = &p,
            .max_nmse = add ? 1e-7 : 0.0,
            .in = {
                { .lo = -90, .hi = 90, .layouts = LAYOUT_OFFSET }, { .lo = -90, .hi = 90, .layouts = LAYOUT_ROWS } } };
        op_test_run(&t);
    }
}

TEST(set) { // >>op:set
    run_regions(false, "F32 I32 F16 BF16 F64 I8 I16 I64");
    static const struct region_p p1 = { 5, 20, 20, 3, false, 1 }, p2 = { 7, 20, 20, 1, false, 2 };
    struct op_test t = { .types = "F32 I32",
        .shapes = "5,4|6 5,4|4",
        .n_in = 2,
        .build = build_region,
        .inplace = build_region_inplace,
        .ref = ref_region,
        .p = &p1,
        .tag = "1d",
        .in = { { .lo = -90, .hi = 90 }, { .lo = -90, .hi = 90 } } };
    op_test_run(&t);
    t.p = &p2, t.shapes = "5,4|3,2", t.tag = "2d";
    op_test_run(&t);
    t.types = "F32 I8", t.shapes = "5,4|3,2 5,4|2,2", t.tag = "any", t.in[1].layouts = LAYOUT_ANY;
    op_test_run(&t);
}

// whole blocks, counted in blocks: nothing is decoded on the way
static void ref_set_blocks(const struct op_case * c) {
    arr_copy(c->out, c->in[0]);
    FOR_ARR(c->in[1]) { AT(c->out, i0 + 256, i1 + 1, i2, i3) = AT(c->in[1], i0, i1, i2, i3); }
}
static struct gcuda_tensor * build_set_blocks(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    const size_t * nb = in[0]->nb;
    (void) p;
    return gcuda_set(ctx, in[0], in[1], nb[1], nb[2], nb[3], nb[1] + row_bytes(in[0]->type, 256));
}
TEST(set_blocks) {
    const struct op_test t = { .types = CPU_WEIGHTS,
        .shapes = "768,4,2|256,2,2 512,3|256,2",
        .n_in = 2,
        .build = build_set_blocks,
        .ref = ref_set_blocks,
        .keep_blocks = true,
        .in = { { 0 }, { .layouts = LAYOUT_GAPS } } };
    op_test_run(&t);
}

TEST(acc) { // >>op:acc
    run_regions(true, "F32 F16 BF16 F16,F32 F32,BF16");
    static const struct region_p p = { 12, 60, 120, 7, true, 0 };
    const struct op_test t = { .types = "F32 F16 F32,BF16",
        .shapes = "12,5,4|3,2,2 12,10,4|4,5,1",
        .n_in = 2,
        .build = build_region,
        .inplace = build_region_inplace,
        .ref = ref_region,
        .p = &p,
        .tag = "any",
        .max_nmse = 1e-7,
        .in = { { .lo = -90, .hi = 90 }, { .lo = -90, .hi = 90, .layouts = LAYOUT_ANY } } };
    op_test_run(&t);
}

// =====================================================================================================================
// >>repeats   repeat, repeat_back, concat, pad, pad_reflect_1d, roll
// =====================================================================================================================
static void ref_repeat(const struct op_case * c) {
    const struct arr * a = c->in[0];
    const int64_t * ne = c->p ? (const int64_t *) c->p : c->in[1]->ne;
    arr_new(c->out, ne[0], ne[1], ne[2], ne[3]);
    FOR_ARR(c->out) { AT(c->out, i0, i1, i2, i3) = AT(a, i0 % a->ne[0], i1 % a->ne[1], i2 % a->ne[2], i3 % a->ne[3]); }
}
static struct gcuda_tensor * build_repeat(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    const int64_t * ne = (const int64_t *) p;
    return ne ? gcuda_repeat_4d(ctx, in[0], ne[0], ne[1], ne[2], ne[3]) : gcuda_repeat(ctx, in[0], in[1]);
}

TEST(repeat) { // >>op:repeat
    const struct op_test t = { .types = "F32,F32 F16,F32 BF16,I8 F64,F32 I8,F32 I16,F32 I32,F32 I64,F32",
        .shapes = "1|257 1,3|8,3 5,4,3,2|10,4,3,2 5,4,3,2|5,8,3,2 5,4,3,2|5,4,9,2 5,4,3,2|5,4,3,4 5,4,3,2|10,8,6,4 "
                  "7|7,3,2,2 0|0,3",
        .n_in = 2,
        .build = build_repeat,
        .ref = ref_repeat,
        .in = { { .lo = -90, .hi = 90, .layouts = LAYOUT_ANY }, { .layouts = LAYOUT_TRANSPOSED } } };
    op_test_run(&t);
    static const int64_t ne[4] = { 6, 4, 2, 3 };
    const struct op_test t4 = { .types = "F32 I16",
        .shapes = "3,2,1,1",
        .n_in = 1,
        .build = build_repeat,
        .ref = ref_repeat,
        .p = ne,
        .tag = "4d",
        .in = { { .lo = -90, .hi = 90, .layouts = LAYOUT_ANY } } };
    op_test_run(&t4);
}

static void ref_repeat_back(const struct op_case * c) {
    arr_like(c->out, c->in[1]);
    struct arr * y = c->out;
    FOR_ARR(c->in[0]) {
        AT(y, i0 % y->ne[0], i1 % y->ne[1], i2 % y->ne[2], i3 % y->ne[3]) += AT(c->in[0], i0, i1, i2, i3);
    }
}
static struct gcuda_tensor * build_repeat_back(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    (void) p;
    return gcuda_repeat_back(ctx, in[0], in[1]);
}

TEST(repeat_back) { // >>op:repeat_back
    const struct op_test t = { .types = "F32",
        .shapes = "257|1 8,3|1,3 10,4,3,2|5,4,3,2 5,8,3,2|5,4,3,2 "
                  "5,4,9,2|5,4,3,2 5,4,3,4|5,4,3,2 "
                  "10,8,6,4|5,4,3,2 5,4|5,4 0,4|0,2 5,0|5,3",
        .n_in = 2,
        .build = build_repeat_back,
        .ref = ref_repeat_back,
        .max_nmse = 1e-7,
        .in = { { .lo = 0.1, .hi = 1, .layouts = LAYOUT_ANY }, { 0 } } };
    op_test_run(&t);
    const struct op_test half = { .types = "F16,F32 BF16,F32",
        .shapes = "257|1 10,8,6,4|5,4,3,2 771,3|257,1",
        .n_in = 2,
        .build = build_repeat_back,
        .ref = ref_repeat_back,
        .max_nmse = 1e-7,
        .in = { { .lo = 0.1, .hi = 1, .layouts = LAYOUT_ANY }, { 0 } } };
    op_test_run(&half);
    const struct op_test large = { .types = "F32",
        .shapes = "1200001|1 3,400001|3 600,2001|300 257,4100|257 "
                  "70003,20|1,20",
        .n_in = 2,
        .build = build_repeat_back,
        .ref = ref_repeat_back,
        .max_nmse = 1e-7,
        .in = { { .lo = 0.1, .hi = 1 }, { 0 } } }; // summed in groups
    op_test_run(&large);
}

static void ref_concat(const struct op_case * c) {
    const int dim = *(const int *) c->p;
    const struct arr *a = c->in[0], *b = c->in[1];
    int64_t ne[4];
    memcpy(ne, a->ne, sizeof ne);
    ne[dim] += b->ne[dim];
    arr_new(c->out, ne[0], ne[1], ne[2], ne[3]);
    FOR_ARR(c->out) {
        int64_t i[4] = { i0, i1, i2, i3 };
        const bool second = i[dim] >= a->ne[dim];
        if (second) { i[dim] -= a->ne[dim]; }
        AT(c->out, i0, i1, i2, i3) = AT(second ? b : a, i[0], i[1], i[2], i[3]);
    }
}
static struct gcuda_tensor * build_concat(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    return gcuda_concat(ctx, in[0], in[1], *(const int *) p);
}

TEST(concat) { // >>op:concat
    static const char * const shapes[4] = { "11,4,3,2|7,4,3,2 1|256 0,3|2,3 1030,2|1501,2", "5,12,3,2|5,7,3,2 3,2|3,0",
        "5,4,13,2|5,4,7,2 5,4,0|5,4,2", "5,4,3,14|5,4,3,7" };
    static const char * const q_shapes[4] = { "256,2|512,2", "256,2,2|256,3,2", "256,2,2|256,2,1",
        "256,1,1,2|256,1,1,1" };
    for (int dim = 0; dim < 4; ++dim) {
        struct op_test t = { .types = PLAIN_TYPES,
            .shapes = shapes[dim],
            .n_in = 2,
            .build = build_concat,
            .ref = ref_concat,
            .p = &dim,
            .tag = dim == 0   ? "dim=0"
                   : dim == 1 ? "dim=1"
                   : dim == 2 ? "dim=2"
                              : "dim=3",
            .in = { { .lo = -90, .hi = 90, .layouts = LAYOUT_ANY }, { .lo = -90, .hi = 90, .layouts = LAYOUT_ANY } } };
        op_test_run(&t);
        t.types = "Q4_0 Q8_0 Q4_K IQ2_XS", t.shapes = q_shapes[dim], t.keep_blocks = true;
        for (int k = 0; k < 2; ++k) { t.in[k].layouts = LAYOUT_ROWS, t.in[k].lo = t.in[k].hi = 0; }
        op_test_run(&t);
        t.types =
            "Q4_1 Q5_0 Q5_1 Q8_1 IQ4_NL MXFP4 Q2_K Q3_K Q5_K Q6_K Q8_K IQ1_S IQ1_M IQ2_XXS IQ2_S IQ3_XXS IQ3_S IQ4_XS";
        t.in[0].layouts = t.in[1].layouts = LAYOUT_GAPS;
        op_test_run(&t);
    }
}

struct pad_p {
    int l[4], r[4];
    bool circular, plain;
};
static void ref_pad(const struct op_case * c) {
    const struct pad_p * p = (const struct pad_p *) c->p;
    const struct arr * a = c->in[0];
    arr_new(c->out, a->ne[0] + p->l[0] + p->r[0], a->ne[1] + p->l[1] + p->r[1], a->ne[2] + p->l[2] + p->r[2],
        a->ne[3] + p->l[3] + p->r[3]);
    FOR_ARR(c->out) {
        int64_t i[4] = { i0, i1, i2, i3 };
        bool inside = true;
        for (int d = 0; d < 4; ++d) {
            i[d] -= p->l[d];
            inside = inside && i[d] >= 0 && i[d] < a->ne[d];
            if (p->circular) { i[d] = wrap(i[d], a->ne[d]); }
        }
        AT(c->out, i0, i1, i2, i3) = inside || p->circular ? AT(a, i[0], i[1], i[2], i[3]) : 0.0;
    }
}
static struct gcuda_tensor * build_pad(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    const struct pad_p * q = (const struct pad_p *) p;
    if (q->plain && q->circular) { return gcuda_pad_circular(ctx, in[0], q->r[0], q->r[1], q->r[2], q->r[3]); }
    if (q->plain) { return gcuda_pad(ctx, in[0], q->r[0], q->r[1], q->r[2], q->r[3]); }
    return (q->circular ? gcuda_pad_ext_circular : gcuda_pad_ext)(
        ctx, in[0], q->l[0], q->r[0], q->l[1], q->r[1], q->l[2], q->r[2], q->l[3], q->r[3]);
}

TEST(pad) { // >>op:pad
    static const struct pad_p pads[] = { { { 0, 0, 0, 0 }, { 1, 0, 0, 0 }, false, true },
        { { 0, 0, 0, 0 }, { 1, 2, 1, 1 }, false, true }, { { 0, 0, 0, 0 }, { 2, 1, 3, 1 }, true, true },
        // wraps more than once
        { { 1, 3, 1, 2 }, { 2, 4, 1, 1 }, false, false }, { { 1, 3, 1, 2 }, { 2, 4, 1, 1 }, true, false },
        { { 9, 7, 0, 0 }, { 20, 0, 5, 0 }, true, false } };
    for (size_t i = 0; i < sizeof pads / sizeof pads[0]; ++i) {
        const struct op_test t = { .types = PLAIN_TYPES,
            .shapes = "1 256,2 5,4,3,2 257,3 1501,3",
            .n_in = 1,
            .build = build_pad,
            .ref = ref_pad,
            .p = &pads[i],
            .tag = tagf("pad=%d", (int) i),
            .in = { { .lo = -90, .hi = 90, .layouts = LAYOUT_ANY } } };
        op_test_run(&t);
        if (pads[i].circular) { continue; }
        const struct op_test empty = { .types = "F32 F16 I8",
            .shapes = "0,3 5,0,2 5,4,3,0",
            .n_in = 1,
            .build = build_pad,
            // padding may be all there is
            .ref = ref_pad,
            .p = &pads[i],
            .tag = tagf("pad=%d", (int) i),
            .in = { { 0 } } };
        op_test_run(&empty);
    }
    const struct pad_p around = { { 1, 0, 0, 0 }, { 2, 0, 0, 0 }, true, false };
    const struct op_test none = { .types = "F32",
        .shapes = "5,0 5,2,0",
        .n_in = 1,
        .build = build_pad,
        .ref = ref_pad,
        .p = &around,
        .tag = "around",
        .in = { { 0 } } };
    op_test_run(&none);
}

static void ref_pad_reflect(const struct op_case * c) {
    const int * p = (const int *) c->p;
    const struct arr * a = c->in[0];
    arr_new(c->out, a->ne[0] + p[0] + p[1], a->ne[1], a->ne[2], a->ne[3]);
    FOR_ARR(c->out) {
        const int64_t r = i0 - p[0], n = a->ne[0];
        AT(c->out, i0, i1, i2, i3) = AT(a, r < 0 ? -r : r < n ? r : 2 * n - 2 - r, i1, i2, i3);
    }
}
static struct gcuda_tensor * build_pad_reflect(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    return gcuda_pad_reflect_1d(ctx, in[0], ((const int *) p)[0], ((const int *) p)[1]);
}

TEST(pad_reflect_1d) { // >>op:pad_reflect_1d
    static const int pads[][2] = { { 0, 0 }, { 1, 2 }, { 4, 4 }, { 3, 0 } };
    for (int i = 0; i < 4; ++i) {
        const struct op_test t = { .types = PLAIN_TYPES,
            .shapes = "5 257,3 10,4,3,2 1501,3 10,0,2",
            .n_in = 1,
            .build = build_pad_reflect,
            .ref = ref_pad_reflect,
            .p = pads[i],
            .tag = tagf("p=%d,%d", pads[i][0], pads[i][1]),
            .in = { { .lo = -90, .hi = 90, .layouts = LAYOUT_ANY } } };
        op_test_run(&t);
    }
}

static void ref_roll(const struct op_case * c) {
    const int * s = (const int *) c->p;
    const struct arr * a = c->in[0];
    arr_like(c->out, a);
    FOR_ARR(a) {
        AT(c->out, i0, i1, i2, i3) = AT(a, wrap(i0 - s[0], a->ne[0]), wrap(i1 - s[1], a->ne[1]),
            wrap(i2 - s[2], a->ne[2]), wrap(i3 - s[3], a->ne[3]));
    }
}
static struct gcuda_tensor * build_roll(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    const int * s = (const int *) p;
    return gcuda_roll(ctx, in[0], s[0], s[1], s[2], s[3]);
}

TEST(roll) { // >>op:roll
    static const int shifts[][4] = { { 0, 0, 0, 0 }, { 3, 0, 0, 0 }, { -4, 1, 0, 0 }, { 1, -2, 2, -1 },
        { 0, 3, -1, 1 } };
    for (int i = 0; i < 5; ++i) {
        const struct op_test t = { .types = PLAIN_TYPES,
            .shapes = "10,4,3,2 257,5,4,3 1501,5,4,3 1504,5,3,2",
            .n_in = 1,
            .build = build_roll,
            .ref = ref_roll,
            .p = shifts[i],
            .tag = tagf("shift=%d", i),
            .in = { { .lo = -90, .hi = 90, .layouts = LAYOUT_ANY } } };
        op_test_run(&t);
    }
    const struct op_test empty = { .types = "F32 I8",
        .shapes = "10,0,3 10,4,0",
        .n_in = 1,
        .build = build_roll,
        .ref = ref_roll,
        .p = shifts[1],
        .tag = "empty",
        .in = { { 0 } } };
    op_test_run(&empty);
}

// =====================================================================================================================
// >>masks   diag, diag_mask_inf, diag_mask_zero, tri, fill, arange, timestep_embedding
// =====================================================================================================================
static void ref_diag(const struct op_case * c) {
    const struct arr * a = c->in[0];
    arr_new(c->out, a->ne[0], a->ne[0], a->ne[2], a->ne[3]);
    FOR_ARR(c->out) { AT(c->out, i0, i1, i2, i3) = i0 == i1 ? AT(a, i0, 0, i2, i3) : 0.0; }
}
static struct gcuda_tensor * build_diag(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    (void) p;
    return gcuda_diag(ctx, in[0]);
}
TEST(diag) { // >>op:diag
    const struct op_test t = { .types = PLAIN_TYPES,
        .shapes = "1 5 257 8,1,3,2 0",
        .n_in = 1,
        .build = build_diag,
        .ref = ref_diag,
        .in = { { .lo = -90, .hi = 90, .layouts = LAYOUT_ANY } } };
    op_test_run(&t);
}

struct diag_p {
    int n_past;
    double value;
};
static void ref_diag_mask(const struct op_case * c) {
    const struct diag_p * p = (const struct diag_p *) c->p;
    arr_copy(c->out, c->in[0]);
    FOR_ARR(c->out) {
        if (i0 > p->n_past + i1) { AT(c->out, i0, i1, i2, i3) = p->value; }
    }
}
static struct gcuda_tensor * build_diag_inf(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    return gcuda_diag_mask_inf(ctx, in[0], ((const struct diag_p *) p)->n_past);
}
static struct gcuda_tensor * build_diag_inf_inplace(
    struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    return gcuda_diag_mask_inf_inplace(ctx, in[0], ((const struct diag_p *) p)->n_past);
}
static struct gcuda_tensor * build_diag_zero(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    return gcuda_diag_mask_zero(ctx, in[0], ((const struct diag_p *) p)->n_past);
}
static struct gcuda_tensor * build_diag_zero_inplace(
    struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    return gcuda_diag_mask_zero_inplace(ctx, in[0], ((const struct diag_p *) p)->n_past);
}

static void run_diag_mask(double value, build_fn build, build_fn inplace) {
    static const int past[] = { 0, 1, 5, 300 };
    for (int i = 0; i < 4; ++i) {
        const struct diag_p p = { past[i], value };
        const struct op_test t = { .types = "F32 F16 BF16",
            .shapes = "1 10,10,3,2 257,5 5,9 0,3",
            .n_in = 1,
            .build = build,
            .inplace = inplace,
            .ref = ref_diag_mask,
            .p = &p,
            .tag = tagf("n_past=%d", past[i]),
            .reuse = 1,
            .in = { { .layouts = LAYOUT_ANY } } };
        op_test_run(&t);
    }
}
TEST(diag_mask_inf) { run_diag_mask(-HUGE_VAL, build_diag_inf, build_diag_inf_inplace); } // >>op:diag_mask_inf
TEST(diag_mask_zero) { run_diag_mask(0.0, build_diag_zero, build_diag_zero_inplace); }    // >>op:diag_mask_zero

static void ref_tri(const struct op_case * c) {
    const int type = *(const int *) c->p;
    arr_copy(c->out, c->in[0]);
    FOR_ARR(c->out) {
        const bool keep = type == GCUDA_TRI_TYPE_LOWER        ? i0 < i1
                          : type == GCUDA_TRI_TYPE_LOWER_DIAG ? i0 <= i1
                          : type == GCUDA_TRI_TYPE_UPPER      ? i0 > i1
                                                              : i0 >= i1;
        if (!keep) { AT(c->out, i0, i1, i2, i3) = 0.0; }
    }
}
// a few NaN and inf among the numbers
static void fill_with_nan(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    (void) c, (void) k;
    for (int64_t i = 0; i < arr_n(a); ++i) {
        if (rng_below(r, 6) == 0) { a->d[i] = rng_below(r, 2) ? (double) NAN : HUGE_VAL; }
    }
}
static struct gcuda_tensor * build_tri(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    return gcuda_tri(ctx, in[0], (enum gcuda_tri_type) * (const int *) p);
}
TEST(tri) { // >>op:tri; zero is written even over NaN
    for (int type = 0; type < 4; ++type) {
        const struct op_test t = { .types = "F32 F16 BF16",
            .shapes = "1 10,10,3,2 65,65 0,0",
            .n_in = 1,
            .build = build_tri,
            .ref = ref_tri,
            .p = &type,
            .tag = tagf("type=%d", type),
            .expect_nan = true,
            .in = { { .fill = fill_with_nan, .layouts = LAYOUT_ANY } } };
        op_test_run(&t);
    }
}

static void ref_fill(const struct op_case * c) {
    arr_like(c->out, c->in[0]);
    for (int64_t i = 0; i < arr_n(c->out); ++i) { c->out->d[i] = *(const double *) c->p; }
}
static struct gcuda_tensor * build_fill(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    return gcuda_fill(ctx, in[0], (float) *(const double *) p);
}
static struct gcuda_tensor * build_fill_inplace(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    return gcuda_fill_inplace(ctx, in[0], (float) *(const double *) p);
}
TEST(fill) { // >>op:fill; the content is not read
    static const double values[] = { 0.0, -2.5, HUGE_VAL };
    for (int i = 0; i < 3; ++i) {
        const struct op_test t = { .types = "F32 F16 BF16",
            .shapes = "1 257,3 5,4,3,2 0 800,60,2,2",
            .n_in = 1,
            .build = build_fill,
            .inplace = build_fill_inplace,
            .ref = ref_fill,
            .p = &values[i],
            .tag = tagf("c=%g", values[i]),
            .reuse = 1,
            .in = { { .fill = fill_with_nan, .layouts = LAYOUT_ANY } } };
        op_test_run(&t);
    }
}

static void ref_arange(const struct op_case * c) {
    const float * p = (const float *) c->p;
    arr_new(c->out, (int64_t) ceilf((p[1] - p[0]) / p[2]), 1, 1, 1);
    for (int64_t i = 0; i < c->out->ne[0]; ++i) { c->out->d[i] = (double) p[0] + (double) p[2] * (double) i; }
}
static struct gcuda_tensor * build_arange(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    const float * f = (const float *) p;
    (void) in;
    return gcuda_arange(ctx, f[0], f[1], f[2]);
}
TEST(arange) { // >>op:arange
    static const float ranges[][3] = { { 0, 10, 1 }, { 0, 1, 1 }, { -3, 4.5f, 0.7f }, { 1, 1048577, 1 }, { 0, 5001, 1 },
        { 0, 256.5f, 1 } };
    for (int i = 0; i < 6; ++i) {
        const struct op_test t = { .types = "F32",
            .shapes = "",
            .n_in = 0,
            .build = build_arange,
            .ref = ref_arange,
            .p = ranges[i],
            .tag = tagf("range=%d", i),
            .max_nmse = 1e-7 };
        op_test_run(&t);
    }
}

static void ref_timestep(const struct op_case * c) { // the cosine half comes first
    const int * p = (const int *) c->p;
    const struct arr * t = c->in[0];
    const int half = p[0] / 2;
    arr_new(c->out, p[0], t->ne[0], 1, 1);
    for (int64_t n = 0; n < t->ne[0]; ++n) {
        for (int j = 0; j < half; ++j) {
            const double arg = t->d[n] * exp(-log((double) p[1]) * j / half);
            AT(c->out, j, n, 0, 0) = cos(arg);
            AT(c->out, j + half, n, 0, 0) = sin(arg);
        }
    }
}
static struct gcuda_tensor * build_timestep(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    return gcuda_timestep_embedding(ctx, in[0], ((const int *) p)[0], ((const int *) p)[1]);
}
TEST(timestep_embedding) { // >>op:timestep_embedding
    static const int params[][2] = { { 320, 10000 }, { 7, 10000 }, { 1, 100 }, { 2, 1000 } };
    for (int i = 0; i < 4; ++i) {
        const struct op_test t = { .types = "F32",
            .shapes = "1 5 33 0",
            .n_in = 1,
            .build = build_timestep,
            .ref = ref_timestep,
            .p = params[i],
            .tag = tagf("dim=%d", params[i][0]),
            .max_nmse = 1e-7,
            .in = { { .lo = 0, .hi = 1000, .layouts = LAYOUT_OFFSET } } };
        op_test_run(&t);
    }
}
