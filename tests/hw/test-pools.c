// Scratch pools, budgets and allocators on a real device: what its driver makes of virtual memory management, trimming,
// memory that runs out, managed and registered memory, cuBLAS's workspace. Has a private copy of the implementation,
// for pools without an operation around them. Also runs on the simulated device (make build/sim/test-pools).
#define GCUDA_STATIC
#define GCUDA_IMPLEMENTATION
#include "gcuda.h"
#include "test.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#define MIB ((size_t) 1 << 20)

static struct gcudai_cuda * backend_of(enum gcuda_cuda_pool kind, size_t reserve, size_t budget) {
    struct gcuda_cuda_params p;
    memset(&p, 0, sizeof p);
    p.pool = kind;
    p.pool_reserve = reserve;
    p.memory_budget = budget;
    return (struct gcudai_cuda *) gcuda_backend_cuda_init_params(&p);
}

static gcuda_status take(struct gcudai_cuda * cu, size_t size, void ** ptr) {
    return gcudai_cuda_pool_acquire(&cu->pool, cu->stream, size, "test", ptr);
}
static void give(struct gcudai_cuda * cu, void * ptr) { gcudai_cuda_pool_release(&cu->pool, ptr); }

static size_t scratch_of(struct gcudai_cuda * cu) {
    struct gcuda_cuda_stats s;
    memset(&s, 0, sizeof s);
    CHECK_OK(gcuda_backend_cuda_get_stats(&cu->backend, &s));
    return s.by[GCUDA_CUDA_PURPOSE_SCRATCH].reserved;
}

static size_t free_now(void) {
    size_t n_free = 0, n_total = 0;
    CHECK_OK(gcuda_backend_cuda_get_device_memory(0, &n_free, &n_total));
    return n_free;
}

static bool ends_are(struct gcudai_cuda * cu, const char * ptr, size_t size, unsigned char value) {
    unsigned char ends[2] = { 0, 0 };
    return cudaStreamSynchronize(cu->stream) == cudaSuccess &&
           cudaMemcpy(&ends[0], ptr, 1, cudaMemcpyDeviceToHost) == cudaSuccess &&
           cudaMemcpy(&ends[1], ptr + size - 1, 1, cudaMemcpyDeviceToHost) == cudaSuccess && ends[0] == value &&
           ends[1] == value;
}

// ---- pools ----

enum { N_BLOCKS = 12 };

static void blocks_of(struct gcudai_cuda * cu, bool is_vmm) {
    void *first[N_BLOCKS], *again[N_BLOCKS];
    const size_t before = free_now();
    for (int i = 0; i < N_BLOCKS; ++i) {
        const size_t size = (size_t) (i + 1) * 500001;
        CHECK_OK(take(cu, size, &first[i]));
        CHECK(cudaMemsetAsync(first[i], i + 1, size, cu->stream) == cudaSuccess);
    }
    for (int i = 0; i < N_BLOCKS; ++i) {
        CHECK(ends_are(cu, (const char *) first[i], (size_t) (i + 1) * 500001, (unsigned char) (i + 1)));
    }
    for (int i = 0; i < N_BLOCKS; ++i) { give(cu, first[(5 * i + 3) % N_BLOCKS]); } // in no order
    const size_t reserved = scratch_of(cu);
    CHECK_OK(take(cu, 500001, &again[0]));
    CHECK(scratch_of(cu) == reserved); // as before
    give(cu, again[0]);
    CHECK_OK(gcuda_backend_cuda_trim(&cu->backend));
    CHECK(scratch_of(cu) == 0 && free_now() + 4 * MIB >= before); // 4 MiB: the driver's own
    for (int i = 0; i < N_BLOCKS && is_vmm; ++i) {
        CHECK_OK(take(cu, (size_t) (i + 1) * 500001, &again[i]));
        CHECK(again[i] == first[i]);
    }
}

TEST(pools_of_both_kinds) {
    struct gcudai_cuda * cu = backend_of(GCUDA_CUDA_POOL_BEST_FIT, 0, 0);
    REQUIRE(cu != NULL);
    blocks_of(cu, false);
    gcuda_backend_free(&cu->backend);
    for (int k = 0; k < 2; ++k) {
        cu = backend_of(GCUDA_CUDA_POOL_AUTO, k ? 4 * MIB : 0, 0); // one range, and a chain of them
        REQUIRE(cu != NULL);
        blocks_of(cu, cu->pool.granularity > 0);
        CHECK(cu->pool.granularity == 0 || (cu->pool.n_ranges > 1) == (k == 1));
        gcuda_backend_free(&cu->backend);
    }
}

TEST(a_pool_that_finds_no_memory_goes_on) {
    for (int k = 1; k <= 2; ++k) {
        struct gcudai_cuda * cu = backend_of(k == 1 ? GCUDA_CUDA_POOL_AUTO : GCUDA_CUDA_POOL_BEST_FIT, 0, 0);
        void *p = NULL, *q = NULL;
        REQUIRE(cu != NULL);
        CHECK_OK(take(cu, 8 * MIB, &p));
        CHECK(take(cu, (size_t) 1 << 44, &q) == GCUDA_STATUS_ALLOC_FAILED && q == NULL);
        CHECK_HAS(gcuda_last_error(), "17592186044416 bytes wanted");
        give(cu, p);
        const size_t most = free_now() / 8 * 7;
        CHECK_OK(take(cu, most / 2, &p)); // then a larger one, for which the first has to go or to grow
        give(cu, p);
        CHECK_OK(take(cu, most, &p));
        CHECK(cudaMemsetAsync((char *) p + most - 1, 9, 1, cu->stream) == cudaSuccess);
        CHECK(cudaStreamSynchronize(cu->stream) == cudaSuccess);
        gcuda_backend_free(&cu->backend);
    }
}

TEST(a_budget_in_steps_and_in_blocks) {
    struct gcudai_cuda * cu = backend_of(GCUDA_CUDA_POOL_AUTO, 0, 9 * MIB);
    void *p = NULL, *q = NULL, *r = NULL;
    REQUIRE(cu != NULL);
    CHECK_OK(take(cu, 7 * MIB, &p));
    CHECK_OK(take(cu, MIB / 2, &q));
    CHECK(take(cu, 3 * MIB, &r) == GCUDA_STATUS_ALLOC_FAILED);
    CHECK_HAS(gcuda_last_error(), "budget of the backend is 9437184");
    CHECK(scratch_of(cu) <= 9 * MIB);
    gcuda_backend_free(&cu->backend);
}

// ---- the driver ----

TEST(functions_of_the_driver_are_found) {
    gcuda_shutdown();
    CHECK(gcuda_backend_cuda_get_device_count() > 0);
#if !defined(GCUDAI_SIM) // which has what it needs
#define X(name, since, args) \
    CHECK_MSG(gcudai_cuda_driver.name != NULL || gcudai_cuda_driver.version < 12050, "the driver has no %s", #name);
    GCUDAI_CUDA_DRIVER_FUNCTIONS(X)
#undef X
#endif
    unsigned flags = 0;
    int before = -1, after = -2;
    CHECK(gcudai_cuda_driver.cuDevicePrimaryCtxGetState(0, &flags, &before) == 0);
    gcuda_shutdown();
    CHECK(gcuda_backend_cuda_get_device_count() > 0);
    CHECK(gcudai_cuda_driver.cuDevicePrimaryCtxGetState(0, &flags, &after) == 0 && after == before);
}

// ---- other memory ----

TEST(managed_and_registered_memory) {
    struct gcuda_cuda_memory_params memory;
    struct cudaPointerAttributes what;
    memset(&memory, 0, sizeof memory);
    memory.unified = GCUDA_CUDA_ON;
    CHECK_OK(gcuda_backend_cuda_set_memory(&memory));
    gcuda_backend_buffer_t buffer = gcuda_backend_buft_alloc_buffer(gcuda_backend_cuda_buffer_type(0), 100000);
    REQUIRE(buffer != NULL);
    CHECK_OK(gcuda_backend_buffer_clear(buffer, 3));
    CHECK(cudaPointerGetAttributes(&what, gcuda_backend_buffer_get_base(buffer)) == cudaSuccess);
#if !defined(GCUDAI_SIM) // which has no paging
    CHECK_EQ_I(what.type, cudaMemoryTypeManaged);
#endif
    gcuda_backend_buffer_free(buffer);
    CHECK_OK(gcuda_backend_cuda_set_memory(NULL));
    const int file = open("/proc/self/exe", O_RDONLY);
    void * map = mmap(NULL, 65536, PROT_READ, MAP_PRIVATE, file, 0);
    REQUIRE(file >= 0 && map != MAP_FAILED);
    const gcuda_status st = gcuda_backend_cuda_register_host_buffer(map, 65536); // not every system can
    CHECK(st == GCUDA_STATUS_SUCCESS || strstr(gcuda_last_error(), "cudaHostRegister") != NULL);
    if (st == GCUDA_STATUS_SUCCESS) { CHECK_OK(gcuda_backend_cuda_unregister_host_buffer(map)); }
    munmap(map, 65536);
    close(file);
}

TEST(cublas_takes_the_workspace_it_is_given) {
    enum { N = 512 };
    struct gcudai_cuda * cu = backend_of(GCUDA_CUDA_POOL_AUTO, 0, 0);
    const float one = 1.0f, zero = 0.0f;
    void * x = NULL;
    REQUIRE(cu != NULL);
    for (int k = 0; k < 2 && cu->cublas.handle != NULL; ++k) { // with its workspace, and without any
        struct gcuda_cuda_stats s;
        if (x == NULL) { CHECK_OK(take(cu, 3 * N * N * sizeof(float), &x)); }
        float * f = (float *) x;
        CHECK(cudaMemsetAsync(x, 0, 3 * N * N * sizeof(float), cu->stream) == cudaSuccess);
        CHECK_OK(gcudai_cublas_ready(cu));
        CHECK_OK(gcuda_backend_cuda_get_stats(&cu->backend, &s));
        CHECK((s.by[GCUDA_CUDA_PURPOSE_WORKSPACE].reserved >= 4 * MIB) == (k == 0));
        const int status = cu->cublas.cublasGemmStridedBatchedEx(cu->cublas.handle, GCUDAI_CUBLAS_OP_T,
            GCUDAI_CUBLAS_OP_N, N, N, N, &one, f, GCUDAI_CUDA_R_32F, N, 0, f + N * N, GCUDAI_CUDA_R_32F, N, 0, &zero,
            f + 2 * N * N, GCUDAI_CUDA_R_32F, N, 0, 1, GCUDAI_CUBLAS_COMPUTE_32F_FAST_TF32, GCUDAI_CUBLAS_DEFAULT);
        CHECK_MSG(status == 0, "cublasGemmStridedBatchedEx: %s", gcudai_cublas_status_name(status));
        CHECK(cudaStreamSynchronize(cu->stream) == cudaSuccess);
        gcudai_cuda_mem_free(&cu->cublas.workspace);
    }
    gcuda_backend_free(&cu->backend);
}
