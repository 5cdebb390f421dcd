#!/usr/bin/env python3
"""Writes examples/digits_data.h: 1797 handwritten digits as text, one per line.

The numbers come from sklearn/datasets/data/digits.csv.gz inside a wheel of scikit-learn; nothing gets installed. A line
of the file is 64 pixels of 0..16, row by row, and the class; here a pixel is one of the 17 digits 0..9 and A..G.

    digits_data.py                  fetch the wheel from PyPI and write examples/digits_data.h
    digits_data.py --wheel FILE     use a wheel that is here already
    digits_data.py --check          only say whether the committed file is what would be written (exit 1 if not)
"""
import argparse
import glob
import gzip
import os
import subprocess
import sys
import tempfile
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
OUTPUT = os.path.join(ROOT, "examples", "digits_data.h")
MEMBER = "sklearn/datasets/data/digits.csv.gz"
SYMBOLS = "0123456789ABCDEFG"
N_SAMPLES, N_PIXELS = 1797, 64

HEAD = """\
// 1797 handwritten digits of 13 people, 8x8 pixels each. Written by tests/tools/digits_data.py.
//
// Data: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998,
// https://doi.org/10.24432/C50P49 (licence CC BY 4.0). These are the samples of its test set, as scikit-learn on PyPI
// distributes them (sklearn/datasets/data/digits.csv.gz, the source of sklearn.datasets.load_digits), in the same
// order. A pixel counts the inked dots of a 4x4 cell of the scanned 32x32 bitmap: 0 to 16.
//
// One string per digit: its class, a colon, 64 pixels row by row from the top left, each one of 0..9 and A..G.
#ifndef DIGITS_DATA_H
#define DIGITS_DATA_H

#define DIGITS_COUNT 1797

static const char * const digits_data[DIGITS_COUNT] = {
"""
TAIL = """\
};

#endif // DIGITS_DATA_H
"""


def fetch_wheel(folder):
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", folder,
               "scikit-learn"]
    subprocess.run(command, check=True)
    return glob.glob(os.path.join(folder, "*.whl"))[0]


def samples(wheel):
    with zipfile.ZipFile(wheel) as z:
        text = gzip.decompress(z.read(MEMBER)).decode("ascii")
    rows = [[int(v) for v in line.split(",")] for line in text.split()]
    if len(rows) != N_SAMPLES:
        sys.exit(f"{wheel}: {len(rows)} samples, want {N_SAMPLES}")
    for i, row in enumerate(rows):
        if len(row) != N_PIXELS + 1 or not all(0 <= v <= 16 for v in row[:-1]) or not 0 <= row[-1] <= 9:
            sys.exit(f"{wheel}: sample {i} is not 64 pixels of 0..16 and a class")
    return rows


def header(rows):
    lines = [f'    "{row[-1]}:{"".join(SYMBOLS[v] for v in row[:-1])}",\n' for row in rows]
    return HEAD + "".join(lines) + TAIL


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel", help="a scikit-learn wheel; fetched with pip when not given")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = header(samples(args.wheel or fetch_wheel(folder)))
    if args.check:
        with open(OUTPUT, encoding="ascii") as f:
            same = f.read() == text
        print("examples/digits_data.h is " + ("current" if same else "not what digits_data.py writes"))
        return 0 if same else 1
    with open(OUTPUT, "w", encoding="ascii", newline="\n") as f:
        f.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
