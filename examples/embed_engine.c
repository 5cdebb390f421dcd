// How an engine embeds the library: its own allocator and log, a private copy of the code, weights in memory it owns, and
// a graph that is built anew each frame without a single allocation. The program fails if a frame allocates.
//
// A large engine has two kinds of files: one with GCUDA_IMPLEMENTATION and nothing else, and those that include gcuda.h
// for the declarations. A small library that is linked into unknown programs does as this file: GCUDA_STATIC keeps its
// copy to itself, whatever version somebody else brings (or GCUDA_PREFIX, if several files need it).
//
//   cc -O2 -I. examples/embed_engine.c -o embed_engine -pthread -lm -ldl && ./embed_engine
#define GCUDA_STATIC
#define GCUDA_IMPLEMENTATION
#include "gcuda.h"

#include <stdio.h>
#include <stdlib.h>

enum { N_SENSES = 32, N_HIDDEN = 64, N_ACTIONS = 4, MAX_AGENTS = 100, N_FRAMES = 60 };

// ---- the engine's side: memory with a count, and a log ----
struct engine {
    long n_allocations;
    size_t live_bytes;
};

static void * engine_alloc(void * user, size_t size, size_t alignment) {
    struct engine * e = (struct engine *) user;
    char * base = (char *) malloc(size + alignment + sizeof(void *));
    if (base == NULL) { return NULL; }
    const size_t address = (size_t) (uintptr_t) (base + sizeof(void *));
    char * p = base + sizeof(void *) + (alignment - address % alignment) % alignment;
    ((void **) (void *) p)[-1] = base;
    e->n_allocations++; // one thread here; an engine with several needs atomic counters
    e->live_bytes += size;
    return p;
}

static void engine_free(void * user, void * ptr, size_t size) {
    struct engine * e = (struct engine *) user;
    e->live_bytes -= size;
    free(((void **) ptr)[-1]);
}

static void engine_log(enum gcuda_log_level level, const char * text, void * user_data) {
    (void) user_data;
    fprintf(stderr, "gcuda[%d]: %s\n", (int) level, text);
}

// ---- a small network that decides for all agents of a frame at once ----
struct brain {
    gcuda_backend_t backend;
    struct gcuda_context * weights_ctx, * frame_ctx;
    gcuda_backend_buffer_t weights;
    gcuda_gallocr_t galloc;
    struct gcuda_tensor * w1, * w2;             // live as long as the brain
    struct gcuda_tensor * senses, * actions;    // of the present frame
    struct gcuda_cgraph * graph;
};

#define TRY(call)                                            \
    do {                                                     \
        const gcuda_status try_status = (call);              \
        if (try_status != GCUDA_STATUS_SUCCESS) { return try_status; } \
    } while (0)
static gcuda_status made(const void * object) { return object ? GCUDA_STATUS_SUCCESS : GCUDA_STATUS_FAILED; }

static gcuda_status brain_build(struct brain * b, int n_agents) {
    gcuda_reset(b->frame_ctx); // forgets the last frame's graph, keeps the memory
    b->senses = gcuda_new_tensor_2d(b->frame_ctx, GCUDA_TYPE_F32, N_SENSES, n_agents);
    gcuda_set_input(b->senses);
    struct gcuda_tensor * h = gcuda_relu(b->frame_ctx, gcuda_mul_mat(b->frame_ctx, b->w1, b->senses));
    b->actions = gcuda_soft_max(b->frame_ctx, gcuda_mul_mat(b->frame_ctx, b->w2, gcuda_rms_norm(b->frame_ctx, h, 1e-6f)));
    gcuda_set_output(b->actions);
    TRY(made(b->graph = gcuda_new_graph_custom(b->frame_ctx, 32, false)));
    return gcuda_build_forward_expand(b->graph, b->actions);
}

static gcuda_status brain_init(struct brain * b, void * weights, size_t weights_size) {
    const struct gcuda_init_params growing = { 0, NULL, true };
    const size_t frame_bytes = 16 * gcuda_tensor_overhead() + gcuda_graph_overhead_custom(32, false);
    const struct gcuda_init_params frame = { frame_bytes, NULL, true };
    TRY(made(b->backend = gcuda_backend_cpu_init()));
    TRY(gcuda_backend_cpu_set_n_threads(b->backend, 2));
    TRY(made(b->weights_ctx = gcuda_init(growing)));
    TRY(made(b->w1 = gcuda_new_tensor_2d(b->weights_ctx, GCUDA_TYPE_F32, N_SENSES, N_HIDDEN)));
    TRY(made(b->w2 = gcuda_new_tensor_2d(b->weights_ctx, GCUDA_TYPE_F32, N_HIDDEN, N_ACTIONS)));
    TRY(made(b->weights = gcuda_backend_cpu_buffer_from_ptr(weights, weights_size))); // could be a mapped file
    TRY(gcuda_backend_tensor_alloc(b->weights, b->w1, weights));
    TRY(gcuda_backend_tensor_alloc(b->weights, b->w2, (char *) weights + gcuda_nbytes(b->w1)));
    TRY(made(b->frame_ctx = gcuda_init(frame)));
    TRY(made(b->galloc = gcuda_gallocr_new(gcuda_backend_get_default_buffer_type(b->backend))));
    TRY(brain_build(b, MAX_AGENTS)); // measured once, for the largest frame
    TRY(gcuda_gallocr_alloc_graph(b->galloc, b->graph));
    TRY(gcuda_backend_tensor_memset(b->senses, 0, 0, gcuda_nbytes(b->senses))); // an input is set before every run
    return gcuda_backend_graph_compute(b->backend, b->graph); // starts the threads, makes the work memory
}

static void brain_free(struct brain * b) {
    gcuda_gallocr_free(b->galloc);
    gcuda_backend_buffer_free(b->weights);
    gcuda_free(b->frame_ctx);
    gcuda_free(b->weights_ctx);
    gcuda_backend_free(b->backend);
}

static gcuda_status brain_frame(struct brain * b, int n_agents, const float * senses, float * actions) {
    TRY(brain_build(b, n_agents));
    TRY(gcuda_gallocr_alloc_graph(b->galloc, b->graph)); // only gives out places
    TRY(gcuda_backend_tensor_set(b->senses, senses, 0, gcuda_nbytes(b->senses)));
    TRY(gcuda_backend_graph_compute(b->backend, b->graph));
    return gcuda_backend_tensor_get(b->actions, actions, 0, gcuda_nbytes(b->actions));
}

static gcuda_status play(struct brain * b, const struct engine * e, float * weights, size_t weights_size) {
    static float senses[MAX_AGENTS * N_SENSES], actions[MAX_AGENTS * N_ACTIONS];
    for (size_t i = 0; i < weights_size / sizeof(float); ++i) { weights[i] = 0.01f * (float) (i * 37 % 101) - 0.5f; }
    for (int i = 0; i < MAX_AGENTS * N_SENSES; ++i) { senses[i] = 0.1f * (float) (i % 17) - 0.8f; }
    TRY(brain_init(b, weights, weights_size));
    const long before = e->n_allocations;
    for (int frame = 0; frame < N_FRAMES; ++frame) { // the number of agents changes from frame to frame
        TRY(brain_frame(b, 1 + frame * 61 % MAX_AGENTS, senses, actions));
    }
    printf("%d frames, %ld allocations in them, %zu bytes in use; first agent: %.3f %.3f %.3f %.3f\n", (int) N_FRAMES,
           e->n_allocations - before, e->live_bytes, (double) actions[0], (double) actions[1], (double) actions[2], (double) actions[3]);
    return e->n_allocations == before ? GCUDA_STATUS_SUCCESS : gcuda_set_last_error(GCUDA_STATUS_FAILED, "a frame allocated memory");
}

int main(void) {
    static float memory[N_SENSES * N_HIDDEN + N_HIDDEN * N_ACTIONS + 16];
    float * weights = memory + (64 - (uintptr_t) memory % 64) % 64 / sizeof(float); // buffers begin at a multiple of 32
    struct engine engine = { 0, 0 };
    struct brain brain = { NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL };
    const struct gcuda_allocator allocator = { engine_alloc, engine_free, &engine };
    gcuda_set_allocator(&allocator); // before the first object
    gcuda_log_set(engine_log, GCUDA_LOG_LEVEL_WARN, NULL);
    gcuda_status st = play(&brain, &engine, weights, (N_SENSES * N_HIDDEN + N_HIDDEN * N_ACTIONS) * sizeof(float));
    if (st != GCUDA_STATUS_SUCCESS) { fprintf(stderr, "embed_engine: %s\n", gcuda_last_error()); }
    brain_free(&brain);
    gcuda_shutdown(); // the registry lets go of its memory, allocator and log too
    if (engine.live_bytes != 0) { fprintf(stderr, "embed_engine: %zu bytes were not given back\n", engine.live_bytes); }
    return st == GCUDA_STATUS_SUCCESS && engine.live_bytes == 0 ? 0 : 1;
}
