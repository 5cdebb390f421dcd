#!/usr/bin/env python3
"""Builds gcuda.h the ways people will, runs what that makes, and looks at the symbols.

    python3 tests/compile/matrix.py [--level user|ci|full] [--only TEXT] [--list]

Every case ends in build/compile/NAME. Last line: N passed, N failed, N skipped.
"""
import argparse
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
OUT = os.path.join(ROOT, "build", "compile")
sys.path.insert(0, os.path.join(ROOT, "tests"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import example_oracles  # noqa: E402
import limits  # noqa: E402
WARN = "-Wall -Wextra -Wpedantic -Wshadow -Werror".split()
LINK = "-pthread -lm -ldl".split()
LEVELS = ["user", "ci", "full"]
PACKAGES = {"gcc": "build-essential", "g++": "build-essential", "clang": "clang", "clang++": "clang",
            "x86_64-w64-mingw32-gcc": "gcc-mingw-w64-x86-64", "x86_64-w64-mingw32-g++": "g++-mingw-w64-x86-64",
            "wine": "wine64", "aarch64-linux-gnu-gcc": "gcc-aarch64-linux-gnu", "nm": "binutils"}


class Bad(Exception):
    pass


class Skip(Exception):
    pass


class Case:
    """One way to build; `folder` is its own."""

    def __init__(self, name, level, do):
        self.name, self.level, self.do = name, level, do
        self.folder = os.path.join(OUT, re.sub(r"[^A-Za-z0-9+.-]+", "_", name))

    def path(self, name):
        return os.path.join(self.folder, name)

    def call(self, command, timeout=1200):
        if shutil.which(command[0]) is None and not os.path.exists(command[0]):
            raise Skip(f"no {command[0]} (apt-get install {PACKAGES.get(command[0], command[0])})")
        env = dict(os.environ, WINEDEBUG="-all")
        with tempfile.TemporaryFile() as log:
            code, _, why = limits.run(command, timeout, log, cwd=ROOT, env=env, stdin=subprocess.DEVNULL)
            log.seek(0)
            text = log.read().decode("utf-8", "replace")
        if code != 0:
            raise Bad(f"{' '.join(command)}\n{why or f'exit code {code}'}\n{text[:3000]}")
        return text

    def compile(self, cc, std, source, flags=(), out=None):
        """tests/compile/SOURCE to an object; C++ compilers get a copy whose name says so."""
        path = os.path.join("tests/compile", source)
        if "++" in cc:
            copy = self.path(source.replace(".c", ".cpp"))
            with open(os.path.join(ROOT, path), encoding="utf-8") as f, open(copy, "w", encoding="utf-8") as g:
                g.write(f.read())
            path = copy
        obj = self.path(out or source.replace(".c", ".o"))
        self.call([cc, f"-std={std}", *WARN, "-I.", "-Itests/compile", *flags, "-c", path, "-o", obj])
        return obj

    def program(self, cc, objects, name="program", link=tuple(LINK), prefix=()):
        exe = self.path(name)
        self.call([cc, *objects, "-o", exe, *link])
        self.call([*prefix, exe], timeout=120)


def symbols(case, obj, weak=True):
    """External symbols that an object defines."""
    lines = [line.split() for line in case.call(["nm", "-g", "--defined-only", obj]).splitlines()]
    return [words[-1] for words in lines if len(words) == 3 and (weak or words[1] not in "WVu")]


def has_prefix(case, obj):
    others = [s for s in symbols(case, obj) if s != "main" and not s.startswith("gcuda_")]
    if others:
        raise Bad("external symbols without the prefix gcuda_: " + " ".join(others[:10]))


def declarations(cc, std):
    def do(case):
        case.compile(cc, std, "decl.c", ["-Wconversion"])
    return do


def implementation(cc, std, opt, run=True):
    """With warnings that need the optimizer (-O2), or only those of the front end (-fsyntax-only)."""
    def do(case):
        if opt == "-fsyntax-only":
            case.compile(cc, std, "impl.c", [opt])
            return
        obj = case.compile(cc, std, "impl.c", [opt])
        if run:
            case.program(cc, [obj])
        has_prefix(case, obj)
    return do


def two_units(cc, std):
    def do(case):
        objects = [case.compile(cc, std, s, ["-O0"]) for s in ("impl_only.c", "decl.c", "user.c")]
        case.program(cc, objects)
        has_prefix(case, objects[0])
    return do


def mixed_languages(case):  # the implementation in a C++ file, users in C
    objects = [case.compile("g++", "c++11", "impl_only.c", ["-O0"]), case.compile("gcc", "c99", "decl.c"),
               case.compile("gcc", "c99", "user.c")]
    case.program("g++", objects)
    has_prefix(case, objects[0])


def copies(cc, std, flags_a, flags_b, allowed):
    def do(case):
        objects = [case.compile(cc, std, "copies.c")]
        for copy, flags in (("a", flags_a), ("b", flags_b)):
            obj = case.compile(cc, std, "copy.c", ["-O0", f"-DCOPY={copy}", *flags], out=f"copy_{copy}.o")
            leaked = [s for s in symbols(case, obj) if not re.search(allowed[copy], s)]
            if leaked:
                raise Bad(f"copy {copy} exports " + " ".join(leaked[:10]))
            objects.append(obj)
        case.program(cc, objects)
    return do


def shared_library(case):
    """GCUDA_API decides what a library lets out: here all that is public, of a build that hides the rest."""
    obj = case.compile("gcc", "c99", "impl_only.c",
                       ["-O0", "-fPIC", "-fvisibility=hidden", '-DGCUDA_API=extern __attribute__((visibility("default")))'])
    library = case.path("libgcuda.so")
    case.call(["gcc", "-shared", obj, "-o", library, *LINK])
    names = {line.split()[-1] for line in case.call(["nm", "-D", "--defined-only", library]).splitlines()}
    with open(os.path.join(ROOT, "gcuda.h"), encoding="utf-8") as f:
        public = set(re.findall(r"^#define (gcuda_\w+) GCUDAI_RENAME", f.read(), re.M))
    if "gcuda_init" not in names or names - public:
        raise Bad("the library lets out " + (" ".join(sorted(names - public)[:10]) or "nothing"))


def with_flags(cc, std, source, flags, link=tuple(LINK), prefix=(), name="program"):
    def do(case):
        case.program(cc, [case.compile(cc, std, source, flags)], name, link, prefix)
    return do


def same_bits(*builds):
    """With a set of instructions chosen, what the CPU computes has the same bits whatever a compiler may contract to fused products
    and whatever the processor has: without SIMD code, the scalar set is all there is. The first build has every set."""
    def do(case):
        want = {}
        for i, (cc, std, flags) in enumerate(builds):
            exe = case.path(f"program-{i}")
            case.program(cc, [case.compile(cc, std, "isa.c", flags, f"isa-{i}.o")], f"program-{i}")
            lines = [line.rsplit(" ", 1) for line in case.call([exe], timeout=120).splitlines()]
            if not lines or any("failed" in " ".join(line) for line in lines):
                raise Bad("nothing was computed: " + "; ".join(" ".join(line) for line in lines if "failed" in " ".join(line)))
            want = want or dict(lines)
            other = [name for name, value in lines if want.get(name) != value]
            # products are cut as a set likes; the rest has one order of sums for all
            other += [f"{name}, unlike scalar" for name, value in lines if " product " not in name and
                      want["scalar " + name.split(" ", 1)[1]] != value]
            if other:
                raise Bad(f"{cc} -std={std} {' '.join(flags)}: other bits in {len(other)} results: " + "; ".join(other[:10]))
    return do


def contraction(case):
    """The implementation leaves the including file's FP_CONTRACT as it was."""
    cpuinfo = open("/proc/cpuinfo", encoding="utf-8").read() if os.path.exists("/proc/cpuinfo") else ""
    if " fma " not in cpuinfo:
        raise Skip("no x86 processor with FMA")
    for want in "01":
        obj = case.compile("clang", "c99", "contract.c", ["-O0", "-mfma", f"-DWANT={want}"], f"contract-{want}.o")
        case.program("clang", [obj], f"program-{want}")


def cross(cc, std, flags, link, prefix, name="program"):
    return with_flags(cc, std, "impl.c", flags, link, prefix, name)


def find_nvcc():
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not os.path.exists(nvcc):
        raise Skip("no nvcc (NVIDIA's CUDA toolkit)")
    return nvcc


def kernel_unit(flags):
    def do(case):
        case.call([find_nvcc(), "-std=c++17", "-Xcompiler", "-Wall,-Wextra,-Werror", *flags, "-I.", "-c", "gcuda_kernels.cu", "-o",
                   case.path("kernels.o")])
    return do


def kernel_front_end(flags):
    """The kernel unit as the simulated device compiles it, front end only: every machine can."""
    def do(case):
        case.call(["g++", "-std=c++17", *WARN, "-DGCUDA_CUDA", *flags, "-Itests/sim/include", "-I.", "-Itests", "-x", "c++",
                   "-fsyntax-only", "gcuda_kernels.cu"])
    return do


def prefixed_kernels(part):
    """Weak symbols are templates and inline functions, which the linker takes from any copy."""
    def do(case):
        obj = case.path("kernels.o")
        case.call(["g++", "-std=c++17", "-O0", "-DGCUDA_CUDA", "-DGCUDA_PREFIX=one_", f"-DGCUDA_KERNEL_PART={part}", "-Itests/sim/include",
                   "-I.", "-x", "c++", "-c", "gcuda_kernels.cu", "-o", obj])
        found = symbols(case, obj, weak=False)
        others = [s for s in found if not s.startswith("one_")]
        if others or not found:
            raise Bad("external symbols without the prefix one_: " + (" ".join(others[:10]) or "there are none at all"))
    return do


def warns_of_bad_nvcc(case):
    """The two toolkits that miscompile are named when they compile it, and no other: their numbers, told to the preprocessor."""
    for minor, build, is_bad in ((2, 51, True), (2, 78, True), (2, 86, False), (1, 66, False), (3, 10, False)):
        version = ["-D__CUDACC_VER_MAJOR__=13", f"-D__CUDACC_VER_MINOR__={minor}", f"-D__CUDACC_VER_BUILD__={build}"]
        done = subprocess.run(["g++", "-std=c++17", "-DGCUDA_CUDA", *version, "-Itests/sim/include", "-I.", "-x", "c++", "-E", "-o",
                               os.devnull, "gcuda_kernels.cu"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0 or ("nvcc of CUDA 13.2.0 and 13.2.1" in done.stdout) != is_bad:
            raise Bad(f"13.{minor}.{build}: {done.stdout[-500:] or 'no warning'}")


def fails_to_compile(folder, command, wanted):
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False)
    if done.returncode == 0 or wanted not in done.stdout:
        raise Bad(f"{' '.join(command)}: {'compiles' if done.returncode == 0 else done.stdout[:1000]}; wanted an error with '{wanted}'")


def renamed_header(case):
    """With GCUDA_PREFIX the header includes itself: a copy with another name needs GCUDA_HEADER."""
    copy = case.path("renamed.h")
    shutil.copy(os.path.join(ROOT, "gcuda.h"), copy)
    command = ["gcc", "-std=c99", "-fsyntax-only", "-DGCUDA_PREFIX=one_", "-x", "c", copy]
    case.call([*command, '-DGCUDA_HEADER="renamed.h"'])
    fails_to_compile(case.folder, command, "gcuda.h")


def forgotten_kind(enum, last, cpu, cuda):
    """A kind that is only in its list is an error of the CPU's compiler and of the kernels', and so is a number out of order."""
    def do(case):
        folder = scratch_copy(case)
        path = os.path.join(folder, "gcuda.h")
        with open(path, encoding="utf-8") as f:
            text = f.read()
        found = re.findall(rf"(X\({last}, *(\d+)((?:, *\w+)*)\))(?! *\\)", text)
        if len(found) != 1:
            raise Bad(f"the last line of the list, X({last}, ...), is not there once, but {len(found)} times")
        line, n, others = found[0][0], int(found[0][1]), found[0][2]
        sim = ["-DGCUDA_CUDA", "-I.", f"-I{ROOT}/tests/sim/include"]
        c = ["gcc", "-std=c99", *sim, "-DGCUDA_IMPLEMENTATION", "-fsyntax-only", "-x", "c", "gcuda.h"]
        cu = ["g++", "-std=c++17", *sim, "-DGCUDA_KERNEL_PART=2", "-fsyntax-only", "-x", "c++", "gcuda_kernels.cu"] # which has both
        for number, checks in ((n + 1, [(c, cpu), (cu, cuda)]), (n + 2, [(c, f"gcudai_{enum}_numbers_count_up")])):
            with open(path, "w", encoding="utf-8") as f:
                f.write(text.replace(line, f"{line} X(FAKE, {number}{others})"))
            for command, wanted in checks:
                fails_to_compile(folder, command, wanted)
    return do


def with_cuda(cc, std):
    """The CUDA backend compiled in, as far as the toolkit's headers go; linking it is `make cuda`."""
    def do(case):
        nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
        include = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(nvcc))), "include")
        if not os.path.exists(os.path.join(include, "cuda_runtime_api.h")):
            raise Skip("no CUDA headers (NVIDIA's CUDA toolkit)")
        case.compile(cc, std, "impl_only.c", ["-O1", "-DGCUDA_CUDA", "-isystem", include])
    return do


def cuda_front_end(flags):
    """The CUDA backend with the simulated device's headers, front end only: every machine can."""
    def do(case):
        case.call(["gcc", "-std=c99", *WARN, "-DGCUDA_IMPLEMENTATION", "-DGCUDA_CUDA", *flags, "-Itests/sim/include", "-I.", "-x", "c",
                   "-fsyntax-only", "gcuda.h"])
    return do


def scratch_copy(case):
    """What a user has: the header and the examples, in a folder where programs may be left."""
    folder = case.path("tree")
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    for name in ("gcuda.h", "gcuda_kernels.cu"):
        shutil.copy(os.path.join(ROOT, name), folder)
    if os.path.isdir(os.path.join(ROOT, "examples")):
        shutil.copytree(os.path.join(ROOT, "examples"), os.path.join(folder, "examples"))
    return folder


def run_code(folder, line):
    return subprocess.run(["sh", "-c", line], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode


def shell(case, folder, line, timeout=600):
    return case.call(["sh", "-c", f"cd '{folder}' && {line}"], timeout)


def example(source):
    """Builds and runs an example by the line at its head; of digits, which make run trains, only the first half."""
    def do(case):
        with open(os.path.join(ROOT, source), encoding="utf-8") as f:
            line = re.search(r"^//\s+((?:cc|c\+\+|gcc|g\+\+) .*)$", f.read(), re.M)
        if line is None:
            raise Bad("its head does not say how to build it")
        line = line.group(1).replace("cc -O2", "cc -O0 " + " ".join(WARN), 1) # make examples optimises
        build, _, start = line.partition("&&")
        folder, oracle = scratch_copy(case), example_oracles.ORACLES.get(os.path.basename(source)[:-2])
        shell(case, folder, build)
        if "digits" in source or not start:
            return
        for checks in ("", "GCUDA_CHECK_MEMORY=1 "): # and keeps to the manual's rules of memory
            output = shell(case, folder, checks + start.strip())
            try:
                if oracle is not None:
                    oracle(output)
            except AssertionError as e:
                raise Bad(f"{source} printed something else: {e}") from e
    return do


def build_lines(text):
    """Command lines of README's code blocks and the manual's indented ones that build something, continued lines joined."""
    lines = text.replace("\\\n", " ").splitlines()
    return [line.strip().lstrip("$ ") for line in lines if re.match(r"\s*(\$ )?(cc|gcc|g\+\+|c\+\+|nvcc) -", line)]


def unoptimised(line):
    """Whether it builds and runs, in a third of the time."""
    return line.replace("cc -O2", "cc -O0", 1)


def readme_lines(wants_cuda, is_full=True):
    """The blocks that need nvcc, or the others, as written, or else without optimisation."""
    def do(case):
        if wants_cuda and shutil.which("nvcc") is None:
            raise Skip("no nvcc on the PATH (NVIDIA's CUDA toolkit)")
        with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as f:
            blocks = re.findall(r"^```[a-z]*\n(.*?)^```", f.read(), re.M | re.S)
        lines = [line for block in blocks if ("nvcc" in block) == wants_cuda for line in build_lines(block)]
        if not lines:
            raise Bad("README.md has no such build line")
        folder = scratch_copy(case)
        for line in lines:
            shell(case, folder, line if is_full else unoptimised(line), 3600)
        if wants_cuda and run_code(folder, "./digits --backend CPU --epochs 1") != 0:
            raise Bad("what README's lines build does not run on the CPU")
    return do


def manual_cuda_lines(case):
    """The manual's lines for CUDA, with the program at its top."""
    nvcc = find_nvcc()
    with open(os.path.join(ROOT, "gcuda.h"), encoding="utf-8") as f:
        manual = f.read().split("*/")[0]
    part = re.search(r"^    With CUDA.*?^QUICK START", manual, re.M | re.S)
    lines = build_lines(part.group()) if part else []
    program = re.search(r"^QUICK START\n((?:    .*\n|\n)+)", manual, re.M)
    if len(lines) != 2 or program is None:
        raise Bad("the manual has no nvcc line followed by a cc line")
    folder = scratch_copy(case)
    with open(os.path.join(folder, "my.c"), "w", encoding="utf-8") as f:
        f.write(program.group(1))
    # the kernels as README's case compiles them are enough once: here they are for one architecture, unoptimised
    shell(case, folder, lines[0].replace("nvcc -O3", nvcc + " -O0").replace("-arch=native", "-arch=sm_90"), 3600)
    shell(case, folder, lines[1] + " -I. -o my && ./my")


def manual_quick_start(case):
    """The program at the top of gcuda.h, built by the line above it, without optimisation."""
    with open(os.path.join(ROOT, "gcuda.h"), encoding="utf-8") as f:
        manual = f.read().split("*/")[0]
    program = re.search(r"^QUICK START\n((?:    .*\n|\n)+)", manual, re.M)
    line = re.search(r"^\s+(cc .*?\.c.*?)(?:\s{2,}.*)?$", manual, re.M)
    if program is None or line is None:
        raise Bad("the manual has no QUICK START or no build line")
    folder = scratch_copy(case)
    with open(os.path.join(folder, "my.c"), "w", encoding="utf-8") as f:
        f.write(program.group(1))
    shell(case, folder, unoptimised(re.sub(r"\S+\.c\b", "my.c", line.group(1))) + " -I. -o my && ./my")


def cases():
    found = []

    def add(name, level, do):
        found.append(Case(name, level, do))
    c, cpp = ["c99", "c11", "c17"], ["c++11", "c++20"]
    for std in c + cpp:
        for cc in (["gcc", "clang"] if std in c else ["g++", "clang++"]):
            add(f"declarations {cc} {std}", "user" if "clang" not in cc else "ci", declarations(cc, std))
    # the optimizer sees more (maybe-uninitialized, array-bounds): below full run.py looks at what gcc -O2 says when it builds the tests
    for cc, std in [("gcc", "c99"), ("g++", "c++11"), ("clang", "c99"), ("clang++", "c++20"),
                    ("gcc", "c17"), ("g++", "c++20"), ("clang", "c17"), ("clang++", "c++11")]:
        add(f"implementation {cc} {std} -O2", "full", implementation(cc, std, "-O2"))
    for cc, std in [("clang", "c99"), ("clang++", "c++20")]: # clang's warnings are those of its front end
        add(f"implementation {cc} {std} -O0", "ci", implementation(cc, std, "-O0"))
    for std in c + cpp:
        for cc in (["gcc", "clang"] if std in c else ["g++", "clang++"]):
            # every compiler's other standard is compiled above or below with the same warnings, and what both accept c11 does
            is_ci = (cc, std) in [("gcc", "c17"), ("clang", "c17"), ("g++", "c++20"), ("clang++", "c++11")]
            add(f"implementation {cc} {std} front end", "ci" if is_ci else "full", implementation(cc, std, "-fsyntax-only"))
    add("implementation gcc gnu17 -O3 -march=native", "full", with_flags("gcc", "gnu17", "impl.c", ["-O3", "-march=native"]))
    add("implementation gcc c99 -O0", "full", implementation("gcc", "c99", "-O0"))
    # a plain -O2, as a user builds: gcc may contract then; and all that it makes of plain loops for the machine that runs this
    add("same bits on other machines gcc", "ci",
        same_bits(("gcc", "gnu17", ["-O2"]), ("gcc", "gnu17", ["-O2", "-march=native", "-DGCUDA_NO_SIMD"])))
    add("same bits on other machines, all compilers", "full", same_bits(
        ("gcc", "gnu17", ["-O2"]), ("gcc", "gnu17", ["-O2", "-march=native"]), ("g++", "gnu++17", ["-O3", "-march=native"]),
        ("clang", "c17", ["-O2", "-march=native"]), ("clang++", "c++20", ["-O2"]), ("gcc", "c99", ["-O1", "-DGCUDA_NO_SIMD"])))
    add("state of contraction clang c99", "ci", contraction)
    add("two units gcc c99", "user", two_units("gcc", "c99"))
    add("two units g++ c++11", "full", two_units("g++", "c++11"))
    add("implementation in C++, users in C", "user", mixed_languages)
    # strict C99 hides the clock when another system header came first: the manual says the implementation comes first
    add("declarations first gcc gnu99", "full", with_flags("gcc", "gnu99", "late.c", ["-O0"]))
    add("declarations first gcc c11", "ci", with_flags("gcc", "c11", "late.c", ["-O0"]))
    add("declarations first g++ c++11", "full", with_flags("g++", "c++11", "late.c", ["-O0"]))
    only_copy = {"a": "copy_a", "b": "copy_b"}
    add("two GCUDA_STATIC copies gcc", "ci", copies("gcc", "c99", ["-DGCUDA_STATIC"], ["-DGCUDA_STATIC"], only_copy))
    add("two GCUDA_STATIC copies clang++", "full", copies("clang++", "c++11", ["-DGCUDA_STATIC"], ["-DGCUDA_STATIC"], only_copy))
    prefixed = {"a": r"copy_a|^one_", "b": r"copy_b|^two_"}
    add("two prefixed copies gcc", "user", copies("gcc", "c99", ["-DGCUDA_PREFIX=one_"], ["-DGCUDA_PREFIX=two_"], prefixed))
    add("two prefixed copies g++", "full", copies("g++", "c++11", ["-DGCUDA_PREFIX=one_"], ["-DGCUDA_PREFIX=two_"], prefixed))
    add("GCUDA_HEADER of a renamed copy gcc", "user", renamed_header)
    for macro in ("GCUDA_NO_CUDA", "GCUDA_NO_CUBLAS", "GCUDA_NO_SIMD", "GCUDA_NO_GGUF"):
        # the second of the builds with the same bits is without SIMD as well
        level = "full" if macro in ("GCUDA_NO_CUBLAS", "GCUDA_NO_SIMD") else "ci"
        add(f"{macro} gcc", level, with_flags("gcc", "c99", "impl.c", ["-O0", f"-D{macro}"]))
    # without threads it must link without a thread library
    add("GCUDA_NO_THREADS gcc", "user", with_flags("gcc", "c99", "impl.c", ["-O0", "-DGCUDA_NO_THREADS"], ["-lm", "-ldl"]))
    add("GCUDA_NO_THREADS clang++", "full", with_flags("clang++", "c++20", "impl.c", ["-O1", "-DGCUDA_NO_THREADS"], ["-lm", "-ldl"]))
    add("GCUDA_MALLOC and GCUDA_FREE gcc", "user", with_flags("gcc", "c99", "hooks.c", ["-O0"]))
    add("GCUDA_MALLOC and GCUDA_FREE g++", "full", with_flags("g++", "c++11", "hooks.c", ["-O0"]))
    add("GCUDA_API gcc", "ci", shared_library)
    add("GCUDA_ASSERT gcc", "ci", with_flags("gcc", "c99", "assert.c", ["-O0"]))
    add("mingw gcc c99", "full", cross("x86_64-w64-mingw32-gcc", "c99", ["-O2"], ["-static", "-lm"], ["wine"], "program.exe"))
    add("mingw g++ c++11", "full", cross("x86_64-w64-mingw32-g++", "c++11", ["-O1"], ["-static", "-lm"], ["wine"], "program.exe"))
    add("mingw GCUDA_NO_THREADS", "full",
        cross("x86_64-w64-mingw32-gcc", "c99", ["-O1", "-DGCUDA_NO_THREADS"], ["-static", "-lm"], ["wine"], "program.exe"))
    add("aarch64 gcc c99", "full",
        cross("aarch64-linux-gnu-gcc", "c99", ["-O2", "-DGCUDA_NO_CUDA"], ["-static", "-pthread", "-lm"], ["qemu-aarch64"]))
    add("README's build lines, unoptimised", "user", readme_lines(False, is_full=False))
    add("README's build lines", "full", readme_lines(False))
    add("README's CUDA build lines", "full", readme_lines(True))
    add("the manual's CUDA build lines", "full", manual_cuda_lines)
    add("the manual's quick start", "user", manual_quick_start)
    for name in sorted(os.listdir(os.path.join(ROOT, "examples"))) if os.path.isdir(os.path.join(ROOT, "examples")) else []:
        if name.endswith(".c"):
            # level full builds and runs them optimised, by make examples
            level = "full" if name in ("embed.c", "upscale.c") else "user"  # run.py builds these at ci, for tests/examples.py
            add(f"example {name}", level, example(f"examples/{name}"))
    for cc, std in [("gcc", "c99"), ("g++", "c++11"), ("clang", "c17"), ("clang++", "c++20")]: # the first at ci by tests/cuda.py
        add(f"GCUDA_CUDA {cc} {std}", "full", with_cuda(cc, std))
    for flags in (["GCUDA_NO_VMM"], ["GCUDA_NO_CUBLAS"], ["GCUDA_NO_VMM", "GCUDA_NO_CUBLAS", "GCUDA_NO_THREADS"]):
        add("GCUDA_CUDA and " + " ".join(flags) + " front end", "user", cuda_front_end([f"-D{f}" for f in flags]))
    add("gcuda_kernels.cu warns of nvcc 13.2.0 and 13.2.1", "user", warns_of_bad_nvcc)
    add("a unary kind that is only in the list", "ci", forgotten_kind("unary", "TRUNC", "gcudai_map_FAKE", "d_unary_FAKE"))
    add("a gate that is only in the list", "ci", forgotten_kind("glu", "GEGLU_QUICK", "gcudai_glu_FAKE", "d_glus"))
    add("gcuda_kernels.cu prefixed", "ci", kernel_front_end(["-DGCUDA_PREFIX=one_"]))
    add("gcuda_kernels.cu prefixed, symbols", "ci", prefixed_kernels(3))
    no_types = [f"-DGCUDA_KERNEL_NO_{t}" for t in ("BF16", "MXFP4", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "K_QUANTS", "IQ_QUANTS",
                                                       "ATTENTION", "CONV", "RECURRENT")]
    # each of them and all, for g++ and for the implementation as well, are switches.py's
    # the parts, for one and for all architectures, are tests/cuda.py's
    add("gcuda_kernels.cu nvcc, without all that can be left out", "full", kernel_unit(["-O1", "-arch=sm_90", *no_types]))
    return found


def run(case):
    os.makedirs(case.folder, exist_ok=True)
    try:
        case.do(case)
        return "ok", ""
    except Skip as e:
        return "skip", str(e)
    except Bad as e:
        return "FAILED", str(e)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--level", choices=LEVELS, default="full")
    parser.add_argument("--only", default="")
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    chosen = [c for c in cases() if LEVELS.index(c.level) <= LEVELS.index(args.level) and args.only in c.name]
    if args.list:
        print("\n".join(f"{c.level:5} {c.name}" for c in chosen))
        return 0
    n = {"ok": 0, "FAILED": 0, "skip": 0}
    with concurrent.futures.ThreadPoolExecutor(min(os.cpu_count() or 1, 4)) as pool:
        for case, (state, text) in zip(chosen, pool.map(run, chosen)):
            n[state] += 1
            print(f"{state:6}  {case.name}" + (f": {text}" if text else ""), flush=True)
    print(f"{n['ok']} passed, {n['FAILED']} failed, {n['skip']} skipped")
    return 1 if n["FAILED"] else 0


if __name__ == "__main__":
    sys.exit(main())
