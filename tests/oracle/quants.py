#!/usr/bin/env python3
"""Checks gcuda's block formats against two other implementations.

    quants.py build/libgcuda.so [--seed N] [--verbose]

- The PyPI package gguf dequantizes random valid blocks of every weight format, bit for bit, and quantizes those it
  can, byte for byte.
- What gguf does not quantize is written here a second time from the description of the format, with numpy in F32:
  many blocks at once, the elements of each one after the other, because the order of a sum shows in the bytes.
The library must be built without contraction of a * b + c (-ffp-contract=off).
"""
import argparse
import ctypes
import sys

import numpy as np
from gguf import GGMLQuantizationType as G
from gguf import quants as gguf_quants

f32 = np.float32
TINY = f32(1e-15)

# name: id, elements, bytes, offsets of the F16 scales (and offsets) of a block
TYPES = {
    "Q4_0": (2, 32, 18, [0]), "Q4_1": (3, 32, 20, [0, 2]), "Q5_0": (6, 32, 22, [0]), "Q5_1": (7, 32, 24, [0, 2]),
    "Q8_0": (8, 32, 34, [0]), "Q8_1": (9, 32, 36, [0, 2]), "Q2_K": (10, 256, 84, [80, 82]), "Q3_K": (11, 256, 110, [108]),
    "Q4_K": (12, 256, 144, [0, 2]), "Q5_K": (13, 256, 176, [0, 2]), "Q6_K": (14, 256, 210, [208]),
    "Q8_K": (15, 256, 292, []), "IQ2_XXS": (16, 256, 66, [0]), "IQ2_XS": (17, 256, 74, [0]), "IQ3_XXS": (18, 256, 98, [0]),
    "IQ1_S": (19, 256, 50, [0]), "IQ4_NL": (20, 32, 18, [0]), "IQ3_S": (21, 256, 110, [0]), "IQ2_S": (22, 256, 82, [0]),
    "IQ4_XS": (23, 256, 136, [0]), "IQ1_M": (29, 256, 56, []), "MXFP4": (39, 32, 17, []),
}
PLAIN = {"F16": 1, "BF16": 30}


# ---- the library under test --------------------------------------------------------------------------
class Traits(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("block", ctypes.c_int64), ("bytes", ctypes.c_size_t),
                ("is_quantized", ctypes.c_bool),
                ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
                ("from_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64))]


class Library:
    def __init__(self, path):
        self.c = ctypes.CDLL(path)
        self.c.gcuda_get_type_traits.restype = ctypes.POINTER(Traits)
        self.c.gcuda_quantize_chunk.restype = ctypes.c_size_t
        self.c.gcuda_quantize_chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64,
                                                ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
        self.c.gcuda_quantize_rows.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64,
                                               ctypes.c_int64, ctypes.c_void_p, ctypes.c_int]
        self.c.gcuda_last_error.restype = ctypes.c_char_p

    def traits(self, type_id):
        return self.c.gcuda_get_type_traits(type_id).contents

    def dequantize(self, type_id, blocks):
        t = self.traits(type_id)
        n = blocks.nbytes // t.bytes * t.block
        out = np.empty(n, f32)
        t.to_float(blocks.ctypes.data, out.ctypes.data, n)
        return out

    def quantize_row(self, type_id, x):  # the rule of copies
        t = self.traits(type_id)
        out = np.full(x.size // t.block * t.bytes, 0xAA, np.uint8)
        t.from_float(x.ctypes.data, out.ctypes.data, x.size)
        return out

    def quantize(self, type_id, x, imatrix=None, n_threads=None):  # the offline rule; x has rows
        t = self.traits(type_id)
        out = np.full(x.size // t.block * t.bytes, 0xAA, np.uint8)
        weights = imatrix.ctypes.data if imatrix is not None else None
        if n_threads is None:
            n = self.c.gcuda_quantize_chunk(type_id, x.ctypes.data, out.ctypes.data, 0, x.shape[0], x.shape[1], weights)
            assert n == out.size, self.c.gcuda_last_error()
        else:
            st = self.c.gcuda_quantize_rows(type_id, x.ctypes.data, out.ctypes.data, x.shape[0], x.shape[1], weights,
                                            n_threads)
            assert st == 0, self.c.gcuda_last_error()
        return out


# ---- the second implementation -----------------------------------------------------------------------
# Arrays have one row per block or sub-block; every sum runs over the columns in order.
def ordered_sum(columns):
    total = np.zeros(columns.shape[0], f32)
    for k in range(columns.shape[1]):
        total = total + columns[:, k]
    return total


def nearest(v):
    return np.rint(v).astype(f32)


def divide(a, b):
    """a / b, 0 where b is 0."""
    return np.where(b != 0, np.divide(a, np.where(b != 0, b, 1), dtype=f32), f32(0)).astype(f32)


def extreme(x):
    """The element of largest magnitude, sign kept, the first of several; +0 when all are zero."""
    v = np.take_along_axis(x, np.abs(x).argmax(axis=1)[:, None], axis=1)[:, 0]
    return np.where(v == 0, f32(0), v)


def half(v):
    with np.errstate(over="ignore"):
        return v.astype(np.float16)


def half_bytes(v):
    return half(v).view(np.uint8).reshape(v.shape[0], 2)


def nibbles(q):  # 32 columns of codes
    q = q.astype(np.uint8)
    return q[:, :16] | q[:, 16:] << 4


def fifth_bits(q):
    return np.packbits(q.astype(np.uint8) >> 4, axis=1, bitorder="little")


def search_affine(x, w, max_code, start, step, n_steps, absolute, any_offset=False):
    """5.6: returns scale, min and codes of every row."""
    n, m = x.shape
    lo = x.min(axis=1) if any_offset else np.minimum(x.min(axis=1), f32(0))
    hi = x.max(axis=1)
    flat = ~(hi > lo)
    sw, sx = ordered_sum(w), ordered_sum(w * x)

    def codes(inv, low):
        return np.clip(nearest(inv[:, None] * (x - low[:, None])), 0, max_code).astype(f32)

    def error(scale, low, q):
        diff = scale[:, None] * q + low[:, None] - x
        return ordered_sum(w * (np.abs(diff) if absolute else diff * diff))

    inv = divide(np.full(n, max_code, f32), hi - lo)
    scale = divide(np.ones(n, f32), inv)
    q = codes(inv, lo)
    best = error(scale, lo, q)
    for k in range(n_steps + 1):
        inv = divide((f32(start) + f32(step) * f32(k)) + f32(max_code) + np.zeros(n, f32), hi - lo)
        new = codes(inv, lo)
        sq, sqq, sxq = ordered_sum(w * new), ordered_sum(w * new * new), ordered_sum(w * new * x)
        det = sw * sqq - sq * sq
        new_scale = divide(sw * sxq - sx * sq, det)
        new_lo = divide(sqq * sx - sq * sxq, det)
        if not any_offset:
            clipped = new_lo > 0
            new_scale = np.where(clipped, divide(sxq, sqq), new_scale)
            new_lo = np.where(clipped, f32(0), new_lo)
        new_error = error(new_scale, new_lo, new)
        better = (det > 0) & (new_error < best)
        best = np.where(better, new_error, best)
        scale, lo = np.where(better, new_scale, scale), np.where(better, new_lo, lo)
        q = np.where(better[:, None], new, q)
    return np.where(flat, f32(0), scale), -lo, np.where(flat[:, None], f32(0), q)


def search_symmetric(x, w, max_code):
    """5.7a: returns scale and signed codes."""
    v = extreme(x)
    tiny = np.abs(v) < TINY

    def attempt(numerator):
        inv = divide(np.full(x.shape[0], numerator, f32), v)
        q = np.clip(nearest(inv[:, None] * x), -max_code, max_code - 1)
        return q, ordered_sum(w * x * q), ordered_sum(w * q * q)

    q, a, b = attempt(-f32(max_code))
    scale = divide(a, b)
    best = scale * a
    for k in range(-9, 10):
        if k == 0:
            continue
        new, a, b = attempt(-(f32(max_code) + f32(0.1) * f32(k)))
        better = (b > 0) & (a * a > best * b)
        scale = np.where(better, divide(a, b), scale)
        best = np.where(better, scale * a, best)
        q = np.where(better[:, None], new, q)
    return np.where(tiny, f32(0), scale), np.where(tiny[:, None], f32(-max_code), q)


def sweep(x, w, q, a, b, low, high):
    """5.7b: up to five passes of single-code changes, each row until a pass changes nothing."""
    q, active = q.copy(), np.ones(x.shape[0], bool)
    for _ in range(5):
        changed = np.zeros(x.shape[0], bool)
        for i in range(x.shape[1]):
            xi, wi, old = x[:, i], w[:, i], q[:, i]
            a1 = a - wi * xi * old
            b1 = b - wi * old * old
            new = np.clip(nearest(divide(xi * b1, a1)), low, high)
            a2, b2 = a1 + wi * xi * new, b1 + wi * new * new
            ok = active & (a1 > 0) & (new != old) & (b2 > 0) & (a2 * a2 * b > a * a * b2)
            q[:, i] = np.where(ok, new, old)
            a, b = np.where(ok, a2, a), np.where(ok, b2, b)
            changed |= ok
        active &= changed
    return q, a, b


def search_descent(x, max_code):
    v = extreme(x)
    tiny = np.abs(v) < TINY
    w = x * x
    q = np.clip(nearest(divide(np.full(x.shape[0], -max_code, f32), v)[:, None] * x), -max_code, max_code - 1)
    q, a, b = sweep(x, w, q, ordered_sum(w * x * q), ordered_sum(w * q * q), -max_code, max_code - 1)
    return np.where(tiny | ~(b > 0), f32(0), divide(a, b)), np.where(tiny[:, None], f32(-max_code), q)


def search_positive(x, w, max_code):
    """5.8: non-negative vectors of scales; returns the common factor and codes."""
    top = x.max(axis=1)
    tiny = top < TINY
    best, q = np.full(x.shape[0], np.finfo(f32).max, f32), np.zeros_like(x)
    for k in range(-4, 5):
        inv = divide(f32(max_code) + f32(0.1) * f32(k) + np.zeros(x.shape[0], f32), top)
        new = np.clip(nearest(inv[:, None] * x), 0, max_code)
        diff = divide(np.ones(x.shape[0], f32), inv)[:, None] * new - x
        error = ordered_sum(w * (diff * diff))
        better = error < best
        best = np.where(better, error, best)
        q = np.where(better[:, None], new, q)
    q, a, b = sweep(x, w, q, ordered_sum(w * x * q), ordered_sum(w * q * q), 0, max_code)
    return np.where(tiny | ~(b > 0), f32(0), divide(a, b)), np.where(tiny[:, None], f32(0), q)


def mean_square(x):
    return ordered_sum(x * x) / f32(x.shape[1])


def importance_weights(x, iw, variance):
    return iw * np.sqrt(variance[:, None] + x * x)


def quantize_affine_k(x, iw, sub, max_code, max_scale, start, step, n_steps, absolute):
    """Common part of Q2_K, Q4_K, Q5_K; x has 256 columns. Returns d, dmin (F16), scales, mins, codes."""
    n, n_sub = x.shape[0], 256 // sub
    s = x.reshape(-1, sub)
    if iw is None:
        w = np.abs(s) if sub == 16 else np.sqrt(ordered_sum(s * s) / f32(32))[:, None] + np.abs(s)
        scale, low, q = search_affine(s, w, max_code, start, step, n_steps, absolute)
    else:
        variance = np.repeat((f32(1) if sub == 16 else f32(2)) * mean_square(x), n_sub)
        w = importance_weights(s, iw.reshape(-1, sub), variance)
        scale, low, q = search_affine(s, w, max_code, -0.9, 0.05, 36, False)
    scale, low, q = scale.reshape(n, n_sub), low.reshape(n, n_sub), q.reshape(n, 256)

    def common(v):
        if iw is not None:
            return search_positive(v, ordered_sum(w).reshape(n, n_sub), max_scale)
        top = np.maximum(v.max(axis=1), f32(0))
        inv = divide(np.full(n, max_scale, f32), top)
        return top / f32(max_scale), np.clip(nearest(inv[:, None] * v), 0, max_scale)

    d, sc = common(scale)
    dmin, mn = common(low)
    dl = np.repeat(half(d).astype(f32)[:, None] * sc, sub, axis=1)
    ml = np.repeat(half(dmin).astype(f32)[:, None] * mn, sub, axis=1)
    again = np.clip(nearest(divide(x + ml, dl)), 0, max_code)
    return d, dmin, sc.astype(np.uint8), mn.astype(np.uint8), np.where(dl != 0, again, q).astype(np.uint8)


def pack_2bit(q):
    q = (q & 3).reshape(-1, 2, 4, 32)
    return (q[:, :, 0] | q[:, :, 1] << 2 | q[:, :, 2] << 4 | q[:, :, 3] << 6).reshape(-1, 64)


def pack_4bit(q):
    q = (q & 15).reshape(-1, 4, 2, 32)
    return (q[:, :, 0] | q[:, :, 1] << 4).reshape(-1, 128)


def pack_pairs(sc, mn):
    low = [sc[:, g] | sc[:, g + 4] >> 4 << 6 for g in range(4)]
    mid = [mn[:, g] | mn[:, g + 4] >> 4 << 6 for g in range(4)]
    top = [sc[:, g + 4] & 15 | (mn[:, g + 4] & 15) << 4 for g in range(4)]
    return np.stack(low + mid + top, axis=1)


def high_bits(q, shift):
    """Bit g of byte j: bit `shift` of element 32 g + j."""
    bits = (q.reshape(-1, 8, 32) >> shift) & 1
    return np.packbits(bits.transpose(0, 2, 1), axis=2, bitorder="little").reshape(-1, 32)


def quantize_q2_k(x, iw=None):
    d, dmin, sc, mn, q = quantize_affine_k(x, iw, 16, 3, 15, -0.5, 0.1, 15, True)
    return np.concatenate([sc | mn << 4, pack_2bit(q), half_bytes(d), half_bytes(dmin)], axis=1)


def quantize_q4_k(x, iw=None):
    d, dmin, sc, mn, q = quantize_affine_k(x, iw, 32, 15, 63, -1.0, 0.1, 20, False)
    return np.concatenate([half_bytes(d), half_bytes(dmin), pack_pairs(sc, mn), pack_4bit(q)], axis=1)


def quantize_q5_k(x, iw=None):
    d, dmin, sc, mn, q = quantize_affine_k(x, iw, 32, 31, 63, -0.5, 0.1, 15, False)
    return np.concatenate([half_bytes(d), half_bytes(dmin), pack_pairs(sc, mn), high_bits(q, 4), pack_4bit(q)], axis=1)


def requantize_symmetric(x, d, sc, q, max_code):
    dl = np.repeat(half(d).astype(f32)[:, None] * sc, 16, axis=1)
    return np.where(dl != 0, np.clip(nearest(divide(x, dl)), -max_code, max_code - 1), q)


def quantize_q3_k(x, iw=None):
    n, s = x.shape[0], x.reshape(-1, 16)
    if iw is None:
        scale, q = search_descent(s, 4)
        scale = scale.reshape(n, 16)
        v = extreme(scale)
        inv = divide(np.full(n, -32, f32), v)
        sc = np.where(v[:, None] != 0, np.clip(nearest(inv[:, None] * scale), -32, 31), f32(-32))
        d = divide(np.ones(n, f32), inv)
    else:
        w = importance_weights(s, iw.reshape(-1, 16), np.repeat(f32(2) * mean_square(x), 16))
        scale, q = search_symmetric(s, w, 4)
        d, sc = search_symmetric(scale.reshape(n, 16), ordered_sum(w).reshape(n, 16), 32)
    q = (requantize_symmetric(x, d, sc, q.reshape(n, 256), 4) + 4).astype(np.uint8)
    stored = (sc + 32).astype(np.uint8)
    low = [stored[:, g] & 15 | (stored[:, g + 8] & 15) << 4 for g in range(8)]
    top = [stored[:, g] >> 4 | stored[:, g + 4] >> 4 << 2 | stored[:, g + 8] >> 4 << 4 | stored[:, g + 12] >> 4 << 6
           for g in range(4)]
    return np.concatenate([high_bits(q, 2), pack_2bit(q), np.stack(low + top, axis=1), half_bytes(d)], axis=1)


def quantize_q6_k(x, iw=None):
    n, s = x.shape[0], x.reshape(-1, 16)
    scale, q = search_symmetric(s, s * s if iw is None else iw.reshape(-1, 16), 32)
    scale = scale.reshape(n, 16)
    v = extreme(scale)
    empty = np.abs(v) < TINY
    inv = divide(np.full(n, -128, f32), v)
    sc = np.clip(nearest(inv[:, None] * scale), -128, 127)
    d = divide(np.ones(n, f32), inv)
    q = (requantize_symmetric(x, d, sc, q.reshape(n, 256), 32) + 32).astype(np.uint8)
    low = (q & 15).reshape(-1, 2, 2, 64)
    out = np.concatenate([(low[:, :, 0] | low[:, :, 1] << 4).reshape(n, 128), pack_2bit(q >> 4),
                          sc.astype(np.int8).view(np.uint8), half_bytes(d)], axis=1)
    out[empty] = 0
    return out


def quantize_q8_k(x):
    v = extreme(x)
    inv = divide(np.full(x.shape[0], -127, f32), v)
    q = np.minimum(nearest(inv[:, None] * x), 127).astype(np.int8)
    sums = q.reshape(-1, 16, 16).astype(np.int16).sum(axis=2, dtype=np.int16)
    d = divide(np.ones(x.shape[0], f32), inv)
    return np.concatenate([d.view(np.uint8).reshape(-1, 4), q.view(np.uint8), sums.view(np.uint8)], axis=1)


def quantize_q8_1(x):
    d = np.abs(x).max(axis=1) / f32(127)
    scaled = divide(np.ones(x.shape[0], f32), d)[:, None] * x
    q = np.trunc(scaled + np.copysign(f32(0.5), scaled).astype(np.float64)).astype(np.int8)  # exact sum in F64
    s = d * q.astype(np.int32).sum(axis=1).astype(f32)
    return np.concatenate([half_bytes(d), half_bytes(s), q.view(np.uint8)], axis=1)


IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], f32)


def iq4_codes(t):
    """6.3: interval of t, then the nearer end, the upper one on a tie."""
    k = np.clip(np.searchsorted(IQ4, t, side="right"), 1, 15)
    code = np.where(t - IQ4[k - 1] < IQ4[k] - t, k - 1, k)
    return np.where(t <= IQ4[0], 0, np.where(t >= IQ4[15], 15, code))


def iq4_fit(x, w, inv):
    v = IQ4[iq4_codes(inv[:, None] * x)]
    return ordered_sum(w * v * x), ordered_sum(w * v * v)


def quantize_iq4_nl_quick(x):
    v = extreme(x)
    d = np.where(np.abs(v) < TINY, f32(0), v / f32(-127))
    inv = divide(np.ones(x.shape[0], f32), d)
    a, b = iq4_fit(x, x * x, inv)
    fitted = np.where((d != 0) & (b > 0), divide(a, b), d)
    return np.concatenate([half_bytes(fitted), nibbles(iq4_codes(inv[:, None] * x))], axis=1)


def iq4_search(x, w):
    v = extreme(x)
    tiny = np.abs(v) < TINY
    a, b = iq4_fit(x, w, divide(np.ones(x.shape[0], f32), v / f32(127)))
    scale = np.where(b > 0, divide(a, b), f32(0))
    best = scale * a
    for k in range(-7, 8):
        a, b = iq4_fit(x, w, divide(f32(k - 127) + np.zeros(x.shape[0], f32), v))
        better = (b > 0) & (a * a > best * b)
        scale = np.where(better, divide(a, b), scale)
        best = np.where(better, scale * a, best)
    return np.where(tiny, f32(0), scale)


def quantize_iq4_nl(x, iw=None):
    w = x * x if iw is None else importance_weights(x, iw, f32(2) * mean_square(x))
    s = iq4_search(x, w)
    inv = divide(np.ones(x.shape[0], f32), s)
    return np.concatenate([half_bytes(s), nibbles(iq4_codes(inv[:, None] * x))], axis=1)


def quantize_iq4_xs(x, iw=None):
    n, s = x.shape[0], x.reshape(-1, 32)
    w = s * s if iw is None else importance_weights(s, iw.reshape(-1, 32), np.repeat(f32(2) * mean_square(x), 8))
    scale = iq4_search(s, w).reshape(n, 8)
    d = -extreme(scale) / f32(32)
    inv = divide(np.ones(n, f32), d)
    sub = np.clip(nearest(inv[:, None] * scale), -32, 31)
    inv_sub = divide(np.ones((n, 8), f32), d[:, None] * sub)
    codes = iq4_codes(inv_sub.reshape(-1)[:, None] * s)
    stored = (sub + 32).astype(np.uint16)
    high = np.zeros(n, np.uint16)
    for g in range(8):
        high |= stored[:, g] >> 4 << 2 * g
    low = (stored[:, 0::2] & 15 | (stored[:, 1::2] & 15) << 4).astype(np.uint8)
    return np.concatenate([half_bytes(d), high.view(np.uint8).reshape(n, 2), low, nibbles(codes).reshape(n, 128)], axis=1)


# blocks of 32 with importance; variance is that of the whole row
def weighted_symmetric(x, iw, variance, max_code):
    scale, q = search_symmetric(x, importance_weights(x, iw, variance), max_code)
    return scale, q + max_code


def weighted_affine(x, iw, variance, max_code):
    scale, low, q = search_affine(x, importance_weights(x, iw, variance), max_code, -0.9, 0.05, 36, False, True)
    return scale, -low, q


def quantize_q4_0_weighted(x, iw, variance):
    d, q = weighted_symmetric(x, iw, variance, 8)
    return np.concatenate([half_bytes(d), nibbles(q)], axis=1)


def quantize_q5_0_weighted(x, iw, variance):
    d, q = weighted_symmetric(x, iw, variance, 16)
    return np.concatenate([half_bytes(d), fifth_bits(q), nibbles(q.astype(np.uint8) & 15)], axis=1)


def quantize_q4_1_weighted(x, iw, variance):
    d, m, q = weighted_affine(x, iw, variance, 15)
    return np.concatenate([half_bytes(d), half_bytes(m), nibbles(q)], axis=1)


def quantize_q5_1_weighted(x, iw, variance):
    d, m, q = weighted_affine(x, iw, variance, 31)
    return np.concatenate([half_bytes(d), half_bytes(m), fifth_bits(q), nibbles(q.astype(np.uint8) & 15)], axis=1)


# ---- cases -------------------------------------------------------------------------------------------
class Score:
    def __init__(self, verbose):
        self.passed = self.failed = 0
        self.verbose = verbose

    def check(self, name, ok, detail=""):
        self.passed, self.failed = self.passed + bool(ok), self.failed + (not ok)
        if not ok or self.verbose:
            print(("ok     " if ok else "FAILED ") + name + (f": {detail}" if not ok else ""))

    def same_bytes(self, name, got, want, block_bytes):
        got, want = got.reshape(-1, block_bytes), np.ascontiguousarray(want).view(np.uint8).reshape(-1, block_bytes)
        bad = np.flatnonzero((got != want).any(axis=1))
        detail = ""
        if bad.size:
            detail = f"{bad.size} of {got.shape[0]} blocks differ; block {bad[0]}: {got[bad[0]].tobytes().hex()}, " \
                     f"want {want[bad[0]].tobytes().hex()}"
        self.check(name, bad.size == 0, detail)


def random_half(rng, n):
    """Finite halves of every size, subnormals and both zeros among them."""
    bits = rng.integers(0, 0x7C00, n).astype(np.uint16)
    bits[rng.random(n) < 0.02] = 0
    bits[rng.random(n) < 0.05] &= 0x3FF
    return (bits | (rng.random(n) < 0.3).astype(np.uint16) << 15).astype(np.uint16)


def random_blocks(rng, name, n):
    _, _, size, scales = TYPES[name]
    b = rng.integers(0, 256, (n, size)).astype(np.uint8)
    for at in scales:
        b[:, at:at + 2] = random_half(rng, n).view(np.uint8).reshape(n, 2)
    if name == "IQ1_M":
        words, h = b[:, 48:56].copy().view(np.uint16), random_half(rng, n)
        for k in range(4):
            words[:, k] = words[:, k] & 0x0FFF | (h >> 4 * k & 15) << 12
        b[:, 48:56] = words.view(np.uint8)
    if name == "MXFP4":
        b[:, 0] = rng.integers(0, 255, n)
        b[0, 0], b[1, 0] = 0, 1
    if name == "Q8_K":
        b[:, :4] = rng.standard_normal(n).astype(f32).view(np.uint8).reshape(n, 4)
    return np.ascontiguousarray(b)


def dequantize_here(name, blocks):
    if name in ("Q8_1", "Q8_K"):  # activations: gguf does not know them
        d = blocks[:, :4].copy().view(f32) if name == "Q8_K" else blocks[:, :2].copy().view(np.float16).astype(f32)
        return (d * blocks[:, 4:4 + TYPES[name][1]].view(np.int8).astype(f32)).reshape(-1)
    return gguf_quants.dequantize(blocks, G[name]).reshape(-1)


def same_floats(got, want):
    zero = (got == 0) & (want == 0)  # the sign of a zero is not specified
    return (got.view(np.uint32) == want.view(np.uint32)) | zero


def check_dequantize(lib, rng, score):
    for name, (type_id, *_) in TYPES.items():
        blocks = random_blocks(rng, name, 600)
        with np.errstate(all="ignore"):
            want = dequantize_here(name, blocks).astype(f32)
        got = lib.dequantize(type_id, blocks)
        ok = same_floats(got, want)
        bad = np.flatnonzero(~ok)
        score.check(f"dequantize {name}", bad.size == 0,
                    f"{bad.size} of {ok.size} differ, first {bad[:1]}: {got[bad[:1]]} want {want[bad[:1]]}")


def samples(rng, cols):
    """Rows that hurt in different ways. All scales fit F16 and no reciprocal overflows."""
    n = 24
    normal = rng.standard_normal((n, cols)).astype(f32)
    yield "normal", normal
    yield "small", normal * f32(1e-3)
    yield "large", normal * f32(3000)
    yield "uniform", rng.uniform(-1, 1, (n, cols)).astype(f32)
    yield "positive", rng.uniform(0.5, 2, (n, cols)).astype(f32)
    yield "negative", -rng.uniform(0, 2, (n, cols)).astype(f32)
    yield "offset", (normal * f32(0.01) + f32(5)).astype(f32)
    yield "integers", rng.integers(-8, 9, (n, cols)).astype(f32)
    yield "ties", (rng.integers(-31, 32, (n, cols)) * f32(0.5)).astype(f32)
    yield "outliers", np.where(rng.random((n, cols)) < 0.01, normal * f32(50), normal).astype(f32)
    yield "sparse", np.where(rng.random((n, cols)) < 0.03, normal, f32(0)).astype(f32)
    yield "cubed", (normal ** 3).astype(f32)
    zeros = np.zeros((n, cols), f32)
    zeros[::2, : cols // 2] = normal[::2, : cols // 2]
    yield "zero blocks", zeros
    yield "constant", np.repeat(normal[:, :1], cols, axis=1).copy()
    yield "tiny", normal * f32(1e-9)
    yield "below the search", normal * f32(1e-17)
    yield "cosine", (f32(0.1) + f32(2) * np.cos(np.arange(n * cols, dtype=f32))).reshape(n, cols).astype(f32)


GGUF_QUANTIZES = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4"]
RUN_TIME = {"Q8_1": quantize_q8_1, "Q8_K": quantize_q8_k, "IQ4_NL": quantize_iq4_nl_quick, "IQ4_XS": quantize_iq4_xs,
            "Q2_K": quantize_q2_k, "Q3_K": quantize_q3_k, "Q4_K": quantize_q4_k, "Q5_K": quantize_q5_k,
            "Q6_K": quantize_q6_k}
OFFLINE = dict(RUN_TIME, IQ4_NL=quantize_iq4_nl)
WEIGHTED = {"Q2_K": quantize_q2_k, "Q3_K": quantize_q3_k, "Q4_K": quantize_q4_k, "Q5_K": quantize_q5_k,
            "Q6_K": quantize_q6_k, "IQ4_NL": quantize_iq4_nl, "IQ4_XS": quantize_iq4_xs}
WEIGHTED_ROWS = {"Q4_0": quantize_q4_0_weighted, "Q4_1": quantize_q4_1_weighted, "Q5_0": quantize_q5_0_weighted,
                 "Q5_1": quantize_q5_1_weighted}


def check_quantize(lib, rng, score):
    for kind, x in samples(rng, 768):
        for name in GGUF_QUANTIZES:
            type_id, _, size, _ = TYPES[name]
            with np.errstate(all="ignore"):
                want = gguf_quants.quantize(x, G[name])
            score.same_bytes(f"quantize {name} {kind} (gguf)", lib.quantize_row(type_id, x), want, size)
            score.same_bytes(f"quantize_chunk {name} {kind} (gguf)", lib.quantize(type_id, x), want, size)
        for name, rule in RUN_TIME.items():
            type_id, block, size, _ = TYPES[name]
            score.same_bytes(f"quantize {name} {kind}", lib.quantize_row(type_id, x), rule(x.reshape(-1, block)), size)
            want = OFFLINE[name](x.reshape(-1, block))
            score.same_bytes(f"quantize_chunk {name} {kind}", lib.quantize(type_id, x), want, size)


def check_weighted(lib, rng, score):
    for kind, x in samples(rng, 768):
        iw = (rng.standard_normal(768) ** 2 + 0.01).astype(f32)
        full = np.tile(iw, (x.shape[0], 1))
        for name, rule in WEIGHTED.items():
            type_id, block, size, _ = TYPES[name]
            want = rule(x.reshape(-1, block), full.reshape(-1, block))
            score.same_bytes(f"quantize {name} {kind} with importance", lib.quantize(type_id, x, iw), want, size)
        for name, rule in WEIGHTED_ROWS.items():
            type_id, _, size, _ = TYPES[name]
            variance = np.repeat(mean_square(x), 24)
            want = rule(x.reshape(-1, 32), full.reshape(-1, 32), variance)
            score.same_bytes(f"quantize {name} {kind} with importance", lib.quantize(type_id, x, iw), want, size)


def check_weighted_is_better(lib, rng, score):
    """What importance is for: the weighted error falls."""
    x = (rng.standard_normal((32, 1024)) * 0.05).astype(f32)
    iw = np.exp(1.5 * rng.standard_normal(1024)).astype(f32)
    for name in list(WEIGHTED) + list(WEIGHTED_ROWS):
        type_id = TYPES[name][0]
        error = [float((iw * (lib.dequantize(type_id, lib.quantize(type_id, x, w)).reshape(x.shape) - x) ** 2).sum())
                 for w in (None, iw)]
        score.check(f"importance lowers the error of {name}", error[1] < error[0], f"{error[0]:.6g} to {error[1]:.6g}")


def check_plain(lib, rng, score):
    bits = np.arange(65536, dtype=np.uint16)
    for name, type_id in PLAIN.items():
        want = bits.view(np.float16).astype(f32) if name == "F16" else (bits.astype(np.uint32) << 16).view(f32)
        got = lib.dequantize(type_id, bits)
        score.check(f"{name} to F32, all", ((got == want) & (np.signbit(got) == np.signbit(want)) |
                                            np.isnan(got) & np.isnan(want)).all())
    x = rng.integers(0, 1 << 32, 400000, dtype=np.uint64).astype(np.uint32).view(f32)
    ties = (rng.integers(0, 1 << 16, 50000).astype(np.uint32) << 16 | 0x8000).view(f32)  # halfway for BF16
    halves = (bits[:0x7BFF].view(np.float16).astype(f32) + bits[1:0x7C00].view(np.float16).astype(f32)) / 2  # and F16
    x = np.concatenate([x, ties, halves, -halves, np.array([0, -0.0, 65519.996, 65520, 2 ** -25, 2 ** -24, np.inf], f32)])
    nan = np.isnan(x)
    with np.errstate(all="ignore"):
        want = {"F16": half(x).view(np.uint16),
                "BF16": gguf_quants.quantize(x, G.BF16).view(np.uint16)}
    for name, type_id in PLAIN.items():
        got = lib.quantize_row(type_id, x).view(np.uint16)
        score.check(f"F32 to {name}", (got[~nan] == want[name][~nan]).all())
        back = lib.dequantize(type_id, np.ascontiguousarray(got[nan]))
        score.check(f"F32 to {name}, NaN", np.isnan(back).all() and (np.signbit(back) == np.signbit(x[nan])).all())


def check_threads(lib, rng, score):
    x = rng.standard_normal((257, 512)).astype(f32)
    for name in [*OFFLINE, *GGUF_QUANTIZES]:
        type_id = TYPES[name][0]
        want = lib.quantize(type_id, x)
        score.check(f"threads make the same {name}", all((lib.quantize(type_id, x, None, n) == want).all() for n in (1, 2, 7)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    lib, rng, score = Library(args.library), np.random.default_rng(args.seed), Score(args.verbose)
    print(f"seed {args.seed}")
    for check in (check_plain, check_dequantize, check_quantize, check_weighted, check_weighted_is_better, check_threads):
        check(lib, rng, score)
    print(f"{score.passed} passed, {score.failed} failed")
    sys.exit(1 if score.failed else 0)


if __name__ == "__main__":
    main()
