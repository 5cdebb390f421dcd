// bench-attention.cu - gcuda_launch_flash_attn_ext and its gradient alone, on random data: times against the device's
// reading rate, results against the plain path. Needs only parts 7 and 8 of the kernels, so that a change of them is
// measured in minutes:
//
//   make build/cuda/bench-attention && build/cuda/bench-attention [decode|prefill|cache|long|back] [--check] [--splits
//   N] [--path N]
//
// Keys and values rotate through copies beyond the L2 cache; launches are captured in one graph and overlap (PDL), as
// in a plan.
#include "gcuda.h"
#include <algorithm>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

static void check(cudaError_t err, const char * what) {
    if (err != cudaSuccess) {
        printf("%s: %s\n", what, cudaGetErrorString(err));
        exit(1);
    }
}
#define CHECK(call) check(call, #call)
#define FOR_ALL(i, n) \
    for (size_t i = blockIdx.x * (size_t) blockDim.x + threadIdx.x; i < (n); i += (size_t) gridDim.x * blockDim.x)

// ---- random data ----
static __device__ unsigned hashed(unsigned long long i) { // the finalizer of MurmurHash3
    i ^= i >> 33;
    i *= 0xff51afd7ed558ccdULL;
    i ^= i >> 33;
    i *= 0xc4ceb9fe1a85ec53ULL;
    return (unsigned) (i ^ i >> 33);
}
static __device__ float uniform(unsigned long long i) { return (float) hashed(i) * (2.0f / 4294967296.0f) - 1.0f; }

static __global__ void fill_floats(void * p, gcuda_type type, size_t n, unsigned seed) {
    FOR_ALL(i, n) {
        const float v = uniform(i * 2654435761ULL + seed);
        if (type == GCUDA_TYPE_F32) {
            ((float *) p)[i] = 2.0f * v;
        } else if (type == GCUDA_TYPE_F16) {
            ((__half *) p)[i] = __float2half(v);
        } else {
            ((unsigned short *) p)[i] = (unsigned short) (__float_as_uint(v) >> 16);
        }
    }
}
// Q8_0, Q4_0: a scale, then codes
static __global__ void fill_blocks(unsigned char * p, size_t n, int size, float scale, unsigned seed) {
    FOR_ALL(i, n) {
        const unsigned short d = __half_as_ushort(__float2half(scale * (1.0f + 0.5f * uniform(i * 77 + seed))));
        unsigned char * block = p + i * size;
        block[0] = (unsigned char) d;
        block[1] = (unsigned char) (d >> 8);
        for (int k = 2; k < size; ++k) { block[k] = (unsigned char) hashed(i * 64 + k + seed); }
    }
}
// SPARSE: n_visible of each row, and n_kv_max says so
enum mask_kind { MASK_NONE, MASK_BIAS, MASK_CAUSAL, MASK_FIRST, MASK_SPARSE };
static __global__ void fill_mask(__half * p, int n_kv, int n_tokens, mask_kind kind, int n_visible) {
    FOR_ALL(i, (size_t) n_kv * n_tokens) {
        const int j = (int) (i % n_kv), token = (int) (i / n_kv);
        const bool is_seen = kind == MASK_CAUSAL   ? j <= n_kv - n_tokens + token
                             : kind == MASK_FIRST  ? j < n_visible
                             : kind == MASK_SPARSE ? j % (n_kv / n_visible) == token % (n_kv / n_visible)
                                                   : true;
        p[i] = __float2half(!is_seen ? -INFINITY : kind == MASK_BIAS ? uniform(i) : 0.0f);
    }
}
static void fill(void * p, gcuda_type type, size_t n, unsigned seed) {
    const bool is_q8 = type == GCUDA_TYPE_Q8_0;
    if (gcuda_is_quantized(type)) {
        fill_blocks<<<1024, 256>>>((unsigned char *) p, n / 32, is_q8 ? 34 : 18, is_q8 ? 0.008f : 0.12f, seed);
    } else {
        fill_floats<<<1024, 256>>>(p, type, n, seed);
    }
}

// ---- what is compared ----
static __global__ void read_all(const uint4 * p, size_t n, uint4 * never) {
    uint4 sum = { 0, 0, 0, 0 };
    FOR_ALL(i, n / 4) {
        for (int k = 0; k < 4; ++k) {
            const uint4 v = p[i + k * (n / 4)];
            sum.x ^= v.x, sum.y ^= v.y, sum.z ^= v.z, sum.w ^= v.w;
        }
    }
    if (sum.x == 1 && sum.y == 2 && sum.z == 3 && sum.w == 4) { *never = sum; }
}
static __global__ void squares(const float * y, const float * want, size_t n, double * sums) {
    double error = 0.0, square = 0.0;
    FOR_ALL(i, n) {
        const double d = (double) y[i] - (double) want[i];
        error += d == d ? d * d : 1e30;
        square += (double) want[i] * (double) want[i];
    }
    atomicAdd(sums, error);
    atomicAdd(sums + 1, square);
}

static float elapsed_ms(cudaStream_t stream, cudaGraphExec_t graph) {
    cudaEvent_t begin, end;
    float ms = 0.0f;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    CHECK(cudaEventRecord(begin, stream));
    CHECK(cudaGraphLaunch(graph, stream));
    CHECK(cudaEventRecord(end, stream));
    CHECK(cudaEventSynchronize(end));
    CHECK(cudaEventElapsedTime(&ms, begin, end));
    CHECK(cudaEventDestroy(begin));
    CHECK(cudaEventDestroy(end));
    return ms;
}

struct shape {
    int dk, dv, k_heads, group, n_kv, n_tokens;
    gcuda_type type;
    mask_kind mask;
    int n_visible;
    bool is_v_in_k; // a value is the first part of its key
};
struct options {
    bool has_check;
    gcuda_flash_attn_plan plan;
    double read_gbs;
};

static gcuda_array packed(void * data, gcuda_type type, int64_t ne0, int64_t ne1, int64_t ne2) {
    gcuda_array a;
    memset(&a, 0, sizeof a);
    a.data = data, a.type = type;
    a.ne[0] = ne0, a.ne[1] = ne1, a.ne[2] = ne2, a.ne[3] = 1;
    a.nb[0] = gcuda_type_size(type), a.nb[1] = gcuda_row_size(type, ne0), a.nb[2] = a.nb[1] * ne1,
    a.nb[3] = a.nb[2] * ne2;
    return a;
}

struct run {
    shape s;
    gcuda_flash_attn_ext_args args;
    char * kv;
    size_t k_bytes, v_bytes;
    int n_copies;
    cudaStream_t stream;

    void take_copy(int i) {
        char * at = kv + (size_t) (i % n_copies) * (k_bytes + v_bytes);
        args.k = packed(at, s.type, s.dk, s.n_kv, s.k_heads);
        args.v = packed(at + k_bytes, s.type, s.dv, s.n_kv, s.k_heads);
        if (s.is_v_in_k) {
            args.v = args.k;
            args.v.ne[0] = s.dv;
        }
    }
    void launch() {
        if (gcuda_launch_flash_attn_ext(&args, stream) != GCUDA_STATUS_SUCCESS) {
            check(cudaErrorUnknown, "flash_attn_ext");
        }
    }
    double microseconds(int n, bool is_rotated, bool is_classes = false) {
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        gcuda_thread_launches()->overlap = GCUDA_OVERLAP_LAUNCH;
        gcuda_thread_launches()->has_begun = false;
        CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        for (int i = 0; i < n; ++i) {
            take_copy(is_rotated ? i : 0);
            if (is_classes) {
                if (gcuda_launch_flash_attn_ext_mask_classes(&args, stream) != GCUDA_STATUS_SUCCESS) {
                    check(cudaErrorUnknown, "mask_classes");
                }
            } else {
                launch();
            }
        }
        CHECK(cudaStreamEndCapture(stream, &graph));
        CHECK(cudaGraphInstantiate(&exec, graph, 0));
        gcuda_thread_launches()->overlap = GCUDA_OVERLAP_NONE;
        std::vector<float> ms;
        for (int i = 0; i < 6; ++i) { ms.push_back(elapsed_ms(stream, exec)); }
        std::sort(ms.begin(), ms.end() - 1);
        CHECK(cudaGraphExecDestroy(exec));
        CHECK(cudaGraphDestroy(graph));
        return 1e3 * ms[2] / n;
    }
};

static double difference(run * r, float * y, float * want, size_t n) {
    double *sums, host[2];
    CHECK(cudaMalloc(&sums, sizeof host));
    CHECK(cudaMemset(sums, 0, sizeof host));
    const gcuda_flash_attn_plan plan = r->args.plan;
    r->args.plan.path = GCUDA_FLASH_ATTN_PLAIN;
    r->args.y.data = want;
    r->launch();
    CHECK(cudaStreamSynchronize(r->stream));
    r->args.plan = plan;
    r->args.y.data = y;
    squares<<<256, 256>>>(y, want, n, sums);
    CHECK(cudaMemcpy(host, sums, sizeof host, cudaMemcpyDeviceToHost));
    CHECK(cudaFree(sums));
    return host[0] / host[1];
}

static void measure(const shape & s, const options & o) {
    const int n_heads = s.k_heads * s.group;
    const size_t n_y = (size_t) s.dv * n_heads * s.n_tokens, n_q = (size_t) s.dk * n_heads * s.n_tokens,
                 n_mask = (size_t) s.n_kv * s.n_tokens;
    const size_t n_k = (size_t) s.dk * s.n_kv * s.k_heads, n_v = (size_t) s.dv * s.n_kv * s.k_heads;
    run r;
    memset(&r, 0, sizeof r);
    r.s = s;
    r.k_bytes = (gcuda_row_size(s.type, n_k) + 255) / 256 * 256;
    r.v_bytes = s.is_v_in_k ? 0 : (gcuda_row_size(s.type, n_v) + 255) / 256 * 256;
    r.n_copies = (int) std::min<size_t>(64, std::max<size_t>(1, ((size_t) 400 << 20) / (r.k_bytes + r.v_bytes)));
    float *q, *y, *want;
    __half * mask = NULL;
    void * scratch = NULL;
    CHECK(cudaStreamCreate(&r.stream));
    CHECK(cudaMalloc(&r.kv, r.n_copies * (r.k_bytes + r.v_bytes)));
    CHECK(cudaMalloc(&q, n_q * 4));
    CHECK(cudaMalloc(&y, n_y * 4));
    CHECK(cudaMalloc(&want, n_y * 4));
    for (int i = 0; i < r.n_copies; ++i) {
        r.take_copy(i);
        fill(r.args.k.data, s.type, n_k, 13 * i + 1);
        if (!s.is_v_in_k) { fill(r.args.v.data, s.type, n_v, 17 * i + 5); }
    }
    fill(q, GCUDA_TYPE_F32, n_q, 99);
    if (s.mask != MASK_NONE) {
        CHECK(cudaMalloc(&mask, n_mask * 2));
        fill_mask<<<1024, 256>>>(mask, s.n_kv, s.n_tokens, s.mask, s.n_visible);
        r.args.mask = packed(mask, GCUDA_TYPE_F16, s.n_kv, s.n_tokens, 1);
    }
    CHECK(cudaMemset(y, 0xff, n_y * 4)); // NaN
    r.take_copy(0);
    r.args.q = packed(q, GCUDA_TYPE_F32, s.dk, s.n_tokens, n_heads);
    r.args.y = packed(y, GCUDA_TYPE_F32, s.dv, n_heads, s.n_tokens);
    r.args.scale = 1.0f / sqrtf((float) s.dk);
    r.args.max_shared = 227 * 1024;
    r.args.plan = o.plan;
    r.args.n_kv_max = s.mask == MASK_SPARSE ? s.n_visible : 0;
    gcuda_flash_attn_plan plan;
    (void) gcuda_flash_attn_ext_plan(&r.args, &plan);
    const size_t n_scratch = gcuda_flash_attn_ext_scratch_bytes(&r.args);
    if (n_scratch > 0) { CHECK(cudaMalloc(&scratch, n_scratch)); }
    r.args.scratch = scratch;
    CHECK(cudaDeviceSynchronize());
    r.launch();
    CHECK(cudaStreamSynchronize(r.stream));
    const double nmse = o.has_check ? difference(&r, y, want, n_y) : -1.0;
    const double seen = s.mask == MASK_FIRST || s.mask == MASK_SPARSE ? (double) s.n_visible / s.n_kv
                        : s.mask == MASK_CAUSAL                       ? 1.0 - (s.n_tokens - 1) * 0.5 / s.n_kv
                                                                      : 1.0;
    const double flop = 2.0 * seen * (double) n_mask * (s.dk + s.dv) * n_heads,
                 bytes = seen * (double) (r.k_bytes + r.v_bytes);
    const int n = flop > 5e10 ? 4 : 40;
    const double us = r.microseconds(n, true), same = r.microseconds(n, false);
    printf("%3d/%-3d %2d x %-2d  kv %6d  tokens %4d  %-5s mask %d  path %d, %3d splits  %9.1f "
           "us  same %9.1f us  %5.0f GB/s %4.0f %%  %6.1f TFLOP/s",
        s.dk, s.dv, s.k_heads, s.group, s.n_kv, s.n_tokens, gcuda_type_name(s.type), s.mask, plan.path, plan.n_splits,
        us, same, bytes / us * 1e-3, bytes / us * 0.1 / o.read_gbs, flop / us * 1e-6);
    printf(nmse >= 0.0 ? "  nmse %.1e\n" : "\n", nmse);
    const size_t n_classes = gcuda_flash_attn_ext_mask_classes_bytes(&r.args);
    if (n_classes > 0 && s.n_tokens >= 4096) { // as a plan runs several layers with one mask
        CHECK(cudaMalloc(&r.args.mask_classes, n_classes));
        const double classes = r.microseconds(10, false, true), given = r.microseconds(n, true);
        printf("        classes of the mask %6.1f us %5.0f GB/s; with them %9.1f us %6.1f TFLOP/s\n", classes,
            (double) n_mask * 2.0 / classes * 1e-3, given, flop / given * 1e-6);
    }
    fflush(stdout);
    void * const all[] = { r.kv, q, y, want, mask, scratch, r.args.mask_classes };
    for (void * p : all) { CHECK(cudaFree(p)); }
    CHECK(cudaStreamDestroy(r.stream));
}

// ---- forward and backward ----
struct back_run {
    run forward;
    gcuda_flash_attn_ext_back_args args;
    void backward() {
        if (gcuda_launch_flash_attn_ext_back(&args, forward.stream) != GCUDA_STATUS_SUCCESS) {
            check(cudaErrorUnknown, "flash_attn_ext_back");
        }
    }
    template <typename F> double microseconds(F f) { // the median of six
        std::vector<float> ms;
        cudaEvent_t begin, end;
        CHECK(cudaEventCreate(&begin));
        CHECK(cudaEventCreate(&end));
        for (int i = 0; i < 7; ++i) {
            float t = 0.0f;
            CHECK(cudaEventRecord(begin, forward.stream));
            f();
            CHECK(cudaEventRecord(end, forward.stream));
            CHECK(cudaEventSynchronize(end));
            CHECK(cudaEventElapsedTime(&t, begin, end));
            if (i > 0) { ms.push_back(t); }
        }
        CHECK(cudaEventDestroy(begin));
        CHECK(cudaEventDestroy(end));
        std::sort(ms.begin(), ms.end());
        return 1e3 * ms[3];
    }
};

// Products of the formula are counted, 2 forwards and 5 backwards, of which the kernels compute 2 and 7.
static void measure_back(const shape & s, const options & o) {
    const int n_heads = s.k_heads * s.group;
    const size_t n_q = (size_t) s.dk * n_heads * s.n_tokens, n_k = (size_t) s.dk * s.n_kv * s.k_heads,
                 n_mask = (size_t) s.n_kv * s.n_tokens;
    const size_t n_grads = n_q + 2 * n_k, k_bytes = gcuda_row_size(s.type, n_k);
    back_run r;
    memset(&r, 0, sizeof r);
    r.forward.s = s;
    float *q, *y, *dy, *grads, *want;
    char * kv;
    __half * mask = NULL;
    CHECK(cudaStreamCreate(&r.forward.stream));
    CHECK(cudaMalloc(&q, n_q * 4));
    CHECK(cudaMalloc(&y, n_q * 4));
    CHECK(cudaMalloc(&dy, n_q * 4));
    CHECK(cudaMalloc(&grads, n_grads * 4));
    CHECK(cudaMalloc(&want, n_grads * 4));
    CHECK(cudaMalloc(&kv, 2 * k_bytes));
    fill(q, GCUDA_TYPE_F32, n_q, 99);
    fill(dy, GCUDA_TYPE_F32, n_q, 7);
    fill(kv, s.type, 2 * n_k, 1);
    gcuda_flash_attn_ext_args & f = r.forward.args;
    gcuda_flash_attn_ext_back_args & b = r.args;
    f.q = packed(q, GCUDA_TYPE_F32, s.dk, s.n_tokens, n_heads);
    f.k = packed(kv, s.type, s.dk, s.n_kv, s.k_heads);
    f.v = packed(kv + k_bytes, s.type, s.dv, s.n_kv, s.k_heads);
    f.y = packed(y, GCUDA_TYPE_F32, s.dv, n_heads, s.n_tokens);
    if (s.mask != MASK_NONE) {
        CHECK(cudaMalloc(&mask, n_mask * 2));
        fill_mask<<<1024, 256>>>(mask, s.n_kv, s.n_tokens, s.mask, s.n_visible);
        f.mask = packed(mask, GCUDA_TYPE_F16, s.n_kv, s.n_tokens, 1);
    }
    f.scale = 1.0f / sqrtf((float) s.dk);
    f.max_shared = 227 * 1024;
    b.q = f.q, b.k = f.k, b.v = f.v, b.y = f.y, b.mask = f.mask, b.scale = f.scale, b.max_shared = f.max_shared;
    b.dy = packed(dy, GCUDA_TYPE_F32, s.dv, n_heads, s.n_tokens);
    b.dq = packed(grads, GCUDA_TYPE_F32, s.dk, s.n_tokens, n_heads);
    b.dk = packed(grads + n_q, GCUDA_TYPE_F32, s.dk, s.n_kv, s.k_heads);
    b.dv = packed(grads + n_q + n_k, GCUDA_TYPE_F32, s.dv, s.n_kv, s.k_heads);
    CHECK(cudaMalloc(&f.scratch, gcuda_flash_attn_ext_scratch_bytes(&f) + 1));
    CHECK(cudaMalloc(&b.scratch, gcuda_flash_attn_ext_back_scratch_bytes(&b) + 1));
    CHECK(cudaDeviceSynchronize());
    const double forward = r.microseconds([&]() { r.forward.launch(); }),
                 backward = r.microseconds([&]() { r.backward(); });
    double nmse = -1.0;
    if (o.has_check) {
        double *sums, host[2];
        CHECK(cudaMalloc(&sums, sizeof host));
        CHECK(cudaMemset(sums, 0, sizeof host));
        b.prec = GCUDA_PREC_F32;
        b.dq.data = want, b.dk.data = want + n_q, b.dv.data = want + n_q + n_k;
        r.backward();
        CHECK(cudaStreamSynchronize(r.forward.stream));
        squares<<<256, 256>>>(grads, want, n_grads, sums);
        CHECK(cudaMemcpy(host, sums, sizeof host, cudaMemcpyDeviceToHost));
        CHECK(cudaFree(sums));
        nmse = host[0] / host[1];
    }
    const double seen = s.mask == MASK_CAUSAL ? 1.0 - (s.n_tokens - 1) * 0.5 / s.n_kv : 1.0,
                 product = 2.0 * seen * (double) n_mask * s.dk * n_heads;
    printf("%3d %2d x %-2d  kv %6d  tokens %4d  %-5s mask %d  forward %9.1f us %6.1f TFLOP/s  backward "
           "%9.1f us %6.1f TFLOP/s",
        s.dk, s.k_heads, s.group, s.n_kv, s.n_tokens, gcuda_type_name(s.type), s.mask, forward,
        2.0 * product / forward * 1e-6, backward, 5.0 * product / backward * 1e-6);
    printf(nmse >= 0.0 ? "  nmse %.1e\n" : "\n", nmse);
    fflush(stdout);
    void * const all[] = { q, y, dy, grads, want, kv, mask, f.scratch, b.scratch };
    for (void * p : all) { CHECK(cudaFree(p)); }
    CHECK(cudaStreamDestroy(r.forward.stream));
}

static double reading_gbs() {
    const size_t n = (size_t) 2 << 30;
    char * p;
    float best = 1e9f;
    cudaEvent_t begin, end;
    CHECK(cudaMalloc(&p, n));
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    fill(p, GCUDA_TYPE_F32, n / 4, 1);
    for (int i = 0; i < 6; ++i) {
        float ms = 0.0f;
        CHECK(cudaEventRecord(begin));
        read_all<<<132 * 16, 512>>>((const uint4 *) p, n / 16, (uint4 *) p);
        CHECK(cudaEventRecord(end));
        CHECK(cudaEventSynchronize(end));
        CHECK(cudaEventElapsedTime(&ms, begin, end));
        best = std::min(best, ms);
    }
    CHECK(cudaFree(p));
    return (double) n / best * 1e-6;
}

static const gcuda_type F16 = GCUDA_TYPE_F16, BF16 = GCUDA_TYPE_BF16, Q8 = GCUDA_TYPE_Q8_0, Q4 = GCUDA_TYPE_Q4_0;
static const shape decode[] = {
    { 128, 128, 8, 4, 65536, 1, F16, MASK_NONE, 0 },
    { 128, 128, 8, 4, 65536, 1, F16, MASK_BIAS, 0 },
    { 128, 128, 8, 4, 65536, 1, F16, MASK_CAUSAL, 0 },
    { 128, 128, 8, 4, 65536, 1, BF16, MASK_CAUSAL, 0 },
    { 128, 128, 8, 4, 65536, 1, Q8, MASK_CAUSAL, 0 },
    { 128, 128, 8, 4, 65536, 1, Q4, MASK_CAUSAL, 0 },
    { 128, 128, 8, 4, 65536, 4, F16, MASK_CAUSAL, 0 },
    { 128, 128, 8, 4, 65536, 4, Q8, MASK_CAUSAL, 0 },
    { 128, 128, 8, 4, 65536, 4, Q4, MASK_CAUSAL, 0 },
    { 128, 128, 8, 4, 65536, 8, F16, MASK_CAUSAL, 0 },
    { 128, 128, 8, 4, 256, 1, F16, MASK_CAUSAL, 0 },
    { 128, 128, 8, 4, 4096, 1, F16, MASK_CAUSAL, 0 },
    { 128, 128, 8, 4, 4097, 1, F16, MASK_CAUSAL, 0 },
    { 128, 128, 8, 4, 10000, 1, F16, MASK_CAUSAL, 0 },
    { 128, 128, 8, 4, 32768, 1, F16, MASK_FIRST, 4096 },
    { 128, 128, 8, 4, 4096, 1, Q8, MASK_CAUSAL, 0 },
    { 128, 128, 8, 4, 4096, 1, Q4, MASK_CAUSAL, 0 },
    { 128, 128, 8, 1, 16384, 1, F16, MASK_CAUSAL, 0 },
    { 64, 64, 8, 8, 7680, 1, F16, MASK_CAUSAL, 0 },
    { 64, 64, 8, 8, 7680, 4, F16, MASK_CAUSAL, 0 },
    { 256, 256, 2, 16, 20000, 1, F16, MASK_CAUSAL, 0 },
    { 256, 256, 2, 16, 20000, 1, Q8, MASK_CAUSAL, 0 },
};
static const shape prefill[] = {
    { 128, 128, 8, 4, 16384, 512, F16, MASK_NONE, 0 },
    { 128, 128, 8, 4, 16384, 512, F16, MASK_BIAS, 0 },
    { 128, 128, 8, 4, 16384, 512, F16, MASK_CAUSAL, 0 },
    { 128, 128, 32, 1, 4096, 4096, F16, MASK_NONE, 0 },
    { 128, 128, 32, 1, 4096, 4096, F16, MASK_CAUSAL, 0 },
    { 128, 128, 32, 1, 16384, 16384, F16, MASK_CAUSAL, 0 },
    { 64, 64, 32, 1, 4096, 4096, F16, MASK_NONE, 0 },
    { 64, 64, 32, 1, 4096, 4096, F16, MASK_CAUSAL, 0 },
    { 128, 128, 32, 1, 4096, 4096, BF16, MASK_CAUSAL, 0 },
    { 128, 128, 32, 1, 4096, 4096, F16, MASK_BIAS, 0 },
    { 128, 128, 8, 4, 2048, 2048, F16, MASK_CAUSAL, 0 },
    { 256, 256, 32, 1, 4096, 4096, F16, MASK_NONE, 0 },
    { 72, 72, 16, 1, 5776, 5776, F16, MASK_NONE, 0 },
    { 80, 80, 16, 1, 4096, 4096, F16, MASK_NONE, 0 },
};
static const shape caches[] = {
    // what becomes F16 for many queries, and F16
    { 128, 128, 8, 4, 65536, 512, F16, MASK_NONE, 0 },
    { 128, 128, 8, 4, 65536, 512, Q8, MASK_NONE, 0 },
    { 128, 128, 8, 4, 65536, 512, Q4, MASK_NONE, 0 },
    { 128, 128, 8, 4, 65536, 512, F16, MASK_CAUSAL, 0 },
    { 128, 128, 8, 4, 65536, 512, Q8, MASK_CAUSAL, 0 },
    { 128, 128, 8, 4, 65536, 512, Q4, MASK_CAUSAL, 0 },
    { 128, 128, 8, 4, 4096, 512, F16, MASK_CAUSAL, 0 },
    { 128, 128, 8, 4, 4096, 512, Q8, MASK_CAUSAL, 0 },
    { 128, 128, 8, 4, 16384, 16, Q8, MASK_CAUSAL, 0 },
    { 128, 128, 8, 4, 16384, 24, Q8, MASK_CAUSAL, 0 },
    { 128, 128, 8, 4, 16384, 32, Q8, MASK_CAUSAL, 0 },
    { 128, 128, 8, 4, 4096, 512, GCUDA_TYPE_F32, MASK_CAUSAL, 0 },
    { 576, 512, 1, 16, 65536, 1, F16, MASK_SPARSE, 2048, true },
    { 576, 512, 1, 16, 65536, 64, F16, MASK_SPARSE, 2048, true },
    { 576, 512, 1, 16, 65536, 64, F16, MASK_CAUSAL, 0, true },
};

static const shape long_rows[] = {
    // of k and v
    { 576, 512, 1, 16, 16384, 1, F16, MASK_NONE, 0, true },
    { 576, 512, 1, 16, 16384, 1, F16, MASK_CAUSAL, 0, true },
    { 576, 512, 1, 16, 16384, 1, BF16, MASK_CAUSAL, 0, true },
    { 576, 512, 1, 16, 4096, 1, F16, MASK_NONE, 0, true },
    { 576, 512, 1, 16, 65536, 1, F16, MASK_NONE, 0, true },
    { 576, 512, 1, 128, 16384, 1, F16, MASK_CAUSAL, 0, true },
    { 576, 512, 1, 16, 16384, 4, F16, MASK_CAUSAL, 0, true },
    { 576, 512, 1, 16, 16384, 512, F16, MASK_CAUSAL, 0, true },
    { 512, 512, 8, 4, 16384, 1, F16, MASK_NONE, 0, false },
    { 512, 512, 8, 4, 16384, 1, F16, MASK_CAUSAL, 0, false },
    { 512, 512, 8, 4, 4096, 4096, F16, MASK_NONE, 0, false },
    { 320, 256, 1, 32, 16384, 1, F16, MASK_CAUSAL, 0, false },
    { 320, 256, 1, 32, 4096, 512, F16, MASK_CAUSAL, 0, false },
    { 192, 128, 16, 8, 16384, 1, F16, MASK_CAUSAL, 0, false },
    { 192, 128, 16, 8, 4096, 512, F16, MASK_CAUSAL, 0, false },
};
static const shape back[] = {
    { 64, 64, 32, 1, 4096, 4096, F16, MASK_CAUSAL, 0 },
    { 128, 128, 32, 1, 4096, 4096, F16, MASK_CAUSAL, 0 },
    { 64, 64, 32, 1, 4096, 4096, F16, MASK_NONE, 0 },
    { 128, 128, 32, 1, 4096, 4096, F16, MASK_NONE, 0 },
    { 128, 128, 8, 4, 4096, 4096, F16, MASK_CAUSAL, 0 },
    { 128, 128, 8, 4, 2048, 2048, GCUDA_TYPE_F32, MASK_CAUSAL, 0 },
};

int main(int argc, char ** argv) {
    options o;
    bool has_decode = true, has_prefill = true, has_cache = true, has_long = true, has_back = true;
    memset(&o, 0, sizeof o);
    for (int i = 1; i < argc; ++i) {
        const bool is_decode = strcmp(argv[i], "decode") == 0, is_prefill = strcmp(argv[i], "prefill") == 0,
                   is_long = strcmp(argv[i], "long") == 0, is_back = strcmp(argv[i], "back") == 0,
                   is_cache = strcmp(argv[i], "cache") == 0;
        if (is_decode || is_prefill || is_cache || is_long || is_back) {
            has_decode = is_decode, has_prefill = is_prefill, has_cache = is_cache, has_long = is_long,
            has_back = is_back;
        }
        o.has_check = o.has_check || strcmp(argv[i], "--check") == 0;
        if (i + 1 < argc && strcmp(argv[i], "--splits") == 0) { o.plan.n_splits = atoi(argv[++i]); }
        if (i + 1 < argc && strcmp(argv[i], "--path") == 0) { o.plan.path = (gcuda_flash_attn_path) atoi(argv[++i]); }
    }
    cudaDeviceProp prop;
    CHECK(cudaGetDeviceProperties(&prop, 0));
    o.read_gbs = reading_gbs();
    printf("%s, reads %.0f GB/s\n", prop.name, o.read_gbs);
    if (has_decode) {
        for (const shape & s : decode) { measure(s, o); }
    }
    if (has_prefill) {
        for (const shape & s : prefill) { measure(s, o); }
    }
    if (has_cache) {
        for (const shape & s : caches) { measure(s, o); }
    }
    if (has_long) {
        for (const shape & s : long_rows) { measure(s, o); }
    }
    if (has_back) {
        for (const shape & s : back) { measure_back(s, o); }
    }
    return 0;
}
