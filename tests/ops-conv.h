// Convolutions (all are correlations with zero padding), pooling and resampling: references in float64 and the
// tables of cases. Part of test-ops.c.
#ifndef OPS_CONV_H
#define OPS_CONV_H

#include "test-ops.h"

// ---------------------------------------------------------------------------------------------------- references

struct p_conv {
    int s0, s1, p0, p1, d0, d1;
    int is_2d;
    enum gcuda_type type; // of an im2col result
    int64_t ne[4];        // of an im2col_back result
    int gap;              // the image is a view that leaves out this many channels and images at the end
};

static int64_t ref_conv_out(int64_t in, int64_t k, int64_t s, int64_t p, int64_t d) {
    return (in + 2 * p - d * (k - 1) - 1) / s + 1;
}

// zero outside of the image, along the first three dimensions
static double ref_pixel(const struct arr * b, int64_t x, int64_t y, int64_t z, int64_t i3) {
    const bool is_inside = x >= 0 && x < b->ne[0] && y >= 0 && y < b->ne[1] && z >= 0 && z < b->ne[2];
    return is_inside ? AT(b, x, y, z, i3) : 0.0;
}

// >>op:im2col   sources: kernel (its shape only), image
static void ref_im2col_2d(const struct op_case * c) {
    const struct p_conv * p = (const struct p_conv *) c->p;
    const int64_t kw_n = c->in[0]->ne[0], kh_n = c->in[0]->ne[1];
    const struct arr * b = c->in[1];
    struct arr * y = c->out;
    arr_new(y, (b->ne[2] - p->gap) * kh_n * kw_n, ref_conv_out(b->ne[0], kw_n, p->s0, p->p0, p->d0),
        ref_conv_out(b->ne[1], kh_n, p->s1, p->p1, p->d1), b->ne[3] - p->gap);
    for (int64_t i = 0; i < arr_n(y); ++i) {
        const int64_t col = i % y->ne[0];
        const int64_t ow = i / y->ne[0] % y->ne[1];
        const int64_t oh = i / y->ne[0] / y->ne[1] % y->ne[2];
        const int64_t n = i / y->ne[0] / y->ne[1] / y->ne[2];
        const int64_t kw = col % kw_n, kh = col / kw_n % kh_n, ic = col / kw_n / kh_n;
        y->d[i] = ref_pixel(b, ow * p->s0 + kw * p->d0 - p->p0, oh * p->s1 + kh * p->d1 - p->p1, ic, n);
    }
}

static void ref_im2col_1d(const struct op_case * c) {
    const struct p_conv * p = (const struct p_conv *) c->p;
    const int64_t kw_n = c->in[0]->ne[0];
    struct arr * y = c->out;
    arr_new(y, c->in[1]->ne[1] * kw_n, ref_conv_out(c->in[1]->ne[0], kw_n, p->s0, p->p0, p->d0), c->in[1]->ne[2], 1);
    for (int64_t n = 0; n < y->ne[2]; ++n) {
        for (int64_t ow = 0; ow < y->ne[1]; ++ow) {
            for (int64_t col = 0; col < y->ne[0]; ++col) {
                AT(y, col, ow, n, 0) = ref_pixel(c->in[1], ow * p->s0 + col % kw_n * p->d0 - p->p0, col / kw_n, n, 0);
            }
        }
    }
}

static void ref_im2col(const struct op_case * c) {
    if (((const struct p_conv *) c->p)->is_2d) {
        ref_im2col_2d(c);
    } else {
        ref_im2col_1d(c);
    }
}

// >>op:im2col_back   sources: gradient of the columns, kernel (its shape only); scatters what im2col gathered
static void ref_im2col_back(const struct op_case * c) {
    const struct p_conv * p = (const struct p_conv *) c->p;
    const struct arr * dy = c->in[0];
    struct arr * y = c->out;
    const int64_t kw_n = c->in[1]->ne[0], kh_n = p->is_2d ? c->in[1]->ne[1] : 1;
    const int64_t oh_n = p->is_2d ? dy->ne[2] : 1, n_images = p->is_2d ? dy->ne[3] : dy->ne[2];
    arr_new(y, p->ne[0], p->ne[1], p->ne[2], p->ne[3]);
    for (int64_t i = 0; i < dy->ne[0] * dy->ne[1] * oh_n * n_images; ++i) {
        const int64_t col = i % dy->ne[0];
        const int64_t ow = i / dy->ne[0] % dy->ne[1];
        const int64_t oh = i / dy->ne[0] / dy->ne[1] % oh_n;
        const int64_t n = i / dy->ne[0] / dy->ne[1] / oh_n;
        const int64_t x = ow * p->s0 + col % kw_n * p->d0 - p->p0;
        const int64_t row = p->is_2d ? oh * p->s1 + col / kw_n % kh_n * p->d1 - p->p1 : 0;
        const int64_t ic = col / kw_n / kh_n;
        if (x < 0 || x >= y->ne[0]) { continue; }
        if (!p->is_2d) {
            AT(y, x, ic, n, 0) += dy->d[i];
        } else if (row >= 0 && row < y->ne[1]) {
            AT(y, x, row, ic, n) += dy->d[i];
        }
    }
}

// >>op:im2col_3d   sources: kernel (its shape only), volume [W, H, D, N*IC]
struct p_conv_3d {
    int ic;
    int s[3], p[3], d[3];
    enum gcuda_type type;
};

static double ref_voxel(
    const struct p_conv_3d * p, const struct arr * b, const int64_t * o, const int64_t * k, int64_t i3) {
    return ref_pixel(b, o[0] * p->s[0] + k[0] * p->d[0] - p->p[0], o[1] * p->s[1] + k[1] * p->d[1] - p->p[1],
        o[2] * p->s[2] + k[2] * p->d[2] - p->p[2], i3);
}

static void ref_im2col_3d(const struct op_case * c) {
    const struct p_conv_3d * p = (const struct p_conv_3d *) c->p;
    const int64_t * ke = c->in[0]->ne;
    const struct arr * b = c->in[1];
    struct arr * y = c->out;
    const int64_t od_n = ref_conv_out(b->ne[2], ke[2], p->s[2], p->p[2], p->d[2]);
    arr_new(y, ke[0] * ke[1] * ke[2] * p->ic, ref_conv_out(b->ne[0], ke[0], p->s[0], p->p[0], p->d[0]),
        ref_conv_out(b->ne[1], ke[1], p->s[1], p->p[1], p->d[1]), od_n * (b->ne[3] / p->ic));
    for (int64_t i3 = 0; i3 < y->ne[3]; ++i3) {
        for (int64_t oh = 0; oh < y->ne[2]; ++oh) {
            for (int64_t ow = 0; ow < y->ne[1]; ++ow) {
                for (int64_t col = 0; col < y->ne[0]; ++col) {
                    const int64_t k[3] = { col % ke[0], col / ke[0] % ke[1], col / ke[0] / ke[1] % ke[2] };
                    const int64_t o[3] = { ow, oh, i3 % od_n };
                    const int64_t ic = col / (ke[0] * ke[1] * ke[2]);
                    AT(y, col, ow, oh, i3) = ref_voxel(p, b, o, k, i3 / od_n * p->ic + ic);
                }
            }
        }
    }
}

// >>op:conv_3d   kernel [KW, KH, KD, IC*OC], volume [W, H, D, IC*N], result [OW, OH, OD, OC*N]
static void ref_conv_3d(const struct op_case * c) {
    const struct p_conv_3d * p = (const struct p_conv_3d *) c->p;
    const struct arr * a = c->in[0];
    const struct arr * b = c->in[1];
    struct arr * y = c->out;
    const int64_t oc_n = a->ne[3] / p->ic;
    arr_new(y, ref_conv_out(b->ne[0], a->ne[0], p->s[0], p->p[0], p->d[0]),
        ref_conv_out(b->ne[1], a->ne[1], p->s[1], p->p[1], p->d[1]),
        ref_conv_out(b->ne[2], a->ne[2], p->s[2], p->p[2], p->d[2]), oc_n * (b->ne[3] / p->ic));
    for (int64_t i = 0; i < y->ne[0] * y->ne[1] * y->ne[2] * y->ne[3]; ++i) {
        const int64_t o[3] = { i % y->ne[0], i / y->ne[0] % y->ne[1], i / y->ne[0] / y->ne[1] % y->ne[2] };
        const int64_t i3 = i / (y->ne[0] * y->ne[1] * y->ne[2]);
        double sum = 0.0;
        for (int64_t j = 0; j < a->ne[0] * a->ne[1] * a->ne[2] * p->ic; ++j) {
            const int64_t k[3] = { j % a->ne[0], j / a->ne[0] % a->ne[1], j / a->ne[0] / a->ne[1] % a->ne[2] };
            const int64_t ic = j / (a->ne[0] * a->ne[1] * a->ne[2]);
            sum += AT(a, k[0], k[1], k[2], i3 % oc_n * p->ic + ic) * ref_voxel(p, b, o, k, i3 / oc_n * p->ic + ic);
        }
        y->d[i] = sum;
    }
}

// >>op:conv_2d   one output element of channels [ic0, ic0 + n_ic), kernel channel index offset 0
static double ref_conv_dot(const struct p_conv * p, const struct arr * a, const struct arr * b, const int64_t * o,
    int64_t oc, int64_t ic0, int64_t n_ic) {
    double sum = 0.0;
    for (int64_t ic = 0; ic < n_ic; ++ic) {
        for (int64_t kh = 0; kh < a->ne[1]; ++kh) {
            for (int64_t kw = 0; kw < a->ne[0]; ++kw) {
                sum += AT(a, kw, kh, ic, oc) * ref_pixel(b, o[0] * p->s0 + kw * p->d0 - p->p0,
                                                   o[1] * p->s1 + kh * p->d1 - p->p1, ic0 + ic, o[2]);
            }
        }
    }
    return sum;
}

static void ref_conv_2d_shape(const struct op_case * c, int64_t channels) {
    const struct p_conv * p = (const struct p_conv *) c->p;
    const int64_t * a = c->in[0]->ne;
    const int64_t * b = c->in[1]->ne;
    arr_new(c->out, ref_conv_out(b[0], a[0], p->s0, p->p0, p->d0), ref_conv_out(b[1], a[1], p->s1, p->p1, p->d1),
        channels, b[3]);
}

static void ref_conv_2d(const struct op_case * c) {
    const struct p_conv * p = (const struct p_conv *) c->p;
    const struct arr * y = c->out;
    ref_conv_2d_shape(c, c->in[0]->ne[3]);
    for (int64_t i = 0; i < y->ne[0] * y->ne[1] * y->ne[2] * y->ne[3]; ++i) {
        const int64_t o[3] = { i % y->ne[0], i / y->ne[0] % y->ne[1], i / y->ne[0] / y->ne[1] / y->ne[2] };
        y->d[i] = ref_conv_dot(p, c->in[0], c->in[1], o, i / y->ne[0] / y->ne[1] % y->ne[2], 0, c->in[1]->ne[2]);
    }
}

// >>op:conv_2d_dw   every channel has its own kernel [KW, KH, 1, C]
static void ref_conv_2d_dw(const struct op_case * c) {
    const struct p_conv * p = (const struct p_conv *) c->p;
    const struct arr * y = c->out;
    ref_conv_2d_shape(c, c->in[1]->ne[2]);
    for (int64_t i = 0; i < y->ne[0] * y->ne[1] * y->ne[2] * y->ne[3]; ++i) {
        const int64_t o[3] = { i % y->ne[0], i / y->ne[0] % y->ne[1], i / y->ne[0] / y->ne[1] / y->ne[2] };
        const int64_t ch = i / y->ne[0] / y->ne[1] % y->ne[2];
        y->d[i] = ref_conv_dot(p, c->in[0], c->in[1], o, ch, ch, 1);
    }
}

// >>op:conv_1d   kernel [K, IC, OC], signal [L, IC, N], result [OW, OC, N]; depthwise: kernel [K, 1, C], result [OW, C,
//                1]
static double ref_conv_1d_dot(
    const struct p_conv * p, const struct op_case * c, int64_t ow, int64_t oc, int64_t ic0, int64_t n) {
    const struct arr * a = c->in[0];
    double sum = 0.0;
    for (int64_t ic = 0; ic < a->ne[1]; ++ic) {
        for (int64_t k = 0; k < a->ne[0]; ++k) {
            sum += AT(a, k, ic, oc, 0) * ref_pixel(c->in[1], ow * p->s0 + k * p->d0 - p->p0, ic0 + ic, n, 0);
        }
    }
    return sum;
}

static void ref_conv_1d(const struct op_case * c) {
    const struct p_conv * p = (const struct p_conv *) c->p;
    struct arr * y = c->out;
    arr_new(
        y, ref_conv_out(c->in[1]->ne[0], c->in[0]->ne[0], p->s0, p->p0, p->d0), c->in[0]->ne[2], c->in[1]->ne[2], 1);
    for (int64_t i = 0; i < y->ne[0] * y->ne[1] * y->ne[2]; ++i) {
        const int64_t ow = i % y->ne[0], oc = i / y->ne[0] % y->ne[1], n = i / y->ne[0] / y->ne[1];
        y->d[i] = ref_conv_1d_dot(p, c, ow, oc, 0, n);
    }
}

static void ref_conv_1d_dw(const struct op_case * c) {
    const struct p_conv * p = (const struct p_conv *) c->p;
    struct arr * y = c->out;
    arr_new(y, ref_conv_out(c->in[1]->ne[0], c->in[0]->ne[0], p->s0, p->p0, p->d0), c->in[0]->ne[2], 1, 1);
    for (int64_t i = 0; i < y->ne[0] * y->ne[1]; ++i) {
        const int64_t ow = i % y->ne[0], ch = i / y->ne[0];
        y->d[i] = ref_conv_1d_dot(p, c, ow, ch, ch, 0);
    }
}

// >>op:conv_transpose_1d   kernel [K, OC, IC], signal [L, IC]; p->s0 is the stride
static void ref_conv_transpose_1d(const struct op_case * c) {
    const struct p_conv * p = (const struct p_conv *) c->p;
    const struct arr * a = c->in[0];
    const struct arr * b = c->in[1];
    struct arr * y = c->out;
    arr_new(y, (b->ne[0] - 1) * p->s0 + a->ne[0], a->ne[1], 1, 1);
    for (int64_t ic = 0; ic < a->ne[2]; ++ic) {
        for (int64_t oc = 0; oc < a->ne[1]; ++oc) {
            for (int64_t l = 0; l < b->ne[0]; ++l) {
                for (int64_t k = 0; k < a->ne[0]; ++k) {
                    AT(y, l * p->s0 + k, oc, 0, 0) += AT(a, k, oc, ic, 0) * AT(b, l, ic, 0, 0);
                }
            }
        }
    }
}

// >>op:conv_transpose_2d   kernel [KW, KH, OC, IC], image [W, H, IC, N]
static void ref_stamp(
    const struct arr * a, const struct arr * y, int64_t oc, int64_t ic, const int64_t * at, double v) {
    for (int64_t kh = 0; kh < a->ne[1]; ++kh) {
        for (int64_t kw = 0; kw < a->ne[0]; ++kw) {
            AT(y, at[0] + kw, at[1] + kh, oc, at[2]) += AT(a, kw, kh, oc, ic) * v;
        }
    }
}

static void ref_conv_transpose_2d(const struct op_case * c) {
    const struct p_conv * p = (const struct p_conv *) c->p;
    const struct arr * b = c->in[1];
    struct arr * y = c->out;
    arr_new(y, (b->ne[0] - 1) * p->s0 + c->in[0]->ne[0], (b->ne[1] - 1) * p->s0 + c->in[0]->ne[1], c->in[0]->ne[2],
        b->ne[3]);
    for (int64_t i = 0; i < b->ne[0] * b->ne[1] * b->ne[2] * b->ne[3]; ++i) {
        const int64_t ic = i / b->ne[0] / b->ne[1] % b->ne[2];
        const int64_t at[3] = { i % b->ne[0] * p->s0, i / b->ne[0] % b->ne[1] * p->s0,
            i / b->ne[0] / b->ne[1] / b->ne[2] };
        for (int64_t oc = 0; oc < y->ne[2]; ++oc) { ref_stamp(c->in[0], y, oc, ic, at, b->d[i]); }
    }
}

// >>op:pool_2d   the average divides by the window size, padding included
struct p_pool {
    int op; // 0 maximum, 1 average
    int k0, k1, s0, s1, p0, p1;
    float rest; // of both paddings: counts for extents alone
    bool is_1d; // the average divides by the number of elements inside the input
};

// Where in its plane the largest element of window o is: the first of equal ones, NaN only if there is no number; -1:
// only padding.
static int64_t ref_pool_winner(const struct p_pool * p, const struct arr * a, const int64_t * o) {
    int64_t winner = -1;
    double max = 0.0;
    for (int64_t y = o[1] * p->s1 - p->p1; y < o[1] * p->s1 - p->p1 + p->k1; ++y) {
        for (int64_t x = o[0] * p->s0 - p->p0; x < o[0] * p->s0 - p->p0 + p->k0; ++x) {
            if (x < 0 || x >= a->ne[0] || y < 0 || y >= a->ne[1]) { continue; }
            const double v = AT(a, x, y, o[2], o[3]);
            if (winner < 0 || v > max || (isnan(max) && !isnan(v))) { max = v, winner = y * a->ne[0] + x; }
        }
    }
    return winner;
}

static double ref_pool_window(const struct p_pool * p, const struct arr * a, const int64_t * o) {
    const int64_t winner = ref_pool_winner(p, a, o);
    double sum = 0.0, n = 0.0;
    for (int64_t y = o[1] * p->s1 - p->p1; y < o[1] * p->s1 - p->p1 + p->k1; ++y) {
        for (int64_t x = o[0] * p->s0 - p->p0; x < o[0] * p->s0 - p->p0 + p->k0; ++x) {
            if (x < 0 || x >= a->ne[0] || y < 0 || y >= a->ne[1]) { continue; }
            sum += AT(a, x, y, o[2], o[3]);
            n += 1.0;
        }
    }
    if (p->op == 0) { return winner < 0 ? -(double) FLT_MAX : AT(a, winner % a->ne[0], winner / a->ne[0], o[2], o[3]); }
    return sum / (p->is_1d ? fmax(n, 1.0) : (double) (p->k0 * p->k1));
}

static int64_t ref_pool_out(int64_t in, int k, int s, int p, float rest) {
    return (int64_t) (((float) (in + 2 * p - k) + 2.0f * rest) / (float) s + 1.0f);
}

static void ref_pool_2d(const struct op_case * c) {
    const struct p_pool * p = (const struct p_pool *) c->p;
    const int64_t * a = c->in[0]->ne;
    struct arr * y = c->out;
    arr_new(y, ref_pool_out(a[0], p->k0, p->s0, p->p0, p->rest),
        p->is_1d ? a[1] : ref_pool_out(a[1], p->k1, p->s1, p->p1, p->rest), a[2], a[3]);
    for (int64_t i = 0; i < y->ne[0] * y->ne[1] * y->ne[2] * y->ne[3]; ++i) {
        const int64_t o[4] = { i % y->ne[0], i / y->ne[0] % y->ne[1], i / y->ne[0] / y->ne[1] % y->ne[2],
            i / y->ne[0] / y->ne[1] / y->ne[2] };
        y->d[i] = ref_pool_window(p, c->in[0], o);
    }
}

// >>op:pool_1d   windows along rows; p->k1 = p->s1 = 1, p->p1 = 0 and p->is_1d
static void ref_pool_1d(const struct op_case * c) { ref_pool_2d(c); }

// >>op:pool_2d_back   sources: gradient of the pooled image, the image
static void ref_pool_2d_back(const struct op_case * c) {
    const struct p_pool * p = (const struct p_pool *) c->p;
    const struct arr * dy = c->in[0];
    const struct arr * a = c->in[1];
    struct arr * y = c->out;
    arr_like(y, a);
    for (int64_t i = 0; i < dy->ne[0] * dy->ne[1] * dy->ne[2] * dy->ne[3]; ++i) {
        const int64_t o[4] = { i % dy->ne[0], i / dy->ne[0] % dy->ne[1], i / dy->ne[0] / dy->ne[1] % dy->ne[2],
            i / dy->ne[0] / dy->ne[1] / dy->ne[2] };
        const int64_t winner = ref_pool_winner(p, a, o);
        for (int64_t j = 0; j < p->k0 * p->k1; ++j) {
            const int64_t x = o[0] * p->s0 - p->p0 + j % p->k0, row = o[1] * p->s1 - p->p1 + j / p->k0;
            if (x < 0 || x >= a->ne[0] || row < 0 || row >= a->ne[1]) { continue; }
            if (p->op == 1) {
                AT(y, x, row, o[2], o[3]) += dy->d[i] / (double) (p->k0 * p->k1);
            } else if (row * a->ne[0] + x == winner) {
                AT(y, x, row, o[2], o[3]) += dy->d[i];
            }
        }
    }
}

// >>op:upscale   coordinates in F32 as the definition says, because the last bit decides between neighbours
struct p_upscale {
    int64_t ne[4];
    int mode;   // with flags
    int factor; // > 0: through gcuda_upscale
};

struct ref_scale {
    float f[4];
    float offset;
};

static struct ref_scale ref_upscale_factors(const struct p_upscale * p, const struct arr * a, const struct arr * y) {
    struct ref_scale s;
    s.offset = (p->mode & 0x100) != 0 ? 0.0f : 0.5f;
    for (int d = 0; d < 4; ++d) {
        s.f[d] = (float) y->ne[d] / (float) a->ne[d];
        if ((p->mode & 0x100) != 0 && d < 2 && y->ne[d] > 1 && a->ne[d] > 1) {
            s.f[d] = (float) (y->ne[d] - 1) / (float) (a->ne[d] - 1);
        }
    }
    return s;
}

static int64_t ref_clamp_index(int64_t i, int64_t n) { return i < 0 ? 0 : i >= n ? n - 1 : i; }

// taps of one axis: first index (not clamped), weights; returns how many
static int ref_bilinear_taps(float x, int64_t n, int64_t * idx, double * w) {
    const int64_t base = (int64_t) floorf(x);
    idx[0] = ref_clamp_index(base, n);
    idx[1] = ref_clamp_index(base + 1, n);
    w[1] = fmin(1.0, fmax(0.0, (double) x - (double) idx[0]));
    w[0] = 1.0 - w[1];
    return 2;
}

static int ref_bicubic_taps(float x, int64_t n, int64_t * idx, double * w) {
    const double a = -0.75;
    const int64_t base = (int64_t) floorf(x);
    for (int i = 0; i < 4; ++i) {
        const double z = fabs((double) x - (double) (base - 1 + i));
        idx[i] = ref_clamp_index(base - 1 + i, n);
        w[i] = z <= 1.0 ? ((a + 2.0) * z - (a + 3.0)) * z * z + 1.0 : ((a * z - 5.0 * a) * z + 8.0 * a) * z - 4.0 * a;
    }
    return 4;
}

static int ref_antialias_taps(float c, float sf, float offset, int64_t n, int64_t * idx, double * w) {
    const float support = 1.0f / sf > 1.0f ? 1.0f / sf : 1.0f;
    const int64_t first = (int64_t) (c - support + offset) < 0 ? 0 : (int64_t) (c - support + offset);
    const int64_t end = (int64_t) (c + support + offset) > n ? n : (int64_t) (c + support + offset);
    int n_taps = 0;
    for (int64_t s = first; s < end && n_taps < 256; ++s) {
        idx[n_taps] = s;
        w[n_taps++] = fmax(0.0, 1.0 - fabs((double) (((float) s - c + offset) / support)));
    }
    return n_taps;
}

static int ref_upscale_taps(
    const struct p_upscale * p, const struct ref_scale * s, int d, int64_t i, int64_t n, int64_t * idx, double * w) {
    const float center = ((float) i + s->offset) / s->f[d];
    switch (p->mode & 0xff) {
        case 1:
            if ((p->mode & 0x200) != 0) { return ref_antialias_taps(center, s->f[d], s->offset, n, idx, w); }
            return ref_bilinear_taps(center - s->offset, n, idx, w);
        case 2: return ref_bicubic_taps(center - s->offset, n, idx, w);
        default:
            idx[0] = (int64_t) ((float) i / s->f[d]);
            w[0] = 1.0;
            return 1;
    }
}

static void ref_upscale(const struct op_case * c) {
    const struct p_upscale * p = (const struct p_upscale *) c->p;
    const struct arr * a = c->in[0];
    struct arr * y = c->out;
    if (p->factor > 0) {
        arr_new(y, a->ne[0] * p->factor, a->ne[1] * p->factor, a->ne[2], a->ne[3]);
    } else {
        arr_new(y, p->ne[0], p->ne[1], p->ne[2], p->ne[3]);
    }
    const struct ref_scale s = ref_upscale_factors(p, a, y);
    for (int64_t i = 0; i < y->ne[0] * y->ne[1] * y->ne[2] * y->ne[3]; ++i) {
        const int64_t o[4] = { i % y->ne[0], i / y->ne[0] % y->ne[1], i / y->ne[0] / y->ne[1] % y->ne[2],
            i / y->ne[0] / y->ne[1] / y->ne[2] };
        int64_t ix[256], iy[256];
        double wx[256], wy[256];
        const int nx = ref_upscale_taps(p, &s, 0, o[0], a->ne[0], ix, wx);
        const int ny = ref_upscale_taps(p, &s, 1, o[1], a->ne[1], iy, wy);
        const int64_t j2 = (int64_t) ((float) o[2] / s.f[2]), j3 = (int64_t) ((float) o[3] / s.f[3]);
        double sum = 0.0, weight = 0.0;
        for (int k = 0; k < nx * ny; ++k) {
            sum += wx[k % nx] * wy[k / nx] * AT(a, ix[k % nx], iy[k / nx], j2, j3);
            weight += wx[k % nx] * wy[k / nx];
        }
        if ((p->mode & 0x200) != 0) { sum = weight == 0.0 ? 0.0 : sum / weight; }
        y->d[i] = sum;
    }
}

// ---------------------------------------------------------------------------------------------------- tables
#define CONV_ARGS(p) (p)->s0, (p)->s1, (p)->p0, (p)->p1, (p)->d0, (p)->d1

static struct op_test conv_test(const char * types, const char * shapes, const char * tag, const void * p,
    build_fn build, ref_fn ref, double bound) {
    struct op_test t;
    memset(&t, 0, sizeof t);
    t.types = types, t.shapes = shapes, t.tag = tag, t.p = p, t.n_in = 2, t.build = build, t.ref = ref,
    t.max_nmse = bound;
    return t;
}

// A window may lie outside of the image, but it must not be larger than the padded image.
static bool conv_fits(const int * in, const int * k, const struct p_conv * p) {
    return in[0] + 2 * p->p0 >= p->d0 * (k[0] - 1) + 1 && in[1] + 2 * p->p1 >= p->d1 * (k[1] - 1) + 1;
}

static struct p_conv conv_params(int s0, int s1, int p0, int p1, int d0, int d1) {
    struct p_conv p;
    memset(&p, 0, sizeof p);
    p.s0 = s0, p.s1 = s1, p.p0 = p0, p.p1 = p1, p.d0 = d0, p.d1 = d1, p.is_2d = 1, p.type = GCUDA_TYPE_F32;
    return p;
}

static void conv_tag(char * tag, size_t size, const struct p_conv * p) {
    snprintf(tag, size, "s=%d.%d,p=%d.%d,d=%d.%d", CONV_ARGS(p));
}

// >>op:im2col
static struct gcuda_tensor * build_im2col(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * params) {
    const struct p_conv * p = (const struct p_conv *) params;
    struct gcuda_tensor * b = in[1];
    if (p->gap > 0) {
        b = gcuda_view_4d(
            ctx, b, b->ne[0], b->ne[1], b->ne[2] - p->gap, b->ne[3] - p->gap, b->nb[1], b->nb[2], b->nb[3], 0);
    }
    return gcuda_im2col(ctx, in[0], b, CONV_ARGS(p), p->is_2d != 0, p->type);
}

static void im2col_cases(const char * shapes, struct p_conv p, unsigned layouts) {
    static const enum gcuda_type types[] = { GCUDA_TYPE_F32, GCUDA_TYPE_F16, GCUDA_TYPE_BF16 };
    static const char * const names[] = { "F32 F16,F32>F32", "F32,F32>F16 F16,F32>F16", "BF16,F32>BF16" };
    char tag[96];
    for (int i = 0; i < 3; ++i) {
        p.type = types[i];
        conv_tag(tag, sizeof tag, &p);
        if (p.gap > 0) { strcat(tag, ",gap"); }
        struct op_test t = conv_test(names[i], shapes, tag, &p, build_im2col, ref_im2col, 1e-7);
        t.in[1].layouts = layouts;
        op_test_run(&t);
    }
}

TEST(im2col_1d) {
    for (int i = 0; i < 8; ++i) {
        struct p_conv p = conv_params(i & 1 ? 3 : 1, 0, i & 2 ? 3 : 0, 0, i & 4 ? 3 : 1, 0);
        p.is_2d = 0;
        im2col_cases("3,4,2|20,4,2 3,1,1|33,1,1 1,2,3|7,2,3", p, LAYOUT_OFFSET | LAYOUT_GAPS | LAYOUT_PERMUTED);
    }
    struct p_conv p = conv_params(1, 0, 0, 0, 1, 0);
    p.is_2d = 0;
    im2col_cases(
        test_full() ? "3,128,5|3000,128,1 3,1,1|200000,1,1 1,3,1|5,3,0" : "3,16,5|300,16,1 2,1,1|70000,1,1 1,3,1|5,3,0",
        p, 0);
}

TEST(im2col_2d) {
    for (int i = 0; i < 64; ++i) {
        const struct p_conv p =
            conv_params(i & 1 ? 3 : 1, i & 2 ? 3 : 1, i & 4 ? 3 : 0, i & 8 ? 3 : 0, i & 16 ? 3 : 1, i & 32 ? 3 : 1);
        im2col_cases("3,3,3,2|20,15,3,2", p, i % 9 ? 0 : LAYOUT_OFFSET);
    }
    struct p_conv p = conv_params(1, 1, 0, 0, 1, 1);
    im2col_cases("2,2,40,5|2,2,40,23 3,4,1,32|5,5,1,32 1,1,1,1|1,1,1,1 3,3,2,1|12,12,2,60", p, LAYOUT_OFFSET);
    im2col_cases("3,3,37,1|70,5,37,2 3,2,40,1|131,4,40,1", conv_params(1, 1, 1, 1, 1, 1), 0);
    im2col_cases("5,3,12,1|70,9,12,1", conv_params(2, 1, 2, 0, 1, 2), 0);
    p = conv_params(1, 1, 1, 1, 1, 1);
    im2col_cases("3,3,2,1|12,12,2,60 3,2,1,1|300,257,1,1 3,3,1,1|1,1,1,1", p, 0);
    im2col_cases("3,3,2,1|9,8,2,0 3,3,0,1|9,8,0,2", p, 0); // no images, no channels
    p.type = GCUDA_TYPE_F16;
    struct op_test t =
        conv_test("F16 BF16>F16 F32,BF16>F16", "3,3,3,2|9,7,3,2", "16-bit", &p, build_im2col, ref_im2col, 1e-7);
    t.in[1].layouts = LAYOUT_GAPS | LAYOUT_TRANSPOSED | LAYOUT_SHUFFLED;
    op_test_run(&t);
    p.type = GCUDA_TYPE_F32;
    t.types = "F64,F32>F32 I8,F32>F32 I16,F32>F32 I32,BF16>F32 I64,F16>F32", t.tag = "any-kernel", t.in[1].layouts = 0;
    op_test_run(&t);
    p.gap = 1; // channel and image strides larger than a plane
    im2col_cases("3,3,3,2|9,7,4,3", p, 0);
    if (test_full()) {
        im2col_cases("3,3,2,1|12,12,2,2560 2,2,1536,4|2,2,1536,729 1,1,1,1|70000,2,1,1 1,1,1,1|2,70000,1,2",
            conv_params(1, 1, 0, 0, 1, 1), 0);
    }
}

// >>op:im2col_back   the gradient first, like every operation of that kind; the kernel gives only its shape
static struct gcuda_tensor * build_im2col_back(
    struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * params) {
    const struct p_conv * p = (const struct p_conv *) params;
    int64_t ne[4] = { p->ne[0], p->ne[1], p->ne[2], p->ne[3] };
    return gcuda_im2col_back(ctx, in[0], in[1], ne, CONV_ARGS(p), p->is_2d != 0);
}

TEST(im2col_back) {
    static const int sets[][6] = { { 1, 1, 0, 0, 1, 1 }, { 2, 1, 1, 2, 1, 1 }, { 3, 3, 3, 0, 1, 2 },
        { 1, 2, 4, 3, 3, 2 } };
    // columns in fours: the last two
    static const int kernels[][3] = { { 1, 1, 1 }, { 3, 3, 2 }, { 2, 3, 3 }, { 3, 3, 20 }, { 5, 2, 6 } };
    for (int i = 0; i < 4; ++i) {
        for (int k = 0; k < 5; ++k) {
            char shape[128], tag[96];
            struct p_conv p = conv_params(sets[i][0], sets[i][1], sets[i][2], sets[i][3], sets[i][4], sets[i][5]);
            const int kw = kernels[k][0], kh = kernels[k][1], ic = kernels[k][2], w = k < 3 ? 11 : 35,
                      h = k < 3 ? 9 : 19;
            const int64_t ne[4] = { w, h, ic, 2 };
            memcpy(p.ne, ne, sizeof ne);
            conv_tag(tag, sizeof tag, &p);
            snprintf(shape, sizeof shape, "%d,%d,%d,2|%d,%d,%d,1", kw * kh * ic,
                (int) ref_conv_out(w, kw, p.s0, p.p0, p.d0), (int) ref_conv_out(h, kh, p.s1, p.p1, p.d1), kw, kh, ic);
            struct op_test t =
                conv_test("F32 F32,F16>F32 F16>F32 BF16>F32", shape, tag, &p, build_im2col_back, ref_im2col_back, 1e-7);
            t.in[0].layouts = i == k ? LAYOUT_ANY : 0;
            op_test_run(&t);
            const int64_t ne_1d[4] = { k < 3 ? 11 : 150, ic, 2, 1 };
            memcpy(p.ne, ne_1d, sizeof ne_1d);
            p.is_2d = 0, p.s1 = p.p1 = p.d1 = 0;
            snprintf(shape, sizeof shape, "%d,%d,2|%d,%d,1", kw * ic,
                (int) ref_conv_out((int) ne_1d[0], kw, p.s0, p.p0, p.d0), kw, ic);
            conv_tag(tag, sizeof tag, &p);
            t.tag = tag;
            op_test_run(&t);
        }
    }
    // many columns of few places: as those of images cut into patches
    struct p_conv patches = conv_params(16, 16, 0, 0, 1, 1);
    const int64_t image[4] = { 35, 33, 20, 2 };
    memcpy(patches.ne, image, sizeof image);
    const struct op_test of_patches = conv_test(
        "F32 F16>F32", "5120,2,2,2|16,16,20,1", "patches", &patches, build_im2col_back, ref_im2col_back, 1e-7);
    op_test_run(&of_patches);
    struct p_conv p = conv_params(2, 1, 1, 0, 1, 1);
    for (int k = 2; k < 4; ++k) { // no channels, no images
        const int64_t ne[4] = { 11, 9, k == 2 ? 0 : 2, k == 3 ? 0 : 2 };
        memcpy(p.ne, ne, sizeof ne);
        const struct op_test t = conv_test("F32 BF16,F16>F32", k == 2 ? "0,6,8,2|3,2,0,1" : "12,6,8,0|3,2,2,1",
            k == 2 ? "no-channels" : "no-images", &p, build_im2col_back, ref_im2col_back, 1e-7);
        op_test_run(&t);
    }
}

// >>op:im2col_3d
#define CONV_3D_ARGS(p) \
    (p)->ic, (p)->s[0], (p)->s[1], (p)->s[2], (p)->p[0], (p)->p[1], (p)->p[2], (p)->d[0], (p)->d[1], (p)->d[2]

static struct gcuda_tensor * build_im2col_3d(
    struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * params) {
    const struct p_conv_3d * p = (const struct p_conv_3d *) params;
    return gcuda_im2col_3d(ctx, in[0], in[1], CONV_3D_ARGS(p), p->type);
}

static struct gcuda_tensor * build_conv_3d(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * params) {
    const struct p_conv_3d * p = (const struct p_conv_3d *) params;
    return gcuda_conv_3d(ctx, in[0], in[1], CONV_3D_ARGS(p));
}

static struct p_conv_3d conv_3d_params(int ic, int s, int p, int d, bool mixed) {
    const struct p_conv_3d q = { ic, { s, mixed ? 1 : s, s }, { p, p, mixed ? 1 : p }, { mixed ? 2 : d, d, d },
        GCUDA_TYPE_F32 };
    return q;
}

TEST(im2col_3d) {
    for (int i = 0; i < 32; ++i) {
        char tag[64];
        struct p_conv_3d p = conv_3d_params(i & 1 ? 3 : 1, i & 2 ? 3 : 1, i & 4 ? 3 : 0, i & 8 ? 3 : 1, (i & 16) != 0);
        snprintf(tag, sizeof tag, "ic=%d,s=%d,p=%d,d=%d%s", p.ic, p.s[0], p.p[0], p.d[1], i & 16 ? ",mixed" : "");
        const char * shape = test_full() ? "3,3,3,3|20,20,10,3" : "3,3,3,3|9,8,7,3";
        struct op_test t = conv_test("F32 F16,F32>F32", shape, tag, &p, build_im2col_3d, ref_im2col_3d, 1e-7);
        t.in[1].layouts = i % 5 ? 0 : LAYOUT_ROWS;
        op_test_run(&t);
        p.type = GCUDA_TYPE_F16;
        t.types = "F32,F32>F16", t.in[1].layouts = 0;
        op_test_run(&t);
    }
    struct p_conv_3d p = conv_3d_params(2, 1, 1, 1, false);
    struct op_test t = conv_test("F32", "1,2,3,4|5,4,3,6 3,1,2,2|4,5,3,2 1,1,1,2|3,2,1,4 2,3,2,10|70,5,3,20", "kernels",
        &p, build_im2col_3d, ref_im2col_3d, 1e-7);
    t.in[1].layouts = LAYOUT_ROWS;
    op_test_run(&t);
    // of the kernel: says nothing about channels
    t.shapes = "1,2,3,1|5,4,3,6 3,1,2,5|4,5,3,2 2,3,2,0|70,5,3,20", t.tag = "last extent";
    op_test_run(&t);
    t.shapes = "3,3,3,2|9,8,7,0", t.tag = "empty", t.in[1].layouts = 0; // no images
    op_test_run(&t);
    for (int i = 0; i < 3; ++i) {
        static const enum gcuda_type to[] = { GCUDA_TYPE_F32, GCUDA_TYPE_F16, GCUDA_TYPE_BF16 };
        static const char * const types[] = { "F16>F32 BF16>F32", "F16 F32,BF16>F16", "F32>BF16 F32,F16>BF16 BF16" };
        p.type = to[i];
        t = conv_test(
            types[i], "1,2,3,4|5,4,3,6 2,3,2,10|70,5,3,20", "16-bit", &p, build_im2col_3d, ref_im2col_3d, 1e-7);
        t.in[1].layouts = LAYOUT_GAPS | LAYOUT_TRANSPOSED | LAYOUT_SHUFFLED;
        op_test_run(&t);
    }
}

TEST(conv_3d) {
    for (int i = 0; i < 6; ++i) {
        char tag[64];
        const struct p_conv_3d p = conv_3d_params(2, i % 3 + 1, i % 2 * 2, i / 3 + 1, i == 4);
        snprintf(tag, sizeof tag, "s=%d,p=%d,d=%d", p.s[0], p.p[0], p.d[1]);
        struct op_test t = conv_test("F32 F16,F32>F32", "3,3,3,6|9,8,7,4 1,2,3,4|7,6,5,2 1,2,3,4|7,6,5,0", tag, &p,
            build_conv_3d, ref_conv_3d, 5e-4);
        op_test_run(&t);
    }
}

// >>op:conv_2d   the fused operation and the composite over im2col
static struct gcuda_tensor * build_conv_2d_direct(
    struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * params) {
    const struct p_conv * p = (const struct p_conv *) params;
    return gcuda_conv_2d_direct(ctx, in[0], in[1], CONV_ARGS(p));
}

static struct gcuda_tensor * build_conv_2d(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * params) {
    const struct p_conv * p = (const struct p_conv *) params;
    return gcuda_conv_2d(ctx, in[0], in[1], CONV_ARGS(p));
}

static void conv_2d_shapes(const struct p_conv * p, bool direct) {
    static const int sides[] = { 1, 2, 3, 11 };
    const int images[][2] = { { 1, 1 }, { test_full() ? 141 : 23, 1 }, { 1, test_full() ? 133 : 19 },
        { test_full() ? 141 : 23, test_full() ? 133 : 19 } };
    static const int channels[][2] = { { 1, 1 }, { 5, 3 } };
    for (int i = 0; i < 4 * 16 * 2; ++i) {
        const int k[2] = { sides[i % 4], sides[i / 4 % 4] };
        const int * in = images[i / 16 % 4];
        const int ic = channels[i / 64][0], oc = channels[i / 64][1];
        char shape[96], tag[96];
        if (!conv_fits(in, k, p) || (!direct && i % 3)) { continue; }
        snprintf(shape, sizeof shape, "%d,%d,%d,%d|%d,%d,%d,2", k[0], k[1], ic, oc, in[0], in[1], ic);
        conv_tag(tag, sizeof tag, p);
        struct op_test t = conv_test("F32 F16,F32>F32 BF16,F32>F32", shape, tag, p,
            direct ? build_conv_2d_direct : build_conv_2d, ref_conv_2d, 5e-4);
        if (!direct) { t.types = "F32 F16,F32>F32"; }
        t.in[0].layouts = t.in[1].layouts = i % 7 ? 0 : LAYOUT_OFFSET;
        op_test_run(&t);
    }
}

TEST(conv_2d_direct) {
    const struct p_conv p[] = { conv_params(1, 5, 5, 5, 2, 4), conv_params(3, 5, 5, 5, 2, 4),
        conv_params(1, 1, 0, 0, 1, 1), conv_params(2, 1, 1, 2, 1, 1) };
    for (int i = 0; i < 4; ++i) { conv_2d_shapes(&p[i], true); }
}

TEST(conv_2d_direct_layouts) { // images that are no plain array, in all types; many taps and many channels
    const struct p_conv p = conv_params(2, 1, 1, 2, 1, 1);
    struct op_test t = conv_test("F32 F32,F16>F16 BF16,F32>F32 F16,BF16>BF16", "3,2,5,3|17,9,5,2", "layouts", &p,
        build_conv_2d_direct, ref_conv_2d, 5e-4);
    t.in[1].layouts = LAYOUT_ANY;
    op_test_run(&t);
    t = conv_test("F32 F16 F16,F32>F32", "3,3,2,4|9,8,2,0 3,3,2,0|9,8,2,2 3,3,0,4|9,8,0,2", "empty", &p,
        build_conv_2d_direct, ref_conv_2d, 5e-4); // no images, no channels; without channels to sum a result of zeros
    op_test_run(&t);
    t = conv_test("F32 F16,F32>F32 BF16,F32>F32 F16,BF16>BF16",
        "3,3,33,70|9,8,33,1 1,1,130,65|9,8,130,2 12,12,90,2|12,12,90,1", "blocks", &p, build_conv_2d_direct,
        ref_conv_2d, 5e-4);
    op_test_run(&t);
}

TEST(conv_2d_direct_kernel_layouts) { // kernels that are no plain array: few channels, tiles, large products
    struct p_conv p = conv_params(2, 1, 1, 2, 1, 1);
    struct op_test t =
        conv_test("F32 F16,F32>F32 BF16,F32>F32 F16,BF16>BF16", "3,2,5,3|17,9,5,2 1,3,4,20|9,8,4,2 3,3,33,70|9,8,33,1",
            "kernel layouts", &p, build_conv_2d_direct, ref_conv_2d, 5e-4);
    t.in[0].layouts = LAYOUT_ANY;
    op_test_run(&t);
    p = conv_params(1, 1, 1, 1, 1, 1);
    t.types = "F16,F32>F32", t.shapes = "3,3,64,128|40,33,64,1";
    t.in[0].layouts = LAYOUT_PERMUTED | LAYOUT_SHUFFLED, t.in[1].layouts = LAYOUT_GAPS;
    op_test_run(&t);
}

TEST(conv_2d_direct_tiles) { // enough pixels and channels for the larger tiles of a GPU
    const struct p_conv p = conv_params(1, 1, 0, 0, 1, 1);
    struct op_test t =
        conv_test("F16,F32>F32", "1,1,2,130|128,97,2,1", "128x128", &p, build_conv_2d_direct, ref_conv_2d, 5e-4);
    t.in[0].layouts = t.in[1].layouts = 0;
    op_test_run(&t);
    t = conv_test("F32", "1,1,2,20|255,130,2,1", "64x128", &p, build_conv_2d_direct, ref_conv_2d, 5e-4);
    t.in[0].layouts = t.in[1].layouts = 0;
    op_test_run(&t);
}

TEST(conv_2d_direct_packed) { // every tile of the large products, with channels and images that fill none
    const struct p_conv p[] = { conv_params(1, 1, 1, 1, 1, 1), conv_params(2, 1, 1, 2, 1, 2) };
    struct op_test t =
        conv_test("F16,F32>F32", "3,3,24,40|13,12,24,1 3,3,24,40|18,17,24,1 3,3,24,100|15,13,24,1 3,3,20,130|9,7,20,5",
            "packed", &p[0], build_conv_2d_direct, ref_conv_2d, 5e-4);
    t.in[0].layouts = t.in[1].layouts = 0;
    op_test_run(&t);
    t = conv_test("F16,F32>F32 F16>F16 F16,BF16>BF16", "3,2,31,70|33,12,31,1 1,1,200,130|21,16,200,2", "packed_strided",
        &p[1], build_conv_2d_direct, ref_conv_2d, 5e-4);
    t.in[0].layouts = 0;
    t.in[1].layouts = LAYOUT_OFFSET;
    op_test_run(&t);
}

static struct gcuda_tensor * build_conv_2d_exact(
    struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * params) {
    struct gcuda_tensor * y = build_conv_2d_direct(ctx, in, params);
    if (y != NULL) { gcuda_conv_2d_set_prec(y, GCUDA_PREC_F32); }
    return y;
}

TEST(conv_2d_precision) { // nothing is rounded before the product
    const struct p_conv p = conv_params(2, 1, 1, 2, 1, 1);
    const struct op_test t = conv_test("F32 F16,F32>F32 BF16,F32>F32", "3,3,33,70|9,8,33,1 1,1,600,20|9,8,600,2",
        "exact", &p, build_conv_2d_exact, ref_conv_2d, 1e-7);
    op_test_run(&t);
}

TEST(conv_2d) {
    const struct p_conv p[] = { conv_params(1, 1, 0, 0, 1, 1), conv_params(1, 2, 1, 3, 2, 1),
        conv_params(3, 5, 5, 5, 2, 4) };
    for (int i = 0; i < 3; ++i) { conv_2d_shapes(&p[i], false); }
    const struct op_test t = conv_test("F32 F16,F32>F32", "3,3,2,4|9,8,2,0 3,3,2,0|9,8,2,2 3,3,0,4|9,8,0,2", "empty",
        &p[0], build_conv_2d, ref_conv_2d, 5e-4);
    op_test_run(&t);
}

static struct gcuda_tensor * build_conv_2d_sk_p0(
    struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    (void) p;
    return gcuda_conv_2d_sk_p0(ctx, in[0], in[1]);
}

static struct gcuda_tensor * build_conv_2d_s1_ph(
    struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    (void) p;
    return gcuda_conv_2d_s1_ph(ctx, in[0], in[1]);
}

TEST(conv_2d_presets) {
    const struct p_conv patches = conv_params(4, 2, 0, 0, 1, 1), same = conv_params(1, 1, 1, 2, 1, 1);
    struct op_test t =
        conv_test("F32 F16,F32>F32", "4,2,3,5|16,12,3,2", "sk_p0", &patches, build_conv_2d_sk_p0, ref_conv_2d, 5e-4);
    op_test_run(&t);
    t = conv_test("F32 F16,F32>F32", "3,5,3,5|9,8,3,2", "s1_ph", &same, build_conv_2d_s1_ph, ref_conv_2d, 5e-4);
    op_test_run(&t);
}

// >>op:conv_2d_dw
static struct gcuda_tensor * build_conv_2d_dw_direct(
    struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * params) {
    const struct p_conv * p = (const struct p_conv *) params;
    return gcuda_conv_2d_dw_direct(ctx, in[0], in[1], CONV_ARGS(p));
}

// channels innermost in memory, for the image and for the kernel; the extents stay what they were
static struct gcuda_tensor * build_conv_2d_dw_channels(
    struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    struct gcuda_tensor * moved[2];
    moved[0] = gcuda_permute(ctx, gcuda_cont(ctx, gcuda_permute(ctx, in[0], 2, 3, 1, 0)), 3, 2, 0, 1);
    moved[1] = gcuda_permute(ctx, gcuda_cont(ctx, gcuda_permute(ctx, in[1], 1, 2, 0, 3)), 2, 0, 1, 3);
    struct gcuda_tensor * y = build_conv_2d_dw_direct(ctx, moved, p);
    if (y != NULL && !gcuda_is_contiguous(moved[1])) {
        const size_t size = gcuda_type_size(y->type);
        CHECK_MSG(y->nb[2] == size && y->nb[0] == size * (size_t) y->ne[2], "the result is not channel-innermost");
    }
    return y;
}

static struct gcuda_tensor * build_conv_2d_dw(
    struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * params) {
    const struct p_conv * p = (const struct p_conv *) params;
    return gcuda_conv_2d_dw(ctx, in[0], in[1], CONV_ARGS(p));
}

TEST(conv_2d_dw) {
    const struct p_conv p[] = { conv_params(1, 1, 0, 0, 1, 1), conv_params(2, 2, 1, 1, 1, 1),
        conv_params(2, 1, 3, 2, 1, 3), conv_params(1, 1, 1, 1, 1, 1) };
    for (int i = 0; i < 4; ++i) {
        char tag[96];
        conv_tag(tag, sizeof tag, &p[i]);
        const char * shapes =
            test_full() ? "3,3,1,9|17,34,9,1 3,3,1,64|32,8,64,1 2,3,1,5|9,7,5,3 5,5,1,8|28,9,8,2 1,3,1,6|1,9,6,2 "
                          "3,3,1,6|3,9,6,2"
                        : "3,3,1,9|17,34,9,1 3,3,1,64|16,8,64,1 2,3,1,5|9,7,5,3 1,1,1,2|1,1,2,4 5,5,1,8|28,9,8,2 "
                          "1,3,1,6|1,9,6,2 3,3,1,6|3,9,6,2";
        struct op_test t = conv_test("F32", shapes, tag, &p[i], build_conv_2d_dw_direct, ref_conv_2d_dw, 1e-7);
        t.in[0].layouts = t.in[1].layouts = LAYOUT_OFFSET;
        op_test_run(&t);
        t.types = "F16 BF16 F16,F32>F32 F32,BF16>BF16", t.shapes = "2,3,1,5|9,7,5,3 3,3,1,33|16,8,33,1";
        op_test_run(&t);
        t.types = "F32 F16,F32>F32", t.in[0].layouts = LAYOUT_ANY & ~LAYOUT_OFFSET, t.in[1].layouts = 0;
        op_test_run(&t);
        t.types = "F32", t.shapes = "3,3,1,4|9,8,4,0 3,3,1,0|9,8,0,2", t.in[0].layouts = t.in[1].layouts = 0;
        op_test_run(&t);
        strcat(tag, ",channels-first");
        t = conv_test("F32", shapes, tag, &p[i], build_conv_2d_dw_channels, ref_conv_2d_dw, 1e-7);
        op_test_run(&t);
        t.types = "F16 BF16 F16,F32>F32 F32,BF16>BF16", t.shapes = "2,3,1,5|9,7,5,3 3,3,1,33|16,8,33,1";
        op_test_run(&t);
        strcat(tag, ",composite");
        t = conv_test("F16,F32>F32", shapes, tag, &p[i], build_conv_2d_dw, ref_conv_2d_dw, 5e-4);
        op_test_run(&t);
    }
    // places that 32 bits do not hold: only the middle column of the kernel meets the image
    const struct p_conv far = conv_params(1, 1, INT32_MAX, 1, 1 << 30, 1);
    struct op_test t = conv_test("F32", "5,3,1,8|8,9,8,2", "far", &far, build_conv_2d_dw_direct, ref_conv_2d_dw, 1e-7);
    op_test_run(&t);
    t.build = build_conv_2d_dw_channels, t.tag = "far,channels-first";
    op_test_run(&t);
}

// of every third kernel
static void fill_border_infinite(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    (void) c, (void) k;
    FOR_ARR(a) {
        const bool is_border = i0 == 0 || i1 == 0 || i0 == a->ne[0] - 1 || i1 == a->ne[1] - 1;
        AT(a, i0, i1, i2, i3) = is_border && i3 % 3 == 0 && rng_below(r, 2) ? HUGE_VAL : rng_between(r, 0.5, 1);
    }
}
static void ref_conv_2d_dw_inside(const struct op_case * c) {
    const struct p_conv * p = (const struct p_conv *) c->p;
    const struct arr *k = c->in[0], *b = c->in[1];
    arr_new(c->out, ref_conv_out(b->ne[0], k->ne[0], p->s0, p->p0, p->d0),
        ref_conv_out(b->ne[1], k->ne[1], p->s1, p->p1, p->d1), b->ne[2], b->ne[3]);
    FOR_ARR(c->out) {
        for (int64_t i = 0; i < k->ne[0] * k->ne[1]; ++i) {
            const int64_t kw = i % k->ne[0], kh = i / k->ne[0], x = i0 * p->s0 + kw * p->d0 - p->p0,
                          y = i1 * p->s1 + kh * p->d1 - p->p1;
            const bool is_inside = x >= 0 && x < b->ne[0] && y >= 0 && y < b->ne[1];
            AT(c->out, i0, i1, i2, i3) += is_inside ? AT(k, kw, kh, 0, i2) * AT(b, x, y, i2, i3) : 0.0;
        }
    }
}
TEST(conv_2d_dw_infinite) { // a weight without bounds takes no part outside of the image
    const struct p_conv p[] = { conv_params(1, 1, 1, 1, 1, 1), conv_params(2, 2, 1, 1, 1, 1),
        conv_params(2, 1, 3, 2, 1, 3) };
    for (int i = 0; i < 6; ++i) {
        char tag[96];
        conv_tag(tag, sizeof tag, &p[i % 3]);
        if (i >= 3) { strcat(tag, ",channels-first"); }
        struct op_test t = conv_test("F32 F16",
            "3,3,1,9|17,34,9,1 3,3,1,64|32,8,64,1 2,3,1,5|9,7,5,3 5,5,1,8|28,9,8,2 3,3,1,8|64,70,8,1 7,7,1,2|70,66,2,1",
            tag, &p[i % 3], i < 3 ? build_conv_2d_dw_direct : build_conv_2d_dw_channels, ref_conv_2d_dw_inside, 1e-7);
        t.in[0].fill = fill_border_infinite, t.in[1].lo = 0.5, t.in[1].hi = 1;
        op_test_run(&t);
    }
}

// >>op:conv_1d
static struct gcuda_tensor * build_conv_1d(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * params) {
    const struct p_conv * p = (const struct p_conv *) params;
    return p->type == GCUDA_TYPE_F16 ? gcuda_conv_1d_ph(ctx, in[0], in[1], p->s0, p->d0)
                                     : gcuda_conv_1d(ctx, in[0], in[1], p->s0, p->p0, p->d0);
}

static struct gcuda_tensor * build_conv_1d_dw(
    struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * params) {
    const struct p_conv * p = (const struct p_conv *) params;
    return p->type == GCUDA_TYPE_F16 ? gcuda_conv_1d_dw_ph(ctx, in[0], in[1], p->s0, p->d0)
                                     : gcuda_conv_1d_dw(ctx, in[0], in[1], p->s0, p->p0, p->d0);
}

TEST(conv_1d) { // `type` of the parameters only tells the constructors apart
    static const int sets[][3] = { { 1, 0, 1 }, { 2, 3, 1 }, { 1, 1, 3 }, { 1, 2, 1 } };
    for (int i = 0; i < 4; ++i) {
        struct p_conv p = conv_params(sets[i][0], 1, sets[i][1], 0, sets[i][2], 1);
        p.type = i == 3 ? GCUDA_TYPE_F16 : GCUDA_TYPE_F32;
        char tag[96];
        snprintf(tag, sizeof tag, "s=%d,p=%d,d=%d%s", p.s0, p.p0, p.d0, i == 3 ? ",half" : "");
        const char * shapes = i == 3 ? "4,3,6|30,3,2 5,1,1|9,1,1"
                                     : "3,4,5|40,4,1 3,4,5|40,4,3 1,2,2|7,2,2 4,16,3|33,16,2 3,4,5|40,4,0 3,0,5|40,0,2";
        struct op_test t = conv_test("F16,F32>F32", shapes, tag, &p, build_conv_1d, ref_conv_1d, 5e-4);
        op_test_run(&t);
        t = conv_test("F16,F32>F32", i == 3 ? "4,1,6|30,6,1 5,1,1|9,1,1" : "3,1,5|40,5,1 4,1,1|33,1,1 2,1,16|9,16,1",
            tag, &p, build_conv_1d_dw, ref_conv_1d_dw, 5e-4);
        t.name = "conv_1d/dw";
        op_test_run(&t);
    }
}

// >>op:conv_transpose_1d
static struct gcuda_tensor * build_conv_transpose_1d(
    struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    return gcuda_conv_transpose_1d(ctx, in[0], in[1], ((const struct p_conv *) p)->s0, 0, 1);
}

TEST(conv_transpose_1d) {
    for (int s = 1; s <= 3; ++s) {
        char tag[16];
        const struct p_conv p = conv_params(s, 0, 0, 0, 1, 1);
        snprintf(tag, sizeof tag, "s=%d", s);
        const char * shapes = "1,1,1|1,1 3,9,7|13,7 1,1,1|2,1 3,1,7|2,7 2,32,5|197,5 2,9,1|1,1 1,9,32|13,32";
        struct op_test t = conv_test(
            "F32 F16,F32>F32 BF16,F16>F32", shapes, tag, &p, build_conv_transpose_1d, ref_conv_transpose_1d, 1e-7);
        if (s == 3) { t.in[0].layouts = t.in[1].layouts = LAYOUT_OFFSET; }
        op_test_run(&t);
        t.shapes = test_full() ? "1337,9,7|197,7 1337,32,32|13,32" : "337,9,7|19,7";
        t.in[0].layouts = t.in[1].layouts = 0;
        op_test_run(&t);
        t.types = "F32", t.shapes = "3,0,7|13,7 3,4,0|13,0"; // no channels; none to sum: zeros
        op_test_run(&t);
        t.types = "BF16>F32 F32,BF16>F32", t.shapes = "3,9,7|13,7";
        op_test_run(&t);
    }
}

// >>op:conv_transpose_2d
static struct gcuda_tensor * build_conv_transpose_2d(
    struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {
    return gcuda_conv_transpose_2d_p0(ctx, in[0], in[1], ((const struct p_conv *) p)->s0);
}

// the first and the last of a kernel
static void fill_weights_infinite(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    const int64_t n = a->ne[0] * (((const struct p_conv *) c->p)->is_2d ? a->ne[1] : 1);
    (void) k;
    for (int64_t i = 0; i < arr_n(a); ++i) {
        a->d[i] = i % n == 0 || i % n == n - 1 ? HUGE_VAL : rng_between(r, 0.5, 1);
    }
}
TEST(conv_transpose_infinite) { // a weight without bounds reaches the results that it is part of, and no other
    for (int i = 0; i < 2; ++i) {
        struct p_conv p = conv_params(1 + i, 0, 0, 0, 1, 1);
        p.is_2d = true;
        struct op_test t = conv_test("F32 F16,F32>F32", "3,3,3,4|7,5,4 3,2,9,33|29,5,33 40,30,1,2|5,4,2", "2d", &p,
            build_conv_transpose_2d, ref_conv_transpose_2d, 5e-4);
        t.in[0].fill = fill_weights_infinite, t.in[1].lo = 0.5, t.in[1].hi = 1;
        op_test_run(&t);
        p.is_2d = false;
        t = conv_test("F32", "3,9,7|13,7 33,2,5|197,5", "1d", &p, build_conv_transpose_1d, ref_conv_transpose_1d, 1e-7);
        t.in[0].fill = fill_weights_infinite, t.in[1].lo = 0.5, t.in[1].hi = 1;
        op_test_run(&t);
    }
}

TEST(conv_transpose_2d) {
    for (int s = 1; s <= 3; ++s) {
        char tag[16];
        const struct p_conv p = conv_params(s, 0, 0, 0, 1, 1);
        snprintf(tag, sizeof tag, "s=%d", s);
        const char * shapes = test_full()
                                  ? "2,2,1,3|3,2,3 3,3,1,9|10,10,9 3,3,48,35|129,63,35 2,3,16,64|129,33,64,2"
                                  : "2,2,1,3|3,2,3 3,3,1,9|10,10,9 3,3,8,5|29,13,5 2,3,4,3|5,4,3,3 1,1,2,2|4,3,2,2 "
                                    "3,3,7,40|29,13,40 2,3,16,33|9,7,33,2"; // the last two as products
        struct op_test t =
            conv_test("F16,F32>F32 F32", shapes, tag, &p, build_conv_transpose_2d, ref_conv_transpose_2d, 5e-4);
        t.in[0].layouts = t.in[1].layouts = s == 2 ? LAYOUT_OFFSET : 0;
        op_test_run(&t);
        t.types = "F16>F32 BF16,F32>F32 BF16>F32 F32,F16>F32 F16,BF16>F32",
        t.shapes = "2,3,4,3|5,4,3,3 3,3,7,40|9,7,40";
        op_test_run(&t);
        t.types = "F32 F16,F32>F32", t.shapes = "2,2,3,4|5,4,4,0 2,2,0,4|5,4,4,2 2,2,3,0|5,4,0,2"; // the last: zeros
        op_test_run(&t);
    }
}

// >>op:pool_2d
#define POOL_ARGS(p)                                                                          \
    (p)->op == 0 ? GCUDA_OP_POOL_MAX : GCUDA_OP_POOL_AVG, (p)->k0, (p)->k1, (p)->s0, (p)->s1, \
        (float) (p)->p0 + (p)->rest, (float) (p)->p1 + (p)->rest

static struct gcuda_tensor * build_pool_2d(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * params) {
    const struct p_pool * p = (const struct p_pool *) params;
    return gcuda_pool_2d(ctx, in[0], POOL_ARGS(p));
}

static struct gcuda_tensor * build_pool_2d_back(
    struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * params) {
    const struct p_pool * p = (const struct p_pool *) params;
    return gcuda_pool_2d_back(ctx, in[0], in[1], POOL_ARGS(p));
}

static void fill_all_distinct(struct rng * r, const struct op_case * c, int k, struct arr * a) { // also between rows
    (void) c, (void) k;
    const int64_t n = arr_n(a);
    for (int64_t i = 0; i < n; ++i) { a->d[i] = (double) i / (double) n - 0.5; }
    for (int64_t i = n - 1; i > 0; --i) {
        const int64_t j = rng_below(r, i + 1);
        const double t = a->d[i];
        a->d[i] = a->d[j], a->d[j] = t;
    }
}

static void pool_2d_case(struct p_pool p) {
    char tag[96], shape[96];
    snprintf(tag, sizeof tag, "%s,k=%d.%d,s=%d.%d,p=%d.%d%s", p.op == 0 ? "max" : "avg", p.k0, p.k1, p.s0, p.s1, p.p0,
        p.p1, p.rest > 0 ? ",rest" : "");
    struct op_test t = conv_test("F32 F16>F32", "10,10,3,1 9,12,2,3", tag, &p, build_pool_2d, ref_pool_2d, 1e-7);
    t.n_in = 1, t.name = "pool_2d";
    t.in[0].layouts = p.k0 == 3 && p.s0 == 1 ? LAYOUT_OFFSET : 0;
    op_test_run(&t);
    snprintf(shape, sizeof shape, "%d,%d,2,3|9,12,2,3", (int) ref_pool_out(9, p.k0, p.s0, p.p0, p.rest),
        (int) ref_pool_out(12, p.k1, p.s1, p.p1, p.rest));
    t = conv_test("F32", shape, tag, &p, build_pool_2d_back, ref_pool_2d_back, 1e-7);
    t.name = "pool_2d/back", t.in[1].fill = fill_all_distinct;
    op_test_run(&t);
}

TEST(pool_2d) {
    for (int i = 0; i < 128; ++i) {
        const struct p_pool p = { i & 1, i & 2 ? 3 : 1, i & 4 ? 3 : 1, i & 8 ? 2 : 1, i & 16 ? 2 : 1, i & 32 ? 1 : 0,
            i & 64 ? 1 : 0, 0, 0 };
        pool_2d_case(p);
    }
    const struct p_pool more[] = { { 0, 2, 3, 3, 2, 0, 0, 0, 0 }, { 1, 4, 2, 4, 2, 2, 1, 0, 0 },
        { 0, 5, 5, 1, 1, 2, 2, 0, 0 }, { 1, 9, 10, 1, 1, 0, 0, 0, 0 }, { 0, 6, 5, 2, 2, 1, 1, 0, 0 } };
    for (int i = 0; i < 5; ++i) { pool_2d_case(more[i]); }
    // half an element of padding: one more output, whose window lies partly or altogether outside
    const struct p_pool halves[] = { { 1, 3, 3, 3, 3, 0, 0, 0.5f, 0 }, { 0, 2, 2, 2, 2, 0, 0, 0.75f, 0 },
        { 1, 3, 2, 1, 2, 1, 0, 0.5f, 0 }, { 1, 1, 1, 1, 1, 0, 0, 0.5f, 0 } };
    for (int i = 0; i < 4; ++i) { pool_2d_case(halves[i]); }
    struct op_test t =
        conv_test("F32 F16>F32", "8,8,2,2 16,40,2", "touching,rest", &halves[0], build_pool_2d, ref_pool_2d, 1e-7);
    t.n_in = 1, t.name = "pool_2d";
    op_test_run(&t);
}

// The mean of what F32 holds is something that it holds, the sum need not be.
static void fill_pool_large(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    (void) c, (void) k;
    for (int64_t i = 0; i < arr_n(a); ++i) { a->d[i] = 3e38 * rng_between(r, 0.5, 1.0); }
}
TEST(pool_ends) {
    static const struct p_pool sets[] = { { 1, 3, 3, 1, 1, 1, 1, 0, 0 }, { 1, 2, 2, 2, 2, 0, 0, 0, 0 },
        { 1, 3, 3, 3, 3, 0, 0, 0, 0 }, { 1, 5, 2, 3, 3, 1, 1, 0, 0 } };
    for (int i = 0; i < 4; ++i) {
        const struct p_pool * p = &sets[i];
        char shape[96];
        struct op_test t = conv_test("F32 BF16>F32", "48,13,2 19,7", tagf("k=%d.%d,s=%d", p->k0, p->k1, p->s0), p,
            build_pool_2d, ref_pool_2d, 1e-7);
        t.n_in = 1, t.in[0].fill = fill_pool_large, t.name = "pool_ends";
        op_test_run(&t);
        snprintf(shape, sizeof shape, "%d,%d,2|48,13,2", (int) ref_pool_out(48, p->k0, p->s0, p->p0, 0.0f),
            (int) ref_pool_out(13, p->k1, p->s1, p->p1, 0.0f));
        t = conv_test("F32", shape, t.tag, p, build_pool_2d_back, ref_pool_2d_back, 1e-7);
        t.in[0].fill = fill_pool_large, t.name = "pool_ends/back";
        op_test_run(&t);
    }
}

TEST(pool_2d_wide) { // rows of several strips, whose windows share elements, touch, or leave some out
    static const struct p_pool sets[] = { { 0, 3, 3, 1, 1, 1, 1, 0, 0 }, { 1, 3, 3, 2, 2, 1, 1, 0, 0 },
        { 1, 2, 2, 2, 2, 0, 0, 0, 0 }, { 0, 3, 3, 3, 3, 0, 0, 0, 0 }, { 0, 2, 5, 5, 3, 1, 2, 0, 0 },
        { 1, 31, 2, 32, 2, 3, 0, 0, 0 } };
    for (int i = 0; i < 6; ++i) {
        const struct p_pool * p = &sets[i];
        char tag[96];
        snprintf(tag, sizeof tag, "%s,k=%d.%d,s=%d.%d", p->op == 0 ? "max" : "avg", p->k0, p->k1, p->s0, p->s1);
        struct op_test t = conv_test("F32 F16>F32", "600,5,2 1027,7", tag, p, build_pool_2d, ref_pool_2d, 1e-7);
        t.n_in = 1, t.in[0].layouts = i == 0 ? LAYOUT_OFFSET : 0;
        op_test_run(&t);
    }
}

// windows of 2 x 2 with stride 2 that cover the image: rows of one segment, of several, and other layouts
TEST(pool_2d_pairs) {
    const struct p_pool p = { 0, 2, 2, 2, 2, 0, 0, 0, 0 }, q = { 1, 2, 2, 2, 2, 0, 0, 0, 0 };
    for (int i = 0; i < 2; ++i) {
        struct op_test t =
            conv_test("F32", "2,1|4,2 6,5,2,3|12,10,2,3 514,3,2|1028,6,2 2050,2|4100,4 5,4|10,8 6,5|13,10 6,5|12,11",
                i ? "avg,back" : "max,back", i ? &q : &p, build_pool_2d_back, ref_pool_2d_back, 1e-7);
        t.in[0].layouts = t.in[1].layouts = LAYOUT_OFFSET, t.in[1].fill = fill_all_distinct;
        op_test_run(&t);
    }
}

// >>op:pool_1d
static struct gcuda_tensor * build_pool_1d(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * params) {
    const struct p_pool * p = (const struct p_pool *) params;
    return gcuda_pool_1d(ctx, in[0], p->op == 0 ? GCUDA_OP_POOL_MAX : GCUDA_OP_POOL_AVG, p->k0, p->s0, p->p0);
}

TEST(pool_2d_layouts) {
    const struct p_pool p = { 0, 3, 2, 2, 1, 1, 1, 0, 0 }, q = { 1, 3, 2, 2, 1, 1, 1, 0, 0 };
    for (int i = 0; i < 2; ++i) {
        struct op_test t = conv_test(
            "F32 F16>F32 BF16>F32", "11,7,2,3", i ? "avg" : "max", i ? &q : &p, build_pool_2d, ref_pool_2d, 1e-7);
        t.n_in = 1, t.in[0].layouts = LAYOUT_ANY;
        op_test_run(&t);
        t.types = "F32", t.shapes = "11,7,0,3 11,7,2,0", t.in[0].layouts = 0;
        op_test_run(&t);
        t = conv_test("F32 F16>F32 BF16>F32 F32,F16>F32 BF16,F32>F32", "6,8,2,3|11,7,2,3", i ? "avg,back" : "max,back",
            i ? &q : &p, build_pool_2d_back, ref_pool_2d_back, 1e-7);
        t.in[0].layouts = t.in[1].layouts = LAYOUT_ANY, t.in[1].fill = fill_all_distinct;
        op_test_run(&t);
        t.types = "F32", t.shapes = "6,8,0,3|11,7,0,3 6,8,2,0|11,7,2,0", t.in[0].layouts = t.in[1].layouts = 0;
        op_test_run(&t);
    }
}

TEST(pool_1d) { // the field's kernels know only windows that touch, without padding
    for (int i = 0; i < 6; ++i) {
        char tag[64];
        const int k = i / 2 + 1;
        const struct p_pool p = { i % 2, k, 1, k, 1, 0, 0, 0, 1 };
        snprintf(tag, sizeof tag, "%s,k=%d", p.op == 0 ? "max" : "avg", k);
        struct op_test t =
            conv_test("F32 F16>F32 BF16>F32", "10 12,5 13,2,3,2 10,0", tag, &p, build_pool_1d, ref_pool_1d, 1e-7);
        t.n_in = 1, t.in[0].layouts = k == 2 ? LAYOUT_ANY : LAYOUT_OFFSET;
        op_test_run(&t);
    }
    // padding: the mean of the elements inside the row
    const struct p_pool padded[] = { { 1, 2, 1, 2, 1, 1, 0, 0, 1 }, { 1, 3, 1, 1, 1, 1, 0, 0, 1 },
        { 1, 5, 1, 2, 1, 2, 0, 0, 1 }, { 1, 2, 1, 1, 1, 3, 0, 0, 1 }, { 0, 3, 1, 2, 1, 2, 0, 0, 1 } };
    for (int i = 0; i < 5; ++i) {
        const struct p_pool * p = &padded[i];
        struct op_test t = conv_test("F32 F16>F32", "4 1 12,5 600,3",
            tagf("%s,k=%d,s=%d,p=%d", p->op == 0 ? "max" : "avg", p->k0, p->s0, p->p0), p, build_pool_1d, ref_pool_1d,
            1e-7);
        t.n_in = 1, t.in[0].layouts = LAYOUT_OFFSET;
        op_test_run(&t);
    }
}

// Areas of -inf, of -FLT_MAX and of NaN, larger than windows, with few numbers: windows that have no number above
// -FLT_MAX.
static void fill_pool_least(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    const double least = c->types[k] == GCUDA_TYPE_BF16  ? -0x1.FEp127
                         : c->types[k] == GCUDA_TYPE_F16 ? -65504.0
                                                         : -(double) FLT_MAX;
    FOR_ARR(a) {
        const int64_t area = i0 / 13 + i1 / 11 + i2 + i3;
        const double v = area % 4 == 0     ? -HUGE_VAL
                         : area % 4 == 1   ? least
                         : area % 4 == 2   ? (double) NAN
                         : rng_below(r, 2) ? -HUGE_VAL
                                           : (double) NAN;
        AT(a, i0, i1, i2, i3) = rng_below(r, 40) == 0 ? rng_between(r, -1, 1) : v;
    }
}
static const char * judge_pool(const struct op_case * c, const struct arr * got) { // exact: -FLT_MAX is not -inf
    for (int64_t i = 0; i < arr_n(got); ++i) {
        const double want = c->out->d[i];
        if (isnan(want) ? !isnan(got->d[i]) : got->d[i] != want) {
            return tagf("element %" PRId64 ": want %.9g, got %.9g", i, want, got->d[i]);
        }
    }
    return NULL;
}
// of -inf alone -inf, of NaN alone NaN, of padding alone -FLT_MAX; the gradient goes to the first of the largest
TEST(pool_least) {
    static const struct p_pool sets[] = { { 0, 2, 2, 2, 2, 0, 0, 0, 0 }, { 0, 3, 3, 3, 3, 0, 0, 0, 0 },
        { 0, 3, 3, 1, 1, 1, 1, 0, 0 }, { 0, 2, 2, 2, 2, 2, 2, 0, 0 }, { 0, 3, 2, 3, 3, 3, 4, 0, 0 },
        { 0, 5, 2, 3, 3, 1, 1, 0, 0 }, { 0, 2, 2, 2, 2, 0, 0, 0.75f, 0 } };
    for (int i = 0; i < 7; ++i) {
        const struct p_pool * p = &sets[i];
        char tag[96], shape[96];
        snprintf(tag, sizeof tag, "k=%d.%d,s=%d,p=%d,rest=%g", p->k0, p->k1, p->s0, p->p0, (double) p->rest);
        struct op_test t =
            conv_test("F32 F16>F32 BF16>F32", "48,24,4 70,40,2,2 19,23", tag, p, build_pool_2d, ref_pool_2d, 1e-7);
        t.n_in = 1, t.in[0].fill = fill_pool_least, t.in[0].layouts = LAYOUT_OFFSET, t.name = "pool_least",
        t.judge = judge_pool;
        op_test_run(&t);
        snprintf(shape, sizeof shape, "%d,%d,4|48,24,4", (int) ref_pool_out(48, p->k0, p->s0, p->p0, p->rest),
            (int) ref_pool_out(24, p->k1, p->s1, p->p1, p->rest));
        t = conv_test("F32", shape, tag, p, build_pool_2d_back, ref_pool_2d_back, 1e-7);
        t.in[1].fill = fill_pool_least, t.name = "pool_least/back";
        op_test_run(&t);
    }
    for (int i = 0; i < 8; ++i) {
        const int k = i / 2 + 1, pad = i % 2 * k;
        const struct p_pool p = { 0, k, 1, pad > 0 ? 1 : k, 1, pad, 0, 0, 1 };
        char tag[96];
        snprintf(tag, sizeof tag, "k=%d,p=%d", k, pad);
        struct op_test t = conv_test("F32 F16>F32 BF16>F32", "52,30 7,45,2", tag, &p, build_pool_1d, ref_pool_1d, 1e-7);
        t.n_in = 1, t.in[0].fill = fill_pool_least, t.name = "pool_least/1d", t.judge = judge_pool;
        op_test_run(&t);
    }
}

static void fill_one_to_four(struct rng * r, const struct op_case * c, int k, struct arr * a) {
    (void) r, (void) c, (void) k;
    for (int64_t i = 0; i < arr_n(a); ++i) { a->d[i] = (double) (i + 1); }
}
static void ref_one_to_four(const struct op_case * c) {
    arr_new(c->out, 3, 1, 1, 1);
    c->out->d[0] = 1.0, c->out->d[1] = 2.5, c->out->d[2] = 4.0;
}
TEST(pool_1d_numbers) { // as the field has them
    const struct p_pool p = { 1, 2, 1, 2, 1, 1, 0, 0, 1 };
    struct op_test t = conv_test("F32", "4", "1 2 3 4", &p, build_pool_1d, ref_one_to_four, 0.0);
    t.n_in = 1, t.in[0].fill = fill_one_to_four;
    op_test_run(&t);
}

// >>op:upscale
static struct gcuda_tensor * build_upscale(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * params) {
    const struct p_upscale * p = (const struct p_upscale *) params;
    if (p->factor > 0) { return gcuda_upscale(ctx, in[0], p->factor, (enum gcuda_scale_mode) p->mode); }
    return gcuda_interpolate(ctx, in[0], p->ne[0], p->ne[1], p->ne[2], p->ne[3], (uint32_t) p->mode);
}

TEST(upscale) {
    static const int modes[] = { 0, 1, 2, 0x100, 0x101, 0x102, 0x201, 0x301 };
    static const char * const names[] = { "nearest", "bilinear", "bicubic", "nearest-align", "bilinear-align",
        "bicubic-align", "antialias", "antialias-align" };
    static const struct {
        const char * from;
        int64_t to[4];
    } sizes[] = {
        { "2,5,7,11", { 5, 7, 11, 13 } },
        { "5,7,11,13", { 2, 5, 7, 11 } },
        { "1,4,3", { 2, 8, 3, 1 } },
        { "4,1,2", { 1, 1, 2, 1 } },
        { "1,1", { 3, 1, 1, 1 } },
        { "16,9,2,2", { 16, 9, 2, 2 } },
        { "33,20,2", { 10, 57, 2, 1 } },
        { "130,45", { 600, 97, 1, 1 } },
        { "700,300", { 257, 9, 1, 1 } },
    };
    for (int m = 0; m < 8; ++m) {
        char tag[96];
        for (int i = 0; i < 9; ++i) {
            struct p_upscale p;
            memset(&p, 0, sizeof p);
            memcpy(p.ne, sizes[i].to, sizeof p.ne);
            p.mode = modes[m];
            snprintf(tag, sizeof tag, "%s,to=%d.%d.%d.%d", names[m], (int) p.ne[0], (int) p.ne[1], (int) p.ne[2],
                (int) p.ne[3]);
            struct op_test t =
                conv_test(i == 0 ? "F32 F16 BF16" : "F32", sizes[i].from, tag, &p, build_upscale, ref_upscale, 1e-7);
            t.n_in = 1, t.in[0].layouts = LAYOUT_ANY;
            op_test_run(&t);
        }
        struct p_upscale p;
        memset(&p, 0, sizeof p);
        p.mode = modes[m], p.factor = 2;
        snprintf(tag, sizeof tag, "%s,x2", names[m]);
        struct op_test t =
            conv_test("F32", test_full() ? "512,512,3,2" : "64,33,3,2", tag, &p, build_upscale, ref_upscale, 1e-7);
        t.n_in = 1, t.in[0].layouts = LAYOUT_TRANSPOSED;
        op_test_run(&t);
        t.shapes = "4,3,0 4,3,2,0", t.in[0].layouts = 0;
        op_test_run(&t);
    }
}

TEST(upscale_ends) { // means of numbers whose sum is beyond F32, and of the smallest ones
    static const double ends[][2] = { { 1e38, 3.3e38 }, { -3.3e38, 3.3e38 }, { 1.2e-38, 1e-37 } };
    static const struct {
        const char * from;
        int64_t to[4];
    } sizes[] = { { "33,20,2", { 10, 57, 2, 1 } }, { "130,45", { 7, 9, 1, 1 } }, { "500,200", { 57, 9, 1, 1 } } };
    for (int i = 0; i < 9; ++i) {
        char tag[96];
        struct p_upscale p;
        memset(&p, 0, sizeof p);
        memcpy(p.ne, sizes[i / 3].to, sizeof p.ne);
        p.mode = GCUDA_SCALE_MODE_BILINEAR | GCUDA_SCALE_FLAG_ANTIALIAS;
        snprintf(tag, sizeof tag, "%g,to=%d.%d", ends[i % 3][1] + ends[i % 3][0], (int) p.ne[0], (int) p.ne[1]);
        struct op_test t = conv_test("F32 BF16", sizes[i / 3].from, tag, &p, build_upscale, ref_upscale, 1e-7);
        t.n_in = 1, t.in[0].lo = ends[i % 3][0], t.in[0].hi = ends[i % 3][1];
        op_test_run(&t);
    }
}

#endif
