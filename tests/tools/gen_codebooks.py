#!/usr/bin/env python3
"""Writes the codebooks of the GGUF formats into gcuda.h, between the two marker comments.

The numbers are taken from the PyPI package gguf; where a folder with the same tables as text is given, they are
compared with it. A grid entry is stored as digits, low bits first, in one uint16_t: 8 digits of 2 bits or 4 of 3 bits.

    gen_codebooks.py gcuda.h                    rewrite the tables
    gen_codebooks.py --check gcuda.h            only say whether they are as they would be written (exit 1 if not)
    gen_codebooks.py --data FOLDER [...]        first compare gguf's tables with FOLDER/*.txt
"""
import argparse
import os
import sys

import numpy as np
from gguf import quants

BEGIN = "// codebooks: written by tests/tools/gen_codebooks.py\n"
END = "// end of codebooks\n"

# name, class of gguf.quants, bits of a digit, what the digits stand for
GRIDS = [
    ("iq2xxs", quants.IQ2_XXS, 2, "8 25 43"),
    ("iq2xs", quants.IQ2_XS, 2, "8 25 43"),
    ("iq2s", quants.IQ2_S, 2, "8 25 43"),
    ("iq3xxs", quants.IQ3_XXS, 3, "4 12 20 28 36 44 52 62"),
    ("iq3s", quants.IQ3_S, 3, "1 3 5 7 9 11 13 15"),
    ("iq1s", quants.IQ1_S, 2, "-1 0 1"),
]
VALUES = [("iq4nl", quants.IQ4_NL), ("mxfp4", quants.MXFP4)]


def grid_of(cls):
    cls.init_grid()
    return cls.grid.reshape(cls.grid_shape).astype(int)


def pack(grid, bits, levels):
    digit = {value: k for k, value in enumerate(levels)}
    return [sum(digit[v] << (bits * k) for k, v in enumerate(row)) for row in grid.tolist()]


def c_table(ctype, name, words, fmt, comma):
    lines = [f"GCUDAI_TABLE {ctype} {name}[{len(words)}] = {{"]
    for i in range(0, len(words), 16):
        lines.append("    " + comma.join(fmt % w for w in words[i:i + 16]) + ",")
    return lines + ["};"]


def render():
    out = ["// clang-format off"]
    for name, cls in VALUES:
        out += c_table("int8_t", f"gcudai_kvalues_{name}", list(cls.kvalues), "%d", ", ")
    for name, cls, bits, levels in GRIDS:
        packed = pack(grid_of(cls), bits, [int(v) for v in levels.split()])
        assert packed == sorted(set(packed)), f"{name}: entries are not strictly increasing"
        out.append(f"// {8 if bits == 2 else 4} digits of {bits} bits that stand for {levels}")
        out += c_table("uint16_t", f"gcudai_grid_{name}", packed, "0x%04x", ",")
    out.append("// clang-format on")
    return "".join(line + "\n" for line in out)


def compare_with_folder(folder):
    """The same facts from a second source; also those that gcuda.h computes by rule."""
    def table(name):
        return np.loadtxt(os.path.join(folder, name + ".txt"), dtype=int, ndmin=2)

    for name, cls, _, levels in GRIDS:
        assert (table(name) == grid_of(cls)).all(), name
        assert set(table(name).ravel()) <= {int(v) for v in levels.split()}, name
    for name, cls in VALUES:
        assert table("kvalues_" + name).ravel().tolist() == list(cls.kvalues), name
    signs = [s | (bin(s).count("1") & 1) << 7 for s in range(128)]
    assert table("ksigns").ravel().tolist() == signs == list(quants.IQ2_XXS.ksigns), "ksigns"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("header")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--data")
    args = parser.parse_args()
    if args.data:
        compare_with_folder(args.data)
    with open(args.header, encoding="utf-8") as f:
        text = f.read()
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        sys.exit(f"{args.header}: the two marker comments are not there, once each and in order")
    head, rest = text.split(BEGIN)
    new = head + BEGIN + render() + END + rest.split(END)[1]
    if args.check:
        print("codebooks are", "as generated" if new == text else "NOT as generated")
        sys.exit(0 if new == text else 1)
    if new != text:
        with open(args.header, "w", encoding="utf-8") as f:
            f.write(new)


if __name__ == "__main__":
    main()
