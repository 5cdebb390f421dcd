// Branches of a graph on forked streams (gcuda_cuda_params.concurrency): equal bits in any order of the streams, node
// by node, as a plan and as a CUDA graph. Graphs for which it pays and others. Each CUDA call fails once.
#define _GNU_SOURCE 1 // setenv
#include "sim-test.h"

#include "sched-test.h"

#define MEMORY (16 * MB) // cuBLAS's large workspace does not fit: filling it with NaN would be most of the time
enum { N_LAYERS = 2, N_TOKENS = 3, N_RUNS = 3, OUT = NET_D * N_TOKENS };

static bool is_concurrent = true; // the allocators of the tests
static int main_device = 0;       // where they and the backends are
static bool is_strict = false;    // the backends: only fusion that gives the bits of its nodes

static gcuda_backend_t backend_with(enum gcuda_cuda_switch concurrency, enum gcuda_cuda_switch graphs) {
    struct gcuda_cuda_params p;
    memset(&p, 0, sizeof p);
    p.device = main_device;
    p.pool = GCUDA_CUDA_POOL_BEST_FIT;
    p.concurrency = concurrency;
    p.graphs = graphs;
    p.strict = is_strict;
    return gcuda_backend_cuda_init_params(&p);
}

static uint64_t n_concurrent(gcuda_backend_t backend) {
    struct gcuda_cuda_plan_stats s;
    CHECK_OK(gcuda_backend_cuda_get_plan_stats(backend, &s));
    return s.n_concurrent;
}

static gcuda_backend_buffer_type_t on_gpu(int layer, void * user) {
    (void) layer, (void) user;
    return gcuda_backend_cuda_buffer_type(main_device);
}

// Runs of a network on one backend, placed by an allocator that gives memory of dead tensors to others. The caches are
// filled run after run, so that a write that comes too late is seen by the next.
static gcuda_status run_net(struct net * net, gcuda_backend_t backend, float * out) {
    const int64_t n_out = net->d * N_TOKENS;
    gcuda_gallocr_t galloc = gcuda_gallocr_new(gcuda_backend_cuda_buffer_type(main_device));
    gcuda_gallocr_set_concurrent(galloc, is_concurrent);
    gcuda_status st = galloc ? gcuda_gallocr_alloc_graph(galloc, net->graph) : GCUDA_STATUS_ALLOC_FAILED;
    for (int run = 0; run < N_RUNS && st == GCUDA_STATUS_SUCCESS; ++run) {
        st = net_set(net, (uint64_t) run);
        if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_backend_graph_compute(backend, net->graph); }
        if (st == GCUDA_STATUS_SUCCESS) {
            st = gcuda_backend_tensor_get(net->out, out + run * n_out, 0, gcuda_nbytes(net->out));
        }
    }
    gcuda_gallocr_free(galloc);
    return st;
}

static gcuda_status net_once(enum net_kind kind, gcuda_backend_t backend,
    gcuda_backend_buffer_type_t (*place)(int layer, void * user), float * out) {
    struct net net;
    gcuda_status st = GCUDA_STATUS_ALLOC_FAILED;
    if (net_begin(&net, kind, N_LAYERS, N_TOKENS, GCUDA_TYPE_F32, place, NULL)) { st = run_net(&net, backend, out); }
    net_end(&net);
    return st;
}

static uint64_t n_seeds(void) {
    const char * n = getenv("GCUDA_TEST_SEEDS");
    return n ? strtoull(n, NULL, 10) : test_full() ? 20 : 3;
}

static void check_net(enum net_kind kind) {
    static float want[N_RUNS * OUT], got[N_RUNS * OUT];
    fresh(1, MEMORY, 1);
    gcuda_backend_t plain = backend_with(GCUDA_CUDA_OFF, GCUDA_CUDA_OFF);
    REQUIRE(plain != NULL);
    CHECK_OK(net_once(kind, plain, on_gpu, want));
    CHECK_EQ_I(n_concurrent(plain), 0);
    gcuda_backend_free(plain);
    clean();
    for (uint64_t seed = 1; seed <= 2 * n_seeds() && test_all.n_bad_checks == 0; ++seed) {
        fresh(1, MEMORY, seed);
        gcuda_backend_t backend = backend_with(GCUDA_CUDA_ON, seed % 2 ? GCUDA_CUDA_ON : GCUDA_CUDA_OFF);
        REQUIRE(backend != NULL);
        memset(got, 0, sizeof got);
        CHECK_OK(net_once(kind, backend, on_gpu, got));
        CHECK_MSG(memcmp(got, want, sizeof got) == 0, "order %d: error %g", (int) seed, nmse(got, want, N_RUNS * OUT));
        CHECK(n_concurrent(backend) > 0);
        struct gcuda_cuda_plan_stats stats;
        CHECK_OK(gcuda_backend_cuda_get_plan_stats(backend, &stats));
        CHECK_EQ_I(stats.n_graph_launches, seed % 2 ? N_RUNS - 1 : 0); // the forks are in the CUDA graph
        gcuda_backend_free(backend);
        clean();
    }
}

TEST(transformer) { check_net(NET_TRANSFORMER); }
TEST(experts) { check_net(NET_EXPERTS); }

// Weights over all GPUs, of which the last is the main one; in the second layer unevenly.
static gcuda_backend_buffer_type_t on_all(int layer, void * user) {
    static const float shares[2][4] = { { 1, 1, 1, 1 }, { 1, 1, 2, 1 } };
    (void) user;
    return gcuda_backend_cuda_split_buffer_type(main_device, shares[layer % 2], main_device + 1);
}

static gcuda_status run_split(enum net_kind kind, uint64_t seed, bool is_split, float * out) {
    const bool graphs = seed % 2 == 1, is_direct = !is_split || seed % 3 == 0;
    fresh(main_device + 1, 2 * MEMORY, seed);
    for (int i = 0; i < 16; ++i) { // directly, by the driver, by gcuda
        if (i / 4 != i % 4 && i / 4 <= main_device && i % 4 <= main_device) {
            sim_peer(i / 4, i % 4, 1 + (int) (seed % 3));
        }
    }
    gcuda_backend_t backend =
        backend_with(seed % 4 < 2 ? GCUDA_CUDA_ON : GCUDA_CUDA_OFF, graphs ? GCUDA_CUDA_ON : GCUDA_CUDA_OFF);
    const gcuda_status st = backend ? net_once(kind, backend, is_split ? on_all : on_gpu, out) : GCUDA_STATUS_FAILED;
    struct gcuda_cuda_plan_stats stats;
    CHECK_OK(gcuda_backend_cuda_get_plan_stats(backend, &stats));
    // through the host is no part of a CUDA graph
    CHECK_EQ_I(stats.n_graph_launches, graphs && is_direct ? N_RUNS - 1 : 0);
    gcuda_backend_free(backend);
    clean();
    return st;
}

// The bits of whole weights, but with bound > 0 (see check_dealt in test-sched.c), and in every order the same.
static void check_split(enum net_kind kind, double bound) {
    static float whole[NET_MAX_WIDE * N_RUNS * OUT], first[NET_MAX_WIDE * N_RUNS * OUT],
        got[NET_MAX_WIDE * N_RUNS * OUT];
    net_wide = NET_MAX_WIDE, is_strict = true;
    for (main_device = 1; main_device < 4 && test_all.n_bad_checks == 0; main_device += 2) {
        CHECK_OK(run_split(kind, 2, false, whole));
        CHECK_OK(run_split(kind, 3, true, first));
        const double error = nmse(first, whole, NET_MAX_WIDE * N_RUNS * OUT);
        CHECK_MSG(bound > 0.0 ? error < bound : error == 0.0, "%d GPUs, not as with whole weights: error %g",
            main_device + 1, error);
        for (uint64_t seed = 4; seed <= 3 + n_seeds() && test_all.n_bad_checks == 0; ++seed) {
            CHECK_OK(run_split(kind, seed, true, got));
            CHECK_MSG(memcmp(got, first, sizeof got) == 0, "%d GPUs, order %d: error %g", main_device + 1, (int) seed,
                nmse(got, first, NET_MAX_WIDE * N_RUNS * OUT));
        }
    }
    net_wide = 1, is_strict = false, main_device = 0;
}

TEST(split_transformer) { check_split(NET_TRANSFORMER, 0.0); }
TEST(split_experts) { check_split(NET_EXPERTS, 1e-8); }

// Through a scheduler, which keeps the memory of branches apart by itself; two backends, one device each, and the CPU.
static gcuda_backend_buffer_type_t on_two(int layer, void * user) {
    (void) user;
    return gcuda_backend_cuda_buffer_type(layer % 2);
}

static gcuda_status run_sched(enum net_kind kind, gcuda_backend_t * backends, float * out) {
    struct net net;
    gcuda_status st = GCUDA_STATUS_ALLOC_FAILED;
    gcuda_backend_sched_t sched = gcuda_backend_sched_new(backends, NULL, 3, 64, true, true);
    if (sched != NULL && net_begin(&net, kind, N_LAYERS, N_TOKENS, GCUDA_TYPE_F32, on_two, NULL)) {
        st = gcuda_backend_sched_alloc_graph(sched, net.graph);
        for (int run = 0; run < N_RUNS && st == GCUDA_STATUS_SUCCESS; ++run) {
            st = net_set(&net, (uint64_t) run);
            if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_backend_sched_graph_compute(sched, net.graph); }
            if (st == GCUDA_STATUS_SUCCESS) {
                st = gcuda_backend_tensor_get(net.out, out + run * OUT, 0, OUT * sizeof *out);
            }
        }
        net_end(&net);
    }
    gcuda_backend_sched_free(sched);
    return st;
}

TEST(through_a_scheduler) {
    static float want[N_RUNS * OUT], got[N_RUNS * OUT];
    for (int kind = 0; kind < 2; ++kind) {
        for (uint64_t seed = 0; seed <= 2 * n_seeds() && test_all.n_bad_checks == 0; ++seed) {
            fresh(2, MEMORY, seed + 1);
            gcuda_backend_t b[3] = { NULL, NULL, gcuda_backend_cpu_init() };
            for (int i = 0; i < 2; ++i) {
                struct gcuda_cuda_params p;
                memset(&p, 0, sizeof p);
                p.device = i, p.pool = GCUDA_CUDA_POOL_BEST_FIT;
                p.concurrency = seed > 0 ? GCUDA_CUDA_ON : GCUDA_CUDA_OFF;
                p.graphs = seed % 2 ? GCUDA_CUDA_ON : GCUDA_CUDA_OFF;
                b[i] = gcuda_backend_cuda_init_params(&p);
            }
            REQUIRE(b[0] != NULL && b[1] != NULL && b[2] != NULL);
            CHECK_OK(run_sched((enum net_kind) kind, b, seed > 0 ? got : want));
            CHECK_MSG(seed == 0 || memcmp(got, want, sizeof got) == 0, "order %d: error %g", (int) seed,
                nmse(got, want, N_RUNS * OUT));
            for (int i = 0; i < 2; ++i) { CHECK((n_concurrent(b[i]) > 0) == (seed > 0)); }
            for (int i = 0; i < 3; ++i) { gcuda_backend_free(b[i]); }
            clean();
        }
    }
}

// Towers of different heights from one tensor to one sum, of which some write in place, and one reads two others.
static struct gcuda_tensor * towers(struct gcuda_context * ctx, struct gcuda_tensor * x, int n, int height) {
    struct gcuda_tensor *base = gcuda_rms_norm(ctx, x, 1e-5f), *sum = NULL, *before = NULL;
    for (int i = 0; i < n; ++i) {
        struct gcuda_tensor * t = gcuda_soft_max(ctx, gcuda_scale(ctx, base, 0.5f + (float) i));
        for (int k = 0; k < height + i % 3; ++k) {
            t = i % 2 ? gcuda_scale_inplace(ctx, t, 1.25f) : gcuda_norm(ctx, t, 1e-5f);
        }
        if (i % 3 == 2) { t = gcuda_add(ctx, t, before); }
        before = t;
        sum = sum ? gcuda_add(ctx, sum, t) : t;
    }
    return sum;
}

static void run_towers(gcuda_backend_t backend, int n, int64_t width, float * out, int n_out) {
    const struct gcuda_init_params params = { 0, NULL, true };
    struct gcuda_context * ctx = gcuda_init(params);
    struct gcuda_tensor * x = gcuda_new_tensor_2d(ctx, GCUDA_TYPE_F32, width, 4);
    gcuda_set_input(x);
    struct gcuda_tensor * y = towers(ctx, towers(ctx, x, n, 2), n, 1);
    gcuda_set_output(y);
    struct gcuda_cgraph * g = gcuda_new_graph(ctx);
    gcuda_gallocr_t galloc = gcuda_gallocr_new(gcuda_backend_cuda_buffer_type(0));
    gcuda_gallocr_set_concurrent(galloc, is_concurrent);
    CHECK_OK(gcuda_build_forward_expand(g, y));
    CHECK_OK(gcuda_gallocr_alloc_graph(galloc, g));
    for (int run = 0; run < 3; ++run) {
        float * values = (float *) malloc((size_t) width * 4 * sizeof *values);
        for (int64_t i = 0; i < width * 4; ++i) { values[i] = (float) ((i * 7 + run) % 13) - 6.0f; }
        CHECK_OK(gcuda_backend_tensor_set(x, values, 0, gcuda_nbytes(x)));
        CHECK_OK(gcuda_backend_graph_compute(backend, g));
        CHECK_OK(gcuda_backend_tensor_get(y, out + run * n_out, 0, (size_t) n_out * sizeof *out));
        free(values);
    }
    gcuda_gallocr_free(galloc);
    gcuda_free(ctx);
}

// Also more branches than lanes, and more steps than a region has.
TEST(towers_of_any_number) {
    static const int counts[] = { 1, 2, 3, 5, 9, 30 };
    float want[3 * 64], got[3 * 64];
    for (int i = 0; i < 6; ++i) {
        fresh(1, MEMORY, 1);
        gcuda_backend_t plain = backend_with(GCUDA_CUDA_OFF, GCUDA_CUDA_OFF);
        run_towers(plain, counts[i], 64, want, 64);
        gcuda_backend_free(plain);
        clean();
        for (uint64_t seed = 1; seed <= 2 * n_seeds(); ++seed) {
            fresh(1, MEMORY, seed);
            gcuda_backend_t backend = backend_with(GCUDA_CUDA_ON, seed % 2 ? GCUDA_CUDA_ON : GCUDA_CUDA_OFF);
            run_towers(backend, counts[i], 64, got, 64);
            CHECK_MSG(memcmp(got, want, sizeof got) == 0, "%d towers, order %d: error %g", counts[i], (int) seed,
                nmse(got, want, 3 * 64));
            CHECK_MSG((n_concurrent(backend) > 0) == (counts[i] > 1), "%d towers: %d launches beside", counts[i],
                (int) n_concurrent(backend));
            gcuda_backend_free(backend);
            clean();
        }
    }
}

static void plan_towers(gcuda_backend_t backend, int n, int64_t width) {
    struct place p = place_begin();
    struct gcuda_tensor * y = towers(p.ctx, gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, width, 4), n, 1);
    struct gcuda_cgraph * g = gcuda_new_graph(p.ctx);
    CHECK_OK(gcuda_build_forward_expand(g, y));
    CHECK(place_alloc(&p, backend));
    gcuda_backend_graph_plan_t plan = gcuda_backend_graph_plan_create(backend, g);
    CHECK(plan != NULL);
    gcuda_backend_graph_plan_free(backend, plan);
    place_end(&p);
}

// Memory of one branch that the next one gets: fewer branches, and the right order all the same.
TEST(an_allocator_that_does_not_know) {
    float want[3 * 64], got[3 * 64];
    is_concurrent = false;
    for (uint64_t seed = 0; seed <= 2 * n_seeds(); ++seed) {
        fresh(1, MEMORY, seed + 1);
        gcuda_backend_t backend =
            backend_with(seed ? GCUDA_CUDA_ON : GCUDA_CUDA_OFF, seed % 2 ? GCUDA_CUDA_ON : GCUDA_CUDA_OFF);
        run_towers(backend, 9, 64, seed ? got : want, 64);
        CHECK_MSG(
            seed == 0 || memcmp(got, want, sizeof got) == 0, "order %d: error %g", (int) seed, nmse(got, want, 3 * 64));
        gcuda_backend_free(backend);
        clean();
    }
    is_concurrent = true;
}

TEST(only_where_it_pays_and_when_asked_for) {
    const struct {
        enum gcuda_cuda_switch on;
        const char * env;
        int64_t width;
        bool is_beside;
    } cases[] = {
        { GCUDA_CUDA_AUTO, NULL, 64, false }, { GCUDA_CUDA_AUTO, "1", 64, true }, { GCUDA_CUDA_AUTO, "0", 64, false },
        { GCUDA_CUDA_OFF, "1", 64, false }, { GCUDA_CUDA_ON, NULL, 64, true },
        { GCUDA_CUDA_ON, NULL, 1 << 22, false }, // 64 MiB a tensor: memory is busy anyway
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        fresh(1, cases[i].width > 64 ? 2048 * MB : MEMORY, 1);
        if (cases[i].env != NULL) { setenv("GCUDA_CUDA_GRAPH_OPT", cases[i].env, 1); }
        gcuda_backend_t backend = backend_with(cases[i].on, GCUDA_CUDA_OFF);
        plan_towers(backend, 3, cases[i].width);
        CHECK_MSG((n_concurrent(backend) > 0) == cases[i].is_beside, "case %d", (int) i);
        gcuda_backend_free(backend);
        unsetenv("GCUDA_CUDA_GRAPH_OPT");
        clean();
    }
}

// The k-th call fails: what could not be made is done without, or a status, and then it works again.
TEST(every_cuda_call_fails_in_turn) {
    static const char * const apis[] = { "cudaStreamCreateWithPriority", "cudaEventCreateWithFlags", "cudaEventRecord",
        "cudaStreamWaitEvent", "cudaMalloc", "cudaHostAlloc", "cudaStreamBeginCapture", "cudaStreamEndCapture",
        "cudaGraphInstantiate", "cudaGraphLaunch", "cudaMemsetAsync" };
    float want[3 * 64], got[3 * 64];
    fresh(1, MEMORY, 1);
    gcuda_backend_t plain = backend_with(GCUDA_CUDA_OFF, GCUDA_CUDA_OFF);
    run_towers(plain, 3, 64, want, 64);
    gcuda_backend_free(plain);
    for (size_t i = 0; i < sizeof apis / sizeof apis[0]; ++i) {
        bool has_failed = true;
        for (int k = 1; k < 200 && has_failed && test_all.n_bad_checks == 0; k += test_full() ? 1 : k < 4 ? 1 : 13) {
            fresh(1, MEMORY, (uint64_t) k);
            gcuda_backend_t backend = backend_with(GCUDA_CUDA_ON, GCUDA_CUDA_ON);
            struct net net;
            static float out[N_RUNS * OUT];
            REQUIRE(net_begin(&net, NET_TRANSFORMER, 1, N_TOKENS, GCUDA_TYPE_F32, on_gpu, NULL));
            sim_fail(apis[i], k, cudaErrorMemoryAllocation);
            const gcuda_status st = run_net(&net, backend, out);
            has_failed = sim_failed() > 0;
            CHECK_MSG(st == GCUDA_STATUS_SUCCESS || has_failed, "%s, call %d: %s", apis[i], k, gcuda_last_error());
            sim_fail(apis[i], 0, cudaSuccess);
            net_end(&net);
            run_towers(backend, 3, 64, got, 64);
            CHECK_MSG(memcmp(got, want, sizeof got) == 0, "after %s, call %d failed", apis[i], k);
            gcuda_backend_free(backend);
            CHECK_EQ_I(sim_leaks(), 0);
        }
    }
    clean();
}
