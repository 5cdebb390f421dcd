// Uploads and downloads through page-locked slots, on the simulated device: random sizes, offsets, slots and threads;
// order with backends; threads that do not start; freeing during copies. Each CUDA call fails once. Contains the
// implementation, to make thread starts fail.
#define _GNU_SOURCE 1
#include <pthread.h>
static int test_pthread_create(pthread_t * t, const pthread_attr_t * a, void * (*fn)(void *), void * arg);
#define pthread_create test_pthread_create
#define GCUDA_IMPLEMENTATION
#include "sim-test.h"
#undef pthread_create

#include <sys/mman.h>

static gcudai_atomic_i32 threads_left = { 1000000 }; // then the system "has no more"
static int test_pthread_create(pthread_t * t, const pthread_attr_t * a, void * (*fn)(void *), void * arg) {
    return gcudai_atomic_add_i32(&threads_left, -1) > 0 ? pthread_create(t, a, fn, arg) : 11; // EAGAIN
}
static void let_threads_start(int n) { gcudai_atomic_store_i32(&threads_left, n); }

static uint64_t draw_state = 1;
static size_t draw(size_t n) { // below n
    draw_state = draw_state * 6364136223846793005u + 1442695040888963407u;
    return (size_t) (draw_state >> 33) % n;
}

static struct gcuda_cuda_uploader * uploader(int device, int n_slots, size_t slot_bytes, int n_threads) {
    struct gcuda_cuda_uploader_params p;
    memset(&p, 0, sizeof p);
    p.device = device;
    p.n_slots = n_slots;
    p.slot_bytes = slot_bytes;
    p.n_threads = n_threads;
    return gcuda_cuda_uploader_new(&p);
}

static void fill(unsigned char * p, size_t n) {
    for (size_t i = 0; i < n; ++i) { p[i] = (unsigned char) (draw(251) + 1); }
}

// =====================================================================================================================
// >>data   what arrives is what was sent
// =====================================================================================================================
enum { MAX_BYTES = 300 * 1024, N_JOBS = 40 };

// Uploads to random ranges, in order, so that later ones win; then downloads of random ranges.
static void many_jobs(uint64_t seed) {
    static unsigned char wanted[MAX_BYTES], got[MAX_BYTES], out[N_JOBS][4096];
    unsigned char * sent[N_JOBS];
    gcuda_cuda_ticket tickets[N_JOBS], fetched[N_JOBS];
    size_t from[N_JOBS];
    fresh(1, 64 * MB, seed);
    draw_state = seed + 1;
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    struct gcuda_cuda_uploader * up =
        uploader(0, 2 + (int) draw(7), draw(2) ? 4096 : 4096 + draw(100000), 1 + (int) draw(6));
    struct place p = place_begin();
    struct gcuda_tensor * t = gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_I8, MAX_BYTES);
    REQUIRE(backend != NULL && up != NULL && place_alloc(&p, backend));
    memset(wanted, 0, sizeof wanted);
    CHECK_OK(gcuda_backend_tensor_memset(t, 0, 0, MAX_BYTES));
    for (int i = 0; i < N_JOBS; ++i) {
        const size_t size = draw(4) == 0 ? draw(MAX_BYTES) : draw(3000), at = draw(MAX_BYTES - size + 1);
        sent[i] = (unsigned char *) malloc(size + 1);
        fill(sent[i], size);
        memcpy(wanted + at, sent[i], size);
        CHECK_OK(gcuda_cuda_upload(up, t, sent[i], at, size, &tickets[i]));
        CHECK(i == 0 || tickets[i] >= tickets[i - 1]);
    }
    for (int i = 0; i < N_JOBS; ++i) {
        from[i] = draw(MAX_BYTES - sizeof out[i]);
        CHECK_OK(gcuda_cuda_download(up, t, out[i], from[i], sizeof out[i], &fetched[i]));
    }
    bool done = false, is_last_done = false;
    CHECK_OK(gcuda_cuda_upload_query(up, tickets[N_JOBS - 1], &is_last_done));
    CHECK_OK(gcuda_cuda_upload_query(up, tickets[0], &done));
    CHECK(done || !is_last_done); // they end in order
    CHECK_OK(gcuda_cuda_upload_wait(up, tickets[N_JOBS / 2]));
    CHECK_OK(gcuda_cuda_upload_query(up, tickets[N_JOBS / 2], &done));
    CHECK(done);
    CHECK_OK(gcuda_cuda_upload_wait(up, tickets[N_JOBS - 1]));
    CHECK_OK(gcuda_backend_tensor_get(t, got, 0, MAX_BYTES));
    CHECK_MSG(memcmp(got, wanted, MAX_BYTES) == 0, "seed %d", (int) seed);
    CHECK_OK(gcuda_cuda_upload_wait(up, 0));
    for (int i = 0; i < N_JOBS; ++i) {
        CHECK_MSG(memcmp(out[i], wanted + from[i], sizeof out[i]) == 0, "seed %d, download %d", (int) seed, i);
        free(sent[i]);
    }
    gcuda_cuda_uploader_free(up);
    place_end(&p);
    gcuda_backend_free(backend);
    CHECK_MSG(sim_leaks() == 0 && sim_violations() == 0, "seed %d", (int) seed);
}

TEST(what_arrives_is_what_was_sent) {
    for (uint64_t seed = 0; seed < (test_full() ? 500u : 40u); ++seed) { many_jobs(seed); }
    clean();
}

TEST(a_mapped_file_at_any_offset) {
    enum { BYTES = 1000000 };
    static unsigned char text[BYTES], got[BYTES];
    FILE * f = tmpfile();
    REQUIRE(f != NULL);
    fill(text, BYTES);
    CHECK(fwrite(text, 1, BYTES, f) == BYTES && fflush(f) == 0);
    unsigned char * map = (unsigned char *) mmap(NULL, BYTES, PROT_READ, MAP_PRIVATE, fileno(f), 0);
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    struct gcuda_cuda_uploader * up = uploader(0, 2, 64 * 1024, 3);
    struct place p = place_begin();
    struct gcuda_tensor * t = gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_I8, BYTES - 77);
    REQUIRE(map != MAP_FAILED && backend != NULL && up != NULL && place_alloc(&p, backend));
    CHECK_OK(gcuda_cuda_upload(up, t, map + 77, 0, BYTES - 77, NULL));
    CHECK_OK(gcuda_cuda_upload_wait(up, 0));
    CHECK_OK(gcuda_backend_tensor_get(t, got, 0, BYTES - 77));
    CHECK(memcmp(got, text + 77, BYTES - 77) == 0);
    gcuda_cuda_uploader_free(up);
    place_end(&p);
    gcuda_backend_free(backend);
    munmap(map, BYTES);
    fclose(f);
    clean();
}

// A large slot has pieces of more than a mebibyte; a job larger than all slots goes round.
TEST(large_pieces_and_a_job_larger_than_all_slots) {
    const size_t bytes = 21 * MB + 5, slots[2] = { MB, 40 * MB };
    unsigned char *text = (unsigned char *) malloc(bytes), *got = (unsigned char *) malloc(bytes);
    fill(text, bytes);
    for (int i = 0; i < 2; ++i) {
        gcuda_backend_t backend = gcuda_backend_cuda_init(0);
        struct gcuda_cuda_uploader * up = uploader(0, 2, slots[i], 2);
        struct place p = place_begin();
        struct gcuda_tensor * t = gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_I8, (int64_t) bytes);
        REQUIRE(backend != NULL && up != NULL && place_alloc(&p, backend));
        CHECK_OK(gcuda_cuda_upload(up, t, text, 0, bytes, NULL));
        CHECK_OK(gcuda_cuda_download(up, t, got, 0, bytes, NULL));
        CHECK_OK(gcuda_cuda_upload_wait(up, 0));
        CHECK(memcmp(got, text, bytes) == 0);
        gcuda_cuda_uploader_free(up);
        place_end(&p);
        gcuda_backend_free(backend);
    }
    free(text);
    free(got);
    clean();
}

// =====================================================================================================================
// >>order   with backends, by events
// =====================================================================================================================
enum { N = 5000, N_ROUNDS = 6 };

// x is uploaded again and again; y = 2 x is computed after each upload and fetched before the next round's product.
static void ordered_rounds(uint64_t seed) {
    static float in[N_ROUNDS][N], out[N_ROUNDS][N];
    fresh(2, 64 * MB, seed);
    const int device = (int) (seed % 2);
    gcuda_backend_t backend = gcuda_backend_cuda_init(device);
    struct gcuda_cuda_uploader *up = uploader(device, 2, 4096 * (1 + seed % 3), 1 + (int) (seed % 4)),
                               *down = uploader(device, 3, 8192, 1);
    struct place p = place_begin();
    struct gcuda_tensor * x = gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_F32, N);
    struct gcuda_tensor * y = gcuda_scale(p.ctx, x, 2.0f);
    struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
    CHECK_OK(gcuda_build_forward_expand(graph, y));
    REQUIRE(backend != NULL && up != NULL && down != NULL && place_alloc(&p, backend));
    for (int r = 0; r < N_ROUNDS; ++r) {
        gcuda_cuda_ticket sent = 0, fetched = 0;
        for (int i = 0; i < N; ++i) { in[r][i] = (float) (r * N + i); }
        CHECK_OK(gcuda_cuda_upload_after(up, backend)); // the round before reads x
        CHECK_OK(gcuda_cuda_upload(up, x, in[r], 0, sizeof in[r], &sent));
        CHECK_OK(gcuda_cuda_upload_event_wait(up, r % 2 ? sent : 0, backend));
        CHECK_OK(gcuda_backend_graph_compute_async(backend, graph));
        CHECK_OK(gcuda_cuda_upload_after(down, backend));
        CHECK_OK(gcuda_cuda_download(down, y, out[r], 0, sizeof out[r], &fetched));
        CHECK_OK(gcuda_cuda_upload_event_wait(down, fetched, backend)); // the next round writes y
    }
    CHECK_OK(gcuda_cuda_upload_wait(down, 0));
    for (int r = 0; r < N_ROUNDS; ++r) {
        bool same = true;
        for (int i = 0; i < N; ++i) { same = same && out[r][i] == 2.0f * in[r][i]; }
        CHECK_MSG(same, "seed %d, round %d", (int) seed, r);
    }
    gcuda_cuda_uploader_free(down);
    gcuda_cuda_uploader_free(up);
    CHECK_OK(gcuda_backend_synchronize(backend));
    place_end(&p);
    gcuda_backend_free(backend);
    int current = -1;
    CHECK(cudaGetDevice(&current) == cudaSuccess && current == 0);
    CHECK_MSG(sim_leaks() == 0 && sim_violations() == 0, "seed %d", (int) seed);
}

TEST(computing_is_ordered_after_uploads_and_before_downloads) {
    for (uint64_t seed = 0; seed < (test_full() ? 400u : 40u); ++seed) { ordered_rounds(seed); }
    clean();
}

// Each uploader and backend on a separate thread.
struct pair {
    int device;
    uint64_t seed;
    bool ok;
};
static void * upload_in_thread(void * arg) {
    struct pair * a = (struct pair *) arg;
    float *in = (float *) malloc(N * sizeof(float)), *out = (float *) malloc(N * sizeof(float));
    struct gcuda_cuda_uploader * up = uploader(a->device, 2, 4096, 2);
    gcuda_backend_t backend = gcuda_backend_cuda_init(a->device);
    struct place p = place_begin();
    struct gcuda_tensor * x = gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_F32, N);
    a->ok = up != NULL && backend != NULL && place_alloc(&p, backend);
    for (int r = 0; r < 5 && a->ok; ++r) {
        bool done = false;
        for (int i = 0; i < N; ++i) { in[i] = (float) (i + r) + (float) a->seed; }
        a->ok = gcuda_cuda_upload(up, x, in, 0, N * sizeof(float), NULL) == GCUDA_STATUS_SUCCESS;
        while (a->ok && !done) { a->ok = gcuda_cuda_upload_query(up, 0, &done) == GCUDA_STATUS_SUCCESS; }
        a->ok = a->ok && gcuda_backend_tensor_get(x, out, 0, N * sizeof(float)) == GCUDA_STATUS_SUCCESS &&
                memcmp(in, out, N * sizeof(float)) == 0;
    }
    gcuda_cuda_uploader_free(up);
    place_end(&p);
    gcuda_backend_free(backend);
    free(in);
    free(out);
    return NULL;
}

TEST(uploaders_on_several_threads) {
    pthread_t threads[4];
    struct pair pairs[4];
    fresh(2, 64 * MB, 3);
    for (int i = 0; i < 4; ++i) {
        pairs[i].device = i % 2;
        pairs[i].seed = (uint64_t) i;
        REQUIRE(pthread_create(&threads[i], NULL, upload_in_thread, &pairs[i]) == 0);
    }
    for (int i = 0; i < 4; ++i) {
        pthread_join(threads[i], NULL);
        CHECK(pairs[i].ok);
    }
    clean();
}

// =====================================================================================================================
// >>limits   refusals, no threads, freeing in the middle
// =====================================================================================================================
TEST(what_cannot_be_is_refused) {
    bool done = true;
    gcuda_cuda_ticket ticket = 7;
    fresh(2, 64 * MB, 1);
    CHECK(uploader(2, 0, 0, 0) == NULL && uploader(-1, 0, 0, 0) == NULL);
    CHECK_HAS(gcuda_last_error(), "there are 2");
    CHECK(uploader(0, 1, 0, 0) == NULL && uploader(0, 9, 0, 0) == NULL && uploader(0, 0, 1000, 0) == NULL &&
          uploader(0, 0, ((size_t) 1 << 30) + 1, 0) == NULL && uploader(0, 0, 0, -1) == NULL &&
          uploader(0, 0, 0, 65) == NULL);
    CHECK_HAS(gcuda_last_error(), "65 threads");
    gcuda_cuda_uploader_free(NULL);
    struct gcuda_cuda_uploader * up = gcuda_cuda_uploader_new(NULL);
    CHECK(gcuda_cuda_upload_query(up, 0, NULL) == GCUDA_STATUS_INVALID_ARGUMENT);
    gcuda_backend_t backend = gcuda_backend_cuda_init(1), cpu = gcuda_backend_cpu_init();
    struct place p = place_begin(), q = place_begin();
    struct gcuda_tensor *x = gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_F32, 4),
                        *y = gcuda_new_tensor_1d(q.ctx, GCUDA_TYPE_F32, 4);
    float data[4] = { 1, 2, 3, 4 };
    REQUIRE(up != NULL && backend != NULL && place_alloc(&p, backend) && place_alloc(&q, cpu));
    CHECK(gcuda_cuda_upload(up, x, data, 0, 16, &ticket) == GCUDA_STATUS_INVALID_ARGUMENT && ticket == 0);
    CHECK_HAS(gcuda_last_error(), "CUDA1");
    CHECK(gcuda_cuda_upload(up, y, data, 0, 16, NULL) == GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_HAS(gcuda_last_error(), "CPU");
    CHECK(gcuda_cuda_upload(up, x, data, 8, 16, NULL) == GCUDA_STATUS_INVALID_ARGUMENT &&
          gcuda_cuda_upload(up, x, NULL, 0, 16, NULL) == GCUDA_STATUS_INVALID_ARGUMENT &&
          gcuda_cuda_upload(up, NULL, data, 0, 16, NULL) == GCUDA_STATUS_INVALID_ARGUMENT &&
          gcuda_cuda_upload(NULL, x, data, 0, 16, NULL) == GCUDA_STATUS_INVALID_ARGUMENT &&
          gcuda_cuda_upload(up, x, data, SIZE_MAX, 16, NULL) == GCUDA_STATUS_INVALID_ARGUMENT &&
          gcuda_cuda_download(up, y, data, 0, 16, NULL) == GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_OK(gcuda_cuda_upload(up, x, NULL, 0, 0, &ticket)); // nothing
    CHECK_OK(gcuda_cuda_upload_query(up, ticket, &done));
    CHECK(done);
    CHECK(gcuda_cuda_upload_query(up, 1, &done) == GCUDA_STATUS_INVALID_ARGUMENT && !done &&
          gcuda_cuda_upload_wait(up, 1) == GCUDA_STATUS_INVALID_ARGUMENT &&
          gcuda_cuda_upload_wait(NULL, 0) == GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_HAS(gcuda_last_error(), "NULL");
    CHECK(gcuda_cuda_upload_event_wait(up, 1, backend) == GCUDA_STATUS_INVALID_ARGUMENT &&
          gcuda_cuda_upload_event_wait(up, 0, cpu) == GCUDA_STATUS_INVALID_ARGUMENT &&
          gcuda_cuda_upload_after(up, cpu) == GCUDA_STATUS_INVALID_ARGUMENT &&
          gcuda_cuda_upload_after(NULL, backend) == GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_OK(gcuda_cuda_upload_event_wait(up, 0, backend)); // of another device, nothing given
    gcuda_cuda_uploader_free(up);
    place_end(&p);
    place_end(&q);
    gcuda_backend_free(cpu);
    gcuda_backend_free(backend);
    clean();
}

TEST(any_number_of_threads_down_to_none) {
    for (int n = 0; n <= 3; ++n) {
        static float in[N], out[N];
        for (int i = 0; i < N; ++i) { in[i] = (float) (i + n); }
        gcuda_backend_t backend = gcuda_backend_cuda_init(0);
        let_threads_start(n);
        struct gcuda_cuda_uploader * up = uploader(0, 2, 4096, 3);
        let_threads_start(1000000);
        struct place p = place_begin();
        struct gcuda_tensor * x = gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_F32, N);
        gcuda_cuda_ticket ticket = 0;
        bool done = false;
        REQUIRE(up != NULL && backend != NULL && place_alloc(&p, backend));
        CHECK_OK(gcuda_cuda_upload(up, x, in, 0, sizeof in, &ticket));
        CHECK_OK(gcuda_cuda_upload_event_wait(up, ticket, backend));
        CHECK_OK(gcuda_cuda_download(up, x, out, 0, sizeof out, &ticket));
        if (n == 0) { CHECK(gcuda_cuda_upload_query(up, ticket, &done) == GCUDA_STATUS_SUCCESS && done); }
        CHECK_OK(gcuda_cuda_upload_wait(up, ticket));
        CHECK(memcmp(in, out, sizeof in) == 0);
        gcuda_cuda_uploader_free(up);
        place_end(&p);
        gcuda_backend_free(backend);
    }
    clean();
}

TEST(freeing_finishes_what_was_given) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
        static float in[N], out[N];
        fresh(1, 64 * MB, seed);
        gcuda_backend_t backend = gcuda_backend_cuda_init(0);
        struct gcuda_cuda_uploader * up = uploader(0, 2, 4096, 1 + (int) (seed % 4));
        struct place p = place_begin();
        struct gcuda_tensor * x = gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_F32, N);
        REQUIRE(up != NULL && backend != NULL && place_alloc(&p, backend));
        for (int i = 0; i < N; ++i) { in[i] = (float) i; }
        for (int r = 0; r < 5; ++r) { CHECK_OK(gcuda_cuda_upload(up, x, in, 0, sizeof in, NULL)); }
        gcuda_cuda_uploader_free(up);
        CHECK_OK(gcuda_backend_tensor_get(x, out, 0, sizeof out));
        CHECK(memcmp(in, out, sizeof in) == 0);
        place_end(&p);
        gcuda_backend_free(backend);
        CHECK(sim_leaks() == 0);
    }
    clean();
}

TEST(out_of_host_memory_is_a_status) {
    const struct gcuda_allocator allocator = { some_alloc, some_free, NULL };
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    struct place p = place_begin();
    struct gcuda_tensor * x = gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_F32, 4);
    const float data[4] = { 1, 2, 3, 4 };
    REQUIRE(backend != NULL && place_alloc(&p, backend));
    gcuda_set_allocator(&allocator);
    allocations_left = 0;
    CHECK(gcuda_cuda_uploader_new(NULL) == NULL);
    CHECK_HAS(gcuda_last_error(), "out of memory");
    allocations_left = 1;
    struct gcuda_cuda_uploader * up = uploader(0, 2, 4096, 1);
    CHECK(up != NULL && gcuda_cuda_upload(up, x, data, 0, 16, NULL) == GCUDA_STATUS_ALLOC_FAILED);
    allocations_left = 1;
    for (int i = 0; i < 10; ++i) { // one description, used again
        CHECK_OK(gcuda_cuda_upload(up, x, data, 0, 16, NULL));
        CHECK_OK(gcuda_cuda_upload_wait(up, 0));
    }
    gcuda_cuda_uploader_free(up);
    gcuda_set_allocator(NULL);
    place_end(&p);
    gcuda_backend_free(backend);
    clean();
}

// =====================================================================================================================
// >>faults   the k-th call of a function fails
// =====================================================================================================================
enum { FAULT_JOBS = 6, FAULT_BYTES = 6000 };

struct outcome {
    gcuda_status made, given[FAULT_JOBS], ended[FAULT_JOBS], fetched, all;
    bool right[FAULT_JOBS], is_fetch_right;
};

static void transfer(
    struct gcuda_cuda_uploader * up, gcuda_backend_t backend, struct gcuda_tensor ** t, struct outcome * o) {
    static unsigned char in[FAULT_JOBS][FAULT_BYTES], out[FAULT_BYTES];
    gcuda_cuda_ticket tickets[FAULT_JOBS] = { 0 }, last = 0;
    bool done = false;
    memset(o, 0, sizeof *o);
    memset(out, 0, sizeof out);
    for (int i = 0; i < FAULT_JOBS; ++i) {
        fill(in[i], FAULT_BYTES);
        o->given[i] = gcuda_cuda_upload(up, t[i], in[i], 0, FAULT_BYTES, &tickets[i]);
    }
    o->fetched = gcuda_cuda_download(up, t[0], out, 0, FAULT_BYTES, &last);
    if (o->fetched == GCUDA_STATUS_SUCCESS) { o->fetched = gcuda_cuda_upload_wait(up, last); }
    o->is_fetch_right = memcmp(out, in[0], FAULT_BYTES) == 0;
    for (int i = 0; i < FAULT_JOBS; ++i) {
        o->ended[i] = o->given[i] == GCUDA_STATUS_SUCCESS ? gcuda_cuda_upload_wait(up, tickets[i]) : o->given[i];
        CHECK(gcuda_cuda_upload_query(up, tickets[i], &done) == o->ended[i] || tickets[i] == 0);
        CHECK(done || tickets[i] == 0);
        for (int attempt = 0; attempt < 2; ++attempt) { // the fault may be this one's
            o->right[i] = o->right[i] || (gcuda_backend_tensor_get(t[i], out, 0, FAULT_BYTES) == GCUDA_STATUS_SUCCESS &&
                                             memcmp(out, in[i], FAULT_BYTES) == 0);
        }
    }
    gcuda_cuda_ticket before = tickets[FAULT_JOBS - 1];
    if (gcuda_cuda_upload_event_wait(up, before, backend) != GCUDA_STATUS_SUCCESS) { gcuda_clear_last_error(); }
    o->all = gcuda_cuda_upload_wait(up, 0);
}

static bool all_right(const struct outcome * o) {
    bool right = o->is_fetch_right && o->fetched == GCUDA_STATUS_SUCCESS;
    for (int i = 0; i < FAULT_JOBS; ++i) { right = right && o->right[i]; }
    return right;
}

static void upload_fault(const char * api, int k, cudaError_t error, bool is_sticky, int n_threads) {
    struct outcome o;
    struct gcuda_tensor * t[FAULT_JOBS];
    fresh(1, 64 * MB, 1);
    const long alive = sim_leaks();
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    struct place p = place_begin();
    for (int i = 0; i < FAULT_JOBS; ++i) { t[i] = gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_I8, FAULT_BYTES); }
    REQUIRE(backend != NULL && place_alloc(&p, backend));
    sim_fail(api, k, error);
    let_threads_start(n_threads);
    struct gcuda_cuda_uploader * up = uploader(0, 2, 4096, GCUDAI_MAX(n_threads, 1));
    let_threads_start(1000000);
    if (up == NULL) {
        CHECK_MSG(sim_failed() > 0 && gcuda_last_error()[0] != '\0', "%s %d: no uploader, no message", api, k);
    } else {
        transfer(up, backend, t, &o);
        bool has_failed = o.fetched != GCUDA_STATUS_SUCCESS;
        for (int i = 0; i < FAULT_JOBS; ++i) {
            has_failed = has_failed || o.ended[i] != GCUDA_STATUS_SUCCESS;
            if (!is_sticky) {
                CHECK_MSG(o.right[i] || o.ended[i] != GCUDA_STATUS_SUCCESS,
                    "%s %d with error %d: job %d is wrong without a status", api, k, (int) error, i);
            }
        }
        // failures of tickets are what ticket 0 reports; a call of the test itself may have had the fault instead
        CHECK_MSG(has_failed || o.all == GCUDA_STATUS_SUCCESS, "%s %d: ticket 0 says %d", api, k, (int) o.all);
        sim_fail(api, 0, cudaSuccess);
        if (!is_sticky) {
            while (gcuda_cuda_upload_wait(up, 0) != GCUDA_STATUS_SUCCESS) {} // the others that failed
            transfer(up, backend, t, &o);
            CHECK_MSG(all_right(&o) && o.all == GCUDA_STATUS_SUCCESS, "%s %d with error %d: not usable again: %s", api,
                k, (int) error, gcuda_last_error());
        } else if (sim_failed() > 0) {
            const unsigned char byte = 1;
            gcuda_status st = gcuda_cuda_upload(up, t[0], &byte, 0, 1, NULL);
            if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_cuda_upload_wait(up, 0); }
            CHECK_MSG(st != GCUDA_STATUS_SUCCESS, "%s %d: uploads to a lost device", api, k);
        }
    }
    gcuda_cuda_uploader_free(up);
    place_end(&p);
    gcuda_backend_free(backend);
    CHECK_MSG(
        sim_leaks() == alive && sim_violations() == 0, "%s %d with error %d: leaks or wrong use", api, k, (int) error);
}

TEST(every_cuda_call_of_an_upload_fails_in_turn) {
    static const char * const apis[] = { "cudaGetDevice", "cudaSetDevice", "cudaStreamCreateWithPriority",
        "cudaHostAlloc", "cudaEventCreateWithFlags", "cudaMemcpyAsync", "cudaEventRecord", "cudaEventSynchronize",
        "cudaStreamSynchronize", "cudaStreamWaitEvent", "cudaEventDestroy", "cudaFreeHost", "cudaStreamDestroy" };
    for (size_t i = 0; i < sizeof apis / sizeof apis[0]; ++i) {
        for (int n_threads = 0; n_threads <= 2; ++n_threads) {
            const int n = test_full() ? 40 : 12;
            for (int k = 1; k <= n; ++k) {
                upload_fault(apis[i], k, cudaErrorInvalidValue, false, n_threads);
                upload_fault(apis[i], k, cudaErrorMemoryAllocation, false, n_threads);
                upload_fault(apis[i], k, cudaErrorIllegalAddress, true, n_threads);
            }
        }
    }
    clean();
}

// The failure is the ticket's, with the tensor's name, and stays with it; what comes later arrives.
TEST(a_failed_copy_is_reported_by_its_ticket) {
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    struct gcuda_cuda_uploader * up = uploader(0, 2, 4096, 2);
    struct place p = place_begin();
    struct gcuda_tensor *x = gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_F32, N),
                        *y = gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_F32, 4);
    static float in[N], out[4];
    gcuda_cuda_ticket first = 0, second = 0;
    bool done = false;
    gcuda_set_name(x, "weights of layer 7");
    REQUIRE(up != NULL && backend != NULL && place_alloc(&p, backend));
    sim_fail("cudaMemcpyAsync", 3, cudaErrorInvalidValue);
    CHECK_OK(gcuda_cuda_upload(up, x, in, 0, sizeof in, &first));
    CHECK_OK(gcuda_cuda_upload(up, y, in, 0, sizeof out, &second));
    CHECK_OK(gcuda_cuda_upload_wait(up, second));
    for (int i = 0; i < 3; ++i) {
        CHECK(gcuda_cuda_upload_wait(up, first) == GCUDA_STATUS_FAILED);
        CHECK_HAS(gcuda_last_error(), "weights of layer 7");
        CHECK_HAS(gcuda_last_error(), "cudaMemcpyAsync");
        CHECK(gcuda_cuda_upload_query(up, first, &done) == GCUDA_STATUS_FAILED && done);
        CHECK(gcuda_cuda_upload_event_wait(up, first, backend) == GCUDA_STATUS_FAILED);
    }
    CHECK(gcuda_cuda_upload_wait(up, 0) == GCUDA_STATUS_FAILED); // once
    CHECK_OK(gcuda_cuda_upload_wait(up, 0));
    CHECK_OK(gcuda_backend_tensor_get(y, out, 0, sizeof out));
    CHECK(memcmp(in, out, sizeof out) == 0);
    gcuda_cuda_uploader_free(up);
    place_end(&p);
    gcuda_backend_free(backend);
    clean();
}
