#!/usr/bin/env python3
"""Which section of gcuda.h's implementation uses which: `make map ARGS=--deps`, and what lint refuses of it.

A section uses another if its code names a function, table, variable, type or macro that the other defines. The names come from the
text and, for those that tables of macros put together, from the preprocessor (x86-64, with CUDA). A call through a vtable names nothing
and does not count, nor does looking an operation up in the table of all (LOOKUPS). A prototype defines nothing: a function belongs to the
section with its body.

    deps.py                 what each section uses, and the cycles
    deps.py --why A B       the names of section B that section A uses, with the first line of each
"""
import bisect
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# These sections are in no cycle, neither among themselves nor through others.
ACYCLIC = ("impl-tensor", "impl-graph", "impl-registry", "impl-alloc", "impl-backend", "impl-cpu")
MAX_CYCLES = 2  # of the other sections
LOOKUPS = ("gcudai_op_row", "gcudai_sub_op_name")

TOKEN = re.compile(r"[A-Za-z_]\w*|[(){}\[\];=]")
OWN = re.compile(r"(?:gcudai?|GCUDAI?)_")
BLANKED = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)


def blank(text):
    """The text with comments and strings blanked, line numbers kept."""
    return BLANKED.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


def section_starts(text):
    """Lists of the first lines and the names of all sections."""
    found = [(text.count("\n", 0, m.start()) + 2, m.group(1)) for m in re.finditer(r"^// =+\n// >>([a-z0-9-]+) ", text, re.M)]
    return [n for n, _ in found], [name for _, name in found]


def preprocessed(path):
    """[(line of path, code)] after the preprocessor."""
    cc = os.environ.get("CC", "cc").split()
    options = ["-std=c99", "-DGCUDA_IMPLEMENTATION", "-DGCUDA_CUDA", "-I" + os.path.join(ROOT, "tests/sim/include")]
    p = subprocess.run([*cc, "-E", "-x", "c", *options, path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    if p.returncode != 0:
        sys.exit("deps.py: " + p.stderr.decode("utf-8", "replace")[:1000])
    out, line, is_own = [], 0, False
    for code in p.stdout.decode("utf-8").split("\n"):
        marker = re.match(r'# (\d+) "(.*?)"', code)
        if marker:
            line, is_own = int(marker.group(1)), os.path.basename(marker.group(2)) == os.path.basename(path)
            continue
        if is_own:
            out.append((line, code))
        line += 1
    return out


def tokens(lines):
    """[(line, token)] without preprocessor directives and strings."""
    return [(n, t) for n, code in lines if not code.lstrip().startswith("#") for t in TOKEN.findall(blank(code))]


def definitions(toks):
    """{name: line} of functions, variables, types and enumerators, of those outside any braces and of enums."""
    out, depth, statement, is_enum = {}, 0, [], False
    for n, t in toks:
        if t == "}":
            depth = max(depth - 1, 0)
            is_enum = is_enum and depth > 0
            if depth == 0 and statement[:1] != ["typedef"] and "=" not in statement:
                statement = []
        elif t == "{":
            if depth == 0 and statement:
                is_enum = "enum" in statement[:2] and "(" not in statement and "=" not in statement
                name = defined(statement)
                if name:
                    out.setdefault(name, n)
            depth += 1
        elif is_enum and depth == 1 and re.match(r"GCUDAI?_", t):
            out.setdefault(t, n)
        elif depth == 0 and t == ";":
            is_variable = "static" in statement and ("=" in statement or "(" not in statement)
            name = defined(statement) if is_variable or statement[:1] == ["typedef"] else None
            if name:
                out.setdefault(name, n)
            statement = []
        elif depth == 0:
            statement.append(t)
    return out


def defined(statement):
    """The name that a statement outside of braces defines, or None."""
    names = [(i, t) for i, t in enumerate(statement) if OWN.match(t)]
    calls = [t for i, t in names if statement[i + 1:i + 2] == ["("] and not t.startswith("GCUDAI_")]
    before_value = statement[:statement.index("=")] if "=" in statement else statement
    own = [t for t in before_value if OWN.match(t)]
    if statement[:1] == ["typedef"]:
        pointers = re.search(r"\( (\S+) \)", " ".join(statement))
        return pointers.group(1) if pointers and OWN.match(pointers.group(1)) else own[-1] if own else None
    if "=" not in statement and calls:
        return calls[0]
    return own[-1] if own else None


def graph_of(path):
    """{section: {other: {name: first line}}} of the implementation's sections."""
    with open(path, encoding="utf-8") as f:
        text = f.read()
    starts, titles = section_starts(text)

    def section(n):
        at = bisect.bisect_right(starts, n) - 1
        return titles[at] if at >= 0 and titles[at].startswith("impl-") else None

    source = list(enumerate(blank(text).split("\n"), 1))
    expanded = tokens(preprocessed(path))
    home = {}
    for n, code in source:
        macro = re.match(r"#\s*define\s+(\w+)", code)
        if macro and section(n):
            home.setdefault(macro.group(1), section(n))
    for toks in (expanded, tokens(source)):
        for name, n in definitions(toks).items():
            home.setdefault(name, section(n)) # None: a public type or constant
    out = {title: {} for title in titles if title.startswith("impl-")}
    used = [(n, t) for n, code in source for t in TOKEN.findall(code)] + expanded
    for n, t in used:
        user, owner = section(n), home.get(t)
        if user and owner and user != owner and t not in LOOKUPS:
            names = out[user].setdefault(owner, {})
            names[t] = min(n, names.get(t, n))
    return out


def cycles(graph):
    """Strongly connected components of more than one section (Tarjan)."""
    index, low, stack, found = {}, {}, [], []

    def visit(v):
        index[v] = low[v] = len(index)
        stack.append(v)
        for w in graph[v]:
            if w not in index:
                visit(w)
                low[v] = min(low[v], low[w])
            elif w in stack:
                low[v] = min(low[v], index[w])
        if low[v] == index[v]:
            at = stack.index(v)
            found.append(stack[at:])
            del stack[at:]

    for v in graph:
        if v not in index:
            visit(v)
    return [c for c in found if len(c) > 1]


def problems(path):
    """What lint refuses, one line each."""
    graph = graph_of(path)
    found = cycles(graph)
    bad = [f"no section {name}" for name in ACYCLIC if name not in graph]
    for c in found:
        inner = [name for name in c if name in ACYCLIC]
        if inner:
            bad.append(f"{' '.join(inner)}: in the cycle {' '.join(c)}; deps.py --why says what uses what")
    others = [c for c in found if not set(c) & set(ACYCLIC)]
    if len(others) > MAX_CYCLES:
        bad += [f"more than {MAX_CYCLES} cycles: {' '.join(c)}" for c in others]
    return bad


def main():
    graph = graph_of(os.path.join(ROOT, "gcuda.h"))
    if len(sys.argv) == 4 and sys.argv[1] == "--why":
        for name, n in sorted(graph[sys.argv[2]].get(sys.argv[3], {}).items(), key=lambda row: row[1]):
            print(f"gcuda.h:{n}: {name}")
        return 0
    for section, others in graph.items():
        print(f"{section[5:]:18} {' '.join(sorted(other[5:] for other in others))}")
    found = cycles(graph)
    for c in found:
        print("cycle: " + " ".join(name[5:] for name in c))
    return 0


if __name__ == "__main__":
    sys.exit(main())
