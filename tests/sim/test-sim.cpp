// The simulated device itself: barriers, warp operations, shared memory, launches, streams whose missing events show,
// page-locked and pageable copies, faults, limits, leaks.
#include <sys/wait.h>
#include <unistd.h>

#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "sim-launch.h"

extern "C" int cublasCreate_v2(void ** handle);
extern "C" int cublasDestroy_v2(void * handle);
extern "C" int cublasSetStream_v2(void * handle, cudaStream_t stream);
extern "C" int cublasGemmBatchedEx(void * handle, int op_a, int op_b, int m, int n, int k, const void * alpha,
    const void * const * a, int type_a, int lda, const void * const * b, int type_b, int ldb, const void * beta,
    void * const * c, int type_c, int ldc, int n_batch, int compute, int algorithm);
extern "C" int cublasGemmStridedBatchedEx(void * handle, int op_a, int op_b, int m, int n, int k, const void * alpha,
    const void * a, int type_a, int lda, long long stride_a, const void * b, int type_b, int ldb, long long stride_b,
    const void * beta, void * c, int type_c, int ldc, long long stride_c, int n_batch, int compute, int algorithm);
extern "C" int cublasGemmEx(void * handle, int op_a, int op_b, int m, int n, int k, const void * alpha, const void * a,
    int type_a, int lda, const void * b, int type_b, int ldb, const void * beta, void * c, int type_c, int ldc,
    int compute, int algorithm);
extern "C" int cublasGemmBatchedEx(void * handle, int op_a, int op_b, int m, int n, int k, const void * alpha,
    const void * const * a, int type_a, int lda, const void * const * b, int type_b, int ldb, const void * beta,
    void * const * c, int type_c, int ldc, int n_batch, int compute, int algorithm);
extern "C" int cublasGetVersion_v2(void * handle, int * version);

// =====================================================================================================================
// >>kernels
// =====================================================================================================================
static __global__ void k_place(int * out) {
    const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    const unsigned i = block * blockDim.x * blockDim.y * blockDim.z + thread;
    out[i] = (int) i;
}

TEST(every_thread_of_every_block_runs_once) {
    for (uint64_t seed = 0; seed < n_seeds(10); ++seed) {
        sim_reset(1, 64 * MB, seed);
        const dim3 grids[] = { dim3(7), dim3(3, 2, 4), dim3(1) }, blocks[] = { dim3(33), dim3(8, 4, 3), dim3(1024) };
        for (int k = 0; k < 3; ++k) {
            const size_t n = (size_t) grids[k].x * grids[k].y * grids[k].z * blocks[k].x * blocks[k].y * blocks[k].z;
            int * p = on_device<int>(n);
            CHECK(launch(k_place, grids[k], blocks[k], 0, nullptr, p) == cudaSuccess);
            const std::vector<int> v = fetched(p, n);
            for (size_t i = 0; i < n; ++i) { CHECK(v[i] == (int) i); }
            CHECK(cudaFree(p) == cudaSuccess);
        }
    }
    clean();
}

static __global__ void k_reverse(int * x, int rounds) {
    __shared__ int part[1024];
    for (int r = 0; r < rounds; ++r) {
        part[threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x];
        __syncthreads();
        x[blockIdx.x * blockDim.x + threadIdx.x] = part[blockDim.x - 1 - threadIdx.x];
        __syncthreads();
    }
}

static __global__ void k_count(int * out) {
    const int odd = threadIdx.x % 2, n = __syncthreads_count(odd);
    out[threadIdx.x] = n * 100 + 10 * (__syncthreads_or(threadIdx.x == 5) != 0) + (__syncthreads_and(odd) != 0);
}

TEST(barriers_hold_all_threads) {
    for (uint64_t seed = 0; seed < n_seeds(20); ++seed) {
        sim_reset(1, 64 * MB, seed);
        const int n = 3 * 96;
        int * p = on_device<int>(n);
        CHECK(launch(k_place, dim3(3), dim3(96), 0, nullptr, p) == cudaSuccess);
        CHECK(launch(k_reverse, dim3(3), dim3(96), 0, nullptr, p, 5) == cudaSuccess);
        std::vector<int> v = fetched(p, n);
        for (int i = 0; i < n; ++i) { CHECK_EQ_I(v[(size_t) i], i / 96 * 96 + 95 - i % 96); }
        CHECK(launch(k_count, dim3(1), dim3(96), 0, nullptr, p) == cudaSuccess);
        v = fetched(p, 96);
        for (int x : v) { CHECK_EQ_I(x, 4810); }
        cudaFree(p);
    }
    clean();
}

static __global__ void k_dynamic(int * out) {
    int * part = (int *) sim_dynamic_shared();
    part[threadIdx.x] = (int) threadIdx.x;
    __syncthreads();
    out[threadIdx.x] = part[(threadIdx.x + 1) % blockDim.x];
}

TEST(dynamic_shared_memory_and_its_limit) {
    int * p = on_device<int>(64);
    CHECK(launch(k_dynamic, dim3(1), dim3(64), 256, nullptr, p) == cudaSuccess);
    const std::vector<int> v = fetched(p, 64);
    for (int i = 0; i < 64; ++i) { CHECK_EQ_I(v[(size_t) i], (i + 1) % 64); }
    CHECK(launch(k_dynamic, dim3(1), dim3(64), 48 * 1024 + 1, nullptr, p) == cudaErrorInvalidConfiguration);
    CHECK(cudaFuncSetAttribute(k_dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, 60 * 1024) == cudaSuccess);
    CHECK(launch(k_dynamic, dim3(1), dim3(64), 60 * 1024, nullptr, p) == cudaSuccess);
    CHECK(
        cudaFuncSetAttribute(k_dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, 1 << 20) == cudaErrorInvalidValue);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    CHECK(cudaGetLastError() != cudaSuccess && cudaGetLastError() == cudaSuccess);
    cudaFree(p);
    clean();
}

enum { N_SHUFFLES = 14 };
static __global__ void k_warp(long long * out) {
    const int lane = (int) threadIdx.x % 32;
    const unsigned all = 0xffffffffu;
    long long * o = out + threadIdx.x * N_SHUFFLES;
    o[0] = __shfl_xor_sync(all, (long long) threadIdx.x, 5);
    o[1] = __shfl_down_sync(all, lane, 3);
    o[2] = __shfl_up_sync(all, lane, 3);
    o[3] = __shfl_sync(all, lane, 35);
    o[4] = __shfl_down_sync(all, lane, 3, 8);
    o[5] = __shfl_up_sync(all, lane, 3, 8);
    o[6] = __shfl_sync(all, lane, 2, 8);
    o[7] = __ballot_sync(all, lane % 3 == 0);
    o[8] = 10 * __any_sync(all, lane == 7) + __all_sync(all, lane < 31);
    o[9] = __reduce_add_sync(all, (unsigned) lane);
    o[10] = __reduce_min_sync(all, 5 - lane);
    o[11] = __reduce_max_sync(all, (unsigned) (5 - lane));
    o[12] = __reduce_xor_sync(all, (unsigned) lane + 1u);
    o[13] = (long long) __shfl_xor_sync(all, (double) lane, 31);
}

TEST(warp_operations) {
    for (uint64_t seed = 0; seed < n_seeds(10); ++seed) {
        sim_reset(1, 64 * MB, seed);
        long long * p = on_device<long long>(64 * N_SHUFFLES);
        CHECK(launch(k_warp, dim3(1), dim3(64), 0, nullptr, p) == cudaSuccess);
        const std::vector<long long> v = fetched(p, 64 * N_SHUFFLES);
        for (int t = 0; t < 64; ++t) {
            const int l = t % 32;
            const long long * o = &v[(size_t) t * N_SHUFFLES];
            const long long want[N_SHUFFLES] = { t ^ 5, l + 3 < 32 ? l + 3 : l, l >= 3 ? l - 3 : l, 3,
                l % 8 + 3 < 8 ? l + 3 : l, l % 8 >= 3 ? l - 3 : l, l / 8 * 8 + 2, 0x49249249ll, 10, 496, -26,
                0xffffffffll, 32, 31 - l };
            for (int k = 0; k < N_SHUFFLES; ++k) {
                CHECK_MSG(o[k] == want[k], "operation %d, lane %d: %lld, want %lld", k, l, o[k], want[k]);
            }
        }
        cudaFree(p);
    }
    clean();
}

static __global__ void k_halves(int * out) { // two halves of a warp, a different number of times each
    const int lane = (int) threadIdx.x;
    const unsigned mask = lane < 16 ? 0x0000ffffu : 0xffff0000u;
    int v = lane;
    for (int i = 0; i < (lane < 16 ? 3 : 7); ++i) { v = __shfl_xor_sync(mask, v, 1 << (i % 4)) + 1; }
    __syncwarp();
    out[lane] = __shfl_xor_sync(0xffffffffu, v, 16);
}

TEST(parts_of_a_warp_go_their_own_way) {
    for (uint64_t seed = 0; seed < n_seeds(20); ++seed) {
        sim_reset(1, 64 * MB, seed);
        int * p = on_device<int>(32);
        CHECK(launch(k_halves, dim3(1), dim3(32), 0, nullptr, p) == cudaSuccess);
        const std::vector<int> v = fetched(p, 32);
        for (int l = 0; l < 32; ++l) {
            const int from = l ^ 16, want = from < 16 ? (from ^ 7) + 3 : (from ^ 15 ^ 7) + 7;
            CHECK_EQ_I(v[(size_t) l], want);
        }
        cudaFree(p);
    }
    clean();
}

static __global__ void k_atomics(int * out, float * f) {
    atomicAdd(&out[0], 1);
    atomicMax(&out[1], (int) threadIdx.x);
    atomicCAS(&out[2], 7, 8);
    atomicAdd(f, 0.5f);
}

TEST(atomics_and_bytes) {
    int * p = on_device<int>(3);
    float * f = on_device<float>(1);
    const int start[3] = { 0, -1, 7 };
    CHECK(cudaMemcpy(p, start, sizeof start, cudaMemcpyHostToDevice) == cudaSuccess);
    CHECK(cudaMemsetAsync(f, 0, 4, nullptr) == cudaSuccess);
    CHECK(launch(k_atomics, dim3(5), dim3(40), 0, nullptr, p, f) == cudaSuccess);
    const std::vector<int> v = fetched(p, 3);
    CHECK(v[0] == 200 && v[1] == 39 && v[2] == 8);
    CHECK(fetched(f, 1)[0] == 100.0f);
    CHECK_EQ_I(__dp4a((int) 0xff02fe7fu, 0x01020304, 10), -1 + 4 - 6 + 508 + 10);
    CHECK_EQ_I(__dp4a(0xffffffffu, 0x02020202u, 1u), 2041);
    CHECK_EQ_I(__byte_perm(0x33221100u, 0x77665544u, 0x7140u), 0x77114400);
    cudaFree(p);
    cudaFree(f);
    clean();
}

TEST(half_precision) {
    for (unsigned i = 0; i < 65536; ++i) {
        const __half h = { (uint16_t) i };
        const float f = __half2float(h);
        CHECK(f != f || __float2half_rn(f).bits == i);
        CHECK(f != f ? gcuda_fp16_to_fp32((gcuda_fp16_t) i) != gcuda_fp16_to_fp32((gcuda_fp16_t) i)
                     : f == gcuda_fp16_to_fp32((gcuda_fp16_t) i));
    }
    struct rng r = rng_for("half");
    for (int i = 0; i < 200000; ++i) {
        const uint32_t bits = (uint32_t) rng_u64(&r);
        float f;
        memcpy(&f, &bits, 4);
        if (f != f) { continue; }
        CHECK_EQ_I(__float2half_rn(f).bits, gcuda_fp32_to_fp16(f));
        CHECK_EQ_I(__float2bfloat16_rn(f).bits, gcuda_fp32_to_bf16(f).bits);
    }
}

// =====================================================================================================================
// >>misuse
// =====================================================================================================================
static __global__ void k_divergent(int * out) {
    if (threadIdx.x < 20) { __syncthreads(); }
    out[threadIdx.x] = 1;
}
static __global__ void k_early_exit(int *) {
    if (threadIdx.x == 3) { return; }
    __syncthreads();
}
static __global__ void k_missing_lane(int * out) {
    if (threadIdx.x != 3) { out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1, 1); }
}
static __global__ void k_not_in_mask(int * out) { out[threadIdx.x] = __shfl_xor_sync(0x0000ffffu, 1, 1); }
static __global__ void k_two_operations(int * out) {
    out[threadIdx.x] = threadIdx.x % 2 ? __any_sync(0xffffffffu, 1) : __shfl_xor_sync(0xffffffffu, 1, 1);
}

TEST(divergence_is_reported_and_loses_the_device) {
    void (*const kernels[])(int *) = { k_divergent, k_early_exit, k_missing_lane, k_not_in_mask, k_two_operations };
    for (auto kernel : kernels) {
        sim_reset(1, 64 * MB, 1);
        int * p = on_device<int>(64);
        CHECK(launch(kernel, dim3(2), dim3(64), 0, nullptr, p) == cudaSuccess);
        CHECK(cudaDeviceSynchronize() == cudaErrorLaunchFailure);
        CHECK_EQ_I(sim_violations(), 1);
        CHECK(cudaGetLastError() == cudaErrorLaunchFailure && cudaGetLastError() == cudaErrorLaunchFailure);
        void * q = nullptr;
        CHECK(cudaMalloc(&q, 4) == cudaErrorLaunchFailure);
        CHECK(cudaFree(p) == cudaErrorLaunchFailure); // counts as freed all the same
        CHECK_EQ_I(sim_leaks(), 0);
        sim_reset(1, 64 * MB, 1); // and the device works again
        p = on_device<int>(64);
        CHECK(launch(k_place, dim3(1), dim3(64), 0, nullptr, p) == cudaSuccess);
        CHECK_EQ_I(fetched(p, 64)[63], 63);
        cudaFree(p);
    }
    clean();
}

TEST(dead_handles_are_reported) {
    cudaStream_t stream;
    cudaEvent_t event;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess &&
          cudaStreamDestroy(stream) == cudaSuccess);
    CHECK(cudaStreamSynchronize(stream) == cudaErrorInvalidResourceHandle);
    CHECK(cudaEventCreateWithFlags(&event, 0) == cudaSuccess && cudaEventDestroy(event) == cudaSuccess);
    CHECK(cudaEventSynchronize(event) == cudaErrorInvalidResourceHandle);
    int on_stack = 0;
    CHECK(cudaFree(&on_stack) == cudaErrorInvalidValue);
    CHECK_EQ_I(sim_violations(), 3);
    sim_reset(1, 64 * MB, 1);
    clean();
}

TEST(leaks_are_counted) {
    void *p = nullptr, *h = nullptr;
    int host[4];
    cudaStream_t stream;
    cudaEvent_t event;
    CHECK(cudaMalloc(&p, 10) == cudaSuccess && cudaHostAlloc(&h, 10, 0) == cudaSuccess &&
          cudaHostRegister(host, sizeof host, 0) == cudaSuccess);
    CHECK(cudaHostRegister(&host[1], 4, 0) == cudaErrorHostMemoryAlreadyRegistered);
    CHECK(cudaStreamCreateWithFlags(&stream, 0) == cudaSuccess && cudaEventCreateWithFlags(&event, 0) == cudaSuccess);
    CHECK_EQ_I(sim_leaks(), 5);
    cudaFree(p), cudaFreeHost(h), cudaHostUnregister(host), cudaStreamDestroy(stream), cudaEventDestroy(event);
    clean();
}

// A process that ends with something alive, or has used something dead, says so by its exit code.
TEST(what_is_left_at_the_end_is_an_exit_code) {
    static const int codes[] = { 0, 97, 97 };
    for (int how = 0; how < 3; ++how) {
        fflush(nullptr);
        const pid_t child = fork();
        if (child == 0) {
            void * p = nullptr;
            cudaEvent_t event;
            if (freopen("/dev/null", "w", stderr) == nullptr) { exit(1); }
            if (how == 1) { (void) cudaMalloc(&p, 10); }
            if (how == 2) {
                (void) cudaEventCreateWithFlags(&event, 0);
                (void) cudaEventDestroy(event);
                (void) cudaEventRecord(event, nullptr);
            }
            exit(0);
        }
        int status = 0;
        CHECK(child > 0 && waitpid(child, &status, 0) == child);
        CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == codes[how], "case %d: status %d", how, status);
    }
    clean();
}

// =====================================================================================================================
// >>streams   what CUDA promises holds for every seed; what it does not is wrong for some
// =====================================================================================================================
struct two_streams {
    cudaStream_t a, b;
    cudaEvent_t event;
    float * x;
    float * pinned;
};

static void two_streams_begin(struct two_streams * t, uint64_t seed, unsigned flags) {
    sim_reset(2, 64 * MB, seed);
    void * p = nullptr;
    CHECK(cudaStreamCreateWithFlags(&t->a, flags) == cudaSuccess &&
          cudaStreamCreateWithFlags(&t->b, flags) == cudaSuccess);
    CHECK(cudaEventCreateWithFlags(&t->event, cudaEventDisableTiming) == cudaSuccess);
    CHECK(cudaHostAlloc(&p, 256, 0) == cudaSuccess);
    t->pinned = (float *) p;
    t->x = on_device<float>(64);
    CHECK(cudaMemsetAsync(t->x, 0, 256, t->a) == cudaSuccess && cudaStreamSynchronize(t->a) == cudaSuccess);
}

static void two_streams_end(struct two_streams * t) {
    cudaFree(t->x), cudaFreeHost(t->pinned), cudaEventDestroy(t->event), cudaStreamDestroy(t->a),
        cudaStreamDestroy(t->b);
    CHECK_EQ_I(sim_leaks(), 0);
}

static __global__ void k_add(float * x, float v) { x[threadIdx.x] += v; }
static __global__ void k_double(float * x) { x[threadIdx.x] *= 2.0f; }

enum order { ORDER_NONE, ORDER_EVENT, ORDER_LEGACY };
static bool add_then_double(uint64_t seed, enum order order) {
    struct two_streams t;
    two_streams_begin(&t, seed, order == ORDER_LEGACY ? cudaStreamDefault : cudaStreamNonBlocking);
    CHECK(launch(k_add, dim3(1), dim3(64), 0, t.a, t.x, 3.0f) == cudaSuccess);
    if (order == ORDER_EVENT) {
        CHECK(cudaEventRecord(t.event, t.a) == cudaSuccess && cudaStreamWaitEvent(t.b, t.event, 0) == cudaSuccess);
    }
    CHECK(launch(k_double, dim3(1), dim3(64), 0, order == ORDER_LEGACY ? nullptr : t.b, t.x) == cudaSuccess);
    CHECK(launch(k_add, dim3(1), dim3(64), 0, t.b, t.x, 0.0f) == cudaSuccess);
    float y[64];
    CHECK(cudaMemcpyAsync(y, t.x, sizeof y, cudaMemcpyDeviceToHost, t.b) == cudaSuccess);
    two_streams_end(&t);
    return y[0] == 6.0f && y[63] == 6.0f;
}

TEST(a_missing_event_shows) {
    int n_wrong = 0;
    for (uint64_t seed = 1; seed <= 100; ++seed) {
        n_wrong += !add_then_double(seed, ORDER_NONE);
        CHECK(add_then_double(seed, ORDER_EVENT));
        CHECK(add_then_double(seed, ORDER_LEGACY));
    }
    CHECK_MSG(n_wrong >= 20, "only %d of 100 seeds show it", n_wrong);
    clean();
}

TEST(page_locked_memory_is_used_late_and_pageable_memory_at_once) {
    int n_wrong = 0;
    for (uint64_t seed = 1; seed <= 100; ++seed) {
        struct two_streams t;
        two_streams_begin(&t, seed, cudaStreamNonBlocking);
        float pageable[64] = { 1.0f };
        t.pinned[0] = 2.0f;
        CHECK(cudaMemcpyAsync(t.x, pageable, 4, cudaMemcpyHostToDevice, t.a) == cudaSuccess);
        CHECK(cudaMemcpyAsync(t.x + 1, t.pinned, 4, cudaMemcpyHostToDevice, t.a) == cudaSuccess);
        pageable[0] = t.pinned[0] = 5.0f; // allowed for the first, a mistake for the second
        CHECK(cudaMemcpyAsync(t.pinned + 2, t.x, 8, cudaMemcpyDeviceToHost, t.a) == cudaSuccess);
        n_wrong += t.pinned[2] != 1.0f; // not waited for
        CHECK(cudaStreamSynchronize(t.a) == cudaSuccess);
        CHECK(t.pinned[2] == 1.0f);
        n_wrong += t.pinned[3] != 2.0f;
        two_streams_end(&t);
    }
    CHECK_MSG(n_wrong >= 100, "only %d of 200 show it", n_wrong);
    clean();
}

TEST(queries_come_to_an_end) {
    int n_asked = 0;
    for (uint64_t seed = 1; seed <= 20; ++seed) {
        struct two_streams t;
        two_streams_begin(&t, seed, cudaStreamNonBlocking);
        CHECK(cudaEventQuery(t.event) == cudaSuccess && cudaEventSynchronize(t.event) == cudaSuccess); // never recorded
        for (int i = 0; i < 10; ++i) { CHECK(launch(k_add, dim3(1), dim3(64), 0, t.a, t.x, 1.0f) == cudaSuccess); }
        CHECK(cudaEventRecord(t.event, t.a) == cudaSuccess);
        int n = 0;
        while (cudaEventQuery(t.event) == cudaErrorNotReady) { ++n; }
        CHECK(launch(k_add, dim3(1), dim3(64), 0, t.b, t.x, 0.0f) == cudaSuccess);
        while (cudaStreamQuery(t.b) == cudaErrorNotReady) { ++n; }
        n_asked += n;
        CHECK(cudaGetLastError() == cudaSuccess); // to be not ready is no error
        CHECK(cudaStreamQuery(t.a) == cudaSuccess);
        CHECK(n < 1000 && fetched(t.x, 64)[5] == 10.0f);
        two_streams_end(&t);
    }
    CHECK(n_asked > 0);
    clean();
}

TEST(devices_have_memory_and_streams_of_their_own) {
    sim_reset(2, 1 * MB, 3);
    int n = 0, device = -1;
    void * p[2] = { nullptr, nullptr };
    size_t n_free = 0, n_total = 0;
    CHECK(cudaGetDeviceCount(&n) == cudaSuccess && n == 2);
    for (int i = 0; i < 2; ++i) {
        CHECK(cudaSetDevice(i) == cudaSuccess && cudaGetDevice(&device) == cudaSuccess && device == i);
        CHECK(cudaMalloc(&p[i], MB - 1000) == cudaSuccess);
        void * more = nullptr;
        CHECK(cudaMalloc(&more, 1001) == cudaErrorMemoryAllocation && more == nullptr);
        CHECK(cudaMemGetInfo(&n_free, &n_total) == cudaSuccess && n_free == 1000 && n_total == MB);
        CHECK(cudaMemsetAsync(p[i], i, 100, nullptr) == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess);
    }
    CHECK(cudaSetDevice(2) == cudaErrorInvalidDevice && cudaGetLastError() == cudaErrorInvalidDevice);
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    CHECK(cudaMemcpyPeerAsync(p[0], 1, p[1], 0, 100, stream) == cudaErrorInvalidValue);
    CHECK(cudaMemcpyPeerAsync(p[0], 0, p[1], 1, 100, stream) == cudaSuccess &&
          cudaStreamSynchronize(stream) == cudaSuccess);
    char byte = 0;
    CHECK(cudaMemcpy(&byte, (char *) p[0] + 99, 1, cudaMemcpyDeviceToHost) == cudaSuccess && byte == 1);
    CHECK(cudaSetDevice(0) == cudaSuccess);
    CHECK(launch(k_add, dim3(1), dim3(1), 0, stream, (float *) p[0], 1.0f) ==
          cudaErrorInvalidResourceHandle); // another device's
    CHECK(cudaFree(p[0]) == cudaSuccess && cudaFree(p[1]) == cudaSuccess && cudaStreamDestroy(stream) == cudaSuccess);
    struct cudaDeviceProp prop;
    CHECK(cudaGetDeviceProperties(&prop, 1) == cudaSuccess && 100 * prop.major + 10 * prop.minor == GCUDA_SIM_CC &&
          prop.totalGlobalMem == MB);
    sim_reset(0, MB, 1);
    CHECK(cudaGetDeviceCount(&n) == cudaErrorNoDevice && n == 0);
    cudaGetLastError();
    sim_reset(1, 64 * MB, 1);
    clean();
}

TEST(wrong_arguments_are_refused) {
    float *x = on_device<float>(4), host[4] = { 0 };
    CHECK(cudaMemcpyAsync(x, host, 17, cudaMemcpyHostToDevice, nullptr) == cudaErrorInvalidValue); // past the end
    CHECK(cudaMemcpyAsync(host, host, 4, cudaMemcpyHostToDevice, nullptr) == cudaErrorInvalidValue);
    CHECK(cudaMemcpyAsync(x, x, 4, cudaMemcpyDeviceToHost, nullptr) == cudaErrorInvalidValue);
    CHECK(cudaMemcpyAsync(x, host, 4, (cudaMemcpyKind) 9, nullptr) == cudaErrorInvalidMemcpyDirection);
    CHECK(cudaMemsetAsync(x + 3, 0, 5, nullptr) == cudaErrorInvalidValue);
    CHECK(launch(k_double, dim3(0), dim3(1), 0, nullptr, x) == cudaErrorInvalidConfiguration);
    CHECK(launch(k_double, dim3(1, 65536), dim3(1), 0, nullptr, x) == cudaErrorInvalidConfiguration);
    CHECK(launch(k_double, dim3(1), dim3(1025), 0, nullptr, x) == cudaErrorInvalidConfiguration);
    CHECK(cudaMemcpyAsync(x, host, 16, cudaMemcpyDefault, nullptr) == cudaSuccess);
    cudaFree(x);
    clean();
}

TEST(faults_come_when_asked_for) {
    void * p = nullptr;
    sim_fail("cudaMalloc", 2, cudaErrorMemoryAllocation);
    CHECK(cudaMalloc(&p, 4) == cudaSuccess);
    void * q = nullptr;
    CHECK(cudaMalloc(&q, 4) == cudaErrorMemoryAllocation && q == nullptr);
    CHECK(cudaGetLastError() == cudaErrorMemoryAllocation && cudaGetLastError() == cudaSuccess);
    CHECK(cudaMalloc(&q, 4) == cudaSuccess);
    CHECK(sim_counts("cudaMalloc") == 3 && sim_failed() == 1 && sim_counts("cudaFree") == 0);
    sim_fail("cudaFree", 1, cudaErrorInvalidValue);
    CHECK(cudaFree(q) == cudaErrorInvalidValue); // freed nevertheless
    sim_fail("kernel", 2, cudaErrorIllegalAddress);
    for (int i = 0; i < 3; ++i) {
        const cudaError_t e = launch(k_double, dim3(1), dim3(1), 0, nullptr, (float *) p);
        CHECK(e == cudaSuccess || e == cudaErrorIllegalAddress);
    }
    CHECK(cudaDeviceSynchronize() == cudaErrorIllegalAddress && cudaGetLastError() == cudaErrorIllegalAddress);
    CHECK(cudaMalloc(&q, 4) == cudaErrorIllegalAddress);
    cudaFree(p);
    clean();
}

TEST(products_of_halves_and_of_lists) {
    void * handle = nullptr;
    const float one = 1.0f, a_half = 0.5f;
    const __half a[4] = { __float2half(1), __float2half(2), __float2half(3), __float2half(4) };
    const __nv_bfloat16 b[4] = { __float2bfloat16(1), __float2bfloat16(2), __float2bfloat16(3), __float2bfloat16(4) };
    const float start[4] = { 2, 2, 2, 2 };
    void *da = on_device<__half>(4), *db = on_device<__nv_bfloat16>(4), *dc = on_device<float>(4);
    int version = 0;
    CHECK(cudaMemcpy(da, a, 8, cudaMemcpyHostToDevice) == cudaSuccess &&
          cudaMemcpy(db, b, 8, cudaMemcpyHostToDevice) == cudaSuccess);
    CHECK(cublasCreate_v2(&handle) == 0 && cublasGetVersion_v2(handle, &version) == 0 && version >= 130000);
    for (int type : { 2, 14 }) { // [1 3; 2 4] squared, plus half of the old contents
        void * x = type == 2 ? da : db;
        CHECK(cudaMemcpy(dc, start, sizeof start, cudaMemcpyHostToDevice) == cudaSuccess);
        CHECK(cublasGemmEx(handle, 0, 0, 2, 2, 2, &one, x, type, 2, x, type, 2, &a_half, dc, 0, 2, 68, -1) == 0);
        const std::vector<float> c = fetched((const float *) dc, 4);
        CHECK(c[0] == 8.0f && c[1] == 11.0f && c[2] == 16.0f && c[3] == 23.0f);
    }
    CHECK(cublasGemmEx(handle, 0, 0, 2, 2, 2, &one, da, 2, 2, db, 14, 2, &a_half, dc, 0, 2, 68, -1) == 15);
    CHECK(cublasGemmEx(handle, 0, 0, 2, 2, 2, &one, da, 2, 2, da, 2, 2, &a_half, dc, 0, 2, 64, -1) == 15);
    void * const lists[3] = { da, da, dc };
    void ** list = on_device<void *>(3);
    CHECK(cudaMemcpy(list, lists, sizeof lists, cudaMemcpyHostToDevice) == cudaSuccess);
    CHECK(cudaMemcpy(dc, start, sizeof start, cudaMemcpyHostToDevice) == cudaSuccess);
    CHECK(cublasGemmBatchedEx(
              handle, 0, 0, 2, 2, 2, &one, list, 2, 2, list + 1, 2, 2, &a_half, list + 2, 0, 2, 1, 68, -1) == 0);
    CHECK(fetched((const float *) dc, 4)[3] == 23.0f);
    const float zero = 0.0f;
    // halves come out
    CHECK(cublasGemmEx(handle, 0, 0, 2, 2, 2, &one, da, 2, 2, da, 2, 2, &zero, db, 2, 2, 68, -1) == 0);
    const std::vector<__half> h = fetched((const __half *) db, 4);
    CHECK(__half2float(h[0]) == 7.0f && __half2float(h[3]) == 22.0f);
    CHECK(cublasDestroy_v2(handle) == 0);
    cudaFree(da), cudaFree(db), cudaFree(dc), cudaFree(list);
    clean();
}

static __global__ void k_match(unsigned * out) {
    const unsigned all = 0xffffffffu, l = threadIdx.x;
    int same = -1;
    out[4 * l] = __match_any_sync(all, (int) (l % 5));
    out[4 * l + 1] = __match_any_sync(l < 8 ? 0xffu : 0xffffff00u, (long long) (l / 4) << 33);
    out[4 * l + 2] = __match_all_sync(all, 7, &same) + (unsigned) same;
    out[4 * l + 3] = __match_all_sync(all, l, &same) + (unsigned) same;
}

TEST(lanes_find_their_like_and_bytes_go_together) {
    for (uint64_t seed = 0; seed < n_seeds(5); ++seed) {
        sim_reset(1, 64 * MB, seed);
        unsigned * p = on_device<unsigned>(128);
        CHECK(launch(k_match, dim3(1), dim3(32), 0, nullptr, p) == cudaSuccess);
        const std::vector<unsigned> v = fetched(p, 128);
        for (unsigned l = 0; l < 32; ++l) {
            unsigned like = 0;
            for (unsigned k = l % 5; k < 32; k += 5) { like |= 1u << k; }
            CHECK(v[4 * l] == like && v[4 * l + 1] == 15u << (l / 4 * 4) && v[4 * l + 2] == 0 && v[4 * l + 3] == 0);
        }
        cudaFree(p);
    }
    CHECK(__vsubss4(0x80017f05u, 0x01ff8003u) == 0x80027f02u && __vadd4(0xff010203u, 0x01010101u) == 0x00020304u);
    CHECK(__vcmpeq4(0x01020304u, 0x01ff03ffu) == 0xff00ff00u && __vmaxs4(0x80017f00u, 0x01ff8000u) == 0x01017f00u);
    CHECK(__vsubus4(0x05ff0010u, 0x06010120u) == 0x00fe0000u && __vcmpgeu4(0x05ff0010u, 0x05010120u) == 0xffff0000u);
    CHECK(__brev(0x80000001u) == 0x80000001u && __brev(2u) == 0x40000000u && __clzll(1) == 63 && __ffsll(8) == 4);
    CHECK(__funnelshift_l(0x80000000u, 1u, 1) == 3u && __funnelshift_r(0u, 1u, 1) == 0x80000000u);
    const long long before = clock64();
    CHECK(clock64() > before);
    clean();
}

TEST(products_of_the_cublas_stand_in) {
    // [2, 3] rows times [2, 3] rows, both transposed as gcuda asks for them
    float a[6] = { 1, 2, 3, 4, 5, 6 }, b[4] = { 1, 10, 2, 20 }, c[6];
    const float one = 1.0f, zero = 0.0f;
    float *da = on_device<float>(6), *db = on_device<float>(4), *dc = on_device<float>(6);
    CHECK(cudaMemcpy(da, a, sizeof a, cudaMemcpyHostToDevice) == cudaSuccess &&
          cudaMemcpy(db, b, sizeof b, cudaMemcpyHostToDevice) == cudaSuccess);
    void * handle = nullptr;
    CHECK(cublasCreate_v2(&handle) == 0 && cublasSetStream_v2(handle, cudaStreamPerThread) == 0);
    CHECK(cublasGemmStridedBatchedEx(
              handle, 1, 0, 3, 2, 2, &one, da, 0, 2, 0, db, 0, 2, 0, &zero, dc, 0, 3, 0, 1, 68, -1) == 0);
    CHECK(cudaMemcpy(c, dc, sizeof c, cudaMemcpyDeviceToHost) == cudaSuccess);
    for (int j = 0; j < 2; ++j) {
        for (int i = 0; i < 3; ++i) { CHECK(c[3 * j + i] == a[2 * i] * b[2 * j] + a[2 * i + 1] * b[2 * j + 1]); }
    }
    CHECK(cublasGemmStridedBatchedEx(
              handle, 1, 0, 3, 2, 2, &one, da, 2, 2, 0, db, 0, 2, 0, &zero, dc, 0, 3, 0, 1, 68, -1) != 0);
    CHECK_EQ_I(sim_leaks(), 4);
    CHECK(cublasDestroy_v2(handle) == 0);
    cudaFree(da), cudaFree(db), cudaFree(dc);
    clean();
}

// Two products of one number each, whose addresses are copied to the device separately from the call: before it in
// stream order.
TEST(cublas_reads_addresses_on_the_device) {
    const float one = 1.0f, zero = 0.0f, numbers[12] = { 2, 0, 0, 0, 3, 0, 0, 0, 5 }; // at multiples of 16 bytes
    float *x = on_device<float>(12), y[8] = { 0 };
    float * dy = on_device<float>(8);
    void ** to = on_device<void *>(6);
    void * handle = nullptr;
    cudaStream_t stream = nullptr;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    CHECK(cublasCreate_v2(&handle) == 0 && cublasSetStream_v2(handle, stream) == 0);
    CHECK(cudaMemcpy(x, numbers, sizeof numbers, cudaMemcpyHostToDevice) == cudaSuccess);
    void * at[6] = { x, x + 4, x + 8, x + 8, dy, dy + 4 };
    const auto multiply = [&](void ** from) {
        return cublasGemmBatchedEx(
            handle, 0, 0, 1, 1, 1, &one, from, 0, 1, from + 2, 0, 1, &zero, from + 4, 0, 1, 2, 68, -1);
    };
    CHECK(cudaMemcpyAsync(to, at, sizeof at, cudaMemcpyHostToDevice, stream) == cudaSuccess && multiply(to) == 0);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    CHECK(cudaMemcpy(y, dy, sizeof y, cudaMemcpyDeviceToHost) == cudaSuccess && y[0] == 10.0f && y[4] == 15.0f);
    CHECK_EQ_I(sim_violations(), 0);
    CHECK(multiply(at) == 0 && cudaStreamSynchronize(stream) == cudaSuccess); // on the host
    CHECK(sim_violations() > 0);
    const long before = sim_violations();
    at[1] = x + 5; // no load of 16 bytes begins there
    CHECK(cudaMemcpy(to, at, sizeof at, cudaMemcpyHostToDevice) == cudaSuccess);
    CHECK(multiply(to) == 0 && cudaStreamSynchronize(stream) == cudaSuccess);
    CHECK_EQ_I(sim_violations(), before + 1);
    CHECK(cublasDestroy_v2(handle) == 0 && cudaStreamDestroy(stream) == cudaSuccess);
    cudaFree(x), cudaFree(dy), cudaFree(to);
    sim_reset(1, 64 * MB, 1);
}
