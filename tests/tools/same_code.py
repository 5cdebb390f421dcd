#!/usr/bin/env python3
"""Whether two versions of a source file differ in comments and blank lines only.

    python3 tests/tools/same_code.py [--rename OLD=NEW ...] REVISION [REVISION] FILE...

One revision: it is compared with the working tree. --rename OLD=NEW: OLD is read as NEW in the first version. Strings and
character constants are code. Ends with 1 and the first lines that differ if the code differs.
"""
import re
import subprocess
import sys

TOKENS = re.compile(r'//[^\n]*|/\*.*?\*/|R"\((?:.*?)\)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)


def code_lines(text):
    """Lines without comments, blanks at the end and empty lines; a joined line (backslash) stays several."""
    text = TOKENS.sub(lambda m: " " if m.group().startswith(("//", "/*")) else m.group(), text)
    return [line.rstrip() for line in text.split("\n") if line.strip()]


def version(revision, path):
    if revision is None:
        with open(path, encoding="utf-8") as f:
            return f.read()
    return subprocess.run(["git", "show", f"{revision}:{path}"], check=True, stdout=subprocess.PIPE).stdout.decode("utf-8")


def is_revision(name):
    return subprocess.run(["git", "rev-parse", "-q", "--verify", name + "^{commit}"], check=False, stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL).returncode == 0


def main(args):
    renames = []
    while args and args[0] == "--rename":
        renames.append(args[1].split("="))
        args = args[2:]
    first, args = args[0], args[1:]
    second, args = (args[0], args[1:]) if len(args) > 1 and is_revision(args[0]) else (None, args)
    n_bad = 0
    for path in args:
        old = version(first, path)
        for before, after in renames:
            old = re.sub(rf"\b{re.escape(before)}\b", after, old)
        old, new = code_lines(old), code_lines(version(second, path))
        bad = [(a, b) for a, b in zip(old, new) if a != b][:5]
        if bad or len(old) != len(new):
            n_bad += 1
            print(f"{path}: the code differs ({len(old)} and {len(new)} lines of code)")
            for a, b in bad:
                print(f"  - {a}\n  + {b}")
        else:
            print(f"{path}: the same code, {len(new)} lines")
    return 1 if n_bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
