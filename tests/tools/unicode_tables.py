#!/usr/bin/env python3
"""Writes what tokenizers need of Unicode as C: classes of code points, simple lower case, decomposition without accents.

    unicode_tables.py FILE              rewrite the part of FILE between the two marker comments
    unicode_tables.py --check FILE      only say whether it is as it would be written (exit 1 if not)
    unicode_tables.py --print           to standard output, the markers included
    unicode_tables.py --test            compile that, ask it for every code point and compare; last line: N passed, N failed

Classes are those of the PyPI package regex (pinned in requirements.txt). Lower case and decompositions are Python's own
(Unicode 14 in Python 3.11): with another version of Unicode in Python --check says so and does not compare.
"""
import argparse
import os
import subprocess
import sys
import tempfile
import unicodedata

import regex

BEGIN = "// unicode: written by tests/tools/unicode_tables.py\n"
END = "// end of unicode\n"
N_CODE_POINTS = 0x110000
HANGUL = range(0xAC00, 0xAC00 + 11172)
MAX_PARTS = 3
ACCENTS = regex.compile(r"\p{Mn}")

# name, regular expression of its code points, what the comment says; an earlier row wins
CLASSES = [
    ("SPACE", r"\s", "white space; contains all of Z"),
    ("UPPER", r"[\p{Lu}\p{Lt}]", "Lu, Lt"),
    ("LOWER", r"\p{Ll}", "Ll"),
    ("LETTER", r"[\p{Lm}\p{Lo}]", "Lm, Lo: letters without case"),
    ("NUMBER", r"\p{N}", "Nd, Nl, No"),
    ("ACCENT", r"\p{Mn}", "Mn: marks that take no room"),
    ("MARK", r"\p{M}", "Mc, Me"),
    ("PUNCT", r"\p{P}", "P"),
    ("SYMBOL", r"\p{S}", "S"),
    ("CONTROL", r"[\p{Cc}\p{Cf}\p{Co}\p{Cs}]", "Cc, Cf, Co, Cs, less white space"),
    ("UNASSIGNED", r"\p{Cn}", "Cn"),
]
CASE_PAIRS = len(CLASSES)  # only in the table: code points of a run are upper and lower alternate, upper first
SPACE, UPPER, LOWER, ACCENT = (next(i for i, row in enumerate(CLASSES) if row[0] == n) for n in ("SPACE", "UPPER", "LOWER", "ACCENT"))


def classes():
    """The class of every code point, as the expressions say."""
    everything = "".join(map(chr, range(N_CODE_POINTS)))
    found = [None] * N_CODE_POINTS
    for i, (_, expression, _) in reversed(list(enumerate(CLASSES))):
        for match in regex.finditer(f"{expression}+", everything):
            found[match.start():match.end()] = [i] * (match.end() - match.start())
    assert None not in found
    return found


def lower(cp):
    """Simple lower case. U+0130 alone becomes two code points in full lower case; its first one is the simple mapping."""
    return ord(chr(cp).lower()[0])


def stripped(cp):
    """Full canonical decomposition without accents."""
    return [ord(c) for c in unicodedata.normalize("NFD", chr(cp)) if not ACCENTS.match(c)]


def class_runs(found):
    """(first code point, class or CASE_PAIRS)"""
    runs, i = [], 0
    while i < N_CODE_POINTS:
        pairs = i
        while pairs < N_CODE_POINTS and found[pairs] == (LOWER if (pairs - i) & 1 else UPPER):
            pairs += 1
        end = i + 1
        while end < N_CODE_POINTS and found[end] == found[i]:
            end += 1
        if pairs - i >= 4:
            runs.append((i, CASE_PAIRS))
            i = pairs
        else:
            if not runs or runs[-1][1] != found[i]:
                runs.append((i, found[i]))
            i = end
    return runs


def lower_runs():
    """(first, last, step 1 or 2, difference)"""
    moves = [(cp, lower(cp) - cp) for cp in range(N_CODE_POINTS) if lower(cp) != cp]
    runs = []
    for cp, difference in moves:
        if runs:
            first, last, step, d = runs[-1]
            gap = cp - last
            if d == difference and (gap == step or (first == last and gap in (1, 2))):
                runs[-1] = (first, cp, gap, d)
                continue
        runs.append((cp, cp, 1, difference))
    return runs


def strip_runs(found):
    """Runs (first, last, base) of code points with one same base, single targets of compatibility ideographs, and the rest."""
    ranges = [(0xF900, 0xFAFF), (0x2F800, 0x2FA1F)]
    same, rest = [], []
    for cp in range(N_CODE_POINTS):
        parts = stripped(cp)
        if cp in HANGUL or found[cp] == ACCENT or parts == [cp] or any(a <= cp <= b for a, b in ranges):
            continue
        if len(parts) != 1:
            rest.append((cp, parts))
        elif same and same[-1][1] == cp - 1 and same[-1][2] == parts[0]:
            same[-1] = (same[-1][0], cp, parts[0])
        else:
            same.append((cp, cp, parts[0]))
    ideographs = []
    for a, b in ranges:
        targets = [stripped(cp) for cp in range(a, b + 1)]
        assert all(len(t) == 1 for t in targets)
        ideographs.append((a, [t[0] for t in targets]))
    assert all(0 < len(parts) <= MAX_PARTS for _, parts in rest)
    return same, ideographs, rest


def rows(items, width=120):
    lines, line = [], "   "
    for item in items:
        if len(line) + len(item) + 2 > width:
            lines.append(line)
            line = "   "
        line += f" {item},"
    return lines + [line]


def table(ctype, name, items, inner=""):
    return [f"static const {ctype} {name}[{len(items)}]{inner} = {{", *rows(items), "};"]


FUNCTIONS = """\
// Class of a code point; UNASSIGNED above U+10FFFF.
static enum llmi_uc llmi_uc_class(uint32_t cp) {
    size_t low = 0;
    size_t high = sizeof llmi_uc_runs / sizeof llmi_uc_runs[0];
    if (cp > 0x10FFFF) { return LLMI_UC_UNASSIGNED; }
    while (high - low > 1) { // run low begins at or before cp, run high after it
        size_t mid = low + (high - low) / 2;
        if (llmi_uc_runs[mid] >> 4 <= cp) {
            low = mid;
        } else {
            high = mid;
        }
    }
    if ((llmi_uc_runs[low] & 15) < LLMI_UC_CASE_PAIRS) { return (enum llmi_uc)(llmi_uc_runs[low] & 15); }
    return (cp - (llmi_uc_runs[low] >> 4)) & 1 ? LLMI_UC_LOWER : LLMI_UC_UPPER;
}

// Simple lower case of a code point, itself if it has none.
static uint32_t llmi_uc_lower(uint32_t cp) {
    size_t low = 0;
    size_t high = sizeof llmi_uc_lower_runs / sizeof llmi_uc_lower_runs[0];
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        const struct llmi_uc_lower_run * run = &llmi_uc_lower_runs[mid];
        if (cp > run->last) {
            low = mid + 1;
        } else if (cp < run->first) {
            high = mid;
        } else {
            return (cp - run->first) % run->step == 0 ? (uint32_t) ((int32_t) cp + run->delta) : cp;
        }
    }
    return cp;
}

// Hangul syllable into its two or three letters.
static int llmi_uc_hangul(uint32_t syllable, uint32_t out[LLMI_UC_MAX_PARTS]) {
    out[0] = 0x1100 + syllable / (21 * 28);
    out[1] = 0x1161 + syllable / 28 % 21;
    out[2] = 0x11A7 + syllable % 28;
    return syllable % 28 ? 3 : 2;
}

// Full canonical decomposition (NFD) of a code point without its accents (class ACCENT), as WordPiece takes it. Returns
// the number of code points in out: 0 for an accent, 1 for most. Marks of class MARK keep the order in which they come.
static int llmi_uc_strip(uint32_t cp, uint32_t out[LLMI_UC_MAX_PARTS]) {
    size_t low = 0;
    size_t high = sizeof llmi_uc_strip_runs / sizeof llmi_uc_strip_runs[0];
    size_t i;
    out[0] = cp;
    if (cp < 0xC0) { return 1; }
    if (cp - 0xAC00 < 11172) { return llmi_uc_hangul(cp - 0xAC00, out); }
    if (cp - 0xF900 < 0x200) {
        out[0] = llmi_uc_ideographs_f900[cp - 0xF900];
        return 1;
    }
    if (cp - 0x2F800 < 0x220) {
        out[0] = llmi_uc_ideographs_2f800[cp - 0x2F800];
        return 1;
    }
    if (llmi_uc_class(cp) == LLMI_UC_ACCENT) { return 0; }
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (cp > llmi_uc_strip_runs[mid][1]) {
            low = mid + 1;
        } else if (cp < llmi_uc_strip_runs[mid][0]) {
            high = mid;
        } else {
            out[0] = llmi_uc_strip_runs[mid][2];
            return 1;
        }
    }
    for (i = 0; i < sizeof llmi_uc_strip_rest / sizeof llmi_uc_strip_rest[0]; ++i) {
        const uint32_t * row = llmi_uc_strip_rest[i];
        if (row[0] != cp) { continue; }
        out[0] = row[1];
        out[1] = row[2];
        out[2] = row[3];
        return row[3] ? 3 : 2;
    }
    return 1;
}
"""


def render():
    found = classes()
    same, ideographs, rest = strip_runs(found)
    out = [f"// Classes of Unicode code points (package regex {regex.__version__}), lower case and decompositions"
           f" (Unicode {unicodedata.unidata_version})", "// clang-format off", "enum llmi_uc {"]
    out += [f"    LLMI_UC_{name}, // {text}" for name, _, text in CLASSES]
    out += ["    LLMI_UC_CASE_PAIRS // only in llmi_uc_runs: upper and lower alternate, upper first", "};", ""]
    out += ["// first code point of a run << 4 | class"]
    out += table("uint32_t", "llmi_uc_runs", [f"0x{first << 4 | c:x}" for first, c in class_runs(found)])
    out += ["", "// every step-th code point from first to last has its lower case delta further on",
            "struct llmi_uc_lower_run { uint32_t first; uint32_t last; uint32_t step; int32_t delta; };"]
    out += table("struct llmi_uc_lower_run", "llmi_uc_lower_runs", [f"{{0x{a:x},0x{b:x},{s},{d}}}" for a, b, s, d in lower_runs()])
    out += ["", f"#define LLMI_UC_MAX_PARTS {MAX_PARTS}", "// first and last code point of a run, base letter of all of them"]
    out += table("uint32_t", "llmi_uc_strip_runs", [f"{{0x{a:x},0x{b:x},0x{c:x}}}" for a, b, c in same], "[3]")
    for first, targets in ideographs:
        out += table("uint32_t", f"llmi_uc_ideographs_{first:x}", [f"0x{t:x}" for t in targets])
    out += ["// code point, the two or three that it becomes"]
    items = ["{" + ",".join(f"0x{v:x}" for v in [cp, *parts, *[0] * (MAX_PARTS - len(parts))]) + "}" for cp, parts in rest]
    out += [*table("uint32_t", "llmi_uc_strip_rest", items, f"[{1 + MAX_PARTS}]"), "// clang-format on", ""]
    return "".join(line + "\n" for line in out) + FUNCTIONS


PROBE = """
#include <stdio.h>
int main(void)
{
    uint32_t cp, out[LLMI_UC_MAX_PARTS];
    for (cp = 0; cp < 0x110000; cp++) {
        int i, n = llmi_uc_strip(cp, out);
        printf("%d %x", (int)llmi_uc_class(cp), (unsigned)llmi_uc_lower(cp));
        for (i = 0; i < n; i++) printf(" %x", (unsigned)out[i]);
        printf("\\n");
    }
    return llmi_uc_class(0x110000) != LLMI_UC_UNASSIGNED || llmi_uc_class(0xFFFFFFFFu) != LLMI_UC_UNASSIGNED;
}
"""


def answers(fragment, compiler="gcc"):
    """What the C code says of every code point: (class, lower case, parts)."""
    with tempfile.TemporaryDirectory() as folder:
        source, program = os.path.join(folder, "probe.c"), os.path.join(folder, "probe")
        with open(source, "w", encoding="ascii") as f:
            f.write("#include <stdint.h>\n#include <stddef.h>\n" + fragment + PROBE)
        subprocess.run([compiler, "-std=c99", "-O1", "-Wall", "-Wextra", "-Werror", source, "-o", program], check=True)
        lines = subprocess.run([program], check=True, stdout=subprocess.PIPE).stdout.decode("ascii").splitlines()
    for line in lines:
        c, low, *parts = line.split()
        yield int(c), int(low, 16), [int(p, 16) for p in parts]


def test(fragment):
    """Every code point against regex's expressions and Python's str.lower and NFD: one check each."""
    got = list(answers(fragment))
    n_passed = n_failed = 0
    by_class = [regex.compile(expression) for _, expression, _ in CLASSES]
    wanted = {"class": lambda cp: next(i for i, e in enumerate(by_class) if e.fullmatch(chr(cp))), "lower case": lower, "decomposition": stripped}
    for k, (what, want) in enumerate(wanted.items()):
        bad = [cp for cp in range(N_CODE_POINTS) if got[cp][k] != want(cp)]
        n_passed, n_failed = n_passed + (not bad), n_failed + bool(bad)
        print(f"{'FAILED' if bad else 'ok'}  {what} of {N_CODE_POINTS} code points", *[f"U+{cp:04X}" for cp in bad[:20]])
    print(f"{n_passed} passed, {n_failed} failed")
    return 1 if n_failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?")
    for option in ("--check", "--print", "--test"):
        parser.add_argument(option, action="store_true")
    args = parser.parse_args()
    if args.print:
        print(BEGIN + render() + END, end="")
        return 0
    if args.test and not args.file:
        return test(render())
    with open(args.file, encoding="utf-8") as f:
        text = f.read()
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        sys.exit(f"{args.file}: the two marker comments are not there, once each and in order")
    head, rest = text.split(BEGIN)
    if args.test:
        return test(rest.split(END)[0])
    new = head + BEGIN + render() + END + rest.split(END)[1]
    if args.check and f"(Unicode {unicodedata.unidata_version})" not in rest.split("\n")[0]:
        print(f"not compared: Python has Unicode {unicodedata.unidata_version}")
        return 0
    if args.check:
        print("unicode tables are", "as generated" if new == text else "NOT as generated")
        return 0 if new == text else 1
    if new != text:
        with open(args.file, "w", encoding="utf-8") as f:
            f.write(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
