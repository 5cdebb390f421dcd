// Normalisations: ops.md 3.4. Reductions, scans, sorting: 3.5. Training: 3.11.

// =====================================================================================================================
// >>norms   along dimension 0
// =====================================================================================================================
struct norm_p { char kind; double eps; }; // m: mean and variance, r: root mean square, l: length
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
    return (q->kind == 'm' ? gcuda_norm_inplace : q->kind == 'r' ? gcuda_rms_norm_inplace : gcuda_l2_norm_inplace)(ctx,
        in[0], (float) q->eps);
}
#define NORM_SHAPES "64,5,4,3 1025,3 255,2 256,2 257,2 511 8192,2"

static void run_norm(char kind, unsigned reuse, const char * extra_shapes) {
    static const double eps[] = { 0.0, 1e-6, 1e-4, 0.1 };
    for (int i = 0; i < 4; ++i) {
        const struct norm_p p = { kind, (double) (float) eps[i] };
        struct op_test t = { .types = "F32 F16 BF16", .shapes = NORM_SHAPES, .n_in = 1, .build = build_norm,
            .inplace = build_norm_inplace, .ref = ref_norm, .p = &p, .tag = tagf("eps=%g", eps[i]), .max_nmse = 1e-7,
            .reuse = reuse, .in = { { .lo = -10, .hi = 10, .layouts = LAYOUT_ROWS } } };
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
    const struct op_test far = { .types = "F32", .shapes = "1024,3", .n_in = 1, .build = build_norm, .ref = ref_norm,
        .p = &p, .tag = "far", .max_nmse = 1e-7, .in = { { .fill = fill_far } } };
    op_test_run(&far);
}
TEST(rms_norm) { run_norm('r', 1, "1,5 16896,2 0,3 3,0 70001"); } // >>op:rms_norm
TEST(l2_norm) { run_norm('l', 0, "1,5 0,3 70001"); }              // >>op:l2_norm

TEST(norm_unpacked_rows) { // elements that are not adjacent, of each type and kind; short rows, and such as several blocks share
    static const struct norm_p all[] = { { 'm', 1e-5f }, { 'r', 1e-5f }, { 'l', 1e-5f } };
    for (int i = 0; i < 3; ++i) {
        struct op_test t = { .types = "F32 F16 BF16", .shapes = "65,5,4,3 1,4,3 256,9,2", .n_in = 1, .build = build_norm, .ref = ref_norm,
            .p = &all[i], .tag = tagf("%c", all[i].kind), .max_nmse = 1e-7,
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
        const struct op_test t = { .types = "F32", .shapes = "65,2", .n_in = 1, .build = build_norm,
            .ref = ref_norm_zero_row, .p = &all[i], .tag = tagf("%c,eps=%g", all[i].kind, all[i].eps), .max_nmse = 1e-7,
            .in = { { .fill = fill_zero } } };
        op_test_run(&t);
    }
}

static void ref_rms_norm_back(const struct op_case * c) { // dy, x
    const double eps = *(const double *) c->p;
    const struct arr * dy = c->in[0], * x = c->in[1];
    const double n = (double) x->ne[0];
    arr_like(c->out, x);
    FOR_ROWS(x) {
        double xx = 0.0, xg = 0.0;
        for (int64_t i = 0; i < x->ne[0]; ++i) {
            xx += AT(x, i, i1, i2, i3) * AT(x, i, i1, i2, i3);
            xg += AT(x, i, i1, i2, i3) * AT(dy, i, i1, i2, i3);
        }
        for (int64_t i = 0; i < x->ne[0]; ++i) {
            AT(c->out, i, i1, i2, i3) = (AT(dy, i, i1, i2, i3) - AT(x, i, i1, i2,
                i3) * xg / (xx + n * eps)) / sqrt(xx / n + eps);
        }
    }
}
static struct gcuda_tensor * build_rms_norm_back(struct gcuda_context * ctx, struct gcuda_tensor ** in,
    const void * p) {
    return gcuda_rms_norm_back(ctx, in[0], in[1], (float) *(const double *) p);
}
TEST(rms_norm_back) { // >>op:rms_norm_back
    static const double eps[] = { 0.0, 1e-6f, 0.1f };
    for (int i = 0; i < 3; ++i) {
        const struct op_test t = { .types = "F32 F16 BF16", .shapes = "64,5,4,3 1025,3 255 257,2 0,2 70001", .n_in = 2,
            .build = build_rms_norm_back, .ref = ref_rms_norm_back, .p = &eps[i], .tag = tagf("eps=%g", eps[i]),
            .max_nmse = 1e-7, .reuse = 3, .in = { { .layouts = LAYOUT_ROWS },
            { .lo = -10, .hi = 10, .layouts = LAYOUT_ROWS } } };
        op_test_run(&t);
    }
}

struct group_p { int n_groups; double eps; };
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
static struct gcuda_tensor * build_group_norm_inplace(struct gcuda_context * ctx, struct gcuda_tensor ** in,
    const void * p) {
    const struct group_p * g = (const struct group_p *) p;
    return gcuda_group_norm_inplace(ctx, in[0], g->n_groups, (float) g->eps);
}
TEST(group_norm) { // >>op:group_norm; channels need not divide
    static const struct group_p all[] = { { 1, 1e-6f }, { 4, 1e-6f }, { 3, 1e-5f }, { 32, 1e-6f }, { 7, 0.1f } };
    for (int i = 0; i < 5; ++i) {
        struct op_test t = { .types = "F32 F16 BF16", .shapes = "8,8,32,2 5,3,10,3 9,9,64 3,2,7,2 300,9,40", .n_in = 1,
            .build = build_group_norm, .inplace = build_group_norm_inplace, .ref = ref_group_norm, .p = &all[i],
            .tag = tagf("groups=%d", all[i].n_groups), .max_nmse = 1e-7, .in = { { .layouts = LAYOUT_OFFSET } } };
        op_test_run(&t);
    }
    const struct op_test rows = { .types = "F32 F16 BF16", .shapes = "5,3,10,3 9,9,8 0,3,4 3,0,4 3,2,0 3,2,4,0", .n_in = 1,
        .build = build_group_norm, .inplace = build_group_norm_inplace, .ref = ref_group_norm, .p = &all[1], .tag = "rows",
        .max_nmse = 1e-7, .in = { { .layouts = LAYOUT_ROWS } } };
    op_test_run(&rows);
    const struct op_test long_rows = { .types = "F32 F16 BF16", .shapes = "50,40,40,2", .n_in = 1, .build = build_group_norm,
        .inplace = build_group_norm_inplace, .ref = ref_group_norm, .p = &all[1], .tag = "long", .max_nmse = 1e-7, .in = { { 0 } } };
    op_test_run(&long_rows);
    if (test_full()) {
        const struct op_test t = { .types = "F32", .shapes = "64,64,320 9,9,1280", .n_in = 1, .build = build_group_norm,
            .ref = ref_group_norm, .p = &all[3], .tag = "large", .max_nmse = 1e-7, .in = { { 0 } } };
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
    const struct op_test t = { .types = "F32 F16 BF16", .shapes = "1 255 256 257 33,1024 11,5,6,3 100001 0,3",
        .n_in = 1, .build = build_sum, .ref = ref_sum, .max_nmse = 1e-7,
        .in = { { .lo = -1, .hi = 1.5, .layouts = LAYOUT_ANY } } };
    op_test_run(&t);
}

struct rows_p { bool mean; };
static void ref_sum_rows(const struct op_case * c) {
    const struct arr * a = c->in[0];
    arr_new(c->out, 1, a->ne[1], a->ne[2], a->ne[3]);
    FOR_ARR(a) {
        AT(c->out, 0, i1, i2, i3) += AT(a, i0, i1, i2, i3) / (((const struct rows_p *) c->p)->mean ? (double) a->ne[0]
            : 1.0);
    }
}
static struct gcuda_tensor * build_sum_rows(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    return (((const struct rows_p *) p)->mean ? gcuda_mean : gcuda_sum_rows)(ctx, in[0]);
}
TEST(sum_rows) { // >>op:sum_rows
    static const struct rows_p p = { false };
    const struct op_test t = { .types = "F32 F16 BF16", .shapes = "1 10,5,4,3 257,3 33,256 32769 3,0", .n_in = 1,
        .build = build_sum_rows, .ref = ref_sum_rows, .p = &p, .max_nmse = 1e-7, .in = { { .layouts = LAYOUT_ANY } } };
    op_test_run(&t);
}
TEST(mean) { // >>op:mean
    static const struct rows_p p = { true };
    const struct op_test t = { .types = "F32 F16>F32 BF16>F32", .shapes = "1 10,5,4,3 257,3 33,256 32769 3,0",
        .n_in = 1, .build = build_sum_rows, .ref = ref_sum_rows, .p = &p, .max_nmse = 1e-7,
        .in = { { .layouts = LAYOUT_ANY } } };
    op_test_run(&t);
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
    struct op_test t = { .types = "F32", .shapes = "1 10,5,4,3 127,5 128,5 255,2 256,2 257,2 511 512 2047,5 2048,5 "
        "20481,4 5003,2 17000,43 36868,5 0,2", .n_in = 1,
        .build = build_cumsum, .ref = ref_cumsum, .max_nmse = 1e-7, .in = { { .layouts = LAYOUT_ROWS } } };
    op_test_run(&t);
    t.shapes = "242004", t.tag = "long";
    op_test_run(&t);
    t.types = "F32 F16 BF16", t.shapes = "10,5,4,3 257,2 2048,3", t.tag = "any", t.in[0].layouts = LAYOUT_ANY;
    op_test_run(&t);
    t.types = "F16 BF16", t.shapes = "20481,2", t.tag = "long", t.in[0].layouts = 0;
    op_test_run(&t);
}

static void ref_argmax(const struct op_case * c) { // the last of equal ones
    const struct arr * a = c->in[0];
    arr_new(c->out, a->ne[1], 1, 1, 1);
    for (int64_t r = 0; r < a->ne[1]; ++r) {
        int64_t best = 0;
        for (int64_t i = 1; i < a->ne[0]; ++i) {
            if (AT(a, i, r, 0, 0) >= AT(a, best, r, 0, 0)) { best = i; }
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
TEST(argmax) { // >>op:argmax
    struct op_test t = { .types = "F32>I32", .shapes = "1 32 100,513 1023,3 1024,3 1025,3 5438,3 70001,2 7,0",
        .n_in = 1, .build = build_argmax, .ref = ref_argmax, .in = { { .fill = fill_distinct,
        .layouts = LAYOUT_OFFSET } } };
    op_test_run(&t);
    t.shapes = "1 33,9 257,3 70001", t.in[0].fill = fill_ties, t.tag = "ties";
    op_test_run(&t);
    t.in[0].fill = fill_minus_inf, t.tag = "all-inf";
    op_test_run(&t);
    t.types = "F32>I32 F16>I32 BF16>I32", t.shapes = "1 32,3 100,13 1025,3", t.in[0].fill = fill_distinct, t.tag = "rows";
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
    const struct op_test t = { .types = "I32,I32>I64", .shapes = "1 255 4,500 10,5,4,3 257,3 100001 0,3", .n_in = 2,
        .build = build_count_equal, .ref = ref_count_equal, .in = { { .fill = fill_ties, .layouts = LAYOUT_ANY },
        { .fill = fill_ties, .layouts = LAYOUT_ANY } } };
    op_test_run(&t);
}

// =====================================================================================================================
// >>sorting
// =====================================================================================================================
struct sort_key { double v; int64_t i; };
static int compare_keys(const void * a, const void * b) {
    const double x = ((const struct sort_key *) a)->v, y = ((const struct sort_key *) b)->v;
    return x < y ? -1 : x > y;
}
static void ref_argsort(const struct op_case * c) {
    const struct arr * a = c->in[0];
    const bool desc = *(const int *) c->p == GCUDA_SORT_ORDER_DESC;
    const int64_t n = a->ne[0];
    struct sort_key * keys = (struct sort_key *) malloc((size_t) (n + 1) * sizeof *keys);
    arr_like(c->out, a);
    FOR_ROWS(a) {
        for (int64_t i = 0; i < n; ++i) { keys[i].v = AT(a, i, i1, i2, i3), keys[i].i = i; }
        qsort(keys, (size_t) n, sizeof *keys, compare_keys);
        for (int64_t i = 0; i < n; ++i) { AT(c->out, i, i1, i2, i3) = (double) keys[desc ? n - 1 - i : i].i; }
    }
    free(keys);
}
static struct gcuda_tensor * build_argsort(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    return gcuda_argsort(ctx, in[0], (enum gcuda_sort_order) * (const int *) p);
}

// Equal keys may come in any order: the indices are a permutation and the keys do not decrease (or increase).
static const char * judge_argsort(const struct op_case * c, const struct arr * got) {
    const struct arr * a = c->in[0];
    const bool desc = *(const int *) c->p == GCUDA_SORT_ORDER_DESC;
    const char * wrong = NULL;
    char * seen = (char *) malloc((size_t) a->ne[0] + 1);
    FOR_ROWS(a) {
        memset(seen, 0, (size_t) a->ne[0] + 1);
        double last = desc ? HUGE_VAL : -HUGE_VAL;
        for (int64_t i = 0; i < a->ne[0] && !wrong; ++i) {
            const double at = AT(got, i, i1, i2, i3);
            if (!(at >= 0 && at < (double) a->ne[0])) { wrong = "an index is out of range"; break; }
            if (seen[(int64_t) at]++) { wrong = "an index comes twice"; }
            const double v = AT(a, (int64_t) at, i1, i2, i3);
            if (desc ? v > last : v < last) { wrong = "the keys are not in order"; }
            last = v;
        }
    }
    free(seen);
    return wrong;
}
TEST(argsort) { // >>op:argsort
    for (int order = 0; order < 2; ++order) {
        struct op_test t = { .types = "F32>I32", .shapes = "1 8 16,10,10,10 31,2 33,9 60,10,10 63,5 64,3 65,2 1023,2 1024,2 1025,2 257,3 "
            "2,8,819 2049,3 4096,2 0,3", .n_in = 1,
            .build = build_argsort, .ref = ref_argsort, .p = &order, .tag = order ? "desc" : "asc",
            .in = { { .fill = fill_distinct, .layouts = LAYOUT_OFFSET } } };
        op_test_run(&t);
        t.shapes = "8,3 16,5,3,2 257,2,3 1025,2,2 3,0", t.in[0].layouts = LAYOUT_ANY & ~LAYOUT_OFFSET;
        op_test_run(&t);
        t.shapes = test_full() ? "16384 65535 1048576" : "16384 100003", t.in[0].layouts = 0;
        op_test_run(&t);
        t.shapes = "1 33,9 64,2 257,3 5000 100003,2", t.in[0].fill = fill_ties, t.judge = judge_argsort, t.tag = order
            ? "desc-ties" : "asc-ties";
        op_test_run(&t);
        t.types = "F16>I32 BF16>I32", t.shapes = "1 33,9 257,3 4096,2 9001,2 3,0", t.in[0].layouts = LAYOUT_OFFSET | LAYOUT_TRANSPOSED;
        op_test_run(&t);
    }
}

// NaN has no order, but every index comes once, and what is a number is in order.
static void fill_some_nan(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    fill_ties(r, c, k, a);
    for (int64_t i = 0; i < arr_n(a); i += 3) {
        a->d[i] = rng_below(r, 2) ? (double) NAN : rng_below(r, 2) ? HUGE_VAL : -HUGE_VAL;
    }
}
static const char * judge_permutation(const struct op_case * c, const struct arr * got) {
    const struct arr * a = c->in[0];
    const bool desc = *(const int *) c->p == GCUDA_SORT_ORDER_DESC;
    const char * wrong = NULL;
    char * seen = (char *) malloc((size_t) a->ne[0] + 1);
    FOR_ROWS(a) {
        double last = desc ? HUGE_VAL : -HUGE_VAL;
        memset(seen, 0, (size_t) a->ne[0] + 1);
        for (int64_t i = 0; i < a->ne[0] && !wrong; ++i) {
            const double at = AT(got, i, i1, i2, i3);
            if (!(at >= 0 && at < (double) a->ne[0]) || seen[(int64_t) at]++) { wrong = "not a permutation"; break; }
            const double v = AT(a, (int64_t) at, i1, i2, i3);
            if (isnan(v)) { continue; }
            if (desc ? v > last : v < last) { wrong = "the numbers are not in order"; }
            last = v;
        }
    }
    free(seen);
    return wrong;
}
TEST(argsort_nan) {
    for (int order = 0; order < 2; ++order) {
        const struct op_test t = { .types = "F32>I32", .shapes = "7 33,9 5000 100003", .n_in = 1,
            .build = build_argsort, .ref = ref_argsort, .p = &order, .tag = order ? "desc" : "asc",
            .judge = judge_permutation, .in = { { .fill = fill_some_nan } } };
        op_test_run(&t);
        struct op_test half = t;
        half.types = "F16>I32 BF16>I32", half.shapes = "7 33,9 5000";
        op_test_run(&half);
    }
}

static void ref_top_k_shape(const struct op_case * c) {
    const struct arr * a = c->in[0];
    arr_new(c->out, *(const int *) c->p, a->ne[1], a->ne[2], a->ne[3]);
}
// In any order: no index twice, and the smallest value chosen is not below the largest one left out.
static const char * judge_top_k(const struct op_case * c, const struct arr * got) {
    const struct arr * a = c->in[0];
    const char * wrong = NULL;
    char * seen = (char *) malloc((size_t) a->ne[0] + 1);
    FOR_ROWS(a) {
        double low = HUGE_VAL;
        memset(seen, 0, (size_t) a->ne[0] + 1);
        for (int64_t i = 0; i < got->ne[0]; ++i) {
            const double at = AT(got, i, i1, i2, i3);
            if (!(at >= 0 && at < (double) a->ne[0])) { wrong = "an index is out of range"; break; }
            if (seen[(int64_t) at]++) { wrong = "an index comes twice"; }
            low = fmin(low, AT(a, (int64_t) at, i1, i2, i3));
        }
        for (int64_t i = 0; i < a->ne[0] && !wrong; ++i) {
            if (!seen[i] && AT(a, i, i1, i2, i3) > low) { wrong = "a larger value was left out"; }
        }
    }
    free(seen);
    return wrong;
}
static struct gcuda_tensor * build_top_k(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    return gcuda_top_k(ctx, in[0], *(const int *) p);
}
static struct gcuda_tensor * build_argsort_top_k(struct gcuda_context * ctx, struct gcuda_tensor ** in,
    const void * p) {
    return gcuda_argsort_top_k(ctx, in[0], *(const int *) p);
}
TEST(top_k) { // >>op:top_k
    static const int ks[] = { 1, 2, 7, 100, 300 };
    for (int i = 0; i < 5; ++i) {
        struct op_test t = { .types = "F32>I32", .shapes = i < 4 ? "100 128,5,4,3 1025,3 257,2 3000,3 6001,2" : "1025,3 3000,3 6001,2", .n_in = 1,
            .build = build_top_k, .ref = ref_top_k_shape, .judge = judge_top_k, .p = &ks[i], .tag = tagf("k=%d", ks[i]),
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
        t.build = build_argsort_top_k, t.aliases = true, t.tag = tagf("k=%d-sorted", ks[i]);
        op_test_run(&t);
        t.types = "F16>I32 BF16>I32", t.shapes = i < 4 ? "128,9 1000,2 9001,2" : "400,9 9001,2", t.in[0].layouts = LAYOUT_TRANSPOSED;
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
static double row_log_sum_exp(const double * x, int64_t n) {
    double m = -HUGE_VAL, z = 0.0;
    for (int64_t i = 0; i < n; ++i) { m = fmax(m, x[i]); }
    for (int64_t i = 0; i < n; ++i) { z += exp(x[i] - m); }
    return m + log(z);
}
static void ref_cross_entropy(const struct op_case * c) {
    const struct arr * a = c->in[0];
    const double rows = (double) (a->ne[1] * a->ne[2] * a->ne[3]);
    arr_new(c->out, 1, 1, 1, 1);
    FOR_ROWS(a) {
        const double l = row_log_sum_exp(&AT(a, 0, i1, i2, i3), a->ne[0]);
        for (int64_t i = 0; i < a->ne[0]; ++i) {
            c->out->d[0] -= (AT(a, i, i1, i2, i3) - l) * AT(c->in[1], i, i1, i2, i3) / rows;
        }
    }
}
static struct gcuda_tensor * build_cross_entropy(struct gcuda_context * ctx, struct gcuda_tensor ** in,
    const void * p) {
    (void) p;
    return gcuda_cross_entropy_loss(ctx, in[0], in[1]);
}
TEST(cross_entropy_loss) { // >>op:cross_entropy_loss
    struct op_test t = { .types = "F32", .shapes = "2 10,5,4,3 257,3 30000 70001,2 4093,2 7,400 5000,3 3,1030 0,3 5,0",
        .n_in = 2, .build = build_cross_entropy, .ref = ref_cross_entropy, .max_nmse = 1e-7,
        .in = { { .lo = -100, .hi = 100, .layouts = LAYOUT_OFFSET }, { .fill = fill_labels,
        .layouts = LAYOUT_OFFSET } } };
    op_test_run(&t);
    t.types = "F16>F32 BF16>F32 F16,F32>F32 F32,BF16>F32", t.shapes = "2 10,5,4,3 257,3 30000 4093,2 5000,3";
    op_test_run(&t);
}

static void ref_cross_entropy_back(const struct op_case * c) { // grad, logits, labels
    const struct arr * x = c->in[1];
    const double rows = (double) (x->ne[1] * x->ne[2] * x->ne[3]);
    arr_like(c->out, x);
    FOR_ROWS(x) {
        const double l = row_log_sum_exp(&AT(x, 0, i1, i2, i3), x->ne[0]);
        for (int64_t i = 0; i < x->ne[0]; ++i) {
            AT(c->out, i, i1, i2, i3) = (exp(AT(x, i, i1, i2, i3) - l) - AT(c->in[2], i, i1, i2,
                i3)) * c->in[0]->d[0] / rows;
        }
    }
}
static struct gcuda_tensor * build_cross_entropy_back(struct gcuda_context * ctx, struct gcuda_tensor ** in,
    const void * p) {
    (void) p;
    return gcuda_cross_entropy_loss_back(ctx, in[0], in[1], in[2]);
}
TEST(cross_entropy_loss_back) { // >>op:cross_entropy_loss_back
    struct op_test t = { .types = "F32", .shapes = "1|2|2 1|10,5,4,3|10,5,4,3 1|257,3|257,3 1|30000|30000 "
        "1|70001,2|70001,2 1|0,3|0,3 1|5,0|5,0", .n_in = 3,
        .build = build_cross_entropy_back, .ref = ref_cross_entropy_back, .max_nmse = 1e-7,
        .in = { { .lo = 0.5, .hi = 2 }, { .lo = -20, .hi = 20, .layouts = LAYOUT_OFFSET },
        { .fill = fill_labels, .layouts = LAYOUT_OFFSET } } };
    op_test_run(&t);
    t.types = "F32,F16>F16 F32,BF16>BF16 F32,F16,F32>F16 F32,F32,BF16>F32", t.shapes = "1|2|2 1|10,5,4,3|10,5,4,3 1|257,3|257,3";
    op_test_run(&t);
}

static void fill_adamw(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    const double v[7] = { 0.001, 0.9, 0.999, 1e-8, 0.01, 1.0 / (1.0 - 0.9 * 0.9), 1.0 / (1.0 - 0.999 * 0.999) };
    (void) r, (void) c, (void) k;
    memcpy(a->d, v, sizeof v);
}
static void ref_adamw(const struct op_case * c) { // a, grad, m, v, params
    const double * p = c->in[4]->d;
    struct arr * m = c->after[2], * v = c->after[3];
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
    const struct op_test t = { .types = "F32", .n_in = 5, .build = build_adamw, .ref = ref_adamw, .max_nmse = 1e-7,
        .aliases = true, .shapes = "1|1|1|1|7 10,5,4,3|10,5,4,3|10,5,4,3|10,5,4,3|7 257,3|257,3|257,3|257,3|7 "
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
    const struct op_test t = { .types = "F32", .n_in = 3, .build = build_sgd, .ref = ref_sgd, .max_nmse = 1e-7,
        .aliases = true, .shapes = "1|1|2 10,5,4,3|10,5,4,3|2 257,3|257,3|2 0,3|0,3|2 5,0|5,0|2",
        .in = { { .lo = 0, .hi = 1, .is_param = true }, { 0 }, { .fill = fill_sgd } } };
    op_test_run(&t);
}
