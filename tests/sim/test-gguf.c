// GGUF files loaded to simulated devices: through uploaders, from a map, memory, a FILE; over a scheduler's devices;
// into row-split buffers. Stopped at every call. Each CUDA call fails once.
#include "sim-test.h"

// =====================================================================================================================
// >>file   n_blocks blocks with a weight and a bias each, between an embedding and an output
// =====================================================================================================================
struct model {
    uint8_t *bytes, *base; // 32-byte aligned
    size_t size;
    FILE * file;
};

static uint32_t value_of(const char * name, size_t i) {
    uint32_t h = 2166136261u;
    for (; *name; ++name) { h = (h ^ (uint8_t) *name) * 16777619u; }
    return h + (uint32_t) i * 2654435761u;
}

static void add_tensor(
    struct gcuda_gguf_context * g, struct gcuda_context * ctx, const char * name, int64_t ne0, int64_t ne1) {
    struct gcuda_tensor * t = gcuda_set_name(gcuda_new_tensor_2d(ctx, GCUDA_TYPE_F32, ne0, ne1), name);
    REQUIRE(t != NULL);
    for (size_t i = 0; i < gcuda_nbytes(t) / 4; ++i) {
        const uint32_t v = value_of(name, i) >> 9 | 0x3f800000u; // 1 to 2
        memcpy((char *) t->data + 4 * i, &v, 4);
    }
    CHECK_OK(gcuda_gguf_add_tensor(g, t));
}

static bool holds(const struct gcuda_tensor * t) {
    const size_t n = gcuda_nbytes(t);
    uint32_t * got = (uint32_t *) malloc(n + 1);
    bool is_right = gcuda_backend_tensor_get(t, got, 0, n) == GCUDA_STATUS_SUCCESS;
    for (size_t i = 0; i < n / 4 && is_right; ++i) { is_right = got[i] == (value_of(t->name, i) >> 9 | 0x3f800000u); }
    free(got);
    return is_right;
}

static struct model model_new(int n_blocks, int64_t n_large) {
    const struct gcuda_init_params init = { 0, NULL, false };
    struct gcuda_context * ctx = gcuda_init(init);
    struct gcuda_gguf_context * g = gcuda_gguf_init_empty();
    struct model m;
    char name[32];
    add_tensor(g, ctx, "token_embd", n_large, 2);
    for (int i = 0; i < n_blocks; ++i) {
        snprintf(name, sizeof name, "blk.%d.weight", i);
        add_tensor(g, ctx, name, 256, 64);
        snprintf(name, sizeof name, "blk.%d.bias", i);
        add_tensor(g, ctx, name, 64, 1);
    }
    add_tensor(g, ctx, "output", 1024, 3);
    m.size = (size_t) gcuda_gguf_get_write_size(g);
    m.base = (uint8_t *) malloc(m.size + 32);
    m.bytes = m.base + (32 - (uintptr_t) m.base % 32) % 32;
    m.file = tmpfile();
    CHECK_OK(gcuda_gguf_write_to_buffer(g, m.bytes, m.size, false));
    CHECK(m.file != NULL && fwrite(m.bytes, 1, m.size, m.file) == m.size);
    gcuda_gguf_free(g);
    gcuda_free(ctx);
    return m;
}
static void model_free(struct model * m) {
    free(m->base);
    fclose(m->file);
}

// From memory, or from the FILE.
static struct gcuda_gguf_context * model_open(const struct model * m, bool from_file, struct gcuda_context ** ctx) {
    struct gcuda_gguf_init_params p;
    memset(&p, 0, sizeof p);
    p.no_alloc = true;
    p.ctx = ctx;
    if (!from_file) { return gcuda_gguf_init_from_buffer(m->bytes, m->size, p); }
    rewind(m->file);
    return gcuda_gguf_init_from_file_ptr(m->file, p);
}

static bool all_hold(const struct gcuda_context * ctx) {
    bool is_right = true;
    for (struct gcuda_tensor * t = gcuda_get_first_tensor(ctx); t != NULL; t = gcuda_get_next_tensor(ctx, t)) {
        is_right = is_right && t->data != NULL && holds(t);
    }
    return is_right;
}
static bool none_placed(const struct gcuda_context * ctx) {
    bool is_none = true;
    for (struct gcuda_tensor * t = gcuda_get_first_tensor(ctx); t != NULL; t = gcuda_get_next_tensor(ctx, t)) {
        is_none = is_none && t->data == NULL && t->buffer == NULL;
    }
    return is_none;
}

struct steps {
    uint64_t last, total;
    long n_calls, stop_at;
    bool is_orderly;
};
static bool step(uint64_t done, uint64_t total, void * user_data) {
    struct steps * s = (struct steps *) user_data;
    s->is_orderly = s->is_orderly && done >= s->last && done <= total && (s->n_calls > 0 || done == 0);
    s->last = done;
    s->total = total;
    return ++s->n_calls != s->stop_at;
}

// =====================================================================================================================
// >>loading
// =====================================================================================================================
TEST(one_device) { // large: 80 MiB, pieces from memory and stages of a FILE
    for (int large = 0; large < 2; ++large) {
        struct model m = model_new(6, large ? 10 << 20 : 500);
        for (int from_file = 0; from_file < 2; ++from_file) {
            struct gcuda_context * ctx = NULL;
            struct steps steps = { 0, 0, 0, 0, true };
            struct gcuda_gguf_load_params p;
            gcuda_backend_t backend = gcuda_backend_cuda_init(0);
            gcuda_backend_buffer_t buffer = NULL;
            struct gcuda_gguf_context * g = model_open(&m, from_file, &ctx);
            REQUIRE(backend != NULL && g != NULL);
            memset(&p, 0, sizeof p);
            p.backend = backend;
            p.progress = step;
            p.progress_data = &steps;
            CHECK_OK(gcuda_gguf_load(g, ctx, &p, &buffer));
            gcuda_gguf_free(g); // nothing points into it
            CHECK(all_hold(ctx) && steps.is_orderly && steps.last == steps.total && steps.n_calls > 10);
            CHECK_EQ_I(gcuda_backend_buffer_get_usage(buffer), GCUDA_BACKEND_BUFFER_USAGE_WEIGHTS);
            gcuda_backend_buffer_free(buffer);
            gcuda_free(ctx);
            gcuda_backend_free(backend);
        }
        model_free(&m);
    }
    clean();
}

static int device_of(const struct gcuda_context * ctx, const char * name) {
    const struct gcuda_tensor * t = gcuda_get_tensor(ctx, name);
    for (int d = 0; d < 2; ++d) {
        if (t->buffer->buft == gcuda_backend_cuda_buffer_type(d)) { return d; }
    }
    return 2;
}

TEST(over_a_scheduler) {
    for (int k = 0; k < 4; ++k) { // from memory or the FILE; all on the devices, or little
        struct model m = model_new(12, 500);
        fresh(2, 64 * MB, 1);
        gcuda_backend_t backends[3] = { gcuda_backend_cuda_init(0), gcuda_backend_cuda_init(1),
            gcuda_backend_cpu_init() };
        gcuda_backend_sched_t sched = gcuda_backend_sched_new(backends, NULL, 3, 64, false, true);
        struct gcuda_context * ctx = NULL;
        struct gcuda_gguf_context * g = model_open(&m, k % 2 == 1, &ctx);
        struct gcuda_gguf_load_params p;
        gcuda_backend_buffer_t buffer = NULL;
        size_t left = 0, total = 0;
        int n_at[3] = { 0, 0, 0 };
        memset(&p, 0, sizeof p);
        p.sched = sched;
        CHECK_OK(gcuda_backend_dev_memory(gcuda_backend_get_device(backends[0]), &left, &total));
        p.reserve_bytes = k >= 2 ? left - 300 * 1024 : 0;
        REQUIRE(sched != NULL && g != NULL);
        CHECK_OK(gcuda_gguf_load(g, ctx, &p, &buffer));
        CHECK(all_hold(ctx));
        for (int i = 0; i < 12; ++i) {
            char weight[32], bias[32];
            snprintf(weight, sizeof weight, "blk.%d.weight", i);
            snprintf(bias, sizeof bias, "blk.%d.bias", i);
            CHECK_EQ_I(device_of(ctx, weight), device_of(ctx, bias));
            n_at[device_of(ctx, weight)]++;
        }
        CHECK_MSG(k < 2 ? n_at[2] == 0 && n_at[0] > 3 && n_at[1] > 3 : n_at[2] > 2 && n_at[0] > 2 && n_at[1] > 2,
            "case %d: %d and %d blocks on devices, %d on the CPU", k, n_at[0], n_at[1], n_at[2]);
        gcuda_backend_buffer_free(buffer);
        gcuda_free(ctx);
        gcuda_gguf_free(g);
        gcuda_backend_sched_free(sched);
        for (int i = 0; i < 3; ++i) { gcuda_backend_free(backends[i]); }
        model_free(&m);
        clean();
    }
}

static gcuda_backend_buffer_type_t split_weights(const struct gcuda_tensor * tensor, void * user_data) {
    return tensor->ne[1] >= 64 ? (gcuda_backend_buffer_type_t) user_data : NULL;
}

TEST(row_split_buffers) {
    struct model m = model_new(3, 500);
    for (int from_file = 0; from_file < 2; ++from_file) {
        fresh(2, 64 * MB, 1);
        gcuda_backend_t backend = gcuda_backend_cuda_init(0);
        struct gcuda_context * ctx = NULL;
        struct gcuda_gguf_context * g = model_open(&m, from_file, &ctx);
        struct gcuda_gguf_load_params p;
        gcuda_backend_buffer_t buffer = NULL;
        memset(&p, 0, sizeof p);
        p.backend = backend;
        p.choose = split_weights;
        p.choose_data = gcuda_backend_cuda_split_buffer_type(0, NULL, 0);
        REQUIRE(backend != NULL && g != NULL && p.choose_data != NULL);
        CHECK_OK(gcuda_gguf_load(g, ctx, &p, &buffer));
        CHECK(gcuda_get_tensor(ctx, "blk.1.weight")->buffer->buft == p.choose_data);
        CHECK(all_hold(ctx));
        gcuda_backend_buffer_free(buffer);
        gcuda_free(ctx);
        gcuda_gguf_free(g);
        gcuda_backend_free(backend);
    }
    model_free(&m);
    clean();
}

// =====================================================================================================================
// >>faults
// =====================================================================================================================
TEST(stopped_at_every_call) {
    struct model m = model_new(4, 500);
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    long k = 1;
    for (; k < 100; ++k) {
        struct gcuda_context * ctx = NULL;
        struct gcuda_gguf_context * g = model_open(&m, k % 2 == 0, &ctx);
        struct steps steps = { 0, 0, 0, k, true };
        struct gcuda_gguf_load_params p;
        gcuda_backend_buffer_t buffer = NULL;
        memset(&p, 0, sizeof p);
        p.backend = backend;
        p.progress = step;
        p.progress_data = &steps;
        const gcuda_status st = gcuda_gguf_load(g, ctx, &p, &buffer);
        CHECK(st == GCUDA_STATUS_SUCCESS ? all_hold(ctx)
                                         : st == GCUDA_STATUS_ABORTED && buffer == NULL && none_placed(ctx));
        gcuda_backend_buffer_free(buffer);
        gcuda_free(ctx);
        gcuda_gguf_free(g);
        if (st == GCUDA_STATUS_SUCCESS) { break; }
    }
    CHECK_EQ_I(k, 12); // at first and after each of 10 tensors
    gcuda_backend_free(backend);
    model_free(&m);
    clean();
}

TEST(every_cuda_call_fails_in_turn) {
    static const char * const apis[] = { "cudaMalloc", "cudaSetDevice", "cudaStreamCreateWithPriority", "cudaHostAlloc",
        "cudaEventCreateWithFlags", "cudaMemcpyAsync", "cudaEventRecord", "cudaEventSynchronize",
        "cudaStreamSynchronize" };
    struct model m = model_new(3, 500);
    long n_failed = 0;
    for (size_t a = 0; a < sizeof apis / sizeof apis[0]; ++a) {
        for (int k = 1; k <= (test_full() ? 30 : 8); ++k) {
            fresh(1, 64 * MB, 1);
            gcuda_backend_t backend = gcuda_backend_cuda_init(0);
            struct gcuda_context * ctx = NULL;
            struct gcuda_gguf_context * g = model_open(&m, k % 2 == 0, &ctx);
            struct gcuda_gguf_load_params p;
            gcuda_backend_buffer_t buffer = NULL;
            memset(&p, 0, sizeof p);
            p.backend = backend;
            sim_fail(apis[a], k, cudaErrorInvalidValue);
            const gcuda_status st = gcuda_gguf_load(g, ctx, &p, &buffer);
            sim_fail(apis[a], 0, cudaSuccess);
            n_failed += st != GCUDA_STATUS_SUCCESS;
            CHECK_MSG(st == GCUDA_STATUS_SUCCESS ? all_hold(ctx) : buffer == NULL && none_placed(ctx),
                "%s %d: status %d", apis[a], k, (int) st);
            if (st != GCUDA_STATUS_SUCCESS) { // it can be tried again
                CHECK_OK(gcuda_gguf_load(g, ctx, &p, &buffer));
                CHECK_MSG(all_hold(ctx), "%s %d: the second time", apis[a], k);
            }
            gcuda_backend_buffer_free(buffer);
            gcuda_free(ctx);
            gcuda_gguf_free(g);
            gcuda_backend_free(backend);
            CHECK_MSG(sim_leaks() == 0 && sim_violations() == 0, "%s %d: leaks or wrong use", apis[a], k);
        }
    }
    CHECK(n_failed > 10);
    model_free(&m);
    clean();
}
