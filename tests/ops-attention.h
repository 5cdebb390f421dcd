// Softmax, fused attention and rotary position embedding: references in float64 and the tables of cases.
// Part of test-ops.c. Optional sources follow the required ones; the parameters say at which place, 0 means absent.
#ifndef OPS_ATTENTION_H
#define OPS_ATTENTION_H

#include "test-ops.h"

static const struct arr * optional_in(const struct op_case * c, int at) { return at > 0 ? c->in[at] : NULL; }
static struct gcuda_tensor * optional(struct gcuda_tensor ** in, int at) { return at > 0 ? in[at] : NULL; }

// ---------------------------------------------------------------------------------------- references

// ALiBi: heads beyond the last power of two take the odd powers of a second base
static double ref_alibi_slope(double max_bias, int64_t n_head, int64_t h) {
    if (max_bias <= 0.0) { return 1.0; }
    int64_t floor_pow2 = 1;
    while (2 * floor_pow2 <= n_head) { floor_pow2 *= 2; }
    if (h < floor_pow2) { return pow(2.0, -max_bias / (double) floor_pow2 * (double) (h + 1)); }
    return pow(2.0, -(max_bias / 2.0) / (double) floor_pow2 * (double) (2 * (h - floor_pow2) + 1));
}

// >>op:soft_max
struct p_soft_max {
    float scale;
    float max_bias;
    int mask_at, sinks_at;
};

static void ref_soft_max_row(const struct op_case * c, int64_t i1, int64_t i2, int64_t i3) {
    const struct p_soft_max * p = (const struct p_soft_max *) c->p;
    const struct arr * a = c->in[0];
    const struct arr * mask = optional_in(c, p->mask_at);
    const struct arr * sinks = optional_in(c, p->sinks_at);
    const struct arr * y = c->out;
    const double slope = ref_alibi_slope((double) p->max_bias, a->ne[2], i2);
    double max = sinks != NULL ? AT(sinks, i2, 0, 0, 0) : -INFINITY;
    for (int64_t i = 0; i < a->ne[0]; ++i) {
        double w = AT(a, i, i1, i2, i3) * (double) p->scale;
        if (mask != NULL) { w += slope * AT(mask, i, i1, i2 % mask->ne[2], i3 % mask->ne[3]); }
        AT(y, i, i1, i2, i3) = w;
        max = fmax(max, w);
    }
    if (isinf(max) && max < 0.0) { // nothing to attend to: zeros, not NaN
        for (int64_t i = 0; i < a->ne[0]; ++i) { AT(y, i, i1, i2, i3) = 0.0; }
        return;
    }
    double sum = sinks != NULL ? exp(AT(sinks, i2, 0, 0, 0) - max) : 0.0;
    for (int64_t i = 0; i < a->ne[0]; ++i) { sum += exp(AT(y, i, i1, i2, i3) - max); }
    for (int64_t i = 0; i < a->ne[0]; ++i) { AT(y, i, i1, i2, i3) = exp(AT(y, i, i1, i2, i3) - max) / sum; }
}

static void ref_soft_max(const struct op_case * c) {
    arr_like(c->out, c->in[0]);
    FOR_ROWS(c->out) { ref_soft_max_row(c, i1, i2, i3); }
}

// >>op:soft_max_back   sources: dy, y
static void ref_soft_max_back(const struct op_case * c) {
    const struct p_soft_max * p = (const struct p_soft_max *) c->p;
    arr_like(c->out, c->in[0]);
    const int64_t n = c->out->ne[0];
    const int64_t n_rows = c->out->ne[1] * c->out->ne[2] * c->out->ne[3];
    for (int64_t r = 0; r < n_rows; ++r) {
        const double * dy = c->in[0]->d + r * n;
        const double * y = c->in[1]->d + r * n;
        double dot = 0.0;
        for (int64_t i = 0; i < n; ++i) { dot += y[i] * dy[i]; }
        for (int64_t i = 0; i < n; ++i) { c->out->d[r * n + i] = (double) p->scale * y[i] * (dy[i] - dot); }
    }
}

// >>op:flash_attn_ext   sources: q, k, v, then mask and sinks
struct p_flash_attn {
    float scale;
    float max_bias;
    float softcap;
    int mask_at, sinks_at;
    int is_f32; // precision
    int64_t dv; // > 0: v is a view of the first dv elements of k's rows
};

// logits of one query, scaled, then capped, then masked; returns their maximum
static double ref_attention_logits(const struct op_case * c, int64_t n, int64_t h, int64_t s, double * x) {
    const struct p_flash_attn * p = (const struct p_flash_attn *) c->p;
    const struct arr * q = c->in[0];
    const struct arr * k = c->in[1];
    const struct arr * mask = optional_in(c, p->mask_at);
    const int64_t hk = h / (q->ne[2] / k->ne[2]);
    const double slope = ref_alibi_slope((double) p->max_bias, q->ne[2], h);
    double max = -INFINITY;
    for (int64_t j = 0; j < k->ne[1]; ++j) {
        double dot = 0.0;
        for (int64_t d = 0; d < q->ne[0]; ++d) { dot += AT(q, d, n, h, s) * AT(k, d, j, hk, s); }
        x[j] = dot * (double) p->scale;
        if (p->softcap != 0.0f) { x[j] = (double) p->softcap * tanh(x[j] / (double) p->softcap); }
        if (mask != NULL) { x[j] += slope * AT(mask, j, n, h % mask->ne[2], s % mask->ne[3]); }
        max = fmax(max, x[j]);
    }
    return max;
}

static void ref_attention_query(const struct op_case * c, int64_t n, int64_t h, int64_t s, double * x) {
    const struct p_flash_attn * p = (const struct p_flash_attn *) c->p;
    const struct arr * v = c->in[p->dv > 0 ? 1 : 2];
    const struct arr * sinks = optional_in(c, p->sinks_at);
    const struct arr * y = c->out;
    const int64_t n_kv = v->ne[1];
    const int64_t hv = h / (c->in[0]->ne[2] / v->ne[2]);
    double max = ref_attention_logits(c, n, h, s, x);
    const bool is_masked = isinf(max) && max < 0.0; // every position: the answer is 0, also with a sink
    if (sinks != NULL) { max = fmax(max, AT(sinks, h, 0, 0, 0)); }
    double sum = sinks != NULL && !is_masked ? exp(AT(sinks, h, 0, 0, 0) - max) : 0.0;
    for (int64_t j = 0; j < n_kv && !is_masked; ++j) {
        x[j] = exp(x[j] - max);
        sum += x[j];
    }
    for (int64_t d = 0; d < y->ne[0]; ++d) {
        double acc = 0.0;
        for (int64_t j = 0; j < n_kv && !is_masked; ++j) {
            if (x[j] != 0.0) { acc += x[j] * AT(v, d, j, hv, s); }
        }
        AT(y, d, h, n, s) = is_masked ? 0.0 : acc / sum;
    }
}

static void ref_flash_attn(const struct op_case * c) {
    const struct arr * q = c->in[0];
    const struct p_flash_attn * p = (const struct p_flash_attn *) c->p;
    double * x = (double *) malloc(sizeof(double) * (size_t) (c->in[1]->ne[1] + 1));
    if (x == NULL) { return; }
    arr_new(c->out, p->dv > 0 ? p->dv : c->in[2]->ne[0], q->ne[2], q->ne[1], q->ne[3]);
    for (int64_t s = 0; s < q->ne[3]; ++s) {
        for (int64_t h = 0; h < q->ne[2]; ++h) {
            for (int64_t n = 0; n < q->ne[1]; ++n) { ref_attention_query(c, n, h, s, x); }
        }
    }
    free(x);
}

// >>op:flash_attn_ext_back   sources: q, k, v, y, dy, then mask and sinks. y is any numbers: the formula holds for them
//                            too
struct p_flash_attn_back {
    struct p_flash_attn attn; // dv is not used
    int part;                 // of the result, an enum gcuda_flash_attn_grad; 4: all of it
};

// What one query adds to the gradients; x: room for the positions, returns weights there.
static void ref_attention_back_query(
    const struct op_case * c, int64_t n, int64_t h, int64_t s, double * x, struct arr * const * grad) {
    const struct p_flash_attn * p = &((const struct p_flash_attn_back *) c->p)->attn;
    const struct arr *q = c->in[0], *k = c->in[1], *v = c->in[2], *y = c->in[3], *dy = c->in[4],
                     *sinks = optional_in(c, p->sinks_at);
    const int64_t hk = h / (q->ne[2] / k->ne[2]), hv = h / (q->ne[2] / v->ne[2]);
    double max = ref_attention_logits(c, n, h, s, x), dot = 0.0;
    if (isinf(max) && max < 0.0) { return; }
    if (sinks != NULL) { max = fmax(max, AT(sinks, h, 0, 0, 0)); }
    double sum = sinks != NULL ? exp(AT(sinks, h, 0, 0, 0) - max) : 0.0;
    for (int64_t j = 0; j < k->ne[1]; ++j) { sum += exp(x[j] - max); }
    for (int64_t d = 0; d < v->ne[0]; ++d) { dot += AT(y, d, h, n, s) * AT(dy, d, h, n, s); }
    if (sinks != NULL) { AT(grad[3], h, 0, 0, 0) -= exp(AT(sinks, h, 0, 0, 0) - max) / sum * dot; }
    for (int64_t j = 0; j < k->ne[1]; ++j) {
        const double w = exp(x[j] - max) / sum;
        double dw = 0.0, z = 0.0;
        if (w == 0.0) { continue; }
        for (int64_t d = 0; d < v->ne[0]; ++d) {
            dw += AT(dy, d, h, n, s) * AT(v, d, j, hv, s);
            AT(grad[2], d, j, hv, s) += w * AT(dy, d, h, n, s);
        }
        for (int64_t d = 0; d < q->ne[0]; ++d) { z += AT(q, d, n, h, s) * AT(k, d, j, hk, s); }
        const double t = p->softcap != 0.0f ? tanh(z * (double) p->scale / (double) p->softcap) : 0.0;
        const double dz = w * (dw - dot) * (1.0 - t * t) * (double) p->scale;
        for (int64_t d = 0; d < q->ne[0]; ++d) {
            AT(grad[0], d, n, h, s) += dz * AT(k, d, j, hk, s);
            AT(grad[1], d, j, hk, s) += dz * AT(q, d, n, h, s);
        }
    }
}

static void ref_flash_attn_back(const struct op_case * c) {
    const struct p_flash_attn_back * p = (const struct p_flash_attn_back *) c->p;
    const struct arr * q = c->in[0];
    const int n_grads = p->attn.sinks_at > 0 ? 4 : 3;
    struct arr own[4], *grad[4];
    double * x = (double *) malloc(sizeof(double) * (size_t) (c->in[1]->ne[1] + 1));
    int64_t total = 0, at = 0;
    memset(own, 0, sizeof own);
    for (int i = 0; i < n_grads; ++i) {
        grad[i] = &own[i];
        arr_like(grad[i], c->in[i < 3 ? i : p->attn.sinks_at]);
        total += arr_n(grad[i]);
    }
    for (int64_t s = 0; s < q->ne[3] && x != NULL; ++s) {
        for (int64_t h = 0; h < q->ne[2]; ++h) {
            for (int64_t n = 0; n < q->ne[1]; ++n) { ref_attention_back_query(c, n, h, s, x, grad); }
        }
    }
    if (p->part < 4) {
        arr_copy(c->out, grad[p->part]);
    } else {
        arr_new(c->out, total, 1, 1, 1);
    }
    for (int i = 0; i < n_grads; ++i) {
        for (int64_t k = 0; p->part == 4 && k < arr_n(grad[i]); ++k) { c->out->d[at++] = grad[i]->d[k]; }
        arr_free(grad[i]);
    }
    free(x);
}

// >>op:rope >>op:rope_back   sources: a, positions, frequency factors if there are three
struct p_rope {
    int n_dims;
    int mode;
    int n_ctx_orig;
    float freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow;
    int sections[4];
    int is_back;
};

struct ref_angle {
    double theta, magnitude;
};

static double ref_yarn_corr(const struct p_rope * p, double rotations) {
    const double turns = (double) p->n_ctx_orig / (rotations * 2.0 * 3.14159265358979323846);
    return (double) p->n_dims * log(turns) / (2.0 * log((double) p->freq_base));
}

// `power` is the exponent of the base; `j` counts pairs and drives the ramp and the factors
static struct ref_angle ref_rope_angle(const struct op_case * c, double pos, int64_t power, int64_t j) {
    const struct p_rope * p = (const struct p_rope *) c->p;
    const double extrapolated = pos * pow((double) p->freq_base, -2.0 * (double) power / (double) p->n_dims) /
                                (c->n_in > 2 ? AT(c->in[2], j, 0, 0, 0) : 1.0);
    const double interpolated = (double) p->freq_scale * extrapolated;
    struct ref_angle angle = { interpolated, (double) p->attn_factor };
    if (p->ext_factor != 0.0f) {
        const double low = fmax(0.0, floor(ref_yarn_corr(p, (double) p->beta_fast)));
        const double high = fmin((double) (p->n_dims - 1), ceil(ref_yarn_corr(p, (double) p->beta_slow)));
        const double ramp = 1.0 - fmin(1.0, fmax(0.0, ((double) j - low) / fmax(0.001, high - low)));
        const double mix = ramp * (double) p->ext_factor;
        angle.theta = interpolated * (1.0 - mix) + extrapolated * mix;
        angle.magnitude *= 1.0 + 0.1 * log(1.0 / (double) p->freq_scale);
    }
    return angle;
}

// plane of positions that pair j of a multi-section mode reads: 0 time, 1 height, 2 width, 3 extra
static int ref_rope_plane(const struct p_rope * p, int64_t j, int64_t * power) {
    const int * s = p->sections;
    const int64_t q = j % (s[0] + s[1] + s[2] + s[3]);
    *power = j;
    if (p->mode == 40) { // interleaved sections
        if (q % 3 == 1 && q < 3 * s[1]) { return 1; }
        if (q % 3 == 2 && q < 3 * s[2]) { return 2; }
        return q % 3 == 0 && q < 3 * s[0] ? 0 : 3;
    }
    int plane = 0;
    int64_t start = 0;
    while (plane < 3 && q >= start + s[plane]) { start += s[plane++]; }
    if (p->mode == 24) { *power = q - start; } // vision: frequencies restart in every section
    return plane;
}

static struct ref_angle ref_rope_pair_angle(const struct op_case * c, int64_t token, int64_t j) {
    const struct p_rope * p = (const struct p_rope *) c->p;
    int64_t power = j;
    const int plane = (p->mode & 8) != 0 ? ref_rope_plane(p, j, &power) : 0;
    return ref_rope_angle(c, c->in[1]->d[plane * c->in[0]->ne[2] + token], power, j);
}

static void ref_rope_row(const struct op_case * c, const double * x, double * y, int64_t token) {
    const struct p_rope * p = (const struct p_rope *) c->p;
    const int64_t n_pairs = p->mode == 24 ? p->n_dims : p->n_dims / 2;
    for (int64_t i = 0; i < c->in[0]->ne[0]; ++i) { y[i] = x[i]; }
    for (int64_t j = 0; j < n_pairs; ++j) {
        const struct ref_angle angle = ref_rope_pair_angle(c, token, j);
        const int64_t u = p->mode == 0 ? 2 * j : j;
        const int64_t v = p->mode == 0 ? u + 1 : j + n_pairs;
        const double cs = cos(angle.theta) * angle.magnitude;
        const double sn = sin(angle.theta) * angle.magnitude * (p->is_back ? -1.0 : 1.0);
        y[u] = x[u] * cs - x[v] * sn;
        y[v] = x[u] * sn + x[v] * cs;
    }
}

static void ref_rope(const struct op_case * c) {
    const struct arr * a = c->in[0];
    arr_like(c->out, a);
    for (int64_t r = 0; r < a->ne[1] * a->ne[2] * a->ne[3]; ++r) {
        ref_rope_row(c, a->d + r * a->ne[0], c->out->d + r * a->ne[0], r / a->ne[1] % a->ne[2]);
    }
}

// ---------------------------------------------------------------------------------------- soft_max
static struct gcuda_tensor * build_soft_max(
    struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * params) {
    const struct p_soft_max * p = (const struct p_soft_max *) params;
    struct gcuda_tensor * y = gcuda_soft_max_ext(ctx, in[0], optional(in, p->mask_at), p->scale, p->max_bias);
    if (p->sinks_at > 0 && y != NULL) { gcuda_soft_max_add_sinks(y, in[p->sinks_at]); }
    return y;
}

static struct gcuda_tensor * inplace_soft_max(
    struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * params) {
    const struct p_soft_max * p = (const struct p_soft_max *) params;
    struct gcuda_tensor * y = gcuda_soft_max_ext_inplace(ctx, in[0], optional(in, p->mask_at), p->scale, p->max_bias);
    if (p->sinks_at > 0 && y != NULL) { gcuda_soft_max_add_sinks(y, in[p->sinks_at]); }
    return y;
}

static struct gcuda_tensor * build_soft_max_plain(
    struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    (void) p;
    return gcuda_soft_max(ctx, in[0]);
}

static struct gcuda_tensor * inplace_soft_max_plain(
    struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    (void) p;
    return gcuda_soft_max_inplace(ctx, in[0]);
}

// values in [-1, 1], tiles of -inf and of 0, and one row that is masked as a whole
static void fill_mask(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    (void) c, (void) k;
    for (int64_t tile = 0; tile < arr_n(a) / 64; ++tile) {
        const int64_t x = rng_below(r, a->ne[0]), y = rng_below(r, a->ne[1]), plane = rng_below(r, a->ne[2] * a->ne[3]);
        const double v = rng_below(r, 2) ? -HUGE_VAL : 0.0;
        for (int64_t i = 0; i < 8 * 8; ++i) {
            if (x + i % 8 < a->ne[0] && y + i / 8 < a->ne[1]) {
                AT(a, x + i % 8, y + i / 8, plane % a->ne[2], plane / a->ne[2]) = v;
            }
        }
    }
    for (int64_t i = 0; a->ne[1] > 1 && i < a->ne[0]; ++i) { AT(a, i, a->ne[1] / 2, 0, 0) = -HUGE_VAL; }
}

static void fill_all_masked(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    (void) r, (void) c, (void) k;
    for (int64_t i = 0; i < arr_n(a); ++i) { a->d[i] = -HUGE_VAL; }
}

static void soft_max_sink_cases( // sinks from `least` to six more
    const char * types, const char * shapes, const char * tag, const struct p_soft_max * p, fill_fn mask,
    double least) {
    struct op_test t;
    memset(&t, 0, sizeof t);
    t.types = types, t.shapes = shapes, t.tag = tag, t.p = p;
    t.n_in = p->sinks_at > 0 ? p->sinks_at + 1 : p->mask_at + 1;
    t.build = build_soft_max, t.inplace = inplace_soft_max, t.ref = ref_soft_max, t.max_nmse = 1e-6, t.reuse = 1;
    t.in[0].layouts = LAYOUT_OFFSET;
    if (p->mask_at > 0) { t.in[p->mask_at].fill = mask; }
    if (p->sinks_at > 0) { t.in[p->sinks_at].lo = least, t.in[p->sinks_at].hi = least + 6.0; }
    op_test_run(&t);
}

static void soft_max_cases(
    const char * types, const char * shapes, const char * tag, const struct p_soft_max * p, fill_fn mask) {
    soft_max_sink_cases(types, shapes, tag, p, mask, -3.0);
}

TEST(soft_max) {
    static const struct p_soft_max plain = { 1.0f, 0.0f, 0, 0 }, scaled = { 0.1f, 0.0f, 0, 0 };
    struct op_test t;
    memset(&t, 0, sizeof t);
    t.types = "F32 F16 BF16", t.shapes = "1 7 257,3 255,2,3,4", t.n_in = 1, t.p = &plain;
    t.build = build_soft_max_plain, t.inplace = inplace_soft_max_plain, t.ref = ref_soft_max, t.max_nmse = 1e-6,
    t.reuse = 1;
    t.in[0].layouts = LAYOUT_OFFSET, t.in[0].lo = -10.0, t.in[0].hi = 10.0;
    op_test_run(&t);
    soft_max_cases("F32", "15,15 16,16,3 31,16,2,3 1023,15 1024,16 256,1,1,5 0,4 5,0", "scale=1", &plain, NULL);
    soft_max_cases("F32 F16 BF16", "15,16,2,2 257,3", "scale=0.1", &scaled, NULL);
    soft_max_cases(
        "F32", "200001,1 1,70000 20008,5 8192,3 8196,3 12888,5 13824,2 13828,2 16384,2", "long", &scaled, NULL);
    if (test_full()) { soft_max_cases("F32", "643251,3 1024,1024,3,2 2,3,257,300", "full", &scaled, NULL); }
}

TEST(soft_max_mask) {
    static const struct p_soft_max p[] = { { 1.0f, 0.0f, 1, 0 }, { 0.1f, 0.0f, 1, 0 }, { 0.1f, 8.0f, 1, 0 } };
    static const char * const tag[] = { "plain", "scaled", "alibi" };
    for (int i = 0; i < 3; ++i) {
        soft_max_cases("F32 F32,F16>F32 F32,BF16>F32 F16 BF16,F32>BF16",
            "16,15|16,15 31,16,4|31,17 15,4,6,2|15,9,3,1 257,3,12,4|257,3,1,2", tag[i], &p[i], fill_mask);
        soft_max_cases("F32 F32,F16>F32", "1023,16,2|1023,16 1024,15,3,2|1024,15,3,2 1,1|1,1 2,1,5|2,1,5", tag[i],
            &p[i], fill_mask);
        soft_max_cases("F32 F32,F16>F32", "9,3,2|9,3", "all-masked", &p[i], fill_all_masked);
        soft_max_cases("F32 F16", "0,4,2|0,4 5,0,2|5,0 5,3,0|5,3 5,3,2,0|5,3", "empty", &p[i], fill_mask);
    }
}

TEST(soft_max_sinks) {
    static const struct p_soft_max sinks = { 0.5f, 0.0f, 0, 1 }, both = { 0.1f, 0.0f, 1, 2 },
                                   alibi = { 1.0f, 8.0f, 1, 2 };
    soft_max_cases("F32 F16,F32>F16 BF16,F32>BF16", "17,5,4,2|4 257,2|1 1,3,3|3", "no-mask", &sinks, NULL);
    soft_max_cases(
        "F32 F32,F16,F32>F32 F16,F16,F32>F16", "17,5,4,2|17,6,2,1|4 33,3,6|33,3|6", "mask", &both, fill_mask);
    soft_max_cases("F32 F32,F16,F32>F32", "17,5,4,2|17,6,2,1|4 33,3,6|33,3|6", "alibi", &alibi, fill_mask);
    soft_max_cases("F32 F32,F16,F32>F32", "17,5,4,2|17,6,2,1|4", "all-masked", &both, fill_all_masked);
    soft_max_sink_cases("F32 F32,F16,F32>F32 F16,F16,F32>F16", "20008,3,2|20008,3|2 12888,3,2|12888,3|2", "long", &both,
        fill_mask, 8.0);
    // such as the sum of a row does not hide
    soft_max_sink_cases("F32", "70008,5,3|3", "long-no-mask", &sinks, NULL, 8.0);
    soft_max_cases("F32", "0,4,2|2 5,0,2|2 5,3,0|0", "empty", &sinks, NULL);
    soft_max_cases("F32", "0,4,2|0,4|2 5,0,2|5,0|2 5,3,0|5,3|0", "empty-mask", &both, fill_mask);
}

// >>op:soft_max_back
static struct gcuda_tensor * build_soft_max_back(
    struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * params) {
    const struct p_soft_max * p = (const struct p_soft_max *) params;
    return gcuda_soft_max_ext_back(ctx, in[0], in[1], p->scale, p->max_bias);
}

static struct gcuda_tensor * inplace_soft_max_back(
    struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * params) {
    const struct p_soft_max * p = (const struct p_soft_max *) params;
    return gcuda_soft_max_ext_back_inplace(ctx, in[0], in[1], p->scale, p->max_bias);
}

TEST(soft_max_back) {
    static const struct p_soft_max p[] = { { 1.0f, 0.0f, 0, 0 }, { 0.1f, 0.0f, 0, 0 } };
    for (int i = 0; i < 2; ++i) {
        struct op_test t;
        memset(&t, 0, sizeof t);
        t.types = "F32 F16 BF16",
        t.shapes = "1,1|1,1 7,5|7,5 255,3,2|255,3,2 257,2,3,4|257,2,3,4 70001|70001 0,3|0,3 5,0|5,0",
        t.tag = i == 0 ? "scale=1" : "scale=0.1";
        t.n_in = 2, t.p = &p[i], t.build = build_soft_max_back, t.inplace = inplace_soft_max_back,
        t.ref = ref_soft_max_back;
        t.max_nmse = 1e-7, t.reuse = 3;
        t.in[1].lo = 0.0, t.in[1].hi = 1.0;
        op_test_run(&t);
    }
}

// ---------------------------------------------------------------------------------------- flash_attn_ext
static struct gcuda_tensor * build_flash_attn(
    struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * params) {
    const struct p_flash_attn * p = (const struct p_flash_attn *) params;
    struct gcuda_tensor * k = in[1];
    struct gcuda_tensor * v =
        p->dv > 0 ? gcuda_view_4d(ctx, k, p->dv, k->ne[1], k->ne[2], k->ne[3], k->nb[1], k->nb[2], k->nb[3], 0) : in[2];
    struct gcuda_tensor * y =
        gcuda_flash_attn_ext(ctx, in[0], k, v, optional(in, p->mask_at), p->scale, p->max_bias, p->softcap);
    if (y != NULL && p->sinks_at > 0) { gcuda_flash_attn_ext_add_sinks(y, in[p->sinks_at]); }
    if (y != NULL && p->is_f32) { gcuda_flash_attn_ext_set_prec(y, GCUDA_PREC_F32); }
    return y;
}

// Every third position holds NaN, and no token attends to it.
static void fill_stale(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    (void) r, (void) c, (void) k;
    FOR_ARR(a) {
        if (i1 % 3 == 1) { AT(a, i0, i1, i2, i3) = (double) NAN; }
    }
}

static void fill_mask_stale(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    (void) r, (void) c, (void) k;
    FOR_ARR(a) {
        if (i0 % 3 == 1) { AT(a, i0, i1, i2, i3) = -HUGE_VAL; }
    }
}

static void ref_flash_attn_unread(const struct op_case * c) { // the same with zeros in their place
    for (int k = 1; k < 3; ++k) {
        const struct arr * a = c->in[k];
        FOR_ARR(a) {
            if (i1 % 3 == 1) { AT(a, i0, i1, i2, i3) = 0.0; }
        }
    }
    ref_flash_attn(c);
}

static void flash_attn_cases(const char * types, const char * shapes, const char * tag, const struct p_flash_attn * p,
    unsigned layouts, fill_fn mask) {
    struct op_test t;
    memset(&t, 0, sizeof t);
    t.types = types, t.shapes = shapes, t.tag = tag, t.p = p;
    t.n_in = p->sinks_at > 0 ? p->sinks_at + 1 : p->mask_at > 0 ? p->mask_at + 1 : p->dv > 0 ? 2 : 3;
    t.build = build_flash_attn, t.ref = ref_flash_attn, t.max_nmse = 5e-4;
    t.in[0].layouts = t.in[1].layouts = layouts;
    if (p->dv == 0) { t.in[2].layouts = layouts; }
    if (p->mask_at > 0) { t.in[p->mask_at].fill = mask; }
    if (p->sinks_at > 0) { t.in[p->sinks_at].lo = -10.0, t.in[p->sinks_at].hi = 10.0; }
    op_test_run(&t);
}

// q, k, v, mask and sinks of one setting, as text
static const char * flash_attn_shape(char * out, size_t size, int dk, int dv, int n, int kv, int heads_kv, int group,
    int batch, const struct p_flash_attn * p) {
    int used = snprintf(out, size, "%d,%d,%d,%d|%d,%d,%d,%d|%d,%d,%d,%d", dk, n, heads_kv * group, batch, dk, kv,
        heads_kv, batch, dv, kv, heads_kv, batch);
    if (p->mask_at > 0) { used += snprintf(out + used, size - (size_t) used, "|%d,%d,1,%d", kv, n + n % 2, batch); }
    if (p->sinks_at > 0) { snprintf(out + used, size - (size_t) used, "|%d", heads_kv * group); }
    return out;
}

TEST(flash_attn_head_sizes) {
    static const int dims[][2] = { { 40, 40 }, { 64, 64 }, { 72, 72 }, { 80, 80 }, { 96, 96 }, { 112, 112 },
        { 128, 128 }, { 256, 256 }, { 576, 512 }, { 192, 128 }, { 1, 1 }, { 33, 17 } };
    char shape[160];
    for (size_t i = 0; i < sizeof dims / sizeof dims[0]; ++i) {
        const int dk = dims[i][0], dv = dims[i][1];
        const float scale = 1.0f / sqrtf((float) dk);
        const struct p_flash_attn p[] = {
            { scale, 0.0f, 0.0f, 0, 0, 0, 0 },
            { scale, 0.0f, 0.0f, 3, 0, 1, 0 },
            { scale, 8.0f, 0.0f, 3, 4, 0, 0 },
            { scale, 0.0f, 10.0f, 3, 0, 0, 0 },
            { scale, 0.0f, 0.0f, 0, 3, 0, 0 },
        };
        static const char * const tag[] = { "plain", "mask", "alibi-sinks", "softcap", "sinks" };
        for (int k = 0; k < 5; ++k) {
            const char * types = k == 0 || k == 4
                                     ? "F32 F32,F16,F16,F32>F32 F32,BF16,BF16,F32>F32"
                                     : "F32,F32,F32,F16,F32>F32 F32,F16,F16,F16,F32>F32 F32,BF16,BF16,F16,F32>F32";
            flash_attn_cases(types, flash_attn_shape(shape, sizeof shape, dk, dv, 3, 113, 2, 2, 1, &p[k]), tag[k],
                &p[k], 0, fill_mask);
        }
        flash_attn_cases("F32,F16,F16,F16,F32>F32",
            flash_attn_shape(shape, sizeof shape, dk, dv, 1, 70, 1, dk == 576 ? 20 : 4, 3, &p[2]), "decode", &p[2], 0,
            fill_mask);
    }
}

TEST(flash_attn_types) { // head sizes of whole blocks
    static const struct p_flash_attn plain = { 0.125f, 0.0f, 0.0f, 0, 0, 0, 0 },
                                     mask = { 0.125f, 8.0f, 0.0f, 3, 4, 0, 0 };
    static const char * const kinds[] = { "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL" };
    for (int i = 0; i < 9; ++i) {
        for (int j = 0; j < 9; ++j) {
            char types[64];
            snprintf(types, sizeof types, "F32,%s,%s,F16,F32>F32", kinds[i], kinds[j]);
            flash_attn_cases(types,
                i == j ? "96,3,4,2|96,113,2,2|96,113,2,2|113,3|4 64,1,4|64,17,1|64,17,1|17,1|4 "
                         "128,5,2|128,64,2|128,64,2|64,6|2"
                       : "64,2,4|64,35,2|64,35,2|35,2|4",
                "mask", &mask, i == j ? LAYOUT_ROWS : 0, fill_mask);
        }
        char types[64];
        snprintf(types, sizeof types, "F32,%s,%s>F32", kinds[i], kinds[i]);
        flash_attn_cases(types, "64,3,2|64,33,2|64,33,2", "plain", &plain, 0, NULL);
    }
}

TEST(flash_attn_any_types) { // every other type that has a float form, and queries of 16 bits
    static const struct p_flash_attn mask = { 0.0625f, 0.0f, 0.0f, 3, 0, 0, 0 };
    static const char * const kinds[] = { "F64", "MXFP4", "Q8_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_K",
        "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS" };
    const size_t n = sizeof kinds / sizeof kinds[0];
    for (size_t i = 0; i < n; ++i) {
        char types[128];
        snprintf(types, sizeof types, "F32,%s,%s,F16>F32", kinds[i], kinds[i]);
        flash_attn_cases(types, "256,1,4|256,35,2|256,35,2|35,1 256,5,2|256,33,1,1|256,33,1,1|33,5", "mask", &mask,
            LAYOUT_GAPS, fill_mask);
        snprintf(types, sizeof types, "F32,%s,F16,F16>F32 F32,F16,%s,F16>F32 F32,%s,%s,F16>F32", kinds[i], kinds[i],
            kinds[i], kinds[(i + 1) % n]);
        flash_attn_cases(types, "256,2,4|256,19,2|256,19,2|19,2", "mask", &mask, 0, fill_mask);
    }
    flash_attn_cases(
        "F16,F16,F16,F16>F32 BF16,F16,F16,F16>F32 F16,F32,F32,F16>F32 BF16,BF16,BF16,F16>F32 F16,Q8_0,Q4_0,F16>F32 "
        "BF16,Q4_K,F16,F16>F32 F32,F16,F16,BF16>F32 BF16,BF16,BF16,BF16>F32 F32,Q8_0,Q8_0,BF16>F32",
        "256,1,4|256,35,2|256,35,2|35,1 256,9,4,2|256,70,2,2|256,70,2,2|70,9", "q", &mask, LAYOUT_ROWS, fill_mask);
}

TEST(flash_attn_shapes) {
    static const struct p_flash_attn plain = { 0.2f, 0.0f, 0.0f, 0, 0, 0, 0 }, mask = { 0.2f, 0.0f, 0.0f, 3, 0, 0, 0 };
    static const struct p_flash_attn alibi = { 0.2f, 8.0f, 0.0f, 3, 4, 0, 0 };
    // one position, odd numbers of them, groups that are no power of two, k and v with other head counts, batches
    flash_attn_cases("F32 F32,F16,F16>F32",
        "40,1,1|40,1,1|40,1,1 40,3,12,2|40,17,1,2|40,17,1,2 64,2,20|64,5,1|64,5,1 40,35,4,3|40,19,4,3|40,19,2,3 "
        "8,70,2|8,300,2|8,300,2",
        "plain", &plain, LAYOUT_ROWS, NULL);
    flash_attn_cases("F32,F16,F16,F16>F32",
        "40,1,12|40,512,1|40,512,1|512,1 64,32,4,3|64,113,4,3|64,113,4,3|113,32,1,3 16,3,6,4|16,9,2,4|16,9,2,4|9,4,3,2",
        "mask", &mask, 0, fill_mask);
    flash_attn_cases("F32,F16,F16,F16,F32>F32",
        "16,5,12|16,33,3|16,33,3|33,5|12 16,5,6,2|16,33,6,2|16,33,6,2|33,5,1,2|6", "alibi", &alibi, 0, fill_mask);
    flash_attn_cases("F32,F16,F16,F16,F32>F32 F32,F32,F32,F16,F32>F32", "16,5,4|16,33,2|16,33,2|33,5|4", "all-masked",
        &alibi, 0, fill_all_masked);
    flash_attn_cases("F32,F16,F16,F16>F32", "16,5,4|16,33,2|16,33,2|33,5", "all-masked", &mask, 0, fill_all_masked);
    flash_attn_cases("F32", "16,0,4|16,33,2|16,33,2", "empty", &plain, 0, NULL);
    // without a position there is nothing to attend to: zeros
    flash_attn_cases("F32 F32,F16,F16>F32 F32,Q8_0,Q8_0>F32", "32,3,4,2|32,0,2,2|32,0,2,2 64,1,4|64,0,1|64,0,1",
        "no-positions", &plain, 0, NULL);
    flash_attn_cases("F32,F16,F16,F16,F32>F32", "64,3,4|64,0,2|64,0,2|0,3|4 64,1,8|64,0,1|64,0,1|0,1|8", "no-positions",
        &alibi, 0, fill_mask);
    if (test_full()) {
        flash_attn_cases("F32,F16,F16,F16,F32>F32 F32,Q8_0,Q8_0,F16,F32>F32",
            "128,35,16|128,1024,4|128,1024,4|1024,35|16 64,32,48,3|64,512,4,3|64,512,4,3|512,32,1,3|48", "full", &alibi,
            LAYOUT_ROWS, fill_mask);
    }
}

TEST(flash_attn_long) { // enough positions for several splits, for few queries and for many
    static const struct p_flash_attn alibi = { 0.1f, 8.0f, 0.0f, 3, 4, 0, 0 }, sinks = { 0.2f, 0.0f, 0.0f, 0, 3, 0, 0 };
    flash_attn_cases("F32,F16,F16,F16,F32>F32",
        "128,1,4|128,20000,1|128,20000,1|20000,1|4 64,3,2|64,33333,2|64,33333,2|33333,3|2", "few", &alibi, 0,
        fill_mask);
    flash_attn_cases("F32", "64,17,1|64,50001,1|32,50001,1|1", "many", &sinks, 0, NULL);
    flash_attn_cases(
        "F32,F16,F16,F16,F32>F32", "64,3,2|64,33333,2|64,33333,2|33333,3|2", "all-masked", &alibi, 0, fill_all_masked);
}

TEST(flash_attn_unread) { // positions that are masked are not read: NaN there must not show
    static const struct p_flash_attn p = { 0.2f, 0.0f, 0.0f, 3, 0, 0, 0 };
    struct op_test t;
    memset(&t, 0, sizeof t);
    t.types = "F32,F16,F16,F16>F32 F32", t.shapes = "40,3,4|40,37,2|40,37,2|37,3 17,1,3|17,5,1|17,5,1|5,1", t.p = &p,
    t.n_in = 4;
    t.build = build_flash_attn, t.ref = ref_flash_attn_unread, t.max_nmse = ERR_PRODUCT;
    t.in[1].fill = t.in[2].fill = fill_stale, t.in[3].fill = fill_mask_stale;
    op_test_run(&t);
}

TEST(flash_attn_v_inside_k) { // a compressed cache: a value is the first part of its key
    static const struct p_flash_attn p = { 0.05f, 0.0f, 0.0f, 2, 0, 0, 512 }, small = { 0.2f, 0.0f, 0.0f, 2, 0, 0, 32 };
    flash_attn_cases(
        "F32,F16,F16>F32 F32,F32,F16>F32", "576,3,4|576,64,1|64,3 576,1,20|576,33,1|33,1", "view", &p, 0, fill_mask);
    flash_attn_cases(
        "F32,Q8_0,F16>F32 F32,BF16,F16>F32", "64,3,4|64,64,2|64,3", "view", &small, LAYOUT_ROWS, fill_mask);
}

// A promise about the mask: rows have 41 entries at most.
static struct gcuda_tensor * build_flash_attn_promised(
    struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * params) {
    struct gcuda_tensor * y = build_flash_attn(ctx, in, params);
    if (y != NULL) { CHECK_OK(gcuda_flash_attn_ext_set_n_kv_max(y, 41)); }
    return y;
}
static void fill_mask_few(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    (void) c, (void) k;
    FOR_ARR(a) {
        AT(a, i0, i1, i2, i3) =
            (i0 + 7 * i1 + 3 * i2 + i3) % 101 != 5 || i1 == 1 ? -HUGE_VAL : rng_between(r, -2.0, 2.0);
    }
}

TEST(flash_attn_promised) { // from 4,096 positions on only rows that are seen are read
    static const struct p_flash_attn p = { 0.2f, 0.0f, 0.0f, 3, 0, 0, 0 };
    struct op_test t;
    memset(&t, 0, sizeof t);
    t.types = "F32,F16,F16,F16>F32 F32 F32,Q8_0,Q4_0,F16>F32",
    t.shapes =
        "64,3,4|64,4100,2|64,4100,2|4100,3 32,2,4,2|32,4096,1,2|32,4096,1,2|4096,2,4,1 64,3,2|64,300,1|64,300,1|300,3";
    t.p = &p, t.n_in = 4;
    t.build = build_flash_attn_promised, t.ref = ref_flash_attn, t.max_nmse = 5e-4;
    t.in[3].fill = fill_mask_few;
    op_test_run(&t);
}

// ---------------------------------------------------------------------------------------- flash_attn_ext_back
static struct gcuda_tensor * build_flash_attn_back(
    struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * params) {
    const struct p_flash_attn_back * p = (const struct p_flash_attn_back *) params;
    const struct p_flash_attn * a = &p->attn;
    struct gcuda_tensor * y = gcuda_flash_attn_ext_back(ctx, in[0], in[1], in[2], in[3], in[4],
        optional(in, a->mask_at), optional(in, a->sinks_at), a->scale, a->max_bias, a->softcap);
    if (y != NULL && a->is_f32) { CHECK_OK(gcuda_flash_attn_ext_set_prec(y, GCUDA_PREC_F32)); }
    return p->part == 4 || y == NULL
               ? y
               : gcuda_cont(ctx, gcuda_flash_attn_ext_back_part(ctx, y, (enum gcuda_flash_attn_grad) p->part));
}

// Each gradient by itself, for one may hide in the size of another.
static const char * judge_flash_attn_back(const struct op_case * c, const struct arr * got) {
    static const char * const names[] = { "q", "k", "v", "sinks" };
    static char text[160];
    const struct p_flash_attn_back * p = (const struct p_flash_attn_back *) c->p;
    const double bound = p->attn.is_f32 ? 1e-9 : 5e-4;
    int64_t at = 0;
    for (int i = 0; i < (p->attn.sinks_at > 0 ? 4 : 3); ++i) {
        const int64_t n = arr_n(c->in[i < 3 ? i : p->attn.sinks_at]);
        double error = 0.0, size = 0.0, most = 0.0;
        for (int64_t k = at; k < at + n && arr_n(got) == arr_n(c->out); ++k) {
            const double by = isfinite(got->d[k]) ? fabs(got->d[k] - c->out->d[k]) : HUGE_VAL;
            error += by * by;
            size += c->out->d[k] * c->out->d[k];
            most = fmax(most, by);
        }
        at += n;
        // few numbers have no rms to speak of: D of a query is the difference of larger ones, and a sink has little but
        // it
        const double rms = sqrt(size / (double) (n > 0 ? n : 1));
        if (error > bound * size || (n >= 32 && most > 16.0 * sqrt(bound) * rms)) {
            snprintf(text, sizeof text, "gradient of %s: NMSE %.3g, error of %.3g rms, bound %g", names[i],
                error / size, most / rms, bound);
            return text;
        }
    }
    return at == arr_n(got) && at == arr_n(c->out) ? NULL : "the gradients have another size";
}

static void flash_attn_back_part(const char * types, const char * shapes, const char * tag,
    const struct p_flash_attn * attn, unsigned layouts, fill_fn mask, int part) {
    const struct p_flash_attn_back p = { *attn, part };
    struct op_test t;
    memset(&t, 0, sizeof t);
    t.types = types, t.shapes = shapes, t.tag = tag, t.p = &p;
    t.n_in = attn->sinks_at > 0 ? attn->sinks_at + 1 : attn->mask_at > 0 ? attn->mask_at + 1 : 5;
    t.build = build_flash_attn_back, t.ref = ref_flash_attn_back, t.max_nmse = 5e-4;
    if (part == 4) { t.judge = judge_flash_attn_back; }
    for (int i = 0; i < 5; ++i) { t.in[i].layouts = layouts; }
    if (attn->mask_at > 0) { t.in[attn->mask_at].fill = mask; }
    if (attn->sinks_at > 0) { t.in[attn->sinks_at].lo = -3.0, t.in[attn->sinks_at].hi = 3.0; }
    op_test_run(&t);
}
static void flash_attn_back_cases(const char * types, const char * shapes, const char * tag,
    const struct p_flash_attn * p, unsigned layouts, fill_fn mask) {
    flash_attn_back_part(types, shapes, tag, p, layouts, mask, 4);
}

TEST(flash_attn_back_parts) {
    static const struct p_flash_attn all = { 0.3f, 8.0f, 4.0f, 5, 6, 0, 0 };
    static const char * const parts[] = { "q", "k", "v", "sinks" };
    for (int part = 0; part < 4; ++part) {
        flash_attn_back_part("F32,F16,F16,F32,F32,F16,F32>F32", "24,5,40|24,11,20|16,11,10|16,40,5|16,40,5|11,5|40",
            parts[part], &all, 0, fill_mask, part);
    }
}

// q, k, v, y, dy, mask and sinks of one setting, as text
static const char * flash_attn_back_shape(char * out, size_t size, int dk, int dv, int n, int kv, int heads_kv,
    int group, int batch, const struct p_flash_attn * p) {
    const int h = heads_kv * group;
    int used = snprintf(out, size, "%d,%d,%d,%d|%d,%d,%d,%d|%d,%d,%d,%d|%d,%d,%d,%d|%d,%d,%d,%d", dk, n, h, batch, dk,
        kv, heads_kv, batch, dv, kv, heads_kv, batch, dv, h, n, batch, dv, h, n, batch);
    if (p->mask_at > 0) { used += snprintf(out + used, size - (size_t) used, "|%d,%d,1,%d", kv, n + n % 2, batch); }
    if (p->sinks_at > 0) { snprintf(out + used, size - (size_t) used, "|%d", h); }
    return out;
}

TEST(flash_attn_back_head_sizes) {
    static const int dims[][2] = { { 64, 64 }, { 128, 128 }, { 40, 40 }, { 80, 80 }, { 256, 256 }, { 576, 512 },
        { 192, 128 }, { 1, 1 }, { 33, 17 } };
    char shape[256];
    for (size_t i = 0; i < sizeof dims / sizeof dims[0]; ++i) {
        const int dk = dims[i][0], dv = dims[i][1];
        const float scale = 1.0f / sqrtf((float) dk);
        const struct p_flash_attn p[] = { { scale, 0.0f, 0.0f, 0, 0, 0, 0 }, { scale, 0.0f, 0.0f, 5, 0, 1, 0 },
            { scale, 8.0f, 0.0f, 5, 6, 0, 0 }, { 3.0f * scale, 0.0f, 2.0f, 5, 0, 0, 0 },
            { scale, 0.0f, 0.0f, 0, 5, 0, 0 } };
        static const char * const tag[] = { "plain", "mask", "alibi-sinks", "softcap", "sinks" };
        for (int k = 0; k < 5; ++k) {
            const char * types = k == 0 || k == 4 ? "F32 F32,F16,F16,F32>F32 F32,BF16,BF16,F32>F32"
                                                  : "F32,F32,F32,F32,F32,F16,F32>F32 F32,F16,F16,F32,F32,F16,F32>F32 "
                                                    "F32,BF16,BF16,F32,F32,F16,F32>F32";
            flash_attn_back_cases(types,
                flash_attn_back_shape(shape, sizeof shape, dk, dv, i < 2 ? 34 : 5, i < 2 ? 67 : 19, 2, 2, 1, &p[k]),
                tag[k], &p[k], 0, fill_mask);
        }
    }
}

TEST(flash_attn_back_shapes) {
    static const struct p_flash_attn plain = { 0.2f, 0.0f, 0.0f, 0, 0, 0, 0 }, mask = { 0.2f, 0.0f, 0.0f, 5, 0, 0, 0 };
    static const struct p_flash_attn alibi = { 0.2f, 8.0f, 0.0f, 5, 6, 0, 0 },
                                     exact = { 0.125f, 8.0f, 5.0f, 5, 6, 1, 0 };
    // one position, odd numbers of them, groups that are no power of two, k and v with other head counts, batches
    flash_attn_back_cases("F32 F16,BF16,F16,BF16,F16>F32",
        "40,1,1|40,1,1|40,1,1|40,1,1|40,1,1 40,3,12,2|40,17,1,2|40,17,1,2|40,12,3,2|40,12,3,2 "
        "64,2,20|64,5,1|64,5,1|64,20,2|64,20,2 "
        "40,35,4,2|40,19,4,2|40,19,2,2|40,4,35,2|40,4,35,2 128,33,3|128,65,1|128,65,1|128,3,33|128,3,33",
        "plain", &plain, LAYOUT_ROWS, NULL);
    flash_attn_back_cases("F32,F16,F16,F32,F32,F16>F32 F32,F32,F32,F32,F32,F32>F32",
        "64,3,6,4|64,9,2,4|64,9,2,4|64,6,3,4|64,6,3,4|9,4,3,2 "
        "128,33,2,2|128,64,1,2|128,64,1,2|128,2,33,2|128,2,33,2|64,34,2,2",
        "mask", &mask, LAYOUT_ROWS, fill_mask);
    flash_attn_back_cases("F32,F16,F16,F32,F32,F16,F32>F32",
        "64,5,12|64,33,3|64,33,3|64,12,5|64,12,5|33,5|12 16,5,6,2|16,33,6,2|16,33,3,2|16,6,5,2|16,6,5,2|33,5,1,2|6",
        "alibi", &alibi, 0, fill_mask);
    flash_attn_back_cases("F32,F16,F16,F32,F32,F16,F32>F32",
        "64,5,4|64,33,2|64,33,2|64,4,5|64,4,5|33,5|4 24,5,4|24,33,2|24,33,2|24,4,5|24,4,5|33,5|4", "exact", &exact, 0,
        fill_mask);
    flash_attn_back_cases("F32,F16,F16,F32,F32,F16,F32>F32 F32,F32,F32,F32,F32,F16,F32>F32",
        "64,5,4|64,33,2|64,33,2|64,4,5|64,4,5|33,5|4 16,5,4|16,33,2|16,33,2|16,4,5|16,4,5|33,5|4", "all-masked", &alibi,
        0, fill_all_masked);
    flash_attn_back_cases(
        "F32", "16,0,4|16,33,2|16,33,2|16,4,0|16,4,0 64,0,4|64,33,2|64,33,2|64,4,0|64,4,0", "empty", &plain, 0, NULL);
    flash_attn_back_cases("F32 F32,F16,F16,F32>F32",
        "32,3,4,2|32,0,2,2|32,0,2,2|32,4,3,2|32,4,3,2 64,1,4|64,0,1|64,0,1|64,4,1|64,4,1", "no-positions", &plain, 0,
        NULL);
    flash_attn_back_cases("F32,F16,F16,F32,F32,F16,F32>F32", "64,3,4|64,0,2|64,0,2|64,4,3|64,4,3|0,3|4", "no-positions",
        &alibi, 0, fill_mask);
    if (test_full()) {
        flash_attn_back_cases("F32,F16,F16,F32,F32,F16,F32>F32",
            "128,200,16|128,512,4|128,512,4|128,16,200|128,16,200|512,200|16 "
            "64,300,12,2|64,257,4,2|64,257,4,2|64,12,300,2|64,12,300,2|257,300,1,2|12",
            "full", &alibi, LAYOUT_ROWS, fill_mask);
    }
}

static void ref_flash_attn_back_unread(const struct op_case * c) { // the same with zeros in their place
    for (int k = 1; k < 3; ++k) {
        const struct arr * a = c->in[k];
        FOR_ARR(a) {
            if (i1 % 3 == 1) { AT(a, i0, i1, i2, i3) = 0.0; }
        }
    }
    ref_flash_attn_back(c);
}

TEST(flash_attn_back_unread) { // NaN where no token looks must not show
    static const struct p_flash_attn_back p = { { 0.2f, 0.0f, 0.0f, 5, 0, 0, 0 }, 4 };
    struct op_test t;
    memset(&t, 0, sizeof t);
    t.types = "F32,F16,F16,F32,F32,F16>F32 F32", t.p = &p, t.n_in = 6;
    t.shapes = "40,3,2|40,37,2|40,37,2|40,2,3|40,2,3|37,3 64,3,4|64,37,2|64,37,2|64,4,3|64,4,3|37,3 "
               "128,9,2|128,70,1|128,70,1|128,2,9|128,2,9|70,9";
    t.build = build_flash_attn_back, t.ref = ref_flash_attn_back_unread, t.judge = judge_flash_attn_back,
    t.max_nmse = 5e-4;
    t.in[1].fill = t.in[2].fill = fill_stale, t.in[5].fill = fill_mask_stale;
    op_test_run(&t);
}

// Gradients as small as those of a mean over many tokens, and as large as a scaled loss makes them.
static void fill_tiny(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    (void) c, (void) k;
    for (int64_t i = 0; i < arr_n(a); ++i) { a->d[i] = 1e-20 * (rng_between(r, -1.0, 1.0)); }
}
static void fill_huge(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    (void) c, (void) k;
    for (int64_t i = 0; i < arr_n(a); ++i) { a->d[i] = 1e12 * (rng_between(r, -1.0, 1.0)); }
}

TEST(flash_attn_back_ranges) {
    static const fill_fn fills[] = { fill_tiny, fill_huge };
    for (int i = 0; i < 2; ++i) {
        static const struct p_flash_attn_back p = { { 0.2f, 0.0f, 0.0f, 0, 0, 0, 0 }, 4 };
        struct op_test t;
        memset(&t, 0, sizeof t);
        t.types = "F32,F16,F16,F32,F32>F32 F32", t.p = &p, t.n_in = 5, t.tag = i == 0 ? "tiny" : "huge";
        t.shapes = "64,9,2|64,37,1|64,37,1|64,2,9|64,2,9 128,9,2|128,40,2|128,40,2|128,2,9|128,2,9 "
                   "24,9,2|24,7,2|24,7,2|24,2,9|24,2,9";
        t.build = build_flash_attn_back, t.ref = ref_flash_attn_back, t.judge = judge_flash_attn_back,
        t.max_nmse = 5e-4;
        t.in[4].fill = fills[i];
        op_test_run(&t);
    }
}

// ---------------------------------------------------------------------------------------- rope
static struct gcuda_tensor * build_rope_as(
    struct gcuda_context * ctx, struct gcuda_tensor ** in, const struct p_rope * p, bool inplace) {
    struct gcuda_tensor * f = in[2];
    int s[4] = { p->sections[0], p->sections[1], p->sections[2], p->sections[3] };
#define ROPE_TAIL \
    p->mode, p->n_ctx_orig, p->freq_base, p->freq_scale, p->ext_factor, p->attn_factor, p->beta_fast, p->beta_slow
    if ((p->mode & 8) != 0) {
        return p->is_back ? gcuda_rope_multi_back(ctx, in[0], in[1], f, p->n_dims, s, ROPE_TAIL)
               : inplace  ? gcuda_rope_multi_inplace(ctx, in[0], in[1], f, p->n_dims, s, ROPE_TAIL)
                          : gcuda_rope_multi(ctx, in[0], in[1], f, p->n_dims, s, ROPE_TAIL);
    }
    return p->is_back ? gcuda_rope_ext_back(ctx, in[0], in[1], f, p->n_dims, ROPE_TAIL)
           : inplace  ? gcuda_rope_ext_inplace(ctx, in[0], in[1], f, p->n_dims, ROPE_TAIL)
                      : gcuda_rope_ext(ctx, in[0], in[1], f, p->n_dims, ROPE_TAIL);
#undef ROPE_TAIL
}

static struct gcuda_tensor * build_rope(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    return build_rope_as(ctx, in, (const struct p_rope *) p, false);
}

static struct gcuda_tensor * inplace_rope(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    return build_rope_as(ctx, in, (const struct p_rope *) p, true);
}

static void fill_positions(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    (void) c, (void) k;
    fill_below(r, a, 8192);
}

// The third source is read by the builder only if there is one, so the harness must leave it NULL.
static void rope_cases(const char * types, const char * shapes, const char * tag, const struct p_rope * p, bool factors,
    unsigned layouts) {
    struct op_test t;
    memset(&t, 0, sizeof t);
    t.types = types, t.shapes = shapes, t.tag = tag, t.p = p, t.n_in = factors ? 3 : 2;
    t.build = build_rope, t.inplace = p->is_back ? NULL : inplace_rope, t.ref = ref_rope, t.max_nmse = 1e-7,
    t.reuse = 1;
    t.in[0].layouts = layouts;
    t.in[1].fill = fill_positions;
    t.in[2].lo = 0.9, t.in[2].hi = 1.1;
    op_test_run(&t);
}

static struct p_rope rope_params(
    int mode, int n_dims, int n_ctx, float scale, float ext, float attn, float fast, float slow, bool back) {
    struct p_rope p = { n_dims, mode, n_ctx, 10000.0f, scale, ext, attn, fast, slow, { 0, 0, 0, 0 }, back };
    if (mode == 24) {
        p.sections[0] = p.sections[1] = n_dims / 2 > 1 ? n_dims / 2 : 1;
    } else if ((mode & 8) != 0) {
        p.sections[0] = p.sections[1] = p.sections[2] = n_dims / 6 > 1 ? n_dims / 6 : 1;
    }
    return p;
}

// One mode with one row shape: plain, then every way in which YaRN and the factors change the angle.
static void rope_mode(int mode, int d, int n_dims, const char * rest, int n_tokens) {
    char shape[96], tag[96];
    static const struct {
        const char * tag;
        int n_ctx;
        float scale, ext, attn, fast, slow;
    } ways[] = {
        { "plain", 0, 1.0f, 0.0f, 1.0f, 0.0f, 0.0f },
        { "scaled", 0, 1.4245f, 0.0f, 1.4245f, 0.0f, 0.0f },
        { "yarn-inf", 0, 1.4245f, 0.7465f, 1.4245f, 1.0f, 1.0f }, // no context length: the ramp's end is at -inf
        { "yarn", 4096, 0.25f, 1.0f, 1.0f, 32.0f, 1.0f },
        { "yarn-part", 512, 0.5f, 0.7465f, 1.4245f, 32.0f, 1.0f },
    };
    for (int i = 0; i < 5; ++i) {
        for (int back = 0; back < 2; ++back) {
            const struct p_rope p = rope_params(mode, n_dims, ways[i].n_ctx, ways[i].scale, ways[i].ext, ways[i].attn,
                ways[i].fast, ways[i].slow, back);
            snprintf(shape, sizeof shape, "%d,%s|%d|%d", d, rest, mode & 8 ? 4 * n_tokens : n_tokens,
                mode == 24 ? n_dims : n_dims / 2);
            snprintf(tag, sizeof tag, "mode=%d,n=%d,%s%s", mode, n_dims, ways[i].tag, back ? ",back" : "");
            const bool wide = i == 0 || i == 3;
            rope_cases(wide ? "F32,I32>F32 F16,I32>F16 BF16,I32>BF16" : "F32,I32>F32", shape, tag, &p, false,
                !wide    ? 0
                : i == 0 ? LAYOUT_ANY
                         : LAYOUT_ROWS);
            strcat(tag, ",factors");
            rope_cases(wide ? "F32,I32,F32>F32 F16,I32,F32>F16" : "F32,I32,F32>F32", shape, tag, &p, true, 0);
        }
    }
}

TEST(rope_normal) {
    rope_mode(0, 128, 128, "3,5", 5);
    rope_mode(0, 80, 20, "2,3,3", 3);
    rope_mode(0, 16, 16, "1,2", 2);
}

TEST(rope_neox) {
    rope_mode(2, 64, 64, "3,5", 5);
    rope_mode(2, 80, 32, "2,3,3", 3);
    rope_mode(2, 16, 2, "1,2", 2);
}

TEST(rope_mrope) {
    rope_mode(8, 128, 128, "3,5", 5);
    rope_mode(8, 80, 20, "2,3,3", 3);
}

TEST(rope_imrope) {
    rope_mode(40, 128, 128, "3,5", 5);
    rope_mode(40, 80, 20, "2,3,3", 3);
}

TEST(rope_vision) {
    rope_mode(24, 128, 64, "3,5", 5);
    rope_mode(24, 80, 40, "2,3,3", 3);
}

TEST(rope_of_no_dimension) { // a copy, whatever the frequencies and sections, in every mode
    static const int modes[] = { 0, 2, 8, 40, 24 };
    for (int i = 0; i < 10; ++i) {
        char tag[64];
        struct p_rope p = rope_params(modes[i / 2], 0, 0, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, i % 2 != 0);
        p.freq_base = 0.0f;
        memset(p.sections, 0, sizeof p.sections);
        snprintf(tag, sizeof tag, "mode=%d,n=0%s", p.mode, p.is_back ? ",back" : "");
        rope_cases("F32,I32>F32 F16,I32>F16 BF16,I32>BF16", (p.mode & 8) != 0 ? "24,2,3,2|12" : "24,2,3,2|3", tag, &p,
            false, LAYOUT_ANY);
        strcat(tag, ",factors");
        rope_cases("F32,I32,F32>F32", (p.mode & 8) != 0 ? "64,70,3|12|1" : "64,70,3|3|1", tag, &p, true, 0);
    }
}

// Sections that do not fill the pairs repeat, and what belongs to none of the first three reads the fourth plane.
TEST(rope_sections) {
    static const int modes[] = { 8, 40, 24 };
    static const int sections[][4] = { { 3, 2, 1, 2 }, { 1, 0, 0, 0 }, { 0, 4, 0, 0 }, { 4, 4, 4, 4 }, { 8, 3, 5, 0 },
        { 5, 6, 2, 3 } };
    for (int m = 0; m < 3; ++m) {
        for (int i = 0; i < 6; ++i) {
            char tag[64];
            struct p_rope p = rope_params(modes[m], 32, 0, 1.0f, 0.0f, 1.0f, 0.0f, 0.0f, false);
            memcpy(p.sections, sections[i], sizeof p.sections);
            snprintf(tag, sizeof tag, "mode=%d,s=%d.%d.%d.%d", modes[m], p.sections[0], p.sections[1], p.sections[2],
                p.sections[3]);
            rope_cases("F32,I32>F32 F16,I32>F16", "64,2,3|12", tag, &p, false, 0);
        }
    }
}

static struct gcuda_tensor * build_rope_short(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    return gcuda_rope(ctx, in[0], in[1], ((const struct p_rope *) p)->n_dims, ((const struct p_rope *) p)->mode);
}

TEST(rope) { // the short constructor, many rows, and dimensions that the grid of a device may not count
    const struct p_rope p = rope_params(2, 16, 0, 1.0f, 0.0f, 1.0f, 0.0f, 0.0f, false);
    struct op_test t;
    memset(&t, 0, sizeof t);
    t.types = "F32,I32>F32 F16,I32>F16", t.n_in = 2, t.p = &p, t.build = build_rope_short, t.ref = ref_rope,
    t.max_nmse = 1e-7;
    t.shapes = test_full() ? "16,128,600|600 18,2,3,70000|3 128,32,512|512"
                           : "16,32,20|20 18,2,3,50|3 16,130,2|2 64,0,3|3 64,3,0|0 64,128,17|17";
    t.in[1].fill = fill_positions;
    op_test_run(&t);
}

#endif
