#!/usr/bin/env python3
"""Writes the list of renamed functions into gcuda.h, between the lines gcudai-prefix-begin and gcudai-prefix-end.

With GCUDA_PREFIX=my_ every public function gcuda_x links as my_gcuda_x, so that two libraries can each embed a copy. C has
no way to do that without naming each function once. The names come from the preprocessed declarations. The list stands after them:
with GCUDA_PREFIX the header includes itself before its first declaration, and reads nothing but the list.

    gen_prefix.py gcuda.h            rewrite the list
    gen_prefix.py --check gcuda.h    only say whether it is current (exit 1 if not)
"""
import os
import re
import subprocess
import sys

BEGIN = "// gcudai-prefix-begin"
END = "// gcudai-prefix-end"


def public_functions(path):
    cc = os.environ.get("CC", "cc").split()
    text = subprocess.run([*cc, "-E", "-P", "-x", "c", "-DGCUDA_API=GCUDA_API_MARK", "-DGCUDA_KERNEL_API=GCUDA_API_MARK", path], stdout=subprocess.PIPE, check=True).stdout
    declarations = re.findall(r"\bGCUDA_API_MARK\b([^;{]*)", text.decode("utf-8"))
    names = set()
    for declaration in declarations:
        name = re.search(r"\b(gcuda_[a-z0-9_]+)\s*\(", declaration)
        if name is None:
            sys.exit(f"not a function: GCUDA_API{declaration[:100]}")
        names.add(name.group(1))
    return sorted(names)


def main():
    args = [a for a in sys.argv[1:] if a != "--check"]
    if len(args) != 1:
        print(__doc__)
        return 2
    with open(args[0], encoding="utf-8") as f:
        old = f.read()
    begin, end = old.find(BEGIN), old.find(END)
    if begin < 0 or end < begin:
        print(f"{args[0]} has no lines {BEGIN} and {END}")
        return 1
    begin = old.index("\n", begin) + 1
    lines = ["#ifdef GCUDAI_LISTS_NAMES", "#define GCUDAI_RENAME2(prefix, name) prefix##name",
             "#define GCUDAI_RENAME(prefix, name) GCUDAI_RENAME2(prefix, name)"]
    lines += [f"#define {name} GCUDAI_RENAME(GCUDA_PREFIX, {name})" for name in public_functions(args[0])]
    lines += ["#endif", ""]
    new = old[:begin] + "\n".join(lines) + old[end:]
    if new == old:
        return 0
    if "--check" in sys.argv:
        print("the list of renamed functions is not current: run python3 tests/tools/gen_prefix.py gcuda.h")
        return 1
    with open(args[0], "w", encoding="utf-8") as f:
        f.write(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
