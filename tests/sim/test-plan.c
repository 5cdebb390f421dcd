// Compiled plans on the simulated device: results computed once, updates after changes, the cache and its bounds, CUDA
// graphs. Each allocation and each CUDA call fails once.
#define GCUDA_IMPLEMENTATION
#include "gcuda.h"

#include <math.h>
#include <pthread.h>
#include <time.h>

#include "sim-test.h"

enum { N = 96, M = 40 };

// Two layers' worth of ordinary operations; a view of `cache` that moves, and a product.
struct model {
    struct place p;
    struct gcuda_tensor *x, *w, *cache, *view, *rows, *y;
    struct gcuda_cgraph * graph;
};

static bool model_make(struct model * m, gcuda_backend_t backend, int64_t n_columns, int64_t offset) {
    memset(m, 0, sizeof *m);
    m->p = place_begin();
    struct gcuda_context * ctx = m->p.ctx;
    m->x = gcuda_new_tensor_2d(ctx, GCUDA_TYPE_F32, N, n_columns);
    m->w = gcuda_new_tensor_2d(ctx, GCUDA_TYPE_F32, N, M);
    m->cache = gcuda_new_tensor_2d(ctx, GCUDA_TYPE_F32, M, 64);
    m->rows = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_I32, n_columns);
    struct gcuda_tensor * product = gcuda_mul_mat(ctx, m->w, gcuda_rms_norm(ctx, m->x, 1e-5f));
    m->view = gcuda_view_2d(ctx, m->cache, M, n_columns, m->cache->nb[1], (size_t) offset * m->cache->nb[1]);
    struct gcuda_tensor * put = gcuda_cpy(ctx, product, m->view);
    m->y = gcuda_soft_max(ctx, gcuda_scale(ctx, gcuda_get_rows(ctx, put, m->rows), 0.5f));
    gcuda_set_output(m->y);
    m->graph = gcuda_new_graph(ctx);
    return m->y != NULL && gcuda_build_forward_expand(m->graph, m->y) == GCUDA_STATUS_SUCCESS &&
           place_alloc(&m->p, backend);
}

static void model_fill(struct model * m, int seed) {
    float v[N * 64]; // of several threads
    int32_t rows[64];
    const size_t n_x = gcuda_nelements(m->x), n_w = gcuda_nelements(m->w);
    for (size_t i = 0; i < n_x; ++i) { v[i] = (float) ((i * 37 + (size_t) seed * 11) % 23) - 11.0f; }
    CHECK_OK(gcuda_backend_tensor_set(m->x, v, 0, n_x * sizeof(float)));
    for (size_t i = 0; i < n_w; ++i) { v[i] = (float) ((i * 13 + (size_t) seed * 5) % 17) / 17.0f - 0.5f; }
    CHECK_OK(gcuda_backend_tensor_set(m->w, v, 0, n_w * sizeof(float)));
    for (int i = 0; i < (int) m->rows->ne[0]; ++i) { rows[i] = (int) m->rows->ne[0] - 1 - i; }
    CHECK_OK(gcuda_backend_tensor_set(m->rows, rows, 0, gcuda_nbytes(m->rows)));
    CHECK_OK(gcuda_backend_tensor_memset(m->cache, 0, 0, gcuda_nbytes(m->cache)));
}

static gcuda_backend_t backend_with(int max_plans, enum gcuda_cuda_switch graphs) {
    struct gcuda_cuda_params params;
    memset(&params, 0, sizeof params);
    params.max_plans = max_plans;
    params.graphs = graphs;
    return gcuda_backend_cuda_init_params(&params);
}

static struct gcuda_cuda_plan_stats stats_of(gcuda_backend_t backend) {
    struct gcuda_cuda_plan_stats s;
    CHECK_OK(gcuda_backend_cuda_get_plan_stats(backend, &s));
    return s;
}

// Both backends on the current data: equal bits in the result and in the cache.
static void expect_same(
    struct model * m, gcuda_backend_t plain, gcuda_backend_t planned, gcuda_backend_graph_plan_t plan) {
    static float want[M * 64], got[M * 64], want_cache[M * 64], got_cache[M * 64];
    CHECK_OK(gcuda_backend_graph_compute(plain, m->graph));
    CHECK_OK(gcuda_backend_tensor_get(m->y, want, 0, gcuda_nbytes(m->y)));
    CHECK_OK(gcuda_backend_tensor_get(m->cache, want_cache, 0, gcuda_nbytes(m->cache)));
    CHECK_OK(gcuda_backend_tensor_memset(m->y, 0xff, 0, gcuda_nbytes(m->y)));
    CHECK_OK(gcuda_backend_tensor_memset(m->cache, 0, 0, gcuda_nbytes(m->cache)));
    if (plan != NULL) {
        CHECK_OK(gcuda_backend_graph_plan_compute(planned, plan));
        CHECK_OK(gcuda_backend_synchronize(planned));
    } else {
        CHECK_OK(gcuda_backend_graph_compute(planned, m->graph));
    }
    CHECK_OK(gcuda_backend_tensor_get(m->y, got, 0, gcuda_nbytes(m->y)));
    CHECK_OK(gcuda_backend_tensor_get(m->cache, got_cache, 0, gcuda_nbytes(m->cache)));
    CHECK(memcmp(want, got, gcuda_nbytes(m->y)) == 0);
    CHECK(memcmp(want_cache, got_cache, gcuda_nbytes(m->cache)) == 0);
    CHECK_OK(gcuda_backend_tensor_memset(m->cache, 0, 0, gcuda_nbytes(m->cache)));
}

static void move_view(struct model * m, int64_t row) {
    CHECK_OK(gcuda_graph_move_view(m->graph, m->view, (size_t) row * m->cache->nb[1]));
}

// =====================================================================================================================
// >>plans
// =====================================================================================================================
TEST(a_plan_gives_the_bits_of_its_nodes_run_after_run) {
    for (uint64_t seed = 0; seed < (test_full() ? 40u : 4u); ++seed) {
        fresh(1, 64 * MB, seed);
        gcuda_backend_t plain = backend_with(-1, GCUDA_CUDA_OFF), planned = backend_with(0, GCUDA_CUDA_AUTO);
        struct model m;
        REQUIRE(plain != NULL && planned != NULL && model_make(&m, plain, 7, 3));
        gcuda_backend_graph_plan_t plan = gcuda_backend_graph_plan_create(planned, m.graph);
        REQUIRE(plan != NULL);
        for (int run = 0; run < 5; ++run) {
            model_fill(&m, run);
            expect_same(&m, plain, planned, plan);
        }
        const struct gcuda_cuda_plan_stats s = stats_of(planned);
        const uint64_t graphs = GCUDA_SIM_CC >= 700; // AUTO
        CHECK(s.n_made == 1 && s.n_captures == graphs && s.n_graph_launches == 4 * graphs && s.n_plans == 0 &&
              s.n_bytes == 0);
        CHECK(stats_of(plain).n_made == 0);
        gcuda_backend_graph_plan_free(planned, plan);
        place_end(&m.p);
        gcuda_backend_free(planned);
        gcuda_backend_free(plain);
    }
    clean();
}

TEST(a_plan_follows_views_that_moved_and_other_parameters_when_told) {
    gcuda_backend_t plain = backend_with(-1, GCUDA_CUDA_OFF), planned = backend_with(0, GCUDA_CUDA_ON);
    struct model m;
    REQUIRE(plain != NULL && planned != NULL && model_make(&m, plain, 5, 0));
    gcuda_backend_graph_plan_t plan = gcuda_backend_graph_plan_create(planned, m.graph);
    REQUIRE(plan != NULL);
    model_fill(&m, 1);
    for (int run = 0; run < 8; ++run) {
        move_view(&m, 5 * run);
        if (run == 4) { // the scale's factor
            struct gcuda_tensor * scale = m.y->src[0];
            const float factor = 0.25f;
            memcpy(scale->op_params, &factor, sizeof factor);
        }
        CHECK_OK(gcuda_backend_graph_plan_update(planned, plan, NULL));
        expect_same(&m, plain, planned, plan);
    }
    // it changes with each run, so there is nothing to capture
    struct gcuda_cuda_plan_stats s = stats_of(planned);
    CHECK(s.n_made == 1 && s.n_updated == 7 && s.n_graph_launches == 0 && s.n_captures == 0);
    CHECK_EQ_I(sim_counts("cudaStreamBeginCapture"), 0);
    for (int run = 0; run < 2; ++run) {
        CHECK_OK(gcuda_backend_graph_plan_update(planned, plan, NULL));
        expect_same(&m, plain, planned, plan);
    }
    s = stats_of(planned);
    CHECK(s.n_updated == 7 && s.n_graph_launches == 2 && s.n_captures == 1);
    // a node that is not what it was needs the graph
    m.x->ne[1] = m.x->ne[1] - 1;
    CHECK(gcuda_backend_graph_plan_update(planned, plan, NULL) == GCUDA_STATUS_INVALID_ARGUMENT);
    m.x->ne[1] = m.x->ne[1] + 1;
    struct model other;
    REQUIRE(model_make(&other, plain, 9, 2));
    model_fill(&other, 5);
    for (int run = 0; run < 3; ++run) {
        CHECK_OK(gcuda_backend_graph_plan_update(planned, plan, run == 0 ? other.graph : NULL));
        expect_same(&other, plain, planned, plan);
    }
    s = stats_of(planned); // the second run is captured, into the executable graph where that takes it over
    CHECK(s.n_made == 2 && s.n_graph_launches == 4 && s.n_captures == 2);
    CHECK_EQ_I(sim_counts("cudaGraphExecUpdate"), 1);
    gcuda_backend_graph_plan_free(planned, plan);
    place_end(&other.p);
    place_end(&m.p);
    gcuda_backend_free(planned);
    gcuda_backend_free(plain);
    clean();
}

// Changes by the caller: the address that it writes to, and a factor.
static void change(struct model * m, int to) {
    const float factor = 0.25f + 0.5f * (float) to;
    move_view(m, 5 * (to % 8));
    memcpy(m->y->src[0]->op_params, &factor, sizeof factor);
}

// Kernel by kernel after a change; captured by the second run without one, however many runs changed before.
TEST(a_graph_is_captured_by_its_second_run_without_a_change) {
    // by runs, what it is changed to: capture at the second of equal ones, launches from there on
    static const int to[] = { 0, 1, 2, 3, 3, 3, 3, 4, 5, 5, 6, 7, 7, 6, 7, 8, 8, 8 };
    enum { N_RUNS = sizeof to / sizeof *to };
    gcuda_backend_t plain = backend_with(-1, GCUDA_CUDA_OFF), planned = backend_with(0, GCUDA_CUDA_ON);
    struct model m;
    REQUIRE(plain != NULL && planned != NULL && model_make(&m, plain, 5, 0));
    model_fill(&m, 1);
    uint64_t n_captures = 0, n_launches = 0;
    for (int run = 0; run < N_RUNS; ++run) {
        const bool is_same = run > 0 && to[run] == to[run - 1], was_same = run > 1 && to[run - 1] == to[run - 2];
        change(&m, to[run]);
        expect_same(&m, plain, planned, NULL);
        n_launches += is_same;
        n_captures += is_same && !was_same;
        const struct gcuda_cuda_plan_stats s = stats_of(planned);
        CHECK_MSG(s.n_captures == n_captures && s.n_graph_launches == n_launches, "run %d: %d captures, %d launches",
            run, (int) s.n_captures, (int) s.n_graph_launches);
    }
    CHECK(n_captures == 4 && n_launches == 7 && stats_of(planned).n_made == 1);
    CHECK_EQ_I(sim_counts("cudaGraphInstantiate"), 1);
    CHECK_EQ_I(sim_counts("cudaGraphExecUpdate"), 3);
    place_end(&m.p);
    gcuda_backend_free(planned);
    gcuda_backend_free(plain);
    clean();
}

// Steps of one launch, of several, with scratch, and without a launch. Each changes twice and is run kernel by kernel,
// captured and replayed.
static void change_each_step(enum gcuda_cuda_switch overlap) {
    enum { LONG = 50000, N_STEPS = 9 };
    struct gcuda_cuda_params params;
    memset(&params, 0, sizeof params);
    params.graphs = GCUDA_CUDA_ON;
    params.overlap = overlap;
    gcuda_backend_t plain = backend_with(-1, GCUDA_CUDA_OFF), planned = gcuda_backend_cuda_init_params(&params);
    struct place p = place_begin();
    REQUIRE(plain != NULL && planned != NULL);
    struct gcuda_tensor *x = gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_F32, LONG), *y = x, *node[N_STEPS];
    struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
    for (int i = 0; i < N_STEPS; ++i) { // a norm of a long row is several launches and has scratch
        y = i % 3 == 0   ? gcuda_rms_norm(p.ctx, y, 1e-5f)
            : i % 3 == 1 ? gcuda_scale(p.ctx, y, 1.5f)
                         : gcuda_leaky_relu(p.ctx, y, 0.5f, false);
        gcuda_set_output(y);
        node[i] = y;
        CHECK_OK(gcuda_build_forward_expand(graph, y));
    }
    REQUIRE(place_alloc(&p, plain));
    static float v[LONG], want[N_STEPS][LONG], got[LONG];
    for (int i = 0; i < LONG; ++i) { v[i] = (float) (i % 91) - 45.0f; }
    CHECK_OK(gcuda_backend_tensor_set(x, v, 0, sizeof v));
    for (int run = 0; run <= 2 * N_STEPS; ++run) {
        const float other = 0.6f + 0.25f * (float) run;
        if (run > 0) { memcpy(node[run % N_STEPS]->op_params, &other, sizeof other); }
        CHECK_OK(gcuda_backend_graph_compute(plain, graph));
        for (int i = 0; i < N_STEPS; ++i) { CHECK_OK(gcuda_backend_tensor_get(node[i], want[i], 0, sizeof got)); }
        for (int k = 0; k < 3; ++k) {
            for (int i = 0; i < N_STEPS; ++i) { CHECK_OK(gcuda_backend_tensor_memset(node[i], 0xff, 0, sizeof got)); }
            CHECK_OK(gcuda_backend_graph_compute(planned, graph));
            for (int i = 0; i < N_STEPS; ++i) {
                CHECK_OK(gcuda_backend_tensor_get(node[i], got, 0, sizeof got));
                CHECK_MSG(memcmp(want[i], got, sizeof got) == 0, "run %d, time %d, step %d", run, k, i);
            }
        }
    }
    const struct gcuda_cuda_plan_stats s = stats_of(planned);
    CHECK(s.n_made == 1 && s.n_updated == 2 * N_STEPS && s.n_captures == 2 * N_STEPS + 1);
    CHECK(s.n_graph_launches == 2 * s.n_captures);
    CHECK_EQ_I(sim_counts("cudaGraphInstantiate"), 1);
    CHECK_EQ_I(sim_counts("cudaGraphExecUpdate"), 2 * N_STEPS);
    place_end(&p);
    gcuda_backend_free(planned);
    gcuda_backend_free(plain);
    clean();
}

TEST(each_step_that_changes_is_captured_again) {
    change_each_step(GCUDA_CUDA_OFF);
    change_each_step(GCUDA_CUDA_ON);
}

// If the executable graph cannot be updated with a capture, it is instantiated again; results do not change.
TEST(an_executable_graph_that_cannot_be_updated_is_made_anew) {
    gcuda_backend_t plain = backend_with(-1, GCUDA_CUDA_OFF), planned = backend_with(0, GCUDA_CUDA_ON);
    struct model m;
    REQUIRE(plain != NULL && planned != NULL && model_make(&m, plain, 5, 0));
    model_fill(&m, 4);
    for (int run = 0; run < 8; ++run) { // each change is run twice
        if (run == 4) { sim_fail("cudaGraphExecUpdate", 1, cudaErrorGraphExecUpdateFailure); }
        change(&m, run / 2);
        expect_same(&m, plain, planned, NULL);
    }
    sim_fail("cudaGraphExecUpdate", 0, cudaSuccess);
    const struct gcuda_cuda_plan_stats s = stats_of(planned);
    CHECK(s.n_captures == 4 && s.n_graph_launches == 4);
    CHECK_EQ_I(sim_counts("cudaGraphExecUpdate"), 3);
    CHECK_EQ_I(sim_counts("cudaGraphInstantiate"), 2);
    place_end(&m.p);
    gcuda_backend_free(planned);
    gcuda_backend_free(plain);
    clean();
}

// A view that moves to where another kernel has to be taken.
TEST(another_kernel_is_captured_too) {
    gcuda_backend_t plain = backend_with(-1, GCUDA_CUDA_OFF), planned = backend_with(0, GCUDA_CUDA_ON);
    struct place p = place_begin();
    REQUIRE(plain != NULL && planned != NULL);
    struct gcuda_tensor *x = gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_F32, 64),
                        *w = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, 256, 8);
    struct gcuda_tensor *view = gcuda_view_1d(p.ctx, x, 32, 0), *a = gcuda_scale(p.ctx, w, 2.0f),
                        *b = gcuda_sum_rows(p.ctx, a);
    struct gcuda_tensor * u = gcuda_unary(p.ctx, view, GCUDA_UNARY_OP_NEG);
    gcuda_set_output(u);
    gcuda_set_output(b);
    struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
    CHECK_OK(gcuda_build_forward_expand(graph, b));
    CHECK_OK(gcuda_build_forward_expand(graph, u));
    REQUIRE(place_alloc(&p, plain));
    float v[64], got[32];
    for (int i = 0; i < 64; ++i) { v[i] = (float) i; }
    CHECK_OK(gcuda_backend_tensor_set(x, v, 0, sizeof v));
    CHECK_OK(gcuda_backend_tensor_memset(w, 0, 0, gcuda_nbytes(w)));
    for (int run = 0; run < 8; ++run) {
        const size_t at = (size_t) (run < 5 ? 4 * run : run); // later at places that are no multiples of 16 bytes
        view->view_offs = at * sizeof(float);
        view->data = (char *) x->data + view->view_offs;
        memcpy(view->op_params, &view->view_offs, sizeof view->view_offs);
        const int32_t op = run == 7 ? (int32_t) GCUDA_UNARY_OP_ABS : (int32_t) GCUDA_UNARY_OP_NEG;
        memcpy(u->op_params, &op, sizeof op);
        for (int k = 0; k < 3; ++k) {
            CHECK_OK(gcuda_backend_tensor_memset(u, 0xff, 0, sizeof got));
            CHECK_OK(gcuda_backend_graph_compute(planned, graph));
            CHECK_OK(gcuda_backend_tensor_get(u, got, 0, sizeof got));
            for (int i = 0; i < 32; ++i) { CHECK(got[i] == (run == 7 ? 1.0f : -1.0f) * (float) (i + (int) at)); }
        }
    }
    const struct gcuda_cuda_plan_stats s = stats_of(planned);
    CHECK(s.n_updated == 7 && s.n_captures == 8 && s.n_graph_launches == 16);
    place_end(&p);
    gcuda_backend_free(planned);
    gcuda_backend_free(plain);
    clean();
}

// ---- sources after an absent one: sinks without a mask ----

enum { SINKS_HEADS = 4, SINKS_PLACES = 8 };
struct sinks_graph {
    struct gcuda_context * ctx;
    struct gcuda_cgraph * graph;
    struct gcuda_tensor *sinks, *y;
    gcuda_backend_buffer_t buffer; // of y
};

// soft_max or flash_attn_ext of what is in `data`, with those of the places' sinks.
static bool sinks_make(struct sinks_graph * g, gcuda_backend_t backend, struct gcuda_tensor * const * data,
    struct gcuda_tensor * places, int place, bool is_attention) {
    const struct gcuda_init_params params = { 0, NULL, true };
    memset(g, 0, sizeof *g);
    g->ctx = gcuda_init(params);
    g->sinks = gcuda_view_1d(g->ctx, places, SINKS_HEADS, (size_t) place * places->nb[1]);
    g->y = is_attention ? gcuda_flash_attn_ext(g->ctx, data[0], data[1], data[2], NULL, 0.25f, 0.0f, 0.0f)
                        : gcuda_soft_max_ext(g->ctx, data[0], NULL, 0.25f, 0.0f);
    if (is_attention) {
        CHECK_OK(gcuda_flash_attn_ext_add_sinks(g->y, g->sinks));
    } else {
        CHECK_OK(gcuda_soft_max_add_sinks(g->y, g->sinks));
    }
    gcuda_set_output(g->y);
    g->graph = gcuda_new_graph(g->ctx);
    g->buffer = gcuda_build_forward_expand(g->graph, g->y) == GCUDA_STATUS_SUCCESS
                    ? gcuda_backend_alloc_ctx_tensors(g->ctx, backend)
                    : NULL;
    return g->buffer != NULL;
}

static void sinks_end(struct sinks_graph * g) {
    gcuda_backend_buffer_free(g->buffer);
    gcuda_free(g->ctx);
}

static void expect_same_sinks(struct sinks_graph * g, gcuda_backend_t plain, gcuda_backend_t planned, int run) {
    static float want[16 * 32 * SINKS_HEADS], got[16 * 32 * SINKS_HEADS];
    CHECK_OK(gcuda_backend_graph_compute(plain, g->graph));
    CHECK_OK(gcuda_backend_tensor_get(g->y, want, 0, gcuda_nbytes(g->y)));
    CHECK_OK(gcuda_backend_tensor_memset(g->y, 0xff, 0, gcuda_nbytes(g->y)));
    CHECK_OK(gcuda_backend_graph_compute(planned, g->graph));
    CHECK_OK(gcuda_backend_tensor_get(g->y, got, 0, gcuda_nbytes(g->y)));
    CHECK_MSG(memcmp(want, got, gcuda_nbytes(g->y)) == 0, "run %d: %s of other sinks", run, gcuda_op_desc(g->y));
}

static void check_sinks(gcuda_backend_t plain, gcuda_backend_t planned, bool is_attention) {
    struct place p = place_begin();
    struct gcuda_tensor *data[3], *places = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, 64, SINKS_PLACES);
    for (int i = 0; i < 3; ++i) {
        data[i] = gcuda_new_tensor_3d(p.ctx, i == 0 ? GCUDA_TYPE_F32 : GCUDA_TYPE_F16, 16, 32, SINKS_HEADS);
    }
    REQUIRE(place_alloc(&p, plain));
    float v[16 * 32 * SINKS_HEADS], logits[64 * SINKS_PLACES];
    for (int i = 0; i < 16 * 32 * SINKS_HEADS; ++i) { v[i] = (float) (i * 37 % 23) / 7.0f - 1.5f; }
    for (int i = 0; i < 64 * SINKS_PLACES; ++i) { logits[i] = (float) (i / 64) - 3.0f + (float) (i % 64) / 8.0f; }
    CHECK_OK(gcuda_backend_tensor_set(places, logits, 0, sizeof logits));
    for (int i = 0; i < 3; ++i) {
        uint16_t halves[16 * 32 * SINKS_HEADS];
        gcuda_fp32_to_fp16_row(v, halves, 16 * 32 * SINKS_HEADS);
        CHECK_OK(gcuda_backend_tensor_set(data[i], i == 0 ? (void *) v : (void *) halves, 0, gcuda_nbytes(data[i])));
    }
    for (int run = 0; run < 24; ++run) { // built again each time, and changed in place
        struct sinks_graph g;
        REQUIRE(sinks_make(&g, plain, data, places, run * 3 % SINKS_PLACES, is_attention));
        expect_same_sinks(&g, plain, planned, run);
        g.sinks->data = (char *) places->data + (size_t) ((run + 1) % SINKS_PLACES) * places->nb[1];
        expect_same_sinks(&g, plain, planned, run);
        sinks_end(&g);
    }
    struct sinks_graph g; // declared to change, they may, but have to fit
    REQUIRE(sinks_make(&g, plain, data, places, 0, is_attention));
    gcuda_set_dynamic(g.sinks);
    expect_same_sinks(&g, plain, planned, 0);
    g.sinks->ne[0] = SINKS_HEADS - 1;
    CHECK(gcuda_backend_graph_compute(plain, g.graph) != GCUDA_STATUS_SUCCESS);
    CHECK(gcuda_backend_graph_compute(planned, g.graph) != GCUDA_STATUS_SUCCESS);
    CHECK_HAS(gcuda_last_error(), is_attention ? "3 sinks for 4 heads" : "one sink for each of 4 heads");
    g.sinks->ne[0] = SINKS_HEADS;
    expect_same_sinks(&g, plain, planned, 1);
    sinks_end(&g);
    place_end(&p);
}

TEST(a_plan_follows_sources_behind_an_absent_one) {
    for (int graphs = 0; graphs < 2; ++graphs) {
        for (int is_attention = 0; is_attention < 2; ++is_attention) {
            gcuda_backend_t plain = backend_with(-1, GCUDA_CUDA_OFF);
            gcuda_backend_t planned = backend_with(0, graphs ? GCUDA_CUDA_ON : GCUDA_CUDA_OFF);
            REQUIRE(plain != NULL && planned != NULL);
            check_sinks(plain, planned, is_attention != 0);
            gcuda_backend_free(planned);
            gcuda_backend_free(plain);
        }
    }
    clean();
}

TEST(a_plan_that_cannot_be_made_says_why) {
    gcuda_backend_t backend = gcuda_backend_cuda_init(0), cpu = gcuda_backend_cpu_init();
    struct model m, on_cpu;
    REQUIRE(backend != NULL && cpu != NULL && model_make(&m, backend, 5, 0) && model_make(&on_cpu, cpu, 5, 0));
    CHECK(gcuda_backend_graph_plan_create(backend, on_cpu.graph) == NULL);
    CHECK_HAS(gcuda_last_error(), "has no memory on CUDA0");
    CHECK(gcuda_backend_graph_compute(backend, on_cpu.graph) == GCUDA_STATUS_INVALID_ARGUMENT);
    gcuda_backend_graph_plan_t plan = gcuda_backend_graph_plan_create(backend, m.graph);
    REQUIRE(plan != NULL);
    model_fill(&m, 1);
    CHECK_OK(gcuda_backend_graph_plan_compute(backend, plan));
    CHECK_OK(gcuda_backend_graph_compute(backend, m.graph));
    // same shape, other memory: found in the cache, and refused
    CHECK(gcuda_backend_graph_compute(backend, on_cpu.graph) == GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_HAS(gcuda_last_error(), "has no memory on CUDA0");
    CHECK(gcuda_backend_graph_plan_update(backend, plan, on_cpu.graph) == GCUDA_STATUS_INVALID_ARGUMENT);
    void * data = m.x->data;
    m.x->data = NULL; // a plan whose update failed, fails again, until it can be
    CHECK(gcuda_backend_graph_plan_update(backend, plan, NULL) == GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK(gcuda_backend_graph_plan_update(backend, plan, NULL) == GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK(gcuda_backend_graph_compute(backend, m.graph) == GCUDA_STATUS_INVALID_ARGUMENT);
    m.x->data = data;
    CHECK_OK(gcuda_backend_graph_plan_update(backend, plan, NULL));
    CHECK_OK(gcuda_backend_graph_plan_compute(backend, plan));
    CHECK_OK(gcuda_backend_graph_compute(backend, m.graph));
    gcuda_backend_graph_plan_free(backend, plan);
    struct gcuda_cuda_plan_stats s;
    CHECK(gcuda_backend_cuda_get_plan_stats(cpu, &s) == GCUDA_STATUS_INVALID_ARGUMENT &&
          gcuda_backend_cuda_get_plan_stats(backend, NULL) == GCUDA_STATUS_INVALID_ARGUMENT &&
          gcuda_backend_cuda_clear_plans(cpu) == GCUDA_STATUS_INVALID_ARGUMENT &&
          gcuda_backend_graph_plan_update(backend, NULL, m.graph) == GCUDA_STATUS_INVALID_ARGUMENT);
    place_end(&on_cpu.p);
    place_end(&m.p);
    gcuda_backend_free(cpu);
    gcuda_backend_free(backend);
    clean();
}

// =====================================================================================================================
// >>cache
// =====================================================================================================================
TEST(a_graph_finds_its_plan_by_shape) {
    gcuda_backend_t plain = backend_with(-1, GCUDA_CUDA_OFF), planned = backend_with(0, GCUDA_CUDA_ON);
    struct model m[6];
    REQUIRE(plain != NULL && planned != NULL);
    for (int i = 0; i < 6; ++i) {
        REQUIRE(model_make(&m[i], plain, 5, 0));
        model_fill(&m[i], i);
    }
    for (int run = 0; run < 3; ++run) { expect_same(&m[0], plain, planned, NULL); }
    struct gcuda_cuda_plan_stats s = stats_of(planned);
    CHECK(s.n_made == 1 && s.n_plans == 1 && s.n_reused == 2 && s.n_updated == 0 && s.n_captures == 1 &&
          s.n_graph_launches == 2);
    CHECK(s.n_bytes > 0);
    for (int run = 0; run < 3; ++run) { // with other weights they keep separate plans
        for (int i = 0; i < 6; ++i) { expect_same(&m[i], plain, planned, NULL); }
    }
    s = stats_of(planned);
    CHECK(s.n_made == 6 && s.n_plans == 6 && s.n_updated == 0 && s.n_captures == 6);
    move_view(&m[5], 7); // in place
    expect_same(&m[5], plain, planned, NULL);
    CHECK(stats_of(planned).n_updated == 1 && stats_of(planned).n_made == 6);
    CHECK_OK(gcuda_backend_cuda_clear_plans(planned));
    s = stats_of(planned);
    CHECK(s.n_plans == 0 && s.n_bytes == 0 && s.n_made == 6);
    expect_same(&m[1], plain, planned, NULL);
    for (int i = 0; i < 6; ++i) { place_end(&m[i].p); }
    gcuda_backend_free(planned);
    gcuda_backend_free(plain);
    clean();
}

// The same model with results in other memory: up to four take turns, more follow one another.
TEST(a_few_runs_of_one_model_keep_plans_of_their_own) {
    gcuda_backend_t planned = backend_with(0, GCUDA_CUDA_ON);
    struct place weights = place_begin(), runs[6];
    struct gcuda_tensor *leaf[5], *y[6];
    struct gcuda_cgraph * graph[6];
    for (int k = 0; k < 5; ++k) { leaf[k] = gcuda_new_tensor_2d(weights.ctx, GCUDA_TYPE_F32, N, N); }
    REQUIRE(planned != NULL && place_alloc(&weights, planned));
    for (int k = 0; k < 5; ++k) { CHECK_OK(gcuda_backend_tensor_memset(leaf[k], 0, 0, gcuda_nbytes(leaf[k]))); }
    for (int i = 0; i < 6; ++i) {
        runs[i] = place_begin();
        y[i] = gcuda_mul_mat(runs[i].ctx, leaf[0], leaf[1]);
        for (int k = 2; k < 5; ++k) { y[i] = gcuda_mul_mat(runs[i].ctx, leaf[k], y[i]); }
        graph[i] = gcuda_new_graph(runs[i].ctx);
        REQUIRE(gcuda_build_forward_expand(graph[i], y[i]) == GCUDA_STATUS_SUCCESS && place_alloc(&runs[i], planned));
    }
    for (int i = 0; i < 12; ++i) { CHECK_OK(gcuda_backend_graph_compute(planned, graph[i % 4])); }
    struct gcuda_cuda_plan_stats s = stats_of(planned);
    CHECK(s.n_made == 4 && s.n_plans == 4 && s.n_updated == 0);
    for (int i = 0; i < 6; ++i) { CHECK_OK(gcuda_backend_graph_compute(planned, graph[i])); }
    s = stats_of(planned);
    CHECK(s.n_made == 4 && s.n_plans == 4 && s.n_updated == 2);
    for (int i = 0; i < 6; ++i) { place_end(&runs[i]); }
    place_end(&weights);
    gcuda_backend_free(planned);
    clean();
}

// Attention over the first n rows of a cache, twice: with flash_attn_ext, and with two products and soft_max.
enum { HEAD = 32, HEADS = 2, QUERIES = 3, ROWS = 64 };
struct attention {
    gcuda_backend_t backend; // of weights and results
    struct place weights;
    struct gcuda_tensor *q, *k, *v, *w; // v: rows are channels
    struct gcuda_context * ctx;         // what is built again for each run
    gcuda_gallocr_t alloc;
    struct gcuda_tensor *mask, *y;
    struct gcuda_cgraph * graph;
};

static void fill_floats(struct gcuda_tensor * t, int seed) {
    float v[ROWS * HEAD * HEADS];
    const size_t n = (size_t) gcuda_nelements(t);
    for (size_t i = 0; i < n; ++i) { v[i] = (float) ((i * 29 + (size_t) seed * 7) % 31) / 31.0f - 0.4f; }
    CHECK_OK(gcuda_backend_tensor_set(t, v, 0, n * sizeof(float)));
}

static bool attention_begin(struct attention * a, gcuda_backend_t backend) {
    const struct gcuda_init_params params = { 0, NULL, true };
    memset(a, 0, sizeof *a);
    a->backend = backend;
    a->weights = place_begin();
    a->q = gcuda_new_tensor_3d(a->weights.ctx, GCUDA_TYPE_F32, HEAD, QUERIES, HEADS);
    a->k = gcuda_new_tensor_3d(a->weights.ctx, GCUDA_TYPE_F32, HEAD, ROWS, HEADS);
    a->v = gcuda_new_tensor_3d(a->weights.ctx, GCUDA_TYPE_F32, HEAD, ROWS, HEADS);
    a->w = gcuda_new_tensor_2d(a->weights.ctx, GCUDA_TYPE_F32, HEAD, HEAD);
    a->ctx = gcuda_init(params);
    a->alloc = gcuda_gallocr_new(gcuda_backend_get_default_buffer_type(backend));
    if (a->ctx == NULL || a->alloc == NULL || !place_alloc(&a->weights, backend)) { return false; }
    struct gcuda_tensor * all[] = { a->q, a->k, a->v, a->w };
    for (int i = 0; i < 4; ++i) { fill_floats(all[i], i); }
    return true;
}

static void attention_end(struct attention * a) {
    gcuda_gallocr_free(a->alloc);
    gcuda_free(a->ctx);
    place_end(&a->weights);
}

static void attention_build(struct attention * a, int64_t n, bool is_dynamic) {
    gcuda_reset(a->ctx);
    struct gcuda_context * ctx = a->ctx;
    struct gcuda_tensor * mask = a->mask = gcuda_new_tensor_2d(ctx, GCUDA_TYPE_F32, n, QUERIES);
    gcuda_set_input(mask);
    struct gcuda_tensor * q = gcuda_scale(ctx, a->q, 0.5f);
    struct gcuda_tensor * k = gcuda_view_3d(ctx, a->k, HEAD, n, HEADS, a->k->nb[1], a->k->nb[2], 0);
    struct gcuda_tensor * v = gcuda_view_3d(ctx, a->v, HEAD, n, HEADS, a->v->nb[1], a->v->nb[2], 0);
    if (is_dynamic) {
        gcuda_set_dynamic(k);
        gcuda_set_dynamic(v);
        gcuda_set_dynamic(mask);
    }
    struct gcuda_tensor * flash = gcuda_flash_attn_ext(ctx, q, k, v, mask, 0.25f, 0.0f, 0.0f); // HEAD, HEADS, QUERIES
    struct gcuda_tensor * scores = gcuda_soft_max_ext(ctx, gcuda_mul_mat(ctx, k, q), mask, 0.25f, 0.0f);
    // HEAD, QUERIES, HEADS
    struct gcuda_tensor * plain = gcuda_mul_mat(ctx, gcuda_cont(ctx, gcuda_transpose(ctx, v)), scores);
    plain = gcuda_cont(ctx, gcuda_permute(ctx, plain, 0, 2, 1, 3));
    a->y = gcuda_mul_mat(ctx, a->w, gcuda_add(ctx, flash, plain));
    gcuda_set_output(a->y);
    a->graph = gcuda_new_graph(ctx);
    CHECK_OK(gcuda_build_forward_expand(a->graph, a->y));
}

// With as much of the cache as the last build has.
static void attention_compute(struct attention * a, gcuda_backend_t by, gcuda_backend_graph_plan_t plan, float * y) {
    CHECK_OK(gcuda_gallocr_alloc_graph(a->alloc, a->graph));
    fill_floats(a->mask, (int) a->mask->ne[0]);
    if (plan != NULL) {
        CHECK_OK(gcuda_backend_graph_plan_update(by, plan, a->graph));
        CHECK_OK(gcuda_backend_graph_plan_compute(by, plan));
        CHECK_OK(gcuda_backend_synchronize(by));
    } else {
        CHECK_OK(gcuda_backend_graph_compute(by, a->graph));
    }
    CHECK_OK(gcuda_backend_tensor_get(a->y, y, 0, gcuda_nbytes(a->y)));
}

#if GCUDA_SIM_CC >= 900
// A plan that is updated to more sequences has clusters of another size in the same node of its CUDA graph.
TEST(plans_follow_the_size_of_clusters) {
    enum { SIZE = 64, POSITIONS = 5, MOST = 3 };
    static float y[SIZE * MOST], want[SIZE * MOST];
    gcuda_backend_t plain = backend_with(-1, GCUDA_CUDA_OFF), by = backend_with(0, GCUDA_CUDA_ON);
    gcuda_backend_graph_plan_t plan = NULL;
    REQUIRE(plain != NULL && by != NULL);
    for (int i = 0; i < 4; ++i) {
        struct place p = place_begin();
        const int64_t n = i % 2 == 0 ? 1 : MOST; // sequences
        struct gcuda_tensor * all[] = { gcuda_new_tensor_4d(p.ctx, GCUDA_TYPE_F32, SIZE, 1, 1, n),
            gcuda_new_tensor_4d(p.ctx, GCUDA_TYPE_F32, SIZE, POSITIONS, 1, n),
            gcuda_new_tensor_4d(p.ctx, GCUDA_TYPE_F32, SIZE, POSITIONS, 1, n) };
        struct gcuda_tensor * k = gcuda_cast(p.ctx, all[1], GCUDA_TYPE_F16);
        struct gcuda_tensor * v = gcuda_cast(p.ctx, all[2], GCUDA_TYPE_F16);
        struct gcuda_tensor * result = gcuda_flash_attn_ext(p.ctx, all[0], k, v, NULL, 0.125f, 0.0f, 0.0f);
        struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
        CHECK_OK(gcuda_build_forward_expand(graph, result));
        REQUIRE(place_alloc(&p, by));
        for (int j = 0; j < 3; ++j) { fill_floats(all[j], j); }
        CHECK_OK(gcuda_backend_graph_compute(plain, graph));
        CHECK_OK(gcuda_backend_tensor_get(result, want, 0, gcuda_nbytes(result)));
        if (plan == NULL) { plan = gcuda_backend_graph_plan_create(by, graph); }
        REQUIRE(plan != NULL);
        CHECK_OK(gcuda_backend_graph_plan_update(by, plan, graph));
        for (int run = 0; run < 3; ++run) { // kernel by kernel, then captured
            memset(y, 0xff, sizeof y);
            CHECK_OK(gcuda_backend_tensor_set(result, y, 0, gcuda_nbytes(result)));
            CHECK_OK(gcuda_backend_graph_plan_compute(by, plan));
            CHECK_OK(gcuda_backend_synchronize(by));
            CHECK_OK(gcuda_backend_tensor_get(result, y, 0, gcuda_nbytes(result)));
            CHECK_MSG(memcmp(y, want, gcuda_nbytes(result)) == 0, "%d sequences, run %d: other bits", (int) n, run);
        }
        CHECK_OK(gcuda_backend_synchronize(by));
        place_end(&p);
    }
    CHECK(stats_of(by).n_captures >= 2);
    struct place p = place_begin();
    struct gcuda_tensor * q = gcuda_new_tensor_4d(p.ctx, GCUDA_TYPE_F32, SIZE, 1, 1, 1);
    struct gcuda_tensor * kv = gcuda_new_tensor_4d(p.ctx, GCUDA_TYPE_F16, SIZE, POSITIONS, 1, 1);
    struct gcuda_tensor * result = gcuda_flash_attn_ext(p.ctx, q, kv, kv, NULL, 0.125f, 0.0f, 0.0f);
    REQUIRE(place_alloc(&p, by));
    for (int i = 0; i < 2; ++i) { // a cluster of 16: the device has none, or the query fails
        struct gcuda_flash_attn_plan chosen;
        union gcuda_args args;
        memset(&args, 0, sizeof args);
        gcudai_flash_attn_ext_args(result, &args);
        args.flash_attn_ext.max_shared = 227 << 10;
        args.flash_attn_ext.plan.path = GCUDA_FLASH_ATTN_SPLIT;
        args.flash_attn_ext.plan.n_splits = 16;
        if (i == 1) { sim_fail("cudaOccupancyMaxActiveClusters", 1, cudaErrorInvalidValue); }
        CHECK_OK(gcuda_flash_attn_ext_plan(&args.flash_attn_ext, &chosen));
        CHECK(chosen.path == GCUDA_FLASH_ATTN_SPLIT && chosen.n_splits == 1); // one tile, without clusters
        CHECK(cudaPeekAtLastError() == cudaSuccess);
    }
    sim_fail("cudaOccupancyMaxActiveClusters", 0, cudaSuccess);
    place_end(&p);
    gcuda_backend_graph_plan_free(by, plan);
    gcuda_backend_free(by);
    gcuda_backend_free(plain);
    clean();
}
#endif

static const int64_t lengths[] = { 7, 8, 9, 10, 64, 33, 34, 35, 36, 36, 1 };
enum { N_LENGTHS = sizeof lengths / sizeof *lengths };

// The bits of node by node at every length. Reserved for the longest, so that results stay where they are.
static void run_lengths(
    struct attention * a, gcuda_backend_t by, gcuda_backend_t plain, gcuda_backend_graph_plan_t plan, bool is_dynamic) {
    float want[HEAD * HEADS * QUERIES], got[HEAD * HEADS * QUERIES];
    attention_build(a, ROWS, is_dynamic);
    CHECK_OK(gcuda_gallocr_reserve(a->alloc, a->graph));
    for (int i = 0; i < N_LENGTHS; ++i) {
        attention_build(a, lengths[i], is_dynamic);
        attention_compute(a, plain, NULL, want);
        for (int k = 0; k < 2; ++k) { // kernel by kernel, then captured
            memset(got, 0xff, sizeof got);
            CHECK_OK(gcuda_backend_tensor_set(a->y, got, 0, sizeof got));
            attention_compute(a, by, plan, got);
            CHECK(memcmp(want, got, sizeof got) == 0);
        }
    }
}

TEST(a_cache_that_grows_needs_no_new_plan) {
    gcuda_backend_t plain = backend_with(-1, GCUDA_CUDA_OFF), declared = backend_with(0, GCUDA_CUDA_ON),
                    not = backend_with(0, GCUDA_CUDA_ON);
    struct attention a;
    REQUIRE(plain != NULL && declared != NULL && not != NULL && attention_begin(&a, plain));
    run_lengths(&a, declared, plain, NULL, true);
    struct gcuda_cuda_plan_stats s = stats_of(declared);
    // 36 came twice
    CHECK(s.n_made == 1 && s.n_plans == 1 && s.n_reused == 2 * N_LENGTHS - 1 && s.n_updated == N_LENGTHS - 2);
    CHECK(s.n_captures == N_LENGTHS - 1 && s.n_graph_launches == N_LENGTHS + 1);
    run_lengths(&a, not, plain, NULL, false);
    CHECK(stats_of(not ).n_made == N_LENGTHS - 1);
    // a plan of the caller's
    attention_build(&a, 5, true);
    CHECK_OK(gcuda_gallocr_alloc_graph(a.alloc, a.graph));
    gcuda_backend_graph_plan_t plan = gcuda_backend_graph_plan_create(declared, a.graph);
    REQUIRE(plan != NULL);
    run_lengths(&a, declared, plain, plan, true);
    CHECK(stats_of(declared).n_made == 2);
    gcuda_backend_graph_plan_free(declared, plan);
    attention_end(&a);
    gcuda_backend_free(not );
    gcuda_backend_free(declared);
    gcuda_backend_free(plain);
    clean();
}

// Four layers of attention with masks 0, 0, 1, 0 of n positions, which have classes from 5 tiles of 64 on;
// `is_written`: mask 0 becomes mask 1 before the third layer.
enum { MASK_TOKENS = 5, MASK_MOST = 700, MASK_LAYERS = 4 };
struct masked {
    struct place weights;
    struct gcuda_tensor *q, *k, *v, *masks[2], *y;
    struct gcuda_context * ctx;
    struct gcuda_cgraph * graph;
    gcuda_gallocr_t alloc;
};

static bool masked_begin(struct masked * m, gcuda_backend_t backend) {
    const struct gcuda_init_params params = { 0, NULL, true };
    static uint16_t halfs[MASK_MOST * HEAD];
    memset(m, 0, sizeof *m);
    m->weights = place_begin();
    m->q = gcuda_new_tensor_3d(m->weights.ctx, GCUDA_TYPE_F32, HEAD, MASK_TOKENS, 1);
    m->k = gcuda_new_tensor_3d(m->weights.ctx, GCUDA_TYPE_F16, HEAD, MASK_MOST, 1);
    m->v = gcuda_new_tensor_3d(m->weights.ctx, GCUDA_TYPE_F16, HEAD, MASK_MOST, 1);
    m->ctx = gcuda_init(params);
    m->alloc = gcuda_gallocr_new(gcuda_backend_get_default_buffer_type(backend));
    if (m->ctx == NULL || m->alloc == NULL || !place_alloc(&m->weights, backend)) { return false; }
    fill_floats(m->q, 3);
    for (int i = 0; i < 2; ++i) {
        for (int k = 0; k < MASK_MOST * HEAD; ++k) {
            halfs[k] = (uint16_t) (0x3000 + (k * 37 + 11 * i) % 0x800 + (k % 3 == 0) * 0x8000);
        }
        CHECK_OK(gcuda_backend_tensor_set(i == 0 ? m->k : m->v, halfs, 0, sizeof halfs));
    }
    return true;
}

static void masked_build(struct masked * m, int64_t n, bool is_written) {
    gcuda_reset(m->ctx);
    struct gcuda_context * ctx = m->ctx;
    struct gcuda_tensor * k = gcuda_view_3d(ctx, m->k, HEAD, n, 1, m->k->nb[1], m->k->nb[2], 0);
    struct gcuda_tensor * v = gcuda_view_3d(ctx, m->v, HEAD, n, 1, m->v->nb[1], m->v->nb[2], 0);
    struct gcuda_tensor *q = m->q, *mask[MASK_LAYERS];
    gcuda_set_dynamic(k);
    gcuda_set_dynamic(v);
    for (int i = 0; i < 2; ++i) {
        m->masks[i] = gcuda_new_tensor_2d(ctx, GCUDA_TYPE_F16, n, MASK_TOKENS);
        gcuda_set_input(m->masks[i]);
        gcuda_set_output(m->masks[i]); // stays as it is
        gcuda_set_dynamic(m->masks[i]);
    }
    for (int i = 0; i < MASK_LAYERS; ++i) { mask[i] = m->masks[i == 2]; }
    for (int i = 0; i < MASK_LAYERS; ++i) {
        if (is_written && i == 2) { mask[2] = mask[3] = gcuda_cpy(ctx, m->masks[1], m->masks[0]); }
        // HEAD, 1, MASK_TOKENS
        struct gcuda_tensor * y = gcuda_flash_attn_ext(ctx, q, k, v, mask[i], 0.25f + 0.1f * (float) i, 0.0f, 0.0f);
        q = gcuda_add(ctx, q, gcuda_cont(ctx, gcuda_permute(ctx, y, 0, 2, 1, 3)));
    }
    m->y = q;
    gcuda_set_output(m->y);
    m->graph = gcuda_new_graph(ctx);
    CHECK_OK(gcuda_build_forward_expand(m->graph, m->y));
}

// Masks that hide other tiles with every seed.
static void masked_compute(
    struct masked * m, gcuda_backend_t by, gcuda_backend_graph_plan_t plan, int seed, float * y) {
    static uint16_t mask[MASK_MOST * MASK_TOKENS];
    const int64_t n = m->masks[0]->ne[0];
    CHECK_OK(gcuda_gallocr_alloc_graph(m->alloc, m->graph));
    for (int i = 0; i < 2; ++i) {
        for (int64_t k = 0; k < n * MASK_TOKENS; ++k) {
            const int64_t j = k % n, token = k / n;
            mask[k] = (j / 64 + seed + i) % 3 == 0 || j > n - 30 + 5 * token + seed ? 0xfc00
                      : (j / 64 + seed) % 4 == 1                                    ? (uint16_t) (0x3800 + j + i)
                                                                                    : 0;
        }
        CHECK_OK(gcuda_backend_tensor_set(m->masks[i], mask, 0, (size_t) (n * MASK_TOKENS) * 2));
    }
    if (plan != NULL) {
        CHECK_OK(gcuda_backend_graph_plan_update(by, plan, m->graph));
        CHECK_OK(gcuda_backend_graph_plan_compute(by, plan));
        CHECK_OK(gcuda_backend_synchronize(by));
    } else {
        CHECK_OK(gcuda_backend_graph_compute(by, m->graph));
    }
    CHECK_OK(gcuda_backend_tensor_get(m->y, y, 0, gcuda_nbytes(m->y)));
}

static int classifying_steps(gcuda_backend_graph_plan_t plan) {
    const struct gcudai_cuda_plan * p = (const struct gcudai_cuda_plan *) plan;
    int n = 0;
    for (int i = 0; i < p->n_steps; ++i) { n += p->steps[i].makes_classes; }
    return n;
}

TEST(classes_of_a_mask_are_found_once_in_each_run) {
    static const int64_t masked_lengths[] = { 400, 400, 400, 402, 700, 330, 330, 64, 400, 400 };
    gcuda_backend_t plain = backend_with(-1, GCUDA_CUDA_OFF);
    for (int is_written = 0; is_written < 2; ++is_written) {
        for (int graphs = 0; graphs < 2; ++graphs) {
            gcuda_backend_t planned = backend_with(0, graphs ? GCUDA_CUDA_ON : GCUDA_CUDA_OFF);
            struct masked m;
            REQUIRE(plain != NULL && planned != NULL && masked_begin(&m, plain));
            masked_build(&m, MASK_MOST, is_written != 0);
            CHECK_OK(gcuda_gallocr_alloc_graph(m.alloc, m.graph));
            gcuda_backend_graph_plan_t plan = gcuda_backend_graph_plan_create(planned, m.graph);
            REQUIRE(plan != NULL);
            for (int run = 0; run < (int) (sizeof masked_lengths / sizeof *masked_lengths); ++run) {
                float want[HEAD * MASK_TOKENS], got[HEAD * MASK_TOKENS];
                const int64_t n = masked_lengths[run];
                masked_build(&m, n, is_written != 0);
                masked_compute(&m, plain, NULL, run, want);
                masked_compute(&m, planned, plan, run, got);
                CHECK_MSG(memcmp(want, got, sizeof got) == 0, "run %d, %d positions", run, (int) n);
                // written: mask 0, and again after it has changed; n 64: no classes
                CHECK_EQ_I(classifying_steps(plan), n < 300 || GCUDA_SIM_CC < 750 ? 0 : 2);
            }
            gcuda_backend_graph_plan_free(planned, plan);
            gcuda_gallocr_free(m.alloc);
            gcuda_free(m.ctx);
            place_end(&m.weights);
            gcuda_backend_free(planned);
        }
    }
    gcuda_backend_free(plain);
    clean();
}

// A plan has no room for launches of nodes that were empty when it was made.
TEST(what_is_empty_and_what_is_not_are_plans_apart) {
    gcuda_backend_t backend = backend_with(0, GCUDA_CUDA_ON);
    struct place p = place_begin();
    struct gcuda_tensor * x = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, N, 5);
    struct gcuda_cgraph * graph[3];
    for (int i = 0; i < 3; ++i) { // 0, 5 and 2 rows
        struct gcuda_tensor *view = gcuda_view_2d(p.ctx, x, N, i == 0 ? 0 : i == 1 ? 5 : 2, x->nb[1], 0), *y = view;
        gcuda_set_dynamic(view);
        for (int k = 0; k < 6; ++k) { y = gcuda_soft_max(p.ctx, y); }
        graph[i] = gcuda_new_graph(p.ctx);
        CHECK_OK(gcuda_build_forward_expand(graph[i], y));
    }
    REQUIRE(backend != NULL && place_alloc(&p, backend));
    CHECK_OK(gcuda_backend_tensor_memset(x, 0, 0, gcuda_nbytes(x)));
    for (int run = 0; run < 6; ++run) { CHECK_OK(gcuda_backend_graph_compute(backend, graph[run % 3])); }
    const struct gcuda_cuda_plan_stats s = stats_of(backend);
    CHECK(s.n_made == 2 && s.n_plans == 2 && s.n_updated == 3);
    place_end(&p);
    gcuda_backend_free(backend);
    clean();
}

// Graphs that are freed and built again, often where the last one was; shapes change all the time.
TEST(the_cache_stays_within_its_bounds) {
    for (int kind = 0; kind < 2; ++kind) {
        struct gcuda_cuda_params params;
        memset(&params, 0, sizeof params);
        params.max_plans = kind == 0 ? 3 : 0;
        params.max_plan_bytes = kind == 1 ? 60000 : 0;
        gcuda_backend_t plain = backend_with(-1, GCUDA_CUDA_OFF), planned = gcuda_backend_cuda_init_params(&params);
        REQUIRE(plain != NULL && planned != NULL);
        for (int i = 0; i < 40; ++i) {
            struct model m;
            REQUIRE(model_make(&m, plain, 1 + i * 7 % 9, i % 3));
            model_fill(&m, i);
            expect_same(&m, plain, planned, NULL);
            const struct gcuda_cuda_plan_stats s = stats_of(planned);
            CHECK(s.n_plans >= 1 && (kind == 1 || s.n_plans <= 3) &&
                  s.n_bytes <= (kind == 1 ? 60000u : (size_t) 64 * MB));
            place_end(&m.p);
        }
        CHECK(stats_of(planned).n_evicted > 5);
        gcuda_backend_free(planned);
        gcuda_backend_free(plain);
    }
    clean();
}

// One plan alone is larger than the bound: it runs and is not kept.
TEST(a_plan_beyond_the_bound_is_not_kept) {
    struct gcuda_cuda_params params;
    memset(&params, 0, sizeof params);
    params.max_plan_bytes = 1;
    gcuda_backend_t plain = backend_with(-1, GCUDA_CUDA_OFF), planned = gcuda_backend_cuda_init_params(&params);
    struct model m;
    REQUIRE(plain != NULL && planned != NULL && model_make(&m, plain, 5, 0));
    model_fill(&m, 2);
    for (int run = 0; run < 3; ++run) { expect_same(&m, plain, planned, NULL); }
    const struct gcuda_cuda_plan_stats s = stats_of(planned);
    CHECK(s.n_made == 3 && s.n_plans == 0 && s.n_bytes == 0 && s.n_graph_launches == 0);
    place_end(&m.p);
    gcuda_backend_free(planned);
    gcuda_backend_free(plain);
    clean();
}

// =====================================================================================================================
// >>graphs   CUDA graphs, and when there are none
// =====================================================================================================================
TEST(no_cuda_graph_by_option_environment_profile_and_callback) {
    gcuda_backend_t plain = backend_with(-1, GCUDA_CUDA_OFF), off = backend_with(0, GCUDA_CUDA_OFF);
    setenv("GCUDA_CUDA_DISABLE_GRAPHS", "1", 1);
    gcuda_backend_t by_env = backend_with(0, GCUDA_CUDA_AUTO), on = backend_with(0, GCUDA_CUDA_ON);
    unsetenv("GCUDA_CUDA_DISABLE_GRAPHS");
    struct model m;
    REQUIRE(plain != NULL && off != NULL && by_env != NULL && on != NULL && model_make(&m, plain, 5, 0));
    model_fill(&m, 3);
    for (int run = 0; run < 3; ++run) {
        expect_same(&m, plain, off, NULL);
        expect_same(&m, plain, by_env, NULL);
        expect_same(&m, plain, on, NULL);
    }
    CHECK(stats_of(off).n_graph_launches == 0 && stats_of(by_env).n_graph_launches == 0 &&
          stats_of(on).n_graph_launches == 2);
    CHECK_OK(gcuda_cuda_profile_begin(on));
    expect_same(&m, plain, on, NULL);
    CHECK(stats_of(on).n_graph_launches == 2);
    const struct gcuda_cuda_profile_record * records = NULL;
    size_t n = 0;
    CHECK_OK(gcuda_cuda_profile_get(on, &records, &n));
    CHECK(n == 6); // norm, product, copy, rows, scale, soft_max
    CHECK_OK(gcuda_cuda_profile_end(on));
    expect_same(&m, plain, on, NULL);
    CHECK(stats_of(on).n_graph_launches == 3);
    place_end(&m.p);
    gcuda_backend_free(on);
    gcuda_backend_free(by_env);
    gcuda_backend_free(off);
    gcuda_backend_free(plain);
    clean();
}

static int n_lines;
static void count_lines(enum gcuda_log_level level, const char * text, void * user) {
    (void) user;
    n_lines += level >= GCUDA_LOG_LEVEL_WARN && strstr(text, "without a CUDA graph") != NULL;
}

TEST(a_capture_that_fails_is_one_line_and_the_plan_does_without) {
    static const char * const calls[] = { "cudaStreamBeginCapture", "cudaStreamEndCapture", "cudaGraphInstantiate",
        "cudaGraphLaunch" };
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; ++i) {
        gcuda_backend_t plain = backend_with(-1, GCUDA_CUDA_OFF), planned = backend_with(0, GCUDA_CUDA_ON);
        struct model m;
        REQUIRE(plain != NULL && planned != NULL && model_make(&m, plain, 5, 0));
        model_fill(&m, 4);
        n_lines = 0;
        gcuda_log_set(count_lines, GCUDA_LOG_LEVEL_WARN, NULL);
        expect_same(&m, plain, planned, NULL);
        sim_fail(calls[i], 1, cudaErrorMemoryAllocation);
        for (int run = 0; run < 3; ++run) { expect_same(&m, plain, planned, NULL); }
        CHECK_EQ_I(n_lines, 1);
        CHECK(stats_of(planned).n_graph_launches == 0);
        place_end(&m.p);
        gcuda_backend_free(planned);
        gcuda_backend_free(plain);
        clean();
    }
}

// Addresses of scratch are in the graph: when scratch goes back, it is captured again.
TEST(trimmed_scratch_is_captured_again) {
    gcuda_backend_t plain = backend_with(-1, GCUDA_CUDA_OFF), planned = backend_with(0, GCUDA_CUDA_ON);
    struct place p = place_begin();
    REQUIRE(plain != NULL && planned != NULL);
    // in parts
    struct gcuda_tensor *x = gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_F32, 50000), *y = gcuda_rms_norm(p.ctx, x, 1e-5f);
    struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
    CHECK_OK(gcuda_build_forward_expand(graph, y));
    REQUIRE(place_alloc(&p, plain));
    static float v[50000], want[50000], got[50000];
    for (int i = 0; i < 50000; ++i) { v[i] = (float) (i % 91) - 45.0f; }
    CHECK_OK(gcuda_backend_tensor_set(x, v, 0, sizeof v));
    CHECK_OK(gcuda_backend_graph_compute(plain, graph));
    CHECK_OK(gcuda_backend_tensor_get(y, want, 0, sizeof want));
    for (int run = 0; run < 6; ++run) {
        if (run == 4) { CHECK_OK(gcuda_backend_cuda_trim(planned)); }
        CHECK_OK(gcuda_backend_tensor_memset(y, 0, 0, sizeof got));
        CHECK_OK(gcuda_backend_graph_compute(planned, graph));
        CHECK_OK(gcuda_backend_tensor_get(y, got, 0, sizeof got));
        CHECK(memcmp(want, got, sizeof got) == 0);
    }
    CHECK(stats_of(planned).n_captures == 2 && stats_of(planned).n_graph_launches == 5);
    place_end(&p);
    gcuda_backend_free(planned);
    gcuda_backend_free(plain);
    clean();
}

// The caller's stream is not captured: the caller may be giving it work from another thread.
TEST(the_callers_stream_is_left_alone) {
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    struct gcuda_cuda_params params;
    memset(&params, 0, sizeof params);
    params.stream = stream;
    params.graphs = GCUDA_CUDA_ON;
    gcuda_backend_t plain = backend_with(-1, GCUDA_CUDA_OFF), planned = gcuda_backend_cuda_init_params(&params);
    struct model m;
    REQUIRE(plain != NULL && planned != NULL && model_make(&m, plain, 5, 0));
    model_fill(&m, 4);
    for (int run = 0; run < 3; ++run) { expect_same(&m, plain, planned, NULL); }
    CHECK(stats_of(planned).n_graph_launches == 2 && sim_counts("cudaStreamBeginCapture") == 1);
    CHECK(gcuda_backend_cuda_get_stream(planned) == stream);
    // and one that the caller captures takes the launches up
    cudaGraph_t graph = NULL;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed) == cudaSuccess);
    CHECK_OK(gcuda_backend_graph_compute_async(planned, m.graph));
    CHECK(cudaStreamEndCapture(stream, &graph) == cudaSuccess && graph != NULL);
    CHECK(stats_of(planned).n_graph_launches == 2);
    CHECK(cudaGraphDestroy(graph) == cudaSuccess);
    expect_same(&m, plain, planned, NULL);
    place_end(&m.p);
    gcuda_backend_free(planned);
    gcuda_backend_free(plain);
    CHECK(cudaStreamDestroy(stream) == cudaSuccess);
    clean();
}

// A bad index is found whether the kernel was launched or replayed.
TEST(bad_indices_are_found_in_replays) {
    gcuda_backend_t backend = backend_with(0, GCUDA_CUDA_ON);
    struct model m;
    REQUIRE(backend != NULL && model_make(&m, backend, 5, 0));
    model_fill(&m, 4);
    for (int run = 0; run < 6; ++run) {
        const int32_t row = run % 2 == 0 ? 0 : 99;
        CHECK_OK(gcuda_backend_tensor_set(m.rows, &row, 0, sizeof row));
        CHECK(gcuda_backend_graph_compute(backend, m.graph) ==
              (run % 2 == 0 ? GCUDA_STATUS_SUCCESS : GCUDA_STATUS_INVALID_DATA));
    }
    CHECK(stats_of(backend).n_graph_launches == 5);
    place_end(&m.p);
    gcuda_backend_free(backend);
    clean();
}

// Threads that compute, and make and free backends (and with them cuBLAS handles), while others capture.
static void * thread_work(void * user) {
    const int id = *(int *) user;
    for (int round = 0; round < (test_full() ? 20 : 4); ++round) {
        gcuda_backend_t plain = backend_with(-1, GCUDA_CUDA_OFF), planned = backend_with(0, GCUDA_CUDA_ON);
        struct model m;
        if (plain == NULL || planned == NULL || !model_make(&m, plain, 3 + id, 0)) { return NULL; }
        model_fill(&m, id);
        for (int run = 0; run < 4; ++run) {
            if (gcuda_backend_graph_compute(planned, m.graph) != GCUDA_STATUS_SUCCESS) { return NULL; }
        }
        if (stats_of(planned).n_graph_launches != 3) { return NULL; }
        place_end(&m.p);
        gcuda_backend_free(planned);
        gcuda_backend_free(plain);
    }
    return user;
}

TEST(threads_capture_beside_each_other) {
    pthread_t threads[4];
    int ids[4];
    for (int i = 0; i < 4; ++i) {
        ids[i] = i;
        CHECK(pthread_create(&threads[i], NULL, thread_work, &ids[i]) == 0);
    }
    for (int i = 0; i < 4; ++i) {
        void * result = NULL;
        CHECK(pthread_join(threads[i], &result) == 0 && result == &ids[i]);
    }
    clean();
}

// =====================================================================================================================
// >>faults
// =====================================================================================================================
// The model six times, by the cache and by a separate plan: unchanged and after two changes. Each is launched kernel by
// kernel and then captured, first into a new executable graph. SUCCESS, or the first failure.
static gcuda_status six_runs(gcuda_backend_t backend, struct model * m) {
    gcuda_status st = GCUDA_STATUS_SUCCESS;
    gcuda_backend_graph_plan_t plan = gcuda_backend_graph_plan_create(backend, m->graph);
    for (int run = 0; run < 6 && st == GCUDA_STATUS_SUCCESS; ++run) {
        if (run >= 2) { change(m, run / 2); }
        st = gcuda_backend_graph_compute(backend, m->graph);
        if (st == GCUDA_STATUS_SUCCESS && plan != NULL) {
            st = gcuda_backend_graph_plan_update(backend, plan, NULL);
            st = st == GCUDA_STATUS_SUCCESS ? gcuda_backend_graph_plan_compute(backend, plan) : st;
            const gcuda_status end = gcuda_backend_synchronize(backend);
            st = st == GCUDA_STATUS_SUCCESS ? end : st;
        }
    }
    gcuda_backend_graph_plan_free(backend, plan);
    return st;
}

// The k-th call of api fails while the model is run. False when there was no such call.
static bool fault_once(const char * api, long k, cudaError_t error) {
    const bool is_sticky = error == cudaErrorIllegalAddress;
    struct model m;
    fresh(1, 64 * MB, 1);
    const long alive = sim_leaks(); // what an earlier fault left is counted there
    gcuda_backend_t plain = backend_with(-1, GCUDA_CUDA_OFF), planned = backend_with(0, GCUDA_CUDA_ON);
    CHECK(plain != NULL && planned != NULL && model_make(&m, plain, 5, 0));
    // without cuBLAS products round differently: test-cuda.c lets cublasCreate fail
    CHECK(gcudai_cublas_is_there((struct gcudai_cuda *) planned));
    model_fill(&m, 4);
    sim_fail(api, (int) k, error);
    const gcuda_status st = six_runs(planned, &m);
    const bool came = sim_failed() > 0;
    sim_fail(api, 0, cudaSuccess);
    if (st != GCUDA_STATUS_SUCCESS) {
        CHECK_MSG(came && gcuda_last_error()[0] != '\0', "%s %ld: no fault, or no message", api, k);
    }
    if (!is_sticky) {
        model_fill(&m, 4);
        for (int run = 0; run < 3; ++run) { expect_same(&m, plain, planned, NULL); }
    } else if (came) {
        CHECK_MSG(gcuda_backend_graph_compute(planned, m.graph) != GCUDA_STATUS_SUCCESS,
            "%s %ld: works on a lost device", api, k);
        const gcuda_status sync = gcuda_backend_synchronize(planned);
        CHECK_MSG(
            sync == GCUDA_STATUS_DEVICE_LOST, "%s %ld: a lost device, but synchronize says %d", api, k, (int) sync);
    }
    place_end(&m.p);
    gcuda_backend_free(planned);
    gcuda_backend_free(plain);
    CHECK_MSG(
        sim_leaks() == alive && sim_violations() == 0, "%s %ld with error %d: leaks or wrong use", api, k, (int) error);
    return came;
}

TEST(every_cuda_call_fails_in_turn) {
    static const cudaError_t errors[] = { cudaErrorInvalidValue, cudaErrorMemoryAllocation, cudaErrorIllegalAddress };
    char names[96][48];
    int n = 0;
    (void) fault_once("cudaMalloc", 100000, cudaErrorMemoryAllocation);
    for (; n < 96 && sim_api(n) != NULL; ++n) { snprintf(names[n], sizeof names[n], "%s", sim_api(n)); }
    CHECK(sim_api(n) == NULL); // none is left out
    for (int i = 0; i < n; ++i) {
        const bool is_blas = strncmp(names[i], "cublas", 6) == 0, is_kernel = strcmp(names[i], "kernel") == 0;
        for (int e = is_kernel ? 2 : 0; e < (is_blas ? 1 : 3); ++e) {
            const cudaError_t error = is_blas ? (cudaError_t) 13 : errors[e];
            long k = 1;
            while (fault_once(names[i], k, error) && test_all.n_bad_checks == 0) {
                k += test_full() || k < 12 ? 1 : 1 + k / 4;
            }
        }
    }
    clean();
}

TEST(every_allocation_fails_in_turn) {
    const struct gcuda_allocator failing = { some_alloc, some_free, NULL };
    bool is_through = false;
    for (int k = 0; !is_through && k < 200; ++k) {
        fresh(1, 64 * MB, 1);
        allocations_left = 1 << 20;
        gcuda_set_allocator(&failing);
        gcuda_backend_t plain = backend_with(-1, GCUDA_CUDA_OFF), planned = backend_with(0, GCUDA_CUDA_ON);
        struct model m;
        REQUIRE(plain != NULL && planned != NULL && model_make(&m, plain, 5, 0));
        model_fill(&m, 4);
        allocations_left = k;
        const gcuda_status st = six_runs(planned, &m);
        is_through = allocations_left > 0;
        CHECK(st == GCUDA_STATUS_SUCCESS || st == GCUDA_STATUS_ALLOC_FAILED);
        allocations_left = 1 << 20;
        model_fill(&m, 4);
        CHECK_OK(gcuda_backend_cuda_clear_plans(planned));
        for (int run = 0; run < 3; ++run) { expect_same(&m, plain, planned, NULL); }
        place_end(&m.p);
        gcuda_backend_free(planned);
        gcuda_backend_free(plain);
    }
    CHECK(is_through);
    clean();
}

// =====================================================================================================================
// >>copies   a graph for another backend, and both compared
// =====================================================================================================================
static gcuda_backend_t cuda_on(int device) {
    struct gcuda_cuda_params params;
    memset(&params, 0, sizeof params);
    params.device = device;
    return gcuda_backend_cuda_init_params(&params);
}

// The copy has the data of the original, separate memory on its backend, and equal results there.
static gcuda_status copy_to(gcuda_backend_t from, gcuda_backend_t to, struct model * m, bool is_same_bits) {
    static float want[M * 64], got[M * 64];
    struct gcuda_backend_graph_copied copy = gcuda_backend_graph_copy(to, m->graph);
    if (copy.graph == NULL) { return GCUDA_STATUS_ALLOC_FAILED; }
    struct gcuda_tensor * y = gcuda_graph_node(copy.graph, -1);
    CHECK(y != m->y && y->flags == m->y->flags && copy.graph->n_nodes == m->graph->n_nodes && y->data != m->y->data);
    const size_t n = (size_t) gcuda_nelements(y);
    gcuda_status st = gcuda_backend_graph_compute(to, copy.graph);
    st = st == GCUDA_STATUS_SUCCESS ? gcuda_backend_tensor_get(y, got, 0, n * sizeof(float)) : st;
    if (st == GCUDA_STATUS_SUCCESS) {
        CHECK_OK(gcuda_backend_graph_compute(from, m->graph));
        CHECK_OK(gcuda_backend_tensor_get(m->y, want, 0, n * sizeof(float)));
        CHECK(is_same_bits ? memcmp(got, want, n * sizeof(float)) == 0 : error_of(got, want, n) < 1e-9);
    }
    gcuda_backend_graph_copy_free(copy);
    return st;
}

struct compared {
    int n;
    double worst;
    gcuda_status st; // of fetching; ends the comparison
};
static bool compare_floats(int i, struct gcuda_tensor * a, struct gcuda_tensor * b, void * user) {
    static float x[N * 64], y[N * 64];
    struct compared * c = (struct compared *) user;
    (void) i;
    c->st = gcuda_backend_tensor_get(a, x, 0, gcuda_nbytes(a));
    if (c->st == GCUDA_STATUS_SUCCESS) { c->st = gcuda_backend_tensor_get(b, y, 0, gcuda_nbytes(b)); }
    if (c->st != GCUDA_STATUS_SUCCESS) { return false; }
    c->worst = fmax(c->worst, error_of(y, x, gcuda_nbytes(a) / sizeof(float)));
    c->n++;
    return true;
}

TEST(graphs_are_copied_between_devices_and_compared_node_by_node) {
    fresh(2, 64 * MB, 3);
    gcuda_backend_t one = cuda_on(0), two = cuda_on(1), cpu = gcuda_backend_cpu_init();
    gcuda_backend_t all[] = { one, two, cpu };
    for (int from = 0; from < 3; ++from) {
        struct model m;
        REQUIRE(one != NULL && two != NULL && cpu != NULL && model_make(&m, all[from], 5, 2));
        model_fill(&m, from);
        for (int to = 0; to < 3; ++to) {
            struct compared c = { 0, 0.0, GCUDA_STATUS_SUCCESS };
            CHECK_OK(copy_to(all[from], all[to], &m, (from == 2) == (to == 2)));
            CHECK_OK(gcuda_backend_compare_graph_backend(all[from], all[to], m.graph, compare_floats, &c, NULL, 0));
            CHECK_MSG(c.n == 6 && c.worst < 1e-9, "%d to %d: %d nodes, error %g", from, to, c.n, c.worst);
            c.n = 0;
            // fused
            CHECK_OK(gcuda_backend_compare_graph_backend(all[from], all[to], m.graph, compare_floats, &c, &m.y, 1));
            CHECK_MSG(c.n == 1 && c.worst < 1e-9, "%d to %d: %d results, error %g", from, to, c.n, c.worst);
        }
        place_end(&m.p);
    }
    for (int i = 0; i < 3; ++i) { gcuda_backend_free(all[i]); }
    clean();
}

// Each CUDA call fails once while a graph is copied from one device to another and compared there: a status, and no
// leak.
TEST(a_copy_that_fails_leaves_nothing) {
    static const char * const calls[] = { "cudaMalloc", "cudaMemcpyAsync", "cudaMemcpyPeerAsync",
        "cudaStreamSynchronize", "cudaEventRecord" };
    int n_failed = 0;
    for (int call = 0; call < 5; ++call) {
        bool came = true;
        for (int k = 1; came && k < 60; ++k) {
            fresh(2, 16 * MB, 3);
            gcuda_backend_t one = cuda_on(0), two = cuda_on(1);
            struct compared c = { 0, 0.0, GCUDA_STATUS_SUCCESS };
            struct model m;
            REQUIRE(one != NULL && two != NULL && model_make(&m, one, 5, 2));
            model_fill(&m, 1);
            sim_fail(calls[call], k, call == 0 ? cudaErrorMemoryAllocation : cudaErrorInvalidValue);
            struct gcuda_backend_graph_copied copy = gcuda_backend_graph_copy(two, m.graph);
            const bool has_copied = copy.graph != NULL;
            gcuda_backend_graph_copy_free(copy);
            gcuda_status st = has_copied
                                  ? gcuda_backend_compare_graph_backend(one, two, m.graph, compare_floats, &c, NULL, 0)
                                  : GCUDA_STATUS_FAILED;
            st = st == GCUDA_STATUS_SUCCESS ? c.st : st;
            came = sim_failed() > 0;
            sim_fail(calls[call], 0, cudaSuccess);
            n_failed += st != GCUDA_STATUS_SUCCESS;
            CHECK_MSG(st == GCUDA_STATUS_SUCCESS || (came && gcuda_last_error()[0] != '\0'),
                "%s %d: no fault, or no message", calls[call], k);
            CHECK_OK(copy_to(one, two, &m, true)); // all is usable
            place_end(&m.p);
            gcuda_backend_free(two);
            gcuda_backend_free(one);
            clean();
        }
    }
    CHECK(n_failed >= 20);
}

// The path of a product is chosen when a plan is made, again when its tensors changed, and never at a launch.
TEST(a_product_is_chosen_once_per_plan) {
    enum { K = 64, LAYERS = 5, N_PRODUCTS = 3 * LAYERS };
    gcuda_backend_t backend = backend_with(0, GCUDA_CUDA_ON);
    REQUIRE(backend != NULL);
    const struct gcudai_cuda * cu = (const struct gcudai_cuda *) backend;
    struct place p = place_begin();
    struct gcuda_tensor *x = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, K, 20), *y = x, *product = NULL;
    struct gcuda_tensor * w[2] = { gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_Q4_0, K, K),
        gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, K, K) };
    struct gcuda_tensor *experts = gcuda_new_tensor_3d(p.ctx, GCUDA_TYPE_F16, K, K, 4),
                        *ids = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_I32, 1, 20);
    for (int i = 0; i < LAYERS; ++i) { // fused and not
        product = gcuda_mul_mat(p.ctx, w[0], gcuda_rms_norm(p.ctx, y, 1e-5f));
        y = gcuda_mul_mat(p.ctx, w[1], gcuda_silu(p.ctx, gcuda_add(p.ctx, product, x)));
        y = gcuda_reshape_2d(p.ctx, gcuda_mul_mat_id(p.ctx, experts, gcuda_reshape_3d(p.ctx, y, K, 1, 20), ids), K, 20);
    }
    gcuda_set_output(y);
    struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
    CHECK_OK(gcuda_build_forward_expand(graph, y));
    REQUIRE(place_alloc(&p, backend));
    CHECK_OK(gcuda_backend_buffer_clear(p.buffer, 0));
    uint64_t n = cu->plans.n_choices;
    gcuda_backend_graph_plan_t plan = gcuda_backend_graph_plan_create(backend, graph);
    REQUIRE(plan != NULL);
    CHECK_EQ_I(cu->plans.n_choices - n, N_PRODUCTS);
    n = cu->plans.n_choices;
    for (int i = 0; i < 4; ++i) { CHECK_OK(gcuda_backend_graph_plan_compute(backend, plan)); } // the second captures
    CHECK_OK(gcuda_backend_graph_plan_update(backend, plan, NULL));
    CHECK_EQ_I(cu->plans.n_choices - n, 0);
    CHECK_OK(gcuda_mul_mat_set_prec(product, GCUDA_PREC_F32));
    CHECK_OK(gcuda_backend_graph_plan_update(backend, plan, NULL));
    CHECK_OK(gcuda_backend_graph_plan_compute(backend, plan));
    CHECK_EQ_I(cu->plans.n_choices - n, 1);
    CHECK_OK(gcuda_backend_graph_compute(backend, graph)); // a plan of the cache
    CHECK_EQ_I(cu->plans.n_choices - n, 1 + N_PRODUCTS);
    for (int i = 0; i < 3; ++i) { CHECK_OK(gcuda_backend_graph_compute(backend, graph)); }
    CHECK_EQ_I(cu->plans.n_choices - n, 1 + N_PRODUCTS);
    gcuda_backend_graph_plan_free(backend, plan);
    gcuda_backend_free(backend);
    gcuda_backend_t by_node = backend_with(-1, GCUDA_CUDA_ON);
    REQUIRE(by_node != NULL);
    cu = (const struct gcudai_cuda *) by_node;
    for (int i = 1; i <= 2; ++i) {
        CHECK_OK(gcuda_backend_graph_compute(by_node, graph));
        CHECK_EQ_I(cu->plans.n_choices, i * N_PRODUCTS);
    }
    gcuda_backend_free(by_node);
    place_end(&p);
    clean();
}

// =====================================================================================================================
// >>speed
// =====================================================================================================================
// Host time of making a plan of 1,000 nodes, and of replaying it without the launch of the CUDA graph. The minimum of
// several, because the machine is shared.
static double least_us(double least, int64_t begin_us) {
    const double us = (double) (gcuda_time_us() - begin_us);
    return us < least ? us : least;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLOWER 10.0
#else
#define SLOWER 1.0
#endif

// Processor time of this thread: what other programs take meanwhile is not counted.
static int64_t thread_us(void) {
    struct timespec t;
    return clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) == 0 ? (int64_t) t.tv_sec * 1000000 + t.tv_nsec / 1000
                                                           : gcuda_time_us();
}
static double least_thread_us(double least, int64_t begin_us) {
    const double us = (double) (thread_us() - begin_us);
    return us < least ? us : least;
}

// A graph that was computed before: how long it takes to find its plan, per node.
static double look_up_ns(struct gcudai_cuda * cu, const struct gcuda_cgraph * graph) {
    double us = 1e9;
    for (int i = 0; i < 50; ++i) {
        struct gcudai_cuda_plan * plan = NULL;
        const int64_t begin = thread_us();
        for (int k = 0; k < 10; ++k) {
            CHECK(gcudai_cuda_cache_find(cu, graph, &plan) == GCUDA_STATUS_SUCCESS && plan != NULL);
        }
        us = least_thread_us(us, begin);
    }
    return us * 100.0 / graph->n_nodes;
}

TEST(plans_are_made_and_replayed_quickly) {
    enum { N_NODES = 1000, N_TRIES = 100, N_REPLAYS = 8 };
    gcuda_backend_t backend = backend_with(0, GCUDA_CUDA_ON);
    struct place p = place_begin();
    struct gcuda_tensor * x = gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_F32, 4);
    struct gcuda_tensor *w = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, 4, 4), *y = x;
    for (int i = 0; i < N_NODES / 4; ++i) { // a norm, a product, a sum, an activation
        y = gcuda_silu(p.ctx, gcuda_add(p.ctx, gcuda_mul_mat(p.ctx, w, gcuda_rms_norm(p.ctx, y, 1e-5f)), x));
    }
    struct gcuda_cgraph * graph = gcuda_new_graph_custom(p.ctx, 2 * N_NODES, false);
    CHECK_OK(gcuda_build_forward_expand(graph, y));
    REQUIRE(backend != NULL && place_alloc(&p, backend));
    CHECK_OK(gcuda_backend_buffer_clear(p.buffer, 0));
    CHECK_EQ_I(graph->n_nodes, N_NODES);
    const double lookup_ns_most = 50.0 * SLOWER, make_us_most = 2000.0 * SLOWER; // processor time, compiled with -O1
    double make_us = 1e9, follow_us = 1e9, replay_us = 1e9, launch_us = 1e9, raw_us = 1e9;
    gcuda_backend_graph_plan_t plan = NULL;
    for (int i = 0; i < N_TRIES; ++i) {
        gcuda_backend_graph_plan_free(backend, plan);
        const int64_t begin = thread_us();
        plan = gcuda_backend_graph_plan_create(backend, graph);
        make_us = least_thread_us(make_us, begin);
    }
    REQUIRE(plan != NULL);
    for (int i = 0; i < 3; ++i) { CHECK_OK(gcuda_backend_graph_plan_compute(backend, plan)); }
    for (int i = 0; i < 3; ++i) { CHECK_OK(gcuda_backend_graph_compute(backend, graph)); }
    const struct gcudai_cuda_plan * made = (const struct gcudai_cuda_plan *) plan;
    for (int i = 0; i < N_REPLAYS; ++i) {
        int64_t begin = gcuda_time_us();
        CHECK(cudaGraphLaunch(made->exec, gcuda_backend_cuda_get_stream(backend)) == cudaSuccess);
        launch_us = least_us(launch_us, begin);
        CHECK_OK(gcuda_backend_synchronize(backend));
        begin = gcuda_time_us();
        CHECK_OK(gcuda_backend_graph_compute_async(backend, graph));
        raw_us = least_us(raw_us, begin);
        CHECK_OK(gcuda_backend_synchronize(backend));
        begin = gcuda_time_us();
        CHECK_OK(gcuda_backend_graph_plan_update(backend, plan, NULL));
        follow_us = least_us(follow_us, begin);
    }
    // a quarter of the nodes has another parameter: their arguments anew, a run kernel by kernel, then a capture that
    // the executable graph takes over
    double update_us = 1e9, eager_us = 1e9, capture_us = 1e9;
    for (int i = 0; i < N_REPLAYS; ++i) {
        const float eps = 1e-5f * (float) (i + 2);
        for (int k = 0; k < N_NODES; ++k) {
            if (graph->nodes[k]->op == GCUDA_OP_RMS_NORM) { memcpy(graph->nodes[k]->op_params, &eps, sizeof eps); }
        }
        const uint64_t n_updated = stats_of(backend).n_updated;
        int64_t begin = gcuda_time_us();
        CHECK_OK(gcuda_backend_graph_plan_update(backend, plan, NULL));
        update_us = least_us(update_us, begin);
        CHECK_EQ_I(stats_of(backend).n_updated, n_updated + 1);
        begin = gcuda_time_us();
        CHECK_OK(gcuda_backend_graph_plan_compute(backend, plan));
        eager_us = least_us(eager_us, begin);
        CHECK_OK(gcuda_backend_synchronize(backend));
        begin = gcuda_time_us();
        CHECK_OK(gcuda_backend_graph_plan_compute(backend, plan));
        capture_us = least_us(capture_us, begin);
        CHECK_OK(gcuda_backend_synchronize(backend));
    }
    // one node that changes
    double one_us = 1e9;
    for (int i = 0; i < N_TRIES; ++i) {
        const float eps = 1e-4f * (float) (i + 1);
        memcpy(graph->nodes[N_NODES / 2]->op_params, &eps, sizeof eps);
        const int64_t begin = gcuda_time_us();
        CHECK_OK(gcuda_backend_graph_plan_update(backend, plan, NULL));
        one_us = least_us(one_us, begin);
    }
    // without the launch: a plan of no nodes does all that a replay does but for that
    struct gcuda_cgraph none = gcuda_graph_view(graph, 0, 0);
    gcuda_backend_graph_plan_t empty = gcuda_backend_graph_plan_create(backend, &none);
    REQUIRE(empty != NULL);
    struct gcudai_cuda * cu = (struct gcudai_cuda *) backend;
    cudaGraph_t nothing = NULL;
    CHECK(cudaGraphCreate(&nothing, 0) == cudaSuccess);
    struct gcudai_cuda_plan * e = (struct gcudai_cuda_plan *) empty;
    CHECK(cudaGraphInstantiate(&e->exec, nothing, 0) == cudaSuccess && cudaGraphDestroy(nothing) == cudaSuccess);
    e->is_exec_current = e->has_run = true;
    e->generation = gcudai_cuda_scratch_generation(cu);
    e->n_steps = 1; // it thinks
    for (int i = 0; i < 50; ++i) {
        const int64_t begin = gcuda_time_us();
        for (int k = 0; k < 100; ++k) { CHECK_OK(gcuda_backend_graph_plan_compute(backend, empty)); }
        replay_us = least_us(replay_us, begin);
    }
    e->n_steps = 0;
    replay_us /= 100.0;
    const double lookup_ns = look_up_ns(cu, graph);
    printf("  1,000 nodes in %d launches: plan %.0f us, replay %.2f us and the launch, update without changes %.0f us, "
           "of 250 nodes %.0f us, %.0f us of launches and %.0f us of capture, of one node %.0f us, "
           "from the cache %.0f us and the launch "
           "(%.0f us here), look-up %.0f ns a node\n",
        made->n_steps, make_us, replay_us, follow_us, update_us, eager_us, capture_us - launch_us, one_us,
        raw_us - launch_us, launch_us, lookup_ns);
    CHECK_MSG(make_us <= make_us_most, "a plan of 1,000 nodes takes %.0f us", make_us);
    CHECK_MSG(lookup_ns <= lookup_ns_most, "a look-up takes %.0f ns a node", lookup_ns);
    CHECK_MSG(replay_us <= 10.0, "a replay takes %.2f us of the host", replay_us);
    gcuda_backend_graph_plan_free(backend, empty);
    gcuda_backend_graph_plan_free(backend, plan);
    place_end(&p);
    gcuda_backend_free(backend);
    clean();
}
