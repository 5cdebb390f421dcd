// A third-party backend, written from outside with the public interface alone: rope and mul_mat in host memory, in 105
// lines. One with its own memory fills in two more tables, for buffer types and buffers, as tests/test-backend.c does.
#include "test.h"

// >>backend -----------------------------------------------------------------------------------------------------------
static char * row_of(const struct gcuda_array * a, int64_t i1, int64_t i2, int64_t i3) {
    return (char *) a->data + (size_t) i1 * a->nb[1] + (size_t) i2 * a->nb[2] + (size_t) i3 * a->nb[3];
}
// rotates pairs of elements of each row by position * frequency
static void mine_rope(const struct gcuda_rope_args * p) {
    for (int64_t i = 0; i < p->x.ne[1] * p->x.ne[2] * p->x.ne[3]; ++i) {
        const int64_t i1 = i % p->x.ne[1], i2 = i / p->x.ne[1] % p->x.ne[2], i3 = i / p->x.ne[1] / p->x.ne[2];
        float * y = memmove(row_of(&p->y, i1, i2, i3), row_of(&p->x, i1, i2, i3), (size_t) p->x.ne[0] * sizeof(float));
        for (int j = 0; j < p->n_dims / 2; ++j) {
            const double angle =
                ((const int32_t *) p->pos.data)[i2] * pow(p->freq_base, -2.0 * j / p->n_dims) * p->freq_scale;
            const double c = cos(angle) * p->attn_factor, s = (p->is_back ? -sin(angle) : sin(angle)) * p->attn_factor;
            const int k = p->mode == GCUDA_ROPE_TYPE_NORMAL ? 2 * j : j,
                      l = p->mode == GCUDA_ROPE_TYPE_NORMAL ? k + 1 : j + p->n_dims / 2;
            const double a = y[k], b = y[l];
            y[k] = (float) (a * c - b * s), y[l] = (float) (a * s + b * c);
        }
    }
}
static gcuda_status mine_mul_mat(const struct gcuda_mul_mat_args * p) { // any types that have a decoder
    const int64_t k = p->a.ne[0], r2 = p->b.ne[2] / p->a.ne[2], r3 = p->b.ne[3] / p->a.ne[3];
    float *u = (float *) malloc((size_t) (2 * k + 1) * sizeof(float)), *v = u + k;
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
    const bool is_rope = st == GCUDA_STATUS_SUCCESS && y->op == GCUDA_OP_ROPE && y->src[2] == NULL &&
                         y->type == GCUDA_TYPE_F32 && args.rope.mode <= GCUDA_ROPE_TYPE_NEOX &&
                         args.rope.ext_factor == 0.0f && gcuda_is_contiguous_rows(y->src[0]);
    return (void) dev,
           st != GCUDA_STATUS_SUCCESS || is_view || is_rope || y->op == GCUDA_OP_MUL_MAT
               ? st
               : gcuda_set_last_error(GCUDA_STATUS_UNSUPPORTED, "mine: only plain rope of F32, and mul_mat");
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
    const struct gcuda_backend made = { .guid = "third-party mine",
        .device = dev,
        .iface = { .get_name = mine_name, .free = mine_free, .graph_compute = mine_compute } };
    *backend = (gcuda_backend_t) malloc(sizeof made);
    if (*backend == NULL) { return gcuda_set_last_error(GCUDA_STATUS_ALLOC_FAILED, "mine: no memory"); }
    return (void) params, **backend = made, GCUDA_STATUS_SUCCESS;
}
static const char * mine_dev_name(gcuda_backend_dev_t d) { return (void) d, "Mine0"; }
static enum gcuda_backend_dev_type mine_dev_type(gcuda_backend_dev_t d) {
    return (void) d, GCUDA_BACKEND_DEVICE_TYPE_ACCEL;
}
static gcuda_backend_buffer_type_t mine_dev_buft(gcuda_backend_dev_t d) {
    return (void) d, gcuda_backend_cpu_buffer_type();
}
static bool mine_supports_buft(gcuda_backend_dev_t d, gcuda_backend_buffer_type_t t) {
    return (void) d, gcuda_backend_buft_is_host(t);
}
static gcuda_status mine_memory(gcuda_backend_dev_t d, size_t * n_free, size_t * n) {
    return (void) d, gcuda_backend_dev_memory(gcuda_backend_dev_by_type(GCUDA_BACKEND_DEVICE_TYPE_CPU), n_free, n);
}
// zero-filled by the caller
static gcuda_status mine_props(gcuda_backend_dev_t d, struct gcuda_backend_dev_props * props) {
    props->name = props->description = mine_dev_name(d), props->type = mine_dev_type(d);
    return mine_memory(d, &props->memory_free, &props->memory_total);
}
static struct gcuda_backend_reg mine_reg;
static struct gcuda_backend_device mine_dev = { .reg = &mine_reg,
    .iface = { .get_name = mine_dev_name,
        .get_description = mine_dev_name,
        .get_memory = mine_memory,
        .get_type = mine_dev_type,
        .get_props = mine_props,
        .init_backend = mine_init,
        .get_buffer_type = mine_dev_buft,
        .supports_op = mine_supports,
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
    struct gcuda_tensor *w, *x, *pos, *rotated, *y;
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
    struct gcuda_backend_dev_props props;
    CHECK_OK(gcuda_backend_dev_get_props(mine->device, &props));
    CHECK_EQ_I(props.type, GCUDA_BACKEND_DEVICE_TYPE_ACCEL);
    CHECK(strcmp(props.name, "Mine0") == 0 && props.memory_total > 0);
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

// One entry of a table is missing: the registration, or the call that returns the object, fails with the entry's name.
static struct gcuda_backend_device some_dev;
static struct gcuda_backend_buffer_type some_buft;
static struct gcuda_backend_buffer_i some_buffer;
static struct gcuda_backend_i some_backend;
static int n_freed;
static gcuda_backend_dev_t some_reg_device(gcuda_backend_reg_t r, size_t i) { return (void) r, (void) i, &some_dev; }
static gcuda_backend_dev_t no_device(gcuda_backend_reg_t r, size_t i) {
    return (void) r, (void) i, (gcuda_backend_dev_t) NULL;
}
static gcuda_backend_buffer_type_t some_dev_buft(gcuda_backend_dev_t d) { return (void) d, &some_buft; }
static gcuda_backend_buffer_type_t no_buft(gcuda_backend_dev_t d) {
    return (void) d, (gcuda_backend_buffer_type_t) NULL;
}
static void some_free(gcuda_backend_t b) { ++n_freed, free(b); }
static gcuda_status some_init(gcuda_backend_dev_t dev, const char * params, gcuda_backend_t * backend) {
    const gcuda_status st = mine_init(dev, params, backend);
    if (st == GCUDA_STATUS_SUCCESS) { (*backend)->iface = some_backend; }
    return st;
}
static gcuda_status no_backend(gcuda_backend_dev_t d, const char * p, gcuda_backend_t * b) {
    return (void) d, (void) p, (void) b, GCUDA_STATUS_SUCCESS;
}
static const char * some_buft_name(gcuda_backend_buffer_type_t t) { return (void) t, "Some"; }
static size_t some_alignment(gcuda_backend_buffer_type_t t) { return (void) t, (size_t) 64; }
static gcuda_status some_alloc(gcuda_backend_buffer_type_t t, size_t size, gcuda_backend_buffer_t * buffer) {
    *buffer = gcuda_backend_buffer_init(t, &some_buffer, NULL, size);
    return *buffer != NULL ? GCUDA_STATUS_SUCCESS : GCUDA_STATUS_ALLOC_FAILED;
}
static gcuda_status no_buffer(gcuda_backend_buffer_type_t t, size_t size, gcuda_backend_buffer_t * buffer) {
    return (void) t, (void) size, (void) buffer, GCUDA_STATUS_SUCCESS;
}
static void * some_base(gcuda_backend_buffer_t b) { return (void) b, &some_buffer; }
static gcuda_status some_memset(gcuda_backend_buffer_t b, struct gcuda_tensor * t, uint8_t v, size_t at, size_t n) {
    return (void) b, (void) t, (void) v, (void) at, (void) n, GCUDA_STATUS_SUCCESS;
}
static gcuda_status some_set(gcuda_backend_buffer_t b, struct gcuda_tensor * t, const void * v, size_t at, size_t n) {
    return (void) b, (void) t, (void) v, (void) at, (void) n, GCUDA_STATUS_SUCCESS;
}
static gcuda_status some_get(gcuda_backend_buffer_t b, const struct gcuda_tensor * t, void * v, size_t at, size_t n) {
    return (void) b, (void) t, (void) v, (void) at, (void) n, GCUDA_STATUS_SUCCESS;
}
static gcuda_status some_clear(gcuda_backend_buffer_t b, uint8_t v) { return (void) b, (void) v, GCUDA_STATUS_SUCCESS; }
static gcuda_status some_event(gcuda_backend_dev_t d, gcuda_backend_event_t * e) {
    return (void) d, (void) e, GCUDA_STATUS_FAILED;
}
static gcuda_status some_plan(gcuda_backend_t b, const struct gcuda_cgraph * g, gcuda_backend_graph_plan_t * p) {
    return (void) b, (void) g, (void) p, GCUDA_STATUS_FAILED;
}

static struct gcuda_backend_reg whole(void) {
    struct gcuda_backend_reg reg = mine_reg;
    reg.iface.get_device = some_reg_device;
    some_dev = mine_dev;
    some_dev.iface.get_buffer_type = some_dev_buft;
    some_dev.iface.init_backend = some_init;
    memset(&some_buft, 0, sizeof some_buft);
    some_buft.device = &some_dev;
    some_buft.iface.get_name = some_buft_name, some_buft.iface.alloc_buffer = some_alloc;
    some_buft.iface.get_alignment = some_alignment;
    memset(&some_buffer, 0, sizeof some_buffer);
    some_buffer.get_base = some_base, some_buffer.memset_tensor = some_memset, some_buffer.set_tensor = some_set;
    some_buffer.get_tensor = some_get, some_buffer.clear = some_clear;
    memset(&some_backend, 0, sizeof some_backend);
    some_backend.get_name = mine_name, some_backend.free = some_free, some_backend.graph_compute = mine_compute;
    return reg;
}
static void check_named(bool is_refused, const char * table, const char * entry) {
    CHECK_MSG(is_refused, "%s without %s is accepted", table, entry);
    CHECK_HAS(gcuda_last_error(), table);
    CHECK_HAS(gcuda_last_error(), entry);
}

TEST(a_backend_without_an_entry_is_refused) {
    const size_t n_regs = gcuda_backend_reg_count();
    struct gcuda_backend_reg reg;
#define REFUSED(table, object, entry) \
    reg = whole();                    \
    object.iface.entry = NULL;        \
    check_named(gcuda_backend_register(&reg) == GCUDA_STATUS_INVALID_ARGUMENT, table, #entry)
    REFUSED("registry", reg, get_name);
    REFUSED("registry", reg, get_device_count);
    REFUSED("registry", reg, get_device);
    REFUSED("device", some_dev, get_name);
    REFUSED("device", some_dev, get_description);
    REFUSED("device", some_dev, get_memory);
    REFUSED("device", some_dev, get_type);
    REFUSED("device", some_dev, get_props);
    REFUSED("device", some_dev, init_backend);
    REFUSED("device", some_dev, get_buffer_type);
    REFUSED("device", some_dev, supports_op);
    REFUSED("device", some_dev, supports_buft);
    REFUSED("buffer type", some_buft, get_name);
    REFUSED("buffer type", some_buft, alloc_buffer);
    REFUSED("buffer type", some_buft, get_alignment);
    for (int i = 0; i < 5; ++i) {
        static const char * const lacks[] = { "event_free", "device", "buffer type", "get_alignment", "version" };
        reg = whole();
        if (i == 0) { some_dev.iface.event_new = some_event; }
        if (i == 1) { reg.iface.get_device = no_device; }
        if (i == 2) { some_dev.iface.get_buffer_type = no_buft; }
        if (i == 3) { // of page-locked memory
            some_dev.iface.get_buffer_type = mine_dev_buft, some_dev.iface.get_host_buffer_type = some_dev_buft;
            some_buft.iface.get_alignment = NULL;
        }
        if (i == 4) { reg.api_version = 0; }
        check_named(gcuda_backend_register(&reg) == GCUDA_STATUS_INVALID_ARGUMENT, "", lacks[i]);
    }
    CHECK_EQ_I(gcuda_backend_reg_count(), n_regs);
    reg = whole();
    CHECK_EQ_I(gcuda_backend_reg_dev_count(&reg), 1);
    some_dev.iface.supports_op = NULL; // of a device that a registry finds later
    check_named(gcuda_backend_reg_dev_get(&reg, 0) == NULL, "device", "supports_op");
}

TEST(an_object_without_an_entry_is_refused) {
#define LATER(call, table, object, entry) \
    (void) whole();                       \
    object.entry = NULL;                  \
    check_named((call) == NULL, table, #entry)
    LATER(gcuda_backend_dev_init(&some_dev, NULL), "backend", some_backend, get_name);
    LATER(gcuda_backend_dev_init(&some_dev, NULL), "backend", some_backend, graph_compute);
    CHECK_EQ_I(n_freed, 2);
    (void) whole();
    some_backend.graph_plan_create = some_plan;
    check_named(gcuda_backend_dev_init(&some_dev, NULL) == NULL, "backend", "graph_plan_free");
    LATER(gcuda_backend_buft_alloc_buffer(&some_buft, 64), "buffer", some_buffer, get_base);
    LATER(gcuda_backend_buft_alloc_buffer(&some_buft, 64), "buffer", some_buffer, memset_tensor);
    LATER(gcuda_backend_buft_alloc_buffer(&some_buft, 64), "buffer", some_buffer, set_tensor);
    LATER(gcuda_backend_buft_alloc_buffer(&some_buft, 64), "buffer", some_buffer, get_tensor);
    LATER(gcuda_backend_buft_alloc_buffer(&some_buft, 64), "buffer", some_buffer, clear);
    LATER(gcuda_backend_dev_buffer_type(&some_dev), "buffer type", some_buft.iface, get_alignment);
    (void) whole();
    some_dev.iface.init_backend = no_backend;
    check_named(gcuda_backend_dev_init(&some_dev, NULL) == NULL, "Mine0", "backend");
    (void) whole();
    some_buft.iface.alloc_buffer = no_buffer;
    check_named(gcuda_backend_buft_alloc_buffer(&some_buft, 64) == NULL, "Some", "buffer");
    (void) whole();
    gcuda_backend_t backend = gcuda_backend_dev_init(&some_dev, NULL);
    gcuda_backend_buffer_t buffer = gcuda_backend_alloc_buffer(backend, 64);
    CHECK_MSG(backend != NULL && buffer != NULL, "%s", gcuda_last_error());
    gcuda_backend_buffer_free(buffer);
    gcuda_backend_free(backend);
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
