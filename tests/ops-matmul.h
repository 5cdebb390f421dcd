// Matrix products: references in float64 and the tables of cases. Part of test-ops.c.
//
// Sources arrive as the values that their types hold, so a reference is nothing but the formula. The bound of 5e-4
// leaves room for the rounding of activations that the specification allows.
#ifndef OPS_MATMUL_H
#define OPS_MATMUL_H

#include "test-ops.h"

#define FLOAT_PAIRS "F32 F16,F32>F32 F16>F32 BF16,F32>F32 BF16>F32"
#define ERR_PRODUCT 5e-4

// ---------------------------------------------------------------------------------------------------- references
// >>op:mul_mat: consecutive batches of b share one matrix of a (grouped division, not modulo)
static void ref_mul_mat(const struct op_case * c) {
    const struct arr * a = c->in[0];
    const struct arr * b = c->in[1];
    struct arr * y = c->out;
    arr_new(y, a->ne[1], b->ne[1], b->ne[2], b->ne[3]);
    FOR_ROWS(y) {
        const int64_t a3 = i3 / (b->ne[3] / a->ne[3]), a2 = i2 / (b->ne[2] / a->ne[2]);
        const double * x = &AT(b, 0, i1, i2, i3);
        for (int64_t m = 0; m < y->ne[0]; ++m) {
            const double * w = &AT(a, 0, m, a2, a3);
            double sum = 0.0;
            for (int64_t k = 0; k < a->ne[0]; ++k) { sum += w[k] * x[k]; }
            AT(y, m, i1, i2, i3) = sum;
        }
    }
}

// >>op:mul_mat_id: an expert that does not exist reads as zeros
static void ref_mul_mat_id(const struct op_case * c) {
    const struct arr * as = c->in[0];
    const struct arr * b = c->in[1];
    const struct arr * ids = c->in[2];
    struct arr * y = c->out;
    arr_new(y, as->ne[1], ids->ne[0], ids->ne[1], 1);
    FOR_ROWS(y) { // i1: slot of the token i2
        const int64_t expert = (int64_t) AT(ids, i1, i2, 0, 0);
        if (expert < 0 || expert >= as->ne[2]) { continue; }
        for (int64_t m = 0; m < as->ne[1]; ++m) {
            double sum = 0.0;
            for (int64_t k = 0; k < as->ne[0]; ++k) {
                sum += AT(as, k, m, expert, i3) * AT(b, k, i1 % b->ne[1], i2, 0);
            }
            AT(y, m, i1, i2, i3) = sum;
        }
    }
}

// >>op:out_prod
static void ref_out_prod(const struct op_case * c) {
    const struct arr * a = c->in[0];
    const struct arr * b = c->in[1];
    struct arr * y = c->out;
    arr_new(y, a->ne[0], b->ne[0], b->ne[2], b->ne[3]);
    FOR_ARR(y) {
        const int64_t a3 = i3 / (b->ne[3] / a->ne[3]), a2 = i2 / (b->ne[2] / a->ne[2]);
        double sum = 0.0;
        for (int64_t t = 0; t < a->ne[1]; ++t) { sum += AT(a, i0, t, a2, a3) * AT(b, i1, t, i2, i3); }
        AT(y, i0, i1, i2, i3) = sum;
    }
}

// ---------------------------------------------------------------------------------------------------- mul_mat
static struct gcuda_tensor * build_mul_mat(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    (void) p;
    return gcuda_mul_mat(ctx, in[0], in[1]);
}

static struct gcuda_tensor * build_mul_mat_f32(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    struct gcuda_tensor * y = build_mul_mat(ctx, in, p);
    if (y != NULL) { gcuda_mul_mat_set_prec(y, GCUDA_PREC_F32); }
    return y;
}

static struct op_test mul_mat_test(const char * types, const char * shapes) {
    struct op_test t;
    memset(&t, 0, sizeof t);
    t.types = types, t.shapes = shapes, t.n_in = 2, t.build = build_mul_mat, t.ref = ref_mul_mat,
    t.max_nmse = ERR_PRODUCT;
    return t;
}

static void mul_mat_cases(const char * types, const char * shapes, unsigned layouts) {
    struct op_test t = mul_mat_test(types, shapes);
    t.in[0].layouts = t.in[1].layouts = layouts;
    op_test_run(&t);
}

TEST(mul_mat_float) {
    mul_mat_cases(
        FLOAT_PAIRS, "1,1|1,1 1,5|1,3 67,83|67,1 77,3|77,2 129,129|129,5 193,16|193,9 256,1|256,64 257,2|257,255", 0);
    mul_mat_cases(FLOAT_PAIRS, // every number of columns that the kernels for few take, and one more
        "256,16|256,1 256,16|256,2 256,16|256,3 256,16|256,4 256,16|256,5 256,16|256,6 256,16|256,7 "
        "256,16|256,8 256,16|256,9",
        0);
    mul_mat_cases(
        FLOAT_PAIRS, "33,7|33,4 64,5,3,2|64,3,3,2 31,4,2,3|31,1,4,6 16,3,1,1|16,2,3,2 8,4,3,1|8,2,6,4", LAYOUT_ROWS);
    mul_mat_cases(
        FLOAT_PAIRS, "256,16,3,2|256,16,3,2 256,16,1,2|256,16,2,2 1024,4,3,2|1024,2,3,2 128,1,8,3|128,5,32,3", 0);
    mul_mat_cases("F32 F16,F32>F32", "4,2,1536|4,3,1536 2,3,40,41|2,2,40,41 1057,129|1057,3", 0);
    mul_mat_cases(FLOAT_PAIRS, "0,4|0,3 5,0|5,3 5,4|5,0 5,4,2|5,3,0", 0); // an empty sum is 0, an empty result nothing
    if (test_full()) {
        mul_mat_cases(
            FLOAT_PAIRS, "128,1057|128,32 129,1056|129,77 1057,1057|1057,16 128,128,8,3|128,16,32,3", LAYOUT_ROWS);
    }
}

// Few columns; rows that neither SMs nor warps share evenly, and that end within a group of rows. Row lengths: less
// than a device copies at once (512 bytes), several times that and a remainder, more than all warps hold at once.
// Several matrices.
TEST(mul_mat_float_shares) {
    for (int n = 1; n <= 8; ++n) {
        char shapes[128];
        snprintf(shapes, sizeof shapes, "64,275|64,%d 600,70|600,%d 2200,131|2200,%d", n, n, n);
        mul_mat_cases(FLOAT_PAIRS, shapes, 0);
    }
    mul_mat_cases(FLOAT_PAIRS, "128,70,3|128,1,12 72,37,2,3|72,2,4,6", 0);
}

TEST(mul_mat_quantized) {
    char types[2048];
    snprintf(types, sizeof types, "%s", op_types_with(WEIGHT_TYPES, ",F32>F32"));
    mul_mat_cases(types,
        "256,16|256,1 256,16|256,2 256,16|256,3 256,16|256,4 256,16|256,5 256,16|256,6 256,16|256,7 "
        "256,16|256,8 256,16|256,9",
        0);
    mul_mat_cases(types, "256,1|256,64 512,7|512,17 1024,3,3,2|1024,2,3,2", 0);
    mul_mat_cases(types, "256,16,3,2|256,4,6,4 256,5,1,2|256,3,2,2", LAYOUT_ROWS);
    mul_mat_cases(types, "256,0|256,3 256,3|256,0", 0);
    mul_mat_cases("Q4_0,F32>F32 Q6_K,F16>F32", "0,5|0,1 0,5|0,3 0,5|0,20", 0);
    if (test_full()) {
        mul_mat_cases(types,
            "256,16|256,16 256,16,3|256,16,3 256,16,1,2|256,16,1,4 256,16,3,2|256,16,3,2 "
            "256,16,3,2|256,16,6,2 1024,16,3,2|1024,1,3,2",
            LAYOUT_ROWS);
    }
}

// Columns are parallel to rows of the weights, so no result is close to zero, where only rounding would be compared. A
// kernel that confuses two rows or columns is far off.
static void fill_along_rows(struct rng * r, const struct op_case * c, int k, struct arr * b) {
    const struct arr * a = c->in[0];
    (void) k;
    FOR_ARR(b) {
        const double size = rng_between(r, 0.1, 1.0);
        AT(b, i0, i1, i2, i3) = AT(a, i0, i1 % a->ne[1], 0, 0) < 0.0 ? -size : size;
    }
}

// Rows of each length, one, two and an odd number of them, with every number of columns at which kernels and their
// tiles begin or end. At the normal level each length meets all columns, and each number of rows some of all sorts.
static void mul_mat_cross(const char * types, const int * length, int n_lengths) {
    static const int rows[] = { 1, 2, 17 }, columns[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 31, 33, 127, 128, 129 };
    const int n_columns = (int) (sizeof columns / sizeof columns[0]);
    char shapes[4096] = "";
    for (int i = 0; i < n_lengths * n_columns * 3; ++i) {
        const int l = i / (n_columns * 3), c = i / 3 % n_columns;
        const size_t n = strlen(shapes);
        if (!test_full() && i % 3 != (l + c) % 3) { continue; }
        snprintf(shapes + n, sizeof shapes - n, "%s%d,%d|%d,%d", n > 0 ? " " : "", length[l], rows[i % 3], length[l],
            columns[c]);
    }
    struct op_test t = mul_mat_test(types, shapes);
    t.in[1].fill = fill_along_rows;
    op_test_run(&t);
}

TEST(mul_mat_cross) {
    static const int lengths[][3] = { { 32, 96 }, { 256, 768 }, { 1, 3, 8 } };
    mul_mat_cross(op_types_with(WEIGHT_TYPES_OF_32, ",F32>F32"), lengths[0], 2);
    mul_mat_cross(op_types_with(WEIGHT_TYPES_OF_256, ",F32>F32"), lengths[1], 2);
    mul_mat_cross("F32 F16,F32>F32 BF16,F32>F32", lengths[2], 3);
}

// Columns of 16 bits with each type, by vectors and in tiles.
TEST(mul_mat_halves_as_columns) {
    static const char * const shapes =
        "256,19|256,1 256,19|256,3 256,19|256,8 256,19|256,16 256,19|256,33 256,19|256,70";
    mul_mat_cases(op_types_with(WEIGHT_TYPES, ",F16>F32"), shapes, 0);
    mul_mat_cases(op_types_with(WEIGHT_TYPES, ",BF16>F32"), shapes, 0);
    mul_mat_cases("F32,BF16>F32 F16,BF16>F32 BF16,F16>F32 F32,F16>F32",
        "72,19|72,1 72,19|72,3 72,19|72,8 72,19|72,16 72,19|72,33 72,19|72,70 33,17|33,2 33,17|33,70 64,5,3,2|64,3,3,4",
        0);
}

TEST(mul_mat_blocks_of_32) { // rows of one, two, three blocks: no whole super-block to lean on
    char types[512];
    snprintf(types, sizeof types, "%s", op_types_with(WEIGHT_TYPES_OF_32, ",F32>F32"));
    mul_mat_cases(
        types, "32,40|32,7 32,1|32,90 32,120|32,6 64,33|64,5 96,9|96,20 160,40|160,11 224,99|224,1", LAYOUT_ROWS);
    mul_mat_cases("Q4_0,F32>F32", test_full() ? "576,512|576,576 8192,1|8192,2048" : "576,64|576,70 8192,1|8192,64", 0);
}

// Those of tensor cores, with rows and columns that are no whole tiles. GCUDA_CUDA_PRODUCT=tile sends all of them
// there.
TEST(mul_mat_some_columns) {
    char types[2048];
    snprintf(types, sizeof types, "%s", op_types_with(WEIGHT_TYPES, ",F32>F32"));
    mul_mat_cases(types, "512,17|512,16 256,18|256,31 256,16|256,33 256,35|256,64", 0);
    mul_mat_cases("Q4_0,F32>F32 Q6_K,F16>F32 IQ3_S,BF16>F32 MXFP4,F32>F32",
        "768,130|768,9 256,129|256,33 256,16,2|256,5,4", LAYOUT_ROWS);
    mul_mat_cases(types, "256,17|256,127 256,1|256,128 256,2|256,129 512,3,2|512,11,6", 0);
    mul_mat_cases(FLOAT_PAIRS, "96,17|96,9 160,130|160,33 64,3|64,129 128,20,2,3|128,9,4,3", 0);
    mul_mat_cases(
        FLOAT_PAIRS, "256,17|256,16 256,18|256,31 256,17|256,127 256,1|256,128 256,2|256,129 512,3,2|512,11,6", 0);
}

// Every way in which matrices of b share those of a. Evenly strided: cuBLAS is called once for all of them or for those
// of a dimension. Permuted. At addresses that are no multiples of 16 bytes.
TEST(mul_mat_batches) {
    // of matrices of a, and of those of b that meet each
    static const int counts[][2] = { { 1, 1 }, { 1, 3 }, { 3, 1 }, { 2, 2 } };
    char shapes[16 * 64] = "";
    for (int i = 0; i < 16; ++i) {
        const int *d2 = counts[i % 4], *d3 = counts[i / 4];
        const size_t n = strlen(shapes);
        snprintf(shapes + n, sizeof shapes - n, "%s32,20,%d,%d|32,16,%d,%d", i > 0 ? " " : "", d2[0], d3[0],
            d2[0] * d2[1], d3[0] * d3[1]);
    }
    mul_mat_cases(FLOAT_PAIRS, shapes, LAYOUT_PERMUTED | LAYOUT_GAPS);
    // odd rows; many matrices
    mul_mat_cases("F32 F16,F32>F32", "33,17,2,2|33,18,4,4 32,20,2,70|32,16,2,140", LAYOUT_PERMUTED);
}

TEST(mul_mat_long_rows) { // a device may cut k into parts for few columns
    mul_mat_cases("Q4_0,F32>F32 Q6_K,F16>F32 IQ2_S,BF16>F32", "2048,70|2048,9 4096,17|4096,33 1280,65|1280,12", 0);
}

// Nothing is rounded to TF32 or 16 bits then, which a bound for rounded activations would not show. Quantized weights
// meet columns that the CPU rounds to bytes all the same.
TEST(mul_mat_precision) {
    static const char * const shapes = "256,17|256,3 256,17|256,8 256,17|256,20 256,20|256,70";
    struct op_test t = mul_mat_test("F32 F16,F32>F32 BF16,F32>F32", shapes);
    t.build = build_mul_mat_f32, t.max_nmse = 1e-10;
    op_test_run(&t);
    t = mul_mat_test(op_types_with(WEIGHT_TYPES, ",F32>F32"), shapes);
    t.build = build_mul_mat_f32, t.max_nmse = op_backends_ready() && op_on_device ? 1e-10 : ERR_PRODUCT;
    op_test_run(&t);
}

// Enough rows for every warp of the kernels for few columns; from one step of 2048 elements to more than run in
// parallel; rows at any address.
TEST(mul_mat_many_rows) {
    static const char * const shapes[] = { "256,700|256,3", "2080,300|2080,2", "4352,90|4352", "9216,40|9216,7",
        "34816,20|34816,2" };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; ++i) {
        const bool is_whole = i != 1; // super-blocks
        mul_mat_cases(is_whole ? "Q4_0,F32>F32 Q8_0,F32>F32 Q4_K,F32>F32 Q6_K,F16>F32 IQ2_XS,F32>F32"
                               : "Q4_0,F32>F32 Q5_1,F32>F32 Q8_0,BF16>F32 MXFP4,F32>F32",
            shapes[i], 0);
    }
    // A column of one block, which does not add up to nearly nothing: blocks with a minimum would leave no more than
    // its rounding.
    struct op_test t = mul_mat_test("Q4_0,F32>F32 Q5_1,F32>F32 Q8_0,BF16>F32 MXFP4,F32>F32", "32,700|32");
    t.in[1].lo = -0.5, t.in[1].hi = 1.0;
    op_test_run(&t);
    // where codebooks have tables with a copy for each lane
    mul_mat_cases(
        "IQ2_XXS,F32>F32 IQ2_XS,F32>F32 IQ2_S,F32>F32 IQ3_XXS,F32>F32 IQ3_S,F32>F32 IQ1_S,F32>F32 IQ1_M,F32>F32",
        "256,8500|256", 0);
    // two columns, of one matrix, of several, of several that share one, and in more than one turn
    mul_mat_cases(
        "IQ2_XXS,F32>F32 IQ2_XS,F32>F32 IQ2_S,F32>F32 IQ3_XXS,F32>F32 IQ3_S,F32>F32 IQ1_S,F32>F32 IQ1_M,F32>F32",
        "2048,70|2048,2", 0);
    mul_mat_cases("Q4_0,F32>F32 Q3_K,F16>F32 IQ2_S,F32>F32",
        "2048,9,3|2048,2,3 2048,9,2|2048,1,4 18432,20|18432,2 36864,5|36864,2", 0);
    // five columns: rows at multiples of 16 bytes, of 4 and of less, in whole tiles and a part of one
    char types[2048];
    snprintf(types, sizeof types, "%s", op_types_with(WEIGHT_TYPES, ",F32>F32"));
    mul_mat_cases(types, "2048,40|2048,5 1536,40|1536,5 768,20|768,5", 0);
    // one column: rows of half a step, which go in pairs where they are even in number
    mul_mat_cases(types, "1024,70|1024 1024,71|1024 1024,6,3|1024,1,3", 0);
    mul_mat_cases("Q4_0,F16>F32 Q3_K,F32>F32 Q6_K,BF16>F32 IQ3_S,F32>F32", "1024,1100|1024 1024,16|1024", 0);
}

// Columns enough for whole tiles of tensor cores, floats also as what they are converted to; rows at any address.
TEST(mul_mat_many_columns) {
    mul_mat_cases("F16,F32>F32 BF16,F32>F32 F16>F32 BF16>F32 F32 F32,F16>F32",
        "40,20|40,70 129,65|129,131 520,16|520,66", LAYOUT_ROWS);
    mul_mat_cases("F16,F32>F32 BF16>F32 F32", "72,33,2,3|72,66,4,3", 0);
    mul_mat_cases("Q4_0,F32>F32 Q6_K,F32>F32", "256,20|256,257", 0);
}

// An F16 scale for the activations would lose the small ones and overflow on the large ones.
static void mul_mat_range(const char * types, const char * shapes, double size) {
    char tag[32];
    struct op_test t;
    memset(&t, 0, sizeof t);
    snprintf(tag, sizeof tag, "b=%g", size);
    t.types = types, t.shapes = shapes, t.tag = tag;
    t.n_in = 2, t.build = build_mul_mat, t.ref = ref_mul_mat, t.max_nmse = ERR_PRODUCT;
    t.in[1].lo = -size, t.in[1].hi = size;
    op_test_run(&t);
}

TEST(mul_mat_range_of_activations) {
    static const double size[] = { 1e-6, 1e5, 1e-12 };
    for (size_t i = 0; i < sizeof size / sizeof size[0]; ++i) {
        char types[2048];
        snprintf(types, sizeof types, "F32 BF16,F32>F32 %s", op_types_with(WEIGHT_TYPES, ",F32>F32"));
        mul_mat_range(types, "256,9|256,2", size[i]);
        mul_mat_range("F16,F32>F32", "256,9|256,2", size[i]); // F16 ends at 65504
        mul_mat_range("F16,F32>F32 BF16,F32>F32", "256,20|256,20 72,20|72,70", size[i]);
        mul_mat_range(types, "256,17|256,20 256,17|256,70 256,17|256,130", size[i]); // in tiles, as halves
    }
}

// A few large numbers among many small ones, like activations of language models. With one scale per block the small
// ones nearly vanish next to a large one. F16 cannot hold the largest.
static void fill_outliers(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    (void) c, (void) k;
    for (int64_t i = 0; i < arr_n(a); ++i) { a->d[i] = rng_outlier(r); }
}

TEST(mul_mat_outliers) { // by vectors, in tiles, as halves
    char types[2048];
    struct op_test t;
    snprintf(types, sizeof types, "F32 F16,F32>F32 BF16,F32>F32 %s", op_types_with(WEIGHT_TYPES, ",F32>F32"));
    t = mul_mat_test(types, "512,9|512 512,9|512,2 512,19|512,8 512,20|512,20 512,17|512,140");
    t.tag = "outliers";
    t.in[1].fill = fill_outliers;
    op_test_run(&t);
}

// NaN or infinity in a column: nothing of that column is a number, and the others are as ever.
static void fill_not_all_numbers(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    (void) c, (void) k;
    for (int64_t i = 0; i < arr_n(a); ++i) { a->d[i] = rng_between(r, -1.0, 1.0); }
    for (int64_t i1 = 0; i1 < a->ne[1]; ++i1) {
        const double v = i1 % 3 == 1 ? (double) NAN : i1 % 2 ? HUGE_VAL : -HUGE_VAL;
        if (i1 % 3 != 0) { AT(a, rng_below(r, a->ne[0]), i1, 0, 0) = v; }
    }
}

static const char * judge_not_all_numbers(const struct op_case * c, const struct arr * got) {
    double error = 0.0, all = 0.0;
    FOR_ARR(got) {
        const double want = AT(c->out, i0, i1, i2, i3), y = AT(got, i0, i1, i2, i3);
        if (i1 % 3 == 1 && !isnan(y)) { return "NaN is lost"; }
        if (i1 % 3 == 2 && isfinite(y)) { return "infinity is lost"; }
        if (i1 % 3 == 0) { error += (want - y) * (want - y), all += want * want; }
    }
    return error <= ERR_PRODUCT * all ? NULL : "columns of numbers are wrong";
}

TEST(mul_mat_not_all_numbers) {
    char types[2048];
    struct op_test t;
    memset(&t, 0, sizeof t);
    snprintf(types, sizeof types, FLOAT_PAIRS " %s", op_types_with(WEIGHT_TYPES, ",F32>F32"));
    t.types = types, t.shapes = "256,19|256,2 256,19|256,3 512,5|512,8", t.tag = "NaN";
    t.n_in = 2, t.build = build_mul_mat, t.ref = ref_mul_mat, t.judge = judge_not_all_numbers;
    t.in[1].fill = fill_not_all_numbers;
    op_test_run(&t);
}

// Sources that come with the permutations {0,1,3,2} and {0,3,2,1}: stored that way, permuted back by the builder.
struct p_permute {
    int axis[4];
};

static struct gcuda_tensor * build_mul_mat_permuted(
    struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    const int * x = ((const struct p_permute *) p)->axis;
    return gcuda_mul_mat(
        ctx, gcuda_permute(ctx, in[0], x[0], x[1], x[2], x[3]), gcuda_permute(ctx, in[1], x[0], x[1], x[2], x[3]));
}

static void arr_permute(struct arr * y, const struct arr * a, const int * axis) {
    int64_t ne[4], i[4];
    memset(y, 0, sizeof *y);
    for (int d = 0; d < 4; ++d) { ne[axis[d]] = a->ne[d]; }
    arr_new(y, ne[0], ne[1], ne[2], ne[3]);
    FOR_ARR(a) {
        i[axis[0]] = i0, i[axis[1]] = i1, i[axis[2]] = i2, i[axis[3]] = i3;
        AT(y, i[0], i[1], i[2], i[3]) = AT(a, i0, i1, i2, i3);
    }
}

static void ref_mul_mat_permuted(const struct op_case * c) {
    struct op_case inner = *c;
    struct arr a, b;
    arr_permute(&a, c->in[0], ((const struct p_permute *) c->p)->axis);
    arr_permute(&b, c->in[1], ((const struct p_permute *) c->p)->axis);
    inner.in[0] = &a, inner.in[1] = &b;
    ref_mul_mat(&inner);
    arr_free(&a);
    arr_free(&b);
}

TEST(mul_mat_permuted) {
    static const struct p_permute p[] = { { { 0, 1, 3, 2 } }, { { 0, 3, 2, 1 } }, { { 0, 2, 3, 1 } } };
    static const char * const tag[] = { "0132", "0321", "0231" };
    // each source is stored so that after the permutation it is [256, 5, 2, 3] and [256, 4, 4, 3]
    static const char * const shapes[] = { "256,5,3,2|256,4,3,4", "256,3,2,5|256,3,4,4", "256,2,3,5|256,4,3,4" };
    char types[2048];
    snprintf(types, sizeof types, FLOAT_PAIRS " %s", op_types_with(WEIGHT_TYPES, ",F32>F32"));
    for (int i = 0; i < 3; ++i) {
        struct op_test t;
        memset(&t, 0, sizeof t);
        t.types = types, t.shapes = shapes[i], t.tag = tag[i], t.p = &p[i], t.n_in = 2;
        t.build = build_mul_mat_permuted, t.ref = ref_mul_mat_permuted, t.max_nmse = ERR_PRODUCT;
        op_test_run(&t);
    }
}

// ---------------------------------------------------------------------------------------------------- mul_mat_id
static struct gcuda_tensor * build_mul_mat_id(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    (void) p;
    return gcuda_mul_mat_id(ctx, in[0], in[1], in[2]);
}

static struct gcuda_tensor * build_mul_mat_id_f32(
    struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    struct gcuda_tensor * y = build_mul_mat_id(ctx, in, p);
    if (y != NULL) { gcuda_mul_mat_set_prec(y, GCUDA_PREC_F32); }
    return y;
}

static void fill_experts(struct rng * r, const struct op_case * c, int k, struct arr * a) { // an expert may repeat
    (void) k;
    fill_below(r, a, c->in[0]->ne[2]);
}

static void fill_distinct_experts(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    (void) k;
    fill_permutation(r, a, c->in[0]->ne[2]);
}

static void fill_one_expert(
    struct rng * r, const struct op_case * c, int k, struct arr * a) { // all tokens want the last one
    (void) r, (void) k;
    for (int64_t i = 0; i < arr_n(a); ++i) { a->d[i] = (double) (c->in[0]->ne[2] - 1); }
}

static void fill_unknown_experts(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    static const double bad[] = { -1.0, 2147483647.0, -2147483648.0 };
    if (c->in[0]->ne[2] > 0) { fill_experts(r, c, k, a); } // or all are unknown
    for (int64_t i = 0; i < arr_n(a); i += 3) { a->d[i] = i % 2 ? bad[i / 3 % 3] : (double) c->in[0]->ne[2]; }
}

static struct op_test mul_mat_id_test(const char * types, const char * shapes, const char * tag, fill_fn fill) {
    struct op_test t = mul_mat_test(types, shapes);
    t.tag = tag, t.n_in = 3, t.build = build_mul_mat_id, t.ref = ref_mul_mat_id;
    t.in[2].fill = fill;
    return t;
}

static void mul_mat_id_cases_in(
    const char * types, const char * shapes, const char * tag, fill_fn fill, unsigned expert_layouts) {
    struct op_test t = mul_mat_id_test(types, shapes, tag, fill);
    t.in[0].layouts = expert_layouts;
    t.in[1].layouts = LAYOUT_ROWS, t.in[2].layouts = LAYOUT_GAPS;
    t.status = fill == fill_unknown_experts ? GCUDA_STATUS_INVALID_DATA : GCUDA_STATUS_SUCCESS;
    op_test_run(&t);
}
static void mul_mat_id_cases(const char * types, const char * shapes, const char * tag, fill_fn fill) {
    mul_mat_id_cases_in(types, shapes, tag, fill, 0);
}

TEST(mul_mat_id) {
    static const char * const few =
        "F32,F32,I32>F32 F16,F32,I32>F32 BF16,F32,I32>F32 Q4_0,F32,I32>F32 Q4_K,F32,I32>F32 MXFP4,F32,I32>F32";
    char types[2048];
    snprintf(types, sizeof types, "F32,F32,I32>F32 F16,F32,I32>F32 BF16,F32,I32>F32 %s",
        op_types_with(WEIGHT_TYPES, ",F32,I32>F32"));
    mul_mat_id_cases(types, "256,12,4|256,1,5|2,5 256,9,8|256,4,1|4,1 256,16,4|256,2,5|4,5 256,16,4|256,2,17|4,17",
        "any", fill_experts);
    mul_mat_id_cases(few, "256,17,8|256,1,32|4,32 256,5,4|256,2,33|2,33", "distinct", fill_distinct_experts);
    mul_mat_id_cases("Q5_0,F32,I32>F32 F16,F32,I32>F32", "2048,70,3|2048,1,5|2,5", "long", fill_experts);
    mul_mat_id_cases(few, "256,7,8|256,1,9|1,9 256,4,5|256,3,6|3,6", "one", fill_one_expert);
    // no more slots than go one by one: columns shared by slots, experts by tokens
    mul_mat_id_cases(few, "256,16,4|256,2,2|4,2 256,70,40|256,1,9|4,9", "any", fill_experts);
    mul_mat_id_cases(few, "256,9,16|256,1,8|2,8", "one", fill_one_expert);
    // rows in pairs, and not
    mul_mat_id_cases(types, "1024,38,4|1024,1,2|2,2 1024,7,4|1024,2,1|2,1", "any", fill_experts);
    mul_mat_id_cases("F32,F32,I32>F32 F16,F32,I32>F32",
        "1,5,4|1,1,7|2,7 16,32,16|16,1,1024|3,1024 33,3,2|33,2,512|2,512", "any", fill_experts);
    mul_mat_id_cases(few, "256,3,4|256,1,0|2,0 0,3,4|0,1,2|2,2", "empty", fill_experts);
    // experts that are not packed: one slot, as many as go one by one, and more
    mul_mat_id_cases_in(
        few, "256,9,4|256,1,1|2,1 256,9,4|256,2,3|4,3 256,33,4|256,1,33|2,33", "experts", fill_experts, LAYOUT_ROWS);
    // activations of 16 bits, and in the blocks that go with the weights
    mul_mat_id_cases(
        "F32,F16,I32>F32 F16,F16,I32>F32 BF16,BF16,I32>F32 F16,BF16,I32>F32 Q4_0,F16,I32>F32 Q4_K,BF16,I32>F32 "
        "Q4_0,Q8_0,I32>F32 Q8_0,Q8_0,I32>F32 IQ4_NL,Q8_0,I32>F32 MXFP4,Q8_0,I32>F32 Q4_1,Q8_1,I32>F32 "
        "Q5_1,Q8_1,I32>F32 Q2_K,Q8_K,I32>F32 Q4_K,Q8_K,I32>F32 Q6_K,Q8_K,I32>F32 IQ3_S,Q8_K,I32>F32",
        "256,9,8|256,2,1|4,1 512,17,4|512,2,17|4,17", "b", fill_experts);
    if (test_full()) {
        mul_mat_id_cases(types, "256,512,8|256,1,129|4,129 256,512,4|256,2,32|2,32", "distinct", fill_distinct_experts);
        mul_mat_id_cases("MXFP4,F32,I32>F32", "2880,2880,8|2880,1,4|2,4", "distinct", fill_distinct_experts);
        mul_mat_id_cases(
            "Q4_0,F32,I32>F32 Q4_K,F32,I32>F32", "2048,768,128|2048,1,2|8,2", "distinct", fill_distinct_experts);
    }
}

TEST(mul_mat_id_range_of_activations) { // a slot at a time, and in tiles
    static const char * const shapes = "256,9,4|256,1,2|2,2 256,17,4|256,2,17|4,17";
    static const double size[] = { 1e-6, 1e5, 0.0 }; // 0: outliers
    char types[2048];
    snprintf(types, sizeof types, "F32,F32,I32>F32 F16,F32,I32>F32 BF16,F32,I32>F32 %s",
        op_types_with(WEIGHT_TYPES, ",F32,I32>F32"));
    for (size_t i = 0; i < sizeof size / sizeof size[0]; ++i) {
        char tag[32];
        snprintf(tag, sizeof tag, "b=%g", size[i]);
        struct op_test t = mul_mat_id_test(types, shapes, size[i] > 0.0 ? tag : "outliers", fill_experts);
        t.in[1].lo = -size[i], t.in[1].hi = size[i];
        t.in[1].fill = size[i] > 0.0 ? NULL : fill_outliers;
        op_test_run(&t);
        // experts as bytes
        t.types = "Q4_0,F32,I32>F32 Q6_K,F32,I32>F32 IQ4_XS,F32,I32>F32", t.shapes = "1024,256,4|1024,1,5|2,5";
        op_test_run(&t);
    }
}

// Rounding that mul_mat promises: F32 activations to TF32 with F32 weights, to F16 with F16 weights, on every path.
// Cases: pair by pair; tiles (BF16 operands would err by 5e-6); rows that end within a step; the plain kernel (experts
// at unaligned addresses). Activations converted to F16 keep their magnitude, small or large.
static void fill_sizes(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    static const double size[] = { 1e-30, 1.0, 1e36, 7e4, 1e-6 };
    (void) c, (void) k;
    FOR_ARR(a) { AT(a, i0, i1, i2, i3) = rng_between(r, -1.0, 1.0) * size[(i1 + i2) % 5]; }
}

// One element of each column, the largest of F32.
static void fill_largest(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    (void) r, (void) c, (void) k;
    FOR_ARR(a) {
        AT(a, i0, i1, i2, i3) = i0 != (i1 + 3 * i2) % a->ne[0] ? 0.0 : i2 % 2 ? (double) FLT_MAX : -(double) FLT_MAX;
    }
}

TEST(mul_mat_id_precision) {
    static const char * const shapes =
        "256,17,4|256,1,2|2,2 96,130,4|96,2,17|4,17 1056,33,3|1056,1,40|2,40 256,9,2|256,1,70|2,70 "
        "64,20,1|64,1,130|1,130";
    struct op_test t = mul_mat_id_test(
        "F32,F32,I32>F32 F16,F32,I32>F32 F32,F16,I32>F32 F16,F16,I32>F32", shapes, "tf32", fill_experts);
    t.in[0].layouts = LAYOUT_ROWS, t.max_nmse = 5e-7;
    op_test_run(&t);
    t.types = "F16,F32,I32>F32", t.tag = "each row of its own size", t.in[1].fill = fill_sizes;
    op_test_run(&t);
    t.types = "F32,F32,I32>F32 F16,F32,I32>F32", t.tag = "largest", t.in[1].fill = fill_largest;
    op_test_run(&t);
    t.in[1].fill = NULL;
    t.types = "F32,F32,I32>F32 F16,F32,I32>F32 BF16,F32,I32>F32 F16,BF16,I32>F32", t.tag = "f32",
    t.build = build_mul_mat_id_f32;
    t.max_nmse = 1e-10;
    op_test_run(&t);
    t.types = "Q4_0,F32,I32>F32 Q8_0,F32,I32>F32 Q6_K,F32,I32>F32", t.tag = "blocks"; // few slots, as bytes, in tiles
    t.shapes = "256,17,4|256,1,2|2,2 1024,256,4|1024,2,8|2,8 256,33,2|256,1,70|2,70", t.in[0].layouts = 0;
    t.max_nmse = op_backends_ready() && op_on_device ? 1e-10 : ERR_PRODUCT;
    op_test_run(&t);
}

static void mul_mat_id_cases_packed(const char * types, const char * shapes, const char * tag, fill_fn fill) {
    const struct op_test t = mul_mat_id_test(op_types_with(types, ",F32,I32>F32"), shapes, tag, fill);
    op_test_run(&t);
}

// Experts large enough that lists of expert-token pairs pay. For these types tensor cores multiply them as bytes; a
// list may be empty, full, or longer than a tile. With more pairs per expert wgmma is used, if rows are multiples of 16
// bytes.
TEST(mul_mat_id_large_experts) {
    static const char * const lists = "Q4_0 Q8_0 MXFP4 IQ4_NL Q4_K Q5_K Q6_K IQ2_XS IQ4_XS";
    mul_mat_id_cases_packed(lists, "1024,256,4|1024,1,5|2,5 1024,256,4|1024,2,8|2,8", "any", fill_experts);
    mul_mat_id_cases_packed(lists, "1024,257,3|1024,1,9|1,9", "one", fill_one_expert);
    mul_mat_id_cases_packed("Q5_0 IQ4_NL IQ4_XS IQ1_M", "1024,256,3|1024,1,8|2,8", "any", fill_experts);
    mul_mat_id_cases_packed("Q4_0 Q5_0 Q8_0 MXFP4 IQ4_NL IQ4_XS IQ1_M", "1024,256,1|1024,2,8|2,8", "any", fill_experts);
}

TEST(mul_mat_id_unknown_experts) { // rows of zeros, and an error that comes after the rest is done
    mul_mat_id_cases("F32,F32,I32>F32 F16,F32,I32>F32 Q4_0,F32,I32>F32 Q6_K,F32,I32>F32",
        "256,6,4|256,1,9|2,9 256,6,4|256,3,5|3,5 256,20,0|256,1,40|2,40", "bad", fill_unknown_experts);
}

// ---------------------------------------------------------------------------------------------------- out_prod
static struct gcuda_tensor * build_out_prod(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    (void) p;
    return gcuda_out_prod(ctx, in[0], in[1]);
}

static struct gcuda_tensor * build_out_prod_f32(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    struct gcuda_tensor * y = build_out_prod(ctx, in, p);
    if (y != NULL) { gcuda_mul_mat_set_prec(y, GCUDA_PREC_F32); }
    return y;
}

TEST(out_prod) {
    char types[2048];
    struct op_test t;
    memset(&t, 0, sizeof t);
    t.types = "F32", t.n_in = 2, t.build = build_out_prod, t.ref = ref_out_prod, t.max_nmse = ERR_PRODUCT;
    t.shapes = "256,1|1,1 256,1|16,1 256,16|1,16 256,16|16,16 7,5|3,5 257,33|19,33 1,300|1,300 5,4,3,1|6,4,3,2 "
               "5,4,2,3|6,4,4,3 "
               "5,4,3,2|6,4,6,4 5,0|6,0 0,3|2,3";
    t.in[0].layouts = LAYOUT_ROWS, t.in[1].layouts = LAYOUT_ANY;
    op_test_run(&t);
    snprintf(types, sizeof types, "%s", op_types_with(WEIGHT_TYPES, ",F32>F32"));
    t.types = types, t.shapes = "256,5|3,5 512,16,2|2,16,2";
    t.in[0].layouts = 0, t.in[1].layouts = LAYOUT_TRANSPOSED;
    op_test_run(&t);
    t.types = "F16>F32 BF16>F32 F16,F32>F32 F32,F16>F32 BF16,F32>F32 F32,BF16>F32 F16,BF16>F32";
    t.shapes = "7,5,2,1|3,5,4,2 257,33|19,33";
    t.in[0].layouts = LAYOUT_GAPS | LAYOUT_TRANSPOSED, t.in[1].layouts = LAYOUT_GAPS | LAYOUT_TRANSPOSED;
    op_test_run(&t);
    t.types = "Q4_0,F16>F32 Q6_K,BF16>F32 IQ2_S,F16>F32", t.shapes = "256,5,1,2|3,5,2,2";
    t.in[0].layouts = t.in[1].layouts = LAYOUT_ROWS;
    op_test_run(&t);
    // nothing is rounded
    t.types = "F32", t.shapes = "256,16|16,16 7,5|3,5 257,33|19,33 5,4,3,2|6,4,6,4", t.tag = "f32";
    t.build = build_out_prod_f32, t.max_nmse = 1e-12;
    t.in[0].layouts = LAYOUT_ROWS, t.in[1].layouts = LAYOUT_ANY;
    op_test_run(&t);
}

#endif
