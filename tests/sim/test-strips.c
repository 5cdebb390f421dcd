// Row-split products of many columns on path WGMMA: strips of prequantized activations and their synchronization, on
// several simulated devices. These have no wgmma kernels. Substitutes multiply the first 32 elements of k of every
// eighth column; they read and write at the addresses of the real ones.
#define gcuda_has_warp_groups fake_has_warp_groups
#define gcuda_mul_mat_takes fake_takes
#define gcuda_mul_mat_scratch_bytes fake_scratch_bytes
#define gcuda_mul_mat_layout fake_layout
#define gcuda_launch_mul_mat fake_launch
#define GCUDA_IMPLEMENTATION
#include "gcuda.h"

#include "sim-test.h"

enum { K = 4096, M = 4480, SOME_K = 32, STEP = 8 };

static int n_rounded, n_products, n_with_parts; // calls

bool fake_has_warp_groups(void) { return true; }

static size_t tile_bytes(void) { return GCUDA_MUL_MAT_WG_TILE * SOME_K * 4; }

// Those of the kernel file, for all that is not WGMMA.
#undef gcuda_mul_mat_takes
#undef gcuda_mul_mat_scratch_bytes
#undef gcuda_mul_mat_layout
#undef gcuda_launch_mul_mat
GCUDA_KERNEL_API bool gcuda_mul_mat_takes(const struct gcuda_mul_mat_job * job);
GCUDA_KERNEL_API size_t gcuda_mul_mat_scratch_bytes(const struct gcuda_mul_mat_job * job);
GCUDA_KERNEL_API struct gcuda_activation_layout gcuda_mul_mat_layout(const struct gcuda_mul_mat_job * job);
GCUDA_KERNEL_API gcuda_status gcuda_launch_mul_mat(const struct gcuda_mul_mat_job * job, gcuda_stream stream);

static size_t columns_bytes(const struct gcuda_mul_mat_args * args) {
    return (size_t) gcudai_cuda_tiles(args->b.ne[1], GCUDA_MUL_MAT_WG_TILE) * tile_bytes();
}

// Of products that have few tiles the sums are in two parts.
static size_t parts_bytes_of(const struct gcuda_mul_mat_args * args) {
    const int64_t tiles =
        gcudai_cuda_tiles(args->b.ne[1], GCUDA_MUL_MAT_WG_TILE) * gcudai_cuda_tiles(args->a.ne[1], 256);
    return tiles <= 9 ? (size_t) (2 * args->a.ne[1] * args->b.ne[1]) * 4 : 0;
}

static gcuda_status fake_columns(const struct gcuda_mul_mat_args * args, void * columns, gcuda_stream stream) {
    gcuda_status st = GCUDA_STATUS_SUCCESS;
    n_rounded++;
    for (int64_t c = 0, at = 0; c < args->b.ne[1] && st == GCUDA_STATUS_SUCCESS; c += GCUDA_MUL_MAT_WG_TILE, ++at) {
        struct gcuda_cpy_args copy;
        size_t size = 0;
        copy.x = args->b;
        copy.x.data = (char *) args->b.data + (size_t) c * args->b.nb[1];
        copy.x.ne[0] = SOME_K;
        copy.x.ne[1] = GCUDAI_MIN(args->b.ne[1] - c, GCUDA_MUL_MAT_WG_TILE);
        copy.y = copy.x;
        copy.scratch = NULL;
        CHECK_OK(gcudai_layout(copy.y.type, copy.y.ne, copy.y.nb, &size));
        copy.y.data = (char *) columns + (size_t) at * tile_bytes();
        st = gcuda_launch_cpy(&copy, stream);
    }
    return st;
}

static gcuda_status fake_multiply(const struct gcuda_mul_mat_args * args, const void * columns, gcuda_stream stream) {
    gcuda_status st = GCUDA_STATUS_SUCCESS;
    n_products++;
    for (int64_t c = 0, at = 0; c < args->b.ne[1] && st == GCUDA_STATUS_SUCCESS; c += GCUDA_MUL_MAT_WG_TILE, ++at) {
        struct gcuda_mul_mat_args p = *args;
        size_t size = 0;
        p.a.ne[0] = p.b.ne[0] = SOME_K;
        p.b.ne[1] = p.y.ne[1] = (GCUDAI_MIN(args->b.ne[1] - c, GCUDA_MUL_MAT_WG_TILE) + STEP - 1) / STEP;
        CHECK_OK(gcudai_layout(p.b.type, p.b.ne, p.b.nb, &size));
        p.b.nb[1] *= STEP;
        p.b.data = (char *) (uintptr_t) columns + (size_t) at * tile_bytes();
        p.y.data = (char *) p.y.data + (size_t) c * p.y.nb[1];
        p.y.nb[1] *= STEP;
        struct gcuda_mul_mat_job job;
        GCUDAI_ZERO(job);
        job.args = &p;
        st = gcuda_launch_mul_mat(&job, stream);
    }
    return st;
}

static gcuda_status fake_product(
    const struct gcuda_mul_mat_args * args, const void * columns, void * parts, gcuda_stream stream) {
    const size_t parts_bytes = parts_bytes_of(args);
    CHECK(parts_bytes == 0 || parts != NULL);
    n_with_parts += parts_bytes > 0;
    if (parts_bytes > 0 && cudaMemsetAsync(parts, 0xff, parts_bytes, stream) != cudaSuccess) {
        return GCUDA_STATUS_FAILED;
    }
    return fake_multiply(args, columns, stream);
}

// Its scratch is for columns, in rows of all k; sums of parts are its own.
static gcuda_status fake_whole(const struct gcuda_mul_mat_args * args, void * scratch, gcuda_stream stream) {
    n_rounded--;
    const gcuda_status st = fake_columns(args, scratch, stream);
    return st == GCUDA_STATUS_SUCCESS ? fake_multiply(args, scratch, stream) : st;
}

bool fake_takes(const struct gcuda_mul_mat_job * job) { return gcuda_mul_mat_takes(job); }

// Scratch of the whole is as on a device with wgmma; see fake_whole.
size_t fake_scratch_bytes(const struct gcuda_mul_mat_job * job) {
    static const struct gcuda_mul_mat_device device = { 900, true };
    struct gcuda_mul_mat_job any = *job;
    any.device = &device;
    return job->path != GCUDA_MUL_MAT_WGMMA || job->stage == GCUDA_MUL_MAT_ALL ? gcuda_mul_mat_scratch_bytes(&any)
           : job->stage == GCUDA_MUL_MAT_PRODUCT                               ? parts_bytes_of(job->args)
                                                                               : 0;
}

struct gcuda_activation_layout fake_layout(const struct gcuda_mul_mat_job * job) {
    struct gcuda_activation_layout l = gcuda_mul_mat_layout(job);
    if (job->stage == GCUDA_MUL_MAT_ACTIVATIONS) { l.bytes = columns_bytes(job->args); }
    return l;
}

gcuda_status fake_launch(const struct gcuda_mul_mat_job * job, gcuda_stream stream) {
    return job->path != GCUDA_MUL_MAT_WGMMA          ? gcuda_launch_mul_mat(job, stream)
           : job->stage == GCUDA_MUL_MAT_ACTIVATIONS ? fake_columns(job->args, job->activations, stream)
           : job->stage == GCUDA_MUL_MAT_PRODUCT     ? fake_product(job->args, job->activations, job->scratch, stream)
                                                     : fake_whole(job->args, job->scratch, stream);
}

struct setting {
    int n_devices, link;
    float shares[4];
    int64_t n, split_columns;
    bool is_padded; // columns apart in memory
    enum gcuda_cuda_peer_mode mode;
};

static gcuda_status fill(struct gcuda_tensor * t, uint64_t seed) {
    const size_t size = gcuda_nbytes(t);
    char * data = (char *) malloc(size);
    if (gcuda_is_quantized(t->type)) {
        for (size_t i = 0; i < size; i += 18) {
            const gcuda_fp16_t d = gcuda_fp32_to_fp16(0.125f);
            for (int j = 2; j < 18; ++j) {
                data[i + (size_t) j] = (char) ((i / 18 * 131 + (size_t) j * 71 + seed) % 251);
            }
            memcpy(data + i, &d, sizeof d);
        }
    } else {
        for (size_t i = 0; i < size / 4; ++i) {
            ((float *) (void *) data)[i] = (float) ((i * 7919 + seed * 104729) % 1009) / 504.5f - 1.0f;
        }
    }
    const gcuda_status st = gcuda_backend_tensor_set(t, data, 0, size);
    free(data);
    return st;
}

// Twice, then again with other columns: from the second run on a CUDA graph. NULL on failure.
static float * products(gcuda_backend_t backend, gcuda_backend_buffer_type_t t, const struct setting * s) {
    struct place weights = place_begin(), p = place_begin();
    struct gcuda_tensor * w = gcuda_new_tensor_2d(weights.ctx, GCUDA_TYPE_Q4_0, K, M);
    struct gcuda_tensor * base = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, s->is_padded ? K + 32 : K, s->n);
    struct gcuda_tensor * x = s->is_padded ? gcuda_view_2d(p.ctx, base, K, s->n, base->nb[1], 0) : base;
    struct gcuda_tensor * y = gcuda_mul_mat(p.ctx, w, x);
    struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
    float * out = NULL;
    CHECK_OK(gcuda_build_forward_expand(graph, y));
    weights.buffer =
        gcuda_backend_alloc_ctx_tensors_from_buft(weights.ctx, t ? t : gcuda_backend_get_default_buffer_type(backend));
    gcuda_status st =
        weights.buffer != NULL && place_alloc(&p, backend) ? GCUDA_STATUS_SUCCESS : GCUDA_STATUS_ALLOC_FAILED;
    if (st == GCUDA_STATUS_SUCCESS) {
        st = fill(w, 1);
        for (uint64_t i = 0; i < 3 && st == GCUDA_STATUS_SUCCESS; ++i) {
            st = i != 1 ? fill(base, i) : st;
            if (i == 0) { n_rounded = n_products = n_with_parts = 0; }
            st = st == GCUDA_STATUS_SUCCESS ? gcuda_backend_graph_compute(backend, graph) : st;
        }
        out = (float *) malloc(gcuda_nbytes(y));
        if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_backend_tensor_get(y, out, 0, gcuda_nbytes(y)); }
    }
    if (st != GCUDA_STATUS_SUCCESS) {
        (void) gcuda_backend_synchronize(backend);
        free(out);
        out = NULL;
    }
    place_end(&p);
    place_end(&weights);
    return out;
}

static float * whole(const struct setting * s) {
    fresh(1, 128 * MB, 0);
    gcuda_backend_t backend = gcuda_backend_cuda_init(0);
    float * y = products(backend, NULL, s);
    CHECK_MSG(y != NULL, "%s", gcuda_last_error());
    gcuda_backend_free(backend);
    return y;
}

static gcuda_backend_t backend_of(const struct setting * s, uint64_t seed) {
    fresh(s->n_devices, 128 * MB, seed);
    for (int i = 0; i < s->n_devices * s->n_devices; ++i) {
        if (i % s->n_devices != i / s->n_devices) { sim_peer(i % s->n_devices, i / s->n_devices, s->link); }
    }
    struct gcuda_cuda_params params;
    memset(&params, 0, sizeof params);
    params.device = s->n_devices - 1;
    params.peer = s->mode;
    params.split_columns = s->split_columns;
    return gcuda_backend_cuda_init_params(&params);
}

// The columns that there are.
static bool is_same(const float * y, const float * wanted, const struct setting * s) {
    bool is_so = y != NULL;
    for (int64_t c = 0; c < s->n && is_so; c += STEP) { is_so = memcmp(y + c * M, wanted + c * M, M * 4) == 0; }
    return is_so;
}

static void split_once(const struct setting * s, uint64_t seed, const float * wanted) {
    gcuda_backend_t backend = backend_of(s, seed);
    gcuda_backend_buffer_type_t t = gcuda_backend_cuda_split_buffer_type(s->n_devices - 1, s->shares, s->n_devices);
    REQUIRE(backend != NULL && t != NULL);
    float * y = products(backend, t, s);
    CHECK_MSG(is_same(y, wanted, s), "%d devices, %d columns, strips of %d, seed %d: %s", s->n_devices, (int) s->n,
        (int) s->split_columns, (int) seed, y ? "wrong" : gcuda_last_error());
    free(y);
    gcuda_backend_free(backend);
    CHECK(sim_leaks() == 0 && sim_violations() == 0);
}

static const struct setting settings[] = {
    { 2, 4, { 1, 1 }, 700, 0, false, GCUDA_CUDA_PEER_AUTO },
    { 2, 4, { 1, 3 }, 512, 0, true, GCUDA_CUDA_PEER_AUTO },
    { 2, 4, { 3, 1 }, 129, 0, false, GCUDA_CUDA_PEER_AUTO },
    { 3, 4, { 1, 3, 2 }, 600, 512, false, GCUDA_CUDA_PEER_AUTO },
    { 3, 4, { 0, 1, 1 }, 300, 0, false, GCUDA_CUDA_PEER_AUTO },
};
// products take the same path, and each device quantizes the activations. Reasons: too few columns, strips that are no
// whole tiles, all at once, no access, no strips with this many columns
static const struct setting others[] = {
    { 2, 4, { 1, 1 }, 128, 0, false, GCUDA_CUDA_PEER_AUTO },
    { 2, 4, { 1, 1 }, 300, 104, false, GCUDA_CUDA_PEER_AUTO },
    { 2, 4, { 1, 1 }, 300, -1, false, GCUDA_CUDA_PEER_AUTO },
    { 2, 4, { 1, 1 }, 300, 0, false, GCUDA_CUDA_PEER_OFF },
    { 2, 1, { 1, 1 }, 300, 0, false, GCUDA_CUDA_PEER_AUTO },
};

TEST(strips_of_rounded_columns_are_the_whole_bit_for_bit) {
    int with_parts = 0;
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; ++i) {
        float * wanted = whole(&settings[i]);
        REQUIRE(wanted != NULL);
        for (uint64_t seed = 0; seed < (test_full() ? 20u : 3u); ++seed) {
            split_once(&settings[i], seed, wanted);
            CHECK_MSG(n_rounded > 0, "setting %d: not rounded by the main device", (int) i);
            with_parts += n_with_parts;
        }
        free(wanted);
    }
    CHECK(with_parts > 0);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; ++i) {
        float * wanted = whole(&others[i]);
        REQUIRE(wanted != NULL);
        split_once(&others[i], i, wanted);
        CHECK_MSG(n_rounded == 0 && n_products > 0, "setting %d: rounded by the main device", (int) i);
        free(wanted);
    }
    clean();
}

static void fail_once(const struct setting * s, const char * api, long k, const float * wanted) {
    gcuda_backend_t backend = backend_of(s, 1);
    gcuda_backend_buffer_type_t t = gcuda_backend_cuda_split_buffer_type(s->n_devices - 1, s->shares, s->n_devices);
    REQUIRE(backend != NULL && t != NULL);
    sim_fail(api, (int) k, cudaErrorMemoryAllocation);
    float * y = products(backend, t, s);
    const bool came = sim_failed() > 0;
    CHECK_MSG(y == NULL || is_same(y, wanted, s), "%s %ld: wrong numbers without a status", api, k);
    if (y == NULL) { CHECK_MSG(came && gcuda_last_error()[0] != '\0', "%s %ld: no message", api, k); }
    free(y);
    sim_fail(api, 0, cudaSuccess);
    y = products(backend, t, s);
    CHECK_MSG(is_same(y, wanted, s), "%s %ld: not usable again: %s", api, k, y ? "wrong" : gcuda_last_error());
    free(y);
    gcuda_backend_free(backend);
    CHECK_MSG(sim_leaks() == 0 && sim_violations() == 0, "%s %ld: leaks or wrong use", api, k);
}

TEST(every_cuda_call_of_rounded_strips_fails_in_turn) {
    static const char * const apis[] = { "cudaEventRecord", "cudaStreamWaitEvent", "cudaStreamCreateWithFlags",
        "cudaMalloc", "cudaMemcpyPeerAsync", "cudaMemcpy3DPeerAsync", "cudaMemcpyAsync", "cudaMemcpy2DAsync",
        "cudaSetDevice", "cuMemCreate" };
    const struct setting s = { 2, 4, { 1, 1 }, 512, 0, false, GCUDA_CUDA_PEER_AUTO };
    long counts[sizeof apis / sizeof apis[0]];
    float * wanted = whole(&s);
    REQUIRE(wanted != NULL);
    split_once(&s, 1, wanted);
    for (size_t i = 0; i < sizeof apis / sizeof apis[0]; ++i) { counts[i] = sim_counts(apis[i]); }
    for (size_t i = 0; i < sizeof apis / sizeof apis[0]; ++i) {
        const long step = test_full() ? 1 : counts[i] / 3 + 1;
        for (long k = 1; k <= counts[i]; k += step) { fail_once(&s, apis[i], k, wanted); }
    }
    free(wanted);
    clean();
}
