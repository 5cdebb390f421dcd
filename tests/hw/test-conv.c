// Convolutions by their launcher, large enough for every kernel: with all shared memory of the device, with 100 KiB,
// and with the 48 KiB of every device. Compared with float64 at the corners and at random elements.
#include "device.h"

struct shape {
    int64_t w, h, ic, n, kw, kh, oc;
    int s0, s1, p0, p1, d0, d1;
};

static struct gcuda_array array_of(enum gcuda_type type, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3) {
    const int64_t ne[4] = { ne0, ne1, ne2, ne3 };
    struct gcuda_array a;
    memset(&a, 0, sizeof a);
    a.type = type;
    size_t nb = gcuda_type_size(type);
    for (int i = 0; i < 4; ++i) {
        a.ne[i] = ne[i];
        a.nb[i] = nb;
        nb *= (size_t) ne[i];
    }
    return a;
}
static int64_t n_of(const struct gcuda_array * a) { return a->ne[0] * a->ne[1] * a->ne[2] * a->ne[3]; }

static float load(enum gcuda_type type, const char * data, int64_t i) {
    float v = 0.0f;
    if (type == GCUDA_TYPE_F32) {
        memcpy(&v, data + 4 * i, 4);
    } else {
        gcuda_get_type_traits(type)->to_float(data + 2 * i, &v, 1);
    }
    return v;
}

static char * random_of(const struct gcuda_array * a, struct rng * r) {
    const size_t size = gcuda_type_size(a->type);
    char * data = (char *) malloc((size_t) n_of(a) * size);
    for (int64_t i = 0; i < n_of(a); ++i) {
        const float v = (float) rng_between(r, -1.0, 1.0);
        if (a->type == GCUDA_TYPE_F32) {
            memcpy(data + 4 * i, &v, 4);
        } else {
            gcuda_get_type_traits(a->type)->from_float_ref(&v, data + 2 * i, 1);
        }
    }
    return data;
}

static void * on_device(const void * from, size_t size) { // these bytes, or all bits set
    void *to = NULL, *ones = from == NULL ? memset(malloc(size + 1), 0xff, size + 1) : NULL;
    CHECK(cudaMalloc(&to, size + 1) == cudaSuccess);
    CHECK(cudaMemcpy(to, from != NULL ? from : ones, size, cudaMemcpyHostToDevice) == cudaSuccess);
    free(ones);
    return to;
}

// One result, and the sum of the squares of its terms.
static double dot(
    const struct gcuda_conv_args * p, const char * w, const char * x, const int64_t * i, double * squares) {
    double sum = 0.0;
    for (int64_t c = 0; c < p->x.ne[2]; ++c) {
        for (int64_t ky = 0; ky < p->kernel.ne[1]; ++ky) {
            for (int64_t kx = 0; kx < p->kernel.ne[0]; ++kx) {
                const int64_t at_x = i[0] * p->s0 + kx * p->d0 - p->p0, at_y = i[1] * p->s1 + ky * p->d1 - p->p1;
                if (at_x < 0 || at_x >= p->x.ne[0] || at_y < 0 || at_y >= p->x.ne[1]) { continue; }
                const double v = load(p->x.type, x, ((i[3] * p->x.ne[2] + c) * p->x.ne[1] + at_y) * p->x.ne[0] + at_x);
                const double term = v * load(p->kernel.type, w,
                                            ((i[2] * p->x.ne[2] + c) * p->kernel.ne[1] + ky) * p->kernel.ne[0] + kx);
                sum += term;
                *squares += term * term;
            }
        }
    }
    return sum;
}

static void compare(const struct gcuda_conv_args * p, const char * w, const char * x, const char * y, struct rng * r) {
    enum { N = 400 };
    double errors = 0.0, results = 0.0, most = 0.0;
    for (int k = 0; k < N; ++k) {
        int64_t i[4];
        for (int j = 0; j < 4; ++j) { i[j] = k < 16 ? (k >> j & 1) * (p->y.ne[j] - 1) : rng_below(r, p->y.ne[j]); }
        const double want = dot(p, w, x, i, &results);
        const double error =
            load(p->y.type, y, ((i[3] * p->y.ne[2] + i[2]) * p->y.ne[1] + i[1]) * p->y.ne[0] + i[0]) - want;
        errors += error * error;
        most = fmax(most, isfinite(error) ? fabs(error) : INFINITY);
    }
    const double bound = p->y.type == GCUDA_TYPE_BF16 ? 1e-5 : 1e-6; // BF16 rounds the result itself
    CHECK_MSG(errors <= bound * results, "NMSE %g, allowed %g", errors / results, bound);
    CHECK_MSG(most <= 10.0 * sqrt(bound * results / N), "error %g, rms of results %g", most, sqrt(results / N));
    int64_t n_lost = 0; // still as on_device left them
    if (p->y.type == GCUDA_TYPE_F32) {
        for (int64_t i = 0; i < n_of(&p->y); ++i) { n_lost += ((const uint32_t *) y)[i] == 0xffffffffu; }
    } else {
        for (int64_t i = 0; i < n_of(&p->y); ++i) { n_lost += ((const uint16_t *) y)[i] == 0xffffu; }
    }
    CHECK_MSG(n_lost == 0, "%lld of %lld results were not written", (long long) n_lost, (long long) n_of(&p->y));
}

static void convolution_by(gcuda_status (*launch)(const struct gcuda_conv_args * args, gcuda_stream stream),
    size_t (*scratch_bytes_of)(const struct gcuda_conv_args * args), enum gcuda_type type, struct shape s) {
    const size_t shared[] = { most_shared(), most_shared() < (size_t) 99 << 10 ? most_shared() : (size_t) 99 << 10, 0 };
    struct gcuda_conv_args p;
    struct rng r = rng_for("conv");
    memset(&p, 0, sizeof p);
    p.kernel = array_of(GCUDA_TYPE_F16, s.kw, s.kh, s.ic, s.oc);
    p.x = array_of(type, s.w, s.h, s.ic, s.n);
    p.y = array_of(type, (s.w + 2 * s.p0 - s.d0 * (s.kw - 1) - 1) / s.s0 + 1,
        (s.h + 2 * s.p1 - s.d1 * (s.kh - 1) - 1) / s.s1 + 1, s.oc, s.n);
    p.s0 = s.s0, p.s1 = s.s1, p.p0 = s.p0, p.p1 = s.p1, p.d0 = s.d0, p.d1 = s.d1;
    char *w = random_of(&p.kernel, &r), *x = random_of(&p.x, &r);
    const size_t n_bytes = (size_t) n_of(&p.y) * gcuda_type_size(type);
    char * y = (char *) malloc(n_bytes);
    p.kernel.data = on_device(w, (size_t) n_of(&p.kernel) * 2);
    p.x.data = on_device(x, (size_t) n_of(&p.x) * gcuda_type_size(type));
    const size_t scratch_bytes = scratch_bytes_of(&p);
    CHECK(scratch_bytes > 0); // it is one for these launchers
    for (int i = 0; i < 3; ++i) {
        snprintf(test_all.case_name, sizeof test_all.case_name,
            "%s %lldx%lldx%lldx%lld, kernel %lldx%lldx%lld, stride %d %d, shared %zu", gcuda_type_name(type),
            (long long) s.w, (long long) s.h, (long long) s.ic, (long long) s.n, (long long) s.kw, (long long) s.kh,
            (long long) s.oc, s.s0, s.s1, shared[i]);
        p.max_shared = shared[i];
        p.y.data = on_device(NULL, n_bytes);
        p.scratch = on_device(NULL, scratch_bytes);
        CHECK_OK(launch(&p, NULL));
        CHECK(cudaDeviceSynchronize() == cudaSuccess);
        CHECK(cudaMemcpy(y, p.y.data, n_bytes, cudaMemcpyDeviceToHost) == cudaSuccess);
        compare(&p, w, x, y, &r);
        CHECK(cudaFree(p.y.data) == cudaSuccess && cudaFree(p.scratch) == cudaSuccess);
    }
    test_all.case_name[0] = '\0';
    CHECK(cudaFree(p.kernel.data) == cudaSuccess && cudaFree(p.x.data) == cudaSuccess);
    free(w);
    free(x);
    free(y);
}

static void convolution(enum gcuda_type type, struct shape s) {
    convolution_by(gcuda_launch_conv_2d, gcuda_conv_2d_scratch_bytes, type, s);
}

TEST(channels_and_pixels_that_fill_no_tile) {
    static const struct shape shapes[] = {
        { 28, 28, 128, 4, 3, 3, 128, 1, 1, 1, 1, 1, 1 },
        { 100, 91, 200, 1, 1, 1, 130, 1, 1, 0, 0, 1, 1 },
        { 120, 110, 32, 1, 3, 3, 64, 1, 1, 0, 0, 1, 1 },
        { 173, 177, 12, 1, 5, 5, 33, 1, 1, 2, 2, 1, 1 },
        { 7, 7, 512, 2, 3, 3, 512, 1, 1, 1, 1, 1, 1 },
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; ++i) { convolution(GCUDA_TYPE_F32, shapes[i]); }
}

TEST(strides_and_dilations) {
    static const struct shape shapes[] = {
        { 15, 15, 257, 8, 3, 3, 192, 1, 1, 1, 1, 1, 1 },
        { 151, 77, 41, 3, 3, 2, 70, 2, 1, 1, 3, 1, 2 },
        { 64, 64, 96, 4, 3, 3, 96, 2, 2, 1, 1, 1, 1 },
        { 61, 63, 136, 2, 3, 3, 200, 1, 1, 3, 3, 3, 3 },
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; ++i) {
        convolution(GCUDA_TYPE_F32, shapes[i]);
        convolution(GCUDA_TYPE_F16, shapes[i]);
        convolution(GCUDA_TYPE_BF16, shapes[i]);
    }
}

TEST(many_tiles) { // several per SM, of every kind
    static const struct shape shapes[] = {
        { 64, 64, 64, 16, 3, 3, 256, 1, 1, 1, 1, 1, 1 },
        { 300, 301, 16, 2, 3, 3, 48, 1, 1, 1, 1, 1, 1 },
        { 64, 64, 640, 2, 1, 1, 640, 1, 1, 0, 0, 1, 1 },
        { 33, 31, 264, 3, 1, 1, 257, 1, 1, 0, 0, 1, 1 },
        { 65, 63, 256, 6, 3, 3, 130, 1, 1, 1, 1, 1, 1 },
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; ++i) { convolution(GCUDA_TYPE_F32, shapes[i]); }
}

TEST(few_channels_of_large_images) {
    static const struct shape shapes[] = {
        { 500, 545, 32, 1, 3, 3, 48, 1, 1, 1, 1, 1, 1 },
        { 255, 302, 16, 4, 5, 5, 33, 1, 1, 3, 4, 2, 2 },
        { 767, 361, 48, 1, 1, 2, 64, 1, 1, 0, 0, 1, 1 },
        { 513, 128, 64, 5, 2, 3, 64, 1, 1, 0, 1, 1, 1 },
        { 772, 361, 29, 1, 2, 3, 61, 1, 1, 0, 0, 1, 1 },
        { 768, 180, 16, 2, 4, 3, 33, 1, 1, 2, 2, 2, 1 },
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; ++i) { convolution(GCUDA_TYPE_F32, shapes[i]); }
    convolution(GCUDA_TYPE_F16, shapes[1]);
    convolution(GCUDA_TYPE_BF16, shapes[0]);
}

TEST(few_blocks) { // for racecheck (tests/gpu.py), by a launcher that does not ask for a size
    static const struct shape shapes[] = { { 12, 11, 72, 1, 3, 3, 70, 1, 1, 1, 1, 1, 1 },
        { 9, 10, 40, 2, 3, 2, 130, 2, 1, 1, 0, 1, 1 } };
    for (int i = 0; i < 2; ++i) {
        convolution_by(gcuda_launch_conv_2d_packed, gcuda_conv_2d_packed_scratch_bytes, GCUDA_TYPE_F32, shapes[i]);
        convolution_by(gcuda_launch_conv_2d_packed, gcuda_conv_2d_packed_scratch_bytes, GCUDA_TYPE_F16, shapes[i]);
    }
}

// The tiles of wgmma, 128 x 128, 128 x 256 and 64 x 256, and unconverted rows of images: on a device with few SMs.
TEST(few_blocks_of_every_tile) {
    static const struct shape shapes[] = { { 24, 24, 24, 1, 3, 3, 256, 1, 1, 1, 1, 1, 1 },
        { 32, 32, 16, 1, 3, 3, 250, 1, 1, 1, 1, 1, 1 }, { 32, 33, 40, 1, 3, 3, 60, 1, 1, 1, 1, 1, 1 },
        { 252, 36, 16, 1, 3, 3, 33, 1, 1, 1, 1, 1, 1 } };
    for (int i = 0; i < 4; ++i) {
        convolution_by(gcuda_launch_conv_2d_packed, gcuda_conv_2d_packed_scratch_bytes, GCUDA_TYPE_F32, shapes[i]);
    }
}

static size_t place_of(const struct gcuda_array * a, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    return (size_t) i0 * a->nb[0] + (size_t) i1 * a->nb[1] + (size_t) i2 * a->nb[2] + (size_t) i3 * a->nb[3];
}

// Depthwise of 3 x 3, enough of them for the form that slides down the image: rows of pixels, and channels innermost.
static void depthwise(bool is_channels, int64_t w, int64_t h, int64_t c, int64_t n, int p0, int p1) {
    struct gcuda_conv_args p;
    struct rng r = rng_for("depthwise");
    memset(&p, 0, sizeof p);
    p.kernel = array_of(GCUDA_TYPE_F32, 3, 3, 1, c);
    p.x = array_of(GCUDA_TYPE_F32, w, h, c, n);
    p.y = array_of(GCUDA_TYPE_F32, w + 2 * p0 - 2, h + 2 * p1 - 2, c, n);
    p.s0 = p.s1 = p.d0 = p.d1 = 1;
    p.p0 = p0, p.p1 = p1;
    if (is_channels) {
        for (int i = 0; i < 2; ++i) { // channels first, then the original layout
            struct gcuda_array * a = i == 0 ? &p.x : &p.y;
            a->nb[2] = 4;
            a->nb[0] = 4 * (size_t) c;
            a->nb[1] = a->nb[0] * (size_t) a->ne[0];
        }
        p.kernel.nb[3] = 4;
        p.kernel.nb[0] = 4 * (size_t) c;
        p.kernel.nb[1] = p.kernel.nb[2] = 12 * (size_t) c;
        p.kernel.nb[2] *= 3;
    }
    char *weights = random_of(&p.kernel, &r), *x = random_of(&p.x, &r);
    const size_t n_bytes = (size_t) n_of(&p.y) * 4;
    char * y = (char *) malloc(n_bytes);
    p.kernel.data = on_device(weights, (size_t) n_of(&p.kernel) * 4);
    p.x.data = on_device(x, (size_t) n_of(&p.x) * 4);
    p.y.data = on_device(NULL, n_bytes);
    CHECK_OK(gcuda_launch_conv_2d_dw(&p, NULL));
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    CHECK(cudaMemcpy(y, p.y.data, n_bytes, cudaMemcpyDeviceToHost) == cudaSuccess);
    for (int k = 0; k < 2000; ++k) {
        int64_t i[4];
        for (int j = 0; j < 4; ++j) { i[j] = k < 16 ? (k >> j & 1) * (p.y.ne[j] - 1) : rng_below(&r, p.y.ne[j]); }
        double want = 0.0;
        for (int64_t t = 0; t < 9; ++t) {
            const int64_t at_x = i[0] + t % 3 - p0, at_y = i[1] + t / 3 - p1;
            if (at_x < 0 || at_x >= w || at_y < 0 || at_y >= h) { continue; }
            const size_t from = place_of(&p.x, at_x, at_y, i[2], i[3]),
                         tap = place_of(&p.kernel, t % 3, t / 3, 0, i[2]);
            want += (double) load(GCUDA_TYPE_F32, x + from, 0) * load(GCUDA_TYPE_F32, weights + tap, 0);
        }
        const double found = load(GCUDA_TYPE_F32, y + place_of(&p.y, i[0], i[1], i[2], i[3]), 0);
        CHECK_MSG(fabs(found - want) <= 1e-5, "channels %s, at %lld %lld %lld %lld: %g, want %g",
            is_channels ? "first" : "last", (long long) i[0], (long long) i[1], (long long) i[2], (long long) i[3],
            found, want);
    }
    int64_t n_lost = 0; // still as on_device left them
    for (int64_t i = 0; i < n_of(&p.y); ++i) { n_lost += ((const uint32_t *) y)[i] == 0xffffffffu; }
    CHECK_MSG(n_lost == 0, "%lld of %lld results were not written", (long long) n_lost, (long long) n_of(&p.y));
    CHECK(cudaFree(p.kernel.data) == cudaSuccess && cudaFree(p.x.data) == cudaSuccess &&
          cudaFree(p.y.data) == cudaSuccess);
    free(weights);
    free(x);
    free(y);
}

TEST(depthwise_of_large_images) {
    depthwise(false, 260, 250, 70, 2, 1, 1);
    depthwise(false, 256, 131, 200, 1, 1, 0);
    depthwise(true, 131, 260, 272, 1, 1, 1);
    depthwise(true, 133, 140, 252, 2, 0, 2);
}
