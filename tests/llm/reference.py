#!/usr/bin/env python3
"""Forward passes of GGUF language models in numpy, in float64, from the definitions of the architectures.

Weights are dequantized by the PyPI package gguf; products, norms and softmax are float64 (or --float32). Nothing here is taken from
examples/llm.h: the two are compared. ARCHS says what differs between the architectures, Model.layer and Model.attention are the rest.

    reference.py logits FILE 1,2,3         the largest logits of every position
    reference.py generate FILE 1,2,3 -n 8  greedy continuation
    reference.py embed FILE 1,2,3          pooled embedding (bert)

Shapes are [rows, columns] of numpy: a weight of GGUF {n_in, n_out} is an array [n_out, n_in], activations are [T, n].
"""
import argparse
from dataclasses import dataclass

import gguf
import numpy as np


@dataclass(frozen=True)
class Arch:
    """What differs between the architectures. None or False: does not exist."""
    rope: str = "neox"            # norm: pairs (2i, 2i+1); neox: pairs (i, i + R/2); None: learned positions
    qk_norm: bool = False         # RMS norm of every head of Q and K before RoPE
    sinks: bool = False           # one logit per head that takes part in the softmax and has no value
    post_norms: bool = False      # RMS norm of the outputs of attention and FFN before they are added
    ffn: str = "swiglu"           # swiglu, geglu; fused: gate and up in one tensor, gate first; gelu: up and down only
    ffn_norm: str = "ffn_norm"    # tensor before the FFN
    gate: str = "renorm"          # experts: softmax, top-k, divided by their sum; or "late": top-k, then softmax over the k
    glu: str = "swiglu"           # activation of the experts: swiglu or oai
    swa_pattern: int = 0          # default of sliding_window_pattern: p - 1 of p layers are sliding; 0: no window is read
    embed_scale: bool = False     # embeddings times sqrt(E)
    factors: str = "rope_freqs"   # rope_freqs, or longrope: rope_factors_long / _short by context size
    eps: str = "layer_norm_rms_epsilon"


ARCHS = {
    "llama":    Arch(rope="norm"),
    "qwen2":    Arch(),
    "qwen3":    Arch(qk_norm=True),
    "qwen3moe": Arch(qk_norm=True),
    "gemma3":   Arch(qk_norm=True, post_norms=True, ffn="geglu", swa_pattern=6, embed_scale=True),
    "gpt-oss":  Arch(sinks=True, ffn_norm="post_attention_norm", gate="late", glu="oai", swa_pattern=2),
    "phi3":     Arch(ffn="fused", factors="longrope"),
    "bert":     Arch(rope=None, ffn="gelu", eps="layer_norm_epsilon"),
}


FLOATS = (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16, gguf.GGMLQuantizationType.BF16)
SQRT_2_PI = float(np.sqrt(2 / np.pi))  # Python floats: they leave float32 arrays what they are


def silu(x):
    return x * np.exp(-np.logaddexp(0, -x))  # without overflow


def gelu(x):
    return 0.5 * x * (1 + np.tanh(SQRT_2_PI * x * (1 + 0.044715 * x * x)))


def swiglu(gate, up):
    return silu(gate) * up


def geglu(gate, up):
    return gelu(gate) * up


def oai(gate, up, alpha=1.702, limit=7.0):
    gate = np.minimum(gate, limit)
    return gate / (1 + np.exp(-alpha * gate)) * (np.clip(up, -limit, limit) + 1)


GLU = {"swiglu": swiglu, "geglu": geglu, "oai": oai}


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class File:
    """Metadata and dequantized tensors of a GGUF file."""

    def __init__(self, path, dtype=np.float64):
        self.reader = gguf.GGUFReader(path)
        self.dtype = dtype
        self.tensors = {t.name: t for t in self.reader.tensors}
        self.arch = self.get("general.architecture")
        self.cached = {}

    def get(self, key, default=None):
        field = self.reader.fields.get(key)
        return default if field is None else field.contents()

    def own(self, key, default=None):
        """Of a key that begins with the architecture's name."""
        return self.get(f"{self.arch}.{key}", default)

    def tensor(self, name):
        """The tensor in the precision of the model, or None if the file has none of that name."""
        if name not in self.tensors:
            return None
        if name not in self.cached:
            t = self.tensors[name]
            data = gguf.quants.dequantize(t.data, t.tensor_type)
            self.cached[name] = data.reshape(tuple(int(n) for n in reversed(t.shape))).astype(self.dtype)
        return self.cached[name]


class Cache:
    """Keys (before RoPE: a cell's position may change) and values of every layer, in cells of one sequence and position each."""

    def __init__(self, n_layers):
        self.seq, self.pos = np.zeros(0, int), np.zeros(0, int)
        self.k, self.v = [None] * n_layers, [None] * n_layers

    def add_cells(self, seq, pos):
        self.seq, self.pos = np.concatenate([self.seq, seq]), np.concatenate([self.pos, pos])

    def add_rows(self, layer, k, v):
        self.k[layer] = k if self.k[layer] is None else np.concatenate([self.k[layer], k])
        self.v[layer] = v if self.v[layer] is None else np.concatenate([self.v[layer], v])
        return self.k[layer], self.v[layer]

    def keep_cells(self, keep):
        """Drops the cells for which keep is False."""
        self.seq, self.pos = self.seq[keep], self.pos[keep]
        self.k, self.v = [a[keep] for a in self.k], [a[keep] for a in self.v]

    def shift(self, seq, n_keep, n_drop):
        """Drops n_drop positions after the first n_keep of a sequence and moves the later ones down. What they saw stays in their values."""
        self.keep_cells((self.seq != seq) | (self.pos < n_keep) | (self.pos >= n_keep + n_drop))
        self.pos = np.where((self.seq == seq) & (self.pos >= n_keep), self.pos - n_drop, self.pos)


def rounded(x):
    """Activations as quantized weights meet them: 8 bits, a scale for each 32 values."""
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    scale = np.abs(blocks).max(-1, keepdims=True) / 127
    return (np.rint(blocks / np.where(scale > 0, scale, 1)) * scale).reshape(x.shape)


def hadamard(n):
    """Orthonormal and symmetric, n a power of two."""
    h = np.ones((1, 1))
    while len(h) < n:
        h = np.block([[h, h], [h, -h]])
    return h / np.sqrt(n)


def stored(x, kind):
    """Rows of keys or values [cells, heads, D] as a cache of that type gives them back. "rotated q4_0": as many elements of a head as are a power
    of two, up to 256, are multiplied by a Hadamard matrix before they are rounded, and again after; the same as rotating queries and results."""
    rotated = kind.startswith("rotated ")
    n = min(256, x.shape[-1] & -x.shape[-1])
    turn = hadamard(n) if rotated else None
    if rotated:
        x = (x.reshape(*x.shape[:-1], -1, n) @ turn).reshape(x.shape)
    type_ = gguf.GGMLQuantizationType[kind.split()[-1].upper()]
    rows = np.ascontiguousarray(x.reshape(len(x), -1), np.float32)
    y = gguf.quants.dequantize(gguf.quants.quantize(rows, type_), type_).astype(x.dtype).reshape(x.shape)
    return (y.reshape(*y.shape[:-1], -1, n) @ turn).reshape(y.shape) if rotated else y


class Model:
    """cache: type of the cache of keys and values, see stored; None: they stay as they are.
    rounds: activations meet quantized weights rounded to 8 bits, as programs do where it is faster; False: they stay as they are."""

    def __init__(self, path, dtype=np.float64, n_ctx=None, rounds=False, cache=None):
        f = self.f = File(path, dtype)
        self.rounds, self.cache = rounds, cache
        if f.arch not in ARCHS:
            raise ValueError(f"{path}: architecture {f.arch} is none of {', '.join(ARCHS)}")
        self.arch = ARCHS[f.arch]
        self.n_layers, self.n_embd, self.n_train = f.own("block_count"), f.own("embedding_length"), f.own("context_length")
        self.n_ctx = n_ctx or self.n_train
        self.n_head = f.own("attention.head_count")
        self.n_kv = f.own("attention.head_count_kv", self.n_head)
        self.d_head = f.own("attention.key_length", self.n_embd // self.n_head)
        self.n_rot = f.own("rope.dimension_count", self.d_head)
        self.eps = f.own(f"attention.{self.arch.eps}")
        self.n_vocab = f.tensor("token_embd.weight").shape[0]
        self.base = f.own("rope.freq_base", 10000.0)
        self.n_used = f.own("expert_used_count", 0)
        self.scaling = f.own("rope.scaling.type", "linear")
        factor = f.own("rope.scaling.factor", f.own("rope.scale_linear", 0.0))
        self.scale = 1.0 if self.scaling == "none" or not factor else 1.0 / factor
        self.n_ctx_orig = f.own("rope.scaling.original_context_length", self.n_train)
        self.window = f.own("attention.sliding_window", 0) if self.arch.swa_pattern else 0
        self.pattern = f.own("attention.sliding_window_pattern", self.arch.swa_pattern)
        self.pooling = f.own("pooling_type", 0)

    def weight(self, name, layer=None, kind="weight"):
        return self.f.tensor((f"blk.{layer}." if layer is not None else "") + f"{name}.{kind}")

    def operand(self, x, name, layer=None):
        """x as the weight meets it."""
        tensor = self.f.tensors[(f"blk.{layer}." if layer is not None else "") + f"{name}.weight"]
        return rounded(x) if self.rounds and tensor.tensor_type not in FLOATS else x

    def linear(self, x, name, layer=None):
        y = self.operand(x, name, layer) @ self.weight(name, layer).T
        bias = self.weight(name, layer, "bias")
        return y if bias is None else y + bias

    def rms(self, x, name, layer=None):
        return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + self.eps) * self.weight(name, layer)

    def layer_norm(self, x, name, layer=None):
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt(np.mean(centred ** 2, -1, keepdims=True) + self.eps) * self.weight(name, layer) + self.weight(name, layer, "bias")

    # ---- rope ----
    def is_sliding(self, layer):
        if not self.window:
            return False
        if isinstance(self.pattern, (list, tuple)):
            return bool(self.pattern[layer])
        return self.pattern > 0 and layer % self.pattern < self.pattern - 1

    def rope_base(self, layer):
        """(base, scale): sliding layers of gemma3 have their own base and no scaling, those of gpt-oss only may have their own base."""
        if not self.is_sliding(layer):
            return self.base, self.scale
        if self.f.arch == "gemma3":
            return self.f.own("rope.freq_base_swa", 10000.0), 1.0
        return self.f.own("rope.freq_base_swa", self.base), self.scale

    def rope_factors(self):
        if self.arch.factors == "longrope" or self.scaling == "longrope":
            name = "rope_factors_long" if self.n_ctx > self.n_ctx_orig else "rope_factors_short"
            return self.weight(name)
        return self.weight("rope_freqs")

    def angles(self, pos, layer):
        """Angle of every position and pair [T, R/2], and what the rotated values are multiplied by."""
        base, scale = self.rope_base(layer)
        half = self.n_rot // 2
        i = np.arange(half)
        theta = pos[:, None] * base ** (-2.0 * i / self.n_rot)
        factors = self.rope_factors()
        if factors is not None:
            theta = theta / factors
        magnitude = self.f.own("rope.scaling.attn_factor", 1.0)
        if self.scaling != "yarn":
            return theta * scale, magnitude
        low, high = self.yarn_range(base)
        ramp = 1 - np.clip((i - low) / max(0.001, high - low), 0, 1)  # 1: extrapolated (unscaled), 0: interpolated
        ramp = ramp * self.f.own("rope.scaling.yarn_ext_factor", 1.0)
        own = 1 + 0.1 * np.log(1 / self.scale) if self.scale < 1 else 1.0
        magnitude *= self.f.own("rope.scaling.yarn_attn_factor", own)
        return theta * (scale * (1 - ramp) + ramp), magnitude

    def yarn_range(self, base):
        def pair(turns):  # the pair that makes this number of turns over the original context
            return self.n_rot * np.log(self.n_ctx_orig / (turns * 2 * np.pi)) / (2 * np.log(base))
        low = np.floor(pair(self.f.own("rope.scaling.yarn_beta_fast", 32.0)))
        high = np.ceil(pair(self.f.own("rope.scaling.yarn_beta_slow", 1.0)))
        return max(0.0, low), min(self.n_rot - 1.0, high)

    def rope(self, x, pos, layer):
        """x [T, heads, D]; components from R on are left alone."""
        if self.arch.rope is None:
            return x
        theta, magnitude = self.angles(pos, layer)
        cos, sin = magnitude * np.cos(theta)[:, None, :], magnitude * np.sin(theta)[:, None, :]
        half = self.n_rot // 2
        first, second = ((slice(0, self.n_rot, 2), slice(1, self.n_rot, 2)) if self.arch.rope == "norm"
                         else (slice(0, half), slice(half, self.n_rot)))
        out = x.copy()
        out[..., first] = x[..., first] * cos - x[..., second] * sin
        out[..., second] = x[..., first] * sin + x[..., second] * cos
        return out.astype(x.dtype)

    # ---- attention ----
    def qkv(self, x, layer):
        nq, nk = self.n_head * self.d_head, self.n_kv * self.d_head
        if self.weight("attn_qkv", layer) is not None:
            q, k, v = np.split(self.linear(x, "attn_qkv", layer), [nq, nq + nk], -1)
        else:
            q, k, v = (self.linear(x, f"attn_{name}", layer) for name in "qkv")
        heads = [a.reshape(len(x), -1, self.d_head) for a in (q, k, v)]
        if self.arch.qk_norm:
            heads[0], heads[1] = self.rms(heads[0], "attn_q_norm", layer), self.rms(heads[1], "attn_k_norm", layer)
        return heads

    def query_scale(self):
        if self.f.arch == "gemma3" and self.n_layers == 62:
            return float(1 / np.sqrt(self.n_embd // self.n_head))
        return float(1 / np.sqrt(self.d_head))

    def visible(self, seq, pos, cache, layer):
        """[T, cells]: whether a row may see a cell."""
        mask = seq[:, None] == cache.seq[None, :]
        if self.f.arch == "bert":
            return mask
        distance = pos[:, None] - cache.pos[None, :]
        mask &= distance >= 0
        if self.is_sliding(layer):
            mask &= distance < self.window
        return mask

    def attention(self, x, seq, pos, cache, layer):
        q, k, v = self.qkv(x, layer)
        keys, values = cache.add_rows(layer, k, v)
        q, keys = self.rope(q, pos, layer), self.rope(keys, cache.pos, layer)
        if self.cache:
            keys, values = stored(keys, self.cache), stored(values, self.cache)
        mask = self.visible(seq, pos, cache, layer)
        sinks = self.weight("attn_sinks", layer) if self.arch.sinks else None
        out = np.empty_like(q)
        for h in range(self.n_head):
            g = h // (self.n_head // self.n_kv)
            s = np.where(mask, q[:, h] @ keys[:, g].T * self.query_scale(), -np.inf)
            if sinks is not None:
                s = np.concatenate([s, np.full((len(x), 1), sinks[h])], 1)
            out[:, h] = softmax(s)[:, :len(keys)] @ values[:, g]
        return self.linear(out.reshape(len(x), -1), "attn_output", layer)

    # ---- feed-forward ----
    def experts(self, x, layer):
        scores = self.linear(x, "ffn_gate_inp", layer)
        if self.arch.gate == "renorm":
            scores = softmax(scores)
        chosen = np.argsort(-scores, axis=-1, kind="stable")[:, :self.n_used]
        weights = np.take_along_axis(scores, chosen, -1)
        weights = softmax(weights) if self.arch.gate == "late" else weights / np.maximum(weights.sum(-1, keepdims=True), 2.0 ** -14)
        tensors = {name: (self.weight(f"ffn_{name}_exps", layer), self.weight(f"ffn_{name}_exps", layer, "bias")) for name in ("gate", "up", "down")}

        def product(name, expert, row):
            w, b = tensors[name]
            return w[expert] @ self.operand(row, f"ffn_{name}_exps", layer) + (0 if b is None else b[expert])
        out = np.zeros_like(x)
        for t, row in enumerate(x):
            for e, w in zip(chosen[t], weights[t]):
                out[t] += w * product("down", e, GLU[self.arch.glu](product("gate", e, row), product("up", e, row)))
        return out

    def ffn(self, x, layer):
        if self.weight("ffn_gate_inp", layer) is not None:
            return self.experts(x, layer)
        up = self.linear(x, "ffn_up", layer)
        if self.arch.ffn == "gelu":
            return self.linear(gelu(up), "ffn_down", layer)
        gate, up = np.split(up, 2, -1) if self.arch.ffn == "fused" else (self.linear(x, "ffn_gate", layer), up)
        return self.linear(GLU["swiglu" if self.arch.ffn == "fused" else self.arch.ffn](gate, up), "ffn_down", layer)

    # ---- whole model ----
    def layer(self, x, seq, pos, cache, layer):
        a = self.attention(self.rms(x, "attn_norm", layer), seq, pos, cache, layer)
        if self.arch.post_norms:
            a = self.rms(a, "post_attention_norm", layer)
        x = x + a
        y = self.ffn(self.rms(x, self.arch.ffn_norm, layer), layer)
        return x + (self.rms(y, "post_ffw_norm", layer) if self.arch.post_norms else y)

    def bert_layer(self, x, seq, pos, cache, layer):
        x = self.layer_norm(x + self.attention(x, seq, pos, cache, layer), "attn_output_norm", layer)
        return self.layer_norm(x + self.ffn(x, layer), "layer_output_norm", layer)

    def hidden(self, ids, seq=None, pos=None, cache=None):
        """Rows after the last layer (and the last norm, where there is one), [T, E]. seq: 0 for all; pos: from 0 on or after the cache."""
        ids = np.asarray(ids, int)
        seq = np.zeros(len(ids), int) if seq is None else np.asarray(seq, int)
        cache = cache or Cache(self.n_layers)
        pos = np.arange(len(ids)) + len(cache.pos) if pos is None else np.asarray(pos, int)
        x = self.weight("token_embd")[ids]
        if self.f.arch == "bert":
            types = self.weight("token_types")
            x = x + self.weight("position_embd")[pos] + (0 if types is None else types.reshape(-1, self.n_embd)[0])
            x = self.layer_norm(x, "token_embd_norm")
        if self.arch.embed_scale:
            x = x * float(np.sqrt(self.n_embd))
        cache.add_cells(seq, pos)
        for layer in range(self.n_layers):
            x = (self.bert_layer if self.f.arch == "bert" else self.layer)(x, seq, pos, cache, layer)
        return x if self.f.arch == "bert" else self.rms(x, "output_norm")

    def logits(self, ids, seq=None, pos=None, cache=None):
        """Logits of every row, [T, V]."""
        x = self.hidden(ids, seq, pos, cache)
        x = self.linear(x, "output" if self.weight("output") is not None else "token_embd")
        cap = self.f.own("final_logit_softcapping", 0.0) if self.f.arch == "gemma3" else 0.0
        return cap * np.tanh(x / cap) if cap else x

    def embed(self, ids, normalize=True):
        """Pooled row of one sequence (bert): mean (1), first (2), last (3), or all rows (0)."""
        x = self.hidden(ids)
        x = {0: x, 1: x.mean(0), 2: x[0], 3: x[-1]}[self.pooling]
        return x / np.sqrt((x * x).sum(-1, keepdims=True)) if normalize else x

    def generate(self, prompts, n):
        """Greedy continuation of several prompts at once: for every one a list of (id, margin to the second best logit)."""
        cache = Cache(self.n_layers)
        seq = np.repeat(np.arange(len(prompts)), [len(p) for p in prompts])
        pos = np.concatenate([np.arange(len(p)) for p in prompts])
        rows = self.logits(np.concatenate(prompts), seq, pos, cache)
        rows = rows[np.cumsum([len(p) for p in prompts]) - 1]
        out = [[] for _ in prompts]
        for step in range(n):
            best = rows.argmax(-1)
            top = np.partition(rows, -2, -1)[:, -2:]
            for s in range(len(prompts)):
                out[s].append((int(best[s]), float(top[s, 1] - top[s, 0])))
            if step < n - 1:
                rows = self.logits(best, np.arange(len(prompts)), np.array([len(p) + step for p in prompts]), cache)
        return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["logits", "generate", "embed"])
    parser.add_argument("file")
    parser.add_argument("ids", help="token ids, with commas")
    parser.add_argument("-n", type=int, default=8)
    parser.add_argument("--n-ctx", type=int)
    parser.add_argument("--float32", action="store_true")
    args = parser.parse_args()
    model = Model(args.file, np.float32 if args.float32 else np.float64, args.n_ctx)
    ids = [int(t) for t in args.ids.split(",")]
    if args.what == "embed":
        print(np.array2string(model.embed(ids), threshold=10 ** 6))
    elif args.what == "generate":
        print(",".join(str(t) for t, _ in model.generate([ids], args.n)[0]))
    else:
        for t, row in enumerate(model.logits(ids)):
            print(t, " ".join(f"{i}:{row[i]:.5f}" for i in np.argsort(-row)[:5]))


if __name__ == "__main__":
    main()
