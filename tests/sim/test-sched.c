// The scheduler over 1, 2, 4 and 8 simulated GPUs and the CPU: results against the CPU alone, the same bits whatever
// the streams do, pipelining without the host, offload, faults everywhere. Without GPUs: tests/test-sched.c.
#define _GNU_SOURCE 1 // setenv
#include "sim-test.h"

#include "sched-test.h"

// CPU and GPU round differently: with quantized weights the CPU rounds activations to 8 bits, the GPU not always. Over
// four layers with a norm at the end.
#define MAX_NMSE_F32 1e-9
#define MAX_NMSE_Q8_0 1e-3

// Of each device: all that the networks need. cuBLAS's large workspace does not fit, so that it takes the small one;
// the simulator would spend most of the time of these tests on filling it with NaN.
#define MEMORY (16 * MB)

struct gpus {
    gcuda_backend_t backends[9];
    gcuda_backend_sched_t sched;
    int n; // GPUs
};

static bool is_strict = false; // the backends: only fusion that gives the bits of its nodes

static gcuda_backend_t gpu_backend(int device) {
    struct gcuda_cuda_params p;
    memset(&p, 0, sizeof p);
    p.device = device;
    p.strict = is_strict;
    p.pool = GCUDA_CUDA_POOL_BEST_FIT; // virtual memory costs the simulation more
    return gcuda_backend_cuda_init_params(&p);
}

static bool gpus_begin(struct gpus * g, int n, int n_copies, bool no_offload) {
    struct gcuda_backend_sched_params p;
    memset(g, 0, sizeof *g);
    memset(&p, 0, sizeof p);
    g->n = n;
    bool is_ok = true;
    for (int i = 0; i < n; ++i) { is_ok = (g->backends[i] = gpu_backend(i)) != NULL && is_ok; }
    g->backends[n] = gcuda_backend_cpu_init();
    p.backends = g->backends, p.n_backends = n + 1, p.n_copies = n_copies, p.no_offload = no_offload;
    g->sched = is_ok && g->backends[n] != NULL ? gcuda_backend_sched_new_params(&p) : NULL;
    return g->sched != NULL;
}

static void gpus_end(struct gpus * g) {
    gcuda_backend_sched_free(g->sched);
    for (int i = 0; i <= g->n; ++i) { gcuda_backend_free(g->backends[i]); }
    memset(g, 0, sizeof *g);
}

// Page-locked, so that getting results into it does not wait.
static gcuda_backend_buffer_t pinned(size_t n_floats, float ** p) {
    gcuda_backend_buffer_t buffer =
        gcuda_backend_buft_alloc_buffer(gcuda_backend_cuda_host_buffer_type(), n_floats * sizeof(float));
    *p = (float *) gcuda_backend_buffer_get_base(buffer);
    return buffer;
}

// Layers distributed over the GPUs in order; `user` is their number, negative: the first layer stays on the CPU.
static gcuda_backend_buffer_type_t on_gpus(int layer, void * user) {
    const int n = abs(*(int *) user);
    return *(int *) user < 0 && layer == 0 ? gcuda_backend_cpu_buffer_type()
                                           : gcuda_backend_cuda_buffer_type(layer * n / 8 % n);
}

// One after the other: every product that follows another's is elsewhere.
static gcuda_backend_buffer_type_t in_turn(int layer, void * user) {
    const int n = abs(*(int *) user);
    return *(int *) user < 0 && layer == 0 ? gcuda_backend_cpu_buffer_type()
                                           : gcuda_backend_cuda_buffer_type(layer % n);
}

#define N_LAYERS 8
#define N_RUNS 4
#define OUT (NET_D * 5)

// All runs, each in new descriptions, so that inputs take turns; without waiting in between when the copies are
// several.
static void run_net(struct gpus * g, struct net * net, float * got, bool rebuild) {
    const int64_t n_out = net->d * net->n_tokens;
    gcuda_backend_t last = NULL;
    float * results = NULL;
    gcuda_backend_buffer_t buffer = pinned((size_t) (N_RUNS * n_out), &results);
    REQUIRE(results != NULL);
    for (int run = 0; run < N_RUNS; ++run) {
        if (rebuild || run == 0) {
            gcuda_backend_sched_reset(g->sched);
            if (!net_build(net)) { CHECK_MSG(false, "%s", gcuda_last_error()); }
            CHECK_OK(gcuda_backend_sched_alloc_graph(g->sched, net->graph));
        }
        CHECK_OK(net_set(net, (uint64_t) run));
        CHECK_OK(gcuda_backend_sched_graph_compute_async(g->sched, net->graph));
        last = gcuda_backend_sched_get_tensor_backend(g->sched, net->out);
        CHECK_OK(gcuda_backend_tensor_get_async(last, net->out, results + run * n_out, 0, gcuda_nbytes(net->out)));
    }
    CHECK_OK(gcuda_backend_sched_synchronize(g->sched));
    memcpy(got, results, (size_t) (N_RUNS * n_out) * sizeof(float));
    gcuda_backend_buffer_free(buffer);
}

static uint64_t n_seeds(void) {
    const char * n = getenv("GCUDA_TEST_SEEDS");
    return n ? strtoull(n, NULL, 10) : test_full() ? 20 : 2;
}

// Cases that other tests cover in more orders: another kernel (1 s per order), or another source of the copy.
static uint64_t n_few_seeds(void) { return n_seeds() < 100 ? (n_seeds() + 4) / 5 : 20; }
// of what two others ask in all
static uint64_t n_other_seeds(void) { return n_seeds() < 100 ? n_few_seeds() : n_seeds(); }
// At level ci each later one tries one number of GPUs.
static bool is_asked(uint64_t seed, int i, int n) {
    return n_seeds() >= 100 || seed <= n_few_seeds() || (int) (seed / 2 % (uint64_t) n) == i;
}

// All runs on n GPUs, layers distributed round robin.
static void run_network(enum net_kind kind, int64_t n_tokens, enum gcuda_type type, int n, uint64_t seed, float * got) {
    struct gpus g;
    struct net net;
    fresh(n, MEMORY, seed);
    if (gpus_begin(&g, n, seed % 2 ? 4 : 1, false) && net_begin(&net, kind, N_LAYERS, n_tokens, type, on_gpus, &n)) {
        run_net(&g, &net, got, seed % 3 != 0);
        CHECK_EQ_I(gcuda_backend_sched_get_n_splits(g.sched), n);
        net_end(&net);
    } else {
        CHECK_MSG(false, "%s", gcuda_last_error());
    }
    gpus_end(&g);
    clean();
}

// Near the CPU's results, and with the bits of the first order on one GPU.
static void check_networks(
    enum net_kind kind, int64_t n_tokens, enum gcuda_type type, double max_nmse, uint64_t n_orders) {
    static const int counts[] = { 1, 2, 4, 8 };
    static float want[N_RUNS * OUT], first[N_RUNS * OUT], got[N_RUNS * OUT];
    const int64_t n_out = NET_D * n_tokens;
    char name[96];
    if (!net_answer(kind, N_LAYERS, n_tokens, type, N_RUNS, want)) { return; }
    run_network(kind, n_tokens, type, 1, 1, first);
    for (int run = 0; run < N_RUNS; ++run) {
        const double error = nmse(first + run * n_out, want + run * n_out, n_out);
        CHECK_MSG(error < max_nmse, "run %d: error %g", run, error);
    }
    for (uint64_t seed = 1; seed <= n_orders; ++seed) {
        for (int i = 0; i < 4; ++i) {
            snprintf(name, sizeof name, "%s/%s/%d GPUs/seed=%d", test_all.test, gcuda_type_name(type), counts[i],
                (int) seed);
            if (!is_asked(seed, i, 4) || !test_case_begin(name)) { continue; }
            run_network(kind, n_tokens, type, counts[i], seed, got);
            CHECK_MSG(memcmp(got, first, (size_t) (N_RUNS * n_out) * sizeof *got) == 0, "other bits, error %g",
                nmse(got, first, N_RUNS * n_out));
            test_case_end();
        }
    }
}

TEST(transformer) { check_networks(NET_TRANSFORMER, 5, GCUDA_TYPE_F32, MAX_NMSE_F32, n_seeds()); }
TEST(transformer_in_blocks) { check_networks(NET_TRANSFORMER, 5, GCUDA_TYPE_Q8_0, MAX_NMSE_Q8_0, n_other_seeds()); }
TEST(experts) { check_networks(NET_EXPERTS, 5, GCUDA_TYPE_F32, 1e-5, n_seeds()); } // mul_mat_id rounds to 16 bits
TEST(experts_of_one_token) { check_networks(NET_EXPERTS, 1, GCUDA_TYPE_F32, 1e-5, n_other_seeds()); }

// The first layer is on the first GPU. The weights of the others are split over all GPUs, or to the first two, in
// even parts or not; not every matrix has rows for each of them. With is_split false they are whole on the main device,
// which has the last rows.
struct dealt {
    int n; // GPUs
    bool is_split;
};
static gcuda_backend_buffer_type_t on_dealt(int layer, void * user) {
    static const float even[4] = { 1, 1, 1, 1 }, uneven[4] = { 1, 2, 0, 0 }, two[4] = { 1, 1, 0, 0 };
    const struct dealt * d = (const struct dealt *) user;
    const int main_device = layer == 0 ? 0 : layer == 1 ? 1 : d->n - 1;
    const float * shares = layer == 1 ? two : d->n == 2 ? uneven : even;
    return layer == 0 || !d->is_split ? gcuda_backend_cuda_buffer_type(main_device)
                                      : gcuda_backend_cuda_split_buffer_type(main_device, shares, d->n);
}

enum { DEALT_LAYERS = 3, DEALT_OUT = NET_MAX_WIDE * OUT };

// All runs, with the GPUs joined in one way or another.
static void run_dealt(
    enum net_kind kind, int64_t n_tokens, enum gcuda_type type, struct dealt * d, uint64_t seed, float * got) {
    struct gpus g;
    struct net net;
    fresh(d->n, 2 * MEMORY, seed);
    for (int i = 0; i < d->n * d->n; ++i) { // directly, by the driver, by gcuda
        if (i / d->n != i % d->n) { sim_peer(i / d->n, i % d->n, 1 + (int) (seed % 3)); }
    }
    memset(&net, 0, sizeof net);
    if (gpus_begin(&g, d->n, seed % 2 ? 4 : 1, false) &&
        net_begin(&net, kind, DEALT_LAYERS, n_tokens, type, on_dealt, d)) {
        CHECK(gcuda_backend_buft_is_cuda_split(net.layers[1].buffer->buft) == d->is_split);
        run_net(&g, &net, got, seed % 4 < 2);
        for (int i = 0; i < net.graph->n_nodes; ++i) { // who has rows of a weight does not decide who computes
            struct gcuda_tensor * t = net.graph->nodes[i];
            if (t->src[0] == net.layers[2].wq) {
                CHECK(gcuda_backend_sched_get_tensor_backend(g.sched, t) == g.backends[d->n - 1]);
            }
        }
    } else {
        CHECK_MSG(false, "%s", gcuda_last_error());
    }
    net_end(&net);
    gpus_end(&g);
    clean();
}

// Weights on one device give equal bits unless bound > 0. On tensor cores the number of an expert's rows determines how
// sums are split. The last bit of a sum may become the last of 16 bits where the next product rounds it. Any order of
// streams gives the bits of the first.
static void check_dealt(
    enum net_kind kind, int64_t n_tokens, enum gcuda_type type, double max_nmse, double bound, uint64_t n_orders) {
    static float whole[N_RUNS * DEALT_OUT], first[N_RUNS * DEALT_OUT], got[N_RUNS * DEALT_OUT];
    char name[96];
    net_wide = NET_MAX_WIDE, is_strict = true;
    const int64_t n_all = N_RUNS * NET_MAX_WIDE * NET_D * n_tokens;
    for (int n = 2; n <= 4; n += 2) {
        struct dealt d = { n, false };
        if (!net_answer(kind, DEALT_LAYERS, n_tokens, type, N_RUNS, first)) { break; } // the CPU's
        run_dealt(kind, n_tokens, type, &d, 1, whole);
        CHECK_MSG(nmse(whole, first, n_all) < max_nmse, "%d GPUs: error %g", n, nmse(whole, first, n_all));
        d.is_split = true;
        run_dealt(kind, n_tokens, type, &d, 1, first);
        const double error = nmse(first, whole, n_all);
        CHECK_MSG(bound > 0.0 ? error < bound : error == 0.0, "%d GPUs, not as with whole weights: error %g", n, error);
        for (uint64_t seed = 2; seed <= n_orders; ++seed) {
            snprintf(name, sizeof name, "%s/%s/%d GPUs/seed=%d", test_all.test, gcuda_type_name(type), n, (int) seed);
            if (!is_asked(seed, n / 2 - 1, 2) || !test_case_begin(name)) { continue; }
            run_dealt(kind, n_tokens, type, &d, seed, got);
            CHECK_MSG(
                memcmp(got, first, (size_t) n_all * sizeof *got) == 0, "other bits, error %g", nmse(got, first, n_all));
            test_case_end();
        }
    }
    net_wide = 1, is_strict = false;
}

TEST(split_transformer) { check_dealt(NET_TRANSFORMER, 5, GCUDA_TYPE_F32, MAX_NMSE_F32, 0.0, n_seeds()); }
TEST(split_transformer_in_blocks) {
    check_dealt(NET_TRANSFORMER, 5, GCUDA_TYPE_Q8_0, MAX_NMSE_Q8_0, 0.0, n_other_seeds());
}
TEST(split_experts) { check_dealt(NET_EXPERTS, 5, GCUDA_TYPE_F32, 1e-5, 1e-8, n_seeds()); }
TEST(split_experts_of_one_token) { check_dealt(NET_EXPERTS, 1, GCUDA_TYPE_Q4_0, MAX_NMSE_Q8_0, 0.0, n_few_seeds()); }

// The first layer's weights are in host memory: on the CPU, or offloaded.
TEST(cpu_and_gpus) {
    float want[N_RUNS * OUT], got[N_RUNS * OUT];
    REQUIRE(net_answer(NET_TRANSFORMER, N_LAYERS, 5, GCUDA_TYPE_F32, N_RUNS, want));
    for (uint64_t seed = 1; seed <= n_seeds(); ++seed) {
        for (int how = 0; how < 4; ++how) {
            struct gpus g;
            struct net net;
            int n = -2;
            fresh(2, MEMORY, seed);
            if (how >= 2) { setenv("GCUDA_OP_OFFLOAD_MIN_BATCH", "5", 1); }
            REQUIRE(gpus_begin(&g, 2, how % 2 ? 4 : 1, false));
            REQUIRE(net_begin(&net, NET_TRANSFORMER, N_LAYERS, 5, GCUDA_TYPE_F32, on_gpus, &n));
            run_net(&g, &net, got, seed % 2 == 0);
            for (int run = 0; run < N_RUNS; ++run) {
                const double error = nmse(got + run * OUT, want + run * OUT, OUT);
                CHECK_MSG(error < MAX_NMSE_F32, "how %d, run %d: error %g", how, run, error);
            }
            struct gcuda_tensor * node = NULL;
            for (int i = 0; i < net.graph->n_nodes && node == NULL; ++i) {
                if (net.graph->nodes[i]->src[0] == net.layers[0].wq) { node = net.graph->nodes[i]; }
            }
            CHECK(gcuda_backend_sched_get_tensor_backend(g.sched, node) == g.backends[how >= 2 ? 0 : 2]);
            net_end(&net);
            gpus_end(&g);
            unsetenv("GCUDA_OP_OFFLOAD_MIN_BATCH");
            clean();
            if (test_all.n_bad_checks > 0) { return; }
        }
    }
}

// The experts of the first layer are in host memory and computed on a GPU. Their ids are other ones with each run; what
// the place of a weight held before is another weight's, so that an expert that was forgotten is seen.
TEST(used_experts_are_copied) {
    for (int64_t n_tokens = 1; n_tokens <= 5; n_tokens += 4) {
        float want[N_RUNS * OUT], got[N_RUNS * OUT];
        REQUIRE(net_answer(NET_EXPERTS, 3, n_tokens, GCUDA_TYPE_F32, N_RUNS, want));
        for (uint64_t seed = 1; seed <= n_few_seeds() + 2 && test_all.n_bad_checks == 0; ++seed) {
            struct gpus g;
            struct net net;
            int n = -2;
            fresh(2, MEMORY, seed);
            setenv("GCUDA_OP_OFFLOAD_MIN_BATCH", "1", 1);
            REQUIRE(gpus_begin(&g, 2, seed % 2 ? 1 : 4, false));
            REQUIRE(net_begin(&net, NET_EXPERTS, 3, n_tokens, GCUDA_TYPE_F32, seed % 3 ? on_gpus : in_turn, &n));
            run_net(&g, &net, got, seed % 4 < 2);
            const double error = nmse(got, want, N_RUNS * NET_D * n_tokens);
            CHECK_MSG(error < 1e-5, "%d tokens, seed %d: error %g", (int) n_tokens, (int) seed, error);
            char text[16384];
            CHECK(gcuda_backend_sched_to_text(g.sched, text, sizeof text) < sizeof text);
            CHECK_HAS(text, "copy 'gate.0' from CPU: 196608 bytes, a weight, the experts that are used");
            CHECK_HAS(text, "copy 'wq.0' from CPU: 16384 bytes, a weight\n");
            net_end(&net);
            gpus_end(&g);
            unsetenv("GCUDA_OP_OFFLOAD_MIN_BATCH");
            clean();
        }
    }
}

// =====================================================================================================================
// >>order
// =====================================================================================================================
// Two backends on one device share its memory and no stream; toys refuse at random; all in one scheduler.
static void run_mix(uint64_t seed, bool again) {
    gcuda_backend_buffer_type_t bufts[3];
    float want[2][CHAOS_N * CHAOS_M], got[2][CHAOS_N * CHAOS_M];
    struct chaos c;
    const int n_nodes = 20 + (int) (seed % 3) * 15, n_gpus = 1 + (int) (seed % 3);
    fresh(n_gpus, MEMORY, seed);
    chaos_type = GCUDA_TYPE_F32;
    REQUIRE(chaos_answer(seed, n_nodes, want));
    gcuda_backend_t b[6] = { gpu_backend(0), gpu_backend(0), gpu_backend(n_gpus - 1), toy_backend(0), toy_backend(1),
        gcuda_backend_cpu_init() };
    for (int i = 0; i < 2; ++i) { toys[i].seed = seed + (uint64_t) i, toys[i].refuses = 50; }
    struct gcuda_backend_sched_params p;
    memset(&p, 0, sizeof p);
    p.backends = b, p.n_backends = 6, p.n_copies = seed % 2 ? 1 : 3;
    gcuda_backend_sched_t sched = gcuda_backend_sched_new_params(&p);
    for (int i = 0; i < 3; ++i) {
        bufts[i] = i == 0 ? gcuda_backend_cpu_buffer_type() : gcuda_backend_cuda_buffer_type(i == 1 ? 0 : n_gpus - 1);
    }
    REQUIRE(sched != NULL && chaos_begin(&c, seed, n_nodes, bufts));
    struct rng r = { seed };
    for (int i = 0; i < c.graph->n_nodes; ++i) { // where chance says
        struct gcuda_tensor * t = c.graph->nodes[i];
        const int at = (int) rng_below(&r, 9);
        const bool may = at < 3 || at == 5 || (at < 5 && gcuda_backend_supports_op(b[at], t));
        bool is_written = t->view_src != NULL;
        for (int k = 0; k < c.graph->n_nodes && !is_written; ++k) { is_written = c.graph->nodes[k]->view_src == t; }
        if (at < 6 && may && !is_written) { CHECK_OK(gcuda_backend_sched_set_tensor_backend(sched, t, b[at])); }
    }
    CHECK_OK(gcuda_backend_sched_alloc_graph(sched, c.graph));
    for (int i = 0; i < 2; ++i) {
        if (again && i == 1) { CHECK_OK(gcuda_backend_sched_alloc_graph(sched, c.graph)); }
        CHECK_OK(chaos_set(&c, seed + (uint64_t) i));
        CHECK_OK(gcuda_backend_sched_graph_compute_async(sched, c.graph));
        CHECK_OK(gcuda_backend_tensor_get_async(
            gcuda_backend_sched_get_tensor_backend(sched, c.out), c.out, got[i], 0, sizeof got[i]));
    }
    CHECK_OK(gcuda_backend_sched_synchronize(sched));
    for (int i = 0; i < 2; ++i) {
        const double error = nmse(got[i], want[i], CHAOS_N * CHAOS_M);
        CHECK_MSG(error < 1e-8, "seed %llu, run %d: error %g", (unsigned long long) seed, i, error);
    }
    CHECK_EQ_I(toy_calls.n_foreign, 0);
    gcuda_backend_sched_free(sched);
    chaos_end(&c);
    for (int i = 0; i < 6; ++i) { gcuda_backend_free(b[i]); }
    clean();
}

TEST(random_graphs_over_gpus_toys_and_cpu) {
    char name[64];
    for (uint64_t seed = 1; seed <= 20 * n_seeds(); ++seed) {
        snprintf(name, sizeof name, "random_graphs_over_gpus_toys_and_cpu/%d", (int) seed);
        if (!test_case_begin(name)) { continue; }
        run_mix(seed, seed % 5 == 0);
        test_case_end();
    }
}

TEST(changes_in_place_are_seen) {
    for (int n_copies = 1; n_copies <= 4; n_copies += 3) {
        struct gpus g;
        fresh(2, MEMORY, (uint64_t) n_copies);
        REQUIRE(gpus_begin(&g, 2, n_copies, false));
        changing_check_all(g.sched, gcuda_backend_cuda_buffer_type(1), 1e-6);
        changing_check_all(g.sched, gcuda_backend_cpu_buffer_type(), 1e-6);
        again_check(g.sched, gcuda_backend_cpu_buffer_type(), gcuda_backend_cuda_buffer_type(0));
        again_check(g.sched, gcuda_backend_cuda_buffer_type(0), gcuda_backend_cuda_buffer_type(0));
        gpus_end(&g);
        clean();
    }
}

// A view that only another backend reads belongs to no split, and still what it views has to be written.
TEST(what_is_viewed_elsewhere_is_written) {
    enum { N = 8 };
    const struct gcuda_init_params params = { 0, NULL, true };
    struct gpus g;
    float x[N], got[2][N];
    fresh(1, 64 * MB, 1);
    REQUIRE(gpus_begin(&g, 1, 1, true));
    struct gcuda_context * ctx = gcuda_init(params);
    struct gcuda_cgraph * graph = gcuda_new_graph(ctx);
    struct gcuda_tensor * in = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F32, N);
    // a chain, seen alone
    struct gcuda_tensor *doubled = gcuda_scale(ctx, in, 2.0f), *squared = gcuda_sqr(ctx, doubled);
    struct gcuda_tensor * host = gcuda_abs(ctx, in);
    struct gcuda_tensor * half = gcuda_view_1d(ctx, doubled, N / 2, 0);
    struct gcuda_tensor * sum = gcuda_add(ctx, host, half);
    struct gcuda_tensor * nodes[] = { doubled, squared, host, half, sum };
    gcuda_set_input(in);
    gcuda_set_output(squared);
    gcuda_set_output(sum);
    for (int i = 0; i < 5; ++i) {
        CHECK_OK(gcuda_build_forward_expand(graph, nodes[i]));
        if (i != 3) { CHECK_OK(gcuda_backend_sched_set_tensor_backend(g.sched, nodes[i], g.backends[i < 2 ? 0 : 1])); }
    }
    CHECK_OK(gcuda_backend_sched_alloc_graph(g.sched, graph));
    for (int i = 0; i < N; ++i) { x[i] = (float) (i + 1); }
    CHECK_OK(gcuda_backend_tensor_set(in, x, 0, sizeof x));
    CHECK_OK(gcuda_backend_sched_graph_compute(g.sched, graph));
    CHECK_OK(gcuda_backend_tensor_get(squared, got[0], 0, sizeof x));
    CHECK_OK(gcuda_backend_tensor_get(sum, got[1], 0, sizeof x));
    for (int i = 0; i < N; ++i) {
        CHECK_EQ_I(got[0][i], 4.0f * x[i] * x[i]);
        CHECK_EQ_I(got[1][i], x[i] + 2.0f * x[i % (N / 2)]);
    }
    gcuda_free(ctx);
    gpus_end(&g);
    clean();
}

TEST(nothing_waits_on_the_host_between_gpus) {
    for (int n_copies = 1; n_copies <= 4; n_copies += 3) {
        struct gpus g;
        struct net net;
        int n = 4;
        fresh(4, MEMORY, 3);
        REQUIRE(gpus_begin(&g, 4, n_copies, false) &&
                net_begin(&net, NET_TRANSFORMER, N_LAYERS, 5, GCUDA_TYPE_F32, on_gpus, &n));
        // on the first GPU: the CPU has no part
        struct gcuda_tensor * inputs[] = { net.x, net.pos, net.rows, net.mask };
        for (int i = 0; i < 4; ++i) {
            CHECK_OK(gcuda_backend_sched_set_tensor_backend(g.sched, inputs[i], g.backends[0]));
        }
        CHECK_OK(gcuda_backend_sched_alloc_graph(g.sched, net.graph));
        CHECK_OK(net_set(&net, 0));
        CHECK_OK(gcuda_backend_sched_graph_compute(g.sched, net.graph));
        const long waits[] = { sim_counts("cudaStreamSynchronize"), sim_counts("cudaEventSynchronize"),
            sim_counts("cudaDeviceSynchronize") };
        const long allocations = sim_counts("cudaMalloc") + sim_counts("cudaHostAlloc"),
                   n_memcpy = sim_counts("cudaMemcpyPeerAsync");
        for (int run = 0; run < 3; ++run) { CHECK_OK(gcuda_backend_sched_graph_compute_async(g.sched, net.graph)); }
        CHECK_EQ_I(sim_counts("cudaStreamSynchronize"), waits[0]);
        CHECK_EQ_I(sim_counts("cudaEventSynchronize"), waits[1]);
        CHECK_EQ_I(sim_counts("cudaDeviceSynchronize"), waits[2]);
        CHECK_EQ_I(sim_counts("cudaMalloc") + sim_counts("cudaHostAlloc"), allocations);
        CHECK(sim_counts("cudaMemcpyPeerAsync") > n_memcpy); // directly
        CHECK_OK(gcuda_backend_sched_synchronize(g.sched));
        net_end(&net);
        gpus_end(&g);
        clean();
    }
}

static long n_host_waits(void) {
    return sim_counts("cudaStreamSynchronize") + sim_counts("cudaEventSynchronize") +
           sim_counts("cudaDeviceSynchronize") + sim_counts("cudaStreamQuery");
}

// Inputs are on the CPU, and so is the first layer: what it computes goes to a GPU while that is at the run before. The
// host changes the inputs as soon as a run is queued.
TEST(nothing_waits_for_copies_from_the_host) {
    float want[N_RUNS * OUT], *got = NULL;
    REQUIRE(net_answer(NET_TRANSFORMER, N_LAYERS, 5, GCUDA_TYPE_F32, N_RUNS, want));
    for (uint64_t seed = 1; seed <= 2 * n_seeds(); ++seed) {
        struct gpus g;
        struct net net;
        int n = seed % 2 ? -2 : 2;
        const int n_copies = seed % 4 < 2 ? 4 : 1;
        fresh(2, MEMORY, seed);
        gcuda_backend_buffer_t buffer = pinned(N_RUNS * OUT, &got);
        REQUIRE(gpus_begin(&g, 2, n_copies, false) &&
                net_begin(&net, NET_TRANSFORMER, N_LAYERS, 5, GCUDA_TYPE_F32, on_gpus, &n));
        CHECK_OK(gcuda_backend_sched_alloc_graph(g.sched, net.graph));
        CHECK_OK(net_set(&net, 0));
        CHECK_OK(gcuda_backend_sched_graph_compute(g.sched, net.graph)); // peers are probed
        gcuda_backend_t last = gcuda_backend_sched_get_tensor_backend(g.sched, net.out);
        long before = 0;
        for (int run = 0; run < N_RUNS; ++run) {
            if (run == 0) { before = n_host_waits(); }
            CHECK_OK(net_set(&net, (uint64_t) run));
            CHECK_OK(gcuda_backend_sched_graph_compute_async(g.sched, net.graph));
            if (run == n_copies) { CHECK_EQ_I(n_host_waits(), before); } // buffers for n_copies + 1 runs
            CHECK_OK(gcuda_backend_tensor_get_async(last, net.out, got + run * OUT, 0, OUT * sizeof(float)));
        }
        if (n_copies == 4) { CHECK_EQ_I(n_host_waits(), before); }
        CHECK_OK(gcuda_backend_sched_synchronize(g.sched));
        for (int run = 0; run < N_RUNS; ++run) {
            const double error = nmse(got + run * OUT, want + run * OUT, OUT);
            CHECK_MSG(error < MAX_NMSE_F32, "seed %d, %d copies, run %d: error %g", (int) seed, n_copies, run, error);
        }
        net_end(&net);
        gpus_end(&g);
        gcuda_backend_buffer_free(buffer);
        clean();
        if (test_all.n_bad_checks > 0) { return; }
    }
}

// One graph, allocated once, its inputs on the first GPU: run after run is queued, each with other inputs.
TEST(runs_under_way_do_not_meet) {
    static struct net_data data[N_RUNS];
    float want[N_RUNS * OUT], *got = NULL;
    REQUIRE(net_answer(NET_TRANSFORMER, N_LAYERS, 5, GCUDA_TYPE_F32, N_RUNS, want));
    for (uint64_t seed = 1; seed <= n_seeds() + 10; ++seed) {
        static const int copies[] = { 1, 2, 4 };
        struct gpus g;
        struct net net;
        int n = 2;
        fresh(2, MEMORY, seed);
        gcuda_backend_buffer_t buffer = pinned(N_RUNS * OUT, &got);
        REQUIRE(got != NULL && cudaHostRegister(data, sizeof data, 0) == cudaSuccess);
        REQUIRE(gpus_begin(&g, 2, copies[seed % 3], false));
        REQUIRE(net_begin(&net, NET_TRANSFORMER, N_LAYERS, 5, GCUDA_TYPE_F32, seed % 2 ? on_gpus : in_turn, &n));
        struct gcuda_tensor * inputs[] = { net.x, net.pos, net.rows, net.mask };
        for (int i = 0; i < 4; ++i) {
            CHECK_OK(gcuda_backend_sched_set_tensor_backend(g.sched, inputs[i], g.backends[0]));
        }
        CHECK_OK(gcuda_backend_sched_alloc_graph(g.sched, net.graph));
        gcuda_backend_t last = gcuda_backend_sched_get_tensor_backend(g.sched, net.out);
        for (int run = 0; run < N_RUNS; ++run) {
            net_fill(&net, (uint64_t) run, &data[run]);
            CHECK_OK(net_set_on(&net, &data[run], g.backends[0]));
            CHECK_OK(gcuda_backend_sched_graph_compute_async(g.sched, net.graph));
            CHECK_OK(gcuda_backend_tensor_get_async(last, net.out, got + run * OUT, 0, OUT * sizeof(float)));
        }
        CHECK_OK(gcuda_backend_sched_synchronize(g.sched));
        for (int run = 0; run < N_RUNS; ++run) {
            const double error = nmse(got + run * OUT, want + run * OUT, OUT);
            CHECK_MSG(
                error < MAX_NMSE_F32, "seed %d, %d copies, run %d: error %g", (int) seed, copies[seed % 3], run, error);
        }
        net_end(&net);
        gpus_end(&g);
        gcuda_backend_buffer_free(buffer);
        CHECK(cudaHostUnregister(data) == cudaSuccess);
        clean();
        if (test_all.n_bad_checks > 0) { return; }
    }
}

// With one copy of inputs a result may reuse the memory of a copy, and the CPU has waited for the result's GPU. The
// next run's copy still waits for work that the caller enqueues there after the run. Computed in pieces, so that the
// other GPU could be far ahead.
TEST(a_result_on_its_way_is_not_overwritten) {
    enum { N = 256, RUNS = 3, PIECE = N / 16 };
    const struct gcuda_init_params params = { 0, NULL, true };
    for (uint64_t seed = 1; seed <= 8; ++seed) {
        struct gpus g;
        float *in = NULL, *got = NULL, seen[N];
        fresh(2, 64 * MB, seed);
        gcuda_backend_buffer_t buffers[] = { pinned(RUNS * N, &in), pinned(RUNS * N, &got) };
        REQUIRE(in != NULL && got != NULL && gpus_begin(&g, 2, 1, true));
        struct gcuda_context * ctx = gcuda_init(params);
        struct gcuda_cgraph * graph = gcuda_new_graph(ctx);
        struct gcuda_tensor * x = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F32, N);
        struct gcuda_tensor *y = gcuda_scale(ctx, x, 2.0f), *z = gcuda_scale(ctx, y, 3.0f), *w = gcuda_abs(ctx, z);
        struct gcuda_tensor * all[] = { x, y, z, w };
        const int where[] = { 0, 0, 1, 2 };
        gcuda_set_input(x);
        gcuda_set_output(z);
        gcuda_set_output(w);
        CHECK_OK(gcuda_build_forward_expand(graph, w));
        for (int i = 0; i < 4; ++i) {
            CHECK_OK(gcuda_backend_sched_set_tensor_backend(g.sched, all[i], g.backends[where[i]]));
        }
        CHECK_OK(gcuda_backend_sched_alloc_graph(g.sched, graph));
        CHECK_OK(gcuda_backend_sched_graph_compute(g.sched, graph)); // peers are probed
        for (int run = 0; run < RUNS; ++run) {
            for (int i = 0; i < N; ++i) { in[run * N + i] = (float) (run * N + i); }
            CHECK_OK(gcuda_backend_tensor_set_async(g.backends[0], x, in + run * N, 0, N * sizeof(float)));
            CHECK_OK(gcuda_backend_sched_graph_compute_async(g.sched, graph));
            for (int i = 0; i < N; i += PIECE) {
                CHECK_OK(gcuda_backend_tensor_get_async(
                    g.backends[1], z, got + run * N + i, (size_t) i * sizeof(float), PIECE * sizeof(float)));
            }
        }
        CHECK_OK(gcuda_backend_sched_synchronize(g.sched));
        CHECK_OK(gcuda_backend_tensor_get(w, seen, 0, sizeof seen));
        for (int i = 0; i < RUNS * N; ++i) {
            CHECK_MSG(got[i] == 6.0f * (float) i, "seed %d, run %d: element %d is %g", (int) seed, i / N, i % N,
                (double) got[i]);
            if (got[i] != 6.0f * (float) i) { break; }
        }
        for (int i = 0; i < N; ++i) { CHECK_EQ_I(seen[i], 6 * ((RUNS - 1) * N + i)); }
        gcuda_free(ctx);
        gpus_end(&g);
        gcuda_backend_buffer_free(buffers[0]);
        gcuda_backend_buffer_free(buffers[1]);
        clean();
    }
}

// ns of simulated time for n_runs of a network in two halves.
static uint64_t time_of_runs(int n_gpus, int n_copies, int n_runs) {
    struct gpus g;
    struct net net;
    int n = n_gpus;
    fresh(2, MEMORY, 1);
    if (!gpus_begin(&g, n_gpus, n_copies, false) ||
        !net_begin(&net, NET_TRANSFORMER, N_LAYERS, 5, GCUDA_TYPE_F32, on_gpus, &n)) {
        return 0;
    }
    CHECK_OK(gcuda_backend_sched_alloc_graph(g.sched, net.graph));
    CHECK_OK(net_set(&net, 0));
    CHECK_OK(gcuda_backend_sched_graph_compute(g.sched, net.graph)); // peers are probed
    const uint64_t start = sim_time();
    for (int run = 0; run < n_runs; ++run) {
        CHECK_OK(net_set(&net, (uint64_t) run));
        CHECK_OK(gcuda_backend_sched_graph_compute_async(g.sched, net.graph));
    }
    CHECK_OK(gcuda_backend_sched_synchronize(g.sched));
    const uint64_t time = sim_time() - start;
    net_end(&net);
    gpus_end(&g);
    clean();
    return time;
}

TEST(two_gpus_work_at_once) {
    const uint64_t one = time_of_runs(1, 1, 8), two = time_of_runs(2, 4, 8);
    printf("  8 runs in simulated time: one GPU %.0f us, two with 4 copies %.0f us\n", 1e-3 * (double) one,
        1e-3 * (double) two);
    CHECK_MSG((double) one > 1.5 * (double) two, "%.2f times as fast", (double) one / (double) two);
}

// ns of simulated time for 4 runs of products one after the other, whose weights lie on the GPU, or in host memory and
// go there with each run. result: the last one's.
static uint64_t time_with_weights(bool are_there, int n_products, float * result) {
    enum { N = 64 };
    const struct gcuda_init_params params = { 0, NULL, true };
    struct gpus g;
    fresh(1, MEMORY, 1);
    sim_copy_speed(3000); // bytes a us: a weight takes about as long as what is computed with it
    setenv("GCUDA_OP_OFFLOAD_MIN_BATCH", "1", 1);
    if (!gpus_begin(&g, 1, 1, false)) { return 0; }
    struct gcuda_context *weights = gcuda_init(params), *ctx = gcuda_init(params);
    struct gcuda_cgraph * graph = gcuda_new_graph(ctx);
    struct gcuda_tensor *x = gcuda_set_name(gcuda_new_tensor_2d(ctx, GCUDA_TYPE_F32, N, 4), "x"), *y = x;
    gcuda_set_input(x);
    CHECK_OK(gcuda_backend_sched_set_tensor_backend(g.sched, x, g.backends[0]));
    for (int i = 0; i < n_products; ++i) {
        struct gcuda_tensor * w = gcuda_format_name(gcuda_new_tensor_2d(weights, GCUDA_TYPE_F32, N, N), "w%d", i);
        y = gcuda_soft_max(ctx, gcuda_cumsum(ctx, gcuda_rms_norm(ctx, gcuda_mul_mat(ctx, w, y), 1e-5f)));
    }
    gcuda_set_output(y);
    CHECK_OK(gcuda_build_forward_expand(graph, y));
    gcuda_backend_buffer_t buffer = gcuda_backend_alloc_ctx_tensors_from_buft(
        weights, are_there ? gcuda_backend_cuda_buffer_type(0) : gcuda_backend_cpu_buffer_type());
    gcuda_backend_buffer_set_usage(buffer, GCUDA_BACKEND_BUFFER_USAGE_WEIGHTS);
    for (struct gcuda_tensor * w = gcuda_get_first_tensor(weights); w != NULL; w = gcuda_get_next_tensor(weights, w)) {
        CHECK(fill_tensor(w, 0.3));
    }
    CHECK_OK(gcuda_backend_sched_alloc_graph(g.sched, graph));
    CHECK_EQ_I(gcuda_backend_sched_get_n_splits(g.sched), are_there ? 1 : n_products);
    uint64_t start = 0;
    for (int run = 0; run <= 4; ++run) {
        if (run == 1) { start = sim_time(); }
        CHECK(fill_tensor(x, 1.0));
        CHECK_OK(gcuda_backend_sched_graph_compute(g.sched, graph));
    }
    const uint64_t time = sim_time() - start;
    CHECK_OK(gcuda_backend_tensor_get(y, result, 0, gcuda_nbytes(y)));
    gcuda_backend_buffer_free(buffer);
    gcuda_free(weights);
    gpus_end(&g);
    gcuda_free(ctx);
    unsetenv("GCUDA_OP_OFFLOAD_MIN_BATCH");
    clean();
    return time;
}

// What uploads are queued by are threads, which begin in real time: on a machine with more programs than processors
// they come late for the simulated clock. So the best of some attempts; without any overlap each takes as long as both
// together.
TEST(weights_are_uploaded_beside_the_work) {
    enum { N_PRODUCTS = 24, ATTEMPTS = 8 };
    float want[256], got[256];
    const uint64_t there = time_with_weights(true, N_PRODUCTS, want),
                   upload = 4 * N_PRODUCTS * (64 * 64 * 4 / 3 + 1000);
    const double most = (double) there + 0.75 * (double) upload;
    uint64_t best = 0;
    for (int i = 0; i < ATTEMPTS && (best == 0 || (double) best >= most); ++i) {
        const uint64_t uploaded = time_with_weights(false, N_PRODUCTS, got);
        CHECK(there > 0 && uploaded > 0 && memcmp(want, got, sizeof want) == 0);
        best = best == 0 || uploaded < best ? uploaded : best;
    }
    printf("  4 runs in simulated time: weights on the GPU %.0f us, uploads alone %.0f us, weights "
           "in host memory %.0f us\n",
        1e-3 * (double) there, 1e-3 * (double) upload, 1e-3 * (double) best);
    CHECK_MSG((double) best < most, "%.0f us, allowed %.0f", 1e-3 * (double) best, 1e-3 * most);
}

// =====================================================================================================================
// >>faults
// =====================================================================================================================
static gcuda_status all_of_it(struct gpus * g, struct net * net, float * got) {
    gcuda_status st = gcuda_backend_sched_reserve(g->sched, net->graph);
    for (int i = 0; i < 2 && st == GCUDA_STATUS_SUCCESS; ++i) {
        st = gcuda_backend_sched_alloc_graph(g->sched, net->graph);
        if (st == GCUDA_STATUS_SUCCESS) { st = net_set(net, 0); }
        if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_backend_sched_graph_compute(g->sched, net->graph); }
    }
    return st == GCUDA_STATUS_SUCCESS ? gcuda_backend_tensor_get(net->out, got, 0, OUT * sizeof(float)) : st;
}

// The k-th call fails while the scheduler is made and used. True when there was such a call.
static bool fail_one(const char * api, int k, cudaError_t error, const float * want) {
    struct gpus g;
    struct net net;
    float got[OUT];
    int n = -2; // the first layer is offloaded
    fresh(2, MEMORY, 1);
    memset(&g, 0, sizeof g);
    g.n = 2;
    for (int i = 0; i < 2; ++i) { g.backends[i] = gpu_backend(i); }
    g.backends[2] = gcuda_backend_cpu_init();
    if (!net_begin(&net, NET_TRANSFORMER, 3, 5, GCUDA_TYPE_F32, in_turn, &n)) { return false; }
    sim_fail(api, k, error);
    for (int turn = 0; turn < 2 && g.sched == NULL; ++turn) {
        g.sched = gcuda_backend_sched_new(g.backends, NULL, 3, 64, true, true);
        CHECK(g.sched != NULL || sim_failed() > 0);
    }
    gcuda_status st = g.sched ? all_of_it(&g, &net, got) : GCUDA_STATUS_FAILED;
    const bool has_failed = sim_failed() > 0;
    CHECK_MSG(st == GCUDA_STATUS_SUCCESS || has_failed, "%s, call %d: %s", api, k, gcuda_last_error());
    if (st != GCUDA_STATUS_SUCCESS) { st = all_of_it(&g, &net, got); }
    CHECK_MSG(st == GCUDA_STATUS_SUCCESS, "%s, after call %d failed: %s", api, k, gcuda_last_error());
    if (st == GCUDA_STATUS_SUCCESS) {
        CHECK_MSG(
            nmse(got, want, OUT) < MAX_NMSE_F32, "%s, after call %d failed: error %g", api, k, nmse(got, want, OUT));
    }
    sim_fail(api, 0, cudaSuccess);
    net_end(&net);
    gpus_end(&g);
    CHECK_EQ_I(sim_leaks(), 0);
    return has_failed;
}

TEST(every_cuda_call_fails_in_turn) {
    float want[OUT];
    char names[96][48];
    int n = 0;
    REQUIRE(net_answer(NET_TRANSFORMER, 3, 5, GCUDA_TYPE_F32, 1, want));
    setenv("GCUDA_OP_OFFLOAD_MIN_BATCH", "5", 1);
    CHECK(!fail_one("cudaMalloc", 100000, cudaErrorMemoryAllocation, want));
    for (; n < 96 && sim_api(n) != NULL; ++n) { snprintf(names[n], sizeof names[n], "%s", sim_api(n)); }
    CHECK(sim_api(n) == NULL); // none is left out
    for (int i = 0; i < n; ++i) {
        if (strcmp(names[i], "kernel") == 0) { continue; } // loses the device: below
        const bool is_blas = strncmp(names[i], "cublas", 6) == 0;
        int step = 1;
        for (int k = 1; fail_one(names[i], k, is_blas ? (cudaError_t) 13 : cudaErrorMemoryAllocation, want);
             k += step) {
            step = test_full() ? 1 : k < 3 ? 1 : 2 * step + 1;
            if (test_all.n_bad_checks > 0) { break; }
        }
    }
    unsetenv("GCUDA_OP_OFFLOAD_MIN_BATCH");
    clean();
}

TEST(a_lost_device_is_a_status) {
    for (int k = 1; k <= 40; k += 13) {
        struct gpus g;
        struct net net;
        float got[OUT];
        int n = 2;
        fresh(2, MEMORY, (uint64_t) k);
        REQUIRE(gpus_begin(&g, 2, 4, false) && net_begin(&net, NET_TRANSFORMER, 3, 5, GCUDA_TYPE_F32, in_turn, &n));
        sim_fail("kernel", k, cudaErrorIllegalAddress);
        CHECK(all_of_it(&g, &net, got) != GCUDA_STATUS_SUCCESS);
        CHECK(gcuda_backend_sched_graph_compute(g.sched, net.graph) == GCUDA_STATUS_DEVICE_LOST);
        net_end(&net);
        gpus_end(&g);
        CHECK_EQ_I(sim_leaks(), 0);
    }
    clean();
}

// With little memory on each of two devices: what does not fit is a status that names the bytes, and a smaller one
// fits.
TEST(out_of_memory_is_a_normal_answer) {
    struct gpus g;
    struct net net;
    float got[OUT];
    int n = 2;
    fresh(2, MEMORY, 1);
    REQUIRE(gpus_begin(&g, 2, 4, false) && net_begin(&net, NET_TRANSFORMER, 3, 5, GCUDA_TYPE_F32, in_turn, &n));
    struct gcuda_cuda_stats stats;
    CHECK_OK(gcuda_backend_cuda_get_device_stats(1, &stats));
    CHECK_OK(gcuda_backend_cuda_set_device_budget(1, stats.reserved + 1000));
    CHECK(gcuda_backend_sched_reserve(g.sched, net.graph) == GCUDA_STATUS_ALLOC_FAILED);
    CHECK_HAS(gcuda_last_error(), "budget");
    CHECK(gcuda_backend_sched_alloc_graph(g.sched, net.graph) == GCUDA_STATUS_ALLOC_FAILED);
    CHECK(gcuda_backend_sched_graph_compute(g.sched, net.graph) == GCUDA_STATUS_ALLOC_FAILED);
    size_t sizes[3];
    CHECK_OK(gcuda_backend_sched_reserve_size(g.sched, net.graph, sizes)); // what it would take
    CHECK_OK(gcuda_backend_cuda_set_device_budget(1, stats.reserved + sizes[1] + (1 << 20)));
    CHECK_OK(all_of_it(&g, &net, got));
    CHECK_EQ_I(gcuda_backend_sched_get_buffer_size(g.sched, g.backends[1]), sizes[1]);
    CHECK_OK(gcuda_backend_cuda_set_device_budget(1, 0));
    net_end(&net);
    gpus_end(&g);
    clean();
}
