// bench-sorts.cu: argsort and top_k compared with CUB's sorts of pairs on the same rows. Built with `make
// build/cuda/bench-sorts` where nvcc and a GPU are; `make test-gpu` puts its lines into the record.
//
//   bench-sorts [--want RATIO]     fails where the fastest of CUB's is not RATIO times as slow as ours, or orders
//                                  differ
//
// CUB gets keys, and as values a list of numbers that is made once. For top_k, which CUB 3.0 lacks, it sorts whole
// rows. A time is the median of 11 replays of a CUDA graph of 20 calls on the same buffers. Calls that cannot be
// captured are timed one after the other. Keys are random floats, all different in a row.
#include "gcuda.h"

#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_segmented_radix_sort.cuh>
#include <cub/device/device_segmented_sort.cuh>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <vector>

enum { N_CALLS = 20, N_RUNS = 11 };
typedef std::function<cudaError_t(cudaStream_t)> call;

static void cu(cudaError_t err, const char * what) {
    if (err != cudaSuccess) {
        fprintf(stderr, "bench-sorts: %s: %s\n", what, cudaGetErrorString(err));
        exit(1);
    }
}

template <typename T> static T * on_device(size_t n) {
    void * p = nullptr;
    cu(cudaMalloc(&p, n * sizeof(T)), "memory");
    return (T *) p;
}

// N_CALLS of them as a graph, or NULL.
static cudaGraphExec_t captured(const call & f, cudaStream_t stream) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    bool ok = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess;
    for (int i = 0; i < N_CALLS && ok; ++i) { ok = f(stream) == cudaSuccess; }
    ok = cudaStreamEndCapture(stream, &graph) == cudaSuccess && ok &&
         cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess;
    if (graph != nullptr) { cudaGraphDestroy(graph); }
    (void) cudaGetLastError();
    return ok ? exec : nullptr;
}

static float us_of(const call & f, cudaStream_t stream) {
    cudaEvent_t begin, end;
    std::vector<float> us;
    cu(f(stream), "first call");
    cu(cudaStreamSynchronize(stream), "first call");
    const cudaGraphExec_t graph = captured(f, stream);
    cu(cudaEventCreate(&begin), "event");
    cu(cudaEventCreate(&end), "event");
    for (int run = 0; run < N_RUNS; ++run) {
        float ms = 0.0f;
        cu(cudaEventRecord(begin, stream), "event");
        if (graph != nullptr) {
            cu(cudaGraphLaunch(graph, stream), "graph");
        } else {
            for (int i = 0; i < N_CALLS; ++i) { cu(f(stream), "call"); }
        }
        cu(cudaEventRecord(end, stream), "event");
        cu(cudaEventSynchronize(end), "run");
        cu(cudaEventElapsedTime(&ms, begin, end), "event");
        us.push_back(ms * 1e3f / N_CALLS);
    }
    if (graph != nullptr) { cudaGraphExecDestroy(graph); }
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    std::nth_element(us.begin(), us.begin() + N_RUNS / 2, us.end());
    return us[N_RUNS / 2];
}

static gcuda_array packed(gcuda_type type, void * data, int64_t n, int64_t rows) {
    gcuda_array a = {};
    const size_t size = gcuda_type_size(type);
    a.data = data;
    a.type = type;
    a.ne[0] = n, a.ne[1] = rows, a.ne[2] = a.ne[3] = 1;
    a.nb[0] = size, a.nb[1] = a.nb[2] = a.nb[3] = size * (size_t) n;
    a.nb[2] = a.nb[3] = a.nb[1] * (size_t) rows;
    return a;
}

// Every row is another permutation of the same n numbers, so no two are equal.
static std::vector<float> keys_of(int64_t n, int64_t rows) {
    std::vector<float> keys((size_t) (n * rows));
    uint64_t x = 88172645463325252u;
    for (int64_t r = 0; r < rows; ++r) {
        float * row = keys.data() + r * n;
        std::iota(row, row + n, -0.5f * (float) n);
        for (int64_t i = n - 1; i > 0; --i) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            std::swap(row[i], row[x % (uint64_t) (i + 1)]);
        }
    }
    return keys;
}

// The first k of each row, largest first; of top_k, which gives them in any order, as if sorted.
static bool is_right(
    const std::vector<float> & keys, std::vector<int32_t> got, int64_t n, int64_t rows, int64_t k, bool is_top) {
    for (int64_t r = 0; r < rows; ++r) {
        const float * row = keys.data() + r * n;
        int32_t * at = got.data() + r * k;
        for (int64_t i = 0; i < k; ++i) {
            if (at[i] < 0 || at[i] >= n) { return false; }
        }
        if (is_top) {
            std::sort(at, at + k, [=](int32_t a, int32_t b) { return row[a] > row[b]; });
        }
        for (int64_t i = 0; i < k; ++i) {
            if (row[at[i]] != -0.5f * (float) n + (float) (n - 1 - i)) { return false; }
        }
    }
    return true;
}

// What CUB's three forms take, the fastest of them; of one row there are no segments.
static float us_of_cub(const float * keys, int64_t n, int64_t rows, cudaStream_t stream, const char ** which) {
    const int64_t all = n * rows;
    float *sorted = on_device<float>((size_t) all), best = 0.0f;
    int32_t *numbers = on_device<int32_t>((size_t) all), *order = on_device<int32_t>((size_t) all);
    int64_t * ends = on_device<int64_t>((size_t) rows + 1);
    std::vector<int32_t> host((size_t) all);
    std::vector<int64_t> at((size_t) rows + 1);
    for (int64_t i = 0; i < all; ++i) { host[(size_t) i] = (int32_t) (i % n); }
    for (int64_t r = 0; r <= rows; ++r) { at[(size_t) r] = r * n; }
    cu(cudaMemcpy(numbers, host.data(), host.size() * 4, cudaMemcpyHostToDevice), "numbers");
    cu(cudaMemcpy(ends, at.data(), at.size() * 8, cudaMemcpyHostToDevice), "ends");
    static const char * const names[3] = { "segmented sort", "segmented radix sort", "radix sort" };
    for (int form = 0; form < (rows == 1 ? 3 : 2); ++form) {
        const auto sort = [=](void * scratch, size_t & bytes, cudaStream_t s) {
            return form == 0 ? cub::DeviceSegmentedSort::SortPairsDescending(
                                   scratch, bytes, keys, sorted, numbers, order, all, rows, ends, ends + 1, s)
                   : form == 1 ? cub::DeviceSegmentedRadixSort::SortPairsDescending(
                                     scratch, bytes, keys, sorted, numbers, order, all, rows, ends, ends + 1, 0, 32, s)
                               : cub::DeviceRadixSort::SortPairsDescending(
                                     scratch, bytes, keys, sorted, numbers, order, all, 0, 32, s);
        };
        size_t bytes = 0;
        cu(sort(nullptr, bytes, stream), names[form]);
        char * scratch = on_device<char>(bytes);
        const float us = us_of(
            [=](cudaStream_t s) {
                size_t room = bytes;
                return sort(scratch, room, s);
            },
            stream);
        if (form == 0 || us < best) { best = us, *which = names[form]; }
        cudaFree(scratch);
    }
    cudaFree(ends);
    cudaFree(order);
    cudaFree(numbers);
    cudaFree(sorted);
    return best;
}

int main(int argc, char ** argv) {
    static const struct {
        int64_t n, rows, k;
    } shapes[] = {
        // k 0: argsort; those of bench-gpu
        { 1024, 8192, 0 },
        { 65000, 16, 0 },
        { 200000, 1, 0 },
        { 200000, 16, 0 },
        { 4096, 4096, 8 },
        { 40, 16, 40 },
        { 400, 16, 400 },
        { 1000, 1, 40 },
        { 1000, 16, 40 },
        { 1000, 16, 400 },
        { 65000, 1, 40 },
        { 65000, 16, 40 },
        { 65000, 1, 400 },
        { 65000, 16, 400 },
        { 200000, 1, 40 },
        { 200000, 16, 40 },
        { 200000, 1, 400 },
        { 200000, 16, 400 },
    };
    const float want = argc == 3 && strcmp(argv[1], "--want") == 0 ? (float) atof(argv[2]) : 0.0f;
    int n_bad = 0;
    cudaStream_t stream;
    cu(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    printf("       us   CUB's  ratio\n");
    for (const auto & s : shapes) {
        const std::vector<float> host = keys_of(s.n, s.rows);
        const int64_t k = s.k > 0 ? s.k : s.n;
        float * keys = on_device<float>(host.size());
        int32_t * order = on_device<int32_t>((size_t) (k * s.rows));
        cu(cudaMemcpy(keys, host.data(), host.size() * 4, cudaMemcpyHostToDevice), "keys");
        gcuda_sort_args args = {};
        args.x = packed(GCUDA_TYPE_F32, keys, s.n, s.rows);
        args.y = packed(GCUDA_TYPE_I32, order, k, s.rows);
        args.order = GCUDA_SORT_ORDER_DESC;
        char * scratch =
            on_device<char>((s.k > 0 ? gcuda_top_k_scratch_bytes(&args) : gcuda_argsort_scratch_bytes(&args)) + 1);
        args.scratch = scratch;
        const bool is_top = s.k > 0;
        const float us = us_of(
            [=](cudaStream_t to) {
                const gcuda_status st = is_top ? gcuda_launch_top_k(&args, to) : gcuda_launch_argsort(&args, to);
                return st == GCUDA_STATUS_SUCCESS ? cudaSuccess : cudaErrorUnknown;
            },
            stream);
        std::vector<int32_t> got((size_t) (k * s.rows));
        cu(cudaMemcpy(got.data(), order, got.size() * 4, cudaMemcpyDeviceToHost), "order");
        const bool right = is_right(host, got, s.n, s.rows, k, is_top);
        const char * which = "";
        const float theirs = us_of_cub(keys, s.n, s.rows, stream, &which);
        n_bad += !right || theirs < want * us;
        printf("%9.2f %7.2f  %5.2f  %s [%lld,%lld]", (double) us, (double) theirs, (double) (theirs / us),
            is_top ? "TOP_K" : "ARGSORT", (long long) s.n, (long long) s.rows);
        if (is_top) { printf(" k=%lld", (long long) s.k); }
        printf("  %s%s\n", which, right ? "" : "  WRONG");
        cudaFree(scratch);
        cudaFree(order);
        cudaFree(keys);
    }
    cudaStreamDestroy(stream);
    printf("%d passed, %d failed\n", (int) (sizeof shapes / sizeof shapes[0]) - n_bad, n_bad);
    return n_bad != 0;
}
