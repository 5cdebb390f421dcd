// What tests of launchers ask of the device.
#ifndef HW_DEVICE_H
#define HW_DEVICE_H

#include "test.h"

#include <cuda_runtime_api.h>

// Bytes of shared memory that a block may have.
static size_t most_shared(void) {
    int n = 0;
    CHECK(cudaDeviceGetAttribute(&n, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0) == cudaSuccess);
    return (size_t) n;
}

#endif
