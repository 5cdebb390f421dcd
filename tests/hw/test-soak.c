// A decoder block with experts, computed repeatedly with other batches, KV lengths and positions. It runs through
// graph_compute and its bounded cache of plans, through an explicit plan that is updated, and through a scheduler with
// two copies, as CUDA graphs. Graphs, plans, schedulers and backends are made and freed in between. Memory of device
// and host and the number of handles must stay what they were after a warm-up. GCUDA_TEST_SOAK_S: seconds (3; with
// GCUDA_TEST_FULL 20); half an hour reveals slow leaks. GCUDA_TEST_SOAK_SHARED: other programs use the device between
// the warm-up and the end. Its memory in use, including theirs, is then checked at the end alone. Also runs on the
// simulated device (make build/sim/test-soak).
#include "gcuda.h"
#include "test.h"

#include <cuda_runtime_api.h>
#include <dirent.h>
#include <math.h>
#include <unistd.h>

#if defined(GCUDAI_SIM)
#include "sim.h"
#define SIZE(device, simulated) (simulated)
#else
#define SIZE(device, simulated) (device)
#endif

#define KIB ((size_t) 1024)
#define MIB (KIB * KIB)

enum {
    HEAD = SIZE(64, 32),
    N_HEADS = SIZE(16, 2),
    N_KV_HEADS = SIZE(4, 1),
    WIDTH = HEAD * N_HEADS,
    KV_WIDTH = HEAD * N_KV_HEADS,
    FF = SIZE(768, 32),
    N_EXPERTS = SIZE(16, 4),
    N_USED = 2,
    N_LAYERS = SIZE(4, 1),
    N_CTX = SIZE(2048, 192),
    MOST_TOKENS = 128,
    KV_STEP = SIZE(256, 64)
};
enum { N_SLOTS = 6, MAX_PLANS = 4, MAX_PLAN_BYTES = 4 * 1024 * 1024, WARM_UP_ROUNDS = 4, CHECK_EVERY = 5 };
#define MAX_NMSE 2e-3 // activations are quantized on a device

// ---- the model: the same on the device and on the CPU ----

struct layer {
    struct gcuda_tensor *q, *k, *v, *o, *router, *gate, *up, *down, *norm;
    struct gcuda_tensor *k_cache, *v_cache;
};
struct model {
    struct gcuda_context *ctx, *cache_ctx;
    gcuda_backend_buffer_t buffer, cache;
    struct layer layers[N_LAYERS];
};

static void model_begin(struct model * m, gcuda_backend_buffer_type_t buft) {
    const struct gcuda_init_params params = { 0, NULL, true };
    m->ctx = gcuda_init(params);
    m->cache_ctx = gcuda_init(params);
    for (int i = 0; i < N_LAYERS; ++i) {
        struct layer * l = &m->layers[i];
        l->q = gcuda_new_tensor_2d(m->ctx, GCUDA_TYPE_Q4_0, WIDTH, WIDTH);
        l->k = gcuda_new_tensor_2d(m->ctx, GCUDA_TYPE_Q4_0, WIDTH, KV_WIDTH);
        l->v = gcuda_new_tensor_2d(m->ctx, GCUDA_TYPE_Q8_0, WIDTH, KV_WIDTH);
        l->o = gcuda_new_tensor_2d(m->ctx, GCUDA_TYPE_F16, WIDTH, WIDTH);
        l->router = gcuda_new_tensor_2d(m->ctx, GCUDA_TYPE_F32, WIDTH, N_EXPERTS);
        l->gate = gcuda_new_tensor_3d(m->ctx, GCUDA_TYPE_Q4_0, WIDTH, FF, N_EXPERTS);
        l->up = gcuda_new_tensor_3d(m->ctx, GCUDA_TYPE_Q4_0, WIDTH, FF, N_EXPERTS);
        l->down = gcuda_new_tensor_3d(m->ctx, GCUDA_TYPE_Q8_0, FF, WIDTH, N_EXPERTS);
        l->norm = gcuda_new_tensor_1d(m->ctx, GCUDA_TYPE_F32, WIDTH);
        l->k_cache = gcuda_new_tensor_2d(m->cache_ctx, GCUDA_TYPE_F16, KV_WIDTH, N_CTX);
        l->v_cache = gcuda_new_tensor_2d(m->cache_ctx, GCUDA_TYPE_F16, KV_WIDTH, N_CTX);
    }
    m->buffer = gcuda_backend_alloc_ctx_tensors_from_buft(m->ctx, buft);
    m->cache = gcuda_backend_alloc_ctx_tensors_from_buft(m->cache_ctx, buft);
    gcuda_backend_buffer_set_usage(m->buffer, GCUDA_BACKEND_BUFFER_USAGE_WEIGHTS);
    CHECK_OK(gcuda_backend_buffer_clear(m->cache, 0));
    struct rng r = rng_for("soak");
    for (struct gcuda_tensor * w = gcuda_get_first_tensor(m->ctx); w != NULL; w = gcuda_get_next_tensor(m->ctx, w)) {
        const int64_t n = gcuda_nelements(w);
        const float size = gcuda_nrows(w) > 1 ? 1.7f / sqrtf((float) w->ne[0]) : 1.0f;
        float * values = (float *) malloc((size_t) n * sizeof *values);
        char * data = (char *) malloc(gcuda_nbytes(w));
        for (int64_t i = 0; i < n; ++i) { values[i] = size * (float) rng_between(&r, -1.0, 1.0); }
        CHECK_OK(gcuda_quantize_rows(w->type, values, data, gcuda_nrows(w), w->ne[0], NULL, 1));
        CHECK_OK(gcuda_backend_tensor_set(w, data, 0, gcuda_nbytes(w)));
        free(values);
        free(data);
    }
}

static void model_end(struct model * m) {
    gcuda_backend_buffer_free(m->cache);
    gcuda_backend_buffer_free(m->buffer);
    gcuda_free(m->cache_ctx);
    gcuda_free(m->ctx);
}

// The reference continues from the contents of the device's cache. It writes the same entries as the graph.
static void take_cache(const struct model * from, struct model * to) {
    static char data[(size_t) KV_WIDTH * N_CTX * 2];
    for (int i = 0; i < N_LAYERS; ++i) {
        CHECK_OK(gcuda_backend_tensor_get(from->layers[i].k_cache, data, 0, sizeof data));
        CHECK_OK(gcuda_backend_tensor_set(to->layers[i].k_cache, data, 0, sizeof data));
        CHECK_OK(gcuda_backend_tensor_get(from->layers[i].v_cache, data, 0, sizeof data));
        CHECK_OK(gcuda_backend_tensor_set(to->layers[i].v_cache, data, 0, sizeof data));
    }
}

// ---- a graph of it ----

struct job {
    struct gcuda_context * ctx;
    struct gcuda_cgraph * graph;
    struct gcuda_tensor *x, *pos, *rows, *mask, *out;
    int64_t n, n_kv, first; // tokens, cached ones, where the values of these tokens go
};
struct shape {
    int64_t n, n_kv, first;
};

static struct gcuda_tensor * attention(struct job * j, const struct layer * l, struct gcuda_tensor * h) {
    struct gcuda_context * c = j->ctx;
    struct gcuda_tensor * q =
        gcuda_rope(c, gcuda_reshape_3d(c, gcuda_mul_mat(c, l->q, h), HEAD, N_HEADS, j->n), j->pos, HEAD, 0);
    struct gcuda_tensor * k =
        gcuda_rope(c, gcuda_reshape_3d(c, gcuda_mul_mat(c, l->k, h), HEAD, N_KV_HEADS, j->n), j->pos, HEAD, 0);
    struct gcuda_tensor * v = gcuda_mul_mat(c, l->v, h);
    const size_t row = l->v_cache->nb[1], head = HEAD * l->v_cache->nb[0];
    struct gcuda_tensor * there = gcuda_view_2d(c, l->v_cache, KV_WIDTH, j->n, row, (size_t) j->first * row);
    CHECK_OK(gcuda_build_forward_expand(j->graph, gcuda_cpy(c, v, there)));
    struct gcuda_tensor * all = gcuda_set_rows(c, l->k_cache, gcuda_reshape_2d(c, k, KV_WIDTH, j->n), j->rows);
    CHECK_OK(gcuda_build_forward_expand(j->graph, all));
    k = gcuda_view_3d(c, all, HEAD, j->n_kv, N_KV_HEADS, row, head, 0);
    v = gcuda_view_3d(c, l->v_cache, HEAD, j->n_kv, N_KV_HEADS, row, head, 0);
    struct gcuda_tensor * y =
        gcuda_flash_attn_ext(c, gcuda_permute(c, q, 0, 2, 1, 3), k, v, j->mask, 1.0f / sqrtf(HEAD), 0.0f, 0.0f);
    return gcuda_mul_mat(c, l->o, gcuda_reshape_2d(c, y, WIDTH, j->n));
}

// The experts are chosen by the graph's input, in full precision: nothing that two backends round in their own ways.
static struct gcuda_tensor * experts(struct job * j, const struct layer * l, struct gcuda_tensor * h) {
    struct gcuda_context * c = j->ctx;
    struct gcuda_tensor * logits = gcuda_mul_mat(c, l->router, j->x);
    gcuda_mul_mat_set_prec(logits, GCUDA_PREC_F32);
    struct gcuda_tensor *probs = gcuda_soft_max(c, logits), *ids = gcuda_argsort_top_k(c, probs, N_USED);
    struct gcuda_tensor * w = gcuda_get_rows(c, gcuda_reshape_3d(c, probs, 1, N_EXPERTS, j->n), ids);
    struct gcuda_tensor *in = gcuda_reshape_3d(c, h, WIDTH, 1, j->n), *gate = gcuda_mul_mat_id(c, l->gate, in, ids);
    struct gcuda_tensor * y = gcuda_swiglu_split(c, gate, gcuda_mul_mat_id(c, l->up, in, ids));
    y = gcuda_mul(c, gcuda_mul_mat_id(c, l->down, y, ids), w);
    return gcuda_add(
        c, gcuda_view_2d(c, y, WIDTH, j->n, y->nb[2], 0), gcuda_view_2d(c, y, WIDTH, j->n, y->nb[2], y->nb[1]));
}

static struct gcuda_tensor * input(struct job * j, enum gcuda_type type, int64_t ne0, int64_t ne1) {
    struct gcuda_tensor * t = gcuda_new_tensor_2d(j->ctx, type, ne0, ne1);
    gcuda_set_input(t);
    return t;
}

static void job_begin(struct job * j, const struct model * m, struct shape s) {
    const struct gcuda_init_params params = { 0, NULL, true };
    j->n = s.n;
    j->n_kv = s.n_kv;
    j->first = s.first;
    j->ctx = gcuda_init(params);
    j->graph = gcuda_new_graph(j->ctx);
    struct gcuda_tensor * x = j->x = input(j, GCUDA_TYPE_F32, WIDTH, s.n);
    j->pos = input(j, GCUDA_TYPE_I32, s.n, 1);
    j->rows = input(j, GCUDA_TYPE_I32, s.n, 1);
    j->mask = input(j, GCUDA_TYPE_F16, s.n_kv, s.n);
    for (int i = 0; i < N_LAYERS; ++i) {
        const struct layer * l = &m->layers[i];
        x = gcuda_add(j->ctx, x, attention(j, l, gcuda_mul(j->ctx, gcuda_rms_norm(j->ctx, x, 1e-5f), l->norm)));
        x = gcuda_add(j->ctx, x, experts(j, l, gcuda_mul(j->ctx, gcuda_rms_norm(j->ctx, x, 1e-5f), l->norm)));
    }
    j->out = gcuda_scale(j->ctx, x, 0.5f);
    gcuda_set_output(j->out);
    CHECK_OK(gcuda_build_forward_expand(j->graph, j->out));
}

static void job_end(struct job * j) {
    gcuda_free(j->ctx);
    memset(j, 0, sizeof *j);
}

// Inputs of a run: tokens at other positions, which see all earlier ones.
static void job_fill(struct job * j, uint64_t run) {
    static float x[WIDTH * MOST_TOKENS];
    static int32_t pos[MOST_TOKENS];
    static uint16_t mask[N_CTX * MOST_TOKENS];
    struct rng r = { run };
    const int64_t at = rng_below(&r, j->n_kv - j->n + 1);
    for (int64_t i = 0; i < WIDTH * j->n; ++i) { x[i] = (float) rng_between(&r, -1.0, 1.0); }
    for (int64_t t = 0; t < j->n; ++t) {
        pos[t] = (int32_t) (at + t);
        for (int64_t k = 0; k < j->n_kv; ++k) { mask[t * j->n_kv + k] = k <= pos[t] ? 0x0000 : 0xFC00; } // 0 and -inf
    }
    CHECK_OK(gcuda_backend_tensor_set(j->x, x, 0, gcuda_nbytes(j->x)));
    CHECK_OK(gcuda_backend_tensor_set(j->pos, pos, 0, gcuda_nbytes(j->pos)));
    CHECK_OK(gcuda_backend_tensor_set(j->rows, pos, 0, gcuda_nbytes(j->rows)));
    CHECK_OK(gcuda_backend_tensor_set(j->mask, mask, 0, gcuda_nbytes(j->mask)));
}

// ---- what computes ----

struct slot { // a graph with separate memory, enough for the largest
    struct job job;
    gcuda_gallocr_t alloc;
};

struct soak {
    struct rng rng;
    struct model device, host;
    gcuda_backend_t cuda, sched_cuda, cpu; // sched_cuda: the scheduler's
    gcuda_backend_buffer_type_t buft;
    struct slot slots[N_SLOTS], planned[2], reference;
    int i_planned;                 // the one that the plan computes
    gcuda_backend_buffer_t inputs; // two places for the planned graph's x
    gcuda_backend_graph_plan_t plan;
    gcuda_backend_sched_t sched;
    struct job scheduled;
    uint64_t n_runs, n_compared;
    double worst;
};

static struct shape largest = { MOST_TOKENS, N_CTX, N_CTX - MOST_TOKENS };
static int steps_per_round = 24;
static const struct shape usual = { 2, KV_STEP, 5 };

static struct shape any_shape(struct rng * r) {
    // simulated, many of them take long
    static const int64_t tokens[] = { 1, 2, 3, 7, 8, 9, 16, 17, 33, 64, 100, MOST_TOKENS };
    struct shape s;
    do { s.n = tokens[rng_below(r, rng_below(r, SIZE(2, 8)) == 0 ? 12 : 6)]; } while (s.n > largest.n);
    const int64_t least = (s.n + KV_STEP - 1) / KV_STEP;
    s.n_kv = KV_STEP * (least + rng_below(r, N_CTX / KV_STEP - least + 1));
    s.first = rng_below(r, s.n_kv - s.n + 1);
    return s;
}

static void slot_place(struct slot * s) { CHECK_OK(gcuda_gallocr_alloc_graph(s->alloc, s->job.graph)); }

static void slot_begin(struct slot * s, const struct model * m, gcuda_backend_buffer_type_t buft) {
    s->alloc = gcuda_gallocr_new(buft);
    job_begin(&s->job, m, largest);
    CHECK_OK(gcuda_gallocr_reserve(s->alloc, s->job.graph));
    slot_place(s);
}

static void slot_end(struct slot * s) {
    if (s->job.ctx != NULL) { job_end(&s->job); }
    gcuda_gallocr_free(s->alloc);
    s->alloc = NULL;
}

static void slot_change(struct slot * s, const struct model * m, struct shape shape) {
    job_end(&s->job);
    job_begin(&s->job, m, shape);
    slot_place(s);
}

static void compare(struct soak * k, const struct job * j, uint64_t run, const char * way) {
    static float got[WIDTH * MOST_TOKENS], want[WIDTH * MOST_TOKENS];
    if (run % CHECK_EVERY != 0) { return; }
    const struct shape s = { j->n, j->n_kv, j->first };
    CHECK_OK(gcuda_backend_tensor_get(j->out, got, 0, gcuda_nbytes(j->out)));
    take_cache(&k->device, &k->host);
    slot_change(&k->reference, &k->host, s);
    job_fill(&k->reference.job, run);
    CHECK_OK(gcuda_backend_graph_compute(k->cpu, k->reference.job.graph));
    CHECK_OK(gcuda_backend_tensor_get(k->reference.job.out, want, 0, gcuda_nbytes(j->out)));
    double error = 0.0, all = 0.0;
    for (int64_t i = 0; i < WIDTH * j->n; ++i) {
        error += ((double) got[i] - want[i]) * ((double) got[i] - want[i]);
        all += (double) want[i] * want[i];
    }
    CHECK_MSG(all > 0.0 && error / all < MAX_NMSE, "run %llu by %s, %lld tokens, %lld cached: nmse %g",
        (unsigned long long) run, way, (long long) j->n, (long long) j->n_kv, error / all);
    if (!(error / all <= k->worst)) { k->worst = error / all; }
    k->n_compared++;
}

static void step_cache(struct soak * k) {
    struct slot * s = &k->slots[rng_below(&k->rng, N_SLOTS)];
    if (rng_below(&k->rng, 6) == 0) { slot_change(s, &k->device, any_shape(&k->rng)); }
    const uint64_t run = ++k->n_runs;
    job_fill(&s->job, run);
    CHECK_OK(gcuda_backend_graph_compute(k->cuda, s->job.graph));
    compare(k, &s->job, run, "graph_compute");
}

// x at the first or the second of its places, which no graph allocator has a hand in.
static void move_x(struct soak * k, struct job * j, int place) {
    j->x->data =
        (char *) gcuda_backend_buffer_get_base(k->inputs) + (size_t) place * WIDTH * MOST_TOKENS * sizeof(float);
}

// A change of a little, which a plan's CUDA graph follows node by node.
static void plan_move_x(struct soak * k, int place) {
    move_x(k, &k->planned[k->i_planned].job, place);
    CHECK_OK(gcuda_backend_graph_plan_update(k->cuda, k->plan, NULL));
}

static void planned_place(struct soak * k, struct slot * s) {
    CHECK_OK(gcuda_backend_tensor_alloc(k->inputs, s->job.x, gcuda_backend_buffer_get_base(k->inputs)));
    slot_place(s);
}

static void plan_change(struct soak * k, struct shape shape) {
    struct slot * s = &k->planned[k->i_planned ^= 1];
    if (s->job.ctx != NULL) { job_end(&s->job); }
    job_begin(&s->job, &k->device, shape);
    planned_place(k, s);
    CHECK_OK(gcuda_backend_graph_plan_update(k->cuda, k->plan, s->job.graph));
}

static void plan_run(struct soak * k) {
    struct job * j = &k->planned[k->i_planned].job;
    const uint64_t run = ++k->n_runs;
    job_fill(j, run);
    CHECK_OK(gcuda_backend_graph_plan_compute(k->cuda, k->plan));
    CHECK_OK(gcuda_backend_synchronize(k->cuda));
    compare(k, j, run, "an updated plan");
}

static void step_plan(struct soak * k) {
    if (rng_below(&k->rng, 4) == 0) { plan_change(k, any_shape(&k->rng)); }
    if (rng_below(&k->rng, 3) == 0) { plan_move_x(k, (int) rng_below(&k->rng, 2)); }
    plan_run(k);
}

static gcuda_backend_sched_t sched_new(struct soak * k) {
    const gcuda_backend_t backends[] = { k->sched_cuda, k->cpu };
    struct gcuda_backend_sched_params p;
    memset(&p, 0, sizeof p);
    p.backends = backends;
    p.n_backends = 2;
    p.n_copies = 2;
    gcuda_backend_sched_t sched = gcuda_backend_sched_new_params(&p);
    struct job j;
    job_begin(&j, &k->device, largest);
    CHECK_OK(gcuda_backend_sched_set_tensor_backend(sched, j.out, k->cpu));
    CHECK_OK(gcuda_backend_sched_reserve(sched, j.graph));
    gcuda_backend_sched_reset(sched);
    job_end(&j);
    return sched;
}

// Two runs in flight; the second one's result is checked. The last node is the CPU's.
static void sched_run(struct soak * k, gcuda_backend_sched_t sched, struct job * j) {
    for (int i = 0; i < 2; ++i) {
        job_fill(j, ++k->n_runs);
        CHECK_OK(gcuda_backend_sched_graph_compute_async(sched, j->graph));
    }
    CHECK_OK(gcuda_backend_sched_synchronize(sched));
    compare(k, j, k->n_runs, "the scheduler");
}

static void sched_change(struct soak * k, gcuda_backend_sched_t sched, struct job * j, struct shape shape) {
    gcuda_backend_sched_reset(sched);
    if (j->ctx != NULL) { job_end(j); }
    job_begin(j, &k->device, shape);
    CHECK_OK(gcuda_backend_sched_set_tensor_backend(sched, j->out, k->cpu));
    CHECK_OK(gcuda_backend_sched_alloc_graph(sched, j->graph));
    CHECK(gcuda_backend_sched_get_n_copies(sched) == 2 && gcuda_backend_sched_get_n_splits(sched) > 1);
}

static void step_sched(struct soak * k) {
    if (rng_below(&k->rng, 4) == 0) {
        sched_change(k, k->sched, &k->scheduled, any_shape(&k->rng));
    } else if (rng_below(&k->rng, 4) == 0) {
        CHECK_OK(gcuda_backend_sched_alloc_graph(k->sched, k->scheduled.graph)); // other places for its inputs
    }
    sched_run(k, k->sched, &k->scheduled);
}

static gcuda_backend_t backend_new(void) {
    struct gcuda_cuda_params p;
    memset(&p, 0, sizeof p);
    p.graphs = GCUDA_CUDA_ON;
    p.max_plans = MAX_PLANS;
    p.max_plan_bytes = MAX_PLAN_BYTES;
    return gcuda_backend_cuda_init_params(&p);
}

// A backend with a plan, a cache of plans and graphs, and a scheduler, that come and go.
static void come_and_go(struct soak * k) {
    gcuda_backend_t backend = backend_new();
    struct slot s;
    slot_begin(&s, &k->device, k->buft);
    slot_change(&s, &k->device, any_shape(&k->rng));
    gcuda_backend_graph_plan_t plan = gcuda_backend_graph_plan_create(backend, s.job.graph);
    CHECK(backend != NULL && plan != NULL);
    for (int i = 0; i < 6 && plan != NULL; ++i) {
        const uint64_t run = ++k->n_runs;
        job_fill(&s.job, run);
        CHECK_OK(i < 3 ? gcuda_backend_graph_plan_compute(backend, plan)
                       : gcuda_backend_graph_compute(backend, s.job.graph));
        CHECK_OK(gcuda_backend_synchronize(backend));
        compare(k, &s.job, run, "a backend of its own");
    }
    gcuda_backend_graph_plan_free(backend, plan);
    slot_end(&s);
    gcuda_backend_free(backend);
    gcuda_backend_sched_t sched = sched_new(k);
    struct job j = { 0 };
    sched_change(k, sched, &j, any_shape(&k->rng));
    sched_run(k, sched, &j);
    gcuda_backend_sched_free(sched);
    job_end(&j);
}

// ---- what is held ----

enum figure {
    HOST_BYTES,
    HOST_BLOCKS,
    RESIDENT,
    DEVICE_BYTES,
    DEVICE_RESERVED,
    PINNED,
    DEVICE_TAKEN,
    PLANS,
    PLAN_BYTES,
    FILES,
    STREAMS,
    EVENTS,
    GRAPHS,
    EXECUTABLES,
    OTHERS,
    N_FIGURES
};
// Slack: what is exact has none. The allocator of the process and the driver keep what they like.
static const struct {
    const char * name;
    size_t slack;
} figures[N_FIGURES] = {
    { "bytes of gcuda on the host", 0 },
    { "blocks of gcuda on the host", 0 },
    { "resident bytes of the process", SIZE(64, 16) * MIB },
    { "bytes on the device in use", SIZE(16, 0) * MIB }, // with scratch, which comes in steps of 2 MiB
    { "bytes on the device reserved", SIZE(16, 0) * MIB },
    { "page-locked bytes", SIZE(1, 0) * MIB },
    { "bytes of the device's memory taken", SIZE(32, 0) * MIB },
    { "plans in the cache", 0 },
    { "bytes of plans in the cache", 0 },
    { "open files", SIZE(2, 0) },
    { "streams", 0 },
    { "events", 0 },
    { "CUDA graphs", 0 },
    { "executable CUDA graphs", 0 },
    { "other handles", 0 },
};

static size_t resident(void) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return 0; // they keep what was freed
#endif
    unsigned long long all = 0, pages = 0;
    FILE * f = fopen("/proc/self/statm", "r");
    if (f == NULL) { return 0; }
    const bool is_read = fscanf(f, "%llu %llu", &all, &pages) == 2;
    fclose(f);
    return is_read ? (size_t) pages * (size_t) sysconf(_SC_PAGESIZE) : 0;
}

static size_t open_files(void) {
    size_t n = 0;
    DIR * d = opendir("/proc/self/fd");
    if (d == NULL) { return 0; }
    while (readdir(d) != NULL) { ++n; }
    closedir(d);
    return n - 3; // ".", ".." and this folder
}

static void look(const struct soak * k, const struct fault * host, size_t * now) {
    struct gcuda_cuda_stats s;
    struct gcuda_cuda_plan_stats p, q;
    size_t n_free = 0, n_total = 0;
    CHECK_OK(gcuda_backend_cuda_get_device_stats(0, &s));
    CHECK_OK(gcuda_backend_cuda_get_plan_stats(k->cuda, &p));
    CHECK_OK(gcuda_backend_cuda_get_plan_stats(k->sched_cuda, &q));
    CHECK_OK(gcuda_backend_cuda_get_device_memory(0, &n_free, &n_total));
    memset(now, 0, N_FIGURES * sizeof *now);
    now[HOST_BYTES] = host->live_bytes;
    now[HOST_BLOCKS] = (size_t) host->live;
    now[RESIDENT] = resident();
    now[DEVICE_BYTES] = s.in_use;
    now[DEVICE_RESERVED] = s.reserved;
    now[PINNED] = s.pinned;
    now[DEVICE_TAKEN] = n_total - n_free;
    now[PLANS] = (size_t) (p.n_plans + q.n_plans);
    now[PLAN_BYTES] = p.n_bytes + q.n_bytes;
    now[FILES] = open_files();
#if defined(GCUDAI_SIM)
    now[STREAMS] = (size_t) sim_alive("streams");
    now[EVENTS] = (size_t) sim_alive("events");
    now[GRAPHS] = (size_t) sim_alive("graphs");
    now[EXECUTABLES] = (size_t) sim_alive("executable graphs");
    static const char * others[] = { "device memory", "page-locked memory", "registered memory", "mappings",
        "memory handles", "ranges of addresses", "cuBLAS handles", "contexts", "captures" };
    for (size_t i = 0; i < sizeof others / sizeof others[0]; ++i) { now[OTHERS] += (size_t) sim_alive(others[i]); }
#endif
}

// Whatever ran before, the same is alive now: the lasting objects with a graph of one shape, no cached plan.
static void rest(struct soak * k) {
    CHECK_OK(gcuda_backend_cuda_clear_plans(k->cuda));
    CHECK_OK(gcuda_backend_cuda_clear_plans(k->sched_cuda));
    for (int i = 0; i < N_SLOTS; ++i) { slot_change(&k->slots[i], &k->device, usual); }
    slot_change(&k->reference, &k->host, usual);
    for (int i = 0; i < 2; ++i) { // of both planned graphs
        plan_change(k, usual);
        plan_run(k);
        plan_run(k);
        // from its first such change on it keeps a CUDA graph, whether the steps drawn had one or not
        plan_move_x(k, 1);
        plan_run(k);
    }
    sched_change(k, k->sched, &k->scheduled, usual);
    sched_run(k, k->sched, &k->scheduled);
    CHECK_OK(gcuda_backend_cuda_clear_plans(k->sched_cuda));
}

// ---- the test ----

static double seconds(void) { return (double) gcuda_time_us() * 1e-6; }

static void soak_begin(struct soak * k) {
    memset(k, 0, sizeof *k);
    k->rng = rng_for("soak");
    k->buft = gcuda_backend_cuda_buffer_type(0);
    k->cuda = backend_new();
    k->sched_cuda = backend_new();
    k->cpu = gcuda_backend_cpu_init();
    CHECK_OK(gcuda_backend_cpu_set_n_threads(k->cpu, SIZE(8, 1)));
    model_begin(&k->device, k->buft);
    model_begin(&k->host, gcuda_backend_cpu_buffer_type());
    for (int i = 0; i < N_SLOTS; ++i) { slot_begin(&k->slots[i], &k->device, k->buft); }
    slot_begin(&k->reference, &k->host, gcuda_backend_cpu_buffer_type());
    k->inputs = gcuda_backend_buft_alloc_buffer(k->buft, 2 * WIDTH * MOST_TOKENS * sizeof(float));
    for (int i = 0; i < 2; ++i) {
        k->planned[i].alloc = gcuda_gallocr_new(k->buft);
        job_begin(&k->planned[i].job, &k->device, largest);
        CHECK_OK(gcuda_gallocr_reserve(k->planned[i].alloc, k->planned[i].job.graph));
        planned_place(k, &k->planned[i]);
    }
    k->plan = gcuda_backend_graph_plan_create(k->cuda, k->planned[0].job.graph);
    k->sched = sched_new(k);
    sched_change(k, k->sched, &k->scheduled, largest);
}

// What grows to the largest graph's needs has grown then.
static void run_largest(struct soak * k) {
    job_fill(&k->slots[0].job, ++k->n_runs);
    CHECK_OK(gcuda_backend_graph_compute(k->cuda, k->slots[0].job.graph));
    sched_run(k, k->sched, &k->scheduled);
}

static void soak_end(struct soak * k) {
    gcuda_backend_sched_free(k->sched);
    job_end(&k->scheduled);
    gcuda_backend_graph_plan_free(k->cuda, k->plan);
    for (int i = 0; i < 2; ++i) { slot_end(&k->planned[i]); }
    for (int i = 0; i < N_SLOTS; ++i) { slot_end(&k->slots[i]); }
    slot_end(&k->reference);
    gcuda_backend_buffer_free(k->inputs);
    model_end(&k->device);
    model_end(&k->host);
    gcuda_backend_free(k->cuda);
    gcuda_backend_free(k->sched_cuda);
    gcuda_backend_free(k->cpu);
}

static void tell(const char * when, double s, const struct soak * k, const size_t * now, const size_t * busy) {
    printf("  %s %5.1f min, %8llu runs: host %zu B in %zu blocks, busy %zu B, resident %.1f MiB; ", when, s / 60.0,
        (unsigned long long) k->n_runs, now[HOST_BYTES], now[HOST_BLOCKS], busy[HOST_BYTES],
        (double) now[RESIDENT] / MIB);
    printf("device %.2f MiB in use, %.2f reserved, %.2f taken, %zu B page-locked; ", (double) now[DEVICE_BYTES] / MIB,
        (double) now[DEVICE_RESERVED] / MIB, (double) now[DEVICE_TAKEN] / MIB, now[PINNED]);
    printf("busy %zu plans, %zu streams, %zu events, %zu graphs, %zu executables, %zu other handles, %zu files\n",
        busy[PLANS], busy[STREAMS], busy[EVENTS], busy[GRAPHS], busy[EXECUTABLES], busy[OTHERS], busy[FILES]);
    fflush(stdout);
}

static void round_of_steps(struct soak * k, int round, const struct fault * host, size_t * now, size_t * loaded) {
    for (int i = 0; i < steps_per_round; ++i) {
        const int way = (int) rng_below(&k->rng, 3);
        if (way == 0) { step_cache(k); }
        if (way == 1) { step_plan(k); }
        if (way == 2) { step_sched(k); }
    }
    if (round % 2 == 0) { come_and_go(k); }
    look(k, host, loaded);
    CHECK_MSG(loaded[PLANS] <= 2 * MAX_PLANS && loaded[PLAN_BYTES] <= 2 * (size_t) MAX_PLAN_BYTES,
        "%zu plans, %zu bytes of them", loaded[PLANS], loaded[PLAN_BYTES]);
    rest(k);
    look(k, host, now);
}

static void soak_for(double length, struct fault * host) {
    struct soak k;
    size_t now[N_FIGURES], loaded[N_FIGURES], most[N_FIGURES] = { 0 };
    if (SIZE(false, length < 60.0)) {
        largest.n = 33;
        steps_per_round = 12;
    }
    soak_begin(&k);
    run_largest(&k);
    const double begin = seconds();
    double told = 0.0;
    const bool is_shared = getenv("GCUDA_TEST_SOAK_SHARED") != NULL;
    bool is_warm = false;
    int n_after = 0;
    for (int round = 0; test_all.n_bad_checks == 0; ++round) {
        round_of_steps(&k, round, host, now, loaded);
        const double s = seconds() - begin;
        if (!is_warm) {
            for (int i = 0; i < N_FIGURES; ++i) { most[i] = now[i] > most[i] ? now[i] : most[i]; }
            is_warm = round + 1 >= WARM_UP_ROUNDS && s > (length < 600.0 ? length / 5.0 : 120.0);
            if (is_warm) { tell("warm after", s, &k, now, loaded); }
            continue;
        }
        n_after++;
        const bool is_over = s >= length && n_after >= WARM_UP_ROUNDS;
        for (int i = 0; i < N_FIGURES; ++i) {
            if (i == DEVICE_TAKEN && is_shared && !is_over) { continue; }
            CHECK_MSG(now[i] <= most[i] + figures[i].slack,
                "%s: %zu after %.0f s and %llu runs, at most %zu in the warm-up, slack %zu", figures[i].name, now[i], s,
                (unsigned long long) k.n_runs, most[i], figures[i].slack);
        }
        if (s - told >= 60.0) {
            tell("         ", s, &k, now, loaded);
            told = s;
        }
        if (is_over) { break; }
    }
    struct gcuda_cuda_plan_stats p;
    CHECK_OK(gcuda_backend_cuda_get_plan_stats(k.cuda, &p));
    CHECK(p.n_made > 0 && p.n_captures > 0 && p.n_graph_launches > 0 && k.n_compared > 0);
    if (k.n_runs >= 1000) { // what is drawn must have met these by then
        CHECK(p.n_evicted > 0 && p.n_reused > 0 && p.n_updated > 0);
    }
    tell("end after ", seconds() - begin, &k, now, loaded);
    printf("  %llu results compared with the CPU, nmse at most %.2g; plans made %llu, reused %llu, "
           "updated %llu, evicted %llu; "
           "captures %llu, graph launches %llu\n",
        (unsigned long long) k.n_compared, k.worst, (unsigned long long) p.n_made, (unsigned long long) p.n_reused,
        (unsigned long long) p.n_updated, (unsigned long long) p.n_evicted, (unsigned long long) p.n_captures,
        (unsigned long long) p.n_graph_launches);
    soak_end(&k);
}

TEST(memory_and_handles_stay_flat) {
    static struct fault host; // counts, and lets nothing fail
    const char * text = getenv("GCUDA_TEST_SOAK_S");
    const double length = text != NULL && *text != '\0' ? atof(text) : test_full() ? 20.0 : 3.0;
    gcuda_shutdown(); // what the library keeps is counted from its beginning
    fault_begin(&host, 0);
    REQUIRE(gcuda_backend_cuda_get_device_count() > 0);
    soak_for(length, &host);
    gcuda_shutdown();
    CHECK_MSG(host.live == 0 && host.live_bytes == 0, "%ld blocks of %zu bytes are left", host.live, host.live_bytes);
    fault_end(&host);
}
