#!/usr/bin/env python3
"""Copies the example programs that README.md shows into it, between `<!-- NAME-begin: FILE -->` and `<!-- NAME-end -->`,
and between `optable-begin` and `optable-end` the table of operations and types that tests/tools/optable.c makes.

    gen_readme.py gcuda.h           rewrite README.md beside gcuda.h
    gen_readme.py --check gcuda.h   only say whether it is as it would be written (exit 1 if not)
"""
import argparse
import os
import re
import subprocess
import sys

BLOCK = re.compile(r"(<!-- (\w+)-begin: (\S+) -->\n).*?(<!-- \2-end -->)", re.S)


OPTABLE = re.compile(r"(<!-- optable-begin -->\n).*?(<!-- optable-end -->)", re.S)


def optable(root):
    """Asks the library itself, built once more without optimization in a folder of its own."""
    folder = "build/readme"
    subprocess.run(["make", "-s", "--no-print-directory", f"B={folder}", "CFLAGS=-O0", f"{folder}/gcuda_impl.o"], cwd=root, check=True)
    cc = os.environ.get("CC", "cc").split()
    subprocess.run([*cc, "-std=c99", "-I.", "-Itests", "tests/tools/optable.c", f"{folder}/gcuda_impl.o", "-o", f"{folder}/optable",
                    "-pthread", "-lm", "-ldl"], cwd=root, check=True)
    return subprocess.run([f"{folder}/optable"], cwd=root, check=True, stdout=subprocess.PIPE).stdout.decode("utf-8")


def renewed(text, root):
    text = OPTABLE.sub(lambda m: m.group(1) + optable(root) + m.group(2), text)

    def block(m):
        with open(os.path.join(root, m.group(3)), encoding="utf-8") as f:
            return f"{m.group(1)}```c\n{f.read()}```\n{m.group(4)}"
    return BLOCK.sub(block, text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("header", help="path of gcuda.h")
    args = parser.parse_args()
    root = os.path.dirname(os.path.abspath(args.header))
    path = os.path.join(root, "README.md")
    with open(path, encoding="utf-8") as f:
        old = f.read()
    new = renewed(old, root)
    if args.check:
        print("README.md is current" if old == new else "README.md: an example has changed (make generate)")
        return 0 if old == new else 1
    if old != new:
        with open(path, "w", encoding="utf-8", newline="\n") as f:
            f.write(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
