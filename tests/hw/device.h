// What tests ask of the device, and of a backend.
#ifndef HW_DEVICE_H
#define HW_DEVICE_H

#include "test.h"

#include <cuda_runtime_api.h>

// Bytes of shared memory that a block may have.
TEST_UNUSED static size_t most_shared(void) {
    int n = 0;
    CHECK(cudaDeviceGetAttribute(&n, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0) == cudaSuccess);
    return (size_t) n;
}

// How many CUDA graphs a backend has launched.
TEST_UNUSED static uint64_t graph_launches(gcuda_backend_t backend) {
    struct gcuda_cuda_plan_stats stats;
    memset(&stats, 0, sizeof stats);
    CHECK_OK(gcuda_backend_cuda_get_plan_stats(backend, &stats));
    return stats.n_graph_launches;
}

#endif
