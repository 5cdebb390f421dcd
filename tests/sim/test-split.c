// Several devices: peer access and its probe, staged copies, row-split weights and their products, on the simulated
// device. A row-split product must be the whole one bit for bit, whatever the streams do.
#define _GNU_SOURCE 1 // setenv
#include "sim-test.h"

#include "hw/recycled.h"

#include <pthread.h>

// =====================================================================================================================
// >>peers
// =====================================================================================================================
static struct gcuda_cuda_peer peer_of(int device, int peer) {
    struct gcuda_cuda_peer p;
    CHECK_OK(gcuda_backend_cuda_get_peer(device, peer, &p));
    return p;
}

static int64_t strip_columns; // of backends made from now on

// Scratch in virtual memory is what a backend has by itself; blocks cost the simulation far less.
static gcuda_backend_t backend_with(int device, enum gcuda_cuda_peer_mode mode, bool is_virtual) {
    struct gcuda_cuda_params params;
    memset(&params, 0, sizeof params);
    params.device = device;
    params.peer = mode;
    params.pool = is_virtual ? GCUDA_CUDA_POOL_AUTO : GCUDA_CUDA_POOL_BEST_FIT;
    params.split_columns = strip_columns;
    return gcuda_backend_cuda_init_params(&params);
}

static gcuda_backend_t backend_on(int device, enum gcuda_cuda_peer_mode mode) {
    return backend_with(device, mode, true);
}

TEST(a_pair_is_probed_once_and_reported) {
    fresh(3, 64 * MB, 1);
    CHECK(cudaSetDevice(2) == cudaSuccess);
    struct gcuda_cuda_peer p = peer_of(0, 1);
    CHECK(
        p.is_possible && !p.is_probed && !p.is_in_use && p.path == GCUDA_CUDA_PEER_PATH_UNKNOWN && p.reason[0] != '\0');
    CHECK_EQ_I(sim_counts("cudaMalloc"), 0); // asking alone probes nothing
    CHECK_OK(gcuda_backend_cuda_probe_peer(0, 1));
    for (int i = 0; i < 2; ++i) {
        p = peer_of(i, 1 - i);
        CHECK(p.is_possible && p.is_probed && p.is_in_use && p.path == GCUDA_CUDA_PEER_PATH_DIRECT &&
              p.reason[0] == '\0');
    }
    const long n = sim_counts("cudaMemcpyPeerAsync");
    CHECK_EQ_I(n, 4); // pushed and pulled, both ways
    CHECK_OK(gcuda_backend_cuda_probe_peer(1, 0));
    CHECK_EQ_I(sim_counts("cudaMemcpyPeerAsync"), n);
    CHECK(!peer_of(0, 2).is_probed && !peer_of(2, 1).is_probed);
    int device = -1;
    CHECK(cudaGetDevice(&device) == cudaSuccess && device == 2);
    CHECK(gcuda_backend_cuda_probe_peer(0, 0) == GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK(gcuda_backend_cuda_probe_peer(0, 3) == GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK(gcuda_backend_cuda_get_peer(-1, 0, &p) == GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK(gcuda_backend_cuda_get_peer(0, 1, NULL) == GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_EQ_I(sim_leaks(), 0);
    gcuda_shutdown(); // takes access back
    CHECK_EQ_I(sim_counts("cudaDeviceDisablePeerAccess"), 2);
    CHECK(cudaGetDevice(&device) == cudaSuccess && device == 2);
    CHECK(cudaSetDevice(0) == cudaSuccess && cudaDeviceDisablePeerAccess(1) == cudaErrorPeerAccessNotEnabled);
    (void) cudaGetLastError();
    clean();
}

TEST(what_the_probe_finds_decides) {
    static const struct {
        int there, back;
        enum gcuda_cuda_peer_path path;
        const char * reason;
    } cases[] = {
        { 1, 1, GCUDA_CUDA_PEER_PATH_DIRECT, "" },
        { 0, 0, GCUDA_CUDA_PEER_PATH_DRIVER, "offers" },
        { 1, 0, GCUDA_CUDA_PEER_PATH_DRIVER, "CUDA1 no access to CUDA0" },
        { 2, 1, GCUDA_CUDA_PEER_PATH_DRIVER, "did not come through" }, // access is taken back
        { 1, 2, GCUDA_CUDA_PEER_PATH_DRIVER, "did not come through" },
        { 3, 1, GCUDA_CUDA_PEER_PATH_HOST, "from CUDA0 to CUDA1 did not come through" },
        { 1, 3, GCUDA_CUDA_PEER_PATH_HOST, "from CUDA1 to CUDA0 did not come through" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        fresh(2, 64 * MB, i);
        sim_peer(0, 1, cases[i].there);
        sim_peer(1, 0, cases[i].back);
        CHECK_OK(gcuda_backend_cuda_probe_peer(0, 1));
        for (int k = 0; k < 2; ++k) {
            const struct gcuda_cuda_peer p = peer_of(k, 1 - k);
            CHECK_MSG(p.path == cases[i].path, "case %d: route %d", (int) i, (int) p.path);
            CHECK(p.is_possible == ((k == 0 ? cases[i].there : cases[i].back) != 0));
            CHECK(p.is_in_use == (p.path == GCUDA_CUDA_PEER_PATH_DIRECT));
            CHECK_HAS(p.reason, cases[i].reason);
        }
        CHECK(cudaSetDevice(0) == cudaSuccess);
        const bool is_on = cudaDeviceDisablePeerAccess(1) == cudaSuccess;
        CHECK(is_on == (cases[i].path == GCUDA_CUDA_PEER_PATH_DIRECT)); // off again where it does not work
        (void) cudaGetLastError();
    }
    clean();
}

TEST(access_that_the_caller_enabled_stays) {
    fresh(2, 64 * MB, 1);
    CHECK(cudaDeviceEnablePeerAccess(1, 0) == cudaSuccess);
    CHECK_OK(gcuda_backend_cuda_probe_peer(0, 1));
    CHECK(peer_of(0, 1).is_in_use);
    gcuda_shutdown();
    CHECK(cudaDeviceDisablePeerAccess(1) == cudaSuccess);
    fresh(2, 64 * MB, 1); // broken, and not ours to disable: nothing but the host is left
    CHECK(cudaDeviceEnablePeerAccess(1, 0) == cudaSuccess);
    sim_peer(0, 1, 2);
    CHECK_OK(gcuda_backend_cuda_probe_peer(0, 1));
    CHECK(peer_of(0, 1).path == GCUDA_CUDA_PEER_PATH_HOST && !peer_of(0, 1).is_in_use);
    CHECK(cudaDeviceDisablePeerAccess(1) == cudaSuccess);
    clean();
}

TEST(a_probe_that_fails_is_a_finding) {
    static const char * const apis[] = { "cudaMalloc", "cudaHostAlloc", "cudaStreamCreateWithFlags",
        "cudaMemcpyPeerAsync", "cudaMemcpyAsync", "cudaMemsetAsync", "cudaStreamSynchronize",
        "cudaDeviceEnablePeerAccess", "cudaDeviceCanAccessPeer", "cudaDeviceGetP2PAttribute", "cudaSetDevice",
        "cudaGetDevice", "cudaFree", "cudaFreeHost", "cudaStreamDestroy" };
    for (size_t i = 0; i < sizeof apis / sizeof apis[0]; ++i) {
        for (int k = 1; k <= 6; ++k) {
            fresh(2, 64 * MB, 1);
            CHECK(cudaSetDevice(1) == cudaSuccess);
            const long before = sim_counts(apis[i]);
            sim_fail(apis[i], k, cudaErrorMemoryAllocation);
            CHECK_OK(gcuda_backend_cuda_probe_peer(0, 1));
            const struct gcuda_cuda_peer p = peer_of(0, 1);
            CHECK(p.is_probed && (p.is_in_use || p.reason[0] != '\0'));
            int device = -1;
            sim_fail(apis[i], 0, cudaSuccess);
            CHECK_MSG(sim_leaks() == 0, "%s %d leaks", apis[i], k);
            const bool is_set = cudaGetDevice(&device) == cudaSuccess && device == 1;
            CHECK_MSG(is_set || strcmp(apis[i], "cudaSetDevice") == 0, "%s %d: current device %d", apis[i], k, device);
            CHECK(cudaGetLastError() == cudaSuccess);
            if (sim_counts(apis[i]) - before < k) { break; }
        }
    }
    clean();
}

// ---- copies ----

enum { N_BIG = 1700000 }; // floats: more than all staging slots together

// A chain over two devices: set, double, copy, double there, copy back; with orders that only events keep.
static void copies_once(int there, int back, enum gcuda_cuda_peer_mode mode, int64_t n, uint64_t seed) {
    fresh(2, 128 * MB, seed);
    sim_peer(0, 1, there);
    sim_peer(1, 0, back);
    gcuda_backend_t a = backend_on(0, mode), b = backend_on(1, mode);
    REQUIRE(a != NULL && b != NULL);
    struct place pa = place_begin(), pb = place_begin();
    struct gcuda_tensor * x = gcuda_new_tensor_1d(pa.ctx, GCUDA_TYPE_F32, n);
    struct gcuda_tensor * end = gcuda_new_tensor_1d(pa.ctx, GCUDA_TYPE_F32, n);
    struct gcuda_tensor * y = gcuda_new_tensor_1d(pb.ctx, GCUDA_TYPE_F32, n);
    struct gcuda_tensor *x2 = gcuda_scale(pa.ctx, x, 2.0f), *y2 = gcuda_scale(pb.ctx, y, 2.0f);
    struct gcuda_cgraph *ga = gcuda_new_graph(pa.ctx), *gb = gcuda_new_graph(pb.ctx);
    CHECK_OK(gcuda_build_forward_expand(ga, x2));
    CHECK_OK(gcuda_build_forward_expand(gb, y2));
    REQUIRE(place_alloc(&pa, a) && place_alloc(&pb, b));
    float *in = (float *) malloc((size_t) n * 4), *out = (float *) malloc((size_t) n * 4);
    REQUIRE(in != NULL && out != NULL);
    for (int64_t i = 0; i < n; ++i) { in[i] = (float) (i % 1000 + 1); }
    CHECK_OK(gcuda_backend_tensor_set(x, in, 0, (size_t) n * 4));
    for (int turn = 0; turn < 2; ++turn) {
        CHECK_OK(gcuda_backend_graph_compute_async(a, ga));
        CHECK_OK(gcuda_backend_tensor_copy_async(a, b, x2, y));
        CHECK_OK(gcuda_backend_tensor_copy_async(a, a, x2, x)); // the source goes on at once
        CHECK_OK(gcuda_backend_graph_compute_async(b, gb));
        CHECK_OK(gcuda_backend_tensor_copy_async(b, a, y2, end));
    }
    CHECK_OK(gcuda_backend_tensor_get_async(a, end, out, 0, (size_t) n * 4));
    CHECK_OK(gcuda_backend_synchronize(a));
    CHECK_OK(gcuda_backend_synchronize(b));
    int64_t n_bad = 0;
    for (int64_t i = 0; i < n; ++i) { n_bad += out[i] != 8.0f * in[i]; }
    CHECK_MSG(n_bad == 0, "links %d %d, mode %d, seed %llu: %lld wrong", there, back, (int) mode,
        (unsigned long long) seed, (long long) n_bad);
    // blocking, between buffers
    CHECK_OK(gcuda_backend_tensor_memset(y, 0, 0, (size_t) n * 4));
    CHECK_OK(gcuda_backend_tensor_copy(end, y));
    CHECK_OK(gcuda_backend_tensor_get(y, in, 0, (size_t) n * 4));
    CHECK(memcmp(in, out, (size_t) n * 4) == 0);
    free(in);
    free(out);
    place_end(&pa);
    place_end(&pb);
    gcuda_backend_free(a);
    gcuda_backend_free(b);
    CHECK(sim_leaks() == 0 && sim_violations() == 0);
}

TEST(copies_between_devices_are_right_on_every_route) {
    for (uint64_t seed = 0; seed < (test_full() ? 400u : 40u); ++seed) {
        copies_once(1, 1, GCUDA_CUDA_PEER_AUTO, 700, seed); // direct
        copies_once(2, 1, GCUDA_CUDA_PEER_ON, 700, seed);   // by the driver
        copies_once(1, 3, GCUDA_CUDA_PEER_AUTO, 700, seed); // staged, as found
        copies_once(1, 1, GCUDA_CUDA_PEER_OFF, 700, seed);  // staged, as told
    }
    copies_once(1, 1, GCUDA_CUDA_PEER_AUTO, N_BIG, 3);
    copies_once(3, 3, GCUDA_CUDA_PEER_AUTO, N_BIG, 4);
    copies_once(3, 3, GCUDA_CUDA_PEER_AUTO, N_BIG, 5);
    clean();
}

TEST(off_and_the_callers_stream_leave_access_alone) {
    for (int i = 0; i < 5; ++i) {
        const bool is_used = i == 2 || i == 3; // asked for by value, or by the environment
        fresh(2, 64 * MB, 1);
        cudaStream_t stream = NULL;
        struct gcuda_cuda_params params;
        memset(&params, 0, sizeof params);
        if (i > 0) { CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess); }
        params.stream = stream;
        params.peer = i == 0 || i == 4 ? GCUDA_CUDA_PEER_OFF : i == 2 ? GCUDA_CUDA_PEER_ON : GCUDA_CUDA_PEER_AUTO;
        if (i >= 3) { setenv("GCUDA_CUDA_P2P", "1", 1); }
        gcuda_backend_t a = gcuda_backend_cuda_init_params(&params);
        unsetenv("GCUDA_CUDA_P2P"); // read when the backend is made
        gcuda_backend_t b = gcuda_backend_cuda_init(1);
        struct place pa = place_begin(), pb = place_begin();
        struct gcuda_tensor *x = gcuda_new_tensor_1d(pa.ctx, GCUDA_TYPE_F32, 5),
                            *y = gcuda_new_tensor_1d(pb.ctx, GCUDA_TYPE_F32, 5);
        REQUIRE(a != NULL && b != NULL && place_alloc(&pa, a) && place_alloc(&pb, b));
        CHECK_OK(gcuda_backend_tensor_copy_async(a, b, x, y));
        CHECK_EQ_I(sim_counts("cudaDeviceEnablePeerAccess"), is_used ? 2 : 0);
        CHECK(peer_of(0, 1).is_probed == is_used);
        CHECK_OK(gcuda_backend_synchronize(b));
        place_end(&pa);
        place_end(&pb);
        gcuda_backend_free(a);
        gcuda_backend_free(b);
        if (i > 0) { CHECK(cudaStreamDestroy(stream) == cudaSuccess); }
        CHECK_EQ_I(sim_leaks(), 0);
    }
    clean();
}

TEST(events_and_copies_want_their_own_devices) {
    fresh(2, 64 * MB, 1);
    gcuda_backend_t a = gcuda_backend_cuda_init(0), b = gcuda_backend_cuda_init(1), cpu = gcuda_backend_cpu_init();
    gcuda_backend_event_t event = gcuda_backend_event_new(gcuda_backend_get_device(a));
    REQUIRE(a != NULL && b != NULL && cpu != NULL && event != NULL);
    CHECK(gcuda_backend_event_record(event, b) == GCUDA_STATUS_INVALID_ARGUMENT); // of another device
    CHECK_HAS(gcuda_last_error(), "CUDA0");
    CHECK(gcuda_backend_event_record(event, cpu) != GCUDA_STATUS_SUCCESS);
    CHECK(gcuda_backend_event_wait(cpu, event) != GCUDA_STATUS_SUCCESS);
    CHECK_OK(gcuda_backend_event_record(event, a));
    CHECK_OK(gcuda_backend_event_wait(b, event)); // another device may wait
    CHECK_OK(gcuda_backend_event_synchronize(event));
    // tensors on neither, or on the wrong one, are copied the blocking way after all queued work
    struct place pa = place_begin(), pb = place_begin(), pc = place_begin();
    struct gcuda_tensor *x = gcuda_new_tensor_1d(pa.ctx, GCUDA_TYPE_F32, 3),
                        *y = gcuda_new_tensor_1d(pb.ctx, GCUDA_TYPE_F32, 3),
                        *z = gcuda_new_tensor_1d(pc.ctx, GCUDA_TYPE_F32, 3);
    struct gcuda_tensor * part = gcuda_view_1d(pa.ctx, x, 3, 0);
    REQUIRE(place_alloc(&pa, a) && place_alloc(&pb, b) && place_alloc(&pc, cpu));
    float in[3] = { 1, 2, 3 }, out[3] = { 0, 0, 0 };
    CHECK_OK(gcuda_backend_tensor_set(z, in, 0, sizeof in));
    CHECK_OK(gcuda_backend_tensor_copy_async(cpu, a, z, x));
    CHECK_OK(gcuda_backend_tensor_copy_async(b, a, x, y)); // both backends are the wrong ones
    CHECK_OK(gcuda_backend_tensor_get(y, out, 0, sizeof out));
    CHECK(memcmp(in, out, sizeof in) == 0);
    CHECK_OK(gcuda_backend_tensor_memset(y, 0, 0, sizeof out));
    CHECK_OK(gcuda_backend_tensor_copy_async(a, b, part, y)); // a view: its owner decides
    CHECK_OK(gcuda_backend_tensor_get_async(b, y, out, 0, sizeof out));
    CHECK_OK(gcuda_backend_synchronize(b));
    CHECK(memcmp(in, out, sizeof in) == 0);
    gcuda_backend_event_free(event);
    place_end(&pa);
    place_end(&pb);
    place_end(&pc);
    gcuda_backend_free(a);
    gcuda_backend_free(b);
    gcuda_backend_free(cpu);
    clean();
}

// =====================================================================================================================
// >>buffers
// =====================================================================================================================
TEST(split_types_are_found_again_and_bad_shares_refused) {
    fresh(3, 64 * MB, 1);
    const float even[3] = { 1, 1, 1 }, twice[3] = { 2, 2, 2 }, other[3] = { 1, 2, 1 }, nothing[3] = { 0, 0, 0 },
                long_one[5] = { 1, 1, 1, 0, 0 }, too_long[4] = { 1, 1, 1, 1 };
    const float negative[3] = { 1, -1, 1 }, nan_[3] = { 1, (float) NAN, 1 }, inf[3] = { 1, (float) INFINITY, 1 };
    gcuda_backend_buffer_type_t t = gcuda_backend_cuda_split_buffer_type(0, even, 3);
    REQUIRE(t != NULL);
    CHECK(gcuda_backend_cuda_split_buffer_type(0, twice, 3) == t &&
          gcuda_backend_cuda_split_buffer_type(0, long_one, 5) == t);
    CHECK(gcuda_backend_cuda_split_buffer_type(0, NULL, 0) == t && // the same memory everywhere
          gcuda_backend_cuda_split_buffer_type(0, nothing, 3) == t);
    CHECK(gcuda_backend_cuda_split_buffer_type(1, even, 3) != t &&
          gcuda_backend_cuda_split_buffer_type(0, other, 3) != t);
    CHECK(strcmp(gcuda_backend_buft_name(t), "CUDA0_Split") == 0 && gcuda_backend_buft_get_alignment(t) == 128);
    CHECK(!gcuda_backend_buft_is_host(t) && gcuda_backend_buft_is_cuda_split(t));
    CHECK(!gcuda_backend_buft_is_cuda_split(gcuda_backend_cuda_buffer_type(0)) &&
          !gcuda_backend_buft_is_cuda_split(NULL));
    gcuda_backend_dev_t d0 = gcuda_backend_dev_by_name("CUDA0"), d1 = gcuda_backend_dev_by_name("CUDA1");
    CHECK(gcuda_backend_buft_get_device(t) == d0);
    CHECK(gcuda_backend_dev_supports_buft(d0, t) && !gcuda_backend_dev_supports_buft(d1, t));
    CHECK(gcuda_backend_cuda_split_buffer_type(3, even, 3) == NULL &&
          gcuda_backend_cuda_split_buffer_type(-1, even, 3) == NULL);
    CHECK(gcuda_backend_cuda_split_buffer_type(0, even, 2) == NULL);
    CHECK_HAS(gcuda_last_error(), "2 shares for 3 devices");
    CHECK(gcuda_backend_cuda_split_buffer_type(0, too_long, 4) == NULL);
    CHECK_HAS(gcuda_last_error(), "share 3");
    CHECK(gcuda_backend_cuda_split_buffer_type(0, negative, 3) == NULL);
    CHECK_HAS(gcuda_last_error(), "share 1 is -1");
    CHECK(gcuda_backend_cuda_split_buffer_type(0, nan_, 3) == NULL &&
          gcuda_backend_cuda_split_buffer_type(0, inf, 3) == NULL);
    clean();
}

// Every row is on one device, in order, and boundaries are multiples of the rounding.
static void check_rows(
    gcuda_backend_buffer_type_t t, const struct gcuda_tensor * w, int n_devices, const float * shares) {
    int64_t at = 0, low, high;
    const int64_t n = gcuda_nrows(w), rounding = GCUDA_SIM_CC >= 700 ? 128 : 64;
    for (int i = 0; i < n_devices; ++i) {
        CHECK_OK(gcuda_backend_cuda_get_split_rows(t, w, i, &low, &high));
        CHECK(low == at && high >= low && (high == n || high % rounding == 0));
        if (shares[i] == 0.0f) { CHECK_EQ_I(low, high); }
        at = high;
    }
    CHECK_EQ_I(at, n);
}

TEST(rows_are_dealt_out_by_one_rule) {
    static const float shares[][4] = { { 1, 1, 1, 1 }, { 5, 1, 2, 1 }, { 0, 1, 1, 1 }, { 1, 0, 0, 1 }, { 1, 1, 1, 0 },
        { 0, 0, 1, 0 }, { 0, 1, 0, 0 }, { 1e-6f, 1, 1, 1e-6f }, { 1, 0, 0, 0 } };
    fresh(4, 64 * MB, 1);
    struct place p = place_begin();
    for (size_t i = 0; i < sizeof shares / sizeof shares[0]; ++i) {
        gcuda_backend_buffer_type_t t = gcuda_backend_cuda_split_buffer_type(0, shares[i], 4);
        REQUIRE(t != NULL);
        for (int64_t n = 1; n < 2200; n += n < 300 ? 7 : 97) {
            struct gcuda_tensor * w = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, 1, n);
            check_rows(t, w, 4, shares[i]);
        }
    }
    // a remainder belongs to the last device with a share, not to a later one
    gcuda_backend_buffer_type_t t = gcuda_backend_cuda_split_buffer_type(0, shares[4], 4);
    struct gcuda_tensor * w = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, 32, 1000);
    int64_t low, high;
    CHECK_OK(gcuda_backend_cuda_get_split_rows(t, w, 2, &low, &high));
    CHECK(low == 640 && high == 1000); // for either rounding
    CHECK(gcuda_backend_cuda_get_split_rows(t, w, 4, &low, &high) == GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK(gcuda_backend_cuda_get_split_rows(gcuda_backend_cpu_buffer_type(), w, 0, &low, &high) ==
          GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK(gcuda_backend_cuda_get_split_data(w, 0) == NULL && gcuda_backend_cuda_get_split_data(NULL, 0) == NULL);
    // bytes: rows of 32 elements with a tail of 480 on each of three devices
    CHECK_EQ_I(gcuda_backend_buft_get_alloc_size(t, w), (1000 * 32 + 3 * 480) * 4);
    place_end(&p);
    clean();
}

TEST(split_buffers_set_get_clear_and_refuse_the_rest) {
    fresh(3, 64 * MB, 1);
    const float shares[3] = { 1, 2, 1 };
    gcuda_backend_buffer_type_t t = gcuda_backend_cuda_split_buffer_type(1, shares, 3);
    struct place p = place_begin(), plain = place_begin();
    struct gcuda_tensor *w = gcuda_set_name(gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, 40, 1030), "w"),
                        *v = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_Q4_0, 64, 700),
                        *e = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, 40, 0);
    struct gcuda_tensor * copy = gcuda_new_tensor_2d(plain.ctx, GCUDA_TYPE_F32, 40, 1030);
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    REQUIRE(t != NULL && backend != NULL && place_alloc(&plain, backend));
    p.buffer = gcuda_backend_alloc_ctx_tensors_from_buft(p.ctx, t);
    REQUIRE(p.buffer != NULL);
    (void) e;
    const size_t size = gcuda_nbytes(w);
    float *in = (float *) malloc(size), *out = (float *) malloc(size);
    for (size_t i = 0; i < size / 4; ++i) { in[i] = (float) i; }
    CHECK_OK(gcuda_backend_tensor_set(w, in, 0, size));
    CHECK_OK(gcuda_backend_tensor_get(w, out, 0, size));
    CHECK(memcmp(in, out, size) == 0);
    // each device has its rows, then zeros
    for (int i = 0; i < 3; ++i) {
        int64_t low, high;
        float tail[480];
        CHECK_OK(gcuda_backend_cuda_get_split_rows(t, w, i, &low, &high));
        const char * data = (const char *) gcuda_backend_cuda_get_split_data(w, i);
        REQUIRE(data != NULL && high > low);
        const size_t bytes = (size_t) (high - low) * 160;
        CHECK(cudaMemcpy(out, data, bytes, cudaMemcpyDeviceToHost) == cudaSuccess);
        CHECK(memcmp(out, in + low * 40, bytes) == 0);
        CHECK(cudaMemcpy(tail, data + bytes, 472 * 4, cudaMemcpyDeviceToHost) == cudaSuccess);
        for (int k = 0; k < 472; ++k) { CHECK(tail[k] == 0.0f); }
    }
    // copies go through the host, both ways
    CHECK_OK(gcuda_backend_tensor_copy(w, copy));
    CHECK_OK(gcuda_backend_buffer_clear(p.buffer, 0));
    CHECK_OK(gcuda_backend_tensor_get(w, out, 0, size));
    for (size_t i = 0; i < size / 4; ++i) { CHECK(out[i] == 0.0f); }
    CHECK_OK(gcuda_backend_tensor_copy(copy, w));
    CHECK_OK(gcuda_backend_tensor_get(w, out, 0, size));
    CHECK(memcmp(in, out, size) == 0);
    // parts
    CHECK(gcuda_backend_tensor_set(w, in, 0, size - 4) == GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_HAS(gcuda_last_error(), "CUDA1_Split");
    CHECK(gcuda_backend_tensor_set(w, in, 4, size - 4) == GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK(gcuda_backend_tensor_get(w, out, 160, 160) == GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK(gcuda_backend_tensor_memset(w, 0, 0, size) == GCUDA_STATUS_UNSUPPORTED);
    CHECK_HAS(gcuda_last_error(), "CUDA1_Split");
    CHECK(gcuda_backend_tensor_set_async(backend, w, in, 0, size) == GCUDA_STATUS_INVALID_ARGUMENT);
    // views and tensors with gaps
    struct gcuda_tensor * view = gcuda_view_2d(p.ctx, w, 40, 10, 160, 0);
    CHECK(gcuda_backend_view_init(view) == GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_HAS(gcuda_last_error(), "view");
    CHECK(view->buffer == NULL);
    // after a reset everything is to be placed anew
    CHECK(gcuda_backend_cuda_get_split_data(v, 1) != NULL);
    CHECK_OK(gcuda_backend_buffer_reset(p.buffer));
    size_t n_free = 0, n_total = 0;
    CHECK_OK(gcuda_backend_cuda_get_device_memory(2, &n_free, &n_total));
    CHECK_EQ_I(n_free, n_total);
    CHECK_OK(gcuda_backend_buffer_init_tensor(p.buffer, w));
    CHECK_OK(gcuda_backend_buffer_init_tensor(p.buffer, w)); // twice: the same memory
    CHECK(gcuda_backend_cuda_get_split_data(w, 1) != NULL && gcuda_backend_cuda_get_split_data(v, 1) == NULL);
    CHECK(gcuda_backend_tensor_set(v, in, 0, gcuda_nbytes(v)) == GCUDA_STATUS_INVALID_ARGUMENT); // not placed again
    CHECK_HAS(gcuda_last_error(), "no memory");
    CHECK_OK(gcuda_backend_tensor_set(w, in, 0, size));
    free(in);
    free(out);
    gcuda_backend_free(backend);
    place_end(&plain);
    place_end(&p);
    clean();
}

// A host allocator that hands out what was given back last.
static void * kept[64];
static size_t kept_size[64];
static int n_kept;
static void * last_alloc(void * user, size_t size, size_t alignment) {
    (void) user;
    void * ptr = NULL;
    for (int i = n_kept - 1; i >= 0; --i) {
        if (kept_size[i] == size && (uintptr_t) kept[i] % alignment == 0) {
            ptr = kept[i];
            for (int k = i; k + 1 < n_kept; ++k) {
                kept[k] = kept[k + 1];
                kept_size[k] = kept_size[k + 1];
            }
            n_kept--;
            return ptr;
        }
    }
    return posix_memalign(&ptr, alignment < sizeof ptr ? sizeof ptr : alignment, size) == 0 ? ptr : NULL;
}
static void last_free(void * user, void * ptr, size_t size) {
    (void) user;
    if (ptr == NULL || n_kept == 64) {
        free(ptr);
        return;
    }
    kept_size[n_kept] = size;
    kept[n_kept++] = ptr;
}

// A tensor's stale address of freed memory may now be that of another one.
TEST(placed_again_each_tensor_has_memory_of_its_own) {
    fresh(2, 64 * MB, 1);
    const struct gcuda_allocator allocator = { last_alloc, last_free, NULL };
    gcuda_backend_buffer_type_t t = gcuda_backend_cuda_split_buffer_type(0, NULL, 0);
    struct place p = place_begin();
    struct gcuda_tensor * w[3];
    float in[3][300], out[300];
    for (int i = 0; i < 3; ++i) { w[i] = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, 1, 300); }
    REQUIRE(t != NULL);
    gcuda_set_allocator(&allocator);
    p.buffer = gcuda_backend_alloc_ctx_tensors_from_buft(p.ctx, t);
    REQUIRE(p.buffer != NULL);
    CHECK_OK(gcuda_backend_buffer_reset(p.buffer));
    for (int i = 2; i >= 0; --i) { CHECK_OK(gcuda_backend_buffer_init_tensor(p.buffer, w[i])); }
    for (int i = 0; i < 3; ++i) {
        for (int k = 0; k < 300; ++k) { in[i][k] = (float) (i * 1000 + k); }
        CHECK_OK(gcuda_backend_tensor_set(w[i], in[i], 0, sizeof in[i]));
    }
    for (int i = 0; i < 3; ++i) {
        CHECK_OK(gcuda_backend_tensor_get(w[i], out, 0, sizeof out));
        CHECK_MSG(memcmp(in[i], out, sizeof out) == 0, "tensor %d has another's rows", i);
    }
    place_end(&p);
    gcuda_set_allocator(NULL);
    clean();
    while (n_kept > 0) { free(kept[--n_kept]); }
}

TEST(no_memory_on_one_device_undoes_the_rest) {
    fresh(3, 8 * MB, 1);
    void * taken = NULL;
    CHECK(cudaSetDevice(2) == cudaSuccess && cudaMalloc(&taken, 7 * MB) == cudaSuccess &&
          cudaSetDevice(0) == cudaSuccess);
    gcuda_backend_buffer_type_t t = gcuda_backend_cuda_split_buffer_type(0, NULL, 0);
    struct place p = place_begin();
    struct gcuda_tensor * small = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, 512, 384);
    struct gcuda_tensor * w = gcuda_set_name(gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, 512, 3 * 1024), "w");
    CHECK(gcuda_backend_alloc_ctx_tensors_from_buft(p.ctx, t) == NULL);
    CHECK_HAS(gcuda_last_error(), "'w'");
    CHECK_HAS(gcuda_last_error(), "CUDA2");
    CHECK_HAS(gcuda_last_error(), "free");
    CHECK(w->buffer == NULL && small->buffer == NULL);
    CHECK(cudaFree(taken) == cudaSuccess);
    CHECK_EQ_I(sim_leaks(), 0);
    p.buffer = gcuda_backend_alloc_ctx_tensors_from_buft(p.ctx, t); // fits now
    CHECK(p.buffer != NULL);
    place_end(&p);
    clean();
}

// =====================================================================================================================
// >>products
// =====================================================================================================================
struct product {
    enum gcuda_type a, b;
    int64_t k, m, n;
};

static float noise(uint64_t * state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float) (int32_t) (*state >> 33) / 1073741824.0f - 1.0f;
}

static void * random_rows(enum gcuda_type type, int64_t k, int64_t n, uint64_t seed) {
    float * f = (float *) malloc((size_t) (k * n) * sizeof *f);
    void * rows = malloc((size_t) n * gcuda_row_size(type, k));
    for (int64_t i = 0; i < k * n; ++i) { f[i] = noise(&seed); }
    CHECK_OK(gcuda_quantize_rows(type, f, rows, n, k, NULL, 1));
    free(f);
    return rows;
}

enum { M2 = 400 }; // rows of the second weight

// y = w2 sqr(w1 x) on the backend, weights in buffers of type t (NULL: plain ones), twice with different x, and nothing
// waits in between. Both results into out (page-locked).
static gcuda_status products_with(gcuda_backend_t backend, gcuda_backend_buffer_type_t t, const struct product * c,
    struct place * weights, struct place * p, gcuda_gallocr_t galloc, char * host) {
    struct gcuda_tensor *w1 = gcuda_new_tensor_2d(weights->ctx, c->a, c->k, c->m),
                        *w2 = gcuda_new_tensor_2d(weights->ctx, GCUDA_TYPE_F32, c->m, M2);
    struct gcuda_tensor * x = gcuda_new_tensor_2d(p->ctx, c->b, c->k, c->n);
    struct gcuda_tensor * y = gcuda_mul_mat(p->ctx, w2, gcuda_sqr(p->ctx, gcuda_mul_mat(p->ctx, w1, x)));
    struct gcuda_cgraph * graph = gcuda_new_graph(p->ctx);
    gcuda_status st = gcuda_build_forward_expand(graph, y);
    if (st != GCUDA_STATUS_SUCCESS) { return st; }
    gcuda_set_input(x);
    gcuda_set_output(y);
    weights->buffer =
        gcuda_backend_alloc_ctx_tensors_from_buft(weights->ctx, t ? t : gcuda_backend_get_default_buffer_type(backend));
    if (weights->buffer == NULL) { return GCUDA_STATUS_ALLOC_FAILED; }
    st = gcuda_gallocr_alloc_graph(galloc, graph);
    const size_t x_size = gcuda_nbytes(x), y_size = gcuda_nbytes(y);
    struct gcuda_tensor * w[2] = { w1, w2 };
    for (int i = 0; i < 2; ++i) {
        void *rows = random_rows(w[i]->type, w[i]->ne[0], w[i]->ne[1], (uint64_t) i + 1),
             *in = random_rows(c->b, c->k, c->n, (uint64_t) i + 3);
        if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_backend_tensor_set(w[i], rows, 0, gcuda_nbytes(w[i])); }
        memcpy(host + (size_t) i * x_size, in, x_size);
        free(rows);
        free(in);
    }
    for (size_t i = 0; i < 2; ++i) {
        if (st == GCUDA_STATUS_SUCCESS) {
            st = gcuda_backend_tensor_set_async(backend, x, host + i * x_size, 0, x_size);
        }
        if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_backend_graph_compute_async(backend, graph); }
        if (st == GCUDA_STATUS_SUCCESS) {
            st = gcuda_backend_tensor_get_async(backend, y, host + 2 * x_size + i * y_size, 0, y_size);
        }
    }
    const gcuda_status end = gcuda_backend_synchronize(backend);
    return st != GCUDA_STATUS_SUCCESS ? st : end;
}

static size_t result_size(const struct product * c) { return (size_t) (2 * M2 * c->n) * sizeof(float); }

// The caller frees the results; NULL on failure.
static float * products(gcuda_backend_t backend, gcuda_backend_buffer_type_t t, const struct product * c) {
    struct place weights = place_begin(), p = place_begin();
    const size_t x_size = (size_t) (2 * c->n) * gcuda_row_size(c->b, c->k);
    gcuda_gallocr_t galloc = gcuda_gallocr_new(gcuda_backend_get_default_buffer_type(backend));
    gcuda_backend_buffer_t host =
        gcuda_backend_buft_alloc_buffer(gcuda_backend_cuda_host_buffer_type(), x_size + result_size(c));
    float * out = NULL;
    if (galloc != NULL && host != NULL) {
        char * at = (char *) gcuda_backend_buffer_get_base(host);
        if (products_with(backend, t, c, &weights, &p, galloc, at) == GCUDA_STATUS_SUCCESS) {
            out = (float *) malloc(result_size(c));
            memcpy(out, at + x_size, result_size(c));
        }
    }
    gcuda_gallocr_free(galloc);
    place_end(&p);
    place_end(&weights);
    gcuda_backend_buffer_free(host);
    return out;
}

static float * whole(const struct product * c) {
    fresh(1, 64 * MB, 0);
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    float * y = products(backend, NULL, c);
    gcuda_backend_free(backend);
    CHECK_MSG(y != NULL, "%s", gcuda_last_error());
    return y;
}

struct setting {
    int n_devices, main_device, link; // link: sim_peer between any two
    enum gcuda_cuda_peer_mode mode;
    float shares[8];
    uint64_t seed;
};

static void split_once(const struct product * c, const struct setting * s, const float * wanted) {
    fresh(s->n_devices, 64 * MB, s->seed);
    for (int i = 0; i < s->n_devices; ++i) {
        for (int k = 0; k < s->n_devices; ++k) {
            if (i != k) { sim_peer(i, k, s->link); }
        }
    }
    gcuda_backend_buffer_type_t t = gcuda_backend_cuda_split_buffer_type(s->main_device, s->shares, s->n_devices);
    gcuda_backend_t backend = backend_with(s->main_device, s->mode, s->seed % 5 == 0);
    REQUIRE(t != NULL && backend != NULL);
    CHECK(cudaSetDevice(s->n_devices - 1) == cudaSuccess);
    float * y = products(backend, t, c);
    CHECK_MSG(y != NULL && memcmp(y, wanted, result_size(c)) == 0,
        "%s [%lld, %lld] x %lld on %d devices, main %d, shares %g %g %g, link %d, mode %d, seed %llu: %s",
        gcuda_type_name(c->a), (long long) c->k, (long long) c->m, (long long) c->n, s->n_devices, s->main_device,
        (double) s->shares[0], (double) s->shares[1], (double) s->shares[2], s->link, (int) s->mode,
        (unsigned long long) s->seed, y ? "wrong" : gcuda_last_error());
    int device = -1;
    CHECK(cudaGetDevice(&device) == cudaSuccess && device == s->n_devices - 1);
    free(y);
    gcuda_backend_free(backend);
    CHECK(sim_leaks() == 0 && sim_violations() == 0);
}

// Shares of up to 8 devices by number of devices; the main device must have rows of both weights.
static const struct setting settings[] = {
    { 1, 0, 1, GCUDA_CUDA_PEER_AUTO, { 1 }, 0 },
    { 2, 0, 1, GCUDA_CUDA_PEER_AUTO, { 1, 1 }, 0 },
    { 2, 1, 1, GCUDA_CUDA_PEER_AUTO, { 1, 1 }, 0 },
    { 2, 1, 1, GCUDA_CUDA_PEER_AUTO, { 0, 1 }, 0 },
    { 2, 0, 1, GCUDA_CUDA_PEER_AUTO, { 1, 0 }, 0 },
    { 3, 2, 1, GCUDA_CUDA_PEER_AUTO, { 1, 1, 1 }, 0 },
    { 3, 2, 1, GCUDA_CUDA_PEER_AUTO, { 1, 0, 1 }, 0 },
    { 3, 1, 1, GCUDA_CUDA_PEER_AUTO, { 1, 1, 0 }, 0 },
    { 3, 1, 1, GCUDA_CUDA_PEER_AUTO, { 0, 5, 2 }, 0 },
    { 4, 3, 1, GCUDA_CUDA_PEER_AUTO, { 2, 1, 1, 1 }, 0 },
    { 8, 7, 1, GCUDA_CUDA_PEER_AUTO, { 1, 1, 1, 1, 1, 1, 1, 1 }, 0 },
    { 8, 6, 1, GCUDA_CUDA_PEER_AUTO, { 0, 1, 0, 3, 0, 1, 2, 0 }, 0 },
    { 3, 2, 2, GCUDA_CUDA_PEER_AUTO, { 1, 1, 1 }, 0 },
    { 3, 2, 3, GCUDA_CUDA_PEER_AUTO, { 1, 1, 1 }, 0 },
    { 3, 2, 1, GCUDA_CUDA_PEER_OFF, { 1, 1, 1 }, 0 },
};
enum { N_SETTINGS = sizeof settings / sizeof settings[0] };

TEST(split_products_are_the_whole_bit_for_bit) {
    static const struct product cases[] = {
        { GCUDA_TYPE_F32, GCUDA_TYPE_F32, 40, 420, 3 }, { GCUDA_TYPE_F16, GCUDA_TYPE_F32, 40, 420, 17 },
        { GCUDA_TYPE_Q4_0, GCUDA_TYPE_F32, 64, 420, 1 }, { GCUDA_TYPE_Q8_0, GCUDA_TYPE_F32, 32, 400, 2 },
        { GCUDA_TYPE_BF16, GCUDA_TYPE_F16, 40, 450, 2 },
        { GCUDA_TYPE_F32, GCUDA_TYPE_F32, 8, 100, 2 }, // fewer rows than the rounding: all on the last
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        float * wanted = whole(&cases[i]);
        REQUIRE(wanted != NULL);
        for (int k = 0; k < N_SETTINGS; ++k) {
            struct setting s = settings[k];
            s.seed = i;
            const bool is_small = cases[i].m < 128;
            int last = 0;
            for (int d = 0; d < s.n_devices; ++d) { last = s.shares[d] > 0.0f ? d : last; }
            if (!is_small || s.main_device == last) { split_once(&cases[i], &s, wanted); }
        }
        free(wanted);
    }
    clean();
}

// Device memory in places of a mebibyte: the one that was freed last comes first.
static struct {
    void * free[2][16];
    int n_free[2];
} places;

static void * places_alloc(void * user, int device, size_t size) {
    void * at = NULL;
    (void) user;
    if (size > MB) { return NULL; }
    return places.n_free[device] > 0            ? places.free[device][--places.n_free[device]]
           : cudaMalloc(&at, MB) == cudaSuccess ? at
                                                : NULL;
}

static void places_free(void * user, int device, void * ptr, size_t size) {
    (void) user;
    (void) size;
    places.free[device][places.n_free[device]++] = ptr;
}

// The same graph, and weights of other shares where the former ones lay: its CUDA graph has to follow.
TEST(other_shares_at_the_same_addresses) {
    static const struct product c = { GCUDA_TYPE_F32, GCUDA_TYPE_F32, 40, 420, 3 };
    static const float shares[2][2] = { { 1, 2 }, { 2, 1 } };
    float * wanted = whole(&c);
    REQUIRE(wanted != NULL);
    fresh(2, 64 * MB, 0);
    recycled_begin();
    struct gcuda_cuda_params params;
    memset(&params, 0, sizeof params);
    params.pool = GCUDA_CUDA_POOL_BEST_FIT;
    params.graphs = GCUDA_CUDA_ON;
    gcuda_backend_t backend = gcuda_backend_cuda_init_params(&params);
    REQUIRE(backend != NULL);
    struct gcuda_cuda_memory_params mine;
    memset(&mine, 0, sizeof mine);
    memset(&places, 0, sizeof places);
    mine.device.alloc = places_alloc;
    mine.device.free = places_free;
    CHECK_OK(gcuda_backend_cuda_set_memory(&mine));
    for (int i = 0; i < 6; ++i) {
        float * y = products(backend, gcuda_backend_cuda_split_buffer_type(0, shares[i % 2], 2), &c);
        CHECK_MSG(
            y != NULL && memcmp(y, wanted, result_size(&c)) == 0, "run %d: %s", i, y ? "wrong" : gcuda_last_error());
        free(y);
    }
    struct gcuda_cuda_plan_stats stats;
    CHECK_OK(gcuda_backend_cuda_get_plan_stats(backend, &stats));
    CHECK(stats.n_made == 1 && stats.n_updated >= 5); // or nothing lay where it had
    gcuda_backend_free(backend);
    for (int d = 0; d < 2; ++d) {
        while (places.n_free[d] > 0) { CHECK(cudaFree(places.free[d][--places.n_free[d]]) == cudaSuccess); }
    }
    free(wanted);
    clean();
}

TEST(any_number_of_columns) {
    for (int64_t n = 1; n <= 130; n += n < 3 ? 1 : n < 120 ? 31 : 1) {
        const struct product c = { GCUDA_TYPE_F32, GCUDA_TYPE_F32, 8, 420, n };
        float * wanted = whole(&c);
        REQUIRE(wanted != NULL);
        struct setting s = settings[5];
        s.seed = (uint64_t) n;
        split_once(&c, &s, wanted);
        s.mode = GCUDA_CUDA_PEER_OFF;
        split_once(&c, &s, wanted);
        free(wanted);
    }
    clean();
}

// of two runs: from 7.0 on the second is a CUDA graph
enum { N_EAGER = GCUDA_SIM_CC >= 700 ? 1 : 2 };

static long n_direct_copies(void) { return sim_counts("cudaMemcpyPeerAsync") + sim_counts("cudaMemcpy3DPeerAsync"); }

// Direct copies are for products with few columns, unless NVLink joins the devices or the caller says otherwise.
TEST(the_number_of_columns_decides_about_direct_copies) {
    static const struct {
        int link;
        int64_t peer_max_batch, n;
        bool is_direct;
    } cases[] = { { 1, 0, 128, true }, { 1, 0, 129, false }, { 4, 0, 129, true }, { 1, -1, 129, true },
        { 1, 4, 4, true }, { 1, 4, 5, false }, { 4, 4, 5, false } };
    CHECK_EQ_I(GCUDA_CUDA_PEER_MAX_BATCH_SIZE, 128);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        const struct product c = { GCUDA_TYPE_F32, GCUDA_TYPE_F32, 8, 420, cases[i].n };
        struct gcuda_cuda_params params;
        float * wanted = whole(&c);
        fresh(2, 64 * MB, i);
        sim_peer(0, 1, cases[i].link);
        sim_peer(1, 0, cases[i].link);
        CHECK_OK(gcuda_backend_cuda_probe_peer(0, 1));
        CHECK(peer_of(0, 1).is_in_use && peer_of(0, 1).is_linked == (cases[i].link == 4));
        memset(&params, 0, sizeof params);
        params.device = 1;
        params.peer_max_batch = cases[i].peer_max_batch;
        gcuda_backend_t backend = gcuda_backend_cuda_init_params(&params);
        const long before = n_direct_copies();
        struct gcuda_cuda_stats stats;
        float * y = products(backend, gcuda_backend_cuda_split_buffer_type(1, NULL, 0), &c);
        CHECK_MSG((n_direct_copies() > before) == cases[i].is_direct, "case %d: %ld direct copies", (int) i,
            n_direct_copies() - before);
        CHECK_OK(gcuda_backend_cuda_get_stats(backend, &stats));
        CHECK_MSG((stats.pinned >= 4 * MB) == !cases[i].is_direct, "case %d: %d bytes for staging", (int) i,
            (int) stats.pinned);
        CHECK_MSG(y != NULL && wanted != NULL && memcmp(y, wanted, result_size(&c)) == 0, "case %d: wrong", (int) i);
        CHECK(peer_of(0, 1).is_in_use); // nothing is switched for it
        free(y);
        free(wanted);
        gcuda_backend_free(backend);
        CHECK(sim_leaks() == 0 && sim_violations() == 0);
    }
    clean();
}

// Direct copies of two products, on one other device: those of operands and of results of each strip, in each run that
// is no CUDA graph.
TEST(strips_of_columns_are_the_whole_bit_for_bit) {
    static const struct product cases[] = { { GCUDA_TYPE_F32, GCUDA_TYPE_F32, 8, 420, 20 },
        { GCUDA_TYPE_F16, GCUDA_TYPE_F32, 40, 420, 17 }, { GCUDA_TYPE_BF16, GCUDA_TYPE_F16, 40, 450, 9 } };
    static const struct {
        int64_t strip, n_strips; // of the first product
    } turns[] = { { 6, 3 }, { 1, 20 }, { 10, 2 }, { 11, 1 }, { 64, 1 }, { -1, 1 } };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        float * wanted = whole(&cases[i]);
        REQUIRE(wanted != NULL);
        for (size_t k = 0; k < sizeof turns / sizeof turns[0]; ++k) {
            strip_columns = turns[k].strip;
            for (uint64_t seed = 0; seed < (test_full() ? 20u : 4u); ++seed) {
                struct setting s = settings[1];
                s.seed = seed;
                split_once(&cases[i], &s, wanted);
                // 4: of the probe
                if (i == 0) { CHECK_EQ_I(n_direct_copies(), 4 + 2 * 2 * N_EAGER * turns[k].n_strips); }
            }
            struct setting s = settings[5];
            s.seed = k;
            for (s.link = 1; s.link <= 4; ++s.link) { split_once(&cases[i], &s, wanted); } // no strips but with access
        }
        strip_columns = 0;
        free(wanted);
    }
    clean();
}

// With peer access a product with few columns copies nothing; into and out of memory of the caller's allocator it does.
TEST(few_columns_are_read_and_written_where_they_are) {
    static const struct product cases[] = { { GCUDA_TYPE_Q4_0, GCUDA_TYPE_F32, 64, 420, 1 },
        { GCUDA_TYPE_Q8_0, GCUDA_TYPE_F32, 32, 400, 2 } };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        float * wanted = whole(&cases[i]);
        REQUIRE(wanted != NULL);
        for (int link = 1; link <= 2; ++link) { // with access, and with copies by the driver
            struct setting s = settings[1];
            s.seed = i;
            s.link = link;
            split_once(&cases[i], &s, wanted);
            // those of the probes, of operands and of results
            CHECK_EQ_I(n_direct_copies(), link == 1 ? 4 : 5 + 2 * 2 * 2);
        }
        free(wanted);
    }
    clean();
}

TEST(split_products_are_ordered_for_every_seed) {
    static const struct product cases[] = { { GCUDA_TYPE_F32, GCUDA_TYPE_F32, 8, 420, 2 },
        { GCUDA_TYPE_Q4_0, GCUDA_TYPE_F32, 32, 420, 1 } };
    float * wanted[2] = { whole(&cases[0]), whole(&cases[1]) };
    REQUIRE(wanted[0] != NULL && wanted[1] != NULL);
    for (uint64_t seed = 0; seed < (test_full() ? 200u : 40u); ++seed) {
        for (int i = 0; i < 3; ++i) { // direct, by the driver, through the host
            struct setting s = settings[5];
            s.seed = seed;
            s.link = 1 + i;
            split_once(&cases[seed % 2], &s, wanted[seed % 2]);
        }
    }
    free(wanted[0]);
    free(wanted[1]);
    clean();
}

// The graph's result y: in the first turn it is what is wanted of the others, which have the same bits. The caller
// frees it.
static float * same_as_before(
    gcuda_backend_t backend, struct gcuda_cgraph * graph, const struct gcuda_tensor * y, int turn, float * wanted) {
    float * out = (float *) malloc(gcuda_nbytes(y));
    CHECK_OK(gcuda_backend_graph_compute(backend, graph));
    CHECK_OK(gcuda_backend_tensor_get(y, out, 0, gcuda_nbytes(y)));
    if (turn == 0) { return out; }
    CHECK_MSG(memcmp(out, wanted, gcuda_nbytes(y)) == 0, "turn %d", turn);
    free(out);
    return wanted;
}

// A second operand whose rows overlap (stride 0) or have gaps is still copied to the other devices.
TEST(operands_with_any_strides) {
    float * wanted = NULL;
    for (int turn = 0; turn < 4; ++turn) { // whole; direct, by the driver, through the host
        const int n_devices = turn == 0 ? 1 : 3;
        fresh(n_devices, 64 * MB, (uint64_t) turn);
        for (int i = 0; i < 3 && turn == 2; ++i) { sim_peer(i, 2, 0); }
        gcuda_backend_t backend = backend_on(n_devices - 1, turn == 3 ? GCUDA_CUDA_PEER_OFF : GCUDA_CUDA_PEER_AUTO);
        gcuda_backend_buffer_type_t t =
            turn == 0 ? gcuda_backend_cuda_buffer_type(0) : gcuda_backend_cuda_split_buffer_type(2, NULL, 0);
        struct place weights = place_begin(), p = place_begin();
        struct gcuda_tensor * w = gcuda_new_tensor_2d(weights.ctx, GCUDA_TYPE_Q8_0, 32, 420);
        struct gcuda_tensor * x = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, 48, 5);
        struct gcuda_tensor * apart = gcuda_mul_mat(p.ctx, w, gcuda_view_2d(p.ctx, x, 32, 5, 48 * 4, 16));
        struct gcuda_tensor * same = gcuda_mul_mat(p.ctx, w, gcuda_view_2d(p.ctx, x, 32, 3, 0, 64));
        struct gcuda_tensor * over = gcuda_mul_mat(p.ctx, w, gcuda_view_2d(p.ctx, x, 32, 7, 4, 0));
        struct gcuda_tensor * y = gcuda_concat(p.ctx, gcuda_concat(p.ctx, apart, same, 1), over, 1);
        struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
        CHECK_OK(gcuda_build_forward_expand(graph, y));
        weights.buffer = gcuda_backend_alloc_ctx_tensors_from_buft(weights.ctx, t);
        REQUIRE(backend != NULL && weights.buffer != NULL && place_alloc(&p, backend));
        void *rows = random_rows(w->type, 32, 420, 5), *in = random_rows(GCUDA_TYPE_F32, 48, 5, 6);
        CHECK_OK(gcuda_backend_tensor_set(w, rows, 0, gcuda_nbytes(w)));
        CHECK_OK(gcuda_backend_tensor_set(x, in, 0, gcuda_nbytes(x)));
        wanted = same_as_before(backend, graph, y, turn, wanted);
        free(rows);
        free(in);
        place_end(&p);
        place_end(&weights);
        gcuda_backend_free(backend);
        CHECK(sim_leaks() == 0);
    }
    free(wanted);
    clean();
}

// Plans with copies between the devices, also after a product of weights on one device, whose plan may be found again.
// If the driver stages those copies, CUDA refuses a capture.
static float * three_times(gcuda_backend_t backend, gcuda_backend_buffer_type_t t, const struct product * c) {
    struct place weights = place_begin(), p = place_begin();
    struct gcuda_tensor *w = gcuda_new_tensor_2d(weights.ctx, c->a, c->k, c->m),
                        *x = gcuda_new_tensor_2d(p.ctx, c->b, c->k, c->n);
    struct gcuda_tensor * y = gcuda_mul_mat(p.ctx, w, x);
    struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
    void *rows = random_rows(c->a, c->k, c->m, 1), *in = random_rows(c->b, c->k, c->n, 2);
    float * out = (float *) malloc(gcuda_nbytes(y));
    CHECK_OK(gcuda_build_forward_expand(graph, y));
    weights.buffer = gcuda_backend_alloc_ctx_tensors_from_buft(weights.ctx, t);
    if (weights.buffer == NULL || !place_alloc(&p, backend)) {
        CHECK_MSG(false, "%s", gcuda_last_error());
    } else {
        CHECK_OK(gcuda_backend_tensor_set(w, rows, 0, gcuda_nbytes(w)));
        CHECK_OK(gcuda_backend_tensor_set(x, in, 0, gcuda_nbytes(x)));
        for (int i = 0; i < 3; ++i) { CHECK_OK(gcuda_backend_graph_compute(backend, graph)); }
        CHECK_OK(gcuda_backend_tensor_get(y, out, 0, gcuda_nbytes(y)));
    }
    free(rows);
    free(in);
    place_end(&p);
    place_end(&weights);
    return out;
}

TEST(split_products_are_cuda_graphs_too) {
    static const struct product cases[] = { { GCUDA_TYPE_F32, GCUDA_TYPE_F32, 8, 420, 1 },
        { GCUDA_TYPE_F32, GCUDA_TYPE_F32, 8, 420, 20 }, { GCUDA_TYPE_Q4_0, GCUDA_TYPE_F32, 32, 420, 1 },
        { GCUDA_TYPE_Q8_0, GCUDA_TYPE_F32, 32, 420, 20 } };
    static const float shares[8] = { 1, 1 };
    for (int i = 0; i < 8; ++i) {
        const struct product * c = &cases[i % 4];
        const int link = i < 4 ? 4 : 2; // NVLink, or promised access that loses data
        struct gcuda_cuda_plan_stats before, after;
        fresh(2, 64 * MB, (uint64_t) i);
        sim_peer(0, 1, link);
        sim_peer(1, 0, link);
        gcuda_backend_t backend = backend_with(0, GCUDA_CUDA_PEER_AUTO, false);
        REQUIRE(backend != NULL);
        float * wanted = three_times(backend, gcuda_backend_get_default_buffer_type(backend), c);
        CHECK_OK(gcuda_backend_cuda_get_plan_stats(backend, &before));
        float * y = three_times(backend, gcuda_backend_cuda_split_buffer_type(0, shares, 2), c);
        CHECK_OK(gcuda_backend_cuda_get_plan_stats(backend, &after));
        CHECK(peer_of(0, 1).is_in_use == (link == 4));
        // the first makes what is needed
        CHECK_MSG(after.n_graph_launches - before.n_graph_launches == (link == 4 && GCUDA_SIM_CC >= 700 ? 2 : 0),
            "case %d: %d CUDA graphs launched", i, (int) (after.n_graph_launches - before.n_graph_launches));
        CHECK_MSG(
            memcmp(y, wanted, (size_t) (c->m * c->n) * sizeof(float)) == 0, "case %d: wrong with split weights", i);
        free(y);
        free(wanted);
        gcuda_backend_free(backend);
        CHECK(sim_leaks() == 0 && sim_violations() == 0);
    }
    clean();
}

// The first time needs allocations and waiting; from then on all of it can be captured and replayed.
TEST(captured_products_and_copies) {
    for (int turn = 0; turn < 2; ++turn) {
        struct gcuda_cuda_params params;
        cudaStream_t stream = NULL;
        cudaGraph_t captured = NULL;
        cudaGraphExec_t replay = NULL;
        fresh(3, 64 * MB, (uint64_t) turn);
        memset(&params, 0, sizeof params);
        CHECK(cudaSetDevice(2) == cudaSuccess &&
              cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
        params.device = 2;
        params.stream = stream;
        params.peer = turn == 0 ? GCUDA_CUDA_PEER_ON : GCUDA_CUDA_PEER_OFF;
        params.peer_max_batch = 1; // of its two columns: staged, but directly into the capture
        gcuda_backend_t backend = gcuda_backend_cuda_init_params(&params), other = gcuda_backend_cuda_init(0);
        struct place weights = place_begin(), p = place_begin(), po = place_begin();
        struct gcuda_tensor * w = gcuda_new_tensor_2d(weights.ctx, GCUDA_TYPE_Q4_0, 32, 420);
        struct gcuda_tensor * x = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, 32, 2);
        struct gcuda_tensor * z = gcuda_new_tensor_2d(po.ctx, GCUDA_TYPE_F32, 32, 2);
        struct gcuda_tensor * y = gcuda_mul_mat(p.ctx, w, x);
        struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
        CHECK_OK(gcuda_build_forward_expand(graph, y));
        weights.buffer =
            gcuda_backend_alloc_ctx_tensors_from_buft(weights.ctx, gcuda_backend_cuda_split_buffer_type(2, NULL, 0));
        REQUIRE(backend && other && weights.buffer != NULL && place_alloc(&p, backend) && place_alloc(&po, other));
        void *rows = random_rows(w->type, 32, 420, 5), *in = random_rows(GCUDA_TYPE_F32, 32, 2, 6);
        CHECK_OK(gcuda_backend_tensor_set(w, rows, 0, gcuda_nbytes(w)));
        CHECK_OK(gcuda_backend_tensor_set(x, in, 0, gcuda_nbytes(x)));
        CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
        CHECK(gcuda_backend_graph_compute_async(backend, graph) == GCUDA_STATUS_FAILED);
        CHECK_HAS(gcuda_last_error(), "capture");
        CHECK(gcuda_backend_tensor_copy_async(backend, other, x, z) == GCUDA_STATUS_FAILED);
        CHECK_HAS(gcuda_last_error(), "capture");
        CHECK(!peer_of(0, 2).is_probed && !peer_of(2, 0).is_probed);
        CHECK(cudaStreamEndCapture(stream, &captured) == cudaSuccess && cudaGraphDestroy(captured) == cudaSuccess);
        captured = NULL;
        float wanted[840], out[840];
        CHECK_OK(gcuda_backend_graph_compute(backend, graph)); // usable, and from now on everything is allocated
        CHECK_OK(gcuda_backend_tensor_get(y, wanted, 0, sizeof wanted));
        CHECK_OK(gcuda_backend_tensor_memset(y, 0, 0, sizeof wanted));
        CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
        const gcuda_status st = gcuda_backend_graph_compute_async(backend, graph);
        CHECK(st == (turn == 0 ? GCUDA_STATUS_SUCCESS : GCUDA_STATUS_FAILED)); // staging does not go into captures
        if (turn == 0) {
            CHECK(cudaStreamEndCapture(stream, &captured) == cudaSuccess);
            CHECK(cudaGraphInstantiate(&replay, captured, 0) == cudaSuccess);
            for (int i = 0; i < 3; ++i) { CHECK(cudaGraphLaunch(replay, stream) == cudaSuccess); }
            CHECK_OK(gcuda_backend_synchronize(backend));
            CHECK(cudaGraphExecDestroy(replay) == cudaSuccess);
            CHECK_OK(gcuda_backend_tensor_get(y, out, 0, sizeof out));
            CHECK(memcmp(out, wanted, sizeof out) == 0 && out[839] != 0.0f);
        } else {
            CHECK_HAS(gcuda_last_error(), "through host memory");
            (void) cudaStreamEndCapture(stream, &captured); // unjoined
            (void) cudaGetLastError();
        }
        if (captured != NULL) { CHECK(cudaGraphDestroy(captured) == cudaSuccess); }
        CHECK_OK(gcuda_backend_tensor_memset(y, 0, 0, sizeof wanted));
        CHECK_OK(gcuda_backend_graph_compute(backend, graph)); // and after it as before
        CHECK_OK(gcuda_backend_tensor_get(y, out, 0, sizeof out));
        CHECK(memcmp(out, wanted, sizeof out) == 0);
        free(rows);
        free(in);
        place_end(&p);
        place_end(&po);
        place_end(&weights);
        gcuda_backend_free(backend);
        gcuda_backend_free(other);
        CHECK(cudaStreamDestroy(stream) == cudaSuccess);
        CHECK(sim_leaks() == 0 && sim_violations() == 0);
    }
    clean();
}

static void check_refused(gcuda_backend_t backend, struct gcuda_tensor * y, const char * why) {
    struct gcuda_context * ctx = gcuda_init((struct gcuda_init_params){ 0, NULL, true });
    struct gcuda_cgraph * graph = gcuda_new_graph(ctx);
    REQUIRE(y != NULL);
    CHECK_OK(gcuda_build_forward_expand(graph, y));
    gcuda_clear_last_error();
    CHECK_MSG(!gcuda_backend_supports_op(backend, y), "%s is supported", gcuda_op_desc(y));
    CHECK_HAS(gcuda_last_error(), why);
    const long launches = sim_counts("cudaLaunchKernelEx");
    gcuda_clear_last_error();
    CHECK(gcuda_backend_graph_compute(backend, graph) != GCUDA_STATUS_SUCCESS);
    CHECK_HAS(gcuda_last_error(), why);
    CHECK_EQ_I(sim_counts("cudaLaunchKernelEx"), launches);
    gcuda_free(ctx);
}

TEST(all_but_the_weights_of_a_product_is_refused) {
    fresh(2, 64 * MB, 1);
    const float shares[2] = { 1, 1 };
    gcuda_backend_t a = gcuda_backend_cuda_init(0), b = gcuda_backend_cuda_init(1), cpu = gcuda_backend_cpu_init();
    struct place weights = place_begin(), p = place_begin();
    struct gcuda_tensor *w = gcuda_set_name(gcuda_new_tensor_2d(weights.ctx, GCUDA_TYPE_F32, 16, 300), "w"),
                        *small = gcuda_set_name(gcuda_new_tensor_2d(weights.ctx, GCUDA_TYPE_F32, 16, 100), "small"),
                        *cube = gcuda_set_name(gcuda_new_tensor_3d(weights.ctx, GCUDA_TYPE_F32, 16, 300, 2), "cube"),
                        *flat = gcuda_set_name(gcuda_new_tensor_3d(weights.ctx, GCUDA_TYPE_F32, 16, 100, 2), "flat");
    weights.buffer =
        gcuda_backend_alloc_ctx_tensors_from_buft(weights.ctx, gcuda_backend_cuda_split_buffer_type(0, shares, 2));
    struct gcuda_tensor *x = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, 16, 3),
                        *x3 = gcuda_new_tensor_3d(p.ctx, GCUDA_TYPE_F32, 16, 3, 2),
                        *ids = gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_I32, 2),
                        *ids2 = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_I32, 1, 2),
                        *ids4 = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_I32, 300, 2),
                        *x1 = gcuda_new_tensor_3d(p.ctx, GCUDA_TYPE_F32, 16, 1, 2);
    struct gcuda_tensor *good = gcuda_mul_mat(p.ctx, w, x), *good_experts = gcuda_mul_mat_id(p.ctx, cube, x1, ids2);
    REQUIRE(a != NULL && b != NULL && cpu != NULL && weights.buffer != NULL && place_alloc(&p, a));
    CHECK(gcuda_backend_supports_op(a, good) && gcuda_backend_supports_op(a, good_experts));
    check_refused(a, gcuda_sqr(p.ctx, w), "only mul_mat and mul_mat_id take it");
    check_refused(a, gcuda_add(p.ctx, w, w), "'w' is in a CUDA0_Split buffer");
    check_refused(a, gcuda_get_rows(p.ctx, w, ids), "only mul_mat and mul_mat_id take it");
    check_refused(a, gcuda_mul_mat(p.ctx, x, w), "as their first operand");
    check_refused(a, gcuda_mul_mat_id(p.ctx, x3, cube, ids4), "as their first operand");
    check_refused(
        a, gcuda_mul_mat_id(p.ctx, gcuda_view_3d(p.ctx, cube, 16, 200, 2, 64, 64 * 300, 0), x1, ids2), "CUDA0_Split");
    check_refused(a, gcuda_mul_mat_id(p.ctx, flat, x1, ids2), "no row of 'flat' is on CUDA0");
    check_refused(a, gcuda_out_prod(p.ctx, w, w), "only mul_mat and mul_mat_id take it");
    check_refused(a, gcuda_mul_mat(p.ctx, cube, x3), "single matrices");
    check_refused(a, gcuda_mul_mat(p.ctx, w, x3), "single matrices");
    check_refused(a, gcuda_mul_mat(p.ctx, gcuda_view_2d(p.ctx, w, 16, 200, 64, 0), x), "CUDA0_Split");
    check_refused(a, gcuda_mul_mat(p.ctx, small, x), "no row of 'small' is on CUDA0");
    struct gcuda_tensor * free_x = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, 16, 3); // has no memory yet
    check_refused(b, gcuda_mul_mat(p.ctx, w, free_x), "main device is not CUDA1");
    struct gcuda_tensor * in_place = gcuda_cpy(p.ctx, x, gcuda_view_2d(p.ctx, w, 16, 3, 64, 0));
    check_refused(a, in_place, "CUDA0_Split");
    struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
    CHECK_OK(gcuda_build_forward_expand(graph, good));
    CHECK(gcuda_backend_graph_compute(cpu, graph) != GCUDA_STATUS_SUCCESS); // but not from these buffers
    place_end(&p);
    place_end(&weights);
    gcuda_backend_free(a);
    gcuda_backend_free(b);
    gcuda_backend_free(cpu);
    clean();
}

// ---- a context of the caller's ----

typedef int (*context_create_fn)(struct CUctx_st ** context, void * params, unsigned flags, int device);
typedef int (*context_of_fn)(struct CUctx_st ** context);
typedef int (*context_fn)(struct CUctx_st * context);

static void driver_find(const char * name, unsigned version, void * out) {
    enum cudaDriverEntryPointQueryResult found;
    void * address = NULL;
    CHECK(cudaGetDriverEntryPointByVersion(name, &address, version, cudaEnableDefault, &found) == cudaSuccess);
    memcpy(out, &address, sizeof address);
}

// Whatever context the caller has current, weights, probes and copies are the devices' own.
TEST(a_context_of_the_callers_is_left_alone) {
    const struct product c = { GCUDA_TYPE_F32, GCUDA_TYPE_F32, 8, 420, 2 };
    float * wanted = whole(&c);
    for (int mode = GCUDA_CUDA_PEER_AUTO; mode <= GCUDA_CUDA_PEER_OFF; mode += 2) {
        context_create_fn create;
        context_of_fn now;
        context_fn destroy, set;
        struct CUctx_st *mine = NULL, *current = NULL;
        fresh(3, 64 * MB, 1);
        driver_find("cuCtxCreate", 12050, &create);
        driver_find("cuCtxGetCurrent", 4000, &now);
        driver_find("cuCtxSetCurrent", 4000, &set);
        driver_find("cuCtxDestroy", 4000, &destroy);
        CHECK(create(&mine, NULL, 0, 1) == 0 && set(mine) == 0);
        gcuda_backend_t backend = backend_on(2, (enum gcuda_cuda_peer_mode) mode);
        gcuda_backend_buffer_type_t t = gcuda_backend_cuda_split_buffer_type(2, NULL, 0);
        float * y = products(backend, t, &c);
        CHECK_MSG(y != NULL && memcmp(y, wanted, result_size(&c)) == 0, "%s", gcuda_last_error());
        CHECK(now(&current) == 0 && current == mine);
        // a backend in it cannot reach such weights, which are in the device's own context
        struct gcuda_cuda_params params;
        memset(&params, 0, sizeof params);
        params.device = 1;
        params.context = mine;
        gcuda_backend_t inside = gcuda_backend_cuda_init_params(&params);
        struct place weights = place_begin(), p = place_begin();
        struct gcuda_tensor * w = gcuda_new_tensor_2d(weights.ctx, GCUDA_TYPE_F32, 16, 420);
        weights.buffer =
            gcuda_backend_alloc_ctx_tensors_from_buft(weights.ctx, gcuda_backend_cuda_split_buffer_type(1, NULL, 0));
        REQUIRE(inside != NULL && weights.buffer != NULL);
        CHECK(!gcuda_backend_supports_op(
            inside, gcuda_mul_mat(p.ctx, w, gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, 16, 2))));
        CHECK_HAS(gcuda_last_error(), "context of the caller's");
        free(y);
        place_end(&p);
        place_end(&weights);
        gcuda_backend_free(inside);
        gcuda_backend_free(backend);
        gcuda_shutdown();
        CHECK(now(&current) == 0 && current == mine);
        CHECK(set(NULL) == 0 && destroy(mine) == 0);
        CHECK(sim_leaks() == 0 && sim_violations() == 0);
    }
    free(wanted);
    clean();
}

// ---- one weight, several backends ----

struct worker {
    struct gcuda_tensor * w;
    int device, n_turns;
    float out[420 * 2];
    gcuda_status status;
};

static void * worker_main(void * arg) {
    struct worker * t = (struct worker *) arg;
    struct place p = place_begin();
    gcuda_backend_t backend = gcuda_backend_cuda_init(t->device);
    struct gcuda_tensor * x = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, 32, 2);
    struct gcuda_tensor * y = gcuda_mul_mat(p.ctx, t->w, x);
    struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
    t->status = gcuda_build_forward_expand(graph, y);
    if (backend == NULL || !place_alloc(&p, backend)) { t->status = GCUDA_STATUS_FAILED; }
    float * in = (float *) random_rows(GCUDA_TYPE_F32, 32, 2, 9);
    for (int i = 0; i < t->n_turns && t->status == GCUDA_STATUS_SUCCESS; ++i) {
        t->status = gcuda_backend_tensor_set_async(backend, x, in, 0, 256);
        if (t->status == GCUDA_STATUS_SUCCESS) { t->status = gcuda_backend_graph_compute(backend, graph); }
        if (t->status == GCUDA_STATUS_SUCCESS) { t->status = gcuda_backend_tensor_get(y, t->out, 0, sizeof t->out); }
    }
    free(in);
    place_end(&p);
    gcuda_backend_free(backend);
    return NULL;
}

TEST(one_weight_in_several_threads) {
    enum { N_THREADS = 3 };
    for (int link = 1; link <= 3; ++link) {
        fresh(3, 64 * MB, (uint64_t) link);
        for (int i = 0; i < 9; ++i) {
            if (i / 3 != i % 3) { sim_peer(i / 3, i % 3, link); }
        }
        struct place weights = place_begin();
        struct gcuda_tensor * w = gcuda_new_tensor_2d(weights.ctx, GCUDA_TYPE_Q4_0, 32, 420);
        gcuda_set_name(w, "w"); // or each thread's graph would give it one
        weights.buffer =
            gcuda_backend_alloc_ctx_tensors_from_buft(weights.ctx, gcuda_backend_cuda_split_buffer_type(2, NULL, 0));
        REQUIRE(weights.buffer != NULL);
        void * rows = random_rows(GCUDA_TYPE_Q4_0, 32, 420, 8);
        CHECK_OK(gcuda_backend_tensor_set(w, rows, 0, gcuda_nbytes(w)));
        free(rows);
        static struct worker workers[N_THREADS];
        pthread_t threads[N_THREADS];
        for (int i = 0; i < N_THREADS; ++i) {
            workers[i].w = w;
            workers[i].device = 2;
            workers[i].n_turns = link == 1 ? 3 : 2;
            memset(workers[i].out, 0, sizeof workers[i].out);
            REQUIRE(pthread_create(&threads[i], NULL, worker_main, &workers[i]) == 0);
        }
        for (int i = 0; i < N_THREADS; ++i) { pthread_join(threads[i], NULL); }
        for (int i = 0; i < N_THREADS; ++i) {
            CHECK_OK(workers[i].status);
            CHECK(workers[i].out[0] != 0.0f && memcmp(workers[i].out, workers[0].out, sizeof workers[0].out) == 0);
        }
        CHECK(sim_counts("cudaDeviceEnablePeerAccess") == 4); // once a pair that is used, though all began at once
        place_end(&weights);
        CHECK(sim_leaks() == 0 && sim_violations() == 0);
    }
    clean();
}

// ---- memory ----

TEST(a_budget_holds_on_every_device) {
    fresh(2, 64 * MB, 1);
    const struct product big = { GCUDA_TYPE_F32, GCUDA_TYPE_F32, 8, 420, 130 },
                         small = { GCUDA_TYPE_F32, GCUDA_TYPE_F32, 8, 420, 2 };
    const float shares[2] = { 2, 1 };
    struct gcuda_cuda_params params;
    memset(&params, 0, sizeof params);
    params.memory_budget = 60 * 1024;
    params.pool = GCUDA_CUDA_POOL_BEST_FIT;
    gcuda_backend_t backend = gcuda_backend_cuda_init_params(&params);
    gcuda_backend_buffer_type_t t = gcuda_backend_cuda_split_buffer_type(0, shares, 2);
    REQUIRE(backend != NULL && t != NULL);
    CHECK(products(backend, t, &big) == NULL);
    CHECK_HAS(gcuda_last_error(), "mul_mat");
    CHECK_HAS(gcuda_last_error(), "CUDA1");
    CHECK_HAS(gcuda_last_error(), "budget of the backend is 61440");
    float * y = products(backend, t, &small);
    CHECK_MSG(y != NULL, "%s", gcuda_last_error());
    free(y);
    struct gcuda_cuda_stats stats;
    CHECK_OK(gcuda_backend_cuda_get_device_stats(1, &stats));
    CHECK(stats.by[GCUDA_CUDA_PURPOSE_SCRATCH].reserved > 0);
    CHECK_OK(gcuda_backend_cuda_trim(backend)); // there too
    CHECK_OK(gcuda_backend_cuda_get_device_stats(1, &stats));
    CHECK_EQ_I(stats.by[GCUDA_CUDA_PURPOSE_SCRATCH].reserved, 0);
    gcuda_backend_free(backend);
    clean();
}

struct counted {
    long n_alive, n_taken;
};
static void * counted_alloc(void * user, int device, size_t size) {
    struct counted * c = (struct counted *) user;
    void * ptr = NULL;
    int before = 0;
    CHECK(cudaGetDevice(&before) == cudaSuccess && before == device);
    if (cudaMalloc(&ptr, size) != cudaSuccess) { return NULL; }
    c->n_alive++;
    c->n_taken++;
    return ptr;
}
static void counted_free(void * user, int device, void * ptr, size_t size) {
    (void) device;
    (void) size;
    ((struct counted *) user)->n_alive--;
    CHECK(cudaFree(ptr) == cudaSuccess);
}

TEST(the_callers_allocator_serves_every_device) {
    const struct product c = { GCUDA_TYPE_F32, GCUDA_TYPE_F32, 8, 420, 2 };
    float * wanted = whole(&c);
    struct counted counted = { 0, 0 };
    struct gcuda_cuda_memory_params memory;
    fresh(3, 64 * MB, 1);
    memset(&memory, 0, sizeof memory);
    memory.device.alloc = counted_alloc;
    memory.device.free = counted_free;
    memory.device.user = &counted;
    CHECK_OK(gcuda_backend_cuda_set_memory(&memory));
    gcuda_backend_t backend = gcuda_backend_cuda_init(2);
    float * y = products(backend, gcuda_backend_cuda_split_buffer_type(2, NULL, 0), &c);
    CHECK_MSG(y != NULL && memcmp(y, wanted, result_size(&c)) == 0, "%s", gcuda_last_error());
    CHECK(counted.n_taken >= 3 + 2 * 3 && sim_counts("cudaMalloc") == counted.n_taken);
    CHECK(peer_of(2, 0).is_in_use);
    // of the probe; operands and results, since kernels may not reach this memory
    CHECK_EQ_I(n_direct_copies(), 2 * (4 + 2 * 2 * N_EAGER));
    free(y);
    free(wanted);
    gcuda_backend_free(backend);
    CHECK_EQ_I(counted.n_alive, 0);
    clean();
}

// ---- an allocator whose free waits for nothing ----

static cudaStream_t spoiler;

static void * arena_alloc(void * user, int device, size_t size) {
    void * ptr = NULL;
    (void) user;
    (void) device;
    return cudaMalloc(&ptr, size) == cudaSuccess ? ptr : NULL;
}
// Somebody else's at once. The memory itself goes when nothing can use it any more.
static void * spoilt[64];
static int n_spoilt;
static void arena_free(void * user, int device, void * ptr, size_t size) {
    int current = -1;
    (void) user;
    CHECK(cudaGetDevice(&current) == cudaSuccess && current == device && n_spoilt < 64);
    if (device == 0) {
        CHECK(
            cudaMemsetAsync(ptr, 0xff, size, spoiler) == cudaSuccess && cudaStreamSynchronize(spoiler) == cudaSuccess);
    }
    spoilt[n_spoilt++] = ptr;
}

// n_faults: 1, there is no event to wait by; 2, nor can the device be waited for. The result of a product whose weight
// is freed as soon as it is queued (or, waits, done), with a plan's CUDA graph or without.
static bool free_behind_a_product(const struct product * c, uint64_t seed, bool waits, int n_faults, float * got) {
    struct place weights = place_begin(), p = place_begin();
    struct gcuda_cuda_memory_params memory;
    fresh(2, 64 * MB, seed);
    memset(&memory, 0, sizeof memory);
    memory.device.alloc = arena_alloc;
    memory.device.free = arena_free;
    CHECK_OK(gcuda_backend_cuda_set_memory(&memory));
    CHECK(cudaStreamCreateWithFlags(&spoiler, cudaStreamNonBlocking) == cudaSuccess);
    cudaStream_t captured = NULL;
    cudaGraph_t other = NULL;
    CHECK(cudaStreamCreateWithFlags(&captured, cudaStreamNonBlocking) == cudaSuccess);
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    struct gcuda_tensor *w = gcuda_new_tensor_2d(weights.ctx, c->a, c->k, c->m),
                        *x = gcuda_new_tensor_2d(p.ctx, c->b, c->k, c->n);
    struct gcuda_tensor * y = gcuda_mul_mat(p.ctx, w, x);
    struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
    CHECK_OK(gcuda_build_forward_expand(graph, y));
    weights.buffer =
        gcuda_backend_alloc_ctx_tensors_from_buft(weights.ctx, gcuda_backend_cuda_split_buffer_type(0, NULL, 0));
    const bool is_made = backend != NULL && weights.buffer != NULL && place_alloc(&p, backend);
    CHECK(is_made);
    void *rows = random_rows(c->a, c->k, c->m, 1), *in = random_rows(c->b, c->k, c->n, 3);
    if (is_made) {
        CHECK_OK(gcuda_backend_tensor_set(w, rows, 0, gcuda_nbytes(w)));
        CHECK_OK(gcuda_backend_tensor_set(x, in, 0, gcuda_nbytes(x)));
        for (uint64_t i = 0; i <= seed % 3; ++i) { CHECK_OK(gcuda_backend_graph_compute_async(backend, graph)); }
        if (waits) { CHECK_OK(gcuda_backend_synchronize(backend)); }
        CHECK(cudaStreamBeginCapture(captured, cudaStreamCaptureModeRelaxed) == cudaSuccess);
        if (n_faults > 0) { sim_fail("cudaEventCreateWithFlags", 1, cudaErrorMemoryAllocation); }
        if (n_faults > 1) { sim_fail("cudaDeviceSynchronize", 1, cudaErrorInvalidValue); }
        gcuda_backend_buffer_free(weights.buffer);
        weights.buffer = NULL;
        CHECK_EQ_I(sim_failed(), n_faults);
        CHECK(cudaStreamEndCapture(captured, &other) == cudaSuccess); // which no wait for the device has ended
        CHECK_OK(gcuda_backend_tensor_get_async(backend, y, got, 0, gcuda_nbytes(y)));
        CHECK_OK(gcuda_backend_synchronize(backend));
    }
    free(rows);
    free(in);
    CHECK_EQ_I(sim_counts("cudaDeviceSynchronize"), n_faults > 0); // only when there is no event
    if (other != NULL) { CHECK(cudaGraphDestroy(other) == cudaSuccess); }
    gcuda_backend_free(backend);
    place_end(&p);
    place_end(&weights);
    while (n_spoilt > 0) { CHECK(cudaFree(spoilt[--n_spoilt]) == cudaSuccess); }
    CHECK(cudaStreamDestroy(captured) == cudaSuccess && cudaStreamDestroy(spoiler) == cudaSuccess);
    CHECK(sim_leaks() == 0 && sim_violations() == 0);
    return is_made;
}

TEST(a_freed_weight_waits_for_its_products_and_not_for_the_device) {
    const struct product c = { GCUDA_TYPE_F32, GCUDA_TYPE_F32, 8, 400, 2 };
    float wanted[400 * 2], got[400 * 2];
    CHECK(free_behind_a_product(&c, 0, true, 0, wanted));
    for (uint64_t seed = 0; seed < (test_full() ? 100u : 20u); ++seed) {
        CHECK(free_behind_a_product(&c, seed, false, seed % 4 == 3, got));
        CHECK_MSG(memcmp(got, wanted, sizeof got) == 0, "seed %d", (int) seed);
    }
    CHECK(free_behind_a_product(&c, 1, false, 2, got)); // nothing left to wait by: no crash, no leak
    clean();
}

static void plain_free(void * user, int device, void * ptr, size_t size) {
    (void) user;
    (void) device;
    (void) size;
    CHECK(cudaFree(ptr) == cudaSuccess);
}

// Weights come and go: freeing one asks the streams of all backends, which compute and capture meanwhile.
static void * weights_main(void * arg) {
    struct worker * t = (struct worker *) arg;
    gcuda_backend_t backend = gcuda_backend_cuda_init(t->device);
    t->status = backend != NULL ? GCUDA_STATUS_SUCCESS : GCUDA_STATUS_FAILED;
    void *rows = random_rows(GCUDA_TYPE_Q4_0, 32, 420, 8), *in = random_rows(GCUDA_TYPE_F32, 32, 2, 9);
    for (int i = 0; i < t->n_turns && t->status == GCUDA_STATUS_SUCCESS; ++i) {
        struct place weights = place_begin(), p = place_begin();
        struct gcuda_tensor *w = gcuda_new_tensor_2d(weights.ctx, GCUDA_TYPE_Q4_0, 32, 420),
                            *x = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, 32, 2);
        struct gcuda_tensor * y = gcuda_mul_mat(p.ctx, w, x);
        struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
        gcuda_status st = gcuda_build_forward_expand(graph, y);
        weights.buffer =
            gcuda_backend_alloc_ctx_tensors_from_buft(weights.ctx, gcuda_backend_cuda_split_buffer_type(2, NULL, 0));
        if (weights.buffer == NULL || !place_alloc(&p, backend)) { st = GCUDA_STATUS_ALLOC_FAILED; }
        if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_backend_tensor_set(w, rows, 0, gcuda_nbytes(w)); }
        if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_backend_tensor_set(x, in, 0, 256); }
        for (int run = 0; run < 3 && st == GCUDA_STATUS_SUCCESS; ++run) {
            st = gcuda_backend_graph_compute(backend, graph);
        }
        if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_backend_tensor_get(y, t->out, 0, sizeof t->out); }
        t->status = st;
        place_end(&weights);
        place_end(&p);
    }
    free(rows);
    free(in);
    gcuda_backend_free(backend);
    return NULL;
}

TEST(weights_come_and_go) {
    enum { N_THREADS = 3 };
    static struct worker workers[N_THREADS];
    pthread_t threads[N_THREADS];
    struct gcuda_cuda_memory_params memory;
    fresh(3, 64 * MB, 2);
    memset(&memory, 0, sizeof memory);
    memory.device.alloc = arena_alloc;
    memory.device.free = plain_free;
    CHECK_OK(gcuda_backend_cuda_set_memory(&memory));
    for (int i = 0; i < N_THREADS; ++i) {
        memset(&workers[i], 0, sizeof workers[i]);
        workers[i].device = 2;
        workers[i].n_turns = 3;
        REQUIRE(pthread_create(&threads[i], NULL, weights_main, &workers[i]) == 0);
    }
    for (int i = 0; i < N_THREADS; ++i) { pthread_join(threads[i], NULL); }
    for (int i = 0; i < N_THREADS; ++i) {
        CHECK_OK(workers[i].status);
        CHECK(workers[i].out[0] != 0.0f && memcmp(workers[i].out, workers[0].out, sizeof workers[0].out) == 0);
    }
    CHECK_EQ_I(sim_counts("cudaDeviceSynchronize"), 0);
    clean();
}

// ---- several devices that are one ----

// Bit for bit what one device gives, with n of them that share fewer; copies between them, memory, names.
TEST(devices_that_share_one) {
    static const struct product cases[] = { { GCUDA_TYPE_F32, GCUDA_TYPE_F32, 40, 420, 3 },
        { GCUDA_TYPE_Q4_0, GCUDA_TYPE_F32, 64, 420, 1 } };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        float * wanted = whole(&cases[i]);
        for (int n = 2; n <= 5; ++n) {
            for (int there = 1; there <= 3; ++there) {
                for (int by_env = 0; by_env < 2; ++by_env) {
                    struct gcuda_cuda_device_params devices;
                    struct gcuda_cuda_peer peer;
                    fresh(there, 64 * MB, (uint64_t) n);
                    memset(&devices, 0, sizeof devices);
                    devices.n_devices = n;
                    char text[16];
                    snprintf(text, sizeof text, "%d", by_env ? n : 7); // the parameter wins
                    setenv("GCUDA_CUDA_DEVICES", text, 1);
                    if (!by_env) { CHECK_OK(gcuda_backend_cuda_set_devices(&devices)); }
                    CHECK_EQ_I(gcuda_backend_cuda_get_device_count(), n);
                    unsetenv("GCUDA_CUDA_DEVICES");
                    gcuda_backend_t backend = gcuda_backend_cuda_init(n - 1);
                    gcuda_backend_buffer_type_t t = gcuda_backend_cuda_split_buffer_type(n - 1, NULL, 0);
                    REQUIRE(backend != NULL && t != NULL);
                    CHECK(cudaSetDevice(there - 1) == cudaSuccess);
                    float * y = products(backend, t, &cases[i]);
                    CHECK_MSG(y != NULL && memcmp(y, wanted, result_size(&cases[i])) == 0, "%d on %d: %s", n, there,
                        y ? "wrong" : gcuda_last_error());
                    free(y);
                    int device = -1;
                    CHECK(cudaGetDevice(&device) == cudaSuccess && device == there - 1);
                    for (int k = 0; k < n - 1; ++k) {
                        CHECK_OK(gcuda_backend_cuda_get_peer(k, n - 1, &peer));
                        CHECK(!peer.is_probed || peer.path == GCUDA_CUDA_PEER_PATH_DIRECT);
                        if (k % there == (n - 1) % there) { CHECK(peer.is_possible); }
                    }
                    gcuda_backend_free(backend);
                    CHECK(sim_leaks() == 0 && sim_violations() == 0);
                }
            }
        }
        free(wanted);
    }
    clean();
}

// =====================================================================================================================
// >>experts   weights of mul_mat_id: every device has its rows of each expert
// =====================================================================================================================
struct experts {
    enum gcuda_type type;
    int64_t k, m, n_experts, n_used, n_tokens;
    bool has_bad_ids;
};

enum { M_DOWN = 400 }; // rows of the second experts

static size_t n_sums(const struct experts * c) { return (size_t) (M_DOWN * c->n_used * c->n_tokens); }

// Ids of all experts for each token, of which the first n_used are taken; some of them name the same one twice.
static void some_ids(const struct experts * c, int32_t * ids, uint64_t state) {
    for (int64_t i = 0; i < c->n_experts * c->n_tokens; ++i) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        ids[i] = (int32_t) ((state >> 33) % (uint64_t) c->n_experts);
        if (c->has_bad_ids && i % (2 * c->n_experts) == 1) { ids[i] = i % 4 == 1 ? -1 : (int32_t) c->n_experts; }
    }
}

// down [M_DOWN, used, tokens] = w2 (the first k of (w1 x)), twice with other x and ids, and nothing waits in between.
// Weights as for products_with; both results into out.
static gcuda_status experts_with(gcuda_backend_t backend, gcuda_backend_buffer_type_t t, const struct experts * c,
    struct place * weights, struct place * p, gcuda_gallocr_t galloc, char * host) {
    struct gcuda_tensor *w1 = gcuda_new_tensor_3d(weights->ctx, c->type, c->k, c->m, c->n_experts),
                        *w2 = gcuda_new_tensor_3d(weights->ctx, c->type, c->k, M_DOWN, c->n_experts);
    struct gcuda_tensor *x = gcuda_new_tensor_3d(p->ctx, GCUDA_TYPE_F32, c->k, 1, c->n_tokens),
                        *all = gcuda_new_tensor_2d(p->ctx, GCUDA_TYPE_I32, c->n_experts, c->n_tokens);
    struct gcuda_tensor * ids = gcuda_view_2d(p->ctx, all, c->n_used, c->n_tokens, (size_t) c->n_experts * 4, 0);
    struct gcuda_tensor * up = gcuda_mul_mat_id(p->ctx, w1, x, ids);
    struct gcuda_tensor * part = gcuda_view_3d(p->ctx, up, c->k, c->n_used, c->n_tokens, up->nb[1], up->nb[2], 0);
    struct gcuda_tensor * y = gcuda_mul_mat_id(p->ctx, w2, part, ids);
    struct gcuda_cgraph * graph = gcuda_new_graph(p->ctx);
    gcuda_status st = gcuda_build_forward_expand(graph, y), flagged = GCUDA_STATUS_SUCCESS;
    if (st != GCUDA_STATUS_SUCCESS) { return st; }
    gcuda_set_input(x);
    gcuda_set_input(all);
    gcuda_set_output(y);
    weights->buffer =
        gcuda_backend_alloc_ctx_tensors_from_buft(weights->ctx, t ? t : gcuda_backend_get_default_buffer_type(backend));
    if (weights->buffer == NULL) { return GCUDA_STATUS_ALLOC_FAILED; }
    st = gcuda_gallocr_alloc_graph(galloc, graph);
    const size_t x_size = gcuda_nbytes(x), in_size = x_size + gcuda_nbytes(all), y_size = gcuda_nbytes(y);
    struct gcuda_tensor * w[2] = { w1, w2 };
    for (int i = 0; i < 2; ++i) {
        void *rows = random_rows(c->type, c->k, gcuda_nrows(w[i]), (uint64_t) i + 1),
             *in = random_rows(GCUDA_TYPE_F32, c->k, c->n_tokens, (uint64_t) i + 3);
        if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_backend_tensor_set(w[i], rows, 0, gcuda_nbytes(w[i])); }
        memcpy(host + (size_t) i * in_size, in, x_size);
        some_ids(c, (int32_t *) (void *) (host + (size_t) i * in_size + x_size), (uint64_t) i + 5);
        free(rows);
        free(in);
    }
    for (size_t i = 0; i < 2 && st == GCUDA_STATUS_SUCCESS; ++i) {
        st = gcuda_backend_tensor_set_async(backend, x, host + i * in_size, 0, x_size);
        if (st == GCUDA_STATUS_SUCCESS) {
            st = gcuda_backend_tensor_set_async(backend, all, host + i * in_size + x_size, 0, in_size - x_size);
        }
        if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_backend_graph_compute_async(backend, graph); }
        if (st == GCUDA_STATUS_INVALID_DATA) { // which the CPU knows at once
            flagged = st;
            st = GCUDA_STATUS_SUCCESS;
        }
        if (st == GCUDA_STATUS_SUCCESS) {
            st = gcuda_backend_tensor_get_async(backend, y, host + 2 * in_size + i * y_size, 0, y_size);
        }
    }
    const gcuda_status end = gcuda_backend_synchronize(backend);
    if (end != GCUDA_STATUS_SUCCESS) { flagged = end; }
    if (st == GCUDA_STATUS_SUCCESS && c->has_bad_ids) {
        return flagged == GCUDA_STATUS_INVALID_DATA ? st : GCUDA_STATUS_FAILED;
    }
    return st != GCUDA_STATUS_SUCCESS ? st : flagged;
}

// The caller frees the results; NULL on failure.
static float * experts(gcuda_backend_t backend, gcuda_backend_buffer_type_t t, const struct experts * c) {
    struct place weights = place_begin(), p = place_begin();
    const size_t in_size = (size_t) ((c->k + c->n_experts) * c->n_tokens) * 2 * 4,
                 out_size = 2 * n_sums(c) * sizeof(float);
    gcuda_gallocr_t galloc = gcuda_gallocr_new(gcuda_backend_get_default_buffer_type(backend));
    gcuda_backend_buffer_t host =
        gcuda_backend_buft_alloc_buffer(gcuda_backend_cuda_host_buffer_type(), in_size + out_size);
    float * out = NULL;
    if (galloc != NULL && host != NULL) {
        char * at = (char *) gcuda_backend_buffer_get_base(host);
        if (experts_with(backend, t, c, &weights, &p, galloc, at) == GCUDA_STATUS_SUCCESS) {
            out = (float *) malloc(out_size);
            memcpy(out, at + in_size, out_size);
        }
    }
    gcuda_gallocr_free(galloc);
    place_end(&p);
    place_end(&weights);
    gcuda_backend_buffer_free(host);
    return out;
}

static float * experts_on(gcuda_backend_t backend, const struct experts * c) {
    float * y = backend ? experts(backend, NULL, c) : NULL;
    gcuda_backend_free(backend);
    CHECK_MSG(y != NULL, "%s", gcuda_last_error());
    return y;
}

static double distance(const struct experts * c, const float * y, const float * wanted) {
    double off = 0.0, all = 0.0;
    for (size_t i = 0; i < 2 * n_sums(c); ++i) {
        off += ((double) y[i] - (double) wanted[i]) * ((double) y[i] - (double) wanted[i]);
        all += (double) wanted[i] * (double) wanted[i];
    }
    return all > 0.0 && isfinite(off) ? off / all : INFINITY;
}

// On tensor cores the number of rows says how sums are cut, and so their last bits; elsewhere it changes nothing.
static bool is_on_tensor_cores(const struct experts * c) {
    return GCUDA_SIM_CC >= 800 && c->n_used * c->n_tokens > (gcuda_is_quantized(c->type) ? 8 : 64);
}

static void experts_once(const struct experts * c, const struct setting * s, const float * wanted) {
    fresh(s->n_devices, 64 * MB, s->seed);
    for (int i = 0; i < s->n_devices * s->n_devices; ++i) {
        if (i / s->n_devices != i % s->n_devices) { sim_peer(i / s->n_devices, i % s->n_devices, s->link); }
    }
    gcuda_backend_buffer_type_t t = gcuda_backend_cuda_split_buffer_type(s->main_device, s->shares, s->n_devices);
    gcuda_backend_t backend = backend_with(s->main_device, s->mode, s->seed % 5 == 0);
    struct gcuda_cuda_plan_stats stats;
    REQUIRE(t != NULL && backend != NULL);
    CHECK(cudaSetDevice(s->n_devices - 1) == cudaSuccess);
    float * y = experts(backend, t, c);
    const double off = y ? distance(c, y, wanted) : INFINITY;
    const bool is_same = y != NULL && memcmp(y, wanted, 2 * n_sums(c) * sizeof(float)) == 0;
    CHECK_MSG(is_on_tensor_cores(c) ? off < 1e-6 : is_same,
        "%s, %lld tokens on %d devices, main %d, shares %g %g %g, link %d, mode %d, seed %llu: off by %g, %s",
        gcuda_type_name(c->type), (long long) c->n_tokens, s->n_devices, s->main_device, (double) s->shares[0],
        (double) s->shares[1], (double) s->shares[2], s->link, (int) s->mode, (unsigned long long) s->seed, off,
        y ? "wrong" : gcuda_last_error());
    CHECK_OK(gcuda_backend_cuda_get_plan_stats(backend, &stats));
    const bool is_staged = s->mode == GCUDA_CUDA_PEER_OFF || s->link == 2 || s->link == 3; // by the driver, by gcuda
    CHECK_EQ_I(stats.n_graph_launches, GCUDA_SIM_CC >= 700 && (!is_staged || s->n_devices == 1)); // the second time
    int device = -1;
    CHECK(cudaGetDevice(&device) == cudaSuccess && device == s->n_devices - 1);
    free(y);
    gcuda_backend_free(backend);
    CHECK(sim_leaks() == 0 && sim_violations() == 0);
}

static const struct setting expert_settings[] = {
    { 2, 0, 1, GCUDA_CUDA_PEER_AUTO, { 1, 1 }, 0 },
    { 3, 2, 1, GCUDA_CUDA_PEER_AUTO, { 1, 1, 1 }, 0 },
    { 4, 3, 1, GCUDA_CUDA_PEER_AUTO, { 2, 1, 1, 1 }, 0 }, // the second has no rows
    { 2, 1, 2, GCUDA_CUDA_PEER_AUTO, { 2, 3 }, 0 },
    { 3, 1, 3, GCUDA_CUDA_PEER_AUTO, { 1, 1, 0 }, 0 },
    { 4, 1, 1, GCUDA_CUDA_PEER_OFF, { 0, 5, 2, 3 }, 0 },
};
enum { N_EXPERT_SETTINGS = sizeof expert_settings / sizeof expert_settings[0] };

TEST(split_experts_are_those_of_one_device_and_of_the_cpu) {
    static const struct experts cases[] = {
        { GCUDA_TYPE_F32, 40, 420, 5, 3, 0, false },
        { GCUDA_TYPE_F16, 64, 420, 5, 3, 0, false },
        { GCUDA_TYPE_Q4_0, 64, 420, 5, 3, 0, false },
        { GCUDA_TYPE_Q4_K, 256, 420, 5, 3, 0, false },
        { GCUDA_TYPE_Q8_0, 32, 420, 5, 3, 0, true },
    };
    static const int n_tokens[] = { 1, 3, 40 };
    for (size_t i = 0; i < 3 * sizeof cases / sizeof cases[0]; ++i) {
        struct experts c = cases[i / 3];
        c.n_tokens = n_tokens[i % 3];
        fresh(1, 64 * MB, 0);
        float *cpu = experts_on(gcuda_backend_cpu_init(), &c), *one = experts_on(gcuda_backend_cuda_init(0), &c);
        REQUIRE(cpu != NULL && one != NULL);
        const double off = distance(&c, one, cpu);
        CHECK_MSG(off < 1e-3, "%s, %d tokens: off by %g", gcuda_type_name(c.type), (int) c.n_tokens, off);
        for (size_t k = 0; k < N_EXPERT_SETTINGS; ++k) {
            struct setting s = expert_settings[k];
            s.seed = i;
            if (test_full() || (i + k) % 3 == 0) { experts_once(&c, &s, one); }
        }
        free(cpu);
        free(one);
    }
    clean();
}

TEST(split_experts_are_ordered_for_every_seed) {
    const struct experts c = { GCUDA_TYPE_Q4_0, 32, 420, 3, 2, 2, false };
    fresh(1, 64 * MB, 0);
    float * wanted = experts_on(gcuda_backend_cuda_init(0), &c);
    REQUIRE(wanted != NULL);
    for (uint64_t seed = 0; seed < (test_full() ? 200u : 30u); ++seed) {
        struct setting s = expert_settings[1];
        s.seed = seed;
        s.link = 1 + (int) (seed % 3);
        experts_once(&c, &s, wanted);
    }
    free(wanted);
    clean();
}

// Rows of activations and of ids that overlap or lie unevenly go to the other devices all the same.
TEST(experts_with_operands_of_any_strides) {
    float * wanted = NULL;
    for (int turn = 0; turn < 3; ++turn) { // one device; direct; through the host
        const int n_devices = turn == 0 ? 1 : 3;
        fresh(n_devices, 64 * MB, (uint64_t) turn);
        gcuda_backend_t backend = backend_on(n_devices - 1, turn == 2 ? GCUDA_CUDA_PEER_OFF : GCUDA_CUDA_PEER_AUTO);
        gcuda_backend_buffer_type_t t =
            turn == 0 ? gcuda_backend_cuda_buffer_type(0) : gcuda_backend_cuda_split_buffer_type(2, NULL, 0);
        struct place weights = place_begin(), p = place_begin();
        struct gcuda_tensor * w = gcuda_new_tensor_3d(weights.ctx, GCUDA_TYPE_Q8_0, 32, 420, 4);
        struct gcuda_tensor *x = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, 48, 9),
                            *i = gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_I32, 12);
        struct gcuda_tensor * operands[][2] = {
            // two experts for each of three tokens
            { gcuda_view_3d(p.ctx, x, 32, 2, 3, 48 * 4, 96 * 4, 16), gcuda_view_2d(p.ctx, i, 2, 3, 12, 0) }, // apart
            // one for both
            { gcuda_view_3d(p.ctx, x, 32, 1, 3, 4, 48 * 4, 0), gcuda_view_2d(p.ctx, i, 2, 3, 4, 8) },
            { gcuda_view_3d(p.ctx, x, 32, 1, 3, 48 * 4, 0, 0), gcuda_view_2d(p.ctx, i, 2, 3, 0, 4) },       // the same
            { gcuda_view_3d(p.ctx, x, 32, 2, 3, 48 * 4, 144 * 4, 0), gcuda_view_2d(p.ctx, i, 2, 3, 8, 0) }, // unevenly
            // overlapping
            { gcuda_view_3d(p.ctx, x, 32, 2, 3, 4, 48 * 4, 0), gcuda_view_2d(p.ctx, i, 2, 3, 16, 0) },
        };
        struct gcuda_tensor * y = NULL;
        for (size_t k = 0; k < sizeof operands / sizeof operands[0]; ++k) {
            struct gcuda_tensor * one = gcuda_mul_mat_id(p.ctx, w, operands[k][0], operands[k][1]);
            y = y ? gcuda_concat(p.ctx, y, one, 2) : one;
        }
        struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
        CHECK_OK(gcuda_build_forward_expand(graph, y));
        weights.buffer = gcuda_backend_alloc_ctx_tensors_from_buft(weights.ctx, t);
        REQUIRE(backend != NULL && weights.buffer != NULL && place_alloc(&p, backend));
        void *rows = random_rows(w->type, 32, gcuda_nrows(w), 5), *in = random_rows(GCUDA_TYPE_F32, 48, 9, 6);
        const int32_t ids[12] = { 3, 0, 1, 1, 2, 3, 0, 2, 1, 3, 2, 0 };
        CHECK_OK(gcuda_backend_tensor_set(w, rows, 0, gcuda_nbytes(w)));
        CHECK_OK(gcuda_backend_tensor_set(x, in, 0, gcuda_nbytes(x)));
        CHECK_OK(gcuda_backend_tensor_set(i, ids, 0, sizeof ids));
        wanted = same_as_before(backend, graph, y, turn, wanted);
        free(rows);
        free(in);
        place_end(&p);
        place_end(&weights);
        gcuda_backend_free(backend);
        CHECK(sim_leaks() == 0 && sim_violations() == 0);
    }
    free(wanted);
    clean();
}

// Who has rows of a weight does not decide who computes: that is the main device of its buffer, also in a schedule.
TEST(split_weights_in_a_schedule) {
    enum { K = 64, M = 300, U = 2, T = 3 };
    float got[2][M_DOWN * U * T];
    for (int turn = 0; turn < 2; ++turn) { // all on CUDA0; weights split, those of the experts for CUDA1
        const float shares[2] = { 1, 1 };
        fresh(2, 64 * MB, 1);
        gcuda_backend_t backends[3] = { gcuda_backend_cuda_init(0), gcuda_backend_cuda_init(1),
            gcuda_backend_cpu_init() };
        gcuda_backend_sched_t sched = gcuda_backend_sched_new(backends, NULL, 3, 16, false, true);
        struct place dense = place_begin(), sparse = place_begin(), p = place_begin();
        struct gcuda_tensor *w = gcuda_new_tensor_2d(dense.ctx, GCUDA_TYPE_Q8_0, K, M),
                            *as = gcuda_new_tensor_3d(sparse.ctx, GCUDA_TYPE_F32, M, M_DOWN, 4);
        struct gcuda_tensor *x = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, K, T),
                            *ids = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_I32, U, T);
        struct gcuda_tensor * h = gcuda_set_name(gcuda_mul_mat(p.ctx, w, x), "dense");
        struct gcuda_tensor * y = gcuda_mul_mat_id(p.ctx, as, gcuda_reshape_3d(p.ctx, h, M, 1, T), ids);
        struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
        CHECK_OK(gcuda_build_forward_expand(graph, gcuda_set_name(y, "sparse")));
        gcuda_set_input(x);
        gcuda_set_input(ids);
        gcuda_set_output(y);
        dense.buffer = gcuda_backend_alloc_ctx_tensors_from_buft(dense.ctx,
            turn == 0 ? gcuda_backend_cuda_buffer_type(0) : gcuda_backend_cuda_split_buffer_type(0, shares, 2));
        sparse.buffer = gcuda_backend_alloc_ctx_tensors_from_buft(sparse.ctx,
            turn == 0 ? gcuda_backend_cuda_buffer_type(0) : gcuda_backend_cuda_split_buffer_type(1, shares, 2));
        REQUIRE(sched != NULL && dense.buffer != NULL && sparse.buffer != NULL);
        gcuda_backend_buffer_set_usage(dense.buffer, GCUDA_BACKEND_BUFFER_USAGE_WEIGHTS);
        gcuda_backend_buffer_set_usage(sparse.buffer, GCUDA_BACKEND_BUFFER_USAGE_WEIGHTS);
        void *w_rows = random_rows(w->type, w->ne[0], M, 1), *as_rows = random_rows(as->type, M, gcuda_nrows(as), 2),
             *in = random_rows(GCUDA_TYPE_F32, w->ne[0], T, 3);
        const int32_t chosen[U * T] = { 3, 0, 2, 2, 1, 3 };
        CHECK_OK(gcuda_backend_tensor_set(w, w_rows, 0, gcuda_nbytes(w)));
        CHECK_OK(gcuda_backend_tensor_set(as, as_rows, 0, gcuda_nbytes(as)));
        CHECK_OK(gcuda_backend_sched_alloc_graph(sched, graph));
        CHECK_OK(gcuda_backend_tensor_set(x, in, 0, gcuda_nbytes(x)));
        CHECK_OK(gcuda_backend_tensor_set(ids, chosen, 0, sizeof chosen));
        CHECK_OK(gcuda_backend_sched_graph_compute(sched, graph));
        CHECK_OK(gcuda_backend_tensor_get(y, got[turn], 0, sizeof got[turn]));
        CHECK(gcuda_backend_sched_get_tensor_backend(sched, h) == backends[0]);
        CHECK(gcuda_backend_sched_get_tensor_backend(sched, y) == backends[turn]);
        free(w_rows);
        free(as_rows);
        free(in);
        gcuda_backend_sched_free(sched);
        place_end(&p);
        place_end(&dense);
        place_end(&sparse);
        for (int i = 0; i < 3; ++i) { gcuda_backend_free(backends[i]); }
        CHECK(sim_leaks() == 0 && sim_violations() == 0);
    }
    CHECK(memcmp(got[0], got[1], sizeof got[0]) == 0 && got[0][0] != 0.0f);
    clean();
}

// Every device has its rows of the first expert, then those of the second, then zeros.
TEST(experts_lie_by_rows_on_every_device) {
    fresh(3, 64 * MB, 1);
    const float shares[3] = { 1, 2, 1 };
    gcuda_backend_buffer_type_t t = gcuda_backend_cuda_split_buffer_type(1, shares, 3);
    struct place p = place_begin();
    struct gcuda_tensor * w = gcuda_set_name(gcuda_new_tensor_3d(p.ctx, GCUDA_TYPE_F32, 40, 1030, 3), "w");
    REQUIRE(t != NULL);
    CHECK_EQ_I(gcuda_backend_buft_get_alloc_size(t, w), (1030 * 3 * 40 + 3 * 472) * 4);
    p.buffer = gcuda_backend_alloc_ctx_tensors_from_buft(p.ctx, t);
    REQUIRE(p.buffer != NULL);
    const size_t size = gcuda_nbytes(w);
    float *in = (float *) malloc(size), *out = (float *) calloc(1, size);
    for (size_t i = 0; i < size / 4; ++i) { in[i] = (float) i; }
    CHECK_OK(gcuda_backend_tensor_set(w, in, 0, size));
    CHECK_OK(gcuda_backend_tensor_get(w, out, 0, size));
    CHECK(memcmp(in, out, size) == 0);
    int64_t low, high, at = 0;
    for (int i = 0; i < 3; ++i) {
        struct gcuda_cuda_stats stats;
        CHECK_OK(gcuda_backend_cuda_get_split_rows(t, w, i, &low, &high));
        const char * data = (const char *) gcuda_backend_cuda_get_split_data(w, i);
        REQUIRE(data != NULL && low == at && high > low);
        at = high;
        const size_t bytes = (size_t) (high - low) * 160;
        for (int64_t e = 0; e < 3; ++e) {
            CHECK(cudaMemcpy(out, data + (size_t) e * bytes, bytes, cudaMemcpyDeviceToHost) == cudaSuccess);
            CHECK_MSG(memcmp(out, in + (e * 1030 + low) * 40, bytes) == 0, "expert %d on device %d", (int) e, i);
        }
        CHECK(cudaMemcpy(out, data + 3 * bytes, 472 * 4, cudaMemcpyDeviceToHost) == cudaSuccess);
        for (int k = 0; k < 472; ++k) { CHECK(out[k] == 0.0f); }
        CHECK_OK(gcuda_backend_cuda_get_device_stats(i, &stats));
        CHECK_EQ_I(stats.by[GCUDA_CUDA_PURPOSE_BUFFERS].reserved, 3 * bytes + 472 * 4);
    }
    CHECK_EQ_I(at, 1030);
    CHECK_OK(gcuda_backend_buffer_clear(p.buffer, 0));
    CHECK_OK(gcuda_backend_tensor_get(w, out, 0, size));
    for (size_t i = 0; i < size / 4; ++i) { CHECK(out[i] == 0.0f); }
    CHECK(gcuda_backend_tensor_set(w, in, 0, size / 3) == GCUDA_STATUS_INVALID_ARGUMENT); // one expert alone
    CHECK_HAS(gcuda_last_error(), "'w' is in a CUDA1_Split buffer");
    free(in);
    free(out);
    place_end(&p);
    clean();
}

// =====================================================================================================================
// >>faults   the k-th call of a function fails: a status or no harm; no leaks; the backend works on, or is lost
// =====================================================================================================================
static const struct product fault_product = { GCUDA_TYPE_F32, GCUDA_TYPE_F32, 8, 420, 9 };

static const struct experts fault_experts = { GCUDA_TYPE_F32, 8, 420, 3, 3, 3, false };

static float * faulty(gcuda_backend_t backend, gcuda_backend_buffer_type_t t, bool by_id) {
    return by_id ? experts(backend, t, &fault_experts) : products(backend, t, &fault_product);
}

static size_t faulty_size(bool by_id) {
    return by_id ? 2 * n_sums(&fault_experts) * sizeof(float) : result_size(&fault_product);
}

static bool is_near(const float * y, const float * wanted) {
    for (size_t i = 0; i < result_size(&fault_product) / 4; ++i) {
        if (!(fabs((double) y[i] - (double) wanted[i]) < 1e-4 * (1.0 + fabs((double) wanted[i])))) { return false; }
    }
    return true;
}

// Without cuBLAS gcuda's own kernel makes the products, and rounds differently.
static bool is_right(const float * y, const float * wanted, const char * api, bool by_id) {
    return strcmp(api, "cublasCreate_v2") == 0 && !by_id ? is_near(y, wanted)
                                                         : memcmp(y, wanted, faulty_size(by_id)) == 0;
}

static void fault_once(const char * api, int k, cudaError_t error, bool is_sticky, enum gcuda_cuda_peer_mode mode,
    bool by_id, const float * wanted) {
    fresh(3, 64 * MB, 1);
    const long alive = sim_leaks();
    sim_fail(api, k, error);
    gcuda_backend_t backend = backend_with(2, mode, mode == GCUDA_CUDA_PEER_AUTO);
    gcuda_backend_buffer_type_t t = gcuda_backend_cuda_split_buffer_type(2, NULL, 0);
    float * y = backend && t ? faulty(backend, t, by_id) : NULL;
    const bool came = sim_failed() > 0;
    CHECK_MSG(y == NULL || is_right(y, wanted, api, by_id), "%s %d with error %d: wrong numbers without a status", api,
        k, (int) error);
    if (y == NULL) { CHECK_MSG(gcuda_last_error()[0] != '\0', "%s %d: no message", api, k); }
    free(y);
    sim_fail(api, 0, cudaSuccess);
    if (backend != NULL && t != NULL) {
        y = faulty(backend, t, by_id);
        if (is_sticky && came) {
            CHECK_MSG(y == NULL, "%s %d: works on a lost device", api, k);
        } else if (!is_sticky) {
            CHECK_MSG(y != NULL && is_right(y, wanted, api, by_id), "%s %d with error %d: not usable again: %s", api, k,
                (int) error, gcuda_last_error());
        }
        free(y);
    }
    gcuda_backend_free(backend);
    CHECK_MSG(
        sim_leaks() == alive && sim_violations() == 0, "%s %d with error %d: leaks or wrong use", api, k, (int) error);
}

static void sweep(bool by_id, const float * wanted) {
    for (int turn = 0; turn < 2; ++turn) {
        const enum gcuda_cuda_peer_mode mode = turn == 0 ? GCUDA_CUDA_PEER_AUTO : GCUDA_CUDA_PEER_OFF;
        char names[96][48];
        long counts[96];
        int n = 0;
        fresh(3, 64 * MB, 1);
        gcuda_backend_t backend = backend_with(2, mode, mode == GCUDA_CUDA_PEER_AUTO);
        float * y = faulty(backend, gcuda_backend_cuda_split_buffer_type(2, NULL, 0), by_id);
        CHECK(y != NULL && memcmp(y, wanted, faulty_size(by_id)) == 0);
        free(y);
        gcuda_backend_free(backend);
        for (; n < 96 && sim_api(n) != NULL; ++n) { snprintf(names[n], sizeof names[n], "%s", sim_api(n)); }
        CHECK(sim_api(n) == NULL); // none is left out
        for (int i = 0; i < n; ++i) { counts[i] = sim_counts(names[i]); }
        for (int i = 0; i < n; ++i) {
            const bool is_blas = strncmp(names[i], "cublas", 6) == 0, is_kernel = strcmp(names[i], "kernel") == 0;
            const long step = test_full() ? 1 : counts[i] / (turn == 0 ? 4 : 2) + 1;
            for (long k = 1; k <= counts[i]; k += step) {
                if (is_blas) {
                    fault_once(names[i], (int) k, (cudaError_t) 13, false, mode, by_id, wanted);
                    continue;
                }
                if (!is_kernel) {
                    fault_once(names[i], (int) k, cudaErrorMemoryAllocation, false, mode, by_id, wanted);
                }
                if ((strncmp(names[i], "cu", 2) != 0 || names[i][2] == 'd' || is_kernel) && loses_device(names[i])) {
                    fault_once(names[i], (int) k, cudaErrorIllegalAddress, true, mode, by_id, wanted);
                }
            }
        }
    }
}

TEST(every_cuda_call_of_a_split_product_fails_in_turn) {
    float * wanted = whole(&fault_product);
    REQUIRE(wanted != NULL);
    sweep(false, wanted);
    free(wanted);
    clean();
}

TEST(every_cuda_call_of_strips_fails_in_turn) {
    float * wanted = whole(&fault_product);
    REQUIRE(wanted != NULL);
    strip_columns = 4;
    sweep(false, wanted);
    strip_columns = 0;
    free(wanted);
    clean();
}

TEST(every_cuda_call_of_split_experts_fails_in_turn) {
    fresh(1, 64 * MB, 0);
    float * wanted = experts_on(gcuda_backend_cuda_init(0), &fault_experts);
    REQUIRE(wanted != NULL);
    sweep(true, wanted);
    free(wanted);
    clean();
}

TEST(a_fault_on_another_device_loses_the_backend) {
    for (int k = 1; k <= 12; ++k) { // kernels of three devices, in any order
        fresh(3, 64 * MB, (uint64_t) k);
        const struct product c = { GCUDA_TYPE_Q8_0, GCUDA_TYPE_F32, 32, 420, 1 };
        gcuda_backend_t backend = backend_on(2, k % 2 ? GCUDA_CUDA_PEER_AUTO : GCUDA_CUDA_PEER_OFF);
        gcuda_backend_buffer_type_t t = gcuda_backend_cuda_split_buffer_type(2, NULL, 0);
        REQUIRE(backend != NULL && t != NULL);
        sim_fail("kernel", k, cudaErrorIllegalAddress);
        float * y = products(backend, t, &c);
        if (sim_failed() == 0) {
            CHECK(y != NULL);
        } else {
            CHECK_MSG(y == NULL, "kernel %d: no status", k);
            CHECK_MSG(gcuda_backend_synchronize(backend) == GCUDA_STATUS_DEVICE_LOST, "kernel %d: not lost", k);
            CHECK_HAS(gcuda_last_error(), "lost");
        }
        free(y);
        gcuda_backend_free(backend);
        CHECK_EQ_I(sim_leaks(), 0);
    }
    clean();
}
