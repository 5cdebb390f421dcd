// sim_mma.h - tensor-core and asynchronous-copy instructions of PTX on the simulated device: one function each, called
// by all 32 lanes of a warp together. Layout of fragments: PTX ISA, "Matrix multiply-accumulate operation using mma
// instruction" and "ldmatrix". With g = lane / 4 and t = lane % 4:
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

// Synchronizes all lanes; the last one calls the function with the arguments of all.
typedef void (*sim_warp_function)(const void * const * in, void * const * out); // of lane 0, 1, ... 31
void sim_warp_all(sim_warp_function function, const void * in, void * out);

// ---- mma.sync.aligned.row.col: D = A B + C ----
template <typename D> struct sim_mma_in { // of a lane
    unsigned a[4], b[2];
    D c[4];
};

// In sim.cpp, which is optimised.
void sim_mma_m16n8k16_half(const void * const * in, void * const * out);
void sim_mma_m16n8k16_bfloat16(const void * const * in, void * const * out);
void sim_mma_m16n8k8(const void * const * in, void * const * out);
void sim_mma_m16n8k32(const void * const * in, void * const * out);

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
    sim_mma_sync(sim_mma_m16n8k16_half, d, a, b, c);
}
// mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
static inline void sim_mma_bf16(float d[4], const unsigned a[4], const unsigned b[2], const float c[4]) {
    sim_mma_sync(sim_mma_m16n8k16_bfloat16, d, a, b, c);
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
