// A third-party backend, written from outside with the public interface alone: rope and mul_mat in host memory, in 80 lines. One with
// its own memory fills in two more tables, for buffer types and buffers, as tests/test-backend.c does.
#include "test.h"

// >>backend -----------------------------------------------------------------------------------------------------------
static char * row_of(const struct gcuda_array * a, int64_t i1, int64_t i2, int64_t i3) {
    return (char *) a->data + (size_t) i1 * a->nb[1] + (size_t) i2 * a->nb[2] + (size_t) i3 * a->nb[3];
}
static void mine_rope(const struct gcuda_rope_args * p) { // rotates pairs of elements of each row by position * frequency
    for (int64_t i = 0; i < p->x.ne[1] * p->x.ne[2] * p->x.ne[3]; ++i) {
        const int64_t i1 = i % p->x.ne[1], i2 = i / p->x.ne[1] % p->x.ne[2], i3 = i / p->x.ne[1] / p->x.ne[2];
        float * y = memmove(row_of(&p->y, i1, i2, i3), row_of(&p->x, i1, i2, i3), (size_t) p->x.ne[0] * sizeof(float));
        for (int j = 0; j < p->n_dims / 2; ++j) {
            const double angle = ((const int32_t *) p->pos.data)[i2] * pow(p->freq_base, -2.0 * j / p->n_dims) * p->freq_scale;
            const double c = cos(angle) * p->attn_factor, s = (p->is_back ? -sin(angle) : sin(angle)) * p->attn_factor;
            const int k = p->mode == GCUDA_ROPE_TYPE_NORMAL ? 2 * j : j, l = p->mode == GCUDA_ROPE_TYPE_NORMAL ? k + 1 : j + p->n_dims / 2;
            const double a = y[k], b = y[l];
            y[k] = (float) (a * c - b * s), y[l] = (float) (a * s + b * c);
        }
    }
}
static gcuda_status mine_mul_mat(const struct gcuda_mul_mat_args * p) { // any types that have a decoder
    const int64_t k = p->a.ne[0], r2 = p->b.ne[2] / p->a.ne[2], r3 = p->b.ne[3] / p->a.ne[3];
    float * u = (float *) malloc((size_t) (2 * k + 1) * sizeof(float)), * v = u + k;
    if (u == NULL) { return gcuda_set_last_error(GCUDA_STATUS_ALLOC_FAILED, "mine: no memory for two rows"); }
    for (int64_t i = 0; i < p->y.ne[0] * p->y.ne[1] * p->y.ne[2] * p->y.ne[3]; ++i) {
        const int64_t m = i % p->y.ne[0], n = i / p->y.ne[0] % p->y.ne[1], rest = i / p->y.ne[0] / p->y.ne[1];
        const int64_t i2 = rest % p->y.ne[2], i3 = rest / p->y.ne[2];
        double sum = 0.0;
        gcuda_get_type_traits(p->a.type)->to_float(row_of(&p->a, m, i2 / r2, i3 / r3), u, k);
        gcuda_get_type_traits(p->b.type)->to_float(row_of(&p->b, n, i2, i3), v, k);
        for (int64_t j = 0; j < k; ++j) { sum += (double) u[j] * (double) v[j]; }
        ((float *) (void *) row_of(&p->y, n, i2, i3))[m] = (float) sum;
    }
    free(u);
    return GCUDA_STATUS_SUCCESS;
}
static gcuda_status mine_supports(gcuda_backend_dev_t dev, const struct gcuda_tensor * y) {
    union gcuda_args args;
    const gcuda_status st = gcuda_node_args(y, &args);
    const bool is_view = y->op == GCUDA_OP_NONE || y->op == GCUDA_OP_VIEW || y->op == GCUDA_OP_RESHAPE;
    const bool is_rope = st == GCUDA_STATUS_SUCCESS && y->op == GCUDA_OP_ROPE && y->src[2] == NULL && y->type == GCUDA_TYPE_F32 &&
                         args.rope.mode <= GCUDA_ROPE_TYPE_NEOX && args.rope.ext_factor == 0.0f && gcuda_is_contiguous_rows(y->src[0]);
    return (void) dev, st != GCUDA_STATUS_SUCCESS || is_view || is_rope || y->op == GCUDA_OP_MUL_MAT
        ? st : gcuda_set_last_error(GCUDA_STATUS_UNSUPPORTED, "mine: only plain rope of F32, and mul_mat");
}
static gcuda_status mine_compute(gcuda_backend_t backend, struct gcuda_cgraph * graph) {
    gcuda_status st = GCUDA_STATUS_SUCCESS;
    for (int i = 0; i < gcuda_graph_n_nodes(graph) && st == GCUDA_STATUS_SUCCESS; ++i) {
        const struct gcuda_tensor * y = gcuda_graph_node(graph, i);
        union gcuda_args args;
        st = mine_supports(backend->device, y);
        if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_node_args(y, &args); }
        if (st == GCUDA_STATUS_SUCCESS && y->op == GCUDA_OP_MUL_MAT) { st = mine_mul_mat(&args.mul_mat); }
        if (st == GCUDA_STATUS_SUCCESS && y->op == GCUDA_OP_ROPE) { mine_rope(&args.rope); }
    }
    return st;
}

static const char * mine_name(gcuda_backend_t b) { return (void) b, "Mine"; }
static void mine_free(gcuda_backend_t b) { free(b); }
static gcuda_status mine_init(gcuda_backend_dev_t dev, const char * params, gcuda_backend_t * backend) {
    const struct gcuda_backend made = { .guid = "third-party mine", .device = dev,
        .iface = { .get_name = mine_name, .free = mine_free, .graph_compute = mine_compute } };
    *backend = (gcuda_backend_t) malloc(sizeof made);
    if (*backend == NULL) { return gcuda_set_last_error(GCUDA_STATUS_ALLOC_FAILED, "mine: no memory"); }
    return (void) params, **backend = made, GCUDA_STATUS_SUCCESS;
}
static const char * mine_dev_name(gcuda_backend_dev_t d) { return (void) d, "Mine0"; }
static enum gcuda_backend_dev_type mine_dev_type(gcuda_backend_dev_t d) { return (void) d, GCUDA_BACKEND_DEVICE_TYPE_ACCEL; }
static gcuda_backend_buffer_type_t mine_dev_buft(gcuda_backend_dev_t d) { return (void) d, gcuda_backend_cpu_buffer_type(); }
static bool mine_supports_buft(gcuda_backend_dev_t d, gcuda_backend_buffer_type_t t) { return (void) d, gcuda_backend_buft_is_host(t); }
static gcuda_status mine_memory(gcuda_backend_dev_t d, size_t * n_free, size_t * n) {
    return (void) d, gcuda_backend_dev_memory(gcuda_backend_dev_by_type(GCUDA_BACKEND_DEVICE_TYPE_CPU), n_free, n);
}
static struct gcuda_backend_reg mine_reg;
static struct gcuda_backend_device mine_dev = { .reg = &mine_reg, .iface = { .get_name = mine_dev_name, .get_description = mine_dev_name,
    .get_memory = mine_memory, .get_type = mine_dev_type, .init_backend = mine_init, .get_buffer_type = mine_dev_buft, .supports_op = mine_supports,
    .supports_buft = mine_supports_buft } };
static const char * mine_reg_name(gcuda_backend_reg_t r) { return (void) r, "Mine"; }
static size_t mine_reg_count(gcuda_backend_reg_t r) { return (void) r, (size_t) 1; }
static gcuda_backend_dev_t mine_reg_device(gcuda_backend_reg_t r, size_t i) { return (void) r, (void) i, &mine_dev; }
static struct gcuda_backend_reg mine_reg = { .api_version = GCUDA_BACKEND_API_VERSION,
    .iface = { .get_name = mine_reg_name, .get_device_count = mine_reg_count, .get_device = mine_reg_device } };

// >>tests -------------------------------------------------------------------------------------------------------------
enum { K = 256, HEAD = 32, HEADS = 6, TOKENS = 5 };

struct program {
    struct gcuda_context * ctx;
    struct gcuda_tensor * w, * x, * pos, * rotated, * y;
    struct gcuda_cgraph * graph;
};
// y: rope(w x) with heads as rows; has_tail: a soft_max after it
static bool program_make(struct program * p, enum gcuda_type type, int mode, bool has_tail) {
    const struct gcuda_init_params params = { 0, NULL, true };
    p->ctx = gcuda_init(params);
    p->w = gcuda_new_tensor_2d(p->ctx, type, K, HEAD * HEADS);
    p->x = gcuda_new_tensor_2d(p->ctx, GCUDA_TYPE_F32, K, TOKENS);
    p->pos = gcuda_new_tensor_1d(p->ctx, GCUDA_TYPE_I32, TOKENS);
    struct gcuda_tensor * q = gcuda_mul_mat(p->ctx, p->w, p->x);
    CHECK_OK(gcuda_mul_mat_set_prec(q, GCUDA_PREC_F32));
    q = gcuda_reshape_3d(p->ctx, q, HEAD, HEADS, TOKENS);
    p->rotated = gcuda_rope_ext(p->ctx, q, p->pos, NULL, 24, mode, 0, 10000.0f, 0.5f, 0.0f, 1.25f, 32.0f, 1.0f);
    p->y = has_tail ? gcuda_soft_max(p->ctx, p->rotated) : p->rotated;
    p->graph = gcuda_new_graph(p->ctx);
    gcuda_set_input(p->w), gcuda_set_input(p->x), gcuda_set_input(p->pos), gcuda_set_output(p->y);
    return gcuda_build_forward_expand(p->graph, p->y) == GCUDA_STATUS_SUCCESS;
}
static void program_set(struct program * p) {
    static float w[K * HEAD * HEADS], x[K * TOKENS];
    static char blocks[sizeof w];
    int32_t pos[TOKENS];
    for (int i = 0; i < K * HEAD * HEADS; ++i) { w[i] = sinf(0.37f * (float) i) * 0.1f; }
    for (int i = 0; i < K * TOKENS; ++i) { x[i] = cosf(0.11f * (float) i * (float) (1 + i % 3)); }
    for (int i = 0; i < TOKENS; ++i) { pos[i] = 7 * i + 1; }
    CHECK(gcuda_quantize_chunk(p->w->type, w, blocks, 0, HEAD * HEADS, K, NULL) == gcuda_nbytes(p->w));
    CHECK_OK(gcuda_backend_tensor_set(p->w, blocks, 0, gcuda_nbytes(p->w)));
    CHECK_OK(gcuda_backend_tensor_set(p->x, x, 0, sizeof x));
    CHECK_OK(gcuda_backend_tensor_set(p->pos, pos, 0, sizeof pos));
}
static void program_run(gcuda_backend_t backend, enum gcuda_type type, int mode, float * got) {
    struct program p;
    CHECK(program_make(&p, type, mode, false));
    gcuda_backend_buffer_t buffer = gcuda_backend_alloc_ctx_tensors(p.ctx, backend);
    CHECK(buffer != NULL);
    program_set(&p);
    CHECK_OK(gcuda_backend_graph_compute(backend, p.graph));
    CHECK_OK(gcuda_backend_tensor_get(p.y, got, 0, gcuda_nbytes(p.y)));
    gcuda_backend_buffer_free(buffer);
    gcuda_free(p.ctx);
}
static void check_same(const float * got, const float * want) {
    for (int i = 0; i < HEAD * HEADS * TOKENS; ++i) { CHECK_NEAR(got[i], want[i], 1e-5); }
}

TEST(rope_and_mul_mat_from_outside) { // as the CPU backend computes them
    static const enum gcuda_type types[] = { GCUDA_TYPE_F32, GCUDA_TYPE_F16, GCUDA_TYPE_Q8_0, GCUDA_TYPE_Q4_K };
    static const int modes[] = { GCUDA_ROPE_TYPE_NORMAL, GCUDA_ROPE_TYPE_NEOX };
    float got[HEAD * HEADS * TOKENS], want[HEAD * HEADS * TOKENS];
    CHECK_OK(gcuda_backend_register(&mine_reg));
    gcuda_backend_t mine = gcuda_backend_init_by_name("Mine0", NULL), cpu = gcuda_backend_cpu_init();
    REQUIRE(mine != NULL && cpu != NULL);
    for (size_t t = 0; t < sizeof types / sizeof types[0]; ++t) {
        for (size_t m = 0; m < sizeof modes / sizeof modes[0]; ++m) {
            program_run(mine, types[t], modes[m], got);
            program_run(cpu, types[t], modes[m], want);
            check_same(got, want);
        }
    }
    gcuda_backend_free(mine);
    gcuda_backend_free(cpu);
}

TEST(scheduled_with_the_cpu) { // which computes what it refuses
    float got[HEAD * HEADS * TOKENS], want[HEAD * HEADS * TOKENS];
    CHECK_OK(gcuda_backend_register(&mine_reg));
    gcuda_backend_t backends[] = { gcuda_backend_init_by_name("Mine0", NULL), gcuda_backend_cpu_init() };
    struct program p;
    REQUIRE(backends[0] != NULL && backends[1] != NULL && program_make(&p, GCUDA_TYPE_F16, GCUDA_ROPE_TYPE_NEOX, true));
    CHECK(!gcuda_backend_supports_op(backends[0], p.y));
    CHECK_HAS(gcuda_last_error(), "only plain rope");
    gcuda_backend_sched_t sched = gcuda_backend_sched_new(backends, NULL, 2, 64, false, false);
    REQUIRE(sched != NULL);
    CHECK_OK(gcuda_backend_sched_alloc_graph(sched, p.graph));
    program_set(&p);
    CHECK_OK(gcuda_backend_sched_graph_compute(sched, p.graph));
    CHECK(gcuda_backend_sched_get_tensor_backend(sched, p.rotated) == backends[0]);
    CHECK(gcuda_backend_sched_get_tensor_backend(sched, p.y) == backends[1]);
    CHECK_OK(gcuda_backend_tensor_get(p.y, got, 0, gcuda_nbytes(p.y)));
    program_run(backends[1], GCUDA_TYPE_F16, GCUDA_ROPE_TYPE_NEOX, want);
    for (int r = 0; r < HEADS * TOKENS; ++r) { // the CPU's rope, and soft_max in double
        double sum = 0.0;
        for (int i = 0; i < HEAD; ++i) { sum += exp((double) want[r * HEAD + i]); }
        for (int i = 0; i < HEAD; ++i) { want[r * HEAD + i] = (float) (exp((double) want[r * HEAD + i]) / sum); }
    }
    check_same(got, want);
    gcuda_backend_sched_free(sched);
    gcuda_free(p.ctx);
    gcuda_backend_free(backends[0]);
    gcuda_backend_free(backends[1]);
}

TEST(arguments_of_refused_nodes) {
    union gcuda_args args;
    struct program p;
    REQUIRE(program_make(&p, GCUDA_TYPE_F32, GCUDA_ROPE_TYPE_NEOX, false));
    CHECK_OK(gcuda_node_args(p.rotated, &args));
    CHECK_EQ_I(args.rope.n_dims, 24);
    CHECK_NEAR(args.rope.attn_factor, 1.25, 0.0);
    CHECK_EQ_I(args.rope.y.ne[1], HEADS);
    CHECK_EQ_I(gcuda_node_args(NULL, &args), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_EQ_I(gcuda_node_args(p.rotated, NULL), GCUDA_STATUS_INVALID_ARGUMENT);
    p.rotated->op_params[1] = HEAD + 2; // more dimensions than a row has
    CHECK_EQ_I(gcuda_node_args(p.rotated, &args), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_EQ_I(args.rope.n_dims, 24);
    gcuda_free(p.ctx);
}
