// cuda_runtime.h - the device language on the simulated device: what nvcc understands by itself, as macros, types and
// functions that g++ and clang++ compile. Kernels are ordinary functions; sim.cpp calls them once a thread.
#ifndef GCUDA_SIM_CUDA_RUNTIME_H
#define GCUDA_SIM_CUDA_RUNTIME_H

#include "cuda_runtime_api.h"

#include <limits.h>
#include <functional>
#include <math.h>
#include <memory>
#include <stdint.h>
#include <string.h>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#define __CUDA_ARCH__ GCUDA_SIM_CC
#define __CUDA_ARCH_LIST__ GCUDA_SIM_CC
#define __global__
#define __device__
#define __host__
#define __constant__
#define __shared__ static // blocks run one after another
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ // nothing, as the C++ headers write __attribute__((__noinline__))
#define __launch_bounds__(...)

// ---- vectors ----
struct uint3 {
    unsigned x, y, z;
};
#define GCUDA_SIM_VECTORS(T, name)                                                      \
    struct alignas(2 * sizeof(T)) name##2 {                                             \
        T x, y;                                                                         \
    };                                                                                  \
    struct name##3 {                                                                    \
        T x, y, z;                                                                      \
    };                                                                                  \
    struct alignas(4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)) name##4 {                   \
        T x, y, z, w;                                                                   \
    };                                                                                  \
    static inline name##2 make_##name##2(T x, T y) { return name##2 { x, y }; }         \
    static inline name##3 make_##name##3(T x, T y, T z) { return name##3 { x, y, z }; } \
    static inline name##4 make_##name##4(T x, T y, T z, T w) { return name##4 { x, y, z, w }; }
GCUDA_SIM_VECTORS(float, float)
GCUDA_SIM_VECTORS(int, int)
GCUDA_SIM_VECTORS(signed char, char)
GCUDA_SIM_VECTORS(unsigned char, uchar)
GCUDA_SIM_VECTORS(short, short)
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
static inline uint2 make_uint2(unsigned x, unsigned y) { return uint2{ x, y }; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return uint4{ x, y, z, w }; }

// ---- where a thread is; set before a thread goes on ----
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
static constexpr int warpSize = 32;

void * sim_dynamic_shared(); // what the launch asked for with dynamicSmemBytes, aligned to 128 bytes

// ---- launches ----
struct cudaLaunchAttribute {
    cudaLaunchAttributeID id;
    cudaLaunchAttributeValue val;
};
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute * attrs;
    unsigned numAttrs;
};

enum cudaFuncAttribute {
    cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
    cudaFuncAttributeNonPortableClusterSizeAllowed = 15
};

// Copied arguments of a launch; `at`: their addresses, as in cudaKernelNodeParams.
struct sim_arguments {
    std::function<void()> thread; // calls the kernel with them
    std::vector<void *> at;
    std::vector<size_t> size;
};
typedef sim_arguments (*sim_copy_arguments)(const void * kernel, void ** at);

template <typename... P> struct sim_kernel {
    template <size_t... I> static sim_arguments copy_all(const void * kernel, void ** at, std::index_sequence<I...>) {
        typedef std::tuple<std::decay_t<P>...> values;
        (void) at; // of a kernel without arguments
        const std::shared_ptr<values> v = std::make_shared<values>(*(std::decay_t<P> *) at[I]...);
        void (*function)(P...) = (void (*)(P...)) kernel;
        return sim_arguments{ [=]() { std::apply(function, *v); }, { (void *) &std::get<I>(*v)... },
            { sizeof(std::decay_t<P>)... } };
    }
    static sim_arguments copy(const void * kernel, void ** at) {
        return copy_all(kernel, at, std::index_sequence_for<P...>());
    }
};

cudaError_t sim_launch(
    const cudaLaunchConfig_t * config, const void * kernel, sim_copy_arguments copy, void ** arguments);
cudaError_t sim_func_set_shared(const void * kernel, int value);
cudaError_t sim_resident_clusters(int * n, const cudaLaunchConfig_t * config);

// What lay between the members of an argument would look like addresses now and then.
template <typename T> static inline void sim_clear_padding(T & v) {
#if defined(__has_builtin)
#if __has_builtin(__builtin_clear_padding)
    __builtin_clear_padding(&v);
#endif
#endif
    (void) v;
}

// Arguments are copied now; the kernel runs when its stream comes to it.
template <typename... P, typename... A>
static inline cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t * config, void (*kernel)(P...), A &&... args) {
    std::tuple<std::decay_t<P>...> values(static_cast<std::decay_t<P>>(args)...);
    return std::apply(
        [=](auto &... v) {
            void * at[] = { (void *) &v..., nullptr };
            (sim_clear_padding(v), ...);
            return sim_launch(config, (const void *) kernel, sim_kernel<P...>::copy, at);
        },
        values);
}

template <typename... P>
static inline cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes * attributes, void (*kernel)(P...)) {
    return cudaFuncGetAttributes(attributes, (const void *) kernel);
}

template <typename F>
static inline cudaError_t cudaFuncSetAttribute(F * kernel, cudaFuncAttribute attribute, int value) {
    return attribute == cudaFuncAttributeMaxDynamicSharedMemorySize ? sim_func_set_shared((const void *) kernel, value)
                                                                    : cudaSuccess;
}
template <typename F>
static inline cudaError_t cudaOccupancyMaxActiveClusters(int * n, F *, const cudaLaunchConfig_t * config) {
    return sim_resident_clusters(n, config);
}

// ---- barriers; a barrier that not all threads of the block reach is an error ----
void sim_wait_before();               // of a kernel in an overlapped launch: every thread has to come there
int sim_barrier(int what, int value); // of all values: 0 nothing, 1 the sum of those not 0, 2 all, 3 any
static inline void __syncthreads() { sim_barrier(0, 0); }
static inline int __syncthreads_count(int v) { return sim_barrier(1, v); }
static inline int __syncthreads_and(int v) { return sim_barrier(2, v); }
static inline int __syncthreads_or(int v) { return sim_barrier(3, v); }
static inline void __threadfence() {}
static inline void __threadfence_block() {}
static inline void __threadfence_system() {}

// ---- warps: the lanes that the mask names meet ----
enum sim_warp_op {
    SIM_SYNC,
    SIM_SHUFFLE,
    SIM_BALLOT,
    SIM_ADD,
    SIM_MIN_U,
    SIM_MAX_U,
    SIM_MIN_S,
    SIM_MAX_S,
    SIM_AND,
    SIM_OR,
    SIM_XOR,
    SIM_MATCH, // the lanes with the same bytes
    SIM_CALL   // of sim_mma.h
};
int sim_lane();
// in and out: size bytes, at most 16; from: the lane whose value a shuffle wants
void sim_warp(sim_warp_op op, unsigned mask, const void * in, void * out, size_t size, int from);

static inline void __syncwarp(unsigned mask = 0xffffffffu) { sim_warp(SIM_SYNC, mask, nullptr, nullptr, 0, 0); }

template <typename T> static inline T sim_shuffle(unsigned mask, T v, int from) {
    static_assert(sizeof(T) <= 16 && std::is_trivially_copyable<T>::value, "a shuffle moves up to 16 plain bytes");
    T out;
    sim_warp(SIM_SHUFFLE, mask, &v, &out, sizeof(T), from);
    return out;
}

template <typename T> static inline T __shfl_sync(unsigned mask, T v, int from, int width = 32) {
    return sim_shuffle(mask, v, (sim_lane() & -width) + (from & (width - 1)));
}

template <typename T> static inline T __shfl_up_sync(unsigned mask, T v, unsigned delta, int width = 32) {
    const int lane = sim_lane(), from = lane - (int) delta;
    return sim_shuffle(mask, v, from < (lane & -width) ? lane : from);
}

template <typename T> static inline T __shfl_down_sync(unsigned mask, T v, unsigned delta, int width = 32) {
    const int lane = sim_lane(), from = lane + (int) delta;
    return sim_shuffle(mask, v, from >= (lane & -width) + width ? lane : from);
}

template <typename T> static inline T __shfl_xor_sync(unsigned mask, T v, int bits, int width = 32) {
    const int lane = sim_lane(), from = lane ^ bits;
    return sim_shuffle(mask, v, from >= (lane & -width) + width ? lane : from);
}

static inline unsigned sim_warp_u32(sim_warp_op op, unsigned mask, unsigned v) {
    unsigned out = 0;
    sim_warp(op, mask, &v, &out, sizeof(v), 0);
    return out;
}
static inline unsigned __ballot_sync(unsigned mask, int v) { return sim_warp_u32(SIM_BALLOT, mask, v != 0); }
static inline int __any_sync(unsigned mask, int v) { return __ballot_sync(mask, v) != 0; }
static inline int __all_sync(unsigned mask, int v) { return __ballot_sync(mask, v) == mask; }
static inline unsigned __reduce_add_sync(unsigned mask, unsigned v) { return sim_warp_u32(SIM_ADD, mask, v); }
static inline unsigned __reduce_min_sync(unsigned mask, unsigned v) { return sim_warp_u32(SIM_MIN_U, mask, v); }
static inline unsigned __reduce_max_sync(unsigned mask, unsigned v) { return sim_warp_u32(SIM_MAX_U, mask, v); }
static inline int __reduce_add_sync(unsigned mask, int v) { return (int) sim_warp_u32(SIM_ADD, mask, (unsigned) v); }
static inline int __reduce_min_sync(unsigned mask, int v) { return (int) sim_warp_u32(SIM_MIN_S, mask, (unsigned) v); }
static inline int __reduce_max_sync(unsigned mask, int v) { return (int) sim_warp_u32(SIM_MAX_S, mask, (unsigned) v); }
static inline unsigned __reduce_and_sync(unsigned mask, unsigned v) { return sim_warp_u32(SIM_AND, mask, v); }
static inline unsigned __reduce_or_sync(unsigned mask, unsigned v) { return sim_warp_u32(SIM_OR, mask, v); }
static inline unsigned __reduce_xor_sync(unsigned mask, unsigned v) { return sim_warp_u32(SIM_XOR, mask, v); }

template <typename T> static inline unsigned __match_any_sync(unsigned mask, T v) {
    uint64_t bits = 0, out = 0;
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "of four or eight bytes");
    memcpy(&bits, &v, sizeof(v));
    sim_warp(SIM_MATCH, mask, &bits, &out, sizeof(bits), 0);
    return (unsigned) out;
}
template <typename T> static inline unsigned __match_all_sync(unsigned mask, T v, int * all) {
    *all = __match_any_sync(mask, v) == mask;
    return *all ? mask : 0;
}
static inline unsigned __activemask() { return 0xffffffffu; } // of warps whose lanes have not parted

// ---- atomics: only one thread runs at a time, and only barriers and warp operations let another one on ----
#define GCUDA_SIM_ATOMIC(name, value)                                                         \
    template <typename T> static inline T name(T * p, typename std::common_type<T>::type v) { \
        const T old = *p;                                                                     \
        *p = (T) (value);                                                                     \
        return old;                                                                           \
    }
GCUDA_SIM_ATOMIC(atomicAdd, old + v)
GCUDA_SIM_ATOMIC(atomicSub, old - v)
GCUDA_SIM_ATOMIC(atomicExch, v)
GCUDA_SIM_ATOMIC(atomicMin, v < old ? v : old)
GCUDA_SIM_ATOMIC(atomicMax, v > old ? v : old)
GCUDA_SIM_ATOMIC(atomicAnd, old & v)
GCUDA_SIM_ATOMIC(atomicOr, old | v)
GCUDA_SIM_ATOMIC(atomicXor, old ^ v)
template <typename T>
static inline T atomicCAS(T * p, typename std::common_type<T>::type expected, typename std::common_type<T>::type v) {
    const T old = *p;
    *p = old == expected ? v : old;
    return old;
}

// ---- arithmetic ----
template <typename T> static inline T sim_bits(const void * p) {
    T v;
    memcpy(&v, p, sizeof(v));
    return v;
}
static inline int __float_as_int(float v) { return sim_bits<int>(&v); }
static inline unsigned __float_as_uint(float v) { return sim_bits<unsigned>(&v); }
static inline float __int_as_float(int v) { return sim_bits<float>(&v); }
static inline float __uint_as_float(unsigned v) { return sim_bits<float>(&v); }
static inline int __popc(unsigned v) { return __builtin_popcount(v); }
static inline int __clz(int v) { return v ? __builtin_clz((unsigned) v) : 32; }
static inline int __ffs(int v) { return __builtin_ffs(v); }
static inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
static inline int __clzll(long long v) { return v ? __builtin_clzll((unsigned long long) v) : 64; }
static inline int __ffsll(long long v) { return __builtin_ffsll(v); }
static inline unsigned __brev(unsigned v) {
    unsigned out = 0;
    for (int i = 0; i < 32; ++i) { out |= (v >> i & 1u) << (31 - i); }
    return out;
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned n) {
    return (unsigned) ((((uint64_t) high << 32 | low) << (n & 31u)) >> 32);
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned n) {
    return (unsigned) (((uint64_t) high << 32 | low) >> (n & 31u));
}

// ---- four bytes at once; signed, saturating where the name ends in ss4 or us4 ----
#define GCUDA_SIM_BYTES(name, T, value)                               \
    static inline unsigned name(unsigned a, unsigned b) {             \
        unsigned out = 0;                                             \
        for (int i = 0; i < 4; ++i) {                                 \
            const int x = (T) (a >> (8 * i)), y = (T) (b >> (8 * i)); \
            out |= ((unsigned) (value) &255u) << (8 * i);             \
        }                                                             \
        return out;                                                   \
    }
GCUDA_SIM_BYTES(__vadd4, uint8_t, x + y)
GCUDA_SIM_BYTES(__vsub4, uint8_t, x - y)
GCUDA_SIM_BYTES(__vaddss4, int8_t, x + y > 127 ? 127 : x + y < -128 ? -128 : x + y)
GCUDA_SIM_BYTES(__vsubss4, int8_t, x - y > 127 ? 127 : x - y < -128 ? -128 : x - y)
GCUDA_SIM_BYTES(__vaddus4, uint8_t, x + y > 255 ? 255 : x + y)
GCUDA_SIM_BYTES(__vsubus4, uint8_t, x < y ? 0 : x - y)
GCUDA_SIM_BYTES(__vmaxs4, int8_t, x > y ? x : y)
GCUDA_SIM_BYTES(__vmins4, int8_t, x < y ? x : y)
GCUDA_SIM_BYTES(__vmaxu4, uint8_t, x > y ? x : y)
GCUDA_SIM_BYTES(__vminu4, uint8_t, x < y ? x : y)
GCUDA_SIM_BYTES(__vcmpeq4, uint8_t, x == y ? 255 : 0)
GCUDA_SIM_BYTES(__vcmpne4, uint8_t, x != y ? 255 : 0)
GCUDA_SIM_BYTES(__vcmpgts4, int8_t, x > y ? 255 : 0)
GCUDA_SIM_BYTES(__vcmpgtu4, uint8_t, x > y ? 255 : 0)
GCUDA_SIM_BYTES(__vcmpgeu4, uint8_t, x >= y ? 255 : 0)

long long clock64(); // grows with every call
static inline void __nanosleep(unsigned) {}

static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned) (((uint64_t) a * b) >> 32); }

// Sums of products of four signed or unsigned bytes, wrapping.
static inline int __dp4a(int a, int b, int c) {
    int8_t x[4], y[4];
    memcpy(x, &a, 4);
    memcpy(y, &b, 4);
    const int sum = x[0] * y[0] + x[1] * y[1] + x[2] * y[2] + x[3] * y[3];
    return (int) ((unsigned) c + (unsigned) sum);
}
static inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    uint8_t x[4], y[4];
    memcpy(x, &a, 4);
    memcpy(y, &b, 4);
    return c + (unsigned) (x[0] * y[0] + x[1] * y[1] + x[2] * y[2] + x[3] * y[3]);
}

// Bytes of b:a, numbered 0 to 7 from a's lowest, chosen by the hexadecimal digits of s.
static inline unsigned sim_prmt(unsigned a, unsigned b, unsigned s) { // prmt.b32
    const uint64_t both = (uint64_t) b << 32 | a;
    unsigned out = 0;
    for (int i = 0; i < 4; ++i) {
        const unsigned digit = s >> (4 * i) & 15u, byte = (unsigned) (both >> (8 * (digit & 7u))) & 255u;
        out |= ((digit & 8u) != 0 ? ((byte & 128u) != 0 ? 255u : 0u) : byte) << (8 * i);
    }
    return out;
}
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned s) { return sim_prmt(a, b, s & 0x7777u); }

template <typename T> static inline T __ldg(const T * p) { return *p; }
template <typename T> static inline T __ldcs(const T * p) { return *p; }
template <typename T> static inline T __ldcg(const T * p) { return *p; }
template <typename T> static inline T __ldca(const T * p) { return *p; }
template <typename T> static inline void __stcs(T * p, T v) { *p = v; }
template <typename T> static inline void __stcg(T * p, T v) { *p = v; }
static inline float rsqrtf(float v) { return 1.0f / sqrtf(v); }
#define __expf(v) expf(v) // glibc has other functions with these names
#define __logf(v) logf(v)
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline int __vimin_s32_relu(int a, int b) {
    const int least = a < b ? a : b;
    return least > 0 ? least : 0;
}
// The device's conversions saturate, and NaN becomes 0.
static inline int sim_saturated_int(float v) {
    return v >= 2147483648.0f ? INT_MAX : v < -2147483648.0f ? INT_MIN : v != v ? 0 : (int) v;
}
static inline int __float2int_rn(float v) { return sim_saturated_int(nearbyintf(v)); }
static inline int __float2int_rz(float v) { return sim_saturated_int(v); }

template <typename T> static inline T min(T a, T b) { return b < a ? b : a; }
template <typename T> static inline T max(T a, T b) { return a < b ? b : a; }

#endif // GCUDA_SIM_CUDA_RUNTIME_H
