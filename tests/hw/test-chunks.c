// Stopping a graph on a device, with large nodes of many operations. Measured: the longest chunk, and the time from the
// callback's stop to the return. Checked: slices change no bit. Times are of the host's clock: two chunks are in
// flight, so from the third call on the callback runs when a chunk has finished. The simulated device uses small nodes
// and checks bits and calls alone.
#include "test.h"

#include <cuda_runtime_api.h>

#if defined(GCUDAI_SIM)
#define SIZE(device, simulated) (simulated)
#else
#define SIZE(device, simulated) (device)
#endif

// of a chunk, where chunks are to be 1 ms: guesses are off, and operations do not take the same for all slices
#define LONGEST_MS 4.0
#define FIRST_MS 16.0  // while chunks have not been timed yet
#define STOPPED_MS 8.0 // two chunks are in flight
#define SLOWER 2.0     // all chunks together, against the whole: slices may take lesser kernels

enum { MAX_ASKED = 1 << 16, N_RUNS = SIZE(3, 1), N_STOPS = 5 };

struct asked {
    int n, stop_at; // 0: never
    int64_t us[MAX_ASKED];
};
static struct asked asked;

static bool ask(void * data) {
    struct asked * a = (struct asked *) data;
    if (a->n < MAX_ASKED) { a->us[a->n] = gcuda_time_us(); }
    return ++a->n == a->stop_at;
}

// ---- nodes ----
struct node {
    struct gcuda_context * ctx;
    struct gcuda_tensor * y;
};

static struct gcuda_tensor * input(
    struct node * n, enum gcuda_type type, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3) {
    return gcuda_new_tensor_4d(n->ctx, type, ne0, ne1, ne2, ne3);
}

// One piece of random numbers in t's type, over and over. Small ones, so that recurrences neither grow nor vanish.
static void fill(struct gcuda_tensor * t) {
    const int64_t n = 1 << 16;
    const size_t piece = gcuda_row_size(t->type, n), size = gcuda_nbytes(t);
    float * values = (float *) malloc((size_t) n * sizeof(float));
    char * data = (char *) calloc(1, piece);
    struct rng r = rng_for("chunks");
    for (int64_t i = 0; i < n; ++i) {
        values[i] = 0.1f * (float) rng_between(&r, -1.0, strcmp(t->name, "decay") == 0 ? -0.1 : 1.0);
    }
    if (t->type == GCUDA_TYPE_F32) {
        memcpy(data, values, piece);
    } else if (t->type != GCUDA_TYPE_I32) { // indices stay 0
        CHECK_OK(gcuda_quantize_rows(t->type, values, data, 1, n, NULL, 1));
    }
    for (size_t at = 0; at < size; at += piece) {
        CHECK_OK(gcuda_backend_tensor_set(t, data, at, size - at < piece ? size - at : piece));
    }
    free(values);
    free(data);
}

// Measures one node. is_same: with the bits of the whole. longest: of a chunk in ms; 0: it is not cut, and only told.
static void measure(struct node * n, const char * name, bool is_same, double longest);

static struct node begin(void) {
    const struct gcuda_init_params params = { 0, NULL, true };
    struct node n = { gcuda_init(params), NULL };
    return n;
}

static void attention(const char * name, enum gcuda_type type, int64_t dk, int64_t dv, int64_t kv_heads, int64_t group,
    int64_t kv, int64_t queries, bool has_all, double longest) {
    struct node n = begin();
    struct gcuda_tensor * q = input(&n, GCUDA_TYPE_F32, dk, queries, kv_heads * group, 1);
    struct gcuda_tensor * mask = input(&n, GCUDA_TYPE_F16, kv, queries, 1, 1);
    n.y = gcuda_flash_attn_ext(n.ctx, q, input(&n, type, dk, kv, kv_heads, 1), input(&n, type, dv, kv, kv_heads, 1),
        mask, 0.125f, has_all ? 8.0f : 0.0f, has_all ? 10.0f : 0.0f);
    if (has_all) {
        CHECK_OK(gcuda_flash_attn_ext_add_sinks(n.y, input(&n, GCUDA_TYPE_F32, kv_heads * group, 1, 1, 1)));
    }
    measure(&n, name, true, longest);
}

TEST(attention_of_one_query) { // less than a chunk on tensor cores; a cache in F32 takes the plain path
    attention("flash_attn_ext, f16, 32 heads of 128 on 8, 65536 positions, 1 query", GCUDA_TYPE_F16, SIZE(128, 32),
        SIZE(128, 32), SIZE(8, 2), 4, SIZE(65536, 700), 1, false, 0.0);
    attention("flash_attn_ext, f16, 16 heads of 576 and 512 on 1, 16384 positions, 1 query", GCUDA_TYPE_F16,
        SIZE(576, 96), SIZE(512, 416), 1, 16, SIZE(16384, 321), 1, false, 0.0);
    attention("flash_attn_ext, f32, 16 heads of 576 and 512 on 1, 16384 positions, 1 query", GCUDA_TYPE_F32,
        SIZE(576, 96), SIZE(512, 416), 1, 16, SIZE(16384, 321), 1, false, LONGEST_MS);
    attention("flash_attn_ext, q8_0, 32 heads of 128 on 8, 65536 positions, 1 query, alibi, sinks, softcap",
        GCUDA_TYPE_Q8_0, SIZE(128, 32), SIZE(128, 64), SIZE(8, 3), 4, SIZE(65536, 450), 1, true, 0.0);
}

TEST(attention_of_many_queries) {
    attention("flash_attn_ext, f16, 32 heads of 128 on 8, 16384 positions, 4096 queries", GCUDA_TYPE_F16, SIZE(128, 32),
        SIZE(128, 32), SIZE(8, 2), SIZE(4, 2), SIZE(16384, 260), SIZE(4096, 20), false,
        SIZE(LONGEST_MS, 0.0)); // a slice fills the device
}

static void scan(const char * name, int64_t state, int64_t width, int64_t heads, int64_t tokens, int64_t seqs,
    bool is_one, bool is_same) {
    struct node n = begin();
    struct gcuda_tensor * decay = input(&n, GCUDA_TYPE_F32, is_one ? 1 : state, heads, 1, 1);
    gcuda_set_name(decay, "decay");
    n.y = gcuda_ssm_scan(n.ctx, input(&n, GCUDA_TYPE_F32, state, width, heads, seqs),
        input(&n, GCUDA_TYPE_F32, width, heads, tokens, seqs), input(&n, GCUDA_TYPE_F32, heads, tokens, seqs, 1), decay,
        input(&n, GCUDA_TYPE_F32, state, 1, tokens, seqs), input(&n, GCUDA_TYPE_F32, state, 1, tokens, seqs),
        input(&n, GCUDA_TYPE_I32, seqs, 1, 1, 1));
    measure(&n, name, is_same, LONGEST_MS);
}

TEST(recurrences_over_long_prompts) {
    scan("ssm_scan, mamba-2, 128 heads of 80, state 128, 16384 tokens", SIZE(128, 64), SIZE(80, 32), SIZE(128, 4),
        SIZE(16384, 300), 1, true, true);
    scan("ssm_scan, mamba-2, 48 heads of 64, state 128, 65536 tokens", SIZE(128, 64), SIZE(64, 16), SIZE(48, 2),
        SIZE(65536, 200), SIZE(1, 2), true, SIZE(false, true)); // in segments on a device
    scan("ssm_scan, mamba, 4096 channels, state 16, 16384 tokens, 2 sequences", 16, 1, SIZE(4096, 40), SIZE(16384, 210),
        2, false, true);
    for (int kind = 0; kind < 3; ++kind) {
        static const char * const names[] = { "rwkv_wkv6, 32 heads of 64, 32768 tokens",
            "rwkv_wkv7, 32 heads of 64, 32768 tokens",
            "gated_linear_attn, 32 heads of 64, 32768 tokens of 2 sequences" };
        const int64_t size = SIZE(64, 32), heads = SIZE(32, 2), seqs = kind == 2 ? 2 : 1,
                      tokens = seqs * SIZE(32768 / seqs, 270);
        struct node n = begin();
        struct gcuda_tensor * in[6];
        for (int i = 0; i < 6; ++i) { in[i] = input(&n, GCUDA_TYPE_F32, size, heads, tokens, 1); }
        struct gcuda_tensor * state = input(&n, GCUDA_TYPE_F32, size * size * heads, seqs, 1, 1);
        n.y = kind == 0 ? gcuda_rwkv_wkv6(
                              n.ctx, in[0], in[1], in[2], input(&n, GCUDA_TYPE_F32, size, heads, 1, 1), in[3], state)
              : kind == 1 ? gcuda_rwkv_wkv7(n.ctx, in[0], in[1], in[2], in[3], in[4], in[5], state)
                          : gcuda_gated_linear_attn(n.ctx, in[0], in[1], in[2], in[3], state, 0.5f);
        measure(&n, names[kind], true, LONGEST_MS);
    }
}

static void product(const char * name, enum gcuda_type type, int64_t m, int64_t n_columns, int64_t k) {
    struct node n = begin();
    n.y = gcuda_mul_mat(n.ctx, input(&n, type, k, m, 1, 1), input(&n, GCUDA_TYPE_F32, k, n_columns, 1, 1));
    measure(&n, name, false, LONGEST_MS);
}

TEST(products) {
    product("mul_mat, f16, 16384 x 8192 x 16384", GCUDA_TYPE_F16, SIZE(16384, 40), SIZE(8192, 300), SIZE(16384, 64));
    product("mul_mat, q4_0, 16384 x 8192 x 16384", GCUDA_TYPE_Q4_0, SIZE(16384, 40), SIZE(8192, 300), SIZE(16384, 64));
    // as im2col and a product, whose weights are all patches; as one kernel
    for (int is_direct = 0; is_direct < 2; ++is_direct) {
        struct node n = begin();
        struct gcuda_tensor * kernel = input(&n, GCUDA_TYPE_F16, 3, 3, SIZE(512, 3), SIZE(512, 8));
        struct gcuda_tensor * images =
            input(&n, GCUDA_TYPE_F32, SIZE(256, 20), SIZE(256, 20), SIZE(512, 3), SIZE(8, 2));
        n.y = (is_direct ? gcuda_conv_2d_direct : gcuda_conv_2d)(n.ctx, kernel, images, 1, 1, 1, 1, 1, 1);
        measure(&n,
            is_direct ? "conv_2d_direct, f16, 512 channels of 256 x 256, 8 images"
                      : "conv_2d, f16, 512 channels of 256 x 256, 8 images",
            false, LONGEST_MS);
    }
}

TEST(what_memory_bounds) {
    struct node n = begin();
    struct gcuda_tensor * x = input(&n, GCUDA_TYPE_F32, SIZE(8192, 2100), SIZE(16384, 3), SIZE(8, 2), 1);
    n.y = gcuda_add(n.ctx, x, x);
    measure(&n, "add, f32, 4 GiB", true, LONGEST_MS);
    n = begin();
    n.y = gcuda_soft_max(n.ctx, input(&n, GCUDA_TYPE_F32, SIZE(8192, 210), SIZE(16384, 30), SIZE(8, 2), 1));
    measure(&n, "soft_max, f32, 4 GiB", false, LONGEST_MS);
    n = begin();
    n.y = gcuda_argsort(
        n.ctx, input(&n, GCUDA_TYPE_F32, SIZE(4096, 64), SIZE(32768, 30), SIZE(2, 2), 1), GCUDA_SORT_ORDER_ASC);
    measure(&n, "argsort, rows of 4096, 1 GiB", true, LONGEST_MS);
}

TEST(triangles) {
    struct node n = begin();
    struct gcuda_tensor * a = input(&n, GCUDA_TYPE_F32, SIZE(1024, 8), SIZE(1024, 8), 1, 1);
    gcuda_set_name(a, "decay"); // nothing near 0 on the diagonal
    n.y = gcuda_solve_tri(
        n.ctx, a, input(&n, GCUDA_TYPE_F32, SIZE(131072, 8200), SIZE(1024, 8), 1, 1), true, true, false);
    measure(&n, "solve_tri, 1024 x 1024, 131072 columns", true, LONGEST_MS);
}

// What runs as one is measured too, so that the record tells what a stop waits for then.
TEST(what_is_not_cut) {
    struct node n = begin();
    n.y = gcuda_sum(n.ctx, input(&n, GCUDA_TYPE_F32, SIZE(8192, 210), SIZE(16384, 30), SIZE(8, 2), 1));
    measure(&n, "sum, f32, 4 GiB", true, 0.0);
    n = begin();
    n.y = gcuda_im2col(n.ctx, input(&n, GCUDA_TYPE_F16, 3, 3, SIZE(64, 3), 1),
        input(&n, GCUDA_TYPE_F32, SIZE(2048, 20), SIZE(2048, 20), SIZE(64, 3), 1), 1, 1, 1, 1, 1, 1, true,
        GCUDA_TYPE_F16);
    measure(&n, "im2col, f16, one image of 64 channels of 2048 x 2048", true, 0.0);
}

// ---- measuring ----

// Milliseconds of a run; with a question to stop at, from its answer on: less than 0 if the run ends before it is
// asked.
static double run_ms(gcuda_backend_t backend, struct gcuda_cgraph * graph, int stop_at) {
    asked.n = 0;
    asked.stop_at = stop_at;
    const int64_t begin_us = gcuda_time_us();
    const gcuda_status st = gcuda_backend_graph_compute(backend, graph);
    const int64_t end_us = gcuda_time_us();
    const bool is_stopped = stop_at > 0 && asked.n == stop_at;
    CHECK_EQ_I(st, is_stopped ? GCUDA_STATUS_ABORTED : GCUDA_STATUS_SUCCESS);
    return stop_at == 0                         ? (double) (end_us - begin_us) / 1e3
           : is_stopped && asked.n <= MAX_ASKED ? (double) (end_us - asked.us[asked.n - 1]) / 1e3
                                                : -1.0;
}

// Evaluates the previous run, which took ms: from the third call on the callback runs when a chunk has finished; two
// chunks remain after the last call.
static double longest_ms(double ms) {
    const int n = asked.n < MAX_ASKED ? asked.n : MAX_ASKED;
    double longest = n < 2 ? ms : 0.0;
    for (int i = 2; i + 1 < n; ++i) {
        const double d = (double) (asked.us[i + 1] - asked.us[i]) / 1e3;
        longest = d > longest ? d : longest;
    }
    if (n >= 2) {
        const double tail = (ms - (double) (asked.us[n - 1] - asked.us[0]) / 1e3) / 2.0;
        longest = tail > longest ? tail : longest;
    }
    return longest;
}

static void measure_on(gcuda_backend_t backend, struct gcuda_cgraph * graph, struct node * n, const char * name,
    bool is_same, double longest) {
    const size_t size = gcuda_nbytes(n->y);
    char *whole = (char *) malloc(size), *got = (char *) malloc(size);
    run_ms(backend, graph, 0); // modules and scratch
    const double whole_ms = run_ms(backend, graph, 0);
    CHECK_OK(gcuda_backend_tensor_get(n->y, whole, 0, size));
    CHECK_OK(gcuda_backend_tensor_memset(n->y, 0xff, 0, size));
    CHECK_OK(gcuda_backend_cuda_set_abort_callback(backend, ask, &asked, SIZE(0.0f, 1e-9f)));
    double ms = run_ms(backend, graph, 0);
    const double first = longest_ms(ms);
    CHECK_OK(gcuda_backend_tensor_get(n->y, got, 0, size));
    CHECK_MSG(!is_same || memcmp(whole, got, size) == 0, "%s: other bits in chunks", name);
    double best = 1e30, stopped[N_STOPS];
    for (int i = 0; i < N_RUNS; ++i) { // the host may be kept from asking meanwhile: the best run
        ms = run_ms(backend, graph, 0);
        const double d = longest_ms(ms);
        best = d < best ? d : best;
    }
    CHECK_OK(gcuda_backend_tensor_get(n->y, got, 0, size));
    CHECK_MSG(!is_same || memcmp(whole, got, size) == 0, "%s: other bits in chunks that were timed", name);
    const int n_chunks = asked.n;
    int n_stops = 0;
    // with a chunk in flight, where there is more than one; no two runs have the same chunks
    for (int i = 0; i < N_STOPS; ++i) {
        const double d = run_ms(backend, graph, n_chunks < 2 ? 1 : 2 + (n_chunks - 2) * i / N_STOPS);
        if (d >= 0.0) { stopped[n_stops++] = d; }
    }
    CHECK_MSG(n_stops > 0, "%s: never stopped", name);
    if (n_stops == 0) { stopped[n_stops++] = 1e30; }
    for (int i = 1; i < n_stops; ++i) { // sorted
        for (int k = i; k > 0 && stopped[k] < stopped[k - 1]; --k) {
            const double d = stopped[k];
            stopped[k] = stopped[k - 1];
            stopped[k - 1] = d;
        }
    }
    printf("  %s: %.2f ms; in %d chunks %.2f ms, the longest %.2f ms, %.2f ms in the first "
           "run; stops after %.2f ms, the slowest after %.2f ms\n",
        name, whole_ms, n_chunks, ms, best, first, stopped[n_stops / 2], stopped[n_stops - 1]);
    CHECK_MSG(longest > 0.0 ? n_chunks > 1 : n_chunks == 1, "%s: %d chunks", name, n_chunks);
#if !defined(GCUDAI_SIM)
    CHECK_MSG(longest == 0.0 || (best <= longest && first <= FIRST_MS && stopped[n_stops / 2] <= STOPPED_MS),
        "%s: chunks of %.2f ms, %.2f ms in the first run, stops after %.2f ms", name, best, first,
        stopped[n_stops / 2]);
    CHECK_MSG(ms <= SLOWER * whole_ms + 1.0, "%s: %.2f ms, in chunks %.2f ms", name, whole_ms, ms);
#endif
    CHECK_OK(gcuda_backend_cuda_set_abort_callback(backend, NULL, NULL, 0.0f));
    run_ms(backend, graph, 0); // stopped runs have left nothing
    CHECK_OK(gcuda_backend_tensor_get(n->y, got, 0, size));
    CHECK_MSG(memcmp(whole, got, size) == 0, "%s: other bits after stops", name);
    free(whole);
    free(got);
}

static void measure(struct node * n, const char * name, bool is_same, double longest) {
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    REQUIRE(backend != NULL && n->y != NULL);
    struct gcuda_cgraph * graph = gcuda_new_graph(n->ctx);
    CHECK_OK(gcuda_build_forward_expand(graph, n->y));
    gcuda_backend_buffer_t buffer = gcuda_backend_alloc_ctx_tensors(n->ctx, backend);
    REQUIRE(buffer != NULL);
    for (struct gcuda_tensor * t = gcuda_get_first_tensor(n->ctx); t != NULL; t = gcuda_get_next_tensor(n->ctx, t)) {
        if (t->op == GCUDA_OP_NONE) { fill(t); }
    }
    measure_on(backend, graph, n, name, is_same, longest);
    gcuda_backend_buffer_free(buffer);
    gcuda_free(n->ctx);
    gcuda_backend_free(backend);
}
