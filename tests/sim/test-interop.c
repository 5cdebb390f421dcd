// Working inside somebody else's program, on the simulated device: choosing a device, the caller's stream, context and
// cuBLAS handle, shared memory under a cap, memory and semaphores of other interfaces.
#include "sim-test.h"

// =====================================================================================================================
// >>devices
// =====================================================================================================================
TEST(a_device_is_found_by_whatever_names_it) {
    fresh(3, 64 * MB, 1);
    for (int i = 0; i < 3; ++i) {
        struct gcuda_cuda_device_info info;
        char text[320];
        CHECK_OK(gcuda_backend_cuda_get_device_info(i, &info));
        CHECK_HAS(info.name, "Simulated device");
        CHECK(info.cc == GCUDA_SIM_CC && info.warp_size == 32 && info.n_sm > 0 && info.total_bytes == 64 * MB);
        CHECK(info.shared_bytes == 48 * 1024 && info.shared_bytes_optin > info.shared_bytes && !info.is_integrated);
        CHECK(strlen(info.uuid) == 40 && strncmp(info.uuid, "GPU-", 4) == 0);
        CHECK_EQ_I(gcuda_backend_cuda_find_device(info.uuid), i);
        CHECK_EQ_I(gcuda_backend_cuda_find_device(info.pci), i);
        CHECK_EQ_I(gcuda_backend_cuda_find_device(info.pci + 5), i); // without the domain
        snprintf(text, sizeof text, "0000%s", info.pci);             // as nvidia-smi prints it
        CHECK_EQ_I(gcuda_backend_cuda_find_device(text), i);
        if (info.luid[0] != '\0') { CHECK_EQ_I(gcuda_backend_cuda_find_device(info.luid), i); }
        for (char * c = info.uuid; *c; ++c) { *c = (char) (*c >= 'a' && *c <= 'z' ? *c - 32 : *c); }
        CHECK_EQ_I(gcuda_backend_cuda_find_device(info.uuid), i);
        snprintf(text, sizeof text, "%d", i);
        CHECK_EQ_I(gcuda_backend_cuda_find_device(text), i);
        snprintf(text, sizeof text, "cuda%d", i);
        CHECK_EQ_I(gcuda_backend_cuda_find_device(text), i);
        gcuda_backend_t backend = gcuda_backend_init_by_name(text, NULL);
        CHECK(gcuda_backend_is_cuda(backend));
        gcuda_backend_free(backend);
    }
    clean();
}

TEST(what_names_no_device_or_several_is_refused) {
    static const char * const wrong[] = { NULL, "", "3", "CUDA3", "CUDA", "-1", "GPU-", "GPU-zz", "0000:ff:00.0", "LUID-",
        "0000:01:00.0x", "01:00", "GPU-00000000-0000-0000-0000-0000000000000" };
    fresh(3, 64 * MB, 1);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; ++i) {
        gcuda_clear_last_error();
        CHECK_MSG(gcuda_backend_cuda_find_device(wrong[i]) == -1, "'%s' names a device", wrong[i] ? wrong[i] : "NULL");
        CHECK_HAS(gcuda_last_error(), "of 3 devices");
    }
    struct gcuda_cuda_device_info info;
    CHECK(gcuda_backend_cuda_get_device_info(3, &info) == GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK(gcuda_backend_cuda_get_device_info(0, NULL) == GCUDA_STATUS_INVALID_ARGUMENT);
    clean();
}

// Nothing but questions that need no context.
TEST(listing_devices_makes_no_context) {
    fresh(4, 64 * MB, 1);
    CHECK_EQ_I(gcuda_backend_cuda_get_device_count(), 4);
    CHECK_EQ_I(gcuda_backend_cuda_find_device("2"), 2);
    CHECK(gcuda_backend_dev_by_name("CUDA3") != NULL);
    for (int i = 0; sim_api(i) != NULL; ++i) {
        static const char * const harmless[] = { "cudaGetDeviceCount", "cudaGetDeviceProperties", "cudaGetLastError",
            "cudaDriverGetVersion", "cudaGetDriverEntryPointByVersion", "cudaGetDriverEntryPoint", "cuDeviceGet",
            "cuDeviceGetAttribute", "cuMemGetAllocationGranularity", "cudaDeviceGetAttribute" };
        bool is_harmless = false;
        for (size_t k = 0; k < sizeof harmless / sizeof harmless[0]; ++k) {
            is_harmless = is_harmless || strcmp(sim_api(i), harmless[k]) == 0;
        }
        CHECK_MSG(is_harmless || sim_counts(sim_api(i)) == 0, "listing calls %s", sim_api(i));
    }
    clean();
}

// =====================================================================================================================
// >>shared   the cap that choices of kernels see
// =====================================================================================================================
TEST(shared_memory_of_a_backend_is_capped) {
    struct gcuda_cuda_device_info info;
    CHECK_OK(gcuda_backend_cuda_get_device_info(0, &info));
    const size_t least = info.shared_bytes, most = info.shared_bytes_optin;
    const size_t caps[][2] = { { 0, most }, { 1, least }, { 48 * 1024, least }, { 60 * 1024, 60 * 1024 }, { most, most },
        { (size_t) 1 << 30, most } };
    for (size_t i = 0; i < sizeof caps / sizeof caps[0]; ++i) {
        struct gcuda_cuda_params params;
        memset(&params, 0, sizeof params);
        params.max_shared = caps[i][0];
        gcuda_backend_t backend = gcuda_backend_cuda_init_params(&params);
        CHECK_EQ_I(gcuda_backend_cuda_get_max_shared(backend), caps[i][1]);
        gcuda_backend_free(backend);
    }
    gcuda_backend_t cpu = gcuda_backend_cpu_init();
    CHECK_EQ_I(gcuda_backend_cuda_get_max_shared(cpu), 0);
    gcuda_backend_free(cpu);
    clean();
}
