// gcuda_kernels.cu - the kernels of gcuda, one compilation unit (see gcuda.h, MIT licence).
//
//   nvcc -O3 -std=c++17 -arch=native -c gcuda_kernels.cu        for a shared library: and -Xcompiler -fPIC
//
// CONTENTS
//   >>k-base      element access, indices, warp and block reductions, launch(): the only launch in the file
//   >>k-quants    block formats: 32 elements at a time as integer codes and scales
//   >>k-copy      copies and conversions between all types, rows by index
//   >>k-elements  unary, binary, scale and their like, optimizer steps
//   >>k-reduce    sums, argmax, cross entropy
//   >>k-rows      rows put together from rows: repeat, concat, pad, roll, masks, generators
//   >>k-norm      norms, soft_max, running sums and rotations along rows
//   >>k-conv-packed  image and weights of a large convolution, as the products of parts 11 and 13 read them
//   >>k-conv      convolution, pooling, resampling
//   >>k-ssm       recurrences: state spaces, linear attention, triangular systems
//   >>k-sort      orders of rows
//   >>k-mul-mat   matrix products: the plain form for every type, stride and size, and what all forms share
//   >>k-mul-mat-tile  matrix products on tensor cores, for few columns and for experts
//   >>k-mul-mat-vec  products of block formats with up to 8 columns, on tensor cores 16
//   >>k-mul-mat-vec-float  products of float weights with up to 8 columns
//   >>k-mul-mat-wg  large matrix products on warp-group matrix instructions (compute capability 9.0a)
//   >>k-mul-mat-gemm  products of floats on tensor cores, for when cuBLAS is absent
//   >>k-attention attention in one pass
//
// Every operation has a form that is right for every stride and every size; packed rows, few columns and the like have
// faster ones beside it. Kernels take plain structs by value, use no float atomics, and give the same bits on every run.
// They work within 48 KiB of shared memory, or have a variant that does (launch_shared). Launchers only enqueue: they never allocate, wait or change the device.
#include <cuda_runtime.h> // first: the shared part of gcuda.h is compiled for the device here
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math.h>
#include <stdint.h>

#define GCUDAI_KERNELS
#include "gcuda.h"
#if defined(GCUDAI_SIM)
#include "sim_mma.h"
#endif

// =====================================================================================================
// >>k-base   element access, indices, warp and block reductions, launch(): the only launch in the file
// =====================================================================================================

// The file as a whole (0, the default), or one part of it: parts are compiled side by side and linked together.
#ifndef GCUDA_KERNEL_PART
#define GCUDA_KERNEL_PART 0
#endif
#define GCUDAI_PART(n) (GCUDA_KERNEL_PART == 0 || GCUDA_KERNEL_PART == (n))
#ifdef __CUDACC__
#pragma nv_diag_suppress 177 // a part, or one architecture alone, uses only some of what all share
#endif

#ifdef __CUDACC__
#define UNROLL _Pragma("unroll")
#define UNROLL_4 _Pragma("unroll 4")
#define NO_UNROLL _Pragma("unroll 1")
#define NO_INLINE __noinline__
#else
#define UNROLL // the simulated device
#define UNROLL_4
#define NO_UNROLL
#define NO_INLINE
#endif

// Of an argument whose address may be taken without a copy of it for every thread. Below 7.0 the compiler refuses the word.
#if defined(__CUDACC__) && (!defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 700)
#define D_GRID_CONSTANT __grid_constant__
#else
#define D_GRID_CONSTANT
#endif

// nvcc 13.2.51 (CUDA 13.2.0) and 13.2.78 (13.2.1) drop the mask of a byte read from a packed register.
#if defined(__CUDACC_VER_MAJOR__) && __CUDACC_VER_MAJOR__ == 13 && __CUDACC_VER_MINOR__ == 2 && __CUDACC_VER_BUILD__ < 86
#if defined(_MSC_VER)
#pragma message("gcuda: nvcc of CUDA 13.2.0 and 13.2.1 miscompiles byte access to packed registers; take another")
#else
#warning "gcuda: nvcc of CUDA 13.2.0 and 13.2.1 miscompiles byte access to packed registers; take another"
#endif
#endif

#define GRID_LIMIT 65536 // blocks; kernels loop over what is left, so that no grid is ever too large

// Shared memory that every block may have, on every device and in every context (CUDA in Graphics gives no more).
#define SHARED_ALWAYS (48 * 1024)
// What the static arrays of a kernel may take beside its dynamic shared memory: d_block_reduce and the like.
#define SHARED_STATIC 1024

// What it takes of something for another form to pay. The simulated device goes there with small tensors, or no test would.
static inline int64_t enough(int64_t n) {
#if defined(GCUDAI_SIM)
    return (n >> 14) + 4;
#else
    return n;
#endif
}

// The dynamic shared memory of a kernel as an array, for example DYNAMIC_SHARED(float, tile), aligned to 128 bytes.
#if defined(GCUDAI_SIM)
#define DYNAMIC_SHARED(T, name) T * const name = (T *) sim_dynamic_shared()
#else
extern __shared__ __align__(128) unsigned char d_dynamic_shared[];
#define DYNAMIC_SHARED(T, name) T * const name = (T *) d_dynamic_shared
#endif

// Whether a kernel with this much dynamic shared memory may be chosen under the cap in its args (max_shared; 0 means
// SHARED_ALWAYS). Whoever has a smaller variant asks before launch_shared, which refuses.
static inline bool fits_shared(size_t n_bytes, size_t max_shared) {
    return n_bytes + SHARED_STATIC <= (max_shared > 0 ? max_shared : (size_t) SHARED_ALWAYS);
}

// A question to the device. Launchers, and what says how much scratch they want, ask in the middle of deciding: a failure is noted
// for the next launch, or for asked_bytes, and CUDA's last error stays for the host side to read.
static inline bool asked(cudaError_t err) {
    if (err != cudaSuccess) { gcuda_thread_launches()->failed_query = (int) err; }
    return err == cudaSuccess;
}
static inline bool has_failed_query(gcuda_launch_series * series) { // and forgets it: it is about to be reported
    const bool has_failed = series->failed_query != 0;
    series->failed_query = 0;
    return has_failed;
}
// Scratch that a launcher wants; SIZE_MAX when a question has failed meanwhile.
static inline size_t asked_bytes(size_t n_bytes) { return has_failed_query(gcuda_thread_launches()) ? SIZE_MAX : n_bytes; }
static inline size_t add_bytes(size_t a, size_t b) { return a == SIZE_MAX || b == SIZE_MAX ? SIZE_MAX : a + b; }
// What a launcher says that finds the device without something, or could not ask.
static inline gcuda_status device_lacks() {
    return has_failed_query(gcuda_thread_launches()) ? GCUDA_STATUS_FAILED : GCUDA_STATUS_UNSUPPORTED;
}

// The only launch. With n_bytes of dynamic shared memory, UNSUPPORTED when the cap does not allow them. Failure leaves
// CUDA's last error for the host side to read.
template <typename... P, typename... A>
static gcuda_status launch_as(bool is_overlapped, void (*kernel)(P...), int64_t n_blocks, dim3 block, size_t n_bytes, size_t max_shared,
    gcuda_stream stream, A... args) {
    gcuda_launch_series * series = gcuda_thread_launches();
    if (has_failed_query(series)) { // grid and kernel were chosen without the answer
        return GCUDA_STATUS_FAILED;
    }
    if (n_blocks <= 0) {
        return GCUDA_STATUS_SUCCESS;
    }
    if (n_bytes > 0 && !fits_shared(n_bytes, max_shared)) {
        return GCUDA_STATUS_UNSUPPORTED;
    }
    if (n_bytes + SHARED_STATIC > SHARED_ALWAYS && // else every device gives it without being asked
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int) n_bytes) != cudaSuccess) {
        return GCUDA_STATUS_FAILED;
    }
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned) (n_blocks < GRID_LIMIT ? n_blocks : GRID_LIMIT));
    config.blockDim = block;
    config.dynamicSmemBytes = n_bytes;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = is_overlapped ? 1 : 0;
    series->has_begun = true;
    return cudaLaunchKernelEx(&config, kernel, args...) == cudaSuccess ? GCUDA_STATUS_SUCCESS : GCUDA_STATUS_FAILED;
}

template <typename... P, typename... A>
static gcuda_status launch_shared(void (*kernel)(P...), int64_t n_blocks, dim3 block, size_t n_bytes, size_t max_shared,
    gcuda_stream stream, A... args) {
    return launch_as(false, kernel, n_blocks, block, n_bytes, max_shared, stream, args...);
}

// Of a kernel whose threads all call d_wait_before before anything else that matters: where the caller allows it
// (struct gcuda_launch_series), its blocks start while the kernel before it ends.
template <typename... P, typename... A>
static gcuda_status launch_overlapped(void (*kernel)(P...), int64_t n_blocks, dim3 block, size_t n_bytes, size_t max_shared,
    gcuda_stream stream, A... args) {
    const gcuda_launch_series * series = gcuda_thread_launches();
    const bool may_overlap = series->overlap != GCUDA_OVERLAP_NONE && series->has_begun;
    return launch_as(may_overlap, kernel, n_blocks, block, n_bytes, max_shared, stream, args...);
}

// Whether the kernel that is launched next may read its weights, and they alone, before it waits. Read by the launcher, and
// handed to the kernel: an ordinary launch has nothing before it that is still running, so that it does no harm there.
static inline bool reads_weights_early() { return gcuda_thread_launches()->overlap == GCUDA_OVERLAP_WEIGHTS; }
// The same of a kernel that is launched behind one of the same launcher, which calls d_start_next at once: where kernels do not overlap
// otherwise, all that was there before is over by then.
static inline bool reads_weights_behind() { return gcuda_thread_launches()->overlap != GCUDA_OVERLAP_LAUNCH; }

// All that kernels before this one have written is there. By every thread that reads or writes memory which they may have
// written or may still read, and by one at least of every launch, or the end of this kernel would not be that of those.
static inline __device__ void d_wait_before() {
#if defined(GCUDAI_SIM)
    sim_wait_before();
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The kernel behind this one may take the room that blocks of this one leave, once all of them have come here.
static inline __device__ void d_start_next() {
#if defined(__CUDACC__) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// First of all in a kernel for launch_in_turn. In this order, so that what was there before is over when blocks of the next one start:
// that may be the second kernel of a launcher, which takes this for granted (launch_behind).
static inline __device__ void d_take_turn() {
    d_wait_before();
    d_start_next();
}

template <typename... P, typename... A>
static gcuda_status launch_in_turn(void (*kernel)(P...), int64_t n_blocks, dim3 block, gcuda_stream stream, A... args) {
    return launch_overlapped(kernel, n_blocks, block, 0, 0, stream, args...);
}

template <typename... P, typename... A>
static gcuda_status launch(void (*kernel)(P...), int64_t n_blocks, int n_threads, gcuda_stream stream, A... args) {
    return launch_shared(kernel, n_blocks, dim3((unsigned) n_threads), 0, 0, stream, args...);
}

// Behind a launch of the same launcher whose blocks call d_start_next: what was there before that one is over when this kernel's
// blocks start, on devices that let them start early, and d_wait_before waits for that one alone.
template <typename... P, typename... A>
static gcuda_status launch_behind(void (*kernel)(P...), int64_t n_blocks, dim3 block, size_t n_bytes, size_t max_shared,
    gcuda_stream stream, A... args) {
    return launch_as(gcuda_has_overlap(), kernel, n_blocks, block, n_bytes, max_shared, stream, args...);
}

static inline int device_attribute(cudaDeviceAttr attribute) { // 0 when that failed
    int device = 0, n = 0;
    return asked(cudaGetDevice(&device)) && asked(cudaDeviceGetAttribute(&n, attribute, device)) ? n : 0;
}
static inline int64_t n_multiprocessors() { // at least 1: sizes are divided by it
    const int n = device_attribute(cudaDevAttrMultiProcessorCount);
    return n > 0 ? n : 1;
}
static inline int capability_major() { return device_attribute(cudaDevAttrComputeCapabilityMajor); }

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

// Row r, counting dimensions 1, 2, 3: no division that is not needed, they cost as much as a row's arithmetic.
static inline __device__ d_index d_row_index(const int64_t * ne, int64_t r) {
    d_index x = { 0, r, 0, 0 };
    if (r >= ne[1]) {
        x.i2 = r / ne[1];
        x.i1 = r - x.i2 * ne[1];
        if (x.i2 >= ne[2]) {
            x.i3 = x.i2 / ne[2];
            x.i2 -= x.i3 * ne[2];
        }
    }
    return x;
}
static inline __device__ char * d_row(const gcuda_array & a, int64_t r) { return d_at(a, d_row_index(a.ne, r)); }

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

// Neighbouring elements, a power of two, that are moved in as few accesses as there can be.
template <typename T, int N> struct alignas(N * sizeof(T) > 16 ? 16 : N * sizeof(T)) d_pack {
    T v[N];
};

// As they lie: what is loaded is converted after other loads are under way too (at F16 that doubled the speed).
// Elements [0, n), the end of a row; what is missing is 0.
template <typename T> static inline __device__ uint4 d_load_raw(const T * p, int64_t n) {
    if (n >= d_wide<T>::N) {
        return *(const uint4 *) p;
    }
    uint4 w = make_uint4(0, 0, 0, 0);
    T h[d_wide<T>::N];
    memcpy(h, &w, 16);
    for (int i = 0; i < d_wide<T>::N - 1; ++i) {
        if (i < n) { h[i] = p[i]; }
    }
    memcpy(&w, h, 16);
    return w;
}
template <typename T> static inline __device__ void d_unpack(const uint4 & w, float * v) {
    T h[d_wide<T>::N];
    memcpy(h, &w, 16);
    for (int i = 0; i < d_wide<T>::N; ++i) { v[i] = d_f32(h[i]); }
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

// Elements [0, n) of them; the others are not written.
template <typename T> static inline __device__ void d_store_wide(T * p, int64_t n, const float * v) {
    if (n >= d_wide<T>::N) {
        d_store16(p, v);
        return;
    }
    for (int i = 0; i < d_wide<T>::N; ++i) {
        if (i < n) { d_put(p + i, v[i]); }
    }
}

// The same, of what nobody needs in the cache afterwards.
template <typename T> static inline __device__ uint4 d_load_last(const T * p, int64_t n) {
    return n >= d_wide<T>::N ? __ldcs((const uint4 *) p) : d_load_raw(p, n);
}
template <typename T> static inline __device__ void d_store_last(T * p, int64_t n, const float * v) {
    if (n >= d_wide<T>::N) {
        alignas(16) T h[d_wide<T>::N];
        uint4 w;
        d_store16(h, v);
        memcpy(&w, h, 16);
        __stcs((uint4 *) p, w);
    } else {
        d_store_wide(p, n, v);
    }
}

static inline bool is_float(gcuda_type type) {
    return type == GCUDA_TYPE_F32 || type == GCUDA_TYPE_F16 || type == GCUDA_TYPE_BF16;
}

static inline bool is_packed(const gcuda_array & a) {
    int64_t expect = (int64_t) gcuda_type_size(a.type);
    for (int d = 0; d < 4; ++d) {
        const int64_t n = d == 0 ? a.ne[0] / gcuda_blck_size(a.type) : a.ne[d];
        if (n != 1 && (int64_t) a.nb[d] != expect) {
            return false;
        }
        expect *= n;
    }
    return true;
}

static inline gcuda_array packed_array(gcuda_type type, void * data, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3) {
    gcuda_array a = {};
    a.type = type;
    a.data = data;
    a.ne[0] = ne0, a.ne[1] = ne1, a.ne[2] = ne2, a.ne[3] = ne3;
    a.nb[0] = gcuda_type_size(type);
    for (int d = 1; d < 4; ++d) { a.nb[d] = a.nb[d - 1] * (size_t) a.ne[d - 1]; }
    return a;
}

// A packed array as rows of n elements; strides of dimensions of one element may have been anything.
static inline gcuda_array as_rows(gcuda_array a, int64_t n) {
    const int64_t total = n_elements(a);
    a.nb[0] = gcuda_type_size(a.type);
    a.ne[0] = n;
    a.ne[1] = n > 0 ? total / n : 1;
    a.ne[2] = a.ne[3] = 1;
    a.nb[1] = a.nb[2] = a.nb[3] = a.nb[0] * (size_t) n;
    return a;
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
    const auto idle = [&](int shift) { return ((int64_t) n_parts << shift) - 1 - (n - 1) % ((int64_t) n_parts << shift); };
    for (int shift = t.shift - 1; shift >= 5; --shift) { // shorter ones where that leaves fewer threads without work
        t.shift = idle(shift) + n / 16 < idle(t.shift) ? shift : t.shift;
    }
    t.per_row = (n + ((int64_t) n_parts << t.shift) - 1) / ((int64_t) n_parts << t.shift);
    t.n_rows = n_rows(y);
    t.n = t.per_row * t.n_rows;
    return t;
}

template <typename... P, typename... A>
static gcuda_status launch_tiles(void (*kernel)(P...), const tiles & t, gcuda_stream stream, A... args) {
    const int64_t per_block = TILE_BLOCK >> t.shift;
    return launch_in_turn(kernel, (t.n + per_block - 1) / per_block, dim3(TILE_BLOCK), stream, args..., t);
}

// All that a kernel reads and writes it does in there.
#define FOR_TILES(tile, t) \
    for (int64_t tile = (d_take_turn(), blockIdx.x * (int64_t) (TILE_BLOCK >> (t).shift) + (threadIdx.x >> (t).shift)); tile < (t).n; \
         tile += gridDim.x * (int64_t) (TILE_BLOCK >> (t).shift))

// The row of a tile, and in i0 this thread's first element; its next ones are d_tile_step apart.
static inline __device__ d_index d_tile_at(
    const tiles & t, const int64_t * ne, int64_t tile, int n_wide, int n_parts) {
    d_index x = { 0, 0, 0, 0 };
    if (t.n_rows > 1) {
        const int64_t row = t.per_row > 1 ? tile / t.per_row : tile;
        tile -= row * t.per_row;
        x = d_row_index(ne, row);
    }
    x.i0 = ((tile * n_parts << t.shift) + (threadIdx.x & ((1 << t.shift) - 1))) * n_wide;
    return x;
}
static inline __device__ int64_t d_tile_step(const tiles & t, int n_wide) { return (int64_t) n_wide << t.shift; }

static inline __device__ float d_load_f64(gcuda_type type, const char * p) {
    return type == GCUDA_TYPE_F64 ? (float) *(const double *) p : d_load(type, p);
}

// The slope that ALiBi gives a head (Press et al. 2022, arXiv:2108.12409).
static inline __device__ float d_slope(float max_bias, int64_t n_head, int64_t head) {
    if (max_bias <= 0.0f) {
        return 1.0f;
    }
    const int64_t l = (int64_t) 1 << (int) floorf(log2f((float) n_head));
    return head < l ? powf(exp2f(-max_bias / (float) l), (float) (head + 1))
                    : powf(exp2f(-max_bias / 2.0f / (float) l), (float) (2 * (head - l) + 1));
}

#define F32_MOST 3.402823466e38f

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

// Rows of a warp or a block. Whole warps leave together: all threads of a warp have the same row.
#define FOR_HELD_ROWS(r, n, THREADS)                                                                          \
    for (int64_t r = THREADS == 32 ? blockIdx.x * (int64_t) (blockDim.x / 32) + threadIdx.x / 32 : blockIdx.x; \
         r < (n); r += gridDim.x * (int64_t) (THREADS == 32 ? blockDim.x / 32 : 1))

// Rounded once each, whatever stands around them: a fused kernel gives the bits of the kernels that it replaces.
#ifdef __CUDACC__
static inline __device__ float d_mul_rn(float a, float b) { return __fmul_rn(a, b); }
static inline __device__ float d_add_rn(float a, float b) { return __fadd_rn(a, b); }
static inline __device__ float d_sub_rn(float a, float b) { return __fsub_rn(a, b); }
#else
static inline float d_mul_rn(float a, float b) { return a * b; }
static inline float d_add_rn(float a, float b) { return a + b; }
static inline float d_sub_rn(float a, float b) { return a - b; }
#endif

// A float as a number that sorts like it: negative ones are complemented, both zeros are one. NaN is 0, below all numbers.
static inline __device__ uint32_t d_sort_key(float x) {
    const uint32_t raw = __float_as_uint(x), bits = raw == 0x80000000u ? 0 : raw;
    const uint32_t key = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
    return (bits & 0x7fffffffu) > 0x7f800000u ? 0 : key;
}
// The same as a place in either order, NaN at the end of both.
static inline __device__ uint32_t d_sort_place(uint32_t key, bool is_descending) { return is_descending ? ~key : key - 1; }

// On the special-function unit, one instruction each; what is below 2^-126 counts as 0.
static inline __device__ float d_exp2(float x) {
#ifdef __CUDACC__
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return exp2f(x);
#endif
}
static inline __device__ float d_reciprocal(float x) {
#ifdef __CUDACC__
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return 1.0f / x;
#endif
}
static inline __device__ float d_exp(float x) { return d_exp2(x * 1.44269504088896340736f); }

// A maximum and the sum of exponentials below it, found together.
struct d_soft_sum {
    float max, sum;
};

// ---- activations that several sections know ----
// The exponential never overflows, and the tail towards 0 keeps its digits.
static inline __device__ float d_sigmoid(float x) {
    const float root = d_exp(-0.5f * fabsf(x)), e = d_mul_rn(root, root); // a product keeps what is below 2^-126
    return (x < 0.0f ? e : 1.0f) * d_reciprocal(1.0f + e); // of 1 to 2
}
// 1/2 (1 + tanh(u)) is the logistic function of 2 u, which has digits left where tanh is -1.
static inline __device__ float d_gelu_logit(float x) { return 2.0f * 0.79788456080286535588f * x * (1.0f + 0.044715f * x * x); }
static inline __device__ float d_gelu(float x) { return x * d_sigmoid(d_gelu_logit(x)); }
// 1 + erf(x / sqrt 2), where erfcf had the better part of GEGLU_ERF's time: erfc(z) = exp(-z^2) t q(t), t = 1 / (1 + 3/8 z), z >= 0,
// q fitted by weighted least squares to 1.2e-8. In F32 the error is 4e-7 of the result up to |x| = 1, 2e-6 up to 6, 8e-6 up to 13, where
// the exponent's rounding is all of it.
static inline __device__ float d_one_plus_erf(float x) {
    const float t = d_reciprocal(1.0f + 0.26516504294495532f * fabsf(x));
    float q = 0.061696778789691605f;
    q = q * t - 0.28807618313051375f;
    q = q * t + 0.4338954480475024f;
    q = q * t - 0.23107834188986065f;
    q = q * t + 0.2748454504290103f;
    q = q * t + 0.12103839620252548f;
    q = q * t + 0.2054305667254833f;
    q = q * t + 0.2106334796851444f;
    q = q * t + 0.21161441645659343f;
    const float root = d_exp2(-0.36067376022224085184f * x * x), tail = root * t * q * root; // what is below 2^-126 stays
    return x < 0.0f ? tail : 2.0f - tail;
}
static inline __device__ float d_gelu_erf(float x) { return 0.5f * x * d_one_plus_erf(x); }

// What a gate does, of N x and g, side by side: see gcuda_glu_args for alpha and limit. Gates share what they can, and the last one has
// no question of its own: a new one stands here first, and is then counted.
static_assert(GCUDA_GLU_OP_COUNT == 6, "d_glus computes another gate as GEGLU_QUICK: give the new one its lines there");
template <int N>
static inline __device__ void d_glus(gcuda_glu_op op, float (&x)[N], const float (&g)[N], float alpha, float limit) {
    float logit[N], factor[N];
    if (op == GCUDA_GLU_OP_REGLU) {
        UNROLL for (int k = 0; k < N; ++k) { x[k] = x[k] > 0.0f ? x[k] * g[k] : 0.0f; }
        return;
    }
    if (op == GCUDA_GLU_OP_GEGLU_ERF) {
        UNROLL for (int k = 0; k < N; ++k) { x[k] = d_gelu_erf(x[k]) * g[k]; }
        return;
    }
    UNROLL for (int k = 0; k < N; ++k) {
        factor[k] = g[k];
        logit[k] = op == GCUDA_GLU_OP_SWIGLU ? x[k] : 1.702f * x[k];
    }
    if (op == GCUDA_GLU_OP_GEGLU) {
        UNROLL for (int k = 0; k < N; ++k) { logit[k] = d_gelu_logit(x[k]); }
    } else if (op == GCUDA_GLU_OP_SWIGLU_OAI) {
        UNROLL for (int k = 0; k < N; ++k) {
            x[k] = x[k] > limit ? limit : x[k]; // NaN stays
            factor[k] = (g[k] < -limit ? -limit : g[k] > limit ? limit : g[k]) + 1.0f;
            logit[k] = alpha * x[k];
        }
    }
    UNROLL for (int k = 0; k < N; ++k) { x[k] = x[k] * d_sigmoid(logit[k]) * factor[k]; }
}
static inline __device__ float d_glu(gcuda_glu_op op, float x, float g, float alpha, float limit) {
    float v[1] = { x };
    d_glus<1>(op, v, { g }, alpha, limit);
    return v[0];
}

// ---- what becomes of the sums of a product: an epilogue ----
// What becomes of the sums v before the residual is added, where there is an epilogue. up: the sums with its second matrix. The rest is
// asked for where it is there: bias(k), up_bias(k) and factor(k) of v[k].
template <bool MAY_HAVE_UP, int N, typename BIAS, typename UP_BIAS, typename FACTOR>
static inline __device__ void d_finish_sums(
    const gcuda_mul_mat_epilogue & e, float (&v)[N], const float (&up)[N], BIAS bias, UP_BIAS up_bias, FACTOR factor) {
    if (e.bias.data != nullptr) {
        UNROLL for (int k = 0; k < N; ++k) { v[k] = d_add_rn(v[k], bias(k)); }
    }
    if (MAY_HAVE_UP && e.up != nullptr) {
        UNROLL for (int k = 0; k < N; ++k) {
            v[k] = d_glu(e.glu, v[k], e.up_bias.data != nullptr ? d_add_rn(up[k], up_bias(k)) : up[k], e.alpha, e.limit);
        }
    } else if (e.is_activated) {
        float ones[N];
        UNROLL for (int k = 0; k < N; ++k) { ones[k] = 1.0f; }
        d_glus<N>(e.glu, v, ones, e.alpha, e.limit);
    }
    if (e.factor.data != nullptr) {
        UNROLL for (int k = 0; k < N; ++k) { v[k] = d_mul_rn(v[k], factor(k)); }
    }
    if (e.is_scaled) {
        UNROLL for (int k = 0; k < N; ++k) { v[k] = e.scale * v[k] + 0.0f; }
    }
}

// Whether an epilogue is one: F32, of sizes that repeat over y, of mul_mat_id biases for experts.
static inline bool epilogue_fits(const gcuda_mul_mat_epilogue & e, const gcuda_array & y, int64_t n_experts) {
    const gcuda_array * arrays[4] = { &e.bias, &e.up_bias, &e.factor, &e.residual };
    for (int k = 0; k < 4; ++k) {
        const gcuda_array & t = *arrays[k];
        bool fits = t.type == GCUDA_TYPE_F32;
        for (int d = 0; d < 4; ++d) { fits = fits && (t.ne[d] == 1 || t.ne[d] == y.ne[d]); }
        if (k < 2 && n_experts > 0) {
            fits = t.type == GCUDA_TYPE_F32 && t.ne[0] == y.ne[0] && t.ne[1] == n_experts && t.ne[2] * t.ne[3] == 1;
        }
        if (t.data != nullptr && !fits) {
            return false;
        }
    }
    return (int) e.glu >= 0 && e.glu < GCUDA_GLU_OP_COUNT;
}

static inline __device__ int64_t d_n(const gcuda_array & a) { return a.ne[0] * a.ne[1] * a.ne[2] * a.ne[3]; }
static inline __device__ int64_t d_rows(const gcuda_array & a) { return a.ne[1] * a.ne[2] * a.ne[3]; }

// The exponent that is taken out of a row of floats with this largest magnitude, for halves. Nothing is scaled where it lies within
// 2^-6 .. 2^15: smaller elements keep enough of their digits. Rows with infinities or NaN are left as they are.
static inline __device__ int d_half_exponent(float max) {
    int exponent = 0;
    if (max > 0.0f && max < INFINITY && (max < 0.015625f || max > 32768.0f)) {
        (void) frexpf(max, &exponent);
        exponent -= 14; // the largest becomes 2^13 .. 2^14
    }
    return exponent;
}

// ---- asynchronous copies ----
#if defined(__CUDACC__) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define D_ASYNC_COPIES 1
#else
#define D_ASYNC_COPIES 0
#endif

// A place in shared memory, as copies want it.
#if D_ASYNC_COPIES
typedef uint32_t d_shared_at;
static inline __device__ d_shared_at d_shared_at_of(char * p) { return (uint32_t) __cvta_generic_to_shared(p); }
#else
typedef char * d_shared_at;
static inline __device__ d_shared_at d_shared_at_of(char * p) { return p; }
#endif

// 16 bytes from global to shared memory, both at multiples of 16; n of them are read, the others are zero. Where the device
// has no asynchronous copies the lane does it.
static inline __device__ void d_copy_16_to(d_shared_at to, const char * from, int n) {
#if D_ASYNC_COPIES
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(n) : "memory");
#elif defined(GCUDAI_SIM)
    sim_cp_async_16(to, from, n);
#else
    alignas(16) char v[16] = {}; // bytes: what is read later has many types
    if (n >= 16) {
        memcpy(v, __builtin_assume_aligned(from, 16), 16);
    } else {
        NO_UNROLL for (int i = 0; i < n; ++i) { v[i] = from[i]; }
    }
    memcpy(__builtin_assume_aligned(to, 16), v, 16);
#endif
}
static inline __device__ void d_copy_16(char * to, const char * from, int n) { d_copy_16_to(d_shared_at_of(to), from, n); }
static inline __device__ void d_copies_commit() {
#if D_ASYNC_COPIES
    asm volatile("cp.async.commit_group;" ::: "memory");
#elif defined(GCUDAI_SIM)
    sim_cp_async_commit();
#endif
}
// All copies of this lane but those of the last N commits have arrived.
template <int N> static inline __device__ void d_copies_wait() {
#if D_ASYNC_COPIES
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#elif defined(GCUDAI_SIM)
    sim_cp_async_wait(N);
#endif
}

// Brings bytes into the L2 cache, both numbers multiples of 16; nobody sees it, whoever writes them.
static inline __device__ void d_prefetch_l2(const char * p, int n_bytes) {
#if defined(__CUDACC__) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(n_bytes) : "memory");
#else
    (void) p, (void) n_bytes;
#endif
}

// ---- tensor cores ----
static inline __device__ uint32_t d_bf16_pair(float low, float high) {
    const __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
    return *(const uint32_t *) &v;
}

#if defined(__CUDACC__) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
// By shuffles, where dispatch does not come. Functions of their own: in their place they would be megabytes of code.
static __noinline__ __device__ void d_mma_shuffled(float * c, const uint32_t * a, const uint32_t * b) {
    const int lane = (int) threadIdx.x % 32, g = lane / 4, t = lane % 4;
    for (int s = 0; s < 4; ++s) {
        for (int h = 0; h < 2; ++h) { // k = 2 s + 8 h and the next
            uint32_t x[2], y[2];
            for (int i = 0; i < 2; ++i) {
                x[i] = __shfl_sync(0xffffffffu, a[2 * h + i], 4 * g + s);
                y[i] = __shfl_sync(0xffffffffu, b[h], 4 * (2 * t + i) + s);
            }
            for (int i = 0; i < 4; ++i) {
                const uint32_t u = x[i / 2], v = y[i % 2];
                c[i] += __uint_as_float(u << 16) * __uint_as_float(v << 16);
                c[i] += __uint_as_float(u & 0xffff0000u) * __uint_as_float(v & 0xffff0000u);
            }
        }
    }
}
static __noinline__ __device__ void d_mma_tf32_shuffled(float * c, const uint32_t * a, const uint32_t * b) {
    const int lane = (int) threadIdx.x % 32, g = lane / 4, t = lane % 4;
    for (int s = 0; s < 4; ++s) {
        for (int h = 0; h < 2; ++h) {
            const float x0 = __uint_as_float(__shfl_sync(0xffffffffu, a[2 * h], 4 * g + s));
            const float x1 = __uint_as_float(__shfl_sync(0xffffffffu, a[2 * h + 1], 4 * g + s));
            for (int i = 0; i < 2; ++i) {
                const float y = __uint_as_float(__shfl_sync(0xffffffffu, b[h], 4 * (2 * t + i) + s));
                c[i] += x0 * y;
                c[2 + i] += x1 * y;
            }
        }
    }
}
#endif

// c += a b for a 16 x 16 by 16 x 8 of BF16. With g = lane / 4 and t = lane % 4: c is (g, 2t), (g, 2t + 1), then the same in
// row g + 8; a is pairs of k at (g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8); b is pairs of k at 2t and 2t + 8 of
// column g.
static inline __device__ void d_mma(float * c, const uint32_t * a, const uint32_t * b) {
#if defined(__CUDACC__) && (!defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800)
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#elif !defined(__CUDACC__)
    sim_mma_bf16(c, a, b, c); // the simulated device
#else
    d_mma_shuffled(c, a, b);
#endif
}

// c += a b for a 16 x 8 by 8 x 8 of TF32, the top 19 bits of a float. c lies as above; words of a are (g, t), (g + 8, t),
// (g, t + 4), (g + 8, t + 4), of b k = t and t + 4 of column g.
static inline __device__ void d_mma_tf32(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if defined(GCUDAI_SIM)
    sim_mma_tf32(c, a, b, c);
#elif !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    d_mma_tf32_shuffled(c, a, b);
#endif
}

// Floats as sums of two TF32 numbers, 21 bits together.
template <int N> struct d_split_tf32 {
    uint32_t hi[N], lo[N];

    inline __device__ void set(int i, float v) {
        hi[i] = __float_as_uint(v) & 0xffffe000u;
        lo[i] = __float_as_uint(v - __uint_as_float(hi[i]));
    }
};
// The same product of such sums; what both low parts give is below what is kept.
static inline __device__ void d_mma_split(float (&c)[4], const d_split_tf32<4> & a, const d_split_tf32<2> & b) {
    d_mma_tf32(c, a.lo, b.hi);
    d_mma_tf32(c, a.hi, b.lo);
    d_mma_tf32(c, a.hi, b.hi);
}

// Four bytes of a (0 .. 3) and b (4 .. 7), named by the nibbles of `order`, the lowest byte first; a nibble with 8 added gives
// eight times the top bit of the byte instead, which __byte_perm does not.
static inline __device__ uint32_t d_permute(uint32_t a, uint32_t b, uint32_t order) {
#if defined(GCUDAI_SIM)
    return sim_prmt(a, b, order);
#else
    uint32_t d;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(order));
    return d;
#endif
}

#if defined(__CUDACC__) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define D_TENSOR_CORES 1
#else
#define D_TENSOR_CORES 0
#endif

// ---- a warp's product of 16 x 8 words of A with 8 x 8 of B: 16 halfs or 8 TF32 numbers deep ----
// Lane l has rows l/4 and l/4 + 8 of A at words l%4 and l%4 + 4, column l/4 of B likewise, and of the result rows l/4 and
// l/4 + 8 at columns 2 (l%4) and the next.
static inline __device__ float d_low(uint32_t w) {
    const uint16_t h = (uint16_t) w;
    __half v;
    memcpy(&v, &h, 2);
    return __half2float(v);
}
template <bool IS_F16> static inline __device__ float d_word_product(uint32_t a, uint32_t b) {
    return IS_F16 ? d_low(a) * d_low(b) + d_low(a >> 16) * d_low(b >> 16) : __uint_as_float(a) * __uint_as_float(b);
}

// What older devices do without the instructions: word by word from the lanes that have it. Rolled: in the tiles of a convolution it
// would be millions of instructions.
template <bool IS_F16> static inline __device__ void d_mma_words_shuffled(float * c, const uint32_t * a, const uint32_t * b) {
    const int lane = (int) threadIdx.x % 32, row = lane & 28, column = lane % 4 * 8;
    NO_UNROLL for (int k = 0; k < 4; ++k) {
        for (int i = 0; i < 4; ++i) {
            const uint32_t w = __shfl_sync(0xffffffffu, a[i], row + k); // row +8 where i is odd, word +4 where i >= 2
            for (int j = 0; j < 2; ++j) {
                c[i % 2 * 2 + j] += d_word_product<IS_F16>(w, __shfl_sync(0xffffffffu, b[i / 2], column + 4 * j + k));
            }
        }
    }
}
#if defined(__CUDACC__) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 750 && __CUDA_ARCH__ < 800
static inline __device__ void d_mma_f16_of_8(float * c, const uint32_t * a, uint32_t b) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
}
#endif

template <bool IS_F16> static inline __device__ void d_mma_words(float * c, const uint32_t * a, const uint32_t * b) {
#if defined(__CUDACC__) && __CUDA_ARCH__ >= 800
    if (IS_F16) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    } else {
        asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
#elif defined(GCUDAI_SIM)
    IS_F16 ? sim_mma_f16(c, a, b, c) : sim_mma_tf32(c, a, b, c);
#elif __CUDA_ARCH__ >= 750
    if (IS_F16) { // 8 deep each
        d_mma_f16_of_8(c, a, b[0]);
        d_mma_f16_of_8(c, a + 2, b[1]);
    } else {
        d_mma_words_shuffled<IS_F16>(c, a, b);
    }
#else
    d_mma_words_shuffled<IS_F16>(c, a, b);
#endif
}

static inline __device__ uint32_t d_tf32(float v) { // to nearest, halves away from zero
#if D_TENSOR_CORES
    uint32_t w;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(w) : "f"(v));
    return w;
#else
    const uint32_t w = __float_as_uint(v);
    return v != v ? w : (w + 0x1000u) & 0xffffe000u;
#endif
}
static inline __device__ uint32_t d_two_halfs(float lo, float hi) {
    const __half2 h = __floats2half2_rn(lo, hi);
    uint32_t w;
    memcpy(&w, &h, 4);
    return w;
}

// Four matrices of 8 x 8 halfs from shared memory: lane l gives row l % 8 of matrix l / 8, and gets of each matrix the two
// halfs at 2 (l % 4) of row l / 4.
static inline __device__ void d_matrices(uint32_t * v, const char * row) {
#if !defined(GCUDAI_SIM) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 750
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"((uint32_t) __cvta_generic_to_shared(row))
                 : "memory");
#else
    const int lane = (int) threadIdx.x % 32;
    for (int i = 0; i < 4; ++i) {
        const unsigned long long at = __shfl_sync(0xffffffffu, (unsigned long long) (uintptr_t) row, 8 * i + lane / 4);
        v[i] = *(const uint32_t *) ((const char *) (uintptr_t) at + lane % 4 * 4);
    }
#endif
}

// The same by shuffles, of one half of the depth, for code that was not compiled for tensor cores.
static inline __device__ void d_mma_s8_shuffled(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t b) {
    const int lane = (int) threadIdx.x % 32, g = lane / 4, t = lane % 4;
    for (int s = 0; s < 4; ++s) {
        const int x0 = (int) __shfl_sync(0xffffffffu, a0, 4 * g + s), x1 = (int) __shfl_sync(0xffffffffu, a1, 4 * g + s);
        for (int i = 0; i < 2; ++i) {
            const int y = (int) __shfl_sync(0xffffffffu, b, 4 * (2 * t + i) + s);
            d[i] = __dp4a(x0, y, d[i]);
            d[2 + i] = __dp4a(x1, y, d[2 + i]);
        }
    }
}

// Products of bytes by a warp, 32 deep, d = a b + c. With g = lane / 4 and t = lane % 4, d and c are (g, 2t), (g, 2t + 1),
// (g + 8, 2t), (g + 8, 2t + 1); words of a are of rows g, g + 8, g, g + 8, words of b of column g: four bytes at k = 4t in
// a[0], a[1] and b[0], four at k = 4t + 16 in the others.
static inline __device__ void d_mma_s8(int (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const int (&c)[4]) {
#if defined(GCUDAI_SIM)
    sim_mma_s8(d, a, b, c);
#elif D_TENSOR_CORES
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
#else
    for (int i = 0; i < 4; ++i) { d[i] = c[i]; }
    d_mma_s8_shuffled(d, a[0], a[1], b[0]);
    d_mma_s8_shuffled(d, a[2], a[3], b[1]);
#endif
}
// 16 deep: the first half of that.
static inline __device__ void d_mma_s8_half(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t b, const int (&c)[4]) {
#if defined(GCUDAI_SIM)
    const uint32_t a[4] = { a0, a1, 0, 0 }, both[2] = { b, 0 };
    sim_mma_s8(d, a, both, c);
#elif D_TENSOR_CORES
    asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%8,%9,%10};"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(a0), "r"(a1), "r"(b), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
#else
    for (int i = 0; i < 4; ++i) { d[i] = c[i]; }
    d_mma_s8_shuffled(d, a0, a1, b);
#endif
}

// =====================================================================================================
// >>k-quants   block formats: 32 elements at a time as integer codes and scales
// =====================================================================================================
// A group is 32 consecutive elements of a block; a block has n / 32 of them. Every format decodes to the same form:
//
//     element j = scale[j / 16] * (code j - zero) - min[j / 16]
//
// with the codes as bytes, four to a word, element 0 lowest. The products are exact where quants.md's are, so the
// values are those of the CPU. zero is a constant of the format; dot products take it out of the loop.

struct d_group {
    uint32_t q[8];
    float scale[2], min[2];
};

static inline __device__ float d_half(gcuda_fp16_t bits) { return __half2float(__ushort_as_half(bits)); }

// A word that lies at a multiple of 4, 2 or 1 bytes.
static inline __device__ uint32_t d_word4(const void * p) { return *(const uint32_t *) p; }
static inline __device__ uint32_t d_word2(const void * p) {
    const uint16_t * h = (const uint16_t *) p;
    return (uint32_t) h[0] | (uint32_t) h[1] << 16;
}
static inline __device__ uint32_t d_word1(const void * p) {
    const uint8_t * b = (const uint8_t *) p;
    return (uint32_t) b[0] | (uint32_t) b[1] << 8 | (uint32_t) b[2] << 16 | (uint32_t) b[3] << 24;
}

// Bit i of four becomes bit 0 of byte i.
static inline __device__ uint32_t d_spread_bits(uint32_t bits) { return (bits & 15u) * 0x00204081u & 0x01010101u; }

// Bytes 1 .. 127 negated where the bit of `signs` is set.
static inline __device__ uint32_t d_negate_bytes(uint32_t bytes, uint32_t signs) {
    const uint32_t ones = d_spread_bits(signs);
    return (bytes ^ ones * 255u) + ones;
}

static inline __device__ uint32_t d_table_word(const int8_t * table, int k) {
    return (uint32_t) (uint8_t) table[4 * k] | (uint32_t) (uint8_t) table[4 * k + 1] << 8 |
           (uint32_t) (uint8_t) table[4 * k + 2] << 16 | (uint32_t) (uint8_t) table[4 * k + 3] << 24;
}

// Eight nibbles through a table of 16 bytes: the low ones of each byte, then the high ones.
static inline __device__ void d_lookup_words(
    uint32_t t0, uint32_t t1, uint32_t t2, uint32_t t3, uint32_t nibbles, uint32_t * low, uint32_t * high) {
    const uint32_t s = nibbles & 0x77777777u, upper = (nibbles & 0x88888888u) >> 1 | 0x32103210u;
    const uint32_t a = __byte_perm(__byte_perm(t0, t1, s), __byte_perm(t2, t3, s), upper);
    const uint32_t b = __byte_perm(__byte_perm(t0, t1, s >> 16), __byte_perm(t2, t3, s >> 16), upper >> 16);
    *low = __byte_perm(a, b, 0x6420);
    *high = __byte_perm(a, b, 0x7531);
}
static inline __device__ void d_lookup(const int8_t * table, uint32_t nibbles, uint32_t * low, uint32_t * high) {
    d_lookup_words(
        d_table_word(table, 0), d_table_word(table, 1), d_table_word(table, 2), d_table_word(table, 3), nibbles, low, high);
}

static inline __device__ void d_set_scales(d_group & o, float scale0, float scale1, float min0, float min1) {
    o.scale[0] = scale0;
    o.scale[1] = scale1;
    o.min[0] = min0;
    o.min[1] = min1;
}
static inline __device__ void d_set_scale(d_group & o, float scale, float min) {
    d_set_scales(o, scale, scale, min, min);
}

// What formats share; n is the number of elements of a block.
template <gcuda_type TYPE, typename BLOCK, int N, int ZERO, bool HAS_MIN> struct d_format_of {
    typedef uint32_t entry_type;
    static constexpr int n_entries = 0; // of a codebook, see D_CODEBOOK
    typedef BLOCK block;
    static constexpr gcuda_type type = TYPE;
    static constexpr int n = N, zero = ZERO;
    static constexpr bool has_min = HAS_MIN;
};
template <gcuda_type TYPE> struct d_format;

// ---- blocks of 32 ----
static inline __device__ void d_nibbles(const uint32_t w, uint32_t * low, uint32_t * high) {
    *low = w & 0x0f0f0f0fu;
    *high = w >> 4 & 0x0f0f0f0fu;
}

template <> struct d_format<GCUDA_TYPE_Q4_0> : d_format_of<GCUDA_TYPE_Q4_0, gcuda_block_q4_0, 32, 8, false> {
    static inline __device__ void decode(const block * b, int, d_group & o) {
        UNROLL for (int k = 0; k < 4; ++k) { d_nibbles(d_word2(b->qs + 4 * k), &o.q[k], &o.q[k + 4]); }
        d_set_scale(o, d_half(b->d), 0.0f);
    }
};

template <> struct d_format<GCUDA_TYPE_Q4_1> : d_format_of<GCUDA_TYPE_Q4_1, gcuda_block_q4_1, 32, 0, true> {
    static inline __device__ void decode(const block * b, int, d_group & o) {
        UNROLL for (int k = 0; k < 4; ++k) { d_nibbles(d_word4(b->qs + 4 * k), &o.q[k], &o.q[k + 4]); }
        d_set_scale(o, d_half(b->d), -d_half(b->m));
    }
};

static inline __device__ void d_fifth_bits(uint32_t h, d_group & o) {
    UNROLL for (int k = 0; k < 8; ++k) { o.q[k] |= d_spread_bits(h >> 4 * k) << 4; }
}

template <> struct d_format<GCUDA_TYPE_Q5_0> : d_format_of<GCUDA_TYPE_Q5_0, gcuda_block_q5_0, 32, 16, false> {
    static inline __device__ void decode(const block * b, int, d_group & o) {
        UNROLL for (int k = 0; k < 4; ++k) { d_nibbles(d_word2(b->qs + 4 * k), &o.q[k], &o.q[k + 4]); }
        d_fifth_bits(d_word2(b->qh), o);
        d_set_scale(o, d_half(b->d), 0.0f);
    }
};

template <> struct d_format<GCUDA_TYPE_Q5_1> : d_format_of<GCUDA_TYPE_Q5_1, gcuda_block_q5_1, 32, 0, true> {
    static inline __device__ void decode(const block * b, int, d_group & o) {
        UNROLL for (int k = 0; k < 4; ++k) { d_nibbles(d_word4(b->qs + 4 * k), &o.q[k], &o.q[k + 4]); }
        d_fifth_bits(d_word4(b->qh), o);
        d_set_scale(o, d_half(b->d), -d_half(b->m));
    }
};

template <> struct d_format<GCUDA_TYPE_Q8_0> : d_format_of<GCUDA_TYPE_Q8_0, gcuda_block_q8_0, 32, 0, false> {
    static inline __device__ void decode(const block * b, int, d_group & o) {
        UNROLL for (int k = 0; k < 8; ++k) { o.q[k] = d_word2(b->qs + 4 * k); }
        d_set_scale(o, d_half(b->d), 0.0f);
    }
};

template <> struct d_format<GCUDA_TYPE_Q8_1> : d_format_of<GCUDA_TYPE_Q8_1, gcuda_block_q8_1, 32, 0, false> {
    static inline __device__ void decode(const block * b, int, d_group & o) {
        UNROLL for (int k = 0; k < 8; ++k) { o.q[k] = d_word4(b->qs + 4 * k); }
        d_set_scale(o, d_half(b->d), 0.0f);
    }
};

template <> struct d_format<GCUDA_TYPE_IQ4_NL> : d_format_of<GCUDA_TYPE_IQ4_NL, gcuda_block_iq4_nl, 32, 0, false> {
    static inline __device__ void decode(const block * b, int, d_group & o) {
        UNROLL for (int k = 0; k < 4; ++k) { d_lookup(gcudai_kvalues_iq4nl, d_word2(b->qs + 4 * k), &o.q[k], &o.q[k + 4]); }
        d_set_scale(o, d_half(b->d), 0.0f);
    }
};

template <> struct d_format<GCUDA_TYPE_MXFP4> : d_format_of<GCUDA_TYPE_MXFP4, gcuda_block_mxfp4, 32, 0, false> {
    static inline __device__ void decode(const block * b, int, d_group & o) {
        UNROLL for (int k = 0; k < 4; ++k) { d_lookup(gcudai_kvalues_mxfp4, d_word1(b->qs + 4 * k), &o.q[k], &o.q[k + 4]); }
        d_set_scale(o, gcudai_mxfp4_scale(b->e), 0.0f);
    }
};

// ---- blocks of 256 with integer sub-scales ----
template <> struct d_format<GCUDA_TYPE_Q2_K> : d_format_of<GCUDA_TYPE_Q2_K, gcuda_block_q2_k, 256, 0, true> {
    static inline __device__ void decode(const block * b, int g, d_group & o) {
        const float d = d_half(b->d), dmin = d_half(b->dmin);
        const uint32_t s0 = b->scales[2 * g], s1 = b->scales[2 * g + 1];
        UNROLL for (int k = 0; k < 8; ++k) {
            o.q[k] = d_word4(b->qs + 32 * (g / 4) + 4 * k) >> 2 * (g % 4) & 0x03030303u;
        }
        d_set_scales(o, d * (float) (s0 & 15u), d * (float) (s1 & 15u), dmin * (float) (s0 >> 4),
            dmin * (float) (s1 >> 4));
    }
};

template <> struct d_format<GCUDA_TYPE_Q3_K> : d_format_of<GCUDA_TYPE_Q3_K, gcuda_block_q3_k, 256, 4, false> {
    static inline __device__ float scale(const block * b, int s) {
        const int lo = b->scales[s % 8] >> 4 * (s / 8) & 15, hi = b->scales[8 + s % 4] >> 2 * (s / 4) & 3;
        return (float) ((lo | hi << 4) - 32);
    }
    static inline __device__ void decode(const block * b, int g, d_group & o) {
        const float d = d_half(b->d);
        UNROLL for (int k = 0; k < 8; ++k) {
            const uint32_t high = d_word2(b->hmask + 4 * k) >> g & 0x01010101u;
            o.q[k] = (d_word2(b->qs + 32 * (g / 4) + 4 * k) >> 2 * (g % 4) & 0x03030303u) | high << 2;
        }
        d_set_scales(o, d * scale(b, 2 * g), d * scale(b, 2 * g + 1), 0.0f, 0.0f);
    }
};

// The pair of 6-bit scale and min of group g in the 12 bytes of Q4_K and Q5_K.
static inline __device__ void d_k_scale(const uint8_t * p, gcuda_fp16_t d, gcuda_fp16_t dmin, int g, d_group & o) {
    const int j = g % 4;
    const uint32_t a = p[j], b = p[j + 4], c = p[j + 8];
    const uint32_t scale = g < 4 ? a & 63u : (c & 15u) | a >> 6 << 4, min = g < 4 ? b & 63u : c >> 4 | b >> 6 << 4;
    d_set_scale(o, d_half(d) * (float) scale, d_half(dmin) * (float) min);
}

template <> struct d_format<GCUDA_TYPE_Q4_K> : d_format_of<GCUDA_TYPE_Q4_K, gcuda_block_q4_k, 256, 0, true> {
    static inline __device__ void decode(const block * b, int g, d_group & o) {
        UNROLL for (int k = 0; k < 8; ++k) {
            o.q[k] = d_word4(b->qs + 32 * (g / 2) + 4 * k) >> 4 * (g % 2) & 0x0f0f0f0fu;
        }
        d_k_scale(b->scales, b->d, b->dmin, g, o);
    }
};

template <> struct d_format<GCUDA_TYPE_Q5_K> : d_format_of<GCUDA_TYPE_Q5_K, gcuda_block_q5_k, 256, 0, true> {
    static inline __device__ void decode(const block * b, int g, d_group & o) {
        UNROLL for (int k = 0; k < 8; ++k) {
            const uint32_t high = d_word4(b->qh + 4 * k) >> g & 0x01010101u;
            o.q[k] = (d_word4(b->qs + 32 * (g / 2) + 4 * k) >> 4 * (g % 2) & 0x0f0f0f0fu) | high << 4;
        }
        d_k_scale(b->scales, b->d, b->dmin, g, o);
    }
};

template <> struct d_format<GCUDA_TYPE_Q6_K> : d_format_of<GCUDA_TYPE_Q6_K, gcuda_block_q6_k, 256, 32, false> {
    static inline __device__ void decode(const block * b, int g, d_group & o) {
        const float d = d_half(b->d);
        const int part = g / 4, k4 = g % 4; // k4: which 32 of the half's 128 elements
        UNROLL for (int k = 0; k < 8; ++k) {
            const uint32_t lo = d_word2(b->ql + 64 * part + 32 * (k4 % 2) + 4 * k) >> 4 * (k4 / 2) & 0x0f0f0f0fu;
            o.q[k] = lo | (d_word2(b->qh + 32 * part + 4 * k) >> 2 * k4 & 0x03030303u) << 4;
        }
        d_set_scales(o, d * (float) b->scales[2 * g], d * (float) b->scales[2 * g + 1], 0.0f, 0.0f);
    }
};

template <> struct d_format<GCUDA_TYPE_Q8_K> : d_format_of<GCUDA_TYPE_Q8_K, gcuda_block_q8_k, 256, 0, false> {
    static inline __device__ void decode(const block * b, int g, d_group & o) {
        UNROLL for (int k = 0; k < 8; ++k) { o.q[k] = d_word4(b->qs + 32 * g + 4 * k); }
        d_set_scale(o, b->d, 0.0f);
    }
};

template <> struct d_format<GCUDA_TYPE_IQ4_XS> : d_format_of<GCUDA_TYPE_IQ4_XS, gcuda_block_iq4_xs, 256, 0, false> {
    static inline __device__ void decode(const block * b, int g, d_group & o) {
        const int scale = (b->scales_l[g / 2] >> 4 * (g % 2) & 15) | (b->scales_h >> 2 * g & 3) << 4;
        UNROLL for (int k = 0; k < 4; ++k) {
            d_lookup(gcudai_kvalues_iq4nl, d_word4(b->qs + 16 * g + 4 * k), &o.q[k], &o.q[k + 4]);
        }
        d_set_scale(o, d_half(b->d) * (float) (scale - 32), 0.0f);
    }
};

// ---- blocks of 256 with codebooks ----
// entry(i) is what an entry of the codebook stands for; decode_with takes it from wherever the caller keeps entries.
#define D_CODEBOOK(BLOCK, T, N, ENTRY)                                                                  \
    typedef T entry_type;                                                                               \
    static constexpr int n_entries = N;                                                                 \
    static inline __device__ T entry(uint32_t i) { return ENTRY; }                                      \
    static inline __device__ void decode(const BLOCK * b, int g, d_group & o) {                         \
        decode_with(b, g, o, [](uint32_t i) { return entry(i); });                                      \
    }
// Of signed formats put_with gives magnitudes and signs of eight or four elements at a time: put(k, entry, signs).
#define D_SIGNED_CODEBOOK(PUT)                                                                                       \
    template <typename F> static inline __device__ void decode_with(const block * b, int g, d_group & o, F entry) {   \
        put_with(b, g, o, entry, [&](int k, entry_type e, uint32_t signs) { PUT(k, e, signs, o.q); });                \
    }

static inline __device__ void d_put_iq2(int k, uint64_t mags, uint32_t signs, uint32_t * q) {
    q[2 * k] = d_negate_bytes((uint32_t) mags, signs);
    q[2 * k + 1] = d_negate_bytes((uint32_t) (mags >> 32), signs >> 4);
}
static inline __device__ void d_put_iq3(int k, uint32_t mags, uint32_t signs, uint32_t * q) { q[k] = d_negate_bytes(mags, signs); }

template <> struct d_format<GCUDA_TYPE_IQ2_XXS> : d_format_of<GCUDA_TYPE_IQ2_XXS, gcuda_block_iq2_xxs, 256, 0, false> {
    D_CODEBOOK(block, uint64_t, 256, gcudai_iq2_entry(gcudai_grid_iq2xxs[i]))
    D_SIGNED_CODEBOOK(d_put_iq2)
    template <typename F, typename P>
    static inline __device__ void put_with(const block * b, int g, d_group & o, F entry, P put) {
        const uint32_t codes = d_word2(b->qs + 4 * g), aux = d_word2(b->qs + 4 * g + 2);
        UNROLL for (int k = 0; k < 4; ++k) {
            put(k, entry(codes >> 8 * k & 255u), gcudai_even_signs(aux >> 7 * k & 127u));
        }
        d_set_scale(o, d_half(b->d) * (0.5f + (float) (aux >> 28)) * 0.25f, 0.0f);
    }
};

// Scales of 16 elements each, in nibbles
static inline __device__ void d_iq2_scales(gcuda_fp16_t d, uint32_t nibbles, d_group & o) {
    d_set_scales(o, d_half(d) * (0.5f + (float) (nibbles & 15u)) * 0.25f,
        d_half(d) * (0.5f + (float) (nibbles >> 4)) * 0.25f, 0.0f, 0.0f);
}

template <> struct d_format<GCUDA_TYPE_IQ2_XS> : d_format_of<GCUDA_TYPE_IQ2_XS, gcuda_block_iq2_xs, 256, 0, false> {
    D_CODEBOOK(block, uint64_t, 512, gcudai_iq2_entry(gcudai_grid_iq2xs[i]))
    D_SIGNED_CODEBOOK(d_put_iq2)
    template <typename F, typename P>
    static inline __device__ void put_with(const block * b, int g, d_group & o, F entry, P put) {
        UNROLL for (int k = 0; k < 4; ++k) {
            const uint32_t q = b->qs[4 * g + k];
            put(k, entry(q & 511u), gcudai_even_signs(q >> 9));
        }
        d_iq2_scales(b->d, b->scales[g], o);
    }
};

template <> struct d_format<GCUDA_TYPE_IQ2_S> : d_format_of<GCUDA_TYPE_IQ2_S, gcuda_block_iq2_s, 256, 0, false> {
    D_CODEBOOK(block, uint64_t, 1024, gcudai_iq2_entry(gcudai_grid_iq2s[i]))
    D_SIGNED_CODEBOOK(d_put_iq2)
    template <typename F, typename P>
    static inline __device__ void put_with(const block * b, int g, d_group & o, F entry, P put) {
        const uint32_t q = d_word2(b->qs + 4 * g), high = b->qh[g], signs = d_word2(b->signs + 4 * g);
        UNROLL for (int k = 0; k < 4; ++k) {
            const uint32_t code = (q >> 8 * k & 255u) | (high >> 2 * k & 3u) << 8;
            put(k, entry(code), signs >> 8 * k);
        }
        d_iq2_scales(b->d, b->scales[g], o);
    }
};

template <> struct d_format<GCUDA_TYPE_IQ3_XXS> : d_format_of<GCUDA_TYPE_IQ3_XXS, gcuda_block_iq3_xxs, 256, 0, false> {
    D_CODEBOOK(block, uint32_t, 256, gcudai_iq3_xxs_entry(i))
    D_SIGNED_CODEBOOK(d_put_iq3)
    template <typename F, typename P>
    static inline __device__ void put_with(const block * b, int g, d_group & o, F entry, P put) {
        const uint32_t aux = d_word2(b->scales_and_signs + 2 * g);
        UNROLL for (int k = 0; k < 8; ++k) {
            const uint32_t signs = gcudai_even_signs(aux >> 7 * (k / 2) & 127u) >> 4 * (k % 2);
            put(k, entry(b->qs[8 * g + k]), signs);
        }
        d_set_scale(o, d_half(b->d) * (0.5f + (float) (aux >> 28)) * 0.5f, 0.0f);
    }
};

template <> struct d_format<GCUDA_TYPE_IQ3_S> : d_format_of<GCUDA_TYPE_IQ3_S, gcuda_block_iq3_s, 256, 0, false> {
    D_CODEBOOK(block, uint32_t, 512, gcudai_iq3_s_entry(i))
    D_SIGNED_CODEBOOK(d_put_iq3)
    template <typename F, typename P>
    static inline __device__ void put_with(const block * b, int g, d_group & o, F entry, P put) {
        const uint32_t high = b->qh[g], signs = d_word2(b->signs + 4 * g);
        UNROLL for (int k = 0; k < 8; ++k) {
            const uint32_t code = (uint32_t) b->qs[8 * g + k] | (high >> k & 1u) << 8;
            put(k, entry(code), signs >> 4 * k);
        }
        d_set_scale(o, d_half(b->d) * (float) (1 + 2 * (b->scales[g / 2] >> 4 * (g % 2) & 15)), 0.0f);
    }
};

// Digits 0 1 2 stand for -1 0 1, moved by an eighth up or down: in eighths 8 digit - 8 +- 1, or 8 digit + (2 or 0) - 9.
static inline __device__ uint64_t d_iq1_entry(uint32_t code) { return 8u * gcudai_spread_2(gcudai_grid_iq1s[code]); }

static inline __device__ void d_put_iq1(uint64_t eighths, bool is_down, uint32_t * q) {
    const uint32_t up = is_down ? 0u : 0x02020202u;
    q[0] = (uint32_t) eighths + up;
    q[1] = (uint32_t) (eighths >> 32) + up;
}

template <> struct d_format<GCUDA_TYPE_IQ1_S> : d_format_of<GCUDA_TYPE_IQ1_S, gcuda_block_iq1_s, 256, 9, false> {
    D_CODEBOOK(block, uint64_t, 2048, d_iq1_entry(i))
    template <typename F> static inline __device__ void decode_with(const block * b, int g, d_group & o, F entry) {
        const uint32_t h = b->qh[g], q = d_word2(b->qs + 4 * g);
        UNROLL for (int k = 0; k < 4; ++k) {
            d_put_iq1(entry((q >> 8 * k & 255u) | (h >> 3 * k & 7u) << 8), (h & 0x8000u) != 0, o.q + 2 * k);
        }
        d_set_scale(o, d_half(b->d) * (float) (2u * (h >> 12 & 7u) + 1u) * 0.125f, 0.0f);
    }
};

template <> struct d_format<GCUDA_TYPE_IQ1_M> : d_format_of<GCUDA_TYPE_IQ1_M, gcuda_block_iq1_m, 256, 9, false> {
    D_CODEBOOK(block, uint64_t, 2048, d_iq1_entry(i))
    template <typename F> static inline __device__ void decode_with(const block * b, int g, d_group & o, F entry) {
        const uint32_t s01 = d_word4(b->scales), s23 = d_word4(b->scales + 2);
        const uint32_t d = (s01 >> 12 & 15u) | (s01 >> 28) << 4 | (s23 >> 12 & 15u) << 8 | (s23 >> 28) << 12;
        const uint32_t scales = (g < 4 ? s01 : s23) >> 16 * (g / 2 % 2) >> 6 * (g % 2);
        const uint32_t q = d_word4(b->qs + 4 * g), h = (uint32_t) b->qh[2 * g] | (uint32_t) b->qh[2 * g + 1] << 8;
        UNROLL for (int k = 0; k < 4; ++k) {
            const uint32_t high = h >> 4 * k & 15u;
            d_put_iq1(entry((q >> 8 * k & 255u) | (high & 7u) << 8), (high & 8u) != 0, o.q + 2 * k);
        }
        const float eighth = d_half((gcuda_fp16_t) d) * 0.125f;
        d_set_scales(o, eighth * (float) (2u * (scales & 7u) + 1u), eighth * (float) (2u * (scales >> 3 & 7u) + 1u), 0.0f,
            0.0f);
    }
};

// ---- codebooks: entries of 8 digits of 2 bits are kept as nibbles, whose upper bits choose another half of a table ----
static inline __device__ uint32_t d_digits_to_nibbles(uint32_t digits) {
    digits = (digits | digits << 8) & 0x00ff00ffu;
    digits = (digits | digits << 4) & 0x0f0f0f0fu;
    return (digits | digits << 2) & 0x33333333u;
}
// Bit i of eight becomes bit 0 of nibble i.
static inline __device__ uint32_t d_bits_to_nibbles(uint32_t bits) {
    bits = (bits | bits << 12) & 0x000f000fu;
    bits = (bits | bits << 6) & 0x03030303u;
    return (bits | bits << 3) & 0x11111111u;
}
// The same for seven bits, the eighth making their number even: a nibble of the product counts those below it.
static inline __device__ uint32_t d_even_bits_to_nibbles(uint32_t bits) {
    bits = d_bits_to_nibbles(bits);
    return bits | (bits * 0x11111111u & 0x10000000u);
}
// Digits 0 1 2 as 8 25 43, with 4 added negative.
static inline __device__ void d_pair_iq2(uint32_t nibbles, uint32_t * q) {
    q[0] = d_permute(0x002b1908u, 0x00d5e7f8u, nibbles);
    q[1] = d_permute(0x002b1908u, 0x00d5e7f8u, nibbles >> 16);
}
static inline __device__ void d_eight_iq2(uint32_t digits, uint32_t signs, uint32_t (&q)[2]) { d_pair_iq2(digits + 4u * signs, q); }
// Digits 0 1 2 as 0 8 16, with 4 added two more: they are moved up (d_put_iq1).
static inline __device__ void d_pair_iq1(uint32_t nibbles, uint32_t * q) {
    q[0] = d_permute(0x00100800u, 0x00120a02u, nibbles);
    q[1] = d_permute(0x00100800u, 0x00120a02u, nibbles >> 16);
}
static inline __device__ void d_eight_iq1(uint32_t digits, bool is_down, uint32_t (&q)[2]) {
    d_pair_iq1(is_down ? digits : digits + 0x44444444u, q);
}

// ---- all of them ----
// clang-format off
#define D_WEIGHT_TYPES(X)                                                                                   \
    X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q8_0) X(Q2_K) X(Q3_K) X(Q4_K) X(Q5_K) X(Q6_K) X(IQ4_NL) X(IQ4_XS)     \
    X(MXFP4) X(IQ1_S) X(IQ1_M) X(IQ2_XXS) X(IQ2_XS) X(IQ2_S) X(IQ3_XXS) X(IQ3_S)
#define D_BLOCK_TYPES(X) D_WEIGHT_TYPES(X) X(Q8_1) X(Q8_K)
// clang-format on

// f(d_format<type>()) for a block type, or for one that weights have; UNSUPPORTED for others.
#define X(ID) GCUDAI_KERNEL_WHEN(ID, case GCUDA_TYPE_##ID: return f(d_format<GCUDA_TYPE_##ID>());)
template <typename F> static gcuda_status with_format(gcuda_type type, F f) {
    switch (type) {
        D_BLOCK_TYPES(X)
        default: return GCUDA_STATUS_UNSUPPORTED;
    }
}
template <typename F> static gcuda_status with_weight_format(gcuda_type type, F f) {
    (void) f; // every type may be left out
    switch (type) {
        D_WEIGHT_TYPES(X)
        default: return GCUDA_STATUS_UNSUPPORTED;
    }
}
#undef X

// Code of element j, zero taken off.
template <typename FORMAT> static inline __device__ int d_code(const d_group & g, int j) {
    return (int) (int8_t) (g.q[j / 4] >> 8 * (j % 4)) - FORMAT::zero;
}

template <typename FORMAT> static inline __device__ float d_value(int code, float scale, float min) {
    return FORMAT::has_min ? scale * (float) code - min : scale * (float) code;
}

// Four elements, moved at once.
template <typename T> struct alignas(4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)) d_four {
    T v[4];
};

// Element i of a row.
template <typename FORMAT> static inline __device__ float d_element(const char * row, int64_t i) {
    d_group g;
    const int j = (int) (i % 32);
    FORMAT::decode((const typename FORMAT::block *) row + i / FORMAT::n, (int) (i % FORMAT::n) / 32, g);
    uint32_t word = 0; // no dynamic index into registers
    UNROLL for (int k = 0; k < 8; ++k) { word = j / 4 == k ? g.q[k] : word; }
    return d_value<FORMAT>((int) (int8_t) (word >> 8 * (j % 4)) - FORMAT::zero, j < 16 ? g.scale[0] : g.scale[1],
        j < 16 ? g.min[0] : g.min[1]);
}

// ---- columns as bytes, for products with up to 8 of them (>>k-mul-mat-vec), which go through them in steps ----
#define VEC_STEP 2048

// Where a lane's 64 elements lie in a step, and in which order a group's bytes are dotted.
enum d_vec_order {
    D_SIDE_BY_SIDE, // groups 2 lane and 2 lane + 1, bytes as they are
    D_INTERLEAVED,  // the same groups; of each eight bytes four are of the first half, four of the second, in turn
    D_TWO_APART     // groups g and g + 2 of each four
};

// How a column is made ready for a format. Piece i of a lane, 16 elements, meets codes that are 2^k times too large, where
// k = of_odd (i % 2) + of_second (i / 2) + of_odd_lane (lane % 2).
struct d_vec_form {
    d_vec_order order;
    int zero;
    bool has_min;
    int of_odd, of_second, of_odd_lane;
};

// A form as a number other than 0, which is how host code and other parts know it (gcuda_mul_mat_vec_form).
static inline __host__ __device__ constexpr int d_vec_form_number(const d_vec_form & f) {
    return 1 | (int) f.order << 1 | (int) f.has_min << 3 | f.of_odd << 4 | f.of_second << 7 | f.of_odd_lane << 10 | f.zero << 13;
}
static inline __host__ __device__ constexpr d_vec_form d_vec_form_of_number(int n) {
    return { (d_vec_order) (n >> 1 & 3), n >> 13, (n >> 3 & 1) != 0, n >> 4 & 7, n >> 7 & 7, n >> 10 & 7 };
}

// A column's bytes lie as [step][4][32] pieces of 16, behind those of all steps the pieces' scales in the same order.
#define VEC_STEP_BYTES (VEC_STEP + VEC_STEP / 16 * 8)
static inline __host__ __device__ int64_t vec_steps(int64_t k) { return (k + VEC_STEP - 1) / VEC_STEP; }

// The larger of two magnitudes as bits: they have the order of floats, and NaN comes last, which fmaxf would drop.
static inline __device__ int d_largest(int a, int b) { return a > b ? a : b; }

// 4 N elements of a column, v, as bytes; n_lanes in a row make a piece, which has the scale d and whose bytes have this sum,
// if it is wanted. All lanes of the warp take part.
template <int N>
static inline __device__ void d_vec_bytes(float4 (&v)[N], int n_lanes, bool wants_sum, float * d, int * sum, uint32_t (&bytes)[N]) {
    const int low = 0x7fffffff;
    int bits = 0, all = 0;
    UNROLL for (int k = 0; k < N; ++k) {
        bits = d_largest(bits, d_largest(d_largest(__float_as_int(v[k].x) & low, __float_as_int(v[k].y) & low),
            d_largest(__float_as_int(v[k].z) & low, __float_as_int(v[k].w) & low)));
    }
    for (int i = 1; i < n_lanes; i *= 2) { bits = d_largest(bits, __shfl_xor_sync(0xffffffffu, bits, i)); }
    const float max = __int_as_float(bits);
    float inverse;
    if (max >= 1e-30f && max <= 1e30f) {
        inverse = 127.0f * d_reciprocal(max);
    } else { // zeros; what has no inverse, or one that is lost in the rounding, is moved to where it has
        const bool is_finite = max <= 3.4028235e38f; // else bytes 0, and a scale that makes NaN of them
        const float lift = !is_finite ? 0.0f : max < 1e-30f ? 1208925819614629174706176.0f : 1.0f / 1208925819614629174706176.0f;
        UNROLL for (int k = 0; k < N; ++k) {
            v[k] = is_finite ? make_float4(v[k].x * lift, v[k].y * lift, v[k].z * lift, v[k].w * lift) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
        inverse = max > 0.0f && is_finite ? __fdividef(127.0f, max * lift) : 0.0f;
    }
    UNROLL for (int k = 0; k < N; ++k) { // the last byte of 1.5 * 2^23 + n is that of n
        const int a = __float_as_int(v[k].x * inverse + 12582912.0f), b = __float_as_int(v[k].y * inverse + 12582912.0f);
        const int c = __float_as_int(v[k].z * inverse + 12582912.0f), e = __float_as_int(v[k].w * inverse + 12582912.0f);
        bytes[k] = __byte_perm(__byte_perm((uint32_t) a, (uint32_t) b, 0x0040), __byte_perm((uint32_t) c, (uint32_t) e, 0x0040), 0x5410);
        all = wants_sum ? __dp4a((int) bytes[k], 0x01010101, all) : 0;
    }
    for (int i = 1; i < n_lanes && wants_sum; i *= 2) { all += __shfl_xor_sync(0xffffffffu, all, i); }
    *d = max * (1.0f / 127.0f);
    *sum = all;
}
static inline __device__ uint32_t d_vec_bytes(float4 v, int n_lanes, bool wants_sum, float * d, int * sum) {
    float4 one[1] = { v };
    uint32_t bytes[1];
    d_vec_bytes<1>(one, n_lanes, wants_sum, d, sum, bytes);
    return bytes[0];
}

static inline __device__ int d_swap_bits_1_2(int i) { return (i & ~6) | (i & 2) << 1 | (i & 4) >> 1; }

// Which four elements of 128 lane i takes, counted in fours.
static inline __device__ int d_vec_quad(int i, d_vec_order order) { return order == D_INTERLEAVED ? d_swap_bits_1_2(i) : i; }

#define D_BIAS 12582912 // 1.5 * 2^23: a float whose bits plus an integer below 2^22 are the float plus that integer
static inline __device__ float d_unbiased(int bits) { return __int_as_float(bits) - (float) D_BIAS; }

// Where piece i, of 16 elements, of part w lies, and its scale with what is kept beside it: the scaled sum of its bytes for mins or, as
// bits, what the dot products with its bytes begin with.
static inline __device__ int d_vec_piece_at(int piece, int w) { return piece % 4 * 32 + piece / 4 + 2 * w; }
static inline __device__ float2 d_vec_scale(int piece, const d_vec_form & f, float d, int sum) {
    const int k = piece % 2 * f.of_odd + piece / 2 % 2 * f.of_second + piece / 4 * f.of_odd_lane;
    const float start = __int_as_float(__float_as_int((float) D_BIAS) - sum * (f.zero << k));
    return make_float2(d * __int_as_float((127 - k) << 23), f.has_min ? d * (float) sum : start);
}

// Where the first of two quads begins that a lane rounds together, among 256 elements, and how far the second is from it: half of a piece.
// In interleaved forms they are 16 elements apart, and odd lanes have the second first, so that one load of a warp asks for all of a line
// at once: all blocks want the same lines.
static inline __device__ int d_vec_eight(int lane, d_vec_order order) {
    return order == D_INTERLEAVED ? lane / 4 * 32 + lane % 4 * 4 + lane % 2 * 16 : 8 * lane;
}
static inline __device__ int d_vec_second_quad(int lane, d_vec_order order) { return order != D_INTERLEAVED ? 4 : lane % 2 == 0 ? 16 : -16; }

// N parts, w and on, 128 elements each, of a step: those of d_vec_quad(lane), or with two quads a lane those of d_vec_eight; pieces of 16,
// of which piece i goes to lane i / 4, its place i % 4.
template <int N>
static inline __device__ void d_vec_quantize(float4 (&v)[N], int w, int lane, const d_vec_form & f, int4 * xq, float2 * xs) {
    constexpr int LANES = 4 / N; // of a piece
    float d;
    int sum;
    uint32_t bytes[N];
    d_vec_bytes<N>(v, LANES, f.zero != 0 || f.has_min, &d, &sum, bytes);
    const int i = lane / LANES % 8, piece = f.order == D_TWO_APART ? d_swap_bits_1_2(i) : i;
    const int at = d_vec_piece_at(piece, w + lane / (8 * LANES));
    if constexpr (N == 2) {
        uint2 words = make_uint2(bytes[0], bytes[1]);
        if (f.order == D_INTERLEAVED) { // the two of odd lanes are the other way round
            words = make_uint2(__byte_perm(bytes[0], bytes[1], lane % 2 == 0 ? 0x5140 : 0x1504),
                __byte_perm(bytes[0], bytes[1], lane % 2 == 0 ? 0x7362 : 0x3726));
        }
        ((uint2 *) xq)[2 * at + lane % 2] = words;
    } else {
        int word = lane % 4;
        if (f.order == D_INTERLEAVED) {
            const uint32_t other = __shfl_xor_sync(0xffffffffu, bytes[0], 2); // those 16 elements away
            bytes[0] = word < 2 ? __byte_perm(bytes[0], other, 0x5140) : __byte_perm(other, bytes[0], 0x7362);
            word = 2 * (word % 2) + word / 2;
        }
        ((uint32_t *) xq)[4 * at + word] = bytes[0];
    }
    if (lane % LANES == 0) { xs[at] = d_vec_scale(piece, f, d, sum); }
}
static inline __device__ void d_vec_quantize4(const float4 & v, int w, int lane, const d_vec_form & f, int4 * xq, float2 * xs) {
    float4 one[1] = { v };
    d_vec_quantize<1>(one, w, lane, f, xq, xs);
}

// ---- columns that products on warp groups have rounded already ----
// As k_wg_columns leaves them for weights in blocks: BF16 as [tile][step of 64 elements of k][column][128 bytes], zeros behind the last
// column. Their form as a number is the columns of a tile, which is even, as no form of bytes is; k a multiple of 256.
#define WG_K 64 // elements of k in a step: 128 bytes of a column, the width of the swizzle
// Columns, and pieces of 2048 elements of them, are counted in 31 bits.
static inline bool is_wg_form(int form, int64_t k, int64_t n) {
    return (form == 64 || form == 128 || form == 256) && k > 0 && k <= (1 << 29) && k % 256 == 0 && (k + 2047) / 2048 * ((n + form - 1) / form) <= (1 << 30) / form;
}
static inline __host__ __device__ int64_t d_wg_padded(int64_t n, int form) { return (n + form - 1) & ~(int64_t) (form - 1); } // a power of 2

static inline __device__ char * d_wg_column(char * image, int64_t k, int form, uint32_t c) {
    const uint32_t in_tile = c & (uint32_t) (form - 1);
    return image + ((int64_t) (c - in_tile) * k + (int64_t) in_tile * WG_K) * 2;
}

// Elements k .. k + 127 of column c, a warp's, four a lane: element 4 of lane 8 t + s is where lane t of a quad has it in instruction s
// (d_wg_put has more at once). A lane gets two words of the image from the two that have them.
static inline __device__ void d_wg_put_four(char * column, int form, uint32_t c, int k, const float4 & v) {
    const int lane = (int) threadIdx.x % 32, from = lane / 4 + 16 * (lane % 2), piece = lane % 16 / 2 ^ (int) (c % 8);
    const uint32_t low = d_bf16_pair(v.x, v.y), high = d_bf16_pair(v.z, v.w);
    const uint2 first = make_uint2(__shfl_sync(0xffffffffu, low, from), __shfl_sync(0xffffffffu, low, from + 8));
    const uint2 second = make_uint2(__shfl_sync(0xffffffffu, high, from), __shfl_sync(0xffffffffu, high, from + 8));
    const int64_t step = (int64_t) (k / WG_K + lane / 16) * (form * WG_K * 2);
    *(uint2 *) (column + step + 16 * piece + 8 * (lane % 2)) = lane % 4 < 2 ? first : second;
}

#if GCUDAI_PART(8) || GCUDAI_PART(10)
// ---- quantizers of blocks: those of the CPU (>>impl-blocks) ----
// clang-format off
#define D_QUANTIZED_TYPES(X)                                                                                      \
    X(Q4_0, q4_0) X(Q4_1, q4_1) X(Q5_0, q5_0) X(Q5_1, q5_1) X(Q8_0, q8_0) X(Q8_1, q8_1) X(IQ4_NL, iq4_nl)         \
    X(MXFP4, mxfp4) X(Q8_K, q8_k) X(Q2_K, q2_k) X(Q3_K, q3_k) X(Q4_K, q4_k) X(Q5_K, q5_k) X(Q6_K, q6_k)           \
    X(IQ4_XS, iq4_xs)
// clang-format on
template <gcuda_type TYPE> static inline __device__ void d_quantize(const float * x, void * y);
#define X(ID, name)                                                                                               \
    template <> inline __device__ void d_quantize<GCUDA_TYPE_##ID>(const float * x, void * y) {                   \
        gcudai_quantize_row_##name(x, y, d_format<GCUDA_TYPE_##ID>::n);                                           \
    }
D_QUANTIZED_TYPES(X)
#undef X

// By all threads of a block, before the first of its blocks is made.
template <gcuda_type TYPE> static inline __device__ void d_quantize_begin(void) {
    if (TYPE == GCUDA_TYPE_IQ4_NL || TYPE == GCUDA_TYPE_IQ4_XS) { gcudai_iq4nl_begin(); }
}
#endif // parts 8, 10

#if GCUDAI_PART(8)
// =====================================================================================================
// >>k-copy   copies and conversions between all types, rows by index
// =====================================================================================================
// Elements move in units: a group of 32 where a side has blocks to be decoded, a block where one is made, one element
// otherwise. A map says where unit u comes from and goes to.

// Where unit u, in logical order, lies: row and number in it. Rows hold whole units, or all elements are packed.
static inline __device__ char * d_unit_row(const gcuda_array & a, int64_t * u, int64_t unit) {
    const int64_t n0 = a.ne[0] / unit, r = *u / (n0 > 0 ? n0 : 1);
    if (n0 * unit != a.ne[0]) {
        return (char *) a.data;
    }
    *u %= n0;
    return d_row(a, r);
}

// Where group u of the blocks of a lies: block and number of the group in it.
template <typename FORMAT> static inline __device__ const typename FORMAT::block * d_group_at(const char * row, int64_t u) {
    return (const typename FORMAT::block *) row + u / (FORMAT::n / 32);
}

struct d_target {
    const char * x; // row of the source, NULL: zeros
    int64_t i;      // unit of that row
    char * y;       // first element of the unit, NULL: nothing to do
};

// Of a copy: the k-th element of x becomes the k-th of y.
struct d_map_cpy {
    static const bool HAS_ROWS = true;
    gcuda_array x, y;
    int64_t y_bytes; // of a unit

    inline __device__ d_target at(int64_t u, int64_t unit) const {
        int64_t iy = u;
        d_target t;
        t.i = u;
        t.x = d_unit_row(x, &t.i, unit);
        t.y = d_unit_row(y, &iy, unit);
        t.y += iy * y_bytes;
        return t;
    }
    inline __device__ bool is_f64() const { return y.type == GCUDA_TYPE_F64; }
    // of equal shapes
    inline __device__ d_target row(const d_index & i) const {
        return { d_at(x, 0, i.i1, i.i2, i.i3), 0, d_at(y, 0, i.i1, i.i2, i.i3) };
    }
};

// Of get_rows.
struct d_map_get {
    gcuda_get_rows_args p;

    inline __device__ d_target at(int64_t u, int64_t unit) const {
        const int64_t n0 = p.y.ne[0] / unit, r = u / n0, i1 = r % p.y.ne[1], i2 = r / p.y.ne[1] % p.y.ne[2],
                      i3 = r / p.y.ne[1] / p.y.ne[2];
        const int32_t row = *(const int32_t *) d_at(p.ids, i1, i2, i3, 0);
        d_target t;
        t.i = u % n0;
        t.x = row >= 0 && row < p.x.ne[1] ? d_at(p.x, 0, row, i2, i3) : nullptr;
        t.y = d_at(p.y, 0, i1, i2, i3) + t.i * unit * (int64_t) p.y.nb[0];
        if (t.x == nullptr && p.bad_index != nullptr) {
            *p.bad_index = 1;
        }
        return t;
    }
    inline __device__ bool is_f64() const { return false; }
    inline __device__ d_target row(const d_index & i) const {
        const int32_t row = *(const int32_t *) d_at(p.ids, i.i1, i.i2, i.i3, 0);
        const bool is_in = row >= 0 && row < p.x.ne[1];
        if (!is_in && p.bad_index != nullptr) {
            *p.bad_index = 1;
        }
        return { is_in ? d_at(p.x, 0, row, i.i2, i.i3) : nullptr, 0, d_at(p.y, 0, i.i1, i.i2, i.i3) };
    }
};

// Of set_rows.
static inline __device__ int64_t d_index_of(const gcuda_array & ids, int64_t i0, int64_t i1, int64_t i2) {
    const char * p = d_at(ids, i0, i1, i2, 0);
    return ids.type == GCUDA_TYPE_I64 ? *(const int64_t *) p : (int64_t) *(const int32_t *) p;
}

// Where row r goes, or -1.
static inline __device__ int64_t d_set_row_of(const gcuda_get_rows_args & p, int64_t r, int64_t j1, int64_t j2) {
    const int64_t to = d_index_of(p.ids, r, j1, j2);
    bool is_last = to >= 0 && to < p.y.ne[1];
    if (!is_last && p.bad_index != nullptr) { *p.bad_index = 1; }
    for (int64_t i = r + 1; i < p.ids.ne[0]; ++i) { is_last = is_last && d_index_of(p.ids, i, j1, j2) != to; }
    return is_last ? to : -1;
}

template <bool MAY_LOOK> struct d_map_set {
    static const bool HAS_ROWS = true;
    gcuda_get_rows_args p;
    int64_t y_bytes; // of a unit
    int64_t looks;   // itself: nothing is in scratch. A word, or the simulated device takes what pads it for an address

    inline __device__ int64_t to(int64_t r, int64_t j1, int64_t j2) const {
        if (MAY_LOOK && looks) { return d_set_row_of(p, r, j1, j2); }
        return ((const int64_t *) p.scratch)[r + p.ids.ne[0] * (j1 + p.ids.ne[1] * j2)];
    }
    inline __device__ d_target at(int64_t u, int64_t unit) const {
        const int64_t n0 = p.x.ne[0] / unit, r = u / n0, i1 = r % p.x.ne[1], i2 = r / p.x.ne[1] % p.x.ne[2],
                      i3 = r / p.x.ne[1] / p.x.ne[2];
        const int64_t row = to(i1, i2 % p.ids.ne[1], i3 % p.ids.ne[2]);
        d_target t;
        t.i = u % n0;
        t.x = d_at(p.x, 0, i1, i2, i3);
        t.y = row < 0 ? nullptr : d_at(p.y, 0, row, i2, i3) + t.i * y_bytes;
        return t;
    }
    inline __device__ d_target row(const d_index & i) const {
        const int64_t j1 = i.i2 < p.ids.ne[1] ? i.i2 : i.i2 % p.ids.ne[1], j2 = i.i3 < p.ids.ne[2] ? i.i3 : i.i3 % p.ids.ne[2];
        const int64_t row = to(i.i1, j1, j2);
        return { d_at(p.x, 0, i.i1, i.i2, i.i3), 0, row < 0 ? nullptr : d_at(p.y, 0, row, i.i2, i.i3) };
    }
};

// Of what makes blocks other than by whole rows: a copy, set_rows, or the sum of blocks and b. One kernel for all of them: the
// quantizers are up to 175 KB of code each.
struct d_map_blocks {
    static const bool HAS_ROWS = false;
    d_map_cpy cpy;
    d_map_set<true> set; // instead, where it has a y
    gcuda_array b;       // F32, of the shape of cpy.x: data is NULL where nothing is added

    inline __device__ d_target at(int64_t u, int64_t unit) const { return set.p.y.data != nullptr ? set.at(u, unit) : cpy.at(u, unit); }
};
static d_map_blocks blocks_of(const d_map_cpy & map) {
    d_map_blocks m = {};
    m.cpy = map;
    return m;
}
static d_map_blocks blocks_of(const d_map_set<true> & map) {
    d_map_blocks m = {};
    m.set = map;
    return m;
}
static const d_map_blocks & blocks_of(const d_map_blocks & map) { return map; }

// ---- blocks to floats ----
static inline __device__ void d_put(double * p, float v) { *p = (double) v; }

// Four results, in one store where the address allows it.
template <typename T> static inline __device__ void d_put4(char * y, const float * v) {
    d_four<T> four;
    UNROLL for (int k = 0; k < 4; ++k) { d_put(&four.v[k], v[k]); }
    if ((uintptr_t) y % sizeof(d_four<T>) == 0) {
        *(d_four<T> *) y = four;
    } else {
        UNROLL for (int k = 0; k < 4; ++k) { ((T *) y)[k] = four.v[k]; }
    }
}

// A warp decodes 32 groups, a lane each, and writes them out together: eight lanes to a group.
//   floor   blocks read once, 32 * sizeof(T) bytes written per group     shared  9.5 KiB
template <typename FORMAT, typename T, typename MAP>
static __global__ void __launch_bounds__(128) k_dequantize(const MAP map, int64_t n_groups) {
    __shared__ uint32_t codes[4][32][9]; // 9: lanes hit different banks
    __shared__ float scales[4][32][4];
    __shared__ char * ys[4][32];
    const int lane = (int) threadIdx.x % 32, warp = (int) threadIdx.x / 32;
    for (int64_t first = (blockIdx.x * 4 + warp) * (int64_t) 32; first < n_groups; first += (int64_t) gridDim.x * 128) {
        char * y = nullptr;
        if (first + lane < n_groups) {
            const d_target t = map.at(first + lane, 32);
            d_group g = {};
            if (t.x != nullptr) {
                FORMAT::decode(d_group_at<FORMAT>(t.x, t.i), (int) (t.i % (FORMAT::n / 32)), g);
            }
            y = t.y;
            UNROLL for (int k = 0; k < 8; ++k) { codes[warp][lane][k] = g.q[k]; }
            UNROLL for (int k = 0; k < 2; ++k) {
                scales[warp][lane][k] = g.scale[k];
                scales[warp][lane][k + 2] = g.min[k];
            }
        }
        ys[warp][lane] = y;
        __syncwarp();
        for (int k = 0; k < 8; ++k) {
            const int at = 4 * k + lane / 8, word = lane % 8;
            if (ys[warp][at] != nullptr) {
                const uint32_t q = codes[warp][at][word];
                const float scale = scales[warp][at][word / 4], min = scales[warp][at][2 + word / 4];
                float v[4];
                UNROLL for (int j = 0; j < 4; ++j) {
                    v[j] = d_value<FORMAT>((int) (int8_t) (q >> 8 * j) - FORMAT::zero, scale, min);
                }
                if (sizeof(T) == 4 && map.is_f64()) { // by the kernel of F32: kernels of their own would be a third of a megabyte
                    d_put4<double>(ys[warp][at] + 4 * word * sizeof(double), v);
                } else {
                    d_put4<T>(ys[warp][at] + 4 * word * sizeof(T), v);
                }
            }
        }
        __syncwarp();
    }
}

template <typename T, typename MAP>
static gcuda_status dequantize(gcuda_type type, const MAP & map, int64_t n_elements, gcuda_stream stream) {
    const int64_t n = n_elements / 32;
    return with_format(type, [&](auto format) {
        return launch(k_dequantize<decltype(format), T, MAP>, (n + 127) / 128, 128, stream, map, n);
    });
}

// ---- floats to blocks ----
// Group i of a row, which is the u-th of all groups, and what is added to it. Rounded like the sum of the decoded row.
template <typename FORMAT>
static inline __device__ void d_add_group(const char * row, int64_t i, const gcuda_array & b, int64_t u, float * x) {
    const char * from = d_unit_row(b, &u, 32) + u * 32 * (int64_t) b.nb[0];
    d_group g = {};
    FORMAT::decode(d_group_at<FORMAT>(row, i), (int) (i % (FORMAT::n / 32)), g);
    UNROLL for (int j = 0; j < 32; ++j) {
        x[j] = d_add_rn(d_value<FORMAT>(d_code<FORMAT>(g, j), g.scale[j / 16], g.min[j / 16]), *(const float *) (from + j * (int64_t) b.nb[0]));
    }
}

// A warp writes n blocks to where ys say, NULL: nowhere.
template <typename block> static inline __device__ void d_write_blocks(const char * blocks, int n, char * const * ys, int lane) {
    constexpr int word = sizeof(block) % 4 == 0 ? 4 : sizeof(block) % 2 == 0 ? 2 : 1, words = sizeof(block) / word;
    for (int i = lane; i < n * words; i += 32) {
        char * y = ys[i / words];
        const char * from = blocks + i * word;
        if (y != nullptr && word == 4) { ((uint32_t *) y)[i % words] = *(const uint32_t *) from; }
        if (y != nullptr && word == 2) { ((uint16_t *) y)[i % words] = *(const uint16_t *) from; }
        if (y != nullptr && word == 1) { y[i % words] = *from; }
    }
}

// Blocks of 32, a lane makes one: a warp reads the elements of 32 blocks together and writes the blocks together.
//   floor   n * sizeof(x) bytes read, blocks written once      shared  22 KiB
template <gcuda_type TYPE>
static __global__ void __launch_bounds__(128) k_quantize_32(const d_map_blocks map, gcuda_type x_type, int64_t x_size, int64_t n_blocks) {
    typedef typename d_format<TYPE>::block block;
    __shared__ float elements[4][32][33];
    alignas(16) __shared__ char blocks[4][32 * sizeof(block)];
    __shared__ const char * xs[4][32];
    __shared__ char * ys[4][32];
    const int lane = (int) threadIdx.x % 32, warp = (int) threadIdx.x / 32;
    d_quantize_begin<TYPE>();
    for (int64_t first = (blockIdx.x * 4 + warp) * (int64_t) 32; first < n_blocks; first += (int64_t) gridDim.x * 128) {
        d_target t = { nullptr, 0, nullptr };
        if (first + lane < n_blocks) {
            t = map.at(first + lane, 32);
        }
        xs[warp][lane] = t.x + t.i * 32 * x_size;
        ys[warp][lane] = t.y;
        __syncwarp();
        for (int k = 0; k < 32; ++k) {
            if (ys[warp][k] != nullptr && map.b.data == nullptr) {
                elements[warp][k][lane] = d_load_f64(x_type, xs[warp][k] + lane * x_size);
            }
        }
        __syncwarp();
        if (t.y != nullptr) {
            float x[32];
            if (map.b.data != nullptr) {
                d_add_group<d_format<TYPE>>(t.x, t.i, map.b, first + lane, x);
            } else {
                UNROLL for (int j = 0; j < 32; ++j) { x[j] = elements[warp][lane][j]; }
            }
            d_quantize<TYPE>(x, blocks[warp] + lane * sizeof(block));
        }
        __syncwarp();
        d_write_blocks<block>(blocks[warp], 32, ys[warp], lane);
        __syncwarp();
    }
}

// Rows of packed, aligned elements: 32 neighbouring blocks of a row are 1,024 neighbouring elements, and are read and
// written sixteen bytes at a time; in shared memory too, where eight lanes that hit different banks go together.
template <typename X> static inline __device__ void d_stage_elements(const X * x, int n, int lane, float (*to)[36]) {
    const int N = d_wide<X>::N, PARTS = 32 / N;
    uint4 raw[PARTS];
    UNROLL for (int k = 0; k < PARTS; ++k) {
        const int at = (k * 32 + lane) * N;
        raw[k] = at < n ? *(const uint4 *) (x + at) : make_uint4(0, 0, 0, 0);
    }
    UNROLL for (int k = 0; k < PARTS; ++k) {
        const int at = (k * 32 + lane) * N;
        float v[N];
        d_unpack<X>(raw[k], v);
        UNROLL for (int j = 0; j < N; j += 4) { *(float4 *) &to[at / 32][at % 32 + j] = make_float4(v[j], v[j + 1], v[j + 2], v[j + 3]); }
    }
}

template <gcuda_type TYPE, typename MAP>
static __global__ void __launch_bounds__(128) k_quantize_rows(const MAP map, const gcuda_array x, int64_t per_row, int64_t n_groups) {
    typedef typename d_format<TYPE>::block block;
    constexpr int word = sizeof(block) % 4 == 0 ? 4 : sizeof(block) % 2 == 0 ? 2 : 1;
    alignas(16) __shared__ float elements[4][32][36];
    alignas(16) __shared__ char blocks[4][32 * sizeof(block)];
    const int lane = (int) threadIdx.x % 32, warp = (int) threadIdx.x / 32;
    d_quantize_begin<TYPE>();
    for (int64_t group = blockIdx.x * (int64_t) 4 + warp; group < n_groups; group += gridDim.x * (int64_t) 4) {
        const int64_t row = per_row < n_groups ? group / per_row : 0, first = (group - row * per_row) * 1024; // often one row
        const d_target t = map.row(per_row < n_groups ? d_row_index(x.ne, row) : d_index{ 0, 0, 0, 0 });
        const int n = (int) (x.ne[0] - first < 1024 ? x.ne[0] - first : 1024), n_bytes = n / 32 * (int) sizeof(block);
        char * y = t.y + first / 32 * (int64_t) sizeof(block);
        if (t.y == nullptr) {
            continue;
        }
        switch (x.type) {
            case GCUDA_TYPE_F32: d_stage_elements((const float *) t.x + first, n, lane, elements[warp]); break;
            case GCUDA_TYPE_F16: d_stage_elements((const __half *) t.x + first, n, lane, elements[warp]); break;
            default: d_stage_elements((const __nv_bfloat16 *) t.x + first, n, lane, elements[warp]); break;
        }
        __syncwarp();
        if (32 * lane < n) {
            float v[32];
            UNROLL for (int j = 0; j < 32; j += 4) { memcpy(v + j, (const float4 *) &elements[warp][lane][j], 16); }
            d_quantize<TYPE>(v, blocks[warp] + lane * sizeof(block));
        }
        __syncwarp();
        if (n_bytes % 16 == 0 && (uintptr_t) y % 16 == 0) {
            for (int i = 16 * lane; i < n_bytes; i += 512) { *(uint4 *) (y + i) = *(const uint4 *) (blocks[warp] + i); }
        } else {
            for (int i = word * lane; i < n_bytes; i += 32 * word) {
                const char * from = blocks[warp] + i;
                if (word == 4) { *(uint32_t *) (y + i) = *(const uint32_t *) from; }
                if (word == 2) { *(uint16_t *) (y + i) = *(const uint16_t *) from; }
                if (word == 1) { y[i] = *from; }
            }
        }
        __syncwarp();
    }
}

// ---- K formats: a lane makes a sub-block, a warp two or four blocks ----
template <gcuda_type TYPE> // elements of a sub-block, 0 of other formats
static constexpr int k_sub_len = TYPE == GCUDA_TYPE_Q4_K || TYPE == GCUDA_TYPE_Q5_K ? 32
                               : TYPE == GCUDA_TYPE_Q2_K || TYPE == GCUDA_TYPE_Q3_K || TYPE == GCUDA_TYPE_Q6_K ? 16 : 0;

#define X(name)                                                                                                   \
    static inline __device__ void d_pack_k(const gcudai_k_block * t, gcuda_block_##name * y, int lane) {          \
        gcudai_pack_##name(t, y, lane, 32);                                                                       \
    }
X(q2_k) X(q3_k) X(q4_k) X(q5_k) X(q6_k)
#undef X

// The codes q, as they are stored, and scales of the lane's sub-block, and with the first of a block its factors; scales and
// mins are shared by the warp, those of the block's sub-blocks from `first`.
template <gcuda_type TYPE>
static inline __device__ void d_make_affine(const float * x, float * scales, float * mins, int lane, gcudai_k_block * t, float * q) {
    const gcudai_affine_format f = gcudai_affine_format_of(TYPE);
    constexpr int LEN = k_sub_len<TYPE>, N = 256 / LEN;
    const int g = lane % N, first = lane - g;
    float w[LEN], d, dmin;
    gcudai_affine_weights(x, nullptr, 0.0f, &f, w);
    const gcudai_affine_found found = gcudai_search_affine(LEN, f.max_code, x, w, &f.rule);
    scales[lane] = found.scale;
    mins[lane] = found.min;
    __syncwarp();
    const float scale_is = gcudai_affine_factor(N, f.max_scale, scales + first, &d), min_is = gcudai_affine_factor(N, f.max_scale, mins + first, &dmin);
    const int scale = gcudai_nearest(scale_is * found.scale, 0, f.max_scale), min = gcudai_nearest(min_is * found.min, 0, f.max_scale);
    const gcuda_fp16_t hd = gcudai_fp32_to_fp16(d), hmin = gcudai_fp32_to_fp16(dmin);
    gcudai_affine_recode(x, &f, &found, hd, hmin, scale, min, q);
    t->scales[g] = (uint8_t) scale;
    t->mins[g] = (uint8_t) min;
    if (g == 0) {
        t->d = hd;
        t->dmin = hmin;
    }
}

static inline __device__ void d_make_q3_k(const float * x, float * scales, int lane, gcudai_k_block * t, float * q) {
    const int g = lane % 16;
    float d;
    const float s = gcudai_search_descent(16, 4, x, q);
    scales[lane] = s;
    __syncwarp();
    const float is = gcudai_q3_k_factor(scales + lane - g, &d);
    const int scale = gcudai_q3_k_scale(s, is);
    const gcuda_fp16_t hd = gcudai_fp32_to_fp16(d);
    gcudai_symmetric_recode(4, x, hd, scale, q);
    UNROLL for (int i = 0; i < 16; ++i) { q[i] += 4.0f; }
    t->scales[g] = (uint8_t) (scale + 32);
    if (g == 0) { t->d = hd; }
}

static inline __device__ void d_make_q6_k(const float * x, float * scales, int lane, gcudai_k_block * t, float * q) {
    const int g = lane % 16;
    float is;
    const gcudai_symmetric_found found = gcudai_search_q6_k(x, nullptr);
    scales[lane] = found.scale;
    __syncwarp();
    const bool has_values = gcudai_q6_k_factor(scales + lane - g, &is);
    const int scale = gcudai_q6_k_recode(x, &found, is, q);
    UNROLL for (int i = 0; i < 16; ++i) { q[i] = has_values ? q[i] + 32.0f : 0.0f; }
    t->scales[g] = (uint8_t) (has_values ? scale : 0);
    if (g == 0) { t->d = has_values ? gcudai_fp32_to_fp16(1.0f / is) : 0; }
}

// The elements of a warp's blocks, the u-th and those behind it, a row of `to` to a lane. xs and ys: where the blocks come from
// and go, NULL: nowhere.
template <gcuda_type TYPE, int LEN>
static inline __device__ void d_stage_k(const d_map_blocks & map, gcuda_type x_type, int64_t x_size, bool is_wide, int64_t u, int lane,
    const char * const * xs, char * const * ys, float (*to)[LEN + 4]) {
    constexpr int BLOCKS = LEN / 8;
    if (map.b.data != nullptr) { // a lane decodes 32
        if (lane < BLOCKS * 8 && ys[lane / 8] != nullptr) {
            const int64_t from = u + lane / 8;
            const d_target t = map.at(from, 256);
            float v[32];
            d_add_group<d_format<TYPE>>(t.x, t.i * 8 + lane % 8, map.b, from * 8 + lane % 8, v);
            UNROLL for (int j = 0; j < 32; ++j) { to[lane * (32 / LEN) + j / LEN][j % LEN] = v[j]; }
        }
    } else if (is_wide) {
        float4 v[2 * BLOCKS];
        UNROLL for (int k = 0; k < 2 * BLOCKS; ++k) {
            v[k] = ys[k / 2] != nullptr ? ((const float4 *) xs[k / 2])[k % 2 * 32 + lane] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
        UNROLL for (int k = 0; k < 2 * BLOCKS; ++k) {
            const int at = (k * 32 + lane) * 4;
            *(float4 *) &to[at / LEN][at % LEN] = v[k];
        }
    } else {
        NO_UNROLL for (int at = lane; at < BLOCKS * 256; at += 32) {
            if (ys[at / 256] != nullptr) { to[at / LEN][at % LEN] = (float) d_load_f64(x_type, xs[at / 256] + at % 256 * x_size); }
        }
    }
    __syncwarp();
}

// `rounds` times, a lane makes a sub-block. It asks where a block of the warp lies once for all rounds, 32 blocks at most.
//   floor   instructions, not bytes, the search's tries for each element. A try of a scale and a min is 17: difference, product,
//           clamp, two for the nearest code, six for three sums and six for the error (five in Q2_K); of a scale, 10. So 21 * 17
//           in Q4_K, 16 * 17 in Q5_K, 16 * 16 in Q2_K, 19 * 10 in Q6_K: 0.4 to 0.7 ms for 8192 x 8192 where 132 processors issue
//           four at 1.98 GHz and the bytes take 0.08. The sums' order is the host's, so a sub-block is one lane's
//   shared  17 to 30 KiB
template <gcuda_type TYPE> // codes of one try, elements and weights in registers
static __global__ void __launch_bounds__(128, k_sub_len<TYPE> == 32 ? 3 : 4)
    k_quantize_k(const d_map_blocks map, gcuda_type x_type, int64_t x_size, int64_t n_blocks, int rounds) {
    typedef typename d_format<TYPE>::block block;
    constexpr int LEN = k_sub_len<TYPE>, SUBS = 256 / LEN, BLOCKS = 32 / SUBS; // of a warp
    alignas(16) __shared__ float elements[4][32][LEN + 4];                     // eight lanes that read sixteen bytes each hit different banks
    __shared__ gcudai_k_block parts[4][BLOCKS];
    alignas(16) __shared__ char blocks[4][BLOCKS * sizeof(block)];
    __shared__ float scales[4][32], mins[4][32];
    __shared__ const char * xs[4][32];
    __shared__ char * ys[4][32];
    const int lane = (int) threadIdx.x % 32, warp = (int) threadIdx.x / 32, per_warp = BLOCKS * rounds;
    for (int64_t first = (blockIdx.x * (int64_t) 4 + warp) * per_warp; first < n_blocks; first += gridDim.x * (int64_t) 4 * per_warp) {
        d_target from = { nullptr, 0, nullptr };
        if (lane < per_warp && first + lane < n_blocks) { from = map.at(first + lane, 256); }
        xs[warp][lane] = from.x + from.i * 256 * x_size;
        ys[warp][lane] = from.y;
        const bool is_wide = x_type == GCUDA_TYPE_F32 && __all_sync(0xffffffffu, (uintptr_t) from.x % 16 == 0);
        __syncwarp();
        NO_UNROLL for (int at = 0; at < per_warp && first + at < n_blocks; at += BLOCKS) {
            float x[LEN], q[LEN];
            d_stage_k<TYPE, LEN>(map, x_type, x_size, is_wide, first + at, lane, xs[warp] + at, ys[warp] + at, elements[warp]);
            UNROLL for (int i = 0; i < LEN; i += 4) { memcpy(x + i, (const float4 *) &elements[warp][lane][i], 16); }
            gcudai_k_block * t = &parts[warp][lane / SUBS];
            if constexpr (TYPE == GCUDA_TYPE_Q3_K) {
                d_make_q3_k(x, scales[warp], lane, t, q);
            } else if constexpr (TYPE == GCUDA_TYPE_Q6_K) {
                d_make_q6_k(x, scales[warp], lane, t, q);
            } else {
                d_make_affine<TYPE>(x, scales[warp], mins[warp], lane, t, q);
            }
            UNROLL for (int i = 0; i < LEN; i += 4) {
                t->q[(lane % SUBS * LEN + i) / 4] = (uint32_t) q[i] | (uint32_t) q[i + 1] << 8 | (uint32_t) q[i + 2] << 16 | (uint32_t) q[i + 3] << 24;
            }
            __syncwarp();
            for (int b = 0; b < BLOCKS; ++b) { d_pack_k(&parts[warp][b], (block *) blocks[warp] + b, lane); }
            __syncwarp();
            d_write_blocks<block>(blocks[warp], BLOCKS, ys[warp] + at, lane);
            __syncwarp();
        }
    }
}

// Other blocks of 256 are made by a thread each: Q8_K, IQ4_XS.
template <gcuda_type TYPE> // four blocks: what the compiler takes without a limit varies from 80 to 255 registers
static __global__ void __launch_bounds__(128, 4) k_quantize_256(const d_map_blocks map, gcuda_type x_type, int64_t x_size, int64_t n_blocks) {
    d_quantize_begin<TYPE>();
    FOR_ELEMENTS(u, n_blocks) {
        const d_target t = map.at(u, 256);
        float x[256];
        if (t.y != nullptr && map.b.data != nullptr) {
            NO_UNROLL for (int g = 0; g < 8; ++g) { d_add_group<d_format<TYPE>>(t.x, t.i * 8 + g, map.b, u * 8 + g, x + 32 * g); }
        } else {
            for (int j = 0; j < 256 && t.y != nullptr; ++j) { x[j] = d_load_f64(x_type, t.x + (t.i * 256 + j) * x_size); }
        }
        if (t.y != nullptr) {
            d_quantize<TYPE>(x, t.y);
        }
    }
}

// Enough of a row for a warp.
static bool can_quantize_rows(const gcuda_array & x) { return is_float(x.type) && is_wide(x) && x.ne[0] >= 1024; }

template <gcuda_type TYPE, typename MAP>
static gcuda_status quantize_to(const MAP & map, const gcuda_array & x, bool has_rows, int64_t n, gcuda_stream stream) {
    const gcuda_type x_type = x.type;
    const int64_t x_size = (int64_t) gcuda_type_size(x_type);
    if constexpr (d_format<TYPE>::n == 32 && MAP::HAS_ROWS) {
        if (has_rows && can_quantize_rows(x)) {
            const int64_t per_row = (x.ne[0] + 1023) / 1024, n_groups = per_row * n_rows(x);
            return launch(k_quantize_rows<TYPE, MAP>, (n_groups + 3) / 4, 128, stream, map, x, per_row, n_groups);
        }
    }
    if constexpr (d_format<TYPE>::n == 32) {
        return launch(k_quantize_32<TYPE>, (n + 127) / 128, 128, stream, blocks_of(map), x_type, x_size, n);
    } else if constexpr (k_sub_len<TYPE> > 0) {
        constexpr int at_once = k_sub_len<TYPE> / 8; // blocks of a warp
        // rounds of a warp: one, until there are four such warps for each that runs
        const int64_t many = n / (n_multiprocessors() * 16 * 4 * at_once);
        const int rounds = (int) (many < 1 ? 1 : many < 32 / at_once ? many : 32 / at_once);
        const int64_t per_block = 4 * at_once * rounds;
        return launch(k_quantize_k<TYPE>, (n + per_block - 1) / per_block, 128, stream, blocks_of(map), x_type, x_size, n, rounds);
    } else {
        return launch(k_quantize_256<TYPE>, (n + 127) / 128, 128, stream, blocks_of(map), x_type, x_size, n);
    }
}

// has_rows: map.row gives rows of x, and what they become.
template <typename MAP>
static gcuda_status quantize(gcuda_type type, const gcuda_array & x, const MAP & map, bool has_rows, gcuda_stream stream) {
    const int64_t n = n_elements(x) / gcuda_blck_size(type);
    switch (type) {
#define X(ID, name)                                                                                               \
    GCUDAI_KERNEL_WHEN(ID, case GCUDA_TYPE_##ID: return quantize_to<GCUDA_TYPE_##ID>(map, x, has_rows, n, stream);)
        D_QUANTIZED_TYPES(X)
#undef X
        default: return GCUDA_STATUS_UNSUPPORTED;
    }
}

// ---- plain elements ----
// As on the CPU: to odd, so that rounding once more is rounding once. See gcudai_f32_odd and gcudai_f64_odd.
static inline __device__ float d_f32_odd(double v) {
    const float f = (float) v;
    const uint32_t bits = __float_as_uint(f);
    return (double) f == v || v != v ? f : __uint_as_float((bits - (fabs((double) f) > fabs(v) ? 1u : 0u)) | 1u);
}
static inline __device__ double d_f64_odd(int64_t v) {
    const bool is_exact = v >= -((int64_t) 1 << 53) && v <= (int64_t) 1 << 53;
    return (double) (is_exact || (v & 2047) == 0 ? v : (v | 2048) & ~(int64_t) 2047);
}

static inline __device__ double d_number(gcuda_type type, const char * p) {
    switch (type) {
        case GCUDA_TYPE_I8: return (double) *(const int8_t *) p;
        case GCUDA_TYPE_I16: return (double) *(const int16_t *) p;
        case GCUDA_TYPE_I32: return (double) *(const int32_t *) p;
        case GCUDA_TYPE_I64: return d_f64_odd(*(const int64_t *) p);
        case GCUDA_TYPE_F64: return *(const double *) p;
        default: return (double) d_load(type, p);
    }
}

// To integers: towards zero, saturating, NaN becomes 0.
static inline __device__ int64_t d_saturated(double v, double limit) {
    if (v != v) {
        return 0;
    }
    return v < -limit ? (int64_t) -limit : v < limit ? (int64_t) v : (int64_t) ((uint64_t) limit - 1u);
}

static inline __device__ void d_put_number(gcuda_type type, char * p, double v) {
    switch (type) {
        case GCUDA_TYPE_I8: *(int8_t *) p = (int8_t) d_saturated(v, 128.0); break;
        case GCUDA_TYPE_I16: *(int16_t *) p = (int16_t) d_saturated(v, 32768.0); break;
        case GCUDA_TYPE_I32: *(int32_t *) p = (int32_t) d_saturated(v, 2147483648.0); break;
        case GCUDA_TYPE_I64: *(int64_t *) p = d_saturated(v, 9223372036854775808.0); break;
        case GCUDA_TYPE_F64: *(double *) p = v; break;
        case GCUDA_TYPE_F32: *(float *) p = (float) v; break;
        default: d_store(type, p, d_f32_odd(v)); break;
    }
}

// A plain element to another type; equal types keep every bit.
static inline __device__ void d_convert(gcuda_type x_type, const char * x, gcuda_type y_type, char * y) {
    const bool x_float = x_type == GCUDA_TYPE_F32 || x_type == GCUDA_TYPE_F16 || x_type == GCUDA_TYPE_BF16;
    const bool y_float = y_type == GCUDA_TYPE_F32 || y_type == GCUDA_TYPE_F16 || y_type == GCUDA_TYPE_BF16;
    if (x_float && y_float) {
        d_store(y_type, y, d_load(x_type, x));
    } else if (x_type == GCUDA_TYPE_I64 && y_type == GCUDA_TYPE_F64) {
        *(double *) y = (double) *(const int64_t *) x;
    } else {
        d_put_number(y_type, y, d_number(x_type, x));
    }
}

// One kernel stands for all: they are compiled together.
static __global__ void k_nothing(int unused) { (void) unused; }

int gcuda_kernels_compiled_for(int * binary_cc, int * ptx_cc) {
    cudaFuncAttributes a = {};
    const cudaError_t err = cudaFuncGetAttributes(&a, k_nothing);
    *binary_cc = err == cudaSuccess ? a.binaryVersion * 10 : 0;
    *ptx_cc = err == cudaSuccess ? a.ptxVersion * 10 : 0;
    return (int) err;
}

struct gcuda_launch_series * gcuda_thread_launches(void) {
    static thread_local gcuda_launch_series series = { GCUDA_OVERLAP_NONE, false, 0 };
    return &series;
}

bool gcuda_has_overlap(void) {
    int binary_cc = 0, ptx_cc = 0; // the code that runs comes of PTX for ptx_cc, whoever compiled it
    return asked((cudaError_t) gcuda_kernels_compiled_for(&binary_cc, &ptx_cc)) && ptx_cc >= 900 && capability_major() >= 9;
}

const char * gcuda_kernels_archs(void) {
#if defined(__CUDA_ARCH_LIST__)
    return GCUDAI_TEXT(__CUDA_ARCH_LIST__);
#else
    return "";
#endif
}

// >>op:cpy  >>op:dup  >>op:cont -----------------------------------------------------------------------
//   floor   x read once, y written once
// A copy as loops over units, the dimensions in the order of the destination's strides, merged where both sides allow.
struct d_walk {
    const char * x;
    char * y;
    int64_t ne[4], xs[4], ys[4]; // units; bytes
    int64_t n;                   // units in all
};

static inline __device__ void d_walk_at(const d_walk & w, int64_t i, const char ** x, char ** y) {
    if (w.ne[0] == w.n) {
        *x = w.x + i * w.xs[0];
        *y = w.y + i * w.ys[0];
        return;
    }
    const d_index at = d_unravel(w.ne, i);
    *x = w.x + at.i0 * w.xs[0] + at.i1 * w.xs[1] + at.i2 * w.xs[2] + at.i3 * w.xs[3];
    *y = w.y + at.i0 * w.ys[0] + at.i1 * w.ys[1] + at.i2 * w.ys[2] + at.i3 * w.ys[3];
}

// Four units a thread, all read before the first is written.
template <typename X, typename Y> static inline __device__ void d_convert_unit(const X & x, Y & y) { y = x; }
template <typename X, typename Y> static inline __device__ void d_convert_unit(const d_four<X> & x, d_four<Y> & y) {
    UNROLL for (int k = 0; k < 4; ++k) { d_put(&y.v[k], d_f32(x.v[k])); }
}

template <typename X, typename Y> static __global__ void __launch_bounds__(256) k_cpy_walk(const d_walk w) {
    for (int64_t first = blockIdx.x * (int64_t) 1024 + threadIdx.x; first < w.n; first += (int64_t) gridDim.x * 1024) {
        X v[4];
        char * to[4];
        UNROLL for (int k = 0; k < 4; ++k) {
            const char * from;
            if (first + 256 * k < w.n) {
                d_walk_at(w, first + 256 * k, &from, &to[k]);
                v[k] = *(const X *) from;
            }
        }
        UNROLL for (int k = 0; k < 4; ++k) {
            if (first + 256 * k < w.n) {
                Y y;
                d_convert_unit(v[k], y);
                *(Y *) to[k] = y;
            }
        }
    }
}

// Numbers of other than one of the pairs above: by way of I32 where that holds all that can come of them, else of F64.
// One kernel each for all pairs: the types are the same for all threads, and asked for once in four units.
template <typename STAGE> static inline __device__ STAGE d_staged(gcuda_type x_type, gcuda_type y_type, const char * p);
template <> inline __device__ double d_staged(gcuda_type x_type, gcuda_type y_type, const char * p) {
    return x_type == GCUDA_TYPE_I64 && y_type == GCUDA_TYPE_F64 ? (double) *(const int64_t *) p : d_number(x_type, p);
}
template <> inline __device__ int32_t d_staged(gcuda_type x_type, gcuda_type y_type, const char * p) {
    (void) y_type;
    switch (x_type) {
        case GCUDA_TYPE_I8: return *(const int8_t *) p;
        case GCUDA_TYPE_I16: return *(const int16_t *) p;
        case GCUDA_TYPE_I32: return *(const int32_t *) p;
        default: return __float2int_rz(d_load(x_type, p)); // saturates; NaN becomes 0
    }
}
static inline __device__ void d_put_staged(gcuda_type type, char * p, double v) { d_put_number(type, p, v); }
static inline __device__ void d_put_staged(gcuda_type type, char * p, int32_t v) {
    switch (type) {
        case GCUDA_TYPE_I8: *(int8_t *) p = (int8_t) max(-128, min(v, 127)); break;
        case GCUDA_TYPE_I16: *(int16_t *) p = (int16_t) max(-32768, min(v, 32767)); break;
        case GCUDA_TYPE_I32: *(int32_t *) p = v; break;
        case GCUDA_TYPE_F32: *(float *) p = (float) v; break;
        default: { // to odd like d_f64_odd, where F32 has not all digits
            const bool is_exact = (v >= -(1 << 24) && v <= 1 << 24) || (v & 255) == 0;
            d_store(type, p, (float) (is_exact ? v : (v | 256) & ~255));
            break;
        }
    }
}

template <gcuda_type TYPE, int SIZE> struct d_plain {
    static const gcuda_type type = TYPE;
    static const int size = SIZE;
};
template <typename STAGE, typename F> static inline __device__ void d_with_plain(gcuda_type type, F f) {
    switch (type) {
        case GCUDA_TYPE_I8: f(d_plain<GCUDA_TYPE_I8, 1>()); break;
        case GCUDA_TYPE_I16: f(d_plain<GCUDA_TYPE_I16, 2>()); break;
        case GCUDA_TYPE_I32: f(d_plain<GCUDA_TYPE_I32, 4>()); break;
        case GCUDA_TYPE_F32: f(d_plain<GCUDA_TYPE_F32, 4>()); break;
        case GCUDA_TYPE_F16: f(d_plain<GCUDA_TYPE_F16, 2>()); break;
        case GCUDA_TYPE_BF16: f(d_plain<GCUDA_TYPE_BF16, 2>()); break;
        default:
            if constexpr (sizeof(STAGE) == 8) {
                if (type == GCUDA_TYPE_I64) {
                    f(d_plain<GCUDA_TYPE_I64, 8>());
                } else {
                    f(d_plain<GCUDA_TYPE_F64, 8>());
                }
            }
            break;
    }
}

// A unit is 16 bytes of the stage.
template <typename STAGE>
static __global__ void __launch_bounds__(256) k_cpy_numbers(const d_walk w, gcuda_type x_type, gcuda_type y_type) {
    const int N = 16 / (int) sizeof(STAGE);
    for (int64_t first = blockIdx.x * (int64_t) 1024 + threadIdx.x; first < w.n; first += (int64_t) gridDim.x * 1024) {
        const char * from[4];
        char * to[4];
        STAGE v[4][N];
        UNROLL for (int k = 0; k < 4; ++k) { d_walk_at(w, first + 256 * k < w.n ? first + 256 * k : first, &from[k], &to[k]); }
        d_with_plain<STAGE>(x_type, [&](auto x) {
            typedef decltype(x) X;
            d_pack<char, N * X::size> raw[4];
            UNROLL for (int k = 0; k < 4; ++k) { raw[k] = *(const d_pack<char, N * X::size> *) from[k]; }
            UNROLL for (int k = 0; k < 4; ++k) {
                UNROLL for (int j = 0; j < N; ++j) { v[k][j] = d_staged<STAGE>(X::type, y_type, raw[k].v + j * X::size); }
            }
        });
        d_with_plain<STAGE>(y_type, [&](auto y) {
            typedef decltype(y) Y;
            UNROLL for (int k = 0; k < 4; ++k) {
                d_pack<char, N * Y::size> out;
                UNROLL for (int j = 0; j < N; ++j) { d_put_staged(Y::type, out.v + j * Y::size, v[k][j]); }
                if (first + 256 * k < w.n) { *(d_pack<char, N * Y::size> *) to[k] = out; }
            }
        });
    }
}

// In the source dimension 1 is the dense one: squares of 32 x 32 through shared memory.
template <typename X, typename Y> static inline __device__ Y d_converted(X v) {
    Y y;
    d_put(&y, d_f32(v));
    return y;
}
template <> inline __device__ uint8_t d_converted(uint8_t v) { return v; }
template <> inline __device__ uint16_t d_converted(uint16_t v) { return v; }
template <> inline __device__ uint32_t d_converted(uint32_t v) { return v; }
template <> inline __device__ uint64_t d_converted(uint64_t v) { return v; }

template <typename X, typename Y> static __global__ void __launch_bounds__(256) k_cpy_tile(const d_walk w) {
    __shared__ Y tile[32][33];
    const int64_t t0 = (w.ne[0] + 31) / 32, t1 = (w.ne[1] + 31) / 32;
    const int i = (int) threadIdx.x % 32, j = (int) threadIdx.x / 32;
    for (int64_t item = blockIdx.x; item < t0 * t1 * w.ne[2] * w.ne[3]; item += gridDim.x) {
        const int64_t c0 = item % t0 * 32, c1 = item / t0 % t1 * 32, i2 = item / t0 / t1 % w.ne[2], i3 = item / t0 / t1 / w.ne[2];
        const char * x = w.x + i2 * w.xs[2] + i3 * w.xs[3] + (c1 + i) * w.xs[1];
        char * y = w.y + i2 * w.ys[2] + i3 * w.ys[3] + (c0 + i) * w.ys[0];
        UNROLL for (int k = 0; k < 4; ++k) {
            const int64_t at = c0 + j + 8 * k;
            if (at < w.ne[0] && c1 + i < w.ne[1]) {
                tile[j + 8 * k][i] = d_converted<X, Y>(*(const X *) (x + at * w.xs[0]));
            }
        }
        __syncthreads();
        UNROLL for (int k = 0; k < 4; ++k) {
            const int64_t at = c1 + j + 8 * k;
            if (at < w.ne[1] && c0 + i < w.ne[0]) {
                *(Y *) (y + at * w.ys[1]) = tile[i][j + 8 * k];
            }
        }
        __syncthreads();
    }
}

// The same with words of four bytes on both sides, for elements of SIZE bytes: a thread turns squares of 4 / SIZE x
// 4 / SIZE elements. A tile is 32 words wide and as many elements high; two for elements of four bytes, whose rows would
// be short otherwise.
template <int SIZE> static inline __device__ void d_turn(uint32_t * w) {
    if (SIZE == 2) {
        const uint32_t lo = __byte_perm(w[0], w[1], 0x5410), hi = __byte_perm(w[0], w[1], 0x7632);
        w[0] = lo;
        w[1] = hi;
    } else if (SIZE == 1) {
        const uint32_t a = __byte_perm(w[0], w[1], 0x5140), b = __byte_perm(w[2], w[3], 0x5140); // bytes 0 and 1 of all
        const uint32_t c = __byte_perm(w[0], w[1], 0x7362), d = __byte_perm(w[2], w[3], 0x7362); // bytes 2 and 3
        w[0] = __byte_perm(a, b, 0x5410);
        w[1] = __byte_perm(a, b, 0x7632);
        w[2] = __byte_perm(c, d, 0x5410);
        w[3] = __byte_perm(c, d, 0x7632);
    }
}

template <int SIZE> struct d_turned {
    static const int PER = 4 / SIZE, WORDS = SIZE == 4 ? 64 : 32, SIDE = WORDS * PER; // of a word; of a tile's row; elements
};

template <int SIZE> static __global__ void __launch_bounds__(256) k_cpy_turn(const d_walk w) {
    typedef d_turned<SIZE> T;
    const int ROWS = 256 / T::WORDS; // at once
    __shared__ uint32_t tile[T::SIDE][T::WORDS + 1];
    const int64_t t0 = (w.ne[0] + T::SIDE - 1) / T::SIDE, t1 = (w.ne[1] + T::SIDE - 1) / T::SIDE;
    const int i = (int) threadIdx.x % T::WORDS, j = (int) threadIdx.x / T::WORDS;
    for (int64_t item = blockIdx.x; item < t0 * t1 * w.ne[2] * w.ne[3]; item += gridDim.x) {
        const int64_t q0 = item / t0, q1 = q0 / t1, i3 = q1 / w.ne[2], i2 = q1 - i3 * w.ne[2];
        const int64_t c0 = (item - q0 * t0) * T::SIDE, c1 = (q0 - q1 * t1) * T::SIDE;
        const char * x = w.x + i2 * w.xs[2] + i3 * w.xs[3] + c1 * SIZE + 4 * i;
        char * y = w.y + i2 * w.ys[2] + i3 * w.ys[3] + c0 * SIZE + 4 * i;
        const int n0 = (int) (w.ne[0] - c0 < T::SIDE ? w.ne[0] - c0 : T::SIDE);
        const int n1 = (int) (w.ne[1] - c1 < T::SIDE ? w.ne[1] - c1 : T::SIDE);
        x += (c0 + j) * w.xs[0];
        uint32_t in[T::SIDE / ROWS];
        UNROLL for (int k = 0; k < T::SIDE / ROWS; ++k) {
            in[k] = j + k * ROWS < n0 && i * T::PER < n1 ? *(const uint32_t *) (x + k * ROWS * w.xs[0]) : 0;
        }
        UNROLL for (int k = 0; k < T::SIDE / ROWS; ++k) { tile[j + k * ROWS][i] = in[k]; }
        __syncthreads();
        y += (c1 + j * T::PER) * w.ys[1];
        UNROLL for (int k = 0; k < T::WORDS; k += ROWS) { // squares of column j + k
            uint32_t v[T::PER];
            UNROLL for (int r = 0; r < T::PER; ++r) { v[r] = tile[i * T::PER + r][j + k]; }
            d_turn<SIZE>(v);
            UNROLL for (int r = 0; r < T::PER; ++r) {
                if ((j + k) * T::PER < n1 && i * T::PER < n0) { *(uint32_t *) (y + (k * T::PER + r) * w.ys[1]) = v[r]; }
            }
        }
        __syncthreads();
    }
}

// Elements of blocks, one at a time; also shapes that differ with neither side packed.
template <typename WORD> static __global__ void k_cpy_same(const gcuda_array x, const gcuda_array y, int64_t blck, int64_t words) {
    const int64_t n = d_n(y) / blck * words;
    FOR_ELEMENTS(i, n) {
        const int64_t u = i / words;
        const int64_t x0 = x.ne[0] / blck, y0 = y.ne[0] / blck;
        const char * from = d_row(x, u / x0) + u % x0 * (int64_t) x.nb[0];
        char * to = d_row(y, u / y0) + u % y0 * (int64_t) y.nb[0];
        ((WORD *) to)[i % words] = ((const WORD *) from)[i % words];
    }
}

static __global__ void k_cpy_plain(const gcuda_cpy_args p) {
    FOR_ELEMENTS(i, d_n(p.y)) {
        d_convert(p.x.type, d_at(p.x, d_unravel(p.x.ne, i)), p.y.type, d_at(p.y, d_unravel(p.y.ne, i)));
    }
}

template <typename WORD> static gcuda_status cpy_words(const gcuda_cpy_args & p, gcuda_stream stream) {
    const int64_t blck = gcuda_blck_size(p.y.type), words = (int64_t) (gcuda_type_size(p.y.type) / sizeof(WORD));
    return launch(k_cpy_same<WORD>, (n_elements(p.y) / blck * words + 255) / 256, 256, stream, p.x, p.y, blck, words);
}

static gcuda_status cpy_same(const gcuda_cpy_args & p, gcuda_stream stream) {
    switch (gcuda_type_size(p.y.type) & (~gcuda_type_size(p.y.type) + 1)) { // the largest power of two that divides it
        case 1: return cpy_words<uint8_t>(p, stream);
        case 2: return cpy_words<uint16_t>(p, stream);
        case 4: return cpy_words<uint32_t>(p, stream);
        default: return gcuda_is_quantized(p.y.type) ? cpy_words<uint32_t>(p, stream) : cpy_words<uint64_t>(p, stream);
    }
}

static void walk_swap(d_walk & w, int d, int e) {
    const int64_t ne = w.ne[d], xs = w.xs[d], ys = w.ys[d];
    w.ne[d] = w.ne[e];
    w.xs[d] = w.xs[e];
    w.ys[d] = w.ys[e];
    w.ne[e] = ne;
    w.xs[e] = xs;
    w.ys[e] = ys;
}

// False: the shapes differ, and neither side is packed.
static bool walk_of(const gcuda_cpy_args & p, d_walk * out) {
    const gcuda_array * shape = &p.y;
    d_walk w = {};
    bool same = true;
    for (int d = 0; d < 4; ++d) { same = same && p.x.ne[d] == p.y.ne[d]; }
    const bool x_packed = is_packed(p.x), y_packed = is_packed(p.y);
    if (!same && !x_packed) {
        shape = &p.x;
    }
    if (!same && !x_packed && !y_packed) {
        return false;
    }
    int64_t xs = (int64_t) gcuda_type_size(p.x.type), ys = (int64_t) gcuda_type_size(p.y.type);
    w.x = (const char *) p.x.data;
    w.y = (char *) p.y.data;
    w.n = 1;
    for (int d = 0; d < 4; ++d) {
        w.ne[d] = d == 0 ? shape->ne[0] / gcuda_blck_size(shape->type) : shape->ne[d];
        w.xs[d] = same || !x_packed ? (int64_t) p.x.nb[d] : xs;
        w.ys[d] = same || x_packed ? (int64_t) p.y.nb[d] : ys;
        xs *= w.ne[d];
        ys *= w.ne[d];
        w.n *= w.ne[d];
    }
    for (int d = 1; d < 4; ++d) {
        for (int e = d; e > 0 && (w.ne[e - 1] == 1 || (w.ne[e] != 1 && w.ys[e - 1] > w.ys[e])); --e) { walk_swap(w, e - 1, e); }
    }
    for (int d = 1, n = 1; d < 4; ++d) { // merge into dimension n - 1
        if (w.ne[d] == 1 || (w.xs[d] == w.xs[n - 1] * w.ne[n - 1] && w.ys[d] == w.ys[n - 1] * w.ne[n - 1])) {
            w.ne[n - 1] *= w.ne[d];
            w.ne[d] = 1;
        } else {
            if (d != n) { walk_swap(w, n, d); }
            ++n;
        }
    }
    *out = w;
    return true;
}

// Bytes, a power of two up to 16, that rows of both sides can be moved by.
static int64_t walk_word(const d_walk & w, int64_t row_bytes) {
    uint64_t all = (uint64_t) row_bytes | (uint64_t) (uintptr_t) w.x | (uint64_t) (uintptr_t) w.y | 16u;
    for (int d = 1; d < 4; ++d) { all |= w.ne[d] > 1 ? (uint64_t) w.xs[d] | (uint64_t) w.ys[d] : 0u; }
    return (int64_t) (all & (~all + 1));
}

template <typename X, typename Y> static gcuda_status cpy_walk(const d_walk & w, gcuda_stream stream) {
    return launch(k_cpy_walk<X, Y>, (w.n + 1023) / 1024, 256, stream, w);
}

// Rows dense on both sides, one type: as few and wide words as there can be.
static gcuda_status cpy_dense(d_walk w, int64_t size, gcuda_stream stream) {
    const int64_t word = walk_word(w, w.ne[0] * size);
    w.n = w.n * size / word;
    w.ne[0] = w.ne[0] * size / word;
    w.xs[0] = w.ys[0] = word;
    switch (word) {
        case 1: return cpy_walk<uint8_t, uint8_t>(w, stream);
        case 2: return cpy_walk<uint16_t, uint16_t>(w, stream);
        case 4: return cpy_walk<uint32_t, uint32_t>(w, stream);
        case 8: return cpy_walk<uint2, uint2>(w, stream);
        default: return cpy_walk<uint4, uint4>(w, stream);
    }
}

template <typename X, typename Y> static gcuda_status cpy_tile(d_walk w, int dense, gcuda_stream stream) {
    if (dense > 1) {
        walk_swap(w, 1, dense);
    }
    return launch(k_cpy_tile<X, Y>, (w.ne[0] + 31) / 32 * ((w.ne[1] + 31) / 32) * w.ne[2] * w.ne[3], 256, stream, w);
}

// Both sides are dense along one of the first two dimensions, in whole words.
template <int SIZE> static bool can_turn(const d_walk & w) {
    uint64_t all = (uint64_t) (uintptr_t) w.x | (uint64_t) (uintptr_t) w.y | (uint64_t) w.xs[0] | (uint64_t) w.ys[1];
    for (int d = 2; d < 4; ++d) { all |= w.ne[d] > 1 ? (uint64_t) w.xs[d] | (uint64_t) w.ys[d] : 0u; }
    return all % 4 == 0 && w.ys[0] == SIZE && w.xs[1] == SIZE && w.ne[0] % (4 / SIZE) == 0 && w.ne[1] % (4 / SIZE) == 0;
}

template <int SIZE, typename T> static gcuda_status cpy_turn(d_walk w, int dense, gcuda_stream stream) {
    const int64_t side = d_turned<SIZE>::SIDE;
    d_walk v = w;
    if (dense > 1) {
        walk_swap(v, 1, dense);
    }
    if (!can_turn<SIZE>(v) || v.ne[0] < side / 2 || v.ne[1] < side / 2) {
        return cpy_tile<T, T>(w, dense, stream);
    }
    return launch(k_cpy_turn<SIZE>, (v.ne[0] + side - 1) / side * ((v.ne[1] + side - 1) / side) * v.ne[2] * v.ne[3], 256, stream, v);
}

static gcuda_status cpy_tile_same(const d_walk & w, int dense, int64_t size, gcuda_stream stream) {
    switch (size) {
        case 1: return cpy_turn<1, uint8_t>(w, dense, stream);
        case 2: return cpy_turn<2, uint16_t>(w, dense, stream);
        case 4: return cpy_turn<4, uint32_t>(w, dense, stream);
        default: return cpy_tile<uint64_t, uint64_t>(w, dense, stream);
    }
}

// Rows dense on both sides become rows of units of n elements. False: they are not whole, or not aligned to a unit.
static bool walk_units(d_walk * w, int64_t n, size_t x_size, size_t y_size) {
    const uint64_t x_unit = (uint64_t) n * x_size, y_unit = (uint64_t) n * y_size;
    bool fits = w->ne[0] % n == 0 && (uintptr_t) w->x % x_unit == 0 && (uintptr_t) w->y % y_unit == 0;
    for (int d = 1; d < 4; ++d) {
        fits = fits && (w->ne[d] == 1 || ((uint64_t) w->xs[d] % x_unit == 0 && (uint64_t) w->ys[d] % y_unit == 0));
    }
    if (fits) {
        w->n /= n;
        w->ne[0] /= n;
        w->xs[0] *= n;
        w->ys[0] *= n;
    }
    return fits;
}

// Floats of different types, rows dense or the source transposed.
template <typename X, typename Y> static gcuda_status cpy_floats(d_walk w, int dense, gcuda_stream stream) {
    if (dense > 0) {
        return cpy_tile<X, Y>(w, dense, stream);
    }
    return walk_units(&w, 4, sizeof(X), sizeof(Y)) ? cpy_walk<d_four<X>, d_four<Y>>(w, stream) : GCUDA_STATUS_UNSUPPORTED;
}

template <typename STAGE> static gcuda_status cpy_numbers(d_walk w, const gcuda_cpy_args & p, gcuda_stream stream) {
    const bool fits = walk_units(&w, 16 / (int) sizeof(STAGE), gcuda_type_size(p.x.type), gcuda_type_size(p.y.type));
    return fits ? launch(k_cpy_numbers<STAGE>, (w.n + 1023) / 1024, 256, stream, w, p.x.type, p.y.type) : GCUDA_STATUS_UNSUPPORTED;
}

static gcuda_status cpy_plain(const gcuda_cpy_args & p, gcuda_stream stream) {
    const int64_t xs = (int64_t) gcuda_type_size(p.x.type), ys = (int64_t) gcuda_type_size(p.y.type);
    d_walk w;
    int dense = -1; // dimension along which the source is dense
    gcuda_status st = GCUDA_STATUS_UNSUPPORTED;
    if (walk_of(p, &w) && (w.ys[0] == ys || w.ne[0] == 1)) {
        for (int d = 3; d >= 0; --d) { dense = w.xs[d] == xs && (w.ne[d] > 1 || d == 0) ? d : dense; }
        if (p.x.type == p.y.type) {
            st = dense == 0 && w.ne[0] > 1 ? cpy_dense(w, xs, stream)
                 : dense > 0 && !gcuda_is_quantized(p.x.type) ? cpy_tile_same(w, dense, xs, stream) : st;
        } else if (is_float(p.x.type) && is_float(p.y.type) && dense >= 0) {
            st = with_float(p.x.type, [&](auto tx) {
                return with_float(p.y.type, [&](auto ty) { return cpy_floats<decltype(tx), decltype(ty)>(w, dense, stream); });
            });
        } else if (dense == 0 && w.ne[0] > 1) {
            st = xs < 8 && ys < 8 ? cpy_numbers<int32_t>(w, p, stream) : cpy_numbers<double>(w, p, stream);
        }
    }
    if (st != GCUDA_STATUS_UNSUPPORTED) {
        return st;
    }
    return p.x.type == p.y.type ? cpy_same(p, stream) : launch_elements(k_cpy_plain, p.y, stream, p);
}

// As one row where both sides are packed.
static gcuda_status cpy_quantize(const gcuda_cpy_args & p, d_map_cpy map, gcuda_stream stream) {
    bool same = true;
    for (int d = 0; d < 4; ++d) { same = same && p.x.ne[d] == p.y.ne[d]; }
    if (is_packed(p.x) && is_packed(p.y)) {
        map.x = as_rows(p.x, n_elements(p.x));
        same = true;
    }
    return quantize(p.y.type, map.x, map, same, stream);
}

size_t gcuda_cpy_scratch_bytes(const gcuda_cpy_args * args) {
    const bool by_way_of_f32 = gcuda_is_quantized(args->x.type) && gcuda_is_quantized(args->y.type) && args->x.type != args->y.type;
    return by_way_of_f32 ? (size_t) n_elements(args->y) * sizeof(float) : 0;
}

// Blocks become others by way of F32 in scratch, of the shape of y: so its rows are quantized as such.
static gcuda_status cpy_blocks(const gcuda_cpy_args & p, gcuda_stream stream) {
    const gcuda_array t = packed_array(GCUDA_TYPE_F32, p.scratch, p.y.ne[0], p.y.ne[1], p.y.ne[2], p.y.ne[3]);
    const gcuda_cpy_args from = { p.x, t, nullptr }, to = { t, p.y, nullptr };
    const gcuda_status st = gcuda_launch_cpy(&from, stream);
    return st == GCUDA_STATUS_SUCCESS ? gcuda_launch_cpy(&to, stream) : st;
}

gcuda_status gcuda_launch_cpy(const gcuda_cpy_args * args, gcuda_stream stream) {
    const gcuda_cpy_args & p = *args;
    const bool x_blocks = gcuda_is_quantized(p.x.type), y_blocks = gcuda_is_quantized(p.y.type);
    const int64_t unit = x_blocks ? 32 : gcuda_blck_size(p.y.type);
    const d_map_cpy map = { p.x, p.y, unit / gcuda_blck_size(p.y.type) * (int64_t) gcuda_type_size(p.y.type) };
    if (n_elements(p.y) == 0) {
        return GCUDA_STATUS_SUCCESS;
    }
    if (p.x.type == p.y.type) {
        return cpy_plain(p, stream);
    }
    if (x_blocks && y_blocks) {
        return cpy_blocks(p, stream);
    }
    if (x_blocks) {
        return with_float(p.y.type == GCUDA_TYPE_F64 ? GCUDA_TYPE_F32 : p.y.type, [&](auto t) {
            return dequantize<decltype(t)>(p.x.type, map, n_elements(p.y), stream);
        });
    }
    if (y_blocks) {
        return is_float(p.x.type) || p.x.type == GCUDA_TYPE_F64
                   ? cpy_quantize(p, map, stream)
                   : GCUDA_STATUS_UNSUPPORTED;
    }
    return cpy_plain(p, stream);
}

// ---- blocks and floats, added ----
// Small ones group by group, or, where the result is blocks, block by block: one launch.
#define ADD_BLOCKS_SMALL 65536 // elements
static bool is_small_sum(const gcuda_binary_args & p) { return n_elements(p.a) <= ADD_BLOCKS_SMALL; }

template <typename FORMAT> static __global__ void __launch_bounds__(128) k_add_groups(const d_map_cpy map, const gcuda_array b, int64_t n_groups) {
    FOR_ELEMENTS(u, n_groups) {
        const d_target t = map.at(u, 32);
        float x[32];
        d_add_group<FORMAT>(t.x, t.i, b, u, x);
        UNROLL for (int j = 0; j < 32; j += 4) { d_put4<float>(t.y + 4 * j, x + j); }
    }
}

static gcuda_status add_small(const gcuda_binary_args & p, gcuda_stream stream) {
    const bool to_blocks = gcuda_is_quantized(p.y.type);
    const int64_t n = n_elements(p.a) / 32;
    d_map_blocks map = blocks_of(d_map_cpy{ p.a, p.y, (int64_t) gcuda_type_size(p.y.type) * (to_blocks ? 1 : 32) });
    map.b = p.b;
    for (int d = 0; d < 4 && n_elements(p.b) == 1; ++d) { map.b.nb[d] = 0; }
    for (int d = 0; d < 4; ++d) { map.b.ne[d] = p.a.ne[d]; }
    return to_blocks ? quantize(p.y.type, p.a, map, false, stream) : with_format(p.a.type, [&](auto format) {
        return launch(k_add_groups<decltype(format)>, (n + 127) / 128, 128, stream, map.cpy, map.b, n);
    });
}

size_t gcuda_add_scratch_bytes(const gcuda_binary_args * args) {
    return gcuda_is_quantized(args->a.type) && !is_small_sum(*args) ? (size_t) n_elements(args->a) * sizeof(float) : 0;
}

// Large ones by way of F32 in scratch.
gcuda_status gcuda_launch_add_quantized(const gcuda_binary_args * args, gcuda_stream stream) {
    const gcuda_binary_args & p = *args;
    if (is_small_sum(p)) { return add_small(p, stream); }
    const gcuda_array t = packed_array(GCUDA_TYPE_F32, p.scratch, p.a.ne[0], p.a.ne[1], p.a.ne[2], p.a.ne[3]);
    const gcuda_cpy_args from = { p.a, t, nullptr }, to = { t, p.y, nullptr };
    const gcuda_binary_args sum = { t, p.b, gcuda_is_quantized(p.y.type) ? t : p.y, nullptr };
    gcuda_status st = gcuda_launch_cpy(&from, stream);
    st = st == GCUDA_STATUS_SUCCESS ? gcuda_launch_add(&sum, stream) : st;
    return st == GCUDA_STATUS_SUCCESS && gcuda_is_quantized(p.y.type) ? gcuda_launch_cpy(&to, stream) : st;
}

// >>op:get_rows ---------------------------------------------------------------------------------------
// An index out of range gives a row of zeros and sets the flag.
//   floor   one row read and written for each index
static __global__ void k_get_rows(const d_map_get map) {
    const gcuda_get_rows_args & p = map.p;
    FOR_ELEMENTS(u, d_n(p.y)) {
        const d_target t = map.at(u, 1);
        if (t.x != nullptr) {
            d_convert(p.x.type, t.x + t.i * (int64_t) p.x.nb[0], p.y.type, t.y);
        } else {
            d_put_number(p.y.type, t.y, 0.0);
        }
    }
}

// Whole rows, written sixteen bytes at a time; like: the array whose rows are counted.
template <typename Y> struct d_row_parts { // elements a time, and how many times a thread
    static const int N = d_wide<Y>::N, PARTS = N == 4 ? 4 : 2;
};

template <typename X, typename Y, typename MAP>
static __global__ void __launch_bounds__(TILE_BLOCK) k_rows_wide(const MAP map, const gcuda_array like, const tiles t) {
    const int N = d_row_parts<Y>::N, PARTS = d_row_parts<Y>::PARTS;
    FOR_TILES(tile, t) {
        const d_index i = d_tile_at(t, like.ne, tile, N, PARTS);
        const d_target row = map.row(i);
        const X * x = (const X *) row.x + i.i0;
        Y * y = (Y *) row.y + i.i0;
        const int64_t n = like.ne[0] - i.i0, step = d_tile_step(t, N);
        d_pack<X, N> raw[PARTS];
        if (row.y == nullptr) {
            continue;
        }
        UNROLL for (int k = 0; k < PARTS; ++k) {
            const int64_t left = row.x != nullptr ? n - k * step : 0;
            if (left >= N) {
                raw[k] = *(const d_pack<X, N> *) (x + k * step);
            } else {
                UNROLL for (int j = 0; j < N; ++j) { raw[k].v[j] = j < left ? x[k * step + j] : X(); }
            }
        }
        UNROLL for (int k = 0; k < PARTS; ++k) {
            float v[N];
            UNROLL for (int j = 0; j < N; ++j) { v[j] = d_f32(raw[k].v[j]); }
            d_store_wide(y + k * step, n - k * step, v);
        }
    }
}

template <typename X, typename Y, typename MAP>
static gcuda_status rows_wide(const MAP & map, const gcuda_array & like, gcuda_stream stream) {
    typedef d_row_parts<Y> parts;
    return launch_tiles(k_rows_wide<X, Y, MAP>, tiles_of(like, parts::N, parts::PARTS), stream, map, like);
}

gcuda_status gcuda_launch_get_rows(const gcuda_get_rows_args * args, gcuda_stream stream) {
    const d_map_get map = { *args };
    const int64_t n = n_elements(args->y);
    if (gcuda_is_quantized(args->x.type)) {
        return dequantize<float>(args->x.type, map, n, stream);
    }
    if ((is_float(args->x.type) || args->x.type == GCUDA_TYPE_I32) && is_wide(args->x) && is_wide(args->y)) {
        return args->x.type == GCUDA_TYPE_I32
                   ? rows_wide<float, float>(map, args->y, stream) // the bits as they are
                   : with_float(args->x.type, [&](auto t) { return rows_wide<decltype(t), float>(map, args->y, stream); });
    }
    return launch_elements(k_get_rows, args->y, stream, map);
}

// >>op:get_rows_back ----------------------------------------------------------------------------------
// Rows that go to one place make a chain: a warp for each index looks for the next equal one, and whether there is an
// earlier one; who has none starts the chain of its place. Then a block owns 256 elements of a row of the result and adds
// its chain up in order, in double.
//   floor   gradient read once, result written once; indices n / 32 times, from L2
static inline __device__ int32_t d_index_i32(const gcuda_array & ids, int64_t i) {
    return *(const int32_t *) ((const char *) ids.data + i * (int64_t) ids.nb[0]);
}

static __global__ void __launch_bounds__(256) k_get_rows_back_none(int64_t * first, int64_t n) {
    FOR_ELEMENTS(i, n) { first[i] = -1; }
}

static __global__ void __launch_bounds__(256) k_get_rows_back_chain(const gcuda_get_rows_args p, int64_t * first, int64_t * next) {
    const int64_t n = p.ids.ne[0], n_warps = (int64_t) gridDim.x * blockDim.x / 32;
    const int lane = (int) threadIdx.x % 32;
    for (int64_t r = (blockIdx.x * (int64_t) blockDim.x + threadIdx.x) / 32; r < n; r += n_warps) {
        const int32_t to = d_index_i32(p.ids, r);
        if (to < 0 || to >= p.y.ne[1]) {
            if (lane == 0 && p.bad_index != nullptr) {
                *p.bad_index = 1;
            }
            continue;
        }
        int64_t after = -1;
        for (int64_t i = r + 1; i < n && after < 0; i += 32) {
            const uint32_t hits = __ballot_sync(0xffffffffu, i + lane < n && d_index_i32(p.ids, i + lane) == to);
            after = hits != 0 ? i + __ffs((int) hits) - 1 : -1;
        }
        bool is_first = true;
        for (int64_t i = 0; i < r && is_first; i += 32) {
            is_first = !__any_sync(0xffffffffu, i + lane < r && d_index_i32(p.ids, i + lane) == to);
        }
        if (lane == 0) {
            next[r] = after;
            if (is_first) {
                first[to] = r;
            }
        }
    }
}

static __global__ void __launch_bounds__(256) k_get_rows_back(const gcuda_get_rows_args p, const int64_t * first, const int64_t * next) {
    const int64_t n_parts = (p.y.ne[0] + 255) / 256;
    for (int64_t item = blockIdx.x; item < n_parts * p.y.ne[1]; item += gridDim.x) {
        const int64_t row = item / n_parts, i = item % n_parts * 256 + threadIdx.x;
        double sum = 0.0;
        for (int64_t r = first[row]; r >= 0 && i < p.y.ne[0]; r = next[r]) {
            sum += (double) d_load(p.x.type, d_at(p.x, i, r, 0, 0));
        }
        if (i < p.y.ne[0]) {
            *(float *) d_at(p.y, i, row, 0, 0) = (float) sum;
        }
    }
}

// Many indices: counted, gathered by the place they go to, and brought in order within it. Where the indices of a place lie
// among those of others differs from run to run, their order does not. A block owns 1,024 or 4,096 elements of a row of the result.
//   floor   gradient read once, result written once
#define ROWS_BACK_FEW 1024
struct d_gathered {
    int32_t * count, * start, * total, * slot, * order, * sorted; // of rows of y; one; of indices
    int64_t n, n_rows;
};
static d_gathered gathered_of(const gcuda_get_rows_args & p) {
    d_gathered g;
    g.n = p.ids.ne[0];
    g.n_rows = p.y.ne[1];
    g.count = (int32_t *) p.scratch;
    g.start = g.count + g.n_rows;
    g.slot = g.start + g.n_rows;
    g.order = g.slot + g.n;
    g.sorted = g.order + g.n;
    g.total = g.sorted + g.n;
    return g;
}
static bool is_gathered(const gcuda_get_rows_args & p) { return p.ids.ne[0] > ROWS_BACK_FEW && p.ids.ne[0] < INT32_MAX; }

static __global__ void __launch_bounds__(256) k_gather_clear(const d_gathered g) {
    FOR_ELEMENTS(i, g.n_rows) { g.count[i] = 0; }
    if (blockIdx.x == 0 && threadIdx.x == 0) { *g.total = 0; }
}
static __global__ void __launch_bounds__(256) k_gather_count(const gcuda_get_rows_args p, const d_gathered g) {
    FOR_ELEMENTS(r, g.n) {
        const int32_t to = d_index_i32(p.ids, r);
        const bool is_in = to >= 0 && to < g.n_rows;
        g.slot[r] = is_in ? atomicAdd(&g.count[to], 1) : -1;
        if (!is_in && p.bad_index != nullptr) { *p.bad_index = 1; }
    }
}
static __global__ void __launch_bounds__(256) k_gather_start(const d_gathered g) {
    const int lane = (int) threadIdx.x % 32;
    for (int64_t first = blockIdx.x * (int64_t) 256 + threadIdx.x - lane; first < g.n_rows; first += gridDim.x * (int64_t) 256) {
        const int own = first + lane < g.n_rows ? g.count[first + lane] : 0;
        int sum = own, base = 0;
        for (int d = 1; d < 32; d *= 2) {
            const int before = __shfl_up_sync(0xffffffffu, sum, (unsigned) d);
            sum += lane >= d ? before : 0;
        }
        if (lane == 31) { base = atomicAdd(g.total, sum); }
        base = __shfl_sync(0xffffffffu, base, 31);
        if (first + lane < g.n_rows) { g.start[first + lane] = base + sum - own; }
    }
}
static __global__ void __launch_bounds__(256) k_gather_place(const gcuda_get_rows_args p, const d_gathered g) {
    FOR_ELEMENTS(r, g.n) {
        if (g.slot[r] >= 0) { g.order[g.start[d_index_i32(p.ids, r)] + g.slot[r]] = (int32_t) r; }
    }
}
static __global__ void __launch_bounds__(256) k_gather_sort(const gcuda_get_rows_args p, const d_gathered g) { // a warp to an index
    const int lane = (int) threadIdx.x % 32;
    for (int64_t r = (blockIdx.x * (int64_t) 256 + threadIdx.x) / 32; r < g.n; r += gridDim.x * (int64_t) 8) {
        const int32_t to = d_index_i32(p.ids, r);
        if (g.slot[r] < 0) { continue; }
        int rank = 0;
        for (int i = lane; i < g.count[to]; i += 32) { rank += g.order[g.start[to] + i] < r; }
        rank = d_warp_reduce<d_sum_op>(rank);
        if (lane == 0) { g.sorted[g.start[to] + rank] = (int32_t) r; }
    }
}

// WIDE: vectors of four elements. Most rows of the result have few of the gradient: GATHER_PARTS places of two are read together.
#define GATHER_PARTS 4
template <typename T, bool WIDE>
static __global__ void __launch_bounds__(256) k_gather_sum(const gcuda_get_rows_args p, const d_gathered g, int64_t n_parts) {
    const int AHEAD = 2, V = WIDE ? 4 : 1;
    FOR_ROWS(item, n_parts * g.n_rows) {
        const int64_t row = item / n_parts, at = ((item - row * n_parts) * GATHER_PARTS * 256 + threadIdx.x) * V, n = p.y.ne[0] - at;
        const int32_t * from = g.sorted + g.start[row];
        const int count = g.count[row];
        double sum[GATHER_PARTS][V] = {};
        for (int k0 = 0; k0 < count && n > 0; k0 += AHEAD) {
            d_pack<T, V> v[AHEAD][GATHER_PARTS];
            UNROLL for (int k = 0; k < AHEAD; ++k) {
                const char * x = k0 + k < count ? d_at(p.x, at, from[k0 + k], 0, 0) : nullptr;
                UNROLL for (int m = 0; m < GATHER_PARTS; ++m) {
                    UNROLL for (int j = 0; j < V; ++j) { v[k][m].v[j] = T(); }
                    if (x != nullptr && 256 * V * m < n) { v[k][m] = *(const d_pack<T, V> *) (x + 256 * V * m * (int64_t) p.x.nb[0]); }
                }
            }
            UNROLL for (int k = 0; k < AHEAD; ++k) {
                UNROLL for (int m = 0; m < GATHER_PARTS; ++m) {
                    UNROLL for (int j = 0; j < V; ++j) { sum[m][j] += (double) d_f32(v[k][m].v[j]); }
                }
            }
        }
        UNROLL for (int m = 0; m < GATHER_PARTS; ++m) {
            d_pack<float, V> all;
            UNROLL for (int j = 0; j < V; ++j) { all.v[j] = (float) sum[m][j]; }
            char * to = d_at(p.y, at + 256 * V * m, row, 0, 0);
            if (256 * V * m < n) { *(d_pack<float, V> *) to = all; }
        }
    }
}

static gcuda_status get_rows_back_gathered(const gcuda_get_rows_args & p, gcuda_stream stream) {
    const d_gathered g = gathered_of(p);
    const bool wide = p.y.ne[0] % 4 == 0 && is_wide(p.x) && is_wide(p.y);
    const int64_t row_blocks = (g.n_rows + 255) / 256, id_blocks = (g.n + 255) / 256, each = 256 * GATHER_PARTS * (wide ? 4 : 1);
    const int64_t n_parts = (p.y.ne[0] + each - 1) / each;
    gcuda_status st = launch(k_gather_clear, row_blocks, 256, stream, g);
    st = st == GCUDA_STATUS_SUCCESS ? launch(k_gather_count, id_blocks, 256, stream, p, g) : st;
    st = st == GCUDA_STATUS_SUCCESS ? launch(k_gather_start, row_blocks, 256, stream, g) : st;
    st = st == GCUDA_STATUS_SUCCESS ? launch(k_gather_place, id_blocks, 256, stream, p, g) : st;
    st = st == GCUDA_STATUS_SUCCESS ? launch(k_gather_sort, (g.n + 7) / 8, 256, stream, p, g) : st;
    return st != GCUDA_STATUS_SUCCESS ? st : with_float(p.x.type, [&](auto v) {
        typedef decltype(v) T;
        return launch(wide ? k_gather_sum<T, true> : k_gather_sum<T, false>, n_parts * g.n_rows, 256, stream, p, g, n_parts);
    });
}

// Little of both: one launch, whose threads look through all indices. The sums are the same, in the same order.
#define ROWS_BACK_ONE 32
#define ROWS_BACK_SMALL 65536 // elements of the result
static bool get_rows_back_at_once(const gcuda_get_rows_args & p) {
    return p.ids.ne[0] <= ROWS_BACK_ONE && n_elements(p.y) > 0 && n_elements(p.y) <= ROWS_BACK_SMALL;
}

static __global__ void __launch_bounds__(256) k_get_rows_back_few(const gcuda_get_rows_args p) {
    FOR_ELEMENTS(u, d_n(p.y)) {
        const int64_t row = u / p.y.ne[0], i = u - row * p.y.ne[0];
        double sum = 0.0;
        for (int64_t r = 0; r < p.ids.ne[0]; ++r) {
            const int32_t to = d_index_i32(p.ids, r);
            if (to == row) { sum += (double) d_load(p.x.type, d_at(p.x, i, r, 0, 0)); }
            if (u == 0 && (to < 0 || to >= p.y.ne[1]) && p.bad_index != nullptr) { *p.bad_index = 1; }
        }
        *(float *) d_at(p.y, i, row, 0, 0) = (float) sum;
    }
}

size_t gcuda_get_rows_back_scratch_bytes(const gcuda_get_rows_args * args) {
    if (get_rows_back_at_once(*args)) { return 0; }
    return is_gathered(*args) ? (size_t) (2 * args->y.ne[1] + 3 * args->ids.ne[0] + 1) * 4 : (size_t) (args->y.ne[1] + args->ids.ne[0]) * 8;
}

gcuda_status gcuda_launch_get_rows_back(const gcuda_get_rows_args * args, gcuda_stream stream) {
    const int64_t n = args->y.ne[1];
    if (get_rows_back_at_once(*args)) { return launch_elements(k_get_rows_back_few, args->y, stream, *args); }
    if (is_gathered(*args)) { return get_rows_back_gathered(*args, stream); }
    int64_t * first = (int64_t *) args->scratch, * next = first + n;
    gcuda_status st = launch(k_get_rows_back_none, (n + 255) / 256, 256, stream, first, n);
    st = st == GCUDA_STATUS_SUCCESS ? launch(k_get_rows_back_chain, (args->ids.ne[0] + 7) / 8, 256, stream, *args, first, next) : st;
    return st == GCUDA_STATUS_SUCCESS
               ? launch(k_get_rows_back, (args->y.ne[0] + 255) / 256 * n, 256, stream, *args, (const int64_t *) first, (const int64_t *) next)
               : st;
}

// >>op:set_rows ---------------------------------------------------------------------------------------
// Of equal indices the last row stays. Who goes where, or -1, is in scratch: where indices are few a warp for each looks
// whether a later one is equal; where they are many they go through a hash table, one to a batch, that keeps the last.
//   floor   x read once, its rows of y written once; few indices n / 64 times, from L2
#define SET_ROWS_FEW 1024
static __global__ void k_set_rows_index(const gcuda_get_rows_args p) {
    const int64_t n = d_n(p.ids), n_warps = (int64_t) gridDim.x * blockDim.x / 32;
    const int lane = (int) threadIdx.x % 32;
    for (int64_t i = (blockIdx.x * (int64_t) blockDim.x + threadIdx.x) / 32; i < n; i += n_warps) {
        const int64_t r = i % p.ids.ne[0], j1 = i / p.ids.ne[0] % p.ids.ne[1], j2 = i / p.ids.ne[0] / p.ids.ne[1];
        int64_t to = d_index_of(p.ids, r, j1, j2);
        if (to < 0 || to >= p.y.ne[1]) {
            if (lane == 0 && p.bad_index != nullptr) {
                *p.bad_index = 1;
            }
            to = -1;
        }
        for (int64_t first = r + 1; first < p.ids.ne[0] && to >= 0; first += 32) {
            const bool is_later = first + lane < p.ids.ne[0] && d_index_of(p.ids, first + lane, j1, j2) == to;
            to = __any_sync(0xffffffffu, is_later) ? -1 : to;
        }
        if (lane == 0) {
            ((int64_t *) p.scratch)[i] = to;
        }
    }
}

// A slot holds a row of y in its upper half and the number of its last index in the lower one; all ones: free. The lower
// half only grows, and where a row of y stands does not matter, so every run leaves the same.
struct d_last_table {
    unsigned long long * slots;
    int64_t per_batch; // a power of two
    int shift;         // of a hash
};

static int64_t set_rows_slots(const gcuda_get_rows_args & p) { // of a batch; 0: no table
    int64_t n = 2;
    while (n < 2 * p.ids.ne[0]) { n *= 2; }
    return p.ids.ne[0] <= SET_ROWS_FEW || p.ids.ne[0] > INT32_MAX / 2 || p.y.ne[1] >= (int64_t) UINT32_MAX ? 0 : n;
}

// The slot of a row of y: its own or a free one.
template <typename F> static inline __device__ void d_probe(const d_last_table & t, int64_t batch, uint32_t to, F is_done) {
    const uint32_t mask = (uint32_t) (t.per_batch - 1);
    uint32_t at = (to * 2654435769u) >> t.shift; // Knuth's multiplicative hash
    while (!is_done(t.slots + batch * t.per_batch + at)) { at = (at + 1) & mask; }
}

static __global__ void __launch_bounds__(256) k_set_rows_clear(const d_last_table t, int64_t n) {
    FOR_ELEMENTS(i, n) { t.slots[i] = ~0ull; }
}

static __global__ void __launch_bounds__(256) k_set_rows_enter(const gcuda_get_rows_args p, const d_last_table t) {
    FOR_ELEMENTS(i, d_n(p.ids)) {
        const int64_t batch = i / p.ids.ne[0], r = i - batch * p.ids.ne[0];
        const int64_t to = d_index_of(p.ids, r, batch % p.ids.ne[1], batch / p.ids.ne[1]);
        if (to < 0 || to >= p.y.ne[1]) {
            if (p.bad_index != nullptr) {
                *p.bad_index = 1;
            }
            continue;
        }
        const unsigned long long own = (unsigned long long) to << 32 | (unsigned long long) r;
        d_probe(t, batch, (uint32_t) to, [&](unsigned long long * slot) {
            const unsigned long long old = atomicCAS(slot, ~0ull, own);
            if (old != ~0ull && old >> 32 == (unsigned long long) to) { atomicMax(slot, own); }
            return old == ~0ull || old >> 32 == (unsigned long long) to;
        });
    }
}

static __global__ void __launch_bounds__(256) k_set_rows_last(const gcuda_get_rows_args p, const d_last_table t) {
    FOR_ELEMENTS(i, d_n(p.ids)) {
        const int64_t batch = i / p.ids.ne[0], r = i - batch * p.ids.ne[0];
        int64_t to = d_index_of(p.ids, r, batch % p.ids.ne[1], batch / p.ids.ne[1]);
        if (to < 0 || to >= p.y.ne[1]) {
            to = -1;
        } else {
            d_probe(t, batch, (uint32_t) to, [&](const unsigned long long * slot) {
                const bool is_own = *slot >> 32 == (unsigned long long) to;
                if (is_own && (int64_t) (*slot & 0xffffffffu) != r) { to = -1; }
                return is_own;
            });
        }
        ((int64_t *) p.scratch)[i] = to;
    }
}

static gcuda_status set_rows_index(const gcuda_get_rows_args & p, gcuda_stream stream) {
    const int64_t n = n_elements(p.ids), n_slots = set_rows_slots(p), all = n_slots * p.ids.ne[1] * p.ids.ne[2];
    d_last_table t = { (unsigned long long *) p.scratch + n, n_slots, 32 };
    if (n_slots == 0) {
        return launch(k_set_rows_index, (n + 7) / 8, 256, stream, p);
    }
    for (int64_t i = n_slots; i > 1; i /= 2) { --t.shift; }
    gcuda_status st = launch(k_set_rows_clear, (all + 255) / 256, 256, stream, t, all);
    st = st == GCUDA_STATUS_SUCCESS ? launch(k_set_rows_enter, (n + 255) / 256, 256, stream, p, t) : st;
    return st == GCUDA_STATUS_SUCCESS ? launch(k_set_rows_last, (n + 255) / 256, 256, stream, p, t) : st;
}

// Few small rows, as a cache takes them token by token: one launch, whose threads look themselves whether a later row goes where
// theirs goes.
#define SET_ROWS_ONE 8
#define SET_ROWS_SMALL 65536 // elements
static bool set_rows_at_once(const gcuda_get_rows_args & p) { return p.ids.ne[0] <= SET_ROWS_ONE && n_elements(p.x) <= SET_ROWS_SMALL; }

static __global__ void k_set_rows(const d_map_set<false> map) {
    const gcuda_get_rows_args & p = map.p;
    FOR_ELEMENTS(u, d_n(p.x)) {
        const d_target t = map.at(u, 1);
        if (t.y != nullptr) {
            d_convert(p.x.type, t.x + t.i * (int64_t) p.x.nb[0], p.y.type, t.y);
        }
    }
}

static __global__ void __launch_bounds__(256) k_set_rows_few(const gcuda_get_rows_args p) {
    FOR_ELEMENTS(u, d_n(p.x)) {
        const d_index i = d_unravel(p.x.ne, u);
        const int64_t to = d_set_row_of(p, i.i1, i.i2 % p.ids.ne[1], i.i3 % p.ids.ne[2]);
        if (to >= 0) { d_convert(p.x.type, d_at(p.x, i), p.y.type, d_at(p.y, i.i0, to, i.i2, i.i3)); }
    }
}

size_t gcuda_set_rows_scratch_bytes(const gcuda_get_rows_args * args) {
    if (set_rows_at_once(*args)) { return 0; }
    return (size_t) (n_elements(args->ids) + set_rows_slots(*args) * args->ids.ne[1] * args->ids.ne[2]) * 8;
}

gcuda_status gcuda_launch_set_rows(const gcuda_get_rows_args * args, gcuda_stream stream) {
    const bool looks = set_rows_at_once(*args), to_blocks = gcuda_is_quantized(args->y.type);
    const d_map_set<false> map = { *args, (int64_t) gcuda_type_size(args->y.type), 0 };
    const d_map_set<true> map_blocks = { *args, map.y_bytes, looks };
    if (n_elements(args->x) == 0) {
        return GCUDA_STATUS_SUCCESS;
    }
    if (looks && !to_blocks) { return launch_elements(k_set_rows_few, args->x, stream, *args); }
    const gcuda_status st = looks ? GCUDA_STATUS_SUCCESS : set_rows_index(*args, stream);
    if (st != GCUDA_STATUS_SUCCESS) {
        return st;
    }
    if (to_blocks) { return quantize(args->y.type, args->x, map_blocks, true, stream); }
    if (is_float(args->x.type) && is_float(args->y.type) && is_wide(args->x) && is_wide(args->y)) {
        return with_float(args->x.type, [&](auto tx) {
            return with_float(args->y.type, [&](auto ty) { return rows_wide<decltype(tx), decltype(ty)>(map, args->x, stream); });
        });
    }
    return launch_elements(k_set_rows, args->x, stream, map);
}
#endif // part 8

#if GCUDAI_PART(2)
// =====================================================================================================
// >>k-elements   unary, binary, scale and their like, optimizer steps
// =====================================================================================================

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
// The same where the result is rounded to 16 bits: the reciprocal is exact to two units of the last of 24. F16 is always within
// its range.
struct d_div_half {
    static __device__ float apply(float a, float b) { return a * d_reciprocal(b); }
};
struct d_div_short {
    static __device__ float apply(float a, float b) {
        return fabsf(b) >= 0x1p-126f && fabsf(b) <= 0x1p126f ? a * d_reciprocal(b) : a / b;
    }
};
template <typename OP> struct short_op {
    typedef OP half, type;
};
template <> struct short_op<d_div> {
    typedef d_div_half half;
    typedef d_div_short type;
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
        const bool is_one = p.b.ne[0] == 1;
        const float one = is_one ? d_f32(b[0]) : 0.0f;
        uint4 raw_a[2][N / d_wide<TA>::N], raw_b[2][N / d_wide<TB>::N];
        UNROLL for (int k = 0; k < 2; ++k) {
            const int64_t at = i.i0 + k * d_tile_step(t, N), n = p.y.ne[0] - at;
            UNROLL for (int j = 0; j < N; j += d_wide<TA>::N) { raw_a[k][j / d_wide<TA>::N] = d_load_raw(a + at + j, n - j); }
            UNROLL for (int j = 0; j < N; j += d_wide<TB>::N) { raw_b[k][j / d_wide<TB>::N] = d_load_raw(b + at + j, is_one ? 0 : n - j); }
        }
        UNROLL for (int k = 0; k < 2; ++k) {
            const int64_t at = i.i0 + k * d_tile_step(t, N), n = p.y.ne[0] - at;
            float u[N], v[N];
            UNROLL for (int j = 0; j < N; j += d_wide<TA>::N) { d_unpack<TA>(raw_a[k][j / d_wide<TA>::N], u + j); }
            UNROLL for (int j = 0; j < N; j += d_wide<TB>::N) { d_unpack<TB>(raw_b[k][j / d_wide<TB>::N], v + j); }
            UNROLL for (int j = 0; j < N; ++j) { u[j] = OP::apply(u[j], is_one ? one : v[j]); }
            UNROLL for (int j = 0; j < N; j += d_wide<TY>::N) { d_store_wide(y + at + j, n - j, u + j); }
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
        typedef typename short_op<OP>::type SHORT;
        switch (types) { // F32 is 0, F16 1, BF16 30
            case 0: return binary_wide<float, float, float, OP>(p, stream);
            case 10101: return binary_wide<__half, __half, __half, typename short_op<OP>::half>(p, stream);
            case 10001: return binary_wide<__half, float, __half, SHORT>(p, stream);
            case 303030: return binary_wide<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16, SHORT>(p, stream);
            case 300030: return binary_wide<__nv_bfloat16, float, __nv_bfloat16, SHORT>(p, stream);
            default: break;
        }
    }
    return launch_tiles(k_binary<OP>, tiles_of(p.y, 1, 4), stream, p);
}

gcuda_status gcuda_launch_add(const gcuda_binary_args * args, gcuda_stream stream) {
    return gcuda_is_quantized(args->a.type) ? gcuda_launch_add_quantized(args, stream) : binary<d_add>(*args, stream);
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
// Comparisons, not fminf and fmaxf, which drop NaN.
static __device__ float d_hardsigmoid(float x) {
    const float v = (x + 3.0f) / 6.0f;
    return v < 0.0f ? 0.0f : v > 1.0f ? 1.0f : v;
}

static __device__ float d_xielu(float x, const float * p) {
    return x > 0.0f ? p[2] * x * x + p[3] * x : (expm1f(fminf(x, p[4])) - x) * p[1] + p[3] * x;
}

// One for each line of GCUDA_UNARY_OPS: one that is missing does not compile.
#define D_UNARY(ID, expr)                                                      \
    static inline __device__ float d_unary_##ID(float x, const float * p) {    \
        (void) p;                                                              \
        return (expr);                                                         \
    }
D_UNARY(ABS, fabsf(x))
D_UNARY(SGN, x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : 0.0f)
D_UNARY(NEG, -x)
D_UNARY(STEP, x > 0.0f ? 1.0f : 0.0f)
D_UNARY(TANH, tanhf(x))
D_UNARY(ELU, x > 0.0f ? x : expm1f(x))
D_UNARY(RELU, x > 0.0f ? x : 0.0f)
D_UNARY(SIGMOID, d_sigmoid(x))
D_UNARY(GELU, d_gelu(x))
D_UNARY(GELU_QUICK, x * d_sigmoid(1.702f * x))
D_UNARY(SILU, x * d_sigmoid(x))
D_UNARY(HARDSWISH, x * d_hardsigmoid(x))
D_UNARY(HARDSIGMOID, d_hardsigmoid(x))
D_UNARY(EXP, expf(x))
D_UNARY(EXPM1, expm1f(x))
D_UNARY(SOFTPLUS, x > 20.0f ? x : log1pf(expf(x)))
D_UNARY(GELU_ERF, d_gelu_erf(x))
D_UNARY(XIELU, d_xielu(x, p))
D_UNARY(FLOOR, floorf(x))
D_UNARY(CEIL, ceilf(x))
D_UNARY(ROUND, roundf(x))
D_UNARY(TRUNC, truncf(x))

static __device__ float d_unary(gcuda_unary_op op, float x, const float * p) {
    switch (op) {
#define X(ID, value) \
    case GCUDA_UNARY_OP_##ID: return d_unary_##ID(x, p);
        GCUDA_UNARY_OPS(X)
#undef X
        default: return NAN; // launchers refuse it
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
        uint4 raw[2];
        UNROLL for (int k = 0; k < 2; ++k) { raw[k] = d_load_raw(x + k * step, n - k * step); }
        UNROLL for (int k = 0; k < 2; ++k) {
            float v[N];
            d_unpack<T>(raw[k], v);
            UNROLL for (int j = 0; j < N; ++j) { v[j] = OP::apply(v[j], p); }
            d_store_wide(y + k * step, n - k * step, v);
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
//   floor   x and g read, y written: 3 * n * sizeof(T) bytes; as columns 10 n
template <typename T, int OP> static __global__ void k_glu_wide(const gcuda_glu_args p, const tiles t) {
    const int N = d_wide<T>::N;
    FOR_TILES(tile, t) {
        const d_index i = d_tile_at(t, p.y.ne, tile, N, 2);
        const T * x = (const T *) d_at(p.x, 0, i.i1, i.i2, i.i3) + i.i0, * g = (const T *) d_at(p.g, 0, i.i1, i.i2, i.i3) + i.i0;
        T * y = (T *) d_at(p.y, 0, i.i1, i.i2, i.i3) + i.i0;
        const int64_t n = p.y.ne[0] - i.i0, step = d_tile_step(t, N);
        uint4 raw_x[2], raw_g[2];
        UNROLL for (int k = 0; k < 2; ++k) {
            raw_x[k] = d_load_raw(x + k * step, n - k * step);
            raw_g[k] = d_load_raw(g + k * step, n - k * step);
        }
        UNROLL for (int k = 0; k < 2; ++k) {
            float u[N], v[N];
            d_unpack<T>(raw_x[k], u);
            d_unpack<T>(raw_g[k], v);
            UNROLL for (int j = 0; j < N; ++j) { u[j] = d_glu((gcuda_glu_op) OP, u[j], v[j], p.alpha, p.limit); }
            d_store_wide(y + k * step, n - k * step, u);
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
                    d_glu((gcuda_glu_op) OP, d_load(p.x.type, d_at(p.x, at, i.i1, i.i2, i.i3)),
                        d_load(p.g.type, d_at(p.g, at, i.i1, i.i2, i.i3)), p.alpha, p.limit));
            }
        }
    }
}

// As columns for products. A block has 2048 elements of one, a warp 256 of them.
template <int OP> static __global__ void __launch_bounds__(256) k_glu_columns(const gcuda_glu_args p) {
    d_take_turn();
    const int k_all = (int) p.y.ne[0], n = (int) p.y.ne[1];
    const uint32_t per_column = (uint32_t) (k_all + 2047) / 2048, n_items = (uint32_t) d_wg_padded(n, p.form) * per_column;
    const auto f = [&](float x, float g) { return d_glu((gcuda_glu_op) OP, x, g, p.alpha, p.limit); };
    for (uint32_t item = blockIdx.x; item < n_items; item += gridDim.x) {
        const uint32_t c = item / per_column;
        const int k = (int) (item - c * per_column) * 2048 + (int) (threadIdx.x / 32) * 256, at = (k + 4 * (int) (threadIdx.x % 32)) / 4;
        if (k >= k_all) { continue; }
        const float4 * x_row = (const float4 *) ((const char *) p.x.data + c * (int64_t) p.x.nb[1]) + at;
        const float4 * g_row = (const float4 *) ((const char *) p.g.data + c * (int64_t) p.g.nb[1]) + at;
        float4 x[2] = {}, g[2] = {};
        if ((int) c < n) { x[0] = x_row[0], x[1] = x_row[32], g[0] = g_row[0], g[1] = g_row[32]; }
        char * column = d_wg_column((char *) p.y.data, k_all, p.form, c);
        UNROLL for (int i = 0; i < 2; ++i) {
            const float4 y = make_float4(f(x[i].x, g[i].x), f(x[i].y, g[i].y), f(x[i].z, g[i].z), f(x[i].w, g[i].w));
            d_wg_put_four(column, p.form, c, k + 128 * i, y);
        }
    }
}

bool gcuda_glu_takes_form(const gcuda_glu_args * args) {
    const gcuda_glu_args & p = *args;
    const bool is_f32 = p.x.type == GCUDA_TYPE_F32 && p.g.type == GCUDA_TYPE_F32 && p.y.type == GCUDA_TYPE_F32;
    return p.form == 0 || (is_wg_form(p.form, p.y.ne[0], p.y.ne[1]) && p.y.ne[2] * p.y.ne[3] == 1 && is_f32 && is_wide(p.x) && is_wide(p.g) &&
                              (uintptr_t) p.y.data % 16 == 0);
}

template <int OP> static gcuda_status glu(const gcuda_glu_args & p, gcuda_stream stream) {
    if (!gcuda_glu_takes_form(&p)) { return GCUDA_STATUS_UNSUPPORTED; }
    if (p.form != 0) {
        return launch_in_turn(k_glu_columns<OP>, d_wg_padded(n_rows(p.y), p.form) * ((p.y.ne[0] + 2047) / 2048), dim3(256), stream, p);
    }
    if (p.x.type != p.y.type || p.g.type != p.y.type || !is_wide(p.x) || !is_wide(p.g) || !is_wide(p.y)) {
        return launch_tiles(k_glu<OP>, tiles_of(p.y, 1, 4), stream, p);
    }
    return with_float(p.y.type, [&](auto v) {
        typedef decltype(v) T;
        return launch_tiles(k_glu_wide<T, OP>, tiles_of(p.y, d_wide<T>::N, 2), stream, p);
    });
}

gcuda_status gcuda_launch_glu(const gcuda_glu_args * args, gcuda_stream stream) {
    switch (args->op) {
#define X(ID, value) \
    case GCUDA_GLU_OP_##ID: return glu<GCUDA_GLU_OP_##ID>(*args, stream);
        GCUDA_GLU_OPS(X)
#undef X
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

// ---- element-wise operations in a row: x read once, y written once, operands read as they come ----
// One operation, looked up once for all elements of a thread, so that a launch goes through little of the code.
template <int N, typename F> static inline __device__ void d_chain_each(float (&v)[N], const float (&b)[N], F f) {
    UNROLL for (int j = 0; j < N; ++j) { v[j] = f(v[j], b[j]); }
}
template <int N, typename F> static inline __device__ void d_chain_each(float (&v)[N], F f) {
    UNROLL for (int j = 0; j < N; ++j) { v[j] = f(v[j]); }
}

template <typename DIV, int N>
static inline __device__ void d_chain_binary(gcuda_op op, bool is_second, float (&v)[N], const float (&b)[N]) { // second: b comes first
    switch (op) {
        case GCUDA_OP_ADD: d_chain_each(v, b, [](float x, float y) { return d_add_rn(x, y); }); break;
        case GCUDA_OP_MUL: d_chain_each(v, b, [](float x, float y) { return d_mul_rn(x, y); }); break;
        case GCUDA_OP_SUB:
            d_chain_each(v, b, [&](float x, float y) { return is_second ? d_sub_rn(y, x) : d_sub_rn(x, y); });
            break;
        default: d_chain_each(v, b, [&](float x, float y) { return DIV::apply(is_second ? y : x, is_second ? x : y); }); break;
    }
}

template <int N> static inline __device__ void d_chain_map(gcuda_op op, gcuda_unary_op unary, const float * p, float (&v)[N]) {
    switch (op) {
        case GCUDA_OP_SCALE: d_chain_each(v, [&](float x) { return p[0] * x + p[1]; }); break;
        case GCUDA_OP_SQR: d_chain_each(v, [](float x) { return d_mul_rn(x, x); }); break;
        case GCUDA_OP_SQRT: d_chain_each(v, [](float x) { return sqrtf(x); }); break;
        case GCUDA_OP_CLAMP: d_chain_each(v, [&](float x) { return x < p[0] ? p[0] : x > p[1] ? p[1] : x; }); break;
        case GCUDA_OP_LEAKY_RELU: d_chain_each(v, [&](float x) { return x > 0.0f ? x : d_mul_rn(p[0], x); }); break;
        default:
            switch (unary) {
#define GCUDAI_CHAIN_UNARY(ID, ...) \
    case GCUDA_UNARY_OP_##ID: d_chain_each(v, [&](float x) { return d_unary(GCUDA_UNARY_OP_##ID, x, p); }); break;
                GCUDA_UNARY_OPS(GCUDAI_CHAIN_UNARY)
#undef GCUDAI_CHAIN_UNARY
                default: break;
            }
    }
}

// Between two operations values are rounded to the type, as if they had been stored.
template <typename T, int N> static inline __device__ void d_chain_round(float (&v)[N]) {
    UNROLL for (int j = 0; j < N; ++j) {
        T t;
        d_put(&t, v[j]);
        v[j] = d_f32(t);
    }
}

// What the kernel of whole rows takes: all that is the same for every thread is decided by the host. The divisions that find a
// thread's row are products: q = (n * factor / 2^32 + n) / 2^shift, for n below 2^31.
struct chain_divisor {
    uint32_t n, factor, shift;
};
enum chain_kind { CHAIN_NONE, CHAIN_ONE, CHAIN_ROW, CHAIN_ROW_F32 }; // no operand; an element for all of a row; rows of the type; of F32
struct chain_array {
    const char * data;
    int64_t nb[3]; // of dimensions 1, 2, 3; 0 where it repeats one
};
struct chain_step {
    gcuda_op op;
    gcuda_unary_op unary;
    chain_kind kind;
    gcuda_type type;
    chain_array b;
    uint32_t ne[3]; // dimensions in which it repeats several; 0: others
    int next;       // the next step that has an operand; 0: none
    bool is_second, is_partial;
    float p[5];
};
struct chain {
    chain_array x, y;
    int64_t n; // elements of a row
    gcuda_type x_type;
    chain_divisor per_row, ne1, ne2;
    uint32_t n_tiles, n_blocks;
    int shift, n_steps, first; // first: the first step that has an operand; -1: none
    bool is_deep;              // has more than two dimensions
    chain_step steps[GCUDA_CHAIN_MAX];
};

static chain_divisor chain_divisor_of(int64_t n) {
    chain_divisor d = { (uint32_t) n, 0, 0 };
    while ((1ll << d.shift) < n) { ++d.shift; }
    if (n > 0) { d.factor = (uint32_t) ((((1ull << d.shift) - (uint64_t) n) << 32) / (uint64_t) n + 1); }
    return d;
}
static inline __device__ uint32_t d_chain_quotient(uint32_t n, const chain_divisor & d) {
    return (__umulhi(n, d.factor) + n) >> d.shift;
}

// Where a thread works: its row, its first element there, and how many there are from that on; parts are step elements apart.
struct d_chain_at {
    uint32_t i1, i2, i3;
    int step;
    int64_t i0, n;
    bool is_full; // all parts are
};

template <int N, int PARTS> static inline __device__ d_chain_at d_chain_where(const chain & p, uint32_t block) {
    const uint32_t own = threadIdx.x & ((1u << p.shift) - 1), tile = (block << (8 - p.shift)) + (threadIdx.x >> p.shift);
    d_chain_at at = { tile, 0, 0, N << p.shift, 0, 0, false };
    uint32_t in_row = 0;
    if (p.per_row.n > 1) {
        at.i1 = d_chain_quotient(tile, p.per_row);
        in_row = tile - at.i1 * p.per_row.n;
    }
    if (p.is_deep) {
        const uint32_t row = at.i1, i2 = d_chain_quotient(row, p.ne1);
        at.i1 = row - i2 * p.ne1.n;
        at.i3 = d_chain_quotient(i2, p.ne2);
        at.i2 = i2 - at.i3 * p.ne2.n;
    }
    at.i0 = (int64_t) in_row * (N * PARTS << p.shift) + (int64_t) (own * N);
    at.n = tile < p.n_tiles ? p.n - at.i0 : 0;
    at.is_full = at.n >= (PARTS - 1) * at.step + N;
    return at;
}

template <typename T>
static inline __device__ T * d_chain_row(const chain_array & a, const chain & p, const d_chain_at & at, uint32_t i1, uint32_t i2, uint32_t i3) {
    int64_t offset = i1 * a.nb[0];
    if (p.is_deep) { offset += i2 * a.nb[1] + i3 * a.nb[2]; }
    return (T *) (a.data + offset) + at.i0;
}

// All of a thread's elements of an array that has the type T: PARTS parts of N.
template <typename T, int N, int PARTS>
static inline __device__ void d_chain_load(const T * from, const d_chain_at & at, uint4 * raw) {
    const int M = d_wide<T>::N;
    if (at.is_full) {
        UNROLL for (int k = 0; k < PARTS; ++k) {
            UNROLL for (int j = 0; j < N; j += M) { raw[(k * N + j) / M] = *(const uint4 *) (from + k * at.step + j); }
        }
    } else {
        UNROLL for (int k = 0; k < PARTS; ++k) {
            UNROLL for (int j = 0; j < N; j += M) {
                raw[(k * N + j) / M] = d_load_raw(from + k * at.step + j, at.n - k * at.step - j);
            }
        }
    }
}

// x of 16 bits in a chain of F32, where a part is eight bytes of it. All threads branch alike; a kernel of its own would be 61 KB.
template <int PARTS> static inline __device__ void d_chain_load_short(const uint16_t * from, const d_chain_at & at, uint4 * raw) {
    UNROLL for (int k = 0; k < PARTS; ++k) {
        const uint16_t * part = from + k * at.step;
        if (at.is_full) {
            const uint2 w = *(const uint2 *) part;
            raw[k] = make_uint4(w.x, w.y, 0, 0);
        } else {
            const int64_t n = at.n - k * at.step;
            raw[k] = d_load_raw((const __half *) part, n < 4 ? n : 4);
        }
    }
}
static inline __device__ void d_chain_unpack_short(gcuda_type type, const uint4 & raw, float * v) {
    float u[8];
    if (type == GCUDA_TYPE_F16) {
        d_unpack<__half>(raw, u);
    } else {
        d_unpack<__nv_bfloat16>(raw, u);
    }
    UNROLL for (int j = 0; j < 4; ++j) { v[j] = u[j]; }
}

// The operand of step s as it lies, to be unpacked when the step's turn comes.
template <typename T, int N, int PARTS>
static inline __device__ void d_chain_operand(const chain & p, const chain_step & s, const d_chain_at & at, uint4 * raw) {
    uint32_t i1 = at.i1, i2 = at.i2, i3 = at.i3;
    if (s.is_partial) {
        i1 = s.ne[0] > 0 ? i1 % s.ne[0] : i1;
        i2 = s.ne[1] > 0 ? i2 % s.ne[1] : i2;
        i3 = s.ne[2] > 0 ? i3 % s.ne[2] : i3;
    }
    if (s.kind == CHAIN_ONE) {
        const char * one = s.b.data + i1 * s.b.nb[0] + i2 * s.b.nb[1] + i3 * s.b.nb[2];
        raw[0].x = at.n > 0 ? __float_as_uint(d_load(s.type, one)) : 0;
    } else if (sizeof(T) == 4 || s.kind == CHAIN_ROW) {
        d_chain_load<T, N, PARTS>(d_chain_row<const T>(s.b, p, at, i1, i2, i3), at, raw);
    } else {
        d_chain_load<float, N, PARTS>(d_chain_row<const float>(s.b, p, at, i1, i2, i3), at, raw);
    }
}

template <typename T, int E> static inline __device__ void d_chain_unpack(chain_kind kind, const uint4 * raw, float (&b)[E]) {
    if (kind == CHAIN_ONE) {
        UNROLL for (int j = 0; j < E; ++j) { b[j] = __uint_as_float(raw[0].x); }
    } else if (sizeof(T) == 4 || kind == CHAIN_ROW) {
        UNROLL for (int j = 0; j < E; j += d_wide<T>::N) { d_unpack<T>(raw[j / d_wide<T>::N], b + j); }
    } else {
        UNROLL for (int j = 0; j < E; j += 4) { d_unpack<float>(raw[j / 4], b + j); }
    }
}

// Division as the kernels of one operation do it.
template <typename T> struct chain_div {
    typedef d_div_short type;
};
template <> struct chain_div<float> {
    typedef d_div type;
};

// Blocks a multiprocessor has room for; 7.5 has it for 1024 threads.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define CHAIN_BLOCKS 4
#else
#define CHAIN_BLOCKS 5
#endif

// A thread's elements, E = 8 in parts of sixteen bytes. Twice as many, with room for 3 or 4 blocks, take as long for large tensors,
// and up to 15% longer for small ones (H200).
template <typename T> struct chain_width {
    static const int N = d_wide<T>::N, PARTS = sizeof(T) == 4 ? 2 : 1, E = N * PARTS;
};

// All threads of a block take all turns and steps together; those behind the end of a row compute with zeros. x and the first
// operand are on their way together, the next operand's while what comes before it is computed.
template <typename T> static __global__ void __launch_bounds__(TILE_BLOCK, CHAIN_BLOCKS) k_chain_wide(const D_GRID_CONSTANT chain p) {
    const int N = chain_width<T>::N, PARTS = chain_width<T>::PARTS, E = chain_width<T>::E;
    const bool is_short = sizeof(T) == 4 && p.x_type != GCUDA_TYPE_F32;
    d_take_turn();
    for (uint32_t block = blockIdx.x; block < p.n_blocks; block += gridDim.x) {
        const d_chain_at at = d_chain_where<N, PARTS>(p, block);
        uint4 raw_x[PARTS], raw[E / 4];
        float v[E];
        if (is_short) {
            d_chain_load_short<PARTS>(d_chain_row<const uint16_t>(p.x, p, at, at.i1, at.i2, at.i3), at, raw_x);
        } else {
            d_chain_load<T, N, PARTS>(d_chain_row<const T>(p.x, p, at, at.i1, at.i2, at.i3), at, raw_x);
        }
        if (p.first >= 0) { d_chain_operand<T, N, PARTS>(p, p.steps[p.first], at, raw); }
        UNROLL for (int k = 0; k < PARTS; ++k) {
            if (is_short) {
                d_chain_unpack_short(p.x_type, raw_x[k], v + k * N);
            } else {
                d_unpack<T>(raw_x[k], v + k * N);
            }
        }
        NO_UNROLL for (int m = 0; m < p.n_steps; ++m) {
            const chain_step & s = p.steps[m];
            if (s.kind != CHAIN_NONE) {
                float b[E];
                d_chain_unpack<T>(s.kind, raw, b);
                d_chain_binary<typename chain_div<T>::type>(s.op, s.is_second, v, b);
                if (s.next > 0) { d_chain_operand<T, N, PARTS>(p, p.steps[s.next], at, raw); }
            } else {
                d_chain_map(s.op, s.unary, s.p, v);
            }
            d_chain_round<T>(v);
        }
        T * y = d_chain_row<T>(p.y, p, at, at.i1, at.i2, at.i3);
        if (at.is_full) {
            UNROLL for (int k = 0; k < PARTS; ++k) { d_store16(y + k * at.step, v + k * N); }
        } else {
            UNROLL for (int k = 0; k < PARTS; ++k) { d_store_wide(y + k * at.step, at.n - k * at.step, v + k * N); }
        }
    }
}

// Where a repeated operand is in a dimension: divisions only where it is neither one row for all nor as large as the result.
static inline __device__ int64_t d_repeated_at(int64_t i, int64_t ne, int64_t n) { return ne == 1 ? 0 : ne == n ? i : i % ne; }

// Any strides.
static __global__ void __launch_bounds__(TILE_BLOCK) k_chain(const D_GRID_CONSTANT gcuda_chain_args p, const tiles t) {
    const gcuda_type type = p.y.type;
    FOR_TILES(tile, t) {
        const d_index i = d_tile_at(t, p.y.ne, tile, 1, 4);
        const int64_t n = p.y.ne[0] - i.i0, step = d_tile_step(t, 1);
        float v[4];
        UNROLL for (int k = 0; k < 4; ++k) {
            v[k] = k * step < n ? d_load(p.x.type, d_at(p.x, i.i0 + k * step, i.i1, i.i2, i.i3)) : 0.0f;
        }
        NO_UNROLL for (int m = 0; m < p.n_steps; ++m) {
            const gcuda_chain_step & s = p.steps[m];
            if (s.b.data != nullptr) {
                const char * row = d_at(s.b, 0, d_repeated_at(i.i1, s.b.ne[1], p.y.ne[1]), d_repeated_at(i.i2, s.b.ne[2], p.y.ne[2]),
                    d_repeated_at(i.i3, s.b.ne[3], p.y.ne[3]));
                float b[4];
                UNROLL for (int k = 0; k < 4; ++k) {
                    const int64_t at = d_repeated_at(i.i0 + k * step, s.b.ne[0], p.y.ne[0]);
                    b[k] = k * step < n ? d_load(s.b.type, row + at * (int64_t) s.b.nb[0]) : 0.0f;
                }
                d_chain_binary<d_div>(s.op, s.is_second, v, b);
            } else {
                d_chain_map(s.op, s.unary, s.p, v);
            }
            switch (type) {
                case GCUDA_TYPE_F16: d_chain_round<__half>(v); break;
                case GCUDA_TYPE_BF16: d_chain_round<__nv_bfloat16>(v); break;
                default: break;
            }
        }
        UNROLL for (int k = 0; k < 4; ++k) {
            if (k * step < n) { d_store(type, d_at(p.y, i.i0 + k * step, i.i1, i.i2, i.i3), v[k]); }
        }
    }
}

static chain_array chain_array_of(const gcuda_array & a) {
    chain_array c = { (const char *) a.data, { 0, 0, 0 } };
    for (int d = 0; d < 3; ++d) { c.nb[d] = a.ne[d + 1] == 1 ? 0 : (int64_t) a.nb[d + 1]; }
    return c;
}

// s is zero.
static void chain_step_of(const gcuda_chain_step & from, const gcuda_array & y, chain_step & s) {
    s.op = from.op;
    s.unary = from.unary;
    s.is_second = from.is_second;
    memcpy(s.p, from.p, sizeof(s.p));
    if (from.b.data == nullptr) { return; }
    s.type = from.b.type;
    s.kind = from.b.ne[0] == 1 ? CHAIN_ONE : from.b.type == y.type ? CHAIN_ROW : CHAIN_ROW_F32;
    s.b = chain_array_of(from.b);
    for (int d = 0; d < 3; ++d) {
        const int64_t ne = from.b.ne[d + 1];
        s.ne[d] = ne == 1 || ne == y.ne[d + 1] ? 0 : (uint32_t) ne;
        s.is_partial = s.is_partial || s.ne[d] > 0;
    }
}

static chain chain_of(const gcuda_chain_args & p, const tiles & t) {
    const int64_t per_block = TILE_BLOCK >> t.shift;
    chain c = {};
    c.x = chain_array_of(p.x);
    c.y = chain_array_of(p.y);
    c.n = p.y.ne[0];
    c.x_type = p.x.type;
    c.per_row = chain_divisor_of(t.per_row);
    c.ne1 = chain_divisor_of(p.y.ne[1]);
    c.ne2 = chain_divisor_of(p.y.ne[2]);
    c.is_deep = p.y.ne[2] * p.y.ne[3] > 1;
    c.n_tiles = (uint32_t) t.n;
    c.n_blocks = (uint32_t) ((t.n + per_block - 1) / per_block);
    c.shift = t.shift;
    c.n_steps = p.n_steps;
    c.first = -1;
    for (int m = p.n_steps - 1; m >= 0; --m) {
        chain_step_of(p.steps[m], p.y, c.steps[m]);
        c.steps[m].next = c.first > 0 ? c.first : 0;
        c.first = c.steps[m].kind != CHAIN_NONE ? m : c.first;
    }
    return c;
}

template <typename T> static gcuda_status chain_wide(const gcuda_chain_args & p, const tiles & t, gcuda_stream stream) {
    const chain c = chain_of(p, t);
    return launch_in_turn(k_chain_wide<T>, c.n_blocks, dim3(TILE_BLOCK), stream, c);
}

// What d_chain_binary and d_chain_map compute; another operation would be taken for the last that they know.
static bool is_chain_step(const gcuda_chain_step & s) {
    switch (s.op) {
        case GCUDA_OP_ADD:
        case GCUDA_OP_SUB:
        case GCUDA_OP_MUL:
        case GCUDA_OP_DIV: return s.b.data != nullptr;
        case GCUDA_OP_SCALE:
        case GCUDA_OP_SQR:
        case GCUDA_OP_SQRT:
        case GCUDA_OP_CLAMP:
        case GCUDA_OP_LEAKY_RELU: return true;
        case GCUDA_OP_UNARY: return (int) s.unary >= 0 && s.unary < GCUDA_UNARY_OP_COUNT;
        default: return false;
    }
}

gcuda_status gcuda_launch_chain(const gcuda_chain_args * args, gcuda_stream stream) {
    const gcuda_chain_args & p = *args;
    bool wide = is_wide(p.x) && is_wide(p.y);
    const bool are_types = is_float(p.x.type) && (p.x.type == p.y.type || p.y.type == GCUDA_TYPE_F32);
    if (p.n_steps < 0 || p.n_steps > GCUDA_CHAIN_MAX || !are_types) { return GCUDA_STATUS_UNSUPPORTED; }
    for (int m = 0; m < p.n_steps; ++m) {
        const gcuda_array & b = p.steps[m].b;
        if (!is_chain_step(p.steps[m])) { return GCUDA_STATUS_UNSUPPORTED; }
        const bool is_row = b.ne[0] == 1 || (b.ne[0] == p.y.ne[0] && is_wide(b));
        wide = wide && (b.data == nullptr || (is_row && (b.type == p.y.type || b.type == GCUDA_TYPE_F32)));
    }
    return with_float(p.y.type, [&](auto v) {
        typedef decltype(v) T;
        const tiles t = tiles_of(p.y, chain_width<T>::N, chain_width<T>::PARTS);
        return wide && t.n <= INT32_MAX - TILE_BLOCK ? chain_wide<T>(p, t, stream) : launch_tiles(k_chain, tiles_of(p.y, 1, 4), stream, p);
    });
}

// >>op:opt_step_adamw ---------------------------------------------------------------------------------
// params: alpha, beta1, beta2, eps, weight decay, 1 / (1 - beta1^t), 1 / (1 - beta2^t)
//   floor   a, m, v, grad read, a, m, v written: 28 bytes an element
static inline __device__ void d_adamw(float & a, float & m, float & v, float g, const float * c) {
    m = m * c[1] + g * (1.0f - c[1]);
    v = v * c[2] + g * g * (1.0f - c[2]);
    a = a * (1.0f - c[0] * c[4]) - c[0] * (m * c[5]) / (sqrtf(v * c[6]) + c[3]);
}

static __global__ void k_opt_step_adamw(const gcuda_opt_step_args p, int64_t n_wide) {
    float c[7];
    for (int k = 0; k < 7; ++k) { c[k] = ((const float *) p.params.data)[k]; }
    FOR_ELEMENTS(i, n_wide) {
        float4 * pa = (float4 *) p.a.data + i, * pm = (float4 *) p.m.data + i, * pv = (float4 *) p.v.data + i;
        const float4 g = ((const float4 *) p.grad.data)[i];
        float4 a = *pa, m = *pm, v = *pv;
        d_adamw(a.x, m.x, v.x, g.x, c);
        d_adamw(a.y, m.y, v.y, g.y, c);
        d_adamw(a.z, m.z, v.z, g.z, c);
        d_adamw(a.w, m.w, v.w, g.w, c);
        *pa = a;
        *pm = m;
        *pv = v;
    }
    const int64_t n = d_n(p.a);
    for (int64_t i = 4 * n_wide + blockIdx.x * (int64_t) blockDim.x + threadIdx.x; i < n; i += (int64_t) gridDim.x * blockDim.x) {
        d_adamw(((float *) p.a.data)[i], ((float *) p.m.data)[i], ((float *) p.v.data)[i], ((const float *) p.grad.data)[i], c);
    }
}

// How many times four elements of all that are contiguous; 0 where one of them is not aligned.
static int64_t opt_step_wide(const gcuda_opt_step_args & p) {
    const uintptr_t bits =
        (uintptr_t) p.a.data | (uintptr_t) p.grad.data | (uintptr_t) p.m.data | (uintptr_t) p.v.data; // sgd: NULL
    return bits % 16 == 0 ? n_elements(p.a) / 4 : 0;
}

static gcuda_status opt_step(
    void (*kernel)(const gcuda_opt_step_args, int64_t), const gcuda_opt_step_args & p, gcuda_stream stream) {
    const int64_t n_wide = opt_step_wide(p), n = n_wide > 0 ? n_wide : n_elements(p.a);
    return launch(kernel, (n + 255) / 256, 256, stream, p, n_wide);
}

gcuda_status gcuda_launch_opt_step_adamw(const gcuda_opt_step_args * args, gcuda_stream stream) {
    return opt_step(k_opt_step_adamw, *args, stream);
}

// >>op:opt_step_sgd -----------------------------------------------------------------------------------
//   floor   a and grad read, a written: 12 bytes an element
static inline __device__ float d_sgd(float a, float g, const float * c) { return a * (1.0f - c[0] * c[1]) - c[0] * g; }

static __global__ void k_opt_step_sgd(const gcuda_opt_step_args p, int64_t n_wide) {
    const float c[2] = { ((const float *) p.params.data)[0], ((const float *) p.params.data)[1] };
    FOR_ELEMENTS(i, n_wide) {
        const float4 g = ((const float4 *) p.grad.data)[i], a = ((const float4 *) p.a.data)[i];
        ((float4 *) p.a.data)[i] = make_float4(d_sgd(a.x, g.x, c), d_sgd(a.y, g.y, c), d_sgd(a.z, g.z, c), d_sgd(a.w, g.w, c));
    }
    const int64_t n = d_n(p.a);
    for (int64_t i = 4 * n_wide + blockIdx.x * (int64_t) blockDim.x + threadIdx.x; i < n; i += (int64_t) gridDim.x * blockDim.x) {
        ((float *) p.a.data)[i] = d_sgd(((const float *) p.a.data)[i], ((const float *) p.grad.data)[i], c);
    }
}

gcuda_status gcuda_launch_opt_step_sgd(const gcuda_opt_step_args * args, gcuda_stream stream) {
    return opt_step(k_opt_step_sgd, *args, stream);
}
#endif // part 2

#if GCUDAI_PART(3)
// =====================================================================================================
// >>k-reduce   sums, argmax, cross entropy
// =====================================================================================================

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

template <typename T> static __global__ void __launch_bounds__(512) k_sum_packed(const gcuda_sum_args p) {
    const int64_t n = d_n(p.x), step = (int64_t) gridDim.x * blockDim.x;
    const int N = d_wide<T>::N;
    const T * x = (const T *) p.x.data;
    double sum = 0.0;
    for (int64_t i = (blockIdx.x * (int64_t) blockDim.x + threadIdx.x) * N; i < n; i += 4 * step * N) {
        uint4 raw[4];
        UNROLL for (int k = 0; k < 4; ++k) { raw[k] = d_load_raw(x + i + k * step * N, n - i - k * step * N); }
        UNROLL for (int k = 0; k < 4; ++k) {
            float v[N];
            d_unpack<T>(raw[k], v);
            UNROLL for (int j = 0; j < N; j += 2) { sum += (double) v[j] + (double) v[j + 1]; }
        }
    }
    d_sum_end(p, sum);
}

static __global__ void __launch_bounds__(512) k_sum(const gcuda_sum_args p) {
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
    const bool is_packed = n_rows(args->x) == 1 && is_wide(args->x); // rows are folded
    const gcuda_status st =
        is_packed ? with_float(args->x.type, [&](auto t) { return launch(k_sum_packed<decltype(t)>, n, 512, stream, *args); })
                  : launch(k_sum, n, 512, stream, *args);
    return st == GCUDA_STATUS_SUCCESS && n > 1 ? launch(k_sum_partials, 1, 256, stream, *args, n) : st;
}

// >>op:sum_rows  >>op:mean ----------------------------------------------------------------------------
// f(sixteen bytes as floats, place of the first) over packed elements [0, n), THREADS threads, four loads at a time.
template <typename T, int THREADS, typename F> static inline __device__ void d_each_wide(const T * x, int64_t n, F f) {
    const int N = d_wide<T>::N;
    for (int64_t i = (int64_t) (threadIdx.x % THREADS) * N; i < n; i += 4 * THREADS * N) {
        uint4 raw[4];
        for (int k = 0; k < 4; ++k) { raw[k] = d_load_raw(x + i + k * THREADS * N, n - i - k * THREADS * N); }
        for (int k = 0; k < 4; ++k) {
            float v[N];
            d_unpack<T>(raw[k], v);
            f(v, i + k * THREADS * N);
        }
    }
}

// The sum again, in double on each thread: in F32 it was not finite. Of a warp's or a block's threads, all of them.
template <typename T, int THREADS> static NO_INLINE __device__ double d_row_sum_double(const T * x, int64_t n) {
    double sum = 0.0;
    for (int64_t i = threadIdx.x % THREADS; i < n; i += THREADS) { sum += (double) d_f32(x[i]); }
    return THREADS == 32 ? d_warp_reduce<d_sum_op>(sum) : d_block_sum(sum);
}

//   floor   x read once: ne0 * n_rows * sizeof(T) bytes
// Long rows are cut into n_parts, whose sums in double go to scratch; a second launch adds them.
template <typename T, int THREADS>
static __global__ void __launch_bounds__(512) k_sum_rows_wide(const gcuda_reduce_args p, float divisor, int64_t n_parts, int64_t part) {
    FOR_HELD_ROWS(r, d_rows(p.x) * n_parts, THREADS) {
        const int64_t row = n_parts > 1 ? r / n_parts : r, i0 = n_parts > 1 ? (r - row * n_parts) * part : 0;
        const T * x = (const T *) d_row(p.x, row) + i0;
        const int64_t n = p.x.ne[0] - i0 < part ? p.x.ne[0] - i0 : part;
        float sum[4] = { 0.0f, 0.0f, 0.0f, 0.0f };
        d_each_wide<T, THREADS>(x, n, [&](const float * v, int64_t) {
            for (int j = 0; j < d_wide<T>::N; ++j) { sum[j % 4] += v[j]; }
        });
        const float own = (sum[0] + sum[1]) + (sum[2] + sum[3]);
        const bool is_part = THREADS > 32 && n_parts > 1;
        const double all = is_part ? d_block_sum((double) own) : (double) (THREADS == 32 ? d_warp_reduce<d_sum_op>(own) : d_block_sum(own));
        const bool is_lost = !(fabs(all) <= 1.7976931348623157e308); // an infinite sum in F32, or NaN from two of them
        const double sum_again = is_lost ? d_row_sum_double<T, THREADS>(x, n) : 0.0;
        if (threadIdx.x % THREADS == 0 && is_part) {
            ((double *) p.scratch)[r] = is_lost ? sum_again : all;
        } else if (threadIdx.x % THREADS == 0) {
            d_store(p.y.type, d_row(p.y, r), is_lost ? (float) (sum_again / (double) divisor) : (float) all / divisor);
        }
    }
}

static __global__ void k_sum_rows_parts(const gcuda_reduce_args p, float divisor, int64_t n_parts) {
    FOR_ROWS(r, d_rows(p.x)) {
        double sum = 0.0;
        FOR_ROW_ELEMENTS(i, n_parts) { sum += ((const double *) p.scratch)[r * n_parts + i]; }
        sum = d_block_sum(sum);
        if (threadIdx.x == 0) { d_store(p.y.type, d_row(p.y, r), (float) (sum / (double) divisor)); }
    }
}

static __global__ void __launch_bounds__(512) k_sum_rows(const gcuda_reduce_args p, float divisor) {
    FOR_ROWS(r, d_rows(p.x)) {
        const char * x = d_row(p.x, r);
        double sum = 0.0;
        FOR_ROW_ELEMENTS(i, p.x.ne[0]) { sum += (double) d_load(p.x.type, x + i * (int64_t) p.x.nb[0]); }
        sum = d_block_sum(sum);
        if (threadIdx.x == 0) {
            d_store(p.y.type, d_row(p.y, r), (float) (sum / (double) divisor));
        }
    }
}

// Parts of 32768 elements where rows are long and too few to fill the device, but not more than 1024 in all.
#define SUM_PART 32768
static int64_t sum_parts(const gcuda_array & x) {
    const int64_t rows = n_rows(x), n = x.ne[0] / SUM_PART, most = rows > 0 ? 1024 / rows : 0;
    return !is_wide(x) || rows >= 264 || n < 2 || most < 2 ? 1 : n < most ? n : most;
}

size_t gcuda_sum_rows_scratch_bytes(const gcuda_reduce_args * args) {
    const int64_t n = sum_parts(args->x);
    return n > 1 ? (size_t) (n * n_rows(args->x)) * sizeof(double) : 0;
}
size_t gcuda_mean_scratch_bytes(const gcuda_reduce_args * args) { return gcuda_sum_rows_scratch_bytes(args); }

static gcuda_status sum_rows(const gcuda_reduce_args & p, float divisor, gcuda_stream stream) {
    const int64_t n = p.x.ne[0], rows = n_rows(p.x), n_parts = sum_parts(p.x), part = ((n + n_parts - 1) / n_parts + 7) / 8 * 8;
    if (!is_wide(p.x) || n == 0) {
        return launch(k_sum_rows, rows, n <= 1024 ? 128 : 512, stream, p, divisor);
    }
    const gcuda_status st = with_float(p.x.type, [&](auto v) {
        typedef decltype(v) T;
        const int64_t n_bytes = n * (int64_t) sizeof(T);
        return n_bytes <= 4096    ? launch(k_sum_rows_wide<T, 32>, (rows + 7) / 8, 256, stream, p, divisor, (int64_t) 1, n)
               : n_bytes <= 16384 ? launch(k_sum_rows_wide<T, 128>, rows, 128, stream, p, divisor, (int64_t) 1, n)
                                  : launch(k_sum_rows_wide<T, 512>, rows * n_parts, 512, stream, p, divisor, n_parts, part);
    });
    return st == GCUDA_STATUS_SUCCESS && n_parts > 1 ? launch(k_sum_rows_parts, rows, 128, stream, p, divisor, n_parts) : st;
}

gcuda_status gcuda_launch_sum_rows(const gcuda_reduce_args * args, gcuda_stream stream) {
    return sum_rows(*args, 1.0f, stream);
}
gcuda_status gcuda_launch_mean(const gcuda_reduce_args * args, gcuda_stream stream) {
    return sum_rows(*args, (float) args->x.ne[0], stream);
}

// >>op:argmax -----------------------------------------------------------------------------------------
// Of equal maxima the last one, and of a row without any number the last element: index -1 until there is one.
//   floor   x read once
struct d_best {
    float value;
    int32_t index;
};

static __device__ d_best d_better(const d_best & a, const d_best & b) {
    return a.value > b.value || (a.value == b.value && a.index > b.index) ? a : b;
}

static __device__ d_best d_warp_best(d_best best) {
    for (int d = 16; d > 0; d /= 2) {
        const d_best other = { __shfl_xor_sync(0xffffffffu, best.value, d), __shfl_xor_sync(0xffffffffu, best.index, d) };
        best = d_better(other, best);
    }
    return best;
}

template <typename T, bool WIDE, int THREADS> static __global__ void __launch_bounds__(1024) k_argmax(const gcuda_reduce_args p) {
    __shared__ d_best part[32];
    const int64_t n = p.x.ne[0];
    FOR_HELD_ROWS(r, d_rows(p.x), THREADS) {
        const T * x = (const T *) d_row(p.x, r);
        d_best best = { -INFINITY, -1 };
        if (WIDE) {
            d_each_wide<T, THREADS>(x, n, [&](const float * v, int64_t i) {
                for (int j = 0; j < d_wide<T>::N; ++j) {
                    if (v[j] >= best.value && i + j < n) { best = { v[j], (int32_t) (i + j) }; } // the last of equal ones
                }
            });
        } else {
            for (int64_t i = threadIdx.x % THREADS; i < n; i += THREADS) {
                const float v = d_f32(x[i]);
                if (v >= best.value) { best = { v, (int32_t) i }; }
            }
        }
        best = d_warp_best(best);
        if (THREADS > 32) {
            __syncthreads(); // the last use of part is over
            if (threadIdx.x % 32 == 0) { part[threadIdx.x / 32] = best; }
            __syncthreads();
            best = d_warp_best(part[threadIdx.x % 32 < THREADS / 32 ? threadIdx.x % 32 : 0]);
        }
        if (threadIdx.x % THREADS == 0) { ((int32_t *) p.y.data)[r] = best.index < 0 ? (int32_t) (n - 1) : best.index; }
    }
}

template <bool WIDE> static gcuda_status argmax(const gcuda_reduce_args & p, gcuda_stream stream) {
    const int64_t n = p.x.ne[0], rows = n_rows(p.x), at_once = 3 * n_multiprocessors(); // blocks of 512, by their registers
    const bool fit_if_smaller = rows > at_once && rows <= 2 * at_once; // all at once, none behind the others
    return with_float(p.x.type, [&](auto v) {
        typedef decltype(v) T;
        return n <= 1024                      ? launch(k_argmax<T, WIDE, 32>, (rows + 7) / 8, 256, stream, p)
               : n <= 8192 || fit_if_smaller ? launch(k_argmax<T, WIDE, 256>, rows, 256, stream, p)
                                              : launch(k_argmax<T, WIDE, 512>, rows, 512, stream, p);
    });
}

gcuda_status gcuda_launch_argmax(const gcuda_reduce_args * args, gcuda_stream stream) {
    return is_wide(args->x) ? argmax<true>(*args, stream) : argmax<false>(*args, stream);
}

// >>op:count_equal ------------------------------------------------------------------------------------
//   floor   a and b read once: 8 * ne0 * n_rows bytes
static __device__ void d_count_end(const gcuda_count_equal_args & p, long long n) {
    n = d_block_reduce<d_sum_op>(n, 0LL);
    if (threadIdx.x == 0) {
        *(gridDim.x > 1 ? (int64_t *) p.scratch + blockIdx.x : (int64_t *) p.y.data) = n;
    }
}

static __global__ void __launch_bounds__(512) k_count_equal(const gcuda_count_equal_args p) {
    long long n = 0;
    FOR_ELEMENTS(i, d_n(p.a)) {
        const d_index x = d_unravel(p.a.ne, i);
        n += *(const int32_t *) d_at(p.a, x) == *(const int32_t *) d_at(p.b, x);
    }
    d_count_end(p, n);
}

static __global__ void __launch_bounds__(512) k_count_equal_wide(const gcuda_count_equal_args p) {
    const int64_t n_all = d_n(p.a), step = (int64_t) gridDim.x * blockDim.x * 4;
    long long n = 0;
    for (int64_t i = (blockIdx.x * (int64_t) blockDim.x + threadIdx.x) * 4; i < n_all; i += 4 * step) {
        int4 a[4], b[4];
        UNROLL for (int k = 0; k < 4; ++k) {
            const bool is_in = i + k * step + 4 <= n_all;
            a[k] = is_in ? *(const int4 *) ((const int32_t *) p.a.data + i + k * step) : make_int4(0, 0, 0, 0);
            b[k] = is_in ? *(const int4 *) ((const int32_t *) p.b.data + i + k * step) : make_int4(1, 1, 1, 1);
        }
        UNROLL for (int k = 0; k < 4; ++k) {
            n += (a[k].x == b[k].x) + (a[k].y == b[k].y) + (a[k].z == b[k].z) + (a[k].w == b[k].w);
        }
    }
    const int64_t last = n_all / 4 * 4 + threadIdx.x;
    if (blockIdx.x == 0 && last < n_all) { n += ((const int32_t *) p.a.data)[last] == ((const int32_t *) p.b.data)[last]; }
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
    const bool is_packed = n_rows(args->a) == 1 && is_wide(args->a) && is_wide(args->b);
    const gcuda_status st = launch(is_packed ? k_count_equal_wide : k_count_equal, n, 512, stream, *args);
    return st == GCUDA_STATUS_SUCCESS && n > 1 ? launch(k_count_partials, 1, 256, stream, *args, n) : st;
}

// >>op:cross_entropy_loss -----------------------------------------------------------------------------
// ln sum_i exp(a_i) of a row as max + log. Never added up: beside a large maximum the logarithm would be rounded away, and
// (x - max) - log keeps it.
struct d_log_sum {
    float max, log;
};
static __device__ d_log_sum d_log_sum_exp(const gcuda_array & a, const char * x) { // on every thread
    float max = -INFINITY, sum = 0.0f;
    FOR_ROW_ELEMENTS(i, a.ne[0]) { max = fmaxf(max, d_load(a.type, x + i * a.nb[0])); }
    max = d_block_max(max);
    FOR_ROW_ELEMENTS(i, a.ne[0]) { sum += expf(d_load(a.type, x + i * a.nb[0]) - max); }
    return { max, logf(d_block_sum(sum)) };
}
static inline __device__ float d_log_soft(float x, d_log_sum norm) { return (x - norm.max) - norm.log; }

// Rows in turn; a block leaves what its rows lose in scratch, unless it is alone. A label of 0 loses nothing, whatever its logit is:
// 0 ln 0 is 0, as on the CPU.
//   floor   logits and labels read once: 2 * ne0 * n_rows * sizeof(T) bytes
static inline __device__ double d_loss_term(float label, float x, d_log_sum norm) {
    return label != 0.0f ? (double) label * ((double) norm.max - (double) x + (double) norm.log) : 0.0;
}
static __device__ void d_loss_end(const gcuda_cross_entropy_args & p, double loss) {
    loss = d_block_sum(loss);
    if (threadIdx.x == 0 && gridDim.x > 1) {
        ((double *) p.scratch)[blockIdx.x] = loss;
    } else if (threadIdx.x == 0) {
        const int64_t n = d_rows(p.logits);
        d_store(p.y.type, (char *) p.y.data, n > 0 ? (float) (loss / (double) n) : 0.0f);
    }
}

static __global__ void __launch_bounds__(1024) k_cross_entropy_loss(const gcuda_cross_entropy_args p) {
    double loss = 0.0;
    FOR_ROWS(r, d_rows(p.logits)) {
        const char * x = d_row(p.logits, r), * b = d_row(p.labels, r);
        const d_log_sum norm = d_log_sum_exp(p.logits, x);
        FOR_ROW_ELEMENTS(i, p.logits.ne[0]) {
            loss += d_loss_term(d_load(p.labels.type, b + i * p.labels.nb[0]), d_load(p.logits.type, x + i * p.logits.nb[0]), norm);
        }
    }
    d_loss_end(p, loss);
}

// d_log_sum_exp of a packed row. labels: fetch(i, at) for each vector, all under way together; then rebase(from, to) when the
// largest logit so far is another one, and add(i, x, base) with the vector of logits, -inf behind the end.
template <typename T, typename L> static __device__ d_log_sum d_log_sum_exp_wide(const T * x, int64_t n, L & labels) {
    const int N = d_wide<T>::N;
    const int64_t step = (int64_t) blockDim.x * N;
    d_soft_sum s = { -INFINITY, 0.0f };
    float base = 0.0f;
    for (int64_t i = threadIdx.x * (int64_t) N; i < n; i += 4 * step) {
        uint4 raw[4];
        float max = s.max, v[4][N];
        UNROLL for (int k = 0; k < 4; ++k) { raw[k] = d_load_raw(x + i + k * step, n - i - k * step); }
        UNROLL for (int k = 0; k < 4; ++k) {
            const int64_t at = i + k * step;
            labels.fetch(k, at);
            d_unpack<T>(raw[k], v[k]);
            UNROLL for (int j = 0; j < N; ++j) {
                v[k][j] = at + j < n ? v[k][j] : -INFINITY;
                max = fmaxf(max, v[k][j]);
            }
        }
        const float next = max == -INFINITY ? 0.0f : max;
        labels.rebase(base, next);
        base = next;
        s.sum *= d_exp(s.max - base);
        UNROLL for (int k = 0; k < 4; ++k) {
            labels.add(k, v[k], base);
            UNROLL for (int j = 0; j < N; ++j) { s.sum += d_exp(v[k][j] - base); }
        }
        s.max = max;
    }
    const float max = d_block_max(s.max), last = max == -INFINITY ? 0.0f : max;
    labels.rebase(base, last);
    return { max, logf(d_block_sum(s.sum * d_exp(s.max - last))) };
}

struct d_no_labels {
    inline __device__ void fetch(int, int64_t) {}
    inline __device__ void rebase(float, float) {}
    inline __device__ void add(int, const float *, float) {}
};

// Of the labels of a row, sum_i b_i (base - x_i) and sum_i b_i.
template <typename T> struct d_label_sums {
    const T * b;
    int64_t n;
    double loss, sum;
    uint4 raw[4];

    inline __device__ void fetch(int k, int64_t at) { raw[k] = d_load_raw(b + at, n - at); }
    inline __device__ void rebase(float from, float to) { loss += sum != 0.0 ? sum * ((double) to - (double) from) : 0.0; }
    inline __device__ void add(int k, const float * x, float base) {
        const int N = d_wide<T>::N;
        float u[N];
        d_unpack<T>(raw[k], u); // 0 behind the end
        UNROLL for (int j = 0; j < N; ++j) {
            loss += u[j] != 0.0f ? (double) u[j] * ((double) base - (double) x[j]) : 0.0;
            sum += (double) u[j];
        }
    }
};

// Loss of packed rows in one pass: sum_i b_i (max - x_i) + log sum_i b_i, in double.
template <typename T> static __global__ void __launch_bounds__(512) k_cross_entropy_loss_wide(const gcuda_cross_entropy_args p) {
    double loss = 0.0;
    FOR_ROWS(r, d_rows(p.logits)) {
        d_label_sums<T> labels = { (const T *) d_row(p.labels, r), p.logits.ne[0], 0.0, 0.0, {} };
        const d_log_sum norm = d_log_sum_exp_wide((const T *) d_row(p.logits, r), p.logits.ne[0], labels);
        loss += labels.loss + (labels.sum != 0.0 ? labels.sum * (double) norm.log : 0.0);
    }
    d_loss_end(p, loss);
}

static __global__ void k_loss_partials(const gcuda_cross_entropy_args p, int64_t n) {
    double loss = 0.0;
    FOR_ROW_ELEMENTS(i, n) { loss += ((const double *) p.scratch)[i]; }
    d_loss_end(p, loss);
}

// So little that one block has all rows at once: `span` neighbouring threads each, a power of two.
#define LOSS_SMALL 8192 // elements, in 2 to 1024 rows
#define LOSS_EACH 16    // of a row, elements a thread: more than half of 1024 threads have rows
static bool is_small_loss(const gcuda_cross_entropy_args & p) {
    return n_rows(p.logits) > 1 && n_rows(p.logits) <= 1024 && n_elements(p.logits) <= LOSS_SMALL;
}

// On each thread of a span. All threads of the block are here.
template <typename OP> static __device__ float d_span_reduce(float v, int span) {
    __shared__ float part[32];
    const int warp = (int) threadIdx.x / 32, n_warps = span / 32, first = n_warps > 0 ? warp / n_warps * n_warps : warp;
    NO_UNROLL for (int offset = span < 32 ? span / 2 : 16; offset > 0; offset /= 2) {
        v = OP::apply(v, __shfl_xor_sync(0xffffffffu, v, offset));
    }
    __syncthreads(); // the last use of part is over
    if (threadIdx.x % 32 == 0) { part[warp] = v; }
    __syncthreads();
    v = n_warps > 1 ? part[first] : v;
    NO_UNROLL for (int k = 1; k < n_warps; ++k) { v = OP::apply(v, part[first + k]); }
    return v;
}

// Elements i, i + step, ... of the first n, all under way together; what is missing is `missing`.
template <typename T> static inline __device__ void d_take(const char * row, int64_t nb, int i, int step, int n, float missing, float * v) {
    UNROLL for (int k = 0; k < LOSS_EACH; ++k) { v[k] = i + k * step < n ? d_f32(*(const T *) (row + (i + k * step) * nb)) : missing; }
}
static inline __device__ void d_take(const gcuda_array & a, int64_t r, int i, int step, int n, float missing, float * v) {
    const char * row = d_row(a, r);
    switch (a.type) {
        case GCUDA_TYPE_F32: d_take<float>(row, (int64_t) a.nb[0], i, step, n, missing, v); break;
        case GCUDA_TYPE_F16: d_take<__half>(row, (int64_t) a.nb[0], i, step, n, missing, v); break;
        default: d_take<__nv_bfloat16>(row, (int64_t) a.nb[0], i, step, n, missing, v); break;
    }
}

static __global__ void __launch_bounds__(1024) k_cross_entropy_loss_small(const gcuda_cross_entropy_args p, int span) {
    const int64_t r = (int) threadIdx.x / span, own = r < d_rows(p.logits) ? r : 0;
    const int i = (int) threadIdx.x % span, n = r < d_rows(p.logits) ? (int) p.logits.ne[0] : 0;
    float x[LOSS_EACH], b[LOSS_EACH], max = -INFINITY, sum = 0.0f;
    double loss = 0.0;
    d_take(p.logits, own, i, span, n, -INFINITY, x);
    d_take(p.labels, own, i, span, n, 0.0f, b);
    UNROLL for (int k = 0; k < LOSS_EACH; ++k) { max = fmaxf(max, x[k]); }
    max = d_span_reduce<d_max_op>(max, span);
    UNROLL for (int k = 0; k < LOSS_EACH; ++k) { sum += i + k * span < n ? d_exp(x[k] - max) : 0.0f; }
    const d_log_sum norm = { max, logf(d_span_reduce<d_sum_op>(sum, span)) };
    UNROLL for (int k = 0; k < LOSS_EACH; ++k) { loss += d_loss_term(b[k], x[k], norm); } // behind the end b is 0
    d_loss_end(p, loss);
}

static gcuda_status loss_small(const gcuda_cross_entropy_args & p, gcuda_stream stream) {
    int span = 1024;
    while (span * n_rows(p.logits) > 1024) { span /= 2; }
    return launch(k_cross_entropy_loss_small, 1, 1024, stream, p, span);
}

static int64_t n_losses(const gcuda_array & x) { return n_rows(x) < 1 ? 1 : n_rows(x) < N_PARTIALS ? n_rows(x) : N_PARTIALS; }

static bool loss_is_wide(const gcuda_cross_entropy_args & p) { // without elements ln 0 would meet labels that sum to 0
    return p.logits.ne[0] > 0 && p.logits.type == p.labels.type && is_float(p.logits.type) && is_wide(p.logits) && is_wide(p.labels);
}

size_t gcuda_cross_entropy_loss_scratch_bytes(const gcuda_cross_entropy_args * args) {
    return n_losses(args->logits) > 1 && !is_small_loss(*args) ? (size_t) n_losses(args->logits) * 8 : 0;
}

gcuda_status gcuda_launch_cross_entropy_loss(const gcuda_cross_entropy_args * args, gcuda_stream stream) {
    const int64_t n = n_losses(args->logits);
    if (is_small_loss(*args)) { return loss_small(*args, stream); }
    const gcuda_status st = loss_is_wide(*args)
                                ? with_float(args->logits.type, [&](auto v) {
                                      const int n_threads = args->logits.ne[0] <= 1024 ? 128 : 512;
                                      return launch(k_cross_entropy_loss_wide<decltype(v)>, n, n_threads, stream, *args);
                                  })
                                : launch(k_cross_entropy_loss, n, args->logits.ne[0] <= 1024 ? 256 : 1024, stream, *args);
    return st == GCUDA_STATUS_SUCCESS && n > 1 ? launch(k_loss_partials, 1, 256, stream, *args, n) : st;
}

// >>op:cross_entropy_loss_back ------------------------------------------------------------------------
static __global__ void k_cross_entropy_loss_back(const gcuda_cross_entropy_args p) {
    const float scale = d_load(p.grad.type, (const char *) p.grad.data) / (float) d_rows(p.logits);
    FOR_ROWS(r, d_rows(p.logits)) {
        const char * x = d_row(p.logits, r), * b = d_row(p.labels, r);
        char * y = d_row(p.y, r);
        const d_log_sum norm = d_log_sum_exp(p.logits, x);
        FOR_ROW_ELEMENTS(i, p.logits.ne[0]) {
            const float soft = expf(d_log_soft(d_load(p.logits.type, x + i * p.logits.nb[0]), norm));
            d_store(p.y.type, y + i * p.y.nb[0], (soft - d_load(p.labels.type, b + i * p.labels.nb[0])) * scale);
        }
    }
}

template <typename T> static __global__ void __launch_bounds__(1024) k_cross_entropy_loss_back_wide(const gcuda_cross_entropy_args p) {
    const int N = d_wide<T>::N;
    const float scale = d_load(p.grad.type, (const char *) p.grad.data) / (float) d_rows(p.logits);
    FOR_ROWS(r, d_rows(p.logits)) {
        const int64_t n = p.logits.ne[0], step = (int64_t) blockDim.x * N;
        const T * x = (const T *) d_row(p.logits, r), * b = (const T *) d_row(p.labels, r);
        T * y = (T *) d_row(p.y, r);
        d_no_labels none;
        const d_log_sum norm = d_log_sum_exp_wide(x, n, none);
        for (int64_t turn = (n - 1) / (4 * step); turn >= 0; --turn) { // what was read last is in the cache
            const int64_t i = 4 * turn * step + threadIdx.x * (int64_t) N;
            uint4 raw_x[4], raw_b[4];
            UNROLL for (int k = 0; k < 4; ++k) {
                raw_x[k] = d_load_last(x + i + k * step, n - i - k * step);
                raw_b[k] = d_load_last(b + i + k * step, n - i - k * step);
            }
            UNROLL for (int k = 0; k < 4; ++k) {
                float u[N], v[N];
                d_unpack<T>(raw_x[k], u);
                d_unpack<T>(raw_b[k], v);
                UNROLL for (int j = 0; j < N; ++j) { u[j] = (d_exp(d_log_soft(u[j], norm)) - v[j]) * scale; }
                d_store_last(y + i + k * step, n - i - k * step, u);
            }
        }
    }
}

gcuda_status gcuda_launch_cross_entropy_loss_back(const gcuda_cross_entropy_args * args, gcuda_stream stream) {
    const int64_t n = args->logits.ne[0];
    if (loss_is_wide(*args) && args->y.type == args->logits.type && is_wide(args->y)) {
        // Rows are read twice: no more of them at once than the cache keeps.
        const int64_t rows = n_rows(args->logits), n_sm = n_multiprocessors(), cache = enough(device_attribute(cudaDevAttrL2CacheSize));
        const bool is_long = 4 * n_sm * n * (int64_t) gcuda_type_size(args->y.type) > cache / 3;
        return with_float(args->y.type, [&](auto v) {
            const int n_threads = n <= 1024 ? 128 : is_long ? 1024 : 512;
            return launch(k_cross_entropy_loss_back_wide<decltype(v)>, is_long && rows > n_sm ? n_sm : rows, n_threads, stream, *args);
        });
    }
    return launch(k_cross_entropy_loss_back, n_rows(args->logits), 256, stream, *args);
}
#endif // part 3

#if GCUDAI_PART(9)
// =====================================================================================================
// >>k-rows   rows put together from rows: repeat, concat, pad, roll, masks, generators
// =====================================================================================================

// Every element of y from the place that m names, or m.value where it names none: m.row(i) is what elements of the row have
// in common, m.at(row, i0) the place of one. Types are sizes here: 1, 2, 4, 8 bytes, or 16 where whole rows move.
//   floor   y written, what it is made of read once
template <typename T> struct d_placed { static const int PARTS = sizeof(T) < 8 ? 8 : 4; };

template <typename T, typename MAP>
static __global__ void __launch_bounds__(TILE_BLOCK) k_place(const gcuda_array y, const MAP m, const tiles t) {
    const int PARTS = d_placed<T>::PARTS;
    T other;
    memcpy(&other, &m.value, sizeof(T));
    FOR_TILES(tile, t) {
        const d_index i = d_tile_at(t, y.ne, tile, 1, PARTS);
        const auto row = m.row(i);
        char * to = d_at(y, i);
        const int64_t n = y.ne[0] - i.i0, step = d_tile_step(t, 1), y_step = step * (int64_t) y.nb[0];
        T v[PARTS];
        UNROLL for (int k = 0; k < PARTS; ++k) {
            const T * from = k * step < n ? (const T *) m.at(row, i.i0 + k * step) : nullptr;
            v[k] = other;
            if (from != nullptr) { v[k] = *from; }
        }
        UNROLL for (int k = 0; k < PARTS; ++k) {
            if (k * step < n) { *(T *) (to + k * y_step) = v[k]; }
        }
    }
}

// Elements of any size, blocks of a quantized type, byte by byte.
template <typename MAP> static __global__ void k_place_blocks(const gcuda_array y, const MAP m, int size, const tiles t) {
    FOR_TILES(tile, t) {
        d_index i = d_tile_at(t, y.ne, tile, 1, 1);
        const char * from = i.i0 < y.ne[0] ? m.at(m.row(i), i.i0) : nullptr;
        for (int k = 0; k < size && from != nullptr; ++k) { d_at(y, i)[k] = from[k]; }
    }
}

// Sixteen bytes from anywhere, by the two aligned words that they lie in.
struct d_straddled {
    uint4 low, high;
};
static inline __device__ d_straddled d_load_straddled(const char * from) {
    const uint4 * aligned = (const uint4 *) (from - (uintptr_t) from % 16);
    return { aligned[0], aligned[1] };
}
static inline __device__ uint4 d_straddled_at(const d_straddled & v, uintptr_t from) {
    const bool by_two = (from & 8) != 0, by_one = (from & 4) != 0;
    const uint32_t a0 = by_two ? v.low.z : v.low.x, a1 = by_two ? v.low.w : v.low.y, a2 = by_two ? v.high.x : v.low.z;
    const uint32_t a3 = by_two ? v.high.y : v.low.w, a4 = by_two ? v.high.z : v.high.x, a5 = by_two ? v.high.w : v.high.y;
    const uint32_t b0 = by_one ? a1 : a0, b1 = by_one ? a2 : a1, b2 = by_one ? a3 : a2, b3 = by_one ? a4 : a3, b4 = by_one ? a5 : a4;
    const uint32_t order = 0x3210u + 0x1111u * (uint32_t) (from & 3); // bytes of two words
    return make_uint4(__byte_perm(b0, b1, order), __byte_perm(b1, b2, order), __byte_perm(b2, b3, order), __byte_perm(b3, b4, order));
}

// An element of 1, 2, 4 or 8 bytes.
static inline __device__ uint2 d_bits_at(const char * from, int size) {
    if (size == 8) { return *(const uint2 *) from; }
    return make_uint2(size == 4 ? *(const uint32_t *) from : size == 2 ? *(const uint16_t *) from : *(const uint8_t *) from, 0);
}
static inline __device__ void d_put_bits(char * to, uint2 bits, int size) {
    switch (size) {
        case 1: *(uint8_t *) to = (uint8_t) bits.x; break;
        case 2: *(uint16_t *) to = (uint16_t) bits.x; break;
        case 4: *(uint32_t *) to = bits.x; break;
        default: *(uint2 *) to = bits; break;
    }
}

// Where elements [at, at + count) of a row of y come from if they and n on both sides are one stretch of memory, or NULL.
template <typename MAP, typename ROW>
static inline __device__ const char * d_stretch_of(const MAP & m, const ROW & row, int64_t at, int count, int n, int size, int64_t end) {
    if (at < n || at + count + n > end) { return nullptr; }
    const char * before = (const char *) m.at(row, at - n), * behind = (const char *) m.at(row, at + count + n - 1);
    return before != nullptr && behind - before == (int64_t) (count + 2 * n - 1) * size ? before + 16 : nullptr;
}

// Long rows of adjacent elements: sixteen bytes of y at a time, from wherever they lie. Where what they are made of and as
// much on both sides is one stretch, words around it may be read; elsewhere elements go one by one.
#define PLACE_PARTS 4
template <typename MAP>
static __global__ void __launch_bounds__(TILE_BLOCK) k_place_wide(const gcuda_array y, const MAP m, int size, const tiles t) {
    const int n = 16 / size;
    const uint2 other = make_uint2(m.value.x, m.value.y);
    FOR_TILES(tile, t) {
        const d_index i = d_tile_at(t, y.ne, tile, n, PLACE_PARTS);
        const auto row = m.row(i);
        char * to = d_at(y, 0, i.i1, i.i2, i.i3);
        const int64_t first = i.i0 - (int64_t) ((uintptr_t) to % 16) / size, step = d_tile_step(t, n);
        const int64_t tile0 = first - (int64_t) (threadIdx.x % 32) * n; // of the warp, whose part of the row may be one stretch
        const char * from[PLACE_PARTS], * whole = d_stretch_of(m, row, tile0, 32 * PLACE_PARTS * n, n, size, y.ne[0]);
        d_straddled v[PLACE_PARTS] = {};
        if (whole != nullptr) {
            UNROLL for (int k = 0; k < PLACE_PARTS; ++k) {
                from[k] = whole + (first + k * step - tile0) * size;
                v[k] = d_load_straddled(from[k]);
            }
        } else {
            UNROLL for (int k = 0; k < PLACE_PARTS; ++k) {
                from[k] = d_stretch_of(m, row, first + k * step, n, n, size, y.ne[0]);
                if (from[k] != nullptr) { v[k] = d_load_straddled(from[k]); }
            }
        }
        UNROLL for (int k = 0; k < PLACE_PARTS; ++k) {
            const int64_t at = first + k * step;
            if (from[k] != nullptr) {
                *(uint4 *) (to + at * size) = d_straddled_at(v[k], (uintptr_t) from[k]);
            } else {
                for (int j = 0; j < n; ++j) {
                    const bool is_in = at + j >= 0 && at + j < y.ne[0];
                    const char * one = is_in ? (const char *) m.at(row, at + j) : nullptr;
                    if (is_in) { d_put_bits(to + (at + j) * size, one != nullptr ? d_bits_at(one, size) : other, size); }
                }
            }
        }
    }
}

// Whether elements of a row that y is made of lie side by side.
template <typename MAP> static bool are_adjacent(const MAP & m, size_t size) { return m.x.nb[0] == size; }
struct d_filled;
static bool are_adjacent(const d_filled &, size_t) { return false; } // of none
template <int DIM> struct d_joined;
template <int DIM> static bool are_adjacent(const d_joined<DIM> & m, size_t size) { return m.a.nb[0] == size && m.b.nb[0] == size; }

template <typename MAP> static gcuda_status place_wide(const gcuda_array & y, const MAP & m, int size, gcuda_stream stream) {
    gcuda_array like = y;
    like.ne[0] += is_wide(y) ? 0 : 16 / size - 1; // rows begin between multiples of sixteen bytes
    tiles t = tiles_of(like, 16 / size, PLACE_PARTS);
    const int64_t per_warp = 32 * PLACE_PARTS * (16 / size);
    t.shift = 5; // a warp has a tile
    t.per_row = (like.ne[0] + per_warp - 1) / per_warp;
    t.n = t.per_row * t.n_rows;
    return launch_tiles(k_place_wide<MAP>, t, stream, y, m, size);
}

template <typename T, typename MAP> static gcuda_status place_as(const gcuda_array & y, const MAP & m, gcuda_stream stream) {
    return launch_tiles(k_place<T, MAP>, tiles_of(y, 1, d_placed<T>::PARTS), stream, y, m);
}

template <typename MAP>
static gcuda_status place(const gcuda_array & y, const MAP & m, size_t size, gcuda_stream stream) {
    const bool is_power = size == 1 || size == 2 || size == 4 || size == 8;
    if (is_power && are_adjacent(m, size) && y.nb[0] == size && y.ne[0] * (int64_t) size >= enough(1024)) {
        return place_wide(y, m, (int) size, stream);
    }
    switch (size) {
        case 1: return place_as<uint8_t>(y, m, stream);
        case 2: return place_as<uint16_t>(y, m, stream);
        case 4: return place_as<uint32_t>(y, m, stream);
        case 8: return place_as<uint2>(y, m, stream);
        case 16: return place_as<uint4>(y, m, stream);
        default: return launch_tiles(k_place_blocks<MAP>, tiles_of(y, 1, 1), stream, y, m, (int) size);
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
    inline __device__ const char * row(const d_index & i) const {
        return d_at(x, 0, wrap(i.i1 - lp[1], x.ne[1]), wrap(i.i2 - lp[2], x.ne[2]), wrap(i.i3 - lp[3], x.ne[3]));
    }
    inline __device__ const char * at(const char * row, int64_t i0) const { return row + wrap(i0 - lp[0], x.ne[0]) * (int64_t) x.nb[0]; }
};

// >>op:pad --------------------------------------------------------------------------------------------
struct d_padded {
    gcuda_array x;
    int64_t lp[4];
    uint4 value;

    inline __device__ const char * row(const d_index & i) const { // or NULL
        const int64_t i1 = i.i1 - lp[1], i2 = i.i2 - lp[2], i3 = i.i3 - lp[3];
        const bool is_in = i1 >= 0 && i1 < x.ne[1] && i2 >= 0 && i2 < x.ne[2] && i3 >= 0 && i3 < x.ne[3];
        return is_in ? d_at(x, 0, i1, i2, i3) : nullptr;
    }
    inline __device__ const char * at(const char * row, int64_t i0) const {
        return row != nullptr && i0 >= lp[0] && i0 - lp[0] < x.ne[0] ? row + (i0 - lp[0]) * (int64_t) x.nb[0] : nullptr;
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

// Copies of a tensor within a larger one, in the order of their places.
struct d_copies {
    int64_t n[4], step[4], total; // of each dimension; bytes from one to the next
};
static d_copies copies_of(const gcuda_array & small, const gcuda_array & large) {
    d_copies c = {};
    c.total = 1;
    for (int d = 0; d < 4; ++d) {
        c.n[d] = small.ne[d] > 0 ? large.ne[d] / small.ne[d] : 0;
        c.step[d] = small.ne[d] * (int64_t) large.nb[d];
        c.total *= c.n[d];
    }
    return c;
}
static inline __device__ int64_t d_copy_at(const d_copies & c, int64_t i) {
    const d_index x = d_unravel(c.n, i);
    return x.i0 * c.step[0] + x.i1 * c.step[1] + x.i2 * c.step[2] + x.i3 * c.step[3];
}

// An element is read once for `each` of its copies. like: [ne0, groups of copies, ne1, ne2 ne3] of x.
template <typename T> static __global__ void __launch_bounds__(TILE_BLOCK) k_repeat(
    const gcuda_array x, const gcuda_array y, const gcuda_array like, const d_copies c, int64_t each, const tiles t) {
    const int PARTS = d_placed<T>::PARTS;
    FOR_TILES(tile, t) {
        const d_index i = d_tile_at(t, like.ne, tile, 1, PARTS);
        const int64_t x3 = i.i3 / x.ne[2], x2 = i.i3 - x3 * x.ne[2], n = x.ne[0] - i.i0, step = d_tile_step(t, 1);
        const char * from = d_at(x, i.i0, i.i2, x2, x3);
        char * to = d_at(y, i.i0, i.i2, x2, x3);
        T v[PARTS] = {};
        UNROLL for (int k = 0; k < PARTS; ++k) {
            if (k * step < n) { v[k] = *(const T *) (from + k * step * (int64_t) x.nb[0]); }
        }
        const int64_t end = (i.i1 + 1) * each < c.total ? (i.i1 + 1) * each : c.total;
        for (int64_t m = i.i1 * each; m < end; ++m) {
            char * copy = to + d_copy_at(c, m);
            UNROLL for (int k = 0; k < PARTS; ++k) {
                if (k * step < n) { *(T *) (copy + k * step * (int64_t) y.nb[0]) = v[k]; }
            }
        }
    }
}

template <typename T> static gcuda_status repeat_as(const gcuda_array & x, const gcuda_array & y, gcuda_stream stream) {
    const d_copies c = copies_of(x, y);
    const int64_t each = n_elements(y) >= enough((int64_t) 1 << 20) ? 8 : 1; // small ones want threads
    gcuda_array like = x;
    like.ne[1] = (c.total + each - 1) / each;
    like.ne[2] = x.ne[1];
    like.ne[3] = x.ne[2] * x.ne[3];
    return launch_tiles(k_repeat<T>, tiles_of(like, 1, d_placed<T>::PARTS), stream, x, y, like, c, each);
}

gcuda_status gcuda_launch_repeat(const gcuda_pad_args * args, gcuda_stream stream) {
    gcuda_array x = args->x, y = args->y;
    if (can_widen(x) && can_widen(y)) {
        widen(x);
        widen(y);
        return repeat_as<uint4>(x, y, stream);
    }
    switch (gcuda_type_size(y.type)) {
        case 1: return repeat_as<uint8_t>(x, y, stream);
        case 2: return repeat_as<uint16_t>(x, y, stream);
        case 4: return repeat_as<uint32_t>(x, y, stream);
        case 8: return repeat_as<uint2>(x, y, stream);
        default: return pad<d_wrapped>(*args, stream);
    }
}
gcuda_status gcuda_launch_roll(const gcuda_pad_args * args, gcuda_stream stream) {
    return pad<d_wrapped>(*args, stream);
}

// >>op:pad_reflect_1d ---------------------------------------------------------------------------------
struct d_reflected {
    gcuda_array x;
    int64_t p0, filler; // else padding, whose leftovers the simulated device may take for an address
    uint4 value;

    inline __device__ const char * row(const d_index & i) const { return d_at(x, 0, i.i1, i.i2, i.i3); }
    inline __device__ const char * at(const char * row, int64_t i0) const {
        int64_t k = i0 - p0;
        k = k < 0 ? -k : k;
        k = k >= x.ne[0] ? 2 * x.ne[0] - 2 - k : k;
        return row + k * (int64_t) x.nb[0];
    }
};

gcuda_status gcuda_launch_pad_reflect_1d(const gcuda_pad_reflect_1d_args * args, gcuda_stream stream) {
    d_reflected m = {};
    m.x = args->x;
    m.p0 = args->p0;
    return place(args->y, m, gcuda_type_size(args->y.type), stream);
}

// >>op:concat -----------------------------------------------------------------------------------------
struct d_joined_row {
    const char * a, * b; // b: of DIM 0
    int64_t step;        // of a
};

template <int DIM> struct d_joined {
    gcuda_array a, b;
    uint4 value;

    inline __device__ d_joined_row row(d_index i) const {
        int64_t & k = DIM == 1 ? i.i1 : DIM == 2 ? i.i2 : i.i3;
        i.i0 = 0;
        if (DIM == 0) { return { d_at(a, i), d_at(b, i), (int64_t) a.nb[0] }; }
        if (k < a.ne[DIM]) { return { d_at(a, i), nullptr, (int64_t) a.nb[0] }; }
        k -= a.ne[DIM];
        return { d_at(b, i), nullptr, (int64_t) b.nb[0] };
    }
    inline __device__ const char * at(const d_joined_row & row, int64_t i0) const {
        return DIM != 0 || i0 < a.ne[0] ? row.a + i0 * row.step : row.b + (i0 - a.ne[0]) * (int64_t) b.nb[0];
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

    inline __device__ const char * row(const d_index & i) const { return d_at(x, 0, i.i1, i.i2, i.i3); }
    inline __device__ const char * at(const char * row, int64_t i0) const { return row + i0 * (int64_t) x.nb[0]; }
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

// Elements [first, end) of a packed array.
static gcuda_array stretch_of(const gcuda_array & a, int64_t first, int64_t end) {
    gcuda_array s = as_rows(a, n_elements(a));
    s.data = (char *) a.data + first * (int64_t) s.nb[0];
    s.ne[0] = end - first;
    return s;
}

static bool is_stretch(const gcuda_set_args & p) { return is_packed(p.a) && is_packed(p.y) && is_packed(p.region); }

// What the region leaves of a, unless it is in place already; all of a where the region is no stretch of y.
static gcuda_status set_around(const gcuda_set_args & p, gcuda_stream stream) {
    if (p.a.data == p.y.data) { return GCUDA_STATUS_SUCCESS; }
    if (!is_stretch(p)) { return move(p.a, p.y, stream); }
    const int64_t n = n_elements(p.y), first = ((char *) p.region.data - (char *) p.y.data) / (int64_t) gcuda_type_size(p.y.type);
    const int64_t end = first + n_elements(p.region);
    const gcuda_status st = move(stretch_of(p.a, 0, first), stretch_of(p.y, 0, first), stream);
    return st == GCUDA_STATUS_SUCCESS ? move(stretch_of(p.a, end, n), stretch_of(p.y, end, n), stream) : st;
}

// So little that a block writes it all: a, then the region, in one launch.
#define SET_SMALL 8192 // elements
static bool is_small_set(const gcuda_set_args & p) {
    return p.a.data != p.y.data && n_elements(p.y) <= SET_SMALL && gcuda_blck_size(p.y.type) == 1 && is_packed(p.a) && is_packed(p.y);
}

static inline __device__ void d_move_element(int size, char * to, const char * from) {
    switch (size) {
        case 1: *to = *from; break;
        case 2: *(uint16_t *) to = *(const uint16_t *) from; break;
        case 4: *(uint32_t *) to = *(const uint32_t *) from; break;
        default: *(uint2 *) to = *(const uint2 *) from; break;
    }
}
static __global__ void __launch_bounds__(1024) k_set_small(const gcuda_set_args p, int size, bool adds) {
    const int n = (int) d_n(p.y), n_b = (int) d_n(p.b), n0 = (int) p.b.ne[0], n1 = (int) p.b.ne[1], n2 = (int) p.b.ne[2];
    NO_UNROLL for (int i = (int) threadIdx.x; i < n; i += 1024) { d_move_element(size, (char *) p.y.data + i * size, (const char *) p.a.data + i * size); }
    __syncthreads();
    NO_UNROLL for (int i = (int) threadIdx.x; i < n_b; i += 1024) {
        const int q0 = i / n0, q1 = q0 / n1;
        const d_index at = { i - q0 * n0, q0 - q1 * n1, q1 % n2, q1 / n2 };
        char * to = d_at(p.region, at), * from = d_at(p.b, at);
        if (adds) {
            d_store(p.y.type, to, d_load(p.y.type, to) + d_load(p.b.type, from));
        } else {
            d_move_element(size, to, from);
        }
    }
}
static gcuda_status set_small(const gcuda_set_args & p, bool adds, gcuda_stream stream) {
    return launch(k_set_small, n_elements(p.y) > 0, 1024, stream, p, (int) gcuda_type_size(p.y.type), adds);
}

gcuda_status gcuda_launch_set(const gcuda_set_args * args, gcuda_stream stream) {
    if (is_small_set(*args)) { return set_small(*args, false, stream); }
    const gcuda_status st = set_around(*args, stream);
    return st == GCUDA_STATUS_SUCCESS ? move(args->b, args->region, stream) : st;
}

// >>op:acc --------------------------------------------------------------------------------------------
gcuda_status gcuda_launch_acc(const gcuda_set_args * args, gcuda_stream stream) {
    gcuda_binary_args sum = { args->region, args->b, args->region, nullptr };
    if (is_small_set(*args)) { return set_small(*args, true, stream); }
    if (is_stretch(*args)) { sum.a.data = (char *) args->a.data + ((char *) args->region.data - (char *) args->y.data); }
    const gcuda_status st = set_around(*args, stream);
    return st == GCUDA_STATUS_SUCCESS ? gcuda_launch_add(&sum, stream) : st;
}

// >>op:diag  >>op:diag_mask_inf  >>op:diag_mask_zero  >>op:tri  >>op:fill -----------------------------
struct d_masked {
    gcuda_array x;
    int64_t from, to;
    uint4 value;

    inline __device__ d_index row(const d_index & i) const { return i; }
    inline __device__ const char * at(const d_index & row, int64_t i0) const {
        const int64_t d = i0 - row.i1;
        return d >= from && d < to ? d_at(x, i0, row.i1, row.i2, row.i3) : nullptr;
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

// Sixteen bytes at a time: read where any element is kept.
template <typename T> static __global__ void k_mask_wide(const gcuda_array y, const d_masked m, const tiles t) {
    const int N = 16 / (int) sizeof(T);
    T value;
    memcpy(&value, &m.value, sizeof(T));
    FOR_TILES(tile, t) {
        const d_index i = d_tile_at(t, y.ne, tile, N, 4);
        const int64_t from = m.from + i.i1, to = m.to + i.i1; // kept
        const T * x = (const T *) d_at(m.x, 0, i.i1, i.i2, i.i3);
        uint4 raw[4];
        for (int k = 0; k < 4; ++k) {
            const int64_t at = i.i0 + k * d_tile_step(t, N);
            raw[k] = at < y.ne[0] && at + N > from && at < to ? *(const uint4 *) (x + at) : m.value;
        }
        for (int k = 0; k < 4; ++k) {
            const int64_t at = i.i0 + k * d_tile_step(t, N);
            T v[N];
            memcpy(v, &raw[k], 16);
            for (int j = 0; j < N; ++j) { v[j] = at + j >= from && at + j < to ? v[j] : value; }
            memcpy(&raw[k], v, 16);
            if (at < y.ne[0]) { *(uint4 *) ((T *) d_at(y, 0, i.i1, i.i2, i.i3) + at) = raw[k]; }
        }
    }
}

static gcuda_status mask(const gcuda_mask_args & p, gcuda_stream stream) {
    d_masked m = {};
    m.x = p.x;
    m.from = p.from;
    m.to = p.to;
    m.value = value_of(p.y.type, p.value);
    const size_t size = gcuda_type_size(p.y.type);
    if (can_widen(m.x) && can_widen(p.y) && (size == 2 || size == 4)) {
        const tiles t = tiles_of(p.y, 16 / (int) size, 4);
        return size == 2 ? launch_tiles(k_mask_wide<uint16_t>, t, stream, p.y, m)
                         : launch_tiles(k_mask_wide<uint32_t>, t, stream, p.y, m);
    }
    return place(p.y, m, size, stream);
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

    inline __device__ const char * row(const d_index &) const { return nullptr; }
    inline __device__ const char * at(const char *, int64_t) const { return nullptr; }
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

// The next copy's place is a few additions away.
struct d_copy_walk {
    int64_t i0, i1, i2, at; // copy in dimensions 0 to 2; bytes

    inline __device__ void next(const d_copies & c) {
        at += c.step[0];
        if (++i0 < c.n[0]) { return; }
        at += c.step[1] - i0 * c.step[0];
        i0 = 0;
        if (++i1 < c.n[1]) { return; }
        at += c.step[2] - i1 * c.step[1];
        i1 = 0;
        if (++i2 < c.n[2]) { return; }
        at += c.step[3] - i2 * c.step[2];
        i2 = 0;
    }
};

// Many results: a thread has a vector of them.
template <typename T>
static __global__ void __launch_bounds__(256) k_repeat_back_rows(
    const gcuda_array x, const gcuda_array y, const d_copies c, const tiles t) {
    const int N = d_wide<T>::N, AHEAD = 8;
    FOR_TILES(tile, t) {
        const d_index i = d_tile_at(t, y.ne, tile, N, 1);
        const char * from = d_at(x, i);
        d_copy_walk walk = { 0, 0, 0, 0 };
        double sum[N] = {};
        for (int64_t m = 0; m < c.total && i.i0 < y.ne[0]; m += AHEAD) {
            uint4 raw[AHEAD];
            UNROLL for (int k = 0; k < AHEAD; ++k) {
                raw[k] = m + k < c.total ? *(const uint4 *) (from + walk.at) : make_uint4(0, 0, 0, 0);
                walk.next(c);
            }
            UNROLL for (int k = 0; k < AHEAD; ++k) {
                float v[N];
                d_unpack<T>(raw[k], v);
                UNROLL for (int j = 0; j < N; ++j) { sum[j] += (double) v[j]; }
            }
        }
        float v[N];
        UNROLL for (int j = 0; j < N; ++j) { v[j] = (float) sum[j]; }
        if (i.i0 < y.ne[0]) { d_store_wide((T *) d_at(y, i), y.ne[0] - i.i0, v); }
    }
}
#define BACK_MANY ((int64_t) 128 * 1024) // results from which on threads need not share them

// Few: the same for rows of y that sixteen bytes can be taken from: a block has 32 neighbouring vectors of a row, and eight of its
// threads share the copies of one.
#define BACK_SLICES 8
template <typename T>
static __global__ void __launch_bounds__(256) k_repeat_back_wide(const gcuda_array x, const gcuda_array y, const d_copies c) {
    const int N = d_wide<T>::N, AHEAD = 4;
    __shared__ double part[BACK_SLICES][32 * N + 1];
    const int lane = (int) threadIdx.x % 32, slice = (int) threadIdx.x / 32;
    const int64_t per_row = (y.ne[0] + 32 * N - 1) / (32 * N);
    FOR_ROWS(b, per_row * d_rows(y)) {
        const int64_t r = b / per_row, i0 = ((b - r * per_row) * 32 + lane) * N;
        const d_index i = { i0, r % y.ne[1], r / y.ne[1] % y.ne[2], r / y.ne[1] / y.ne[2] };
        const char * from = d_at(x, i);
        double sum[N] = {};
        for (int64_t m = slice; m < c.total && i0 < y.ne[0]; m += AHEAD * BACK_SLICES) {
            uint4 raw[AHEAD];
            UNROLL for (int k = 0; k < AHEAD; ++k) {
                const int64_t at = m + k * BACK_SLICES;
                raw[k] = at < c.total ? *(const uint4 *) (from + d_copy_at(c, at)) : make_uint4(0, 0, 0, 0);
            }
            UNROLL for (int k = 0; k < AHEAD; ++k) {
                float v[N];
                d_unpack<T>(raw[k], v);
                UNROLL for (int j = 0; j < N; ++j) { sum[j] += (double) v[j]; }
            }
        }
        UNROLL for (int j = 0; j < N; ++j) { part[slice][j * 32 + lane] = sum[j]; }
        __syncthreads();
        for (int at = (int) threadIdx.x; at < 32 * N; at += 256) { // at: j, then lane
            double all = 0.0;
            UNROLL for (int k = 0; k < BACK_SLICES; ++k) { all += part[k][at]; }
            const int64_t to = ((b - r * per_row) * 32 + at % 32) * N + at / 32;
            if (to < y.ne[0]) { d_put((T *) d_at(y, 0, i.i1, i.i2, i.i3) + to, (float) all); }
        }
        __syncthreads();
    }
}

gcuda_status gcuda_launch_repeat_back(const gcuda_cpy_args * args, gcuda_stream stream) {
    const gcuda_array & x = args->x, & y = args->y;
    if (x.type == y.type && is_float(y.type) && can_widen(y) && is_wide(x) && n_elements(y) > 0) {
        return with_float(y.type, [&](auto v) {
            typedef decltype(v) T;
            if (n_elements(y) >= enough(BACK_MANY * d_wide<T>::N)) {
                return launch_tiles(k_repeat_back_rows<T>, tiles_of(y, d_wide<T>::N, 1), stream, x, y, copies_of(y, x));
            }
            const int64_t n = (y.ne[0] + 32 * d_wide<T>::N - 1) / (32 * d_wide<T>::N) * n_rows(y);
            return launch(k_repeat_back_wide<T>, n, 256, stream, x, y, copies_of(y, x));
        });
    }
    return launch_elements(k_repeat_back, args->y, stream, *args);
}

// >>op:arange -----------------------------------------------------------------------------------------
// The product is rounded before the sum, as everywhere.
static inline __device__ float d_arange(const gcuda_arange_args & p, float i) { return __fadd_rn(p.start, __fmul_rn(p.step, i)); }

static __global__ void k_arange(const gcuda_arange_args p) {
    FOR_ELEMENTS(i, d_n(p.y)) { *(float *) ((char *) p.y.data + i * (int64_t) p.y.nb[0]) = d_arange(p, (float) i); }
}

// A thread makes four times four neighbours, so that what it has to work out first is little beside them. IS_SHORT: 32 bits
// count them, which become floats in fewer steps.
//   floor   y written: 4 * n bytes
#define ARANGE_TILE 4096
template <bool IS_SHORT> static __global__ void __launch_bounds__(256) k_arange_wide(const gcuda_arange_args p) {
    const int64_t n = d_n(p.y);
    FOR_ROWS(tile, (n + ARANGE_TILE - 1) / ARANGE_TILE) {
        UNROLL for (int j = 0; j < ARANGE_TILE; j += 1024) {
            const int64_t i = tile * ARANGE_TILE + j + 4 * (int) threadIdx.x;
            float v[4];
            UNROLL for (int k = 0; k < 4; ++k) { v[k] = d_arange(p, IS_SHORT ? (float) ((int) i + k) : (float) (i + k)); }
            d_store_wide((float *) p.y.data + i, n - i, v);
        }
    }
}

gcuda_status gcuda_launch_arange(const gcuda_arange_args * args, gcuda_stream stream) {
    const int64_t n = n_elements(args->y);
    if (!is_wide(args->y)) { return launch_elements(k_arange, args->y, stream, *args); }
    return launch(n < INT32_MAX - ARANGE_TILE ? k_arange_wide<true> : k_arange_wide<false>, (n + ARANGE_TILE - 1) / ARANGE_TILE, 256, stream, *args);
}

// >>op:timestep_embedding -----------------------------------------------------------------------------
// Sine and cosine of an angle in turns, at most half a one: of the eighth of a turn around the nearest quarter, by Taylor's
// series, whose next terms are below the last digit there.
static inline __device__ void d_sin_cos_turns(float turns, float * sine, float * cosine) {
    const float quarter = rintf(4.0f * turns), x = (turns - 0.25f * quarter) * 6.28318530717958647692f, z = x * x;
    const float s = x + x * z * (-1.0f / 6 + z * (1.0f / 120 + z * (-1.0f / 5040 + z * (1.0f / 362880))));
    const float c = 1.0f + z * (-0.5f + z * (1.0f / 24 + z * (-1.0f / 720 + z * (1.0f / 40320))));
    const int q = (int) quarter & 3;
    *sine = q == 0 ? s : q == 1 ? c : q == 2 ? -s : -c;
    *cosine = q == 0 ? c : q == 1 ? -s : q == 2 ? -c : s;
}

// A thread has a frequency and `each` timesteps. There may be many turns: the frequency is a sum of two floats and its
// product with the timestep another, so that whole turns leave without taking digits along.
static __global__ void __launch_bounds__(256) k_timestep_embedding(const gcuda_timestep_embedding_args p, double log_period, int64_t each) {
    const int64_t n_cos = p.y.ne[0] / 2, n_j = n_cos > 0 ? n_cos : 1, n_steps = p.y.ne[1];
    FOR_ELEMENTS(i, (n_steps + each - 1) / each * n_j) {
        const int64_t first = i / n_j * each, j = i - i / n_j * n_j;
        const int64_t end = first + each < n_steps ? first + each : n_steps;
        const double freq = exp(-log_period * (double) j / (double) n_j) * 0.15915494309189533577; // 1 / (2 pi)
        const float high = (float) freq, low = (float) (freq - (double) high);
        const char * x = (const char *) p.x.data + first * (int64_t) p.x.nb[0];
        char * y = d_at(p.y, j, first, 0, 0);
        for (int64_t r = first; r < end; ++r, x += p.x.nb[0], y += p.y.nb[1]) {
            const float step = *(const float *) x, turns = step * high;
            const float rest = fmaf(step, low, fmaf(step, high, -turns)) + (turns - rintf(turns));
            float sine, cosine;
            d_sin_cos_turns(rest - rintf(rest), &sine, &cosine);
            if (n_cos > 0) {
                *(float *) y = cosine;
                ((float *) y)[n_cos] = sine;
            }
            if (j == 0 && 2 * n_cos < p.y.ne[0]) { ((float *) y)[2 * n_cos] = 0.0f; }
        }
    }
}

gcuda_status gcuda_launch_timestep_embedding(const gcuda_timestep_embedding_args * args, gcuda_stream stream) {
    const int64_t n_j = args->y.ne[0] > 1 ? args->y.ne[0] / 2 : 1, n_steps = args->y.ne[1];
    const int64_t each = n_steps * n_j >= enough((int64_t) 1 << 24) ? 64 : 16, n = (n_steps + each - 1) / each * n_j;
    return launch(k_timestep_embedding, (n + 255) / 256, 256, stream, *args, log((double) args->max_period), each);
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

#define ADD_ID_PARTS 3
template <typename T> static __global__ void k_add_id_wide(const gcuda_add_id_args p, const tiles t) {
    const int N = d_wide<T>::N;
    FOR_TILES(tile, t) {
        const d_index i = d_tile_at(t, p.y.ne, tile, N, ADD_ID_PARTS);
        const int32_t id = *(const int32_t *) d_at(p.ids, i.i1, i.i2, 0, 0);
        const bool is_ok = id >= 0 && id < p.b.ne[1];
        const int64_t n = p.y.ne[0] - i.i0, step = d_tile_step(t, N);
        const T * a = (const T *) d_at(p.a, 0, i.i1, i.i2, i.i3) + i.i0, * b = (const T *) d_at(p.b, 0, is_ok ? id : 0, 0, 0) + i.i0;
        uint4 raw_a[ADD_ID_PARTS], raw_b[ADD_ID_PARTS];
        if (!is_ok && i.i0 == 0 && p.bad_index != nullptr) {
            *p.bad_index = 1;
        }
        UNROLL for (int k = 0; k < ADD_ID_PARTS; ++k) {
            raw_a[k] = d_load_raw(a + k * step, n - k * step);
            raw_b[k] = d_load_raw(b + k * step, is_ok ? n - k * step : 0);
        }
        UNROLL for (int k = 0; k < ADD_ID_PARTS; ++k) {
            float u[N], v[N];
            d_unpack<T>(raw_a[k], u);
            d_unpack<T>(raw_b[k], v);
            for (int j = 0; j < N; ++j) { u[j] += v[j]; }
            d_store_wide((T *) d_at(p.y, 0, i.i1, i.i2, i.i3) + i.i0 + k * step, n - k * step, u);
        }
    }
}

gcuda_status gcuda_launch_add_id(const gcuda_add_id_args * args, gcuda_stream stream) {
    const gcuda_add_id_args & p = *args;
    if (p.a.type != p.b.type || p.a.type != p.y.type || p.b.ne[1] == 0 || !is_wide(p.a) || !is_wide(p.b) || !is_wide(p.y)) {
        return launch_tiles(k_add_id, tiles_of(p.y, 1, 4), stream, p);
    }
    return with_float(p.a.type, [&](auto v) {
        typedef decltype(v) T;
        return launch_tiles(k_add_id_wide<T>, tiles_of(p.y, d_wide<T>::N, ADD_ID_PARTS), stream, p);
    });
}
#endif // part 9

#if GCUDAI_PART(10)
// =====================================================================================================
// >>k-norm   norms, soft_max, running sums and rotations along rows
// =====================================================================================================

// ---- rows held in registers: each element is read once ----
// THREADS threads have a row: some lanes of a warp, a warp, or a whole block. A thread holds PARTS times sixteen bytes, or as
// many elements where rows are not made of aligned sixteens.
template <typename T, bool WIDE> struct d_word {
    typedef T type;
};
template <typename T> struct d_word<T, true> {
    typedef uint4 type;
};

template <typename T, int THREADS, int N_PARTS, bool WIDE> struct d_held {
    static const int N = WIDE ? d_wide<T>::N : 1, PARTS = N_PARTS;
    typedef typename d_word<T, WIDE>::type word;
    float v[PARTS][N];

    static inline __device__ int place(int k) { return (k * THREADS + (int) (threadIdx.x % THREADS)) * N; }
    // As they lie, so that other loads are under way before the first is used; 0 behind the end.
    template <bool LAST = false> static inline __device__ void fetch(const char * row, int n, word * w) {
        UNROLL for (int k = 0; k < PARTS; ++k) {
            const word * x = (const word *) ((const T *) row + place(k));
            w[k] = place(k) >= n ? word() : LAST ? __ldcs(x) : *x;
        }
    }
    inline __device__ void unpack(const word * w) {
        UNROLL for (int k = 0; k < PARTS; ++k) {
            T h[N];
            memcpy(h, &w[k], sizeof(h));
            UNROLL for (int j = 0; j < N; ++j) { v[k][j] = d_f32(h[j]); }
        }
    }
    inline __device__ void load(const char * row, int n) {
        word w[PARTS];
        fetch(row, n, w);
        unpack(w);
    }
    template <bool LAST = false> inline __device__ void store(char * row, int n) const {
        UNROLL for (int k = 0; k < PARTS; ++k) {
            if (place(k) < n) {
                T * y = (T *) row + place(k);
                if (WIDE && LAST) {
                    d_store_last(y, N, v[k]);
                } else if (WIDE) {
                    d_store16(y, v[k]);
                } else {
                    d_put(y, v[k][0]);
                }
            }
        }
    }
    // f(element) for all that are held
    template <typename F> inline __device__ void all(F f) {
        UNROLL for (int k = 0; k < PARTS; ++k) {
            UNROLL for (int j = 0; j < N; ++j) { f(v[k][j]); }
        }
    }
    // f(element, its place) for all that are in the row
    template <typename F> inline __device__ void each(int n, F f) {
        UNROLL for (int k = 0; k < PARTS; ++k) {
            if (place(k) < n) {
                UNROLL for (int j = 0; j < N; ++j) { f(v[k][j], place(k) + j); }
            }
        }
    }
    // f(element, that of another row at the same place)
    template <typename F> inline __device__ void each_with(const d_held & other, int n, F f) {
        UNROLL for (int k = 0; k < PARTS; ++k) {
            if (place(k) < n) {
                UNROLL for (int j = 0; j < N; ++j) { f(v[k][j], other.v[k][j]); }
            }
        }
    }
};

template <int THREADS, typename OP> static inline __device__ float d_row_reduce(float v, float neutral) {
    if constexpr (THREADS > 32) {
        return d_block_reduce<OP>(v, neutral);
    } else {
        UNROLL for (int offset = THREADS / 2; offset > 0; offset /= 2) { v = OP::apply(v, __shfl_xor_sync(0xffffffffu, v, offset)); }
        return v;
    }
}
template <int THREADS> static inline __device__ float d_row_sum(float v) { return d_row_reduce<THREADS, d_sum_op>(v, 0.0f); }
template <int THREADS> static inline __device__ float d_row_max(float v) {
    return d_row_reduce<THREADS, d_max_op>(v, -INFINITY);
}

// f(row, its length) for the rows of these threads; lanes without a row have a length of 0, so that warps stay together.
template <int THREADS, typename F> static inline __device__ void d_held_rows(int64_t n_rows, int64_t n, F f) {
    d_take_turn();
    const int at_once = THREADS > 32 ? 1 : 256 / THREADS;
    for (int64_t r0 = blockIdx.x * (int64_t) at_once; r0 < n_rows; r0 += gridDim.x * (int64_t) at_once) {
        const int64_t r = THREADS > 32 ? r0 : r0 + threadIdx.x / THREADS;
        f(r < n_rows ? r : n_rows - 1, r < n_rows ? (int) n : 0);
    }
}

// What a kernel for rows of a length and alignment is compiled for: with_held<T>(n, is_wide, [&](auto h) { typedef
// typename decltype(h)::template row<T> ... })
template <int N_THREADS, int N_PARTS, bool IS_WIDE> struct held {
    static const int THREADS = N_THREADS, BLOCK = N_THREADS <= 32 ? 256 : N_THREADS;
    static const int LEAST = 1024 / BLOCK; // blocks on a multiprocessor: some load while others compute
    static const bool WIDE = IS_WIDE;
    template <typename T> struct row : d_held<T, N_THREADS, N_PARTS, IS_WIDE> {};
};
#define HELD_MOST 16384 // elements of a row
// LANES: that short rows take, at least.
template <typename T, int LANES = 8, typename F> static gcuda_status with_held(int64_t n, bool is_wide_row, F f) {
    const int64_t m = n / d_wide<T>::N;
    if (is_wide_row && n % d_wide<T>::N == 0) {
        return m <= 4 * LANES && LANES < 32 ? f(held<LANES, 4, true>())
               : m <= 128                   ? f(held<32, 4, true>())
                              : m <= 256                   ? f(held<64, 4, true>())
               : m <= 512                   ? f(held<128, 4, true>())
               : m <= 1024                  ? f(held<256, 4, true>())
               : m <= 2048                  ? f(held<512, 4, true>())
                                            : f(held<512, d_wide<T>::N == 4 ? 8 : 4, true>()); // of F32
    }
    return n <= 128    ? f(held<8, 16, false>())
           : n <= 512  ? f(held<32, 16, false>())
           : n <= 2048 ? f(held<128, 16, false>())
           : n <= 8192 ? f(held<512, 16, false>())
                       : f(held<512, 32, false>());
}
static bool can_hold(int64_t n) { return n > 0 && n <= HELD_MOST; }

template <typename... P, typename... A>
static gcuda_status launch_held(void (*kernel)(P...), int threads, int64_t n, gcuda_stream stream, A... args) {
    const int at_once = threads <= 32 ? 256 / threads : 1;
    return launch_in_turn(kernel, (n + at_once - 1) / at_once, dim3((unsigned) (at_once * threads)), stream, args...);
}

// ---- rows too long to hold: parts of them, which leave what they find in scratch for a second pass ----
#define PART_BYTES 16384
#define TURNS_FROM_BYTES ((int64_t) 48 << 20)
#define TURNS_CACHED_BYTES ((int64_t) 24 << 20)
template <typename T, bool WIDE> struct part_of {
    typedef held<PART_BYTES / 16 / (WIDE ? 4 : (int) sizeof(T)), WIDE ? 4 : 16, WIDE> type;
};

// What a pass over n parts of rows leaves in scratch: eight bytes of each part, and behind them, where the second pass goes along with
// the first (k_turns), how many parts it has left out, and which.
struct d_turns {
    int64_t n, first; // the first parts are found by a launch before
    unsigned long long * found;
    unsigned * n_left, * left; // NULL: not in turns
};
static size_t turns_bytes(int64_t n) { return (size_t) n * (sizeof(unsigned long long) + sizeof(unsigned)) + sizeof(unsigned); }

// In turns where the cache holds rows, but not all of them. Parts have n_bytes; at_once blocks of a multiprocessor are under way.
static d_turns turns_of(int64_t n, int64_t per_row, int64_t n_bytes, int at_once, void * scratch) {
    d_turns q = { n, n, (unsigned long long *) scratch, nullptr, nullptr };
#if defined(GCUDAI_SIM)
    (void) at_once;
    const int64_t under_way = -per_row / 2; // blocks run one behind the other there: half of the parts have their turn too soon
#else
    const int64_t under_way = at_once * n_multiprocessors(); // half of the blocks find, and some take longer
#endif
    const int64_t first = per_row + under_way;
    const bool is_much = n * n_bytes > enough(TURNS_FROM_BYTES) && 2 * n >= 3 * first;
    const int64_t half_cache = device_attribute(cudaDevAttrL2CacheSize) / 2;
    const int64_t cached = half_cache < TURNS_CACHED_BYTES ? half_cache : TURNS_CACHED_BYTES;
    if (is_much && n <= (int64_t) 1 << 30 && first * n_bytes <= cached) {
        q.first = first;
        q.n_left = (unsigned *) (q.found + n);
        q.left = q.n_left + 1;
    }
    return q;
}

// What no part leaves, as its NaN are others: not found yet.
#define NOT_FOUND (~0ull)
template <typename F> static inline __device__ void d_leave_found(void * scratch, int64_t b, F found) {
    static_assert(sizeof(F) == sizeof(unsigned long long), "one store, which is seen as a whole");
    unsigned long long bits;
    memcpy(&bits, &found, sizeof(bits));
    ((unsigned long long *) scratch)[b] = bits != NOT_FOUND ? bits : bits ^ 1;
}
template <typename F> static inline __device__ F d_found(const unsigned long long * at, bool * is_missing) {
    const unsigned long long bits = __ldcg(at);
    F found;
    memcpy(&found, &bits, sizeof(bits));
    *is_missing = *is_missing || bits == NOT_FOUND;
    return found;
}

static int64_t n_parts(const gcuda_array & x) {
    const int64_t n = PART_BYTES / (int64_t) gcuda_type_size(x.type);
    return (x.ne[0] + n - 1) / n;
}
static size_t part_bytes(const gcuda_array & x) { return can_hold(x.ne[0]) ? 0 : turns_bytes(n_parts(x) * n_rows(x)); }

// Part b of all: its row, where it begins and how long it is. No memory has 2^32 parts, and 32 bits divide in fewer steps.
struct d_part {
    int64_t row, i0, n_parts;
    int n;
};
template <typename T> static inline __device__ d_part d_part_of(const gcuda_array & x, int64_t b) {
    constexpr int most = PART_BYTES / (int) sizeof(T);
    d_part q;
    q.n_parts = (x.ne[0] + most - 1) / most;
    q.row = (uint32_t) b / (uint32_t) q.n_parts;
    q.i0 = (b - q.row * q.n_parts) * most;
    q.n = (int) (x.ne[0] - q.i0 < most ? x.ne[0] - q.i0 : most);
    return q;
}
static inline __device__ char * d_part_at(const gcuda_array & a, const d_part & q) {
    return d_row(a, q.row) + q.i0 * (int64_t) a.nb[0];
}

// OP::find and OP::finish do a part; finish<true> may find that something is missing, and then says false, on all threads. The other
// waits for the launch before when its elements, which no pass writes before they are finished, are under way.
template <typename OP, bool IS_LAST, typename P>
static __global__ void __launch_bounds__(OP::H::BLOCK, OP::H::LEAST) k_pass(const P p, int64_t n_blocks) {
    if (!IS_LAST) { d_start_next(); }
    FOR_ROWS(turn, n_blocks) {
        if (IS_LAST) {
            (void) OP::template finish<false>(p, n_blocks - 1 - turn); // what was read last is in the cache
        } else {
            OP::find(p, turn);
        }
    }
}

template <typename OP, typename P>
static __global__ void __launch_bounds__(OP::H::BLOCK, OP::H::LEAST) k_before_turns(const P p, const d_turns q) {
    FOR_ROWS(b, q.first) { OP::find(p, b); }
    FOR_ELEMENTS(i, q.n - q.first) { q.found[q.first + i] = NOT_FOUND; }
    if (blockIdx.x == 0 && threadIdx.x == 0) { *q.n_left = 0; }
}

// Rows are finished soon after they were found, while the cache has them: one part is found and one that lies some way behind is
// finished, in turns. No block waits: where something of the row is missing the part is left to the launch behind this one. The
// result does not depend on that.
template <typename OP, typename P>
static __global__ void __launch_bounds__(OP::H::BLOCK, OP::H::LEAST) k_turns(const P p, const d_turns q) {
    const unsigned n_find = (unsigned) (q.n - q.first);
    for (unsigned turn = blockIdx.x; turn < (unsigned) q.n + n_find; turn += gridDim.x) {
        const bool is_both = turn < 2 * n_find;
        const unsigned b = !is_both ? turn - n_find : turn / 2;
        if (is_both && turn % 2 == 0) {
            OP::find(p, (int64_t) (unsigned) q.first + b);
        } else if (!OP::template finish<true>(p, b) && threadIdx.x == 0) {
            q.left[atomicAdd(q.n_left, 1u)] = b;
        }
    }
}

template <typename OP, typename P>
static __global__ void __launch_bounds__(OP::H::BLOCK, OP::H::LEAST) k_behind_turns(const P p, const d_turns q) {
    FOR_ROWS(i, (int64_t) *q.n_left) { (void) OP::template finish<false>(p, (int64_t) q.left[i]); }
}

// Of n parts of n_bytes, per_row of them in a row.
template <typename OP, typename P>
static gcuda_status two_passes(const P & p, int64_t n, int64_t per_row, int64_t n_bytes, void * scratch, gcuda_stream stream) {
    const int threads = OP::H::BLOCK;
    gcuda_status st;
    if constexpr (OP::TAKES_TURNS) {
        const d_turns q = turns_of(n, per_row, n_bytes, OP::H::LEAST, scratch);
        if (q.n_left != nullptr) {
            st = launch(k_before_turns<OP, P>, q.first, threads, stream, p, q);
            st = st == GCUDA_STATUS_SUCCESS ? launch(k_turns<OP, P>, 2 * n - q.first, threads, stream, p, q) : st;
            return st == GCUDA_STATUS_SUCCESS ? launch(k_behind_turns<OP, P>, n < 512 ? n : 512, threads, stream, p, q) : st;
        }
    }
    st = launch(k_pass<OP, false, P>, n, threads, stream, p, n);
    return st == GCUDA_STATUS_SUCCESS ? launch_behind(k_pass<OP, true, P>, n, dim3((unsigned) threads), 0, 0, stream, p, n) : st;
}
template <typename OP, typename P> static gcuda_status two_passes(const P & p, gcuda_stream stream) {
    return two_passes<OP>(p, n_parts(p.x) * n_rows(p.x), n_parts(p.x), PART_BYTES, p.scratch, stream);
}

// >>op:norm  >>op:rms_norm  >>op:l2_norm --------------------------------------------------------------
//   floor   x read, y written: 2 * ne0 * n_rows * sizeof(T) bytes
// x == y is safe: a thread overwrites only what it alone has read. The variance is that of x less its mean.
enum norm_kind { NORM_MEAN, NORM_RMS, NORM_L2 };

template <int KIND> static inline __device__ float d_norm_scale(float squares, int64_t n, float eps) {
    const float length = sqrtf(KIND == NORM_L2 ? squares : squares / (float) n + eps);
    return 1.0f / (KIND == NORM_L2 && length < eps ? eps : length);
}
template <int KIND> static inline __device__ double d_norm_scale(double squares, int64_t n, float eps) {
    const double length = sqrt(KIND == NORM_L2 ? squares : squares / (double) n + (double) eps);
    return 1.0 / (KIND == NORM_L2 && length < (double) eps ? (double) eps : length);
}

// Squares end where elements of F32 do not: above 1.8e19, and below 2e-19 they lose digits. So a sum of squares that is infinite,
// or so small that what squares have lost may count, is found again from the elements times a power of two. 2^-150 is what a square
// loses at most: a 2^50th of the least sum that is taken as it is.
#define SQUARES_LEAST 7.8886090522101181e-31f // 2^-100
template <int KIND> static inline __device__ bool d_norm_is_beyond(float squares, int64_t n, float eps) {
    const float m = KIND == NORM_L2 ? fmaxf(squares, eps * eps) : squares / (float) n + eps;
    return !(m >= SQUARES_LEAST && m <= F32_MOST); // NaN too: the mean of elements whose sum is infinite
}

// The power of two that brings a number into [1, 2), as far as F32 has it; 1 for 0 and what is infinite.
static inline __device__ float d_unit(float largest) {
    if (!(largest > 0.0f && largest <= F32_MOST)) { return 1.0f; }
    const int e = ilogbf(largest);
    return ldexpf(1.0f, e < -126 ? 126 : e > 126 ? -126 : -e);
}
// That of a row with this largest element, or of eps where that counts for more; eps becomes that of the scaled row.
template <int KIND> static inline __device__ float d_norm_unit(float largest, float * eps) {
    const float unit = d_unit(fmaxf(largest, KIND == NORM_L2 ? *eps : sqrtf(*eps)));
    const float scaled = KIND == NORM_L2 ? *eps * unit : *eps * unit * unit;
    *eps = *eps > 0.0f ? fmaxf(scaled, 1.175494351e-38f) : scaled; // without it a row of equal elements gives 0 / 0
    return unit;
}

template <typename ROW> static inline __device__ float d_largest(ROW & x) { // of what a thread holds
    float largest = 0.0f;
    x.all([&](float v) { largest = fmaxf(largest, fabsf(v)); });
    return largest;
}

template <int KIND, int THREADS, typename ROW>
static inline __device__ float d_norm_squares(ROW & x, int n, int64_t n_row, float * mean) {
    float m = 0.0f, sum = 0.0f;
    if (KIND == NORM_MEAN) {
        x.all([&](float v) { m += v; });
        m = d_row_sum<THREADS>(m) / (float) n_row;
    }
    x.each(n, [&](float v, int) { sum += (v - m) * (v - m); });
    *mean = m;
    return d_row_sum<THREADS>(sum);
}

// What (x - mean) is to be multiplied by; x itself is scaled first where squares leave F32. Rows of one warp go together, and those
// that need no scale get 1 and the bits that they had.
template <int KIND, int THREADS, typename ROW>
static inline __device__ float d_norm_find(ROW & x, int n, int64_t n_row, float eps, float * mean) {
    float squares = d_norm_squares<KIND, THREADS>(x, n, n_row, mean);
    const bool is_beyond = d_norm_is_beyond<KIND>(squares, n_row, eps);
    if (THREADS > 32 ? is_beyond : __any_sync(0xffffffffu, is_beyond)) {
        const float largest = d_row_max<THREADS>(d_largest(x)), unit = is_beyond ? d_norm_unit<KIND>(largest, &eps) : 1.0f;
        x.all([&](float & v) { v *= unit; });
        squares = d_norm_squares<KIND, THREADS>(x, n, n_row, mean);
    }
    return d_norm_scale<KIND>(squares, n_row, eps);
}

template <int KIND, typename T, typename H>
static __global__ void __launch_bounds__(H::BLOCK, H::LEAST) k_norm_held(const gcuda_norm_args p) {
    d_held_rows<H::THREADS>(d_rows(p.y), p.x.ne[0], [&](int64_t r, int n) {
        typename H::template row<T> x;
        x.load(d_row(p.x, r), n);
        float mean;
        const float scale = d_norm_find<KIND, H::THREADS>(x, n, p.x.ne[0], p.eps, &mean);
        x.all([&](float & v) { v = (v - mean) * scale; });
        x.store(d_row(p.y, r), n);
    });
}

struct d_two_sums {
    double x, y;
};
static inline __device__ d_two_sums d_block_sums(d_two_sums v) { // as d_block_sum
    __shared__ double part[2][32];
    const int lane = (int) threadIdx.x % 32;
    v = { d_warp_reduce<d_sum_op>(v.x), d_warp_reduce<d_sum_op>(v.y) };
    __syncthreads(); // the last use of part is over
    if (lane == 0) {
        part[0][threadIdx.x / 32] = v.x;
        part[1][threadIdx.x / 32] = v.y;
    }
    __syncthreads();
    const bool has = lane < (int) blockDim.x / 32;
    return { d_warp_reduce<d_sum_op>(has ? part[0][lane] : 0.0), d_warp_reduce<d_sum_op>(has ? part[1][lane] : 0.0) };
}

// Long rows: each part's mean and its sum of squares around it; then every part adds up those of its row, in double. Where squares
// leave F32 it is the root of their mean, with a minus before it.
template <int KIND, typename T, typename HELD> struct d_norm_parts {
    typedef HELD H;
    static const bool TAKES_TURNS = KIND == NORM_MEAN && H::WIDE; // group_norm is one of these

    static inline __device__ void find(const gcuda_norm_args & p, int64_t b) {
        const d_part q = d_part_of<T>(p.x, b);
        typename H::template row<T> x;
        x.load(d_part_at(p.x, q), q.n);
        float mean, sum = d_norm_squares<KIND, H::THREADS>(x, q.n, q.n, &mean);
        if (d_norm_is_beyond<KIND>(sum, q.n, p.eps)) {
            const float unit = d_unit(d_row_max<H::THREADS>(d_largest(x)));
            x.all([&](float & v) { v *= unit; });
            sum = -sqrtf(d_norm_squares<KIND, H::THREADS>(x, q.n, q.n, &mean) / (float) q.n) / unit;
            mean /= unit;
        }
        if (threadIdx.x == 0) { d_leave_found(p.scratch, b, make_float2(mean, sum)); }
    }

    template <bool MAY_MISS> static inline __device__ bool finish(const gcuda_norm_args & p, int64_t b) {
        const d_part q = d_part_of<T>(p.x, b);
        const int64_t most = PART_BYTES / (int) sizeof(T); // elements of a part
        const unsigned long long * found = (const unsigned long long *) p.scratch + q.row * q.n_parts;
        typename H::template row<T> x;
        typename H::template row<T>::word words[x.PARTS];
        x.template fetch<true>(d_part_at(p.x, q), q.n, words);
        if (!MAY_MISS) { d_wait_before(); }
        bool is_missing = false;
        const double first = (double) d_found<float2>(found, &is_missing).x; // sums around it lose no digits
        d_two_sums sum = { 0.0, 0.0 };
        FOR_ROW_ELEMENTS(i, q.n_parts) {
            const float2 part = d_found<float2>(found + i, &is_missing);
            const double n = (double) (i + 1 < q.n_parts ? most : p.x.ne[0] - i * most), d = (double) part.x - first;
            sum.x += n * d;
            sum.y += n * d * d + (part.y < 0.0f ? n * (double) part.y * (double) part.y : (double) part.y);
        }
        if (MAY_MISS && __syncthreads_or(is_missing)) { return false; }
        sum = d_block_sums(sum);
        const double mean = sum.x / (double) p.x.ne[0];
        const double all = sum.y - sum.x * mean;
        const float squares = (float) all;
        float unit = 1.0f, shift = (float) (first + mean), scale = d_norm_scale<KIND>(squares, p.x.ne[0], p.eps);
        if (d_norm_is_beyond<KIND>(squares, p.x.ne[0], p.eps)) {
            const double right = d_norm_scale<KIND>(all, p.x.ne[0], p.eps);
            unit = d_unit(fminf((float) (1.0 / right), F32_MOST)); // x * unit is of the order of 1
            shift = (float) ((first + mean) * (double) unit);
            scale = (float) (right / (double) unit);
        }
        x.unpack(words);
        x.all([&](float & v) { v = fmaf(v, unit, -shift) * scale; });
        x.template store<true>(d_part_at(p.y, q), q.n);
        return true;
    }
};

// Rows are packed and of the type of x, as the arguments' comment says.
template <int KIND> static gcuda_status norm(const gcuda_norm_args & p, gcuda_stream stream) {
    const int64_t n = p.x.ne[0];
    if (n == 0) {
        return GCUDA_STATUS_SUCCESS;
    }
    return with_float(p.x.type, [&](auto v) {
        typedef decltype(v) T;
        const bool wide = is_wide(p.x) && is_wide(p.y) && n % d_wide<T>::N == 0;
        if (!can_hold(n)) {
            return wide ? two_passes<d_norm_parts<KIND, T, typename part_of<T, true>::type>>(p, stream)
                        : two_passes<d_norm_parts<KIND, T, typename part_of<T, false>::type>>(p, stream);
        }
        return with_held<T>(n, wide, [&](auto h) {
            return launch_held(k_norm_held<KIND, T, decltype(h)>, decltype(h)::THREADS, n_rows(p.y), stream, p);
        });
    });
}

size_t gcuda_norm_scratch_bytes(const gcuda_norm_args * args) { return part_bytes(args->x); }
size_t gcuda_rms_norm_scratch_bytes(const gcuda_norm_args * args) { return part_bytes(args->x); }
size_t gcuda_l2_norm_scratch_bytes(const gcuda_norm_args * args) { return part_bytes(args->x); }

gcuda_status gcuda_launch_norm(const gcuda_norm_args * args, gcuda_stream stream) {
    return norm<NORM_MEAN>(*args, stream);
}
gcuda_status gcuda_launch_rms_norm(const gcuda_norm_args * args, gcuda_stream stream) {
    return norm<NORM_RMS>(*args, stream);
}
gcuda_status gcuda_launch_l2_norm(const gcuda_norm_args * args, gcuda_stream stream) {
    return norm<NORM_L2>(*args, stream);
}

// ---- rms_norm of x, or of x + add, times w, plus b: rows as above, each read once ----
// Row r of like's, counted over its dimensions, where a is repeated. Divisions only where they are needed, and once in the code.
static inline __device__ const char * d_repeated_row(const gcuda_array & a, const gcuda_array & like, int64_t r) {
    const char * row = (const char *) a.data;
    NO_UNROLL for (int d = 1; r > 0 && d < 4; ++d) {
        const int64_t next = r < like.ne[d] ? 0 : r / like.ne[d], i = r - next * like.ne[d], n = a.ne[d];
        row += (i < n ? i : n == 1 ? 0 : i % n) * (int64_t) a.nb[d];
        r = next;
    }
    return row;
}

static_assert(GCUDA_NORM_MUL_MAX == HELD_MOST, "what the host side takes for granted");

// A row as a column for products. Columns behind the last are rows without elements, and so zeros.
template <typename ROW> static inline __device__ void d_norm_wg_column(const ROW & x, const gcuda_norm_mul_args & p, int64_t c) {
    char * column = d_wg_column((char *) p.y.data, p.x.ne[0], p.form, (uint32_t) c);
    UNROLL for (int k = 0; k < ROW::PARTS; ++k) {
        const int first = ROW::place(k) - 4 * (int) (threadIdx.x % 32); // of the warp
        if (first < (int) p.x.ne[0]) { d_wg_put_four(column, p.form, (uint32_t) c, first, make_float4(x.v[k][0], x.v[k][1], x.v[k][2], x.v[k][3])); }
    }
}

template <typename H> static __global__ void __launch_bounds__(H::BLOCK) k_norm_mul(const gcuda_norm_mul_args p) {
    constexpr bool MAY_ROUND = H::WIDE && H::THREADS >= 32;
    const int64_t n_all = d_rows(p.y);
    d_held_rows<H::THREADS>(MAY_ROUND && p.form != 0 ? d_wg_padded(n_all, p.form) : n_all, p.x.ne[0], [&](int64_t r, int n_held) {
        const int n = MAY_ROUND && r >= n_all ? 0 : n_held;
        typename H::template row<float> x;
        x.load(d_row(p.x, r), n);
        if (p.add.data != nullptr) {
            const float * add = (const float *) d_repeated_row(p.add, p.x, r);
            x.each(n, [&](float & v, int i) { v = d_add_rn(v, add[i]); });
            if (p.sum.data != nullptr) { x.store(d_row(p.sum, r), n); }
        }
        float mean;
        const float scale = d_norm_find<NORM_RMS, H::THREADS>(x, n, p.x.ne[0], p.eps, &mean);
        const float * w = (const float *) d_repeated_row(p.w, p.x, r);
        x.each(n, [&](float & v, int i) { v = d_mul_rn(d_mul_rn(v, scale), w[i]); });
        if (p.b.data != nullptr) {
            const float * b = (const float *) d_repeated_row(p.b, p.x, r);
            x.each(n, [&](float & v, int i) { v = d_add_rn(v, b[i]); });
        }
        if constexpr (MAY_ROUND) {
            if (p.form != 0) {
                d_norm_wg_column(x, p, r);
                return;
            }
        }
        x.store(d_row(p.y, r), n);
    });
}

// A row of n elements as one column of bytes. Whole warps: steps are multiples of what they take.
template <typename ROW, int THREADS> static inline __device__ void d_norm_column(const ROW & x, int n, const d_vec_form & f, char * y) {
    const int steps = (int) vec_steps(n), n_quads = steps * (VEC_STEP / 4), lane = (int) (threadIdx.x % 32);
    int4 * xq = (int4 *) y;
    float2 * xs = (float2 *) (xq + steps * 128);
    const auto put = [&](int quad, float4 v) {
        const int at = quad / (VEC_STEP / 4) * 128;
        d_vec_quantize4(v, quad / 32 % 16, lane, f, xq + at, xs + at);
    };
    UNROLL for (int k = 0; k < ROW::PARTS; ++k) {
        float4 v = make_float4(x.v[k][0], x.v[k][1], x.v[k][2], x.v[k][3]);
        if (f.order == D_INTERLEAVED) { // lanes take each other's fours
            const int from = d_swap_bits_1_2(lane);
            v.x = __shfl_sync(0xffffffffu, v.x, from), v.y = __shfl_sync(0xffffffffu, v.y, from);
            v.z = __shfl_sync(0xffffffffu, v.z, from), v.w = __shfl_sync(0xffffffffu, v.w, from);
        }
        if (ROW::place(k) / 4 < n_quads) { put(ROW::place(k) / 4, v); }
    }
    for (int quad = ROW::place(ROW::PARTS) / 4; quad < n_quads; quad += THREADS) { put(quad, make_float4(0.0f, 0.0f, 0.0f, 0.0f)); }
}

// One row, as a decoder has of each token: what it takes from the end of the kernel before to its own counts. So nothing is left to
// be looked up, and w and b are asked for before that end. The result may be a column of bytes: it has the place of what was read,
// all of which has come when the block meets for its sum.
template <typename H> static __global__ void __launch_bounds__(H::BLOCK) k_norm_mul_row(const gcuda_norm_mul_args p, const bool is_early) {
    typedef typename H::template row<float> row;
    const int n = (int) p.x.ne[0];
    const bool has_b = p.b.data != nullptr;
    row x, w, b;
    d_start_next();
    if (!is_early) { d_wait_before(); }
    w.load((const char *) p.w.data, n);
    b.load((const char *) (has_b ? p.b.data : p.w.data), has_b ? n : 0);
    if (is_early) { d_wait_before(); }
    x.load((const char *) p.x.data, n);
    if (p.add.data != nullptr) {
        row add;
        add.load((const char *) p.add.data, n);
        x.each_with(add, n, [](float & v, float u) { v = d_add_rn(v, u); });
        if (p.sum.data != nullptr) { x.store((char *) p.sum.data, n); }
    }
    float mean;
    const float scale = d_norm_find<NORM_RMS, H::THREADS>(x, n, n, p.eps, &mean);
    x.each_with(w, n, [&](float & v, float u) { v = d_mul_rn(d_mul_rn(v, scale), u); });
    if (has_b) { x.each_with(b, n, [](float & v, float u) { v = d_add_rn(v, u); }); }
    if (p.form != 0) {
        d_norm_column<row, H::THREADS>(x, n, d_vec_form_of_number(p.form), (char *) p.y.data);
    } else {
        x.store((char *) p.y.data, n);
    }
}

// Everything that k_norm_mul_row reads and writes, in pieces of sixteen bytes; shorter rows have lanes of a warp. A sum that is w
// or b as well has to be written before those are read.
static bool is_norm_mul_row(const gcuda_norm_mul_args & p) {
    const gcuda_array * all[6] = { &p.x, &p.y, &p.w, &p.add, &p.sum, &p.b };
    const bool has_both = p.sum.data != nullptr && (p.sum.data == p.w.data || p.sum.data == p.b.data);
    bool is_so = n_rows(p.y) == 1 && p.x.ne[0] > 512 && !has_both;
    for (int i = 0; i < 6; ++i) { is_so = is_so && ((i > 2 && all[i]->data == nullptr) || is_wide(*all[i])); }
    return is_so;
}

static bool is_norm_mul_wide(const gcuda_norm_mul_args & p) {
    return is_wide(p.x) && is_wide(p.y) && (p.sum.data == nullptr || is_wide(p.sum));
}

bool gcuda_norm_mul_takes_form(const gcuda_norm_mul_args * args) {
    const int64_t n = args->x.ne[0];
    if (args->form % 2 == 0) {
        return args->form == 0 || (is_wg_form(args->form, n, n_rows(args->y)) && can_hold(n) && is_norm_mul_wide(*args));
    }
    return is_norm_mul_row(*args) && can_hold(n) && n % 32 == 0 && vec_steps(n) * VEC_STEP_BYTES <= 4 * n;
}

gcuda_status gcuda_launch_norm_mul(const gcuda_norm_mul_args * args, gcuda_stream stream) {
    const gcuda_norm_mul_args & p = *args;
    const bool is_wg = p.form != 0 && p.form % 2 == 0, is_row = is_norm_mul_row(p) && !is_wg;
    if (!can_hold(p.x.ne[0]) || !gcuda_norm_mul_takes_form(args)) { return GCUDA_STATUS_UNSUPPORTED; }
    const int64_t n = is_wg ? d_wg_padded(n_rows(p.y), p.form) : n_rows(p.y);
    return with_held<float>(p.x.ne[0], is_norm_mul_wide(p), [&](auto h) {
        typedef decltype(h) H;
        if constexpr (H::WIDE && H::THREADS > 32) {
            if (is_row) { return launch_overlapped(k_norm_mul_row<H>, 1, dim3(H::BLOCK), 0, 0, stream, p, reads_weights_early()); }
        }
        const int64_t at_once = H::BLOCK / H::THREADS;
        return launch_overlapped(k_norm_mul<H>, (n + at_once - 1) / at_once, dim3(H::BLOCK), 0, 0, stream, p);
    });
}

// >>op:rms_norm_back ----------------------------------------------------------------------------------
//   floor   dy and x read, dx written: 3 * ne0 * n_rows * sizeof(T) bytes
struct d_back_scale {
    float k, scale;
};
static inline __device__ d_back_scale d_rms_norm_back(float xx, float xd, int64_t n, float eps) {
    d_back_scale s = { xd / (xx + (float) n * eps), 1.0f / sqrtf(xx / (float) n + eps) };
    return s;
}
// As d_norm_is_beyond, for both sums and their quotient. The gradient of many rows is 0, which is no such sum.
static inline __device__ bool d_back_is_beyond(float xx, float xd, float k, int64_t n, float eps) {
    const float m = xx + (float) n * eps;
    const bool is_within = m >= SQUARES_LEAST && m <= F32_MOST && fabsf(xd) >= SQUARES_LEAST;
    return !(is_within && fabsf(k) >= 1.175494351e-38f && fabsf(k) <= F32_MOST);
}

template <typename ROW> static inline __device__ void d_back_sums(const ROW & x, const ROW & dy, float * xx, float * xd) {
    *xx = *xd = 0.0f;
    for (int k = 0; k < x.PARTS; ++k) {
        for (int j = 0; j < x.N; ++j) {
            *xx += x.v[k][j] * x.v[k][j]; // 0 beyond the row
            *xd += x.v[k][j] * dy.v[k][j];
        }
    }
}

template <typename T, typename H> static __global__ void __launch_bounds__(H::BLOCK) k_rms_norm_back_held(const gcuda_rms_norm_back_args p) {
    d_held_rows<H::THREADS>(d_rows(p.dx), p.x.ne[0], [&](int64_t r, int n) {
        typename H::template row<T> x, dy;
        x.load(d_row(p.x, r), n);
        dy.load(d_row(p.dy, r), n);
        float xx, xd;
        d_back_sums(x, dy, &xx, &xd);
        xx = d_row_sum<H::THREADS>(xx);
        xd = d_row_sum<H::THREADS>(xd);
        d_back_scale s = d_rms_norm_back(xx, xd, p.x.ne[0], p.eps);
        const bool is_beyond = d_back_is_beyond(xx, xd, s.k, p.x.ne[0], p.eps);
        double back = 1.0; // what the result of scaled rows is to be multiplied by
        if (H::THREADS > 32 ? is_beyond : __any_sync(0xffffffffu, is_beyond)) {
            float eps = p.eps;
            const float of_x = d_row_max<H::THREADS>(d_largest(x)), of_dy = d_row_max<H::THREADS>(d_largest(dy));
            const float unit = is_beyond ? d_norm_unit<NORM_RMS>(of_x, &eps) : 1.0f, unit_dy = is_beyond ? d_unit(of_dy) : 1.0f;
            x.all([&](float & v) { v *= unit; });
            dy.all([&](float & v) { v *= unit_dy; });
            back = (double) unit / (double) unit_dy;
            d_back_sums(x, dy, &xx, &xd);
            xx = d_row_sum<H::THREADS>(xx);
            s = d_rms_norm_back(xx, d_row_sum<H::THREADS>(xd), p.x.ne[0], eps);
        }
        for (int k = 0; k < x.PARTS; ++k) {
            for (int j = 0; j < x.N; ++j) { dy.v[k][j] = (dy.v[k][j] - x.v[k][j] * s.k) * s.scale; }
        }
        if (back != 1.0) {
            dy.all([&](float & v) { v = (float) ((double) v * back); });
        }
        dy.store(d_row(p.dx, r), n);
    });
}

static __global__ void __launch_bounds__(1024) k_rms_norm_back(const gcuda_rms_norm_back_args p) {
    FOR_ROWS(r, d_rows(p.dx)) {
        const char * x = d_row(p.x, r), * dy = d_row(p.dy, r);
        char * dx = d_row(p.dx, r);
        double xx = 0.0, xd = 0.0;
        FOR_ROW_ELEMENTS(i, p.x.ne[0]) {
            const double v = (double) d_load(p.x.type, x + i * (int64_t) p.x.nb[0]);
            xx += v * v;
            xd += v * (double) d_load(p.dy.type, dy + i * (int64_t) p.dy.nb[0]);
        }
        xx = d_block_sum(xx);
        xd = d_block_sum(xd);
        const double n = (double) p.x.ne[0], k = xd / (xx + n * (double) p.eps), scale = 1.0 / sqrt(xx / n + (double) p.eps);
        const d_back_scale s = d_rms_norm_back((float) xx, (float) xd, p.x.ne[0], p.eps);
        const bool is_beyond = d_back_is_beyond((float) xx, (float) xd, s.k, p.x.ne[0], p.eps);
        FOR_ROW_ELEMENTS(i, p.x.ne[0]) {
            const float v = d_load(p.x.type, x + i * (int64_t) p.x.nb[0]);
            const float d = d_load(p.dy.type, dy + i * (int64_t) p.dy.nb[0]);
            const float y = is_beyond ? (float) (((double) d - (double) v * k) * scale) : (d - v * s.k) * s.scale;
            d_store(p.dx.type, dx + i * (int64_t) p.dx.nb[0], y);
        }
    }
}

gcuda_status gcuda_launch_rms_norm_back(const gcuda_rms_norm_back_args * args, gcuda_stream stream) {
    const gcuda_rms_norm_back_args & p = *args;
    const int64_t n = p.x.ne[0];
    if (!can_hold(n) || p.x.type != p.dx.type || p.dy.type != p.dx.type) {
        return launch(k_rms_norm_back, n_rows(p.dx), n <= 1024 ? 128 : n <= 16384 ? 256 : 1024, stream, p);
    }
    return with_float(p.x.type, [&](auto v) {
        return with_held<decltype(v)>(n, is_wide(p.x) && is_wide(p.dy) && is_wide(p.dx), [&](auto h) {
            return launch_held(k_rms_norm_back_held<decltype(v), decltype(h)>, decltype(h)::THREADS, n_rows(p.dx), stream, p);
        });
    });
}

// >>op:group_norm -------------------------------------------------------------------------------------
// Full groups of contiguous images are rows of their own. Others: a block per group, rows of channels in order.
//   floor   x read, y written: 2 * n * sizeof(T) bytes
static __global__ void __launch_bounds__(1024) k_group_norm(const gcuda_group_norm_args p) {
    const int64_t per_group = (p.x.ne[2] + p.n_groups - 1) / p.n_groups;
    const int64_t n_groups = (p.x.ne[2] + per_group - 1) / per_group;
    FOR_ROWS(g, n_groups * p.x.ne[3]) {
        const int64_t c0 = g % n_groups * per_group, i3 = g / n_groups;
        const int64_t n_c = c0 + per_group < p.x.ne[2] ? per_group : p.x.ne[2] - c0, n = p.x.ne[0] * p.x.ne[1] * n_c;
        const int64_t ne[4] = { p.x.ne[0], p.x.ne[1], n_c, 1 };
        double mean = 0.0, sum = 0.0;
        FOR_ROW_ELEMENTS(i, n) {
            const d_index x = d_unravel(ne, i);
            mean += (double) d_load(p.x.type, d_at(p.x, x.i0, x.i1, c0 + x.i2, i3));
        }
        mean = d_block_sum(mean) / (double) n;
        FOR_ROW_ELEMENTS(i, n) {
            const d_index x = d_unravel(ne, i);
            const double v = (double) d_load(p.x.type, d_at(p.x, x.i0, x.i1, c0 + x.i2, i3)) - mean;
            sum += v * v;
        }
        const double scale = d_norm_scale<NORM_MEAN>(d_block_sum(sum), n, p.eps);
        FOR_ROW_ELEMENTS(i, n) {
            const d_index x = d_unravel(ne, i);
            const float v = d_load(p.x.type, d_at(p.x, x.i0, x.i1, c0 + x.i2, i3));
            d_store(p.y.type, d_at(p.y, x.i0, x.i1, c0 + x.i2, i3), (float) (((double) v - mean) * scale));
        }
    }
}

// Elements of a group if groups are rows, else 0.
static int64_t group_row(const gcuda_group_norm_args & p) {
    const int64_t per_group = (p.x.ne[2] + p.n_groups - 1) / p.n_groups;
    const bool is_row = n_elements(p.x) > 0 && p.x.ne[2] % per_group == 0 && is_packed(p.x) && is_packed(p.y);
    return is_row ? p.x.ne[0] * p.x.ne[1] * per_group : 0;
}

size_t gcuda_group_norm_scratch_bytes(const gcuda_group_norm_args * args) {
    const int64_t n = group_row(*args);
    return n > 0 ? part_bytes(as_rows(args->x, n)) : 0;
}

gcuda_status gcuda_launch_group_norm(const gcuda_group_norm_args * args, gcuda_stream stream) {
    const gcuda_group_norm_args & p = *args;
    if (n_elements(p.x) == 0) {
        return GCUDA_STATUS_SUCCESS;
    }
    const int64_t per_group = (p.x.ne[2] + p.n_groups - 1) / p.n_groups;
    const int64_t n_groups = (p.x.ne[2] + per_group - 1) / per_group, n = p.x.ne[0] * p.x.ne[1] * per_group;
    if (group_row(p) > 0) {
        gcuda_norm_args rows = {}; // what lies beside eps too: a kernel's arguments are looked through for pointers in the simulation
        rows.x = as_rows(p.x, n);
        rows.y = as_rows(p.y, n);
        rows.eps = p.eps;
        rows.scratch = p.scratch;
        return norm<NORM_MEAN>(rows, stream);
    }
    return launch(k_group_norm, n_groups * p.x.ne[3], n <= 4096 ? 256 : 1024, stream, p);
}

// >>op:soft_max ---------------------------------------------------------------------------------------
// w = x scale + slope mask, with the head's ALiBi slope (d_slope). A row that is masked altogether gives zeros.
//   floor   x read, y written, the mask read once a head group: 2 * n * sizeof(T) bytes
// What a row needs besides x and y.
struct d_soft_max_row {
    d_index at;
    const char * mask; // or NULL
    float slope, sink; // -inf: none
};
// Heads that share a mask come behind each other: it is read from memory once.
static __device__ d_soft_max_row d_soft_max_row_of(const gcuda_soft_max_args & p, int64_t r) {
    d_soft_max_row row = { d_row_index(p.x.ne, r), nullptr, 1.0f, -INFINITY };
    d_index & i = row.at;
    if (p.mask.data != nullptr) {
        if (p.mask.ne[2] < p.x.ne[2]) {
            const int64_t token = r / p.x.ne[2];
            i.i2 = r - token * p.x.ne[2];
            i.i3 = token / p.x.ne[1];
            i.i1 = token - i.i3 * p.x.ne[1];
        }
        const int64_t m2 = i.i2 < p.mask.ne[2] ? i.i2 : i.i2 % p.mask.ne[2], m3 = i.i3 < p.mask.ne[3] ? i.i3 : i.i3 % p.mask.ne[3];
        row.mask = d_at(p.mask, 0, i.i1, m2, m3);
        row.slope = d_slope(p.max_bias, p.x.ne[2], i.i2);
    }
    if (p.sinks.data != nullptr) {
        row.sink = d_load(p.sinks.type, (const char *) p.sinks.data + i.i2 * (int64_t) p.sinks.nb[0]);
    }
    return row;
}

template <typename M, typename ROW>
static inline __device__ void d_masked_logits(const gcuda_soft_max_args & p, const d_soft_max_row & row, int64_t i0, int n,
    const typename ROW::word * words, ROW & x) {
    typedef d_pack<M, ROW::N> pack;
    pack m[ROW::PARTS];
    UNROLL for (int k = 0; k < ROW::PARTS; ++k) {
        m[k] = x.place(k) < n ? *(const pack *) ((const M *) row.mask + i0 + x.place(k)) : pack();
    }
    x.unpack(words);
    UNROLL for (int k = 0; k < ROW::PARTS; ++k) {
        UNROLL for (int j = 0; j < ROW::N; ++j) { x.v[k][j] = x.v[k][j] * p.scale + row.slope * d_f32(m[k].v[j]); }
    }
}

// Elements of x as logits, from i0 of its row on; -inf behind the end.
template <typename ROW>
static inline __device__ void d_logits(
    const gcuda_soft_max_args & p, const d_soft_max_row & row, int64_t i0, int n, const typename ROW::word * words, ROW & x) {
    if (row.mask == nullptr) {
        x.unpack(words);
        x.all([&](float & v) { v = v * p.scale; });
    } else if (p.mask.type == GCUDA_TYPE_F32) {
        d_masked_logits<float>(p, row, i0, n, words, x);
    } else if (p.mask.type == GCUDA_TYPE_F16) {
        d_masked_logits<__half>(p, row, i0, n, words, x);
    } else {
        d_masked_logits<__nv_bfloat16>(p, row, i0, n, words, x);
    }
    UNROLL for (int k = 0; k < ROW::PARTS; ++k) {
        UNROLL for (int j = 0; j < ROW::N; ++j) { x.v[k][j] = x.place(k) < n ? x.v[k][j] : -INFINITY; }
    }
}

static inline __device__ float d_soft_base(float max) { return max == -INFINITY ? 0.0f : max; }
static inline __device__ float d_soft_scale(float sum) { return sum > 0.0f ? 1.0f / sum : sum; }

// Lanes' maximum and their sum of exponentials below it, for the whole block: what a lane's exponentials are to be multiplied
// with comes back in `factor`, the maximum and sum of all on every thread.
static inline __device__ d_soft_sum d_soft_block(float max, float sum, float sink, float * factor) {
    __shared__ float2 part[32];
    const int lane = (int) threadIdx.x % 32, warp = (int) threadIdx.x / 32;
    __syncthreads(); // the last use of part is over
    if (lane == 0) { part[warp] = make_float2(max, sum); }
    __syncthreads();
    const float2 own = lane < (int) blockDim.x / 32 ? part[lane] : make_float2(-INFINITY, 0.0f);
    const float all = fmaxf(d_warp_reduce<d_max_op>(own.x), sink), base = d_soft_base(all);
    *factor = d_exp(max - base);
    return { all, d_warp_reduce<d_sum_op>(own.y * d_exp(own.x - base)) + d_exp(sink - base) };
}

// The exponentials of a row or part of it, below the maximum of these lanes.
template <int THREADS, typename ROW> static inline __device__ d_soft_sum d_soft_lanes(ROW & x, float sink) {
    const int LANES = THREADS < 32 ? THREADS : 32;
    float max = sink, sum = 0.0f;
    x.all([&](float v) { max = fmaxf(max, v); });
    max = d_row_max<LANES>(max);
    const float base = d_soft_base(max);
    x.all([&](float & v) { sum += v = d_exp(v - base); });
    return { max, d_row_sum<LANES>(sum) };
}

template <typename T, typename H>
static __global__ void __launch_bounds__(H::BLOCK, H::LEAST) k_soft_max_held(const gcuda_soft_max_args p) {
    d_held_rows<H::THREADS>(d_rows(p.y), p.x.ne[0], [&](int64_t r, int n) {
        const d_soft_max_row row = d_soft_max_row_of(p, r);
        typename H::template row<T> x;
        typename H::template row<T>::word words[x.PARTS];
        x.fetch(d_at(p.x, row.at), n, words);
        d_logits(p, row, 0, n, words, x);
        d_soft_sum s = d_soft_lanes<H::THREADS>(x, H::THREADS > 32 ? -INFINITY : row.sink);
        float factor = 1.0f;
        if (H::THREADS > 32) {
            s = d_soft_block(s.max, s.sum, row.sink, &factor);
        } else {
            s.sum += d_exp(row.sink - d_soft_base(s.max));
        }
        const float scale = d_soft_scale(s.sum) * factor;
        x.all([&](float & v) { v = v * scale; });
        x.store(d_at(p.y, row.at), n);
    });
}

// Long rows: the maximum of each part and the sum of what is below it; then all parts of the row together.
template <typename T, typename HELD> struct d_soft_max_parts {
    typedef HELD H;
    static const bool TAKES_TURNS = false;

    static inline __device__ void find(const gcuda_soft_max_args & p, int64_t b) {
        const d_part q = d_part_of<T>(p.x, b);
        typename H::template row<T> x;
        typename H::template row<T>::word words[x.PARTS];
        const d_soft_max_row row = d_soft_max_row_of(p, q.row);
        x.fetch(d_at(p.x, row.at) + q.i0 * (int64_t) p.x.nb[0], q.n, words);
        d_logits(p, row, q.i0, q.n, words, x);
        float factor;
        const d_soft_sum own = d_soft_lanes<H::THREADS>(x, -INFINITY), s = d_soft_block(own.max, own.sum, -INFINITY, &factor);
        if (threadIdx.x == 0) { ((float2 *) p.scratch)[b] = make_float2(s.max, s.sum); }
    }

    template <bool MAY_MISS> static inline __device__ bool finish(const gcuda_soft_max_args & p, int64_t b) {
        static_assert(!MAY_MISS, "takes no turns");
        const d_part q = d_part_of<T>(p.x, b);
        const d_soft_max_row row = d_soft_max_row_of(p, q.row);
        const float2 * found = (const float2 *) p.scratch + q.row * q.n_parts;
        typename H::template row<T> x;
        typename H::template row<T>::word words[x.PARTS];
        x.template fetch<true>(d_at(p.x, row.at) + q.i0 * (int64_t) p.x.nb[0], q.n, words);
        d_wait_before();
        float max = row.sink, sum = 0.0f; // each warp for itself
        for (int64_t i = threadIdx.x % 32; i < q.n_parts; i += 32) { max = fmaxf(max, found[i].x); }
        max = d_warp_reduce<d_max_op>(max);
        const float base = d_soft_base(max);
        for (int64_t i = threadIdx.x % 32; i < q.n_parts; i += 32) { sum += found[i].y * d_exp(found[i].x - base); }
        const float scale = d_soft_scale(d_warp_reduce<d_sum_op>(sum) + d_exp(row.sink - base));
        d_logits(p, row, q.i0, q.n, words, x);
        x.all([&](float & v) { v = scale * d_exp(v - base); });
        x.template store<true>(d_at(p.y, row.at) + q.i0 * (int64_t) p.y.nb[0], q.n);
        return true;
    }
};

size_t gcuda_soft_max_scratch_bytes(const gcuda_soft_max_args * args) { return part_bytes(args->x); }

// Whether all rows begin at multiples of this many bytes, a power of two.
static bool is_aligned(const gcuda_array & a, size_t n_bytes) {
    uintptr_t bits = (uintptr_t) a.data;
    for (int d = 1; d < 4; ++d) { bits |= a.ne[d] > 1 ? a.nb[d] : 0; }
    return bits % n_bytes == 0;
}

gcuda_status gcuda_launch_soft_max(const gcuda_soft_max_args * args, gcuda_stream stream) {
    const gcuda_soft_max_args & p = *args;
    const int64_t n = p.x.ne[0];
    if (n == 0) {
        return GCUDA_STATUS_SUCCESS;
    }
    return with_float(p.x.type, [&](auto v) {
        typedef decltype(v) T;
        const size_t pack = d_wide<T>::N * gcuda_type_size(p.mask.type);
        const bool wide = is_wide(p.x) && is_wide(p.y) && n % d_wide<T>::N == 0 &&
                          (p.mask.data == nullptr || is_aligned(p.mask, pack < 16 ? pack : 16));
        if (!can_hold(n)) {
            return wide ? two_passes<d_soft_max_parts<T, typename part_of<T, true>::type>>(p, stream)
                        : two_passes<d_soft_max_parts<T, typename part_of<T, false>::type>>(p, stream);
        }
        if constexpr (sizeof(T) == 4) { // of 512 threads a fifth would have nothing in rows like these, and all wait for each other
            typedef held<384, 9, true> H;
            if (wide && n > 512 * 4 * d_wide<T>::N && n <= H::THREADS * 9 * d_wide<T>::N) {
                return launch_held(k_soft_max_held<T, H>, H::THREADS, n_rows(p.y), stream, p);
            }
        }
        return with_held<T, 32>(n, wide, [&](auto h) {
            return launch_held(k_soft_max_held<T, decltype(h)>, decltype(h)::THREADS, n_rows(p.y), stream, p);
        });
    });
}

// ---- expert routing: probabilities, the largest of them, their weights ----
// A warp has a token. Sums have the order that soft_max and sum_rows have, so that bits are those of the nodes one by one.
//   floor   logits read, ids and weights written
#define ROUTE_MOST 512 // experts
#define ROUTE_USED 32

// Over the chosen ones' weights: lane l has elements N l .. N l + N - 1; those behind the end are `neutral`.
template <int N> static inline __device__ void d_route_soft_max(float (&w)[N], int n) {
    const int first = N * (int) (threadIdx.x % 32);
    float max = -INFINITY, sum = 0.0f;
    for (int j = 0; j < N; ++j) { max = first + j < n ? fmaxf(max, w[j]) : max; }
    max = d_warp_reduce<d_max_op>(max);
    const float base = d_soft_base(max);
    for (int j = 0; j < N; ++j) {
        w[j] = d_exp(w[j] - base);
        if (first + j < n) { sum += w[j]; }
    }
    if (N == 4 && n % 4 == 0) {
        sum = d_warp_reduce<d_sum_op>(sum);
    } else { // soft_max has eight lanes for such a row
        sum = 0.0f;
        for (int i = (int) threadIdx.x % 8; i < ROUTE_USED; i += 8) {
            float own = 0.0f;
            for (int j = 0; j < N; ++j) {
                const float v = __shfl_sync(0xffffffffu, w[j], i / N);
                own = i % N == j && i < n ? v : own;
            }
            sum += own;
        }
        sum = d_row_sum<8>(sum);
    }
    const float scale = d_soft_scale(sum);
    for (int j = 0; j < N; ++j) { w[j] = w[j] * scale; }
}

template <int N> static inline __device__ float d_route_sum(const float (&w)[N], int n) {
    const int first = N * (int) (threadIdx.x % 32);
    if (N == 1) { return (float) d_warp_reduce<d_sum_op>(first < n ? (double) w[0] : 0.0); }
    float sum[4] = { 0.0f, 0.0f, 0.0f, 0.0f };
    for (int j = 0; j < N; ++j) { sum[j % 4] += first + j < n ? w[j] : 0.0f; }
    return d_warp_reduce<d_sum_op>((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

template <typename H> static inline __device__ void d_route_probs(const gcuda_route_args & p, typename H::template row<float> & x) {
    const int n = (int) p.logits.ne[0];
    if (p.gate == GCUDA_ROUTE_SIGMOID) {
        x.each(n, [&](float & v, int) { v = d_sigmoid(v); });
    } else if (p.gate == GCUDA_ROUTE_SOFT_MAX) {
        float max = -INFINITY, sum = 0.0f;
        x.each(n, [&](float v, int) { max = fmaxf(max, v); });
        max = d_row_max<H::THREADS>(max);
        const float base = d_soft_base(max);
        x.each(n, [&](float & v, int) { sum += v = d_exp(v - base); });
        const float scale = d_soft_scale(d_row_sum<H::THREADS>(sum));
        x.each(n, [&](float & v, int) { v = v * scale; });
    }
}

// The largest that has not been taken, of equal ones the first: its place; on all lanes its value without the bias.
template <typename H>
static inline __device__ int d_route_next(const gcuda_route_args & p, const typename H::template row<float> & x, uint32_t & taken, float * value) {
    typedef typename H::template row<float> row;
    const int n = (int) p.logits.ne[0];
    const float * bias = (const float *) p.bias.data;
    uint32_t best = 0;
    int at = 0, held = -1;
    float own = 0.0f;
    for (int k = 0; k < row::PARTS; ++k) {
        for (int j = 0; j < row::N; ++j) {
            const int i = row::place(k) + j, h = k * row::N + j;
            if (i < n && (taken >> h & 1u) == 0) {
                const uint32_t key = d_sort_key(bias != nullptr ? d_add_rn(x.v[k][j], bias[i]) : x.v[k][j]);
                if (held < 0 || key > best) { best = key, at = i, held = h, own = x.v[k][j]; }
            }
        }
    }
    unsigned long long all = held < 0 ? 0 : (unsigned long long) best << 32 | (0xffffffffu - (uint32_t) at);
    for (int d = 16; d > 0; d /= 2) {
        const uint32_t high = __shfl_xor_sync(0xffffffffu, (uint32_t) (all >> 32), d), low = __shfl_xor_sync(0xffffffffu, (uint32_t) all, d);
        const unsigned long long other = (unsigned long long) high << 32 | low;
        all = other > all ? other : all;
    }
    const int chosen = (int) (0xffffffffu - (uint32_t) all);
    const bool is_mine = held >= 0 && at == chosen;
    if (is_mine) { taken |= 1u << held; }
    *value = __shfl_sync(0xffffffffu, own, __ffs((int) __ballot_sync(0xffffffffu, is_mine)) - 1);
    return chosen;
}

// N: 4 where rows of weights begin at multiples of 16 bytes, as soft_max and sum_rows then take them.
template <typename H, int N> static __global__ void __launch_bounds__(256) k_route(const gcuda_route_args p) {
    const int n = (int) p.logits.ne[0], used = (int) p.weights.ne[0], lane = (int) threadIdx.x % 32;
    d_take_turn();
    FOR_HELD_ROWS(r, p.logits.ne[1], 32) {
        typename H::template row<float> x;
        x.load(d_at(p.logits, 0, r, 0, 0), n);
        d_route_probs<H>(p, x);
        float w[N] = {};
        uint32_t taken = 0;
        for (int u = 0; u < used; ++u) {
            float value;
            const int expert = d_route_next<H>(p, x, taken, &value);
            if (lane == 0) { *(int32_t *) d_at(p.ids, u, r, 0, 0) = expert; }
            if (lane == u / N) { w[u % N] = value; }
        }
        if (p.gate == GCUDA_ROUTE_LATE_SOFT_MAX) { d_route_soft_max<N>(w, used); }
        const float sum = p.has_norm ? d_route_sum<N>(w, used) : 1.0f, least = sum < p.least ? p.least : sum;
        for (int j = 0; j < N; ++j) {
            float v = p.has_norm ? w[j] / (p.has_least ? least : sum) : w[j];
            v = p.is_scaled ? p.scale * v + 0.0f : v;
            if (N * lane + j < used) { *(float *) d_at(p.weights, N * lane + j, r, 0, 0) = v; }
        }
    }
}

gcuda_status gcuda_launch_route(const gcuda_route_args * args, gcuda_stream stream) {
    const gcuda_route_args & p = *args;
    const int64_t n = p.logits.ne[0], used = p.weights.ne[0];
    if (p.logits.type != GCUDA_TYPE_F32 || p.logits.nb[0] != 4 || n < 1 || n > ROUTE_MOST || used < 1 || used > ROUTE_USED || used > n ||
        p.logits.ne[2] * p.logits.ne[3] != 1 || p.ids.type != GCUDA_TYPE_I32 || p.weights.type != GCUDA_TYPE_F32) {
        return GCUDA_STATUS_UNSUPPORTED;
    }
    return p.logits.ne[1] == 0 ? GCUDA_STATUS_SUCCESS : with_held<float, 32>(n, p.is_wide, [&](auto h) {
        typedef decltype(h) H;
        if constexpr (H::THREADS <= 32) { // fewer lanes than a warp: all of it has the same row
            return launch_held(p.is_wide_weights ? k_route<H, 4> : k_route<H, 1>, 32, p.logits.ne[1], stream, p);
        } else {
            return GCUDA_STATUS_UNSUPPORTED;
        }
    });
}

// >>op:soft_max_back ----------------------------------------------------------------------------------
//   floor   dy and y read, dx written: 3 * n * sizeof(T) bytes
template <typename T, typename H> static __global__ void __launch_bounds__(H::BLOCK) k_soft_max_back_held(const gcuda_soft_max_back_args p) {
    d_held_rows<H::THREADS>(d_rows(p.dx), p.y.ne[0], [&](int64_t r, int n) {
        typename H::template row<T> y, dy;
        y.load(d_row(p.y, r), n);
        dy.load(d_row(p.dy, r), n);
        float dot = 0.0f;
        for (int k = 0; k < y.PARTS; ++k) {
            for (int j = 0; j < y.N; ++j) { dot += y.v[k][j] * dy.v[k][j]; }
        }
        dot = d_row_sum<H::THREADS>(dot);
        for (int k = 0; k < y.PARTS; ++k) {
            for (int j = 0; j < y.N; ++j) { dy.v[k][j] = p.scale * y.v[k][j] * (dy.v[k][j] - dot); }
        }
        dy.store(d_row(p.dx, r), n);
    });
}

static __global__ void __launch_bounds__(1024) k_soft_max_back(const gcuda_soft_max_back_args p) {
    FOR_ROWS(r, d_rows(p.dx)) {
        const char * y = d_row(p.y, r), * dy = d_row(p.dy, r);
        char * dx = d_row(p.dx, r);
        double dot = 0.0;
        FOR_ROW_ELEMENTS(i, p.y.ne[0]) {
            dot += (double) (d_load(p.y.type, y + i * (int64_t) p.y.nb[0]) *
                             d_load(p.dy.type, dy + i * (int64_t) p.dy.nb[0]));
        }
        const float d = (float) d_block_sum(dot);
        FOR_ROW_ELEMENTS(i, p.y.ne[0]) {
            const float v = p.scale * d_load(p.y.type, y + i * (int64_t) p.y.nb[0]);
            d_store(p.dx.type, dx + i * (int64_t) p.dx.nb[0], v * (d_load(p.dy.type, dy + i * (int64_t) p.dy.nb[0]) - d));
        }
    }
}

gcuda_status gcuda_launch_soft_max_back(const gcuda_soft_max_back_args * args, gcuda_stream stream) {
    const gcuda_soft_max_back_args & p = *args;
    const int64_t n = p.y.ne[0];
    if (!can_hold(n) || p.y.type != p.dx.type || p.dy.type != p.dx.type) {
        return launch(k_soft_max_back, n_rows(p.dx), n <= 1024 ? 128 : n <= 16384 ? 256 : 1024, stream, p);
    }
    return with_float(p.y.type, [&](auto v) {
        return with_held<decltype(v)>(n, is_wide(p.y) && is_wide(p.dy) && is_wide(p.dx), [&](auto h) {
            return launch_held(k_soft_max_back_held<decltype(v), decltype(h)>, decltype(h)::THREADS, n_rows(p.dx), stream, p);
        });
    });
}

// >>op:cumsum -----------------------------------------------------------------------------------------
// A block walks a row, or a part of it, in stretches of four times sixteen bytes a thread: sums within vectors, warps and
// the block in F32, what came before in double, as rows may have millions of elements. Where rows are too few to fill the
// device they are cut into parts, whose sums a launch before leaves in scratch.
//   floor   x read, y written: 2 * n * sizeof(T) bytes
#define SCAN_THREADS 256

// Inclusive within the warp.
static inline __device__ float d_warp_scan(float v) {
    for (int d = 1; d < 32; d *= 2) {
        const float before = __shfl_up_sync(0xffffffffu, v, d);
        v += (int) threadIdx.x % 32 >= d ? before : 0.0f;
    }
    return v;
}
// Of an inclusive scan, what comes before each lane. Never "inclusive minus own": a large element, or an infinite one, would reach
// sums that do not depend on it.
static inline __device__ float d_warp_before(float inclusive) {
    const float before = __shfl_up_sync(0xffffffffu, inclusive, 1);
    return threadIdx.x % 32 > 0 ? before : 0.0f;
}

template <typename T, bool WIDE> struct d_stretch { // of SCAN_THREADS threads
    static const int N = WIDE ? d_wide<T>::N : 4, SIZE = 4 * SCAN_THREADS * N;
    float v[4][N];

    static inline __device__ int place(int k) { return (k * SCAN_THREADS + (int) threadIdx.x) * N; }
    template <bool LAST = false> inline __device__ void load(const gcuda_array & a, const char * row, int64_t n) {
        if (WIDE) {
            uint4 raw[4];
            for (int k = 0; k < 4; ++k) {
                const T * x = (const T *) row + place(k);
                raw[k] = LAST ? d_load_last(x, n - place(k)) : d_load_raw(x, n - place(k));
            }
            for (int k = 0; k < 4; ++k) { d_unpack<T>(raw[k], v[k]); }
        } else {
            for (int k = 0; k < 4; ++k) {
                for (int j = 0; j < N; ++j) {
                    v[k][j] = place(k) + j < n ? d_f32(*(const T *) (row + (place(k) + j) * (int64_t) a.nb[0])) : 0.0f;
                }
            }
        }
    }
    template <bool LAST = false> inline __device__ void store(const gcuda_array & a, char * row, int64_t n) const {
        for (int k = 0; k < 4; ++k) {
            if (WIDE && LAST) {
                d_store_last((T *) row + place(k), n - place(k), v[k]);
            } else if (WIDE) {
                d_store_wide((T *) row + place(k), n - place(k), v[k]);
            } else {
                for (int j = 0; j < N; ++j) {
                    if (place(k) + j < n) { d_put((T *) (row + (place(k) + j) * (int64_t) a.nb[0]), v[k][j]); }
                }
            }
        }
    }
};

// Rows in n_parts parts of `part` elements, whole stretches but for the last, as k_pass and k_turns have them.
struct d_scan {
    gcuda_reduce_args p;
    int64_t n_parts, part;
};
template <typename T, bool IS_WIDE> struct d_cumsum_parts {
    struct H {
        static const int BLOCK = SCAN_THREADS, LEAST = 4;
    };
    static const bool TAKES_TURNS = IS_WIDE && sizeof(T) == 4;
    typedef d_stretch<T, IS_WIDE> stretch;

    static inline __device__ int64_t end_of(const d_scan & q, int64_t i0) { return i0 + q.part < q.p.x.ne[0] ? i0 + q.part : q.p.x.ne[0]; }

    static inline __device__ void find(const d_scan & q, int64_t b) {
        const int64_t row = (uint32_t) b / (uint32_t) q.n_parts, i0 = (b - row * q.n_parts) * q.part, end = end_of(q, i0);
        const char * x = d_row(q.p.x, row);
        double sum = 0.0;
        for (int64_t i = i0; i < end; i += stretch::SIZE) {
            stretch s;
            float own = 0.0f;
            s.load(q.p.x, x + i * (int64_t) q.p.x.nb[0], end - i);
            for (int k = 0; k < 4; ++k) {
                for (int j = 0; j < stretch::N; ++j) { own += s.v[k][j]; }
            }
            sum += (double) own;
        }
        sum = d_block_sum(sum);
        if (threadIdx.x == 0) { d_leave_found(q.p.scratch, b, sum); }
    }

    template <bool MAY_MISS> static inline __device__ bool finish(const d_scan & q, int64_t b) {
        __shared__ float sums[32]; // of the warps of four rounds, then of all before them
        __shared__ float total;
        const int lane = (int) threadIdx.x % 32, warp = (int) threadIdx.x / 32;
        const int64_t row = q.n_parts > 1 ? (uint32_t) b / (uint32_t) q.n_parts : b;
        const int64_t i0 = (b - row * q.n_parts) * q.part;
        const char * x = d_row(q.p.x, row) + i0 * (int64_t) q.p.x.nb[0];
        char * y = d_row(q.p.y, row) + i0 * (int64_t) q.p.y.nb[0];
        double before = 0.0;
        bool is_begin = q.n_parts > 1;
        for (int64_t n = end_of(q, i0) - i0; n > 0; n -= stretch::SIZE) {
            stretch s;
            float scan[4];
            s.template load<MAY_MISS>(q.p.x, x, n);
            if (is_begin) {
                if (!MAY_MISS) { d_wait_before(); }
                bool is_missing = false; // not even of this part, which is overwritten if y is x
                const int64_t begin = row * q.n_parts;
                const unsigned long long * found = (const unsigned long long *) q.p.scratch + begin;
                FOR_ROW_ELEMENTS(k, b - begin + 1) {
                    const double sum = d_found<double>(found + k, &is_missing);
                    before += begin + k < b ? sum : 0.0;
                }
                if (MAY_MISS && __syncthreads_or(is_missing)) { return false; }
                before = d_block_sum(before);
                is_begin = false;
            }
            for (int k = 0; k < 4; ++k) {
                for (int j = 1; j < stretch::N; ++j) { s.v[k][j] += s.v[k][j - 1]; }
                scan[k] = d_warp_scan(s.v[k][stretch::N - 1]);
            }
            __syncthreads();
            for (int k = 0; k < 4; ++k) {
                if (lane == 31) { sums[k * (SCAN_THREADS / 32) + warp] = scan[k]; }
            }
            __syncthreads();
            if (warp == 0) {
                const float all = d_warp_scan(sums[lane]);
                sums[lane] = d_warp_before(all);
                if (lane == 31) { total = all; }
            }
            __syncthreads();
            for (int k = 0; k < 4; ++k) {
                const float left = d_warp_before(scan[k]) + sums[k * (SCAN_THREADS / 32) + warp];
                for (int j = 0; j < stretch::N; ++j) { s.v[k][j] = (float) (before + (double) (left + s.v[k][j])); }
            }
            s.template store<MAY_MISS>(q.p.y, y, n);
            before += (double) total;
            x += stretch::SIZE * (int64_t) q.p.x.nb[0];
            y += stretch::SIZE * (int64_t) q.p.y.nb[0];
        }
        return true;
    }
};

#define SCAN_PART 16384
static int64_t scan_part(const gcuda_array & x) { // a multiple of every stretch, or the whole row
    const int64_t n = n_elements(x), row = x.ne[0], stretch = 4 * SCAN_THREADS * 16 / (int64_t) gcuda_type_size(x.type);
    const bool may_take_turns = n * (int64_t) sizeof(float) > TURNS_FROM_BYTES && row <= 768 * stretch; // then they are short
    const int64_t part = may_take_turns ? stretch : n < 264 * SCAN_PART ? SCAN_PART / 2 : SCAN_PART; // few want more blocks
    return n_rows(x) >= 264 || row <= part ? (row > 0 ? row : 1) : part;
}
static int64_t scan_parts(const gcuda_array & x) { return (x.ne[0] + scan_part(x) - 1) / scan_part(x); }

size_t gcuda_cumsum_scratch_bytes(const gcuda_reduce_args * args) {
    const int64_t n = scan_parts(args->x);
    return n > 1 ? turns_bytes(n * n_rows(args->x)) : 0;
}

template <bool WIDE> static gcuda_status cumsum(const gcuda_reduce_args & p, gcuda_stream stream) {
    const d_scan q = { p, scan_parts(p.x), scan_part(p.x) };
    const int64_t n = n_rows(p.x) * q.n_parts;
    return with_float(p.x.type, [&](auto v) {
        typedef decltype(v) T;
        typedef d_cumsum_parts<T, WIDE> OP;
        return q.n_parts > 1 ? two_passes<OP>(q, n, q.n_parts, q.part * (int64_t) sizeof(T), p.scratch, stream)
                             : launch(k_pass<OP, true, d_scan>, n, SCAN_THREADS, stream, q, n);
    });
}

gcuda_status gcuda_launch_cumsum(const gcuda_reduce_args * args, gcuda_stream stream) {
    return is_wide(args->x) && is_wide(args->y) ? cumsum<true>(*args, stream) : cumsum<false>(*args, stream);
}

// >>op:rope  >>op:rope_back ---------------------------------------------------------------------------
// A block takes a token and up to ROPE_HEADS of its heads; a thread works out the angle of its pair once for all of
// them. Angles are in double until they are less than a turn: positions reach millions.
//   floor   x read, y written: 2 * n * sizeof(T) bytes
#define ROPE_HEADS 32

struct d_rope_plan {
    int64_t n_pairs, n_groups;
    double step, ramp_low, ramp_step; // step: of the frequencies' logarithm to base 2
    float magnitude;
    int n_sections; // all sections
};

// Position plane of pair j and the power of its frequency.
static __device__ int d_rope_plane(const gcuda_rope_args & p, const d_rope_plan & plan, int64_t j, int64_t * power) {
    const int s0 = p.sections[0], s1 = p.sections[1], s2 = p.sections[2], q = (int) (j % plan.n_sections);
    if (p.mode == GCUDA_ROPE_TYPE_IMROPE) {
        return q % 3 == 1 && q < 3 * s1 ? 1 : q % 3 == 2 && q < 3 * s2 ? 2 : q % 3 == 0 && q < 3 * s0 ? 0 : 3;
    }
    const int plane = q < s0 ? 0 : q < s0 + s1 ? 1 : q < s0 + s1 + s2 ? 2 : 3;
    if (p.mode == GCUDA_ROPE_TYPE_VISION) {
        *power = q - (plane == 0 ? 0 : plane == 1 ? s0 : plane == 2 ? s0 + s1 : s0 + s1 + s2);
    }
    return plane;
}

// What a pair has at all tokens: turns a position, times 2 pi, and where its positions begin.
struct d_rope_pair {
    double freq;
    int64_t plane;
};
static __device__ d_rope_pair d_rope_pair_of(const gcuda_rope_args & p, const d_rope_plan & plan, int64_t j) {
    int64_t power = j, at = 0;
    double mix = 0.0;
    if ((p.mode & 8) != 0) {
        at = d_rope_plane(p, plan, j, &power) * p.x.ne[2];
    }
    if (p.ext_factor != 0.0f) {
        const double y = ((double) j - plan.ramp_low) * plan.ramp_step;
        mix = (1.0 - fmin(1.0, fmax(0.0, y))) * (double) p.ext_factor;
    }
    double freq = exp2((double) power * plan.step) * ((double) p.freq_scale * (1.0 - mix) + mix);
    if (p.factors.data != nullptr) {
        freq /= (double) d_load(p.factors.type, (const char *) p.factors.data + j * (int64_t) p.factors.nb[0]);
    }
    return { freq, at };
}

// Sine and cosine of a part of a turn, from -1/2 to 1/2.
static inline __device__ void d_sine(float turn, float * sine, float * cosine) {
#ifdef __CUDACC__
    sincospif(2.0f * turn, sine, cosine);
#else
    *sine = sinf(6.28318530717958647692f * turn);
    *cosine = cosf(6.28318530717958647692f * turn);
#endif
}

static __device__ float2 d_rope_turn(const gcuda_rope_args & p, const d_rope_plan & plan, const d_rope_pair & pair, int64_t token) {
    const double position = (double) *(const int32_t *) ((const char *) p.pos.data + (pair.plane + token) * (int64_t) p.pos.nb[0]);
    const double turns = position * pair.freq * 0.15915494309189533577; // 1 / (2 pi)
    float sine, cosine;
    d_sine((float) (turns - rint(turns)), &sine, &cosine);
    return make_float2(cosine * plan.magnitude, sine * (p.is_back ? -plan.magnitude : plan.magnitude));
}

static __device__ float2 d_rope_angle(const gcuda_rope_args & p, const d_rope_plan & plan, int64_t j, int64_t token) {
    return d_rope_turn(p, plan, d_rope_pair_of(p, plan, j), token);
}

// The same in every kernel that rotates, to the bit.
static inline __device__ void d_rotate(float * a, float * b, float cosine, float sine) {
    const float u = *a, v = *b;
    *a = fmaf(u, cosine, -d_mul_rn(v, sine));
    *b = fmaf(u, sine, d_mul_rn(v, cosine));
}

// Rows of aligned sixteens. A block has heads of n_each tokens behind each other, a thread one pair's frequency. For some tokens at a
// time the threads work out the turns of all pairs, while the rows that they then share are under way: of ROPE_AHEAD rows at once a
// thread has sixteen bytes of either half of what is turned, so that lanes beside each other read and write whole sectors. These are
// W pairs: one element each where a pair's second is n_pairs behind its first, both where they are neighbours.
#define ROPE_AHEAD 4
#define ROPE_TURNS 512 // in shared memory; pairs are no more than threads
template <typename T, bool IS_ADJACENT>
static __global__ void __launch_bounds__(256, 4) k_rope_wide(
    const gcuda_rope_args p, const d_rope_plan plan, int64_t n_blocks, int64_t n_each) {
    const int W = d_wide<T>::N, tid = (int) threadIdx.x, n_pairs = (int) plan.n_pairs;
    const int n_chunks = n_pairs / W, rows_at_once = 256 / n_chunks, own_row = tid / n_chunks, chunk = tid - own_row * n_chunks;
    const int first = W * chunk, second = first + n_pairs;
    const int own_token = tid / n_pairs, own_pair = tid - own_token * n_pairs, tokens_at_once = 256 / n_pairs;
    const int64_t n_all = p.x.ne[2] * p.x.ne[3];
    __shared__ float4 both[ROPE_TURNS / 2];
    float2 * turns = (float2 *) both; // [token][pair]
    d_rope_pair pair = { 0.0, 0 };
    bool has_pair = false; // found when the first rows are under way
    d_take_turn();
    FOR_ROWS(b, n_blocks * plan.n_groups) {
        const int64_t s = plan.n_groups > 1 ? b / plan.n_groups : b, h0 = (b - s * plan.n_groups) * ROPE_HEADS;
        const int64_t end = s * n_each + n_each < n_all ? s * n_each + n_each : n_all;
        const int n_heads = (int) (h0 + ROPE_HEADS < p.x.ne[1] ? ROPE_HEADS : p.x.ne[1] - h0), n_most = ROPE_TURNS / n_pairs;
        const uint32_t inverse = (1u << 20) / (uint32_t) n_heads + 1; // rows are less than 2^12: their token without a division
        for (int64_t at = s * n_each, n_tokens = 0; at < end; at += n_tokens) {
            const int64_t i3 = at < p.x.ne[2] ? 0 : at / p.x.ne[2], i2 = at - i3 * p.x.ne[2];
            n_tokens = end - at < p.x.ne[2] - i2 ? end - at : p.x.ne[2] - i2;
            n_tokens = n_tokens < n_most ? n_tokens : n_most;
            const int n_rows = own_row < rows_at_once ? (int) n_tokens * n_heads : 0; // 0: this thread has none
            const char * x = d_at(p.x, 0, h0, i2, i3);
            char * y = d_at(p.y, 0, h0, i2, i3);
            const auto token_of = [&](int row) { return (int) ((uint32_t) row * inverse >> 20); };
            uint4 u[ROPE_AHEAD], v[ROPE_AHEAD];
            const auto fetch = [&](int row0) {
                UNROLL for (int k = 0; k < ROPE_AHEAD; ++k) {
                    const int row = row0 + k * rows_at_once, token = token_of(row), head = row - token * n_heads;
                    if (row < n_rows) {
                        const T * from = (const T *) (x + token * (int64_t) p.x.nb[2] + head * (int64_t) p.x.nb[1]);
                        u[k] = *(const uint4 *) (from + first);
                        v[k] = *(const uint4 *) (from + second);
                    }
                }
            };
            fetch(own_row);
            if (!has_pair) { pair = d_rope_pair_of(p, plan, own_pair); }
            has_pair = true;
            __syncthreads(); // the last use of turns is over
            for (int t = own_token; own_token < tokens_at_once && t < n_tokens; t += tokens_at_once) {
                turns[t * n_pairs + own_pair] = d_rope_turn(p, plan, pair, i2 + t);
            }
            __syncthreads();
            for (int row0 = own_row; row0 < n_rows; row0 += ROPE_AHEAD * rows_at_once) {
                if (row0 != own_row) { fetch(row0); }
                UNROLL for (int k = 0; k < ROPE_AHEAD; ++k) {
                    const int row = row0 + k * rows_at_once, token = token_of(row), head = row - token * n_heads;
                    if (row < n_rows) {
                        T * to = (T *) (y + token * (int64_t) p.y.nb[2] + head * (int64_t) p.y.nb[1]);
                        const float2 * own = turns + token * n_pairs + (IS_ADJACENT ? first / 2 : first);
                        float e[2 * W];
                        d_unpack<T>(u[k], e);
                        d_unpack<T>(v[k], e + W);
                        UNROLL for (int i = 0; i < W; i += 2) { // two pairs
                            const int at_pair = !IS_ADJACENT ? i : i < W / 2 ? i : n_pairs / 2 + i - W / 2;
                            const float4 cs = *(const float4 *) (own + at_pair);
                            float * f = e + (IS_ADJACENT ? 2 * i : i);
                            d_rotate(f, f + (IS_ADJACENT ? 1 : W), cs.x, cs.y);
                            f += IS_ADJACENT ? 2 : 1;
                            d_rotate(f, f + (IS_ADJACENT ? 1 : W), cs.z, cs.w);
                        }
                        d_store16(to + first, e);
                        d_store16(to + second, e + W);
                    }
                }
            }
            const int n_rest = (int) (p.x.ne[0] - 2 * n_pairs) / W;
            for (int i = tid; i < n_rest * (int) n_tokens * n_heads && p.x.data != p.y.data; i += 256) {
                const int row = i / n_rest, token = token_of(row), head = row - token * n_heads;
                const int i0 = 2 * n_pairs + (i - row * n_rest) * W;
                const T * from = (const T *) (x + token * (int64_t) p.x.nb[2] + head * (int64_t) p.x.nb[1]) + i0;
                *(uint4 *) ((T *) (y + token * (int64_t) p.y.nb[2] + head * (int64_t) p.y.nb[1]) + i0) = *(const uint4 *) from;
            }
        }
    }
}

template <typename T> static __global__ void k_rope(const gcuda_rope_args p, const d_rope_plan plan) {
    const bool is_adjacent = p.mode == GCUDA_ROPE_TYPE_NORMAL;
    const int64_t apart = is_adjacent ? 1 : plan.n_pairs, n_rest = p.x.ne[0] - 2 * plan.n_pairs;
    d_take_turn();
    FOR_ROWS(b, plan.n_groups * p.x.ne[2] * p.x.ne[3]) {
        const int64_t h0 = b % plan.n_groups * ROPE_HEADS, i2 = b / plan.n_groups % p.x.ne[2], i3 = b / plan.n_groups / p.x.ne[2];
        const int64_t h1 = h0 + ROPE_HEADS < p.x.ne[1] ? h0 + ROPE_HEADS : p.x.ne[1];
        for (int64_t j = threadIdx.x; j < plan.n_pairs; j += blockDim.x) {
            const float2 cs = d_rope_angle(p, plan, j, i2);
            const int64_t first = is_adjacent ? 2 * j : j;
            for (int64_t h = h0 + threadIdx.y; h < h1; h += blockDim.y) {
                const T * x = (const T *) d_at(p.x, first, h, i2, i3);
                T * y = (T *) d_at(p.y, first, h, i2, i3);
                const int64_t xs = apart * (int64_t) p.x.nb[0] / (int64_t) sizeof(T), ys = apart * (int64_t) p.y.nb[0] / (int64_t) sizeof(T);
                float u = d_f32(x[0]), v = d_f32(x[xs]);
                d_rotate(&u, &v, cs.x, cs.y);
                d_put(y, u);
                d_put(y + ys, v);
            }
        }
        if (p.x.data != p.y.data) {
            for (int64_t j = threadIdx.x; j < n_rest; j += blockDim.x) {
                for (int64_t h = h0 + threadIdx.y; h < h1; h += blockDim.y) {
                    *(T *) d_at(p.y, 2 * plan.n_pairs + j, h, i2, i3) = *(const T *) d_at(p.x, 2 * plan.n_pairs + j, h, i2, i3);
                }
            }
        }
    }
}

// First and last pair of YaRN's ramp, in float: n_ctx_orig 0 gives infinities.
static float rope_corr(const gcuda_rope_args & p, float beta) {
    return (float) p.n_dims * logf((float) p.n_ctx_orig / (beta * 6.28318530717958648f)) / (2.0f * logf(p.freq_base));
}

static d_rope_plan rope_plan(const gcuda_rope_args & p) {
    d_rope_plan plan = {};
    plan.n_pairs = p.mode == GCUDA_ROPE_TYPE_VISION ? p.n_dims : p.n_dims / 2;
    plan.n_groups = (p.x.ne[1] + ROPE_HEADS - 1) / ROPE_HEADS;
    plan.step = -2.0 * log2((double) p.freq_base) / (double) p.n_dims;
    double magnitude = (double) p.attn_factor;
    for (int i = 0; i < GCUDA_MROPE_SECTIONS; ++i) { plan.n_sections += p.sections[i]; }
    if (p.ext_factor != 0.0f) {
        const float low = floorf(rope_corr(p, p.beta_fast)), high = ceilf(rope_corr(p, p.beta_slow));
        plan.ramp_low = low > 0.0f ? (double) low : 0.0;
        const double width = (double) (high < (float) (p.n_dims - 1) ? high : (float) (p.n_dims - 1)) - plan.ramp_low;
        plan.ramp_step = 1.0 / (width > 0.001 ? width : 0.001);
        magnitude *= 1.0 + 0.1 * log(1.0 / (double) p.freq_scale);
    }
    plan.magnitude = (float) magnitude;
    return plan;
}

gcuda_status gcuda_launch_rope(const gcuda_rope_args * args, gcuda_stream stream) {
    const d_rope_plan plan = rope_plan(*args);
    const gcuda_array & x = args->x;
    int width = 32; // threads along the pairs; the rest of 256 along the heads
    while (width < 256 && width < plan.n_pairs) { width *= 2; }
    return with_float(x.type, [&](auto v) {
        typedef decltype(v) T;
        const int64_t n_wide = d_wide<T>::N, n = x.ne[2] * x.ne[3];
        const bool wide = is_wide(x) && is_wide(args->y) && plan.n_pairs % n_wide == 0 && x.ne[0] % n_wide == 0;
        if (wide && plan.n_pairs > 0 && plan.n_pairs <= 256) {
            const int64_t heads = x.ne[1] < 1 ? 1 : x.ne[1] < ROPE_HEADS ? x.ne[1] : ROPE_HEADS, rows_at_once = 256 / (plan.n_pairs / n_wide);
            const int64_t most = (n_wide == 4 ? 1 : 2) * ROPE_AHEAD * rows_at_once / heads, share = n / enough(2048);
            const int64_t fitting = share < most ? share : most, n_each = fitting > 0 ? fitting : 1, n_blocks = (n + n_each - 1) / n_each;
            const auto kernel = args->mode == GCUDA_ROPE_TYPE_NORMAL ? k_rope_wide<T, true> : k_rope_wide<T, false>;
            return launch_in_turn(kernel, n_blocks * plan.n_groups, dim3(256), stream, *args, plan, n_blocks, n_each);
        }
        return launch_in_turn(k_rope<T>, n * plan.n_groups, dim3((unsigned) width, (unsigned) (256 / width)), stream, *args, plan);
    });
}
gcuda_status gcuda_launch_rope_back(const gcuda_rope_args * args, gcuda_stream stream) {
    return gcuda_launch_rope(args, stream);
}
// ---- rope of keys that go where indices say, the heads of a token behind each other, in the type of y; rope of queries beside it ----
// One kernel for all types: its quantizers are most of its code.
#define ROPE_SET_PIECE 1024 // elements that a block of threads has at once
#define ROPE_SET_THREADS 256

// Of equal indices the last token stays: each block looks whether a later one is equal.
static __device__ int64_t d_rope_row(const gcuda_rope_set_args & p, int64_t token) {
    const char * at = (const char *) p.ids.data;
    const bool is_long = p.ids.type == GCUDA_TYPE_I64;
    const int64_t step = (int64_t) p.ids.nb[0];
    const int64_t to = is_long ? *(const int64_t *) (at + token * step) : *(const int32_t *) (at + token * step);
    int is_later = 0;
    NO_UNROLL for (int64_t i = token + 1 + threadIdx.x; i < p.ids.ne[0]; i += ROPE_SET_THREADS) {
        is_later |= to == (is_long ? *(const int64_t *) (at + i * step) : *(const int32_t *) (at + i * step));
    }
    is_later = __syncthreads_or(is_later);
    if (to < 0 || to >= p.y.ne[1]) {
        if (threadIdx.x == 0 && p.bad_index != nullptr) { *p.bad_index = 1; }
        return -1;
    }
    return is_later ? -1 : to;
}

// What caches are made of besides floats: blocks of 32.
#define D_CACHE_TYPES(X) X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q8_0) X(IQ4_NL)
static bool is_cache_type(gcuda_type type) {
    switch (type) {
#define X(ID) GCUDAI_KERNEL_WHEN(ID, case GCUDA_TYPE_##ID:)
        D_CACHE_TYPES(X)
#undef X
        case GCUDA_TYPE_F32: case GCUDA_TYPE_F16: case GCUDA_TYPE_BF16: return true;
        default: return false;
    }
}

static inline __device__ void d_quantize_as(gcuda_type type, const float * x, void * y) {
    (void) x, (void) y; // every type may be left out
    switch (type) {
#define X(ID) GCUDAI_KERNEL_WHEN(ID, case GCUDA_TYPE_##ID: d_quantize<GCUDA_TYPE_##ID>(x, y); break;)
        D_CACHE_TYPES(X)
#undef X
        default: break;
    }
}

// How the heads of a token are shared out.
struct d_rope_share {
    int n_once; // heads that a block of threads has at once: whole blocks where y has blocks
    int n_each; // in all, so that where there are many it works out turns less often
    int unit;   // elements of a block of y; 1: it has none
    int64_t n_keys, n_groups; // groups of n_each heads of a token: of keys, and with those of queries
};

// Heads of a token: [0, n) lie at x, and go to y.
struct d_rope_heads {
    const char * x;
    char * y;
    int64_t x_nb0, x_nb1, y_nb0, y_nb1;
    int n;

    inline __device__ float at(int h, int64_t i) const { return *(const float *) (x + h * x_nb1 + i * x_nb0); }
    inline __device__ char * to(int h, int64_t i) const { return y + h * y_nb1 + i * y_nb0; }
};

static inline __device__ d_rope_heads d_rope_heads_of(const gcuda_array & x, int64_t h0, int64_t token, int64_t n_most) {
    const int64_t n = x.ne[1] - h0 < n_most ? x.ne[1] - h0 : n_most;
    return { d_at(x, 0, h0, token, 0), nullptr, (int64_t) x.nb[0], (int64_t) x.nb[1], 0, 0, (int) n };
}

// n elements in shared memory, rows of 32, become blocks of y. By all threads: elements may be written anew behind it.
static inline __device__ void d_put_cache(const gcuda_array & y, const float (*x)[36], int n, char * blocks, char * to) {
    const int tid = (int) threadIdx.x, size = (int) y.nb[0];
    __syncthreads();
    if (tid < n / 32) {
        float v[32];
        UNROLL for (int i = 0; i < 32; i += 4) { memcpy(v + i, (const float4 *) &x[tid][i], 16); }
        d_quantize_as(y.type, v, blocks + tid * size);
    }
    __syncthreads();
    NO_UNROLL for (int i = tid; i < n / 32 * size / 2; i += ROPE_SET_THREADS) { ((uint16_t *) to)[i] = ((const uint16_t *) blocks)[i]; }
}

// A block takes a token and some of its heads, of keys or of queries. Its threads work out the turns of all pairs once, while the first
// elements are under way.
//   floor   x and q read, rows of y and q_y written        shared  10 KiB        q == q_y is safe: a thread overwrites only what it alone reads
static __global__ void __launch_bounds__(ROPE_SET_THREADS, 3) k_rope_set(const gcuda_rope_set_args p, const d_rope_plan plan, const d_rope_share share) {
    alignas(16) __shared__ float elements[ROPE_SET_PIECE / 32][36];
    alignas(16) __shared__ char blocks[ROPE_SET_PIECE / 32 * sizeof(gcuda_block_q8_0)]; // the largest
    __shared__ float2 turns[ROPE_SET_PIECE / 2];
    const bool is_adjacent = p.rope.mode == GCUDA_ROPE_TYPE_NORMAL;
    gcuda_rope_args one_plane = p.rope;
    one_plane.mode &= GCUDA_ROPE_TYPE_NEOX; // as it is: the compiler is to know that there are no sections
    const int tid = (int) threadIdx.x, n_pairs = (int) plan.n_pairs, apart = is_adjacent ? 1 : n_pairs;
    const int ne0 = (int) p.rope.x.ne[0], n_rest = ne0 - 2 * n_pairs;
    d_take_turn();
    if (p.y.type == GCUDA_TYPE_IQ4_NL) { d_quantize_begin<GCUDA_TYPE_IQ4_NL>(); }
    FOR_ROWS(b, share.n_groups * p.rope.x.ne[2]) {
        const int64_t token = b / share.n_groups, group = b - token * share.n_groups;
        const bool is_key = group < share.n_keys, is_staged = is_key && share.unit > 1;
        const int64_t first = (is_key ? group : group - share.n_keys) * share.n_each, row = is_key ? d_rope_row(p, token) : 0;
        if (row < 0) { continue; } // the whole block
        NO_UNROLL for (int at = 0; at < share.n_each; at += share.n_once) {
            d_rope_heads heads = d_rope_heads_of(is_key ? p.rope.x : p.q, first + at, token, share.n_once);
            if (heads.n <= 0) { break; }
            heads.y = is_key ? d_at(p.y, (first + at) * ne0 / share.unit, row, 0, 0) : d_at(p.q_y, 0, first + at, token, 0);
            heads.y_nb0 = (int64_t) (is_key ? p.y.nb[0] : p.q_y.nb[0]);
            heads.y_nb1 = is_key ? ne0 * heads.y_nb0 : (int64_t) p.q_y.nb[1];
            const auto put = [&](int h, int i, float v) {
                const int e = h * ne0 + i;
                if (is_staged) {
                    elements[e / 32][e % 32] = v;
                } else {
                    d_store(is_key ? p.y.type : GCUDA_TYPE_F32, heads.to(h, i), v);
                }
            };
            float u[2], v[2];
            UNROLL for (int k = 0; k < 2; ++k) { // pairs are ROPE_SET_PIECE / 2 at most
                const int i = tid + k * ROPE_SET_THREADS, h = i / n_pairs, j = i - h * n_pairs, i0 = is_adjacent ? 2 * j : j;
                if (h < heads.n) {
                    u[k] = heads.at(h, i0);
                    v[k] = heads.at(h, i0 + apart);
                }
            }
            if (at == 0) {
                __syncthreads(); // the last use of turns is over
                NO_UNROLL for (int j = tid; j < n_pairs; j += ROPE_SET_THREADS) { turns[j] = d_rope_angle(one_plane, plan, j, token); }
                __syncthreads();
            }
            UNROLL for (int k = 0; k < 2; ++k) {
                const int i = tid + k * ROPE_SET_THREADS, h = i / n_pairs, j = i - h * n_pairs, i0 = is_adjacent ? 2 * j : j;
                if (h < heads.n) {
                    d_rotate(&u[k], &v[k], turns[j].x, turns[j].y);
                    put(h, i0, u[k]);
                    put(h, i0 + apart, v[k]);
                }
            }
            NO_UNROLL for (int i = tid; i < heads.n * n_rest; i += ROPE_SET_THREADS) {
                const int h = i / n_rest, i0 = 2 * n_pairs + i - h * n_rest;
                put(h, i0, heads.at(h, i0));
            }
            if (is_staged) { d_put_cache(p.y, elements, heads.n * ne0, blocks, heads.y); }
        }
    }
}

// Heads that a block has at once; 0: they do not fit.
static int rope_set_once(const gcuda_rope_set_args & p) {
    const int64_t ne0 = p.rope.x.ne[0], unit = (int64_t) gcuda_blck_size(p.y.type);
    int64_t n = ne0 > 0 ? ROPE_SET_PIECE / ne0 : 0;
    while (n * ne0 % unit != 0) { --n; }
    return (int) n;
}

bool gcuda_rope_set_takes(const gcuda_rope_set_args * args) {
    return args->rope.x.type == GCUDA_TYPE_F32 && (args->rope.mode == GCUDA_ROPE_TYPE_NORMAL || args->rope.mode == GCUDA_ROPE_TYPE_NEOX) &&
           args->rope.n_dims >= 2 && is_cache_type(args->y.type) && rope_set_once(*args) > 0 &&
           (args->q.data == nullptr || (args->q.type == GCUDA_TYPE_F32 && args->q_y.type == GCUDA_TYPE_F32));
}

gcuda_status gcuda_launch_rope_set(const gcuda_rope_set_args * args, gcuda_stream stream) {
    const gcuda_array & x = args->rope.x;
    if (!gcuda_rope_set_takes(args)) { return GCUDA_STATUS_UNSUPPORTED; }
    d_rope_share share = {};
    share.n_once = rope_set_once(*args);
    share.unit = (int) gcuda_blck_size(args->y.type);
    const int64_t n_heads = x.ne[1] + (args->q.data != nullptr ? args->q.ne[1] : 0), n_pieces = (n_heads + share.n_once - 1) / share.n_once * x.ne[2];
    const int64_t fitting = n_pieces / enough(2048), most = share.n_once < ROPE_HEADS ? ROPE_HEADS / share.n_once : 1;
    share.n_each = share.n_once * (int) (fitting < 1 ? 1 : fitting < most ? fitting : most);
    share.n_keys = (x.ne[1] + share.n_each - 1) / share.n_each;
    share.n_groups = share.n_keys + (n_heads - x.ne[1] + share.n_each - 1) / share.n_each;
    return launch_in_turn(k_rope_set, share.n_groups * x.ne[2], dim3(ROPE_SET_THREADS), stream, *args, rope_plan(args->rope), share);
}
#endif // part 10

#if (GCUDAI_PART(11) || GCUDAI_PART(13)) && GCUDAI_KERNEL_HAS(CONV)
// =====================================================================================================
// >>k-conv-packed   image and weights of a large convolution, as the products of parts 11 and 13 read them
// =====================================================================================================
// In scratch, in F16. The image has its channels innermost and the padding around it: how far an element of a patch is from
// the first does not depend on the patch, and none is outside. The weights lie in the tiles that shared memory gets of both:
// rows of 64 elements of K (a kernel's row, its column, the channel), whose pieces of 16 bytes change places with the row, so
// that eight rows have the same piece in different banks.
#define PACKED_ROW 128  // bytes, of a row of a tile
#define PACKED_TILE (64 * PACKED_ROW) // of 64 output channels
#define PACKED_SHARED (226 * 1024)    // bytes that part 13 wants

struct d_packed {
    char * w; // [64 output channels][step] tiles
    char * x; // [N][high][wide][n_c] pieces
    size_t w_bytes;
    int wide, high;
    int n_c, n_pieces, n_steps; // pieces of an element of the image, and of K; tiles in it
    int n_oc, n_pixels, image_pixels; // of the result
};

// Output channels with those that fill the last tile.
static inline int64_t packed_channels(int64_t n_oc) { return n_oc > 64 ? (n_oc + 127) / 128 * 128 : 64; }

static inline d_packed packed_of(const gcuda_conv_args & p) { // of what is_packed_conv
    d_packed q;
    q.wide = (int) ((p.y.ne[0] - 1) * p.s0 + (p.kernel.ne[0] - 1) * p.d0 + 1);
    q.high = (int) ((p.y.ne[1] - 1) * p.s1 + (p.kernel.ne[1] - 1) * p.d1 + 1);
    q.n_c = (int) ((p.x.ne[2] + 7) / 8);
    q.n_pieces = (int) (q.n_c * p.kernel.ne[0] * p.kernel.ne[1]);
    q.n_steps = (q.n_pieces + 7) / 8;
    q.n_oc = (int) p.kernel.ne[3];
    q.image_pixels = (int) (p.y.ne[0] * p.y.ne[1]);
    q.n_pixels = (int) (q.image_pixels * p.y.ne[3]);
    q.w_bytes = (size_t) (packed_channels(q.n_oc) / 64 * q.n_steps * PACKED_TILE);
    q.w = (char *) p.scratch;
    q.x = (char *) ((uintptr_t) p.scratch + q.w_bytes);
    return q;
}

// The piece of the image where the patch of a pixel begins.
static inline __device__ uint32_t d_packed_first(const gcuda_conv_args & p, const d_packed & q, int pixel) {
    const uint32_t at = (uint32_t) (pixel < q.n_pixels ? pixel : q.n_pixels - 1), wide = (uint32_t) p.y.ne[0];
    const uint32_t image = at / (uint32_t) q.image_pixels, rest = at - image * (uint32_t) q.image_pixels, y = rest / wide;
    const uint32_t row = image * (uint32_t) q.high + y * (uint32_t) p.s1;
    return (row * (uint32_t) q.wide + (rest - y * wide) * (uint32_t) p.s0) * (uint32_t) q.n_c;
}

// A piece of K of every step in turn.
struct d_packed_walk {
    int c, kw, left;    // its channels, in eights; pieces from it to the last
    uint32_t tap; // pieces from the first element of the patch to this one

    inline __device__ d_packed_walk(const gcuda_conv_args & p, const d_packed & q, int piece) : c(piece), kw(0), left(q.n_pieces - piece), tap(0) {
        wrap(p, q);
    }
    inline __device__ void wrap(const gcuda_conv_args & p, const d_packed & q) {
        while (c >= q.n_c) {
            c -= q.n_c;
            tap += (uint32_t) (p.d0 * q.n_c);
            if (++kw == (int) p.kernel.ne[0]) {
                kw = 0;
                tap += (uint32_t) ((p.d1 * q.wide - (int) p.kernel.ne[0] * p.d0) * q.n_c);
            }
        }
    }
    inline __device__ void next(const gcuda_conv_args & p, const d_packed & q) {
        c += 8;
        left -= 8;
        if (left > 0) { wrap(p, q); }
    }
    inline __device__ uint32_t place() const { return left > 0 ? tap + (uint32_t) c : 0; }
};

// Few channels and large images in F32 have a form that reads the image as it lies: strips of PACKED_STRIP pixels, row after row of them
// in segments.
#define PACKED_STRIP 256
#define PACKED_RING 8                     // rows in shared memory, at most
#define PACKED_RAW (PACKED_STRIP / 2 + 16) // floats of half a row of a channel as it lies
#define PACKED_RAWS 8                      // halves of rows of eight channels that are under way: two for each warp that fetches
#define PACKED_OUT (PACKED_STRIP + 8)      // floats from row to row of results: four rows of two floats a lane meet all banks
#define PACKED_FIXED (1024 + PACKED_RAWS * 8 * PACKED_RAW * 4 + 8 * 8 * PACKED_OUT * 4) // bytes beside weights and ring; 1024: to align

struct d_packed_rows {
    int ring, plane; // rows in shared memory; bytes of eight channels of one
    int below;       // rows from the first to the last of a patch
    int n_strips, n_segments, segment; // segments: 0 for images that are not for this; rows in one
    size_t shared_bytes;
};

// Strips must be filled and many. Segments: those whose last round leaves the fewest multiprocessors idle.
static inline d_packed_rows packed_rows_of(const gcuda_conv_args & p, const d_packed & q) {
    const int64_t more = (p.kernel.ne[0] - 1) * p.d0, row = q.n_c * (PACKED_STRIP + more) * 16, n_sm = n_multiprocessors();
    const int64_t fixed = PACKED_FIXED + (int64_t) q.n_steps * PACKED_TILE, rings = (PACKED_SHARED - SHARED_STATIC - fixed) / row;
    const size_t bits = (size_t) (uintptr_t) p.x.data | p.x.nb[1] | p.x.nb[2] | p.x.nb[3] | 4 * (size_t) p.x.ne[0];
    const bool is_plain = p.x.type == GCUDA_TYPE_F32 && p.y.type == GCUDA_TYPE_F32 && p.x.nb[0] == 4 && bits % 16 == 0 && p.s0 * p.s1 == 1;
    d_packed_rows s = {};
    s.below = (int) ((p.kernel.ne[1] - 1) * p.d1);
    s.plane = (int) (PACKED_STRIP + more) * 16;
    s.n_strips = (int) ((p.y.ne[0] + PACKED_STRIP - 1) / PACKED_STRIP);
    s.ring = (int) (rings < PACKED_RING ? rings : PACKED_RING);
    s.shared_bytes = (size_t) (fixed + s.ring * row);
    const bool is_filled = p.y.ne[0] * 5 >= (int64_t) s.n_strips * PACKED_STRIP * 4 && q.n_pixels >= n_sm * PACKED_STRIP * 8;
    if (!is_plain || q.n_oc > 64 || q.n_c % 2 != 0 || more > 12 || s.below == 0 || s.ring < s.below + 3 || !is_filled ||
        !fits_shared(PACKED_SHARED, p.max_shared) || !gcuda_has_warp_groups()) {
        return s;
    }
    double least = 0.0;
    for (int n = 1; n <= 64; ++n) {
        const int64_t segment = (p.y.ne[1] + n - 1) / n, n_segments = (p.y.ne[1] + segment - 1) / segment;
        const int64_t n_blocks = n_segments * s.n_strips * p.y.ne[3];
        const double cost = (double) ((n_blocks + n_sm - 1) / n_sm) * (double) (segment + s.below + 2);
        if ((least == 0.0 || cost < least) && n_blocks < GRID_LIMIT) {
            least = cost;
            s.segment = (int) segment;
            s.n_segments = (int) n_segments;
        }
    }
    return s;
}

static inline size_t packed_x_bytes(const gcuda_conv_args & p, const d_packed & q) {
    return (size_t) q.wide * (size_t) q.high * (size_t) q.n_c * (size_t) p.x.ne[3] * 16;
}

// A kernel of one element is a product of matrices, whose image needs no more than its channels innermost.
static inline bool is_packed_product(const gcuda_conv_args & p) {
    return p.kernel.ne[0] * p.kernel.ne[1] == 1 && p.s0 == 1 && p.s1 == 1 && p.p0 == 0 && p.p1 == 0 && p.x.ne[2] % 8 == 0 &&
           (uintptr_t) p.kernel.data % 16 == 0 && (uintptr_t) p.scratch % 16 == 0 && p.y.type == GCUDA_TYPE_F32;
}
static inline gcuda_mul_mat_args packed_product_of(const gcuda_conv_args & p, char * x) {
    const int64_t n_pixels = p.y.ne[0] * p.y.ne[1], n_in = p.x.ne[2], n_oc = p.kernel.ne[3], n_images = p.y.ne[3];
    gcuda_mul_mat_args m = {};
    m.a = packed_array(GCUDA_TYPE_F16, x, n_in, n_pixels, n_images, 1);
    m.b = packed_array(GCUDA_TYPE_F16, p.kernel.data, n_in, n_oc, 1, 1);
    m.y = packed_array(GCUDA_TYPE_F32, p.y.data, n_pixels, n_oc, n_images, 1);
    m.max_shared = p.max_shared;
    return m;
}

// Where a piece of a row of a tile is.
static inline __device__ int d_packed_at(int row, int piece) { return row * PACKED_ROW + (piece ^ (row & 7)) * 16; }

// Two adjacent elements, the first at a multiple of their size.
static inline __device__ void d_put_two(float * p, float v0, float v1) { *(float2 *) p = make_float2(v0, v1); }
static inline __device__ void d_put_two(__half * p, float v0, float v1) { *(uint32_t *) p = d_two_halfs(v0, v1); }
static inline __device__ void d_put_two(__nv_bfloat16 * p, float v0, float v1) {
    const __nv_bfloat162 h = __floats2bfloat162_rn(v0, v1);
    memcpy(p, &h, 4);
}

// Results of a lane: N times two pixels, eight apart, of two output channels, eight apart.
template <typename TY, int N>
static inline __device__ void d_packed_store(const gcuda_conv_args & p, const d_packed & q, int oc, int pixel, const float * v) {
    int image = pixel / q.image_pixels, at = pixel - image * q.image_pixels;
    const int64_t plane = q.image_pixels, one = q.n_oc * plane;
    const bool is_pair = q.image_pixels % 2 == 0 && (uintptr_t) p.y.data % (2 * sizeof(TY)) == 0;
    TY * y = (TY *) p.y.data + image * one + oc * plane;
    UNROLL for (int j = 0; j < N; ++j) {
        UNROLL for (int h = 0; h < 2; ++h) {
            TY * to = y + h * 8 * plane + at;
            const float v0 = v[4 * j + 2 * h], v1 = v[4 * j + 2 * h + 1];
            if (oc + 8 * h < q.n_oc && pixel + 8 * j < q.n_pixels) {
                if (is_pair) {
                    d_put_two(to, v0, v1);
                } else {
                    d_put(to, v0);
                    if (pixel + 8 * j + 1 < q.n_pixels) { d_put(at + 1 < q.image_pixels ? to + 1 : to + 1 + one - plane, v1); }
                }
            }
        }
        for (at += 8; at >= q.image_pixels && pixel + 8 * j + 8 < q.n_pixels; at -= q.image_pixels) { y += one; }
    }
}
#endif // parts 11 and 13

#if GCUDAI_PART(11) && GCUDAI_KERNEL_HAS(CONV)
// =====================================================================================================
// >>k-conv   convolution, pooling, resampling
// =====================================================================================================

// ---- columns: elements of y from places of x, 0 outside ----
//   floor   y written, x mostly from cache
struct d_patches { // one- to three-dimensional
    gcuda_array x, y;
    int64_t k[3], channels, depth; // kernel extents; input channels; output places in dimension 2, 1 for images
    int32_t s[3], p[3], d[3];
    bool is_3d;
};

// A thread has a column and IM2COL_PLACES neighbouring places: what places share is read from L1, and the column is
// taken apart once.
#define IM2COL_PLACES 16

template <typename TX, typename TY> static __global__ void k_im2col(const d_patches p) {
    const int64_t n_cols = (p.y.ne[0] + 255) / 256, n_places = (p.y.ne[1] + IM2COL_PLACES - 1) / IM2COL_PLACES;
    FOR_ROWS(b, n_cols * n_places * p.y.ne[2] * p.y.ne[3]) {
        const int64_t c0 = b / n_cols, c1 = c0 / n_places, i3 = c1 / p.y.ne[2], i2 = c1 - i3 * p.y.ne[2];
        const int64_t first = (c0 - c1 * n_places) * IM2COL_PLACES, at = (b - c0 * n_cols) * 256 + threadIdx.x;
        const int64_t image = p.is_3d ? i3 / p.depth : i3, o2 = p.is_3d ? i3 - image * p.depth : 0;
        if (at >= p.y.ne[0]) {
            continue;
        }
        const int64_t q = at / p.k[0], r = q / p.k[1], c = p.is_3d ? r / p.k[2] : r;
        const int64_t y = i2 * p.s[1] - p.p[1] + (q - r * p.k[1]) * p.d[1];
        const int64_t z = p.is_3d ? o2 * p.s[2] - p.p[2] + (r - c * p.k[2]) * p.d[2] : 0;
        const bool is_in = y >= 0 && y < p.x.ne[1] && z >= 0 && (!p.is_3d || z < p.x.ne[2]);
        const char * row = p.is_3d ? d_at(p.x, 0, is_in ? y : 0, is_in ? z : 0, image * p.channels + c)
                                   : d_at(p.x, 0, is_in ? y : 0, c, image);
        const int64_t n = !is_in ? 0 : p.x.ne[0], x = first * p.s[0] - p.p[0] + (at - q * p.k[0]) * p.d[0];
        char * to = d_at(p.y, at, first, i2, i3);
        for (int k0 = 0; k0 < IM2COL_PLACES && first + k0 < p.y.ne[1]; k0 += 8) {
            float v[8];
            for (int k = 0; k < 8; ++k) {
                const int64_t from = x + (k0 + k) * (int64_t) p.s[0];
                v[k] = from >= 0 && from < n ? d_f32(*(const TX *) (row + from * (int64_t) p.x.nb[0])) : 0.0f;
            }
            for (int k = 0; k < 8; ++k) {
                if (first + k0 + k < p.y.ne[1]) { d_put((TY *) (to + (k0 + k) * (int64_t) p.y.nb[1]), v[k]); }
            }
        }
    }
}

// A block stages the rows that up to COLUMN_PLACES places of `channels` channels see, as they go to the columns, and a thread
// has PER neighbouring columns of all of them. Rows in shared memory are an odd number of fours of elements apart, so that rows
// next to each other lie in different banks.
#define COLUMN_PLACES 64
#define COLUMN_BYTES 36864
struct d_column_tile {
    int channels, n_cols, width, pitch; // of a block; elements of a row, and from one to the next
    int fours;                          // of a row, wherever it begins, where the image is read in fours; otherwise 0
    int places, lines, rows;            // of a block: in a line, lines of them, rows of a channel that these see
    int64_t n_groups, n_stretches, n_lines; // of channels; of places; of lines
};

// A row under the kernel: rows of shared memory are [channel][kernel dimension 2][row of the channel]. NULL outside.
static inline __device__ const char * d_column_row(const d_patches & p, int rows, int r, int64_t c0, int64_t oy, int64_t last) {
    const int kd = (int) p.k[2], q = r / rows, c = q / kd;
    const int64_t image = p.is_3d ? last / p.depth : last, oz = p.is_3d ? last - image * p.depth : 0;
    const int64_t y = oy * p.s[1] - p.p[1] + (r - q * rows);
    const int64_t z = p.is_3d ? oz * p.s[2] - p.p[2] + (int64_t) (q - c * kd) * p.d[2] : 0;
    if (y < 0 || y >= p.x.ne[1] || z < 0 || (p.is_3d && z >= p.x.ne[2])) { return nullptr; }
    return p.is_3d ? d_at(p.x, 0, y, z, image * p.channels + c0 + c) : d_at(p.x, 0, y, c0 + c, image);
}

// Rows to shared memory, V elements at a time, the first at place x0 of the image; 0 outside.
template <typename TX, typename TY, int V>
static inline __device__ void d_column_stage(
    const d_patches & p, const d_column_tile & t, const char ** from, TY * rows, int n_rows, int64_t x0) {
    const int AT_ONCE = V == 1 || sizeof(TY) == 2 ? 4 : 2; // registers: four cost wider results a block of a multiprocessor
    const int per_row = V == 1 ? t.width : t.fours, n_threads = (int) blockDim.x, tid = (int) threadIdx.x;
    const int row_step = n_threads / per_row, rest_step = n_threads - row_step * per_row;
    const int begin = x0 < 0 ? (int) -x0 : 0, end = (int) (p.x.ne[0] - x0 < per_row * V ? p.x.ne[0] - x0 : per_row * V);
    for (int r0 = tid / per_row, e0 = tid - r0 * per_row; r0 < n_rows;) {
        d_pack<TX, V> v[AT_ONCE];
        int at[AT_ONCE];
        UNROLL for (int k = 0; k < AT_ONCE; ++k) {
            const char * row = r0 < n_rows ? from[r0] : nullptr;
            at[k] = r0 < n_rows ? r0 * t.pitch + e0 * V : -1;
            v[k] = d_pack<TX, V>();
            if (row != nullptr && e0 * V >= begin && e0 * V < end) {
                v[k] = *(const d_pack<TX, V> *) (row + (x0 + e0 * V) * (int64_t) p.x.nb[0]);
            }
            r0 += row_step;
            e0 += rest_step;
            if (e0 >= per_row) {
                e0 -= per_row;
                ++r0;
            }
        }
        UNROLL for (int k = 0; k < AT_ONCE; ++k) {
            d_pack<TY, V> to;
            UNROLL for (int i = 0; i < V; ++i) { d_put(&to.v[i], d_f32(v[k].v[i])); }
            if (at[k] >= 0) { *(d_pack<TY, V> *) &rows[at[k]] = to; }
        }
    }
}

// Four neighbouring columns of places next to each other, in 16 bits: two places of a column are a word of its row or parts of two.
template <typename TY>
static inline __device__ void d_column_fours(const TY * rows, const int (&own)[4], char * to, size_t step, int n_places) {
    const uint32_t * seen[4];
    uint32_t v[4], order[4];
    UNROLL for (int i = 0; i < 4; ++i) {
        seen[i] = (const uint32_t *) rows + own[i] / 2;
        order[i] = own[i] % 2 != 0 ? 0x5432 : 0x3210;
        v[i] = *seen[i]++;
    }
    for (int k = 0; k < n_places; k += 2, to += 2 * step) {
        uint32_t two[4];
        UNROLL for (int i = 0; i < 4; ++i) {
            const uint32_t next = *seen[i]++; // behind the last place what is read does not count
            two[i] = d_permute(v[i], next, order[i]);
            v[i] = next;
        }
        *(uint2 *) to = make_uint2(d_permute(two[0], two[1], 0x5410), d_permute(two[2], two[3], 0x5410));
        if (k + 1 < n_places) { *(uint2 *) (to + step) = make_uint2(d_permute(two[0], two[1], 0x7632), d_permute(two[2], two[3], 0x7632)); }
    }
}

template <typename TX, typename TY, int PER>
static __global__ void __launch_bounds__(512) k_im2col_tile(const d_patches p, const d_column_tile t) {
    DYNAMIC_SHARED(TY, rows);
    const int kw = (int) p.k[0], kh = (int) p.k[1], n_threads = (int) blockDim.x, tid = (int) threadIdx.x, col = tid * PER;
    const int per_channel = t.rows * (int) p.k[2];
    const char ** const from = (const char **) ((char *) rows + ((size_t) (t.channels * per_channel * t.pitch) * sizeof(TY) + 7) / 8 * 8);
    FOR_ROWS(b, t.n_groups * t.n_stretches * t.n_lines * p.y.ne[3]) {
        const int64_t b1 = b / t.n_groups, b2 = b1 / t.n_stretches, last = b2 / t.n_lines, oy = (b2 - last * t.n_lines) * t.lines;
        const int64_t c0 = (b - b1 * t.n_groups) * t.channels, ox0 = (b1 - b2 * t.n_stretches) * t.places;
        const int n_c = (int) (p.channels - c0 < t.channels ? p.channels - c0 : t.channels), n_rows = n_c * per_channel;
        const int n_places = (int) (p.y.ne[1] - ox0 < t.places ? p.y.ne[1] - ox0 : t.places);
        const int n_lines = (int) (p.y.ne[2] - oy < t.lines ? p.y.ne[2] - oy : t.lines);
        const int64_t x0 = ox0 * p.s[0] - p.p[0];
        const int lead = t.fours > 0 ? (int) x0 & 3 : 0; // elements before the first, so that fours of the image stay fours
        __syncthreads(); // the tile before is written
        for (int r = tid; r < n_rows; r += n_threads) { from[r] = d_column_row(p, t.rows, r, c0, oy, last); }
        __syncthreads();
        if (t.fours > 0) {
            d_column_stage<TX, TY, 4>(p, t, from, rows, n_rows, x0 - lead);
        } else {
            d_column_stage<TX, TY, 1>(p, t, from, rows, n_rows, x0);
        }
        __syncthreads();
        int own[PER];
        UNROLL for (int i = 0; i < PER; ++i) {
            const int q = (col + i) / kw, z = q / kh;
            own[i] = (z * t.rows + (q - z * kh) * p.d[1]) * t.pitch + (col + i - q * kw) * p.d[0] + lead;
        }
        const int n_cols = n_c * kh * (int) p.k[2] * kw;
        for (int line = 0; line < n_lines && col < n_cols; ++line) {
            char * to = d_at(p.y, c0 * p.k[2] * kh * kw + col, ox0, oy + line, last);
            const TY * seen = rows + line * p.s[1] * t.pitch;
            if constexpr (PER == 4) {
                d_column_fours(seen, own, to, p.y.nb[1], n_places);
            } else {
                for (int k = 0; k < n_places; k += 4, to += 4 * p.y.nb[1], seen += 4 * p.s[0]) {
                    d_pack<TY, PER> v[4];
                    UNROLL for (int m = 0; m < 4; ++m) {
                        UNROLL for (int i = 0; i < PER; ++i) { v[m].v[i] = seen[own[i] + (k + m < n_places ? m * p.s[0] : 0)]; }
                    }
                    UNROLL for (int m = 0; m < 4; ++m) {
                        if (k + m < n_places) { *(d_pack<TY, PER> *) (to + m * (int64_t) p.y.nb[1]) = v[m]; }
                    }
                }
            }
        }
    }
}

// Channels of a tile: a warp's worth of columns or more, up to 512 columns (1024 in fours) and COLUMN_BYTES; lines while there is room,
// few places and work for all multiprocessors. False: no tile.
static bool column_tile(const d_patches & p, int per, d_column_tile * t) {
    const int64_t size = (int64_t) gcuda_type_size(p.y.type), per_channel = p.k[0] * p.k[1] * p.k[2], most = per == 4 ? 1024 : 512;
    const int64_t first_rows = (p.k[1] - 1) * (int64_t) p.d[1] + 1;
    if (first_rows * p.k[2] > 512 || per_channel > most || p.s[0] < 1 || p.s[0] > 4 || p.y.ne[1] < 8) { return false; }
    t->n_stretches = (p.y.ne[1] + COLUMN_PLACES - 1) / COLUMN_PLACES;
    t->places = (int) ((p.y.ne[1] + t->n_stretches - 1) / t->n_stretches);
    const int64_t width = (t->places - 1) * (int64_t) p.s[0] + (p.k[0] - 1) * (int64_t) p.d[0] + 1;
    if (width > 512) { return false; }
    t->width = (int) width;
    const size_t bits = (size_t) (uintptr_t) p.x.data | p.x.nb[1] | p.x.nb[2] | p.x.nb[3];
    const bool in_fours = p.x.ne[0] % 4 == 0 && p.x.nb[0] == gcuda_type_size(p.x.type) && bits % (4 * p.x.nb[0]) == 0;
    t->fours = in_fours ? (int) ((width + 6) / 4) : 0;
    t->pitch = (int) ((width + 6) / 8 * 8 + 4);
    const int64_t row_bytes = t->pitch * size + (int64_t) sizeof(char *);
    int64_t c = most / 16, rows = first_rows;
    while (c > 1 && (c * per_channel > most || c * p.k[2] * rows * row_bytes > COLUMN_BYTES)) { c /= 2; }
    c = c < p.channels ? c : p.channels;
    t->channels = (int) c;
    t->n_groups = (p.channels + c - 1) / c;
    const int64_t n_tiles = t->n_groups * t->n_stretches * p.y.ne[2] * p.y.ne[3], least = enough(8 * n_multiprocessors());
    for (t->lines = 1; t->lines * t->places < 2 * COLUMN_PLACES && t->lines * 2 <= p.y.ne[2]; t->lines *= 2) {
        if (n_tiles / (t->lines * 2) < least) { break; }
        const int64_t more = first_rows + (2 * t->lines - 1) * (int64_t) p.s[1];
        if (c * p.k[2] * more * row_bytes > COLUMN_BYTES) { break; }
        rows = more;
    }
    t->rows = (int) rows;
    t->n_cols = (int) (c * per_channel);
    t->n_lines = (p.y.ne[2] + t->lines - 1) / t->lines;
    const bool fits = c * p.k[2] * rows * row_bytes <= COLUMN_BYTES, is_packed_wide = p.y.ne[0] == p.channels * per_channel;
    return fits && is_packed_wide && t->n_cols >= 32 && t->n_cols % per == 0;
}

template <typename TX, typename TY, int PER>
static gcuda_status columns_tiled(const d_patches & p, const d_column_tile & t, gcuda_stream stream) {
    const int n_threads = (t.n_cols / PER + 31) / 32 * 32;
    const size_t n_rows = (size_t) (t.channels * t.rows * p.k[2]);
    const size_t n_bytes = (n_rows * t.pitch * sizeof(TY) + 7) / 8 * 8 + n_rows * sizeof(char *);
    const int64_t n_blocks = t.n_groups * t.n_stretches * t.n_lines * p.y.ne[3];
    return launch_shared(k_im2col_tile<TX, TY, PER>, n_blocks, dim3((unsigned) n_threads), n_bytes, 0, stream, p, t);
}

static gcuda_status columns(const d_patches & p, gcuda_stream stream) {
    d_column_tile tile;
    const int64_t n_wide = p.channels * p.k[0] * p.k[1] * p.k[2];
    const size_t bits = (size_t) (uintptr_t) p.y.data;
    const bool is_short = gcuda_type_size(p.y.type) == 2 && n_elements(p.y) > 0;
    const bool is_fours = is_short && n_wide % 4 == 0 && bits % 8 == 0 && p.s[0] == 1 && column_tile(p, 4, &tile);
    const bool is_even = is_short && n_wide % 2 == 0 && bits % 4 == 0;
    if (n_elements(p.y) > 0 && (is_fours || column_tile(p, is_even ? 2 : 1, &tile)) && is_packed(p.y)) {
        return with_float(p.x.type, [&](auto x) {
            return with_float(p.y.type, [&](auto y) {
                typedef decltype(x) TX;
                typedef decltype(y) TY;
                if constexpr (sizeof(TY) == 2) {
                    return is_fours  ? columns_tiled<TX, TY, 4>(p, tile, stream)
                           : is_even ? columns_tiled<TX, TY, 2>(p, tile, stream)
                                     : columns_tiled<TX, TY, 1>(p, tile, stream);
                } else {
                    return columns_tiled<TX, TY, 1>(p, tile, stream);
                }
            });
        });
    }
    const int64_t n_cols = (p.y.ne[0] + 255) / 256, n_places = (p.y.ne[1] + IM2COL_PLACES - 1) / IM2COL_PLACES;
    return with_float(p.x.type, [&](auto x) {
        return with_float(p.y.type, [&](auto y) {
            return launch(k_im2col<decltype(x), decltype(y)>, n_cols * n_places * p.y.ne[2] * p.y.ne[3], 256, stream, p);
        });
    });
}

// >>op:im2col -----------------------------------------------------------------------------------------
gcuda_status gcuda_launch_im2col(const gcuda_conv_args * args, gcuda_stream stream) {
    d_patches p = {};
    p.x = args->x;
    p.y = args->y;
    p.k[0] = args->kernel.ne[0], p.k[1] = args->kernel.ne[1], p.k[2] = 1;
    p.s[0] = args->s0, p.s[1] = args->s1;
    p.p[0] = args->p0, p.p[1] = args->p1;
    p.d[0] = args->d0, p.d[1] = args->d1;
    p.channels = args->kernel.ne[2];
    p.depth = 1;
    return columns(p, stream);
}

// >>op:im2col_3d --------------------------------------------------------------------------------------
gcuda_status gcuda_launch_im2col_3d(const gcuda_im2col_3d_args * args, gcuda_stream stream) {
    d_patches p = {};
    p.x = args->x;
    p.y = args->y;
    for (int i = 0; i < 3; ++i) {
        p.k[i] = args->kernel.ne[i];
        p.s[i] = args->s[i];
        p.p[i] = args->p[i];
        p.d[i] = args->d[i];
    }
    p.channels = args->channels;
    p.depth = args->y.ne[3] / (args->x.ne[3] / args->channels);
    p.is_3d = true;
    return n_elements(args->y) > 0 ? columns(p, stream) : GCUDA_STATUS_SUCCESS;
}

// >>op:im2col_back ------------------------------------------------------------------------------------
// An element of the image collects the columns it was copied to.
//   floor   x read once, y written
static __global__ void k_im2col_back(const gcuda_conv_args p, const tiles t) {
    const int64_t kw_n = p.kernel.ne[0], kh_n = p.kernel.ne[1];
    FOR_TILES(tile, t) {
        d_index i = d_tile_at(t, p.y.ne, tile, 1, 1);
        float sum = 0.0f;
        if (i.i0 >= p.y.ne[0]) {
            continue;
        }
        for (int64_t kh = 0; kh < kh_n; ++kh) {
            const int64_t y = i.i1 + p.p1 - kh * p.d1, oy = p.s1 == 1 ? y : y / p.s1; // divisions cost more than the rest
            if (y < 0 || oy * p.s1 != y || oy >= p.x.ne[2]) {
                continue;
            }
            for (int64_t kw = 0; kw < kw_n; ++kw) {
                const int64_t x = i.i0 + p.p0 - kw * p.d0, ox = p.s0 == 1 ? x : x / p.s0;
                if (x >= 0 && ox * p.s0 == x && ox < p.x.ne[1]) {
                    sum += d_load(p.x.type, d_at(p.x, (i.i2 * kh_n + kh) * kw_n + kw, ox, oy, i.i3));
                }
            }
        }
        *(float *) d_at(p.y, i) = sum;
    }
}

// The same sums in the same order, from shared memory: a block stages the columns of a few channels that a rectangle of the image was
// copied to, four neighbouring ones at a time. Neighbours of the rectangle stage the columns at its edges once more, from L2.
#define IM2COL_BACK_BYTES 32768
#define BACK_ELEMENTS 128 // of a rectangle: a thread has one of them, in every second channel of at most 16 (CHANNELS)
struct d_back_tile {
    int channels, pitch;              // of a block; floats from one place to the next, an odd number: places lie in different banks
    int wide, high;                   // of the rectangle, powers of two
    int64_t n_groups, n_wide, n_high; // of channels; rectangles
};

// Places [first, first + n) of a dimension whose columns reach elements [at, at + wide) of the image.
struct d_copied {
    int64_t first;
    int n;
    inline __device__ d_copied(int64_t at, int64_t wide, int pad, int stride, int64_t below, int64_t n_places) {
        const int64_t low = at + pad - below, high = at + wide - 1 + pad;
        const int64_t end = high < 0 ? 0 : high / stride + 1 < n_places ? high / stride + 1 : n_places;
        first = low <= 0 ? 0 : (low + stride - 1) / stride;
        n = first < end ? (int) (end - first) : 0;
    }
};

template <typename TX, int CHANNELS> static __global__ void __launch_bounds__(256) k_im2col_back_tile(const gcuda_conv_args p, const d_back_tile t) {
    DYNAMIC_SHARED(float, columns);
    const int kw_n = (int) p.kernel.ne[0], kh_n = (int) p.kernel.ne[1], taps = kw_n * kh_n, tid = (int) threadIdx.x;
    FOR_ROWS(b, t.n_groups * t.n_wide * t.n_high * p.y.ne[3]) {
        const int64_t b1 = b / t.n_groups, b2 = b1 / t.n_wide, i3 = b2 / t.n_high, c0 = (b - b1 * t.n_groups) * t.channels;
        const int64_t x0 = (b1 - b2 * t.n_wide) * t.wide, y0 = (b2 - i3 * t.n_high) * t.high;
        const int n_c = (int) (p.y.ne[2] - c0 < t.channels ? p.y.ne[2] - c0 : t.channels), fours = n_c * taps / 4;
        const d_copied wide(x0, t.wide, p.p0, p.s0, (kw_n - 1) * (int64_t) p.d0, p.x.ne[1]);
        const d_copied high(y0, t.high, p.p1, p.s1, (kh_n - 1) * (int64_t) p.d1, p.x.ne[2]);
        const int at_once = 256 / fours, four = tid % fours, n = tid < at_once * fours ? wide.n * high.n : 0; // places
        const int step_h = wide.n > 0 ? at_once / wide.n : 0, step_w = at_once - step_h * wide.n;
        int place = tid / fours, h = wide.n > 0 ? place / wide.n : 0, w = place - h * wide.n;
        const char * from = d_at(p.x, c0 * taps + 4 * four, wide.first, high.first, i3) + w * (int64_t) p.x.nb[1] + h * (int64_t) p.x.nb[2];
        const int64_t step = step_w * (int64_t) p.x.nb[1] + step_h * (int64_t) p.x.nb[2], wrapped = (int64_t) p.x.nb[2] - wide.n * (int64_t) p.x.nb[1];
        __syncthreads(); // the rectangle before is summed up
        while (place < n) {
            d_pack<TX, 4> v[4];
            const int first = place;
            UNROLL for (int m = 0; m < 4; ++m) {
                if (place < n) { v[m] = *(const d_pack<TX, 4> *) from; }
                place += at_once;
                w += step_w;
                from += step;
                if (w >= wide.n) {
                    w -= wide.n;
                    from += wrapped;
                }
            }
            UNROLL for (int m = 0; m < 4; ++m) {
                float * to = columns + (first + m * at_once) * t.pitch + 4 * four;
                UNROLL for (int j = 0; j < 4 && first + m * at_once < n; ++j) { to[j] = d_f32(v[m].v[j]); }
            }
        }
        __syncthreads();
        const int apart = 256 / BACK_ELEMENTS, element = tid % BACK_ELEMENTS, first_c = tid / BACK_ELEMENTS;
        const int64_t i0 = x0 + (element & (t.wide - 1)), i1 = y0 + element / t.wide;
        float sum[CHANNELS] = {};
        for (int kh = 0; kh < kh_n; ++kh) {
            const int y = (int) (i1 + p.p1 - kh * (int64_t) p.d1 - high.first * p.s1), oh = p.s1 == 1 ? y : y / p.s1;
            if (y < 0 || oh * p.s1 != y || oh >= high.n) { continue; }
            for (int kw = 0; kw < kw_n; ++kw) {
                const int x = (int) (i0 + p.p0 - kw * (int64_t) p.d0 - wide.first * p.s0), ow = p.s0 == 1 ? x : x / p.s0;
                if (x < 0 || ow * p.s0 != x || ow >= wide.n) { continue; }
                const float * column = columns + (oh * wide.n + ow) * t.pitch + first_c * taps + kh * kw_n + kw;
                UNROLL for (int k = 0; k < CHANNELS; ++k) {
                    if (first_c + k * apart < n_c) { sum[k] += column[k * apart * taps]; }
                }
            }
        }
        UNROLL for (int k = 0; k < CHANNELS; ++k) {
            const int c = first_c + k * apart;
            if (c < n_c && i0 < p.y.ne[0] && i1 < p.y.ne[1]) { *(float *) d_at(p.y, i0, i1, c0 + c, i3) = sum[k]; }
        }
    }
}

// Places of a dimension that a rectangle's elements may have been copied to.
static int64_t most_reached(int64_t wide, int64_t below, int stride) { return (wide - 1 + below) / stride + 1; }

// As many channels as there is room for, in fours of columns. False: no tile.
static bool back_tile(const gcuda_conv_args & p, d_back_tile * t, size_t * n_bytes) {
    const int64_t taps = p.kernel.ne[0] * p.kernel.ne[1], size = (int64_t) gcuda_type_size(p.x.type);
    const int64_t below0 = (p.kernel.ne[0] - 1) * p.d0, below1 = (p.kernel.ne[1] - 1) * p.d1;
    const size_t bits = (size_t) (uintptr_t) p.x.data | p.x.nb[1] | p.x.nb[2] | p.x.nb[3];
    if (p.x.nb[0] != (size_t) size || bits % (4 * size) != 0 || p.x.ne[0] % 4 != 0 || taps > 256 || below0 > 256 || below1 > 256 ||
        p.s0 > 256 || p.s1 > 256 || n_elements(p.y) == 0) {
        return false;
    }
    t->wide = p.y.ne[1] > 1 ? 16 : BACK_ELEMENTS;
    t->high = BACK_ELEMENTS / t->wide;
    const int64_t places = most_reached(t->wide, below0, p.s0) * most_reached(t->high, below1, p.s1);
    int64_t c = 16;
    const int64_t most = 4 * 256; // columns of a place: a thread stages four
    while (c > 0 && (c * taps % 4 != 0 || c * taps > most || (c * taps + 1) * places * 4 > IM2COL_BACK_BYTES)) { c = c % 4 == 0 ? c - 4 : c / 2; }
    t->channels = (int) c;
    t->pitch = (int) (c * taps) + 1;
    t->n_groups = c > 0 ? (p.y.ne[2] + c - 1) / c : 0;
    t->n_wide = (p.y.ne[0] + t->wide - 1) / t->wide;
    t->n_high = (p.y.ne[1] + t->high - 1) / t->high;
    *n_bytes = (size_t) (t->pitch * places * 4);
    return c > 0;
}

gcuda_status gcuda_launch_im2col_back(const gcuda_conv_args * args, gcuda_stream stream) {
    const gcuda_conv_args & p = *args;
    d_back_tile t = {};
    size_t n_bytes = 0;
    if (!back_tile(p, &t, &n_bytes)) { return launch_tiles(k_im2col_back, tiles_of(p.y, 1, 1), stream, p); }
    return with_float(p.x.type, [&](auto x) {
        typedef decltype(x) T;
        const int64_t n_blocks = t.n_groups * t.n_wide * t.n_high * p.y.ne[3];
        return launch_shared(t.channels <= 4 ? k_im2col_back_tile<T, 2> : k_im2col_back_tile<T, 8>, n_blocks, dim3(256), n_bytes, 0, stream, p, t);
    });
}

// >>op:conv_2d ----------------------------------------------------------------------------------------
// Three forms. Few output channels, or F32 asked for: a thread has eight channels of a pixel, in F32. Otherwise a product
// of the weights [OC, K] with the patches [K, pixels], K = IC KH KW, whose patches are gathered into shared memory tile by
// tile and never are in global memory: with weights in F16 patches are rounded to F16, else both to TF32; sums in F32. Large
// ones with weights in F16 gather from a copy of the image whose channels are innermost; a kernel of one element makes that a plain
// product of matrices, and few channels of a large F32 image need no copy where warp groups are.
//   floor   2 OC K pixels operations; x, weights and y once

// Where element k of a patch is, counted from its first. Distances are ints: images, kernels and padding are less than CONV_FAR.
#define CONV_FAR (1 << 28)
struct d_tap {
    int64_t offset; // bytes
    int dx, dy;
};

// WORDS: depth of a tile, each two halfs or a TF32 number.
template <typename TX, typename TW, bool IS_F16, int BM, int BN, int WORDS>
static __global__ void __launch_bounds__(256) k_conv_2d_mma(const gcuda_conv_args p, uint32_t n_pixels, uint32_t n_taps) {
    const int PER_WORD = IS_F16 ? 2 : 1, DEPTH = WORDS * PER_WORD;
    const int PITCH = WORDS + 4, ROW_CHUNKS = WORDS / 4;        // words: lanes of a fragment meet no bank twice
    const int GROUPS = 256 / BN, OWN = DEPTH / GROUPS;          // threads of a pixel; taps of a thread
    const int CHUNK = 4 * PER_WORD, A_CHUNKS = BM * ROW_CHUNKS / 256; // elements of 16 bytes; those of a thread
    const int MI = BM / 32, NI = BN / 32;                       // fragments of a warp: 2 x 4 warps
    alignas(16) __shared__ uint32_t a_tile[2][BM * PITCH], b_tile[2][BN * PITCH];
    __shared__ d_tap taps[2][DEPTH];
    const int tid = (int) threadIdx.x, lane = tid % 32, warp = tid / 32, wm = warp / 4, wn = warp % 4;
    const uint32_t n_oc = (uint32_t) p.kernel.ne[3], n_m = (n_oc + BM - 1) / BM, n_n = (n_pixels + BN - 1) / BN;
    const uint32_t row_pixels = (uint32_t) p.y.ne[0], image_pixels = row_pixels * (uint32_t) p.y.ne[1], n_k = (n_taps + DEPTH - 1) / DEPTH;
    const uint32_t kw_n = (uint32_t) p.kernel.ne[0], kh_n = (uint32_t) p.kernel.ne[1];
    const bool can_chunk = n_taps % CHUNK == 0 && (IS_F16 || sizeof(TW) == 4) && (uintptr_t) p.kernel.data % 16 == 0;
    const int own_pixel = tid % BN, own_tap = tid / BN * OWN, wide = (int) p.x.ne[0], high = (int) p.x.ne[1];

    FOR_ROWS(block, n_m * (int64_t) n_n) {
        const uint32_t tile_n = (uint32_t) (block / n_m), oc0 = ((uint32_t) block - tile_n * n_m) * BM, pixel0 = tile_n * BN;
        const uint32_t pixel = pixel0 + (uint32_t) own_pixel, image = pixel / image_pixels, at = pixel - image * image_pixels;
        const uint32_t oy = at / row_pixels, ox = at - oy * row_pixels;
        const int x0 = pixel < n_pixels ? (int) ox * p.s0 - p.p0 : -CONV_FAR, y0 = (int) oy * p.s1 - p.p1;
        const char * first = (const char *) p.x.data + image * (int64_t) p.x.nb[3] + y0 * (int64_t) p.x.nb[1] +
                             (pixel < n_pixels ? x0 : 0) * (int64_t) p.x.nb[0];
        float acc[MI][NI][4];
        uint4 a_next[A_CHUNKS];
        float b_next[OWN];

        auto find_taps = [&](uint32_t tile) {
            if (tid < DEPTH) {
                const uint32_t k = tile * DEPTH + (uint32_t) tid, q = k / kw_n, c = q / kh_n;
                d_tap tap = { 0, -4 * CONV_FAR, 0 }; // beyond the last one: outside of every image
                if (k < n_taps) {
                    tap.dx = (int) (k - q * kw_n) * p.d0;
                    tap.dy = (int) (q - c * kh_n) * p.d1;
                    tap.offset = tap.dx * (int64_t) p.x.nb[0] + tap.dy * (int64_t) p.x.nb[1] + c * (int64_t) p.x.nb[2];
                }
                taps[tile % 2][tid] = tap;
            }
        };
        auto load = [&](uint32_t tile) {
            UNROLL for (int i = 0; i < A_CHUNKS; ++i) {
                const int chunk = tid + i * 256;
                const uint32_t oc = oc0 + (uint32_t) (chunk / ROW_CHUNKS), k = tile * DEPTH + (uint32_t) (chunk % ROW_CHUNKS * CHUNK);
                const TW * from = (const TW *) p.kernel.data + oc * (int64_t) n_taps + k;
                a_next[i] = make_uint4(0, 0, 0, 0);
                if (oc < n_oc && can_chunk && k < n_taps) {
                    a_next[i] = *(const uint4 *) from;
                } else if (oc < n_oc) {
                    uint32_t w[4];
                    UNROLL for (int j = 0; j < 4; ++j) {
                        if (IS_F16) {
                            const float lo = k + 2 * (uint32_t) j < n_taps ? d_f32(from[2 * j]) : 0.0f;
                            w[j] = d_two_halfs(lo, k + 2 * (uint32_t) j + 1 < n_taps ? d_f32(from[2 * j + 1]) : 0.0f);
                        } else {
                            w[j] = __float_as_uint(k + (uint32_t) j < n_taps ? d_f32(from[j]) : 0.0f);
                        }
                    }
                    a_next[i] = make_uint4(w[0], w[1], w[2], w[3]);
                }
            }
            UNROLL for (int i = 0; i < OWN; ++i) {
                const d_tap tap = taps[tile % 2][own_tap + i];
                const bool is_in = (unsigned) (x0 + tap.dx) < (unsigned) wide && (unsigned) (y0 + tap.dy) < (unsigned) high;
                b_next[i] = is_in ? d_f32(*(const TX *) (first + tap.offset)) : 0.0f;
            }
        };
        auto put = [&](uint32_t tile) {
            uint32_t * a = a_tile[tile % 2], * b = b_tile[tile % 2] + own_pixel * PITCH + own_tap / PER_WORD;
            UNROLL for (int i = 0; i < A_CHUNKS; ++i) {
                const int chunk = tid + i * 256;
                uint4 w = a_next[i];
                if (!IS_F16) {
                    w = make_uint4(d_tf32(__uint_as_float(w.x)), d_tf32(__uint_as_float(w.y)), d_tf32(__uint_as_float(w.z)),
                        d_tf32(__uint_as_float(w.w)));
                }
                *(uint4 *) (a + chunk / ROW_CHUNKS * PITCH + chunk % ROW_CHUNKS * 4) = w;
            }
            UNROLL for (int i = 0; i < OWN / PER_WORD; i += 4) {
                uint32_t w[4];
                UNROLL for (int j = 0; j < 4; ++j) {
                    w[j] = IS_F16 ? d_two_halfs(b_next[2 * (i + j) % OWN], b_next[(2 * (i + j) + 1) % OWN]) : d_tf32(b_next[i + j]);
                }
                *(uint4 *) (b + i) = make_uint4(w[0], w[1], w[2], w[3]);
            }
        };

        UNROLL for (int i = 0; i < MI * NI * 4; ++i) { acc[i / 4 / NI][i / 4 % NI][i % 4] = 0.0f; }
        __syncthreads(); // the last block's tiles are done with
        find_taps(0);
        __syncthreads();
        load(0);
        find_taps(1);
        put(0);
        __syncthreads();
        for (uint32_t tile = 0; tile < n_k; ++tile) {
            if (tile + 1 < n_k) { load(tile + 1); }
            find_taps(tile + 2); // over those of this tile, which all have read before the last barrier
            const uint32_t * a = a_tile[tile % 2] + (wm * BM / 2 + lane / 4) * PITCH + lane % 4;
            const uint32_t * b = b_tile[tile % 2] + (wn * BN / 4 + lane / 4) * PITCH + lane % 4;
            UNROLL for (int step = 0; step < WORDS; step += 8) {
                uint32_t fa[MI][4], fb[NI][2];
                UNROLL for (int i = 0; i < MI; ++i) {
                    UNROLL for (int j = 0; j < 4; ++j) { fa[i][j] = a[(i * 16 + j % 2 * 8) * PITCH + step + j / 2 * 4]; }
                }
                UNROLL for (int i = 0; i < NI; ++i) {
                    UNROLL for (int j = 0; j < 2; ++j) { fb[i][j] = b[i * 8 * PITCH + step + j * 4]; }
                }
                UNROLL for (int i = 0; i < MI; ++i) {
                    UNROLL for (int j = 0; j < NI; ++j) { d_mma_words<IS_F16>(acc[i][j], fa[i], fb[j]); }
                }
            }
            if (tile + 1 < n_k) { put(tile + 1); }
            __syncthreads();
        }
        UNROLL for (int i = 0; i < MI * NI * 4; ++i) {
            const int m = i / 4 / NI, n = i / 4 % NI, j = i % 4;
            const uint32_t oc = oc0 + (uint32_t) (wm * BM / 2 + m * 16 + lane / 4 + j / 2 * 8);
            const uint32_t to = pixel0 + (uint32_t) (wn * BN / 4 + n * 8 + lane % 4 * 2 + j % 2), to_image = to / image_pixels;
            if (oc < n_oc && to < n_pixels) {
                d_put((TX *) p.y.data + (to_image * (int64_t) n_oc + oc) * image_pixels + (to - to_image * image_pixels), acc[m][n][j]);
            }
        }
    }
}

template <typename TX, typename TW, bool IS_F16, int BM, int BN, int WORDS>
static gcuda_status conv_2d_tiles(const gcuda_conv_args & p, gcuda_stream stream) {
    const int64_t n_pixels = p.y.ne[0] * p.y.ne[1] * p.y.ne[3], n_taps = p.kernel.ne[0] * p.kernel.ne[1] * p.kernel.ne[2];
    return launch(k_conv_2d_mma<TX, TW, IS_F16, BM, BN, WORDS>, (p.kernel.ne[3] + BM - 1) / BM * ((n_pixels + BN - 1) / BN), 256, stream,
        p, (uint32_t) n_pixels, (uint32_t) n_taps);
}

// Large tiles where there are enough of them; small ones, and deep, where there is little to do.
template <typename TX, typename TW, bool IS_F16> static gcuda_status conv_2d_mma(const gcuda_conv_args & p, gcuda_stream stream) {
    const int64_t n_pixels = p.y.ne[0] * p.y.ne[1] * p.y.ne[3], n_oc = p.kernel.ne[3];
    if (n_oc > 64 && (n_oc + 127) / 128 * ((n_pixels + 127) / 128) >= 192) {
        return conv_2d_tiles<TX, TW, IS_F16, 128, 128, 16>(p, stream);
    }
    if (n_pixels / 128 * ((n_oc + 63) / 64) >= 256) {
        return conv_2d_tiles<TX, TW, IS_F16, 64, 128, 16>(p, stream);
    }
    if ((n_pixels + 63) / 64 * ((n_oc + 63) / 64) <= 100) {
        return conv_2d_tiles<TX, TW, IS_F16, 32, 32, 64>(p, stream);
    }
    return !IS_F16 || (n_oc - 1) % 64 >= 32 ? conv_2d_tiles<TX, TW, IS_F16, 64, 32, 32>(p, stream)
                                            : conv_2d_tiles<TX, TW, IS_F16, 32, 64, 32>(p, stream);
}

// ---- a thread per pixel and CONV_FEW channels, their weights in shared memory ----
#define CONV_FEW 8
#define CONV_FEW_TAPS 512 // 16 KiB of weights

template <typename TX, typename TW> static __global__ void k_conv_2d_few(const gcuda_conv_args p, int64_t n_pixels, int64_t n_taps) {
    alignas(16) __shared__ float weights[CONV_FEW_TAPS][CONV_FEW];
    const int64_t n_oc = p.kernel.ne[3], n_groups = (n_oc + CONV_FEW - 1) / CONV_FEW, n_blocks = (n_pixels + 127) / 128;
    const int64_t image_pixels = p.y.ne[0] * p.y.ne[1];
    FOR_ROWS(b, n_groups * n_blocks) {
        const int64_t oc0 = b % n_groups * CONV_FEW, pixel = b / n_groups * 128 + threadIdx.x;
        const int64_t image = pixel / image_pixels, at = pixel - image * image_pixels, oy = at / p.y.ne[0], ox = at - oy * p.y.ne[0];
        const int64_t x0 = ox * p.s0 - p.p0, y0 = oy * p.s1 - p.p1;
        const char * first = d_at(p.x, x0, y0, 0, image);
        int64_t kw = 0, kh = 0, c = 0;
        float sum[CONV_FEW] = { 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f };
        for (int64_t tap0 = 0; tap0 < n_taps; tap0 += CONV_FEW_TAPS) {
            const int n = (int) (n_taps - tap0 < CONV_FEW_TAPS ? n_taps - tap0 : CONV_FEW_TAPS);
            __syncthreads();
            for (int i = (int) threadIdx.x; i < n * CONV_FEW; i += 128) {
                const int64_t oc = oc0 + i / n;
                weights[i % n][i / n] = oc < n_oc ? d_f32(((const TW *) p.kernel.data)[oc * n_taps + tap0 + i % n]) : 0.0f;
            }
            __syncthreads();
            for (int i = 0; i < n; ++i) {
                const int64_t x = x0 + kw * p.d0, y = y0 + kh * p.d1;
                const bool is_in = pixel < n_pixels && x >= 0 && x < p.x.ne[0] && y >= 0 && y < p.x.ne[1];
                const char * from = first + kw * p.d0 * (int64_t) p.x.nb[0] + kh * p.d1 * (int64_t) p.x.nb[1] + c * (int64_t) p.x.nb[2];
                const float v = is_in ? d_f32(*(const TX *) from) : 0.0f;
                for (int j = 0; j < CONV_FEW; ++j) { sum[j] += v * weights[i][j]; }
                if (++kw == p.kernel.ne[0]) {
                    kw = 0;
                    if (++kh == p.kernel.ne[1]) {
                        kh = 0;
                        ++c;
                    }
                }
            }
        }
        for (int j = 0; j < CONV_FEW; ++j) {
            if (pixel < n_pixels && oc0 + j < n_oc) {
                d_put((TX *) p.y.data + (image * n_oc + oc0 + j) * image_pixels + at, sum[j]);
            }
        }
    }
}

// ---- large products: image and weights are first put in scratch (>>k-conv-packed), so that patches are gathered sixteen
// bytes at a time, by asynchronous copies, several steps ahead ----
//   floor   as above, and x and the weights read and written once more, at half the size
#ifdef GCUDAI_SIM
#define PACKED_LEAST 1e6 // multiplications; the simulated device comes here with small ones, or no test would
#define PACKED_FILLS 2   // tiles
#else
#define PACKED_LEAST 2e8
#define PACKED_FILLS 120
#endif

static bool packed_takes(const gcuda_conv_args & p) {
    const double n_c = (double) ((p.x.ne[2] + 7) / 8), n_oc = (double) p.kernel.ne[3];
    const double wide = (double) p.y.ne[0] * p.s0 + (double) p.kernel.ne[0] * p.d0, n_taps = (double) p.kernel.ne[0] * (double) p.kernel.ne[1];
    const double high = (double) p.y.ne[1] * p.s1 + (double) p.kernel.ne[1] * p.d1;
    const double n_pixels = (double) p.y.ne[0] * (double) p.y.ne[1] * (double) p.y.ne[3];
    return p.prec != GCUDA_PREC_F32 && p.kernel.type == GCUDA_TYPE_F16 && p.x.ne[2] >= 8 && n_oc >= 32 && n_oc < 1e9 && n_taps <= 1024 &&
           n_pixels < 1e9 && n_c * n_taps < 1e8 && wide * high * n_c * (double) p.x.ne[3] < 2e9; // places are ints
}
static bool is_packed_conv(const gcuda_conv_args & p) {
    const double n = (double) p.y.ne[0] * (double) p.y.ne[1] * (double) p.y.ne[3] * (double) p.kernel.ne[3];
    return packed_takes(p) && n * (double) p.kernel.ne[0] * (double) p.kernel.ne[1] * (double) p.x.ne[2] >= PACKED_LEAST;
}

// Block b has 128 elements of the image with its padding, by 32 channels.
template <typename TX>
static inline __device__ void d_pack_x(const gcuda_conv_args & p, const d_packed & q, int64_t b, uint32_t (*tile)[17]) {
    const int n = q.wide * q.high, n_blocks = (n + 127) / 128, n_groups = (q.n_c + 3) / 4;
    const int own = (int) threadIdx.x % 128, side = (int) threadIdx.x / 128;
    const int64_t rest = b / n_groups, image = rest / n_blocks;
    const int c0 = (int) (b - rest * n_groups) * 32, first = (int) (rest - image * n_blocks) * 128;
    const int at_y = (first + own) / q.wide, y = at_y - p.p1, x = first + own - at_y * q.wide - p.p0;
    const bool is_in = first + own < n && x >= 0 && x < p.x.ne[0] && y >= 0 && y < p.x.ne[1];
    const char * from = d_at(p.x, is_in ? x : 0, is_in ? y : 0, 0, image);
    float v[16];
    UNROLL for (int k = 0; k < 16; ++k) {
        const int c = c0 + 16 * side + k;
        v[k] = is_in && c < p.x.ne[2] ? d_f32(*(const TX *) (from + c * (int64_t) p.x.nb[2])) : 0.0f;
    }
    UNROLL for (int k = 0; k < 8; ++k) { tile[own][8 * side + k] = d_two_halfs(v[2 * k], v[2 * k + 1]); }
    __syncthreads();
    UNROLL for (int k = 0; k < 2; ++k) {
        const int i = (int) threadIdx.x + 256 * k, at = i / 4, piece = i % 4;
        const uint32_t * w = &tile[at][4 * piece];
        if (first + at < n && c0 / 8 + piece < q.n_c) {
            ((uint4 *) q.x)[(image * n + first + at) * q.n_c + c0 / 8 + piece] = make_uint4(w[0], w[1], w[2], w[3]);
        }
    }
}

// Weights of an output channel, PACK_HALFS of them at a time or those of eight input channels.
#define PACK_HALFS 8192
static inline int64_t pack_parts(const d_packed & q, int n_taps) {
    const int most = PACK_HALFS / 8 / n_taps;
    return (q.n_c + most - 1) / most;
}
// Eights of channels in shared memory are an odd number of words apart: lanes read the same element of neighbouring ones.
static inline __device__ void d_pack_w(const gcuda_conv_args & p, const d_packed & q, int64_t b, int64_t n_parts, __half * w) {
    const int n_taps = (int) (p.kernel.ne[0] * p.kernel.ne[1]), most = PACK_HALFS / 8 / n_taps; // eights of channels at once
    const int64_t oc = b / n_parts;
    const int c0 = (int) (b - oc * n_parts) * most, n_c = q.n_c - c0 < most ? q.n_c - c0 : most;
    const int64_t n_left = oc < q.n_oc ? (p.x.ne[2] - 8 * c0) * n_taps : 0; // the others are 0
    const int n_in = (int) (n_left < 8 * n_c * n_taps ? n_left : 8 * n_c * n_taps), row = (int) (oc % 64);
    const __half * from = (const __half *) p.kernel.data + (oc < q.n_oc ? (oc * p.x.ne[2] + 8 * c0) * n_taps : 0);
    char * to = q.w + oc / 64 * q.n_steps * PACKED_TILE;
    if ((uintptr_t) from % 16 == 0 && n_in == 8 * n_c * n_taps) {
        for (int i = (int) threadIdx.x; i < n_c * n_taps; i += 256) {
            const uint4 v = ((const uint4 *) from)[i];
            uint32_t * at = (uint32_t *) w + 4 * i + i / n_taps;
            at[0] = v.x, at[1] = v.y, at[2] = v.z, at[3] = v.w;
        }
    } else {
        for (int i = (int) threadIdx.x; i < 8 * n_c * n_taps; i += 256) { w[i + i / (8 * n_taps) * 2] = i < n_in ? from[i] : __float2half_rn(0.0f); }
    }
    __syncthreads();
    for (int i = (int) threadIdx.x; i < n_c * n_taps; i += 256) {
        const int tap = i / n_c, c = i - tap * n_c, piece = tap * q.n_c + c0 + c;
        alignas(16) __half v[8];
        UNROLL for (int k = 0; k < 8; ++k) { v[k] = w[(8 * c + k) * n_taps + tap + 2 * c]; }
        *(uint4 *) (to + (int64_t) (piece / 8) * PACKED_TILE + d_packed_at(row, piece % 8)) = *(const uint4 *) v;
    }
    for (int piece = q.n_pieces + (int) threadIdx.x; piece < 8 * q.n_steps && c0 == 0; piece += 256) {
        *(uint4 *) (to + (int64_t) (piece / 8) * PACKED_TILE + d_packed_at(row, piece % 8)) = make_uint4(0, 0, 0, 0);
    }
}

template <typename TX>
static __global__ void __launch_bounds__(256) k_conv_pack(const gcuda_conv_args p, const d_packed q, int64_t n_w, int64_t n_parts, int64_t n_x) {
    alignas(16) __shared__ char shared[PACK_HALFS * 2 + PACK_HALFS / 8 * 4];
    d_start_next();
    FOR_ROWS(b, n_w + n_x) {
        if (b < n_w) {
            d_pack_w(p, q, b, n_parts, (__half *) shared);
        } else {
            d_pack_x<TX>(p, q, b - n_w, (uint32_t (*)[17]) shared);
        }
        __syncthreads(); // the next block's halfs may overwrite these
    }
}

template <typename TY, int BM, int BN, int WARPS_M, int STAGES>
static __global__ void __launch_bounds__(256, 2) k_conv_2d_packed(const gcuda_conv_args p, const d_packed q) {
    DYNAMIC_SHARED(char, shared);
    __shared__ uint32_t firsts[BN];
    const int WARPS_N = 8 / WARPS_M, MI = BM / WARPS_M / 16, NI = BN / WARPS_N / 8;
    const int A_PIECES = BM / 32, B_PIECES = BN / 32, STAGE = (BM + BN) * PACKED_ROW;
    const int tid = (int) threadIdx.x, lane = tid % 32, warp = tid / 32, piece = tid % 8, row = tid / 8;
    const int wm = warp % WARPS_M * (BM / WARPS_M), wn = warp / WARPS_M * (BN / WARPS_N);
    const int n_m = (q.n_oc + BM - 1) / BM, n_n = (q.n_pixels + BN - 1) / BN;
    FOR_ROWS(block, (int64_t) n_m * n_n) {
        const int pixel0 = (int) (block / n_m) * BN, oc0 = (int) (block % n_m) * BM;
        const char * a_tiles = q.w + oc0 / 64 * (int64_t) q.n_steps * PACKED_TILE + tid % 512 * 16;
        __syncthreads(); // the last block's tiles and places are done with
        for (int i = tid; i < BN; i += 256) { firsts[i] = d_packed_first(p, q, pixel0 + i); }
        __syncthreads();
        uint32_t first[B_PIECES];
        UNROLL for (int i = 0; i < B_PIECES; ++i) { first[i] = firsts[row + 32 * i]; }
        d_packed_walk walk(p, q, piece);
        auto copy = [&](int step) { // into its stage; called for every step in turn
            char * a = shared + step % STAGES * STAGE, * b = a + BM * PACKED_ROW;
            UNROLL for (int i = 0; i < A_PIECES; ++i) { // of every 64 output channels two
                d_copy_16(a + (tid + 256 * i) * 16, a_tiles + ((int64_t) (i / 2) * q.n_steps + step) * PACKED_TILE + i % 2 * 4096, 16);
            }
            const uint32_t place = walk.place();
            UNROLL for (int i = 0; i < B_PIECES; ++i) {
                d_copy_16(b + d_packed_at(row + 32 * i, piece), q.x + (uint64_t) (first[i] + place) * 16, walk.left > 0 ? 16 : 0);
            }
            walk.next(p, q);
        };
        float acc[MI][NI][4];
        UNROLL for (int i = 0; i < MI * NI * 4; ++i) { acc[i / 4 / NI][i / 4 % NI][i % 4] = 0.0f; }
        UNROLL for (int s = 0; s < STAGES - 1; ++s) {
            if (s < q.n_steps) { copy(s); }
            d_copies_commit();
        }
        for (int step = 0; step < q.n_steps; ++step) {
            d_copies_wait<STAGES - 2>();
            __syncthreads();
            if (step + STAGES - 1 < q.n_steps) { copy(step + STAGES - 1); } // over the stage that all have read before the barrier
            d_copies_commit();
            const char * a = shared + step % STAGES * STAGE, * b = a + BM * PACKED_ROW;
            UNROLL for (int k = 0; k < 8; k += 2) {
                uint32_t fa[MI][4], fb[NI][2];
                UNROLL for (int i = 0; i < MI; ++i) { d_matrices(fa[i], a + d_packed_at(wm + 16 * i + lane % 16, k + lane / 16)); }
                UNROLL for (int i = 0; i < NI; i += 2) {
                    d_matrices(fb[i], b + d_packed_at(wn + 8 * i + lane % 8 + lane / 16 * 8, k + lane / 8 % 2));
                }
                UNROLL for (int i = 0; i < MI; ++i) {
                    UNROLL for (int j = 0; j < NI; ++j) { d_mma_words<true>(acc[i][j], fa[i], fb[j]); }
                }
            }
        }
        d_copies_wait<0>();
        UNROLL for (int i = 0; i < MI; ++i) {
            d_packed_store<TY, NI>(p, q, oc0 + wm + 16 * i + lane / 4, pixel0 + wn + lane % 4 * 2, &acc[i][0][0]);
        }
    }
}

template <typename TY, int BM, int BN, int WARPS_M, int STAGES>
static gcuda_status conv_2d_packed_tiles(const gcuda_conv_args & p, const d_packed & q, gcuda_stream stream) {
    return launch_shared(k_conv_2d_packed<TY, BM, BN, WARPS_M, STAGES>, (p.kernel.ne[3] + BM - 1) / BM * ((q.n_pixels + BN - 1) / BN),
        dim3(256), STAGES * (BM + BN) * PACKED_ROW, p.max_shared, stream, p, q);
}

// The largest tiles of which there are enough.
template <typename TX> static gcuda_status conv_2d_packed(const gcuda_conv_args & p, gcuda_stream stream) {
    const d_packed q = packed_of(p);
    const int64_t n_blocks = ((int64_t) q.wide * q.high + 127) / 128 * ((q.n_c + 3) / 4) * p.x.ne[3];
    const int64_t n_parts = pack_parts(q, (int) (p.kernel.ne[0] * p.kernel.ne[1])), n_w = packed_channels(q.n_oc) * n_parts;
    auto n_tiles = [&](int64_t m, int64_t n) { return (q.n_oc + m - 1) / m * ((q.n_pixels + n - 1) / n); };
    auto fits = [&](int64_t m, int64_t n) { return fits_shared((size_t) (3 * (m + n) * PACKED_ROW), p.max_shared); };
    const bool is_rows = packed_rows_of(p, q).n_segments > 0;
    gcuda_status st;
    if (is_packed_product(p) && fits_shared(PACKED_SHARED, p.max_shared) && gcuda_has_warp_groups()) {
        const gcuda_mul_mat_args product = packed_product_of(p, q.x);
        st = launch(k_conv_pack<TX>, n_blocks, 256, stream, p, q, (int64_t) 0, n_parts, n_blocks);
        gcuda_launch_series * series = gcuda_thread_launches();
        const gcuda_overlap overlap = series->overlap;
        series->overlap = GCUDA_OVERLAP_LAUNCH; // it begins while the copy ends
        st = st == GCUDA_STATUS_SUCCESS ? gcuda_launch_mul_mat_wg(&product, q.x + packed_x_bytes(p, q), stream) : st;
        series->overlap = overlap;
        if (st != GCUDA_STATUS_UNSUPPORTED) {
            return st;
        }
    }
    const int64_t n_x = is_rows ? 0 : n_blocks;
    st = launch(k_conv_pack<TX>, n_w + n_x, 256, stream, p, q, n_w, n_parts, n_x);
    st = st == GCUDA_STATUS_SUCCESS ? gcuda_launch_conv_2d_wg(&p, stream) : st;
    if (is_rows || st != GCUDA_STATUS_UNSUPPORTED) {
        return st;
    }
    return q.n_oc > 64 && fits(128, 128) && n_tiles(128, 128) >= PACKED_FILLS ? conv_2d_packed_tiles<TX, 128, 128, 2, 3>(p, q, stream)
           : fits(64, 128) && n_tiles(64, 128) >= PACKED_FILLS                ? conv_2d_packed_tiles<TX, 64, 128, 2, 3>(p, q, stream)
                                                                              : conv_2d_packed_tiles<TX, 64, 64, 2, 2>(p, q, stream);
}

template <typename T> struct is_half {
    static const bool value = false;
};
template <> struct is_half<__half> {
    static const bool value = true;
};

static bool conv_is_far(const gcuda_conv_args & p) { // places do not fit where the faster kernels keep them
    const int64_t n_pixels = p.y.ne[0] * p.y.ne[1] * p.y.ne[3], n_taps = p.kernel.ne[0] * p.kernel.ne[1] * p.kernel.ne[2];
    return p.x.ne[0] >= CONV_FAR || p.x.ne[1] >= CONV_FAR || p.p0 >= CONV_FAR || p.p1 >= CONV_FAR ||
           p.kernel.ne[0] * p.d0 >= CONV_FAR || p.kernel.ne[1] * p.d1 >= CONV_FAR || n_pixels >= INT32_MAX - 128 ||
           n_taps >= INT32_MAX / 2 || p.kernel.ne[3] >= INT32_MAX / 2;
}

template <typename TX, typename TW> static gcuda_status conv_2d(const gcuda_conv_args & p, gcuda_stream stream) {
    const int64_t n_pixels = p.y.ne[0] * p.y.ne[1] * p.y.ne[3], n_taps = p.kernel.ne[0] * p.kernel.ne[1] * p.kernel.ne[2];
    if (p.prec == GCUDA_PREC_F32 || p.kernel.ne[3] <= 2 * CONV_FEW || conv_is_far(p)) {
        return launch(k_conv_2d_few<TX, TW>, (p.kernel.ne[3] + CONV_FEW - 1) / CONV_FEW * ((n_pixels + 127) / 128), 128, stream, p,
            n_pixels, n_taps);
    }
    return is_packed_conv(p) ? conv_2d_packed<TX>(p, stream) : conv_2d_mma<TX, TW, is_half<TW>::value>(p, stream);
}

size_t gcuda_conv_2d_packed_scratch_bytes(const gcuda_conv_args * args) {
    if (!packed_takes(*args) || conv_is_far(*args)) {
        return 0;
    }
    const d_packed q = packed_of(*args);
    const gcuda_mul_mat_args product = packed_product_of(*args, q.x);
    const size_t n_bytes = asked_bytes(q.w_bytes + packed_x_bytes(*args, q));
    return is_packed_product(*args) ? add_bytes(n_bytes, gcuda_mul_mat_wg_scratch_bytes(&product)) : n_bytes;
}

gcuda_status gcuda_launch_conv_2d_packed(const gcuda_conv_args * args, gcuda_stream stream) {
    if (!packed_takes(*args) || conv_is_far(*args)) {
        return GCUDA_STATUS_UNSUPPORTED;
    }
    return with_float(args->x.type, [&](auto x) { return conv_2d_packed<decltype(x)>(*args, stream); });
}

size_t gcuda_conv_2d_scratch_bytes(const gcuda_conv_args * args) {
    return is_packed_conv(*args) ? gcuda_conv_2d_packed_scratch_bytes(args) : 0;
}

// Kernel and result are contiguous.
gcuda_status gcuda_launch_conv_2d(const gcuda_conv_args * args, gcuda_stream stream) {
    return with_float(args->x.type, [&](auto x) {
        return with_float(args->kernel.type, [&](auto w) { return conv_2d<decltype(x), decltype(w)>(*args, stream); });
    });
}

// >>op:conv_2d_dw -------------------------------------------------------------------------------------
//   floor   x read once, y written
// ---- any strides: a thread has N outputs of a row, in the order of memory: dimensions 2, 0, 1, 3 where channels are
// innermost; DW_TAPS columns of the kernel are under way together ----
#define DW_TAPS 5

template <typename TX, typename TW, bool IS_CHANNELS, int N>
static __global__ void k_conv_2d_dw(const gcuda_conv_args p, const gcuda_array walk, const tiles t) {
    const int64_t step = IS_CHANNELS ? 1 : d_tile_step(t, 1); // of a thread's outputs
    const int64_t nbx = (int64_t) p.x.nb[0];
    FOR_TILES(tile, t) {
        const d_index i = d_tile_at(t, walk.ne, tile, 1, IS_CHANNELS ? 1 : N);
        const int64_t ox = IS_CHANNELS ? i.i1 * N : i.i0, oy = IS_CHANNELS ? i.i2 : i.i1, c = IS_CHANNELS ? i.i0 : i.i2;
        float sum[N] = {};
        if (i.i0 >= walk.ne[0]) {
            continue;
        }
        for (int kh = 0; kh < (int) p.kernel.ne[1]; ++kh) {
            const int64_t y = oy * p.s1 + (int64_t) kh * p.d1 - p.p1;
            if (y < 0 || y >= p.x.ne[1]) {
                continue;
            }
            const char * row = d_at(p.x, 0, y, c, i.i3), * weights = d_at(p.kernel, 0, kh, 0, c);
            for (int kw = 0; kw < (int) p.kernel.ne[0]; kw += DW_TAPS) {
                float w[DW_TAPS], v[DW_TAPS][N];
                bool is_in[DW_TAPS][N];
                UNROLL for (int j = 0; j < DW_TAPS; ++j) {
                    const bool is_tap = kw + j < (int) p.kernel.ne[0];
                    const int64_t x = ox * p.s0 + (int64_t) (kw + j) * p.d0 - p.p0;
                    w[j] = is_tap ? d_f32(*(const TW *) (weights + (kw + j) * (int64_t) p.kernel.nb[0])) : 0.0f;
                    UNROLL for (int k = 0; k < N; ++k) {
                        const int64_t at = x + k * step * p.s0;
                        is_in[j][k] = is_tap && at >= 0 && at < p.x.ne[0];
                        v[j][k] = is_in[j][k] ? d_f32(*(const TX *) (row + at * nbx)) : 0.0f;
                    }
                }
                UNROLL for (int j = 0; j < DW_TAPS; ++j) {
                    UNROLL for (int k = 0; k < N; ++k) { sum[k] += is_in[j][k] ? w[j] * v[j][k] : 0.0f; }
                }
            }
        }
        UNROLL for (int k = 0; k < N; ++k) {
            if (ox + k * step < p.y.ne[0]) { d_put((TX *) d_at(p.y, ox + k * step, oy, c, i.i3), sum[k]); }
        }
    }
}

// One output from the elements of the image alone. Kernels that multiply the zeros around it as well come here where that made NaN or
// would make it: with a weight that is infinite or NaN, which takes no part there.
template <typename TW> static inline __device__ float d_dw_inside(const gcuda_conv_args & p, int64_t ox, int64_t oy, int64_t c, int64_t i3) {
    float sum = 0.0f;
    NO_UNROLL for (int64_t kh = 0; kh < p.kernel.ne[1]; ++kh) {
        const int64_t y = oy * p.s1 + kh * p.d1 - p.p1;
        NO_UNROLL for (int64_t kw = 0; kw < p.kernel.ne[0] && y >= 0 && y < p.x.ne[1]; ++kw) {
            const int64_t x = ox * p.s0 + kw * p.d0 - p.p0;
            if (x >= 0 && x < p.x.ne[0]) { sum += d_f32(*(const TW *) d_at(p.kernel, kw, kh, 0, c)) * d_load(p.x.type, d_at(p.x, x, y, c, i3)); }
        }
    }
    return sum;
}

// ---- few outputs: a thread has one, and DW_TAPS rows of DW_TAPS elements of its patch are under way together ----
template <typename TX, typename TW, bool IS_CHANNELS> static __global__ void __launch_bounds__(128) k_conv_2d_dw_one(const gcuda_conv_args p) {
    const uint32_t wide = (uint32_t) p.y.ne[0], high = (uint32_t) p.y.ne[1], n_c = (uint32_t) p.y.ne[2], n = wide * high * n_c * (uint32_t) p.y.ne[3];
    const int kw_n = (int) p.kernel.ne[0], kh_n = (int) p.kernel.ne[1];
    for (uint32_t i = blockIdx.x * 128 + threadIdx.x; i < n; i += gridDim.x * 128) { // in the order of memory
        const uint32_t n0 = IS_CHANNELS ? n_c : wide, n1 = IS_CHANNELS ? wide : high, n2 = IS_CHANNELS ? high : n_c;
        const uint32_t q0 = i / n0, q1 = q0 / n1, i3 = q1 / n2, i0 = i - q0 * n0, i1 = q0 - q1 * n1, i2 = q1 - i3 * n2;
        const uint32_t ox = IS_CHANNELS ? i1 : i0, oy = IS_CHANNELS ? i2 : i1, c = IS_CHANNELS ? i0 : i2;
        const int x0 = (int) ox * p.s0 - p.p0, y0 = (int) oy * p.s1 - p.p1;
        const char * from = d_at(p.x, x0, y0, c, i3), * weights = d_at(p.kernel, 0, 0, 0, c);
        float sum = 0.0f;
        for (int kh = 0; kh < kh_n; kh += DW_TAPS) {
            for (int kw = 0; kw < kw_n; kw += DW_TAPS) {
                float v[DW_TAPS][DW_TAPS], w[DW_TAPS][DW_TAPS];
                UNROLL for (int r = 0; r < DW_TAPS; ++r) {
                    const bool is_row = kh + r < kh_n && (unsigned) (y0 + (kh + r) * p.d1) < (unsigned) p.x.ne[1];
                    const char * row = from + (kh + r) * p.d1 * (int64_t) p.x.nb[1], * weight = weights + (kh + r) * (int64_t) p.kernel.nb[1];
                    UNROLL for (int k = 0; k < DW_TAPS; ++k) {
                        const bool is_in = is_row && kw + k < kw_n && (unsigned) (x0 + (kw + k) * p.d0) < (unsigned) p.x.ne[0];
                        v[r][k] = is_in ? d_f32(*(const TX *) (row + (kw + k) * p.d0 * (int64_t) p.x.nb[0])) : 0.0f;
                        w[r][k] = is_in ? d_f32(*(const TW *) (weight + (kw + k) * (int64_t) p.kernel.nb[0])) : 0.0f;
                    }
                }
                UNROLL for (int r = 0; r < DW_TAPS; ++r) {
                    UNROLL for (int k = 0; k < DW_TAPS; ++k) { sum += w[r][k] * v[r][k]; }
                }
            }
        }
        d_put((TX *) d_at(p.y, ox, oy, c, i3), sum);
    }
}

// The same of kernels of K x K and steps of S: two neighbouring outputs of a row, their patches read together.
template <typename TW, bool IS_CHANNELS, int K, int S>
static __global__ void __launch_bounds__(128) k_conv_2d_dw_two(const gcuda_conv_args p) {
    const uint32_t wide = (uint32_t) (p.y.ne[0] + 1) / 2, high = (uint32_t) p.y.ne[1], n_c = (uint32_t) p.y.ne[2];
    const uint32_t n = wide * high * n_c * (uint32_t) p.y.ne[3], n0 = IS_CHANNELS ? n_c : wide, n1 = IS_CHANNELS ? wide : high;
    const int64_t nbx = IS_CHANNELS ? (int64_t) p.x.nb[0] : 4, nbw = IS_CHANNELS ? (int64_t) p.kernel.nb[0] : (int64_t) sizeof(TW);
    for (uint32_t i = blockIdx.x * 128 + threadIdx.x; i < n; i += gridDim.x * 128) {
        const uint32_t n2 = IS_CHANNELS ? high : n_c, q0 = i / n0, q1 = q0 / n1, i3 = q1 / n2;
        const uint32_t i0 = i - q0 * n0, i1 = q0 - q1 * n1, i2 = q1 - i3 * n2;
        const uint32_t ox = 2 * (IS_CHANNELS ? i1 : i0), oy = IS_CHANNELS ? i2 : i1, c = IS_CHANNELS ? i0 : i2;
        const int x0 = (int) ox * S - p.p0, y0 = (int) oy * S - p.p1;
        const char * row = d_at(p.x, 0, y0, c, i3) + x0 * nbx, * weight = d_at(p.kernel, 0, 0, 0, c);
        float v[K][K + S], w[K][K], sum[2] = { 0.0f, 0.0f };
        UNROLL for (int r = 0; r < K; ++r, row += p.x.nb[1], weight += p.kernel.nb[1]) {
            const bool is_row = (unsigned) (y0 + r) < (unsigned) p.x.ne[1];
            UNROLL for (int k = 0; k < K + S; ++k) {
                v[r][k] = is_row && (unsigned) (x0 + k) < (unsigned) p.x.ne[0] ? *(const float *) (row + k * nbx) : 0.0f;
            }
            UNROLL for (int k = 0; k < K; ++k) { w[r][k] = d_f32(*(const TW *) (weight + k * nbw)); }
        }
        UNROLL for (int r = 0; r < K; ++r) {
            UNROLL for (int k = 0; k < K; ++k) {
                sum[0] += w[r][k] * v[r][k];
                sum[1] += w[r][k] * v[r][k + S];
            }
        }
        if (isnan(sum[0] + sum[1])) {
            sum[0] = d_dw_inside<TW>(p, ox, oy, c, i3);
            sum[1] = d_dw_inside<TW>(p, ox + 1, oy, c, i3);
        }
        *(float *) d_at(p.y, ox, oy, c, i3) = sum[0];
        if (ox + 1 < (uint32_t) p.y.ne[0]) { *(float *) d_at(p.y, ox + 1, oy, c, i3) = sum[1]; }
    }
}

template <typename TW, bool IS_CHANNELS> static gcuda_status conv_2d_dw_two(const gcuda_conv_args & p, gcuda_stream stream) {
    const int k = (int) p.kernel.ne[0], s = p.s0;
    return launch(k == 3 ? (s == 1 ? k_conv_2d_dw_two<TW, IS_CHANNELS, 3, 1> : k_conv_2d_dw_two<TW, IS_CHANNELS, 3, 2>)
                         : (s == 1 ? k_conv_2d_dw_two<TW, IS_CHANNELS, 5, 1> : k_conv_2d_dw_two<TW, IS_CHANNELS, 5, 2>),
        ((p.y.ne[0] + 1) / 2 * p.y.ne[1] * p.y.ne[2] * p.y.ne[3] + 127) / 128, 128, stream, p);
}

// ---- 3 x 3, a step of one: a thread slides down DW_SLIDE rows of the result, reads every row of the image once and adds it to the
// three rows of the result that want it ----
#define DW_SLIDE 16

// A thread with a weight that has no bounds (0 times it is NaN): its results one by one.
template <typename TW> static inline __device__ void d_dw_slide_inside(const gcuda_conv_args & p, int ox, int oy, int n_wide, int c, int n_c, int64_t i3) {
    NO_UNROLL for (int i = 0; i < n_wide * n_c * DW_SLIDE; ++i) {
        const int x = ox + i % n_wide, y = oy + i / n_wide % DW_SLIDE, channel = c + i / n_wide / DW_SLIDE;
        if (x < (int) p.y.ne[0] && y < (int) p.y.ne[1]) { *(float *) d_at(p.y, x, y, channel, i3) = d_dw_inside<TW>(p, x, y, channel, i3); }
    }
}

// Four elements of a row of pixels and those beside them: a padding of one, rows at multiples of 16 bytes.
template <typename TW> static __global__ void __launch_bounds__(128) k_conv_2d_dw_slide(const gcuda_conv_args p, uint32_t n) {
    const uint32_t n_wide = (uint32_t) (p.y.ne[0] / 4), n_high = (uint32_t) ((p.y.ne[1] + DW_SLIDE - 1) / DW_SLIDE), n_c = (uint32_t) p.y.ne[2];
    for (uint32_t i = blockIdx.x * 128 + threadIdx.x; i < n; i += gridDim.x * 128) {
        const uint32_t q0 = i / n_wide, q1 = q0 / n_high, i3 = q1 / n_c, c = q1 - i3 * n_c;
        const int x = (int) (i - q0 * n_wide) * 4, oy = (int) (q0 - q1 * n_high) * DW_SLIDE, y0 = oy - p.p1, high = (int) p.x.ne[1];
        const bool is_first = x == 0, is_last = x + 4 == (int) p.x.ne[0];
        const char * image = d_at(p.x, x, 0, c, i3);
        float w[3][3], sum[3][4] = {};
        float none = 0.0f;
        UNROLL for (int k = 0; k < 9; ++k) {
            w[k / 3][k % 3] = d_f32(*(const TW *) d_at(p.kernel, k % 3, k / 3, 0, c));
            none += 0.0f * w[k / 3][k % 3];
        }
        if (isnan(none)) {
            d_dw_slide_inside<TW>(p, x, oy, 4, (int) c, 1, i3);
            continue;
        }
        for (int j = 0; j < DW_SLIDE + 2; j += 3) { // rows of the image: three at a time, so that sums stay where they are
            float v[3][6];
            UNROLL for (int u = 0; u < 3; ++u) {
                const int y = y0 + j + u;
                const float * row = (const float *) (image + y * (int64_t) p.x.nb[1]);
                const bool is_row = y >= 0 && y < high;
                const float4 four = is_row ? *(const float4 *) row : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                v[u][0] = is_row && !is_first ? row[-1] : 0.0f;
                v[u][1] = four.x, v[u][2] = four.y, v[u][3] = four.z, v[u][4] = four.w;
                v[u][5] = is_row && !is_last ? row[4] : 0.0f;
            }
            UNROLL for (int u = 0; u < 3; ++u) { // begins row j + u of the result, ends the second before
                UNROLL for (int k = 0; k < 4; ++k) {
                    sum[u][k] = w[0][0] * v[u][k] + w[0][1] * v[u][k + 1] + w[0][2] * v[u][k + 2];
                    sum[(u + 2) % 3][k] += w[1][0] * v[u][k] + w[1][1] * v[u][k + 1] + w[1][2] * v[u][k + 2];
                    sum[(u + 1) % 3][k] += w[2][0] * v[u][k] + w[2][1] * v[u][k + 1] + w[2][2] * v[u][k + 2];
                }
                const int o = oy + j + u - 2;
                const float * out = sum[(u + 1) % 3];
                if (j + u >= 2 && o < (int) p.y.ne[1]) { *(float4 *) d_at(p.y, x, o, c, i3) = make_float4(out[0], out[1], out[2], out[3]); }
            }
        }
    }
}

// Four channels, which lie together, of two pixels.
template <typename T> struct alignas(4 * sizeof(T)) d_quad {
    T v[4];
};

template <typename TW> static __global__ void __launch_bounds__(128) k_conv_2d_dw_slide_quads(const gcuda_conv_args p, uint32_t n) {
    const uint32_t n_c = (uint32_t) (p.y.ne[2] / 4), n_wide = (uint32_t) ((p.y.ne[0] + 1) / 2);
    const uint32_t n_high = (uint32_t) ((p.y.ne[1] + DW_SLIDE - 1) / DW_SLIDE);
    for (uint32_t i = blockIdx.x * 128 + threadIdx.x; i < n; i += gridDim.x * 128) {
        const uint32_t q0 = i / n_c, q1 = q0 / n_wide, i3 = q1 / n_high, c = (i - q0 * n_c) * 4;
        const int ox = (int) (q0 - q1 * n_wide) * 2, oy = (int) (q1 - i3 * n_high) * DW_SLIDE, x0 = ox - p.p0, y0 = oy - p.p1;
        const char * image = d_at(p.x, x0, 0, c, i3);
        float w[3][3][4], sum[3][2][4] = {};
        bool is_in[4];
        float none = 0.0f;
        UNROLL for (int k = 0; k < 9; ++k) {
            const d_quad<TW> four = *(const d_quad<TW> *) d_at(p.kernel, k % 3, k / 3, 0, c);
            UNROLL for (int m = 0; m < 4; ++m) {
                w[k / 3][k % 3][m] = d_f32(four.v[m]);
                none += 0.0f * w[k / 3][k % 3][m];
            }
        }
        if (isnan(none)) {
            d_dw_slide_inside<TW>(p, ox, oy, 2, (int) c, 4, i3);
            continue;
        }
        UNROLL for (int k = 0; k < 4; ++k) { is_in[k] = x0 + k >= 0 && x0 + k < (int) p.x.ne[0]; }
        for (int j = 0; j < DW_SLIDE + 2; j += 3) { // as above
            float4 v[3][4];
            UNROLL for (int u = 0; u < 3; ++u) {
                const int y = y0 + j + u;
                const char * row = image + y * (int64_t) p.x.nb[1];
                UNROLL for (int k = 0; k < 4; ++k) {
                    const bool is_there = is_in[k] && y >= 0 && y < (int) p.x.ne[1];
                    v[u][k] = is_there ? *(const float4 *) (row + k * (int64_t) p.x.nb[0]) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                }
            }
            UNROLL for (int u = 0; u < 3; ++u) {
                const int o = oy + j + u - 2;
                UNROLL for (int k = 0; k < 2; ++k) {
                    float * first = sum[u][k], * second = sum[(u + 2) % 3][k], * third = sum[(u + 1) % 3][k];
                    UNROLL for (int m = 0; m < 4; ++m) { first[m] = 0.0f; }
                    UNROLL for (int t = 0; t < 3; ++t) {
                        const float four[4] = { v[u][k + t].x, v[u][k + t].y, v[u][k + t].z, v[u][k + t].w };
                        UNROLL for (int m = 0; m < 4; ++m) {
                            first[m] += w[0][t][m] * four[m];
                            second[m] += w[1][t][m] * four[m];
                            third[m] += w[2][t][m] * four[m];
                        }
                    }
                    if (j + u >= 2 && o < (int) p.y.ne[1] && ox + k < (int) p.y.ne[0]) {
                        *(float4 *) d_at(p.y, ox + k, o, c, i3) = make_float4(third[0], third[1], third[2], third[3]);
                    }
                }
            }
        }
    }
}

// ---- rows of pixels: what a tile of outputs is made of goes through shared memory, zeros around the image ----
#define DW_ROWS 4 // outputs of a thread, below each other
struct d_dw {
    int wide, high;       // the tile in outputs
    int in_wide, in_high; // and in elements of x
    uint32_t per_row;     // 2^32 / in_wide, rounded up: i / in_wide of small i is the upper half of a product
    int64_t n_wide, n_high;
};

template <typename TX, typename TW> static __global__ void __launch_bounds__(256) k_conv_2d_dw_tile(const gcuda_conv_args p, const d_dw w) {
    DYNAMIC_SHARED(float, shared);
    const int kw_n = (int) p.kernel.ne[0], kh_n = (int) p.kernel.ne[1], tid = (int) threadIdx.x;
    float * weights = shared, * x = shared + (kw_n * kh_n + 31) / 32 * 32;
    const int tx = tid % w.wide, ty = tid / w.wide, step = w.high / DW_ROWS; // of a thread's rows
    FOR_ROWS(b, w.n_wide * w.n_high * p.y.ne[2] * p.y.ne[3]) {
        const int64_t rest = b / w.n_wide, plane = rest / w.n_high, i3 = plane / p.y.ne[2], c = plane - i3 * p.y.ne[2];
        const int64_t ox = (b - rest * w.n_wide) * w.wide, oy = (rest - plane * w.n_high) * w.high;
        const int64_t x0 = ox * p.s0 - p.p0, y0 = oy * p.s1 - p.p1;
        const char * image = d_at(p.x, 0, 0, c, i3);
        __syncthreads(); // the last tile is done with
        for (int i = tid; i < kw_n * kh_n; i += 256) {
            weights[i] = d_f32(*(const TW *) d_at(p.kernel, i % kw_n, i / kw_n, 0, c));
        }
        for (int i0 = tid; i0 < w.in_wide * w.in_high; i0 += 6 * 256) {
            TX v[6];
            bool is_in[6];
            UNROLL for (int k = 0; k < 6; ++k) {
                const int i = i0 + 256 * k, r = (int) __umulhi((uint32_t) i, w.per_row);
                const int64_t at_y = y0 + r, at_x = x0 + (i - r * w.in_wide);
                is_in[k] = r < w.in_high && at_y >= 0 && at_y < p.x.ne[1] && at_x >= 0 && at_x < p.x.ne[0];
                if (is_in[k]) { v[k] = *(const TX *) (image + at_y * (int64_t) p.x.nb[1] + at_x * (int64_t) p.x.nb[0]); }
            }
            UNROLL for (int k = 0; k < 6; ++k) {
                if (i0 + 256 * k < w.in_wide * w.in_high) { x[i0 + 256 * k] = is_in[k] ? d_f32(v[k]) : 0.0f; }
            }
        }
        __syncthreads();
        float sum[DW_ROWS] = {};
        const int row_step = step * p.s1 * w.in_wide;
        for (int kh = 0; kh < kh_n; ++kh) {
            const float * from = x + (ty * p.s1 + kh * p.d1) * w.in_wide + tx * p.s0;
            for (int kw = 0; kw < kw_n; ++kw) {
                const float weight = weights[kh * kw_n + kw];
                UNROLL for (int k = 0; k < DW_ROWS; ++k) { sum[k] += weight * from[kw * p.d0 + k * row_step]; }
            }
        }
        UNROLL for (int k = 0; k < DW_ROWS; ++k) {
            const int64_t at = oy + ty + k * step;
            if (ox + tx >= p.y.ne[0] || at >= p.y.ne[1]) { continue; }
            if (isnan(sum[k])) { sum[k] = d_dw_inside<TW>(p, ox + tx, at, c, i3); }
            d_put((TX *) d_at(p.y, ox + tx, at, c, i3), sum[k]);
        }
    }
}

// ---- channels innermost: a thread has four of them at DW_PIXELS pixels of a row ----
#define DW_PIXELS 4

template <typename TX, typename TW>
static __global__ void k_conv_2d_dw_quads(const gcuda_conv_args p, const gcuda_array walk, const tiles t) {
    FOR_TILES(tile, t) {
        const d_index i = d_tile_at(t, walk.ne, tile, 1, 1);
        if (i.i0 >= walk.ne[0]) {
            continue;
        }
        const int64_t c = i.i0 * 4, ox = i.i1 * DW_PIXELS, oy = i.i2;
        const int64_t nbx = (int64_t) p.x.nb[0], nbw = (int64_t) p.kernel.nb[0];
        const int x0 = (int) (ox * p.s0 - p.p0), wide = (int) p.x.ne[0];
        const char * image = d_at(p.x, 0, 0, c, i.i3);
        float sum[DW_PIXELS][4] = {};
        for (int kh = 0; kh < (int) p.kernel.ne[1]; ++kh) {
            const int64_t y = oy * p.s1 + (int64_t) kh * p.d1 - p.p1;
            if (y < 0 || y >= p.x.ne[1]) {
                continue;
            }
            const char * row = image + y * (int64_t) p.x.nb[1], * weights = d_at(p.kernel, 0, kh, 0, c);
            for (int kw = 0; kw < (int) p.kernel.ne[0]; ++kw) {
                const d_quad<TW> w = *(const d_quad<TW> *) (weights + kw * nbw);
                d_quad<TX> v[DW_PIXELS];
                bool is_in[DW_PIXELS];
                UNROLL for (int k = 0; k < DW_PIXELS; ++k) {
                    const int x = x0 + k * p.s0 + kw * p.d0;
                    is_in[k] = x >= 0 && x < wide;
                    v[k] = *(const d_quad<TX> *) (row + (is_in[k] ? x : 0) * nbx);
                }
                UNROLL for (int k = 0; k < DW_PIXELS; ++k) {
                    UNROLL for (int j = 0; j < 4; ++j) { sum[k][j] += is_in[k] ? d_f32(w.v[j]) * d_f32(v[k].v[j]) : 0.0f; }
                }
            }
        }
        UNROLL for (int k = 0; k < DW_PIXELS; ++k) {
            d_quad<TX> out;
            UNROLL for (int j = 0; j < 4; ++j) { d_put(&out.v[j], sum[k][j]); }
            if (ox + k < p.y.ne[0]) { *(d_quad<TX> *) d_at(p.y, ox + k, oy, c, i.i3) = out; }
        }
    }
}

// Four channels lie together everywhere.
static bool has_quads(const gcuda_array & a, int channels) {
    const size_t size = gcuda_type_size(a.type);
    uintptr_t bits = (uintptr_t) a.data;
    for (int d = 0; d < 4; ++d) { bits |= d == channels || a.ne[d] == 1 ? 0 : a.nb[d]; }
    return a.nb[channels] == size && a.ne[channels] % 4 == 0 && bits % (4 * size) == 0;
}

static size_t dw_tile(const gcuda_conv_args & p, d_dw * out) { // bytes of shared memory
    d_dw w;
    w.wide = p.y.ne[0] <= 32 ? 32 : 64;
    w.high = DW_ROWS * 256 / w.wide;
    w.n_wide = (p.y.ne[0] + w.wide - 1) / w.wide;
    w.n_high = (p.y.ne[1] + w.high - 1) / w.high;
    const int64_t in_wide = (w.wide - 1) * (int64_t) p.s0 + (p.kernel.ne[0] - 1) * p.d0 + 1;
    const int64_t in_high = (w.high - 1) * (int64_t) p.s1 + (p.kernel.ne[1] - 1) * p.d1 + 1;
    w.in_wide = (int) in_wide;
    w.in_high = (int) in_high;
    w.per_row = (uint32_t) ((((uint64_t) 1 << 32) + (uint64_t) in_wide - 1) / (uint64_t) in_wide);
    *out = w;
    const double floats = (double) in_wide * (double) in_high + (double) p.kernel.ne[0] * (double) p.kernel.ne[1] + 32.0;
    return floats < 1e6 ? (size_t) (in_wide * in_high + (p.kernel.ne[0] * p.kernel.ne[1] + 31) / 32 * 32) * sizeof(float) : (size_t) -1 / 2;
}

// Fewer of them leave multiprocessors idle, and the plain form has more.
#ifdef GCUDAI_SIM
#define DW_FILLS 2 // the simulated device comes here with small images, or no test would
#define DW_SLIDES 8
#define DW_TWO 16384
#else
#define DW_FILLS 256    // tiles; threads with 16 outputs by four
#define DW_SLIDES 65536 // threads
#define DW_TWO (1 << 20) // outputs, at most
#endif

gcuda_status gcuda_launch_conv_2d_dw(const gcuda_conv_args * args, gcuda_stream stream) {
    const gcuda_conv_args & p = *args;
    const bool is_channels = p.y.nb[2] < p.y.nb[0];
    const bool is_near = p.x.ne[0] < CONV_FAR && p.x.ne[1] < CONV_FAR && p.y.ne[0] * p.s0 < CONV_FAR && p.y.ne[1] * p.s1 < CONV_FAR && p.p0 < CONV_FAR &&
                         p.p1 < CONV_FAR && p.kernel.ne[0] * p.d0 < CONV_FAR && p.kernel.ne[1] * p.d1 < CONV_FAR;
    const bool is_large = n_elements(p.y) >= DW_FILLS * (int64_t) 1024 || !is_near;
    const bool is_quads = is_channels && has_quads(p.x, 2) && has_quads(p.kernel, 3) && has_quads(p.y, 2) && is_large && is_near;
    const bool is_3x3 = p.kernel.ne[0] == 3 && p.kernel.ne[1] == 3 && p.s0 == 1 && p.s1 == 1 && p.d0 == 1 && p.d1 == 1 && is_large && is_near;
    const int64_t n_slides = (p.y.ne[1] + DW_SLIDE - 1) / DW_SLIDE * p.y.ne[3], n_own = 4; // outputs of a thread
    const int64_t n_slide = n_slides * (is_channels ? p.y.ne[2] / 4 * ((p.y.ne[0] + 1) / 2) : p.y.ne[2] * (p.y.ne[0] / 4)); // threads
    const bool is_slide = is_3x3 && p.x.type == GCUDA_TYPE_F32 && n_slide >= DW_SLIDES && n_slide < INT32_MAX &&
                          (is_channels ? is_quads : is_wide(p.x) && is_wide(p.y) && p.x.ne[0] % 4 == 0 && p.p0 == 1);
    const int k_n = (int) p.kernel.ne[0];
    const bool is_two = p.x.type == GCUDA_TYPE_F32 && (k_n == 3 || k_n == 5) && p.kernel.ne[1] == k_n && (p.s0 == 1 || p.s0 == 2) &&
                        p.s1 == p.s0 && p.d0 == 1 && p.d1 == 1 && is_near && n_elements(p.y) <= DW_TWO &&
                        (is_channels || (p.x.nb[0] == 4 && p.kernel.nb[0] == gcuda_type_size(p.kernel.type)));
    gcuda_array walk = p.y;
    d_dw w;
    const size_t n_bytes = dw_tile(p, &w);
    const int64_t n_tiles = w.n_wide * w.n_high * p.y.ne[2] * p.y.ne[3];
    if (is_channels) {
        walk.ne[0] = is_quads ? p.y.ne[2] / 4 : p.y.ne[2];
        walk.ne[1] = (p.y.ne[0] + n_own - 1) / n_own;
        walk.ne[2] = p.y.ne[1];
    }
    const tiles t = tiles_of(walk, 1, is_channels ? 1 : n_own);
    return with_float(p.x.type, [&](auto x) {
        return with_float(p.kernel.type, [&](auto v) {
            typedef decltype(x) TX;
            typedef decltype(v) TW;
            if (is_slide) {
                return launch(is_channels ? k_conv_2d_dw_slide_quads<TW> : k_conv_2d_dw_slide<TW>, (n_slide + 127) / 128, 128, stream, p, (uint32_t) n_slide);
            }
            if (is_two) {
                return is_channels ? conv_2d_dw_two<TW, true>(p, stream) : conv_2d_dw_two<TW, false>(p, stream);
            }
            if (!is_channels && n_tiles >= DW_FILLS && fits_shared(n_bytes, 0)) {
                return launch_shared(k_conv_2d_dw_tile<TX, TW>, n_tiles, dim3(256), n_bytes, 0, stream, p, w);
            }
            if (!is_large) {
                return launch(is_channels ? k_conv_2d_dw_one<TX, TW, true> : k_conv_2d_dw_one<TX, TW, false>, (n_elements(p.y) + 127) / 128, 128, stream, p);
            }
            return is_quads      ? launch_tiles(k_conv_2d_dw_quads<TX, TW>, t, stream, p, walk)
                   : is_channels ? launch_tiles(k_conv_2d_dw<TX, TW, true, 4>, t, stream, p, walk)
                                 : launch_tiles(k_conv_2d_dw<TX, TW, false, 4>, t, stream, p, walk);
        });
    });
}

// >>op:conv_transpose_1d  >>op:conv_transpose_2d ------------------------------------------------------
// Outputs whose places have the same rest by the stride meet the same part of the kernel, every stride-th row and column: a phase. A thread
// has eight channels of N outputs of a phase. Weights of TRANSPOSE_TAPS / (KW KH) input channels are in shared memory.
//   floor   2 OC IC W H KW KH N operations
#define TRANSPOSE_TAPS 1024 // times eight channels: 32 KiB

struct d_phases {
    int n_x, n_y;      // phases
    int wide, high;    // outputs of the first, which has the most
    int64_t n_tiles;   // of 128 N outputs of a phase
};

template <typename TX, typename TW, int N>
static __global__ void __launch_bounds__(128) k_conv_transpose(const gcuda_conv_transpose_args p, const d_phases f) {
    alignas(16) __shared__ float weights[TRANSPOSE_TAPS][8]; // [channel][row][column][output channel]
    const int s = (int) p.stride, kw_n = (int) p.kernel.ne[0], kh_n = (int) p.kernel.ne[1], n_staged = TRANSPOSE_TAPS / (kw_n * kh_n);
    const int64_t n_oc = p.kernel.ne[2], n_groups = (n_oc + 7) / 8, n_phases = (int64_t) f.n_x * f.n_y;
    const int64_t image_pixels = p.y.ne[0] * p.y.ne[1];
    FOR_ROWS(block, n_groups * f.n_tiles * n_phases * p.y.ne[3]) {
        const int64_t rest0 = block / n_groups, rest1 = rest0 / f.n_tiles, image = rest1 / n_phases, oc0 = (block - rest0 * n_groups) * 8;
        const int64_t first = (rest0 - rest1 * f.n_tiles) * (128 * N) + threadIdx.x;
        const int phase = (int) (rest1 - image * n_phases), fy = phase / f.n_x, fx = phase - fy * f.n_x;
        const int rows = fy < kh_n ? (kh_n - fy + s - 1) / s : 0, cols = fx < kw_n ? (kw_n - fx + s - 1) / s : 0, n_taps = rows * cols;
        int x[N], y[N];
        float sum[N][8] = {};
        UNROLL for (int j = 0; j < N; ++j) {
            const int64_t at = first + 128 * j;
            y[j] = at < (int64_t) f.wide * f.high ? (int) (at / f.wide) : f.high + kh_n; // nothing reaches that one
            x[j] = (int) (at - at / f.wide * f.wide);
        }
        for (int64_t c0 = 0; c0 < p.x.ne[2] && n_taps > 0; c0 += n_staged) {
            const int n_c = (int) (p.x.ne[2] - c0 < n_staged ? p.x.ne[2] - c0 : n_staged);
            __syncthreads();
            for (int i = (int) threadIdx.x; i < n_c * n_taps * 8; i += 128) {
                const int rest = i / n_taps, tap = i - rest * n_taps, r = tap / cols;
                const int64_t oc = oc0 + rest % 8;
                const TW * from = (const TW *) d_at(p.kernel, 0, 0, oc, c0 + rest / 8) + (fy + s * r) * kw_n + fx + s * (tap - r * cols);
                weights[rest / 8 * n_taps + tap][rest % 8] = oc < n_oc ? d_f32(*from) : 0.0f;
            }
            __syncthreads();
            for (int tap = 0; tap < n_taps; ++tap) {
                const int r = tap / cols, col = tap - r * cols;
                const char * from[N];
                bool is_in[N];
                UNROLL for (int j = 0; j < N; ++j) {
                    is_in[j] = (unsigned) (x[j] - col) < (unsigned) p.x.ne[0] && (unsigned) (y[j] - r) < (unsigned) p.x.ne[1];
                    from[j] = d_at(p.x, is_in[j] ? x[j] - col : 0, is_in[j] ? y[j] - r : 0, c0, image);
                }
                auto add = [&](int c, const float * v) {
                    const float * w = weights[c * n_taps + tap];
                    float eight[8];
                    UNROLL for (int k = 0; k < 8; ++k) { eight[k] = w[k]; }
                    UNROLL for (int j = 0; j < N; ++j) {
                        UNROLL for (int k = 0; k < 8; ++k) {
                            if (is_in[j]) { sum[j][k] += v[j] * eight[k]; } // an infinite weight reaches only what it is part of
                        }
                    }
                };
                auto load = [&](int c, float * v) {
                    UNROLL for (int j = 0; j < N; ++j) {
                        v[j] = is_in[j] ? d_f32(*(const TX *) (from[j] + c * (int64_t) p.x.nb[2])) : 0.0f;
                    }
                };
                int c = 0;
                for (; c + 4 <= n_c; c += 4) {
                    float v[4][N];
                    UNROLL for (int i = 0; i < 4; ++i) { load(c + i, v[i]); }
                    UNROLL for (int i = 0; i < 4; ++i) { add(c + i, v[i]); }
                }
                for (; c < n_c; ++c) {
                    float v[N];
                    load(c, v);
                    add(c, v);
                }
            }
        }
        UNROLL for (int j = 0; j < N; ++j) {
            const int64_t ox = fx + (int64_t) s * x[j], oy = fy + (int64_t) s * y[j], at = oy * p.y.ne[0] + ox;
            UNROLL for (int k = 0; k < 8; ++k) {
                if (ox < p.y.ne[0] && at < image_pixels && oc0 + k < n_oc) { ((float *) d_at(p.y, 0, 0, oc0 + k, image))[at] = sum[j][k]; }
            }
        }
    }
}

// Kernels too large to stage.
static __global__ void k_conv_transpose_any(const gcuda_conv_transpose_args p, const tiles t) {
    const int64_t s = p.stride;
    FOR_TILES(tile, t) {
        const d_index i = d_tile_at(t, p.y.ne, tile, 1, 1);
        float sum = 0.0f;
        if (i.i0 >= p.y.ne[0]) {
            continue;
        }
        for (int64_t kh = i.i1 % s; kh < p.kernel.ne[1] && kh <= i.i1; kh += s) {
            const int64_t h = (i.i1 - kh) / s;
            for (int64_t kw = i.i0 % s; kw < p.kernel.ne[0] && kw <= i.i0 && h < p.x.ne[1]; kw += s) {
                const int64_t w = (i.i0 - kw) / s;
                for (int64_t c = 0; c < p.x.ne[2] && w < p.x.ne[0]; ++c) {
                    sum += d_load(p.kernel.type, d_at(p.kernel, kw, kh, i.i2, c)) * d_load(p.x.type, d_at(p.x, w, h, c, i.i3));
                }
            }
        }
        *(float *) d_at(p.y, i) = sum;
    }
}

// Dimensions 0 and 1 of all three are packed.
static gcuda_status conv_transpose(const gcuda_conv_transpose_args & p, gcuda_stream stream) {
    if (p.kernel.ne[0] * p.kernel.ne[1] > TRANSPOSE_TAPS || p.y.ne[0] >= CONV_FAR || p.y.ne[1] >= CONV_FAR) {
        return launch_tiles(k_conv_transpose_any, tiles_of(p.y, 1, 1), stream, p);
    }
    d_phases f;
    f.n_x = (int) (p.stride < p.y.ne[0] ? p.stride : p.y.ne[0]);
    f.n_y = (int) (p.stride < p.y.ne[1] ? p.stride : p.y.ne[1]);
    f.wide = (int) ((p.y.ne[0] + p.stride - 1) / p.stride);
    f.high = (int) ((p.y.ne[1] + p.stride - 1) / p.stride);
    const int64_t n_phases = (p.kernel.ne[2] + 7) / 8 * f.n_x * f.n_y * p.y.ne[3], n_pixels = (int64_t) f.wide * f.high;
    const int n_own = (n_pixels + 511) / 512 * n_phases >= 2 * n_multiprocessors() ? 4 : 1;
    f.n_tiles = (n_pixels + 128 * n_own - 1) / (128 * n_own);
    const int64_t n = f.n_tiles * n_phases;
    return with_float(p.x.type, [&](auto x) {
        return with_float(p.kernel.type, [&](auto w) {
            typedef decltype(x) TX;
            typedef decltype(w) TW;
            return launch(n_own == 4 ? k_conv_transpose<TX, TW, 4> : k_conv_transpose<TX, TW, 1>, n, 128, stream, p, f);
        });
    });
}

// Large ones in two dimensions, which may be computed on tensor cores: the product of all elements of the kernel with all pixels, as a
// convolution with a kernel of one element, whose result are columns that im2col_back adds up. As many output channels at a time as have
// room for their columns.
//   floor   as above; 4 KW KH OC W H bytes written and read once more
#define TRANSPOSE_CHANNELS 32 // with fewer, as with little to multiply, columns take longer than what they save
#ifdef GCUDAI_SIM
#define TRANSPOSE_LEAST 1e5 // multiplications; the simulated device comes here with small ones, or no test would
#define TRANSPOSE_COLUMNS ((int64_t) 64 << 10) // bytes
#else
#define TRANSPOSE_LEAST 1e8
#define TRANSPOSE_COLUMNS ((int64_t) 256 << 20)
#endif
struct d_transpose_product {
    int64_t n_taps, n_oc; // elements of a kernel; output channels at a time, 0: not this way
    size_t columns_at, rest_at, n_bytes; // in scratch, behind the weights: columns, and what the convolution wants; in all
};

// Of n_oc output channels from oc.
static gcuda_conv_args transpose_conv_of(const gcuda_conv_transpose_args & p, const d_transpose_product & t, int64_t oc, int64_t n_oc) {
    const int64_t n_in = p.x.ne[2], n_rows = n_oc * t.n_taps;
    char * scratch = (char *) p.scratch;
    gcuda_conv_args c = {};
    const size_t w_at = (size_t) (oc * t.n_taps * n_in) * gcuda_type_size(p.kernel.type);
    c.kernel = packed_array(p.kernel.type, (void *) ((uintptr_t) scratch + w_at), 1, 1, n_in, n_rows);
    c.x = p.x;
    c.y = packed_array(GCUDA_TYPE_F32, (void *) ((uintptr_t) scratch + t.columns_at), p.x.ne[0], p.x.ne[1], n_rows, p.x.ne[3]);
    c.s0 = c.s1 = c.d0 = c.d1 = 1;
    c.max_shared = p.max_shared;
    c.prec = p.prec;
    c.scratch = (void *) ((uintptr_t) scratch + t.rest_at);
    return c;
}

static d_transpose_product transpose_product_of(const gcuda_conv_transpose_args & p) {
    d_transpose_product t = {};
    const int64_t n_pixels = p.x.ne[0] * p.x.ne[1] * p.x.ne[3], n_oc = p.kernel.ne[2];
    t.n_taps = p.kernel.ne[0] * p.kernel.ne[1];
    const double columns = 4.0 * (double) t.n_taps * (double) n_pixels, n = columns / 4.0 * (double) n_oc * (double) p.x.ne[2];
    const bool is_packed = p.kernel.nb[2] == (size_t) t.n_taps * p.kernel.nb[0];
    if (p.prec == GCUDA_PREC_F32 || !is_packed || p.x.type != GCUDA_TYPE_F32 || p.x.ne[2] < TRANSPOSE_CHANNELS || n < TRANSPOSE_LEAST ||
        n_oc * t.n_taps < TRANSPOSE_CHANNELS || columns > (double) TRANSPOSE_COLUMNS || capability_major() < 8) {
        return t;
    }
    const int64_t room = TRANSPOSE_COLUMNS / (4 * t.n_taps * n_pixels), n_parts = (n_oc + room - 1) / room;
    const auto aligned = [](size_t n_bytes) { return (n_bytes + 255) / 256 * 256; };
    t.n_oc = (n_oc + n_parts - 1) / n_parts;
    t.columns_at = aligned((size_t) (n_oc * t.n_taps * p.x.ne[2]) * gcuda_type_size(p.kernel.type));
    t.rest_at = t.columns_at + aligned((size_t) (4 * t.n_oc * t.n_taps * n_pixels));
    for (int64_t oc = 0; oc < n_oc; oc += t.n_oc) {
        const gcuda_conv_args c = transpose_conv_of(p, t, oc, n_oc - oc < t.n_oc ? n_oc - oc : t.n_oc);
        const size_t n_bytes = add_bytes(t.rest_at, gcuda_conv_2d_scratch_bytes(&c));
        t.n_bytes = n_bytes > t.n_bytes ? n_bytes : t.n_bytes;
    }
    return t;
}

static gcuda_status conv_transpose_product(const gcuda_conv_transpose_args & p, const d_transpose_product & t, gcuda_stream stream) {
    const int64_t n_oc = p.kernel.ne[2], n_rows = n_oc * t.n_taps;
    gcuda_cpy_args w = {}; // input channels become adjacent
    w.y = packed_array(p.kernel.type, p.scratch, p.x.ne[2], n_rows, 1, 1);
    w.x = packed_array(p.kernel.type, p.kernel.data, p.x.ne[2], n_rows, 1, 1);
    w.x.nb[0] = p.kernel.nb[3], w.x.nb[1] = p.kernel.nb[0];
    gcuda_status st = gcuda_launch_cpy(&w, stream);
    for (int64_t oc = 0; oc < n_oc && st == GCUDA_STATUS_SUCCESS; oc += t.n_oc) {
        const gcuda_conv_args c = transpose_conv_of(p, t, oc, n_oc - oc < t.n_oc ? n_oc - oc : t.n_oc);
        gcuda_conv_args back = {}; // of a column the elements are a plane apart
        back.kernel = p.kernel;
        back.x = c.y;
        back.x.ne[0] = c.y.ne[2], back.x.ne[1] = c.y.ne[0], back.x.ne[2] = c.y.ne[1];
        back.x.nb[0] = c.y.nb[2], back.x.nb[1] = c.y.nb[0], back.x.nb[2] = c.y.nb[1];
        back.y = p.y;
        back.y.data = (char *) p.y.data + oc * (int64_t) p.y.nb[2];
        back.y.ne[2] = c.y.ne[2] / t.n_taps;
        back.s0 = back.s1 = p.stride;
        back.d0 = back.d1 = 1;
        st = gcuda_launch_conv_2d(&c, stream);
        st = st == GCUDA_STATUS_SUCCESS ? gcuda_launch_im2col_back(&back, stream) : st;
    }
    return st;
}

size_t gcuda_conv_transpose_2d_scratch_bytes(const gcuda_conv_transpose_args * args) {
    return asked_bytes(transpose_product_of(*args).n_bytes);
}

gcuda_status gcuda_launch_conv_transpose_2d(const gcuda_conv_transpose_args * args, gcuda_stream stream) {
    const d_transpose_product t = transpose_product_of(*args);
    if (t.n_bytes == SIZE_MAX) {
        return GCUDA_STATUS_FAILED;
    }
    return t.n_oc > 0 && args->scratch != nullptr ? conv_transpose_product(*args, t, stream) : conv_transpose(*args, stream);
}
gcuda_status gcuda_launch_conv_transpose_1d(const gcuda_conv_transpose_args * args, gcuda_stream stream) {
    return conv_transpose(*args, stream);
}

// >>op:pool_1d  >>op:pool_2d --------------------------------------------------------------------------
//   floor   x read, y written: 4 bytes an element
// The part of a window that lies in the image.
struct d_window {
    int64_t x0, x1, y0, y1;
};
static __device__ d_window d_window_of(const gcuda_pool_args & p, int64_t ox, int64_t oy) {
    const int64_t x = ox * p.s0 - p.p0, y = oy * p.s1 - p.p1;
    d_window w = { x > 0 ? x : 0, x + p.k0, y > 0 ? y : 0, y + p.k1 };
    w.x1 = w.x1 < p.x.ne[0] ? w.x1 : p.x.ne[0];
    w.y1 = w.y1 < p.x.ne[1] ? w.y1 : p.x.ne[1];
    return w;
}

// The largest value and where in the plane its first occurrence is, or -1.
static __device__ float d_pool_max(const gcuda_pool_args & p, const d_window & w, const char * plane, int64_t * at) {
    float max = -3.402823466e38f;
    *at = -1;
    for (int64_t y = w.y0; y < w.y1; ++y) {
        for (int64_t x = w.x0; x < w.x1; ++x) {
            const float v = d_load(p.x.type, plane + y * (int64_t) p.x.nb[1] + x * (int64_t) p.x.nb[0]);
            if (v > max) {
                max = v;
                *at = y * p.x.ne[0] + x;
            }
        }
    }
    return max;
}

// What the sum over a window of row ox is divided by; of nothing the mean is 0.
static inline __device__ float d_pool_divisor(const gcuda_pool_args & p, int64_t ox) {
    if (!p.counts_inside) { return (float) p.k0 * (float) p.k1; }
    const int64_t x = ox * p.s0 - p.p0, x0 = x > 0 ? x : 0, x1 = x + p.k0 < p.x.ne[0] ? x + p.k0 : p.x.ne[0];
    return x1 > x0 ? (float) (x1 - x0) : 1.0f;
}

// The mean again, in double: its sum in F32 was not finite.
static NO_INLINE __device__ float d_pool_mean(const gcuda_pool_args & p, int64_t ox, int64_t oy, int64_t i2, int64_t i3) {
    const d_window w = d_window_of(p, ox, oy);
    const char * plane = d_at(p.x, 0, 0, i2, i3);
    double sum = 0.0;
    for (int64_t y = w.y0; y < w.y1; ++y) {
        for (int64_t x = w.x0; x < w.x1; ++x) { sum += (double) d_load(p.x.type, plane + y * (int64_t) p.x.nb[1] + x * (int64_t) p.x.nb[0]); }
    }
    const double divisor = p.counts_inside ? (double) d_pool_divisor(p, ox) : (double) p.k0 * (double) p.k1;
    return (float) (sum / divisor);
}
// The mean of a window from its sum in F32, which may have left it.
static inline __device__ float d_pool_mean_of(const gcuda_pool_args & p, float sum, float divisor, int64_t ox, int64_t oy, int64_t i2, int64_t i3) {
    return fabsf(sum) <= F32_MOST ? sum / divisor : d_pool_mean(p, ox, oy, i2, i3);
}

static __global__ void k_pool(const D_GRID_CONSTANT gcuda_pool_args p, const tiles t) {
    FOR_TILES(tile, t) {
        const d_index i = d_tile_at(t, p.y.ne, tile, 1, 1);
        if (i.i0 >= p.y.ne[0]) {
            continue;
        }
        const d_window w = d_window_of(p, i.i0, i.i1);
        const char * plane = d_at(p.x, 0, 0, i.i2, i.i3);
        float v = 0.0f;
        if (p.op == GCUDA_OP_POOL_MAX) {
            int64_t at;
            v = d_pool_max(p, w, plane, &at);
        } else {
            for (int64_t y = w.y0; y < w.y1; ++y) {
                for (int64_t x = w.x0; x < w.x1; ++x) {
                    v += d_load(p.x.type, plane + y * (int64_t) p.x.nb[1] + x * (int64_t) p.x.nb[0]);
                }
            }
            v = d_pool_mean_of(p, v, d_pool_divisor(p, i.i0), i.i0, i.i1, i.i2, i.i3);
        }
        *(float *) d_at(p.y, i) = v;
    }
}

// Packed elements and windows K wide: POOL_AHEAD results a thread, the rows of their windows read together.
#define POOL_AHEAD 4
template <typename T, int K, bool IS_MAX>
static __global__ void __launch_bounds__(TILE_BLOCK) k_pool_wide(const D_GRID_CONSTANT gcuda_pool_args p, const tiles t) {
    const float whole = (float) p.k0 * (float) p.k1;
    FOR_TILES(tile, t) {
        const d_index i = d_tile_at(t, p.y.ne, tile, 1, POOL_AHEAD);
        const int64_t y = i.i1 * p.s1 - p.p1, step = d_tile_step(t, 1) * p.s0, x = i.i0 * p.s0 - p.p0;
        const int64_t y0 = y > 0 ? y : 0, y1 = y + p.k1 < p.x.ne[1] ? y + p.k1 : p.x.ne[1];
        const T * row = (const T *) d_at(p.x, 0, y0, i.i2, i.i3) + x;
        float v[POOL_AHEAD];
        UNROLL for (int k = 0; k < POOL_AHEAD; ++k) { v[k] = IS_MAX ? -3.402823466e38f : 0.0f; }
        const bool is_inside = x >= 0 && x + (POOL_AHEAD - 1) * step + K <= p.x.ne[0];
        for (int64_t at = y0; at < y1 && is_inside; ++at, row = (const T *) ((const char *) row + p.x.nb[1])) {
            T raw[POOL_AHEAD][K];
            UNROLL for (int k = 0; k < POOL_AHEAD; ++k) {
                UNROLL for (int j = 0; j < K; ++j) { raw[k][j] = row[k * step + j]; }
            }
            UNROLL for (int k = 0; k < POOL_AHEAD; ++k) {
                UNROLL for (int j = 0; j < K; ++j) {
                    const float u = d_f32(raw[k][j]);
                    v[k] = !IS_MAX ? v[k] + u : u > v[k] ? u : v[k];
                }
            }
        }
        for (int64_t at = y0; at < y1 && !is_inside; ++at, row = (const T *) ((const char *) row + p.x.nb[1])) {
            T raw[POOL_AHEAD][K];
            UNROLL for (int k = 0; k < POOL_AHEAD; ++k) {
                UNROLL for (int j = 0; j < K; ++j) {
                    const int64_t from = x + k * step + j;
                    raw[k][j] = from >= 0 && from < p.x.ne[0] ? row[k * step + j] : T();
                }
            }
            UNROLL for (int k = 0; k < POOL_AHEAD; ++k) {
                UNROLL for (int j = 0; j < K; ++j) {
                    const int64_t from = x + k * step + j;
                    const float u = d_f32(raw[k][j]);
                    if (from >= 0 && from < p.x.ne[0]) { v[k] = !IS_MAX ? v[k] + u : u > v[k] ? u : v[k]; }
                }
            }
        }
        UNROLL for (int k = 0; k < POOL_AHEAD; ++k) {
            const int64_t at = i.i0 + k * d_tile_step(t, 1);
            if (at < p.y.ne[0]) {
                const float divisor = IS_MAX || is_inside ? whole : d_pool_divisor(p, at);
                *(float *) d_at(p.y, at, i.i1, i.i2, i.i3) = IS_MAX ? v[k] : d_pool_mean_of(p, v[k], divisor, at, i.i1, i.i2, i.i3);
            }
        }
    }
}

// The same where windows touch: as many results a thread as sixteen bytes of x have elements, from K of these a row.
template <typename T, int K, bool IS_MAX>
static __global__ void __launch_bounds__(TILE_BLOCK) k_pool_touching(const D_GRID_CONSTANT gcuda_pool_args p, bool is_wide_y, const tiles t) {
    const int N = d_wide<T>::N;
    const float divisor = (float) p.k0 * (float) p.k1;
    FOR_TILES(tile, t) {
        const d_index i = d_tile_at(t, p.y.ne, tile, N, 1);
        const int64_t y = i.i1 * p.s1 - p.p1, y0 = y > 0 ? y : 0, y1 = y + p.k1 < p.x.ne[1] ? y + p.k1 : p.x.ne[1];
        const int n = p.y.ne[0] - i.i0 < N ? (int) (p.y.ne[0] - i.i0) : N;
        const char * row = d_at(p.x, i.i0 * K, y0, i.i2, i.i3);
        float v[N];
        UNROLL for (int k = 0; k < N; ++k) { v[k] = IS_MAX ? -3.402823466e38f : 0.0f; }
        for (int64_t at = y0; at < y1 && n == N; at += K, row += K * (int64_t) p.x.nb[1]) {
            uint4 raw[K][K];
            UNROLL for (int r = 0; r < K; ++r) {
                UNROLL for (int j = 0; j < K; ++j) {
                    raw[r][j] = ((const uint4 *) (row + (at + r < y1 ? r : 0) * (int64_t) p.x.nb[1]))[j];
                }
            }
            UNROLL for (int r = 0; r < K; ++r) {
                float u[K * N];
                UNROLL for (int j = 0; j < K; ++j) { d_unpack<T>(raw[r][j], u + j * N); }
                UNROLL for (int j = 0; j < K * N; ++j) {
                    if (at + r < y1) { v[j / K] = !IS_MAX ? v[j / K] + u[j] : u[j] > v[j / K] ? u[j] : v[j / K]; }
                }
            }
        }
        for (int64_t at = y0; at < y1 && n < N; ++at, row += p.x.nb[1]) {
            UNROLL for (int j = 0; j < K * N; ++j) {
                const float u = j < K * n ? d_f32(((const T *) row)[j]) : 0.0f;
                v[j / K] = !IS_MAX ? v[j / K] + u : u > v[j / K] ? u : v[j / K];
            }
        }
        float * to = (float *) d_at(p.y, i.i0, i.i1, i.i2, i.i3);
        UNROLL for (int k = 0; k < N; ++k) {
            if (!IS_MAX && k < n) { v[k] = d_pool_mean_of(p, v[k], divisor, i.i0 + k, i.i1, i.i2, i.i3); }
        }
        UNROLL for (int k = 0; k < N; k += 4) {
            if (is_wide_y && k + 4 <= n) {
                d_store16(to + k, v + k);
            } else {
                UNROLL for (int j = k; j < k + 4; ++j) {
                    if (j < n) { to[j] = v[j]; }
                }
            }
        }
    }
}

template <int K> static gcuda_status pool_wide(const gcuda_pool_args & p, gcuda_stream stream) {
    return with_float(p.x.type, [&](auto v) {
        typedef decltype(v) T;
        if (is_wide(p.x) && p.s0 == K && p.p0 == 0 && p.y.ne[0] <= p.x.ne[0] / K) { // half an element of padding may add an output
            const tiles touching = tiles_of(p.y, d_wide<T>::N, 1);
            return launch_tiles(p.op == GCUDA_OP_POOL_MAX ? k_pool_touching<T, K, true> : k_pool_touching<T, K, false>, touching, stream, p,
                is_wide(p.y));
        }
        const tiles t = tiles_of(p.y, 1, POOL_AHEAD);
        return p.op == GCUDA_OP_POOL_MAX ? launch_tiles(k_pool_wide<T, K, true>, t, stream, p)
                                         : launch_tiles(k_pool_wide<T, K, false>, t, stream, p);
    });
}

gcuda_status gcuda_launch_pool_2d(const gcuda_pool_args * args, gcuda_stream stream) {
    // a window of a dimension is a row of its own: dimension 1 is no window in one dimension
    const bool is_dense = args->x.nb[0] == gcuda_type_size(args->x.type);
    if (is_dense && args->k0 == 2) { return pool_wide<2>(*args, stream); }
    if (is_dense && args->k0 == 3) { return pool_wide<3>(*args, stream); }
    return launch_tiles(k_pool, tiles_of(args->y, 1, 1), stream, *args);
}
gcuda_status gcuda_launch_pool_1d(const gcuda_pool_args * args, gcuda_stream stream) {
    gcuda_pool_args p = *args;
    p.counts_inside = true;
    return gcuda_launch_pool_2d(&p, stream);
}

// >>op:pool_2d_back -----------------------------------------------------------------------------------
// Of largest values first where each window has its own; then every element collects from the windows over it. Of small images it
// looks there itself, in one launch: the same sums in the same order.
//   floor   x and dy read, y written
#define POOL_BACK_SMALL 65536 // elements
#define POOL_BACK_READS 128   // of an element, in the windows over it
static bool finds_winners(const gcuda_pool_args & p) {
    const int64_t n_windows = ((int64_t) p.k0 + p.s0 - 1) / p.s0 * (((int64_t) p.k1 + p.s1 - 1) / p.s1);
    return p.op == GCUDA_OP_POOL_MAX && n_elements(p.y) <= POOL_BACK_SMALL && (int64_t) p.k0 * p.k1 <= POOL_BACK_READS / n_windows;
}

static __global__ void k_pool_winners(const gcuda_pool_args p, const tiles t) {
    FOR_TILES(tile, t) {
        const d_index i = d_tile_at(t, p.dy.ne, tile, 1, 1);
        if (i.i0 < p.dy.ne[0]) {
            int64_t * winner = (int64_t *) p.scratch + ((i.i3 * p.dy.ne[2] + i.i2) * p.dy.ne[1] + i.i1) * p.dy.ne[0] + i.i0;
            d_pool_max(p, d_window_of(p, i.i0, i.i1), d_at(p.x, 0, 0, i.i2, i.i3), winner);
        }
    }
}

// First output whose window of k at o * s - p reaches place x.
static __device__ int64_t d_pool_first(int64_t x, int32_t k, int32_t s, int32_t p) {
    return x + p >= k ? (x + p - k) / s + 1 : 0;
}

// The sum of a place's gradients of means, in double, divided: in F32 it was not finite.
static NO_INLINE __device__ float d_pool_back_mean(const gcuda_pool_args & p, const d_index & i) {
    double sum = 0.0;
    for (int64_t oy = d_pool_first(i.i1, p.k1, p.s1, p.p1); oy <= (i.i1 + p.p1) / p.s1 && oy < p.dy.ne[1]; ++oy) {
        for (int64_t ox = d_pool_first(i.i0, p.k0, p.s0, p.p0); ox <= (i.i0 + p.p0) / p.s0 && ox < p.dy.ne[0]; ++ox) {
            sum += (double) d_load(p.dy.type, d_at(p.dy, ox, oy, i.i2, i.i3));
        }
    }
    return (float) (sum / ((double) p.k0 * (double) p.k1));
}

template <bool FINDS> static __global__ void k_pool_2d_back(const D_GRID_CONSTANT gcuda_pool_args p, const tiles t) {
    const float divisor = (float) p.k0 * (float) p.k1;
    FOR_TILES(tile, t) {
        const d_index i = d_tile_at(t, p.y.ne, tile, 1, 1);
        float sum = 0.0f;
        if (i.i0 >= p.y.ne[0]) {
            continue;
        }
        for (int64_t oy = d_pool_first(i.i1, p.k1, p.s1, p.p1); oy <= (i.i1 + p.p1) / p.s1 && oy < p.dy.ne[1]; ++oy) {
            const int64_t * winners =
                (const int64_t *) p.scratch + ((i.i3 * p.dy.ne[2] + i.i2) * p.dy.ne[1] + oy) * p.dy.ne[0];
            for (int64_t ox = d_pool_first(i.i0, p.k0, p.s0, p.p0); ox <= (i.i0 + p.p0) / p.s0 && ox < p.dy.ne[0]; ++ox) {
                int64_t winner = -1;
                if (FINDS) {
                    d_pool_max(p, d_window_of(p, ox, oy), d_at(p.x, 0, 0, i.i2, i.i3), &winner);
                } else if (p.op == GCUDA_OP_POOL_MAX) {
                    winner = winners[ox];
                }
                if (p.op == GCUDA_OP_POOL_AVG || winner == i.i1 * p.x.ne[0] + i.i0) {
                    sum += d_load(p.dy.type, d_at(p.dy, ox, oy, i.i2, i.i3));
                }
            }
        }
        const bool is_lost = p.op == GCUDA_OP_POOL_AVG && !(fabsf(sum) <= F32_MOST);
        *(float *) d_at(p.y, i) = is_lost ? d_pool_back_mean(p, i) : p.op == GCUDA_OP_POOL_MAX ? sum : sum / divisor;
    }
}

// Windows that touch or lie apart: a thread has what lies from the beginning of one to that of the next, and looks for its largest once.
static bool are_apart(const gcuda_pool_args & p) { return p.s0 >= p.k0 && p.s1 >= p.k1; }

static __global__ void k_pool_2d_back_apart(const gcuda_pool_args p, const gcuda_array cells, const tiles t) {
    const float divisor = p.op == GCUDA_OP_POOL_MAX ? 1.0f : (float) p.k0 * (float) p.k1;
    FOR_TILES(tile, t) {
        const d_index i = d_tile_at(t, cells.ne, tile, 1, 1);
        const bool is_window = i.i0 < p.dy.ne[0] && i.i1 < p.dy.ne[1];
        if (i.i0 >= cells.ne[0]) { continue; }
        int64_t winner = -1;
        if (is_window && p.op == GCUDA_OP_POOL_MAX) { d_pool_max(p, d_window_of(p, i.i0, i.i1), d_at(p.x, 0, 0, i.i2, i.i3), &winner); }
        const float dy = is_window ? (0.0f + d_load(p.dy.type, d_at(p.dy, i.i0, i.i1, i.i2, i.i3))) / divisor : 0.0f;
        const int64_t x0 = i.i0 * p.s0 - p.p0, y0 = i.i1 * p.s1 - p.p1;
        const int64_t x1 = x0 + p.s0 < p.y.ne[0] ? x0 + p.s0 : p.y.ne[0], y1 = y0 + p.s1 < p.y.ne[1] ? y0 + p.s1 : p.y.ne[1];
        for (int64_t y = y0 > 0 ? y0 : 0; y < y1; ++y) {
            char * row = d_at(p.y, 0, y, i.i2, i.i3);
            for (int64_t x = x0 > 0 ? x0 : 0; x < x1; ++x) {
                const bool is_in = p.op == GCUDA_OP_POOL_MAX ? winner == y * p.x.ne[0] + x : y < y0 + p.k1 && x < x0 + p.k0;
                *(float *) (row + x * (int64_t) p.y.nb[0]) = is_in ? dy : 0.0f;
            }
        }
    }
}

// Windows of 2 x 2 that cover an F32 image, two of them a thread and twice that at once: rows of both in pieces of 16 bytes.
static inline __device__ void d_pool_back_two(bool is_max, float g, const float2 & top, const float2 & low, float2 * y_top, float2 * y_low) {
    const float v[4] = { top.x, top.y, low.x, low.y };
    float max = -3.402823466e38f, y[4];
    int winner = -1;
    UNROLL for (int k = 0; k < 4; ++k) {
        winner = v[k] > max ? k : winner;
        max = v[k] > max ? v[k] : max;
    }
    UNROLL for (int k = 0; k < 4; ++k) { y[k] = !is_max || winner == k ? g : 0.0f; }
    *y_top = make_float2(y[0], y[1]);
    *y_low = make_float2(y[2], y[3]);
}

static __global__ void k_pool_2d_back_twos(const gcuda_pool_args p, const tiles t) {
    const bool is_max = p.op == GCUDA_OP_POOL_MAX;
    FOR_TILES(tile, t) {
        const d_index i = d_tile_at(t, p.dy.ne, tile, 2, 2);
        const char * x = d_at(p.x, 0, 2 * i.i1, i.i2, i.i3), * dy = d_at(p.dy, 0, i.i1, i.i2, i.i3);
        char * y = d_at(p.y, 0, 2 * i.i1, i.i2, i.i3);
        float4 top[2] = {}, low[2] = {};
        float2 g[2];
        UNROLL for (int k = 0; k < 2; ++k) {
            const int64_t at = i.i0 + k * d_tile_step(t, 2);
            if (at < p.dy.ne[0] && is_max) {
                top[k] = *(const float4 *) (x + 8 * at);
                low[k] = *(const float4 *) (x + p.x.nb[1] + 8 * at);
            }
            if (at < p.dy.ne[0]) { g[k] = *(const float2 *) (dy + 4 * at); }
        }
        UNROLL for (int k = 0; k < 2; ++k) {
            const int64_t at = i.i0 + k * d_tile_step(t, 2);
            float2 y_top[2], y_low[2];
            if (at >= p.dy.ne[0]) { continue; }
            const float scale = is_max ? 1.0f : 0.25f; // a power of two: the bits of the division
            d_pool_back_two(is_max, (0.0f + g[k].x) * scale, make_float2(top[k].x, top[k].y), make_float2(low[k].x, low[k].y), &y_top[0], &y_low[0]);
            d_pool_back_two(is_max, (0.0f + g[k].y) * scale, make_float2(top[k].z, top[k].w), make_float2(low[k].z, low[k].w), &y_top[1], &y_low[1]);
            *(float4 *) (y + 8 * at) = make_float4(y_top[0].x, y_top[0].y, y_top[1].x, y_top[1].y);
            *(float4 *) (y + p.y.nb[1] + 8 * at) = make_float4(y_low[0].x, y_low[0].y, y_low[1].x, y_low[1].y);
        }
    }
}
static bool are_twos(const gcuda_pool_args & p) {
    const bool fits = p.k0 == 2 && p.k1 == 2 && p.s0 == 2 && p.s1 == 2 && p.p0 == 0 && p.p1 == 0 && p.y.ne[0] == 2 * p.dy.ne[0] &&
                      p.y.ne[1] == 2 * p.dy.ne[1] && p.dy.ne[0] % 2 == 0;
    return fits && p.x.type == GCUDA_TYPE_F32 && p.dy.type == GCUDA_TYPE_F32 && is_wide(p.x) && is_wide(p.y) && p.dy.nb[0] == 4 &&
           ((size_t) (uintptr_t) p.dy.data | p.dy.nb[1] | p.dy.nb[2] | p.dy.nb[3]) % 8 == 0;
}

size_t gcuda_pool_2d_back_scratch_bytes(const gcuda_pool_args * args) {
    return args->op == GCUDA_OP_POOL_MAX && !are_apart(*args) && !finds_winners(*args) ? (size_t) n_elements(args->dy) * sizeof(int64_t) : 0;
}

gcuda_status gcuda_launch_pool_2d_back(const gcuda_pool_args * args, gcuda_stream stream) {
    if (are_twos(*args)) { return launch_tiles(k_pool_2d_back_twos, tiles_of(args->dy, 2, 2), stream, *args); }
    if (are_apart(*args)) {
        gcuda_array cells = args->y;
        cells.ne[0] = (args->y.ne[0] + args->p0 + args->s0 - 1) / args->s0;
        cells.ne[1] = (args->y.ne[1] + args->p1 + args->s1 - 1) / args->s1;
        return launch_tiles(k_pool_2d_back_apart, tiles_of(cells, 1, 1), stream, *args, cells);
    }
    if (finds_winners(*args)) { return launch_tiles(k_pool_2d_back<true>, tiles_of(args->y, 1, 1), stream, *args); }
    const gcuda_status st = args->op == GCUDA_OP_POOL_MAX
                                ? launch_tiles(k_pool_winners, tiles_of(args->dy, 1, 1), stream, *args)
                                : GCUDA_STATUS_SUCCESS;
    return st == GCUDA_STATUS_SUCCESS ? launch_tiles(k_pool_2d_back<false>, tiles_of(args->y, 1, 1), stream, *args) : st;
}

// >>op:upscale ----------------------------------------------------------------------------------------
//   floor   x read once, y written
struct d_factors { // output pixels per source pixel; in F32 and a divisor, as everyone has it: the last bit decides
    float f[4];
};

static inline __device__ int64_t d_clamp_index(int64_t i, int64_t n) { return i < 0 ? 0 : i >= n ? n - 1 : i; }
static inline __device__ int64_t d_nearest(int64_t i, float factor, int64_t n) {
    const float at = (float) i / factor;
    return d_clamp_index(n <= 1 << 30 ? (int) at : (int64_t) at, n); // conversions to 32 bits are faster
}

template <int N> struct d_taps {
    int64_t at[N];
    float w[N];
};

static __device__ void d_taps_of(d_taps<2> & t, float x, int64_t n) {
    const int64_t base = (int64_t) floorf(x);
    t.at[0] = d_clamp_index(base, n);
    t.at[1] = d_clamp_index(base + 1, n);
    t.w[1] = fminf(1.0f, fmaxf(0.0f, x - (float) t.at[0]));
    t.w[0] = 1.0f - t.w[1];
}

static __device__ void d_taps_of(d_taps<4> & t, float x, int64_t n) { // Keys 1981
    const float a = -0.75f, base = floorf(x), d = x - base;
    for (int i = 0; i < 4; ++i) {
        const float z = i < 2 ? d + (float) (1 - i) : (float) (i - 1) - d; // distance from x
        const float inner = ((a + 2.0f) * z - (a + 3.0f)) * z * z + 1.0f;
        const float outer = ((a * z - 5.0f * a) * z + 8.0f * a) * z - 4.0f * a;
        t.at[i] = d_clamp_index((int64_t) base + i - 1, n);
        t.w[i] = i == 1 || i == 2 ? inner : outer;
    }
}

template <int N> static __device__ float d_resample(const gcuda_upscale_args & p, const d_factors & f, const d_index & i, const char * plane) {
    const float offset = p.align_corners ? 0.0f : 0.5f;
    d_taps<N> tx, ty;
    d_taps_of(tx, ((float) i.i0 + offset) / f.f[0] - offset, p.x.ne[0]);
    d_taps_of(ty, ((float) i.i1 + offset) / f.f[1] - offset, p.x.ne[1]);
    float sum = 0.0f;
    for (int k = 0; k < N; ++k) {
        const char * row = plane + ty.at[k] * (int64_t) p.x.nb[1];
        float part = 0.0f;
        for (int j = 0; j < N; ++j) { part += tx.w[j] * d_load(p.x.type, row + tx.at[j] * (int64_t) p.x.nb[0]); }
        sum += ty.w[k] * part;
    }
    return sum;
}

// A triangle as wide as the shrinking, from first to end, around center.
struct d_reach {
    int64_t first, end;
    float center, width;
};
static __device__ d_reach d_reach_of(int64_t i, float factor, float offset, int64_t n) {
    const float at = ((float) i + offset) / factor;
    d_reach r;
    r.width = fmaxf(1.0f, 1.0f / factor);
    r.center = at - offset;
    r.first = (int64_t) (at - r.width + offset);
    r.first = r.first > 0 ? r.first : 0;
    r.end = (int64_t) (at + r.width + offset);
    r.end = r.end < n ? r.end : n;
    return r;
}
static __device__ float d_reach_weight(const d_reach & r, int64_t at) {
    return fmaxf(0.0f, 1.0f - fabsf(((float) at - r.center) / r.width));
}

static __device__ float d_resample_wide(const gcuda_upscale_args & p, const d_factors & f, const d_index & i, const char * plane) {
    const float offset = p.align_corners ? 0.0f : 0.5f;
    const d_reach rx = d_reach_of(i.i0, f.f[0], offset, p.x.ne[0]), ry = d_reach_of(i.i1, f.f[1], offset, p.x.ne[1]);
    float sum = 0.0f, weight = 0.0f;
    for (int64_t y = ry.first; y < ry.end; ++y) {
        const float wy = d_reach_weight(ry, y);
        for (int64_t x = rx.first; x < rx.end; ++x) {
            const float w = wy * d_reach_weight(rx, x);
            sum += w * d_load(p.x.type, plane + y * (int64_t) p.x.nb[1] + x * (int64_t) p.x.nb[0]);
            weight += w;
        }
    }
    return weight > 0.0f ? sum / weight : 0.0f;
}

enum upscale_kind { UPSCALE_LINEAR, UPSCALE_CUBIC, UPSCALE_WIDE };

// A thread works out its columns once for UPSCALE_ROWS rows.
#define UPSCALE_ROWS 8
static gcuda_array upscale_like(const gcuda_array & y) {
    gcuda_array like = y;
    like.ne[1] = (y.ne[1] + UPSCALE_ROWS - 1) / UPSCALE_ROWS;
    return like;
}

// WIDE: results are stored sixteen bytes at a time.
template <typename T, bool WIDE>
static __global__ void __launch_bounds__(TILE_BLOCK) k_upscale_nearest(
    const gcuda_upscale_args p, const gcuda_array like, const d_factors f, const tiles t) {
    const int N = WIDE ? 16 / (int) sizeof(T) : 4;
    FOR_TILES(tile, t) {
        const d_index i = d_tile_at(t, like.ne, tile, WIDE ? N : 1, WIDE ? 1 : N);
        const int64_t n = p.y.ne[0] - i.i0, step = WIDE ? 1 : d_tile_step(t, 1);
        const char * plane = d_at(p.x, 0, 0, d_nearest(i.i2, f.f[2], p.x.ne[2]), d_nearest(i.i3, f.f[3], p.x.ne[3]));
        int64_t from[N];
        UNROLL for (int k = 0; k < N; ++k) { from[k] = d_nearest(i.i0 + k * step, f.f[0], p.x.ne[0]) * (int64_t) p.x.nb[0]; }
        const int64_t i1 = i.i1 * UPSCALE_ROWS, end = i1 + UPSCALE_ROWS < p.y.ne[1] ? i1 + UPSCALE_ROWS : p.y.ne[1];
        for (int64_t r = i1; r < end && n > 0; ++r) {
            const char * row = plane + d_nearest(r, f.f[1], p.x.ne[1]) * (int64_t) p.x.nb[1];
            T * y = (T *) d_at(p.y, i.i0, r, i.i2, i.i3), v[N];
            UNROLL for (int k = 0; k < N; ++k) { v[k] = *(const T *) (row + from[k]); } // clamped: always there
            if (WIDE) {
                uint4 w = make_uint4(0, 0, 0, 0);
                memcpy(&w, v, sizeof v < 16 ? sizeof v : 16);
                *(uint4 *) y = w;
            } else {
                UNROLL for (int k = 0; k < N; ++k) {
                    if (k * step < n) { y[k * step] = v[k]; }
                }
            }
        }
    }
}

// A thread has C neighbouring columns of a strip of rows, whose N taps begin at most two places apart: what they read of a row of the
// image is a window of W elements, from which each column selects its own. Rows under a row of the result are kept in registers,
// resampled along themselves, and slide down the image, one more always on its way. Weights of rows are worked out once for the block.
#define UPSCALE_STRIP 64 // rows of a thread, at most
#define UPSCALE_EXACT (1 << 22) // places of a larger image are too coarse in F32 to slide along
struct d_upscale_strips {
    int shift, rows; // 2^shift threads side by side, above each other the rest of the block; rows of each
    int64_t across, down;
};
template <int N> struct alignas(16) d_upscale_row { // of the result: weights, and the first row of the image that they are for
    float w[N];
    int base;
};

template <typename T, int N, int C>
static __global__ void __launch_bounds__(128, N == 2 ? 8 : 6) k_upscale_taps(
    const gcuda_upscale_args p, const d_factors f, const d_upscale_strips t) {
    const int W = C > 1 ? N + 2 : N;
    __shared__ d_upscale_row<N> known[4 * UPSCALE_STRIP];
    const float offset = p.align_corners ? 0.0f : 0.5f;
    const int tid = (int) threadIdx.x, n_high = t.rows << (7 - t.shift), last = (int) p.x.ne[1] - 1;
    FOR_ROWS(b, t.across * t.down * p.y.ne[2] * p.y.ne[3]) {
        const int64_t b1 = b / t.across, b2 = b1 / t.down, i3 = b2 / p.y.ne[2], i2 = b2 - i3 * p.y.ne[2];
        const int64_t x0 = (((b - b1 * t.across) << t.shift) + (tid & ((1 << t.shift) - 1))) * C, y0 = (b1 - b2 * t.down) * n_high;
        const int n_rows = (int) (p.y.ne[1] - y0 < n_high ? p.y.ne[1] - y0 : n_high);
        const int r0 = (tid >> t.shift) * t.rows, end = r0 + t.rows < n_rows ? r0 + t.rows : n_rows;
        const char * plane = d_at(p.x, 0, 0, d_nearest(i2, f.f[2], p.x.ne[2]), d_nearest(i3, f.f[3], p.x.ne[3]));
        d_taps<N> taps;
        __syncthreads(); // the rows before are done with
        for (int r = tid; r < n_rows; r += 128) {
            const float at = ((float) (y0 + r) + offset) / f.f[1] - offset;
            d_taps_of(taps, at, p.x.ne[1]);
            known[r].base = (int) floorf(at) - (N / 2 - 1);
            UNROLL for (int k = 0; k < N; ++k) { known[r].w[k] = taps.w[k]; }
        }
        __syncthreads();
        if (x0 >= p.y.ne[0] || r0 >= end) {
            continue;
        }
        float w[C][N], part[N][C];
        T window[W];
        uint32_t from[W];
        int first = 0, behind[C]; // the first tap of the first column, and how far behind it those of the others begin
        UNROLL for (int j = 0; j < C; ++j) {
            const float at = ((float) (x0 + j) + offset) / f.f[0] - offset;
            const int base = (int) floorf(at) - (N / 2 - 1);
            d_taps_of(taps, at, p.x.ne[0]);
            UNROLL for (int k = 0; k < N; ++k) { w[j][k] = taps.w[k]; }
            first = j == 0 ? base : first;
            behind[j] = base - first;
        }
        UNROLL for (int k = 0; k < W; ++k) { from[k] = (uint32_t) d_clamp_index(first + k, p.x.ne[0]) * (uint32_t) p.x.nb[0]; }
        auto load = [&](int at) { // of a row of the image, the nearest if there is none
            const char * row = plane + (at < 0 ? 0 : at > last ? last : at) * (int64_t) p.x.nb[1];
            UNROLL for (int k = 0; k < W; ++k) { window[k] = *(const T *) (row + from[k]); }
        };
        auto resample = [&](float * to) {
            float v[W];
            UNROLL for (int k = 0; k < W; ++k) { v[k] = d_f32(window[k]); }
            UNROLL for (int j = 0; j < C; ++j) {
                to[j] = 0.0f;
                UNROLL for (int k = 0; k < N; ++k) {
                    const float own = j == 0 || behind[j] == 0 ? v[k] : behind[j] == 1 ? v[(k + 1) % W] : v[(k + 2) % W];
                    to[j] += w[j][k] * own;
                }
            }
        };
        int next = known[r0].base; // of the rows of the image the next that comes into the window
        UNROLL for (int k = 0; k < N; ++k, ++next) {
            load(next);
            resample(part[k]);
        }
        load(next);
        char * y = d_at(p.y, x0, y0 + r0, i2, i3);
        for (int r = r0; r < end; ++r, y += p.y.nb[1]) {
            const d_upscale_row<N> own = known[r];
            while (next < own.base + N) {
                UNROLL for (int k = 0; k < N - 1; ++k) {
                    UNROLL for (int j = 0; j < C; ++j) { part[k][j] = part[k + 1][j]; }
                }
                resample(part[N - 1]);
                next = next + 1 < own.base ? own.base : next + 1; // past rows that nothing needs
                load(next);
            }
            d_pack<T, C> all;
            UNROLL for (int j = 0; j < C; ++j) {
                float sum = 0.0f;
                UNROLL for (int k = 0; k < N; ++k) { sum += own.w[k] * part[k][j]; }
                d_put(&all.v[j], sum);
            }
            *(d_pack<T, C> *) y = all;
        }
    }
}

// As many threads side by side as the result asks, and long strips where they still give every multiprocessor several blocks.
template <typename T, int N, int C>
static gcuda_status upscale_strips(const gcuda_upscale_args & p, const d_factors & f, gcuda_stream stream) {
    d_upscale_strips t = { 5, UPSCALE_STRIP, 0, 0 };
    const int64_t n_planes = p.y.ne[2] * p.y.ne[3], n_groups = (p.y.ne[0] + C - 1) / C, least = enough(8 * n_multiprocessors());
    while (t.shift < 7 && ((int64_t) 1 << t.shift) < n_groups) { ++t.shift; }
    t.across = (n_groups + ((int64_t) 1 << t.shift) - 1) >> t.shift;
    auto down = [&] { return (p.y.ne[1] + ((int64_t) t.rows << (7 - t.shift)) - 1) / ((int64_t) t.rows << (7 - t.shift)); };
    while (t.rows > 4 && t.across * down() * n_planes < least) { t.rows /= 2; }
    t.down = down();
    return launch(k_upscale_taps<T, N, C>, t.across * t.down * n_planes, 128, stream, p, f, t);
}

// Columns of a thread: four where they are half a place apart or less, two where at most one, and where results can be stored together.
template <int N> static gcuda_status upscale_taps(const gcuda_upscale_args & p, const d_factors & f, gcuda_stream stream) {
    const bool is_near = is_wide(p.y) && p.y.ne[0] <= UPSCALE_EXACT && p.x.ne[0] <= UPSCALE_EXACT;
    return with_float(p.x.type, [&](auto v) {
        typedef decltype(v) T;
        return is_near && f.f[0] >= 2.0f && p.y.ne[0] % 4 == 0   ? upscale_strips<T, N, 4>(p, f, stream)
               : is_near && f.f[0] >= 1.0f && p.y.ne[0] % 2 == 0 ? upscale_strips<T, N, 2>(p, f, stream)
                                                                 : upscale_strips<T, N, 1>(p, f, stream);
    });
}

template <typename T> static gcuda_status upscale_nearest(const gcuda_upscale_args & p, const d_factors & f, gcuda_stream stream) {
    const gcuda_array like = upscale_like(p.y);
    const int n = 16 / (int) sizeof(T);
    return is_wide(p.y) && p.y.ne[0] % n == 0 ? launch_tiles(k_upscale_nearest<T, true>, tiles_of(like, n, 1), stream, p, like, f)
                                              : launch_tiles(k_upscale_nearest<T, false>, tiles_of(like, 1, 4), stream, p, like, f);
}

template <int KIND> static __global__ void k_upscale(const gcuda_upscale_args p, const d_factors f, const tiles t) {
    FOR_TILES(tile, t) {
        d_index i = d_tile_at(t, p.y.ne, tile, 1, 4);
        const int64_t i2 = d_nearest(i.i2, f.f[2], p.x.ne[2]), i3 = d_nearest(i.i3, f.f[3], p.x.ne[3]);
        const char * plane = d_at(p.x, 0, 0, i2, i3);
        for (int k = 0; k < 4; ++k, i.i0 += d_tile_step(t, 1)) {
            if (i.i0 < p.y.ne[0]) {
                const float v = KIND == UPSCALE_LINEAR  ? d_resample<2>(p, f, i, plane)
                                : KIND == UPSCALE_CUBIC ? d_resample<4>(p, f, i, plane)
                                                        : d_resample_wide(p, f, i, plane);
                d_store(p.y.type, d_at(p.y, i), v);
            }
        }
    }
}

gcuda_status gcuda_launch_upscale(const gcuda_upscale_args * args, gcuda_stream stream) {
    const tiles t = tiles_of(args->y, 1, 4);
    const bool is_exact = args->x.ne[1] <= UPSCALE_EXACT && args->y.ne[1] <= UPSCALE_EXACT &&
                          args->x.ne[0] * (int64_t) args->x.nb[0] <= INT32_MAX; // places in a row are 32 bits
    d_factors f;
    for (int d = 0; d < 4; ++d) {
        const int64_t in = args->x.ne[d], out = args->y.ne[d];
        f.f[d] = args->align_corners && d < 2 && in > 1 && out > 1 ? (float) (out - 1) / (float) (in - 1)
                                                                   : (float) out / (float) in;
    }
    switch (args->mode) {
        case GCUDA_SCALE_MODE_NEAREST:
            return args->x.type == GCUDA_TYPE_F32 ? upscale_nearest<uint32_t>(*args, f, stream)
                                                  : upscale_nearest<uint16_t>(*args, f, stream);
        case GCUDA_SCALE_MODE_BICUBIC:
            return is_exact ? upscale_taps<4>(*args, f, stream) : launch_tiles(k_upscale<UPSCALE_CUBIC>, t, stream, *args, f);
        default:
            return args->antialias ? launch_tiles(k_upscale<UPSCALE_WIDE>, t, stream, *args, f)
                   : is_exact      ? upscale_taps<2>(*args, f, stream)
                                   : launch_tiles(k_upscale<UPSCALE_LINEAR>, t, stream, *args, f);
    }
}
#endif // part 11

#if GCUDAI_PART(12)
// =====================================================================================================
// >>k-ssm   recurrences: state spaces, linear attention, triangular systems
// =====================================================================================================

#if GCUDAI_KERNEL_HAS(RECURRENT)
// >>op:ssm_conv ---------------------------------------------------------------------------------------
// Channels are innermost in y and time is in x: 32 channels by SSM_TIMES times of x go through shared memory. Single tokens
// are read where they lie.
//   floor   x read, y written: 8 * D * T * S bytes
#define SSM_TIMES 128
#define SSM_TAPS 32 // weights of a channel that fit the tile

// What is stored for the sum of a channel: with STEPS the bias and SiLU that may follow, as nodes of their own round.
template <bool STEPS> static inline __device__ float d_ssm_conv_end(const gcuda_ssm_conv_args & p, float sum, int64_t channel) {
    if (STEPS && p.bias.data != nullptr) { sum = d_add_rn(sum, *(const float *) d_at(p.bias, channel, 0, 0, 0)); }
    return STEPS && p.is_activated ? sum * d_sigmoid(sum) : sum;
}

template <bool STEPS> static __global__ void k_ssm_conv(const gcuda_ssm_conv_args p) {
    FOR_ELEMENTS(i, d_n(p.y)) {
        const d_index y = d_unravel(p.y.ne, i);
        float sum = 0.0f;
        for (int64_t k = 0; k < p.c.ne[0]; ++k) {
            sum += d_load(p.x.type, d_at(p.x, y.i1 + k, y.i0, y.i2, 0)) * d_load(p.c.type, d_at(p.c, k, y.i0, 0, 0));
        }
        *(float *) d_at(p.y, y) = d_ssm_conv_end<STEPS>(p, sum, y.i0);
    }
}

// A warp reads four channels, all before it stores the first; then it has SSM_RUN adjacent times of 32 channels. With TAPS
// known (0: not), a lane reads each element once and shifts it through registers.
#define SSM_RUN (SSM_TIMES / 8)

template <typename T, int TAPS, bool STEPS>
static __global__ void __launch_bounds__(256) k_ssm_conv_tile(const gcuda_ssm_conv_args p) {
    __shared__ float x[32][SSM_TIMES + SSM_TAPS + 1]; // an odd pitch: no bank twice
    __shared__ float w[SSM_TAPS][32];
    const int n_taps = TAPS > 0 ? TAPS : (int) p.c.ne[0], lane = (int) threadIdx.x % 32, warp = (int) threadIdx.x / 32;
    const int64_t n_d = (p.y.ne[0] + 31) / 32, each = SSM_TIMES + 1 - n_taps, n_t = (p.y.ne[1] + each - 1) / each;
    FOR_ROWS(b, n_d * n_t * p.y.ne[2]) {
        const int64_t rest = b / n_d, d0 = (b - rest * n_d) * 32, s = rest / n_t, t0 = (rest - s * n_t) * each;
        const int n_in = (int) (p.x.ne[0] - t0 < SSM_TIMES ? p.x.ne[0] - t0 : SSM_TIMES);
        const int n_out = (int) (p.y.ne[1] - t0 < each ? p.y.ne[1] - t0 : each);
        const int n_channels = (int) (p.y.ne[0] - d0 < 32 ? p.y.ne[0] - d0 : 32);
        T v[4][SSM_TIMES / 32];
        float own[TAPS > 0 ? TAPS : 1];
        UNROLL for (int c = 0; c < 4; ++c) {
            const T * from = (const T *) d_at(p.x, t0, d0 + 4 * warp + c, s, 0);
            UNROLL for (int k = 0; k < SSM_TIMES / 32; ++k) {
                if (4 * warp + c < n_channels && lane + 32 * k < n_in) { v[c][k] = from[lane + 32 * k]; }
            }
        }
        UNROLL for (int k = 0; k < TAPS; ++k) { own[k] = lane < n_channels ? d_load(p.c.type, d_at(p.c, k, d0 + lane, 0, 0)) : 0.0f; }
        __syncthreads(); // the last tile is done with
        UNROLL for (int c = 0; c < 4; ++c) {
            UNROLL for (int k = 0; k < SSM_TIMES / 32; ++k) {
                if (4 * warp + c < n_channels && lane + 32 * k < n_in) { x[4 * warp + c][lane + 32 * k] = d_f32(v[c][k]); }
            }
        }
        for (int i = (int) threadIdx.x; i < n_taps * 32 && TAPS == 0; i += 256) {
            if (i % 32 < n_channels) { w[i / 32][i % 32] = d_load(p.c.type, d_at(p.c, i / 32, d0 + i % 32, 0, 0)); }
        }
        __syncthreads();
        float sum[SSM_RUN];
        UNROLL for (int j = 0; j < SSM_RUN; ++j) { sum[j] = 0.0f; }
        if (TAPS > 0) {
            UNROLL for (int t = 0; t < SSM_RUN + TAPS - 1; ++t) {
                const float in = x[lane][warp * SSM_RUN + t];
                UNROLL for (int k = 0; k < TAPS; ++k) {
                    if (t >= k && t - k < SSM_RUN) { sum[t - k] += in * own[k]; }
                }
            }
        } else {
            for (int k = 0; k < n_taps; ++k) {
                const float weight = w[k][lane];
                UNROLL for (int j = 0; j < SSM_RUN; ++j) { sum[j] += x[lane][warp * SSM_RUN + j + k] * weight; }
            }
        }
        char * to = d_at(p.y, d0 + lane, t0 + warp * SSM_RUN, s, 0);
        UNROLL for (int j = 0; j < SSM_RUN; ++j) {
            if (lane < n_channels && warp * SSM_RUN + j < n_out) {
                *(float *) (to + j * (int64_t) p.y.nb[1]) = d_ssm_conv_end<STEPS>(p, sum[j], d0 + lane);
            }
        }
    }
}

template <typename T, bool STEPS> static gcuda_status ssm_conv_tile(const gcuda_ssm_conv_args & p, gcuda_stream stream) {
    const int64_t each = SSM_TIMES + 1 - p.c.ne[0], n = (p.y.ne[0] + 31) / 32 * ((p.y.ne[1] + each - 1) / each) * p.y.ne[2];
    return p.c.ne[0] == 4   ? launch(k_ssm_conv_tile<T, 4, STEPS>, n, 256, stream, p)
           : p.c.ne[0] == 3 ? launch(k_ssm_conv_tile<T, 3, STEPS>, n, 256, stream, p)
                            : launch(k_ssm_conv_tile<T, 0, STEPS>, n, 256, stream, p);
}

gcuda_status gcuda_launch_ssm_conv(const gcuda_ssm_conv_args * args, gcuda_stream stream) {
    const gcuda_array & x = args->x;
    const bool has_steps = args->bias.data != nullptr || args->is_activated;
    if (args->c.ne[0] > SSM_TAPS || args->y.ne[1] < 8 || x.nb[0] != gcuda_type_size(x.type) || (has_steps && x.type != GCUDA_TYPE_F32)) {
        return launch_elements(has_steps ? k_ssm_conv<true> : k_ssm_conv<false>, args->y, stream, *args);
    }
    if (has_steps) {
        return ssm_conv_tile<float, true>(*args, stream);
    }
    return with_float(x.type, [&](auto v) { return ssm_conv_tile<decltype(v), false>(*args, stream); });
}

// ---- vectors spread over the lanes of a group ----
// LANES threads share a vector, PER elements each, four adjacent ones at a time: element place<LANES>(lane, k).
template <int LANES> static inline __device__ int d_spread(int lane, int k) { return (k / 4 * LANES + lane) * 4 + k % 4; }

// WIDE: F32, aligned to 16 bytes, a multiple of 4 elements; what is missing is 0.
template <int LANES, int PER, bool WIDE>
static inline __device__ void d_spread_load(gcuda_type type, const char * row, size_t nb0, int n, int lane, float * v) {
    for (int k = 0; k < PER; k += 4) {
        const int at = d_spread<LANES>(lane, k);
        if (WIDE) {
            const float4 w = at < n ? *(const float4 *) (row + (int64_t) at * 4) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            v[k] = w.x, v[k + 1] = w.y, v[k + 2] = w.z, v[k + 3] = w.w;
        } else {
            for (int j = 0; j < 4; ++j) { v[k + j] = at + j < n ? d_load(type, row + (int64_t) (at + j) * (int64_t) nb0) : 0.0f; }
        }
    }
}

template <int LANES> static inline __device__ float d_group_sum(float v) {
    for (int d = LANES / 2; d > 0; d /= 2) { v += __shfl_xor_sync(0xffffffffu, v, d); }
    return v;
}

static inline bool is_wide_f32(const gcuda_array & a) { return a.type == GCUDA_TYPE_F32 && is_wide(a) && a.ne[0] % 4 == 0; }

// The sums over the lanes of N values, spread over them: those from lane * N / LANES on are in v[0], v[1] ..., or with more
// lanes than values one is on LANES / N of them. Half as many shuffles after every step, where one sum alone takes all.
template <int LANES, int N> struct d_spread_sums {
    static inline __device__ void add(float * v, int lane) {
        const bool is_upper = (lane & LANES / 2) != 0;
        UNROLL for (int i = 0; i < N / 2; ++i) {
            const float keep = is_upper ? v[i + N / 2] : v[i], give = is_upper ? v[i] : v[i + N / 2];
            v[i] = keep + __shfl_xor_sync(0xffffffffu, give, LANES / 2);
        }
        d_spread_sums<LANES / 2, N / 2>::add(v, lane);
    }
};
template <int LANES> struct d_spread_sums<LANES, 1> {
    static inline __device__ void add(float * v, int) { v[0] = d_group_sum<LANES>(v[0]); }
};
template <int N> struct d_spread_sums<1, N> {
    static inline __device__ void add(float *, int) {}
};
template <> struct d_spread_sums<1, 1> {
    static inline __device__ void add(float *, int) {}
};

// >>op:ssm_scan ---------------------------------------------------------------------------------------
// LANES threads keep the state of one channel in registers over all tokens; what a token brings is read one token ahead.
//   floor   state read and written once, x, dt, B, C read, y written
struct d_scan_step {
    float x, dt;
};

// Which of the states sequence q begins with; what launchers complete has no ids where those in last go on.
// By reference: of a value nvcc makes k_ssm_scan_join 2.6 times as long.
template <typename T> static inline __device__ int64_t d_scan_state(T * const & ids, int64_t q) {
    return ids != nullptr ? (int64_t) ((const int32_t *) ids)[q] : q;
}

static inline __device__ float d_softplus20(float z) { return z > 20.0f ? z : log1pf(expf(z)); }

template <int LANES, int PER, bool WIDE> static __global__ void k_ssm_scan(const gcuda_ssm_scan_args p) {
    const int n = (int) p.s.ne[0], lane = (int) threadIdx.x % LANES;
    const int64_t n_channels = p.x.ne[0] * p.x.ne[1] * p.x.ne[3], n_tokens = p.x.ne[2];
    const int64_t per_block = blockDim.x / LANES, n_padded = (n_channels + per_block - 1) / per_block * per_block;
    const bool is_one = p.a.ne[0] == 1;
    for (int64_t item = blockIdx.x * per_block + threadIdx.x / LANES; item < n_padded; item += gridDim.x * per_block) {
        const bool is_real = item < n_channels; // the others only take part in shuffles
        const int64_t ch = is_real ? item : 0, c = ch % p.x.ne[0], h = ch / p.x.ne[0] % p.x.ne[1], q = ch / p.x.ne[0] / p.x.ne[1];
        const int64_t g = h / (p.x.ne[1] / p.b.ne[1]);
        const int64_t id = d_scan_state(p.ids.data, q);
        const bool is_ok = id >= 0 && id < p.s.ne[3];
        float * y = (float *) d_at(p.y, c, h, 0, q), * end = (float *) p.last.data + ch * n;
        float st[PER], a[PER], b[PER], bt[PER], cc[PER], ct[PER];
        d_scan_step now = { 0.0f, 0.0f }, next = { 0.0f, 0.0f };
        d_spread_load<LANES, PER, WIDE>(GCUDA_TYPE_F32, d_at(p.s, 0, c, h, is_ok ? id : 0), 4, is_ok ? n : 0, lane, st);
        if (!is_ok && is_real && c == 0 && h == 0 && lane == 0 && p.bad_index != nullptr) {
            *p.bad_index = 1;
        }
        d_spread_load<LANES, PER, false>(p.a.type, d_at(p.a, 0, h, 0, 0), is_one ? 0 : p.a.nb[0], n, lane, a);
        if (n_tokens > 0) {
            now.x = d_load(p.x.type, d_at(p.x, c, h, 0, q));
            now.dt = d_load(p.dt.type, d_at(p.dt, h, 0, q, 0));
            d_spread_load<LANES, PER, WIDE>(p.b.type, d_at(p.b, 0, g, 0, q), p.b.nb[0], n, lane, b);
            d_spread_load<LANES, PER, WIDE>(p.c.type, d_at(p.c, 0, g, 0, q), p.c.nb[0], n, lane, cc);
        }
        for (int64_t t = 0; t < n_tokens; ++t) {
            if (t + 1 < n_tokens) {
                next.x = d_load(p.x.type, d_at(p.x, c, h, t + 1, q));
                next.dt = d_load(p.dt.type, d_at(p.dt, h, t + 1, q, 0));
                d_spread_load<LANES, PER, WIDE>(p.b.type, d_at(p.b, 0, g, t + 1, q), p.b.nb[0], n, lane, bt);
                d_spread_load<LANES, PER, WIDE>(p.c.type, d_at(p.c, 0, g, t + 1, q), p.c.nb[0], n, lane, ct);
            }
            const float delta = d_softplus20(now.dt), xd = delta * now.x, one = is_one ? expf(delta * a[0]) : 0.0f;
            float sum = 0.0f;
            for (int k = 0; k < PER; ++k) {
                st[k] = st[k] * (is_one ? one : expf(delta * a[k])) + b[k] * xd;
                sum += st[k] * cc[k];
            }
            sum = d_group_sum<LANES>(sum);
            if (is_real && lane == 0) { y[t * p.x.ne[1] * p.x.ne[0]] = sum; }
            now = next;
            for (int k = 0; k < PER; ++k) {
                b[k] = bt[k];
                cc[k] = ct[k];
            }
        }
        for (int k = 0; k < PER && is_real; ++k) {
            const int at = d_spread<LANES>(lane, k);
            if (at < n) { end[at] = st[k]; }
        }
    }
}

// The same with SCAN_TOKENS tokens at a time in shared memory, which are fetched while the ones before are worked on. All
// channels of a block are of one group, so that B and C are read once for them; with one decay a head (IS_ONE) a thread
// has two channels for what it reads of B and C. Tokens behind the last one leave the state as it is.
#define SCAN_TOKENS 8
#define SCAN_BLOCK 128

template <int LANES, int PER, bool IS_ONE>
static __global__ void __launch_bounds__(SCAN_BLOCK) k_ssm_scan_staged(const gcuda_ssm_scan_args p) {
    const int CH = IS_ONE ? 2 : 1, CHANNELS = SCAN_BLOCK / LANES * CH, SIZE = LANES * PER;
    const int LOADS = (SCAN_TOKENS * SIZE / 4 + SCAN_BLOCK - 1) / SCAN_BLOCK;
    const int INPUTS = (SCAN_TOKENS * CHANNELS + SCAN_BLOCK - 1) / SCAN_BLOCK;
    alignas(16) __shared__ float b[SCAN_TOKENS][SIZE], cc[SCAN_TOKENS][SIZE];
    alignas(16) __shared__ float xd[SCAN_TOKENS][CHANNELS], decay[SCAN_TOKENS][CHANNELS]; // decay: delta without IS_ONE
    const int n = (int) p.s.ne[0], tid = (int) threadIdx.x, lane = tid % LANES, own = tid / LANES * CH;
    const int64_t n_tokens = p.x.ne[2], per_seq = p.x.ne[0] * p.x.ne[1];
    FOR_ROWS(block, per_seq * p.x.ne[3] / CHANNELS) {
        const int64_t first = block * CHANNELS, q = first / per_seq, in_seq = first - q * per_seq;
        const int64_t h = (in_seq + own) / p.x.ne[0], c = in_seq + own - h * p.x.ne[0], g = h / (p.x.ne[1] / p.b.ne[1]);
        const int64_t id = d_scan_state(p.ids.data, q);
        const bool is_ok = id >= 0 && id < p.s.ne[3];
        float * y = (float *) d_at(p.y, 0, 0, 0, q) + in_seq + own, * end = (float *) p.last.data + (first + own) * n;
        float st[CH][PER], a[PER];
        float4 raw_b[LOADS], raw_c[LOADS];
        float raw_x[INPUTS], raw_dt[INPUTS], raw_a[INPUTS];
        if (!is_ok && c == 0 && h == 0 && lane == 0 && p.bad_index != nullptr) {
            *p.bad_index = 1;
        }
        UNROLL for (int i = 0; i < CH; ++i) {
            d_spread_load<LANES, PER, true>(GCUDA_TYPE_F32, d_at(p.s, 0, c + i, h, is_ok ? id : 0), 4, is_ok ? n : 0, lane, st[i]);
        }
        if (!IS_ONE) { d_spread_load<LANES, PER, false>(p.a.type, d_at(p.a, 0, h, 0, 0), p.a.nb[0], n, lane, a); }
        const char * from_x[INPUTS], * from_dt[INPUTS];
        UNROLL for (int i = 0; i < INPUTS; ++i) {
            const int k = (tid + i * SCAN_BLOCK) % CHANNELS;
            const int64_t kh = (in_seq + k) / p.x.ne[0], kc = in_seq + k - kh * p.x.ne[0];
            from_x[i] = d_at(p.x, kc, kh, 0, q);
            from_dt[i] = d_at(p.dt, kh, 0, q, 0);
            raw_a[i] = IS_ONE ? d_load(p.a.type, d_at(p.a, 0, kh, 0, 0)) : 0.0f;
        }
        const char * from_b = d_at(p.b, 0, g, 0, q), * from_c = d_at(p.c, 0, g, 0, q);
        auto fetch = [&](int64_t t0) {
            UNROLL for (int i = 0; i < LOADS; ++i) {
                const int at = tid + i * SCAN_BLOCK, t = at / (SIZE / 4), k = at % (SIZE / 4) * 4;
                const bool is_in = t < SCAN_TOKENS && t0 + t < n_tokens && k < n;
                raw_b[i] = raw_c[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                if (is_in) {
                    raw_b[i] = *(const float4 *) (from_b + (t0 + t) * (int64_t) p.b.nb[2] + 4 * k);
                    raw_c[i] = *(const float4 *) (from_c + (t0 + t) * (int64_t) p.c.nb[2] + 4 * k);
                }
            }
            UNROLL for (int i = 0; i < INPUTS; ++i) {
                const int64_t t = t0 + (tid + i * SCAN_BLOCK) / CHANNELS;
                raw_x[i] = t < n_tokens ? d_load(p.x.type, from_x[i] + t * (int64_t) p.x.nb[2]) : 0.0f;
                raw_dt[i] = t < n_tokens ? d_load(p.dt.type, from_dt[i] + t * (int64_t) p.dt.nb[1]) : 0.0f;
            }
        };
        fetch(0);
        for (int64_t t0 = 0; t0 < n_tokens; t0 += SCAN_TOKENS) {
            __syncthreads(); // the tokens before are done with
            UNROLL for (int i = 0; i < LOADS; ++i) {
                const int at = tid + i * SCAN_BLOCK, t = at / (SIZE / 4), k = at % (SIZE / 4) * 4;
                if (t < SCAN_TOKENS) {
                    *(float4 *) &b[t][k] = raw_b[i];
                    *(float4 *) &cc[t][k] = raw_c[i];
                }
            }
            UNROLL for (int i = 0; i < INPUTS; ++i) {
                const int t = (tid + i * SCAN_BLOCK) / CHANNELS, k = (tid + i * SCAN_BLOCK) % CHANNELS;
                const float d = t0 + t < n_tokens ? d_softplus20(raw_dt[i]) : 0.0f;
                if (t < SCAN_TOKENS) {
                    xd[t][k] = d * raw_x[i];
                    decay[t][k] = IS_ONE ? expf(d * raw_a[i]) : d;
                }
            }
            __syncthreads();
            if (t0 + SCAN_TOKENS < n_tokens) { fetch(t0 + SCAN_TOKENS); }
            float sum[SCAN_TOKENS * CH];
            UNROLL for (int t = 0; t < SCAN_TOKENS; ++t) {
                const float one = decay[t][own];
                UNROLL for (int i = 0; i < CH; ++i) { sum[t * CH + i] = 0.0f; }
                UNROLL for (int k = 0; k < PER; k += 4) {
                    const float4 vb = *(const float4 *) &b[t][d_spread<LANES>(lane, k)];
                    const float4 vc = *(const float4 *) &cc[t][d_spread<LANES>(lane, k)];
                    const float kb[4] = { vb.x, vb.y, vb.z, vb.w }, kc[4] = { vc.x, vc.y, vc.z, vc.w };
                    UNROLL for (int j = 0; j < 4; ++j) {
                        const float keep = IS_ONE ? one : expf(one * a[k + j]);
                        UNROLL for (int i = 0; i < CH; ++i) {
                            st[i][k + j] = st[i][k + j] * keep + kb[j] * xd[t][own + i];
                            sum[t * CH + i] += st[i][k + j] * kc[j];
                        }
                    }
                }
            }
            const int SUMS = SCAN_TOKENS * CH, EACH = SUMS > LANES ? SUMS / LANES : 1;
            d_spread_sums<LANES, SUMS>::add(sum, lane);
            UNROLL for (int i = 0; i < EACH; ++i) {
                const int at = lane * SUMS / LANES + i;
                const int64_t t = t0 + at / CH;
                if (lane % (LANES / SUMS > 0 ? LANES / SUMS : 1) == 0 && t < n_tokens) { y[t * per_seq + at % CH] = sum[i]; }
            }
        }
        UNROLL for (int i = 0; i < CH; ++i) {
            UNROLL for (int k = 0; k < PER; ++k) {
                const int at = d_spread<LANES>(lane, k);
                if (at < n) { end[i * n + at] = st[i][k]; }
            }
        }
    }
}

// SCAN_CHUNK tokens at once on tensor cores, for one decay a head. With k_t the decays, K(s, t) = k_(s+1) ... k_t, S the state
// before the chunk and u_s = delta_s x_s:
//   y_t = K(-1, t) C_t S + sum over s <= t of K(s, t) (C_t . B_s) u_s          S' = K(-1, end) S + sum over s of K(s, end) B_s u_s
// Decays are only multiplied, so any are right. A pair of warps has 16 channels, each warp half of their states as the
// accumulators of S'; columns 2 t and 2 t + 1 of an accumulator serve as words t and t + 4 of the next product's a, and what
// it is multiplied by is read in that order. A block's warps are of one head; four of them share C . B.
// Where heads are too few for all multiprocessors, tokens are in segments that begin at the same time, in three kernels: what segments
// make of a state of zeros (SCAN_STATES), the states that they begin with, from the first to the last, and their outputs with these.
//   floor   2 products of 2 * n_state * channels * tokens operations      shared  up to 45 KiB
#define SCAN_CHUNK 16
#define CHUNK_PITCH 20     // of the 16 x 16 weights: rows lie in different banks
#define CHUNK_MOST 5       // pairs of warps in a block
static size_t chunk_bytes(int64_t n, int64_t pairs) {
    const int64_t n_slices = 2 * pairs < 4 ? 2 * pairs : 4;
    return (size_t) (4 * SCAN_CHUNK * (n + 8) + (n_slices + pairs) * 256 + 2 * SCAN_CHUNK * CHUNK_PITCH + 4 * SCAN_CHUNK) * sizeof(float);
}

#define SEGMENT_PAIRS 4 // of a block then: two blocks of a multiprocessor have 128 registers a thread
#ifdef GCUDAI_SIM // segments in small tests
#define SEGMENT_LEAST 32
#define WHOLE_CHANNELS(n_sm) 65
#else
#define SEGMENT_LEAST 64 // tokens
#define WHOLE_CHANNELS(n_sm) (40 * (n_sm)) // from here on tokens are in one segment
#endif
#define SEGMENT_FEWEST 4 // that pay for two more kernels
enum scan_span { SCAN_WHOLE, SCAN_STATES, SCAN_SEGMENTS };
struct d_scan_segments {
    int64_t n, first, tokens; // segments; tokens of the first, and of those behind it but the last, multiples of SCAN_CHUNK
    float * states, * decays; // of segments, after each other: [N, P, H, S]; of all tokens together, [H, S]
};

// Of SCAN_SEGMENTS p.s are the states that they begin with, one after the other. x is F32 but for SCAN_WHOLE.
template <int NT, scan_span SPAN>
static __global__ void __launch_bounds__(64 * (SPAN == SCAN_WHOLE ? CHUNK_MOST : SEGMENT_PAIRS), SPAN == SCAN_WHOLE ? 1 : 2)
    k_ssm_scan_chunk(const gcuda_ssm_scan_args p, const d_scan_segments segments) {
    const bool HAS_Y = SPAN != SCAN_STATES;
    const int N = 16 * NT, PITCH = N + 8, HALF = 8 * NT; // NT: accumulators of a warp
    DYNAMIC_SHARED(float, shared);
    const int tid = (int) threadIdx.x, lane = tid % 32, warp = tid / 32, n_warps = (int) blockDim.x / 32, g = lane / 4, t = lane % 4;
    const int side = warp % 2, n_slices = n_warps < 4 ? n_warps : 4, pairs = n_warps / 2;
    float * const tokens = shared; // two stages of B, then C
    float * const dots = tokens + 4 * SCAN_CHUNK * PITCH, * const weights = dots + n_slices * 256;
    float * const decays = weights + SCAN_CHUNK * CHUNK_PITCH; // K(s, t) in row t
    float * const partials = decays + SCAN_CHUNK * CHUNK_PITCH, * const partial = partials + warp / 2 * 256;
    float * const scalars = partials + pairs * 256;
    const int for_decays = n_warps > n_slices ? n_slices : 0; // the first warp that works them out: without a share of C . B, if there is one
    const int64_t n_tokens = p.x.ne[2], per_seq = p.x.ne[0] * p.x.ne[1], per_head = p.x.ne[0] / (16 * pairs);
    const int64_t n_heads = p.x.ne[1] * p.x.ne[3], n_spans = SPAN == SCAN_WHOLE ? 1 : SPAN == SCAN_STATES ? segments.n - 1 : segments.n;
    if (SPAN == SCAN_STATES) { d_start_next(); }
    FOR_ROWS(block, per_head * n_heads * n_spans) { // nobody begins with what the last segment makes
        const int64_t head_at = block / per_head, span = SPAN == SCAN_WHOLE ? 0 : head_at / n_heads, head = head_at - span * n_heads;
        const int64_t q = head / p.x.ne[1], h = head - q * p.x.ne[1];
        const int64_t segment = SPAN == SCAN_WHOLE ? 0 : n_spans - 1 - span; // the first one, which may be short, at last
        const int64_t begin = SPAN == SCAN_WHOLE || segment == 0 ? 0 : segments.first + (segment - 1) * segments.tokens;
        const int64_t behind = segments.first + segment * segments.tokens;
        const int64_t end_token = SPAN == SCAN_WHOLE || behind > n_tokens ? n_tokens : behind;
        const int64_t c0 = ((block - head_at * per_head) * pairs + warp / 2) * 16, group = h / (p.x.ne[1] / p.b.ne[1]);
        const int64_t id = SPAN == SCAN_SEGMENTS ? segment * p.x.ne[3] + q : d_scan_state(p.ids.data, q);
        const bool is_ok = SPAN != SCAN_WHOLE || (id >= 0 && id < p.s.ne[3]); // the kernel between tells otherwise
        const float a = d_load(p.a.type, d_at(p.a, 0, h, 0, 0));
        const char * from_b = d_at(p.b, 0, group, 0, q), * from_c = d_at(p.c, 0, group, 0, q);
        const char * own_x = d_at(p.x, c0 + g, h, 0, q);
        const int64_t row_x = 8 * (int64_t) p.x.nb[0], step_x = 4 * (int64_t) p.x.nb[2];
        float st[NT][4], next_x[2 * 4], x[2 * 4], next_dt = 0.0f, kept = 1.0f;
        if (!is_ok && h == 0 && c0 == 0 && tid == 0 && p.bad_index != nullptr) {
            *p.bad_index = 1;
        }
        const auto load_states = [&]() {
            UNROLL for (int i = 0; i < NT; ++i) {
                UNROLL for (int r = 0; r < 2; ++r) {
                    const float2 * from = (const float2 *) d_at(p.s, side * HALF + 8 * i + 2 * t, c0 + g + 8 * r, h, is_ok && HAS_Y ? id : 0);
                    const float2 v = is_ok && HAS_Y ? *from : make_float2(0.0f, 0.0f);
                    st[i][2 * r] = v.x;
                    st[i][2 * r + 1] = v.y;
                }
            }
        };
        if (SPAN == SCAN_WHOLE) { load_states(); }
        auto fetch = [&](int64_t t0, int stage) {
            for (int i = tid; i < SCAN_CHUNK * N / 4; i += (int) blockDim.x) {
                const int at = i / (N / 4), k = i % (N / 4) * 4;
                const int64_t from = t0 + at < end_token ? t0 + at : 0;
                float * to = tokens + 2 * SCAN_CHUNK * PITCH * stage + at * PITCH + k;
                d_copy_16((char *) to, from_b + from * (int64_t) p.b.nb[2] + 4 * k, t0 + at < end_token ? 16 : 0);
                if (HAS_Y) {
                    const char * c = from_c + from * (int64_t) p.c.nb[2] + 4 * k;
                    d_copy_16((char *) (to + SCAN_CHUNK * PITCH), c, t0 + at < end_token ? 16 : 0);
                }
            }
            d_copies_commit();
            const char * from_x = own_x + (t0 + t) * (int64_t) p.x.nb[2];
            if (SPAN != SCAN_WHOLE || p.x.type == GCUDA_TYPE_F32) { // asked once, so that the loads stand together
                UNROLL for (int m = 0; m < 8; ++m) { // tokens t, t + 4, t + 8, t + 12
                    next_x[m] = t0 + t + m / 2 * 4 < end_token ? *(const float *) (from_x + m / 2 * step_x + m % 2 * row_x) : 0.0f;
                }
            } else {
                UNROLL for (int m = 0; m < 8; ++m) {
                    next_x[m] = t0 + t + m / 2 * 4 < end_token ? d_load(p.x.type, from_x + m / 2 * step_x + m % 2 * row_x) : 0.0f;
                }
            }
        };
        const auto fetch_dt = [&](int64_t t0) { // of the last warp's first lanes
            return lane < SCAN_CHUNK && t0 + lane < end_token ? d_load(p.dt.type, d_at(p.dt, h, t0 + lane, q, 0)) : 0.0f;
        };
        const auto find_scalars = [&](int64_t t0, int stage) { // behind the last token the state stays
            float * to = scalars + 2 * SCAN_CHUNK * stage + lane;
            const float d = t0 + lane < end_token ? d_softplus20(next_dt) : 0.0f;
            if (lane < SCAN_CHUNK) {
                to[0] = d;
                to[SCAN_CHUNK] = expf(d * a);
            }
        };
        __syncthreads(); // the block before is done with
        fetch(begin, 0);
        if (warp == n_warps - 1) {
            next_dt = fetch_dt(begin);
            find_scalars(begin, 0);
            next_dt = fetch_dt(begin + SCAN_CHUNK);
        }
        if (SPAN == SCAN_SEGMENTS) { d_wait_before(); } // tokens were there before
        if (SPAN != SCAN_WHOLE) { load_states(); }
        for (int64_t t0 = begin; t0 < end_token; t0 += SCAN_CHUNK) {
            const int stage = (int) ((t0 - begin) / SCAN_CHUNK % 2);
            const float * sb = tokens + 2 * SCAN_CHUNK * PITCH * stage, * sc = sb + SCAN_CHUNK * PITCH;
            const float * delta = scalars + 2 * SCAN_CHUNK * stage, * keep = delta + SCAN_CHUNK;
            UNROLL for (int m = 0; m < 8; ++m) { x[m] = next_x[m]; }
            d_copies_wait<0>();
            __syncthreads();
            if (t0 + SCAN_CHUNK < end_token) { fetch(t0 + SCAN_CHUNK, 1 - stage); }
            float y[2][4] = {}, mine[4];
            if (HAS_Y && warp < n_slices) { // C . B of a share of the states
                for (int k = warp; k < 2 * NT; k += n_slices) {
                    d_split_tf32<4> u;
                    UNROLL for (int r = 0; r < 2; ++r) {
                        const float2 v = *(const float2 *) (sc + (g + 8 * r) * PITCH + 8 * k + 2 * t);
                        u.set(r, v.x);
                        u.set(r + 2, v.y);
                    }
                    UNROLL for (int j = 0; j < 2; ++j) {
                        const float2 v = *(const float2 *) (sb + (8 * j + g) * PITCH + 8 * k + 2 * t);
                        d_split_tf32<2> w;
                        w.set(0, v.x);
                        w.set(1, v.y);
                        d_mma_split(y[j], u, w);
                    }
                }
                UNROLL for (int j = 0; j < 2; ++j) {
                    UNROLL for (int r = 0; r < 2; ++r) {
                        *(float2 *) (dots + warp * 256 + (g + 8 * r) * 16 + 8 * j + 2 * t) = make_float2(y[j][2 * r], y[j][2 * r + 1]);
                        y[j][2 * r] = y[j][2 * r + 1] = 0.0f;
                    }
                }
            }
            if (warp >= for_decays) { // a row of decays by half a warp: of token s what is kept of s + 1 and all up to the row's
                const int first_row = HAS_Y ? 0 : SCAN_CHUNK - 2; // of states the last one counts
                for (int to = first_row + (warp - for_decays) * 2 + lane / 16; to < SCAN_CHUNK; to += (n_warps - for_decays) * 2) {
                    const int s = lane % 16;
                    float decay = s < to ? keep[s + 1] : 1.0f;
                    UNROLL for (int d = 1; d < 16; d *= 2) {
                        const float later = __shfl_down_sync(0xffffffffu, decay, d, 16);
                        decay *= s + d < 16 ? later : 1.0f;
                    }
                    decays[to * CHUNK_PITCH + s] = decay;
                }
            }
            if (warp == n_warps - 1 && t0 + SCAN_CHUNK < end_token) {
                find_scalars(t0 + SCAN_CHUNK, 1 - stage);
                next_dt = fetch_dt(t0 + 2 * SCAN_CHUNK);
            }
            UNROLL for (int i = 0; i < NT && HAS_Y; ++i) { // the state's part of y
                d_split_tf32<4> u;
                UNROLL for (int r = 0; r < 2; ++r) {
                    u.set(r, st[i][2 * r]);
                    u.set(r + 2, st[i][2 * r + 1]);
                }
                UNROLL for (int j = 0; j < 2; ++j) {
                    const float2 v = *(const float2 *) (sc + (8 * j + g) * PITCH + side * HALF + 8 * i + 2 * t);
                    d_split_tf32<2> w;
                    w.set(0, v.x);
                    w.set(1, v.y);
                    d_mma_split(y[j], u, w);
                }
            }
            // A side gives the other its part of the eight tokens that are the other's.
            if (HAS_Y) {
                UNROLL for (int r = 0; r < 4; ++r) { mine[r] = side == 0 ? y[0][r] : y[1][r]; }
                *(float4 *) (partial + (1 - side) * 128 + 4 * lane) = side == 0 ? make_float4(y[1][0], y[1][1], y[1][2], y[1][3])
                                                                                : make_float4(y[0][0], y[0][1], y[0][2], y[0][3]);
            }
            __syncthreads();
            for (int e = tid; e < 256 && HAS_Y; e += (int) blockDim.x) {
                const int to = e / 16, s = e % 16;
                float w = 0.0f;
                for (int i = 0; i < n_slices; ++i) { w += dots[i * 256 + e]; }
                weights[to * CHUNK_PITCH + s] = s <= to ? w * decays[to * CHUNK_PITCH + s] : 0.0f;
            }
            const float first = keep[0], all = first * decays[(SCAN_CHUNK - 1) * CHUNK_PITCH];
            kept *= all;
            d_split_tf32<4> u[2];
            UNROLL for (int m = 0; m < 8; ++m) {
                x[m] *= delta[t + m / 2 * 4];
                u[m / 4].set(m % 4, x[m] * decays[(SCAN_CHUNK - 1) * CHUNK_PITCH + t + m / 2 * 4]);
            }
            UNROLL for (int i = 0; i < NT; ++i) {
                UNROLL for (int r = 0; r < 4; ++r) { st[i][r] *= all; }
                UNROLL for (int k = 0; k < 2; ++k) {
                    const float * from = sb + (8 * k + t) * PITCH + side * HALF + 8 * i + g;
                    d_split_tf32<2> w;
                    w.set(0, from[0]);
                    w.set(1, from[4 * PITCH]);
                    d_mma_split(st[i], u[k], w);
                }
            }
            if (!HAS_Y) { continue; }
            __syncthreads(); // weights are there
            const int token = 8 * side + 2 * t;
            const float4 v = *(const float4 *) (partial + side * 128 + 4 * lane);
            const float even = first * decays[token * CHUNK_PITCH], odd = first * decays[(token + 1) * CHUNK_PITCH];
            mine[0] = (mine[0] + v.x) * even;
            mine[1] = (mine[1] + v.y) * odd;
            mine[2] = (mine[2] + v.z) * even;
            mine[3] = (mine[3] + v.w) * odd;
            UNROLL for (int m = 0; m < 8; ++m) { u[m / 4].set(m % 4, x[m]); }
            UNROLL for (int k = 0; k < 2; ++k) {
                d_split_tf32<2> w;
                w.set(0, weights[(8 * side + g) * CHUNK_PITCH + 8 * k + t]);
                w.set(1, weights[(8 * side + g) * CHUNK_PITCH + 8 * k + t + 4]);
                d_mma_split(mine, u[k], w);
            }
            float * to = (float *) d_at(p.y, c0 + g, h, t0 + token, q);
            UNROLL for (int i = 0; i < 4; ++i) {
                if (t0 + token + i % 2 < end_token) { to[i % 2 * per_seq + i / 2 * 8] = mine[i]; }
            }
        }
        if (!HAS_Y && c0 == 0 && tid == 0) { segments.decays[segment * n_heads + head] = kept; }
        float * end = HAS_Y ? (float *) p.last.data : segments.states + segment * per_seq * p.x.ne[3] * N;
        end += (q * per_seq + h * p.x.ne[0] + c0) * N;
        UNROLL for (int i = 0; i < NT && (SPAN != SCAN_SEGMENTS || segment == segments.n - 1); ++i) {
            UNROLL for (int r = 0; r < 4; ++r) { end[(g + r / 2 * 8) * N + side * HALF + 8 * i + 2 * t + r % 2] = st[i][r]; }
        }
    }
}

// Puts the states that segments begin with in the place of those that they make of zeros. A thread has four neighbouring states.
static __global__ void __launch_bounds__(256) k_ssm_scan_join(const gcuda_ssm_scan_args p, const d_scan_segments segments) {
    const int64_t n = p.s.ne[0], per_seq = p.x.ne[0] * p.x.ne[1], n_all = n * per_seq * p.x.ne[3];
    d_start_next();
    d_wait_before();
    FOR_ELEMENTS(i, n_all / 4) {
        const int64_t ch = 4 * i / n, head = ch / p.x.ne[0], q = head / p.x.ne[1];
        const int64_t id = d_scan_state(p.ids.data, q);
        const bool is_ok = id >= 0 && id < p.s.ne[3];
        float4 * own = (float4 *) segments.states + i, st = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (is_ok) { st = *(const float4 *) d_at(p.s, 4 * i - ch * n, ch - head * p.x.ne[0], head - q * p.x.ne[1], id); }
        if (!is_ok && ch == q * per_seq && 4 * i == ch * n && p.bad_index != nullptr) {
            *p.bad_index = 1;
        }
        for (int64_t s0 = 0; s0 < segments.n; s0 += 4) {
            float4 made[4];
            float decay[4];
            UNROLL for (int k = 0; k < 4; ++k) {
                const bool is_made = s0 + k + 1 < segments.n;
                made[k] = is_made ? own[(s0 + k) * (n_all / 4)] : st;
                decay[k] = is_made ? segments.decays[(s0 + k) * p.x.ne[1] * p.x.ne[3] + head] : 0.0f;
            }
            UNROLL for (int k = 0; k < 4; ++k) {
                if (s0 + k < segments.n) { own[(s0 + k) * (n_all / 4)] = st; }
                st.x = st.x * decay[k] + made[k].x;
                st.y = st.y * decay[k] + made[k].y;
                st.z = st.z * decay[k] + made[k].z;
                st.w = st.w * decay[k] + made[k].w;
            }
        }
    }
}

// Segments of tokens, as many as all run at once: two blocks of a head's warps a multiprocessor. Where that leaves places, too few for
// all heads, one more segment before them is so short that they take it after each other meanwhile.
static d_scan_segments scan_segments(const gcuda_ssm_scan_args & p, int64_t pairs) {
    const int64_t n_blocks = p.x.ne[0] / (16 * pairs) * p.x.ne[1] * p.x.ne[3], most = p.x.ne[2] / SEGMENT_LEAST;
    const int64_t places = 2 * n_multiprocessors(), room = places / n_blocks, wanted = room < most ? room : most, n = wanted > 1 ? wanted : 1;
    const int64_t spare = places - n * n_blocks, rounds = n > 1 && spare > 0 ? (n_blocks + spare - 1) / spare : 0;
    const int64_t n_chunks = (p.x.ne[2] + SCAN_CHUNK - 1) / SCAN_CHUNK, even = (n_chunks + n - 1) / n;
    int64_t chunks = even;
    while (rounds > 0 && (chunks - 1) * SCAN_CHUNK >= SEGMENT_LEAST && n * (chunks - 1) + (chunks - 1) / rounds >= n_chunks) {
        --chunks;
    }
    d_scan_segments s = {};
    s.tokens = chunks * SCAN_CHUNK;
    s.first = chunks < even ? (n_chunks - n * chunks) * SCAN_CHUNK : s.tokens;
    s.n = p.x.ne[2] > s.first ? 1 + (p.x.ne[2] - s.first + s.tokens - 1) / s.tokens : 1;
    s.states = (float *) p.scratch;
    s.decays = (float *) ((uintptr_t) p.scratch + (size_t) (s.n * p.s.ne[0] * p.x.ne[0] * p.x.ne[1] * p.x.ne[3]) * sizeof(float));
    return s;
}

// Pairs of warps in a block: all of a head's, unless that leaves multiprocessors without work. 0: other kernels. More than one segment:
// where heads alone are too few for this form.
static int64_t chunk_pairs(const gcuda_ssm_scan_args & p, d_scan_segments * segments) {
    const int64_t n = p.s.ne[0], all = p.x.ne[0] / 16, n_heads = p.x.ne[1] * p.x.ne[3];
    if (p.x.ne[2] < 2 * SCAN_CHUNK || p.a.ne[0] != 1 || (n != 64 && n != 128) || p.x.ne[0] % 16 != 0 || capability_major() < 8) { return 0; }
    if (!is_wide_f32(p.s) || !is_wide_f32(p.b) || !is_wide_f32(p.c) || n_heads == 0 || all == 0) { return 0; }
    int64_t pairs = all < CHUNK_MOST ? all : CHUNK_MOST;
    while (all % pairs != 0) { --pairs; }
    // Measured at 512 tokens in one segment: with 23 channels for each multiprocessor token by token is faster, with 78 it takes
    // twice as long.
    if (p.x.ne[0] * n_heads < WHOLE_CHANNELS(n_multiprocessors())) {
        *segments = scan_segments(p, pairs);
        return n == 128 && pairs <= SEGMENT_PAIRS && segments->n >= SEGMENT_FEWEST && p.x.type == GCUDA_TYPE_F32 ? pairs : 0;
    }
    while (pairs % 2 == 0 && all / pairs * n_heads * 3 < n_multiprocessors() * 2) { pairs /= 2; }
    return pairs;
}

static gcuda_status ssm_scan_chunk(const gcuda_ssm_scan_args & p, int64_t pairs, const d_scan_segments & s, gcuda_stream stream) {
    const int64_t n = p.s.ne[0], n_blocks = p.x.ne[0] / (16 * pairs) * p.x.ne[1] * p.x.ne[3];
    const dim3 block((unsigned) (64 * pairs));
    const size_t n_bytes = chunk_bytes(n, pairs);
    if (s.n <= 1) {
        return launch_shared(n == 64 ? k_ssm_scan_chunk<4, SCAN_WHOLE> : k_ssm_scan_chunk<8, SCAN_WHOLE>, n_blocks, block, n_bytes, 0,
            stream, p, s);
    }
    gcuda_ssm_scan_args begun = p; // with the states that segments begin with
    begun.s.data = s.states;
    begun.s.ne[1] = p.x.ne[0], begun.s.ne[2] = p.x.ne[1], begun.s.ne[3] = s.n * p.x.ne[3];
    for (int d = 1; d < 4; ++d) { begun.s.nb[d] = begun.s.nb[d - 1] * (size_t) begun.s.ne[d - 1]; }
    gcuda_status st = launch_shared(k_ssm_scan_chunk<8, SCAN_STATES>, n_blocks * (s.n - 1), block, n_bytes, 0, stream, p, s);
    const int64_t n_fours = n * p.x.ne[0] * p.x.ne[1] * p.x.ne[3] / 4;
    const bool is_early = gcuda_has_overlap();
    st = st == GCUDA_STATUS_SUCCESS ? launch_behind(k_ssm_scan_join, (n_fours + 255) / 256, dim3(256), 0, 0, stream, p, s) : st;
    return st == GCUDA_STATUS_SUCCESS
               ? launch_as(is_early, k_ssm_scan_chunk<8, SCAN_SEGMENTS>, n_blocks * s.n, block, n_bytes, 0, stream, begun, s)
               : st;
}

// What single tokens take of gcuda_ssm_scan_args, close together, so that blocks begin with few reads of constants.
struct d_scan_one {
    const char *s, *x, *dt, *a, *b, *c; // strides in bytes: of channels or elements, heads or groups, sequences
    char * y;
    float * last;
    const int32_t * ids;
    int32_t * bad_index;
    int64_t s_nb[3], x_nb[3], dt_nb[2], a_nb[2], b_nb[2], c_nb[2], y_nb[2];
    int64_t n_channels, n_states, n_items; // of a head; that s has; heads of all sequences
    int n, n_heads, n_groups;
    enum gcuda_type x_type, dt_type, a_type; // the others are F32
    bool is_one; // decay of a head
};

static d_scan_one scan_one_of(const gcuda_ssm_scan_args & p) {
    d_scan_one one = {};
    one.s = (const char *) p.s.data, one.x = (const char *) p.x.data, one.dt = (const char *) p.dt.data;
    one.a = (const char *) p.a.data, one.b = (const char *) p.b.data, one.c = (const char *) p.c.data;
    one.y = (char *) p.y.data;
    one.last = (float *) p.last.data;
    one.ids = (const int32_t *) p.ids.data;
    one.bad_index = p.bad_index;
    for (int d = 0; d < 3; ++d) {
        one.s_nb[d] = (int64_t) p.s.nb[d + 1];
        one.x_nb[d] = (int64_t) p.x.nb[d == 2 ? 3 : d];
    }
    for (int d = 0; d < 2; ++d) {
        one.dt_nb[d] = (int64_t) p.dt.nb[2 * d];
        one.a_nb[d] = (int64_t) p.a.nb[d];
        one.b_nb[d] = (int64_t) p.b.nb[d == 0 ? 1 : 3];
        one.c_nb[d] = (int64_t) p.c.nb[d == 0 ? 1 : 3];
        one.y_nb[d] = (int64_t) p.y.nb[d == 0 ? 1 : 3];
    }
    one.n_channels = p.x.ne[0], one.n_states = p.s.ne[3], one.n_items = p.x.ne[1] * p.x.ne[3];
    one.n = (int) p.s.ne[0], one.n_heads = (int) p.x.ne[1], one.n_groups = (int) p.b.ne[1];
    one.x_type = p.x.type, one.dt_type = p.dt.type, one.a_type = p.a.type;
    one.is_one = p.a.ne[0] == 1;
    return one;
}

// Blocks of a multiprocessor; 7.5 has room for 1024 threads.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define SCAN_ONE_BLOCKS 4
#else
#define SCAN_ONE_BLOCKS 5
#endif

// Single tokens: nothing to wait for but the state. A block has channels of one head.
template <int LANES, int PER> static __global__ void __launch_bounds__(256, SCAN_ONE_BLOCKS) k_ssm_scan_one(const d_scan_one p) {
    const int n = p.n, lane = (int) threadIdx.x % LANES, per_head = (int) ((p.n_channels + 256 / LANES - 1) / (256 / LANES));
    FOR_ROWS(block, per_head * p.n_items) {
        const int64_t head = block / per_head, q = head / p.n_heads, c = (block - head * per_head) * (256 / LANES) + threadIdx.x / LANES;
        const int h = (int) (head - q * p.n_heads), g = h / (p.n_heads / p.n_groups);
        const bool is_real = c < p.n_channels; // the others only take part in shuffles
        const int64_t own = is_real ? c : 0;
        const int64_t id = d_scan_state(p.ids, q);
        const bool is_ok = id >= 0 && id < p.n_states;
        float st[PER], b[PER], cc[PER], sum = 0.0f;
        d_spread_load<LANES, PER, true>(GCUDA_TYPE_F32, p.b + g * p.b_nb[0] + q * p.b_nb[1], 4, n, lane, b);
        d_spread_load<LANES, PER, true>(GCUDA_TYPE_F32, p.c + g * p.c_nb[0] + q * p.c_nb[1], 4, n, lane, cc);
        const float delta = d_softplus20(d_load(p.dt_type, p.dt + h * p.dt_nb[0] + q * p.dt_nb[1]));
        const float xd = delta * d_load(p.x_type, p.x + own * p.x_nb[0] + h * p.x_nb[1] + q * p.x_nb[2]);
        const char * from = p.a + h * p.a_nb[1];
        const float one = p.is_one ? expf(delta * d_load(p.a_type, from)) : 0.0f;
        const char * begun = p.s + own * p.s_nb[0] + h * p.s_nb[1] + (is_ok ? id : 0) * p.s_nb[2];
        d_spread_load<LANES, PER, true>(GCUDA_TYPE_F32, begun, 4, is_ok ? n : 0, lane, st);
        if (!is_ok && c == 0 && h == 0 && lane == 0 && p.bad_index != nullptr) {
            *p.bad_index = 1;
        }
        UNROLL for (int k = 0; k < PER; k += 4) {
            float a[4] = { one, one, one, one };
            if (!p.is_one) {
                d_spread_load<LANES, 4, false>(p.a_type, from + k * LANES * p.a_nb[0], (size_t) p.a_nb[0], n - k * LANES, lane, a);
                UNROLL for (int j = 0; j < 4; ++j) { a[j] = expf(delta * a[j]); }
            }
            UNROLL for (int j = 0; j < 4; ++j) {
                st[k + j] = st[k + j] * a[j] + b[k + j] * xd;
                sum += st[k + j] * cc[k + j];
            }
        }
        sum = d_group_sum<LANES>(sum);
        float * end = p.last + (head * p.n_channels + c) * n;
        if (is_real && lane == 0) { ((float *) (p.y + h * p.y_nb[0] + q * p.y_nb[1]))[c] = sum; }
        UNROLL for (int k = 0; k < PER && is_real; k += 4) {
            const int at = d_spread<LANES>(lane, k);
            if (at < n) { *(float4 *) (end + at) = make_float4(st[k], st[k + 1], st[k + 2], st[k + 3]); }
        }
    }
}

// States too large for registers stay where the last ones go: a warp per channel.
static __global__ void k_ssm_scan_any(const gcuda_ssm_scan_args p) {
    const int lane = (int) threadIdx.x % 32;
    const int64_t n = p.s.ne[0], n_channels = p.x.ne[0] * p.x.ne[1] * p.x.ne[3], n_tokens = p.x.ne[2];
    FOR_HELD_ROWS(item, n_channels, 32) {
        const int64_t c = item % p.x.ne[0], h = item / p.x.ne[0] % p.x.ne[1], q = item / p.x.ne[0] / p.x.ne[1];
        const int64_t g = h / (p.x.ne[1] / p.b.ne[1]);
        const int64_t id = d_scan_state(p.ids.data, q);
        const bool is_ok = id >= 0 && id < p.s.ne[3];
        float * y = (float *) d_at(p.y, c, h, 0, q), * st = (float *) p.last.data + item * n;
        for (int64_t i = lane; i < n; i += 32) { st[i] = is_ok ? *(const float *) d_at(p.s, i, c, h, id) : 0.0f; }
        if (!is_ok && c == 0 && h == 0 && lane == 0 && p.bad_index != nullptr) {
            *p.bad_index = 1;
        }
        for (int64_t t = 0; t < n_tokens; ++t) {
            const float delta = d_softplus20(d_load(p.dt.type, d_at(p.dt, h, t, q, 0)));
            const float xd = delta * d_load(p.x.type, d_at(p.x, c, h, t, q));
            float sum = 0.0f;
            for (int64_t i = lane; i < n; i += 32) {
                const float a = d_load(p.a.type, d_at(p.a, p.a.ne[0] == 1 ? 0 : i, h, 0, 0));
                st[i] = st[i] * expf(delta * a) + d_load(p.b.type, d_at(p.b, i, g, t, q)) * xd;
                sum += st[i] * d_load(p.c.type, d_at(p.c, i, g, t, q));
            }
            sum = d_warp_reduce<d_sum_op>(sum);
            if (lane == 0) { y[t * p.x.ne[1] * p.x.ne[0]] = sum; }
        }
    }
}

template <int LANES, int PER> static gcuda_status ssm_scan(const gcuda_ssm_scan_args & p, gcuda_stream stream) {
    const int64_t n = (p.x.ne[0] * p.x.ne[1] * p.x.ne[3] * LANES + 127) / 128, per_seq = p.x.ne[0] * p.x.ne[1];
    const bool is_one = p.a.ne[0] == 1, wide = is_wide_f32(p.s) && is_wide_f32(p.b) && is_wide_f32(p.c);
    const int64_t per_block = SCAN_BLOCK / LANES * (is_one ? 2 : 1);
    if (wide && p.x.ne[2] > 1 && per_seq / p.b.ne[1] % per_block == 0 && (!is_one || p.x.ne[0] % 2 == 0)) {
        if (is_one && LANES == 16) { // twice the warps, with shorter chains each
            return launch(k_ssm_scan_staged<32, 4, true>, 2 * per_seq / per_block * p.x.ne[3], SCAN_BLOCK, stream, p);
        }
        return is_one ? launch(k_ssm_scan_staged<LANES, PER, true>, per_seq / per_block * p.x.ne[3], SCAN_BLOCK, stream, p)
                      : launch(k_ssm_scan_staged<LANES, PER, false>, per_seq / per_block * p.x.ne[3], SCAN_BLOCK, stream, p);
    }
    return wide ? launch(k_ssm_scan<LANES, PER, true>, n, 128, stream, p)
                : launch(k_ssm_scan<LANES, PER, false>, n, 128, stream, p);
}

template <int LANES, int PER> static gcuda_status ssm_scan_one(const gcuda_ssm_scan_args & p, gcuda_stream stream) {
    const int64_t n = (p.x.ne[0] + 256 / LANES - 1) / (256 / LANES) * p.x.ne[1] * p.x.ne[3];
    return launch(k_ssm_scan_one<LANES, PER>, n, 256, stream, scan_one_of(p));
}

// What the kernels take: y [P, H, T, S], the states behind it if nowhere else, those to go on with as p.s.
static gcuda_ssm_scan_args scan_completed(const gcuda_ssm_scan_args & args) {
    gcuda_ssm_scan_args p = args;
    for (int d = 1; d < 4; ++d) {
        if (p.last.data == nullptr || d < 3) { p.y.nb[d] = (d > 1 ? p.y.nb[d - 1] : sizeof(float)) * (size_t) p.x.ne[d - 1]; }
    }
    p.y.nb[0] = sizeof(float);
    if (p.last.data == nullptr) { p.last.data = (char *) p.y.data + p.y.nb[3] * (size_t) p.x.ne[3]; }
    if (p.is_begun) {
        p.s.data = p.last.data;
        p.ids.data = nullptr;
    }
    return p;
}

size_t gcuda_ssm_scan_scratch_bytes(const gcuda_ssm_scan_args * args) {
    d_scan_segments s = {};
    const int64_t pairs = chunk_pairs(scan_completed(*args), &s), n_heads = args->x.ne[1] * args->x.ne[3];
    return asked_bytes(pairs > 0 && s.n > 1 ? (size_t) (s.n * n_heads * (args->x.ne[0] * args->s.ne[0] + 1)) * sizeof(float) : 0);
}

gcuda_status gcuda_launch_ssm_scan(const gcuda_ssm_scan_args * args, gcuda_stream stream) {
    const gcuda_ssm_scan_args p = scan_completed(*args);
    const int64_t n = p.s.ne[0];
    const bool ends_wide = (uintptr_t) p.last.data % 16 == 0;
    if (p.x.ne[2] == 1 && n <= 256 && ends_wide && is_wide_f32(p.s) && is_wide_f32(p.b) && is_wide_f32(p.c)) {
        return n <= 16    ? ssm_scan_one<4, 4>(p, stream)
               : n <= 64  ? ssm_scan_one<8, 8>(p, stream)
               : n <= 128 ? ssm_scan_one<16, 8>(p, stream)
                          : ssm_scan_one<32, 8>(p, stream);
    }
    d_scan_segments segments = {};
    const int64_t pairs = chunk_pairs(p, &segments);
    if (pairs > 0 && (segments.n <= 1 || p.scratch != nullptr)) { return ssm_scan_chunk(p, pairs, segments, stream); }
    return n <= 16    ? ssm_scan<4, 4>(p, stream)
           : n <= 64  ? ssm_scan<8, 8>(p, stream)
           : n <= 128 ? ssm_scan<16, 8>(p, stream)
           : n <= 256 ? ssm_scan<32, 8>(p, stream)
                      : launch(k_ssm_scan_any, (p.x.ne[0] * p.x.ne[1] * p.x.ne[3] + 7) / 8, 256, stream, p);
}

// ---- recurrences with a matrix per head ----
// The state of a head is Z x Z; a result is a sum along its inner dimension, keys. LANES threads keep one line of inner
// elements in registers over all tokens, so that a head has Z lines for as many blocks as there are.
//   floor   state read and written once, inputs read, results written
enum linear_kind { LINEAR_WKV6, LINEAR_GLA, LINEAR_WKV7 };

struct d_linear {
    gcuda_array in[5]; // vectors of keys: wkv6 k r td tf, gla k q g, wkv7 k r w a b
    gcuda_array v, state, y, last;
    int64_t size, n_heads, n_tokens, n_seqs; // tokens of one sequence
    float scale;
};

template <int KIND> static inline __device__ int64_t d_linear_at(const d_linear & p, int64_t inner, int64_t line) {
    return KIND == LINEAR_WKV7 ? line * p.size + inner : inner * p.size + line;
}

template <int KIND> struct d_linear_inputs {
    static const int N = KIND == LINEAR_WKV7 ? 5 : 3; // tf of wkv6 is the same for all tokens
};

template <int KIND, int LANES, int PER, bool WIDE> static __global__ void k_linear(const d_linear p) {
    const int N = d_linear_inputs<KIND>::N, n = (int) p.size, lane = (int) threadIdx.x % LANES;
    const int64_t n_lines = p.size * p.n_heads * p.n_seqs, per_block = blockDim.x / LANES;
    const int64_t n_padded = (n_lines + per_block - 1) / per_block * per_block;
    for (int64_t item = blockIdx.x * per_block + threadIdx.x / LANES; item < n_padded; item += gridDim.x * per_block) {
        const bool is_real = item < n_lines;
        const int64_t it = is_real ? item : 0, line = it % p.size, h = it / p.size % p.n_heads, q = it / p.size / p.n_heads;
        const float * from = (const float *) p.state.data + (q * p.n_heads + h) * p.size * p.size;
        float * end = (float *) p.last.data + (q * p.n_heads + h) * p.size * p.size;
        float * y = (float *) d_at(p.y, line, h, 0, q);
        const char * at_in[N], * at_value = d_at(p.v, line, h, 0, q); // of the next token
        for (int i = 0; i < N; ++i) { at_in[i] = d_at(p.in[i], 0, h, 0, q); }
        float w[PER], first[PER], in[N][PER], next[N][PER], v = 0.0f, next_v = 0.0f;
        for (int k = 0; k < PER; ++k) {
            const int at = d_spread<LANES>(lane, k);
            w[k] = at < n ? from[d_linear_at<KIND>(p, at, line)] : 0.0f;
        }
        if (KIND == LINEAR_WKV6) {
            d_spread_load<LANES, PER, WIDE>(p.in[3].type, d_at(p.in[3], 0, h, 0, 0), p.in[3].nb[0], n, lane, first);
        }
        for (int64_t t = -1; t < p.n_tokens; ++t) {
            if (t + 1 < p.n_tokens) { // one token ahead
                for (int i = 0; i < N; ++i) {
                    d_spread_load<LANES, PER, WIDE>(p.in[i].type, at_in[i], p.in[i].nb[0], n, lane, next[i]);
                    at_in[i] += (int64_t) p.in[i].nb[2];
                }
                next_v = d_load(p.v.type, at_value);
                at_value += (int64_t) p.v.nb[2];
            }
            float sum = 0.0f, key = 0.0f;
            for (int k = 0; k < PER && t >= 0; ++k) {
                if (KIND == LINEAR_WKV6) {
                    const float kv = in[0][k] * v;
                    sum += in[1][k] * (first[k] * kv + w[k]);
                    w[k] = w[k] * in[2][k] + kv;
                } else if (KIND == LINEAR_GLA) {
                    w[k] = w[k] * in[2][k] + in[0][k] * v;
                    sum += in[1][k] * w[k];
                } else {
                    key += in[N - 2][k] * w[k];
                }
            }
            if (KIND == LINEAR_WKV7) {
                key = d_group_sum<LANES>(key);
                for (int k = 0; k < PER && t >= 0; ++k) {
                    w[k] = w[k] * in[2][k] + v * in[0][k] + key * in[N - 1][k];
                    sum += w[k] * in[1][k];
                }
            }
            sum = d_group_sum<LANES>(sum);
            if (t >= 0 && is_real && lane == 0) { y[t * p.n_heads * p.size] = sum * p.scale; }
            for (int i = 0; i < N; ++i) {
                for (int k = 0; k < PER; ++k) { in[i][k] = next[i][k]; }
            }
            v = next_v;
        }
        for (int k = 0; k < PER && is_real; ++k) {
            const int at = d_spread<LANES>(lane, k);
            if (at < n) { end[d_linear_at<KIND>(p, at, line)] = w[k]; }
        }
    }
}

// The same with LINEAR_TOKENS tokens at a time in shared memory, fetched while the ones before are worked on, for blocks
// whose lines are all of one head. Tokens behind the last one leave the state as it is: decay 1, all else 0.
#define LINEAR_TOKENS 8
#define LINEAR_BLOCK 128

// Groups of tokens on their way at a time, in registers: with two wkv6 takes 61% and gated linear attention 66% of the time (32 heads
// of 64, 512 tokens, H200), wkv7, which loads more a token, 119%. Larger heads have no registers to spare.
template <int KIND, int SIZE> struct linear_sets {
    static const int N = KIND != LINEAR_WKV7 && SIZE <= 64 ? 2 : 1;
};

template <int KIND, int LANES, int PER> static __global__ void __launch_bounds__(LINEAR_BLOCK) k_linear_staged(const d_linear p) {
    const int N = d_linear_inputs<KIND>::N, LINES = LINEAR_BLOCK / LANES, SIZE = LANES * PER;
    const int QUARTERS = SIZE / 4; // of a vector: loads of 16 bytes
    const int SETS = linear_sets<KIND, SIZE>::N;
    const int LOADS = LINEAR_TOKENS * QUARTERS / LINEAR_BLOCK > 0 ? LINEAR_TOKENS * QUARTERS / LINEAR_BLOCK : 1;
    const int VALUES = (LINEAR_TOKENS * LINES + LINEAR_BLOCK - 1) / LINEAR_BLOCK;
    alignas(16) __shared__ float in[LINEAR_TOKENS][N][SIZE];
    __shared__ float value[LINEAR_TOKENS][LINES];
    const int n = (int) p.size, tid = (int) threadIdx.x, lane = tid % LANES, own = tid / LANES;
    FOR_ROWS(block, p.size * p.n_heads * p.n_seqs / LINES) {
        const int64_t item = block * LINES, line = item % p.size, h = item / p.size % p.n_heads, q = item / p.size / p.n_heads;
        const float * from = (const float *) p.state.data + (q * p.n_heads + h) * p.size * p.size;
        float * end = (float *) p.last.data + (q * p.n_heads + h) * p.size * p.size;
        float * y = (float *) d_at(p.y, line + own, h, 0, q);
        float w[PER], first[PER], raw_value[SETS][VALUES];
        float4 raw[SETS][N][LOADS];
        const char * at_in[N], * at_value = d_at(p.v, line + tid % LINES, h, tid / LINES, q); // of the next tokens' first load
        UNROLL for (int i = 0; i < N; ++i) { at_in[i] = d_at(p.in[i], tid % QUARTERS * 4, h, tid / QUARTERS, q); }
        for (int k = 0; k < PER; ++k) {
            const int at = d_spread<LANES>(lane, k);
            w[k] = at < n ? from[d_linear_at<KIND>(p, at, line + own)] : 0.0f;
        }
        if (KIND == LINEAR_WKV6) {
            d_spread_load<LANES, PER, true>(p.in[3].type, d_at(p.in[3], 0, h, 0, 0), p.in[3].nb[0], n, lane, first);
        }
        auto fetch = [&](int64_t t0, int set) {
            UNROLL for (int l = 0; l < LOADS; ++l) {
                const int t = tid / QUARTERS + l * (LINEAR_BLOCK / QUARTERS), k = tid % QUARTERS * 4;
                const bool is_in = t < LINEAR_TOKENS && t0 + t < p.n_tokens && k < n;
                UNROLL for (int i = 0; i < N; ++i) {
                    const float none = i == 2 ? 1.0f : 0.0f; // decay
                    raw[set][i][l] = make_float4(none, none, none, none);
                    if (is_in) { raw[set][i][l] = *(const float4 *) (at_in[i] + l * (LINEAR_BLOCK / QUARTERS) * (int64_t) p.in[i].nb[2]); }
                }
            }
            UNROLL for (int l = 0; l < VALUES; ++l) {
                const int t = tid / LINES + l * LANES;
                const bool is_in = t < LINEAR_TOKENS && t0 + t < p.n_tokens;
                raw_value[set][l] = is_in ? d_load(p.v.type, at_value + l * LANES * (int64_t) p.v.nb[2]) : 0.0f;
            }
            UNROLL for (int i = 0; i < N; ++i) { at_in[i] += LINEAR_TOKENS * (int64_t) p.in[i].nb[2]; }
            at_value += LINEAR_TOKENS * (int64_t) p.v.nb[2];
        };
        UNROLL for (int set = 0; set < SETS; ++set) {
            if (set * LINEAR_TOKENS < p.n_tokens) { fetch(set * LINEAR_TOKENS, set); }
        }
        for (int64_t begin = 0; begin < p.n_tokens; begin += SETS * LINEAR_TOKENS) {
            UNROLL for (int set = 0; set < SETS; ++set) {
                const int64_t t0 = begin + set * LINEAR_TOKENS;
                if (t0 >= p.n_tokens) { break; }
                __syncthreads(); // the tokens before are done with
                UNROLL for (int l = 0; l < LOADS; ++l) {
                    const int t = tid / QUARTERS + l * (LINEAR_BLOCK / QUARTERS), k = tid % QUARTERS * 4;
                    UNROLL for (int i = 0; i < N; ++i) {
                        if (t < LINEAR_TOKENS) { *(float4 *) &in[t][i][k] = raw[set][i][l]; }
                    }
                }
                UNROLL for (int l = 0; l < VALUES; ++l) {
                    const int t = tid / LINES + l * LANES;
                    if (t < LINEAR_TOKENS) { value[t][tid % LINES] = raw_value[set][l]; }
                }
                __syncthreads();
                if (t0 + SETS * LINEAR_TOKENS < p.n_tokens) { fetch(t0 + SETS * LINEAR_TOKENS, set); }
                float sums[LINEAR_TOKENS];
                UNROLL for (int t = 0; t < LINEAR_TOKENS; ++t) {
                    const float v = value[t][own];
                    float x[N][PER], sum = 0.0f, key = 0.0f;
                    UNROLL for (int i = 0; i < N; ++i) {
                        UNROLL for (int k = 0; k < PER; k += 4) {
                            const float4 f = *(const float4 *) &in[t][i][d_spread<LANES>(lane, k)];
                            x[i][k] = f.x, x[i][k + 1] = f.y, x[i][k + 2] = f.z, x[i][k + 3] = f.w;
                        }
                    }
                    UNROLL for (int k = 0; k < PER; ++k) {
                        if (KIND == LINEAR_WKV6) {
                            const float kv = x[0][k] * v;
                            sum += x[1][k] * (first[k] * kv + w[k]);
                            w[k] = w[k] * x[2][k] + kv;
                        } else if (KIND == LINEAR_GLA) {
                            w[k] = w[k] * x[2][k] + x[0][k] * v;
                            sum += x[1][k] * w[k];
                        } else {
                            key += x[N - 2][k] * w[k];
                        }
                    }
                    if (KIND == LINEAR_WKV7) {
                        key = d_group_sum<LANES>(key);
                        UNROLL for (int k = 0; k < PER; ++k) {
                            w[k] = w[k] * x[2][k] + v * x[0][k] + key * x[N - 1][k];
                            sum += w[k] * x[1][k];
                        }
                    }
                    sums[t] = sum;
                }
                const int EACH = LINEAR_TOKENS > LANES ? LINEAR_TOKENS / LANES : 1, SHARING = LANES > LINEAR_TOKENS ? LANES / LINEAR_TOKENS : 1;
                d_spread_sums<LANES, LINEAR_TOKENS>::add(sums, lane);
                UNROLL for (int i = 0; i < EACH; ++i) {
                    const int64_t t = t0 + lane * LINEAR_TOKENS / LANES + i;
                    if (lane % SHARING == 0 && t < p.n_tokens) { y[t * p.n_heads * p.size] = sums[i] * p.scale; }
                }
            }
        }
        for (int k = 0; k < PER; ++k) {
            const int at = d_spread<LANES>(lane, k);
            if (at < n) { end[d_linear_at<KIND>(p, at, line + own)] = w[k]; }
        }
    }
}

// Heads too large for registers: a warp per line, the state where the last one goes.
template <int KIND> static __global__ void k_linear_any(const d_linear p) {
    const int lane = (int) threadIdx.x % 32;
    FOR_HELD_ROWS(item, p.size * p.n_heads * p.n_seqs, 32) {
        const int64_t line = item % p.size, h = item / p.size % p.n_heads, q = item / p.size / p.n_heads;
        const float * from = (const float *) p.state.data + (q * p.n_heads + h) * p.size * p.size;
        float * w = (float *) p.last.data + (q * p.n_heads + h) * p.size * p.size;
        for (int64_t i = lane; i < p.size; i += 32) { w[d_linear_at<KIND>(p, i, line)] = from[d_linear_at<KIND>(p, i, line)]; }
        for (int64_t t = 0; t < p.n_tokens; ++t) {
            const float v = d_load(p.v.type, d_at(p.v, line, h, t, q));
            float sum = 0.0f, key = 0.0f;
            for (int64_t i = lane; i < p.size && KIND == LINEAR_WKV7; i += 32) {
                key += d_load(p.in[3].type, d_at(p.in[3], i, h, t, q)) * w[d_linear_at<KIND>(p, i, line)];
            }
            key = d_warp_reduce<d_sum_op>(key);
            for (int64_t i = lane; i < p.size; i += 32) {
                float & s = w[d_linear_at<KIND>(p, i, line)];
                const float kv = d_load(p.in[0].type, d_at(p.in[0], i, h, t, q)) * v;
                const float r = d_load(p.in[1].type, d_at(p.in[1], i, h, t, q));
                const float decay = d_load(p.in[2].type, d_at(p.in[2], i, h, t, q));
                if (KIND == LINEAR_WKV6) {
                    sum += r * (d_load(p.in[3].type, d_at(p.in[3], i, h, 0, 0)) * kv + s);
                }
                s = s * decay + kv;
                if (KIND == LINEAR_WKV7) {
                    s += key * d_load(p.in[4].type, d_at(p.in[4], i, h, t, q));
                }
                sum += KIND == LINEAR_WKV6 ? 0.0f : r * s;
            }
            sum = d_warp_reduce<d_sum_op>(sum);
            if (lane == 0) {
                *(float *) d_at(p.y, line, h, t, q) = sum * p.scale;
            }
        }
    }
}

template <int KIND, int LANES, int PER> static gcuda_status linear_lines(const d_linear & p, bool wide, gcuda_stream stream) {
    const int64_t n = (p.size * p.n_heads * p.n_seqs * LANES + 63) / 64, lines = LINEAR_BLOCK / LANES;
    if (wide && p.n_tokens > 1 && p.size % lines == 0) {
        return launch(k_linear_staged<KIND, LANES, PER>, p.size * p.n_heads * p.n_seqs / lines, LINEAR_BLOCK, stream, p);
    }
    return wide ? launch(k_linear<KIND, LANES, PER, true>, n, 64, stream, p)
                : launch(k_linear<KIND, LANES, PER, false>, n, 64, stream, p);
}

// Inputs with the tokens of a sequence after those of another as [Z, H, T / S, S].
static void linear_sequences(gcuda_array * a, int64_t n_seqs) {
    if (a->ne[3] != n_seqs && n_seqs > 0) {
        a->ne[2] /= n_seqs;
        a->ne[3] = n_seqs;
        a->nb[3] = a->nb[2] * (size_t) a->ne[2];
    }
}

template <int KIND> static gcuda_status linear(d_linear & p, bool is_begun, gcuda_stream stream) {
    const int n_in = KIND == LINEAR_WKV6 ? 4 : KIND == LINEAR_GLA ? 3 : 5;
    bool wide = true;
    p.size = p.v.ne[0];
    p.n_heads = p.v.ne[1];
    p.n_seqs = p.state.ne[1];
    linear_sequences(&p.v, p.n_seqs);
    p.n_tokens = p.v.ne[2];
    for (int i = 0; i < n_in; ++i) {
        if (KIND != LINEAR_WKV6 || i < 3) { linear_sequences(&p.in[i], p.n_seqs); } // tf has no tokens
        wide = wide && is_wide_f32(p.in[i]);
    }
    if (p.last.data == nullptr) {
        p.y.nb[3] = sizeof(float) * (size_t) (p.size * p.n_heads * p.n_tokens);
        p.last.data = (char *) p.y.data + p.y.nb[3] * (size_t) p.n_seqs;
    }
    p.y.nb[0] = sizeof(float);
    p.y.nb[1] = p.y.nb[0] * (size_t) p.size;
    p.y.nb[2] = p.y.nb[1] * (size_t) p.n_heads;
    if (is_begun) { p.state.data = p.last.data; }
    return p.size <= 32    ? linear_lines<KIND, 4, 8>(p, wide, stream)
           : p.size <= 64  ? linear_lines<KIND, 8, 8>(p, wide, stream)
           : p.size <= 128 ? linear_lines<KIND, 16, 8>(p, wide, stream)
           : p.size <= 256 ? linear_lines<KIND, 32, 8>(p, wide, stream)
                           : launch(k_linear_any<KIND>, (p.size * p.n_heads * p.n_seqs + 7) / 8, 256, stream, p);
}

// >>op:rwkv_wkv6 --------------------------------------------------------------------------------------
gcuda_status gcuda_launch_rwkv_wkv6(const gcuda_rwkv_wkv6_args * args, gcuda_stream stream) {
    d_linear p = { { args->k, args->r, args->td, args->tf, {} }, args->v, args->state, args->y, args->last, 0, 0, 0, 0, 1.0f };
    return linear<LINEAR_WKV6>(p, args->is_begun, stream);
}

// >>op:gated_linear_attn ------------------------------------------------------------------------------
gcuda_status gcuda_launch_gated_linear_attn(const gcuda_gated_linear_attn_args * args, gcuda_stream stream) {
    d_linear p = { { args->k, args->q, args->g, {}, {} }, args->v, args->state, args->y, args->last, 0, 0, 0, 0, args->scale };
    return linear<LINEAR_GLA>(p, args->is_begun, stream);
}

// >>op:rwkv_wkv7 --------------------------------------------------------------------------------------
gcuda_status gcuda_launch_rwkv_wkv7(const gcuda_rwkv_wkv7_args * args, gcuda_stream stream) {
    d_linear p = { { args->k, args->r, args->w, args->a, args->b }, args->v, args->state, args->y, args->last, 0, 0, 0, 0, 1.0f };
    return linear<LINEAR_WKV7>(p, args->is_begun, stream);
}

#endif // recurrences

// >>op:solve_tri --------------------------------------------------------------------------------------
// A block takes COLS columns, which are in shared memory from B to X, 32 rows after another: the triangle on the diagonal
// row after row, lanes being rows and warps columns; then what that subtracts from all rows below, which is a product.
//   floor   A and B read, X written; the rows of a panel depend on each other
//   shared  n (COLS + 4) + 32 * 33 floats; longer columns go through memory
template <int COLS> struct d_solve {
    static const int PITCH = COLS + 4, OWN = COLS / 8; // columns of a warp
    static size_t bytes(int64_t n) { return (size_t) (n * PITCH + 32 * 33) * sizeof(float); }
};

// Four neighbouring elements of A's row.
static inline __device__ float4 d_solve_a(const gcuda_solve_tri_args & p, const char * row, int64_t i, bool is_wide_row) {
    if (is_wide_row) {
        return *(const float4 *) (row + 4 * i);
    }
    const int64_t size = (int64_t) p.a.nb[0];
    return make_float4(d_load(p.a.type, row + i * size), d_load(p.a.type, row + (i + 1) * size),
        d_load(p.a.type, row + (i + 2) * size), d_load(p.a.type, row + (i + 3) * size));
}

template <int COLS> static __global__ void __launch_bounds__(256) k_solve_tri_held(const gcuda_solve_tri_args p, bool is_wide_row) {
    DYNAMIC_SHARED(float, shared);
    typedef d_solve<COLS> S;
    float * tile = shared, * x = shared + 32 * 33; // the triangle, pitch 33; the columns
    const int tid = (int) threadIdx.x, lane = tid % 32, warp = tid / 32, n = (int) p.y.ne[1];
    const int64_t n_groups = (p.y.ne[0] + COLS - 1) / COLS;
    FOR_ROWS(b, n_groups * p.y.ne[2] * p.y.ne[3]) {
        const int64_t matrix = b / n_groups, c0 = (b - matrix * n_groups) * COLS, i3 = matrix / p.y.ne[2], i2 = matrix - i3 * p.y.ne[2];
        const int n_cols = (int) (p.y.ne[0] - c0 < COLS ? p.y.ne[0] - c0 : COLS);
        const char * a = d_at(p.a, 0, 0, i2, i3), * from = d_at(p.b, c0, 0, i2, i3);
        char * to = d_at(p.y, c0, 0, i2, i3);
        float next[4];
        auto fetch = [&](int r0) { // the triangle from row r0 on, a warp a row
            UNROLL for (int k = 0; k < 4; ++k) {
                const int r = warp + 8 * k;
                const bool is_in = r0 + r < n && lane <= r;
                next[k] = is_in ? d_load(p.a.type, a + (r0 + r) * (int64_t) p.a.nb[1] + (r0 + lane) * (int64_t) p.a.nb[0]) : 0.0f;
            }
        };
        fetch(0);
        __syncthreads(); // the columns before are done with
        for (int i = tid; i < n * COLS; i += 256) {
            const int r = i / COLS, c = i % COLS;
            x[r * S::PITCH + c] = c < n_cols ? d_load(p.b.type, from + r * (int64_t) p.b.nb[1] + c * (int64_t) p.b.nb[0]) : 0.0f;
        }
        for (int r0 = 0; r0 < n; r0 += 32) {
            UNROLL for (int k = 0; k < 4; ++k) { tile[(warp + 8 * k) * 33 + lane] = next[k]; }
            __syncthreads();
            const int n_here = n - r0 < 32 ? n - r0 : 32;
            const float inverse = lane < n_here ? 1.0f / tile[lane * 33 + lane] : 0.0f;
            float rest[S::OWN], found[S::OWN];
            UNROLL for (int c = 0; c < S::OWN; ++c) { found[c] = rest[c] = lane < n_here ? x[(r0 + lane) * S::PITCH + warp * S::OWN + c] : 0.0f; }
            UNROLL for (int t = 0; t < 32; ++t) {
                const float factor = tile[lane * 33 + t];
                UNROLL for (int c = 0; c < S::OWN; ++c) {
                    const float v = __shfl_sync(0xffffffffu, rest[c] * inverse, t);
                    if (lane == t) { found[c] = v; }
                    if (lane > t) { rest[c] -= factor * v; }
                }
            }
            UNROLL for (int c = 0; c < S::OWN; ++c) {
                if (lane < n_here) { x[(r0 + lane) * S::PITCH + warp * S::OWN + c] = found[c]; }
            }
            fetch(r0 + 32);
            __syncthreads();
            for (int i = tid; i < (n - r0 - 32) * (COLS / 4); i += 256) { // rows below, four columns
                const int r = r0 + 32 + i / (COLS / 4), c = i % (COLS / 4) * 4;
                const char * row = a + r * (int64_t) p.a.nb[1];
                float4 f[8], sum = *(const float4 *) (x + r * S::PITCH + c);
                UNROLL for (int t = 0; t < 8; ++t) { f[t] = d_solve_a(p, row, r0 + 4 * t, is_wide_row); }
                UNROLL for (int t = 0; t < 8; ++t) {
                    const float own[4] = { f[t].x, f[t].y, f[t].z, f[t].w };
                    UNROLL for (int j = 0; j < 4; ++j) {
                        const float4 v = *(const float4 *) (x + (r0 + 4 * t + j) * S::PITCH + c);
                        sum.x -= own[j] * v.x, sum.y -= own[j] * v.y, sum.z -= own[j] * v.z, sum.w -= own[j] * v.w;
                    }
                }
                *(float4 *) (x + r * S::PITCH + c) = sum;
            }
        }
        __syncthreads();
        for (int i = tid; i < n * COLS; i += 256) {
            const int r = i / COLS, c = i % COLS;
            if (c < n_cols) { *(float *) (to + r * (int64_t) p.y.nb[1] + c * (int64_t) p.y.nb[0]) = x[r * S::PITCH + c]; }
        }
    }
}

// Columns of any length: X is written panel by panel and read again for the ones below.
static __global__ void k_solve_tri(const gcuda_solve_tri_args p) {
    __shared__ float a[32][33], x[32][32];
    const int lane = (int) threadIdx.x % 32, warp = (int) threadIdx.x / 32;
    const int64_t n = p.y.ne[1], n_groups = (p.y.ne[0] + 31) / 32;
    FOR_ROWS(b, n_groups * p.y.ne[2] * p.y.ne[3]) {
        const int64_t c0 = b % n_groups * 32 + 4 * warp, i2 = b / n_groups % p.y.ne[2], i3 = b / n_groups / p.y.ne[2];
        for (int64_t r0 = 0; r0 < n; r0 += 32) {
            const int64_t row = r0 + lane;
            float rest[4];
            for (int c = 0; c < 4; ++c) {
                const bool is_in = row < n && c0 + c < p.y.ne[0];
                rest[c] = is_in ? d_load(p.b.type, d_at(p.b, c0 + c, row, i2, i3)) : 0.0f;
            }
            for (int64_t t0 = 0; t0 <= r0; t0 += 32) {
                __syncthreads();
                for (int i = warp; i < 32; i += 8) { // row r0 + i of A, of earlier rows of X row t0 + i
                    const bool is_in = r0 + i < n && t0 + lane < n && t0 + lane <= r0 + i;
                    a[i][lane] = is_in ? d_load(p.a.type, d_at(p.a, t0 + lane, r0 + i, i2, i3)) : 0.0f;
                    if (t0 < r0) {
                        const int64_t c = b % n_groups * 32 + lane;
                        x[i][lane] = c < p.y.ne[0] ? *(const float *) d_at(p.y, c, t0 + i, i2, i3) : 0.0f;
                    }
                }
                __syncthreads();
                for (int t = 0; t < 32 && t0 < r0; ++t) {
                    for (int c = 0; c < 4; ++c) { rest[c] -= a[lane][t] * x[t][4 * warp + c]; }
                }
            }
            for (int t = 0; t < 32 && r0 + t < n; ++t) { // the same for all lanes
                for (int c = 0; c < 4; ++c) {
                    const float v = __shfl_sync(0xffffffffu, rest[c], t) / a[t][t];
                    rest[c] = lane == t ? v : lane > t ? rest[c] - a[lane][t] * v : rest[c];
                }
            }
            for (int c = 0; c < 4; ++c) {
                if (row < n && c0 + c < p.y.ne[0]) { *(float *) d_at(p.y, c0 + c, row, i2, i3) = rest[c]; }
            }
        }
    }
}

template <int COLS> static gcuda_status solve_tri(const gcuda_solve_tri_args & p, gcuda_stream stream) {
    const bool wide = is_wide(p.a) && p.a.type == GCUDA_TYPE_F32 && p.a.ne[0] % 4 == 0;
    return launch_shared(k_solve_tri_held<COLS>, (p.y.ne[0] + COLS - 1) / COLS * p.y.ne[2] * p.y.ne[3], dim3(256),
        d_solve<COLS>::bytes(p.y.ne[1]), 0, stream, p, wide);
}

#define SOLVE_FILLS 256 // blocks of 32 columns that fill the device; with fewer of them, blocks have 8

gcuda_status gcuda_launch_solve_tri(const gcuda_solve_tri_args * args, gcuda_stream stream) {
    const gcuda_solve_tri_args & p = *args;
    const int64_t n = p.y.ne[1], n_blocks = (p.y.ne[0] + 31) / 32 * p.y.ne[2] * p.y.ne[3];
    if (n_blocks >= SOLVE_FILLS && fits_shared(d_solve<32>::bytes(n), 0)) {
        return solve_tri<32>(p, stream);
    }
    return fits_shared(d_solve<8>::bytes(n), 0) ? solve_tri<8>(p, stream) : launch(k_solve_tri, n_blocks, 256, stream, p);
}

// =====================================================================================================
// >>k-sort   orders of rows
// =====================================================================================================

static inline __device__ uint32_t d_sort_load(const gcuda_sort_args & p, const char * row, int64_t i) {
    const char * at = row + i * (int64_t) p.x.nb[0];
    const uint32_t raw = p.x.type == GCUDA_TYPE_F32 ? *(const uint32_t *) at : *(const uint16_t *) at; // loads of neighbours stay together
    const uint32_t widened = p.x.type == GCUDA_TYPE_F32 ? raw : raw << 16;
    const float f16 = __half2float(__ushort_as_half((unsigned short) raw));
    return d_sort_key(p.x.type == GCUDA_TYPE_F16 ? f16 : __uint_as_float(widened));
}

// ---- short rows: as many as fit into a block, by a bitonic network ----
#define SORT_SHORT 4096 // elements, 32 KiB of keys
#define SORT_EACH 8     // neighbouring keys of a thread

static inline __device__ void d_sort_select(unsigned long long & key, unsigned long long other, bool is_smaller_kept) {
    key = (other < key) == is_smaller_kept ? other : key;
}

// Compares keys STEP apart within the thread, whose first is at this place of the row.
template <int STEP> static inline __device__ void d_sort_own(unsigned long long * key, int place, int size) {
    UNROLL for (int j = 0; j < SORT_EACH; ++j) {
        if ((j & STEP) == 0) {
            const unsigned long long u = key[j], v = key[j + STEP];
            const bool is_swapped = (u > v) == (((place + j) & size) == 0);
            key[j] = is_swapped ? v : u;
            key[j + STEP] = is_swapped ? u : v;
        }
    }
}

// Rows of 2^bits keys (padded with the largest), n_in_block of them. What is compared lies in one thread, in one warp, or
// goes through shared memory.
static __global__ void __launch_bounds__(SORT_SHORT / SORT_EACH)
    k_sort_short(const gcuda_sort_args p, int bits, int n_in_block, bool is_descending, int64_t n_out) {
    __shared__ unsigned long long keys[SORT_SHORT];
    const int tid = (int) threadIdx.x, n_threads = (int) blockDim.x, first = tid * SORT_EACH, mask = (1 << bits) - 1, place = first & mask;
    const int64_t n_rows = d_rows(p.x);
    FOR_ROWS(b, (n_rows + n_in_block - 1) / n_in_block) {
        unsigned long long key[SORT_EACH];
        UNROLL for (int j = 0; j < SORT_EACH; ++j) { // in any order within the row: a warp reads neighbours where it has one row
            const int e = bits < 8 ? first + j : (first & -32 * SORT_EACH) + 32 * j + tid % 32, at = e & mask;
            const int64_t r = b * n_in_block + (e >> bits);
            key[j] = ~0ULL;
            if (r < n_rows && at < p.x.ne[0]) {
                const uint32_t k = d_sort_load(p, d_row(p.x, r), at);
                key[j] = (unsigned long long) d_sort_place(k, is_descending) << 32 | (unsigned) at;
            }
        }
        for (int size = 2; size <= 1 << bits; size *= 2) {
            const bool is_up = size == 1 << bits || (place & size) == 0; // of keys of different threads
            int step = size / 2;
            for (; step >= 32 * SORT_EACH; step /= 2) {
                __syncthreads();
                UNROLL for (int j = 0; j < SORT_EACH; ++j) { keys[j * n_threads + tid] = key[j]; }
                __syncthreads();
                UNROLL for (int j = 0; j < SORT_EACH; ++j) {
                    d_sort_select(key[j], keys[j * n_threads + (tid ^ step / SORT_EACH)], ((place & step) == 0) == is_up);
                }
            }
            for (; step >= SORT_EACH; step /= 2) {
                UNROLL for (int j = 0; j < SORT_EACH; ++j) {
                    d_sort_select(key[j], __shfl_xor_sync(0xffffffffu, key[j], step / SORT_EACH), ((place & step) == 0) == is_up);
                }
            }
            const int own_size = size == 1 << bits ? 0 : size;
            if (step >= 4) { d_sort_own<4>(key, place, own_size); }
            if (step >= 2) { d_sort_own<2>(key, place, own_size); }
            d_sort_own<1>(key, place, own_size);
        }
        __syncthreads();
        UNROLL for (int j = 0; j < SORT_EACH; ++j) { ((uint32_t *) keys)[first + j] = (uint32_t) key[j]; }
        __syncthreads();
        for (int i = tid; i < n_in_block << bits; i += n_threads) {
            const int64_t r = b * n_in_block + (i >> bits);
            const int at = i & mask;
            if (r < n_rows && at < n_out) {
                *(int32_t *) (d_row(p.y, r) + at * (int64_t) p.y.nb[0]) = (int32_t) (((const uint32_t *) keys)[i] & 0x7fffffffu);
            }
        }
    }
}

// ---- few rows of up to 64: a warp counts how many keys come before each; of equal ones the earlier does ----
// Soon done, but more work than the network's: for rows that all run at once.
#define SORT_WARP 64
#define SORT_WARP_ROWS 1024

static __global__ void __launch_bounds__(128) k_sort_warp(const gcuda_sort_args p, bool is_descending, int64_t n_out) {
    const int n = (int) p.x.ne[0], lane = (int) threadIdx.x % 32;
    FOR_HELD_ROWS(r, d_rows(p.x), 32) {
        const char * x = d_row(p.x, r);
        char * y = d_row(p.y, r);
        uint32_t key[2];
        int before[2] = { 0, 0 };
        UNROLL for (int k = 0; k < 2; ++k) {
            const int i = lane + 32 * k;
            const uint32_t v = i < n ? d_sort_load(p, x, i) : 0;
            key[k] = i >= n ? 0xffffffffu : d_sort_place(v, is_descending); // behind the row: before none of it
        }
        for (int j0 = 0; j0 < n; j0 += 8) {
            UNROLL for (int j = j0; j < j0 + 8; ++j) {
                const uint32_t other = __shfl_sync(0xffffffffu, key[j0 < 32 ? 0 : 1], j % 32);
                UNROLL for (int k = 0; k < 2; ++k) { before[k] += other < key[k] || (other == key[k] && j < lane + 32 * k); }
            }
        }
        UNROLL for (int k = 0; k < 2; ++k) {
            const int i = lane + 32 * k;
            if (i < n && before[k] < n_out) { *(int32_t *) (y + before[k] * (int64_t) p.y.nb[0]) = i; }
        }
    }
}

static gcuda_status sort_short(const gcuda_sort_args & p, bool is_descending, gcuda_stream stream) {
    if (p.x.ne[0] <= SORT_WARP && n_rows(p.x) <= SORT_WARP_ROWS) {
        return launch(k_sort_warp, (n_rows(p.x) + 3) / 4, 128, stream, p, is_descending, p.y.ne[0]);
    }
    int bits = 1;
    while ((1 << bits) < p.x.ne[0]) { ++bits; }
    const int n_in_block = (1 << bits) >= 1024 ? 1 : 1024 >> bits, n_threads = (n_in_block << bits) / SORT_EACH;
    return launch(k_sort_short, (n_rows(p.x) + n_in_block - 1) / n_in_block, n_threads, stream, p, bits, n_in_block, is_descending,
        p.y.ne[0]);
}

// ---- long rows: byte by byte from the low end, tiles counted, counts summed, tiles spread out ----
#define SORT_TILE 4096 // elements of a block, and of one where few elements would leave multiprocessors idle
#define SORT_TILE_FEW 1024
#define SORT_FEW ((int64_t) 1 << 19)
#define SORT_BATCH ((int64_t) 1 << 24) // elements sorted at once, at least a row: 16 bytes of scratch each

struct d_sort {
    gcuda_sort_args p;
    int64_t row0, n_rows, n, n_tiles; // the batch; elements and tiles of a row
    uint32_t * keys[2], * index[2], * counts, * totals; // counts: [row][digit][tile]; totals: [row][digit]
    int shift;
    bool is_descending, is_first, is_last;
};

// The lanes whose byte is the same as this one's, of those in the mask.
static inline __device__ unsigned d_match8(uint32_t digit, bool is_in) {
    unsigned peers = __ballot_sync(0xffffffffu, is_in);
    for (int bit = 0; bit < 8; ++bit) {
        const bool is_set = (digit >> bit & 1u) != 0;
        const unsigned with = __ballot_sync(0xffffffffu, is_set);
        peers &= is_set ? with : ~with;
    }
    return peers;
}

// Adds elements to the counts of their bytes, once for lanes that have the same.
static inline __device__ void d_count8(unsigned * count, uint32_t digit, bool is_in) {
    if (__ballot_sync(0xffffffffu, is_in) != 0) {
        const unsigned peers = d_match8(digit, is_in);
        if (is_in && (peers & ((1u << threadIdx.x % 32) - 1)) == 0) { atomicAdd(&count[digit], (unsigned) __popc(peers)); }
    }
}

// Sums over the threads before this one and over all, of 256 threads.
static inline __device__ unsigned d_block_before(unsigned own, unsigned * part) {
    const int lane = (int) threadIdx.x % 32, warp = (int) threadIdx.x / 32;
    unsigned sum = own;
    for (int d = 1; d < 32; d *= 2) {
        const unsigned left = __shfl_up_sync(0xffffffffu, sum, d);
        sum += lane >= d ? left : 0;
    }
    __syncthreads(); // the last use of part is over
    if (lane == 31) { part[warp] = sum; }
    __syncthreads();
    for (int w = 0; w < 8; ++w) { sum += w < warp ? part[w] : 0; }
    return sum - own;
}

static inline __device__ uint32_t d_sort_key_at(const d_sort & s, const char * x, int64_t row, int64_t i) {
    if (!s.is_first) {
        return s.keys[0][row * s.n + i];
    }
    return d_sort_place(d_sort_load(s.p, x, i), s.is_descending);
}

template <int TILE> static __global__ void __launch_bounds__(256) k_sort_count(const d_sort s) {
    __shared__ unsigned count[256];
    FOR_ROWS(b, s.n_rows * s.n_tiles) {
        const int64_t row = b / s.n_tiles, tile = b - row * s.n_tiles, i0 = tile * TILE + (int) threadIdx.x;
        const char * x = d_row(s.p.x, s.row0 + row);
        uint32_t key[TILE / 256];
        UNROLL for (int k = 0; k < TILE / 256; ++k) { key[k] = i0 + 256 * k < s.n ? d_sort_key_at(s, x, row, i0 + 256 * k) : 0; }
        __syncthreads();
        count[threadIdx.x] = 0;
        __syncthreads();
        UNROLL for (int k = 0; k < TILE / 256; ++k) { d_count8(count, key[k] >> s.shift & 255u, i0 + 256 * k < s.n); }
        __syncthreads();
        s.counts[(row * 256 + (int) threadIdx.x) * s.n_tiles + tile] = count[threadIdx.x];
    }
}

// A warp turns the counts of a digit into sums over the tiles before each.
static __global__ void __launch_bounds__(256) k_sort_sum(const d_sort s) {
    const int lane = (int) threadIdx.x % 32;
    FOR_HELD_ROWS(r, s.n_rows * 256, 32) {
        uint32_t * counts = s.counts + r * s.n_tiles;
        unsigned before = 0;
        for (int64_t i0 = 0; i0 < s.n_tiles; i0 += 256) {
            unsigned own[8];
            UNROLL for (int k = 0; k < 8; ++k) { own[k] = i0 + 32 * k + lane < s.n_tiles ? counts[i0 + 32 * k + lane] : 0; }
            UNROLL for (int k = 0; k < 8; ++k) {
                unsigned sum = own[k];
                for (int d = 1; d < 32; d *= 2) {
                    const unsigned left = __shfl_up_sync(0xffffffffu, sum, d);
                    sum += lane >= d ? left : 0;
                }
                if (i0 + 32 * k + lane < s.n_tiles) { counts[i0 + 32 * k + lane] = before + sum - own[k]; }
                before += __shfl_sync(0xffffffffu, sum, 31);
            }
        }
        if (lane == 0) { s.totals[r] = before; }
    }
}

// Warps have adjacent stretches of a tile and count their digits one after another, so that elements with the same byte
// keep their order; the tile is put in order in shared memory, so that what goes to one place is written together.
template <int TILE> static __global__ void __launch_bounds__(256) k_sort_spread(const d_sort s) {
    const int ITEMS = TILE / 256;
    __shared__ uint32_t keys[TILE], index[TILE];
    __shared__ unsigned count[8][256], to[256], part[8];
    const int tid = (int) threadIdx.x, lane = tid % 32, warp = tid / 32;
    FOR_ROWS(b, s.n_rows * s.n_tiles) {
        const int64_t row = b / s.n_tiles, tile = b - row * s.n_tiles, i0 = tile * TILE + warp * (TILE / 8) + lane;
        const int n_here = (int) (s.n - tile * TILE < TILE ? s.n - tile * TILE : TILE);
        const char * x = d_row(s.p.x, s.row0 + row);
        uint32_t key[ITEMS], at[ITEMS];
        unsigned rank[ITEMS];
        UNROLL for (int k = 0; k < ITEMS; ++k) {
            const int64_t i = i0 + 32 * k;
            key[k] = i < s.n ? d_sort_key_at(s, x, row, i) : 0;
            at[k] = s.is_first || i >= s.n ? (uint32_t) i : s.index[0][row * s.n + i];
        }
        const unsigned before = s.counts[(row * 256 + tid) * s.n_tiles + tile];
        const unsigned base = d_block_before(s.totals[row * 256 + tid], part) + before;
        for (int w = 0; w < 8; ++w) { count[w][tid] = 0; }
        __syncthreads();
        UNROLL for (int k = 0; k < ITEMS; ++k) {
            const bool is_in = i0 + 32 * k < s.n;
            const uint32_t digit = key[k] >> s.shift & 255u;
            const unsigned peers = d_match8(digit, is_in), here = (unsigned) __popc(peers & ((1u << lane) - 1));
            const unsigned old = count[warp][digit];
            __syncwarp();
            if (is_in && here == 0) { count[warp][digit] = old + (unsigned) __popc(peers); }
            __syncwarp();
            rank[k] = old + here;
        }
        __syncthreads();
        unsigned n = 0;
        for (int w = 0; w < 8; ++w) {
            const unsigned own = count[w][tid];
            count[w][tid] = n;
            n += own;
        }
        const unsigned first = d_block_before(n, part); // of this digit in the tile
        for (int w = 0; w < 8; ++w) { count[w][tid] += first; }
        to[tid] = base - first;
        __syncthreads();
        UNROLL for (int k = 0; k < ITEMS; ++k) {
            if (i0 + 32 * k < s.n) {
                const unsigned place = count[warp][key[k] >> s.shift & 255u] + rank[k];
                keys[place] = key[k];
                index[place] = at[k];
            }
        }
        __syncthreads();
        char * y = d_row(s.p.y, s.row0 + row);
        for (int i = tid; i < n_here; i += 256) {
            const uint32_t place = to[keys[i] >> s.shift & 255u] + (unsigned) i; // modulo 2^32, as the difference is
            if (s.is_last) {
                *(int32_t *) (y + (int64_t) place * (int64_t) s.p.y.nb[0]) = (int32_t) index[i];
            } else {
                s.keys[1][row * s.n + place] = keys[i];
                s.index[1][row * s.n + place] = index[i];
            }
        }
        __syncthreads();
    }
}

static int64_t sort_rows(const gcuda_sort_args & p) { // of a batch
    const int64_t n = p.x.ne[0] > 0 ? SORT_BATCH / p.x.ne[0] : 1, most = n_rows(p.x);
    return n < 1 ? 1 : n < most ? n : most;
}
static int64_t sort_tile(const gcuda_sort_args & p) { return sort_rows(p) * p.x.ne[0] <= SORT_FEW ? SORT_TILE_FEW : SORT_TILE; }

static d_sort sort_of(const gcuda_sort_args & p) {
    d_sort s = {};
    s.p = p;
    s.n = p.x.ne[0];
    s.n_tiles = (s.n + sort_tile(p) - 1) / sort_tile(p);
    s.is_descending = p.order == GCUDA_SORT_ORDER_DESC;
    const int64_t batch = sort_rows(p) * s.n;
    for (int i = 0; i < 2; ++i) {
        s.keys[i] = (uint32_t *) p.scratch + i * batch;
        s.index[i] = (uint32_t *) p.scratch + (2 + i) * batch;
    }
    s.counts = (uint32_t *) p.scratch + 4 * batch;
    s.totals = s.counts + sort_rows(p) * 256 * s.n_tiles;
    return s;
}

// >>op:argsort ----------------------------------------------------------------------------------------
//   floor   x read, y written: 8 bytes an element
size_t gcuda_argsort_scratch_bytes(const gcuda_sort_args * args) {
    const int64_t n = args->x.ne[0], tile = sort_tile(*args);
    return n <= SORT_SHORT ? 0 : (size_t) sort_rows(*args) * 4 * (size_t) (4 * n + 256 * ((n + tile - 1) / tile + 1));
}

static void swap_sides(d_sort & s) {
    uint32_t * keys = s.keys[0], * index = s.index[0];
    s.keys[0] = s.keys[1];
    s.index[0] = s.index[1];
    s.keys[1] = keys;
    s.index[1] = index;
}

template <int TILE> static gcuda_status sort_round(const d_sort & s, gcuda_stream stream) {
    gcuda_status st = launch(k_sort_count<TILE>, s.n_rows * s.n_tiles, 256, stream, s);
    st = st == GCUDA_STATUS_SUCCESS ? launch(k_sort_sum, s.n_rows * 32, 256, stream, s) : st;
    return st == GCUDA_STATUS_SUCCESS ? launch(k_sort_spread<TILE>, s.n_rows * s.n_tiles, 256, stream, s) : st;
}

gcuda_status gcuda_launch_argsort(const gcuda_sort_args * args, gcuda_stream stream) {
    const gcuda_sort_args & p = *args;
    if (p.x.ne[0] <= SORT_SHORT) { return sort_short(p, p.order == GCUDA_SORT_ORDER_DESC, stream); }
    gcuda_status st = GCUDA_STATUS_SUCCESS;
    d_sort s = sort_of(p);
    for (; s.row0 < n_rows(p.x) && st == GCUDA_STATUS_SUCCESS; s.row0 += sort_rows(p)) {
        const int64_t left = n_rows(p.x) - s.row0;
        s.n_rows = left < sort_rows(p) ? left : sort_rows(p);
        for (s.shift = 0; s.shift < 32 && st == GCUDA_STATUS_SUCCESS; s.shift += 8) {
            s.is_first = s.shift == 0;
            s.is_last = s.shift == 24;
            st = sort_tile(p) == SORT_TILE ? sort_round<SORT_TILE>(s, stream) : sort_round<SORT_TILE_FEW>(s, stream);
            swap_sides(s);
        }
    }
    return st;
}

// >>op:top_k ------------------------------------------------------------------------------------------
// The key of the k-th largest element byte by byte, counting those that share what is known of it; then all above it and
// as many equal to it as there is room for, in the order of the row. Short rows are sorted.
//   floor   x read once; what does not fit registers is read seven times, mostly from cache
#define TOP_K_SHORT 256

// By the first warp: the byte, from the highest down, at which the counts reach left, and how many of it are still wanted.
static inline __device__ void d_top_k_digit(const unsigned * count, unsigned left, unsigned * digit, unsigned * rest) {
    const int lane = (int) threadIdx.x % 32;
    unsigned own[8], sum = 0;
    UNROLL for (int j = 0; j < 8; ++j) { sum += own[j] = count[255 - 8 * lane - j]; }
    unsigned above = sum; // in digits above this lane's, and its own
    for (int d = 1; d < 32; d *= 2) {
        const unsigned v = __shfl_up_sync(0xffffffffu, above, d);
        above += lane >= d ? v : 0;
    }
    if (left <= above && left > above - sum) { // one lane
        above -= sum;
        UNROLL for (int j = 0; j < 8; ++j) {
            if (above < left && left <= above + own[j]) {
                *digit = (unsigned) (255 - 8 * lane - j);
                *rest = left - above;
            }
            above += own[j];
        }
    }
}

// f(key, place) of all elements of a row, adjacent stretches of it for the warps: HELD keys of a thread in registers, or with
// 0 read from memory every time, four at once.
template <int HELD> struct d_row_keys {
    static const int AHEAD = HELD > 0 ? HELD : 4;
    uint32_t key[AHEAD];
    // a loop for each type: ptxas finds no predicates for all conditions in one
    template <typename T> inline __device__ void load(const gcuda_sort_args & p, const char * x, int64_t i0) {
        UNROLL for (int k = 0; k < AHEAD; ++k) {
            const int64_t i = i0 + 32 * k;
            key[k] = i < p.x.ne[0] ? d_sort_key(d_f32(*(const T *) (x + i * (int64_t) p.x.nb[0]))) : 0;
        }
    }
    template <typename F> inline __device__ void each(const gcuda_sort_args & p, const char * x, bool is_first, F f) {
        const int64_t n = p.x.ne[0], all = AHEAD * (int64_t) blockDim.x, stretch = (n + all - 1) / all * (AHEAD * 32);
        for (int64_t i0 = threadIdx.x / 32 * stretch + threadIdx.x % 32, end = i0 + stretch; i0 < end; i0 += AHEAD * 32) {
            if (HELD == 0 || is_first) {
                switch (p.x.type) {
                    case GCUDA_TYPE_F32: load<float>(p, x, i0); break;
                    case GCUDA_TYPE_F16: load<__half>(p, x, i0); break;
                    default: load<__nv_bfloat16>(p, x, i0); break;
                }
            }
            UNROLL for (int k = 0; k < AHEAD; ++k) { f(key[k], i0 + 32 * k); }
        }
    }
};

// The key at place `left` from the top, and in left how many equal to it are wanted. each(g) calls g(key, whether it counts).
template <typename F> static inline __device__ uint32_t d_top_k_last(unsigned * count, unsigned * chosen, unsigned * left, F each) {
    uint32_t prefix = 0, known = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        __syncthreads();
        if (threadIdx.x < 256) { count[threadIdx.x] = 0; }
        __syncthreads();
        each([&](uint32_t key, bool is_in) { d_count8(count, key >> shift & 255u, is_in && (key & known) == prefix); });
        __syncthreads();
        if (threadIdx.x < 32) { d_top_k_digit(count, *left, &chosen[0], &chosen[1]); }
        __syncthreads();
        prefix |= chosen[0] << shift;
        known |= 255u << shift;
        *left = chosen[1];
    }
    return prefix;
}

// Of each thread's largest key the k-th largest is no larger than the one looked for, and few keys are not below it.
template <int HELD> static __global__ void __launch_bounds__(HELD > 0 ? 256 : 1024) k_top_k(const gcuda_sort_args p) {
    __shared__ unsigned count[256], chosen[2], part[32][2];
    const int lane = (int) threadIdx.x % 32, warp = (int) threadIdx.x / 32;
    const int64_t n = p.x.ne[0];
    FOR_ROWS(r, d_rows(p.x)) {
        const char * x = d_row(p.x, r);
        char * y = d_row(p.y, r);
        d_row_keys<HELD> keys;
        uint32_t most = 0, least = 0;
        keys.each(p, x, true, [&](uint32_t key, int64_t) { most = key > most ? key : most; });
        if (n > 1024 && p.y.ne[0] <= (int64_t) blockDim.x) { // of fewer, counting all is as fast
            unsigned left = (unsigned) p.y.ne[0];
            least = d_top_k_last(count, chosen, &left, [&](auto add) { add(most, true); });
        }
        unsigned left = (unsigned) p.y.ne[0]; // to be taken of those that are equal to the last
        const uint32_t last = d_top_k_last(count, chosen, &left, [&](auto add) {
            keys.each(p, x, false, [&](uint32_t key, int64_t i) { add(key, i < n && key >= least); });
        });
        unsigned n_above = 0, n_equal = 0;
        keys.each(p, x, false, [&](uint32_t key, int64_t i) {
            n_above += i < n && key > last;
            n_equal += i < n && key == last;
        });
        n_above = d_warp_reduce<d_sum_op>(n_above);
        n_equal = d_warp_reduce<d_sum_op>(n_equal);
        if (lane == 0) {
            part[warp][0] = n_above;
            part[warp][1] = n_equal;
        }
        __syncthreads();
        n_above = n_equal = 0; // before this warp
        for (int w = 0; w < warp; ++w) {
            n_above += part[w][0];
            n_equal += part[w][1];
        }
        keys.each(p, x, false, [&](uint32_t key, int64_t i) {
            const unsigned above = __ballot_sync(0xffffffffu, i < n && key > last);
            const unsigned equal = __ballot_sync(0xffffffffu, i < n && key == last), before = (1u << lane) - 1;
            const unsigned at_above = n_above + (unsigned) __popc(above & before), at_equal = n_equal + (unsigned) __popc(equal & before);
            if (i < n && (key > last || (key == last && at_equal < left))) {
                const int64_t to = at_above + (at_equal < left ? at_equal : left);
                *(int32_t *) (y + to * (int64_t) p.y.nb[0]) = (int32_t) i;
            }
            n_above += (unsigned) __popc(above);
            n_equal += (unsigned) __popc(equal);
        });
    }
}

// Too few rows to fill the device: tiles of them add to the counts of their row, in integers, whose order does not matter.
// state[row][round]: the bytes known before that round, and how many elements are wanted of those that share them;
// counts[round][row][256]; found[row][tile]: how many elements are above and equal to the last key.
#define TOP_K_TILE 2048  // elements, or a multiple of it: at most TOP_K_TILES of a row
#define TOP_K_TILES 1024

struct d_top_k {
    int64_t n_tiles, tile;
    uint2 * state, * found;
    unsigned * counts;
};

static __global__ void k_top_k_begin(const gcuda_sort_args p, const d_top_k t) {
    FOR_ELEMENTS(i, d_rows(p.x) * 4 * 256) { t.counts[i] = 0; }
    FOR_ELEMENTS(r, d_rows(p.x)) { t.state[r * 5] = make_uint2(0, (unsigned) p.y.ne[0]); }
}

// What the rounds before this one have found. A row's first block keeps it for the next ones.
static __device__ uint2 d_top_k_state(const gcuda_sort_args & p, const d_top_k & t, int round, int64_t row, int64_t tile) {
    __shared__ unsigned count[256], chosen[2];
    if (round == 0) {
        return t.state[row * 5];
    }
    const uint2 last = t.state[row * 5 + round - 1];
    __syncthreads();
    count[threadIdx.x] = t.counts[((round - 1) * d_rows(p.x) + row) * 256 + (int) threadIdx.x];
    __syncthreads();
    if (threadIdx.x < 32) { d_top_k_digit(count, last.y, &chosen[0], &chosen[1]); }
    __syncthreads();
    const uint2 now = make_uint2(last.x << 8 | chosen[0], chosen[1]);
    if (tile == 0 && threadIdx.x == 0) { t.state[row * 5 + round] = now; }
    return now;
}

// A thread's keys of a stretch of TOP_K_TILE.
static inline __device__ void d_top_k_keys(const gcuda_sort_args & p, const char * x, int64_t i0, uint32_t * key) {
    UNROLL for (int k = 0; k < TOP_K_TILE / 256; ++k) {
        const int64_t i = i0 + 256 * k + (int) threadIdx.x;
        key[k] = i < p.x.ne[0] ? d_sort_load(p, x, i) : 0;
    }
}

static __global__ void __launch_bounds__(256) k_top_k_count(const gcuda_sort_args p, const d_top_k t, int round) {
    __shared__ unsigned count[256];
    FOR_ROWS(b, d_rows(p.x) * t.n_tiles) {
        const int64_t row = b / t.n_tiles, tile = b - row * t.n_tiles;
        const char * x = d_row(p.x, row);
        const int shift = 24 - 8 * round;
        uint32_t key[TOP_K_TILE / 256];
        d_top_k_keys(p, x, tile * t.tile, key);
        const uint2 state = d_top_k_state(p, t, round, row, tile);
        __syncthreads();
        count[threadIdx.x] = 0;
        __syncthreads();
        for (int64_t i0 = tile * t.tile; i0 < (tile + 1) * t.tile; i0 += TOP_K_TILE) {
            if (i0 != tile * t.tile) { d_top_k_keys(p, x, i0, key); }
            UNROLL for (int k = 0; k < TOP_K_TILE / 256; ++k) {
                const bool is_in = i0 + 256 * k + (int) threadIdx.x < p.x.ne[0];
                d_count8(count, key[k] >> shift & 255u, is_in && (round == 0 || key[k] >> (shift + 8) == state.x));
            }
        }
        __syncthreads();
        if (count[threadIdx.x] > 0) {
            atomicAdd(&t.counts[(round * d_rows(p.x) + row) * 256 + (int) threadIdx.x], count[threadIdx.x]);
        }
    }
}

static __global__ void __launch_bounds__(256) k_top_k_found(const gcuda_sort_args p, const d_top_k t) {
    FOR_ROWS(b, d_rows(p.x) * t.n_tiles) {
        const int64_t row = b / t.n_tiles, tile = b - row * t.n_tiles;
        const char * x = d_row(p.x, row);
        uint32_t key[TOP_K_TILE / 256];
        d_top_k_keys(p, x, tile * t.tile, key);
        const uint32_t last = d_top_k_state(p, t, 4, row, tile).x;
        long long n = 0; // above in the upper half, equal in the lower
        for (int64_t i0 = tile * t.tile; i0 < (tile + 1) * t.tile; i0 += TOP_K_TILE) {
            if (i0 != tile * t.tile) { d_top_k_keys(p, x, i0, key); }
            UNROLL for (int k = 0; k < TOP_K_TILE / 256; ++k) {
                const bool is_in = i0 + 256 * k + (int) threadIdx.x < p.x.ne[0];
                n += !is_in ? 0 : key[k] > last ? 1LL << 32 : key[k] == last ? 1 : 0;
            }
        }
        n = d_block_reduce<d_sum_op>(n, 0LL);
        if (threadIdx.x == 0) { t.found[b] = make_uint2((unsigned) (n >> 32), (unsigned) n); }
    }
}

static __global__ void __launch_bounds__(256) k_top_k_take(const gcuda_sort_args p, const d_top_k t) {
    __shared__ unsigned part[8][2];
    const int lane = (int) threadIdx.x % 32, warp = (int) threadIdx.x / 32;
    FOR_ROWS(b, d_rows(p.x) * t.n_tiles) {
        const int64_t row = b / t.n_tiles, tile = b - row * t.n_tiles;
        const char * x = d_row(p.x, row);
        char * y = d_row(p.y, row);
        const uint2 state = t.state[row * 5 + 4];
        const uint2 here = t.found[b];
        if (here.x + here.y == 0) { // the same for all threads
            continue;
        }
        long long n = 0;
        FOR_ROW_ELEMENTS(i, tile) {
            const uint2 v = t.found[row * t.n_tiles + i];
            n += ((long long) v.x << 32) + v.y;
        }
        n = d_block_reduce<d_sum_op>(n, 0LL);
        unsigned n_above = (unsigned) (n >> 32), n_equal = (unsigned) n; // before this stretch
        for (int64_t i0 = tile * t.tile; i0 < (tile + 1) * t.tile; i0 += TOP_K_TILE) {
            uint32_t key[TOP_K_TILE / 256];
            d_top_k_keys(p, x, i0, key);
            UNROLL for (int k = 0; k < TOP_K_TILE / 256; ++k) {
                const int64_t i = i0 + 256 * k + (int) threadIdx.x;
                const bool is_in = i < p.x.ne[0];
                const unsigned above = __ballot_sync(0xffffffffu, is_in && key[k] > state.x);
                const unsigned equal = __ballot_sync(0xffffffffu, is_in && key[k] == state.x), before = (1u << lane) - 1;
                __syncthreads();
                if (lane == 0) {
                    part[warp][0] = (unsigned) __popc(above);
                    part[warp][1] = (unsigned) __popc(equal);
                }
                __syncthreads();
                unsigned at_above = n_above + (unsigned) __popc(above & before);
                unsigned at_equal = n_equal + (unsigned) __popc(equal & before);
                for (int w = 0; w < 8; ++w) {
                    at_above += w < warp ? part[w][0] : 0;
                    at_equal += w < warp ? part[w][1] : 0;
                    n_above += part[w][0];
                    n_equal += part[w][1];
                }
                if (is_in && (key[k] > state.x || (key[k] == state.x && at_equal < state.y))) {
                    const int64_t to = at_above + (at_equal < state.y ? at_equal : state.y);
                    *(int32_t *) (y + to * (int64_t) p.y.nb[0]) = (int32_t) i;
                }
            }
        }
    }
}

static int64_t top_k_tile(const gcuda_sort_args & p) { // elements; 0: a block has a row
    const int64_t n = p.x.ne[0], least = TOP_K_TILE * (int64_t) TOP_K_TILES;
    return n <= 2 * SORT_SHORT || n_rows(p.x) >= 32 ? 0 : (n + least - 1) / least * TOP_K_TILE;
}

size_t gcuda_top_k_scratch_bytes(const gcuda_sort_args * args) {
    const int64_t tile = top_k_tile(*args), n = tile > 0 ? (args->x.ne[0] + tile - 1) / tile : 0;
    return n == 0 ? 0 : (size_t) n_rows(args->x) * ((size_t) (n + 5) * sizeof(uint2) + 4 * 256 * sizeof(unsigned));
}

gcuda_status gcuda_launch_top_k(const gcuda_sort_args * args, gcuda_stream stream) {
    const gcuda_sort_args & p = *args;
    const int64_t rows = n_rows(p.x), tile = top_k_tile(p), n_tiles = tile > 0 ? (p.x.ne[0] + tile - 1) / tile : 0;
    if (p.x.ne[0] <= TOP_K_SHORT) {
        return sort_short(p, true, stream);
    }
    if (n_tiles == 0) {
        return p.x.ne[0] <= 1024   ? launch(k_top_k<4>, rows, 256, stream, p)
               : p.x.ne[0] <= 4096 ? launch(k_top_k<16>, rows, 256, stream, p)
                                   : launch(k_top_k<0>, rows, 1024, stream, p);
    }
    d_top_k t = { n_tiles, tile, (uint2 *) p.scratch, (uint2 *) p.scratch + rows * 5, nullptr };
    t.counts = (unsigned *) (t.found + rows * n_tiles);
    gcuda_status st = launch(k_top_k_begin, rows * 4, 256, stream, p, t);
    for (int round = 0; round < 4 && st == GCUDA_STATUS_SUCCESS; ++round) {
        st = launch(k_top_k_count, rows * n_tiles, 256, stream, p, t, round);
    }
    st = st == GCUDA_STATUS_SUCCESS ? launch(k_top_k_found, rows * n_tiles, 256, stream, p, t) : st;
    return st == GCUDA_STATUS_SUCCESS ? launch(k_top_k_take, rows * n_tiles, 256, stream, p, t) : st;
}
#endif // part 12

// ---- slots of mul_mat_id by expert: parts 4 and 13 ----
struct d_id_tile {
    int32_t expert, first, n; // slots order[first .. first + n); expert -1: rows of zeros
};

#if GCUDAI_PART(4) || GCUDAI_PART(5) || GCUDAI_PART(13)
static int64_t align_16(int64_t n) { return (n + 15) / 16 * 16; }

// Slots are sorted by expert on the device, in order within an expert; tiles follow from how many each has. The host never
// learns how many tiles there are: the kernels read it.
struct d_id_lists {
    int32_t * n_tiles;
    int32_t * counts;  // [experts + 1], used where they do not fit into shared memory
    int32_t * order;   // [slots]
    d_id_tile * tiles; // [max_tiles]
    int64_t n_experts, n_slots;
    int tn;
    bool has_counts, has_slots; // in shared memory
};

static int64_t id_max_tiles(const gcuda_mul_mat_id_args & p, int64_t tn) {
    const int64_t n_slots = p.ids.ne[0] * p.ids.ne[1], n_lists = p.as.ne[2] + 1;
    return n_slots / tn + (n_slots < n_lists ? n_slots : n_lists);
}

// Returns the bytes of scratch.
static size_t id_lists(const gcuda_mul_mat_id_args & p, d_id_lists * l) {
    l->n_experts = p.as.ne[2];
    l->n_slots = p.ids.ne[0] * p.ids.ne[1];
    char * at = (char *) p.scratch;
    const int64_t n_counts = align_16((l->n_experts + 1) * 4), n_order = align_16(l->n_slots * 4);
    l->n_tiles = (int32_t *) at;
    l->counts = (int32_t *) (at + 16);
    l->order = (int32_t *) (at + 16 + n_counts);
    l->tiles = (d_id_tile *) (at + 16 + n_counts + n_order);
    return (size_t) (16 + n_counts + n_order + align_16(id_max_tiles(p, 8) * (int64_t) sizeof(d_id_tile)));
}

static inline __device__ int d_expert_of(const gcuda_mul_mat_id_args & p, uint32_t slot) {
    const uint32_t used = (uint32_t) p.ids.ne[0];
    const int32_t id = *(const int32_t *) d_at(p.ids, slot % used, slot / used, 0, 0);
    return id >= 0 && id < p.as.ne[2] ? id : (int) p.as.ne[2];
}

// Tiles and slots of expert e, by a warp; counts: how many slots each expert has. Bad ids are those of one more expert.
static inline __device__ void d_id_expert(const gcuda_mul_mat_id_args & p, const d_id_lists & l, const int32_t * counts,
    const int32_t * experts, int e) {
    const int lane = (int) threadIdx.x % 32, n_slots = (int) l.n_slots, n = counts[e];
    int first = 0, tile = 0;
    for (int k = lane; k < e; k += 32) {
        first += counts[k];
        tile += (counts[k] + l.tn - 1) / l.tn;
    }
    first = d_warp_reduce<d_sum_op>(first);
    tile = d_warp_reduce<d_sum_op>(tile);
    for (int i = lane * l.tn, k = tile + lane; i < n; i += 32 * l.tn, k += 32) {
        l.tiles[k].expert = e < l.n_experts ? e : -1;
        l.tiles[k].first = first + i;
        l.tiles[k].n = n - i < l.tn ? n - i : l.tn;
    }
    int at = first;
    for (int s0 = 0; s0 < n_slots && at < first + n; s0 += 128) {
        bool is_mine[4];
        UNROLL for (int k = 0; k < 4; ++k) {
            const int s = s0 + 32 * k + lane;
            is_mine[k] = s < n_slots && (experts != nullptr ? experts[s] : d_expert_of(p, (uint32_t) s)) == e;
        }
        UNROLL for (int k = 0; k < 4; ++k) {
            const uint32_t mask = __ballot_sync(0xffffffffu, is_mine[k]);
            if (is_mine[k]) { l.order[at + __popc(mask & ((1u << lane) - 1u))] = s0 + 32 * k + lane; }
            at += __popc(mask);
        }
    }
    if (e == l.n_experts && lane == 0) {
        *l.n_tiles = tile + (n + l.tn - 1) / l.tn;
        if (n > 0 && p.bad_index != nullptr) { *p.bad_index = 1; }
    }
}

// Every block counts all slots, and its warps take an expert each.
static inline __device__ void d_id_sort(const gcuda_mul_mat_id_args & p, const d_id_lists & l, int32_t * shared, int block, int n_blocks) {
    int32_t * counts = l.has_counts ? shared : l.counts;
    int32_t * experts = l.has_slots ? shared + l.n_experts + 1 : nullptr;
    for (int64_t e = threadIdx.x; e <= l.n_experts; e += 256) { counts[e] = 0; }
    __syncthreads();
    for (int64_t s = threadIdx.x; s < l.n_slots; s += 256) {
        const int e = d_expert_of(p, (uint32_t) s);
        if (experts != nullptr) { experts[s] = e; }
        atomicAdd(&counts[e], 1);
    }
    __syncthreads();
    for (int64_t e = block * 8 + threadIdx.x / 32; e <= l.n_experts; e += n_blocks * 8) { d_id_expert(p, l, counts, experts, (int) e); }
}

// What the sort needs for tiles of at most tn columns: its blocks; *n_bytes: shared memory.
static int id_sort_plan(d_id_lists & l, int tn, size_t * n_bytes) {
    const size_t n_counts = (size_t) (l.n_experts + 1) * 4, n_slots = (size_t) l.n_slots * 4;
    l.tn = tn;
    l.has_counts = fits_shared(n_counts, 0);
    l.has_slots = l.has_counts && fits_shared(n_counts + n_slots, 0);
    *n_bytes = (l.has_counts ? n_counts : 0) + (l.has_slots ? n_slots : 0);
    const int64_t all = (l.n_experts + 8) / 8;
    return l.has_counts ? (int) (all < 1024 ? all : 1024) : 1; // counts in global memory: one block
}
#endif // parts 4, 5, 13

#if GCUDAI_PART(4) || GCUDAI_PART(13)
// Whether q is a product of the same columns as p, with weights that lie like p's.
static bool products_are_alike(const gcuda_mul_mat_args & p, const gcuda_mul_mat_args & q) {
    bool is_so = q.a.type == p.a.type && q.a.ne[0] == p.a.ne[0] && q.a.nb[1] == p.a.nb[1] && q.b.data == p.b.data &&
                 q.b.type == p.b.type && q.is_rounded == p.is_rounded;
    for (int d = 0; d < 4; ++d) { is_so = is_so && q.b.ne[d] == p.b.ne[d] && q.b.nb[d] == p.b.nb[d]; }
    return is_so;
}
#endif // parts 4, 13

#if GCUDAI_PART(4) || GCUDAI_PART(5) || GCUDAI_PART(6) || GCUDAI_PART(14)
// =====================================================================================================
// >>k-mul-mat   matrix products: the plain form for every type, stride and size, and what all forms share
// =====================================================================================================
// mul_mat, mul_mat_id and out_prod are one thing to a kernel: y[m, c] = sum over k of a[m, k] * b[c, k]. A job says where
// the rows and columns are; it is cut into tiles of TM rows and TN columns that share one matrix of a.
//   mul_mat     the columns of all matrices of b that meet one of a are taken as one long row of columns
//   mul_mat_id  a column is a slot (u, t); slots are sorted by expert on the device, bad ones last
//   out_prod    the same with the roles of k and the element index of a and b exchanged

struct d_job {
    gcuda_array a, b, y;
    int64_t m, n, k;     // rows, columns that meet one matrix of a, length of the sums
    int64_t a_m, a_k;    // bytes from row to row and, of floats, from k to k
    int64_t b_c, b_k;    // bytes from column to column within a matrix of b, and from k to k
    bool along_m;        // blocks of a lie along m (out_prod), not along k
    int64_t m_tiles, n_tiles, n_items;
    const d_id_tile * tiles; // mul_mat_id; the others are null elsewhere too
    const int32_t * order;
    const int32_t * n_lists; // how many tiles of columns
    bool has_epilogue;
    gcuda_mul_mat_epilogue epilogue;
};

struct d_tile {
    int64_t m0, c0, matrix; // first row; first column, or position in order; matrix of a, -1: zeros
    int n;                  // columns
};

// How many tiles there are; those of mul_mat_id only the device knows.
static inline __device__ int64_t d_items(const d_job & p) { return p.n_lists != nullptr ? *p.n_lists * p.m_tiles : p.n_items; }

// Of tm rows and tn columns.
static inline __device__ d_tile d_tile_of(const d_job & p, int64_t item, int tm, int tn) {
    d_tile t;
    t.m0 = item % p.m_tiles * tm;
    item /= p.m_tiles;
    if (p.tiles != nullptr) {
        const d_id_tile id = p.tiles[item];
        t.matrix = id.expert;
        t.c0 = id.first;
        t.n = id.n;
    } else {
        t.c0 = item % p.n_tiles * tn;
        t.matrix = item / p.n_tiles;
        t.n = (int) (p.n - t.c0 < tn ? p.n - t.c0 : tn);
    }
    return t;
}

// Divisions of 64 bits take as long as a read of memory: the usual case has none.
static inline __device__ const char * d_tile_matrix(const d_job & p, const d_tile & t) {
    return p.a.ne[3] == 1 ? d_at(p.a, 0, 0, t.matrix, 0) : d_at(p.a, 0, 0, t.matrix % p.a.ne[2], t.matrix / p.a.ne[2]);
}

// Where column j of a tile starts in b and in y.
static inline __device__ void d_tile_column(const d_job & p, const d_tile & t, int j, const char ** b, char ** y) {
    if (p.tiles != nullptr) {
        const uint32_t slot = (uint32_t) p.order[t.c0 + j], used = (uint32_t) p.y.ne[1], u = slot % used, token = slot / used;
        *b = d_at(p.b, 0, u % (uint32_t) p.b.ne[1], token, 0);
        *y = d_at(p.y, 0, u, token, 0);
        return;
    }
    if (p.b.ne[2] == 1 && p.b.ne[3] == 1) {
        *b = (const char *) p.b.data + (t.c0 + j) * p.b_c;
        *y = d_at(p.y, 0, t.c0 + j, 0, 0);
        return;
    }
    const int64_t n1 = p.y.ne[1], r2 = p.b.ne[2] / p.a.ne[2], r3 = p.b.ne[3] / p.a.ne[3], c = t.c0 + j;
    const int64_t i1 = c % n1, i2 = t.matrix % p.a.ne[2] * r2 + c / n1 % r2, i3 = t.matrix / p.a.ne[2] * r3 + c / n1 / r2;
    *b = d_at(p.b, 0, 0, i2, i3) + i1 * p.b_c;
    *y = d_at(p.y, 0, i1, i2, i3);
}

static inline __device__ float d_repeated(const gcuda_array & t, const d_index & i) {
    return *(const float *) d_at(t, t.ne[0] == 1 ? 0 : i.i0, t.ne[1] == 1 ? 0 : i.i1, t.ne[2] == 1 ? 0 : i.i2, t.ne[3] == 1 ? 0 : i.i3);
}

// d_finish_sums of one sum. expert: of mul_mat_id, else -1.
template <bool MAY_HAVE_UP>
static inline __device__ float d_finish_sum(const d_job & p, float v, float up, const d_index & i, int64_t expert) {
    const gcuda_mul_mat_epilogue & e = p.epilogue;
    const d_index of_bias = { i.i0, expert >= 0 ? expert : i.i1, expert >= 0 ? 0 : i.i2, i.i3 };
    float sum[1] = { v };
    d_finish_sums<MAY_HAVE_UP, 1>(e, sum, { up }, [&](int) { return d_repeated(e.bias, of_bias); },
        [&](int) { return d_repeated(e.up_bias, of_bias); }, [&](int) { return d_repeated(e.factor, i); });
    return sum[0];
}
static inline __device__ float d_finish(const d_job & p, float v, float up, const d_index & i, int64_t expert) {
    const gcuda_array & residual = p.epilogue.residual;
    v = d_finish_sum<true>(p, v, up, i, expert);
    return residual.data != nullptr ? d_add_rn(v, d_repeated(residual, i)) : v;
}

// Row m of the column that d_tile_column names.
static inline __device__ d_index d_tile_index(const d_job & p, const d_tile & t, int j, int64_t m) {
    const int64_t n1 = p.y.ne[1], r2 = p.b.ne[2] / p.a.ne[2], r3 = p.b.ne[3] / p.a.ne[3], c = t.c0 + j;
    return { m, c % n1, t.matrix % p.a.ne[2] * r2 + c / n1 % r2, t.matrix / p.a.ne[2] * r3 + c / n1 / r2 };
}

static inline void job_tiles(d_job & p, int64_t tm, int64_t tn, int64_t n_lists) {
    p.m_tiles = (p.m + tm - 1) / tm;
    p.n_tiles = (p.n + tn - 1) / tn;
    p.n_items = p.m_tiles * (p.tiles != nullptr ? n_lists : p.n_tiles * p.a.ne[2] * p.a.ne[3]);
}

static d_job job_of(const gcuda_mul_mat_args & args) {
    d_job p = {};
    p.a = args.a;
    p.b = args.b;
    p.y = args.y;
    p.m = args.a.ne[1];
    p.k = args.a.ne[0];
    const int64_t matrices = args.a.ne[2] * args.a.ne[3];
    p.n = matrices > 0 ? args.b.ne[1] * (args.b.ne[2] * args.b.ne[3] / matrices) : 0;
    p.a_m = (int64_t) args.a.nb[1];
    p.a_k = (int64_t) args.a.nb[0];
    p.b_c = (int64_t) args.b.nb[1];
    p.b_k = (int64_t) args.b.nb[0];
    return p;
}

// Blocks of each of n matrices, n_rounds of work in each of which all can share, when n_places blocks run side by side: what
// ends first, and of those the fewest.
static inline int64_t mul_mat_blocks(int64_t n_rounds, int64_t n, int64_t n_places) {
    int64_t best = 0, least = 0;
    for (int64_t turns = 1; turns <= 4 || best == 0; ++turns) {
        const int64_t blocks = n_places * turns / n < n_rounds ? n_places * turns / n : n_rounds;
        const int64_t time = blocks > 0 ? turns * ((n_rounds + blocks - 1) / blocks + 1) : 0; // starting takes about a round
        if (blocks > 0 && (best == 0 || time < least)) { best = blocks, least = time; }
    }
    return best;
}

#endif // parts 4, 5, 6, 14

#if GCUDAI_PART(4)
// ---- the plain kernel ----
// Tiles of 64 x 32, 32 deep, in F32 through shared memory; a thread holds 4 x 2 results. Products and sums in F32.
//   floor   a once for every 32 columns, b once for every 64 rows      shared  13 KiB
#define PLAIN_TM 64
#define PLAIN_TN 32

// A matrix of floats in place of a format.
struct d_plain_floats {};

template <typename A> struct d_plain_loader {
    // Rows m0 .. m0 + 63, k0 .. k0 + 31 of blocks; a thread decodes a group.
    static __device__ void load(const d_job & p, const char * a, int64_t m0, int64_t k0, float (*tile)[PLAIN_TM + 1]) {
        const int i = (int) threadIdx.x;
        if (i >= PLAIN_TM) {
            return;
        }
        // along k: thread i has row m0 + i; along m: k0 + i % 32 and group i / 32 of the rows
        const int64_t row = p.along_m ? k0 + i % 32 : m0 + i, u = p.along_m ? m0 / 32 + i / 32 : k0 / 32;
        d_group g = {};
        if (p.along_m ? row < p.k && u < p.m / 32 : row < p.m) {
            const char * from = a + row * (p.along_m ? p.a_k : p.a_m);
            A::decode((const typename A::block *) from + u / (A::n / 32), (int) (u % (A::n / 32)), g);
        } else {
            for (int k = 0; k < 8; ++k) { g.q[k] = 0x01010101u * (uint32_t) A::zero; }
        }
        UNROLL for (int j = 0; j < 32; ++j) {
            const float v = d_value<A>(d_code<A>(g, j), g.scale[j / 16], g.min[j / 16]);
            tile[p.along_m ? i % 32 : j][p.along_m ? i / 32 * 32 + j : i] = v;
        }
    }
};

template <> struct d_plain_loader<d_plain_floats> {
    static __device__ void load(const d_job & p, const char * a, int64_t m0, int64_t k0, float (*tile)[PLAIN_TM + 1]) {
        for (int i = (int) threadIdx.x; i < PLAIN_TM * 32; i += 256) {
            const int m = p.along_m ? i % PLAIN_TM : i / 32, k = p.along_m ? i / PLAIN_TM : i % 32;
            const bool is_in = m0 + m < p.m && k0 + k < p.k;
            tile[k][m] = is_in ? d_load(p.a.type, a + (m0 + m) * p.a_m + (k0 + k) * p.a_k) : 0.0f;
        }
    }
};

// Columns of floats, or of the blocks that mul_mat accepts for activations.
template <typename B> static inline __device__ void d_plain_group(const char * column, int64_t u, float (*tile)[PLAIN_TN + 1], int c) {
    d_group g;
    B::decode((const typename B::block *) column + u / (B::n / 32), (int) (u % (B::n / 32)), g);
    UNROLL for (int j = 0; j < 32; ++j) { tile[j][c] = d_value<B>(d_code<B>(g, j), g.scale[j / 16], g.min[j / 16]); }
}

static inline __device__ void d_plain_columns(
    const d_job & p, const char * const * columns, int n, int64_t k0, float (*tile)[PLAIN_TN + 1]) {
    if (p.b.type == GCUDA_TYPE_Q8_0 || p.b.type == GCUDA_TYPE_Q8_1 || p.b.type == GCUDA_TYPE_Q8_K) {
        const int c = (int) threadIdx.x;
        if (c >= n) {
            return;
        }
        if (p.b.type == GCUDA_TYPE_Q8_0) { d_plain_group<d_format<GCUDA_TYPE_Q8_0>>(columns[c], k0 / 32, tile, c); }
        if (p.b.type == GCUDA_TYPE_Q8_1) { d_plain_group<d_format<GCUDA_TYPE_Q8_1>>(columns[c], k0 / 32, tile, c); }
        if (p.b.type == GCUDA_TYPE_Q8_K) { d_plain_group<d_format<GCUDA_TYPE_Q8_K>>(columns[c], k0 / 32, tile, c); }
        return;
    }
    for (int i = (int) threadIdx.x; i < PLAIN_TN * 32; i += 256) {
        const int c = i / 32, k = i % 32;
        tile[k][c] = c < n && k0 + k < p.k ? d_load(p.b.type, columns[c] + (k0 + k) * p.b_k) : 0.0f;
    }
}

template <typename A> static __global__ void __launch_bounds__(256) k_mul_mat_plain(const d_job p) {
    __shared__ float ta[32][PLAIN_TM + 1], tb[32][PLAIN_TN + 1];
    __shared__ const char * columns[PLAIN_TN];
    __shared__ char * results[PLAIN_TN];
    const int tm = (int) threadIdx.x % 16 * 4, tn = (int) threadIdx.x / 16 * 2;
    for (int64_t item = blockIdx.x, n = d_items(p); item < n; item += gridDim.x) {
        const d_tile t = d_tile_of(p, item, PLAIN_TM, PLAIN_TN);
        if ((int) threadIdx.x < t.n) {
            d_tile_column(p, t, (int) threadIdx.x, &columns[threadIdx.x], &results[threadIdx.x]);
        }
        __syncthreads();
        float sum[4][2] = {};
        for (int64_t k0 = 0; k0 < p.k && t.matrix >= 0; k0 += 32) {
            d_plain_loader<A>::load(p, d_tile_matrix(p, t), t.m0, k0, ta);
            d_plain_columns(p, columns, t.n, k0, tb);
            __syncthreads();
            for (int k = 0; k < 32; ++k) {
                UNROLL for (int i = 0; i < 4; ++i) {
                    UNROLL for (int j = 0; j < 2; ++j) { sum[i][j] += ta[k][tm + i] * tb[k][tn + j]; }
                }
            }
            __syncthreads();
        }
        for (int j = 0; j < 2; ++j) {
            for (int i = 0; i < 4 && tn + j < t.n; ++i) {
                if (t.m0 + tm + i < p.m) {
                    d_store(p.y.type, results[tn + j] + (t.m0 + tm + i) * (int64_t) p.y.nb[0], sum[i][j]);
                }
            }
        }
        __syncthreads(); // columns and results are read no more
    }
}

static gcuda_status mul_mat_plain(d_job & p, int64_t n_lists, gcuda_stream stream) {
    job_tiles(p, PLAIN_TM, PLAIN_TN, n_lists);
    if (!gcuda_is_quantized(p.a.type)) {
        return launch(k_mul_mat_plain<d_plain_floats>, p.n_items, 256, stream, p);
    }
    return with_format(
        p.a.type, [&](auto a) { return launch(k_mul_mat_plain<decltype(a)>, p.n_items, 256, stream, p); });
}

// >>op:mul_mat ----------------------------------------------------------------------------------------
gcuda_status gcuda_launch_mul_mat(const gcuda_mul_mat_args * args, gcuda_stream stream) {
    d_job p = job_of(*args);
    return n_elements(args->y) > 0 ? mul_mat_plain(p, 0, stream) : GCUDA_STATUS_SUCCESS;
}

// ---- activations as halves ----
// A block has a row.
//   floor   x read once (the second time from L1 or L2), y written once
static __global__ void __launch_bounds__(256) k_half_rows(const gcuda_half_rows_args p) {
    d_take_turn();
    FOR_ROWS(r, d_rows(p.x)) {
        const char * x = d_row(p.x, r);
        __half * y = (__half *) d_row(p.y, r);
        float max = 0.0f;
        FOR_ROW_ELEMENTS(i, p.x.ne[0]) { max = fmaxf(max, fabsf(d_load(p.x.type, x + i * (int64_t) p.x.nb[0]))); }
        const int exponent = d_half_exponent(d_block_max(max));
        FOR_ROW_ELEMENTS(i, p.x.ne[0]) {
            const float v = d_load(p.x.type, x + i * (int64_t) p.x.nb[0]);
            y[i] = __float2half_rn(exponent != 0 ? ldexpf(v, -exponent) : v);
        }
        if (threadIdx.x == 0) {
            p.scale[r] = ldexpf(1.0f, exponent);
        }
    }
}

// Rows of F32 of at most 2048 N elements, which begin at multiples of 16 bytes and are whole fours: held in registers between
// the largest and the conversion.
template <int N>
static __global__ void __launch_bounds__(256, N < 8 ? 4 : 2) k_half_rows_held(const gcuda_half_rows_args p) {
    d_take_turn();
    FOR_ROWS(r, d_rows(p.x)) {
        const float4 * x = (const float4 *) d_row(p.x, r);
        uint2 * y = (uint2 *) d_row(p.y, r);
        const int n = (int) (p.x.ne[0] / 4);
        float4 v[2 * N];
        float max = 0.0f;
        UNROLL for (int i = 0; i < 2 * N; ++i) {
            const int at = (int) threadIdx.x + 256 * i;
            v[i] = at < n ? x[at] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
        UNROLL for (int i = 0; i < 2 * N; ++i) {
            max = fmaxf(max, fmaxf(fmaxf(fabsf(v[i].x), fabsf(v[i].y)), fmaxf(fabsf(v[i].z), fabsf(v[i].w))));
        }
        const int exponent = d_half_exponent(d_block_max(max));
        UNROLL for (int i = 0; i < 2 * N; ++i) {
            const int at = (int) threadIdx.x + 256 * i;
            float4 w = v[i];
            if (exponent != 0) { // not a factor: that of 2^-149 would be none
                w = make_float4(ldexpf(w.x, -exponent), ldexpf(w.y, -exponent), ldexpf(w.z, -exponent), ldexpf(w.w, -exponent));
            }
            if (at < n) { y[at] = make_uint2(d_two_halfs(w.x, w.y), d_two_halfs(w.z, w.w)); }
        }
        if (threadIdx.x == 0) {
            p.scale[r] = ldexpf(1.0f, exponent);
        }
    }
}

gcuda_status gcuda_launch_half_rows(const gcuda_half_rows_args * args, gcuda_stream stream) {
    const int64_t n = args->x.ne[0];
    const bool fits = args->x.type == GCUDA_TYPE_F32 && n % 4 == 0 && is_wide(args->x) && is_wide(args->y);
    const auto kernel = fits && n <= 4096    ? k_half_rows_held<2>
                        : fits && n <= 8192  ? k_half_rows_held<4>
                        : fits && n <= 16384 ? k_half_rows_held<8>
                                             : k_half_rows;
    return launch_in_turn(kernel, n_rows(args->x), dim3(256), stream, *args);
}

// A row is touched only where its factor is not 1. A warp has one: mostly there is nothing to do but to look.
static __global__ void __launch_bounds__(256) k_half_rows_back(const gcuda_half_rows_args p) {
    d_take_turn();
    FOR_HELD_ROWS(r, d_rows(p.y), 32) {
        const float scale = p.scale[r];
        float * y = (float *) d_row(p.y, r);
        for (int64_t i = threadIdx.x % 32; i < p.y.ne[0] && scale != 1.0f; i += 32) { y[i] *= scale; }
    }
}

gcuda_status gcuda_launch_half_rows_back(const gcuda_half_rows_args * args, gcuda_stream stream) {
    return launch_in_turn(k_half_rows_back, (n_rows(args->y) + 7) / 8, dim3(256), stream, *args);
}

// ---- where the matrices of a product are ----
static __global__ void __launch_bounds__(256) k_matrix_pointers(const gcuda_matrix_pointers_args p, int64_t n) {
    const int64_t share_2 = p.b.ne[2] / p.a.ne[2], share_3 = p.b.ne[3] / p.a.ne[3];
    FOR_ELEMENTS(i, n) {
        const int64_t i2 = i % p.y.ne[2], i3 = i / p.y.ne[2];
        p.to_a[i] = d_at(p.a, 0, 0, i2 / share_2, i3 / share_3);
        p.to_b[i] = d_at(p.b, 0, 0, i2, i3);
        p.to_y[i] = d_at(p.y, 0, 0, i2, i3);
    }
}

gcuda_status gcuda_launch_matrix_pointers(const gcuda_matrix_pointers_args * args, gcuda_stream stream) {
    const int64_t n = args->y.ne[2] * args->y.ne[3];
    return launch(k_matrix_pointers, (n + 255) / 256, 256, stream, *args, n);
}

// >>op:out_prod ---------------------------------------------------------------------------------------
gcuda_status gcuda_launch_out_prod(const gcuda_out_prod_args * args, gcuda_stream stream) {
    d_job p = {};
    if (n_elements(args->y) == 0) {
        return GCUDA_STATUS_SUCCESS;
    }
    p.a = args->a;
    p.b = args->b;
    p.y = args->y;
    p.along_m = true;
    p.m = args->a.ne[0];
    p.k = args->a.ne[1];
    p.n = args->b.ne[0] * (args->b.ne[2] * args->b.ne[3] / (args->a.ne[2] * args->a.ne[3]));
    p.a_m = (int64_t) args->a.nb[0];
    p.a_k = (int64_t) args->a.nb[1];
    p.b_c = (int64_t) args->b.nb[0];
    p.b_k = (int64_t) args->b.nb[1];
    return mul_mat_plain(p, 0, stream);
}
// =====================================================================================================
// >>k-mul-mat-tile   matrix products on tensor cores, for few columns and for experts
// =====================================================================================================
// A block of 8 warps has 128 rows and up to 128 columns, a warp 16 of the rows and all of the columns. It walks along k;
// what a step needs comes through a ring of slots in shared memory, filled by asynchronous copies: the weights as they
// lie, and the columns, which another kernel has rounded before. A lane decodes just those weights that the tensor
// cores want of it, into registers: once for all columns. F16 weights stay what they are and meet columns in F16, with a
// factor per column (see k_half_rows); F32 meets F32 as TF32; other weights become BF16, whose range is that of F32, and so
// do their columns. Products are exact in F32, in which the sums are.
// All steps of all tiles are one list, which is cut into equal stretches, one for each block: so few rows fill the device,
// and many leave none idle at the end. Where several blocks have a part of a tile, each leaves its sums in scratch, and the
// one that comes last adds them up in order of k. No block waits for another, and the result does not depend on which is last.
//   floor   a once for every 128 columns; the columns (2 bytes an element) come from L2, once for every 128 rows
#define TILE_ROWS 128
#define TILE_WARPS 8
#define TILE_COLUMNS 128 // at most
#define TILE_SLOTS 4     // of the ring, at most
// A tile's sums are in registers where its loops are unrolled. Without tensor cores, where dispatch does not come, that would be
// megabytes of code.
#if D_TENSOR_CORES
#define TILE_UNROLL UNROLL
#else
#define TILE_UNROLL NO_UNROLL
#endif

// ---- weights: what a lane holds of 32 ----
// Of a group of 32 elements of a row the four lanes of a quad hold eight each, the products' k being in any order: where
// `split` lane t has elements 4 t .. 4 t + 3 and 16 + 4 t .. (nibbles of the same bytes), else 8 t .. 8 t + 7. `row` is
// where the step begins; its group is 4 part + i.
struct d_oct {
    uint32_t q[2];
    float scale, min; // as in d_group
};

static inline __device__ void d_set_oct(d_oct & o, uint32_t q0, uint32_t q1, float scale, float min) {
    o.q[0] = q0;
    o.q[1] = q1;
    o.scale = scale;
    o.min = min;
}

template <typename A> struct d_tile_format;

// What the tensor cores get: a lane's words are in the same places for all three.
enum d_tile_number { TILE_BF16, TILE_F16, TILE_TF32 };

template <gcuda_type TYPE, bool SPLIT, bool SIGNED> struct d_tile_blocks {
    typedef typename d_format<TYPE>::block block;
    static constexpr bool split = SPLIT, is_signed = SIGNED; // codes -128 .. 127, else 0 .. 127 and a zero among them
    static constexpr int zero = d_format<TYPE>::zero;
    static inline __device__ uint32_t entry(int) { return 0; }
    static constexpr d_tile_number number = TILE_BF16;
    static constexpr int groups = 8, step_bytes = 256 / d_format<TYPE>::n * (int) sizeof(block), odd = 16, n_entries = 0;
};
#define TILE_FORMAT(ID, SPLIT, SIGNED) \
    template <> struct d_tile_format<d_format<GCUDA_TYPE_##ID>> : d_tile_blocks<GCUDA_TYPE_##ID, SPLIT, SIGNED>
#define TILE_OCT static inline __device__ void oct(const char * row, int part, int i, int t, const uint32_t *, d_oct & o)
#define TILE_OCT_BY(TABLE) static inline __device__ void oct(const char * row, int part, int i, int t, const uint32_t * TABLE, d_oct & o)
#define TILE_CODEBOOK(N, ENTRY)              \
    static constexpr int n_entries = N;      \
    static inline __device__ uint32_t entry(int i) { return ENTRY; }

TILE_FORMAT(Q4_0, true, false) {
    TILE_OCT {
        const block * b = (const block *) row + 4 * part + i;
        const uint32_t w = d_word2(b->qs + 4 * t);
        d_set_oct(o, w & 0x0f0f0f0fu, w >> 4 & 0x0f0f0f0fu, d_half(b->d), 0.0f);
    }
};
TILE_FORMAT(Q4_1, true, false) {
    TILE_OCT {
        const block * b = (const block *) row + 4 * part + i;
        const uint32_t w = d_word4(b->qs + 4 * t);
        d_set_oct(o, w & 0x0f0f0f0fu, w >> 4 & 0x0f0f0f0fu, d_half(b->d), -d_half(b->m));
    }
};
static inline __device__ void d_oct_fifth_bits(uint32_t h, int t, d_oct & o) {
    o.q[0] |= d_spread_bits(h >> 4 * t) << 4;
    o.q[1] |= d_spread_bits(h >> 16 >> 4 * t) << 4;
}
TILE_FORMAT(Q5_0, true, false) {
    TILE_OCT {
        const block * b = (const block *) row + 4 * part + i;
        const uint32_t w = d_word2(b->qs + 4 * t);
        d_set_oct(o, w & 0x0f0f0f0fu, w >> 4 & 0x0f0f0f0fu, d_half(b->d), 0.0f);
        d_oct_fifth_bits(d_word2(b->qh), t, o);
    }
};
TILE_FORMAT(Q5_1, true, false) {
    TILE_OCT {
        const block * b = (const block *) row + 4 * part + i;
        const uint32_t w = d_word4(b->qs + 4 * t);
        d_set_oct(o, w & 0x0f0f0f0fu, w >> 4 & 0x0f0f0f0fu, d_half(b->d), -d_half(b->m));
        d_oct_fifth_bits(d_word4(b->qh), t, o);
    }
};
TILE_FORMAT(Q8_0, false, true) {
    TILE_OCT {
        const block * b = (const block *) row + 4 * part + i;
        d_set_oct(o, d_word2(b->qs + 8 * t), d_word2(b->qs + 8 * t + 4), d_half(b->d), 0.0f);
    }
};
TILE_FORMAT(IQ4_NL, true, true) {
    TILE_OCT {
        const block * b = (const block *) row + 4 * part + i;
        d_lookup(gcudai_kvalues_iq4nl, d_word2(b->qs + 4 * t), &o.q[0], &o.q[1]);
        o.scale = d_half(b->d);
    }
};
TILE_FORMAT(MXFP4, true, false) {
    static constexpr int zero = 64; // in gcudai_kvalues_mxfp4
    TILE_OCT {
        const block * b = (const block *) row + 4 * part + i;
        d_lookup_words(0x43424140u, 0x4c484644u, 0x3d3e3f40u, 0x34383a3cu, d_word1(b->qs + 4 * t), &o.q[0], &o.q[1]);
        o.scale = gcudai_mxfp4_scale(b->e);
    }
};
TILE_FORMAT(IQ4_XS, true, true) {
    TILE_OCT {
        const block * b = (const block *) row;
        const int g = 4 * part + i, scale = (b->scales_l[g / 2] >> 4 * (i % 2) & 15) | (b->scales_h >> 2 * g & 3) << 4;
        d_lookup(gcudai_kvalues_iq4nl, d_word4(b->qs + 16 * g + 4 * t), &o.q[0], &o.q[1]);
        o.scale = d_half(b->d) * (float) (scale - 32);
    }
};

TILE_FORMAT(Q2_K, false, false) {
    TILE_OCT {
        const block * b = (const block *) row;
        const uint8_t * qs = b->qs + 32 * part + 8 * t;
        const uint32_t s = b->scales[8 * part + 2 * i + t / 2];
        d_set_oct(o, d_word4(qs) >> 2 * i & 0x03030303u, d_word4(qs + 4) >> 2 * i & 0x03030303u,
            d_half(b->d) * (float) (s & 15u), d_half(b->dmin) * (float) (s >> 4));
    }
};
TILE_FORMAT(Q3_K, false, false) {
    TILE_OCT {
        const block * b = (const block *) row;
        const uint8_t * qs = b->qs + 32 * part + 8 * t, * high = b->hmask + 8 * t;
        UNROLL for (int k = 0; k < 2; ++k) {
            o.q[k] = (d_word2(qs + 4 * k) >> 2 * i & 0x03030303u) | (d_word2(high + 4 * k) >> (4 * part + i) & 0x01010101u) << 2;
        }
        o.scale = d_half(b->d) * d_format<GCUDA_TYPE_Q3_K>::scale(b, 8 * part + 2 * i + t / 2);
    }
};
// The 6-bit scales and mins of Q4_K and Q5_K, those of four groups at once.
static inline __device__ void d_oct_k_scale(const char * row, int part, int i, d_oct & o) {
    const uint4 head = *(const uint4 *) row;
    const uint32_t a = head.y, b = head.z, c = head.w;
    const uint32_t scales = part == 0 ? a & 0x3f3f3f3fu : (c & 0x0f0f0f0fu) | (a >> 2 & 0x30303030u);
    const uint32_t mins = part == 0 ? b & 0x3f3f3f3fu : (c >> 4 & 0x0f0f0f0fu) | (b >> 2 & 0x30303030u);
    o.scale = d_half((gcuda_fp16_t) (head.x & 0xffffu)) * (float) (scales >> 8 * i & 255u);
    o.min = d_half((gcuda_fp16_t) (head.x >> 16)) * (float) (mins >> 8 * i & 255u);
}
TILE_FORMAT(Q4_K, false, false) {
    static constexpr int odd = 32;
    TILE_OCT {
        const uint2 w = *(const uint2 *) (row + 16 + 64 * part + 32 * (i / 2) + 8 * t);
        o.q[0] = w.x >> 4 * (i % 2) & 0x0f0f0f0fu;
        o.q[1] = w.y >> 4 * (i % 2) & 0x0f0f0f0fu;
        d_oct_k_scale(row, part, i, o);
    }
};
TILE_FORMAT(Q5_K, false, false) {
    static constexpr int odd = 32;
    TILE_OCT {
        const uint2 w = *(const uint2 *) (row + 48 + 64 * part + 32 * (i / 2) + 8 * t), h = *(const uint2 *) (row + 16 + 8 * t);
        o.q[0] = (w.x >> 4 * (i % 2) & 0x0f0f0f0fu) | (h.x >> (4 * part + i) & 0x01010101u) << 4;
        o.q[1] = (w.y >> 4 * (i % 2) & 0x0f0f0f0fu) | (h.y >> (4 * part + i) & 0x01010101u) << 4;
        d_oct_k_scale(row, part, i, o);
    }
};
TILE_FORMAT(Q6_K, false, false) {
    TILE_OCT {
        const block * b = (const block *) row;
        const uint8_t * low = b->ql + 64 * part + 32 * (i % 2) + 8 * t, * high = b->qh + 32 * part + 8 * t;
        UNROLL for (int k = 0; k < 2; ++k) {
            o.q[k] = (d_word2(low + 4 * k) >> 4 * (i / 2) & 0x0f0f0f0fu) | (d_word2(high + 4 * k) >> 2 * i & 0x03030303u) << 4;
        }
        o.scale = d_half(b->d) * (float) b->scales[8 * part + 2 * i + t / 2];
    }
};

// Codebooks about 64, so that no code is negative: digits 0 1 2 as 8 25 43, with 4 added as many below.
static inline __device__ void d_oct_iq2(uint32_t digits, uint32_t signs, d_oct & o) {
    digits += 4u * signs;
    o.q[0] = d_permute(0x006b5948u, 0x00152738u, digits);
    o.q[1] = d_permute(0x006b5948u, 0x00152738u, digits >> 16);
}
// Bytes up to 63 above 64, or below it where the bit of `signs` is set.
static inline __device__ uint32_t d_bytes_about_64(uint32_t bytes, uint32_t signs) {
    const uint32_t below = d_spread_bits(signs) * 127u;
    return (bytes ^ below) + (0x40404040u - below);
}
TILE_FORMAT(IQ2_XXS, false, false) {
    static constexpr int zero = 64;
    TILE_CODEBOOK(256, d_digits_to_nibbles(gcudai_grid_iq2xxs[i]))
    TILE_OCT_BY(table) {
        const block * b = (const block *) row;
        const int g = 4 * part + i;
        const uint32_t codes = d_word2(b->qs + 4 * g), aux = d_word2(b->qs + 4 * g + 2);
        d_oct_iq2(table[codes >> 8 * t & 255u], d_even_bits_to_nibbles(aux >> 7 * t & 127u), o);
        o.scale = d_half(b->d) * (0.5f + (float) (aux >> 28)) * 0.25f;
    }
};
static inline __device__ float d_oct_iq2_scale(gcuda_fp16_t d, uint32_t nibbles, int t) {
    return d_half(d) * (0.5f + (float) (nibbles >> 4 * (t / 2) & 15u)) * 0.25f;
}
TILE_FORMAT(IQ2_XS, false, false) {
    static constexpr int zero = 64;
    TILE_CODEBOOK(512, d_digits_to_nibbles(gcudai_grid_iq2xs[i]))
    TILE_OCT_BY(table) {
        const block * b = (const block *) row;
        const int g = 4 * part + i;
        const uint32_t q = b->qs[4 * g + t];
        d_oct_iq2(table[q & 511u], d_even_bits_to_nibbles(q >> 9), o);
        o.scale = d_oct_iq2_scale(b->d, b->scales[g], t);
    }
};
TILE_FORMAT(IQ2_S, false, false) {
    static constexpr int zero = 64;
    TILE_CODEBOOK(1024, d_digits_to_nibbles(gcudai_grid_iq2s[i]))
    TILE_OCT_BY(table) {
        const block * b = (const block *) row;
        const int g = 4 * part + i;
        const uint32_t code = (uint32_t) b->qs[4 * g + t] | ((uint32_t) b->qh[g] >> 2 * t & 3u) << 8;
        d_oct_iq2(table[code], d_bits_to_nibbles(b->signs[4 * g + t]), o);
        o.scale = d_oct_iq2_scale(b->d, b->scales[g], t);
    }
};
TILE_FORMAT(IQ3_XXS, false, false) {
    static constexpr int zero = 64;
    TILE_CODEBOOK(256, gcudai_iq3_xxs_entry((uint32_t) i))
    TILE_OCT_BY(table) {
        const block * b = (const block *) row;
        const int g = 4 * part + i;
        const uint32_t aux = d_word2(b->scales_and_signs + 2 * g), signs = gcudai_even_signs(aux >> 7 * t & 127u);
        o.q[0] = d_bytes_about_64(table[b->qs[8 * g + 2 * t]], signs);
        o.q[1] = d_bytes_about_64(table[b->qs[8 * g + 2 * t + 1]], signs >> 4);
        o.scale = d_half(b->d) * (0.5f + (float) (aux >> 28)) * 0.5f;
    }
};
TILE_FORMAT(IQ3_S, false, false) {
    static constexpr int zero = 64;
    TILE_CODEBOOK(512, gcudai_iq3_s_entry((uint32_t) i))
    TILE_OCT_BY(table) {
        const block * b = (const block *) row;
        const int g = 4 * part + i;
        const uint32_t high = (uint32_t) b->qh[g] >> 2 * t, signs = b->signs[4 * g + t];
        o.q[0] = d_bytes_about_64(table[(uint32_t) b->qs[8 * g + 2 * t] | (high & 1u) << 8], signs);
        o.q[1] = d_bytes_about_64(table[(uint32_t) b->qs[8 * g + 2 * t + 1] | (high & 2u) << 7], signs >> 4);
        o.scale = d_half(b->d) * (float) (1 + 2 * (b->scales[g / 2] >> 4 * (i % 2) & 15));
    }
};
TILE_FORMAT(IQ1_S, false, false) {
    TILE_CODEBOOK(2048, d_digits_to_nibbles(gcudai_grid_iq1s[i]))
    TILE_OCT_BY(table) {
        const block * b = (const block *) row;
        const int g = 4 * part + i;
        const uint32_t h = b->qh[g];
        d_eight_iq1(table[(uint32_t) b->qs[4 * g + t] | (h >> 3 * t & 7u) << 8], (h & 0x8000u) != 0, o.q);
        o.scale = d_half(b->d) * (float) (2u * (h >> 12 & 7u) + 1u) * 0.125f;
    }
};
TILE_FORMAT(IQ1_M, false, false) {
    TILE_CODEBOOK(2048, d_digits_to_nibbles(gcudai_grid_iq1s[i]))
    TILE_OCT_BY(table) {
        const block * b = (const block *) row;
        const int g = 4 * part + i;
        const uint32_t s01 = d_word4(b->scales), s23 = d_word4(b->scales + 2);
        const uint32_t d = (s01 >> 12 & 15u) | (s01 >> 28) << 4 | (s23 >> 12 & 15u) << 8 | (s23 >> 28) << 12;
        const uint32_t scales = (part == 0 ? s01 : s23) >> 16 * (i / 2) >> 6 * (i % 2) >> 3 * (t / 2);
        const uint32_t high = (uint32_t) b->qh[2 * g + t / 2] >> 4 * (t % 2) & 15u;
        d_eight_iq1(table[(uint32_t) b->qs[4 * g + t] | (high & 7u) << 8], (high & 8u) != 0, o.q);
        o.scale = d_half((gcuda_fp16_t) d) * 0.125f * (float) (2u * (scales & 7u) + 1u);
    }
};
#undef TILE_OCT
#undef TILE_OCT_BY
#undef TILE_CODEBOOK
#undef TILE_FORMAT

template <d_tile_number NUMBER> struct d_tile_floats {
    static constexpr bool split = false;
    static constexpr d_tile_number number = NUMBER;
    static constexpr int groups = 4, step_bytes = 256, odd = 64, n_entries = 0; // F32: a group has 16 elements, a lane four of them
    static inline __device__ uint32_t entry(int) { return 0; }
};
template <> struct d_tile_format<float> : d_tile_floats<TILE_TF32> {};
template <> struct d_tile_format<__half> : d_tile_floats<TILE_F16> {};
template <> struct d_tile_format<__nv_bfloat16> : d_tile_floats<TILE_BF16> {};

// Two BF16, each: a * b + c, a * b, a - b, rounded once.
static inline __device__ uint32_t d_bf16_apply(char op, uint32_t a, uint32_t b, uint32_t c) {
    float v[2];
    for (int i = 0; i < 2; ++i) {
        const float x = __uint_as_float(i == 0 ? a << 16 : a & 0xffff0000u), y = __uint_as_float(i == 0 ? b << 16 : b & 0xffff0000u);
        v[i] = op == '-' ? x - y : op == '*' ? x * y : fmaf(x, y, __uint_as_float(i == 0 ? c << 16 : c & 0xffff0000u));
    }
    return d_bf16_pair(v[0], v[1]);
}
#if defined(__CUDACC__) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
static inline __device__ uint32_t d_bf16_fma(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t y;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(c));
    return y;
}
static inline __device__ uint32_t d_bf16_mul(uint32_t a, uint32_t b) {
    uint32_t y;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}
static inline __device__ uint32_t d_bf16_sub(uint32_t a, uint32_t b) {
    uint32_t y;
    asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}
#else
static inline __device__ uint32_t d_bf16_fma(uint32_t a, uint32_t b, uint32_t c) { return d_bf16_apply('+', a, b, c); }
static inline __device__ uint32_t d_bf16_mul(uint32_t a, uint32_t b) { return d_bf16_apply('*', a, b, 0); }
static inline __device__ uint32_t d_bf16_sub(uint32_t a, uint32_t b) { return d_bf16_apply('-', a, b, 0); }
#endif

// Two codes, bytes 2 h and 2 h + 1 of q, less zero, as BF16. A byte under the exponent of 128 is 128 + its low 7 bits; the
// eighth is that of 256, which is taken off where it is set.
template <bool SIGNED, int ZERO> static inline __device__ uint32_t d_bf16_codes(uint32_t q, int h) {
    const uint32_t v = __byte_perm(q, 0x43u, h == 0 ? 0x4140 : 0x4342);
    return SIGNED ? d_bf16_sub(v & 0x437f437fu, v & 0x43804380u) : d_bf16_sub(v, 0x43004300u + 0x10001u * (uint32_t) ZERO);
}

// The lane's eight weights as four pairs.
// To nearest where that is finite: the largest of F32 stay finite, and every NaN is one without the bits that are not read.
static inline __device__ uint32_t d_tile_tf32(float v) {
    const uint32_t w = __float_as_uint(v), r = (w + 0x1000u) & 0xffffe000u;
    const bool overflows = (r & 0x7f800000u) == 0x7f800000u;
    return v != v ? 0x7fc00000u : overflows ? w & 0xffffe000u : r;
}

template <typename A> struct d_tile_weights {
    typedef d_tile_format<A> F;
    static inline __device__ void load(const char * row, int part, int i, int t, const uint32_t * table, uint32_t * f) {
        d_oct o;
        F::oct(row, part, i, t, table, o);
        const uint32_t scale = d_bf16_pair(o.scale, o.scale), min = A::has_min ? d_bf16_pair(-o.min, -o.min) : 0;
        UNROLL for (int k = 0; k < 4; ++k) {
            const uint32_t v = d_bf16_codes<F::is_signed, F::zero>(o.q[k / 2], k % 2);
            f[k] = A::has_min ? d_bf16_fma(v, scale, min) : d_bf16_mul(v, scale);
        }
    }
};
template <> struct d_tile_weights<float> {
    static inline __device__ void load(const char * row, int, int i, int t, const uint32_t *, uint32_t * f) {
        const float4 v = ((const float4 *) row)[4 * i + t];
        f[0] = d_tile_tf32(v.x), f[1] = d_tile_tf32(v.y), f[2] = d_tile_tf32(v.z), f[3] = d_tile_tf32(v.w);
    }
};
struct d_tile_words {
    static inline __device__ void load(const char * row, int, int i, int t, const uint32_t *, uint32_t * f) {
        const uint4 v = ((const uint4 *) row)[4 * i + t];
        f[0] = v.x, f[1] = v.y, f[2] = v.z, f[3] = v.w;
    }
};
template <> struct d_tile_weights<__half> : d_tile_words {};
template <> struct d_tile_weights<__nv_bfloat16> : d_tile_words {};

template <d_tile_number NUMBER> static inline __device__ void d_tile_mma(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    if constexpr (NUMBER == TILE_F16) {
        d_mma_words<true>(c, a, b);
    } else if constexpr (NUMBER == TILE_TF32) {
        d_mma_tf32(c, a, b);
    } else {
        d_mma(c, a, b);
    }
}

// ---- the kernel ----
struct d_tile_part { // one of several products of the same columns, which blocks of its own compute as a launch of its own would
    int64_t a, y, y_c;        // bytes that its weights and its results lie behind the first's; by which its columns are further apart
    int m, m_tiles;           // rows
    int first_block, n_blocks; // where there is no part: no block is the first
};

struct d_tile_job {
    d_job job;              // the first product: m, m_tiles and n_items are read from its part
    const char * columns;   // rounded, in the order in which lanes hold weights, zeros beyond k; one after another
    const float * factors;  // F16 weights: that of each column
    int64_t column_bytes;
    int steps;              // along k
    int last_bytes;         // of a row of the weights in the last step
    int tn, n_slots;        // columns of a tile at most; of the ring
    int n_lists;            // tiles of columns, unless the device knows
    float * sums;           // of blocks that share a tile: twice [column][row] for each block
    int32_t * counts;       // of those who have left theirs, one for each block; zeros
    gcuda_array y;          // with an epilogue: where its results go. job.y is then in scratch
    // The last member: behind an array of structures without padding the simulation's compiler (g++ 12) loses its place when it
    // clears the padding of what follows, and clears members.
    d_tile_part parts[GCUDA_MUL_MAT_GROUP];
};

template <typename A> struct d_tile_slot { // bytes from row to row in a slot: rows may begin anywhere, and banks differ
    static constexpr int pieces = (d_tile_format<A>::step_bytes + 30) / 16, odd = d_tile_format<A>::odd;
    static constexpr int pitch = (16 * pieces + odd - 1) / odd % 2 == 1 ? (16 * pieces + odd - 1) / odd * odd
                                                                       : (16 * pieces + odd - 1) / odd * odd + odd;
    static constexpr int column_bytes = 64 * d_tile_format<A>::groups;
    static constexpr __host__ __device__ int bytes(int nt) { return TILE_ROWS * pitch + column_bytes * nt; }
};

// Blocks that a multiprocessor is meant to hold.
static constexpr int tile_per_multiprocessor(int nt) { return nt > 64 ? 1 : 2; }

// Units are the steps of all tiles, one after another; as many blocks as there can be share them, each with at least one.
struct d_tile_units {
    uint32_t n, blocks, per, more; // the first `more` blocks have one more than `per`
    __device__ d_tile_units(uint32_t n_units, uint32_t n_blocks)
        : n(n_units), blocks(n_blocks < n_units ? n_blocks : n_units), per(n_units > 0 ? n / blocks : 1), more(n - per * blocks) {}
    __device__ uint32_t first_of(uint32_t block) const { return block * per + (block < more ? block : more); }
    __device__ uint32_t owner_of(uint32_t unit) const {
        const uint32_t cut = more * (per + 1);
        return unit < cut ? unit / (per + 1) : more + (unit - cut) / per;
    }
};

// The part that this block belongs to. It is read where arguments lie: kept in registers, all of it would be too much.
static inline __device__ const d_tile_part & d_tile_part_of(const d_tile_job & p) {
    int i = 0;
    UNROLL for (int k = 1; k < GCUDA_MUL_MAT_GROUP; ++k) { i += (int) blockIdx.x >= p.parts[k].first_block; }
    return p.parts[i];
}

static inline __device__ d_tile d_tile_at(const d_tile_job & p, const d_tile_part & part, uint32_t item) {
    const uint32_t m_tiles = (uint32_t) part.m_tiles, list = item / m_tiles, n_tiles = (uint32_t) p.job.n_tiles;
    d_tile t;
    t.m0 = (int64_t) (item - list * m_tiles) * TILE_ROWS;
    if (p.job.tiles != nullptr) {
        const d_id_tile id = p.job.tiles[list];
        t.matrix = id.expert;
        t.c0 = id.first;
        t.n = id.n;
    } else {
        t.matrix = n_tiles == 1 ? list : list / n_tiles;
        t.c0 = (int64_t) (list - (uint32_t) t.matrix * n_tiles) * p.tn;
        t.n = (int) (p.job.n - t.c0 < p.tn ? p.job.n - t.c0 : p.tn);
    }
    return t;
}

// The rows of a tile that the copies and the decoding are at.
struct d_tile_rows {
    const char * a;
    int n; // rows, 128 but at the end
};
static inline __device__ d_tile_rows d_tile_rows_of(const d_job & p, const d_tile_part & part, const d_tile & t) {
    d_tile_rows r;
    const d_tile at = { t.m0, t.c0, t.matrix < 0 ? 0 : t.matrix, t.n }; // zeros: any will do
    r.a = d_tile_matrix(p, at) + part.a + t.m0 * p.a_m;
    r.n = (int) (part.m - t.m0 < TILE_ROWS ? part.m - t.m0 : TILE_ROWS);
    return r;
}

// Which of the packed columns is column j of a tile, which has it.
static inline __device__ int64_t d_tile_packed_column(const d_tile_job & p, const d_tile & t, int j) {
    if (p.job.tiles == nullptr) {
        return t.matrix * p.job.n + t.c0 + j;
    }
    const uint32_t slot = (uint32_t) p.job.order[t.c0 + j], used = (uint32_t) p.job.y.ne[1], n = (uint32_t) p.job.b.ne[1];
    return (int64_t) (slot / used) * n + slot % used % n;
}

static inline __device__ const char * d_tile_packed(const d_tile_job & p, const d_tile & t, int j) {
    return j < t.n ? p.columns + d_tile_packed_column(p, t, j) * p.column_bytes : nullptr;
}

// What is copied next. Four neighbouring threads copy a row of the weights and a group of a column: a thread has the same two
// rows and the same one or two columns all the time, so that an address is a register and a constant.
template <typename A, int NT> struct d_tile_feed {
    typedef d_tile_format<A> F;
    typedef d_tile_slot<A> S;
    static constexpr int n_columns = NT > 64 ? 2 : 1, column_groups = NT > 64 ? 1 : 64 / NT; // copied at a time
    const char * row;  // the first of the thread's two rows
    int64_t next_row;  // bytes to the second
    int n_rows;        // that there are of the two
    const char * columns[n_columns];
    int column_bytes[n_columns]; // 16, or 0: zeros
    int step; // p.steps: those of the tile are all fetched

    __device__ void start(const d_tile_job & p, const d_tile_part & part, uint32_t at, int first) {
        const d_tile t = d_tile_at(p, part, at);
        const d_tile_rows rows = d_tile_rows_of(p.job, part, t);
        const int quad = (int) threadIdx.x / 4;
        step = first;
        row = rows.a + quad * p.job.a_m + (int64_t) first * F::step_bytes;
        next_row = 64 * p.job.a_m;
        n_rows = quad + 64 < rows.n ? 2 : quad < rows.n ? 1 : 0;
        UNROLL for (int i = 0; i < n_columns; ++i) {
            const char * column = d_tile_packed(p, t, quad % NT + 64 * i);
            column_bytes[i] = column != nullptr ? 16 : 0;
            columns[i] = (column != nullptr ? column : p.columns) + ((int64_t) first * F::groups + quad / NT) * 64 + threadIdx.x % 4 * 16;
        }
    }

    // Beyond the end of a row: zeros. Rows that do not exist are not written: sums of other rows are not stored.
    __device__ void fetch(const d_tile_job & p, char * to) {
        const int quad = (int) threadIdx.x / 4, lane = (int) threadIdx.x % 4;
        const int bytes = step == p.steps - 1 ? p.last_bytes : F::step_bytes;
        UNROLL for (int h = 0; h < 2; ++h) {
            if (h < n_rows) {
                const char * from = row + h * next_row;
                const int off = (int) ((uintptr_t) from & 15);
                UNROLL for (int k = 0; k < (S::pieces + 3) / 4; ++k) {
                    const int piece = lane + 4 * k, left = off + bytes - 16 * piece;
                    if (piece < S::pieces) {
                        d_copy_16(to + (quad + 64 * h) * S::pitch + 16 * piece, from - off + 16 * piece,
                            left < 0 ? 0 : left < 16 ? left : 16);
                    }
                }
            }
        }
        char * b = to + TILE_ROWS * S::pitch + 16 * threadIdx.x;
        UNROLL for (int k = 0; k < (F::groups * NT + 63) / 64; ++k) {
            if (F::groups * NT % 64 == 0 || quad + 64 * k < F::groups * NT) {
                d_copy_16(b + 4096 * k, columns[k % n_columns] + k / n_columns * column_groups * 64, column_bytes[k % n_columns]);
            }
        }
        row += F::step_bytes;
        UNROLL for (int i = 0; i < n_columns; ++i) { columns[i] += 64 * F::groups; }
        ++step;
    }
};

// Adds the products of a slot to the warp's sums.
template <typename A, int NT>
static inline __device__ void d_tile_multiply(const d_tile_job & p, const char * slot, const uint32_t * table, const d_tile_rows & rows,
    int step, int n8, float (*sum)[4]) {
    typedef d_tile_format<A> F;
    typedef d_tile_slot<A> S;
    constexpr int PARTS = F::groups > 4 ? 2 : 1, PER = F::groups / PARTS, CHUNK = NT < 32 ? NT / 8 : 4;
    const int lane = (int) threadIdx.x % 32, g = lane / 4, t = lane % 4, r0 = (int) threadIdx.x / 32 * 16 + g;
    const char * b = slot + TILE_ROWS * S::pitch + g * 64 + t * 16, * a[2];
    UNROLL for (int h = 0; h < 2; ++h) {
        const int r = r0 + 8 * h < rows.n ? r0 + 8 * h : rows.n - 1;
        const uint32_t at = (uint32_t) (uintptr_t) rows.a + (uint32_t) r * (uint32_t) p.job.a_m + (uint32_t) step * F::step_bytes;
        a[h] = slot + (r0 + 8 * h) * S::pitch + (at & 15u);
    }
    float odd[CHUNK == 2 ? 2 : 1][4] = {}; // few columns: sums of their own for odd groups, since a product waits for the one before
    for (int part = 0; part < PARTS; ++part) {
        TILE_UNROLL for (int i = 0; i < PER; i += 2) {
            uint32_t f[2][2][4]; // group, row, pair
            TILE_UNROLL for (int h = 0; h < 2; ++h) {
                TILE_UNROLL for (int k = 0; k < 2; ++k) { d_tile_weights<A>::load(a[h], part, i + k, t, table, f[k][h]); }
            }
            TILE_UNROLL for (int j0 = 0; j0 < NT / 8; j0 += CHUNK) {
                if (NT <= 32 || j0 < n8) {
                    uint4 w[2][CHUNK];
                    TILE_UNROLL for (int k = 0; k < 2; ++k) {
                        TILE_UNROLL for (int j = 0; j < CHUNK; ++j) {
                            w[k][j] = *(const uint4 *) (b + (PER * NT * part + NT * (i + k) + 8 * (j0 + j)) * 64);
                        }
                    }
                    TILE_UNROLL for (int n = 0; n < 4; ++n) {
                        const int k = CHUNK == 2 ? n % 2 : n / 2, s = CHUNK == 2 ? n / 2 : n % 2;
                        TILE_UNROLL for (int j = 0; j < CHUNK; ++j) {
                            const uint32_t x[4] = { f[k][0][2 * s], f[k][1][2 * s], f[k][0][2 * s + 1], f[k][1][2 * s + 1] };
                            const uint32_t y[2] = { s == 0 ? w[k][j].x : w[k][j].z, s == 0 ? w[k][j].y : w[k][j].w };
                            d_tile_mma<F::number>(CHUNK == 2 && k == 1 ? odd[j % (CHUNK == 2 ? 2 : 1)] : sum[j0 + j], x, y);
                        }
                    }
                }
            }
        }
    }
    TILE_UNROLL for (int j = 0; CHUNK == 2 && j < 2; ++j) {
        TILE_UNROLL for (int c = 0; c < 4; ++c) { sum[j][c] += odd[j % (CHUNK == 2 ? 2 : 1)][c]; }
    }
}

// A tile's sums, those of all blocks that share it, by the last of them. False: this block is not the last.
template <int NT>
static inline __device__ bool d_tile_gather(
    const d_tile_job & p, const d_tile_part & part, const d_tile_units & units, uint32_t item, int n8, float (*sum)[4]) {
    __shared__ int is_last;
    const uint32_t steps = (uint32_t) p.steps, first = units.owner_of(item * steps), last = units.owner_of((item + 1) * steps - 1);
    if (first == last) {
        return true;
    }
    // a block has two places: for the tile that it begins with, and for that which it ends with
    const int64_t place = TILE_ROWS * NT;
    const bool begins = units.first_of(first) >= item * steps; // the first block begins with this tile; the others do
    const uint32_t before = (uint32_t) part.first_block, me = blockIdx.x - before;
    float * mine = p.sums + (2 * blockIdx.x + (me == first && !begins)) * place + threadIdx.x;
    TILE_UNROLL for (int j = 0; j < NT / 8; ++j) {
        if (j < n8) {
            TILE_UNROLL for (int c = 0; c < 4; ++c) { mine[(4 * j + c) * 32 * TILE_WARPS] = sum[j][c]; }
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence(); // for all threads, after the barrier
        is_last = atomicAdd(&p.counts[before + first], 1) == (int) (last - first);
        __threadfence();
    }
    __syncthreads();
    if (!is_last) {
        return false;
    }
    TILE_UNROLL for (int j = 0; j < NT / 8; ++j) {
        TILE_UNROLL for (int c = 0; c < 4; ++c) { sum[j][c] = 0.0f; }
    }
    constexpr int AT_ONCE = NT < 64 ? 64 / NT : 1; // loads of several blocks are under way at once; sums are in order
    for (uint32_t block = first; block <= last; block += AT_ONCE) {
        float v[AT_ONCE][NT / 8][4];
        TILE_UNROLL for (int i = 0; i < AT_ONCE; ++i) {
            const float * from = p.sums + (2 * (before + block + i) + (block + i == first && !begins)) * place + threadIdx.x;
            TILE_UNROLL for (int j = 0; j < NT / 8; ++j) {
                TILE_UNROLL for (int c = 0; c < 4; ++c) {
                    v[i][j][c] = block + i <= last && j < n8 ? __ldcg(from + (4 * j + c) * 32 * TILE_WARPS) : 0.0f;
                }
            }
        }
        TILE_UNROLL for (int i = 0; i < AT_ONCE; ++i) {
            TILE_UNROLL for (int j = 0; j < NT / 8; ++j) {
                TILE_UNROLL for (int c = 0; c < 4; ++c) { sum[j][c] += v[i][j][c]; }
            }
        }
    }
    return true;
}

template <int NT, bool HAS_FACTORS>
static inline __device__ void d_tile_store(
    const d_tile_job & p, const d_tile_part & part, const d_tile & t, char ** results, int n8, float (*sum)[4]) {
    __shared__ float factors[HAS_FACTORS ? NT : 1];
    const int lane = (int) threadIdx.x % 32;
    const int64_t row = t.m0 + (int) threadIdx.x / 32 * 16 + lane / 4;
    const bool is_zero = t.matrix < 0;
    __syncthreads(); // the last tile's are written
    if ((int) threadIdx.x < t.n) {
        const char * b;
        char * y;
        d_tile_column(p.job, t, (int) threadIdx.x, &b, &y);
        results[threadIdx.x] = y + part.y + (t.c0 + (int) threadIdx.x) * part.y_c; // 0 but in a group, which has one matrix of columns
        if (HAS_FACTORS) { factors[threadIdx.x] = p.factors[d_tile_packed_column(p, t, (int) threadIdx.x)]; }
    }
    __syncthreads();
    TILE_UNROLL for (int j = 0; j < NT / 8; ++j) {
        TILE_UNROLL for (int c = 0; c < 4; ++c) {
            const int column = 8 * j + 2 * (lane % 4) + c % 2;
            const int64_t m = row + c / 2 * 8;
            if (j < n8 && column < t.n && m < part.m) {
                const float v = HAS_FACTORS ? sum[j][c] * factors[column] : sum[j][c];
                d_store(p.job.y.type, results[column] + m * (int64_t) p.job.y.nb[0], is_zero ? 0.0f : v);
            }
        }
    }
}

// The epilogue of a tile whose sums are in scratch, of one matrix with few columns: of more a thread has so many elements that a kernel
// of its own is faster. It is in the kernel of every type, so one element after the other goes through the steps, while the reads of all
// are under way at once; beside the stores of the sums it would be more code than the products. A warp has the rows that it has stored.
#define TILE_AHEAD (GCUDA_MUL_MAT_TILE_FUSED / 2) // a thread has every second column
static NO_INLINE __device__ void d_tile_finish(const d_tile_job & p, int64_t m0, int64_t c0, int n) {
    const int lane = (int) threadIdx.x % 32;
    const int64_t m = m0 + (int) threadIdx.x / 32 * 16 + lane % 16;
    const gcuda_array & residual = p.job.epilogue.residual;
    const bool has_residual = residual.data != nullptr;
    const int64_t next[3] = { 2 * (int64_t) p.job.y.nb[1], has_residual && residual.ne[1] > 1 ? 2 * (int64_t) residual.nb[1] : 0,
                              2 * (int64_t) p.y.nb[1] }; // bytes
    const int j0 = lane / 16, left = m < p.job.m ? (n - j0 + 1) / 2 : 0; // columns
    const char * from = d_at(p.job.y, m, c0 + j0, 0, 0);
    const char * more = has_residual ? d_at(residual, residual.ne[0] == 1 ? 0 : m, residual.ne[1] == 1 ? 0 : c0 + j0, 0, 0) : from;
    char * to = d_at(p.y, m, c0 + j0, 0, 0);
    float v[TILE_AHEAD], r[TILE_AHEAD];
    __syncwarp(); // the sums of other lanes are written
    UNROLL for (int i = 0; i < TILE_AHEAD; ++i) {
        v[i] = i < left ? *(const float *) from : 0.0f;
        r[i] = i < left ? *(const float *) more : 0.0f;
        from += next[0];
        more += next[1];
    }
    NO_UNROLL for (int i = 0; i < left; ++i) {
        const float sum = d_finish_sum<false>(p.job, v[0], 0.0f, { m, c0 + j0 + 2 * i, 0, 0 }, -1);
        *(float *) to = has_residual ? d_add_rn(sum, r[0]) : sum;
        to += next[2];
        UNROLL for (int k = 0; k < TILE_AHEAD - 1; ++k) { // what is left moves up
            v[k] = v[k + 1];
            r[k] = r[k + 1];
        }
    }
}

static inline __device__ void d_tile_wait(int n_slots) {
    switch (n_slots) {
        case 4: d_copies_wait<2>(); break;
        case 3: d_copies_wait<1>(); break;
        default: d_copies_wait<0>();
    }
}

template <typename A, int NT>
static __global__ void __launch_bounds__(32 * TILE_WARPS, tile_per_multiprocessor(NT)) k_mul_mat_tile(const D_GRID_CONSTANT d_tile_job p) {
    DYNAMIC_SHARED(char, shared);
    char ** results = (char **) shared;
    uint32_t * table = (uint32_t *) (shared + TILE_COLUMNS * sizeof(char *));
    char * ring = (char *) (table + d_tile_format<A>::n_entries);
    constexpr int slot_bytes = d_tile_slot<A>::bytes(NT);
    d_take_turn();
    const d_tile_part & part = d_tile_part_of(p);
    const uint32_t block = blockIdx.x - (uint32_t) part.first_block, n_lists = (uint32_t) (p.job.n_lists != nullptr ? *p.job.n_lists : p.n_lists);
    const d_tile_units units(n_lists * (uint32_t) part.m_tiles * (uint32_t) p.steps, (uint32_t) part.n_blocks);
    if (block >= units.blocks) {
        return;
    }
    const uint32_t end = units.first_of(block + 1), steps = (uint32_t) p.steps;
    uint32_t unit = units.first_of(block), item = unit / steps, ahead = unit, ahead_item = item - 1; // ahead: fetched next
    d_tile_feed<A, NT> feed;
    int in = 0, out = 0; // slots
    feed.step = p.steps;
    const auto fetch = [&]() {
        if (ahead < end) {
            if (feed.step == p.steps) { // the first tile may begin within, the others at 0
                ++ahead_item;
                feed.start(p, part, ahead_item, (int) (ahead - ahead_item * steps));
            }
            feed.fetch(p, ring + in * slot_bytes);
            in = in + 1 == p.n_slots ? 0 : in + 1;
        }
        ++ahead;
        d_copies_commit(); // also when there is nothing: commits are counted
    };
    for (int s = 1; s < p.n_slots; ++s) { fetch(); }
    for (int i = (int) threadIdx.x; i < d_tile_format<A>::n_entries; i += 32 * TILE_WARPS) { table[i] = d_tile_format<A>::entry(i); }
    while (unit < end) {
        const d_tile t = d_tile_at(p, part, item);
        const d_tile_rows rows = d_tile_rows_of(p.job, part, t);
        const int n8 = (t.n + 7) / 8;
        const uint32_t stop = (item + 1) * steps < end ? (item + 1) * steps : end;
        float sum[NT / 8][4] = {};
        for (; unit < stop; ++unit) {
            if (p.n_slots == 1) {
                __syncthreads();
                fetch();
            }
            d_tile_wait(p.n_slots);
            __syncthreads(); // copies of all threads have arrived, and the slot that comes next is done with
            if (p.n_slots > 1) { fetch(); }
            d_tile_multiply<A, NT>(p, ring + out * slot_bytes, table, rows, (int) (unit - item * steps), n8, sum);
            out = out + 1 == p.n_slots ? 0 : out + 1;
        }
        if (d_tile_gather<NT>(p, part, units, item, n8, sum)) {
            d_tile_store<NT, d_tile_format<A>::number == TILE_F16>(p, part, t, results, n8, sum);
            if constexpr (NT <= GCUDA_MUL_MAT_TILE_FUSED) {
                if (p.job.has_epilogue) { d_tile_finish(p, t.m0, t.c0, t.n); }
            }
        }
        ++item;
    }
}

// ---- columns as the weights want them ----
struct d_tile_columns {
    d_job job;
    char * to;
    float * factors;         // F16
    int64_t n, column_bytes; // columns
    bool is_id, split;
    d_tile_number number;
    int32_t * counts;
    int n_counts;
};

static inline __device__ const char * d_tile_column_of(const d_tile_columns & p, uint32_t column) {
    const char * b;
    char * y;
    if (p.is_id) {
        const uint32_t n = (uint32_t) p.job.b.ne[1];
        return d_at(p.job.b, 0, column % n, column / n, 0);
    }
    const uint32_t n = (uint32_t) p.job.n;
    const d_tile all = { 0, 0, column / n, (int) n };
    d_tile_column(p.job, all, (int) (column % n), &b, &y);
    return b;
}

// Four elements of a column from k on, zeros beyond its end: there are whole groups.
static inline __device__ float4 d_tile_four(const d_tile_columns & p, const char * b, int64_t k) {
    const char * from = b + k * p.job.b_k;
    if (k >= p.job.k) {
        return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    if (p.job.b.type == GCUDA_TYPE_F32 && p.job.b_k == 4 && (uintptr_t) b % 16 == 0) {
        return *(const float4 *) from;
    }
    return make_float4(d_load(p.job.b.type, from), d_load(p.job.b.type, from + p.job.b_k), d_load(p.job.b.type, from + 2 * p.job.b_k),
        d_load(p.job.b.type, from + 3 * p.job.b_k));
}

// Sixteen bytes of a packed column, the i-th: eight elements, of TF32 four. exponent: of F16, the power of two that is taken out.
static inline __device__ void d_tile_pack_piece(const d_tile_columns & p, uint32_t column, const char * b, int64_t i, int exponent) {
    const int t = (int) (i % 4);
    char * to = p.to + column * p.column_bytes + 16 * i;
    if (p.number == TILE_TF32) {
        const float4 x = d_tile_four(p, b, 4 * i);
        *(uint4 *) to = make_uint4(d_tile_tf32(x.x), d_tile_tf32(x.y), d_tile_tf32(x.z), d_tile_tf32(x.w));
        return;
    }
    float v[8];
    UNROLL for (int h = 0; h < 2; ++h) {
        const float4 x = d_tile_four(p, b, i / 4 * 32 + (p.split ? 16 * h + 4 * t : 8 * t + 4 * h));
        v[4 * h] = x.x, v[4 * h + 1] = x.y, v[4 * h + 2] = x.z, v[4 * h + 3] = x.w;
    }
    if (p.number == TILE_BF16) {
        d_store16((__nv_bfloat16 *) to, v);
        return;
    }
    if (exponent != 0) { // not a factor: that of 2^-149 would be none
        UNROLL for (int k = 0; k < 8; ++k) { v[k] = ldexpf(v[k], -exponent); }
    }
    *(uint4 *) to = make_uint4(d_two_halfs(v[0], v[1]), d_two_halfs(v[2], v[3]), d_two_halfs(v[4], v[5]), d_two_halfs(v[6], v[7]));
}

// A block has 256 pieces of one column.
static inline __device__ void d_tile_pack(const d_tile_columns & p, uint32_t at) {
    const uint32_t per_column = (uint32_t) ((p.column_bytes / 16 + 255) / 256), column = at / per_column;
    const int64_t i = (int64_t) (at - column * per_column) * 256 + threadIdx.x;
    if (i < p.column_bytes / 16) { d_tile_pack_piece(p, column, d_tile_column_of(p, column), i, 0); }
}

// To F16: a block has a column, and reads it twice, the second time from L1 or L2.
static inline __device__ void d_tile_pack_halves(const d_tile_columns & p, uint32_t column) {
    const char * b = d_tile_column_of(p, column);
    float max = 0.0f;
    for (int64_t k = 4 * (int64_t) threadIdx.x; k < p.job.k; k += 1024) {
        const float4 x = d_tile_four(p, b, k);
        max = fmaxf(max, fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w))));
    }
    const int exponent = d_half_exponent(d_block_max(max));
    for (int64_t i = threadIdx.x; i < p.column_bytes / 16; i += 256) { d_tile_pack_piece(p, column, b, i, exponent); }
    if (threadIdx.x == 0) { p.factors[column] = ldexpf(1.0f, exponent); }
}

// Blocks that have something to pack.
static inline __host__ __device__ int64_t d_tile_pack_units(const d_tile_columns & p) {
    return p.number == TILE_F16 ? p.n : p.n * ((p.column_bytes / 16 + 255) / 256);
}

static inline __device__ void d_tile_columns_all(const d_tile_columns & p, int64_t block, int64_t n_blocks) {
    const int64_t n = d_tile_pack_units(p);
    for (int64_t i = block * 256 + threadIdx.x; i < p.n_counts; i += n_blocks * 256) { p.counts[i] = 0; }
    for (int64_t i = block; i < n; i += n_blocks) {
        if (p.number == TILE_F16) {
            d_tile_pack_halves(p, (uint32_t) i);
        } else {
            d_tile_pack(p, (uint32_t) i);
        }
    }
}

static __global__ void __launch_bounds__(256) k_mul_mat_tile_columns(const d_tile_columns p) {
    d_take_turn();
    d_tile_columns_all(p, blockIdx.x, gridDim.x);
}

// ---- the launcher's side ----
// Rows that are whole groups and begin where the kernel can read them. Blocks are read as their format reads them, but
// those of Q4_K and Q5_K and floats sixteen bytes at a time.
static bool tile_takes_weights(const gcuda_array & a) {
    const bool is_wide = !gcuda_is_quantized(a.type) || a.type == GCUDA_TYPE_Q4_K || a.type == GCUDA_TYPE_Q5_K;
    return a.ne[0] > 0 && a.ne[0] % 32 == 0 && a.nb[0] == gcuda_type_size(a.type) &&
           (!is_wide || ((size_t) (uintptr_t) a.data | a.nb[1] | a.nb[2] | a.nb[3]) % 16 == 0);
}

static int64_t tile_step(gcuda_type type) { // elements of k
    return gcuda_is_quantized(type) ? 256 : 256 / (int64_t) gcuda_type_size(type);
}
static int64_t tile_column_bytes(const gcuda_array & a) {
    const int64_t step = tile_step(a.type);
    return (a.ne[0] + step - 1) / step * step * (a.type == GCUDA_TYPE_F32 ? 4 : 2);
}
// Kernels are compiled for so many columns; as many are multiplied, in steps of 32.
static int tile_width(int tn) { return tn <= 16 ? 16 : tn <= 32 ? 32 : tn <= 64 ? 64 : 128; }

// Columns of a tile when there are n: as few tiles as can be, of one size.
static int tile_columns(int64_t n) {
    const int64_t tiles = (n + TILE_COLUMNS - 1) / TILE_COLUMNS;
    return (int) ((n + tiles - 1) / tiles + 7) / 8 * 8;
}

// Upper bounds of the steps of all tiles, of each product of a launch.
struct tile_units {
    int n;
    int64_t of[GCUDA_MUL_MAT_GROUP];
};
// Blocks of product i, and of all, when `most` are side by side.
static int64_t tile_blocks_of(const tile_units & u, int i, int64_t most) { return most < u.of[i] ? most : u.of[i]; }
static int64_t tile_blocks(const tile_units & u, int64_t most) {
    int64_t sum = 0;
    for (int i = 0; i < u.n; ++i) { sum += tile_blocks_of(u, i, most); }
    return sum;
}

// Scratch: columns, sums, counts, factors.
struct tile_scratch {
    size_t sums_at, counts_at, factors_at, bytes;
};
static tile_scratch tile_scratch_of(int64_t n_columns, int64_t column_bytes, const tile_units & units, int tn) {
    tile_scratch s;
    const int64_t n_sm = n_multiprocessors(), many = tile_blocks(units, tile_per_multiprocessor(tile_width(tn)) * n_sm);
    const int64_t blocks = units.n * tile_per_multiprocessor(16) * n_sm; // those with fewer columns, if it comes to that
    s.sums_at = (size_t) (n_columns * column_bytes);
    s.counts_at = s.sums_at + (size_t) (2 * many * TILE_ROWS * tile_width(tn) * (int64_t) sizeof(float));
    s.factors_at = s.counts_at + (size_t) align_16(blocks * (int64_t) sizeof(int32_t));
    s.bytes = s.factors_at + (size_t) align_16(n_columns * (int64_t) sizeof(float)); // of F16, but the type is not asked for
    return s;
}

// How many columns a tile has and the ring's slots: as wanted, or fewer where shared memory does not allow them. Returns
// the bytes of shared memory, 0 if there is no way.
template <typename A> static size_t tile_plan(d_tile_job & p, int wanted, size_t max_shared, int * per_multiprocessor) {
    const size_t cap = (max_shared > 0 ? max_shared : (size_t) SHARED_ALWAYS) - SHARED_STATIC;
    const size_t fixed = TILE_COLUMNS * sizeof(char *) + d_tile_format<A>::n_entries * sizeof(uint32_t);
    for (int tn = wanted; tn > 0; tn = tn > 64 ? 64 : tn > 32 ? 32 : tn > 16 ? 16 : 0) {
        const size_t slot = (size_t) d_tile_slot<A>::bytes(tile_width(tn));
        for (int many = tile_per_multiprocessor(tile_width(tn)); many > 0; --many) { // fewer blocks rather than one slot
            const size_t share = many > 1 ? cap / (size_t) many - SHARED_STATIC : cap, n = share > fixed ? (share - fixed) / slot : 0;
            if (n >= 2 || (n == 1 && many == 1)) {
                *per_multiprocessor = many;
                p.tn = tn;
                p.n_slots = (int) (n < TILE_SLOTS ? n : TILE_SLOTS);
                return fixed + (size_t) p.n_slots * slot;
            }
        }
    }
    return 0;
}

template <typename A>
static gcuda_status launch_tile(d_tile_job & p, int64_t n_blocks, size_t n_bytes, size_t max_shared, gcuda_stream stream) {
    return launch_overlapped(p.tn <= 16   ? k_mul_mat_tile<A, 16>
                             : p.tn <= 32 ? k_mul_mat_tile<A, 32>
                             : p.tn <= 64 ? k_mul_mat_tile<A, 64>
                                          : k_mul_mat_tile<A, 128>,
        n_blocks, dim3(32 * TILE_WARPS), n_bytes, max_shared, stream, p);
}

// f of a value of the weights' type.
template <typename F> static gcuda_status with_weights(gcuda_type type, F f) {
    switch (type) {
#define X(ID) GCUDAI_KERNEL_WHEN(ID, case GCUDA_TYPE_##ID: return f(d_format<GCUDA_TYPE_##ID>());)
        D_WEIGHT_TYPES(X)
#undef X
        default: return with_float(type, f);
    }
}

// Sums of y's sizes, packed.
static gcuda_array tile_sums_of(const gcuda_array & y, void * data) {
    gcuda_array sums = y;
    sums.data = data;
    sums.nb[0] = sizeof(float);
    for (int d = 1; d < 4; ++d) { sums.nb[d] = sums.nb[d - 1] * (size_t) y.ne[d - 1]; }
    return sums;
}

// The products behind the first, where they differ from it, and the blocks of all, `most` of one side by side.
static void tile_parts(d_tile_job & p, const gcuda_mul_mat_args * more, const tile_units & units, int64_t most) {
    int first = 0;
    for (int i = 0; i < GCUDA_MUL_MAT_GROUP; ++i) {
        d_tile_part & part = p.parts[i];
        if (i >= units.n) {
            part.first_block = INT32_MAX;
            continue;
        }
        part.m = (int) p.job.m;
        if (i > 0) {
            const gcuda_mul_mat_args & q = more[i - 1];
            part.a = (int64_t) ((uintptr_t) q.a.data - (uintptr_t) p.job.a.data);
            part.y = (int64_t) ((uintptr_t) q.y.data - (uintptr_t) p.job.y.data);
            part.y_c = (int64_t) (q.y.nb[1] - p.job.y.nb[1]);
            part.m = (int) q.a.ne[1];
        }
        part.m_tiles = (part.m - 1) / TILE_ROWS + 1;
        part.first_block = first;
        part.n_blocks = (int) tile_blocks_of(units, i, most);
        first += part.n_blocks;
    }
}

// What mul_mat and mul_mat_id have in common: `data` is scratch. `prepare` starts the kernel that rounds the columns, once
// it is known how many of them a tile has. more: units.n - 1 products of the same columns.
template <typename F>
static gcuda_status mul_mat_tile(const d_job & job, const gcuda_mul_mat_args * more, int wanted, int64_t n_columns,
    const tile_units & units, bool is_id, char * data, size_t max_shared, gcuda_stream stream, F prepare) {
    return with_weights(job.a.type, [&](auto a) {
        typedef decltype(a) A;
        d_tile_job p = {};
        d_tile_columns c = {};
        int per_multiprocessor = 1;
        const size_t n_bytes = tile_plan<A>(p, wanted, max_shared, &per_multiprocessor);
        const int64_t most = per_multiprocessor * n_multiprocessors(), blocks = tile_blocks(units, most);
        for (int i = 0; i < units.n; ++i) {
            if (n_bytes == 0 || units.of[i] > INT32_MAX) { // steps are counted in 32 bits
                return GCUDA_STATUS_UNSUPPORTED;
            }
        }
        p.column_bytes = tile_column_bytes(job.a);
        const tile_scratch s = tile_scratch_of(n_columns, p.column_bytes, units, wanted);
        p.job = job;
        p.steps = (int) (p.column_bytes / d_tile_slot<A>::column_bytes);
        p.last_bytes = (int) ((int64_t) gcuda_row_size(job.a.type, job.k) - (int64_t) (p.steps - 1) * d_tile_format<A>::step_bytes);
        p.columns = data;
        p.sums = (float *) (data + s.sums_at);
        p.counts = (int32_t *) (data + s.counts_at);
        p.factors = (const float *) (data + s.factors_at);
        p.y = job.y;
        if (job.has_epilogue) { p.job.y = tile_sums_of(job.y, data + s.bytes); }
        job_tiles(p.job, TILE_ROWS, p.tn, 0);
        p.n_lists = (int) (p.job.n_tiles * p.job.a.ne[2] * p.job.a.ne[3]);
        tile_parts(p, more, units, most);
        c.job = job;
        c.to = data;
        c.n = n_columns;
        c.column_bytes = p.column_bytes;
        c.is_id = is_id;
        c.split = d_tile_format<A>::split;
        c.number = d_tile_format<A>::number;
        c.factors = (float *) (data + s.factors_at);
        c.counts = p.counts;
        c.n_counts = (int) blocks;
        const gcuda_status st = prepare(c, p.tn);
        return st == GCUDA_STATUS_SUCCESS ? launch_tile<A>(p, blocks, n_bytes, max_shared, stream) : st;
    });
}

// Upper bound of the steps of all tiles.
static int64_t tile_max_units(const gcuda_array & a, int64_t n_lists) {
    return (a.ne[1] + TILE_ROWS - 1) / TILE_ROWS * n_lists * ((a.ne[0] + tile_step(a.type) - 1) / tile_step(a.type));
}

// ---- mul_mat ----
static tile_units tile_units_of(const gcuda_mul_mat_args * args, int n_args) {
    tile_units u = {};
    for (; u.n < n_args; ++u.n) {
        const gcuda_array & a = args[u.n].a;
        u.of[u.n] = tile_max_units(a, a.ne[2] * a.ne[3] * ((job_of(args[u.n]).n + 7) / 8));
    }
    return u;
}

static bool tile_takes(const gcuda_mul_mat_args & p, const void * scratch) {
    return tile_takes_weights(p.a) && is_float(p.b.type) && (uintptr_t) scratch % 16 == 0 && p.a.ne[1] <= INT32_MAX;
}

// n_args products of the same columns, the first of them as `p`.
static gcuda_status mul_mat_tile_group(const d_job & p, const gcuda_mul_mat_args * args, int n_args, void * scratch, gcuda_stream stream) {
    return mul_mat_tile(p, args + 1, tile_columns(p.n), p.n * args->a.ne[2] * args->a.ne[3], tile_units_of(args, n_args), false,
        (char *) scratch, args->max_shared, stream, [&](const d_tile_columns & c, int) {
            return launch_in_turn(k_mul_mat_tile_columns, d_tile_pack_units(c), dim3(256), stream, c);
        });
}

size_t gcuda_mul_mat_tile_scratch_bytes(const gcuda_mul_mat_args * args) { return gcuda_mul_mat_tile_group_scratch_bytes(args, 1); }

size_t gcuda_mul_mat_tile_group_scratch_bytes(const gcuda_mul_mat_args * args, int n_args) {
    const d_job p = job_of(*args);
    return p.n <= 0 || p.k <= 0 || n_args < 1 || n_args > GCUDA_MUL_MAT_GROUP
               ? 0
               : asked_bytes(tile_scratch_of(p.n * args->a.ne[2] * args->a.ne[3], tile_column_bytes(p.a), tile_units_of(args, n_args),
                     tile_columns(p.n)).bytes);
}

size_t gcuda_mul_mat_tile_fused_scratch_bytes(const gcuda_mul_mat_args * args) { // the sums last
    const size_t n = gcuda_mul_mat_tile_scratch_bytes(args);
    return n > 0 ? add_bytes(n, (size_t) n_elements(args->y) * sizeof(float)) : 0;
}

gcuda_status gcuda_launch_mul_mat_tile(const gcuda_mul_mat_args * args, void * scratch, gcuda_stream stream) {
    return gcuda_launch_mul_mat_tile_fused(args, nullptr, scratch, stream);
}

gcuda_status gcuda_launch_mul_mat_tile_fused(
    const gcuda_mul_mat_args * args, const gcuda_mul_mat_epilogue * epilogue, void * scratch, gcuda_stream stream) {
    d_job p = job_of(*args);
    if (!tile_takes(*args, scratch)) {
        return GCUDA_STATUS_UNSUPPORTED;
    }
    if (epilogue != nullptr) {
        const bool is_small = args->b.ne[2] * args->b.ne[3] == 1 && p.n <= GCUDA_MUL_MAT_TILE_FUSED; // one matrix of columns
        if (epilogue->up != nullptr || !is_small || p.y.type != GCUDA_TYPE_F32 || !epilogue_fits(*epilogue, p.y, 0)) {
            return GCUDA_STATUS_UNSUPPORTED;
        }
        p.has_epilogue = true;
        p.epilogue = *epilogue;
    }
    return n_elements(args->y) > 0 ? mul_mat_tile_group(p, args, 1, scratch, stream) : GCUDA_STATUS_SUCCESS;
}

gcuda_status gcuda_launch_mul_mat_tile_group(const gcuda_mul_mat_args * args, int n_args, void * scratch, gcuda_stream stream) {
    bool may = n_args >= 1 && n_args <= GCUDA_MUL_MAT_GROUP;
    for (int i = 0; may && i < n_args; ++i) {
        const gcuda_mul_mat_args & q = args[i];
        may = tile_takes(q, scratch) && products_are_alike(args[0], q) && q.a.ne[2] * q.a.ne[3] == 1 && q.b.ne[2] * q.b.ne[3] == 1 &&
              q.y.type == args->y.type && q.y.nb[0] == args->y.nb[0] && n_elements(q.y) > 0;
    }
    return may ? mul_mat_tile_group(job_of(*args), args, n_args, scratch, stream) : GCUDA_STATUS_UNSUPPORTED;
}

// >>op:mul_mat_id -------------------------------------------------------------------------------------
// The first n_sort blocks sort, the others round columns.
static __global__ void __launch_bounds__(256) k_mul_mat_id_prepare(
    const gcuda_mul_mat_id_args p, const d_id_lists l, const d_tile_columns c, int n_sort) {
    DYNAMIC_SHARED(int32_t, shared);
    d_take_turn();
    if ((int) blockIdx.x < n_sort) {
        d_id_sort(p, l, shared, (int) blockIdx.x, n_sort);
    } else {
        d_tile_columns_all(c, (int) blockIdx.x - n_sort, (int) gridDim.x - n_sort);
    }
}

static gcuda_status id_prepare(const gcuda_mul_mat_id_args & p, d_id_lists & l, int tn, const d_tile_columns & c, gcuda_stream stream) {
    size_t n_bytes;
    const int n_sort = id_sort_plan(l, tn, &n_bytes);
    return launch_overlapped(k_mul_mat_id_prepare, n_sort + d_tile_pack_units(c), dim3(256), n_bytes, 0, stream, p, l, c, n_sort);
}

// Columns of a tile: twice what an expert has in the mean, so that most experts are one tile.
static int id_columns(const gcuda_mul_mat_id_args & p) {
    const int64_t n_experts = p.as.ne[2] > 0 ? p.as.ne[2] : 1; // without any all ids are bad
    const int64_t n_slots = p.ids.ne[0] * p.ids.ne[1], mean = (n_slots + n_experts - 1) / n_experts;
    int tn = 16;
    while (tn < 2 * mean && tn < TILE_COLUMNS) { tn *= 2; }
    return tn;
}

static d_job id_job(const gcuda_mul_mat_id_args & p, const d_id_lists & l) {
    d_job job = {};
    job.a = p.as;
    job.b = p.b;
    job.y = p.y;
    job.m = p.as.ne[1];
    job.k = p.as.ne[0];
    job.a_m = (int64_t) p.as.nb[1];
    job.a_k = (int64_t) p.as.nb[0];
    job.b_k = (int64_t) p.b.nb[0];
    job.tiles = l.tiles;
    job.order = l.order;
    job.n_lists = l.n_tiles;
    return job;
}

static tile_units id_units(const gcuda_mul_mat_id_args & p) { return { 1, { tile_max_units(p.as, id_max_tiles(p, 8)) } }; }

static bool id_uses_tiles(const gcuda_mul_mat_id_args & p) {
    return p.prec != GCUDA_PREC_F32 && capability_major() >= 8 && tile_takes_weights(p.as) && is_float(p.b.type) && p.as.ne[1] <= INT32_MAX &&
           id_units(p).of[0] <= INT32_MAX; // steps are counted in 32 bits
}

size_t gcuda_mul_mat_id_scratch_bytes(const gcuda_mul_mat_id_args * args) {
    d_id_lists l = {};
    const size_t n_lists = id_lists(*args, &l);
    return asked_bytes(l.n_slots <= 0 || !id_uses_tiles(*args)
                           ? n_lists
                           : n_lists + tile_scratch_of(args->b.ne[1] * args->b.ne[2], tile_column_bytes(args->as),
                                           id_units(*args), id_columns(*args)).bytes);
}

gcuda_status gcuda_launch_mul_mat_id(const gcuda_mul_mat_id_args * args, gcuda_stream stream) {
    d_id_lists l = {};
    const size_t n_lists = id_lists(*args, &l);
    if (n_elements(args->y) == 0) {
        return GCUDA_STATUS_SUCCESS;
    }
    d_job job = id_job(*args, l);
    if (id_uses_tiles(*args)) {
        return mul_mat_tile(job, nullptr, id_columns(*args), args->b.ne[1] * args->b.ne[2], id_units(*args), true,
            (char *) args->scratch + n_lists, args->max_shared, stream,
            [&](const d_tile_columns & c, int tn) { return id_prepare(*args, l, tn, c, stream); });
    }
    const gcuda_status st = id_prepare(*args, l, PLAIN_TN, d_tile_columns(), stream);
    return st == GCUDA_STATUS_SUCCESS ? mul_mat_plain(job, id_max_tiles(*args, PLAIN_TN), stream) : st;
}
#endif // part 4

#if GCUDAI_PART(5)
// =====================================================================================================
// >>k-mul-mat-vec   products of block formats with up to 8 columns, on tensor cores 16
// =====================================================================================================
// The weights are read once and everything else hides behind that. A step is 2048 elements of a row. A warp keeps one
// step of the columns in registers, as bytes with a scale for 16, and walks rows: the same 2048 elements of each come
// through a ring of slots in shared memory, filled by asynchronous copies of 16 bytes that run ahead of the arithmetic.
// The warps of a block share a row when it has several steps; their sums meet in shared memory at the end, in one order.
//   floor   bytes of the weights; the columns come from L2, once for each block
// From compute capability 8.0 three columns and more go to tensor cores (below); two of codebooks as well where the kernel
// of two does not take them: rows that are not aligned, or no room for copies of the tables.

#define MAX_VEC_ROWS (1 << 30) // rows are counted in an int

struct d_vec_more { // another matrix for the same columns
    const char * a;
    char * y;
    int m, blocks, rounds;
    int y_c; // elements of a column from column to column of y
};

// What becomes of a sum. Of several columns there are the first and the last.
enum d_vec_finish {
    D_VEC_STORE,
    D_VEC_ADD, // an element of a packed row, which the block has in shared memory by then
    D_VEC_GLU, // with that of the second matrix
    D_VEC_ANY  // the job's epilogue
};

struct d_vec_job {
    // All that the usual product reads, side by side, since a block waits for lines of parameters where they are many (ncu's stall_imc).
    const char * a, * b; // of the first matrix and column
    char * y;
    int64_t n_items;     // blocks of all matrices
    int64_t a_m, row_bytes; // of a row, or of a pair
    int64_t k, up_at;    // bytes from a row to that of the second matrix
    int m, blocks;       // rows of a matrix, blocks that share it
    int rounds;          // of rows, for those that do
    int steps, at_once;  // of a row; that the block's warps take side by side
    int n_side, row_lanes; // rows of a block side by side; lanes that a row has: 32, or 16 where rows are taken in pairs
    uint32_t per_side;   // 2^20 / n_side, rounded up
    int n_more;          // matrices of a group behind the first
    bool is_one;         // one matrix, or a group of them, and its columns: nothing is to be looked up
    bool is_early;       // a block's first weights are asked for before it waits for the kernel before
    bool has_up;         // a second matrix
    bool has_floats;     // columns are F32, packed
    const int4 * xq;     // columns as bytes, [column][step][4][32], and
    const float2 * xs;   // their scales: {d, d * sum of the 16 bytes}; NULL, of one column or two: the kernel makes them
    d_vec_finish finish;
    gcuda_type y_type;
    int64_t y_0;         // bytes from row to row of y
    const char * add;    // the row of D_VEC_ADD
    gcuda_glu_op glu;
    float alpha, limit;
    // Of other products and to plan with:
    int first_column;    // of several
    int step_rows;       // 2: rows are taken in pairs, else 1
    bool is_aligned;     // rows begin at multiples of 16 bytes
    bool has_pairs;      // two and two rows do, which may be taken in pairs
    bool is_behind;      // launched behind the kernel that makes the columns
    d_job job;
    d_vec_more more[GCUDA_MUL_MAT_GROUP - 1]; // of a group; job.a and blocks are those of the first
    gcuda_array ids;     // mul_mat_id: every slot is a product of its own with one column
    int64_t n_experts;
    int32_t * bad_index;
};

// What a block works on.
struct d_vec_task {
    const char * a, * b; // the first row, and of one column the column
    char * y;            // of one column
    int m, item, block, blocks, rounds; // item: of a group's matrices with two columns which it is
    int64_t matrix;      // -1: a bad expert
    d_index at;          // of the first column that it works on, in y
};

struct d_vec_x { // four pieces of 16 elements: a lane's share of a step of a column
    int4 q[4];
    float2 s[4];
};

// c and four products of bytes, those of a unsigned.
static inline __device__ int d_dp4a_us(uint32_t a, int b, int c) {
#if defined(__CUDACC__) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 610
    int d;
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
#else
    for (int i = 0; i < 32; i += 8) { c += (int) (a >> i & 255u) * (int) (int8_t) (b >> i & 255); }
    return c;
#endif
}

template <bool IS_SIGNED> static inline __device__ int d_dot_16(const uint32_t * a, const int4 & x, int c) {
    const int b[4] = { x.x, x.y, x.z, x.w };
    UNROLL for (int i = 0; i < 4; ++i) { c = IS_SIGNED ? __dp4a((int) a[i], b[i], c) : d_dp4a_us(a[i], b[i], c); }
    return c;
}

// Words k bytes after byte `at` of shared memory, which is any, or a multiple of 2 or 4; ALIGNED: of 4, and k any. Of constants k
// that are alike in their last two bits the compiler makes one address, and where `at` is aligned all are parts of instructions.
template <int ALIGN, bool ALIGNED = false> struct d_words {
    static constexpr bool is_at_4 = ALIGN == 4 || ALIGNED;
    const uint32_t * w;
    uint32_t order;
    bool is_word; // known when compiled
    __device__ d_words(const char * shared, int at, int k)
        : w((const uint32_t *) (shared + (is_at_4 ? at : (at + (k & 3)) & ~3) + (ALIGN == 4 ? k : k & ~3))),
          order(0x3210u + 0x1111u * ((uint32_t) (is_at_4 ? k : at + k) & 3u)), is_word(ALIGN == 4 || (ALIGNED && k % 4 == 0)) {}
    __device__ uint32_t operator[](int i) const { return is_word ? w[i] : d_permute(w[i], w[i + 1], order); }
};
static inline __device__ float d_half_at(const char * shared, int at) { return d_half(*(const gcuda_fp16_t *) (shared + at)); }
static inline __device__ uint32_t d_byte_at(const char * shared, int at) { return *(const uint8_t *) (shared + at); }
static inline __device__ uint32_t d_byte_of(uint32_t word, int i) { return word >> 8 * i & 255u; }

static inline __device__ float d_low_half(uint32_t w) { return d_half((gcuda_fp16_t) (w & 0xffffu)); }
static inline __device__ float d_high_half(uint32_t w) { return d_half((gcuda_fp16_t) (w >> 16)); }

// ---- eight elements of a group for a lane of a product on tensor cores ----
// Lane (g, t), with g = lane / 4 and t = lane % 4, has eight elements of rows g and g + 8, which is what a product of 16 x 32
// bytes with 32 x 8 wants of it.

// Which eight elements of a group are lane t's, in two words of four.
enum d_mma_order {
    D_IN_QUADS,   // 4t .. 4t + 3 and 4t + 16 .. 4t + 19
    D_IN_NIBBLES, // 4t, 4t + 16, 4t + 1, 4t + 17 and so on: the nibbles of a word as they lie
    D_IN_ROW      // 8t .. 8t + 7
};

// Eight elements of a group and the scales of its pieces. Formats whose codes come in two parts, to be added, have both.
template <int PIECES> struct d_eight {
    uint32_t q[2], more[2];
    float scale[PIECES], min[PIECES];
};

template <d_mma_order ORDER, int PIECES, int ZERO, bool HAS_MIN = false, bool HAS_MORE = false, int TABLE = 0>
struct d_mma_format_of {
    static constexpr d_mma_order order = ORDER;
    static constexpr int pieces = PIECES, zero = ZERO, table = TABLE; // table: words in shared memory
    static constexpr bool has_min = HAS_MIN, has_more = HAS_MORE;
    static constexpr bool has_words = true;        // their place matters; else all is read as bytes and halves
    static constexpr bool is_memory_bound = false; // then rows at multiples of 4 have no kernel of their own
    // The first weights are copied to shared memory while columns are made ready, by blocks that leave room for one of the columns' kernel.
    // That costs registers and pays where decoding takes few; the others ask L2 for the first weights.
    static constexpr bool is_early = false;
    // The columns of a step are asked for while the sums of the step before meet (d_mma_x), as in formats that are early: 3 to 6 % of
    // 4096 x 14336. In the others that gains nothing and 28672 x 16384 takes 2 to 6 % longer (8 columns, H100).
    static constexpr bool asks_ahead = false;
    // More than eight columns: weights are decoded once for two tiles of them. Scales for 16 elements double what
    // the second costs: by count of instructions little is gained over tiles of BF16, which has not been measured.
    static constexpr bool has_two_tiles = PIECES == 1;
    static constexpr size_t lists_at = 4; // rows of experts by lists lie at multiples of so many bytes
    static constexpr int groups = 16; // of a step of a warp, of one tile of columns
    // Mins that are multiplied apart, of eight groups at once: tf32_min is group 4 i + t of those from `group` on, whose bits fit TF32,
    // and tf32_scale, if there is one, what all are multiplied with; together they are what is added to an element.
    static constexpr bool has_tf32_min = false, has_tf32_scale = false;
    typedef d_eight<PIECES> out;
    static inline __device__ uint32_t entry(int) { return 0; }
};

// decode: group g of the row's step that begins at byte `at` of shared memory, a multiple of 4 where rows are ALIGNED. g is a
// constant where it is called, so words that groups share are loaded once.
template <typename A> struct d_mma_format;

template <> struct d_mma_format<d_format<GCUDA_TYPE_Q4_0>> : d_mma_format_of<D_IN_QUADS, 1, 8> {
    static constexpr bool is_early = true;
    template <bool ALIGNED>
    static inline __device__ void decode(const char * shared, const uint32_t *, int at, int g, int t, out & o) {
        const int k = 18 * g;
        d_nibbles(d_words<2, ALIGNED>(shared, at, k + 2)[t], &o.q[0], &o.q[1]);
        o.scale[0] = d_half_at(shared, at + k);
    }
};

template <> struct d_mma_format<d_format<GCUDA_TYPE_Q4_1>> : d_mma_format_of<D_IN_QUADS, 1, 0, true> {
    static constexpr bool is_early = true;
    static constexpr bool has_tf32_min = true;
    static inline __device__ float tf32_min(const char * shared, int at, int group, int i, int t) {
        return d_half_at(shared, at + 20 * (group + 4 * i + t) + 2);
    }
    template <bool ALIGNED>
    static inline __device__ void decode(const char * shared, const uint32_t *, int at, int g, int t, out & o) {
        const d_words<4> w(shared, at, 20 * g);
        d_nibbles(w[1 + t], &o.q[0], &o.q[1]);
        o.scale[0] = d_low_half(w[0]);
    }
};

// Bit 4 of lane t's codes in D_IN_QUADS from the 32 bits of a group.
static inline __device__ void d_eight_fifth_bits(uint32_t bits, int t, uint32_t (&q)[2]) {
    bits >>= 4 * t;
    q[0] |= (bits & 15u) * 0x02040810u & 0x10101010u;
    q[1] |= (bits >> 16 & 15u) * 0x02040810u & 0x10101010u;
}

template <> struct d_mma_format<d_format<GCUDA_TYPE_Q5_0>> : d_mma_format_of<D_IN_QUADS, 1, 16> {
    static constexpr bool is_early = true;
    template <bool ALIGNED>
    static inline __device__ void decode(const char * shared, const uint32_t *, int at, int g, int t, out & o) {
        const int k = 22 * g;
        d_nibbles(d_words<2, ALIGNED>(shared, at, k + 6)[t], &o.q[0], &o.q[1]);
        d_eight_fifth_bits(d_words<2, ALIGNED>(shared, at, k + 2)[0], t, o.q);
        o.scale[0] = d_half_at(shared, at + k);
    }
};

template <> struct d_mma_format<d_format<GCUDA_TYPE_Q5_1>> : d_mma_format_of<D_IN_QUADS, 1, 0, true> {
    static constexpr bool is_early = true;
    static constexpr bool has_tf32_min = true;
    static inline __device__ float tf32_min(const char * shared, int at, int group, int i, int t) {
        return d_half_at(shared, at + 24 * (group + 4 * i + t) + 2);
    }
    template <bool ALIGNED>
    static inline __device__ void decode(const char * shared, const uint32_t *, int at, int g, int t, out & o) {
        const d_words<4> w(shared, at, 24 * g);
        d_nibbles(w[2 + t], &o.q[0], &o.q[1]);
        d_eight_fifth_bits(w[1], t, o.q);
        o.scale[0] = d_low_half(w[0]);
    }
};

template <> struct d_mma_format<d_format<GCUDA_TYPE_Q8_0>> : d_mma_format_of<D_IN_QUADS, 1, 0> {
    static constexpr bool is_early = true;
    static constexpr bool is_memory_bound = true;
    static constexpr int groups = 8; // of 16, two slots of a warp leave room for half as many warps
    template <bool ALIGNED>
    static inline __device__ void decode(const char * shared, const uint32_t *, int at, int g, int t, out & o) {
        const int k = 34 * g;
        const d_words<2, ALIGNED> w(shared, at, k + 2);
        o.q[0] = w[t];
        o.q[1] = w[4 + t];
        o.scale[0] = d_half_at(shared, at + k);
    }
};

// The selector of a byte permutation gives a nibble of 8 and more eight times the top bit of the byte it names without the
// 8. So a table of 16 bytes is two of 8: one with the nibbles as they are, one with their top bits turned, each of which
// gives 0 or -1 for what is the other's. A table whose halves have these top bits is the sum of both.
static inline __device__ void d_eight_lookup(uint32_t t0, uint32_t t1, uint32_t nibbles, uint32_t (&q)[2]) {
    q[0] = d_permute(t0, t1, nibbles);
    q[1] = d_permute(t0, t1, nibbles >> 16);
}

// -127 -104 -83 -65 -49 -35 -22 -10, else -1; and 1 13 25 38 53 69 89 113 with one added, else 0
static inline __device__ void d_eight_iq4(uint32_t nibbles, d_eight<1> & o) {
    d_eight_lookup(0xbfad9881u, 0xf6eaddcfu, nibbles, o.q);
    d_eight_lookup(0x271a0e02u, 0x725a4636u, nibbles ^ 0x88888888u, o.more);
}

template <> struct d_mma_format<d_format<GCUDA_TYPE_IQ4_NL>> : d_mma_format_of<D_IN_NIBBLES, 1, 0, false, true> {
    static constexpr bool is_early = true;
    template <bool ALIGNED>
    static inline __device__ void decode(const char * shared, const uint32_t *, int at, int g, int t, out & o) {
        const int k = 18 * g;
        d_eight_iq4(d_words<2, ALIGNED>(shared, at, k + 2)[t], o);
        o.scale[0] = d_half_at(shared, at + k);
    }
};

template <> struct d_mma_format<d_format<GCUDA_TYPE_IQ4_XS>> : d_mma_format_of<D_IN_NIBBLES, 1, 0, false, true> {
    static constexpr bool asks_ahead = true;
    template <bool ALIGNED>
    static inline __device__ void decode(const char * shared, const uint32_t *, int at, int g, int t, out & o) {
        const d_words<4> w(shared, at, g / 8 * 136);
        const int j = g % 8;
        const uint32_t low = (j % 2 ? w[1] >> 4 : w[1]) & 0x0f0f0f0fu, high = w[0] >> (16 + 2 * j) & 3u;
        d_eight_iq4(w[2 + 4 * j + t], o);
        o.scale[0] = d_low_half(w[0]) * (float) ((int) (d_byte_of(low, j / 2) | high << 4) - 32);
    }
};

// The two parts of 12 more than the table's, which leaves no top bits: where one is not 0 the other is.
static inline __device__ void d_eight_mxfp4(uint32_t nibbles, uint32_t (&q)[2], uint32_t (&upper)[2]) {
    d_eight_lookup(0x0f0e0d0cu, 0x18141210u, nibbles, q);
    d_eight_lookup(0x090a0b0cu, 0x00040608u, nibbles ^ 0x88888888u, upper);
}
template <> struct d_mma_format<d_format<GCUDA_TYPE_MXFP4>> : d_mma_format_of<D_IN_NIBBLES, 1, 12> {
    static constexpr size_t lists_at = 1; // rows of 2880 elements are 1530 bytes apart
    template <bool ALIGNED>
    static inline __device__ void decode(const char * shared, const uint32_t *, int at, int g, int t, out & o) {
        uint32_t upper[2];
        const int k = 17 * g;
        d_eight_mxfp4(d_words<1, ALIGNED>(shared, at, k + 1)[t], o.q, upper);
        o.q[0] |= upper[0];
        o.q[1] |= upper[1];
        o.scale[0] = gcudai_mxfp4_scale(d_byte_at(shared, at + k));
    }
};

template <> struct d_mma_format<d_format<GCUDA_TYPE_Q2_K>> : d_mma_format_of<D_IN_QUADS, 2, 0, true> {
    template <bool ALIGNED>
    static inline __device__ void decode(const char * shared, const uint32_t *, int at, int g, int t, out & o) {
        const d_words<4> w(shared, at, g / 8 * 84);
        const int part = g % 8 / 4, j = g % 4;
        const float d = d_low_half(w[20]), dmin = d_high_half(w[20]);
        const uint32_t s = w[2 * part + j / 2];
        UNROLL for (int h = 0; h < 2; ++h) {
            o.q[h] = w[4 + 8 * part + 4 * h + t] >> 2 * j & 0x03030303u;
            o.scale[h] = d * (float) d_byte_of(s & 0x0f0f0f0fu, 2 * (j % 2) + h);
            o.min[h] = dmin * (float) d_byte_of(s >> 4 & 0x0f0f0f0fu, 2 * (j % 2) + h);
        }
    }
};

template <> struct d_mma_format<d_format<GCUDA_TYPE_Q3_K>> : d_mma_format_of<D_IN_QUADS, 2, 4> {
    template <bool ALIGNED>
    static inline __device__ void decode(const char * shared, const uint32_t *, int at, int g, int t, out & o) {
        const int k = g / 8 * 110;
        const int part = g % 8 / 4, j = g % 4, s4 = 2 * part + j / 2; // s4: which four of the scales
        const d_words<2, ALIGNED> high(shared, at, k), low(shared, at, k + 32 + 32 * part), s(shared, at, k + 96);
        const uint32_t s_low = s[j / 2] >> 4 * part & 0x0f0f0f0fu, s_high = s[2] >> 2 * s4 & 0x03030303u;
        const uint32_t scales = s_low | s_high << 4;
        const float d = d_half_at(shared, at + k + 108);
        UNROLL for (int h = 0; h < 2; ++h) {
            const uint32_t bits = high[4 * h + t] >> (4 * part + j) & 0x01010101u;
            o.q[h] = (low[4 * h + t] >> 2 * j & 0x03030303u) | bits << 2;
            o.scale[h] = d * (float) ((int) d_byte_of(scales, 2 * (j % 2) + h) - 32);
        }
    }
};

// The scale of group j of a block of Q4_K or Q5_K; mins are whole numbers with a scale.
static inline __device__ float d_eight_k_scale(const d_words<4> & w, int j) {
    const uint32_t scale = j < 4 ? w[1] & 0x3f3f3f3fu : (w[3] & 0x0f0f0f0fu) | (w[1] >> 2 & 0x30303030u);
    return d_low_half(w[0]) * (float) d_byte_of(scale, j % 4);
}
template <int BLOCK> struct d_mma_format_k : d_mma_format_of<D_IN_QUADS, 1, 0, true> {
    static constexpr bool has_tf32_min = true, has_tf32_scale = true;
    static inline __device__ float tf32_min(const char * shared, int at, int group, int i, int t) {
        const int k = at + group / 8 * BLOCK + t;
        const uint32_t w = d_byte_at(shared, k + 8);
        return (float) (int) (i == 0 ? w & 63u : d_byte_at(shared, k + 12) >> 4 | (w >> 2 & 48u));
    }
    static inline __device__ float tf32_scale(const char * shared, int at, int group) {
        return -d_half_at(shared, at + group / 8 * BLOCK + 2);
    }
};

template <> struct d_mma_format<d_format<GCUDA_TYPE_Q4_K>> : d_mma_format_k<144> {
    static constexpr bool is_early = true;
    template <bool ALIGNED>
    static inline __device__ void decode(const char * shared, const uint32_t *, int at, int g, int t, out & o) {
        const d_words<4> w(shared, at, g / 8 * 144);
        const int j = g % 8;
        UNROLL for (int h = 0; h < 2; ++h) { o.q[h] = w[4 + 8 * (j / 2) + 4 * h + t] >> 4 * (j % 2) & 0x0f0f0f0fu; }
        o.scale[0] = d_eight_k_scale(w, j);
    }
};

template <> struct d_mma_format<d_format<GCUDA_TYPE_Q5_K>> : d_mma_format_k<176> {
    template <bool ALIGNED>
    static inline __device__ void decode(const char * shared, const uint32_t *, int at, int g, int t, out & o) {
        const d_words<4> w(shared, at, g / 8 * 176);
        const int j = g % 8;
        UNROLL for (int h = 0; h < 2; ++h) {
            const uint32_t bits = j < 4 ? w[4 + 4 * h + t] << (4 - j) : w[4 + 4 * h + t] >> (j - 4);
            o.q[h] = (w[12 + 8 * (j / 2) + 4 * h + t] >> 4 * (j % 2) & 0x0f0f0f0fu) | (bits & 0x10101010u);
        }
        o.scale[0] = d_eight_k_scale(w, j);
    }
};

template <> struct d_mma_format<d_format<GCUDA_TYPE_Q6_K>> : d_mma_format_of<D_IN_QUADS, 2, 32> {
    static constexpr bool is_early = true;
    template <bool ALIGNED>
    static inline __device__ void decode(const char * shared, const uint32_t *, int at, int g, int t, out & o) {
        const int k = g / 8 * 210;
        const int part = g % 8 / 4, j = g % 4;
        const d_words<2, ALIGNED> low(shared, at, k + 64 * part + 32 * (j % 2)), high(shared, at, k + 128 + 32 * part);
        const uint32_t scales = d_words<2, ALIGNED>(shared, at, k + 192 + 8 * part)[j / 2];
        const float d = d_half_at(shared, at + k + 208);
        UNROLL for (int h = 0; h < 2; ++h) {
            const uint32_t bits = j < 2 ? high[4 * h + t] << (4 - 2 * j) : high[4 * h + t] >> (2 * j - 4);
            o.q[h] = (low[4 * h + t] >> 4 * (j / 2) & 0x0f0f0f0fu) | (bits & 0x30303030u);
            o.scale[h] = d * (float) (int8_t) d_byte_of(scales, 2 * (j % 2) + h);
        }
    }
};

template <> struct d_mma_format<d_format<GCUDA_TYPE_IQ2_XXS>> : d_mma_format_of<D_IN_ROW, 1, 0, false, false, 256> {
    static inline __device__ uint32_t entry(int i) { return d_digits_to_nibbles(gcudai_grid_iq2xxs[i]); }
    template <bool ALIGNED>
    static inline __device__ void decode(const char * shared, const uint32_t * table, int at, int g, int t, out & o) {
        const int k = g / 8 * 66;
        const int j = g % 8;
        const uint32_t code = d_byte_at(shared, at + k + 2 + 8 * j + t), aux = d_words<2, ALIGNED>(shared, at, k + 6 + 8 * j)[0];
        d_eight_iq2(table[code], d_even_bits_to_nibbles(aux >> 7 * t & 127u), o.q);
        o.scale[0] = d_half_at(shared, at + k) * 0.25f * (0.5f + (float) (aux >> 28));
    }
};

// Scales of group i of four, from the nibbles of its byte: put into the digits of 128, so that d (nibble + 1/2) is one operation.
static inline __device__ void d_eight_iq2_scales(float d, uint32_t word, int i, d_eight<2> & o) {
    const uint32_t nibbles[2] = { word & 0x0f0f0f0fu, word >> 4 & 0x0f0f0f0fu };
    UNROLL for (int h = 0; h < 2; ++h) {
        const float v = __int_as_float((int) d_permute(nibbles[h], 0x43000000u, 0x7044u + 0x100u * (uint32_t) i));
        o.scale[h] = v * d - 127.5f * d;
    }
}

template <> struct d_mma_format<d_format<GCUDA_TYPE_IQ2_XS>> : d_mma_format_of<D_IN_ROW, 2, 0, false, false, 512> {
    static inline __device__ uint32_t entry(int i) { return d_digits_to_nibbles(gcudai_grid_iq2xs[i]); }
    template <bool ALIGNED>
    static inline __device__ void decode(const char * shared, const uint32_t * table, int at, int g, int t, out & o) {
        const int k = g / 8 * 74;
        const int j = g % 8;
        const uint32_t code = *(const uint16_t *) (shared + at + k + 2 + 8 * j + 2 * t);
        d_eight_iq2(table[code & 511u], d_even_bits_to_nibbles(code >> 9), o.q);
        d_eight_iq2_scales(d_half_at(shared, at + k) * 0.25f, d_words<2, ALIGNED>(shared, at, k + 66)[j / 4], j % 4, o);
    }
};

template <> struct d_mma_format<d_format<GCUDA_TYPE_IQ2_S>> : d_mma_format_of<D_IN_ROW, 2, 0, false, false, 1024> {
    static inline __device__ uint32_t entry(int i) { return d_digits_to_nibbles(gcudai_grid_iq2s[i]); }
    template <bool ALIGNED>
    static inline __device__ void decode(const char * shared, const uint32_t * table, int at, int g, int t, out & o) {
        const int k = g / 8 * 82;
        const int j = g % 8;
        const d_words<2, ALIGNED> last(shared, at, k + 66); // two words of upper bits, two of scales
        const uint32_t high = last[j / 4] >> 2 * t, upper = (j % 4 == 0 ? high << 8 : high >> (8 * (j % 4) - 8)) & 0x300u;
        const uint32_t code = d_byte_at(shared, at + k + 2 + 4 * j + t) | upper;
        d_eight_iq2(table[code], d_bits_to_nibbles(d_byte_at(shared, at + k + 34 + 4 * j + t)), o.q);
        d_eight_iq2_scales(d_half_at(shared, at + k) * 0.25f, last[2 + j / 4], j % 4, o);
    }
};

template <> struct d_mma_format<d_format<GCUDA_TYPE_IQ3_XXS>> : d_mma_format_of<D_IN_ROW, 1, 0, false, false, 256> {
    static constexpr bool asks_ahead = true;
    static inline __device__ uint32_t entry(int i) { return gcudai_iq3_xxs_entry((uint32_t) i); }
    template <bool ALIGNED>
    static inline __device__ void decode(const char * shared, const uint32_t * table, int at, int g, int t, out & o) {
        const int k = g / 8 * 98;
        const int j = g % 8;
        const uint32_t codes = *(const uint16_t *) (shared + at + k + 2 + 8 * j + 2 * t);
        const uint32_t aux = d_words<2, ALIGNED>(shared, at, k + 66 + 4 * j)[0], signs = gcudai_even_signs(aux >> 7 * t & 127u);
        o.q[0] = d_negate_bytes(table[codes & 255u], signs);
        o.q[1] = d_negate_bytes(table[codes >> 8], signs >> 4);
        o.scale[0] = d_half_at(shared, at + k) * 0.5f * (0.5f + (float) (aux >> 28));
    }
};

template <> struct d_mma_format<d_format<GCUDA_TYPE_IQ3_S>> : d_mma_format_of<D_IN_ROW, 1, 0, false, false, 512> {
    static constexpr bool has_words = false;
    static inline __device__ uint32_t entry(int i) { return gcudai_iq3_s_entry((uint32_t) i); }
    template <bool ALIGNED>
    static inline __device__ void decode(const char * shared, const uint32_t * table, int at, int g, int t, out & o) {
        const int k = g / 8 * 110;
        const int j = g % 8;
        const uint32_t codes = *(const uint16_t *) (shared + at + k + 2 + 8 * j + 2 * t);
        const uint32_t signs = d_byte_at(shared, at + k + 74 + 4 * j + t);
        const uint32_t high = d_byte_at(shared, at + k + 66 + j) >> 2 * t, s = d_byte_at(shared, at + k + 106 + j / 2);
        o.q[0] = d_negate_bytes(table[(codes & 255u) | (high << 8 & 256u)], signs);
        o.q[1] = d_negate_bytes(table[(codes >> 8) | (high << 7 & 256u)], signs >> 4);
        o.scale[0] = d_half_at(shared, at + k) * (float) (1u + 2u * (s >> 4 * (j % 2) & 15u));
    }
};

template <> struct d_mma_format<d_format<GCUDA_TYPE_IQ1_S>> : d_mma_format_of<D_IN_ROW, 1, 9, false, false, 2048> {
    static constexpr bool has_words = false;
    static inline __device__ uint32_t entry(int i) { return d_digits_to_nibbles(gcudai_grid_iq1s[i]); }
    template <bool ALIGNED>
    static inline __device__ void decode(const char * shared, const uint32_t * table, int at, int g, int t, out & o) {
        const int k = g / 8 * 50;
        const int j = g % 8;
        const uint32_t h = *(const uint16_t *) (shared + at + k + 34 + 2 * j);
        const uint32_t code = d_byte_at(shared, at + k + 2 + 4 * j + t) | (h >> 3 * t & 7u) << 8;
        d_eight_iq1(table[code], (h & 0x8000u) != 0, o.q);
        o.scale[0] = d_half_at(shared, at + k) * 0.125f * (float) (2u * (h >> 12 & 7u) + 1u);
    }
};

template <> struct d_mma_format<d_format<GCUDA_TYPE_IQ1_M>> : d_mma_format_of<D_IN_ROW, 2, 9, false, false, 2048> {
    static inline __device__ uint32_t entry(int i) { return d_digits_to_nibbles(gcudai_grid_iq1s[i]); }
    template <bool ALIGNED>
    static inline __device__ void decode(const char * shared, const uint32_t * table, int at, int g, int t, out & o) {
        const int k = g / 8 * 56;
        const int j = g % 8;
        const d_words<4> w(shared, at, k);
        const uint32_t s01 = w[12], s23 = w[13], high = w[8 + j / 2] >> 4 * t >> 16 * (j % 2);
        const uint32_t d = (s01 >> 12 & 15u) | (s01 >> 28) << 4 | (s23 >> 12 & 15u) << 8 | (s23 >> 28) << 12;
        const uint32_t s = j < 4 ? s01 : s23, code = d_byte_at(shared, at + k + 4 * j + t);
        const float eighth = d_half((gcuda_fp16_t) d) * 0.125f;
        d_eight_iq1(table[code | (high & 7u) << 8], (high & 8u) != 0, o.q);
        UNROLL for (int h = 0; h < 2; ++h) { // eighth (2 scale + 1), the three bits put into the digits of 4, which counts them as halves
            const int from = 16 * (j / 2 % 2) + 6 * (j % 2) + 3 * h;
            const uint32_t bits = (from > 20 ? s >> (from - 20) : s << (20 - from)) & 0x00700000u;
            o.scale[h] = __int_as_float((int) (bits | 0x40800000u)) * (4.0f * eighth) - 15.0f * eighth;
        }
    }
};

// ---- up to 8 columns without tensor cores: a lane's 64 elements of a step ----
// Codes stay where they lie in their bytes, which makes some of them 2^k times as large, and codes in two parts stay two
// words: another dot product costs less than shifts and merging. What they are too large by is taken off the column's scales.

// Bits `from` and more of w, as many as the mask has, at bit `to`: an index times the bytes of an entry.
static inline __device__ uint32_t d_bits_at(uint32_t w, int from, int to, uint32_t mask) {
    return (from > to ? w >> (from - to) : w << (to - from)) & mask << to;
}

// Bit i of eight as byte i, which is 0 or `on`.
static inline __device__ uint2 d_byte_masks(uint32_t bits, uint32_t on) {
    return make_uint2(d_spread_bits(bits) * on, d_spread_bits(bits >> 4) * on);
}

// What a second word of codes is for.
enum d_vec_part {
    D_NOTHING,
    D_ADDED,    // both are summed up
    D_TAKEN_OFF,
    D_SCALED    // added when multiplied by the lane's `ratio`, in the second group by that times more_ratio
};

template <typename A> struct d_vec_codes { // of four pieces
    uint32_t q[16], more[16];
    float scale[4], min[4];
};

template <typename A> struct d_vec_traits;

// Codebooks are looked up in shared memory. The signs that go with a code come from a second table: an upper bit for each nibble
// of an entry, or masks. WIDE: entries have copies for 32 lanes, or 16 or 8, side by side, so that lanes seldom want the same bank. An
// entry's place is its lower byte times 256, which one permutation of bytes makes of a word that the byte lies in, anywhere,
// and of the lane's place; what is above that byte chooses within the 256.
static constexpr int d_log2(int n) { return n < 2 ? 0 : 1 + d_log2(n / 2); }
template <typename A, bool WIDE> struct d_vec_tables {
    typedef d_vec_traits<A> V;
    static constexpr int sub = V::codes > 256 ? V::codes / 256 : 1, sub_shift = 8 - (sub > 1 ? d_log2(sub) : 1);
    static constexpr bool is_shared = sub == 1; // signs are in the upper half of each 256 bytes
    static constexpr int code_bytes = V::codes == 0 ? 0 : WIDE ? 65536 : 4 * V::codes;
    static constexpr int sign_shift = WIDE ? (is_shared ? 8 : 7) : V::sign_words + 1, signs_at = WIDE && is_shared ? 128 : code_bytes;
    static constexpr int n_bytes = code_bytes + (WIDE && is_shared ? 0 : V::signs << sign_shift);
    const char * shared;
    uint32_t code_lane, sign_lane;

    __device__ d_vec_tables(const char * at, int lane)
        : shared(at), code_lane(WIDE ? 4u * (uint32_t) lane & ((1u << sub_shift) - 1) : 0),
          sign_lane(WIDE ? 4u * V::sign_words * (uint32_t) lane & 127u : 0) {}
    __device__ uint32_t load(uint32_t at) const { return *(const uint32_t *) (shared + at); }

    // The entry of byte k of `low` and, above it, as many bits of `high`, from bit `from` on, as there are.
    __device__ uint32_t code(uint32_t low, int k, uint32_t high = 0, int from = 0) const {
        return WIDE ? load(__byte_perm(low, code_lane, 0x7604u + 16u * (uint32_t) k) | d_bits_at(high, from, sub_shift, (uint32_t) sub - 1))
                    : load(d_bits_at(low, 8 * k, 2, 255u) | d_bits_at(high, from, 10, (uint32_t) sub - 1));
    }
    // The entry of bits `from` and more of w; is_field.
    __device__ uint32_t field(uint32_t w, int from) const {
        return load(d_bits_at(w, from, WIDE ? sub_shift : 2, (uint32_t) V::codes - 1) | code_lane);
    }
    __device__ const char * sign_at(uint32_t w, int from) const {
        return shared + signs_at + (d_bits_at(w, from, sign_shift, (uint32_t) V::signs - 1) | sign_lane);
    }
    __device__ uint32_t sign(uint32_t w, int from) const { return *(const uint32_t *) sign_at(w, from); }
    __device__ uint2 masks(uint32_t w, int from) const { return *(const uint2 *) sign_at(w, from); }
};

template <typename A, d_vec_order ORDER = D_SIDE_BY_SIDE, int ZERO = A::zero, d_vec_part MORE = D_NOTHING, int SIGNS = 0,
    int SIGN_WORDS = 1>
struct d_vec_traits_of {
    static constexpr d_vec_order order = ORDER;
    static constexpr int zero = ZERO, codes = d_mma_format<A>::table, signs = SIGNS, sign_words = SIGN_WORDS;
    static constexpr d_vec_part more = MORE;
    static constexpr bool has_min = A::has_min, is_signed = false, is_field = false; // is_field: a code's bits lie together
    static constexpr int one_warps = 32; // of one column: fewer where two rows side by side need more registers
    // Of a column that a lane rounds together. Two save half of the instructions for what a piece is asked once: 1 to 7 % of
    // 4096 x 14336 on an H200.
    static constexpr int quads = 2;
    static constexpr int of_odd = 0, of_second = 0, of_odd_lane = 0, more_ratio = 1;
    static inline __device__ uint2 sign_entry(int) { return make_uint2(0, 0); }
    static inline __device__ float ratio(int) { return 1.0f; }
    typedef d_vec_codes<A> out;
};

// Words k bytes after byte `at` of shared memory, which is a multiple of 16 where rows are aligned; they lie at multiples of
// ALIGN bytes.
template <int ALIGN, bool ALIGNED> struct d_run {
    const uint32_t * w;
    uint32_t order;
    __device__ d_run(const char * shared, int at, int k)
        : w((const uint32_t *) (shared + (ALIGNED ? at + (k & ~3) : (at + k) & ~3))),
          order(0x3210u + 0x1111u * ((uint32_t) (ALIGNED ? k : at + k) & 3u)) {}
    __device__ uint32_t operator[](int i) const { return ALIGN == 4 ? w[i] : d_permute(w[i], w[i + 1], order); }
};

// Byte i of a word as a float, less `zero`: put into the digits of 2^23.
static inline __device__ float d_byte_float(uint32_t word, int i, int zero = 0) {
    return __int_as_float((int) d_permute(word, 0x4b000000u, 0x7540u + (uint32_t) i)) - (float) (8388608 + zero);
}

// One scale and min for each of two groups.
template <typename OUT> static inline __device__ void d_two_scales(OUT & o, float scale0, float scale1, float min0, float min1) {
    o.scale[0] = scale0, o.scale[2] = scale1;
    o.min[0] = min0, o.min[2] = min1;
}

// The nibbles of 4 words: those of a group of 32 in blocks of 32.
static inline __device__ void d_low_and_high(const uint32_t * w, uint32_t * q) {
    UNROLL for (int k = 0; k < 4; ++k) {
        q[k] = w[k] & 0x0f0f0f0fu;
        q[4 + k] = w[k] & 0xf0f0f0f0u;
    }
}

// N words from byte k on, a multiple of 4; rows that are not aligned begin at multiples of ALIGN bytes.
template <int ALIGN, bool ALIGNED, int N> static inline __device__ void d_load_words(const char * shared, int at, int k, uint32_t (&v)[N]) {
    const d_run<ALIGNED ? 4 : ALIGN, ALIGNED> run(shared, at, k);
    UNROLL for (int i = 0; i < N; ++i) { v[i] = run[i]; }
}

// Bytes 2 .. 5 of two words.
static inline __device__ uint32_t d_middle(uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x5432); }

// 32 bytes at a multiple of 16 where rows are aligned, else of 4.
template <bool ALIGNED> static inline __device__ void d_words_8(const char * p, uint32_t (&w)[8]) {
    if (ALIGNED) {
        const uint4 a = ((const uint4 *) p)[0], b = ((const uint4 *) p)[1];
        w[0] = a.x, w[1] = a.y, w[2] = a.z, w[3] = a.w;
        w[4] = b.x, w[5] = b.y, w[6] = b.z, w[7] = b.w;
    } else {
        UNROLL for (int k = 0; k < 8; ++k) { w[k] = ((const uint32_t *) p)[k]; }
    }
}

// Two blocks of 18 bytes are 9 words: the first one's codes lie across words, the second one's do not.
template <bool ALIGNED, typename OUT>
static inline __device__ void d_pair_18(const char * shared, int at, int lane, uint32_t (&w)[8], OUT & o) {
    uint32_t v[9];
    d_load_words<2, ALIGNED>(shared, at, 36 * lane, v);
    UNROLL for (int k = 0; k < 4; ++k) {
        w[k] = d_middle(v[k], v[k + 1]);
        w[4 + k] = v[5 + k];
    }
    d_two_scales(o, d_low_half(v[0]), d_high_half(v[4]), 0.0f, 0.0f);
}

#define D_VEC_DECODE                   \
    template <bool ALIGNED, typename T> \
    static inline __device__ void decode(const char * shared, int at, int lane, [[maybe_unused]] const T & table, out & o)

template <> struct d_vec_traits<d_format<GCUDA_TYPE_Q4_0>> : d_vec_traits_of<d_format<GCUDA_TYPE_Q4_0>> {
    static constexpr int of_odd = 4;
    D_VEC_DECODE {
        uint32_t w[8];
        d_pair_18<ALIGNED>(shared, at, lane, w, o);
        d_low_and_high(w, o.q);
        d_low_and_high(w + 4, o.q + 8);
    }
};

template <> struct d_vec_traits<d_format<GCUDA_TYPE_Q4_1>> : d_vec_traits_of<d_format<GCUDA_TYPE_Q4_1>> {
    static constexpr int of_odd = 4;
    D_VEC_DECODE {
        const uint32_t * w = (const uint32_t *) (shared + at + 40 * lane);
        d_low_and_high(w + 1, o.q);
        d_low_and_high(w + 6, o.q + 8);
        d_two_scales(o, d_low_half(w[0]), d_low_half(w[5]), -d_high_half(w[0]), -d_high_half(w[5]));
    }
};

// Nibbles of four words with a fifth bit each.
static inline __device__ void d_with_fifth_bits(const uint32_t * w, uint32_t bits, uint32_t * q) {
    UNROLL for (int k = 0; k < 4; ++k) {
        q[k] = (w[k] & 0x0f0f0f0fu) | ((bits >> 4 * k & 15u) * 0x02040810u & 0x10101010u);
        q[4 + k] = (w[k] >> 4 & 0x0f0f0f0fu) | ((bits >> (4 * k + 16) & 15u) * 0x02040810u & 0x10101010u);
    }
}

template <> struct d_vec_traits<d_format<GCUDA_TYPE_Q5_0>> : d_vec_traits_of<d_format<GCUDA_TYPE_Q5_0>> {
    D_VEC_DECODE {
        uint32_t v[11], w[5];
        d_load_words<2, ALIGNED>(shared, at, 44 * lane, v);
        UNROLL for (int k = 0; k < 5; ++k) { w[k] = d_middle(v[k], v[k + 1]); }
        d_with_fifth_bits(w + 1, w[0], o.q);
        d_with_fifth_bits(v + 7, v[6], o.q + 8);
        d_two_scales(o, d_low_half(v[0]), d_high_half(v[5]), 0.0f, 0.0f);
    }
};

template <> struct d_vec_traits<d_format<GCUDA_TYPE_Q5_1>> : d_vec_traits_of<d_format<GCUDA_TYPE_Q5_1>> {
    D_VEC_DECODE {
        uint32_t v[8], w[4];
        const char * p = shared + at + 48 * lane;
        d_words_8<ALIGNED>(p, v);
        UNROLL for (int k = 0; k < 4; ++k) { w[k] = ((const uint32_t *) p)[8 + k]; }
        d_with_fifth_bits(v + 2, v[1], o.q);
        d_with_fifth_bits(w, v[7], o.q + 8);
        d_two_scales(o, d_low_half(v[0]), d_low_half(v[6]), -d_high_half(v[0]), -d_high_half(v[6]));
    }
};

template <> struct d_vec_traits<d_format<GCUDA_TYPE_Q8_0>> : d_vec_traits_of<d_format<GCUDA_TYPE_Q8_0>> {
    static constexpr bool is_signed = true;
    D_VEC_DECODE { // 68 bytes are 17 words
        uint32_t v[17];
        d_load_words<2, ALIGNED>(shared, at, 68 * lane, v);
        UNROLL for (int k = 0; k < 8; ++k) {
            o.q[k] = d_middle(v[k], v[k + 1]);
            o.q[8 + k] = v[9 + k];
        }
        d_two_scales(o, d_low_half(v[0]), d_high_half(v[8]), 0.0f, 0.0f);
    }
};

// Scales and mins of groups 2 j and 2 j + 1, two bytes each, from the first four words of a block.
template <typename OUT> static inline __device__ void d_pair_k_scales(const uint32_t * head, int j, OUT & o) {
    const int sh = 16 * (j & 1);
    const uint32_t a = head[1] >> sh, b = head[2] >> sh, c = head[3] >> sh;
    const uint32_t scale = j < 2 ? a & 0x3f3fu : (c & 0x0f0fu) | (a >> 2 & 0x3030u);
    const uint32_t min = j < 2 ? b & 0x3f3fu : (c >> 4 & 0x0f0fu) | (b >> 2 & 0x3030u);
    const float d = d_low_half(head[0]), dmin = d_high_half(head[0]);
    d_two_scales(o, d * d_byte_float(scale, 0), d * d_byte_float(scale, 1), dmin * d_byte_float(min, 0), dmin * d_byte_float(min, 1));
}

template <> struct d_vec_traits<d_format<GCUDA_TYPE_Q4_K>> : d_vec_traits_of<d_format<GCUDA_TYPE_Q4_K>> {
    static constexpr int of_second = 4;
    D_VEC_DECODE {
        const char * b = shared + at + 144 * (lane / 4);
        uint32_t w[8], head[8]; // the codes that follow the head are not used
        d_words_8<ALIGNED>(b + 16 + 32 * (lane % 4), w);
        d_words_8<ALIGNED>(b, head);
        d_pair_k_scales(head, lane % 4, o);
        UNROLL for (int k = 0; k < 8; ++k) {
            o.q[k] = w[k] & 0x0f0f0f0fu;
            o.q[8 + k] = w[k] & 0xf0f0f0f0u;
        }
    }
};

template <> struct d_vec_traits<d_format<GCUDA_TYPE_Q5_K>>
    : d_vec_traits_of<d_format<GCUDA_TYPE_Q5_K>, D_SIDE_BY_SIDE, 0, D_SCALED> {
    static constexpr int of_second = 4, more_ratio = 8;
    static inline __device__ float ratio(int lane) { return 16.0f / (float) (1 << 2 * (lane % 4)); }
    D_VEC_DECODE {
        const int j = lane % 4;
        const char * b = shared + at + 176 * (lane / 4);
        const uint32_t mask = 0x01010101u << 2 * j;
        uint32_t w[8], high[8], head[8];
        d_words_8<ALIGNED>(b + 48 + 32 * j, w);
        d_words_8<ALIGNED>(b + 16, high);
        d_words_8<ALIGNED>(b, head);
        d_pair_k_scales(head, j, o);
        UNROLL for (int k = 0; k < 8; ++k) {
            o.q[k] = w[k] & 0x0f0f0f0fu;
            o.q[8 + k] = w[k] & 0xf0f0f0f0u;
            o.more[k] = high[k] & mask;
            o.more[8 + k] = high[k] & mask << 1;
        }
    }
};

// Groups a and a + 2 of half `part`: low and high nibbles of the same bytes.
template <> struct d_vec_traits<d_format<GCUDA_TYPE_Q6_K>>
    : d_vec_traits_of<d_format<GCUDA_TYPE_Q6_K>, D_TWO_APART, 32, D_SCALED> {
    static constexpr int of_second = 4;
    static inline __device__ float ratio(int lane) { return lane % 2 ? 4.0f : 16.0f; }
    D_VEC_DECODE {
        const int part = lane % 4 / 2, a = lane % 2, b = 210 * (lane / 4);
        const uint32_t mask = 0x03030303u << 2 * a;
        const d_run<2, ALIGNED> low(shared, at, b + 64 * part + 32 * a), high(shared, at, b + 128 + 32 * part);
        UNROLL for (int k = 0; k < 8; ++k) {
            const uint32_t w = low[k], bits = high[k];
            o.q[k] = w & 0x0f0f0f0fu;
            o.q[8 + k] = w & 0xf0f0f0f0u;
            o.more[k] = bits & mask;
            o.more[8 + k] = bits & mask << 4;
        }
        const uint16_t * scales = (const uint16_t *) (shared + at + b + 192 + 8 * part + 2 * a);
        const uint32_t s[2] = { scales[0] ^ 0x8080u, scales[2] ^ 0x8080u };
        const float d = d_half_at(shared, at + b + 208);
        UNROLL for (int i = 0; i < 4; ++i) { o.scale[i] = d * d_byte_float(s[i / 2], i % 2, 128); }
    }
};

template <> struct d_vec_traits<d_format<GCUDA_TYPE_Q2_K>> : d_vec_traits_of<d_format<GCUDA_TYPE_Q2_K>> {
    static constexpr int of_second = 2, of_odd_lane = 4;
    D_VEC_DECODE {
        const int j = lane % 4;
        const uint32_t * b = (const uint32_t *) (shared + at + 84 * (lane / 4)), mask = 0x03030303u << 4 * (j % 2);
        const uint32_t scales = b[j] & 0x0f0f0f0fu, mins = b[j] >> 4 & 0x0f0f0f0fu, both = b[20];
        const float d = d_low_half(both), dmin = d_high_half(both);
        UNROLL for (int k = 0; k < 8; ++k) {
            const uint32_t w = b[4 + 8 * (j / 2) + k];
            o.q[k] = w & mask;
            o.q[8 + k] = w & mask << 2;
        }
        UNROLL for (int i = 0; i < 4; ++i) {
            o.scale[i] = d * d_byte_float(scales, i);
            o.min[i] = dmin * d_byte_float(mins, i);
        }
    }
};

template <> struct d_vec_traits<d_format<GCUDA_TYPE_Q3_K>>
    : d_vec_traits_of<d_format<GCUDA_TYPE_Q3_K>, D_SIDE_BY_SIDE, 4, D_SCALED> {
    static constexpr int one_warps = 24;
    static constexpr int of_second = 2, of_odd_lane = 4, more_ratio = 2;
    static inline __device__ float ratio(int lane) { return (lane % 2 ? 64.0f : 4.0f) / (float) (1 << 2 * (lane % 4)); }
    D_VEC_DECODE {
        const int j = lane % 4, part = j / 2, b = 110 * (lane / 4);
        const uint32_t mask = 0x03030303u << 4 * (j % 2), bit = 0x01010101u << 2 * j;
        const d_run<2, ALIGNED> high(shared, at, b), low(shared, at, b + 32 + 32 * part), s(shared, at, b + 96);
        const uint32_t scales = (s[j % 2] >> 4 * part & 0x0f0f0f0fu) | (s[2] >> 2 * j & 0x03030303u) << 4;
        const float d = d_low_half(d_permute(s.w[3], 0, s.order)); // of a word that has been read
        UNROLL for (int k = 0; k < 8; ++k) {
            const uint32_t w = low[k], bits = high[k];
            o.q[k] = w & mask;
            o.q[8 + k] = w & mask << 2;
            o.more[k] = bits & bit;
            o.more[8 + k] = bits & bit << 1;
        }
        UNROLL for (int i = 0; i < 4; ++i) { o.scale[i] = d * d_byte_float(scales, i, 32); }
    }
};

// Four words of nibbles through a table of 16 bytes in two parts (see d_eight_lookup).
static inline __device__ void d_two_lookups(
    uint32_t low0, uint32_t low1, uint32_t high0, uint32_t high1, const uint32_t * w, uint32_t * q, uint32_t * more) {
    UNROLL for (int k = 0; k < 4; ++k) {
        const uint32_t turned = w[k] ^ 0x88888888u;
        q[2 * k] = d_permute(low0, low1, w[k]);
        q[2 * k + 1] = d_permute(low0, low1, w[k] >> 16);
        more[2 * k] = d_permute(high0, high1, turned);
        more[2 * k + 1] = d_permute(high0, high1, turned >> 16);
    }
}
static inline __device__ void d_lookup_iq4(const uint32_t * w, uint32_t * q, uint32_t * more) { // as d_eight_iq4
    d_two_lookups(0xbfad9881u, 0xf6eaddcfu, 0x271a0e02u, 0x725a4636u, w, q, more);
}

template <> struct d_vec_traits<d_format<GCUDA_TYPE_IQ4_NL>>
    : d_vec_traits_of<d_format<GCUDA_TYPE_IQ4_NL>, D_INTERLEAVED, 0, D_ADDED> {
    static constexpr bool is_signed = true;
    static constexpr int quads = 1; // two: 3 % more time
    D_VEC_DECODE {
        uint32_t w[8];
        d_pair_18<ALIGNED>(shared, at, lane, w, o);
        d_lookup_iq4(w, o.q, o.more);
        d_lookup_iq4(w + 4, o.q + 8, o.more + 8);
    }
};

template <> struct d_vec_traits<d_format<GCUDA_TYPE_IQ4_XS>>
    : d_vec_traits_of<d_format<GCUDA_TYPE_IQ4_XS>, D_INTERLEAVED, 0, D_ADDED> {
    static constexpr bool is_signed = true;
    D_VEC_DECODE {
        const int j = lane % 4;
        const uint32_t * b = (const uint32_t *) (shared + at + 136 * (lane / 4)), head = b[0];
        const uint32_t low = b[1] >> 8 * j, high = head >> (16 + 4 * j);
        const float d = d_low_half(head);
        uint32_t w[8];
        UNROLL for (int k = 0; k < 4; ++k) { // at multiples of 8 where rows are aligned
            if (ALIGNED) {
                const uint2 two = ((const uint2 *) b)[1 + 4 * j + k];
                w[2 * k] = two.x, w[2 * k + 1] = two.y;
            } else {
                w[2 * k] = b[2 + 8 * j + 2 * k], w[2 * k + 1] = b[3 + 8 * j + 2 * k];
            }
        }
        d_lookup_iq4(w, o.q, o.more);
        d_lookup_iq4(w + 4, o.q + 8, o.more + 8);
        const uint32_t scales = (low & 15u) | (low << 4 & 0xf00u) | (high << 4 & 0x30u) | (high << 10 & 0x3000u);
        d_two_scales(o, d * d_byte_float(scales, 0, 32), d * d_byte_float(scales, 1, 32), 0.0f, 0.0f);
    }
};

// Magnitudes of codes below 8, and those of the others, which are negative.
template <> struct d_vec_traits<d_format<GCUDA_TYPE_MXFP4>>
    : d_vec_traits_of<d_format<GCUDA_TYPE_MXFP4>, D_INTERLEAVED, 0, D_TAKEN_OFF> {
    D_VEC_DECODE {
        UNROLL for (int h = 0; h < 2; ++h) {
            const d_run<1, ALIGNED> run(shared, at, 34 * lane + 17 * h + 1);
            uint32_t w[4];
            UNROLL for (int k = 0; k < 4; ++k) { w[k] = run[k]; }
            d_two_lookups(0x03020100u, 0x0c080604u, 0x03020100u, 0x0c080604u, w, o.q + 8 * h, o.more + 8 * h);
            o.scale[2 * h] = gcudai_mxfp4_scale(d_byte_at(shared, at + 34 * lane + 17 * h));
        }
    }
};

// Scales of IQ2_XS and IQ2_S: nibbles of two bytes.
template <typename OUT> static inline __device__ void d_nibble_scales(float d, uint32_t s, OUT & o) {
    d *= 0.25f;
    s = (s | s << 8) & 0x00ff00ffu;
    s = (s | s << 4) & 0x0f0f0f0fu;
    UNROLL for (int i = 0; i < 4; ++i) { o.scale[i] = d * (0.5f + d_byte_float(s, i)); }
}

template <> struct d_vec_traits<d_format<GCUDA_TYPE_IQ2_XXS>>
    : d_vec_traits_of<d_format<GCUDA_TYPE_IQ2_XXS>, D_SIDE_BY_SIDE, 0, D_NOTHING, 128> {
    static constexpr bool is_signed = true;
    static inline __device__ uint2 sign_entry(int i) { return make_uint2(4u * d_even_bits_to_nibbles((uint32_t) i), 0); }
    D_VEC_DECODE {
        const int b = 66 * (lane / 4);
        const d_run<2, ALIGNED> w(shared, at, b + 2 + 16 * (lane % 4));
        const float d = d_half_at(shared, at + b) * 0.25f;
        UNROLL for (int h = 0; h < 2; ++h) {
            const uint32_t codes = w[2 * h], aux = w[2 * h + 1];
            UNROLL for (int k = 0; k < 4; ++k) {
                d_pair_iq2(table.code(codes, k) | table.sign(aux, 7 * k), o.q + 8 * h + 2 * k);
            }
            o.scale[2 * h] = d * (0.5f + (float) (aux >> 28));
        }
    }
};

template <> struct d_vec_traits<d_format<GCUDA_TYPE_IQ2_XS>>
    : d_vec_traits_of<d_format<GCUDA_TYPE_IQ2_XS>, D_SIDE_BY_SIDE, 0, D_NOTHING, 128> {
    static constexpr bool is_signed = true, is_field = true;
    static inline __device__ uint2 sign_entry(int i) { return make_uint2(4u * d_even_bits_to_nibbles((uint32_t) i), 0); }
    D_VEC_DECODE {
        const int j = lane % 4, b = 74 * (lane / 4);
        const d_run<2, ALIGNED> w(shared, at, b + 2 + 16 * j);
        UNROLL for (int i = 0; i < 4; ++i) {
            const uint32_t codes = w[i];
            UNROLL for (int k = 0; k < 2; ++k) {
                d_pair_iq2(table.field(codes, 16 * k) | table.sign(codes, 16 * k + 9), o.q + 4 * i + 2 * k);
            }
        }
        d_nibble_scales(d_half_at(shared, at + b), *(const uint16_t *) (shared + at + b + 66 + 2 * j), o);
    }
};

template <> struct d_vec_traits<d_format<GCUDA_TYPE_IQ2_S>>
    : d_vec_traits_of<d_format<GCUDA_TYPE_IQ2_S>, D_SIDE_BY_SIDE, 0, D_NOTHING, 256> {
    static constexpr int one_warps = 24;
    static constexpr bool is_signed = true;
    static inline __device__ uint2 sign_entry(int i) { return make_uint2(4u * d_bits_to_nibbles((uint32_t) i), 0); }
    D_VEC_DECODE {
        const int j = lane % 4, b = 82 * (lane / 4);
        const d_run<2, ALIGNED> w(shared, at, b + 2 + 8 * j), s(shared, at, b + 34 + 8 * j);
        const uint32_t high = *(const uint16_t *) (shared + at + b + 66 + 2 * j);
        UNROLL for (int h = 0; h < 2; ++h) {
            const uint32_t codes = w[h], signs = s[h];
            UNROLL for (int k = 0; k < 4; ++k) {
                d_pair_iq2(table.code(codes, k, high, 8 * h + 2 * k) | table.sign(signs, 8 * k), o.q + 8 * h + 2 * k);
            }
        }
        d_nibble_scales(d_half_at(shared, at + b), *(const uint16_t *) (shared + at + b + 74 + 2 * j), o);
    }
};

// An entry's bytes turned where they are negative, which makes them one too small: what is taken off is -1 there.
template <> struct d_vec_traits<d_format<GCUDA_TYPE_IQ3_XXS>>
    : d_vec_traits_of<d_format<GCUDA_TYPE_IQ3_XXS>, D_SIDE_BY_SIDE, 0, D_TAKEN_OFF, 128, 2> {
    static constexpr bool is_signed = true;
    static inline __device__ uint2 sign_entry(int i) { return d_byte_masks(gcudai_even_signs((uint32_t) i), 255u); }
    D_VEC_DECODE {
        const int j = lane % 4, b = 98 * (lane / 4);
        const d_run<2, ALIGNED> w(shared, at, b + 2 + 16 * j), s(shared, at, b + 66 + 8 * j);
        const float d = d_half_at(shared, at + b) * 0.5f;
        UNROLL for (int h = 0; h < 2; ++h) {
            const uint32_t aux = s[h];
            UNROLL for (int k = 0; k < 4; ++k) {
                const uint32_t codes = w[2 * h + k / 2];
                const uint2 m = table.masks(aux, 7 * k);
                const int to = 8 * h + 2 * k, from = 2 * (k % 2);
                o.q[to] = table.code(codes, from) ^ m.x;
                o.q[to + 1] = table.code(codes, from + 1) ^ m.y;
                o.more[to] = m.x;
                o.more[to + 1] = m.y;
            }
            o.scale[2 * h] = d * (0.5f + (float) (aux >> 28));
        }
    }
};

template <> struct d_vec_traits<d_format<GCUDA_TYPE_IQ3_S>>
    : d_vec_traits_of<d_format<GCUDA_TYPE_IQ3_S>, D_SIDE_BY_SIDE, 0, D_NOTHING, 256, 2> {
    static constexpr int one_warps = 24;
    static constexpr bool is_signed = true;
    static inline __device__ uint2 sign_entry(int i) { return d_byte_masks((uint32_t) i, 254u); }
    D_VEC_DECODE {
        const int j = lane % 4, b = 110 * (lane / 4);
        const d_run<2, ALIGNED> w(shared, at, b + 2 + 16 * j), s(shared, at, b + 74 + 8 * j);
        const uint32_t high = *(const uint16_t *) (shared + at + b + 66 + 2 * j), scales = d_byte_at(shared, at + b + 106 + j);
        const float d = d_half_at(shared, at + b);
        UNROLL for (int h = 0; h < 2; ++h) {
            const uint32_t signs = s[h];
            UNROLL for (int k = 0; k < 4; ++k) {
                const uint32_t codes = w[2 * h + k / 2];
                const uint2 m = table.masks(signs, 8 * k); // entries are odd: the lowest bit stays
                const int to = 8 * h + 2 * k, from = 2 * (k % 2);
                o.q[to] = table.code(codes, from, high, to) ^ m.x;
                o.q[to + 1] = table.code(codes, from + 1, high, to + 1) ^ m.y;
            }
            o.scale[2 * h] = d * (1.0f + 2.0f * (float) (scales >> 4 * h & 15u));
        }
    }
};

// Eighths 8 digit - 9, with 2 more in groups that are moved up, as a min.
template <> struct d_vec_traits<d_format<GCUDA_TYPE_IQ1_S>> : d_vec_traits_of<d_format<GCUDA_TYPE_IQ1_S>, D_SIDE_BY_SIDE, 0> {
    static constexpr bool has_min = true;
    D_VEC_DECODE {
        const int j = lane % 4, b = 50 * (lane / 4);
        const d_run<2, ALIGNED> w(shared, at, b + 2 + 8 * j);
        const uint32_t both = d_run<2, ALIGNED>(shared, at, b + 34 + 4 * j)[0];
        const float d = d_half_at(shared, at + b) * 0.125f;
        UNROLL for (int h = 0; h < 2; ++h) {
            const uint32_t codes = w[h], high = both >> 16 * h;
            UNROLL for (int k = 0; k < 4; ++k) {
                d_pair_iq1(table.code(codes, k, high, 3 * k), o.q + 8 * h + 2 * k);
            }
            o.scale[2 * h] = d * (1.0f + 2.0f * (float) (high >> 12 & 7u));
            o.min[2 * h] = o.scale[2 * h] * ((high & 0x8000u) != 0 ? 9.0f : 7.0f);
        }
    }
};

template <> struct d_vec_traits<d_format<GCUDA_TYPE_IQ1_M>> : d_vec_traits_of<d_format<GCUDA_TYPE_IQ1_M>> {
    D_VEC_DECODE {
        const int j = lane % 4;
        const uint32_t * w = (const uint32_t *) (shared + at + 56 * (lane / 4));
        const uint32_t s01 = w[12], s23 = w[13], high = w[8 + j], scales = (j < 2 ? s01 : s23) >> 16 * (j % 2);
        const uint32_t d = (s01 >> 12 & 15u) | (s01 >> 28) << 4 | (s23 >> 12 & 15u) << 8 | (s23 >> 28) << 12;
        const float eighth = d_half((gcuda_fp16_t) d) * 0.125f;
        UNROLL for (int h = 0; h < 2; ++h) {
            const uint32_t codes = w[2 * j + h];
            UNROLL for (int k = 0; k < 4; ++k) {
                const int from = 16 * h + 4 * k;
                const uint32_t up = (high >> from & 8u) != 0 ? 0u : 0x44444444u;
                d_pair_iq1(table.code(codes, k, high, from) | up, o.q + 8 * h + 2 * k);
            }
        }
        UNROLL for (int i = 0; i < 4; ++i) { o.scale[i] = eighth * (1.0f + 2.0f * (float) (scales >> 3 * i & 7u)); }
    }
};

// ---- the kernel of one column, and of two ----
// Apart, since it is seldom wanted and long.
static NO_INLINE __device__ float4 d_load_any4(gcuda_type type, const char * at, int64_t stride) {
    return make_float4(d_load(type, at), d_load(type, at + stride), d_load(type, at + 2 * stride), d_load(type, at + 3 * stride));
}

static inline __host__ __device__ bool d_vec_has_floats(const d_job & p) { return p.b.type == GCUDA_TYPE_F32 && p.b_k == 4; }
static inline __device__ bool d_vec_is_packed(const d_job & p, const char * column) {
    return d_vec_has_floats(p) && (uintptr_t) column % 16 == 0;
}

// Four neighbouring elements of a column; beyond k zeros.
static inline __device__ float4 d_vec_load4(const d_job & p, const char * column, int64_t k, bool is_packed) {
    if (k >= p.k) {
        return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    return is_packed ? *(const float4 *) (column + k * 4) : d_load_any4(p.b.type, column + k * p.b_k, p.b_k);
}

template <typename A> static inline __host__ __device__ constexpr d_vec_form d_vec_form_of() {
    typedef d_vec_traits<A> V;
    return { V::order, V::zero, V::has_min, V::of_odd, V::of_second, V::of_odd_lane };
}

// Blocks of the columns' kernel that a multiprocessor has room for; older ones and those of 12.0 have fewer threads.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ < 900 || __CUDA_ARCH__ >= 1200)
#define VEC_COLUMNS_BLOCKS 4
#else
#define VEC_COLUMNS_BLOCKS 8
#endif

// The columns of all matrices, one after another, for kernels of several columns.
static __global__ void __launch_bounds__(256, VEC_COLUMNS_BLOCKS)
    k_mul_mat_vec_columns(const d_vec_job p, const d_vec_form f, int4 * xq, float2 * xs) {
    d_start_next();
    const int64_t n = p.job.n * p.job.a.ne[2] * p.job.a.ne[3] * p.steps * 2;
    for (int64_t i = blockIdx.x; i < n; i += gridDim.x) { // a block has half a step
        const int64_t unit = i / 2, column = unit / p.steps, matrix = column < p.job.n ? 0 : column / p.job.n;
        const int w = (int) (i % 2 * 8 + threadIdx.x / 32), lane = (int) threadIdx.x % 32;
        const int64_t k = (unit - column * p.steps) * VEC_STEP + 128 * w + 4 * d_vec_quad(lane, f.order);
        const d_tile t = { 0, 0, matrix, (int) p.job.n };
        const char * b;
        char * y;
        d_tile_column(p.job, t, (int) (column - matrix * p.job.n), &b, &y);
        const bool is_packed = d_vec_is_packed(p.job, b);
        d_wait_before();
        d_vec_quantize4(d_vec_load4(p.job, b, k, is_packed), w, lane, f, xq + unit * 128, xs + unit * 128);
    }
}

template <typename A> struct d_vec_format {
    static constexpr int step_bytes = VEC_STEP / A::n * (int) sizeof(typename A::block);
    static constexpr int slot_bytes = step_bytes + 16; // rows may begin anywhere
};

// Warps, as many as the registers of the columns allow; slots of a warp, so that enough bytes are on their way for the
// latency of memory whatever the number of warps.
template <typename A, int COLS> struct d_vec_shape {
    static constexpr bool has_tables = d_vec_traits<A>::codes > 0; // which need room
    static constexpr int max_warps = COLS == 1 ? d_vec_traits<A>::one_warps : COLS == 2 ? 16 : 8;
    static constexpr int one = has_tables ? 2816 : 3456, two = has_tables ? 4352 : 6912;
    static constexpr int most = (COLS == 1 ? one : COLS == 2 ? two : 9216) / d_vec_format<A>::step_bytes;
    static constexpr int slots = most < 2 ? 2 : most > 8 ? 8 : most;
    // The kernel makes the columns ready, in so many bytes for a step; two only where rows take long to decode.
    static constexpr bool is_own = COLS == 1 || (COLS == 2 && has_tables);
    static constexpr int column_bytes = is_own ? COLS * 3072 : 0;
    // Steps side by side: half of the warps of one column at most, with which few rows make do, so that those add up in the same order.
    static constexpr int at_once = max_warps == 32 || (COLS == 2 && !has_tables) ? 16 : 8;
};

// Formats with a scale for 16 elements; the others have one for 32.
template <typename A> struct d_has_two_scales { static constexpr bool value = false; };
#define X(ID) \
    template <> struct d_has_two_scales<d_format<GCUDA_TYPE_##ID>> { static constexpr bool value = true; };
X(Q2_K) X(Q3_K) X(Q6_K) X(IQ2_XS) X(IQ2_S) X(IQ1_M)
#undef X

// Sum over a lane's 64 elements of a column.
template <typename A> static inline __device__ float d_vec_dot(const d_vec_codes<A> & o, const d_vec_x & x, float ratio) {
    typedef d_vec_traits<A> V;
    constexpr int BIAS = 0x4b400000; // the bits of D_BIAS
    float r[4], sum = 0.0f;
    UNROLL for (int i = 0; i < 4; ++i) {
        int dot = d_dot_16<V::is_signed>(o.q + 4 * i, x.q[i], V::zero != 0 ? __float_as_int(x.s[i].y) : BIAS);
        if (V::more == D_ADDED) { dot = d_dot_16<V::is_signed>(o.more + 4 * i, x.q[i], dot); }
        const int second = V::more == D_SCALED || V::more == D_TAKEN_OFF ? d_dot_16<V::is_signed>(o.more + 4 * i, x.q[i], BIAS) : 0;
        r[i] = V::more == D_TAKEN_OFF ? __int_as_float(dot) - __int_as_float(second) : d_unbiased(dot);
        if (V::more == D_SCALED) { r[i] += (i < 2 ? ratio : ratio * (float) V::more_ratio) * d_unbiased(second); }
    }
    UNROLL for (int i = 0; i < 4; i += 2) {
        const float2 s0 = x.s[i], s1 = x.s[i + 1];
        if (d_has_two_scales<A>::value) {
            sum += o.scale[i] * (s0.x * r[i]) + o.scale[i + 1] * (s1.x * r[i + 1]);
            if (V::has_min) { sum -= o.min[i] * s0.y + o.min[i + 1] * s1.y; }
        } else {
            sum += o.scale[i] * (s0.x * r[i] + s1.x * r[i + 1]);
            if (V::has_min) { sum -= o.min[i] * (s0.y + s1.y); }
        }
    }
    return sum;
}

// A warp's ring of slots: the copies of rows that are on their way. Row i comes into slot i % SLOTS.
template <typename A, int SLOTS, bool ALIGNED> struct d_vec_ring {
    typedef d_vec_format<A> F;
    d_shared_at slots; // this lane's first 16 bytes of each
    const char * from; // and where they come from, in the step of the next row to fetch
    int64_t to_odd, to_even; // bytes from an even row to the next, and from an odd one: of two matrices they come in turn
    int left;          // bytes from this lane's first to the end of the step

    // Into the slot at this byte, if there is such a row.
    __device__ void fetch(int slot, bool is_odd, bool is_there) {
        const int off = ALIGNED ? 0 : (int) ((uintptr_t) from & 15);
        const d_shared_at to = slots + slot;
        UNROLL for (int c = 0; c < (F::slot_bytes - (ALIGNED ? 16 : 0) + 511) / 512; ++c) {
            const int n = left + off - 512 * c;
            if (is_there && n > 0) { d_copy_16_to(to + 512 * c, from - off + 512 * c, ALIGNED ? 16 : n < 16 ? n : 16); }
        }
        from += is_odd ? to_even : to_odd;
        d_copies_commit(); // also when there is nothing: commits are counted
    }
};

template <int COLS>
static inline __device__ void d_vec_column(const d_vec_job & p, int64_t matrix, int c, int step, int row_lane, d_vec_x & x) {
    const int64_t column = COLS == 1 ? matrix : matrix * p.job.n + (p.first_column + c < p.job.n ? p.first_column + c : p.job.n - 1);
    UNROLL for (int j = 0; j < 4; ++j) {
        const int64_t at = (column * p.steps + step) * 128 + 32 * j + row_lane;
        x.q[j] = p.xq[at];
        x.s[j] = p.xs[at];
    }
}

// One step of a column, through shared memory into registers: every warp of the step makes parts of it ready. What
// `meanwhile` starts is asked of memory after the column, which the block waits for first.
template <typename A, typename F>
static inline __device__ void d_vec_own_column(
    const d_vec_job & p, const char * column, int64_t step, int sub, int lane, int row_lane, char * shared, d_vec_x & x, F meanwhile) {
    constexpr d_vec_form FORM = d_vec_form_of<A>();
    constexpr int N = d_vec_traits<A>::quads, AT_ONCE = 4 / N; // parts that a warp makes ready together, and how often side by side
    const int n_sub = (int) blockDim.y, second = d_vec_second_quad(lane, FORM.order);
    const int first = N == 2 ? d_vec_eight(lane, FORM.order) : 4 * d_vec_quad(lane, FORM.order);
    const int64_t start = step * VEC_STEP, left = p.k - start;
    const int n = (int) (left < VEC_STEP ? left : VEC_STEP) - first; // elements from this lane's first
    int4 * xq = (int4 *) shared;
    float2 * xs = (float2 *) (shared + 2048);
    const bool is_packed = p.has_floats && (uintptr_t) column % 16 == 0;
    const int64_t b_k = is_packed ? 4 : p.job.b_k;
    const char * from = column + (start + first) * b_k;
    int w = N * sub;
    do { // 16 parts of 128 elements
        float4 v[AT_ONCE][N];
        UNROLL for (int k = 0; k < AT_ONCE; ++k) {
            const int at = 128 * (w + N * k * n_sub);
            UNROLL for (int j = 0; j < N; ++j) { v[k][j] = make_float4(0.0f, 0.0f, 0.0f, 0.0f); }
            if (at < VEC_STEP && at < n && is_packed) {
                UNROLL for (int j = 0; j < N; ++j) { v[k][j] = *(const float4 *) (from + (at + second * j) * 4); }
            } else if (at < VEC_STEP && at < n) {
                UNROLL for (int j = 0; j < N; ++j) { v[k][j] = d_load_any4(p.job.b.type, from + (at + second * j) * b_k, b_k); }
            }
        }
        if (w == N * sub) { meanwhile(); }
        UNROLL for (int k = 0; k < AT_ONCE; ++k) {
            const int part = w + N * k * n_sub;
            if (part < 16) { d_vec_quantize<N>(v[k], part, lane, FORM, xq, xs); } // all of a warp go on together
        }
        w += 4 * n_sub;
    } while (w < 16);
    __syncthreads();
    UNROLL for (int j = 0; j < 4; ++j) {
        x.q[j] = xq[32 * j + row_lane];
        x.s[j] = xs[32 * j + row_lane];
    }
}

// The same of two columns: while four parts are made ready, the next four are on their way.
template <typename A, typename F>
static inline __device__ void d_vec_own_pair(const d_vec_job & p, const char * column0, const char * column1, int64_t step, int sub,
    int lane, char * shared, d_vec_x (&x)[2], F meanwhile) {
    constexpr d_vec_form FORM = d_vec_form_of<A>();
    const int n_sub = (int) blockDim.y, quad = 4 * d_vec_quad(lane, FORM.order);
    const int64_t start = step * VEC_STEP, left = p.job.k - start;
    const int n = (int) (left < VEC_STEP ? left : VEC_STEP) - quad;
    const bool is_packed = d_vec_is_packed(p.job, column0) && d_vec_is_packed(p.job, column1);
    const int64_t b_k = is_packed ? 4 : p.job.b_k, from = (start + quad) * b_k;
    const auto load = [&](int column, int first, float4 (&to)[4]) {
        const char * at = (column == 0 ? column0 : column1) + from;
        UNROLL for (int k = 0; k < 4; ++k) {
            const int part = first + k * n_sub;
            if (part >= 16 || 128 * part >= n) {
                to[k] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            } else {
                to[k] = is_packed ? *(const float4 *) (at + 512 * part) : d_load_any4(p.job.b.type, at + 128 * part * b_k, b_k);
            }
        }
    };
    const auto xq_of = [&](int column) { return (int4 *) (shared + 3072 * column); };
    const auto xs_of = [&](int column) { return (float2 *) (shared + 3072 * column + 2048); };
    float4 v[4] = {}, next[4];
    int c = -1, w = 0, next_c = 0, next_w = sub;
    NO_UNROLL while (c < 2) {
        if (next_c < 2) { load(next_c, next_w, next); }
        if (c < 0) { meanwhile(); }
        UNROLL for (int k = 0; k < 4; ++k) {
            const int part = w + k * n_sub;
            if (c >= 0 && part < 16) { d_vec_quantize4(v[k], part, lane, FORM, xq_of(c), xs_of(c)); }
            v[k] = next[k];
        }
        c = next_c;
        w = next_w;
        next_w += 4 * n_sub;
        if (next_w >= 16) {
            next_w = sub;
            ++next_c;
        }
    }
    __syncthreads();
    UNROLL for (int i = 0; i < 2; ++i) {
        UNROLL for (int j = 0; j < 4; ++j) {
            x[i].q[j] = xq_of(i)[32 * j + lane];
            x[i].s[j] = xs_of(i)[32 * j + lane];
        }
    }
}

// Where column c of a product is in y. Counts of matrices and slots fit 32 bits, whose divisions are short.
static inline __device__ d_index d_vec_index(const d_vec_job & p, int item, int c) {
    if (p.ids.data != nullptr) {
        const uint32_t used = (uint32_t) p.ids.ne[0];
        return { 0, (uint32_t) item % used, (uint32_t) item / used, 0 };
    }
    if (p.job.b.ne[2] == 1 && p.job.b.ne[3] == 1) {
        return { 0, c, 0, 0 };
    }
    const uint32_t n1 = (uint32_t) p.job.y.ne[1], ne2 = (uint32_t) p.job.a.ne[2], r2 = (uint32_t) p.job.b.ne[2] / ne2;
    const uint32_t r3 = (uint32_t) p.job.b.ne[3] / (uint32_t) p.job.a.ne[3], of_matrix = (uint32_t) c / n1;
    return { 0, (uint32_t) c % n1, (uint32_t) item % ne2 * r2 + of_matrix % r2, (uint32_t) item / ne2 * r3 + of_matrix / r2 };
}

static inline __device__ const char * d_vec_b(const d_vec_job & p, const d_index & at) {
    return p.ids.data != nullptr ? d_at(p.job.b, 0, (uint32_t) at.i1 % (uint32_t) p.job.b.ne[1], at.i2, 0)
                                 : d_at(p.job.b, 0, 0, at.i2, at.i3) + at.i1 * p.job.b_c;
}

// The matrix of a product; of mul_mat_id the expert of a slot, -1 for a bad id.
static inline __device__ int64_t d_vec_matrix(const d_vec_job & p, int item, const d_index & at) {
    if (p.ids.data == nullptr) {
        return item;
    }
    const int32_t id = *(const int32_t *) d_at(p.ids, at.i1, at.i2, 0, 0);
    return id >= 0 && id < p.n_experts ? id : -1;
}

static inline __device__ const char * d_vec_a(const d_vec_job & p, int64_t matrix) {
    const uint32_t ne2 = (uint32_t) p.job.a.ne[2], i = (uint32_t) matrix;
    return p.job.a.ne[3] == 1 ? d_at(p.job.a, 0, 0, i, 0) : d_at(p.job.a, 0, 0, i % ne2, i / ne2);
}

// Entry i of a table's first part, and what belongs to signs.
template <typename A> static inline __device__ uint4 d_vec_signs_4(int i) {
    const uint2 entry = d_vec_traits<A>::sign_entry(i);
    const uint32_t second = d_vec_traits<A>::sign_words == 2 ? entry.y : entry.x;
    return make_uint4(entry.x, second, entry.x, second);
}

template <typename A, int COLS, bool WIDE> static inline __device__ void d_vec_fill_tables(char * shared) {
    typedef d_vec_traits<A> V;
    typedef d_vec_tables<A, WIDE> T;
    const int n_threads = (int) (blockDim.x * blockDim.y), thread = (int) (threadIdx.y * blockDim.x + threadIdx.x);
    if (WIDE) { // 16 bytes at a time
        for (int i = thread; i < T::code_bytes / 16; i += n_threads) {
            const int upper = i >> 4, within = i % 16 * 16 >> T::sub_shift;
            if (T::is_shared && within == 1) {
                if (upper < V::signs) { ((uint4 *) shared)[i] = d_vec_signs_4<A>(upper); }
            } else {
                const uint32_t w = d_mma_format<A>::entry(V::is_field ? i * 16 >> T::sub_shift : upper + 256 * within);
                ((uint4 *) shared)[i] = make_uint4(w, w, w, w);
            }
        }
        for (int i = thread; i < (T::n_bytes - T::code_bytes) / 16; i += n_threads) {
            ((uint4 *) (shared + T::signs_at))[i] = d_vec_signs_4<A>(i * 16 >> T::sign_shift);
        }
    } else {
        for (int i = thread; i < V::codes; i += n_threads) { ((uint32_t *) shared)[i] = d_mma_format<A>::entry(i); }
        for (int i = thread; i < V::signs; i += n_threads) {
            const uint2 entry = V::sign_entry(i);
            uint32_t * to = (uint32_t *) (shared + T::signs_at) + V::sign_words * i;
            to[0] = entry.x;
            if (V::sign_words == 2) { to[1] = entry.y; }
        }
    }
    if (!d_vec_shape<A, COLS>::is_own && V::codes > 0) { __syncthreads(); } // where the kernel makes the columns ready it waits then
}

// The block of the whole work that this one is: divisions are left to where there is more than one matrix.
template <int COLS> static inline __device__ d_vec_task d_vec_task_of(const d_vec_job & p, int64_t i) {
    d_vec_task t = { p.a, p.b, p.y, p.m, 0, (int) i, p.blocks, p.rounds, 0, { 0, 0, 0, 0 } };
    if (COLS <= 2 && p.n_more > 0) {
        for (int j = 0; t.block >= t.blocks; ++j) {
            const d_vec_more & more = p.more[j];
            t.block -= t.blocks;
            t.a = more.a, t.y = more.y, t.m = more.m, t.blocks = more.blocks, t.rounds = more.rounds;
            if (COLS == 2) { t.item = j + 1; }
        }
    } else if (!p.is_one) {
        t.item = (int) ((uint32_t) i / (uint32_t) p.blocks);
        t.block -= t.item * t.blocks;
        t.at = d_vec_index(p, t.item, p.first_column);
        t.matrix = d_vec_matrix(p, t.item, t.at);
        t.a = t.matrix >= 0 ? d_vec_a(p, t.matrix) : t.a;
        t.b = d_vec_b(p, t.at);
        t.y = d_at(p.job.y, t.at);
    }
    return t;
}

// Of row r of a block: in which round it has it, and which of the matrix it is.
static inline __device__ int d_vec_round(const d_vec_job & p, int r) { return (int) ((uint32_t) r * p.per_side >> 20); }
static inline __device__ int d_vec_row(const d_vec_job & p, const d_vec_task & t, int r) {
    return r + (d_vec_round(p, r) * (t.blocks - 1) + t.block) * p.n_side;
}

// The block's sums over steps, [step][row][column], are added up and stored. added: what is added to its rows.
template <int COLS>
static inline __device__ void d_vec_store(const d_vec_job & p, const d_vec_task & t, const float * part, const float * added, bool has_up) {
    const int n_side = p.n_side, n_threads = (int) (blockDim.x * blockDim.y), n = t.rounds * n_side;
    const int n_parts = has_up ? 2 : 1, stride = n * n_parts * COLS;
    NO_UNROLL for (int i = (int) (threadIdx.y * blockDim.x + threadIdx.x); i < n * COLS; i += n_threads) {
        const int r = i / COLS, round = d_vec_round(p, r), row = d_vec_row(p, t, r);
        const int c = COLS == 1 ? 0 : p.first_column + i % COLS;
        if (row < t.m && (COLS == 1 || c < p.job.n)) {
            const float * sums = part + (round * (n_parts - 1) * n_side + r) * COLS + i % COLS;
            float sum = 0.0f, up = 0.0f;
            for (int s = 0; s < p.at_once && t.matrix >= 0; ++s) { sum += sums[s * stride]; }
            for (int s = 0; s < p.at_once && t.matrix >= 0 && has_up; ++s) { up += sums[n_side * COLS + s * stride]; }
            d_index to = COLS == 1 ? t.at : d_vec_index(p, t.item, c);
            const bool is_more = COLS == 2 && p.n_more > 0 && t.item > 0; // its result has columns of its own length
            char * y = COLS == 1 ? t.y : is_more ? t.y + c * p.more[t.item - 1].y_c * p.y_0 : d_at(p.job.y, to);
            to.i0 = row;
            if (p.finish == D_VEC_ADD) {
                sum = d_add_rn(sum, added[r]);
            } else if (p.finish == D_VEC_GLU && t.matrix >= 0) {
                sum = d_glu(p.glu, sum, up, p.alpha, p.limit);
            } else if (p.finish == D_VEC_ANY && t.matrix >= 0) {
                sum = d_finish(p.job, sum, up, to, p.ids.data != nullptr ? t.matrix : -1);
            }
            d_store(p.y_type, y + row * p.y_0, sum);
        }
    }
}

// Rows block * n_side + sub, then every blocks * n_side, of one product; with a second matrix those of both in turn. A block is
// at_once warps wide and n_sub high; where a warp has two rows at a time, half of its lanes for each, n_side is twice n_sub.
template <typename A, int COLS, bool ALIGNED, bool WIDE>
static inline __device__ void d_mul_mat_vec(const d_vec_job & p, char * shared, const d_vec_task & t, bool is_first) {
    constexpr int SLOTS = d_vec_shape<A, COLS>::slots;
    const int lane = (int) (threadIdx.x % 32), step = (int) (threadIdx.x / 32), sub = (int) threadIdx.y, n_sub = (int) blockDim.y;
    const int row_lanes = COLS == 1 && ALIGNED && !WIDE ? p.row_lanes : 32, row_lane = lane & (row_lanes - 1);
    const int warp = sub * p.at_once + step, n_warps = n_sub * p.at_once, n_side = p.n_side;
    const int side = row_lanes == 32 ? sub : 2 * sub; // of this warp's first row
    const int row0 = t.block * n_side + side, row_step = t.blocks * n_side;
    const bool has_up = COLS <= 2 && p.has_up;
    const int n_parts = has_up ? 2 : 1;
    const int n_rounds = row0 + (t.rounds - 1) * row_step < t.m ? t.rounds : t.rounds - 1;
    const int n_rows = t.matrix >= 0 ? n_rounds * n_parts : 0; // of this warp
    typedef d_vec_tables<A, WIDE> T;
    const int ring_at = T::n_bytes + warp * SLOTS * d_vec_format<A>::slot_bytes;
    char * columns = shared + T::n_bytes + n_warps * SLOTS * d_vec_format<A>::slot_bytes;
    const T table(shared, lane);
    const float ratio = d_vec_traits<A>::ratio(lane);
    float * part = (float *) (columns + p.at_once * d_vec_shape<A, COLS>::column_bytes); // [row of the block][step][column]
    const auto added = [&]() { return part + t.rounds * n_parts * n_side * p.at_once; }; // behind them
    d_vec_ring<A, SLOTS, ALIGNED> ring;
    ring.slots = d_shared_at_of(shared + ring_at + 16 * lane);
    const int64_t up_at = p.up_at, stride = row_step * p.a_m;
    ring.to_odd = has_up ? up_at : stride;
    ring.to_even = stride - up_at;
    for (int first = 0; first < p.steps; first += p.at_once) {
        const int64_t start = (int64_t) (first + step) * d_vec_format<A>::step_bytes;
        const bool has_step = start < p.row_bytes;
        const char * a = t.a + row0 * p.a_m + start;
        const int rows = has_step ? n_rows : 0;
        ring.from = a + 16 * lane;
        ring.left =
            (int) (p.row_bytes - start < d_vec_format<A>::step_bytes ? p.row_bytes - start : d_vec_format<A>::step_bytes) - 16 * lane;
        d_vec_x x[COLS];
        const auto fill = [&]() {
            UNROLL for (int s = 0; s < SLOTS; ++s) { ring.fetch(s * d_vec_format<A>::slot_bytes, s % 2 == 1, s < rows); }
        };
        const bool is_early = p.is_early && is_first && first == 0;
        const bool is_made = !d_vec_shape<A, COLS>::is_own || (COLS == 1 && p.xq != nullptr); // else here, by each block
        const bool needs_tables = COLS == 1 && d_vec_traits<A>::codes > 0 && is_made && is_first && first == 0;
        if (is_early) { fill(); }
        if (needs_tables) { d_vec_fill_tables<A, COLS, WIDE>(shared); }
        if (is_early) { d_wait_before(); }
        if (!is_made) {
            if (first > 0) { __syncthreads(); } // the column's last step has been read
            char * own = columns + d_vec_shape<A, COLS>::column_bytes * step;
            const auto meanwhile = [&]() {
                if (!is_early) { fill(); }
                if (is_first && first == 0) { d_vec_fill_tables<A, COLS, WIDE>(shared); } // the column is waited for meanwhile
            };
            if constexpr (COLS == 1) {
                d_vec_own_column<A>(p, t.b, first + step, sub, lane, row_lane, own, x[0], meanwhile);
            } else if constexpr (d_vec_shape<A, COLS>::is_own) {
                const char * second = p.is_one ? t.b + p.job.b_c : d_vec_b(p, d_vec_index(p, t.item, 1));
                d_vec_own_pair<A>(p, t.b, second, first + step, sub, lane, own, x, meanwhile);
            }
        } else {
            UNROLL for (int c = 0; c < COLS; ++c) {
                d_vec_column<COLS>(p, t.matrix, c, has_step ? first + step : 0, row_lane, x[c]);
            }
            if (!is_early) { fill(); }
            if (needs_tables) { __syncthreads(); }
        }
        if (COLS == 1 && p.finish == D_VEC_ADD && first == 0) { // goes on its way with the next copies of the ring
            const int r = 4 * (warp * 32 + lane), left = r < t.rounds * n_side ? t.m - d_vec_row(p, t, r) : 0; // elements
            if (left > 0) {
                d_copy_16((char *) (added() + r), p.add + (t.m - left) * (int64_t) sizeof(float), left < 4 ? 4 * left : 16);
            }
        }
        const int64_t after = p.k - (int64_t) (first + step) * VEC_STEP;
        const int n_left = (int) (after < VEC_STEP ? after : VEC_STEP) - 64 * row_lane; // elements from this lane's first
        // Half of a row's lanes end with the sum of row i, the others with that of row i + 1, and the first of them stores it while i
        // is below; of two columns lanes 8 and 24 store the second.
        const int n_half = row_lanes / 2, which = (lane & n_half) != 0 ? 1 : 0;
        const int end = (lane & ((COLS == 2 ? 8 : n_half) - 1)) == 0 ? rows - which : 0;
        float * sums = part + (step * t.rounds * n_parts * n_side + which * n_side + side + (lane & row_lanes) / 16) * COLS +
                       (COLS == 2 ? lane / 8 % 2 : 0);
        int slot = 0;
        NO_UNROLL for (int i = 0; i < rows; i += 2) {
            float sum[2][COLS] = {};
            const auto multiply = [&](int u, float (&dots)[COLS]) {
                if (u == 0 || i + 1 < rows) {
                    d_copies_wait<SLOTS - 1>();
                    __syncwarp();
                    const int64_t row_at = has_up ? i / 2 * stride + u * up_at : (i + u) * stride;
                    const int off = ALIGNED ? 0 : (int) ((uintptr_t) (a + row_at) & 15);
                    d_vec_codes<A> o;
                    d_vec_traits<A>::template decode<ALIGNED>(shared, ring_at + slot + off, lane, table, o);
                    if (A::n == 32 && n_left <= 32) { o.scale[2] = o.min[2] = 0.0f; } // else groups come in eights
                    UNROLL for (int c = 0; c < COLS; ++c) { dots[c] = d_vec_dot<A>(o, x[c], ratio); }
                    __syncwarp();
                    ring.fetch(slot, (u + SLOTS) % 2 == 1, i + u + SLOTS < rows);
                    slot = slot == (SLOTS - 1) * d_vec_format<A>::slot_bytes ? 0 : slot + d_vec_format<A>::slot_bytes;
                }
            };
            UNROLL for (int u = 0; u < 2; ++u) { multiply(u, sum[u]); }
            float all[COLS];
            UNROLL for (int c = 0; c < COLS; ++c) { // both at once: each half of a row's lanes adds up one
                if (n_left <= 0) { sum[0][c] = sum[1][c] = 0.0f; } // what lies beyond the row may be no number
                const float other = __shfl_xor_sync(0xffffffffu, which == 0 ? sum[1][c] : sum[0][c], n_half);
                all[c] = (which == 0 ? sum[0][c] : sum[1][c]) + other;
            }
            if (COLS == 2) { // each quarter a column of a row
                const bool is_second = lane % 16 >= 8;
                const float other = __shfl_xor_sync(0xffffffffu, is_second ? all[0] : all[COLS - 1], 8);
                all[0] = (is_second ? all[COLS - 1] : all[0]) + other;
            }
            UNROLL for (int c = 0; c < (COLS == 2 ? 1 : COLS); ++c) {
                if (COLS != 2) {
                    const float other = __shfl_xor_sync(0xffffffffu, all[c], 8);
                    all[c] += n_half == 16 ? other : 0.0f; // of a pair that is the other row's
                }
                UNROLL for (int d = 4; d > 0; d /= 2) { all[c] += __shfl_xor_sync(0xffffffffu, all[c], d); }
                if (i < end) { sums[c] = first == 0 ? all[c] : sums[c] + all[c]; }
            }
            sums += 2 * n_side * COLS;
        }
    }
    if (t.matrix < 0 && threadIdx.x == 0 && sub == 0 && p.bad_index != nullptr) {
        *p.bad_index = 1;
    }
    if (COLS == 1 && p.finish == D_VEC_ADD) {
        d_copies_commit();
        d_copies_wait<0>();
    }
    __syncthreads();
    d_vec_store<COLS>(p, t, part, added(), has_up);
}

template <typename A, int COLS, bool ALIGNED, bool WIDE>
static __global__ void __launch_bounds__(32 * d_vec_shape<A, COLS>::max_warps, 1) k_mul_mat_vec(const d_vec_job p) {
    DYNAMIC_SHARED(char, shared);
    if (COLS > 2 && D_TENSOR_CORES) { return; } // never launched where there are, and large
    d_start_next();
    if (!d_vec_shape<A, COLS>::is_own) { d_vec_fill_tables<A, COLS, WIDE>(shared); }
    if (!p.is_early) { d_wait_before(); }
    for (int64_t i = blockIdx.x; i < p.n_items; i += gridDim.x) {
        if (i != blockIdx.x) { __syncthreads(); } // the sums of the last one are read
        d_mul_mat_vec<A, COLS, ALIGNED, WIDE>(p, shared, d_vec_task_of<COLS>(p, i), i == blockIdx.x);
    }
}

// ---- 3 to 16 columns, and what is left of 2: tensor cores ----
// A warp takes 16 rows at a time, 512 or 256 elements of each, which come through its ring as above. Lane (g, t), with
// g = lane / 4 and t = lane % 4, decodes eight elements of rows g and g + 8 of every group of 32, which is what a product of
// 16 x 32 bytes with 32 x 8 wants of it; the columns' bytes stay in registers in the order in which the format's come. A
// piece is 32 or 16 elements, those that share a scale. The warps of a block have the steps of the same rows; after a few
// tiles their sums meet in shared memory, in one order.
//   floor   bytes of the weights; the columns come from L2, once for each block

#define MMA_STEP 512 // elements of a column that are made ready together
#define MMA_GROUPS (MMA_STEP / 32)
#define MMA_COLUMNS 8     // of a product of bytes: a tile of columns
#define MMA_MOST 16       // columns: two tiles
#define MMA_TILE (16 * MMA_COLUMNS)
#define MMA_SUMS 16       // tiles of a block whose sums are kept when its warps come back for more steps
#define MMA_LANES 8       // that copy a row together: 128 bytes at a time, as memory has them in a line
#define MMA_SHARED (227 * 1024)
#define MMA_BESIDE 128    // threads of a block of the columns' kernel, with 64 registers each

// At most so many registers; where the compiler cannot be told or kernels do not overlap, as many as so many threads leave it.
#if defined(__CUDACC__) && !defined(__clang__) && CUDART_VERSION >= 12040 && (!defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900)
#define MMA_BOUNDS(THREADS, REGISTERS) __maxnreg__(REGISTERS)
#else
#define MMA_BOUNDS(THREADS, REGISTERS) __launch_bounds__(THREADS, 1)
#endif

struct d_mma_job {
    // What the usual product reads, side by side as in d_vec_job; the job itself comes last.
    int64_t n_items;
    const uint2 * xq;  // columns as bytes, [matrix][step][tile][group][lane], and
    const float4 * xs; // [matrix][step][tile][piece][t]: scales of columns 2t and 2t + 1, then what their sums are good for
    int64_t a_m, row_bytes;
    int n, n_more;     // columns of a matrix; matrices of a group, behind the first
    int units;         // of MMA_STEP elements of a column
    int steps, at_once, passes, n_sub, rounds; // steps are d_mma_shape's
    bool is_one;       // one matrix, or a group, and one of columns
    bool is_early;     // weights may be read before the columns are there
    bool is_aligned;   // rows begin at multiples of 16 bytes
    bool has_epilogue;
    gcuda_type y_type;
    int64_t y_0;       // bytes from row to row of y
    const char * a[GCUDA_MUL_MAT_GROUP];
    char * y[GCUDA_MUL_MAT_GROUP];
    int64_t y_c[GCUDA_MUL_MAT_GROUP]; // bytes from column to column
    int m[GCUDA_MUL_MAT_GROUP], blocks[GCUDA_MUL_MAT_GROUP]; // rows, blocks that share them; without a group [0] is any matrix
    int n_tiles;       // of columns, 1 or 2
    d_job job;
};

// What a block works on: tiles of 16 rows, n_sub side by side.
struct d_mma_task {
    int64_t matrix; // whose columns; of mul_mat_id the expert, -1: none
    int which;      // of a group
    int first_tile, tiles, rounds, end; // tiles from round to round; rows before `end`. No rounds: no task
    int n, columns[MMA_COLUMNS];        // how many there are; of mul_mat_id which of all tokens' each is, -1 where there is none
    char * y[MMA_COLUMNS];
};

// In shared memory, where it takes no registers: the task of now and the next, and which there are after that.
struct alignas(16) d_mma_todo {
    d_mma_task task[2];
    int at, end;
};

// Of products with so many tiles of columns. Two leave room for fewer warps, in registers and in shared memory.
template <typename A, int TILES> struct d_mma_shape {
    static constexpr int columns = TILES * MMA_COLUMNS, sums = TILES * MMA_TILE; // of a tile of rows
    static constexpr int groups = TILES == 1 ? d_mma_format<A>::groups : MMA_GROUPS, step = 32 * groups;
    static constexpr int step_bytes = step * (int) sizeof(typename A::block) / A::n;
    // Of a row in a slot: room for 15 bytes before the step, which may begin anywhere. An odd number spreads eight rows
    // over all banks.
    static constexpr int chunks = ((step_bytes + 30) / 16) | 1;
    static constexpr int row_bytes = 16 * chunks, slot_bytes = 16 * row_bytes;
    static constexpr int xs_of_tile = groups * d_mma_format<A>::pieces * 4, xs_bytes = TILES * xs_of_tile * (int) sizeof(float4);
    static constexpr bool is_early = TILES == 1 && d_mma_format<A>::is_early;
    static constexpr bool asks_ahead = is_early || (TILES == 1 && d_mma_format<A>::asks_ahead);
    static constexpr int all = MMA_SHARED - (is_early ? 1024 : 0); // what any block takes for itself
    // Slots of each of n warps, beside the table and the sums that are kept, if sums of so many tiles are to have room as well.
    static constexpr int fixed_bytes = 4 * d_mma_format<A>::table + (TILES == 1 ? (int) sizeof(d_mma_todo) : 0);
    static constexpr int room(int n) { return (all - fixed_bytes - MMA_SUMS * sums * 4) / n; }
    static constexpr int slots_of(int n, int tiles) { return (room(n) - xs_bytes - tiles * sums * 4) / slot_bytes; }
    // Warps hide more than sums of many tiles at a meeting or bytes on their way beyond the second slot do.
    // Multiples of four: a quarter of a multiprocessor's registers is for every fourth warp.
    static constexpr int max_warps = TILES == 1 ? (slots_of(16, 2) >= 2 ? 16 : slots_of(12, 3) >= 2 ? 12 : 8)
                                                : (slots_of(16, 1) >= 2 ? 16 : slots_of(12, 1) >= 2 ? 12 : 8);
    static constexpr int batch_of_two = slots_of(max_warps, 2) >= 2 ? 2 : 1;
    static constexpr int batch = // tiles of a warp between meetings of sums
        TILES == 2 ? batch_of_two : 2 * slot_bytes <= 10240 ? 4 : max_warps == 12 ? 3 : 2;
    static constexpr int wanted = 10240 / slot_bytes < 2 ? 2 : 10240 / slot_bytes > 4 ? 4 : 10240 / slot_bytes;
    static constexpr int slots = wanted < slots_of(max_warps, batch) ? wanted : slots_of(max_warps, batch);
    static_assert(slots >= 2 && max_warps % 4 == 0, "a tile is copied while another is read");
    static constexpr int warp_bytes = slots * slot_bytes + xs_bytes + batch * sums * 4;
    // Of a thread; is_early leaves those of a block of MMA_BESIDE.
    static constexpr int all_registers = (65536 - (is_early ? 64 * MMA_BESIDE : 0)) / (32 * max_warps) / 8 * 8;
    static constexpr int registers = all_registers < 255 ? all_registers : 255;
};

// What mins add to the sums of a tile, as below: products of TF32, in which they are exact and the columns' sums, x, in two parts.
template <typename A, int GROUPS>
static inline __device__ void d_mma_mins(const char * shared, int at0, int at1, int t, const d_split_tf32<2> * x, float (&sum)[4]) {
    typedef d_mma_format<A> F;
    UNROLL for (int group = 0; group < GROUPS; group += 8) {
        float a[4], part[4] = {};
        UNROLL for (int i = 0; i < 4; ++i) { a[i] = F::tf32_min(shared, i % 2 == 0 ? at0 : at1, group, i / 2, t); }
        const uint32_t bits[4] = { __float_as_uint(a[0]), __float_as_uint(a[1]), __float_as_uint(a[2]), __float_as_uint(a[3]) };
        float (&to)[4] = F::has_tf32_scale ? part : sum;
        d_mma_tf32(to, bits, x[group / 8].lo);
        d_mma_tf32(to, bits, x[group / 8].hi);
        if constexpr (F::has_tf32_scale) {
            UNROLL for (int i = 0; i < 4; ++i) { sum[i] += F::tf32_scale(shared, i < 2 ? at0 : at1, group) * part[i]; }
        }
    }
}

// What group g, decoded in a and b (rows g and g + 8), adds to the sums of a tile of columns, of which x are the bytes.
template <typename A>
static inline __device__ void d_mma_group(const d_eight<d_mma_format<A>::pieces> & a, const d_eight<d_mma_format<A>::pieces> & b, int g,
    int t, uint2 x, const float4 * xs, float (&sum)[4]) {
    typedef d_mma_format<A> F;
    float first[4] = {};
    UNROLL for (int h = 0; h < F::pieces; ++h) {
        // Of two pieces in a row the second is what both have together without the first.
        const bool is_rest = F::pieces == 2 && F::order == D_IN_ROW && F::zero == 0 && h == 1;
        const float4 s = xs[4 * (F::pieces * g + h)];
        const int bias = __float_as_int((float) D_BIAS), c[4] = { bias, bias, bias, bias };
        int d[4];
        if (F::pieces == 2 && F::order == D_IN_QUADS) {
            d_mma_s8_half(d, a.q[h], b.q[h], h == 0 ? x.x : x.y, c);
        } else { // of two pieces in a row lanes 0 and 1 have the first, the others the second
            const bool is_in = F::pieces == 1 || is_rest || t / 2 == h;
            const uint32_t q[4] = { a.q[0], b.q[0], a.q[1], b.q[1] }, xb[2] = { is_in ? x.x : 0u, is_in ? x.y : 0u };
            d_mma_s8(d, q, xb, c);
            if (F::has_more) {
                const uint32_t more[4] = { a.more[0], b.more[0], a.more[1], b.more[1] };
                const int so_far[4] = { d[0], d[1], d[2], d[3] };
                d_mma_s8(d, more, xb, so_far);
            }
        }
        UNROLL for (int i = 0; i < 4; ++i) {
            const float zero = F::zero == 0 ? (float) D_BIAS : i % 2 == 0 ? s.z : s.w; // the bias and what the codes' zero adds
            const float all = __int_as_float(d[i]), dot = all - (is_rest ? first[i] : zero), scale = i < 2 ? a.scale[h] : b.scale[h];
            first[i] = all;
            sum[i] += scale * (i % 2 == 0 ? s.x : s.y) * dot;
            if (F::has_min && !F::has_tf32_min) { sum[i] -= (i < 2 ? a.min[h] : b.min[h]) * (i % 2 == 0 ? s.z : s.w); }
        }
    }
}

// Sums of a tile of rows over a step, for each tile of columns: (row g, column 2t), (g, 2t + 1), then of row g + 8. The weights are
// decoded once for all of these.
template <typename A, bool ALIGNED, int TILES, int GROUPS>
static inline __device__ void d_mma_tile(const char * shared, const uint32_t * table, int at0, int at1, int t,
    const uint2 (&x)[TILES][GROUPS], const d_split_tf32<2> (&x_sums)[TILES][GROUPS / 8], const float4 * xs,
    float (&sum)[TILES][4]) {
    typedef d_mma_format<A> F;
    UNROLL for (int c = 0; c < TILES && F::has_tf32_min; ++c) {
        if constexpr (F::has_tf32_min) { d_mma_mins<A, GROUPS>(shared, at0, at1, t, x_sums[c], sum[c]); }
    }
    UNROLL for (int g = 0; g < GROUPS; ++g) {
        typename F::out a, b; // rows g and g + 8
        F::template decode<ALIGNED>(shared, table, at0, g, t, a);
        F::template decode<ALIGNED>(shared, table, at1, g, t, b);
        UNROLL for (int c = 0; c < TILES; ++c) {
            d_mma_group<A>(a, b, g, t, x[c][g], xs + c * d_mma_shape<A, TILES>::xs_of_tile, sum[c]);
        }
    }
}

// A warp's columns of a step, of one tile asked for as soon as those of the step before have been read, while the block's warps still
// wait for each other and add up their sums (asks_ahead); two would take registers that decoding needs. The scales then go to
// shared memory.
template <typename A, int TILES> struct d_mma_x {
    typedef d_mma_shape<A, TILES> S;
    uint2 bytes[TILES][S::groups];
    float4 scales[S::xs_bytes / 512];
    float sums[TILES][S::groups / 4]; // what mins are multiplied with, of groups 4 i + t

    __device__ void ask(const d_mma_job & p, int64_t matrix, int step, int lane) {
        const int64_t at = (matrix * p.units * MMA_GROUPS + step * S::groups) * TILES; // groups before
        UNROLL for (int i = 0; i < S::xs_bytes / 512; ++i) { scales[i] = p.xs[at * (d_mma_format<A>::pieces * 4) + 32 * i + lane]; }
        UNROLL for (int c = 0; c < TILES; ++c) {
            const int64_t first = at + c * S::groups;
            UNROLL for (int i = 0; i < S::groups; ++i) { bytes[c][i] = p.xq[(first + i) * 32 + lane]; }
            UNROLL for (int i = 0; i < S::groups / 4 && d_mma_format<A>::has_tf32_min; ++i) {
                sums[c][i] = ((const float *) (p.xs + (first + 4 * i + lane % 4) * 4 + lane / 8))[2 + lane / 4 % 2];
            }
        }
    }
    __device__ void put(float4 * xs, d_split_tf32<2> (&x_sums)[TILES][S::groups / 8], int lane) const {
        UNROLL for (int i = 0; i < S::xs_bytes / 512; ++i) { xs[32 * i + lane] = scales[i]; }
        UNROLL for (int c = 0; c < TILES; ++c) {
            UNROLL for (int i = 0; i < S::groups / 4 && d_mma_format<A>::has_tf32_min; ++i) { x_sums[c][i / 2].set(i % 2, sums[c][i]); }
        }
    }
};

// A warp's ring, as d_vec_ring, of tiles of 16 rows; it goes on from the last tile of a pass to the first of the next. MMA_LANES
// lanes copy the chunks of 16 bytes of a row in turn.
template <typename A, int TILES> struct d_mma_ring {
    typedef d_mma_shape<A, TILES> S;
    static constexpr int rows_at_once = 32 / MMA_LANES, piece = 16 * MMA_LANES; // bytes of each
    char * slots;
    const char * rows, * from; // the first row of this warp's first tile; its step in the first row of the next tile
    int64_t row_stride, tile_stride;
    int64_t lane_at;    // rows at multiples of 16 bytes: this lane's first chunk, from `from` on and
    int lane_to, n_own; // in a slot, and the bytes from it to the end of the step
    bool is_first;      // whether that chunk is the row's
    int valid;          // bytes of the step that the rows have
    int pass, round, next;

    __device__ void begin(const d_mma_job & p, int step, int lane) {
        const int64_t start = (int64_t) step * S::step_bytes, left = p.row_bytes - start;
        valid = left <= 0 ? 0 : left < S::step_bytes ? (int) left : S::step_bytes;
        from = rows + start;
        // Lines as memory has them: where a row begins within one its first lanes have nothing to copy at first.
        const int row = lane / MMA_LANES, place = (int) ((uintptr_t) (from + row * row_stride) % piece);
        const int first = 16 * (lane % MMA_LANES) - (place & ~15);
        lane_at = row * row_stride + first - (place & 15);
        lane_to = row * S::row_bytes + first;
        n_own = S::step_bytes + (place & 15) - first;
        is_first = first >= 0;
    }

    // Rows `lane` of the first tiles, before they may be read.
    __device__ void prefetch(const d_mma_job & p, const d_mma_task & task, int first_tile, int step, int lane) const {
        const int64_t left = p.row_bytes - (int64_t) step * S::step_bytes;
        const int n = (int) (left < S::step_bytes ? left : S::step_bytes);
        for (int s = 0; s < S::slots; ++s) {
            const char * at = from + lane * row_stride + s * tile_stride;
            const int off = (int) ((uintptr_t) at & 15);
            if (16 * (int64_t) (first_tile + s * task.tiles) + lane < task.end) { d_prefetch_l2(at - off, (n + off + 15) & ~15); }
        }
    }

    // Whole steps of 16 rows that lie at multiples of 16 bytes.
    __device__ void fetch_whole(char * slot) const {
        static_assert(S::step_bytes % 4 == 0, "a step begins at a multiple of 4 bytes within a chunk");
        constexpr int last = S::step_bytes % 16 == 0 ? 0 : S::step_bytes % 8 == 0 ? 8 : 12;
        constexpr int chunks = (S::step_bytes + last + 15) / 16, copies = (chunks + 2 * MMA_LANES - 2) / MMA_LANES;
        const char * at = from + lane_at;
        const d_shared_at to = d_shared_at_of(slot + lane_to);
        UNROLL for (int row = 0; row < 16; row += rows_at_once) {
            UNROLL for (int i = 0; i < copies; ++i) {
                const bool is_in = (i > 0 || is_first) && (piece * (i + 1) <= S::step_bytes || piece * i < n_own);
                if (is_in) { d_copy_16_to(to + row * S::row_bytes + piece * i, at + piece * i, 16); }
            }
            at += rows_at_once * row_stride;
        }
    }

    // Any rows, n of which there are; what is beyond them and beyond their ends is zero.
    __device__ void fetch_any(char * slot, int n, int lane) const {
        NO_UNROLL for (int row = lane / MMA_LANES; row < 16; row += rows_at_once) {
            const char * at = from + row * row_stride;
            const int off = (int) ((uintptr_t) at & 15), end = row < n ? valid + off : 0;
            char * to = slot + row * S::row_bytes;
            NO_UNROLL for (int c = 16 * (lane % MMA_LANES); c < off + S::step_bytes; c += piece) {
                d_copy_16(to + c, at - off + c, end < c ? 0 : end - c < 16 ? end - c : 16);
            }
        }
    }

    __device__ void fetch(const d_mma_job & p, const d_mma_task & task, int first_tile, int step, int lane) {
        if (pass < p.passes) {
            const int64_t left = task.end - 16 * (int64_t) (first_tile + round * task.tiles); // rows
            if (valid > 0 && left > 0) {
                char * slot = slots + next * S::slot_bytes;
                if (p.is_aligned && valid == S::step_bytes && left >= 16) {
                    fetch_whole(slot);
                } else {
                    fetch_any(slot, left < 16 ? (int) left : 16, lane);
                }
            }
            from += tile_stride;
            next = next + 1 == S::slots ? 0 : next + 1;
            if (++round == task.rounds) {
                round = 0;
                ++pass;
                begin(p, pass * p.at_once + step, lane);
            }
        }
        d_copies_commit(); // also when there is nothing: commits are counted
    }
};

// d_tile_index and d_tile_column of a few columns, whose divisions fit 32 bits; those of 64 bits were a third of the kernels' code.
static inline __device__ d_index d_few_index(const d_job & p, int64_t matrix, int column, int64_t m) {
    const uint32_t n1 = (uint32_t) p.y.ne[1], a2 = (uint32_t) p.a.ne[2], c = (uint32_t) column, of_c = c / n1;
    const uint32_t r2 = (uint32_t) p.b.ne[2] / a2, r3 = (uint32_t) p.b.ne[3] / (uint32_t) p.a.ne[3];
    const uint32_t i3 = (uint32_t) matrix / a2, i2 = (uint32_t) matrix - i3 * a2;
    return { m, c - of_c * n1, (int64_t) i2 * r2 + of_c % r2, (int64_t) i3 * r3 + of_c / r2 };
}

// Where a column's rows begin in y.
static inline __device__ char * d_mma_y(const d_mma_job & p, const d_mma_task & t, int column) {
    if (p.is_one) { return p.y[t.which] + column * p.y_c[t.which]; }
    const d_index at = d_few_index(p.job, t.matrix, column < t.n ? column : 0, 0);
    return d_at(p.job.y, 0, at.i1, at.i2, at.i3);
}

// Sums of the warps of n rounds of tiles, the last of which is `round`, to where they are kept between passes, or to y, which is the
// thread's column.
template <int COLUMNS>
static inline __device__ void d_mma_meet(const d_mma_job & p, const float * part, float * kept, int pass, int round, int n,
    const d_mma_task & t, char * y) {
    constexpr int TILE = 16 * COLUMNS;
    const int n_warps = (int) blockDim.x / 32, first = round + 1 - n;
    for (int i = (int) threadIdx.x; i < n * p.n_sub * TILE; i += (int) blockDim.x) {
        const int at = i % TILE, r = i / TILE / p.n_sub, sub = i / TILE % p.n_sub;
        const int64_t row = 16 * ((int64_t) (first + r) * t.tiles + t.first_tile + sub) + at / COLUMNS;
        const float * from = part + (r * n_warps + sub * p.at_once) * TILE + at;
        float * keep = kept + ((first + r) * p.n_sub + sub) * TILE + at;
        float sum = pass > 0 ? *keep : 0.0f;
        for (int s = 0; s < p.at_once; ++s) { sum += from[s * TILE]; }
        if (pass + 1 < p.passes) {
            *keep = sum;
        } else if (row < t.end && at % COLUMNS < t.n) {
            sum = p.has_epilogue ? d_finish(p.job, sum, 0.0f, d_few_index(p.job, t.matrix, at % COLUMNS, row), -1) : sum;
            d_store(p.y_type, y + row * p.y_0, sum);
        }
    }
}

// Scales of a list's columns for a step, as they lie for a matrix: xs[piece][t]. column: that of lane / 4.
template <typename A> static inline __device__ void d_mma_id_scales(const d_mma_job & p, int column, int step, int lane, float4 * xs) {
    constexpr int pieces = d_mma_shape<A, 1>::groups * d_mma_format<A>::pieces;
    const float2 * all = (const float2 *) p.xs;
    float2 s[2][pieces / 8];
    UNROLL for (int c = 0; c < 2; ++c) {
        const int of = __shfl_sync(0xffffffffu, column, 8 * (lane % 4) + 4 * c);
        UNROLL for (int i = 0; i < pieces / 8; ++i) {
            const int64_t first = (int64_t) of * p.units * (MMA_GROUPS * d_mma_format<A>::pieces) + step * pieces;
            s[c][i] = of < 0 ? make_float2(0.0f, 0.0f) : all[first + 8 * i + lane / 4];
        }
    }
    UNROLL for (int i = 0; i < pieces / 8; ++i) { xs[32 * i + lane] = make_float4(s[0][i].x, s[1][i].x, s[0][i].y, s[1][i].y); }
}

// The columns of a warp for a step of a list, which lie as [column][step][group][t] and [column][step][piece].
template <typename A>
static inline __device__ void d_mma_id_columns(const d_mma_job & p, const d_mma_task & task, int step, int lane,
    uint2 (&x)[d_mma_shape<A, 1>::groups], d_split_tf32<2> * x_sums, float4 * xs) {
    constexpr int GROUPS = d_mma_shape<A, 1>::groups;
    const int column = task.columns[lane / 4], t = lane % 4;
    const int64_t groups = (int64_t) column * p.units * MMA_GROUPS + step * GROUPS;
    UNROLL for (int i = 0; i < GROUPS; ++i) { x[i] = column < 0 ? make_uint2(0u, 0u) : p.xq[(groups + i) * 4 + t]; }
    UNROLL for (int i = 0; i < GROUPS / 4 && d_mma_format<A>::has_tf32_min; ++i) {
        x_sums[i / 2].set(i % 2, column < 0 ? 0.0f : ((const float2 *) p.xs)[groups + 4 * i + t].y);
    }
    d_mma_id_scales<A>(p, column, step, lane, xs);
}

// Task i of a matrix or of a group's: a block's share of the rows.
static inline __device__ d_mma_task d_mma_task_of(const d_mma_job & p, int i) {
    d_mma_task t = {};
    int block = i;
    if (p.n_more > 0) {
        for (; block >= p.blocks[t.which]; ++t.which) { block -= p.blocks[t.which]; }
    } else {
        t.matrix = (uint32_t) i / (uint32_t) p.blocks[0];
        block -= (int) t.matrix * p.blocks[0];
    }
    t.n = p.n, t.rounds = p.rounds, t.end = p.m[t.which];
    t.first_tile = block * p.n_sub, t.tiles = p.blocks[t.which] * p.n_sub;
    return t;
}

// That of mul_mat_id which begins at tile `at` of all lists' and ends at `end` at the latest: a stretch of one list of at most eight slots.
// *column and *y: those of slot c, -1 where there is none.
static inline __device__ d_mma_task d_mma_id_task(const d_mma_job & p, int at, int end, int c, int * column, char ** y) {
    const uint32_t m_tiles = (uint32_t) (p.m[0] + 15) / 16, i = (uint32_t) at / m_tiles;
    const uint32_t used = (uint32_t) p.job.y.ne[1], n_b = (uint32_t) p.job.b.ne[1];
    const int most = p.passes > 1 ? MMA_SUMS / p.n_sub * p.n_sub : INT32_MAX; // whose sums have room
    const d_id_tile list = p.job.tiles[i];
    const uint32_t slot = (uint32_t) p.job.order[list.first + (c < list.n ? c : 0)], token = slot / used, u = slot - token * used;
    *y = d_at(p.job.y, 0, u, token, 0);
    *column = c < list.n ? (int) (token * n_b + u % n_b) : -1;
    d_mma_task t = {};
    t.matrix = list.expert, t.tiles = p.n_sub, t.n = list.n;
    t.first_tile = at - (int) (i * m_tiles);
    int n = (int) m_tiles - t.first_tile;
    n = n < end - at ? n : end - at;
    n = n < most ? n : most;
    t.rounds = (n + p.n_sub - 1) / p.n_sub;
    t.end = t.first_tile + n < (int) m_tiles ? 16 * (t.first_tile + n) : p.m[0];
    return t;
}

// What a block does in turn, and its first task: none. The number of lists only the device knows: the tiles of all are counted, and a
// block's share begins at one of them and ends before another.
static inline __device__ void d_mma_begin(const d_mma_job & p, d_mma_todo & todo) {
    const uint32_t n = (uint32_t) *p.job.n_lists * ((uint32_t) (p.m[0] + 15) / 16), each = n / gridDim.x, rest = n - each * gridDim.x;
    todo.task[0] = {};
    todo.at = (int) (each * blockIdx.x + (blockIdx.x < rest ? blockIdx.x : rest));
    todo.end = todo.at + (int) (each + (blockIdx.x < rest ? 1 : 0));
}

// The next task, by a warp.
static inline __device__ void d_mma_take(const d_mma_job & p, d_mma_todo & todo, d_mma_task & to, int lane) {
    const int at = todo.at, end = todo.end, c = lane % MMA_COLUMNS;
    d_mma_task t = {};
    int next = end, column = -1;
    char * y = nullptr;
    __syncwarp();
    if (at < end) {
        t = d_mma_id_task(p, at, end, c, &column, &y);
        next = at + (t.end + 15) / 16 - t.first_tile;
    }
    if (lane < MMA_COLUMNS) {
        to.y[c] = y;
        to.columns[c] = column;
    }
    if (lane == 0) {
        to.matrix = t.matrix, to.which = t.which, to.n = t.n;
        to.first_tile = t.first_tile, to.tiles = t.tiles, to.rounds = t.rounds, to.end = t.end;
        todo.at = next;
    }
}

// Rows of a list whose id is no expert's.
static inline __device__ void d_mma_zeros(const d_mma_job & p, const d_mma_task & t) {
    for (int64_t i = (int64_t) t.first_tile * MMA_TILE + threadIdx.x; i / MMA_COLUMNS < t.end; i += blockDim.x) {
        if (i % MMA_COLUMNS < t.n) { d_store(p.y_type, t.y[i % MMA_COLUMNS] + i / MMA_COLUMNS * p.y_0, 0.0f); }
    }
}

// Where a matrix's rows begin in a.
template <bool LISTS> static inline __device__ const char * d_mma_a(const d_mma_job & p, int64_t matrix) {
    const uint32_t a2 = (uint32_t) p.job.a.ne[2], i3 = LISTS ? 0 : (uint32_t) matrix / a2, i2 = (uint32_t) matrix - i3 * a2;
    return d_at(p.job.a, 0, 0, i2, i3);
}

// `task`. LISTS, of mul_mat_id: if it is one, and meanwhile what comes after it to todo->task[next].
template <typename A, bool ALIGNED, int TILES, bool LISTS>
static inline __device__ void d_mul_mat_mma(const d_mma_job & p, char * shared, const d_mma_task & task, d_mma_todo * todo, int next) {
    typedef d_mma_shape<A, TILES> S;
    static_assert(!LISTS || TILES == 1, "a list is a tile");
    const bool is_task = !LISTS || task.rounds > 0, is_product = !LISTS || (is_task && task.matrix >= 0);
    const int64_t matrix = is_product ? task.matrix : 0;
    const int lane = (int) threadIdx.x % 32, warp = (int) threadIdx.x / 32, n_warps = (int) blockDim.x / 32;
    const int step = warp % p.at_once, sub = warp / p.at_once, g = lane / 4, t = lane % 4;
    const int first_tile = task.first_tile + sub, column = (int) threadIdx.x % S::columns;
    const uint32_t * table = (const uint32_t *) shared;
    float * part = (float *) (shared + S::fixed_bytes), * kept = part + n_warps * S::batch * S::sums;
    float4 * xs = (float4 *) (kept + (p.passes > 1 ? MMA_SUMS * S::sums : 0)) + warp * (S::xs_bytes / 16);
    const int ring_at = (int) ((char *) xs - shared) + (n_warps - warp) * S::xs_bytes + warp * S::slots * S::slot_bytes;
    char * y = LISTS ? nullptr : d_mma_y(p, task, column);
    d_mma_ring<A, TILES> ring;
    ring.slots = shared + ring_at;
    ring.row_stride = p.a_m;
    ring.tile_stride = 16 * p.a_m * task.tiles;
    ring.rows = p.is_one ? p.a[task.which] : d_mma_a<LISTS>(p, matrix);
    ring.rows += 16 * (int64_t) first_tile * p.a_m;
    ring.pass = ring.round = ring.next = 0;
    ring.begin(p, step, lane);
    const bool is_early = !LISTS && S::is_early && p.is_early;
    if (!S::is_early && !LISTS && ring.valid > 0 && lane < 16) { ring.prefetch(p, task, first_tile, step, lane); }
    if (!is_early && is_task) { d_wait_before(); }
    NO_UNROLL for (int s = 0; s < S::slots && is_product; ++s) { ring.fetch(p, task, first_tile, step, lane); }
    if (LISTS && warp == 0) { d_mma_take(p, *todo, todo->task[next], lane); }
    if (is_early) { d_wait_before(); }
    int slot = 0;
    d_mma_x<A, TILES> x;
    constexpr bool asks_ahead = !LISTS && S::asks_ahead;
    const auto ask = [&](int s) { x.ask(p, matrix, s < p.steps ? s : 0, lane); };
    if (asks_ahead) { ask(step); }
    for (int pass = 0; pass < p.passes && is_product; ++pass) {
        const int s = pass * p.at_once + step;
        const bool has_step = s < p.steps;
        d_split_tf32<2> x_sums[TILES][S::groups / 8]; // of groups t and t + 4 of eight, column g
        __syncwarp();
        if constexpr (LISTS) {
            d_mma_id_columns<A>(p, task, has_step ? s : 0, lane, x.bytes[0], x_sums[0], xs);
        } else {
            if (!asks_ahead) { ask(s); }
            x.put(xs, x_sums, lane);
        }
        const char * start = ring.rows + (int64_t) s * S::step_bytes;
        const int at0 = g * S::row_bytes + (int) ((uintptr_t) (start + g * p.a_m) & 15);
        const int at1 = (g + 8) * S::row_bytes + (int) ((uintptr_t) (start + (g + 8) * p.a_m) & 15);
        for (int round = 0; round < task.rounds; ++round) {
            float sum[TILES][4] = {};
            d_copies_wait<S::slots - 1>();
            __syncwarp();
            if (has_step && 16 * (int64_t) (first_tile + round * task.tiles) < task.end) { // the whole warp
                const int at = ring_at + slot * S::slot_bytes;
                d_mma_tile<A, ALIGNED, TILES, S::groups>(shared, table, at + at0, at + at1, t, x.bytes, x_sums, xs + t, sum);
            }
            __syncwarp();
            if (asks_ahead && round + 1 == task.rounds && pass + 1 < p.passes) { ask(s + p.at_once); } // ahead of the ring's many copies
            ring.fetch(p, task, first_tile, step, lane);
            slot = slot + 1 == S::slots ? 0 : slot + 1;
            const int in_batch = round % S::batch;
            if (in_batch == 0) { __syncthreads(); } // the last batch's sums are read
            float2 * to = (float2 *) (part + (in_batch * n_warps + warp) * S::sums) + g * (S::columns / 2) + t;
            UNROLL for (int c = 0; c < TILES; ++c) {
                to[c * (MMA_COLUMNS / 2)] = make_float2(sum[c][0], sum[c][1]);
                to[c * (MMA_COLUMNS / 2) + 4 * S::columns] = make_float2(sum[c][2], sum[c][3]);
            }
            if (in_batch == S::batch - 1 || round + 1 == task.rounds) {
                __syncthreads();
                d_mma_meet<S::columns>(p, part, kept, pass, round, in_batch + 1, task, LISTS ? task.y[column % MMA_COLUMNS] : y);
            }
        }
    }
    if (is_task && !is_product) { d_mma_zeros(p, task); }
    __syncthreads(); // the sums are read
}

template <typename A, bool ALIGNED, int TILES, bool LISTS = false>
static __global__ void MMA_BOUNDS(32 * (d_mma_shape<A, TILES>::max_warps), (d_mma_shape<A, TILES>::registers))
    k_mul_mat_mma(const d_mma_job p) {
    DYNAMIC_SHARED(char, shared);
    d_start_next();
    for (int i = (int) threadIdx.x; i < d_mma_format<A>::table; i += (int) blockDim.x) {
        ((uint32_t *) shared)[i] = d_mma_format<A>::entry(i);
    }
    if constexpr (LISTS) {
        d_mma_todo & todo = *(d_mma_todo *) (shared + 4 * d_mma_format<A>::table);
        d_wait_before();
        if (threadIdx.x == 0) { d_mma_begin(p, todo); }
        __syncthreads();
        int now = 1;
        do { // first of all what begins with a task that is none
            now = 1 - now;
            d_mul_mat_mma<A, ALIGNED, 1, true>(p, shared, todo.task[now], &todo, 1 - now);
        } while (todo.task[1 - now].rounds > 0);
    } else {
        __syncthreads();
        for (int i = (int) blockIdx.x; i < (int) p.n_items; i += (int) gridDim.x) {
            d_mul_mat_mma<A, ALIGNED, TILES, false>(p, shared, d_mma_task_of(p, i), nullptr, 0);
        }
    }
}

// What the columns are made into for a format.
struct d_mma_columns {
    d_mma_order order;
    int pieces, zero;
    bool has_min;
};

// Four elements as a lane's word h of group q / 8 for lanes t, and what the piece is to be multiplied with: its scale, and what its sum is
// good for. Eight threads in a row have a group, q counts them.
static inline __device__ uint32_t d_mma_word(const float4 & v, const d_mma_columns & f, int q, int * t, int * h, float2 * scale) {
    int sum;
    float d;
    const uint32_t bytes = d_vec_bytes(v, f.pieces == 2 ? 4 : 8, f.has_min || f.zero != 0, &d, &sum);
    const uint32_t other = __shfl_xor_sync(0xffffffffu, bytes, 4); // the same quad of the other half
    *t = q % 4, *h = q / 4;
    uint32_t word = bytes;
    if (f.order == D_IN_ROW) {
        *t = q / 2, *h = q % 2;
    } else if (f.order == D_IN_NIBBLES) {
        word = *h == 0 ? __byte_perm(bytes, other, 0x5140) : __byte_perm(other, bytes, 0x7362);
    }
    *scale = make_float2(d, f.has_min ? d * (float) sum : (float) (D_BIAS + f.zero * sum));
    return word;
}

// Columns of all matrices, eight or sixteen for each, those that are missing as zeros. A thread has four elements of two columns, a block
// a step of them. Its blocks are to begin beside those of the product before, one on each multiprocessor, and to leave room for those of
// the product behind (is_early): where they met on the few that were free first, blocks of the product began there when all others were
// half done.
static __global__ void __launch_bounds__(MMA_BESIDE, 8)
    k_mul_mat_mma_columns(const d_mma_job p, const d_mma_columns f, uint32_t * xq, float * xs) {
    d_start_next();
    const int64_t n_matrices = p.job.a.ne[2] * p.job.a.ne[3];
    const int n_pairs = p.n_tiles == 1 ? MMA_COLUMNS / 2 : MMA_MOST / 2;
    for (int64_t i = blockIdx.x; i < n_matrices * p.units * n_pairs; i += gridDim.x) {
        const int64_t unit = p.n_tiles == 1 ? i / (MMA_COLUMNS / 2) : i / (MMA_MOST / 2); // divisions by others take as long as all else
        const int64_t matrix = n_matrices == 1 ? 0 : unit / p.units;
        const int first = (int) (i - unit * n_pairs) * 2, in_tile = first % MMA_COLUMNS, quad = (int) threadIdx.x, q = quad % 8;
        const int64_t group = (unit * p.n_tiles + first / MMA_COLUMNS) * MMA_GROUPS + quad / 8;
        const int64_t at = (unit - matrix * p.units) * MMA_STEP + 4 * quad;
        const d_tile tile = { 0, 0, matrix, (int) p.job.n };
        const char * b[2];
        float4 v[2];
        UNROLL for (int c = 0; c < 2; ++c) {
            char * y;
            d_tile_column(p.job, tile, first + c < p.job.n ? first + c : 0, &b[c], &y);
        }
        d_wait_before();
        UNROLL for (int c = 0; c < 2; ++c) {
            v[c] = d_vec_load4(p.job, b[c], first + c < p.job.n ? at : p.job.k, d_vec_is_packed(p.job, b[c]));
        }
        float2 d[2];
        UNROLL for (int c = 0; c < 2; ++c) {
            int t, h;
            const uint32_t word = d_mma_word(v[c], f, q, &t, &h, &d[c]);
            xq[(group * 32 + 4 * (in_tile + c) + t) * 2 + h] = word;
        }
        if (q % (8 / f.pieces) == 0) { // of one piece q is 0
            ((float4 *) xs)[(group * f.pieces + q / 4) * 4 + in_tile / 2] = make_float4(d[0].x, d[1].x, d[0].y, d[1].y);
        }
    }
}

// mul_mat_id: the first n_sort blocks sort slots into lists, the others round the columns of all tokens, a step by half a block.
static __global__ void __launch_bounds__(256) k_mul_mat_id_mma_prepare(
    const gcuda_mul_mat_id_args args, const d_id_lists l, const d_mma_job p, const d_mma_columns f, int n_sort) {
    DYNAMIC_SHARED(int32_t, shared);
    d_take_turn();
    if ((int) blockIdx.x < n_sort) {
        d_id_sort(args, l, shared, (int) blockIdx.x, n_sort);
        return;
    }
    const uint32_t n_b = (uint32_t) p.job.b.ne[1], n_units = (uint32_t) p.job.b.ne[2] * n_b * (uint32_t) p.units;
    const uint32_t quad = threadIdx.x % 128, q = quad % 8;
    for (uint32_t unit = (blockIdx.x - n_sort) * 2 + threadIdx.x / 128; unit < n_units; unit += (gridDim.x - n_sort) * 2) {
        const uint32_t column = unit / (uint32_t) p.units, group = unit * MMA_GROUPS + quad / 8;
        const char * b = d_at(p.job.b, 0, column % n_b, column / n_b, 0);
        const int64_t k = (int64_t) (unit - column * (uint32_t) p.units) * MMA_STEP + 4 * quad;
        int t, h;
        float2 scale;
        const uint32_t word = d_mma_word(d_vec_load4(p.job, b, k, d_vec_is_packed(p.job, b)), f, (int) q, &t, &h, &scale);
        ((uint32_t *) p.xq)[((int64_t) group * 4 + t) * 2 + h] = word;
        if (q % (8 / f.pieces) == 0) { ((float2 *) p.xs)[(int64_t) group * f.pieces + q / 4] = scale; }
    }
}
static_assert(MMA_STEP == 4 * MMA_BESIDE, "a block of the columns' kernel has a step");

// ---- the launcher's side ----
// Warps, steps side by side and blocks; the bytes of shared memory, 0 if there is no way. The steps side by side do not
// depend on the number of rows, so that a row's sum is the same in any part of a matrix.
#define VEC_PART_BYTES 8192 // sums of a block's rows
#define VEC_PAIR_COLUMNS 2  // that two matrices can be multiplied with at once

#define VEC_WIDE_TABLES (216 * 1024) // shared memory from which tables of codebooks have copies

static bool is_codebook(gcuda_type type) {
    bool has_codes = false;
    (void) with_weight_format(type, [&](auto a) {
        has_codes = d_vec_traits<decltype(a)>::codes > 0;
        return GCUDA_STATUS_SUCCESS;
    });
    return has_codes;
}

// Starting more warps would take longer than the work; so many, a power of 2, that rows of the usual models are shared evenly.
#define VEC_SMALL_WARPS 16
static bool vec_is_small(const d_vec_job & p) {
    return p.job.m / p.step_rows * (p.job.epilogue.up != nullptr ? 2 : 1) * p.steps <= 64 * n_multiprocessors();
}

// Of m rows that so many blocks share, n_sub side by side in each.
static int vec_rounds(int64_t m, int64_t blocks, int64_t n_sub) { return (int) (((m + n_sub - 1) / n_sub + blocks - 1) / blocks); }

// Blocks of n matrices of a group, of m rows, of which at_once are a round of a block: all have as many rounds, so that together they
// are not more than wanted, unless there were more rounds than there is room for. Returns how many they are.
static int64_t group_share(int n, const int * m, int64_t at_once, int64_t wanted, int64_t most, int * blocks) {
    const int64_t limit = wanted > n ? wanted : n;
    int64_t n_items = limit + 1;
    for (int64_t rounds = 1; n_items > limit && rounds <= most; ++rounds) {
        n_items = 0;
        for (int j = 0; j < n; ++j) {
            blocks[j] = (int) ((m[j] + at_once * rounds - 1) / (at_once * rounds));
            n_items += blocks[j];
        }
    }
    return n_items;
}

// Of a plan for the rows of all, as if they shared so many blocks.
static void vec_share(d_vec_job & p, int64_t n_side, int64_t wanted, int64_t most) {
    int m[GCUDA_MUL_MAT_GROUP] = { (int) p.job.m }, blocks[GCUDA_MUL_MAT_GROUP];
    for (int j = 0; j < p.n_more; ++j) {
        m[j + 1] = p.more[j].m;
        m[0] -= p.more[j].m;
    }
    p.n_items = group_share(p.n_more + 1, m, n_side, wanted, most, blocks);
    p.job.m = m[0];
    p.blocks = blocks[0];
    p.rounds = vec_rounds(m[0], blocks[0], n_side);
    for (int j = 0; j < p.n_more; ++j) {
        p.more[j].blocks = blocks[j + 1];
        p.more[j].rounds = vec_rounds(m[j + 1], blocks[j + 1], n_side);
    }
}

// What is added to the sums; whether that is all that becomes of them, and packed.
static const gcuda_array & vec_add(const d_vec_job & p) { return p.job.epilogue.bias.data != nullptr ? p.job.epilogue.bias : p.job.epilogue.residual; }
static bool vec_adds_row(const d_vec_job & p) {
    const gcuda_mul_mat_epilogue & e = p.job.epilogue;
    const gcuda_array & add = vec_add(p);
    const bool has_more = e.up != nullptr || e.is_activated || e.factor.data != nullptr || e.is_scaled;
    const bool is_only = !has_more && (e.bias.data == nullptr || e.residual.data == nullptr) && p.is_one;
    return is_only && add.data != nullptr && add.ne[0] == p.job.m && add.nb[0] == sizeof(float) && (uintptr_t) add.data % 16 == 0;
}

// What becomes of the sums of one column; has_row: a row is added, for which there is room.
static d_vec_finish vec_finish(const d_vec_job & p, bool has_row) {
    const gcuda_mul_mat_epilogue & e = p.job.epilogue;
    const bool has_terms = e.bias.data != nullptr || e.up_bias.data != nullptr || e.factor.data != nullptr || e.residual.data != nullptr;
    return !p.job.has_epilogue                             ? D_VEC_STORE
           : has_row                                       ? D_VEC_ADD
           : e.up != nullptr && !has_terms && !e.is_scaled ? D_VEC_GLU
                                                           : D_VEC_ANY;
}

template <typename A, int COLS, bool WIDE>
static size_t vec_plan(d_vec_job & p, int64_t n_matrices, size_t max_shared, dim3 * block) {
    constexpr int max_warps = d_vec_shape<A, COLS>::max_warps;
    const int64_t n_sm = n_multiprocessors(), at_once = d_vec_shape<A, COLS>::at_once;
    const int64_t n_parts = p.job.epilogue.up != nullptr ? 2 : 1; // matrices whose rows a block has
    const bool is_small = COLS == 1 && vec_is_small(p);
    p.is_one = n_matrices == 1 && p.ids.data == nullptr && p.job.b.ne[2] == 1 && p.job.b.ne[3] == 1 && p.first_column == 0;
    for (int warps = is_small ? VEC_SMALL_WARPS : max_warps; warps >= 1; warps /= 2) {
        p.at_once = (int) (p.steps < at_once ? p.steps : at_once);
        p.at_once = p.at_once < warps ? p.at_once : warps;
        const int64_t n_sub = warps / p.at_once, n_warps = n_sub * p.at_once, n_side = n_sub * p.step_rows;
        const int64_t all = (p.job.m + n_side - 1) / n_side; // rounds of all blocks
        const int64_t ring_bytes = d_vec_shape<A, COLS>::slots * d_vec_format<A>::slot_bytes;
        const size_t n_bytes = (size_t) (d_vec_tables<A, WIDE>::n_bytes + n_warps * ring_bytes +
                                         p.at_once * d_vec_shape<A, COLS>::column_bytes + VEC_PART_BYTES);
        if (!fits_shared(n_bytes, max_shared)) {
            continue;
        }
        const int64_t wanted = is_small ? n_sm : n_sm * (max_warps / warps);
        const int64_t most = VEC_PART_BYTES / (4 * COLS * n_parts * n_side * p.at_once); // rounds
        const int64_t share = mul_mat_blocks(all, n_matrices, wanted), least = (all + most - 1) / most, blocks = share > least ? share : least;
        p.rounds = vec_rounds(p.job.m, blocks, n_side);
        p.blocks = (int) ((all + p.rounds - 1) / p.rounds); // as few as make do: the kernel behind begins on what they leave free
        p.n_items = n_matrices * p.blocks;
        if (p.n_more > 0) { vec_share(p, n_side, blocks, most); }
        p.n_side = (int) n_side;
        p.row_lanes = 32 / p.step_rows;
        p.per_side = (uint32_t) (((1 << 20) + n_side - 1) / n_side);
        *block = dim3((unsigned) (32 * p.at_once), (unsigned) n_sub);
        const size_t with_row = n_bytes + (size_t) (VEC_PART_BYTES / p.at_once); // an element beside each row's sums
        const bool has_lanes = n_side % 4 == 0 && p.rounds * p.step_rows <= 128 * p.at_once; // four elements of a round for each
        const bool has_row = COLS == 1 && vec_adds_row(p) && has_lanes && fits_shared(with_row, max_shared);
        p.finish = COLS == 1 ? vec_finish(p, has_row) : p.job.has_epilogue ? D_VEC_ANY : D_VEC_STORE;
        return has_row ? with_row : n_bytes;
    }
    return 0;
}

// A plan of fewer blocks than multiprocessors has one on each. Blocks that start while the kernel before them ends take what room
// there is, two of them that of a multiprocessor without a block: the whole launch would last as long as those two (1.2 to 1.8
// times, experts of 768 x 2048 and 2880 x 2880 on an H200). With half of the shared memory for each they cannot.
static bool leaves_room(int64_t n_blocks) { return gcuda_thread_launches()->overlap != GCUDA_OVERLAP_NONE && n_blocks < n_multiprocessors(); }
static size_t alone_bytes(size_t n_bytes, size_t max_shared) { return n_bytes > max_shared / 2 ? n_bytes : max_shared / 2; }

// What the kernel reads of the job, where it has it side by side.
static void vec_usual(d_vec_job & p) {
    const d_job & job = p.job;
    p.a = (const char *) job.a.data;
    p.b = (const char *) job.b.data;
    p.y = (char *) job.y.data;
    p.a_m = job.a_m;
    p.row_bytes = (int64_t) gcuda_row_size(job.a.type, job.k) * p.step_rows;
    p.k = job.k;
    p.m = (int) job.m;
    p.has_up = job.has_epilogue && job.epilogue.up != nullptr;
    p.up_at = p.has_up ? (const char *) job.epilogue.up - p.a : 0;
    p.has_floats = d_vec_has_floats(job);
    p.y_type = job.y.type;
    p.y_0 = (int64_t) job.y.nb[0];
    p.add = (const char *) vec_add(p).data;
    p.glu = job.epilogue.glu;
    p.alpha = job.epilogue.alpha;
    p.limit = job.epilogue.limit;
}

template <typename A, int COLS, bool ALIGNED, bool WIDE>
static gcuda_status launch_vec_as(d_vec_job & p, int64_t n_matrices, size_t max_shared, gcuda_stream stream) {
    dim3 block;
    size_t n_bytes = vec_plan<A, COLS, WIDE>(p, n_matrices, max_shared, &block);
    // where experts are known
    p.is_early = p.ids.data == nullptr && p.steps > 0 && (p.is_behind ? reads_weights_behind() : reads_weights_early());
    if (n_bytes > 0 && leaves_room(p.n_items)) { n_bytes = alone_bytes(n_bytes, max_shared); }
    if (n_bytes == 0 || p.n_items > INT32_MAX) {
        return GCUDA_STATUS_UNSUPPORTED;
    }
    vec_usual(p);
    const auto kernel = k_mul_mat_vec<A, COLS, ALIGNED, WIDE>;
    return p.is_behind ? launch_behind(kernel, p.n_items, block, n_bytes, max_shared, stream, p)
                       : launch_overlapped(kernel, p.n_items, block, n_bytes, max_shared, stream, p);
}

// One column of aligned rows has kernels of its own, with more copies of the tables where there is much to look up.
template <typename A>
static gcuda_status launch_vec_one(d_vec_job & p, int64_t n_matrices, size_t max_shared, gcuda_stream stream) {
    constexpr bool has_tables = d_vec_traits<A>::codes > 0;
    p.step_rows = p.has_pairs ? 2 : 1;
    const bool is_wide = has_tables && max_shared >= VEC_WIDE_TABLES && !vec_is_small(p);
    if (is_wide) { p.step_rows = 1; }
    if (p.step_rows == 1 && !p.is_aligned) {
        return launch_vec_as<A, 1, false, false>(p, n_matrices, max_shared, stream);
    }
    return is_wide ? launch_vec_as<A, 1, true, has_tables>(p, n_matrices, max_shared, stream)
                   : launch_vec_as<A, 1, true, false>(p, n_matrices, max_shared, stream);
}

// Two columns go together, those of codebooks where rows are aligned and tables have copies.
static bool vec_takes_pair(const d_vec_job & p, size_t max_shared) {
    return p.job.n == 2 && (!is_codebook(p.job.a.type) || (p.is_aligned && max_shared >= VEC_WIDE_TABLES));
}

// Several columns without tensor cores, or of rows that those do not take: which is seldom, so one after another.
template <typename A>
static gcuda_status launch_vec_few(d_vec_job & p, int64_t n_matrices, size_t max_shared, gcuda_stream stream) {
    if (vec_takes_pair(p, max_shared)) {
        constexpr bool is_own = d_vec_shape<A, 2>::is_own;
        return launch_vec_as<A, 2, is_own, is_own>(p, n_matrices, max_shared, stream);
    }
    if (p.xq != nullptr) {
        return p.job.n <= 4 ? launch_vec_as<A, 4, false, false>(p, n_matrices, max_shared, stream)
                            : launch_vec_as<A, 8, false, false>(p, n_matrices, max_shared, stream);
    }
    gcuda_status st = GCUDA_STATUS_SUCCESS;
    for (; p.first_column < p.job.n && st == GCUDA_STATUS_SUCCESS; ++p.first_column) {
        st = launch_vec_one<A>(p, n_matrices, max_shared, stream);
    }
    return st;
}

// Blocks of a group's matrices, rounds of which only some blocks have as of one matrix alone.
static void mma_share(d_mma_job & p, int64_t wanted, int64_t most) {
    const int n = p.n_more + 1;
    p.n_items = group_share(n, p.m, 16 * p.n_sub, wanted, most, p.blocks);
    for (; p.n_items < wanted; ++p.n_items) { // to the one whose blocks have the most rows
        int j = 0;
        for (int k = 1; k < n; ++k) { j = (int64_t) p.m[k] * p.blocks[j] > (int64_t) p.m[j] * p.blocks[k] ? k : j; }
        p.blocks[j]++;
    }
}

// Warps, steps side by side, tiles side by side and blocks; the bytes of shared memory, 0 if there is no way.
template <typename A, int TILES> static size_t mma_plan(d_mma_job & p, int64_t n_matrices, size_t max_shared, int * n_warps) {
    typedef d_mma_shape<A, TILES> S;
    const int64_t n_sm = n_multiprocessors();
    int64_t n_tiles = 0;
    for (int j = 0; j <= p.n_more; ++j) { n_tiles += (p.m[j] + 15) / 16; }
    for (int warps = S::max_warps; warps >= 1; --warps) {
        p.passes = (p.steps + warps - 1) / warps;
        p.at_once = (p.steps + p.passes - 1) / p.passes;
        const int64_t kept = p.passes > 1 ? MMA_SUMS * S::sums * 4 : 0;
        const size_t fixed = (size_t) (S::fixed_bytes + kept);
        if (!fits_shared(fixed + (size_t) (warps * S::warp_bytes), max_shared)) {
            continue;
        }
        const int64_t side = (n_matrices * n_tiles + n_sm - 1) / n_sm; // no more side by side than leaves every one a block
        p.n_sub = warps / p.at_once < side ? warps / p.at_once : (int) side;
        *n_warps = p.n_sub * p.at_once;
        const int64_t all = (n_tiles + p.n_sub - 1) / p.n_sub, share = (n_sm + n_matrices - 1) / n_matrices; // blocks of a matrix
        const int64_t least = p.passes > 1 ? (n_tiles + MMA_SUMS - p.n_sub) / (MMA_SUMS - p.n_sub + 1) : 1;
        const int64_t wanted = all < share ? all : share, blocks = wanted > least ? wanted : least;
        p.blocks[0] = (int) blocks;
        p.n_items = n_matrices * blocks;
        if (p.n_more > 0) { mma_share(p, blocks, p.passes > 1 ? MMA_SUMS / p.n_sub : n_tiles); }
        p.rounds = 0;
        for (int j = 0; j <= p.n_more; ++j) {
            const int rounds = vec_rounds(p.m[j], p.blocks[j], 16 * p.n_sub);
            p.rounds = rounds > p.rounds ? rounds : p.rounds;
        }
        return fixed + (size_t) (*n_warps * S::warp_bytes);
    }
    return 0;
}

// Rows, or every so many rows, begin at multiples of so many bytes, a power of 2, at most 16.
static size_t rows_multiple(const d_job & job, int step_rows = 1) {
    const size_t bits = (size_t) (uintptr_t) job.a.data | job.a.nb[1] * (size_t) step_rows | job.a.nb[2] | job.a.nb[3] | 16;
    return bits & (~bits + 1);
}
static bool rows_are_multiples(const d_job & job, size_t n) { return rows_multiple(job) % n == 0; }

static d_mma_job mma_job(const d_vec_job & q) {
    d_mma_job p = {};
    p.job = q.job;
    p.n_more = q.n_more;
    p.a[0] = (const char *) q.job.a.data;
    p.y[0] = (char *) q.job.y.data;
    p.y_c[0] = (int64_t) q.job.y.nb[1];
    p.m[0] = (int) q.job.a.ne[1];
    for (int j = 0; j < q.n_more; ++j) {
        p.a[j + 1] = q.more[j].a;
        p.y[j + 1] = q.more[j].y;
        p.y_c[j + 1] = q.more[j].y_c * (int64_t) q.job.y.nb[0];
        p.m[j + 1] = q.more[j].m;
    }
    p.units = (int) ((q.job.k + MMA_STEP - 1) / MMA_STEP);
    p.n_tiles = q.job.n <= MMA_COLUMNS ? 1 : MMA_MOST / MMA_COLUMNS;
    p.is_aligned = rows_are_multiples(q.job, 16);
    return p;
}

// What the kernel reads of the job, where it has it side by side.
static void mma_usual(d_mma_job & p) {
    const d_job & job = p.job;
    p.n = (int) job.n;
    p.a_m = job.a_m;
    p.row_bytes = (int64_t) gcuda_row_size(job.a.type, job.k);
    p.is_one = job.tiles == nullptr && job.a.ne[2] * job.a.ne[3] == 1 && job.b.ne[2] * job.b.ne[3] == 1;
    p.has_epilogue = job.has_epilogue;
    p.y_type = job.y.type;
    p.y_0 = (int64_t) job.y.nb[0];
}

static size_t mma_scratch_bytes(const d_mma_job & p) { // two pieces of a group at most
    return (size_t) (p.job.a.ne[2] * p.job.a.ne[3] * p.units * p.n_tiles * MMA_GROUPS) * (32 * sizeof(uint2) + 8 * sizeof(float4));
}

static bool mma_pays(const d_vec_job & p, size_t max_shared) {
    return p.job.n >= 2 && p.job.epilogue.up == nullptr && !vec_takes_pair(p, max_shared); // the kernel above takes two matrices
}

// Rows at multiples of what the format's words lie at, beside more than eight columns of 4; offsets in a tile fit an int.
static bool mma_takes(const d_job & job) {
    const bool is_wide = gcuda_type_size(job.a.type) % 4 == 0 || job.n > MMA_COLUMNS;
    const size_t align = is_wide ? 4 : gcuda_type_size(job.a.type) % 2 == 0 ? 2 : 1;
    return job.n <= gcuda_mul_mat_vec_most(job.a.type) && rows_are_multiples(job, align) && job.a_m < (1 << 21) && job.a_m >= 0;
}

// That does not depend on the number of rows, since parts of a matrix are to have the same bits as the whole.
static bool vec_uses_mma(const d_vec_job & p, size_t max_shared) {
    return mma_pays(p, max_shared) && capability_major() >= 8 && mma_takes(p.job);
}

// Words lie at multiples of 4 bytes wherever rows do, or are put together from bytes that are read in any case.
template <typename A> static constexpr bool d_mma_has_any = sizeof(typename A::block) % 4 == 0 || !d_mma_format<A>::has_words;

template <typename A, int TILES> static int mma_steps(int64_t k) {
    constexpr int step = d_mma_shape<A, TILES>::step;
    return (int) ((k + step - 1) / step);
}

template <typename A, int TILES>
static gcuda_status launch_mma(d_mma_job & p, void * scratch, size_t max_shared, gcuda_stream stream) {
    typedef d_mma_format<A> F;
    const int64_t n_matrices = p.job.a.ne[2] * p.job.a.ne[3], n_groups = n_matrices * p.units * TILES * MMA_GROUPS;
    int n_warps = 0;
    p.steps = mma_steps<A, TILES>(p.job.k);
    const size_t n_bytes = mma_plan<A, TILES>(p, n_matrices, max_shared, &n_warps);
    if (n_bytes == 0 || p.n_items > INT32_MAX / 2) { // tasks are counted in an int
        return GCUDA_STATUS_UNSUPPORTED;
    }
    const d_mma_columns f = { F::order, F::pieces, F::zero, F::has_min };
    mma_usual(p);
    p.xq = (const uint2 *) scratch;
    p.xs = (const float4 *) (p.xq + n_groups * 32);
    p.is_early = reads_weights_behind();
    const gcuda_status st = launch_overlapped(k_mul_mat_mma_columns, n_matrices * p.units * TILES * (MMA_COLUMNS / 2),
        dim3(MMA_BESIDE), 0, 0, stream, p, f, (uint32_t *) scratch, (float *) (void *) p.xs);
    if (st != GCUDA_STATUS_SUCCESS) {
        return st;
    }
    constexpr bool is_any = d_mma_has_any<A> || TILES == 2; // mma_takes
    constexpr bool is_aligned = is_any || !F::is_memory_bound;
    const dim3 block((unsigned) (32 * n_warps));
    const auto kernel = is_any || rows_are_multiples(p.job, 4) ? k_mul_mat_mma<A, is_aligned, TILES> : k_mul_mat_mma<A, is_any, TILES>;
    return d_mma_shape<A, TILES>::is_early ? launch_behind(kernel, p.n_items, block, n_bytes, max_shared, stream, p)
                       : launch_overlapped(kernel, p.n_items, block, n_bytes, max_shared, stream, p);
}

// Rows of half a step, one behind the other: in pairs they leave no lane idle, and all types' begin at multiples of 16 bytes. The sum of
// a row is added up in the same order.
static bool vec_has_pairs(const d_job & job) {
    const bool is_half = job.n == 1 && job.k == VEC_STEP / 2 && job.a_m == (int64_t) gcuda_row_size(job.a.type, job.k);
    return is_half && job.m % 2 == 0 && rows_multiple(job, 2) == 16;
}

static d_vec_job vec_job(const d_job & job) {
    d_vec_job p = {};
    p.job = job;
    p.steps = (int) vec_steps(job.k);
    p.step_rows = 1;
    p.is_aligned = rows_are_multiples(job, 16);
    p.has_pairs = vec_has_pairs(job);
    return p;
}

// The one column is there as bytes.
static bool vec_take_column(d_vec_job & p) {
    p.xq = (const int4 *) p.job.b.data;
    p.xs = (const float2 *) (p.xq + p.steps * 128);
    return p.job.n == 1 && p.job.a.ne[2] * p.job.a.ne[3] == 1 && (uintptr_t) p.xq % 16 == 0;
}

static bool vec_take_epilogue(d_vec_job & p, const gcuda_mul_mat_epilogue & epilogue) {
    p.job.has_epilogue = true;
    p.job.epilogue = epilogue;
    const bool is_up_aligned = (uintptr_t) epilogue.up % 16 == 0;
    p.is_aligned = p.is_aligned && is_up_aligned;
    p.has_pairs = p.has_pairs && is_up_aligned;
    return epilogue_fits(epilogue, p.job.y, p.n_experts) && (epilogue.up == nullptr || p.job.n <= VEC_PAIR_COLUMNS);
}

// Rows of blocks, at least one, and columns of floats.
static bool vec_takes(const gcuda_array & a, const gcuda_array & b) {
    return gcuda_is_quantized(a.type) && is_float(b.type) && a.ne[1] <= MAX_VEC_ROWS && a.ne[0] > 0 && a.ne[0] % 32 == 0;
}

// >>op:mul_mat ----------------------------------------------------------------------------------------
int gcuda_mul_mat_vec_form(gcuda_type type) {
    int form = 0;
    (void) with_weight_format(type, [&](auto a) {
        form = d_vec_form_number(d_vec_form_of<decltype(a)>());
        return GCUDA_STATUS_SUCCESS;
    });
    return form;
}

int gcuda_mul_mat_vec_most(gcuda_type type) {
    int most = MMA_COLUMNS;
    (void) with_weight_format(type, [&](auto a) {
        most = d_mma_format<decltype(a)>::has_two_tiles ? MMA_MOST : MMA_COLUMNS;
        return GCUDA_STATUS_SUCCESS;
    });
    return most;
}

size_t gcuda_mul_mat_vec_scratch_bytes(const gcuda_mul_mat_args * args) {
    const d_vec_job p = vec_job(job_of(*args));
    const size_t n_bytes = (size_t) (p.job.n * args->a.ne[2] * args->a.ne[3] * p.steps) * 3072;
    const size_t n_mma = mma_scratch_bytes(mma_job(p));
    return p.job.n <= 1 ? 0 : n_bytes > n_mma ? n_bytes : n_mma;
}

// Products of one matrix, of several or of a group's, with columns that are made ready first where there are several.
static gcuda_status launch_vec(d_vec_job & p, void * scratch, size_t max_shared, gcuda_stream stream) {
    const gcuda_type type = p.job.a.type;
    const int64_t n_matrices = p.job.a.ne[2] * p.job.a.ne[3], n = p.job.n;
    if (vec_uses_mma(p, max_shared)) {
        d_mma_job mma = mma_job(p);
        return with_weight_format(type, [&](auto a) {
            typedef decltype(a) A;
            if constexpr (d_mma_format<A>::has_two_tiles) {
                if (mma.n_tiles == 2) { return launch_mma<A, 2>(mma, scratch, max_shared, stream); }
            }
            return launch_mma<A, 1>(mma, scratch, max_shared, stream);
        });
    }
    const bool is_pair = vec_takes_pair(p, max_shared), has_up = p.job.epilogue.up != nullptr;
    if (n > 1 && (is_pair ? !is_codebook(type) : !has_up && capability_major() < 8)) {
        int4 * xq = (int4 *) scratch;
        float2 * xs = (float2 *) (xq + n * n_matrices * p.steps * 128);
        d_vec_form form = {};
        (void) with_weight_format(type, [&](auto a) {
            form = d_vec_form_of<decltype(a)>();
            return GCUDA_STATUS_SUCCESS;
        });
        const gcuda_status st =
            launch_overlapped(k_mul_mat_vec_columns, n * n_matrices * p.steps * 2, dim3(256), 0, 0, stream, p, form, xq, xs);
        if (st != GCUDA_STATUS_SUCCESS) {
            return st;
        }
        p.xq = xq;
        p.xs = xs;
        p.is_behind = true;
    }
    return with_weight_format(type, [&](auto a) {
        typedef decltype(a) A;
        return n == 1 ? launch_vec_one<A>(p, n_matrices, max_shared, stream) : launch_vec_few<A>(p, n_matrices, max_shared, stream);
    });
}

gcuda_status gcuda_launch_mul_mat_vec(const gcuda_mul_mat_args * args, void * scratch, gcuda_stream stream) {
    return gcuda_launch_mul_mat_vec_fused(args, nullptr, scratch, stream);
}

gcuda_status gcuda_launch_mul_mat_vec_fused(
    const gcuda_mul_mat_args * args, const gcuda_mul_mat_epilogue * epilogue, void * scratch, gcuda_stream stream) {
    d_vec_job p = vec_job(job_of(*args));
    if (epilogue != nullptr && !vec_take_epilogue(p, *epilogue)) {
        return GCUDA_STATUS_UNSUPPORTED;
    }
    const int64_t n = p.job.n;
    const bool is_few = n <= MMA_COLUMNS || vec_uses_mma(p, args->max_shared);
    if (!vec_takes(args->a, args->b) || !is_few || (n > 1 && scratch == nullptr) || (args->is_rounded && !vec_take_column(p))) {
        return GCUDA_STATUS_UNSUPPORTED;
    }
    if (n_elements(args->y) == 0) {
        return GCUDA_STATUS_SUCCESS;
    }
    return launch_vec(p, scratch, args->max_shared, stream);
}

// Whether q is a product of the same columns as p, with weights that lie like p's.
static bool vec_is_alike(const gcuda_mul_mat_args & p, const gcuda_mul_mat_args & q) {
    return q.a.type == p.a.type && q.a.ne[0] == p.a.ne[0] && q.a.nb[1] == p.a.nb[1] && q.a.ne[2] * q.a.ne[3] == 1 &&
           q.b.data == p.b.data && q.b.type == p.b.type && q.b.nb[0] == p.b.nb[0] && q.b.ne[1] == p.b.ne[1] &&
           (p.b.ne[1] == 1 || q.b.nb[1] == p.b.nb[1]) &&
           n_elements(q.b) == p.a.ne[0] * p.b.ne[1] && q.is_rounded == p.is_rounded && q.y.type == p.y.type && q.y.nb[0] == p.y.nb[0] &&
           q.a.ne[1] <= MAX_VEC_ROWS / GCUDA_MUL_MAT_GROUP;
}

// Columns lie whole elements apart, not too many.
static bool vec_has_columns(const gcuda_array & y) { return y.nb[1] % y.nb[0] == 0 && y.nb[1] / y.nb[0] <= INT32_MAX / MMA_MOST; }

// The products as one job, if the way of the first by itself is that of each and takes groups: any of one column, two columns
// together, and tensor cores.
static bool vec_take_group(const gcuda_mul_mat_args * args, int n_args, d_vec_job & p) {
    if (n_args < 1 || n_args > GCUDA_MUL_MAT_GROUP) {
        return false;
    }
    p = vec_job(job_of(args[0]));
    const int64_t n = p.job.n;
    for (int i = 0; i < n_args; ++i) {
        const gcuda_array & a = args[i].a, & y = args[i].y;
        if (!vec_takes(a, args[i].b) || a.ne[1] < 1 || y.nb[0] < 1 || !vec_is_alike(args[0], args[i]) ||
            (n > 1 && (rows_multiple(job_of(args[i])) != rows_multiple(p.job) || !vec_has_columns(y)))) {
            return false;
        }
        p.is_aligned = p.is_aligned && (uintptr_t) a.data % 16 == 0;
        p.has_pairs = p.has_pairs && (uintptr_t) a.data % 16 == 0 && a.ne[1] % 2 == 0;
        if (i > 0) {
            p.more[i - 1] = { (const char *) a.data, (char *) y.data, (int) a.ne[1], 0, 0, (int) (y.nb[1] / y.nb[0]) };
            p.job.m += a.ne[1]; // for the plan: the rows of all
        }
    }
    p.n_more = n_args - 1;
    if (args->is_rounded) {
        return vec_take_column(p);
    }
    return n == 1 || vec_takes_pair(p, args->max_shared) || vec_uses_mma(p, args->max_shared);
}

bool gcuda_mul_mat_vec_takes_group(const gcuda_mul_mat_args * args, int n_args) {
    d_vec_job p;
    return vec_take_group(args, n_args, p);
}

gcuda_status gcuda_launch_mul_mat_vec_group(const gcuda_mul_mat_args * args, int n_args, void * scratch, gcuda_stream stream) {
    d_vec_job p;
    return vec_take_group(args, n_args, p) && (p.job.n == 1 || scratch != nullptr) ? launch_vec(p, scratch, args->max_shared, stream)
                                                                                   : GCUDA_STATUS_UNSUPPORTED;
}

// >>op:mul_mat_id -------------------------------------------------------------------------------------
gcuda_status gcuda_launch_mul_mat_id_vec(const gcuda_mul_mat_id_args * args, gcuda_stream stream) {
    return gcuda_launch_mul_mat_id_vec_fused(args, nullptr, stream);
}

gcuda_status gcuda_launch_mul_mat_id_vec_fused(
    const gcuda_mul_mat_id_args * args, const gcuda_mul_mat_epilogue * epilogue, gcuda_stream stream) {
    d_job job = {};
    job.a = args->as;
    job.b = args->b;
    job.y = args->y;
    job.m = args->as.ne[1];
    job.n = 1;
    job.k = args->as.ne[0];
    job.a_m = (int64_t) args->as.nb[1];
    job.b_k = (int64_t) args->b.nb[0];
    d_vec_job p = vec_job(job);
    p.ids = args->ids;
    p.n_experts = args->as.ne[2];
    p.bad_index = args->bad_index;
    if (epilogue != nullptr && !vec_take_epilogue(p, *epilogue)) {
        return GCUDA_STATUS_UNSUPPORTED;
    }
    if (!vec_takes(args->as, args->b)) {
        return GCUDA_STATUS_UNSUPPORTED;
    }
    if (n_elements(args->y) == 0) {
        return GCUDA_STATUS_SUCCESS;
    }
    return with_weight_format(args->as.type, [&](auto a) {
        return launch_vec_one<decltype(a)>(p, args->ids.ne[0] * args->ids.ne[1], args->max_shared, stream);
    });
}

// Lists of up to eight slots of one expert are multiplied as a matrix with eight columns is. Where rows have few steps, several blocks on a
// multiprocessor: while one begins a list the others read on. Returns the bytes of shared memory, 0 if there is no way.
#define MMA_ID_BESIDE 4
template <typename A> static size_t id_mma_plan(d_mma_job & p, size_t max_shared, int * n_warps, int * n_beside) {
    typedef d_mma_shape<A, 1> S;
    for (*n_beside = MMA_ID_BESIDE; *n_beside >= 1; --*n_beside) {
        for (int warps = S::max_warps / *n_beside; warps >= 1 && (*n_beside == 1 || warps >= p.steps); --warps) {
            p.passes = (p.steps + warps - 1) / warps;
            p.at_once = (p.steps + p.passes - 1) / p.passes;
            p.n_sub = warps / p.at_once;
            *n_warps = p.n_sub * p.at_once;
            const int64_t kept = p.passes > 1 ? MMA_SUMS * MMA_TILE * 4 : 0;
            const size_t n_bytes = (size_t) (S::fixed_bytes + kept + *n_warps * S::warp_bytes);
            const size_t of_all = (size_t) *n_beside * (n_bytes + 1024); // a multiprocessor has 1 KiB more than a block may have
            if (fits_shared(n_bytes, max_shared) && (*n_beside == 1 || of_all <= max_shared + 1024)) { return n_bytes; }
        }
    }
    return 0;
}

// Formats with kernels of their own for this, 50 KB each: those that models with experts come in.
template <typename A> static constexpr bool d_mma_has_lists = false;
#define X(ID) template <> constexpr bool d_mma_has_lists<d_format<GCUDA_TYPE_##ID>> = true;
X(Q4_0) X(Q8_0) X(Q4_K) X(Q5_K) X(Q6_K) X(IQ4_NL) X(IQ4_XS) X(IQ2_XS) X(MXFP4)
#undef X

template <typename A>
static gcuda_status launch_id_mma(const gcuda_mul_mat_id_args & args, d_id_lists & l, d_mma_job & p, gcuda_stream stream) {
    typedef d_mma_format<A> F;
    int n_warps = 0, n_beside = 0;
    p.steps = mma_steps<A, 1>(p.job.k);
    const size_t n_bytes = id_mma_plan<A>(p, args.max_shared, &n_warps, &n_beside);
    if (n_bytes == 0 || !rows_are_multiples(p.job, F::lists_at)) {
        return GCUDA_STATUS_UNSUPPORTED;
    }
    const d_mma_columns f = { F::order, F::pieces, F::zero, F::has_min };
    mma_usual(p);
    size_t n_sort_bytes;
    const int n_sort = id_sort_plan(l, MMA_COLUMNS, &n_sort_bytes);
    const int64_t n_units = args.b.ne[1] * args.b.ne[2] * p.units;
    const gcuda_status st = launch_overlapped(
        k_mul_mat_id_mma_prepare, n_sort + (n_units + 1) / 2, dim3(256), n_sort_bytes, 0, stream, args, l, p, f, n_sort);
    if (st != GCUDA_STATUS_SUCCESS) {
        return st;
    }
    constexpr bool is_aligned = d_mma_has_any<A> || (!F::is_memory_bound && F::lists_at == 4);
    const int64_t most = id_max_tiles(args, MMA_COLUMNS) * ((p.m[0] + 15) / 16), n = (int64_t) n_beside * n_multiprocessors();
    return launch_overlapped(k_mul_mat_mma<A, is_aligned, 1, true>, most < n ? most : n, dim3((unsigned) (32 * n_warps)), n_bytes,
        args.max_shared, stream, p);
}

static d_mma_job id_mma_job(const gcuda_mul_mat_id_args & args, const d_id_lists & l, size_t n_lists) {
    d_mma_job p = {};
    p.job.a = args.as;
    p.job.b = args.b;
    p.job.y = args.y;
    p.job.m = args.as.ne[1];
    p.job.k = args.as.ne[0];
    p.job.a_m = (int64_t) args.as.nb[1];
    p.job.b_k = (int64_t) args.b.nb[0];
    p.job.tiles = l.tiles;
    p.job.order = l.order;
    p.job.n_lists = l.n_tiles;
    p.m[0] = (int) args.as.ne[1];
    p.units = (int) ((args.as.ne[0] + MMA_STEP - 1) / MMA_STEP);
    p.is_aligned = rows_are_multiples(p.job, 16);
    p.xq = (const uint2 *) (const void *) ((const char *) args.scratch + n_lists);
    p.xs = (const float4 *) (const void *) (p.xq + args.b.ne[1] * args.b.ne[2] * p.units * MMA_GROUPS * 4);
    return p;
}

size_t gcuda_mul_mat_id_mma_scratch_bytes(const gcuda_mul_mat_id_args * args) {
    d_id_lists l = {};
    const size_t n_lists = id_lists(*args, &l);
    const int64_t n_units = args->b.ne[1] * args->b.ne[2] * ((args->as.ne[0] + MMA_STEP - 1) / MMA_STEP);
    return asked_bytes(n_lists + (size_t) (n_units * MMA_GROUPS) * (4 * sizeof(uint2) + 2 * sizeof(float2)));
}

gcuda_status gcuda_launch_mul_mat_id_mma(const gcuda_mul_mat_id_args * args, gcuda_stream stream) {
    d_id_lists l = {};
    const size_t n_lists = id_lists(*args, &l);
    d_mma_job p = id_mma_job(*args, l, n_lists);
    const int64_t n_units = args->b.ne[1] * args->b.ne[2] * p.units, n_tiles = id_max_tiles(*args, MMA_COLUMNS) * ((args->as.ne[1] + 15) / 16);
    const bool is_small = n_units <= INT32_MAX / MMA_GROUPS && l.n_slots <= INT32_MAX / 2 && n_tiles <= INT32_MAX;
    if (!vec_takes(args->as, args->b) || capability_major() < 8 || !mma_takes(p.job) || !is_small) {
        return GCUDA_STATUS_UNSUPPORTED;
    }
    if (n_elements(args->y) == 0) {
        return GCUDA_STATUS_SUCCESS;
    }
    return with_weight_format(args->as.type, [&](auto a) {
        if constexpr (d_mma_has_lists<decltype(a)>) {
            return launch_id_mma<decltype(a)>(*args, l, p, stream);
        } else {
            return GCUDA_STATUS_UNSUPPORTED;
        }
    });
}
#endif // part 5

#if GCUDAI_PART(14)
// =====================================================================================================
// >>k-mul-mat-vec-float   products of float weights with up to 8 columns
// =====================================================================================================
// The weights are read once, 16 bytes a lane at a time, and nothing beyond a matrix's last row. A step is as many elements of a row as
// a warp keeps of the columns in registers. The warps of a block take steps side by side and walk the block's rows, a few at a time;
// every warp adds its sums up in its own shared memory, where they meet at the end, in one order. How a row is cut depends on its
// length, the columns and the shared memory alone, so that its sum has the same bits in any part of a matrix.
//   floor   bytes of the weights; the columns come from L2, once for each block

#define FLOAT_VEC_COLUMNS 8
#define FLOAT_VEC_WARPS 16         // of a multiprocessor
#define FLOAT_VEC_ROWS (1 << 30)   // rows and elements are counted in ints
#define FLOAT_VEC_LENGTH (1 << 30)

struct d_float_job {
    static constexpr bool has_hooks = false;
    d_job job;
    gcuda_array ids;         // mul_mat_id: a column is a slot
    int64_t n_experts;
    int32_t * bad_index;
    bool is_one;             // one matrix of columns
    bool is_early;           // a block's first weights are asked for before it waits for the kernel before
    bool is_small;           // items and columns can be counted in 32 bits
    int steps, at_once;      // of a row; that a block's warps take side by side
    int turns;               // groups of rows that a warp has
    int64_t blocks, n_items; // blocks of a matrix, of all
};

// With what else goes into the launch, in kernels of its own: steps behind the sums (job.has_epilogue), with one column a second
// matrix among them (`up`), or more matrices for the one column.
struct d_float_more {
    const char * a;
    char * y;
    int64_t m, blocks;
};
struct d_float_hooked_job : d_float_job {
    static constexpr bool has_hooks = true;
    int n_more;
    d_float_more more[GCUDA_MUL_MAT_GROUP - 1];
};

// Operands of anything that d_load knows, with any stride.
struct d_any_float {};

// 16 bytes that are read once, or zeros: they take no room in L1. No branch, which would stand between one load and the next.
static inline __device__ uint4 d_load_once(const void * p, bool is_wanted) {
#if defined(__CUDACC__) && defined(__CUDA_ARCH__)
    uint4 v = make_uint4(0, 0, 0, 0);
    asm volatile("{ .reg .pred q; setp.ne.s32 q, %5, 0; @q ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4]; }"
                 : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
                 : "l"(p), "r"((int) is_wanted));
    return v;
#else
    return is_wanted ? *(const uint4 *) p : make_uint4(0, 0, 0, 0);
#endif
}

// Weights: elements k .. k + N - 1 of a row, as they lie, zeros beyond its end; they are converted once all loads are under way.
template <typename A> struct d_float_weights {
    static constexpr int N = d_wide<A>::N;
    static __device__ uint4 load(const d_float_job & p, const char * row, int k, bool is_wanted) {
        return d_load_once((const A *) row + k, is_wanted && k < (int) p.job.k);
    }
    static __device__ void unpack(const uint4 & w, float * v) { d_unpack<A>(w, v); }
};
template <> struct d_float_weights<d_any_float> {
    static constexpr int N = 4;
    static __device__ uint4 load(const d_float_job & p, const char * row, int k, bool is_wanted) {
        float v[N];
        uint4 w;
        for (int j = 0; j < N; ++j) {
            v[j] = is_wanted && k + j < p.job.k ? d_load(p.job.a.type, row + (k + j) * p.job.a_k) : 0.0f;
        }
        memcpy(&w, v, 16);
        return w;
    }
    static __device__ void unpack(const uint4 & w, float * v) { memcpy(v, &w, 16); }
};

// The N elements of a column that meet them.
template <typename B, int N> struct d_float_column {
    static __device__ void load(const d_float_job &, const char * column, int k, float * v) {
        UNROLL for (int j = 0; j < N; j += d_wide<B>::N) {
            const uint4 here = *(const uint4 *) ((const B *) column + k + j); // as an argument it would be bytes
            d_unpack<B>(here, v + j);
        }
    }
};
template <int N> struct d_float_column<d_any_float, N> {
    static __device__ void load(const d_float_job & p, const char * column, int k, float * v) {
        for (int j = 0; j < N; ++j) { v[j] = k + j < p.job.k ? d_load(p.job.b.type, column + (k + j) * p.job.b_k) : 0.0f; }
    }
};

// Where column c of matrix i starts in b and in y. Divisions of 32 bits where they do, those of 64 take as long as a read of memory.
template <typename I>
static inline __device__ void d_float_place(const d_job & p, I i, I c, const char ** b, char ** y) {
    const I n1 = (I) p.y.ne[1], n2 = (I) p.a.ne[2], r2 = (I) p.b.ne[2] / n2, r3 = (I) p.b.ne[3] / (I) p.a.ne[3];
    const I of_3 = i / n2, i2 = (i - of_3 * n2) * r2 + c / n1 % r2, i3 = of_3 * r3 + c / n1 / r2;
    *b = d_at(p.b, 0, c % n1, i2, i3);
    *y = d_at(p.y, 0, c % n1, i2, i3);
}

static inline __device__ void d_float_ends(const d_float_job & p, int64_t i, int c, const char ** b, char ** y) {
    if (p.is_one) { // no divisions
        *b = d_at(p.job.b, 0, c, 0, 0);
        *y = d_at(p.job.y, 0, c, 0, 0);
    } else if (p.is_small) {
        d_float_place<uint32_t>(p.job, (uint32_t) i, (uint32_t) c, b, y);
    } else {
        d_float_place<int64_t>(p.job, i, c, b, y);
    }
}

// The expert of slot i, n_experts for all bad ids; one thread writes where its column and its results begin. Slots of one expert are
// multiplied by blocks that run side by side: memory is asked for its weights once, the others find them in L2.
static inline __device__ int64_t d_float_slot(const d_float_job & p, int64_t i, const char ** column, char ** results) {
    const int64_t used = p.ids.ne[0], token = p.is_small ? (int64_t) ((uint32_t) i / (uint32_t) used) : i / used, u = i - token * used;
    const int32_t id = *(const int32_t *) d_at(p.ids, u, token, 0, 0);
    if (threadIdx.x == 0) {
        *column = d_at(p.job.b, 0, (uint32_t) u % (uint32_t) p.job.b.ne[1], token, 0);
        *results = d_at(p.job.y, 0, u, token, 0);
    }
    return id >= 0 && id < p.n_experts ? id : p.n_experts;
}

// ---- multiply and add, in F32 ----
// A lane has N elements AHEAD times, 32 N apart, of ROWS rows and all columns. `multiply` adds up what is here; wherever it is done
// with 16 bytes, those at the same place of rows `row` and on are asked for, if they are wanted: so loads never cease.
template <typename A, typename B, int COLS> struct d_float_fma {
    typedef d_float_weights<A> W;
    static constexpr int N = W::N, ROWS = COLS >= 4 || (COLS == 1 && N == 8) ? 4 : 2, wanted = (COLS < 4 ? 16 : COLS < 8 ? 8 : 4) / N;
    static constexpr int AHEAD = wanted > 1 ? wanted : 1;
    static constexpr int step = 32 * N * AHEAD, rows = ROWS, sums = ROWS * COLS, columns = COLS, warp_bytes = 0;
    // One column in smaller blocks, two on a multiprocessor: one of them reads while the other one begins or ends.
    static constexpr int max_warps = COLS == 1 ? FLOAT_VEC_WARPS / 2 : FLOAT_VEC_WARPS, places = FLOAT_VEC_WARPS / max_warps;
    float x[COLS][AHEAD][N];
    uint4 w[AHEAD][ROWS];

    __device__ void load_columns(const d_float_job & p, const char * const * b, int n, int k0, int lane) {
        UNROLL for (int c = 0; c < COLS; ++c) {
            UNROLL for (int u = 0; u < AHEAD; ++u) {
                const int k = k0 + (32 * u + lane) * N;
                UNROLL for (int j = 0; j < N; ++j) { x[c][u][j] = 0.0f; }
                if (c < n && k < p.job.k) { d_float_column<B, N>::load(p, b[c], k, x[c][u]); }
            }
        }
    }
    __device__ void load_weights(const d_float_job & p, const char * a, int64_t m, int row, int k0, int lane) {
        UNROLL for (int r = 0; r < ROWS; ++r) {
            const char * from = a + (row + r) * p.job.a_m;
            UNROLL for (int u = 0; u < AHEAD; ++u) { w[u][r] = W::load(p, from, k0 + (32 * u + lane) * N, row + r < (int) m); }
        }
    }
    __device__ void multiply(
        const d_float_job & p, const char * a, int64_t m, int row, int k0, int lane, bool is_wanted, float (&sum)[sums]) {
        const char * from[ROWS];
        UNROLL for (int r = 0; r < ROWS; ++r) { from[r] = a + (row + r) * p.job.a_m; }
        UNROLL for (int u = 0; u < AHEAD; ++u) {
            UNROLL for (int r = 0; r < ROWS; ++r) {
                float v[N];
                W::unpack(w[u][r], v);
                UNROLL for (int c = 0; c < COLS; ++c) {
                    UNROLL for (int j = 0; j < N; ++j) { sum[r * COLS + c] += v[j] * x[c][u][j]; }
                }
                w[u][r] = W::load(p, from[r], k0 + (32 * u + lane) * N, is_wanted && row + r < (int) m);
            }
        }
    }
    // Every exchange halves what a lane has to add up: in the end sum i is on lanes 32 / sums * i and after.
    static __device__ void add(float (&sum)[sums], float * part, int lane, bool is_first) {
        UNROLL for (int j = 0; j < 5; ++j) { // constants all, so that the sums stay in registers
            const int d = 16 >> j, n = sums >> (j + 1);
            const bool is_upper = (lane & d) != 0;
            UNROLL for (int i = 0; i < sums / 2; ++i) {
                if (i < n) { sum[i] = (is_upper ? sum[i + n] : sum[i]) + __shfl_xor_sync(0xffffffffu, is_upper ? sum[i] : sum[i + n], d); }
            }
            if (n == 0) { sum[0] += __shfl_xor_sync(0xffffffffu, sum[0], d); }
        }
        if (lane % (32 / sums) == 0) {
            float * to = part + lane / (32 / sums);
            *to = is_first ? sum[0] : *to + sum[0];
        }
    }
    static __device__ int row_of(int i) { return i / COLS; }
    static __device__ int column_of(int i) { return i % COLS; }
};

// ---- tensor cores ----
// A warp has 16 rows. F16 and BF16 are TF32 numbers as they are; F32 and the columns are rounded to TF32, whose range is that of F32.
// Lane (g, t), with g = lane / 4 and t = lane % 4, has eight of 32 elements of rows g and g + 8 and of column g, in pieces of 16
// bytes beside those of its neighbours, AHEAD times: a product of depth 8 takes two of every lane, whichever they are, since both
// sides have the same.
// The weights come through a ring in a warp's own shared memory, FLOAT_MMA_BYTES of a row by one instruction. Loads of registers, with
// 64 bytes of a row by each, were slower. A slot is what a step has of 16 rows; it is filled again as soon as the warp has read it.
// The columns of the next step are on their way while a warp walks its rows.
#define FLOAT_MMA_WARPS 8   // of a block, one on a multiprocessor: 128 KB of copies on their way, and all registers
#define FLOAT_MMA_SLOTS 2
#define FLOAT_MMA_BYTES 512 // of a row in a slot

static inline __device__ uint32_t d_round_tf32(float v) {
#if defined(__CUDACC__) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    uint32_t w;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(w) : "f"(v));
    return w;
#else
    const uint32_t w = __float_as_uint(v);
    return (w & 0x7f800000u) == 0x7f800000u ? w : w + 0x1000u; // the product leaves out the last 13 bits
#endif
}

template <typename A, typename B> struct d_float_mma {
    static constexpr int N = d_wide<A>::N, PIECES = 8 / N, step = FLOAT_MMA_BYTES / (int) sizeof(A), AHEAD = step / 32;
    static constexpr int COLUMN_N = d_wide<B>::N, COLUMN_PIECES = 8 / COLUMN_N;
    static constexpr int rows = 16, sums = 128, columns = FLOAT_VEC_COLUMNS, max_warps = FLOAT_MMA_WARPS, places = 1;
    static constexpr int slot_bytes = rows * FLOAT_MMA_BYTES, warp_bytes = FLOAT_MMA_SLOTS * slot_bytes;
    uint4 next[AHEAD][COLUMN_PIECES];
    uint32_t x[AHEAD][8];

    static __device__ uint32_t tf32(float v) { return sizeof(A) == 4 ? d_round_tf32(v) : __float_as_uint(v); }

    // Asks for the columns of the step at k0. Those that are missing are the last: what comes of them is not stored.
    __device__ void ask_columns(const d_float_job & p, const char * const * b, int n, int k0, int lane) {
        const B * column = (const B *) b[lane / 4 < n ? lane / 4 : n - 1];
        UNROLL for (int u = 0; u < AHEAD; ++u) {
            UNROLL for (int i = 0; i < COLUMN_PIECES; ++i) {
                const int j = COLUMN_N * i, k = k0 + 32 * u + (4 * (j / N) + lane % 4) * N + j % N;
                next[u][i] = k < (int) p.job.k ? *(const uint4 *) (column + k) : make_uint4(0, 0, 0, 0);
            }
        }
    }
    __device__ void take_columns() {
        UNROLL for (int u = 0; u < AHEAD; ++u) {
            float v[8];
            UNROLL for (int i = 0; i < COLUMN_PIECES; ++i) {
                const uint4 here = next[u][i]; // as d_float_column's
                d_unpack<B>(here, v + COLUMN_N * i);
            }
            UNROLL for (int j = 0; j < 8; ++j) { x[u][j] = d_round_tf32(v[j]); }
        }
    }

    // Rows row .. row + 15 from k0 on into a slot, 32 pieces of one row at a time, zeros where there are none. In odd rows pieces change
    // places four apart: what eight lanes read at once, of two rows, then lies in different banks.
    static __device__ int place(int r, int piece) { return r * FLOAT_MMA_BYTES + 16 * (piece ^ r % 2 * 4); }
    static __device__ void fetch(const d_float_job & p, const char * a, int64_t m, int row, int k0, int lane, d_shared_at slot, bool is_there) {
        static_assert(FLOAT_MMA_BYTES == 32 * 16, "a piece for each lane");
        const int k = k0 + lane * N, n_rows = is_there && k < (int) p.job.k ? (int) m - row : 0;
        const char * from = n_rows > 0 ? a + row * p.job.a_m + (int64_t) k * (int) sizeof(A) : a;
        UNROLL for (int r = 0; r < rows; ++r) {
            d_copy_16_to(slot + place(r, lane), r < n_rows ? from : a, r < n_rows ? 16 : 0);
            from += p.job.a_m;
        }
        d_copies_commit();
    }
    // Two chains of sums, which wait for themselves half as long as one.
    __device__ void multiply(const char * slot, int lane, float (&c)[4]) const {
        const int g = lane / 4, t = lane % 4;
        float second[4] = {};
        UNROLL for (int u = 0; u < AHEAD; ++u) {
            float v[2][8];
            UNROLL for (int h = 0; h < 2; ++h) {
                UNROLL for (int i = 0; i < PIECES; ++i) {
                    const uint4 here = *(const uint4 *) (slot + place(g, 4 * (u * PIECES + i) + t) + 8 * h * FLOAT_MMA_BYTES);
                    d_unpack<A>(here, v[h] + N * i);
                }
            }
            UNROLL for (int j = 0; j < 8; j += 2) {
                const uint32_t wa[4] = { tf32(v[0][j]), tf32(v[1][j]), tf32(v[0][j + 1]), tf32(v[1][j + 1]) };
                const uint32_t wb[2] = { x[u][j], x[u][j + 1] };
                d_mma_tf32(j % 4 == 0 ? c : second, wa, wb);
            }
        }
        UNROLL for (int i = 0; i < 4; ++i) { c[i] += second[i]; }
    }
    static __device__ void add(const float (&c)[4], float * part, int lane, bool is_first) {
        float4 * to = (float4 *) part + lane;
        const float4 old = is_first ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : *to;
        *to = make_float4(old.x + c[0], old.y + c[1], old.z + c[2], old.w + c[3]);
    }
    static __device__ int row_of(int i) { return i / 16 + i % 4 / 2 * 8; }
    static __device__ int column_of(int i) { return i / 4 % 4 * 2 + i % 2; }
};

// ---- the kernel ----
// A block's rows of a matrix of m. Turn j of warps `sub` has those from (block + blocks * j) * n_sub + sub, in groups of W::rows; where
// there is a second matrix, up, turns come in pairs: the same rows of both.
struct d_float_rows {
    const char * a, * up;
    int64_t m, blocks;
    int block;
};

// A warp's part of a block's rows: its group of them in each turn, and of every row the steps s0, s0 + at_once, ...
struct d_float_part {
    int first, row_step, s0, n_turns;
    float * sums; // of its turns
};

template <typename W>
static inline __device__ d_float_part d_float_part_of(const d_float_job & p, const d_float_rows & rows, float * part) {
    const int warp = (int) threadIdx.x / 32, n_sub = (int) blockDim.x / 32 / p.at_once, n_turns = rows.up != nullptr ? 2 * p.turns : p.turns;
    return { (rows.block * n_sub + warp / p.at_once) * W::rows, (int) rows.blocks * n_sub * W::rows, warp % p.at_once, n_turns,
        part + warp * n_turns * W::sums };
}

// Weights by loads of registers.
template <typename W>
static inline __device__ void d_float_walk_loads(const d_float_job & p, const d_float_rows & rows, const d_float_part & own,
    const char * const * columns, int n, bool is_early) {
    const int lane = (int) threadIdx.x % 32;
    W work;
    if (own.s0 < p.steps) { work.load_weights(p, rows.a, rows.m, own.first, own.s0 * W::step, lane); }
    if (is_early) { d_wait_before(); }
    __syncthreads(); // the columns are known
    for (int s = own.s0; s < p.steps; s += p.at_once) {
        const int k0 = s * W::step;
        const bool has_next = s + p.at_once < p.steps;
        work.load_columns(p, columns, n, k0, lane);
        for (int j = 0, row = own.first; j < own.n_turns; ++j) {
            const bool is_last = j + 1 == own.n_turns, is_up = rows.up != nullptr && j % 2 == 0; // the next turn
            float sum[W::sums] = {};
            if (!is_up) { row += own.row_step; }
            work.multiply(p, is_up ? rows.up : rows.a, rows.m, is_last ? own.first : row, is_last ? k0 + p.at_once * W::step : k0, lane,
                !is_last || has_next, sum);
            W::add(sum, own.sums + j * W::sums, lane, s < p.at_once);
        }
    }
}

// Weights through a ring; `fetch` is called for one turn after the other, of one step after the other. There is no second matrix:
// that has one column.
template <typename W>
static inline __device__ void d_float_walk_ring(const d_float_job & p, const d_float_rows & rows, const d_float_part & own,
    const char * const * columns, int n, const char * copies, d_shared_at slots, bool is_early) {
    const int lane = (int) threadIdx.x % 32;
    int next_s = own.s0, next_j = 0, next_row = own.first, slot = 0; // what is to be fetched next, and where that goes
    const auto fetch = [&](int to) {
        W::fetch(p, rows.a, rows.m, next_row, next_s * W::step, lane, slots + to, next_s < p.steps);
        next_row += own.row_step;
        if (++next_j == own.n_turns) {
            next_j = 0;
            next_row = own.first;
            next_s += p.at_once;
        }
    };
    W work;
    UNROLL for (int at = 0; at < W::warp_bytes; at += W::slot_bytes) { fetch(at); }
    if (is_early) { d_wait_before(); }
    __syncthreads(); // the columns are known
    if (own.s0 < p.steps) { work.ask_columns(p, columns, n, own.s0 * W::step, lane); }
    NO_UNROLL for (int s = own.s0; s < p.steps; s += p.at_once) {
        work.take_columns();
        if (s + p.at_once < p.steps) { work.ask_columns(p, columns, n, (s + p.at_once) * W::step, lane); }
        NO_UNROLL for (int j = 0; j < own.n_turns; ++j) {
            float sum[4] = {};
            d_copies_wait<W::warp_bytes / W::slot_bytes - 1>();
            __syncwarp();
            work.multiply(copies + slot, lane, sum);
            __syncwarp(); // all have read
            fetch(slot);
            slot = slot + W::slot_bytes == W::warp_bytes ? 0 : slot + W::slot_bytes;
            W::add(sum, own.sums + j * W::sums, lane, s < p.at_once);
        }
    }
    d_copies_wait<0>(); // of nothing; another item begins again
}

// Where the block's rows are, of the first matrix or of one behind it; *y is where the results of the latter go.
static inline __device__ void d_float_find(const d_float_hooked_job & p, d_float_rows * rows, char ** y) {
    for (int g = 0; g < p.n_more && rows->block >= (int) rows->blocks; ++g) {
        rows->block -= (int) rows->blocks;
        rows->a = p.more[g].a;
        rows->m = p.more[g].m;
        rows->blocks = p.more[g].blocks;
        *y = p.more[g].y;
    }
    rows->up = p.job.has_epilogue ? (const char *) p.job.epilogue.up : nullptr;
}

// Where row `row` of column c is in the result; i: the item's matrix, or slot.
static inline __device__ d_index d_float_index(const d_float_job & p, int64_t i, int64_t matrix, int c, int row) {
    if (p.is_one) { return { row, c, 0, 0 }; }
    if (p.ids.data != nullptr) {
        const int64_t token = i / p.ids.ne[0];
        return { row, i - token * p.ids.ne[0], token, 0 };
    }
    const d_tile t = { 0, 0, matrix, (int) p.job.n };
    return d_tile_index(p.job, t, c, row);
}

template <typename W, typename P> static __global__ void __launch_bounds__(32 * W::max_warps, W::places) k_mul_mat_vec_float(const P p) {
    DYNAMIC_SHARED(char, shared); // copies of the warps, then [warp][turn][sum]
    __shared__ const char * columns[W::columns];
    __shared__ char * results[W::columns];
    const int n_warps = (int) blockDim.x / 32, n_sub = n_warps / p.at_once;
    const int n_kinds = P::has_hooks && p.job.epilogue.up != nullptr ? 2 : 1; // of sums
    float * part = (float *) (shared + n_warps * W::warp_bytes);
    char * copies = shared + (int) threadIdx.x / 32 * W::warp_bytes;
    d_start_next();
    if (!p.is_early) { d_wait_before(); }
    for (int64_t item = blockIdx.x; item < p.n_items; item += gridDim.x) {
        const int64_t i = p.is_small ? (int64_t) ((uint32_t) item / (uint32_t) p.blocks) : item / p.blocks;
        d_float_rows rows = { (const char *) p.job.a.data, nullptr, p.job.m, p.blocks, (int) (item - i * p.blocks) };
        const int n = (int) p.job.n;
        int64_t matrix = i;
        char * y = nullptr;
        if constexpr (P::has_hooks) {
            if (p.n_more > 0) {
                matrix = 0;
                rows.block = (int) item;
            }
            d_float_find(p, &rows, &y);
        }
        if (p.ids.data != nullptr) {
            matrix = d_float_slot(p, i, columns, results);
        } else if ((int) threadIdx.x < n) {
            d_float_ends(p, matrix, (int) threadIdx.x, &columns[threadIdx.x], &results[threadIdx.x]);
        }
        const bool is_bad = p.ids.data != nullptr && matrix == p.n_experts;
        const int n_parts = is_bad ? 0 : p.at_once < p.steps ? p.at_once : p.steps;
        if (is_bad && threadIdx.x == 0 && p.bad_index != nullptr) { *p.bad_index = 1; }
        if (!is_bad) {
            if (matrix > 0) {
                rows.a = p.job.a.ne[3] == 1 ? d_at(p.job.a, 0, 0, matrix, 0)
                                            : d_at(p.job.a, 0, 0, matrix % p.job.a.ne[2], matrix / p.job.a.ne[2]);
                if (rows.up != nullptr) { rows.up += rows.a - (const char *) p.job.a.data; }
            }
            const bool is_early = p.is_early && item == blockIdx.x;
            const d_float_part own = d_float_part_of<W>(p, rows, part);
            if constexpr (W::warp_bytes > 0) {
                d_float_walk_ring<W>(p, rows, own, columns, n, copies, d_shared_at_of(copies), is_early);
            } else {
                d_float_walk_loads<W>(p, rows, own, columns, n, is_early);
            }
        }
        __syncthreads();
        for (int e = (int) threadIdx.x; e < p.turns * n_sub * W::sums; e += (int) blockDim.x) {
            const int in = e % W::sums, group = e / W::sums, turn = n_sub == 1 ? group : group / n_sub, sub = group - turn * n_sub;
            const int row = ((rows.block + turn * (int) rows.blocks) * n_sub + sub) * W::rows + W::row_of(in), c = W::column_of(in);
            if (row < (int) rows.m && c < n) {
                float sum = 0.0f, up = 0.0f;
                for (int s = 0; s < n_parts; ++s) {
                    const float * own = part + ((sub * p.at_once + s) * p.turns + turn) * n_kinds * W::sums + in;
                    sum += own[0];
                    if (n_kinds > 1) { up += own[W::sums]; }
                }
                if (P::has_hooks && p.job.has_epilogue && !is_bad) {
                    sum = d_finish(p.job, sum, up, d_float_index(p, i, matrix, c, row), p.ids.data != nullptr ? matrix : -1);
                }
                d_store(p.job.y.type, (y != nullptr ? y : results[c]) + row * (int64_t) p.job.y.nb[0], sum);
            }
        }
        __syncthreads(); // part, columns and results are read no more
    }
}

// ---- the launcher's side ----
// Blocks of a group's matrices: all have as many turns, as few as leave every block a place of its own, if shared memory has room.
static void float_share(d_float_hooked_job & p, int64_t rows, int64_t n_sub, int64_t n_places, int64_t most) {
    const auto blocks = [&](int64_t m) { return ((m + rows - 1) / rows + n_sub * p.turns - 1) / (n_sub * p.turns); };
    for (p.turns = 1; ; ++p.turns) {
        p.n_items = p.blocks = blocks(p.job.m);
        for (int j = 0; j < p.n_more; ++j) { p.n_items += p.more[j].blocks = blocks(p.more[j].m); }
        if (p.n_items <= n_places || p.turns >= most) { return; }
    }
}

// Groups of rows that a block has side by side, of so many in each matrix: the blocks with most of them have as few as can be. As many
// as left every multiprocessor a block were shared unevenly.
static int64_t float_side_by_side(int64_t n_groups, int64_t n_matrices, int64_t most, int64_t n_places) {
    int64_t best = 1, least = 0;
    for (int64_t n_sub = 1; n_sub <= most; ++n_sub) {
        const int64_t all = (n_groups + n_sub - 1) / n_sub, blocks = mul_mat_blocks(all, n_matrices, n_places);
        const int64_t rounds = (n_matrices * blocks + n_places - 1) / n_places, time = rounds * ((all + blocks - 1) / blocks) * n_sub;
        if (n_sub == 1 || time <= least) { best = n_sub, least = time; }
    }
    return best;
}

template <typename W, typename P>
static gcuda_status launch_float(P & p, int64_t n_matrices, size_t max_shared, gcuda_stream stream) {
    int64_t m = p.job.m, sum_bytes = 4;
    if constexpr (P::has_hooks) {
        for (int j = 0; j < p.n_more; ++j) { m += p.more[j].m; }
        sum_bytes = p.job.epilogue.up != nullptr ? 8 : 4;
    }
    const int64_t n_groups = (m + W::rows - 1) / W::rows, n_places = W::places * n_multiprocessors();
    const int64_t room = (int64_t) (max_shared > 0 ? max_shared : (size_t) SHARED_ALWAYS) / W::places - SHARED_STATIC;
    p.steps = (int) ((p.job.k + W::step - 1) / W::step);
    // without regard to sum_bytes: a row is cut the same way with a second matrix and without
    const int64_t fitting = room / (W::warp_bytes + W::sums * 4), most = fitting < W::max_warps ? fitting : W::max_warps;
    if (most < 1) {
        return GCUDA_STATUS_UNSUPPORTED;
    }
    const int64_t passes = p.steps > 0 ? (p.steps + most - 1) / most : 1;
    p.at_once = p.steps > 0 ? (int) ((p.steps + passes - 1) / passes) : 1;
    const int64_t n_sub = float_side_by_side(n_groups, n_matrices, most / p.at_once, n_places);
    const int64_t n_warps = n_sub * p.at_once, turn_bytes = n_warps * W::sums * sum_bytes, all = (n_groups + n_sub - 1) / n_sub;
    const int64_t share = mul_mat_blocks(all, n_matrices, n_places), turns = (room - n_warps * W::warp_bytes) / turn_bytes; // at most
    if (P::has_hooks && turns < 1) {
        return GCUDA_STATUS_UNSUPPORTED;
    }
    const int64_t least = (all + turns - 1) / turns;
    p.blocks = share > least ? share : least;
    p.turns = (int) ((all + p.blocks - 1) / p.blocks);
    p.n_items = n_matrices * p.blocks;
    if constexpr (P::has_hooks) {
        if (p.n_more > 0) { float_share(p, W::rows, n_sub, n_places, turns); }
    }
    p.is_small = p.n_items <= INT32_MAX && n_elements(p.job.b) / (p.job.k > 0 ? p.job.k : 1) <= INT32_MAX;
    p.is_early = p.ids.data == nullptr && p.steps > 0 && reads_weights_early(); // whose experts are known
    return launch_overlapped(k_mul_mat_vec_float<W, P>, p.n_items, dim3((unsigned) (32 * n_warps)),
        (size_t) (p.turns * turn_bytes + n_warps * W::warp_bytes), max_shared, stream, p);
}

template <typename A, typename B, typename P>
static gcuda_status launch_float_columns(P & p, int64_t n_matrices, size_t max_shared, gcuda_stream stream) {
    return p.job.n == 1   ? launch_float<d_float_fma<A, B, 1>>(p, n_matrices, max_shared, stream)
           : p.job.n == 2 ? launch_float<d_float_fma<A, B, 2>>(p, n_matrices, max_shared, stream)
           : p.job.n <= 4 ? launch_float<d_float_fma<A, B, 4>>(p, n_matrices, max_shared, stream)
                          : launch_float<d_float_fma<A, B, 8>>(p, n_matrices, max_shared, stream);
}

// F16 and BF16 weights, with columns in F32 or like them.
template <typename A>
static gcuda_status launch_float_halves(
    d_float_job & p, int64_t n_matrices, bool use_mma, size_t max_shared, gcuda_stream stream) {
    const bool is_f32 = p.job.b.type == GCUDA_TYPE_F32;
    if (use_mma) {
        return is_f32 ? launch_float<d_float_mma<A, float>>(p, n_matrices, max_shared, stream)
                      : launch_float<d_float_mma<A, A>>(p, n_matrices, max_shared, stream);
    }
    return is_f32 ? launch_float_columns<A, float>(p, n_matrices, max_shared, stream)
                  : launch_float_columns<A, A>(p, n_matrices, max_shared, stream);
}

#define FLOAT_MMA_FIRST_COLUMNS 2
#define FLOAT_MMA_FIRST_F32_COLUMNS 5 // fewer are multiplied in F32 as fast as they are read (4 of 28672 x 16384: 427 us, on these 441)
static bool float_on_tensor_cores(const d_float_job & p, bool wants_f32) {
    const bool is_f32 = p.job.a.type == GCUDA_TYPE_F32;
    return !wants_f32 && p.job.n >= (is_f32 ? FLOAT_MMA_FIRST_F32_COLUMNS : FLOAT_MMA_FIRST_COLUMNS) && capability_major() >= 8;
}

// With the types and rows that 16 bytes can be loaded of; anything else goes element by element.
static gcuda_status launch_float_vec(
    d_float_job & p, int64_t n_matrices, bool wants_f32, size_t max_shared, gcuda_stream stream) {
    const bool is_same = p.job.b.type == p.job.a.type || p.job.b.type == GCUDA_TYPE_F32;
    const int64_t n_wide = 16 / (int64_t) gcuda_type_size(p.job.a.type);
    if (!is_same || !is_wide(p.job.a) || !is_wide(p.job.b) || p.job.k % n_wide != 0) {
        return launch_float_columns<d_any_float, d_any_float>(p, n_matrices, max_shared, stream);
    }
    const bool use_mma = float_on_tensor_cores(p, wants_f32);
    switch (p.job.a.type) {
        case GCUDA_TYPE_F32:
            return use_mma ? launch_float<d_float_mma<float, float>>(p, n_matrices, max_shared, stream)
                           : launch_float_columns<float, float>(p, n_matrices, max_shared, stream);
        case GCUDA_TYPE_F16: return launch_float_halves<__half>(p, n_matrices, use_mma, max_shared, stream);
        default: return launch_float_halves<__nv_bfloat16>(p, n_matrices, use_mma, max_shared, stream);
    }
}

// With hooks: columns in F32.
static gcuda_status launch_float_hooked(
    d_float_hooked_job & p, int64_t n_matrices, bool wants_f32, size_t max_shared, gcuda_stream stream) {
    const bool use_mma = float_on_tensor_cores(p, wants_f32);
    return with_float(p.job.a.type, [&](auto a) {
        typedef decltype(a) A;
        return use_mma ? launch_float<d_float_mma<A, float>>(p, n_matrices, max_shared, stream)
                       : launch_float_columns<A, float>(p, n_matrices, max_shared, stream);
    });
}

static bool float_vec_takes(const d_float_job & p) {
    return is_float(p.job.a.type) && is_float(p.job.b.type) && p.job.n <= FLOAT_VEC_COLUMNS && p.job.m <= FLOAT_VEC_ROWS &&
           p.job.k <= FLOAT_VEC_LENGTH;
}

// What kernels with hooks take: the product alone would have its kernel for rows in pieces of 16 bytes.
static bool float_hooks_take(const d_float_job & p) {
    return float_vec_takes(p) && p.job.b.type == GCUDA_TYPE_F32 && p.job.y.type == GCUDA_TYPE_F32 && is_wide(p.job.a) && is_wide(p.job.b) &&
           p.job.k % (16 / (int64_t) gcuda_type_size(p.job.a.type)) == 0;
}

// Whether q is a product of the same column as p, with weights that lie like p's.
static bool float_is_alike(const gcuda_mul_mat_args & p, const gcuda_mul_mat_args & q) {
    return q.a.type == p.a.type && q.a.ne[0] == p.a.ne[0] && q.a.nb[1] == p.a.nb[1] && q.a.ne[2] * q.a.ne[3] == 1 && q.prec == p.prec &&
           q.b.data == p.b.data && q.b.type == p.b.type && n_elements(q.b) == p.a.ne[0] && q.y.nb[0] == p.y.nb[0] && q.a.ne[1] >= 1 &&
           q.a.ne[1] <= FLOAT_VEC_ROWS / GCUDA_MUL_MAT_GROUP;
}

// >>op:mul_mat ----------------------------------------------------------------------------------------
gcuda_status gcuda_launch_mul_mat_vec_float(const gcuda_mul_mat_args * args, gcuda_stream stream) {
    d_float_job p = {};
    p.job = job_of(*args);
    p.is_one = args->b.ne[2] == 1 && args->b.ne[3] == 1;
    if (!float_vec_takes(p)) {
        return GCUDA_STATUS_UNSUPPORTED;
    }
    const int64_t n_matrices = args->a.ne[2] * args->a.ne[3];
    const bool wants_f32 = args->prec == GCUDA_PREC_F32;
    return n_elements(args->y) > 0 ? launch_float_vec(p, n_matrices, wants_f32, args->max_shared, stream) : GCUDA_STATUS_SUCCESS;
}

static d_float_hooked_job float_hooked_job(const gcuda_mul_mat_args & args) {
    d_float_hooked_job p = {};
    p.job = job_of(args);
    p.is_one = args.b.ne[2] == 1 && args.b.ne[3] == 1 && args.a.ne[2] * args.a.ne[3] == 1;
    return p;
}

gcuda_status gcuda_launch_mul_mat_vec_float_fused(
    const gcuda_mul_mat_args * args, const gcuda_mul_mat_epilogue * epilogue, gcuda_stream stream) {
    if (epilogue == nullptr) {
        return gcuda_launch_mul_mat_vec_float(args, stream);
    }
    d_float_hooked_job p = float_hooked_job(*args);
    const bool has_up = epilogue->up != nullptr;
    p.job.has_epilogue = true;
    p.job.epilogue = *epilogue;
    if (!float_hooks_take(p) || !epilogue_fits(*epilogue, p.job.y, 0) || (has_up && (p.job.n != 1 || (uintptr_t) epilogue->up % 16 != 0))) {
        return GCUDA_STATUS_UNSUPPORTED;
    }
    const int64_t n_matrices = args->a.ne[2] * args->a.ne[3];
    return n_elements(args->y) > 0 ? launch_float_hooked(p, n_matrices, args->prec == GCUDA_PREC_F32, args->max_shared, stream)
                                   : GCUDA_STATUS_SUCCESS;
}

gcuda_status gcuda_launch_mul_mat_vec_float_group(const gcuda_mul_mat_args * args, int n_args, gcuda_stream stream) {
    if (n_args < 1 || n_args > GCUDA_MUL_MAT_GROUP) {
        return GCUDA_STATUS_UNSUPPORTED;
    }
    d_float_hooked_job p = float_hooked_job(args[0]);
    for (int i = 0; i < n_args; ++i) {
        if (!float_is_alike(args[0], args[i]) || !float_hooks_take(float_hooked_job(args[i]))) {
            return GCUDA_STATUS_UNSUPPORTED;
        }
        if (i > 0) { p.more[p.n_more++] = { (const char *) args[i].a.data, (char *) args[i].y.data, args[i].a.ne[1], 0 }; }
    }
    return launch_float_hooked(p, 1, args->prec == GCUDA_PREC_F32, args->max_shared, stream);
}

// >>op:mul_mat_id -------------------------------------------------------------------------------------
template <typename P> static P float_id_job(const gcuda_mul_mat_id_args & args) {
    P p = {};
    p.job.a = args.as;
    p.job.b = args.b;
    p.job.y = args.y;
    p.job.m = args.as.ne[1];
    p.job.n = 1;
    p.job.k = args.as.ne[0];
    p.job.a_m = (int64_t) args.as.nb[1];
    p.job.a_k = (int64_t) args.as.nb[0];
    p.job.b_k = (int64_t) args.b.nb[0];
    p.ids = args.ids;
    p.n_experts = args.as.ne[2];
    p.bad_index = args.bad_index;
    return p;
}

gcuda_status gcuda_launch_mul_mat_id_vec_float(const gcuda_mul_mat_id_args * args, gcuda_stream stream) {
    d_float_job p = float_id_job<d_float_job>(*args);
    if (!float_vec_takes(p)) {
        return GCUDA_STATUS_UNSUPPORTED;
    }
    const int64_t n_slots = args->ids.ne[0] * args->ids.ne[1];
    return n_elements(args->y) > 0 ? launch_float_vec(p, n_slots, false, args->max_shared, stream) : GCUDA_STATUS_SUCCESS;
}

gcuda_status gcuda_launch_mul_mat_id_vec_float_fused(
    const gcuda_mul_mat_id_args * args, const gcuda_mul_mat_epilogue * epilogue, gcuda_stream stream) {
    if (epilogue == nullptr) {
        return gcuda_launch_mul_mat_id_vec_float(args, stream);
    }
    d_float_hooked_job p = float_id_job<d_float_hooked_job>(*args);
    p.job.has_epilogue = true;
    p.job.epilogue = *epilogue;
    if (!float_hooks_take(p) || !epilogue_fits(*epilogue, p.job.y, p.n_experts) || (uintptr_t) epilogue->up % 16 != 0) {
        return GCUDA_STATUS_UNSUPPORTED;
    }
    const int64_t n_slots = args->ids.ne[0] * args->ids.ne[1];
    return n_elements(args->y) > 0 ? launch_float_hooked(p, n_slots, false, args->max_shared, stream) : GCUDA_STATUS_SUCCESS;
}
#endif // part 14

#if GCUDAI_PART(13)
// =====================================================================================================
// >>k-mul-mat-wg   large matrix products on warp-group matrix instructions (compute capability 9.0a)
// =====================================================================================================
// Elsewhere there is no code and gcuda_has_warp_groups says so. What stands between the words __CUDA_ARCH_FEAT_SM90_ALL and
// 9.0a is all in this file that the simulated device cannot run; tests/sim/test-fragments.cpp covers what is around it, and
// tests/hw/test-warp-groups.c the whole on a device.
//
// A block has 128 rows of the weights and TN columns; two warp groups take 64 rows each, and hold the sums in registers. A
// warp decodes weights straight into the registers that the instruction reads them from, while the instructions of the 64
// elements of k before are under way. A third warp group fetches, through rings in shared memory:
//   columns   as F16 or BF16 with 128-byte swizzle, made once by k_wg_columns, so that a step of 64 elements of all columns
//             is one stretch of memory. The two blocks of a cluster, which have the same columns and other rows, fetch half
//             of it each and send it to both
//   weights   as they lie, a slab of 64 (floats) or 256 elements of k of each row
// The order of k within 128 elements is free as long as both sides have it: lane l of a warp decodes group l % 4 of the four
// in its rows l / 4 and l / 4 + 8, and four of its elements belong to each instruction of 16. Of floats a step stands alone.
// F32 goes as TF32, where all that is said of elements of k is said of halves of one: the words lie the same way.
// Where there are too few tiles for the device, or not a multiple, k is cut into parts, whose sums a second kernel adds.
// Decoding takes all of the time where columns are few, and in more than half of the cycles none of eight warps can go on (61 %, ncu on an
// H200): with 64 columns of weights in blocks two blocks share a multiprocessor, and sixteen warps decode.
//   floor   a once for every TN columns, b (2 bytes an element) once for every 256 rows, from L2     shared  up to 226 KiB
#define WG_ROWS 128
#define WG_THREADS 384
#define WG_MAX_SHARED (226 * 1024)
#define WG_HALF_SHARED (112 * 1024) // half of a multiprocessor's
#define WG_FEW 64 // columns that leave room for two blocks on a multiprocessor
#define WG_MAX_PARTS 8

// Of a group, which has the columns in common: the matrices behind the first.
struct d_wg_more {
    const char * a;
    float * y;
    int64_t y_stride;
    int m, first_tile; // tiles of rows are counted over all matrices
};

struct d_wg_job {
    static constexpr int cluster = 2; // blocks
    const char * a;       // weights
    int64_t a_stride;     // bytes from row to row
    int64_t row_bytes;    // of a row, a multiple of 16
    const char * image;   // columns, [tile][step][column][128 bytes]
    const float * factor; // of each column, or NULL
    float * y;            // or the sums of parts, [part][column][row]
    int64_t y_stride, part_stride; // elements
    int m, n;             // rows, columns
    int m_tiles, n_tiles, n_units, n_parts; // m_tiles: of two blocks; units of k (d_wg_unit)
    int64_t n_items;
    int n_more;
    d_wg_more more[GCUDA_MUL_MAT_GROUP - 1];
};

// A slab of the weights: elements of k, bytes of them in a row, and in shared memory from row to row: odd multiples of 16, so
// that rows do not share banks.
template <typename A> struct d_wg_slab {
    static constexpr int k = 256;
    static constexpr int bytes = k / A::n * (int) sizeof(typename A::block);
    static constexpr int skew = bytes % 16 == 0 ? 0 : bytes % 8 == 0 ? 8 : bytes % 4 == 0 ? 12 : bytes % 2 == 0 ? 14 : 15;
    static constexpr int pieces = (bytes + skew + 15) / 16; // of 16 bytes, from the multiple of 16 that it begins behind
    static constexpr int stride = 16 * (pieces | 1);
};
struct d_wg_float_slab {
    static constexpr int k = 64;
    static constexpr int bytes = 128;
    static constexpr int pieces = 8;
    static constexpr int stride = 144;
};
template <> struct d_wg_slab<__half> : d_wg_float_slab {};
template <> struct d_wg_slab<__nv_bfloat16> : d_wg_float_slab {};
template <> struct d_wg_slab<float> : d_wg_float_slab {};

// Of a slab in shared memory: words are read in pairs, and behind the last group of the last row there is one that is not used.
template <typename S> static constexpr int d_wg_slab_bytes = WG_ROWS * S::stride + 16;

// Entries of a codebook are spread out once for a block.
template <typename A> struct d_wg_codebook {
    typedef typename A::entry_type type;
    static constexpr int n = A::n_entries;
    static constexpr bool is_signed = n > 0 && A::zero == 0; // entries are magnitudes
};
struct d_wg_no_codebook {
    typedef uint32_t type;
    static constexpr int n = 0;
    static constexpr bool is_signed = false;
};
template <> struct d_wg_codebook<__half> : d_wg_no_codebook {};
template <> struct d_wg_codebook<__nv_bfloat16> : d_wg_no_codebook {};
template <> struct d_wg_codebook<float> : d_wg_no_codebook {};

// What k is cut into: 128 elements of floats, 256 of blocks.
template <typename A> struct d_wg_unit {
    static constexpr int k = d_wg_slab<A>::k < 128 ? 128 : d_wg_slab<A>::k;
    static constexpr int steps = k / WG_K, slabs = k / d_wg_slab<A>::k;
};

// Of a block: rings of stages of columns and of slabs, within so many bytes.
template <typename A, typename SLAB, int TN, int MOST> struct d_wg_shape_of {
    typedef SLAB slab;
    static constexpr int tn = TN;
    static constexpr int stage_bytes = TN * WG_K * 2;
    static constexpr int slab_bytes = d_wg_slab_bytes<slab>;
    static constexpr int table_bytes = d_wg_codebook<A>::n * (int) sizeof(typename d_wg_codebook<A>::type);
    static constexpr bool has_room = 3 * slab_bytes + 5 * stage_bytes + table_bytes + 1024 <= MOST;
    static constexpr int slabs = slab::k == WG_K ? 5 : TN == WG_FEW && has_room ? 3 : 2;
    static constexpr int fit = (MOST - 1024 - slabs * slab_bytes - table_bytes) / stage_bytes;
    static constexpr int stages = fit < 8 ? fit : 8;
    static constexpr size_t shared_bytes = 1024 + (size_t) (stages * stage_bytes + slabs * slab_bytes + table_bytes); // 1024: to align
    static_assert(stages >= 3, "shared memory");
};
template <typename A, int TN> struct d_wg_shape : d_wg_shape_of<A, d_wg_slab<A>, TN, TN == WG_FEW ? WG_HALF_SHARED : WG_MAX_SHARED> {};

template <typename A> struct d_wg_operand { typedef __nv_bfloat16 type; };
template <> struct d_wg_operand<__half> { typedef __half type; };
template <> struct d_wg_operand<float> { typedef float type; };

// ---- weights into registers ----
// Two rows of a lane, 128 elements of k in a slab: load, then the fragments of the first and of the second 64. A fragment
// is four times four words: elements 4 s and the next of either row, then 4 s + 2 and the next.

// Codes are bytes in the middle of a float of 2^15 and more; what is too much there is taken off with the min.
template <typename A, bool IS_PAIR = A::zero != 0> struct d_wg_scale {
    float scale, rest;
    inline __device__ d_wg_scale(float s, float m) : scale(s), rest(-(32768.0f + 128.0f) * s - (A::has_min ? m : 0.0f)) {}
    inline __device__ uint32_t value2(uint32_t q, int j) const { // bytes j and j + 1
        const uint32_t biased = q ^ 0x80808080u;
        const float u = __uint_as_float(__byte_perm(biased, 0x47000000u, 0x7404 + 16 * j));
        const float v = __uint_as_float(__byte_perm(biased, 0x47000000u, 0x7404 + 16 * (j + 1)));
        return d_bf16_pair(scale * u + rest, scale * v + rest);
    }
};
// Codes from 0 to 127 about a zero: two at once, as BF16 of 128 and more, the scale rounded to BF16 as well.
template <typename A> struct d_wg_scale<A, true> {
    __nv_bfloat162 scale;
    inline __device__ d_wg_scale(float s, float) : scale(__float2bfloat162_rn(s)) {}
    inline __device__ uint32_t value2(uint32_t q, int j) const {
        const uint32_t x = __byte_perm(q, 0x43434343u, 0x4040 + j + 256 * (j + 1));
        const __nv_bfloat162 y = __hmul2(__hsub2(*(const __nv_bfloat162 *) &x, __float2bfloat162_rn(128.0f + (float) A::zero)), scale);
        return *(const uint32_t *) &y;
    }
};

// N words from an address of any alignment in shared memory.
template <int N> static inline __device__ void d_wg_words(const char * p, uint32_t * to) {
    const uint32_t * from = (const uint32_t *) (p - ((uintptr_t) p & 3));
    const uint32_t shift = 8 * ((uint32_t) (uintptr_t) p & 3);
    uint32_t w = from[0];
    UNROLL for (int i = 0; i < N; ++i) {
        const uint32_t next = from[i + 1];
        to[i] = __funnelshift_r(w, next, shift);
        w = next;
    }
}

// A group of a slab. Of small blocks the words are read whole, of large ones what the group needs of them.
template <typename A, bool IS_SMALL = A::n == 32, bool HAS_CODEBOOK = A::n_entries != 0> struct d_wg_codes {
    static inline __device__ void decode(const char * at, int group, const typename A::entry_type *, d_group & g) {
        A::decode((const typename A::block *) at, group, g);
    }
};
template <typename A> struct d_wg_codes<A, false, true> {
    static inline __device__ void decode(const char * at, int group, const typename A::entry_type * table, d_group & g) {
        A::decode_with((const typename A::block *) at, group, g, [=](uint32_t i) { return table[i]; });
    }
};
template <typename A> struct d_wg_codes<A, true, false> {
    static inline __device__ void decode(const char * at, int group, const typename A::entry_type *, d_group & g) {
        constexpr int head = (int) sizeof(typename A::block) % 4, n = (int) sizeof(typename A::block) / 4;
        union { typename A::block block; char bytes[sizeof(typename A::block)]; } b;
        uint32_t w[n];
        at += group * (int) sizeof(typename A::block);
        for (int i = 0; i < head; ++i) { b.bytes[i] = at[i]; }
        d_wg_words<n>(at + head, w);
        memcpy(b.bytes + head, w, 4 * n);
        A::decode(&b.block, 0, g);
    }
};

template <> struct d_wg_codes<d_format<GCUDA_TYPE_Q6_K>, false, false> {
    static inline __device__ void decode(const char * at, int group, const uint32_t *, d_group & g) {
        const gcuda_block_q6_k * b = (const gcuda_block_q6_k *) at;
        const int part = group / 4, k4 = group % 4;
        uint32_t low[8], high[8];
        d_wg_words<8>((const char *) b->ql + 64 * part + 32 * (k4 % 2), low);
        d_wg_words<8>((const char *) b->qh + 32 * part, high);
        UNROLL for (int k = 0; k < 8; ++k) { g.q[k] = (low[k] >> 4 * (k4 / 2) & 0x0f0f0f0fu) | (high[k] >> 2 * k4 & 0x03030303u) << 4; }
        const float d = d_half(b->d);
        d_set_scales(g, d * (float) b->scales[2 * group], d * (float) b->scales[2 * group + 1], 0.0f, 0.0f);
    }
};
template <> struct d_wg_codes<d_format<GCUDA_TYPE_Q3_K>, false, false> {
    static inline __device__ void decode(const char * at, int group, const uint32_t *, d_group & g) {
        typedef d_format<GCUDA_TYPE_Q3_K> A;
        const A::block * b = (const A::block *) at;
        uint32_t low[8], high[8];
        d_wg_words<8>((const char *) b->qs + 32 * (group / 4), low);
        d_wg_words<8>((const char *) b->hmask, high);
        UNROLL for (int k = 0; k < 8; ++k) {
            g.q[k] = (low[k] >> 2 * (group % 4) & 0x03030303u) | (high[k] >> group & 0x01010101u) << 2;
        }
        const float d = d_half(b->d);
        d_set_scales(g, d * A::scale(b, 2 * group), d * A::scale(b, 2 * group + 1), 0.0f, 0.0f);
    }
};

template <typename A, bool IS_SIGNED = d_wg_codebook<A>::is_signed> struct d_wg_weights {
    d_group g[2];

    template <typename S = d_wg_slab<A>> inline __device__ void load(
        const char * slab, int skew, int row, int lane, int part, const typename d_wg_codebook<A>::type * table) {
        UNROLL for (int r = 0; r < 2; ++r) {
            d_wg_codes<A>::decode(slab + (row + 8 * r) * S::stride + skew, 4 * part + lane % 4, table, g[r]);
        }
    }
    template <int U> inline __device__ void fragment(uint32_t (&a)[16]) const {
        UNROLL for (int r = 0; r < 2; ++r) {
            const d_wg_scale<A> scale(g[r].scale[U], g[r].min[U]);
            UNROLL for (int s = 0; s < 4; ++s) {
                UNROLL for (int h = 0; h < 2; ++h) { a[4 * s + 2 * h + r] = scale.value2(g[r].q[4 * U + s], 2 * h); }
            }
        }
    }
};

// Two codes from 0 to 127 as BF16 times the scale, which is rounded to BF16 as well; signs: the bit of the first code at 15, that
// of the second at 31. A template, so that it is compiled where it is used and not below 8.0, which has no arithmetic of BF16.
template <typename B2> inline __device__ uint32_t d_wg_signed2(uint32_t q, int j, uint32_t signs, B2 scale, B2 rest) {
    const uint32_t x = __byte_perm(q, 0x43434343u, 0x4040 + j + 256 * (j + 1)); // 128 and the code
    const B2 y = __hfma2(*(const B2 *) &x, scale, rest);
    return *(const uint32_t *) &y ^ (signs & 0x80008000u);
}

// What a codebook says: magnitudes, and signs of an entry's eight or four elements: bit i at i and at 15 + i, so that a shift puts
// those of a pair where BF16 has them.
struct d_wg_entries {
    uint32_t q[8], signs[8];
    inline __device__ void put(int k, uint64_t e, uint32_t s) {
        q[2 * k] = (uint32_t) e;
        q[2 * k + 1] = (uint32_t) (e >> 32);
        signs[k] = (s & 255u) * 0x8001u;
    }
    inline __device__ void put(int k, uint32_t e, uint32_t s) {
        q[k] = e;
        signs[k] = (s & 15u) * 0x8001u;
    }
};

// Codebooks with signs: decoded for each fragment, half of a group at a time, so that neither instruction waits for all of it.
template <typename A> struct d_wg_weights<A, true> {
    typedef typename A::entry_type entry_type;
    const typename A::block * block[2];
    const entry_type * table;
    int group;

    template <typename S = d_wg_slab<A>>
    inline __device__ void load(const char * slab, int skew, int row, int lane, int part, const entry_type * entries) {
        UNROLL for (int r = 0; r < 2; ++r) { block[r] = (const typename A::block *) (slab + (row + 8 * r) * S::stride + skew); }
        table = entries;
        group = 4 * part + lane % 4;
    }
    template <int U> inline __device__ void fragment(uint32_t (&a)[16]) const {
        constexpr int words = (int) sizeof(entry_type) / 4; // of an entry
        const entry_type * entries = table;
        UNROLL for (int r = 0; r < 2; ++r) {
            d_group g; // the compiler leaves out what is not used of these
            d_wg_entries e;
            A::put_with(block[r], group, g, [=](uint32_t i) { return entries[i]; }, [&](int k, entry_type v, uint32_t s) { e.put(k, v, s); });
            const __nv_bfloat16 scale = __float2bfloat16_rn(g.scale[U]);
            const __nv_bfloat162 scale2 = __bfloat162bfloat162(scale), rest = __float2bfloat162_rn(-128.0f * __bfloat162float(scale));
            UNROLL for (int s = 0; s < 4; ++s) {
                const int word = 4 * U + s;
                UNROLL for (int h = 0; h < 2; ++h) {
                    const uint32_t signs = e.signs[word / words] << (15 - 4 * (word % words) - 2 * h);
                    a[4 * s + 2 * h + r] = d_wg_signed2(e.q[word], 2 * h, signs, scale2, rest);
                }
            }
        }
    }
};

// Nibbles that stand for values of a table: two lookups give the bytes of these as BF16, in which they are exact.
template <typename A> struct d_wg_nibble_table;
template <> struct d_wg_nibble_table<d_format<GCUDA_TYPE_IQ4_NL>> {
    static inline __device__ int value(int i) { return gcudai_kvalues_iq4nl[i]; }
};
template <> struct d_wg_nibble_table<d_format<GCUDA_TYPE_IQ4_XS>> : d_wg_nibble_table<d_format<GCUDA_TYPE_IQ4_NL>> {};
template <> struct d_wg_nibble_table<d_format<GCUDA_TYPE_MXFP4>> {
    static inline __device__ int value(int i) { return gcudai_kvalues_mxfp4[i]; }
};

template <typename A> struct d_wg_nibbles {
    uint32_t low[2][8], high[2][8]; // bytes of the values of four nibbles in a row, as they lie
    __nv_bfloat162 scale[2];

    // Byte 2 or 3 of the floats of values 4 k .. 4 k + 3.
    static inline __device__ uint32_t table(int k, int byte) {
        uint32_t w = 0;
        UNROLL for (int i = 0; i < 4; ++i) {
            w |= (__float_as_uint((float) d_wg_nibble_table<A>::value(4 * k + i)) >> 8 * byte & 255u) << 8 * i;
        }
        return w;
    }
    static inline __device__ void look_up(uint32_t nibbles, int byte, uint32_t * to) {
        const uint32_t s = nibbles & 0x77777777u, upper = (nibbles & 0x88888888u) >> 1 | 0x32103210u;
        UNROLL for (int i = 0; i < 2; ++i) {
            const uint32_t at = s >> 16 * i;
            to[i] = __byte_perm(__byte_perm(table(0, byte), table(1, byte), at), __byte_perm(table(2, byte), table(3, byte), at),
                upper >> 16 * i);
        }
    }
    template <typename S = d_wg_slab<A>>
    inline __device__ void load(const char * slab, int skew, int row, int lane, int part, const uint32_t *) {
        const int group = 4 * part + lane % 4;
        UNROLL for (int r = 0; r < 2; ++r) {
            const typename A::block * b = (const typename A::block *) (slab + (row + 8 * r) * S::stride + skew) + group / (A::n / 32);
            uint32_t w[4];
            d_group g; // the compiler leaves out all but the scale
            d_wg_words<4>((const char *) b->qs + group % (A::n / 32) * 16, w);
            A::decode(b, group % (A::n / 32), g);
            scale[r] = __float2bfloat162_rn(g.scale[0]);
            UNROLL for (int k = 0; k < 4; ++k) {
                look_up(w[k], 2, low[r] + 2 * k);
                look_up(w[k], 3, high[r] + 2 * k);
            }
        }
    }
    // The first 16 elements are low nibbles, the others high ones.
    template <int U> inline __device__ void fragment(uint32_t (&a)[16]) const {
        UNROLL for (int r = 0; r < 2; ++r) {
            UNROLL for (int i = 0; i < 8; ++i) {
                const uint32_t x = __byte_perm(low[r][i], high[r][i], 0x6240 + 0x1111 * U);
                const __nv_bfloat162 y = __hmul2(*(const __nv_bfloat162 *) &x, scale[r]);
                a[2 * i + r] = *(const uint32_t *) &y;
            }
        }
    }
};
template <> struct d_wg_weights<d_format<GCUDA_TYPE_IQ4_NL>> : d_wg_nibbles<d_format<GCUDA_TYPE_IQ4_NL>> {};
template <> struct d_wg_weights<d_format<GCUDA_TYPE_IQ4_XS>> : d_wg_nibbles<d_format<GCUDA_TYPE_IQ4_XS>> {};
template <> struct d_wg_weights<d_format<GCUDA_TYPE_MXFP4>> : d_wg_nibbles<d_format<GCUDA_TYPE_MXFP4>> {};

// Of 64 elements a lane has 16 in a row.
struct d_wg_float_weights {
    const char * at;

    template <typename S = d_wg_float_slab> inline __device__ void load(const char * slab, int, int row, int lane, int, const uint32_t *) {
        at = slab + row * S::stride + 32 * (lane % 4);
    }
    template <int U> inline __device__ void fragment(uint32_t (&a)[16]) const {
        UNROLL for (int i = 0; i < 2; ++i) {
            UNROLL for (int r = 0; r < 2; ++r) {
                const uint4 w = *(const uint4 *) (at + 8 * r * d_wg_float_slab::stride + 16 * i);
                a[8 * i + r] = w.x;
                a[8 * i + 2 + r] = w.y;
                a[8 * i + 4 + r] = w.z;
                a[8 * i + 6 + r] = w.w;
            }
        }
    }
};
template <> struct d_wg_weights<__half> : d_wg_float_weights {};
template <> struct d_wg_weights<__nv_bfloat16> : d_wg_float_weights {};
template <> struct d_wg_weights<float> : d_wg_float_weights {
    template <int U> inline __device__ void fragment(uint32_t (&a)[16]) const {
        d_wg_float_weights::fragment<U>(a);
        UNROLL for (int i = 0; i < 16; ++i) { a[i] = d_tf32(__uint_as_float(a[i])); }
    }
};

// ---- work and results ----
struct d_wg_item {
    int m0, c0, tile, part, first, end; // first row of the cluster, first column and its tile, units
    int matrix;                         // of a group
};

static inline __device__ d_wg_item d_wg_item_of(const d_wg_job & p, int item, int tn) {
    d_wg_item t;
    int m_tile = item % p.m_tiles;
    t.matrix = 0;
    while (t.matrix < p.n_more && m_tile >= p.more[t.matrix].first_tile) { ++t.matrix; }
    if (t.matrix > 0) { m_tile -= p.more[t.matrix - 1].first_tile; }
    t.m0 = m_tile * (2 * WG_ROWS);
    item /= p.m_tiles;
    t.tile = item % p.n_tiles;
    t.c0 = t.tile * tn;
    t.part = item / p.n_tiles;
    t.first = (int) ((uint32_t) (p.n_units * t.part) / (uint32_t) p.n_parts); // units are fewer than 2^26, parts at most 8
    t.end = (int) ((uint32_t) (p.n_units * (t.part + 1)) / (uint32_t) p.n_parts);
    return t;
}

// Factors are fetched ahead of the stores, which the compiler would not pass.
template <int TN> static inline __device__ void d_wg_store(const d_wg_job & p, const d_wg_item & t, int row, int lane, const float (&d)[TN / 2]) {
    const int c0 = t.c0 + 2 * (lane % 4), m = t.matrix > 0 ? p.more[t.matrix - 1].m : p.m;
    const int64_t y_stride = t.matrix > 0 ? p.more[t.matrix - 1].y_stride : p.y_stride;
    float * y = (t.matrix > 0 ? p.more[t.matrix - 1].y : p.y) + t.part * p.part_stride + row + (int64_t) c0 * y_stride;
    UNROLL for (int j0 = 0; j0 < TN / 8; j0 += 8) {
        float factor[8][2];
        UNROLL for (int j = 0; j < 8; ++j) {
            UNROLL for (int i = 0; i < 2; ++i) {
                const int c = c0 + 8 * (j0 + j) + i;
                factor[j][i] = p.factor != nullptr && c < p.n ? p.factor[c] : 1.0f;
            }
        }
        UNROLL for (int j = 0; j < 8; ++j) {
            UNROLL for (int i = 0; i < 2; ++i) {
                float * to = y + (8 * (j0 + j) + i) * y_stride;
                const bool is_in = c0 + 8 * (j0 + j) + i < p.n;
                if (is_in && row < m) { to[0] = d[4 * (j0 + j) + i] * factor[j][i]; }
                if (is_in && row + 8 < m) { to[8] = d[4 * (j0 + j) + 2 + i] * factor[j][i]; }
            }
        }
    }
}

// ---- experts ----
// mul_mat_id: an item is 128 rows of an expert and a tile of at most 64 of its columns, by the lists that only the device knows. There
// are two blocks on a multiprocessor and no clusters: columns are a small part of what is read. A tile's columns lie together,
// [step][column][128 bytes], from its place on; rows begin at any even byte.
//   floor   each expert's weights once for every 64 of its columns
struct d_wg_id_job {
    static constexpr int cluster = 1;
    const char * a;
    int64_t a_stride, expert_stride, row_bytes; // a_stride even; experts at multiples of 16 bytes where rows are
    const char * image;
    const int64_t * results; // of each column of the image: elements from y
    float * y;
    int m, m_tiles, n_units;
    const d_id_tile * tiles;
    const int32_t * n_tiles;
};

// Columns and results of a tile begin here, at multiples of eight: there is room for the columns before, in eights.
static inline __device__ int d_wg_id_place(int tile, int first) { return (first + 7 * tile + 7) / 8 * 8; }
static inline __device__ int d_wg_id_padded(int n) { return (n + 7) / 8 * 8; }

struct d_wg_id_item {
    int m0, expert, place, n, first, end; // first row; columns; units: none of a bad expert
};

static inline __device__ d_wg_id_item d_wg_item_of(const d_wg_id_job & p, int item, int) {
    const int tile = item / p.m_tiles;
    const d_id_tile id = p.tiles[tile];
    d_wg_id_item t;
    t.m0 = (item - tile * p.m_tiles) * WG_ROWS;
    t.expert = id.expert;
    t.place = d_wg_id_place(tile, id.first);
    t.n = id.n;
    t.first = 0;
    t.end = id.expert >= 0 ? p.n_units : 0;
    return t;
}
static inline __device__ int d_wg_items(const d_wg_job & p) { return (int) p.n_items; }
static inline __device__ int d_wg_items(const d_wg_id_job & p) { return *p.n_tiles * p.m_tiles; }

// A row of an expert; how far its elements are behind a multiple of 16 bytes, as those of the row 8 further.
static inline __device__ const char * d_wg_id_row(const d_wg_id_job & p, const d_wg_id_item & t, int row) {
    return p.a + t.expert * p.expert_stride + (t.m0 + row) * p.a_stride;
}
static inline __device__ int d_wg_skew(const d_wg_job &, const d_wg_item &, int, int byte) { return byte & 15; }
static inline __device__ int d_wg_skew(const d_wg_id_job & p, const d_wg_id_item & t, int row, int byte) {
    return ((int) (uintptr_t) d_wg_id_row(p, t, row) + byte) & 15;
}

template <typename A> struct d_wg_id_slab {
    static constexpr int k = d_wg_slab<A>::k, bytes = d_wg_slab<A>::bytes;
    static constexpr int skew = A::n == 32 ? 14 : d_wg_slab<A>::skew; // at most; rows of large blocks are at multiples of 16
    static constexpr int pieces = (bytes + skew + 15) / 16, stride = 16 * (pieces | 1);
};

template <typename A> struct d_wg_id_shape : d_wg_shape_of<A, d_wg_id_slab<A>, WG_FEW, WG_HALF_SHARED> {};

// A bad expert's columns have no sums.
template <int TN> static inline __device__ void d_wg_store(
    const d_wg_id_job & p, const d_wg_id_item & t, int row, int lane, const float (&d)[TN / 2]) {
    const bool is_zero = t.end == t.first;
    int64_t at[TN / 8][2];
    UNROLL for (int j = 0; j < TN / 8; ++j) {
        const int c = 8 * j + 2 * (lane % 4);
        UNROLL for (int i = 0; i < 2; ++i) { at[j][i] = c + i < t.n ? p.results[t.place + c + i] : -1; }
    }
    UNROLL for (int j = 0; j < TN / 8; ++j) {
        UNROLL for (int i = 0; i < 2; ++i) {
            float * to = p.y + at[j][i] + row;
            if (at[j][i] >= 0 && row < p.m) { to[0] = is_zero ? 0.0f : d[4 * j + i]; }
            if (at[j][i] >= 0 && row + 8 < p.m) { to[8] = is_zero ? 0.0f : d[4 * j + 2 + i]; }
        }
    }
}

// ---- both sides from memory: F16, BF16, or F32 as TF32, any number of matrices ----
#ifdef __CUDACC__
#define D_WG_MAP_ALIGN alignas(64)
#else
#define D_WG_MAP_ALIGN
#endif
struct d_wg_gemm {
    d_wg_job wg; // of it m, n, tiles, parts and y
    int ne2, a2, a3, b2, b3; // matrices of y in dimension 2; how many of them share one of a and of b
    int64_t y_nb2, y_nb3;  // elements between matrices of y, or of sums of parts
};

struct d_wg_gemm_item {
    d_wg_item wg;
    int i2, i3;
};

template <typename T> static constexpr int d_wg_gemm_step = WG_K * 2 / (int) sizeof(T); // elements of k

template <int TN> struct d_wg_gemm_shape {
    static constexpr int a_bytes = WG_ROWS * WG_K * 2, stage_bytes = a_bytes + TN * WG_K * 2;
    static constexpr int fit = (WG_MAX_SHARED - 1024) / stage_bytes, stages = fit < 6 ? fit : 6;
    static constexpr size_t shared_bytes = 1024 + (size_t) (stages * stage_bytes);
};

struct D_WG_MAP_ALIGN d_wg_map { // what cuTensorMapEncodeTiled makes
    uint64_t words[16];
};

// What follows, up to the end of the condition, is all that the simulated device cannot run.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
static inline __device__ d_wg_gemm_item d_wg_gemm_item_of(const d_wg_gemm & p, int64_t item, int tn) {
    const int64_t n = (int64_t) p.wg.m_tiles * p.wg.n_tiles * p.wg.n_parts, matrix = item / n;
    d_wg_gemm_item t;
    t.wg = d_wg_item_of(p.wg, (int) (item - matrix * n), tn);
    t.i2 = (int) (matrix % p.ne2);
    t.i3 = (int) (matrix / p.ne2);
    return t;
}

// ---- barriers of shared memory, asynchronous copies ----
static inline __device__ uint32_t d_shared_address(const void * p) { return (uint32_t) __cvta_generic_to_shared(p); }

static inline __device__ void d_barrier_init(uint32_t bar, int n) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(n) : "memory");
}
static inline __device__ void d_barrier_wait(uint32_t bar, uint32_t parity) {
    uint32_t is_over;
    do {
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                     : "=r"(is_over)
                     : "r"(bar), "r"(parity)
                     : "memory");
    } while (is_over == 0);
}
static inline __device__ void d_barrier_arrive(uint32_t bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
// At the barrier of the same address in block `rank` of the cluster.
static inline __device__ void d_barrier_arrive_at(uint32_t bar, int rank) {
    asm volatile("{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(bar),
                 "r"(rank)
                 : "memory");
}
static inline __device__ void d_barrier_expect(uint32_t bar, int n_bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(n_bytes) : "memory");
}
// Once this thread's asynchronous copies so far have arrived.
static inline __device__ void d_barrier_arrive_after_copies(uint32_t bar) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
}
// To the same address in both blocks of the cluster, whose barriers at one address count the bytes.
static inline __device__ void d_copy_to_both(uint32_t to, const char * from, int n_bytes, uint32_t bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(from), "r"(n_bytes), "r"(bar), "h"((uint16_t) 3)
                 : "memory");
}
// A box of a tensor map (coordinates in elements, along k, rows, and the two dimensions of matrices), here or to both blocks.
static inline __device__ void d_copy_box(uint32_t to, const d_wg_map & map, int k, int row, int i2, int i3, uint32_t bar) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
                 "l"(&map), "r"(k), "r"(row), "r"(i2), "r"(i3), "r"(bar)
                 : "memory");
}
static inline __device__ void d_copy_box_to_both(uint32_t to, const d_wg_map & map, int k, int row, int i2, int i3, uint32_t bar) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3, "
                 "%4, %5}], [%6], %7;" ::"r"(to),
                 "l"(&map), "r"(k), "r"(row), "r"(i2), "r"(i3), "r"(bar), "h"((uint16_t) 3)
                 : "memory");
}
static inline __device__ void d_copy_bulk(uint32_t to, const char * from, int n_bytes, uint32_t bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
                 "r"(n_bytes), "r"(bar)
                 : "memory");
}
static inline __device__ int d_cluster_rank() {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return (int) rank;
}
static inline __device__ void d_cluster_sync() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// ---- warp-group products ----
static inline __device__ void d_wg_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
static inline __device__ void d_wg_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> static inline __device__ void d_wg_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }

// Columns at a multiple of 1024 bytes, rows of 128 bytes swizzled; sixteen elements of k further is 32 bytes further.
static inline __device__ uint64_t d_wg_columns(uint32_t address) {
    return (uint64_t) ((address & 0x3ffffu) >> 4) | (uint64_t) 1 << 16 | (uint64_t) 64 << 32 | (uint64_t) 1 << 62;
}

#define D_F8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define D_F32(i) D_F8(i), D_F8(i + 8), D_F8(i + 16), D_F8(i + 24)
#define D_R10(t) "%" #t "0, %" #t "1, %" #t "2, %" #t "3, %" #t "4, %" #t "5, %" #t "6, %" #t "7, %" #t "8, %" #t "9, "
#define D_R30 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, " D_R10(1) D_R10(2)
#define D_R60 D_R30 D_R10(3) D_R10(4) D_R10(5)
#define D_R120 D_R60 D_R10(6) D_R10(7) D_R10(8) D_R10(9) D_R10(10) D_R10(11)

// d += a b, or d = a b: 64 rows in registers, as for d_mma, a warp 16 of them; sixteen k; TN columns in shared memory.
#define D_WG_MMA(NAME, K_AND_TYPES, FLAGS)                                                                                                      \
    static inline __device__ void NAME(float (&d)[128], const uint32_t * a, uint64_t b, int adds) {                              \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %133, 0;\nwgmma.mma_async.sync.aligned.m64n256" K_AND_TYPES                 \
                     " {" D_R120 "%120, %121, %122, %123, %124, %125, %126, %127}, {%128, %129, %130, %131}, %132, p, " FLAGS ";\n}"  \
                     : D_F32(0), D_F32(32), D_F32(64), D_F32(96)                                                                  \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds));                                           \
    }                                                                                                                             \
    static inline __device__ void NAME(float (&d)[64], const uint32_t * a, uint64_t b, int adds) {                               \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\nwgmma.mma_async.sync.aligned.m64n128" K_AND_TYPES                  \
                     " {" D_R60 "%60, %61, %62, %63}, {%64, %65, %66, %67}, %68, p, " FLAGS ";\n}"                                   \
                     : D_F32(0), D_F32(32)                                                                                        \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds));                                           \
    }                                                                                                                             \
    static inline __device__ void NAME(float (&d)[32], const uint32_t * a, uint64_t b, int adds) {                               \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\nwgmma.mma_async.sync.aligned.m64n64" K_AND_TYPES                   \
                     " {" D_R30 "%30, %31}, {%32, %33, %34, %35}, %36, p, " FLAGS ";\n}"                                            \
                     : D_F32(0)                                                                                                   \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds));                                           \
    }
D_WG_MMA(d_wg_mma_f16, "k16.f32.f16.f16", "1, 1, 0")
D_WG_MMA(d_wg_mma_bf16, "k16.f32.bf16.bf16", "1, 1, 0")
D_WG_MMA(d_wg_mma_tf32, "k8.f32.tf32.tf32", "1, 1")

// The same with a in shared memory, as b.
#define D_WG_MMA_SHARED(NAME, K_AND_TYPES, FLAGS)                                                                                 \
    static inline __device__ void NAME(float (&d)[128], uint64_t a, uint64_t b, int adds) {                                       \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\nwgmma.mma_async.sync.aligned.m64n256" K_AND_TYPES                 \
                     " {" D_R120 "%120, %121, %122, %123, %124, %125, %126, %127}, %128, %129, p, " FLAGS ";\n}"                     \
                     : D_F32(0), D_F32(32), D_F32(64), D_F32(96)                                                                  \
                     : "l"(a), "l"(b), "r"(adds));                                                                                \
    }                                                                                                                             \
    static inline __device__ void NAME(float (&d)[64], uint64_t a, uint64_t b, int adds) {                                        \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\nwgmma.mma_async.sync.aligned.m64n128" K_AND_TYPES                  \
                     " {" D_R60 "%60, %61, %62, %63}, %64, %65, p, " FLAGS ";\n}"                                                   \
                     : D_F32(0), D_F32(32)                                                                                        \
                     : "l"(a), "l"(b), "r"(adds));                                                                                \
    }
D_WG_MMA_SHARED(d_wg_mma_f16, "k16.f32.f16.f16", "1, 1, 0, 0")
D_WG_MMA_SHARED(d_wg_mma_bf16, "k16.f32.bf16.bf16", "1, 1, 0, 0")
D_WG_MMA_SHARED(d_wg_mma_tf32, "k8.f32.tf32.tf32", "1, 1")

template <int N> static inline __device__ void d_wg_mma(__half, float (&d)[N], uint64_t a, uint64_t b, int adds) {
    d_wg_mma_f16(d, a, b, adds);
}
template <int N> static inline __device__ void d_wg_mma(__nv_bfloat16, float (&d)[N], uint64_t a, uint64_t b, int adds) {
    d_wg_mma_bf16(d, a, b, adds);
}
template <int N> static inline __device__ void d_wg_mma(float, float (&d)[N], uint64_t a, uint64_t b, int adds) {
    d_wg_mma_tf32(d, a, b, adds);
}
template <int N> static inline __device__ void d_wg_mma(__half, float (&d)[N], const uint32_t * a, uint64_t b, int adds) {
    d_wg_mma_f16(d, a, b, adds);
}
template <int N> static inline __device__ void d_wg_mma(__nv_bfloat16, float (&d)[N], const uint32_t * a, uint64_t b, int adds) {
    d_wg_mma_bf16(d, a, b, adds);
}
template <int N> static inline __device__ void d_wg_mma(float, float (&d)[N], const uint32_t * a, uint64_t b, int adds) {
    d_wg_mma_tf32(d, a, b, adds);
}

// ---- the kernel ----
template <typename A, typename S> struct d_wg_ring {
    typedef S shape;
    char * slabs;
    typename d_wg_codebook<A>::type * table;
    uint32_t stages; // their address
    uint32_t full_stage, empty_stage, full_slab, empty_slab; // barriers, eight bytes each
};

// Place in a ring and how often it has been round.
template <int N> struct d_wg_place {
    int slot;
    uint32_t parity;
    inline __device__ void next() {
        slot = slot + 1 == N ? 0 : slot + 1;
        parity ^= slot == 0 ? 1u : 0u;
    }
};

#define FOR_WG_ITEMS(t, p, J, TN)                                                                            \
    for (int i_ = (int) blockIdx.x / J::cluster, n_ = d_wg_items(p); i_ < n_; i_ += (int) gridDim.x / J::cluster) \
        for (auto t = d_wg_item_of(p, i_, TN), *once_ = &t; once_ != nullptr; once_ = nullptr)

template <typename A, int TN> static inline __device__ void d_wg_fetch_columns(
    const d_wg_job & p, const d_wg_ring<A, d_wg_shape<A, TN>> & ring, int rank) {
    typedef d_wg_shape<A, TN> shape;
    constexpr int steps = d_wg_unit<A>::steps, half = shape::stage_bytes / 2;
    d_wg_place<shape::stages> at = { 0, 1 };
    FOR_WG_ITEMS(t, p, d_wg_job, TN) {
        const char * from = p.image + ((int64_t) t.tile * p.n_units + t.first) * steps * shape::stage_bytes + rank * half;
        for (int n = (t.end - t.first) * steps; n > 0; --n) {
            const uint32_t full = ring.full_stage + 8 * at.slot;
            d_barrier_wait(ring.empty_stage + 8 * at.slot, at.parity);
            d_barrier_expect(full, shape::stage_bytes);
            d_copy_to_both(ring.stages + at.slot * shape::stage_bytes + rank * half, from, half, full);
            from += shape::stage_bytes;
            at.next();
        }
    }
}

#define WG_FETCHERS 96 // threads

// Neighbouring threads have neighbouring pieces of 16 bytes, and each one piece of every ROWS-th row. What a slab lacks,
// behind the last row or the last element, is zeros.
template <typename A, int TN>
static inline __device__ void d_wg_fetch_weights(const d_wg_job & p, const d_wg_ring<A, d_wg_shape<A, TN>> & ring, int rank, int thread) {
    typedef d_wg_slab<A> slab;
    typedef d_wg_shape<A, TN> shape;
    constexpr int ROWS = WG_FETCHERS / slab::pieces, N = (WG_ROWS + ROWS - 1) / ROWS;
    const int row = thread / slab::pieces, piece = thread % slab::pieces;
    const int64_t step = ROWS * p.a_stride;
    d_wg_place<shape::slabs> at = { 0, 1 };
    FOR_WG_ITEMS(t, p, d_wg_job, TN) {
        const int m = t.matrix > 0 ? p.more[t.matrix - 1].m : p.m;
        const int m0 = t.m0 + rank * WG_ROWS + row, left = row < ROWS ? m - m0 : 0; // rows behind this one
        const char * a = (t.matrix > 0 ? p.more[t.matrix - 1].a : p.a) + (left > 0 ? m0 : 0) * p.a_stride;
        for (int s = t.first * d_wg_unit<A>::slabs; s < t.end * d_wg_unit<A>::slabs; ++s) {
            const int64_t byte = ((int64_t) s * slab::bytes & ~(int64_t) 15) + 16 * piece;
            const int n_rows = byte < p.row_bytes ? left : 0;
            const char * from = n_rows > 0 ? a + byte : p.a;
            char * to = ring.slabs + at.slot * shape::slab_bytes + row * slab::stride + 16 * piece;
            d_barrier_wait(ring.empty_slab + 8 * at.slot, at.parity);
            if (row < ROWS) {
                UNROLL for (int i = 0; i < N; ++i) {
                    if ((i + 1) * ROWS <= WG_ROWS || row + i * ROWS < WG_ROWS) {
                        const bool is_in = i * ROWS < n_rows;
                        d_copy_16(to, from, is_in ? 16 : 0);
                        from += is_in ? step : 0;
                        to += ROWS * slab::stride;
                    }
                }
            }
            d_barrier_arrive_after_copies(ring.full_slab + 8 * at.slot);
            at.next();
        }
    }
}

// Of experts: the same without a cluster. Neighbouring threads have neighbouring pieces of 16 bytes of a row, wherever it begins;
// what is behind its last element is zeros.
template <typename A>
static inline __device__ void d_wg_fetch_columns(const d_wg_id_job & p, const d_wg_ring<A, d_wg_id_shape<A>> & ring, int) {
    typedef d_wg_id_shape<A> shape;
    constexpr int steps = d_wg_unit<A>::steps;
    d_wg_place<shape::stages> at = { 0, 1 };
    FOR_WG_ITEMS(t, p, d_wg_id_job, shape::tn) {
        const int n_bytes = d_wg_id_padded(t.n) * (WG_K * 2); // the other columns of a stage are whatever is there
        const char * from = p.image + (int64_t) t.place * p.n_units * steps * (WG_K * 2);
        for (int n = (t.end - t.first) * steps; n > 0; --n) {
            const uint32_t full = ring.full_stage + 8 * at.slot;
            d_barrier_wait(ring.empty_stage + 8 * at.slot, at.parity);
            d_barrier_expect(full, n_bytes);
            d_copy_bulk(ring.stages + at.slot * shape::stage_bytes, from, n_bytes, full);
            from += n_bytes;
            at.next();
        }
    }
}

template <typename A>
static inline __device__ void d_wg_fetch_weights(const d_wg_id_job & p, const d_wg_ring<A, d_wg_id_shape<A>> & ring, int, int thread) {
    typedef d_wg_id_slab<A> slab;
    typedef d_wg_id_shape<A> shape;
    constexpr int ROWS = WG_FETCHERS / slab::pieces;
    const int row = thread / slab::pieces, piece = 16 * (thread % slab::pieces);
    d_wg_place<shape::slabs> at = { 0, 1 };
    FOR_WG_ITEMS(t, p, d_wg_id_job, shape::tn) {
        const int left = p.m - t.m0, n_rows = row >= ROWS ? 0 : left < WG_ROWS ? left : WG_ROWS;
        const char * a = d_wg_id_row(p, t, row) + piece;
        for (int s = t.first; s < t.end; ++s) {
            const char * from = a + (int64_t) s * slab::bytes;
            char * to = ring.slabs + at.slot * shape::slab_bytes + row * slab::stride + piece;
            const int64_t left_bytes = p.row_bytes - (int64_t) s * slab::bytes; // of a row
            d_barrier_wait(ring.empty_slab + 8 * at.slot, at.parity);
            if (left_bytes >= 16 * slab::pieces) {
                UNROLL_4 for (int i = row; i < n_rows; i += ROWS) {
                    d_copy_16(to, (const char *) ((uintptr_t) from & ~(uintptr_t) 15), 16);
                    from += ROWS * p.a_stride;
                    to += ROWS * slab::stride;
                }
            } else {
                NO_UNROLL for (int i = row; i < n_rows; i += ROWS) {
                    const int skew = (int) (uintptr_t) from & 15, n = (int) left_bytes - piece + skew;
                    d_copy_16(to, n > 0 ? from - skew : p.a, n < 0 ? 0 : n < 16 ? n : 16);
                    from += ROWS * p.a_stride;
                    to += ROWS * slab::stride;
                }
            }
            d_barrier_arrive_after_copies(ring.full_slab + 8 * at.slot);
            at.next();
        }
    }
}

static inline __device__ void d_wg_release(const d_wg_job &, uint32_t bar, int lane) { // a stage, by a warp that has read it
    if (lane < 2) { d_barrier_arrive_at(bar, lane); }
}
static inline __device__ void d_wg_release(const d_wg_id_job &, uint32_t bar, int lane) {
    if (lane == 0) { d_barrier_arrive(bar); }
}

template <typename A, typename S, typename J>
static inline __device__ void d_wg_multiply(const J & p, const d_wg_ring<A, S> & ring, int rank, int thread) {
    typedef typename S::slab slab;
    typedef S shape;
    constexpr int TN = S::tn;
    const int lane = thread % 32, row = thread / 32 * 16 + lane / 4; // of the block's 128
    d_wg_place<shape::slabs> at_slab = { 0, 0 };
    d_wg_place<shape::stages> at = { 0, 0 };
    float d[TN / 2];
    uint32_t a[2][16];
    d_wg_weights<A> w;
    FOR_WG_ITEMS(t, p, J, TN) {
        uint32_t before = 0; // barrier of the stage that was read last
        int adds = 0;
        for (int s = t.first * (d_wg_unit<A>::k / 128); s < t.end * (d_wg_unit<A>::k / 128); ++s) { // 128 elements
            const int half = s % (d_wg_unit<A>::k / 128);
            UNROLL for (int u = 0; u < 2; ++u) {
                const char * from = ring.slabs + at_slab.slot * shape::slab_bytes;
                if (slab::k == WG_K || (u == 0 && half == 0)) { d_barrier_wait(ring.full_slab + 8 * at_slab.slot, at_slab.parity); }
                if (slab::k == WG_K || u == 0) { w.template load<slab>(from, d_wg_skew(p, t, row, s / 2 * slab::bytes), row, lane, half, ring.table); }
                if (u == 0) {
                    w.template fragment<0>(a[0]);
                } else {
                    w.template fragment<1>(a[1]);
                }
                const uint64_t b = d_wg_columns(ring.stages + at.slot * shape::stage_bytes);
                d_barrier_wait(ring.full_stage + 8 * at.slot, at.parity);
                d_wg_fence();
                UNROLL for (int i = 0; i < 4; ++i) {
                    d_wg_mma(typename d_wg_operand<A>::type(), d, a[u] + 4 * i, b + 2 * i, adds);
                    adds = 1;
                }
                d_wg_commit();
                if (slab::k == WG_K || (u == 1 && half == slab::k / 128 - 1)) { // the slab is read
                    d_barrier_arrive(ring.empty_slab + 8 * at_slab.slot); // every lane: racecheck does not see one that arrives for others
                    at_slab.next();
                }
                d_wg_wait<1>(); // the step before
                if (before != 0) { d_wg_release(p, before, lane); }
                before = ring.empty_stage + 8 * at.slot;
                at.next();
            }
        }
        d_wg_wait<0>();
        UNROLL for (int i = 0; i < TN / 2; ++i) { asm volatile("" : "+f"(d[i])::"memory"); } // not read before
        if (J::cluster > 1 || before != 0) { d_wg_release(p, before, lane); } // without units: of experts alone
        d_wg_store<TN>(p, t, t.m0 + rank * WG_ROWS + row, lane, d);
    }
}

// ---- both sides from memory, as they lie ----
#define FOR_GEMM_ITEMS(t, p, TN)                                                            \
    for (int64_t i_ = blockIdx.x / 2; i_ < (p).wg.n_items; i_ += gridDim.x / 2)               \
        for (d_wg_gemm_item t = d_wg_gemm_item_of(p, i_, TN), *once_ = &t; once_ != nullptr; once_ = nullptr)

template <typename T, int TN> static inline __device__ void d_wg_gemm_fetch(
    const d_wg_gemm & p, const d_wg_map & a, const d_wg_map & b, uint32_t stages, uint32_t full, uint32_t empty, int rank) {
    typedef d_wg_gemm_shape<TN> shape;
    constexpr int step = d_wg_gemm_step<T>;
    d_wg_place<shape::stages> at = { 0, 1 };
    FOR_GEMM_ITEMS(t, p, TN) {
        for (int s = t.wg.first; s < t.wg.end; ++s) {
            const uint32_t to = stages + at.slot * shape::stage_bytes, bar = full + 8 * at.slot;
            d_barrier_wait(empty + 8 * at.slot, at.parity);
            d_barrier_expect(bar, shape::stage_bytes);
            d_copy_box(to, a, s * step, t.wg.m0 + rank * WG_ROWS, t.i2 / p.a2, t.i3 / p.a3, bar);
            d_copy_box_to_both(to + shape::a_bytes + rank * (TN * WG_K), b, s * step, t.wg.c0 + rank * (TN / 2), t.i2 / p.b2, t.i3 / p.b3, bar);
            at.next();
        }
    }
}

template <typename T, int TN> static inline __device__ void d_wg_gemm_multiply(
    const d_wg_gemm & p, uint32_t stages, uint32_t full, uint32_t empty, int rank, int thread) {
    typedef d_wg_gemm_shape<TN> shape;
    const int lane = thread % 32, row = thread / 32 * 16 + lane / 4;
    d_wg_place<shape::stages> at = { 0, 0 };
    float d[TN / 2];
    FOR_GEMM_ITEMS(t, p, TN) {
        uint32_t before = 0; // barrier of the stage that was read last
        for (int s = t.wg.first; s < t.wg.end; ++s) {
            const uint32_t from = stages + at.slot * shape::stage_bytes;
            const uint64_t a = d_wg_columns(from + thread / 128 * (64 * WG_K * 2)), b = d_wg_columns(from + shape::a_bytes);
            d_barrier_wait(full + 8 * at.slot, at.parity);
            d_wg_fence();
            UNROLL for (int i = 0; i < 4; ++i) { d_wg_mma(T(), d, a + 2 * i, b + 2 * i, s > t.wg.first || i > 0); }
            d_wg_commit();
            d_wg_wait<1>(); // the step before
            if (before != 0 && lane < 2) { d_barrier_arrive_at(before, lane); }
            before = empty + 8 * at.slot;
            at.next();
        }
        d_wg_wait<0>();
        UNROLL for (int i = 0; i < TN / 2; ++i) { asm volatile("" : "+f"(d[i])::"memory"); } // not read before
        if (lane < 2) { d_barrier_arrive_at(before, lane); }
        d_wg_job y = p.wg;
        y.y += t.i2 * p.y_nb2 + t.i3 * p.y_nb3;
        d_wg_store<TN>(y, t.wg, t.wg.m0 + rank * WG_ROWS + row, lane, d);
    }
}
#define D_WG_CLUSTER __cluster_dims__(2, 1, 1)
#else
#define D_WG_CLUSTER
#endif // 9.0a

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
// A block's ring, of a job whose clusters are so large; the blocks of a cluster have to meet before they use it.
template <typename A, typename S>
static inline __device__ void d_wg_set_ring(d_wg_ring<A, S> & ring, char * shared, uint64_t * barriers, int thread, int cluster) {
    typedef S shape;
    const uint32_t skip = (1024 - d_shared_address(shared) % 1024) % 1024; // the swizzle wants it
    ring.stages = d_shared_address(shared) + skip;
    ring.slabs = shared + skip + shape::stages * shape::stage_bytes;
    ring.table = (typename d_wg_codebook<A>::type *) (ring.slabs + shape::slabs * shape::slab_bytes);
    if constexpr (d_wg_codebook<A>::n > 0) {
        for (int i = thread; i < d_wg_codebook<A>::n; i += WG_THREADS) { ring.table[i] = A::entry((uint32_t) i); }
    }
    ring.full_stage = d_shared_address(barriers);
    ring.empty_stage = ring.full_stage + 8 * shape::stages;
    ring.full_slab = ring.empty_stage + 8 * shape::stages;
    ring.empty_slab = ring.full_slab + 8 * shape::slabs;
    if (thread == 0) {
        for (int i = 0; i < shape::stages; ++i) {
            d_barrier_init(ring.full_stage + 8 * i, 1);
            d_barrier_init(ring.empty_stage + 8 * i, 8 * cluster); // the warps that multiply, of all blocks
        }
        for (int i = 0; i < shape::slabs; ++i) {
            d_barrier_init(ring.full_slab + 8 * i, WG_FETCHERS);
            d_barrier_init(ring.empty_slab + 8 * i, 256); // the lanes that multiply
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
}
#endif // 9.0a

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
// Registers, from the warps that fetch to those that multiply; with two blocks on a multiprocessor each has half of them.
template <bool ARE_TWO> static inline __device__ void d_wg_give_registers() {
    if constexpr (ARE_TWO) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
    } else {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    }
}
template <bool ARE_TWO> static inline __device__ void d_wg_take_registers() {
    if constexpr (ARE_TWO) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 104;");
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    }
}
#endif // 9.0a

// Blocks come in clusters of two. Without code for 9.0a it has no static shared memory (see gcuda_has_warp_groups).
template <typename A, int TN>
static __global__ void D_WG_CLUSTER __launch_bounds__(WG_THREADS, TN == WG_FEW ? 2 : 1) k_mul_mat_wg(const d_wg_job p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    typedef d_wg_shape<A, TN> shape;
    DYNAMIC_SHARED(char, shared);
    alignas(8) __shared__ uint64_t barriers[2 * (shape::stages + shape::slabs)];
    const int thread = (int) threadIdx.x, rank = d_cluster_rank();
    d_wg_ring<A, shape> ring;
    d_wg_set_ring(ring, shared, barriers, thread, d_wg_job::cluster);
    d_cluster_sync();
    d_take_turn();
    if (thread < 128) {
        d_wg_give_registers<TN == WG_FEW>();
        if (thread == 0) {
            d_wg_fetch_columns(p, ring, rank);
        } else if (thread >= 128 - WG_FETCHERS) {
            d_wg_fetch_weights(p, ring, rank, thread - (128 - WG_FETCHERS));
        }
    } else {
        d_wg_take_registers<TN == WG_FEW>();
        d_wg_multiply(p, ring, rank, thread - 128);
    }
    d_cluster_sync(); // the other block may still send to this one
#else
    (void) p;
#endif
}

// The same for experts, two blocks on a multiprocessor, without clusters.
template <typename A> static __global__ void __launch_bounds__(WG_THREADS, 2) k_mul_mat_id_wg(const D_GRID_CONSTANT d_wg_id_job p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    typedef d_wg_id_shape<A> shape;
    DYNAMIC_SHARED(char, shared);
    alignas(8) __shared__ uint64_t barriers[2 * (shape::stages + shape::slabs)];
    const int thread = (int) threadIdx.x;
    d_wg_ring<A, shape> ring;
    d_wg_set_ring(ring, shared, barriers, thread, d_wg_id_job::cluster);
    __syncthreads();
    d_take_turn();
    if (thread < 128) {
        d_wg_give_registers<true>();
        if (thread == 0) {
            d_wg_fetch_columns(p, ring, 0);
        } else if (thread >= 128 - WG_FETCHERS) {
            d_wg_fetch_weights(p, ring, 0, thread - (128 - WG_FETCHERS));
        }
    } else {
        d_wg_take_registers<true>();
        d_wg_multiply(p, ring, 0, thread - 128);
    }
#else
    (void) p;
#endif
}

// A block has 128 rows of a and TN columns of b, each of two warp groups 64 rows; the two blocks of a cluster have the same columns,
// of which each fetches half for both. One thread fetches, by the tensor maps: they also make zeros of what is outside.
template <typename T, int TN> static __global__ void D_WG_CLUSTER __launch_bounds__(WG_THREADS, 1)
    k_mul_mat_wg_gemm(const d_wg_gemm p, const D_GRID_CONSTANT d_wg_map a, const D_GRID_CONSTANT d_wg_map b) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    typedef d_wg_gemm_shape<TN> shape;
    DYNAMIC_SHARED(char, shared);
    alignas(8) __shared__ uint64_t barriers[2 * shape::stages];
    const int thread = (int) threadIdx.x, rank = d_cluster_rank();
    const uint32_t stages = (d_shared_address(shared) + 1023) & ~1023u; // the swizzle wants it
    const uint32_t full = d_shared_address(barriers), empty = full + 8 * shape::stages;
    if (thread == 0) {
        for (int i = 0; i < shape::stages; ++i) {
            d_barrier_init(full + 8 * i, 1);
            d_barrier_init(empty + 8 * i, 16); // the warps that multiply, of both blocks
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    d_cluster_sync();
    d_take_turn();
    if (thread < 128) {
        d_wg_give_registers<false>();
        if (thread == 0) { d_wg_gemm_fetch<T, TN>(p, a, b, stages, full, empty, rank); }
    } else {
        d_wg_take_registers<false>();
        d_wg_gemm_multiply<T, TN>(p, stages, full, empty, rank, thread - 128);
    }
    d_cluster_sync(); // the other block may still send to this one
#else
    (void) p;
    (void) a;
    (void) b;
#endif
}

// ---- columns ----
// As [tile][step][column][128 bytes], in the order of k that the kernel wants (d_wg_put), zeros behind the last element and column.
struct d_wg_columns_job {
    gcuda_array x;
    char * image;
    float * factor; // F16: powers of two that keep a column in its range (see k_half_rows), or NULL
    int64_t k_padded, n_padded;
    int tn, is_for_floats; // 1: a lane has 16 elements of 64, not 32 of 128
};

static inline __device__ uint32_t d_pair_of(__half, float low, float high) {
    const __half2 v = __floats2half2_rn(low, high);
    return *(const uint32_t *) &v;
}
static inline __device__ uint32_t d_pair_of(__nv_bfloat16, float low, float high) { return d_bf16_pair(low, high); }

// Elements k .. k + 3 of a column of n; behind it zeros.
static inline __device__ float4 d_wg_load4(const d_wg_columns_job & p, const char * column, int64_t n, int64_t k, bool is_wide) {
    if (is_wide && k + 4 <= n) {
        return *(const float4 *) (column + 4 * k);
    }
    float v[4];
    UNROLL for (int i = 0; i < 4; ++i) { v[i] = k + i < n ? d_load(p.x.type, column + (k + i) * (int64_t) p.x.nb[0]) : 0.0f; }
    return make_float4(v[0], v[1], v[2], v[3]);
}
static inline __device__ float d_max4(const float4 & v) { return fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))); }

// Elements k .. k + 255 of a column, those of lane: 4 from each half. Of 128, element 4 of lane 8 t + s is where lane t of a
// quad has it in instruction s; of 64 for floats, that of lane 4 t + s.
template <typename T>
static inline __device__ void d_wg_put(const d_wg_columns_job & p, char * to, int64_t k, int swizzle, uint32_t * words, float4 (&v)[2], int exponent) {
    const int lane = (int) threadIdx.x % 32;
    UNROLL for (int i = 0; i < 2; ++i) {
        if (exponent != 0) {
            v[i] = make_float4(ldexpf(v[i].x, -exponent), ldexpf(v[i].y, -exponent), ldexpf(v[i].z, -exponent), ldexpf(v[i].w, -exponent));
        }
        const int word = 64 * i + (p.is_for_floats != 0 ? 32 * (lane / 16) + 8 * (lane % 4) + lane / 4 % 4 : 8 * (lane % 8) + lane / 8);
        words[word] = d_pair_of(T(), v[i].x, v[i].y);
        words[word + 4] = d_pair_of(T(), v[i].z, v[i].w);
    }
    __syncwarp();
    const int64_t step = k / WG_K + lane / 8;
    if (step * WG_K < p.k_padded) {
        *(uint4 *) (to + step * p.tn * (WG_K * 2) + 16 * (lane % 8 ^ swizzle)) = *(const uint4 *) &words[4 * lane];
    }
    __syncwarp();
}

// A block has a column; a warp takes 256 elements at a time. Aligned F32 of at most 2048 N elements is held in registers, other
// columns (N 0) are read again.
template <typename T, int N> static __global__ void __launch_bounds__(256, 2) k_wg_columns(const d_wg_columns_job p) {
    d_take_turn();
    alignas(16) __shared__ uint32_t words[8][128];
    const int lane = (int) threadIdx.x % 32, warp = (int) threadIdx.x / 32;
    for (int c = (int) blockIdx.x; c < (int) p.n_padded; c += (int) gridDim.x) {
        const bool is_in = c < p.x.ne[1] * p.x.ne[2] * p.x.ne[3];
        const char * x = is_in ? d_row(p.x, c) : nullptr;
        const bool is_wide = p.x.type == GCUDA_TYPE_F32 && p.x.nb[0] == 4 && (uintptr_t) x % 16 == 0;
        const int64_t n = is_in ? p.x.ne[0] : 0, k0 = warp * 256 + 4 * lane;
        float4 held[N > 0 ? N : 1][2];
        float max = 0.0f;
        int exponent = 0;
        UNROLL for (int i = 0; i < N; ++i) {
            UNROLL for (int h = 0; h < 2; ++h) {
                const int64_t k = k0 + 2048 * i + 128 * h;
                held[i][h] = k < n ? *(const float4 *) (x + 4 * k) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            }
        }
        if (p.factor != nullptr && is_in) {
            UNROLL for (int i = 0; i < N; ++i) {
                UNROLL for (int h = 0; h < 2; ++h) { max = fmaxf(max, d_max4(held[i][h])); }
            }
            for (int64_t k = 4 * threadIdx.x; k < n && N == 0; k += 1024) { max = fmaxf(max, d_max4(d_wg_load4(p, x, n, k, is_wide))); }
            exponent = d_half_exponent(d_block_max(max));
            if (threadIdx.x == 0) { p.factor[c] = ldexpf(1.0f, exponent); }
        }
        char * to = p.image + ((int64_t) (c / p.tn) * p.k_padded * p.tn + (int64_t) (c % p.tn) * WG_K) * 2;
        UNROLL for (int i = 0; i < N; ++i) {
            const int64_t k = warp * 256 + 2048 * i;
            if (k < p.k_padded) { d_wg_put<T>(p, to, k, c & 7, words[warp], held[i], exponent); }
        }
        for (int64_t k = warp * 256; k < p.k_padded && N == 0; k += 2048) {
            UNROLL for (int h = 0; h < 2; ++h) { held[0][h] = d_wg_load4(p, x, n, k + 4 * lane + 128 * h, is_wide); }
            d_wg_put<T>(p, to, k, c & 7, words[warp], held[0], exponent);
        }
    }
}

// The same of TF32. A warp takes 128 elements at a time, which are 256 halves: element i of lane l is where lane l % 8 / 2 of a
// quad has it in instruction 2 (l % 2) + i / 2.
static __global__ void __launch_bounds__(256) k_wg_columns_tf32(const d_wg_columns_job p) {
    d_take_turn();
    alignas(16) __shared__ uint32_t words[8][128];
    const int lane = (int) threadIdx.x % 32, warp = (int) threadIdx.x / 32;
    for (int c = (int) blockIdx.x; c < (int) p.n_padded; c += (int) gridDim.x) {
        const bool is_in = c < p.x.ne[1] * p.x.ne[2] * p.x.ne[3];
        const char * x = is_in ? d_row(p.x, c) : nullptr;
        const bool is_wide = p.x.type == GCUDA_TYPE_F32 && p.x.nb[0] == 4 && (uintptr_t) x % 16 == 0;
        char * to = p.image + ((int64_t) (c / p.tn) * p.k_padded * p.tn + (int64_t) (c % p.tn) * WG_K) * 2;
        for (int64_t k = warp * 256; k < p.k_padded; k += 2048) {
            const float4 v = d_wg_load4(p, x, is_in ? p.x.ne[0] : 0, k / 2 + 4 * lane, is_wide);
            uint32_t * w = words[warp] + 32 * (lane / 8) + 16 * (lane % 2) + lane % 8 / 2;
            const int64_t step = k / WG_K + lane / 8;
            w[0] = d_tf32(v.x);
            w[4] = d_tf32(v.y);
            w[8] = d_tf32(v.z);
            w[12] = d_tf32(v.w);
            __syncwarp();
            if (step * WG_K < p.k_padded) {
                *(uint4 *) (to + step * p.tn * (WG_K * 2) + 16 * (lane % 8 ^ (c & 7))) = *(const uint4 *) &words[warp][4 * lane];
            }
            __syncwarp();
        }
    }
}

// ---- sums of parts ----
static __global__ void __launch_bounds__(256) k_wg_parts(const d_wg_job p, const float * parts) {
    d_take_turn();
    const int64_t m = p.m, wide = m % 4 == 0 && p.y_stride % 4 == 0 && (uintptr_t) p.y % 16 == 0 ? 4 : 1, n = m / wide * p.n;
    FOR_ELEMENTS(i, n) {
        const int64_t c = i / (m / wide), row = i % (m / wide) * wide;
        const float * from = parts + c * m + row;
        float * y = p.y + c * p.y_stride + row;
        if (wide == 4) {
            float4 v = *(const float4 *) from;
            for (int k = 1; k < p.n_parts; ++k) {
                const float4 w = *(const float4 *) (from + k * p.part_stride);
                v = make_float4(v.x + w.x, v.y + w.y, v.z + w.z, v.w + w.w);
            }
            *(float4 *) y = v;
        } else {
            float v = *from;
            for (int k = 1; k < p.n_parts; ++k) { v += from[k * p.part_stride]; }
            *y = v;
        }
    }
}

// An operand of the results from row m of column c on.
static inline __device__ const char * d_wg_beside(const gcuda_array & x, int64_t m, int64_t c) {
    return (const char *) x.data + m * (int64_t) x.nb[0] + c * (int64_t) x.nb[1];
}

// The same with steps behind the sums: bias, activation, factor, scale, residual. Where k is not cut the sums wait in scratch as one
// part: with the steps inside the products' kernels these took 35 us longer for 14336 x 4096 and 512 columns with bias and gelu (101.6
// without, on an H200), more than reading and writing the sums once more. The epilogue's strides are 0 where sizes are 1.
static __global__ void __launch_bounds__(256) k_wg_steps(const d_wg_job p, const D_GRID_CONSTANT gcuda_mul_mat_epilogue e, const float * parts) {
    d_take_turn();
    const int64_t m = p.m, n = (m + 3) / 4 * p.n;
    const bool is_wide = m % 4 == 0;
    FOR_ELEMENTS(i, n) {
        const int64_t c = i / ((m + 3) / 4), row = i % ((m + 3) / 4) * 4, left = m - row;
        const float * from = parts + c * m + row;
        const char * residual = d_wg_beside(e.residual, row, c);
        const auto load = [=](const char * at, int k, size_t next) { return k < left ? *(const float *) (at + k * (int64_t) next) : 0.0f; };
        float v[4] = {}, r[4] = {};
        for (int part = 0; part < p.n_parts; ++part) {
            const float * at = from + part * p.part_stride;
            const float4 w = is_wide ? *(const float4 *) at
                                     : make_float4(at[0], 1 < left ? at[1] : 0.0f, 2 < left ? at[2] : 0.0f, 3 < left ? at[3] : 0.0f);
            const float u[4] = { w.x, w.y, w.z, w.w };
            UNROLL for (int k = 0; k < 4; ++k) { v[k] = part > 0 ? v[k] + u[k] : u[k]; }
        }
        const bool is_row = e.residual.nb[0] == 4 && is_wide && ((uintptr_t) residual | e.residual.nb[1]) % 16 == 0;
        if (e.residual.data != nullptr && is_row) {
            const float4 w = *(const float4 *) residual;
            r[0] = w.x, r[1] = w.y, r[2] = w.z, r[3] = w.w;
        } else if (e.residual.data != nullptr) {
            UNROLL for (int k = 0; k < 4; ++k) { r[k] = load(residual, k, e.residual.nb[0]); }
        }
        d_finish_sums<false, 4>(e, v, v, [&](int k) { return load(d_wg_beside(e.bias, row, c), k, e.bias.nb[0]); },
            [](int) { return 0.0f; }, [&](int k) { return load(d_wg_beside(e.factor, row, c), k, e.factor.nb[0]); });
        UNROLL for (int k = 0; k < 4; ++k) { v[k] = e.residual.data != nullptr ? d_add_rn(v[k], r[k]) : v[k]; }
        float * y = p.y + c * p.y_stride + row;
        if (is_wide && ((uintptr_t) y | (uintptr_t) p.y_stride * 4) % 16 == 0) {
            *(float4 *) y = make_float4(v[0], v[1], v[2], v[3]);
        } else {
            UNROLL for (int k = 0; k < 4; ++k) {
                if (k < left) { y[k] = v[k]; }
            }
        }
    }
}

// ---- the launcher's side ----
struct wg_plan {
    int tn, n_parts;
    int64_t k_padded, n_padded;
    size_t factor_at, parts_at, bytes; // in scratch
};

static int64_t wg_clusters(int tn) { // of two blocks, for tiles of so many columns
    const int64_t n_sm = n_multiprocessors();
    return tn == WG_FEW ? n_sm : n_sm > 1 ? n_sm / 2 : 1;
}

static int64_t wg_tiles(int64_t m) { return (m + 2 * WG_ROWS - 1) / (2 * WG_ROWS); }

// Tiles of 64 (of few columns, from least_tn on), 128 or 256 columns and parts of k: whichever leaves the least to the cluster that
// has most, in units of 64 elements of k of 128 columns.
static wg_plan wg_plan_for(const gcuda_mul_mat_args & p, int64_t m_tiles, int max_parts, int least_tn) {
    const int64_t n = n_rows(p.b), slab = gcuda_is_quantized(p.a.type) ? 256 : 128;
    const int64_t n_slabs = (p.a.ne[0] * (p.a.type == GCUDA_TYPE_F32 ? 2 : 1) + slab - 1) / slab;
    wg_plan best = {};
    double least = 0.0;
    for (int tn = least_tn; tn <= 256; tn *= 2) {
        const int64_t n_tiles = (n + tn - 1) / tn, n_clusters = wg_clusters(tn);
        if (tn == WG_FEW && (n > WG_FEW || !gcuda_is_quantized(p.a.type))) { continue; }
        for (int parts = 1; parts <= max_parts && parts <= n_slabs; ++parts) {
            const int64_t rounds = (m_tiles * n_tiles * parts + n_clusters - 1) / n_clusters, k = (n_slabs + parts - 1) / parts * slab;
            const bool are_two = tn == WG_FEW && m_tiles * n_tiles * parts > wg_clusters(128); // of them on a multiprocessor
            const double step = tn == 256 ? 2.0 : tn == 128 ? 1.5 : are_two ? 2.4 : 1.4;
            const double ends = tn == 256 ? 24.0 : 12.0; // an item costs that beside its steps
            const double sums = parts > 1 ? 7.0 + (double) (parts + 1) * (double) (n * p.a.ne[1]) / 3.3e5 : 0.0;
            const double cost = (double) rounds * ((double) k / WG_K * step + ends) + sums;
            if (least == 0.0 || cost < least) {
                least = cost;
                best.tn = tn;
                best.n_parts = parts;
            }
        }
    }
    best.k_padded = n_slabs * slab;
    best.n_padded = (n + best.tn - 1) / best.tn * best.tn;
    best.factor_at = (size_t) (best.n_padded * best.k_padded * 2);
    best.parts_at = best.factor_at + (p.a.type == GCUDA_TYPE_F16 ? (size_t) (n + 3) / 4 * 16 : 0);
    best.bytes = best.parts_at + (best.n_parts > 1 ? (size_t) (best.n_parts * n * p.a.ne[1]) * sizeof(float) : 0);
    return best;
}
static wg_plan wg_plan_of(const gcuda_mul_mat_args & p) { return wg_plan_for(p, wg_tiles(p.a.ne[1]), WG_MAX_PARTS, WG_FEW); }

// The matrices of a group one below the other.
static wg_plan wg_plan_of_group(const gcuda_mul_mat_args * args, int n_args) {
    int64_t m_tiles = 0;
    for (int i = 0; i < n_args; ++i) { m_tiles += wg_tiles(args[i].a.ne[1]); }
    return wg_plan_for(args[0], m_tiles, 1, WG_FEW);
}

bool gcuda_has_warp_groups(void) {
    cudaFuncAttributes attributes = {};
    return asked(cudaFuncGetAttributes(&attributes, k_mul_mat_wg<__half, 128>)) && attributes.sharedSizeBytes > 0;
}

template <typename T> static gcuda_status launch_wg_columns(const d_wg_columns_job & p, gcuda_stream stream) {
    if constexpr (sizeof(T) == 4) {
        return launch_in_turn(k_wg_columns_tf32, p.n_padded, dim3(256), stream, p);
    } else {
        const size_t bits = (size_t) (uintptr_t) p.x.data | p.x.nb[1] | p.x.nb[2] | p.x.nb[3] | 4 * (size_t) p.x.ne[0];
        const int64_t k = p.x.type == GCUDA_TYPE_F32 && p.x.nb[0] == 4 && bits % 16 == 0 ? p.k_padded : INT64_MAX;
        const auto kernel = k <= 4096    ? k_wg_columns<T, 2>
                            : k <= 8192  ? k_wg_columns<T, 4>
                            : k <= 16384 ? k_wg_columns<T, 8>
                                         : k_wg_columns<T, 0>;
        return launch_in_turn(kernel, p.n_padded, dim3(256), stream, p);
    }
}

template <typename A, int TN> static gcuda_status launch_wg(const d_wg_job & p, size_t max_shared, gcuda_stream stream) {
    const int64_t n_clusters = wg_clusters(TN), n = p.n_items < n_clusters ? p.n_items : n_clusters;
    return launch_overlapped(k_mul_mat_wg<A, TN>, 2 * n, dim3(WG_THREADS), d_wg_shape<A, TN>::shared_bytes, max_shared, stream, p);
}

template <typename A> static gcuda_status mul_mat_wg(const d_wg_job & p, int tn, size_t max_shared, gcuda_stream stream) {
    if constexpr (d_wg_slab<A>::k != WG_K) { // blocks
        if (tn == WG_FEW) { return launch_wg<A, WG_FEW>(p, max_shared, stream); }
    }
    return tn == 256 ? launch_wg<A, 256>(p, max_shared, stream) : launch_wg<A, 128>(p, max_shared, stream);
}

// Strides of 0 where a size is 1.
static gcuda_mul_mat_epilogue wg_repeating(gcuda_mul_mat_epilogue e) {
    gcuda_array * arrays[3] = { &e.bias, &e.factor, &e.residual };
    for (int i = 0; i < 3; ++i) {
        for (int d = 0; d < 2; ++d) { arrays[i]->nb[d] = arrays[i]->ne[d] > 1 ? arrays[i]->nb[d] : 0; }
    }
    return e;
}

// What the sums of parts become: the result, with steps behind them or without.
static gcuda_status wg_finish(
    d_wg_job p, const gcuda_mul_mat_args & args, const gcuda_mul_mat_epilogue * epilogue, const float * parts, gcuda_stream stream) {
    const int64_t n_blocks = ((int64_t) p.m * p.n + 1023) / 1024;
    p.y = (float *) args.y.data;
    p.y_stride = (int64_t) (args.y.nb[1] / 4);
    return epilogue != nullptr ? launch_in_turn(k_wg_steps, n_blocks, dim3(256), stream, p, wg_repeating(*epilogue), parts)
                               : launch_in_turn(k_wg_parts, n_blocks, dim3(256), stream, p, parts);
}

// ---- the launcher's side of products with both sides from memory ----
static bool wg_is_gemm(const gcuda_mul_mat_args & p) { // see gcuda_launch_mul_mat_wg
    return is_float(p.a.type) && p.b.type == p.a.type && is_wide(p.a) && is_wide(p.b);
}
static int64_t wg_gemm_steps(const gcuda_mul_mat_args & p) {
    const int64_t step = WG_K * 2 / (int64_t) gcuda_type_size(p.a.type);
    return (p.a.ne[0] + step - 1) / step;
}

static bool wg_gemm_takes(const gcuda_mul_mat_args & p) {
    const int64_t most = 1 << 30;
    const bool fits = p.a.ne[0] > 0 && p.a.ne[0] <= most && p.a.ne[1] <= most && p.b.ne[1] <= most && p.b.ne[2] <= most && p.b.ne[3] <= most;
    return fits && p.y.type == GCUDA_TYPE_F32 && p.y.nb[0] == 4 && (p.y.nb[1] | p.y.nb[2] | p.y.nb[3]) % 4 == 0;
}

// Tiles and parts as in wg_plan_of.
static wg_plan wg_gemm_plan_of(const gcuda_mul_mat_args & p) {
    const int64_t n_matrices = p.y.ne[2] * p.y.ne[3], n_steps = wg_gemm_steps(p);
    const int64_t n_clusters = wg_clusters(256);
    const int64_t m_tiles = (p.a.ne[1] + 2 * WG_ROWS - 1) / (2 * WG_ROWS);
    wg_plan best = {};
    double least = 0.0;
    for (int tn = 128; tn <= 256; tn += 128) {
        const int64_t n_tiles = (p.b.ne[1] + tn - 1) / tn * n_matrices;
        for (int parts = 1; parts <= WG_MAX_PARTS && parts <= n_steps; ++parts) {
            const int64_t rounds = (m_tiles * n_tiles * parts + n_clusters - 1) / n_clusters, k = (n_steps + parts - 1) / parts;
            const double step = tn == 256 ? 2.0 : 1.2, ends = tn == 256 ? 16.0 : 8.0; // an item costs `ends` beside its steps
            const double sums = parts > 1 ? 7.0 + (double) (parts + 1) * (double) n_elements(p.y) / 3.3e5 : 0.0;
            const double cost = (double) rounds * ((double) k * step + ends) + sums;
            if (least == 0.0 || cost < least) {
                least = cost;
                best.tn = tn;
                best.n_parts = parts;
            }
        }
    }
    best.bytes = best.n_parts > 1 ? (size_t) (best.n_parts * n_elements(p.y)) * sizeof(float) : 0;
    return best;
}

#ifdef __CUDACC__
typedef int (*wg_encode)(void * map, int type, uint32_t rank, void * data, const uint64_t * ne, const uint64_t * nb, const uint32_t * box,
    const uint32_t * steps, int interleave, int swizzle, int promotion, int fill);

// The driver's function; NULL where it has none, or could not be asked.
static wg_encode wg_encode_found() {
    void * found = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    const cudaError_t err = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
#else
    const cudaError_t err = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &result);
#endif
    return asked(err) && result == cudaDriverEntryPointSuccess ? (wg_encode) found : nullptr;
}

// Boxes of 128 bytes of k and `rows` rows, swizzled as the instructions read them; F32 is rounded to TF32 on the way.
static bool wg_map_of(wg_encode encode, const gcuda_array & x, int rows, d_wg_map * map) {
    uint64_t ne[4], nb[3];
    const uint32_t size = (uint32_t) gcuda_type_size(x.type), box[4] = { WG_K * 2 / size, (uint32_t) rows, 1, 1 }, steps[4] = { 1, 1, 1, 1 };
    for (int d = 0; d < 4; ++d) { ne[d] = (uint64_t) x.ne[d]; }
    for (int d = 1; d < 4; ++d) { nb[d - 1] = x.ne[d] > 1 ? x.nb[d] : d > 1 ? nb[d - 2] * ne[d - 1] : (ne[0] * size + 15) / 16 * 16; }
    enum { FLOAT16 = 6, BFLOAT16 = 9, TFLOAT32 = 11, INTERLEAVE_NONE = 0, SWIZZLE_128B = 3, PROMOTION_256B = 3, FILL_ZEROS = 0 };
    const int type = x.type == GCUDA_TYPE_F16 ? FLOAT16 : x.type == GCUDA_TYPE_BF16 ? BFLOAT16 : TFLOAT32;
    // a failure is remembered: the numbers of the driver's errors are those of the runtime's
    return asked((cudaError_t) encode(map, type, 4, x.data, ne, nb, box, steps, INTERLEAVE_NONE, SWIZZLE_128B, PROMOTION_256B, FILL_ZEROS));
}

static bool wg_maps_of(const gcuda_mul_mat_args & p, int b_rows, d_wg_map * a, d_wg_map * b) {
    const wg_encode encode = wg_encode_found();
    return encode != nullptr && wg_map_of(encode, p.a, WG_ROWS, a) && wg_map_of(encode, p.b, b_rows, b);
}
#else
static bool wg_maps_of(const gcuda_mul_mat_args &, int, d_wg_map *, d_wg_map *) { return false; } // the simulated device has no use for them
#endif

static __global__ void __launch_bounds__(256) k_wg_gemm_parts(const gcuda_array y, const float * parts, int n_parts) {
    d_take_turn();
    const int64_t n = y.ne[0] * y.ne[1] * y.ne[2] * y.ne[3];
    FOR_ELEMENTS(i, n) {
        float v = parts[i];
        for (int k = 1; k < n_parts; ++k) { v += parts[i + k * n]; }
        *(float *) d_at(y, d_unravel(y.ne, i)) = v;
    }
}

template <typename T, int TN> static gcuda_status launch_wg_gemm(
    const d_wg_gemm & p, const gcuda_mul_mat_args & args, gcuda_stream stream) {
    const int64_t n_clusters = wg_clusters(TN), n = p.wg.n_items < n_clusters ? p.wg.n_items : n_clusters;
    d_wg_map a, b;
    return wg_maps_of(args, TN / 2, &a, &b)
               ? launch_overlapped(k_mul_mat_wg_gemm<T, TN>, 2 * n, dim3(WG_THREADS), d_wg_gemm_shape<TN>::shared_bytes, args.max_shared, stream,
                     p, a, b)
               : device_lacks();
}

template <typename T> static gcuda_status launch_wg_gemm_as(const d_wg_gemm & p, int tn, const gcuda_mul_mat_args & args, gcuda_stream stream) {
    return tn == 256 ? launch_wg_gemm<T, 256>(p, args, stream) : launch_wg_gemm<T, 128>(p, args, stream);
}

// epilogue: of one matrix, or NULL.
static gcuda_status mul_mat_wg_gemm(
    const gcuda_mul_mat_args & args, const gcuda_mul_mat_epilogue * epilogue, void * scratch, gcuda_stream stream) {
    const wg_plan plan = wg_gemm_plan_of(args);
    const bool has_more = plan.n_parts > 1 || epilogue != nullptr; // another kernel behind
    d_wg_gemm p = {};
    p.wg.m = (int) args.a.ne[1];
    p.wg.n = (int) args.b.ne[1];
    p.wg.m_tiles = (p.wg.m + 2 * WG_ROWS - 1) / (2 * WG_ROWS);
    p.wg.n_tiles = (p.wg.n + plan.tn - 1) / plan.tn;
    p.wg.n_units = (int) wg_gemm_steps(args);
    p.wg.n_parts = plan.n_parts;
    p.wg.n_items = (int64_t) p.wg.m_tiles * p.wg.n_tiles * p.wg.n_parts * args.y.ne[2] * args.y.ne[3];
    p.wg.y = has_more ? (float *) scratch : (float *) args.y.data;
    p.wg.y_stride = has_more ? p.wg.m : (int64_t) (args.y.nb[1] / 4);
    p.wg.part_stride = n_elements(args.y);
    p.ne2 = (int) args.y.ne[2];
    p.a2 = (int) (args.y.ne[2] / args.a.ne[2]);
    p.a3 = (int) (args.y.ne[3] / args.a.ne[3]);
    p.b2 = (int) (args.y.ne[2] / args.b.ne[2]);
    p.b3 = (int) (args.y.ne[3] / args.b.ne[3]);
    p.y_nb2 = has_more ? (int64_t) p.wg.m * p.wg.n : (int64_t) (args.y.nb[2] / 4);
    p.y_nb3 = has_more ? p.y_nb2 * p.ne2 : (int64_t) (args.y.nb[3] / 4);
    const gcuda_status st = with_float(args.a.type, [&](auto t) { return launch_wg_gemm_as<decltype(t)>(p, plan.tn, args, stream); });
    if (st != GCUDA_STATUS_SUCCESS || !has_more) {
        return st;
    }
    if (args.y.ne[2] * args.y.ne[3] > 1) {
        return launch_in_turn(k_wg_gemm_parts, (n_elements(args.y) + 255) / 256, dim3(256), stream, args.y, (const float *) scratch, plan.n_parts);
    }
    return wg_finish(p.wg, args, epilogue, (const float *) scratch, stream);
}

static bool wg_takes(const gcuda_mul_mat_args & p) {
    const size_t row_bytes = (size_t) p.a.ne[0] / (size_t) gcuda_blck_size(p.a.type) * gcuda_type_size(p.a.type);
    const bool a_fits = (gcuda_is_quantized(p.a.type) || is_float(p.a.type)) && p.a.ne[2] * p.a.ne[3] == 1 &&
                        (row_bytes | p.a.nb[1] | (size_t) (uintptr_t) p.a.data) % 16 == 0;
    const bool y_fits = p.y.type == GCUDA_TYPE_F32 && p.y.nb[0] == 4 && p.y.nb[1] % 4 == 0 && p.y.ne[2] * p.y.ne[3] == 1;
    return a_fits && is_float(p.b.type) && y_fits && p.a.ne[0] > 0 && p.a.ne[1] <= (1 << 30) && n_rows(p.b) <= (1 << 30) &&
           p.a.ne[0] <= (1 << 29);
}

int gcuda_mul_mat_wg_parts(const gcuda_mul_mat_args * args) {
    return wg_is_gemm(*args) ? wg_gemm_plan_of(*args).n_parts : wg_plan_of(*args).n_parts;
}

size_t gcuda_mul_mat_wg_scratch_bytes(const gcuda_mul_mat_args * args) {
    return asked_bytes(wg_is_gemm(*args) ? wg_gemm_plan_of(*args).bytes : wg_plan_of(*args).bytes);
}

// Whether columns that are said to be rounded can be.
static bool wg_takes_columns(const gcuda_mul_mat_args & p) {
    return !p.is_rounded || (gcuda_is_quantized(p.a.type) && p.a.ne[0] % 256 == 0 && (uintptr_t) p.b.data % 16 == 0);
}

int gcuda_mul_mat_wg_form(const gcuda_mul_mat_args * args, int n_args) {
    bool may = n_args >= 1 && n_args <= GCUDA_MUL_MAT_GROUP;
    for (int i = 0; i < n_args && may; ++i) {
        may = gcuda_is_quantized(args[i].a.type) && args[i].a.ne[0] % 256 == 0 && wg_takes(args[i]) && products_are_alike(args[0], args[i]) &&
              n_elements(args[i].y) > 0;
    }
    return !may ? 0 : n_args > 1 ? wg_plan_of_group(args, n_args).tn : wg_plan_of(*args).tn;
}

size_t gcuda_mul_mat_wg_form_bytes(int form, int64_t k, int64_t n) {
    return n > 0 && is_wg_form(form, k, n) ? (size_t) (d_wg_padded(n, form) * k * 2) : 0;
}

static gcuda_status wg_make_columns(
    const gcuda_mul_mat_args & p, const wg_plan & plan, void * image, float * factor, gcuda_stream stream) {
    const int is_for_floats = gcuda_is_quantized(p.a.type) ? 0 : 1;
    const d_wg_columns_job columns = { p.b, (char *) image, factor, plan.k_padded, plan.n_padded, plan.tn, is_for_floats };
    return p.a.type == GCUDA_TYPE_F16   ? launch_wg_columns<__half>(columns, stream)
           : p.a.type == GCUDA_TYPE_F32 ? launch_wg_columns<float>(columns, stream)
                                        : launch_wg_columns<__nv_bfloat16>(columns, stream);
}

// One product, with an epilogue or NULL, or several of the same columns, which are made.
static gcuda_status wg_multiply(const gcuda_mul_mat_args * args, int n_args, const gcuda_mul_mat_epilogue * epilogue, const wg_plan & plan,
    const void * image, const float * factor, float * parts, gcuda_stream stream) {
    const bool is_quantized = gcuda_is_quantized(args->a.type);
    d_wg_job p = {};
    p.a = (const char *) args->a.data;
    p.a_stride = (int64_t) args->a.nb[1];
    p.row_bytes = args->a.ne[0] / gcuda_blck_size(args->a.type) * (int64_t) gcuda_type_size(args->a.type);
    p.image = (const char *) image;
    p.factor = factor;
    p.m = (int) args->a.ne[1];
    p.n = (int) n_rows(args->b);
    p.m_tiles = (int) wg_tiles(p.m);
    for (; p.n_more + 1 < n_args; ++p.n_more) {
        const gcuda_mul_mat_args & q = args[p.n_more + 1];
        p.more[p.n_more] = { (const char *) q.a.data, (float *) q.y.data, (int64_t) (q.y.nb[1] / 4), (int) q.a.ne[1], p.m_tiles };
        p.m_tiles += (int) wg_tiles(q.a.ne[1]);
    }
    p.n_tiles = (p.n + plan.tn - 1) / plan.tn;
    p.n_units = (int) (plan.k_padded / (is_quantized ? 256 : 128));
    p.n_parts = plan.n_parts;
    p.n_items = (int64_t) p.m_tiles * p.n_tiles * p.n_parts;
    const bool has_more = p.n_parts > 1 || epilogue != nullptr; // another kernel behind
    p.y = has_more ? parts : (float *) args->y.data;
    p.y_stride = has_more ? p.m : (int64_t) (args->y.nb[1] / 4);
    p.part_stride = (int64_t) p.m * p.n;
    const gcuda_status st =
        is_quantized ? with_format(args->a.type, [&](auto a) { return mul_mat_wg<decltype(a)>(p, plan.tn, args->max_shared, stream); })
        : args->a.type == GCUDA_TYPE_F16 ? mul_mat_wg<__half>(p, plan.tn, args->max_shared, stream)
        : args->a.type == GCUDA_TYPE_F32 ? mul_mat_wg<float>(p, plan.tn, args->max_shared, stream)
                                         : mul_mat_wg<__nv_bfloat16>(p, plan.tn, args->max_shared, stream);
    return st == GCUDA_STATUS_SUCCESS && has_more ? wg_finish(p, *args, epilogue, parts, stream) : st;
}

static gcuda_status mul_mat_wg_group(const gcuda_mul_mat_args * args, int n_args, const gcuda_mul_mat_epilogue * epilogue,
    const wg_plan & plan, void * scratch, gcuda_stream stream) {
    const bool has_factors = args->a.type == GCUDA_TYPE_F16 && args->b.type != GCUDA_TYPE_F16;
    float * factor = has_factors ? (float *) ((char *) scratch + plan.factor_at) : nullptr;
    const void * image = args->is_rounded ? args->b.data : scratch;
    const gcuda_status st = args->is_rounded ? GCUDA_STATUS_SUCCESS : wg_make_columns(*args, plan, scratch, factor, stream);
    return st == GCUDA_STATUS_SUCCESS
               ? wg_multiply(args, n_args, epilogue, plan, image, factor, (float *) ((char *) scratch + plan.parts_at), stream)
               : st;
}

// ---- in steps ----
static bool wg_has_steps(const gcuda_mul_mat_args & p) {
    return gcuda_is_quantized(p.a.type) && wg_takes(p) && fits_shared(WG_MAX_SHARED, p.max_shared) && gcuda_has_warp_groups();
}
static wg_plan wg_plan_of_steps(const gcuda_mul_mat_args & p) {
    return wg_plan_for(p, wg_tiles(p.a.ne[1]), WG_MAX_PARTS, GCUDA_MUL_MAT_WG_TILE);
}

// >>op:mul_mat ----------------------------------------------------------------------------------------
gcuda_status gcuda_launch_mul_mat_wg(const gcuda_mul_mat_args * args, void * scratch, gcuda_stream stream) {
    const bool is_gemm = wg_is_gemm(*args);
    if (!(is_gemm ? wg_gemm_takes(*args) : wg_takes(*args)) || !wg_takes_columns(*args) || !fits_shared(WG_MAX_SHARED, args->max_shared) || !gcuda_has_warp_groups()) {
        return device_lacks();
    }
    if (n_elements(args->y) == 0) {
        return GCUDA_STATUS_SUCCESS;
    }
    if (is_gemm) {
        return mul_mat_wg_gemm(*args, nullptr, scratch, stream);
    }
    return mul_mat_wg_group(args, 1, nullptr, wg_plan_of(*args), scratch, stream);
}

gcuda_status gcuda_launch_mul_mat_wg_fused(
    const gcuda_mul_mat_args * args, const gcuda_mul_mat_epilogue * epilogue, void * scratch, gcuda_stream stream) {
    if (epilogue == nullptr) {
        return gcuda_launch_mul_mat_wg(args, scratch, stream);
    }
    const bool is_gemm = wg_is_gemm(*args);
    const bool takes = is_gemm ? wg_gemm_takes(*args) && args->y.ne[2] * args->y.ne[3] == 1 : wg_takes(*args);
    if (!takes || !wg_takes_columns(*args) || epilogue->up != nullptr || !epilogue_fits(*epilogue, args->y, 0)) {
        return GCUDA_STATUS_UNSUPPORTED;
    }
    if (!fits_shared(WG_MAX_SHARED, args->max_shared) || !gcuda_has_warp_groups()) {
        return device_lacks();
    }
    if (n_elements(args->y) == 0) {
        return GCUDA_STATUS_SUCCESS;
    }
    return is_gemm ? mul_mat_wg_gemm(*args, epilogue, scratch, stream)
                   : mul_mat_wg_group(args, 1, epilogue, wg_plan_of(*args), scratch, stream);
}

size_t gcuda_mul_mat_wg_fused_scratch_bytes(const gcuda_mul_mat_args * args) {
    const wg_plan plan = wg_is_gemm(*args) ? wg_gemm_plan_of(*args) : wg_plan_of(*args);
    const size_t sums = (size_t) n_elements(args->y) * sizeof(float);
    return asked_bytes(plan.n_parts > 1 ? plan.bytes : plan.bytes + sums);
}

gcuda_status gcuda_launch_mul_mat_wg_group(const gcuda_mul_mat_args * args, int n_args, void * scratch, gcuda_stream stream) {
    if (n_args < 1 || n_args > GCUDA_MUL_MAT_GROUP || (args->is_rounded && n_args == 1)) { // one: tiles may be others, see the form
        return GCUDA_STATUS_UNSUPPORTED;
    }
    for (int i = 0; i < n_args; ++i) {
        if (!gcuda_is_quantized(args[i].a.type) || !wg_takes_columns(args[i]) || !wg_takes(args[i]) || !products_are_alike(args[0], args[i]) || n_elements(args[i].y) == 0) {
            return GCUDA_STATUS_UNSUPPORTED;
        }
    }
    return fits_shared(WG_MAX_SHARED, args->max_shared) && gcuda_has_warp_groups()
               ? mul_mat_wg_group(args, n_args, nullptr, wg_plan_of_group(args, n_args), scratch, stream)
               : device_lacks();
}

size_t gcuda_mul_mat_wg_group_scratch_bytes(const gcuda_mul_mat_args * args, int n_args) {
    return asked_bytes(wg_plan_of_group(args, n_args).bytes);
}

size_t gcuda_mul_mat_wg_columns_bytes(const gcuda_mul_mat_args * args) { return asked_bytes(wg_plan_of_steps(*args).factor_at); }

size_t gcuda_mul_mat_wg_parts_bytes(const gcuda_mul_mat_args * args) {
    const wg_plan plan = wg_plan_of_steps(*args);
    return asked_bytes(plan.bytes - plan.parts_at);
}

gcuda_status gcuda_launch_mul_mat_wg_columns(const gcuda_mul_mat_args * args, void * columns, gcuda_stream stream) {
    return !wg_has_steps(*args)          ? device_lacks()
           : n_elements(args->y) == 0    ? GCUDA_STATUS_SUCCESS
                                         : wg_make_columns(*args, wg_plan_of_steps(*args), columns, nullptr, stream);
}

gcuda_status gcuda_launch_mul_mat_wg_product(
    const gcuda_mul_mat_args * args, const void * columns, void * parts, gcuda_stream stream) {
    return !wg_has_steps(*args)       ? device_lacks()
           : n_elements(args->y) == 0 ? GCUDA_STATUS_SUCCESS
                                      : wg_multiply(args, 1, nullptr, wg_plan_of_steps(*args), columns, nullptr, (float *) parts, stream);
}

// >>op:mul_mat_id -------------------------------------------------------------------------------------
// Three kernels: slots are sorted by expert, their columns are rounded in that order, experts are multiplied. The host knows no more
// than bounds of how many tiles there are.
static __global__ void __launch_bounds__(256) k_wg_id_sort(const gcuda_mul_mat_id_args p, const d_id_lists l) {
    DYNAMIC_SHARED(int32_t, shared);
    d_take_turn();
    d_id_sort(p, l, shared, (int) blockIdx.x, (int) gridDim.x);
}

struct d_wg_id_columns {
    d_wg_columns_job to; // x: the columns of all tokens
    gcuda_array y;
    d_id_lists lists;
    int64_t * results;
};

// A block has a slot, in order of experts, and looks for its tile. Behind the last of a tile zeros fill up eight columns.
static __global__ void __launch_bounds__(256) k_wg_id_columns(const D_GRID_CONSTANT d_wg_id_columns p) {
    alignas(16) __shared__ uint32_t words[8][128];
    __shared__ int tile;
    d_take_turn();
    const int lane = (int) threadIdx.x % 32, warp = (int) threadIdx.x / 32, n_tiles = *p.lists.n_tiles;
    for (int i = (int) blockIdx.x; i < (int) p.lists.n_slots; i += (int) gridDim.x) {
        const uint32_t slot = (uint32_t) p.lists.order[i], used = (uint32_t) p.y.ne[1], u = slot % used, token = slot / used;
        for (int k = (int) threadIdx.x; k < n_tiles; k += 256) {
            const d_id_tile at = p.lists.tiles[k];
            if (at.first <= i && i < at.first + at.n) { tile = k; }
        }
        __syncthreads();
        const d_id_tile t = p.lists.tiles[tile];
        const int place = d_wg_id_place(tile, t.first), column = i - t.first;
        if (threadIdx.x == 0) { p.results[place + column] = (int64_t) (token * (p.y.nb[2] / 4) + u * (p.y.nb[1] / 4)); }
        if (t.expert >= 0) {
            const char * x = d_at(p.to.x, 0, u % (uint32_t) p.to.x.ne[1], token, 0);
            const bool is_wide = p.to.x.type == GCUDA_TYPE_F32 && p.to.x.nb[0] == 4 && (uintptr_t) x % 16 == 0;
            d_wg_columns_job job = p.to;
            job.tn = d_wg_id_padded(t.n);
            const int end = column + 1 < t.n ? column + 1 : job.tn;
            for (int c = column; c < end; ++c) {
                char * to = p.to.image + ((int64_t) place * p.to.k_padded + (int64_t) c * WG_K) * 2;
                for (int64_t k = warp * 256; k < p.to.k_padded; k += 2048) {
                    float4 v[2];
                    UNROLL for (int h = 0; h < 2; ++h) {
                        v[h] = d_wg_load4(p.to, x, c == column ? p.to.x.ne[0] : 0, k + 4 * lane + 128 * h, is_wide);
                    }
                    d_wg_put<__nv_bfloat16>(job, to, k, c & 7, words[warp], v, 0);
                }
            }
        }
        __syncthreads(); // the tile's number is read
    }
}

// Bytes of scratch: lists, results, columns.
struct wg_id_plan {
    int64_t k_padded, max_tiles;
    size_t results_at, image_at, bytes;
};
static wg_id_plan wg_id_plan_of(const gcuda_mul_mat_id_args & p, d_id_lists * l) {
    wg_id_plan plan;
    plan.k_padded = (p.as.ne[0] + 255) / 256 * 256;
    plan.results_at = id_lists(p, l);
    plan.max_tiles = id_max_tiles(p, WG_FEW);
    const int64_t places = (l->n_slots + 7 * plan.max_tiles + 14) / 8 * 8;
    plan.image_at = plan.results_at + (size_t) places * sizeof(int64_t);
    plan.bytes = plan.image_at + (size_t) (places * plan.k_padded * 2);
    return plan;
}

// Experts whose rows, or of large blocks whose pieces of 16 bytes, lie as the kernel reads them, and results of F32.
static bool wg_id_takes(const gcuda_mul_mat_id_args & p) {
    const size_t multiple = gcuda_blck_size(p.as.type) == 32 ? 2 : 16;
    const bool a_fits = gcuda_is_quantized(p.as.type) && p.as.ne[0] > 0 && p.as.ne[0] % 32 == 0 && (uintptr_t) p.as.data % 16 == 0 &&
                        (p.as.nb[1] | p.as.nb[2]) % multiple == 0;
    const bool y_fits = p.y.type == GCUDA_TYPE_F32 && p.y.nb[0] == 4 && (p.y.nb[1] | p.y.nb[2]) % 4 == 0;
    const int64_t n_slots = p.ids.ne[0] * p.ids.ne[1], m_tiles = (p.as.ne[1] + WG_ROWS - 1) / WG_ROWS;
    return a_fits && y_fits && is_float(p.b.type) && p.as.ne[0] <= (1 << 29) && n_slots <= (1 << 24) && p.as.ne[2] <= (1 << 24) &&
           id_max_tiles(p, WG_FEW) * m_tiles <= INT32_MAX;
}

// Lists, and the columns by them.
static gcuda_status wg_id_prepare(const gcuda_mul_mat_id_args & p, const wg_id_plan & plan, d_id_lists & l, gcuda_stream stream) {
    d_wg_id_columns c = {};
    size_t n_bytes;
    const int n_sort = id_sort_plan(l, WG_FEW, &n_bytes);
    c.to = { p.b, (char *) p.scratch + plan.image_at, nullptr, plan.k_padded, 0, WG_FEW, 0 };
    c.y = p.y;
    c.lists = l;
    c.results = (int64_t *) (void *) ((char *) p.scratch + plan.results_at);
    const gcuda_status st = launch_overlapped(k_wg_id_sort, n_sort, dim3(256), n_bytes, 0, stream, p, l);
    return st == GCUDA_STATUS_SUCCESS ? launch_in_turn(k_wg_id_columns, l.n_slots, dim3(256), stream, c) : st;
}

static d_wg_id_job wg_id_job_of(const gcuda_mul_mat_id_args & q, const wg_id_plan & plan, const d_id_lists & l) {
    d_wg_id_job p = {};
    p.a = (const char *) q.as.data;
    p.a_stride = (int64_t) q.as.nb[1];
    p.expert_stride = (int64_t) q.as.nb[2];
    p.row_bytes = (int64_t) gcuda_row_size(q.as.type, q.as.ne[0]);
    p.image = (const char *) q.scratch + plan.image_at;
    p.results = (const int64_t *) (const void *) ((const char *) q.scratch + plan.results_at);
    p.y = (float *) q.y.data;
    p.m = (int) q.as.ne[1];
    p.m_tiles = (p.m + WG_ROWS - 1) / WG_ROWS;
    p.n_units = (int) (plan.k_padded / 256);
    p.tiles = l.tiles;
    p.n_tiles = l.n_tiles;
    return p;
}

size_t gcuda_mul_mat_id_wg_scratch_bytes(const gcuda_mul_mat_id_args * args) {
    d_id_lists l = {};
    return asked_bytes(wg_id_plan_of(*args, &l).bytes);
}

gcuda_status gcuda_launch_mul_mat_id_wg(const gcuda_mul_mat_id_args * args, gcuda_stream stream) {
    if (!wg_id_takes(*args) || !fits_shared(WG_MAX_SHARED, args->max_shared) || !gcuda_has_warp_groups()) {
        return device_lacks();
    }
    if (n_elements(args->y) == 0) {
        return GCUDA_STATUS_SUCCESS;
    }
    d_id_lists l = {};
    const wg_id_plan plan = wg_id_plan_of(*args, &l);
    const gcuda_status st = wg_id_prepare(*args, plan, l, stream);
    if (st != GCUDA_STATUS_SUCCESS) {
        return st;
    }
    const d_wg_id_job p = wg_id_job_of(*args, plan, l);
    const int64_t most = plan.max_tiles * p.m_tiles, n = 2 * (int64_t) n_multiprocessors();
    return with_weight_format(args->as.type, [&](auto a) {
        typedef d_wg_id_shape<decltype(a)> shape;
        return launch_overlapped(k_mul_mat_id_wg<decltype(a)>, most < n ? most : n, dim3(WG_THREADS), shape::shared_bytes, args->max_shared,
            stream, p);
    });
}

// >>op:conv_2d ----------------------------------------------------------------------------------------
#if GCUDAI_KERNEL_HAS(CONV)
// The product of a large convolution, from >>k-conv-packed: BM output channels by BN pixels, both sides from shared memory. One
// warp group fetches, two multiply: 64 of 128 channels each, or, with tiles of 64 channels, every second tile each, so that one
// stores while the other multiplies. Blocks stay and take tile after tile.
//   floor   2 OC K pixels operations; (BM + BN) 128 bytes from L2 for a step of 64 elements of K
template <int BM, int BN> struct d_wg_conv {
    static constexpr int a_bytes = BM * PACKED_ROW, stage_bytes = (BM + BN) * PACKED_ROW;
    static constexpr int stages = (PACKED_SHARED - SHARED_STATIC - 1024 - 2 * BN * 4) / stage_bytes;
    static constexpr int shared_bytes = 1024 + stages * stage_bytes + 2 * BN * 4; // 1024: to align
    static constexpr int behind = 2; // steps whose copies a fetching thread has under way
    static constexpr bool in_turns = BM == 64;
    static_assert(stages >= behind + 2, "else who fetches waits for who multiplies and the other way round");
};

#define WG_CONV_WIDE 48.0 // relative times of a tile, as they are in the mean of four shapes on an H200
#define WG_CONV_SQUARE 30.0
#define WG_CONV_FLAT 31.0

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
// What this thread wrote to shared memory is seen by warp-group products that begin after a barrier.
static inline __device__ void d_wg_publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

static inline __device__ void d_wg_copy(uint32_t to, const char * from, int n_bytes, uint32_t bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(n_bytes),
                 "r"(bar)
                 : "memory");
}

// Two warp groups that take turns at the stages: one that ran ahead would take a barrier's phase for a later one of the same parity.
static inline __device__ void d_wg_await_turn(int group) { asm volatile("bar.sync %0, 256;" ::"r"(2 + group) : "memory"); }
static inline __device__ void d_wg_pass_turn(int group) { asm volatile("bar.arrive %0, 256;" ::"r"(2 + group) : "memory"); }

struct d_wg_conv_ring {
    char * stages;
    uint32_t * firsts;    // of the patches of a tile; two tiles
    uint32_t full, empty; // barriers, eight bytes each
};

// A thread has a piece of 16 bytes of every sixteenth row. What it copied is announced two steps later.
template <int BM, int BN>
static inline __device__ void d_wg_conv_fetch(const gcuda_conv_args & p, const d_packed & q, const d_wg_conv_ring & ring, int n_items, int thread) {
    typedef d_wg_conv<BM, BN> shape;
    const int piece = thread % 8, row = thread / 8, n_m = (q.n_oc + BM - 1) / BM;
    d_wg_place<shape::stages> at = { 0, 1 };
    int n_behind = 0, slot_behind = 0;
    uint32_t * firsts = ring.firsts;
    auto announce = [&] { // the oldest step not yet announced, whose copies have arrived
        d_wg_publish();
        __syncwarp();
        if (thread % 32 == 0) { d_barrier_arrive(ring.full + 8 * slot_behind); }
        slot_behind = slot_behind + 1 == shape::stages ? 0 : slot_behind + 1;
        --n_behind;
    };
    for (int item = (int) blockIdx.x; item < n_items; item += (int) gridDim.x) {
        const int pixel0 = item / n_m * BN, tile = item % n_m * (BM / 64);
        UNROLL for (int i = 0; i < BN / 128; ++i) { firsts[thread + 128 * i] = d_packed_first(p, q, pixel0 + thread + 128 * i); }
        asm volatile("bar.sync 1, 128;" ::: "memory");
        const char * from[BN / 16];
        UNROLL for (int i = 0; i < BN / 16; ++i) { from[i] = q.x + (uint64_t) firsts[row + 16 * i] * 16; }
        firsts = firsts == ring.firsts ? ring.firsts + BN : ring.firsts;
        d_packed_walk walk(p, q, piece);
        for (int step = 0; step < q.n_steps; ++step) {
            char * to = ring.stages + at.slot * shape::stage_bytes;
            d_barrier_wait(ring.empty + 8 * at.slot, at.parity);
            if (thread == 0) {
                d_barrier_expect(ring.full + 8 * at.slot, shape::a_bytes);
                UNROLL for (int i = 0; i < BM / 64; ++i) {
                    d_wg_copy(d_shared_address(to) + i * PACKED_TILE, q.w + ((int64_t) (tile + i) * q.n_steps + step) * PACKED_TILE,
                        PACKED_TILE, ring.full + 8 * at.slot);
                }
            }
            const uint64_t place = (uint64_t) walk.place() * 16;
            const int n_bytes = walk.left > 0 ? 16 : 0;
            UNROLL for (int i = 0; i < BN / 16; ++i) {
                d_copy_16(to + shape::a_bytes + d_packed_at(row, piece) + i * (16 * PACKED_ROW), n_bytes != 0 ? from[i] + place : q.x, n_bytes);
            }
            d_copies_commit();
            walk.next(p, q);
            at.next();
            if (++n_behind > shape::behind) {
                d_copies_wait<shape::behind>();
                announce();
            }
        }
    }
    d_copies_wait<0>();
    while (n_behind > 0) { announce(); }
}

template <typename TY, int BM, int BN>
static inline __device__ void d_wg_conv_multiply(const gcuda_conv_args & p, const d_packed & q, const d_wg_conv_ring & ring, int n_items, int thread) {
    typedef d_wg_conv<BM, BN> shape;
    const int lane = thread % 32, warp = thread / 32 % 4, group = thread / 128, n_m = (q.n_oc + BM - 1) / BM;
    const uint32_t stages = d_shared_address(ring.stages), own = shape::in_turns ? 0 : (uint32_t) (group * PACKED_TILE);
    d_wg_place<shape::stages> at = { 0, 0 };
    float d[BN / 2];
    int turn = 0;
    if (shape::in_turns && group == 1) { d_wg_pass_turn(0); }
    for (int item = (int) blockIdx.x; item < n_items; item += (int) gridDim.x, turn ^= 1) {
        if (shape::in_turns && turn != group) { // the other group's
            const int to = at.slot + q.n_steps;
            at.parity ^= (uint32_t) (to / shape::stages & 1);
            at.slot = to % shape::stages;
            continue;
        }
        uint32_t before = 0; // barrier of the stage that was read last
        int adds = 0;
        if (shape::in_turns) { d_wg_await_turn(group); }
        for (int step = 0; step < q.n_steps; ++step) {
            const uint32_t stage = stages + (uint32_t) (at.slot * shape::stage_bytes);
            const uint64_t a = d_wg_columns(stage + own), b = d_wg_columns(stage + shape::a_bytes);
            d_barrier_wait(ring.full + 8 * at.slot, at.parity);
            d_wg_fence();
            UNROLL for (int i = 0; i < 4; ++i) {
                d_wg_mma_f16(d, a + 2 * i, b + 2 * i, adds);
                adds = 1;
            }
            d_wg_commit();
            d_wg_wait<1>(); // the step before
            if (before != 0 && lane == 0) { d_barrier_arrive(before); }
            before = ring.empty + 8 * at.slot;
            at.next();
        }
        if (shape::in_turns) { d_wg_pass_turn(group ^ 1); }
        d_wg_wait<0>();
        UNROLL for (int i = 0; i < BN / 2; ++i) { asm volatile("" : "+f"(d[i])::"memory"); } // not read before
        if (lane == 0) { d_barrier_arrive(before); }
        const int oc = item % n_m * BM + (shape::in_turns ? 0 : group * 64) + warp * 16 + lane / 4;
        d_packed_store<TY, BN / 8>(p, q, oc, item / n_m * BN + lane % 4 * 2, d);
    }
}
#endif // 9.0a

template <typename TY, int BM, int BN>
static __global__ void __launch_bounds__(WG_THREADS, 1) k_conv_2d_wg(const gcuda_conv_args p, const d_packed q, int n_items) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    typedef d_wg_conv<BM, BN> shape;
    DYNAMIC_SHARED(char, shared);
    alignas(8) __shared__ uint64_t barriers[2 * shape::stages];
    const int thread = (int) threadIdx.x;
    d_wg_conv_ring ring;
    ring.stages = shared + (1024 - d_shared_address(shared) % 1024) % 1024; // the swizzle wants it
    ring.firsts = (uint32_t *) (ring.stages + shape::stages * shape::stage_bytes);
    ring.full = d_shared_address(barriers);
    ring.empty = ring.full + 8 * shape::stages;
    if (thread == 0) {
        for (int i = 0; i < shape::stages; ++i) {
            d_barrier_init(ring.full + 8 * i, 5); // the bulk copy and four warps
            d_barrier_init(ring.empty + 8 * i, shape::in_turns ? 4 : 8);
        }
        d_wg_publish();
    }
    __syncthreads();
    if (thread < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 72;");
        d_wg_conv_fetch<BM, BN>(p, q, ring, n_items, thread);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 216;");
        d_wg_conv_multiply<TY, BM, BN>(p, q, ring, n_items, thread - 128);
    }
#else
    (void) p, (void) q, (void) n_items;
#endif
}

template <typename TY, int BM, int BN> static gcuda_status conv_2d_wg(const gcuda_conv_args & p, const d_packed & q, gcuda_stream stream) {
    const int64_t n_items = (q.n_oc + BM - 1) / BM * (((int64_t) q.n_pixels + BN - 1) / BN), n_sm = n_multiprocessors();
    return launch_shared(k_conv_2d_wg<TY, BM, BN>, n_items < n_sm ? n_items : n_sm, dim3(WG_THREADS), d_wg_conv<BM, BN>::shared_bytes,
        p.max_shared, stream, p, q, (int) n_items);
}

// ---- few channels, large images: bound by memory, so image and result pass once, and neither waits for registers ----
// A block has 256 pixels of the rows of a segment and all, at most 64, output channels, whose weights stay in shared memory. One warp
// group has the rows of the image brought as they lie, eight units ahead, and puts them into a ring of rows in F16, as [eight
// channels][pixel]: the next column of the kernel is the same matrix sixteen bytes further. Two multiply, every second row of the result
// each; a warp's channels go through shared memory, eight at a time, from where they are copied asynchronously.
//   floor   image and result once     shared  weights, ring and what is under way, up to 226 KiB
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
// A matrix without swizzle: eight rows of 16 bytes follow each other, the next eight 128 bytes further, the second half of sixteen k a
// plane further.
static inline __device__ uint64_t d_wg_plain(uint32_t address, int plane) {
    return (uint64_t) ((address & 0x3ffffu) >> 4) | (uint64_t) (uint32_t) (plane >> 4) << 16 | (uint64_t) 8 << 32;
}

// To global memory; both at multiples of 16 bytes, and so is n_bytes. What was copied may be overwritten after d_wg_await_stores.
static inline __device__ void d_wg_copy_out(float * to, uint32_t from, int n_bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(n_bytes) : "memory");
}
static inline __device__ void d_wg_commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
static inline __device__ void d_wg_await_stores() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

struct d_wg_rows {
    char * ring;
    float * raw;
    uint32_t full, empty, arrived; // barriers: of rows in the ring; of what is under way
    int image, x0, y0, n_rows;     // the segment: where it begins in the result, and rows there
};

// A unit is half a row of eight channels. Of four after each other every warp has one, and asks for its next but one when it is done.
static inline __device__ void d_wg_rows_fetch(const gcuda_conv_args & p, const d_packed & q, const d_packed_rows & s, const d_wg_rows & r, int thread) {
    const int lane = thread % 32, warp = thread / 32, per_row = 2 * q.n_c, n_rows = r.n_rows + s.below, n_units = per_row * n_rows;
    const int x0 = r.x0 - p.p0, y0 = r.y0 - p.p1, wide = (int) p.x.ne[0], high = (int) p.x.ne[1], n_in = (int) p.x.ne[2];
    const int more = s.plane / 16 - PACKED_STRIP, skip = x0 & 3;
    const char * image = (const char *) p.x.data + r.image * (int64_t) p.x.nb[3];
    auto request = [&](int unit, int slot) { // nothing of rows outside
        const int row = unit / per_row, rest = unit - row * per_row, c = rest / 2 * 8 + lane, y = y0 + row;
        const int first = (x0 & ~3) + rest % 2 * (PACKED_STRIP / 2), from = first > 0 ? first : 0;
        const int end = first + PACKED_RAW < wide ? first + PACKED_RAW : wide;
        const int n_bytes = y >= 0 && y < high && end > from ? (end - from) * 4 : 0;
        const int n = n_in - rest / 2 * 8 < 8 ? n_in - rest / 2 * 8 : 8;
        if (lane == 0) { d_barrier_expect(r.arrived + 8 * slot, n * n_bytes); }
        __syncwarp();
        if (lane < n && n_bytes > 0) {
            d_wg_copy(d_shared_address(r.raw + (slot * 8 + lane) * PACKED_RAW + from - first),
                image + c * (int64_t) p.x.nb[2] + y * (int64_t) p.x.nb[1] + from * (int64_t) 4, n_bytes, r.arrived + 8 * slot);
        }
    };
    for (int i = 0; i < 2; ++i) {
        if (4 * i + warp < n_units) { request(4 * i + warp, 4 * i + warp); }
    }
    int slot = 0; // of the ring
    uint32_t parity = 1, arrived = 0;
    for (int row = 0; row < n_rows; ++row) {
        const bool is_row = y0 + row >= 0 && y0 + row < high;
        for (int i = warp; i < per_row; i += 4) {
            const int unit = row * per_row + i, at = unit % PACKED_RAWS, c = i / 2, n_here = n_in - 8 * c;
            const int first = i % 2 * (PACKED_STRIP / 2);
            const float * raw = r.raw + at * 8 * PACKED_RAW + skip;
            char * to = r.ring + (slot * q.n_c + c) * s.plane + first * 16;
            d_barrier_wait(r.arrived + 8 * at, arrived >> (at / 4) & 1);
            arrived ^= 1u << at / 4;
            if (i == warp) { d_barrier_wait(r.empty + 8 * slot, parity); }
            auto convert = [&](int j) {
                float u[8];
                UNROLL for (int k = 0; k < 8; ++k) { u[k] = raw[k * PACKED_RAW + j]; }
                if (n_here < 8) {
                    UNROLL for (int k = 0; k < 8; ++k) { u[k] = k < n_here ? u[k] : 0.0f; }
                }
                const bool is_in = is_row && (unsigned) (x0 + first + j) < (unsigned) wide;
                uint32_t w[4];
                UNROLL for (int k = 0; k < 4; ++k) { w[k] = is_in ? d_two_halfs(u[2 * k], u[2 * k + 1]) : 0; }
                *(uint4 *) (to + j * 16) = make_uint4(w[0], w[1], w[2], w[3]);
            };
            UNROLL for (int j = 0; j < PACKED_STRIP / 2; j += 32) { convert(j + lane); }
            if (first > 0 && lane < more) { convert(PACKED_STRIP / 2 + lane); }
            __syncwarp(); // all have read it
            if (unit + PACKED_RAWS < n_units) { request(unit + PACKED_RAWS, at); }
        }
        d_wg_publish();
        __syncwarp();
        if (lane == 0) { d_barrier_arrive(r.full + 8 * slot); }
        slot = slot + 1 == s.ring ? 0 : slot + 1;
        parity ^= slot == 0 ? 1u : 0u;
    }
}

// A strip of eight of a warp's channels. In shared memory a row begins as far behind a multiple of 32 bytes as in the result.
static inline __device__ void d_wg_rows_store(
    const gcuda_conv_args & p, const d_packed & q, int64_t first, int oc, int n, float * stage, int lane, const float * d) {
    const uint32_t plane = (uint32_t) q.image_pixels, start = (uint32_t) ((uintptr_t) p.y.data / 4 + (uint64_t) first);
    const bool is_pair = (plane | (uint32_t) p.y.ne[0] | start) % 2 == 0;
    float * y = (float *) p.y.data + first;
    if (lane < 8) { d_wg_await_stores(); }
    __syncwarp();
    float * own = stage + lane / 4 * PACKED_OUT + ((start + (uint32_t) (lane / 4) * plane) & 7) + lane % 4 * 2;
    UNROLL for (int j = 0; j < PACKED_STRIP / 8; ++j) {
        if (is_pair) {
            *(float2 *) (own + 8 * j) = make_float2(d[4 * j], d[4 * j + 1]);
        } else {
            own[8 * j] = d[4 * j];
            own[8 * j + 1] = d[4 * j + 1];
        }
    }
    d_wg_publish();
    __syncwarp();
    auto head_of = [&](int row) { // floats before the first multiple of 32 bytes
        const int ahead = (int) (0u - start - (uint32_t) row * plane) & 7;
        return ahead < n ? ahead : n;
    };
    if (lane < 8) {
        const int head = head_of(lane), body = (n - head) & ~7;
        const float * from = stage + lane * PACKED_OUT + ((start + (uint32_t) lane * plane) & 7);
        if (oc + lane < q.n_oc && body > 0) { d_wg_copy_out(y + lane * (int64_t) plane + head, d_shared_address(from + head), body * 4); }
        d_wg_commit_stores();
    }
    UNROLL for (int i = 0; i < 8; i += 4) {
        const int row = i + lane / 8, e = lane % 8, head = head_of(row), tail = head + ((n - head) & ~7) + e;
        const float * from = stage + row * PACKED_OUT + ((start + (uint32_t) row * plane) & 7);
        float * to = y + row * (int64_t) plane;
        if (oc + row < q.n_oc && e < head) { to[e] = from[e]; }
        if (oc + row < q.n_oc && tail < n) { to[tail] = from[tail]; }
    }
}

static inline __device__ void d_wg_rows_multiply(
    const gcuda_conv_args & p, const d_packed & q, const d_packed_rows & s, const d_wg_rows & at, uint32_t w, float * out, int thread) {
    const int lane = thread % 32, warp = thread / 32 % 4, group = thread / 128;
    const int left = (int) p.y.ne[0] - at.x0 < PACKED_STRIP ? (int) p.y.ne[0] - at.x0 : PACKED_STRIP;
    const uint32_t ring = d_shared_address(at.ring);
    float * stage = out + thread / 32 * 8 * PACKED_OUT;
    float d[PACKED_STRIP / 2];
    if (group == 1 && lane == 0) { d_barrier_arrive(at.empty); } // no row before the first uses its place
    for (int r = group; r < at.n_rows; r += 2) {
        const int last = r + s.below;
        d_barrier_wait(at.full + 8 * (last % s.ring), (uint32_t) (last / s.ring & 1));
        d_wg_fence();
        int piece = 0;
        for (int ky = 0; ky < (int) p.kernel.ne[1]; ++ky) {
            const uint32_t row = ring + (uint32_t) ((r + ky * p.d1) % s.ring * q.n_c * s.plane);
            for (int kx = 0; kx < (int) p.kernel.ne[0]; ++kx) {
                for (int c = 0; c < q.n_c; c += 2, piece += 2) {
                    d_wg_mma_f16(d, d_wg_columns(w + (uint32_t) (piece / 8 * PACKED_TILE)) + (uint64_t) (piece % 8),
                        d_wg_plain(row + (uint32_t) (c * s.plane + kx * p.d0 * 16), s.plane), piece > 0 ? 1 : 0);
                }
            }
        }
        d_wg_commit();
        d_wg_wait<0>();
        UNROLL for (int i = 0; i < PACKED_STRIP / 2; ++i) { asm volatile("" : "+f"(d[i])::"memory"); } // not read before
        if (lane == 0) { // the first row of this result is used by the one before too, which is the other group's
            d_barrier_arrive(at.empty + 8 * (r % s.ring));
            d_barrier_arrive(at.empty + 8 * ((r + 1) % s.ring));
        }
        const int64_t first = ((int64_t) at.image * q.n_oc + warp * 16) * q.image_pixels + (at.y0 + r) * p.y.ne[0] + at.x0;
        UNROLL for (int h = 0; h < 2; ++h) {
            d_wg_rows_store(p, q, first + 8 * h * (int64_t) q.image_pixels, warp * 16 + 8 * h, left, stage, lane, d + 2 * h);
        }
    }
    d_wg_await_stores(); // shared memory stays until they have read it
}
#endif // 9.0a

static __global__ void __launch_bounds__(WG_THREADS, 1) k_conv_2d_wg_rows(const gcuda_conv_args p, const d_packed q, const d_packed_rows s) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    DYNAMIC_SHARED(char, shared);
    alignas(8) __shared__ uint64_t barriers[2 * PACKED_RING + PACKED_RAWS + 1];
    const int thread = (int) threadIdx.x, strip = (int) blockIdx.x % s.n_strips, rest = (int) blockIdx.x / s.n_strips;
    char * w = shared + (1024 - d_shared_address(shared) % 1024) % 1024; // the swizzle wants it
    d_wg_rows r;
    r.ring = w + q.n_steps * PACKED_TILE;
    r.raw = (float *) (r.ring + s.ring * q.n_c * s.plane);
    r.full = d_shared_address(barriers);
    r.empty = r.full + 8 * PACKED_RING;
    r.arrived = r.empty + 8 * PACKED_RING;
    r.image = rest / s.n_segments;
    r.x0 = strip * PACKED_STRIP;
    r.y0 = rest % s.n_segments * s.segment;
    r.n_rows = (int) p.y.ne[1] - r.y0 < s.segment ? (int) p.y.ne[1] - r.y0 : s.segment;
    float * out = r.raw + PACKED_RAWS * 8 * PACKED_RAW;
    const uint32_t weights = r.arrived + 8 * PACKED_RAWS;
    if (thread == 0) {
        for (int i = 0; i < s.ring; ++i) {
            d_barrier_init(r.full + 8 * i, 4);
            d_barrier_init(r.empty + 8 * i, 8); // four warps after either of two rows
        }
        for (int i = 0; i < PACKED_RAWS; ++i) { d_barrier_init(r.arrived + 8 * i, 1); }
        d_barrier_init(weights, 1);
        d_wg_publish();
        d_barrier_expect(weights, q.n_steps * PACKED_TILE);
        for (int i = 0; i < q.n_steps; ++i) { d_wg_copy(d_shared_address(w) + i * PACKED_TILE, q.w + (int64_t) i * PACKED_TILE, PACKED_TILE, weights); }
    }
    __syncthreads();
    if (thread < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 72;");
        d_wg_rows_fetch(p, q, s, r, thread);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 216;");
        d_barrier_wait(weights, 0);
        d_wg_rows_multiply(p, q, s, r, d_shared_address(w), out, thread - 128);
    }
#else
    (void) p, (void) q, (void) s;
#endif
}

// Of tiles that fit the channels those whose last round leaves the fewest multiprocessors idle.
gcuda_status gcuda_launch_conv_2d_wg(const gcuda_conv_args * args, gcuda_stream stream) {
    if (!fits_shared(PACKED_SHARED, args->max_shared) || !gcuda_has_warp_groups()) {
        return device_lacks();
    }
    const d_packed q = packed_of(*args);
    const d_packed_rows s = packed_rows_of(*args, q);
    if (s.n_segments > 0) {
        return launch_shared(k_conv_2d_wg_rows, (int64_t) s.n_segments * s.n_strips * args->y.ne[3], dim3(WG_THREADS), s.shared_bytes,
            args->max_shared, stream, *args, q, s);
    }
    const int64_t n_sm = n_multiprocessors();
    auto rounds = [&](int64_t m, int64_t n) { return ((q.n_oc + m - 1) / m * ((q.n_pixels + n - 1) / n) + n_sm - 1) / n_sm; };
    const double wide = (double) rounds(128, 256) * WG_CONV_WIDE, square = (double) rounds(128, 128) * WG_CONV_SQUARE;
    const double flat = (double) rounds(64, 256) * WG_CONV_FLAT;
    return with_float(args->y.type, [&](auto y) {
        typedef decltype(y) T;
        return flat < wide && flat < square ? conv_2d_wg<T, 64, 256>(*args, q, stream)
               : square < wide              ? conv_2d_wg<T, 128, 128>(*args, q, stream)
                                            : conv_2d_wg<T, 128, 256>(*args, q, stream);
    });
}
#endif // CONV
#endif // part 13

#if GCUDAI_PART(14)
// =====================================================================================================
// >>k-mul-mat-gemm   products of floats on tensor cores, for when cuBLAS is absent
// =====================================================================================================
// Both sides of one type: F16, BF16, or F32 rounded to TF32; sums in F32. A block has BM rows of a and BN columns of b; a step
// is 64 bytes of k of all of them, fetched by asynchronous copies STAGES - 1 steps ahead. What is behind the last row, column or
// element of k comes as zeros. Where tiles are too few for the device, k is cut into parts, whose sums a second kernel adds.
//   floor   2 m n k operations; a once for every BN columns, b once for every BM rows, mostly from L2     shared  up to 96 KiB
#define GEMM_STEP 64 // bytes
#define GEMM_MAX_PARTS 8
#define GEMM_GROUP 16 // tiles along m whose columns are walked together: their weights stay in L2

struct d_gemm {
    gcuda_array a, b, y;
    float * parts; // or NULL: [part][column of all matrices][row]
    int n_parts;
    int64_t m_tiles, n_tiles, n_steps, n_items;
};

struct d_gemm_item {
    int64_t m0, c0, i2, i3, part;
};

// Of one matrix of y, tiles go down GEMM_GROUP rows of tiles, then to the next columns.
template <int BM, int BN> static inline __device__ d_gemm_item d_gemm_item_of(const d_gemm & p, int64_t i) {
    d_gemm_item t;
    const int64_t n_tiles = p.m_tiles * p.n_tiles, at = i % n_tiles, group = at / (GEMM_GROUP * p.n_tiles);
    const int64_t left = p.m_tiles - group * GEMM_GROUP, high = left < GEMM_GROUP ? left : GEMM_GROUP;
    const int64_t in_group = at - group * GEMM_GROUP * p.n_tiles;
    t.m0 = (group * GEMM_GROUP + in_group % high) * BM;
    t.c0 = in_group / high * BN;
    i /= n_tiles;
    t.part = i % p.n_parts;
    i /= p.n_parts;
    t.i2 = i % p.y.ne[2];
    t.i3 = i / p.y.ne[2];
    return t;
}

static inline __device__ void d_gemm_mma(__half, float * c, const uint32_t * a, const uint32_t * b) { d_mma_words<true>(c, a, b); }
static inline __device__ void d_gemm_mma(__nv_bfloat16, float * c, const uint32_t * a, const uint32_t * b) { d_mma(c, a, b); }
static inline __device__ void d_gemm_mma(float, float * c, const uint32_t * a, const uint32_t * b) { d_mma_words<false>(c, a, b); }

// Words as the instruction wants them.
template <int N> static inline __device__ void d_gemm_round(__half, uint32_t (&)[N]) {}
template <int N> static inline __device__ void d_gemm_round(__nv_bfloat16, uint32_t (&)[N]) {}
template <int N> static inline __device__ void d_gemm_round(float, uint32_t (&w)[N]) {
    UNROLL for (int i = 0; i < N; ++i) { w[i] = d_tf32(__uint_as_float(w[i])); }
}

// Where 16 bytes of a row of a tile are: neighbouring rows have them in different banks.
static inline __device__ int d_gemm_at(int row, int chunk) { return row * GEMM_STEP + (chunk ^ (row >> 1 & 3)) * 16; }

// Rows r0, r0 + 64, ... of a tile of ROWS, of which `left` are in the matrix: 16 bytes of a step each.
template <int ROWS> struct d_gemm_rows {
    const char * from;
    int64_t stride;
    int left;
    inline __device__ void begin(const char * matrix, int64_t nb, int64_t first, int64_t n, int row, int chunk) {
        const int64_t rest = n - first - row;
        left = (int) (rest < ROWS ? rest : ROWS);
        stride = 64 * nb;
        from = matrix + (left > 0 ? (first + row) * nb : 0) + 16 * chunk;
    }
    inline __device__ void copy(char * to, int row, int chunk, int64_t byte, int n_bytes) const {
        UNROLL for (int i = 0; i < ROWS / 64; ++i) {
            const int n = 64 * i < left ? n_bytes : 0;
            d_copy_16(to + d_gemm_at(row + 64 * i, chunk), n > 0 ? from + i * stride + byte : from - 16 * chunk, n);
        }
    }
};

static inline __device__ void d_gemm_store(const d_gemm & p, const d_gemm_item & t, int64_t m, int64_t c, float v) {
    if (m >= p.y.ne[0] || c >= p.y.ne[1]) {
        return;
    }
    if (p.parts != nullptr) {
        p.parts[(((t.part * p.y.ne[3] + t.i3) * p.y.ne[2] + t.i2) * p.y.ne[1] + c) * p.y.ne[0] + m] = v;
    } else {
        *(float *) d_at(p.y, m, c, t.i2, t.i3) = v;
    }
}

template <typename T, int BM, int BN, int WARPS_M, int STAGES>
static __global__ void __launch_bounds__(256, BM * BN <= 128 * 128 ? 2 : 1) k_mul_mat_gemm(const d_gemm p) {
    DYNAMIC_SHARED(char, shared);
    const int WARPS_N = 8 / WARPS_M, MI = BM / WARPS_M / 16, NI = BN / WARPS_N / 8, STAGE = (BM + BN) * GEMM_STEP;
    const int tid = (int) threadIdx.x, lane = tid % 32, warp = tid / 32, chunk = tid % 4, row = tid / 4;
    const int wm = warp % WARPS_M * (BM / WARPS_M), wn = warp / WARPS_M * (BN / WARPS_N);
    const int64_t row_bytes = p.a.ne[0] * (int64_t) sizeof(T);
    FOR_ROWS(i, p.n_items) {
        const d_gemm_item t = d_gemm_item_of<BM, BN>(p, i);
        const int64_t first = p.n_steps * t.part / p.n_parts, n_steps = p.n_steps * (t.part + 1) / p.n_parts - first;
        d_gemm_rows<BM> a;
        d_gemm_rows<BN> b;
        a.begin(d_at(p.a, 0, 0, t.i2 / (p.y.ne[2] / p.a.ne[2]), t.i3 / (p.y.ne[3] / p.a.ne[3])), (int64_t) p.a.nb[1], t.m0, p.a.ne[1], row, chunk);
        b.begin(d_at(p.b, 0, 0, t.i2, t.i3), (int64_t) p.b.nb[1], t.c0, p.b.ne[1], row, chunk);
        auto copy = [&](int64_t step) { // into its stage
            char * to = shared + (int) (step % STAGES) * STAGE;
            const int64_t byte = (first + step) * GEMM_STEP, rest = row_bytes - byte - 16 * chunk;
            const int n_bytes = rest >= 16 ? 16 : rest > 0 ? (int) rest : 0;
            a.copy(to, row, chunk, byte, n_bytes);
            b.copy(to + BM * GEMM_STEP, row, chunk, byte, n_bytes);
        };
        float acc[MI][NI][4];
        UNROLL for (int j = 0; j < MI * NI * 4; ++j) { acc[j / 4 / NI][j / 4 % NI][j % 4] = 0.0f; }
        __syncthreads(); // the tiles of the item before are done with
        UNROLL for (int s = 0; s < STAGES - 1; ++s) {
            if (s < n_steps) { copy(s); }
            d_copies_commit();
        }
        for (int64_t step = 0; step < n_steps; ++step) {
            d_copies_wait<STAGES - 2>();
            __syncthreads();
            if (step + STAGES - 1 < n_steps) { copy(step + STAGES - 1); } // over the stage that all have read before the barrier
            d_copies_commit();
            const char * ta = shared + (int) (step % STAGES) * STAGE, * tb = ta + BM * GEMM_STEP;
            UNROLL for (int k = 0; k < 4; k += 2) {
                uint32_t fa[MI][4], fb[NI / 2][4]; // of b two fragments
                UNROLL for (int j = 0; j < MI; ++j) {
                    d_matrices(fa[j], ta + d_gemm_at(wm + 16 * j + lane % 16, k + lane / 16));
                    d_gemm_round(T(), fa[j]);
                }
                UNROLL for (int j = 0; j < NI / 2; ++j) {
                    d_matrices(fb[j], tb + d_gemm_at(wn + 16 * j + lane % 8 + lane / 16 * 8, k + lane / 8 % 2));
                    d_gemm_round(T(), fb[j]);
                }
                UNROLL for (int m = 0; m < MI; ++m) {
                    UNROLL for (int n = 0; n < NI; ++n) { d_gemm_mma(T(), acc[m][n], fa[m], fb[n / 2] + n % 2 * 2); }
                }
            }
        }
        d_copies_wait<0>();
        UNROLL for (int n = 0; n < NI; ++n) {
            UNROLL for (int m = 0; m < MI; ++m) {
                UNROLL for (int j = 0; j < 4; ++j) {
                    d_gemm_store(p, t, t.m0 + wm + 16 * m + lane / 4 + j / 2 * 8, t.c0 + wn + 8 * n + lane % 4 * 2 + j % 2, acc[m][n][j]);
                }
            }
        }
    }
}

static __global__ void __launch_bounds__(256) k_gemm_parts(const d_gemm p) {
    const int64_t n = p.y.ne[0] * p.y.ne[1] * p.y.ne[2] * p.y.ne[3];
    FOR_ELEMENTS(i, n) {
        float v = p.parts[i];
        for (int k = 1; k < p.n_parts; ++k) { v += p.parts[i + k * n]; }
        *(float *) d_at(p.y, d_unravel(p.y.ne, i)) = v;
    }
}

// ---- the launcher's side ----
// Tiles, the largest first: rows and columns, warps along the rows, stages, and how many blocks a multiprocessor holds.
#define GEMM_TILES(X) X(128, 256, 2, 4, 1) X(128, 128, 2, 4, 2) X(64, 64, 2, 4, 4)

struct gemm_plan {
    int bm, bn, n_parts;
};

static bool gemm_fits(int bm, int bn, int stages, size_t max_shared) {
    return fits_shared((size_t) (stages * (bm + bn) * GEMM_STEP), max_shared);
}

// The tiles and parts of k that take least, in steps of the block that has most: a step of a larger tile costs less for an
// element, and each item, and the adding of parts, something beside.
static gemm_plan gemm_plan_of(const gcuda_mul_mat_args & p) {
    const int64_t n_matrices = p.y.ne[2] * p.y.ne[3], n_sm = n_multiprocessors();
    const int64_t n_steps = (p.a.ne[0] * (int64_t) gcuda_type_size(p.a.type) + GEMM_STEP - 1) / GEMM_STEP;
    gemm_plan best = {};
    double least = 0.0;
#define X(BM, BN, WARPS_M, STAGES, RESIDENT)                                                                             \
    for (int parts = 1; parts <= GEMM_MAX_PARTS && gemm_fits(BM, BN, STAGES, p.max_shared); ++parts) {                   \
        const int64_t n_tiles = (p.a.ne[1] + BM - 1) / BM * ((p.b.ne[1] + BN - 1) / BN) * n_matrices * parts;            \
        const int64_t on_one = (n_tiles + n_sm - 1) / n_sm;                                                              \
        const double tile = (BM) * (BN) / 16384.0, rate = (BM) * (BN) >= 128 * 256 ? 1.0 : (BM) * (BN) >= 128 * 128 ? 0.9 : 0.6; \
        const double alone = on_one < (RESIDENT) ? 1.4 : 1.0; /* latency that no other block hides */                    \
        const double sums = parts > 1 ? 30.0 + (parts + 1) * (double) n_elements(p.y) / (40e3 * (double) n_sm) * 10.0 : 0.0; \
        const double cost = (double) on_one * tile / rate * alone * ((double) (n_steps / parts) + 12.0) + sums;          \
        if (parts <= n_steps && (least == 0.0 || cost < least)) {                                                        \
            least = cost;                                                                                                \
            best.bm = BM;                                                                                                \
            best.bn = BN;                                                                                                \
            best.n_parts = parts;                                                                                        \
        }                                                                                                                \
    }
    GEMM_TILES(X)
#undef X
    return best;
}

template <typename T> static gcuda_status mul_mat_gemm(const d_gemm & p, const gemm_plan & plan, size_t max_shared, gcuda_stream stream) {
#define X(BM, BN, WARPS_M, STAGES, RESIDENT)                                                                                   \
    if (plan.bm == BM && plan.bn == BN) {                                                                                      \
        return launch_shared(k_mul_mat_gemm<T, BM, BN, WARPS_M, STAGES>, p.n_items, dim3(256), STAGES * (BM + BN) * GEMM_STEP, \
            max_shared, stream, p);                                                                                            \
    }
    GEMM_TILES(X)
#undef X
    return GCUDA_STATUS_UNSUPPORTED;
}

static bool gemm_takes(const gcuda_mul_mat_args & p) {
    return is_float(p.a.type) && p.b.type == p.a.type && p.y.type == GCUDA_TYPE_F32 && is_wide(p.a) && is_wide(p.b) && p.a.ne[0] > 0;
}

size_t gcuda_mul_mat_gemm_scratch_bytes(const gcuda_mul_mat_args * args) {
    const int n_parts = gemm_plan_of(*args).n_parts;
    return asked_bytes(n_parts > 1 ? (size_t) (n_elements(args->y) * n_parts) * sizeof(float) : 0);
}

// >>op:mul_mat ----------------------------------------------------------------------------------------
gcuda_status gcuda_launch_mul_mat_gemm(const gcuda_mul_mat_args * args, void * scratch, gcuda_stream stream) {
    if (!gemm_takes(*args)) {
        return GCUDA_STATUS_UNSUPPORTED;
    }
    if (n_elements(args->y) == 0) {
        return GCUDA_STATUS_SUCCESS;
    }
    const gemm_plan plan = gemm_plan_of(*args);
    d_gemm p = {};
    if (plan.bm == 0) {
        return GCUDA_STATUS_UNSUPPORTED;
    }
    p.a = args->a;
    p.b = args->b;
    p.y = args->y;
    p.n_parts = plan.n_parts;
    p.parts = plan.n_parts > 1 ? (float *) scratch : nullptr;
    p.m_tiles = (args->a.ne[1] + plan.bm - 1) / plan.bm;
    p.n_tiles = (args->b.ne[1] + plan.bn - 1) / plan.bn;
    p.n_steps = (args->a.ne[0] * (int64_t) gcuda_type_size(args->a.type) + GEMM_STEP - 1) / GEMM_STEP;
    p.n_items = p.m_tiles * p.n_tiles * p.n_parts * args->y.ne[2] * args->y.ne[3];
    gcuda_status st = with_float(
        args->a.type, [&](auto t) { return mul_mat_gemm<decltype(t)>(p, plan, args->max_shared, stream); });
    if (st == GCUDA_STATUS_SUCCESS && p.n_parts > 1) {
        st = launch_elements(k_gemm_parts, p.y, stream, p);
    }
    return st;
}
#endif // part 14

#if GCUDAI_PART(7) && GCUDAI_KERNEL_HAS(ATTENTION)
// =====================================================================================================
// >>k-attention   attention in one pass
// =====================================================================================================

// >>op:flash_attn_ext ---------------------------------------------------------------------------------
// A block has 16 queries, which are tokens times the heads that share k and v, and walks over the positions, 32 at a time,
// in slices of 64 elements: scores, then the running maximum and sum of the softmax (Milakov & Gimelshein 2018,
// arXiv:1805.02867), then the weighted values. A warp has two of the queries from the scores to the result; its lanes are
// positions, then elements. Everything is in F32, and the order of the sums depends on the shapes alone.
//   floor   k and v once for every 16 queries, q, mask and y once
//   shared  39 KiB; longer values than 384 elements are summed up in y, which belongs to the block
#define ATTN_QUERIES 16
#define ATTN_POSITIONS 32
#define ATTN_SLICE 64
#define ATTN_HELD 384

struct d_attn {
    int64_t group, n_groups;     // heads that share k and v; groups of a sequence
    int64_t n_queries, n_blocks; // of a group
};

// Elements d0 .. d0 + 63 of n rows, as floats; beyond the row: zeros. For rows of blocks a thread decodes a group.
template <bool HAS_BLOCKS>
static __device__ void d_attn_rows(const gcuda_array & a, const char * rows, int n, int64_t d0, float (*tile)[ATTN_SLICE + 1]) {
    const bool is_plain = a.type == GCUDA_TYPE_F32 || a.type == GCUDA_TYPE_F16 || a.type == GCUDA_TYPE_BF16 || a.type == GCUDA_TYPE_F64;
    if (!HAS_BLOCKS || is_plain) {
        for (int i = (int) threadIdx.x; i < ATTN_POSITIONS * ATTN_SLICE; i += 256) {
            const int row = i / ATTN_SLICE, d = i % ATTN_SLICE;
            const char * x = rows + row * (int64_t) a.nb[1] + (d0 + d) * (int64_t) a.nb[0];
            tile[row][d] = row < n && d0 + d < a.ne[0] ? d_load_f64(a.type, x) : 0.0f;
        }
        return;
    }
    const int row = (int) threadIdx.x % ATTN_POSITIONS, d = (int) threadIdx.x / ATTN_POSITIONS * 32;
    if (d >= ATTN_SLICE) {
        return;
    }
    const bool is_in = row < n && d0 + d < a.ne[0];
    const char * x = rows + row * (int64_t) a.nb[1];
    const int64_t u = (d0 + d) / 32;
    d_group g;
    int zero = 0;
    bool has_min = false;
    switch (is_in ? a.type : GCUDA_TYPE_COUNT) {
#define X(ID)                                                                                                     \
    GCUDAI_KERNEL_WHEN(ID, case GCUDA_TYPE_##ID: {                                                                \
        typedef d_format<GCUDA_TYPE_##ID> F;                                                                      \
        F::decode((const F::block *) x + u / (F::n / 32), (int) (u % (F::n / 32)), g);                            \
        zero = F::zero;                                                                                           \
        has_min = F::has_min;                                                                                     \
    } break;)
        D_BLOCK_TYPES(X)
#undef X
        default:
            for (int k = 0; k < 8; ++k) { g.q[k] = 0; }
            d_set_scale(g, 0.0f, 0.0f);
            break;
    }
    UNROLL for (int j = 0; j < 32; ++j) {
        const float v = g.scale[j / 16] * (float) ((int) (int8_t) (g.q[j / 4] >> 8 * (j % 4)) - zero);
        tile[row][d + j] = has_min ? v - g.min[j / 16] : v;
    }
}

template <bool HAS_BLOCKS>
static __global__ void __launch_bounds__(256) k_flash_attn(const gcuda_flash_attn_ext_args p, const d_attn a) {
    __shared__ float rows[ATTN_POSITIONS][ATTN_SLICE + 1], query[ATTN_QUERIES][ATTN_SLICE];
    __shared__ float weight[ATTN_QUERIES][ATTN_POSITIONS], held[ATTN_QUERIES * ATTN_HELD];
    const int lane = (int) threadIdx.x % 32, warp = (int) threadIdx.x / 32;
    const int64_t dk = p.q.ne[0], dv = p.v.ne[0], n_kv = p.k.ne[1];
    for (int64_t item = blockIdx.x; item < p.q.ne[3] * a.n_groups * a.n_blocks; item += gridDim.x) {
        const int64_t q0 = item % a.n_blocks * ATTN_QUERIES, head0 = item / a.n_blocks % a.n_groups * a.group,
                      s = item / a.n_blocks / a.n_groups;
        const char * k = d_at(p.k, 0, 0, head0 / (p.q.ne[2] / p.k.ne[2]), s);
        const char * v = d_at(p.v, 0, 0, head0 / (p.q.ne[2] / p.v.ne[2]), s);
        const char * mask[2];
        float * acc[2];
        float slope[2], max[2], sum[2];
        bool is_query[2];
        for (int i = 0; i < 2; ++i) {
            const int64_t n = q0 + 2 * warp + i, head = head0 + n % a.group, token = n / a.group;
            is_query[i] = n < a.n_queries;
            slope[i] = d_slope(p.max_bias, p.q.ne[2], head);
            mask[i] = is_query[i] && p.mask.data != nullptr ? d_at(p.mask, 0, token, head % p.mask.ne[2], s % p.mask.ne[3]) : nullptr;
            const bool has_sink = is_query[i] && p.sinks.data != nullptr && !p.is_begun, goes_on = is_query[i] && p.is_begun;
            const float * running = goes_on ? (const float *) d_at(p.running, 0, head, token, s) : nullptr;
            max[i] = has_sink ? d_load(p.sinks.type, d_at(p.sinks, head, 0, 0, 0)) : goes_on ? running[0] : -INFINITY;
            sum[i] = has_sink ? 1.0f : goes_on ? running[1] : 0.0f;
            float * y = is_query[i] ? (float *) d_at(p.y, 0, head, token, s) : nullptr;
            acc[i] = dv <= ATTN_HELD ? held + (2 * warp + i) * ATTN_HELD : y;
            for (int64_t d = lane; d < dv && is_query[i]; d += 32) { acc[i][d] = p.is_begun ? y[d] : 0.0f; }
        }
        for (int64_t j0 = 0; j0 < n_kv; j0 += ATTN_POSITIONS) {
            const int n = (int) (n_kv - j0 < ATTN_POSITIONS ? n_kv - j0 : ATTN_POSITIONS);
            float bias[2], score[2] = { 0.0f, 0.0f };
            bool is_seen[2];
            for (int i = 0; i < 2; ++i) { // what is masked is not even looked at: it may hold anything
                const bool is_in = is_query[i] && lane < n;
                bias[i] = is_in && mask[i] != nullptr ? d_load(p.mask.type, mask[i] + (j0 + lane) * (int64_t) p.mask.nb[0]) : 0.0f;
                is_seen[i] = is_in && bias[i] != -INFINITY;
            }
            if (!__syncthreads_or(is_seen[0] || is_seen[1])) {
                continue;
            }
            for (int64_t d0 = 0; d0 < dk; d0 += ATTN_SLICE) {
                __syncthreads(); // rows and query have been read
                d_attn_rows<HAS_BLOCKS>(p.k, k + j0 * (int64_t) p.k.nb[1], n, d0, rows);
                for (int i = (int) threadIdx.x; i < ATTN_QUERIES * ATTN_SLICE; i += 256) {
                    const int64_t m = q0 + i / ATTN_SLICE, d = d0 + i % ATTN_SLICE;
                    const bool is_in = m < a.n_queries && d < dk;
                    query[i / ATTN_SLICE][i % ATTN_SLICE] =
                        is_in ? d_load(p.q.type, d_at(p.q, d, m / a.group, head0 + m % a.group, s)) : 0.0f;
                }
                __syncthreads();
                for (int d = 0; d < ATTN_SLICE; ++d) {
                    score[0] += query[2 * warp][d] * rows[lane][d];
                    score[1] += query[2 * warp + 1][d] * rows[lane][d];
                }
            }
            float factor[2];
            for (int i = 0; i < 2; ++i) {
                float x = score[i] * p.scale;
                x = p.logit_softcap != 0.0f ? p.logit_softcap * tanhf(x / p.logit_softcap) : x;
                x = is_seen[i] ? x + slope[i] * bias[i] : -INFINITY;
                const float top = fmaxf(max[i], d_warp_reduce<d_max_op>(x));
                const float base = top == -INFINITY ? 0.0f : top;
                const float w = is_seen[i] ? expf(x - base) : 0.0f;
                factor[i] = expf(max[i] - base);
                sum[i] = sum[i] * factor[i] + d_warp_reduce<d_sum_op>(w);
                max[i] = top;
                weight[2 * warp + i][lane] = w;
            }
            for (int64_t d0 = 0; d0 < dv; d0 += ATTN_SLICE) {
                __syncthreads();
                d_attn_rows<HAS_BLOCKS>(p.v, v + j0 * (int64_t) p.v.nb[1], n, d0, rows);
                __syncthreads();
                for (int i = 0; i < 2; ++i) {
                    for (int d = lane; d < ATTN_SLICE && d0 + d < dv && is_query[i]; d += 32) {
                        float y = acc[i][d0 + d] * factor[i];
                        for (int j = 0; j < n; ++j) {
                            const float w = weight[2 * warp + i][j];
                            y += w != 0.0f ? w * rows[j][d] : 0.0f; // not 0 * NaN
                        }
                        acc[i][d0 + d] = y;
                    }
                }
            }
        }
        for (int i = 0; i < 2; ++i) {
            const int64_t m = q0 + 2 * warp + i;
            const float scale = p.is_open ? 1.0f : sum[i] > 0.0f ? 1.0f / sum[i] : 0.0f; // a token that sees nothing gets zeros
            for (int64_t d = lane; d < dv && is_query[i]; d += 32) {
                *(float *) d_at(p.y, d, head0 + m % a.group, m / a.group, s) = acc[i][d] * scale;
            }
            if (p.is_open && is_query[i] && lane == 0) {
                float * running = (float *) d_at(p.running, 0, head0 + m % a.group, m / a.group, s);
                running[0] = max[i];
                running[1] = sum[i];
            }
        }
        __syncthreads(); // held is the next item's
    }
}

gcuda_status gcuda_launch_flash_attn_ext(const gcuda_flash_attn_ext_args * args, gcuda_stream stream) {
    const gcuda_flash_attn_ext_args & p = *args;
    if (n_elements(p.y) == 0) {
        return GCUDA_STATUS_SUCCESS;
    }
    int64_t gk = p.q.ne[2] / p.k.ne[2], gv = p.q.ne[2] / p.v.ne[2];
    while (gv != 0) { // greatest common divisor
        const int64_t rest = gk % gv;
        gk = gv;
        gv = rest;
    }
    d_attn a;
    a.group = gk;
    a.n_groups = p.q.ne[2] / gk;
    a.n_queries = p.q.ne[1] * gk;
    a.n_blocks = (a.n_queries + ATTN_QUERIES - 1) / ATTN_QUERIES;
    const bool has_blocks = gcuda_is_quantized(p.k.type) || gcuda_is_quantized(p.v.type);
    return launch(has_blocks ? k_flash_attn<true> : k_flash_attn<false>, p.q.ne[3] * a.n_groups * a.n_blocks, 256, stream, p, a);
}
#endif // part 7
