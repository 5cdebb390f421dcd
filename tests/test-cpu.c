// The CPU backend as a whole: aborting inside a node, the caller's thread pool and memory, threads, refused graphs,
// computing without a backend.
#include "test.h"

#include <fenv.h>
#include <time.h>
#if defined(__x86_64__) || defined(_M_X64)
#include <xmmintrin.h>
#endif

// The manual's 10 ms, of processor time because a busy machine may take any time to do nothing. Instrumented and
// emulated builds take ten times as long. A machine that shares its cores slows processor time too: the best of some
// tries counts.
static double allowed_ms(void) {
#if defined(__SANITIZE_ADDRESS__) || defined(_WIN32) // there clock() is wall time
    return 100.0;
#else
    return getenv("GCUDA_TEST_EMULATED") != NULL ? 100.0 : 10.0;
#endif
}
enum { MAX_TRIES = 40 }; // a busy machine delays a question now and then

struct net { // y = soft_max(w x), large enough for some tenths of a second
    struct gcuda_context * ctx;
    struct gcuda_tensor *w, *x, *y;
    struct gcuda_cgraph * graph;
};

static struct net make_net(int64_t n) {
    const struct gcuda_init_params params = { 0, NULL, false };
    struct net m;
    m.ctx = gcuda_init(params);
    m.w = gcuda_new_tensor_2d(m.ctx, GCUDA_TYPE_F32, n, n);
    m.x = gcuda_new_tensor_2d(m.ctx, GCUDA_TYPE_F32, n, n);
    m.y = gcuda_mul_mat(m.ctx, m.w, m.x);
    m.graph = gcuda_new_graph(m.ctx);
    float *w = gcuda_get_data_f32(m.w), *x = gcuda_get_data_f32(m.x);
    for (int64_t i = 0; i < n * n; ++i) {
        w[i] = (float) (i % 13) - 6.0f;
        x[i] = (float) (i % 7) - 3.0f;
    }
    CHECK_OK(gcuda_build_forward_expand(m.graph, m.y));
    return m;
}

struct watch { // says stop after some calls, and notes the processor time of that
    long n_calls, stop_call;
    clock_t asked;
};

static bool watch_abort(void * data) {
    struct watch * w = (struct watch *) data;
    if (++w->n_calls == w->stop_call) { w->asked = clock(); }
    return w->n_calls >= w->stop_call;
}

// The call returns that soon after the callback's word, and asks for it that often.
TEST(a_long_node_is_aborted) {
    struct net m = make_net(1536);
    for (int n_threads = 1; n_threads <= 2; ++n_threads) {
        const double limit_ms = allowed_ms() * n_threads;
        gcuda_backend_t cpu = gcuda_backend_cpu_init();
        double best_ms = 1e9, best_apart_ms = 1e9;
        CHECK_OK(gcuda_backend_cpu_set_n_threads(cpu, n_threads));
        for (int k = 0; k < MAX_TRIES && (best_ms >= limit_ms || best_apart_ms >= limit_ms); ++k) {
            struct watch w;
            memset(&w, 0, sizeof(w));
            w.stop_call = 4;
            CHECK_OK(gcuda_backend_cpu_set_abort_callback(cpu, watch_abort, &w));
            const clock_t start = clock();
            const gcuda_status st = gcuda_backend_graph_compute(cpu, m.graph);
            const double late_ms = 1e3 * (double) (clock() - w.asked) / CLOCKS_PER_SEC;
            const double apart_ms = 1e3 * (double) (w.asked - start) / CLOCKS_PER_SEC / (double) w.stop_call;
            CHECK_EQ_I(st, GCUDA_STATUS_ABORTED);
            CHECK_HAS(gcuda_last_error(), "mul_mat");
            best_ms = late_ms < best_ms ? late_ms : best_ms;
            best_apart_ms = apart_ms < best_apart_ms ? apart_ms : best_apart_ms;
        }
        CHECK_MSG(
            best_ms < limit_ms, "%d threads: %.1f ms of processor time after the word to stop", n_threads, best_ms);
        CHECK_MSG(
            best_apart_ms < limit_ms, "%d threads: asked every %.1f ms of processor time", n_threads, best_apart_ms);
        CHECK_OK(gcuda_backend_cpu_set_abort_callback(cpu, NULL, NULL)); // usable afterwards
        CHECK_OK(gcuda_backend_graph_compute(cpu, m.graph));
        gcuda_backend_free(cpu);
    }
    gcuda_free(m.ctx);
}

static struct gcuda_tensor * zeros(
    struct gcuda_context * ctx, enum gcuda_type type, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3) {
    struct gcuda_tensor * t = gcuda_new_tensor_4d(ctx, type, ne0, ne1, ne2, ne3);
    if (t != NULL) { memset(t->data, 0, gcuda_nbytes(t)); }
    return t;
}

// One item each, or very many small ones: of some hundredths of a second or more.
static struct gcuda_tensor * long_sum(struct gcuda_context * ctx, int which) {
    const int64_t n = 12000000, side = 4000;
    switch (which) {
        case 0:
            return gcuda_get_rows_back(ctx, zeros(ctx, GCUDA_TYPE_F32, 1, 2 * n, 1, 1),
                zeros(ctx, GCUDA_TYPE_I32, 2 * n, 1, 1, 1), zeros(ctx, GCUDA_TYPE_F32, 1, 1, 1, 1));
        case 1:
            return gcuda_out_prod(ctx, zeros(ctx, GCUDA_TYPE_F32, 8, n, 1, 1), zeros(ctx, GCUDA_TYPE_F32, 4, n, 1, 1));
        case 2:
            return gcuda_conv_2d_direct(
                ctx, zeros(ctx, GCUDA_TYPE_F32, 1, 1, n, 1), zeros(ctx, GCUDA_TYPE_F32, 1, 1, n, 1), 1, 1, 0, 0, 1, 1);
        case 3:
            return gcuda_conv_2d_dw_direct(ctx, zeros(ctx, GCUDA_TYPE_F32, side, side, 1, 1),
                zeros(ctx, GCUDA_TYPE_F32, side, side, 1, 1), 1, 1, 0, 0, 1, 1);
        case 4:
            return gcuda_conv_transpose_2d_p0(
                ctx, zeros(ctx, GCUDA_TYPE_F32, 1, 1, 1, 2 * n), zeros(ctx, GCUDA_TYPE_F32, 1, 1, 2 * n, 1), 1);
        case 5:
            return gcuda_rope(ctx, zeros(ctx, GCUDA_TYPE_F32, n / 12, 1, 1, 1), zeros(ctx, GCUDA_TYPE_I32, 1, 1, 1, 1),
                (int) n / 12, 0);
        // of columns
        case 6:
            return gcuda_mul_mat(ctx, zeros(ctx, GCUDA_TYPE_F32, 1, 1, 1, 1), zeros(ctx, GCUDA_TYPE_F32, 1, n, 1, 1));
        case 7:
            return gcuda_mul_mat(
                ctx, zeros(ctx, GCUDA_TYPE_Q4_0, 1 << 20, 16, 1, 1), zeros(ctx, GCUDA_TYPE_F32, 1 << 20, 8, 1, 1));
        default:
            return gcuda_set_rows(ctx, zeros(ctx, GCUDA_TYPE_F32, 1, 1, 1, 1),
                zeros(ctx, GCUDA_TYPE_F32, 1, n / 4, 1, 1), zeros(ctx, GCUDA_TYPE_I64, n / 4, 1, 1, 1));
    }
}

struct gaps { // processor time between questions, and from the last one to the end
    clock_t last;
    double longest_ms;
    int n;
};

static void note_gap(struct gaps * g) {
    const clock_t now = clock();
    g->longest_ms = fmax(g->longest_ms, 1e3 * (double) (now - g->last) / CLOCKS_PER_SEC);
    g->last = now;
}
static bool never(void * data) {
    ++((struct gaps *) data)->n;
    note_gap((struct gaps *) data);
    return false;
}

TEST(a_long_sum_asks_in_between) {
    const double limit_ms = allowed_ms();
    for (int which = 0; which < 9; ++which) {
        const struct gcuda_init_params params = { 0, NULL, false };
        struct gcuda_context * ctx = gcuda_init(params);
        struct gcuda_tensor * y = long_sum(ctx, which);
        struct gcuda_cgraph * graph = gcuda_new_graph(ctx);
        gcuda_backend_t cpu = gcuda_backend_cpu_init();
        double best_ms = 1e9;
        CHECK_OK(gcuda_backend_cpu_set_n_threads(cpu, 1));
        for (int k = 0; k < MAX_TRIES && best_ms >= limit_ms && CHECK_OK(gcuda_build_forward_expand(graph, y)); ++k) {
            struct gaps g = { clock(), 0.0, 0 };
            CHECK_OK(gcuda_backend_cpu_set_abort_callback(cpu, never, &g));
            CHECK_OK(gcuda_backend_graph_compute(cpu, graph));
            note_gap(&g);
            CHECK(g.n >= 4);
            best_ms = fmin(best_ms, g.longest_ms);
        }
        CHECK_MSG(best_ms < limit_ms, "%s: %.1f ms of processor time without a question", gcuda_op_desc(y), best_ms);
        gcuda_backend_free(cpu);
        gcuda_free(ctx);
    }
}

// One item each, of a second or more: a row, a head, a right side.
static struct gcuda_tensor * long_item(struct gcuda_context * ctx, int which) {
    const int64_t n_tokens = 60000, size = 512;
    struct gcuda_tensor * in[6];
    if (which == 0) { return gcuda_top_k(ctx, gcuda_arange(ctx, 0.0f, 2e7f, 1.0f), 1000); }
    if (which == 1) {
        struct gcuda_tensor * a = gcuda_new_tensor_2d(ctx, GCUDA_TYPE_F32, 8000, 8000);
        return gcuda_solve_tri(ctx, a, gcuda_new_tensor_2d(ctx, GCUDA_TYPE_F32, 8, 8000), true, true, false);
    }
    for (int i = 0; i < 6; ++i) { in[i] = gcuda_new_tensor_3d(ctx, GCUDA_TYPE_F32, size, 1, i == 0 ? n_tokens : 1); }
    struct gcuda_tensor *x = in[0], *state = gcuda_new_tensor_2d(ctx, GCUDA_TYPE_F32, size * size, 1);
    switch (which) { // a block of the values is an item: the first asks within itself
        case 2: return gcuda_rwkv_wkv6(ctx, x, x, x, in[1], x, state);
        case 3: return gcuda_rwkv_wkv7(ctx, x, x, x, x, x, x, state);
        default: return gcuda_gated_linear_attn(ctx, x, x, x, x, state, 1.0f);
    }
}

static struct gcuda_tensor * long_scan(struct gcuda_context * ctx) {
    const int64_t n_tokens = 200000, n = 512;
    struct gcuda_tensor * s = gcuda_new_tensor_4d(ctx, GCUDA_TYPE_F32, n, 1, 1, 1);
    struct gcuda_tensor * x = gcuda_new_tensor_4d(ctx, GCUDA_TYPE_F32, 1, 1, n_tokens, 1);
    struct gcuda_tensor * dt = gcuda_new_tensor_3d(ctx, GCUDA_TYPE_F32, 1, n_tokens, 1);
    struct gcuda_tensor * a = gcuda_new_tensor_2d(ctx, GCUDA_TYPE_F32, n, 1);
    struct gcuda_tensor * b = gcuda_new_tensor_4d(ctx, GCUDA_TYPE_F32, n, 1, n_tokens, 1);
    struct gcuda_tensor * ids = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_I32, 1);
    return gcuda_ssm_scan(ctx, s, x, dt, a, b, b, ids);
}

TEST(a_long_item_is_aborted) {
    for (int which = 0; which < 6; ++which) {
        const struct gcuda_init_params params = { 0, NULL, false };
        struct gcuda_context * ctx = gcuda_init(params);
        struct gcuda_tensor * y = which == 5 ? long_scan(ctx) : long_item(ctx, which);
        struct gcuda_cgraph * graph = gcuda_new_graph(ctx);
        CHECK_OK(gcuda_build_forward_expand(graph, y));
        for (int n_threads = 1; n_threads <= 2; ++n_threads) {
            gcuda_backend_t cpu = gcuda_backend_cpu_init();
            struct watch w;
            const double limit_ms = allowed_ms() * n_threads;
            double best_ms = 1e9;
            CHECK_OK(gcuda_backend_cpu_set_n_threads(cpu, n_threads));
            for (int k = 0; k < MAX_TRIES && best_ms >= limit_ms; ++k) {
                memset(&w, 0, sizeof(w));
                w.stop_call = which == 0 ? 60 : 4; // the row for top_k is computed first
                CHECK_OK(gcuda_backend_cpu_set_abort_callback(cpu, watch_abort, &w));
                CHECK_EQ_I(gcuda_backend_graph_compute(cpu, graph), GCUDA_STATUS_ABORTED);
                const double late_ms = 1e3 * (double) (clock() - w.asked) / CLOCKS_PER_SEC;
                best_ms = late_ms < best_ms ? late_ms : best_ms;
            }
            CHECK_MSG(best_ms < limit_ms, "%s, %d threads: %.1f ms of processor time after the word to stop",
                gcuda_op_desc(y), n_threads, best_ms);
            gcuda_backend_free(cpu);
        }
        gcuda_free(ctx);
    }
}

TEST(the_look_for_nan_is_aborted_too) { // long after the node itself: a copy of 2e7 elements takes a few milliseconds
    const struct gcuda_init_params params = { 0, NULL, false };
    struct gcuda_context * ctx = gcuda_init(params);
    struct gcuda_tensor * y = gcuda_dup(ctx, zeros(ctx, GCUDA_TYPE_F32, 20000000, 1, 1, 1));
    struct gcuda_cgraph * graph = gcuda_new_graph(ctx);
    gcuda_backend_t cpu = gcuda_backend_cpu_init();
    struct gaps plain = { clock(), 0.0, 0 }, g = plain;
    CHECK_OK(gcuda_build_forward_expand(graph, y));
    CHECK_OK(gcuda_backend_cpu_set_n_threads(cpu, 1));
    CHECK_OK(gcuda_backend_cpu_set_abort_callback(cpu, never, &plain));
    CHECK_OK(gcuda_backend_graph_compute(cpu, graph));
    CHECK_OK(gcuda_backend_cpu_set_check_finite(cpu, true));
    CHECK_OK(gcuda_backend_cpu_set_abort_callback(cpu, never, &g));
    CHECK_OK(gcuda_backend_graph_compute(cpu, graph));
    CHECK_MSG(g.n >= plain.n + 5, "asked %d times with the look for NaN, %d without", g.n, plain.n);
    struct watch w;
    memset(&w, 0, sizeof(w));
    w.stop_call = plain.n + 2;
    CHECK_OK(gcuda_backend_cpu_set_abort_callback(cpu, watch_abort, &w));
    CHECK_EQ_I(gcuda_backend_graph_compute(cpu, graph), GCUDA_STATUS_ABORTED);
    gcuda_backend_free(cpu);
    gcuda_free(ctx);
}

TEST(results_do_not_depend_on_threads_or_pools) {
    struct net m = make_net(257);
    const size_t size = gcuda_nbytes(m.y);
    char * first = (char *) malloc(size);
    struct gcuda_threadpool_params params = gcuda_threadpool_params_default(3);
    struct gcuda_threadpool * pool = gcuda_threadpool_new(&params);
    gcuda_backend_t cpu = gcuda_backend_cpu_init();
    for (int n = 0; n <= 5; ++n) { // 0: the pool's three
        CHECK_OK(gcuda_backend_cpu_set_threadpool(cpu, n == 0 || n == 5 ? pool : NULL));
        CHECK_OK(gcuda_backend_cpu_set_n_threads(cpu, n));
        memset(m.y->data, 0xff, size);
        CHECK_OK(gcuda_backend_graph_compute(cpu, m.graph));
        if (n == 0) { memcpy(first, m.y->data, size); }
        CHECK(memcmp(first, m.y->data, size) == 0);
    }
    CHECK(gcuda_backend_cpu_set_n_threads(cpu, 100000) == GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK(gcuda_backend_cpu_set_n_threads(NULL, 1) == GCUDA_STATUS_INVALID_ARGUMENT);
    gcuda_backend_free(cpu);
    gcuda_threadpool_free(pool);
    free(first);
    gcuda_free(m.ctx);
}

static void fp_of_a_game(void) { // rounds up, and on x86-64 flushes subnormal numbers to zero on both ends
    (void) fesetround(FE_UPWARD);
#if defined(__x86_64__) || defined(_M_X64)
    _mm_setcsr(_mm_getcsr() | 0x8040u);
#endif
}

// A third of each subnormal number is one or nothing, and the sums of a product round.
TEST(a_graph_has_a_floating_point_environment_of_its_own) {
    enum { N = 1 << 20 };
    const struct gcuda_init_params params = { 0, NULL, false };
    struct gcuda_context * ctx = gcuda_init(params);
    struct gcuda_tensor *x = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F32, N), *y = gcuda_scale(ctx, x, 1.0f / 3.0f);
    struct gcuda_tensor *w = gcuda_reshape_2d(ctx, x, 1024, N / 1024), *z = gcuda_mul_mat(ctx, w, w);
    struct gcuda_cgraph * graph = gcuda_new_graph(ctx);
    struct gcuda_threadpool_params wanted = gcuda_threadpool_params_default(4);
    struct gcuda_threadpool * before = gcuda_threadpool_new(&wanted);
    gcuda_backend_t cpu = gcuda_backend_cpu_init();
    fenv_t usual;
    char * first = (char *) malloc(gcuda_nbytes(y) + gcuda_nbytes(z));
    CHECK_OK(gcuda_build_forward_expand(graph, y));
    CHECK_OK(gcuda_build_forward_expand(graph, z));
    for (int i = 0; i < N; ++i) { ((float *) x->data)[i] = (float) (i % 1021) * (i % 2 == 0 ? 1e-40f : 0.37f); }
    CHECK_OK(gcuda_backend_cpu_set_n_threads(cpu, 4));
    CHECK(fegetenv(&usual) == 0);
    for (int run = 0; run < 4; ++run) { // as usual; a pool from before; one made in it; the backend's own
        struct gcuda_threadpool * after = NULL;
        if (run > 0) { fp_of_a_game(); }
        if (run == 2) { after = gcuda_threadpool_new(&wanted); }
        CHECK_OK(gcuda_backend_cpu_set_threadpool(cpu, run < 2 ? before : after));
        const gcuda_status st = gcuda_backend_graph_compute(cpu, graph);
        const int rounding = fegetround();
#if defined(__x86_64__) || defined(_M_X64)
        CHECK((_mm_getcsr() & 0x8040u) == (run > 0 ? 0x8040u : 0u)); // the caller keeps its own
#endif
        CHECK(fesetenv(&usual) == 0);
        CHECK_OK(st);
        CHECK_EQ_I(rounding, run > 0 ? FE_UPWARD : FE_TONEAREST);
        if (run == 0) {
            CHECK(((float *) y->data)[2] > 0.0f);
            memcpy(first, y->data, gcuda_nbytes(y));
            memcpy(first + gcuda_nbytes(y), z->data, gcuda_nbytes(z));
        }
        CHECK_MSG(memcmp(first, y->data, gcuda_nbytes(y)) == 0, "run %d", run);
        CHECK_MSG(memcmp(first + gcuda_nbytes(y), z->data, gcuda_nbytes(z)) == 0, "run %d", run);
        CHECK_OK(gcuda_backend_cpu_set_threadpool(cpu, NULL));
        gcuda_threadpool_free(after);
    }
    gcuda_backend_free(cpu);
    gcuda_threadpool_free(before);
    free(first);
    gcuda_free(ctx);
}

static void custom_of_a_game(struct gcuda_tensor * dst, const struct gcuda_tensor * a, int ith, int nth, void * user) {
    (void) nth, (void) user;
    if (ith == 0) { memcpy(dst->data, a->data, gcuda_nbytes(a)); }
    fp_of_a_game();
}

// A custom operation that changes the environment changes no result of nodes after it, on any thread.
TEST(the_environment_of_a_custom_operation_ends_with_it) {
    enum { N = 4096 };
    const struct gcuda_init_params params = { 0, NULL, false };
    struct gcuda_context * ctx = gcuda_init(params);
    struct gcuda_tensor *x = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F32, N), *want = gcuda_scale(ctx, x, 1.0f / 3.0f);
    struct gcuda_tensor * got = gcuda_scale(ctx, gcuda_map_custom1(ctx, x, custom_of_a_game, 4, NULL), 1.0f / 3.0f);
    struct gcuda_cgraph * graph = gcuda_new_graph(ctx);
    fenv_t usual;
    CHECK_OK(gcuda_build_forward_expand(graph, want));
    CHECK_OK(gcuda_build_forward_expand(graph, got));
    for (int i = 0; i < N; ++i) { ((float *) x->data)[i] = (float) (i % 1021) * (i % 2 == 0 ? 1e-40f : 0.37f); }
    CHECK(fegetenv(&usual) == 0);
    for (int n_threads = 1; n_threads <= 4; n_threads += 3) {
        CHECK_OK(gcuda_graph_compute_with_ctx(ctx, graph, n_threads));
        CHECK(fesetenv(&usual) == 0);
        CHECK_MSG(memcmp(want->data, got->data, gcuda_nbytes(want)) == 0, "%d threads", n_threads);
    }
    gcuda_free(ctx);
}

// Tensors without elements have no data; under -fsanitize=undefined this also says what memset is given.
TEST(nothing_is_set_and_copied) {
    const struct gcuda_init_params params = { 0, NULL, false }, no_alloc = { 0, NULL, true };
    struct gcuda_context *ctx = gcuda_init(params), *without = gcuda_init(no_alloc);
    struct gcuda_tensor * none = gcuda_new_tensor_2d(without, GCUDA_TYPE_F32, 0, 4);
    struct gcuda_tensor * x = gcuda_new_tensor_2d(ctx, GCUDA_TYPE_F32, 8, 4);
    struct gcuda_cgraph * graph = gcuda_new_graph(ctx);
    CHECK(gcuda_set_zero(none) == none);
    gcuda_get_type_traits(GCUDA_TYPE_F32)->to_float(NULL, NULL, 0);
    // an empty view with strides whose products with the sizes are no ptrdiff_t, as a part of something and alone
    struct gcuda_tensor * view = gcuda_view_4d(ctx, x, 2, 3, 3, 0, 8, (size_t) 1 << 62, (size_t) 1 << 62, 0);
    struct gcuda_tensor * y = gcuda_concat(ctx, zeros(ctx, GCUDA_TYPE_F32, 2, 3, 3, 1), view, 3);
    CHECK_OK(gcuda_build_forward_expand(graph, y));
    CHECK_OK(gcuda_build_forward_expand(graph, gcuda_cont(ctx, view)));
    CHECK_OK(gcuda_build_forward_expand(graph, gcuda_cpy(ctx, gcuda_new_tensor_2d(ctx, GCUDA_TYPE_F32, 0, 4),
                                                   gcuda_new_tensor_2d(ctx, GCUDA_TYPE_F16, 0, 4))));
    CHECK_OK(gcuda_graph_compute_with_ctx(ctx, graph, 2));
    gcuda_free(without);
    gcuda_free(ctx);
}

TEST(computing_without_a_backend) {
    struct net m = make_net(64);
    struct gcuda_cplan plan = gcuda_graph_plan(m.graph, 2, NULL);
    CHECK(plan.n_threads == 2);
    if (plan.work_size > 0) {
        CHECK(gcuda_graph_compute(m.graph, &plan) == GCUDA_STATUS_INVALID_ARGUMENT); // no work memory yet
        CHECK_HAS(gcuda_last_error(), "work memory");
    }
    char * work = (char *) malloc(plan.work_size + 1);
    plan.work_data = (uint8_t *) work + 1; // any alignment
    CHECK_OK(gcuda_graph_compute(m.graph, &plan));
    struct watch w;
    memset(&w, 0, sizeof(w));
    w.stop_call = 1;
    plan.abort_callback = watch_abort;
    plan.abort_callback_data = &w;
    CHECK(gcuda_graph_compute(m.graph, &plan) == GCUDA_STATUS_ABORTED);
    plan.n_threads = 0;
    CHECK(gcuda_graph_compute(m.graph, &plan) == GCUDA_STATUS_INVALID_ARGUMENT);
    free(work);
    gcuda_free(m.ctx);
}

TEST(buffers_over_memory_of_the_caller) {
    static float memory[64 + 8];
    float * aligned = (float *) (((uintptr_t) memory + 31) & ~(uintptr_t) 31);
    const struct gcuda_init_params params = { 0, NULL, true };
    struct gcuda_context * ctx = gcuda_init(params);
    struct gcuda_tensor * a = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F32, 64);
    gcuda_backend_buffer_t buffer = gcuda_backend_cpu_buffer_from_ptr(aligned, 64 * sizeof(float));
    REQUIRE(buffer != NULL);
    CHECK_OK(gcuda_backend_tensor_alloc(buffer, a, aligned));
    CHECK_OK(gcuda_backend_tensor_memset(a, 0, 0, gcuda_nbytes(a)));
    CHECK_OK(gcuda_set_f32_1d(a, 63, 5.0f));
    CHECK_NEAR(aligned[63], 5.0, 0.0);
    CHECK(gcuda_backend_tensor_set(a, memory, 252, 8) == GCUDA_STATUS_INVALID_ARGUMENT); // past the end
    CHECK(gcuda_backend_cpu_buffer_from_ptr((char *) aligned + 4, 16) == NULL);
    CHECK_HAS(gcuda_last_error(), "32 bytes");
    CHECK(gcuda_backend_cpu_buffer_from_ptr(NULL, 16) == NULL);
    gcuda_backend_buffer_free(buffer);
    CHECK_NEAR(aligned[63], 5.0, 0.0); // kept by the caller
    gcuda_free(ctx);
}

// A node that cannot run is named before anything runs.
TEST(a_graph_is_refused_as_a_whole) {
    struct net m = make_net(32);
    struct gcuda_tensor *iq = gcuda_new_tensor_2d(m.ctx, GCUDA_TYPE_IQ2_XXS, 256, 4),
                        *src = gcuda_new_tensor_2d(m.ctx, GCUDA_TYPE_F32, 256, 4);
    struct gcuda_tensor * bad = gcuda_set_name(gcuda_cpy(m.ctx, src, iq), "no quantizer");
    REQUIRE(bad != NULL);
    CHECK_OK(gcuda_build_forward_expand(m.graph, bad));
    gcuda_backend_t cpu = gcuda_backend_cpu_init();
    memset(m.y->data, 0, gcuda_nbytes(m.y));
    CHECK(gcuda_backend_graph_compute(cpu, m.graph) == GCUDA_STATUS_UNSUPPORTED);
    CHECK_HAS(gcuda_last_error(), "no quantizer");
    CHECK_NEAR(gcuda_get_f32_1d(m.y, 33), 0.0, 0.0); // the product before it did not run either
    CHECK(gcuda_backend_supports_op(cpu, m.y) && !gcuda_backend_supports_op(cpu, bad));
    CHECK(gcuda_backend_graph_compute(cpu, NULL) == GCUDA_STATUS_INVALID_ARGUMENT);
    gcuda_backend_free(cpu);
    gcuda_free(m.ctx);
}
