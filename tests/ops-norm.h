// Normalisations, reductions, scans, sorting, training.

// =====================================================================================================================
// >>norms   along dimension 0
// =====================================================================================================================
struct norm_p {
    char kind;
    double eps;
}; // m: mean and variance, r: root mean square, l: length
static void norm_row(const struct norm_p * p, const double * x, double * y, int64_t n) {
    double mean = 0.0, sq = 0.0, scale;
    for (int64_t i = 0; i < n; ++i) { mean += x[i] / (double) n; }
    if (p->kind != 'm') { mean = 0.0; }
    for (int64_t i = 0; i < n; ++i) { sq += (x[i] - mean) * (x[i] - mean); }
    scale = p->kind == 'l' ? 1.0 / fmax(sqrt(sq), p->eps) : 1.0 / sqrt(sq / (double) n + p->eps);
    for (int64_t i = 0; i < n; ++i) { y[i] = (x[i] - mean) * scale; }
}
static void ref_norm(const struct op_case * c) {
    const struct arr * a = c->in[0];
    arr_like(c->out, a);
    FOR_ROWS(a) { norm_row((const struct norm_p *) c->p, &AT(a, 0, i1, i2, i3), &AT(c->out, 0, i1, i2, i3), a->ne[0]); }
}
static struct gcuda_tensor * build_norm(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    const struct norm_p * q = (const struct norm_p *) p;
    return (q->kind == 'm' ? gcuda_norm : q->kind == 'r' ? gcuda_rms_norm : gcuda_l2_norm)(ctx, in[0], (float) q->eps);
}
static struct gcuda_tensor * build_norm_inplace(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    const struct norm_p * q = (const struct norm_p *) p;
    return (q->kind == 'm'   ? gcuda_norm_inplace
            : q->kind == 'r' ? gcuda_rms_norm_inplace
                             : gcuda_l2_norm_inplace)(ctx, in[0], (float) q->eps);
}
#define NORM_SHAPES "64,5,4,3 1025,3 255,2 256,2 257,2 511 8192,2"

static void run_norm(char kind, unsigned reuse, const char * extra_shapes) {
    static const double eps[] = { 0.0, 1e-6, 1e-4, 0.1 };
    for (int i = 0; i < 4; ++i) {
        const struct norm_p p = { kind, (double) (float) eps[i] };
        struct op_test t = { .types = "F32 F16 BF16",
            .shapes = NORM_SHAPES,
            .n_in = 1,
            .build = build_norm,
            .inplace = build_norm_inplace,
            .ref = ref_norm,
            .p = &p,
            .tag = tagf("eps=%g", eps[i]),
            .max_nmse = 1e-7,
            .reuse = reuse,
            .in = { { .lo = -10, .hi = 10, .layouts = LAYOUT_ROWS } } };
        op_test_run(&t);
        t.shapes = extra_shapes, t.types = "F32";
        op_test_run(&t);
    }
}

static void fill_far(struct rng * r, const struct op_case * c, int k, struct arr * a) { // mean far above the spread
    (void) c, (void) k;
    for (int64_t i = 0; i < arr_n(a); ++i) { a->d[i] = 1000.0 + rng_between(r, -1, 1); }
}

TEST(norm) { // >>op:norm; one row so long that several threads share it
    run_norm('m', 0, "2,3 0,3 3,0 70001 20008,5");
    static const struct norm_p p = { 'm', 1e-6f };
    const struct op_test far = { .types = "F32",
        .shapes = "1024,3",
        .n_in = 1,
        .build = build_norm,
        .ref = ref_norm,
        .p = &p,
        .tag = "far",
        .max_nmse = 1e-7,
        .in = { { .fill = fill_far } } };
    op_test_run(&far);
}
TEST(rms_norm) { run_norm('r', 1, "1,5 16896,2 0,3 3,0 70001"); } // >>op:rms_norm
TEST(l2_norm) { run_norm('l', 0, "1,5 0,3 70001"); }              // >>op:l2_norm

// elements that are not adjacent, of each type and kind; short rows, and such as several blocks share
TEST(norm_unpacked_rows) {
    static const struct norm_p all[] = { { 'm', 1e-5f }, { 'r', 1e-5f }, { 'l', 1e-5f } };
    for (int i = 0; i < 3; ++i) {
        struct op_test t = { .types = "F32 F16 BF16",
            .shapes = "65,5,4,3 1,4,3 256,9,2",
            .n_in = 1,
            .build = build_norm,
            .ref = ref_norm,
            .p = &all[i],
            .tag = tagf("%c", all[i].kind),
            .max_nmse = 1e-7,
            .in = { { .lo = -10, .hi = 10, .layouts = LAYOUT_TRANSPOSED | LAYOUT_SHUFFLED } } };
        op_test_run(&t);
        t.types = "F32", t.shapes = "20008,3 0,3 3,0";
        op_test_run(&t);
    }
}

static void ref_norm_zero_row(const struct op_case * c) {
    ref_norm(c);
    for (int64_t i = 0; i < arr_n(c->out); ++i) {
        // 0 * inf: the spec says NaN for l2_norm and "inf/NaN" for norm
        if (isnan(c->out->d[i])) { c->out->d[i] = REF_ANY; }
    }
}
static void fill_zero(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    (void) r, (void) c, (void) k;
    memset(a->d, 0, (size_t) arr_n(a) * sizeof(double));
}
TEST(norm_of_zeros) { // finite with eps, unharmed without
    static const struct norm_p all[] = { { 'm', 1e-5f }, { 'r', 1e-5f }, { 'l', 1e-5f }, { 'm', 0 }, { 'r', 0 },
        { 'l', 0 } };
    for (int i = 0; i < 6; ++i) {
        const struct op_test t = { .types = "F32",
            .shapes = "65,2",
            .n_in = 1,
            .build = build_norm,
            .ref = ref_norm_zero_row,
            .p = &all[i],
            .tag = tagf("%c,eps=%g", all[i].kind, all[i].eps),
            .max_nmse = 1e-7,
            .in = { { .fill = fill_zero } } };
        op_test_run(&t);
    }
}

static void ref_rms_norm_back(const struct op_case * c) { // dy, x
    const double eps = *(const double *) c->p;
    const struct arr *dy = c->in[0], *x = c->in[1];
    const double n = (double) x->ne[0];
    arr_like(c->out, x);
    FOR_ROWS(x) {
        double xx = 0.0, xg = 0.0;
        for (int64_t i = 0; i < x->ne[0]; ++i) {
            xx += AT(x, i, i1, i2, i3) * AT(x, i, i1, i2, i3);
            xg += AT(x, i, i1, i2, i3) * AT(dy, i, i1, i2, i3);
        }
        for (int64_t i = 0; i < x->ne[0]; ++i) {
            AT(c->out, i, i1, i2, i3) =
                (AT(dy, i, i1, i2, i3) - AT(x, i, i1, i2, i3) * xg / (xx + n * eps)) / sqrt(xx / n + eps);
        }
    }
}
static struct gcuda_tensor * build_rms_norm_back(
    struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    return gcuda_rms_norm_back(ctx, in[0], in[1], (float) *(const double *) p);
}
TEST(rms_norm_back) { // >>op:rms_norm_back
    static const double eps[] = { 0.0, 1e-6f, 0.1f };
    for (int i = 0; i < 3; ++i) {
        const struct op_test t = { .types = "F32 F16 BF16",
            .shapes = "64,5,4,3 1025,3 255 257,2 0,2 70001",
            .n_in = 2,
            .build = build_rms_norm_back,
            .ref = ref_rms_norm_back,
            .p = &eps[i],
            .tag = tagf("eps=%g", eps[i]),
            .max_nmse = 1e-7,
            .reuse = 3,
            .in = { { .layouts = LAYOUT_ROWS }, { .lo = -10, .hi = 10, .layouts = LAYOUT_ROWS } } };
        op_test_run(&t);
    }
}

// Near both ends of F32, where squares and sums leave it and results do not. Rows of 4 are those of a report: 1 2 3 4
// times 5e18.
struct ends_p {
    struct norm_p norm;
    double eps, size[2];
    bool is_positive;
}; // rms_norm_back: size[0] of the gradient
static void fill_ends(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    const struct ends_p * p = (const struct ends_p *) c->p;
    for (int64_t i = 0; i < arr_n(a); ++i) {
        const double v = rng_between(r, p->is_positive ? 0.5 : -1.0, 1.0);
        a->d[i] = p->size[k] * (a->ne[0] == 4 && k == 0 ? 0.25 * (double) (i + 1) : v);
    }
}
static void ref_ends_back(const struct op_case * c) {
    struct op_case plain = *c;
    const struct ends_p * p = (const struct ends_p *) c->p;
    plain.p = &p->eps;
    ref_rms_norm_back(&plain);
}
static struct gcuda_tensor * build_ends_back(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    return build_rms_norm_back(ctx, in, &((const struct ends_p *) p)->eps);
}

static void fill_equal(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    (void) r;
    FOR_ARR(a) { AT(a, i0, i1, i2, i3) = ((const struct ends_p *) c->p)->size[k]; }
}
TEST(norm_ends) {
    static const double sizes[] = { 2e19, 3e38, 1e30, 4e-22, 1e-15, 1e-20, 1e-30, 4e-38 };
    for (int i = 0; i < 3 * 8; ++i) {
        const char kind = "mrl"[i % 3];
        const double size = sizes[i / 3], eps = i / 3 % 4 < 2 ? 0.0
                                                : size > 1.0  ? 1e-5
                                                : kind == 'l' ? 8.0 * size
                                                              : 0.5 * size * size;
        const struct ends_p p = { { kind, (double) (float) eps }, 0.0, { size, size }, i / 3 % 2 != 0 };
        struct op_test t = { .types = "F32 BF16",
            .shapes = "4 33,3 255,2 300,3 516 1000,2 2050 5000 16384 16383 20000,2 20001",
            .n_in = 1,
            .build = build_norm,
            .inplace = build_norm_inplace,
            .ref = ref_norm,
            .p = &p,
            .max_nmse = 1e-7,
            .tag = tagf("%c,size=%g,eps=%g", kind, size, p.norm.eps),
            .in = { { .fill = fill_ends } } };
        op_test_run(&t);
    }
    // 2^127, 2^100, 2^74
    static const double powers[] = { 1.7014118346046923e38, 1.2676506002282294e30, 1.8889465931478581e22 };
    for (int i = 0; i < 3; ++i) { // rows of equal elements, of sizes whose mean is exact: 0 over the root of eps
        const struct ends_p p = { { 'm', (double) 1e-5f }, 0.0, { powers[i], 0.0 }, true };
        struct op_test t = { .types = "F32 BF16",
            .shapes = "4 32,3 256,2 512 1024,2 2048 4096 16384 32768,2",
            .n_in = 1,
            .build = build_norm,
            .inplace = build_norm_inplace,
            .ref = ref_norm,
            .p = &p,
            .max_nmse = 1e-7,
            .tag = tagf("equal,size=%g", powers[i]),
            .in = { { .fill = fill_equal } } };
        op_test_run(&t);
    }
}
// Subnormal rows: one element of size[0], or all of them multiples of it up to 7.
static void fill_subnormal(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    const struct ends_p * p = (const struct ends_p *) c->p;
    (void) k;
    for (int64_t i = 0; i < arr_n(a); ++i) {
        const bool is_one = i % a->ne[0] == a->ne[0] * 3 / 5;
        a->d[i] = p->is_positive ? is_one ? p->size[0] : 0.0 : p->size[0] * (double) (rng_below(r, 15) - 7);
    }
}
// each element to 6 digits of the row's root of squares
static const char * judge_digits(const struct op_case * c, const struct arr * got) {
    const struct arr * want = c->out;
    FOR_ROWS(want) {
        double squares = 0.0;
        for (int64_t i = 0; i < want->ne[0]; ++i) {
            squares += AT(want, i, i1, i2, i3) * AT(want, i, i1, i2, i3) / (double) want->ne[0];
        }
        for (int64_t i = 0; i < want->ne[0]; ++i) {
            const double w = AT(want, i, i1, i2, i3), g = AT(got, i, i1, i2, i3),
                         digits = c->types[0] == GCUDA_TYPE_BF16 ? 1.0 / 128.0 : 2e-6;
            if (!(fabs(g - w) <= digits * (fabs(w) + sqrt(squares)))) {
                return tagf("element %" PRId64 " of row %" PRId64 ": want %.9g, got %.9g", i, i1, w, g);
            }
        }
    }
    return NULL;
}
TEST(norm_subnormal) {                                                  // rows of one block, and of several
    static const double sizes[] = { 0x1.306p-128, 0x1p-149, 0x1p-133 }; // 3.5e-39; the least of F32 and of BF16
    for (int i = 0; i < 3 * 3 * 2; ++i) {
        const char kind = "mrl"[i % 3];
        const double size = sizes[i / 3 % 3];
        const struct ends_p p = { { kind, 0.0 }, 0.0, { size, size }, i < 9 };
        char tag[64];
        snprintf(tag, sizeof tag, "%c,%s,size=%g", kind, i < 9 ? "one" : "all", size);
        const struct op_test t = { .types = size < 0x1p-133 ? "F32" : "F32 BF16",
            .shapes = "100,2 1000,2 16384 20000,2 20001,2",
            .n_in = 1,
            .build = build_norm,
            .inplace = build_norm_inplace,
            .ref = ref_norm,
            .p = &p,
            .judge = judge_digits,
            .tag = tag,
            .in = { { .fill = fill_subnormal } } };
        op_test_run(&t);
    }
}
TEST(rms_norm_back_ends) {
    static const double sizes[][2] = { { 1, 2e19 }, { 1, 3e38 }, { 3e38, 3e37 }, { 1, 1e-22 }, { 1e-30, 1e-10 },
        { 1e-38, 1e19 }, { 1e10, 1e35 }, { 1e-37, 1e-37 } };
    for (int i = 0; i < 8; ++i) {
        const struct ends_p p = { { 'r', 0.0 }, 0.0, { sizes[i][0], sizes[i][1] }, i % 2 != 0 };
        struct op_test t = { .types = "F32 BF16",
            .shapes = "4 33,3 255,2 300,3 516 1000,2 5000 16384 20000 20001",
            .n_in = 2,
            .build = build_ends_back,
            .ref = ref_ends_back,
            .p = &p,
            .max_nmse = 1e-7,
            .tag = tagf("sizes=%g,%g", sizes[i][0], sizes[i][1]),
            .in = { { .fill = fill_ends }, { .fill = fill_ends } } };
        op_test_run(&t);
    }
}

struct group_p {
    int n_groups;
    double eps;
};
static void ref_group_norm(const struct op_case * c) {
    const struct group_p * p = (const struct group_p *) c->p;
    const struct arr * a = c->in[0];
    const int64_t gs = (a->ne[2] + p->n_groups - 1) / p->n_groups;
    arr_like(c->out, a);
    for (int64_t i3 = 0; i3 < a->ne[3]; ++i3) {
        for (int64_t first = 0; first < a->ne[2]; first += gs) {
            const int64_t n_ch = a->ne[2] - first < gs ? a->ne[2] - first : gs;
            const struct norm_p rows = { 'm', p->eps }; // a group is one long row
            norm_row(&rows, &AT(a, 0, 0, first, i3), &AT(c->out, 0, 0, first, i3), a->ne[0] * a->ne[1] * n_ch);
        }
    }
}
static struct gcuda_tensor * build_group_norm(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    const struct group_p * g = (const struct group_p *) p;
    return gcuda_group_norm(ctx, in[0], g->n_groups, (float) g->eps);
}
static struct gcuda_tensor * build_group_norm_inplace(
    struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    const struct group_p * g = (const struct group_p *) p;
    return gcuda_group_norm_inplace(ctx, in[0], g->n_groups, (float) g->eps);
}
static void fill_group_ends(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    (void) k;
    for (int64_t i = 0; i < arr_n(a); ++i) {
        a->d[i] = rng_between(r, -1, 1) * (((const struct group_p *) c->p)->n_groups == 3 ? 3e38 : 1e-25);
    }
}
TEST(group_norm_ends) { // as norm_ends; groups that are rows and others
    static const struct group_p all[] = { { 3, 0.0 }, { 2, 0.0 } };
    for (int i = 0; i < 2; ++i) {
        const struct op_test t = { .types = "F32 BF16",
            .shapes = "5,3,9,2 5,3,10,2 7,5,7 60,40,27",
            .n_in = 1,
            .build = build_group_norm,
            .inplace = build_group_norm_inplace,
            .ref = ref_group_norm,
            .p = &all[i],
            .tag = i == 0 ? "large" : "small",
            .max_nmse = 1e-7,
            .in = { { .fill = fill_group_ends, .layouts = LAYOUT_ROWS } } };
        op_test_run(&t);
    }
}
TEST(group_norm) { // >>op:group_norm; channels need not divide
    static const struct group_p all[] = { { 1, 1e-6f }, { 4, 1e-6f }, { 3, 1e-5f }, { 32, 1e-6f }, { 7, 0.1f } };
    for (int i = 0; i < 5; ++i) {
        struct op_test t = { .types = "F32 F16 BF16",
            .shapes = "8,8,32,2 5,3,10,3 9,9,64 3,2,7,2 300,9,40",
            .n_in = 1,
            .build = build_group_norm,
            .inplace = build_group_norm_inplace,
            .ref = ref_group_norm,
            .p = &all[i],
            .tag = tagf("groups=%d", all[i].n_groups),
            .max_nmse = 1e-7,
            .in = { { .layouts = LAYOUT_OFFSET } } };
        op_test_run(&t);
    }
    const struct op_test rows = { .types = "F32 F16 BF16",
        .shapes = "5,3,10,3 9,9,8 0,3,4 3,0,4 3,2,0 3,2,4,0",
        .n_in = 1,
        .build = build_group_norm,
        .inplace = build_group_norm_inplace,
        .ref = ref_group_norm,
        .p = &all[1],
        .tag = "rows",
        .max_nmse = 1e-7,
        .in = { { .layouts = LAYOUT_ROWS } } };
    op_test_run(&rows);
    const struct op_test long_rows = { .types = "F32 F16 BF16",
        .shapes = "50,40,40,2",
        .n_in = 1,
        .build = build_group_norm,
        .inplace = build_group_norm_inplace,
        .ref = ref_group_norm,
        .p = &all[1],
        .tag = "long",
        .max_nmse = 1e-7,
        .in = { { 0 } } };
    op_test_run(&long_rows);
    if (test_full()) {
        const struct op_test t = { .types = "F32",
            .shapes = "64,64,320 9,9,1280",
            .n_in = 1,
            .build = build_group_norm,
            .ref = ref_group_norm,
            .p = &all[3],
            .tag = "large",
            .max_nmse = 1e-7,
            .in = { { 0 } } };
        op_test_run(&t);
    }
}

// =====================================================================================================================
// >>reductions   sum, sum_rows, mean, cumsum, argmax, count_equal
// =====================================================================================================================
static void ref_sum(const struct op_case * c) {
    arr_new(c->out, 1, 1, 1, 1);
    for (int64_t i = 0; i < arr_n(c->in[0]); ++i) { c->out->d[0] += c->in[0]->d[i]; }
}
static struct gcuda_tensor * build_sum(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    (void) p;
    return gcuda_sum(ctx, in[0]);
}
TEST(sum) { // >>op:sum
    const struct op_test t = { .types = "F32 F16 BF16",
        .shapes = "1 255 256 257 33,1024 11,5,6,3 100001 0,3",
        .n_in = 1,
        .build = build_sum,
        .ref = ref_sum,
        .max_nmse = 1e-7,
        .in = { { .lo = -1, .hi = 1.5, .layouts = LAYOUT_ANY } } };
    op_test_run(&t);
}

struct rows_p {
    bool mean;
};
static void ref_sum_rows(const struct op_case * c) {
    const struct arr * a = c->in[0];
    arr_new(c->out, 1, a->ne[1], a->ne[2], a->ne[3]);
    FOR_ARR(a) {
        AT(c->out, 0, i1, i2, i3) +=
            AT(a, i0, i1, i2, i3) / (((const struct rows_p *) c->p)->mean ? (double) a->ne[0] : 1.0);
    }
}
static struct gcuda_tensor * build_sum_rows(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    return (((const struct rows_p *) p)->mean ? gcuda_mean : gcuda_sum_rows)(ctx, in[0]);
}
TEST(sum_rows) { // >>op:sum_rows
    static const struct rows_p p = { false };
    const struct op_test t = { .types = "F32 F16 BF16",
        .shapes = "1 10,5,4,3 257,3 33,256 32769 3,0",
        .n_in = 1,
        .build = build_sum_rows,
        .ref = ref_sum_rows,
        .p = &p,
        .max_nmse = 1e-7,
        .in = { { .layouts = LAYOUT_ANY } } };
    op_test_run(&t);
}
TEST(mean) { // >>op:mean
    static const struct rows_p p = { true };
    const struct op_test t = { .types = "F32 F16>F32 BF16>F32",
        .shapes = "1 10,5,4,3 257,3 33,256 32769 3,0",
        .n_in = 1,
        .build = build_sum_rows,
        .ref = ref_sum_rows,
        .p = &p,
        .max_nmse = 1e-7,
        .in = { { .layouts = LAYOUT_ANY } } };
    op_test_run(&t);
}

// each half of a row has a sum beyond F32
static void fill_cancelling(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    (void) r, (void) c, (void) k;
    const int64_t n = a->ne[0];
    for (int64_t i = 0; i < arr_n(a); ++i) {
        const int64_t at = i % n;
        a->d[i] = at == 0 ? 1e38 : n % 2 != 0 && at == n - 1 ? 0.0 : at < n / 2 ? 3e38 : -3e38;
    }
}
TEST(sums_beyond_f32) { // of rows, whose sum or mean F32 holds
    static const struct rows_p all[] = { { false }, { true } };
    for (int i = 0; i < 2; ++i) {
        const struct op_test t = { .types = "F32>F32 BF16>F32",
            .shapes = "4 33,4 256,3 1000,2 2048,3 5000,2 40000 262144",
            .n_in = 1,
            .build = build_sum_rows,
            .ref = ref_sum_rows,
            .p = &all[i],
            .tag = i ? "mean" : "sum",
            .max_nmse = 1e-7,
            .in = { { .fill = fill_cancelling } } };
        struct op_test u = t;
        if (i == 0) { u.types = "F32 BF16"; }
        op_test_run(&u);
    }
}

static void ref_cumsum(const struct op_case * c) {
    arr_like(c->out, c->in[0]);
    FOR_ARR(c->out) {
        AT(c->out, i0, i1, i2, i3) = AT(c->in[0], i0, i1, i2, i3) + (i0 > 0 ? AT(c->out, i0 - 1, i1, i2, i3) : 0.0);
    }
}
static struct gcuda_tensor * build_cumsum(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    (void) p;
    return gcuda_cumsum(ctx, in[0]);
}
TEST(cumsum) { // >>op:cumsum
    struct op_test t = { .types = "F32",
        .shapes = "1 10,5,4,3 127,5 128,5 255,2 256,2 257,2 511 512 2047,5 2048,5 "
                  "20481,4 5003,2 17000,43 36868,5 0,2",
        .n_in = 1,
        .build = build_cumsum,
        .ref = ref_cumsum,
        .max_nmse = 1e-7,
        .in = { { .layouts = LAYOUT_ROWS } } };
    op_test_run(&t);
    t.shapes = "242004", t.tag = "long";
    op_test_run(&t);
    t.types = "F32 F16 BF16", t.shapes = "10,5,4,3 257,2 2048,3", t.tag = "any", t.in[0].layouts = LAYOUT_ANY;
    op_test_run(&t);
    t.types = "F16 BF16", t.shapes = "20481,2", t.tag = "long", t.in[0].layouts = 0;
    op_test_run(&t);
}

// ones, a large one, an infinite end
static void fill_growing(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    (void) r, (void) c, (void) k;
    for (int64_t i = 0; i < arr_n(a); ++i) {
        const int64_t at = i % a->ne[0], row = i / a->ne[0];
        a->d[i] = at == a->ne[0] - 1 ? -HUGE_VAL : at == a->ne[0] * (2 + row % 3) / 5 ? 1e9 : 1.0;
    }
}
// each sum by the elements up to its own
static const char * judge_growing(const struct op_case * c, const struct arr * got) {
    const struct arr * a = c->in[0];
    for (int64_t i = 0; i < arr_n(a); ++i) {
        const double want = c->out->d[i], bound = (c->types[0] == GCUDA_TYPE_BF16 ? 1.0 / 128.0 : 1e-6) * fabs(want);
        if (isinf(want) ? got->d[i] != want : !(fabs(got->d[i] - want) <= bound)) {
            return tagf("element %" PRId64 ": want %.9g, got %.9g", i, want, got->d[i]);
        }
    }
    return NULL;
}
TEST(cumsum_large) { // no element reaches a sum before it
    const struct op_test t = { .types = "F32 BF16",
        .shapes = "8 33,2 1000,3 4096 20481,4 242004",
        .n_in = 1,
        .build = build_cumsum,
        .ref = ref_cumsum,
        .judge = judge_growing,
        .in = { { .fill = fill_growing, .layouts = LAYOUT_ROWS } } };
    op_test_run(&t);
}

// Sums of a vector, a warp, a block or a part leave F32 though no sum from the beginning of the row does; p: the length
// of runs.
static void fill_returning(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    const int64_t run = *(const int64_t *) c->p, n = a->ne[0];
    const double large = c->types[k] == GCUDA_TYPE_BF16 ? 0x1.FEp127 : (double) FLT_MAX;
    (void) r;
    // -large, 0 ..., large, large, 0 ..., -large: from -large to large and back
    for (int64_t i = 0; i < arr_n(a); ++i) {
        const int64_t at = i % n, turn = at / run % 2;
        a->d[i] = at == 0                     ? -large
                  : at % run == 0             ? (turn ? large : -large)
                  : at % run == 1 && at > run ? (turn ? large : -large)
                                              : 0.0;
    }
}
static const char * judge_returning(const struct op_case * c, const struct arr * got) {
    for (int64_t i = 0; i < arr_n(c->out); ++i) { // the sums are exact
        const double want = c->out->d[i];
        if (got->d[i] != want) { return tagf("element %" PRId64 ": want %.9g, got %.9g", i, want, got->d[i]); }
    }
    return NULL;
}
static void fill_report(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    static const double x[8] = { -1, 0, 0, 0, 1, 1, -1, 0 };
    (void) r, (void) c, (void) k;
    for (int64_t i = 0; i < arr_n(a); ++i) { a->d[i] = x[i % 8] * (double) FLT_MAX; }
}
TEST(cumsum_returns) { // to F32 from beyond it
    static const int64_t runs[] = { 2, 3, 4, 33, 1023, 4099, 20000 };
    const struct op_test report = { .types = "F32",
        .shapes = "8",
        .n_in = 1,
        .build = build_cumsum,
        .ref = ref_cumsum,
        .judge = judge_returning,
        .tag = "report",
        .in = { { .fill = fill_report, .layouts = LAYOUT_ROWS } } };
    op_test_run(&report);
    for (int i = 0; i < 7; ++i) {
        char tag[64];
        snprintf(tag, sizeof tag, "runs of %d", (int) runs[i]);
        const struct op_test t = { .types = "F32 BF16",
            .shapes = "33,2 1000,3 4096 20481,4 242004",
            .n_in = 1,
            .p = &runs[i],
            .build = build_cumsum,
            .ref = ref_cumsum,
            .judge = judge_returning,
            .tag = tag,
            .in = { { .fill = fill_returning, .layouts = LAYOUT_ROWS } } };
        op_test_run(&t);
    }
}

static void ref_argmax(const struct op_case * c) { // the last of equal ones; NaN only where there is nothing else
    const struct arr * a = c->in[0];
    arr_new(c->out, a->ne[1], 1, 1, 1);
    for (int64_t r = 0; r < a->ne[1]; ++r) {
        int64_t best = 0;
        for (int64_t i = 1; i < a->ne[0]; ++i) {
            const double v = AT(a, i, r, 0, 0), top = AT(a, best, r, 0, 0);
            if (v >= top || isnan(top)) { best = i; }
        }
        c->out->d[r] = (double) best;
    }
}
static void fill_ties(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    (void) c, (void) k;
    for (int64_t i = 0; i < arr_n(a); ++i) { a->d[i] = (double) rng_below(r, 4); }
}
static void fill_minus_inf(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    (void) r, (void) c, (void) k;
    for (int64_t i = 0; i < arr_n(a); ++i) { a->d[i] = -HUGE_VAL; }
}
static struct gcuda_tensor * build_argmax(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    (void) p;
    return gcuda_argmax(ctx, in[0]);
}
// NaN of both signs and both infinities among small numbers and zeros of both signs.
static void fill_some_nan(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    fill_ties(r, c, k, a);
    for (int64_t i = 0; i < arr_n(a); ++i) {
        if (a->d[i] == 0.0 && rng_below(r, 2)) { a->d[i] = -0.0; }
        if (i % 3 == 0) { a->d[i] = rng_below(r, 2) ? HUGE_VAL : -HUGE_VAL; }
        if (i % 3 != 2 && rng_below(r, 2)) { a->d[i] = rng_below(r, 2) ? (double) NAN : -(double) NAN; }
    }
}
// in a row -inf or 1, or none
static void fill_hardly_a_number(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    (void) c, (void) k;
    for (int64_t i = 0; i < arr_n(a); ++i) { a->d[i] = rng_below(r, 2) ? (double) NAN : -(double) NAN; }
    for (int64_t row = 0; row < arr_n(a) / a->ne[0]; ++row) {
        if (row % 3 < 2) { a->d[row * a->ne[0] + rng_below(r, a->ne[0])] = row % 3 ? 1.0 : -HUGE_VAL; }
    }
}
TEST(argmax_nan) {
    struct op_test t = { .types = "F32>I32 F16>I32 BF16>I32",
        .shapes = "1 7,3 33,9 257,3 1025,3 8193,4 70001,3",
        .n_in = 1,
        .build = build_argmax,
        .ref = ref_argmax,
        .in = { { .fill = fill_some_nan, .layouts = LAYOUT_OFFSET } } };
    op_test_run(&t);
    t.in[0].fill = fill_hardly_a_number, t.tag = "hardly";
    op_test_run(&t);
}
TEST(argmax) { // >>op:argmax
    struct op_test t = { .types = "F32>I32",
        .shapes = "1 32 100,513 1023,3 1024,3 1025,3 5438,3 70001,2 7,0",
        .n_in = 1,
        .build = build_argmax,
        .ref = ref_argmax,
        .in = { { .fill = fill_distinct, .layouts = LAYOUT_OFFSET } } };
    op_test_run(&t);
    t.shapes = "1 33,9 257,3 70001", t.in[0].fill = fill_ties, t.tag = "ties";
    op_test_run(&t);
    t.in[0].fill = fill_minus_inf, t.tag = "all-inf";
    op_test_run(&t);
    t.types = "F32>I32 F16>I32 BF16>I32", t.shapes = "1 32,3 100,13 1025,3", t.in[0].fill = fill_distinct,
    t.tag = "rows";
    t.in[0].layouts = LAYOUT_ROWS;
    op_test_run(&t);
}

static void ref_count_equal(const struct op_case * c) {
    arr_new(c->out, 1, 1, 1, 1);
    for (int64_t i = 0; i < arr_n(c->in[0]); ++i) { c->out->d[0] += c->in[0]->d[i] == c->in[1]->d[i] ? 1.0 : 0.0; }
}
static struct gcuda_tensor * build_count_equal(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    (void) p;
    return gcuda_count_equal(ctx, in[0], in[1]);
}
TEST(count_equal) { // >>op:count_equal; in all four dimensions
    const struct op_test t = { .types = "I32,I32>I64",
        .shapes = "1 255 4,500 10,5,4,3 257,3 100001 0,3",
        .n_in = 2,
        .build = build_count_equal,
        .ref = ref_count_equal,
        .in = { { .fill = fill_ties, .layouts = LAYOUT_ANY }, { .fill = fill_ties, .layouts = LAYOUT_ANY } } };
    op_test_run(&t);
}

// =====================================================================================================================
// >>sorting
// =====================================================================================================================
struct sort_key {
    double v;
    int64_t i;
};
// NaN after every number in both orders, equal ones by their index.
static int compare_keys(const void * a, const void * b, bool desc) {
    const struct sort_key *x = (const struct sort_key *) a, *y = (const struct sort_key *) b;
    if (isnan(x->v) != isnan(y->v)) { return isnan(x->v) ? 1 : -1; }
    if (x->v < y->v || x->v > y->v) { return (x->v < y->v) != desc ? -1 : 1; }
    return x->i < y->i ? -1 : x->i > y->i;
}
static int compare_up(const void * a, const void * b) { return compare_keys(a, b, false); }
static int compare_down(const void * a, const void * b) { return compare_keys(a, b, true); }
static void ref_argsort(const struct op_case * c) {
    const struct arr * a = c->in[0];
    const bool desc = *(const int *) c->p == GCUDA_SORT_ORDER_DESC;
    const int64_t n = a->ne[0];
    struct sort_key * keys = (struct sort_key *) malloc((size_t) (n + 1) * sizeof *keys);
    arr_like(c->out, a);
    FOR_ROWS(a) {
        for (int64_t i = 0; i < n; ++i) { keys[i].v = AT(a, i, i1, i2, i3), keys[i].i = i; }
        qsort(keys, (size_t) n, sizeof *keys, desc ? compare_down : compare_up);
        for (int64_t i = 0; i < n; ++i) { AT(c->out, i, i1, i2, i3) = (double) keys[i].i; }
    }
    free(keys);
}
static struct gcuda_tensor * build_argsort(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    return gcuda_argsort(ctx, in[0], (enum gcuda_sort_order) * (const int *) p);
}
TEST(argsort) { // >>op:argsort
    for (int order = 0; order < 2; ++order) {
        struct op_test t = { .types = "F32>I32",
            .shapes = "1 8 16,10,10,10 31,2 33,9 60,10,10 63,5 64,3 65,2 1023,2 1024,2 1025,2 257,3 "
                      "2,8,819 2049,3 4096,2 0,3",
            .n_in = 1,
            .build = build_argsort,
            .ref = ref_argsort,
            .p = &order,
            .tag = order ? "desc" : "asc",
            .in = { { .fill = fill_distinct, .layouts = LAYOUT_OFFSET } } };
        op_test_run(&t);
        t.shapes = "8,3 16,5,3,2 257,2,3 1025,2,2 3,0", t.in[0].layouts = LAYOUT_ANY & ~LAYOUT_OFFSET;
        op_test_run(&t);
        t.shapes = test_full() ? "16384 65535 1048576" : "16384 100003", t.in[0].layouts = 0;
        op_test_run(&t);
        t.shapes = "1 33,9 64,2 257,3 5000 100003,2", t.in[0].fill = fill_ties,
        t.tag = order ? "desc-ties" : "asc-ties";
        op_test_run(&t);
        t.types = "F16>I32 BF16>I32", t.shapes = "1 33,9 257,3 4096,2 9001,2 3,0",
        t.in[0].layouts = LAYOUT_OFFSET | LAYOUT_TRANSPOSED;
        op_test_run(&t);
    }
}

TEST(argsort_nan) {
    for (int order = 0; order < 2; ++order) {
        const struct op_test t = { .types = "F32>I32",
            .shapes = "7 33,9 64,2000 257,3 4096,2 5000 100003",
            .n_in = 1,
            .build = build_argsort,
            .ref = ref_argsort,
            .p = &order,
            .tag = order ? "desc" : "asc",
            .in = { { .fill = fill_some_nan } } };
        op_test_run(&t);
        struct op_test half = t;
        half.types = "F16>I32 BF16>I32", half.shapes = "7 33,9 257,3 5000";
        op_test_run(&half);
    }
}

static void ref_top_k_shape(const struct op_case * c) {
    const struct arr * a = c->in[0];
    arr_new(c->out, *(const int *) c->p, a->ne[1], a->ne[2], a->ne[3]);
}
// In any order: those that are first in descending order, each once.
static const char * judge_top_k(const struct op_case * c, const struct arr * got) {
    const struct arr * a = c->in[0];
    const char * wrong = NULL;
    struct sort_key * keys = (struct sort_key *) malloc((size_t) (a->ne[0] + 1) * sizeof *keys);
    char * wanted = (char *) malloc((size_t) a->ne[0] + 1);
    FOR_ROWS(a) {
        for (int64_t i = 0; i < a->ne[0]; ++i) { keys[i].v = AT(a, i, i1, i2, i3), keys[i].i = i; }
        qsort(keys, (size_t) a->ne[0], sizeof *keys, compare_down);
        memset(wanted, 0, (size_t) a->ne[0] + 1);
        for (int64_t i = 0; i < got->ne[0]; ++i) { wanted[keys[i].i] = 1; }
        for (int64_t i = 0; i < got->ne[0]; ++i) {
            const double at = AT(got, i, i1, i2, i3);
            if (!(at >= 0 && at < (double) a->ne[0])) {
                wrong = "an index is out of range";
                break;
            }
            if (!wanted[(int64_t) at]--) {
                wrong = "an index comes twice, or a larger or earlier element was left out";
                break;
            }
        }
    }
    free(keys);
    free(wanted);
    return wrong;
}
static struct gcuda_tensor * build_top_k(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    return gcuda_top_k(ctx, in[0], *(const int *) p);
}
static struct gcuda_tensor * build_argsort_top_k(
    struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    return gcuda_argsort_top_k(ctx, in[0], *(const int *) p);
}
TEST(top_k) { // >>op:top_k
    static const int ks[] = { 1, 2, 7, 100, 300 };
    for (int i = 0; i < 5; ++i) {
        struct op_test t = { .types = "F32>I32",
            .shapes = i < 4 ? "100 128,5,4,3 1025,3 257,2 3000,3 6001,2" : "1025,3 3000,3 6001,2",
            .n_in = 1,
            .build = build_top_k,
            .ref = ref_top_k_shape,
            .judge = judge_top_k,
            .p = &ks[i],
            .tag = tagf("k=%d", ks[i]),
            .in = { { .fill = fill_distinct, .layouts = LAYOUT_OFFSET } } };
        op_test_run(&t);
        if (i < 3) {
            t.shapes = "7,3 32,2 40,16 64,5 65,2";
            op_test_run(&t);
        }
        t.shapes = i < 4 ? "101,4,3,2 1030,2 3001,2 128,0,2 128,2,0" : "1030,2 3001,2 400,0";
        t.in[0].layouts = LAYOUT_ANY & ~LAYOUT_OFFSET;
        op_test_run(&t);
        t.in[0].layouts = LAYOUT_OFFSET;
        t.in[0].fill = fill_ties, t.shapes = i < 4 ? "100 128,9 3000,3" : "3000,3", t.tag = tagf("k=%d-ties", ks[i]);
        op_test_run(&t);
        t.in[0].fill = fill_some_nan, t.shapes = i < 4 ? "100 257,9 3000,3 20001,2" : "3000,3",
        t.tag = tagf("k=%d-nan", ks[i]);
        op_test_run(&t);
        t.in[0].fill = fill_hardly_a_number;
        op_test_run(&t);
        t.in[0].fill = fill_ties, t.shapes = i < 4 ? "100 128,9 3000,3" : "3000,3";
        t.build = build_argsort_top_k, t.aliases = true, t.tag = tagf("k=%d-sorted", ks[i]);
        op_test_run(&t);
        t.types = "F16>I32 BF16>I32", t.shapes = i < 4 ? "128,9 1000,2 9001,2" : "400,9 9001,2",
        t.in[0].layouts = LAYOUT_TRANSPOSED;
        op_test_run(&t);
        t.build = build_top_k, t.aliases = false, t.tag = tagf("k=%d-16-bit", ks[i]);
        op_test_run(&t);
    }
}

// =====================================================================================================================
// >>training   cross_entropy_loss and back, adamw, sgd
// =====================================================================================================================
static void fill_labels(struct rng * r, const struct op_case * c, int k, struct arr * a) { // each row a distribution
    (void) c, (void) k;
    FOR_ROWS(a) {
        double sum = 0.0;
        for (int64_t i = 0; i < a->ne[0]; ++i) { sum += AT(a, i, i1, i2, i3) = rng_between(r, 0.01, 1); }
        for (int64_t i = 0; i < a->ne[0]; ++i) { AT(a, i, i1, i2, i3) /= sum; }
    }
}
// Logarithm of soft_max: the maximum is subtracted first: added to 3e38 the logarithm of the sum would be lost in
// double too.
struct log_sum {
    double max, log;
};
static struct log_sum row_log_sum_exp(const double * x, int64_t n) {
    double m = -HUGE_VAL, z = 0.0;
    for (int64_t i = 0; i < n; ++i) { m = fmax(m, x[i]); }
    for (int64_t i = 0; i < n; ++i) { z += exp(x[i] - m); }
    return (struct log_sum){ m, log(z) };
}
static double log_soft(double x, struct log_sum l) { return (x - l.max) - l.log; }
static void ref_cross_entropy(const struct op_case * c) {
    const struct arr * a = c->in[0];
    const double rows = (double) (a->ne[1] * a->ne[2] * a->ne[3]);
    arr_new(c->out, 1, 1, 1, 1);
    FOR_ROWS(a) {
        const struct log_sum l = row_log_sum_exp(&AT(a, 0, i1, i2, i3), a->ne[0]);
        for (int64_t i = 0; i < a->ne[0]; ++i) {
            const double b = AT(c->in[1], i, i1, i2, i3);
            c->out->d[0] -= b != 0.0 ? log_soft(AT(a, i, i1, i2, i3), l) * b / rows : 0.0; // of a logit of -inf too
        }
    }
}
static struct gcuda_tensor * build_cross_entropy(
    struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    (void) p;
    return gcuda_cross_entropy_loss(ctx, in[0], in[1]);
}
TEST(cross_entropy_loss) { // >>op:cross_entropy_loss
    struct op_test t = { .types = "F32",
        .shapes = "2 10,5,4,3 257,3 30000 70001,2 4093,2 7,400 5000,3 3,1030 0,3 5,0",
        .n_in = 2,
        .build = build_cross_entropy,
        .ref = ref_cross_entropy,
        .max_nmse = 1e-7,
        .in = {
            { .lo = -100, .hi = 100, .layouts = LAYOUT_OFFSET }, { .fill = fill_labels, .layouts = LAYOUT_OFFSET } } };
    op_test_run(&t);
    t.types = "F16>F32 BF16>F32 F16,F32>F32 F32,BF16>F32", t.shapes = "2 10,5,4,3 257,3 30000 4093,2 5000,3";
    op_test_run(&t);
}

// Logits of -inf, and whole rows of them, whose labels are 0; the other labels are a distribution.
static void fill_masked_logits(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    (void) c, (void) k;
    FOR_ARR(a) {
        const bool is_masked = a->ne[1] > 2 ? i1 == 1 : false;
        AT(a, i0, i1, i2, i3) = is_masked || i0 % 3 == 1 ? -HUGE_VAL : rng_between(r, -4, 4);
    }
}
static void fill_masked_labels(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    const struct arr * x = c->in[k - 1];
    (void) r;
    FOR_ARR(a) {
        AT(a, i0, i1, i2, i3) = isinf(AT(x, i0, i1, i2, i3)) ? 0.0 : 1.0 / (double) (a->ne[0] - (a->ne[0] + 1) / 3);
    }
}
TEST(cross_entropy_loss_masked) { // one row, few, many, in all types: 0 ln 0 is 0
    struct op_test t = { .types = "F32 F16>F32 F32,BF16>F32",
        .shapes = "4 10,5,4,3 257,3 7,400 5000,3 4096,2 3,1030",
        .n_in = 2,
        .build = build_cross_entropy,
        .ref = ref_cross_entropy,
        .max_nmse = 1e-5,
        .in = { { .fill = fill_masked_logits, .layouts = LAYOUT_OFFSET },
            { .fill = fill_masked_labels, .layouts = LAYOUT_OFFSET } } };
    op_test_run(&t);
}

// Logits near a large number, a multiple of 1/64 apart: F32 represents these up to 1e5. Above that all are equal and a
// row loses ln n.
static void fill_far_logits(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    const double far = *(const double *) c->p;
    (void) k;
    FOR_ARR(a) { AT(a, i0, i1, i2, i3) = fabs(far) > 2e5 ? far : far + floor(rng_between(r, -200, 200)) / 64.0; }
}
// the last: the largest of BF16
static const double far_logits[] = { 1e5, -1e5, 1e9, 3.3895313892515355e38, -3.3895313892515355e38 };
TEST(cross_entropy_loss_far) { // the kernels for one row, few, many, packed and not
    for (int i = 0; i < 5; ++i) {
        const struct op_test t = { .types = i < 2 ? "F32 F32,BF16>F32" : "F32 BF16>F32",
            .shapes = "4 10,5,4,3 257,3 7,400 5000,3 4096,2 3,1030",
            .n_in = 2,
            .build = build_cross_entropy,
            .ref = ref_cross_entropy,
            .p = &far_logits[i],
            .max_nmse = 1e-10,
            .tag = tagf("%g", far_logits[i]),
            .in = { { .fill = fill_far_logits, .layouts = LAYOUT_OFFSET },
                { .fill = fill_labels, .layouts = LAYOUT_OFFSET } } };
        op_test_run(&t);
    }
}

static void ref_cross_entropy_back(const struct op_case * c) { // grad, logits, labels
    const struct arr * x = c->in[1];
    const double rows = (double) (x->ne[1] * x->ne[2] * x->ne[3]);
    arr_like(c->out, x);
    FOR_ROWS(x) {
        const struct log_sum l = row_log_sum_exp(&AT(x, 0, i1, i2, i3), x->ne[0]);
        for (int64_t i = 0; i < x->ne[0]; ++i) {
            AT(c->out, i, i1, i2, i3) =
                (exp(log_soft(AT(x, i, i1, i2, i3), l)) - AT(c->in[2], i, i1, i2, i3)) * c->in[0]->d[0] / rows;
        }
    }
}
static struct gcuda_tensor * build_cross_entropy_back(
    struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    (void) p;
    return gcuda_cross_entropy_loss_back(ctx, in[0], in[1], in[2]);
}
TEST(cross_entropy_loss_back) { // >>op:cross_entropy_loss_back
    struct op_test t = { .types = "F32",
        .shapes = "1|2|2 1|10,5,4,3|10,5,4,3 1|257,3|257,3 1|30000|30000 "
                  "1|70001,2|70001,2 1|0,3|0,3 1|5,0|5,0",
        .n_in = 3,
        .build = build_cross_entropy_back,
        .ref = ref_cross_entropy_back,
        .max_nmse = 1e-7,
        .in = { { .lo = 0.5, .hi = 2 }, { .lo = -20, .hi = 20, .layouts = LAYOUT_OFFSET },
            { .fill = fill_labels, .layouts = LAYOUT_OFFSET } } };
    op_test_run(&t);
    t.types = "F32,F16>F16 F32,BF16>BF16 F32,F16,F32>F16 F32,F32,BF16>F32",
    t.shapes = "1|2|2 1|10,5,4,3|10,5,4,3 1|257,3|257,3";
    op_test_run(&t);
    t.types = "F32 F32,F16>F16 F32,F32,BF16>F32", t.shapes = "1|4|4 1|10,2,4,3|10,2,4,3 1|257,2|257,2",
    t.tag = "masked";
    t.in[1].fill = fill_masked_logits, t.in[2].fill = fill_masked_labels;
    op_test_run(&t);
    for (int i = 0; i < 5; ++i) {
        t.types = i < 2 ? "F32 F32,F32,BF16>F32" : "F32 F32,BF16>BF16", t.tag = tagf("far=%g", far_logits[i]),
        t.p = &far_logits[i];
        t.shapes = "1|4|4 1|10,2,4,3|10,2,4,3 1|257,2|257,2 1|4096,2|4096,2", t.in[1].fill = fill_far_logits,
        t.in[2].fill = fill_labels;
        op_test_run(&t);
    }
}

static void fill_adamw(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    const double v[7] = { 0.001, 0.9, 0.999, 1e-8, 0.01, 1.0 / (1.0 - 0.9 * 0.9), 1.0 / (1.0 - 0.999 * 0.999) };
    (void) r, (void) c, (void) k;
    memcpy(a->d, v, sizeof v);
}
static void ref_adamw(const struct op_case * c) { // a, grad, m, v, params
    const double * p = c->in[4]->d;
    struct arr *m = c->after[2], *v = c->after[3];
    arr_copy(c->out, c->in[0]);
    arr_copy(m, c->in[2]);
    arr_copy(v, c->in[3]);
    for (int64_t i = 0; i < arr_n(c->out); ++i) {
        const double g = c->in[1]->d[i];
        m->d[i] = m->d[i] * p[1] + g * (1.0 - p[1]);
        v->d[i] = v->d[i] * p[2] + g * g * (1.0 - p[2]);
        c->out->d[i] = c->out->d[i] * (1.0 - p[0] * p[4]) - p[0] * (m->d[i] * p[5]) / (sqrt(v->d[i] * p[6]) + p[3]);
    }
}
static struct gcuda_tensor * build_adamw(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    (void) p;
    return gcuda_opt_step_adamw(ctx, in[0], in[1], in[2], in[3], in[4]);
}
TEST(opt_step_adamw) { // >>op:opt_step_adamw; a, m and v change
    const struct op_in unit = { .lo = 0, .hi = 1 };
    const struct op_test t = { .types = "F32",
        .n_in = 5,
        .build = build_adamw,
        .ref = ref_adamw,
        .max_nmse = 1e-7,
        .aliases = true,
        .shapes = "1|1|1|1|7 10,5,4,3|10,5,4,3|10,5,4,3|10,5,4,3|7 257,3|257,3|257,3|257,3|7 "
                  "0,3|0,3|0,3|0,3|7 5,0|5,0|5,0|5,0|7",
        .in = { { .lo = 0, .hi = 1, .is_param = true }, unit, unit, unit, { .fill = fill_adamw } } };
    op_test_run(&t);
}

static void fill_sgd(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    (void) r, (void) c, (void) k;
    a->d[0] = 0.05, a->d[1] = 0.02;
}
static void ref_sgd(const struct op_case * c) {
    const double * p = c->in[2]->d;
    arr_copy(c->out, c->in[0]);
    for (int64_t i = 0; i < arr_n(c->out); ++i) {
        c->out->d[i] = c->out->d[i] * (1.0 - p[0] * p[1]) - p[0] * c->in[1]->d[i];
    }
}
static struct gcuda_tensor * build_sgd(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    (void) p;
    return gcuda_opt_step_sgd(ctx, in[0], in[1], in[2]);
}
TEST(opt_step_sgd) { // >>op:opt_step_sgd
    const struct op_test t = { .types = "F32",
        .n_in = 3,
        .build = build_sgd,
        .ref = ref_sgd,
        .max_nmse = 1e-7,
        .aliases = true,
        .shapes = "1|1|2 10,5,4,3|10,5,4,3|2 257,3|257,3|2 0,3|0,3|2 5,0|5,0|2",
        .in = { { .lo = 0, .hi = 1, .is_param = true }, { 0 }, { .fill = fill_sgd } } };
    op_test_run(&t);
}
