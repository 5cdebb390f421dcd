// sim_sm90.h - what compute capability 9.0a alone has, on the simulated device: mbarrier, bulk and tensor copies,
// wgmma, clusters, named barriers. One function for each instruction, called by every thread that executes it.
// See >>k-sm90 of gcuda_kernels.cu.
//
// Unspecified behaviour of CUDA is simulated so that mistakes show. A copy sets all bits of its destination at once and
// lands at a random time, or when no thread can continue; in any order. wgmma makes its accumulators unusable until a
// wait, and reads its operands then. Detected mistakes end the kernel with a message: see sim-sm90.h.
#ifndef GCUDA_SIM_SM90_H
#define GCUDA_SIM_SM90_H

#include "cuda_runtime.h"

#include <stdint.h>

// The kernel's blocks come in clusters of n: by every thread, before anything else.
void sim_cluster(int n);
int sim_cluster_rank();
void sim_cluster_sync();
void sim_cluster_put(uint32_t at, int rank, const void * data, uint32_t size); // shared memory of a block

// The same n bytes of shared memory for all threads of a block; key: whose they are.
void * sim_block_shared(const void * key, size_t n);
uint32_t sim_shared_address(const void * p); // of static (sim_block_shared) and dynamic shared memory

void sim_mbarrier_init(uint32_t bar, int n_arrivals);
void sim_mbarrier_fence_init();
void sim_mbarrier_wait(uint32_t bar, uint32_t parity);
void sim_mbarrier_arrive(uint32_t bar, int rank); // -1: of this block
void sim_mbarrier_expect(uint32_t bar, int n_bytes);
void sim_mbarrier_arrive_after_copies(uint32_t bar);

struct sim_tensor_map { // in the 128 bytes of a CUtensorMap
    uint32_t magic;
    uint8_t type, rank, swizzle, size; // size: of an element
    uint64_t data;
    uint64_t nb[4];
    uint32_t ne[5];
    uint16_t box[5];
};
static_assert(sizeof(sim_tensor_map) <= 128, "has the size of a CUtensorMap");

// blocks: bits of those that it lands in, 0: this one.
void sim_tma_load(uint32_t to, const void * from, int n_bytes, uint32_t bar, unsigned blocks);
void sim_tma_load_box_at(uint32_t to, const void * map, int rank, const int * at, uint32_t bar, unsigned blocks);
void sim_tma_store(void * to, uint32_t from, int n_bytes);
template <typename... I>
static inline void sim_tma_load_box(uint32_t to, const void * map, uint32_t bar, unsigned blocks, I... i) {
    const int at[] = { i... };
    sim_tma_load_box_at(to, map, (int) sizeof...(i), at, bar, blocks);
}
// Prefetches change nothing that is simulated: the tensor map is looked at, and its dimensions.
void sim_tma_prefetch_map(const void * map);
void sim_tma_prefetch_box_at(const void * map, int rank);
template <typename... I> static inline void sim_tma_prefetch_box(const void * map, I...) {
    sim_tma_prefetch_box_at(map, (int) sizeof...(I));
}
void sim_tma_commit();
void sim_tma_wait(int n_pending, bool only_reads);
void sim_fence_async();

void sim_named_barrier(int id, int n_threads, bool waits);
void sim_set_registers(int n, bool gives);

enum sim_wgmma_type { SIM_WGMMA_F16, SIM_WGMMA_BF16, SIM_WGMMA_TF32 };
struct sim_wgmma_op {
    sim_wgmma_type type;
    int n;      // columns
    bool has_a; // in registers
    bool trans_a, trans_b;
    int adds;
    uint64_t a, b; // descriptors
    uint32_t registers[4];
};
void sim_wgmma_fence();
void sim_wgmma(const sim_wgmma_op & op, float * d);
void sim_wgmma_commit();
void sim_wgmma_wait(int n_pending);
void sim_wgmma_read(const float * d, int n); // they are about to be used

#endif // GCUDA_SIM_SM90_H
