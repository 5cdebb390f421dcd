// A train step of a small classifier: it learns, and each host allocation may fail without a crash or a leak, with an
// error each time.
#include "test-ops.h"

enum { N_IN = 20, N_HIDDEN = 16, N_OUT = 4, N_BATCH = 32 };

struct trainer {
    gcuda_backend_t cpu;
    struct gcuda_context *weights, *graphs;
    gcuda_backend_buffer_t buf;
    gcuda_gallocr_t galloc;
    struct gcuda_cgraph * g;
    struct gcuda_tensor *w[4], *m[4], *v[4], *x, *labels, *params, *loss;
};

static gcuda_status need(const void * p) { return p ? GCUDA_STATUS_SUCCESS : GCUDA_STATUS_ALLOC_FAILED; }

#define STEP(call)                                       \
    do {                                                 \
        const gcuda_status st_ = (call);                 \
        if (st_ != GCUDA_STATUS_SUCCESS) { return st_; } \
    } while (0)

static gcuda_status make_weights(struct trainer * t) {
    static const int64_t ne[4][2] = { { N_IN, N_HIDDEN }, { N_HIDDEN, 1 }, { N_HIDDEN, N_OUT }, { N_OUT, 1 } };
    struct gcuda_init_params params;
    memset(&params, 0, sizeof params);
    params.no_alloc = true;
    STEP(need(t->weights = gcuda_init(params)));
    for (int i = 0; i < 4; ++i) {
        STEP(need(t->w[i] = gcuda_new_tensor_2d(t->weights, GCUDA_TYPE_F32, ne[i][0], ne[i][1])));
        STEP(need(t->m[i] = gcuda_dup_tensor(t->weights, t->w[i])));
        STEP(need(t->v[i] = gcuda_dup_tensor(t->weights, t->w[i])));
        STEP(gcuda_set_param(t->w[i]));
    }
    STEP(need(t->x = gcuda_new_tensor_2d(t->weights, GCUDA_TYPE_F32, N_IN, N_BATCH)));
    STEP(need(t->labels = gcuda_new_tensor_2d(t->weights, GCUDA_TYPE_F32, N_OUT, N_BATCH)));
    STEP(need(t->params = gcuda_new_tensor_1d(t->weights, GCUDA_TYPE_F32, 7)));
    return need(t->buf = gcuda_backend_alloc_ctx_tensors(t->weights, t->cpu));
}

static gcuda_status make_graph(struct trainer * t) {
    struct gcuda_init_params params;
    memset(&params, 0, sizeof params);
    params.no_alloc = true;
    STEP(need(t->graphs = gcuda_init(params)));
    struct gcuda_context * c = t->graphs;
    struct gcuda_tensor * h = gcuda_relu(c, gcuda_add(c, gcuda_mul_mat(c, t->w[0], t->x), t->w[1]));
    struct gcuda_tensor * y = gcuda_add(c, gcuda_mul_mat(c, t->w[2], h), t->w[3]);
    STEP(need(t->loss = gcuda_cross_entropy_loss(c, y, t->labels)));
    STEP(gcuda_set_loss(t->loss));
    gcuda_set_output(t->loss);
    STEP(need(t->g = gcuda_new_graph_custom(c, 256, true)));
    STEP(gcuda_build_forward_expand(t->g, t->loss));
    STEP(gcuda_build_backward_expand(c, t->g, NULL));
    for (int i = 0; i < 4; ++i) {
        STEP(gcuda_build_forward_expand(
            t->g, gcuda_opt_step_adamw(c, t->w[i], gcuda_graph_get_grad(t->g, t->w[i]), t->m[i], t->v[i], t->params)));
    }
    STEP(need(t->galloc = gcuda_gallocr_new(gcuda_backend_get_default_buffer_type(t->cpu))));
    STEP(gcuda_gallocr_alloc_graph(t->galloc, t->g));
    return gcuda_graph_reset(t->g);
}

static gcuda_status fill_floats(struct gcuda_tensor * t, struct rng * r, double lo, double hi) {
    float v[N_IN * N_BATCH];
    const int64_t n = gcuda_nelements(t);
    for (int64_t i = 0; i < n; ++i) { v[i] = (float) rng_between(r, lo, hi); }
    return gcuda_backend_tensor_set(t, v, 0, (size_t) n * sizeof(float));
}

// The class is the largest of the first four inputs.
static gcuda_status fill_batch(struct trainer * t, struct rng * r, int step) {
    float x[N_IN * N_BATCH], labels[N_OUT * N_BATCH] = { 0 };
    const double beta1 = 0.9, beta2 = 0.999;
    const float params[7] = { 0.02f, (float) beta1, (float) beta2, 1e-8f, 0.0f,
        (float) (1.0 / (1.0 - pow(beta1, step))), (float) (1.0 / (1.0 - pow(beta2, step))) };
    for (int b = 0; b < N_BATCH; ++b) {
        int best = 0;
        for (int i = 0; i < N_IN; ++i) { x[b * N_IN + i] = (float) rng_between(r, -1, 1); }
        for (int i = 1; i < N_OUT; ++i) { best = x[b * N_IN + i] > x[b * N_IN + best] ? i : best; }
        labels[b * N_OUT + best] = 1.0f;
    }
    STEP(gcuda_backend_tensor_set(t->x, x, 0, sizeof x));
    STEP(gcuda_backend_tensor_set(t->params, params, 0, sizeof params));
    return gcuda_backend_tensor_set(t->labels, labels, 0, sizeof labels);
}

static gcuda_status train(struct trainer * t, int n_steps, float * first, float * last) {
    struct rng r = rng_for("train");
    STEP(need(t->cpu = gcuda_backend_cpu_init()));
    STEP(gcuda_backend_cpu_set_n_threads(t->cpu, 2));
    STEP(make_weights(t));
    for (int i = 0; i < 4; ++i) { STEP(fill_floats(t->w[i], &r, -0.3, 0.3)); }
    STEP(make_graph(t));
    for (int i = 0; i < 4; ++i) {
        STEP(gcuda_backend_tensor_memset(t->m[i], 0, 0, gcuda_nbytes(t->m[i])));
        STEP(gcuda_backend_tensor_memset(t->v[i], 0, 0, gcuda_nbytes(t->v[i])));
    }
    for (int step = 1; step <= n_steps; ++step) {
        STEP(fill_batch(t, &r, step));
        STEP(gcuda_backend_graph_compute(t->cpu, t->g));
        STEP(gcuda_backend_tensor_get(t->loss, step == 1 ? first : last, 0, sizeof(float)));
    }
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status train_and_free(int n_steps, float * first, float * last) {
    struct trainer t;
    memset(&t, 0, sizeof t);
    const gcuda_status st = train(&t, n_steps, first, last);
    gcuda_gallocr_free(t.galloc);
    gcuda_backend_buffer_free(t.buf);
    gcuda_free(t.graphs);
    gcuda_free(t.weights);
    gcuda_backend_free(t.cpu);
    gcuda_shutdown();
    return st;
}

TEST(it_learns) {
    float first = 0.0f, last = 0.0f;
    CHECK_OK(train_and_free(400, &first, &last));
    CHECK_MSG(first > 1.0f && last < 0.4f * first, "the loss goes from %g to %g", (double) first, (double) last);
}

TEST(train_step_survives_every_failed_allocation) {
    for (int k = 1; k < 5000; ++k) {
        struct fault f;
        float first, last;
        fault_begin(&f, k);
        gcuda_clear_last_error();
        const gcuda_status st = train_and_free(2, &first, &last);
        fault_end(&f);
        CHECK_MSG(f.live == 0, "allocation %d failed and left %ld alive", k, f.live);
        CHECK_MSG((st == GCUDA_STATUS_SUCCESS) == !f.fired, "allocation %d failed and the status is %d", k, (int) st);
        CHECK_MSG(!f.fired || gcuda_last_error()[0] != '\0', "allocation %d failed without a message", k);
        if (!f.fired) {
            CHECK_MSG(k > 10, "%d allocations only", k - 1);
            return;
        }
    }
    CHECK(!"it never runs through");
}
