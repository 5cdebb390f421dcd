// Fusion on the simulated device: every pattern fires, each of its conditions stops it, and the bits are those of the
// nodes one by one.
#define GCUDA_IMPLEMENTATION
#include "gcuda.h"

#include <math.h>

#include "sim-test.h"
#include "products.h"

// Graph of a case. Inputs are leafs, filled with numbers, or (I32) with consecutive indices below N_INDICES. `out` is
// compared; `before` comes before it.
enum { MAX_OUT = 4, N_INDICES = 65 };
struct build {
    struct gcuda_context * ctx;
    struct gcuda_tensor *out[MAX_OUT], *before;
    int n_out, variant;
};
typedef void (*builder)(struct build * b);

static struct gcuda_tensor * f32(struct build * b, int64_t ne0, int64_t ne1, int64_t ne2) {
    return gcuda_new_tensor_3d(b->ctx, GCUDA_TYPE_F32, ne0, ne1, ne2);
}
static void out(struct build * b, struct gcuda_tensor * t) { b->out[b->n_out++] = t; }

// Of codebooks, which need more than rows to be made: any bytes, and a scale before each block.
static void fill_codebook(struct gcuda_tensor * t, int salt) {
    const size_t n = gcuda_nbytes(t), of_block = gcuda_type_size(t->type);
    const gcuda_fp16_t scale = gcuda_fp32_to_fp16(0.0625f);
    char * blocks = (char *) malloc(n);
    for (size_t i = 0; i < n; ++i) { blocks[i] = (char) ((i * 7919 + (size_t) salt * 104729) % 1009 % 256); }
    for (size_t i = 0; i < n; i += of_block) { memcpy(blocks + i, &scale, sizeof scale); }
    CHECK_OK(gcuda_backend_tensor_set(t, blocks, 0, n));
    free(blocks);
}

static void fill_blocks(struct gcuda_tensor * t, int salt) {
    const int64_t n = gcuda_nelements(t);
    if (t->type == GCUDA_TYPE_IQ3_S) {
        fill_codebook(t, salt);
        return;
    }
    float * values = (float *) malloc((size_t) n * sizeof(float));
    void * blocks = malloc(gcuda_nbytes(t));
    for (int64_t i = 0; i < n; ++i) { values[i] = (float) ((i * 7919 + salt * 104729) % 1009) / 504.5f - 1.0f; }
    CHECK_OK(gcuda_quantize_rows(t->type, values, blocks, gcuda_nrows(t), t->ne[0], NULL, 1));
    CHECK_OK(gcuda_backend_tensor_set(t, blocks, 0, gcuda_nbytes(t)));
    free(values);
    free(blocks);
}

static void fill(struct gcuda_tensor * t, int salt) {
    const int64_t n = gcuda_nelements(t);
    const size_t size = gcuda_type_size(t->type);
    if (gcuda_is_quantized(t->type)) {
        fill_blocks(t, salt);
        return;
    }
    if (t->view_src != NULL) { return; }
    char * data = (char *) malloc((size_t) n * size);
    for (int64_t i = 0; i < n; ++i) {
        const int r = (int) ((i * 7919 + salt * 104729 + 13) % 1009);
        const float v = 4.0f * (float) r / 1009.0f - 2.0f; // sums and products round
        const int32_t index = (int32_t) (i % N_INDICES);
        const int64_t row = t->ne[0] - 1 - i; // rows in reverse
        const gcuda_fp16_t h = gcuda_fp32_to_fp16(v);
        const gcuda_bf16_t g = gcuda_fp32_to_bf16(v);
        const void * element = t->type == GCUDA_TYPE_I64   ? (const void *) &row
                               : t->type == GCUDA_TYPE_I32 ? (const void *) &index
                               : t->type == GCUDA_TYPE_F32 ? (const void *) &v
                               : t->type == GCUDA_TYPE_F16 ? (const void *) &h
                                                           : (const void *) &g;
        memcpy(data + (size_t) i * size, element, size);
    }
    CHECK_OK(gcuda_backend_tensor_set(t, data, 0, (size_t) n * size));
    free(data);
}

// Names of the patterns in a plan, in order, with a comma between them.
static void names_of(const struct gcudai_cuda_plan * plan, char * text, size_t size) {
    text[0] = '\0';
    for (int i = 0; i < plan->n_steps; ++i) {
        if (plan->steps[i].pattern != NULL) {
            const size_t n = strlen(text);
            snprintf(text + n, size - n, "%s%s", n ? ", " : "", plan->steps[i].pattern->name);
        }
    }
}

struct options {
    bool is_strict, is_off, by_allocator, is_near;
    int n_launches; // steps in all; 0: any
};

// Takes every node by itself, so that nothing is fused.
static gcuda_backend_t without_plans(void) {
    struct gcuda_cuda_params params;
    memset(&params, 0, sizeof params);
    params.max_plans = -1;
    return gcuda_backend_cuda_init_params(&params);
}

// Builds the case as a graph.
static struct gcuda_cgraph * graph_of(struct build * b, struct gcuda_context * ctx, builder make, int variant) {
    memset(b, 0, sizeof *b);
    b->ctx = ctx;
    b->variant = variant;
    make(b);
    struct gcuda_cgraph * graph = gcuda_new_graph(ctx);
    if (b->before != NULL) { CHECK_OK(gcuda_build_forward_expand(graph, b->before)); }
    for (int i = 0; i < b->n_out; ++i) { CHECK_OK(gcuda_build_forward_expand(graph, b->out[i])); }
    return graph;
}

// A case on a backend, allocated and without values.
struct placed {
    gcuda_backend_t backend;
    struct place place;
    struct build build;
    struct gcuda_cgraph * graph;
};

static bool placed_begin(struct placed * c, const struct gcuda_cuda_params * params, builder make, int variant) {
    c->backend = gcuda_backend_cuda_init_params(params);
    c->place = place_begin();
    c->graph = graph_of(&c->build, c->place.ctx, make, variant);
    const bool is_placed = c->backend != NULL && place_alloc(&c->place, c->backend);
    CHECK_MSG(is_placed, "variant %d: %s", variant, gcuda_last_error());
    return is_placed;
}

// The plan of the case, on a device with or without wgmma; NULL: it fails.
static gcuda_backend_graph_plan_t placed_plan(struct placed * c, bool has_wgmma) {
    ((struct gcudai_cuda *) c->backend)->kernels.has_wgmma = has_wgmma;
    return gcuda_backend_graph_plan_create(c->backend, c->graph);
}

static void placed_end(struct placed * c, gcuda_backend_graph_plan_t plan) {
    gcuda_backend_graph_plan_free(c->backend, plan);
    place_end(&c->place);
    gcuda_backend_free(c->backend);
}

static void run_case(builder make, int variant, const char * wanted, struct options o) {
    struct gcuda_cuda_params params;
    memset(&params, 0, sizeof params);
    params.max_plans = -1;
    gcuda_backend_t plain = gcuda_backend_cuda_init_params(&params);
    params.max_plans = 0;
    params.fusion = o.is_off ? GCUDA_CUDA_OFF : GCUDA_CUDA_AUTO;
    params.strict = o.is_strict;
    gcuda_backend_t fused = gcuda_backend_cuda_init_params(&params);
    struct place p = place_begin();
    struct build b;
    struct gcuda_cgraph * graph = graph_of(&b, p.ctx, make, variant);
    REQUIRE(plain != NULL && fused != NULL && place_alloc(&p, plain));
    const struct gcuda_cgraph before = *graph;
    char * want[MAX_OUT] = { NULL };
    for (int round = 0; round < 4; ++round) { // by nodes, then by plan: launched, captured, replayed
        int salt = 0;
        for (struct gcuda_tensor * t = gcuda_get_first_tensor(p.ctx); t != NULL; t = gcuda_get_next_tensor(p.ctx, t)) {
            if (t->op == GCUDA_OP_NONE) {
                fill(t, ++salt);
            } else if (t->view_src == NULL) {
                CHECK_OK(gcuda_backend_tensor_memset(t, 0xcc, 0, gcuda_nbytes(t)));
            }
        }
        CHECK_OK(gcuda_backend_graph_compute(round == 0 ? plain : fused, graph));
        for (int i = 0; i < b.n_out; ++i) {
            const size_t size = gcuda_nbytes(b.out[i]);
            char * got = (char *) malloc(size);
            CHECK_OK(gcuda_backend_tensor_get(b.out[i], got, 0, size));
            if (round == 0) {
                want[i] = got;
                continue;
            }
            bool is_same = memcmp(want[i], got, size) == 0;
            if (!is_same && o.is_near) {
                is_same = true;
                for (size_t k = 0; k < size / 4; ++k) {
                    const float u = ((float *) (void *) want[i])[k], v = ((float *) (void *) got)[k];
                    is_same = is_same && (u > v ? u - v : v - u) <= 1e-6f;
                }
            }
            CHECK_MSG(is_same, "%s, variant %d: other bits than one by one", wanted, variant);
            free(got);
        }
    }
    for (int i = 0; i < b.n_out; ++i) { free(want[i]); }
    char names[200];
    gcuda_backend_graph_plan_t plan = gcuda_backend_graph_plan_create(fused, graph);
    REQUIRE(plan != NULL);
    names_of((const struct gcudai_cuda_plan *) plan, names, sizeof names);
    CHECK_MSG(strcmp(names, wanted) == 0, "variant %d: fused are \"%s\", wanted \"%s\"", variant, names, wanted);
    if (o.n_launches > 0) { CHECK_EQ_I(((const struct gcudai_cuda_plan *) plan)->n_steps, o.n_launches); }
    gcuda_backend_graph_plan_free(fused, plan);
    CHECK(memcmp(&before, graph, sizeof before) == 0); // the caller's, and so are its nodes
    place_end(&p);
    gcuda_backend_free(fused);
    gcuda_backend_free(plain);
}

// As it is, by option and by environment without, and strict.
static void fires(builder make, int variant, const char * wanted, int n_launches) {
    const struct options on = { false, false, false, false, n_launches }, off = { false, true, false, false, 0 },
                         strict = { true, false, false, false, n_launches }, any = { false, false, false, false, 0 };
    run_case(make, variant, wanted, on);
    run_case(make, variant, wanted, strict);
    run_case(make, variant, "", off);
    setenv("GCUDA_CUDA_DISABLE_FUSION", "1", 1);
    run_case(make, variant, "", any);
    unsetenv("GCUDA_CUDA_DISABLE_FUSION");
}
static void stops(builder make, int variant, const char * wanted) {
    const struct options any = { false, false, false, false, 0 };
    run_case(make, variant, wanted, any);
}

// =====================================================================================================================
// >>norm
// =====================================================================================================================
enum { ROW = 68, ROWS = 5 };

static void build_norm_mul(struct build * b) {
    const int v = b->variant;
    const int64_t n = v == 1 ? 67 : v == 2 ? 300 : v == 3 ? 5000 : ROW;
    struct gcuda_tensor *x = f32(b, n, ROWS, 2), *w = f32(b, n, v == 4 ? ROWS : 1, 1);
    struct gcuda_tensor * norm = gcuda_rms_norm(b->ctx, x, 1e-5f);
    struct gcuda_tensor * y = v == 5 ? gcuda_mul(b->ctx, f32(b, n, ROWS, 2), norm) : gcuda_mul(b->ctx, norm, w);
    if (v >= 6) { // + bias, from either side
        struct gcuda_tensor * bias = f32(b, n, v == 7 ? ROWS : 1, v == 7 ? 2 : 1);
        y = v == 7 ? gcuda_add(b->ctx, bias, y) : gcuda_add(b->ctx, y, bias);
    }
    out(b, y);
}

// One row, which has a special kernel from 513 elements on if all addresses are multiples of 16 bytes. An unaligned
// weight (v 20) takes the other kernel. So does a sum that is also the weight (v 21) or the bias (v 22), because it has
// to be written first.
static void build_norm_mul_row(struct build * b) {
    static const int64_t lengths[5] = { 516, 1024, 1700, 5000, 16384 };
    const int v = b->variant;
    const int64_t n = v >= 20 ? 600 : lengths[v / 4];
    const bool has_bias = v == 22 || (v < 20 && v % 2 == 1), has_add = v > 20 || (v < 20 && v % 4 >= 2);
    struct gcuda_tensor *x = f32(b, n, 1, 1), *sum = has_add ? gcuda_add(b->ctx, x, f32(b, n, 1, 1)) : x;
    struct gcuda_tensor * w = v == 20   ? gcuda_view_1d(b->ctx, f32(b, n + 1, 1, 1), n, sizeof(float))
                              : v == 21 ? sum
                                        : f32(b, n, 1, 1);
    struct gcuda_tensor * y = gcuda_mul(b->ctx, gcuda_rms_norm(b->ctx, sum, 1e-5f), w);
    if (has_bias) { y = gcuda_add(b->ctx, y, v == 22 ? sum : f32(b, n, 1, 1)); }
    out(b, y);
    if (v < 20 && v % 4 == 3) {
        gcuda_set_output(sum);
        out(b, sum);
    }
}

TEST(rms_norm_and_mul_of_one_row_are_one_launch) {
    for (int v = 0; v <= 22; ++v) {
        fires(build_norm_mul_row, v, v > 20 || (v < 20 && v % 4 >= 2) ? "add + rms_norm + mul" : "rms_norm + mul", 1);
    }
    clean();
}

// What experts' results become: parts of one tensor, added in order, a residual, the next norm. Variants from 4 on are
// taken apart.
static void build_parts_norm(struct build * b) {
    struct gcuda_context * c = b->ctx;
    const int v = b->variant;
    const int64_t n = v == 1   ? 516
                      : v == 2 ? 5000
                      : v == 4 ? 512
                      : v == 8 ? 8196
                               : 2048,
                  used = v == 1   ? 2
                         : v == 3 ? 5
                                  : 8,
                  rows = v == 5 ? 2 : 1;
    struct gcuda_tensor *y = f32(b, n, used, rows), *x = f32(b, n, rows, 1), *sum = NULL;
    for (int64_t i = 0; i < used; ++i) {
        struct gcuda_tensor * one =
            gcuda_view_2d(c, y, n, rows, y->nb[2], (size_t) (v == 6 && i == 3 ? 4 : i) * y->nb[1]);
        sum = i == 0 ? one : gcuda_add(c, sum, one);
        if (v == 7 && i == 4) { gcuda_set_output(sum); }
    }
    struct gcuda_tensor * h = v == 3 ? gcuda_add(c, sum, x) : gcuda_add(c, x, sum);
    if (v != 2) {
        gcuda_set_output(h);
        out(b, h);
    }
    out(b, gcuda_mul(c, gcuda_rms_norm(c, h, 1e-5f), f32(b, n, 1, 1)));
}

TEST(a_sum_of_parts_goes_into_the_norm) {
    for (int v = 0; v < 4; ++v) { fires(build_parts_norm, v, "sum of parts + add + rms_norm + mul", 1); }
    stops(build_parts_norm, 4, "chain, rms_norm + mul");
    stops(build_parts_norm, 5, "chain, rms_norm + mul");
    stops(build_parts_norm, 6, "chain, rms_norm + mul");
    stops(build_parts_norm, 7, "chain, chain, rms_norm + mul");
    stops(build_parts_norm, 8, "chain, rms_norm + mul");
    clean();
}

// Start of a layer with experts: a norm, whose result the router and the experts read, and the router's product.
// Variants from 10 on are not fused.
static void build_norm_router(struct build * b) {
    static const int64_t lengths[5] = { 520, 1024, 2048, 2880, 4096 };
    struct gcuda_context * c = b->ctx;
    const int v = b->variant;
    const int64_t n = v == 10   ? 512
                      : v == 11 ? 4100
                                : lengths[v % 5],
                  experts = v == 12      ? 513
                            : v % 3 == 0 ? 128
                            : v % 3 == 1 ? 31
                                         : 2;
    const int64_t tokens = v == 13 ? 2 : 1;
    const bool has_add = v < 10 && v % 4 >= 2;
    struct gcuda_tensor *x = f32(b, n, tokens, 1), *sum = has_add ? gcuda_add(c, x, f32(b, n, tokens, 1)) : x;
    struct gcuda_tensor * h = gcuda_mul(c, gcuda_rms_norm(c, sum, 1e-5f), f32(b, n, 1, 1));
    if (v < 10 && v % 2 == 1) { h = gcuda_add(c, h, f32(b, n, 1, 1)); }
    struct gcuda_tensor * router =
        v == 14   ? gcuda_new_tensor_2d(c, GCUDA_TYPE_F16, n, experts)
        : v == 15 ? gcuda_view_2d(c, f32(b, n + 1, experts, 1), n, experts, 4 * (size_t) (n + 1), 0)
                  : f32(b, n, experts, 1);
    struct gcuda_tensor * y = gcuda_mul_mat(c, router, h);
    if (v == 16) { y = gcuda_add(c, y, f32(b, experts, 1, 1)); }
    out(b, gcuda_soft_max(c, y));
    gcuda_set_output(h);
    out(b, h);
    if (v < 10 && v % 4 == 3) {
        gcuda_set_output(sum);
        out(b, sum);
    }
}

TEST(a_norm_takes_the_router_along) {
    for (int v = 0; v < 10; ++v) { fires(build_norm_router, v, "norm + router", 2); }
    for (int v = 10; v <= 15; ++v) { stops(build_norm_router, v, "rms_norm + mul"); }
    stops(build_norm_router, 16, "rms_norm + mul, mul_mat + epilogue");
    clean();
}

TEST(rms_norm_and_mul_are_one_launch) {
    for (int v = 0; v <= 7; ++v) { fires(build_norm_mul, v, "rms_norm + mul", 1); }
    clean();
}

static void build_norm_mul_not(struct build * b) {
    const int v = b->variant;
    const enum gcuda_type type = v == 0 ? GCUDA_TYPE_F16 : GCUDA_TYPE_F32;
    const int64_t n = v == 1 ? 16385 : ROW;
    struct gcuda_tensor * x = gcuda_new_tensor_2d(b->ctx, type, n, ROWS);
    struct gcuda_tensor * w = gcuda_new_tensor_2d(b->ctx, v == 2 ? GCUDA_TYPE_F16 : type,
        v == 3   ? 1
        : v == 4 ? n / 2
                 : n,
        1);
    struct gcuda_tensor * norm = v == 5   ? gcuda_rms_norm_inplace(b->ctx, x, 1e-5f)
                                 : v == 6 ? gcuda_norm(b->ctx, x, 1e-5f)
                                          : gcuda_rms_norm(b->ctx, x, 1e-5f);
    if (v == 7) { gcuda_set_output(norm); }
    struct gcuda_tensor * y = gcuda_mul(b->ctx, norm, v == 8 ? norm : w);
    if (v == 9) { y = gcuda_mul(b->ctx, f32(b, n, ROWS, 3), norm); } // norm repeats: of another shape
    if (v == 10) { y = gcuda_sub(b->ctx, norm, w); }
    if (v == 11) { w->nb[0] = 8, w->nb[1] = w->nb[2] = w->nb[3] = 8 * (size_t) n; } // before memory is given out
    out(b, y);
    if (v == 7) { out(b, norm); }
    if (v == 12) { out(b, gcuda_scale(b->ctx, norm, 2.0f)); } // another reader
}

// Replacing a source in place adds a reader of a result that the pattern does not write. Variants: directly (0),
// through a view without an operation (1), instead of the first reader (2), so that one remains. The graph's use counts
// do not include it.
static void read_late(int variant) {
    struct gcuda_cuda_params params;
    memset(&params, 0, sizeof params);
    gcuda_backend_t fused = gcuda_backend_cuda_init_params(&params);
    struct place p = place_begin();
    struct gcuda_tensor *x = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, ROW, ROWS),
                        *w = gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_F32, ROW);
    struct gcuda_tensor *norm = gcuda_rms_norm(p.ctx, x, 1e-5f), *y = gcuda_mul(p.ctx, norm, w),
                        *z = gcuda_scale(p.ctx, x, 2.0f);
    struct gcuda_tensor * view = gcuda_view_tensor(p.ctx, norm);
    struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
    CHECK_OK(gcuda_build_forward_expand(graph, y));
    CHECK_OK(gcuda_build_forward_expand(graph, z));
    REQUIRE(fused != NULL && place_alloc(&p, fused));
    fill(x, 1);
    fill(w, 2);
    CHECK_OK(gcuda_backend_graph_compute(fused, graph));
    z->src[0] = variant == 1 ? view : norm;
    if (variant == 2) { y->src[0] = x; }
    float want[ROW * ROWS], got[ROW * ROWS];
    for (int run = 0; run < 4; ++run) {
        gcuda_graph_set_fusion(graph, run > 0);
        CHECK_OK(gcuda_backend_tensor_memset(norm, 0xcc, 0, gcuda_nbytes(norm)));
        CHECK_OK(gcuda_backend_graph_compute(fused, graph));
        CHECK_OK(gcuda_backend_tensor_get(z, run == 0 ? want : got, 0, sizeof got));
        CHECK_MSG(run == 0 || memcmp(want, got, sizeof got) == 0, "variant %d, run %d: read before it was written",
            variant, run);
    }
    place_end(&p);
    gcuda_backend_free(fused);
}

TEST(what_is_read_since_a_change_in_place_is_written) {
    for (int v = 0; v <= 2; ++v) { read_late(v); }
    clean();
}

// A graph in slices, rms_norm + mul in the first; a node of the last slice also reads the norm. Variants: as built (0);
// since a change in place before the slices are made (1), or after that and a run (2); through a view without an
// operation (3).
static void read_by_a_later_slice(int variant, bool by_sched) {
    struct gcuda_cuda_params params;
    memset(&params, 0, sizeof params);
    gcuda_backend_t all[2] = { gcuda_backend_cuda_init_params(&params), gcuda_backend_cpu_init() };
    struct place p = place_begin();
    struct gcuda_tensor *x = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, ROW, ROWS),
                        *w = gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_F32, ROW);
    struct gcuda_tensor *norm = gcuda_rms_norm(p.ctx, x, 1e-5f), *y = gcuda_mul(p.ctx, norm, w);
    struct gcuda_tensor *u = gcuda_scale(p.ctx, y, 3.0f), *z = gcuda_scale(p.ctx, variant == 0 ? norm : x, 2.0f);
    struct gcuda_tensor * later = variant == 3 ? gcuda_view_tensor(p.ctx, norm) : norm;
    struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
    struct gcuda_backend_sched_params sp;
    memset(&sp, 0, sizeof sp);
    sp.backends = all, sp.n_backends = 2;
    gcuda_backend_sched_t sched = by_sched ? gcuda_backend_sched_new_params(&sp) : NULL;
    CHECK_OK(gcuda_build_forward_expand(graph, y));
    CHECK_OK(gcuda_build_forward_expand(graph, u));
    CHECK_OK(gcuda_build_forward_expand(graph, z));
    REQUIRE(all[0] != NULL && all[1] != NULL && (sched != NULL) == by_sched && place_alloc(&p, all[0]));
    fill(x, 1);
    fill(w, 2);
    if (variant == 1) { z->src[0] = later; }
    struct gcuda_cgraph slices[2] = { gcuda_graph_view(graph, 0, 2), gcuda_graph_view(graph, 2, 4) };
    float want[ROW * ROWS], got[ROW * ROWS];
    for (int run = 0; run < 5; ++run) { // whole and not fused, in slices, after the change again
        const bool is_whole = run == 0 || run == 2;
        if (run == 2 && variant >= 2) { z->src[0] = later; }
        gcuda_graph_set_fusion(graph, !is_whole);
        CHECK_OK(gcuda_backend_tensor_memset(norm, 0xcc, 0, gcuda_nbytes(norm)));
        for (int i = 0; i < (is_whole ? 1 : 2); ++i) {
            struct gcuda_cgraph * part = is_whole ? graph : &slices[i];
            CHECK_OK(
                by_sched ? gcuda_backend_sched_graph_compute(sched, part) : gcuda_backend_graph_compute(all[0], part));
        }
        CHECK_OK(gcuda_backend_tensor_get(z, is_whole ? want : got, 0, sizeof got));
        CHECK_MSG(is_whole || memcmp(want, got, sizeof got) == 0, "variant %d, %s, run %d: read before it was written",
            variant, by_sched ? "scheduler" : "backend", run);
    }
    gcuda_backend_sched_free(sched);
    place_end(&p);
    gcuda_backend_free(all[0]);
    gcuda_backend_free(all[1]);
}

TEST(what_a_later_slice_reads_is_written) {
    for (int v = 0; v <= 3; ++v) {
        read_by_a_later_slice(v, false);
        read_by_a_later_slice(v, true);
    }
    clean();
}

TEST(rms_norm_and_mul_stay_apart) {
    for (int v = 0; v <= 12; ++v) { stops(build_norm_mul_not, v, ""); }
    clean();
}

// rms_norm + mul are one launch, what follows is no bias of it.
static void build_norm_mul_no_bias(struct build * b) {
    const int v = b->variant;
    struct gcuda_context * c = b->ctx;
    struct gcuda_tensor *y = gcuda_mul(c, gcuda_rms_norm(c, f32(b, ROW, ROWS, 1), 1e-5f), f32(b, ROW, 1, 1)), *z = NULL;
    if (v == 0) { gcuda_set_output(y); }
    switch (v) {
        case 1: z = gcuda_add(c, y, y); break;
        case 2: z = gcuda_sub(c, y, f32(b, ROW, 1, 1)); break;
        case 3: z = gcuda_add(c, y, f32(b, 1, ROWS, 1)); break; // repeats along rows
        case 4: z = gcuda_add(c, y, gcuda_new_tensor_1d(c, GCUDA_TYPE_F16, ROW)); break;
        case 5: z = gcuda_add(c, f32(b, ROW, ROWS, 2), y); break; // y repeats
        case 6:
            z = gcuda_add(c, y, gcuda_view_2d(c, f32(b, 2 * ROW, 1, 1), ROW, 1, 8 * ROW, 0));
            z->src[1]->nb[0] = 8;
            break;
        default: z = gcuda_add(c, y, f32(b, ROW, 1, 1)); break;
    }
    out(b, z);
    if (v == 0) { out(b, y); }
    if (v == 7) { out(b, gcuda_neg(c, y)); } // another reader
}

TEST(an_addition_stays_behind_rms_norm_and_mul) {
    const struct options two = { false, false, false, false, 2 }, three = { false, false, false, false, 3 };
    for (int v = 0; v <= 7; ++v) { run_case(build_norm_mul_no_bias, v, "rms_norm + mul", v == 7 ? three : two); }
    clean();
}

static void build_add_norm_mul(struct build * b) {
    const int v = b->variant;
    struct gcuda_tensor *x = f32(b, ROW, ROWS, 1), *a = f32(b, ROW, v == 1 ? 1 : ROWS, 1), *w = f32(b, ROW, 1, 1);
    struct gcuda_tensor * sum = v == 5 ? gcuda_add_inplace(b->ctx, x, a) : gcuda_add(b->ctx, x, a);
    if (v == 3) { gcuda_set_output(sum); }
    struct gcuda_tensor * y = gcuda_mul(b->ctx, gcuda_rms_norm(b->ctx, sum, 1e-6f), w);
    if (v == 4) { y = gcuda_add(b->ctx, y, f32(b, ROW, 1, 1)); }
    out(b, y);
    if (v == 2) { out(b, gcuda_sub(b->ctx, sum, y)); }
    if (v == 3 || v == 5) { out(b, sum); }
}

TEST(add_rms_norm_and_mul_are_one_launch) {
    for (int v = 0; v <= 5; ++v) { fires(build_add_norm_mul, v, "add + rms_norm + mul", v == 2 ? 2 : 1); }
    clean();
}

static void build_add_norm_mul_not(struct build * b) {
    const int v = b->variant;
    struct gcuda_tensor *x = v == 3 ? gcuda_transpose(b->ctx, f32(b, ROWS, ROW, 1)) : f32(b, ROW, ROWS, 1),
                        *w = f32(b, ROW, 1, 1);
    struct gcuda_tensor * a =
        v == 0 ? f32(b, 1, ROWS, 1) : gcuda_new_tensor_2d(b->ctx, v == 1 ? GCUDA_TYPE_F16 : GCUDA_TYPE_F32, ROW, ROWS);
    struct gcuda_tensor * sum =
        v == 4   ? gcuda_add_cast(b->ctx, gcuda_new_tensor_2d(b->ctx, GCUDA_TYPE_F16, ROW, ROWS), a, GCUDA_TYPE_F32)
        : v == 5 ? gcuda_sub(b->ctx, x, a)
                 : gcuda_add(b->ctx, x, a);
    struct gcuda_tensor * norm =
        gcuda_rms_norm(b->ctx, v == 2 ? gcuda_reshape_2d(b->ctx, sum, 2 * ROW / 4, 2 * ROWS) : sum, 1e-6f);
    if (v == 2) { w = f32(b, 2 * ROW / 4, 1, 1); }
    out(b, gcuda_mul(b->ctx, norm, w));
}

TEST(add_rms_norm_and_mul_stay_apart) { // rms_norm + mul is left
    for (int v = 0; v <= 5; ++v) { stops(build_add_norm_mul_not, v, "rms_norm + mul"); }
    clean();
}

// =====================================================================================================================
// >>soft_max
// =====================================================================================================================
static void build_scale_soft_max(struct build * b) {
    const int v = b->variant;
    struct gcuda_tensor * x =
        gcuda_new_tensor_3d(b->ctx, v == 2 ? GCUDA_TYPE_F16 : GCUDA_TYPE_F32, v == 1 ? 20000 : 40, 6, 2);
    if (v == 7) { x = gcuda_transpose(b->ctx, f32(b, 6, 40, 2)); } // no rows
    // sums have another order there
    if (v == 8) { x = gcuda_view_3d(b->ctx, f32(b, 41, 6, 2), 40, 6, 2, 41 * 4, 41 * 6 * 4, 4); }
    struct gcuda_tensor * s = v == 3   ? gcuda_scale_bias(b->ctx, x, 0.3f, 1.0f)
                              : v == 9 ? gcuda_scale_inplace(b->ctx, x, 0.3f)
                                       : gcuda_scale(b->ctx, x, 0.3f);
    if (v == 4) { gcuda_set_output(s); }
    struct gcuda_tensor * mask = v == 5 || v == 6 ? gcuda_new_tensor_2d(b->ctx, GCUDA_TYPE_F16, 40, 6) : NULL;
    struct gcuda_tensor * y = v == 10 ? gcuda_reshape_2d(b->ctx, s, 40, 12) : s; // a view of it
    out(b, mask ? gcuda_soft_max_ext(b->ctx, y, mask, v == 6 ? 0.5f : 1.0f, 0.0f) : gcuda_soft_max(b->ctx, y));
    if (v == 11) { out(b, gcuda_neg(b->ctx, s)); } // another reader
}

TEST(scale_goes_into_soft_max) {
    const struct options near = { false, false, false, true, 1 }, strict = { true, false, false, false, 0 };
    fires(build_scale_soft_max, 0, "scale + soft_max", 1);
    fires(build_scale_soft_max, 1, "scale + soft_max", 1);
    for (int v = 2; v <= 11; ++v) {
        if (v != 5 && v != 6) { stops(build_scale_soft_max, v, ""); }
    }
    for (int v = 5; v <= 6; ++v) { // a mask, two factors: other roundings
        run_case(build_scale_soft_max, v, "scale + soft_max", near);
        run_case(build_scale_soft_max, v, "", strict);
    }
    clean();
}

// =====================================================================================================================
// >>rope
// =====================================================================================================================
// Variants from N_ROPE_SETS on: more heads, which another kernel takes.
enum { N_ROPE_SETS = 9 };
static void build_rope_set(struct build * b) {
    const int v = b->variant % N_ROPE_SETS;
    const int64_t head = v == 1 ? 10 : 16, heads = b->variant < N_ROPE_SETS ? 3 : 4, tokens = v == 2 ? 1 : 7;
    struct gcuda_tensor *k = f32(b, head, heads, tokens), *pos = gcuda_new_tensor_1d(b->ctx, GCUDA_TYPE_I32, tokens);
    const enum gcuda_type types[4] = { GCUDA_TYPE_F16, GCUDA_TYPE_F32, GCUDA_TYPE_BF16, GCUDA_TYPE_F16 };
    struct gcuda_tensor * cache = gcuda_new_tensor_2d(b->ctx, types[v % 4], head * heads, 12);
    struct gcuda_tensor * ids = gcuda_new_tensor_1d(b->ctx, v == 3 ? GCUDA_TYPE_I32 : GCUDA_TYPE_I64, tokens);
    const int n_dims = v == 1 ? 6 : (int) head, mode = v % 2 ? GCUDA_ROPE_TYPE_NEOX : GCUDA_ROPE_TYPE_NORMAL;
    struct gcuda_tensor * factors = v >= 5 && v < 8 ? gcuda_new_tensor_1d(b->ctx, types[v - 5], n_dims / 2) : NULL;
    struct gcuda_tensor * r =
        v < 8 ? gcuda_rope_ext(b->ctx, k, pos, factors, n_dims, mode, 0, 10000.0f, 1.0f, 0.0f, 1.0f, 0.0f, 0.0f)
              : gcuda_rope_ext(b->ctx, k, pos, NULL, n_dims, mode, 64, 5000.0f, 0.5f, 0.7f, 1.1f, 32.0f, 1.0f);
    struct gcuda_tensor * rows = v == 4 ? gcuda_view_2d(b->ctx, r, head * heads, tokens, r->nb[2], 0)
                                        : gcuda_reshape_2d(b->ctx, r, head * heads, tokens);
    out(b, gcuda_set_rows(b->ctx, cache, rows, ids));
}

TEST(rope_writes_into_the_cache) {
    // 5 to 7 with factors, 8 with all other parameters
    for (int v = 0; v < 2 * N_ROPE_SETS; ++v) { fires(build_rope_set, v, "rope + set_rows", 1); }
    clean();
}

// Caches in blocks: heads of several blocks, two that share one, parts that stay as they are, more heads than are taken
// at once.
enum { N_BLOCK_TYPES = 6 };
static const enum gcuda_type block_types[N_BLOCK_TYPES] = { GCUDA_TYPE_Q4_0, GCUDA_TYPE_Q4_1, GCUDA_TYPE_Q5_0,
    GCUDA_TYPE_Q5_1, GCUDA_TYPE_Q8_0, GCUDA_TYPE_IQ4_NL };
static const int64_t block_heads[][3] = { // elements, heads, elements that are turned
    { 32, 3, 32 }, { 16, 6, 16 }, { 64, 2, 32 }, { 128, 9, 128 }, { 80, 14, 80 }, { 256, 5, 64 }, { 10, 112, 6 },
    { 1024, 2, 1024 }
};
enum { N_BLOCK_HEADS = sizeof block_heads / sizeof block_heads[0] };

static void build_rope_set_blocks(struct build * b) {
    const int v = b->variant;
    const int64_t *h = block_heads[v / N_BLOCK_TYPES], tokens = v % 2 ? 1 : 7;
    struct gcuda_tensor *k = f32(b, h[0], h[1], tokens), *pos = gcuda_new_tensor_1d(b->ctx, GCUDA_TYPE_I32, tokens);
    struct gcuda_tensor * r =
        gcuda_rope(b->ctx, k, pos, (int) h[2], v % 4 < 2 ? GCUDA_ROPE_TYPE_NEOX : GCUDA_ROPE_TYPE_NORMAL);
    struct gcuda_tensor * cache = gcuda_new_tensor_2d(b->ctx, block_types[v % N_BLOCK_TYPES], h[0] * h[1], 12);
    out(b, gcuda_set_rows(b->ctx, cache, gcuda_reshape_2d(b->ctx, r, h[0] * h[1], tokens),
               gcuda_new_tensor_1d(b->ctx, GCUDA_TYPE_I64, tokens)));
}

TEST(rope_writes_into_a_cache_in_blocks) {
    for (int v = 0; v < N_BLOCK_HEADS * N_BLOCK_TYPES; ++v) { fires(build_rope_set_blocks, v, "rope + set_rows", 1); }
    clean();
}

static void build_rope_set_blocks_not(struct build * b) {
    const int v = b->variant;
    const enum gcuda_type types[4] = { GCUDA_TYPE_Q4_K, GCUDA_TYPE_MXFP4, GCUDA_TYPE_Q8_0, GCUDA_TYPE_F16 };
    const int64_t head = v == 2 ? 66 : v == 3 ? 1026 : 16, heads = 16, tokens = 3; // 16 heads of 66 are 33 blocks
    struct gcuda_tensor *k = f32(b, head, heads, tokens), *pos = gcuda_new_tensor_1d(b->ctx, GCUDA_TYPE_I32, tokens);
    struct gcuda_tensor * rows =
        gcuda_reshape_2d(b->ctx, gcuda_rope(b->ctx, k, pos, 16, GCUDA_ROPE_TYPE_NEOX), head * heads, tokens);
    struct gcuda_tensor * cache = gcuda_new_tensor_2d(b->ctx, types[v], head * heads, 9);
    out(b, gcuda_set_rows(b->ctx, cache, rows, gcuda_new_tensor_1d(b->ctx, GCUDA_TYPE_I64, tokens)));
}

TEST(rope_stays_apart_from_a_cache_of_other_blocks) {
    for (int v = 0; v < 4; ++v) { stops(build_rope_set_blocks_not, v, ""); }
    clean();
}

// The rope of queries before that of the keys, after it, after the write.
enum place_of_queries { QUERIES_FIRST, QUERIES_BETWEEN, QUERIES_LAST };
static void in_order(struct build * b, enum place_of_queries place, struct gcuda_tensor * q, struct gcuda_tensor * k,
    struct gcuda_tensor * set) {
    b->before = place == QUERIES_BETWEEN ? k : NULL;
    out(b, place == QUERIES_LAST ? set : q);
    out(b, place == QUERIES_LAST ? q : set);
}

static struct gcuda_tensor * into_cache(struct build * b, enum gcuda_type type, struct gcuda_tensor * k) {
    const int64_t row = k->ne[0] * k->ne[1], tokens = k->ne[2];
    struct gcuda_tensor *cache = gcuda_new_tensor_2d(b->ctx, type, row, 11),
                        *ids = gcuda_new_tensor_1d(b->ctx, GCUDA_TYPE_I64, tokens);
    return gcuda_set_rows(b->ctx, cache, gcuda_reshape_2d(b->ctx, k, row, tokens), ids);
}

static void build_rope_rope_set(struct build * b) {
    struct gcuda_context * c = b->ctx;
    const int v = b->variant, kind = v / 3;
    const enum gcuda_type types[9] = { GCUDA_TYPE_F16, GCUDA_TYPE_Q8_0, GCUDA_TYPE_Q4_0, GCUDA_TYPE_F32,
        GCUDA_TYPE_IQ4_NL, GCUDA_TYPE_BF16, GCUDA_TYPE_Q5_1, GCUDA_TYPE_Q4_1, GCUDA_TYPE_Q5_0 };
    const int64_t head = kind == 8 ? 16 : 64, k_heads = kind == 1 ? 17 : 2,
                  heads = kind == 7   ? 1
                          : kind == 6 ? 40
                                      : 5,
                  tokens = kind == 2 ? 1 : 7;
    const int n_dims = kind == 2 ? 48 : (int) head, mode = kind % 2 ? GCUDA_ROPE_TYPE_NEOX : GCUDA_ROPE_TYPE_NORMAL;
    struct gcuda_tensor * pos = gcuda_new_tensor_1d(c, GCUDA_TYPE_I32, tokens);
    struct gcuda_tensor * factors = kind == 2 ? gcuda_new_tensor_1d(c, GCUDA_TYPE_F32, n_dims / 2) : NULL;
    struct gcuda_tensor * qx = kind == 4   ? gcuda_view_3d(c, f32(b, head + 3, heads + 1, tokens), head, heads, tokens,
                                                 4 * (size_t) (head + 3), 4 * (size_t) ((head + 3) * (heads + 1)), 8)
                               : kind == 5 ? gcuda_permute(c, f32(b, head, tokens, heads), 0, 2, 1, 3)
                                           : f32(b, head, heads, tokens);
    struct gcuda_tensor * kx = kind == 7 ? qx : f32(b, head, k_heads, tokens); // 7: both of one source
    const float base = kind == 6 ? 5000.0f : 10000.0f, ext = kind == 6 ? 0.7f : 0.0f;
    struct gcuda_tensor * q =
        kind == 3 || kind == 4
            ? gcuda_rope_ext_inplace(c, qx, pos, factors, n_dims, mode, 64, base, 0.5f, ext, 1.1f, 32.0f, 1.0f)
            : gcuda_rope_ext(c, qx, pos, factors, n_dims, mode, 64, base, 0.5f, ext, 1.1f, 32.0f, 1.0f);
    struct gcuda_tensor * k = gcuda_rope_ext(c, kx, pos, factors, n_dims, mode, 64, base, 0.5f, ext, 1.1f, 32.0f, 1.0f);
    if (kind == 8) { gcuda_set_output(q); }
    in_order(b, (enum place_of_queries)(v % 3), q, k, into_cache(b, types[kind], k));
    if (kind == 8) { // many readers
        out(b, gcuda_scale(c, q, 2.0f));
        out(b, gcuda_cast(c, q, GCUDA_TYPE_F16));
    }
}

TEST(queries_are_turned_beside_the_keys) {
    for (int v = 0; v < 27; ++v) {
        fires(build_rope_rope_set, v, "rope of queries + rope + set_rows", v >= 24 ? 3 : 1);
    }
    clean();
}

static void build_rope_rope_set_not(struct build * b) {
    struct gcuda_context * c = b->ctx;
    const int v = b->variant / 3;
    const enum place_of_queries place = (enum place_of_queries)(b->variant % 3);
    const int64_t head = 16, heads = 4, tokens = 6,
                  q_heads = v == 11 ? GCUDA_ROPE_SET_QUERIES / (head * tokens) + 1 : heads;
    struct gcuda_tensor *pos = gcuda_new_tensor_1d(c, GCUDA_TYPE_I32, tokens),
                        *factors = gcuda_new_tensor_1d(c, GCUDA_TYPE_F32, head / 2);
    struct gcuda_tensor * kx = f32(b, head, heads, tokens);
    struct gcuda_tensor * qx = gcuda_new_tensor_4d(
        c, v == 0 ? GCUDA_TYPE_F16 : GCUDA_TYPE_F32, v == 1 ? 32 : head, q_heads, tokens, v == 2 ? 2 : 1);
    if (v == 3) { qx = kx; }                                                             // in place
    if (v == 4) { qx = gcuda_view_3d(c, kx, head, 2, tokens, kx->nb[1], kx->nb[2], 0); } // and some of its heads
    struct gcuda_tensor * q_pos = v == 5 ? gcuda_new_tensor_1d(c, GCUDA_TYPE_I32, tokens) : pos;
    struct gcuda_tensor * q =
        v == 3 || v == 4 ? gcuda_rope_inplace(c, qx, pos, 16, 0)
        : v == 6         ? gcuda_rope(c, qx, pos, 12, 0)
        : v == 7         ? gcuda_rope(c, qx, pos, 16, GCUDA_ROPE_TYPE_NEOX)
        : v == 8         ? gcuda_rope_ext(c, qx, pos, NULL, 16, 0, 0, 5000.0f, 1.0f, 0.0f, 1.0f, 0.0f, 0.0f)
        : v == 9         ? gcuda_rope_ext(c, qx, pos, factors, 16, 0, 0, 10000.0f, 1.0f, 0.0f, 1.0f, 0.0f, 0.0f)
        : v == 10        ? gcuda_rope_ext_back(c, qx, pos, NULL, 16, 0, 0, 10000.0f, 1.0f, 0.0f, 1.0f, 0.0f, 0.0f)
                         : gcuda_rope(c, qx, q_pos, 16, 0);
    struct gcuda_tensor * k = gcuda_rope(c, kx, pos, 16, 0);
    in_order(b, place, q, k, into_cache(b, GCUDA_TYPE_F16, k));
}

TEST(queries_that_are_turned_otherwise_stay_apart) {
    for (int v = 0; v < 36; ++v) {
        stops(build_rope_rope_set_not, v, v % 3 == QUERIES_BETWEEN ? "" : "rope + set_rows");
    }
    clean();
}

// What looks like queries after the write and goes into a cache itself; between two of them there is nothing to choose.
static void build_two_caches(struct build * b) {
    struct gcuda_tensor * pos = gcuda_new_tensor_1d(b->ctx, GCUDA_TYPE_I32, 5);
    for (int i = 0; i < 2; ++i) {
        out(b, into_cache(b, GCUDA_TYPE_Q8_0, gcuda_rope(b->ctx, f32(b, 32, 2, 5), pos, 32, 0)));
    }
}

TEST(keys_of_two_caches_are_a_launch_each) {
    fires(build_two_caches, 0, "rope + set_rows, rope + set_rows", 2);
    clean();
}

// ---- queries, keys and values ----
#define ALL_INPUTS "rope of queries + rope + set_rows + values"

// What comes between a product and rope.
// joint: heads of queries, keys and values are views of one row
enum { HAS_BIAS = 1, HAS_NORM = 2, HAS_HADAMARD = 4, IS_JOINT = 8 };
static struct gcuda_tensor * before_rope(
    struct build * b, struct gcuda_tensor * x, int64_t head, int64_t heads, int steps) {
    struct gcuda_context * c = b->ctx;
    if (steps & HAS_BIAS) { x = gcuda_add(c, x, f32(b, x->ne[0], 1, 1)); }
    if (x->ne[1] != heads || x->ne[0] != head) { x = gcuda_reshape_3d(c, x, head, heads, x->ne[1]); }
    return steps & HAS_NORM ? gcuda_mul(c, gcuda_rms_norm(c, x, 1e-5f), f32(b, head, 1, 1)) : x;
}

static struct gcuda_tensor * transformed(struct build * b, struct gcuda_tensor * x, int64_t n) {
    struct gcuda_tensor * rows = gcuda_reshape_2d(b->ctx, x, n, gcuda_nelements(x) / n);
    struct gcuda_tensor * y = gcuda_mul_mat(b->ctx, gcuda_new_tensor_2d(b->ctx, GCUDA_TYPE_F32, n, n), rows);
    CHECK_OK(gcuda_mul_mat_set_hint(y, GCUDA_HINT_SRC0_IS_HADAMARD));
    return gcuda_reshape(b->ctx, y, x);
}

static struct gcuda_tensor * heads_of_row(
    struct build * b, struct gcuda_tensor * row, int64_t head, int64_t first, int64_t heads) {
    return row == NULL ? f32(b, head * heads, b->variant % 2 ? 1 : 5, 1)
                       : gcuda_view_3d(b->ctx, row, head, heads, row->ne[1], 4 * (size_t) head, row->nb[1],
                             4 * (size_t) (first * head));
}

static void build_inputs(struct build * b) {
    static const enum gcuda_type types[5] = { GCUDA_TYPE_F16, GCUDA_TYPE_Q8_0, GCUDA_TYPE_Q4_0, GCUDA_TYPE_BF16,
        GCUDA_TYPE_F32 };
    static const int64_t sizes[4] = { 128, 64, 256, 512 };
    struct gcuda_context * c = b->ctx;
    const int v = b->variant, steps = v / 5, mode = v % 3 ? GCUDA_ROPE_TYPE_NEOX : GCUDA_ROPE_TYPE_NORMAL;
    const int64_t head = sizes[(v + steps) % 4], tokens = v % 2 ? 1 : 5, n_turned = v % 4 == 3 ? head / 2 : head;
    struct gcuda_tensor *row = steps & IS_JOINT ? f32(b, 9 * head, tokens, 1) : NULL,
                        *pos = gcuda_new_tensor_1d(c, GCUDA_TYPE_I32, tokens);
    struct gcuda_tensor * x[3] = { heads_of_row(b, row, head, 0, 5), heads_of_row(b, row, head, 5, 2),
        heads_of_row(b, row, head, 7, 2) };
    struct gcuda_tensor * q = gcuda_rope(c, before_rope(b, x[0], head, 5, steps), pos, (int) n_turned, mode);
    struct gcuda_tensor * k = gcuda_rope(c, before_rope(b, x[1], head, 2, steps), pos, (int) n_turned, mode);
    struct gcuda_tensor * values = before_rope(b, x[2], head, 2, steps & HAS_BIAS);
    if (steps & HAS_HADAMARD) {
        q = transformed(b, q, head);
        k = transformed(b, k, head);
        values = transformed(b, values, 64);
    }
    struct gcuda_tensor *v_cache = gcuda_new_tensor_2d(c, types[v % 5], 2 * head, 9),
                        *ids = gcuda_new_tensor_1d(c, GCUDA_TYPE_I32, tokens);
    struct gcuda_tensor * v_rows = row != NULL ? gcuda_view_2d(c, values, 2 * head, tokens, values->nb[2], 0)
                                               : gcuda_reshape_2d(c, values, 2 * head, tokens);
    struct gcuda_tensor *k_set = into_cache(b, types[v % 5], k), *v_set = gcuda_set_rows(c, v_cache, v_rows, ids);
    struct gcuda_tensor * const all[3] = { q, k_set, v_set };
    for (int i = 0; i < 3; ++i) { out(b, all[(i + v) % 3]); }
}

TEST(queries_keys_and_values_are_one_launch) {
    for (int v = 0; v < 5 * IS_JOINT + 5; ++v) { fires(build_inputs, v, ALL_INPUTS, 1); }
    clean();
}

// Heads whose squares leave the range of F32, in the kernels of few and of many tokens.
TEST(norms_before_rope_keep_large_and_small_heads) {
    enum { HEAD = 64, HEADS = 3, MOST = 9, N = HEAD * HEADS };
    for (int tokens = 1; tokens <= MOST; tokens += MOST - 1) {
        struct place p = place_begin();
        struct build b;
        memset(&b, 0, sizeof b);
        b.ctx = p.ctx;
        struct gcuda_tensor * x = f32(&b, HEAD, HEADS, tokens);
        struct gcuda_tensor * pos = gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_I32, tokens);
        struct gcuda_tensor * k = gcuda_rope(p.ctx, before_rope(&b, x, HEAD, HEADS, HAS_NORM), pos, HEAD, 0);
        struct gcuda_tensor *set = into_cache(&b, GCUDA_TYPE_F32, k), *ids = set->src[1], *cache = set->src[2];
        struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
        CHECK_OK(gcuda_build_forward_expand(graph, set));
        gcuda_backend_t backend = gcuda_backend_cuda_init(0); // only for memory
        REQUIRE(backend != NULL && place_alloc(&p, backend));
        int salt = 0;
        for (struct gcuda_tensor * t = gcuda_get_first_tensor(p.ctx); t != NULL; t = gcuda_get_next_tensor(p.ctx, t)) {
            if (t->op == GCUDA_OP_NONE) { fill(t, ++salt); }
        }
        static float values[MOST * N], got[2][11 * N];
        int64_t rows[MOST];
        CHECK_OK(gcuda_backend_tensor_get(x, values, 0, gcuda_nbytes(x)));
        static const float factors[3] = { 1e25f, 1e-25f, 1.0f };
        for (int i = 0; i < tokens * N; ++i) { values[i] *= factors[i / HEAD % 3]; }
        for (int i = 0; i < tokens; ++i) { rows[i] = i; }
        CHECK_OK(gcuda_backend_tensor_set(x, values, 0, gcuda_nbytes(x)));
        CHECK_OK(gcuda_backend_tensor_set(ids, rows, 0, gcuda_nbytes(ids)));
        for (int i = 0; i < 2; ++i) {
            struct gcuda_cuda_params params;
            struct gcuda_cuda_plan_stats stats;
            memset(&params, 0, sizeof params);
            params.fusion = i == 0 ? GCUDA_CUDA_OFF : GCUDA_CUDA_ON;
            gcuda_backend_t one = gcuda_backend_cuda_init_params(&params);
            CHECK_OK(gcuda_backend_graph_compute(one, graph));
            CHECK_OK(gcuda_backend_tensor_get(cache, got[i], 0, gcuda_nbytes(cache)));
            CHECK_OK(gcuda_backend_cuda_get_plan_stats(one, &stats));
            CHECK(stats.n_fused == (uint64_t) i);
            gcuda_backend_free(one);
        }
        CHECK_MSG(memcmp(got[0], got[1], gcuda_nbytes(cache)) == 0, "%d tokens: other bits", tokens);
        CHECK(got[0][1] != 0.0f && got[0][HEAD + 1] != 0.0f && isfinite(got[0][1]) && isfinite(got[0][HEAD + 1]));
        place_end(&p);
        gcuda_backend_free(backend);
    }
    clean();
}

// Values of another size than keys, values that come with keys alone, ropes in the order of graphs of other programs,
// in place.
static void build_inputs_other(struct build * b) {
    struct gcuda_context * c = b->ctx;
    const int v = b->variant;
    const int64_t tokens = 3;
    struct gcuda_tensor *pos = gcuda_new_tensor_1d(c, GCUDA_TYPE_I32, tokens), *qx = f32(b, 32, 4, tokens),
                        *kx = f32(b, 32, 2, tokens);
    struct gcuda_tensor *q = v == 2 ? gcuda_rope_inplace(c, qx, pos, 32, 0) : gcuda_rope(c, qx, pos, 32, 0),
                        *k = gcuda_rope(c, kx, pos, 32, 0);
    struct gcuda_tensor *cache = gcuda_new_tensor_2d(c, GCUDA_TYPE_F16, v == 0 ? 160 : 64, 9),
                        *ids = gcuda_new_tensor_1d(c, GCUDA_TYPE_I64, tokens);
    struct gcuda_tensor * values = gcuda_set_rows(c, cache, f32(b, v == 0 ? 160 : 64, tokens, 1), ids);
    if (v != 1) { b->before = q; } // rope, rope, write, write
    out(b, k);
    b->n_out = 0;
    out(b, into_cache(b, GCUDA_TYPE_F16, k));
    out(b, values);
    if (v != 1) { out(b, q); }
}

TEST(values_join_keys) {
    fires(build_inputs_other, 0, ALL_INPUTS, 1);
    fires(build_inputs_other, 1, "rope + set_rows + values", 1);
    fires(build_inputs_other, 2, ALL_INPUTS, 1);
    clean();
}

// Each is taken apart where a condition fails; what still fits is one launch.
static void build_inputs_not(struct build * b) {
    struct gcuda_context * c = b->ctx;
    const int v = b->variant;
    const int64_t tokens = 3, head = 64;
    struct gcuda_tensor *pos = gcuda_new_tensor_1d(c, GCUDA_TYPE_I32, tokens),
                        *ids = gcuda_new_tensor_1d(c, GCUDA_TYPE_I64, tokens);
    struct gcuda_tensor * row = f32(b, 2 * head + 3, tokens, 1);
    // rows not aligned
    struct gcuda_tensor * x =
        v == 0 ? gcuda_view_3d(c, row, head, 2, tokens, 4 * head, row->nb[1], 4) : f32(b, head, 2, tokens);
    struct gcuda_tensor * norm = v == 1 ? gcuda_norm(c, x, 1e-5f) : gcuda_rms_norm(c, x, 1e-5f);
    struct gcuda_tensor * heads = gcuda_mul(c, norm, f32(b, head, v == 2 ? 2 : 1, 1)); // weights of each head
    struct gcuda_tensor *k = gcuda_rope(c, heads, pos, (int) head, 0), *keys = into_cache(b, GCUDA_TYPE_F16, k);
    struct gcuda_tensor * cache =
        v == 3 ? keys->view_src : gcuda_new_tensor_2d(c, v == 4 ? GCUDA_TYPE_BF16 : GCUDA_TYPE_F16, 2 * head, 11);
    struct gcuda_tensor * values = gcuda_set_rows(
        c, cache, v == 5 ? gcuda_new_tensor_2d(c, GCUDA_TYPE_F16, 2 * head, tokens) : f32(b, 2 * head, tokens, 1), ids);
    if (v == 6) { gcuda_set_output(norm); }
    if (v == 7) { gcuda_set_output(heads); }
    out(b, keys);
    out(b, values);
    if (v == 6) { out(b, norm); }
    if (v == 7) { out(b, heads); }
    if (v == 8) { out(b, gcuda_scale(c, heads, 2.0f)); } // another reader
    if (v == 9) { out(b, gcuda_scale(c, norm, 2.0f)); }
}

TEST(keys_and_values_stay_apart) {
    static const char * const names[10] = { "rms_norm + mul, rope + set_rows + values", "rope + set_rows + values",
        "rms_norm + mul, rope + set_rows + values", "rope + set_rows", "rope + set_rows", "rope + set_rows",
        "rope + set_rows + values", "rms_norm + mul, rope + set_rows + values",
        "rms_norm + mul, rope + set_rows + values", "rope + set_rows + values" };
    for (int v = 0; v < 10; ++v) { stops(build_inputs_not, v, names[v]); }
    clean();
}

// Products of the same activations, with rope and writes in between, in the order of real programs.
static void build_layer(struct build * b) {
    struct gcuda_context * c = b->ctx;
    const int v = b->variant;
    const int64_t head = 64, width = 256, tokens = v == 4 ? 10 : 1;
    const enum gcuda_type type = v == 1 ? GCUDA_TYPE_F16 : GCUDA_TYPE_Q8_0;
    struct gcuda_tensor *x = f32(b, width, tokens, 1), *pos = gcuda_new_tensor_1d(c, GCUDA_TYPE_I32, tokens), *heads[3];
    for (int i = 0; i < 3; ++i) {
        struct gcuda_tensor * w =
            gcuda_new_tensor_2d(c, v == 2 && i == 1 ? GCUDA_TYPE_Q4_0 : type, width, i == 0 ? 256 : 128);
        heads[i] = before_rope(b, gcuda_mul_mat(c, w, x), head, i == 0 ? 4 : 2,
            (v == 3 ? HAS_BIAS : 0) | (v == 5 && i < 2 ? HAS_NORM : 0));
    }
    struct gcuda_tensor *q = gcuda_rope(c, heads[0], pos, (int) head, 0),
                        *k = gcuda_rope(c, heads[1], pos, (int) head, 0);
    out(b, q);
    out(b, into_cache(b, GCUDA_TYPE_F16, k));
    out(b, into_cache(b, GCUDA_TYPE_F16, heads[2]));
}

TEST(products_of_the_same_activations_run_together) {
    fires(build_layer, 0, "several products, " ALL_INPUTS, 2);
    fires(build_layer, 1, "several products, " ALL_INPUTS, 2);
    fires(build_layer, 2, "several products, " ALL_INPUTS, 3);        // keys have weights of another type
    fires(build_layer, 3, "several products, " ALL_INPUTS, 2);        // biases go with rope
    fires(build_layer, 4, "several products, tiles, " ALL_INPUTS, 2); // more tokens
    fires(build_layer, 5, "several products, " ALL_INPUTS, 2);        // norms too
    clean();
}

// A product stays where it is when a node in between touches its memory; and goes back when that becomes so.
TEST(products_do_not_pass_who_touches_their_memory) {
    enum { WIDTH = 256, HEAD = 64 };
    gcuda_backend_t plain = without_plans(), fused = gcuda_backend_cuda_init(0);
    struct place p = place_begin();
    struct gcuda_context * c = p.ctx;
    struct gcuda_tensor *x = gcuda_new_tensor_2d(c, GCUDA_TYPE_F32, WIDTH, 1),
                        *pos = gcuda_new_tensor_1d(c, GCUDA_TYPE_I32, 1), *w[2], *y[2], *r[2];
    struct gcuda_cgraph * graph = gcuda_new_graph(c);
    for (int i = 0; i < 2; ++i) {
        w[i] = gcuda_new_tensor_2d(c, GCUDA_TYPE_Q8_0, WIDTH, WIDTH);
        y[i] = gcuda_mul_mat(c, w[i], x);
        r[i] = gcuda_rope(c, gcuda_reshape_3d(c, y[i], HEAD, WIDTH / HEAD, 1), pos, HEAD, 0);
        CHECK_OK(gcuda_build_forward_expand(graph, r[i]));
    }
    REQUIRE(plain != NULL && fused != NULL && place_alloc(&p, plain));
    void * const own[2] = { y[1]->data, r[0]->data };
    // 0, 3: apart; 1, 4: on the first product; 2: on what the first rope writes, which is read last
    for (int turn = 0; turn < 6; ++turn) {
        float got[2][WIDTH];
        struct gcuda_tensor * view = r[1]->src[0];
        y[1]->data = view->data = turn % 3 == 1 ? y[0]->data : own[0];
        r[0]->data = turn % 3 == 2 ? x->data : own[1];
        for (int k = 0; k < 2; ++k) {
            fill(x, 1 + turn);
            fill(pos, 2);
            for (int i = 0; i < 2; ++i) { fill(w[i], 3 + i); }
            CHECK_OK(gcuda_backend_graph_compute(k == 0 ? plain : fused, graph));
            CHECK_OK(gcuda_backend_tensor_get(r[1], got[k], 0, sizeof got[k]));
        }
        CHECK_MSG(memcmp(got[0], got[1], sizeof got[0]) == 0, "turn %d: other bits", turn);
        gcuda_backend_graph_plan_t plan = gcuda_backend_graph_plan_create(fused, graph);
        char names[200];
        REQUIRE(plan != NULL);
        names_of((const struct gcudai_cuda_plan *) plan, names, sizeof names);
        CHECK_MSG(strcmp(names, turn % 3 == 0 ? "several products" : "") == 0, "turn %d: \"%s\"", turn, names);
        gcuda_backend_graph_plan_free(fused, plan);
    }
    place_end(&p);
    gcuda_backend_free(fused);
    gcuda_backend_free(plain);
    clean();
}

// ---- Hadamard transforms ----
static void hadamard_once(int64_t n, enum gcuda_type type) {
    enum { ROWS_HERE = 11, MOST = 512 };
    static float h[MOST * MOST], x[ROWS_HERE * MOST], got[ROWS_HERE * MOST], want[ROWS_HERE * MOST];
    static gcuda_fp16_t x16[ROWS_HERE * MOST];
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    struct place p = place_begin();
    struct gcuda_tensor *a = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, n, n),
                        *b = gcuda_new_tensor_2d(p.ctx, type, n, ROWS_HERE);
    struct gcuda_tensor * y = gcuda_mul_mat(p.ctx, a, b);
    struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
    CHECK_OK(gcuda_mul_mat_set_prec(y, GCUDA_PREC_F32));
    CHECK_OK(gcuda_mul_mat_set_hint(y, GCUDA_HINT_SRC0_IS_HADAMARD));
    CHECK_OK(gcuda_build_forward_expand(graph, y));
    REQUIRE(backend != NULL && place_alloc(&p, backend));
    for (int64_t i = 0; i < n * n; ++i) {
        int is_odd = 0;
        for (int64_t common = i / n & i % n; common != 0; common &= common - 1) { is_odd = !is_odd; }
        h[i] = (float) ((is_odd ? -1.0 : 1.0) / sqrt((double) n));
    }
    for (int64_t i = 0; i < n * ROWS_HERE; ++i) {
        x16[i] = gcuda_fp32_to_fp16((float) (i * 7919 % 1009) / 504.5f - 1.0f);
        x[i] = gcuda_fp16_to_fp32(x16[i]);
    }
    for (int64_t r = 0; r < ROWS_HERE; ++r) {
        for (int64_t i = 0; i < n; ++i) {
            double sum = 0.0;
            for (int64_t k = 0; k < n; ++k) { sum += (double) h[i * n + k] * (double) x[r * n + k]; }
            want[r * n + i] = (float) sum;
        }
    }
    CHECK_OK(gcuda_backend_tensor_set(a, h, 0, gcuda_nbytes(a)));
    CHECK_OK(gcuda_backend_tensor_set(b, type == GCUDA_TYPE_F32 ? (const void *) x : x16, 0, gcuda_nbytes(b)));
    CHECK_OK(gcuda_backend_graph_compute(backend, graph));
    CHECK_OK(gcuda_backend_tensor_get(y, got, 0, gcuda_nbytes(y)));
    const double error = error_of(got, want, (size_t) (n * ROWS_HERE));
    CHECK_MSG(error < 1e-13, "n %d, %s: relative squared error %g", (int) n, gcuda_type_name(type), error);
    gcuda_backend_graph_plan_t plan = gcuda_backend_graph_plan_create(backend, graph);
    REQUIRE(plan != NULL);
    char names[64];
    names_of((const struct gcudai_cuda_plan *) plan, names, sizeof names);
    CHECK_MSG(strcmp(names, n >= 64 && n <= 512 ? "hadamard" : "") == 0, "n %d: \"%s\"", (int) n, names);
    gcuda_backend_graph_plan_free(backend, plan);
    place_end(&p);
    gcuda_backend_free(backend);
}

TEST(a_product_with_the_hadamard_matrix_is_a_transform) {
    for (int64_t n = 32; n <= 512; n *= 2) {
        hadamard_once(n, GCUDA_TYPE_F32);
        hadamard_once(n, GCUDA_TYPE_F16);
    }
    clean();
}

TEST(hints_are_checked) {
    struct place p = place_begin();
    struct gcuda_tensor * x = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, 48, 3);
    struct gcuda_tensor * y = gcuda_mul_mat(p.ctx, gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, 48, 48), x);
    CHECK_OK(gcuda_mul_mat_set_hint(NULL, GCUDA_HINT_SRC0_IS_HADAMARD));
    CHECK_OK(gcuda_mul_mat_set_hint(y, GCUDA_HINT_NONE));
    CHECK_EQ_I(gcuda_mul_mat_set_hint(y, GCUDA_HINT_SRC0_IS_HADAMARD), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK(strstr(gcuda_last_error(), "48 x 48") != NULL);
    CHECK_EQ_I(gcuda_mul_mat_set_hint(y, (enum gcuda_hint) 7), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK(gcuda_mul_mat_set_hint(gcuda_neg(p.ctx, x), GCUDA_HINT_SRC0_IS_HADAMARD) != GCUDA_STATUS_SUCCESS);
    CHECK_EQ_I(y->op_params[1], 0);
    gcuda_free(p.ctx);
    clean();
}

// Two tokens for one row: the last stays; and an index that is out of range.
TEST(rope_into_the_cache_treats_indices_as_set_rows_does) {
    for (int kind = 0; kind < 6; ++kind) {                    // 2, 3: in blocks; 4, 5: more heads
        gcuda_backend_t backend = gcuda_backend_cuda_init(0); // only for memory
        struct place p = place_begin();
        struct build b;
        memset(&b, 0, sizeof b);
        b.ctx = p.ctx;
        b.variant = kind < 4 ? 0 : N_ROPE_SETS;
        if (kind / 2 != 1) {
            build_rope_set(&b);
        } else {
            build_rope_set_blocks(&b);
        }
        struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
        CHECK_OK(gcuda_build_forward_expand(graph, b.out[0]));
        REQUIRE(backend != NULL && place_alloc(&p, backend));
        int salt = 0;
        for (struct gcuda_tensor * t = gcuda_get_first_tensor(p.ctx); t != NULL; t = gcuda_get_next_tensor(p.ctx, t)) {
            if (t->op == GCUDA_OP_NONE) { fill(t, ++salt); }
        }
        const int64_t rows[7] = { 3, 1, 3, 9, kind % 2 ? 12 : 1, 3, 0 };
        CHECK_OK(gcuda_backend_tensor_set(b.out[0]->src[1], rows, 0, sizeof rows));
        static char bytes[2][64 * 12 * 2], start[64 * 12 * 2];
        struct gcuda_tensor * cache = b.out[0]->src[2];
        const size_t size = gcuda_nbytes(cache);
        REQUIRE(size <= sizeof start);
        CHECK_OK(gcuda_backend_tensor_get(cache, start, 0, size));
        for (int i = 0; i < 2; ++i) {
            struct gcuda_cuda_params params;
            memset(&params, 0, sizeof params);
            params.fusion = i == 0 ? GCUDA_CUDA_OFF : GCUDA_CUDA_ON;
            gcuda_backend_t one = gcuda_backend_cuda_init_params(&params);
            CHECK_OK(gcuda_backend_tensor_set(cache, start, 0, size));
            CHECK(gcuda_backend_graph_compute(one, graph) ==
                  (kind % 2 ? GCUDA_STATUS_INVALID_DATA : GCUDA_STATUS_SUCCESS));
            CHECK_OK(gcuda_backend_tensor_get(cache, bytes[i], 0, size));
            struct gcuda_cuda_plan_stats s;
            CHECK(gcuda_backend_cuda_get_plan_stats(one, &s) == GCUDA_STATUS_SUCCESS && s.n_fused == (uint64_t) i);
            gcuda_backend_free(one);
        }
        CHECK(memcmp(bytes[0], bytes[1], size) == 0 && memcmp(bytes[0], start, size) != 0);
        place_end(&p);
        gcuda_backend_free(backend);
    }
    clean();
}

static void build_rope_set_not(struct build * b) {
    const int v = b->variant;
    const int64_t head = 16, heads = 4, tokens = 8;
    struct gcuda_tensor * k =
        gcuda_new_tensor_4d(b->ctx, v == 0 ? GCUDA_TYPE_F16 : GCUDA_TYPE_F32, head, heads, tokens, v == 1 ? 2 : 1);
    // keys of the cache, into it
    struct gcuda_tensor * own = v == 10 ? gcuda_new_tensor_2d(b->ctx, GCUDA_TYPE_F32, head * heads, tokens) : NULL;
    if (own != NULL) { k = gcuda_reshape_3d(b->ctx, own, head, heads, tokens); }
    struct gcuda_tensor * pos = gcuda_new_tensor_1d(b->ctx, GCUDA_TYPE_I32, v == 2 ? 4 * tokens : tokens);
    int sections[4] = { 2, 2, 2, 2 };
    struct gcuda_tensor * r = v == 2   ? gcuda_rope_multi(b->ctx, k, pos, NULL, 16, sections, GCUDA_ROPE_TYPE_MROPE, 0,
                                             10000.0f, 1.0f, 0.0f, 1.0f, 32.0f, 1.0f)
                              : v == 3 ? gcuda_rope_inplace(b->ctx, k, pos, 16, GCUDA_ROPE_TYPE_NORMAL)
                                       : gcuda_rope(b->ctx, k, pos, 16, GCUDA_ROPE_TYPE_NORMAL);
    if (v == 4) { gcuda_set_output(r); }
    const int64_t n0 = v == 5 ? head : head * heads, n1 = gcuda_nelements(r) / n0 / (v == 6 ? 2 : 1);
    struct gcuda_tensor * rows =
        v == 6 ? gcuda_view_2d(b->ctx, r, n0, n1, r->nb[2], 4 * r->nb[2]) : gcuda_reshape_2d(b->ctx, r, n0, n1);
    if (v == 7) { gcuda_set_output(rows); }
    struct gcuda_tensor * cache = own != NULL ? own : gcuda_new_tensor_2d(b->ctx, GCUDA_TYPE_F16, n0, 40);
    struct gcuda_tensor * ids = gcuda_new_tensor_1d(b->ctx, GCUDA_TYPE_I64, n1);
    out(b, gcuda_set_rows(b->ctx, cache, rows, ids));
    if (v == 8) { out(b, gcuda_scale(b->ctx, r, 2.0f)); }
    if (v == 9) { out(b, gcuda_scale(b->ctx, rows, 2.0f)); }
}

TEST(rope_and_set_rows_stay_apart) {
    for (int v = 0; v <= 10; ++v) { stops(build_rope_set_not, v, ""); }
    clean();
}

// =====================================================================================================================
// >>routing
// =====================================================================================================================
static void build_route(struct build * b) {
    struct gcuda_context * c = b->ctx;
    const int v = b->variant;
    const int64_t experts = v == 1   ? 301
                            : v == 2 ? 60
                            : v == 3 ? 512
                                     : 64,
                  tokens = v == 2 ? 1 : 11,
                  used = v == 1   ? 5
                         : v == 3 ? 32
                                  : 8;
    struct gcuda_tensor *logits = f32(b, experts, tokens, 1),
                        *probs = v % 2 ? gcuda_sigmoid(c, logits) : gcuda_soft_max(c, logits);
    struct gcuda_tensor * key = v == 3 || v == 4 ? gcuda_add(c, probs, f32(b, experts, 1, 1)) : probs;
    struct gcuda_tensor * ids = gcuda_argsort_top_k(c, v == 6 || v == 7 ? logits : key, (int) used);
    struct gcuda_tensor * w =
        gcuda_get_rows(c, gcuda_reshape_3d(c, v == 6 || v == 7 ? logits : probs, 1, experts, tokens), ids);
    if (v == 0 || v == 1 || v == 3 || v == 5) {
        struct gcuda_tensor *flat = gcuda_reshape_2d(c, w, used, tokens), *sum = gcuda_sum_rows(c, flat);
        if (v == 1) { sum = gcuda_clamp(c, sum, 0.6f, INFINITY); }
        w = gcuda_reshape_3d(
            c, gcuda_div(c, v == 3 ? gcuda_reshape_2d(c, w, used, tokens) : flat, sum), 1, used, tokens);
    }
    if (v == 6 || v == 7) { w = gcuda_soft_max(c, gcuda_reshape_2d(c, w, used, tokens)); }
    if (v == 2 || v == 5) { w = gcuda_scale(c, w, 2.5f); }
    out(b, w);
    out(b, gcuda_neg(c, gcuda_cast(c, gcuda_cont(c, ids), GCUDA_TYPE_F32)));
}

TEST(routing_is_one_launch) {
    // 1: with a clamp, which is in place
    for (int v = 0; v <= 7; ++v) { fires(build_route, v, "route", v == 1 ? 4 : 0); }
    clean();
}

static void build_route_not(struct build * b) {
    struct gcuda_context * c = b->ctx;
    const int v = b->variant;
    const int64_t experts = v == 0 ? 513 : 64, tokens = 3, used = v == 1 ? 33 : 4;
    struct gcuda_tensor * logits = f32(b, experts, tokens, v == 12 ? 2 : 1);
    struct gcuda_tensor * probs = v == 2   ? gcuda_soft_max_ext(c, logits, f32(b, experts, tokens, 1), 1.0f, 0.0f)
                                  : v == 3 ? gcuda_soft_max_ext(c, logits, NULL, 0.5f, 0.0f)
                                  : v == 4 ? gcuda_tanh(c, logits)
                                           : gcuda_soft_max(c, logits);
    if (v == 5) { gcuda_set_output(probs); }
    struct gcuda_tensor * order = gcuda_argsort(c, probs, v == 6 ? GCUDA_SORT_ORDER_ASC : GCUDA_SORT_ORDER_DESC);
    // two groups of tokens
    struct gcuda_tensor * ids = v == 12 ? gcuda_view_3d(c, order, used, tokens, 2, order->nb[1], order->nb[2], 0)
                                // not all tokens
                                : v == 13 ? gcuda_view_2d(c, order, used, tokens - 1, order->nb[1], 0)
                                          : gcuda_view_2d(c, order, used, tokens, order->nb[1], v == 7 ? 8 : 0);
    struct gcuda_tensor * rows =
        v == 12   ? gcuda_reshape_4d(c, probs, 1, experts, tokens, 2)
        : v == 13 ? gcuda_view_3d(c, probs, 1, experts, tokens - 1, probs->nb[0], probs->nb[1], 0)
                  : gcuda_reshape_3d(c, v == 8 ? f32(b, experts, tokens, 1) : probs, 1, experts, tokens);
    struct gcuda_tensor * w = gcuda_get_rows(c, rows, ids);
    if (v == 9) { gcuda_set_output(order); }
    out(b, w);
    if (v == 5) { out(b, probs); }
    if (v == 9) { out(b, order); }
    if (v == 10) { out(b, gcuda_view_1d(c, order, 6, 0)); } // sees more of it
    if (v == 11) { out(b, gcuda_neg(c, probs)); }
}

// The pattern with other nodes before or after it.
static void build_route_other(struct build * b) {
    struct gcuda_context * c = b->ctx;
    const int v = b->variant;
    const int64_t experts = 64, tokens = 3, used = 4;
    const bool is_late = v >= 8 && v <= 12;
    struct gcuda_tensor * logits =
        v == 1 ? gcuda_view_2d(c, f32(b, experts + 4, tokens, 1), experts, tokens, 4 * (size_t) (experts + 4), 0)
               : f32(b, experts, tokens, 1);
    struct gcuda_tensor * probs = is_late  ? logits
                                  : v == 1 ? gcuda_sigmoid(c, logits)
                                  : v == 2 ? gcuda_sigmoid_inplace(c, logits)
                                           : gcuda_soft_max(c, logits);
    struct gcuda_tensor * key = probs;
    if (v == 3) { gcuda_soft_max_add_sinks(probs, f32(b, 1, 1, 1)); }
    if (v >= 4 && v <= 6) { key = gcuda_add(c, probs, f32(b, experts, v == 4 ? tokens : 1, 1)); }
    if (v == 13) { key = gcuda_add(c, probs, gcuda_new_tensor_1d(c, GCUDA_TYPE_F16, experts)); }
    if (v == 5) { gcuda_set_output(key); }
    if (v == 6) { out(b, gcuda_neg(c, key)); }
    struct gcuda_tensor *ids = gcuda_argsort_top_k(c, key, (int) used),
                        *rows = gcuda_reshape_3d(c, probs, 1, experts, tokens);
    struct gcuda_tensor * w = gcuda_get_rows(c, rows, ids);
    if (is_late) {
        struct gcuda_tensor * chosen = v == 11 ? w : gcuda_reshape_2d(c, w, used, tokens);
        struct gcuda_tensor * mask = f32(b, used, tokens, 1);
        w = v == 8   ? gcuda_soft_max_ext(c, chosen, NULL, 0.5f, 0.0f)
            : v == 9 ? gcuda_soft_max_ext(c, chosen, mask, 1.0f, 0.0f)
                     : gcuda_soft_max(c, chosen);
        if (v == 12) { gcuda_soft_max_add_sinks(w, f32(b, 1, 1, 1)); }
    }
    out(b, w);
    if (v == 5) { out(b, key); }
    if (v == 7) { out(b, gcuda_neg(c, rows)); } // the probabilities as rows, read once more
    if (v == 10) { out(b, gcuda_neg(c, gcuda_reshape_2d(c, w->src[0], used, tokens))); } // and those chosen
}

TEST(routing_of_other_kinds_stays_apart) {
    for (int v = 1; v <= 13; ++v) { stops(build_route_other, v, ""); }
    clean();
}

// With several tokens neither ids nor weights may overlap logits, biases or each other; with one token all logits are
// read first. Overlapping results equal those of separate nodes.
static void route_once(int64_t tokens, int at_order, int at_weights, bool is_fused, bool has_nan) {
    gcuda_backend_t plain = without_plans(), fused = gcuda_backend_cuda_init(0);
    REQUIRE(plain != NULL && fused != NULL);
    gcuda_backend_buffer_t buffer = gcuda_backend_alloc_buffer(plain, 1 << 16);
    struct place p = place_begin();
    enum { EXPERTS_HERE = 64, USED_HERE = 4 };
    struct gcuda_tensor *logits = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, EXPERTS_HERE, tokens),
                        *bias = gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_F32, EXPERTS_HERE);
    struct gcuda_tensor *probs = gcuda_soft_max(p.ctx, logits), *key = gcuda_add(p.ctx, probs, bias);
    struct gcuda_tensor * order = gcuda_argsort(p.ctx, key, GCUDA_SORT_ORDER_DESC);
    struct gcuda_tensor * ids = gcuda_view_2d(p.ctx, order, USED_HERE, tokens, order->nb[1], 0);
    struct gcuda_tensor *rows = gcuda_reshape_3d(p.ctx, probs, 1, EXPERTS_HERE, tokens),
                        *w = gcuda_get_rows(p.ctx, rows, ids);
    struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
    CHECK_OK(gcuda_build_forward_expand(graph, w));
    char * base = (char *) gcuda_backend_buffer_get_base(buffer);
    struct gcuda_tensor * all[6] = { logits, bias, probs, key, order, w };
    for (int i = 0; i < 6; ++i) {
        CHECK_OK(gcuda_backend_tensor_alloc(buffer, all[i],
            base + 4096 * (i == 4      ? at_order
                              : i == 5 ? at_weights
                                       : i)));
    }
    CHECK_OK(gcuda_backend_view_init(ids));
    CHECK_OK(gcuda_backend_view_init(rows));
    static float got[2][4 * USED_HERE];
    for (int i = 0; i < 2; ++i) {
        fill(logits, 1);
        fill(bias, 2);
        // fewer numbers than there are places in the first token alone
        for (int k = 1; k < EXPERTS_HERE && has_nan; k += 2) {
            const float bad = k % 4 == 1 ? NAN : -NAN;
            CHECK_OK(gcuda_backend_tensor_set(bias, &bad, sizeof(float) * (size_t) k, sizeof(float)));
            CHECK_OK(
                gcuda_backend_tensor_set(bias, &bad, sizeof(float) * (size_t) (k < 61 ? k - 1 : k), sizeof(float)));
        }
        // get_rows by itself does read probabilities
        w->data = base + 4096 * (i == 0 && at_weights == 2 ? 5 : at_weights);
        CHECK_OK(gcuda_backend_graph_compute(i == 0 ? plain : fused, graph));
        CHECK_OK(gcuda_backend_tensor_get(w, got[i], 0, gcuda_nbytes(w)));
    }
    CHECK_MSG(memcmp(got[0], got[1], gcuda_nbytes(w)) == 0, "%d tokens, ids at %d, weights at %d: other bits",
        (int) tokens, at_order, at_weights);
    struct gcuda_cuda_plan_stats s;
    CHECK_OK(gcuda_backend_cuda_get_plan_stats(fused, &s));
    CHECK_MSG((s.n_fused == 1) == is_fused, "%d tokens, ids at %d, weights at %d: %d fused", (int) tokens, at_order,
        at_weights, (int) s.n_fused);
    place_end(&p);
    gcuda_backend_buffer_free(buffer);
    gcuda_backend_free(fused);
    gcuda_backend_free(plain);
}

TEST(routing_does_not_write_over_what_it_reads) {
    for (int64_t tokens = 1; tokens <= 3; tokens += 2) {
        route_once(tokens, 4, 5, true, false);
        route_once(tokens, 0, 5, tokens == 1, false); // on the logits
        route_once(tokens, 4, 0, tokens == 1, false);
        route_once(tokens, 1, 5, false, false); // on the biases
        route_once(tokens, 4, 1, false, false);
        route_once(tokens, 4, 4, false, false); // weights on the ids
        route_once(tokens, 3, 2, true, false);  // on what is not there
        route_once(tokens, 4, 5, true, true);   // two experts with a number, four chosen: the rest by index
    }
    clean();
}

TEST(routing_stays_apart) {
    for (int v = 0; v <= 13; ++v) { stops(build_route_not, v, ""); }
    clean();
}

// A norm that is not whole stays apart: the rest is one launch.
static void build_route_part(struct build * b) {
    struct gcuda_context * c = b->ctx;
    const int v = b->variant;
    struct gcuda_tensor *probs = gcuda_soft_max(c, f32(b, 64, 3, 1)), *ids = gcuda_argsort_top_k(c, probs, 4);
    struct gcuda_tensor *w = gcuda_get_rows(c, gcuda_reshape_3d(c, probs, 1, 64, 3), ids),
                        *flat = gcuda_reshape_2d(c, w, 4, 3);
    struct gcuda_tensor * sum = gcuda_sum_rows(c, flat);
    if (v == 0) { sum = gcuda_clamp(c, sum, 0.1f, 2.0f); }
    if (v == 1) { gcuda_set_output(w); }
    if (v == 2) { gcuda_set_output(sum); }
    struct gcuda_tensor * y = v == 3 ? gcuda_div(c, f32(b, 4, 3, 1), sum) : gcuda_div(c, flat, sum);
    out(b, v == 4 ? gcuda_scale_bias(c, y, 2.0f, 0.5f) : y); // no factor alone
    if (v == 1) { out(b, w); }
    if (v == 2) { out(b, sum); }
}

TEST(a_norm_that_is_not_whole_stays_behind) {
    for (int v = 0; v <= 4; ++v) { stops(build_route_part, v, "route"); }
    clean();
}

// =====================================================================================================================
// >>products
// =====================================================================================================================
enum { K = 288, M = 37 };

static struct gcuda_tensor * weights(struct build * b, enum gcuda_type type) {
    return gcuda_new_tensor_2d(b->ctx, type, K, M);
}

static void build_product(struct build * b) {
    struct gcuda_context * c = b->ctx;
    const int v = b->variant;
    const enum gcuda_type type = v == 4 ? GCUDA_TYPE_MXFP4 : v % 2 ? GCUDA_TYPE_Q4_0 : GCUDA_TYPE_Q8_0;
    const int64_t n = v == 2 ? 2 : v == 3 || v == 5 ? 5 : v == 6 ? 8 : 1;
    struct gcuda_tensor * x = v == 7 ? f32(b, K, 2, 3) : f32(b, K, n, 1);
    struct gcuda_tensor *y = gcuda_mul_mat(c, weights(b, type), x), *bias = f32(b, M, 1, 1),
                        *whole = f32(b, M, v == 7 ? 2 : n, v == 7 ? 3 : 1);
    switch (v) {
        case 0: y = gcuda_add(c, y, bias); break;
        case 1: y = gcuda_add(c, whole, y); break;
        case 2: y = gcuda_add(c, whole, gcuda_add(c, y, bias)); break;
        case 3: y = gcuda_add(c, gcuda_gelu(c, gcuda_add(c, y, bias)), whole); break;
        case 4: y = gcuda_add(c, gcuda_scale(c, gcuda_mul(c, y, bias), 0.3f), whole); break;
        case 5: y = gcuda_silu(c, y); break;
        case 6: y = gcuda_mul(c, gcuda_relu(c, y), f32(b, 1, n, 1)); break;
        case 7: y = gcuda_add(c, gcuda_gelu_erf(c, y), gcuda_permute(c, f32(b, 2, M, 3), 1, 0, 2, 3)); break;
        case 8: y = gcuda_add(c, gcuda_gelu_quick(c, y), f32(b, 1, 1, 1)); break;
        default: y = gcuda_add_inplace(c, y, whole); break;
    }
    out(b, y);
}

TEST(what_follows_a_product_goes_into_it) {
    for (int v = 0; v <= 9; ++v) { fires(build_product, v, "mul_mat + epilogue", 1); }
    clean();
}

static void build_product_not(struct build * b) {
    struct gcuda_context * c = b->ctx;
    const int v = b->variant;
    const int64_t n = v == 12 ? 3 : 1; // goes to cuBLAS
    struct gcuda_tensor * x = v == 1 ? gcuda_new_tensor_2d(c, GCUDA_TYPE_F32, K, 1) : f32(b, K, n, 1);
    struct gcuda_tensor * w = weights(b, v >= 14 ? GCUDA_TYPE_F16 : v == 12 ? GCUDA_TYPE_F32 : GCUDA_TYPE_Q4_0);
    // floats that do not begin at 16 bytes
    if (v == 2) { w = gcuda_view_2d(c, f32(b, 2 * K, M, 1), K, M, 2 * K * 4, 4); }
    // rows end within 16 bytes
    if (v == 13) { w = gcuda_new_tensor_2d(c, GCUDA_TYPE_F16, K + 4, M), x = f32(b, K + 4, 1, 1); }
    if (v == 14) { x = gcuda_new_tensor_2d(c, GCUDA_TYPE_F16, K, 1); }
    if (v == 15) { x = gcuda_view_2d(c, f32(b, K + 1, 1, 1), K, 1, 4 * K, 4); }
    struct gcuda_tensor *y = gcuda_mul_mat(c, w, x), *bias = f32(b, M, 1, 1), *z = NULL;
    if (v == 1) { gcuda_mul_mat_set_prec(y, GCUDA_PREC_F32); }
    if (v == 3) { gcuda_set_output(y); }
    switch (v) {
        case 4: z = gcuda_add(c, y, y); break;
        case 5: z = gcuda_add(c, f32(b, M, 2, 1), y); break; // the product repeats
        case 6: z = gcuda_add(c, y, gcuda_new_tensor_1d(c, GCUDA_TYPE_F16, M)); break;
        case 7: z = gcuda_scale_bias(c, y, 2.0f, 1.0f); break;
        case 8: z = gcuda_sub(c, y, bias); break;
        case 9: z = gcuda_add(c, gcuda_reshape_2d(c, y, 1, M), gcuda_reshape_2d(c, bias, 1, M)); break;
        case 10: z = gcuda_tanh(c, y); break;
        default: z = gcuda_add(c, y, bias); break;
    }
    out(b, z);
    if (v == 3) { out(b, y); }
    if (v == 11) { out(b, gcuda_neg(c, y)); } // another reader
}

TEST(products_stay_apart) {
    for (int v = 1; v <= 15; ++v) { stops(build_product_not, v, ""); }
    clean();
}

static const bool has_tiles = GCUDA_SIM_CC >= 800; // below, products with these columns take another path
#define TILES (has_tiles ? "several products, tiles" : "")

// Of 9 to 16 columns: in tiles, the last of which have fewer rows; the sums are those of the product by itself.
static void build_tiles(struct build * b) {
    static const enum gcuda_type types[] = { GCUDA_TYPE_Q8_0, GCUDA_TYPE_Q4_0, GCUDA_TYPE_Q6_K, GCUDA_TYPE_Q4_K };
    struct gcuda_context * c = b->ctx;
    const int v = b->variant;
    const int64_t m = v == 3 ? 300 : M, k = v % 4 >= 2 ? 512 : v == 4 ? 4096 : K, n = v == 0 ? 9 : v < 4 ? 16 : 8 + v;
    struct gcuda_tensor *w = gcuda_new_tensor_2d(c, types[v % 4], k, m), *x = f32(b, k, n, 1);
    struct gcuda_tensor *y = gcuda_mul_mat(c, w, x), *bias = f32(b, m, 1, 1), *whole = f32(b, m, n, 1);
    switch (v) {
        case 0:
        case 12: y = gcuda_gelu(c, gcuda_add(c, y, bias)); break;
        case 1: y = gcuda_add(c, whole, y); break;
        case 2:
            y = gcuda_add(
                c, gcuda_scale(c, gcuda_mul(c, gcuda_silu(c, gcuda_add(c, y, bias)), f32(b, 1, n, 1)), 0.3f), whole);
            break;
        case 3: y = gcuda_add(c, gcuda_gelu_erf(c, y), gcuda_permute(c, f32(b, n, m, 1), 1, 0, 2, 3)); break;
        case 4: y = gcuda_add_inplace(c, whole, gcuda_add(c, y, bias)); break; // the residual is where the result goes
        case 5: y = gcuda_mul(c, gcuda_relu(c, y), whole); break;
        // a residual that repeats
        case 6: y = gcuda_add(c, gcuda_gelu_quick(c, gcuda_add(c, y, f32(b, 1, 1, 1))), bias); break;
        default: y = gcuda_add_inplace(c, y, whole); break;
    }
    out(b, y);
}

// The last of these steps is none that may come there: bias, gate, factor, scale, residual. Of few columns, and of
// those in tiles.
static void build_product_order(struct build * b) {
    struct gcuda_context * c = b->ctx;
    const int v = b->variant;
    const int64_t n = v < 5 ? 2 : 12;
    struct gcuda_tensor *y = gcuda_mul_mat(c, weights(b, GCUDA_TYPE_Q8_0), f32(b, K, n, 1)), *row = f32(b, M, 1, 1),
                        *whole = f32(b, M, n, 1);
    switch (v % 5) {
        case 0: y = gcuda_mul(c, gcuda_scale(c, y, 0.3f), row); break;
        case 1: y = gcuda_add(c, gcuda_add(c, gcuda_add(c, y, row), whole), row); break;
        case 2: y = gcuda_silu(c, gcuda_mul(c, y, row)); break;
        case 3: y = gcuda_scale(c, gcuda_add(c, gcuda_add(c, y, row), whole), 0.3f); break;
        default: y = gcuda_silu(c, gcuda_gelu(c, y)); break;
    }
    out(b, y);
}

TEST(steps_out_of_order_stay_behind) {
    const struct options two = { false, false, false, false, 2 };
    for (int v = 0; v <= (has_tiles ? 9 : 4); ++v) { run_case(build_product_order, v, "mul_mat + epilogue", two); }
    clean();
}

TEST(what_follows_a_product_in_tiles_goes_into_it) {
    for (int v = 0; v <= 7 && has_tiles; ++v) { fires(build_tiles, v, "mul_mat + epilogue", 1); }
    clean();
}

static void build_tiles_not(struct build * b) {
    struct gcuda_context * c = b->ctx;
    const int v = b->variant;
    // 0, 1, 2: other kernels; 11, 12: wider ones
    const int64_t n = v == 0 ? 129 : v == 11 ? 17 : v == 12 ? 32 : 12, m = v == 1 ? 15 : M;
    struct gcuda_tensor * x = f32(b, K, n, v == 9 || v == 10 ? 2 : 1); // more matrices of columns, of both
    struct gcuda_tensor * w = gcuda_new_tensor_3d(c, v == 2 ? GCUDA_TYPE_F16 : GCUDA_TYPE_Q4_0, K, m, v == 10 ? 2 : 1);
    struct gcuda_tensor *y = gcuda_mul_mat(c, w, x), *z = NULL;
    if (v == 3) { gcuda_mul_mat_set_prec(y, GCUDA_PREC_F32); }
    if (v == 4) { gcuda_set_output(y); }
    switch (v) {
        case 5: z = gcuda_swiglu_split(c, y, gcuda_mul_mat(c, gcuda_dup_tensor(c, w), x)); break; // no second product
        case 6: z = gcuda_add(c, y, gcuda_new_tensor_1d(c, GCUDA_TYPE_F16, m)); break;
        case 7: z = gcuda_tanh(c, y); break;
        default: z = gcuda_add(c, y, f32(b, m, 1, 1)); break;
    }
    out(b, z);
    if (v == 4) { out(b, y); }
    if (v == 8) { out(b, gcuda_neg(c, y)); } // another reader
}

TEST(products_in_tiles_stay_apart) {
    // 5: the products are one launch, the gate another
    for (int v = 0; v <= 12; ++v) { stops(build_tiles_not, v, v == 5 ? TILES : ""); }
    clean();
}

// A residual that a norm follows goes there, the steps before it into the product.
static void build_tiles_norm(struct build * b) {
    struct gcuda_context * c = b->ctx;
    const int v = b->variant;
    const int64_t n = v == 2 ? 4 : 12;
    struct gcuda_tensor *y = gcuda_mul_mat(c, weights(b, GCUDA_TYPE_Q4_0), f32(b, K, n, 1)), *row = f32(b, M, 1, 1);
    if (v == 1) { y = gcuda_add(c, y, row); }
    struct gcuda_tensor * sum = gcuda_add(c, y, f32(b, M, n, 1));
    gcuda_set_output(sum);
    out(b, gcuda_mul(c, gcuda_rms_norm(c, sum, 1e-5f), v == 3 ? f32(b, 1, n, 1) : row)); // 3: no row, so no such norm
    out(b, sum);
}

TEST(a_residual_behind_tiles_goes_into_the_norm) {
    stops(build_tiles_norm, 0, "add + rms_norm + mul");
    if (has_tiles) { stops(build_tiles_norm, 1, "mul_mat + epilogue, add + rms_norm + mul"); }
    stops(build_tiles_norm, 2, "mul_mat + epilogue, rms_norm + mul");
    if (has_tiles) { stops(build_tiles_norm, 3, "mul_mat + epilogue"); }
    clean();
}

// The result overlaps the activations or the weights that other blocks read.
static void results_lie_apart(int64_t n, enum gcuda_type type) {
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    struct place p = place_begin();
    struct gcuda_tensor *w = gcuda_new_tensor_2d(p.ctx, type, K, M),
                        *x = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, K, n);
    struct gcuda_tensor * y = gcuda_silu(p.ctx, gcuda_mul_mat(p.ctx, w, x));
    struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
    CHECK_OK(gcuda_build_forward_expand(graph, y));
    REQUIRE(backend != NULL && place_alloc(&p, backend));
    void *own = y->data, *places[3] = { own, x->data, w->data };
    for (int i = 0; i < 3; ++i) {
        y->data = places[i];
        gcuda_backend_graph_plan_t plan = gcuda_backend_graph_plan_create(backend, graph);
        REQUIRE(plan != NULL);
        CHECK_EQ_I(((const struct gcudai_cuda_plan *) plan)->n_steps, i == 0 && (n == 1 || has_tiles) ? 1 : 2);
        gcuda_backend_graph_plan_free(backend, plan);
    }
    y->data = own;
    place_end(&p);
    gcuda_backend_free(backend);
}

TEST(results_of_products_lie_apart) {
    results_lie_apart(12, GCUDA_TYPE_Q4_0); // in tiles
    results_lie_apart(1, GCUDA_TYPE_Q4_0);
    results_lie_apart(1, GCUDA_TYPE_F16);
    clean();
}

// Rows of the weight are on two devices: what follows is not fused, with the bits of a whole weight, and the norm
// before is.
TEST(products_of_split_weights_stay_apart) {
    static float got[2][256];
    for (int turn = 0; turn < 2; ++turn) {
        const float shares[2] = { 1, 1 };
        char names[200];
        fresh(2, 64 * MB, 1);
        gcuda_backend_t backend = gcuda_backend_cuda_init(0);
        struct place weight = place_begin(), p = place_begin();
        struct gcuda_tensor *w = gcuda_new_tensor_2d(weight.ctx, GCUDA_TYPE_Q4_0, K, 256),
                            *x = gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_F32, K);
        struct gcuda_tensor *scale = gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_F32, K),
                            *bias = gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_F32, 256);
        struct gcuda_tensor *norm = gcuda_mul(p.ctx, gcuda_rms_norm(p.ctx, x, 1e-5f), scale),
                            *y = gcuda_add(p.ctx, gcuda_mul_mat(p.ctx, w, norm), bias);
        struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
        CHECK_OK(gcuda_build_forward_expand(graph, y));
        REQUIRE(backend != NULL && place_alloc(&p, backend));
        weight.buffer = gcuda_backend_alloc_ctx_tensors_from_buft(
            weight.ctx, turn == 0 ? gcuda_backend_get_default_buffer_type(backend)
                                  : gcuda_backend_cuda_split_buffer_type(0, shares, 2));
        REQUIRE(weight.buffer != NULL);
        fill(w, 1), fill(x, 2), fill(scale, 3), fill(bias, 4);
        for (int run = 0; run < 3; ++run) { // launched, captured, replayed
            CHECK_OK(gcuda_backend_graph_compute(backend, graph));
            CHECK_OK(gcuda_backend_tensor_get(y, got[turn], 0, sizeof got[turn]));
            CHECK_MSG(memcmp(got[0], got[turn], sizeof got[0]) == 0, "turn %d, run %d: other bits", turn, run);
        }
        gcuda_backend_graph_plan_t plan = gcuda_backend_graph_plan_create(backend, graph);
        REQUIRE(plan != NULL);
        names_of((const struct gcudai_cuda_plan *) plan, names, sizeof names);
        CHECK_MSG(strcmp(names, turn == 0 ? "rms_norm + mul, mul_mat + epilogue" : "rms_norm + mul") == 0,
            "turn %d: \"%s\"", turn, names);
        gcuda_backend_graph_plan_free(backend, plan);
        place_end(&p);
        place_end(&weight);
        gcuda_backend_free(backend);
    }
    clean();
}

// Two products and a gate over both, either of them first in the graph.
static void build_pair(struct build * b) {
    struct gcuda_context * c = b->ctx;
    const int v = b->variant;
    const enum gcuda_type type = v == 4 ? GCUDA_TYPE_MXFP4 : v % 2 ? GCUDA_TYPE_Q4_0 : GCUDA_TYPE_Q6_K;
    struct gcuda_tensor *w0 = gcuda_new_tensor_2d(c, type, type == GCUDA_TYPE_Q6_K ? 512 : K, M),
                        *w1 = gcuda_new_tensor_2d(c, type, w0->ne[0], M), *x = f32(b, w0->ne[0], 1, 1);
    struct gcuda_tensor *p0 = gcuda_mul_mat(c, w0, x), *p1 = gcuda_mul_mat(c, w1, x), *y = NULL;
    if (v == 2 || v == 3) {
        p0 = gcuda_add(c, p0, f32(b, M, 1, 1)),
        p1 = v == 2 ? gcuda_add(c, f32(b, M, 1, 1), p1) : gcuda_add(c, p1, f32(b, M, 1, 1));
    }
    switch (v) {
        case 0: y = gcuda_swiglu_split(c, p0, p1); break;
        case 1: y = gcuda_reglu_split(c, p1, p0); break;
        case 2: y = gcuda_geglu_split(c, p0, p1); break;
        case 3: y = gcuda_swiglu_oai(c, p0, p1, 1.702f, 0.4f); break;
        case 4: y = gcuda_add(c, gcuda_scale(c, gcuda_geglu_erf_split(c, p0, p1), 0.5f), f32(b, M, 1, 1)); break;
        default: y = gcuda_geglu_quick_split(c, p0, p1); break;
    }
    out(b, y);
}

TEST(gate_and_up_are_one_launch) {
    for (int v = 0; v <= 5; ++v) { fires(build_pair, v, "mul_mat + epilogue", 1); }
    clean();
}

static void build_pair_not(struct build * b) {
    struct gcuda_context * c = b->ctx;
    const int v = b->variant;
    const int64_t n = v == 0 ? 2 : 1;
    const enum gcuda_type type = v == 8 ? GCUDA_TYPE_F16 : GCUDA_TYPE_Q4_0;
    struct gcuda_tensor *x = f32(b, K, n, 1), *w = weights(b, type), *row = f32(b, M, 1, 1);
    struct gcuda_tensor * w1 =
        v == 3 ? gcuda_view_2d(c, gcuda_new_tensor_2d(c, GCUDA_TYPE_Q4_0, K, 2 * M), K, M, 2 * w->nb[1], 0)
               // IQ4_NL has the layout of Q4_0
               : weights(b, v == 1    ? GCUDA_TYPE_Q8_0
                            : v == 11 ? GCUDA_TYPE_IQ4_NL
                                      : type);
    struct gcuda_tensor *p0 = gcuda_mul_mat(c, w, x), *p1 = gcuda_mul_mat(c, w1, v == 2 ? f32(b, K, n, 1) : x);
    if (v == 8) { gcuda_mul_mat_set_prec(p1, GCUDA_PREC_F32); }
    if (v == 4 || v == 9) { gcuda_set_output(p1); }
    if (v == 10) { gcuda_set_output(p0); }
    const bool has_biases = v == 9 || v == 10;
    // 5: one has a bias
    struct gcuda_tensor *u = has_biases ? gcuda_add(c, p0, row) : p0,
                        *g = v == 5 || has_biases ? gcuda_add(c, p1, row) : p1;
    out(b, v == 6 ? gcuda_swiglu_split(c, p0, p0) : gcuda_swiglu_split(c, u, g));
    if (v == 4 || v == 6 || v == 9) { out(b, p1); }
    if (v == 10) { out(b, p0); }
    if (v == 7) { out(b, gcuda_neg(c, p0)); }
}

TEST(gate_and_up_stay_apart) { // 0, 4, 7: the products are one launch, the gate another; 5, 9, 10: one has its bias
    for (int v = 0; v <= 11; ++v) {
        const bool is_group = v == 0 || v == 4 || v == 7;
        stops(build_pair_not, v,
            is_group                      ? "several products"
            : v == 5 || v == 9 || v == 10 ? "mul_mat + epilogue"
                                          : "");
    }
    clean();
}

// Queries, keys and values.
static void build_group(struct build * b) {
    struct gcuda_context * c = b->ctx;
    const int v = b->variant;
    const enum gcuda_type type = v == 1 ? GCUDA_TYPE_MXFP4 : v == 2 ? GCUDA_TYPE_Q6_K : GCUDA_TYPE_Q4_0;
    const int64_t k = v == 2 ? 2560 : v == 3 ? 4096 + 32 : v >= 4 ? 1024 : K; // 4, 5: rows in pairs, and not
    struct gcuda_tensor * x = f32(b, k, 1, 1);
    for (int i = 0; i < (v == 1 ? 2 : 3); ++i) {
        out(b, gcuda_mul_mat(c,
                   gcuda_new_tensor_2d(c, type, k,
                       v == 3 || v == 4 ? 700 - 300 * i
                       : i == 0         ? 150
                       : i == 1         ? 1
                                        : M),
                   x));
    }
}

TEST(products_of_one_column_are_one_launch) {
    for (int v = 0; v <= 5; ++v) { fires(build_group, v, "several products", 1); }
    clean();
}

// Up to four products, of m rows each, with the same columns.
struct beside {
    enum gcuda_type type;
    int64_t k, m[4];
};
enum columns { IN_F32, IN_F16, APART };
static void build_beside(struct build * b, const struct beside * p, int64_t n, enum columns columns) {
    struct gcuda_context * c = b->ctx;
    struct gcuda_tensor * x = columns == IN_F16 ? gcuda_new_tensor_2d(c, GCUDA_TYPE_F16, p->k, n)
                              : columns == APART
                                  ? gcuda_view_2d(c, f32(b, p->k + 4, n, 1), p->k, n, (size_t) (p->k + 4) * 4, 16)
                                  : f32(b, p->k, n, 1);
    for (int i = 0; i < 4 && p->m[i] > 0; ++i) {
        out(b, gcuda_mul_mat(c, gcuda_new_tensor_2d(c, p->type, p->k, p->m[i]), x));
    }
}

// Several columns: variant 16 * which + columns. Covers rounds of tiles in only some blocks, rows with more steps than
// a block has warps, and rows at multiples of 2, 4 and 16 bytes. Also a codebook, F16 columns, strided columns, four
// products.
enum { FEW_GROUPS = 8 };
static void build_few(struct build * b) {
    static const struct beside groups[FEW_GROUPS] = {
        { GCUDA_TYPE_Q4_0, K, { 150, 1, M, 0 } },
        { GCUDA_TYPE_Q8_0, 8192 + 512 + 32, { 70, 33, 16, 0 } },
        { GCUDA_TYPE_Q6_K, 2560, { 17, 300, 0, 0 } },
        { GCUDA_TYPE_MXFP4, 4096, { 700, 130, 40, 0 } },
        { GCUDA_TYPE_IQ3_S, 512, { 20, 90, 64, 0 } },
        { GCUDA_TYPE_Q4_K, 512, { 32, 8, 8, 0 } },
        { GCUDA_TYPE_Q4_1, 1024, { M, M, M, M } },
        { GCUDA_TYPE_Q5_0, 1024, { 256, 64, 64, 0 } },
    };
    const int which = b->variant / 16;
    build_beside(b, &groups[which], b->variant % 16, which == 5 ? IN_F16 : which == 7 ? APART : IN_F32);
}

// Below 8.0 two columns alone, and none of a codebook.
TEST(products_of_few_columns_are_one_launch) {
    static const int columns[] = { 2, 3, 5, 8 };
    for (int which = 0; which < FEW_GROUPS; ++which) {
        for (int i = 0; i < 4; ++i) {
            const int v = 16 * which + columns[i];
            const bool may = GCUDA_SIM_CC >= 800 || (columns[i] == 2 && which != 4);
            if (!may) {
                stops(build_few, v, "");
            } else if (i == 0 || which == i) {
                fires(build_few, v, "several products", which == 6 ? 2 : 1);
            } else {
                stops(build_few, v, "several products");
            }
        }
    }
    clean();
}

static void build_few_not(struct build * b) {
    struct gcuda_context * c = b->ctx;
    const int v = b->variant;
    const int64_t n = v == 0 ? 9 : 2, k = v == 6 ? 256 : K;
    const enum gcuda_type type = v == 1 ? GCUDA_TYPE_F16 : GCUDA_TYPE_Q4_0;
    struct gcuda_tensor *x = f32(b, k, n, v == 5 ? 2 : 1), *z = v == 2 ? f32(b, k, n, 1) : x;
    struct gcuda_tensor * w = gcuda_new_tensor_3d(c, type, k, M, v == 4 ? 2 : 1);
    struct gcuda_tensor * other = gcuda_new_tensor_3d(c, v == 3 ? GCUDA_TYPE_Q8_0 : type, k, M, v == 4 ? 2 : 1);
    if (v == 4) { x = z = f32(b, k, n, 2); } // two matrices; 5: of columns
    // the first is at 16 bytes
    if (v == 6) { other = gcuda_view_2d(c, gcuda_new_tensor_2d(c, type, k, M + 1), k, M, w->nb[1], 18); }
    // rows apart
    if (v == 7) { other = gcuda_view_2d(c, gcuda_new_tensor_2d(c, type, k, 2 * M), k, M, 2 * w->nb[1], 0); }
    out(b, gcuda_mul_mat(c, w, x));
    if (v == 8) { out(b, gcuda_neg(c, x)); } // something between them
    struct gcuda_tensor * y = gcuda_mul_mat(c, other, z);
    if (v == 9) { gcuda_mul_mat_set_prec(y, GCUDA_PREC_F32); }
    out(b, v == 10 ? gcuda_add(c, y, f32(b, M, 1, 1)) : y); // a step that goes into it
}

TEST(products_of_few_columns_stay_apart) {
    // 0: another kernel
    for (int v = 0; v <= 10; ++v) { stops(build_few_not, v, v == 10 ? "mul_mat + epilogue" : v == 0 ? TILES : ""); }
    clean();
}

static void build_group_not(struct build * b) {
    struct gcuda_context * c = b->ctx;
    const int v = b->variant;
    struct gcuda_tensor *x = f32(b, K, 1, 1), *z = v == 0 ? f32(b, K, 1, 1) : x;
    struct gcuda_tensor * w = v == 3 ? gcuda_new_tensor_3d(c, GCUDA_TYPE_Q4_0, K, M, 1) : weights(b, GCUDA_TYPE_Q4_0);
    struct gcuda_tensor * other = weights(b, v == 1 ? GCUDA_TYPE_Q8_0 : v == 2 ? GCUDA_TYPE_F32 : GCUDA_TYPE_Q4_0);
    // rows apart
    if (v == 3) { other = gcuda_view_2d(c, gcuda_new_tensor_2d(c, GCUDA_TYPE_Q4_0, K, 2 * M), K, M, 2 * w->nb[1], 0); }
    out(b, gcuda_mul_mat(c, w, x));
    if (v == 4) { out(b, gcuda_neg(c, x)); } // something between them
    out(b, gcuda_mul_mat(c, other, z));
}

TEST(products_of_one_column_stay_apart) {
    for (int v = 0; v <= 4; ++v) { stops(build_group_not, v, ""); }
    clean();
}

// The second product's result is in the memory of the activations.
static void a_result_lies_on_columns(int64_t n) {
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    struct place p = place_begin();
    struct gcuda_tensor *w[2], *y[2], *x = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, 64, n);
    struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
    gcuda_backend_buffer_t buffer = gcuda_backend_alloc_buffer(backend, 1 << 16);
    char * base = (char *) gcuda_backend_buffer_get_base(buffer);
    for (int i = 0; i < 2; ++i) {
        w[i] = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_Q4_0, 64, 64);
        y[i] = gcuda_mul_mat(p.ctx, w[i], x);
        CHECK_OK(gcuda_build_forward_expand(graph, y[i]));
        CHECK_OK(gcuda_backend_tensor_alloc(buffer, w[i], base + 8192 * (i + 1)));
    }
    CHECK_OK(gcuda_backend_tensor_alloc(buffer, x, base));
    CHECK_OK(gcuda_backend_tensor_alloc(buffer, y[0], base + 32768));
    CHECK_OK(gcuda_backend_tensor_alloc(buffer, y[1], base));
    for (int i = 0; i < 2; ++i) {
        gcuda_backend_graph_plan_t plan = gcuda_backend_graph_plan_create(backend, graph);
        REQUIRE(plan != NULL);
        CHECK_EQ_I(((const struct gcudai_cuda_plan *) plan)->n_steps, i == 0 ? 2 : 1);
        gcuda_backend_graph_plan_free(backend, plan);
        y[1]->data = base + 40960; // apart
    }
    place_end(&p);
    gcuda_backend_buffer_free(buffer);
    gcuda_backend_free(backend);
}

TEST(a_result_on_the_columns_keeps_products_apart) {
    a_result_lies_on_columns(1);
    a_result_lies_on_columns(2);
    if (has_tiles) { a_result_lies_on_columns(8); }
    if (has_tiles) { a_result_lies_on_columns(12); }
    clean();
}

// Columns on path TILE: variant 256 * which + columns. Covers blocks with quarters of tiles and with whole ones, a last
// tile with few rows, all tile widths, and more columns than a tile. Also F16 columns, strided columns, two and four
// products.
enum { TILE_GROUPS = 7 };
static void build_tile_group(struct build * b) {
    static const struct beside groups[TILE_GROUPS] = {
        { GCUDA_TYPE_Q4_0, K, { 150, 16, M, 0 } },
        { GCUDA_TYPE_Q8_0, 2048 + 32, { 300, 33, 16, 0 } },
        { GCUDA_TYPE_Q6_K, 2560, { 17, 600, 0, 0 } },
        { GCUDA_TYPE_MXFP4, 1024, { 700, 130, 40, 0 } },
        { GCUDA_TYPE_IQ3_S, 512, { 20, 90, 64, 0 } },
        { GCUDA_TYPE_Q4_K, 512, { 32, 16, 16, 0 } },
        { GCUDA_TYPE_Q4_1, 1024, { M, M, M, M } },
    };
    const int which = b->variant / 256;
    build_beside(b, &groups[which], b->variant % 256, which == 5 ? IN_F16 : which == 4 ? APART : IN_F32);
}

TEST(products_in_tiles_are_one_launch) {
    static const int columns[TILE_GROUPS] = { 9, 16, 32, 12, 33, 100, 24 };
    for (int which = 0; which < TILE_GROUPS; ++which) {
        const int v = 256 * which + columns[which];
        if (has_tiles) {
            fires(build_tile_group, v, TILES, which == 6 ? 2 : 1); // three, and one that is left
        } else {
            stops(build_tile_group, v, "");
        }
    }
    if (has_tiles) { stops(build_tile_group, 128, TILES); }
    clean();
}

static void build_tile_group_not(struct build * b) {
    struct gcuda_context * c = b->ctx;
    const int v = b->variant;
    const int64_t n = v == 0 ? 16 : v == 1 ? 17 : v == 2 ? 130 : 12, k = v == 3 ? 64 : K;
    const enum gcuda_type type = v == 4 ? GCUDA_TYPE_F16 : GCUDA_TYPE_Q4_0;
    // 5, 6: matrices of columns
    struct gcuda_tensor *x = f32(b, k, n, v == 5 || v == 6 ? 2 : 1), *z = v == 7 ? f32(b, k, n, 1) : x;
    struct gcuda_tensor *w[2], *y[2];
    for (int i = 0; i < 2; ++i) {
        const int64_t m = i == 1 && v == 8 ? 15 : M; // rows that are not rounded to BF16
        w[i] = gcuda_new_tensor_3d(c, i == 1 && v == 9 ? GCUDA_TYPE_Q8_0 : type, k, m, v == 6 ? 2 : 1);
    }
    // rows apart
    if (v == 10) { w[1] = gcuda_view_2d(c, gcuda_new_tensor_2d(c, type, k, 2 * M), k, M, 2 * w[0]->nb[1], 0); }
    for (int i = 0; i < 2; ++i) {
        y[i] = gcuda_mul_mat(c, w[i], i == 0 ? x : z);
        if (i == 1 && v == 11) { gcuda_mul_mat_set_prec(y[i], GCUDA_PREC_F32); }
        if (i == 0 && v == 12) { // something between them
            out(b, y[0]);
            out(b, gcuda_neg(c, x));
        }
    }
    if (v != 12) { out(b, y[0]); }
    out(b, v <= 1 ? gcuda_add(c, y[1], f32(b, M, 1, 1)) : y[1]); // a step that goes into it; 17 columns: that does not
}

TEST(products_beside_others_in_tiles_stay_apart) {
    stops(build_tile_group_not, 0, has_tiles ? "mul_mat + epilogue" : "");
    stops(build_tile_group_not, 1, TILES);
    stops(build_tile_group_not, 2, "");    // another way
    stops(build_tile_group_not, 3, TILES); // as those below are, each of which one thing stops
    for (int v = 4; v <= 12; ++v) { stops(build_tile_group_not, v, ""); }
    clean();
}

// Rows that are on several devices.
TEST(products_in_tiles_of_split_weights_stay_apart) {
    const float shares[2] = { 1, 1 };
    for (int is_split = 0; is_split < 2; ++is_split) {
        fresh(2, 64 * MB, 1);
        gcuda_backend_t backend = gcuda_backend_cuda_init(0);
        struct place p = place_begin(), weight = place_begin();
        struct gcuda_tensor * x = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, K, 12);
        struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
        for (int i = 0; i < 2; ++i) {
            struct gcuda_tensor * w = gcuda_new_tensor_2d(weight.ctx, GCUDA_TYPE_Q4_0, K, 256);
            CHECK_OK(gcuda_build_forward_expand(graph, gcuda_mul_mat(p.ctx, w, x)));
        }
        weight.buffer = gcuda_backend_alloc_ctx_tensors_from_buft(
            weight.ctx, is_split ? gcuda_backend_cuda_split_buffer_type(0, shares, 2)
                                 : gcuda_backend_get_default_buffer_type(backend));
        REQUIRE(backend != NULL && weight.buffer != NULL && place_alloc(&p, backend));
        gcuda_backend_graph_plan_t plan = gcuda_backend_graph_plan_create(backend, graph);
        REQUIRE(plan != NULL);
        CHECK_EQ_I(((const struct gcudai_cuda_plan *) plan)->n_steps, has_tiles && !is_split ? 1 : 2);
        gcuda_backend_graph_plan_free(backend, plan);
        place_end(&p);
        place_end(&weight);
        gcuda_backend_free(backend);
    }
    clean();
}

// Float weights: epilogues, gate and up, groups of products.
static void build_floats(struct build * b) {
    static const enum gcuda_type types[] = { GCUDA_TYPE_F32, GCUDA_TYPE_F16, GCUDA_TYPE_BF16 };
    struct gcuda_context * c = b->ctx;
    const int v = b->variant / 3;
    const enum gcuda_type type = types[b->variant % 3];
    const int64_t n_matrices = v == 3 || v == 4 ? 3 : 1, k = v == 6 ? 4096 + 96 : K;
    struct gcuda_tensor *x = f32(b, k, v == 1 ? 2 : 1, v == 3 ? 6 : n_matrices), *y[3];
    for (int i = 0; i < 3; ++i) {
        struct gcuda_tensor * w = gcuda_new_tensor_3d(c, type, k,
            v == 5   ? 150 - 50 * i
            : v == 6 ? 700 - 300 * i
                     : M,
            n_matrices);
        y[i] = gcuda_mul_mat(c, w, x);
        if (v == 7) { gcuda_mul_mat_set_prec(y[i], GCUDA_PREC_F32); }
    }
    switch (v) {
        case 0: out(b, gcuda_add(c, gcuda_add(c, y[0], f32(b, M, 1, 1)), f32(b, M, 1, 1))); break;
        case 1: out(b, gcuda_mul(c, gcuda_silu(c, gcuda_add(c, y[0], f32(b, M, 1, 1))), f32(b, M, 2, 1))); break;
        case 2: out(b, gcuda_add(c, gcuda_swiglu_split(c, y[0], y[1]), f32(b, M, 1, 1))); break;
        case 3: out(b, gcuda_add(c, gcuda_scale(c, y[0], 0.5f), f32(b, M, 1, 6))); break; // two columns a matrix
        case 4: out(b, gcuda_geglu_split(c, y[1], y[0])); break;                          // of each matrix its own
        default:
            for (int i = 0; i < 3; ++i) { out(b, y[i]); }
            break;
    }
}

TEST(products_of_floats_are_one_launch) {
    for (int v = 0; v < 24; ++v) { fires(build_floats, v, v >= 15 ? "several products" : "mul_mat + epilogue", 1); }
    clean();
}

static void build_floats_not(struct build * b) {
    struct gcuda_context * c = b->ctx;
    const int v = b->variant;
    struct gcuda_tensor *x = f32(b, K, v == 0 ? 2 : 1, 1), *y[2];
    for (int i = 0; i < 2; ++i) {
        struct gcuda_tensor * w = weights(b, i == 1 && v == 1 ? GCUDA_TYPE_F32 : GCUDA_TYPE_F16);
        struct gcuda_tensor * more = gcuda_new_tensor_2d(c, GCUDA_TYPE_F16, K, 2 * M);
        if (i == 1 && v == 2) { w = gcuda_view_2d(c, more, K, M, 2 * w->nb[1], 0); } // rows apart
        if (i == 1 && v == 3) { w = gcuda_view_2d(c, more, K, M, w->nb[1], 8); }     // not at 16 bytes
        y[i] = gcuda_mul_mat(c, w, i == 1 && v == 4 ? f32(b, K, 1, 1) : x);
        if (i == 1 && v == 5) { gcuda_mul_mat_set_prec(y[i], GCUDA_PREC_F32); }
    }
    for (int i = 0; i < 2; ++i) { out(b, y[i]); }
}

TEST(products_of_floats_stay_apart) {
    for (int v = 0; v <= 5; ++v) { stops(build_floats_not, v, ""); }
    clean();
}

// Of many columns: the kernel is for a device that the simulation is not, so plans are made and not run.
enum { WIDE = 4096 };
static void build_wide_group(struct build * b) {
    struct gcuda_context * c = b->ctx;
    const int v = b->variant;
    const int64_t k = v == 2 ? 4096 + 16 * 32 : WIDE,
                  n = v == 3              ? 17
                      : v == 4 || v == 15 ? 129
                                          : 40,
                  rows = v == 5 ? WIDE - 1 : WIDE;
    struct gcuda_tensor *x = f32(b, k, n, 1), *other = f32(b, k, n, 1), *y[4];
    for (int i = 0; i < 4; ++i) {
        const int64_t m = i == 0 ? rows : i == 1 && v == 14 ? 8 : 1024 >> i; // few rows are not rounded to BF16
        const enum gcuda_type type = i == 1 && v == 6 ? GCUDA_TYPE_Q8_0 : v == 7 ? GCUDA_TYPE_F16 : GCUDA_TYPE_Q4_0;
        struct gcuda_tensor * w = gcuda_new_tensor_2d(c, type, k, m);
        // rows apart
        if (i == 1 && v == 8) { w = gcuda_view_2d(c, gcuda_new_tensor_2d(c, type, k, 2 * m), k, m, 2 * w->nb[1], 0); }
        // not at 16 bytes
        if (v == 9) { w = gcuda_view_2d(c, gcuda_new_tensor_2d(c, type, k, m + 1), k, m, w->nb[1], 18); }
        y[i] = gcuda_mul_mat(c, w, i == 1 && v == 10 ? other : x);
        if (i == 1 && v == 11) { gcuda_mul_mat_set_prec(y[i], GCUDA_PREC_F32); }
        if (i == 1 && v == 12) { out(b, gcuda_neg(c, x)); } // something between them
        if (i < (v == 1 ? 4 : v == 13 ? 1 : 2)) { out(b, y[i]); }
    }
}

static void wide_group(int variant, bool has_warp_groups, bool is_strict, const char * wanted, int n_launches) {
    struct gcuda_cuda_params params;
    memset(&params, 0, sizeof params);
    params.strict = is_strict;
    // with 129 columns the small one goes to cuBLAS, in F32
    params.full_precision = variant == 15 ? GCUDA_CUDA_ON : GCUDA_CUDA_OFF;
    struct placed c;
    REQUIRE(placed_begin(&c, &params, build_wide_group, variant));
    gcuda_backend_graph_plan_t plan = placed_plan(&c, has_warp_groups);
    REQUIRE(plan != NULL);
    char names[200];
    names_of((const struct gcudai_cuda_plan *) plan, names, sizeof names);
    CHECK_MSG(strcmp(names, wanted) == 0, "variant %d: fused are \"%s\", wanted \"%s\"", variant, names, wanted);
    CHECK_EQ_I(((const struct gcudai_cuda_plan *) plan)->n_steps, n_launches);
    for (int i = 0; i < ((const struct gcudai_cuda_plan *) plan)->n_steps; ++i) {
        const struct gcudai_cuda_step * s = &((const struct gcudai_cuda_plan *) plan)->steps[i];
        CHECK(s->pattern == NULL || s->scratch_bytes >= (size_t) (WIDE * 2 * 32)); // the columns as halves
    }
    placed_end(&c, plan);
}

// Path WGMMA, for which the simulated device has no kernels: the launches of the plan, without values. Its two clusters
// take nine rounds for 17 row tiles, and 17 rounds for split-K halves of long rows: k is split. With 16 tiles (the last
// variants) it is not.
static void build_many(struct build * b) {
    struct gcuda_context * c = b->ctx;
    const int v = b->variant;
    const int64_t n = v == 9 ? 17 : v % 2 == 0 ? 64 : 256, m = v == 8 ? 2048 : v >= 12 ? 4096 : 4352, k = 16384;
    const enum gcuda_type type = v == 11 ? GCUDA_TYPE_F16 : GCUDA_TYPE_Q4_0;
    struct gcuda_tensor *x = f32(b, k, n, v == 10 ? 2 : 1),
                        *y = gcuda_mul_mat(c, gcuda_new_tensor_2d(c, type, k, m), x);
    struct gcuda_tensor *bias = f32(b, m, 1, 1), *whole = f32(b, m, n, 1);
    switch (v) {
        case 0:
        case 12: y = gcuda_gelu(c, gcuda_add(c, y, bias)); break;
        case 1: y = gcuda_add(c, whole, y); break;
        case 2:
            y = gcuda_add(c,
                gcuda_scale(c, gcuda_mul(c, gcuda_gelu_erf(c, gcuda_add(c, y, bias)), f32(b, 1, n, 1)), 0.3f), whole);
            break;
        case 3: y = gcuda_add_inplace(c, whole, gcuda_add(c, y, bias)); break; // the residual is where the result goes
        case 4: // a norm after the sum takes the residual, the bias goes into the product
            whole = gcuda_add(c, gcuda_add(c, y, bias), whole);
            gcuda_set_output(whole);
            out(b, whole);
            y = gcuda_mul(c, gcuda_rms_norm(c, whole, 1e-5f), f32(b, m, 1, 1));
            break;
        case 5:
            gcuda_mul_mat_set_prec(y, GCUDA_PREC_F32);
            y = gcuda_add(c, y, bias);
            break;
        case 6:
            gcuda_set_output(y);
            out(b, y);
            y = gcuda_add(c, y, bias);
            break; // the product is seen
        // no second product
        case 7:
            y = gcuda_swiglu_split(c, y, gcuda_mul_mat(c, gcuda_new_tensor_2d(c, type, k, m), f32(b, k, n, 1)));
            break;
        // 8, 11: other ways; 9: as few as go this way; 10: two matrices of columns; 13
        default: y = gcuda_add(c, y, bias); break;
    }
    out(b, y);
}

static void many(int variant, bool has_warp_groups, const char * wanted) {
    struct gcuda_cuda_params params;
    struct placed c;
    memset(&params, 0, sizeof params);
    REQUIRE(placed_begin(&c, &params, build_many, variant));
    gcuda_backend_graph_plan_t plan = placed_plan(&c, has_warp_groups);
    REQUIRE(plan != NULL);
    char names[200];
    names_of((const struct gcudai_cuda_plan *) plan, names, sizeof names);
    CHECK_MSG(strcmp(names, wanted) == 0, "variant %d: fused are \"%s\", wanted \"%s\"", variant, names, wanted);
    const struct gcudai_cuda_step * s = ((const struct gcudai_cuda_plan *) plan)->steps;
    if (s->pattern != NULL && s->pattern->kind == GCUDAI_CUDA_FUSED_PRODUCTS && s->args.products.n == 0) {
        const struct gcuda_mul_mat_args * args = s->args.products.of.args;
        CHECK(s->args.products.path == GCUDA_MUL_MAT_WGMMA && s->args.products.has_epilogue);
        const size_t n_parts = (size_t) product_layout(GCUDA_MUL_MAT_WGMMA, args, 1).n_splits,
                     n = (size_t) args->b.ne[1];
        CHECK(n_parts == (n == 256 ? 2 : 4)); // of 64 columns four pairs of blocks run at once
        CHECK(s->scratch_bytes >= n * (2 * 16384 + n_parts * 4 * 4352)); // the columns as halves, the parts
    }
    placed_end(&c, plan);
}

TEST(what_follows_a_product_on_warp_groups_goes_where_parts_are_summed) {
    for (int v = 0; v <= 3; ++v) { many(v, true, "mul_mat + epilogue"); }
    many(4, true, "mul_mat + epilogue, add + rms_norm + mul");
    for (int v = 5; v <= 11; ++v) { many(v, true, v == 9 ? "mul_mat + epilogue" : ""); }
    many(12, true, "chain"); // after the product
    many(13, true, "");
    many(1, false, "");
    clean();
}

TEST(products_of_many_columns_are_one_launch) {
    static const char * const name = "several products, wgmma";
    wide_group(0, true, false, name, 1);
    wide_group(1, true, false, name, 2); // three, and one that is left
    wide_group(2, true, false, name, 1);
    wide_group(3, true, false, name, 1);
    wide_group(4, true, false, name, 1);
    wide_group(0, true, true, "", 2);
    const int n = has_tiles ? 1 : 2;
    wide_group(0, false, false, TILES, n);
    for (int v = 5; v <= 15; ++v) {
        const bool is_tiles = v == 5 || v == 9; // none is large, or can be copied 16 bytes at a time
        wide_group(v, true, false, is_tiles ? TILES : "", is_tiles ? n : v == 12 ? 3 : v == 13 ? 1 : 2);
    }
    clean();
}

// With wgmma, products of 9 to 16 columns do not take path TILE.
TEST(products_of_more_columns_are_one_launch) {
    for (int64_t n = 9; n <= 17 && GCUDA_SIM_CC >= 800; n += n == 9 ? 7 : 1) {
        gcuda_backend_t backend = gcuda_backend_cuda_init(0);
        struct place p = place_begin();
        struct gcuda_tensor * x = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, 512, n);
        struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
        for (int i = 0; i < 3; ++i) {
            CHECK_OK(gcuda_build_forward_expand(
                graph, gcuda_mul_mat(p.ctx, gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_Q4_K, 512, 64 << i), x)));
        }
        REQUIRE(backend != NULL && place_alloc(&p, backend));
        ((struct gcudai_cuda *) backend)->kernels.has_wgmma = true;
        gcuda_backend_graph_plan_t plan = gcuda_backend_graph_plan_create(backend, graph);
        REQUIRE(plan != NULL);
        char names[200];
        names_of((const struct gcudai_cuda_plan *) plan, names, sizeof names);
        CHECK_MSG(
            strcmp(names, n <= 16 ? "several products" : TILES) == 0, "%d columns: fused are \"%s\"", (int) n, names);
        gcuda_backend_graph_plan_free(backend, plan);
        place_end(&p);
        gcuda_backend_free(backend);
    }
    clean();
}

// A result on the columns that the other product still reads, or on its weights, or on its result.
TEST(results_of_many_columns_lie_apart) {
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    struct place p = place_begin();
    struct gcuda_tensor *x = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, WIDE, 40), *w[2], *y[2];
    struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
    for (int i = 0; i < 2; ++i) {
        w[i] = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_Q4_0, WIDE, WIDE);
        y[i] = gcuda_mul_mat(p.ctx, w[i], x);
        CHECK_OK(gcuda_build_forward_expand(graph, y[i]));
    }
    REQUIRE(backend != NULL && place_alloc(&p, backend));
    ((struct gcudai_cuda *) backend)->kernels.has_wgmma = true;
    void *own = y[1]->data, *places[4] = { own, x->data, w[0]->data, y[0]->data };
    for (int i = 0; i < 4; ++i) {
        y[1]->data = places[i];
        gcuda_backend_graph_plan_t plan = gcuda_backend_graph_plan_create(backend, graph);
        REQUIRE(plan != NULL);
        CHECK_EQ_I(((const struct gcudai_cuda_plan *) plan)->n_steps, i == 0 ? 1 : 2);
        gcuda_backend_graph_plan_free(backend, plan);
    }
    y[1]->data = own;
    place_end(&p);
    gcuda_backend_free(backend);
    clean();
}

enum { EXPERTS = 6, USED = 3, TOKENS = 2 };
static struct gcuda_tensor * experts(struct build * b, enum gcuda_type type) {
    return gcuda_new_tensor_3d(b->ctx, type, K, M, EXPERTS);
}

static const enum gcuda_type expert_types[] = { GCUDA_TYPE_Q4_0, GCUDA_TYPE_MXFP4, GCUDA_TYPE_F32, GCUDA_TYPE_F16,
    GCUDA_TYPE_BF16 };
static void build_expert(struct build * b) {
    struct gcuda_context * c = b->ctx;
    const int v = b->variant % 5;
    const enum gcuda_type type = expert_types[b->variant / 5];
    struct gcuda_tensor *x = f32(b, K, v == 2 ? USED : 1, TOKENS),
                        *ids = gcuda_new_tensor_2d(c, GCUDA_TYPE_I32, USED, TOKENS);
    struct gcuda_tensor *y = gcuda_mul_mat_id(c, experts(b, type), x, ids), *z = NULL;
    if (v >= 3) { z = gcuda_mul_mat_id(c, experts(b, type), x, ids); }
    if (v == 0 || v == 4) { y = gcuda_add_id(c, y, f32(b, M, EXPERTS, 1), ids); }
    if (v == 1 || v == 2) { y = gcuda_mul(c, y, f32(b, 1, USED, TOKENS)); }
    if (v == 4) { z = gcuda_add_id(c, z, f32(b, M, EXPERTS, 1), ids); }
    out(b, v == 3 ? gcuda_swiglu_split(c, y, z) : v == 4 ? gcuda_swiglu_oai(c, y, z, 1.702f, 7.0f) : y);
}

TEST(what_follows_a_product_of_experts_goes_into_it) {
    for (int v = 0; v < 25; ++v) { fires(build_expert, v, "mul_mat_id + epilogue", 1); }
    clean();
}

static void build_expert_not(struct build * b) {
    struct gcuda_context * c = b->ctx;
    const int v = b->variant;
    const int64_t tokens = v == 0 ? 37 : TOKENS;
    // 3: no such kernel
    struct gcuda_tensor * x = v == 3 ? gcuda_new_tensor_3d(c, GCUDA_TYPE_F16, K, 1, tokens) : f32(b, K, 1, tokens);
    struct gcuda_tensor * as = experts(b, v == 3 ? GCUDA_TYPE_F16 : GCUDA_TYPE_Q4_0);
    struct gcuda_tensor *ids = gcuda_new_tensor_2d(c, GCUDA_TYPE_I32, v == 0 ? 2 : USED, tokens),
                        *other = gcuda_dup_tensor(c, ids);
    if (v == 0) { // more slots than go one by one
        as = gcuda_new_tensor_3d(c, GCUDA_TYPE_Q4_0, 32, 2, N_INDICES);
        x = f32(b, 32, 1, tokens);
    }
    struct gcuda_tensor * y = gcuda_mul_mat_id(c, as, x, ids);
    if (v == 4) { gcuda_set_output(y); }
    if (v == 5) { out(b, gcuda_neg(c, y)); } // another reader
    if (v == 2 || v >= 7) { // a second product with other ids, of another type, of other columns, with other strides
        struct gcuda_tensor * up = experts(b, v == 7 ? GCUDA_TYPE_IQ4_NL : GCUDA_TYPE_Q4_0); // the layout of Q4_0
        if (v == 9) {
            struct gcuda_tensor * more = gcuda_new_tensor_3d(c, GCUDA_TYPE_Q4_0, K, M + 1, EXPERTS);
            up = gcuda_view_3d(c, more, K, M, EXPERTS, more->nb[1], more->nb[2], 0);
        }
        out(b,
            gcuda_swiglu_split(c, y, gcuda_mul_mat_id(c, up, v == 8 ? f32(b, K, 1, tokens) : x, v == 2 ? other : ids)));
    } else {
        out(b,
            gcuda_add_id(c, y, gcuda_new_tensor_2d(c, v == 6 ? GCUDA_TYPE_F16 : GCUDA_TYPE_F32, as->ne[1], as->ne[2]),
                v == 1 ? other : ids));
    }
    if (v == 4) { out(b, y); }
}

TEST(products_of_experts_stay_apart) {
    for (int v = 0; v <= 9; ++v) { stops(build_expert_not, v, ""); }
    clean();
}

// The launcher against float64, with every step there is.
#define LIMIT 2.5

static double gate64(enum gcuda_glu_op op, double x, double g) {
    switch (op) {
        case GCUDA_GLU_OP_REGLU: return x > 0.0 ? x * g : 0.0;
        case GCUDA_GLU_OP_GEGLU:
            return 0.5 * x * (1.0 + tanh(0.79788456080286535588 * x * (1.0 + 0.044715 * x * x))) * g;
        case GCUDA_GLU_OP_GEGLU_ERF: return 0.5 * x * erfc(-x / sqrt(2.0)) * g;
        case GCUDA_GLU_OP_GEGLU_QUICK: return x / (1.0 + exp(-1.702 * x)) * g;
        case GCUDA_GLU_OP_SWIGLU_OAI: {
            const double a = x < LIMIT ? x : LIMIT, b = g < -LIMIT ? -LIMIT : g > LIMIT ? LIMIT : g;
            return a / (1.0 + exp(-1.702 * a)) * (b + 1.0);
        }
        default: return x / (1.0 + exp(-x)) * g;
    }
}

static void launch_way(
    enum gcuda_type type, int64_t k, int64_t m, int64_t n, enum gcuda_glu_op op, bool has_up, bool is_tile) {
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    struct place p = place_begin();
    struct gcuda_tensor *a = gcuda_new_tensor_2d(p.ctx, type, k, m), *up = gcuda_new_tensor_2d(p.ctx, type, k, m);
    const bool is_quantized = gcuda_is_quantized(type);
    struct gcuda_tensor * t[6]; // columns, bias, bias of the second, factor, residual, result
    const int64_t ne[6][2] = { { k, n }, { m, 1 }, { m, n }, { 1, n }, { m, n }, { m, n } };
    for (int i = 0; i < 6; ++i) { t[i] = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, ne[i][0], ne[i][1]); }
    REQUIRE(backend != NULL && place_alloc(&p, backend));
    float * f[8];
    struct gcuda_tensor * all[8] = { t[0], t[1], t[2], t[3], t[4], t[5], a, up };
    for (int i = 0; i < 8; ++i) {
        f[i] = (float *) malloc((size_t) gcuda_nelements(all[i]) * sizeof(float));
        if (i < 6) {
            fill(all[i], i);
            CHECK_OK(gcuda_backend_tensor_get(all[i], f[i], 0, gcuda_nbytes(all[i])));
        } else {
            char * blocks = (char *) malloc(gcuda_nbytes(all[i]));
            fill(all[i], i);
            CHECK_OK(gcuda_backend_tensor_get(all[i], blocks, 0, gcuda_nbytes(all[i])));
            if (is_quantized) { gcudai_to_float(type)(blocks, f[i], m * k); }
            for (int64_t j = 0; j < m * k && !is_quantized; ++j) {
                f[i][j] = gcudai_float_at(type, blocks + (size_t) j * gcuda_type_size(type));
            }
            free(blocks);
        }
    }
    struct gcuda_mul_mat_args args;
    struct gcuda_mul_mat_epilogue e;
    memset(&args, 0, sizeof args);
    memset(&e, 0, sizeof e);
    args.a = gcudai_array(a), args.b = gcudai_array(t[0]), args.y = gcudai_array(t[5]);
    e.bias = gcudai_array(t[1]), e.up_bias = gcudai_array(t[2]), e.factor = gcudai_array(t[3]),
    e.residual = gcudai_array(t[4]);
    e.up = has_up ? up->data : NULL;
    e.is_activated = !has_up;
    e.glu = op;
    e.is_scaled = true, e.scale = -0.75f, e.alpha = 1.702f, e.limit = (float) LIMIT;
    void * scratch = NULL;
    CHECK(cudaMalloc(&scratch, is_tile        ? product_scratch(GCUDA_MUL_MAT_TILE, &args, &e) + 1
                               : is_quantized ? product_scratch(GCUDA_MUL_MAT_VEC, &args, NULL) + 1
                                              : 1) == cudaSuccess);
    const gcuda_status st = is_tile        ? launch_product(GCUDA_MUL_MAT_TILE, &args, &e, scratch, NULL)
                            : is_quantized ? launch_product(GCUDA_MUL_MAT_VEC, &args, &e, scratch, NULL)
                                           : launch_product(GCUDA_MUL_MAT_VEC, &args, &e, NULL, NULL);
    const bool is_wide = is_quantized && GCUDA_SIM_CC >= 800 && args.a.nb[1] % 4 == 0;
    const int most = is_tile ? GCUDA_MUL_MAT_TILE_FUSED : is_wide ? vec_layout_of(type).max_columns : 8;
    const bool is_refused = (has_up && n > (is_quantized ? 2 : 1)) || n > most;
    CHECK(st == (is_refused ? GCUDA_STATUS_UNSUPPORTED : GCUDA_STATUS_SUCCESS));
    if (st == GCUDA_STATUS_SUCCESS) {
        double error = 0.0, size = 0.0;
        CHECK(cudaStreamSynchronize(NULL) == cudaSuccess);
        CHECK_OK(gcuda_backend_tensor_get(t[5], f[5], 0, gcuda_nbytes(t[5])));
        for (int64_t i = 0; i < m * n; ++i) {
            const int64_t row = i % m, c = i / m;
            double s[2] = { 0.0, 0.0 };
            for (int64_t j = 0; j < k; ++j) {
                s[0] += (double) f[6][row * k + j] * (double) f[0][c * k + j];
                s[1] += (double) f[7][row * k + j] * (double) f[0][c * k + j];
            }
            const double gate = gate64(op, s[0] + (double) f[1][row], has_up ? s[1] + (double) f[2][i] : 1.0);
            const double want = gate * (double) f[3][c] * -0.75 + (double) f[4][i], d = want - (double) f[5][i];
            error += d * d, size += want * want;
        }
        const bool is_tf32 = n >= (type == GCUDA_TYPE_F32 ? 3 : 2);
        const double bound = is_quantized ? 5e-4 : is_tile ? 5e-5 : is_tf32 ? 1e-6 : 1e-10;
        CHECK_MSG(error <= bound * size, "%s, %d columns, op %d: error %g", gcuda_type_name(type), (int) n, (int) op,
            error / size);
    }
    CHECK(cudaFree(scratch) == cudaSuccess);
    for (int i = 0; i < 8; ++i) { free(f[i]); }
    place_end(&p);
    gcuda_backend_free(backend);
}

// From 9 columns on in tiles.
static void launch_once(enum gcuda_type type, int64_t k, int64_t m, int64_t n, enum gcuda_glu_op op, bool has_up) {
    launch_way(type, k, m, n, op, has_up, n > 8);
}

TEST(launcher_with_every_step) {
    static const enum gcuda_type types[] = { GCUDA_TYPE_Q4_0, GCUDA_TYPE_Q8_0, GCUDA_TYPE_Q4_K, GCUDA_TYPE_MXFP4,
        GCUDA_TYPE_Q6_K, GCUDA_TYPE_IQ4_NL };
    for (int i = 0; i < 6; ++i) {
        for (int64_t n = 1; n <= 4; ++n) {
            launch_once(types[i], 512, i == 0 ? 300 : 19, n,
                i == 1 ? GCUDA_GLU_OP_SWIGLU : (enum gcuda_glu_op)((i + n) % 6), true);
            launch_once(types[i], 256, 21, n, (enum gcuda_glu_op)((i + n) % 3), false);
        }
    }
    static const enum gcuda_type floats[] = { GCUDA_TYPE_F32, GCUDA_TYPE_F16, GCUDA_TYPE_BF16 };
    for (int64_t n = 1; n <= 8; ++n) {
        launch_once(floats[n % 3], 288, 37, n, (enum gcuda_glu_op)(n % 6), true);
        for (int i = 0; i < 3; ++i) { launch_once(floats[i], 264, 21, n, (enum gcuda_glu_op)(n % 3), false); }
    }
    for (int i = 0; i < 3; ++i) { launch_once(floats[i], 4096 + 64, 300, 1, GCUDA_GLU_OP_SWIGLU, true); }
    launch_once(GCUDA_TYPE_MXFP4, 96, 40, 1, GCUDA_GLU_OP_SWIGLU, true);        // rows at any byte
    launch_once(GCUDA_TYPE_Q4_0, 4096 + 64, 700, 1, GCUDA_GLU_OP_SWIGLU, true); // several rounds and steps
    clean();
}

// Weights of any type: those that cannot be made of rows, of any bytes with a small scale.
static void fill_weights(struct gcuda_tensor * t, int salt) {
    if (gcuda_is_quantized(t->type) && gcuda_get_type_traits(t->type)->from_float_ref == NULL) {
        fill_codebook(t, salt);
        if (t->type != GCUDA_TYPE_IQ1_M) { return; }
        // its scale is in the top four bits of its last words
        unsigned char * blocks = (unsigned char *) malloc(gcuda_nbytes(t));
        CHECK_OK(gcuda_backend_tensor_get(t, blocks, 0, gcuda_nbytes(t)));
        for (size_t i = 0; i < gcuda_nbytes(t); i += sizeof(struct gcuda_block_iq1_m)) {
            static const unsigned char scale[4] = { 0, 0, 0xc0, 0x20 }; // 0x2c00: 1 / 16
            for (size_t j = 0; j < 4; ++j) {
                blocks[i + 49 + 2 * j] = (unsigned char) ((blocks[i + 49 + 2 * j] & 0x0f) | scale[j]);
            }
        }
        CHECK_OK(gcuda_backend_tensor_set(t, blocks, 0, gcuda_nbytes(t)));
        free(blocks);
        return;
    }
    fill(t, salt);
}

// A row that is added, or a gate with the second matrix, alone: what a block brings together early has the bits of
// separate launches.
enum one_step { ADDS_BIAS, ADDS_RESIDUAL, ADDS_TO_ITSELF, GATES };

static void launch_one_step(enum gcuda_type type, int64_t k, int64_t m, enum one_step step, int64_t skew) {
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    struct place p = place_begin();
    struct gcuda_tensor *a = gcuda_new_tensor_2d(p.ctx, type, k, m), *up = gcuda_new_tensor_2d(p.ctx, type, k, m);
    struct gcuda_tensor *x = gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_F32, k),
                        *row = gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_F32, m + skew);
    struct gcuda_tensor * y[3];
    for (int i = 0; i < 3; ++i) { y[i] = gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_F32, m); }
    REQUIRE(backend != NULL && place_alloc(&p, backend));
    fill_weights(a, 1), fill_weights(up, 2), fill(x, 3), fill(row, 4);
    struct gcuda_mul_mat_args args;
    struct gcuda_mul_mat_epilogue e;
    memset(&args, 0, sizeof args);
    memset(&e, 0, sizeof e);
    args.max_shared = gcuda_backend_cuda_get_max_shared(backend);
    args.a = gcudai_array(a), args.b = gcudai_array(x);
    for (int i = 0; i < 2; ++i) { // of each matrix
        args.a.data = i == 0 ? a->data : up->data;
        args.y = gcudai_array(y[i]);
        CHECK_OK(launch_product(GCUDA_MUL_MAT_VEC, &args, NULL, NULL, NULL));
    }
    float *want = (float *) malloc((size_t) m * 4), *added = (float *) malloc((size_t) (m + skew) * 4),
          *got = (float *) malloc((size_t) m * 4);
    if (step == GATES) {
        struct gcuda_glu_args glu;
        memset(&glu, 0, sizeof glu);
        glu.x = gcudai_array(y[0]), glu.g = gcudai_array(y[1]), glu.y = gcudai_array(y[2]),
        glu.op = GCUDA_GLU_OP_SWIGLU;
        CHECK_OK(gcuda_launch_glu(&glu, NULL));
        e.up = up->data, e.glu = GCUDA_GLU_OP_SWIGLU;
    }
    CHECK(cudaStreamSynchronize(NULL) == cudaSuccess);
    CHECK_OK(gcuda_backend_tensor_get(step == GATES ? y[2] : y[0], want, 0, gcuda_nbytes(y[0])));
    CHECK_OK(gcuda_backend_tensor_get(row, added, 0, gcuda_nbytes(row)));
    for (int64_t i = 0; i < m && step != GATES; ++i) { want[i] += added[i + skew]; }
    struct gcuda_array * term = step == ADDS_BIAS ? &e.bias : &e.residual;
    if (step != GATES) {
        *term = gcudai_array(y[0]); // sizes and strides
        term->data = (float *) row->data + skew;
    }
    args.a.data = a->data;
    args.y = gcudai_array(y[2]);
    if (step == ADDS_TO_ITSELF) { args.y.data = term->data; }
    CHECK_OK(launch_product(GCUDA_MUL_MAT_VEC, &args, &e, NULL, NULL));
    CHECK(cudaStreamSynchronize(NULL) == cudaSuccess);
    CHECK_OK(gcuda_backend_tensor_get(
        step == ADDS_TO_ITSELF ? row : y[2], got, step == ADDS_TO_ITSELF ? (size_t) skew * 4 : 0, (size_t) m * 4));
    int n_other = 0;
    for (int64_t i = 0; i < m; ++i) { n_other += memcmp(&got[i], &want[i], 4) != 0; }
    CHECK_MSG(n_other == 0, "%s, %d x %d, step %d, %d beside: %d of other bits", gcuda_type_name(type), (int) m,
        (int) k, (int) step, (int) skew, n_other);
    free(want), free(added), free(got);
    place_end(&p);
    gcuda_backend_free(backend);
}

TEST(one_step_behind_a_product_has_the_bits_of_its_own_launch) {
    static const struct {
        enum gcuda_type type;
        int64_t k;
    } of[] = {
        { GCUDA_TYPE_Q4_0, 32 },
        { GCUDA_TYPE_Q4_0, 2048 },
        { GCUDA_TYPE_Q4_0, 4096 },
        { GCUDA_TYPE_Q8_0, 2080 },
        { GCUDA_TYPE_Q4_K, 14336 },
        { GCUDA_TYPE_Q3_K, 4096 },
        { GCUDA_TYPE_IQ2_XXS, 2048 },
        { GCUDA_TYPE_MXFP4, 96 },
        { GCUDA_TYPE_Q4_0, 17 * 2048 + 64 },
    };
    static const int64_t rows[] = { 1, 3, 4, 5, 17, 64, 131, 530, 1027 };
    for (int i = 0; i < (int) (sizeof of / sizeof of[0]); ++i) {
        for (int j = 0; j < (int) (sizeof rows / sizeof rows[0]); ++j) {
            const int64_t m = of[i].k > 4096 ? (rows[j] + 7) / 8 : rows[j];
            launch_one_step(of[i].type, of[i].k, m, (enum one_step)((i + j) % 4), 0);
            launch_one_step(of[i].type, of[i].k, m, (enum one_step)((i + j + 1) % 4), (i + j) % 5);
        }
    }
    clean();
}

TEST(launcher_of_more_columns_with_every_step) {
    static const enum gcuda_type types[] = { GCUDA_TYPE_Q4_0, GCUDA_TYPE_Q4_1, GCUDA_TYPE_Q8_0, GCUDA_TYPE_Q5_K,
        GCUDA_TYPE_MXFP4,
        // the last one is refused
        GCUDA_TYPE_IQ4_XS, GCUDA_TYPE_IQ3_S, GCUDA_TYPE_Q6_K };
    static const int64_t columns[] = { 9, 13, 16 };
    for (int i = 0; i < 8; ++i) {
        for (int j = 0; j < 3; ++j) {
            launch_way(types[i], 512, j == 0 ? 129 : 37, columns[j], (enum gcuda_glu_op)((i + j) % 5), false, false);
        }
    }
    launch_way(GCUDA_TYPE_Q4_0, 4096 + 64, 700, 16, GCUDA_GLU_OP_SWIGLU, false, false); // several rounds and steps
    launch_way(GCUDA_TYPE_Q4_0, 512, 37, 9, GCUDA_GLU_OP_SWIGLU, true, false);          // UNSUPPORTED, as the next two
    launch_way(GCUDA_TYPE_Q4_0, 512, 37, 17, GCUDA_GLU_OP_SWIGLU, false, false);
    launch_way(GCUDA_TYPE_Q4_0, 96, 37, 9, GCUDA_GLU_OP_SWIGLU, false, false); // rows at multiples of 2 bytes
    clean();
}

TEST(launcher_of_tiles_with_every_step) {
    static const enum gcuda_type types[] = { GCUDA_TYPE_Q4_0, GCUDA_TYPE_Q6_K, GCUDA_TYPE_IQ4_XS, GCUDA_TYPE_F32,
        GCUDA_TYPE_F16, GCUDA_TYPE_BF16 };
    static const int64_t columns[] = { 9, 16, 10, 15, 12, 11, 14, 13 };
    for (int i = 0; i < 6; ++i) {
        for (int j = 0; j < 8; ++j) { // rows: of a warp, of a tile and one more, odd ones
            const int64_t m = j % 3 == 0 ? 16 : j % 3 == 1 ? 129 : 37;
            if ((i + j) % 2 == 0) {
                launch_once(types[i], 512, m, columns[j], (enum gcuda_glu_op)((i + j / 2) % 5), false);
            }
        }
    }
    launch_once(GCUDA_TYPE_Q4_0, 4096 + 64, 300, 16, GCUDA_GLU_OP_SWIGLU, false); // blocks that share tiles
    launch_once(GCUDA_TYPE_Q4_0, 512, 37, 16, GCUDA_GLU_OP_SWIGLU, true);         // UNSUPPORTED, as the next two
    launch_once(GCUDA_TYPE_Q4_0, 512, 37, 17, GCUDA_GLU_OP_SWIGLU, false);
    launch_once(GCUDA_TYPE_F16, 512, 37, 128, GCUDA_GLU_OP_SWIGLU, false);
    clean();
}

// Products of the same columns with results in wider rows, as a group and separately; with 48 KiB of shared memory, and
// with all.
static void group_of_blocks(enum gcuda_type type, int64_t n, bool has_all_shared) {
    enum { K_GROUP = 2048 }; // rows of all these types at multiples of 16 bytes
    static const int64_t rows[GCUDA_MUL_MAT_GROUP] = { 150, 1, M };
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    struct place p = place_begin();
    struct gcuda_tensor *x = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, K_GROUP, n),
                        *other = gcuda_dup_tensor(p.ctx, x);
    struct gcuda_tensor *w[GCUDA_MUL_MAT_GROUP], *y[2][GCUDA_MUL_MAT_GROUP];
    for (int i = 0; i < GCUDA_MUL_MAT_GROUP; ++i) {
        w[i] = gcuda_new_tensor_2d(p.ctx, type, K_GROUP, rows[i]);
        for (int j = 0; j < 2; ++j) { y[j][i] = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F16, rows[i] + 3 * i, n); }
    }
    REQUIRE(backend != NULL && place_alloc(&p, backend));
    struct gcuda_mul_mat_args args[2][GCUDA_MUL_MAT_GROUP + 1];
    memset(args, 0, sizeof args);
    fill(x, 1);
    for (int i = 0; i < GCUDA_MUL_MAT_GROUP; ++i) {
        fill(w[i], 2 + i);
        for (int j = 0; j < 2; ++j) {
            CHECK_OK(gcuda_backend_tensor_memset(y[j][i], 0x11, 0, gcuda_nbytes(y[j][i])));
            args[j][i].a = gcudai_array(w[i]), args[j][i].b = gcudai_array(x), args[j][i].y = gcudai_array(y[j][i]);
            args[j][i].y.ne[0] = rows[i];
            args[j][i].max_shared = has_all_shared ? gcuda_backend_cuda_get_max_shared(backend) : 0;
        }
    }
    void * scratch = NULL;
    CHECK(cudaMalloc(&scratch, product_scratch(GCUDA_MUL_MAT_VEC, &args[0][0], NULL) + 1) == cudaSuccess);
    for (int i = 0; i < GCUDA_MUL_MAT_GROUP; ++i) {
        CHECK_OK(launch_product(GCUDA_MUL_MAT_VEC, &args[0][i], NULL, scratch, NULL));
    }
    // with two columns each block quantizes them
    const bool is_own = type == GCUDA_TYPE_IQ3_S && GCUDA_SIM_CC >= 900 && has_all_shared;
    const bool may = n == 1 || GCUDA_SIM_CC >= 800 || (n == 2 && type != GCUDA_TYPE_IQ3_S);
    const long before = sim_counts("cudaLaunchKernelEx");
    CHECK(takes_group(GCUDA_MUL_MAT_VEC, args[1], GCUDA_MUL_MAT_GROUP) == may);
    CHECK(launch_group(GCUDA_MUL_MAT_VEC, args[1], GCUDA_MUL_MAT_GROUP, scratch, NULL) ==
          (may ? GCUDA_STATUS_SUCCESS : GCUDA_STATUS_UNSUPPORTED));
    CHECK_EQ_I(sim_counts("cudaLaunchKernelEx") - before, !may ? 0 : n == 1 || (n == 2 && is_own) ? 1 : 2);
    CHECK(cudaStreamSynchronize(NULL) == cudaSuccess);
    for (int i = 0; i < GCUDA_MUL_MAT_GROUP && may; ++i) {
        const size_t size = gcuda_nbytes(y[0][i]);
        char *want = (char *) malloc(size), *got = (char *) malloc(size);
        CHECK_OK(gcuda_backend_tensor_get(y[0][i], want, 0, size));
        CHECK_OK(gcuda_backend_tensor_get(y[1][i], got, 0, size));
        CHECK_MSG(memcmp(want, got, size) == 0, "%s, %d columns, product %d", gcuda_type_name(type), (int) n, i);
        free(want);
        free(got);
    }
    args[1][GCUDA_MUL_MAT_GROUP] = args[1][0];
    CHECK(!takes_group(GCUDA_MUL_MAT_VEC, args[1], 0) &&
          !takes_group(GCUDA_MUL_MAT_VEC, args[1], GCUDA_MUL_MAT_GROUP + 1));
    if (n > 1) { CHECK(launch_group(GCUDA_MUL_MAT_VEC, args[1], 2, NULL, NULL) == GCUDA_STATUS_UNSUPPORTED); }
    args[1][1].b.data = other->data; // one condition after the other
    CHECK(!takes_group(GCUDA_MUL_MAT_VEC, args[1], 2));
    args[1][1] = args[1][0];
    args[1][1].b.nb[1] += 16;
    CHECK(takes_group(GCUDA_MUL_MAT_VEC, args[1], 2) == (n == 1));
    args[1][1] = args[1][0];
    args[1][1].y.nb[1] += 1; // not whole elements
    CHECK(takes_group(GCUDA_MUL_MAT_VEC, args[1], 2) == (n == 1));
    args[1][1] = args[1][0];
    args[1][1].a.data = (char *) args[1][1].a.data + 2;
    CHECK(takes_group(GCUDA_MUL_MAT_VEC, args[1], 2) == (n == 1));
    args[1][1] = args[1][0];
    const size_t step = args[1][0].y.nb[0];
    args[1][0].y.nb[0] = args[1][1].y.nb[0] = 0; // a caller's mistake: refused, not divided by
    CHECK(!takes_group(GCUDA_MUL_MAT_VEC, args[1], 2));
    CHECK(launch_group(GCUDA_MUL_MAT_VEC, args[1], 2, NULL, NULL) == GCUDA_STATUS_UNSUPPORTED);
    args[1][0].y.nb[0] = args[1][1].y.nb[0] = step;
    args[1][1].is_prequantized = true; // of path WGMMA
    CHECK(!takes_group(GCUDA_MUL_MAT_VEC, args[1], 2));
    args[1][0].is_prequantized = true;
    CHECK(!takes_group(GCUDA_MUL_MAT_VEC, args[1], 2));
    CHECK(cudaFree(scratch) == cudaSuccess);
    place_end(&p);
    gcuda_backend_free(backend);
}

TEST(groups_of_few_columns_have_the_bits_of_each) {
    for (int64_t n = 1; n <= 8; ++n) {
        for (int all = 0; all < 2; ++all) {
            group_of_blocks(GCUDA_TYPE_Q4_0, n, all);
            if (n <= 3) { group_of_blocks(GCUDA_TYPE_IQ3_S, n, all); }
            if (n >= 7) { group_of_blocks(GCUDA_TYPE_Q6_K, n, all); }
        }
    }
    for (int64_t n = 9; n <= 16 && GCUDA_SIM_CC >= 800; n += 7) {
        group_of_blocks(GCUDA_TYPE_Q4_0, n, n == 9);
        group_of_blocks(GCUDA_TYPE_IQ3_S, n, n != 9);
    }
    clean();
}

// In tiles, against each product by itself; results in F16 or F32, columns of results further apart than the first's.
static void launch_tile_group(
    enum gcuda_type type, enum gcuda_type of_result, int64_t k, int64_t n, bool has_all_shared) {
    static const int64_t rows[GCUDA_MUL_MAT_GROUP] = { 300, 1, M };
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    struct place p = place_begin();
    struct gcuda_tensor *x = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, k, n), *other = gcuda_dup_tensor(p.ctx, x);
    struct gcuda_tensor *w[GCUDA_MUL_MAT_GROUP], *y[2][GCUDA_MUL_MAT_GROUP];
    for (int i = 0; i < GCUDA_MUL_MAT_GROUP; ++i) {
        w[i] = gcuda_new_tensor_2d(p.ctx, type, k, rows[i]);
        for (int j = 0; j < 2; ++j) { y[j][i] = gcuda_new_tensor_2d(p.ctx, of_result, rows[i] + 3 * i, n); }
    }
    REQUIRE(backend != NULL && place_alloc(&p, backend));
    struct gcuda_mul_mat_args args[2][GCUDA_MUL_MAT_GROUP + 1], *q = args[1];
    memset(args, 0, sizeof args);
    fill(x, 1);
    size_t n_bytes = 0;
    for (int i = 0; i < GCUDA_MUL_MAT_GROUP; ++i) {
        fill(w[i], 2 + i);
        for (int j = 0; j < 2; ++j) {
            CHECK_OK(gcuda_backend_tensor_memset(y[j][i], 0x11, 0, gcuda_nbytes(y[j][i])));
            args[j][i].a = gcudai_array(w[i]), args[j][i].b = gcudai_array(x), args[j][i].y = gcudai_array(y[j][i]);
            args[j][i].y.ne[0] = rows[i];
            args[j][i].max_shared = has_all_shared ? gcuda_backend_cuda_get_max_shared(backend) : 0;
        }
        const size_t alone = product_scratch(GCUDA_MUL_MAT_TILE, &args[0][i], NULL);
        n_bytes = alone > n_bytes ? alone : n_bytes;
    }
    const size_t of_group = group_scratch(GCUDA_MUL_MAT_TILE, q, GCUDA_MUL_MAT_GROUP);
    CHECK(
        of_group > n_bytes && group_scratch(GCUDA_MUL_MAT_TILE, q, 1) == product_scratch(GCUDA_MUL_MAT_TILE, q, NULL));
    char * scratch = NULL;
    CHECK(cudaMalloc((void **) &scratch, of_group + 16) == cudaSuccess);
    CHECK(cudaMemsetAsync(scratch, 0x77, of_group + 16, NULL) == cudaSuccess);
    for (int i = 0; i < GCUDA_MUL_MAT_GROUP; ++i) {
        CHECK_OK(launch_product(GCUDA_MUL_MAT_TILE, &args[0][i], NULL, scratch, NULL));
    }
    long before = sim_counts("cudaLaunchKernelEx");
    CHECK_OK(launch_group(GCUDA_MUL_MAT_TILE, q, GCUDA_MUL_MAT_GROUP, scratch, NULL));
    CHECK_EQ_I(sim_counts("cudaLaunchKernelEx") - before, 2); // the columns, all products
    CHECK(cudaStreamSynchronize(NULL) == cudaSuccess);
    for (int i = 0; i < GCUDA_MUL_MAT_GROUP; ++i) {
        const size_t size = gcuda_nbytes(y[0][i]);
        char *want = (char *) malloc(size), *got = (char *) malloc(size);
        CHECK_OK(gcuda_backend_tensor_get(y[0][i], want, 0, size));
        CHECK_OK(gcuda_backend_tensor_get(y[1][i], got, 0, size));
        CHECK_MSG(memcmp(want, got, size) == 0, "%s, %d columns, product %d", gcuda_type_name(type), (int) n, i);
        free(want);
        free(got);
    }
    char end[16];
    CHECK(cudaMemcpy(end, scratch + of_group, 16, cudaMemcpyDeviceToHost) == cudaSuccess);
    for (int i = 0; i < 16; ++i) { CHECK_EQ_I(end[i], 0x77); } // nothing beyond the scratch
    before = sim_counts("cudaLaunchKernelEx");
    q[GCUDA_MUL_MAT_GROUP] = q[0];
    CHECK(group_scratch(GCUDA_MUL_MAT_TILE, q, 0) == 0 &&
          group_scratch(GCUDA_MUL_MAT_TILE, q, GCUDA_MUL_MAT_GROUP + 1) == 0);
    CHECK(launch_group(GCUDA_MUL_MAT_TILE, q, 0, scratch, NULL) == GCUDA_STATUS_UNSUPPORTED);
    CHECK(launch_group(GCUDA_MUL_MAT_TILE, q, GCUDA_MUL_MAT_GROUP + 1, scratch, NULL) == GCUDA_STATUS_UNSUPPORTED);
    CHECK(launch_group(GCUDA_MUL_MAT_TILE, q, 2, scratch + 4, NULL) == GCUDA_STATUS_UNSUPPORTED);
    for (int i = 0; i < 12; ++i) { // one condition after the other
        const struct gcuda_mul_mat_args keep[2] = { q[0], q[0] };
        q[1] = q[0];
        switch (i) {
            case 0: q[1].b.data = other->data; break;
            case 1: q[1].b.nb[1] += 16; break;
            case 2: q[1].b.type = GCUDA_TYPE_F16; break;
            case 3: q[1].b.ne[1] -= 1; break;
            // Q4_0: blocks of one size
            case 4: q[1].a.type = type == GCUDA_TYPE_Q4_0 ? GCUDA_TYPE_IQ4_NL : GCUDA_TYPE_Q4_0; break;
            case 5: q[1].a.nb[1] += 16; break;
            case 6: q[1].a.ne[0] -= 32; break;
            case 7: q[1].a.ne[2] = q[1].b.ne[2] = q[1].y.ne[2] = q[0].b.ne[2] = 2; break;
            case 8: q[0].b.ne[2] = q[1].b.ne[2] = q[0].y.ne[2] = q[1].y.ne[2] = 2; break;
            case 9: q[1].y.type = of_result == GCUDA_TYPE_F32 ? GCUDA_TYPE_F16 : GCUDA_TYPE_F32; break;
            case 10: q[1].y.nb[0] *= 2; break;
            default: q[1].a.ne[1] = q[1].y.ne[0] = 0; break;
        }
        CHECK_MSG(launch_group(GCUDA_MUL_MAT_TILE, q, 2, scratch, NULL) == GCUDA_STATUS_UNSUPPORTED, "condition %d", i);
        q[0] = keep[0];
    }
    CHECK_EQ_I(sim_counts("cudaLaunchKernelEx") - before, 0);
    q[1] = q[0];
    CHECK_OK(launch_group(GCUDA_MUL_MAT_TILE, q, 2, scratch, NULL)); // as it was
    CHECK(cudaStreamSynchronize(NULL) == cudaSuccess && cudaFree(scratch) == cudaSuccess);
    place_end(&p);
    gcuda_backend_free(backend);
}

TEST(groups_in_tiles_have_the_bits_of_each) {
    static const int64_t columns[] = { 9, 16, 17, 32, 64, 130 };
    for (int i = 0; i < 6; ++i) {
        // tiles that blocks share
        launch_tile_group(GCUDA_TYPE_Q4_0, i % 2 ? GCUDA_TYPE_F32 : GCUDA_TYPE_F16, 2048 + 32, columns[i], i != 3);
        launch_tile_group(i % 2 ? GCUDA_TYPE_BF16 : GCUDA_TYPE_Q6_K, GCUDA_TYPE_F32, 512, columns[i], true);
    }
    clean();
}

// ---- hooks of experts, of groups of floats, and of columns that are rounded already ----

static float * floats_of(const struct gcuda_tensor * t) {
    const size_t n = (size_t) gcuda_nelements(t);
    float * f = (float *) malloc(n * sizeof(float));
    char * data = (char *) malloc(gcuda_nbytes(t));
    CHECK_OK(gcuda_backend_tensor_get(t, data, 0, gcuda_nbytes(t)));
    if (gcuda_is_quantized(t->type)) { gcudai_to_float(t->type)(data, f, (int64_t) n); }
    for (size_t i = 0; i < n && !gcuda_is_quantized(t->type); ++i) {
        f[i] = gcudai_float_at(t->type, data + i * gcuda_type_size(t->type));
    }
    free(data);
    return f;
}

// The steps of an epilogue, one bit each.
enum {
    STEP_BIAS = 1,
    STEP_UP = 2,
    STEP_UP_BIAS = 4,
    STEP_ACTIVATED = 8,
    STEP_FACTOR = 16,
    STEP_SCALE = 32,
    STEP_RESIDUAL = 64,
    STEP_ALL = 127,
    STEP_IN_PLACE = 128
}; // the residual is the result
enum {
    ID_AS,
    ID_UP,
    ID_B,
    ID_BIAS,
    ID_UP_BIAS,
    ID_FACTOR,
    ID_RESIDUAL,
    ID_FLOATS,
    ID_IDS = ID_FLOATS,
    ID_Y,
    ID_PLAIN,
    ID_PLAIN_UP,
    N_ID
};

struct id_case {
    enum gcuda_type type;
    int64_t k, m;
    int columns; // of b for a token: 1 or ID_USED
    bool has_all_shared;
};
enum { ID_EXPERTS = 4, ID_USED = 3, ID_TOKENS = 2, ID_SLOTS = ID_USED * ID_TOKENS };
static const int32_t id_chosen[ID_SLOTS] = { 2, 0, 3, 3, ID_EXPERTS, 2 }; // one is invalid, expert 1 is unused

// Device memory of a case, and its floats.
struct id_hooks {
    struct id_case c;
    gcuda_backend_t backend;
    struct place p;
    struct gcuda_tensor * t[N_ID];
    float * f[ID_FLOATS];
    int32_t * bad;
};

static void id_hooks_begin(struct id_hooks * h, const struct id_case * c) {
    const int64_t k = c->k, m = c->m;
    const int64_t ne[N_ID][3] = { { k, m, ID_EXPERTS }, { k, m, ID_EXPERTS }, { k, c->columns, ID_TOKENS },
        { m, ID_EXPERTS, 1 }, { m, ID_EXPERTS, 1 }, { 1, ID_USED, ID_TOKENS }, { m, ID_USED, ID_TOKENS },
        { ID_USED, ID_TOKENS, 1 }, { m, ID_USED, ID_TOKENS }, { m, ID_USED, ID_TOKENS }, { m, ID_USED, ID_TOKENS } };
    h->c = *c;
    h->backend = gcuda_backend_cuda_init(0);
    h->p = place_begin();
    for (int i = 0; i < N_ID; ++i) {
        const enum gcuda_type type = i <= ID_UP ? c->type : i == ID_IDS ? GCUDA_TYPE_I32 : GCUDA_TYPE_F32;
        h->t[i] = gcuda_new_tensor_3d(h->p.ctx, type, ne[i][0], ne[i][1], ne[i][2]);
    }
    REQUIRE(h->backend != NULL && place_alloc(&h->p, h->backend));
    for (int i = 0; i < ID_FLOATS; ++i) {
        if (i <= ID_UP) {
            fill_weights(h->t[i], 3 + i);
        } else {
            fill(h->t[i], 3 + i);
        }
        h->f[i] = floats_of(h->t[i]);
    }
    CHECK_OK(gcuda_backend_tensor_set(h->t[ID_IDS], id_chosen, 0, sizeof id_chosen));
    CHECK(cudaMalloc((void **) &h->bad, sizeof(int32_t)) == cudaSuccess);
}

static void id_hooks_end(struct id_hooks * h) {
    for (int i = 0; i < ID_FLOATS; ++i) { free(h->f[i]); }
    CHECK(cudaFree(h->bad) == cudaSuccess);
    place_end(&h->p);
    gcuda_backend_free(h->backend);
}

static struct gcuda_mul_mat_id_args id_args_of(const struct id_hooks * h, int as, int y) {
    struct gcuda_mul_mat_id_args args;
    memset(&args, 0, sizeof args);
    args.as = gcudai_array(h->t[as]), args.b = gcudai_array(h->t[ID_B]), args.ids = gcudai_array(h->t[ID_IDS]);
    args.y = gcudai_array(h->t[y]);
    args.bad_index = h->bad;
    args.max_shared = h->c.has_all_shared ? gcuda_backend_cuda_get_max_shared(h->backend) : 0;
    return args;
}

static struct gcuda_mul_mat_epilogue id_epilogue(const struct id_hooks * h, int steps, enum gcuda_glu_op op) {
    struct gcuda_mul_mat_epilogue e;
    memset(&e, 0, sizeof e);
    if (steps & STEP_BIAS) { e.bias = gcudai_array(h->t[ID_BIAS]); }
    if (steps & STEP_UP) { e.up = h->t[ID_UP]->data; }
    if (steps & STEP_UP_BIAS) { e.up_bias = gcudai_array(h->t[ID_UP_BIAS]); }
    if (steps & STEP_FACTOR) { e.factor = gcudai_array(h->t[ID_FACTOR]); }
    if (steps & STEP_RESIDUAL) { e.residual = gcudai_array(h->t[(steps & STEP_IN_PLACE) ? ID_Y : ID_RESIDUAL]); }
    e.is_activated = (steps & STEP_ACTIVATED) != 0;
    e.is_scaled = (steps & STEP_SCALE) != 0, e.scale = -0.75f;
    e.glu = op, e.alpha = 1.702f, e.limit = (float) LIMIT;
    return e;
}

static gcuda_status launch_id_fused(
    const struct gcuda_mul_mat_id_args * args, const struct gcuda_mul_mat_epilogue * e) {
    return launch_experts(GCUDA_MUL_MAT_VEC, args, e, NULL);
}

// The product of a slot alone: what its launcher without hooks leaves.
static void id_plain(const struct id_hooks * h, int as, int y) {
    const struct gcuda_mul_mat_id_args args = id_args_of(h, as, y);
    CHECK_OK(launch_experts(GCUDA_MUL_MAT_VEC, &args, NULL, NULL));
    CHECK(cudaStreamSynchronize(NULL) == cudaSuccess);
}

static double sum64(const struct id_hooks * h, const float * as, int slot, int64_t row) {
    const int64_t k = h->c.k, column = h->c.columns == 1 ? slot / ID_USED : slot;
    const float *a = as + (id_chosen[slot] * h->c.m + row) * k, *b = h->f[ID_B] + column * k;
    double sum = 0.0;
    for (int64_t j = 0; j < k; ++j) { sum += (double) a[j] * (double) b[j]; }
    return sum;
}

static double finish64(const struct id_hooks * h, int steps, enum gcuda_glu_op op, int slot, int64_t row) {
    const int64_t of_expert = id_chosen[slot] * h->c.m + row;
    double v = sum64(h, h->f[ID_AS], slot, row), up = (steps & STEP_UP) ? sum64(h, h->f[ID_UP], slot, row) : 1.0;
    if (steps & STEP_BIAS) { v += (double) h->f[ID_BIAS][of_expert]; }
    if (steps & STEP_UP_BIAS) { up += (double) h->f[ID_UP_BIAS][of_expert]; }
    if (steps & (STEP_UP | STEP_ACTIVATED)) { v = gate64(op, v, up); }
    if (steps & STEP_FACTOR) { v *= (double) h->f[ID_FACTOR][slot]; }
    if (steps & STEP_SCALE) { v *= -0.75; }
    return (steps & STEP_RESIDUAL) ? v + (double) h->f[ID_RESIDUAL][slot * h->c.m + row] : v;
}

// Epilogue in F32 on results of launchers without one, every step rounded. Only the gate REGLU has exact bits.
static float finish_rounded(const struct id_hooks * h, int steps, float v, float up, int slot, int64_t row) {
    const int64_t of_expert = id_chosen[slot] * h->c.m + row;
    if (steps & STEP_BIAS) { v += h->f[ID_BIAS][of_expert]; }
    if (steps & STEP_UP_BIAS) { up += h->f[ID_UP_BIAS][of_expert]; }
    if (steps & (STEP_UP | STEP_ACTIVATED)) { v = (v > 0.0f ? v : 0.0f) * ((steps & STEP_UP) ? up : 1.0f); }
    if (steps & STEP_FACTOR) { v *= h->f[ID_FACTOR][slot]; }
    if (steps & STEP_SCALE) { v *= -0.75f; }
    return (steps & STEP_RESIDUAL) ? v + h->f[ID_RESIDUAL][slot * h->c.m + row] : v;
}

static void check_id_steps(const struct id_hooks * h, int steps, enum gcuda_glu_op op) {
    const struct gcuda_mul_mat_id_args args = id_args_of(h, ID_AS, ID_Y);
    const struct gcuda_mul_mat_epilogue e = id_epilogue(h, steps, op);
    const int64_t m = h->c.m;
    int32_t bad = 0;
    double error = 0.0, size = 0.0;
    CHECK(cudaMemsetAsync(h->bad, 0, sizeof bad, NULL) == cudaSuccess);
    CHECK_OK(gcuda_backend_tensor_memset(h->t[ID_Y], 0x5a, 0, gcuda_nbytes(h->t[ID_Y])));
    if (steps & STEP_IN_PLACE) {
        CHECK_OK(gcuda_backend_tensor_set(h->t[ID_Y], h->f[ID_RESIDUAL], 0, gcuda_nbytes(h->t[ID_Y])));
    }
    CHECK_OK(launch_id_fused(&args, &e));
    CHECK(cudaStreamSynchronize(NULL) == cudaSuccess &&
          cudaMemcpy(&bad, h->bad, sizeof bad, cudaMemcpyDeviceToHost) == cudaSuccess);
    CHECK_EQ_I(bad, 1);
    float *y = floats_of(h->t[ID_Y]), *plain = floats_of(h->t[ID_PLAIN]), *plain_up = floats_of(h->t[ID_PLAIN_UP]);
    for (int64_t i = 0; i < m * ID_SLOTS; ++i) {
        const int slot = (int) (i / m);
        if (id_chosen[slot] >= ID_EXPERTS) {
            CHECK(y[i] == 0.0f); // no steps either
            continue;
        }
        const double want = finish64(h, steps, op, slot, i % m), d = want - (double) y[i];
        error += d * d, size += want * want;
        if (op != GCUDA_GLU_OP_REGLU) { continue; }
        const float same = finish_rounded(h, steps, plain[i], plain_up[i], slot, i % m);
        CHECK_MSG(y[i] == same, "%s, [%d, %d], steps %x: result %d is %.9g, not %.9g", gcuda_type_name(h->c.type),
            (int) h->c.k, (int) m, steps, (int) i, (double) y[i], (double) same);
    }
    CHECK_MSG(error <= (gcuda_is_quantized(h->c.type) ? 5e-4 : 1e-10) * size && size > 0.0,
        "%s, [%d, %d], steps %x, op %d: error %g", gcuda_type_name(h->c.type), (int) h->c.k, (int) m, steps, (int) op,
        error / size);
    free(plain_up);
    free(plain);
    free(y);
}

// Without an epilogue the bits of the launcher without hooks; with one that fits neither, UNSUPPORTED, and nothing is
// launched.
static void check_id_refusals(struct id_hooks * h) {
    const bool is_float = !gcuda_is_quantized(h->c.type);
    const struct gcuda_mul_mat_id_args args = id_args_of(h, ID_AS, ID_Y);
    CHECK_OK(launch_id_fused(&args, NULL));
    CHECK(cudaStreamSynchronize(NULL) == cudaSuccess);
    float *y = floats_of(h->t[ID_Y]), *plain = floats_of(h->t[ID_PLAIN]);
    CHECK(memcmp(y, plain, gcuda_nbytes(h->t[ID_Y])) == 0);
    const long before = sim_counts("cudaLaunchKernelEx");
    for (int i = 0; i < (is_float ? 14 : 8); ++i) { // one condition after the other
        struct gcuda_mul_mat_id_args p = args;
        struct gcuda_mul_mat_epilogue e = id_epilogue(h, STEP_ALL - STEP_ACTIVATED, GCUDA_GLU_OP_SWIGLU);
        switch (i) {
            case 0: e.bias.ne[1] -= 1; break; // not all experts
            case 1: e.up_bias.ne[0] = 1; break;
            case 2: e.factor.ne[1] = 2; break;
            case 3: e.residual.type = GCUDA_TYPE_F16; break;
            case 4: e.glu = GCUDA_GLU_OP_COUNT; break;
            // 7, the most that an enum of C++ holds here
            case 5: e.glu = (enum gcuda_glu_op)(GCUDA_GLU_OP_COUNT + 1); break;
            case 6: p.b.type = is_float ? GCUDA_TYPE_F16 : GCUDA_TYPE_Q8_0; break;
            case 7: p.as.type = GCUDA_TYPE_I32; break;
            case 8: e.up = (const char *) e.up + 4; break; // of floats: pieces of 16 bytes
            case 9: p.as.data = (char *) p.as.data + 4; break;
            case 10: p.as.nb[1] += 4; break;
            case 11: p.b.data = (char *) p.b.data + 4; break;
            case 12: p.as.ne[0] -= 1; break;
            default: p.y.type = GCUDA_TYPE_F16; break;
        }
        const gcuda_status st = launch_experts(GCUDA_MUL_MAT_VEC, &p, &e, NULL);
        CHECK_MSG(st == GCUDA_STATUS_UNSUPPORTED, "%s, condition %d", gcuda_type_name(h->c.type), i);
    }
    CHECK_EQ_I(sim_counts("cudaLaunchKernelEx"), before);
    free(plain);
    free(y);
}

static void id_hooks_of(const struct id_case * c, int n_ops) {
    static const int some[] = { 0, STEP_BIAS, STEP_UP, STEP_UP | STEP_UP_BIAS, STEP_BIAS | STEP_UP, STEP_ACTIVATED,
        STEP_FACTOR, STEP_SCALE, STEP_RESIDUAL, STEP_BIAS | STEP_ACTIVATED | STEP_RESIDUAL,
        STEP_ALL - STEP_UP - STEP_UP_BIAS, STEP_ALL - STEP_ACTIVATED, STEP_ALL - STEP_ACTIVATED + STEP_IN_PLACE };
    struct id_hooks h;
    id_hooks_begin(&h, c);
    CHECK(cudaMemsetAsync(h.bad, 0, sizeof(int32_t), NULL) == cudaSuccess);
    id_plain(&h, ID_AS, ID_PLAIN);
    id_plain(&h, ID_UP, ID_PLAIN_UP);
    for (size_t i = 0; i < sizeof some / sizeof some[0]; ++i) { check_id_steps(&h, some[i], GCUDA_GLU_OP_REGLU); }
    for (int op = 0; op < n_ops; ++op) {
        check_id_steps(&h, STEP_ALL - STEP_ACTIVATED, (enum gcuda_glu_op) op);
        check_id_steps(&h, STEP_ALL - STEP_UP - STEP_UP_BIAS, (enum gcuda_glu_op) op);
    }
    check_id_refusals(&h);
    id_hooks_end(&h);
}

static const enum gcuda_type block_weights[] = { GCUDA_TYPE_Q4_0, GCUDA_TYPE_Q4_1, GCUDA_TYPE_Q5_0, GCUDA_TYPE_Q5_1,
    GCUDA_TYPE_Q8_0, GCUDA_TYPE_IQ4_NL, GCUDA_TYPE_MXFP4, GCUDA_TYPE_Q2_K, GCUDA_TYPE_Q3_K, GCUDA_TYPE_Q4_K,
    GCUDA_TYPE_Q5_K, GCUDA_TYPE_Q6_K, GCUDA_TYPE_IQ4_XS, GCUDA_TYPE_IQ2_XXS, GCUDA_TYPE_IQ2_XS, GCUDA_TYPE_IQ2_S,
    GCUDA_TYPE_IQ3_XXS, GCUDA_TYPE_IQ3_S, GCUDA_TYPE_IQ1_S, GCUDA_TYPE_IQ1_M };
enum { N_BLOCK_WEIGHTS = 20 };

TEST(launcher_of_experts_with_every_step) {
    for (int i = 0; i < N_BLOCK_WEIGHTS; ++i) {
        const struct id_case c = { block_weights[i], i % 3 == 0 ? 512 : 256, i % 2 ? 19 : 24, i % 2 ? ID_USED : 1,
            i % 4 < 2 };
        id_hooks_of(&c, i < 10 ? GCUDA_GLU_OP_COUNT : 1);
    }
    // rows at any byte; then several rounds and steps
    const struct id_case others[] = { { GCUDA_TYPE_MXFP4, 96, 40, 1, false },
        { GCUDA_TYPE_Q4_0, 2048 + 64, 150, ID_USED, true }, { GCUDA_TYPE_IQ3_S, 2048 + 256, 37, 1, false } };
    for (int i = 0; i < 3; ++i) { id_hooks_of(&others[i], 1); }
    clean();
}

TEST(launcher_of_experts_in_floats_with_every_step) {
    static const enum gcuda_type floats[] = { GCUDA_TYPE_F32, GCUDA_TYPE_F16, GCUDA_TYPE_BF16 };
    for (int i = 0; i < 6; ++i) {
        const struct id_case c = { floats[i % 3], i < 3 ? 264 : 2048 + 64, i < 3 ? 21 : 70, i % 2 ? 1 : ID_USED,
            i >= 3 };
        id_hooks_of(&c, GCUDA_GLU_OP_COUNT);
    }
    clean();
}

// Products of floats and the same one column, as a group and each by itself.
static void launch_float_group(enum gcuda_type type, int64_t k, enum gcuda_prec prec, bool has_all_shared) {
    static const int64_t rows[GCUDA_MUL_MAT_GROUP] = { 150, 1, M };
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    struct place p = place_begin();
    struct gcuda_tensor *x = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, k, 2), *w[GCUDA_MUL_MAT_GROUP],
                        *y[2][GCUDA_MUL_MAT_GROUP];
    for (int i = 0; i < GCUDA_MUL_MAT_GROUP; ++i) {
        w[i] = gcuda_new_tensor_2d(p.ctx, type, k, rows[i]);
        for (int j = 0; j < 2; ++j) { y[j][i] = gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_F32, rows[i]); }
    }
    REQUIRE(backend != NULL && place_alloc(&p, backend));
    struct gcuda_mul_mat_args args[2][GCUDA_MUL_MAT_GROUP + 1], *q = args[1];
    memset(args, 0, sizeof args);
    fill(x, 1);
    for (int i = 0; i < GCUDA_MUL_MAT_GROUP; ++i) {
        fill(w[i], 2 + i);
        for (int j = 0; j < 2; ++j) {
            struct gcuda_mul_mat_args * a = &args[j][i];
            a->a = gcudai_array(w[i]), a->b = gcudai_array(x), a->y = gcudai_array(y[j][i]);
            a->b.ne[1] = 1;
            a->prec = prec;
            a->max_shared = has_all_shared ? gcuda_backend_cuda_get_max_shared(backend) : 0;
        }
        CHECK_OK(launch_product(GCUDA_MUL_MAT_VEC, &args[0][i], NULL, NULL, NULL));
    }
    for (int n = 1; n <= GCUDA_MUL_MAT_GROUP; ++n) {
        for (int i = 0; i < GCUDA_MUL_MAT_GROUP; ++i) {
            CHECK_OK(gcuda_backend_tensor_memset(y[1][i], 0x5a, 0, gcuda_nbytes(y[1][i])));
        }
        const long before = sim_counts("cudaLaunchKernelEx");
        CHECK_OK(launch_group(GCUDA_MUL_MAT_VEC, q, n, NULL, NULL));
        CHECK_EQ_I(sim_counts("cudaLaunchKernelEx") - before, 1);
        CHECK(cudaStreamSynchronize(NULL) == cudaSuccess);
        for (int i = 0; i < GCUDA_MUL_MAT_GROUP; ++i) {
            float *want = floats_of(y[0][i]), *got = floats_of(y[1][i]);
            if (i >= n) { memset(want, 0x5a, gcuda_nbytes(y[0][i])); } // left alone
            CHECK_MSG(memcmp(want, got, gcuda_nbytes(y[0][i])) == 0, "%s, %d elements, product %d of %d",
                gcuda_type_name(type), (int) k, i, n);
            free(got);
            free(want);
        }
    }
    const long before = sim_counts("cudaLaunchKernelEx");
    q[GCUDA_MUL_MAT_GROUP] = q[0];
    CHECK(launch_group(GCUDA_MUL_MAT_VEC, q, 0, NULL, NULL) == GCUDA_STATUS_UNSUPPORTED);
    CHECK(launch_group(GCUDA_MUL_MAT_VEC, q, GCUDA_MUL_MAT_GROUP + 1, NULL, NULL) == GCUDA_STATUS_UNSUPPORTED);
    for (int i = 0; i < 17; ++i) { // one condition after the other, of the second; the last ones of both
        const struct gcuda_mul_mat_args keep[2] = { q[0], q[1] };
        switch (i) {
            case 0: q[1].a.type = type == GCUDA_TYPE_F16 ? GCUDA_TYPE_BF16 : GCUDA_TYPE_F16; break;
            case 1: q[1].a.ne[0] -= 8; break;
            case 2: q[1].a.nb[1] += 16; break;
            case 3: q[1].a.ne[2] = 2; break;
            case 4: q[1].prec = prec == GCUDA_PREC_F32 ? GCUDA_PREC_DEFAULT : GCUDA_PREC_F32; break;
            case 5: q[1].b.data = (char *) q[1].b.data + 16; break;
            case 6: q[1].b.type = GCUDA_TYPE_F16; break;
            case 7: q[1].b.ne[1] = 2; break;
            case 8: q[1].y.nb[0] *= 2; break;
            case 9: q[1].a.ne[1] = 0; break;
            case 10: q[1].y.type = GCUDA_TYPE_F16; break;
            case 11: q[1].a.data = (char *) q[1].a.data + 4; break;
            case 12: q[0].a.data = (char *) q[0].a.data + 4; break;
            case 13: q[0].b.ne[1] = q[1].b.ne[1] = 2; break;
            case 14: q[0].b.data = q[1].b.data = (char *) q[1].b.data + 4; break;
            case 15: q[0].a.type = q[1].a.type = GCUDA_TYPE_I32; break;
            default: q[0].b.ne[0] = q[0].a.ne[0] -= 1, q[1].b.ne[0] = q[1].a.ne[0] -= 1; break;
        }
        CHECK_MSG(launch_group(GCUDA_MUL_MAT_VEC, q, 2, NULL, NULL) == GCUDA_STATUS_UNSUPPORTED, "%s, condition %d",
            gcuda_type_name(type), i);
        q[0] = keep[0], q[1] = keep[1];
    }
    CHECK_EQ_I(sim_counts("cudaLaunchKernelEx"), before);
    place_end(&p);
    gcuda_backend_free(backend);
}

TEST(groups_of_floats_have_the_bits_of_each) {
    static const enum gcuda_type floats[] = { GCUDA_TYPE_F32, GCUDA_TYPE_F16, GCUDA_TYPE_BF16 };
    static const int64_t lengths[] = { 8, 264, 4096 + 64 };
    for (int i = 0; i < 9; ++i) {
        launch_float_group(floats[i / 3], lengths[i % 3], GCUDA_PREC_DEFAULT, i % 2 == 0);
        launch_float_group(floats[i / 3], lengths[i % 3], GCUDA_PREC_F32, i % 2 != 0);
    }
    clean();
}

// Rows whose squares leave F32: with eps 0 a power of two on the source changes no bit of the result. Nodes one by one
// are held to float64 in test-ops (norm_ends).
static void scale_leaf(struct gcuda_tensor * t, float factor) {
    float * v = floats_of(t);
    for (int64_t i = 0; i < gcuda_nelements(t); ++i) { v[i] *= factor; }
    CHECK_OK(gcuda_backend_tensor_set(t, v, 0, gcuda_nbytes(t)));
    free(v);
}
static void norm_mul_of_scaled(int64_t n, int64_t rows, bool has_add) {
    static const float factors[4] = { 1.0f, 18446744073709551616.0f, 1.0f / 1208925819614629174706176.0f,
        1.329227995784916e36f };
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    struct place p = place_begin();
    struct gcuda_tensor *x = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, n, rows), *a = gcuda_dup_tensor(p.ctx, x);
    struct gcuda_tensor * w = gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_F32, n);
    struct gcuda_tensor * y = gcuda_mul(p.ctx, gcuda_rms_norm(p.ctx, has_add ? gcuda_add(p.ctx, x, a) : x, 0.0f), w);
    struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
    CHECK_OK(gcuda_build_forward_expand(graph, y));
    REQUIRE(backend != NULL && place_alloc(&p, backend));
    char * want = NULL;
    for (int i = 0; i < 4; ++i) {
        fill(x, 1), fill(a, 2), fill(w, 3);
        scale_leaf(x, factors[i]);
        scale_leaf(a, factors[i]);
        CHECK_OK(gcuda_backend_graph_compute(backend, graph));
        char * got = (char *) floats_of(y);
        if (i == 0) {
            want = got;
            CHECK(((float *) (void *) want)[0] != 0.0f && ((float *) (void *) want)[1] != 0.0f);
            continue;
        }
        CHECK_MSG(memcmp(want, got, gcuda_nbytes(y)) == 0, "%d elements, %d rows, times %g: other bits", (int) n,
            (int) rows, (double) factors[i]);
        free(got);
    }
    free(want);
    place_end(&p);
    gcuda_backend_free(backend);
}
TEST(rms_norm_and_mul_near_the_ends_of_f32) {
    static const int64_t shapes[][2] = { { 4, 1 }, { 64, 40 }, { 67, 3 }, { 300, 5 }, { 1024, 1 }, { 1024, 3 },
        { 4096, 1 }, { 16384, 1 }, { 5001, 2 } };
    for (int i = 0; i < 9; ++i) {
        norm_mul_of_scaled(shapes[i][0], shapes[i][1], false);
        norm_mul_of_scaled(shapes[i][0], shapes[i][1], true);
    }
    clean();
}

// Rows of 1024 elements are processed in pairs if their number is even. Compared with slices of odd numbers of rows.
// Covers every kind of end, a matrix of one round of rows and of several.
enum pair_end { PAIR_ALONE, PAIR_ROW, PAIR_GLU, PAIR_STEPS, N_PAIR_ENDS };
static struct gcuda_mul_mat_epilogue pair_epilogue(
    enum pair_end end, const struct gcuda_tensor * up, const struct gcuda_tensor * row, int64_t first) {
    struct gcuda_mul_mat_epilogue e;
    memset(&e, 0, sizeof e);
    struct gcuda_array part = gcudai_array(row);
    part.data = (char *) part.data + first * 4;
    if (end == PAIR_ROW || end == PAIR_STEPS) { e.residual = part; }
    if (end == PAIR_STEPS) {
        e.factor = part, e.is_activated = true, e.glu = GCUDA_GLU_OP_GEGLU, e.is_scaled = true, e.scale = 0.5f;
    }
    if (end == PAIR_GLU) { e.up = (const char *) up->data + first * (int64_t) up->nb[1], e.glu = GCUDA_GLU_OP_SWIGLU; }
    return e;
}

static void launch_in_pairs(enum gcuda_type type, int64_t m, bool has_all_shared) {
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    struct place p = place_begin();
    struct gcuda_tensor * x = gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_F32, 1024);
    struct gcuda_tensor *a = gcuda_new_tensor_2d(p.ctx, type, 1024, m), *up = gcuda_dup_tensor(p.ctx, a);
    struct gcuda_tensor *row = gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_F32, m),
                        *y[2] = { gcuda_dup_tensor(p.ctx, row), gcuda_dup_tensor(p.ctx, row) };
    REQUIRE(backend != NULL && place_alloc(&p, backend));
    fill(x, 1);
    fill(row, 3);
    fill_weights(a, 4);
    fill_weights(up, 5);
    const int64_t first[] = { 0, 1, m / 4 * 2, m }; // one row, an odd number of them, an even one
    for (int end = 0; end < N_PAIR_ENDS; ++end) {
        for (int whole = 0; whole < 2; ++whole) {
            for (int i = 0; i < (whole ? 1 : 3); ++i) {
                const int64_t from = whole ? 0 : first[i], to = whole ? m : first[i + 1];
                struct gcuda_mul_mat_args args;
                memset(&args, 0, sizeof args);
                args.a = gcudai_array(a), args.b = gcudai_array(x), args.y = gcudai_array(y[whole]);
                args.a.ne[1] = args.y.ne[0] = to - from;
                args.a.data = (char *) args.a.data + from * (int64_t) args.a.nb[1];
                args.y.data = (char *) args.y.data + from * 4;
                args.max_shared = has_all_shared ? gcuda_backend_cuda_get_max_shared(backend) : 0;
                struct gcuda_mul_mat_epilogue e = pair_epilogue((enum pair_end) end, up, row, from);
                e.residual.ne[0] = e.residual.ne[0] > 0 ? to - from : 0;
                e.factor.ne[0] = e.factor.ne[0] > 0 ? to - from : 0;
                CHECK_OK(launch_product(GCUDA_MUL_MAT_VEC, &args, end == PAIR_ALONE ? NULL : &e, NULL, NULL));
            }
        }
        CHECK(cudaStreamSynchronize(NULL) == cudaSuccess);
        float *want = floats_of(y[0]), *got = floats_of(y[1]), size = 0.0f;
        for (int64_t i = 0; i < m; ++i) { size += want[i] * want[i]; }
        CHECK_MSG(memcmp(want, got, gcuda_nbytes(row)) == 0 && size > 0.0f, "%s, %d rows, end %d",
            gcuda_type_name(type), (int) m, end);
        free(got);
        free(want);
    }
    place_end(&p);
    gcuda_backend_free(backend);
}

TEST(rows_in_pairs_have_the_bits_of_each) {
    for (int i = 0; i < N_BLOCK_WEIGHTS; ++i) {
        launch_in_pairs(block_weights[i], 38, i % 2 == 0);
        launch_in_pairs(block_weights[i], 4, i % 2 != 0);
    }
    launch_in_pairs(GCUDA_TYPE_Q4_0, 550, true); // several rounds
    launch_in_pairs(GCUDA_TYPE_IQ3_S, 550, true);
    clean();
}

TEST(launchers_refuse_rows_of_no_elements) {
    struct gcuda_mul_mat_args p[2];
    struct gcuda_mul_mat_id_args q;
    char scratch[64];
    for (int n = 1; n <= 8; ++n) {
        GCUDAI_ZERO(p);
        for (int i = 0; i < 2; ++i) {
            p[i].a.type = GCUDA_TYPE_Q4_0;
            p[i].b.type = p[i].y.type = GCUDA_TYPE_F32;
            for (int d = 0; d < 4; ++d) { p[i].a.ne[d] = p[i].b.ne[d] = p[i].y.ne[d] = 1; }
            p[i].a.ne[0] = p[i].b.ne[0] = 0;
            p[i].a.ne[1] = p[i].y.ne[0] = 5;
            p[i].b.ne[1] = p[i].y.ne[1] = n;
        }
        CHECK(launch_product(GCUDA_MUL_MAT_VEC, &p[0], NULL, scratch, NULL) == GCUDA_STATUS_UNSUPPORTED);
        CHECK(launch_group(GCUDA_MUL_MAT_VEC, p, 2, scratch, NULL) == GCUDA_STATUS_UNSUPPORTED);
    }
    GCUDAI_ZERO(q);
    q.as = p[0].a, q.b = p[0].b, q.y = p[0].y, q.ids = p[0].y;
    CHECK(launch_experts(GCUDA_MUL_MAT_VEC, &q, NULL, NULL) == GCUDA_STATUS_UNSUPPORTED);
    clean();
}

// =====================================================================================================================
// >>chain
// =====================================================================================================================
static void build_chain(struct build * b) {
    struct gcuda_context * c = b->ctx;
    const int v = b->variant;
    const enum gcuda_type type = v % 3 == 1 ? GCUDA_TYPE_F16 : v % 3 == 2 ? GCUDA_TYPE_BF16 : GCUDA_TYPE_F32;
    const int64_t n = v / 3 % 2 ? 37 : 40;
    struct gcuda_tensor *x = gcuda_new_tensor_3d(c, type, n, 5, 3), *y = x;
    // operands of the chain's type, but for some: of F32, or in case 10 of the two other types
    static const enum gcuda_type others[3][2] = { { GCUDA_TYPE_F16, GCUDA_TYPE_BF16 },
        { GCUDA_TYPE_BF16, GCUDA_TYPE_F32 }, { GCUDA_TYPE_F32, GCUDA_TYPE_F16 } };
    const enum gcuda_type of_same = v / 6 == 10 ? others[v % 3][0] : type,
                          of_row = v / 6 == 10 ? others[v % 3][1] : GCUDA_TYPE_F32;
    struct gcuda_tensor *same = gcuda_new_tensor_3d(c, of_same, n, 5, 3), *row = gcuda_new_tensor_1d(c, of_row, n),
                        *one = gcuda_new_tensor_1d(c, of_row, 1);
    switch (v / 6) {
        case 0: y = gcuda_add(c, gcuda_add(c, gcuda_add(c, x, same), row), one); break;
        case 1: y = gcuda_mul(c, gcuda_mul(c, x, row), same); break;
        case 2: y = gcuda_mul(c, gcuda_silu(c, x), same); break;
        case 3: y = gcuda_mul(c, same, gcuda_sigmoid(c, x)); break;
        case 4: y = gcuda_scale(c, gcuda_tanh(c, gcuda_scale(c, x, 0.1f)), 30.0f); break;
        case 5: y = gcuda_sqr(c, gcuda_relu(c, x)); break;
        case 6: y = gcuda_sub(c, same, gcuda_div(c, same, gcuda_exp(c, gcuda_leaky_relu(c, x, 0.1f, false)))); break;
        case 7:
            y = gcuda_sqrt(c, gcuda_abs(c, gcuda_sub(c, gcuda_neg(c, gcuda_scale_bias(c, x, 2.0f, 1.0f)), row)));
            break;
        case 8: y = gcuda_clamp(c, gcuda_gelu(c, gcuda_gelu_erf(c, x)), -0.5f, 0.5f); break;
        case 9: y = gcuda_add_inplace(c, gcuda_scale(c, x, 3.0f), same); break;
        case 10: y = gcuda_mul(c, gcuda_sub(c, gcuda_add(c, x, same), row), one); break;
        case 11:
            y = gcuda_mul(
                c, gcuda_softplus(c, gcuda_permute(c, gcuda_new_tensor_3d(c, type, 5, n, 3), 1, 0, 2, 3)), same);
            break;
        case 12: // operands of one row, or of one element a row, in some dimensions
            y = gcuda_add(c, gcuda_mul(c, x, gcuda_new_tensor_3d(c, type, n, 5, 1)),
                gcuda_new_tensor_3d(c, GCUDA_TYPE_F32, n, 1, 3));
            y = gcuda_div(c, gcuda_sub(c, y, gcuda_new_tensor_3d(c, type, 1, 5, 3)), one);
            break;
        default: // that repeat several rows, in a result of more than one block
            x = gcuda_new_tensor_4d(c, type, 8 * n, 10, 6, 2);
            y = gcuda_mul(c, gcuda_add(c, x, gcuda_new_tensor_4d(c, type, 8 * n, 5, 6, 1)),
                gcuda_new_tensor_3d(c, GCUDA_TYPE_F32, 8 * n, 2, 3));
            y = gcuda_sub(c, gcuda_relu(c, y), gcuda_new_tensor_3d(c, type, 1, 10, 2));
            break;
    }
    out(b, y);
}

TEST(element_wise_operations_are_one_launch) {
    for (int v = 0; v < 14 * 6; ++v) {
        const struct options on = { false, false, false, false, 1 };
        if (v % 6 == 0) {
            fires(build_chain, v, "chain", 1);
        } else {
            run_case(build_chain, v, "chain", on);
        }
    }
    clean();
}

// Nine in a row: eight, and one that is left.
static void build_long_chain(struct build * b) {
    struct gcuda_tensor * y = f32(b, 33, 3, 1);
    for (int i = 0; i < b->variant; ++i) { y = gcuda_add(b->ctx, y, f32(b, i % 2 ? 33 : 1, 1, 1)); }
    out(b, y);
}

TEST(chains_have_an_end) {
    const struct options two = { false, false, false, false, 2 };
    fires(build_long_chain, 8, "chain", 1);
    run_case(build_long_chain, 9, "chain", two);
    run_case(build_long_chain, 11, "chain, chain", two);
    stops(build_long_chain, 1, "");
    clean();
}

// Sums of n terms, the types of the first operand, of all others, and of the result.
struct sums {
    enum gcuda_type a, b, y;
    int n;
    enum { ALL, ROW_OF_ALL, ONE_OF_ALL, SOME_ROWS, SHORT_ROWS } shape; // of b; SHORT_ROWS: repeated along rows as well
    int64_t ne0; // 40: sixteen bytes at a time; 37: element by element, or all rows as one where there are ALL
};
static struct sums sums_of(int variant) {
    static const enum gcuda_type types[6][3] = { { GCUDA_TYPE_F32, GCUDA_TYPE_F32, GCUDA_TYPE_F32 },
        { GCUDA_TYPE_F16, GCUDA_TYPE_F16, GCUDA_TYPE_F16 }, { GCUDA_TYPE_F16, GCUDA_TYPE_F32, GCUDA_TYPE_F16 },
        { GCUDA_TYPE_F16, GCUDA_TYPE_F32, GCUDA_TYPE_F32 }, { GCUDA_TYPE_BF16, GCUDA_TYPE_F32, GCUDA_TYPE_F32 },
        { GCUDA_TYPE_F16, GCUDA_TYPE_BF16, GCUDA_TYPE_F32 } };
    struct sums s;
    const enum gcuda_type * t = types[variant / 20];
    s.a = t[0], s.b = t[1], s.y = t[2];
    s.n = variant % 2 ? 8 : 2;
    s.ne0 = variant / 2 % 2 ? 37 : 40;
    s.shape = variant / 4 % 5;
    return s;
}
enum { N_SUMS = 6 * 20 };

static struct gcuda_tensor * sum_of(
    struct gcuda_context * c, struct gcuda_tensor * a, struct gcuda_tensor * b, enum gcuda_type type) {
    return a->type == type ? gcuda_add(c, a, b) : gcuda_add_cast(c, a, b, type);
}

static void build_sums(struct build * b) {
    const struct sums s = sums_of(b->variant);
    const int64_t ne[5][3] = { { s.ne0, 6, 3 }, { s.ne0, 1, 1 }, { 1, 1, 1 }, { s.ne0, 3, 1 },
        { s.ne0 == 40 ? 8 : 1, 6, 1 } };
    const int64_t * of_b = ne[s.shape];
    struct gcuda_tensor * y = gcuda_new_tensor_3d(b->ctx, s.a, s.ne0, 6, 3);
    for (int i = 0; i < s.n; ++i) {
        const int64_t n = y->type != s.y ? s.ne0 : of_b[0]; // add_cast takes whole rows
        y = sum_of(b->ctx, y, gcuda_new_tensor_3d(b->ctx, s.b, n, of_b[1], of_b[2]), s.y);
    }
    out(b, y);
}

TEST(sums_of_all_types_are_one_launch) {
    const struct options on = { false, false, false, false, 1 };
    for (int v = 0; v < N_SUMS; ++v) {
        if (v % 20 < 2) {
            fires(build_sums, v, "chain", 1);
        } else {
            run_case(build_sums, v, "chain", on);
        }
    }
    clean();
}

// What 16 bits become F32 in is a chain's first step, and nowhere else. Later steps are left to another chain.
static void build_wider(struct build * b) {
    struct gcuda_context * c = b->ctx;
    const int v = b->variant;
    struct gcuda_tensor *x = gcuda_new_tensor_2d(c, GCUDA_TYPE_F16, 40, 4), *z = f32(b, 40, 4, 1), *y = x;
    switch (v) {
        // other steps after it
        case 0: y = gcuda_mul(c, gcuda_silu(c, gcuda_add_cast(c, x, z, GCUDA_TYPE_F32)), z); break;
        // as the second operand
        case 1: y = gcuda_sub(c, z, gcuda_add_cast(c, x, z, GCUDA_TYPE_F32)); break;
        case 2: // from a view with gaps between rows
            x = gcuda_view_2d(c, gcuda_new_tensor_2d(c, GCUDA_TYPE_F16, 56, 4), 40, 4, 112, 16);
            y = gcuda_add(c, gcuda_add_cast(c, x, z, GCUDA_TYPE_F32), z);
            break;
        case 3: // the same, not at sixteen bytes
            x = gcuda_view_2d(c, gcuda_new_tensor_2d(c, GCUDA_TYPE_F16, 56, 4), 40, 4, 112, 8);
            y = gcuda_add(c, gcuda_add_cast(c, x, z, GCUDA_TYPE_F32), z);
            break;
        // of 16 bits again, as a term
        case 4: y = gcuda_add(c, gcuda_add_cast(c, x, z, GCUDA_TYPE_F32), x); break;
        // F16 first: from the second on
        case 5: y = gcuda_add(c, gcuda_add_cast(c, gcuda_add(c, x, z), z, GCUDA_TYPE_F32), z); break;
        // F32 last: but the last
        default: y = gcuda_add_cast(c, gcuda_add(c, gcuda_add(c, x, z), z), z, GCUDA_TYPE_F32); break;
    }
    out(b, y);
}
static void build_wider_not(struct build * b) {
    struct gcuda_context * c = b->ctx;
    struct gcuda_tensor *x = gcuda_new_tensor_2d(c, GCUDA_TYPE_F16, 40, 4), *z = f32(b, 40, 4, 1), *y = x;
    switch (b->variant) {
        // in the second step
        case 0: y = gcuda_add_cast(c, gcuda_add(c, x, z), z, GCUDA_TYPE_F32); break;
        // back again
        case 1: y = gcuda_add(c, gcuda_cast(c, gcuda_add_cast(c, x, z, GCUDA_TYPE_F32), GCUDA_TYPE_F16), x); break;
        case 2: // F16, then BF16
            y = gcuda_add_cast(c, gcuda_add_cast(c, x, z, GCUDA_TYPE_BF16), z, GCUDA_TYPE_F16);
            break;
        case 3: y = gcuda_add(c, gcuda_add_cast(c, x, z, GCUDA_TYPE_BF16), z); break; // not F32
        case 4:                                                                       // blocks
            y = gcuda_add(c,
                gcuda_add_cast(c, gcuda_new_tensor_2d(c, GCUDA_TYPE_Q8_0, 64, 4), f32(b, 64, 4, 1), GCUDA_TYPE_F32),
                f32(b, 64, 1, 1));
            break;
        case 5: // somebody's result
            y = gcuda_add_cast(c, x, z, GCUDA_TYPE_F32);
            gcuda_set_output(y);
            out(b, y);
            y = gcuda_add(c, y, z);
            break;
        // not a sum
        default: y = gcuda_sqr(c, gcuda_cast(c, x, GCUDA_TYPE_F32)); break;
    }
    out(b, y);
}

TEST(sums_of_16_bits_in_f32) {
    const struct options two = { false, false, false, false, 2 };
    for (int v = 0; v <= 4; ++v) { fires(build_wider, v, "chain", 1); }
    for (int v = 5; v <= 6; ++v) { run_case(build_wider, v, "chain", two); }
    for (int v = 0; v <= 6; ++v) { stops(build_wider_not, v, ""); }
    clean();
}

static void build_chain_not(struct build * b) {
    struct gcuda_context * c = b->ctx;
    const int v = b->variant;
    struct gcuda_tensor *x = f32(b, 24, 4, 1), *z = f32(b, 24, 4, 1), *y = NULL;
    switch (v) {
        // somebody's result
        case 0:
            y = gcuda_add(c, x, z);
            gcuda_set_output(y);
            out(b, gcuda_mul(c, y, z));
            out(b, y);
            break;
        case 1:
            y = gcuda_add(c, x, z);
            out(b, gcuda_mul(c, y, y));
            break; // read twice
        // by another
        case 2:
            y = gcuda_add(c, x, z);
            out(b, gcuda_mul(c, y, z));
            out(b, gcuda_scale(c, y, 2.0f));
            break;
        case 3: out(b, gcuda_mul(c, gcuda_scale_inplace(c, x, 2.0f), z)); break;                  // in memory of others
        case 4: out(b, gcuda_add(c, f32(b, 24, 4, 2), gcuda_add(c, x, z))); break;                // the value repeats
        case 5: out(b, gcuda_scale(c, gcuda_reshape_1d(c, gcuda_add(c, x, z), 96), 2.0f)); break; // another shape
        case 6:
            out(b, gcuda_sin(c, gcuda_cos(c, x)));
            break; // not in the list
        // another type
        default: out(b, gcuda_scale(c, gcuda_cast(c, gcuda_scale(c, x, 2.0f), GCUDA_TYPE_F16), 0.5f)); break;
    }
}

TEST(element_wise_operations_stay_apart) {
    for (int v = 0; v <= 7; ++v) { stops(build_chain_not, v, ""); }
    clean();
}

// =====================================================================================================================
// >>ssm_conv
// =====================================================================================================================
enum { CHANNELS = 37 };

static void build_ssm_conv(struct build * b) {
    struct gcuda_context * c = b->ctx;
    const int v = b->variant;
    const int64_t taps = v == 1 ? 3 : v == 2 ? 5 : v == 3 ? 40 : 4, tokens = v == 4 ? 1 : v == 5 ? 140 : 20;
    struct gcuda_tensor * y =
        gcuda_ssm_conv(c, f32(b, tokens + taps - 1, CHANNELS, v == 4 ? 1 : 2), f32(b, taps, CHANNELS, 1));
    if (v == 4) { y = gcuda_add(c, f32(b, CHANNELS, 1, 1), y); }
    if (v == 5) { y = gcuda_add(c, y, f32(b, CHANNELS, 1, 1)); }
    out(b, v == 2 ? gcuda_silu_inplace(c, y) : gcuda_silu(c, y));
}

TEST(silu_goes_into_ssm_conv) {
    for (int v = 0; v <= 5; ++v) { fires(build_ssm_conv, v, "ssm_conv + silu", 1); }
    clean();
}

static void build_ssm_conv_not(struct build * b) {
    struct gcuda_context * c = b->ctx;
    const int v = b->variant;
    struct gcuda_tensor * sx = gcuda_new_tensor_3d(c, v == 0 ? GCUDA_TYPE_F16 : GCUDA_TYPE_F32, 13, CHANNELS, 2);
    struct gcuda_tensor *conv = gcuda_ssm_conv(c, sx, f32(b, 4, CHANNELS, 1)), *y = conv,
                        *bias = f32(b, CHANNELS, 1, 1);
    switch (v) {
        case 1: gcuda_set_output(conv); break;
        case 2: y = gcuda_reshape_2d(c, conv, CHANNELS, 20); break;
        case 3: y = gcuda_add_inplace(c, conv, bias); break; // a view of the other
        case 4:
            y = gcuda_add(c, conv, bias);
            gcuda_set_output(y);
            break;
        case 5: y = gcuda_add(c, conv, bias); break;
        case 6: y = gcuda_add(c, conv, conv); break;
        case 7: y = gcuda_add(c, conv, f32(b, CHANNELS, 10, 1)); break; // other biases for every token
        case 8: y = gcuda_add(c, conv, f32(b, 1, 1, 1)); break;
        case 9: y = gcuda_add(c, conv, gcuda_new_tensor_1d(c, GCUDA_TYPE_F16, CHANNELS)); break;
        case 10: y = gcuda_mul(c, conv, bias); break;
        case 11: y = gcuda_add(c, f32(b, CHANNELS, 10, 4), conv); break; // repeated
        default: break;
    }
    out(b, v == 12 ? gcuda_relu(c, y) : v == 13 ? gcuda_sqr(c, y) : gcuda_silu(c, y));
    if (v == 1 || v == 4) { out(b, v == 1 ? conv : y); }
    if (v == 5 || v == 14) { out(b, gcuda_neg(c, y)); } // another reader
}

TEST(ssm_conv_and_silu_stay_apart) {
    for (int v = 0; v <= 14; ++v) { stops(build_ssm_conv_not, v, v >= 6 && v <= 11 ? "chain" : ""); }
    clean();
}

// Blocks read inputs, weights and bias that others need too: the result must lie elsewhere, be it of the same layout
// (one weight, as many tokens as channels). Its own values' places are free.
TEST(ssm_conv_does_not_write_over_what_it_reads) {
    gcuda_backend_t plain = without_plans(), fused = gcuda_backend_cuda_init(0);
    REQUIRE(plain != NULL && fused != NULL);
    gcuda_backend_buffer_t buffer = gcuda_backend_alloc_buffer(plain, 1 << 16);
    struct place p = place_begin();
    struct gcuda_tensor * in[3] = { gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, 32, 32),
        gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, 1, 32), gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_F32, 32) };
    struct gcuda_tensor *conv = gcuda_ssm_conv(p.ctx, in[0], in[1]), *sum = gcuda_add(p.ctx, conv, in[2]),
                        *y = gcuda_silu(p.ctx, sum);
    struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
    CHECK_OK(gcuda_build_forward_expand(graph, y));
    char * base = (char *) gcuda_backend_buffer_get_base(buffer);
    for (int i = 0; i < 3; ++i) { CHECK_OK(gcuda_backend_tensor_alloc(buffer, in[i], base + 8192 * i)); }
    CHECK_OK(gcuda_backend_tensor_alloc(buffer, conv, base + 24576));
    CHECK_OK(gcuda_backend_tensor_alloc(buffer, sum, base + 32768));
    CHECK_OK(gcuda_backend_tensor_alloc(buffer, y, base + 40960));
    static const struct {
        int at;
        const char * names;
    } places[] = { { 40960, "ssm_conv + silu" }, { 0, "chain" }, { 512, "chain" }, { 8192, "chain" }, { 16384, "" },
        { 16384 - 4096, "ssm_conv + silu" }, { 24576, "ssm_conv + silu" }, { 32768, "ssm_conv + silu" } };
    for (int i = 0; i < 8; ++i) {
        static float want[32 * 32], got[32 * 32];
        y->data = base + places[i].at;
        for (int round = 0; round < 2; ++round) {
            for (int k = 0; k < 3; ++k) { fill(in[k], k + 1); }
            CHECK_OK(gcuda_backend_graph_compute(round == 0 ? plain : fused, graph));
            CHECK_OK(gcuda_backend_tensor_get(y, round == 0 ? want : got, 0, sizeof want));
        }
        CHECK_MSG(memcmp(want, got, sizeof want) == 0, "result at %d: other bits than one by one", places[i].at);
        gcuda_backend_graph_plan_t plan = gcuda_backend_graph_plan_create(fused, graph);
        REQUIRE(plan != NULL);
        char names[200];
        names_of((const struct gcudai_cuda_plan *) plan, names, sizeof names);
        CHECK_MSG(strcmp(names, places[i].names) == 0, "result at %d: \"%s\"", places[i].at, names);
        gcuda_backend_graph_plan_free(fused, plan);
    }
    place_end(&p);
    gcuda_backend_buffer_free(buffer);
    gcuda_backend_free(fused);
    gcuda_backend_free(plain);
    clean();
}

// The launcher against float64: a bias, SiLU, both, with rows packed (tiles) or not.
static void launch_ssm_conv_once(enum gcuda_type type, int64_t taps, int64_t tokens, bool has_bias, bool is_activated) {
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    struct place p = place_begin();
    struct gcuda_tensor * x = gcuda_new_tensor_3d(p.ctx, type, tokens + taps - 1, CHANNELS, 2);
    struct gcuda_tensor * c = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, taps, CHANNELS);
    struct gcuda_tensor * bias = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, 2, CHANNELS); // every second one
    struct gcuda_tensor *y = gcuda_new_tensor_3d(p.ctx, GCUDA_TYPE_F32, CHANNELS, tokens, 2),
                        *all[4] = { x, c, bias, y };
    float * f[4];
    REQUIRE(backend != NULL && place_alloc(&p, backend));
    for (int i = 0; i < 4; ++i) {
        void * data = malloc(gcuda_nbytes(all[i]));
        f[i] = (float *) malloc((size_t) gcuda_nelements(all[i]) * sizeof(float));
        fill(all[i], i);
        CHECK_OK(gcuda_backend_tensor_get(all[i], data, 0, gcuda_nbytes(all[i])));
        for (int64_t k = 0; k < gcuda_nelements(all[i]); ++k) {
            f[i][k] = gcudai_float_at(all[i]->type, (char *) data + (size_t) k * gcuda_type_size(all[i]->type));
        }
        free(data);
    }
    struct gcuda_ssm_conv_args args;
    memset(&args, 0, sizeof args);
    args.x = gcudai_array(x), args.c = gcudai_array(c), args.y = gcudai_array(y);
    if (has_bias) {
        args.bias = gcudai_array(bias);
        args.bias.ne[0] = CHANNELS, args.bias.nb[0] = 8, args.bias.ne[1] = 1;
    }
    args.is_activated = is_activated;
    CHECK_OK(gcuda_launch_ssm_conv(&args, NULL));
    CHECK(cudaStreamSynchronize(NULL) == cudaSuccess);
    CHECK_OK(gcuda_backend_tensor_get(y, f[3], 0, gcuda_nbytes(y)));
    double error = 0.0, size = 0.0;
    for (int64_t i = 0; i < gcuda_nelements(y); ++i) {
        const int64_t channel = i % CHANNELS, token = i / CHANNELS % tokens,
                      row = i / CHANNELS / tokens * CHANNELS + channel;
        double sum = has_bias ? (double) f[2][2 * channel] : 0.0;
        for (int64_t k = 0; k < taps; ++k) {
            sum += (double) f[0][row * (tokens + taps - 1) + token + k] * (double) f[1][channel * taps + k];
        }
        const double want = is_activated ? sum / (1.0 + exp(-sum)) : sum, d = want - (double) f[3][i];
        error += d * d, size += want * want;
    }
    CHECK_MSG(error <= 1e-12 * size, "%s, %d taps, %d tokens: error %g", gcuda_type_name(type), (int) taps,
        (int) tokens, error / size);
    for (int i = 0; i < 4; ++i) { free(f[i]); }
    place_end(&p);
    gcuda_backend_free(backend);
}

TEST(ssm_conv_launcher_with_bias_and_silu) {
    for (int v = 0; v < 4; ++v) {
        for (int64_t taps = 3; taps <= 5; ++taps) {
            launch_ssm_conv_once(GCUDA_TYPE_F32, taps, 40, v & 1, v & 2);
            launch_ssm_conv_once(GCUDA_TYPE_F32, taps, 1, v & 1, v & 2);
        }
        launch_ssm_conv_once(GCUDA_TYPE_F16, 4, 40, v & 1, v & 2);
        launch_ssm_conv_once(GCUDA_TYPE_BF16, 4, 3, v & 1, v & 2);
    }
    clean();
}

// =====================================================================================================================
// >>columns   gates whose result is written prequantized, for a product on WGMMA: plans are made and not run
// =====================================================================================================================
struct wide_plan { // what is to be known of it
    char names[256];
    int n_steps;
    bool has_steps; // after the gate's product
};

static void wide_plan_of(const struct gcudai_cuda_plan * plan, struct wide_plan * w) {
    memset(w, 0, sizeof *w);
    names_of(plan, w->names, sizeof w->names);
    w->n_steps = plan->n_steps;
    for (int i = 0; i < plan->n_steps; ++i) {
        const struct gcudai_cuda_step * s = &plan->steps[i];
        if (s->pattern != NULL && s->pattern->kind == GCUDAI_CUDA_FUSED_GLU_PRODUCT) {
            const int form = product_layout(GCUDA_MUL_MAT_WGMMA, s->args.glu_mul_mat.products.of.args, 1).form;
            w->has_steps = s->args.glu_mul_mat.products.has_epilogue;
            CHECK(form != 0 && s->args.glu_mul_mat.glu.form == form &&
                  (s->overlap != GCUDA_OVERLAP_NONE || GCUDA_SIM_CC < 900));
            CHECK(
                s->scratch_bytes >= product_layout(GCUDA_MUL_MAT_WGMMA, s->args.glu_mul_mat.products.of.args, 1).bytes);
            CHECK(s->args.glu_mul_mat.products.of.args->max_shared > 48 << 10 || GCUDA_SIM_CC < 900);
        }
    }
}

static void wide(builder make, int variant, bool has_warp_groups, bool is_strict, struct wide_plan * got) {
    struct gcuda_cuda_params params;
    memset(&params, 0, sizeof params);
    params.strict = is_strict;
    params.concurrency = GCUDA_CUDA_OFF;
    struct placed c;
    REQUIRE(placed_begin(&c, &params, make, variant));
    gcuda_backend_graph_plan_t plan = placed_plan(&c, has_warp_groups);
    REQUIRE(plan != NULL);
    wide_plan_of((const struct gcudai_cuda_plan *) plan, got);
    placed_end(&c, plan);
}

static void wide_gives(builder make, int variant, const char * names) {
    struct wide_plan got;
    wide(make, variant, true, false, &got);
    CHECK_MSG(strcmp(got.names, names) == 0, "variant %d: fused are \"%s\", wanted \"%s\"", variant, got.names, names);
}

enum { GATED = 64 }; // columns
#define C_WIDE "several products, wgmma"
static void build_gate(struct build * b) {
    struct gcuda_context * c = b->ctx;
    const int v = b->variant;
    const int64_t k = v == 2 || v == 3 ? 16384
                      : v == 12        ? 4096 + 128
                                       : 4096,
                  m = v == 2 || v == 3 ? 4352 : 4096, n = v == 13 ? 16 : GATED;
    const enum gcuda_type type = v == 11 ? GCUDA_TYPE_F16 : v == 12 ? GCUDA_TYPE_Q4_1 : GCUDA_TYPE_Q4_0;
    struct gcuda_tensor *x = f32(b, v == 1 ? 2 * k : k, n, v == 15 ? 2 : 1),
                        *g = v == 14 ? gcuda_view_2d(c, f32(b, k + 8, n, 1), k, n, (size_t) (k + 8) * 4, 4) : x;
    struct gcuda_tensor *w = gcuda_new_tensor_2d(c, type, k, m), *glu;
    if (v == 10) {
        x = g = gcuda_new_tensor_2d(c, GCUDA_TYPE_F16, k, n);
    } else if (v != 1 && v != 14) {
        g = f32(b, k, n, v == 15 ? 2 : 1);
    }
    glu = v == 1 ? gcuda_geglu_swapped(c, x) : gcuda_swiglu_split(c, x, g);
    if (v == 7) {
        gcuda_set_output(glu);
        out(b, glu);
    }
    if (v == 8) { glu = gcuda_view_2d(c, glu, k, n, glu->nb[1], 0); }
    struct gcuda_tensor * y = gcuda_mul_mat(c, w, glu);
    if (v == 2) { y = gcuda_add(c, gcuda_add(c, y, f32(b, m, 1, 1)), f32(b, m, n, 1)); }
    if (v == 3) { // the norm takes the residual
        y = gcuda_add(c, f32(b, m, n, 1), y);
        gcuda_set_output(y);
        out(b, y);
        y = gcuda_mul(c, gcuda_rms_norm(c, y, 1e-5f), f32(b, m, 1, 1));
    }
    if (v == 4) { y = gcuda_gelu(c, gcuda_add(c, y, f32(b, m, 1, 1))); } // k is not split: a chain after it
    if (v == 5) { gcuda_mul_mat_set_prec(y, GCUDA_PREC_F32); }
    out(b, y);
    if (v == 6) { out(b, gcuda_neg(c, glu)); }                                         // read again
    if (v == 9) { out(b, gcuda_mul_mat(c, gcuda_new_tensor_2d(c, type, k, m), glu)); } // by another product
}

TEST(a_gate_goes_into_the_product_that_reads_it) {
    static const char * const name = "glu + mul_mat";
    struct wide_plan got;
    wide_gives(build_gate, 0, name);
    wide_gives(build_gate, 1, name); // halves of one tensor
    wide_gives(build_gate, 2, name);
    wide_gives(build_gate, 3, "glu + mul_mat, add + rms_norm + mul");
    wide_gives(build_gate, 4, "glu + mul_mat, chain");
    for (int v = 5; v <= 15; ++v) { wide_gives(build_gate, v, v == 9 ? C_WIDE : ""); }
    for (int v = 0; v <= 2; ++v) {
        wide(build_gate, v, true, true, &got);
        CHECK(strcmp(got.names, name) == 0 && got.n_steps == 1 && got.has_steps == (v == 2));
        wide(build_gate, v, false, false, &got);
        CHECK(strstr(got.names, "glu") == NULL && got.n_steps > 1);
    }
    clean();
}

// The product's rows are on two devices, whose parts round the columns for themselves.
TEST(a_gate_stays_apart_from_split_weights) {
    for (int turn = 0; turn < 2; ++turn) {
        const float shares[2] = { 1, 1 };
        fresh(2, 64 * MB, 1);
        gcuda_backend_t backend = gcuda_backend_cuda_init(0);
        struct place weight = place_begin(), p = place_begin();
        struct gcuda_tensor * w = gcuda_new_tensor_2d(weight.ctx, GCUDA_TYPE_Q4_0, 4096, 4096);
        struct gcuda_tensor *x = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, 4096, GATED),
                            *g = gcuda_dup_tensor(p.ctx, x);
        struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
        CHECK_OK(gcuda_build_forward_expand(graph, gcuda_mul_mat(p.ctx, w, gcuda_swiglu_split(p.ctx, x, g))));
        REQUIRE(backend != NULL && place_alloc(&p, backend));
        weight.buffer = gcuda_backend_alloc_ctx_tensors_from_buft(
            weight.ctx, turn == 0 ? gcuda_backend_get_default_buffer_type(backend)
                                  : gcuda_backend_cuda_split_buffer_type(0, shares, 2));
        REQUIRE(weight.buffer != NULL);
        ((struct gcudai_cuda *) backend)->kernels.has_wgmma = true;
        gcuda_backend_graph_plan_t plan = gcuda_backend_graph_plan_create(backend, graph);
        struct wide_plan got;
        REQUIRE(plan != NULL);
        wide_plan_of((const struct gcudai_cuda_plan *) plan, &got);
        CHECK_MSG(strcmp(got.names, turn == 0 ? "glu + mul_mat" : "") == 0, "turn %d: \"%s\"", turn, got.names);
        gcuda_backend_graph_plan_free(backend, plan);
        place_end(&p);
        place_end(&weight);
        gcuda_backend_free(backend);
    }
    clean();
}

// A decoder block without its attention: nine nodes in four steps.
static void build_block(struct build * b) {
    struct gcuda_context * c = b->ctx;
    struct gcuda_tensor *x = f32(b, 4096, GATED, 1), *h = gcuda_mul(c, gcuda_rms_norm(c, x, 1e-5f), f32(b, 4096, 1, 1)),
                        *y[2];
    for (int i = 0; i < 2; ++i) { y[i] = gcuda_mul_mat(c, gcuda_new_tensor_2d(c, GCUDA_TYPE_Q4_0, 4096, 8192), h); }
    x = gcuda_add(
        c, x, gcuda_mul_mat(c, gcuda_new_tensor_2d(c, GCUDA_TYPE_Q4_0, 8192, 4096), gcuda_swiglu_split(c, y[0], y[1])));
    out(b, gcuda_mul(c, gcuda_rms_norm(c, x, 1e-5f), f32(b, 4096, 1, 1)));
}

TEST(a_block_of_many_columns_has_fewer_launches_than_nodes) {
    wide_gives(build_block, 0, "rms_norm + mul, " C_WIDE ", glu + mul_mat, add + rms_norm + mul");
    clean();
}

// =====================================================================================================================
// >>memory   results of a group must not overlap its operands
// =====================================================================================================================
// The result of the second node is in the memory of the first one's source, moved by `offset` elements.
enum overlapping { SCALE_MUL, NORM_MUL, SCALE_SOFT_MAX, WIDER_MUL }; // WIDER: x is of 16 bits
static void overlap_once(enum overlapping kind, int64_t offset, bool is_fused) {
    gcuda_backend_t plain = without_plans(), fused = gcuda_backend_cuda_init(0);
    REQUIRE(plain != NULL && fused != NULL);
    gcuda_backend_buffer_t buffer = gcuda_backend_alloc_buffer(plain, 1 << 16);
    struct place p = place_begin();
    struct gcuda_tensor * x = gcuda_new_tensor_2d(p.ctx, kind == WIDER_MUL ? GCUDA_TYPE_F16 : GCUDA_TYPE_F32, 32, 8);
    struct gcuda_tensor * w = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, 32, 8);
    struct gcuda_tensor * first = kind == WIDER_MUL  ? gcuda_add_cast(p.ctx, x, w, GCUDA_TYPE_F32)
                                  : kind == NORM_MUL ? gcuda_rms_norm(p.ctx, x, 1e-5f)
                                                     : gcuda_scale(p.ctx, x, 2.0f);
    struct gcuda_tensor * y = kind == SCALE_SOFT_MAX ? gcuda_soft_max(p.ctx, first) : gcuda_mul(p.ctx, first, w);
    struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
    CHECK_OK(gcuda_build_forward_expand(graph, y));
    char * base = (char *) gcuda_backend_buffer_get_base(buffer);
    CHECK_OK(gcuda_backend_tensor_alloc(buffer, x, base + 4096));
    CHECK_OK(gcuda_backend_tensor_alloc(buffer, w, base + 16384));
    CHECK_OK(gcuda_backend_tensor_alloc(buffer, first, base + 32768));
    CHECK_OK(gcuda_backend_tensor_alloc(buffer, y, base + 4096 + offset * 4));
    float want[256], got[256];
    for (int i = 0; i < 2; ++i) {
        fill(x, 1);
        fill(w, 2);
        CHECK_OK(gcuda_backend_graph_compute(i == 0 ? plain : fused, graph));
        CHECK_OK(gcuda_backend_tensor_get(y, i == 0 ? want : got, 0, sizeof want));
    }
    CHECK(memcmp(want, got, sizeof want) == 0);
    struct gcuda_cuda_plan_stats s;
    CHECK_OK(gcuda_backend_cuda_get_plan_stats(fused, &s));
    CHECK_MSG((s.n_fused == 1) == is_fused, "offset %d, kind %d: %d fused", (int) offset, (int) kind, (int) s.n_fused);
    // the plan in the cache follows when memory becomes another
    y->data = base + 49152;
    fill(x, 1);
    fill(w, 2);
    CHECK_OK(gcuda_backend_graph_compute(fused, graph));
    CHECK_OK(gcuda_backend_tensor_get(y, got, 0, sizeof want));
    CHECK(memcmp(want, got, sizeof want) == 0);
    y->data = base + 4096 + 128;
    fill(x, 1);
    fill(w, 2);
    CHECK_OK(gcuda_backend_graph_compute(fused, graph));
    CHECK_OK(gcuda_backend_tensor_get(y, got, 0, sizeof want));
    CHECK(memcmp(want, got, sizeof want) == 0);
    place_end(&p);
    gcuda_backend_buffer_free(buffer);
    gcuda_backend_free(fused);
    gcuda_backend_free(plain);
}

TEST(overlapping_memory_stops_fusion) {
    for (int i = 0; i < 3; ++i) {
        const enum overlapping kind = (enum overlapping) i;
        overlap_once(kind, 0, true);   // exactly in place
        overlap_once(kind, 32, false); // a row further
        overlap_once(kind, -64, false);
        overlap_once(kind, 224, false); // the last row alone
        overlap_once(kind, 256, true);  // after it
        overlap_once(kind, -256, true);
        overlap_once(kind, 3072, true); // exactly on the other operand
    }
    overlap_once(WIDER_MUL, 0, false); // the result overwrites other elements of x
    overlap_once(WIDER_MUL, 127, false);
    overlap_once(WIDER_MUL, 128, true);
    overlap_once(WIDER_MUL, -256, true);
    overlap_once(WIDER_MUL, 3072, true);
    clean();
}

// A cache in the memory that rows are looked up from stays apart from the rope: heads, positions, factors, and the
// rows' own numbers. at: which of them, -1: none.
static void rope_once(int at, bool is_fused) {
    enum { HEAD = 16, HEADS = 4, TOKENS_HERE = 8 };
    gcuda_backend_t plain = without_plans(), fused = gcuda_backend_cuda_init(0);
    REQUIRE(plain != NULL && fused != NULL);
    gcuda_backend_buffer_t buffer = gcuda_backend_alloc_buffer(plain, 1 << 16);
    struct place p = place_begin();
    struct gcuda_tensor * in[4] = { gcuda_new_tensor_3d(p.ctx, GCUDA_TYPE_F32, HEAD, HEADS, TOKENS_HERE),
        gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_I32, TOKENS_HERE), gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_F32, HEAD / 2),
        gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_I64, TOKENS_HERE) };
    struct gcuda_tensor * cache = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F16, HEAD * HEADS, 16);
    struct gcuda_tensor * r = gcuda_rope_ext(
        p.ctx, in[0], in[1], in[2], HEAD, GCUDA_ROPE_TYPE_NEOX, 0, 10000.0f, 1.0f, 0.0f, 1.0f, 0.0f, 0.0f);
    struct gcuda_tensor *rows = gcuda_reshape_2d(p.ctx, r, HEAD * HEADS, TOKENS_HERE),
                        *y = gcuda_set_rows(p.ctx, cache, rows, in[3]);
    struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
    CHECK_OK(gcuda_build_forward_expand(graph, y));
    char * base = (char *) gcuda_backend_buffer_get_base(buffer);
    for (int i = 0; i < 4; ++i) { CHECK_OK(gcuda_backend_tensor_alloc(buffer, in[i], base + 4096 * (i + 1))); }
    CHECK_OK(gcuda_backend_tensor_alloc(buffer, r, base + 4096 * 6));
    // its last rows, which are not written; of the heads, which the rope has read by then, its first
    CHECK_OK(gcuda_backend_tensor_alloc(buffer, cache,
        base + (at < 0       ? 4096 * 8
                   : at == 0 ? 4096
                             : 4096 * (at + 1) - 15 * 128)));
    CHECK_OK(gcuda_backend_view_init(rows));
    CHECK_OK(gcuda_backend_view_init(y));
    static char got[2][HEAD * HEADS * 16 * 2];
    for (int i = 0; i < 2; ++i) {
        CHECK_OK(gcuda_backend_tensor_memset(cache, 0, 0, sizeof got[0]));
        for (int k = 0; k < 4; ++k) { fill(in[k], k + 1); }
        CHECK_OK(gcuda_backend_graph_compute(i == 0 ? plain : fused, graph));
        CHECK_OK(gcuda_backend_tensor_get(cache, got[i], 0, sizeof got[i]));
    }
    CHECK_MSG(memcmp(got[0], got[1], sizeof got[0]) == 0, "on %d: other bits", at);
    struct gcuda_cuda_plan_stats s;
    CHECK_OK(gcuda_backend_cuda_get_plan_stats(fused, &s));
    CHECK_MSG((s.n_fused == 1) == is_fused, "on %d: %d fused", at, (int) s.n_fused);
    place_end(&p);
    gcuda_backend_buffer_free(buffer);
    gcuda_backend_free(fused);
    gcuda_backend_free(plain);
}

TEST(a_cache_lies_apart_from_what_the_rope_reads) {
    rope_once(-1, true);
    for (int at = 0; at < 4; ++at) { rope_once(at, false); }
    clean();
}

// Queries with rope after the write: where their result and the cache overlap what the group reads.
// is_defined: no node by itself writes over what others of its blocks read.
static void queries_once(int64_t at_q, int64_t at_cache, bool is_defined, bool is_fused) {
    enum { HEAD = 16, HEADS = 4, N = 8 };
    gcuda_backend_t plain = without_plans(), fused = gcuda_backend_cuda_init(0);
    REQUIRE(plain != NULL && fused != NULL);
    gcuda_backend_buffer_t buffer = gcuda_backend_alloc_buffer(plain, 1 << 16);
    struct place p = place_begin();
    struct gcuda_tensor * in[5] = { gcuda_new_tensor_3d(p.ctx, GCUDA_TYPE_F32, HEAD, HEADS, N),
        gcuda_new_tensor_3d(p.ctx, GCUDA_TYPE_F32, HEAD, HEADS, N), gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_I32, N),
        gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_F32, HEAD / 2), gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_I64, N) };
    struct gcuda_tensor *r[2], *cache = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F16, HEAD * HEADS, 16);
    for (int i = 0; i < 2; ++i) {
        r[i] = gcuda_rope_ext(
            p.ctx, in[i], in[2], in[3], HEAD, GCUDA_ROPE_TYPE_NEOX, 0, 10000.0f, 1.0f, 0.0f, 1.0f, 0.0f, 0.0f);
    }
    struct gcuda_tensor *rows = gcuda_reshape_2d(p.ctx, r[1], HEAD * HEADS, N),
                        *y = gcuda_set_rows(p.ctx, cache, rows, in[4]);
    struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
    CHECK_OK(gcuda_build_forward_expand(graph, y));
    CHECK_OK(gcuda_build_forward_expand(graph, r[0]));
    char * base = (char *) gcuda_backend_buffer_get_base(buffer);
    for (int i = 0; i < 5; ++i) { CHECK_OK(gcuda_backend_tensor_alloc(buffer, in[i], base + 4096 * (i + 1))); }
    CHECK_OK(gcuda_backend_tensor_alloc(buffer, r[1], base + 4096 * 7));
    CHECK_OK(gcuda_backend_tensor_alloc(buffer, r[0], base + at_q));
    CHECK_OK(gcuda_backend_tensor_alloc(buffer, cache, base + at_cache));
    CHECK_OK(gcuda_backend_view_init(rows));
    CHECK_OK(gcuda_backend_view_init(y));
    static char got[2][1 << 16];
    for (int i = 0; i < 2; ++i) {
        CHECK_OK(gcuda_backend_tensor_memset(cache, 0, 0, gcuda_nbytes(cache)));
        for (int k = 0; k < 5; ++k) { fill(in[k], k + 1); }
        CHECK_OK(gcuda_backend_graph_compute(i == 0 ? plain : fused, graph));
        CHECK_OK(gcuda_backend_tensor_get(cache, got[i], 0, gcuda_nbytes(cache)));
        CHECK_OK(gcuda_backend_tensor_get(r[0], got[i] + (1 << 15), 0, gcuda_nbytes(r[0])));
    }
    CHECK_MSG(!is_defined || memcmp(got[0], got[1], sizeof got[0]) == 0, "queries at %d, cache at %d: other bits",
        (int) at_q, (int) at_cache);
    gcuda_backend_graph_plan_t plan = gcuda_backend_graph_plan_create(fused, graph);
    REQUIRE(plan != NULL);
    char names[200];
    names_of((const struct gcudai_cuda_plan *) plan, names, sizeof names);
    CHECK_MSG(strcmp(names, is_fused ? "rope of queries + rope + set_rows" : "rope + set_rows") == 0,
        "queries at %d, cache at %d: \"%s\"", (int) at_q, (int) at_cache, names);
    gcuda_backend_graph_plan_free(fused, plan);
    place_end(&p);
    gcuda_backend_buffer_free(buffer);
    gcuda_backend_free(fused);
    gcuda_backend_free(plain);
}

TEST(queries_lie_apart_from_what_keys_and_cache_are_made_of) {
    const int64_t q = 4096, k = 8192, pos = 12288, factors = 16384, ids = 20480, keys = 28672, apart = 36864,
                  cache = 49152;
    queries_once(apart, cache, true, true);
    queries_once(q, cache, true, true);    // in place
    queries_once(keys, cache, true, true); // on the keys, which are not written
    queries_once(q + 256, cache, false, false);
    queries_once(k, cache, true, false); // laid out as these are
    queries_once(k + 256, cache, true, false);
    queries_once(pos - 2048, cache, true, true); // the end of what precedes them
    queries_once(pos - 2044, cache, false, false);
    queries_once(factors - 2044, cache, false, false);
    queries_once(ids - 2044, cache, true, false);
    queries_once(cache, cache, true, false);
    queries_once(cache - 2044, cache, true, false);
    queries_once(apart, q, true, false); // queries are read from the cache
    queries_once(apart, q + 2044, true, false);
    clean();
}

// A sum that others read, and the norm of it: where the two lie among what is read, and on each other. A result at
// other multiples of four bytes adds up in another order.
// is_defined: no node by itself writes over what others of its blocks read.
static void sum_once(int64_t at_sum, int64_t at_y, bool is_defined, const char * wanted) {
    gcuda_backend_t plain = without_plans(), fused = gcuda_backend_cuda_init(0);
    REQUIRE(plain != NULL && fused != NULL);
    gcuda_backend_buffer_t buffer = gcuda_backend_alloc_buffer(plain, 1 << 16);
    struct place p = place_begin();
    enum { N = 32, N_ROWS = 8 };
    struct gcuda_tensor * in[3] = { gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, N, N_ROWS),
        gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, N, N_ROWS), gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_F32, N) };
    struct gcuda_tensor *sum = gcuda_add(p.ctx, in[0], in[1]), *norm = gcuda_rms_norm(p.ctx, sum, 1e-5f),
                        *y = gcuda_mul(p.ctx, norm, in[2]);
    struct gcuda_tensor * z = gcuda_sqr(p.ctx, sum);
    struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
    CHECK_OK(gcuda_build_forward_expand(graph, y));
    CHECK_OK(gcuda_build_forward_expand(graph, z));
    char * base = (char *) gcuda_backend_buffer_get_base(buffer);
    struct gcuda_tensor * all[7] = { in[0], in[1], in[2], sum, norm, y, z };
    for (int i = 0; i < 7; ++i) { CHECK_OK(gcuda_backend_tensor_alloc(buffer, all[i], base + 4096 * (i + 1))); }
    sum->data = base + at_sum;
    y->data = base + at_y;
    static float got[2][2][N * N_ROWS];
    for (int i = 0; i < 2; ++i) {
        for (int k = 0; k < 3; ++k) { fill(in[k], k + 1); }
        CHECK_OK(gcuda_backend_graph_compute(i == 0 ? plain : fused, graph));
        CHECK_OK(gcuda_backend_tensor_get(y, got[i][0], 0, sizeof got[i][0]));
        CHECK_OK(gcuda_backend_tensor_get(z, got[i][1], 0, sizeof got[i][1]));
    }
    CHECK_MSG(!is_defined || memcmp(got[0], got[1], sizeof got[0]) == 0, "sum at %d, result at %d: other bits",
        (int) at_sum, (int) at_y);
    gcuda_backend_graph_plan_t plan = gcuda_backend_graph_plan_create(fused, graph);
    REQUIRE(plan != NULL);
    char names[200];
    names_of((const struct gcudai_cuda_plan *) plan, names, sizeof names);
    CHECK_MSG(strcmp(names, wanted) == 0, "sum at %d, result at %d: \"%s\"", (int) at_sum, (int) at_y, names);
    gcuda_backend_graph_plan_free(fused, plan);
    place_end(&p);
    gcuda_backend_buffer_free(buffer);
    gcuda_backend_free(fused);
    gcuda_backend_free(plain);
}

TEST(a_sum_and_its_norm_lie_apart) {
    const char *both = "add + rms_norm + mul", *norm = "rms_norm + mul";
    sum_once(16384, 24576, true, both);
    sum_once(4096, 24576, true, both); // in place
    sum_once(8192, 24576, true, both); // on the other operand
    sum_once(16384, 4096, true, both); // the result in place, which the sum has left
    sum_once(4096 + 128, 24576, false, norm);
    sum_once(8192 + 128, 24576, false, norm);
    sum_once(12288, 24576, true, norm); // on the weight, which is overwritten then before it is read
    sum_once(16384, 8192 - 128, true, norm);
    sum_once(16384, 16384, true, norm); // on the sum, of which something else is made
    sum_once(16384, 12288, false, "");  // on the weight
    sum_once(16384, 24576 + 4, true, "");
    sum_once(16384 + 4, 24576 + 4, true, both); // sums as before
    clean();
}

// Memory given out by the graph allocator, which reuses what is dead: the same results.
TEST(reused_memory_gives_the_same_results) {
    gcuda_backend_t plain = without_plans(), fused = gcuda_backend_cuda_init(0);
    REQUIRE(plain != NULL && fused != NULL);
    const struct gcuda_init_params ip = { 0, NULL, true };
    struct gcuda_context * ctx = gcuda_init(ip);
    struct gcuda_tensor *x = gcuda_new_tensor_2d(ctx, GCUDA_TYPE_F32, 64, 6),
                        *w = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F32, 64), *h = x;
    gcuda_set_input(x);
    gcuda_set_input(w);
    for (int layer = 0; layer < 4; ++layer) {
        struct gcuda_tensor * n = gcuda_mul(ctx, gcuda_rms_norm(ctx, h, 1e-5f), w);
        struct gcuda_tensor * up = gcuda_mul(ctx, gcuda_silu(ctx, n), gcuda_scale(ctx, n, 0.5f));
        h = gcuda_add(ctx, h, gcuda_soft_max(ctx, gcuda_scale(ctx, up, 3.0f)));
        h = gcuda_add(ctx, gcuda_add(ctx, h, w), up);
    }
    gcuda_set_output(h);
    struct gcuda_cgraph * graph = gcuda_new_graph(ctx);
    CHECK_OK(gcuda_build_forward_expand(graph, h));
    gcuda_gallocr_t alloc = gcuda_gallocr_new(gcuda_backend_get_default_buffer_type(plain));
    CHECK_OK(gcuda_gallocr_alloc_graph(alloc, graph));
    static float want[64 * 6], got[64 * 6];
    for (int round = 0; round < 4; ++round) {
        fill(x, 3);
        fill(w, 4);
        CHECK_OK(gcuda_backend_graph_compute(round == 0 ? plain : fused, graph));
        CHECK_OK(gcuda_backend_tensor_get(h, round == 0 ? want : got, 0, sizeof want));
        CHECK(round == 0 || memcmp(want, got, sizeof want) == 0);
    }
    struct gcuda_cuda_plan_stats s;
    CHECK_OK(gcuda_backend_cuda_get_plan_stats(fused, &s));
    CHECK(s.n_fused >= 8);
    gcuda_gallocr_free(alloc);
    gcuda_free(ctx);
    gcuda_backend_free(fused);
    gcuda_backend_free(plain);
    clean();
}

// A feed-forward block: what the allocator does with its memory must leave it three launches.
TEST(a_block_in_reused_memory_is_three_launches) {
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    const struct gcuda_init_params ip = { 0, NULL, true };
    struct gcuda_context *ctx = gcuda_init(ip), *weights_ctx = gcuda_init(ip);
    struct gcuda_tensor *norm = gcuda_new_tensor_1d(weights_ctx, GCUDA_TYPE_F32, 64), *w[3];
    for (int i = 0; i < 3; ++i) {
        w[i] = gcuda_new_tensor_2d(weights_ctx, GCUDA_TYPE_Q4_0, i == 2 ? 224 : 64, i == 2 ? 64 : 224);
    }
    struct gcuda_tensor *x = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F32, 64), *h = x;
    gcuda_set_input(x);
    for (int layer = 0; layer < 3; ++layer) {
        struct gcuda_tensor * n = gcuda_mul(ctx, gcuda_rms_norm(ctx, h, 1e-5f), norm);
        struct gcuda_tensor * a = gcuda_swiglu_split(ctx, gcuda_mul_mat(ctx, w[0], n), gcuda_mul_mat(ctx, w[1], n));
        h = gcuda_add(ctx, h, gcuda_mul_mat(ctx, w[2], a));
    }
    gcuda_set_output(h);
    struct gcuda_cgraph * graph = gcuda_new_graph(ctx);
    CHECK_OK(gcuda_build_forward_expand(graph, h));
    gcuda_gallocr_t alloc = gcuda_gallocr_new(gcuda_backend_get_default_buffer_type(backend));
    gcuda_backend_buffer_t buffer = gcuda_backend_alloc_ctx_tensors(weights_ctx, backend);
    CHECK_OK(gcuda_gallocr_alloc_graph(alloc, graph));
    gcuda_backend_graph_plan_t plan = gcuda_backend_graph_plan_create(backend, graph);
    REQUIRE(buffer != NULL && plan != NULL);
    char names[400];
    names_of((const struct gcudai_cuda_plan *) plan, names, sizeof names);
    CHECK_MSG(((const struct gcudai_cuda_plan *) plan)->n_steps == 9, "%d launches: %s",
        ((const struct gcudai_cuda_plan *) plan)->n_steps, names);
    gcuda_backend_graph_plan_free(backend, plan);
    gcuda_gallocr_free(alloc);
    gcuda_backend_buffer_free(buffer);
    gcuda_free(ctx);
    gcuda_free(weights_ctx);
    gcuda_backend_free(backend);
    clean();
}

// =====================================================================================================================
// >>overlap   which kernels may start before the one ahead of them has ended
// =====================================================================================================================
// Two products, the second of the first one's result, and its squares.
struct two {
    struct place p;
    struct gcuda_tensor *w[2], *x, *y[3];
    struct gcuda_cgraph * graph;
};

static void two_begin(struct two * t) {
    t->p = place_begin();
    t->x = gcuda_new_tensor_1d(t->p.ctx, GCUDA_TYPE_F32, 64);
    for (int i = 0; i < 2; ++i) {
        t->w[i] = gcuda_new_tensor_2d(t->p.ctx, GCUDA_TYPE_Q4_0, 64, 64);
        t->y[i] = gcuda_mul_mat(t->p.ctx, t->w[i], i == 0 ? t->x : t->y[0]);
    }
    t->y[2] = gcuda_sqr(t->p.ctx, t->y[1]);
    t->graph = gcuda_new_graph(t->p.ctx);
    CHECK_OK(gcuda_build_forward_expand(t->graph, t->y[2]));
}

// The overlap of the plan's steps as letters: n, l, w.
static void overlaps_are(gcuda_backend_t backend, const struct two * t, const char * wanted) {
    gcuda_backend_graph_plan_t plan = gcuda_backend_graph_plan_create(backend, t->graph);
    REQUIRE(plan != NULL);
    const struct gcudai_cuda_plan * p = (const struct gcudai_cuda_plan *) plan;
    char found[16] = "";
    for (int i = 0; i < p->n_steps && i < 15; ++i) { found[i] = "nlw"[p->steps[i].overlap]; }
    CHECK_MSG(strcmp(found, wanted) == 0, "overlap is \"%s\", wanted \"%s\"", found, wanted);
    gcuda_backend_graph_plan_free(backend, plan);
}

static gcuda_backend_t overlapping(enum gcuda_cuda_switch overlap) {
    struct gcuda_cuda_params params;
    memset(&params, 0, sizeof params);
    params.overlap = overlap;
    params.graphs = GCUDA_CUDA_OFF;
    return gcuda_backend_cuda_init_params(&params);
}

TEST(weights_are_read_early_unless_the_plan_writes_their_buffer) {
    gcuda_backend_t on = overlapping(GCUDA_CUDA_ON), by_default = overlapping(GCUDA_CUDA_AUTO);
    setenv("GCUDA_CUDA_PDL", "0", 1);
    gcuda_backend_t env_off = overlapping(GCUDA_CUDA_AUTO), on_all_the_same = overlapping(GCUDA_CUDA_ON);
    unsetenv("GCUDA_CUDA_PDL");
    gcuda_backend_t off = overlapping(GCUDA_CUDA_OFF);
    REQUIRE(on != NULL && off != NULL && by_default != NULL && env_off != NULL && on_all_the_same != NULL);
    const bool may = gcuda_has_overlap();
    struct two t;
    two_begin(&t);
    gcuda_backend_buffer_t weights = gcuda_backend_alloc_buffer(on, 16384),
                           results = gcuda_backend_alloc_buffer(on, 16384);
    char *w = (char *) gcuda_backend_buffer_get_base(weights), *r = (char *) gcuda_backend_buffer_get_base(results);
    for (int i = 0; i < 2; ++i) { CHECK_OK(gcuda_backend_tensor_alloc(weights, t.w[i], w + 4096 * i)); }
    CHECK_OK(gcuda_backend_tensor_alloc(results, t.x, r));
    for (int i = 0; i < 3; ++i) { CHECK_OK(gcuda_backend_tensor_alloc(results, t.y[i], r + 1024 * (i + 1))); }
    overlaps_are(on, &t, may ? "www" : "nnn");
    overlaps_are(on_all_the_same, &t, may ? "www" : "nnn");
    overlaps_are(by_default, &t, may ? "www" : "nnn");
    overlaps_are(off, &t, "nnn");
    overlaps_are(env_off, &t, "nnn");
    fill(t.w[0], 1), fill(t.w[1], 2), fill(t.x, 3);
    float found[2][64];
    for (int i = 0; i < 2; ++i) { // the first launch comes after earlier work
        const long before = sim_overlapped();
        CHECK_OK(gcuda_backend_graph_compute(i == 0 ? on : off, t.graph));
        CHECK_EQ_I(sim_overlapped() - before, may && i == 0 ? 2 : 0);
        CHECK_OK(gcuda_backend_tensor_get(t.y[2], found[i], 0, sizeof found[i]));
    }
    CHECK(memcmp(found[0], found[1], sizeof found[0]) == 0);
    t.y[0]->buffer = t.w[1]->buffer, t.y[0]->data = w + 12288; // a result in the weights' buffer
    overlaps_are(on, &t, may ? "llw" : "nnn");
    CHECK(gcuda_thread_launches()->overlap == GCUDA_OVERLAP_NONE);
    place_end(&t.p);
    gcuda_backend_buffer_free(weights);
    gcuda_backend_buffer_free(results);
    gcuda_backend_free(on);
    gcuda_backend_free(off);
    gcuda_backend_free(by_default);
    gcuda_backend_free(env_off);
    gcuda_backend_free(on_all_the_same);
    clean();
}

// A norm's weight and bias are read early too, unless something in their buffer is written.
TEST(weights_of_norms_are_read_early) {
    gcuda_backend_t on = overlapping(GCUDA_CUDA_ON), off = overlapping(GCUDA_CUDA_OFF);
    REQUIRE(on != NULL && off != NULL);
    const bool may = gcuda_has_overlap();
    enum { N = 1024 };
    for (int where = 0; where < 3; ++where) { // the weight, or the bias, or none is among results
        struct two t;
        t.p = place_begin();
        t.x = gcuda_new_tensor_1d(t.p.ctx, GCUDA_TYPE_F32, N);
        t.w[0] = gcuda_new_tensor_1d(t.p.ctx, GCUDA_TYPE_F32, N);
        t.w[1] = gcuda_new_tensor_1d(t.p.ctx, GCUDA_TYPE_F32, N);
        struct gcuda_tensor *norm[2], *mul[2];
        t.y[0] = t.x;
        for (int i = 0; i < 2; ++i) { // the second is launched after one that it can overlap with
            norm[i] = gcuda_rms_norm(t.p.ctx, t.y[i], 1e-5f);
            mul[i] = gcuda_mul(t.p.ctx, norm[i], t.w[0]);
            t.y[i + 1] = gcuda_add(t.p.ctx, mul[i], t.w[1]);
        }
        t.graph = gcuda_new_graph(t.p.ctx);
        CHECK_OK(gcuda_build_forward_expand(t.graph, t.y[2]));
        gcuda_backend_buffer_t weights = gcuda_backend_alloc_buffer(on, 16384),
                               results = gcuda_backend_alloc_buffer(on, 65536);
        char *w = (char *) gcuda_backend_buffer_get_base(weights), *r = (char *) gcuda_backend_buffer_get_base(results);
        for (int i = 0; i < 2; ++i) {
            CHECK_OK(gcuda_backend_tensor_alloc(
                where == i ? results : weights, t.w[i], (where == i ? r + 32768 : w) + 4096 * i));
            CHECK_OK(gcuda_backend_tensor_alloc(results, norm[i], r + 4096 * (3 * i + 1)));
            CHECK_OK(gcuda_backend_tensor_alloc(results, mul[i], r + 4096 * (3 * i + 2)));
            CHECK_OK(gcuda_backend_tensor_alloc(results, t.y[i + 1], r + 4096 * (3 * i + 3)));
        }
        CHECK_OK(gcuda_backend_tensor_alloc(results, t.x, r));
        overlaps_are(on, &t, !may ? "nn" : where < 2 ? "ll" : "ww");
        fill(t.w[0], 1), fill(t.w[1], 2), fill(t.x, 3);
        static float found[2][N];
        for (int i = 0; i < 2; ++i) {
            const long before = sim_overlapped();
            CHECK_OK(gcuda_backend_graph_compute(i == 0 ? on : off, t.graph));
            CHECK_EQ_I(sim_overlapped() - before, may && i == 0 ? 1 : 0);
            CHECK_OK(gcuda_backend_tensor_get(t.y[2], found[i], 0, sizeof found[i]));
        }
        CHECK(memcmp(found[0], found[1], sizeof found[0]) == 0);
        place_end(&t.p);
        gcuda_backend_buffer_free(weights);
        gcuda_backend_buffer_free(results);
    }
    gcuda_backend_free(on);
    gcuda_backend_free(off);
    clean();
}

// The dynamic shared memory of a product of m rows of Q4_0 with one column, launched to overlap or not.
static size_t shared_of(int m, enum gcuda_overlap overlap, size_t max_shared) {
    enum { LENGTH = 64 };
    static char memory[1 << 16]; // never read: the launch is captured and thrown away
    struct gcuda_mul_mat_args p;
    GCUDAI_ZERO(p);
    p.a.type = GCUDA_TYPE_Q4_0;
    p.b.type = p.y.type = GCUDA_TYPE_F32;
    p.a.data = p.b.data = p.y.data = memory;
    for (int d = 0; d < 4; ++d) { p.a.ne[d] = p.b.ne[d] = p.y.ne[d] = 1; }
    p.a.ne[0] = p.b.ne[0] = LENGTH, p.a.ne[1] = p.y.ne[0] = m;
    p.a.nb[0] = 18, p.b.nb[0] = p.y.nb[0] = 4;
    for (int d = 1; d < 4; ++d) {
        p.a.nb[d] = 36 * (d > 1 ? (size_t) m : 1), p.b.nb[d] = 4 * LENGTH, p.y.nb[d] = 4 * (size_t) m;
    }
    p.max_shared = max_shared;
    cudaStream_t stream = NULL;
    cudaGraph_t graph = NULL;
    cudaGraphNode_t node = NULL;
    size_t n = 1;
    struct cudaKernelNodeParams params;
    GCUDAI_ZERO(params);
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    gcuda_thread_launches()->overlap = overlap;
    CHECK_OK(launch_product(GCUDA_MUL_MAT_VEC, &p, NULL, NULL, stream));
    gcuda_thread_launches()->overlap = GCUDA_OVERLAP_NONE;
    CHECK(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
    CHECK(cudaGraphGetNodes(graph, &node, &n) == cudaSuccess && n == 1);
    CHECK(cudaGraphKernelNodeGetParams(node, &params) == cudaSuccess);
    CHECK(cudaGraphDestroy(graph) == cudaSuccess && cudaStreamDestroy(stream) == cudaSuccess);
    return params.sharedMemBytes;
}

// If an SM has no block, two blocks of the next launch must not share it; the simulated device has four SMs.
TEST(blocks_that_start_early_do_not_share_a_multiprocessor) {
    struct cudaDeviceProp prop;
    CHECK(shared_of(16, GCUDA_OVERLAP_WEIGHTS, 48 * 1024) <= 48 * 1024); // the cap holds
    if (GCUDA_SIM_CC < 900) { // no launch overlaps there, and SMs have less shared memory
        clean();
        return;
    }
    CHECK(cudaGetDeviceProperties(&prop, 0) == cudaSuccess && prop.multiProcessorCount == 4);
    // taken of every block
    const size_t most = prop.sharedMemPerBlockOptin, all = prop.sharedMemPerMultiprocessor, system = 1024;
    const size_t alone = shared_of(16, GCUDA_OVERLAP_NONE, most);
    CHECK(2 * (alone + system) <= all);
    CHECK(2 * (shared_of(16, GCUDA_OVERLAP_WEIGHTS, most) + system) > all);
    CHECK(2 * (shared_of(16, GCUDA_OVERLAP_LAUNCH, most) + system) > all);
    CHECK(2 * (shared_of(4 * 16, GCUDA_OVERLAP_WEIGHTS, most) + system) <= all); // every one has a block
    clean();
}

// =====================================================================================================================
// >>graph   one graph without fusion, next to others that have it
// =====================================================================================================================
static uint64_t n_fused_by(gcuda_backend_t backend) {
    struct gcuda_cuda_plan_stats stats;
    CHECK_OK(gcuda_backend_cuda_get_plan_stats(backend, &stats));
    return stats.n_fused;
}

// Computes the graph after its memory was poisoned: whether inner results were written tells whether it was fused.
static void computes_as_wished(
    gcuda_backend_t backend, struct gcuda_cgraph * graph, const float * want, bool is_fused) {
    struct gcuda_tensor *norm = gcuda_graph_node(graph, 0), *y = gcuda_graph_node(graph, -1);
    float got[2 * ROW * ROWS];
    unsigned char inner[4];
    CHECK_OK(gcuda_backend_tensor_memset(norm, 0xcc, 0, gcuda_nbytes(norm)));
    CHECK_OK(gcuda_backend_tensor_memset(y, 0xcc, 0, gcuda_nbytes(y)));
    CHECK_OK(gcuda_backend_graph_compute(backend, graph));
    CHECK_OK(gcuda_backend_tensor_get(norm, inner, 0, sizeof inner));
    CHECK_OK(gcuda_backend_tensor_get(y, got, 0, sizeof got));
    CHECK((memcmp(inner, "\xcc\xcc\xcc\xcc", 4) == 0) == is_fused);
    CHECK(want == NULL || memcmp(got, want, sizeof got) == 0);
}

TEST(fusion_is_off_for_one_graph_alone) {
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    struct place p = place_begin();
    struct build b;
    memset(&b, 0, sizeof b);
    b.ctx = p.ctx;
    build_norm_mul(&b);
    struct gcuda_cgraph * apart = gcuda_new_graph(p.ctx);
    CHECK_OK(gcuda_build_forward_expand(apart, b.out[0]));
    struct gcuda_cgraph * fused = gcuda_graph_dup(p.ctx, apart, false);
    REQUIRE(backend != NULL && fused != NULL && place_alloc(&p, backend));
    int salt = 0;
    for (struct gcuda_tensor * t = gcuda_get_first_tensor(p.ctx); t != NULL; t = gcuda_get_next_tensor(p.ctx, t)) {
        if (t->op == GCUDA_OP_NONE) { fill(t, ++salt); }
    }
    gcuda_graph_set_fusion(apart, false);
    static float want[2 * ROW * ROWS];
    computes_as_wished(backend, apart, NULL, false);
    CHECK_OK(gcuda_backend_tensor_get(b.out[0], want, 0, sizeof want));
    for (int run = 0; run < 3; ++run) { // launched, captured, replayed: same nodes, two plans
        computes_as_wished(backend, apart, want, false);
        computes_as_wished(backend, fused, want, true);
    }
    struct gcuda_cuda_plan_stats stats;
    CHECK_OK(gcuda_backend_cuda_get_plan_stats(backend, &stats));
    CHECK(stats.n_made == 2 && stats.n_plans == 2 && stats.n_fused == 1 && stats.n_updated == 0);
    gcuda_graph_set_fusion(apart, true); // each switch finds the existing plan
    computes_as_wished(backend, apart, want, true);
    gcuda_graph_set_fusion(fused, false);
    computes_as_wished(backend, fused, want, false);
    CHECK_OK(gcuda_backend_cuda_get_plan_stats(backend, &stats));
    CHECK_EQ_I(stats.n_made, 2);
    // a plan of the caller's changes when it is updated with the graph
    gcuda_backend_graph_plan_t plan = gcuda_backend_graph_plan_create(backend, apart);
    REQUIRE(plan != NULL);
    CHECK_EQ_I(((const struct gcudai_cuda_plan *) plan)->n_steps, 1);
    for (int run = 0; run < 2; ++run) { // until there is a CUDA graph
        CHECK_OK(gcuda_backend_graph_plan_compute(backend, plan));
    }
    for (int i = 0; i < 2; ++i) {
        gcuda_graph_set_fusion(apart, i == 1);
        CHECK_OK(gcuda_backend_graph_plan_update(backend, plan, NULL));
        CHECK_EQ_I(((const struct gcudai_cuda_plan *) plan)->n_steps, i == 0 ? 1 : 2);
        CHECK_OK(gcuda_backend_graph_plan_update(backend, plan, apart));
        CHECK_EQ_I(((const struct gcudai_cuda_plan *) plan)->n_steps, i == 0 ? 2 : 1);
        float got[2 * ROW * ROWS];
        CHECK_OK(gcuda_backend_tensor_memset(b.out[0], 0xcc, 0, sizeof got));
        CHECK_OK(gcuda_backend_graph_plan_compute(backend, plan));
        CHECK_OK(gcuda_backend_synchronize(backend));
        CHECK_OK(gcuda_backend_tensor_get(b.out[0], got, 0, sizeof got));
        CHECK(memcmp(got, want, sizeof got) == 0);
    }
    gcuda_backend_graph_plan_free(backend, plan);
    // a copy for another backend has the wish of its original
    gcuda_graph_set_fusion(apart, false);
    struct gcuda_backend_graph_copied copy = gcuda_backend_graph_copy(backend, apart);
    REQUIRE(copy.graph != NULL);
    computes_as_wished(backend, copy.graph, want, false);
    gcuda_backend_graph_copy_free(copy);
    place_end(&p);
    gcuda_backend_free(backend);
    clean();
}

// Scheduled, with the switch turned between runs of what is allocated.
TEST(a_scheduler_fuses_as_its_graph_wishes) {
    gcuda_backend_t backends[2] = { gcuda_backend_cuda_init(0), gcuda_backend_cpu_init() };
    gcuda_backend_sched_t sched = gcuda_backend_sched_new(backends, NULL, 2, 64, false, false);
    const struct gcuda_init_params ip = { 0, NULL, true };
    struct build b;
    memset(&b, 0, sizeof b);
    b.ctx = gcuda_init(ip);
    REQUIRE(backends[0] != NULL && backends[1] != NULL && sched != NULL && b.ctx != NULL);
    build_norm_mul(&b);
    gcuda_set_output(b.out[0]);
    struct gcuda_cgraph * graph = gcuda_new_graph(b.ctx);
    CHECK_OK(gcuda_build_forward_expand(graph, b.out[0]));
    for (int i = 0; i < graph->n_nodes; ++i) {
        CHECK_OK(gcuda_backend_sched_set_tensor_backend(sched, graph->nodes[i], backends[0]));
    }
    for (int i = 0; i < graph->n_leafs; ++i) { gcuda_set_input(graph->leafs[i]); }
    gcuda_graph_set_fusion(graph, false);
    CHECK_OK(gcuda_backend_sched_alloc_graph(sched, graph));
    float want[2 * ROW * ROWS], got[2 * ROW * ROWS];
    for (int run = 0; run < 4; ++run) {
        const uint64_t before = n_fused_by(backends[0]);
        for (int i = 0; i < graph->n_leafs; ++i) { fill(graph->leafs[i], i + 1); }
        gcuda_graph_set_fusion(graph, run == 1);
        CHECK_OK(gcuda_backend_sched_graph_compute(sched, graph));
        CHECK_OK(gcuda_backend_tensor_get(b.out[0], run == 0 ? want : got, 0, sizeof want));
        CHECK(run == 0 || memcmp(want, got, sizeof want) == 0);
        CHECK_EQ_I(n_fused_by(backends[0]), before + (run == 1));
    }
    gcuda_backend_sched_free(sched);
    gcuda_free(b.ctx);
    gcuda_backend_free(backends[0]);
    gcuda_backend_free(backends[1]);
    clean();
}

// =====================================================================================================================
// >>flags   nodes that are not computed
// =====================================================================================================================
// The plan's first group of that name; NULL: there is none.
static const struct gcudai_cuda_step * group_of(const struct gcudai_cuda_plan * plan, const char * wanted) {
    for (int i = 0; i < plan->n_steps; ++i) {
        if (plan->steps[i].pattern != NULL && strcmp(plan->steps[i].pattern->name, wanted) == 0) {
            return &plan->steps[i];
        }
    }
    return NULL;
}

// The same bits by nodes and by plan, of inputs that are filled and one node that is not computed, whose memory is
// zeros.
static void compute_without(struct place * p, struct gcuda_cgraph * graph, const struct gcuda_tensor * left,
    gcuda_backend_t plain, gcuda_backend_t fused, const struct build * b, const char * wanted) {
    char * got[2][MAX_OUT] = { { NULL } };
    for (int turn = 0; turn < 2; ++turn) {
        int salt = 0;
        for (struct gcuda_tensor * t = gcuda_get_first_tensor(p->ctx); t != NULL;
             t = gcuda_get_next_tensor(p->ctx, t)) {
            if (t->op == GCUDA_OP_NONE) { fill(t, ++salt); }
            if (t == left && t->view_src == NULL) { CHECK_OK(gcuda_backend_tensor_memset(t, 0, 0, gcuda_nbytes(t))); }
        }
        CHECK_OK(gcuda_backend_graph_compute(turn == 0 ? plain : fused, graph));
        for (int i = 0; i < b->n_out; ++i) {
            got[turn][i] = (char *) malloc(gcuda_nbytes(b->out[i]));
            CHECK_OK(gcuda_backend_tensor_get(b->out[i], got[turn][i], 0, gcuda_nbytes(b->out[i])));
        }
    }
    for (int i = 0; i < b->n_out; ++i) {
        CHECK_MSG(memcmp(got[0][i], got[1][i], gcuda_nbytes(b->out[i])) == 0, "%s without a %s: other bits", wanted,
            gcuda_op_desc(left));
        free(got[0][i]);
        free(got[1][i]);
    }
}

// A node without GCUDA_TENSOR_FLAG_COMPUTE is not computed, so no group may replace it: tried with every node of a
// group.
static void leave_out_one(builder make, int variant, const char * wanted) {
    gcuda_backend_t plain = without_plans(), fused = gcuda_backend_cuda_init(0);
    struct place p = place_begin();
    struct build b;
    struct gcuda_cgraph * graph = graph_of(&b, p.ctx, make, variant);
    REQUIRE(plain != NULL && fused != NULL && place_alloc(&p, plain));
    gcuda_backend_graph_plan_t plan = gcuda_backend_graph_plan_create(fused, graph);
    REQUIRE(plan != NULL);
    const struct gcudai_cuda_step * group = group_of((const struct gcudai_cuda_plan *) plan, wanted);
    CHECK_MSG(group != NULL, "%s does not fire", wanted);
    const int first = group != NULL ? group->first : 0, n = group != NULL ? group->n : 0;
    gcuda_backend_graph_plan_free(fused, plan);
    for (int at = first; at < first + n; ++at) {
        struct gcuda_tensor * left = gcuda_graph_node(graph, at);
        if (gcudai_is_noop(left)) { continue; }
        left->flags &= ~GCUDA_TENSOR_FLAG_COMPUTE;
        plan = gcuda_backend_graph_plan_create(fused, graph);
        REQUIRE(plan != NULL);
        CHECK_MSG(group_of((const struct gcudai_cuda_plan *) plan, wanted) == NULL, "%s fires without its %s", wanted,
            gcuda_op_desc(left));
        gcuda_backend_graph_plan_free(fused, plan);
        compute_without(&p, graph, left, plain, fused, &b, wanted);
        left->flags |= GCUDA_TENSOR_FLAG_COMPUTE;
    }
    place_end(&p);
    gcuda_backend_free(fused);
    gcuda_backend_free(plain);
}

TEST(what_is_not_computed_is_in_no_group) {
    leave_out_one(build_norm_mul, 0, "rms_norm + mul");
    leave_out_one(build_scale_soft_max, 0, "scale + soft_max");
    leave_out_one(build_rope_set, 0, "rope + set_rows");
    leave_out_one(build_rope_set_blocks, 4, "rope + set_rows");
    for (int v = 3; v < 6; ++v) { leave_out_one(build_rope_rope_set, v, "rope of queries + rope + set_rows"); }
    for (int v = 0; v < 3; ++v) { leave_out_one(build_inputs, v, ALL_INPUTS); }
    leave_out_one(build_route, 4, "route");
    leave_out_one(build_pair, 0, "mul_mat + epilogue");
    leave_out_one(build_group, 1, "several products");
    leave_out_one(build_expert, 3, "mul_mat_id + epilogue");
    leave_out_one(build_chain, 6, "chain");
    leave_out_one(build_ssm_conv, 0, "ssm_conv + silu");
    clean();
}

// =====================================================================================================================
// >>sched   what another backend reads, through a view or not, is written
// =====================================================================================================================
static void sched_once(int variant) {
    gcuda_backend_t backends[2] = { gcuda_backend_cuda_init(0), gcuda_backend_cpu_init() };
    gcuda_backend_sched_t sched = gcuda_backend_sched_new(backends, NULL, 2, 64, false, false);
    const struct gcuda_init_params ip = { 0, NULL, true };
    struct gcuda_context * ctx = gcuda_init(ip);
    REQUIRE(backends[0] != NULL && backends[1] != NULL && sched != NULL && ctx != NULL);
    struct gcuda_tensor *x = gcuda_new_tensor_2d(ctx, GCUDA_TYPE_F32, 8, 4),
                        *w = gcuda_new_tensor_2d(ctx, GCUDA_TYPE_F32, 8, 4);
    gcuda_set_input(x);
    gcuda_set_input(w);
    struct gcuda_tensor * y = gcuda_scale(ctx, x, 3.0f); // read by z next to it, and by u on the CPU
    struct gcuda_tensor * z = gcuda_mul(ctx, y, w);
    struct gcuda_tensor * v = variant == 0   ? y
                              : variant == 1 ? gcuda_reshape_1d(ctx, y, 32)
                                             : gcuda_view_1d(ctx, y, 16, 64);
    struct gcuda_tensor * u = gcuda_sqr(ctx, v);
    gcuda_set_output(z);
    gcuda_set_output(u);
    struct gcuda_cgraph * graph = gcuda_new_graph(ctx);
    CHECK_OK(gcuda_build_forward_expand(graph, z));
    CHECK_OK(gcuda_build_forward_expand(graph, u));
    CHECK_OK(gcuda_backend_sched_set_tensor_backend(sched, y, backends[0]));
    CHECK_OK(gcuda_backend_sched_set_tensor_backend(sched, z, backends[0]));
    CHECK_OK(gcuda_backend_sched_set_tensor_backend(sched, u, backends[1]));
    CHECK_OK(gcuda_backend_sched_alloc_graph(sched, graph));
    float in[32], out_u[32], out_z[32];
    for (int run = 0; run < 3; ++run) {
        for (int i = 0; i < 32; ++i) { in[i] = (float) (i + run); }
        CHECK_OK(gcuda_backend_tensor_set(x, in, 0, sizeof in));
        CHECK_OK(gcuda_backend_tensor_set(w, in, 0, sizeof in));
        CHECK_OK(gcuda_backend_sched_graph_compute(sched, graph));
        CHECK_OK(gcuda_backend_tensor_get(u, out_u, 0, gcuda_nbytes(u)));
        CHECK_OK(gcuda_backend_tensor_get(z, out_z, 0, sizeof out_z));
        for (int i = 0; i < 32; ++i) { CHECK(out_z[i] == 3.0f * in[i] * in[i]); }
        for (int i = 0; i < (int) u->ne[0] * (int) u->ne[1]; ++i) {
            const float from = 3.0f * in[variant == 2 ? i + 16 : i];
            CHECK_MSG(
                out_u[i] == from * from, "variant %d, run %d: element %d is %g", variant, run, i, (double) out_u[i]);
        }
    }
    gcuda_backend_sched_free(sched);
    gcuda_free(ctx);
    gcuda_backend_free(backends[0]);
    gcuda_backend_free(backends[1]);
}

TEST(what_other_backends_read_is_written) {
    for (int v = 0; v < 3; ++v) { sched_once(v); }
    clean();
}

// =====================================================================================================================
// >>log   why nodes are not fused, as debug messages
// =====================================================================================================================
struct log_lines {
    char text[8192];
    size_t used;
};
static void keep_lines(enum gcuda_log_level level, const char * text, void * user_data) {
    struct log_lines * lines = (struct log_lines *) user_data;
    if (level != GCUDA_LOG_LEVEL_DEBUG || strncmp(text, "fusion: ", 8) != 0) { return; }
    const int n = snprintf(lines->text + lines->used, sizeof lines->text - lines->used, "%s\n", text);
    lines->used = n > 0 && (size_t) n < sizeof lines->text - lines->used ? lines->used + (size_t) n : lines->used;
}

// Makes a plan of the case and keeps what is logged meanwhile.
static void log_of(builder make, int variant, struct log_lines * lines) {
    struct gcuda_cuda_params params;
    struct placed c;
    memset(&params, 0, sizeof params);
    memset(lines, 0, sizeof *lines);
    REQUIRE(placed_begin(&c, &params, make, variant));
    gcuda_log_set(keep_lines, GCUDA_LOG_LEVEL_DEBUG, lines);
    gcuda_backend_graph_plan_t plan = gcuda_backend_graph_plan_create(c.backend, c.graph);
    gcuda_log_set(NULL, GCUDA_LOG_LEVEL_NONE, NULL);
    REQUIRE(plan != NULL);
    placed_end(&c, plan);
}

// Misses. Routing: weights not divided (variant 0), ascending order (1). A norm with F16 weights (2), or with other
// readers (3). Products with a bias of another shape (4). Variant 5 matches.
static void build_missed(struct build * b) {
    struct gcuda_context * c = b->ctx;
    const int v = b->variant;
    if (v <= 1) {
        struct gcuda_tensor * probs = gcuda_soft_max(c, f32(b, 64, 3, 1));
        struct gcuda_tensor * order = gcuda_argsort(c, probs, v == 1 ? GCUDA_SORT_ORDER_ASC : GCUDA_SORT_ORDER_DESC);
        struct gcuda_tensor * ids = gcuda_view_2d(c, order, 4, 3, order->nb[1], 0);
        struct gcuda_tensor * w =
            gcuda_reshape_2d(c, gcuda_get_rows(c, gcuda_reshape_3d(c, probs, 1, 64, 3), ids), 4, 3);
        out(b, gcuda_sub(c, w, gcuda_sum_rows(c, w)));
    } else if (v == 4) {
        struct gcuda_tensor * y = gcuda_mul_mat(c, gcuda_new_tensor_2d(c, GCUDA_TYPE_Q4_0, 64, 64), f32(b, 64, 1, 1));
        out(b, gcuda_add(c, y, f32(b, 32, 1, 1)));
    } else {
        struct gcuda_tensor * norm = gcuda_rms_norm(c, f32(b, ROW, ROWS, 1), 1e-5f);
        out(b, gcuda_mul(c, norm, v == 2 ? gcuda_new_tensor_1d(c, GCUDA_TYPE_F16, ROW) : f32(b, ROW, 1, 1)));
        if (v == 3) { out(b, gcuda_neg(c, norm)); }
    }
}

TEST(a_debug_log_says_why_nodes_are_not_fused) {
    static const char * const wanted[6] = { "fusion: route: node 4 (sub 'node_7') is not DIV\n",
        "fusion: route: node 1 (argsort 'node_2') is not descending\n",
        "fusion: rms_norm + mul: node 1 (mul 'node_1') has another operand that does not repeat F32 rows\n",
        "fusion: rms_norm + mul: node 1 (mul 'node_1') reads a result that other nodes read as well\n",
        "fusion: mul_mat + epilogue: node 1 (add 'node_1') is no bias of the product\n"
        "fusion: mul_mat + epilogue: node 1 (add 'node_1') has another operand that does not repeat\n",
        "" };
    struct log_lines lines;
    for (int v = 0; v <= 5; ++v) {
        log_of(build_missed, v, &lines);
        CHECK_MSG(strcmp(lines.text, wanted[v]) == 0, "variant %d: the log is \"%s\"", v, lines.text);
    }
    clean();
}

// Gate and up with biases, whose result is where the activations are: two products with their biases, and the gate
// alone. Matching them once did not end.
TEST(a_gate_with_biases_on_its_activations_is_taken_apart) {
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    struct place p = place_begin();
    struct gcuda_tensor *y[2], *x = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, 64, 1);
    gcuda_backend_buffer_t buffer = gcuda_backend_alloc_buffer(backend, 1 << 16);
    char * base = (char *) gcuda_backend_buffer_get_base(buffer);
    CHECK_OK(gcuda_backend_tensor_alloc(buffer, x, base));
    for (int i = 0; i < 2; ++i) {
        struct gcuda_tensor *w = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_Q4_0, 64, 64),
                            *bias = gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_F32, 64);
        struct gcuda_tensor * product = gcuda_mul_mat(p.ctx, w, x);
        y[i] = gcuda_add(p.ctx, product, bias);
        CHECK_OK(gcuda_backend_tensor_alloc(buffer, w, base + 8192 * (i + 1)));
        CHECK_OK(gcuda_backend_tensor_alloc(buffer, bias, base + 32768 + 1024 * i));
        CHECK_OK(gcuda_backend_tensor_alloc(buffer, product, base + 36864 + 1024 * i));
        CHECK_OK(gcuda_backend_tensor_alloc(buffer, y[i], base + 40960 + 1024 * i));
    }
    struct gcuda_tensor * gate = gcuda_swiglu_split(p.ctx, y[0], y[1]);
    struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
    CHECK_OK(gcuda_build_forward_expand(graph, gate));
    CHECK_OK(gcuda_backend_tensor_alloc(buffer, gate, base));
    for (int i = 0; i < 2; ++i) {
        gcuda_backend_graph_plan_t plan = gcuda_backend_graph_plan_create(backend, graph);
        REQUIRE(plan != NULL);
        CHECK_EQ_I(((const struct gcudai_cuda_plan *) plan)->n_steps, i == 0 ? 3 : 1);
        gcuda_backend_graph_plan_free(backend, plan);
        gate->data = base + 49152; // apart
    }
    place_end(&p);
    gcuda_backend_buffer_free(buffer);
    gcuda_backend_free(backend);
}
