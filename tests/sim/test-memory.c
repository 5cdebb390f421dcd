// Device and page-locked memory on the simulated device: scratch pools of both kinds, budgets, statistics, the caller's
// allocators, managed memory, registered memory, peers. Each call fails once. Contains the implementation, to test
// pools alone.
#define GCUDA_IMPLEMENTATION
#include "sim-test.h"

#include <pthread.h>

static uint64_t draw_state = 1;
static size_t draw(size_t n) { // below n
    draw_state = draw_state * 6364136223846793005u + 1442695040888963407u;
    return (size_t) (draw_state >> 33) % n;
}

static struct gcuda_cuda_params params_of(enum gcuda_cuda_pool kind, size_t reserve, size_t budget) {
    struct gcuda_cuda_params p;
    memset(&p, 0, sizeof p);
    p.pool = kind;
    p.pool_reserve = reserve;
    p.memory_budget = budget;
    return p;
}

static struct gcudai_cuda * backend_of(enum gcuda_cuda_pool kind, size_t reserve, size_t budget) {
    const struct gcuda_cuda_params p = params_of(kind, reserve, budget);
    return (struct gcudai_cuda *) gcuda_backend_cuda_init_params(&p);
}

static gcuda_status take(struct gcudai_cuda * cu, size_t size, void ** ptr) {
    return gcudai_cuda_pool_acquire(&cu->pool, cu->stream, size, "test", ptr);
}
static void give(struct gcudai_cuda * cu, void * ptr) { gcudai_cuda_pool_release(&cu->pool, ptr); }

// Memory in use, by the device itself.
static size_t used_of(int device) {
    size_t n_free = 0, n_total = 0;
    CHECK_OK(gcuda_backend_cuda_get_device_memory(device, &n_free, &n_total));
    return n_total - n_free;
}

static struct gcuda_cuda_stats stats_of(struct gcudai_cuda * cu) {
    struct gcuda_cuda_stats s;
    memset(&s, 0, sizeof s);
    CHECK_OK(gcuda_backend_cuda_get_stats(&cu->backend, &s));
    return s;
}

static void check_sums(const struct gcuda_cuda_stats * s) {
    size_t in_use = 0, reserved = 0;
    for (int i = 0; i < GCUDA_CUDA_PURPOSE_COUNT; ++i) {
        in_use += s->by[i].in_use;
        reserved += s->by[i].reserved;
        CHECK(s->by[i].in_use <= s->by[i].reserved && s->by[i].reserved <= s->by[i].peak && s->by[i].peak <= s->peak);
    }
    CHECK(in_use == s->in_use && reserved == s->reserved && s->reserved <= s->peak);
    CHECK(s->budget == 0 || s->peak <= s->budget);
}

// =====================================================================================================================
// >>pools
// =====================================================================================================================
enum { MAX_LIVE = 40 };
struct live {
    char * ptr;
    size_t size;
};

// Both ends of a block can be written and belong to it alone.
static void check_block(struct gcudai_cuda * cu, const struct live * live, int n) {
    const struct live * b = &live[n];
    CHECK((uintptr_t) b->ptr % 256 == 0);
    for (int i = 0; i < n; ++i) { CHECK(b->ptr + b->size <= live[i].ptr || live[i].ptr + live[i].size <= b->ptr); }
    CHECK(cudaMemsetAsync(b->ptr, 1, b->size, cu->stream) == cudaSuccess);
}

static size_t draw_size(void) { return draw(4) == 0 ? 1 + draw(3 * MB) : 1 + draw(20000); }

static void pool_at_random(uint64_t seed, enum gcuda_cuda_pool kind, size_t reserve, size_t budget) {
    struct live live[MAX_LIVE];
    int n = 0;
    fresh(1, 48 * MB, seed);
    draw_state = seed + 1;
    struct gcudai_cuda * cu = backend_of(kind, reserve, budget);
    REQUIRE(cu != NULL);
    for (int step = 0; step < 150; ++step) {
        if (n < MAX_LIVE && draw(5) < 3) {
            void * ptr = NULL;
            live[n].size = draw_size();
            const gcuda_status st = take(cu, live[n].size, &ptr);
            CHECK((st == GCUDA_STATUS_SUCCESS) == (ptr != NULL));
            CHECK(st == GCUDA_STATUS_SUCCESS || st == GCUDA_STATUS_ALLOC_FAILED);
            live[n].ptr = (char *) ptr;
            if (st == GCUDA_STATUS_SUCCESS) { check_block(cu, live, n++); }
        } else if (n > 0) {
            const int i = draw(2) ? n - 1 : (int) draw((size_t) n); // the last, or any
            give(cu, live[i].ptr);
            live[i] = live[--n];
        }
        if (step % 50 == 49) { CHECK_OK(gcuda_backend_cuda_trim(&cu->backend)); }
        const struct gcuda_cuda_stats s = stats_of(cu);
        size_t wanted = 0;
        for (int i = 0; i < n; ++i) { wanted += live[i].size; }
        check_sums(&s);
        CHECK(s.reserved == used_of(0) && s.by[GCUDA_CUDA_PURPOSE_SCRATCH].in_use >= wanted);
    }
    while (n > 0) { give(cu, live[--n].ptr); }
    CHECK_EQ_I(stats_of(cu).by[GCUDA_CUDA_PURPOSE_SCRATCH].in_use, 0);
    CHECK_OK(gcuda_backend_cuda_trim(&cu->backend));
    CHECK_EQ_I(stats_of(cu).by[GCUDA_CUDA_PURPOSE_SCRATCH].reserved, 0);
    gcuda_backend_free(&cu->backend);
    CHECK_EQ_I(used_of(0), 0);
}

TEST(blocks_never_overlap_and_budgets_hold) {
    for (uint64_t seed = 0; seed < (test_full() ? 200u : 6u); ++seed) {
        pool_at_random(seed, GCUDA_CUDA_POOL_VMM, 0, 0);
        pool_at_random(seed, GCUDA_CUDA_POOL_VMM, 4 * MB, 0); // chained
        pool_at_random(seed, GCUDA_CUDA_POOL_AUTO, 2 * MB, 11 * MB + 5);
        pool_at_random(seed, GCUDA_CUDA_POOL_BEST_FIT, 0, 0);
        pool_at_random(seed, GCUDA_CUDA_POOL_BEST_FIT, 0, 7 * MB + 3);
    }
    clean();
}

TEST(out_of_order_the_lowest_hole_is_filled_first) {
    void *a, *b, *c, *d, *e;
    fresh(1, 64 * MB, 1);
    struct gcudai_cuda * cu = backend_of(GCUDA_CUDA_POOL_VMM, 0, 0);
    REQUIRE(cu != NULL);
    CHECK_OK(take(cu, 1000, &a));
    CHECK_OK(take(cu, 5000, &b));
    CHECK_OK(take(cu, 1000, &c));
    CHECK((char *) b == (char *) a + 1024 && (char *) c == (char *) b + 5120);
    give(cu, b);
    CHECK_OK(take(cu, 2000, &d));
    CHECK(d == b); // the front of the hole
    CHECK_OK(take(cu, 4000, &e));
    CHECK((char *) e == (char *) c + 1024); // what is left of it is too small
    give(cu, a);
    give(cu, d); // all before c is one hole now
    CHECK_OK(take(cu, 6000, &b));
    CHECK(b == a);
    give(cu, e);
    give(cu, c);
    CHECK_OK(take(cu, 100000, &d)); // the end has receded over c and e
    CHECK((char *) d == (char *) b + 6144);
    give(cu, d);
    give(cu, d); // is not out: named in the log, and nothing happens
    give(cu, b);
    CHECK_EQ_I(stats_of(cu).by[GCUDA_CUDA_PURPOSE_SCRATCH].in_use, 0);
    gcuda_backend_free(&cu->backend);
    clean();
}

TEST(a_growing_request_takes_up_what_it_had) {
    for (int k = 0; k < 2; ++k) {
        fresh(1, 64 * MB, 1);
        struct gcudai_cuda * cu = backend_of(k ? GCUDA_CUDA_POOL_BEST_FIT : GCUDA_CUDA_POOL_VMM, 0, 0);
        REQUIRE(cu != NULL);
        void *p = NULL, *first = NULL;
        for (size_t size = MB; size <= 16 * MB; size += MB / 2) {
            CHECK_OK(take(cu, size, &p));
            first = first ? first : p;
            CHECK(k == 1 || p == first);
            const size_t reserved = stats_of(cu).by[GCUDA_CUDA_PURPOSE_SCRATCH].reserved;
            CHECK(reserved <= (k ? 17 * size / 8 : size + 2 * MB));
            give(cu, p);
        }
        gcuda_backend_free(&cu->backend);
    }
    clean();
}

TEST(addresses_stay_and_come_again) {
    enum { N_BLOCKS = 5 };
    static const size_t sizes[N_BLOCKS] = { 3 * MB, 3 * MB, 10 * MB, 1000, 2 * MB };
    void *first[N_BLOCKS], *again[N_BLOCKS];
    fresh(1, 64 * MB, 1);
    struct gcudai_cuda * cu = backend_of(GCUDA_CUDA_POOL_VMM, 4 * MB, 0);
    REQUIRE(cu != NULL);
    for (int i = 0; i < N_BLOCKS; ++i) { CHECK_OK(take(cu, sizes[i], &first[i])); }
    CHECK_EQ_I(sim_counts("cuMemAddressReserve"), 4); // each 4 MiB, but one 10 MiB; the 1000 bytes fit in the first
    CHECK_EQ_I(sim_counts("cudaMalloc"), 1);          // flags
    for (int i = N_BLOCKS; i-- > 0;) { give(cu, first[i]); }
    CHECK_OK(gcuda_backend_cuda_trim(&cu->backend));
    CHECK_EQ_I(stats_of(cu).by[GCUDA_CUDA_PURPOSE_SCRATCH].reserved, 0);
    for (int i = 0; i < N_BLOCKS; ++i) {
        CHECK_OK(take(cu, sizes[i], &again[i]));
        CHECK(again[i] == first[i]);
    }
    CHECK_EQ_I(sim_counts("cuMemAddressReserve"), 4);
    CHECK_OK(gcuda_backend_cuda_trim(&cu->backend)); // all is in use, but the rest of mapped steps stays too
    for (int i = 0; i < N_BLOCKS; ++i) { CHECK(cudaMemsetAsync(again[i], 0, sizes[i], cu->stream) == cudaSuccess); }
    gcuda_backend_free(&cu->backend); // with blocks still out
    clean();
}

TEST(a_full_device_says_what_was_wanted_and_what_is_free) {
    for (int k = 0; k < 2; ++k) {
        void *p = NULL, *q = NULL;
        fresh(1, 16 * MB, 1);
        struct gcudai_cuda * cu = backend_of(k ? GCUDA_CUDA_POOL_BEST_FIT : GCUDA_CUDA_POOL_VMM, 0, 0);
        REQUIRE(cu != NULL);
        CHECK_OK(take(cu, 9 * MB, &p));
        CHECK(take(cu, 8 * MB, &q) == GCUDA_STATUS_ALLOC_FAILED && q == NULL);
        CHECK_HAS(gcuda_last_error(), "test");
        CHECK_HAS(gcuda_last_error(), "8388608 bytes wanted");
        CHECK_HAS(gcuda_last_error(), "free");
        CHECK_HAS(gcuda_last_error(), "CUDA0");
        CHECK(take(cu, SIZE_MAX, &q) == GCUDA_STATUS_ALLOC_FAILED && q == NULL);
        CHECK(take(cu, SIZE_MAX / 2, &q) == GCUDA_STATUS_ALLOC_FAILED && q == NULL);
        CHECK(gcuda_backend_alloc_buffer(&cu->backend, 8 * MB) == NULL);
        CHECK_HAS(gcuda_last_error(), "8388608 bytes wanted");
        CHECK(stats_of(cu).peak < 12 * MB); // refused memory was never allocated
        give(cu, p);
        CHECK_OK(take(cu, 12 * MB, &p)); // what was cached makes room
        give(cu, p);
        CHECK_OK(take(cu, 0, &p));
        CHECK(p != NULL);
        gcuda_backend_free(&cu->backend);
    }
    clean();
}

TEST(best_fit_takes_over_where_the_driver_refuses) {
    static const char * const apis[] = { "cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemRelease",
        "cuMemSetAccess" };
    for (size_t i = 0; i < sizeof apis / sizeof apis[0]; ++i) {
        void *p = NULL, *q = NULL;
        fresh(1, 64 * MB, 1);
        struct gcudai_cuda * cu = backend_of(GCUDA_CUDA_POOL_VMM, 0, 0);
        REQUIRE(cu != NULL);
        sim_fail(apis[i], 1, cudaErrorInvalidValue);
        CHECK_OK(take(cu, MB, &p));
        CHECK_EQ_I(sim_counts("cudaMalloc"), 2);
        CHECK_EQ_I(cu->pool.n_ranges, 0); // as if nothing had been tried
        CHECK_EQ_I(stats_of(cu).reserved, used_of(0));
        CHECK_OK(take(cu, 2 * MB, &q)); // and it is asked again
        CHECK_EQ_I(sim_counts("cudaMalloc"), 2);
        give(cu, p);
        give(cu, q);
        gcuda_backend_free(&cu->backend);
    }
    clean();
}

TEST(which_pool_a_backend_gets) {
    fresh(1, 64 * MB, 1);
    struct gcudai_cuda * cu = backend_of(GCUDA_CUDA_POOL_AUTO, 0, 0);
    CHECK(cu != NULL && cu->pool.granularity == 2 * MB && cu->pool.reserve == 64 * MB);
    gcuda_backend_free(cu ? &cu->backend : NULL);
    cu = backend_of(GCUDA_CUDA_POOL_BEST_FIT, 0, 0);
    CHECK(cu != NULL && cu->pool.granularity == 0);
    gcuda_backend_free(cu ? &cu->backend : NULL);
    fresh(1, 64 * MB, 1);
    sim_attribute(0, 102, 0); // no virtual memory management
    CHECK(backend_of(GCUDA_CUDA_POOL_VMM, 0, 0) == NULL);
    CHECK_HAS(gcuda_last_error(), "virtual memory");
    cu = backend_of(GCUDA_CUDA_POOL_AUTO, 0, 0);
    CHECK(cu != NULL && cu->pool.granularity == 0);
    gcuda_backend_free(cu ? &cu->backend : NULL);
    for (int i = 1; i <= 30; ++i) { // a driver that lacks one function or the other
        fresh(1, 64 * MB, 1);
        sim_fail("cudaGetDriverEntryPointByVersion", i, cudaErrorSymbolNotFound);
        cu = backend_of(GCUDA_CUDA_POOL_AUTO, 0, 0);
        void * p = NULL;
        CHECK(cu != NULL);
        CHECK_OK(take(cu, 1000, &p));
        gcuda_backend_free(&cu->backend);
    }
    clean();
}

TEST(what_a_graph_holds_is_not_released) {
    for (int k = 0; k < 2; ++k) {
        void * p = NULL;
        fresh(1, 64 * MB, 1);
        struct gcudai_cuda * cu = backend_of(k ? GCUDA_CUDA_POOL_BEST_FIT : GCUDA_CUDA_POOL_VMM, 0, 8 * MB);
        REQUIRE(cu != NULL);
        CHECK_OK(take(cu, 3 * MB, &p));
        give(cu, p);
        const size_t reserved = stats_of(cu).reserved;
        const uint64_t generation = cu->pool.generation;
        const long waits = sim_counts("cudaStreamSynchronize");
        cu->pool.n_holds++;
        CHECK(take(cu, 7 * MB, &p) == GCUDA_STATUS_ALLOC_FAILED); // for which the 3 would have to go
        CHECK_EQ_I(sim_counts("cudaStreamSynchronize"), waits);   // which a capture could not bear
        CHECK_OK(gcuda_backend_cuda_trim(&cu->backend));
        CHECK(stats_of(cu).reserved == reserved && cu->pool.generation == generation);
        cu->pool.n_holds--;
        CHECK_OK(gcuda_backend_cuda_trim(&cu->backend));
        CHECK(stats_of(cu).by[GCUDA_CUDA_PURPOSE_SCRATCH].reserved == 0 && cu->pool.generation > generation);
        gcuda_backend_free(&cu->backend);
    }
    clean();
}

// ---- peers ----

struct cu_location {
    int type, id;
};
static int rights_of(int device, void * ptr) {
    int (*get_access)(unsigned long long * flags, const struct cu_location * at, unsigned long long ptr) = NULL;
    enum cudaDriverEntryPointQueryResult found;
    void * address = NULL;
    const struct cu_location at = { 1, device };
    unsigned long long flags = 99;
    CHECK(
        cudaGetDriverEntryPointByVersion("cuMemGetAccess", &address, 10020, cudaEnableDefault, &found) == cudaSuccess);
    memcpy(&get_access, &address, sizeof address);
    return address != NULL && get_access(&flags, &at, (unsigned long long) (uintptr_t) ptr) == 0 ? (int) flags : -1;
}

TEST(peers_reach_scratch_when_granted) {
    void *a = NULL, *b = NULL, *c = NULL;
    fresh(2, 64 * MB, 1);
    struct gcudai_cuda * cu = backend_of(GCUDA_CUDA_POOL_VMM, 4 * MB, 0);
    REQUIRE(cu != NULL);
    CHECK_OK(take(cu, 3 * MB, &a));
    CHECK_OK(take(cu, 3 * MB, &b)); // of another range
    CHECK(rights_of(0, a) == 3 && rights_of(1, a) == 0 && rights_of(1, b) == 0);
    sim_fail("cuMemSetAccess", 2, cudaErrorInvalidValue);
    CHECK(gcudai_cuda_pool_grant(&cu->pool, 1) == GCUDA_STATUS_FAILED);
    CHECK_HAS(gcuda_last_error(), "cuMemSetAccess");
    CHECK(rights_of(1, a) == 0 && rights_of(1, b) == 0 && rights_of(0, a) == 3); // undone
    CHECK_OK(gcudai_cuda_pool_grant(&cu->pool, 1));
    CHECK_OK(gcudai_cuda_pool_grant(&cu->pool, 1));
    CHECK_OK(take(cu, 3 * MB, &c));
    CHECK(rights_of(1, a) == 3 && rights_of(1, b) == 3 && rights_of(1, c) == 3 && rights_of(0, c) == 3);
    gcuda_backend_free(&cu->backend);
    clean();
}

// =====================================================================================================================
// >>budgets   and statistics
// =====================================================================================================================
TEST(stats_add_up_over_backends_buffers_and_uploads) {
    struct gcuda_cuda_stats s;
    void *p = NULL, *q = NULL;
    fresh(2, 64 * MB, 1);
    struct gcudai_cuda *a = backend_of(GCUDA_CUDA_POOL_VMM, 0, 0), *b = backend_of(GCUDA_CUDA_POOL_BEST_FIT, 0, 0);
    REQUIRE(a != NULL && b != NULL);
    gcuda_backend_buffer_t buffer = gcuda_backend_alloc_buffer(&a->backend, 5000),
                           host = gcuda_backend_buft_alloc_buffer(gcuda_backend_cuda_host_buffer_type(), 7000);
    struct gcuda_cuda_uploader_params slots = { 0, 3, 5 * MB, 1, NULL };
    struct gcuda_cuda_uploader * up = gcuda_cuda_uploader_new(&slots);
    CHECK(buffer != NULL && host != NULL && up != NULL);
    CHECK_OK(take(a, 3 * MB, &p));
    CHECK_OK(take(b, 1 * MB, &q));
    CHECK_OK(gcuda_backend_cuda_get_device_stats(0, &s));
    const struct gcuda_cuda_stats sa = stats_of(a), sb = stats_of(b);
    check_sums(&s);
    check_sums(&sa);
    check_sums(&sb);
    CHECK_EQ_I(s.reserved, used_of(0));
    CHECK_EQ_I(s.reserved, sa.reserved + sb.reserved + 5000);
    CHECK_EQ_I(s.by[GCUDA_CUDA_PURPOSE_BUFFERS].in_use, 5000);
    CHECK_EQ_I(sa.by[GCUDA_CUDA_PURPOSE_SCRATCH].reserved, 4 * MB);
    CHECK_EQ_I(sa.by[GCUDA_CUDA_PURPOSE_SCRATCH].in_use, 3 * MB);
    CHECK(sa.by[GCUDA_CUDA_PURPOSE_FLAGS].in_use > 0 && sa.pinned > 0 && sb.pinned > 0);
    CHECK(s.pinned == sa.pinned + sb.pinned + 7000 + 3 * 5 * MB); // the uploader's slots
    gcuda_cuda_uploader_free(up);
    gcuda_backend_buffer_free(buffer);
    gcuda_backend_buffer_free(host);
    give(a, p);
    CHECK(stats_of(a).by[GCUDA_CUDA_PURPOSE_SCRATCH].in_use == 0);
    gcuda_backend_free(&a->backend);
    gcuda_backend_free(&b->backend);
    CHECK_OK(gcuda_backend_cuda_get_device_stats(0, &s));
    CHECK(s.reserved == 0 && s.in_use == 0 && s.pinned == 0 && s.peak > 5 * MB && s.pinned_peak > 15 * MB);
    CHECK_OK(gcuda_backend_cuda_get_device_stats(1, &s));
    CHECK(s.peak == 0);
    CHECK(gcuda_backend_cuda_get_device_stats(2, &s) == GCUDA_STATUS_INVALID_ARGUMENT &&
          gcuda_backend_cuda_get_device_stats(0, NULL) == GCUDA_STATUS_INVALID_ARGUMENT);
    clean();
}

TEST(a_device_budget_is_for_everything_on_it) {
    void * p = NULL;
    fresh(2, 64 * MB, 1);
    CHECK_OK(gcuda_backend_cuda_set_device_budget(0, 10 * MB));
    CHECK(gcuda_backend_cuda_set_device_budget(2, MB) == GCUDA_STATUS_INVALID_ARGUMENT);
    struct gcudai_cuda * cu = backend_of(GCUDA_CUDA_POOL_AUTO, 0, 0);
    REQUIRE(cu != NULL);
    gcuda_backend_buffer_t buffer = gcuda_backend_alloc_buffer(&cu->backend, 6 * MB);
    CHECK(buffer != NULL);
    CHECK(gcuda_backend_alloc_buffer(&cu->backend, 5 * MB) == NULL);
    CHECK_HAS(gcuda_last_error(), "budget of the device is 10485760");
    CHECK_HAS(gcuda_last_error(), "free");
    CHECK(take(cu, 5 * MB, &p) == GCUDA_STATUS_ALLOC_FAILED);
    CHECK_OK(take(cu, 3 * MB, &p)); // in a block: a step of the other kind would be over it
    gcuda_backend_buffer_t other = gcuda_backend_buft_alloc_buffer(gcuda_backend_cuda_buffer_type(1), 20 * MB);
    CHECK(other != NULL); // of a device without a budget
    gcuda_backend_buffer_free(other);
    gcuda_backend_buffer_free(buffer);
    CHECK(used_of(0) <= 10 * MB);
    CHECK_OK(gcuda_backend_cuda_set_device_budget(0, 1)); // what is held stays
    CHECK(gcuda_backend_alloc_buffer(&cu->backend, 256) == NULL);
    CHECK_OK(gcuda_backend_cuda_set_device_budget(0, 0));
    buffer = gcuda_backend_alloc_buffer(&cu->backend, 30 * MB);
    CHECK(buffer != NULL);
    gcuda_backend_buffer_free(buffer);
    gcuda_backend_free(&cu->backend);
    struct gcuda_cuda_params tiny = params_of(GCUDA_CUDA_POOL_AUTO, 0, 10); // not even flags
    CHECK(gcuda_backend_cuda_init_params(&tiny) == NULL);
    CHECK_HAS(gcuda_last_error(), "budget of the backend is 10");
    clean();
}

TEST(a_budget_spans_the_devices_a_backend_works_on) {
    struct gcudai_cuda * side = NULL;
    void *p = NULL, *q = NULL;
    fresh(2, 64 * MB, 1);
    struct gcudai_cuda * cu = backend_of(GCUDA_CUDA_POOL_AUTO, 0, 10 * MB);
    REQUIRE(cu != NULL);
    CHECK_OK(gcudai_cuda_peer_context(cu, 1, &side)); // as split weights make them
    CHECK_OK(gcudai_cuda_pool_acquire(&side->pool, side->stream, 6 * MB - 300, "test", &p));
    CHECK(take(cu, 5 * MB, &q) == GCUDA_STATUS_ALLOC_FAILED);
    CHECK_HAS(gcuda_last_error(), "budget of the backend");
    CHECK_OK(take(cu, 2 * MB, &q));
    const struct gcuda_cuda_stats s = stats_of(cu);
    check_sums(&s);
    CHECK_EQ_I(s.reserved, used_of(0) + used_of(1));
    CHECK(s.by[GCUDA_CUDA_PURPOSE_SCRATCH].in_use >= 8 * MB - 300 && s.reserved <= 10 * MB);
    gcuda_backend_free(&cu->backend);
    clean();
}

// =====================================================================================================================
// >>allocators
// =====================================================================================================================
struct counting { // an allocator of the caller's on top of CUDA's own
    pthread_mutex_t lock;
    bool is_pinned;
    long n_alloc, n_free, live;
    size_t bytes, peak;
    bool is_empty, is_crooked; // has no memory; has it at odd addresses
};

static void * counting_alloc(void * user, int device, size_t size) {
    struct counting * c = (struct counting *) user;
    void * ptr = NULL;
    int current = -1;
    CHECK(size > 0 && (c->is_pinned || (cudaGetDevice(&current) == cudaSuccess && current == device)));
    const bool is_there = !c->is_empty && (c->is_pinned ? cudaHostAlloc(&ptr, size + 64, cudaHostAllocPortable)
                                                        : cudaMalloc(&ptr, size + 64)) == cudaSuccess;
    pthread_mutex_lock(&c->lock);
    c->n_alloc++;
    if (is_there) {
        c->live++;
        c->bytes += size;
        c->peak = c->bytes > c->peak ? c->bytes : c->peak;
    }
    pthread_mutex_unlock(&c->lock);
    (void) cudaGetLastError();
    return is_there ? (char *) ptr + (c->is_crooked ? 64 : 0) : NULL;
}

static void counting_free(void * user, int device, void * ptr, size_t size) {
    struct counting * c = (struct counting *) user;
    ptr = (char *) ptr - (c->is_crooked ? 64 : 0);
    CHECK(device >= 0 && ptr != NULL);
    CHECK((c->is_pinned ? cudaFreeHost(ptr) : cudaFree(ptr)) == cudaSuccess);
    pthread_mutex_lock(&c->lock);
    c->n_free++;
    c->live--;
    c->bytes -= size;
    pthread_mutex_unlock(&c->lock);
}

static struct counting counting_new(bool is_pinned) {
    struct counting c;
    memset(&c, 0, sizeof c);
    pthread_mutex_init(&c.lock, NULL);
    c.is_pinned = is_pinned;
    return c;
}

static struct gcuda_cuda_memory_params from(struct counting * device, struct counting * pinned) {
    struct gcuda_cuda_memory_params p;
    memset(&p, 0, sizeof p);
    if (device != NULL) { p.device.alloc = counting_alloc, p.device.free = counting_free, p.device.user = device; }
    if (pinned != NULL) { p.pinned.alloc = counting_alloc, p.pinned.free = counting_free, p.pinned.user = pinned; }
    return p;
}

TEST(everything_goes_through_the_callers_allocators) {
    struct counting device = counting_new(false), pinned = counting_new(true);
    struct gcuda_cuda_memory_params mine = from(&device, &pinned);
    void *p = NULL, *q = NULL;
    fresh(2, 256 * MB, 1);
    CHECK_OK(gcuda_backend_cuda_set_memory(&mine));
    struct gcudai_cuda * cu = backend_of(GCUDA_CUDA_POOL_AUTO, 0, 0);
    REQUIRE(cu != NULL);
    CHECK(backend_of(GCUDA_CUDA_POOL_VMM, 0, 0) == NULL); // whose memory cannot come from there
    CHECK_HAS(gcuda_last_error(), "allocator");
    gcuda_backend_buffer_t buffer = gcuda_backend_alloc_buffer(&cu->backend, 5000),
                           second = gcuda_backend_buft_alloc_buffer(gcuda_backend_cuda_buffer_type(1), 5000),
                           host = gcuda_backend_buft_alloc_buffer(gcuda_backend_cuda_host_buffer_type(), 7000);
    struct gcuda_cuda_uploader * up = gcuda_cuda_uploader_new(NULL);
    CHECK(buffer != NULL && second != NULL && host != NULL && up != NULL);
    CHECK(gcuda_backend_buffer_get_type(host) == gcuda_backend_cuda_host_buffer_type());
    CHECK_OK(gcuda_backend_buffer_clear(host, 7));
    CHECK(((char *) gcuda_backend_buffer_get_base(host))[6999] == 7);
    CHECK_OK(take(cu, 3 * MB, &p));
    CHECK_OK(take(cu, 3 * MB, &q));
    CHECK_EQ_I(sim_counts("cudaMalloc"), device.n_alloc);
    CHECK_EQ_I(sim_counts("cudaHostAlloc"), pinned.n_alloc);
    CHECK(device.n_alloc == 5 && pinned.n_alloc >= 3);
    CHECK(sim_counts("cuMemCreate") == 0 && sim_counts("cudaMallocManaged") == 0);
    CHECK_OK(gcuda_backend_cuda_set_memory(NULL)); // what is out goes back to where it is from
    gcuda_cuda_uploader_free(up);
    gcuda_backend_buffer_free(buffer);
    gcuda_backend_buffer_free(second);
    gcuda_backend_buffer_free(host);
    give(cu, p);
    CHECK_OK(gcuda_backend_cuda_trim(&cu->backend));
    gcuda_backend_free(&cu->backend);
    CHECK(device.live == 0 && device.bytes == 0 && pinned.live == 0 && pinned.bytes == 0);
    CHECK(sim_counts("cudaFree") == device.n_free && sim_counts("cudaFreeHost") == pinned.n_free);
    clean();
}

static void * engine_alloc(void * user, int device, size_t size) { return counting_alloc(user, device, size); }
static void engine_free(void * user, int device, void * ptr, size_t size) { counting_free(user, device, ptr, size); }

TEST(the_example_of_the_readme) { // as written there
    struct counting counted = counting_new(false), *engine = &counted;
    fresh(1, 1024 * MB, 1);
    struct gcuda_cuda_params params = { 0 };
    params.memory_budget = (size_t) 512 << 20;
    params.memory.device.alloc = engine_alloc;
    params.memory.device.free = engine_free;
    params.memory.device.user = engine;
    gcuda_backend_t backend = gcuda_backend_cuda_init_params(&params);
    struct gcuda_cuda_stats stats;
    gcuda_status st = gcuda_backend_cuda_get_stats(backend, &stats);
    if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_backend_cuda_trim(backend); }
    CHECK(st == GCUDA_STATUS_SUCCESS && counted.live == 1 && stats.budget == (size_t) 512 << 20);
    gcuda_backend_free(backend);
    CHECK_EQ_I(counted.live, 0);
    clean();
}

// ---- a buffer that is freed while work on it has only been queued ----

struct waiting { // an allocator that asks whether a stream is done when it gets memory back
    struct counting counting;
    cudaStream_t stream;
    int n_busy, n_idle;
};

static void * waiting_alloc(void * user, int device, size_t size) {
    struct waiting * w = (struct waiting *) user;
    return counting_alloc(&w->counting, device, size);
}

static void waiting_free(void * user, int device, void * ptr, size_t size) {
    struct waiting * w = (struct waiting *) user;
    const bool is_idle = w->stream == NULL || cudaStreamQuery(w->stream) == cudaSuccess;
    w->n_idle += is_idle;
    w->n_busy += !is_idle;
    (void) cudaGetLastError();
    counting_free(&w->counting, device, ptr, size);
}

TEST(a_callers_allocator_gets_memory_back_when_all_work_on_it_is_done) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
        struct waiting device = { counting_new(false), NULL, 0, 0 }, pinned = { counting_new(true), NULL, 0, 0 };
        struct gcuda_cuda_memory_params mine;
        memset(&mine, 0, sizeof mine);
        fresh(1, 64 * MB, seed);
        gcuda_backend_t backend = gcuda_backend_cuda_init(0);
        REQUIRE(backend != NULL);
        mine.device.alloc = mine.pinned.alloc = waiting_alloc;
        mine.device.free = mine.pinned.free = waiting_free;
        mine.device.user = &device;
        mine.pinned.user = &pinned;
        CHECK_OK(gcuda_backend_cuda_set_memory(&mine));
        struct place p = place_begin();
        struct gcuda_tensor *x = gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_F32, 1000),
                            *y = gcuda_sqr(p.ctx, gcuda_scale(p.ctx, x, 2.0f));
        struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
        CHECK_OK(gcuda_build_forward_expand(graph, y));
        REQUIRE(place_alloc(&p, backend));
        gcuda_backend_buffer_t host = gcuda_backend_buft_alloc_buffer(gcuda_backend_cuda_host_buffer_type(), 4000);
        REQUIRE(gcuda_backend_buffer_get_type(host) == gcuda_backend_cuda_host_buffer_type());
        device.stream = pinned.stream = (cudaStream_t) gcuda_backend_cuda_get_stream(backend);
        const bool is_host = seed % 2 == 0; // freed first
        CHECK_OK(gcuda_backend_tensor_set_async(backend, x, gcuda_backend_buffer_get_base(host), 0, 4000));
        for (int i = 0; i < 8; ++i) { CHECK_OK(gcuda_backend_graph_compute_async(backend, graph)); }
        CHECK_OK(gcuda_backend_tensor_get_async(backend, y, gcuda_backend_buffer_get_base(host), 0, 4000));
        if (is_host) { gcuda_backend_buffer_free(host); }
        place_end(&p);
        if (!is_host) { gcuda_backend_buffer_free(host); }
        CHECK(device.n_busy == 0 && pinned.n_busy == 0 && device.n_idle == 1 && pinned.n_idle == 1);
        device.stream = pinned.stream = NULL;
        gcuda_backend_free(backend);
        CHECK(device.counting.live == 0 && pinned.counting.live == 0);
    }
    clean();
}

TEST(a_backend_with_allocators_of_its_own) {
    struct counting device = counting_new(false), pinned = counting_new(true);
    struct gcuda_cuda_params p = params_of(GCUDA_CUDA_POOL_AUTO, 0, 0);
    void * ptr = NULL;
    fresh(1, 64 * MB, 1);
    p.memory = from(&device, &pinned);
    struct gcudai_cuda * cu = (struct gcudai_cuda *) gcuda_backend_cuda_init_params(&p);
    REQUIRE(cu != NULL);
    CHECK(device.n_alloc == 1 && pinned.n_alloc == 1); // flags
    CHECK_OK(take(cu, MB, &ptr));
    CHECK_EQ_I(device.n_alloc, 2);
    gcuda_backend_buffer_t buffer = gcuda_backend_alloc_buffer(&cu->backend, 5000); // the device's, not the backend's
    CHECK(buffer != NULL && device.n_alloc == 2);
    gcuda_backend_buffer_free(buffer);
    gcuda_backend_free(&cu->backend);
    CHECK(device.live == 0 && pinned.live == 0);
    p.memory.device.free = NULL;
    CHECK(gcuda_backend_cuda_init_params(&p) == NULL);
    CHECK(gcuda_backend_cuda_set_memory(&p.memory) == GCUDA_STATUS_INVALID_ARGUMENT);
    clean();
}

TEST(allocators_without_memory_and_with_crooked_memory) {
    struct counting device = counting_new(false), pinned = counting_new(true);
    struct gcuda_cuda_memory_params mine = from(&device, &pinned);
    fresh(1, 64 * MB, 1);
    CHECK_OK(gcuda_backend_cuda_set_memory(&mine));
    device.is_empty = pinned.is_empty = true;
    CHECK(gcuda_backend_cuda_init(0) == NULL);
    CHECK_HAS(gcuda_last_error(), "wanted");
    CHECK(gcuda_backend_buft_alloc_buffer(gcuda_backend_cuda_buffer_type(0), 1234) == NULL);
    CHECK_HAS(gcuda_last_error(), "1234 bytes wanted");
    gcuda_backend_buffer_t host = gcuda_backend_buft_alloc_buffer(gcuda_backend_cuda_host_buffer_type(), 1000);
    CHECK(host != NULL && gcuda_backend_buffer_get_type(host) == gcuda_backend_cpu_buffer_type());
    gcuda_backend_buffer_free(host);
    device.is_empty = false;
    device.is_crooked = true;
    CHECK(gcuda_backend_buft_alloc_buffer(gcuda_backend_cuda_buffer_type(0), 1234) == NULL);
    CHECK_HAS(gcuda_last_error(), "256-byte");
    CHECK(device.live == 0 && used_of(0) == 0);
    struct gcuda_cuda_stats s;
    CHECK_OK(gcuda_backend_cuda_get_device_stats(0, &s));
    CHECK(s.reserved == 0);
    clean();
}

// ---- several threads share a device's budget ----

struct worker {
    pthread_t thread;
    uint64_t seed;
    long n_made;
};

static void * use_memory(void * user) {
    struct worker * w = (struct worker *) user;
    uint64_t random = w->seed * 77 + 5;
    gcuda_backend_buffer_t kept[4] = { NULL, NULL, NULL, NULL };
    for (int i = 0; i < 400; ++i) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        gcuda_backend_buffer_t * b = &kept[(random >> 40) % 4];
        gcuda_backend_buffer_free(*b);
        *b = gcuda_backend_buft_alloc_buffer(gcuda_backend_cuda_buffer_type(0), 1 + (size_t) (random >> 44));
        w->n_made += *b != NULL;
    }
    for (int i = 0; i < 4; ++i) { gcuda_backend_buffer_free(kept[i]); }
    return NULL;
}

TEST(threads_together_stay_within_a_budget) {
    enum { N_THREADS = 4 };
    struct worker workers[N_THREADS];
    struct counting device = counting_new(false);
    struct gcuda_cuda_memory_params mine = from(&device, NULL);
    long n_made = 0;
    fresh(1, 256 * MB, 1);
    CHECK_OK(gcuda_backend_cuda_set_memory(&mine));
    CHECK_OK(gcuda_backend_cuda_set_device_budget(0, 3 * MB));
    for (int i = 0; i < N_THREADS; ++i) {
        workers[i].seed = (uint64_t) i;
        workers[i].n_made = 0;
        REQUIRE(pthread_create(&workers[i].thread, NULL, use_memory, &workers[i]) == 0);
    }
    for (int i = 0; i < N_THREADS; ++i) {
        pthread_join(workers[i].thread, NULL);
        n_made += workers[i].n_made;
    }
    CHECK(device.live == 0 && device.peak <= 3 * MB && device.peak > 2 * MB && n_made < 400 * N_THREADS && n_made > 0);
    clean();
}

// =====================================================================================================================
// >>kinds   managed, page-locked, registered memory
// =====================================================================================================================
TEST(managed_memory_where_it_is_asked_for) {
    struct gcuda_cuda_memory_params mine = from(NULL, NULL);
    fresh(1, 64 * MB, 1);
    for (int k = 0; k < 3; ++k) { // by environment, by value, and by value against the environment
        if (k != 1) { setenv("GCUDA_CUDA_ENABLE_UNIFIED_MEMORY", "0", 1); } // any value counts
        mine.unified = k == 0 ? GCUDA_CUDA_AUTO : k == 1 ? GCUDA_CUDA_ON : GCUDA_CUDA_OFF;
        CHECK_OK(gcuda_backend_cuda_set_memory(&mine));
        const long before = sim_counts("cudaMallocManaged"), plain = sim_counts("cudaMalloc");
        struct gcudai_cuda * cu = backend_of(GCUDA_CUDA_POOL_AUTO, 0, 0);
        gcuda_backend_buffer_t buffer = gcuda_backend_buft_alloc_buffer(gcuda_backend_cuda_buffer_type(0), 5000);
        REQUIRE(cu != NULL && buffer != NULL);
        CHECK_OK(gcuda_backend_buffer_clear(buffer, 1));
        CHECK_EQ_I(sim_counts("cudaMallocManaged") - before, k < 2 ? 2 : 0);
        CHECK_EQ_I(sim_counts("cudaMalloc") - plain, k < 2 ? 0 : 2);
        CHECK((cu->pool.granularity == 0) == (k < 2));
        gcuda_backend_buffer_free(buffer);
        gcuda_backend_free(&cu->backend);
        unsetenv("GCUDA_CUDA_ENABLE_UNIFIED_MEMORY");
    }
    clean();
}

TEST(host_buffers_without_page_locking) {
    struct gcuda_cuda_memory_params mine = from(NULL, NULL);
    struct gcuda_backend_dev_props props;
    fresh(1, 64 * MB, 1);
    for (int k = 0; k < 3; ++k) {
        if (k != 1) { setenv("GCUDA_CUDA_NO_PINNED", "1", 1); }
        mine.page_locked = k == 0 ? GCUDA_CUDA_AUTO : k == 1 ? GCUDA_CUDA_OFF : GCUDA_CUDA_ON;
        CHECK_OK(gcuda_backend_cuda_set_memory(&mine));
        gcuda_backend_buffer_t b = gcuda_backend_buft_alloc_buffer(gcuda_backend_cuda_host_buffer_type(), 1000);
        REQUIRE(b != NULL);
        CHECK((gcuda_backend_buffer_get_type(b) == gcuda_backend_cpu_buffer_type()) == (k < 2));
        gcuda_backend_buffer_free(b);
        CHECK_OK(gcuda_backend_dev_get_props(gcuda_backend_dev_by_name("CUDA0"), &props));
        CHECK(props.caps.host_buffer == (k == 2));
        unsetenv("GCUDA_CUDA_NO_PINNED");
    }
    fresh(0, 64 * MB, 1); // no device: ordinary memory, and CUDA is not asked
    gcuda_backend_buffer_t b = gcuda_backend_buft_alloc_buffer(gcuda_backend_cuda_host_buffer_type(), 1000);
    CHECK(b != NULL && sim_counts("cudaHostAlloc") == 0);
    gcuda_backend_buffer_free(b);
    clean();
}

TEST(free_memory_where_it_is_the_systems) {
    char name[] = "/tmp/gcuda-meminfo-XXXXXX";
    const int file = mkstemp(name);
    FILE * f = file < 0 ? NULL : fdopen(file, "w");
    REQUIRE(f != NULL);
    fprintf(f, "MemTotal: 100 kB\nMemFree: 1 kB\nMemAvailable:   77 kB\n");
    fclose(f);
    CHECK_EQ_I(gcudai_meminfo_free(name), 77 * 1024);
    f = fopen(name, "w");
    REQUIRE(f != NULL);
    fprintf(f, "MemAvailable:   77 kB\n");
    for (int i = 0; i < 200; ++i) { fprintf(f, "Something%d:     %d kB\n", i, i); } // more than a buffer's worth
    fprintf(f, "HugePages_Total:  9\nHugePages_Free:   3\nHugePages_Rsvd: 0\nHugepagesize:    2048 kB\n");
    fclose(f);
    CHECK_EQ_I(gcudai_meminfo_free(name), 3 * 2048 * 1024);
    remove(name);
    CHECK_EQ_I(gcudai_meminfo_free(name), 0);
    fresh(1, 64 * MB, 1);
    struct gcuda_cuda_memory_params mine = from(NULL, NULL);
    size_t n_free = 0, n_total = 0;
    mine.unified = GCUDA_CUDA_ON;
    CHECK_OK(gcuda_backend_cuda_set_memory(&mine));
    CHECK_OK(gcuda_backend_cuda_get_device_memory(0, &n_free, &n_total));
    CHECK(n_total == 64 * MB && n_free > 64 * MB); // of the machine that the test runs on
    sim_fail("cudaMemGetInfo", 1, cudaErrorUnknown);
    CHECK(gcuda_backend_cuda_get_device_memory(0, &n_free, &n_total) == GCUDA_STATUS_FAILED && n_free == 0 &&
          n_total == 0);
    CHECK_OK(gcuda_backend_cuda_get_device_memory(0, NULL, &n_total)); // one of the two is enough
    CHECK_OK(gcuda_backend_cuda_get_device_memory(0, &n_free, NULL));
    CHECK(n_free > 0 && n_total == 64 * MB);
    clean();
}

TEST(registered_memory_is_remembered) {
    static float mine[3000];
    fresh(1, 64 * MB, 1);
    CHECK(gcuda_backend_cuda_register_host_buffer(NULL, 10) == GCUDA_STATUS_INVALID_ARGUMENT &&
          gcuda_backend_cuda_register_host_buffer(mine, 0) == GCUDA_STATUS_INVALID_ARGUMENT);
    sim_fail("cudaHostRegister", 1, cudaErrorNotSupported); // for reading only: not on this device
    CHECK_OK(gcuda_backend_cuda_register_host_buffer(mine, 4000));
    CHECK_EQ_I(sim_counts("cudaHostRegister"), 2);
    CHECK_OK(gcuda_backend_cuda_register_host_buffer(mine + 2000, 4000));
    CHECK(gcuda_backend_cuda_register_host_buffer(mine, 4000) == GCUDA_STATUS_FAILED);
    CHECK(gcuda_backend_cuda_unregister_host_buffer(mine + 1) == GCUDA_STATUS_INVALID_ARGUMENT &&
          gcuda_backend_cuda_unregister_host_buffer(NULL) == GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_EQ_I(sim_counts("cudaHostUnregister"), 0); // what gcuda has not registered it leaves alone
    sim_fail("cudaHostUnregister", 1, cudaErrorInvalidValue);
    CHECK(gcuda_backend_cuda_unregister_host_buffer(mine) == GCUDA_STATUS_FAILED);
    CHECK(gcuda_backend_cuda_unregister_host_buffer(mine) == GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_EQ_I(sim_leaks(), 1);
    gcuda_shutdown(); // takes back the other one
    clean();
}

// =====================================================================================================================
// >>cublas   its workspace, and what it says when it fails
// =====================================================================================================================
// n matrices, each for `share` of the other operand.
static gcuda_status products(gcuda_backend_t backend, int n, int share, float * out) {
    enum { K = 32, M = 24, N = 16 };
    const size_t n_a = (size_t) (K * M * n), n_b = (size_t) (K * N * n * share);
    float *a = (float *) malloc(n_a * sizeof *a), *b = (float *) malloc(n_b * sizeof *b);
    struct place p = place_begin();
    struct gcuda_tensor *x = gcuda_new_tensor_3d(p.ctx, GCUDA_TYPE_F32, K, M, n),
                        *y = gcuda_new_tensor_4d(p.ctx, GCUDA_TYPE_F32, K, N, n, share),
                        *z = gcuda_mul_mat(p.ctx, x, y);
    struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
    gcuda_status st = gcuda_build_forward_expand(graph, z);
    for (size_t i = 0; i < n_a; ++i) { a[i] = (float) (i % 7); }
    for (size_t i = 0; i < n_b; ++i) { b[i] = (float) (i % 5); }
    if (st == GCUDA_STATUS_SUCCESS && !place_alloc(&p, backend)) { st = GCUDA_STATUS_ALLOC_FAILED; }
    if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_backend_tensor_set(x, a, 0, n_a * sizeof *a); }
    if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_backend_tensor_set(y, b, 0, n_b * sizeof *b); }
    if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_backend_graph_compute(backend, graph); }
    if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_backend_tensor_get(z, out, 0, sizeof *out); }
    place_end(&p);
    free(a);
    free(b);
    return st;
}

static gcuda_status a_product(gcuda_backend_t backend, float * out) { return products(backend, 1, 1, out); }

TEST(cublas_works_in_memory_of_the_backends) {
    // the size that cuBLAS wants on this capability, then one that is always to be had, then none
    const size_t full = GCUDA_SIM_CC >= 900 ? 32 * MB : 4 * MB;
    const size_t budgets[] = { 0, full + 8 * MB, full / 2, 2048 }, wanted[] = { full, full, 64 * 1024, 0 };
    float first = -1.0f, value = 0.0f;
    for (int i = 0; i < 4; ++i) {
        fresh(1, 64 * MB, 1);
        struct gcudai_cuda * cu = backend_of(GCUDA_CUDA_POOL_AUTO, 0, budgets[i]);
        REQUIRE(cu != NULL);
        CHECK_EQ_I(stats_of(cu).by[GCUDA_CUDA_PURPOSE_WORKSPACE].reserved, 0); // no product has run
        CHECK_OK(a_product(&cu->backend, &value));
        CHECK_OK(a_product(&cu->backend, &value));
        CHECK_EQ_I(stats_of(cu).by[GCUDA_CUDA_PURPOSE_WORKSPACE].reserved, wanted[i]);
        CHECK_EQ_I(sim_counts("cublasGemmStridedBatchedEx"), 2);
        CHECK_EQ_I(sim_counts("cublasSetWorkspace_v2"), 2);
        CHECK_OK(gcuda_backend_cuda_trim(&cu->backend));
        CHECK_EQ_I(stats_of(cu).by[GCUDA_CUDA_PURPOSE_WORKSPACE].reserved, wanted[i]); // a graph may remember it
        first = i == 0 ? value : first;
        CHECK(value == first);
        gcuda_backend_free(&cu->backend);
    }
    clean();
}

TEST(a_failure_of_cublas_has_its_name) {
    static const char * const apis[] = { "cublasSetStream", "cublasSetWorkspace", "cublasGemmStridedBatchedEx",
        "cublasGemmBatchedEx" };
    static const char * const counters[] = { "cublasSetStream_v2", "cublasSetWorkspace_v2",
        "cublasGemmStridedBatchedEx", "cublasGemmBatchedEx" };
    float value;
    fresh(1, 64 * MB, 1);
    struct gcuda_cuda_params params;
    memset(&params, 0, sizeof params);
    params.graphs = GCUDA_CUDA_OFF; // where a capture that fails is no failure
    gcuda_backend_t backend = gcuda_backend_cuda_init_params(&params);
    REQUIRE(backend != NULL);
    for (int i = 0; i < 4; ++i) {
        const int n = i == 3 ? 2 : 1; // that one only for many
        sim_fail(counters[i], 1, (cudaError_t) 14);
        CHECK(products(backend, n, n, &value) == GCUDA_STATUS_FAILED);
        CHECK_HAS(gcuda_last_error(), apis[i]);
        CHECK_HAS(gcuda_last_error(), "CUBLAS_STATUS_INTERNAL_ERROR");
        CHECK_HAS(gcuda_last_error(), "CUDA0");
        CHECK_HAS(gcuda_last_error(), "mul_mat");
        CHECK_OK(products(backend, n, n, &value));
        sim_fail(counters[i], 1, (cudaError_t) 3);
        CHECK(products(backend, n, n, &value) == GCUDA_STATUS_ALLOC_FAILED);
        CHECK_HAS(gcuda_last_error(), "CUBLAS_STATUS_ALLOC_FAILED");
    }
    gcuda_backend_free(backend);
    clean();
}

// =====================================================================================================================
// >>devices   what is said of them
// =====================================================================================================================
struct lines {
    int n;
    char text[8][512];
};
static void keep_line(enum gcuda_log_level level, const char * text, void * user) {
    struct lines * l = (struct lines *) user;
    (void) level;
    if (l->n < 8) { snprintf(l->text[l->n++], sizeof l->text[0], "%s", text); }
}

TEST(rows_of_blocks_are_padded_with_zeros) {
    fresh(1, 64 * MB, 1);
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    struct place p = place_begin();
    struct gcuda_tensor * x = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_Q8_0, 96, 3); // 34 bytes each 32
    gcuda_backend_buffer_t buffer = gcuda_backend_alloc_buffer(backend, 8192);
    REQUIRE(backend != NULL && x != NULL && buffer != NULL);
    const gcuda_backend_buffer_type_t buft = gcuda_backend_cuda_buffer_type(0);
    CHECK_EQ_I(gcuda_backend_buft_get_alloc_size(buft, x), 3 * 3 * 34 + (512 - 96) / 32 * 34);
    CHECK_OK(gcuda_backend_buffer_clear(buffer, 7));
    CHECK_OK(gcuda_backend_tensor_alloc(buffer, x, gcuda_backend_buffer_get_base(buffer)));
    unsigned char all[8192];
    CHECK(cudaMemcpy(all, gcuda_backend_buffer_get_base(buffer), sizeof all, cudaMemcpyDeviceToHost) == cudaSuccess);
    for (int i = 0; i < 3 * 3 * 34 + 13 * 34; ++i) { CHECK(all[i] == (i < 3 * 3 * 34 ? 7 : 0)); }
    CHECK(all[3 * 3 * 34 + 13 * 34] == 7);
    struct gcuda_tensor * y = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_Q8_0, 96, 3);
    y->nb[0] = 68; // with gaps
    CHECK(gcuda_backend_tensor_alloc(buffer, y, gcuda_backend_buffer_get_base(buffer)) != GCUDA_STATUS_SUCCESS);
    CHECK_HAS(gcuda_last_error(), "nb[0]");
    gcuda_backend_buffer_free(buffer);
    place_end(&p);
    gcuda_backend_free(backend);
    clean();
}

// NULL: not listed.
static const char * feature(const struct gcuda_backend_feature * f, const char * name) {
    while (f->name != NULL && strcmp(f->name, name) != 0) { ++f; }
    return f->name != NULL ? f->value : NULL;
}

TEST(functions_are_found_by_name) {
    static float mine[1000];
    gcuda_backend_get_features_t features = NULL;
    gcuda_backend_split_buffer_type_t split = NULL;
    gcuda_backend_register_host_buffer_t add = NULL;
    gcuda_backend_unregister_host_buffer_t forget = NULL;
    fresh(2, 64 * MB, 1);
    const gcuda_backend_reg_t reg = gcuda_backend_cuda_reg();
    void * address[4] = { gcuda_backend_reg_get_proc_address(reg, "gcuda_backend_get_features"),
        gcuda_backend_reg_get_proc_address(reg, "gcuda_backend_split_buffer_type"),
        gcuda_backend_reg_get_proc_address(reg, "gcuda_backend_register_host_buffer"),
        gcuda_backend_reg_get_proc_address(reg, "gcuda_backend_unregister_host_buffer") };
    CHECK(gcuda_backend_reg_get_proc_address(reg, "gcuda_backend_something") == NULL);
    REQUIRE(address[0] && address[1] && address[2] && address[3]);
    memcpy(&features, &address[0], sizeof address[0]);
    memcpy(&split, &address[1], sizeof address[0]);
    memcpy(&add, &address[2], sizeof address[0]);
    memcpy(&forget, &address[3], sizeof address[0]);
    const struct gcuda_backend_feature * list = features(reg);
    CHECK(list == gcudai_cuda_found.features && features(reg) == list);
    static const char * const all[] = { "USE_GRAPHS", "FA_ALL_QUANTS" };
    REQUIRE(list != NULL);
    for (size_t i = 0; i < 2; ++i) { CHECK(feature(list, all[i]) != NULL && strcmp(feature(list, all[i]), "1") == 0); }
    CHECK(feature(list, "ARCHS") != NULL && strtol(feature(list, "ARCHS"), NULL, 10) == GCUDA_SIM_CC);
    CHECK(feature(list, "PEER_MAX_BATCH_SIZE") != NULL && strcmp(feature(list, "PEER_MAX_BATCH_SIZE"), "128") == 0);
    CHECK(feature(list, "NO_VMM") == NULL && feature(list, "NO_ATTENTION") == NULL);
    const float shares[2] = { 1, 3 };
    CHECK(split(0, shares) == gcuda_backend_cuda_split_buffer_type(0, shares, 2) && split(0, NULL) != NULL);
    CHECK(split(5, NULL) == NULL);
    CHECK(!add(mine, sizeof mine)); // not enabled
    CHECK_EQ_I(sim_counts("cudaHostRegister"), 0);
    setenv("GCUDA_CUDA_REGISTER_HOST", "1", 1);
    CHECK(add(mine, sizeof mine) && !add(mine, sizeof mine));
    unsetenv("GCUDA_CUDA_REGISTER_HOST");
    forget(mine);
    forget(mine);
    CHECK_EQ_I(sim_counts("cudaHostUnregister"), 1);
    gcuda_shutdown();
    CHECK(gcudai_cuda_found.features[0].name == NULL); // kept nowhere else
    CHECK(features(reg) != NULL && feature(features(reg), "ARCHS") != NULL);
    clean();
}

TEST(each_device_is_named_once) {
    struct lines lines;
    fresh(2, 64 * MB, 1);
    sim_attribute(1, 102, 0);
    memset(&lines, 0, sizeof lines);
    gcuda_log_set(keep_line, GCUDA_LOG_LEVEL_INFO, &lines);
    CHECK_EQ_I(gcuda_backend_cuda_get_device_count(), 2);
    CHECK_EQ_I(gcuda_backend_cuda_get_device_count(), 2);
    CHECK_EQ_I(lines.n, 2);
    CHECK_HAS(lines.text[0], "CUDA0: Simulated");
    CHECK_HAS(lines.text[0], "64 MiB");
    CHECK_HAS(lines.text[0], "management yes");
    CHECK_HAS(lines.text[1], "management no");
    CHECK(sim_has_context(0) == 0 && sim_has_context(1) == 0);
    static const struct {
        const char * name;
        bool lacks;
    } chips[] = { { "NVIDIA GeForce MX450", true }, { "NVIDIA GeForce MX550", true },
        { "NVIDIA GeForce GTX 1650 Ti", true }, { "NVIDIA GeForce MX4500", false },
        { "NVIDIA GeForce GTX 1080", false }, { "NVIDIA GeForce RTX 2060", false } };
    const bool has_turing = strstr(gcuda_kernels_archs(), "750") != NULL;
    // and a line of advice if they run code for 7.5
    for (size_t i = 0; i < sizeof chips / sizeof chips[0]; ++i) {
        struct gcudai_cuda_devices found;
        GCUDAI_ZERO(found);
        found.n = found.n_there = 1;
        snprintf(found.items[0].description, sizeof found.items[0].description, "%s", chips[i].name);
        memset(&lines, 0, sizeof lines);
        gcudai_cuda_report(&found);
        CHECK_MSG(lines.n == 1 + (chips[i].lacks && has_turing), "%s: %d lines", chips[i].name, lines.n);
        if (lines.n > 1) { CHECK_HAS(lines.text[1], "no tensor cores"); }
    }
    fresh(2, 64 * MB, 1);
    memset(&lines, 0, sizeof lines);
    gcuda_log_set(keep_line, GCUDA_LOG_LEVEL_INFO, &lines);
    sim_fail("cudaGetDeviceProperties", 2, cudaErrorUnknown);
    CHECK_EQ_I(gcuda_backend_cuda_get_device_count(), 1);
    CHECK(lines.n == 2 && strstr(lines.text[0], "2 devices, 1 ") != NULL);
    CHECK_HAS(lines.text[0], cudaGetErrorString(cudaErrorUnknown));
    fresh(1, 64 * MB, 1);
    memset(&lines, 0, sizeof lines);
    gcuda_log_set(keep_line, GCUDA_LOG_LEVEL_INFO, &lines);
    sim_fail("cudaGetDeviceCount", 1, cudaErrorInsufficientDriver);
    CHECK(gcuda_backend_cuda_get_device_count() == 0 && lines.n == 1);
    CHECK_HAS(lines.text[0], "cudaErrorInsufficientDriver");
    CHECK_EQ_I(gcuda_backend_cuda_get_device_count(), 0); // not asked again
    CHECK_EQ_I(sim_counts("cudaGetDeviceCount"), 1);
    gcuda_shutdown();
    CHECK_EQ_I(gcuda_backend_cuda_get_device_count(), 1);
    clean();
}

// =====================================================================================================================
// >>faults   the k-th call of a function fails: a status, or it did no harm; nothing leaks; all works again
// =====================================================================================================================
#define TRY(call)                                              \
    do {                                                       \
        const gcuda_status try_st = (call);                    \
        if (try_st != GCUDA_STATUS_SUCCESS) { return try_st; } \
    } while (0)

static gcuda_status some_use(struct gcudai_cuda * cu, void ** p) {
    TRY(take(cu, 3 * MB, &p[0]));
    TRY(take(cu, 1 * MB, &p[1]));
    TRY(take(cu, 4 * MB, &p[2]));
    give(cu, p[1]);
    TRY(take(cu, 5 * MB, &p[1]));
    give(cu, p[0]);
    give(cu, p[2]);
    TRY(gcuda_backend_cuda_trim(&cu->backend));
    TRY(gcudai_cuda_pool_grant(&cu->pool, 1));
    TRY(take(cu, 2 * MB, &p[0]));
    TRY(gcudai_cuda_result(cu, cudaMemsetAsync(p[0], 0, 2 * MB, cu->stream), "cudaMemsetAsync", "test"));
    return gcuda_backend_synchronize(&cu->backend);
}

static gcuda_status some_buffers(void) {
    static char mine[5000];
    gcuda_backend_buffer_t host = gcuda_backend_buft_alloc_buffer(gcuda_backend_cuda_host_buffer_type(), 1000);
    gcuda_backend_buffer_t buffer = gcuda_backend_buft_alloc_buffer(gcuda_backend_cuda_buffer_type(0), 3000);
    gcuda_status st = host && buffer ? gcuda_backend_buffer_clear(buffer, 1) : GCUDA_STATUS_ALLOC_FAILED;
    st = st == GCUDA_STATUS_SUCCESS ? gcuda_backend_cuda_register_host_buffer(mine, sizeof mine) : st;
    if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_backend_cuda_unregister_host_buffer(mine); }
    gcuda_backend_buffer_free(host);
    gcuda_backend_buffer_free(buffer);
    return st;
}

static bool is_managed; // for the whole process

static gcuda_status scenario(enum gcuda_cuda_pool kind) {
    const struct gcuda_cuda_params p = params_of(kind, 4 * MB, 0);
    struct gcuda_cuda_memory_params memory = from(NULL, NULL);
    void * ptr[3] = { NULL, NULL, NULL };
    memory.unified = is_managed ? GCUDA_CUDA_ON : GCUDA_CUDA_AUTO;
    TRY(gcuda_backend_cuda_set_memory(&memory));
    gcuda_backend_t backend = gcuda_backend_cuda_init_params(&p);
    if (backend == NULL) { return GCUDA_STATUS_FAILED; }
    const gcuda_status st = some_use((struct gcudai_cuda *) backend, ptr);
    gcuda_backend_free(backend);
    return st == GCUDA_STATUS_SUCCESS ? some_buffers() : st;
}

static void fault_once(enum gcuda_cuda_pool kind, const char * api, long k, cudaError_t error) {
    fresh(2, 32 * MB, 1);
    const long alive = sim_leaks();
    (void) gcuda_set_last_error(GCUDA_STATUS_SUCCESS, "");
    sim_fail(api, (int) k, error);
    const gcuda_status st = scenario(kind);
    CHECK_MSG(st == GCUDA_STATUS_SUCCESS || gcuda_last_error()[0] != '\0', "%s %ld: no message", api, k);
    sim_fail(api, 0, cudaSuccess);
    CHECK_MSG(
        sim_leaks() == alive && sim_violations() == 0, "%s %ld with error %d: leaks or wrong use", api, k, (int) error);
    if (error != cudaErrorIllegalAddress) {
        struct gcuda_cuda_stats s;
        memset(&s, 0, sizeof s);
        if (gcuda_backend_cuda_get_device_count() > 0) { CHECK_OK(gcuda_backend_cuda_get_device_stats(0, &s)); }
        CHECK_MSG(s.reserved == 0 && s.pinned == 0, "%s %ld: %zu bytes still booked", api, k, s.reserved);
        gcuda_shutdown(); // a discovery that failed is repeated
        CHECK_MSG(scenario(kind) == GCUDA_STATUS_SUCCESS, "%s %ld with error %d: not usable again: %s", api, k,
            (int) error, gcuda_last_error());
    }
}

static void faults_of(enum gcuda_cuda_pool kind) {
    char names[96][48];
    long counts[96];
    int n = 0;
    fresh(2, 32 * MB, 1);
    CHECK_OK(scenario(kind));
    for (; n < 96 && sim_api(n) != NULL; ++n) {
        snprintf(names[n], sizeof names[n], "%s", sim_api(n));
        counts[n] = sim_counts(sim_api(n));
    }
    CHECK(sim_api(n) == NULL); // none is left out
    for (int i = 0; i < n; ++i) {
        const bool is_blas = strncmp(names[i], "cublas", 6) == 0;
        for (long k = 1; k <= counts[i] && !is_blas; ++k) {
            fault_once(kind, names[i], k, cudaErrorInvalidValue);
            fault_once(kind, names[i], k, cudaErrorMemoryAllocation);
            fault_once(kind, names[i], k, cudaErrorIllegalAddress);
        }
    }
}

TEST(every_call_fails_in_turn_virtual_memory) {
    faults_of(GCUDA_CUDA_POOL_VMM);
    clean();
}
TEST(every_call_fails_in_turn_best_fit) {
    faults_of(GCUDA_CUDA_POOL_BEST_FIT);
    clean();
}

TEST(every_call_fails_in_turn_managed_memory) {
    is_managed = true;
    faults_of(GCUDA_CUDA_POOL_AUTO);
    is_managed = false;
    clean();
}

// ---- the host's allocations ----

struct host_fault {
    long left, live; // allocations until one fails
    bool has_fired;
};
static void * faulty_alloc(void * user, size_t size, size_t alignment) {
    struct host_fault * f = (struct host_fault *) user;
    void * ptr = NULL;
    if (--f->left == 0) {
        f->has_fired = true;
        return NULL;
    }
    if (posix_memalign(&ptr, alignment < sizeof(void *) ? sizeof(void *) : alignment, size) != 0) { return NULL; }
    f->live++;
    return ptr;
}
static void faulty_free(void * user, void * ptr, size_t size) {
    (void) size;
    ((struct host_fault *) user)->live--;
    free(ptr);
}

TEST(every_host_allocation_fails_in_turn) {
    for (int kind = 1; kind <= 2; ++kind) {
        for (long k = 1;; ++k) {
            struct host_fault f = { k, 0, false };
            const struct gcuda_allocator allocator = { faulty_alloc, faulty_free, &f };
            fresh(2, 32 * MB, 1);
            gcuda_set_allocator(&allocator);
            const gcuda_status st = scenario((enum gcuda_cuda_pool) kind);
            CHECK_MSG(st == GCUDA_STATUS_SUCCESS || f.has_fired, "allocation %ld: %s", k, gcuda_last_error());
            CHECK_MSG(f.live == 0 && sim_leaks() == 0, "allocation %ld: leaks", k);
            if (!f.has_fired) { break; }
        }
    }
    clean();
}
