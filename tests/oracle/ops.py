"""Independent float64 oracles for gcuda's operations: numpy, written from the papers' formulas and the specification.

    python tests/oracle/ops.py build/libgcuda.so [filter] [--seed N]

The forms differ on purpose from the loops of the C references: windows and einsum for convolutions, complex numbers for
rotations, the quadratic "attention" form for recurrences, interpolation matrices for resampling, adjoints for gradients.
Arrays are numpy order: the last axis is ne[0].
"""

import sys

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from gcuda_ctypes import Gcuda

CASES = []


def case(fn):
    CASES.append(fn)
    return fn


class Check:
    """Collects verdicts of one case; the bound is the specification's NMSE, the largest error follows from it."""

    def __init__(self, name):
        self.name, self.n_passed, self.n_failed = name, 0, 0

    def close(self, label, got, want, bound=1e-7):
        got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
        if got.size == want.size:
            got = got.reshape(want.shape)
        why = self.difference(got, want, bound)
        self.n_passed += why is None
        self.n_failed += why is not None
        if why is not None:
            print(f"FAIL {self.name}/{label}: {why}")

    @staticmethod
    def difference(got, want, bound):
        if got.shape != want.shape:
            return f"shape {got.shape}, want {want.shape}"
        if np.isnan(got).any() or np.isnan(want).any():
            return f"NaN: {np.isnan(got).sum()} got, {np.isnan(want).sum()} wanted"
        huge = np.abs(want) >= 3.4e38
        if (huge != (np.abs(got) >= 3.4e38)).any() or (np.sign(got[huge]) != np.sign(want[huge])).any():
            return "infinities differ"
        err, ref = np.where(huge, 0, got - want), np.where(huge, 0, want)
        power = (ref**2).sum()
        nmse = (err**2).sum() / power if power > 0 else float((err != 0).any())
        if nmse > bound:
            return f"NMSE {nmse:.3g} > {bound:g}"
        worst, limit = np.abs(err).max(initial=0), 8 * np.sqrt(bound * power / max(ref.size, 1))
        return f"max |err| {worst:.3g}, limit {limit:.3g}" if worst > limit else None


def f32(x):
    return np.ascontiguousarray(x, np.float32)


def f16(x):
    return np.ascontiguousarray(x, np.float16)


def i32(x):
    return np.ascontiguousarray(x, np.int32)


def sigmoid(x):
    return 0.5 * (1 + np.tanh(0.5 * x))


def softplus(x):
    return np.logaddexp(0, x)


# ---------------------------------------------------------------------------------------------------- products
@case
def mul_mat(g, rng, ok):
    for m, n, k, batch, ratio in [
        (5, 3, 7, (1, 1), (1, 1)),
        (17, 1, 129, (2, 3), (1, 1)),
        (4, 6, 64, (3, 2), (2, 2)),
        (8, 8, 33, (1, 2), (3, 1)),
    ]:
        for cast in (f32, f16):
            a = cast(rng.uniform(-1, 1, (*batch, m, k)))
            b = f32(rng.uniform(-1, 1, (batch[0] * ratio[0], batch[1] * ratio[1], n, k)))
            wide = np.repeat(np.repeat(a.astype(np.float64), ratio[0], 0), ratio[1], 1)
            want = b.astype(np.float64) @ wide.swapaxes(-1, -2)
            ok.close(f"{m}x{n}x{k}", g.run(lambda c, a, b: g.mul_mat(c, a, b), a, b), want, 5e-4)


@case
def mul_mat_id(g, rng, ok):
    for n_expert, used, shared, tokens in [(4, 2, True, 5), (8, 4, False, 17), (3, 3, True, 1)]:
        w = f32(rng.uniform(-1, 1, (n_expert, 12, 32)))
        b = f32(rng.uniform(-1, 1, (tokens, 1 if shared else used, 32)))
        ids = i32(rng.integers(0, n_expert, (tokens, used)))  # an expert may occur twice in a token
        want = np.einsum("tumk,tuk->tum", w[ids].astype(np.float64), np.broadcast_to(b, (tokens, used, 32)))
        ok.close(f"E{n_expert}U{used}", g.run(lambda c, w, b, i: g.mul_mat_id(c, w, b, i), w, b, ids), want, 5e-4)


@case
def out_prod(g, rng, ok):
    for m, n, k, batch, ratio in [(7, 5, 1, (1, 1), (1, 1)), (16, 9, 13, (2, 1), (1, 3)), (3, 4, 16, (1, 3), (2, 2))]:
        a = f32(rng.uniform(-1, 1, (*batch, k, m)))
        b = f32(rng.uniform(-1, 1, (batch[0] * ratio[0], batch[1] * ratio[1], k, n)))
        wide = np.repeat(np.repeat(a.astype(np.float64), ratio[0], 0), ratio[1], 1)
        want = b.astype(np.float64).swapaxes(-1, -2) @ wide
        ok.close(f"{m}x{n}x{k}", g.run(lambda c, a, b: g.out_prod(c, a, b), a, b), want, 5e-4)


# ---------------------------------------------------------------------------------------------------- norms
@case
def norms(g, rng, ok):
    for n in (1, 2, 63, 256, 1025):
        for eps in (1e-6, 1e-2, 0.1):
            x = f32(rng.uniform(-10, 10, (2, 3, 4, n)))
            d = x.astype(np.float64)
            centered = d - d.mean(-1, keepdims=True)
            ok.close(
                f"norm/{n}",
                g.run(lambda c, a: g.norm(c, a, eps), x),
                centered / np.sqrt(d.var(-1, keepdims=True) + eps),
            )
            rms = np.sqrt(np.einsum("...i,...i->...", d, d)[..., None] / n + eps)
            ok.close(f"rms_norm/{n}", g.run(lambda c, a: g.rms_norm(c, a, eps), x), d / rms)
            l2 = np.linalg.norm(d, axis=-1, keepdims=True)
            ok.close(f"l2_norm/{n}", g.run(lambda c, a: g.l2_norm(c, a, eps), x), d / np.maximum(l2, eps))
            dy = rng.uniform(-1, 1, x.shape)
            # the Jacobian of x/rms applied to dy
            jac = (
                np.eye(n) / rms[..., None] - d[..., :, None] * d[..., None, :] / (n * rms[..., None] ** 3)
                if n < 300
                else None
            )
            if jac is not None:
                want = np.einsum("...ij,...j->...i", jac, f32(dy).astype(np.float64))
                ok.close(f"rms_norm_back/{n}", g.run(lambda c, a, b: g.rms_norm_back(c, a, b, eps), f32(dy), x), want)


@case
def group_norm(g, rng, ok):
    for channels, groups in [(4, 2), (6, 6), (8, 1), (7, 3), (5, 4)]:
        x = f32(rng.uniform(-3, 5, (2, channels, 5, 6)))
        size = -(-channels // groups)
        parts = [x[:, c : c + size].astype(np.float64) for c in range(0, channels, size)]
        want = [(p - p.mean((1, 2, 3), keepdims=True)) / np.sqrt(p.var((1, 2, 3), keepdims=True) + 1e-5) for p in parts]
        ok.close(
            f"C{channels}G{groups}", g.run(lambda c, a: g.group_norm(c, a, groups, 1e-5), x), np.concatenate(want, 1)
        )


# ---------------------------------------------------------------------------------------------------- softmax, attention
def alibi_slopes(n_head, max_bias):
    """Press et al. 2022: a geometric series for a power of two; else every other slope of the next longer series."""
    if max_bias <= 0:
        return np.ones(n_head)

    def series(n):
        return 2.0 ** (-max_bias * np.arange(1, n + 1) / n)

    pow2 = 1 << (n_head.bit_length() - 1)
    return np.concatenate([series(pow2), series(2 * pow2)[0::2][: n_head - pow2]])


def softmax_with_sink(logits, sinks):
    """Append the sink as one more column, normalize, drop the column. Rows without any finite logit give zeros."""
    dead = np.isneginf(logits).all(-1, keepdims=True)
    full = (
        logits if sinks is None else np.concatenate([logits, np.broadcast_to(sinks, logits.shape[:-1])[..., None]], -1)
    )
    top = full.max(-1, keepdims=True)
    e = np.exp(full - np.where(np.isfinite(top), top, 0))
    z = e.sum(-1, keepdims=True)
    return np.where(dead, 0, (e / np.where(z == 0, 1, z))[..., : logits.shape[-1]])


def random_mask(rng, shape):
    mask = rng.uniform(-1, 1, shape)
    mask[rng.uniform(size=shape) < 0.3] = -np.inf
    mask[..., -1, :] = -np.inf  # one row without anything to look at
    return mask


@case
def soft_max(g, rng, ok):
    for n, rows, heads, batch, m2, m3 in [
        (16, 5, 4, 1, 1, 1),
        (15, 16, 6, 3, 3, 1),
        (257, 3, 12, 2, 1, 2),
        (1, 1, 1, 1, 1, 1),
    ]:
        for max_bias in (0.0, 8.0):
            for scale in (1.0, 0.1):
                for kind in (None, f16, f32):
                    for with_sinks in (False, True):
                        if kind is None and max_bias > 0:
                            continue
                        a = f32(rng.uniform(-2, 2, (batch, heads, rows, n)))
                        mask = None if kind is None else kind(random_mask(rng, (m3, m2, rows + 2, n)))
                        sinks = f32(rng.uniform(-3, 3, heads)) if with_sinks else None
                        w = a.astype(np.float64) * scale
                        if mask is not None:
                            wide = np.tile(mask.astype(np.float64), (batch // m3, heads // m2, 1, 1))[:, :, :rows]
                            w = w + alibi_slopes(heads, max_bias)[:, None, None] * wide
                        want = softmax_with_sink(w, None if sinks is None else sinks.astype(np.float64)[:, None])

                        def build(c, a, *rest):
                            rest = list(rest)
                            y = g.soft_max_ext(c, a, rest.pop(0) if mask is not None else None, scale, max_bias)
                            if with_sinks:
                                g.soft_max_add_sinks(y, rest.pop(0))
                            return y

                        got = g.run(build, a, *[t for t in (mask, sinks) if t is not None])
                        ok.close(f"n{n}/bias{max_bias}/sinks{with_sinks}", got, want, 1e-6)


@case
def soft_max_back(g, rng, ok):
    y = rng.dirichlet(np.ones(33), (2, 3, 4))
    dy = rng.uniform(-1, 1, y.shape)
    jac = y[..., :, None] * (np.eye(33) - y[..., None, :])
    got = g.run(lambda c, a, b: g.soft_max_ext_back(c, a, b, 0.5, 0.0), f32(dy), f32(y))
    ok.close("33", got, 0.5 * np.einsum("...ij,...j->...i", jac, dy))


@case
def flash_attn(g, rng, ok):
    shapes = [
        (40, 40),
        (64, 64),
        (72, 72),
        (80, 80),
        (96, 96),
        (112, 112),
        (128, 128),
        (256, 256),
        (576, 512),
        (16, 24),
    ]
    for i, (dk, dv) in enumerate(shapes):
        for kv, n, hk, gqa, batch in [(113, 3, 2, 1, 1), (17, 1, 1, 12, 2), (64, 5, 2, 4, 3)]:
            for cast in (f32, f16):
                for mask_on, sink_on, bias, cap in [
                    (0, 0, 0.0, 0.0),
                    (1, 0, 8.0, 0.0),
                    (1, 1, 0.0, 10.0),
                    (0, 1, 0.0, 0.0),
                ]:
                    if i % 3 and (cast is f16) != bool(mask_on):
                        continue  # thinner for two of three head sizes
                    heads = hk * gqa
                    q = f32(rng.uniform(-1, 1, (batch, heads, n, dk)))
                    k, v = (cast(rng.uniform(-1, 1, (batch, hk, kv, d))) for d in (dk, dv))
                    mask = f16(random_mask(rng, (1, 1, n + 1, kv))) if mask_on else None
                    sinks = f32(rng.uniform(-3, 3, heads)) if sink_on else None
                    scale = dk**-0.5
                    kw, vw = (np.repeat(t.astype(np.float64), gqa, 1) for t in (k, v))
                    x = q.astype(np.float64) @ kw.swapaxes(-1, -2) * scale
                    if cap:
                        x = cap * np.tanh(x / cap)
                    if mask is not None:
                        x = x + alibi_slopes(heads, bias)[:, None, None] * mask.astype(np.float64)[:, :, :n]
                    p = softmax_with_sink(x, None if sinks is None else sinks.astype(np.float64)[:, None])
                    want = (p @ vw).transpose(0, 2, 1, 3)

                    def build(c, q, k, v, *rest):
                        rest = list(rest)
                        y = g.flash_attn_ext(c, q, k, v, rest.pop(0) if mask is not None else None, scale, bias, cap)
                        if sink_on:
                            g.flash_attn_ext_add_sinks(y, rest.pop(0))
                        return y

                    got = g.run(build, q, k, v, *[t for t in (mask, sinks) if t is not None])
                    ok.close(f"{dk}/{dv}/kv{kv}/gqa{gqa}/mask{mask_on}/sinks{sink_on}/cap{cap}", got, want, 5e-4)


@case
def flash_attn_back(g, rng, ok):
    for dk, dv, kv, n, hk, gqa, batch, mask_on, sink_on, bias, cap in [
        (64, 64, 70, 33, 2, 2, 1, 0, 0, 0.0, 0.0),
        (40, 24, 17, 5, 1, 3, 2, 1, 0, 8.0, 0.0),
        (128, 128, 65, 9, 2, 1, 1, 1, 1, 0.0, 3.0),
        (16, 16, 33, 12, 3, 2, 2, 0, 1, 0.0, 0.0),
    ]:
        heads, scale = hk * gqa, dk**-0.5
        q = f32(rng.uniform(-2, 2, (batch, heads, n, dk)))
        k, v = (f16(rng.uniform(-2, 2, (batch, hk, kv, d))) for d in (dk, dv))
        dy = f32(rng.uniform(-1, 1, (batch, n, heads, dv)))
        mask = f16(random_mask(rng, (1, 1, n, kv))) if mask_on else None
        sinks = f32(rng.uniform(-3, 3, heads)) if sink_on else None
        kw, vw = (np.repeat(t.astype(np.float64), gqa, 1) for t in (k, v))
        z = q.astype(np.float64) @ kw.swapaxes(-1, -2) * scale
        x = cap * np.tanh(z / cap) if cap else z
        if mask is not None:
            x = x + alibi_slopes(heads, bias)[:, None, None] * mask.astype(np.float64)
        s = None if sinks is None else sinks.astype(np.float64)[:, None]
        p = softmax_with_sink(x, s)
        y, gy = p @ vw, dy.astype(np.float64).swapaxes(1, 2)
        dot = (y * gy).sum(-1, keepdims=True)
        dx = p * (gy @ vw.swapaxes(-1, -2) - dot)
        dz = dx * scale * (1 - np.tanh(z / cap) ** 2 if cap else 1.0)
        shared = lambda t: t.reshape(batch, hk, gqa, *t.shape[2:]).sum(2)
        parts = [dz @ kw, shared(dz.swapaxes(-1, -2) @ q.astype(np.float64)), shared(p.swapaxes(-1, -2) @ gy)]
        if sink_on:
            parts.append(-((1 - p.sum(-1, keepdims=True)) * dot).sum((0, 2, 3)))

        def build(c, q, k, v, y, dy, *rest):
            rest = list(rest)
            m = rest.pop(0) if mask is not None else None
            return g.flash_attn_ext_back(c, q, k, v, y, dy, m, rest.pop(0) if sink_on else None, scale, bias, cap)

        got = g.run(build, q, k, v, f32(y.swapaxes(1, 2)), dy, *[t for t in (mask, sinks) if t is not None]).ravel()
        for name, want in zip(("q", "k", "v", "sinks"), parts):
            ok.close(f"{dk}/{dv}/kv{kv}/gqa{gqa}/mask{mask_on}/sinks{sink_on}/cap{cap}/{name}", got[: want.size], want.ravel(), 1e-6)
            got = got[want.size :]


# ---------------------------------------------------------------------------------------------------- rope
def yarn_angles(theta, n_dims, n_ctx, base, scale, ext, attn, fast, slow):
    """Peng et al. 2023: wavelengths longer than the context are interpolated, short ones extrapolated, a ramp between."""
    if ext == 0:
        return theta * scale, attn
    with np.errstate(divide="ignore"):
        low, high = (n_dims * np.log(np.float64(n_ctx) / (r * 2 * np.pi)) / (2 * np.log(base)) for r in (fast, slow))
    low, high = max(0.0, np.floor(low)), min(n_dims - 1.0, np.ceil(high))
    position = (np.arange(theta.shape[-1]) - low) / max(0.001, high - low)
    mix = (1 - np.clip(position, 0, 1)) * ext
    return theta * (scale * (1 - mix) + mix), attn * (1 - 0.1 * np.log(scale))


def rope_positions(mode, sections, pos, n_pairs):
    """Position and exponent of every (token, pair)."""
    pairs = np.arange(n_pairs)
    if not mode & 8:
        return np.repeat(pos[:, None], n_pairs, 1), pairs
    q = pairs % sum(sections)
    if mode == 40:
        plane = np.full(n_pairs, 3)
        for residue, p in ((0, 0), (1, 1), (2, 2)):
            plane[(q % 3 == residue) & (q < 3 * sections[p])] = p
        return pos[plane].T, pairs
    starts = np.concatenate([[0], np.cumsum(sections)])
    plane = np.minimum(np.searchsorted(starts[1:], q, side="right"), 3)
    return pos[plane].T, q - starts[plane] if mode == 24 else pairs


def rope_reference(x, pos, factors, n_dims, mode, sections, n_ctx, base, scale, ext, attn, fast, slow, back):
    n_pairs = n_dims if mode == 24 else n_dims // 2
    p, e = rope_positions(mode, sections, pos.astype(np.float64), n_pairs)
    theta = p * base ** (-2.0 * e / n_dims)
    if factors is not None:
        theta = theta / factors[:n_pairs].astype(np.float64)
    theta, magnitude = yarn_angles(theta, n_dims, n_ctx, base, scale, ext, attn, fast, slow)
    turn = magnitude * np.exp((-1j if back else 1j) * theta)[None, :, None, :]
    y = x.astype(np.float64).copy()
    pick = (slice(0, n_dims, 2), slice(1, n_dims, 2)) if mode == 0 else (slice(0, n_pairs), slice(n_pairs, 2 * n_pairs))
    z = (y[..., pick[0]] + 1j * y[..., pick[1]]) * turn
    y[..., pick[0]], y[..., pick[1]] = z.real, z.imag
    return y


@case
def rope(g, rng, ok):
    settings = [
        (0, 1.0, 0.0, 1.0, 0.0, 0.0),
        (512, 0.25, 0.7465, 1.4245, 32.0, 1.0),
        (0, 1.4245, 0.7465, 1.4245, 1.0, 1.0),
        (4096, 0.5, 1.0, 1.0, 32.0, 1.0),
    ]
    for mode in (0, 2, 8, 24, 40):
        for d, n_dims in [(64, 64), (128, 32), (80, 20), (16, 16)]:
            if mode == 24:
                n_dims = d // 2
            third = max(n_dims // 3, 1)
            sections = [max(n_dims // 4, 1), max(n_dims // 4, 1), 0, 0] if mode == 24 else [third, third, third, 0]
            if mode == 40:
                sections = [n_dims // 6 + 1, n_dims // 6, n_dims // 6, 1]
            for n_ctx, scale, ext, attn, fast, slow in settings:
                for cast, with_factors, back in [(f32, 0, 0), (f32, 1, 0), (f16, 1, 0), (f32, 1, 1), (f32, 0, 1)]:
                    tokens = 5
                    x = cast(rng.uniform(-1, 1, (3, tokens, 2, d)))
                    pos = i32(rng.integers(0, 8192, (4, tokens) if mode & 8 else tokens))
                    factors = f32(rng.uniform(0.9, 1.1, d)) if with_factors else None
                    want = rope_reference(
                        x,
                        pos,
                        factors,
                        n_dims,
                        mode,
                        sections,
                        n_ctx,
                        10000.0,
                        np.float64(np.float32(scale)),
                        np.float64(np.float32(ext)),
                        np.float64(np.float32(attn)),
                        fast,
                        slow,
                        back,
                    )
                    tail = (n_ctx, 10000.0, scale, ext, attn, fast, slow)

                    def build(c, x, p, f=None):
                        if mode & 8:
                            op = g.rope_multi_back if back else g.rope_multi
                            return op(c, x, p, f, n_dims, g.ints(sections), mode, *tail)
                        op = g.rope_ext_back if back else g.rope_ext
                        return op(c, x, p, f, n_dims, mode, *tail)

                    got = g.run(build, x, pos.reshape(-1), *([] if factors is None else [factors]))
                    ok.close(
                        f"mode{mode}/d{d}/{n_dims}/ext{ext}/ctx{n_ctx}/{x.dtype}/ff{with_factors}/back{back}",
                        got,
                        want,
                        1e-7 if cast is f32 else 1e-6,
                    )


# ---------------------------------------------------------------------------------------------------- convolutions
def out_size(n, k, s, p, d):
    return (n + 2 * p - d * (k - 1) - 1) // s + 1


def windows_2d(x, k, s, p, d):
    """[..., H, W] -> [..., OH, OW, KH, KW]; k, s, p, d are (height, width)."""
    pad = [(0, 0)] * (x.ndim - 2) + [(p[0], p[0]), (p[1], p[1])]
    full = sliding_window_view(np.pad(x, pad), tuple((n - 1) * e + 1 for n, e in zip(k, d)), axis=(-2, -1))
    return full[..., :: s[0], :: s[1], :: d[0], :: d[1]]


CONV_SETTINGS = [((1, 1), (0, 0), (1, 1)), ((2, 1), (1, 2), (1, 1)), ((3, 2), (3, 0), (1, 2)), ((1, 3), (2, 5), (2, 3))]


@case
def conv_2d(g, rng, ok):
    """s, p, d are (height, width) here; the library takes width first."""
    for (h, w), (kh, kw), ic, oc, n in [
        ((9, 11), (3, 3), 2, 4, 2),
        ((7, 13), (1, 2), 3, 1, 1),
        ((15, 8), (3, 2), 1, 5, 3),
        ((12, 12), (5, 4), 4, 2, 2),
    ]:
        for s, p, d in CONV_SETTINGS:
            if min(out_size(h, kh, s[0], p[0], d[0]), out_size(w, kw, s[1], p[1], d[1])) < 1:
                continue
            for cast in (f32, f16):
                a, b = cast(rng.uniform(-1, 1, (oc, ic, kh, kw))), f32(rng.uniform(-1, 1, (n, ic, h, w)))
                win = windows_2d(b.astype(np.float64), (kh, kw), s, p, d)
                want = np.einsum("nchwyx,ocyx->nohw", win, a.astype(np.float64))
                args = (s[1], s[0], p[1], p[0], d[1], d[0])
                ok.close("direct", g.run(lambda c, a, b: g.conv_2d_direct(c, a, b, *args), a, b), want, 5e-4)
                ok.close("im2col", g.run(lambda c, a, b: g.conv_2d(c, a, b, *args), a, b), want, 5e-4)
                cols = win.transpose(0, 2, 3, 1, 4, 5)  # n, oh, ow, ic, kh, kw
                for out_type in (f32, f16):
                    got = g.run(lambda c, a, b: g.im2col(c, a, b, *args, True, g.type_of(out_type)), a, b)
                    ok.close("columns", got, cols.reshape(*cols.shape[:3], -1), 1e-7 if out_type is f32 else 1e-6)
                dy = f32(rng.uniform(-1, 1, (*cols.shape[:3], ic * kh * kw)))
                back = np.asarray(
                    g.run(lambda c, y, a: g.im2col_back(c, y, a, g.longs([w, h, ic, n]), *args, True), dy, a),
                    np.float64,
                )
                # the adjoint identity <im2col(x), dy> = <x, im2col_back(dy)> for several x is the definition
                for _ in range(3):
                    x = rng.uniform(-1, 1, (n, ic, h, w))
                    left = (
                        windows_2d(x, (kh, kw), s, p, d).transpose(0, 2, 3, 1, 4, 5).ravel()
                        * dy.astype(np.float64).ravel()
                    ).sum()
                    ok.close("columns_back", [(x * back.reshape(x.shape)).sum() + 100], [left + 100], 1e-12)


@case
def conv_2d_depthwise(g, rng, ok):
    for (h, w), (kh, kw), ch, n in [((17, 9), (3, 3), 9, 1), ((8, 12), (2, 3), 4, 3)]:
        for s, p, d in CONV_SETTINGS:
            if min(out_size(h, kh, s[0], p[0], d[0]), out_size(w, kw, s[1], p[1], d[1])) < 1:
                continue
            a, b = rng.uniform(-1, 1, (ch, 1, kh, kw)), f32(rng.uniform(-1, 1, (n, ch, h, w)))
            args = (s[1], s[0], p[1], p[0], d[1], d[0])
            for kernel, name, bound in ((f32(a), "direct", 1e-7), (f16(a), "im2col", 5e-4)):
                want = np.einsum(
                    "nchwyx,cyx->nchw",
                    windows_2d(b.astype(np.float64), (kh, kw), s, p, d),
                    kernel[:, 0].astype(np.float64),
                )
                op = g.conv_2d_dw_direct if name == "direct" else g.conv_2d_dw
                ok.close(name, g.run(lambda c, a, b: op(c, a, b, *args), kernel, b), want, bound)


@case
def conv_1d(g, rng, ok):
    for length, k, ic, oc, n, s, p, d in [
        (20, 3, 2, 4, 2, 1, 0, 1),
        (31, 4, 3, 1, 1, 2, 3, 2),
        (9, 1, 1, 2, 3, 3, 1, 1),
        (40, 5, 4, 3, 2, 1, 2, 3),
    ]:
        a, b = f16(rng.uniform(-1, 1, (oc, ic, k))), f32(rng.uniform(-1, 1, (n, ic, length)))
        taps = np.zeros((oc, ic, (k - 1) * d + 1))
        taps[..., ::d] = a
        padded = np.pad(b.astype(np.float64), ((0, 0), (0, 0), (p, p)))
        want = np.array(
            [
                [sum(np.correlate(padded[i, c], taps[o, c], "valid") for c in range(ic))[::s] for o in range(oc)]
                for i in range(n)
            ]
        )
        ok.close("conv_1d", g.run(lambda c, a, b: g.conv_1d(c, a, b, s, p, d), a, b), want, 5e-4)
        ka = f16(rng.uniform(-1, 1, (ic, 1, k)))
        taps = np.zeros((ic, (k - 1) * d + 1))
        taps[:, ::d] = ka[:, 0]
        want = np.array([np.correlate(padded[0, c], taps[c], "valid")[::s] for c in range(ic)])
        ok.close("conv_1d_dw", g.run(lambda c, a, b: g.conv_1d_dw(c, a, b, s, p, d), ka, f32(b[:1])), want, 5e-4)


@case
def conv_3d(g, rng, ok):
    for (dd, h, w), (kd, kh, kw), ic, oc, n in [((5, 6, 7), (3, 3, 3), 2, 3, 2), ((4, 9, 5), (1, 2, 3), 3, 2, 1)]:
        for s, p, dil in [((1, 1, 1), (0, 0, 0), (1, 1, 1)), ((2, 1, 3), (1, 2, 1), (1, 2, 1))]:
            a, b = f32(rng.uniform(-1, 1, (oc, ic, kd, kh, kw))), f32(rng.uniform(-1, 1, (n, ic, dd, h, w)))
            span = tuple((k - 1) * e + 1 for k, e in zip((kd, kh, kw), dil))
            full = np.pad(b.astype(np.float64), [(0, 0), (0, 0)] + [(q, q) for q in p])
            if any(f < e for f, e in zip(full.shape[2:], span)):
                continue
            win = sliding_window_view(full, span, axis=(2, 3, 4))[
                :, :, :: s[0], :: s[1], :: s[2], :: dil[0], :: dil[1], :: dil[2]
            ]
            want = np.einsum("ncdhwzyx,oczyx->nodhw", win, a.astype(np.float64))
            args = (ic, s[2], s[1], s[0], p[2], p[1], p[0], dil[2], dil[1], dil[0])
            fa, fb = a.reshape(oc * ic, kd, kh, kw), b.reshape(n * ic, dd, h, w)
            ok.close("conv_3d", g.run(lambda c, a, b: g.conv_3d(c, a, b, *args), fa, fb), want, 5e-4)
            cols = win.transpose(0, 2, 3, 4, 1, 5, 6, 7)
            got = g.run(lambda c, a, b: g.im2col_3d(c, a, b, *args, g.type_of(f32)), fa, fb)
            ok.close("im2col_3d", got, cols.reshape(cols.shape[0] * cols.shape[1], *cols.shape[2:4], -1))


def spread(x, stride):
    """Zeros between the samples of the last two axes."""
    y = np.zeros((*x.shape[:-2], (x.shape[-2] - 1) * stride[0] + 1, (x.shape[-1] - 1) * stride[1] + 1))
    y[..., :: stride[0], :: stride[1]] = x
    return y


def transposed_conv(x, a, stride):
    """[N, IC, H, W] and [IC, OC, KH, KW]: a plain convolution of the spread input with the flipped kernel."""
    kh, kw = a.shape[-2:]
    win = windows_2d(spread(x, stride), (kh, kw), (1, 1), (kh - 1, kw - 1), (1, 1))
    return np.einsum("nihwyx,ioyx->nohw", win, a[..., ::-1, ::-1])


@case
def conv_transpose(g, rng, ok):
    for length, k, ic, oc, s in [(1, 1, 1, 1, 1), (13, 3, 7, 9, 1), (6, 2, 3, 2, 3), (17, 40, 2, 3, 2)]:
        a, b = f32(rng.uniform(-1, 1, (ic, oc, k))), f32(rng.uniform(-1, 1, (ic, length)))
        want = transposed_conv(b[None, :, None].astype(np.float64), a[:, :, None].astype(np.float64), (1, s))[0, :, 0]
        ok.close("1d", g.run(lambda c, a, b: g.conv_transpose_1d(c, a, b, s, 0, 1), a, b), want)
    for (h, w), (kh, kw), ic, oc, n, s in [
        ((2, 3), (2, 2), 3, 1, 1, 1),
        ((10, 9), (3, 3), 9, 2, 2, 2),
        ((4, 5), (2, 3), 2, 4, 3, 3),
    ]:
        a, b = f16(rng.uniform(-1, 1, (ic, oc, kh, kw))), f32(rng.uniform(-1, 1, (n, ic, h, w)))
        want = transposed_conv(b.astype(np.float64), a.astype(np.float64), (s, s))
        ok.close("2d", g.run(lambda c, a, b: g.conv_transpose_2d_p0(c, a, b, s), a, b), want, 5e-4)


@case
def pooling(g, rng, ok):
    for kind in (0, 1):
        for k in ((1, 1), (3, 3), (2, 3)):
            for s in ((1, 1), (2, 2), (3, 1)):
                for p in ((0, 0), (1, 1)):
                    if p == (1, 1) and k == (1, 1):
                        continue
                    x = f32(rng.permutation(2 * 3 * 10 * 11).reshape(2, 3, 10, 11) / 330 - 1)
                    fill = -np.inf if kind == 0 else 0.0
                    full = np.pad(
                        x.astype(np.float64), [(0, 0)] * 2 + [(p[0], p[0]), (p[1], p[1])], constant_values=fill
                    )
                    win = sliding_window_view(full, k, axis=(-2, -1))[..., :: s[0], :: s[1], :, :]
                    want = win.max((-2, -1)) if kind == 0 else win.mean((-2, -1))
                    args = (kind, k[1], k[0], s[1], s[0], g.real(p[1]), g.real(p[0]))
                    ok.close("2d", g.run(lambda c, a: g.pool_2d(c, a, *args), x), want)
                    dy = f32(rng.uniform(-1, 1, want.shape))
                    got = np.asarray(g.run(lambda c, d, a: g.pool_2d_back(c, d, a, *args), dy, x), np.float64).reshape(
                        x.shape
                    )
                    # directional derivative: a small step keeps every window's winner, so the difference quotient is exact
                    v, h = rng.uniform(-1, 1, x.shape), 1e-6
                    moved = np.pad(x + h * v, [(0, 0)] * 2 + [(p[0], p[0]), (p[1], p[1])], constant_values=fill)
                    win2 = sliding_window_view(moved, k, axis=(-2, -1))[..., :: s[0], :: s[1], :, :]
                    want2 = win2.max((-2, -1)) if kind == 0 else win2.mean((-2, -1))
                    ok.close("2d_back", [(got * v).sum() + 10], [((want2 - want) / h * dy).sum() + 10], 1e-9)
    for kind in (0, 1):
        x = f32(rng.uniform(-1, 1, (2, 3, 12)))
        win = x.astype(np.float64).reshape(2, 3, 4, 3)
        got = g.run(lambda c, a: g.pool_1d(c, a, kind, 3, 3, 0), x)
        ok.close("1d", got, win.max(-1) if kind == 0 else win.mean(-1))


# ---------------------------------------------------------------------------------------------------- resampling
def keys_kernel(z, a=-0.75):
    """Keys 1981, cubic convolution."""
    z = np.abs(z)
    near = (a + 2) * z**3 - (a + 3) * z**2 + 1
    far = a * z**3 - 5 * a * z**2 + 8 * a * z - 4 * a
    return np.where(z <= 1, near, np.where(z < 2, far, 0))


def resampling_matrix(n_out, n_in, mode, align, antialias):
    """[n_out, n_in]: every row holds the weights of one output sample."""
    ratio = np.float32(n_out) / np.float32(n_in)
    if align and n_out > 1 and n_in > 1:
        ratio = np.float32(n_out - 1) / np.float32(n_in - 1)
    i = np.arange(n_out, dtype=np.float32)
    if mode == 0:
        return np.eye(n_in)[(i / ratio).astype(int)]
    offset = np.float32(0 if align else 0.5)
    x = ((i + offset) / ratio - offset).astype(np.float64)
    if antialias:
        center, support = (i + offset) / ratio, max(np.float32(1), np.float32(1) / ratio)
        taps = np.arange(n_in)
        w = np.maximum(0, 1 - np.abs(taps - center.astype(np.float64)[:, None] + float(offset)) / float(support))
        # the definition ends the sum here, in F32, which drops a tap of weight > 0 when corners are aligned
        w *= (taps >= np.trunc(center - support + offset)[:, None]) & (
            taps < np.trunc(center + support + offset)[:, None]
        )
        return w / np.where(w.sum(1, keepdims=True) == 0, 1, w.sum(1, keepdims=True))
    if mode == 1:  # piecewise linear with constant ends: exactly what np.interp does with each unit vector
        return np.stack([np.interp(x, np.arange(n_in), e) for e in np.eye(n_in)], 1)
    w = np.zeros((n_out, n_in))
    for tap in range(-1, 3):
        index = np.floor(x).astype(int) + tap
        np.add.at(w, (np.arange(n_out), np.clip(index, 0, n_in - 1)), keys_kernel(x - index))
    return w


@case
def upscale(g, rng, ok):
    for src, dst in [
        ((2, 5, 7, 11), (5, 7, 11, 13)),
        ((5, 7, 11, 13), (2, 5, 7, 11)),
        ((1, 1, 1, 4), (1, 1, 2, 8)),
        ((1, 1, 4, 1), (1, 1, 1, 1)),
        ((1, 3, 16, 24), (1, 3, 40, 7)),
    ]:
        for mode in (0, 1, 2):
            for align in (False, True):
                for antialias in (False, True) if mode == 1 else (False,):
                    a = f32(rng.uniform(-1, 1, src))
                    rows, cols = (resampling_matrix(dst[d], src[d], mode, align, antialias) for d in (2, 3))
                    outer = [
                        (np.arange(dst[d], dtype=np.float32) / (np.float32(dst[d]) / np.float32(src[d]))).astype(int)
                        for d in (0, 1)
                    ]
                    want = np.einsum("yh,nchw,xw->ncyx", rows, a.astype(np.float64)[outer[0]][:, outer[1]], cols)
                    flags = mode | (0x100 if align else 0) | (0x200 if antialias else 0)
                    got = g.run(lambda c, a: g.interpolate(c, a, *dst[::-1], flags), a)
                    ok.close(f"{src}->{dst}/mode{mode}/align{align}/aa{antialias}", got, want)
    a = f32(rng.uniform(-1, 1, (2, 3, 5, 4)))
    ok.close("factor", g.run(lambda c, a: g.upscale(c, a, 3, 0), a), np.kron(a, np.ones((1, 1, 3, 3))))


# ---------------------------------------------------------------------------------------------------- state space, recurrences
@case
def ssm_conv(g, rng, ok):
    for k, d, t, s in [(4, 8, 1, 2), (3, 5, 7, 1), (9, 3, 40, 3)]:
        x, c = f32(rng.uniform(-1, 1, (s, d, k - 1 + t))), f32(rng.uniform(-1, 1, (d, k)))
        want = np.einsum("sdtk,dk->std", sliding_window_view(x.astype(np.float64), k, axis=-1), c.astype(np.float64))
        ok.close(f"K{k}", g.run(lambda ctx, x, c: g.ssm_conv(ctx, x, c), x, c), want)


@case
def ssm_scan(g, rng, ok):
    """Dao & Gu 2024: the scan is a masked product, y = (C B^T o L) xd plus the decayed initial state."""
    for n, pd, h, groups, t, s, mamba2 in [
        (16, 1, 12, 1, 9, 2, False),
        (8, 4, 6, 2, 7, 3, True),
        (16, 2, 4, 4, 1, 2, True),
        (4, 3, 4, 2, 12, 1, False),
    ]:
        state = f32(rng.uniform(-1, 1, (s + 2, h, pd, n)))
        x, dt = f32(rng.uniform(-1, 1, (s, t, h, pd))), f32(rng.uniform(-2, 3, (s, t, h)))
        dt[0, 0, 0] = 25.0  # beyond the threshold of softplus
        a = f32(-rng.uniform(0.1, 1, (h, 1 if mamba2 else n)))
        b, c = f32(rng.uniform(-1, 1, (s, t, groups, n))), f32(rng.uniform(-1, 1, (s, t, groups, n)))
        ids = i32(rng.permutation(s + 2)[:s])
        delta = softplus(dt.astype(np.float64))
        total = np.cumsum(delta, 1)[..., None] * a.astype(
            np.float64
        )  # log decay up to and including t: s, t, h, n or 1
        total = np.broadcast_to(total, (s, t, h, n))
        lag = total[:, :, None] - total[:, None, :]  # s, t, u, h, n
        decay = np.where(np.tril(np.ones((t, t), bool))[None, :, :, None, None], np.exp(np.minimum(lag, 0)), 0)
        bh, ch = (np.repeat(m.astype(np.float64), h // groups, 2) for m in (b, c))
        xd = x.astype(np.float64) * delta[..., None]
        first = np.exp(total)[..., None, :] * state[ids].astype(np.float64)[:, None]  # s, t, h, p, n
        y = np.einsum("sthn,stuhn,suhn,suhp->sthp", ch, decay, bh, xd) + np.einsum("sthn,sthpn->sthp", ch, first)
        last = first[:, -1] + np.einsum("suhn,suhn,suhp->shpn", decay[:, -1], bh, xd)
        got = np.asarray(g.run(lambda ctx, *v: g.ssm_scan(ctx, *v), state, x, dt, a, b, c, ids)).ravel()
        ok.close(f"y/N{n}P{pd}H{h}", got[: y.size], y.ravel())
        ok.close(f"states/N{n}P{pd}H{h}", got[y.size :], last.ravel())


def decayed_kernel(w):
    """[q, t, h, i] decays -> [q, t, u, h, i]: product over the tokens u+1..t (ones for u = t, zeros for u > t)."""
    logs = np.cumsum(np.log(w), 1)
    n = w.shape[1]
    return np.where(
        np.tril(np.ones((n, n), bool))[None, :, :, None, None],
        np.exp(np.minimum(logs[:, :, None] - logs[:, None], 0)),
        0,
    )


def linear_attention_case(rng, sz, h, t, q):
    k, v, r = (f32(rng.uniform(-1, 1, (q * t, h, sz))) for _ in range(3))
    w = f32(rng.uniform(0.3, 0.999, (q * t, h, sz)))
    state = f32(rng.uniform(-1, 1, (q, h * sz * sz)))
    wide = [x.astype(np.float64).reshape(q, t, h, sz) for x in (k, v, r, w)]
    return (k, v, r, w, state), wide, state.astype(np.float64).reshape(q, h, sz, sz)


SEQUENCES = [(4, 2, 1, 1), (8, 3, 5, 2), (64, 2, 6, 1), (16, 1, 12, 4)]


@case
def rwkv_wkv6(g, rng, ok):
    """Peng et al. 2024: y_t = r_t (diag(u) k_t v_t + sum over s < t of the decayed k_s v_s)."""
    for sz, h, t, q in SEQUENCES:
        (k, v, r, w, state), (kd, vd, rd, wd), s0 = linear_attention_case(rng, sz, h, t, q)
        tf = f32(rng.uniform(-1, 1, (h, sz)))
        upto = decayed_kernel(wd)  # decay of the token's own step included
        final = np.einsum("quhi,quhi,quhj->qhij", upto[:, -1], kd, vd) + wd.prod(1)[..., None] * s0
        before = np.concatenate([np.ones((q, 1, h, sz)), np.cumprod(wd, 1)[:, :-1]], 1)
        # what token t sees of token u < t is decayed by the tokens between, so by one step less than `upto`
        strict = upto / wd[:, :, None]
        strict[:, np.arange(t), np.arange(t)] = 0
        y = np.einsum("qthi,qtuhi,quhi,quhj->qthj", rd, strict, kd, vd) + np.einsum(
            "qthi,qthi,qhij->qthj", rd, before, s0
        )
        y += np.einsum("qthi,hi,qthi,qthj->qthj", rd, tf.astype(np.float64), kd, vd)
        got = np.asarray(g.run(lambda c, *a: g.rwkv_wkv6(c, *a), k, v, r, tf, w, state)).ravel()
        ok.close(f"y/{sz}", got[: y.size], y.ravel())
        ok.close(f"state/{sz}", got[y.size :], final.ravel())


@case
def gated_linear_attn(g, rng, ok):
    """Yang et al. 2023: y_t = scale * q_t S_t, S_t = diag(g_t) S_{t-1} + k_t v_t."""
    for sz, h, t, q in SEQUENCES:
        (k, v, r, w, state), (kd, vd, rd, wd), s0 = linear_attention_case(rng, sz, h, t, q)
        scale, upto = sz**-0.5, decayed_kernel(wd)
        y = np.einsum("qthi,qtuhi,quhi,quhj->qthj", rd, upto, kd, vd) + np.einsum(
            "qthi,qthi,qhij->qthj", rd, np.cumprod(wd, 1), s0
        )
        final = np.einsum("quhi,quhi,quhj->qhij", upto[:, -1], kd, vd) + wd.prod(1)[..., None] * s0
        got = np.asarray(g.run(lambda c, *a: g.gated_linear_attn(c, *a, scale), k, v, r, w, state)).ravel()
        ok.close(f"y/{sz}", got[: y.size], scale * y.ravel())
        ok.close(f"state/{sz}", got[y.size :], final.ravel())


@case
def rwkv_wkv7(g, rng, ok):
    """Peng et al. 2025: S_t = S_{t-1} (diag(w_t) + a_t b_t^T) + v_t k_t^T with S as [value, key]; y_t = S_t r_t."""
    for sz, h, t, q in SEQUENCES:
        (k, v, r, w, state), (kd, vd, rd, wd), s0 = linear_attention_case(rng, sz, h, t, q)
        a, b = (rng.normal(size=(q * t, h, sz)) for _ in range(2))
        a, b = (f32(x / np.linalg.norm(x, axis=-1, keepdims=True)) for x in (a, b))
        ad, bd = (x.astype(np.float64).reshape(q, t, h, sz) for x in (a, b))
        s, y = s0, []
        for i in range(t):
            transition = wd[:, i][..., None] * np.eye(sz) + ad[:, i][..., :, None] * bd[:, i][..., None, :]
            s = s @ transition + vd[:, i][..., :, None] * kd[:, i][..., None, :]
            y.append((s @ rd[:, i][..., None])[..., 0])
        y = np.stack(y, 1)
        got = np.asarray(g.run(lambda c, *x: g.rwkv_wkv7(c, *x), r, w, k, v, a, b, state)).ravel()
        ok.close(f"y/{sz}", got[: y.size], y.ravel())
        ok.close(f"state/{sz}", got[y.size :], s.ravel())


@case
def solve_tri(g, rng, ok):
    for n, k, batch in [(10, 3, (1, 1)), (17, 40, (2, 3)), (42, 7, (1, 4))]:
        a = f32(np.tril(rng.uniform(0.1, 1, (*batch, n, n))))
        a[..., np.arange(n), np.arange(n)] += 1  # keeps numpy's pivoting solver comparable
        b = f32(rng.uniform(-1, 1, (*batch, n, k)))
        want = np.linalg.solve(a.astype(np.float64), b.astype(np.float64))
        ok.close(f"n{n}", g.run(lambda c, a, b: g.solve_tri(c, a, b, True, True, False), a, b), want)


# ---------------------------------------------------------------------------------------------------- loss
@case
def cross_entropy(g, rng, ok):
    for shape, spread_of in [((3, 4, 5, 10), 1.0), ((1, 1, 1, 3000), 100.0), ((1, 1, 7, 33), 20.0)]:
        logits = f32(rng.uniform(-spread_of, spread_of, shape))
        labels = f32(rng.dirichlet(np.ones(shape[-1]), shape[:-1]))
        rows = logits[..., 0].size
        log_p = logits.astype(np.float64) - np.logaddexp.reduce(logits.astype(np.float64), -1, keepdims=True)
        want = -(log_p * labels.astype(np.float64)).sum() / rows
        ok.close("loss", g.run(lambda c, a, b: g.cross_entropy_loss(c, a, b), logits, labels), [want])
        grad = f32([0.37])
        back = (np.exp(log_p) - labels.astype(np.float64)) * float(grad[0]) / rows
        ok.close(
            "gradient", g.run(lambda c, x, a, b: g.cross_entropy_loss_back(c, x, a, b), grad, logits, labels), back
        )


def main():
    args = [a for a in sys.argv[1:] if not a.startswith("--")]
    seed = int(sys.argv[sys.argv.index("--seed") + 1]) if "--seed" in sys.argv else 1
    if "--seed" in sys.argv:
        args.remove(sys.argv[sys.argv.index("--seed") + 1])
    if not args:
        print(__doc__)
        return 2
    g, n_passed, n_failed = Gcuda(args[0]), 0, 0
    for fn in CASES:
        if len(args) > 1 and args[1] not in fn.__name__:
            continue
        ok = Check(fn.__name__)
        try:
            fn(g, np.random.default_rng(seed), ok)
        except Exception as e:  # a case that cannot run is a failed case, the others still run
            print(f"FAIL {fn.__name__}: {type(e).__name__}: {e}")
            ok.n_failed += 1
        n_passed, n_failed = n_passed + ok.n_passed, n_failed + ok.n_failed
    print(f"seed {seed}")
    print(f"{n_passed} passed, {n_failed} failed")
    return n_failed != 0


if __name__ == "__main__":
    sys.exit(main())
