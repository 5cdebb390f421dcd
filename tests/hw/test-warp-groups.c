// Large products with wgmma, by their launcher: cases that dispatch sends there and edges that it does not. Without
// wgmma on the device or in the build, only refusals are tested. Also a few blocks of every kernel that multiplies in
// tiles, or vectors on tensor cores.
#include "device.h"
#include "products.h"
#include "weights.h"

struct shape {
    int64_t k, m, n;
    int pad; // bytes between rows of the weights (16 times this) and elements between columns
};

// Memory of the device with these bytes, or all bits set.
static void * on_device(const void * from, size_t size) {
    void *to = NULL, *ones = from == NULL ? memset(malloc(size + 1), 0xff, size + 1) : NULL;
    CHECK(cudaMalloc(&to, size + 1) == cudaSuccess);
    CHECK(cudaMemcpy(to, from != NULL ? from : ones, size, cudaMemcpyHostToDevice) == cudaSuccess);
    free(ones);
    return to;
}

static struct gcuda_array matrix(enum gcuda_type type, int64_t ne0, int64_t ne1, size_t nb1) {
    struct gcuda_array a;
    memset(&a, 0, sizeof a);
    a.type = type;
    a.ne[0] = ne0, a.ne[1] = ne1, a.ne[2] = a.ne[3] = 1;
    a.nb[0] = gcuda_type_size(type), a.nb[1] = nb1, a.nb[2] = a.nb[3] = nb1 * (size_t) ne1;
    return a;
}

enum { OUTLIERS = 0 }; // the scale of columns that have them

static char * columns_of(const struct gcuda_array * b, double scale, struct rng * r) {
    char * data = (char *) malloc((size_t) b->ne[1] * b->nb[1]);
    memset(data, 0xff, (size_t) b->ne[1] * b->nb[1]);
    for (int64_t i = 0; i < b->ne[0] * b->ne[1]; ++i) {
        const float v = (float) (scale == OUTLIERS ? rng_outlier(r) : scale * rng_between(r, -1.0, 1.0));
        char * p = data + (size_t) (i / b->ne[0]) * b->nb[1] + (size_t) (i % b->ne[0]) * b->nb[0];
        if (b->type == GCUDA_TYPE_F32) {
            memcpy(p, &v, 4);
        } else {
            gcuda_get_type_traits(b->type)->from_float_ref(&v, p, 1);
        }
    }
    return data;
}

static void row_of(const struct gcuda_array * a, const char * data, int64_t i, float * out) {
    weights_to_float(a->type, data + (size_t) i * a->nb[1], out, a->ne[0]);
}

// Corners, then anywhere, against float64: squares of errors over squares of results, and no single one far out.
static void compare(const struct gcuda_mul_mat_args * p, const char * a, const char * b, const float * y, double bound,
    struct rng * r) {
    float *w = (float *) malloc((size_t) p->a.ne[0] * sizeof(float)),
          *x = (float *) malloc((size_t) p->a.ne[0] * sizeof(float));
    double errors = 0.0, results = 0.0, most = 0.0;
    enum { N = 600 };
    for (int i = 0; i < N; ++i) {
        const int64_t m = i < 4 ? i % 2 * (p->a.ne[1] - 1) : rng_below(r, p->a.ne[1]);
        const int64_t n = i < 4 ? i / 2 * (p->b.ne[1] - 1) : rng_below(r, p->b.ne[1]);
        double sum = 0.0;
        row_of(&p->a, a, m, w);
        row_of(&p->b, b, n, x);
        for (int64_t k = 0; k < p->a.ne[0]; ++k) {
            const double term = (double) w[k] * x[k];
            sum += term;
            results += term * term; // the mean square of a sum of k signs
        }
        const double error = y[(size_t) n * p->y.nb[1] / sizeof(float) + (size_t) m] - sum;
        errors += error * error;
        most = fmax(most, isfinite(error) ? fabs(error) : INFINITY);
    }
    CHECK_MSG(errors <= bound * results, "NMSE %g, allowed %g", errors / results, bound);
    CHECK_MSG(most <= 8.0 * sqrt(bound * results / N), "error %g, rms %g", most, sqrt(results / N));
    for (int64_t n = 0; n < p->b.ne[1]; ++n) { // bytes between columns of the result are the caller's
        for (size_t m = (size_t) p->a.ne[1]; m < p->y.nb[1] / sizeof(float); ++m) {
            uint32_t bits;
            memcpy(&bits, y + (size_t) n * p->y.nb[1] / sizeof(float) + m, sizeof bits);
            CHECK(bits == 0xffffffffu);
        }
    }
    free(w);
    free(x);
}

// A kernel that multiplies in tiles.
struct way {
    const char * name;
    enum gcuda_mul_mat_path path;
    bool has_warp_groups, rounds; // needs them; BF16 of anything
};
static const struct way warp_groups = { "warp groups", GCUDA_MUL_MAT_WGMMA, true, false };
static const struct way tiles = { "tiles", GCUDA_MUL_MAT_TILE, false, true };
static const struct way by_vectors = { "vectors", GCUDA_MUL_MAT_VEC, false, true };
static const struct way floats = { "floats", GCUDA_MUL_MAT_GEMM, false, false };

// Without data.
static struct gcuda_mul_mat_args product_of(enum gcuda_type a_type, enum gcuda_type b_type, struct shape s) {
    struct gcuda_mul_mat_args p;
    memset(&p, 0, sizeof p);
    p.a = matrix(a_type, s.k, s.m, gcuda_row_size(a_type, s.k) + 16 * (size_t) s.pad);
    p.b = matrix(b_type, s.k, s.n, gcuda_row_size(b_type, s.k) + gcuda_type_size(b_type) * (size_t) s.pad);
    p.y = matrix(GCUDA_TYPE_F32, s.m, s.n, ((size_t) s.m + (size_t) s.pad) * sizeof(float));
    p.max_shared = most_shared();
    return p;
}

// scale: of the columns, or OUTLIERS.
static void product_by(
    const struct way * way, enum gcuda_type a_type, enum gcuda_type b_type, struct shape s, double scale) {
    struct gcuda_mul_mat_args p = product_of(a_type, b_type, s);
    struct rng r = rng_for(gcuda_type_name(a_type));
    snprintf(test_all.case_name, sizeof test_all.case_name, "%s, %s x %s, k %lld, m %lld, n %lld, pad %d, scale %g",
        way->name, gcuda_type_name(a_type), gcuda_type_name(b_type), (long long) s.k, (long long) s.m, (long long) s.n,
        s.pad, scale);
    char *a = weights_of(a_type, &p.a, &r), *b = columns_of(&p.b, scale, &r);
    float * y = (float *) malloc(p.y.nb[2]);
    p.a.data = on_device(a, p.a.nb[2]);
    p.b.data = on_device(b, p.b.nb[2]);
    p.y.data = on_device(NULL, p.y.nb[2]);
    void * scratch = on_device(NULL, product_scratch(way->path, &p, NULL));
    const gcuda_status st = launch_product(way->path, &p, NULL, scratch, NULL);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    CHECK(cudaMemcpy(y, p.y.data, p.y.nb[2], cudaMemcpyDeviceToHost) == cudaSuccess);
    if (!way->has_warp_groups || gcuda_has_warp_groups()) {
        const bool is_exact =
            !way->rounds && (a_type == GCUDA_TYPE_F16 || a_type == GCUDA_TYPE_F32 || a_type == b_type);
        CHECK_OK(st);
        compare(&p, a, b, y, is_exact ? 1e-6 : 4e-5, &r);
    } else {
        CHECK(st == GCUDA_STATUS_UNSUPPORTED);
    }
    if (way->has_warp_groups) {
        p.max_shared = 0;
        CHECK(launch_product(way->path, &p, NULL, scratch, NULL) == GCUDA_STATUS_UNSUPPORTED); // 48 KiB are not enough
        CHECK(cudaDeviceSynchronize() == cudaSuccess);
    }
    CHECK(cudaFree(p.a.data) == cudaSuccess && cudaFree(p.b.data) == cudaSuccess && cudaFree(p.y.data) == cudaSuccess &&
          cudaFree(scratch) == cudaSuccess);
    free(a);
    free(b);
    free(y);
    test_all.case_name[0] = '\0';
}

static void product(enum gcuda_type a_type, enum gcuda_type b_type, struct shape s, double scale) {
    product_by(&warp_groups, a_type, b_type, s, scale);
}

static int64_t whole_rows(enum gcuda_type type, int64_t k) { // the next k whose rows are multiples of 16 bytes
    const int64_t n = gcuda_blck_size(type);
    for (k = (k + n - 1) / n * n; gcuda_row_size(type, k) % 16 != 0; k += n) {}
    return k;
}

TEST(every_type_and_every_edge) {
    static const struct shape shapes[] = { { 8, 1, 128, 0 }, { 256, 63, 129, 1 }, { 512, 65, 500, 0 },
        { 1024, 255, 257, 3 }, { 2304, 300, 31, 4 }, { 768, 129, 1, 0 }, { 4096, 1, 513, 1 }, { 1280, 520, 64, 1 } };
    const bool is_there = gcuda_has_warp_groups();
    for (int t = 0; t < (is_there ? N_TYPES : 3); ++t) {
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; ++i) {
            struct shape s = shapes[i];
            s.k = whole_rows(types[t], s.k);
            product(types[t], i % 3 == 0 ? GCUDA_TYPE_F32 : i % 3 == 1 ? GCUDA_TYPE_F16 : GCUDA_TYPE_BF16, s, 1.0);
            product(types[t], GCUDA_TYPE_F32, s, 1.0);
        }
    }
    if (!is_there) { test_skip("no wgmma kernels, which were refused"); }
}

static int multiprocessors(void) {
    int n = 0;
    CHECK(cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, 0) == cudaSuccess);
    return n;
}

// So few row tiles that tiles of 128 columns need a second round of blocks, and tiles of 256 columns do not: a block on
// every second SM.
static int64_t rows_of_wide_tiles(void) { return (multiprocessors() / 4 + 1) * 256 - 126; }

// The kernel of quantized weights with tiles of `width` columns.
static void product_of_width(int width, enum gcuda_type type, struct shape s) {
    const struct gcuda_mul_mat_args p = product_of(type, GCUDA_TYPE_F32, s);
    CHECK_EQ_I(product_layout(GCUDA_MUL_MAT_WGMMA, &p, 1).form, width);
    product(type, GCUDA_TYPE_F32, s, 1.0);
}

// Products with wgmma, also of floats that are rounded or multiplied unconverted. Few tiles get split-K parts of 512
// elements of k, which are more steps than the pipelines have stages; as many as of 256 columns get none.
TEST(few_blocks_of_every_width) {
    const struct shape wide = { 768, rows_of_wide_tiles(), 250, 0 };
    if (!gcuda_has_warp_groups()) {
        test_skip("no wgmma kernels");
        return;
    }
    for (int t = 0; t < N_TYPES; ++t) {
        struct shape few = { 4096, 130, 60, 0 }, some = few, many = wide;
        some.n = 140, many.k = whole_rows(types[t], wide.k);
        if (gcuda_is_quantized(types[t])) {
            const struct gcuda_mul_mat_args p = product_of(types[t], GCUDA_TYPE_F32, some);
            // with few SMs none is idle with one wide tile
            if (product_layout(GCUDA_MUL_MAT_WGMMA, &p, 1).form != 128) { some.n = 100; }
            product_of_width(64, types[t], few);
            product_of_width(128, types[t], some);
            product_of_width(256, types[t], many);
        } else {
            const enum gcuda_type other = types[t] == GCUDA_TYPE_F32 ? GCUDA_TYPE_BF16 : GCUDA_TYPE_F32;
            product(types[t], other, some, 1.0);
            product(types[t], other, many, 1.0);
            product(types[t], types[t], many, 1.0);
        }
    }
}

// Steps of tiles are distributed over all resident blocks: each gets six, two more than its pipeline has stages.
TEST(few_blocks_with_full_rings) {
    const int64_t n_tiles = (6 * 2 * multiprocessors() + 31) / 32; // of 32 steps
    // the latter: one block each
    const struct shape few = { 8192, 128 * n_tiles - 3, 13, 0 }, half = { 8192, 64 * n_tiles + 61, 100, 0 };
    product_by(&tiles, GCUDA_TYPE_Q4_0, GCUDA_TYPE_F32, few, 1.0);
    product_by(&tiles, GCUDA_TYPE_IQ3_S, GCUDA_TYPE_F32, few, 1.0);
    product_by(&tiles, GCUDA_TYPE_Q4_K, GCUDA_TYPE_F32, half, 1.0);
    product_by(&tiles, GCUDA_TYPE_BF16, GCUDA_TYPE_F32, half, 1.0);
}

// Every kernel with tiles in shared memory, ends that fill no tile, and parts of k: few enough blocks for racecheck
// (tests/gpu.py).
TEST(few_blocks_of_every_kind) {
    static const int widths[] = { 16, 31, 64, 128 }; // of the kernels for few columns
    for (int t = 0; t < N_TYPES; ++t) {
        const int64_t k = whole_rows(types[t], 768);
        for (int i = 0; i < 4; ++i) {
            // two tiles of rows, or a part of one
            const struct shape s = { k, t < 4 || i == t % 4 ? 130 : 40, widths[i], 0 };
            product_by(&tiles, types[t], GCUDA_TYPE_F32, s, 1.0);
        }
        if (gcuda_has_warp_groups()) {
            const struct shape s = { k, 130, t % 3 == 0 ? 70 : t % 3 == 1 ? 140 : 60, 0 };
            product(types[t], GCUDA_TYPE_F32, s, 1.0);
        }
    }
    const struct shape in_parts = { 4096, 40, 36, 0 };
    const struct gcuda_mul_mat_args blocks = product_of(GCUDA_TYPE_Q4_0, GCUDA_TYPE_F32, in_parts);
    const struct gcuda_mul_mat_args halves = product_of(GCUDA_TYPE_F16, GCUDA_TYPE_F16, in_parts);
    CHECK(product_scratch(GCUDA_MUL_MAT_GEMM, &halves, NULL) > 0); // sums of parts
    if (gcuda_has_warp_groups()) {
        // two blocks per SM
        CHECK(product_layout(GCUDA_MUL_MAT_WGMMA, &blocks, 1).n_splits > 1 &&
              product_layout(GCUDA_MUL_MAT_WGMMA, &blocks, 1).form == 64);
        product(GCUDA_TYPE_Q4_0, GCUDA_TYPE_F32, in_parts, 1.0);
    }
    for (int t = 0; t < 3; ++t) {
        const struct shape s = { 1032, 70, 66, 0 };
        product_by(&floats, types[t], types[t], s, 1.0);
        product_by(&floats, types[t], types[t], in_parts, 1.0);
        if (gcuda_has_warp_groups()) { product(types[t], types[t], s, 1.0); }
    }
}

TEST(depths_between_steps) { // floats in rows of eights, blocks of 32 in rows that are not whole slabs
    static const int64_t ks[] = { 8, 40, 64, 96, 128, 160, 192, 320, 1000, 4104, 8200, 16400 };
    if (!gcuda_has_warp_groups()) {
        test_skip("no wgmma kernels");
        return;
    }
    for (size_t i = 0; i < sizeof ks / sizeof ks[0]; ++i) {
        for (int t = 0; t < N_TYPES; ++t) {
            const struct shape s = { ks[i], 130, (i + (size_t) t) % 2 == 0 ? 140 : 40, 0 };
            if (s.k % gcuda_blck_size(types[t]) == 0 && gcuda_row_size(types[t], s.k) % 16 == 0) {
                product(types[t], GCUDA_TYPE_F32, s, 1.0);
            }
        }
    }
}

TEST(sizes_of_activations) {
    static const double scales[] = { 1e5, 1e-6, 1e30, 1e-30 };
    if (!gcuda_has_warp_groups()) {
        test_skip("no wgmma kernels");
        return;
    }
    for (int i = 0; i < 4; ++i) {
        const struct shape s = { 4096, 200, 150, 0 };
        for (int t = 0; t < 5; ++t) { product(types[t], GCUDA_TYPE_F32, s, scales[i]); }
        product(GCUDA_TYPE_F16, GCUDA_TYPE_BF16, s, scales[i]);
    }
}

TEST(sizes_of_activations_of_every_type) { // with few columns and with many
    static const double scales[] = { 1.0, 1e5, 1e-6, OUTLIERS };
    if (!gcuda_has_warp_groups()) {
        test_skip("no wgmma kernels");
        return;
    }
    for (int t = 0; t < N_TYPES; ++t) {
        const int64_t k = whole_rows(types[t], 512);
        for (int i = 0; i < 4; ++i) {
            const struct shape few = { k, 130, 50, 0 }, many = { k, 200, 150, 0 };
            product(types[t], GCUDA_TYPE_F32, few, scales[i]);
            product(types[t], GCUDA_TYPE_F32, many, scales[i]);
        }
    }
}

TEST(many_tiles_and_parts) { // more than the device has at once, and parts of k
    static const struct shape shapes[] = { { 14336, 1024, 512, 0 }, { 4096, 4096, 500, 0 }, { 1024, 9000, 1100, 1 } };
    if (!gcuda_has_warp_groups()) {
        test_skip("no wgmma kernels");
        return;
    }
    for (int i = 0; i < 3; ++i) {
        product(GCUDA_TYPE_F16, GCUDA_TYPE_F32, shapes[i], 1.0);
        product(GCUDA_TYPE_Q8_0, GCUDA_TYPE_F32, shapes[i], 1.0);
        product(GCUDA_TYPE_Q4_K, GCUDA_TYPE_F32, shapes[i], 1.0);
    }
}

// Matrices of different heights with the same columns, results with gaps between columns.
static void group(enum gcuda_type type, const int64_t * m, int n_args, int64_t k, int64_t n) {
    struct gcuda_mul_mat_args p[GCUDA_MUL_MAT_GROUP];
    char *a[GCUDA_MUL_MAT_GROUP], *b = NULL;
    struct rng r = rng_for(gcuda_type_name(type));
    memset(p, 0, sizeof p);
    snprintf(test_all.case_name, sizeof test_all.case_name, "%s, k %lld, n %lld, %d matrices", gcuda_type_name(type),
        (long long) k, (long long) n, n_args);
    for (int i = 0; i < n_args; ++i) {
        p[i].a = matrix(type, k, m[i], gcuda_row_size(type, k));
        p[i].b = i > 0 ? p[0].b : matrix(GCUDA_TYPE_F32, k, n, (size_t) k * sizeof(float));
        p[i].y = matrix(GCUDA_TYPE_F32, m[i], n, (size_t) (m[i] + i) * sizeof(float));
        p[i].max_shared = (size_t) 227 << 10;
        a[i] = weights_of(type, &p[i].a, &r);
        p[i].a.data = on_device(a[i], p[i].a.nb[2]);
        p[i].y.data = on_device(NULL, p[i].y.nb[2]);
        if (i == 0) {
            b = columns_of(&p[0].b, 1.0, &r);
            p[0].b.data = on_device(b, p[0].b.nb[2]);
        }
    }
    void * scratch = on_device(NULL, group_scratch(GCUDA_MUL_MAT_WGMMA, p, n_args));
    CHECK_OK(launch_group(GCUDA_MUL_MAT_WGMMA, p, n_args, scratch, NULL));
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    for (int i = 0; i < n_args; ++i) {
        float * y = (float *) malloc(p[i].y.nb[2]);
        CHECK(cudaMemcpy(y, p[i].y.data, p[i].y.nb[2], cudaMemcpyDeviceToHost) == cudaSuccess);
        compare(&p[i], a[i], b, y, 4e-5, &r);
        free(y);
    }
    struct gcuda_mul_mat_args other = p[1];
    p[1].b.data = p[0].y.data; // other columns
    CHECK(launch_group(GCUDA_MUL_MAT_WGMMA, p, n_args, scratch, NULL) == GCUDA_STATUS_UNSUPPORTED);
    p[1] = other;
    p[1].max_shared = p[0].max_shared = 0;
    CHECK(launch_group(GCUDA_MUL_MAT_WGMMA, p, n_args, scratch, NULL) == GCUDA_STATUS_UNSUPPORTED);
    CHECK(cudaFree(scratch) == cudaSuccess && cudaFree(p[0].b.data) == cudaSuccess);
    for (int i = 0; i < n_args; ++i) {
        CHECK(cudaFree(p[i].a.data) == cudaSuccess && cudaFree(p[i].y.data) == cudaSuccess);
        free(a[i]);
    }
    free(b);
    test_all.case_name[0] = '\0';
}

TEST(groups_of_products) {
    static const int64_t heights[][3] = { { 4096, 1024, 1024 }, { 300, 77, 1000 }, { 256, 512, 1 } };
    if (!gcuda_has_warp_groups()) {
        test_skip("no wgmma kernels");
        return;
    }
    for (int i = 0; i < 3; ++i) {
        group(GCUDA_TYPE_Q4_0, heights[i], 3, 2048, 512 - 60 * i);
        group(GCUDA_TYPE_Q6_K, heights[i], 2, 2048, 130);
        group(GCUDA_TYPE_IQ2_XXS, heights[i], 3, 4096, 33);
    }
}

// ---- epilogues ----
enum { BIAS = 1, FACTOR = 2, SCALE = 4, RESIDUAL = 8, IN_PLACE = 16, OF_COLUMNS = 32, ACROSS = 64 };

static void chained(struct gcuda_chain_args * c, enum gcuda_op op, const struct gcuda_array * b) {
    struct gcuda_chain_step * s = &c->steps[c->n_steps++];
    s->op = op;
    if (b != NULL) { s->b = *b; }
}

// Rows of floats on the device, with gaps between columns; ACROSS: with gaps between rows.
static struct gcuda_array floats_on_device(int64_t ne0, int64_t ne1, int pad, bool is_across, struct rng * r) {
    struct gcuda_array a = matrix(GCUDA_TYPE_F32, is_across ? ne1 : ne0, is_across ? ne0 : ne1,
        (size_t) ((is_across ? ne1 : ne0) + pad) * sizeof(float));
    char * data = columns_of(&a, 2.0, r);
    a.data = on_device(data, a.nb[2]);
    free(data);
    if (is_across) {
        const size_t nb = a.nb[0];
        a.nb[0] = a.nb[1], a.nb[1] = nb;
        a.ne[0] = ne0, a.ne[1] = ne1;
    }
    return a;
}

// Bits of the product followed by the epilogue in a separate kernel. glu COUNT: no activation.
static void with_steps(
    enum gcuda_type type, struct shape s, int flags, enum gcuda_glu_op glu, enum gcuda_unary_op unary) {
    struct gcuda_mul_mat_args p;
    struct gcuda_mul_mat_epilogue e;
    struct gcuda_chain_args c;
    struct rng r = rng_for(gcuda_type_name(type));
    memset(&p, 0, sizeof p);
    memset(&e, 0, sizeof e);
    memset(&c, 0, sizeof c);
    s.k = whole_rows(type, s.k);
    p.a = matrix(type, s.k, s.m, gcuda_row_size(type, s.k));
    p.b = matrix(GCUDA_TYPE_F32, s.k, s.n, (size_t) s.k * sizeof(float));
    p.max_shared = (size_t) 227 << 10;
    snprintf(test_all.case_name, sizeof test_all.case_name, "%s, k %lld, m %lld, n %lld, pad %d, steps %d, glu %d",
        gcuda_type_name(type), (long long) s.k, (long long) s.m, (long long) s.n, s.pad, flags, (int) glu);
    // 1e5: a factor per column
    char *a = weights_of(type, &p.a, &r), *b = columns_of(&p.b, type == GCUDA_TYPE_F16 ? 1e5 : 0.1, &r);
    p.a.data = on_device(a, p.a.nb[2]);
    p.b.data = on_device(b, p.b.nb[2]);
    const bool is_across = (flags & ACROSS) != 0;
    struct gcuda_array y[2], whole = floats_on_device(s.m, s.n, s.pad, is_across, &r),
                             row = floats_on_device(s.m, 1, 0, false, &r),
                             column = floats_on_device(1, s.n, 0, false, &r);
    for (int i = 0; i < 2; ++i) { y[i] = floats_on_device(s.m, s.n, s.pad, false, &r); }
    c.x = c.y = y[0];
    e.bias = (flags & BIAS) == 0 ? e.bias : (flags & OF_COLUMNS) != 0 ? column : row;
    e.factor = (flags & FACTOR) == 0 ? e.factor : (flags & OF_COLUMNS) != 0 ? row : column;
    e.residual = (flags & RESIDUAL) == 0 ? e.residual : (flags & IN_PLACE) != 0 ? y[1] : whole;
    if (flags & BIAS) { chained(&c, GCUDA_OP_ADD, &e.bias); }
    if (glu != GCUDA_GLU_OP_COUNT) {
        chained(&c, GCUDA_OP_UNARY, NULL);
        c.steps[c.n_steps - 1].unary = unary;
        e.is_activated = true;
        e.glu = glu;
    }
    if (flags & FACTOR) { chained(&c, GCUDA_OP_MUL, &e.factor); }
    if (flags & SCALE) {
        chained(&c, GCUDA_OP_SCALE, NULL);
        c.steps[c.n_steps - 1].p[0] = e.scale = -0.75f;
        e.is_scaled = true;
    }
    if (flags & RESIDUAL) { chained(&c, GCUDA_OP_ADD, &e.residual); }
    float * got[2] = { (float *) malloc(y[0].nb[2]), (float *) malloc(y[0].nb[2]) };
    p.y = y[0];
    const size_t plain = product_scratch(GCUDA_MUL_MAT_WGMMA, &p, NULL),
                 fused = product_scratch(GCUDA_MUL_MAT_WGMMA, &p, &e);
    void * scratch = on_device(NULL, plain > fused ? plain : fused);
    CHECK_OK(launch_product(GCUDA_MUL_MAT_WGMMA, &p, NULL, scratch, NULL));
    CHECK_OK(gcuda_launch_chain(&c, NULL)); // before the result lies on its residual
    p.y = y[1];
    CHECK_OK(launch_product(GCUDA_MUL_MAT_WGMMA, &p, &e, scratch, NULL));
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    for (int i = 0; i < 2; ++i) {
        CHECK(cudaMemcpy(got[i], y[i].data, y[i].nb[2], cudaMemcpyDeviceToHost) == cudaSuccess);
    }
    int64_t n_other = 0;
    for (int64_t i = 0; i < s.n; ++i) {
        for (int64_t m = 0; m < s.m + s.pad; ++m) {
            const int64_t at = i * (s.m + s.pad) + m;
            uint32_t bits;
            memcpy(&bits, &got[1][at], sizeof bits);
            // past the end: the caller's
            n_other += m < s.m ? memcmp(&got[0][at], &got[1][at], sizeof(float)) != 0 : bits != 0xffffffffu;
        }
    }
    CHECK_MSG(n_other == 0, "%lld others of %lld", (long long) n_other, (long long) (s.m * s.n));
    e.up = p.a.data;
    CHECK(launch_product(GCUDA_MUL_MAT_WGMMA, &p, &e, scratch, NULL) == GCUDA_STATUS_UNSUPPORTED);
    CHECK(cudaFree(p.a.data) == cudaSuccess && cudaFree(p.b.data) == cudaSuccess &&
          cudaFree(whole.data) == cudaSuccess && cudaFree(row.data) == cudaSuccess &&
          cudaFree(column.data) == cudaSuccess && cudaFree(y[0].data) == cudaSuccess &&
          cudaFree(y[1].data) == cudaSuccess && cudaFree(scratch) == cudaSuccess);
    for (int i = 0; i < 2; ++i) { free(got[i]); }
    free(a);
    free(b);
    test_all.case_name[0] = '\0';
}

static const struct {
    enum gcuda_glu_op glu;
    enum gcuda_unary_op unary;
} kinds[] = { { GCUDA_GLU_OP_COUNT, GCUDA_UNARY_OP_COUNT }, { GCUDA_GLU_OP_REGLU, GCUDA_UNARY_OP_RELU },
    { GCUDA_GLU_OP_GEGLU, GCUDA_UNARY_OP_GELU }, { GCUDA_GLU_OP_SWIGLU, GCUDA_UNARY_OP_SILU },
    { GCUDA_GLU_OP_GEGLU_QUICK, GCUDA_UNARY_OP_GELU_QUICK }, { GCUDA_GLU_OP_GEGLU_ERF, GCUDA_UNARY_OP_GELU_ERF } };
enum { N_KINDS = sizeof kinds / sizeof kinds[0] };

TEST(steps_behind_sums) { // every type, k in one part and in several, rows and columns that end anywhere
    static const struct shape shapes[] = { { 512, 4099, 512, 0 }, { 256, 1027, 2047, 1 }, { 512, 130, 64, 0 },
        { 256, 300, 17, 4 }, { 4096, 259, 128, 0 }, { 256, 17000, 300, 0 } };
    static const int flags[] = { BIAS, RESIDUAL, BIAS | RESIDUAL | IN_PLACE, BIAS | FACTOR | SCALE | RESIDUAL,
        BIAS | FACTOR | OF_COLUMNS, SCALE | RESIDUAL | ACROSS, RESIDUAL | IN_PLACE };
    if (!gcuda_has_warp_groups()) {
        test_skip("no wgmma kernels");
        return;
    }
    int n = 0;
    for (int t = 0; t < N_TYPES; ++t) {
        for (int i = 0; i < 6; ++i, ++n) {
            const int kind = n % N_KINDS;
            with_steps(types[t], shapes[(i + t) % 6], flags[n % 7], kinds[kind].glu, kinds[kind].unary);
        }
    }
}

TEST(steps_of_small_products) { // few enough for compute-sanitizer; more items than clusters of the device
    static const struct shape shapes[] = { { 256, 259, 515, 1 }, { 1024, 300, 40, 0 }, { 256, 17100, 257, 0 },
        { 256, 34300, 20, 0 } };
    if (!gcuda_has_warp_groups()) {
        test_skip("no wgmma kernels");
        return;
    }
    for (int i = 0; i < 4; ++i) {
        with_steps(
            GCUDA_TYPE_Q4_0, shapes[i], BIAS | FACTOR | SCALE | RESIDUAL, GCUDA_GLU_OP_GEGLU, GCUDA_UNARY_OP_GELU);
        with_steps(GCUDA_TYPE_F16, shapes[i], RESIDUAL | IN_PLACE, GCUDA_GLU_OP_COUNT, GCUDA_UNARY_OP_COUNT);
    }
}

TEST(steps_of_every_kind) { // several items for each block, and parts of k
    static const struct shape shapes[] = { { 512, 8200, 2048, 0 }, { 2048, 4096, 512, 0 } };
    if (!gcuda_has_warp_groups()) {
        test_skip("no wgmma kernels");
        return;
    }
    for (int i = 0; i < 2; ++i) {
        for (int k = 0; k < N_KINDS; ++k) {
            with_steps(GCUDA_TYPE_Q4_0, shapes[i], BIAS | FACTOR | SCALE | RESIDUAL, kinds[k].glu, kinds[k].unary);
            with_steps(
                GCUDA_TYPE_Q8_0, shapes[i], k % 2 == 0 ? BIAS : RESIDUAL | IN_PLACE, kinds[k].glu, kinds[k].unary);
        }
    }
}

// ---- activations that gates write prequantized ----
enum { PLAIN, FUSED, GROUP }; // how they are multiplied

static gcuda_status multiply(
    const struct gcuda_mul_mat_args * p, int how, const struct gcuda_mul_mat_epilogue * e, void * scratch) {
    return how == GROUP   ? launch_group(GCUDA_MUL_MAT_WGMMA, p, 2, scratch, NULL)
           : how == FUSED ? launch_product(GCUDA_MUL_MAT_WGMMA, p, e, scratch, NULL)
                          : launch_product(GCUDA_MUL_MAT_WGMMA, p, NULL, scratch, NULL);
}

static size_t scratch_of(const struct gcuda_mul_mat_args * p, int how) {
    static const struct gcuda_mul_mat_epilogue none;
    return how == GROUP   ? group_scratch(GCUDA_MUL_MAT_WGMMA, p, 2)
           : how == FUSED ? product_scratch(GCUDA_MUL_MAT_WGMMA, p, &none)
                          : product_scratch(GCUDA_MUL_MAT_WGMMA, p, NULL);
}

// The result of a gate: floats, or prequantized.
static gcuda_status make_columns(const struct gcuda_array all[3], void * y, int form) {
    struct gcuda_glu_args g;
    memset(&g, 0, sizeof g);
    g.x = all[0], g.g = all[1], g.y = all[2];
    g.y.data = y, g.op = GCUDA_GLU_OP_SWIGLU, g.form = form;
    return gcuda_launch_glu(&g, NULL);
}

// The product's bits are those of the floats. Rounded columns may be the beginning of its scratch.
static void rounded(enum gcuda_type type, struct shape s, int how, bool is_in_scratch) {
    struct gcuda_mul_mat_args p[2];
    struct gcuda_mul_mat_epilogue e;
    struct rng r = rng_for(gcuda_type_name(type));
    memset(p, 0, sizeof p);
    memset(&e, 0, sizeof e);
    snprintf(test_all.case_name, sizeof test_all.case_name, "%s, k %lld, m %lld, n %lld, pad %d, %d",
        gcuda_type_name(type), (long long) s.k, (long long) s.m, (long long) s.n, s.pad, how);
    const struct gcuda_array all[3] = { floats_on_device(s.k, s.n, 4 * s.pad, false, &r),
        floats_on_device(s.k, s.n, 0, false, &r), floats_on_device(s.k, s.n, 4, false, &r) };
    e.bias = floats_on_device(s.m, 1, 0, false, &r);
    for (int i = 0; i < 2; ++i) {
        p[i].a = matrix(type, s.k, s.m, gcuda_row_size(type, s.k));
        p[i].b = all[2];
        p[i].y = matrix(GCUDA_TYPE_F32, s.m, s.n, (size_t) (s.m + s.pad) * sizeof(float));
        p[i].max_shared = (size_t) 227 << 10;
        char * a = weights_of(type, &p[i].a, &r);
        p[i].a.data = on_device(a, p[i].a.nb[2]);
        p[i].y.data = on_device(NULL, p[i].y.nb[2]);
        free(a);
    }
    const int form = product_layout(GCUDA_MUL_MAT_WGMMA, p, how == GROUP ? 2 : 1).form;
    const size_t n_bytes = product_layout(GCUDA_MUL_MAT_WGMMA, p, how == GROUP ? 2 : 1).bytes, y_bytes = p[0].y.nb[2];
    void *scratch = on_device(NULL, scratch_of(p, how)), *own = on_device(NULL, n_bytes),
         *image = is_in_scratch ? scratch : own;
    char * y[2] = { (char *) malloc(2 * y_bytes), (char *) malloc(2 * y_bytes) };
    CHECK(form != 0 && scratch_of(p, how) >= n_bytes);
    for (int i = 0; i < 2; ++i) {
        CHECK_OK(make_columns(all, i == 0 ? all[2].data : image, i == 0 ? 0 : form));
        if (i == 1) { p[0].b.data = p[1].b.data = image, p[0].is_prequantized = p[1].is_prequantized = true; }
        CHECK_OK(multiply(p, how, &e, scratch));
        for (int k = 0; k < (how == GROUP ? 2 : 1); ++k) {
            CHECK(cudaMemcpy(y[i] + (size_t) k * y_bytes, p[k].y.data, y_bytes, cudaMemcpyDeviceToHost) == cudaSuccess);
            CHECK(cudaMemsetAsync(p[k].y.data, 0xff, y_bytes, NULL) == cudaSuccess);
        }
    }
    CHECK(memcmp(y[0], y[1], (how == GROUP ? 2 : 1) * y_bytes) == 0);
    p[0].b.data = p[1].b.data = (char *) image + 8; // one condition after the other
    CHECK(multiply(p, how, &e, scratch) == GCUDA_STATUS_UNSUPPORTED);
    p[0].b.data = p[1].b.data = image;
    CHECK(launch_group(GCUDA_MUL_MAT_WGMMA, p, 1, scratch, NULL) == GCUDA_STATUS_UNSUPPORTED);
    p[0].is_prequantized = false; // of a group one alone
    CHECK(launch_group(GCUDA_MUL_MAT_WGMMA, p, 2, scratch, NULL) == GCUDA_STATUS_UNSUPPORTED);
    CHECK(cudaFree(p[0].a.data) == cudaSuccess);
    p[0].is_prequantized = true, p[0].a = matrix(GCUDA_TYPE_F16, s.k, 1, (size_t) s.k * 2), p[0].a.data = all[0].data,
    p[0].y.ne[0] = 1;
    CHECK(launch_product(GCUDA_MUL_MAT_WGMMA, p, NULL, scratch, NULL) == GCUDA_STATUS_UNSUPPORTED);
    void * const used[] = { scratch, own, all[0].data, all[1].data, all[2].data, e.bias.data, p[0].y.data, p[1].y.data,
        p[1].a.data };
    for (size_t i = 0; i < sizeof used / sizeof used[0]; ++i) { CHECK(cudaFree(used[i]) == cudaSuccess); }
    free(y[0]);
    free(y[1]);
    test_all.case_name[0] = '\0';
}

TEST(few_blocks_that_round) { // few enough for compute-sanitizer
    static const struct shape shapes[] = { { 512, 40, 20, 0 }, { 256, 130, 130, 1 } };
    if (!gcuda_has_warp_groups()) {
        test_skip("no wgmma kernels");
        return;
    }
    for (int i = 0; i < 2; ++i) {
        for (int how = PLAIN; how <= GROUP; ++how) {
            for (int k = 0; k < 2; ++k) { rounded(GCUDA_TYPE_Q4_0, shapes[i], how, k == 0); }
        }
    }
}

TEST(columns_rounded_where_they_are_made) {
    static const struct shape shapes[] = { { 512, 65, 500, 0 }, { 2304, 300, 31, 4 }, { 4096, 4096, 512, 0 },
        { 14336, 4096, 512, 0 }, { 1024, 511, 130, 1 } };
    static const enum gcuda_type some[] = { GCUDA_TYPE_Q4_0, GCUDA_TYPE_Q6_K, GCUDA_TYPE_IQ2_XXS, GCUDA_TYPE_Q8_0 };
    if (!gcuda_has_warp_groups()) {
        test_skip("no wgmma kernels");
        return;
    }
    for (int t = 0; t < 4; ++t) {
        for (int i = 0; i < 5; ++i) {
            struct shape s = shapes[i];
            while (gcuda_row_size(some[t], s.k) % 16 != 0) { s.k += 256; }
            for (int how = PLAIN; how <= GROUP; ++how) { rounded(some[t], s, how, t % 2 == 0); }
        }
    }
}

// ---- experts ----
struct experts {
    int64_t k, m, n_experts, used, n_b, tokens; // n_b: columns of a token, 1 or used
    int pad;                                    // elements between columns of the result
    // any experts, one, some that do not exist, two, more and more often the last ones
    enum { ANY, SAME, BAD, FEW, RISING } ids;
};

static int32_t id_of(struct experts s, int64_t slot, struct rng * r) {
    const int32_t any = (int32_t) rng_below(r, s.n_experts), other = (int32_t) rng_below(r, s.n_experts);
    switch (s.ids) {
        case SAME: return (int32_t) (s.n_experts / 2);
        case BAD: return slot % 7 != 0 ? any : slot % 2 == 0 ? -1 : (int32_t) s.n_experts;
        case FEW: return any % 2;
        case RISING: return any > other ? any : other;
        default: return any;
    }
}

// Pairs at both ends, then random ones, against float64; zeros for missing experts; bytes between columns are the
// caller's.
static void compare_experts(const struct experts * s, enum gcuda_type type, const char * a, const float * b,
    const int32_t * ids, const float * y, struct rng * r) {
    const size_t row = gcuda_row_size(type, s->k), ld = (size_t) (s->m + s->pad);
    const int64_t n_slots = s->used * s->tokens;
    float * w = (float *) malloc((size_t) s->k * sizeof(float));
    double errors = 0.0, results = 0.0, most = 0.0;
    int64_t n_other = 0, n = 0;
    for (int i = 0; i < 1000; ++i) {
        const int64_t slot = i < 4 ? i / 2 * (n_slots - 1) : rng_below(r, n_slots),
                      m = i < 4 ? i % 2 * (s->m - 1) : rng_below(r, s->m);
        if (ids[slot] < 0 || ids[slot] >= s->n_experts) { continue; }
        const float * x = b + (size_t) (slot / s->used * s->n_b + slot % s->used % s->n_b) * (size_t) s->k;
        double sum = 0.0;
        weights_to_float(type, a + ((size_t) ids[slot] * (size_t) s->m + (size_t) m) * row, w, s->k);
        for (int64_t k = 0; k < s->k; ++k) {
            sum += (double) w[k] * x[k];
            results += (double) w[k] * w[k] * x[k] * x[k];
        }
        const double error = y[(size_t) slot * ld + (size_t) m] - sum;
        errors += error * error;
        most = fmax(most, isfinite(error) ? fabs(error) : INFINITY);
        ++n;
    }
    CHECK_MSG(errors <= 4e-5 * results, "NMSE %g", errors / results);
    CHECK_MSG(most <= 8.0 * sqrt(4e-5 * results / (double) n), "error %g, rms %g", most, sqrt(results / (double) n));
    for (int64_t slot = 0; slot < n_slots; ++slot) {
        const bool is_bad = ids[slot] < 0 || ids[slot] >= s->n_experts;
        for (int64_t m = 0; m < s->m + s->pad; ++m) {
            uint32_t bits;
            memcpy(&bits, &y[(size_t) slot * ld + (size_t) m], sizeof bits);
            n_other += m >= s->m ? bits != 0xffffffffu : is_bad ? bits != 0u : bits == 0xffffffffu;
        }
    }
    CHECK_MSG(n_other == 0, "%lld elements", (long long) n_other);
    free(w);
}

static bool has_byte_products(void) {
    int major = 0;
    CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess);
    return major >= 8;
}

struct id_way {
    const char * name;
    enum gcuda_mul_mat_path path;
    double bound;          // squares of what differs from tiles, over squares of results
    bool needs_all_shared; // and refuses less
};
static const struct id_way on_groups = { "warp groups", GCUDA_MUL_MAT_WGMMA, 1e-4, true };
static const struct id_way by_bytes = { "bytes", GCUDA_MUL_MAT_INT8, 1e-4, false };

// A launcher twice with the same scratch, and tiles: every element of one against the other's, and both times the same
// bits. scale: of the columns, or OUTLIERS.
static void experts_of_size(const struct id_way * way, enum gcuda_type type, struct experts s, double scale) {
    struct gcuda_mul_mat_id_args p;
    struct rng r = rng_for(gcuda_type_name(type));
    memset(&p, 0, sizeof p);
    if (gcuda_blck_size(type) == 256) { s.k = (s.k + 2047) / 2048 * 2048; } // rows at multiples of 16 bytes
    snprintf(test_all.case_name, sizeof test_all.case_name,
        "experts, %s, %s, k %lld, m %lld, %lld of %lld, %lld tokens, %lld columns each, pad %d, ids %d, scale %g",
        way->name, gcuda_type_name(type), (long long) s.k, (long long) s.m, (long long) s.used, (long long) s.n_experts,
        (long long) s.tokens, (long long) s.n_b, s.pad, (int) s.ids, scale);
    const int64_t n_slots = s.used * s.tokens;
    p.as = matrix(type, s.k, s.m * s.n_experts, gcuda_row_size(type, s.k));
    p.b = matrix(GCUDA_TYPE_F32, s.k, s.n_b * s.tokens, (size_t) s.k * sizeof(float));
    p.y = matrix(GCUDA_TYPE_F32, s.m, n_slots, (size_t) (s.m + s.pad) * sizeof(float));
    p.ids = matrix(GCUDA_TYPE_I32, s.used, s.tokens, (size_t) s.used * sizeof(int32_t));
    char *a = weights_of(type, &p.as, &r), *b = columns_of(&p.b, scale, &r);
    int32_t *ids = (int32_t *) malloc((size_t) n_slots * sizeof(int32_t)), bad[2] = { 0, 0 };
    for (int64_t i = 0; i < n_slots; ++i) { ids[i] = id_of(s, i, &r); }
    const size_t y_bytes = p.y.nb[2];
    float *y = (float *) malloc(y_bytes), *of_tiles = (float *) malloc(y_bytes), *first = (float *) malloc(y_bytes);
    p.as.data = on_device(a, p.as.nb[2]);
    p.b.data = on_device(b, p.b.nb[2]);
    p.ids.data = on_device(ids, (size_t) n_slots * sizeof(int32_t));
    p.bad_index = (int32_t *) on_device(bad, sizeof bad);
    p.max_shared = most_shared();
    p.as.ne[1] = s.m, p.as.ne[2] = s.n_experts, p.as.nb[2] = p.as.nb[1] * (size_t) s.m,
    p.as.nb[3] = p.as.nb[2] * (size_t) s.n_experts;
    p.b.ne[1] = s.n_b, p.b.ne[2] = s.tokens, p.b.nb[2] = p.b.nb[1] * (size_t) s.n_b,
    p.b.nb[3] = p.b.nb[2] * (size_t) s.tokens;
    p.y.ne[1] = s.used, p.y.ne[2] = s.tokens, p.y.nb[2] = p.y.nb[1] * (size_t) s.used,
    p.y.nb[3] = p.y.nb[2] * (size_t) s.tokens;
    void * on[2] = { on_device(NULL, y_bytes), on_device(NULL, y_bytes) };
    const size_t n_way = experts_scratch(way->path, &p), n_tiles = experts_scratch(GCUDA_MUL_MAT_PLAIN, &p);
    p.scratch = on_device(NULL, n_way > n_tiles ? n_way : n_tiles);
    p.y.data = on[1];
    CHECK_OK(launch_experts(GCUDA_MUL_MAT_PLAIN, &p, NULL, NULL));
    p.y.data = on[0];
    CHECK_OK(launch_experts(way->path, &p, NULL, NULL));
    CHECK(cudaMemcpy(first, on[0], y_bytes, cudaMemcpyDeviceToHost) == cudaSuccess);
    CHECK_OK(launch_experts(way->path, &p, NULL, NULL));
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    CHECK(cudaMemcpy(y, on[0], y_bytes, cudaMemcpyDeviceToHost) == cudaSuccess);
    CHECK(memcmp(first, y, y_bytes) == 0);
    CHECK(cudaMemcpy(of_tiles, on[1], y_bytes, cudaMemcpyDeviceToHost) == cudaSuccess);
    CHECK(cudaMemcpy(bad, p.bad_index, sizeof bad, cudaMemcpyDeviceToHost) == cudaSuccess);
    CHECK(bad[0] == (s.ids == BAD ? 1 : 0) && bad[1] == 0);
    compare_experts(&s, type, a, (const float *) (const void *) b, ids, y, &r);
    double errors = 0.0, results = 0.0;
    for (int64_t slot = 0; slot < n_slots; ++slot) {
        for (int64_t m = 0; m < s.m; ++m) {
            const size_t at = (size_t) slot * (size_t) (s.m + s.pad) + (size_t) m;
            const double error = (double) y[at] - of_tiles[at];
            errors += error * error;
            results += (double) of_tiles[at] * of_tiles[at];
        }
    }
    CHECK_MSG(errors <= way->bound * results, "NMSE %g between tiles and %s", errors / results, way->name);
    p.max_shared = 0;
    CHECK(launch_experts(way->path, &p, NULL, NULL) ==
          (way->needs_all_shared ? GCUDA_STATUS_UNSUPPORTED : GCUDA_STATUS_SUCCESS));
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    CHECK(cudaFree(p.as.data) == cudaSuccess && cudaFree(p.b.data) == cudaSuccess &&
          cudaFree(p.ids.data) == cudaSuccess && cudaFree(p.bad_index) == cudaSuccess &&
          cudaFree(p.scratch) == cudaSuccess && cudaFree(on[0]) == cudaSuccess && cudaFree(on[1]) == cudaSuccess);
    free(a);
    free(b);
    free(ids);
    free(y);
    free(of_tiles);
    free(first);
    test_all.case_name[0] = '\0';
}

static void experts_by_both(const struct id_way * way, enum gcuda_type type, struct experts s) {
    experts_of_size(way, type, s, 1.0);
}

static void experts_of_all_sizes(const struct id_way * way, enum gcuda_type type, struct experts s) {
    experts_of_size(way, type, s, 1e5);
    experts_of_size(way, type, s, 1e-6);
    experts_of_size(way, type, s, OUTLIERS);
}

// rows that end anywhere and, of small blocks, begin at any even byte; more tiles than one of an expert
TEST(experts_of_every_type) {
    static const struct experts shapes[] = { { 576, 130, 5, 2, 1, 40, 0, ANY }, { 2880, 300, 8, 4, 4, 33, 1, BAD },
        { 256, 40, 70, 3, 1, 50, 4, RISING }, { 4096, 257, 3, 1, 1, 200, 0, FEW }, { 64, 128, 4, 2, 2, 100, 3, SAME } };
    if (!gcuda_has_warp_groups()) {
        test_skip("no wgmma kernels");
        return;
    }
    for (int t = 0; t < N_TYPES; ++t) {
        for (int i = 0; i < 5 && gcuda_is_quantized(types[t]); ++i) {
            experts_by_both(&on_groups, types[t], shapes[i]);
        }
    }
}

TEST(sizes_of_activations_of_experts) {
    static const struct experts shapes[] = { { 576, 130, 5, 2, 1, 40, 0, ANY }, { 256, 40, 9, 3, 3, 70, 1, RISING } };
    if (!gcuda_has_warp_groups()) {
        test_skip("no wgmma kernels");
        return;
    }
    for (int t = 0; t < N_TYPES; ++t) {
        for (int i = 0; i < 2 && gcuda_is_quantized(types[t]); ++i) {
            experts_of_all_sizes(&on_groups, types[t], shapes[i]);
        }
    }
}

TEST(experts_of_models) { // several items for each block
    static const struct experts shapes[] = { { 2048, 1792, 32, 4, 1, 32, 0, ANY },
        { 2048, 1792, 32, 4, 1, 512, 0, RISING }, { 2048, 768, 128, 8, 1, 100, 0, ANY },
        { 2880, 2880, 32, 4, 1, 512, 0, BAD } };
    static const enum gcuda_type of[] = { GCUDA_TYPE_Q8_0, GCUDA_TYPE_Q4_0, GCUDA_TYPE_Q4_K, GCUDA_TYPE_MXFP4 };
    if (!gcuda_has_warp_groups()) {
        test_skip("no wgmma kernels");
        return;
    }
    for (int i = 0; i < 4; ++i) {
        for (int t = 0; t < 4; ++t) { experts_by_both(&on_groups, of[t], shapes[i]); }
    }
}

TEST(few_blocks_of_experts) { // few enough for compute-sanitizer
    const struct experts s = { 576, 130, 4, 2, 1, 20, 1, BAD };
    if (!gcuda_has_warp_groups()) {
        test_skip("no wgmma kernels");
        return;
    }
    for (int t = 0; t < N_TYPES; ++t) {
        if (gcuda_is_quantized(types[t])) { experts_by_both(&on_groups, types[t], s); }
    }
}

// Of these and of large experts; lists of one expert, blocks with more than one task, steps that come back.
TEST(experts_by_bytes) {
    static const struct experts shapes[] = { { 576, 130, 5, 2, 1, 40, 0, ANY }, { 2880, 300, 8, 4, 4, 33, 1, BAD },
        { 256, 40, 70, 3, 1, 50, 4, RISING }, { 4096, 257, 3, 1, 1, 20, 0, FEW }, { 64, 128, 4, 2, 2, 10, 3, SAME },
        { 9216, 520, 4, 2, 1, 9, 0, ANY } };
    static const struct experts large[] = { { 2048, 1792, 32, 4, 1, 32, 0, ANY },
        { 2048, 768, 128, 8, 1, 64, 0, RISING }, { 2880, 2880, 32, 4, 1, 32, 0, BAD } };
    if (!has_byte_products()) {
        test_skip("no tensor cores for bytes");
        return;
    }
    for (int t = 0; t < N_TYPES_BY_BYTES; ++t) {
        for (int i = 0; i < 6; ++i) { experts_by_both(&by_bytes, types_by_bytes[t], shapes[i]); }
    }
    for (int i = 0; i < 3; ++i) {
        for (int t = 0; t < 5; ++t) { experts_by_both(&by_bytes, types_by_bytes[t], large[i]); }
    }
}

TEST(sizes_of_activations_of_experts_by_bytes) {
    static const struct experts shapes[] = { { 576, 130, 5, 2, 1, 20, 0, ANY }, { 256, 40, 9, 3, 3, 24, 1, RISING } };
    if (!has_byte_products()) {
        test_skip("no tensor cores for bytes");
        return;
    }
    for (int t = 0; t < N_TYPES_BY_BYTES; ++t) {
        for (int i = 0; i < 2; ++i) { experts_of_all_sizes(&by_bytes, types_by_bytes[t], shapes[i]); }
    }
}

TEST(few_blocks_of_experts_by_bytes) { // few enough for compute-sanitizer
    const struct experts s = { 576, 130, 4, 2, 1, 20, 1, BAD };
    if (!has_byte_products()) {
        test_skip("no tensor cores for bytes");
        return;
    }
    for (int t = 0; t < N_TYPES_BY_BYTES; ++t) { experts_by_both(&by_bytes, types_by_bytes[t], s); }
}

// ---- few columns ----
TEST(few_blocks_of_vectors) { // on tensor cores, by bytes as well; rows of one pass of a block's warps and of several
    static const int columns[] = { 4, 8, 16 };
    if (!has_byte_products()) {
        test_skip("no tensor cores for bytes");
        return;
    }
    for (int t = 0; t < N_TYPES; ++t) {
        for (int i = 0; i < 3 && gcuda_is_quantized(types[t]) && columns[i] <= vec_layout_of(types[t]).max_columns;
             ++i) {
            const struct shape s = { whole_rows(types[t], 768), 130, columns[i], 1 };
            product_by(&by_vectors, types[t], GCUDA_TYPE_F32, s, 1.0);
        }
    }
    for (int i = 0; i < 3; ++i) {
        const struct shape deep = { 17152, 40, columns[i], 0 };
        product_by(&by_vectors, GCUDA_TYPE_Q4_0, GCUDA_TYPE_F32, deep, 1.0);
        if (i < 2) { product_by(&by_vectors, GCUDA_TYPE_Q2_K, GCUDA_TYPE_F32, deep, 1.0); }
    }
}
