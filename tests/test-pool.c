// The thread pool by itself: chunks, late workers, abort, idling, failures. Built with -fsanitize=thread at level full.
// Contains the implementation, to call gcudai_pool_run, and a thread start that can be told to fail.
#if !defined(_WIN32)
#define _GNU_SOURCE 1
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
static int test_pthread_create(pthread_t * t, const pthread_attr_t * a, void * (*fn)(void *), void * arg);
#define pthread_create test_pthread_create
#endif
#define GCUDA_IMPLEMENTATION
#include "test.h"

#include <fenv.h>

static int threads_left = 1000000; // then the system "has no more"

#if !defined(_WIN32)
#undef pthread_create
static int test_pthread_create(pthread_t * t, const pthread_attr_t * a, void * (*fn)(void *), void * arg) {
    if (__atomic_load_n(&threads_left, __ATOMIC_RELAXED) == 0) { return 11; } // EAGAIN
    __atomic_sub_fetch(&threads_left, 1, __ATOMIC_RELAXED);
    return pthread_create(t, a, fn, arg);
}
#endif

static void sleep_us(int64_t us) { // without work, and everywhere
    gcudai_mutex m;
    gcudai_cond c;
    gcudai_mutex_init(&m);
    gcudai_cond_init(&c);
    gcudai_mutex_lock(&m);
    const int64_t end = gcudai_time_us() + us;
    for (int64_t now = gcudai_time_us(); now < end; now = gcudai_time_us()) { gcudai_cond_wait_us(&c, &m, end - now); }
    gcudai_mutex_unlock(&m);
    gcudai_cond_destroy(&c);
    gcudai_mutex_destroy(&m);
}

static void spin_us(int64_t us) {
    const int64_t end = gcudai_time_us() + us;
    while (gcudai_time_us() < end) { gcudai_cpu_relax(); }
}

// ---- every chunk runs exactly once, whichever thread calls ----
#define MAX_CHUNKS 100
struct job {
    int64_t n_chunks;
    int n_threads;
    int64_t chunk_us;
    int hits[MAX_CHUNKS];       // plain ints: two runs of one chunk are a race that the sanitizer sees
    int of_thread[MAX_CHUNKS];  // which thread
    gcudai_atomic_i32 busy[16]; // per thread index
    gcudai_atomic_i32 n_bad;
};

static void job_chunk(void * user, int64_t chunk, int thread) {
    struct job * j = (struct job *) user;
    if (chunk < 0 || chunk >= j->n_chunks || thread < 0 || thread >= j->n_threads) {
        gcudai_atomic_add_i32(&j->n_bad, 1);
        return;
    }
    if (gcudai_atomic_add_i32(&j->busy[thread], 1) != 0) { gcudai_atomic_add_i32(&j->n_bad, 1); } // index in use twice
    j->hits[chunk]++;
    j->of_thread[chunk] = thread;
    if (j->chunk_us > 0) { spin_us(j->chunk_us); }
    gcudai_atomic_add_i32(&j->busy[thread], -1);
}

struct caller {
    gcudai_thread thread;
    gcuda_threadpool_t pool;
    uint64_t seed;
    int n_rounds;
    int n_bad, n_by_workers;
};

static void caller_main(void * arg) {
    struct caller * c = (struct caller *) arg;
    struct rng r = { c->seed };
    for (int round = 0; round < c->n_rounds; ++round) {
        static const int64_t sizes[] = { 0, 1, 2, 3, 7, 16, MAX_CHUNKS };
        struct job j;
        memset(&j, 0, sizeof(j));
        j.n_chunks = sizes[rng_below(&r, 7)];
        j.n_threads = 1 + (int) rng_below(&r, 6);
        j.chunk_us = rng_below(&r, 2) * rng_below(&r, 8);
        if (!gcudai_pool_run(c->pool, j.n_threads, j.n_chunks, job_chunk, &j, NULL, NULL)) { c->n_bad++; }
        for (int i = 0; i < MAX_CHUNKS; ++i) {
            c->n_bad += j.hits[i] != (i < j.n_chunks ? 1 : 0);
            c->n_by_workers += j.of_thread[i] > 0;
        }
        c->n_bad += gcudai_atomic_load_i32(&j.n_bad);
        if (rng_below(&r, 50) == 0) { gcuda_threadpool_pause(c->pool); }
        if (rng_below(&r, 50) == 0) { gcuda_threadpool_resume(c->pool); }
        if (rng_below(&r, 100) == 0) { sleep_us(300); } // let workers fall asleep
    }
}

static void run_callers(struct gcuda_threadpool * pool, int n_callers, int n_rounds, int * n_by_workers) {
    struct caller callers[3];
    memset(callers, 0, sizeof(callers));
    for (int i = 0; i < n_callers; ++i) {
        callers[i].pool = pool;
        callers[i].seed = test_all.seed * 1000 + (uint64_t) i;
        callers[i].n_rounds = n_rounds;
        REQUIRE(gcudai_thread_start(&callers[i].thread, caller_main, &callers[i]));
    }
    *n_by_workers = 0;
    for (int i = 0; i < n_callers; ++i) {
        gcudai_thread_join(&callers[i].thread);
        CHECK_EQ_I(callers[i].n_bad, 0);
        *n_by_workers += callers[i].n_by_workers;
    }
}

TEST(every_chunk_runs_once) {
    for (int n = 1; n <= 5; ++n) {
        struct gcuda_threadpool_params p = gcuda_threadpool_params_default(n);
        p.paused = n == 3;
        p.poll = n == 4 ? 1 : 50;
        struct gcuda_threadpool * pool = gcuda_threadpool_new(&p);
        REQUIRE(pool != NULL);
        CHECK_EQ_I(gcuda_threadpool_get_n_threads(pool), n);
        int n_by_workers = 0;
        // other programs may keep all cores from the workers for a while
        for (int tries = 0; tries < (n == 1 ? 1 : 200) && n_by_workers == 0; ++tries) {
            run_callers(pool, 1, 500, &n_by_workers);
        }
        CHECK(n == 1 ? n_by_workers == 0 : n_by_workers > 0);
        run_callers(pool, 3, 500, &n_by_workers); // callers wait for each other
        gcuda_threadpool_free(pool);
    }
}

TEST(without_a_pool_the_caller_does_it) {
    struct job j;
    memset(&j, 0, sizeof(j));
    j.n_chunks = 10;
    j.n_threads = 1;
    CHECK(gcudai_pool_run(NULL, 8, j.n_chunks, job_chunk, &j, NULL, NULL));
    for (int i = 0; i < 10; ++i) { CHECK(j.hits[i] == 1); }
    CHECK_EQ_I(gcuda_threadpool_get_n_threads(NULL), 1);
    gcuda_threadpool_free(NULL);
    gcuda_threadpool_pause(NULL);
    gcuda_threadpool_resume(NULL);
}

TEST(pools_come_and_go) {
    for (int i = 0; i < 100; ++i) { // freed while workers start, spin, or sleep
        struct gcuda_threadpool_params p = gcuda_threadpool_params_default(1 + i % 5);
        struct gcuda_threadpool * pool = gcuda_threadpool_new(&p);
        REQUIRE(pool != NULL);
        if (i % 3 != 0) {
            struct job j;
            memset(&j, 0, sizeof(j));
            j.n_chunks = 16;
            j.n_threads = 5;
            CHECK(gcudai_pool_run(pool, 5, j.n_chunks, job_chunk, &j, NULL, NULL));
        }
        if (i % 10 == 0) { sleep_us(500); }
        gcuda_threadpool_free(pool);
    }
}

// ---- abort ----
static void chunk_1ms(void * user, int64_t chunk, int thread) {
    (void) chunk;
    (void) thread;
    gcudai_atomic_add_i32((gcudai_atomic_i32 *) user, 1);
    spin_us(1000);
}

static bool stop_at_third(void * user) { return ++*(int *) user >= 3; }

TEST(abort_ends_a_job) {
    for (int n = 1; n <= 4; ++n) {
        struct gcuda_threadpool_params p = gcuda_threadpool_params_default(n);
        struct gcuda_threadpool * pool = gcuda_threadpool_new(&p);
        REQUIRE(pool != NULL);
        gcudai_atomic_i32 n_run = { 0 };
        int n_polls = 0;
        CHECK(!gcudai_pool_run(pool, n, 10000, chunk_1ms, &n_run, stop_at_third, &n_polls));
        CHECK_EQ_I(n_polls, 3);
        CHECK_MSG(gcudai_atomic_load_i32(&n_run) < 1000, "%d chunks ran", gcudai_atomic_load_i32(&n_run));
        n_polls = -1000000; // the next job is not aborted
        gcudai_atomic_store_i32(&n_run, 0);
        CHECK(gcudai_pool_run(pool, n, 20, chunk_1ms, &n_run, stop_at_third, &n_polls));
        CHECK_EQ_I(gcudai_atomic_load_i32(&n_run), 20);
        gcuda_threadpool_free(pool);
    }
}

static void slow_for_workers(void * user, int64_t chunk, int thread) {
    (void) user;
    (void) chunk;
    if (thread == 0) { sleep_us(5000); } // so that the worker gets its chunk
    if (thread == 1) { sleep_us(100000); }
}

static bool count_polls(void * user) {
    ++*(int *) user;
    return false;
}

TEST(abort_is_asked_while_waiting_for_others) {
    struct gcuda_threadpool_params p = gcuda_threadpool_params_default(2);
    struct gcuda_threadpool * pool = gcuda_threadpool_new(&p);
    REQUIRE(pool != NULL);
    int n_polls = 0;
    const int64_t start = gcudai_time_us();
    CHECK(gcudai_pool_run(pool, 2, 2, slow_for_workers, NULL, count_polls, &n_polls));
    const int64_t took = gcudai_time_us() - start;
    // every 2 ms; half of that allows for a busy machine and a coarse clock
    CHECK_MSG(took < 50000 || n_polls >= (int) (took / 20000), "%d polls in %lld us", n_polls, (long long) took);
    gcuda_threadpool_free(pool);
}

// ---- idling costs nothing ----
TEST(idle_pool_does_no_work) {
    struct gcuda_threadpool_params p = gcuda_threadpool_params_default(4);
    p.poll = 100;
    struct gcuda_threadpool * pool = gcuda_threadpool_new(&p);
    REQUIRE(pool != NULL);
    gcudai_atomic_i32 n_run = { 0 };
    CHECK(gcudai_pool_run(pool, 4, 8, chunk_1ms, &n_run, NULL, NULL));
#if !defined(_WIN32) // there clock() is wall time
    const clock_t before = clock();
    sleep_us(300000);
    const double busy_s = (double) (clock() - before) / CLOCKS_PER_SEC;
    CHECK_MSG(busy_s < 0.03, "%g s of processor time in 0.3 s of idling", busy_s);
#endif
    gcuda_threadpool_free(pool);
}

// ---- parameters and failures ----
TEST(params_zero_means_default) {
    struct gcuda_threadpool_params zero, p = gcuda_threadpool_params_default(0);
    memset(&zero, 0, sizeof(zero));
    CHECK_EQ_I(p.n_threads, GCUDA_DEFAULT_N_THREADS);
    CHECK(gcuda_threadpool_params_match(&zero, &p));
    struct gcuda_threadpool * pool = gcuda_threadpool_new(&zero);
    CHECK_EQ_I(gcuda_threadpool_get_n_threads(pool), GCUDA_DEFAULT_N_THREADS);
    gcuda_threadpool_free(pool);
    pool = gcuda_threadpool_new(NULL);
    CHECK_EQ_I(gcuda_threadpool_get_n_threads(pool), GCUDA_DEFAULT_N_THREADS);
    gcuda_threadpool_free(pool);
    zero.cpumask[3] = true;
    CHECK(!gcuda_threadpool_params_match(&zero, &p));
    gcuda_threadpool_params_init(&p, 7);
    CHECK_EQ_I(p.n_threads, 7);
}

TEST(params_out_of_range) {
    const int wrong[] = { -1, GCUDA_MAX_N_THREADS + 1, INT32_MAX, INT32_MIN };
    for (int i = 0; i < 4; ++i) {
        struct gcuda_threadpool_params p = gcuda_threadpool_params_default(2);
        p.n_threads = wrong[i];
        gcuda_clear_last_error();
        CHECK(gcuda_threadpool_new(&p) == NULL);
        CHECK_HAS(gcuda_last_error(), "n_threads");
    }
}

TEST(placed_threads_work) { // masks and priorities are wishes: also where the machine has no such processor
    for (int strict = 0; strict < 2; ++strict) {
        for (int prio = GCUDA_SCHED_PRIO_LOW; prio <= GCUDA_SCHED_PRIO_NORMAL; ++prio) {
            struct gcuda_threadpool_params p = gcuda_threadpool_params_default(3);
            p.cpumask[0] = p.cpumask[1] = p.cpumask[511] = true;
            p.strict_cpu = strict != 0;
            p.prio = (enum gcuda_sched_priority) prio;
            struct gcuda_threadpool * pool = gcuda_threadpool_new(&p);
            REQUIRE(pool != NULL);
            int n_by_workers = 0;
            run_callers(pool, 1, 100, &n_by_workers);
            gcuda_threadpool_free(pool);
        }
    }
}

static int n_warnings = 0;
static void count_warnings(enum gcuda_log_level level, const char * text, void * user) {
    (void) user;
    n_warnings += level == GCUDA_LOG_LEVEL_WARN && strstr(text, "threads") != NULL;
}

// ---- what a pool thread is to the rest of the program ----
struct starts {
    gcudai_atomic_i32 n, sum, n_bad;
};
static void note_start(void * data, int index) {
    struct starts * s = (struct starts *) data;
#if defined(__linux__)
    char name[32] = "", want[32];
    sigset_t mask;
    snprintf(want, sizeof want, "gcuda-%d", index);
    if (pthread_getname_np(pthread_self(), name, sizeof name) != 0 || strcmp(name, want) != 0) {
        gcudai_atomic_add_i32(&s->n_bad, 1);
    }
    const bool can_see = pthread_sigmask(SIG_SETMASK, NULL, &mask) == 0;
    if (!can_see || !sigismember(&mask, SIGUSR1) || !sigismember(&mask, SIGINT) || sigismember(&mask, SIGSEGV)) {
        gcudai_atomic_add_i32(&s->n_bad, 1);
    }
#endif
    gcudai_atomic_add_i32(&s->n, 1);
    gcudai_atomic_add_i32(&s->sum, index);
}

TEST(threads_have_names_masks_and_a_hook) {
    struct starts s;
    memset(&s, 0, sizeof s);
    struct gcuda_threadpool_params params = gcuda_threadpool_params_default(4), same = params;
    CHECK(params.on_start == NULL && gcuda_threadpool_params_match(&params, &same));
    params.on_start = note_start, params.on_start_data = &s;
    CHECK(!gcuda_threadpool_params_match(&params, &same));
#if defined(__linux__)
    sigset_t before, after;
    CHECK(pthread_sigmask(SIG_SETMASK, NULL, &before) == 0);
#endif
    struct gcuda_threadpool * pool = gcuda_threadpool_new(&params);
    REQUIRE(pool != NULL);
    const int n = gcuda_threadpool_get_n_threads(pool);
    gcuda_threadpool_free(pool); // joins: each has begun
#if defined(__linux__)
    CHECK(pthread_sigmask(SIG_SETMASK, NULL, &after) == 0); // the caller's is as before
    for (int i = 1; i < 32; ++i) { CHECK(sigismember(&before, i) == sigismember(&after, i)); }
#endif
    CHECK_EQ_I(s.n.value, n - 1);
    CHECK_EQ_I(s.sum.value, n * (n - 1) / 2);
    CHECK_EQ_I(s.n_bad.value, 0);
}

#if defined(__has_feature) // clang says it so
#if __has_feature(thread_sanitizer)
#define __SANITIZE_THREAD__ 1
#endif
#endif
#if !defined(_WIN32) && !defined(__SANITIZE_THREAD__)
// In a child of fork() an earlier pool computes on the calling thread, a backend starts new threads, and all is freed.
struct forked {
    gcuda_backend_t cpu;
    struct gcuda_threadpool * pool;
    struct gcuda_context * ctx;
    struct gcuda_tensor * y;
    struct gcuda_cgraph * graph;
};
static int child_of_fork(const struct forked * f, const char * want) { // 0, or the step that went wrong
    alarm(60);
    if (gcuda_threadpool_get_n_threads(f->pool) != 1) { return 1; }
    for (int k = 0; k < 3; ++k) { // the backend's own pool, the inherited one, with more threads than it has here
        memset(f->y->data, 0xff, gcuda_nbytes(f->y));
        if (gcuda_backend_cpu_set_threadpool(f->cpu, k > 0 ? f->pool : NULL) != GCUDA_STATUS_SUCCESS) { return 10 + k; }
        if (gcuda_backend_cpu_set_n_threads(f->cpu, k == 1 ? 0 : 3) != GCUDA_STATUS_SUCCESS) { return 20 + k; }
        if (gcuda_backend_graph_compute(f->cpu, f->graph) != GCUDA_STATUS_SUCCESS) { return 30 + k; }
        if (memcmp(f->y->data, want, gcuda_nbytes(f->y)) != 0) { return 40 + k; }
    }
    gcuda_threadpool_pause(f->pool);
    gcuda_threadpool_resume(f->pool);
    gcuda_backend_free(f->cpu);
    gcuda_threadpool_free(f->pool);
    gcuda_free(f->ctx);
    return 0;
}

TEST(a_child_of_fork_computes_and_frees) {
    struct gcuda_threadpool_params params = gcuda_threadpool_params_default(3);
    const struct gcuda_init_params in_memory = { 0, NULL, false };
    struct forked f;
    for (int k = 0; k < 2; ++k) { // 1: the backend has its own threads
        f.cpu = gcuda_backend_cpu_init();
        f.pool = gcuda_threadpool_new(&params);
        f.ctx = gcuda_init(in_memory);
        struct gcuda_tensor * x = gcuda_new_tensor_2d(f.ctx, GCUDA_TYPE_F32, 300, 300);
        f.y = gcuda_mul_mat(f.ctx, x, x);
        f.graph = gcuda_new_graph(f.ctx);
        for (int i = 0; i < 300 * 300; ++i) { ((float *) x->data)[i] = (float) (i % 17) - 8.0f; }
        CHECK_OK(gcuda_build_forward_expand(f.graph, f.y));
        CHECK_OK(gcuda_backend_cpu_set_n_threads(f.cpu, 3));
        CHECK_OK(gcuda_backend_cpu_set_threadpool(f.cpu, k == 0 ? f.pool : NULL));
        CHECK_OK(gcuda_backend_graph_compute(f.cpu, f.graph));
        char * want = (char *) malloc(gcuda_nbytes(f.y));
        memcpy(want, f.y->data, gcuda_nbytes(f.y));
        sleep_us(20000); // its threads sleep: those who wait on a condition are what a child must not destroy
        const pid_t child = fork();
        if (child == 0) { _exit(child_of_fork(&f, want)); }
        int status = -1;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 0, "child %d ended with %d, signal %d", k,
            WEXITSTATUS(status), WTERMSIG(status));
        CHECK_OK(gcuda_backend_graph_compute(f.cpu, f.graph)); // and the parent goes on
        CHECK(memcmp(f.y->data, want, gcuda_nbytes(f.y)) == 0);
        gcuda_backend_free(f.cpu);
        gcuda_threadpool_free(f.pool);
        gcuda_free(f.ctx);
        free(want);
    }
}
#endif

TEST(too_few_threads_make_a_smaller_pool) {
#if defined(_WIN32)
    test_skip("thread creation cannot be made to fail here");
#else
    struct gcuda_threadpool_params p = gcuda_threadpool_params_default(5);
    gcuda_log_set(count_warnings, GCUDA_LOG_LEVEL_WARN, NULL);
    for (int n = 0; n < 5; ++n) {
        n_warnings = 0;
        threads_left = n;
        struct gcuda_threadpool * pool = gcuda_threadpool_new(&p);
        threads_left = 1000000;
        REQUIRE(pool != NULL);
        CHECK_EQ_I(gcuda_threadpool_get_n_threads(pool), n + 1);
        CHECK_EQ_I(n_warnings, n < 4 ? 1 : 0);
        struct job j;
        memset(&j, 0, sizeof(j));
        j.n_chunks = MAX_CHUNKS;
        j.n_threads = n + 1;
        CHECK(gcudai_pool_run(pool, 5, j.n_chunks, job_chunk, &j, NULL, NULL));
        for (int i = 0; i < MAX_CHUNKS; ++i) { CHECK(j.hits[i] == 1); }
        gcuda_threadpool_free(pool);
    }
    gcuda_log_set(NULL, GCUDA_LOG_LEVEL_NONE, NULL);
#endif
}

TEST(no_memory_no_pool) {
    for (int k = 1;; ++k) {
        struct fault f;
        fault_begin(&f, k);
        struct gcuda_threadpool * pool = gcuda_threadpool_new(NULL);
        CHECK((pool == NULL) == f.fired);
        gcuda_threadpool_free(pool);
        fault_end(&f);
        CHECK_EQ_I(f.live, 0);
        if (!f.fired) { break; }
    }
}

// ---- the caller's job system in place of threads ----
// The rounding mode of float arithmetic; fegetround may tell that of other registers.
static int rounding(void) {
    const volatile float one = 1.0f, tiny = 1e-10f;
    const volatile float above = one + tiny, below = one - tiny;
    return above > one ? FE_UPWARD : below < one ? FE_DOWNWARD : FE_TONEAREST;
}

enum executor { FORWARD, BACKWARD, ON_ANOTHER, TWO_THREADS, MANY_THREADS, N_GOOD, NO_JOB = N_GOOD, ONE_JOB_TWICE };
struct executor_state { // of a pool
    enum executor kind;
    gcudai_atomic_i32 n_calls, n_jobs, n_bad;
    int rounding; // what calls have to see
};
struct executor_call {
    gcudai_thread thread;
    struct executor_state * state;
    gcuda_job job;
    void * job_data;
    int n_jobs;
    gcudai_atomic_i32 * next;
};

static void executor_main(void * arg) {
    struct executor_call * c = (struct executor_call *) arg;
    fesetround(FE_UPWARD); // an environment of the thread's own, which a job has to leave as it was
    for (int i = gcudai_atomic_add_i32(c->next, 1); i < c->n_jobs; i = gcudai_atomic_add_i32(c->next, 1)) {
        c->job(c->job_data, i);
        gcudai_atomic_add_i32(&c->state->n_bad, rounding() != FE_UPWARD);
    }
}

static void run_on_threads(struct executor_state * e, int n_threads, int n_jobs, gcuda_job job, void * job_data) {
    gcudai_atomic_i32 next = { 0 };
    struct executor_call calls[8];
    int n = 0;
    for (; n < n_threads && n < 8; ++n) {
        calls[n].state = e, calls[n].job = job, calls[n].job_data = job_data, calls[n].n_jobs = n_jobs,
        calls[n].next = &next;
        if (!gcudai_thread_start(&calls[n].thread, executor_main, &calls[n])) { break; }
    }
    if (n == 0) { gcudai_atomic_add_i32(&e->n_bad, 1); }
    while (n > 0) { gcudai_thread_join(&calls[--n].thread); }
}

static void execute(void * user, int n_jobs, gcuda_job job, void * job_data) {
    struct executor_state * e = (struct executor_state *) user;
    gcudai_atomic_add_i32(&e->n_calls, 1);
    gcudai_atomic_add_i32(&e->n_jobs, n_jobs);
    gcudai_atomic_add_i32(&e->n_bad, n_jobs < 2 || n_jobs > 7 || rounding() != e->rounding);
    switch (e->kind) {
            // clang-format off
    case FORWARD: for (int i = 0; i < n_jobs; ++i) { job(job_data, i); } break;
    case BACKWARD: for (int i = n_jobs; i > 0; --i) { job(job_data, i - 1); } break;
    case ON_ANOTHER: run_on_threads(e, 1, n_jobs, job, job_data); break; // the computing thread only waits
    case TWO_THREADS: run_on_threads(e, 2, n_jobs, job, job_data); break;
    case MANY_THREADS: run_on_threads(e, n_jobs, n_jobs, job, job_data); break;
    case NO_JOB: break;
        // clang-format on
        case ONE_JOB_TWICE:
            for (int i = 0; i < n_jobs; ++i) { job(job_data, i); }
            job(job_data, 0);
            break;
    }
}

static struct gcuda_threadpool * executor_pool(struct executor_state * e, enum executor kind, int n_threads) {
    struct gcuda_threadpool_params p = gcuda_threadpool_params_default(n_threads);
    memset(e, 0, sizeof *e);
    e->kind = kind;
    e->rounding = rounding();
    p.parallel_for = execute, p.parallel_for_data = e;
    return gcuda_threadpool_new(&p);
}

struct work { // a graph whose nodes have several phases, scratch memory and many chunks
    struct gcuda_context * ctx;
    struct gcuda_tensor * y;
    struct gcuda_cgraph * graph;
};

static bool make_work(struct work * w, int n) {
    const struct gcuda_init_params in_memory = { 0, NULL, false };
    w->ctx = gcuda_init(in_memory);
    struct gcuda_tensor *a = gcuda_new_tensor_2d(w->ctx, GCUDA_TYPE_Q8_0, n, n),
                        *x = gcuda_new_tensor_2d(w->ctx, GCUDA_TYPE_F32, n, n);
    w->y = gcuda_cumsum(w->ctx, gcuda_soft_max(w->ctx, gcuda_rms_norm(w->ctx, gcuda_mul_mat(w->ctx, a, x), 1e-6f)));
    w->graph = gcuda_new_graph(w->ctx);
    if (gcuda_build_forward_expand(w->graph, w->y) != GCUDA_STATUS_SUCCESS) { return false; }
    for (int i = 0; i < n * n; ++i) { ((float *) x->data)[i] = 0.1f * (float) (i % 17) - 0.8f; }
    return gcuda_quantize_chunk(GCUDA_TYPE_Q8_0, (float *) x->data, a->data, 0, n, n, NULL) > 0;
}

static void compute_on(struct gcuda_threadpool * pool, const struct work * w, gcuda_status want, const char * bytes) {
    gcuda_backend_t cpu = gcuda_backend_cpu_init();
    memset(w->y->data, 0xff, gcuda_nbytes(w->y));
    CHECK_OK(gcuda_backend_cpu_set_threadpool(cpu, pool));
    const gcuda_status st = gcuda_backend_graph_compute(cpu, w->graph);
    CHECK_MSG(st == want, "%s: %s", gcuda_status_to_string(st), gcuda_last_error());
    if (bytes != NULL) { CHECK(memcmp(w->y->data, bytes, gcuda_nbytes(w->y)) == 0); }
    gcuda_backend_free(cpu);
}

static char * bytes_of(const struct work * w) { // as one thread computes them
    compute_on(NULL, w, GCUDA_STATUS_SUCCESS, NULL);
    char * bytes = (char *) malloc(gcuda_nbytes(w->y));
    if (bytes != NULL) { memcpy(bytes, w->y->data, gcuda_nbytes(w->y)); }
    return bytes;
}

TEST(a_job_system_computes_graphs) {
    struct work w;
    REQUIRE(make_work(&w, 256));
    char * want = bytes_of(&w);
    REQUIRE(want != NULL);
    for (int kind = 0; kind < N_GOOD; ++kind) {
        for (int n = 1; n <= 7; n += 3) {
            struct executor_state e;
            struct gcuda_threadpool * pool = executor_pool(&e, (enum executor) kind, n);
            REQUIRE(pool != NULL);
            CHECK_EQ_I(gcuda_threadpool_get_n_threads(pool), n);
            compute_on(pool, &w, GCUDA_STATUS_SUCCESS, want);
            fesetround(FE_DOWNWARD); // calls have the environment of who computes, jobs the default one: the same bits
            e.rounding = FE_DOWNWARD;
            compute_on(pool, &w, GCUDA_STATUS_SUCCESS, want);
            CHECK(rounding() == FE_DOWNWARD);
            fesetround(FE_TONEAREST);
            const int n_calls = gcudai_atomic_load_i32(&e.n_calls);
            CHECK(n == 1 ? n_calls == 0 : n_calls >= 4);
            CHECK(gcudai_atomic_load_i32(&e.n_jobs) <= n * n_calls && gcudai_atomic_load_i32(&e.n_bad) == 0);
            gcuda_threadpool_pause(pool);
            gcuda_threadpool_resume(pool);
            gcuda_threadpool_free(pool);
        }
    }
    gcuda_free(w.ctx);
    free(want);
}

TEST(a_job_system_without_a_backend) {
    struct work w;
    struct executor_state e;
    REQUIRE(make_work(&w, 256));
    char * want = bytes_of(&w);
    struct gcuda_threadpool * pool = executor_pool(&e, TWO_THREADS, 5);
    REQUIRE(pool != NULL && want != NULL);
    struct gcuda_cplan plan = gcuda_graph_plan(w.graph, 0, pool);
    CHECK_EQ_I(plan.n_threads, 5);
    plan.work_data = (uint8_t *) malloc(plan.work_size + 1);
    memset(w.y->data, 0xff, gcuda_nbytes(w.y));
    CHECK_OK(gcuda_graph_compute(w.graph, &plan));
    CHECK(memcmp(w.y->data, want, gcuda_nbytes(w.y)) == 0);
    CHECK(gcudai_atomic_load_i32(&e.n_calls) > 0);
    free(plan.work_data);
    gcuda_threadpool_free(pool);
    gcuda_free(w.ctx);
    free(want);
}

TEST(a_job_system_that_loses_jobs_is_named) {
    struct work w;
    REQUIRE(make_work(&w, 256));
    char * want = bytes_of(&w);
    REQUIRE(want != NULL);
    for (int kind = NO_JOB; kind <= ONE_JOB_TWICE; ++kind) {
        struct executor_state e;
        struct gcuda_threadpool * pool = executor_pool(&e, (enum executor) kind, 4);
        REQUIRE(pool != NULL);
        compute_on(pool, &w, GCUDA_STATUS_FAILED, NULL);
        CHECK_HAS(gcuda_last_error(),
            kind == NO_JOB ? "parallel_for returned after 0 calls of its job, want 4" : "after 5 calls");
        e.kind = FORWARD;
        compute_on(pool, &w, GCUDA_STATUS_SUCCESS, want); // the pool is as before
        gcuda_threadpool_free(pool);
    }
    gcuda_free(w.ctx);
    free(want);
}

struct asking {
    gcudai_atomic_i32 n, n_inside, n_bad;
    int limit;
};
static bool ask(void * data) {
    struct asking * a = (struct asking *) data;
    gcudai_atomic_add_i32(&a->n_bad, gcudai_atomic_add_i32(&a->n_inside, 1) != 0 || rounding() != FE_TONEAREST);
    const bool stop = gcudai_atomic_add_i32(&a->n, 1) + 1 >= a->limit;
    gcudai_atomic_add_i32(&a->n_inside, -1);
    return stop;
}

TEST(a_job_system_is_aborted) {
    struct work w;
    REQUIRE(make_work(&w, 256));
    char * want = bytes_of(&w);
    REQUIRE(want != NULL);
    for (int kind = 0; kind < N_GOOD; ++kind) {
        struct executor_state e;
        struct asking a;
        struct gcuda_threadpool * pool = executor_pool(&e, (enum executor) kind, 4);
        gcuda_backend_t cpu = gcuda_backend_cpu_init();
        REQUIRE(pool != NULL && cpu != NULL);
        memset(&a, 0, sizeof a);
        a.limit = 3;
        CHECK_OK(gcuda_backend_cpu_set_threadpool(cpu, pool));
        CHECK_OK(gcuda_backend_cpu_set_abort_callback(cpu, ask, &a));
        CHECK(gcuda_backend_graph_compute(cpu, w.graph) == GCUDA_STATUS_ABORTED);
        CHECK_HAS(gcuda_last_error(), "aborted by the callback");
        CHECK_EQ_I(gcudai_atomic_load_i32(&a.n), 3); // not asked again once it has said so
        CHECK_EQ_I(gcudai_atomic_load_i32(&a.n_bad), 0);
        a.limit = INT32_MAX;
        CHECK_OK(gcuda_backend_graph_compute(cpu, w.graph));
        CHECK(memcmp(w.y->data, want, gcuda_nbytes(w.y)) == 0);
        CHECK_EQ_I(gcudai_atomic_load_i32(&a.n_bad) + gcudai_atomic_load_i32(&e.n_bad), 0);
        gcuda_backend_free(cpu);
        gcuda_threadpool_free(pool);
    }
    gcuda_free(w.ctx);
    free(want);
}

struct nested {
    struct gcuda_threadpool * pool;
    struct work work[2];
    const char * want;
    gcudai_atomic_i32 n_bad;
};
static bool compute_quietly(struct gcuda_threadpool * pool, const struct work * w, const char * want) {
    gcuda_backend_t cpu = gcuda_backend_cpu_init();
    memset(w->y->data, 0xff, gcuda_nbytes(w->y));
    const bool is_good = gcuda_backend_cpu_set_threadpool(cpu, pool) == GCUDA_STATUS_SUCCESS &&
                         gcuda_backend_graph_compute(cpu, w->graph) == GCUDA_STATUS_SUCCESS &&
                         memcmp(w->y->data, want, gcuda_nbytes(w->y)) == 0;
    gcuda_backend_free(cpu);
    return is_good;
}
static void graph_in_a_graph(
    struct gcuda_tensor * dst, const struct gcuda_tensor * a, int ith, int nth, void * userdata) {
    struct nested * n = (struct nested *) userdata;
    (void) a;
    (void) nth;
    if (!compute_quietly(n->pool, &n->work[ith], n->want)) { gcudai_atomic_add_i32(&n->n_bad, 1); }
    ((float *) dst->data)[ith] = (float) ith + 1.0f;
}

TEST(graphs_within_graphs_on_a_job_system) {
    for (int kind = 0; kind < N_GOOD; ++kind) {
        const struct gcuda_init_params in_memory = { 0, NULL, false };
        struct nested n;
        struct executor_state e;
        memset(&n, 0, sizeof n);
        n.pool = executor_pool(&e, (enum executor) kind, 3);
        REQUIRE(n.pool != NULL && make_work(&n.work[0], 128) && make_work(&n.work[1], 128));
        char * want = bytes_of(&n.work[0]);
        n.want = want;
        struct gcuda_context * ctx = gcuda_init(in_memory);
        struct gcuda_tensor *x = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F32, 2),
                            *y = gcuda_map_custom1(ctx, x, graph_in_a_graph, 2, &n);
        struct gcuda_cgraph * graph = gcuda_new_graph(ctx);
        gcuda_backend_t cpu = gcuda_backend_cpu_init();
        REQUIRE(want != NULL && y != NULL && cpu != NULL);
        CHECK_OK(gcuda_build_forward_expand(graph, y));
        CHECK_OK(gcuda_backend_cpu_set_threadpool(cpu, n.pool));
        CHECK_OK(gcuda_backend_graph_compute(cpu, graph));
        CHECK(gcuda_get_f32_1d(y, 0) == 1.0f && gcuda_get_f32_1d(y, 1) == 2.0f);
        CHECK_EQ_I(gcudai_atomic_load_i32(&n.n_bad) + gcudai_atomic_load_i32(&e.n_bad), 0);
        CHECK(gcudai_atomic_load_i32(&e.n_calls) >= 3);
        gcuda_backend_free(cpu);
        gcuda_free(ctx);
        gcuda_free(n.work[0].ctx);
        gcuda_free(n.work[1].ctx);
        gcuda_threadpool_free(n.pool);
        free(want);
    }
}

struct sharer {
    gcudai_thread thread;
    struct gcuda_threadpool * pool;
    struct work work;
    const char * want;
    int n_bad;
};
static void sharer_main(void * arg) {
    struct sharer * s = (struct sharer *) arg;
    for (int i = 0; i < 10; ++i) { s->n_bad += !compute_quietly(s->pool, &s->work, s->want); }
}

TEST(threads_share_a_job_system) {
    struct sharer s[3];
    struct executor_state e;
    memset(s, 0, sizeof s);
    struct gcuda_threadpool * pool = executor_pool(&e, TWO_THREADS, 4);
    REQUIRE(pool != NULL);
    char * want = NULL;
    for (int i = 0; i < 3; ++i) { REQUIRE(make_work(&s[i].work, 128)); }
    want = bytes_of(&s[0].work);
    REQUIRE(want != NULL);
    for (int i = 0; i < 3; ++i) {
        s[i].pool = pool, s[i].want = want;
        REQUIRE(gcudai_thread_start(&s[i].thread, sharer_main, &s[i]));
    }
    for (int i = 0; i < 3; ++i) {
        gcudai_thread_join(&s[i].thread);
        CHECK_EQ_I(s[i].n_bad, 0);
        gcuda_free(s[i].work.ctx);
    }
    CHECK_EQ_I(gcudai_atomic_load_i32(&e.n_bad), 0);
    gcuda_threadpool_free(pool);
    free(want);
}

TEST(a_job_system_is_part_of_the_parameters) {
    struct gcuda_threadpool_params p = gcuda_threadpool_params_default(3), q = p;
    int data = 0;
    q.parallel_for = execute;
    CHECK(!gcuda_threadpool_params_match(&p, &q));
    p.parallel_for = execute;
    CHECK(gcuda_threadpool_params_match(&p, &q));
    p.parallel_for_data = &data;
    CHECK(!gcuda_threadpool_params_match(&p, &q));
    for (int k = 1;; ++k) { // and without memory
        struct fault f;
        fault_begin(&f, k);
        struct gcuda_threadpool * pool = gcuda_threadpool_new(&q);
        CHECK((pool == NULL) == f.fired);
        gcuda_threadpool_free(pool);
        fault_end(&f);
        CHECK_EQ_I(f.live, 0);
        if (!f.fired) { break; }
    }
}

// ---- threads of the caller's ----
struct erring {
    gcudai_thread thread;
    int64_t extent;
    int n_bad;
};

static void erring_main(void * arg) { // another context, another mistake, and that message stays
    struct erring * e = (struct erring *) arg;
    const struct gcuda_init_params params = { 0, NULL, true };
    char want[32];
    snprintf(want, sizeof(want), "[%d, 1, 1, 1]", (int) e->extent);
    for (int i = 0; i < 300; ++i) {
        struct gcuda_context * ctx = gcuda_init(params);
        struct gcuda_tensor *a = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F32, e->extent),
                            *b = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F32, 7);
        e->n_bad += gcuda_mul_mat(ctx, a, b) != NULL;
        if (i % 16 == 0) { sleep_us(100); }
        e->n_bad += strstr(gcuda_last_error(), want) == NULL || strstr(gcuda_context_error(ctx), want) == NULL;
        gcuda_free(ctx);
    }
}

TEST(each_thread_has_its_own_message) {
    struct erring e[3];
    memset(e, 0, sizeof(e));
    gcuda_set_last_error(GCUDA_STATUS_FAILED, "of the main thread");
    for (int i = 0; i < 3; ++i) {
        e[i].extent = 100 + i;
        REQUIRE(gcudai_thread_start(&e[i].thread, erring_main, &e[i]));
    }
    for (int i = 0; i < 3; ++i) {
        gcudai_thread_join(&e[i].thread);
        CHECK_EQ_I(e[i].n_bad, 0);
    }
    CHECK(strcmp(gcuda_last_error(), "of the main thread") == 0);
    gcuda_clear_last_error();
}

// ---- the platform layer under it ----
TEST(clock_and_machine) {
    const int64_t start = gcudai_time_us();
    sleep_us(5000);
    CHECK(gcudai_time_us() - start >= 5000);
    CHECK(gcudai_cpu_count() >= 1);
    size_t available = 0, total = 0;
    gcudai_memory_query(&available, &total);
    CHECK(total > 0 && available > 0 && available <= total);
    CHECK(gcudai_cpu_has(0));
#if GCUDAI_HAVE_X86_SIMD
    CHECK(!gcudai_cpu_has(GCUDAI_CPU_NEON));
    if (gcudai_cpu_has(GCUDAI_CPU_VNNI)) { CHECK(gcudai_cpu_has(GCUDAI_CPU_AVX512)); }
#endif
}

TEST(atomics) {
    gcudai_atomic_i32 a = { 5 };
    gcudai_atomic_i64 b = { (int64_t) 1 << 40 };
    CHECK_EQ_I(gcudai_atomic_add_i32(&a, -7), 5);
    CHECK_EQ_I(gcudai_atomic_load_i32(&a), -2);
    CHECK(!gcudai_atomic_cas_i32(&a, 0, 1) && gcudai_atomic_cas_i32(&a, -2, 9));
    CHECK_EQ_I(gcudai_atomic_load_i32(&a), 9);
    CHECK_EQ_I(gcudai_atomic_add_i64(&b, 1), (int64_t) 1 << 40);
    CHECK(!gcudai_atomic_cas_i64(&b, 0, 1) && gcudai_atomic_cas_i64(&b, ((int64_t) 1 << 40) + 1, -3));
    gcudai_atomic_store_i64(&b, gcudai_atomic_load_i64(&b) - 1);
    CHECK_EQ_I(gcudai_atomic_load_i64(&b), -4);
}
