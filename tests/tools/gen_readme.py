#!/usr/bin/env python3
"""Copies the example programs that README.md shows into it, between `<!-- NAME-begin: FILE -->` and `<!-- NAME-end -->`.
Into >>ops of gcuda.h, between the lines `optable-begin` and `optable-end`, goes the table of operations and types that
tests/tools/optable.c makes.

    gen_readme.py gcuda.h           rewrite gcuda.h, and README.md next to it
    gen_readme.py --check gcuda.h   only say whether they are as they would be written (exit 1 if not)
"""
import argparse
import os
import re
import subprocess
import sys

BLOCK = re.compile(r"(<!-- (\w+)-begin: (\S+) -->\n).*?(<!-- \2-end -->)", re.S)
OPTABLE = re.compile(r"(^// optable-begin.*?\n).*?(^// optable-end)", re.S | re.M)


def optable(root):
    """Asks the library itself, built again without optimization in a separate folder."""
    folder = "build/readme"
    subprocess.run(["make", "-s", "--no-print-directory", f"B={folder}", "CFLAGS=-O0", f"{folder}/gcuda_impl.o"], cwd=root, check=True)
    cc = os.environ.get("CC", "cc").split()
    subprocess.run([*cc, "-std=c99", "-I.", "-Itests", "tests/tools/optable.c", f"{folder}/gcuda_impl.o", "-o", f"{folder}/optable",
                    "-pthread", "-lm", "-ldl"], cwd=root, check=True)
    return subprocess.run([f"{folder}/optable"], cwd=root, check=True, stdout=subprocess.PIPE).stdout.decode("utf-8")


def with_table(text, root):
    if not OPTABLE.search(text):
        raise SystemExit("gcuda.h has no lines optable-begin and optable-end")
    table = optable(root)
    return OPTABLE.sub(lambda m: m.group(1) + table + m.group(2), text)


def with_programs(text, root):
    def block(m):
        with open(os.path.join(root, m.group(3)), encoding="utf-8") as f:
            return f"{m.group(1)}```c\n{f.read()}```\n{m.group(4)}"
    return BLOCK.sub(block, text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("header", help="path of gcuda.h")
    args = parser.parse_args()
    root, old_ones = os.path.dirname(os.path.abspath(args.header)), []
    for path, renewed in ((args.header, with_table), (os.path.join(root, "README.md"), with_programs)):
        with open(path, encoding="utf-8", newline="") as f:
            old = f.read()
        new = renewed(old, root)
        if old == new:
            continue
        old_ones.append(os.path.basename(path))
        if not args.check:
            with open(path, "w", encoding="utf-8", newline="") as f:
                f.write(new)
    if args.check:
        print(f"{' and '.join(old_ones)}: a generated part is old (make generate)" if old_ones
              else "gcuda.h and README.md are current")
        return 1 if old_ones else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
