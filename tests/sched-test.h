// sched-test.h: what the tests of the scheduler share, with and without (simulated) GPUs
//   toys      third-party backends: memory that no other backend can read, computed on the CPU, told what to refuse
//             and when to fail
//   networks  a transformer and a mixture of experts, layers placed where the test says
//   chaos     random graphs: views, nodes that work in place, weights, inputs
// The answer of a graph is what the CPU alone gives, without a scheduler.
#ifndef GCUDA_TEST_SCHED_H
#define GCUDA_TEST_SCHED_H

#include "test.h"

// =====================================================================================================================
// >>toys
// =====================================================================================================================
#define N_TOYS 4

struct toy {
    struct gcuda_backend_device dev; // first: a device is its toy
    struct gcuda_backend_buffer_type buft;
    struct gcuda_backend backend;
    char name[16];
    uint64_t seed;    // of the refusals
    int refuses;      // this many nodes of a hundred
    bool computes;    // meanwhile its memory counts as host memory
    bool is_cpu_type; // may come last in a scheduler
    bool offloads;
    long n_computed;
};
static struct toy toys[N_TOYS];
static struct gcuda_backend_reg toy_reg;
static struct {
    long n_calls, fail_at; // of all toys; 0: none fails
    long n_buffers, n_foreign;
    const struct fault * fault; // NULL, or whose calls made while toys compute are n_inside
    long n_inside;
} toy_calls;

static gcuda_status toy_call(const char * what) {
    char text[64];
    if (++toy_calls.n_calls != toy_calls.fail_at) { return GCUDA_STATUS_SUCCESS; }
    snprintf(text, sizeof text, "toy: told to fail: %s", what);
    return gcuda_set_last_error(GCUDA_STATUS_FAILED, text);
}

static void toy_buffer_free(gcuda_backend_buffer_t b) {
    free(b->context);
    toy_calls.n_buffers--;
}
static void * toy_buffer_base(gcuda_backend_buffer_t b) {
    return (char *) b->context + (64 - (uintptr_t) b->context % 64) % 64;
}
static gcuda_status toy_memset(
    gcuda_backend_buffer_t b, struct gcuda_tensor * t, uint8_t value, size_t offset, size_t size) {
    (void) b;
    memset((char *) t->data + offset, value, size);
    return toy_call("memset");
}
static gcuda_status toy_set(
    gcuda_backend_buffer_t b, struct gcuda_tensor * t, const void * data, size_t offset, size_t size) {
    (void) b;
    memcpy((char *) t->data + offset, data, size);
    return toy_call("set");
}
static gcuda_status toy_get(
    gcuda_backend_buffer_t b, const struct gcuda_tensor * t, void * data, size_t offset, size_t size) {
    (void) b;
    memcpy(data, (const char *) t->data + offset, size);
    return toy_call("get");
}
static gcuda_status toy_clear(gcuda_backend_buffer_t b, uint8_t value) {
    memset(toy_buffer_base(b), value, b->size);
    return toy_call("clear");
}
static const char * toy_buft_name(gcuda_backend_buffer_type_t t) { return ((struct toy *) t->device)->name; }
static gcuda_status toy_buft_alloc(gcuda_backend_buffer_type_t t, size_t size, gcuda_backend_buffer_t * out) {
    struct gcuda_backend_buffer_i i;
    memset(&i, 0, sizeof i);
    i.free_buffer = toy_buffer_free, i.get_base = toy_buffer_base, i.memset_tensor = toy_memset;
    i.set_tensor = toy_set, i.get_tensor = toy_get, i.clear = toy_clear;
    if (toy_call("alloc") != GCUDA_STATUS_SUCCESS) { return GCUDA_STATUS_ALLOC_FAILED; }
    void * memory = malloc(size + 64);
    if (memory == NULL) { return gcuda_set_last_error(GCUDA_STATUS_ALLOC_FAILED, "toy: too large"); }
    memset(memory, 0xff, size + 64); // unwritten memory is NaN
    *out = gcuda_backend_buffer_init(t, &i, memory, size);
    if (*out == NULL) {
        free(memory);
        return GCUDA_STATUS_ALLOC_FAILED;
    }
    toy_calls.n_buffers++;
    return GCUDA_STATUS_SUCCESS;
}
static size_t toy_buft_alignment(gcuda_backend_buffer_type_t t) { return t ? 64 : 1; }
static bool toy_buft_is_host(gcuda_backend_buffer_type_t t) { return ((struct toy *) t->device)->computes; }

static const char * toy_dev_name(gcuda_backend_dev_t d) { return ((struct toy *) d)->name; }
static gcuda_status toy_dev_memory(gcuda_backend_dev_t d, size_t * n_free, size_t * n_total) {
    *n_free = *n_total = d ? 1 << 20 : 0;
    return GCUDA_STATUS_SUCCESS;
}
static enum gcuda_backend_dev_type toy_dev_type(gcuda_backend_dev_t d) {
    return ((struct toy *) d)->is_cpu_type ? GCUDA_BACKEND_DEVICE_TYPE_CPU : GCUDA_BACKEND_DEVICE_TYPE_ACCEL;
}
static gcuda_status toy_dev_props(gcuda_backend_dev_t d, struct gcuda_backend_dev_props * p) {
    p->name = p->description = toy_dev_name(d);
    p->type = toy_dev_type(d);
    return GCUDA_STATUS_SUCCESS;
}
static gcuda_backend_buffer_type_t toy_dev_buft(gcuda_backend_dev_t d) { return &((struct toy *) d)->buft; }

// Whether it supports an operation of this shape; the same answer each time.
static gcuda_status toy_dev_supports(gcuda_backend_dev_t d, const struct gcuda_tensor * op) {
    const struct toy * toy = (const struct toy *) d;
    struct rng r = { toy->seed + 977 * (uint64_t) op->op + 31 * (uint64_t) op->ne[0] + (uint64_t) op->ne[1] };
    (void) rng_u64(&r);
    for (int k = 0; k < GCUDA_MAX_SRC; ++k) { // what it cannot reach it says so
        const struct gcuda_tensor * s = op->src[k];
        const gcuda_backend_buffer_t b = s ? s->view_src ? s->view_src->buffer : s->buffer : NULL;
        if (b != NULL && b->buft != &toy->buft) {
            return gcuda_set_last_error(GCUDA_STATUS_UNSUPPORTED, "toy: out of reach");
        }
    }
    const bool is_refused = op->op != GCUDA_OP_NONE && rng_below(&r, 100) < toy->refuses;
    return is_refused ? gcuda_set_last_error(GCUDA_STATUS_UNSUPPORTED, "toy: refused") : GCUDA_STATUS_SUCCESS;
}
static bool toy_dev_supports_buft(gcuda_backend_dev_t d, gcuda_backend_buffer_type_t t) {
    return t == &((struct toy *) d)->buft;
}
static bool toy_dev_offload(gcuda_backend_dev_t d, const struct gcuda_tensor * op) {
    return ((struct toy *) d)->offloads && op->op == GCUDA_OP_MUL_MAT;
}

static const char * toy_name(gcuda_backend_t b) { return ((struct toy *) b->device)->name; }
static void toy_free(gcuda_backend_t b) { (void) b; }
static gcuda_status toy_compute(gcuda_backend_t b, struct gcuda_cgraph * g) {
    struct toy * toy = (struct toy *) b->device;
    if (toy_call("compute") != GCUDA_STATUS_SUCCESS) { return GCUDA_STATUS_FAILED; }
    for (int i = 0; i < g->n_nodes; ++i) { // in its own memory?
        for (int k = -1; k < GCUDA_MAX_SRC; ++k) {
            const struct gcuda_tensor * t = k < 0 ? g->nodes[i] : g->nodes[i]->src[k];
            const gcuda_backend_buffer_t at = t == NULL ? NULL : t->view_src ? t->view_src->buffer : t->buffer;
            toy_calls.n_foreign += t != NULL && !gcuda_is_empty(t) && (at == NULL || at->buft != &toy->buft);
        }
    }
    const long n_before = toy_calls.fault ? toy_calls.fault->n_calls : 0;
    toy->computes = true;
    struct gcuda_cplan plan = gcuda_graph_plan(g, 1, NULL);
    plan.work_data = (uint8_t *) malloc(plan.work_size + 1);
    const gcuda_status st = plan.work_data ? gcuda_graph_compute(g, &plan) : GCUDA_STATUS_ALLOC_FAILED;
    free(plan.work_data);
    toy->computes = false;
    toy->n_computed += g->n_nodes;
    toy_calls.n_inside += toy_calls.fault ? toy_calls.fault->n_calls - n_before : 0;
    return st;
}

TEST_UNUSED static gcuda_backend_t toy_backend(int i) {
    struct toy * t = &toys[i];
    memset(t, 0, sizeof *t);
    snprintf(t->name, sizeof t->name, "Toy%d", i);
    t->dev.reg = &toy_reg;
    t->dev.iface.get_name = t->dev.iface.get_description = toy_dev_name;
    t->dev.iface.get_memory = toy_dev_memory, t->dev.iface.get_type = toy_dev_type,
    t->dev.iface.get_props = toy_dev_props;
    t->dev.iface.get_buffer_type = toy_dev_buft;
    t->dev.iface.supports_op = toy_dev_supports, t->dev.iface.supports_buft = toy_dev_supports_buft;
    t->dev.iface.offload_op = toy_dev_offload;
    t->buft.device = &t->dev;
    t->buft.iface.get_name = toy_buft_name, t->buft.iface.alloc_buffer = toy_buft_alloc;
    t->buft.iface.get_alignment = toy_buft_alignment, t->buft.iface.is_host = toy_buft_is_host;
    t->backend.guid[0] = 43;
    t->backend.device = &t->dev;
    t->backend.iface.get_name = toy_name, t->backend.iface.free = toy_free,
    t->backend.iface.graph_compute = toy_compute;
    return &t->backend;
}

// =====================================================================================================================
// >>networks
// =====================================================================================================================
#define NET_MAX_LAYERS 16
enum net_kind { NET_TRANSFORMER, NET_EXPERTS };
enum { NET_D = 64, NET_HEADS = 4, NET_KV = 2, NET_HEAD = 16, NET_FF = 96, NET_PAST = 16, NET_E = 8, NET_USED = 2 };

enum { NET_MAX_WIDE = 4 };
static int net_wide = 1; // factor of NET_D and the other sizes: gives row-split buffers enough rows

struct net_layer {
    struct gcuda_context * ctx; // weights of products
    struct gcuda_context *small_ctx, *cache_ctx;
    gcuda_backend_buffer_t buffer, small_buffer, cache;
    struct gcuda_tensor *norm1, *wq, *wk, *wv, *wo, *norm2, *gate, *up, *down, *router, *k, *v;
};
struct net {
    enum net_kind kind;
    int n_layers;
    int64_t n_tokens, d, n_heads, n_kv, ff;
    enum gcuda_type ffn_type;
    struct net_layer layers[NET_MAX_LAYERS];
    struct gcuda_context * ctx; // of the graph
    struct gcuda_cgraph * graph;
    struct gcuda_tensor *x, *pos, *mask, *rows, *out;
};

// Random values, the same for the same name whatever it is placed in.
static bool fill_tensor(struct gcuda_tensor * t, double size) {
    struct rng r = rng_for(t->name);
    const int64_t n = gcuda_nelements(t);
    float * values = (float *) malloc((size_t) n * sizeof *values + 1);
    void * stored = malloc(gcuda_nbytes(t) + 1);
    for (int64_t i = 0; i < n; ++i) { values[i] = (float) rng_between(&r, -size, size); }
    bool is_ok =
        gcuda_quantize_rows(t->type, values, stored, gcuda_nrows(t), t->ne[0], NULL, 1) == GCUDA_STATUS_SUCCESS;
    is_ok = is_ok && gcuda_backend_tensor_set(t, stored, 0, gcuda_nbytes(t)) == GCUDA_STATUS_SUCCESS;
    free(values);
    free(stored);
    return is_ok;
}

static struct gcuda_tensor * net_weight(struct gcuda_context * ctx, const char * name, int layer, enum gcuda_type type,
    int64_t ne0, int64_t ne1, int64_t ne2) {
    return gcuda_format_name(gcuda_new_tensor_3d(ctx, type, ne0, ne1, ne2), "%s.%d", name, layer);
}

static gcuda_backend_buffer_t net_place(struct gcuda_context * ctx, gcuda_backend_buffer_type_t buft) {
    gcuda_backend_buffer_t buffer = gcuda_backend_alloc_ctx_tensors_from_buft(ctx, buft);
    if (buffer == NULL) { return NULL; }
    gcuda_backend_buffer_set_usage(buffer, GCUDA_BACKEND_BUFFER_USAGE_WEIGHTS);
    bool is_ok = true;
    for (struct gcuda_tensor * t = gcuda_get_first_tensor(ctx); t != NULL && is_ok; t = gcuda_get_next_tensor(ctx, t)) {
        is_ok = fill_tensor(t, t->ne[1] == 1 ? 1.5 : 1.7 / sqrt((double) t->ne[0]));
    }
    if (is_ok) { return buffer; }
    gcuda_backend_buffer_free(buffer);
    return NULL;
}

// buft: of the weights of products, which may be a row-split one. All else is in the memory of its device.
static bool net_layer_begin(struct net * net, int i, gcuda_backend_buffer_type_t buft) {
    const struct gcuda_init_params params = { 0, NULL, true };
    struct net_layer * l = &net->layers[i];
    struct gcuda_context *ctx = l->ctx = gcuda_init(params), *small = l->small_ctx = gcuda_init(params);
    gcuda_backend_buffer_type_t home = gcuda_backend_dev_buffer_type(gcuda_backend_buft_get_device(buft));
    const int64_t n_experts = net->kind == NET_EXPERTS ? NET_E : 1, d = net->d, ff = net->ff;
    const int64_t q = net->n_heads * NET_HEAD, kv = net->n_kv * NET_HEAD;
    l->cache_ctx = gcuda_init(params);
    l->norm1 = net_weight(small, "norm1", i, GCUDA_TYPE_F32, d, 1, 1);
    l->wq = net_weight(ctx, "wq", i, GCUDA_TYPE_F32, d, q, 1);
    l->wk = net_weight(ctx, "wk", i, GCUDA_TYPE_F32, d, kv, 1);
    l->wv = net_weight(ctx, "wv", i, GCUDA_TYPE_F32, d, kv, 1);
    l->wo = net_weight(ctx, "wo", i, GCUDA_TYPE_F32, q, d, 1);
    l->norm2 = net_weight(small, "norm2", i, GCUDA_TYPE_F32, d, 1, 1);
    l->router = net_weight(small, "router", i, GCUDA_TYPE_F32, d, NET_E, 1);
    l->gate = net_weight(ctx, "gate", i, net->ffn_type, d, ff, n_experts);
    l->up = net_weight(ctx, "up", i, net->ffn_type, d, ff, n_experts);
    l->down = net_weight(ctx, "down", i, net->ffn_type, ff, d, n_experts);
    l->k = net_weight(l->cache_ctx, "cache_k", i, GCUDA_TYPE_F32, kv, NET_PAST, 1);
    l->v = net_weight(l->cache_ctx, "cache_v", i, GCUDA_TYPE_F32, kv, NET_PAST, 1);
    l->buffer = net_place(ctx, buft);
    l->small_buffer = net_place(small, home);
    l->cache = gcuda_backend_alloc_ctx_tensors_from_buft(l->cache_ctx, home);
    return l->buffer != NULL && l->small_buffer != NULL && l->cache != NULL &&
           gcuda_backend_buffer_clear(l->cache, 0) == GCUDA_STATUS_SUCCESS;
}

static struct gcuda_tensor * net_mul(struct net * net, struct gcuda_tensor * w, struct gcuda_tensor * x) {
    struct gcuda_tensor * y = gcuda_mul_mat(net->ctx, w, x);
    gcuda_mul_mat_set_prec(y, GCUDA_PREC_F32);
    return y;
}

static struct gcuda_tensor * net_attention(struct net * net, struct net_layer * l, struct gcuda_tensor * x) {
    struct gcuda_context * c = net->ctx;
    const int64_t n = net->n_tokens;
    const size_t head = NET_HEAD * sizeof(float), row = (size_t) net->n_kv * head;
    struct gcuda_tensor * h = gcuda_mul(c, gcuda_rms_norm(c, x, 1e-5f), l->norm1);
    struct gcuda_tensor * q =
        gcuda_rope(c, gcuda_reshape_3d(c, net_mul(net, l->wq, h), NET_HEAD, net->n_heads, n), net->pos, NET_HEAD, 0);
    struct gcuda_tensor * k =
        gcuda_rope(c, gcuda_reshape_3d(c, net_mul(net, l->wk, h), NET_HEAD, net->n_kv, n), net->pos, NET_HEAD, 0);
    struct gcuda_tensor * v = net_mul(net, l->wv, h);
    (void) gcuda_build_forward_expand(
        net->graph, gcuda_set_rows(c, l->k, gcuda_reshape_2d(c, k, net->n_kv * NET_HEAD, n), net->rows));
    (void) gcuda_build_forward_expand(net->graph, gcuda_set_rows(c, l->v, v, net->rows));
    struct gcuda_tensor * keys = gcuda_view_3d(c, l->k, NET_HEAD, NET_PAST, net->n_kv, row, head, 0);
    struct gcuda_tensor * values = gcuda_view_3d(c, l->v, NET_HEAD, NET_PAST, net->n_kv, row, head, 0);
    struct gcuda_tensor * scores = net_mul(net, keys, gcuda_permute(c, q, 0, 2, 1, 3)); // [past, tokens, heads]
    scores = gcuda_soft_max_ext(c, scores, net->mask, 0.25f, 0.0f);
    struct gcuda_tensor * mixed = net_mul(net, gcuda_cont(c, gcuda_permute(c, values, 1, 0, 2, 3)), scores);
    mixed = gcuda_reshape_2d(c, gcuda_cont(c, gcuda_permute(c, mixed, 0, 2, 1, 3)), net->n_heads * NET_HEAD, n);
    return gcuda_add(c, x, net_mul(net, l->wo, mixed));
}

static struct gcuda_tensor * net_experts(struct net * net, struct net_layer * l, struct gcuda_tensor * h) {
    struct gcuda_context * c = net->ctx;
    const int64_t n = net->n_tokens;
    struct gcuda_tensor * probs = gcuda_soft_max(c, net_mul(net, l->router, h));               // [experts, tokens]
    struct gcuda_tensor * ids = gcuda_argsort_top_k(c, probs, NET_USED);                       // [used, tokens]
    struct gcuda_tensor * w = gcuda_get_rows(c, gcuda_reshape_3d(c, probs, 1, NET_E, n), ids); // [1, used, tokens]
    struct gcuda_tensor * x = gcuda_reshape_3d(c, h, net->d, 1, n);
    struct gcuda_tensor * a =
        gcuda_swiglu_split(c, gcuda_mul_mat_id(c, l->gate, x, ids), gcuda_mul_mat_id(c, l->up, x, ids));
    struct gcuda_tensor * y = gcuda_mul(c, gcuda_mul_mat_id(c, l->down, a, ids), w); // [d, used, tokens]
    struct gcuda_tensor * sum = NULL;
    for (int i = 0; i < NET_USED && y != NULL; ++i) {
        struct gcuda_tensor * part = gcuda_view_2d(c, y, net->d, n, y->nb[2], (size_t) i * y->nb[1]);
        sum = i == 0 ? gcuda_cont(c, part) : gcuda_add(c, sum, part);
    }
    return sum;
}

static struct gcuda_tensor * net_ffn(struct net * net, struct net_layer * l, struct gcuda_tensor * x) {
    struct gcuda_context * c = net->ctx;
    struct gcuda_tensor * h = gcuda_mul(c, gcuda_rms_norm(c, x, 1e-5f), l->norm2);
    return gcuda_add(c, x,
        net->kind == NET_EXPERTS
            ? net_experts(net, l, h)
            : net_mul(net, l->down, gcuda_swiglu_split(c, net_mul(net, l->gate, h), net_mul(net, l->up, h))));
}

// The graph once more, in new descriptions.
static bool net_build(struct net * net) {
    const struct gcuda_init_params params = { 0, NULL, true };
    gcuda_free(net->ctx);
    struct gcuda_context * c = net->ctx = gcuda_init(params);
    net->graph = gcuda_new_graph(c);
    net->x = gcuda_set_name(gcuda_new_tensor_2d(c, GCUDA_TYPE_F32, net->d, net->n_tokens), "x");
    net->pos = gcuda_set_name(gcuda_new_tensor_1d(c, GCUDA_TYPE_I32, net->n_tokens), "pos");
    net->rows = gcuda_set_name(gcuda_new_tensor_1d(c, GCUDA_TYPE_I64, net->n_tokens), "rows");
    net->mask = gcuda_set_name(gcuda_new_tensor_2d(c, GCUDA_TYPE_F32, NET_PAST, net->n_tokens), "mask");
    struct gcuda_tensor * y = net->x;
    struct gcuda_tensor * inputs[] = { net->x, net->pos, net->rows, net->mask };
    for (int i = 0; i < 4; ++i) {
        if (inputs[i] != NULL) { gcuda_set_input(inputs[i]); }
    }
    for (int i = 0; i < net->n_layers; ++i) {
        y = net_ffn(net, &net->layers[i], net_attention(net, &net->layers[i], y));
    }
    net->out = gcuda_set_name(gcuda_rms_norm(c, y, 1e-5f), "out");
    if (net->out != NULL) { gcuda_set_output(net->out); }
    return gcuda_build_forward_expand(net->graph, net->out) == GCUDA_STATUS_SUCCESS;
}

static bool net_begin(struct net * net, enum net_kind kind, int n_layers, int64_t n_tokens, enum gcuda_type ffn_type,
    gcuda_backend_buffer_type_t (*place)(int layer, void * user), void * user) {
    memset(net, 0, sizeof *net);
    net->kind = kind;
    net->n_layers = n_layers;
    net->n_tokens = n_tokens;
    net->d = net_wide * NET_D, net->n_heads = net_wide * NET_HEADS, net->n_kv = net_wide * NET_KV,
    net->ff = net_wide * NET_FF;
    net->ffn_type = ffn_type;
    bool is_ok = true;
    for (int i = 0; i < n_layers && is_ok; ++i) { is_ok = net_layer_begin(net, i, place(i, user)); }
    return is_ok && net_build(net);
}

static void net_end(struct net * net) {
    for (int i = 0; i < net->n_layers; ++i) {
        gcuda_backend_buffer_free(net->layers[i].buffer);
        gcuda_backend_buffer_free(net->layers[i].small_buffer);
        gcuda_backend_buffer_free(net->layers[i].cache);
        gcuda_free(net->layers[i].ctx);
        gcuda_free(net->layers[i].small_ctx);
        gcuda_free(net->layers[i].cache_ctx);
    }
    gcuda_free(net->ctx);
    memset(net, 0, sizeof *net);
}

struct net_data { // the inputs of a run
    float x[NET_MAX_WIDE * NET_D * 8], mask[NET_PAST * 8];
    int32_t pos[8];
    int64_t rows[8];
};

// Inputs of run `seed`; all tokens attend to earlier ones.
static void net_fill(const struct net * net, uint64_t seed, struct net_data * d) {
    struct rng r = { 1000 + seed };
    const int64_t n = net->n_tokens, first = (int64_t) (seed % (uint64_t) (NET_PAST - n + 1));
    for (int64_t i = 0; i < net->d * n; ++i) { d->x[i] = (float) rng_between(&r, -1.0, 1.0); }
    for (int64_t i = 0; i < n; ++i) {
        d->pos[i] = (int32_t) (first + i);
        d->rows[i] = first + i;
        for (int64_t k = 0; k < NET_PAST; ++k) { d->mask[i * NET_PAST + k] = k <= first + i ? 0.0f : -INFINITY; }
    }
}

// At once, or queued on a backend (the data stays then).
static gcuda_status net_set_on(struct net * net, const struct net_data * d, gcuda_backend_t backend) {
    struct gcuda_tensor * inputs[] = { net->x, net->pos, net->rows, net->mask };
    const void * data[] = { d->x, d->pos, d->rows, d->mask };
    gcuda_status st = GCUDA_STATUS_SUCCESS;
    for (int i = 0; i < 4 && st == GCUDA_STATUS_SUCCESS; ++i) {
        st = backend ? gcuda_backend_tensor_set_async(backend, inputs[i], data[i], 0, gcuda_nbytes(inputs[i]))
                     : gcuda_backend_tensor_set(inputs[i], data[i], 0, gcuda_nbytes(inputs[i]));
    }
    return st;
}

static gcuda_status net_set(struct net * net, uint64_t seed) {
    struct net_data d;
    net_fill(net, seed, &d);
    return net_set_on(net, &d, NULL);
}

static gcuda_backend_buffer_type_t net_on_cpu(int layer, void * user) {
    (void) layer, (void) user;
    return gcuda_backend_cpu_buffer_type();
}

// Results of the CPU alone for the runs 0 .. n_runs - 1, one after the other; out has n_runs * net_wide * NET_D *
// n_tokens floats.
TEST_UNUSED static bool net_answer(
    enum net_kind kind, int n_layers, int64_t n_tokens, enum gcuda_type ffn_type, int n_runs, float * out) {
    struct net net;
    bool is_ok = net_begin(&net, kind, n_layers, n_tokens, ffn_type, net_on_cpu, NULL);
    gcuda_backend_t cpu = gcuda_backend_cpu_init();
    gcuda_gallocr_t galloc = gcuda_gallocr_new(gcuda_backend_cpu_buffer_type());
    is_ok = is_ok && gcuda_gallocr_alloc_graph(galloc, net.graph) == GCUDA_STATUS_SUCCESS;
    for (int i = 0; i < n_runs && is_ok; ++i) {
        is_ok = net_set(&net, (uint64_t) i) == GCUDA_STATUS_SUCCESS &&
                gcuda_backend_graph_compute(cpu, net.graph) == GCUDA_STATUS_SUCCESS &&
                gcuda_backend_tensor_get(net.out, out + i * net.d * n_tokens, 0, gcuda_nbytes(net.out)) ==
                    GCUDA_STATUS_SUCCESS;
    }
    CHECK_MSG(is_ok, "the answer: %s", gcuda_last_error());
    gcuda_gallocr_free(galloc);
    gcuda_backend_free(cpu);
    net_end(&net);
    return is_ok;
}

// Mean square error of n values divided by the mean square of the correct ones. NaN if any value is.
TEST_UNUSED static double nmse(const float * got, const float * want, int64_t n) {
    double error = 0.0, size = 0.0;
    for (int64_t i = 0; i < n; ++i) {
        error += ((double) got[i] - (double) want[i]) * ((double) got[i] - (double) want[i]);
        size += (double) want[i] * (double) want[i];
    }
    return error / (size > 0.0 ? size : 1.0);
}

// =====================================================================================================================
// >>chaos
// =====================================================================================================================
enum { CHAOS_N = 32, CHAOS_M = 8, CHAOS_MAX = 400 };

struct chaos {
    struct gcuda_context *weights_ctx[3], *ctx;
    gcuda_backend_buffer_t weights_buffer[3];
    struct gcuda_cgraph * graph;
    struct gcuda_tensor *inputs[3], *rows, *out;
};

static enum gcuda_type chaos_type = GCUDA_TYPE_Q8_0; // of some weights

static struct gcuda_tensor * chaos_mul(struct gcuda_context * ctx, struct gcuda_tensor * a, struct gcuda_tensor * b) {
    struct gcuda_tensor * y = gcuda_mul_mat(ctx, a, b);
    gcuda_mul_mat_set_prec(y, GCUDA_PREC_F32);
    return y;
}

// Weights in three places: [n, n] matrices, a cache that nodes write into, rows.
static bool chaos_begin(struct chaos * c, uint64_t seed, int n_nodes, const gcuda_backend_buffer_type_t bufts[3]) {
    const struct gcuda_init_params params = { 0, NULL, true };
    struct rng r = { seed * 7919 + 3 };
    struct gcuda_tensor *pool[CHAOS_MAX + 8], *w[3], *cache[3];
    int n = 0;
    memset(c, 0, sizeof *c);
    for (int i = 0; i < 3; ++i) {
        c->weights_ctx[i] = gcuda_init(params);
        w[i] = gcuda_format_name(
            gcuda_new_tensor_2d(c->weights_ctx[i], i == 1 ? chaos_type : GCUDA_TYPE_F32, CHAOS_N, CHAOS_N), "w%d", i);
        cache[i] = gcuda_format_name(
            gcuda_new_tensor_2d(c->weights_ctx[i], GCUDA_TYPE_F32, CHAOS_N, 2 * CHAOS_M), "cache%d", i);
        c->weights_buffer[i] = gcuda_backend_alloc_ctx_tensors_from_buft(c->weights_ctx[i], bufts[i]);
        if (c->weights_buffer[i] == NULL || !fill_tensor(w[i], 0.3) || !fill_tensor(cache[i], 1.0)) { return false; }
        gcuda_backend_buffer_set_usage(c->weights_buffer[i], GCUDA_BACKEND_BUFFER_USAGE_WEIGHTS);
    }
    struct gcuda_context * x = c->ctx = gcuda_init(params);
    c->graph = gcuda_new_graph(x);
    for (int i = 0; i < 3; ++i) {
        c->inputs[i] = pool[n++] =
            gcuda_format_name(gcuda_new_tensor_2d(x, GCUDA_TYPE_F32, CHAOS_N, CHAOS_M), "input%d", i);
        if (i < 2) { gcuda_set_input(c->inputs[i]); } // the third is a leaf like any other
        gcuda_set_output(c->inputs[i]);               // the test sets them once
    }
    c->rows = gcuda_set_name(gcuda_new_tensor_1d(x, GCUDA_TYPE_I32, CHAOS_M), "rows");
    gcuda_set_input(c->rows);
    gcuda_set_output(c->rows);
    for (int i = 0; i < n_nodes && i < CHAOS_MAX; ++i) {
        const int64_t ia = rng_below(&r, n), ib = rng_below(&r, n), which = rng_below(&r, 3);
        struct gcuda_tensor *a = pool[ia], *b = pool[ib], *y = NULL;
        const bool may_write = ia >= 3 && ia != ib; // earlier readers have the old value
        switch (rng_below(&r, 15)) {
            case 0: y = gcuda_add(x, a, b); break;
            case 1: y = gcuda_mul(x, a, gcuda_scale(x, b, 0.5f)); break;
            case 2: y = gcuda_rms_norm(x, a, 1e-5f); break;
            case 3: y = gcuda_silu(x, a); break;
            case 4: y = gcuda_soft_max(x, a); break;
            case 5:
            case 6: y = gcuda_rms_norm(x, chaos_mul(x, w[which], a), 1e-5f); break;
            case 7: y = may_write ? gcuda_scale_inplace(x, a, 0.7f) : gcuda_scale(x, a, 0.7f); break;
            case 8: y = may_write ? gcuda_add_inplace(x, a, b) : gcuda_sub(x, a, b); break;
            case 9: // through a transposed view, and back
                y = gcuda_cont(x, gcuda_transpose(x, gcuda_cont(x, gcuda_transpose(x, a))));
                break;
            case 10: { // half of it, twice
                struct gcuda_tensor * half =
                    gcuda_view_2d(x, a, CHAOS_N, CHAOS_M / 2, a ? a->nb[1] : 0, a ? a->nb[1] * 2 : 0);
                y = gcuda_concat(x, half, gcuda_scale(x, half, -1.0f), 1);
                break;
            }
            case 11: { // into a cache, and what it holds now
                (void) gcuda_build_forward_expand(
                    c->graph, gcuda_cpy(x, a,
                                  gcuda_view_2d(x, cache[which], CHAOS_N, CHAOS_M, cache[which]->nb[1],
                                      (size_t) rng_below(&r, CHAOS_M) * cache[which]->nb[1])));
                y = gcuda_cont(x, gcuda_view_2d(x, cache[which], CHAOS_N, CHAOS_M, cache[which]->nb[1], 0));
                break;
            }
            case 12: y = gcuda_get_rows(x, a, c->rows); break;
            case 13: { // a part of a copy is changed, all of it is read
                struct gcuda_tensor * copy = gcuda_cont(x, a);
                struct gcuda_tensor * before = gcuda_scale(x, copy, 0.25f);
                (void) gcuda_build_forward_expand(c->graph, before);
                (void) gcuda_build_forward_expand(
                    c->graph, gcuda_cpy(x, gcuda_view_1d(x, b, CHAOS_N, 0),
                                  gcuda_view_1d(x, copy, CHAOS_N, CHAOS_N * sizeof(float))));
                y = gcuda_add(x, copy, before);
                break;
            }
            default: // attention of a to b
                y = chaos_mul(x, gcuda_cont(x, gcuda_transpose(x, a)), gcuda_soft_max(x, chaos_mul(x, a, b)));
                break;
        }
        if (gcuda_build_forward_expand(c->graph, y) != GCUDA_STATUS_SUCCESS) { return false; }
        pool[n++] = y;
    }
    c->out = pool[n - 1];
    for (int i = 0; i < n - 1; ++i) { // nothing of it is for nothing
        if (rng_below(&r, 4) == 0) { c->out = gcuda_add(x, gcuda_scale(x, c->out, 0.9f), pool[i]); }
    }
    if (c->out != NULL) { gcuda_set_output(c->out); }
    return gcuda_build_forward_expand(c->graph, c->out) == GCUDA_STATUS_SUCCESS;
}

static void chaos_end(struct chaos * c) {
    for (int i = 0; i < 3; ++i) {
        gcuda_backend_buffer_free(c->weights_buffer[i]);
        gcuda_free(c->weights_ctx[i]);
    }
    gcuda_free(c->ctx);
    memset(c, 0, sizeof *c);
}

static gcuda_status chaos_set(struct chaos * c, uint64_t seed) {
    struct rng r = { seed };
    int32_t rows[CHAOS_M];
    float x[CHAOS_N * CHAOS_M];
    for (int i = 0; i < CHAOS_M; ++i) { rows[i] = (int32_t) rng_below(&r, CHAOS_M); }
    gcuda_status st = c->rows->data ? gcuda_backend_tensor_set(c->rows, rows, 0, sizeof rows) : GCUDA_STATUS_SUCCESS;
    for (int i = 0; i < 3 && st == GCUDA_STATUS_SUCCESS; ++i) {
        for (int k = 0; k < CHAOS_N * CHAOS_M; ++k) { x[k] = (float) rng_between(&r, -1.0, 1.0); }
        if (c->inputs[i]->data != NULL) { st = gcuda_backend_tensor_set(c->inputs[i], x, 0, sizeof x); }
    }
    return st;
}

// Results of the CPU alone after each of two runs.
TEST_UNUSED static bool chaos_answer(uint64_t seed, int n_nodes, float out[2][CHAOS_N * CHAOS_M]) {
    gcuda_backend_buffer_type_t bufts[3];
    struct chaos c;
    for (int i = 0; i < 3; ++i) { bufts[i] = gcuda_backend_cpu_buffer_type(); }
    gcuda_backend_t cpu = gcuda_backend_cpu_init();
    gcuda_gallocr_t galloc = gcuda_gallocr_new(bufts[0]);
    bool is_ok =
        chaos_begin(&c, seed, n_nodes, bufts) && gcuda_gallocr_alloc_graph(galloc, c.graph) == GCUDA_STATUS_SUCCESS;
    for (int i = 0; i < 2 && is_ok; ++i) {
        is_ok = chaos_set(&c, seed + (uint64_t) i) == GCUDA_STATUS_SUCCESS &&
                gcuda_backend_graph_compute(cpu, c.graph) == GCUDA_STATUS_SUCCESS &&
                gcuda_backend_tensor_get(c.out, out[i], 0, sizeof out[i]) == GCUDA_STATUS_SUCCESS;
    }
    CHECK_MSG(is_ok, "the answer: %s", gcuda_last_error());
    gcuda_gallocr_free(galloc);
    gcuda_backend_free(cpu);
    chaos_end(&c);
    return is_ok;
}

// =====================================================================================================================
// >>changes   a graph that is allocated once and changed in place, then one that is built again where another one was
// =====================================================================================================================
enum { CHANGE_N = 16, CHANGE_M = 6 };
enum change {
    CHANGE_NOTHING,
    CHANGE_PARAMS,
    CHANGE_OTHER_PARAMS,
    CHANGE_SRC,
    CHANGE_SRC_ORDER,
    CHANGE_VIEW_OFFS,
    CHANGE_NB,
    CHANGE_DATA,
    CHANGE_BUFFER,
    CHANGE_TYPE,
    CHANGE_FLAGS,
    CHANGE_OP,
    CHANGE_NE,
    CHANGE_COUNT
};

struct changing {
    struct gcuda_context *ctx, *own_ctx; // own: tensors that the test places
    gcuda_backend_buffer_t weights, own, buffer;
    struct gcuda_cgraph * graph;
    struct gcuda_tensor *x, *z, *z2, *w, *k, *k2, *k3, *a, *p, *c, *v, *d, *m, *sum, *diff;
};

static struct gcuda_tensor * changing_input(struct gcuda_context * ctx, const char * name) {
    struct gcuda_tensor * t = gcuda_set_name(gcuda_new_tensor_2d(ctx, GCUDA_TYPE_F32, CHANGE_N, CHANGE_M), name);
    gcuda_set_input(t);
    gcuda_set_output(t); // is set once
    return t;
}

static bool changing_begin(struct changing * g, gcuda_backend_buffer_type_t for_weights) {
    const struct gcuda_init_params params = { 0, NULL, true };
    memset(g, 0, sizeof *g);
    struct gcuda_context *ctx = g->ctx = gcuda_init(params), *weights = gcuda_init(params);
    g->own_ctx = weights;
    g->w = gcuda_set_name(gcuda_new_tensor_2d(weights, GCUDA_TYPE_F32, CHANGE_N, CHANGE_N), "w");
    g->k3 = gcuda_set_name(gcuda_new_tensor_2d(weights, GCUDA_TYPE_F32, CHANGE_N, 3), "k3");
    g->weights = net_place(weights, for_weights);
    g->k = gcuda_set_name(gcuda_new_tensor_2d(weights, GCUDA_TYPE_F32, CHANGE_N, 3), "k");
    g->k2 = gcuda_set_name(gcuda_new_tensor_2d(weights, GCUDA_TYPE_F32, CHANGE_N, 3), "k2");
    g->own = gcuda_backend_alloc_ctx_tensors_from_buft(weights, gcuda_backend_cpu_buffer_type());
    g->x = changing_input(ctx, "x"), g->z = changing_input(ctx, "z"), g->z2 = changing_input(ctx, "z2");
    g->a = gcuda_set_name(gcuda_scale(ctx, g->x, 2.0f), "a");
    g->p = gcuda_mul_mat(ctx, g->w, g->a);
    gcuda_mul_mat_set_prec(g->p, GCUDA_PREC_F32);
    g->c = gcuda_set_name(gcuda_add(ctx, g->p, g->z), "c");
    g->v = gcuda_view_2d(ctx, g->c, CHANGE_N, 3, g->c->nb[1], 0);
    g->d = gcuda_set_name(gcuda_scale(ctx, gcuda_cont(ctx, g->v), 0.5f), "d");
    g->m = gcuda_mul(ctx, g->d, g->k);
    g->sum = gcuda_add(ctx, gcuda_add(ctx, g->m, g->m), g->d);
    g->diff = gcuda_sub(ctx, g->z, gcuda_mul(ctx, g->z2, g->c));
    gcuda_set_output(g->sum);
    gcuda_set_output(g->diff);
    g->graph = gcuda_new_graph(ctx);
    return g->weights != NULL && g->own != NULL && fill_tensor(g->k, 1.0) && fill_tensor(g->k2, 1.0) &&
           gcuda_build_forward_expand(g->graph, g->sum) == GCUDA_STATUS_SUCCESS &&
           gcuda_build_forward_expand(g->graph, g->diff) == GCUDA_STATUS_SUCCESS;
}

static void changing_end(struct changing * g) {
    const gcuda_backend_buffer_t buffers[] = { g->buffer, g->own, g->weights };
    for (int i = 0; i < 3; ++i) { gcuda_backend_buffer_free(buffers[i]); }
    gcuda_free(g->own_ctx);
    gcuda_free(g->ctx);
}

static bool changing_set(struct changing * g) {
    return fill_tensor(g->x, 1.0) && fill_tensor(g->z, 1.0) && fill_tensor(g->z2, 1.0);
}

static void changing_factor(struct gcuda_tensor * scale, float factor) {
    memcpy(scale->op_params, &factor, sizeof factor);
}

static void changing_strides(struct gcuda_tensor * t) {
    t->nb[0] = gcuda_type_size(t->type);
    t->nb[1] = t->nb[0] * (size_t) t->ne[0];
    t->nb[2] = t->nb[3] = t->nb[1] * (size_t) t->ne[1];
}

static void changing_columns(struct changing * g, int64_t n) {
    struct gcuda_tensor * const all[] = { g->x, g->z, g->z2, g->a, g->p, g->c, g->diff,
        g->diff->src[g->diff->src[0] == g->z] };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i) {
        all[i]->ne[1] = n;
        changing_strides(all[i]);
    }
}

static void changing_move(struct changing * g, const struct gcuda_tensor * to) {
    g->k->data = to->data;
    g->k->buffer = to->buffer;
}

// The view takes columns first, first + step and first + 2 step.
static void changing_view(struct changing * g, size_t first, size_t step) {
    CHECK_OK(gcuda_graph_move_view(g->graph, g->v, 0));
    g->v->nb[1] = step * g->c->nb[1];
    g->v->nb[2] = g->v->nb[3] = 3 * g->v->nb[1];
    CHECK_OK(gcuda_graph_move_view(g->graph, g->v, first * g->c->nb[1]));
}

static void changing_apply(struct changing * g, enum change what) {
    struct gcuda_tensor * first = g->diff->src[0];
    switch (what) {
        case CHANGE_PARAMS: changing_factor(g->a, 3.0f); break;
        case CHANGE_OTHER_PARAMS: changing_factor(g->d, -1.5f); break;
        case CHANGE_SRC: g->c->src[1] = g->z2; break;
        case CHANGE_SRC_ORDER: g->diff->src[0] = g->diff->src[1], g->diff->src[1] = first; break;
        case CHANGE_VIEW_OFFS: changing_view(g, 1, 1); break;
        case CHANGE_NB: changing_view(g, 0, 2); break;
        case CHANGE_DATA: changing_move(g, g->k2); break;
        case CHANGE_BUFFER: changing_move(g, g->k3); break; // to where another backend computes, perhaps
        case CHANGE_TYPE:
            g->w->type = GCUDA_TYPE_F16;
            changing_strides(g->w);
            CHECK(fill_tensor(g->w, 0.5));
            break;
        case CHANGE_FLAGS: gcuda_set_output(g->a); break;
        case CHANGE_OP: g->c->op = GCUDA_OP_MUL; break;
        case CHANGE_NE: changing_columns(g, CHANGE_M - 1); break;
        default: break;
    }
}

static void changing_compare(
    const struct gcuda_tensor * got, const struct gcuda_tensor * want, double most, enum change what, int run) {
    float a[CHANGE_N * CHANGE_M], b[CHANGE_N * CHANGE_M];
    const int64_t n = gcuda_nelements(want);
    CHECK_OK(gcuda_backend_tensor_get(got, a, 0, gcuda_nbytes(got)));
    CHECK_OK(gcuda_backend_tensor_get(want, b, 0, gcuda_nbytes(want)));
    CHECK_MSG(nmse(a, b, n) <= most, "after change %d, run %d: '%s' is not what the CPU gives, error %g", (int) what,
        run, want->name, nmse(a, b, n));
}

// Two rounds with equal results: a run changes no input. A round has n_copies runs in flight.
static void changing_run(gcuda_backend_sched_t sched, gcuda_backend_t cpu, struct changing * g, struct changing * ref,
    double most, enum change what) {
    CHECK_OK(gcuda_backend_graph_compute(cpu, ref->graph));
    for (int run = 0; run < 2; ++run) {
        for (int i = 0; i < gcuda_backend_sched_get_n_copies(sched); ++i) {
            CHECK_OK(gcuda_backend_sched_graph_compute_async(sched, g->graph));
        }
        CHECK_OK(gcuda_backend_sched_synchronize(sched));
        changing_compare(g->sum, ref->sum, most, what, run);
        changing_compare(g->diff, ref->diff, most, what, run);
        if (g->a->flags & GCUDA_TENSOR_FLAG_OUTPUT) { changing_compare(g->a, ref->a, most, what, run); }
    }
}

// There and back again, by chance.
static void changing_step(struct changing * g, enum change what, struct rng r) {
    const size_t step = 1 + (size_t) rng_below(&r, 2);
    const float factor = (float) rng_between(&r, -2.0, 2.0);
    struct gcuda_tensor * const places[] = { g->k2, g->k3 };
    switch (what) {
        case CHANGE_PARAMS: changing_factor(g->a, factor); break;
        case CHANGE_OTHER_PARAMS: changing_factor(g->d, factor); break;
        case CHANGE_SRC: g->c->src[1] = factor < 0.0f ? g->z : g->z2; break;
        case CHANGE_VIEW_OFFS: changing_view(g, (size_t) rng_below(&r, 5 - 2 * (int64_t) step), step); break;
        case CHANGE_NB: changing_view(g, 0, step); break;
        case CHANGE_DATA:
        case CHANGE_BUFFER: changing_move(g, places[rng_below(&r, 2)]); break;
        case CHANGE_FLAGS: g->a->flags ^= GCUDA_TENSOR_FLAG_OUTPUT; break;
        case CHANGE_OP: g->c->op = factor < 0.0f ? GCUDA_OP_MUL : GCUDA_OP_ADD; break;
        default: changing_apply(g, what); break;
    }
}

// Changes [first, end), one after the other, of one graph; or as many by chance. The scheduler's last backend is the
// CPU.
static void changing_check(
    gcuda_backend_sched_t sched, gcuda_backend_buffer_type_t weights, double most, int first, int end, uint64_t seed) {
    gcuda_backend_t cpu = gcuda_backend_sched_get_backend(sched, gcuda_backend_sched_get_n_backends(sched) - 1);
    struct rng r = { seed };
    struct changing g, ref;
    gcuda_backend_sched_reset(sched);
    REQUIRE(changing_begin(&g, weights) && changing_begin(&ref, gcuda_backend_cpu_buffer_type()));
    ref.buffer = gcuda_backend_alloc_ctx_tensors(ref.ctx, cpu);
    CHECK_OK(gcuda_backend_sched_set_tensor_backend(sched, g.d, cpu));
    CHECK_OK(gcuda_backend_sched_alloc_graph(sched, g.graph));
    REQUIRE(ref.buffer != NULL && changing_set(&ref) && changing_set(&g));
    changing_run(sched, cpu, &g, &ref, most, CHANGE_NOTHING);
    for (int i = first; i < end; ++i) {
        const enum change what = (enum change)(seed == 0 ? i : 1 + rng_below(&r, CHANGE_COUNT - 1));
        if (seed == 0) {
            changing_apply(&g, what);
            changing_apply(&ref, what);
        } else {
            changing_step(&g, what, r);
            changing_step(&ref, what, r);
        }
        changing_run(sched, cpu, &g, &ref, most, what);
    }
    gcuda_backend_sched_reset(sched);
    changing_end(&ref);
    changing_end(&g);
}

TEST_UNUSED static void changing_check_all(
    gcuda_backend_sched_t sched, gcuda_backend_buffer_type_t weights, double most) {
    for (int what = CHANGE_NOTHING + 1; what < CHANGE_COUNT; ++what) {
        changing_check(sched, weights, most, what, what + 1, 0);
    }
    changing_check(sched, weights, most, CHANGE_NOTHING + 1, CHANGE_COUNT, 0);
    for (uint64_t seed = 1; seed <= (test_full() ? 200u : 4u); ++seed) {
        changing_check(sched, weights, most, 0, 30, seed);
    }
}

// y = f x + x of `x`, all placed by the test, the nodes and the graph at the addresses of those before, without a reset
// in between.
struct again {
    char * memory; // of the context of nodes
    gcuda_backend_buffer_t buffer, results;
    struct gcuda_context *ctx, *leafs;
    struct gcuda_tensor *x, *y;
    struct gcuda_cgraph * graph;
};
enum { AGAIN_BYTES = 1 << 20 };

static bool again_build(struct again * g, int step, int64_t n) {
    const struct gcuda_init_params grows = { 0, NULL, true }, fixed = { AGAIN_BYTES, g->memory, true };
    struct gcuda_context * leafs = gcuda_init(grows); // before the last one is freed, so that its address differs
    gcuda_free(g->ctx);
    gcuda_free(g->leafs);
    g->leafs = leafs;
    g->ctx = gcuda_init(fixed);
    g->x = gcuda_new_tensor_1d(leafs, GCUDA_TYPE_F32, n);
    struct gcuda_tensor * scaled = gcuda_scale(g->ctx, g->x, (float) (step / 2));
    g->y = gcuda_add(g->ctx, scaled, g->x);
    g->graph = gcuda_new_graph(g->ctx);
    char *base = (char *) gcuda_backend_buffer_get_base(g->buffer),
         *results = (char *) gcuda_backend_buffer_get_base(g->results);
    return gcuda_backend_tensor_alloc(g->buffer, g->x, base + 1024 * (step % 3)) == GCUDA_STATUS_SUCCESS &&
           gcuda_backend_tensor_alloc(g->results, scaled, results) == GCUDA_STATUS_SUCCESS &&
           gcuda_backend_tensor_alloc(g->results, g->y, results + 1024) == GCUDA_STATUS_SUCCESS &&
           gcuda_build_forward_expand(g->graph, g->y) == GCUDA_STATUS_SUCCESS;
}

TEST_UNUSED static void again_check(
    gcuda_backend_sched_t sched, gcuda_backend_buffer_type_t leafs, gcuda_backend_buffer_type_t results) {
    struct again g;
    memset(&g, 0, sizeof g);
    g.memory = (char *) malloc(AGAIN_BYTES);
    g.buffer = gcuda_backend_buft_alloc_buffer(leafs, 4096);
    g.results = gcuda_backend_buft_alloc_buffer(results, 4096);
    REQUIRE(g.memory != NULL && g.buffer != NULL && g.results != NULL);
    for (int step = 0; step < 12; ++step) {
        const int64_t n = step < 8 ? 64 : 64 - step;
        float v[64], got[64];
        REQUIRE(again_build(&g, step, n));
        for (int i = 0; i < 64; ++i) { v[i] = (float) (100 * step + i); }
        CHECK_OK(gcuda_backend_tensor_set(g.x, v, 0, gcuda_nbytes(g.x)));
        CHECK_OK(gcuda_backend_sched_graph_compute(sched, g.graph));
        CHECK_OK(gcuda_backend_tensor_get(g.y, got, 0, gcuda_nbytes(g.y)));
        for (int i = 0; i < (int) n; ++i) {
            CHECK_MSG(got[i] == v[i] * (float) (step / 2 + 1), "step %d: [%d] is %g", step, i, got[i]);
        }
    }
    gcuda_backend_sched_reset(sched);
    gcuda_free(g.ctx);
    gcuda_free(g.leafs);
    gcuda_backend_buffer_free(g.results);
    gcuda_backend_buffer_free(g.buffer);
    free(g.memory);
}

#endif // GCUDA_TEST_SCHED_H
