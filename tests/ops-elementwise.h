// Element-wise operations: binary, unary, GLU, scale ...
// =====================================================================================================================
// >>binary   add, sub, mul, div, add1, add_id
// =====================================================================================================================
struct binary_p {
    char op; // + - * /
    struct gcuda_tensor * (*fn)(struct gcuda_context *, struct gcuda_tensor *, struct gcuda_tensor *);
    struct gcuda_tensor * (*inplace)(struct gcuda_context *, struct gcuda_tensor *, struct gcuda_tensor *);
};
static void ref_binary(const struct op_case * c) {
    const char op = ((const struct binary_p *) c->p)->op;
    const struct arr * b = c->in[1];
    arr_like(c->out, c->in[0]);
    FOR_ARR(c->out) {
        const double x = AT(c->in[0], i0, i1, i2, i3),
                     y = AT(b, i0 % b->ne[0], i1 % b->ne[1], i2 % b->ne[2], i3 % b->ne[3]);
        AT(c->out, i0, i1, i2, i3) = op == '+' ? x + y : op == '-' ? x - y : op == '*' ? x * y : x / y;
    }
}
static struct gcuda_tensor * build_binary(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    return ((const struct binary_p *) p)->fn(ctx, in[0], in[1]);
}
static struct gcuda_tensor * build_binary_inplace(
    struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    return ((const struct binary_p *) p)->inplace(ctx, in[0], in[1]);
}

#define BINARY_TYPES "F32,F32 F16,F16 F16,F32 BF16,BF16 BF16,F32 F32,F16 F32,BF16"
#define BINARY_SHAPES                                                                                            \
    "1|1 7|1 255|255 256,3|256 257,3|257,3 257,3|1,3 10,5,4,3|10,5,4,3 10,5,4,3|1,5,4,3 "                        \
    "10,5,4,3|10,1,4,3 10,5,4,3|10,5,1,3 10,5,4,3|10,5,4,1 10,5,4,3|1,1,1,1 10,10,8,6|5,5,4,3 10,5,8,3|5,5,4,3 " \
    "16,16,130|1,1,130 130,4,4|130 0,3|0,3 5,0|5"

static void run_binary(const struct binary_p * p) {
    const double lo = p->op == '*' || p->op == '/' ? 0.9 : -1.0, hi = p->op == '*' || p->op == '/' ? 1.1 : 1.0;
    struct op_test t = { .types = BINARY_TYPES,
        .shapes = BINARY_SHAPES,
        .n_in = 2,
        .build = build_binary,
        .inplace = build_binary_inplace,
        .ref = ref_binary,
        .p = p,
        .max_nmse = 1e-7,
        .reuse = 3,
        .in = { { lo, hi, .layouts = LAYOUT_ROWS }, { lo, hi, .layouts = LAYOUT_ROWS } } };
    op_test_run(&t);
    t.types = "F32,F32 F16,F16 BF16,F32", t.shapes = "10,5,4,3|10,5,4,3 10,6,4,2|5,3,1,2", t.tag = "any";
    t.in[0].layouts = t.in[1].layouts = LAYOUT_TRANSPOSED | LAYOUT_SHUFFLED;
    op_test_run(&t);
    t.tag = NULL;
    t.types = "F32,F32", t.shapes = test_full() ? "1,1,320,320|1,1,320,320 64,70000|64 4,1,66000|4,1,1"
                                                : "1,1,70,33|1,1,70,33 3,7000|3 4,1,660|4,1,1";
    t.in[0].layouts = t.in[1].layouts = 0;
    op_test_run(&t);
}

TEST(add) { // >>op:add
    static const struct binary_p p = { '+', gcuda_add, gcuda_add_inplace };
    run_binary(&p);
}
TEST(sub) { // >>op:sub
    static const struct binary_p p = { '-', gcuda_sub, gcuda_sub_inplace };
    run_binary(&p);
}
TEST(mul) { // >>op:mul
    static const struct binary_p p = { '*', gcuda_mul, gcuda_mul_inplace };
    run_binary(&p);
}

static void fill_divisors(struct rng * r, const struct op_case * c, int k, struct arr * a) { // zeros, infinities
    static const double v[] = { 0.0, -0.0, 1.0, HUGE_VAL, -2.0, 1e-30 };
    (void) r, (void) c;
    for (int64_t i = 0; i < arr_n(a); ++i) { a->d[i] = k == 0 ? v[i / 6 % 6] : v[i % 6]; }
}
TEST(div) { // >>op:div; x/0 is infinite and 0/0 NaN
    static const struct binary_p p = { '/', gcuda_div, gcuda_div_inplace };
    run_binary(&p);
    const struct op_test t = { .types = "F32,F32",
        .shapes = "36|36",
        .n_in = 2,
        .build = build_binary,
        .ref = ref_binary,
        .p = &p,
        .tag = "special",
        .max_nmse = 1e-7,
        .expect_nan = true,
        .in = { { .fill = fill_divisors }, { .fill = fill_divisors } } };
    op_test_run(&t);
}

static struct gcuda_tensor * build_add_cast(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    (void) p;
    return gcuda_add_cast(ctx, in[0], in[1], GCUDA_TYPE_F32);
}
TEST(add_cast) {
    static const struct binary_p p = { '+', gcuda_add, gcuda_add_inplace };
    struct op_test t = { .types = "F16,F32>F32 BF16,F32>F32",
        .shapes = "1|1 257,3|257,3 10,5,4,3|10,1,4,3",
        .n_in = 2,
        .build = build_add_cast,
        .ref = ref_binary,
        .p = &p,
        .max_nmse = 1e-7,
        .in = { { .layouts = LAYOUT_ROWS }, { .layouts = LAYOUT_ROWS } } };
    op_test_run(&t);
    t.types = op_types_with(CPU_WEIGHTS, ",F32>F32"), t.shapes = "256,3|256,3";
    t.in[0].layouts = LAYOUT_GAPS, t.in[1].layouts = LAYOUT_GAPS | LAYOUT_TRANSPOSED;
    op_test_run(&t);
    t.types = "Q8_0,F32>F32", t.shapes = "256,260|256,260", t.in[0].layouts = t.in[1].layouts = 0;
    op_test_run(&t);
}

// those that have a quantizer
#define SUM_TYPES                                                                                                     \
    "Q4_0,F32 Q4_1,F32 Q5_0,F32 Q5_1,F32 Q8_0,F32 IQ4_NL,F32 MXFP4,F32 Q8_1,F32 Q2_K,F32 Q3_K,F32 Q4_K,F32 Q5_K,F32 " \
    "Q6_K,F32 Q8_K,F32 IQ4_XS,F32"

TEST(add_quantized) { // quantized + F32 in the quantized type: dequantize the row, add, quantize again
    static const struct binary_p p = { '+', gcuda_add, gcuda_add_inplace };
    struct op_test t = { .types = SUM_TYPES,
        .shapes = "256,3|256,3 256,3,2|256,3,2",
        .n_in = 2,
        .build = build_binary,
        .inplace = build_binary_inplace,
        .ref = ref_binary,
        .p = &p,
        .max_nmse = 0.0625 / 256,
        .no_max_error = true };
    op_test_run(&t);
    t.types = "Q4_0,F32 Q8_0,F32 MXFP4,F32", t.shapes = "32|32 96,2,3|96,2,3";
    t.in[0].layouts = LAYOUT_ROWS, t.in[1].layouts = LAYOUT_GAPS | LAYOUT_TRANSPOSED;
    op_test_run(&t);
    // more than one launch
    t.types = "Q4_0,F32 Q6_K,F32", t.shapes = "256,260|256,260", t.in[0].layouts = t.in[1].layouts = 0;
    op_test_run(&t);
}

static void ref_add1(const struct op_case * c) {
    arr_copy(c->out, c->in[0]);
    for (int64_t i = 0; i < arr_n(c->out); ++i) { c->out->d[i] += c->in[1]->d[0]; }
}
TEST(add1) { // >>op:add1
    static const struct binary_p p = { '+', gcuda_add1, gcuda_add1_inplace };
    struct op_test t = { .types = BINARY_TYPES,
        .shapes = "1|1 257|1 10,5,4,3|1 1024,33|1 0|1",
        .n_in = 2,
        .build = build_binary,
        .inplace = build_binary_inplace,
        .ref = ref_add1,
        .p = &p,
        .max_nmse = 1e-7,
        .reuse = 1,
        .in = { { .layouts = LAYOUT_ANY }, { 0 } } };
    op_test_run(&t);
    t.types = SUM_TYPES, t.shapes = "256,3|1", t.max_nmse = 0.0625 / 256, t.no_max_error = true, t.reuse = 0;
    t.in[0].layouts = LAYOUT_GAPS;
    op_test_run(&t);
}

static void ref_add_id(const struct op_case * c) { // an id out of range: a row of zeros is added
    const struct arr * b = c->in[1];
    arr_copy(c->out, c->in[0]);
    FOR_ARR(c->out) {
        const double id = AT(c->in[2], i1, i2, 0, 0);
        if (id >= 0 && id < (double) b->ne[1]) { AT(c->out, i0, i1, i2, i3) += AT(b, i0, (int64_t) id, 0, 0); }
    }
}
static struct gcuda_tensor * build_add_id(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    (void) p;
    return gcuda_add_id(ctx, in[0], in[1], in[2]);
}
static void fill_expert(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    (void) k;
    fill_below(r, a, c->in[1]->ne[1]);
}
static void fill_bad_expert(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    fill_expert(r, c, k, a);
    a->d[0] = -1, a->d[arr_n(a) - 1] = (double) c->in[1]->ne[1];
}
TEST(add_id) { // >>op:add_id
    struct op_test t = { .types = "F32,F32,I32",
        .shapes = "32,1,1|32,4|1,1 129,2,32|129,8|2,32 32,4,129|32,8|4,129 "
                  "5,2,0|5,4|2,0",
        .n_in = 3,
        .build = build_add_id,
        .ref = ref_add_id,
        .max_nmse = 1e-7,
        .reuse = 1,
        .in = { { .layouts = LAYOUT_ROWS }, { .layouts = LAYOUT_ROWS },
            { .fill = fill_expert, .layouts = LAYOUT_PADDED | LAYOUT_OFFSET } } };
    op_test_run(&t);
    t.types = "F16,F16,I32 BF16,BF16,I32 F16,F32,I32 BF16,F32,I32 F32,F16,I32 F32,BF16,I32",
    t.shapes = "129,2,7|129,8|2,7";
    op_test_run(&t);
    t.types = "F32,F32,I32 F16,F32,I32", t.shapes = "33,3,7|33,8|3,7", t.tag = "any";
    t.in[0].layouts = t.in[1].layouts = t.in[2].layouts = LAYOUT_TRANSPOSED | LAYOUT_PERMUTED;
    op_test_run(&t);
    t.in[0].layouts = t.in[1].layouts = LAYOUT_ROWS, t.in[2].layouts = LAYOUT_PADDED | LAYOUT_OFFSET;
    t.types = "F32,F32,I32", t.shapes = "32,4,9|32,8|4,9", t.in[2].fill = fill_bad_expert,
    t.status = GCUDA_STATUS_INVALID_DATA, t.tag = "bad";
    op_test_run(&t);
}

// =====================================================================================================================
// >>unary
// =====================================================================================================================
static double f_sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }
static double f_softplus(double x) { return x > 20.0 ? x : log1p(exp(x)); }
static double f_gelu(double x) { // (1 + tanh(u)) / 2 without the cancellation: the logistic function of 2u
    return x * f_sigmoid(2.0 * 0.79788456080286535588 * x * (1.0 + 0.044715 * x * x));
}
// 1 + erf(u) = erfc(-u), without the cancellation
static double f_gelu_erf(double x) { return 0.5 * x * erfc(-x / sqrt(2.0)); }
static double f_gelu_quick(double x) { return x * f_sigmoid(1.702 * x); }
static double f_hardsigmoid(double x) { return fmin(1.0, fmax(0.0, (x + 3.0) / 6.0)); }
struct xielu_p {
    double alpha_n, alpha_p, beta, eps;
};
static const struct xielu_p xielu_default = { 0.8, 0.9, 0.5, -1e-6 };

static double f_xielu(double x, const struct xielu_p * p) {
    const double p1 = p->beta + f_softplus(p->alpha_n), p2 = f_softplus(p->alpha_p);
    return x > 0.0 ? p2 * x * x + p->beta * x : (expm1(fmin(x, p->eps)) - x) * p1 + p->beta * x;
}

// One for each line of GCUDA_UNARY_OPS; a missing one does not compile.
#define REF_UNARY(ID, expr) \
    static double f_unary_##ID(double x) { return (expr); }
REF_UNARY(ABS, fabs(x))
REF_UNARY(SGN, x > 0.0 ? 1.0 : x < 0.0 ? -1.0 : 0.0)
REF_UNARY(NEG, -x)
REF_UNARY(STEP, x > 0.0 ? 1.0 : 0.0)
REF_UNARY(TANH, tanh(x))
REF_UNARY(ELU, x > 0.0 ? x : expm1(x))
REF_UNARY(RELU, x > 0.0 ? x : 0.0)
REF_UNARY(SIGMOID, f_sigmoid(x))
REF_UNARY(GELU, f_gelu(x))
REF_UNARY(GELU_QUICK, f_gelu_quick(x))
REF_UNARY(SILU, x * f_sigmoid(x))
REF_UNARY(HARDSWISH, x * f_hardsigmoid(x))
REF_UNARY(HARDSIGMOID, f_hardsigmoid(x))
REF_UNARY(EXP, exp(x))
REF_UNARY(EXPM1, expm1(x))
REF_UNARY(SOFTPLUS, f_softplus(x))
REF_UNARY(GELU_ERF, f_gelu_erf(x))
REF_UNARY(XIELU, f_xielu(x, &xielu_default))
REF_UNARY(FLOOR, floor(x))
REF_UNARY(CEIL, ceil(x))
REF_UNARY(ROUND, round(x))
REF_UNARY(TRUNC, trunc(x))

static double f_unary(int op, double x) {
#define X(ID, value) f_unary_##ID,
    static double (*const refs[])(double) = { GCUDA_UNARY_OPS(X) };
#undef X
    return refs[op](x);
}
static const char * unary_name(int op) { // in lower case, valid until the next call
    static char name[32];
    const char * upper = gcuda_unary_op_name((enum gcuda_unary_op) op);
    size_t n = 0;
    for (; upper[n] != 0 && n + 1 < sizeof name; ++n) {
        name[n] = (char) (upper[n] >= 'A' && upper[n] <= 'Z' ? upper[n] - 'A' + 'a' : upper[n]);
    }
    name[n] = 0;
    return name;
}

static void ref_unary(const struct op_case * c) {
    arr_like(c->out, c->in[0]);
    for (int64_t i = 0; i < arr_n(c->out); ++i) { c->out->d[i] = f_unary(*(const int *) c->p, c->in[0]->d[i]); }
}
static struct gcuda_tensor * build_unary(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    const int op = *(const int *) p;
    const struct xielu_p * x = &xielu_default;
    if (op == GCUDA_UNARY_OP_XIELU) {
        return gcuda_xielu(ctx, in[0], (float) x->alpha_n, (float) x->alpha_p, (float) x->beta, (float) x->eps);
    }
    return gcuda_unary(ctx, in[0], (enum gcuda_unary_op) op);
}
static struct gcuda_tensor * build_unary_inplace(
    struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    return gcuda_unary_inplace(ctx, in[0], (enum gcuda_unary_op) * (const int *) p);
}

TEST(unary) { // >>op:unary, all kinds
    for (int op = 0; op < GCUDA_UNARY_OP_COUNT; ++op) {
        struct op_test t = { .types = "F32 F16 BF16",
            .shapes = "1 128,2,2,2 5,7,11,13 257,3 0,4",
            .n_in = 1,
            .build = build_unary,
            .inplace = op == GCUDA_UNARY_OP_XIELU ? NULL : build_unary_inplace,
            .ref = ref_unary,
            .p = &op,
            .tag = unary_name(op),
            .max_nmse = 1e-7,
            .reuse = 1,
            .refuses = "I32 Q4_0",
            .in = { { .lo = -150, .hi = 150, .layouts = LAYOUT_OFFSET | LAYOUT_PADDED } } };
        op_test_run(&t);
        t.shapes = "1024,3", t.in[0].lo = -10, t.in[0].hi = 10, t.inplace = NULL; // where the functions bend
        op_test_run(&t);
        t.shapes = "5,7,4,3", t.in[0].layouts = LAYOUT_GAPS | LAYOUT_PERMUTED | LAYOUT_TRANSPOSED;
        op_test_run(&t);
        t.shapes = "1024,3", t.in[0].layouts = LAYOUT_OFFSET | LAYOUT_PADDED;
        t.types = "F32", t.in[0].lo = -0.01, t.in[0].hi = 0.01;
        char tag[48];
        snprintf(tag, sizeof tag, "%s/small", unary_name(op));
        t.tag = tag;
        op_test_run(&t);
    }
}

static void fill_edges(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    static const double v[] = { 0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, -3.0, 20.0, 20.1, 88.0, -88.0, 89.0, -104.0, 1e4,
        -1e4, 3e38, -3e38, 1e-30, -1e-30, HUGE_VAL, -HUGE_VAL };
    (void) r, (void) c, (void) k;
    for (int64_t i = 0; i < arr_n(a); ++i) { a->d[i] = v[(size_t) i % (sizeof v / sizeof v[0])]; }
}
static void ref_unary_edges(const struct op_case * c) { // at infinity only the limits that the formulas have
    ref_unary(c);
    for (int64_t i = 0; i < arr_n(c->out); ++i) {
        if (isnan(c->out->d[i])) { c->out->d[i] = REF_ANY; }
    }
}
TEST(unary_edges) { // no NaN from huge arguments; halves round away from zero
    for (int op = 0; op < GCUDA_UNARY_OP_COUNT; ++op) {
        const struct op_test t = { .types = "F32",
            .shapes = "22,1",
            .n_in = 1,
            .build = build_unary,
            .ref = ref_unary_edges,
            .p = &op,
            .tag = unary_name(op),
            .max_nmse = 1e-7,
            .no_max_error = true,
            .in = { { .fill = fill_edges } } };
        op_test_run(&t);
    }
}

static void ref_nan_to_zero(const struct op_case * c) { arr_like(c->out, c->in[0]); }
static void fill_nan(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    (void) r, (void) c, (void) k;
    for (int64_t i = 0; i < arr_n(a); ++i) { a->d[i] = (double) NAN; }
}
TEST(unary_nan) { // where the definition is a comparison, NaN is on its false side
    static const int zero[] = { GCUDA_UNARY_OP_SGN, GCUDA_UNARY_OP_STEP, GCUDA_UNARY_OP_RELU };
    for (int i = 0; i < 3; ++i) {
        const struct op_test t = { .types = "F32 F16 BF16",
            .shapes = "9",
            .n_in = 1,
            .build = build_unary,
            .ref = ref_nan_to_zero,
            .p = &zero[i],
            .tag = unary_name(zero[i]),
            .in = { { .fill = fill_nan } } };
        op_test_run(&t);
    }
}
static void ref_nan(const struct op_case * c) { arr_copy(c->out, c->in[0]); }
TEST(unary_nan_stays) { // in all others
    for (int op = 0; op < GCUDA_UNARY_OP_COUNT; ++op) {
        if (op == GCUDA_UNARY_OP_SGN || op == GCUDA_UNARY_OP_STEP || op == GCUDA_UNARY_OP_RELU) { continue; }
        const struct op_test t = { .types = "F32 F16 BF16",
            .shapes = "9",
            .n_in = 1,
            .build = build_unary,
            .ref = ref_nan,
            .p = &op,
            .tag = unary_name(op),
            .expect_nan = true,
            .in = { { .fill = fill_nan } } };
        op_test_run(&t);
    }
}

typedef struct gcuda_tensor * (*unary_fn)(struct gcuda_context *, struct gcuda_tensor *);
struct named_p {
    int op;
    unary_fn fn;
};
static struct gcuda_tensor * build_named(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    return ((const struct named_p *) p)->fn(ctx, in[0]);
}
TEST(unary_named) { // each helper makes its own operation
#define BOTH(ID, name) \
    { GCUDA_UNARY_OP_##ID, gcuda_##name }, { GCUDA_UNARY_OP_##ID, gcuda_##name##_inplace }
    static const struct named_p all[] = { BOTH(ABS, abs), BOTH(SGN, sgn), BOTH(NEG, neg), BOTH(STEP, step),
        BOTH(TANH, tanh), BOTH(ELU, elu), BOTH(RELU, relu), BOTH(SIGMOID, sigmoid), BOTH(GELU, gelu),
        BOTH(GELU_QUICK, gelu_quick), BOTH(SILU, silu), BOTH(EXP, exp), BOTH(EXPM1, expm1), BOTH(SOFTPLUS, softplus),
        BOTH(GELU_ERF, gelu_erf), BOTH(FLOOR, floor), BOTH(CEIL, ceil), BOTH(ROUND, round), BOTH(TRUNC, trunc),
        { GCUDA_UNARY_OP_HARDSWISH, gcuda_hardswish }, { GCUDA_UNARY_OP_HARDSIGMOID, gcuda_hardsigmoid } };
#undef BOTH
    for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i) {
        const struct op_test t = { .types = "F32",
            .shapes = "33",
            .n_in = 1,
            .build = build_named,
            .ref = ref_unary,
            .p = &all[i],
            .tag = tagf("%s%d", unary_name(all[i].op), (int) i),
            .aliases = true,
            .max_nmse = 1e-7,
            .in = { { .lo = -10, .hi = 10 } } };
        op_test_run(&t);
    }
}

// =====================================================================================================================
// >>glu
// =====================================================================================================================
struct glu_p {
    int op;
    bool swapped;
    double alpha, limit;
};
static double f_glu(const struct glu_p * p, double x, double g) {
    switch (p->op) {
        case GCUDA_GLU_OP_REGLU: return x > 0.0 ? x * g : 0.0;
        case GCUDA_GLU_OP_GEGLU: return f_gelu(x) * g;
        case GCUDA_GLU_OP_SWIGLU: return x * f_sigmoid(x) * g;
        case GCUDA_GLU_OP_GEGLU_ERF: return f_gelu_erf(x) * g;
        case GCUDA_GLU_OP_GEGLU_QUICK: return f_gelu_quick(x) * g;
        default:
            x = fmin(x, p->limit), g = fmin(fmax(g, -p->limit), p->limit);
            return x * f_sigmoid(p->alpha * x) * (g + 1.0);
    }
}
static void ref_glu(const struct op_case * c) {
    const struct glu_p * p = (const struct glu_p *) c->p;
    const struct arr * a = c->in[0];
    const bool split = c->n_in == 2;
    const int64_t nc = split ? a->ne[0] : a->ne[0] / 2;
    arr_new(c->out, nc, a->ne[1], a->ne[2], a->ne[3]);
    FOR_ARR(c->out) {
        const double first = AT(a, i0, i1, i2, i3),
                     second = split ? AT(c->in[1], i0, i1, i2, i3) : AT(a, nc + i0, i1, i2, i3);
        AT(c->out, i0, i1, i2, i3) = f_glu(p, p->swapped ? second : first, p->swapped ? first : second);
    }
}
static struct gcuda_tensor * build_glu(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    const struct glu_p * g = (const struct glu_p *) p;
    return gcuda_glu(ctx, in[0], (enum gcuda_glu_op) g->op, g->swapped);
}
static struct gcuda_tensor * build_glu_split(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    const struct glu_p * g = (const struct glu_p *) p;
    if (g->op == GCUDA_GLU_OP_SWIGLU_OAI) {
        return gcuda_swiglu_oai(ctx, in[0], in[1], (float) g->alpha, (float) g->limit);
    }
    return gcuda_glu_split(ctx, in[0], in[1], (enum gcuda_glu_op) g->op);
}
static const char * const glu_names[6] = { "reglu", "geglu", "swiglu", "swiglu_oai", "geglu_erf", "geglu_quick" };

TEST(glu) { // >>op:glu
    for (int op = 0; op < 6; ++op) {
        for (int form = 0; form < 3; ++form) { // fused, swapped, split
            const struct glu_p p = { op, form == 1, 1.702, 7.0 };
            if (op == GCUDA_GLU_OP_SWIGLU_OAI && form < 2) { continue; }
            const unsigned layouts = LAYOUT_OFFSET | LAYOUT_PADDED;
            struct op_test t = { .types = "F32 F16 BF16",
                .shapes = "2 128,2,2,2 5,7,11,13 257,3 514 0,4",
                .n_in = form == 2 ? 2 : 1,
                .build = form == 2 ? build_glu_split : build_glu,
                .ref = ref_glu,
                .p = &p,
                .tag = tagf("%s-%d", glu_names[op], form),
                .max_nmse = 1e-7,
                .in = {
                    { .lo = -150, .hi = 150, .layouts = layouts }, { .lo = -150, .hi = 150, .layouts = layouts } } };
            op_test_run(&t);
            t.types = "F32", t.shapes = "256,5", t.in[0].lo = t.in[1].lo = -4, t.in[0].hi = t.in[1].hi = 4;
            op_test_run(&t);
            t.types = "F32 F16 BF16", t.shapes = "10,7,4,3",
            t.in[0].layouts = t.in[1].layouts = LAYOUT_GAPS | LAYOUT_PERMUTED;
            op_test_run(&t);
        }
    }
    for (int i = 0; i < 4; ++i) {
        const struct glu_p p = { GCUDA_GLU_OP_SWIGLU_OAI, false, i & 1 ? 0.5 : 1.702, i & 2 ? 2.0 : 7.0 };
        const struct op_test t = { .types = "F32 F16 BF16",
            .shapes = "128,2,2,2 5,7,11,13",
            .n_in = 2,
            .build = build_glu_split,
            .ref = ref_glu,
            .p = &p,
            .tag = tagf("oai=%d", i),
            .max_nmse = 1e-7,
            .in = { { .lo = -150, .hi = 150 }, { .lo = -150, .hi = 150 } } };
        op_test_run(&t);
    }
}

struct glu_named_p {
    struct glu_p p;
    bool split;
    unary_fn fused;
    struct gcuda_tensor * (*both)(struct gcuda_context *, struct gcuda_tensor *, struct gcuda_tensor *);
};
static struct gcuda_tensor * build_glu_named(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    const struct glu_named_p * g = (const struct glu_named_p *) p;
    return g->split ? g->both(ctx, in[0], in[1]) : g->fused(ctx, in[0]);
}
TEST(glu_named) {
#define FORMS(ID, name)                                                               \
    { { GCUDA_GLU_OP_##ID, false, 0, 0 }, false, gcuda_##name, NULL },                \
        { { GCUDA_GLU_OP_##ID, true, 0, 0 }, false, gcuda_##name##_swapped, NULL }, { \
        { GCUDA_GLU_OP_##ID, false, 0, 0 }, true, NULL, gcuda_##name##_split          \
    }
    static const struct glu_named_p all[] = { FORMS(REGLU, reglu), FORMS(GEGLU, geglu), FORMS(SWIGLU, swiglu),
        FORMS(GEGLU_ERF, geglu_erf), FORMS(GEGLU_QUICK, geglu_quick) };
#undef FORMS
    for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i) {
        const struct op_test t = { .types = "F32",
            .shapes = "34,3",
            .n_in = all[i].split ? 2 : 1,
            .build = build_glu_named,
            .ref = ref_glu,
            .p = &all[i],
            .tag = tagf("%d", (int) i),
            .max_nmse = 1e-7,
            .in = { { .lo = -5, .hi = 5 }, { .lo = -5, .hi = 5 } } };
        op_test_run(&t);
    }
}

static void fill_reglu_edge(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    (void) r, (void) c;
    for (int64_t i = 0; i < arr_n(a); ++i) { a->d[i] = k == 0 ? -(double) (i % 3) : i % 2 ? HUGE_VAL : (double) NAN; }
    if (k == 0) { a->d[arr_n(a) - 1] = (double) NAN; }
}
TEST(reglu_is_zero_left_of_zero) { // even when the gate is infinite or NaN, and for x NaN
    static const struct glu_p p = { GCUDA_GLU_OP_REGLU, false, 0, 0 };
    const struct op_test t = { .types = "F32",
        .shapes = "12",
        .n_in = 2,
        .build = build_glu_split,
        .ref = ref_glu,
        .p = &p,
        .in = { { .fill = fill_reglu_edge }, { .fill = fill_reglu_edge } } };
    op_test_run(&t);
}

static void fill_x_nan(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    (void) r, (void) c;
    for (int64_t i = 0; i < arr_n(a); ++i) { a->d[i] = k == 0 ? (double) NAN : 1.0; }
}
TEST(swiglu_oai_nan) { // its limit hides no NaN
    static const struct glu_p p = { GCUDA_GLU_OP_SWIGLU_OAI, false, 1.702, 7.0 };
    const struct op_test t = { .types = "F32 F16 BF16",
        .shapes = "12",
        .n_in = 2,
        .build = build_glu_split,
        .ref = ref_nan,
        .p = &p,
        .expect_nan = true,
        .in = { { .fill = fill_x_nan }, { .fill = fill_x_nan } } };
    op_test_run(&t);
}

// =====================================================================================================================
// >>functions with parameters   scale, sqr, sqrt, sin, cos, log, clamp, leaky_relu, silu_back
// =====================================================================================================================
struct scale_p {
    double s, b;
};
static void ref_scale(const struct op_case * c) {
    const struct scale_p * p = (const struct scale_p *) c->p;
    arr_like(c->out, c->in[0]);
    for (int64_t i = 0; i < arr_n(c->out); ++i) { c->out->d[i] = p->s * c->in[0]->d[i] + p->b; }
}
static struct gcuda_tensor * build_scale(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    const struct scale_p * s = (const struct scale_p *) p;
    return s->b == 0.0 ? gcuda_scale(ctx, in[0], (float) s->s)
                       : gcuda_scale_bias(ctx, in[0], (float) s->s, (float) s->b);
}
static struct gcuda_tensor * build_scale_inplace(
    struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    const struct scale_p * s = (const struct scale_p *) p;
    return s->b == 0.0 ? gcuda_scale_inplace(ctx, in[0], (float) s->s)
                       : gcuda_scale_bias_inplace(ctx, in[0], (float) s->s, (float) s->b);
}
TEST(scale) { // >>op:scale
    static const struct scale_p all[] = { { 2.5, 0 }, { -0.25, 0.5 }, { 0, 0 } };
    for (int i = 0; i < 3; ++i) {
        const struct op_test t = { .types = "F32 F16 BF16",
            .shapes = "1 10,10,10,10 257,3 0",
            .n_in = 1,
            .build = build_scale,
            .inplace = build_scale_inplace,
            .ref = ref_scale,
            .p = &all[i],
            .tag = tagf("s=%g,b=%g", all[i].s, all[i].b),
            .max_nmse = 1e-7,
            .reuse = 1,
            .in = { { .layouts = i == 1 ? LAYOUT_ANY : LAYOUT_OFFSET | LAYOUT_PADDED } } };
        op_test_run(&t);
    }
}

TEST(scale_of_infinity) { // 0 * inf is NaN, not 0
    static const struct scale_p p = { 0.0, 1.0 };
    const struct op_test t = { .types = "F32",
        .shapes = "22",
        .n_in = 1,
        .build = build_scale,
        .ref = ref_scale,
        .p = &p,
        .max_nmse = 1e-7,
        .expect_nan = true,
        .in = { { .fill = fill_edges } } };
    op_test_run(&t);
}

struct math_p {
    double (*f)(double);
    unary_fn fn, inplace;
    double lo, hi;
    bool reuse;
    const char * name;
};
static double f_sqr(double x) { return x * x; }
static void ref_math(const struct op_case * c) {
    arr_like(c->out, c->in[0]);
    for (int64_t i = 0; i < arr_n(c->out); ++i) { c->out->d[i] = ((const struct math_p *) c->p)->f(c->in[0]->d[i]); }
}
static struct gcuda_tensor * build_math(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    return ((const struct math_p *) p)->fn(ctx, in[0]);
}
static struct gcuda_tensor * build_math_inplace(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    return ((const struct math_p *) p)->inplace(ctx, in[0]);
}
TEST(math) { // >>op:sqr >>op:sqrt >>op:sin >>op:cos >>op:log
    static const struct math_p all[] = { { f_sqr, gcuda_sqr, gcuda_sqr_inplace, -10, 10, true, "sqr" },
        { sqrt, gcuda_sqrt, gcuda_sqrt_inplace, 50, 100, true, "sqrt" },
        { sin, gcuda_sin, gcuda_sin_inplace, -6.5, 6.5, false, "sin" },
        { cos, gcuda_cos, gcuda_cos_inplace, -6.5, 6.5, false, "cos" },
        { log, gcuda_log, gcuda_log_inplace, 0.9, 1.1, true, "log" },
        { log, gcuda_log, gcuda_log_inplace, 1e-30, 1e30, true, "log-wide" },
        { sin, gcuda_sin, gcuda_sin_inplace, -5000, 5000, false, "sin-wide" } };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i) {
        const struct op_test t = { .types = i < 5 ? "F32 F16 BF16" : "F32",
            .shapes = "1 10,5,4,3 257,3 0,2",
            .n_in = 1,
            .build = build_math,
            .inplace = build_math_inplace,
            .ref = ref_math,
            .p = &all[i],
            .tag = all[i].name,
            // near 1 the logarithm of one element may vanish
            .max_nmse = 1e-7,
            .reuse = all[i].reuse ? 1 : 0,
            .no_max_error = strcmp(all[i].name, "log") == 0,
            .in = {
                { .lo = all[i].lo, .hi = all[i].hi, .layouts = i < 5 ? LAYOUT_ANY : LAYOUT_OFFSET | LAYOUT_PADDED } } };
        op_test_run(&t);
    }
}
TEST(math_edges) { // roots and logarithms of negative numbers are NaN, log 0 is -inf
    static const struct math_p all[] = { { sqrt, gcuda_sqrt, NULL, 0, 0, false, "sqrt" },
        { log, gcuda_log, NULL, 0, 0, false, "log" } };
    for (int i = 0; i < 2; ++i) {
        const struct op_test t = { .types = "F32",
            .shapes = "22",
            .n_in = 1,
            .build = build_math,
            .ref = ref_math,
            .p = &all[i],
            .tag = all[i].name,
            .max_nmse = 1e-7,
            .expect_nan = true,
            .in = { { .fill = fill_edges } } };
        op_test_run(&t);
    }
}

struct two_p {
    double a, b;
};
static void ref_clamp(const struct op_case * c) {
    const struct two_p * p = (const struct two_p *) c->p;
    arr_like(c->out, c->in[0]);
    for (int64_t i = 0; i < arr_n(c->out); ++i) { c->out->d[i] = fmin(fmax(c->in[0]->d[i], p->a), p->b); }
}
static struct gcuda_tensor * build_clamp(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    const struct two_p * q = (const struct two_p *) p;
    return gcuda_clamp(ctx, in[0], (float) q->a, (float) q->b);
}
TEST(clamp) { // >>op:clamp; always in place
    static const struct two_p all[] = { { -0.5, 0.5 }, { 0, HUGE_VAL }, { -HUGE_VAL, -0.25 } };
    for (int i = 0; i < 3; ++i) {
        const struct op_test t = { .types = "F32 F16 BF16",
            .shapes = "1 10,5,4,3 257,3 0",
            .n_in = 1,
            .build = build_clamp,
            .ref = ref_clamp,
            .p = &all[i],
            .tag = tagf("%g,%g", all[i].a, all[i].b),
            .aliases = true,
            .max_nmse = 1e-7,
            .in = { { .lo = -1.5, .hi = 1.5, .layouts = i == 0 ? LAYOUT_ANY : LAYOUT_OFFSET | LAYOUT_PADDED } } };
        op_test_run(&t);
    }
}

static void ref_leaky(const struct op_case * c) {
    arr_like(c->out, c->in[0]);
    for (int64_t i = 0; i < arr_n(c->out); ++i) {
        const double x = c->in[0]->d[i];
        c->out->d[i] = fmax(x, 0.0) + *(const double *) c->p * fmin(x, 0.0);
    }
}
static struct gcuda_tensor * build_leaky(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    return gcuda_leaky_relu(ctx, in[0], (float) *(const double *) p, false);
}
static struct gcuda_tensor * build_leaky_inplace(
    struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    return gcuda_leaky_relu(ctx, in[0], (float) *(const double *) p, true);
}
TEST(leaky_relu) { // >>op:leaky_relu
    static const double slopes[] = { 0.125, 0.0, 2.0 };
    for (int i = 0; i < 3; ++i) {
        const struct op_test t = { .types = "F32 F16 BF16",
            .shapes = "1 10,5,4,3 257,3 0",
            .n_in = 1,
            .build = build_leaky,
            .inplace = build_leaky_inplace,
            .ref = ref_leaky,
            .p = &slopes[i],
            .tag = tagf("%g", slopes[i]),
            .max_nmse = 1e-7,
            .in = { { .lo = -10, .hi = 10, .layouts = i == 0 ? LAYOUT_ANY : LAYOUT_OFFSET } } };
        op_test_run(&t);
    }
}

TEST(clamp_nan) { // NaN stays NaN, in leaky_relu as well
    static const struct two_p p = { -0.5, 0.5 };
    static const double slope = 0.125;
    struct op_test t = { .types = "F32 F16 BF16",
        .shapes = "9",
        .n_in = 1,
        .build = build_clamp,
        .ref = ref_nan,
        .p = &p,
        .tag = "clamp",
        .aliases = true,
        .expect_nan = true,
        .in = { { .fill = fill_nan } } };
    op_test_run(&t);
    t.build = build_leaky, t.p = &slope, t.tag = "leaky_relu", t.aliases = false;
    op_test_run(&t);
}

static void ref_silu_back(const struct op_case * c) { // dy first, then x
    arr_like(c->out, c->in[0]);
    for (int64_t i = 0; i < arr_n(c->out); ++i) {
        const double x = c->in[1]->d[i], s = f_sigmoid(x);
        c->out->d[i] = c->in[0]->d[i] * s * (1.0 + x * (1.0 - s));
    }
}
static struct gcuda_tensor * build_silu_back(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    (void) p;
    return gcuda_silu_back(ctx, in[0], in[1]);
}
TEST(silu_back) { // >>op:silu_back
    struct op_test t = { .types = "F32 F16 BF16",
        .shapes = "1 10,5,4,3 257,3 0",
        .n_in = 2,
        .build = build_silu_back,
        .ref = ref_silu_back,
        .max_nmse = 1e-7,
        .reuse = 3,
        .in = { { .layouts = LAYOUT_OFFSET }, { .lo = -8, .hi = 8, .layouts = LAYOUT_OFFSET } } };
    op_test_run(&t);
    t.types = "F32", t.in[1].lo = -150, t.in[1].hi = 150, t.tag = "wide";
    op_test_run(&t);
    t.types = "F32 F16 BF16 F16,F32>F16", t.shapes = "10,5,4,3", t.in[1].lo = -8, t.in[1].hi = 8, t.tag = "any";
    t.in[0].layouts = t.in[1].layouts = LAYOUT_ANY & ~LAYOUT_OFFSET;
    op_test_run(&t);
}
