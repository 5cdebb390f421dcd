#!/usr/bin/env python3
"""Runs the example programs that work on real models and compares what they print and write with something independent.

    python3 tests/examples.py [--programs FOLDER] [--backend NAME] [--only TEXT]
    python3 tests/examples.py --picture examples/upscale.png     README's picture of upscale: before and after, next to each other

embed      the lines of a text against vectors of the PyPI package sentence-transformers (tests/llm/expected/minilm.json)
upscale    a drawn picture against the same network in numpy (tests/llm/convert_upscaler.py), whole and in tiles
png        the same picture as PNG, in and out, where upscale was built with Debian's libstb-dev
Models come from PyPI (tests/llm/models.py); where it cannot be reached a check is skipped and says so.
Last line: N passed, N failed, N skipped.
"""
import argparse
import base64
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import traceback
import zlib

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path.insert(0, os.path.join(HERE, "llm"))
import convert_minilm  # noqa: E402
import convert_upscaler  # noqa: E402
import models  # noqa: E402


class Run:
    def __init__(self, args, folder):
        self.args, self.folder, self.n_passed, self.n_failed = args, folder, 0, 0

    def that(self, is_true, what, why=""):
        self.n_passed += bool(is_true)
        self.n_failed += not is_true
        if not is_true:
            print(f"FAILED  {what}: {why}", flush=True)

    def path(self, name):
        return os.path.join(self.folder, name)

    def program(self, name, *words):
        """(exit code, output, errors)"""
        done = subprocess.run([os.path.join(ROOT, self.args.programs, name), *words], capture_output=True, text=True, timeout=600, check=False)
        return done.returncode, done.stdout, done.stderr


# ---- embed ----
def embed(run):
    with open(os.path.join(HERE, "llm", "expected", "minilm.json"), encoding="utf-8") as f:
        rows = json.load(f)
    vectors = np.array([np.frombuffer(base64.b64decode(row["vector"]), "<f2") for row in rows], float)
    vectors /= np.sqrt((vectors ** 2).sum(-1, keepdims=True))
    lines = [i for i, row in enumerate(rows) if row["text"].strip() and "\n" not in row["text"] and "\r" not in row["text"]]
    with open(run.path("lines.txt"), "w", encoding="utf-8") as f:
        f.write("\n\n".join(rows[i]["text"] for i in lines))  # empty lines are passed over; no end after the last one
    model = models.minilm()
    for kind, near in (("f16", 0.002), ("q8_0", 0.02)):
        path = convert_minilm.convert(model, run.path(f"{kind}.gguf"), kind)
        for question in lines[:3]:
            code, out, errors = run.program("embed", path, run.path("lines.txt"), rows[question]["text"])
            got = re.findall(r"^(-?\d\.\d+)  line (\d+): (.*)$", out, re.M)
            run.that(code == 0 and len(got) == 5, f"embed {kind}: five lines", f"exit code {code}, {out!r} {errors!r}")
            scores = vectors[lines] @ vectors[question]
            best = np.sort(scores)[::-1]
            for rank, (score, number, text) in enumerate(got):
                i = (int(number) - 1) // 2
                run.that(text == rows[lines[i]]["text"], f"embed {kind}: the text of line {number}", repr(text))
                run.that(abs(float(score) - scores[i]) < near, f"embed {kind}: score of line {number}", f"{score}, want {scores[i]:.4f}")
                run.that(abs(float(score) - best[rank]) < near, f"embed {kind}: rank {rank}", f"{score}, want {best[rank]:.4f}")
    for words in (["missing.gguf", run.path("lines.txt"), "x"], [path, run.path("missing.txt"), "x"], [run.path("lines.txt"), run.path("lines.txt"), "x"]):
        code, out, errors = run.program("embed", *words)
        run.that(code == 1 and out == "" and ("missing" in errors or "lines.txt" in errors), "embed: a bad file is named", f"{code}, {errors!r}")
    code, out, errors = run.program("embed", path, run.folder, "a question")
    run.that(code == 1 and out == "" and "cannot be read" in errors, "embed: a folder is no text", f"{code}, {out!r} {errors!r}")
    if os.path.exists("/dev/full"):
        with open("/dev/full", "wb") as full:
            words = [os.path.join(ROOT, run.args.programs, "embed"), path, run.path("lines.txt"), "a question"]
            done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, timeout=600, check=False)
        run.that(done.returncode == 1 and b"cannot be written" in done.stderr, "embed: a full disk", f"{done.returncode}, {done.stderr!r}")
    run.that(run.program("embed")[0] == 2, "embed: usage")


# ---- upscale ----
def draw(width, height):
    """A red disc and a dark line over colours that change slowly: bytes [height, width, 3]."""
    y, x = np.mgrid[0:height, 0:width].astype(float)
    p = np.stack([x / width, y / height, 0.5 + 0.3 * np.sin(x * 0.3)], -1)
    p[(x - width * 0.4) ** 2 + (y - height * 0.5) ** 2 < (height * 0.3) ** 2] = (0.9, 0.2, 0.1)
    p[abs(y - height * 0.5 - 0.4 * (x - width * 0.5)) < 1.5] = (0.05, 0.05, 0.1)
    return (p * 255 + 0.5).astype(np.uint8)


def write_ppm(path, p, head="P6\n# a comment\n{w} {h}\n255\n", cut=0):
    data = p.tobytes()
    with open(path, "wb") as f:
        f.write(head.format(w=p.shape[1], h=p.shape[0]).encode() + data[:len(data) - cut])
    return path


def read_ppm(path):
    with open(path, "rb") as f:
        magic, size, most, data = f.read().split(b"\n", 3)
    width, height = map(int, size.split())
    assert magic == b"P6" and most == b"255"
    return np.frombuffer(data, np.uint8).reshape(height, width, 3)


def upscale(run):
    files = models.realesr()
    model, out = convert_upscaler.convert(files, run.path("upscaler.gguf")), run.path("out.ppm")
    picture = draw(44, 30)
    source = write_ppm(run.path("in.ppm"), picture)
    want = 255 * convert_upscaler.forward(convert_upscaler.read_network(files), picture / 255).clip(0, 1)
    seen = []
    for words, n_tiles in (([], 1), (["--tile", "20", "--runs", "2"], 6), (["--tile", "29"], 4)):
        code, said, errors = run.program("upscale", model, source, out, "--backend", run.args.backend, *words)
        pattern = rf"44 x 30 -> 176 x 120 on {run.args.backend}, {n_tiles} tiles?: \d+\.\d ms a frame"
        run.that(code == 0 and re.match(pattern, said), f"upscale {words}: what is said", f"exit code {code}, {said!r} {errors!r}")
        if code == 0:
            got = read_ppm(out)
            psnr = 10 * np.log10(255 ** 2 / ((got - want) ** 2).mean())
            run.that(psnr >= 50, f"upscale {words}: PSNR against numpy", f"{psnr:.1f} dB, want 50")
            seen.append(got.astype(int))
            print(f"        upscale {' '.join(words)}: {psnr:.1f} dB", flush=True)
    run.that(all(abs(s - seen[0]).max() <= 1 for s in seen), "upscale: tiles give the same picture")
    bad = [("P5", write_ppm(run.path("p5.ppm"), picture, "P5\n{w} {h}\n255\n")), ("cut", write_ppm(run.path("cut.ppm"), picture, cut=1)),
           ("deep", write_ppm(run.path("deep.ppm"), picture, "P6 {w} {h} 65535\n")), ("huge", write_ppm(run.path("huge.ppm"), picture, "P6 99999 9999999999 255\n")),
           ("empty", write_ppm(run.path("empty.ppm"), picture[:0])), ("no file", run.path("missing.ppm"))]
    for name, path in bad:
        code, said, errors = run.program("upscale", model, path, out, "--backend", run.args.backend)
        run.that(code == 1 and said == "" and os.path.basename(path) in errors, f"upscale: {name} is refused by name", f"{code}, {errors!r}")
    code, said, errors = run.program("upscale", source, source, out, "--backend", run.args.backend)
    run.that(code == 1 and "in.ppm" in errors, "upscale: a model that is none is refused by name", f"{code}, {errors!r}")
    code, said, errors = run.program("upscale", model, source, run.path("no/folder.ppm"), "--backend", run.args.backend)
    run.that(code == 1 and "no/folder.ppm" in errors, "upscale: a picture that cannot be written", f"{code}, {errors!r}")
    run.that(run.program("upscale", model, source, out, "--tile")[0] == 2, "upscale: usage")


# ---- PNG ----
class Skip(Exception):
    pass


def read_png(path):
    """Bytes [height, width, 3] of a PNG file of 8-bit RGB without interlacing."""
    with open(path, "rb") as f:
        data = f.read()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, chunks = 8, {}
    while at < len(data):
        n, name = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + n]
        assert zlib.crc32(name + body) == struct.unpack(">I", data[at + 8 + n:at + 12 + n])[0]
        chunks[name] = chunks.get(name, b"") + body
        at += 12 + n
    width, height, *kind = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert kind == [8, 2, 0, 0, 0]
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, 1 + 3 * width).astype(int)
    out = np.zeros((height + 1, 3 * width + 3), int)  # a row above and a pixel before, both 0
    for y, (filter_, *row) in enumerate(rows, 1):
        for x, value in enumerate(row, 3):
            a, b, c = out[y, x - 3], out[y - 1, x], out[y - 1, x - 3]
            paeth = min((abs(b - c), 0, a), (abs(a - c), 1, b), (abs(a + b - 2 * c), 2, c))[2]
            out[y, x] = (value + (0, a, b, (a + b) // 2, paeth)[filter_]) % 256
    return out[1:, 3:].reshape(height, width, 3).astype(np.uint8)


def png(run):
    model = convert_upscaler.convert(models.realesr(), run.path("upscaler.gguf"))
    picture = draw(37, 23)
    write_png(run.path("in.png"), picture)
    run.that((read_png(run.path("in.png")) == picture).all(), "png: the test reads what it writes")
    code, said, errors = run.program("upscale", model, run.path("in.png"), run.path("out.png"), "--backend", run.args.backend)
    if code == 1 and "libstb-dev" in errors:
        raise Skip("upscale was built without PNG (apt-get install libstb-dev)")
    run.that(code == 0 and said.startswith("37 x 23 -> 148 x 92"), "png: what is said", f"exit code {code}, {said!r} {errors!r}")
    run.program("upscale", model, write_ppm(run.path("in.ppm"), picture), run.path("out.ppm"), "--backend", run.args.backend)
    run.that((read_png(run.path("out.png")) == read_ppm(run.path("out.ppm"))).all(), "png: the pixels of the PPM files")
    with open(run.path("in.png"), "rb") as f:
        data = f.read()
    head = struct.pack(">IIBBBBB", 70000, 1, 8, 2, 0, 0, 0)
    bad = {"cut": data[:60], "empty": b"", "other": b"\x88" + data[1:], "wide": data[:16] + head + struct.pack(">I", zlib.crc32(b"IHDR" + head)) + data[33:]}
    for name, damaged in bad.items():
        path = run.path(f"{name}.png")
        with open(path, "wb") as f:
            f.write(damaged)
        code, said, errors = run.program("upscale", model, path, run.path("bad-out.png"), "--backend", run.args.backend)
        run.that(code == 1 and said == "" and f"{name}.png" in errors, f"png: {name} is refused by name", f"{code}, {errors!r}")
    code, said, errors = run.program("upscale", model, run.path("in.png"), run.path("no/folder.png"), "--backend", run.args.backend)
    run.that(code == 1 and "no/folder.png" in errors, "png: a picture that cannot be written", f"{code}, {errors!r}")


# ---- README's picture ----
def scene(width, height):
    """A house on a hill at night, every pixel of one colour."""
    y, x = np.mgrid[0:height, 0:width].astype(float)
    x, y = x / height, y / height  # the picture is 1 high
    p = np.stack([0.10 + 0.35 * y, 0.12 + 0.2 * y, 0.35 + 0.25 * y], -1)
    stars = (np.floor(x * 31) * 7 + np.floor(y * 29) * 13) % 41 == 0
    p[stars & (np.floor(x * height) % 3 == 0) & (np.floor(y * height) % 3 == 0)] = (1, 1, 0.9)
    p[(x - 1.2) ** 2 + (y - 0.25) ** 2 < 0.02] = (1, 0.95, 0.7)
    p[(x - 1.13) ** 2 + (y - 0.21) ** 2 < 0.012] = (0.17, 0.17, 0.41)
    p[y > 0.75 - 0.18 * np.sin(2.2 * x)] = (0.1, 0.3, 0.2)
    p[y > 0.9 - 0.1 * np.sin(2.2 * x + 2)] = (0.16, 0.42, 0.22)
    wall = (abs(x - 0.6) < 0.17) & (y > 0.42) & (y < 0.68)
    p[wall] = (0.85, 0.75, 0.6)
    p[(abs(x - 0.6) < (y - 0.22) * 1.05) & (y < 0.42)] = (0.7, 0.15, 0.12)
    for left in (0.48, 0.63):
        p[(x > left) & (x < left + 0.09) & (y > 0.48) & (y < 0.58)] = (1, 0.85, 0.3)
        p[(abs(x - left - 0.045) < 0.008) & (y > 0.48) & (y < 0.58)] = (0.4, 0.25, 0.15)
    return (p * 255 + 0.5).astype(np.uint8)


def write_png(path, p):
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    head = struct.pack(">IIBBBBB", p.shape[1], p.shape[0], 8, 2, 0, 0, 0)
    rows = b"".join(b"\2" + (row - above).astype(np.uint8).tobytes() for row, above in zip(p, np.concatenate([p[:1] * 0, p[:-1]])))
    with open(path, "wb") as f:
        f.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b""))


def picture(run, path):
    before = scene(96, 64)
    model = convert_upscaler.convert(models.realesr(), run.path("upscaler.gguf"))
    code, said, errors = run.program("upscale", model, write_ppm(run.path("in.ppm"), before), run.path("out.ppm"), "--backend", run.args.backend)
    if code != 0:
        sys.exit(errors)
    print(said, end="")
    write_png(path, np.concatenate([np.repeat(np.repeat(before, 4, 0), 4, 1), read_ppm(run.path("out.ppm"))], 1))


CHECKS = {"embed": embed, "upscale": upscale, "png": png}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", default="build")
    parser.add_argument("--backend", default="CPU", help="of upscale")
    parser.add_argument("--only", default="")
    parser.add_argument("--picture", metavar="FILE.png")
    args = parser.parse_args()
    n_skipped = 0
    with tempfile.TemporaryDirectory() as folder:
        run = Run(args, folder)
        if args.picture:
            picture(run, args.picture)
            return 0
        for name, check in CHECKS.items():
            if args.only not in name:
                continue
            before = run.n_passed, run.n_failed
            try:
                check(run)
            except (models.Unreachable, Skip) as e:
                n_skipped += 1
                print(f"skip    {name}: {e}")
                continue
            except Exception:  # a fault of the check is a failed check, and the others still run
                run.that(False, name, traceback.format_exc())
            if run.n_failed == before[1]:
                print(f"ok      {name}: {run.n_passed - before[0]} checks", flush=True)
    print(f"{run.n_passed} passed, {run.n_failed} failed" + (f", {n_skipped} skipped" if n_skipped else ""))
    return 1 if run.n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
