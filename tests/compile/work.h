// Work of all programs of the build matrix; returns 0 if right. Makes a context, computes y = rms_norm(x) on the CPU,
// compares, frees. Makes a pool with a parallel_for, which only builds with threads (atomics) have. Runs a function on
// a thread; builds without threads call it in the join.
#include <math.h>
#include <string.h>

static void in_order(void * user, int n_jobs, gcuda_job job, void * job_data) {
    (void) user;
    for (int i = 0; i < n_jobs; ++i) { job(job_data, i); }
}

static int wrong_pool(void) {
    struct gcuda_threadpool_params params = gcuda_threadpool_params_default(3);
    params.parallel_for = in_order;
    struct gcuda_threadpool * pool = gcuda_threadpool_new(&params);
#if defined(GCUDA_NO_THREADS)
    const int bad = pool != NULL || strstr(gcuda_last_error(), "GCUDA_NO_THREADS") == NULL;
#else
    const int bad = gcuda_threadpool_get_n_threads(pool) != 3;
#endif
    gcuda_threadpool_free(pool);
    return bad;
}

static gcuda_status count(void * n) {
    ++*(int *) n;
    return GCUDA_STATUS_SUCCESS;
}

static int wrong_thread(void) {
    int n = 0;
    struct gcuda_thread * thread = gcuda_thread_start(count, &n);
#if defined(GCUDA_NO_THREADS)
    const int is_early = n != 0 || !gcuda_thread_is_done(thread);
#else
    const int is_early = 0;
#endif
    return is_early || gcuda_thread_join(thread) != GCUDA_STATUS_SUCCESS || n != 1;
}

static int work(void) {
    struct gcuda_init_params params;
    memset(&params, 0, sizeof(params));
    struct gcuda_context * ctx = gcuda_init(params);
    if (ctx == NULL) { return 1; }
    struct gcuda_tensor * x = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F32, 4);
    struct gcuda_tensor * y = gcuda_rms_norm(ctx, x, 0.0f);
    struct gcuda_cgraph * graph = gcuda_new_graph(ctx);
    int bad = 1;
    if (gcuda_build_forward_expand(graph, y) == GCUDA_STATUS_SUCCESS) {
        const float in[4] = { 1.0f, -1.0f, 1.0f, -1.0f };
        memcpy(x->data, in, sizeof(in));
        if (gcuda_graph_compute_with_ctx(ctx, graph, 2) == GCUDA_STATUS_SUCCESS) {
            float out[4];
            memcpy(out, y->data, sizeof(out));
            bad = 0;
            for (int i = 0; i < 4; ++i) { bad |= fabsf(out[i] - in[i]) > 1e-6f; }
        }
    }
    bad |= wrong_pool() || wrong_thread();
    gcuda_free(ctx);
    gcuda_shutdown();
    return bad;
}
