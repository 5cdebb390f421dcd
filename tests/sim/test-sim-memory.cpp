// The simulated device's memory and what is looked up: who may use memory, redzones, virtual memory, contexts, external
// memory and semaphores, attributes, the clock.
#include "cuda.h"
#include "sim-launch.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static __global__ void k_fill(int * out, int n, int value) {
    for (int i = (int) (blockIdx.x * blockDim.x + threadIdx.x); i < n; i += (int) (gridDim.x * blockDim.x)) {
        out[i] = value + i;
    }
}
static __global__ void k_read(int * out, const int * in) { out[threadIdx.x] = in[threadIdx.x]; }

static void fill(int * p, int n, int value) {
    CHECK(launch(k_fill, dim3(2), dim3(64), 0, nullptr, p, n, value) == cudaSuccess);
}

// =====================================================================================================================
// >>access
// =====================================================================================================================
TEST(the_host_may_not_use_device_memory) {
    int * p = on_device<int>(100);
    fill(p, 100, 7);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    CHECK_EQ_I(sim_violations(), 0);
    CHECK_EQ_I(*(volatile int *) &p[5], 12); // goes through, but is counted
    CHECK_EQ_I(sim_violations(), 1);
    CHECK_EQ_I(fetched(p, 100)[99], 106);
    *(volatile int *) &p[6] = 3; // closed again by the call before
    CHECK_EQ_I(sim_violations(), 2);
    CHECK(cudaFree(p) == cudaSuccess);
    sim_reset(1, 64 * MB, 1);
    clean();
}

TEST(memory_of_another_device_needs_peer_access) {
    sim_reset(2, 64 * MB, 1);
    int *mine = on_device<int>(32), *theirs = nullptr;
    CHECK(cudaSetDevice(1) == cudaSuccess);
    theirs = on_device<int>(32);
    fill(theirs, 32, 40);
    CHECK(cudaDeviceSynchronize() == cudaSuccess && cudaSetDevice(0) == cudaSuccess);
    CHECK(cudaDeviceEnablePeerAccess(1, 0) == cudaSuccess);
    CHECK(cudaDeviceEnablePeerAccess(1, 0) == cudaErrorPeerAccessAlreadyEnabled);
    CHECK(launch(k_read, dim3(1), dim3(32), 0, nullptr, mine, (const int *) theirs) == cudaSuccess);
    CHECK_EQ_I(fetched(mine, 32)[31], 71);
    CHECK(cudaDeviceDisablePeerAccess(1) == cudaSuccess);
    CHECK(cudaDeviceDisablePeerAccess(1) == cudaErrorPeerAccessNotEnabled);
    CHECK(cudaMemcpyPeerAsync(mine, 0, theirs, 1, 128, nullptr) == cudaSuccess); // needs none
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    CHECK_EQ_I(sim_violations(), 0);
    CHECK(launch(k_read, dim3(1), dim3(32), 0, nullptr, mine, (const int *) theirs) == cudaSuccess);
    CHECK(cudaDeviceSynchronize() == cudaErrorIllegalAddress);
    CHECK_EQ_I(sim_violations(), 1);
    cudaFree(mine);
    cudaFree(theirs);
    sim_reset(2, 64 * MB, 1);
    clean();
}

TEST(a_link_between_devices_may_be_missing_or_lie) {
    sim_reset(2, 64 * MB, 1);
    int can = -1;
    sim_peer(0, 1, 0);
    CHECK(cudaDeviceCanAccessPeer(&can, 0, 1) == cudaSuccess && can == 0);
    CHECK(cudaDeviceEnablePeerAccess(1, 0) == cudaErrorPeerAccessUnsupported);
    sim_peer(0, 1, 2);
    CHECK(cudaDeviceCanAccessPeer(&can, 0, 1) == cudaSuccess && can == 1);
    for (int enabled = 0; enabled < 2; ++enabled) {
        CHECK(cudaSetDevice(0) == cudaSuccess);
        if (enabled) { CHECK(cudaDeviceEnablePeerAccess(1, 0) == cudaSuccess); }
        int * a = on_device<int>(8);
        fill(a, 8, 1);
        CHECK(cudaDeviceSynchronize() == cudaSuccess && cudaSetDevice(1) == cudaSuccess);
        int * z = on_device<int>(8);
        CHECK(cudaMemcpyPeerAsync(z, 1, a, 0, 32, nullptr) == cudaSuccess);
        CHECK((fetched(z, 8)[3] == 4) == !enabled);
        cudaFree(a);
        cudaFree(z);
    }
    clean();
}

static int on_nobodys_device[4];
TEST(kernels_use_page_locked_memory_and_nothing_out_of_range) {
    int *h = nullptr, *p = on_device<int>(32);
    CHECK(cudaHostAlloc((void **) &h, 128, 0) == cudaSuccess);
    for (int i = 0; i < 32; ++i) { h[i] = 3 * i; }
    CHECK(launch(k_read, dim3(1), dim3(32), 0, nullptr, p, (const int *) h) == cudaSuccess);
    CHECK_EQ_I(fetched(p, 32)[20], 60);
    const int * wild = (const int *) (uintptr_t) 0x123450; // NULL is UBSan's
    CHECK(launch(k_read, dim3(1), dim3(1), 0, nullptr, p, wild) == cudaSuccess);
    CHECK(cudaDeviceSynchronize() == cudaErrorIllegalAddress);
    CHECK_EQ_I(sim_violations(), 1);
    CHECK(cudaFreeHost(h) != cudaSuccess && cudaFree(p) != cudaSuccess); // freed, on a lost device
    sim_reset(1, 64 * MB, 1);
    p = on_device<int>(32);
    CHECK(launch(k_read, dim3(1), dim3(4), 0, nullptr, p, (const int *) on_nobodys_device) == cudaSuccess);
    CHECK(cudaDeviceSynchronize() == cudaErrorIllegalAddress);
    CHECK_EQ_I(sim_violations(), 1);
    cudaFree(p);
    sim_reset(1, 64 * MB, 1);
    clean();
}

#if defined(SIM_TEST_ASAN)
// AddressSanitizer ends the program: in a child that reads one element past the end, or freed memory.
static int exit_code_of(int n_read, bool is_freed) {
    const pid_t child = fork();
    if (child == 0) {
        int *in = on_device<int>(10), *out = on_device<int>(32);
        if (is_freed) { cudaFree(in); }
        (void) !freopen("/dev/null", "w", stderr);
        (void) launch(k_read, dim3(1), dim3((unsigned) n_read), 0, nullptr, out, (const int *) in);
        _exit(cudaDeviceSynchronize() == cudaSuccess && sim_violations() == 0 ? 0 : 42);
    }
    int status = 0;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
TEST(reads_out_of_range_are_found) {
    CHECK_EQ_I(exit_code_of(10, false), 0);
    const int behind = exit_code_of(11, false), freed = exit_code_of(1, true);
    CHECK(behind != 0 && behind != 42 && freed != 0 && freed != 42);
    clean();
}
#else
TEST(a_write_behind_the_end_is_found_when_freed) {
    int * p = on_device<int>(10);
    fill(p, 12, 1);
    CHECK(cudaFree(p) == cudaSuccess);
    CHECK_EQ_I(sim_violations(), 1);
    sim_reset(1, 64 * MB, 1);
    clean();
}
#endif

TEST(addresses_come_back_late_and_memory_does_not_grow) {
    struct rng r = rng_for("arena");
    std::vector<std::pair<int *, int>> alive;
    for (int round = 0; round < 3000; ++round) {
        if (alive.size() < 20 && rng_u64(&r) % 3 != 0) {
            const int n = 1 + (int) (rng_u64(&r) % (rng_u64(&r) % 8 == 0 ? 300000 : 2000));
            int * p = on_device<int>((size_t) n);
            CHECK((uintptr_t) p % 256 == 0);
            for (const auto & a : alive) { CHECK(p + n <= a.first || a.first + a.second <= p); }
            CHECK(cudaMemsetAsync(p, 0, (size_t) n * sizeof(int), nullptr) == cudaSuccess);
            alive.push_back({ p, n });
        } else if (!alive.empty()) {
            const size_t k = rng_u64(&r) % alive.size();
            CHECK(cudaFree(alive[k].first) == cudaSuccess);
            alive.erase(alive.begin() + (long) k);
        }
    }
    for (const auto & a : alive) { CHECK(cudaFree(a.first) == cudaSuccess); }
    clean();
}

// =====================================================================================================================
// >>copies
// =====================================================================================================================
TEST(copies_of_rows_and_boxes) {
    sim_reset(2, 64 * MB, 3);
    std::vector<int> host(20 * 10), back(12 * 10, -5);
    for (size_t i = 0; i < host.size(); ++i) { host[i] = (int) i; }
    int * a = on_device<int>(16 * 10);
    CHECK(cudaMemcpy2DAsync(a, 64, host.data(), 80, 40, 10, cudaMemcpyHostToDevice, nullptr) == cudaSuccess);
    host[0] = 99; // pageable: was read
    CHECK(cudaMemcpy2DAsync(back.data(), 48, a, 64, 40, 10, cudaMemcpyDefault, nullptr) == cudaSuccess);
    for (int i = 0; i < 10; ++i) {
        for (int k = 0; k < 12; ++k) { CHECK_EQ_I(back[(size_t) (12 * i + k)], k < 10 ? 20 * i + k : -5); }
    }
    CHECK(cudaMemcpy2DAsync(a, 32, a, 64, 40, 2, cudaMemcpyDeviceToDevice, nullptr) == cudaErrorInvalidValue);
    CHECK(cudaMemcpy2DAsync(a, 64, host.data(), 80, 40, 11, cudaMemcpyHostToDevice, nullptr) == cudaErrorInvalidValue);
    CHECK(cudaSetDevice(1) == cudaSuccess);
    int * z = on_device<int>(3 * 4 * 8);
    CHECK(cudaMemsetAsync(z, 0, 3 * 4 * 8 * 4, nullptr) == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess);
    cudaMemcpy3DPeerParms p = {};
    p.srcPtr = make_cudaPitchedPtr(a, 64, 64, 5); // two planes of five rows
    p.srcPos = make_cudaPos(8, 1, 0);
    p.srcDevice = 0;
    p.dstPtr = make_cudaPitchedPtr(z, 32, 32, 4);
    p.dstPos = make_cudaPos(4, 0, 1);
    p.dstDevice = 1;
    p.extent = make_cudaExtent(12, 2, 2);
    CHECK(cudaMemcpy3DPeerAsync(&p, nullptr) == cudaSuccess);
    const std::vector<int> v = fetched(z, 3 * 4 * 8);
    for (int i = 0; i < 3 * 4 * 8; ++i) {
        const int x = i % 8, y = i / 8 % 4, w = i / 32;
        const int want = x >= 1 && x < 4 && y < 2 && w >= 1 ? 20 * (5 * (w - 1) + y + 1) + x + 1 : 0;
        CHECK_EQ_I(v[(size_t) i], want);
    }
    p.srcDevice = 1;
    CHECK(cudaMemcpy3DPeerAsync(&p, nullptr) == cudaErrorInvalidValue);
    cudaFree(a);
    cudaFree(z);
    clean();
}

TEST(pointers_say_where_they_point) {
    sim_reset(2, 64 * MB, 1);
    CHECK(cudaSetDevice(1) == cudaSuccess);
    int *p = on_device<int>(4), *h = nullptr, on_stack[2];
    CHECK(cudaHostAlloc((void **) &h, 16, 0) == cudaSuccess);
    cudaPointerAttributes at;
    CHECK(cudaPointerGetAttributes(&at, p + 1) == cudaSuccess);
    CHECK(at.type == cudaMemoryTypeDevice && at.device == 1 && at.devicePointer == p + 1 && at.hostPointer == nullptr);
    CHECK(cudaPointerGetAttributes(&at, h) == cudaSuccess);
    CHECK(at.type == cudaMemoryTypeHost && at.devicePointer == h && at.hostPointer == h);
    CHECK(cudaPointerGetAttributes(&at, on_stack) == cudaSuccess && at.type == cudaMemoryTypeUnregistered);
    cudaFree(p);
    cudaFreeHost(h);
    clean();
}

TEST(a_capture_takes_only_copies_that_name_no_device) {
    for (int turn = 0; turn < 3; ++turn) {
        sim_reset(2, 64 * MB, 1);
        cudaStream_t s = nullptr;
        cudaGraph_t g = nullptr;
        cudaGraphExec_t x = nullptr;
        int * a = on_device<int>(32);
        fill(a, 32, 7);
        CHECK(cudaDeviceSynchronize() == cudaSuccess && cudaSetDevice(1) == cudaSuccess);
        int * z = on_device<int>(32);
        CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) == cudaSuccess);
        CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed) == cudaSuccess);
        cudaMemcpy3DPeerParms p = {};
        p.srcPtr = make_cudaPitchedPtr(a, 64, 64, 2);
        p.dstPtr = make_cudaPitchedPtr(z, 64, 64, 2);
        p.dstDevice = 1;
        p.extent = make_cudaExtent(32, 2, 1);
        const cudaError_t e = turn == 0   ? cudaMemcpyPeerAsync(z, 1, a, 0, 128, s)
                              : turn == 1 ? cudaMemcpy3DPeerAsync(&p, s)
                                          : cudaMemcpy2DAsync(z, 64, a, 64, 64, 2, cudaMemcpyDefault, s);
        CHECK(e == (turn < 2 ? cudaErrorStreamCaptureUnsupported : cudaSuccess));
        CHECK(cudaStreamEndCapture(s, &g) == (turn < 2 ? cudaErrorStreamCaptureInvalidated : cudaSuccess));
        if (turn == 2) {
            CHECK(cudaGraphInstantiate(&x, g, 0) == cudaSuccess && cudaGraphLaunch(x, s) == cudaSuccess);
            CHECK(cudaStreamSynchronize(s) == cudaSuccess && fetched(z, 32)[31] == 38);
            CHECK(cudaGraphExecDestroy(x) == cudaSuccess && cudaGraphDestroy(g) == cudaSuccess);
        }
        CHECK(cudaStreamDestroy(s) == cudaSuccess);
        cudaFree(a);
        cudaFree(z);
        (void) cudaGetLastError();
        clean();
    }
    sim_reset(1, 64 * MB, 1);
}

// =====================================================================================================================
// >>virtual-memory
// =====================================================================================================================
static CUresult (*mem_granularity)(size_t *, const CUmemAllocationProp *, CUmemAllocationGranularity_flags);
static CUresult (*mem_reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
static CUresult (*mem_address_free)(CUdeviceptr, size_t);
static CUresult (*mem_create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long);
static CUresult (*mem_release)(CUmemGenericAllocationHandle);
static CUresult (*mem_map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
static CUresult (*mem_unmap)(CUdeviceptr, size_t);
static CUresult (*mem_set_access)(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t);

template <typename F> static void look_up(const char * name, F * function) {
    void * p = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    CHECK(cudaGetDriverEntryPointByVersion(name, &p, 13000, cudaEnableDefault, &found) == cudaSuccess);
    CHECK_MSG(found == cudaDriverEntryPointSuccess && p != nullptr, "%s", name);
    *function = (F) p;
}

static void look_up_memory() {
    look_up("cuMemGetAllocationGranularity", &mem_granularity);
    look_up("cuMemAddressReserve", &mem_reserve);
    look_up("cuMemAddressFree", &mem_address_free);
    look_up("cuMemCreate", &mem_create);
    look_up("cuMemRelease", &mem_release);
    look_up("cuMemMap", &mem_map);
    look_up("cuMemUnmap", &mem_unmap);
    look_up("cuMemSetAccess", &mem_set_access);
}

static CUmemAllocationProp on(int device) {
    CUmemAllocationProp p = {};
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    p.location.id = device;
    return p;
}

static CUmemAccessDesc access_by(int device, CUmemAccess_flags flags) {
    CUmemAccessDesc a = {};
    a.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    a.location.id = device;
    a.flags = flags;
    return a;
}

static const size_t PAGE = 2 << 20;

TEST(unknown_functions_and_versions_are_not_found) {
    void * p = &p;
    cudaDriverEntryPointQueryResult found;
    CHECK(cudaGetDriverEntryPointByVersion("cuNothing", &p, 13000, 0, &found) == cudaSuccess);
    CHECK(p == nullptr && found == cudaDriverEntryPointSymbolNotFound);
    CHECK(cudaGetDriverEntryPointByVersion("cuMemMap", &p, 9000, 0, &found) == cudaSuccess);
    CHECK(p == nullptr && found == cudaDriverEntryPointVersionNotSufficent);
    sim_fail("cudaGetDriverEntryPointByVersion", 1, cudaErrorNotSupported);
    CHECK(cudaGetDriverEntryPointByVersion("cuMemMap", &p, 13000, 0, &found) == cudaErrorNotSupported);
    CHECK(cudaGetDriverEntryPoint("cuMemMap", &p, 0, &found) == cudaSuccess && p != nullptr);
    clean();
}

TEST(virtual_memory_grows_in_place) {
    look_up_memory();
    const CUmemAllocationProp prop = on(0);
    const CUmemAccessDesc all = access_by(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    size_t step = 0, n_free = 0, n_total = 0;
    CHECK(mem_granularity(&step, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS && step == PAGE);
    CUdeviceptr at = 0;
    CHECK(mem_reserve(&at, 64 * PAGE, 0, 0, 0) == CUDA_SUCCESS && at % PAGE == 0);
    for (int i = 0; i < 3; ++i) {
        CUmemGenericAllocationHandle h = 0;
        CHECK(mem_create(&h, (size_t) (i + 1) * PAGE, &prop, 0) == CUDA_SUCCESS);
        CHECK(mem_map(at + (CUdeviceptr) (i * (i + 1) / 2) * PAGE, (size_t) (i + 1) * PAGE, 0, h, 0) == CUDA_SUCCESS);
        CHECK(mem_release(h) == CUDA_SUCCESS); // lives while it is mapped
    }
    CHECK(cudaMemGetInfo(&n_free, &n_total) == cudaSuccess && n_free == n_total - 6 * PAGE);
    int * p = (int *) (uintptr_t) at;
    const int n = (int) (6 * PAGE / sizeof(int));
    CHECK(cudaMemsetAsync(p, 0, 4, nullptr) == cudaErrorInvalidValue); // not accessible yet
    CHECK(mem_set_access(at, 6 * PAGE, &all, 1) == CUDA_SUCCESS);
    fill(p, n, 1); // across the mappings
    std::vector<int> v(6 * PAGE / sizeof(int));
    CHECK(cudaMemcpy(v.data(), p, 6 * PAGE, cudaMemcpyDeviceToHost) == cudaSuccess);
    CHECK(v[0] == 1 && v[(size_t) n - 1] == n);
    CHECK(cudaMemsetAsync(p, 0, 6 * PAGE + 1, nullptr) == cudaErrorInvalidValue);
    CHECK_EQ_I(sim_leaks(), 4); // three mappings, one range
    CHECK(mem_unmap(at, 3 * PAGE) == CUDA_SUCCESS && mem_unmap(at + 3 * PAGE, 3 * PAGE) == CUDA_SUCCESS);
    CHECK(cudaMemGetInfo(&n_free, &n_total) == cudaSuccess && n_free == n_total);
    CHECK(mem_address_free(at, 64 * PAGE) == CUDA_SUCCESS);
    clean();
}

TEST(virtual_memory_wants_its_order) {
    look_up_memory();
    sim_reset(2, 8 * MB, 1);
    const CUmemAllocationProp prop = on(1);
    CUdeviceptr at = 0;
    CUmemGenericAllocationHandle h = 0, other = 0;
    CHECK(mem_reserve(&at, PAGE + 1, 0, 0, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(mem_reserve(&at, 4 * PAGE, 0, 0, 0) == CUDA_SUCCESS);
    CHECK(mem_create(&h, PAGE / 2, &prop, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(mem_create(&h, 5 * PAGE, &prop, 0) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(mem_create(&h, 3 * PAGE, &prop, 0) == CUDA_SUCCESS);
    CHECK(mem_create(&other, 2 * PAGE, &prop, 0) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(mem_map(at + 1, PAGE, 0, h, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(mem_map(at + 2 * PAGE, 3 * PAGE, 0, h, 0) == CUDA_ERROR_INVALID_VALUE); // beyond the range
    CHECK(mem_map(at, 3 * PAGE, 0, 77, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(mem_map(at, 3 * PAGE, 0, h, 0) == CUDA_SUCCESS);
    CHECK(mem_map(at + 2 * PAGE, PAGE, 0, h, 0) == CUDA_ERROR_ALREADY_MAPPED);
    CHECK_EQ_I(sim_violations(), 0);
    CHECK(mem_address_free(at, 4 * PAGE) == CUDA_ERROR_INVALID_VALUE); // mapped
    CHECK(mem_unmap(at, PAGE) == CUDA_ERROR_INVALID_VALUE);            // a part
    CHECK_EQ_I(sim_violations(), 2);
    CHECK(mem_release(h) == CUDA_SUCCESS && mem_release(h) == CUDA_ERROR_INVALID_VALUE);
    CHECK(mem_unmap(at, 3 * PAGE) == CUDA_SUCCESS && mem_address_free(at, 4 * PAGE) == CUDA_SUCCESS);
    sim_fail("cuMemCreate", 1, cudaErrorMemoryAllocation);
    CHECK(mem_create(&h, PAGE, &prop, 0) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(cudaGetLastError() == cudaSuccess); // the driver's errors are not kept
    sim_reset(1, 64 * MB, 1);
    clean();
}

TEST(virtual_memory_is_usable_by_whom_it_was_said) {
    look_up_memory();
    sim_reset(2, 64 * MB, 1);
    const CUmemAllocationProp prop = on(0);
    CUdeviceptr at = 0;
    CUmemGenericAllocationHandle h = 0;
    CHECK(mem_reserve(&at, PAGE, 0, 0, 0) == CUDA_SUCCESS && mem_create(&h, PAGE, &prop, 0) == CUDA_SUCCESS);
    CHECK(mem_map(at, PAGE, 0, h, 0) == CUDA_SUCCESS && mem_release(h) == CUDA_SUCCESS);
    int * p = (int *) (uintptr_t) at;
    const CUmemAccessDesc by[2] = { access_by(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
        access_by(1, CU_MEM_ACCESS_FLAGS_PROT_READ) };
    CHECK(mem_set_access(at, PAGE, by, 2) == CUDA_SUCCESS);
    fill(p, 64, 5);
    CHECK(cudaDeviceSynchronize() == cudaSuccess && cudaSetDevice(1) == cudaSuccess);
    int * z = on_device<int>(64);
    CHECK(launch(k_read, dim3(1), dim3(64), 0, nullptr, z, (const int *) p) == cudaSuccess);
    CHECK_EQ_I(fetched(z, 64)[63], 68);
    const CUmemAccessDesc closed = access_by(1, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    CHECK(mem_set_access(at, PAGE, &closed, 1) == CUDA_SUCCESS);
    CHECK(cudaMemcpyAsync(z, p, 128, cudaMemcpyDefault, nullptr) == cudaErrorInvalidValue);
    CHECK(cudaMemcpyPeerAsync(z, 1, p, 0, 128, nullptr) == cudaSuccess); // wants no access
    CHECK(mem_set_access(at, PAGE, by, 2) == CUDA_SUCCESS);
    CHECK(cudaMemcpyAsync(z, p, 128, cudaMemcpyDefault, nullptr) == cudaSuccess &&
          cudaDeviceSynchronize() == cudaSuccess);
    CHECK_EQ_I(sim_violations(), 0);
    (void) launch(k_fill, dim3(1), dim3(64), 0, nullptr, p, 64, 6); // may only read
    CHECK(cudaDeviceSynchronize() == cudaErrorIllegalAddress);
    CHECK_EQ_I(sim_violations(), 1);
    cudaFree(z);
    CHECK(mem_unmap(at, PAGE) == CUDA_SUCCESS && mem_address_free(at, PAGE) == CUDA_SUCCESS);
    sim_reset(1, 64 * MB, 1);
    clean();
}

// =====================================================================================================================
// >>contexts
// =====================================================================================================================
TEST(contexts_come_and_go) {
    CUresult (*get)(CUcontext *), (*set)(CUcontext), (*push)(CUcontext), (*pop)(CUcontext *), (*destroy)(CUcontext);
    CUresult (*create)(CUcontext *, CUctxCreateParams *, unsigned, CUdevice), (*get_device)(CUdevice *);
    CUresult (*retain)(CUcontext *, CUdevice), (*release)(CUdevice), (*of_stream)(CUstream, CUcontext *);
    look_up("cuCtxGetCurrent", &get);
    look_up("cuCtxSetCurrent", &set);
    look_up("cuCtxPushCurrent", &push);
    look_up("cuCtxPopCurrent", &pop);
    look_up("cuCtxCreate", &create);
    look_up("cuCtxDestroy", &destroy);
    look_up("cuCtxGetDevice", &get_device);
    look_up("cuDevicePrimaryCtxRetain", &retain);
    look_up("cuDevicePrimaryCtxRelease", &release);
    look_up("cuStreamGetCtx", &of_stream);
    sim_reset(2, 64 * MB, 1);
    CUcontext now = (CUcontext) 1, primary = nullptr, own = nullptr;
    int device = -1, n = 0;
    CHECK(get(&now) == CUDA_SUCCESS && now == nullptr && get_device(&device) == CUDA_ERROR_INVALID_CONTEXT);
    CHECK(cudaGetDeviceCount(&n) == cudaSuccess && n == 2);
    CHECK(!sim_has_context(0) && !sim_has_context(1));
    int * p = on_device<int>(4);
    CHECK(sim_has_context(0) && !sim_has_context(1));
    CHECK(get(&primary) == CUDA_SUCCESS && primary != nullptr);
    CHECK(retain(&now, 0) == CUDA_SUCCESS && now == primary && sim_retained() == 1);
    CHECK_EQ_I(sim_leaks(), 1);
    CHECK(release(0) == CUDA_SUCCESS && release(0) == CUDA_ERROR_INVALID_CONTEXT);

    CHECK(create(&own, nullptr, 0, 1) == CUDA_SUCCESS && get(&now) == CUDA_SUCCESS && now == own);
    CHECK(cudaGetDevice(&device) == cudaSuccess && device == 1);
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    CHECK(of_stream(stream, &now) == CUDA_SUCCESS && now == own);
    int * z = on_device<int>(64);
    CHECK(launch(k_fill, dim3(1), dim3(64), 0, stream, z, 64, 1) == cudaSuccess);
    CHECK(set(nullptr) == CUDA_SUCCESS && cudaSetDevice(1) == cudaSuccess); // the primary one: not the stream's
    CHECK(launch(k_fill, dim3(1), dim3(64), 0, stream, z, 64, 1) == cudaErrorInvalidResourceHandle);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess && push(own) == CUDA_SUCCESS);
    CHECK(launch(k_fill, dim3(1), dim3(64), 0, stream, z, 64, 1) == cudaSuccess);
    CHECK(pop(&now) == CUDA_SUCCESS && now == own);
    CHECK(destroy(own) == CUDA_SUCCESS && destroy(own) == CUDA_ERROR_INVALID_CONTEXT); // with stream and memory
    CHECK(set(primary) == CUDA_SUCCESS && cudaGetDevice(&device) == cudaSuccess && device == 0);
    CHECK(cudaFree(p) == cudaSuccess);
    (void) cudaGetLastError();
    clean();
}

TEST(devices_are_found_by_attribute_and_address) {
    sim_reset(3, 64 * MB, 1);
    int v = 0, index = -1;
    CHECK(cudaDeviceGetAttribute(&v, cudaDevAttrComputeCapabilityMajor, 2) == cudaSuccess && v == GCUDA_SIM_CC / 100);
    CHECK(cudaDeviceGetAttribute(&v, cudaDevAttrWarpSize, 3) == cudaErrorInvalidDevice);
    char text[20];
    sim_pci(1, 2, 0x41, 3);
    CHECK(cudaDeviceGetPCIBusId(text, sizeof text, 1) == cudaSuccess && strcmp(text, "0002:41:03.0") == 0);
    CHECK(cudaDeviceGetPCIBusId(text, 5, 1) == cudaErrorInvalidValue);
    CHECK(cudaDeviceGetByPCIBusId(&index, "0002:41:03.0") == cudaSuccess && index == 1);
    CHECK(cudaDeviceGetByPCIBusId(&index, "03:00.0") == cudaSuccess && index == 2);
    CHECK(cudaDeviceGetByPCIBusId(&index, "13:00.0") == cudaErrorInvalidDevice);
    cudaDeviceProp prop;
    sim_identity(2, "0123456789abcde", "LUID678", 1);
    CHECK(cudaGetDeviceProperties(&prop, 2) == cudaSuccess);
    CHECK(memcmp(prop.uuid.bytes, "0123456789abcde", 16) == 0 && memcmp(prop.luid, "LUID678", 8) == 0);
    CHECK_EQ_I(prop.luidDeviceNodeMask, 1);
    sim_attribute(0, cudaDevAttrMaxSharedMemoryPerBlockOptin, 48 * 1024);
    CHECK(
        cudaFuncSetAttribute(k_read, cudaFuncAttributeMaxDynamicSharedMemorySize, 50 * 1024) == cudaErrorInvalidValue);
    CHECK(cudaGetDeviceProperties(&prop, 0) == cudaSuccess && prop.sharedMemPerBlockOptin == 48 * 1024);
    cudaFuncAttributes about;
    CHECK(cudaFuncGetAttributes(&about, k_read) == cudaSuccess && about.maxThreadsPerBlock == 1024);
    CHECK(!sim_has_context(2));
    clean();
}

// =====================================================================================================================
// >>clock
// =====================================================================================================================
TEST(events_measure_the_simulated_clock) {
    for (uint64_t seed = 0; seed < n_seeds(10); ++seed) {
        sim_reset(1, 64 * MB, seed);
        sim_time_per_launch(250000);
        cudaStream_t a, z;
        CHECK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking) == cudaSuccess &&
              cudaStreamCreateWithFlags(&z, cudaStreamNonBlocking) == cudaSuccess);
        cudaEvent_t e[4];
        for (cudaEvent_t & event : e) { CHECK(cudaEventCreateWithFlags(&event, cudaEventDefault) == cudaSuccess); }
        float ms = -1.0f;
        int * p = on_device<int>(64);
        CHECK(cudaEventElapsedTime(&ms, e[0], e[1]) == cudaErrorInvalidResourceHandle); // never recorded
        CHECK(cudaEventRecord(e[0], a) == cudaSuccess);
        for (int i = 0; i < 4; ++i) { CHECK(launch(k_fill, dim3(1), dim3(64), 0, a, p, 64, i) == cudaSuccess); }
        CHECK(cudaEventRecord(e[1], a) == cudaSuccess && cudaStreamWaitEvent(z, e[1], 0) == cudaSuccess);
        CHECK(launch(k_fill, dim3(1), dim3(64), 0, z, p, 64, 9) == cudaSuccess);
        CHECK(cudaEventRecord(e[2], z) == cudaSuccess && cudaEventSynchronize(e[2]) == cudaSuccess);
        CHECK(cudaEventElapsedTime(&ms, e[0], e[1]) == cudaSuccess && ms == 1.0f);
        CHECK(cudaEventElapsedTime(&ms, e[0], e[2]) == cudaSuccess && ms == 1.25f);
        CHECK(cudaEventElapsedTime(&ms, e[2], e[1]) == cudaSuccess && ms == -0.25f);
        CHECK_EQ_I(sim_time(), 1250000);
        cudaEvent_t plain;
        CHECK(cudaEventCreateWithFlags(&plain, cudaEventDisableTiming) == cudaSuccess);
        CHECK(cudaEventRecord(plain, a) == cudaSuccess && cudaEventSynchronize(plain) == cudaSuccess);
        CHECK(cudaEventElapsedTime(&ms, e[0], plain) == cudaErrorInvalidResourceHandle);
        for (cudaEvent_t event : { e[0], e[1], e[2], e[3], plain }) { cudaEventDestroy(event); }
        cudaStreamDestroy(a);
        cudaStreamDestroy(z);
        cudaFree(p);
    }
    (void) cudaGetLastError();
    clean();
}

static void count_up(void * user) { ++*(int *) user; }
static void call_cuda(void * user) { *(cudaError_t *) user = cudaMemsetAsync(nullptr, 0, 0, nullptr); }
TEST(kernels_are_announced_and_host_functions_make_no_calls) {
    int n = 0, *p = on_device<int>(64);
    sim_each_kernel(count_up, &n);
    for (int i = 0; i < 5; ++i) { fill(p, 64, i); }
    CHECK(cudaDeviceSynchronize() == cudaSuccess && n == 5);
    cudaError_t from_there = cudaSuccess;
    CHECK(cudaLaunchHostFunc(nullptr, call_cuda, &from_there) == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess);
    CHECK(from_there == cudaErrorNotPermitted);
    CHECK_EQ_I(sim_violations(), 1);
    cudaFree(p);
    sim_reset(1, 64 * MB, 1);
    clean();
}

TEST(streams_know_their_priority_and_flags) {
    int least = 1, greatest = 1, v = 1;
    unsigned flags = 7;
    CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest) == cudaSuccess && least == 0 && greatest < 0);
    cudaStream_t s;
    CHECK(cudaStreamCreateWithPriority(&s, cudaStreamNonBlocking, -100) == cudaSuccess);
    CHECK(cudaStreamGetPriority(s, &v) == cudaSuccess && v == greatest);
    CHECK(cudaStreamGetFlags(s, &flags) == cudaSuccess && flags == cudaStreamNonBlocking);
    CHECK(cudaStreamGetDevice(s, &v) == cudaSuccess && v == 0);
    cudaStreamDestroy(s);
    clean();
}

// =====================================================================================================================
// >>external
// =====================================================================================================================
TEST(memory_of_another_interface) {
    const size_t size = 3 * 4096;
    const int fd = sim_memory_fd(size);
    int * there = (int *) mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(fd >= 0 && there != MAP_FAILED);
    cudaExternalMemoryHandleDesc d = {};
    cudaExternalMemory_t m = nullptr;
    d.type = cudaExternalMemoryHandleTypeOpaqueWin32;
    d.size = size;
    CHECK(cudaImportExternalMemory(&m, &d) == cudaErrorNotSupported);
    d.type = cudaExternalMemoryHandleTypeOpaqueFd;
    d.handle.fd = dup(fd);
    d.size = 2 * size;
    CHECK(cudaImportExternalMemory(&m, &d) == cudaErrorInvalidValue && m == nullptr);
    d.size = size;
    CHECK(cudaImportExternalMemory(&m, &d) == cudaSuccess);
    cudaExternalMemoryBufferDesc b = {};
    b.offset = 256;
    b.size = 8192;
    int * p = nullptr;
    CHECK(cudaExternalMemoryGetMappedBuffer((void **) &p, m, &b) == cudaSuccess);
    there[64] = 17;
    CHECK_EQ_I(fetched(p, 1)[0], 17);
    fill(p, 2048, 100);
    CHECK(cudaDeviceSynchronize() == cudaSuccess && there[64 + 2047] == 2147);
    CHECK_EQ_I(sim_leaks(), 2);
    CHECK(cudaDestroyExternalMemory(m) == cudaSuccess && cudaFree(p) == cudaSuccess);
    CHECK(cudaDestroyExternalMemory(m) == cudaErrorInvalidResourceHandle);
    CHECK_EQ_I(sim_violations(), 1);
    munmap(there, size);
    close(fd);
    sim_reset(1, 64 * MB, 1);
    clean();
}

static void * signal_later(void * user) {
    usleep(20000);
    sim_semaphore_signal(*(int *) user, 5);
    return nullptr;
}

TEST(semaphores_of_another_interface) {
    for (uint64_t seed = 0; seed < n_seeds(5); ++seed) {
        sim_reset(1, 64 * MB, seed);
        int fd = sim_semaphore_fd(2);
        cudaExternalSemaphoreHandleDesc d = {};
        d.type = cudaExternalSemaphoreHandleTypeTimelineSemaphoreFd;
        d.handle.fd = dup(fd);
        cudaExternalSemaphore_t x = nullptr;
        CHECK(cudaImportExternalSemaphore(&x, &d) == cudaSuccess);
        cudaStream_t s;
        CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) == cudaSuccess);
        cudaExternalSemaphoreWaitParams wait = {};
        cudaExternalSemaphoreSignalParams done = {};
        wait.params.fence.value = 5;
        done.params.fence.value = 6;
        int * p = on_device<int>(64);
        CHECK(cudaMemsetAsync(p, 0, 256, s) == cudaSuccess);
        CHECK(cudaWaitExternalSemaphoresAsync(&x, &wait, 1, s) == cudaSuccess);
        CHECK(launch(k_fill, dim3(1), dim3(64), 0, s, p, 64, 1) == cudaSuccess);
        CHECK(cudaSignalExternalSemaphoresAsync(&x, &done, 1, s) == cudaSuccess);
        for (int i = 0; i < 50; ++i) { CHECK(cudaStreamQuery(s) == cudaErrorNotReady); }
        CHECK_EQ_I(sim_semaphore_value(fd), 2);
        pthread_t other;
        CHECK(pthread_create(&other, nullptr, signal_later, &fd) == 0);
        CHECK(cudaStreamSynchronize(s) == cudaSuccess);
        CHECK(pthread_join(other, nullptr) == 0);
        CHECK_EQ_I(sim_semaphore_value(fd), 6);
        CHECK_EQ_I(fetched(p, 64)[5], 6);
        CHECK(cudaDestroyExternalSemaphore(x) == cudaSuccess);
        cudaStreamDestroy(s);
        cudaFree(p);
        close(fd);
    }
    (void) cudaGetLastError();
    clean();
}
