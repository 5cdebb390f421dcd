// launch_shared in gcuda_kernels.cu: dynamic shared memory under the backend's cap. The base alone is compiled in here.
#define GCUDA_KERNEL_PART 99
#include "../../gcuda_kernels.cu"

#include "sim-test.h"

static __global__ void k_reverse(float * x, int n) {
    DYNAMIC_SHARED(float, row);
    for (int i = (int) threadIdx.x; i < n; i += (int) blockDim.x) { row[i] = x[i]; }
    __syncthreads();
    for (int i = (int) threadIdx.x; i < n; i += (int) blockDim.x) { x[i] = row[n - 1 - i]; }
}

static gcuda_status reverse(float * x, int n, size_t max_shared) {
    return launch_shared(k_reverse, 1, dim3(64), (size_t) n * sizeof(float), max_shared, nullptr, x, n);
}

TEST(shared_memory_stays_within_the_cap) {
    enum { MOST = GCUDA_SIM_CC >= 900 ? 227 * 1024 : GCUDA_SIM_CC >= 800 ? 99 * 1024 : 64 * 1024 };
    const struct {
        int n_bytes;
        size_t cap;
        gcuda_status wanted;
    } cases[] = {
        { 47 * 1024, 0, GCUDA_STATUS_SUCCESS },
        { 47 * 1024 + 4, 0, GCUDA_STATUS_UNSUPPORTED }, // with the kernel's static arrays more than 48 KiB
        { 47 * 1024 + 4, 48 * 1024, GCUDA_STATUS_UNSUPPORTED }, { 47 * 1024 + 4, MOST, GCUDA_STATUS_SUCCESS },
        { MOST - 1024, MOST, GCUDA_STATUS_SUCCESS }, { MOST, MOST, GCUDA_STATUS_UNSUPPORTED },
        { MOST + 1024, 1 << 20, GCUDA_STATUS_FAILED }, // a cap above what the device has: CUDA says no
    };
    void * x = nullptr;
    CHECK(cudaMalloc(&x, 1 << 20) == cudaSuccess);
    float * host = (float *) calloc(1, 1 << 20);
    for (const auto & c : cases) {
        const int n = c.n_bytes / 4;
        for (int i = 0; i < n; ++i) { host[i] = (float) i; }
        CHECK(cudaMemcpy(x, host, (size_t) c.n_bytes, cudaMemcpyHostToDevice) == cudaSuccess);
        const long before = sim_counts("cudaLaunchKernelEx");
        CHECK_MSG(reverse((float *) x, n, c.cap) == c.wanted, "%d bytes, cap %d", c.n_bytes, (int) c.cap);
        CHECK_EQ_I(sim_counts("cudaLaunchKernelEx") - before, c.wanted == GCUDA_STATUS_SUCCESS);
        CHECK((cudaGetLastError() != cudaSuccess) == (c.wanted == GCUDA_STATUS_FAILED));
        CHECK(cudaMemcpy(host, x, (size_t) c.n_bytes, cudaMemcpyDeviceToHost) == cudaSuccess);
        CHECK(host[0] == (float) (c.wanted == GCUDA_STATUS_SUCCESS ? n - 1 : 0));
    }
    free(host);
    CHECK(cudaFree(x) == cudaSuccess);
    clean();
}

TEST(a_failed_raise_of_the_limit_is_a_failure) {
    sim_fail("cudaFuncSetAttribute", 1, cudaErrorInvalidValue);
    CHECK(reverse(nullptr, 16 * 1024, 1 << 20) == GCUDA_STATUS_FAILED);
    CHECK(cudaGetLastError() == cudaErrorInvalidValue);
    clean();
}
