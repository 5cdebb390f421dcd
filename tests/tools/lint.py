#!/usr/bin/env python3
"""Checks on gcuda.h and gcuda_kernels.cu that no compiler makes. Last line: N passed, N failed.

  - CONTENTS and the section banners name the same tags in the same order with the same words; the parts of >>ops are those of >>impl-ops
  - every registry row has a `>>op:` block among the declarations and one in the implementation, and a test names it;
    every constructor has its row in test-errors.c, every derivative a case in test-grad.c
  - no abort(, exit(, longjmp( or <<< anywhere; no word that marks unfinished work
  - every path of matrix products has its row in tables, kernel file, self-test and a test of tests/hw
  - kernels do not ask the processor what it has: the chosen instruction set says it
  - no tabs, no trailing blanks; macros begin with GCUDA; no line over 120 columns (IS_WRAPPED)
  - comments of the finished sections use the field's terms (PHRASES) in sentences of at most 30 words
  - every kernel has a contract directly above it that names its floor
  - no function of the kernel file is longer than 100 lines
  - sections use each other without cycles where deps.py forbids them
  - the manual and the examples name the Makefile's libraries
  - generated parts are as their generators write them
  - clang-format, where its version is CLANG_FORMAT, is silent on all C, C++ and CUDA files (`make format`); else this is skipped.
    --without-format leaves it out (tests/tools/places.py, whose copy has rows of any width)
"""
import concurrent.futures
import glob
import itertools
import os
import re
import subprocess
import sys

import deps

MAX_COLUMNS = 120
IS_WRAPPED = True  # columns.py has been run: lines over MAX_COLUMNS fail; False: they are counted
CLANG_FORMAT = 14  # other versions break other lines
FORMATTED = ("gcuda.h", "gcuda_kernels.cu", "examples/*.[ch]", "tests/**/*.[ch]", "tests/**/*.cpp", "tests/**/*.cu")  # as Makefile's FILES
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
problems = []
n_passed = n_skipped = 0


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        return f.read()


def check(name, bad):
    """One closing-line test; `bad` is the list of what is wrong."""
    global n_passed
    if bad:
        problems.append(name)
        print(f"FAILED  {name}")
        for line in bad[:30]:
            print(f"        {line}")
        if len(bad) > 30:
            print(f"        ... and {len(bad) - 30} more")
    else:
        n_passed += 1


def where(text, at):
    return text.count("\n", 0, at) + 1


def check_contents(path, text):
    """CONTENTS, a comment of either kind at the top, against the banners: tag and words."""
    contents = re.search(r"CONTENTS.*?(?:\*/|\n//\n)", text, re.S)
    rows = re.findall(r"^(?://)?\s*>>([a-z0-9-]+)\s+(.*?)\s*$", contents.group(), re.M) if contents else []
    banners = re.findall(r"^// =+\n// >>([a-z0-9-]+)\s+(.*?)\s*$", text, re.M)
    bad = [f"CONTENTS {a or ''}, banner {b or ''}" for a, b in itertools.zip_longest(rows, banners) if a != b]
    check(f"{path}: CONTENTS lists {len(banners)} banners word for word", bad or ["no CONTENTS"] * (not rows))


def check_subjects(text):
    """The parts of >>ops and the sections of >>impl-ops: the same subjects in the same order, the same operations under each."""
    parts = []
    for heading in (r"^// -{99,}\n// >>ops-([a-z-]+)\s+(.*?)\s*$|^// >>op:([a-z0-9_]+)", r"^// =+\n// >>impl-ops-([a-z-]+)\s+(.*?)\s*$|^// >>op:([a-z0-9_]+)"):
        start = text.find("// >>graph ") if parts else 0
        found = []
        for subject, words, op in re.findall(heading, text[start:text.find("// >>impl-registry ") if parts else text.find("// >>graph ")], re.M):
            if subject:
                found.append((subject, words, set()))
            elif found:
                found[-1][2].add(op)
        parts.append(found)
    bad = [f">>ops-{a and a[0]}, >>impl-ops-{b and b[0]}: " + (f"{a[2] ^ b[2]} in one only" if a and b and a[:2] == b[:2] else f"{a and a[1]} / {b and b[1]}")
           for a, b in itertools.zip_longest(*parts) if a != b]
    check(f"{len(parts[0])} subjects of operations, in >>ops and >>impl-ops alike", bad or ["no subject"] * (not parts[0]))


def registry(text):
    table = re.search(r"#define GCUDA_OPS\(X\)((?:.*\\\n)*.*\n)", text)
    return re.findall(r"\bX\(\s*([A-Z0-9_]+)\s*,\s*([a-z0-9_]+)", re.sub(r"/\*.*?\*/", "", table.group(1), flags=re.S)) if table else []


def check_blocks(text):
    # the marker that opens the function bodies, not the mention at the top
    split = text.find("// >>impl-platform")
    bad, ops = [], registry(text)
    if not ops:
        bad.append("no registry found (#define GCUDA_OPS(X))")
    places = {"declarations": text[:split], "implementation": text[split:]}
    for _, name in ops:
        for place, part in places.items():
            n = len(re.findall(rf"^\s*// >>op:{name}\b", part, re.M))
            if n != 1:
                bad.append(f"op:{name}: {n} blocks in the {place}, want 1")
    names = {name for _, name in ops}
    for tag in re.findall(r"^\s*// >>op:([a-z0-9_]+)", text, re.M):
        if tag not in names and tag != "none":  # a leaf's operation is no row
            bad.append(f"op:{tag} has a block but no row")
    check(f"one >>op: block in each half for {len(ops)} rows", bad)
    tests = "".join(read(os.path.relpath(p, ROOT)) for p in glob.glob(os.path.join(ROOT, "tests/*.[ch]")))
    # NONE and the views that make no work are named like the rest
    check("every operation is named in a test (>>op:NAME)",
          [f"no test says >>op:{name}" for _, name in ops if name != "none" and not re.search(rf">>op:{name}\b", tests)])
    table = read("tests/test-errors.c").replace("BUILD(ident", "").replace("b_##", "")
    table = table[:table.find("struct ctor {")]
    families = "".join(read(os.path.relpath(p, ROOT)) for p in sorted(glob.glob(os.path.join(ROOT, "tests/ops-*.h"))))
    refused = set(re.findall(r"\.build = build_(\w+)[^;]*\.refuses\b", families))  # a test of the operation tries it
    declared = re.findall(r"^GCUDA_API struct gcuda_tensor \* gcuda_(\w+)\(\s*struct gcuda_context \* ctx", text[:split], re.M)
    check(f"test-errors.c, or .refuses of a test, tries NULL and bad sources of {len(declared)} constructors",
          [f"gcuda_{name} has no row" for name in declared if name not in ("new_i32", "new_f32") and name not in refused and not re.search(rf"\b(?:BUILD|ONE|TWO|THREE|X)\({name}\b", table)])

    named = read("tests/ops-elementwise.h")
    named = named[named.find("TEST(unary_named)"):].split("\n}\n")[0]
    made = re.findall(r"^GCUDAI_UNARY(?:_BOTH)?\((\w+), (\w+)\)", text, re.M)
    check(f"the test unary_named tries {len(made)} constructors of activations", ["no GCUDAI_UNARY found"] * (not made) +
          [f"gcuda_{name} is not in it" for name, kind in made
           if not re.search(rf"BOTH\({kind}, {name}\)|GCUDA_UNARY_OP_{kind}, gcuda_{name} ", named)])
    check_gradients(text)
    if os.path.exists(os.path.join(ROOT, "gcuda_kernels.cu")):
        check_paths(text, read("gcuda_kernels.cu"))
        check_patterns(text)
    rows = [[c.strip() for c in row.split(",")] for row in re.findall(r"\bX\((\w+, +\d+, [^)]*)\)", text[text.find("#define GCUDA_TYPES(X)"):split])]
    weights = [row[0] for row in rows if len(row) == 17 and row[12] == "yes"]
    bad = ["GCUDA_TYPES has none"] * (not weights)
    vectors = read("tests/test-quants.c")
    vectors = re.findall(r"\{ GCUDA_TYPE_(\w+), \{", vectors[vectors.find("dequantize_vectors[]"):].split("};")[0])
    bad += [f"{t}: no row of dequantize_vectors in tests/test-quants.c" for t in weights if t not in vectors]
    listed = re.findall(r"^#define WEIGHT_TYPES_OF_\d+ \"(.*)\"", read("tests/test-ops.h"), re.M)
    listed = " ".join(listed).split()
    bad += [f"{row[0]}: has kernels, and is not in WEIGHT_TYPES_OF_{row[4]} of tests/test-ops.h"
            for row in rows if row[0] in weights and row[16] != "none" and row[0] not in listed]
    check(f"the tests know {len(weights)} types of weights", bad)


def check_gradients(text):
    """An operation whose column grad names a derivative has a case in test-grad.c; those of activations and gates come from their lists."""
    table = re.search(r"#define GCUDA_OPS\(X\)((?:.*\\\n)*.*\n)", text)
    rows = re.findall(r"\bX\(([^()]*)\)", re.sub(r"/\*.*?\*/", "", table.group(1), flags=re.S)) if table else []
    derived = [row[1] for row in ([c.strip(" \\\n") for c in r.split(",")] for r in rows) if row[8] != "none"]
    tests, bad = read("tests/test-grad.c"), ["GCUDA_OPS has none"] * (not derived)
    for name in derived:
        call = name.replace("_", r"(?:_\w+)?_") + r"(?:_\w+)?"  # rope_back: gcuda_rope_ext_back
        if not re.search(rf"\bgcuda_{call}\(|\b(?:UNARY|BINARY)\({name}\)", tests):
            bad.append(f"no case of gcuda_{name}")
    check(f"test-grad.c has a case for each of {len(derived)} derivatives", bad)


def check_patterns(text):
    """Each fused pattern has a row in the public table, whose first column its name contains, and a case in test-fusion.c."""
    patterns = re.findall(r"^    \{ \"(.*?)\", GCUDAI_CUDA_FUSED_", text, re.M)
    table = text[text.find("//   pattern              nodes and conditions"):].split("\n//\n")[0]
    rows = re.findall(r"^//   (\w.*?)(?:  +\S|$)", table, re.M)[1:]
    tests = read("tests/sim/test-fusion.c")
    has = {(row, p) for row in rows for p in patterns if re.search(rf"(?<!\w){re.escape(row)}(?!\w)", p)}
    bad = ["gcudai_cuda_patterns has none"] * (not patterns)
    bad += [f"'{p}': no row in the table of patterns in >>cuda" for p in patterns if not any((row, p) in has for row in rows)]
    bad += [f"'{p}': no case in tests/sim/test-fusion.c" for p in patterns if p not in tests]
    bad += [f"table of patterns in >>cuda: '{row}' is in no name of gcudai_cuda_patterns" for row in rows if not any((row, p) in has for p in patterns)]
    check(f"{len(patterns)} fused patterns have their places", bad)


def check_paths(text, kernels):
    """Each path of GCUDA_MUL_MAT_PATH_LIST has its places; GEMM alone is reached through PACKED, PLAIN is what no rule chooses."""
    paths = re.findall(r"^    X\((\w+), +(\w+), +\"\w*\"\)", text[text.find("#define GCUDA_MUL_MAT_PATH_LIST(X)"):][:2000], re.M)
    table = text[text.find("// ---- matrix products: one job"):text.find("#define GCUDA_MUL_MAT_PATH_LIST(X)")]
    hardware = "".join(read(os.path.relpath(p, ROOT)) for p in glob.glob(os.path.join(ROOT, "tests/hw/*.c")))
    bad = ["GCUDA_MUL_MAT_PATH_LIST has none"] * (not paths)
    for path, name in paths:
        host = {"GEMM": "PACKED"}.get(path, path)
        places = [
            (rf"^//   {path} ", table, "no row in the table above GCUDA_MUL_MAT_PATH_LIST"),
            (rf"^const mul_mat_path D_PATH\({name}\) =", kernels, f"no D_PATH({name}) in gcuda_kernels.cu"),
            (rf"GCUDAI_RULE\({host}," + ("|GCUDAI_CUDA_MM_PLAIN" if path == "PLAIN" else ""), text, "no rule of gcudai_cuda_mm_rules"),
            (rf"^    X\(\w+, \".*1 \+ GCUDAI_CUDA_MM_{host},", text, "no row of GCUDAI_SELFTESTS"),
            (rf"\bGCUDA_MUL_MAT_{path}\b", hardware, "no test of tests/hw")]
        bad += [f"{path}: {what}" for pattern, where_to_look, what in places if not re.search(pattern, where_to_look, re.M)]
    cases = re.findall(r"^    X\(\w+, \"(.*?)\", (.*?),", text[text.find("#define GCUDAI_SELFTESTS(X)"):], re.M)
    families = read("tests/sim/test-selftest.c")
    bad += [f"case '{name}' of the self-test: not in tests/sim/test-selftest.c" for name, forced in cases
            if "WGMMA" not in forced and f'"{name}"' not in families]
    check(f"{len(paths)} paths of products and {len(cases)} cases of the self-test have their places", bad)


def check_words(path, text):
    bad = []
    for m in re.finditer(r"\b(?:abort|_?exit|_Exit|quick_exit|longjmp|setjmp)\s*\(|<<<", deps.blank(text)):
        bad.append(f"{path}:{where(text, m.start())}: {m.group()}")
    check(f"{path}: no abort, exit, longjmp, <<<", bad)
    bad = []
    for m in re.finditer(r"\b(?:TODO|FIXME|XXX|HACK|WIP)\b|\bplaceholder\b", text):
        bad.append(f"{path}:{where(text, m.start())}: {m.group()}")
    check(f"{path}: no marks of unfinished work", bad)


# What comments and documentation do not say, and what is written instead. Only the first two columns of a row are needed: words in
# their plain sense are let through by the patterns themselves, or stand in PLAIN.
PHRASES = [
    (r"\b(?:as|where|what) (?:it|they) (?:lies?|stands?)\b|\bas they lie\b|\bwhat lies\b", "in place, unconverted, its address"),
    (r"\blies? (?:as|in|at|where|behind|beside|together|apart|next)\b", "is, starts, has the layout"),
    (r"\bwhat (?:is|was) there\b|\b(?:is|are|was|were) there\b(?! (?:a|an|no|any)\b)", "exists, is available"),
    (r"\bbehind\b", "after, next, past the end"),
    (r"\bin front\b", "before"),
    (r"\bin turns?\b(?! [a-z]\b)", "PDL wait; alternately; in order"),
    (r"\bbeside\b|\bside by side\b", "concurrently with, next to, in parallel"),
    (r"(?:^|\. )The same(?: of| as|,|\.|$| for| with| without| where| by| in)", "say what is the same as what, and what differs"),
    (r"\bthe same, but\b", "say what differs"),
    (r"\bmultiprocessors?\b", "SM"),
    (r"\bwarp[ -]groups?\b", "warpgroup, wgmma"),
    (r"\b(?:warps|threads|blocks|lanes|all)(?: \w+)? meet\b|\b(?:meet|meets|meeting) (?:in|at|for)\b", "synchronize, are reduced"),
    (r"\bunder way\b|\bon (?:its|their) way\b", "in flight"),
    (r"\bhalfs\b", "F16, halves"),
    (r"\b(?:made|makes?|make) (?:\w+ )?ready\b", "quantized, prepared, packed"),
    (r"\bwork(?:s|ed)? out\b", "compute"),
    (r"\bstretch(?:es)?\b", "segment, range"),
    (r"\bthat which\b|\bwhat becomes? of\b", "name the thing: epilogue"),
    (r"\bdone with\b", "have been read, has finished"),
    (r"\b(?:is|are) asked for\b|\basks? for its\b", "loaded, requested"),
    (r"\bof (?:its|their) own\b", "separate, its own"),
    (r"\b(?:behind|after) each other\b|\bone behind the other\b|\bthe one behind\b", "in order, consecutive"),
    (r"\b[Ww]hoever\b|\b[Nn]obody\b", "the caller, no kernel"),
    (r"\brounded columns?\b|\bcolumns? as bytes\b", "prequantized activations"),
    (r"\bthe (?:kernel|launch|step|block|tile|one) before\b", "the previous one"),
    (r"(?:^|\. )Of (?:a|an|the|what|all|one|two|several) [a-z]", "begin with the thing"),
    (r"(?:^|\. )What (?:a|an|the|it|is|was|may|goes|lies) ?", "begin with the thing"),
    (r"\bso many\b", "name the number"),
]
PLAIN = ("LICENSE beside this one", "hides behind", "hide behind", "test-warp-groups.c")
MAX_SENTENCE = 30  # words

# Sections whose comments are not rewritten yet, by name. Checked are these files, and all C, C++ and CUDA files of examples and tests.
UNWRITTEN = {
    "README.md": "",
    "CHANGELOG.md": "",
    "gcuda_kernels.cu": "",
    "gcuda.h": "",
}


def sections(text):
    """The section of each line, by its banner; "" before the first."""
    name, out, lines = "", [], text.split("\n")
    for i, line in enumerate(lines):
        banner = re.match(r"// >>([a-z0-9-]+)", line)
        if banner and i > 0 and lines[i - 1].startswith("// ==="):
            name = banner.group(1)
        out.append(name)
    return out


def comments(text):
    """(line, text): comments that fill lines are joined to paragraphs; rows of tables (indented), titles and ends of lines stand alone."""
    out, joins, is_block = [], False, False
    for n, line in enumerate(text.split("\n"), 1):
        if line == "/*" or (is_block and line == "*/"):
            is_block, joins = not is_block, False
            continue
        if is_block:  # paragraphs, list items and rows of tables; code is left out
            body = line.strip()
            is_code = body == "" or body.startswith("#") or body.endswith((";", "{", "}", "\\"))
            is_first = re.match(r"(>>|- |\d\. |[A-Z][A-Za-z+ ]*: )", body) is not None
            if not is_code and joins and not is_first:
                out[-1] = (out[-1][0], out[-1][1] + " " + body)
            elif not is_code:
                out.append((n, body))
            joins = not is_code
            continue
        whole = re.match(r"\s*//( ?)(.*)$", line)
        if not whole:
            tail = re.search(r"\s// (.*)$", code_and_comment(line))
            if tail:
                out.append((n, tail.group(1)))
            joins = False
            continue
        body = whole.group(2)
        is_prose = body.strip(" =-") != "" and not body.startswith((" ", ">>", "---"))
        if joins and is_prose:
            out[-1] = (out[-1][0], out[-1][1] + " " + body)
        elif body.strip(" =-") != "":
            out.append((n, body.strip()))
        joins = is_prose
    return out


def prose(text):
    """(line, text) of a Markdown file: paragraphs and list items, and the cells of tables; code blocks are left out."""
    out, is_code, joins = [], False, False
    for n, line in enumerate(text.split("\n"), 1):
        if line.startswith("```"):
            is_code, joins = not is_code, False
        elif is_code or not line.strip() or line.startswith(("#", "<!--")):
            joins = False
        elif line.lstrip().startswith("|"):
            out += [(n, cell.strip()) for cell in line.strip("| ").split(" | ")]
            joins = False
        elif joins and not re.match(r"\s*(?:[-*]|\d+\.) ", line):
            out[-1] = (out[-1][0], out[-1][1] + " " + line.strip())
        else:
            out.append((n, line.strip("-* ")))
            joins = True
    return out


def code_and_comment(line):
    """The line with strings blanked, so that // in one is no comment."""
    return re.sub(r'"(?:\\.|[^"\\])*"', lambda m: " " * len(m.group()), line)


def find_phrases(path, text):
    """Refused phrases and long sentences of the sections that are not exempt."""
    exempt, where_is = UNWRITTEN.get(path, "").split(), sections(text)
    phrases, long_ones = [], []
    for n, comment in prose(text) if path.endswith(".md") else comments(text):
        if where_is[n - 1] in exempt:
            continue
        plain = comment
        for words in PLAIN:
            plain = plain.replace(words, "")
        for pattern, instead in PHRASES:
            hit = re.search(pattern, plain)
            if hit:
                phrases.append(f"{path}:{n}: \"{hit.group().strip()}\": {instead}. In: {comment[:90]}")
        for sentence in re.split(r"(?<=[.?!])\s+(?=[A-Za-z0-9(`])", comment):
            words = [w for w in sentence.split() if re.search(r"[A-Za-z]", w)]
            if len(words) > MAX_SENTENCE:
                long_ones.append(f"{path}:{n}: {len(words)} words: {sentence[:90]}")
    return phrases, long_ones


def check_phrases(name, paths):
    exempt = " ".join(UNWRITTEN.get(path, "") for path in paths).split()
    note = "" if not exempt else ", but " + (" ".join(exempt) if len(exempt) < 4 else f"{len(exempt)} sections")
    found = [find_phrases(path, read(path)) for path in paths]
    check(f"{name}: uses the field's terms{note}", [bad for phrases, _ in found for bad in phrases])
    check(f"{name}: no sentence has more than {MAX_SENTENCE} words{note}", [bad for _, long_ones in found for bad in long_ones])


def check_contracts(text):
    """Directly above a kernel stands a comment with a row `floor`; a title (>>op:, ----) alone is none."""
    lines, bad, n_kernels = text.split("\n"), [], 0
    for i, line in enumerate(deps.blank(text).split("\n")):
        if not re.search(r"\b__global__\b", line) or line.lstrip().startswith("#"):
            continue
        name = re.search(r"\b(k_\w+)", " ".join(lines[i:i + 4]))
        first = i
        while lines[first - 1].lstrip().startswith(("template", "static")) and not lines[first - 1].rstrip().endswith((";", "}")):
            first -= 1
        above = first
        while lines[above - 1].startswith("//"):
            above -= 1
        n_kernels += 1
        if not any(row.startswith("//   floor ") for row in lines[above:first]):
            bad.append(f"gcuda_kernels.cu:{i + 1}: {name.group(1) if name else '?'} has no contract with a floor directly above it")
    check(f"{n_kernels} kernels have a contract", bad)


MAX_KERNEL_LINES = 100  # of a function of the kernel file


def blocks(lines, first, end, indent):
    """[(first line, last line)] of the blocks in lines [first, end) whose closing brace has this indent."""
    out, begin, closing = [], None, re.compile(rf" {{{indent}}}\}}")
    for i in range(first, end):
        line = lines[i].rstrip()
        continues = i > 0 and lines[i - 1].rstrip().endswith((",", "("))  # a signature of several lines
        if begin is None and line.endswith("{") and (continues or re.match(rf" {{{indent}}}[^ #]", line)):
            begin = i
        elif begin is not None and closing.match(line):
            out.append((begin, i))
            begin = None
    return out


def check_kernel_lengths(text):
    """From the line that opens a function's brace to the one that closes it. In a struct each function counts."""
    lines, bad, functions = deps.blank(text).split("\n"), [], []
    for first, last in blocks(lines, 0, len(lines), 0):
        is_struct = re.match(r"(?:template <[^{]*> )?(?:struct|union|enum)\b", lines[first]) is not None
        functions += blocks(lines, first + 1, last, 4) if is_struct else [(first, last)]
    for first, last in functions:
        if last - first + 1 > MAX_KERNEL_LINES:
            names = re.findall(r"\b(\w+)\(", lines[first].replace("__launch_bounds__(", "")) or [lines[first].strip()]
            bad.append(f"gcuda_kernels.cu:{first + 1}: {names[0]} has {last - first + 1} lines")
    check(f"gcuda_kernels.cu: none of {len(functions)} functions has more than {MAX_KERNEL_LINES} lines", bad)


def check_layout(path, text):
    bad, wide = [], []
    for i, line in enumerate(text.split("\n"), 1):
        if len(line) > MAX_COLUMNS:
            wide.append(f"{path}:{i}: {len(line)} columns: {line.strip()[:70]}")
        if "\t" in line:
            bad.append(f"{path}:{i}: tab")
        if line != line.rstrip():
            bad.append(f"{path}:{i}: blank at the end")
    check(f"{path}: no tabs, no trailing blanks", bad)
    if IS_WRAPPED:
        check(f"{path}: no line over {MAX_COLUMNS} columns (columns.py breaks them)", wide)
    elif wide:
        print(f"note    {path}: {len(wide)} lines are longer than {MAX_COLUMNS} columns")


def check_instruction_sets(text):
    """Kernels use what gcuda_cpu_set_isa leaves, not what the processor has: that is asked where the sets are listed, and to describe it."""
    allowed = ("gcudai_cpu_has", "gcudai_cpu_has_isa", "gcudai_cpu_dev_description")
    bad, function = [], ""
    for n, line in enumerate(deps.blank(text).splitlines(), 1):
        begin = re.match(r"\w.*?(\w+)\(.*\{$", line)
        function = begin.group(1) if begin else function
        if re.search(r"gcudai_cpu_has\(", line) and function not in allowed:
            bad.append(f"gcuda.h:{n}: {line.strip()[:100]}")
    check("only the list of instruction sets asks for the processor's features", bad)


def check_names(text):
    """What users see begins with gcuda_ or GCUDA_, what they do not with gcudai_ or GCUDAI_."""
    bad = []
    for m in re.finditer(r"^\s*#\s*define\s+([A-Za-z_][A-Za-z0-9_]*)", deps.blank(text), re.M):
        name = m.group(1)
        known = name in ("X", "WIN32_LEAN_AND_MEAN", "NOMINMAX", "_GNU_SOURCE", "_FILE_OFFSET_BITS", "_WIN32_WINNT", "_CRT_SECURE_NO_WARNINGS",
                         "__USE_MINGW_ANSI_STDIO")
        if not known and not re.match(r"(GCUDAI?_|gcudai?_)", name):
            bad.append(f"gcuda.h:{where(text, m.start(1))}: macro {name}")
    check("gcuda.h: macros carry the prefix", bad)


def check_link_flags():
    """Commands that the manual and the examples show link with the Makefile's LIBS, with CUDA with its CUDA_LIBS."""
    makefile = read("Makefile")
    libs = re.search(r"^LIBS \?= (.*)$", makefile, re.M).group(1)
    cuda = re.search(r"^CUDA_LIBS = -L\S+ (.*) \$\(LIBS\)$", makefile, re.M).group(1) + " " + libs
    bad, n = [], 0
    for path in ["gcuda.h", "examples/llm.h"] + sorted(os.path.relpath(p, ROOT) for p in glob.glob(os.path.join(ROOT, "examples/*.c"))):
        head = re.sub(r"\\\n\s*", "", "\n".join(read(path).split("\n")[:40]))
        for command in re.findall(r"^(?://)? +(cc .*)$", head, re.M):
            flags, wanted = " ".join(re.findall(r"-l[\w+]+|-pthread", command)), cuda if "-DGCUDA_CUDA" in command else libs
            n += 1
            if flags != wanted:
                bad.append(f"{path}: links with {flags}; the Makefile with {wanted}")
    check(f"{n} commands of the manual and examples link as the Makefile does", bad or ["no command found"] * (n == 0))


def check_generated():
    for tool in sorted(glob.glob(os.path.join(ROOT, "tests/tools/gen_*.py"))):
        p = subprocess.run([sys.executable, tool, "--check", "gcuda.h"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           check=False, timeout=500)
        text = p.stdout.decode("utf-8", "replace").strip().split("\n")
        if p.returncode != 0 and "No module named" in "".join(text):
            print(f"note    {os.path.basename(tool)}: {text[-1]}; make test runs it with the packages it needs")
            continue
        check(f"{os.path.basename(tool)}: generated part is current", text if p.returncode else [])


def formatted():
    return sorted({os.path.relpath(p, ROOT) for pattern in FORMATTED for p in glob.glob(os.path.join(ROOT, pattern), recursive=True)})


def check_format():
    global n_skipped
    try:
        says = subprocess.run(["clang-format", "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        says = "clang-format is not installed (apt-get install clang-format)"
    version = re.search(r"version (\d+)", says)
    if not version or int(version.group(1)) != CLANG_FORMAT:
        n_skipped += 1
        print(f"skipped the style of the code, which clang-format {CLANG_FORMAT} checks: {says.strip()}")
        return
    paths = formatted()

    def complaints(path):
        p = subprocess.run(["clang-format", "--dry-run", "--Werror", path], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           text=True, check=False)
        first = re.search(r"^(.*?:\d+):", p.stdout, re.M)
        return [f"{first.group(1) if first else path}: make format FILES={path}"] if p.returncode else []
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:  # each is a process of its own
        bad = [line for lines in pool.map(complaints, sorted(paths, key=lambda p: -os.path.getsize(os.path.join(ROOT, p)))) for line in lines]
    check(f"clang-format is silent on {len(paths)} files", bad)
    check_columns(paths)


def check_columns(paths):
    bad = [f"{path}:{n}: {len(line)} columns: {line.strip()[:70]}" for path in paths if not path.startswith("gcuda")
           for n, line in enumerate(read(path).split("\n"), 1) if len(line) > MAX_COLUMNS]
    check(f"examples and tests: no line over {MAX_COLUMNS} columns", bad)


def main():
    text = read("gcuda.h")
    check_contents("gcuda.h", text)
    check_subjects(text)
    check_blocks(text)
    for path in ("gcuda.h", "gcuda_kernels.cu"):
        if os.path.exists(os.path.join(ROOT, path)):
            check_words(path, read(path))
            check_layout(path, read(path))
    for path in UNWRITTEN:
        if os.path.exists(os.path.join(ROOT, path)):
            check_phrases(path, [path])
    others = [path for path in formatted() if not path.startswith("gcuda")]
    check_phrases(f"{len(others)} files of examples and tests", others)
    if os.path.exists(os.path.join(ROOT, "gcuda_kernels.cu")):
        check_contents("gcuda_kernels.cu", read("gcuda_kernels.cu"))
        check_contracts(read("gcuda_kernels.cu"))
        check_kernel_lengths(read("gcuda_kernels.cu"))
    check_names(text)
    check_instruction_sets(text)
    check("no cycle among the sections below the backends (deps.py)", deps.problems(os.path.join(ROOT, "gcuda.h")))
    check_link_flags()
    check_generated()
    if "--without-format" not in sys.argv:
        check_format()
    print(f"{n_passed} passed, {len(problems)} failed" + (f", {n_skipped} skipped" if n_skipped else ""))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
