// sim-launch.h - what the tests of the simulated device itself share: launching a kernel, memory with its contents.
#ifndef SIM_LAUNCH_H
#define SIM_LAUNCH_H

#include "cuda_runtime.h"
#include "sim.h"
#include "test.h"

#include <vector>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SIM_TEST_ASAN 1
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define SIM_TEST_ASAN 1
#endif

static const size_t MB = 1 << 20;

template <typename... P, typename... A>
static cudaError_t launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, cudaStream_t stream, A... args) {
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    return cudaLaunchKernelEx(&config, kernel, args...);
}

template <typename T> static T * on_device(size_t n) {
    void * p = nullptr;
    CHECK(cudaMalloc(&p, n * sizeof(T)) == cudaSuccess);
    return (T *) p;
}

template <typename T> static std::vector<T> fetched(const T * p, size_t n) {
    std::vector<T> v(n);
    CHECK(cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost) == cudaSuccess);
    return v;
}

static inline uint64_t n_seeds(uint64_t few) { return test_full() ? 100 : few; }

static void clean() { // at the end of a test
    CHECK_EQ_I(sim_leaks(), 0);
    CHECK_EQ_I(sim_violations(), 0);
    sim_reset(1, 64 * MB, 1);
}

#endif
