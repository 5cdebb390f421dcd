// Stopping a running graph on the simulated device: chunks, slices, what is left usable. That slices compute what the
// whole would is tests/test-ops.c's part (GCUDA_TEST_CUT=1, in tests/sim/run.py).
#define GCUDA_IMPLEMENTATION
#include "gcuda.h"

#include "sim-test.h"

struct asked {
    long n, stop_at; // stops at this question; 0: never
};
static bool ask(void * data) {
    struct asked * a = (struct asked *) data;
    return ++a->n == a->stop_at;
}

enum { N = 5000, N_NODES = 40 };

// y = x + 1 + 1 ... through N_NODES nodes, each with separate memory
struct chain {
    struct place p;
    struct gcuda_tensor *x, *one, *node[N_NODES];
    struct gcuda_cgraph * graph;
};

static bool chain_make(struct chain * c, gcuda_backend_t backend) {
    memset(c, 0, sizeof *c);
    c->p = place_begin();
    c->x = gcuda_new_tensor_1d(c->p.ctx, GCUDA_TYPE_F32, N);
    c->one = gcuda_new_tensor_1d(c->p.ctx, GCUDA_TYPE_F32, 1);
    c->graph = gcuda_new_graph(c->p.ctx);
    for (int i = 0; i < N_NODES; ++i) { c->node[i] = gcuda_add(c->p.ctx, i ? c->node[i - 1] : c->x, c->one); }
    return gcuda_build_forward_expand(c->graph, c->node[N_NODES - 1]) == GCUDA_STATUS_SUCCESS &&
           place_alloc(&c->p, backend);
}

static void chain_set(struct chain * c) {
    static float x[N];
    const float one = 1.0f;
    for (int i = 0; i < N; ++i) { x[i] = (float) i; }
    CHECK_OK(gcuda_backend_tensor_set(c->x, x, 0, sizeof x));
    CHECK_OK(gcuda_backend_tensor_set(c->one, &one, 0, sizeof one));
    for (int i = 0; i < N_NODES; ++i) { CHECK_OK(gcuda_backend_tensor_memset(c->node[i], 0, 0, sizeof x)); }
}

// Nodes that are complete; those after the first incomplete one must not have begun.
static int chain_done(struct chain * c) {
    static float y[N];
    int n_done = 0;
    for (int i = 0; i < N_NODES; ++i) {
        int n_right = 0, n_zero = 0;
        CHECK_OK(gcuda_backend_tensor_get(c->node[i], y, 0, sizeof y));
        for (int k = 0; k < N; ++k) {
            n_right += y[k] == (float) (k + i + 1);
            n_zero += y[k] == 0.0f;
        }
        CHECK_EQ_I(n_right + n_zero, N);
        if (n_done == i) {
            n_done += n_right == N;
        } else {
            CHECK(n_zero == N || (n_done == i - 1 && n_right == 0));
        }
    }
    return n_done;
}

TEST(a_graph_is_stopped_at_any_question) {
    for (uint64_t seed = 0; seed < (test_full() ? 40u : 6u); ++seed) {
        fresh(1, 64 * MB, seed);
        gcuda_backend_t backend = gcuda_backend_cuda_init(0);
        struct chain c;
        struct asked a = { 0, 0 };
        REQUIRE(backend != NULL && chain_make(&c, backend));
        chain_set(&c);
        CHECK_OK(gcuda_backend_cuda_set_abort_callback(backend, ask, &a, 0.001f));
        CHECK_OK(gcuda_backend_graph_compute(backend, c.graph));
        const long n_questions = a.n;
        CHECK(n_questions >= 5 && n_questions <= N_NODES * 5);
        CHECK_EQ_I(chain_done(&c), N_NODES);
        for (long stop = 1; stop <= n_questions; stop += 1 + n_questions / 4) {
            chain_set(&c);
            a.n = 0;
            a.stop_at = stop;
            const gcuda_status st = gcuda_backend_graph_compute(backend, c.graph);
            if (st != GCUDA_STATUS_SUCCESS) { // chunks may have grown meanwhile, and the question never come
                CHECK(st == GCUDA_STATUS_ABORTED);
                CHECK_EQ_I(a.n, stop); // not asked again
                CHECK_HAS(gcuda_last_error(), "aborted");
                CHECK(chain_done(&c) < N_NODES);
                CHECK(stop > 1 || chain_done(&c) == 0);
            }
            a.stop_at = 0;
            CHECK_OK(gcuda_backend_graph_compute(backend, c.graph)); // usable
            CHECK_EQ_I(chain_done(&c), N_NODES);
        }
        CHECK_OK(gcuda_backend_cuda_set_abort_callback(backend, NULL, NULL, 0.0f)); // as if there never had been one
        a.n = 0;
        CHECK_OK(gcuda_backend_graph_compute(backend, c.graph));
        CHECK(a.n == 0);
        place_end(&c.p);
        gcuda_backend_free(backend);
    }
    clean();
}

// A long node alone: one question for each chunk, and no more work in flight than two chunks.
TEST(one_node_is_cut) {
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    struct place p = place_begin();
    struct gcuda_tensor * x = gcuda_new_tensor_3d(p.ctx, GCUDA_TYPE_F32, 8, 40, 3);
    struct gcuda_tensor * y = gcuda_rms_norm(p.ctx, x, 1e-5f);
    struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
    struct asked a = { 0, 0 };
    CHECK_OK(gcuda_build_forward_expand(graph, y));
    REQUIRE(backend != NULL && place_alloc(&p, backend));
    CHECK_OK(gcuda_backend_buffer_clear(p.buffer, 0));
    CHECK_OK(gcuda_backend_cuda_set_abort_callback(backend, ask, &a, 1e-9f));
    const long before = sim_counts("cudaLaunchKernelEx");
    CHECK_OK(gcuda_backend_graph_compute(backend, graph));
    CHECK_EQ_I(sim_counts("cudaLaunchKernelEx") - before, 120); // a row each
    CHECK_EQ_I(a.n, 120);
    a.n = 0;
    a.stop_at = 50;
    CHECK(gcuda_backend_graph_compute(backend, graph) == GCUDA_STATUS_ABORTED);
    CHECK_EQ_I(sim_counts("cudaLaunchKernelEx") - before, 120 + 49);
    CHECK_OK(gcuda_backend_cuda_set_abort_callback(backend, ask, &a, 0.0f)); // a chunk holds it all
    const long then = sim_counts("cudaLaunchKernelEx");
    CHECK_OK(gcuda_backend_graph_compute(backend, graph));
    CHECK_EQ_I(sim_counts("cudaLaunchKernelEx") - then, 1);
    place_end(&p);
    gcuda_backend_free(backend);
    clean();
}

// States of sequences are contiguous, whatever the sizes of the tensor that holds them: a slice takes the states of its
// sequences.
static void recurrence_once(gcuda_backend_t backend, struct asked * a, bool is_flat, float * found) {
    enum { Z = 8, H = 2, S = 3, T = 5 * S };
    struct place p = place_begin();
    struct gcuda_tensor * in[4];
    float values[Z * Z * H * S];
    for (int i = 0; i < 4; ++i) { in[i] = gcuda_new_tensor_3d(p.ctx, GCUDA_TYPE_F32, Z, H, T); }
    struct gcuda_tensor * state = is_flat ? gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, Z * Z * H, S)
                                          : gcuda_new_tensor_3d(p.ctx, GCUDA_TYPE_F32, Z, S, Z * H);
    struct gcuda_tensor * y = gcuda_gated_linear_attn(p.ctx, in[0], in[1], in[2], in[3], state, 0.5f);
    struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
    CHECK_OK(gcuda_build_forward_expand(graph, y));
    REQUIRE(place_alloc(&p, backend));
    for (int i = 0; i < Z * Z * H * S; ++i) { values[i] = (float) (i % 97) / 97.0f; }
    for (int i = 0; i < 4; ++i) { CHECK_OK(gcuda_backend_tensor_set(in[i], values + i, 0, gcuda_nbytes(in[i]))); }
    CHECK_OK(gcuda_backend_tensor_set(state, values, 0, gcuda_nbytes(state)));
    CHECK_OK(gcuda_backend_cuda_set_abort_callback(backend, a != NULL ? ask : NULL, a, 1e-9f));
    CHECK_OK(gcuda_backend_graph_compute(backend, graph));
    CHECK_OK(gcuda_backend_tensor_get(y, found, 0, gcuda_nbytes(y)));
    place_end(&p);
}

TEST(sequences_are_cut_apart_whatever_the_sizes_of_their_states) {
    static float whole[8 * 2 * (15 + 24)], cut[8 * 2 * (15 + 24)];
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    REQUIRE(backend != NULL);
    recurrence_once(backend, NULL, true, whole);
    for (int is_flat = 0; is_flat < 2; ++is_flat) {
        struct asked a = { 0, 0 };
        memset(cut, 0, sizeof cut);
        recurrence_once(backend, &a, is_flat != 0, cut);
        CHECK_EQ_I(a.n, 3); // a sequence each
        CHECK(memcmp(whole, cut, sizeof whole) == 0);
    }
    gcuda_backend_free(backend);
    clean();
}

// Fewer channels would have no kernel on tensor cores, and each slice would read the whole image for them.
TEST(convolutions_are_cut_into_many_channels) {
    // of two images
    static const struct {
        int64_t n_channels;
        long n_slices;
    } cases[] = { { 40, 2 }, { 64, 2 }, { 130, 6 } };
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    REQUIRE(backend != NULL);
    for (int i = 0; i < 3; ++i) {
        struct asked a = { 0, 0 };
        struct place p = place_begin();
        struct gcuda_tensor * kernel = gcuda_new_tensor_4d(p.ctx, GCUDA_TYPE_F32, 3, 3, 2, cases[i].n_channels);
        struct gcuda_tensor * image = gcuda_new_tensor_4d(p.ctx, GCUDA_TYPE_F32, 5, 4, 2, 2);
        struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
        CHECK_OK(gcuda_build_forward_expand(graph, gcuda_conv_2d_direct(p.ctx, kernel, image, 1, 1, 1, 1, 1, 1)));
        REQUIRE(place_alloc(&p, backend));
        CHECK_OK(gcuda_backend_buffer_clear(p.buffer, 0));
        CHECK_OK(gcuda_backend_cuda_set_abort_callback(backend, ask, &a, 1e-9f));
        CHECK_OK(gcuda_backend_graph_compute(backend, graph));
        CHECK_EQ_I(a.n, cases[i].n_slices);
        place_end(&p);
    }
    gcuda_backend_free(backend);
    clean();
}

// way: mul_mat of two matrices of columns with one of weights, out_prod, mul_mat_id.
static struct gcuda_tensor * product_of(struct gcuda_context * ctx, int way, struct gcuda_tensor ** in) {
    if (way == 2) {
        in[0] = gcuda_new_tensor_3d(ctx, GCUDA_TYPE_F32, 32, 5, 3);
        in[1] = gcuda_new_tensor_3d(ctx, GCUDA_TYPE_F32, 32, 1, 300);
        in[2] = gcuda_new_tensor_2d(ctx, GCUDA_TYPE_I32, 2, 300);
        return gcuda_mul_mat_id(ctx, in[0], in[1], in[2]);
    }
    in[0] =
        way == 0 ? gcuda_new_tensor_2d(ctx, GCUDA_TYPE_F16, 32, 5) : gcuda_new_tensor_2d(ctx, GCUDA_TYPE_F32, 5, 32);
    in[1] = way == 0 ? gcuda_new_tensor_3d(ctx, GCUDA_TYPE_F32, 32, 520, 2)
                     : gcuda_new_tensor_3d(ctx, GCUDA_TYPE_F32, 520, 32, 2);
    in[2] = NULL;
    return way == 0 ? gcuda_mul_mat(ctx, in[0], in[1]) : gcuda_out_prod(ctx, in[0], in[1]);
}

// Each slice of a product reads all weights.
TEST(products_are_cut_into_many_columns) {
    static float whole[5 * 520 * 2], cut[5 * 520 * 2];
    static const long n_slices[] = { 6, 6, 2 };
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    REQUIRE(backend != NULL);
    for (int way = 0; way < 3; ++way) {
        struct asked a = { 0, 0 };
        struct place p = place_begin();
        struct gcuda_tensor * in[3];
        struct gcuda_tensor * y = product_of(p.ctx, way, in);
        struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
        CHECK_OK(gcuda_build_forward_expand(graph, y));
        REQUIRE(place_alloc(&p, backend));
        for (int k = 0; k < 3; ++k) {
            static float values[520 * 32 * 2];
            static gcuda_fp16_t halves[32 * 5];
            static int32_t ids[600];
            for (int i = 0; i < 520 * 32 * 2; ++i) { values[i] = (float) ((i * 37 + k) % 101) / 50.0f - 1.0f; }
            for (int i = 0; i < 32 * 5; ++i) { halves[i] = gcuda_fp32_to_fp16(values[i]); }
            for (int i = 0; i < 600; ++i) { ids[i] = i % 3; }
            const void * data = in[k] == NULL                   ? NULL
                                : k == 2                        ? (void *) ids
                                : in[k]->type == GCUDA_TYPE_F16 ? (void *) halves
                                                                : (void *) values;
            if (data != NULL) { CHECK_OK(gcuda_backend_tensor_set(in[k], data, 0, gcuda_nbytes(in[k]))); }
        }
        CHECK_OK(gcuda_backend_graph_compute(backend, graph));
        CHECK_OK(gcuda_backend_tensor_get(y, whole, 0, gcuda_nbytes(y)));
        CHECK_OK(gcuda_backend_tensor_memset(y, 0xff, 0, gcuda_nbytes(y)));
        CHECK_OK(gcuda_backend_cuda_set_abort_callback(backend, ask, &a, 1e-9f));
        CHECK_OK(gcuda_backend_graph_compute(backend, graph));
        CHECK_EQ_I(a.n, n_slices[way]);
        CHECK_OK(gcuda_backend_tensor_get(y, cut, 0, gcuda_nbytes(y)));
        for (int64_t i = 0; i < gcuda_nelements(y); ++i) {
            CHECK_MSG(
                fabsf(cut[i] - whole[i]) <= 5e-3f, "way %d, element %d: %g, not %g", way, (int) i, cut[i], whole[i]);
        }
        CHECK_OK(gcuda_backend_cuda_set_abort_callback(backend, NULL, NULL, 0.0f));
        place_end(&p);
    }
    gcuda_backend_free(backend);
    clean();
}

TEST(wrong_arguments_are_refused) {
    struct asked a = { 0, 0 };
    gcuda_backend_t backend = gcuda_backend_cuda_init(0), cpu = gcuda_backend_cpu_init();
    CHECK(gcuda_backend_cuda_set_abort_callback(cpu, ask, &a, 1.0f) == GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK(gcuda_backend_cuda_set_abort_callback(backend, ask, &a, -1.0f) == GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK(gcuda_backend_cuda_set_abort_callback(backend, ask, &a, NAN) == GCUDA_STATUS_INVALID_ARGUMENT);
    gcuda_backend_free(cpu);
    gcuda_backend_free(backend);
    clean();
}

// The guess of what an operation takes follows what it took: longer chunks for a fast one, shorter for a slow one.
TEST(guesses_follow_what_was_measured) {
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    struct chain c;
    struct asked a = { 0, 0 };
    REQUIRE(backend != NULL && chain_make(&c, backend));
    chain_set(&c);
    CHECK_OK(gcuda_backend_cuda_set_abort_callback(backend, ask, &a, 0.01f));
    struct gcudai_cuda * cu = (struct gcudai_cuda *) backend;
    CHECK(gcudai_cuda_cost(cu, c.node[0], gcudai_cuda_guess(cu, c.node[0])) > 2.0);
    for (int i = 0; i < 2; ++i) { // two in flight that were guessed alike, far too long
        CHECK_OK(gcudai_cuda_chunk_begin(cu, c.node[0]));
        struct gcudai_cuda_chunk * k = &cu->cancel.chunks[i];
        union gcuda_args args;
        memset(&args, 0, sizeof args);
        gcudai_op_row(GCUDA_OP_ADD)->args(c.node[0], &args);
        CHECK_OK(gcudai_cuda_run_args(cu, c.node[0], &args));
        k->us = k->op_us = 1e12;
        CHECK_OK(gcudai_cuda_chunk_end(cu));
    }
    for (int i = 0; i < 2; ++i) { // each corrects the guess that it had: corrections do not pile up
        CHECK_OK(gcudai_cuda_chunk_wait(cu));
        CHECK_NEAR(cu->cancel.factor[GCUDA_OP_ADD], 0.25, 0.0);
    }
    for (int i = 0; i < 20; ++i) {
        a.n = 0;
        CHECK_OK(gcuda_backend_graph_compute(backend, c.graph));
    }
    CHECK(cu->cancel.factor[GCUDA_OP_ADD] > 0.0 && cu->cancel.factor[GCUDA_OP_ADD] != 1.0);
    CHECK(cu->cancel.factor[GCUDA_OP_MUL] == 0.0);
    while (cu->cancel.n_open > 0) { CHECK_OK(gcudai_cuda_chunk_wait(cu)); } // they know better than the next line
    cu->cancel.factor[GCUDA_OP_ADD] = 1e4;
    const long before = sim_counts("cudaLaunchKernelEx");
    CHECK_OK(gcuda_backend_graph_compute(backend, c.graph));
    // the first node at least in slices of 1024 elements
    CHECK(sim_counts("cudaLaunchKernelEx") - before >= N_NODES + 4);
    CHECK(cu->cancel.factor[GCUDA_OP_ADD] < 1e4);
    place_end(&c.p);
    gcuda_backend_free(backend);
    clean();
}

// Every operation that has a kernel is in the table or among those that cannot be cut; this list is the README's.
TEST(every_operation_says_whether_it_can_be_cut) {
    static const enum gcuda_op whole[] = { GCUDA_OP_SUM, GCUDA_OP_COUNT_EQUAL, GCUDA_OP_CROSS_ENTROPY_LOSS,
        GCUDA_OP_CROSS_ENTROPY_LOSS_BACK, GCUDA_OP_SET, GCUDA_OP_ACC, GCUDA_OP_ARANGE, GCUDA_OP_ROLL,
        GCUDA_OP_REPEAT_BACK, GCUDA_OP_FLASH_ATTN_EXT_BACK, GCUDA_OP_IM2COL_BACK, GCUDA_OP_IM2COL_3D, GCUDA_OP_CUSTOM };
    for (int op = 1; op < GCUDA_OP_COUNT; ++op) {
        bool is_whole = false;
        for (size_t i = 0; i < sizeof whole / sizeof whole[0]; ++i) { is_whole = is_whole || (int) whole[i] == op; }
        const bool is_view =
            op == GCUDA_OP_RESHAPE || op == GCUDA_OP_VIEW || op == GCUDA_OP_PERMUTE || op == GCUDA_OP_TRANSPOSE;
        const bool can = gcudai_cuda_cut_of((enum gcuda_op) op) != NULL;
        CHECK_MSG(is_view || can != is_whole, "%s: %s", gcuda_op_name((enum gcuda_op) op),
            can ? "in both lists" : "neither cut by a rule of GCUDA_OPS nor among those that cannot be cut");
    }
}

static void fault_once(const char * api, int k, cudaError_t error) {
    fresh(1, 64 * MB, 1);
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    struct chain c;
    struct asked a = { 0, 0 };
    REQUIRE(backend != NULL && chain_make(&c, backend));
    chain_set(&c);
    sim_fail(api, k, error);
    gcuda_status st = gcuda_backend_cuda_set_abort_callback(backend, ask, &a, 0.001f);
    if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_backend_graph_compute(backend, c.graph); }
    CHECK_MSG((st != GCUDA_STATUS_SUCCESS) == (sim_failed() > 0), "%s %d: status %d", api, k, (int) st);
    sim_fail(api, 0, cudaSuccess);
    if (error == cudaErrorIllegalAddress && sim_failed() > 0) {
        CHECK_MSG(st == GCUDA_STATUS_DEVICE_LOST, "%s %d: status %d", api, k, (int) st);
        a.n = 0;
        CHECK(gcuda_backend_graph_compute(backend, c.graph) == GCUDA_STATUS_DEVICE_LOST && a.n == 0);
        CHECK(gcuda_backend_cuda_set_abort_callback(backend, ask, &a, 0.0f) == GCUDA_STATUS_DEVICE_LOST);
    } else {
        CHECK_OK(gcuda_backend_cuda_set_abort_callback(backend, ask, &a, 0.001f));
        CHECK_OK(gcuda_backend_graph_compute(backend, c.graph));
        CHECK_EQ_I(chain_done(&c), N_NODES);
    }
    place_end(&c.p);
    gcuda_backend_free(backend);
    CHECK_MSG(sim_leaks() == 0 && sim_violations() == 0, "%s %d leaves something", api, k);
}

TEST(faults_in_turn) {
    static const char * const apis[] = { "cudaEventCreateWithFlags", "cudaEventRecord", "cudaEventSynchronize",
        "cudaEventElapsedTime", "cudaLaunchKernelEx" };
    for (size_t i = 0; i < sizeof apis / sizeof apis[0]; ++i) {
        for (int k = 1; k <= 5; ++k) {
            fault_once(apis[i], k, cudaErrorInvalidValue);
            fault_once(apis[i], k, cudaErrorIllegalAddress);
        }
    }
    clean();
}
