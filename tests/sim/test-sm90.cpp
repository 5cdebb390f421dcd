// >>k-sm90 of gcuda_kernels.cu on the simulated device: an example of how a kernel with a ring of stages is written,
//   mistakes in it that
// must be found, and every form of wgmma and of the copies against definitions written here.
#define GCUDA_KERNEL_PART 90
#include "../../gcuda_kernels.cu"

#include "sim-launch.h"

#include <string>

// ---- the example: y = a b^T of F16, y[column][row], 64 x 64 for each block ----
enum { TILE = 64, STEP = 64, STAGES = 3, STAGE_BYTES = 2 * TILE * STEP * 2 };
enum mistake {
    NONE,
    WRONG_PHASE,      // the consumer begins with the producer's phase
    NO_EXPECT,        // the producer does not say how many bytes come
    EARLY_RELEASE,    // the stage is given back before the products are over
    WRONG_SWIZZLE,    // the tensor map makes another one than the descriptor says
    WRONG_DESCRIPTOR, // eight rows are half as far from the next as they are
    OVERWRITTEN,      // an operand, by an ordinary store before the wait
    NEVER_RELEASED,
    NO_WGMMA_FENCE,
    TOUCHED_SUMS,   // accumulators, before the wait
    NO_ASYNC_FENCE, // after an ordinary store to an operand
    EARLY_READ,     // the producer's shared memory without waiting
    TOO_MANY_ARRIVALS,
    UNEQUAL_WARPS, // one warp multiplies something else
    NO_INIT_FENCE,
    N_FAULTS
};

template <int FAULT>
static __global__ void __launch_bounds__(256, 1) k_example(
    const D_GRID_CONSTANT d_tensor_map a, const D_GRID_CONSTANT d_tensor_map b, float * y, int m, int n_steps) {
#if D_SM90
    DYNAMIC_SHARED(char, shared);
    D_SHARED_MBARRIERS(barriers, 2 * STAGES);
    const int thread = (int) threadIdx.x, lane = thread % 32;
    const uint32_t stages = (d_shared_address(shared) + 1023) & ~1023u, full = d_shared_address(barriers),
                   empty = full + 8 * STAGES;
    if (thread == 0) {
        for (int i = 0; i < STAGES; ++i) {
            d_mbarrier_init(full + 8 * i, 1);  // the producer
            d_mbarrier_init(empty + 8 * i, 4); // the warps of the consumer
        }
        if (FAULT != NO_INIT_FENCE) { d_mbarrier_fence_init(); }
    }
    __syncthreads();
    if (thread >= 128) { // the producer: one thread of its warpgroup
        d_setmaxnreg_dec<40>();
        if (thread == 128) {
            d_pipeline_state<STAGES> at = { 0, 1 };
            for (int s = 0; s < n_steps; ++s, at.next()) {
                const uint32_t stage = stages + at.index * STAGE_BYTES, bar = full + 8 * at.index;
                d_mbarrier_wait(empty + 8 * at.index, at.phase);
                if (FAULT == NO_EXPECT) {
                    d_mbarrier_arrive(bar);
                } else {
                    d_mbarrier_arrive_expect(bar, STAGE_BYTES);
                }
                d_tma_load_4d(stage, a, s * STEP, (int) blockIdx.x * TILE, 0, 0, bar);
                d_tma_load_4d(stage + STAGE_BYTES / 2, b, s * STEP, (int) blockIdx.y * TILE, 0, 0, bar);
            }
        }
    } else { // the consumer: a warpgroup
        d_setmaxnreg_inc<232>();
        d_pipeline_state<STAGES> at = { 0, FAULT == WRONG_PHASE ? 1u : 0u };
        float d[TILE / 2];
        for (int s = 0; s < n_steps; ++s, at.next()) {
            const uint32_t stage = stages + at.index * STAGE_BYTES, bar = empty + 8 * at.index;
            const uint64_t da = d_desc_k_128(stage);
            const uint64_t db = FAULT == WRONG_DESCRIPTOR ? d_desc<SWIZZLE_128>(stage + STAGE_BYTES / 2, 16, 512)
                                                          : d_desc_k_128(stage + STAGE_BYTES / 2);
            char * operand = shared + (stage - d_shared_address(shared)) + 256 * (thread % 32);
            if (FAULT != EARLY_READ) { d_mbarrier_wait(full + 8 * at.index, at.phase); }
            if (FAULT == NO_ASYNC_FENCE && s == 2) {
                if (thread < 32) { operand[0] ^= 64; }
                d_named_sync(1, 128);
            }
            if (FAULT != NO_WGMMA_FENCE) { d_wgmma_fence(); }
            for (int i = 0; i < 4; ++i) {
                const bool is_other = FAULT == UNEQUAL_WARPS && thread / 32 == 2 && s == 1;
                d_wgmma_ss(__half(), d, da + 2 * i, db + 2 * (is_other ? 0 : i), s > 0 || i > 0);
            }
            d_wgmma_commit();
            if (FAULT == EARLY_RELEASE && lane == 0) { d_mbarrier_arrive(bar); }
            if (FAULT == OVERWRITTEN && thread == 5) { operand[0] ^= 64; }
            if (FAULT == TOUCHED_SUMS && s == 1) { d[3] = 1.0f; }
            d_wgmma_wait<0>();
            d_wgmma_read(d);
            if (FAULT != EARLY_RELEASE && FAULT != NEVER_RELEASED && lane == 0) { d_mbarrier_arrive(bar); }
            if (FAULT == TOO_MANY_ARRIVALS && lane == 1) { d_mbarrier_arrive(bar); }
        }
        const int row = (int) blockIdx.x * TILE + thread / 32 * 16 + lane / 4,
                  column = (int) blockIdx.y * TILE + lane % 4 * 2;
        for (int i = 0; i < TILE / 2; ++i) { y[(column + i / 4 * 8 + i % 2) * m + row + i % 4 / 2 * 8] = d[i]; }
    }
#else
    (void) a, (void) b, (void) y, (void) m, (void) n_steps;
#endif
}

static std::vector<__half> random_halfs(size_t n, const char * seed) {
    struct rng r = rng_for(seed);
    std::vector<__half> v(n);
    for (__half & h : v) { h = __float2half_rn((float) rng_between(&r, -1.0, 1.0)); }
    return v;
}

template <typename T> static T * copied(const std::vector<T> & v) {
    T * p = on_device<T>(v.size());
    CHECK(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice) == cudaSuccess);
    return p;
}

// A map of rows of k halves with boxes of 64 x 64.
static d_tensor_map map_of(__half * data, int k, int rows, bool has_swizzle) {
    d_tensor_map map;
    const gcuda_array x = packed_array(GCUDA_TYPE_F16, data, k, rows, 1, 1);
    const uint32_t box[4] = { STEP, TILE, 1, 1 }, ones[4] = { 1, 1, 1, 1 };
    const uint64_t ne[4] = { (uint64_t) k, (uint64_t) rows, 1, 1 },
                   nb[3] = { 2 * (uint64_t) k, 2 * (uint64_t) (k * rows), 2 * (uint64_t) (k * rows) };
    const tensor_map_encoder encode = find_tensor_map_encoder();
    CHECK(encode != nullptr);
    if (has_swizzle) {
        CHECK(tensor_map_of(encode, x, box, &map));
    } else {
        CHECK(encode(&map, 6, 4, data, ne, nb, box, ones, 0, 0, 0, 0) == 0);
    }
    return map;
}

typedef void (*example)(d_tensor_map, d_tensor_map, float *, int, int);
struct outcome {
    bool has_failed, is_wrong;
    std::string message;
};

// 128 x 64 results of 448 elements of k: more steps than stages.
static outcome run_example(example kernel, mistake f, uint64_t seed) {
    enum { M = 128, N = 64, K = 448 };
    sim_reset(1, 64 * MB, seed);
    const std::vector<__half> a = random_halfs(M * K, "a"), b = random_halfs(N * K, "b");
    __half *a_there = copied(a), *b_there = copied(b);
    float * y = copied(std::vector<float>(M * N, 12345.0f));
    const d_tensor_map ma = map_of(a_there, K, M, true), mb = map_of(b_there, K, N, f != WRONG_SWIZZLE);
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 1024 + STAGES * STAGE_BYTES) ==
          cudaSuccess);
    const cudaError_t launched = launch(kernel, dim3(M / TILE, N / TILE), dim3(256), 1024 + STAGES * STAGE_BYTES,
        nullptr, ma, mb, y, (int) M, K / STEP);
    outcome o = { cudaDeviceSynchronize() != cudaSuccess || launched != cudaSuccess, false, "" };
    o.message = sim_last_violation();
    CHECK((sim_violations() > 0) == o.has_failed);
    std::vector<float> got(M * N);
    if (!o.has_failed) { got = fetched(y, (size_t) (M * N)); }
    for (int i = 0; i < M * N && !o.has_failed; ++i) {
        double sum = 0.0;
        for (int k = 0; k < K; ++k) {
            sum += (double) __half2float(a[(size_t) (i % M * K + k)]) * __half2float(b[(size_t) (i / M * K + k)]);
        }
        o.is_wrong = o.is_wrong || !(fabs(got[(size_t) i] - sum) < 1e-4);
    }
    sim_reset(1, 64 * MB, 1); // also of what has failed
    CHECK(cudaFree(a_there) == cudaSuccess && cudaFree(b_there) == cudaSuccess && cudaFree(y) == cudaSuccess);
    return o;
}

TEST(example) {
    for (uint64_t seed = 0; seed < n_seeds(30); ++seed) {
        const outcome o = run_example(k_example<NONE>, NONE, seed);
        CHECK_MSG(!o.has_failed && !o.is_wrong, "seed %d: %s", (int) seed, o.message.c_str());
    }
    clean();
}

template <int... F> static std::vector<example> all_examples(std::integer_sequence<int, F...>) {
    return { k_example<F>... };
}

TEST(planted_faults) {
    static const struct {
        mistake f;
        const char *name, *message; // NULL: numbers are wrong, which is all that hardware would show
    } faults[] = { { WRONG_PHASE, "wrong phase", "where a copy has not landed" },
        { NO_EXPECT, "no expect", "where a copy has not landed" }, { EARLY_RELEASE, "early release", "still reads" },
        { WRONG_SWIZZLE, "wrong swizzle", nullptr }, { WRONG_DESCRIPTOR, "wrong descriptor", nullptr },
        { OVERWRITTEN, "overwritten operand", "overwritten before the wait" },
        { NEVER_RELEASED, "never released", "deadlock" }, { NO_WGMMA_FENCE, "no wgmma fence", "without d_wgmma_fence" },
        { TOUCHED_SUMS, "touched sums", "accumulators were written before the wait" },
        { NO_ASYNC_FENCE, "no async fence", "written without d_fence_async" },
        { EARLY_READ, "early read", "where a copy has not landed" }, { TOO_MANY_ARRIVALS, "too many arrivals", "" },
        { UNEQUAL_WARPS, "unequal warps", "other warps" },
        { NO_INIT_FENCE, "no fence of barriers", "without d_mbarrier_fence_init" } };
    const std::vector<example> kernels = all_examples(std::make_integer_sequence<int, N_FAULTS>());
    for (const auto & p : faults) {
        int n_said = 0;
        for (uint64_t seed = 1; seed <= n_seeds(12); ++seed) { // 0, the natural order, hides some
            const outcome o = run_example(kernels[p.f], p.f, seed);
            const bool is_said = p.message != nullptr && o.message.find(p.message) != std::string::npos;
            CHECK_MSG(o.has_failed || o.is_wrong, "%s, seed %d: not found", p.name, (int) seed);
            CHECK_MSG(p.message != nullptr || !o.has_failed, "%s, seed %d: %s", p.name, (int) seed, o.message.c_str());
            n_said += is_said;
        }
        CHECK_MSG(p.message == nullptr || n_said > 0, "%s: nobody said '%s'", p.name, p.message);
    }
    clean();
}

// Registers for two warpgroups, which a third one gives, or not enough of them: on hardware the second of the two waits
// for ever.
template <int GIVEN, int TAKEN> static __global__ void __launch_bounds__(384, 1) k_registers(int * y) {
#if D_SM90
    if (threadIdx.x >= 256) {
        d_setmaxnreg_dec<GIVEN>();
    } else {
        d_setmaxnreg_inc<TAKEN>();
    }
#endif
    if (threadIdx.x == 0) { *y = 1; }
}
TEST(registers_beyond_those_of_the_launch) {
    for (int is_wrong = 0; is_wrong < 2; ++is_wrong) {
        sim_reset(1, 64 * MB, 1);
        int * y = on_device<int>(1);
        const cudaError_t launched =
            launch(is_wrong ? k_registers<64, 224> : k_registers<56, 224>, dim3(3), dim3(384), 0, nullptr, y);
        const bool has_failed = cudaDeviceSynchronize() != cudaSuccess || launched != cudaSuccess;
        const std::string message = sim_last_violation();
        CHECK_MSG(has_failed == (is_wrong != 0), "%s", message.c_str());
        CHECK_MSG(
            !is_wrong || message.find("deadlock: 65536 registers are wanted by setmaxnreg and 64512 were launched") !=
                             std::string::npos,
            "%s", message.c_str());
        sim_reset(1, 64 * MB, 1);
        CHECK(cudaFree(y) == cudaSuccess);
    }
    clean();
}

TEST(deadlocks_say_who_waits_for_what) {
    const outcome o =
        run_example(all_examples(std::make_integer_sequence<int, N_FAULTS>())[NEVER_RELEASED], NEVER_RELEASED, 0);
    const char * parts[] = { "k_example<7>: deadlock; block ",
        "thread 128 waits for mbarrier at 40, parity 0 (0 phases over, 4 of 4 arrivals and 0 bytes missing)",
        "threads 0 to 127 wait for mbarrier at 16, parity 1 (1 phases over, 1 of 1 arrivals and 0 bytes missing)",
        "127 of 256 threads are over" };
    for (const char * part : parts) {
        CHECK_MSG(o.message.find(part) != std::string::npos, "'%s' is not in: %s", part, o.message.c_str());
    }
    clean();
}

// ---- every form of wgmma ----
// Operands as the host has laid them out, by the words of the section's comment: 32 bytes of k, rows of m or n.
enum layout { K_128, MN_128, PLAIN };
enum { OPERAND_BYTES = 32 * 1024 };

struct form {
    layout a, b;
    int n;
    bool in_registers, adds;
};

template <typename T, int H, bool TRANS_B, bool TRANS_A>
static __global__ void __launch_bounds__(128, 1)
    k_form(const form f, const char * a, const char * b, const uint32_t * registers, const float * c, float * y) {
    DYNAMIC_SHARED(char, shared);
    const int thread = (int) threadIdx.x;
    const uint32_t skip = 1024 - d_shared_address(shared) % 1024, at = d_shared_address(shared) + skip;
    for (int i = thread; i < OPERAND_BYTES; i += 128) {
        shared[skip + (uint32_t) i] = a[i];
        shared[skip + (uint32_t) (OPERAND_BYTES + i)] = b[i];
    }
    d_fence_async();
    __syncthreads();
    auto desc = [&](layout l, uint32_t from, int rows) {
        return l == K_128    ? d_desc_k_128(from)
               : l == MN_128 ? d_desc_mn_128(from, 2048)
                             : d_desc_plain(from, rows * 16);
    };
    const uint64_t db = desc(f.b, at + OPERAND_BYTES, f.n);
    float d[H];
    for (int i = 0; i < H; ++i) { d[i] = c[thread * H + i]; }
    d_wgmma_fence();
    if (f.in_registers) {
        d_wgmma_rs<TRANS_B>(T(), d, registers + 4 * thread, db, f.adds);
    } else {
        d_wgmma_ss<TRANS_B, TRANS_A>(T(), d, desc(f.a, at, 64), db, f.adds);
    }
    d_wgmma_commit();
    d_wgmma_wait<0>();
    d_wgmma_read(d);
    for (int i = 0; i < H; ++i) { y[thread * H + i] = d[i]; }
}

static uint32_t bits_of(__half, float v) { return __half_as_ushort(__float2half_rn(v)); }
static uint32_t bits_of(__nv_bfloat16, float v) { return __float_as_uint(v) >> 16; }
static uint32_t bits_of(float, float v) { return __float_as_uint(v); }

// Where element k of a row is.
static size_t place_of(layout l, int rows, int size, int row, int k) {
    const int byte = k * size;
    switch (l) {
        case K_128: return (size_t) (row * 128 + (byte / 16 ^ row % 8) * 16 + byte % 16);
        case MN_128: return (size_t) (row / 64 * 2048 + k * 128 + (row % 64 / 8 ^ k % 8) * 16 + row % 8 * 2);
        default: return (size_t) (byte / 16 * rows * 16 + row * 16 + byte % 16);
    }
}

template <typename T, int H, bool TRANS_B, bool TRANS_A> static void check_form(form f, uint64_t seed) {
    enum { SIZE = (int) sizeof(T), K = 32 / SIZE, N = 2 * H };
    sim_reset(1, 64 * MB, seed);
    struct rng r = rng_for("forms");
    f.n = N;
    std::vector<float> a(64 * K), b((size_t) (N * K)), c((size_t) (128 * H));
    for (auto * v : { &a, &b, &c }) {
        for (float & x : *v) { x = (float) ((int) (rng_u64(&r) % 255) - 127); } // exact in all types
    }
    std::vector<char> a_bytes(OPERAND_BYTES, (char) 0xff), b_bytes(OPERAND_BYTES, (char) 0xff);
    std::vector<uint32_t> registers(4 * 128, 0);
    for (int i = 0; i < 64 * K; ++i) {
        const uint32_t bits = bits_of(T(), a[(size_t) i]);
        memcpy(&a_bytes[place_of(f.a, 64, SIZE, i / K, i % K)], &bits, SIZE);
    }
    for (int i = 0; i < N * K; ++i) {
        const uint32_t bits = bits_of(T(), b[(size_t) i]);
        memcpy(&b_bytes[place_of(f.b, N, SIZE, i / K, i % K)], &bits, SIZE);
    }
    for (int t = 0; t < 128; ++t) { // PTX: a0, a1, ... of a lane
        for (int e = 0; e < (SIZE == 4 ? 4 : 8); ++e) {
            const int g = t / 32 * 16 + t % 32 / 4, q = t % 4;
            const int row = SIZE == 4 ? g + 8 * (e & 1) : g + 8 * (e >> 1 & 1),
                      k = SIZE == 4 ? q + 4 * (e >> 1) : 2 * q + (e & 1) + 8 * (e >> 2);
            registers[(size_t) (4 * t + (SIZE == 4 ? e : e / 2))] |= bits_of(T(), a[(size_t) (row * K + k)])
                                                                     << (SIZE == 4 ? 0 : 16 * (e & 1));
        }
    }
    char *a_there = copied(a_bytes), *b_there = copied(b_bytes);
    uint32_t * r_there = copied(registers);
    float *c_there = copied(c), *y = copied(c);
    const size_t shared = 1024 + 2 * OPERAND_BYTES;
    CHECK(cudaFuncSetAttribute(k_form<T, H, TRANS_B, TRANS_A>, cudaFuncAttributeMaxDynamicSharedMemorySize,
              (int) shared) == cudaSuccess);
    CHECK(launch(k_form<T, H, TRANS_B, TRANS_A>, dim3(1), dim3(128), shared, nullptr, f, a_there, b_there, r_there,
              c_there, y) == cudaSuccess);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    const std::vector<float> got = fetched(y, c.size());
    int n_wrong = 0;
    for (int i = 0; i < 128 * H; ++i) {
        const int t = i / H, e = i % H, row = t / 32 * 16 + t % 32 / 4 + (e & 2) * 4,
                  column = e / 4 * 8 + t % 4 * 2 + (e & 1);
        double sum = f.adds ? (double) c[(size_t) i] : 0.0;
        for (int k = 0; k < K; ++k) { sum += (double) a[(size_t) (row * K + k)] * b[(size_t) (column * K + k)]; }
        n_wrong += got[(size_t) i] != (float) sum;
    }
    CHECK_MSG(n_wrong == 0, "%d of %d results; %d columns, layouts %d and %d, registers %d", n_wrong, 128 * H, f.n, f.a,
        f.b, f.in_registers);
    for (void * p : { (void *) a_there, (void *) b_there, (void *) r_there, (void *) c_there, (void *) y }) {
        CHECK(cudaFree(p) == cudaSuccess);
    }
    CHECK_EQ_I(sim_violations(), 0);
}

template <typename T, int H> static void check_forms_of(uint64_t seed) {
    for (bool adds : { false, true }) {
        for (layout b : { K_128, PLAIN }) {
            check_form<T, H, false, false>(form{ K_128, b, 0, true, adds }, seed);
            check_form<T, H, false, false>(form{ b, K_128, 0, false, adds }, seed);
        }
        if constexpr (sizeof(T) == 2) {
            check_form<T, H, true, false>(form{ K_128, MN_128, 0, true, adds }, seed);
            check_form<T, H, true, false>(form{ PLAIN, MN_128, 0, false, adds }, seed);
            check_form<T, H, true, true>(form{ MN_128, MN_128, 0, false, adds }, seed);
            check_form<T, H, false, true>(form{ MN_128, K_128, 0, false, adds }, seed);
        }
    }
}

TEST(forms_of_wgmma) {
    check_forms_of<__half, 8>(1);
    check_forms_of<__half, 36>(2);
    check_forms_of<__half, 128>(3);
    check_forms_of<__nv_bfloat16, 40>(4);
    check_forms_of<float, 48>(5);
    clean();
}

// ---- copies of boxes ----
struct boxes {
    int x, y, z; // where
    int n;       // bytes
};

static __global__ void k_boxes(const D_GRID_CONSTANT d_tensor_map from, const boxes p, char * seen) {
    DYNAMIC_SHARED(char, shared);
    D_SHARED_MBARRIERS(bar_, 1);
    const uint32_t skip = 1024 - d_shared_address(shared) % 1024, at = d_shared_address(shared) + skip,
                   bar = d_shared_address(bar_);
    if (threadIdx.x == 0) {
        d_mbarrier_init(bar, 1);
        d_mbarrier_fence_init();
        d_mbarrier_arrive_expect(bar, p.n);
        d_tma_load_4d(at, from, p.x, p.y, p.z, 0, bar);
    }
    __syncthreads();
    d_mbarrier_wait(bar, 0);
    for (int i = (int) threadIdx.x; i < p.n; i += 32) { seen[i] = shared[skip + (uint32_t) i]; }
}

// Boxes of 2 (or 4) x 8 x n_z pieces of 16 bytes that reach over every end; type: of tensor maps. Elements inside the
// tensor arrive, all others are zeros.
static void copy_boxes(int type, int size, int swizzle, int n_z, uint64_t seed) {
    enum { NE1 = 11, NE2 = 3 };
    sim_reset(1, 64 * MB, seed);
    const int ne0 = 96 / size + 1, row = 128, in_box = (swizzle == 0 ? 32 : 16 << swizzle) / size;
    struct rng r = rng_for("boxes");
    std::vector<char> data((size_t) (row * NE1 * NE2));
    for (char & c : data) { c = (char) (rng_u64(&r) & 63); } // floats of no infinities
    char * from = copied(data);
    const uint64_t ne[4] = { (uint64_t) ne0, NE1, NE2, 1 },
                   nb[3] = { (uint64_t) row, (uint64_t) row * NE1, (uint64_t) row * NE1 * NE2 };
    const uint32_t box[4] = { (uint32_t) in_box, 8, (uint32_t) n_z, 1 }, ones[4] = { 1, 1, 1, 1 };
    const tensor_map_encoder encode = find_tensor_map_encoder();
    d_tensor_map map;
    CHECK(encode(&map, type, 4, from, ne, nb, box, ones, 0, swizzle, 0, 0) == 0);
    boxes p = { (int) (rng_u64(&r) % 5) - 3, (int) (rng_u64(&r) % 14) - 4, (int) (rng_u64(&r) % 4) - 1, 0 };
    if (size == 1) { p.x *= 16; }
    p.n = in_box * size * 8 * n_z;
    char * seen = copied(std::vector<char>((size_t) p.n, 77));
    CHECK(launch(k_boxes, dim3(1), dim3(32), 16384, nullptr, map, p, seen) == cudaSuccess);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    const std::vector<char> got = fetched(seen, (size_t) p.n);
    for (int i = 0; i < p.n; ++i) {
        const int wide = in_box * size, x = p.x + i % wide / size, y = p.y + i / wide % 8, z = p.z + i / wide / 8;
        const bool is_in = x >= 0 && x < ne0 && y >= 0 && y < NE1 && z >= 0 && z < NE2;
        const size_t at = is_in ? (size_t) (z * NE1 * row + y * row + x * size + i % size) : 0;
        const int piece = swizzle == 0 ? i / 16 : i / 16 ^ (i / 128 & ((1 << swizzle) - 1));
        CHECK_MSG(got[(size_t) (16 * piece + i % 16)] == (is_in ? data[at] : 0), "type %d, swizzle %d, byte %d", type,
            swizzle, i);
    }
    CHECK(cudaFree(from) == cudaSuccess && cudaFree(seen) == cudaSuccess);
    CHECK_EQ_I(sim_violations(), 0);
}

TEST(boxes) {
    for (uint64_t seed = 0; seed < n_seeds(20); ++seed) {
        for (int swizzle = 0; swizzle < 4; ++swizzle) {
            copy_boxes(0, 1, swizzle, 1, seed);
            copy_boxes(6, 2, swizzle, 2, seed);
            copy_boxes(7, 4, swizzle, 2, seed);
        }
    }
    clean();
}

// Prefetches: the tensor map must be one, and of the dimensions that the instruction has.
static __global__ void k_prefetch(const D_GRID_CONSTANT d_tensor_map map, int has_box) {
    if (has_box != 0) {
        d_tma_prefetch_4d(map, 0, 64, 0, 0);
    } else {
        d_tma_prefetch_map(map);
    }
}
TEST(prefetches) {
    static const struct {
        uint32_t rank; // of the map; 0: none is made
        int has_box;
        const char * message;
    } cases[] = { { 4, 0, nullptr }, { 4, 1, nullptr }, { 0, 0, "a prefetch of a tensor map that" },
        { 0, 1, "a tensor map that" }, { 3, 1, "a copy of 4 dimensions with a tensor map of 3" } };
    const uint64_t ne[4] = { 64, 128, 1, 1 }, nb[3] = { 128, 128 * 128, 128 * 128 };
    const uint32_t box[4] = { 64, 64, 1, 1 }, ones[4] = { 1, 1, 1, 1 };
    for (const auto & c : cases) {
        enum { FLOAT16 = 6, SWIZZLE_128B = 3 };
        sim_reset(1, 64 * MB, 1);
        char * data = copied(std::vector<char>(128 * 128));
        d_tensor_map map = {};
        const tensor_map_encoder encode = find_tensor_map_encoder();
        const bool is_made =
            c.rank > 0 && encode(&map, FLOAT16, c.rank, data, ne, nb, box, ones, 0, SWIZZLE_128B, 0, 0) == 0;
        CHECK(is_made == (c.rank > 0));
        const cudaError_t launched = launch(k_prefetch, dim3(1), dim3(1), 0, nullptr, map, c.has_box);
        const bool has_failed = cudaDeviceSynchronize() != cudaSuccess || launched != cudaSuccess;
        const std::string message = sim_last_violation();
        CHECK_MSG(has_failed == (c.message != nullptr), "case %d: %s", (int) (&c - cases), message.c_str());
        const bool is_said = c.message == nullptr || message.find(c.message) != std::string::npos;
        CHECK_MSG(is_said, "'%s' is not in: %s", c.message, message.c_str());
        sim_reset(1, 64 * MB, 1);
        CHECK(cudaFree(data) == cudaSuccess);
    }
    clean();
}

TEST(tensor_maps_that_are_refused) {
    char * data = on_device<char>(1 << 16);
    const tensor_map_encoder encode = find_tensor_map_encoder();
    d_tensor_map map;
    const struct {
        int type, rank, shift;
        uint64_t ne0, nb0;
        uint32_t box0, box1, step;
        int swizzle, error;
    } cases[] = { { 6, 2, 0, 64, 128, 64, 64, 1, 3, 0 }, { 6, 2, 8, 64, 128, 64, 64, 1, 3, 1 },
        { 6, 2, 0, 64, 136, 64, 64, 1, 3, 1 }, { 6, 2, 0, 64, 128, 72, 64, 1, 3, 1 },
        { 6, 2, 0, 64, 128, 64, 257, 1, 3, 1 }, { 6, 2, 0, 64, 128, 60, 64, 1, 3, 1 },
        { 6, 2, 0, 0, 128, 64, 64, 1, 3, 1 }, { 6, 2, 0, 64, 128, 64, 0, 1, 3, 1 },
        { 6, 2, 0, 64, 128, 64, 64, 9, 3, 1 }, { 6, 2, 0, 64, 128, 64, 64, 1, 2, 1 },
        { 6, 6, 0, 64, 128, 64, 64, 1, 3, 1 }, { 99, 2, 0, 64, 128, 64, 64, 1, 3, 1 },
        { 6, 2, 0, 64, (uint64_t) 1 << 40, 64, 64, 1, 3, 1 } };
    for (const auto & c : cases) {
        const uint64_t ne[6] = { c.ne0, 16, 1, 1, 1, 1 }, nb[5] = { c.nb0, 2048, 2048, 2048, 2048 };
        const uint32_t box[6] = { c.box0, c.box1, 1, 1, 1, 1 }, steps[6] = { c.step, 1, 1, 1, 1, 1 };
        const int got = encode(&map, c.type, (uint32_t) c.rank, data + c.shift, ne, nb, box, steps, 0, c.swizzle, 0, 0);
        CHECK_MSG(got == c.error, "case %d: %d", (int) (&c - cases), got);
    }
    CHECK(cudaFree(data) == cudaSuccess);
    clean();
}

// ---- two blocks of a cluster: each fetches half of what both read, and stores wait for their shared memory ----
enum cluster_mistake { NO_MISTAKE, ENDS_EARLY, REUSES_EARLY, NO_WAIT, NOT_THERE, N_CLUSTER_MISTAKES };

template <int MISTAKE> static __global__ void D_CLUSTER(2) k_cluster(const char * from, char * to, int n_rounds) {
    D_IN_CLUSTER(2);
    DYNAMIC_SHARED(char, shared);
    D_SHARED_MBARRIERS(bars, 2);
    const int thread = (int) threadIdx.x, rank = d_cluster_rank();
    const uint32_t at = d_shared_address(shared), full = d_shared_address(bars), empty = full + 8;
    if (thread == 0) {
        d_mbarrier_init(full, 1);
        d_mbarrier_init(empty, 2); // both blocks
        d_mbarrier_fence_init();
    }
    d_cluster_sync();
    for (int i = 0; i < n_rounds; ++i) {
        const char * next = from + ((int64_t) (blockIdx.x / 2) * n_rounds + i) * 512;
        if (thread == 0) {
            d_mbarrier_wait(empty, (uint32_t) (i & 1) ^ 1u);
            d_mbarrier_arrive_expect(full, 512);
            d_tma_load_multicast(
                at + (uint32_t) rank * 256, next + rank * 256, 256, full, MISTAKE == NOT_THERE ? 7 : 3);
        }
        d_mbarrier_wait(full, (uint32_t) (i & 1));
        const char v = shared[thread];
        __syncthreads(); // all have read
        if (thread < 2) { d_mbarrier_arrive_at(empty, thread); }
        if (thread == 0 && i > 0 && MISTAKE != REUSES_EARLY) { d_tma_wait_read<0>(); }
        __syncthreads();
        shared[512 + thread] = v;
        d_fence_async();
        __syncthreads();
        if (thread == 0) {
            d_tma_store(to + ((int64_t) blockIdx.x * n_rounds + i) * 512, at + 512, 512);
            d_tma_commit();
        }
    }
    if (thread == 0 && MISTAKE != NO_WAIT) { d_tma_wait_read<0>(); }
    if (MISTAKE != ENDS_EARLY || rank == 0) { d_cluster_sync(); }
}

typedef void (*cluster_kernel)(const char *, char *, int);
static outcome run_cluster(cluster_kernel kernel, uint64_t seed) {
    enum { CLUSTERS = 3, ROUNDS = 5, N = CLUSTERS * ROUNDS * 512 };
    sim_reset(1, 64 * MB, seed);
    struct rng r = rng_for("cluster");
    std::vector<char> data(N);
    for (char & c : data) { c = (char) rng_u64(&r); }
    char *from = copied(data), *to = copied(std::vector<char>(2 * N, 1));
    const cudaError_t launched =
        launch(kernel, dim3(2 * CLUSTERS), dim3(512), 1024, nullptr, (const char *) from, to, (int) ROUNDS);
    outcome o = { cudaDeviceSynchronize() != cudaSuccess || launched != cudaSuccess, false, "" };
    o.message = sim_last_violation();
    const std::vector<char> got = o.has_failed ? std::vector<char>() : fetched(to, 2 * N);
    for (int i = 0; i < 2 * N && !o.has_failed; ++i) {
        const int block = i / (ROUNDS * 512);
        o.is_wrong = o.is_wrong || got[(size_t) i] != data[(size_t) (block / 2 * ROUNDS * 512 + i % (ROUNDS * 512))];
    }
    sim_reset(1, 64 * MB, 1);
    CHECK(cudaFree(from) == cudaSuccess && cudaFree(to) == cudaSuccess);
    return o;
}

// ---- clusters whose size the launch says: each block writes into the shared memory of the next ----
enum put_mistake { PUTS_RIGHT, PUTS_TOO_LATE, PUTS_TOO_FAR, PUTS_PAST_THE_END, IS_ANOTHER_SIZE, N_PUT_MISTAKES };

template <int MISTAKE> static __global__ void k_cluster_put(float * to, int n_blocks) {
    D_IN_CLUSTER(MISTAKE == IS_ANOTHER_SIZE ? n_blocks / 2 : n_blocks);
    DYNAMIC_SHARED(float4, shared);
    const int thread = (int) threadIdx.x, rank = d_cluster_rank(), next = rank + 1 < n_blocks ? rank + 1 : 0;
    d_cluster_sync();
    if (MISTAKE == PUTS_TOO_LATE && rank == 1) { d_cluster_sync(); }
    const float v = (float) (blockIdx.x * 64 + threadIdx.x);
    d_cluster_put(d_shared_address(shared + thread + (MISTAKE == PUTS_PAST_THE_END ? 1024 : 0)),
        MISTAKE == PUTS_TOO_FAR ? n_blocks : next, make_float4(v, v + 0.25f, v + 0.5f, v + 0.75f));
    if (MISTAKE != PUTS_TOO_LATE || rank != 1) { d_cluster_sync(); }
    to[blockIdx.x * 64 + threadIdx.x] = shared[thread].z;
}

static outcome run_cluster_put(void (*kernel)(float *, int), int size, uint64_t seed) {
    enum { CLUSTERS = 2 };
    sim_reset(1, 64 * MB, seed);
    const int n = CLUSTERS * size * 64;
    float * to = copied(std::vector<float>((size_t) n, -1.0f));
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = (unsigned) size, attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned) (CLUSTERS * size));
    config.blockDim = dim3(64);
    config.dynamicSmemBytes = 64 * sizeof(float4);
    config.attrs = &attribute;
    config.numAttrs = 1;
    const cudaError_t launched = cudaLaunchKernelEx(&config, kernel, to, size);
    outcome o = { cudaDeviceSynchronize() != cudaSuccess || launched != cudaSuccess, false, "" };
    o.message = sim_last_violation();
    const std::vector<float> got = o.has_failed ? std::vector<float>() : fetched(to, (size_t) n);
    for (int i = 0; i < n && !o.has_failed; ++i) {
        const int block = i / 64, from = block % size > 0 ? block - 1 : block + size - 1;
        o.is_wrong = o.is_wrong || got[(size_t) i] != (float) (from * 64 + i % 64) + 0.5f;
    }
    sim_reset(1, 64 * MB, 1);
    CHECK(cudaFree(to) == cudaSuccess);
    return o;
}

TEST(clusters_of_the_launch) {
    static const struct {
        void (*kernel)(float *, int);
        const char * message;
    } cases[] = { { k_cluster_put<PUTS_RIGHT>, nullptr }, { k_cluster_put<PUTS_TOO_FAR>, "writes to block" },
        { k_cluster_put<PUTS_PAST_THE_END>, "not in this block's dynamic shared memory" },
        { k_cluster_put<IS_ANOTHER_SIZE>, "launched with clusters of" } };
    static const int sizes[] = { 2, 3, 8 };
    for (const auto & c : cases) {
        for (int size : sizes) {
            if (&c == cases + 3 && size == 3) { continue; } // half of it is no size
            for (uint64_t seed = 0; seed < n_seeds(5); ++seed) {
                const outcome o = run_cluster_put(c.kernel, size, seed);
                CHECK_MSG(!o.is_wrong && o.has_failed == (c.message != nullptr), "case %d, clusters of %d, seed %d: %s",
                    (int) (&c - cases), size, (int) seed, o.message.c_str());
                CHECK_MSG(c.message == nullptr || o.message.find(c.message) != std::string::npos, "'%s' is not in: %s",
                    c.message, o.message.c_str());
            }
        }
    }
    int n_wrong = 0; // threads of a block that reads before the previous block has written
    for (uint64_t seed = 0; seed < n_seeds(10); ++seed) {
        const outcome o = run_cluster_put(k_cluster_put<PUTS_TOO_LATE>, 4, seed);
        n_wrong += o.is_wrong || o.has_failed;
    }
    CHECK(n_wrong > 0);
    // a size that the device has not
    CHECK(run_cluster_put(k_cluster_put<PUTS_RIGHT>, 9, 0).has_failed);
    (void) cudaGetLastError();
    clean();
}

TEST(clusters) {
    static const struct {
        cluster_kernel kernel;
        const char * message;
    } cases[] = { { k_cluster<NO_MISTAKE>, nullptr }, { k_cluster<ENDS_EARLY>, "" },
        { k_cluster<REUSES_EARLY>, "was written before the store" },
        { k_cluster<NO_WAIT>, "ends before its stores have read" },
        { k_cluster<NOT_THERE>, "a copy to blocks 0x7 of a cluster of 2" } };
    for (const auto & c : cases) {
        for (uint64_t seed = 0; seed < n_seeds(10); ++seed) {
            const outcome o = run_cluster(c.kernel, seed);
            CHECK_MSG(!o.is_wrong && o.has_failed == (c.message != nullptr), "case %d, seed %d: %s", (int) (&c - cases),
                (int) seed, o.message.c_str());
            CHECK_MSG(c.message == nullptr || o.message.find(c.message) != std::string::npos, "'%s' is not in: %s",
                c.message, o.message.c_str());
        }
    }
    clean();
}
