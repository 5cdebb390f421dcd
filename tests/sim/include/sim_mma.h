// sim_mma.h - tensor-core and asynchronous-copy instructions of PTX on the simulated device: one function each, called
// by all 32 lanes of a warp together, with the fragments laid out as "PTX ISA", "Matrix multiply-accumulate operation
// using mma instruction" and "ldmatrix" say. With g = lane / 4 and t = lane % 4:
//
//   16 x 8 result     register i: row g + 8 (i / 2), column 2 t + i % 2
//   ldmatrix          of 8 x 8 elements of 16 bits: row g, columns 2 t and 2 t + 1; transposed: the other way round
//
// Sums are in double and rounded once; hardware rounds more often, and not always to the nearest.
#ifndef GCUDA_SIM_MMA_H
#define GCUDA_SIM_MMA_H

#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "cuda_runtime.h"

// All lanes meet; the last one calls the function with what each of them gave.
typedef void (*sim_warp_function)(const void * const * in, void * const * out); // of lane 0, 1, ... 31
void sim_warp_all(sim_warp_function function, const void * in, void * out);

// ---- mma.sync.aligned.row.col: D = A B + C ----
typedef double sim_mma_row __attribute__((vector_size(64))); // the processor's vectors without an optimiser that finds them

template <typename D, int K> struct sim_mma { // A is 16 x K, B is K x 8
    double a[16][K];
    sim_mma_row b[K];
    void put(void * const * out, const void * const * in, size_t c_offset) const {
        sim_mma_row sums[16];
        for (int row = 0; row < 16; ++row) { // eight sums side by side, each in the order of k
            sim_mma_row sum = {};
            for (int k = 0; k < K; ++k) { sum += a[row][k] * b[k]; }
            sums[row] = sum;
        }
        for (int lane = 0; lane < 32; ++lane) {
            for (int i = 0; i < 4; ++i) {
                const double sum = sums[lane / 4 + 8 * (i / 2)][2 * (lane % 4) + i % 2];
                D c;
                memcpy(&c, (const char *) in[lane] + c_offset + (size_t) i * sizeof(D), sizeof(c));
                c = std::is_integral<D>::value ? (D) ((int64_t) c + (int64_t) sum) : (D) ((double) c + sum);
                memcpy((char *) out[lane] + (size_t) i * sizeof(D), &c, sizeof(c));
            }
        }
    }
};

template <typename D> struct sim_mma_in {
    unsigned a[4], b[2];
    D c[4];
};

static inline double sim_mma_half(unsigned bits) { return (double) __half2float(__ushort_as_half((unsigned short) bits)); }
static inline double sim_mma_bfloat16(unsigned bits) { return (double) __uint_as_float(bits << 16); }
static inline double sim_mma_tf32(unsigned bits) { return (double) __uint_as_float(bits & 0xffffe000u); }

// Elements of 16 bits, two a register: register i of A holds row g + 8 (i % 2), columns 2 t + 8 (i / 2) and the next;
// register i of B rows 2 t + 8 i and the next, column g.
template <double (*LOAD)(unsigned)> static void sim_mma_m16n8k16(const void * const * in, void * const * out) {
    sim_mma<float, 16> m;
    for (int lane = 0; lane < 32; ++lane) {
        const sim_mma_in<float> * x = (const sim_mma_in<float> *) in[lane];
        const int g = lane / 4, t = lane % 4;
        for (int i = 0; i < 8; ++i) {
            m.a[g + 8 * (i / 2 % 2)][2 * t + 8 * (i / 4) + i % 2] = LOAD(x->a[i / 2] >> (16 * (i % 2)) & 0xffffu);
        }
        for (int i = 0; i < 4; ++i) { m.b[2 * t + 8 * (i / 2) + i % 2][g] = LOAD(x->b[i / 2] >> (16 * (i % 2)) & 0xffffu); }
    }
    m.put(out, in, offsetof(sim_mma_in<float>, c));
}

// Register i of A holds row g + 8 (i % 2), column t + 4 (i / 2); register i of B row t + 4 i, column g.
static inline void sim_mma_m16n8k8(const void * const * in, void * const * out) {
    sim_mma<float, 8> m;
    for (int lane = 0; lane < 32; ++lane) {
        const sim_mma_in<float> * x = (const sim_mma_in<float> *) in[lane];
        const int g = lane / 4, t = lane % 4;
        for (int i = 0; i < 4; ++i) { m.a[g + 8 * (i % 2)][t + 4 * (i / 2)] = sim_mma_tf32(x->a[i]); }
        for (int i = 0; i < 2; ++i) { m.b[t + 4 * i][g] = sim_mma_tf32(x->b[i]); }
    }
    m.put(out, in, offsetof(sim_mma_in<float>, c));
}

// Bytes, four a register: register i of A holds row g + 8 (i % 2), columns 4 t + 16 (i / 2) and the next three; register
// i of B rows 4 t + 16 i and the next three, column g.
static inline void sim_mma_m16n8k32(const void * const * in, void * const * out) {
    sim_mma<int, 32> m;
    for (int lane = 0; lane < 32; ++lane) {
        const sim_mma_in<int> * x = (const sim_mma_in<int> *) in[lane];
        const int g = lane / 4, t = lane % 4;
        for (int i = 0; i < 16; ++i) {
            m.a[g + 8 * (i / 4 % 2)][4 * t + 16 * (i / 8) + i % 4] = (int8_t) (x->a[i / 4] >> (8 * (i % 4)));
        }
        for (int i = 0; i < 8; ++i) { m.b[4 * t + 16 * (i / 4) + i % 4][g] = (int8_t) (x->b[i / 4] >> (8 * (i % 4))); }
    }
    m.put(out, in, offsetof(sim_mma_in<int>, c));
}

template <typename D>
static inline void sim_mma_sync(
    sim_warp_function function, D d[4], const unsigned a[4], const unsigned b[2], const D c[4]) {
    sim_mma_in<D> in;
    memcpy(in.a, a, sizeof(in.a));
    memcpy(in.b, b, sizeof(in.b));
    memcpy(in.c, c, sizeof(in.c));
    sim_warp_all(function, &in, d);
}

// mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32
static inline void sim_mma_f16(float d[4], const unsigned a[4], const unsigned b[2], const float c[4]) {
    sim_mma_sync(sim_mma_m16n8k16<sim_mma_half>, d, a, b, c);
}
// mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
static inline void sim_mma_bf16(float d[4], const unsigned a[4], const unsigned b[2], const float c[4]) {
    sim_mma_sync(sim_mma_m16n8k16<sim_mma_bfloat16>, d, a, b, c);
}
// mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32
static inline void sim_mma_tf32(float d[4], const unsigned a[4], const unsigned b[2], const float c[4]) {
    sim_mma_sync(sim_mma_m16n8k8, d, a, b, c);
}
// mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32
static inline void sim_mma_s8(int d[4], const unsigned a[4], const unsigned b[2], const int c[4]) {
    sim_mma_sync(sim_mma_m16n8k32, d, a, b, c);
}

// ---- ldmatrix.sync.aligned.m8n8.x1/.x2/.x4[.trans].shared.b16: lane 8 i + r has the address of row r of matrix i ----
template <int N, bool TRANS> static void sim_ldmatrix_all(const void * const * in, void * const * out) {
    for (int lane = 0; lane < 32; ++lane) {
        for (int i = 0; i < N; ++i) {
            uint16_t pair[2];
            for (int e = 0; e < 2; ++e) {
                const int row = TRANS ? 2 * (lane % 4) + e : lane / 4, column = TRANS ? lane / 4 : 2 * (lane % 4) + e;
                memcpy(&pair[e], *(const char * const *) in[8 * i + row] + 2 * column, 2);
            }
            memcpy((char *) out[lane] + 4 * i, pair, 4);
        }
    }
}
template <int N, bool TRANS> static inline void sim_ldmatrix(unsigned d[N], const void * row) {
    static_assert(N == 1 || N == 2 || N == 4, "one, two or four matrices");
    sim_warp_all(sim_ldmatrix_all<N, TRANS>, &row, d);
}

// ---- cp.async.cg.shared.global 16, and its groups. The bytes arrive when a wait says so, and not before: until then
// the destination holds garbage. Bytes beyond size_bytes (0 to 16) are zero. ----
void sim_cp_async_16(void * shared, const void * global, int size_bytes);
void sim_cp_async_commit();
void sim_cp_async_wait(int n_pending); // cp.async.wait_group: all but the latest n_pending groups have arrived

#endif // GCUDA_SIM_MMA_H
