// gcuda_kernels.cu - the kernels of gcuda, one compilation unit (see gcuda.h, MIT licence).
//
//   nvcc -O3 -std=c++17 -arch=native -c gcuda_kernels.cu
//
// CONTENTS
//   >>k-base      element access, indices, warp and block reductions, launch(): the only launch in the file
//   >>k-copy      copies and conversions, repeat, get_rows, fill
//   >>k-elements  unary, binary, scale and their like, optimizer steps
//   >>k-reduce    sums, norms, argmax, soft_max, cross entropy
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
// >>k-copy   copies and conversions, repeat, get_rows, fill
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

// >>op:repeat -----------------------------------------------------------------------------------------
template <typename T> static __global__ void k_repeat(const gcuda_pad_args p) {
    FOR_ELEMENTS(i, d_n(p.y)) {
        const d_index y = d_unravel(p.y.ne, i);
        *(T *) d_at(p.y, y) =
            *(const T *) d_at(p.x, y.i0 % p.x.ne[0], y.i1 % p.x.ne[1], y.i2 % p.x.ne[2], y.i3 % p.x.ne[3]);
    }
}

gcuda_status gcuda_launch_repeat(const gcuda_pad_args * args, gcuda_stream stream) {
    switch (gcuda_type_size(args->y.type)) {
        case 1: return launch_elements(k_repeat<uint8_t>, args->y, stream, *args);
        case 2: return launch_elements(k_repeat<uint16_t>, args->y, stream, *args);
        case 4: return launch_elements(k_repeat<uint32_t>, args->y, stream, *args);
        case 8: return launch_elements(k_repeat<uint64_t>, args->y, stream, *args);
        default: return GCUDA_STATUS_UNSUPPORTED;
    }
}

// >>op:repeat_back ------------------------------------------------------------------------------------
// A thread sums all that was repeated into its element, in double and in one order.
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

// >>op:fill -------------------------------------------------------------------------------------------
static __global__ void k_fill(const gcuda_mask_args p) {
    FOR_ELEMENTS(i, d_n(p.y)) { d_store(p.y.type, d_at(p.y, d_unravel(p.y.ne, i)), p.value); }
}

gcuda_status gcuda_launch_fill(const gcuda_mask_args * args, gcuda_stream stream) {
    return launch_elements(k_fill, args->y, stream, *args);
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

template <typename OP> static __global__ void k_binary(const gcuda_binary_args p) {
    FOR_ELEMENTS(i, d_n(p.y)) {
        const d_index y = d_unravel(p.y.ne, i);
        const float a = d_load(p.a.type, d_at(p.a, y));
        const float b =
            d_load(p.b.type, d_at(p.b, y.i0 % p.b.ne[0], y.i1 % p.b.ne[1], y.i2 % p.b.ne[2], y.i3 % p.b.ne[3]));
        d_store(p.y.type, d_at(p.y, y), OP::apply(a, b));
    }
}

gcuda_status gcuda_launch_add(const gcuda_binary_args * args, gcuda_stream stream) {
    return launch_elements(k_binary<d_add>, args->y, stream, *args);
}
gcuda_status gcuda_launch_sub(const gcuda_binary_args * args, gcuda_stream stream) {
    return launch_elements(k_binary<d_sub>, args->y, stream, *args);
}
gcuda_status gcuda_launch_mul(const gcuda_binary_args * args, gcuda_stream stream) {
    return launch_elements(k_binary<d_mul>, args->y, stream, *args);
}
gcuda_status gcuda_launch_div(const gcuda_binary_args * args, gcuda_stream stream) {
    return launch_elements(k_binary<d_div>, args->y, stream, *args);
}
gcuda_status gcuda_launch_silu_back(const gcuda_binary_args * args, gcuda_stream stream) {
    return launch_elements(k_binary<d_silu_back>, args->y, stream, *args);
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

static __global__ void k_unary(const gcuda_unary_args p) {
    FOR_ELEMENTS(i, d_n(p.y)) {
        const d_index y = d_unravel(p.y.ne, i);
        d_store(p.y.type, d_at(p.y, y), d_unary(p.op, d_load(p.x.type, d_at(p.x, y)), p.p));
    }
}

gcuda_status gcuda_launch_unary(const gcuda_unary_args * args, gcuda_stream stream) {
    return launch_elements(k_unary, args->y, stream, *args);
}

// >>op:scale  >>op:sqr  >>op:sqrt ---------------------------------------------------------------------
struct d_scale {
    static __device__ float apply(float x, const float * p) { return p[0] * x + p[1]; }
};
struct d_sqr {
    static __device__ float apply(float x, const float *) { return x * x; }
};
struct d_sqrt {
    static __device__ float apply(float x, const float *) { return sqrtf(x); }
};

template <typename OP> static __global__ void k_map(const gcuda_map_args p) {
    FOR_ELEMENTS(i, d_n(p.y)) {
        const d_index y = d_unravel(p.y.ne, i);
        d_store(p.y.type, d_at(p.y, y), OP::apply(d_load(p.x.type, d_at(p.x, y)), p.p));
    }
}

gcuda_status gcuda_launch_scale(const gcuda_map_args * args, gcuda_stream stream) {
    return launch_elements(k_map<d_scale>, args->y, stream, *args);
}
gcuda_status gcuda_launch_sqr(const gcuda_map_args * args, gcuda_stream stream) {
    return launch_elements(k_map<d_sqr>, args->y, stream, *args);
}
gcuda_status gcuda_launch_sqrt(const gcuda_map_args * args, gcuda_stream stream) {
    return launch_elements(k_map<d_sqrt>, args->y, stream, *args);
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
