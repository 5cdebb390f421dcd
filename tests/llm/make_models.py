#!/usr/bin/env python3
"""Writes small random GGUF files, one or more for every architecture of examples/llm.h, the same ones each time.

    make_models.py [FOLDER] [--only TEXT]     default folder: build/llm-models

A file has the real structure of its architecture (grouped heads, windows, norms, biases, sinks, experts, rope factors, tied or own
output) in sizes that a numpy forward pass takes milliseconds for, and a vocabulary trained on corpus.txt: byte pairs (trained here),
SentencePiece (by its own trainer; FILE.model is next to the file) or WordPiece.
"""
import argparse
import collections
import functools
import io
import os
import sys
import zlib

import gguf
import numpy as np
import sentencepiece
from tokenizers import Regex, normalizers, pre_tokenizers

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import oracles

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.join(os.path.dirname(os.path.dirname(HERE)), "build", "llm-models")
Type = gguf.GGMLQuantizationType
F32, F16, BF16, Q4_1, Q8_0, MXFP4 = Type.F32, Type.F16, Type.BF16, Type.Q4_1, Type.Q8_0, Type.MXFP4

CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
LLAMA3 = ("{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + "
          "'<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}"
          "{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}")
PHI3 = ("{% for message in messages %}{{'<|' + message['role'] + '|>\n' + message['content'] + '<|end|>\n'}}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}")
GEMMA = ("{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set first = messages[0]['content'] | trim + '\n\n' %}{% set rest = messages[1:] %}"
         "{% else %}{% set first = '' %}{% set rest = messages %}{% endif %}{% for message in rest %}"
         "{{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\n' + (first if loop.first else '') + "
         "message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}")


def mistral(before, after, answer, system=None):
    """before, after: of what the user says. system: what is around its text; None: it begins the user's message."""
    rest = ("{% if messages[0]['role'] == 'system' %}{% set first = messages[0]['content'] + '\n\n' %}"
            "{% set rest = messages[1:] %}{% else %}{% set first = '' %}{% set rest = messages %}{% endif %}")
    if system:
        rest = "{% set first = '' %}{% set rest = messages %}"
        system = f"{{% elif message['role'] == 'system' %}}{{{{ {system[0]} + message['content'] + {system[1]} }}}}"
    return ("{{ bos_token }}{% if tools %}{{ '[AVAILABLE_TOOLS] ' + tools + '[/AVAILABLE_TOOLS]' }}{% endif %}" + rest +
            "{% for message in rest %}{% if message['role'] == 'user' %}"
            f"{{{{ {before} + (first if loop.first else '') + message['content'] + {after} }}}}{system or ''}"
            f"{{% else %}}{{{{ {answer} + eos_token }}}}{{% endif %}}{{% endfor %}}")


MISTRAL = {  # llm.h's name: a template with the blanks, and the quotes, of those in files
    "mistral-v1": mistral("' [INST] '", "' [/INST]'", "' ' + message['content']"),
    "mistral-7b-v0.2": mistral("'[INST] '", "' [/INST]'", "message['content']"),
    "mistral-v3": mistral("'[INST] '", "'[/INST]'", "' ' + message['content'] | trim"),
    "mistral-v3-tekken": mistral('"[INST]"', '"[/INST]"', "message['content']"),
    "mistral-v7": mistral("'[INST] '", "'[/INST]'", "' ' + message['content']",
                          ("'[SYSTEM_PROMPT] '", "'[/SYSTEM_PROMPT]'")),
    "mistral-v7-tekken": mistral("'[INST]'", "'[/INST]'", "message['content']",
                                 ("'[SYSTEM_PROMPT]'", "'[/SYSTEM_PROMPT]'")),
}
HARMONY = ("{{ '<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06\nCurrent date: ' + "
           "strftime_now('%Y-%m-%d') + '\n\nReasoning: medium\n\n# Valid channels: analysis, commentary, final. Channel must be included for every "
           "message.<|end|>' }}{% if messages[0]['role'] == 'system' %}{{ '<|start|>developer<|message|># Instructions\n\n' + messages[0]['content'] + "
           "'\n\n<|end|>' }}{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}{% for message in rest %}"
           "{% if message['role'] == 'assistant' %}{{ '<|start|>assistant<|channel|>final<|message|>' + message['content'] }}"
           "{{ '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}{% else %}"
           "{{ '<|start|>user<|message|>' + message['content'] + '<|end|>' }}{% endif %}{% endfor %}"
           "{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}")


# ---- vocabularies ----

@functools.lru_cache(maxsize=1)
def corpus():
    with open(os.path.join(HERE, "corpus.txt"), encoding="utf-8") as f:
        return f.read()


class Vocab:
    """tokens with their types, and the metadata that goes with them."""

    def __init__(self, model, keys, tokens, types, scores=None, merges=None, proto=None):
        self.model, self.keys, self.tokens, self.types = model, keys, tokens, types
        self.scores, self.merges, self.proto = scores, merges, proto

    def __len__(self):
        return len(self.tokens)


def train_merges(pieces, n):
    """Byte pair encoding: the most frequent pair of neighbours is merged, n times; ties: the smaller text."""
    words = {piece: list(piece) for piece in pieces}
    merges = []
    for _ in range(n):
        pairs = collections.Counter()
        for piece, parts in words.items():
            for pair in zip(parts, parts[1:]):
                pairs[pair] += pieces[piece]
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        for piece, parts in words.items():
            joined, i = [], 0
            while i < len(parts):
                if tuple(parts[i:i + 2]) == best:
                    joined.append(parts[i] + parts[i + 1])
                    i += 2
                else:
                    joined.append(parts[i])
                    i += 1
            words[piece] = joined
    return merges


@functools.lru_cache(maxsize=None)
def byte_pairs(pre, names, keys, n_merges=400, whole=(), never=()):
    """names: control tokens. whole: tokens that no merges lead to (for pre-tokenizers that take such a piece as it is).
    never: merges of characters that the pre-tokenizer puts into separate pieces."""
    expressions, _ = oracles.PRE[pre]
    splitter = pre_tokenizers.Sequence([*(pre_tokenizers.Split(Regex(e), "isolated") for e in expressions),
                                        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    pieces = collections.Counter(piece for piece, _ in splitter.pre_tokenize_str(corpus()))
    merges = train_merges(pieces, n_merges - len(never)) + list(never)
    tokens = [*sorted(oracles.byte_chars().values()), *dict.fromkeys(a + b for a, b in merges)]
    tokens += [t for t in whole if t not in tokens]
    types = [oracles.NORMAL] * len(tokens) + [oracles.CONTROL] * len(names)
    tokens += names
    keys = {"pre": pre, **{k: tokens.index(v) if k.endswith("_id") else v for k, v in keys}}
    return Vocab("gpt2", keys, tokens, types, merges=[f"{a} {b}" for a, b in merges])


@functools.lru_cache(maxsize=None)
def sentence_piece(dummy_prefix, ids, control, user, keys):
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus().split("\n\n")), model_writer=out, model_type="bpe", vocab_size=900, byte_fallback=True,
        character_coverage=0.98, normalization_rule_name="identity", remove_extra_whitespaces=False, num_threads=1, split_digits=True,
        allow_whitespace_only_pieces=True, minloglevel=2, add_dummy_prefix=dummy_prefix, control_symbols=list(control),
        user_defined_symbols=list(user), **dict(zip(("unk_id", "bos_id", "eos_id", "pad_id"), ids)))
    sp = sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())
    tokens = [sp.id_to_piece(i) for i in range(sp.vocab_size())]
    kind = lambda i, t: (oracles.UNKNOWN if sp.is_unknown(i) else oracles.CONTROL if sp.is_control(i) else oracles.BYTE if sp.is_byte(i)
                         else oracles.USER_DEFINED if t in user else oracles.NORMAL)
    keys = {"unknown_token_id": ids[0], "bos_token_id": ids[1], "eos_token_id": ids[2], "add_space_prefix": dummy_prefix, **dict(keys)}
    return Vocab("llama", keys, tokens, [kind(i, t) for i, t in enumerate(tokens)],
                 scores=[sp.get_score(i) for i in range(len(tokens))], proto=out.getvalue())


@functools.lru_cache(maxsize=None)
def word_piece(lowercase=True):
    """Frequent words, their beginnings, and what can follow; every character both ways."""
    text = normalizers.BertNormalizer(lowercase=lowercase).normalize_str(corpus())
    words = collections.Counter(w for w, _ in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(text))
    begins, rests = collections.Counter(), collections.Counter()
    for word, n in words.items():
        for k in range(1, len(word)):
            begins[word[:k]] += n
            rests[word[k:k + 4]] += n
            rests[word[k:]] += n
    chars = sorted({c for w in words for c in w})
    first = sorted({w for w, n in words.items() if n > 1} | {b for b, n in begins.items() if n > 4 and len(b) <= 5} | set(chars))
    rest = sorted({r for r, n in rests.items() if n > 4 and len(r) > 1} | set(chars))
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokens = names + [oracles.SPACE_MARK + w for w in first] + rest
    types = [oracles.CONTROL, oracles.UNKNOWN] + [oracles.CONTROL] * 3 + [oracles.NORMAL] * (len(tokens) - len(names))
    keys = {"padding_token_id": 0, "unknown_token_id": 1, "bos_token_id": 2, "cls_token_id": 2, "seperator_token_id": 3, "mask_token_id": 4,
            "token_type_count": 2}
    if not lowercase:
        keys["normalizer.lowercase"] = False
    return Vocab("bert", keys, tokens, types)


def gpt2_vocab():
    return byte_pairs("gpt-2", ("<|endoftext|>",), (("bos_token_id", "<|endoftext|>"), ("eos_token_id", "<|endoftext|>")))


def smollm_vocab():
    return byte_pairs("smollm", ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
                      (("bos_token_id", "<|im_start|>"), ("eos_token_id", "<|im_end|>"), ("add_bos_token", False),
                       ("chat", CHATML)),
                      never=(("1", "2"),))


def llama3_vocab():
    names = ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
    return byte_pairs("llama-bpe", names, (("bos_token_id", names[0]), ("eos_token_id", names[4]), ("chat", LLAMA3)),
                      whole=("\u0120harbour", "\u0120gulls", "tokenizer", "\u0120windows", "ships"))


def qwen2_vocab():
    return byte_pairs("qwen2", ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
                      (("eos_token_id", "<|im_end|>"), ("padding_token_id", "<|endoftext|>"), ("add_bos_token", False),
                       ("chat", CHATML)),
                      never=(("1", "2"),))


def o200k_vocab():
    names = ("<|startoftext|>", "<|endoftext|>", "<|return|>", "<|constrain|>", "<|channel|>", "<|start|>", "<|end|>", "<|message|>", "<|call|>")
    return byte_pairs("gpt-4o", names, (("bos_token_id", names[0]), ("eos_token_id", "<|return|>"), ("padding_token_id", "<|endoftext|>"),
                                        ("add_bos_token", False), ("chat", HARMONY)))


def tekken_vocab():
    names = ("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[SYSTEM_PROMPT]",
             "[/SYSTEM_PROMPT]")
    return byte_pairs("tekken", names,
                      (("bos_token_id", "<s>"), ("eos_token_id", "</s>"), ("unknown_token_id", "<unk>"),
                       ("chat", MISTRAL["mistral-v7-tekken"])),
                      whole=("\u0120harbour", "tokenizer", "\u0120windows", "ships", "\u0120Captain", "'s"),
                      never=(("1", "2"),))


def llama_vocab():
    return sentence_piece(True, (0, 1, 2, -1), (), (), (("chat", MISTRAL["mistral-v3"]),))


def phi3_vocab():
    names = ("<|endoftext|>", "<|assistant|>", "<|system|>", "<|end|>", "<|user|>")
    return sentence_piece(True, (0, 1, 2, -1), names, (), (("add_bos_token", False), ("chat", PHI3)))


def gemma_vocab():
    return sentence_piece(False, (3, 2, 1, 0), ("<start_of_turn>", "<end_of_turn>"), ("\n\n", "\n\n\n", "<start_of_image>"),
                          (("add_bos_token", True), ("padding_token_id", 0), ("chat", GEMMA)))


# ---- tensors ----

class Maker:
    """Random tensors of one file. Each name has its own numbers: adding a tensor changes no other."""

    def __init__(self, name, kind):
        self.seed, self.kind, self.tensors = zlib.crc32(name.encode()), kind, {}

    def normal(self, name, shape):
        return np.random.Generator(np.random.PCG64([self.seed, zlib.crc32(name.encode())])).standard_normal(shape)

    def add(self, name, values, kind=F32):
        values = np.ascontiguousarray(values, np.float32)
        self.tensors[name] = (values if kind == F32 else gguf.quants.quantize(values, kind), kind)

    def weight(self, name, *shape, gain=1.0, kind=None):
        """numpy shape [..., n_out, n_in]"""
        self.add(name + ".weight", self.normal(name, shape) * gain / np.sqrt(shape[-1]), kind or self.kind)

    def bias(self, name, *shape, size=0.3):
        self.add(name + ".bias", size * self.normal(name + ".bias", shape))

    def norm(self, name, n, bias=False, size=1.0):
        self.add(name + ".weight", size * (1 + 0.2 * self.normal(name, n)))
        if bias:
            self.bias(name, n, size=0.1)

    def vector(self, name, values):
        self.add(name + ".weight", values)


def llama3_factors(n_rot, base, factor=8.0, low=1.0, high=4.0, n_ctx=32):
    """What the converter writes as rope_freqs for Llama 3.1: small frequencies are divided by factor, with a ramp between."""
    wave = 2 * np.pi * base ** (2.0 * np.arange(n_rot // 2) / n_rot)
    smooth = (n_ctx / wave - low) / (high - low)
    ramp = 1 / ((1 - smooth) / factor + smooth)
    return np.where(wave < n_ctx / high, 1.0, np.where(wave > n_ctx / low, factor, ramp))


class Spec:
    """One file: architecture, sizes, and what it has of what is optional."""

    def __init__(self, name, arch, vocab, kind, layers=2, embd=64, heads=4, kv=2, d=None, ff=96, experts=0, used=0, tied=True,
                 qkv_bias=False, biases=False, keys=None, expert_kind=None, n_ctx=128, ffn_size=1.0):
        self.name, self.arch, self.vocab, self.kind, self.layers, self.embd, self.heads, self.kv = name, arch, vocab, kind, layers, embd, heads, kv
        self.d, self.ff, self.experts, self.used, self.tied, self.biases = d or embd // heads, ff, experts, used, tied, biases
        self.d_key, self.qkv_bias, self.keys, self.expert_kind, self.n_ctx = d, qkv_bias or biases, keys or {}, expert_kind or kind, n_ctx
        self.ffn_size = ffn_size  # factor of what the feed-forward network reads


YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32}
EPS = {"attention.layer_norm_rms_epsilon": 1e-5}
SPECS = [
    Spec("llama-spm", "llama", llama_vocab, F32, tied=False, keys={"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}),
    Spec("llama3", "llama", llama3_vocab, F16, heads=6, embd=96, kv=2, keys={"rope.freq_base": 500000.0}),
    Spec("llama-smollm", "llama", smollm_vocab, F32, heads=3, kv=1, embd=96, ff=160, keys={"rope.freq_base": 100000.0}),
    # as Mistral Nemo: heads are larger than embeddings / heads
    Spec("llama-tekken", "llama", tekken_vocab, F16, d=32, tied=False, keys={"rope.freq_base": 1e6}),
    Spec("llama-biased", "llama", gpt2_vocab, Q8_0, biases=True, keys=YARN),
    Spec("llama-experts", "llama", llama_vocab, Q8_0, experts=4, used=2, tied=False),
    # products of gate and up are near 1e8: beyond F16, and sums of their blocks too
    Spec("llama-large", "llama", smollm_vocab, F16, ffn_size=1e4),
    Spec("llama-large-q4", "llama", smollm_vocab, Q4_1, ffn_size=1e4),
    Spec("qwen2", "qwen2", qwen2_vocab, F16, qkv_bias=True, heads=7, kv=1, embd=112, keys={"rope.freq_base": 1e6}),
    Spec("qwen2-yarn", "qwen2", qwen2_vocab, F32, qkv_bias=True, tied=False, keys=YARN),
    Spec("qwen3", "qwen3", qwen2_vocab, Q8_0, d=32, layers=3, keys={"rope.freq_base": 1e6}),
    Spec("qwen3moe", "qwen3moe", qwen2_vocab, BF16, d=32, experts=8, used=3, ff=64, tied=False, keys={"rope.freq_base": 1e6}),
    Spec("gemma3", "gemma3", gemma_vocab, F32, d=32, layers=8, kv=1, n_ctx=256, keys={
        "attention.sliding_window": 8, "rope.freq_base": 1e6, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0}),
    Spec("gemma3-f16", "gemma3", gemma_vocab, F16, d=24, layers=7, kv=2, n_ctx=256, keys={"attention.sliding_window": 5, "rope.freq_base": 1e6}),
    # attention of the one with 27 billion parameters has another scale, and is known by its number of layers
    Spec("gemma3-27b", "gemma3", gemma_vocab, F32, d=32, layers=62, ff=32, kv=2, n_ctx=256,
         keys={"attention.sliding_window": 8}),
    Spec("gpt-oss", "gpt-oss", o200k_vocab, F32, d=32, layers=4, heads=4, kv=2, ff=64, experts=8, used=4, tied=False, biases=True,
         expert_kind=MXFP4, n_ctx=256, keys={**YARN, "rope.scaling.factor": 32.0, "rope.freq_base": 150000.0, "attention.sliding_window": 8}),
    Spec("phi3", "phi3", phi3_vocab, F16, kv=4, d=24, embd=96, tied=False, n_ctx=1024, keys={
        "rope.dimension_count": 18, "rope.scaling.original_context_length": 256, "rope.scaling.attn_factor": 1.19, "attention.sliding_window": 7}),
    Spec("phi3-plain", "phi3", phi3_vocab, Q8_0, kv=2),
    Spec("bert-mean", "bert", word_piece, F32, kv=4, biases=True, keys={"pooling_type": 1, "attention.causal": False}),
    Spec("bert-cls", "bert", functools.partial(word_piece, False), F16, kv=4, biases=True, keys={"pooling_type": 2, "attention.causal": False}),
]


def attention_tensors(m, s, layer):
    p, nq, nk = f"blk.{layer}.", s.heads * s.d, s.kv * s.d
    if s.arch == "phi3":
        m.weight(p + "attn_qkv", nq + 2 * nk, s.embd, gain=1.5)
    else:
        for name, rows, gain in (("q", nq, 1.5), ("k", nk, 1.5), ("v", nk, 1.0)):
            m.weight(f"{p}attn_{name}", rows, s.embd, gain=gain)
            if s.qkv_bias:  # as in Qwen2, biases of K are large
                m.bias(f"{p}attn_{name}", rows, size=8.0 if (s.arch, name) == ("qwen2", "k") else 0.3)
    m.weight(p + "attn_output", s.embd, nq)
    if s.biases:
        m.bias(p + "attn_output", s.embd)
    if s.arch in ("qwen3", "qwen3moe", "gemma3"):
        m.norm(p + "attn_q_norm", s.d)
        m.norm(p + "attn_k_norm", s.d)
    if s.arch == "gpt-oss":
        m.vector(p + "attn_sinks", 2 * m.normal(p + "attn_sinks", s.heads))


def ffn_tensors(m, s, layer):
    p, kind = f"blk.{layer}.", s.expert_kind
    if s.experts:
        m.weight(p + "ffn_gate_inp", s.experts, s.embd, gain=2.0, kind=F32)
        shapes = {"gate": (s.ff, s.embd), "up": (s.ff, s.embd), "down": (s.embd, s.ff)}
        for name, (rows, columns) in shapes.items():
            m.weight(f"{p}ffn_{name}_exps", s.experts, rows, columns, kind=kind)
        if s.arch == "gpt-oss":
            m.bias(p + "ffn_gate_inp", s.experts)
            for name, (rows, _) in shapes.items():
                m.bias(f"{p}ffn_{name}_exps", s.experts, rows)
        return
    if s.arch == "phi3":
        m.weight(p + "ffn_up", 2 * s.ff, s.embd)
    else:
        names = ("up",) if s.arch == "bert" else ("gate", "up")
        for name in names:
            m.weight(f"{p}ffn_{name}", s.ff, s.embd)
            if s.biases:
                m.bias(f"{p}ffn_{name}", s.ff)
    m.weight(p + "ffn_down", s.embd, s.ff)
    if s.biases:
        m.bias(p + "ffn_down", s.embd)


def norm_tensors(m, s, layer):
    names = {"bert": ("attn_output_norm", "layer_output_norm"), "gpt-oss": ("attn_norm", "post_attention_norm"),
             "gemma3": ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")}.get(s.arch, ("attn_norm", "ffn_norm"))
    for name in names:
        m.norm(f"blk.{layer}.{name}", s.embd, bias=s.arch == "bert", size=s.ffn_size if name == "ffn_norm" else 1.0)


def global_tensors(m, s, n_vocab):
    # gemma3 multiplies its embeddings by sqrt(E); tied outputs make logits of the size of embeddings
    m.weight("token_embd", n_vocab, s.embd, gain=1.0 if s.arch == "gemma3" else 4.0)
    if s.arch == "bert":
        m.weight("position_embd", s.n_ctx, s.embd, gain=2.0, kind=F32)
        m.weight("token_types", 2, s.embd, gain=2.0, kind=F32)
        m.norm("token_embd_norm", s.embd, bias=True)
        return
    m.norm("output_norm", s.embd)
    if not s.tied:
        m.weight("output", n_vocab, s.embd, gain=4.0)
    n_rot = s.keys.get("rope.dimension_count", s.d)
    if s.name == "llama3":
        m.vector("rope_freqs", llama3_factors(n_rot, s.keys["rope.freq_base"]))
    if s.name == "phi3":
        m.vector("rope_factors_short", 1 + 0.1 * np.arange(n_rot // 2))
        m.vector("rope_factors_long", 1 + 3.0 * np.arange(n_rot // 2))


# ---- files ----

def write_vocab(w, v):
    w.add_tokenizer_model(v.model)
    w.add_token_list(v.tokens)
    w.add_token_types(v.types)
    if v.scores:
        w.add_token_scores(v.scores)
    if v.merges:
        w.add_token_merges(v.merges)
    for key, value in v.keys.items():
        name = "tokenizer.chat_template" if key == "chat" else f"tokenizer.ggml.{key}"
        add = {bool: w.add_bool, int: w.add_uint32, str: w.add_string}[type(value)]
        add(name, value)


def write_keys(w, s):
    w.add_name(f"gcuda test {s.name}")
    w.add_context_length(s.n_ctx)
    w.add_embedding_length(s.embd)
    w.add_block_count(s.layers)
    w.add_feed_forward_length(s.ff)
    w.add_head_count(s.heads)
    w.add_head_count_kv(s.kv)
    if s.arch == "bert":
        w.add_layer_norm_eps(1e-12)
    else:
        w.add_layer_norm_rms_eps(EPS["attention.layer_norm_rms_epsilon"])
    if s.d_key:
        w.add_key_length(s.d)
        w.add_value_length(s.d)
    if s.experts:
        w.add_expert_count(s.experts)
        w.add_expert_used_count(s.used)
        if s.arch != "llama":
            w.add_expert_feed_forward_length(s.ff)
    for key, value in s.keys.items():
        add = {bool: w.add_bool, int: w.add_uint32, float: w.add_float32, str: w.add_string}[type(value)]
        add(f"{s.arch}.{key}", value)


def write(s, folder):
    path = os.path.join(folder, s.name + ".gguf")
    v, m = s.vocab(), Maker(s.name, s.kind)
    global_tensors(m, s, len(v))
    for layer in range(s.layers):
        norm_tensors(m, s, layer)
        attention_tensors(m, s, layer)
        ffn_tensors(m, s, layer)
    w = gguf.GGUFWriter(path, s.arch)
    write_keys(w, s)
    write_vocab(w, v)
    for name, (data, kind) in m.tensors.items():
        w.add_tensor(name, data, raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    if v.proto:
        with open(os.path.join(folder, s.name + ".model"), "wb") as f:
            f.write(v.proto)
    return path


def make_all(folder=FOLDER, only=""):
    os.makedirs(folder, exist_ok=True)
    return {s.name: write(s, folder) for s in SPECS if only in s.name}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", default=FOLDER)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    for path in make_all(args.folder, args.only).values():
        print(path)


if __name__ == "__main__":
    main()
