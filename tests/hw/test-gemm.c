// Products of floats without cuBLAS, by their launchers (wgmma if the device has it), and activations converted to 16
// bits. Every edge of the tiles, matrices shared and not, split-K, all caps of shared memory. Runs on a device and on
// the simulated one.
#include "products.h"
#include "test.h"

#include <cuda_runtime_api.h>

struct shape {
    int64_t m, n, k;
    int64_t a2, a3, r2, r3; // matrices of a; how many of b share each
    int pad;                // sixteens of bytes between rows and between matrices
};

static struct gcuda_array array_of(enum gcuda_type type, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3, int pad) {
    struct gcuda_array a;
    memset(&a, 0, sizeof a);
    a.type = type;
    a.ne[0] = ne0, a.ne[1] = ne1, a.ne[2] = ne2, a.ne[3] = ne3;
    a.nb[0] = gcuda_type_size(type);
    a.nb[1] = ((size_t) ne0 * a.nb[0] + 15) / 16 * 16 + 16 * (size_t) pad;
    a.nb[2] = a.nb[1] * (size_t) ne1 + 16 * (size_t) pad;
    a.nb[3] = a.nb[2] * (size_t) ne2;
    return a;
}
static size_t bytes_of(const struct gcuda_array * a) { return a->nb[3] * (size_t) a->ne[3]; }

static float load(enum gcuda_type type, const char * p) {
    float v;
    if (type == GCUDA_TYPE_F32) {
        memcpy(&v, p, sizeof v);
    } else {
        gcuda_get_type_traits(type)->to_float(p, &v, 1);
    }
    return v;
}

// Random elements, 0xff (NaN) everywhere else; on the device as well.
static char * filled(struct gcuda_array * a, struct rng * r) {
    const size_t size = bytes_of(a);
    char * data = (char *) malloc(size);
    memset(data, 0xff, size);
    for (int64_t row = 0; row < a->ne[1] * a->ne[2] * a->ne[3]; ++row) {
        char * p = data + (size_t) (row % a->ne[1]) * a->nb[1] + (size_t) (row / a->ne[1]) * a->nb[2];
        for (int64_t i = 0; i < a->ne[0]; ++i) {
            const float v = (float) rng_between(r, -1.0, 1.0);
            if (a->type == GCUDA_TYPE_F32) {
                memcpy(p + 4 * i, &v, 4);
            } else {
                gcuda_get_type_traits(a->type)->from_float_ref(&v, p + 2 * i, 1);
            }
        }
    }
    CHECK(cudaMalloc(&a->data, size) == cudaSuccess &&
          cudaMemcpy(a->data, data, size, cudaMemcpyHostToDevice) == cudaSuccess);
    return data;
}

static const char * row_at(const struct gcuda_array * a, const char * data, int64_t i1, int64_t i2, int64_t i3) {
    return data + (size_t) i1 * a->nb[1] + (size_t) i2 * a->nb[2] + (size_t) i3 * a->nb[3];
}

// Corners, then anywhere, against float64; and nothing written between the columns.
static void compare(
    const struct gcuda_mul_mat_args * p, const char * a, const char * b, const char * y, double bound, struct rng * r) {
    double errors = 0.0, results = 0.0, most = 0.0;
    enum { N = 300 };
    for (int i = 0; i < N; ++i) {
        const int64_t m = i < 4 ? i % 2 * (p->a.ne[1] - 1) : rng_below(r, p->a.ne[1]);
        const int64_t n = i < 4 ? i / 2 * (p->b.ne[1] - 1) : rng_below(r, p->b.ne[1]);
        const int64_t i2 = rng_below(r, p->b.ne[2]), i3 = rng_below(r, p->b.ne[3]);
        const char * u = row_at(&p->a, a, m, i2 / (p->b.ne[2] / p->a.ne[2]), i3 / (p->b.ne[3] / p->a.ne[3]));
        const char * v = row_at(&p->b, b, n, i2, i3);
        double sum = 0.0;
        for (int64_t k = 0; k < p->a.ne[0]; ++k) {
            const double term =
                (double) load(p->a.type, u + (size_t) k * p->a.nb[0]) * load(p->b.type, v + (size_t) k * p->b.nb[0]);
            sum += term;
            results += term * term;
        }
        const double error = load(GCUDA_TYPE_F32, row_at(&p->y, y, n, i2, i3) + 4 * m) - sum;
        errors += error * error;
        most = fmax(most, isfinite(error) ? fabs(error) : INFINITY);
    }
    CHECK_MSG(errors <= bound * results, "NMSE %g, allowed %g", errors / results, bound);
    CHECK_MSG(most <= 8.0 * sqrt(bound * results / N), "error %g, rms %g", most, sqrt(results / N));
    for (int64_t row = 0; row < p->y.ne[1] * p->y.ne[2] * p->y.ne[3]; ++row) {
        const char * from =
            row_at(&p->y, y, row % p->y.ne[1], row / p->y.ne[1] % p->y.ne[2], row / p->y.ne[1] / p->y.ne[2]);
        for (size_t i = 4 * (size_t) p->y.ne[0]; i < p->y.nb[1]; ++i) { CHECK((unsigned char) from[i] == 0xff); }
    }
}

static void launched(enum gcuda_mul_mat_path path, const struct gcuda_mul_mat_args * p, char * y) {
    void * scratch = NULL;
    memset(y, 0xff, bytes_of(&p->y));
    CHECK(cudaMemcpy(p->y.data, y, bytes_of(&p->y), cudaMemcpyHostToDevice) == cudaSuccess);
    CHECK(cudaMalloc(&scratch, product_scratch(path, p, NULL) + 1) == cudaSuccess);
    CHECK_OK(launch_product(path, p, NULL, scratch, NULL));
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    CHECK(cudaMemcpy(y, p->y.data, bytes_of(&p->y), cudaMemcpyDeviceToHost) == cudaSuccess);
    CHECK(cudaFree(scratch) == cudaSuccess);
}

static void product(enum gcuda_type type, struct shape s, size_t max_shared) {
    struct gcuda_mul_mat_args p;
    struct rng r = rng_for(gcuda_type_name(type));
    memset(&p, 0, sizeof p);
    p.a = array_of(type, s.k, s.m, s.a2, s.a3, s.pad);
    p.b = array_of(type, s.k, s.n, s.a2 * s.r2, s.a3 * s.r3, s.pad);
    p.y = array_of(GCUDA_TYPE_F32, s.m, s.n, s.a2 * s.r2, s.a3 * s.r3, s.pad);
    p.max_shared = max_shared;
    snprintf(test_all.case_name, sizeof test_all.case_name,
        "%s, m %lld, n %lld, k %lld, matrices %lld %lld x %lld %lld, pad %d, shared %zu", gcuda_type_name(type),
        (long long) s.m, (long long) s.n, (long long) s.k, (long long) s.a2, (long long) s.a3, (long long) s.r2,
        (long long) s.r3, s.pad, max_shared);
    char *a = filled(&p.a, &r), *b = filled(&p.b, &r), *y = (char *) malloc(bytes_of(&p.y));
    CHECK(cudaMalloc(&p.y.data, bytes_of(&p.y)) == cudaSuccess);
    launched(GCUDA_MUL_MAT_GEMM, &p, y);
    compare(&p, a, b, y, 1e-6, &r);
    p.max_shared = (size_t) 227 << 10;
    if (gcuda_has_warp_groups()) {
        launched(GCUDA_MUL_MAT_WGMMA, &p, y);
        compare(&p, a, b, y, 1e-6, &r);
    }
    CHECK(cudaFree(p.a.data) == cudaSuccess && cudaFree(p.b.data) == cudaSuccess && cudaFree(p.y.data) == cudaSuccess);
    free(a);
    free(b);
    free(y);
    test_all.case_name[0] = '\0';
}

static const enum gcuda_type types[] = { GCUDA_TYPE_F16, GCUDA_TYPE_BF16, GCUDA_TYPE_F32 };
enum { N_TYPES = 3 };

TEST(every_edge) {
    static const struct shape shapes[] = { { 1, 1, 8, 1, 1, 1, 1, 0 }, { 63, 65, 1, 1, 1, 1, 1, 1 },
        { 130, 70, 41, 1, 1, 1, 1, 0 }, { 65, 129, 127, 1, 1, 1, 1, 3 }, { 129, 257, 96, 1, 1, 1, 1, 1 },
        { 200, 3, 513, 1, 1, 1, 1, 0 } };
    for (int t = 0; t < N_TYPES; ++t) {
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; ++i) {
            product(types[t], shapes[i], i % 2 == 0 ? 0 : (size_t) 227 << 10);
        }
    }
}

TEST(matrices) {
    static const struct shape shapes[] = { { 33, 40, 72, 2, 1, 3, 1, 0 }, { 70, 20, 64, 1, 2, 2, 3, 1 },
        { 20, 70, 33, 3, 2, 1, 2, 2 } };
    for (int t = 0; t < N_TYPES; ++t) {
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; ++i) {
            product(types[t], shapes[i], (size_t) 100 << 10);
        }
    }
}

TEST(parts_of_k) { // few tiles and many steps
    static const struct shape s = { 64, 32, 4100, 1, 1, 1, 1, 0 };
    struct gcuda_mul_mat_args p;
    memset(&p, 0, sizeof p);
    p.a = array_of(GCUDA_TYPE_F16, s.k, s.m, 1, 1, 0);
    p.b = array_of(GCUDA_TYPE_F16, s.k, s.n, 1, 1, 0);
    p.y = array_of(GCUDA_TYPE_F32, s.m, s.n, 1, 1, 0);
    CHECK(product_scratch(GCUDA_MUL_MAT_GEMM, &p, NULL) >= 2 * sizeof(float) * (size_t) (s.m * s.n));
    for (int t = 0; t < N_TYPES; ++t) { product(types[t], s, (size_t) 164 << 10); }
}

TEST(many_tiles) { // more than a device has at once; on the simulated one that would take long
    static const struct shape shapes[] = { { 1000, 2100, 200, 3, 1, 2, 2, 0 }, { 4000, 5000, 72, 1, 1, 1, 1, 1 } };
    if (!gcuda_has_warp_groups()) {
        test_skip("no warp groups");
        return;
    }
    for (int t = 0; t < N_TYPES; ++t) {
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; ++i) {
            product(types[t], shapes[i], (size_t) 227 << 10);
        }
    }
}

TEST(what_does_not_fit_is_refused) {
    struct gcuda_mul_mat_args p;
    memset(&p, 0, sizeof p);
    p.a = array_of(GCUDA_TYPE_F16, 64, 64, 1, 1, 0);
    p.b = array_of(GCUDA_TYPE_BF16, 64, 64, 1, 1, 0);
    p.y = array_of(GCUDA_TYPE_F32, 64, 64, 1, 1, 0);
    CHECK(launch_product(GCUDA_MUL_MAT_GEMM, &p, NULL, NULL, NULL) == GCUDA_STATUS_UNSUPPORTED); // two types
    p.b = p.a;
    p.b.nb[1] += 2;
    // rows not at sixteens of bytes
    CHECK(launch_product(GCUDA_MUL_MAT_GEMM, &p, NULL, NULL, NULL) == GCUDA_STATUS_UNSUPPORTED);
    p.b = p.a;
    p.y.type = GCUDA_TYPE_F16;
    CHECK(launch_product(GCUDA_MUL_MAT_GEMM, &p, NULL, NULL, NULL) == GCUDA_STATUS_UNSUPPORTED);
}

// ---- activations as halves ----
static void half_rows(int64_t n, int64_t n_rows, size_t skew) {
    struct gcuda_half_rows_args p;
    struct rng r = rng_for("half_rows");
    memset(&p, 0, sizeof p);
    p.x = array_of(GCUDA_TYPE_F32, n, n_rows, 1, 1, 0);
    p.x.nb[1] = (size_t) n * 4, p.x.nb[2] = p.x.nb[3] = p.x.nb[1] * (size_t) n_rows;
    p.y = p.x;
    p.y.type = GCUDA_TYPE_F16;
    p.y.nb[0] = 2, p.y.nb[1] = (size_t) n * 2, p.y.nb[2] = p.y.nb[3] = p.y.nb[1] * (size_t) n_rows;
    snprintf(test_all.case_name, sizeof test_all.case_name, "n %lld, skew %zu", (long long) n, skew);
    const size_t size = (size_t) (n * n_rows);
    float *x = (float *) malloc(size * 4), *scale = (float *) malloc((size_t) n_rows * 4);
    uint16_t * y = (uint16_t *) malloc(size * 2);
    char * on = NULL;
    static const double scales[] = { 1.0, 1e5, 1e-6, 1e30, 1e-30, 3e38 };
    for (size_t i = 0; i < size; ++i) { x[i] = (float) (scales[i / (size_t) n % 6] * rng_between(&r, -1.0, 1.0)); }
    x[size - 1] = INFINITY; // of the last row, which stays as it is
    CHECK(cudaMalloc((void **) &on, size * 6 + (size_t) n_rows * 4 + 64) == cudaSuccess);
    p.x.data = on + skew;
    p.scale = (float *) (void *) (on + skew + size * 4);
    p.y.data = on + (skew + size * 4 + (size_t) n_rows * 4 + 15) / 16 * 16;
    CHECK(cudaMemcpy(p.x.data, x, size * 4, cudaMemcpyHostToDevice) == cudaSuccess);
    CHECK_OK(gcuda_launch_half_rows(&p, NULL));
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    CHECK(cudaMemcpy(y, p.y.data, size * 2, cudaMemcpyDeviceToHost) == cudaSuccess);
    CHECK(cudaMemcpy(scale, p.scale, (size_t) n_rows * 4, cudaMemcpyDeviceToHost) == cudaSuccess);
    for (int64_t row = 0; row < n_rows; ++row) {
        double most = 0.0, error = 0.0;
        for (int64_t i = 0; i < n; ++i) {
            const float v = x[row * n + i];
            const double got = (double) load(GCUDA_TYPE_F16, (const char *) &y[row * n + i]) * scale[row];
            if (isinf(v)) {
                CHECK(isinf(got));
            } else if (row != n_rows - 1) {
                most = fmax(most, fabs((double) v));
                error = fmax(error, fabs(got - v));
            }
        }
        CHECK_MSG(
            error <= most / 2048.0, "row %lld: error %g of %g, factor %g", (long long) row, error, most, scale[row]);
        CHECK(row != n_rows - 1 || scale[row] == 1.0f);
        CHECK(row % 6 != 0 || scale[row] == 1.0f || n < 8); // an ordinary row is not scaled
    }
    CHECK(cudaFree(on) == cudaSuccess);
    free(x);
    free(y);
    free(scale);
    test_all.case_name[0] = '\0';
}

TEST(rows_as_halves) { // held in registers, and of each kind that is not
    static const int64_t sizes[] = { 4, 100, 1028, 4096, 5000, 8192, 9000, 16384, 16388, 7, 4098 };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; ++i) {
        half_rows(sizes[i], 13, 0);
        half_rows(sizes[i], 7, 4);
    }
}

// Every matrix's address, by what the host counts; matrices shared and not, and more of them than a block has threads.
static void addresses(int64_t a2, int64_t a3, int64_t r2, int64_t r3) {
    struct gcuda_matrix_pointers_args p;
    const int64_t b2 = a2 * r2, b3 = a3 * r3, n = b2 * b3;
    char *memory = NULL, **on = NULL, **got = (char **) malloc(3 * (size_t) n * sizeof(char *));
    p.a = array_of(GCUDA_TYPE_F16, 8, 3, a2, a3, 1);
    p.b = array_of(GCUDA_TYPE_F16, 8, 2, b2, b3, 0);
    p.y = array_of(GCUDA_TYPE_F32, 3, 2, b2, b3, 2);
    CHECK(cudaMalloc((void **) &memory, 64) == cudaSuccess); // nothing is read there, or past its end
    CHECK(cudaMalloc((void **) &on, 3 * (size_t) n * sizeof(char *)) == cudaSuccess);
    p.a.data = memory, p.b.data = memory + 16, p.y.data = memory + 32;
    p.to_a = (const void **) on, p.to_b = p.to_a + n, p.to_y = (void **) on + 2 * n;
    CHECK_OK(gcuda_launch_matrix_pointers(&p, NULL));
    CHECK(cudaMemcpy(got, on, 3 * (size_t) n * sizeof(char *), cudaMemcpyDeviceToHost) == cudaSuccess);
    for (int64_t i = 0; i < n; ++i) {
        const int64_t i2 = i % b2, i3 = i / b2;
        CHECK(got[i] == row_at(&p.a, memory, 0, i2 / r2, i3 / r3));
        CHECK(got[n + i] == row_at(&p.b, memory + 16, 0, i2, i3));
        CHECK(got[2 * n + i] == row_at(&p.y, memory + 32, 0, i2, i3));
    }
    CHECK(cudaFree(memory) == cudaSuccess && cudaFree(on) == cudaSuccess);
    free(got);
}

TEST(addresses_of_matrices) {
    addresses(1, 1, 1, 1);
    addresses(3, 2, 1, 1);
    addresses(3, 2, 2, 3);
    addresses(1, 2, 4, 1);
    addresses(50, 3, 1, 7);
}
