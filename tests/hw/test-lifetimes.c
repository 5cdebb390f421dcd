// Objects that outlive a graph must not read it: plans in the cache, their CUDA graphs, scratch, allocators. Thousands
// of graphs of up to 8000 nodes, many of them equal, are made, computed and freed. Contexts are in the caller's memory,
// which later graphs reuse. Buffers are freed and made again, many at the same addresses. Memory of a freed context is
// filled with a pattern, and AddressSanitizer reports reads of it. Results are compared with the correct ones.
// GCUDA_TEST_LIFETIMES_S says for how many seconds (2; with GCUDA_TEST_FULL 60, simulated 20). Also runs on the
// simulated device (make build/sim/test-lifetimes).
#include "gcuda.h"
#include "recycled.h"
#include "test.h"

#include <cuda_runtime_api.h>
#include <math.h>

#if defined(GCUDAI_SIM)
#include "sim.h"
#define SIZE(device, simulated) (simulated)
#else
#define SIZE(device, simulated) (device)
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, n) ((void) 0)
#define ASAN_UNPOISON_MEMORY_REGION(at, n) ((void) 0)
#endif

enum { K = 32, M = SIZE(8, 2), N_EXPERTS = 4, N_USED = 2, MOST_TOKENS = 40, MOST_NODES = 8000, MOST_CHECKED = 3 };
enum { N_SLOTS = 4, N_ARENAS = 2 * N_SLOTS + 1, N_BLOCKS = 2 * N_SLOTS + 1, N_BACKENDS = 3, MAX_PLANS = 3 };
#define BLOCK_BYTES ((size_t) 24 << 20) // of device memory: more than the results of the largest graph

// ---- memory that is used again and again ----

struct block {
    char * memory;
    bool is_used;
};

static struct block * any_block(struct block * blocks, int n, struct rng * r) {
    int i = (int) rng_below(r, n);
    while (blocks[i].is_used) { i = (i + 1) % n; }
    blocks[i].is_used = true;
    return &blocks[i];
}

static size_t arena_bytes(void) {
    return (MOST_NODES + 32) * (gcuda_tensor_overhead() + 64) + gcuda_graph_overhead_custom(MOST_NODES, false) + 4096;
}

static void arena_forbid(struct block * a) {
    memset(a->memory, 0xdd, arena_bytes());
    ASAN_POISON_MEMORY_REGION(a->memory, arena_bytes());
    a->is_used = false;
}

// A context of descriptions in the caller's memory: tensors made in the same order get the same addresses.
static struct gcuda_context * arena_begin(struct block * a) {
    ASAN_UNPOISON_MEMORY_REGION(a->memory, arena_bytes());
    const struct gcuda_init_params params = { arena_bytes(), a->memory, true };
    return gcuda_init(params);
}

// ---- graphs ----

// SAME: one product listed as every node. SAME_PAIR: a product and its sum, alternately. EACH: separate products.
// PAIRS: of a product and a sum. SUM: over all products. MIXED: products, matrix products and element-wise operations
// alternately.
enum kind { SAME, SAME_PAIR, EACH, PAIRS, SUM, MIXED, N_KINDS };

struct shape {
    enum kind kind;
    enum gcuda_type type; // of the experts
    int n_nodes;
    int64_t n_tokens;
};

struct checked {
    struct gcuda_tensor *at, copy; // copy: outlives the context
    double scale, add;             // the result is scale * product + add * c
    bool is_matrix;                // the product is that of the first expert
};

struct slot {
    struct shape shape;
    struct block *arena_leafs, *arena_nodes, *block_leafs, *block_nodes; // no block: each buffer has separate memory
    struct gcuda_context *leafs, *nodes;
    struct gcuda_cgraph * graph;
    struct gcuda_tensor *experts, *x, *ids, *c;
    gcuda_backend_buffer_t buffer_leafs, buffer_nodes; // of nodes: NULL where the allocator has placed them
    gcuda_gallocr_t alloc;                             // lasting: its buffers come and go as graphs need them
    struct checked checked[MOST_CHECKED];
    int n_checked, salt;
    gcuda_backend_t busy; // has been given work that was not waited for
};

static void leafs_make(struct slot * s) {
    s->leafs = arena_begin(s->arena_leafs);
    s->experts = gcuda_new_tensor_3d(s->leafs, s->shape.type, K, M, N_EXPERTS);
    s->x = gcuda_new_tensor_3d(s->leafs, GCUDA_TYPE_F32, K, 1, s->shape.n_tokens);
    s->ids = gcuda_new_tensor_2d(s->leafs, GCUDA_TYPE_I32, N_USED, s->shape.n_tokens);
    s->c = gcuda_new_tensor_3d(s->leafs, GCUDA_TYPE_F32, M, N_USED, s->shape.n_tokens);
}

// The first results and the last are looked at.
static void check_later(struct slot * s, struct gcuda_tensor * y, double scale, double add, bool is_matrix) {
    struct checked * k = &s->checked[s->n_checked < MOST_CHECKED ? s->n_checked++ : MOST_CHECKED - 1];
    k->at = y;
    k->scale = scale;
    k->add = add;
    k->is_matrix = is_matrix;
}

static void expand(struct slot * s, struct gcuda_tensor * y) {
    gcuda_set_output(y);
    CHECK_OK(gcuda_build_forward_expand(s->graph, y));
}

static struct gcuda_tensor * product(struct slot * s) { return gcuda_mul_mat_id(s->nodes, s->experts, s->x, s->ids); }

static void again(struct slot * s, struct gcuda_tensor * y) {
    while (gcuda_graph_n_nodes(s->graph) < s->shape.n_nodes) { CHECK_OK(gcuda_graph_add_node(s->graph, y)); }
}

static void make_mixed(struct slot * s, int i) {
    struct gcuda_context * ctx = s->nodes;
    struct gcuda_tensor * y;
    if (i % 3 == 0) { // up to three nodes each
        y = gcuda_add(ctx, gcuda_scale(ctx, product(s), 2.0f), s->c);
        check_later(s, y, 2.0, 1.0, false);
    } else if (i % 3 == 1) {
        struct gcuda_tensor * first = gcuda_view_2d(ctx, s->experts, K, M, s->experts->nb[1], 0);
        y = gcuda_mul_mat(ctx, first, gcuda_reshape_2d(ctx, s->x, K, s->shape.n_tokens));
        check_later(s, y, 1.0, 0.0, true);
    } else {
        y = gcuda_cont(ctx, gcuda_sub(ctx, product(s), s->c));
        check_later(s, y, 1.0, -1.0, false);
    }
    expand(s, y);
}

static void nodes_make(struct slot * s) {
    const int n = s->shape.n_nodes;
    s->nodes = arena_begin(s->arena_nodes);
    s->graph = gcuda_new_graph_custom(s->nodes, MOST_NODES, false);
    s->n_checked = 0;
    struct gcuda_tensor * sum = s->c;
    int n_sums = 0;
    if (s->shape.kind == SAME || s->shape.kind == SAME_PAIR) {
        const bool is_pair = s->shape.kind == SAME_PAIR;
        struct gcuda_tensor * y = is_pair ? gcuda_add(s->nodes, product(s), s->c) : product(s);
        expand(s, y);
        check_later(s, y, 1.0, is_pair ? 1.0 : 0.0, false);
        again(s, y);
        return;
    }
    for (int i = 0; s->shape.kind == MIXED ? gcuda_graph_n_nodes(s->graph) + 3 <= n : i < n; ++i) {
        if (s->shape.kind == MIXED) {
            make_mixed(s, i);
        } else if (s->shape.kind == EACH) {
            struct gcuda_tensor * y = product(s);
            expand(s, y);
            check_later(s, y, 1.0, 0.0, false);
        } else if (i + 2 <= n) { // PAIRS, SUM
            struct gcuda_tensor * y = gcuda_add(s->nodes, product(s), sum);
            const bool is_sum = s->shape.kind == SUM;
            ++i;
            ++n_sums;
            if (!is_sum) { expand(s, y); }
            if (!is_sum) { check_later(s, y, 1.0, 1.0, false); }
            sum = is_sum ? y : sum;
        }
    }
    if (n_sums > 0 && s->shape.kind == SUM) {
        expand(s, sum);
        check_later(s, sum, (double) n_sums, 1.0, false);
    }
}

static gcuda_backend_buffer_t place(struct gcuda_context * ctx, const struct block * b) {
    gcuda_backend_buffer_type_t buft = gcuda_backend_cuda_buffer_type(0);
    if (b == NULL) { return gcuda_backend_alloc_ctx_tensors_from_buft(ctx, buft); }
    gcuda_backend_buffer_t buffer = gcuda_backend_cuda_buffer_from_ptr(0, b->memory, BLOCK_BYTES);
    struct gcuda_tallocr all = gcuda_tallocr_new(buffer);
    for (struct gcuda_tensor * t = gcuda_get_first_tensor(ctx); t != NULL; t = gcuda_get_next_tensor(ctx, t)) {
        CHECK_OK(t->view_src == NULL ? gcuda_tallocr_alloc(&all, t) : gcuda_backend_view_init(t));
    }
    return buffer;
}

// ---- values: whole numbers, the same along k ----

static double weight(const struct slot * s, int64_t expert, int64_t row) {
    return (double) ((expert * 3 + row + s->salt) % 7 - 3);
}
static int64_t expert_of(const struct slot * s, int64_t used, int64_t token) {
    return (token + used + s->salt) % N_EXPERTS;
}
static double column(int64_t token) { return (double) (token % 4 + 1); }
static double constant(const struct slot * s) { return (double) (s->salt % 5 + 1); }

static void fill(struct slot * s, int salt) {
    static float values[K * M * N_EXPERTS], x[K * MOST_TOKENS], c[M * N_USED * MOST_TOKENS];
    static int32_t ids[N_USED * MOST_TOKENS];
    static char rows[sizeof values];
    const int64_t n = s->shape.n_tokens;
    s->salt = salt;
    for (int i = 0; i < K * M * N_EXPERTS; ++i) { values[i] = (float) weight(s, i / (K * M), i / K % M); }
    for (int64_t i = 0; i < K * n; ++i) { x[i] = (float) column(i / K); }
    for (int64_t i = 0; i < N_USED * n; ++i) { ids[i] = (int32_t) expert_of(s, i % N_USED, i / N_USED); }
    for (int64_t i = 0; i < M * N_USED * n; ++i) { c[i] = (float) constant(s); }
    CHECK_OK(gcuda_quantize_rows(s->shape.type, values, rows, M * N_EXPERTS, K, NULL, 1));
    CHECK_OK(gcuda_backend_tensor_set(s->experts, rows, 0, gcuda_nbytes(s->experts)));
    CHECK_OK(gcuda_backend_tensor_set(s->x, x, 0, gcuda_nbytes(s->x)));
    CHECK_OK(gcuda_backend_tensor_set(s->ids, ids, 0, gcuda_nbytes(s->ids)));
    CHECK_OK(gcuda_backend_tensor_set(s->c, c, 0, gcuda_nbytes(s->c)));
    for (int i = 0; i < s->n_checked; ++i) {
        s->checked[i].copy = *s->checked[i].at;
        CHECK_OK(gcuda_backend_tensor_memset(s->checked[i].at, 0xff, 0, gcuda_nbytes(s->checked[i].at)));
    }
}

static double wanted(const struct slot * s, const struct checked * k, int64_t row, int64_t used, int64_t token) {
    const int64_t expert = k->is_matrix ? 0 : expert_of(s, used, token);
    return k->scale * K * weight(s, expert, row) * column(token) + k->add * constant(s);
}

static void check_results(const struct slot * s) {
    static float got[M * N_USED * MOST_TOKENS];
    for (int i = 0; i < s->n_checked; ++i) {
        const struct checked * k = &s->checked[i];
        const int64_t n_used = k->is_matrix ? 1 : N_USED;
        int64_t n_wrong = 0;
        CHECK_OK(gcuda_backend_tensor_get(&k->copy, got, 0, gcuda_nbytes(&k->copy)));
        for (int64_t j = 0; j < gcuda_nelements(&k->copy); ++j) {
            const double want = wanted(s, k, j % M, j / M % n_used, j / M / n_used);
            n_wrong += !(fabs(got[j] - want) <= 0.01 * fabs(want) + 0.5); // quantized weights and activations
        }
        CHECK_MSG(n_wrong == 0, "kind %d, %s, %d nodes, %lld tokens: %lld of result %d are wrong, the first is %g",
            (int) s->shape.kind, gcuda_type_name(s->shape.type), s->shape.n_nodes, (long long) s->shape.n_tokens,
            (long long) n_wrong, i, (double) got[0]);
    }
}

// ---- making, computing, freeing ----

struct stress {
    struct rng rng;
    struct block arenas[N_ARENAS], blocks[N_BLOCKS];
    struct slot slots[N_SLOTS];
    gcuda_backend_t backends[N_BACKENDS];
    gcuda_backend_graph_plan_t plan; // of the first backend; goes from graph to graph, most of which are gone by then
    bool is_profiled;                // the second backend
    struct shape last;
    uint64_t n_graphs, n_nodes, n_runs, n_checked;
    bool is_hollow;                    // simulated kernels do nothing, and results mean nothing
    struct gcuda_cuda_plan_stats sums; // of backends that are gone
};

static gcuda_backend_t backend_new(int i) {
    struct gcuda_cuda_params p;
    memset(&p, 0, sizeof p);
    p.graphs = GCUDA_CUDA_ON;
    p.max_plans = i == 0 ? MAX_PLANS : i == 1 ? 0 : 2;
    p.concurrency = i == 2 ? GCUDA_CUDA_ON : GCUDA_CUDA_AUTO;
    return gcuda_backend_cuda_init_params(&p);
}

static void add_stats(struct stress * k, gcuda_backend_t backend) {
    struct gcuda_cuda_plan_stats s;
    CHECK_OK(gcuda_backend_cuda_get_plan_stats(backend, &s));
    k->sums.n_made += s.n_made;
    k->sums.n_reused += s.n_reused;
    k->sums.n_updated += s.n_updated;
    k->sums.n_evicted += s.n_evicted;
    k->sums.n_captures += s.n_captures;
    k->sums.n_graph_launches += s.n_graph_launches;
}

static void backend_end(struct stress * k, int i) {
    if (i == 0) {
        gcuda_backend_graph_plan_free(k->backends[0], k->plan);
        k->plan = NULL;
    }
    k->is_profiled = k->is_profiled && i != 1;
    add_stats(k, k->backends[i]);
    gcuda_backend_free(k->backends[i]);
}

static void settle(struct slot * s) {
    if (s->busy != NULL) { CHECK_OK(gcuda_backend_synchronize(s->busy)); }
    s->busy = NULL;
}

// The descriptions, which nothing needs any more once work has been given to a backend.
static void forget(struct slot * s) {
    if (s->nodes == NULL) { return; }
    gcuda_free(s->nodes);
    gcuda_free(s->leafs);
    arena_forbid(s->arena_nodes);
    arena_forbid(s->arena_leafs);
    s->nodes = s->leafs = NULL;
}

static void free_blocks(struct slot * s) {
    if (s->block_leafs != NULL) { s->block_leafs->is_used = false; }
    if (s->block_nodes != NULL) { s->block_nodes->is_used = false; }
    s->block_leafs = s->block_nodes = NULL;
}

// Freeing a buffer that owns its memory waits for the work on it, on any thread; blocks are the test's.
static void end(struct stress * k, struct slot * s) {
    if (s->block_leafs != NULL || s->block_nodes != NULL || s->buffer_nodes == NULL) { settle(s); }
    if (rng_below(&k->rng, 2) == 0) { forget(s); }
    gcuda_backend_buffer_free(s->buffer_nodes);
    gcuda_backend_buffer_free(s->buffer_leafs);
    forget(s);
    free_blocks(s);
    s->buffer_leafs = s->buffer_nodes = NULL;
    s->busy = NULL;
}

static void place_nodes(struct stress * k, struct slot * s) {
    if (rng_below(&k->rng, 3) == 0) {
        CHECK_OK(gcuda_gallocr_alloc_graph(s->alloc, s->graph));
    } else {
        if (rng_below(&k->rng, 2) == 0) { s->block_nodes = any_block(k->blocks, N_BLOCKS, &k->rng); }
        s->buffer_nodes = place(s->nodes, s->block_nodes);
        CHECK(s->buffer_nodes != NULL);
    }
    k->n_graphs++;
    k->n_nodes += (uint64_t) gcuda_graph_n_nodes(s->graph);
}

static void begin(struct stress * k, struct slot * s, struct shape shape) {
    s->shape = shape;
    s->arena_leafs = any_block(k->arenas, N_ARENAS, &k->rng);
    s->arena_nodes = any_block(k->arenas, N_ARENAS, &k->rng);
    leafs_make(s);
    if (rng_below(&k->rng, 2) == 0) { s->block_leafs = any_block(k->blocks, N_BLOCKS, &k->rng); }
    s->buffer_leafs = place(s->leafs, s->block_leafs);
    nodes_make(s);
    place_nodes(k, s);
}

// The same graph at other addresses, with the same leafs.
static void renew(struct stress * k, struct slot * s) {
    settle(s);
    gcuda_free(s->nodes);
    arena_forbid(s->arena_nodes);
    gcuda_backend_buffer_free(s->buffer_nodes);
    if (s->block_nodes != NULL) { s->block_nodes->is_used = false; }
    s->buffer_nodes = NULL;
    s->block_nodes = NULL;
    s->arena_nodes = any_block(k->arenas, N_ARENAS, &k->rng);
    nodes_make(s);
    place_nodes(k, s);
}

static void check_run(struct stress * k, struct slot * s) {
    settle(s);
    if (k->is_hollow) { return; }
    check_results(s);
    k->n_checked++;
}

// By the cache of plans, or by the plan.
static gcuda_status run_once(struct stress * k, gcuda_backend_t backend, struct slot * s) {
    if (backend != k->backends[0] || rng_below(&k->rng, 4) != 0) {
        return gcuda_backend_graph_compute_async(backend, s->graph);
    }
    if (k->plan == NULL) {
        k->plan = gcuda_backend_graph_plan_create(backend, s->graph);
        CHECK(k->plan != NULL);
    } else {
        CHECK_OK(gcuda_backend_graph_plan_update(backend, k->plan, s->graph));
    }
    return gcuda_backend_graph_plan_compute(backend, k->plan);
}

// Node by node, with records of each.
static void toggle_profile(struct stress * k) {
    const struct gcuda_cuda_profile_record * records = NULL;
    size_t n = 0;
    if (k->is_profiled) {
        CHECK_OK(gcuda_cuda_profile_end(k->backends[1]));
        CHECK_OK(gcuda_cuda_profile_get(k->backends[1], &records, &n));
        for (size_t i = 0; i < n; ++i) { CHECK(records[i].op != NULL && records[i].n_bytes > 0); }
    } else {
        CHECK_OK(gcuda_cuda_profile_begin(k->backends[1]));
    }
    k->is_profiled = !k->is_profiled;
}

// Runs with different values; the last one may finish after everything else is freed.
static void compute(struct stress * k, struct slot * s) {
    // the last has parallel branches, each a stream in the simulator
    gcuda_backend_t backend =
        k->backends[rng_below(&k->rng, SIZE(false, s->shape.n_nodes > 64) ? N_BACKENDS - 1 : N_BACKENDS)];
    const int n = 1 + (int) rng_below(&k->rng, 3);
    settle(s); // another backend's
    for (int i = 0; i < n; ++i) {
        fill(s, (int) rng_below(&k->rng, 1000));
        CHECK_OK(run_once(k, backend, s));
        s->busy = backend;
        k->n_runs++;
        if (i + 1 < n) { check_run(k, s); }
    }
    if (rng_below(&k->rng, 3) == 0) { return; } // freed while it runs, or computed again
    if (rng_below(&k->rng, 2) == 0) { forget(s); }
    check_run(k, s);
}

static struct shape any_shape(struct stress * k) {
    const bool is_slow = SIZE(false, !k->is_hollow);
    static const enum gcuda_type types[] = { GCUDA_TYPE_F32, GCUDA_TYPE_F16, GCUDA_TYPE_Q8_0, GCUDA_TYPE_Q4_0 };
    static const int sizes[] = { 3, 3, 5, 5, 8, 16, 64, 64, 300, 300, 2000, MOST_NODES };
    static const int64_t tokens[] = { 1, 2, 9, MOST_TOKENS }; // columns by themselves, in lists of slots
    struct shape s = k->last;
    const int64_t way = rng_below(&k->rng, 4);
    if (k->n_graphs > 0 && way == 0 && (!is_slow || s.n_nodes <= 64)) { return s; } // the same once more
    s.kind = (enum kind) rng_below(&k->rng, N_KINDS);
    if (k->n_graphs == 0 || way > 1 || (is_slow && s.n_nodes > 64)) {
        s.type = types[rng_below(&k->rng, 4)];
        s.n_nodes = sizes[rng_below(&k->rng, is_slow ? 8 : 12)];
    }
    s.n_tokens = tokens[rng_below(&k->rng, s.n_nodes > 1000 || (is_slow && rng_below(&k->rng, 4) > 0) ? 2 : 4)];
    return s;
}

// The simulator takes a millisecond for a small kernel. What outlives a graph is of the host's: most of the time that
// alone runs.
static void set_hollow(struct stress * k, bool is_hollow) {
    for (int i = 0; i < N_SLOTS; ++i) { settle(&k->slots[i]); }
    k->is_hollow = SIZE(false, is_hollow);
#if defined(GCUDAI_SIM)
    sim_skip(is_hollow ? 1 : 0);
#else
    (void) is_hollow;
#endif
}

static void step(struct stress * k) {
    if (rng_below(&k->rng, k->is_hollow ? 100 : 10) == 0) { set_hollow(k, !k->is_hollow); }
    struct slot * s = &k->slots[rng_below(&k->rng, N_SLOTS)];
    const bool is_too_slow = SIZE(false, !k->is_hollow && s->shape.n_nodes > 64);
    if (s->nodes == NULL || is_too_slow || rng_below(&k->rng, 2) == 0) {
        const struct shape shape = any_shape(k);
        end(k, s);
        begin(k, s, shape);
        k->last = shape;
    } else if (rng_below(&k->rng, 2) == 0) {
        renew(k, s);
    }
    compute(k, s);
    if (rng_below(&k->rng, 60) == 0) { // a backend with all its plans
        const int i = (int) rng_below(&k->rng, N_BACKENDS);
        for (int j = 0; j < N_SLOTS; ++j) { settle(&k->slots[j]); }
        backend_end(k, i);
        k->backends[i] = backend_new(i);
    }
    if (rng_below(&k->rng, k->is_profiled ? 5 : 50) == 0) { toggle_profile(k); }
}

static void stress_begin(struct stress * k) {
    memset(k, 0, sizeof *k);
    k->rng = rng_for("lifetimes");
    for (int i = 0; i < N_BACKENDS; ++i) { k->backends[i] = backend_new(i); }
    for (int i = 0; i < N_ARENAS; ++i) {
        k->arenas[i].memory = (char *) malloc(arena_bytes());
        arena_forbid(&k->arenas[i]);
    }
    for (int i = 0; i < N_BLOCKS; ++i) {
        CHECK(cudaMalloc((void **) &k->blocks[i].memory, BLOCK_BYTES) == cudaSuccess);
    }
    for (int i = 0; i < N_SLOTS; ++i) { k->slots[i].alloc = gcuda_gallocr_new(gcuda_backend_cuda_buffer_type(0)); }
}

static void stress_end(struct stress * k) {
    set_hollow(k, false);
    for (int i = 0; i < N_SLOTS; ++i) {
        settle(&k->slots[i]);
        end(k, &k->slots[i]);
        gcuda_gallocr_free(k->slots[i].alloc);
    }
    for (int i = 0; i < N_BACKENDS; ++i) { backend_end(k, i); }
    for (int i = 0; i < N_ARENAS; ++i) {
        ASAN_UNPOISON_MEMORY_REGION(k->arenas[i].memory, arena_bytes());
        free(k->arenas[i].memory);
    }
    for (int i = 0; i < N_BLOCKS; ++i) { CHECK(cudaFree(k->blocks[i].memory) == cudaSuccess); }
}

static void tell(const struct stress * k, double seconds) {
    const struct gcuda_cuda_plan_stats * s = &k->sums;
    printf("  %.1f s: %llu graphs of %llu nodes in all, %llu runs, %llu compared; plans "
           "made %llu, reused %llu, updated %llu, evicted %llu; captures %llu, "
           "graph launches %llu\n",
        seconds, (unsigned long long) k->n_graphs, (unsigned long long) k->n_nodes, (unsigned long long) k->n_runs,
        (unsigned long long) k->n_checked, (unsigned long long) s->n_made, (unsigned long long) s->n_reused,
        (unsigned long long) s->n_updated, (unsigned long long) s->n_evicted, (unsigned long long) s->n_captures,
        (unsigned long long) s->n_graph_launches);
}

TEST(graphs_come_and_go) {
    static struct stress k;
    const char * text = getenv("GCUDA_TEST_LIFETIMES_S");
    const double length = text != NULL && *text != '\0' ? atof(text) : test_full() ? SIZE(60.0, 20.0) : 2.0;
    REQUIRE(gcuda_backend_cuda_get_device_count() > 0);
    stress_begin(&k);
    const int64_t start = gcuda_time_us();
    while ((double) (gcuda_time_us() - start) * 1e-6 < length && test_all.n_bad_checks == 0) { step(&k); }
    stress_end(&k);
    tell(&k, (double) (gcuda_time_us() - start) * 1e-6);
    if (k.n_graphs >= 1000) { // what is drawn must have met these by then
        CHECK(k.n_checked > 0 && k.sums.n_evicted > 0 && k.sums.n_reused > 0 && k.sums.n_updated > 0 &&
              k.sums.n_graph_launches > 0);
    }
}

// Every kind with as many nodes as graphs have here, run by node, captured and replayed. Simulated, a kind takes
// seconds.
TEST(the_largest_graphs) {
    static struct stress k;
    REQUIRE(gcuda_backend_cuda_get_device_count() > 0);
    stress_begin(&k);
    for (int kind = SIZE(0, test_full() ? 0 : SAME_PAIR);
         kind < SIZE(N_KINDS, test_full() ? N_KINDS : SAME_PAIR + 1) && test_all.n_bad_checks == 0; ++kind) {
        struct slot * s = &k.slots[kind % N_SLOTS];
        const struct shape shape = { (enum kind) kind, kind % 2 == 0 ? GCUDA_TYPE_Q8_0 : GCUDA_TYPE_F16, MOST_NODES,
            1 };
        end(&k, s);
        begin(&k, s, shape);
        for (int run = 0; run < SIZE(4, 2); ++run) {
            fill(s, run);
            CHECK_OK(gcuda_backend_graph_compute(k.backends[kind % SIZE(N_BACKENDS, N_BACKENDS - 1)], s->graph));
            check_results(s);
        }
    }
    stress_end(&k);
}

// ---- buffers at addresses of others ----

// Two scales in memory at `memory`, described at the same addresses each time. of_device: the buffer is the device's,
// else the CPU's.
static gcuda_status compute_at(
    gcuda_backend_t backend, struct block * arena, char * memory, bool of_device, const void ** where) {
    struct gcuda_context * ctx = arena_begin(arena);
    struct gcuda_tensor *x = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F32, 64),
                        *y = gcuda_scale(ctx, gcuda_scale(ctx, x, 2.0f), 2.0f);
    struct gcuda_cgraph * graph = gcuda_new_graph(ctx);
    CHECK_OK(gcuda_build_forward_expand(graph, y));
    gcuda_backend_buffer_t buffer = of_device ? gcuda_backend_cuda_buffer_from_ptr(0, memory, 4096)
                                              : gcuda_backend_cpu_buffer_from_ptr(memory, 4096);
    struct gcuda_tallocr all = gcuda_tallocr_new(buffer);
    for (struct gcuda_tensor * t = gcuda_get_first_tensor(ctx); t != NULL; t = gcuda_get_next_tensor(ctx, t)) {
        CHECK_OK(gcuda_tallocr_alloc(&all, t));
    }
    const void * all_where[] = { buffer, x, x->data, y, y->data };
    memcpy(where, all_where, sizeof all_where);
    if (of_device) { CHECK_OK(gcuda_backend_tensor_memset(x, 0, 0, gcuda_nbytes(x))); }
    const gcuda_status st = gcuda_backend_graph_compute(backend, graph);
    gcuda_backend_buffer_free(buffer);
    gcuda_free(ctx);
    arena_forbid(arena);
    return st;
}

// A plan is of a buffer, not of its address: the memory of the second is not the device's to use.
TEST(another_buffer_at_the_address_of_one_that_was_freed) {
    struct block arena = { (char *) malloc(arena_bytes()), false };
    const void *where[5], *now[5];
    char * memory = NULL;
    gcuda_shutdown();
    recycled_begin();
    gcuda_backend_t backend = backend_new(0);
    REQUIRE(backend != NULL && cudaMalloc((void **) &memory, 4096) == cudaSuccess);
    arena_forbid(&arena);
    CHECK_OK(compute_at(backend, &arena, memory, true, where));
    for (int i = 0; i < 4; ++i) {
        const bool of_device = i % 2 == 0;
        const gcuda_status st = compute_at(backend, &arena, memory, of_device, now);
        CHECK(memcmp(now, where, sizeof now) == 0); // or this asks nothing
        CHECK_EQ_I(st, of_device ? GCUDA_STATUS_SUCCESS : GCUDA_STATUS_INVALID_ARGUMENT);
        if (!of_device) { CHECK_HAS(gcuda_last_error(), "has no memory on CUDA0"); }
    }
    gcuda_backend_free(backend);
    CHECK(cudaFree(memory) == cudaSuccess);
    gcuda_shutdown();
    ASAN_UNPOISON_MEMORY_REGION(arena.memory, arena_bytes());
    free(arena.memory);
}
