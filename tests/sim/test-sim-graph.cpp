// Capture into graphs on the simulated device: what is captured, forks and joins, what capture forbids, updates,
// launches.
#include "sim-launch.h"

#include <pthread.h>

static __global__ void k_set(int * out, int n, int value) {
    for (int i = (int) threadIdx.x; i < n; i += (int) blockDim.x) { out[i] = value; }
}
static __global__ void k_add(int * out, const int * a, const int * z, int n) {
    for (int i = (int) threadIdx.x; i < n; i += (int) blockDim.x) { out[i] = a[i] + z[i]; }
}
struct big_args {
    int * out;
    int n, step;
    double pad[10];
};
static __global__ void k_count(const big_args p) {
    for (int i = (int) threadIdx.x; i < p.n; i += (int) blockDim.x) { p.out[i] += p.step; }
}

enum { N = 100 };

struct place {
    int *a, *z, *sum;
    cudaStream_t s, t;
    cudaEvent_t fork, join;
};

static place make_place() {
    place p = { on_device<int>(N), on_device<int>(N), on_device<int>(N), nullptr, nullptr, nullptr, nullptr };
    CHECK(cudaStreamCreateWithFlags(&p.s, cudaStreamNonBlocking) == cudaSuccess);
    CHECK(cudaStreamCreateWithFlags(&p.t, cudaStreamNonBlocking) == cudaSuccess);
    CHECK(cudaEventCreateWithFlags(&p.fork, cudaEventDisableTiming) == cudaSuccess);
    CHECK(cudaEventCreateWithFlags(&p.join, cudaEventDisableTiming) == cudaSuccess);
    return p;
}

static void end(const place & p) {
    cudaFree(p.a), cudaFree(p.z), cudaFree(p.sum);
    cudaStreamDestroy(p.s), cudaStreamDestroy(p.t);
    cudaEventDestroy(p.fork), cudaEventDestroy(p.join);
    (void) cudaGetLastError();
}

static void capture_sum(const place & p, int x, int y, bool with_join = true) {
    CHECK(launch(k_set, dim3(1), dim3(32), 0, p.s, p.a, (int) N, x) == cudaSuccess);
    CHECK(cudaEventRecord(p.fork, p.s) == cudaSuccess && cudaStreamWaitEvent(p.t, p.fork, 0) == cudaSuccess);
    CHECK(launch(k_set, dim3(1), dim3(32), 0, p.t, p.z, (int) N, y) == cudaSuccess);
    CHECK(cudaEventRecord(p.join, p.t) == cudaSuccess);
    if (with_join) { CHECK(cudaStreamWaitEvent(p.s, p.join, 0) == cudaSuccess); }
    CHECK(
        launch(k_add, dim3(1), dim3(32), 0, p.s, p.sum, (const int *) p.a, (const int *) p.z, (int) N) == cudaSuccess);
}

TEST(a_fork_and_a_join_are_replayed) {
    for (uint64_t seed = 0; seed < n_seeds(20); ++seed) {
        sim_reset(1, 64 * MB, seed);
        place p = make_place();
        cudaGraph_t g = nullptr;
        cudaGraphExec_t x = nullptr;
        cudaStreamCaptureStatus status = cudaStreamCaptureStatusActive;
        CHECK(cudaStreamIsCapturing(p.s, &status) == cudaSuccess && status == cudaStreamCaptureStatusNone);
        CHECK(cudaStreamBeginCapture(p.s, cudaStreamCaptureModeRelaxed) == cudaSuccess);
        CHECK(cudaStreamBeginCapture(p.s, cudaStreamCaptureModeRelaxed) == cudaErrorIllegalState);
        capture_sum(p, 3, 4);
        CHECK(cudaStreamIsCapturing(p.t, &status) == cudaSuccess && status == cudaStreamCaptureStatusActive);
        CHECK(sim_leaks() > 0 && cudaStreamEndCapture(p.s, &g) == cudaSuccess && g != nullptr);
        CHECK(cudaStreamIsCapturing(p.t, &status) == cudaSuccess && status == cudaStreamCaptureStatusNone);
        size_t n = 0;
        CHECK(cudaGraphGetNodes(g, nullptr, &n) == cudaSuccess && n == 3);
        cudaGraphNode_t nodes[3], before[3];
        CHECK(cudaGraphGetNodes(g, nodes, &n) == cudaSuccess);
        // as captured: the first, the second after it, the sum after both
        for (size_t i = 0, n_before = 3; i < 3; ++i, n_before = 3) {
            CHECK(cudaGraphNodeGetDependencies(nodes[i], before, nullptr, &n_before) == cudaSuccess && n_before == i);
            CHECK(i == 0 || before[0] == nodes[0] || before[1] == nodes[0]);
            CHECK(before[2] == nullptr &&
                  cudaGraphNodeGetDependencies(nodes[i], nullptr, nullptr, &n_before) == cudaSuccess && n_before == i);
        }
        CHECK(cudaGraphInstantiate(&x, g, 0) == cudaSuccess && cudaGraphDestroy(g) == cudaSuccess);
        CHECK_EQ_I(fetched(p.sum, N)[0], -1); // nothing has run yet
        for (int i = 0; i < 5; ++i) { CHECK(cudaGraphLaunch(x, i % 2 ? p.t : p.s) == cudaSuccess); }
        CHECK(cudaGraphLaunch(x, p.s) == cudaSuccess && cudaGraphExecDestroy(x) == cudaSuccess);
        CHECK(cudaStreamSynchronize(p.s) == cudaSuccess);
        CHECK(fetched(p.sum, N)[N - 1] == 7);
        CHECK_EQ_I(sim_counts("kernel"), 18);
        end(p);
    }
    clean();
}

// As a missing event between streams: without the join, some order gives a wrong sum.
TEST(a_missing_dependency_in_a_graph_shows) {
    int n_wrong = 0;
    for (uint64_t seed = 1; seed < 40; ++seed) {
        sim_reset(1, 64 * MB, seed);
        place p = make_place();
        cudaGraph_t g = nullptr;
        cudaGraphExec_t x = nullptr;
        CHECK(cudaStreamBeginCapture(p.s, cudaStreamCaptureModeRelaxed) == cudaSuccess);
        capture_sum(p, 3, 4, false);
        CHECK(cudaStreamWaitEvent(p.s, p.join, 0) == cudaSuccess); // too late
        CHECK(cudaStreamEndCapture(p.s, &g) == cudaSuccess && cudaGraphInstantiate(&x, g, 0) == cudaSuccess);
        CHECK(cudaGraphLaunch(x, p.s) == cudaSuccess && cudaStreamSynchronize(p.s) == cudaSuccess);
        n_wrong += fetched(p.sum, N)[0] != 7;
        CHECK(cudaGraphDestroy(g) == cudaSuccess && cudaGraphExecDestroy(x) == cudaSuccess);
        end(p);
    }
    CHECK_MSG(n_wrong > 5 && n_wrong < 39, "%d of 39 orders are wrong", n_wrong);
    clean();
}

TEST(launches_of_one_graph_follow_each_other) {
    for (uint64_t seed = 0; seed < n_seeds(20); ++seed) {
        sim_reset(1, 64 * MB, seed);
        place p = make_place();
        cudaGraph_t g = nullptr;
        cudaGraphExec_t x = nullptr;
        big_args args = { p.a, N, 5, {} };
        CHECK(
            cudaMemsetAsync(p.a, 0, N * sizeof(int), p.s) == cudaSuccess && cudaStreamSynchronize(p.s) == cudaSuccess);
        CHECK(cudaStreamBeginCapture(p.s, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
        CHECK(launch(k_count, dim3(1), dim3(32), 0, p.s, args) == cudaSuccess);
        args.step = 100; // was copied
        CHECK(cudaStreamEndCapture(p.s, &g) == cudaSuccess && cudaGraphInstantiate(&x, g, 0) == cudaSuccess);
        for (int i = 0; i < 3; ++i) {
            CHECK(cudaGraphLaunch(x, p.s) == cudaSuccess && cudaGraphLaunch(x, p.t) == cudaSuccess);
        }
        cudaGraphNode_t node = nullptr;
        size_t n = 1;
        cudaKernelNodeParams params;
        cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
        CHECK(cudaGraphGetNodes(g, &node, &n) == cudaSuccess && n == 1);
        CHECK(cudaGraphNodeGetType(node, &type) == cudaSuccess && type == cudaGraphNodeTypeKernel);
        CHECK(cudaGraphKernelNodeGetParams(node, &params) == cudaSuccess && params.func == (void *) k_count);
        CHECK(params.blockDim.x == 32 && ((big_args *) params.kernelParams[0])->step == 5);
        CHECK(cudaStreamSynchronize(p.s) == cudaSuccess && cudaStreamSynchronize(p.t) == cudaSuccess);
        CHECK_EQ_I(fetched(p.a, N)[N - 1], 6 * 5);
        CHECK(cudaGraphDestroy(g) == cudaSuccess && cudaGraphExecDestroy(x) == cudaSuccess);
        end(p);
    }
    clean();
}

TEST(an_update_needs_the_same_shape) {
    place p = make_place();
    cudaGraph_t g[4];
    for (int i = 0; i < 4; ++i) {
        CHECK(cudaStreamBeginCapture(p.s, cudaStreamCaptureModeRelaxed) == cudaSuccess);
        if (i < 2) { capture_sum(p, 10 * i, 1); }
        if (i == 2) { CHECK(launch(k_set, dim3(1), dim3(32), 0, p.s, p.a, (int) N, 1) == cudaSuccess); }
        if (i == 3) { CHECK(cudaMemsetAsync(p.a, 0, 4, p.s) == cudaSuccess); }
        CHECK(cudaStreamEndCapture(p.s, &g[i]) == cudaSuccess);
    }
    cudaGraphExec_t x = nullptr;
    cudaGraphExecUpdateResultInfo info;
    CHECK(cudaGraphInstantiate(&x, g[0], 0) == cudaSuccess);
    CHECK(cudaGraphExecUpdate(x, g[2], &info) == cudaErrorGraphExecUpdateFailure &&
          info.result == cudaGraphExecUpdateErrorTopologyChanged);
    CHECK(cudaGraphExecUpdate(x, g[3], &info) == cudaErrorGraphExecUpdateFailure &&
          info.result == cudaGraphExecUpdateErrorNodeTypeChanged && info.errorNode != nullptr);
    CHECK(cudaGraphLaunch(x, p.s) == cudaSuccess && cudaStreamSynchronize(p.s) == cudaSuccess);
    CHECK_EQ_I(fetched(p.sum, N)[0], 1); // still the old one
    CHECK(cudaGraphExecUpdate(x, g[1], &info) == cudaSuccess && info.result == cudaGraphExecUpdateSuccess);
    CHECK(cudaGraphLaunch(x, p.s) == cudaSuccess && cudaStreamSynchronize(p.s) == cudaSuccess);
    CHECK_EQ_I(fetched(p.sum, N)[0], 11);
    CHECK_EQ_I(sim_violations(), 0);
    for (cudaGraph_t one : g) { CHECK(cudaGraphDestroy(one) == cudaSuccess); }
    CHECK(cudaGraphExecDestroy(x) == cudaSuccess && cudaGraphExecDestroy(x) == cudaErrorInvalidValue);
    CHECK(cudaGraphLaunch(x, p.s) == cudaErrorInvalidValue && cudaGraphDestroy(g[0]) == cudaErrorInvalidValue);
    CHECK_EQ_I(sim_violations(), 3);
    end(p);
    sim_reset(1, 64 * MB, 1);
    clean();
}

// =====================================================================================================================
// >>forbidden
// =====================================================================================================================
static cudaError_t end_capture(cudaStream_t s) {
    cudaGraph_t g = nullptr;
    const cudaError_t e = cudaStreamEndCapture(s, &g);
    CHECK((g != nullptr) == (e == cudaSuccess));
    if (g != nullptr) { cudaGraphDestroy(g); }
    return e;
}

TEST(what_waits_or_allocates_invalidates_a_capture) {
    place p = make_place();
    void * q = nullptr;
    cudaStream_t plain = nullptr;
    CHECK(cudaStreamCreateWithFlags(&plain, cudaStreamDefault) == cudaSuccess);
    for (int what = 0; what < 8; ++what) {
        CHECK(cudaStreamBeginCapture(p.s, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
        CHECK(launch(k_set, dim3(1), dim3(32), 0, p.s, p.a, (int) N, 1) == cudaSuccess);
        CHECK(cudaEventRecord(p.fork, p.s) == cudaSuccess);
        cudaError_t e = cudaSuccess, want = cudaErrorStreamCaptureUnsupported;
        switch (what) {
            case 0: e = cudaStreamSynchronize(p.s); break;
            case 1: e = cudaStreamQuery(p.s); break;
            case 2: e = cudaMalloc(&q, 4); break;
            case 3: e = cudaFree(nullptr); break;
            case 4: e = cudaDeviceSynchronize(); break;
            case 5: e = cudaHostAlloc(&q, 4, 0); break;
            case 6: e = cudaEventQuery(p.fork); break;
            case 7: // the other event is of the past
                CHECK(cudaEventRecord(p.join, p.t) == cudaSuccess);
                e = cudaStreamWaitEvent(p.s, p.join, 0);
                want = cudaErrorStreamCaptureIsolation;
                break;
            default: break;
        }
        CHECK_MSG(e == want, "%d: %s", what, cudaGetErrorName(e));
        cudaStreamCaptureStatus status;
        CHECK(cudaStreamIsCapturing(p.s, &status) == cudaSuccess && status == cudaStreamCaptureStatusInvalidated);
        CHECK(launch(k_set, dim3(1), dim3(32), 0, p.s, p.a, (int) N, 1) == cudaErrorStreamCaptureInvalidated);
        CHECK(end_capture(p.s) == cudaErrorStreamCaptureInvalidated);
        CHECK(cudaStreamSynchronize(p.s) == cudaSuccess); // and all is well again
    }
    CHECK(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeRelaxed) == cudaErrorStreamCaptureUnsupported);
    CHECK(cudaStreamBeginCapture(plain, cudaStreamCaptureModeRelaxed) == cudaSuccess);
    CHECK(cudaMemsetAsync(p.a, 0, 4, nullptr) == cudaErrorStreamCaptureImplicit); // the legacy stream would wait for it
    CHECK(end_capture(plain) == cudaErrorStreamCaptureInvalidated);
    CHECK(cudaStreamBeginCapture(p.s, cudaStreamCaptureModeRelaxed) == cudaSuccess);
    CHECK(cudaMalloc(&q, 4) == cudaSuccess && cudaFree(q) == cudaSuccess); // relaxed
    CHECK(cudaMemsetAsync(p.a, 0, 4, nullptr) == cudaSuccess);             // does not wait for p.s
    CHECK(end_capture(p.s) == cudaSuccess);
    CHECK_EQ_I(sim_violations(), 0);
    cudaStreamDestroy(plain);
    end(p);
    clean();
}

TEST(captures_have_to_be_joined_and_kept_apart) {
    place p = make_place();
    CHECK(cudaStreamBeginCapture(p.s, cudaStreamCaptureModeRelaxed) == cudaSuccess);
    capture_sum(p, 1, 2, false);
    CHECK(end_capture(p.s) == cudaErrorStreamCaptureUnjoined);
    CHECK(cudaStreamBeginCapture(p.s, cudaStreamCaptureModeRelaxed) == cudaSuccess);
    capture_sum(p, 1, 2);
    CHECK(end_capture(p.t) == cudaErrorStreamCaptureUnmatched);
    CHECK(end_capture(p.s) == cudaErrorStreamCaptureInvalidated);
    CHECK(cudaStreamBeginCapture(p.s, cudaStreamCaptureModeRelaxed) == cudaSuccess &&
          cudaStreamBeginCapture(p.t, cudaStreamCaptureModeRelaxed) == cudaSuccess);
    CHECK(cudaEventRecord(p.fork, p.s) == cudaSuccess);
    CHECK(cudaStreamWaitEvent(p.t, p.fork, 0) == cudaErrorStreamCaptureMerge);
    CHECK(
        end_capture(p.s) == cudaErrorStreamCaptureInvalidated && end_capture(p.t) == cudaErrorStreamCaptureInvalidated);
    CHECK(cudaStreamWaitEvent(p.t, p.fork, 0) == cudaErrorCapturedEvent);
    CHECK(cudaEventRecord(p.fork, p.t) == cudaSuccess && cudaEventSynchronize(p.fork) == cudaSuccess);
    end(p);
    clean();
}

struct other_thread {
    cudaStreamCaptureMode mode;
    cudaStream_t stream;
    cudaError_t malloc_error, end_error;
};

static void * works_meanwhile(void * user) {
    other_thread * o = (other_thread *) user;
    cudaGraph_t g = nullptr;
    void * p = nullptr;
    o->malloc_error = cudaMalloc(&p, 4);
    if (p != nullptr) { cudaFree(p); }
    o->end_error = cudaStreamEndCapture(o->stream, &g);
    return nullptr;
}

TEST(other_threads_mind_only_a_global_capture) {
    const cudaStreamCaptureMode modes[] = { cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal };
    for (cudaStreamCaptureMode mode : modes) {
        place p = make_place();
        other_thread o = { mode, p.s, cudaSuccess, cudaSuccess };
        pthread_t t;
        CHECK(cudaStreamBeginCapture(p.s, mode) == cudaSuccess);
        CHECK(pthread_create(&t, nullptr, works_meanwhile, &o) == 0 && pthread_join(t, nullptr) == 0);
        const bool is_global = mode == cudaStreamCaptureModeGlobal;
        CHECK(o.malloc_error == (is_global ? cudaErrorStreamCaptureUnsupported : cudaSuccess));
        CHECK(o.end_error == cudaErrorStreamCaptureWrongThread);
        CHECK(end_capture(p.s) == (is_global ? cudaErrorStreamCaptureInvalidated : cudaSuccess));
        end(p);
    }
    clean();
}

TEST(graphs_fail_and_leak_as_told) {
    place p = make_place();
    cudaGraph_t g = nullptr;
    cudaGraphExec_t x = nullptr;
    CHECK(cudaGraphCreate(&g, 0) == cudaSuccess);
    sim_fail("cudaGraphInstantiate", 1, cudaErrorMemoryAllocation);
    CHECK(cudaGraphInstantiate(&x, g, 0) == cudaErrorMemoryAllocation && x == nullptr);
    CHECK(cudaGraphInstantiate(&x, g, 0) == cudaSuccess && cudaGraphLaunch(x, p.s) == cudaSuccess); // empty
    const long before = sim_leaks();
    CHECK(cudaGraphExecDestroy(x) == cudaSuccess && cudaGraphDestroy(g) == cudaSuccess);
    CHECK_EQ_I(sim_leaks(), before - 2);
    sim_fail("cudaStreamEndCapture", 1, cudaErrorUnknown);
    CHECK(cudaStreamBeginCapture(p.s, cudaStreamCaptureModeRelaxed) == cudaSuccess);
    CHECK(end_capture(p.s) == cudaErrorUnknown); // ended all the same
    CHECK(cudaStreamSynchronize(p.s) == cudaSuccess);
    end(p);
    clean();
}
