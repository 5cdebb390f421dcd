#!/usr/bin/env python3
"""How many places a new operation, activation, block type or path of products touches, and who names each that is forgotten.

    places.py [--keep]      last line: N passed, N failed

In a copy of the sources a dummy of each kind is added by edits, one for each place. With all edits the headers, kernels and tests
compile, the implementation links with the kernels, and lint passes; the dummy operation and activation also run their tests on the CPU,
and a wrong derivative of the activation is found.
Then each edit is left out alone: compiler, linker or lint must fail with the dummy's name. The type is one of weights
that the CPU alone computes with; CUDA needs a d_format and a place in D_WEIGHT_TYPES, which its compiler asks for. Generated parts (list
of GCUDA_PREFIX, README, numbers of cases) are no places. --keep: the copy stays. --kind=NAME: of one kind.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
WARN = "-Wall -Wextra -Wpedantic -Wshadow -Werror".split()
SIM = ["-DGCUDA_CUDA", "-DGCUDA_CUBLAS_LINK", "-Itests/sim/include", "-I.", "-Itests"]
MAX_PLACES = 5
MAX_PLACES_OF_PATH = 8

# kind: its name in messages, the test that runs it (or ""), and its edits: file, text before which (or, with +, after which) it goes, text
OPERATION = ("twice", "twice", [
    ("row", "gcuda.h", "    X(SQR,                     sqr,",
     "    X(TWICE, twice, 1, 0, REUSE, map, elements, any, none, 0, 0, plain, twice, floats, BASE, no, no, no, map) \\\n"),
    ("declaration", "gcuda.h", "// >>op:sqr ---", "// >>op:twice ---\n// y = 2 x, element by element.\n"
     "GCUDA_API struct gcuda_tensor * gcuda_twice(struct gcuda_context * ctx, struct gcuda_tensor * a);\n\n"),
    ("implementation", "gcuda.h", "2// >>op:sqr ---", "// >>op:twice ---\n"
     "struct gcuda_tensor * gcuda_twice(struct gcuda_context * ctx, struct gcuda_tensor * a) {\n"
     "    return gcudai_map(ctx, GCUDA_OP_TWICE, a, 0.0f, 0.0f, false);\n}\n"
     "static gcuda_status gcudai_twice_check(const struct gcuda_tensor * y) { return gcudai_want_map(y); }\n"
     "GCUDAI_MAP_OP(twice, x + x)\n\n"),
    ("kernel", "gcuda_kernels.cu", "gcuda_status gcuda_launch_sqr(",
     "struct d_twice {\n    static __device__ float apply(float x, const gcuda_map_args &) { return x + x; }\n};\n"
     "gcuda_status gcuda_launch_twice(const gcuda_map_args * args, gcuda_stream stream) {\n"
     "    return map<d_twice, d_twice>(*args, stream);\n}\n"),
    ("test", "tests/ops-elementwise.h", "TEST(unary_named)",
     "static void ref_twice(const struct op_case * c) {\n    arr_like(c->out, c->in[0]);\n"
     "    for (int64_t i = 0; i < arr_n(c->out); ++i) { c->out->d[i] = 2.0 * c->in[0]->d[i]; }\n}\n"
     "static struct gcuda_tensor * build_twice(struct gcuda_context * ctx, struct gcuda_tensor ** in, const void * p) {\n"
     "    return (void) p, gcuda_twice(ctx, in[0]);\n}\n"
     "TEST(twice) { // >>op:twice\n    const struct op_test t = { .types = \"F32 F16\", .shapes = \"1 5,7\", .n_in = 1, .build = build_twice, .ref = ref_twice,\n"
     "        .max_nmse = 1e-7, .reuse = 1, .refuses = \"I32 Q4_0\" };\n    op_test_run(&t);\n}\n"),
])
ACTIVATION = ("TWICE", "unary", [
    ("line", "gcuda.h", "+    X(TRUNC,       21)", " X(TWICE, 22)"),
    ("CPU", "gcuda.h", "GCUDAI_MAP(TRUNC, truncf(x))", "GCUDAI_MAP(TWICE, x + x)\n"),
    ("derivative", "gcuda.h", "GCUDAI_FLAT(TRUNC)", "GCUDAI_CHAIN(TWICE, gcuda_scale(ctx, g, 2.0f))\n"),
    ("kernel", "gcuda_kernels.cu", "D_UNARY(TRUNC, truncf(x))", "D_UNARY(TWICE, x + x)\n"),
    ("reference", "tests/ops-elementwise.h", "REF_UNARY(TRUNC, trunc(x))", "REF_UNARY(TWICE, 2.0 * x)\n"),
])
TYPE = ("q8_x", "", [
    ("row", "gcuda.h", "    X(MXFP4,   39, mxfp4,",
     "    X(Q8_X, 31, q8_x, \"q8_x\", 32, 34, 1, yes, yes, 2, no, one, yes, S32, 0, Q8_0, none) \\\n"),
    ("block", "gcuda.h", "struct gcuda_block_q8_1 {", "struct gcuda_block_q8_x { gcuda_fp16_t d; int8_t qs[32]; };\n"),
    ("conversion", "gcuda.h", "enum {\n#define X(ID, ...) GCUDAI_TYPE_LINE_##ID,",
     "static void gcudai_quantize_row_q8_x(const float * x, void * y, int64_t n) { gcudai_quantize_row_q8_0(x, y, n); }\n\n"),
    ("codes", "gcuda.h", "// All that is compiled for an instruction set;",
     "static void gcudai_codes_q8_x(GCUDAI_CODES_ARGS) { gcudai_codes_q8_0(w, n, q, sc, mn); }\n"
     "#define gcudai_codes_q8_x_avx2 gcudai_codes_q8_x\n\n"),
    ("test", "tests/test-quants.c", "    { GCUDA_TYPE_Q2_K, { 8,",
     "    { GCUDA_TYPE_Q8_X, { -69, 4, 77, -106 }, { 73, -110 }, -48, -688 },\n"),
])
PATH = ("twin", "", [
    ("line", "gcuda.h", "    X(INT8,  int8,  \"bytes\")", "    X(TWIN,  twin,  \"twin\")     \\\n"),
    ("row", "gcuda.h", "//\n// from: compute capability;", "//   TWIN   any the operation takes, any strides               any           nothing                        any\n"),
    ("kernel", "gcuda_kernels.cu", "const mul_mat_path D_PATH(tile) =",
     "const mul_mat_path D_PATH(twin) = { plain_takes, plain_scratch_bytes, launch_plain_job, mul_mat_no_layout };\n"),
    ("rule", "gcuda.h", "    GCUDAI_RULE(TILE,       ALWAYS,     ALWAYS,        ANY, ",
     "    GCUDAI_RULE(TWIN,       ALWAYS,     ALWAYS,        ANY,           9,   0,    0,    16,   0,    ANY,        800),\n"),
    ("self-test", "gcuda.h", "    X(wgmma, \"products with wgmma\"",
     "    X(twin, \"twin\", 1 + GCUDAI_CUDA_MM_TWIN, gcuda_mul_mat(ctx, GCUDAI_IN(64, 48, 1), GCUDAI_IN(64, 20, 1))) \\\n"),
    ("test of the self-test", "tests/sim/test-selftest.c", "\"pooling\"", "\"twin\", "),
    ("letter", "tests/sim/test-cuda.c", "        case GCUDAI_CUDA_MM_GEMM: return '?';", "        case GCUDAI_CUDA_MM_TWIN: return 'W';\n"),
    ("test", "tests/hw/test-warp-groups.c", "static const struct way tiles =",
     "static const struct way twins = { \"twins\", GCUDA_MUL_MAT_TWIN, false, true };\n"),
])
KINDS = {"operation": OPERATION, "activation": ACTIVATION, "type on the CPU": TYPE, "path of products": PATH}


class Copy:
    def __init__(self, folder):
        self.folder = folder
        for name in ("gcuda.h", "gcuda_kernels.cu", "Makefile", "README.md", "CHANGELOG.md", "LICENSE"):
            shutil.copy(os.path.join(ROOT, name), folder)
        for name in ("tests", "examples"):
            shutil.copytree(os.path.join(ROOT, name), os.path.join(folder, name), ignore=shutil.ignore_patterns("__pycache__", "hardware"))
        if os.path.isdir(os.path.join(ROOT, "tests/hardware")):
            os.symlink(os.path.join(ROOT, "tests/hardware"), os.path.join(folder, "tests/hardware"))
        self.files = ("gcuda.h", "gcuda_kernels.cu", "README.md", "tests/ops-elementwise.h", "tests/test-quants.c",
                      "tests/sim/test-selftest.c", "tests/sim/test-cuda.c", "tests/hw/test-warp-groups.c")
        self.plain = {f: self.read(f) for f in self.files}

    def read(self, path):
        with open(os.path.join(self.folder, path), encoding="utf-8") as f:
            return f.read()

    def write(self, path, text):
        with open(os.path.join(self.folder, path), "w", encoding="utf-8") as f:
            f.write(text)

    def run(self, *command):
        done = subprocess.run(command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, errors="replace", check=False)
        return "" if done.returncode == 0 else done.stdout or f"{command[0]} failed without a word"

    def apply(self, edits):
        texts = dict(self.plain)
        for _, path, where, text in edits:
            nth = int(where[0]) if where[0].isdigit() else 1
            mark = where.lstrip("+0123456789")
            at = -1
            for _ in range(nth):
                at = texts[path].find(mark, at + 1)
            if at < 0:
                sys.exit(f"places.py: {path} has no {mark!r}: adapt the edit")
            at += len(mark) if where[0] == "+" else 0
            texts[path] = texts[path][:at] + text + texts[path][at:]
        for path, text in texts.items():
            self.write(path, text)
        return self.run(sys.executable, "tests/tools/gen_prefix.py", "gcuda.h")

    def unary_part(self):
        """The part of the kernels that has the activations."""
        parts = re.findall(r"^#if GCUDAI_PART\((\d+)\)|(^D_UNARY\(TRUNC)", self.plain["gcuda_kernels.cu"], re.M)
        last = "1"
        for part, mark in parts:
            if mark:
                return last
            last = part
        return last

    def links(self):
        sys.path.insert(0, os.path.join(self.folder, "tests/compile"))
        try:
            import switches  # pylint: disable=import-outside-toplevel
        finally:
            sys.path.pop(0)
        switches.ROOT = self.folder
        implementation = switches.text_of(switches.IMPLEMENTATION)
        candidates = switches.declared(implementation) - switches.functions_of_kernels(implementation)
        missing = switches.called(implementation, candidates) - switches.functions_of_kernels(switches.text_of(switches.KERNELS))
        return "undefined: " + " ".join(sorted(missing)) if missing else ""

    def complaint(self, name, is_kernel_checked, is_path):
        """The check that names the missing place, and its line; None: no check."""
        checks = [
            # an object: gcc finds unused functions only then
            ("compiler", lambda: self.run("gcc", "-std=c99", *WARN, "-DGCUDA_IMPLEMENTATION", "-O0", "-x", "c", "-c", "-o", os.devnull, "gcuda.h")),
            ("compiler", lambda: self.run("gcc", "-std=c99", *WARN, *SIM, "-DGCUDA_IMPLEMENTATION", "-x", "c", "-fsyntax-only", "gcuda.h")),
            ("compiler", lambda: self.run("gcc", "-std=c99", *WARN, "-I.", "-Itests", "-fsyntax-only", "tests/test-ops.c")),
            ("compiler", lambda: self.run("gcc", "-std=c99", *WARN, "-I.", "-Itests", "-fsyntax-only", "tests/test-mulmat.c")),
            ("linker", self.links)]
        if is_path:
            checks += [("compiler", lambda f=f: self.run("gcc", "-std=c99", *WARN, *SIM, "-fsyntax-only", f))
                       for f in ("tests/sim/test-cuda.c", "tests/hw/test-warp-groups.c")]
            checks.append(("compiler", lambda: self.run("g++", "-std=c++17", "-Wno-psabi", *SIM, "-x", "c++", "-fsyntax-only",
                                                        "-DGCUDA_KERNEL_PART=4", "gcuda_kernels.cu")))
        if is_kernel_checked:
            checks.append(("compiler", lambda: self.run("g++", "-std=c++17", "-Wno-psabi", *SIM, "-x", "c++", "-fsyntax-only",
                                                        f"-DGCUDA_KERNEL_PART={self.unary_part()}", "gcuda_kernels.cu")))
        checks.append(("lint", lambda: self.run(sys.executable, "tests/tools/lint.py", "--without-format")))
        for who, check in checks:
            try:
                text = check()
            except RuntimeError as e:  # of switches.py
                text = str(e)
            if text:
                lines = [l for l in text.split("\n") if re.search(name, l, re.I)]
                return who, (lines or ["(without the name) " + text.strip()[-300:]])[0].strip(), bool(lines)
        return None

    def finds_wrong_derivative(self, edits, name):
        """"" if test-grad names the dummy whose derivative is wrong."""
        wrong = [(kind, path, where, text.replace("2.0f", "2.1f") if kind == "derivative" else text) for kind, path, where, text in edits]
        text = self.apply(wrong) or self.run("make", "-s", "CFLAGS=-O0", "build/test-grad")
        said = text or self.run("build/test-grad", "--test", "grad_every_activation")
        return "" if not text and f"FAILED grad_every_activation/{name}" in said else said or "nothing"

    def runs(self, test):
        return self.run("make", "-s", "CFLAGS=-O0", "build/test-ops") or self.run("build/test-ops", "--update-cases") or \
            self.run("build/test-ops", "--test", test)


def check_kind(copy, kind, failed):
    name, test, edits = KINDS[kind]
    n = 0

    def say(is_ok, text):
        nonlocal n
        n += 1
        print(f"{'ok' if is_ok else 'FAILED':8}{kind}: {text}", flush=True)
        if not is_ok:
            failed.append(text)
    is_path = kind == "path of products"
    most = MAX_PLACES_OF_PATH if is_path else MAX_PLACES
    say(len(edits) <= most, f"{len(edits)} places, {most} at most: " + ", ".join(e[0] for e in edits))
    text = copy.apply(edits) or copy.run(sys.executable, "tests/tools/gen_readme.py", "gcuda.h")
    found = copy.complaint(name, kind in ("operation", "activation"), is_path)
    say(not text and found is None, "with all of them everything compiles and lint passes" + (f": {text or found}" if text or found else ""))
    if test:
        text = copy.runs(test)
        say(not text, f"its test {test} passes on the CPU" + (f": {text[-500:]}" if text else ""))
    if kind == "activation":
        text = copy.finds_wrong_derivative(edits, name)
        say(not text, "test-grad finds a derivative that is wrong by 5 %" + (f": {text[-500:]}" if text else ""))
    for left_out in edits:
        text = copy.apply([e for e in edits if e is not left_out])
        found = ("compiler", text, name.lower() in text.lower()) if text else copy.complaint(name, left_out[0] == "kernel" and not is_path, is_path)
        say(found is not None and found[2], f"without {left_out[0]}: " + (f"{found[0]}: {found[1][:160]}" if found else "nothing says so"))
    return n


def main():
    folder = tempfile.mkdtemp(prefix="gcuda-places-")
    failed, n = [], 0
    try:
        copy = Copy(folder)
        for kind in [a[7:] for a in sys.argv if a.startswith("--kind=")] or KINDS:
            n += check_kind(copy, kind, failed)
    finally:
        if "--keep" in sys.argv:
            print(f"the copy is {folder}")
        else:
            shutil.rmtree(folder)
    print(f"{n - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
