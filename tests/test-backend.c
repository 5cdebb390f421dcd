// A third-party backend on the public vtables alone: buffers with a limit, memory that claims not to be host memory, a
// computation that can be told to err. Tests of the library with it: registry, buffers in several parts, copies, graph
// copies, comparison node by node.
#include "test-ops.h"

// =====================================================================================================================
// >>toy   the backend
// =====================================================================================================================
#define TOY_MAX_BUFFER 4096

static struct {
    bool lies;          // adds 1 to the first element of the node called "lie"
    bool init_fails;    // init_tensor refuses
    bool computes;      // while it does, its memory passes for the host's
    int alloc_fails_at; // the n-th buffer from now on fails; 0: none
    long n_buffers, n_sets, n_gets, n_computed;
} toy;

static struct gcuda_backend_reg toy_reg;
static struct gcuda_backend_device toy_dev;
static struct gcuda_backend_buffer_type toy_buft;

static gcuda_status toy_error(gcuda_status st, const char * text) { return gcuda_set_last_error(st, text); }

static void toy_buffer_free(gcuda_backend_buffer_t b) {
    free(b->context);
    toy.n_buffers--;
}
static void * toy_buffer_base(gcuda_backend_buffer_t b) {
    return (char *) b->context + (64 - (uintptr_t) b->context % 64) % 64;
}
static gcuda_status toy_init_tensor(gcuda_backend_buffer_t b, struct gcuda_tensor * t) {
    (void) b;
    t->extra = toy.init_fails ? NULL : &toy;
    return toy.init_fails ? toy_error(GCUDA_STATUS_FAILED, "toy: no such tensor") : GCUDA_STATUS_SUCCESS;
}
static gcuda_status toy_memset(
    gcuda_backend_buffer_t b, struct gcuda_tensor * t, uint8_t value, size_t offset, size_t size) {
    (void) b;
    memset((char *) t->data + offset, value, size);
    return GCUDA_STATUS_SUCCESS;
}
static gcuda_status toy_set(
    gcuda_backend_buffer_t b, struct gcuda_tensor * t, const void * data, size_t offset, size_t size) {
    (void) b;
    toy.n_sets++;
    memcpy((char *) t->data + offset, data, size);
    return GCUDA_STATUS_SUCCESS;
}
static gcuda_status toy_get(
    gcuda_backend_buffer_t b, const struct gcuda_tensor * t, void * data, size_t offset, size_t size) {
    (void) b;
    toy.n_gets++;
    memcpy(data, (const char *) t->data + offset, size);
    return GCUDA_STATUS_SUCCESS;
}
static gcuda_status toy_clear(gcuda_backend_buffer_t b, uint8_t value) {
    memset(toy_buffer_base(b), value, b->size);
    return GCUDA_STATUS_SUCCESS;
}

static const char * toy_buft_name(gcuda_backend_buffer_type_t t) {
    (void) t;
    return "Toy";
}
static gcuda_status toy_buft_alloc(gcuda_backend_buffer_type_t t, size_t size, gcuda_backend_buffer_t * out) {
    struct gcuda_backend_buffer_i i;
    memset(&i, 0, sizeof i);
    i.free_buffer = toy_buffer_free, i.get_base = toy_buffer_base, i.init_tensor = toy_init_tensor,
    i.memset_tensor = toy_memset;
    i.set_tensor = toy_set, i.get_tensor = toy_get, i.clear = toy_clear;
    if (toy.alloc_fails_at > 0 && --toy.alloc_fails_at == 0) {
        return toy_error(GCUDA_STATUS_ALLOC_FAILED, "toy: no more toys");
    }
    void * memory = size > TOY_MAX_BUFFER ? NULL : malloc(size + 64);
    if (memory == NULL) { return toy_error(GCUDA_STATUS_ALLOC_FAILED, "toy: too large"); }
    *out = gcuda_backend_buffer_init(t, &i, memory, size);
    if (*out == NULL) {
        free(memory);
        return GCUDA_STATUS_ALLOC_FAILED;
    }
    toy.n_buffers++;
    return GCUDA_STATUS_SUCCESS;
}
static size_t toy_buft_alignment(gcuda_backend_buffer_type_t t) {
    (void) t;
    return 64;
}
static size_t toy_buft_max(gcuda_backend_buffer_type_t t) {
    (void) t;
    return TOY_MAX_BUFFER;
}

static bool toy_buft_is_host(gcuda_backend_buffer_type_t t) {
    (void) t;
    return toy.computes;
}

static const char * toy_dev_name(gcuda_backend_dev_t d) {
    (void) d;
    return "Toy0";
}
static gcuda_status toy_dev_memory(gcuda_backend_dev_t d, size_t * n_free, size_t * n_total) {
    (void) d;
    *n_free = 1000, *n_total = 2000;
    return GCUDA_STATUS_SUCCESS;
}
static enum gcuda_backend_dev_type toy_dev_type(gcuda_backend_dev_t d) {
    (void) d;
    return GCUDA_BACKEND_DEVICE_TYPE_ACCEL;
}
static gcuda_status toy_dev_props(gcuda_backend_dev_t d, struct gcuda_backend_dev_props * p) {
    (void) d;
    p->name = "Toy0", p->description = "a toy", p->memory_free = 1000, p->memory_total = 2000,
    p->type = GCUDA_BACKEND_DEVICE_TYPE_ACCEL;
    return GCUDA_STATUS_SUCCESS;
}
static gcuda_backend_buffer_type_t toy_dev_buft(gcuda_backend_dev_t d) {
    (void) d;
    return &toy_buft;
}
static gcuda_status toy_dev_supports(gcuda_backend_dev_t d, const struct gcuda_tensor * op) {
    (void) d;
    return op->op == GCUDA_OP_SUM ? toy_error(GCUDA_STATUS_UNSUPPORTED, "toy: cannot sum") : GCUDA_STATUS_SUCCESS;
}
static bool toy_dev_supports_buft(gcuda_backend_dev_t d, gcuda_backend_buffer_type_t t) {
    (void) d;
    return t == &toy_buft;
}

static const char * toy_name(gcuda_backend_t b) {
    (void) b;
    return "Toy";
}
static void toy_free(gcuda_backend_t b) { free(b); }
static gcuda_status toy_compute(gcuda_backend_t b, struct gcuda_cgraph * g) { // on the CPU, node by node
    (void) b;
    gcuda_status st = GCUDA_STATUS_SUCCESS;
    toy.computes = true;
    for (int i = 0; i < gcuda_graph_n_nodes(g) && st == GCUDA_STATUS_SUCCESS; ++i) {
        struct gcuda_cgraph one = gcuda_graph_view(g, i, i + 1);
        struct gcuda_tensor * t = gcuda_graph_node(g, i);
        struct gcuda_cplan plan = gcuda_graph_plan(&one, 1, NULL);
        plan.work_data = (uint8_t *) malloc(plan.work_size + 1);
        st = plan.work_data ? gcuda_graph_compute(&one, &plan) : GCUDA_STATUS_ALLOC_FAILED;
        free(plan.work_data);
        if (toy.lies && strcmp(t->name, "lie") == 0) { *(float *) t->data += 1.0f; }
        toy.n_computed++;
    }
    toy.computes = false;
    return st;
}
static gcuda_status toy_dev_init(gcuda_backend_dev_t d, const char * params, gcuda_backend_t * out) {
    if (params != NULL && strcmp(params, "fail") == 0) { return toy_error(GCUDA_STATUS_FAILED, "toy: told to fail"); }
    gcuda_backend_t b = (gcuda_backend_t) calloc(1, sizeof *b);
    if (b == NULL) { return GCUDA_STATUS_ALLOC_FAILED; }
    b->guid[0] = 42, b->device = d;
    b->iface.get_name = toy_name, b->iface.free = toy_free, b->iface.graph_compute = toy_compute;
    *out = b;
    return GCUDA_STATUS_SUCCESS;
}

static const char * toy_reg_name(gcuda_backend_reg_t r) {
    (void) r;
    return "Toys";
}
static size_t toy_reg_count(gcuda_backend_reg_t r) {
    (void) r;
    return 1;
}
static gcuda_backend_dev_t toy_reg_device(gcuda_backend_reg_t r, size_t i) {
    (void) r, (void) i;
    return &toy_dev;
}

static gcuda_backend_t toy_backend(void) { // registers it when it is not there
    memset(&toy, 0, sizeof toy);
    toy_reg.api_version = GCUDA_BACKEND_API_VERSION;
    toy_reg.iface.get_name = toy_reg_name, toy_reg.iface.get_device_count = toy_reg_count,
    toy_reg.iface.get_device = toy_reg_device;
    toy_dev.reg = &toy_reg;
    toy_dev.iface.get_name = toy_dev.iface.get_description = toy_dev_name;
    toy_dev.iface.get_memory = toy_dev_memory, toy_dev.iface.get_type = toy_dev_type,
    toy_dev.iface.get_props = toy_dev_props;
    toy_dev.iface.init_backend = toy_dev_init, toy_dev.iface.get_buffer_type = toy_dev_buft;
    toy_dev.iface.supports_op = toy_dev_supports, toy_dev.iface.supports_buft = toy_dev_supports_buft;
    toy_buft.device = &toy_dev;
    toy_buft.iface.get_name = toy_buft_name, toy_buft.iface.alloc_buffer = toy_buft_alloc,
    toy_buft.iface.get_alignment = toy_buft_alignment;
    toy_buft.iface.get_max_size = toy_buft_max, toy_buft.iface.is_host = toy_buft_is_host;
    if (gcuda_backend_reg_by_name("Toys") == NULL) { CHECK_OK(gcuda_backend_register(&toy_reg)); }
    return gcuda_backend_init_by_name("Toy0", NULL);
}

// =====================================================================================================================
// >>tests
// =====================================================================================================================
TEST(registry) {
    gcuda_shutdown();
    const size_t n = gcuda_backend_dev_count(), n_reg = gcuda_backend_reg_count();
    gcuda_backend_t b = toy_backend();
    REQUIRE(b != NULL);
    CHECK(gcuda_backend_dev_count() == n + 1 && gcuda_backend_reg_count() == n_reg + 1);
    CHECK(gcuda_backend_dev_by_name("Toy0") == &toy_dev &&
          gcuda_backend_dev_by_type(GCUDA_BACKEND_DEVICE_TYPE_ACCEL) == &toy_dev);
    CHECK(gcuda_backend_dev_by_name("nobody") == NULL && gcuda_backend_init_by_name("nobody", NULL) == NULL);
    CHECK_HAS(gcuda_last_error(), "nobody");
    CHECK(gcuda_backend_init_by_name("Toy0", "fail") == NULL);
    CHECK_HAS(gcuda_last_error(), "told to fail");
    CHECK(gcuda_backend_reg_dev_get(&toy_reg, 1) == NULL && gcuda_backend_reg_get(999) == NULL &&
          gcuda_backend_dev_get(999) == NULL);
    struct gcuda_backend_dev_props props;
    CHECK_OK(gcuda_backend_dev_get_props(&toy_dev, &props));
    CHECK(props.memory_total == 2000 && gcuda_backend_dev_host_buffer_type(&toy_dev) == NULL);
    CHECK(gcuda_backend_event_new(&toy_dev) == NULL &&
          gcuda_backend_dev_buffer_from_host_ptr(&toy_dev, &toy, 1, 1) == NULL);
    CHECK(!gcuda_backend_is_cpu(b) && gcuda_backend_cpu_set_n_threads(b, 2) != GCUDA_STATUS_SUCCESS);
    struct gcuda_backend_reg old = toy_reg;
    old.api_version = GCUDA_BACKEND_API_VERSION + 1;
    CHECK(gcuda_backend_register(&old) != GCUDA_STATUS_SUCCESS && gcuda_backend_register(NULL) != GCUDA_STATUS_SUCCESS);
    gcuda_backend_free(b);
    gcuda_shutdown();
    CHECK(gcuda_backend_dev_by_name("Toy0") == NULL && gcuda_backend_dev_count() == n);
}

TEST(buffers_in_several_parts) {
    gcuda_backend_t b = toy_backend();
    struct gcuda_context * ctx = op_context();
    REQUIRE(b != NULL && ctx != NULL);
    struct gcuda_tensor * t[8];
    // three or so in 4096 bytes
    for (int i = 0; i < 8; ++i) { t[i] = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F32, 300 + 13 * i); }
    gcuda_backend_buffer_t buf = gcuda_backend_alloc_ctx_tensors(ctx, b);
    REQUIRE(buf != NULL);
    CHECK(gcuda_backend_buffer_is_multi_buffer(buf) && toy.n_buffers > 1 && gcuda_backend_buffer_get_base(buf) == NULL);
    CHECK_HAS(gcuda_last_error(), "in several places");
    struct gcuda_tensor * late = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F32, 8); // nothing can be placed in all of them
    struct gcuda_tallocr talloc = gcuda_tallocr_new(buf);
    CHECK(gcuda_tallocr_alloc(&talloc, late) == GCUDA_STATUS_INVALID_ARGUMENT && late->buffer == NULL);
    CHECK(gcuda_backend_tensor_alloc(buf, late, (void *) (uintptr_t) 64) == GCUDA_STATUS_INVALID_ARGUMENT &&
          late->data == NULL);
    CHECK_OK(gcuda_backend_buffer_clear(buf, 7));
    for (int i = 0; i < 8; ++i) {
        char v[2000];
        CHECK((uintptr_t) t[i]->data % 64 == 0 && t[i]->extra == &toy);
        CHECK_OK(gcuda_backend_tensor_get(t[i], v, 0, tensor_bytes(t[i])));
        CHECK(v[0] == 7 && v[tensor_bytes(t[i]) - 1] == 7);
    }
    gcuda_backend_buffer_free(buf);
    CHECK_EQ_I(toy.n_buffers, 0);
    gcuda_backend_buffer_t parts[2] = { gcuda_backend_alloc_buffer(b, 64), NULL };
    CHECK(parts[0] != NULL && gcuda_backend_multi_buffer_alloc_buffer(parts, 2) == NULL && toy.n_buffers == 0);
    CHECK_HAS(gcuda_last_error(), "one of the 2 is NULL");
    gcuda_reset(ctx);
    for (int fail = 1; fail <= 3; ++fail) { // whichever part fails, nothing is left
        for (int i = 0; i < 8; ++i) { t[i] = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F32, 900); }
        toy.alloc_fails_at = fail;
        CHECK(gcuda_backend_alloc_ctx_tensors(ctx, b) == NULL);
        CHECK_HAS(gcuda_last_error(), "no more toys");
        CHECK_EQ_I(toy.n_buffers, 0);
        for (int i = 0; i < 8; ++i) { CHECK(t[i]->data == NULL && t[i]->buffer == NULL); }
        gcuda_reset(ctx);
    }
    struct gcuda_tensor *big = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F32, 1100),
                        *small = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F32, 8);
    CHECK(gcuda_backend_alloc_ctx_tensors(ctx, b) == NULL && big->data == NULL && small->data == NULL &&
          toy.n_buffers == 0);
    gcuda_reset(ctx);
    small = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F32, 8);
    toy.init_fails = true;
    CHECK(gcuda_backend_alloc_ctx_tensors(ctx, b) == NULL);
    CHECK_HAS(gcuda_last_error(), "no such tensor");
    CHECK(small->data == NULL && small->buffer == NULL && toy.n_buffers == 0);
    gcuda_free(ctx);
    gcuda_backend_free(b);
}

TEST(copies_between_backends) { // staged through the host where there is no direct way
    gcuda_backend_t b = toy_backend();
    struct gcuda_context *cpu_ctx = op_context(), *toy_ctx = op_context();
    REQUIRE(b && cpu_ctx && toy_ctx && op_backends_ready());
    struct gcuda_tensor *a = gcuda_new_tensor_2d(cpu_ctx, GCUDA_TYPE_F32, 8, 4),
                        *c = gcuda_new_tensor_2d(cpu_ctx, GCUDA_TYPE_F32, 8, 4);
    struct gcuda_tensor *x = gcuda_new_tensor_2d(toy_ctx, GCUDA_TYPE_F32, 8, 4),
                        *y = gcuda_new_tensor_2d(toy_ctx, GCUDA_TYPE_F32, 8, 4);
    struct gcuda_tensor * other = gcuda_new_tensor_2d(toy_ctx, GCUDA_TYPE_F32, 4, 8);
    gcuda_backend_buffer_t cpu_buf = gcuda_backend_alloc_ctx_tensors(cpu_ctx, op_backends[0]),
                           toy_buf = gcuda_backend_alloc_ctx_tensors(toy_ctx, b);
    REQUIRE(cpu_buf && toy_buf && other);
    float v[32], w[32];
    for (int i = 0; i < 32; ++i) { v[i] = (float) i; }
    CHECK_OK(gcuda_backend_tensor_set(a, v, 0, sizeof v));
    CHECK_OK(gcuda_backend_tensor_copy(a, x)); // host to toy
    CHECK_OK(gcuda_backend_tensor_copy(x, y)); // toy to toy, which has no cpy_tensor
    CHECK_OK(gcuda_backend_tensor_copy_async(b, op_backends[0], y, c));
    CHECK_OK(gcuda_backend_tensor_get_async(op_backends[0], c, w, 0, sizeof w));
    CHECK_OK(gcuda_backend_synchronize(op_backends[0]));
    CHECK(memcmp(v, w, sizeof v) == 0);
    CHECK(gcuda_backend_tensor_copy(a, other) != GCUDA_STATUS_SUCCESS);
    CHECK_OK(gcuda_backend_tensor_copy(a, a));
    gcuda_backend_buffer_free(toy_buf), gcuda_backend_buffer_free(cpu_buf);
    gcuda_free(cpu_ctx), gcuda_free(toy_ctx);
    gcuda_backend_free(b);
}

// =====================================================================================================================
// >>graphs on two backends
// =====================================================================================================================
struct pair {
    struct gcuda_context * ctx;
    gcuda_backend_buffer_t buf;
    struct gcuda_cgraph * g;
    struct gcuda_tensor * y;
};

enum { MAX_ROWS = 80 }; // two tensors of as many do not fit into one of the toy's buffers

static bool make_rows(struct pair * p, int n_rows) { // a -> scale -> view -> "lie" -> result
    memset(p, 0, sizeof *p);
    p->ctx = op_context();
    struct gcuda_tensor * a = gcuda_set_name(gcuda_new_tensor_2d(p->ctx, GCUDA_TYPE_F32, 8, n_rows), "a");
    struct gcuda_tensor *s = gcuda_scale(p->ctx, a, 2.0f), *v = gcuda_view_2d(p->ctx, s, 8, 2, 64, 32);
    struct gcuda_tensor * lie = gcuda_set_name(gcuda_rms_norm(p->ctx, v, 1e-5f), "lie");
    p->y = gcuda_set_name(gcuda_add(p->ctx, lie, v), "y");
    if (p->y == NULL) { return false; }
    gcuda_set_output(p->y);
    p->g = gcuda_new_graph_custom(p->ctx, 16, false);
    p->buf = op_backends_ready() ? gcuda_backend_alloc_ctx_tensors(p->ctx, op_backends[0]) : NULL;
    float values[8 * MAX_ROWS];
    for (int i = 0; i < 8 * MAX_ROWS; ++i) { values[i] = (float) (i % 7) - 3.0f; }
    return p->g && p->buf && CHECK_OK(gcuda_build_forward_expand(p->g, p->y)) &&
           CHECK_OK(gcuda_backend_tensor_set(a, values, 0, gcuda_nbytes(a)));
}
static bool make_pair(struct pair * p) { return make_rows(p, 4); }
static void free_pair(struct pair * p) {
    gcuda_backend_buffer_free(p->buf);
    gcuda_free(p->ctx);
}

TEST(graph_copy) {
    gcuda_backend_t b = toy_backend();
    struct pair p;
    REQUIRE(b && make_pair(&p));
    struct gcuda_backend_graph_copied copy = gcuda_backend_graph_copy(b, p.g);
    REQUIRE(copy.graph != NULL);
    CHECK_EQ_I(gcuda_graph_n_nodes(copy.graph), gcuda_graph_n_nodes(p.g));
    for (int i = 0; i < gcuda_graph_n_nodes(p.g); ++i) {
        const struct gcuda_tensor *x = gcuda_graph_node(p.g, i), *y = gcuda_graph_node(copy.graph, i);
        CHECK(x != y && x->op == y->op && x->flags == y->flags && x->type == y->type && strcmp(x->name, y->name) == 0);
        CHECK(memcmp(x->op_params, y->op_params, sizeof x->op_params) == 0 && gcuda_are_same_shape(x, y) &&
              gcuda_are_same_stride(x, y));
        CHECK((x->view_src == NULL) == (y->view_src == NULL) && x->view_offs == y->view_offs && y->extra == &toy);
    }
    CHECK_OK(gcuda_backend_graph_compute(op_backends[0], p.g));
    CHECK_OK(gcuda_backend_graph_compute(b, copy.graph));
    struct gcuda_tensor * y = gcuda_graph_node(copy.graph, -1);
    float v[16], w[16];
    CHECK_OK(gcuda_backend_tensor_get(p.y, v, 0, sizeof v));
    CHECK_OK(gcuda_backend_tensor_get(y, w, 0, sizeof w));
    CHECK(memcmp(v, w, sizeof v) == 0);
    gcuda_backend_graph_copy_free(copy);
    CHECK_EQ_I(toy.n_buffers, 0);
    toy.alloc_fails_at = 1;
    copy = gcuda_backend_graph_copy(b, p.g);
    CHECK(copy.graph == NULL && copy.buffer == NULL && copy.ctx_allocated == NULL && toy.n_buffers == 0);
    free_pair(&p);
    gcuda_backend_free(b);
}

struct seen {
    int n, n_different, last;
    bool stop_early;
};
static bool compare_nodes(int i, struct gcuda_tensor * t1, struct gcuda_tensor * t2, void * user) {
    struct seen * s = (struct seen *) user;
    char *x = tensor_download(t1), *y = tensor_download(t2);
    s->n++;
    s->last = i;
    if (memcmp(x, y, tensor_bytes(t1)) != 0) { s->n_different++; }
    free(x), free(y);
    return !s->stop_early;
}

TEST(comparison) { // finds the node that differs; view operations are not compared
    gcuda_backend_t b = toy_backend();
    struct pair p;
    REQUIRE(b && make_pair(&p));
    struct seen s = { 0, 0, -1, false };
    CHECK_OK(gcuda_backend_compare_graph_backend(op_backends[0], b, p.g, compare_nodes, &s, NULL, 0));
    CHECK(s.n == 3 && s.n_different == 0);
    memset(&s, 0, sizeof s);
    toy.lies = true;
    CHECK_OK(gcuda_backend_compare_graph_backend(op_backends[0], b, p.g, compare_nodes, &s, NULL, 0));
    CHECK(s.n == 3 && s.n_different == 2); // the lie and what comes of it
    memset(&s, 0, sizeof s);
    s.stop_early = true;
    CHECK_OK(gcuda_backend_compare_graph_backend(op_backends[0], b, p.g, compare_nodes, &s, NULL, 0));
    CHECK_EQ_I(s.n, 1);
    memset(&s, 0, sizeof s);
    CHECK_OK(gcuda_backend_compare_graph_backend(op_backends[0], b, p.g, compare_nodes, &s, &p.y, 1));
    CHECK(s.n == 1 && s.n_different == 1 && s.last == gcuda_graph_n_nodes(p.g) - 1);
    toy.alloc_fails_at = 1;
    CHECK(gcuda_backend_compare_graph_backend(op_backends[0], b, p.g, compare_nodes, &s, NULL, 0) ==
          GCUDA_STATUS_ALLOC_FAILED);
    CHECK_EQ_I(toy.n_buffers, 0);
    memset(&s, 0, sizeof s);
    struct gcuda_tensor * nodes[2] = { p.y, p.y->src[0] };
    while (nodes[1]->src[0] != NULL) { nodes[1] = nodes[1]->src[0]; } // a leaf
    CHECK(gcuda_backend_compare_graph_backend(op_backends[0], b, p.g, compare_nodes, &s, nodes, 2) ==
          GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_HAS(gcuda_last_error(), "no node of the graph");
    CHECK(gcuda_backend_compare_graph_backend(op_backends[0], NULL, p.g, compare_nodes, &s, NULL, 0) ==
          GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK(s.n == 0 && toy.n_buffers == 0);
    free_pair(&p);
    gcuda_backend_free(b);
}

static gcuda_status copy_once(gcuda_backend_t b, struct gcuda_cgraph * g) {
    struct gcuda_backend_graph_copied copy = gcuda_backend_graph_copy(b, g);
    if (copy.graph == NULL) {
        CHECK(copy.buffer == NULL && copy.ctx_allocated == NULL && copy.ctx_unallocated == NULL);
        return GCUDA_STATUS_ALLOC_FAILED;
    }
    CHECK_EQ_I(gcuda_graph_n_nodes(copy.graph), gcuda_graph_n_nodes(g));
    gcuda_backend_graph_copy_free(copy);
    return GCUDA_STATUS_SUCCESS;
}
static gcuda_status compare_once(gcuda_backend_t b, struct gcuda_cgraph * g) {
    struct seen s = { 0, 0, -1, false };
    const gcuda_status st = gcuda_backend_compare_graph_backend(op_backends[0], b, g, compare_nodes, &s, NULL, 0);
    CHECK(st != GCUDA_STATUS_SUCCESS || (s.n == 3 && s.n_different == 0));
    return st;
}

// Each allocation fails once, of the library and then of the toy's buffers: a status, no leak, and then it works.
static void fail_all(gcuda_status (*once)(gcuda_backend_t b, struct gcuda_cgraph * g), int n_rows, int least) {
    gcuda_backend_t b = toy_backend();
    struct pair p;
    int n_failed = 0;
    REQUIRE(b && make_rows(&p, n_rows));
    CHECK_OK(once(b, p.g)); // what backends keep is allocated
    bool has_fired = true;
    for (int k = 1; has_fired && k < 500 && test_all.n_bad_checks == 0; ++k) {
        struct fault f;
        fault_begin(&f, k);
        const gcuda_status st = once(b, p.g);
        has_fired = f.fired;
        CHECK_MSG((st == GCUDA_STATUS_SUCCESS) == !f.fired, "allocation %d: status %d", k, (int) st);
        CHECK_EQ_I(toy.n_buffers, 0);
        fault_end(&f);
        CHECK_MSG(f.live == 0, "allocation %d failed and left %ld alive", k, f.live);
        CHECK_OK(once(b, p.g));
        n_failed += has_fired;
    }
    CHECK_MSG(!has_fired && n_failed >= least, "%d allocations", n_failed);
    has_fired = true;
    for (int k = 1; has_fired && k < 20; ++k) {
        toy.alloc_fails_at = k;
        const gcuda_status st = once(b, p.g);
        has_fired = toy.alloc_fails_at == 0;
        toy.alloc_fails_at = 0;
        CHECK(st == (has_fired ? GCUDA_STATUS_ALLOC_FAILED : GCUDA_STATUS_SUCCESS) && toy.n_buffers == 0);
        CHECK(has_fired || k == (n_rows == MAX_ROWS ? 3 : 2)); // two parts or one
    }
    free_pair(&p);
    gcuda_backend_free(b);
}

TEST(failing_allocations_of_graph_copy) {
    fail_all(copy_once, 4, 5);
    fail_all(copy_once, MAX_ROWS, 5);
}
TEST(failing_allocations_of_comparison) {
    fail_all(compare_once, 4, 5);
    fail_all(compare_once, MAX_ROWS, 5);
}

TEST(plans) { // create once, compute often; absent functions are errors
    gcuda_backend_t b = toy_backend();
    struct pair p;
    REQUIRE(b && make_pair(&p));
    CHECK(gcuda_backend_graph_plan_create(b, p.g) == NULL);
    gcuda_backend_graph_plan_t plan = gcuda_backend_graph_plan_create(op_backends[1], p.g);
    REQUIRE(plan != NULL);
    float v[16], w[16];
    CHECK_OK(gcuda_backend_graph_plan_compute(op_backends[1], plan));
    CHECK_OK(gcuda_backend_tensor_get(p.y, v, 0, sizeof v));
    CHECK_OK(gcuda_backend_tensor_memset(p.y, 0, 0, sizeof v));
    CHECK_OK(gcuda_backend_graph_plan_compute(op_backends[1], plan));
    CHECK_OK(gcuda_backend_tensor_get(p.y, w, 0, sizeof w));
    CHECK(memcmp(v, w, sizeof v) == 0);
    CHECK(gcuda_backend_graph_plan_update(b, plan, p.g) == GCUDA_STATUS_INVALID_ARGUMENT);
    struct gcuda_cgraph none = gcuda_graph_view(p.g, 0, 0);
    CHECK_OK(gcuda_backend_graph_plan_update(op_backends[1], plan, &none)); // from now on another graph
    CHECK_OK(gcuda_backend_tensor_memset(p.y, 0, 0, sizeof v));
    CHECK_OK(gcuda_backend_graph_plan_compute(op_backends[1], plan));
    CHECK_OK(gcuda_backend_tensor_get(p.y, w, 0, sizeof w));
    CHECK(w[0] == 0.0f && w[15] == 0.0f);
    CHECK_OK(gcuda_backend_graph_plan_update(op_backends[1], plan, p.g));
    CHECK_OK(gcuda_backend_graph_plan_update(op_backends[1], plan, NULL)); // the same again
    CHECK_OK(gcuda_backend_graph_plan_compute(op_backends[1], plan));
    CHECK_OK(gcuda_backend_tensor_get(p.y, w, 0, sizeof w));
    CHECK(memcmp(v, w, sizeof v) == 0);
    gcuda_backend_graph_plan_free(op_backends[1], plan);
    free_pair(&p);
    gcuda_backend_free(b);
}

TEST(memory_of_another_backend_is_refused) {
    gcuda_backend_t b = toy_backend();
    struct gcuda_context * ctx = op_context();
    REQUIRE(b && ctx && op_backends_ready());
    struct gcuda_tensor * y = gcuda_set_name(gcuda_sqr(ctx, gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F32, 8)), "elsewhere");
    struct gcuda_cgraph * g = gcuda_new_graph_custom(ctx, 16, false);
    gcuda_backend_buffer_t buf = gcuda_backend_alloc_ctx_tensors(ctx, b);
    REQUIRE(y && g && buf && CHECK_OK(gcuda_build_forward_expand(g, y)));
    CHECK(!gcuda_backend_supports_buft(op_backends[0], &toy_buft));
    CHECK(gcuda_backend_graph_compute(op_backends[0], g) != GCUDA_STATUS_SUCCESS); // not host memory
    CHECK_HAS(gcuda_last_error(), "elsewhere");
    gcuda_backend_buffer_free(buf);
    gcuda_free(ctx);
    gcuda_backend_free(b);
}

TEST(rows_that_lie_apart) { // by a backend without copies of rows; and what cannot be
    gcuda_backend_t b = toy_backend();
    struct gcuda_context * ctx = op_context();
    struct gcuda_tensor * x = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_I8, 100);
    gcuda_backend_buffer_t buffer = gcuda_backend_alloc_ctx_tensors(ctx, b);
    REQUIRE(x != NULL && buffer != NULL);
    char in[30], out[30], all[100];
    for (int i = 0; i < 30; ++i) { in[i] = (char) (i + 1); }
    memset(out, 0, sizeof out);
    CHECK_OK(gcuda_backend_tensor_memset(x, 0, 0, 100));
    CHECK_OK(gcuda_backend_tensor_set_2d(x, in, 3, 4, 3, 20, 10));
    CHECK_OK(gcuda_backend_tensor_get(x, all, 0, 100));
    for (int i = 0; i < 100; ++i) {
        const int row = (i - 3) / 20, at = (i - 3) % 20;
        CHECK(all[i] == (i >= 3 && row < 3 && at < 4 ? in[10 * row + at] : 0));
    }
    CHECK_OK(gcuda_backend_tensor_get_2d(x, out, 3, 4, 3, 20, 6));
    for (int i = 0; i < 18; ++i) { CHECK(out[i] == (i % 6 < 4 ? in[10 * (i / 6) + i % 6] : 0)); }
    CHECK_OK(gcuda_backend_tensor_set_2d(x, in, 60, 4, 3, 18, 10)); // up to the last byte
    CHECK(gcuda_backend_tensor_set_2d(x, in, 61, 4, 3, 18, 10) == GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK(gcuda_backend_tensor_get_2d(x, out, 61, 4, 3, 18, 10) == GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK(gcuda_backend_tensor_set_2d(x, in, 0, 4, 3, 3, 10) == GCUDA_STATUS_INVALID_ARGUMENT); // rows overlap
    CHECK(gcuda_backend_tensor_get_2d(x, out, 0, 4, 3, 10, 3) == GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK(gcuda_backend_tensor_set_2d(x, in, 0, 4, SIZE_MAX / 2, 4, 4) == GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK(gcuda_backend_tensor_set_2d(x, in, 4, 4, 2, SIZE_MAX - 3, 4) == GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK(gcuda_backend_tensor_set_2d(x, NULL, 0, 4, 3, 20, 10) == GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK(gcuda_backend_tensor_set_2d(NULL, in, 0, 4, 3, 20, 10) == GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_OK(gcuda_backend_tensor_set_2d(x, NULL, 0, 4, 0, 0, 0)); // nothing
    CHECK_OK(gcuda_backend_tensor_set_2d(x, NULL, 0, 0, 9, 0, 0));
    CHECK_OK(gcuda_backend_tensor_set_2d(x, in, 96, 4, 1, 0, 0)); // one row: no stride
    gcuda_backend_buffer_free(buffer);
    gcuda_free(ctx);
    gcuda_backend_free(b);
}
