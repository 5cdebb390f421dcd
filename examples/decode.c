// Decoding with a KV cache: one attention layer, token after token, in the three ways that the manual of gcuda.h names
// (EMBEDDING IN AN ENGINE). All three compute the same; they differ in what changes from token to token.
//
//   INDEX    One graph for all tokens. gcuda_set_rows writes keys and values at an index that is an input, attention
//            reads the whole cache, a mask hides the rest. Nothing is planned or captured again, and each token of a
//            batch may have another place: the way of servers and rings. Costs time for cells that the mask hides.
//   MOVE     One graph as well. gcuda_cpy writes to a view that gcuda_graph_move_view moves before each run: no index
//            tensor, and tokens of a prompt are one contiguous copy. For one sequence whose places follow each other.
//   REBUILD  A graph for each token, built in a context that is reset, which reads only what the cache holds: no mask.
//            Its view grows, so gcuda_set_dynamic keeps a CUDA backend's plan. For short texts in long caches, and
//            graphs that change anyway.
//
//   cc -O2 -I. examples/decode.c -o decode -pthread -lm -ldl && ./decode
#define GCUDA_IMPLEMENTATION
#include "gcuda.h"
#include <math.h>
#include <stdio.h>

enum { N_EMBD = 32, N_HEADS = 4, HEAD_SIZE = N_EMBD / N_HEADS, N_CELLS = 64, N_TOKENS = 24 };
enum way { INDEX, MOVE, REBUILD, N_WAYS };
struct layer {
    gcuda_backend_t backend;
    struct gcuda_context *weights, *ctx; // ctx: of the present graph
    gcuda_backend_buffer_t buffer;
    gcuda_gallocr_t galloc;
    struct gcuda_tensor * w[4]; // query, key, value, output: [N_EMBD, N_EMBD]
    struct gcuda_tensor *k, *v; // the cache: a cell per token, [N_EMBD, N_CELLS]
    struct gcuda_cgraph * graph;
    struct gcuda_tensor *x, *pos, *index, *mask; // inputs; index and mask: NULL if the way has none
    struct gcuda_tensor *put_k, *put_v, *y;      // views of the cache that MOVE and REBUILD write; the result
};

#define TRY(call)                                              \
    do {                                                       \
        const gcuda_status try_st = (call);                    \
        if (try_st != GCUDA_STATUS_SUCCESS) { return try_st; } \
    } while (0)

static gcuda_status layer_init(struct layer * l) {
    static float data[N_EMBD * N_EMBD];
    const struct gcuda_init_params params = { 0, NULL, true };
    l->backend = gcuda_backend_init_best();
    l->weights = gcuda_init(params);
    l->ctx = gcuda_init(params);
    l->galloc = gcuda_gallocr_new(gcuda_backend_get_default_buffer_type(l->backend));
    for (int m = 0; m < 4; ++m) { l->w[m] = gcuda_new_tensor_2d(l->weights, GCUDA_TYPE_F32, N_EMBD, N_EMBD); }
    l->k = gcuda_new_tensor_2d(l->weights, GCUDA_TYPE_F16, N_EMBD, N_CELLS);
    l->v = gcuda_new_tensor_2d(l->weights, GCUDA_TYPE_F16, N_EMBD, N_CELLS);
    l->buffer = gcuda_backend_alloc_ctx_tensors(l->weights, l->backend); // no graph's allocator uses this memory
    for (int m = 0; m < 4 && l->buffer != NULL; ++m) {
        for (int i = 0; i < N_EMBD * N_EMBD; ++i) { data[i] = 0.3f * sinf((float) (m + 1) * 0.37f * (float) (i % 97)); }
        TRY(gcuda_backend_tensor_set(l->w[m], data, 0, sizeof data));
    }
    return l->buffer != NULL ? GCUDA_STATUS_SUCCESS : GCUDA_STATUS_FAILED;
}

static struct gcuda_tensor * new_input(struct gcuda_context * ctx, enum gcuda_type type, int64_t n) {
    struct gcuda_tensor * t = gcuda_new_tensor_1d(ctx, type, n);
    gcuda_set_input(t); // NULL is ignored, here and by constructors: building the graph reports it
    return t;
}

// The node that writes a [N_EMBD, 1] into the cache. *put: the view that it writes, which INDEX has none of.
static struct gcuda_tensor * write_cell(struct layer * l, enum way way, struct gcuda_tensor * cache,
    struct gcuda_tensor * a, int t, struct gcuda_tensor ** put) {
    if (way == INDEX) { return gcuda_set_rows(l->ctx, cache, a, l->index); }
    *put = gcuda_view_2d(l->ctx, cache, N_EMBD, 1, cache->nb[1], (size_t) t * cache->nb[1]);
    return gcuda_cpy(l->ctx, a, *put);
}

// The first n cells, as attention wants them: [HEAD_SIZE, n, N_HEADS].
static struct gcuda_tensor * read_cells(struct layer * l, struct gcuda_tensor * cache, int n) {
    const size_t head_bytes = HEAD_SIZE * gcuda_element_size(cache);
    struct gcuda_tensor * cells = gcuda_view_3d(l->ctx, cache, HEAD_SIZE, n, N_HEADS, cache->nb[1], head_bytes, 0);
    if (n < N_CELLS) { gcuda_set_dynamic(cells); } // another size with each token
    return cells;
}

// Query or key with its position: [HEAD_SIZE, N_HEADS, 1].
static struct gcuda_tensor * rotated(struct layer * l, struct gcuda_tensor * w) {
    struct gcuda_tensor * heads = gcuda_reshape_3d(l->ctx, gcuda_mul_mat(l->ctx, w, l->x), HEAD_SIZE, N_HEADS, 1);
    return gcuda_rope(l->ctx, heads, l->pos, HEAD_SIZE, GCUDA_ROPE_TYPE_NORMAL);
}

static gcuda_status build(struct layer * l, enum way way, int t) {
    struct gcuda_context * ctx = l->ctx;
    const int n_read = way == REBUILD ? t + 1 : N_CELLS;
    gcuda_reset(ctx);
    l->graph = gcuda_new_graph(ctx);
    l->x = new_input(ctx, GCUDA_TYPE_F32, N_EMBD);
    l->pos = new_input(ctx, GCUDA_TYPE_I32, 1);
    l->index = way == INDEX ? new_input(ctx, GCUDA_TYPE_I32, 1) : NULL;
    l->mask = way == REBUILD ? NULL : new_input(ctx, GCUDA_TYPE_F16, N_CELLS);
    struct gcuda_tensor * q = gcuda_permute(ctx, rotated(l, l->w[0]), 0, 2, 1, 3); // [HEAD_SIZE, 1, N_HEADS]
    struct gcuda_tensor * k = gcuda_reshape_2d(ctx, rotated(l, l->w[1]), N_EMBD, 1);
    struct gcuda_tensor * v = gcuda_mul_mat(ctx, l->w[2], l->x);
    TRY(gcuda_build_forward_expand(l->graph, write_cell(l, way, l->k, k, t, &l->put_k))); // nodes run in this order:
    TRY(gcuda_build_forward_expand(l->graph, write_cell(l, way, l->v, v, t, &l->put_v))); // write, then read
    struct gcuda_tensor * a = gcuda_flash_attn_ext(ctx, q, read_cells(l, l->k, n_read), read_cells(l, l->v, n_read),
        l->mask, 1.0f / sqrtf((float) HEAD_SIZE), 0.0f, 0.0f);
    l->y = gcuda_add(ctx, l->x, gcuda_mul_mat(ctx, l->w[3], gcuda_reshape_1d(ctx, a, N_EMBD)));
    gcuda_set_output(l->y);
    TRY(gcuda_build_forward_expand(l->graph, l->y));
    return gcuda_gallocr_alloc_graph(l->galloc, l->graph);
}

static gcuda_status run(struct layer * l, enum way way, int t, float * y) {
    float x[N_EMBD];
    gcuda_fp16_t mask[N_CELLS];
    const int32_t pos = t, index = t;
    for (int i = 0; i < N_EMBD; ++i) { x[i] = sinf(0.7f * (float) t + 1.3f * (float) i); } // embeddings
    for (int i = 0; i < N_CELLS; ++i) { mask[i] = gcuda_fp32_to_fp16(i <= t ? 0.0f : -INFINITY); }
    if (t == 0 || way == REBUILD) { TRY(build(l, way, t)); }
    if (way == MOVE) { TRY(gcuda_graph_move_view(l->graph, l->put_k, (size_t) t * l->k->nb[1])); }
    if (way == MOVE) { TRY(gcuda_graph_move_view(l->graph, l->put_v, (size_t) t * l->v->nb[1])); }
    TRY(gcuda_backend_tensor_set(l->x, x, 0, sizeof x));
    TRY(gcuda_backend_tensor_set(l->pos, &pos, 0, sizeof pos));
    if (l->index != NULL) { TRY(gcuda_backend_tensor_set(l->index, &index, 0, sizeof index)); }
    if (l->mask != NULL) { TRY(gcuda_backend_tensor_set(l->mask, mask, 0, sizeof mask)); }
    TRY(gcuda_backend_graph_compute(l->backend, l->graph));
    return gcuda_backend_tensor_get(l->y, y, 0, N_EMBD * sizeof(float));
}

static gcuda_status decode(struct layer * l, enum way way) {
    static const char * const names[N_WAYS] = { "index", "move", "rebuild" };
    float y[N_EMBD];
    TRY(gcuda_backend_tensor_memset(l->k, 0xff, 0, gcuda_nbytes(l->k))); // NaN: unseen cells may hold anything
    TRY(gcuda_backend_tensor_memset(l->v, 0xff, 0, gcuda_nbytes(l->v)));
    for (int t = 0; t < N_TOKENS; ++t) {
        TRY(run(l, way, t, y));
        if (t % 8 != 7) { continue; }
        printf("%-7s token %2d: %9.5f %9.5f %9.5f\n", names[way], t, (double) y[0], (double) y[1], (double) y[2]);
    }
    return GCUDA_STATUS_SUCCESS;
}

int main(void) {
    struct layer l = { 0 };
    gcuda_status st = layer_init(&l);
    for (int way = 0; way < N_WAYS && st == GCUDA_STATUS_SUCCESS; ++way) { st = decode(&l, (enum way) way); }
    if (st != GCUDA_STATUS_SUCCESS) { fprintf(stderr, "decode: %s\n", gcuda_last_error()); }
    gcuda_gallocr_free(l.galloc);
    gcuda_backend_buffer_free(l.buffer);
    gcuda_free(l.ctx);
    gcuda_free(l.weights);
    gcuda_backend_free(l.backend);
    return st == GCUDA_STATUS_SUCCESS ? 0 : 1;
}
