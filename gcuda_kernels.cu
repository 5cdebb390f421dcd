// gcuda_kernels.cu - the kernels of gcuda, one compilation unit (see gcuda.h, MIT licence).
//
//   nvcc -O3 -std=c++17 -arch=native -c gcuda_kernels.cu
//
// CONTENTS
//   >>k-base      element access, indices, warp and block reductions, launch(): the only launch in the file
//   >>k-copy      copies and conversions, get_rows
//   >>k-elements  unary, binary, scale and their like, optimizer steps
//   >>k-reduce    sums, norms, argmax, soft_max, cross entropy
//   >>k-rows      rows put together from rows: repeat, concat, pad, roll, masks, generators
//   >>k-mul-mat   matrix products
//
// These are the plain forms: right for every stride and every size, each element read where it lies. Kernels take the
// public argument structs by value, work within 48 KiB of shared memory, use no float atomics, and give the same bits
// on every run. Launchers only enqueue: they never allocate, wait or change the device.
#include "gcuda.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>

// =====================================================================================================
// >>k-base   element access, indices, warp and block reductions, launch(): the only launch in the file
// =====================================================================================================

// The file as a whole (0, the default), or one part of it: parts are compiled side by side and linked together.
#ifndef GCUDA_KERNEL_PART
#define GCUDA_KERNEL_PART 0
#endif
#define GCUDAI_PART(n) (GCUDA_KERNEL_PART == 0 || GCUDA_KERNEL_PART == (n))
#if GCUDA_KERNEL_PART != 0 && defined(__CUDACC__)
#pragma nv_diag_suppress 177 // a part uses only some of what all share
#endif

#define GRID_LIMIT 65536 // blocks; kernels loop over what is left, so that no grid is ever too large

// Failure leaves CUDA's last error for the host side to read.
template <typename... P, typename... A>
static gcuda_status launch(void (*kernel)(P...), int64_t n_blocks, int n_threads, gcuda_stream stream, A... args) {
    if (n_blocks <= 0) {
        return GCUDA_STATUS_SUCCESS;
    }
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned) (n_blocks < GRID_LIMIT ? n_blocks : GRID_LIMIT));
    config.blockDim = dim3((unsigned) n_threads);
    config.stream = stream;
    return cudaLaunchKernelEx(&config, kernel, args...) == cudaSuccess ? GCUDA_STATUS_SUCCESS : GCUDA_STATUS_FAILED;
}

static inline int64_t n_elements(const gcuda_array & a) { return a.ne[0] * a.ne[1] * a.ne[2] * a.ne[3]; }
static inline int64_t n_rows(const gcuda_array & a) { return a.ne[1] * a.ne[2] * a.ne[3]; }

template <typename... P, typename... A>
static gcuda_status launch_elements(void (*kernel)(P...), const gcuda_array & y, gcuda_stream stream, A... args) {
    return launch(kernel, (n_elements(y) + 255) / 256, 256, stream, args...);
}

struct d_index {
    int64_t i0, i1, i2, i3;
};

// Position of element i in logical order.
static inline __device__ d_index d_unravel(const int64_t * ne, int64_t i) {
    d_index x;
    x.i0 = i % ne[0];
    i /= ne[0];
    x.i1 = i % ne[1];
    i /= ne[1];
    x.i2 = i % ne[2];
    x.i3 = i / ne[2];
    return x;
}

static inline __device__ char * d_at(const gcuda_array & a, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    return (char *) a.data + i0 * (int64_t) a.nb[0] + i1 * (int64_t) a.nb[1] + i2 * (int64_t) a.nb[2] +
           i3 * (int64_t) a.nb[3];
}

static inline __device__ char * d_at(const gcuda_array & a, const d_index & x) { return d_at(a, x.i0, x.i1, x.i2, x.i3); }

// Row r, counting dimensions 1, 2, 3.
static inline __device__ char * d_row(const gcuda_array & a, int64_t r) {
    return d_at(a, 0, r % a.ne[1], r / a.ne[1] % a.ne[2], r / a.ne[1] / a.ne[2]);
}

static inline __device__ float d_load(gcuda_type type, const char * p) {
    switch (type) {
        case GCUDA_TYPE_F32: return *(const float *) p;
        case GCUDA_TYPE_F16: return __half2float(*(const __half *) p);
        case GCUDA_TYPE_BF16: return __bfloat162float(*(const __nv_bfloat16 *) p);
        default: return 0.0f;
    }
}

static inline __device__ void d_store(gcuda_type type, char * p, float v) {
    switch (type) {
        case GCUDA_TYPE_F32: *(float *) p = v; break;
        case GCUDA_TYPE_F16: *(__half *) p = __float2half_rn(v); break;
        case GCUDA_TYPE_BF16: *(__nv_bfloat16 *) p = __float2bfloat16_rn(v); break;
        default: break;
    }
}

// The same with the type known when compiling: T is float, __half, __nv_bfloat16.
static inline __device__ float d_f32(float v) { return v; }
static inline __device__ float d_f32(__half v) { return __half2float(v); }
static inline __device__ float d_f32(__nv_bfloat16 v) { return __bfloat162float(v); }
static inline __device__ void d_put(float * p, float v) { *p = v; }
static inline __device__ void d_put(__half * p, float v) { *p = __float2half_rn(v); }
static inline __device__ void d_put(__nv_bfloat16 * p, float v) { *p = __float2bfloat16_rn(v); }

// f of a value of the type, for kernels that are compiled for each: with_float(type, [&](auto t) { decltype(t) ... })
template <typename F> static gcuda_status with_float(gcuda_type type, F f) {
    switch (type) {
        case GCUDA_TYPE_F32: return f(float());
        case GCUDA_TYPE_F16: return f(__half());
        case GCUDA_TYPE_BF16: return f(__nv_bfloat16());
        default: return GCUDA_STATUS_UNSUPPORTED;
    }
}

// ---- sixteen bytes of a row at once ----
template <typename T> struct d_wide {
    static const int N = 16 / (int) sizeof(T);
};

static inline __device__ void d_load16(const float * p, float * v) {
    const float4 w = *(const float4 *) p;
    v[0] = w.x, v[1] = w.y, v[2] = w.z, v[3] = w.w;
}
template <typename T> static inline __device__ void d_load16(const T * p, float * v) {
    const uint4 w = *(const uint4 *) p;
    T h[8];
    memcpy(h, &w, 16);
    for (int i = 0; i < 8; ++i) { v[i] = d_f32(h[i]); }
}
static inline __device__ void d_store16(float * p, const float * v) {
    *(float4 *) p = make_float4(v[0], v[1], v[2], v[3]);
}
static inline __device__ void d_store16(__half * p, const float * v) {
    __half2 h[4];
    uint4 w;
    for (int i = 0; i < 4; ++i) { h[i] = __floats2half2_rn(v[2 * i], v[2 * i + 1]); }
    memcpy(&w, h, 16);
    *(uint4 *) p = w;
}
static inline __device__ void d_store16(__nv_bfloat16 * p, const float * v) {
    __nv_bfloat162 h[4];
    uint4 w;
    for (int i = 0; i < 4; ++i) { h[i] = __floats2bfloat162_rn(v[2 * i], v[2 * i + 1]); }
    memcpy(&w, h, 16);
    *(uint4 *) p = w;
}

// Elements [0, n) of them, the end of a row; what is missing is 0 and not written.
template <typename T> static inline __device__ void d_load_wide(const T * p, int64_t n, float * v) {
    if (n >= d_wide<T>::N) {
        d_load16(p, v);
        return;
    }
    for (int i = 0; i < d_wide<T>::N; ++i) { v[i] = i < n ? d_f32(p[i]) : 0.0f; }
}
template <typename T> static inline __device__ void d_store_wide(T * p, int64_t n, const float * v) {
    if (n >= d_wide<T>::N) {
        d_store16(p, v);
        return;
    }
    for (int i = 0; i < d_wide<T>::N; ++i) {
        if (i < n) { d_put(p + i, v[i]); }
    }
}

// Packed rows that all begin at multiples of 16 bytes.
static inline bool is_wide(const gcuda_array & a) {
    uintptr_t bits = (uintptr_t) a.data;
    for (int d = 1; d < 4; ++d) { bits |= a.ne[d] > 1 ? a.nb[d] : 0; }
    return a.nb[0] == gcuda_type_size(a.type) && bits % 16 == 0;
}

// ---- tiles: stretches of rows that 2^shift threads share, so that short rows fill a block too ----
#define TILE_BLOCK 256
struct tiles {
    int64_t n, per_row, n_rows;
    int shift;
};

// Of rows of y, a thread taking n_parts parts of n_wide elements from each tile.
static inline tiles tiles_of(const gcuda_array & y, int n_wide, int n_parts) {
    const int64_t n = (y.ne[0] + n_wide - 1) / n_wide;
    tiles t;
    t.shift = 0;
    while (t.shift < 8 && ((int64_t) n_parts << t.shift) < n) { ++t.shift; }
    t.per_row = (n + ((int64_t) n_parts << t.shift) - 1) / ((int64_t) n_parts << t.shift);
    t.n_rows = n_rows(y);
    t.n = t.per_row * t.n_rows;
    return t;
}

template <typename... P, typename... A>
static gcuda_status launch_tiles(void (*kernel)(P...), const tiles & t, gcuda_stream stream, A... args) {
    const int64_t per_block = TILE_BLOCK >> t.shift;
    return launch(kernel, (t.n + per_block - 1) / per_block, TILE_BLOCK, stream, args..., t);
}

#define FOR_TILES(tile, t) \
    for (int64_t tile = blockIdx.x * (int64_t) (TILE_BLOCK >> (t).shift) + (threadIdx.x >> (t).shift); tile < (t).n; \
         tile += gridDim.x * (int64_t) (TILE_BLOCK >> (t).shift))

// The row of a tile, and in i0 this thread's first element; its next ones are d_tile_step apart.
static inline __device__ d_index d_tile_at(
    const tiles & t, const int64_t * ne, int64_t tile, int n_wide, int n_parts) {
    d_index x = { 0, 0, 0, 0 };
    if (t.n_rows > 1) {
        const int64_t row = t.per_row > 1 ? tile / t.per_row : tile;
        tile -= row * t.per_row;
        x.i1 = row;
        if (row >= ne[1]) {
            x.i2 = row / ne[1];
            x.i1 = row - x.i2 * ne[1];
            if (x.i2 >= ne[2]) {
                x.i3 = x.i2 / ne[2];
                x.i2 -= x.i3 * ne[2];
            }
        }
    }
    x.i0 = ((tile * n_parts << t.shift) + (threadIdx.x & ((1 << t.shift) - 1))) * n_wide;
    return x;
}
static inline __device__ int64_t d_tile_step(const tiles & t, int n_wide) { return (int64_t) n_wide << t.shift; }

// Element i of a row of weights: floats, Q4_0 (element i and i + 16 of a block in one byte) and Q8_0.
static inline __device__ float d_weight(gcuda_type type, const char * row, int64_t i) {
    if (GCUDAI_KERNEL_HAS(Q4_0) && type == GCUDA_TYPE_Q4_0) {
        const gcuda_block_q4_0 * b = (const gcuda_block_q4_0 *) row + i / 32;
        const int k = (int) (i % 32), q = k < 16 ? b->qs[k] & 15 : b->qs[k - 16] >> 4;
        return __half2float(*(const __half *) &b->d) * (float) (q - 8);
    }
    if (GCUDAI_KERNEL_HAS(Q8_0) && type == GCUDA_TYPE_Q8_0) {
        const gcuda_block_q8_0 * b = (const gcuda_block_q8_0 *) row + i / 32;
        return __half2float(*(const __half *) &b->d) * (float) b->qs[i % 32];
    }
    return d_load(type, row + i * (type == GCUDA_TYPE_F32 ? 4 : 2));
}

struct d_sum_op {
    template <typename T> static inline __device__ T apply(T a, T b) { return a + b; }
};
struct d_max_op {
    template <typename T> static inline __device__ T apply(T a, T b) { return a > b ? a : b; }
};

template <typename OP, typename T> static inline __device__ T d_warp_reduce(T v) {
    for (int offset = 16; offset > 0; offset /= 2) {
        v = OP::apply(v, __shfl_xor_sync(0xffffffffu, v, offset));
    }
    return v;
}

// The result on every thread, in an order that depends on the block size alone. All threads of the block take part; the
// block is a multiple of 32 threads, at most 1024.
template <typename OP, typename T> static inline __device__ T d_block_reduce(T v, T neutral) {
    __shared__ T part[32];
    const int lane = (int) threadIdx.x % 32, warp = (int) threadIdx.x / 32;
    v = d_warp_reduce<OP>(v);
    __syncthreads(); // the last use of part is over
    if (lane == 0) {
        part[warp] = v;
    }
    __syncthreads();
    v = lane < (int) blockDim.x / 32 ? part[lane] : neutral;
    return d_warp_reduce<OP>(v);
}

static inline __device__ float d_block_sum(float v) { return d_block_reduce<d_sum_op>(v, 0.0f); }
static inline __device__ double d_block_sum(double v) { return d_block_reduce<d_sum_op>(v, 0.0); }
static inline __device__ float d_block_max(float v) { return d_block_reduce<d_max_op>(v, -INFINITY); }

#define FOR_ELEMENTS(i, n) for (int64_t i = blockIdx.x * (int64_t) blockDim.x + threadIdx.x; i < (n); i += (int64_t) gridDim.x * blockDim.x)
#define FOR_ROWS(r, n) for (int64_t r = blockIdx.x; r < (n); r += gridDim.x)
#define FOR_ROW_ELEMENTS(i, n) for (int64_t i = threadIdx.x; i < (n); i += blockDim.x)

static inline __device__ int64_t d_n(const gcuda_array & a) { return a.ne[0] * a.ne[1] * a.ne[2] * a.ne[3]; }
static inline __device__ int64_t d_rows(const gcuda_array & a) { return a.ne[1] * a.ne[2] * a.ne[3]; }

#if GCUDAI_PART(1)
// =====================================================================================================
// >>k-copy   copies and conversions, get_rows
// =====================================================================================================

// >>op:cpy  >>op:dup  >>op:cont -----------------------------------------------------------------------
// Floats to I32 truncate and saturate, NaN becomes 0.
static __device__ int32_t d_to_i32(float v) {
    return v != v ? 0 : v >= 2147483648.0f ? INT32_MAX : v < -2147483648.0f ? INT32_MIN : (int32_t) v;
}

static __global__ void k_cpy(const gcuda_cpy_args p) {
    FOR_ELEMENTS(i, d_n(p.y)) {
        const char * x = d_at(p.x, d_unravel(p.x.ne, i));
        char * y = d_at(p.y, d_unravel(p.y.ne, i));
        if (p.y.type == GCUDA_TYPE_I32) {
            *(int32_t *) y = p.x.type == GCUDA_TYPE_I32 ? *(const int32_t *) x : d_to_i32(d_load(p.x.type, x));
        } else if (p.x.type == GCUDA_TYPE_I32) {
            d_store(p.y.type, y, (float) *(const int32_t *) x);
        } else if (p.x.type == p.y.type && p.x.type != GCUDA_TYPE_F32) {
            *(uint16_t *) y = *(const uint16_t *) x; // NaN payloads too
        } else {
            d_store(p.y.type, y, d_load(p.x.type, x));
        }
    }
}

gcuda_status gcuda_launch_cpy(const gcuda_cpy_args * args, gcuda_stream stream) {
    return launch_elements(k_cpy, args->y, stream, *args);
}

// >>op:get_rows ---------------------------------------------------------------------------------------
// A block per row of the result. An index out of range gives a row of zeros and sets the flag.
static __global__ void k_get_rows(const gcuda_get_rows_args p) {
    FOR_ROWS(r, d_rows(p.y)) {
        const int64_t i1 = r % p.y.ne[1], i2 = r / p.y.ne[1] % p.y.ne[2], i3 = r / p.y.ne[1] / p.y.ne[2];
        const int32_t row = *(const int32_t *) d_at(p.ids, i1, i2, i3, 0);
        const bool is_ok = row >= 0 && row < p.x.ne[1];
        const char * x = is_ok ? d_at(p.x, 0, row, i2, i3) : nullptr;
        if (!is_ok && threadIdx.x == 0 && p.bad_index != nullptr) {
            *p.bad_index = 1;
        }
        FOR_ROW_ELEMENTS(i, p.y.ne[0]) {
            char * y = d_at(p.y, i, i1, i2, i3);
            if (p.x.type == GCUDA_TYPE_I32) {
                *(int32_t *) y = is_ok ? *(const int32_t *) (x + i * 4) : 0;
            } else {
                *(float *) y = is_ok ? d_weight(p.x.type, x, i) : 0.0f;
            }
        }
    }
}

gcuda_status gcuda_launch_get_rows(const gcuda_get_rows_args * args, gcuda_stream stream) {
    return launch(k_get_rows, n_rows(args->y), 256, stream, *args);
}
#endif // part 1

#if GCUDAI_PART(2)
// =====================================================================================================
// >>k-elements   unary, binary, scale and their like, optimizer steps
// =====================================================================================================

// The exponential never overflows, and the tail towards 0 keeps its digits.
static __device__ float d_sigmoid(float x) {
    const float e = expf(-fabsf(x));
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

// >>op:add  >>op:sub  >>op:mul  >>op:div  >>op:add1 ---------------------------------------------------
struct d_add {
    static __device__ float apply(float a, float b) { return a + b; }
};
struct d_sub {
    static __device__ float apply(float a, float b) { return a - b; }
};
struct d_mul {
    static __device__ float apply(float a, float b) { return a * b; }
};
struct d_div {
    static __device__ float apply(float a, float b) { return a / b; }
};
// >>op:silu_back   a is the gradient, b the input: g s (1 + x (1 - s))
struct d_silu_back {
    static __device__ float apply(float g, float x) {
        const float s = d_sigmoid(x);
        return g * s * (1.0f + x * (1.0f - s));
    }
};

// y = a o b, b repeated. Sixteen bytes at a time where rows allow it and b repeats whole rows or one element;
// else element by element, of any types and strides.
//   floor   a read, y written, b read once
template <typename TA, typename TB, typename TY, typename OP>
static __global__ void k_binary_wide(const gcuda_binary_args p, const tiles t) {
    const int N = d_wide<TA>::N < d_wide<TY>::N ? d_wide<TY>::N : d_wide<TA>::N;
    FOR_TILES(tile, t) {
        const d_index i = d_tile_at(t, p.y.ne, tile, N, 2);
        const TA * a = (const TA *) d_at(p.a, 0, i.i1, i.i2, i.i3);
        const TB * b = (const TB *) (t.n_rows == 1 ? (char *) p.b.data
                                                   : d_at(p.b, 0, i.i1 % p.b.ne[1], i.i2 % p.b.ne[2], i.i3 % p.b.ne[3]));
        TY * y = (TY *) d_at(p.y, 0, i.i1, i.i2, i.i3);
        float u[2][N], v[2][N];
        for (int k = 0; k < 2; ++k) {
            const int64_t at = i.i0 + k * d_tile_step(t, N), n = p.y.ne[0] - at;
            for (int j = 0; j < N && n > 0; j += d_wide<TA>::N) { d_load_wide(a + at + j, n - j, u[k] + j); }
            for (int j = 0; j < N && n > 0 && p.b.ne[0] > 1; j += d_wide<TB>::N) { d_load_wide(b + at + j, n - j, v[k] + j); }
            for (int j = 0; j < N && n > 0 && p.b.ne[0] == 1; ++j) { v[k][j] = d_f32(b[0]); }
        }
        for (int k = 0; k < 2; ++k) {
            const int64_t at = i.i0 + k * d_tile_step(t, N), n = p.y.ne[0] - at;
            for (int j = 0; j < N; ++j) { u[k][j] = OP::apply(u[k][j], v[k][j]); }
            for (int j = 0; j < N && n > 0; j += d_wide<TY>::N) { d_store_wide(y + at + j, n - j, u[k] + j); }
        }
    }
}

template <typename OP> static __global__ void k_binary(const gcuda_binary_args p, const tiles t) {
    FOR_TILES(tile, t) {
        const d_index i = d_tile_at(t, p.y.ne, tile, 1, 4);
        const int64_t b1 = i.i1 % p.b.ne[1], b2 = i.i2 % p.b.ne[2], b3 = i.i3 % p.b.ne[3];
        float v[4];
        for (int k = 0; k < 4; ++k) {
            const int64_t at = i.i0 + k * d_tile_step(t, 1);
            if (at < p.y.ne[0]) {
                const float a = d_load(p.a.type, d_at(p.a, at, i.i1, i.i2, i.i3));
                v[k] = OP::apply(a, d_load(p.b.type, d_at(p.b, at < p.b.ne[0] ? at : at % p.b.ne[0], b1, b2, b3)));
            }
        }
        for (int k = 0; k < 4; ++k) {
            const int64_t at = i.i0 + k * d_tile_step(t, 1);
            if (at < p.y.ne[0]) { d_store(p.y.type, d_at(p.y, at, i.i1, i.i2, i.i3), v[k]); }
        }
    }
}

template <typename TA, typename TB, typename TY, typename OP>
static gcuda_status binary_wide(const gcuda_binary_args & p, gcuda_stream stream) {
    const int n = d_wide<TA>::N < d_wide<TY>::N ? d_wide<TY>::N : d_wide<TA>::N;
    return launch_tiles(k_binary_wide<TA, TB, TY, OP>, tiles_of(p.y, n, 2), stream, p);
}

template <typename OP> static gcuda_status binary(const gcuda_binary_args & p, gcuda_stream stream) {
    const bool is_row = p.b.ne[0] == p.y.ne[0] && is_wide(p.b), can = is_wide(p.a) && is_wide(p.y);
    if (can && (is_row || p.b.ne[0] == 1)) {
        const int types = (int) p.a.type * 10000 + (int) p.b.type * 100 + (int) p.y.type;
        switch (types) { // F32 is 0, F16 1, BF16 30
            case 0: return binary_wide<float, float, float, OP>(p, stream);
            case 10101: return binary_wide<__half, __half, __half, OP>(p, stream);
            case 10001: return binary_wide<__half, float, __half, OP>(p, stream);
            case 303030: return binary_wide<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16, OP>(p, stream);
            case 300030: return binary_wide<__nv_bfloat16, float, __nv_bfloat16, OP>(p, stream);
            default: break;
        }
    }
    return launch_tiles(k_binary<OP>, tiles_of(p.y, 1, 4), stream, p);
}

gcuda_status gcuda_launch_add(const gcuda_binary_args * args, gcuda_stream stream) {
    return binary<d_add>(*args, stream);
}
gcuda_status gcuda_launch_sub(const gcuda_binary_args * args, gcuda_stream stream) {
    return binary<d_sub>(*args, stream);
}
gcuda_status gcuda_launch_mul(const gcuda_binary_args * args, gcuda_stream stream) {
    return binary<d_mul>(*args, stream);
}
gcuda_status gcuda_launch_div(const gcuda_binary_args * args, gcuda_stream stream) {
    return binary<d_div>(*args, stream);
}
gcuda_status gcuda_launch_silu_back(const gcuda_binary_args * args, gcuda_stream stream) {
    return binary<d_silu_back>(*args, stream);
}

// >>op:unary ------------------------------------------------------------------------------------------
// 1/2 (1 + tanh(u)) is the logistic function of 2 u, which has digits left where tanh is -1.
static __device__ float d_gelu(float x) {
    return x * d_sigmoid(2.0f * 0.79788456080286535588f * x * (1.0f + 0.044715f * x * x));
}
static __device__ float d_hardsigmoid(float x) { return fminf(1.0f, fmaxf(0.0f, (x + 3.0f) / 6.0f)); }

static __device__ float d_xielu(float x, const float * p) {
    return x > 0.0f ? p[2] * x * x + p[3] * x : (expm1f(fminf(x, p[4])) - x) * p[1] + p[3] * x;
}

static __device__ float d_unary(gcuda_unary_op op, float x, const float * p) {
    switch (op) {
        case GCUDA_UNARY_OP_ABS: return fabsf(x);
        case GCUDA_UNARY_OP_SGN: return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : 0.0f;
        case GCUDA_UNARY_OP_NEG: return -x;
        case GCUDA_UNARY_OP_STEP: return x > 0.0f ? 1.0f : 0.0f;
        case GCUDA_UNARY_OP_TANH: return tanhf(x);
        case GCUDA_UNARY_OP_ELU: return x > 0.0f ? x : expm1f(x);
        case GCUDA_UNARY_OP_RELU: return x > 0.0f ? x : 0.0f;
        case GCUDA_UNARY_OP_SIGMOID: return d_sigmoid(x);
        case GCUDA_UNARY_OP_GELU: return d_gelu(x);
        case GCUDA_UNARY_OP_GELU_QUICK: return x * d_sigmoid(1.702f * x);
        case GCUDA_UNARY_OP_SILU: return x * d_sigmoid(x);
        case GCUDA_UNARY_OP_HARDSWISH: return x * d_hardsigmoid(x);
        case GCUDA_UNARY_OP_HARDSIGMOID: return d_hardsigmoid(x);
        case GCUDA_UNARY_OP_EXP: return expf(x);
        case GCUDA_UNARY_OP_EXPM1: return expm1f(x);
        case GCUDA_UNARY_OP_SOFTPLUS: return x > 20.0f ? x : log1pf(expf(x));
        case GCUDA_UNARY_OP_GELU_ERF: return 0.5f * x * erfcf(x * -0.70710678118654752440f);
        case GCUDA_UNARY_OP_XIELU: return d_xielu(x, p);
        case GCUDA_UNARY_OP_FLOOR: return floorf(x);
        case GCUDA_UNARY_OP_CEIL: return ceilf(x);
        case GCUDA_UNARY_OP_ROUND: return roundf(x);
        case GCUDA_UNARY_OP_TRUNC: return truncf(x);
        default: return x;
    }
}

template <int OP> struct d_unary_op {
    static __device__ float apply(float x, const gcuda_unary_args & p) { return d_unary((gcuda_unary_op) OP, x, p.p); }
};
struct d_unary_any {
    static __device__ float apply(float x, const gcuda_unary_args & p) { return d_unary(p.op, x, p.p); }
};

// y = f(x), sixteen bytes at a time, or element by element with any strides.
//   floor   x read, y written: 2 * n * sizeof(T) bytes
template <typename T, typename OP, typename ARGS> static __global__ void k_map_wide(const ARGS p, const tiles t) {
    const int N = d_wide<T>::N;
    FOR_TILES(tile, t) {
        const d_index i = d_tile_at(t, p.y.ne, tile, N, 2);
        const T * x = (const T *) d_at(p.x, 0, i.i1, i.i2, i.i3) + i.i0;
        T * y = (T *) d_at(p.y, 0, i.i1, i.i2, i.i3) + i.i0;
        const int64_t n = p.y.ne[0] - i.i0, step = d_tile_step(t, N);
        float v[2][N];
        for (int k = 0; k < 2; ++k) { d_load_wide(x + k * step, n - k * step, v[k]); }
        for (int k = 0; k < 2; ++k) {
            for (int j = 0; j < N; ++j) { v[k][j] = OP::apply(v[k][j], p); }
            d_store_wide(y + k * step, n - k * step, v[k]);
        }
    }
}

template <typename OP, typename ARGS> static __global__ void k_map(const ARGS p, const tiles t) {
    FOR_TILES(tile, t) {
        const d_index i = d_tile_at(t, p.y.ne, tile, 1, 4);
        float v[4];
        for (int k = 0; k < 4; ++k) {
            const int64_t at = i.i0 + k * d_tile_step(t, 1);
            v[k] = at < p.y.ne[0] ? OP::apply(d_load(p.x.type, d_at(p.x, at, i.i1, i.i2, i.i3)), p) : 0.0f;
        }
        for (int k = 0; k < 4; ++k) {
            const int64_t at = i.i0 + k * d_tile_step(t, 1);
            if (at < p.y.ne[0]) { d_store(p.y.type, d_at(p.y, at, i.i1, i.i2, i.i3), v[k]); }
        }
    }
}

template <typename OP, typename ANY, typename ARGS> static gcuda_status map(const ARGS & p, gcuda_stream stream) {
    if (p.x.type != p.y.type || !is_wide(p.x) || !is_wide(p.y)) {
        return launch_tiles(k_map<ANY, ARGS>, tiles_of(p.y, 1, 4), stream, p);
    }
    return with_float(p.x.type, [&](auto v) {
        typedef decltype(v) T;
        return launch_tiles(k_map_wide<T, OP, ARGS>, tiles_of(p.y, d_wide<T>::N, 2), stream, p);
    });
}

gcuda_status gcuda_launch_unary(const gcuda_unary_args * args, gcuda_stream stream) {
    switch (args->op) {
#define X(ID, value) \
    case GCUDA_UNARY_OP_##ID: return map<d_unary_op<value>, d_unary_any>(*args, stream);
        GCUDA_UNARY_OPS(X)
#undef X
        default: return GCUDA_STATUS_UNSUPPORTED;
    }
}

// >>op:glu --------------------------------------------------------------------------------------------
//   floor   x and g read, y written: 3 * n * sizeof(T) bytes
template <int OP> static __device__ float d_glu(float x, float g, const gcuda_glu_args & p) {
    if (OP == GCUDA_GLU_OP_SWIGLU_OAI) {
        const float a = x < p.limit ? x : p.limit, b = g < -p.limit ? -p.limit : g > p.limit ? p.limit : g;
        return a * d_sigmoid(p.alpha * a) * (b + 1.0f);
    }
    switch (OP) {
        case GCUDA_GLU_OP_REGLU: return x > 0.0f ? x * g : 0.0f;
        case GCUDA_GLU_OP_GEGLU: return d_unary(GCUDA_UNARY_OP_GELU, x, nullptr) * g;
        case GCUDA_GLU_OP_SWIGLU: return d_unary(GCUDA_UNARY_OP_SILU, x, nullptr) * g;
        case GCUDA_GLU_OP_GEGLU_ERF: return d_unary(GCUDA_UNARY_OP_GELU_ERF, x, nullptr) * g;
        default: return d_unary(GCUDA_UNARY_OP_GELU_QUICK, x, nullptr) * g;
    }
}

template <typename T, int OP> static __global__ void k_glu_wide(const gcuda_glu_args p, const tiles t) {
    const int N = d_wide<T>::N;
    FOR_TILES(tile, t) {
        const d_index i = d_tile_at(t, p.y.ne, tile, N, 2);
        const T * x = (const T *) d_at(p.x, 0, i.i1, i.i2, i.i3) + i.i0, * g = (const T *) d_at(p.g, 0, i.i1, i.i2, i.i3) + i.i0;
        T * y = (T *) d_at(p.y, 0, i.i1, i.i2, i.i3) + i.i0;
        const int64_t n = p.y.ne[0] - i.i0, step = d_tile_step(t, N);
        float u[2][N], v[2][N];
        for (int k = 0; k < 2; ++k) {
            d_load_wide(x + k * step, n - k * step, u[k]);
            d_load_wide(g + k * step, n - k * step, v[k]);
        }
        for (int k = 0; k < 2; ++k) {
            for (int j = 0; j < N; ++j) { u[k][j] = d_glu<OP>(u[k][j], v[k][j], p); }
            d_store_wide(y + k * step, n - k * step, u[k]);
        }
    }
}

template <int OP> static __global__ void k_glu(const gcuda_glu_args p, const tiles t) {
    FOR_TILES(tile, t) {
        const d_index i = d_tile_at(t, p.y.ne, tile, 1, 4);
        for (int k = 0; k < 4; ++k) {
            const int64_t at = i.i0 + k * d_tile_step(t, 1);
            if (at < p.y.ne[0]) {
                d_store(p.y.type, d_at(p.y, at, i.i1, i.i2, i.i3),
                    d_glu<OP>(d_load(p.x.type, d_at(p.x, at, i.i1, i.i2, i.i3)),
                        d_load(p.g.type, d_at(p.g, at, i.i1, i.i2, i.i3)), p));
            }
        }
    }
}

template <int OP> static gcuda_status glu(const gcuda_glu_args & p, gcuda_stream stream) {
    if (!is_wide(p.x) || !is_wide(p.g) || !is_wide(p.y)) {
        return launch_tiles(k_glu<OP>, tiles_of(p.y, 1, 4), stream, p);
    }
    return with_float(p.y.type, [&](auto v) {
        typedef decltype(v) T;
        return launch_tiles(k_glu_wide<T, OP>, tiles_of(p.y, d_wide<T>::N, 2), stream, p);
    });
}

gcuda_status gcuda_launch_glu(const gcuda_glu_args * args, gcuda_stream stream) {
    switch (args->op) {
        case GCUDA_GLU_OP_REGLU: return glu<GCUDA_GLU_OP_REGLU>(*args, stream);
        case GCUDA_GLU_OP_GEGLU: return glu<GCUDA_GLU_OP_GEGLU>(*args, stream);
        case GCUDA_GLU_OP_SWIGLU: return glu<GCUDA_GLU_OP_SWIGLU>(*args, stream);
        case GCUDA_GLU_OP_SWIGLU_OAI: return glu<GCUDA_GLU_OP_SWIGLU_OAI>(*args, stream);
        case GCUDA_GLU_OP_GEGLU_ERF: return glu<GCUDA_GLU_OP_GEGLU_ERF>(*args, stream);
        case GCUDA_GLU_OP_GEGLU_QUICK: return glu<GCUDA_GLU_OP_GEGLU_QUICK>(*args, stream);
        default: return GCUDA_STATUS_UNSUPPORTED;
    }
}

// >>op:scale  >>op:sqr  >>op:sqrt  >>op:sin  >>op:cos  >>op:log  >>op:clamp  >>op:leaky_relu ---------
struct d_scale {
    static __device__ float apply(float x, const gcuda_map_args & p) { return p.p[0] * x + p.p[1]; }
};
struct d_sqr {
    static __device__ float apply(float x, const gcuda_map_args &) { return x * x; }
};
struct d_sqrt {
    static __device__ float apply(float x, const gcuda_map_args &) { return sqrtf(x); }
};
struct d_sin {
    static __device__ float apply(float x, const gcuda_map_args &) { return sinf(x); }
};
struct d_cos {
    static __device__ float apply(float x, const gcuda_map_args &) { return cosf(x); }
};
struct d_log {
    static __device__ float apply(float x, const gcuda_map_args &) { return logf(x); }
};
struct d_clamp {
    static __device__ float apply(float x, const gcuda_map_args & p) { return x < p.p[0] ? p.p[0] : x > p.p[1] ? p.p[1] : x; }
};
struct d_leaky_relu {
    static __device__ float apply(float x, const gcuda_map_args & p) { return x > 0.0f ? x : p.p[0] * x; }
};

gcuda_status gcuda_launch_scale(const gcuda_map_args * args, gcuda_stream stream) {
    return map<d_scale, d_scale>(*args, stream);
}
gcuda_status gcuda_launch_sqr(const gcuda_map_args * args, gcuda_stream stream) {
    return map<d_sqr, d_sqr>(*args, stream);
}
gcuda_status gcuda_launch_sqrt(const gcuda_map_args * args, gcuda_stream stream) {
    return map<d_sqrt, d_sqrt>(*args, stream);
}
gcuda_status gcuda_launch_sin(const gcuda_map_args * args, gcuda_stream stream) {
    return map<d_sin, d_sin>(*args, stream);
}
gcuda_status gcuda_launch_cos(const gcuda_map_args * args, gcuda_stream stream) {
    return map<d_cos, d_cos>(*args, stream);
}
gcuda_status gcuda_launch_log(const gcuda_map_args * args, gcuda_stream stream) {
    return map<d_log, d_log>(*args, stream);
}
gcuda_status gcuda_launch_clamp(const gcuda_map_args * args, gcuda_stream stream) {
    return map<d_clamp, d_clamp>(*args, stream);
}
gcuda_status gcuda_launch_leaky_relu(const gcuda_map_args * args, gcuda_stream stream) {
    return map<d_leaky_relu, d_leaky_relu>(*args, stream);
}

// >>op:opt_step_adamw ---------------------------------------------------------------------------------
// params: alpha, beta1, beta2, eps, weight decay, 1 / (1 - beta1^t), 1 / (1 - beta2^t)
static __global__ void k_opt_step_adamw(const gcuda_opt_step_args p) {
    const float * c = (const float *) p.params.data;
    FOR_ELEMENTS(i, d_n(p.a)) {
        float * a = (float *) p.a.data + i, * m = (float *) p.m.data + i, * v = (float *) p.v.data + i;
        const float g = ((const float *) p.grad.data)[i];
        *m = *m * c[1] + g * (1.0f - c[1]);
        *v = *v * c[2] + g * g * (1.0f - c[2]);
        *a = *a * (1.0f - c[0] * c[4]) - c[0] * (*m * c[5]) / (sqrtf(*v * c[6]) + c[3]);
    }
}

gcuda_status gcuda_launch_opt_step_adamw(const gcuda_opt_step_args * args, gcuda_stream stream) {
    return launch_elements(k_opt_step_adamw, args->a, stream, *args);
}

// >>op:opt_step_sgd -----------------------------------------------------------------------------------
static __global__ void k_opt_step_sgd(const gcuda_opt_step_args p) {
    const float * c = (const float *) p.params.data;
    FOR_ELEMENTS(i, d_n(p.a)) {
        float * a = (float *) p.a.data + i;
        *a = *a * (1.0f - c[0] * c[1]) - c[0] * ((const float *) p.grad.data)[i];
    }
}

gcuda_status gcuda_launch_opt_step_sgd(const gcuda_opt_step_args * args, gcuda_stream stream) {
    return launch_elements(k_opt_step_sgd, args->a, stream, *args);
}
#endif // part 2

#if GCUDAI_PART(3)
// =====================================================================================================
// >>k-reduce   sums, norms, argmax, soft_max, cross entropy
// =====================================================================================================

// >>op:rms_norm ---------------------------------------------------------------------------------------
// A block walks rows; each row is read twice. x == y is safe: a thread overwrites only what it alone reads.
static __global__ void k_rms_norm(const gcuda_norm_args p) {
    FOR_ROWS(r, d_rows(p.y)) {
        const char * x = d_row(p.x, r);
        char * y = d_row(p.y, r);
        float sum = 0.0f;
        FOR_ROW_ELEMENTS(i, p.x.ne[0]) {
            const float v = d_load(p.x.type, x + i * p.x.nb[0]);
            sum += v * v;
        }
        const float scale = 1.0f / sqrtf(d_block_sum(sum) / (float) p.x.ne[0] + p.eps);
        FOR_ROW_ELEMENTS(i, p.x.ne[0]) {
            d_store(p.y.type, y + i * p.y.nb[0], scale * d_load(p.x.type, x + i * p.x.nb[0]));
        }
    }
}

gcuda_status gcuda_launch_rms_norm(const gcuda_norm_args * args, gcuda_stream stream) {
    return launch(k_rms_norm, n_rows(args->y), 256, stream, *args);
}

// A tensor to one number: up to N_PARTIALS blocks leave a partial result each in scratch, and one more adds those in
// their order. Few elements take one block and no scratch.
#define N_PARTIALS 1024
#define PARTIAL_MIN 32768 // elements below which one block is faster than two launches

static inline int64_t n_partials(const gcuda_array & x) {
    const int64_t n = n_elements(x) / PARTIAL_MIN;
    return n <= 1 ? 1 : n < N_PARTIALS ? n : N_PARTIALS;
}

static size_t partial_bytes(const gcuda_array & x) { return n_partials(x) > 1 ? (size_t) n_partials(x) * 8 : 0; }

// >>op:sum --------------------------------------------------------------------------------------------
//   floor   x read once: ne0 * n_rows * sizeof(T) bytes
// Sums in double, the partial ones too.
static __device__ void d_sum_end(const gcuda_sum_args & p, double sum) {
    sum = d_block_sum(sum);
    if (threadIdx.x == 0 && gridDim.x > 1) {
        ((double *) p.scratch)[blockIdx.x] = sum;
    } else if (threadIdx.x == 0) {
        d_store(p.y.type, (char *) p.y.data, (float) sum);
    }
}

template <typename T> static __global__ void k_sum_packed(const gcuda_sum_args p) {
    const int64_t n = d_n(p.x), step = (int64_t) gridDim.x * blockDim.x;
    const T * x = (const T *) p.x.data;
    double sum = 0.0;
    int64_t i = blockIdx.x * (int64_t) blockDim.x + threadIdx.x;
    for (; i + 3 * step < n; i += 4 * step) {
        sum += ((double) d_f32(x[i]) + (double) d_f32(x[i + step])) +
               ((double) d_f32(x[i + 2 * step]) + (double) d_f32(x[i + 3 * step]));
    }
    for (; i < n; i += step) { sum += (double) d_f32(x[i]); }
    d_sum_end(p, sum);
}

static __global__ void k_sum(const gcuda_sum_args p) {
    double sum = 0.0;
    FOR_ELEMENTS(i, d_n(p.x)) { sum += (double) d_load(p.x.type, d_at(p.x, d_unravel(p.x.ne, i))); }
    d_sum_end(p, sum);
}

static __global__ void k_sum_partials(const gcuda_sum_args p, int64_t n) {
    double sum = 0.0;
    FOR_ROW_ELEMENTS(i, n) { sum += ((const double *) p.scratch)[i]; }
    d_sum_end(p, sum);
}

size_t gcuda_sum_scratch_bytes(const gcuda_sum_args * args) { return partial_bytes(args->x); }

gcuda_status gcuda_launch_sum(const gcuda_sum_args * args, gcuda_stream stream) {
    const int64_t n = n_partials(args->x);
    const bool is_packed = n_rows(args->x) == 1 && args->x.nb[0] == gcuda_type_size(args->x.type); // rows are folded
    const gcuda_status st =
        is_packed ? with_float(args->x.type, [&](auto t) { return launch(k_sum_packed<decltype(t)>, n, 512, stream, *args); })
                  : launch(k_sum, n, 512, stream, *args);
    return st == GCUDA_STATUS_SUCCESS && n > 1 ? launch(k_sum_partials, 1, 256, stream, *args, n) : st;
}

// >>op:sum_rows  >>op:mean ----------------------------------------------------------------------------
static __global__ void k_sum_rows(const gcuda_reduce_args p, float divisor) {
    FOR_ROWS(r, d_rows(p.x)) {
        const char * x = d_row(p.x, r);
        float sum = 0.0f;
        FOR_ROW_ELEMENTS(i, p.x.ne[0]) { sum += d_load(p.x.type, x + i * p.x.nb[0]); }
        sum = d_block_sum(sum);
        if (threadIdx.x == 0) {
            d_store(p.y.type, d_row(p.y, r), sum / divisor);
        }
    }
}

gcuda_status gcuda_launch_sum_rows(const gcuda_reduce_args * args, gcuda_stream stream) {
    return launch(k_sum_rows, n_rows(args->x), 256, stream, *args, 1.0f);
}
gcuda_status gcuda_launch_mean(const gcuda_reduce_args * args, gcuda_stream stream) {
    return launch(k_sum_rows, n_rows(args->x), 256, stream, *args, (float) args->x.ne[0]);
}

// >>op:argmax -----------------------------------------------------------------------------------------
// Of equal maxima the last one, and of a row without any number above -inf the last element.
struct d_best {
    float value;
    int32_t index;
};

static __device__ d_best d_better(const d_best & a, const d_best & b) {
    return a.value > b.value || (a.value == b.value && a.index > b.index) ? a : b;
}

static __global__ void k_argmax(const gcuda_reduce_args p) {
    __shared__ d_best part[256];
    FOR_ROWS(r, d_rows(p.x)) {
        const char * x = d_row(p.x, r);
        d_best best = { -INFINITY, (int32_t) (p.x.ne[0] - 1) };
        FOR_ROW_ELEMENTS(i, p.x.ne[0]) {
            const d_best here = { d_load(p.x.type, x + i * p.x.nb[0]), (int32_t) i };
            best = d_better(here, best);
        }
        __syncthreads();
        part[threadIdx.x] = best;
        for (int n = (int) blockDim.x / 2; n > 0; n /= 2) {
            __syncthreads();
            if ((int) threadIdx.x < n) {
                part[threadIdx.x] = d_better(part[threadIdx.x], part[threadIdx.x + n]);
            }
        }
        if (threadIdx.x == 0) {
            ((int32_t *) p.y.data)[r] = part[0].index;
        }
    }
}

gcuda_status gcuda_launch_argmax(const gcuda_reduce_args * args, gcuda_stream stream) {
    return launch(k_argmax, n_rows(args->x), 256, stream, *args);
}

// >>op:count_equal ------------------------------------------------------------------------------------
//   floor   a and b read once: 8 * ne0 * n_rows bytes
static __device__ void d_count_end(const gcuda_count_equal_args & p, long long n) {
    n = d_block_reduce<d_sum_op>(n, 0LL);
    if (threadIdx.x == 0) {
        *(gridDim.x > 1 ? (int64_t *) p.scratch + blockIdx.x : (int64_t *) p.y.data) = n;
    }
}

static __global__ void k_count_equal(const gcuda_count_equal_args p) {
    const bool is_packed = d_rows(p.a) == 1 && p.a.nb[0] == 4 && p.b.nb[0] == 4;
    long long n = 0;
    FOR_ELEMENTS(i, d_n(p.a)) {
        if (is_packed) {
            n += ((const int32_t *) p.a.data)[i] == ((const int32_t *) p.b.data)[i];
        } else {
            const d_index x = d_unravel(p.a.ne, i);
            n += *(const int32_t *) d_at(p.a, x) == *(const int32_t *) d_at(p.b, x);
        }
    }
    d_count_end(p, n);
}

static __global__ void k_count_partials(const gcuda_count_equal_args p, int64_t n_parts) {
    long long n = 0;
    FOR_ROW_ELEMENTS(i, n_parts) { n += ((const int64_t *) p.scratch)[i]; }
    d_count_end(p, n);
}

size_t gcuda_count_equal_scratch_bytes(const gcuda_count_equal_args * args) { return partial_bytes(args->a); }

gcuda_status gcuda_launch_count_equal(const gcuda_count_equal_args * args, gcuda_stream stream) {
    const int64_t n = n_partials(args->a);
    const gcuda_status st = launch(k_count_equal, n, 512, stream, *args);
    return st == GCUDA_STATUS_SUCCESS && n > 1 ? launch(k_count_partials, 1, 256, stream, *args, n) : st;
}

// >>op:soft_max ---------------------------------------------------------------------------------------
// w = x scale + slope mask, with the head's ALiBi slope (Press et al. 2022, arXiv:2108.12409)
static __device__ float d_slope(float max_bias, int64_t n_head, int64_t head) {
    if (max_bias <= 0.0f) {
        return 1.0f;
    }
    const int64_t l = (int64_t) 1 << (int) floorf(log2f((float) n_head));
    return head < l ? powf(exp2f(-max_bias / (float) l), (float) (head + 1))
                    : powf(exp2f(-max_bias / 2.0f / (float) l), (float) (2 * (head - l) + 1));
}

static __device__ float d_logit(
    const gcuda_soft_max_args & p, const char * x, const char * mask, float slope, int64_t i) {
    const float w = d_load(p.x.type, x + i * p.x.nb[0]) * p.scale;
    return mask != nullptr ? w + slope * d_load(p.mask.type, mask + i * p.mask.nb[0]) : w;
}

static __global__ void k_soft_max(const gcuda_soft_max_args p) {
    FOR_ROWS(r, d_rows(p.y)) {
        const int64_t i1 = r % p.x.ne[1], i2 = r / p.x.ne[1] % p.x.ne[2], i3 = r / p.x.ne[1] / p.x.ne[2];
        const char * x = d_row(p.x, r);
        const char * mask =
            p.mask.data != nullptr ? d_at(p.mask, 0, i1, i2 % p.mask.ne[2], i3 % p.mask.ne[3]) : nullptr;
        const float slope = d_slope(p.max_bias, p.x.ne[2], i2);
        const float sink = p.sinks.data != nullptr
                               ? d_load(p.sinks.type, (const char *) p.sinks.data + i2 * p.sinks.nb[0])
                               : -INFINITY;
        char * y = d_row(p.y, r);
        float max = sink, sum = 0.0f;
        FOR_ROW_ELEMENTS(i, p.x.ne[0]) { max = fmaxf(max, d_logit(p, x, mask, slope, i)); }
        max = d_block_max(max);
        const float base = max == -INFINITY ? 0.0f : max; // a row that is masked altogether gives zeros
        FOR_ROW_ELEMENTS(i, p.x.ne[0]) { sum += expf(d_logit(p, x, mask, slope, i) - base); }
        sum = d_block_sum(sum) + expf(sink - base);
        const float scale = sum > 0.0f ? 1.0f / sum : 0.0f;
        FOR_ROW_ELEMENTS(i, p.x.ne[0]) {
            d_store(p.y.type, y + i * p.y.nb[0], scale * expf(d_logit(p, x, mask, slope, i) - base));
        }
    }
}

gcuda_status gcuda_launch_soft_max(const gcuda_soft_max_args * args, gcuda_stream stream) {
    return launch(k_soft_max, n_rows(args->y), 256, stream, *args);
}

// >>op:cross_entropy_loss -----------------------------------------------------------------------------
// ln sum_i exp(a_i) of a row, on every thread.
static __device__ float d_log_sum_exp(const gcuda_array & a, const char * x) {
    float max = -INFINITY, sum = 0.0f;
    FOR_ROW_ELEMENTS(i, a.ne[0]) { max = fmaxf(max, d_load(a.type, x + i * a.nb[0])); }
    max = d_block_max(max);
    FOR_ROW_ELEMENTS(i, a.ne[0]) { sum += expf(d_load(a.type, x + i * a.nb[0]) - max); }
    return max + logf(d_block_sum(sum));
}

// Rows in turn; a block leaves what its rows lose in scratch, unless it is alone.
//   floor   logits and labels read once: 2 * ne0 * n_rows * sizeof(T) bytes
static __device__ void d_loss_end(const gcuda_cross_entropy_args & p, double loss) {
    loss = d_block_sum(loss);
    if (threadIdx.x == 0 && gridDim.x > 1) {
        ((double *) p.scratch)[blockIdx.x] = loss;
    } else if (threadIdx.x == 0) {
        const int64_t n = d_rows(p.logits);
        d_store(p.y.type, (char *) p.y.data, n > 0 ? (float) (loss / (double) n) : 0.0f);
    }
}

static __global__ void k_cross_entropy_loss(const gcuda_cross_entropy_args p) {
    double loss = 0.0;
    FOR_ROWS(r, d_rows(p.logits)) {
        const char * x = d_row(p.logits, r), * b = d_row(p.labels, r);
        const float norm = d_log_sum_exp(p.logits, x);
        FOR_ROW_ELEMENTS(i, p.logits.ne[0]) {
            loss -= (double) ((d_load(p.logits.type, x + i * p.logits.nb[0]) - norm) *
                              d_load(p.labels.type, b + i * p.labels.nb[0]));
        }
    }
    d_loss_end(p, loss);
}

static __global__ void k_loss_partials(const gcuda_cross_entropy_args p, int64_t n) {
    double loss = 0.0;
    FOR_ROW_ELEMENTS(i, n) { loss += ((const double *) p.scratch)[i]; }
    d_loss_end(p, loss);
}

static int64_t n_losses(const gcuda_array & x) { return n_rows(x) < 1 ? 1 : n_rows(x) < N_PARTIALS ? n_rows(x) : N_PARTIALS; }

size_t gcuda_cross_entropy_loss_scratch_bytes(const gcuda_cross_entropy_args * args) {
    return n_losses(args->logits) > 1 ? (size_t) n_losses(args->logits) * 8 : 0;
}

gcuda_status gcuda_launch_cross_entropy_loss(const gcuda_cross_entropy_args * args, gcuda_stream stream) {
    const int64_t n = n_losses(args->logits);
    const gcuda_status st = launch(k_cross_entropy_loss, n, args->logits.ne[0] <= 1024 ? 256 : 1024, stream, *args);
    return st == GCUDA_STATUS_SUCCESS && n > 1 ? launch(k_loss_partials, 1, 256, stream, *args, n) : st;
}

// >>op:cross_entropy_loss_back ------------------------------------------------------------------------
static __global__ void k_cross_entropy_loss_back(const gcuda_cross_entropy_args p) {
    const float scale = d_load(p.grad.type, (const char *) p.grad.data) / (float) d_rows(p.logits);
    FOR_ROWS(r, d_rows(p.logits)) {
        const char * x = d_row(p.logits, r), * b = d_row(p.labels, r);
        char * y = d_row(p.y, r);
        const float norm = d_log_sum_exp(p.logits, x);
        FOR_ROW_ELEMENTS(i, p.logits.ne[0]) {
            const float soft = expf(d_load(p.logits.type, x + i * p.logits.nb[0]) - norm);
            d_store(p.y.type, y + i * p.y.nb[0], (soft - d_load(p.labels.type, b + i * p.labels.nb[0])) * scale);
        }
    }
}

gcuda_status gcuda_launch_cross_entropy_loss_back(const gcuda_cross_entropy_args * args, gcuda_stream stream) {
    return launch(k_cross_entropy_loss_back, n_rows(args->logits), 256, stream, *args);
}
#endif // part 3

#if GCUDAI_PART(9)
// =====================================================================================================
// >>k-rows   rows put together from rows: repeat, concat, pad, roll, masks, generators
// =====================================================================================================

// Every element of y from the place m.at(i) names, or m.value where it names none. Types are sizes here: 1, 2, 4, 8
// bytes, or 16 where whole rows move.
//   floor   y written, what it is made of read once
template <typename T, typename MAP> static __global__ void k_place(const gcuda_array y, const MAP m, const tiles t) {
    FOR_TILES(tile, t) {
        d_index i = d_tile_at(t, y.ne, tile, 1, 4);
        char * to = d_at(y, 0, i.i1, i.i2, i.i3);
        const int64_t first = i.i0;
        T v[4];
        for (int k = 0; k < 4; ++k) {
            i.i0 = first + k * d_tile_step(t, 1);
            const T * from = i.i0 < y.ne[0] ? (const T *) m.at(i) : nullptr;
            if (from != nullptr) {
                v[k] = *from;
            } else {
                memcpy(&v[k], &m.value, sizeof(T));
            }
        }
        for (int k = 0; k < 4; ++k) {
            i.i0 = first + k * d_tile_step(t, 1);
            if (i.i0 < y.ne[0]) { *(T *) (to + i.i0 * (int64_t) y.nb[0]) = v[k]; }
        }
    }
}

// Elements of any size, blocks of a quantized type, byte by byte.
template <typename MAP> static __global__ void k_place_blocks(const gcuda_array y, const MAP m, int size, const tiles t) {
    FOR_TILES(tile, t) {
        d_index i = d_tile_at(t, y.ne, tile, 1, 1);
        const char * from = i.i0 < y.ne[0] ? m.at(i) : nullptr;
        for (int k = 0; k < size && from != nullptr; ++k) { d_at(y, i)[k] = from[k]; }
    }
}

template <typename MAP>
static gcuda_status place(const gcuda_array & y, const MAP & m, size_t size, gcuda_stream stream) {
    const tiles t = tiles_of(y, 1, 4), t1 = tiles_of(y, 1, 1);
    switch (size) {
        case 1: return launch_tiles(k_place<uint8_t, MAP>, t, stream, y, m);
        case 2: return launch_tiles(k_place<uint16_t, MAP>, t, stream, y, m);
        case 4: return launch_tiles(k_place<uint32_t, MAP>, t, stream, y, m);
        case 8: return launch_tiles(k_place<uint2, MAP>, t, stream, y, m);
        case 16: return launch_tiles(k_place<uint4, MAP>, t, stream, y, m);
        default: return launch_tiles(k_place_blocks<MAP>, t1, stream, y, m, (int) size);
    }
}

// Elements in units of 16 bytes: of rows that are moved as a whole.
static bool can_widen(const gcuda_array & a) {
    return is_wide(a) && gcuda_blck_size(a.type) == 1 && a.ne[0] * (int64_t) a.nb[0] % 16 == 0;
}
static void widen(gcuda_array & a) {
    a.ne[0] = a.ne[0] * (int64_t) a.nb[0] / 16;
    a.nb[0] = 16;
}
static void count_blocks(gcuda_array & a) { a.ne[0] /= gcuda_blck_size(a.type); }

// >>op:repeat  >>op:roll  >>op:pad   circular -----------------------------------------------------------
struct d_wrapped {
    gcuda_array x;
    int64_t lp[4];
    uint4 value;

    static inline __device__ int64_t wrap(int64_t i, int64_t n) {
        if (i >= 0 && i < n) { return i; }
        i %= n;
        return i < 0 ? i + n : i;
    }
    inline __device__ const char * at(const d_index & i) const {
        return d_at(x, wrap(i.i0 - lp[0], x.ne[0]), wrap(i.i1 - lp[1], x.ne[1]), wrap(i.i2 - lp[2], x.ne[2]),
            wrap(i.i3 - lp[3], x.ne[3]));
    }
};

// >>op:pad --------------------------------------------------------------------------------------------
struct d_padded {
    gcuda_array x;
    int64_t lp[4];
    uint4 value;

    inline __device__ const char * at(const d_index & i) const {
        const int64_t i0 = i.i0 - lp[0], i1 = i.i1 - lp[1], i2 = i.i2 - lp[2], i3 = i.i3 - lp[3];
        const bool is_in = i0 >= 0 && i0 < x.ne[0] && i1 >= 0 && i1 < x.ne[1] && i2 >= 0 && i2 < x.ne[2] && i3 >= 0 &&
                           i3 < x.ne[3];
        return is_in ? d_at(x, i0, i1, i2, i3) : nullptr;
    }
};

template <typename MAP> static gcuda_status pad(const gcuda_pad_args & p, gcuda_stream stream) {
    gcuda_array y = p.y;
    MAP m = {};
    size_t size = gcuda_type_size(y.type);
    m.x = p.x;
    for (int d = 0; d < 4; ++d) { m.lp[d] = p.lp[d]; }
    if (p.lp[0] == 0 && p.x.ne[0] == y.ne[0] && can_widen(m.x) && can_widen(y)) {
        widen(m.x);
        widen(y);
        size = 16;
    }
    return place(y, m, size, stream);
}

gcuda_status gcuda_launch_pad(const gcuda_pad_args * args, gcuda_stream stream) {
    return args->is_circular ? pad<d_wrapped>(*args, stream) : pad<d_padded>(*args, stream);
}
gcuda_status gcuda_launch_repeat(const gcuda_pad_args * args, gcuda_stream stream) {
    return pad<d_wrapped>(*args, stream);
}
gcuda_status gcuda_launch_roll(const gcuda_pad_args * args, gcuda_stream stream) {
    return pad<d_wrapped>(*args, stream);
}

// >>op:pad_reflect_1d ---------------------------------------------------------------------------------
struct d_reflected {
    gcuda_array x;
    int64_t p0;
    uint4 value;

    inline __device__ const char * at(const d_index & i) const {
        int64_t k = i.i0 - p0;
        k = k < 0 ? -k : k;
        k = k >= x.ne[0] ? 2 * x.ne[0] - 2 - k : k;
        return d_at(x, k, i.i1, i.i2, i.i3);
    }
};

gcuda_status gcuda_launch_pad_reflect_1d(const gcuda_pad_reflect_1d_args * args, gcuda_stream stream) {
    d_reflected m = {};
    m.x = args->x;
    m.p0 = args->p0;
    return place(args->y, m, gcuda_type_size(args->y.type), stream);
}

// >>op:concat -----------------------------------------------------------------------------------------
template <int DIM> struct d_joined {
    gcuda_array a, b;
    uint4 value;

    inline __device__ const char * at(d_index i) const {
        int64_t & k = DIM == 0 ? i.i0 : DIM == 1 ? i.i1 : DIM == 2 ? i.i2 : i.i3;
        if (k < a.ne[DIM]) { return d_at(a, i); }
        k -= a.ne[DIM];
        return d_at(b, i);
    }
};

template <int DIM> static gcuda_status concat(const gcuda_concat_args & p, gcuda_stream stream) {
    gcuda_array y = p.y;
    d_joined<DIM> m = {};
    size_t size = gcuda_type_size(y.type);
    m.a = p.a;
    m.b = p.b;
    if (can_widen(m.a) && can_widen(m.b) && can_widen(y)) {
        widen(m.a);
        widen(m.b);
        widen(y);
        size = 16;
    } else {
        count_blocks(m.a);
        count_blocks(m.b);
        count_blocks(y);
    }
    return place(y, m, size, stream);
}

gcuda_status gcuda_launch_concat(const gcuda_concat_args * args, gcuda_stream stream) {
    switch (args->dim) {
        case 0: return concat<0>(*args, stream);
        case 1: return concat<1>(*args, stream);
        case 2: return concat<2>(*args, stream);
        default: return concat<3>(*args, stream);
    }
}

// >>op:set --------------------------------------------------------------------------------------------
struct d_same {
    gcuda_array x;
    uint4 value;

    inline __device__ const char * at(const d_index & i) const { return d_at(x, i); }
};

// Of one type and shape.
static gcuda_status move(const gcuda_array & x, const gcuda_array & y, gcuda_stream stream) {
    gcuda_array to = y;
    d_same m = {};
    size_t size = gcuda_type_size(y.type);
    m.x = x;
    if (can_widen(m.x) && can_widen(to)) {
        widen(m.x);
        widen(to);
        size = 16;
    } else {
        count_blocks(m.x);
        count_blocks(to);
    }
    return place(to, m, size, stream);
}

// A copy of a unless it is in place already, then b over its region: two launches, the second small.
gcuda_status gcuda_launch_set(const gcuda_set_args * args, gcuda_stream stream) {
    const gcuda_status st =
        args->a.data == args->y.data ? GCUDA_STATUS_SUCCESS : move(args->a, args->y, stream);
    return st == GCUDA_STATUS_SUCCESS ? move(args->b, args->region, stream) : st;
}

// >>op:acc --------------------------------------------------------------------------------------------
static __global__ void k_acc(const gcuda_set_args p, const tiles t) {
    FOR_TILES(tile, t) {
        const d_index i = d_tile_at(t, p.b.ne, tile, 1, 1);
        if (i.i0 < p.b.ne[0]) {
            char * y = d_at(p.region, i);
            d_store(p.y.type, y, d_load(p.y.type, y) + d_load(p.b.type, d_at(p.b, i)));
        }
    }
}

gcuda_status gcuda_launch_acc(const gcuda_set_args * args, gcuda_stream stream) {
    const gcuda_status st =
        args->a.data == args->y.data ? GCUDA_STATUS_SUCCESS : move(args->a, args->y, stream);
    return st == GCUDA_STATUS_SUCCESS ? launch_tiles(k_acc, tiles_of(args->b, 1, 1), stream, *args) : st;
}

// >>op:diag  >>op:diag_mask_inf  >>op:diag_mask_zero  >>op:tri  >>op:fill -----------------------------
struct d_masked {
    gcuda_array x;
    int64_t from, to;
    uint4 value;

    inline __device__ const char * at(const d_index & i) const {
        const int64_t d = i.i0 - i.i1;
        return d >= from && d < to ? d_at(x, i) : nullptr;
    }
};

// The value in all four words, as 2 or 4 bytes; 0 is 0 in every type.
static uint4 value_of(gcuda_type type, float value) {
    const __half f16 = __float2half_rn(value);
    const __nv_bfloat16 bf16 = __float2bfloat16_rn(value);
    uint16_t h = 0;
    uint32_t w = 0;
    if (value == 0.0f && !signbit(value)) { return make_uint4(0, 0, 0, 0); }
    memcpy(&w, &value, 4);
    if (type == GCUDA_TYPE_F16) {
        memcpy(&h, &f16, 2);
    } else {
        memcpy(&h, &bf16, 2);
    }
    w = type == GCUDA_TYPE_F32 ? w : (uint32_t) h << 16 | h;
    return make_uint4(w, w, w, w);
}

static gcuda_status mask(const gcuda_mask_args & p, gcuda_stream stream) {
    d_masked m = {};
    m.x = p.x;
    m.from = p.from;
    m.to = p.to;
    m.value = value_of(p.y.type, p.value);
    return place(p.y, m, gcuda_type_size(p.y.type), stream);
}

gcuda_status gcuda_launch_diag(const gcuda_mask_args * args, gcuda_stream stream) { return mask(*args, stream); }
gcuda_status gcuda_launch_diag_mask_inf(const gcuda_mask_args * args, gcuda_stream stream) {
    return mask(*args, stream);
}
gcuda_status gcuda_launch_diag_mask_zero(const gcuda_mask_args * args, gcuda_stream stream) {
    return mask(*args, stream);
}
gcuda_status gcuda_launch_tri(const gcuda_mask_args * args, gcuda_stream stream) { return mask(*args, stream); }

struct d_filled {
    uint4 value;

    inline __device__ const char * at(const d_index &) const { return nullptr; }
};

//   floor   y written: n * sizeof(T) bytes
gcuda_status gcuda_launch_fill(const gcuda_mask_args * args, gcuda_stream stream) {
    gcuda_array y = args->y;
    const d_filled m = { value_of(y.type, args->value) };
    size_t size = gcuda_type_size(y.type);
    if (can_widen(y)) {
        widen(y);
        size = 16;
    }
    return place(y, m, size, stream);
}

// >>op:repeat_back ------------------------------------------------------------------------------------
// A thread sums all that was repeated into its element, in double and in one order.
//   floor   x read once
static __global__ void k_repeat_back(const gcuda_cpy_args p) {
    FOR_ELEMENTS(i, d_n(p.y)) {
        const d_index y = d_unravel(p.y.ne, i);
        double sum = 0.0;
        for (int64_t i3 = y.i3; i3 < p.x.ne[3]; i3 += p.y.ne[3]) {
            for (int64_t i2 = y.i2; i2 < p.x.ne[2]; i2 += p.y.ne[2]) {
                for (int64_t i1 = y.i1; i1 < p.x.ne[1]; i1 += p.y.ne[1]) {
                    for (int64_t i0 = y.i0; i0 < p.x.ne[0]; i0 += p.y.ne[0]) {
                        sum += (double) d_load(p.x.type, d_at(p.x, i0, i1, i2, i3));
                    }
                }
            }
        }
        d_store(p.y.type, d_at(p.y, y), (float) sum);
    }
}

gcuda_status gcuda_launch_repeat_back(const gcuda_cpy_args * args, gcuda_stream stream) {
    return launch_elements(k_repeat_back, args->y, stream, *args);
}

// >>op:arange -----------------------------------------------------------------------------------------
// The product is rounded before the sum, as everywhere.
static __global__ void k_arange(const gcuda_arange_args p) {
    FOR_ELEMENTS(i, d_n(p.y)) {
        *(float *) ((char *) p.y.data + i * (int64_t) p.y.nb[0]) = __fadd_rn(p.start, __fmul_rn(p.step, (float) i));
    }
}

gcuda_status gcuda_launch_arange(const gcuda_arange_args * args, gcuda_stream stream) {
    return launch_elements(k_arange, args->y, stream, *args);
}

// >>op:timestep_embedding -----------------------------------------------------------------------------
// The angle in double: it may be many turns.
static __global__ void k_timestep_embedding(const gcuda_timestep_embedding_args p) {
    const int64_t n_cos = p.y.ne[0] / 2;
    FOR_ELEMENTS(i, d_n(p.y)) {
        const int64_t i0 = i % p.y.ne[0], i1 = i / p.y.ne[0], j = i0 < n_cos ? i0 : i0 - n_cos;
        const double t = (double) *(const float *) ((const char *) p.x.data + i1 * (int64_t) p.x.nb[0]);
        const double angle = t * exp(-log((double) p.max_period) * (double) j / (double) (n_cos > 0 ? n_cos : 1));
        *(float *) d_at(p.y, i0, i1, 0, 0) =
            i0 < n_cos ? (float) cos(angle) : i0 < 2 * n_cos ? (float) sin(angle) : 0.0f;
    }
}

gcuda_status gcuda_launch_timestep_embedding(const gcuda_timestep_embedding_args * args, gcuda_stream stream) {
    return launch_elements(k_timestep_embedding, args->y, stream, *args);
}

// >>op:add_id -----------------------------------------------------------------------------------------
//   floor   a read, y written, b mostly from cache
static __global__ void k_add_id(const gcuda_add_id_args p, const tiles t) {
    FOR_TILES(tile, t) {
        const d_index i = d_tile_at(t, p.y.ne, tile, 1, 4);
        const int32_t id = *(const int32_t *) d_at(p.ids, i.i1, i.i2, 0, 0);
        const bool is_ok = id >= 0 && id < p.b.ne[1];
        if (!is_ok && i.i0 == 0 && p.bad_index != nullptr) {
            *p.bad_index = 1;
        }
        for (int k = 0; k < 4; ++k) {
            const int64_t at = i.i0 + k * d_tile_step(t, 1);
            if (at < p.y.ne[0]) {
                const float a = d_load(p.a.type, d_at(p.a, at, i.i1, i.i2, i.i3));
                d_store(p.y.type, d_at(p.y, at, i.i1, i.i2, i.i3),
                    is_ok ? a + d_load(p.b.type, d_at(p.b, at, id, 0, 0)) : a);
            }
        }
    }
}

gcuda_status gcuda_launch_add_id(const gcuda_add_id_args * args, gcuda_stream stream) {
    return launch_tiles(k_add_id, tiles_of(args->y, 1, 4), stream, *args);
}
#endif // part 9

#if GCUDAI_PART(4)
// =====================================================================================================
// >>k-mul-mat   matrix products
// =====================================================================================================

// >>op:mul_mat ----------------------------------------------------------------------------------------
// A warp per element of the result, its lanes along the summed dimension: rows are read in order on both sides.
static __global__ void k_mul_mat(const gcuda_mul_mat_args p) {
    const int64_t n_warps = (int64_t) gridDim.x * blockDim.x / 32, n = d_n(p.y), r2 = p.b.ne[2] / p.a.ne[2],
                  r3 = p.b.ne[3] / p.a.ne[3];
    const int lane = (int) threadIdx.x % 32;
    for (int64_t i = (blockIdx.x * (int64_t) blockDim.x + threadIdx.x) / 32; i < n; i += n_warps) {
        const d_index y = d_unravel(p.y.ne, i);
        const char * a = d_at(p.a, 0, y.i0, y.i2 / r2, y.i3 / r3), * b = d_at(p.b, 0, y.i1, y.i2, y.i3);
        float sum = 0.0f;
        for (int64_t k = lane; k < p.a.ne[0]; k += 32) {
            sum += d_weight(p.a.type, a, k) * d_load(p.b.type, b + k * p.b.nb[0]);
        }
        sum = d_warp_reduce<d_sum_op>(sum);
        if (lane == 0) {
            d_store(p.y.type, d_at(p.y, y), sum);
        }
    }
}

gcuda_status gcuda_launch_mul_mat(const gcuda_mul_mat_args * args, gcuda_stream stream) {
    return launch(k_mul_mat, (n_elements(args->y) + 7) / 8, 256, stream, *args);
}

// >>op:out_prod ---------------------------------------------------------------------------------------
// A thread per element of the result.
static __global__ void k_out_prod(const gcuda_out_prod_args p) {
    const int64_t r2 = p.b.ne[2] / p.a.ne[2], r3 = p.b.ne[3] / p.a.ne[3];
    FOR_ELEMENTS(i, d_n(p.y)) {
        const d_index y = d_unravel(p.y.ne, i);
        float sum = 0.0f;
        for (int64_t t = 0; t < p.a.ne[1]; ++t) {
            sum += d_load(p.a.type, d_at(p.a, y.i0, t, y.i2 / r2, y.i3 / r3)) *
                   d_load(p.b.type, d_at(p.b, y.i1, t, y.i2, y.i3));
        }
        d_store(p.y.type, d_at(p.y, y), sum);
    }
}

gcuda_status gcuda_launch_out_prod(const gcuda_out_prod_args * args, gcuda_stream stream) {
    return launch_elements(k_out_prod, args->y, stream, *args);
}
#endif // part 4
