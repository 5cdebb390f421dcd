// How an engine embeds the library: with its own allocator, log and job system, a private copy of the code, and weights
// in its own memory. A graph is built anew each frame without a single allocation; the program fails if a frame
// allocates.
//
// A large engine has two kinds of files: one with GCUDA_IMPLEMENTATION and nothing else, and those that include gcuda.h
// for the declarations. A small library that is linked into unknown programs uses GCUDA_STATIC like this file: its copy
// is private, whatever version another library has. If several files need it, use GCUDA_PREFIX.
//
//   cc -O2 -I. examples/embed_engine.c -o embed_engine -pthread -lm -ldl && ./embed_engine
#define GCUDA_STATIC
#define GCUDA_IMPLEMENTATION
#include "gcuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if !defined(_WIN32)
#include <pthread.h>
#endif

enum { N_SENSES = 32, N_HIDDEN = 64, N_ACTIONS = 4, MAX_AGENTS = 100, N_FRAMES = 60, N_WORKERS = 2 };

// ---- the engine's side: memory with a count, a log, and threads ----
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

// What of a job system matters here: threads that run the jobs of one call at a time, and the calling thread helps.
struct job_system {
#if !defined(_WIN32)
    pthread_t threads[N_WORKERS];
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    int n_threads;
    bool is_ending;
#endif
    gcuda_job job; // of the present call, with its data; jobs [next, n_jobs) have not begun
    void * job_data;
    int next, n_jobs, n_ended;
    long n_run; // since the start
};

#if !defined(_WIN32)
// The lock is held, but not while a job runs.
static void run_jobs(struct job_system * js) {
    while (js->next < js->n_jobs) {
        const int index = js->next++;
        pthread_mutex_unlock(&js->lock);
        js->job(js->job_data, index);
        pthread_mutex_lock(&js->lock);
        js->n_run++;
        if (++js->n_ended == js->n_jobs) { pthread_cond_signal(&js->done); }
    }
}

static void * worker_main(void * arg) {
    struct job_system * js = (struct job_system *) arg;
    pthread_mutex_lock(&js->lock);
    while (!js->is_ending) {
        run_jobs(js);
        if (!js->is_ending) { pthread_cond_wait(&js->work, &js->lock); }
    }
    pthread_mutex_unlock(&js->lock);
    return NULL;
}

// A gcuda_parallel_for.
static void parallel_for(void * user, int n_jobs, gcuda_job job, void * job_data) {
    struct job_system * js = (struct job_system *) user;
    pthread_mutex_lock(&js->lock);
    js->job = job;
    js->job_data = job_data;
    js->next = js->n_ended = 0;
    js->n_jobs = n_jobs;
    pthread_cond_broadcast(&js->work);
    run_jobs(js);
    while (js->n_ended < js->n_jobs) { pthread_cond_wait(&js->done, &js->lock); }
    pthread_mutex_unlock(&js->lock);
}

static void job_system_start(struct job_system * js) { // with fewer threads than wanted all still works
    pthread_mutex_init(&js->lock, NULL);
    pthread_cond_init(&js->work, NULL);
    pthread_cond_init(&js->done, NULL);
    while (js->n_threads < N_WORKERS && pthread_create(&js->threads[js->n_threads], NULL, worker_main, js) == 0) {
        js->n_threads++;
    }
}

static void job_system_end(struct job_system * js) {
    pthread_mutex_lock(&js->lock);
    js->is_ending = true;
    pthread_cond_broadcast(&js->work);
    pthread_mutex_unlock(&js->lock);
    for (int i = 0; i < js->n_threads; ++i) { pthread_join(js->threads[i], NULL); }
    pthread_cond_destroy(&js->done);
    pthread_cond_destroy(&js->work);
    pthread_mutex_destroy(&js->lock);
}
#else
// The smallest that is allowed: jobs one after another on the calling thread.
static void parallel_for(void * user, int n_jobs, gcuda_job job, void * job_data) {
    struct job_system * js = (struct job_system *) user;
    for (int i = 0; i < n_jobs; ++i) { job(job_data, i); }
    js->n_run += n_jobs;
}
static void job_system_start(struct job_system * js) { (void) js; }
static void job_system_end(struct job_system * js) { (void) js; }
#endif

// ---- a small network that decides for all agents of a frame at once ----
struct brain {
    gcuda_backend_t backend;
    struct gcuda_threadpool * pool;
    struct gcuda_context *weights_ctx, *frame_ctx;
    gcuda_backend_buffer_t weights;
    gcuda_gallocr_t galloc;
    struct gcuda_tensor *w1, *w2;          // live as long as the brain
    struct gcuda_tensor *senses, *actions; // of the present frame
    struct gcuda_cgraph * graph;
};

#define TRY(call)                                                      \
    do {                                                               \
        const gcuda_status try_status = (call);                        \
        if (try_status != GCUDA_STATUS_SUCCESS) { return try_status; } \
    } while (0)
static gcuda_status made(const void * object) { return object ? GCUDA_STATUS_SUCCESS : GCUDA_STATUS_FAILED; }

static gcuda_status brain_build(struct brain * b, int n_agents) {
    gcuda_reset(b->frame_ctx); // forgets the last frame's graph, keeps the memory
    b->senses = gcuda_new_tensor_2d(b->frame_ctx, GCUDA_TYPE_F32, N_SENSES, n_agents);
    gcuda_set_input(b->senses);
    struct gcuda_tensor * h = gcuda_relu(b->frame_ctx, gcuda_mul_mat(b->frame_ctx, b->w1, b->senses));
    b->actions =
        gcuda_soft_max(b->frame_ctx, gcuda_mul_mat(b->frame_ctx, b->w2, gcuda_rms_norm(b->frame_ctx, h, 1e-6f)));
    gcuda_set_output(b->actions);
    TRY(made(b->graph = gcuda_new_graph_custom(b->frame_ctx, 32, false)));
    return gcuda_build_forward_expand(b->graph, b->actions);
}

static gcuda_status brain_init(struct brain * b, struct job_system * js, void * weights, size_t weights_size) {
    const struct gcuda_init_params growing = { 0, NULL, true };
    const size_t frame_bytes = 16 * gcuda_tensor_overhead() + gcuda_graph_overhead_custom(32, false);
    const struct gcuda_init_params frame = { frame_bytes, NULL, true };
    // jobs at a time: the caller helps
    struct gcuda_threadpool_params threads = gcuda_threadpool_params_default(N_WORKERS + 1);
    threads.parallel_for = parallel_for; // gcuda starts no threads
    threads.parallel_for_data = js;
    TRY(made(b->pool = gcuda_threadpool_new(&threads)));
    TRY(made(b->backend = gcuda_backend_cpu_init()));
    TRY(gcuda_backend_cpu_set_threadpool(b->backend, b->pool));
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
    return gcuda_backend_graph_compute(b->backend, b->graph);                   // makes the work memory
}

static void brain_free(struct brain * b) {
    gcuda_gallocr_free(b->galloc);
    gcuda_backend_buffer_free(b->weights);
    gcuda_free(b->frame_ctx);
    gcuda_free(b->weights_ctx);
    gcuda_backend_free(b->backend);
    gcuda_threadpool_free(b->pool); // after the backends that use it
}

static gcuda_status brain_frame(struct brain * b, int n_agents, const float * senses, float * actions) {
    TRY(brain_build(b, n_agents));
    TRY(gcuda_gallocr_alloc_graph(b->galloc, b->graph)); // only gives out places
    TRY(gcuda_backend_tensor_set(b->senses, senses, 0, gcuda_nbytes(b->senses)));
    TRY(gcuda_backend_graph_compute(b->backend, b->graph));
    return gcuda_backend_tensor_get(b->actions, actions, 0, gcuda_nbytes(b->actions));
}

static gcuda_status play(
    struct brain * b, struct job_system * js, const struct engine * e, float * weights, size_t weights_size) {
    static float senses[MAX_AGENTS * N_SENSES], actions[MAX_AGENTS * N_ACTIONS];
    for (size_t i = 0; i < weights_size / sizeof(float); ++i) { weights[i] = 0.01f * (float) (i * 37 % 101) - 0.5f; }
    for (int i = 0; i < MAX_AGENTS * N_SENSES; ++i) { senses[i] = 0.1f * (float) (i % 17) - 0.8f; }
    TRY(brain_init(b, js, weights, weights_size));
    const long before = e->n_allocations, jobs_before = js->n_run;
    for (int frame = 0; frame < N_FRAMES; ++frame) { // the number of agents changes from frame to frame
        TRY(brain_frame(b, 1 + frame * 61 % MAX_AGENTS, senses, actions));
    }
    printf("%d frames, %ld allocations and %ld jobs in them, %zu bytes in use; first agent: %.3f %.3f %.3f %.3f\n",
        (int) N_FRAMES, e->n_allocations - before, js->n_run - jobs_before, e->live_bytes, (double) actions[0],
        (double) actions[1], (double) actions[2], (double) actions[3]);
    if (js->n_run == jobs_before) {
        return gcuda_set_last_error(GCUDA_STATUS_FAILED, "no job came to the engine's threads");
    }
    return e->n_allocations == before ? GCUDA_STATUS_SUCCESS
                                      : gcuda_set_last_error(GCUDA_STATUS_FAILED, "a frame allocated memory");
}

int main(void) {
    static float memory[N_SENSES * N_HIDDEN + N_HIDDEN * N_ACTIONS + 16];
    float * weights = memory + (64 - (uintptr_t) memory % 64) % 64 / sizeof(float); // buffers begin at a multiple of 32
    struct engine engine = { 0, 0 };
    struct brain brain = { 0 };
    struct job_system jobs;
    memset(&jobs, 0, sizeof jobs);
    job_system_start(&jobs);
    const struct gcuda_allocator allocator = { engine_alloc, engine_free, &engine };
    gcuda_set_allocator(&allocator); // before the first object
    gcuda_log_set(engine_log, GCUDA_LOG_LEVEL_WARN, NULL);
    gcuda_status st =
        play(&brain, &jobs, &engine, weights, (N_SENSES * N_HIDDEN + N_HIDDEN * N_ACTIONS) * sizeof(float));
    if (st != GCUDA_STATUS_SUCCESS) { fprintf(stderr, "embed_engine: %s\n", gcuda_last_error()); }
    brain_free(&brain);
    job_system_end(&jobs);
    gcuda_shutdown(); // the registry lets go of its memory, allocator and log too
    if (engine.live_bytes != 0) { fprintf(stderr, "embed_engine: %zu bytes were not given back\n", engine.live_bytes); }
    return st == GCUDA_STATUS_SUCCESS && engine.live_bytes == 0 ? 0 : 1;
}
