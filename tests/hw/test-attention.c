// Attention by its launcher: every path that can run, compared with PLAIN on the same device and with float64 on the
// host. A sample of the cross product of types, head sizes, groups, tokens, positions, splits, masks, strides and bias.
// Then NaN in positions that no query sees, numbers beyond F16, precision F32, little shared memory, equal bits on
// every run, the choice of a path, and gradients. Runs on a device and on the simulated one, which runs the threads of
// a launch in random order.
#include "device.h"

#if defined(GCUDAI_SIM)
#define SIZE(device, simulated) (simulated)
#else
#define SIZE(device, simulated) (device)
#endif

enum mask_kind {
    MASK_NONE,
    MASK_ZERO,
    MASK_CAUSAL,
    MASK_WINDOW,
    MASK_BIAS,
    MASK_HOLES,
    MASK_EMPTY_ROWS,
    MASK_TILES,
    MASK_PREFIX,
    MASK_SINGLE,
    N_MASKS,
    MASK_SPARSE = N_MASKS
};
static const char * const mask_names[N_MASKS + 1] = { "none", "zero", "causal", "window", "bias", "holes", "empty rows",
    "tiles", "prefix", "single", "sparse" };
enum layout { PACKED, PADDED, INTERLEAVED, V_IN_K, N_LAYOUTS };
static const char * const layout_names[N_LAYOUTS] = { "packed", "padded", "interleaved", "v in k" };
// BIG_LOGITS: up to 1e4, of q that F16 holds. BIG_Q: elements of 1e6. BIG_V: codes times scale beyond F16. BIG_ROWS:
// some rows of k and v in blocks or F32 beyond F16. TINY: v in F32 of 1e-7, k of 1e-6.
enum content { ORDINARY, BIG_LOGITS, BIG_Q, BIG_V, BIG_ROWS, TINY };
static const char * const content_names[] = { "ordinary", "big logits", "big q", "big v", "big rows", "tiny" };

struct attn_case {
    enum gcuda_type q, k, v, mask_type, sink_type;
    int64_t dk, dv, k_heads, v_heads, heads, tokens, n_kv, seqs;
    int splits, block_rows; // 0: automatic
    enum mask_kind mask;
    int64_t mask_heads, mask_seqs; // planes
    bool is_hidden;                // NaN where no query sees
    enum layout layout;
    int skew, q_skew, mask_skew; // of the first byte: units of alignment; elements
    bool is_tight;               // k and v end with their memory, for tools that watch it; else rows of NaN follow
    float max_bias, softcap;
    bool has_sinks, is_f32;
    size_t max_shared;
    enum content content;
    bool is_converted_only; // paths that convert k and v, and no others
    bool has_promise;       // n_kv_max: the most entries that a row of the mask has
};

// Memory of a device and its bytes on the host.
struct source {
    struct gcuda_array a; // data: on the device
    char * bytes;
    size_t first, size;
};

struct attention {
    struct attn_case c;
    struct gcuda_flash_attn_ext_args p;
    struct source q, k, v, mask, sinks;
    float *q_rows, *k_rows, *v_rows, *bias, *sink; // as numbers, packed
    int64_t n_rows, n_wanted;                      // of the result; of which float64 has every n_rows / n_wanted-th
    double * want;
    struct rng r;
};

static long n_runs[GCUDA_FLASH_ATTN_ELEMENTS + 1]; // of each path

// ---- the plan, in one place ----
static void choose_plan(
    struct gcuda_flash_attn_ext_args * p, enum gcuda_flash_attn_path path, int n_splits, int block_rows) {
    p->plan.path = path;
    p->plan.n_splits = n_splits;
    p->plan.block_rows = block_rows;
}
static struct gcuda_flash_attn_plan plan_of(const struct gcuda_flash_attn_ext_args * p) {
    struct gcuda_flash_attn_plan plan;
    memset(&plan, 0xff, sizeof plan);
    CHECK_OK(gcuda_flash_attn_ext_plan(p, &plan));
    return plan;
}

static int capability(void) {
    int major = 0, minor = 0;
    CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess);
    CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0) == cudaSuccess);
    return 100 * major + 10 * minor;
}

// ---- sources ----
static char * row_of(const struct source * x, int64_t i1, int64_t i2, int64_t i3) {
    return x->bytes + x->first + (size_t) i1 * x->a.nb[1] + (size_t) i2 * x->a.nb[2] + (size_t) i3 * x->a.nb[3];
}

static void load_row(enum gcuda_type type, const char * from, float * to, int64_t n) {
    if (type == GCUDA_TYPE_F32) {
        memcpy(to, from, (size_t) n * 4);
    } else {
        gcuda_get_type_traits(type)->to_float(from, to, n);
    }
}
static void store_row(enum gcuda_type type, const float * from, char * to, int64_t n) {
    if (type == GCUDA_TYPE_F32) {
        memcpy(to, from, (size_t) n * 4);
    } else {
        gcuda_get_type_traits(type)->from_float_ref(from, to, n);
    }
}

// Strides of a layout; `spare` rows follow the last one, and all bits are set until somebody writes them.
static struct source source_of(enum gcuda_type type, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3,
    enum layout layout, size_t pad, size_t first, int64_t spare) {
    struct source x;
    const size_t row = gcuda_row_size(type, ne0);
    memset(&x, 0, sizeof x);
    x.a.type = type;
    x.a.ne[0] = ne0, x.a.ne[1] = ne1, x.a.ne[2] = ne2, x.a.ne[3] = ne3;
    x.a.nb[0] = gcuda_type_size(type);
    if (layout == INTERLEAVED) { // [d, heads, positions]
        x.a.nb[2] = row + pad;
        x.a.nb[1] = x.a.nb[2] * (size_t) (ne2 + 1);
        x.a.nb[3] = x.a.nb[1] * (size_t) (ne1 + spare);
    } else {
        x.a.nb[1] = row + pad;
        x.a.nb[2] = x.a.nb[1] * (size_t) (ne1 + spare);
        x.a.nb[3] = x.a.nb[2] * (size_t) ne2;
    }
    x.first = first;
    x.size = first + x.a.nb[3] * (size_t) ne3;
    if (spare == 0 && x.size > first) {
        x.size = first + x.a.nb[3] * (size_t) (ne3 - 1) + x.a.nb[2] * (size_t) (ne2 - 1) +
                 x.a.nb[1] * (size_t) (ne1 - 1) + row;
    }
    x.bytes = (char *) memset(malloc(x.size + 1), 0xff, x.size);
    return x;
}

static void upload(struct source * x) {
    char * data = NULL;
    CHECK(cudaMalloc((void **) &data, x->size + (x->size == 0)) == cudaSuccess);
    CHECK(cudaMemcpy(data, x->bytes, x->size, cudaMemcpyHostToDevice) == cudaSuccess);
    x->a.data = data + x->first;
}
static void source_free(struct source * x) {
    if (x->a.data != NULL) { CHECK(cudaFree((char *) x->a.data - x->first) == cudaSuccess); }
    free(x->bytes);
}

// All rows as numbers, packed.
static float * numbers_of(const struct source * x) {
    const struct gcuda_array * a = &x->a;
    const int64_t n = a->ne[1] * a->ne[2] * a->ne[3];
    float * out = (float *) malloc((size_t) (n * a->ne[0]) * sizeof(float) + 1);
    for (int64_t i = 0; i < n; ++i) {
        load_row(a->type, row_of(x, i % a->ne[1], i / a->ne[1] % a->ne[2], i / a->ne[1] / a->ne[2]), out + i * a->ne[0],
            a->ne[0]);
    }
    return out;
}

// Random rows between -size and size; some_big: every 20th element is so much larger.
static void fill_rows(struct source * x, struct rng * r, double size, double some_big) {
    const struct gcuda_array * a = &x->a;
    float * row = (float *) malloc((size_t) a->ne[0] * sizeof(float));
    for (int64_t i = 0; i < a->ne[1] * a->ne[2] * a->ne[3]; ++i) {
        for (int64_t d = 0; d < a->ne[0]; ++d) {
            row[d] =
                (float) (rng_between(r, -size, size) * (some_big != 1.0 && rng_below(r, 20) == 0 ? some_big : 1.0));
        }
        store_row(a->type, row, row_of(x, i % a->ne[1], i / a->ne[1] % a->ne[2], i / a->ne[1] / a->ne[2]), a->ne[0]);
    }
    free(row);
}

// Rounds q to what F16 holds exactly: its products are then exact on every path.
static void round_rows(struct source * x) {
    const struct gcuda_array * a = &x->a;
    float * row = (float *) malloc((size_t) a->ne[0] * sizeof(float));
    for (int64_t i = 0; i < a->ne[1] * a->ne[2] * a->ne[3]; ++i) {
        char * at = row_of(x, i % a->ne[1], i / a->ne[1] % a->ne[2], i / a->ne[1] / a->ne[2]);
        load_row(a->type, at, row, a->ne[0]);
        for (int64_t d = 0; d < a->ne[0]; ++d) { row[d] = gcuda_fp16_to_fp32(gcuda_fp32_to_fp16(row[d])); }
        store_row(a->type, row, at, a->ne[0]);
    }
    free(row);
}

// Scales of a third of the blocks: values of up to 76,200 (Q8_0) and 80,000 (Q4_0), where F16 ends at 65,504.
static void enlarge_scales(struct source * x, struct rng * r) {
    const struct gcuda_array * a = &x->a;
    const gcuda_fp16_t scale = gcuda_fp32_to_fp16(a->type == GCUDA_TYPE_Q8_0 ? 600.0f : 10000.0f);
    for (int64_t i = 0; i < a->ne[1] * a->ne[2] * a->ne[3]; ++i) {
        char * row = row_of(x, i % a->ne[1], i / a->ne[1] % a->ne[2], i / a->ne[1] / a->ne[2]);
        for (int64_t block = 0; block < a->ne[0] / 32; ++block) {
            // both begin with the scale
            if (rng_below(r, 3) == 0) { memcpy(row + (size_t) block * a->nb[0], &scale, 2); }
        }
    }
}

// Some rows beyond F16: a scale, or numbers.
static void enlarge_rows(struct source * x) {
    const struct gcuda_array * a = &x->a;
    const gcuda_fp16_t scale = gcuda_fp32_to_fp16(a->type == GCUDA_TYPE_Q8_0 ? 2000.0f : 20000.0f);
    for (int64_t i = 0; i < a->ne[1] * a->ne[2] * a->ne[3]; ++i) {
        char * row = row_of(x, i % a->ne[1], i / a->ne[1] % a->ne[2], i / a->ne[1] / a->ne[2]);
        if (i % a->ne[1] % 97 != 5) { continue; }
        if (gcuda_is_quantized(a->type)) { memcpy(row, &scale, 2); }
        for (int64_t d = 0; d < a->ne[0] && a->type == GCUDA_TYPE_F32; ++d) { ((float *) (void *) row)[d] *= 2e5f; }
    }
}

// ---- masks ----
static double any_bias(
    const struct attn_case * c, struct rng * r, bool is_tile_seen, bool is_row_seen, int64_t token, int64_t j) {
    const int64_t last = c->n_kv - c->tokens + token; // position of the token itself
    switch (c->mask) {
        case MASK_CAUSAL: return j <= last ? 0.0 : -INFINITY;
        case MASK_WINDOW: return j <= last && j > last - 40 ? 0.0 : -INFINITY;
        case MASK_BIAS: return rng_between(r, -2.0, 2.0);
        case MASK_HOLES:
            return rng_below(r, 2) == 0 ? -INFINITY : rng_below(r, 2) == 0 ? 0.0 : rng_between(r, -2.0, 0.0);
        case MASK_EMPTY_ROWS: return !is_row_seen || rng_below(r, 3) == 0 ? -INFINITY : 0.0;
        case MASK_TILES: return is_tile_seen ? 0.0 : -INFINITY;
        case MASK_PREFIX: return j < (c->n_kv + 2) / 3 ? 0.0 : -INFINITY;
        // about one of a class
        case MASK_SINGLE: return rng_below(r, 1500) > 0 ? 0.0 : rng_below(r, 2) == 0 ? -INFINITY : 4.0;
        case MASK_SPARSE: return token % 5 == 3 || rng_below(r, 60) > 0 ? -INFINITY : rng_between(r, -2.0, 2.0);
        default: return 0.0;
    }
}

static void fill_mask(struct attention * x) {
    const struct attn_case * c = &x->c;
    const int64_t n_tokens = x->mask.a.ne[1];
    float * row = (float *) malloc((size_t) (c->n_kv + 1) * sizeof(float));
    bool * is_tile_seen = (bool *) malloc((size_t) (c->n_kv / 64 + 1));
    for (int64_t i = 0; i < n_tokens * c->mask_heads * c->mask_seqs; ++i) {
        const bool is_row_seen = rng_below(&x->r, 2) == 0;
        for (int64_t tile = 0; tile <= c->n_kv / 64 && i % n_tokens % 48 == 0; ++tile) {
            is_tile_seen[tile] = rng_below(&x->r, 3) == 0;
        }
        for (int64_t j = 0; j < c->n_kv; ++j) {
            row[j] = (float) any_bias(c, &x->r, is_tile_seen[j / 64], is_row_seen, i % n_tokens, j);
        }
        char * to = row_of(&x->mask, i % n_tokens, i / n_tokens % c->mask_heads, i / n_tokens / c->mask_heads);
        store_row(c->mask_type, row, to, c->n_kv);
        load_row(c->mask_type, to, x->bias + i * c->n_kv, c->n_kv);
    }
    free(row);
    free(is_tile_seen);
}

static const float * bias_row(const struct attention * x, int64_t token, int64_t head, int64_t s) {
    const struct attn_case * c = &x->c;
    if (c->mask == MASK_NONE) { return NULL; }
    return x->bias + ((s % c->mask_seqs * c->mask_heads + head % c->mask_heads) * x->mask.a.ne[1] + token) * c->n_kv;
}

// Sets all bits of rows of k or v that no query of the call sees.
static void hide(const struct attention * x, struct source * kv) {
    const struct attn_case * c = &x->c;
    const int64_t share = c->heads / kv->a.ne[2];
    for (int64_t i = 0; i < kv->a.ne[2] * c->seqs; ++i) {
        for (int64_t j = 0; j < c->n_kv; ++j) {
            bool is_seen = false;
            for (int64_t k = 0; k < share * c->tokens && !is_seen; ++k) {
                is_seen = bias_row(x, k / share, i % kv->a.ne[2] * share + k % share, i / kv->a.ne[2])[j] != -INFINITY;
            }
            if (!is_seen) {
                memset(row_of(kv, j, i % kv->a.ne[2], i / kv->a.ne[2]), 0xff, gcuda_row_size(kv->a.type, kv->a.ne[0]));
            }
        }
    }
}

// ---- a call ----
static double scale_of(const struct attn_case * c) {
    const double usual = 1.0 / sqrt((double) c->dk);
    return c->content == BIG_LOGITS                       ? 5e3 * usual
           : c->content == BIG_Q                          ? 1e-6
           : c->content == BIG_ROWS                       ? 1e-5
           : c->content == TINY && c->k == GCUDA_TYPE_F32 ? 1e6 * usual
                                                          : usual;
}

// bytes
static int unit_of(enum gcuda_type type) {
    return type == GCUDA_TYPE_Q4_1 || type == GCUDA_TYPE_Q5_1 ? 4 : gcuda_is_quantized(type) ? 2 : 16;
}

static void make_sources(struct attention * x) {
    struct attn_case * c = &x->c;
    const bool has_codes[2] = { gcuda_is_quantized(c->k), gcuda_is_quantized(c->v) };
    const enum layout layout = c->layout == V_IN_K ? PADDED : c->layout;
    const int64_t spare = c->is_tight ? 0 : 3;
    const bool has_words = unit_of(c->k) == 4 || unit_of(c->v) == 4;
    const size_t pad[2] = { layout == PACKED ? 0
                            : has_codes[0]   ? (has_words ? 4 : 2)
                                             : 16,
        layout == PACKED ? 0
        : has_codes[1]   ? (has_words ? 12 : 6)
                         : 48 };
    const size_t first[2] = { (size_t) c->skew * (has_codes[0] ? 2 : 16), (size_t) c->skew * (has_codes[1] ? 2 : 16) };
    x->q = source_of(c->q, c->dk, c->tokens, c->heads, c->seqs, c->q_skew % 2 == 0 ? PACKED : INTERLEAVED,
        (size_t) (c->q_skew / 2) * gcuda_type_size(c->q), (size_t) (c->q_skew / 4) * gcuda_type_size(c->q), 0);
    x->k = source_of(c->k, c->dk, c->n_kv, c->k_heads, c->seqs, layout, pad[0], first[0], spare);
    fill_rows(&x->q, &x->r, 1.7, c->content == BIG_Q ? 1e6 : 1.0);
    fill_rows(&x->k, &x->r, c->content == TINY && c->k == GCUDA_TYPE_F32 ? 1.7e-6 : 1.7, 1.0);
    if (c->content == BIG_ROWS) { enlarge_rows(&x->k); }
    if (c->layout == V_IN_K) {
        x->v = x->k;
        x->v.a.ne[0] = c->dv;
        x->v.a.ne[2] = c->v_heads;
        return;
    }
    x->v = source_of(c->v, c->dv, c->n_kv, c->v_heads, c->seqs, layout, pad[1], first[1], spare);
    fill_rows(&x->v, &x->r, c->content == TINY && c->v == GCUDA_TYPE_F32 ? 1e-7 : 1.0, 1.0);
    if (c->content == BIG_ROWS) { enlarge_rows(&x->v); }
    if (c->content == BIG_LOGITS) { round_rows(&x->q); }
    if (c->content == BIG_V && has_codes[1]) { enlarge_scales(&x->v, &x->r); }
}

static void make_bias(struct attention * x) {
    struct attn_case * c = &x->c;
    const int64_t one = 1;
    if (c->mask != MASK_NONE) {
        const size_t first = (size_t) c->mask_skew * gcuda_type_size(c->mask_type);
        x->mask = source_of(
            c->mask_type, c->n_kv, c->tokens + c->mask_skew, c->mask_heads, c->mask_seqs, PACKED, 0, first, 0);
        x->bias =
            (float *) malloc((size_t) (c->n_kv * x->mask.a.ne[1] * c->mask_heads * c->mask_seqs + 1) * sizeof(float));
        fill_mask(x);
    }
    if (c->mask != MASK_NONE && c->is_hidden) {
        hide(x, &x->k);
        if (c->layout != V_IN_K) { hide(x, &x->v); }
    }
    if (c->has_sinks) {
        x->sinks = source_of(c->sink_type, c->heads, one, one, one, PACKED, 0, 0, 0);
        fill_rows(&x->sinks, &x->r, 3.0, 1.0);
        x->sink = numbers_of(&x->sinks);
    }
}

static void make_args(struct attention * x) {
    struct gcuda_flash_attn_ext_args * p = &x->p;
    const struct attn_case * c = &x->c;
    struct gcuda_array * y = &p->y;
    p->q = x->q.a, p->k = x->k.a, p->v = x->v.a, p->mask = x->mask.a, p->sinks = x->sinks.a;
    y->type = GCUDA_TYPE_F32;
    y->ne[0] = c->dv, y->ne[1] = c->heads, y->ne[2] = c->tokens, y->ne[3] = c->seqs;
    y->nb[0] = 4, y->nb[1] = 4 * (size_t) c->dv, y->nb[2] = y->nb[1] * (size_t) c->heads,
    y->nb[3] = y->nb[2] * (size_t) c->tokens;
    p->scale = (float) scale_of(c);
    p->max_bias = c->max_bias;
    p->logit_softcap = c->softcap;
    p->prec = c->is_f32 ? GCUDA_PREC_F32 : GCUDA_PREC_DEFAULT;
    for (int64_t i = 0; i < x->mask.a.ne[1] * c->mask_heads * c->mask_seqs && c->has_promise; ++i) {
        int32_t n = 0;
        for (int64_t j = 0; j < c->n_kv; ++j) { n += x->bias[i * c->n_kv + j] != -INFINITY; }
        if (i % x->mask.a.ne[1] < c->tokens && n > p->n_kv_max) { p->n_kv_max = n; }
    }
    p->max_shared = c->max_shared;
    CHECK(cudaMalloc(&y->data, y->nb[3] * (size_t) c->seqs + 64) == cudaSuccess);
}

static double slope_of(const struct attn_case * c, int64_t head) { // arXiv:2108.12409
    if (c->max_bias == 0.0f) { return 1.0; }
    int64_t power = 1; // largest that is not above the number of heads
    while (2 * power <= c->heads) { power *= 2; }
    return head < power ? pow(2.0, -c->max_bias * (double) (head + 1) / (double) power)
                        : pow(2.0, -c->max_bias / 2.0 * (double) (2 * (head - power) + 1) / (double) power);
}

// Logits of a row, -inf: not seen; returns the largest.
static double logits_of(const struct attention * x, int64_t token, int64_t head, int64_t s, double * logit) {
    const struct attn_case * c = &x->c;
    const float *q = x->q_rows + ((s * c->heads + head) * c->tokens + token) * c->dk,
                *bias = bias_row(x, token, head, s);
    const float * k = x->k_rows + (s * c->k_heads + head / (c->heads / c->k_heads)) * c->n_kv * c->dk;
    const double slope = slope_of(c, head);
    double most = -INFINITY;
    for (int64_t j = 0; j < c->n_kv; ++j) {
        double sum = 0.0;
        logit[j] = -INFINITY;
        if (bias != NULL && bias[j] == -INFINITY) { continue; }
        for (int64_t d = 0; d < c->dk; ++d) { sum += (double) q[d] * (double) k[j * c->dk + d]; }
        sum *= (double) x->p.scale;
        if (c->softcap != 0.0f) { sum = (double) c->softcap * tanh(sum / (double) c->softcap); }
        logit[j] = sum + (bias != NULL ? slope * (double) bias[j] : 0.0);
        most = fmax(most, logit[j]);
    }
    return most;
}

static void want_row(const struct attention * x, int64_t row, double * logit, double * y) {
    const struct attn_case * c = &x->c;
    const int64_t head = row % c->heads, token = row / c->heads % c->tokens, s = row / c->heads / c->tokens;
    const float * v = x->v_rows + (s * c->v_heads + head / (c->heads / c->v_heads)) * c->n_kv * c->dv;
    double most = logits_of(x, token, head, s, logit), sum = 0.0;
    for (int64_t d = 0; d < c->dv; ++d) { y[d] = 0.0; }
    if (most == -INFINITY) { return; } // nothing seen: zeros, with a sink too
    if (c->has_sinks) {
        most = fmax(most, (double) x->sink[head]);
        sum = exp((double) x->sink[head] - most);
    }
    for (int64_t j = 0; j < c->n_kv; ++j) {
        if (logit[j] == -INFINITY) { continue; }
        const double w = exp(logit[j] - most);
        sum += w;
        for (int64_t d = 0; d < c->dv; ++d) { y[d] += w * (double) v[j * c->dv + d]; }
    }
    for (int64_t d = 0; d < c->dv; ++d) { y[d] /= sum; }
}

// Number of the i-th row that float64 has.
static int64_t wanted_row(const struct attention * x, int64_t i) {
    return x->n_wanted < 2 ? 0 : i * (x->n_rows - 1) / (x->n_wanted - 1);
}

static void attention_begin(struct attention * x, const struct attn_case * c, const char * name) {
    memset(x, 0, sizeof *x);
    x->c = *c;
    x->r = rng_for(name);
    make_sources(x);
    make_bias(x);
    upload(&x->q);
    upload(&x->k);
    if (c->layout == V_IN_K) {
        x->v.a.data = x->k.a.data;
    } else {
        upload(&x->v);
    }
    if (x->mask.bytes != NULL) { upload(&x->mask); }
    if (x->sinks.bytes != NULL) { upload(&x->sinks); }
    make_args(x);
    x->q_rows = numbers_of(&x->q), x->k_rows = numbers_of(&x->k), x->v_rows = numbers_of(&x->v);
    x->n_rows = c->tokens * c->heads * c->seqs;
    const int64_t room = 1 + SIZE(40000000, 8000000) / ((c->n_kv + 1) * (c->dk + c->dv));
    x->n_wanted = x->n_rows < room ? x->n_rows : room;
    x->want = (double *) malloc((size_t) (x->n_wanted * c->dv) * sizeof(double));
    double * logit = (double *) malloc((size_t) (c->n_kv + 1) * sizeof(double));
    for (int64_t i = 0; i < x->n_wanted; ++i) { want_row(x, wanted_row(x, i), logit, x->want + i * c->dv); }
    free(logit);
}

static void attention_end(struct attention * x) {
    if (x->c.layout == V_IN_K) { memset(&x->v, 0, sizeof x->v); } // k's
    source_free(&x->q);
    source_free(&x->k);
    source_free(&x->v);
    source_free(&x->mask);
    source_free(&x->sinks);
    CHECK(cudaFree(x->p.y.data) == cudaSuccess);
    free(x->q_rows);
    free(x->k_rows);
    free(x->v_rows);
    free(x->bias);
    free(x->sink);
    free(x->want);
}

// ---- running ----
enum { GUARD = 64 }; // bytes after y and after scratch, which stay as they are

static void poison(void * on, size_t size) {
    void * ones = memset(malloc(size + 1), 0xff, size + 1);
    CHECK(cudaMemcpy(on, ones, size, cudaMemcpyHostToDevice) == cudaSuccess);
    free(ones);
}
static bool is_untouched(const char * on) {
    unsigned char bytes[GUARD];
    bool is_ok = cudaMemcpy(bytes, on, GUARD, cudaMemcpyDeviceToHost) == cudaSuccess;
    for (int i = 0; i < GUARD; ++i) { is_ok = is_ok && bytes[i] == 0xff; }
    return is_ok;
}

// The result as the chosen plan has it.
static float * launched(struct attention * x) {
    const size_t size = x->p.y.nb[3] * (size_t) x->c.seqs, scratch_bytes = gcuda_flash_attn_ext_scratch_bytes(&x->p);
    float * y = (float *) malloc(size + 1);
    CHECK(cudaMalloc(&x->p.scratch, scratch_bytes + GUARD) == cudaSuccess);
    poison(x->p.scratch, scratch_bytes + GUARD);
    poison(x->p.y.data, size + GUARD);
    CHECK_OK(gcuda_launch_flash_attn_ext(&x->p, NULL));
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    CHECK(cudaMemcpy(y, x->p.y.data, size, cudaMemcpyDeviceToHost) == cudaSuccess);
    CHECK(is_untouched((const char *) x->p.y.data + size));
    CHECK(is_untouched((const char *) x->p.scratch + scratch_bytes));
    CHECK(cudaFree(x->p.scratch) == cudaSuccess);
    return y;
}

struct bound {
    double nmse, most; // most: largest error, in root mean squares of its row
};
static struct bound bound_of(const struct attn_case * c, enum gcuda_flash_attn_path path) {
    const bool has_codes = gcuda_is_quantized(c->k) || gcuda_is_quantized(c->v),
               has_bf16 = c->k == GCUDA_TYPE_BF16 || c->v == GCUDA_TYPE_BF16;
    // These paths round elements of blocks to F16, which leaves units in a logit of 1e4: only finite results are
    // required.
    const bool rounds_codes = has_codes && path != GCUDA_FLASH_ATTN_PLAIN && path != GCUDA_FLASH_ATTN_SPLIT;
    if (c->content == BIG_LOGITS && rounds_codes) { return (struct bound){ 4.0, 100.0 }; }
    // F32 leaves an error of 1e-3 in a logit of 1e4
    if (c->content == BIG_LOGITS) { return (struct bound){ 1e-4, 5e-2 }; }
    if (path == GCUDA_FLASH_ATTN_PLAIN) { return (struct bound){ 1e-9, 1e-3 }; }
    if (c->content == BIG_ROWS && path == GCUDA_FLASH_ATTN_ELEMENTS) { return (struct bound){ 1e-5, 5e-2 }; }
    if (c->is_f32) { return has_bf16 ? (struct bound){ 1e-8, 2e-3 } : (struct bound){ 1e-9, 1e-3 }; }
    return (struct bound){ has_bf16 ? 1e-5 : 1e-6, 2e-2 };
}

struct errors {
    double error, size, most;
    int64_t worst;
};
static void compare_row(struct errors * e, const float * y, const double * want, int64_t n, int64_t row) {
    double error = 0.0, size = 0.0, most = 0.0;
    for (int64_t d = 0; d < n; ++d) {
        const double by = isfinite(y[d]) ? (double) y[d] - want[d] : INFINITY;
        error += by * by;
        size += want[d] * want[d];
        most = fmax(most, fabs(by));
    }
    e->error += error;
    e->size += size;
    if (most == 0.0) { return; }
    most = size == 0.0 ? INFINITY : most / sqrt(size / (double) n); // what sees nothing is zero
    if (most > e->most) {
        e->most = most;
        e->worst = row;
    }
}
static void judge(const struct attention * x, const struct errors * e, const char * path, int n_splits,
    const char * against, struct bound b) {
    const struct attn_case * c = &x->c;
    const int64_t head = e->worst % c->heads, token = e->worst / c->heads % c->tokens,
                  s = e->worst / c->heads / c->tokens;
    CHECK_MSG(e->error <= b.nmse * e->size, "%s of %d splits against %s: NMSE %.3g, allowed %g", path, n_splits,
        against, e->error / e->size, b.nmse);
    CHECK_MSG(e->most <= b.most,
        "%s of %d splits against %s: error of %.3g rms, allowed %g, worst at token %lld head %lld sequence %lld", path,
        n_splits, against, e->most, b.most, (long long) token, (long long) head, (long long) s);
}

static void compare(
    const struct attention * x, const float * y, const float * plain, enum gcuda_flash_attn_path path, int n_splits) {
    static const char * const names[] = { "AUTO", "PLAIN", "SPLIT", "ROWS", "WGMMA", "ELEMENTS" };
    const int64_t dv = x->c.dv;
    const struct bound b = bound_of(&x->c, path);
    struct errors e = { 0.0, 0.0, 0.0, 0 };
    for (int64_t i = 0; i < x->n_wanted; ++i) {
        compare_row(&e, y + wanted_row(x, i) * dv, x->want + i * dv, dv, wanted_row(x, i));
    }
    judge(x, &e, names[path], n_splits, "float64", b);
    if (plain == NULL) { return; }
    double * want = (double *) malloc((size_t) dv * sizeof(double));
    memset(&e, 0, sizeof e);
    for (int64_t i = 0; i < x->n_rows; ++i) {
        for (int64_t d = 0; d < dv; ++d) { want[d] = plain[i * dv + d]; }
        compare_row(&e, y + i * dv, want, dv, i);
    }
    judge(x, &e, names[path], n_splits, "PLAIN", b);
    free(want);
}

// What ROWS and WGMMA find as F16 in scratch.
static bool is_converted(const struct attn_case * c) {
    return gcuda_is_quantized(c->k) || gcuda_is_quantized(c->v) || c->k == GCUDA_TYPE_F32 || c->v == GCUDA_TYPE_F32;
}
static bool is_kv_type(enum gcuda_type type) { // that SPLIT decodes
    return type == GCUDA_TYPE_F16 || type == GCUDA_TYPE_BF16 || type == GCUDA_TYPE_Q8_0 || type == GCUDA_TYPE_Q4_0;
}
// Kernels for tensor cores take the sizes, types and strides of this case, whatever their shared memory.
static bool can_use_tensor_cores(const struct attn_case * c) {
    const bool has_bf16 = c->k == GCUDA_TYPE_BF16 || c->v == GCUDA_TYPE_BF16;
    const bool has_codes = gcuda_is_quantized(c->k) || gcuda_is_quantized(c->v);
    const bool is_short = c->dk <= 256 && c->dv <= 256 && is_kv_type(c->k) && is_kv_type(c->v);
    // F16 of them has too few digits
    if (c->is_f32 && (gcuda_is_quantized(c->v) || (has_codes && !is_short))) { return false; }
    if (c->k == GCUDA_TYPE_MXFP4 || c->v == GCUDA_TYPE_MXFP4) { return false; }
    if (c->k == GCUDA_TYPE_F32 || c->v == GCUDA_TYPE_F32) { // only where they are converted
        const int64_t k_share = c->heads / c->k_heads, v_share = c->heads / c->v_heads,
                      tokens = c->has_promise && c->mask_heads == 1 ? 1 : c->tokens;
        const int64_t rows = tokens * (k_share < v_share ? k_share : v_share); // a token that is gathered is a sequence
        if (c->is_f32 || c->dk > 256 || c->dv > 256 || rows <= 64 || c->n_kv < SIZE(256, 4)) { return false; }
    }
    return capability() >= (has_bf16 ? 800 : 750) && c->dk % 8 == 0 && c->dv % 8 == 0 && c->dk <= 640 && c->dv <= 512;
}

// The result of a path, which n_times launches repeat bit for bit.
static void run_plan(struct attention * x, struct gcuda_flash_attn_plan plan, const float * plain, int n_times) {
    float * y = launched(x);
    ++n_runs[plan.path];
    compare(x, y, plain, plan.path, plan.n_splits);
    for (int k = 1; k < n_times; ++k) {
        float * again = launched(x);
        CHECK_MSG(memcmp(y, again, x->p.y.nb[3] * (size_t) x->c.seqs) == 0,
            "path %d, %d splits: other bits on another run", (int) plan.path, plan.n_splits);
        free(again);
    }
    free(y);
}

// Every path that can run, each plan once.
static void run_paths(struct attention * x, bool has_plain, int n_times) {
    static const enum gcuda_flash_attn_path wishes[] = { GCUDA_FLASH_ATTN_AUTO, GCUDA_FLASH_ATTN_SPLIT,
        GCUDA_FLASH_ATTN_ROWS, GCUDA_FLASH_ATTN_WGMMA, GCUDA_FLASH_ATTN_ELEMENTS };
    enum { N_WISHES = sizeof(wishes) / sizeof(wishes[0]) };
    struct gcuda_flash_attn_plan done[2 * N_WISHES];
    float * plain = NULL;
    static int n_converted; // simulated: a path that AUTO would not take converts in every fourth such case
    const bool converts = !is_converted(&x->c) || x->c.is_converted_only || n_converted++ % SIZE(1, 4) == 0;
    int n_done = 0;
    if (has_plain) {
        choose_plan(&x->p, GCUDA_FLASH_ATTN_PLAIN, 0, 0);
        plain = launched(x);
        ++n_runs[GCUDA_FLASH_ATTN_PLAIN];
        compare(x, plain, NULL, GCUDA_FLASH_ATTN_PLAIN, 1);
    }
    // with the case's plan, then (simulated: AUTO alone) with a chosen one
    for (int i = 0; i < SIZE(2 * N_WISHES, N_WISHES + 1); ++i) {
        bool is_done = false;
        choose_plan(&x->p, wishes[i % N_WISHES], i < N_WISHES ? x->c.splits : 0, i < N_WISHES ? x->c.block_rows : 0);
        const struct gcuda_flash_attn_plan plan = plan_of(&x->p);
        const bool has_halves = plan.path == GCUDA_FLASH_ATTN_ROWS || plan.path == GCUDA_FLASH_ATTN_WGMMA;
        if ((!converts && i > 0 && has_halves) || (x->c.is_converted_only && !has_halves)) { continue; }
        if (can_use_tensor_cores(&x->c) && x->c.max_shared > (size_t) 96 << 10) {
            CHECK(plan.path != GCUDA_FLASH_ATTN_PLAIN);
        }
        for (int k = 0; k < n_done; ++k) {
            is_done = is_done || (done[k].path == plan.path && done[k].n_splits == plan.n_splits &&
                                     done[k].block_rows == plan.block_rows);
        }
        if (is_done || (has_plain && plan.path == GCUDA_FLASH_ATTN_PLAIN)) { continue; }
        done[n_done++] = plan;
        run_plan(x, plan, plain, n_times);
    }
    free(plain);
}

static struct attn_case plain_case(enum gcuda_type k, enum gcuda_type v, int64_t dk, int64_t dv, int64_t heads_kv,
    int64_t group, int64_t tokens, int64_t n_kv, enum mask_kind mask) {
    struct attn_case c;
    memset(&c, 0, sizeof c);
    c.q = c.sink_type = GCUDA_TYPE_F32;
    c.mask_type = GCUDA_TYPE_F16;
    c.k = k, c.v = v, c.dk = dk, c.dv = dv;
    c.k_heads = c.v_heads = heads_kv, c.heads = heads_kv * group;
    c.tokens = tokens, c.n_kv = n_kv, c.seqs = 1;
    c.mask = mask, c.mask_heads = c.mask_seqs = 1;
    c.max_shared = most_shared();
    return c;
}

static void name_of(char * to, size_t size, const char * test, const struct attn_case * c) {
    snprintf(to, size,
        "%s/q %s k %s v %s/head %lld,%lld heads %lld,%lld,%lld tokens %lld positions %lld "
        "seqs %lld/splits %d of %d/mask %s %s planes %lld,%lld%s/%s skew "
        "%d,%d,%d%s/bias %g cap %g%s%s%s/shared %zu/%s",
        test, gcuda_type_name(c->q), gcuda_type_name(c->k), gcuda_type_name(c->v), (long long) c->dk, (long long) c->dv,
        (long long) c->heads, (long long) c->k_heads, (long long) c->v_heads, (long long) c->tokens,
        (long long) c->n_kv, (long long) c->seqs, c->splits, c->block_rows, mask_names[c->mask],
        gcuda_type_name(c->mask_type), (long long) c->mask_heads, (long long) c->mask_seqs,
        c->is_hidden ? " hidden" : "", layout_names[c->layout], c->skew, c->q_skew, c->mask_skew,
        c->is_tight ? " tight" : "", (double) c->max_bias, (double) c->softcap, c->has_sinks ? " sinks " : "",
        c->has_sinks ? gcuda_type_name(c->sink_type) : "", c->is_f32 ? " F32" : "", c->max_shared,
        content_names[c->content]);
}

static void run_case(const char * test, const struct attn_case * c, bool has_plain, int n_times) {
    struct attention x;
    char name[512];
    name_of(name, sizeof name, test, c);
    if (!test_case_begin(name)) { return; }
    attention_begin(&x, c, name);
    run_paths(&x, has_plain, n_times);
    attention_end(&x);
    test_case_end();
}

// The simulated device has every other case of a table, mixed so that no column keeps its parity.
static bool is_left_out(int row, int column) {
    return SIZE(false, true) && !test_full() && (row + column * (column + 1) / 2) % 2 != 0;
}

// ---- the cross product, sampled ----
static const enum gcuda_type kv_types[] = { GCUDA_TYPE_F16, GCUDA_TYPE_BF16, GCUDA_TYPE_Q8_0, GCUDA_TYPE_Q4_0 };
static const enum gcuda_type float_types[] = { GCUDA_TYPE_F32, GCUDA_TYPE_F16, GCUDA_TYPE_BF16 };
static const int64_t head_sizes[][2] = { { 40, 40 }, { 64, 64 }, { 72, 72 }, { 80, 80 }, { 96, 96 }, { 112, 112 },
    { 128, 128 }, { 192, 128 }, { 256, 256 }, { 320, 256 }, { 64, 128 }, { 8, 8 }, { 576, 256 }, { 576, 512 },
    { 512, 512 }, { 72, 392 } };
static const int64_t groups[] = { 1, 2, 4, 5, 8, 16 }, tokens_of[] = { 1, 2, 3, 5, 9, 33, 70 },
                     positions_of[] = { 1, 31, 33, 64, 127, 129, 200, 333, 1000, 4097 };
static const int splits_of[] = { 0, 1, 2, 3, 4, 7 };
#define N_OF(list) ((int64_t) (sizeof(list) / sizeof(list)[0]))

static void draw_sizes(struct attn_case * c, struct rng * r) {
    int64_t i = rng_below(r, N_OF(head_sizes));
    while ((gcuda_is_quantized(c->k) && head_sizes[i][0] % 32 != 0) ||
           (gcuda_is_quantized(c->v) && head_sizes[i][1] % 32 != 0)) {
        i = rng_below(r, N_OF(head_sizes));
    }
    c->dk = head_sizes[i][0], c->dv = head_sizes[i][1];
    const int64_t group = groups[rng_below(r, N_OF(groups))], heads_kv = 1 + rng_below(r, 2);
    c->k_heads = c->v_heads = heads_kv;
    c->heads = heads_kv * group;
    if (group % 2 == 0 && rng_below(r, 6) == 0) { c->v_heads *= 2; } // k's heads are shared by more
    c->tokens = tokens_of[rng_below(r, N_OF(tokens_of))];
    c->seqs = 1 + rng_below(r, 4) / 3;
    i = rng_below(r, N_OF(positions_of));
    c->n_kv = positions_of[i];
    while (i > 0 && c->heads * c->tokens * c->seqs * c->n_kv * (c->dk + c->dv) > SIZE(300000000, 10000000)) {
        c->n_kv = positions_of[--i];
    }
    c->splits = splits_of[rng_below(r, N_OF(splits_of))];
    c->block_rows = rng_below(r, 2) == 0 ? 0 : 8 << rng_below(r, 4);
}

static void draw_mask(struct attn_case * c, struct rng * r) {
    c->mask = (enum mask_kind) rng_below(r, N_MASKS);
    c->mask_type = rng_below(r, 2) == 0 ? GCUDA_TYPE_F16 : float_types[rng_below(r, 3)];
    c->mask_heads = rng_below(r, 2) == 0 ? 1 : c->heads % 2 == 0 && rng_below(r, 3) == 0 ? c->heads / 2 : c->heads;
    c->mask_seqs = rng_below(r, 2) == 0 ? 1 : c->seqs;
    c->mask_skew = (int) rng_below(r, 2);
    c->is_hidden = rng_below(r, 2) == 0;
    c->max_bias = c->mask != MASK_NONE && rng_below(r, 4) == 0 ? 8.0f : 0.0f;
}

static struct attn_case drawn_case(int64_t i, struct rng * r) {
    struct attn_case c;
    memset(&c, 0, sizeof c);
    c.k = kv_types[i % 4], c.v = kv_types[i / 4 % 4];
    c.q = rng_below(r, 2) == 0 ? GCUDA_TYPE_F32 : float_types[rng_below(r, 3)];
    draw_sizes(&c, r);
    draw_mask(&c, r);
    c.layout = (enum layout) rng_below(r, c.k == c.v && c.dv <= c.dk && c.k_heads == c.v_heads ? N_LAYOUTS : V_IN_K);
    c.skew = (int) rng_below(r, 8);
    c.q_skew = (int) rng_below(r, 8);
    c.is_tight = rng_below(r, 2) == 0;
    c.softcap = rng_below(r, 5) == 0 ? 3.0f : 0.0f;
    c.has_sinks = rng_below(r, 4) == 0;
    c.sink_type = float_types[rng_below(r, 3)];
    c.is_f32 = rng_below(r, 5) == 0;
    c.max_shared = rng_below(r, 4) == 0 ? (size_t) 48 << 10 : most_shared();
    return c;
}

TEST(cross_product) {
    const int64_t n = test_full() ? SIZE(6000, 2000) : SIZE(1200, 64);
    struct rng r = rng_for("cross_product");
    for (int64_t i = 0; i < n; ++i) {
        char test[40];
        const struct attn_case c = drawn_case(i, &r);
        snprintf(test, sizeof test, "cross_product/%lld", (long long) i);
        run_case(test, &c, true, i % 4 == 0 ? 2 : 1);
    }
}

// ---- rows that begin anywhere ----
TEST(views) { // of codes at each multiple of 2, of floats at multiples of 16, alone and interleaved with other heads
    for (int t = 0; t < 4; ++t) {
        for (int skew = 0; skew < 8; ++skew) {
            struct attn_case c =
                plain_case(kv_types[t], kv_types[t], 64, 64, 2, 3, 3, 77, skew % 2 == 0 ? MASK_NONE : MASK_HOLES);
            c.skew = skew, c.q_skew = skew, c.splits = 1 + skew % 2, c.is_tight = skew / 2 % 2 == 0;
            for (int layout = (skew / 4 + t) % SIZE(1, 2); layout < N_LAYOUTS; layout += SIZE(1, 2)) {
                c.layout = (enum layout) layout;
                run_case("views", &c, false, 1);
            }
        }
    }
}

TEST(unaligned_rows) { // these go to the plain kernel, whatever was wished
    struct attn_case c = plain_case(GCUDA_TYPE_F16, GCUDA_TYPE_F16, 64, 64, 2, 2, 3, 70, MASK_CAUSAL);
    struct attention x;
    attention_begin(&x, &c, "unaligned_rows");
    x.p.k.data = (char *) x.p.k.data + 8; // rows of k from the fifth element on: only the plan is asked
    for (int path = 0; path <= GCUDA_FLASH_ATTN_WGMMA; ++path) {
        choose_plan(&x.p, (enum gcuda_flash_attn_path) path, 2, 8);
        const struct gcuda_flash_attn_plan plan = plan_of(&x.p);
        CHECK_EQ_I(plan.path, GCUDA_FLASH_ATTN_PLAIN);
        CHECK_EQ_I(plan.n_splits, 1);
    }
    attention_end(&x);
    c.dk = 36, c.dv = 44;
    run_case("unaligned_rows", &c, false, 1);
}

TEST(v_in_k) { // one head for all of q, as latent attention has it
    static const int64_t sizes[][2] = { { 576, 512 }, { 320, 256 }, { 192, 128 }, { 128, 64 }, { 256, 256 }, { 96, 96 },
        { 576, 256 }, { 512, 512 } };
    for (int t = 0; t < 4; ++t) {
        for (int i = 0; i < 8; ++i) {
            if (is_left_out(t, i)) { continue; }
            struct attn_case c = plain_case(kv_types[t], kv_types[t], sizes[i][0], sizes[i][1], 1, 16, 1 + i % 3, 130,
                i % 2 == 0 ? MASK_NONE : MASK_HOLES);
            c.layout = V_IN_K, c.splits = i % 3, c.is_hidden = true;
            run_case("v_in_k", &c, false, 1);
            // values of the first two heads, for twice as many heads of q
            c.k_heads = 4, c.v_heads = 2, c.tokens = 1, c.is_hidden = false;
            run_case("v_in_k", &c, false, 1);
        }
    }
}

// ---- the contract ----
TEST(unseen_positions_may_hold_nan) {
    static const struct {
        int64_t dk, dv, tokens, n_kv;
    } sizes[] = { { 64, 64, 2, SIZE(733, 333) }, { 128, 128, 17, SIZE(670, 270) }, { 40, 40, 70, 129 },
        { 320, 256, 3, 130 }, { 576, 512, 5, 130 } };
    for (int t = 0; t < 16; ++t) {
        for (int mask = MASK_CAUSAL; mask < N_MASKS; ++mask) {
            const int i = (t + mask) % 5;
            const bool is_short = i == 2 && (t % 4 > 1 || t / 4 > 1);
            struct attn_case c = plain_case(kv_types[t % 4], kv_types[t / 4], is_short ? 32 : sizes[i].dk,
                is_short ? 32 : sizes[i].dv, 2, 2, sizes[i].tokens, sizes[i].n_kv, (enum mask_kind) mask);
            c.is_hidden = true;
            c.splits = mask % 3 == 0 ? 3 : 0;
            c.mask_heads = mask % 2 == 0 ? 1 : c.heads;
            if ((t % SIZE(1, 3) == 0 && !is_left_out(t / 3, mask)) || test_full()) {
                run_case("unseen_positions_may_hold_nan", &c, false, 1);
            }
        }
    }
}

// Classes of the mask, computed from 9 tiles of 64 positions on (simulated device: from 5 on). Several blocks of
// tokens, planes and words of 32 tiles; tokens and heads that share the rows of a block.
TEST(visible_tiles) {
    static const enum mask_kind masks[] = { MASK_CAUSAL, MASK_WINDOW, MASK_TILES, MASK_PREFIX, MASK_EMPTY_ROWS,
        MASK_BIAS, MASK_SINGLE };
    for (int i = 0; i < SIZE(96, 21); ++i) {
        const enum gcuda_type type = kv_types[i % 4];
        const int64_t tokens = i % 3 == 0 ? 3 : 40, n_kv = i % 3 == 0 ? 2504 : i % 3 == 1 ? 601 : SIZE(840, 328);
        struct attn_case c = plain_case(type, type, 32, 32, 2, i % 5 == 0 ? 4 : 2, tokens, n_kv, masks[i % 7]);
        c.mask_heads = i % 2 == 0 ? c.heads : 1;
        c.mask_type = float_types[i % 3 == 1 ? 1 : i % 2];
        c.splits = i / 2 % 5, c.block_rows = 8 << i % 3;
        c.is_hidden = i % 4 > 0;
        run_case("visible_tiles", &c, false, 1);
    }
}

TEST(many_splits) { // more than a warp has lanes, of which most see nothing where the mask hides two thirds
    for (int t = 0; t < 4; ++t) {
        for (int i = 0; i < 2; ++i) {
            struct attn_case c = plain_case(kv_types[t], kv_types[(t + i) % 4], 64, i == 0 ? 64 : 128, 1, 2, 1 + t % 2,
                4097, i == 0 ? MASK_NONE : MASK_PREFIX);
            c.splits = t < 2 ? 65 : 40;
            c.is_hidden = true;
            c.has_sinks = t == 1;
            c.content = t % 2 == 0 ? BIG_LOGITS : ORDINARY;
            run_case("many_splits", &c, false, 1);
        }
    }
}

TEST(long_values) { // in blocks of 16, 32 and 64 rows, of which the last is not full
    static const struct {
        int64_t dk, dv, group, tokens;
    } sizes[] = { { 576, 512, 16, 1 }, { 512, 512, 4, 5 }, { 576, 512, 16, 4 }, { 264, 264, 3, 1 }, { 512, 512, 4, 20 },
        { 128, 512, 1, 40 } };
    for (int t = 0; t < 4; ++t) {
        for (int64_t i = 0; i < N_OF(sizes); ++i) {
            if (is_left_out(t, (int) i)) { continue; }
            struct attn_case c = plain_case(kv_types[t % 2], kv_types[(t + t / 2) % 2], sizes[i].dk, sizes[i].dv,
                1 + i % 2, sizes[i].group, sizes[i].tokens, 64 * i + 33, (enum mask_kind)(MASK_CAUSAL + (t + i) % 7));
            c.is_hidden = c.is_tight = true;
            c.layout = i % 2 == 0 && c.k == c.v ? V_IN_K : i % 3 == 0 ? PADDED : INTERLEAVED;
            c.splits = (int) (t + i) % 4;
            c.is_f32 = (t + i) % 3 == 0;
            c.has_sinks = i % 4 == 1;
            c.softcap = (t + i) % 5 == 0 ? 3.0f : 0.0f;
            c.max_bias = i == 3 ? 8.0f : 0.0f;
            run_case("long_values", &c, i % 3 == 0, 1);
        }
    }
}

// that become F16 in shared memory, each with each and with floats; rows at any multiple of their alignment
TEST(packed_types) {
    static const enum gcuda_type types[] = { GCUDA_TYPE_Q8_0, GCUDA_TYPE_Q4_0, GCUDA_TYPE_Q4_1, GCUDA_TYPE_Q5_0,
        GCUDA_TYPE_Q5_1, GCUDA_TYPE_F16, GCUDA_TYPE_BF16 };
    static const struct {
        int64_t dk, dv, group, tokens;
    } sizes[] = { { 128, 128, 4, 1 }, { 576, 512, 16, 1 }, { 64, 96, 3, 9 }, { 512, 512, 4, 17 }, { 320, 256, 5, 1 } };
    for (int t = 0; t < 49; ++t) {
        if (is_left_out(t / 7, t)) { continue; }
        const int64_t * size = &sizes[t % 5].dk;
        struct attn_case c = plain_case(
            types[t % 7], types[t / 7], size[0], size[1], 2, size[2], size[3], 150 + t, (enum mask_kind)(t % N_MASKS));
        c.layout = c.k == c.v && c.dk >= c.dv && t % 2 == 0 ? V_IN_K : (enum layout)(t % 3);
        c.skew =
            (c.k == GCUDA_TYPE_Q4_1 || c.k == GCUDA_TYPE_Q5_1 || c.v == GCUDA_TYPE_Q4_1 || c.v == GCUDA_TYPE_Q5_1 ? 2
                                                                                                                  : 1) *
            (t % 4);
        c.is_hidden = t % 3 > 0, c.is_tight = t % 2 == 0;
        c.splits = t % 4;
        c.content = t % 4 == 1 && gcuda_is_quantized(c.v) && c.layout != V_IN_K ? BIG_V : ORDINARY;
        c.max_shared = t % 6 == 5 ? (size_t) 99 << 10 : most_shared();
        run_case("packed_types", &c, t % 5 == 0, 1);
    }
}

TEST(no_positions) { // zeros, with a sink too
    for (int t = 0; t < 4; ++t) {
        struct attn_case c =
            plain_case(kv_types[t], kv_types[t], 64, 64, 1, 4, 40, 0, t % 2 == 0 ? MASK_NONE : MASK_ZERO);
        c.has_sinks = t >= 2;
        run_case("no_positions", &c, true, 1);
        c.dk = c.dv = 320;
        run_case("no_positions", &c, true, 1);
    }
}

// ---- numbers ----
TEST(large_numbers) {
    for (int t = 0; t < 16; ++t) {
        for (int i = 0; i < 3; ++i) {
            static const int64_t tokens[] = { 1, 6, 40 };
            if (is_left_out(t + t / 4, i)) { continue; }
            struct attn_case c = plain_case(kv_types[t % 4], kv_types[t / 4], 128, 128, 1, 4, tokens[(t + i) % 3], 200,
                t % 3 == 0 ? MASK_HOLES : MASK_NONE);
            c.content = (enum content)(BIG_LOGITS + i);
            c.splits = t % 3;
            if (c.content != BIG_V || gcuda_is_quantized(c.v)) { run_case("large_numbers", &c, false, 1); }
            c.softcap = 30.0f;
            if (c.content == BIG_LOGITS) { run_case("large_numbers", &c, false, 1); }
        }
    }
}

TEST(precision_f32) {
    for (int t = 0; t < 16; ++t) {
        for (int i = 0; i < 3; ++i) {
            static const int64_t tokens[] = { 1, 9, 66 };
            if (is_left_out(t + t / 4, i)) { continue; }
            struct attn_case c = plain_case(kv_types[t % 4], kv_types[t / 4], i == 1 ? 64 : 128, i == 1 ? 64 : 128, 1,
                2, tokens[i], 150, MASK_HOLES);
            c.is_f32 = true, c.splits = i;
            run_case("precision_f32", &c, false, 1);
        }
    }
}

TEST(bias) { // ALiBi, softcap and sinks together, of numbers of heads that are no powers of 2
    for (int t = 0; t < 4; ++t) {
        struct attn_case c =
            plain_case(kv_types[t], kv_types[3 - t], 64, 64, 3, 2, t % 2 == 0 ? 2 : 40, SIZE(700, 300), MASK_BIAS);
        c.max_bias = 8.0f, c.softcap = 2.0f, c.has_sinks = true, c.mask_type = float_types[t % 3], c.splits = 2 * t;
        run_case("bias", &c, true, 1);
    }
}

// ---- every launch alike ----
TEST(same_bits) {
    static const int64_t tokens[] = { 1, 3, 9, 66 };
    for (int t = 0; t < 4; ++t) {
        struct attn_case c = plain_case(kv_types[t], kv_types[(t + 1) % 4], 128, 128, 2, 4, tokens[t], SIZE(700, 300),
            t % 2 == 0 ? MASK_TILES : MASK_NONE);
        c.splits = 3;
        run_case("same_bits", &c, false, SIZE(20, 2));
    }
}

// As a graph that may be stopped is cut: tokens from a multiple of 32 and of a block's rows, with the plan of all.
static void run_slices(struct attention * x, enum gcuda_flash_attn_path path, int64_t first) {
    const struct gcuda_flash_attn_ext_args all = x->p;
    choose_plan(&x->p, path, x->c.splits, x->c.block_rows);
    x->p.plan = plan_of(&x->p);
    // as 7.5 has them, BF16 in blocks of rows does not fit
    if (x->p.plan.path != path && x->c.max_shared <= (size_t) 96 << 10) {
        x->p = all;
        return;
    }
    const size_t size = all.y.nb[3] * (size_t) x->c.seqs;
    float *whole = launched(x), *parts = (float *) malloc(size);
    CHECK_MSG(x->p.plan.path == path && first % x->p.plan.block_rows == 0, "path %d, %d rows", (int) x->p.plan.path,
        x->p.plan.block_rows);
    compare(x, whole, NULL, path, x->p.plan.n_splits);
    poison(all.y.data, size + GUARD);
    for (int i = 0; i < 2; ++i) {
        struct gcuda_flash_attn_ext_args p = x->p;
        const int64_t from = i == 0 ? 0 : first;
        p.q.ne[1] = p.y.ne[2] = i == 0 ? first : x->c.tokens - first;
        p.q.data = (char *) p.q.data + (size_t) from * p.q.nb[1];
        p.y.data = (char *) p.y.data + (size_t) from * p.y.nb[2];
        if (p.mask.data != NULL) {
            p.mask.ne[1] -= from;
            p.mask.data = (char *) p.mask.data + (size_t) from * p.mask.nb[1];
        }
        CHECK(cudaMalloc(&p.scratch, gcuda_flash_attn_ext_scratch_bytes(&p) + 1) == cudaSuccess);
        CHECK_OK(gcuda_launch_flash_attn_ext(&p, NULL));
        CHECK(cudaDeviceSynchronize() == cudaSuccess && cudaFree(p.scratch) == cudaSuccess);
    }
    CHECK(cudaMemcpy(parts, all.y.data, size, cudaMemcpyDeviceToHost) == cudaSuccess);
    CHECK(memcmp(whole, parts, size) == 0);
    compare(x, parts, NULL, path, x->p.plan.n_splits);
    x->p = all;
    free(whole);
    free(parts);
}

TEST(slices_of_tokens) {
    if (capability() < 750) {
        test_skip("no tensor cores");
        return;
    }
    for (int i = 0; i < 16; ++i) {
        const enum gcuda_type k = kv_types[i % 4], v = kv_types[(i + i / 4) % 4];
        const bool has_codes = gcuda_is_quantized(k) || gcuda_is_quantized(v);
        struct attn_case c = plain_case(k, v, 64, 64, 2, 2, 150, i % 2 == 0 ? SIZE(733, 333) : 130,
            i < 8    ? MASK_TILES
            : i < 12 ? MASK_CAUSAL
                     : MASK_NONE);
        struct attention x;
        char name[512];
        c.seqs = 1 + i % 2;
        c.mask_heads = i % 3 == 0 ? 1 : c.heads, c.mask_seqs = i % 4 < 2 ? 1 : c.seqs;
        c.splits = i % 3;
        c.content = has_codes && i % 3 == 2 ? BIG_ROWS : ORDINARY;
        name_of(name, sizeof name, "slices_of_tokens", &c);
        if (!test_case_begin(name)) { continue; }
        attention_begin(&x, &c, name);
        if ((i + i / 4) % SIZE(1, 2) == 0) { run_slices(&x, GCUDA_FLASH_ATTN_SPLIT, 32); }
        if ((i / 2 + i / 4) % SIZE(1, 2) == 0) { run_slices(&x, GCUDA_FLASH_ATTN_ROWS, 128); }
        if (!has_codes && (i + i / 4) % SIZE(1, 2) == 0) { run_slices(&x, GCUDA_FLASH_ATTN_ELEMENTS, 64); }
        choose_plan(&x.p, GCUDA_FLASH_ATTN_WGMMA, c.splits, 0);
        if ((i / 2 + i / 4) % SIZE(1, 2) == SIZE(0, 1) && plan_of(&x.p).path == GCUDA_FLASH_ATTN_WGMMA) {
            run_slices(&x, GCUDA_FLASH_ATTN_WGMMA, 128);
        }
        attention_end(&x);
        test_case_end();
    }
}

// ---- k and v that become F16 in scratch ----
// types, sizes, masks with and without classes, odd lengths, heads and sequences in one launch and in several
TEST(converted) {
    static const enum gcuda_type types[] = { GCUDA_TYPE_Q8_0, GCUDA_TYPE_Q4_0, GCUDA_TYPE_F32, GCUDA_TYPE_Q4_1,
        GCUDA_TYPE_Q5_0, GCUDA_TYPE_Q5_1, GCUDA_TYPE_F16, GCUDA_TYPE_BF16 };
    static const struct {
        int64_t dk, dv;
    } sizes[] = { { 64, 64 }, { 128, 128 }, { 96, 32 }, { 32, 160 }, { 64, 128 } };
    static const struct {
        int64_t tokens, n_kv, heads, group, seqs;
    } shapes[] = { { 66, 129, 2, 2, 1 }, { 35, 333, 3, 2, 2 }, { 70, 402, 2, 1, 1 }, { 33, SIZE(1000, 448), 4, 2, 1 },
        { 40, 64, 1, 4, 3 }, { 97, SIZE(401, 201), 2, 1, 2 } };
    for (int i = 0; i < SIZE(192, 18); ++i) {
        const int64_t * size = &sizes[i % 5].dk;
        const int mask = SIZE(i / 2, i) % N_MASKS, at = i % 6;
        struct attn_case c = plain_case(types[i % 8], types[(i + i / 8) % 6], size[0], size[1], shapes[at].heads,
            shapes[at].group, shapes[at].tokens, shapes[at].n_kv + (i % 4 == 1), (enum mask_kind) mask);
        if (i % 7 == 3 && shapes[at].group % 2 == 0) { c.v_heads *= 2; } // k's heads are shared by more
        c.seqs = shapes[at].seqs;
        c.mask_heads = i % 3 == 0                       ? c.heads
                       : i % 3 == 1 && c.heads % 2 == 0 ? c.heads / 2
                                                        : 1,
        c.mask_seqs = i % 4 < 2 ? 1 : c.seqs;
        c.is_hidden = i % 5 > 0, c.is_tight = i % 2 == 0, c.is_converted_only = true;
        c.layout = (enum layout)(i / 3 % 3);
        c.has_sinks = i % 6 == 1, c.softcap = i % 8 == 3 ? 5.0f : 0.0f,
        c.max_bias = mask != MASK_NONE && i % 9 == 2 ? 8.0f : 0.0f;
        c.splits = i / 4 % 3;
        c.content = i % 3 == 1 ? BIG_ROWS : i % 8 == 2 ? TINY : ORDINARY;
        run_case("converted", &c, false, i % 7 == 0 ? 3 : 1);
    }
}

TEST(scratch_of_converted) { // 64 MiB and a head of k and v; the simulated device has half a MiB
    static const enum gcuda_type types[] = { GCUDA_TYPE_Q8_0, GCUDA_TYPE_Q4_0, GCUDA_TYPE_F32, GCUDA_TYPE_F16 };
    for (int i = 0; i < 32; ++i) {
        struct attn_case c =
            plain_case(types[i % 4], types[i % 3], 128, 128, 2, 4, 70, 64, i % 2 == 0 ? MASK_NONE : MASK_ZERO);
        struct attention x;
        attention_begin(&x, &c, "scratch_of_converted");
        struct gcuda_flash_attn_ext_args p = x.p; // of more heads and positions: only the size is asked
        p.k.ne[1] = p.v.ne[1] = 1000 << i / 4;
        p.k.ne[2] = p.v.ne[2] = 1 + i % 9, p.q.ne[2] = p.y.ne[1] = 4 * p.k.ne[2];
        p.mask.ne[0] = p.mask.data != NULL ? p.k.ne[1] : 0;
        const size_t head = (size_t) p.k.ne[1] * 256 * 2, got = gcuda_flash_attn_ext_scratch_bytes(&p),
                     budget = (size_t) SIZE((int64_t) 64 << 20, (int64_t) 512 << 10);
        const int path = (int) plan_of(&p).path;
        CHECK_MSG(got <= budget + head || capability() < 750, "%lld positions, %lld heads: %zu bytes, a head has %zu",
            (long long) p.k.ne[1], (long long) p.k.ne[2], got, head);
        CHECK(capability() < 750 || path == GCUDA_FLASH_ATTN_WGMMA || path == GCUDA_FLASH_ATTN_ROWS);
        attention_end(&x);
    }
}

// ---- only the positions that n_kv_max leaves ----
TEST(gathered) {
    static const enum gcuda_type types[] = { GCUDA_TYPE_F16, GCUDA_TYPE_Q8_0, GCUDA_TYPE_BF16, GCUDA_TYPE_Q4_0,
        GCUDA_TYPE_F32, GCUDA_TYPE_Q5_1, GCUDA_TYPE_MXFP4 };
    static const struct {
        int64_t dk, dv, heads, group, tokens, seqs;
    } shapes[] = { { 64, 64, 2, 2, 3, 1 }, { 128, 64, 1, 4, 1, 2 }, { 96, 32, 1, 16, 9, 1 }, { 576, 512, 1, 4, 1, 1 },
        { 64, 64, 1, 40, 2, 1 } };
    for (int i = 0; i < SIZE(140, 14); ++i) {
        const int at = i % 5;
        struct attn_case c = plain_case(types[i % 7], types[(i + i / 7) % 7], shapes[at].dk, shapes[at].dv,
            shapes[at].heads, shapes[at].group, shapes[at].tokens,
            i % 3 == 0   ? 4096
            : i % 3 == 1 ? 4099
                         : 5000,
            MASK_SPARSE);
        // some are only counted
        c.seqs = shapes[at].seqs, c.mask_seqs = i % 2 == 0 ? 1 : c.seqs, c.mask_heads = i % 6 == 5 ? c.heads : 1;
        c.mask_type = i % 4 == 3 ? float_types[i / 4 % 3] : GCUDA_TYPE_F16, c.mask_skew = i % 2;
        c.layout = c.k == c.v && c.dk >= c.dv && i % 2 == 0 ? V_IN_K : (enum layout)(i % 3);
        c.is_hidden = i % 3 > 0, c.has_promise = true;
        c.has_sinks = i % 4 == 1, c.softcap = i % 5 == 3 ? 5.0f : 0.0f, c.max_bias = i % 5 == 2 ? 8.0f : 0.0f,
        c.is_f32 = i % 6 == 4;
        c.splits = i % 4 == 2 ? 2 : 0;
        run_case("gathered", &c, i % 5 == 0, i % 7 == 0 ? 3 : 1);
    }
}

TEST(slices_of_gathered) { // of tokens that are gathered at once, and some at a time
    for (int i = 0; i < 4; ++i) {
        struct attn_case c = plain_case(
            i % 2 == 0 ? GCUDA_TYPE_F16 : GCUDA_TYPE_Q8_0, GCUDA_TYPE_F16, 64, 64, 1 + i / 2, 4, 20, 4100, MASK_SPARSE);
        struct attention x;
        c.has_promise = c.is_hidden = true;
        if (capability() < 750) { continue; }
        attention_begin(&x, &c, "slices_of_gathered");
        run_slices(&x, GCUDA_FLASH_ATTN_SPLIT, 16);
        attention_end(&x);
    }
}

TEST(broken_promises) { // of one entry too many in one row: from 4,096 positions on
    for (int i = 0; i < 12; ++i) {
        struct attn_case c = plain_case(GCUDA_TYPE_F16, GCUDA_TYPE_F16, 64, 64, 1, 2, 3, i % 3 == 0 ? 4095 : 4100,
            i % 2 == 0 ? MASK_SPARSE : MASK_SINGLE);
        struct attention x;
        int32_t *flag = NULL, got = 0;
        c.mask_heads = i % 4 == 3 ? c.heads : 1;
        c.has_promise = true;
        attention_begin(&x, &c, "broken_promises");
        CHECK(cudaMalloc((void **) &flag, 4) == cudaSuccess &&
              cudaMemcpy(flag, &got, 4, cudaMemcpyHostToDevice) == cudaSuccess);
        x.p.bad_index = flag;
        for (int breaks = 0; breaks < 2; ++breaks) {
            x.p.n_kv_max -= breaks;
            float * y = launched(&x);
            if (breaks == 0 || c.n_kv < 4096) { compare(&x, y, NULL, plan_of(&x.p).path, 1); }
            CHECK(cudaMemcpy(&got, flag, 4, cudaMemcpyDeviceToHost) == cudaSuccess);
            CHECK_EQ_I(got, breaks == 1 && c.n_kv >= 4096);
            free(y);
        }
        CHECK(cudaFree(flag) == cudaSuccess);
        attention_end(&x);
    }
}

// ---- on warpgroup matrix instructions, where there are ----
static bool has_wgmma(void) { // a case that takes them where the kernels are compiled for 9.0a
    struct attn_case c = plain_case(GCUDA_TYPE_F16, GCUDA_TYPE_F16, 64, 64, 1, 1, 40, 64, MASK_NONE);
    struct attention x;
    attention_begin(&x, &c, "has_wgmma");
    choose_plan(&x.p, GCUDA_FLASH_ATTN_AUTO, 0, 0);
    const bool has = plan_of(&x.p).path == GCUDA_FLASH_ATTN_WGMMA;
    attention_end(&x);
    return has;
}

// Broadcasting and holes of masks, layouts, sinks, softcap and ALiBi of case i.
static void vary_case(struct attn_case * c, int i) {
    c->mask_heads = i % 3 == 0 ? c->heads : 1;
    c->mask_seqs = i % 4 < 2 ? 1 : c->seqs;
    c->is_hidden = i % 5 > 0;
    c->is_tight = i % 2 == 0;
    c->has_sinks = i % 6 == 1;
    c->softcap = i % 8 == 3 ? 5.0f : 0.0f;
    c->max_bias = c->mask != MASK_NONE && i % 9 == 2 ? 8.0f : 0.0f;
}

// sizes of kernels and between them, every kind of mask, odd numbers of tiles, partial blocks, several items a block
TEST(wgmma) {
    static const struct {
        enum gcuda_type type;
        int64_t dk, dv;
    } sizes[] = { { GCUDA_TYPE_F16, 64, 64 }, { GCUDA_TYPE_F16, 128, 128 }, { GCUDA_TYPE_F16, 80, 80 },
        { GCUDA_TYPE_F16, 256, 256 }, { GCUDA_TYPE_BF16, 128, 128 }, { GCUDA_TYPE_F16, 40, 96 },
        { GCUDA_TYPE_F16, 112, 72 }, { GCUDA_TYPE_BF16, 64, 40 }, { GCUDA_TYPE_F16, 192, 128 },
        { GCUDA_TYPE_F16, 8, 8 } };
    static const int64_t tokens[] = { 40, 130, 65, SIZE(300, 90) },
                         positions[] = { 64, 129, 334, SIZE(1000, 450), 2, 192 };
    if (!has_wgmma()) {
        test_skip("kernels are not compiled for 9.0a");
        return;
    }
    for (int i = 0; i < SIZE(160, 40); ++i) {
        const int s = i % (int) N_OF(sizes), mask = i / 3 % N_MASKS;
        int64_t n_kv = positions[i % 6];
        if (mask != MASK_NONE) { n_kv += n_kv % 2; } // biases are read in pairs
        struct attn_case c = plain_case(sizes[s].type, sizes[s].type, sizes[s].dk, sizes[s].dv, 1 + i % 2,
            1 + i / 2 % 3, tokens[i / 5 % 4], n_kv, (enum mask_kind) mask);
        c.seqs = 1 + i / 7 % 2, c.splits = i / 4 % 3;
        vary_case(&c, i);
        c.content = i % 20 == 11 ? BIG_LOGITS : ORDINARY;
        run_case("wgmma", &c, i % 4 == 0, i % 7 == 0 ? 3 : 1);
    }
}

TEST(wgmma_long) { // DK or DV above 256: blocks of 64 rows, stages of half a tile; v in k and apart, several items
    static const struct {
        int64_t dk, dv;
        int block_rows;
    } sizes[] = { { 512, 512, 64 }, { 576, 512, 64 }, { 320, 256, 128 }, { 576, 256, 64 }, { 320, 264, 64 },
        { 72, 392, 64 }, { 520, 8, 64 } };
    static const int64_t tokens[] = { 40, SIZE(130, 70), 35, SIZE(300, 50) };
    static const int64_t positions[] = { 64, 129, 334, SIZE(1000, 250), 2, 192, 33 };
    if (!has_wgmma()) {
        test_skip("kernels are not compiled for 9.0a");
        return;
    }
    for (int i = 0; i < SIZE(140, 28); ++i) {
        const int s = i % (int) N_OF(sizes), mask = i / 2 % N_MASKS;
        int64_t n_kv = positions[(i + i / 7) % 7];
        if (mask != MASK_NONE) { n_kv += n_kv % 2; }
        const int64_t n_groups = 1 + i % 2, group = 1 + i / 2 % 3, n_tokens = tokens[i / 5 % 4];
        struct attn_case c = plain_case(GCUDA_TYPE_F16, GCUDA_TYPE_F16, sizes[s].dk, sizes[s].dv, n_groups, group,
            n_tokens, n_kv, (enum mask_kind) mask);
        struct attention x;
        c.seqs = 1 + i / 7 % 2, c.splits = i / 4 % 3;
        vary_case(&c, i);
        c.layout = c.dk >= c.dv && i % 3 != 0 ? V_IN_K : (enum layout)(i % 3);
        if (i % 14 == 11) { // v has another content: with a sink nothing would remain of a row
            c.content = BIG_LOGITS;
            c.layout = PADDED;
            c.has_sinks = false;
        }
        attention_begin(&x, &c, "wgmma_long");
        choose_plan(&x.p, GCUDA_FLASH_ATTN_AUTO, 0, 0);
        const struct gcuda_flash_attn_plan plan = plan_of(&x.p);
        CHECK_MSG(plan.path == GCUDA_FLASH_ATTN_WGMMA && plan.block_rows == sizes[s].block_rows, "path %d, %d rows",
            (int) plan.path, plan.block_rows);
        attention_end(&x);
        run_case("wgmma_long", &c, i % 4 == 0, i % 7 == 0 ? 3 : 1);
    }
}

TEST(slices_of_long) { // blocks of 64 rows
    struct attn_case c = plain_case(GCUDA_TYPE_F16, GCUDA_TYPE_F16, 512, 512, 1, 2, 70, SIZE(733, 201), MASK_NONE);
    struct attention x;
    if (!has_wgmma()) {
        test_skip("kernels are not compiled for 9.0a");
        return;
    }
    attention_begin(&x, &c, "slices_of_long");
    run_slices(&x, GCUDA_FLASH_ATTN_WGMMA, 64);
    attention_end(&x);
}

TEST(latent) { // v in k, blocks of 16 rows: every kind of mask, odd numbers of tiles, several items a block, odd sizes
    static const int64_t sizes[][2] = { { 576, 512 }, { 320, 320 }, { 264, 8 }, { 640, 512 }, { 512, 456 },
        { 448, 256 } };
    static const int64_t positions[] = { 5000, 1, 64, 129, 1000, 334, 63 },
                         rows_of[][2] = { { 16, 1 }, { 1, 16 }, { 5, 3 }, { 3, 1 }, { 8, 2 } };
    for (int i = 0; i < SIZE(120, 30); ++i) {
        const int mask = i / 2 % N_MASKS;
        const int64_t *rows = rows_of[i % 5], n_kv = positions[i % 7];
        const enum gcuda_type type = i % 3 == 2 ? GCUDA_TYPE_BF16 : GCUDA_TYPE_F16;
        struct attn_case c = plain_case(type, type, sizes[i % 6][0], sizes[i % 6][1], 1 + i % 2, rows[0], rows[1],
            SIZE(n_kv, n_kv > 4096 ? 700 : n_kv), (enum mask_kind) mask);
        c.layout = V_IN_K;
        c.seqs = 1 + i / 7 % 2, c.splits = i / 4 % 4;
        vary_case(&c, i);
        c.content = i % 10 == 7 ? BIG_LOGITS : ORDINARY;
        run_case("latent", &c, i % 4 == 0, i % 7 == 0 ? 3 : 1);
    }
}

// ---- gradients ----
struct gradients {
    struct gcuda_flash_attn_ext_back_args p;
    struct source dy;
    float *dy_rows, *y_rows; // as numbers, packed: [sequence][token][head][DV]
    double * want[4];        // of q, k, v and sinks
    int64_t first[5];        // element of the result where each begins; the last: all
    char * memory;           // the result, and a guard
};

static void want_gradients(const struct attention * x, struct gradients * g, int64_t row, double * logit) {
    const struct attn_case * c = &x->c;
    const int64_t head = row % c->heads, token = row / c->heads % c->tokens, s = row / c->heads / c->tokens;
    const int64_t kv_head = s * c->k_heads + head / (c->heads / c->k_heads),
                  v_head = s * c->v_heads + head / (c->heads / c->v_heads);
    const int64_t q_row = (s * c->heads + head) * c->tokens + token;
    const float *q = x->q_rows + q_row * c->dk, *dy = g->dy_rows + row * c->dv, *y = g->y_rows + row * c->dv;
    double most = logits_of(x, token, head, s, logit), sum = 0.0, dot = 0.0;
    if (most == -INFINITY) { return; }
    if (c->has_sinks) {
        most = fmax(most, (double) x->sink[head]);
        sum = exp((double) x->sink[head] - most);
    }
    for (int64_t j = 0; j < c->n_kv; ++j) { sum += logit[j] == -INFINITY ? 0.0 : exp(logit[j] - most); }
    for (int64_t d = 0; d < c->dv; ++d) { dot += (double) dy[d] * (double) y[d]; }
    if (c->has_sinks) { g->want[3][head] -= exp((double) x->sink[head] - most) / sum * dot; }
    for (int64_t j = 0; j < c->n_kv; ++j) {
        if (logit[j] == -INFINITY) { continue; }
        const float *k = x->k_rows + (kv_head * c->n_kv + j) * c->dk, *v = x->v_rows + (v_head * c->n_kv + j) * c->dv;
        const double w = exp(logit[j] - most) / sum;
        double dw = 0.0, z = 0.0;
        for (int64_t d = 0; d < c->dv; ++d) {
            dw += (double) dy[d] * (double) v[d];
            g->want[2][(v_head * c->n_kv + j) * c->dv + d] += w * (double) dy[d];
        }
        for (int64_t d = 0; d < c->dk && c->softcap != 0.0f; ++d) { z += (double) q[d] * (double) k[d]; }
        const double t = c->softcap != 0.0f ? tanh(z * (double) x->p.scale / (double) c->softcap) : 0.0;
        const double dz = w * (dw - dot) * (1.0 - t * t) * (double) x->p.scale;
        for (int64_t d = 0; d < c->dk; ++d) {
            g->want[0][q_row * c->dk + d] += dz * (double) k[d];
            g->want[1][(kv_head * c->n_kv + j) * c->dk + d] += dz * (double) q[d];
        }
    }
}

static struct gcuda_array part_of(const struct gradients * g, int part, const struct gcuda_array * like) {
    struct gcuda_array a = *like;
    a.type = GCUDA_TYPE_F32;
    a.data = g->memory + 4 * (size_t) g->first[part];
    a.nb[0] = 4;
    for (int d = 1; d < 4; ++d) { a.nb[d] = a.nb[d - 1] * (size_t) a.ne[d - 1]; }
    return a;
}

// y is that of the plain path.
static void gradients_begin(struct attention * x, struct gradients * g) {
    const struct attn_case * c = &x->c;
    const struct gcuda_array * of[4] = { &x->q.a, &x->k.a, &x->v.a, &x->sinks.a };
    memset(g, 0, sizeof *g);
    for (int i = 0; i < 4; ++i) {
        const int64_t n =
            i == 3 ? (c->has_sinks ? c->heads : 0) : of[i]->ne[0] * of[i]->ne[1] * of[i]->ne[2] * of[i]->ne[3];
        g->first[i + 1] = g->first[i] + n;
        g->want[i] = (double *) calloc((size_t) n + 1, sizeof(double));
    }
    CHECK(cudaMalloc((void **) &g->memory, 4 * (size_t) g->first[4] + GUARD) == cudaSuccess);
    choose_plan(&x->p, GCUDA_FLASH_ATTN_PLAIN, 0, 0);
    g->y_rows = launched(x);
    g->dy = source_of(GCUDA_TYPE_F32, c->dv, c->heads, c->tokens, c->seqs, PACKED, (size_t) (c->q_skew % 2) * 4,
        (size_t) (c->q_skew % 3) * 4, 0);
    fill_rows(&g->dy, &x->r, 1.0, 1.0);
    upload(&g->dy);
    g->dy_rows = numbers_of(&g->dy);
    struct gcuda_flash_attn_ext_back_args * p = &g->p;
    p->q = x->p.q, p->k = x->p.k, p->v = x->p.v, p->mask = x->p.mask, p->sinks = x->p.sinks, p->y = x->p.y,
    p->dy = g->dy.a;
    p->scale = x->p.scale, p->max_bias = x->p.max_bias, p->logit_softcap = x->p.logit_softcap,
    p->max_shared = x->p.max_shared;
    p->dq = part_of(g, 0, of[0]), p->dk = part_of(g, 1, of[1]), p->dv = part_of(g, 2, of[2]);
    if (c->has_sinks) { p->dsinks = part_of(g, 3, of[3]); }
    double * logit = (double *) malloc((size_t) (c->n_kv + 1) * sizeof(double));
    for (int64_t i = 0; i < x->n_rows; ++i) { want_gradients(x, g, i, logit); }
    free(logit);
}

static void gradients_end(struct gradients * g) {
    source_free(&g->dy);
    CHECK(cudaFree(g->memory) == cudaSuccess);
    for (int i = 0; i < 4; ++i) { free(g->want[i]); }
    free(g->dy_rows);
    free(g->y_rows);
}

static float * launched_gradients(struct gradients * g, enum gcuda_prec prec) {
    const size_t size = 4 * (size_t) g->first[4];
    float * got = (float *) malloc(size + 1);
    g->p.prec = prec;
    const size_t scratch_bytes = gcuda_flash_attn_ext_back_scratch_bytes(&g->p);
    CHECK(cudaMalloc(&g->p.scratch, scratch_bytes + GUARD) == cudaSuccess);
    poison(g->p.scratch, scratch_bytes + GUARD);
    poison(g->memory, size + GUARD);
    CHECK_OK(gcuda_launch_flash_attn_ext_back(&g->p, NULL));
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    CHECK(cudaMemcpy(got, g->memory, size, cudaMemcpyDeviceToHost) == cudaSuccess);
    CHECK(is_untouched(g->memory + size));
    CHECK(is_untouched((const char *) g->p.scratch + scratch_bytes));
    CHECK(cudaFree(g->p.scratch) == cudaSuccess);
    return got;
}

// Each gradient against float64. Rows of one are as long as its source's.
static void compare_gradients(
    const struct attention * x, const struct gradients * g, const float * got, struct bound b, const char * path) {
    static const char * const names[] = { "q", "k", "v", "sinks" };
    const int64_t widths[] = { x->c.dk, x->c.dk, x->c.dv, x->c.heads };
    for (int i = 0; i < 4; ++i) {
        const int64_t n = g->first[i + 1] - g->first[i];
        double error = 0.0, size = 0.0, most = 0.0;
        for (int64_t at = 0; at < n; ++at) {
            const float v = got[g->first[i] + at];
            const double by = isfinite(v) ? (double) v - g->want[i][at] : INFINITY;
            error += by * by;
            size += g->want[i][at] * g->want[i][at];
            most = fmax(most, fabs(by));
        }
        CHECK_MSG(
            error <= b.nmse * size, "%s, gradient of %s: NMSE %.3g, allowed %g", path, names[i], error / size, b.nmse);
        CHECK_MSG(most <= b.most * sqrt(size / (double) (n > 0 ? n : 1)),
            "%s, gradient of %s, rows of %lld: error of %.3g rms, allowed %g", path, names[i], (long long) widths[i],
            most / sqrt(size / (double) n), b.most);
    }
}

static void run_gradients(const char * test, const struct attn_case * c, int n_times) {
    struct attention x;
    struct gradients g;
    char name[512];
    name_of(name, sizeof name, test, c);
    if (!test_case_begin(name)) { return; }
    attention_begin(&x, c, name);
    gradients_begin(&x, &g);
    float *plain = launched_gradients(&g, GCUDA_PREC_F32), *usual = launched_gradients(&g, GCUDA_PREC_DEFAULT);
    compare_gradients(&x, &g, plain, (struct bound){ 1e-9, 1e-3 }, "F32");
    compare_gradients(&x, &g, usual, (struct bound){ 2e-4, 0.15 }, "DEFAULT");
    const bool has_tensor_cores = capability() >= 800 && (c->dk == 64 || c->dk == 128) && c->dk == c->dv &&
                                  c->k_heads == c->v_heads && x.n_rows * c->n_kv > 0 &&
                                  c->max_shared > (size_t) 98 << 10;
    bool is_zero = true; // a mask of tiles may hide all of them
    for (int64_t i = 0; i < g.first[4]; ++i) { is_zero = is_zero && plain[i] == 0.0f; }
    CHECK(is_zero || x.n_rows * c->n_kv < 100 ||
          (memcmp(plain, usual, 4 * (size_t) g.first[4]) != 0) == has_tensor_cores);
    for (int k = 1; k < n_times; ++k) {
        float * again = launched_gradients(&g, k % 2 == 0 ? GCUDA_PREC_F32 : GCUDA_PREC_DEFAULT);
        CHECK_MSG(memcmp(k % 2 == 0 ? plain : usual, again, 4 * (size_t) g.first[4]) == 0, "other bits on another run");
        free(again);
    }
    free(plain);
    free(usual);
    gradients_end(&g);
    attention_end(&x);
    test_case_end();
}

TEST(gradients) {
    static const struct {
        int64_t dk, dv, tokens, n_kv;
    } sizes[] = { { 64, 64, 150, 200 }, { 128, 128, 70, 129 }, { 40, 40, 17, 33 }, { 64, 64, 33, 127 },
        { 128, 128, 160, SIZE(700, 260) }, { 72, 80, 5, 31 }, { 64, 64, 1, 333 }, { 128, 128, 129, 64 } };
    for (int i = 0; i < SIZE(96, 24); ++i) {
        const int at = i % 8;
        struct attn_case c = plain_case(float_types[i % 3], float_types[i / 3 % 3], sizes[at].dk, sizes[at].dv,
            1 + i % 2, 1 + i % 3, sizes[at].tokens, sizes[at].n_kv, (enum mask_kind)(i / 2 % N_MASKS));
        c.seqs = 1 + i / 8 % 2;
        c.mask_heads = i % 3 == 0 ? 1 : c.heads, c.mask_seqs = i % 4 < 2 ? 1 : c.seqs;
        c.mask_type = float_types[(i + 1) % 3], c.mask_skew = i / 4 % 2;
        c.is_hidden = i % 4 > 0;
        c.layout = (enum layout)(i / 5 % 3), c.q_skew = i % 8;
        c.softcap = i % 5 == 0 ? 2.0f : 0.0f;
        c.has_sinks = i % 3 == 1;
        c.max_bias = c.mask != MASK_NONE && i % 7 == 0 ? 8.0f : 0.0f;
        run_gradients("gradients", &c, i % 4 == 0 ? 3 : 1);
    }
}

TEST(gradients_on_little_shared_memory) { // as every device has it: the plain path
    struct attn_case c = plain_case(GCUDA_TYPE_F16, GCUDA_TYPE_F16, 64, 64, 2, 2, 33, 70, MASK_CAUSAL);
    c.max_shared = 0;
    run_gradients("gradients_on_little_shared_memory", &c, 1);
}

// ---- shared memory ----
TEST(little_shared_memory) { // what every device has
    for (int t = 0; t < 16; ++t) {
        const int64_t * head = head_sizes[t % 2 == 0 ? 8 : 9];
        struct attn_case c =
            plain_case(kv_types[t % 4], kv_types[t / 4], head[0], head[1], 1, 4, t % 3 == 0 ? 9 : 1, 140, MASK_CAUSAL);
        c.max_shared = t % 2 == 0 ? 0 : (size_t) 48 << 10;
        c.is_f32 = t % 5 == 0;
        run_case("little_shared_memory", &c, false, 1);
    }
}

// ---- each kernel once, for compute-sanitizer ----
TEST(few_blocks) {
    static const struct {
        int k, v;
        int64_t dk, dv, tokens;
    } rows[] = { { 0, 0, 64, 64, 1 }, { 0, 0, 128, 128, 5 }, { 0, 0, 256, 256, 9 }, { 0, 0, 320, 256, 1 },
        { 1, 0, 64, 64, 66 }, { 0, 1, 128, 128, 66 }, { 1, 1, 256, 256, 66 }, { 0, 0, 320, 256, 40 },
        { 2, 2, 64, 64, 1 }, { 3, 3, 128, 128, 1 }, { 2, 3, 128, 128, 9 }, { 3, 2, 256, 256, 2 }, { 2, 0, 320, 256, 3 },
        { 3, 1, 128, 128, 4 }, { 0, 0, 576, 512, 1 }, { 1, 1, 512, 512, 20 }, { 0, 1, 512, 512, 9 } };
    for (int64_t i = 0; i < N_OF(rows); ++i) {
        struct attn_case c = plain_case(kv_types[rows[i].k], kv_types[rows[i].v], rows[i].dk, rows[i].dv, 1, 2,
            rows[i].tokens, SIZE(583, 263), i % 2 == 0 ? MASK_HOLES : MASK_TILES);
        c.splits = 2, c.is_tight = true;
        run_case("few_blocks", &c, i % 4 == 0, 1);
    }
}

TEST(few_blocks_of_gradients) {
    static const struct {
        int type;
        int64_t head, tokens;
    } rows[] = { { 1, 64, 40 }, { 1, 128, 150 }, { 0, 64, 3 }, { 2, 128, 33 }, { 1, 40, 20 } };
    for (int64_t i = 0; i < N_OF(rows); ++i) {
        struct attn_case c = plain_case(float_types[rows[i].type], float_types[rows[i].type], rows[i].head,
            rows[i].head, 1, 2, rows[i].tokens, SIZE(283, 133), i % 2 == 0 ? MASK_HOLES : MASK_CAUSAL);
        c.is_tight = true, c.is_hidden = true, c.has_sinks = i == 0;
        run_gradients("few_blocks_of_gradients", &c, 1);
    }
}

// ---- the choice of a path ----
TEST(choice_of_a_path) {
    enum {
        AUTO = GCUDA_FLASH_ATTN_AUTO,
        PLAIN = GCUDA_FLASH_ATTN_PLAIN,
        SPLIT = GCUDA_FLASH_ATTN_SPLIT,
        ROWS = GCUDA_FLASH_ATTN_ROWS,
        ELEMENTS = GCUDA_FLASH_ATTN_ELEMENTS,
        WGMMA = GCUDA_FLASH_ATTN_WGMMA
    };
    enum {
        F16 = GCUDA_TYPE_F16,
        BF16 = GCUDA_TYPE_BF16,
        Q8 = GCUDA_TYPE_Q8_0,
        Q4 = GCUDA_TYPE_Q4_0,
        F32 = GCUDA_TYPE_F32,
        Q5 = GCUDA_TYPE_Q5_0
    };
    static const struct {
        int capability, k, v, dk, dv, n_rows, is_aligned, fits_rows, fits_split, fits_elements, fits_wgmma, path;
    } rows[] = {
        { 900, F16, F16, 128, 128, 1, 1, 1, 1, 1, 0, SPLIT },
        { 900, F16, F16, 128, 128, 32, 1, 1, 1, 1, 0, SPLIT },
        { 900, F16, F16, 128, 128, 33, 1, 1, 1, 1, 0, ROWS },
        { 900, F16, BF16, 128, 128, 4096, 1, 1, 1, 1, 0, ROWS },
        { 800, BF16, BF16, 64, 64, 33, 1, 1, 1, 1, 0, ROWS },
        { 800, BF16, F16, 64, 64, 8, 1, 1, 1, 1, 0, SPLIT },
        { 750, F16, Q8, 64, 64, 8, 1, 1, 1, 1, 0, SPLIT },
        { 750, BF16, F16, 64, 64, 8, 1, 1, 1, 1, 0, PLAIN }, // no instruction for BF16
        { 750, F16, BF16, 64, 64, 33, 1, 1, 1, 1, 0, PLAIN },
        { 720, F16, F16, 64, 64, 8, 1, 1, 1, 1, 0, PLAIN },
        { 610, F16, F16, 64, 64, 100, 1, 1, 1, 1, 0, PLAIN },
        { 900, F16, F16, 128, 128, 33, 1, 0, 1, 1, 0, SPLIT }, // no shared memory for many rows
        { 900, F16, F16, 128, 128, 33, 1, 1, 0, 1, 0, ROWS },
        { 900, F16, F16, 128, 128, 32, 1, 1, 0, 1, 0, ELEMENTS },
        { 900, F16, F16, 128, 128, 33, 1, 0, 0, 1, 0, ELEMENTS },
        { 900, F16, F16, 128, 128, 32, 1, 1, 0, 0, 0, PLAIN },
        { 900, Q8, Q8, 128, 128, 64, 1, 1, 1, 1, 0, SPLIT }, // codes are decoded there
        { 900, Q8, Q8, 128, 128, 65, 1, 1, 1, 1, 0, ROWS },  // and here k and v become F16
        { 900, Q8, Q8, 128, 128, 65, 1, 1, 1, 1, 1, WGMMA },
        { 900, Q8, Q8, 128, 128, 64, 1, 1, 1, 1, 1, SPLIT },
        { 900, Q8, Q8, 128, 128, 65, 1, 0, 1, 1, 0, SPLIT },
        { 900, Q8, Q8, 128, 128, 65, 0, 1, 1, 1, 1, PLAIN },
        { 900, Q5, F16, 128, 128, 65, 1, 1, 1, 1, 1, WGMMA },
        { 900, F16, Q5, 128, 128, 64, 1, 1, 1, 1, 1, ELEMENTS },
        { 900, Q5, Q5, 320, 256, 4096, 1, 1, 1, 1, 1, ELEMENTS },
        { 900, F32, F32, 128, 128, 65, 1, 1, 1, 1, 1, WGMMA },
        { 750, F32, Q4, 128, 64, 65, 1, 1, 1, 1, 0, ROWS },
        { 900, F32, F32, 128, 128, 64, 1, 1, 1, 1, 1, PLAIN },
        { 900, F32, F32, 320, 256, 4096, 1, 1, 1, 1, 1, PLAIN },
        { 750, BF16, Q4, 64, 64, 4096, 1, 1, 1, 1, 0, PLAIN },
        { 900, Q4, F16, 128, 128, 33, 1, 1, 1, 1, 0, SPLIT },
        { 900, F16, Q4, 128, 128, 33, 1, 1, 1, 1, 0, SPLIT },
        { 900, Q4, Q8, 128, 128, 1, 1, 0, 1, 1, 0, SPLIT },
        { 900, F32, F16, 128, 128, 33, 1, 1, 1, 1, 0, PLAIN },
        { 900, F16, F32, 128, 128, 1, 1, 1, 1, 1, 0, PLAIN },
        { 900, Q5, Q8, 128, 128, 1, 1, 1, 1, 1, 0, ELEMENTS },
        { 900, F16, Q5, 128, 128, 33, 1, 1, 1, 1, 0, ELEMENTS },
        { 900, Q5, Q5, 128, 128, 33, 1, 1, 1, 0, 0, PLAIN },
        { 900, F16, F16, 128, 128, 33, 0, 1, 1, 1, 0, PLAIN }, // not aligned
        { 900, Q8, Q8, 128, 128, 1, 0, 1, 1, 1, 0, PLAIN },
        { 900, F16, F16, 40, 40, 33, 1, 1, 1, 1, 0, ROWS },
        { 900, F16, F16, 36, 40, 33, 1, 1, 1, 1, 0, PLAIN },
        { 900, F16, F16, 40, 36, 33, 1, 1, 1, 1, 0, PLAIN },
        { 900, F16, F16, 640, 256, 1, 1, 1, 1, 1, 0, ELEMENTS },
        { 900, F16, F16, 648, 256, 1, 1, 1, 1, 1, 0, PLAIN },
        { 900, F16, F16, 256, 264, 33, 1, 1, 1, 1, 0, ELEMENTS },
        { 750, F16, F16, 576, 512, 16, 1, 0, 0, 1, 0, ELEMENTS },
        { 800, BF16, BF16, 512, 512, 4096, 1, 1, 1, 1, 0, ELEMENTS },
        { 750, BF16, BF16, 512, 512, 4, 1, 1, 1, 1, 0, PLAIN },
        { 900, F16, F16, 576, 512, 16, 1, 1, 1, 0, 0, PLAIN },
        { 900, F16, F16, 576, 512, 16, 0, 1, 1, 1, 0, PLAIN },
        { 900, F16, F16, 512, 520, 16, 1, 1, 1, 1, 0, PLAIN },
        { 900, Q8, Q8, 576, 512, 16, 1, 1, 1, 1, 0, ELEMENTS },
        { 900, Q8, Q8, 320, 256, 16, 1, 1, 1, 1, 0, ELEMENTS },
        { 900, F16, F16, 576, 256, 64, 1, 1, 1, 1, 0, ELEMENTS },
        { 900, F16, F16, 0, 64, 1, 1, 1, 1, 1, 0, PLAIN },
        { 1200, Q4, Q4, 256, 256, 16, 1, 1, 1, 1, 0, SPLIT },
        { 900, F16, F16, 128, 128, 33, 1, 1, 1, 1, 1, WGMMA },
        { 900, BF16, BF16, 64, 64, 4096, 1, 1, 1, 1, 1, WGMMA },
        { 900, F16, F16, 128, 128, 32, 1, 1, 1, 1, 1, SPLIT }, // few rows are read once anyhow
        { 900, F16, F16, 128, 128, 33, 0, 1, 1, 1, 1, PLAIN },
        { 900, F16, F16, 512, 512, 33, 1, 1, 1, 1, 1, WGMMA },
        { 900, F16, F16, 576, 512, 4096, 1, 0, 0, 1, 1, WGMMA },
        { 900, F16, F16, 576, 512, 4096, 1, 0, 0, 1, 0, ELEMENTS },
        { 900, F16, F16, 320, 256, 33, 1, 1, 1, 1, 1, WGMMA },
        { 900, F16, F16, 576, 512, 32, 1, 1, 1, 1, 1, ELEMENTS },
        { 900, F16, F16, 512, 520, 33, 1, 1, 1, 1, 1, PLAIN },
        { 900, Q8, Q8, 512, 512, 4096, 1, 1, 1, 1, 1, ELEMENTS }, // nothing is converted
        { 900, F16, Q8, 576, 512, 4096, 1, 1, 1, 1, 1, ELEMENTS },
    };
    for (int64_t i = 0; i < N_OF(rows); ++i) {
        struct gcuda_flash_attn_case c;
        memset(&c, 0, sizeof c);
        c.capability = rows[i].capability;
        c.k_type = (enum gcuda_type) rows[i].k, c.v_type = (enum gcuda_type) rows[i].v;
        c.dk = rows[i].dk, c.dv = rows[i].dv, c.n_rows = rows[i].n_rows;
        c.is_aligned = rows[i].is_aligned != 0, c.fits_rows = rows[i].fits_rows != 0,
        c.fits_split = rows[i].fits_split != 0;
        c.fits_elements = rows[i].fits_elements != 0;
        c.fits_wgmma = rows[i].fits_wgmma != 0;
        c.n_kv = 4096;
        CHECK_MSG((int) gcuda_flash_attn_choose(&c) == rows[i].path, "row %lld: path %d, wanted %d", (long long) i,
            (int) gcuda_flash_attn_choose(&c), rows[i].path);
        if (!gcuda_is_quantized(c.k_type) && !gcuda_is_quantized(c.v_type) && c.k_type != GCUDA_TYPE_F32 &&
            c.v_type != GCUDA_TYPE_F32) {
            continue;
        }
        c.is_precise = true; // nothing is converted
        CHECK(gcuda_flash_attn_choose(&c) != GCUDA_FLASH_ATTN_ROWS &&
              gcuda_flash_attn_choose(&c) != GCUDA_FLASH_ATTN_WGMMA);
        CHECK(!gcuda_is_quantized(c.v_type) || gcuda_flash_attn_choose(&c) == GCUDA_FLASH_ATTN_PLAIN);
        c.is_precise = false;
        c.n_kv = SIZE(255, 3); // nor does it pay
        CHECK(gcuda_flash_attn_choose(&c) != GCUDA_FLASH_ATTN_ROWS &&
              gcuda_flash_attn_choose(&c) != GCUDA_FLASH_ATTN_WGMMA);
    }
}

// Few rows of F16: a cluster of blocks for each head of k and v, without partial results in scratch.
TEST(clusters_of_few_rows) {
    static const int64_t sizes[] = { 64, 128, 256 }, positions[] = { 1, 63, 300, 1000, 4100 };
    static const struct {
        int64_t heads_kv, group, tokens, seqs;
    } shapes[] = { { 1, 4, 1, 1 }, { 2, 8, 1, 1 }, { 1, 1, 8, 2 }, { 3, 3, 2, 1 }, { 1, 2, 3, 3 }, { 2, 8, 4, 1 },
        { 1, 3, 5, 2 }, { 1, 1, 20, 1 } };
    static const enum mask_kind masks[] = { MASK_NONE, MASK_CAUSAL, MASK_HOLES, MASK_BIAS, MASK_EMPTY_ROWS, MASK_TILES,
        MASK_PREFIX };
    static const int splits[] = { 1, 2, 3, 8, SIZE(14, 7) };
    if (capability() < 900) {
        test_skip("no clusters");
        return;
    }
    int i = 0;
    for (int64_t size = 0; size < N_OF(sizes); ++size) {
        for (int64_t mask = 0; mask < N_OF(masks); ++mask) {
            for (int64_t split = 0; split < N_OF(splits); ++split, ++i) {
                struct attention x;
                const int64_t n_kv = positions[i % SIZE(N_OF(positions), N_OF(positions) - 1)], d = sizes[size];
                struct attn_case c = plain_case(GCUDA_TYPE_F16, GCUDA_TYPE_F16, d, d, shapes[i % N_OF(shapes)].heads_kv,
                    shapes[i % N_OF(shapes)].group, shapes[i % N_OF(shapes)].tokens, n_kv, masks[mask]);
                char name[512];
                const bool has_few = d <= 128 || c.tokens * c.heads / c.k_heads <= 8;
                if (is_left_out((int) (size * N_OF(masks) + mask), (int) split) || !has_few) { continue; }
                c.seqs = c.mask_seqs = shapes[i % N_OF(shapes)].seqs;
                c.layout = i % 3 == 0 ? INTERLEAVED : i % 3 == 1 ? PADDED : PACKED;
                c.is_hidden = i % 2 == 0, c.has_sinks = i % 4 == 1;
                c.max_bias = i % 5 == 2 ? 8.0f : 0.0f, c.softcap = i % 7 == 3 ? 10.0f : 0.0f;
                c.splits = splits[split];
                name_of(name, sizeof name, "clusters_of_few_rows", &c);
                if (!test_case_begin(name)) { continue; }
                attention_begin(&x, &c, name);
                choose_plan(&x.p, GCUDA_FLASH_ATTN_SPLIT, 16, 8);
                (void) plan_of(&x.p); // asks the device about such clusters, which must not limit later launches
                choose_plan(&x.p, GCUDA_FLASH_ATTN_AUTO, 0, 0);
                CHECK(SIZE(plan_of(&x.p).block_rows, 8) == 8); // simulated: SMs for few clusters
                choose_plan(&x.p, GCUDA_FLASH_ATTN_SPLIT, splits[split], 8);
                const struct gcuda_flash_attn_plan plan = plan_of(&x.p);
                CHECK_EQ_I(plan.path, GCUDA_FLASH_ATTN_SPLIT);
                CHECK_EQ_I(plan.n_splits, splits[split]);
                CHECK_EQ_I(plan.block_rows, 8);
                CHECK(c.mask != MASK_NONE || gcuda_flash_attn_ext_scratch_bytes(&x.p) == 0);
                run_plan(&x, plan, NULL, 2);
                attention_end(&x);
                test_case_end();
            }
        }
    }
}

TEST(wishes_are_followed) { // where the path can
    static const struct {
        int k, wish, path;
        int64_t tokens;
    } rows[] = { { GCUDA_TYPE_F16, GCUDA_FLASH_ATTN_AUTO, GCUDA_FLASH_ATTN_SPLIT, 1 },
        { GCUDA_TYPE_F16, GCUDA_FLASH_ATTN_AUTO, GCUDA_FLASH_ATTN_ROWS, 50 },
        { GCUDA_TYPE_F16, GCUDA_FLASH_ATTN_ROWS, GCUDA_FLASH_ATTN_ROWS, 1 },
        { GCUDA_TYPE_F16, GCUDA_FLASH_ATTN_SPLIT, GCUDA_FLASH_ATTN_SPLIT, 50 },
        { GCUDA_TYPE_F16, GCUDA_FLASH_ATTN_ELEMENTS, GCUDA_FLASH_ATTN_ELEMENTS, 1 },
        { GCUDA_TYPE_F16, GCUDA_FLASH_ATTN_ELEMENTS, GCUDA_FLASH_ATTN_ELEMENTS, 50 },
        { GCUDA_TYPE_Q8_0, GCUDA_FLASH_ATTN_ROWS, GCUDA_FLASH_ATTN_ROWS, 50 },
        { GCUDA_TYPE_F32, GCUDA_FLASH_ATTN_ROWS, GCUDA_FLASH_ATTN_ROWS, 50 },
        { GCUDA_TYPE_F32, GCUDA_FLASH_ATTN_AUTO, GCUDA_FLASH_ATTN_PLAIN, 50 },
        { GCUDA_TYPE_F32, GCUDA_FLASH_ATTN_SPLIT, GCUDA_FLASH_ATTN_PLAIN, 50 },
        { GCUDA_TYPE_Q4_0, GCUDA_FLASH_ATTN_PLAIN, GCUDA_FLASH_ATTN_PLAIN, 50 } };
    if (capability() < 750) {
        test_skip("no tensor cores");
        return;
    }
    for (int64_t i = 0; i < N_OF(rows); ++i) {
        const struct attn_case c =
            plain_case((enum gcuda_type) rows[i].k, GCUDA_TYPE_F16, 64, 64, 1, 1, rows[i].tokens, 300, MASK_NONE);
        struct attention x;
        attention_begin(&x, &c, "wishes_are_followed");
        for (int splits = 1; splits < 5; ++splits) { // the last: more than tiles
            choose_plan(&x.p, (enum gcuda_flash_attn_path) rows[i].wish, splits < 4 ? splits : 100, 16);
            const struct gcuda_flash_attn_plan plan = plan_of(&x.p);
            const bool is_wgmma =
                rows[i].wish == GCUDA_FLASH_ATTN_AUTO && rows[i].path == GCUDA_FLASH_ATTN_ROWS && has_wgmma();
            CHECK_EQ_I(plan.path, is_wgmma ? GCUDA_FLASH_ATTN_WGMMA : rows[i].path);
            CHECK_EQ_I(plan.n_splits, rows[i].path == GCUDA_FLASH_ATTN_PLAIN ? 1 : splits < 4 ? splits : 5);
            CHECK(plan.path != GCUDA_FLASH_ATTN_ROWS || plan.block_rows >= 64);
            CHECK(
                plan.path != GCUDA_FLASH_ATTN_SPLIT || rows[i].wish != GCUDA_FLASH_ATTN_SPLIT || plan.block_rows == 16);
        }
        attention_end(&x);
    }
}

TEST(every_path_has_run) {
    const long least = test_all.n_parts > 0 ? 0 : 20;
    if (test_all.filter != NULL || test_all.only != NULL || capability() < 750) {
        test_skip("not all tests, or no tensor cores");
        return;
    }
    for (int path = GCUDA_FLASH_ATTN_PLAIN; path <= GCUDA_FLASH_ATTN_ELEMENTS; ++path) {
        if (path != GCUDA_FLASH_ATTN_WGMMA || has_wgmma()) {
            CHECK_MSG(n_runs[path] > least, "path %d: %ld runs", path, n_runs[path]);
        }
    }
}
