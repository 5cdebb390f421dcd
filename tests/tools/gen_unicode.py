#!/usr/bin/env python3
"""Writes the table of character classes into examples/llm.h, between its unicode-begin and unicode-end lines.

    python3 tests/tools/gen_unicode.py examples/llm.h           rewrite
    python3 tests/tools/gen_unicode.py examples/llm.h --check   exit 1 if the table is another

A number of the table is a run of code points: length * 16 + class. The classes are those of enum llmi_char; ALTERNATING is a
run of capital and small letters in turn, which Latin and Cyrillic are full of. Python's unicodedata has the facts.
"""
import sys
import unicodedata

CLASSES = {"Lu": 0, "Ll": 1, "Lt": 2, "Lm": 3, "Lo": 4, "Mn": 5, "Mc": 6, "Me": 6}
GROUPS = {"N": 7, "P": 8, "S": 9, "Z": 10, "C": 11}
ALTERNATING = 12
MIN_ALTERNATING = 4


def class_of(c):
    category = unicodedata.category(chr(c))
    return CLASSES.get(category, GROUPS.get(category[0]))


def runs():
    classes = [class_of(c) for c in range(0x110000)]
    at = 0
    while at < len(classes):
        end = at
        while end + 1 < len(classes) and classes[at] in (0, 1) and classes[end + 1] == 1 - classes[end]:
            end += 1
        if end + 1 - at >= MIN_ALTERNATING and classes[at] == 0:
            yield end + 1 - at, ALTERNATING
        else:
            end = at
            while end + 1 < len(classes) and classes[end + 1] == classes[at]:
                end += 1
            yield end + 1 - at, classes[at]
        at = end + 1


def table():
    lines, line = [], "   "
    numbers = [length * 16 + c for length, c in runs()]
    for number in numbers:
        word = f" {number},"
        if len(line) + len(word) > 140:
            lines.append(line)
            line = "   "
        line += word
    lines.append(line)
    head = (f"// Unicode {unicodedata.unidata_version}: {len(numbers)} runs (tests/tools/gen_unicode.py)\n"
            "static const uint32_t llmi_char_runs[] = {\n")
    return head + "\n".join(lines) + "\n};\n"


def main():
    path = sys.argv[1]
    with open(path, encoding="utf-8") as f:
        text = f.read()
    begin, end = "// unicode-begin\n", "// unicode-end\n"
    before, rest = text.split(begin)
    old, after = rest.split(end)
    if "--check" in sys.argv[2:]:
        return 0 if old == table() else 1
    with open(path, "w", encoding="utf-8") as f:
        f.write(before + begin + table() + end + after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
