#!/usr/bin/env python3
"""Checks on gcuda.h and gcuda_kernels.cu that no compiler makes. Last line: N passed, N failed.

  - CONTENTS and the section banners name the same tags in the same order, with the same words
  - every registry row has a `>>op:` block among the declarations and one in the implementation, and a test names it;
    every constructor has its row in test-errors.c
  - no abort(, exit(, longjmp( or <<< anywhere; no word that marks unfinished work
  - kernels do not ask the processor what it has: the chosen instruction set says it
  - no tabs, no trailing blanks; macros begin with GCUDA; long lines are counted
  - generated parts are as their generators write them
"""
import glob
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
problems = []
n_passed = 0


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


def code_of(text):
    """The text with comments and strings blanked, line numbers kept."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
    return pattern.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


def where(text, at):
    return text.count("\n", 0, at) + 1


def check_contents(text):
    contents = re.search(r"CONTENTS.*?\*/", text, re.S)
    rows = re.findall(r"^\s*>>([a-z0-9-]+)\s+(.*?)\s*$", contents.group(), re.M) if contents else []
    banners = re.findall(r"^// =+\n// >>([a-z0-9-]+)\s+(.*?)\s*$", text, re.M)
    bad = []
    if [t for t, _ in rows] != [t for t, _ in banners]:
        bad.append("CONTENTS: " + " ".join(t for t, _ in rows))
        bad.append("banners:  " + " ".join(t for t, _ in banners))
    check("CONTENTS lists the banners in order", bad)


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
    declared = re.findall(r"^GCUDA_API struct gcuda_tensor \* gcuda_(\w+)\(\s*struct gcuda_context \* ctx", text[:split], re.M)
    check(f"test-errors.c refuses NULL and bad sources of {len(declared)} constructors",
          [f"gcuda_{name} has no row" for name in declared if name not in ("new_i32", "new_f32") and not re.search(rf"\b(?:BUILD|ONE|TWO|THREE|X)\({name}\b", table)])


def check_words(path, text):
    bad = []
    for m in re.finditer(r"\b(?:abort|_?exit|_Exit|quick_exit|longjmp|setjmp)\s*\(|<<<", code_of(text)):
        bad.append(f"{path}:{where(text, m.start())}: {m.group()}")
    check(f"{path}: no abort, exit, longjmp, <<<", bad)
    bad = []
    for m in re.finditer(r"\b(?:TODO|FIXME|XXX|HACK|WIP)\b|\bplaceholder\b", text):
        bad.append(f"{path}:{where(text, m.start())}: {m.group()}")
    check(f"{path}: no marks of unfinished work", bad)


def check_layout(path, text):
    bad, wide = [], 0
    for i, line in enumerate(text.split("\n"), 1):
        wide += len(line) > 120
        if "\t" in line:
            bad.append(f"{path}:{i}: tab")
        if line != line.rstrip():
            bad.append(f"{path}:{i}: blank at the end")
    check(f"{path}: no tabs, no trailing blanks", bad)
    if wide:
        print(f"note    {path}: {wide} lines are longer than 120 columns")


def check_instruction_sets(text):
    """Kernels use what gcuda_cpu_set_isa leaves, not what the processor has: that is asked where the sets are listed, and to describe it."""
    allowed = ("gcudai_cpu_has", "gcudai_simd_of", "gcudai_cpu_dev_description")
    bad, function = [], ""
    for n, line in enumerate(code_of(text).splitlines(), 1):
        begin = re.match(r"\w.*?(\w+)\(.*\{$", line)
        function = begin.group(1) if begin else function
        if re.search(r"gcudai_cpu_has\(", line) and function not in allowed:
            bad.append(f"gcuda.h:{n}: {line.strip()[:100]}")
    check("only the list of instruction sets asks for the processor's features", bad)


def check_names(text):
    """What users see begins with gcuda_ or GCUDA_, what they do not with gcudai_ or GCUDAI_."""
    bad = []
    for m in re.finditer(r"^\s*#\s*define\s+([A-Za-z_][A-Za-z0-9_]*)", code_of(text), re.M):
        name = m.group(1)
        known = name in ("X", "WIN32_LEAN_AND_MEAN", "NOMINMAX", "_GNU_SOURCE", "_FILE_OFFSET_BITS", "_WIN32_WINNT", "_CRT_SECURE_NO_WARNINGS",
                         "__USE_MINGW_ANSI_STDIO")
        if not known and not re.match(r"(GCUDAI?_|gcudai?_)", name):
            bad.append(f"gcuda.h:{where(text, m.start(1))}: macro {name}")
    check("gcuda.h: macros carry the prefix", bad)


def check_generated():
    for tool in sorted(glob.glob(os.path.join(ROOT, "tests/tools/gen_*.py"))):
        p = subprocess.run([sys.executable, tool, "--check", "gcuda.h"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           check=False, timeout=500)
        text = p.stdout.decode("utf-8", "replace").strip().split("\n")
        if p.returncode != 0 and "No module named" in "".join(text):
            print(f"note    {os.path.basename(tool)}: {text[-1]}; make test runs it with the packages it needs")
            continue
        check(f"{os.path.basename(tool)}: generated part is current", text if p.returncode else [])


def main():
    text = read("gcuda.h")
    check_contents(text)
    check_blocks(text)
    for path in ("gcuda.h", "gcuda_kernels.cu"):
        if os.path.exists(os.path.join(ROOT, path)):
            check_words(path, read(path))
            check_layout(path, read(path))
    check_names(text)
    check_instruction_sets(text)
    check_generated()
    print(f"{n_passed} passed, {len(problems)} failed")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
