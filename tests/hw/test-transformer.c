// A transformer of two layers with fused attention, trained a few steps on the CPU and on the device from the same
// weights: the losses must agree. Heads of 64 and 128 take tensor cores on the device, forwards with keys in F16 and
// backwards always; heads of 40 the plain path. Also runs on the simulated device (make build/sim/test-transformer).
#include "gcuda.h"
#include "device.h"

#include <math.h>

#if defined(GCUDAI_SIM)
#define SIZE(device, simulated) (simulated)
#else
#define SIZE(device, simulated) (device)
#endif

enum {
    N_LAYERS = 2,
    N_TOKENS = SIZE(200, 40),
    N_WORDS = 24,
    N_FF = SIZE(256, 64),
    N_STEPS = SIZE(20, 6),
    MAX_WEIGHTS = 32
};

struct setting {
    const char * name;
    int head, n_heads, n_kv_heads;
    enum gcuda_type kv_type; // of keys and values where attention reads them
    bool has_sinks;
    float softcap;
};

struct trainer {
    const struct setting * s;
    gcuda_backend_t backend;
    struct gcuda_context *weights, *graphs;
    gcuda_backend_buffer_t buffer;
    gcuda_gallocr_t galloc;
    struct gcuda_cgraph * g;
    struct gcuda_tensor *w[MAX_WEIGHTS], *m[MAX_WEIGHTS], *v[MAX_WEIGHTS];
    struct gcuda_tensor *ids, *positions, *mask, *labels, *params, *loss;
    int n_weights, n_used; // made; taken by the graph so far
};

static struct gcuda_tensor * weight(struct trainer * t, int64_t ne0, int64_t ne1) {
    const int i = t->n_weights++;
    t->w[i] = gcuda_new_tensor_2d(t->weights, GCUDA_TYPE_F32, ne0, ne1);
    t->m[i] = gcuda_dup_tensor(t->weights, t->w[i]);
    t->v[i] = gcuda_dup_tensor(t->weights, t->w[i]);
    CHECK_OK(gcuda_set_param(t->w[i]));
    return t->w[i];
}

static void fill(struct gcuda_tensor * t, struct rng * r, double size, double middle) {
    const int64_t n = gcuda_nelements(t);
    float * x = (float *) malloc((size_t) n * sizeof(float));
    for (int64_t i = 0; i < n; ++i) { x[i] = (float) (middle + rng_between(r, -size, size)); }
    CHECK_OK(gcuda_backend_tensor_set(t, x, 0, (size_t) n * sizeof(float)));
    free(x);
}

static void fill_inputs(struct trainer * t) {
    static uint16_t mask[N_TOKENS * N_TOKENS];
    int32_t positions[N_TOKENS];
    for (int i = 0; i < N_TOKENS; ++i) {
        positions[i] = i;
        for (int j = 0; j < N_TOKENS; ++j) { mask[i * N_TOKENS + j] = j <= i ? 0 : 0xfc00; }
    }
    CHECK_OK(gcuda_backend_tensor_set(t->positions, positions, 0, sizeof positions));
    CHECK_OK(gcuda_backend_tensor_set(t->mask, mask, 0, sizeof mask));
}

static void make_weights(struct trainer * t) {
    const struct gcuda_init_params params = { 0, NULL, true };
    const int64_t head = t->s->head, width = head * t->s->n_heads, kv_width = head * t->s->n_kv_heads;
    struct rng r = rng_for(t->s->name);
    t->weights = gcuda_init(params);
    weight(t, width, N_WORDS);
    for (int i = 0; i < N_LAYERS; ++i) {
        weight(t, width, 1);
        weight(t, width, width);
        weight(t, width, kv_width);
        weight(t, width, kv_width);
        weight(t, t->s->n_heads, 1); // sinks
        weight(t, width, width);
        weight(t, width, 1);
        weight(t, width, N_FF);
        weight(t, width, N_FF);
        weight(t, N_FF, width);
    }
    weight(t, width, N_WORDS);
    t->ids = gcuda_new_tensor_1d(t->weights, GCUDA_TYPE_I32, N_TOKENS);
    t->positions = gcuda_new_tensor_1d(t->weights, GCUDA_TYPE_I32, N_TOKENS);
    t->mask = gcuda_new_tensor_2d(t->weights, GCUDA_TYPE_F16, N_TOKENS, N_TOKENS);
    t->labels = gcuda_new_tensor_2d(t->weights, GCUDA_TYPE_F32, N_WORDS, N_TOKENS);
    t->params = gcuda_new_tensor_1d(t->weights, GCUDA_TYPE_F32, 7);
    t->buffer = gcuda_backend_alloc_ctx_tensors(t->weights, t->backend);
    for (int i = 0; i < t->n_weights; ++i) {
        const bool is_norm = t->w[i]->ne[1] == 1 && t->w[i]->ne[0] == width;
        fill(t->w[i], &r, is_norm ? 0.1 : 1.5 / sqrt((double) t->w[i]->ne[0]), is_norm ? 1.0 : 0.0);
        CHECK_OK(gcuda_backend_tensor_memset(t->m[i], 0, 0, gcuda_nbytes(t->m[i])));
        CHECK_OK(gcuda_backend_tensor_memset(t->v[i], 0, 0, gcuda_nbytes(t->v[i])));
    }
    fill_inputs(t);
}

static struct gcuda_tensor * next(struct trainer * t) { return t->w[t->n_used++]; }

// Heads of a projection, turned by their positions, as attention wants them: [head, tokens, heads].
static struct gcuda_tensor * heads_of(struct trainer * t, struct gcuda_tensor * x, int n_heads, bool has_rope) {
    struct gcuda_context * c = t->graphs;
    struct gcuda_tensor * h = gcuda_reshape_3d(c, gcuda_mul_mat(c, next(t), x), t->s->head, n_heads, N_TOKENS);
    if (has_rope) { h = gcuda_rope(c, h, t->positions, t->s->head, GCUDA_ROPE_TYPE_NEOX); }
    return gcuda_permute(c, h, 0, 2, 1, 3);
}

static struct gcuda_tensor * layer(struct trainer * t, struct gcuda_tensor * x) {
    struct gcuda_context * c = t->graphs;
    const struct setting * s = t->s;
    struct gcuda_tensor * h = gcuda_mul(c, gcuda_rms_norm(c, x, 1e-5f), next(t));
    struct gcuda_tensor *q = heads_of(t, h, s->n_heads, true), *k = heads_of(t, h, s->n_kv_heads, true),
                        *v = heads_of(t, h, s->n_kv_heads, false);
    if (s->kv_type != GCUDA_TYPE_F32) {
        k = gcuda_cast(c, k, s->kv_type);
        v = gcuda_cast(c, v, s->kv_type);
    }
    struct gcuda_tensor * y =
        gcuda_flash_attn_ext(c, q, k, v, t->mask, 1.0f / sqrtf((float) s->head), 0.0f, s->softcap);
    struct gcuda_tensor * sinks = next(t);
    if (s->has_sinks) { CHECK_OK(gcuda_flash_attn_ext_add_sinks(y, sinks)); }
    x = gcuda_add(c, x, gcuda_mul_mat(c, next(t), gcuda_reshape_2d(c, y, s->head * s->n_heads, N_TOKENS)));
    h = gcuda_mul(c, gcuda_rms_norm(c, x, 1e-5f), next(t));
    struct gcuda_tensor *gate = gcuda_silu(c, gcuda_mul_mat(c, next(t), h)), *up = gcuda_mul_mat(c, next(t), h);
    return gcuda_add(c, x, gcuda_mul_mat(c, next(t), gcuda_mul(c, gate, up)));
}

static bool make_graph(struct trainer * t) {
    const struct gcuda_init_params params = { 8u << 20, NULL, true };
    struct gcuda_context * c = t->graphs = gcuda_init(params);
    struct gcuda_tensor * x = gcuda_get_rows(c, next(t), t->ids);
    for (int i = 0; i < N_LAYERS; ++i) { x = layer(t, x); }
    t->loss = gcuda_cross_entropy_loss(c, gcuda_mul_mat(c, next(t), gcuda_rms_norm(c, x, 1e-5f)), t->labels);
    t->g = gcuda_new_graph_custom(c, 4096, true);
    if (t->loss == NULL || t->g == NULL || !CHECK_OK(gcuda_set_loss(t->loss))) { return false; }
    gcuda_set_output(t->loss);
    if (!CHECK_OK(gcuda_build_forward_expand(t->g, t->loss)) || !CHECK_OK(gcuda_build_backward_expand(c, t->g, NULL))) {
        return false;
    }
    for (int i = 0; i < t->n_weights; ++i) {
        struct gcuda_tensor * grad = gcuda_graph_get_grad(t->g, t->w[i]);
        CHECK_MSG((grad != NULL) == (t->s->has_sinks || t->w[i]->ne[0] != t->s->n_heads), "weight %d: gradient %p", i,
            (void *) grad);
        if (grad != NULL) {
            CHECK_OK(
                gcuda_build_forward_expand(t->g, gcuda_opt_step_adamw(c, t->w[i], grad, t->m[i], t->v[i], t->params)));
        }
    }
    t->galloc = gcuda_gallocr_new(gcuda_backend_get_default_buffer_type(t->backend));
    return CHECK_OK(gcuda_gallocr_alloc_graph(t->galloc, t->g)) && CHECK_OK(gcuda_graph_reset(t->g));
}

// Words of a random sequence, the same in every step; after the first two each label is the word before the last.
static void fill_batch(struct trainer * t, int step) {
    static float labels[N_WORDS * N_TOKENS];
    struct rng r = rng_for("batch");
    const float params[7] = { 0.002f, 0.9f, 0.99f, 1e-8f, 0.0f, (float) (1.0 / (1.0 - pow(0.9, step))),
        (float) (1.0 / (1.0 - pow(0.99, step))) };
    int32_t ids[N_TOKENS];
    memset(labels, 0, sizeof labels);
    for (int i = 0; i < N_TOKENS; ++i) {
        ids[i] = (int32_t) rng_below(&r, N_WORDS);
        labels[i * N_WORDS + ids[i > 1 ? i - 2 : 0]] = 1.0f;
    }
    CHECK_OK(gcuda_backend_tensor_set(t->ids, ids, 0, sizeof ids));
    CHECK_OK(gcuda_backend_tensor_set(t->labels, labels, 0, sizeof labels));
    CHECK_OK(gcuda_backend_tensor_set(t->params, params, 0, sizeof params));
}

static void train(const struct setting * s, gcuda_backend_t backend, float * losses) {
    struct trainer t;
    memset(&t, 0, sizeof t);
    t.s = s;
    t.backend = backend;
    make_weights(&t);
    const bool is_made = make_graph(&t);
    CHECK_MSG(is_made, "no graph: %s", gcuda_last_error());
    for (int step = 0; step < N_STEPS && is_made; ++step) {
        fill_batch(&t, step + 1);
        if (!CHECK_OK(gcuda_backend_graph_compute(backend, t.g))) { break; }
        CHECK_OK(gcuda_backend_tensor_get(t.loss, &losses[step], 0, sizeof(float)));
    }
    gcuda_gallocr_free(t.galloc);
    gcuda_backend_buffer_free(t.buffer);
    gcuda_free(t.graphs);
    gcuda_free(t.weights);
}

// Losses of the device may differ as rounding of factors to BF16 lets them.
static void compare(const struct setting * s, gcuda_backend_t cpu, gcuda_backend_t device) {
    float want[N_STEPS] = { 0 }, got[N_STEPS] = { 0 };
    if (!test_case_begin(s->name)) { return; }
    train(s, cpu, want);
    train(s, device, got);
    CHECK_MSG(want[N_STEPS - 1] < 0.95f * want[0], "nothing is learned: %g, then %g", (double) want[0],
        (double) want[N_STEPS - 1]);
    for (int i = 0; i < N_STEPS; ++i) {
        CHECK_MSG(fabsf(got[i] - want[i]) <= 0.005f * want[i], "step %d: loss %g on the CPU, %g on the device", i,
            (double) want[i], (double) got[i]);
        if (test_all.verbose) {
            printf("%s, step %d: %.6f on the CPU, %.6f on the device\n", s->name, i, (double) want[i], (double) got[i]);
        }
    }
    test_case_end();
}

TEST(transformers) {
    static const struct setting settings[] = { { "transformers/64", 64, 2, 1, GCUDA_TYPE_F32, false, 0.0f },
        { "transformers/64_f16_sinks", 64, 2, 2, GCUDA_TYPE_F16, true, 0.0f },
        { "transformers/128_bf16_softcap", 128, 2, 1, GCUDA_TYPE_BF16, false, 10.0f },
        { "transformers/40", 40, 2, 1, GCUDA_TYPE_F16, true, 0.0f } };
    gcuda_backend_t cpu = gcuda_backend_cpu_init(), device = gcuda_backend_cuda_init(0);
    CHECK(cpu != NULL && device != NULL);
    for (size_t i = 0; cpu != NULL && device != NULL && i < sizeof settings / sizeof settings[0]; ++i) {
        compare(&settings[i], cpu, device);
    }
    gcuda_backend_free(device);
    gcuda_backend_free(cpu);
}
