// Tensor-core instructions and asynchronous copies on the simulated device: products of random matrices. Elements are
// put into fragments and taken from them register by register, by the tables of the PTX ISA.
#include "sim-launch.h"
#include "sim_mma.h"

enum { M = 16, N = 8 };

// What lane holds in element i of its fragments, of matrices with `width` elements a register and K = 4 * 2 * width.
struct where {
    int row, column;
};
static where in_a(int lane, int i, int width) { // PTX: a0, a1, ... of 16 x K
    const int g = lane >> 2, t = lane & 3;
    if (width == 1) { return where{ i == 0 || i == 2 ? g : g + 8, i < 2 ? t : t + 4 }; }
    if (width == 2) { return where{ i < 2 || (i >= 4 && i < 6) ? g : g + 8, 2 * t + (i & 1) + (i < 4 ? 0 : 8) }; }
    return where{ i < 4 || (i >= 8 && i < 12) ? g : g + 8, 4 * t + (i & 3) + (i < 8 ? 0 : 16) };
}
static where in_b(int lane, int i, int width) { // b0, b1, ... of K x 8
    const int g = lane >> 2, t = lane & 3;
    if (width == 1) { return where{ i == 0 ? t : t + 4, g }; }
    if (width == 2) { return where{ 2 * t + (i & 1) + (i < 2 ? 0 : 8), g }; }
    return where{ 4 * t + (i & 3) + (i < 4 ? 0 : 16), g };
}
static where in_c(int lane, int i) { return where{ i < 2 ? lane >> 2 : (lane >> 2) + 8, 2 * (lane & 3) + (i & 1) }; }

enum kind { F16, BF16, TF32, S8 };
struct mma_args {
    const unsigned *a, *b; // registers of each lane
    const float * c;
    float * d;
    const int * ci;
    int * di;
    kind k;
};
static __global__ void k_mma(const mma_args p) {
    const unsigned l = threadIdx.x;
    unsigned a[4], b[2];
    for (int i = 0; i < 4; ++i) { a[i] = p.a[4 * l + i]; }
    for (int i = 0; i < 2; ++i) { b[i] = p.b[2 * l + i]; }
    switch (p.k) {
        case F16: sim_mma_f16(p.d + 4 * l, a, b, p.c + 4 * l); break;
        case BF16: sim_mma_bf16(p.d + 4 * l, a, b, p.c + 4 * l); break;
        case TF32: sim_mma_tf32(p.d + 4 * l, a, b, p.c + 4 * l); break;
        case S8: sim_mma_s8(p.di + 4 * l, a, b, p.ci + 4 * l); break;
    }
}

static unsigned encode(kind k, float v) {
    const uint32_t bits = __float_as_uint(v);
    return k == F16    ? __half_as_ushort(__float2half_rn(v))
           : k == BF16 ? bits >> 16
           : k == TF32 ? bits
                       : (unsigned) (int) v & 255u;
}

template <typename T> static T * copied(const std::vector<T> & v) {
    T * p = on_device<T>(v.size());
    CHECK(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice) == cudaSuccess);
    return p;
}

static void multiply(kind k, int width, uint64_t seed) {
    sim_reset(1, 64 * MB, seed);
    struct rng r = rng_for("mma");
    const int n_k = 8 * width;
    std::vector<float> a((size_t) (M * n_k)), b((size_t) (n_k * N)), c((size_t) (M * N));
    for (auto * m : { &a, &b, &c }) {
        for (float & v : *m) { v = (float) (int) (rng_u64(&r) % 255) - 127.0f; } // exact in all types
    }
    std::vector<unsigned> ra(32 * 4, 0), rb(32 * 2, 0);
    std::vector<float> rc(32 * 4);
    std::vector<int> ri(32 * 4);
    for (int l = 0; l < 32; ++l) {
        for (int i = 0; i < 4 * width; ++i) {
            const where w = in_a(l, i, width);
            ra[(size_t) (4 * l + i / width)] |= encode(k, a[(size_t) (w.row * n_k + w.column)])
                                                << (32 / width * (i % width) % 32);
        }
        for (int i = 0; i < 2 * width; ++i) {
            const where w = in_b(l, i, width);
            rb[(size_t) (2 * l + i / width)] |= encode(k, b[(size_t) (w.row * N + w.column)])
                                                << (32 / width * (i % width) % 32);
        }
        for (int i = 0; i < 4; ++i) {
            const where w = in_c(l, i);
            rc[(size_t) (4 * l + i)] = c[(size_t) (w.row * N + w.column)];
            ri[(size_t) (4 * l + i)] = (int) rc[(size_t) (4 * l + i)];
        }
    }
    const mma_args p = { copied(ra), copied(rb), copied(rc), on_device<float>(128), copied(ri), on_device<int>(128),
        k };
    CHECK(launch(k_mma, dim3(1), dim3(32), 0, nullptr, p) == cudaSuccess);
    const std::vector<float> d = fetched(p.d, 128);
    const std::vector<int> di = fetched(p.di, 128);
    for (int l = 0; l < 32; ++l) {
        for (int i = 0; i < 4; ++i) {
            const where w = in_c(l, i);
            double want = c[(size_t) (w.row * N + w.column)];
            for (int x = 0; x < n_k; ++x) {
                want += (double) a[(size_t) (w.row * n_k + x)] * (double) b[(size_t) (x * N + w.column)];
            }
            const double got = k == S8 ? di[(size_t) (4 * l + i)] : (double) d[(size_t) (4 * l + i)];
            CHECK_MSG(got == want, "kind %d, row %d, column %d: %g, want %g", (int) k, w.row, w.column, got, want);
        }
    }
    for (const void * q : { (const void *) p.a, (const void *) p.b, (const void *) p.c, (const void *) p.d,
             (const void *) p.ci, (const void *) p.di }) {
        cudaFree((void *) q);
    }
}

TEST(products_of_fragments) {
    for (uint64_t seed = 0; seed < n_seeds(10); ++seed) {
        multiply(F16, 2, seed);
        multiply(BF16, 2, seed);
        multiply(TF32, 1, seed);
        multiply(S8, 4, seed);
    }
    clean();
}

template <int NUM, bool TRANS> static __global__ void k_ldmatrix(unsigned * out, const uint16_t * in) {
    __shared__ int4 aligned[32];
    uint16_t * rows = (uint16_t *) aligned;
    for (int i = 0; i < 8; ++i) { rows[threadIdx.x * 8 + i] = in[threadIdx.x * 8 + i]; }
    __syncthreads();
    unsigned d[NUM];
    sim_ldmatrix<NUM, TRANS>(d, rows + threadIdx.x * 8); // lane l: row l % 8 of matrix l / 8
    for (int i = 0; i < NUM; ++i) { out[threadIdx.x * NUM + i] = d[i]; }
}

template <int NUM, bool TRANS> static void load(uint64_t seed) {
    sim_reset(1, 64 * MB, seed);
    std::vector<uint16_t> in(256);
    for (size_t i = 0; i < in.size(); ++i) { in[i] = (uint16_t) (i * 257 + 3); }
    uint16_t * p = copied(in);
    unsigned * out = on_device<unsigned>(32 * NUM);
    CHECK(launch(k_ldmatrix<NUM, TRANS>, dim3(1), dim3(32), 0, nullptr, out, (const uint16_t *) p) == cudaSuccess);
    const std::vector<unsigned> v = fetched(out, 32 * NUM);
    for (size_t l = 0; l < 32; ++l) {
        for (size_t i = 0; i < NUM; ++i) {
            const size_t x = l / 4, y = 2 * (l % 4), at = 64 * i;
            const unsigned low = TRANS ? in[at + 8 * y + x] : in[at + 8 * x + y],
                           high = TRANS ? in[at + 8 * (y + 1) + x] : in[at + 8 * x + y + 1];
            CHECK_EQ_I(v[l * NUM + i], low | high << 16);
        }
    }
    cudaFree(p);
    cudaFree(out);
}

TEST(matrices_are_loaded_from_shared_memory) {
    for (uint64_t seed = 0; seed < n_seeds(5); ++seed) {
        load<1, false>(seed);
        load<2, false>(seed);
        load<4, false>(seed);
        load<1, true>(seed);
        load<2, true>(seed);
        load<4, true>(seed);
    }
    clean();
}

// Two stages in flight; wait_pending 1 is right, 2 too early.
static __global__ void k_pipeline(int * out, const int4 * in, int n, int wait_pending) {
    __shared__ int4 stage[2][32];
    const unsigned l = threadIdx.x;
    unsigned sum = 0; // what has not arrived is any number: unsigned, since it may overflow
    for (int i = 0; i < n + 1; ++i) {
        if (i < n) { sim_cp_async_16(&stage[i % 2][l], &in[i * 32 + (int) l], l == 31 ? 4 : 16); }
        sim_cp_async_commit();
        if (i == 0) { continue; }
        sim_cp_async_wait(wait_pending);
        __syncthreads();
        const int4 v = stage[(i - 1) % 2][31 - l]; // another lane's
        sum += (unsigned) v.x + (unsigned) v.y + (unsigned) v.z + (unsigned) v.w;
        __syncthreads();
    }
    out[l] = (int) sum;
}

TEST(copies_arrive_when_they_are_waited_for) {
    for (uint64_t seed = 0; seed < n_seeds(5); ++seed) {
        sim_reset(1, 64 * MB, seed);
        std::vector<int> in(5 * 128);
        for (size_t i = 0; i < in.size(); ++i) { in[i] = (int) (i % 97); }
        int *p = copied(in), *out = on_device<int>(32);
        for (int pending = 1; pending <= 2; ++pending) {
            CHECK(launch(k_pipeline, dim3(1), dim3(32), 0, nullptr, out, (const int4 *) p, 5, pending) == cudaSuccess);
            const std::vector<int> v = fetched(out, 32);
            bool all = true;
            for (int l = 0; l < 32; ++l) {
                int want = 0;
                for (int i = 0; i < 5; ++i) {
                    for (int k = 0; k < (l == 0 ? 1 : 4); ++k) { want += in[(size_t) (128 * i + 4 * (31 - l) + k)]; }
                }
                all = all && v[(size_t) l] == want;
            }
            CHECK(all == (pending == 1));
        }
        cudaFree(p);
        cudaFree(out);
    }
    clean();
}
