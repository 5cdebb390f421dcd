// The allocators on thousands of random graphs. No two live tensors share memory. The peak does not exceed that of the
// plain rules, which this file has a second time. Results are those without reuse.
#include "test-ops.h"

#define MAX_T 64

// =====================================================================================================================
// >>random graphs
// =====================================================================================================================
struct random_graph {
    struct gcuda_context * ctx;
    struct gcuda_cgraph * g;
    struct gcuda_tensor * t[MAX_T];
    int n;
    uint64_t seed;
};

// every source, every element; changes in place too
static void mix(struct gcuda_tensor * dst, int ith, int nth, void * user) {
    (void) user;
    for (int64_t i = ith; i < gcuda_nelements(dst); i += nth) {
        float s = 0.25f;
        for (int k = 0; k < GCUDA_MAX_SRC && dst->src[k]; ++k) {
            const struct gcuda_tensor * a = dst->src[k];
            s = s * 0.5f + ((const float *) a->data)[i % gcuda_nelements(a)];
        }
        ((float *) dst->data)[i] = s;
    }
}

static struct gcuda_tensor * random_node(struct random_graph * w, struct rng * r, bool writes) {
    struct gcuda_tensor *a = w->t[rng_below(r, w->n)], *b = w->t[rng_below(r, w->n)], *c = w->t[rng_below(r, w->n)];
    struct gcuda_tensor * args[3] = { a, b, c };
    struct gcuda_context * ctx = w->ctx;
    const int64_t n = gcuda_nelements(a);
    switch (rng_below(r, 10)) {
        case 0:
        case 1: return gcuda_rms_norm(ctx, a, 0.5f);
        case 2: return gcuda_are_same_shape(a, b) ? gcuda_add(ctx, a, b) : gcuda_sqr(ctx, a);
        case 3: return gcuda_are_same_shape(a, b) ? gcuda_mul(ctx, b, a) : gcuda_scale(ctx, a, 0.5f);
        case 4:
            return gcuda_custom_4d(ctx, GCUDA_TYPE_F32, 8 * (1 + rng_below(r, 40)), 1, 1, 1, args,
                1 + (int) rng_below(r, 3), mix, 1, NULL);
        case 5: return gcuda_custom_4d(ctx, GCUDA_TYPE_F32, n, 1, 1, 1, args, 1 + (int) rng_below(r, 3), mix, 1, NULL);
        case 6: return gcuda_reshape_2d(ctx, a, n / 8, 8);
        case 7: return gcuda_view_1d(ctx, a, n > 8 ? n / 16 * 8 : 8, n > 16 ? 32 : 0);
        case 8: return writes ? gcuda_rms_norm_inplace(ctx, a, 0.5f) : gcuda_sqr(ctx, a);
        default: return gcuda_custom_4d(ctx, GCUDA_TYPE_F32, n, 1, 1, 1, args, 2, mix, 1, NULL);
    }
}

// The same seed gives the same graph. `writes`: with in-place nodes, whose result depends on the order of nodes.
static bool random_graph(struct random_graph * w, uint64_t seed, bool writes) {
    struct rng r = { seed };
    struct gcuda_init_params params;
    memset(&params, 0, sizeof params);
    memset(w, 0, sizeof *w);
    params.no_alloc = true;
    w->seed = seed;
    w->ctx = gcuda_init(params);
    const int n_leafs = 1 + (int) rng_below(&r, 4), n = n_leafs + 2 + (int) rng_below(&r, MAX_T - n_leafs - 2);
    while (w->n < n) {
        struct gcuda_tensor * t = w->n < n_leafs
                                      ? gcuda_new_tensor_1d(w->ctx, GCUDA_TYPE_F32, 8 * (1 + rng_below(&r, 40)))
                                      : random_node(w, &r, writes);
        if (t == NULL) { return false; }
        if (w->n < n_leafs && rng_below(&r, 2)) { gcuda_set_input(t); }
        if (w->n >= n_leafs && rng_below(&r, 8) == 0) { gcuda_set_output(t); }
        gcuda_format_name(t, "t%d", w->n);
        w->t[w->n++] = t;
    }
    w->g = gcuda_new_graph_custom(w->ctx, 128, false);
    bool ok = w->g != NULL;
    for (int i = 0; i < 3; ++i) {
        ok = ok && gcuda_build_forward_expand(w->g, w->t[n_leafs + rng_below(&r, n - n_leafs)]) == GCUDA_STATUS_SUCCESS;
    }
    ok = ok && gcuda_build_forward_expand(w->g, w->t[n - 1]) == GCUDA_STATUS_SUCCESS;
    gcuda_set_output(gcuda_graph_node(w->g, -1));
    return ok;
}

static bool is_leaf(const struct random_graph * w, const struct gcuda_tensor * t) {
    for (int i = 0; i < w->g->n_leafs; ++i) {
        if (w->g->leafs[i] == t) { return true; }
    }
    return false;
}

// =====================================================================================================================
// >>plain rules   runtime.md R-DAL and R-GAL
// =====================================================================================================================
struct plain_block {
    size_t offset, size;
};
struct plain {
    struct plain_block free[512];
    int n;
    size_t max, align;
    struct {
        const struct gcuda_tensor * t;
        int children, views;
        size_t offset;
        bool live;
    } info[MAX_T];
    int n_info;
};

static int plain_of(struct plain * p, const struct gcuda_tensor * t) {
    for (int i = 0; i < p->n_info; ++i) {
        if (p->info[i].t == t) { return i; }
    }
    memset(&p->info[p->n_info], 0, sizeof p->info[0]);
    p->info[p->n_info].t = t;
    return p->n_info++;
}

static size_t plain_size(const struct plain * p, const struct gcuda_tensor * t) {
    return (tensor_bytes(t) + p->align - 1) / p->align * p->align;
}

static size_t plain_take(struct plain * p, size_t size) {
    int best = p->n - 1;
    for (int i = 0; i < p->n - 1; ++i) {
        if (p->free[i].size >= size && (best == p->n - 1 || p->free[i].size <= p->free[best].size)) { best = i; }
    }
    const size_t offset = p->free[best].offset;
    p->free[best].offset += size, p->free[best].size -= size;
    if (p->free[best].size == 0) {
        memmove(&p->free[best], &p->free[best + 1], (size_t) (p->n - best - 1) * sizeof p->free[0]);
        p->n--;
    }
    if (offset + size > p->max) { p->max = offset + size; }
    return offset;
}

static void plain_give(struct plain * p, size_t offset, size_t size) {
    int i = 0;
    while (i < p->n && p->free[i].offset < offset) { ++i; }
    memmove(&p->free[i + 1], &p->free[i], (size_t) (p->n - i) * sizeof p->free[0]);
    p->free[i].offset = offset, p->free[i].size = size;
    p->n++;
    for (int k = i > 0 ? i - 1 : 0; k < i + 1 && k + 1 < p->n;) { // merge what touches
        if (p->free[k].offset + p->free[k].size == p->free[k + 1].offset) {
            p->free[k].size += p->free[k + 1].size;
            memmove(&p->free[k + 1], &p->free[k + 2], (size_t) (p->n - k - 2) * sizeof p->free[0]);
            p->n--, i--;
        } else {
            ++k;
        }
    }
}

static bool may_reuse(enum gcuda_op op) {
    return op == GCUDA_OP_RMS_NORM || op == GCUDA_OP_ADD || op == GCUDA_OP_MUL || op == GCUDA_OP_SQR ||
           op == GCUDA_OP_SCALE;
}

static void plain_place(struct plain * p, const struct gcuda_tensor * t) {
    const int at = plain_of(p, t);
    if (p->info[at].live || t->view_src) { return; }
    p->info[at].live = true;
    for (int k = 0; may_reuse(t->op) && k < GCUDA_MAX_SRC && t->src[k]; ++k) {
        const struct gcuda_tensor * s = t->src[k];
        const int from = plain_of(p, s);
        if (s->view_src || !p->info[from].live || (s->flags & GCUDA_TENSOR_FLAG_OUTPUT) ||
            !gcuda_are_same_shape(s, t) || !gcuda_are_same_stride(s, t) || p->info[from].children != 1 ||
            p->info[from].views != 0) {
            continue;
        }
        p->info[at].offset = p->info[from].offset;
        p->info[from].live = false;
        return;
    }
    p->info[at].offset = plain_take(p, plain_size(p, t));
}

static void plain_free(struct plain * p, const struct gcuda_tensor * t) {
    const int at = plain_of(p, t);
    if (!p->info[at].live || (t->flags & GCUDA_TENSOR_FLAG_OUTPUT)) { return; }
    plain_give(p, p->info[at].offset, plain_size(p, t));
    p->info[at].live = false;
}

static size_t plain_peak(const struct gcuda_cgraph * g, size_t align) {
    struct plain * p = (struct plain *) calloc(1, sizeof *p);
    p->align = align, p->n = 1, p->free[0].size = SIZE_MAX / 2;
    for (int i = 0; i < g->n_leafs; ++i) { plain_place(p, g->leafs[i]); }
    for (int i = 0; i < g->n_nodes; ++i) {
        const struct gcuda_tensor * node = g->nodes[i];
        if (node->view_src && node->op != GCUDA_OP_NONE) { p->info[plain_of(p, node->view_src)].views++; }
        if (node->flags & GCUDA_TENSOR_FLAG_INPUT) { plain_place(p, node); }
        for (int k = 0; k < GCUDA_MAX_SRC && node->src[k]; ++k) {
            p->info[plain_of(p, node->src[k])].children++;
            if (node->src[k]->flags & GCUDA_TENSOR_FLAG_INPUT) { plain_place(p, node->src[k]); }
        }
    }
    for (int i = 0; i < g->n_nodes; ++i) {
        const struct gcuda_tensor * node = g->nodes[i];
        for (int k = 0; k < GCUDA_MAX_SRC && node->src[k]; ++k) { plain_place(p, node->src[k]); }
        plain_place(p, node);
        for (int k = 0; k < GCUDA_MAX_SRC && node->src[k]; ++k) {
            const struct gcuda_tensor * s = node->src[k];
            const int at = plain_of(p, s);
            if (--p->info[at].children > 0 || p->info[at].views > 0) { continue; }
            if (s->view_src == NULL) {
                plain_free(p, s);
                continue;
            }
            // the one thing added: what will be read keeps its owner
            if (s->flags & GCUDA_TENSOR_FLAG_OUTPUT) { continue; }
            const int owner = plain_of(p, s->view_src);
            if (--p->info[owner].views == 0 && p->info[owner].children == 0) { plain_free(p, s->view_src); }
        }
    }
    const size_t peak = p->max;
    free(p);
    return peak;
}

// =====================================================================================================================
// >>lifetimes   from the graph alone
// =====================================================================================================================
struct life {
    const struct gcuda_tensor * t;
    int born, dies; // node indices; -1 and n_nodes: before and after everything
};

static int lifetimes(const struct random_graph * w, struct life * life) {
    int n = 0;
    const int n_nodes = gcuda_graph_n_nodes(w->g);
    for (int i = 0; i < w->g->n_leafs; ++i) { life[n].t = w->g->leafs[i], life[n].born = life[n].dies = -1, ++n; }
    for (int i = 0; i < n_nodes; ++i) {
        const struct gcuda_tensor * node = gcuda_graph_node(w->g, i);
        if (node->view_src == NULL) { life[n].t = node, life[n].born = life[n].dies = i, ++n; }
        for (int k = -1; k < GCUDA_MAX_SRC; ++k) { // -1: the node itself, when it is a view that is written
            const struct gcuda_tensor * s = k < 0 ? node : node->src[k];
            const struct gcuda_tensor * root = s ? (s->view_src ? s->view_src : s) : NULL;
            for (int j = 0; j < n; ++j) {
                if (root && life[j].t == root) { life[j].dies = i; }
            }
        }
    }
    for (int i = 0; i < n; ++i) {
        if (life[i].t->flags & GCUDA_TENSOR_FLAG_OUTPUT) { life[i].dies = n_nodes; }
        for (int k = 0; k < n_nodes; ++k) { // an output that is a view keeps its owner
            const struct gcuda_tensor * node = gcuda_graph_node(w->g, k);
            if (node->view_src == life[i].t && (node->flags & GCUDA_TENSOR_FLAG_OUTPUT)) { life[i].dies = n_nodes; }
        }
        if (life[i].t->flags & GCUDA_TENSOR_FLAG_INPUT) { life[i].born = -1; }
    }
    return n;
}

static bool overlap(const struct gcuda_tensor * a, const struct gcuda_tensor * b) {
    const char *pa = (const char *) a->data, *pb = (const char *) b->data;
    return pa < pb + tensor_bytes(b) && pb < pa + tensor_bytes(a);
}

static void check_lifetimes(const struct random_graph * w) {
    struct life life[MAX_T];
    const int n = lifetimes(w, life);
    for (int i = 0; i < n; ++i) {
        for (int j = 0; j < n; ++j) {
            const struct life *a = &life[i], *b = &life[j];
            if (i == j || a->born > b->born || a->dies < b->born || !overlap(a->t, b->t)) { continue; }
            bool takes_over = false; // b is placed exactly on a source that ends here
            for (int k = 0; k < GCUDA_MAX_SRC; ++k) {
                takes_over = takes_over || (b->t->src[k] && tensor_root(b->t->src[k]) == a->t);
            }
            takes_over = takes_over && a->dies == b->born && may_reuse(b->t->op) && a->t->data == b->t->data &&
                         !is_leaf(w, b->t);
            CHECK_MSG(takes_over, "%s (nodes %d to %d) and %s (nodes %d to %d) share memory", a->t->name, a->born,
                a->dies, b->t->name, b->born, b->dies);
        }
    }
}

// =====================================================================================================================
// >>branches   what may run at the same time, from the graph alone
// =====================================================================================================================
static bool is_work(const struct gcuda_tensor * t) {
    return t->op != GCUDA_OP_NONE && t->op != GCUDA_OP_VIEW && t->op != GCUDA_OP_RESHAPE && t->op != GCUDA_OP_PERMUTE &&
           t->op != GCUDA_OP_TRANSPOSE;
}

static const struct gcuda_tensor * root_of(const struct gcuda_tensor * t) { return t->view_src ? t->view_src : t; }

static bool reads_of(const struct gcuda_tensor * node, const struct gcuda_tensor * root) {
    for (int k = 0; k < GCUDA_MAX_SRC; ++k) {
        if (node->src[k] != NULL && root_of(node->src[k]) == root) { return true; }
    }
    return false;
}
static bool uses(const struct gcuda_tensor * node, const struct gcuda_tensor * root) {
    return is_work(node) && (root_of(node) == root || reads_of(node, root));
}

// By a result that the other reads, or because a node in place has to come after a reader.
static bool depends(const struct gcuda_tensor * later, const struct gcuda_tensor * before) {
    return is_work(later) && is_work(before) && (uses(later, root_of(before)) || uses(before, root_of(later)));
}

// Nothing computed before node x is used after it. Later nodes run after all nodes up to x, even if they read only
// leafs (plans of CUDA backends assume this).
static bool is_cut(const struct gcuda_cgraph * g, int x) {
    bool is_so = is_work(g->nodes[x]);
    for (int i = 0; i < x && is_so; ++i) {
        const struct gcuda_tensor * root = root_of(g->nodes[i]);
        if (!is_work(g->nodes[i]) || root == root_of(g->nodes[x])) { continue; }
        for (int k = x + 1; k < g->n_nodes && is_so; ++k) { is_so = !uses(g->nodes[k], root); }
    }
    return is_so;
}

// done[k][i]: node i has finished when node k begins, whatever else runs concurrently.
enum { MAX_NODES = 2 * MAX_T };
static void order_of(const struct gcuda_cgraph * g, bool (*done)[MAX_NODES]) {
    int cut = -1;
    for (int k = 0; k < g->n_nodes; ++k) {
        if (is_cut(g, k)) { cut = k; }
        for (int i = 0; i < k; ++i) { done[k][i] = i <= cut; }
        for (int i = 0; i < k; ++i) {
            if (!depends(g->nodes[k], g->nodes[i])) { continue; }
            done[k][i] = true;
            for (int j = 0; j < i; ++j) { done[k][j] = done[k][j] || done[i][j]; }
        }
    }
}

// t took over the memory of a source that ended there, which may have done so itself, and so on from a.
static bool is_heir(const struct gcuda_tensor * t, const struct gcuda_tensor * a) {
    for (int k = 0; k < GCUDA_MAX_SRC && may_reuse(t->op); ++k) {
        const struct gcuda_tensor * s = t->src[k] != NULL ? root_of(t->src[k]) : NULL;
        if (s != NULL && s->data == t->data && (s == a || is_heir(s, a))) { return true; }
    }
    return false;
}

// b reuses memory of a: all readers of a have finished when b is computed. An heir is on the same branch, or is the
// first node of a branch that begins at a and waits for the other readers of a. Returns the number of such pairs
// without heirs.
static int check_branches(const struct random_graph * w) {
    static bool done[MAX_NODES][MAX_NODES];
    struct life life[MAX_T];
    const int n = lifetimes(w, life);
    int n_shared = 0;
    order_of(w->g, done);
    for (int i = 0; i < n * n; ++i) {
        const struct life *a = &life[i / n], *b = &life[i % n];
        if (a->born >= b->born || !overlap(a->t, b->t) || is_heir(b->t, a->t)) { continue; }
        n_shared++;
        for (int k = 0; k < w->g->n_nodes; ++k) {
            const bool is_over = k < b->born && done[b->born][k];
            CHECK_MSG(is_over || !uses(w->g->nodes[k], a->t),
                "%s has memory of %s, which %s uses and may do so beside it", b->t->name, a->t->name,
                w->g->nodes[k]->name);
        }
    }
    return n_shared;
}

// Rounds of branches from one tensor to one sum: some read each other, some work in place, some end in separate
// results.
static bool random_towers(struct random_graph * w, uint64_t seed) {
    struct rng r = { seed };
    const struct gcuda_init_params params = { 0, NULL, true };
    memset(w, 0, sizeof *w);
    w->seed = seed;
    w->ctx = gcuda_init(params);
    w->g = gcuda_new_graph_custom(w->ctx, MAX_NODES, false);
    struct gcuda_tensor * y = w->t[w->n++] = gcuda_new_tensor_1d(w->ctx, GCUDA_TYPE_F32, 64);
    while (w->n < MAX_T - 20) {
        struct gcuda_tensor *sum[3] = { NULL, NULL, NULL }, *before = y, *base = y;
        for (int i = 0; i < 3; ++i) {
            struct gcuda_tensor * t = base;
            const int height = 1 + (int) rng_below(&r, 4);
            for (int k = 0; k < height; ++k) {
                struct gcuda_tensor * args[3] = { t, rng_below(&r, 4) ? t : before, base };
                const int64_t kind = rng_below(&r, 5);
                t = kind == 0            ? gcuda_sqr(w->ctx, t)
                    : kind == 1 && k > 0 ? gcuda_rms_norm_inplace(w->ctx, t, 0.5f)
                                         : gcuda_custom_4d(w->ctx, GCUDA_TYPE_F32, 64 << rng_below(&r, 3), 1, 1, 1,
                                               args, 1 + (int) rng_below(&r, 3), mix, 1, NULL);
                w->t[w->n] = gcuda_format_name(t, "t%d", w->n);
                w->n++;
            }
            if (rng_below(&r, 6) == 0) { gcuda_set_output(t); }
            sum[i] = before = t;
        }
        y = w->t[w->n] = gcuda_format_name(
            gcuda_custom_4d(w->ctx, GCUDA_TYPE_F32, 64, 1, 1, 1, sum, 3, mix, 1, NULL), "sum%d", w->n);
        w->n++;
    }
    return y != NULL && gcuda_build_forward_expand(w->g, y) == GCUDA_STATUS_SUCCESS;
}

// =====================================================================================================================
// >>tests
// =====================================================================================================================
TEST(branches_side_by_side_share_no_memory) {
    const int rounds = test_full() ? 20000 : 2000;
    struct rng r = rng_for("branches");
    REQUIRE(op_backends_ready());
    gcuda_gallocr_t galloc = gcuda_gallocr_new(gcuda_backend_get_default_buffer_type(op_backends[0]));
    gcuda_gallocr_set_concurrent(galloc, true);
    int n_shared = 0;
    for (int round = 0; round < rounds && test_all.n_bad_checks == 0; ++round) {
        struct random_graph w;
        const uint64_t seed = rng_u64(&r);
        CHECK(round % 2 ? random_towers(&w, seed) : random_graph(&w, seed, true));
        if (CHECK_OK(gcuda_gallocr_alloc_graph(galloc, w.g))) {
            check_lifetimes(&w);
            n_shared += check_branches(&w);
        }
        gcuda_free(w.ctx);
    }
    CHECK(n_shared > rounds); // memory is reused after branches
    gcuda_gallocr_free(galloc);
}

TEST(tensors_alive_together_do_not_overlap) {
    const int rounds = test_full() ? 20000 : 3000;
    struct rng r = rng_for("alloc");
    REQUIRE(op_backends_ready());
    gcuda_backend_buffer_type_t buft = gcuda_backend_get_default_buffer_type(op_backends[0]);
    gcuda_gallocr_t shared = gcuda_gallocr_new(buft); // sees every graph after another one
    REQUIRE(shared != NULL);
    for (int round = 0; round < rounds; ++round) {
        struct random_graph w;
        const uint64_t seed = rng_u64(&r);
        CHECK(random_graph(&w, seed, true));
        const size_t plain = plain_peak(w.g, gcuda_backend_buft_get_alignment(buft));
        gcuda_gallocr_t own = round & 1 ? NULL : gcuda_gallocr_new(buft);
        gcuda_gallocr_t galloc = own ? own : shared;
        if (own) {
            size_t dry = 0;
            CHECK_OK(gcuda_gallocr_reserve_n_size(own, w.g, NULL, NULL, &dry));
            CHECK_OK(gcuda_gallocr_reserve(own, w.g));
            CHECK_EQ_I(gcuda_gallocr_get_buffer_size(own, 0), dry);
            CHECK_MSG(dry <= plain, "round %d: %llu bytes, the plain rules need %llu", round, (unsigned long long) dry,
                (unsigned long long) plain);
        }
        gcuda_gallocr_set_concurrent(shared, round % 4 == 3);
        if (CHECK_OK(gcuda_gallocr_alloc_graph(galloc, w.g))) { check_lifetimes(&w); }
        gcuda_gallocr_free(own);
        gcuda_free(w.ctx);
    }
    gcuda_gallocr_free(shared);
}

static void fill_leafs(const struct random_graph * w) {
    for (int i = 0; i < w->g->n_leafs; ++i) {
        float v[512];
        struct gcuda_tensor * t = w->g->leafs[i];
        for (int64_t k = 0; k < gcuda_nelements(t); ++k) {
            v[k] = (float) ((k * 7 + t->name[1] * 13) % 31) * 0.125f - 2.0f;
        }
        CHECK_OK(gcuda_backend_tensor_set(t, v, 0, gcuda_nbytes(t)));
    }
}

TEST(reuse_changes_no_result) {
    struct rng r = rng_for("values");
    REQUIRE(op_backends_ready());
    gcuda_gallocr_t galloc = gcuda_gallocr_new(gcuda_backend_get_default_buffer_type(op_backends[0]));
    for (int round = 0; round < (test_full() ? 5000 : 600); ++round) {
        struct random_graph a, b;
        const uint64_t seed = rng_u64(&r);
        REQUIRE(random_graph(&a, seed, false) && random_graph(&b, seed, false));
        // each tensor its own place
        gcuda_backend_buffer_t buf = gcuda_backend_alloc_ctx_tensors(a.ctx, op_backends[0]);
        gcuda_gallocr_set_concurrent(galloc, round % 3 == 2);
        REQUIRE(buf != NULL && CHECK_OK(gcuda_gallocr_alloc_graph(galloc, b.g)));
        fill_leafs(&a), fill_leafs(&b);
        CHECK_OK(gcuda_backend_graph_compute(op_backends[0], a.g));
        CHECK_OK(gcuda_backend_graph_compute(op_backends[1], b.g));
        for (int i = 0; i < a.n; ++i) {
            const int n_nodes = gcuda_graph_n_nodes(a.g);
            bool computed = false;
            for (int k = 0; k < n_nodes; ++k) { computed = computed || gcuda_graph_node(a.g, k) == a.t[i]; }
            if (!computed || !(a.t[i]->flags & GCUDA_TENSOR_FLAG_OUTPUT)) { continue; }
            char *x = tensor_download(a.t[i]), *y = tensor_download(b.t[i]);
            CHECK_MSG(memcmp(x, y, tensor_bytes(a.t[i])) == 0, "round %d: %s differs", round, a.t[i]->name);
            free(x), free(y);
        }
        gcuda_backend_buffer_free(buf);
        gcuda_free(a.ctx), gcuda_free(b.ctx);
    }
    gcuda_gallocr_free(galloc);
}

// Four branches from one tensor to one sum, twice: with memory apart no branch has any of another's, and the second
// four have that of the first.
TEST(branches_have_memory_of_their_own) {
    const struct gcuda_init_params params = { 0, NULL, true };
    REQUIRE(op_backends_ready());
    size_t sizes[3] = { 0, 0, 0 };
    for (int how = 0; how < 3; ++how) { // shared; apart, one round of branches; apart, two rounds
        struct gcuda_context * ctx = gcuda_init(params);
        gcuda_gallocr_t galloc = gcuda_gallocr_new(gcuda_backend_get_default_buffer_type(op_backends[0]));
        struct gcuda_tensor *x = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F32, 256), *y = x, *parts[4][2];
        for (int round = 0; round < (how == 1 ? 1 : 2); ++round) {
            struct gcuda_tensor *base = gcuda_sqr(ctx, y), *sums[4];
            for (int i = 0; i < 4; ++i) {
                parts[i][0] = gcuda_cumsum(ctx, base);
                sums[i] = parts[i][1] = gcuda_cumsum(ctx, parts[i][0]);
            }
            y = gcuda_add(ctx, gcuda_add(ctx, sums[0], sums[1]), gcuda_add(ctx, sums[2], sums[3]));
        }
        struct gcuda_cgraph * g = gcuda_new_graph(ctx);
        gcuda_gallocr_set_concurrent(galloc, how > 0);
        CHECK_OK(gcuda_build_forward_expand(g, y));
        CHECK_OK(gcuda_gallocr_alloc_graph(galloc, g));
        int n_same = 0;
        for (int a = 0; a < 8; ++a) {
            for (int b = 0; b < 8; ++b) {
                n_same += a / 2 != b / 2 && parts[a / 2][a % 2]->data == parts[b / 2][b % 2]->data;
            }
        }
        CHECK_MSG((n_same == 0) == (how > 0), "way %d: %d places of two branches", how, n_same);
        sizes[how] = gcuda_gallocr_get_buffer_size(galloc, 0);
        gcuda_gallocr_free(galloc);
        gcuda_free(ctx);
    }
    CHECK(sizes[0] < sizes[1] && sizes[2] <= sizes[1] + 1024); // x is needed no more
}

TEST(a_reserved_graph_allocates_nothing) {
    struct random_graph a, b;
    struct fault f;
    REQUIRE(op_backends_ready());
    gcuda_gallocr_t galloc = gcuda_gallocr_new(gcuda_backend_get_default_buffer_type(op_backends[0]));
    REQUIRE(galloc && random_graph(&a, 77, true) && random_graph(&b, 77, true));
    CHECK_OK(gcuda_gallocr_reserve(galloc, a.g));
    const size_t size = gcuda_gallocr_get_buffer_size(galloc, 0);
    fault_begin(&f, 1); // the first allocation fails
    CHECK_OK(gcuda_gallocr_alloc_graph(galloc, b.g));
    fault_end(&f);
    CHECK_EQ_I(f.n_calls, 0);
    CHECK_EQ_I(gcuda_gallocr_get_buffer_size(galloc, 0), size);
    CHECK_EQ_I(gcuda_gallocr_get_buffer_size(galloc, 1), 0);
    gcuda_gallocr_free(galloc);
    gcuda_free(a.ctx), gcuda_free(b.ctx);
}

TEST(another_structure_is_measured_again) { // the same counts and sizes, other edges: the old plan would be unsafe
    REQUIRE(op_backends_ready());
    gcuda_gallocr_t galloc = gcuda_gallocr_new(gcuda_backend_get_default_buffer_type(op_backends[0]));
    for (int i = 0; i < 2; ++i) {
        struct random_graph w;
        memset(&w, 0, sizeof w);
        w.ctx = op_context();
        struct gcuda_tensor *a = gcuda_new_tensor_1d(w.ctx, GCUDA_TYPE_F32, 64), *args[3];
        args[0] = gcuda_set_name(a, "a");
        args[1] = gcuda_custom_4d(w.ctx, GCUDA_TYPE_F32, 64, 1, 1, 1, args, 1, mix, 1, NULL);
        args[0] = args[1];
        struct gcuda_tensor * c = gcuda_custom_4d(w.ctx, GCUDA_TYPE_F32, 64, 1, 1, 1, args, 1, mix, 1, NULL);
        args[0] = c, args[1] = i == 0 ? c : args[1]; // the second graph still needs b at the end
        struct gcuda_tensor * d = gcuda_custom_4d(w.ctx, GCUDA_TYPE_F32, 64, 1, 1, 1, args, 1, mix, 1, NULL);
        args[0] = d;
        struct gcuda_tensor * e = gcuda_custom_4d(w.ctx, GCUDA_TYPE_F32, 64, 1, 1, 1, args, 2, mix, 1, NULL);
        w.g = gcuda_new_graph_custom(w.ctx, 32, false);
        REQUIRE(e != NULL && w.g != NULL && CHECK_OK(gcuda_build_forward_expand(w.g, e)));
        CHECK_OK(gcuda_gallocr_alloc_graph(galloc, w.g));
        check_lifetimes(&w);
        gcuda_free(w.ctx);
    }
    gcuda_gallocr_free(galloc);
}

TEST(several_buffers) { // nodes choose; equal types share; ids are needed again when the graph grows
    REQUIRE(op_backends_ready());
    gcuda_backend_buffer_type_t buft = gcuda_backend_get_default_buffer_type(op_backends[0]), pair[2] = { buft, buft };
    gcuda_gallocr_t galloc = gcuda_gallocr_new_n(pair, 2);
    struct random_graph w;
    REQUIRE(galloc && random_graph(&w, 5, true));
    int node_ids[128], leaf_ids[128];
    for (int i = 0; i < 128; ++i) { node_ids[i] = i & 1, leaf_ids[i] = 1; }
    size_t sizes[2] = { 1, 1 };
    CHECK_OK(gcuda_gallocr_reserve_n_size(galloc, w.g, node_ids, leaf_ids, sizes));
    CHECK_OK(gcuda_gallocr_reserve_n(galloc, w.g, node_ids, leaf_ids));
    CHECK(gcuda_gallocr_get_buffer_size(galloc, 0) == sizes[0] && sizes[0] > 0);
    CHECK(gcuda_gallocr_get_buffer_size(galloc, 1) == 0 && sizes[1] == 0); // shares the first
    CHECK_OK(gcuda_gallocr_alloc_graph(galloc, w.g));
    check_lifetimes(&w);
    node_ids[0] = 7;
    CHECK(gcuda_gallocr_reserve_n(galloc, w.g, node_ids, leaf_ids) != GCUDA_STATUS_SUCCESS);
    gcuda_gallocr_free(galloc);
    gcuda_free(w.ctx);
    CHECK(gcuda_gallocr_new_n(pair, 0) == NULL);
    gcuda_gallocr_free(NULL);
}

TEST(two_buffer_types) { // every node and leaf where its number says, whatever dies around it
    struct rng r = rng_for("two types");
    REQUIRE(op_backends_ready());
    gcuda_backend_buffer_type_t first = gcuda_backend_get_default_buffer_type(op_backends[0]);
    struct gcuda_backend_buffer_type second = *first; // another object is another type
    gcuda_backend_buffer_type_t types[2] = { first, &second };
    gcuda_gallocr_t galloc = gcuda_gallocr_new_n(types, 2);
    REQUIRE(galloc != NULL);
    for (int round = 0; round < (test_full() ? 4000 : 500); ++round) {
        struct random_graph w;
        int node_ids[128], leaf_ids[128];
        size_t sizes[2] = { 0, 0 };
        CHECK(random_graph(&w, rng_u64(&r), true));
        for (int i = 0; i < 128; ++i) { node_ids[i] = (int) rng_below(&r, 2), leaf_ids[i] = (int) rng_below(&r, 2); }
        CHECK_OK(gcuda_gallocr_reserve_n_size(galloc, w.g, node_ids, leaf_ids, sizes));
        CHECK_OK(gcuda_gallocr_reserve_n(galloc, w.g, node_ids, leaf_ids));
        for (int k = 0; k < 2; ++k) { CHECK(gcuda_gallocr_get_buffer_size(galloc, k) >= sizes[k]); }
        if (CHECK_OK(gcuda_gallocr_alloc_graph(galloc, w.g))) {
            check_lifetimes(&w);
            gcuda_backend_buffer_t buffers[2] = { NULL, NULL };
            for (int i = 0; i < w.g->n_leafs + w.g->n_nodes; ++i) {
                const bool is_leaf = i < w.g->n_leafs;
                const struct gcuda_tensor * t = is_leaf ? w.g->leafs[i] : w.g->nodes[i - w.g->n_leafs];
                const int id = is_leaf ? leaf_ids[i] : node_ids[i - w.g->n_leafs];
                if (t->view_src != NULL) { continue; }
                CHECK(t->buffer != NULL && t->buffer != buffers[1 - id] &&
                      (buffers[id] == NULL || t->buffer == buffers[id]));
                buffers[id] = t->buffer;
            }
        }
        gcuda_free(w.ctx);
    }
    gcuda_gallocr_free(galloc);
}

TEST(linear_allocator) {
    REQUIRE(op_backends_ready());
    struct gcuda_context * ctx = op_context();
    gcuda_backend_buffer_t buf = gcuda_backend_alloc_buffer(op_backends[0], 1024);
    REQUIRE(ctx && buf);
    struct gcuda_tallocr ta = gcuda_tallocr_new(buf);
    struct gcuda_tensor *a = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F32, 3),
                        *b = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F32, 100);
    struct gcuda_tensor *c = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F32, 200), *v = gcuda_view_1d(ctx, b, 4, 0);
    CHECK_OK(gcuda_tallocr_alloc(&ta, a));
    CHECK_OK(gcuda_tallocr_alloc(&ta, b));
    CHECK((uintptr_t) a->data % 32 == 0 && (uintptr_t) b->data % 32 == 0 && (char *) b->data >= (char *) a->data + 12 &&
          a->buffer == buf);
    CHECK(gcuda_tallocr_alloc(&ta, b) != GCUDA_STATUS_SUCCESS); // has a place
    CHECK(gcuda_tallocr_alloc(&ta, v) != GCUDA_STATUS_SUCCESS); // is a view
    CHECK(gcuda_tallocr_alloc(&ta, c) != GCUDA_STATUS_SUCCESS && c->data == NULL && c->buffer == NULL);
    CHECK_HAS(gcuda_last_error(), "800");
    CHECK_OK(gcuda_tallocr_alloc(&ta, gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F32, 64)));
    gcuda_backend_buffer_free(buf);
    gcuda_free(ctx);
}

TEST(whole_contexts) { // nothing to do is no failure; a failure leaves no trace
    REQUIRE(op_backends_ready());
    struct gcuda_context * ctx = op_context();
    gcuda_backend_buffer_t buf = gcuda_backend_alloc_ctx_tensors(ctx, op_backends[0]);
    CHECK(buf != NULL && gcuda_backend_buffer_get_size(buf) == 0);
    gcuda_backend_buffer_free(buf);
    struct gcuda_tensor *a = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F32, 100), *v = gcuda_view_1d(ctx, a, 50, 40),
                        *e = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F32, 0);
    buf = gcuda_backend_alloc_ctx_tensors(ctx, op_backends[0]);
    REQUIRE(buf != NULL && v != NULL && e != NULL);
    CHECK(a->buffer == buf && v->buffer == buf && v->data == (char *) a->data + 40);
    struct gcuda_tensor * late = gcuda_view_1d(ctx, a, 10, 0); // a view of something placed before
    gcuda_backend_buffer_t none = gcuda_backend_alloc_ctx_tensors(ctx, op_backends[0]);
    CHECK(none != NULL && late->data == a->data);
    gcuda_backend_buffer_free(none);
    struct gcuda_tensor *b = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F32, 10),
                        *huge = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_I8, INT64_C(1) << 50);
    CHECK(gcuda_backend_alloc_ctx_tensors(ctx, op_backends[0]) == NULL);
    CHECK(b->data == NULL && b->buffer == NULL && huge->data == NULL && a->buffer == buf);
    gcuda_backend_buffer_free(buf);
    gcuda_free(ctx);
}

TEST(failing_allocations_of_the_graph_allocator) {
    REQUIRE(op_backends_ready());
    gcuda_backend_buffer_type_t buft = gcuda_backend_get_default_buffer_type(op_backends[0]);
    for (int k = 1; k < 500; ++k) {
        struct random_graph w;
        struct fault f;
        REQUIRE(random_graph(&w, 3, true));
        fault_begin(&f, k);
        gcuda_gallocr_t galloc = gcuda_gallocr_new(buft);
        const gcuda_status st = galloc ? gcuda_gallocr_alloc_graph(galloc, w.g) : GCUDA_STATUS_ALLOC_FAILED;
        CHECK((st == GCUDA_STATUS_SUCCESS) == !f.fired);
        if (galloc && f.fired) { CHECK_OK(gcuda_gallocr_alloc_graph(galloc, w.g)); } // usable again
        gcuda_gallocr_free(galloc);
        fault_end(&f);
        CHECK_MSG(f.live == 0, "allocation %d failed and left %ld alive", k, f.live);
        gcuda_free(w.ctx);
        if (!f.fired) { return; }
    }
    CHECK(!"it never runs through");
}
