// Plans of model blocks on a device: with and without fusion, CUDA graphs, overlap of kernels (PDL) and parallel
// branches. Every run has other inputs, and all variants give the same bits. Exception: with many columns fusion that
// is not strict adds in another order. The simulated device runs the same with smaller matrices (make
// build/sim/test-plans).
#include "test.h"

#include <cuda_runtime_api.h>
#include <math.h>

#if defined(GCUDAI_SIM)
#define SIZE(device, simulated) (simulated)
#else
#define SIZE(device, simulated) (device)
#endif

// by nodes, captured, replayed; of what moves: by nodes at each new place, captured where it stays
enum { N_RUNS = SIZE(4, 3), N_MOVES = 6, MAX_OUT = 16 };
static const int places[N_MOVES] = { 0, 1, 2, 2, 3, 3 }; // of what moves, by runs: captured twice

struct shape {
    enum gcuda_type type;
    int64_t width, ff, n_columns;
    int n_layers;
    bool moves; // has a cache that runs write to at their places
};

struct net {
    struct shape s;
    struct gcuda_context *weights, *ctx;
    struct gcuda_cgraph * graph;
    struct gcuda_tensor *x, *cache, *out[MAX_OUT];
    gcuda_backend_buffer_t buffer;
    gcuda_gallocr_t alloc;
    int n_out, n_runs;
    size_t size; // of all results
};
typedef struct gcuda_tensor * (*block)(struct net * net, struct gcuda_tensor * x);

static struct gcuda_tensor * product(struct net * net, struct gcuda_tensor * x, int64_t rows) {
    return gcuda_mul_mat(net->ctx, gcuda_new_tensor_2d(net->weights, net->s.type, x->ne[0], rows), x);
}

static struct gcuda_tensor * f32_weight(struct net * net, int64_t ne0, int64_t ne1) {
    return gcuda_new_tensor_2d(net->weights, GCUDA_TYPE_F32, ne0, ne1);
}

static struct gcuda_tensor * normed(struct net * net, struct gcuda_tensor * x) {
    return gcuda_mul(net->ctx, gcuda_rms_norm(net->ctx, x, 1e-5f), f32_weight(net, x->ne[0], 1));
}

static void keep(struct net * net, struct gcuda_tensor * t) {
    gcuda_set_output(t);
    CHECK_OK(gcuda_build_forward_expand(net->graph, t));
    net->out[net->n_out++] = t;
    net->size += gcuda_nbytes(t);
}

// Queries, keys and values in parallel, then gate and up.
static struct gcuda_tensor * decoder(struct net * net, struct gcuda_tensor * x) {
    struct gcuda_context * c = net->ctx;
    struct gcuda_tensor *h = normed(net, x), *q = product(net, h, x->ne[0]);
    CHECK_OK(gcuda_build_forward_expand(net->graph, q));
    for (int i = 0; i < 2; ++i) { keep(net, product(net, h, x->ne[0] / 4)); }
    x = gcuda_add(c, x, product(net, q, x->ne[0]));
    h = normed(net, x);
    struct gcuda_tensor *gate = product(net, h, net->s.ff), *up = product(net, h, net->s.ff);
    CHECK_OK(gcuda_build_forward_expand(net->graph, gate));
    CHECK_OK(gcuda_build_forward_expand(net->graph, up));
    return gcuda_add(c, x, product(net, gcuda_swiglu_split(c, gate, up), x->ne[0]));
}

// Keys go where the run has its place in a cache, and are read there.
static struct gcuda_tensor * caching(struct net * net, struct gcuda_tensor * x) {
    struct gcuda_context * c = net->ctx;
    const int64_t n = x->ne[1], width = x->ne[0] / 4;
    net->cache =
        net->cache != NULL ? net->cache : gcuda_new_tensor_2d(net->weights, GCUDA_TYPE_F16, width, N_MOVES * n);
    struct gcuda_tensor * k = product(net, normed(net, x), width);
    struct gcuda_tensor * put = gcuda_cpy(c, k, gcuda_view_2d(c, net->cache, width, n, net->cache->nb[1], 0));
    keep(net, gcuda_mul_mat(c, put, k));
    return decoder(net, x);
}

static void move_to(struct net * net, int run) {
    for (int i = 0; i < net->graph->n_nodes && net->cache != NULL; ++i) {
        struct gcuda_tensor * t = net->graph->nodes[i];
        if (t->op != GCUDA_OP_VIEW || t->view_src != net->cache) { continue; }
        CHECK_OK(gcuda_graph_move_view(net->graph, t, (size_t) (places[run] * net->s.n_columns) * net->cache->nb[1]));
    }
}

// Routing, and the experts that it chooses.
static struct gcuda_tensor * experts(struct net * net, struct gcuda_tensor * x) {
    enum { N = 16, USED = 4 };
    struct gcuda_context * c = net->ctx;
    const int64_t width = x->ne[0], ff = net->s.ff, n = x->ne[1];
    struct gcuda_tensor *h = normed(net, x), *probs = gcuda_soft_max(c, gcuda_mul_mat(c, f32_weight(net, width, N), h));
    struct gcuda_tensor * ids = gcuda_argsort_top_k(c, probs, USED);
    struct gcuda_tensor *w = gcuda_get_rows(c, gcuda_reshape_3d(c, probs, 1, N, n), ids),
                        *in = gcuda_reshape_3d(c, h, width, 1, n);
    CHECK_OK(gcuda_build_forward_expand(net->graph, w));
    struct gcuda_tensor * gate =
        gcuda_mul_mat_id(c, gcuda_new_tensor_3d(net->weights, net->s.type, width, ff, N), in, ids);
    struct gcuda_tensor * up =
        gcuda_mul_mat_id(c, gcuda_new_tensor_3d(net->weights, net->s.type, width, ff, N), in, ids);
    struct gcuda_tensor * down = gcuda_new_tensor_3d(net->weights, net->s.type, ff, width, N);
    struct gcuda_tensor * y = gcuda_mul(c, gcuda_mul_mat_id(c, down, gcuda_swiglu_split(c, gate, up), ids), w);
    for (int i = 0; i < USED; ++i) {
        x = gcuda_add(c, x, gcuda_view_2d(c, y, width, n, y->nb[2], (size_t) i * y->nb[1]));
    }
    return x;
}

// A short convolution over the columns with a bias and SiLU.
static struct gcuda_tensor * convolution(struct net * net, struct gcuda_tensor * x) {
    enum { TAPS = 4 };
    struct gcuda_context * c = net->ctx;
    struct gcuda_tensor * h = product(net, normed(net, x), x->ne[0]);
    struct gcuda_tensor * past = gcuda_new_tensor_2d(net->weights, GCUDA_TYPE_F32, TAPS - 1, x->ne[0]);
    struct gcuda_tensor * in = gcuda_concat(c, past, gcuda_cont(c, gcuda_transpose(c, h)), 0);
    h = gcuda_add(c, gcuda_ssm_conv(c, in, f32_weight(net, TAPS, x->ne[0])), f32_weight(net, x->ne[0], 1));
    return gcuda_add(c, x, product(net, gcuda_silu(c, h), x->ne[0]));
}

// Numbers from -size to size: some rows of them, again and again.
static void fill(struct gcuda_tensor * t, struct rng * r, float size) {
    const int64_t n_rows = gcuda_nrows(t), most = 200000 / t->ne[0] + 1, n = n_rows < most ? n_rows : most;
    const size_t row = gcuda_row_size(t->type, t->ne[0]);
    float * values = (float *) malloc((size_t) (n * t->ne[0]) * sizeof *values);
    char * data = (char *) malloc((size_t) n_rows * row);
    for (int64_t i = 0; i < n * t->ne[0]; ++i) { values[i] = size * (float) (rng_unit(r) * 2.0 - 1.0); }
    if (t->type == GCUDA_TYPE_F32) {
        memcpy(data, values, (size_t) n * row);
    } else {
        CHECK_OK(gcuda_quantize_rows(t->type, values, data, n, t->ne[0], NULL, 1));
    }
    for (int64_t i = n; i < n_rows; ++i) { memcpy(data + (size_t) i * row, data + (size_t) (i - n) * row, row); }
    CHECK_OK(gcuda_backend_tensor_set(t, data, 0, gcuda_nbytes(t)));
    free(values);
    free(data);
}

static void net_begin(struct net * net, block make, const struct shape * s) {
    const struct gcuda_init_params params = { 0, NULL, true };
    struct rng r = rng_for("plans");
    memset(net, 0, sizeof *net);
    net->s = *s;
    net->n_runs = s->moves ? N_MOVES : N_RUNS;
    net->weights = gcuda_init(params);
    net->ctx = gcuda_init(params);
    net->graph = gcuda_new_graph(net->ctx);
    struct gcuda_tensor * x = net->x = gcuda_new_tensor_2d(net->ctx, GCUDA_TYPE_F32, s->width, s->n_columns);
    gcuda_set_input(x);
    for (int i = 0; i < s->n_layers; ++i) { x = make(net, x); }
    keep(net, x);
    net->buffer = gcuda_backend_alloc_ctx_tensors_from_buft(net->weights, gcuda_backend_cuda_buffer_type(0));
    net->alloc = gcuda_gallocr_new(gcuda_backend_cuda_buffer_type(0));
    gcuda_gallocr_set_concurrent(net->alloc, true); // or hardly any branches could run concurrently
    CHECK_OK(gcuda_gallocr_alloc_graph(net->alloc, net->graph));
    for (struct gcuda_tensor * w = gcuda_get_first_tensor(net->weights); w != NULL;
         w = gcuda_get_next_tensor(net->weights, w)) {
        fill(w, &r, gcuda_nrows(w) > 1 ? 1.7f / sqrtf((float) w->ne[0]) : 1.0f);
    }
}

static void net_end(struct net * net) {
    gcuda_gallocr_free(net->alloc);
    gcuda_backend_buffer_free(net->buffer);
    gcuda_free(net->ctx);
    gcuda_free(net->weights);
}

// The results of a run with its own inputs.
static void net_run(struct net * net, gcuda_backend_t backend, int run, char * out) {
    struct rng r = { (uint64_t) run };
    fill(net->x, &r, 1.0f);
    move_to(net, run);
    CHECK_OK(gcuda_backend_graph_compute(backend, net->graph));
    for (int i = 0; i < net->n_out; ++i) {
        CHECK_OK(gcuda_backend_tensor_get(net->out[i], out, 0, gcuda_nbytes(net->out[i])));
        out += gcuda_nbytes(net->out[i]);
    }
}

enum { FUSION = 1, GRAPHS = 2, OVERLAP = 4, BESIDE = 8 };

// The others are compared with the first. None has overlap alone: without CUDA graphs it is tested with fusion.
// Branches run in parallel in a plan's first run, which is no CUDA graph, and in the graph afterwards; in every other
// case with fusion.
static const int modes[] = { 0, FUSION, GRAPHS, FUSION | GRAPHS, FUSION | OVERLAP, GRAPHS | OVERLAP,
    FUSION | GRAPHS | OVERLAP, GRAPHS | BESIDE };
static uint64_t n_compared, n_concurrent; // n_concurrent: launches on forked streams, since the test set it to 0

static gcuda_backend_t backend_with(int mode, bool is_strict) {
    struct gcuda_cuda_params p;
    memset(&p, 0, sizeof p);
    p.strict = is_strict;
    p.fusion = mode & FUSION ? GCUDA_CUDA_ON : GCUDA_CUDA_OFF;
    p.graphs = mode & GRAPHS ? GCUDA_CUDA_ON : GCUDA_CUDA_OFF;
    p.overlap = mode & OVERLAP ? GCUDA_CUDA_ON : GCUDA_CUDA_OFF;
    p.concurrency = mode & BESIDE ? GCUDA_CUDA_ON : GCUDA_CUDA_OFF;
    return gcuda_backend_cuda_init_params(&p);
}

// Other inputs have other results, and none is made of what is no number.
static void check_results(const struct net * net, const float * results) {
    const size_t n = net->size / sizeof(float);
    bool is_number = true;
    for (size_t i = 0; i < (size_t) net->n_runs * n; ++i) { is_number = is_number && isfinite(results[i]); }
    CHECK(is_number);
    for (int run = 1; run < net->n_runs; ++run) { CHECK(memcmp(results, results + (size_t) run * n, net->size) != 0); }
}

static double distance(const float * a, const float * b, size_t n) {
    double error = 0.0, all = 0.0;
    for (size_t i = 0; i < n; ++i) {
        error += ((double) a[i] - b[i]) * ((double) a[i] - b[i]);
        all += (double) b[i] * b[i];
    }
    return error / all;
}

// bound 0: the same bits.
static void compare_within(block make, const struct shape * s, bool is_strict, double bound) {
    struct net net;
    snprintf(test_all.case_name, sizeof test_all.case_name, "%s, %lld wide, %lld columns", gcuda_type_name(s->type),
        (long long) s->width, (long long) s->n_columns);
    net_begin(&net, make, s);
    char *wanted = (char *) malloc((size_t) net.n_runs * net.size), *got = (char *) malloc(net.size);
    for (size_t m = 0; m < sizeof modes / sizeof modes[0]; ++m) {
        const int mode = modes[m] & BESIDE && n_compared % 2 == 1 ? modes[m] | FUSION : modes[m];
        gcuda_backend_t backend = backend_with(mode, is_strict);
        CHECK(backend != NULL);
        for (int run = 0; run < net.n_runs && backend != NULL; ++run) {
            char * like = wanted + (size_t) run * net.size;
            net_run(&net, backend, run, mode == 0 ? like : got);
            const bool is_near = mode > 0 && bound > 0.0 &&
                                 distance((float *) (void *) got, (float *) (void *) like, net.size / 4) < bound;
            CHECK_MSG(mode == 0 || is_near || memcmp(got, like, net.size) == 0, "run %d has other bits with%s%s%s%s",
                run, mode & FUSION ? " fusion" : "", mode & GRAPHS ? " graphs" : "", mode & OVERLAP ? " overlap" : "",
                mode & BESIDE ? " branches" : "");
        }
        struct gcuda_cuda_plan_stats stats;
        CHECK_OK(gcuda_backend_cuda_get_plan_stats(backend, &stats));
        CHECK((stats.n_fused > 0) == ((mode & FUSION) != 0) && (stats.n_graph_launches > 0) == ((mode & GRAPHS) != 0));
        CHECK(stats.n_concurrent == 0 || (mode & BESIDE) != 0);
        n_concurrent += stats.n_concurrent;
        CHECK_EQ_I(stats.n_captures, (mode & GRAPHS) == 0 ? 0 : s->moves ? 2 : 1);
        gcuda_backend_free(backend);
    }
    n_compared++;
    check_results(&net, (const float *) (const void *) wanted);
    free(wanted);
    free(got);
    net_end(&net);
    test_all.case_name[0] = '\0';
}

static void compare(block make, const struct shape * s) { compare_within(make, s, false, 0.0); }

static void compare_types(block make, const struct shape * s) {
    static const enum gcuda_type types[] = { GCUDA_TYPE_Q4_0, GCUDA_TYPE_Q8_0, GCUDA_TYPE_Q4_K, GCUDA_TYPE_MXFP4,
        GCUDA_TYPE_F16, GCUDA_TYPE_BF16, GCUDA_TYPE_F32 };
    for (size_t i = 0; i < sizeof types / sizeof types[0]; ++i) {
        struct shape t = *s;
        t.type = types[i];
        compare(make, &t);
    }
}

TEST(decoder_blocks_of_few_columns) {
    static const struct shape shapes[] = {
        { GCUDA_TYPE_Q4_0, 256, SIZE(768, 256), 1, SIZE(3, 1), false },
        { GCUDA_TYPE_Q4_0, SIZE(512, 256), SIZE(1024, 256), 3, SIZE(3, 1), false },
        { GCUDA_TYPE_Q4_0, 4096, 1024, 1, 1, false },
        { GCUDA_TYPE_Q4_0, 5120, 512, 8, 1, false },
    };
    n_concurrent = 0;
    for (int i = 0; i < SIZE(4, 2); ++i) { compare_types(decoder, &shapes[i]); }
    CHECK(n_concurrent > 0); // where little is to be read it pays
}

TEST(decoder_blocks_of_many_columns) {
    static const struct shape shapes[] = {
        { GCUDA_TYPE_Q4_0, SIZE(4096, 256), SIZE(4096, 256), SIZE(512, 33), 1, false },
        { GCUDA_TYPE_Q8_0, 4096, 5120, 130, 1, false },
        { GCUDA_TYPE_Q6_K, 2048, 1024, 64, 1, false },
        { GCUDA_TYPE_Q4_K, 4096, 1024, 16, 1, false },
    };
    for (int i = 0; i < SIZE(4, 1); ++i) {
        compare_within(decoder, &shapes[i], true, 0.0);
        compare_within(decoder, &shapes[i], false, 1e-4);
    }
}

TEST(blocks_whose_cache_moves) {
    static const struct shape shapes[] = {
        { GCUDA_TYPE_Q4_0, SIZE(1024, 256), SIZE(2048, 256), 1, SIZE(3, 1), true },
        { GCUDA_TYPE_Q4_0, 256, 256, 3, SIZE(3, 1), true },
    };
    n_concurrent = 0;
    for (int i = 0; i < 2; ++i) { compare_types(caching, &shapes[i]); }
    CHECK(n_concurrent > 0);
}

TEST(blocks_of_experts) {
    static const struct shape shapes[] = {
        { GCUDA_TYPE_Q4_0, SIZE(1024, 256), SIZE(768, 256), 1, SIZE(2, 1), false },
        { GCUDA_TYPE_Q4_0, 256, 256, 6, 1, false },
    };
    for (int i = 0; i < SIZE(2, 1); ++i) { compare_types(experts, &shapes[i]); }
}

// One of each, and quick: compute-sanitizer looks at these (tests/gpu.py).
TEST(small_blocks) {
    static const struct shape one = { GCUDA_TYPE_Q4_0, 256, 256, 1, 1, false },
                              few = { GCUDA_TYPE_BF16, 256, 256, 3, 1, false };
    static const struct shape moving = { GCUDA_TYPE_Q4_0, 256, 256, 1, 1, true };
    static const struct shape many = { GCUDA_TYPE_Q8_0, 256, 256, 33, 1, false },
                              halves = { GCUDA_TYPE_F16, 256, 0, 2, 1, false };
    static const struct shape some = { GCUDA_TYPE_Q4_0, 256, 256, 11, 1, false };
    n_concurrent = 0;
    compare(decoder, &one);
    compare(decoder, &few);
    CHECK(n_concurrent > 0);
    compare_within(decoder, &many, true, 0.0);
    compare_within(decoder, &some, true, 0.0);
    compare(experts, &one);
    compare(caching, &moving);
    compare(convolution, &halves);
}

TEST(blocks_with_a_convolution) {
    static const struct shape shapes[] = {
        { GCUDA_TYPE_Q4_0, SIZE(2048, 256), 0, 1, SIZE(2, 1), false },
        { GCUDA_TYPE_Q4_0, 256, 0, 20, SIZE(2, 1), false },
    };
    for (int i = 0; i < 2; ++i) { compare_types(convolution, &shapes[i]); }
}
