// gcuda_cuda_selftest on the simulated device, the message of a kernel that was not compiled for it, and what is left
// of a backend whose device is lost.
#include "sim-test.h"

// All cases but that of wgmma, which the simulated device does not have.
static const char * const families[] = { "copies", "conversions", "rows", "joined rows", "elements", "gates", "norms",
    "soft_max", "sums", "losses", "sorting", "rope", "products", "plain products", "quantized products",
    "quantized products of columns", "products in tiles", "products of floats on tensor cores",
    "products of floats, one column", "products of floats, few columns", "experts", "experts by bytes",
    "experts of a token", "experts of floats of a token", "attention", "convolution", "large convolution", "pooling",
    "recurrences", "state spaces", "triangular systems" };
enum { N_FAMILIES = (int) (sizeof families / sizeof families[0]) };

TEST(the_selftest_passes_on_every_device) {
    fresh(2, 256 * MB, 1);
    for (int i = 0; i < 2; ++i) {
        struct gcuda_cuda_selftest_result r;
        CHECK_OK(gcuda_cuda_selftest(i, &r));
        CHECK(r.status == GCUDA_STATUS_SUCCESS && r.message[0] == '\0' && r.cc == GCUDA_SIM_CC);
        const int n_left_out = GCUDA_SIM_CC >= 800 ? 1 : 3; // no wgmma; below 8.0 no floats on tensor cores, no INT8
        CHECK_MSG(r.n_failed == 0 && r.n_passed == N_FAMILIES + 1 - n_left_out && r.n_left_out == n_left_out,
            "%d passed, %d left out", r.n_passed, r.n_left_out);
        CHECK(r.n_peers + r.n_peers_staged == 1 && r.binary_cc > 0 && r.ms > 0.0f);
    }
    CHECK_OK(gcuda_cuda_selftest(0, NULL));
    CHECK(gcuda_cuda_selftest(2, NULL) == GCUDA_STATUS_INVALID_ARGUMENT);
    clean();
}

// From some kernel on none does anything, without an error: wrong numbers remain, and the message names their case.
// (One alone would leave others with garbage for sizes.)
TEST(kernels_that_do_nothing_are_found) {
    struct gcuda_cuda_selftest_result r;
    fresh(1, 256 * MB, 1);
    CHECK_OK(gcuda_cuda_selftest(0, &r));
    const int n_kernels = (int) sim_counts("kernel"), n_cases = r.n_passed;
    CHECK(n_kernels > 40 && n_cases == N_FAMILIES - 2 * (GCUDA_SIM_CC < 800));
    for (int k = n_kernels, last = 1; k > 0; k -= k > 4 ? 3 : 1) {
        fresh(1, 256 * MB, 1);
        sim_skip(k);
        CHECK(gcuda_cuda_selftest(0, &r) == GCUDA_STATUS_FAILED);
        CHECK_HAS(r.message, "wrong results from ");
        CHECK_MSG(r.n_failed >= last && r.n_failed + r.n_passed == n_cases,
            "from kernel %d of %d on: %d failed, %d passed", k, n_kernels, r.n_failed, r.n_passed);
        last = r.n_failed;
    }
    CHECK_EQ_I(r.n_failed, n_cases); // none has run
    for (int i = 0; i < N_FAMILIES; ++i) {
        char name[64];
        snprintf(name, sizeof name, "%s,", families[i]);
        const bool is_last = i == N_FAMILIES - 1,
                   is_of_80 = strncmp(name, "products of floats on", 21) == 0 || strcmp(name, "experts by bytes,") == 0;
        const bool is_built = GCUDA_SIM_CC >= 800 || !is_of_80;
        const bool is_named = strstr(gcuda_last_error(), is_last ? families[i] : name) != NULL;
        CHECK_MSG(is_named == is_built, "'%s' is %snamed: %s", families[i], is_named ? "" : "not ", gcuda_last_error());
    }
    sim_skip(0);
    CHECK_OK(gcuda_cuda_selftest(0, &r));
    clean();
}

TEST(a_launch_that_fails_is_found) {
    struct gcuda_cuda_selftest_result r;
    int n_found = 0;
    for (int k = 1; k <= 40; k += 3) {
        fresh(1, 256 * MB, 1);
        sim_fail("cudaLaunchKernelEx", k, cudaErrorInvalidValue);
        const gcuda_status st = gcuda_cuda_selftest(0, &r);
        CHECK_MSG((st == GCUDA_STATUS_SUCCESS) == (sim_failed() == 0), "launch %d fails: %d", k, (int) st);
        n_found += st != GCUDA_STATUS_SUCCESS;
        CHECK(st == r.status && (r.message[0] != '\0') == (st != GCUDA_STATUS_SUCCESS));
        CHECK_EQ_I(sim_leaks(), 0);
    }
    CHECK(n_found >= 5);
    clean();
}

TEST(a_missing_kernel_image_says_how_to_compile) {
    static const char * const apis[] = { "cudaFuncGetAttributes", "cudaLaunchKernelEx" };
    char flag[80];
    snprintf(flag, sizeof flag, "-gencode=arch=compute_%d,code=sm_%d", GCUDA_SIM_CC / 10, GCUDA_SIM_CC / 10);
    for (int i = 0; i < 2; ++i) {
        struct gcuda_cuda_selftest_result r;
        fresh(1, 256 * MB, 1);
        sim_fail(apis[i], 1, cudaErrorNoKernelImageForDevice);
        CHECK(gcuda_cuda_selftest(0, &r) == GCUDA_STATUS_FAILED);
        CHECK_HAS(r.message, flag);
        CHECK_HAS(gcuda_last_error(), "no kernel image");
        CHECK_OK(gcuda_cuda_selftest(0, &r)); // and works again
    }
    clean();
}

TEST(every_call_of_the_selftest_fails_in_turn) {
    struct gcuda_cuda_selftest_result r;
    char names[96][48];
    long counts[96];
    int n = 0;
    fresh(2, 256 * MB, 1);
    CHECK_OK(gcuda_cuda_selftest(0, &r));
    for (; n < 96 && sim_api(n) != NULL; ++n) {
        snprintf(names[n], sizeof names[n], "%s", sim_api(n));
        counts[n] = sim_counts(names[n]);
    }
    CHECK(sim_api(n) == NULL); // none is left out
    for (int i = 0; i < n; ++i) {
        if (strcmp(names[i], "kernel") == 0) { continue; }
        const long step = counts[i] <= 2 ? 1 : counts[i] / 2;
        for (long k = 1; k <= counts[i]; k += step) {
            fresh(2, 256 * MB, 1);
            sim_fail(names[i], (int) k, strncmp(names[i], "cublas", 6) == 0 ? (cudaError_t) 13 : cudaErrorInvalidValue);
            const gcuda_status st = gcuda_cuda_selftest(0, &r);
            CHECK_MSG(st == r.status && (st == GCUDA_STATUS_SUCCESS || r.message[0] != '\0'), "%s %ld: no message",
                names[i], k);
            sim_fail(names[i], 0, cudaSuccess);
            CHECK_MSG(sim_leaks() == 0, "%s %ld leaks", names[i], k);
        }
    }
    clean();
}

// A sticky error: every later call says so at once, without touching the device, and everything can be freed. Errors
// that the runtime documents as fatal for the process, by number: not every toolkit has the names.
TEST(what_ends_a_context_loses_the_backend) {
    static const int sticky[] = { 226, 214, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911 };
    for (size_t i = 0; i < sizeof sticky / sizeof sticky[0]; ++i) {
        fresh(1, 64 * MB, 1);
        gcuda_backend_t backend = gcuda_backend_cuda_init(0);
        struct place p = place_begin();
        struct gcuda_tensor * x = gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_F32, 4);
        const float data[4] = { 1, 2, 3, 4 };
        REQUIRE(backend != NULL && place_alloc(&p, backend));
        sim_fail("cudaMemcpyAsync", 1, (cudaError_t) sticky[i]);
        CHECK_MSG(gcuda_backend_tensor_set_async(backend, x, data, 0, sizeof data) == GCUDA_STATUS_DEVICE_LOST,
            "%d: %s", sticky[i], gcuda_last_error());
        CHECK_MSG(
            gcuda_backend_synchronize(backend) == GCUDA_STATUS_DEVICE_LOST, "%d: %s", sticky[i], gcuda_last_error());
        place_end(&p);
        gcuda_backend_free(backend);
    }
    clean();
}

TEST(a_lost_backend_answers_at_once_and_can_be_freed) {
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    struct place p = place_begin();
    struct gcuda_tensor *x = gcuda_new_tensor_1d(p.ctx, GCUDA_TYPE_F32, 64), *y = gcuda_sqr(p.ctx, x);
    struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
    float data[64] = { 0 };
    CHECK_OK(gcuda_build_forward_expand(graph, y));
    REQUIRE(backend != NULL && place_alloc(&p, backend));
    CHECK_OK(gcuda_backend_tensor_set(x, data, 0, sizeof data));
    gcuda_backend_event_t event = gcuda_backend_event_new(gcuda_backend_get_device(backend));
    sim_fail("cudaLaunchKernelEx", 1, cudaErrorIllegalAddress);
    CHECK(gcuda_backend_graph_compute(backend, graph) == GCUDA_STATUS_DEVICE_LOST);
    CHECK_HAS(gcuda_last_error(), "sqr");
    const long n_launches = sim_counts("cudaLaunchKernelEx"), n_copies = sim_counts("cudaMemcpyAsync"),
               n_waits = sim_counts("cudaStreamSynchronize");
    struct gcuda_cuda_stats stats;
    CHECK(gcuda_backend_graph_compute(backend, graph) == GCUDA_STATUS_DEVICE_LOST);
    CHECK(gcuda_backend_graph_compute_async(backend, graph) == GCUDA_STATUS_DEVICE_LOST);
    CHECK(gcuda_backend_synchronize(backend) == GCUDA_STATUS_DEVICE_LOST);
    CHECK(gcuda_backend_tensor_set_async(backend, x, data, 0, 4) == GCUDA_STATUS_DEVICE_LOST);
    CHECK(gcuda_backend_tensor_get_async(backend, x, data, 0, 4) == GCUDA_STATUS_DEVICE_LOST);
    CHECK(gcuda_backend_tensor_copy_async(backend, backend, x, y) == GCUDA_STATUS_DEVICE_LOST);
    CHECK(gcuda_backend_event_record(event, backend) == GCUDA_STATUS_DEVICE_LOST);
    CHECK(gcuda_backend_event_wait(backend, event) == GCUDA_STATUS_DEVICE_LOST);
    CHECK(gcuda_backend_cuda_trim(backend) == GCUDA_STATUS_DEVICE_LOST);
    CHECK(gcuda_backend_cuda_set_abort_callback(backend, NULL, NULL, 0.0f) == GCUDA_STATUS_DEVICE_LOST);
    struct gcuda_cuda_external_memory memory;
    struct gcuda_cuda_external_semaphore semaphore;
    memset(&memory, 0, sizeof memory);
    memset(&semaphore, 0, sizeof semaphore);
    memory.size = 4096;
    CHECK(gcuda_backend_cuda_import_memory(backend, &memory) == NULL);
    CHECK(gcuda_backend_cuda_import_semaphore(backend, &semaphore) == NULL);
    CHECK_HAS(gcuda_last_error(), "lost");
    CHECK(sim_counts("cudaLaunchKernelEx") == n_launches && sim_counts("cudaMemcpyAsync") == n_copies &&
          sim_counts("cudaStreamSynchronize") == n_waits);
    CHECK_OK(gcuda_backend_cuda_get_stats(backend, &stats)); // asks nothing of the device
    CHECK(strcmp(gcuda_backend_name(backend), "CUDA0") == 0);
    gcuda_backend_event_free(event);
    place_end(&p);
    gcuda_backend_free(backend);
    clean();
}
