#!/usr/bin/env python3
"""Every switch that leaves kernels out (GCUDA_KERNEL_NO_...), set for gcuda_kernels.cu and for the implementation alike.

    switches.py [--symbols] [--only SWITCH,...] [--sixth [--seed N]]      last line: N passed, N failed

Each switch alone, and all together: whatever the implementation calls by then, the kernels define by then. What is called and what is
defined is read in the preprocessed text, which takes a fraction of a second; that this reading is right is checked against the symbols
of an object. Then both compile without a warning: the front end is asked, and of the kernels only for the parts that a switch changes.
--symbols: only the first of these. --sixth: of the single switches every sixth compiles, chosen by the seed, which is printed; six
consecutive seeds choose all. All together always compile. A program of which all this is linked and run is tests/sim/run.py's (group
switches).
"""
import argparse
import concurrent.futures
import os
import re
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
WARN = "-Wall -Wextra -Wpedantic -Wshadow -Werror".split()
SIM = ["-DGCUDA_CUDA", "-Itests/sim/include", "-I.", "-Itests"]
KERNELS = ["g++", "-std=c++17", *SIM, "-x", "c++", "gcuda_kernels.cu"]
IMPLEMENTATION = ["gcc", "-std=c99", *SIM, "-DGCUDA_IMPLEMENTATION", "-x", "c", "gcuda.h"]


def switches():
    """All that gcuda.h or gcuda_kernels.cu asks for."""
    names = set()
    for file in ("gcuda.h", "gcuda_kernels.cu"):
        with open(os.path.join(ROOT, file), encoding="utf-8") as f:
            text = f.read()
        names |= set(re.findall(r"\bGCUDA_KERNEL_NO_([A-Z][A-Z0-9_]*)\b(?! ?##)", text))
        names |= set(re.findall(r"\bGCUDAI_(?:KERNEL_HAS|KERNEL_WHEN)\(([A-Z][A-Z0-9_]+)\b", text))
        table = re.search(r"#define GCUDA_TYPES\(X\)((?:.*\\\n)*.*)", text)
        names |= set(re.findall(r"X\((\w+),.*\byes\)", table[1])) if table else set()
    return sorted(names - {"ID", "FAMILY"})


def sixth(names, seed):
    """Single switches: each is chosen by one of six consecutive seeds."""
    return names[seed % 6::6]


def sixths_are_all(names):
    chosen = sorted(name for seed in range(7, 13) for name in sixth(names, seed))
    return "" if chosen == sorted(names) else "six seeds choose " + " ".join(chosen)


def defined(names):
    return [f"-DGCUDA_KERNEL_NO_{name}" for name in names]


def call(command):
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
                          errors="replace", check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr[:2000]}")
    return done.stdout


def text_of(command, names=(), *more):
    return call([*command, *defined(names), *more, "-E", "-P"])


def split(text):
    """What stands outside all braces, where bodies are a {} each, and what stands inside."""
    text = re.sub(r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)+\'', '""', text)
    text = re.sub(r'extern ""\s*\{', "", text)  # its closing brace closes nothing: see below
    outside, inside, depth = [], [], 0
    for piece in re.split(r"([{}])", text):
        if piece == "{":
            depth += 1
            outside.append("{}" if depth == 1 else "")
        elif piece == "}":
            depth = max(depth - 1, 0)
            inside.append("\n")
        else:
            (inside if depth else outside).append(piece)
    return "".join(outside), "".join(inside)


def functions_of_kernels(text):
    """External functions that are defined, not only declared."""
    return set(re.findall(r"\b(gcuda_\w+)\s*\((?:[^(){};]|\([^(){};]*\))*\)\s*\{\}", split(text)[0]))


def declared(text):
    """Functions of gcuda_kernels.cu that gcuda.h declares."""
    return set(re.findall(r"\b(gcuda_\w+)\s*\((?:[^(){};]|\([^(){};]*\))*\)\s*;", split(text)[0]))


def called(text, candidates):
    """Of these functions, those that bodies and tables name."""
    return set(re.findall(r"\bgcuda_\w+", split(text)[1])) & candidates


def undefined_in_object(names):
    with tempfile.TemporaryDirectory() as folder:
        call([*IMPLEMENTATION, *defined(names), "-O0", "-c", "-o", f"{folder}/gcuda.o"])
        return set(re.findall(r"\bU (gcuda_\w+)", call(["nm", "-u", f"{folder}/gcuda.o"])))


def parts():
    with open(os.path.join(ROOT, "gcuda_kernels.cu"), encoding="utf-8") as f:
        return sorted(set(re.findall(r"^#if \(?GCUDAI_PART\((\d+)\)", f.read(), re.M)), key=int)


class Switches:
    def __init__(self):
        implementation = text_of(IMPLEMENTATION)
        self.candidates = declared(implementation) - functions_of_kernels(implementation)
        self.plain = {part: text_of(KERNELS, (), f"-DGCUDA_KERNEL_PART={part}") for part in parts()}

    def reading_is_right(self, names):
        read, found = called(text_of(IMPLEMENTATION, names), self.candidates), undefined_in_object(names)
        return "" if read == found and found else "the text and the object differ in " + " ".join(sorted(read ^ found) or ["nothing: no symbol"])

    def links(self, names):
        missing = called(text_of(IMPLEMENTATION, names), self.candidates) - functions_of_kernels(text_of(KERNELS, names))
        return "the implementation calls what the kernels do not define: " + " ".join(sorted(missing)) if missing else ""

    def implementation_compiles(self, names):
        call([*IMPLEMENTATION, *defined(names), *WARN, "-fsyntax-only"])
        return ""

    def kernels_compile(self, names):
        for part, plain in self.plain.items():
            if text_of(KERNELS, names, f"-DGCUDA_KERNEL_PART={part}") != plain:
                # as the parts of every build (Makefile): a part does not use all that they share
                call([*KERNELS, *defined(names), f"-DGCUDA_KERNEL_PART={part}", *WARN, "-Wno-unused-function", "-fsyntax-only"])
        return ""


def run(check):
    name, do, names = check
    try:
        return name, do(names)
    except RuntimeError as e:
        return name, str(e)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--symbols", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--sixth", action="store_true")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 1000000 + 1)
    args = parser.parse_args()
    every = switches()
    compiled = sixth(every, args.seed) if args.sixth else every
    if args.sixth:
        print(f"seed {args.seed}: once more with --sixth --seed {args.seed}", flush=True)
    all_sets = [("no switch", [])] + [(name, [name]) for name in every] + [("all switches", every)]
    sets = [s for s in all_sets if not args.only or s[0] in args.only.split(",")]
    look = Switches()
    checks = [(f"{name}: reading text for symbols", look.reading_is_right, names) for name, names in sets if name.endswith(("switch", "switches"))]
    checks += [(f"{name}: implementation and kernels link", look.links, names) for name, names in sets]
    checks += [("a sixth of the switches for each of six seeds", sixths_are_all, every)]
    if not args.symbols:
        sets = [(name, names) for name, names in sets if name in compiled or len(names) > 1]
        checks += [(f"{name}: the implementation compiles", look.implementation_compiles, names) for name, names in sets]
        checks += [(f"{name}: the kernels compile", look.kernels_compile, names) for name, names in sets]
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(min(os.cpu_count() or 1, 4)) as pool:
        for name, text in pool.map(run, checks):
            failed += bool(text)
            print(f"{'FAILED' if text else 'ok':6}  {name}" + (f": {text}" if text else ""), flush=True)
    print(f"{len(checks) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
