#!/usr/bin/env python3
"""The CUDA build on a machine with nvcc, GPU or not. Last line: N passed, N failed, N skipped.

    cuda.py [--all]      --all: optimised, and the kernels for all other architectures and PTX, besides

The kernels and programs for 90a compile without a warning, and one part for 7.5. Without --all those for 90a compile with as
little optimisation as nvcc and cc have, in build/quick/: it takes half the time, and what runs here runs on the CPU. Lines with
`warning` or `remark` count, and with --all the notes of ptxas on wgmma and setmaxnreg, `(C7...)`: serialized products, injected
waits and fences, ignored register counts. They are read from what nvcc said when an object was made (OBJECT.log).
What is built needs neither libcuda nor libcublas, starts where no NVIDIA library exists (a root folder with nothing in it but the
C libraries), and then says that there is no such device, and uses the CPU when asked to. The kernels' objects go into a shared
library.
"""
import concurrent.futures
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

import limits

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
IS_ALL = "--all" in sys.argv
FOLDER = "build" if IS_ALL else "build/quick"
DIGITS = os.path.join(ROOT, FOLDER, "cuda", "digits")
OTHER_ARCHS = ["75", "80", "86", "89", "90", "100", "120"]
# Notes of ptxas that are known: number, regular expression of the function, why it stays. One that no build says any more fails, too.
KNOWN_NOTES = [
    ("C7519", r"k_conv_2d_wg_rows", "registers are operands of wgmma: ptxas adds a fence, no wait"),
    ("C7519", r"k_attn_wg", "likewise"),
    ("C7519", r"k_attn_latent", "likewise"),
]
counts = {"ok": 0, "FAILED": 0, "skip": 0}


def run(command, timeout=36000, cwd=ROOT): # seconds of processor time
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        code, _, why = limits.run(command, timeout, log, cwd=cwd, stdin=subprocess.DEVNULL)
        log.seek(0)
        return (124, log.read() + f"\n{why}") if why else (code, log.read())


def result(name, ok, text=""):
    state = ok if isinstance(ok, str) else "ok" if ok else "FAILED"
    counts[state] += 1
    print(f"{state:6}  {name}" + (f": {text}" if text and state != "ok" else ""), flush=True)
    return state == "ok"


def build(name, *command):
    code, out = run(["make", "--no-print-directory", *command])
    noise = [line for line in out.splitlines() if re.search(r"\bwarning\b|\bremark\b", line) and "jobserver" not in line]
    return result(name, code == 0 and not noise, "\n".join(noise[:20]) if code == 0 else out[-3000:])


def notes_of(folder):
    """((number, function, line) of each note of ptxas on the kernels of a folder, objects without a log)."""
    found, silent = [], []
    for path in sorted(glob.glob(os.path.join(ROOT, folder, "cuda", "gcuda_kernels-*.o"))):
        if not os.path.exists(path + ".log"):
            silent.append(f"{os.path.relpath(path, ROOT)} has no log: remove it and build again")
            continue
        with open(path + ".log", encoding="utf-8", errors="replace") as f:
            for line in f:
                note = re.search(r"\((C7\d{3})\)", line)
                function = re.search(r"'([^']*)'", line)
                if note:
                    found.append((note.group(1), function.group(1) if function else "", line.strip()[:300]))
    return found, silent


def has_only_known_notes(folder, is_complete):
    """is_complete: every known note has to be there."""
    found, bad = notes_of(folder)
    used = set()
    for number, function, line in found:
        known = [k for k in KNOWN_NOTES if k[0] == number and re.search(k[1], function)]
        used.update(known)
        bad += [] if known else [line]
    bad += [f"{k[0]} {k[1]}: not said any more, remove it from KNOWN_NOTES" for k in KNOWN_NOTES if is_complete and k not in used]
    result(f"{folder}: ptxas has no note on wgmma or setmaxnreg, but {len(KNOWN_NOTES)} known ones", not bad, "\n".join(bad[:20]))


def libraries(program):
    """Paths of the shared libraries that a program loads, the loader among them."""
    return re.findall(r"(/\S+) \(0x", run(["ldd", program])[1])


def needs_no_nvidia_library():
    for name in ("digits", "test-ops", "bench-gpu"):
        found = libraries(os.path.join(ROOT, FOLDER, "cuda", name))
        bad = [path for path in found if re.search(r"libcuda|libcublas|libnv", path)]
        result(f"{name}: ldd names neither libcuda nor libcublas", bool(found) and not bad, " ".join(bad) or "ldd: nothing")


def goes_into_a_shared_library():
    """The kernels' objects, linked into a library that a program loads."""
    program = os.path.join(ROOT, FOLDER, "cuda", "plugin")
    if build("kernels and implementation in a shared library", f"{FOLDER}/cuda/plugin", "ARCHS=90a", *flags()):
        code, out = run([program, program + ".so", "CPU"], 120)
        result("shared library: the CPU computes", code == 0, out[-300:])
        code, out = run([program, program + ".so", "CUDA0"], 120)
        result("shared library: so does a device, or it is said that there is none", code == 0 or "no device 'CUDA0'" in out, out[-300:])


def bare_root(folder):
    """A root folder in which only the program and the C libraries are, and a place for temporary files."""
    os.makedirs(folder + "/tmp")
    for path in [DIGITS, *libraries(DIGITS)]:
        target = folder + (("/" + os.path.basename(path)) if path == DIGITS else path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copy(path, target)


def behaves_without_a_device(name, *prefix_and_program):
    code, out = run([*prefix_and_program, "--backend", "CUDA0"], 120)
    result(f"{name}: --backend CUDA0 fails with a message", code == 1 and "no device 'CUDA0'" in out, f"exit code {code}: {out[-300:]}")
    for options in (["--backend", "CPU"], []):
        code, out = run([*prefix_and_program, "--epochs", "2", *options], 120)
        ok = code == 0 and "on CPU" in out and "of the test digits are recognised" in out
        result(f"{name}: {' '.join(options) or 'no option'} takes the CPU", ok, f"exit code {code}: {out[-300:]}")


def starts_anywhere():
    has_device = run([DIGITS, "--backend", "CUDA0", "--epochs", "1"], 300)[0] == 0
    if has_device:
        result("without a device", "skip", "this machine has one")
    else:
        behaves_without_a_device("here", DIGITS)
    with tempfile.TemporaryDirectory() as folder:
        bare_root(folder)
        enter = ["chroot", folder] if os.geteuid() == 0 else ["unshare", "-r", "chroot", folder]
        if run([*enter, "/digits", "--help"])[0] != 0:
            result("in a bare root folder", "skip", "neither root nor user namespaces here")
        else:
            behaves_without_a_device("in a bare root folder", *enter, "/digits")


def flags():
    """Variables of make. Which nvcc is asked: the one that the Makefile takes."""
    if IS_ALL:
        return [f"B={FOLDER}"]
    nvcc = "/usr/local/cuda/bin/nvcc" if os.path.exists("/usr/local/cuda/bin/nvcc") else "nvcc"
    quick = "--Ofast-compile=max" if "--Ofast-compile" in run([nvcc, "--help"])[1] else "-Xptxas -O0"
    return [f"B={FOLDER}", f"NVCC_FLAGS={quick}", "CFLAGS=-O0", "EXAMPLE_CFLAGS=-O0"]


def main():
    if build("kernels and programs for 90a", "cuda-programs", "ARCHS=90a", *flags()):
        if IS_ALL:
            has_only_known_notes(FOLDER, True)
        needs_no_nvidia_library()
        starts_anywhere()
        goes_into_a_shared_library()
        code, out = run([os.path.join(ROOT, FOLDER, "cuda", "bench-gpu"), "--check"])
        result("bench-gpu: every row can be built", code == 0, out[-500:])
    # most of what depends on the architecture stands in this part; code for BF16, say, compiles for 90a and not for 7.5
    build("part 13 for 7.5", "build/oldest/cuda/gcuda_kernels-13.o", "ARCHS=75", "B=build/oldest", "NVCC_FLAGS=-O1")
    if IS_ALL:
        build("part 3 for all architectures and PTX", "build/all-archs/cuda/gcuda_kernels-3.o", "ARCHS=all", "B=build/all-archs")
        with concurrent.futures.ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 12)) as pool: # each compiles its parts in parallel
            done = list(pool.map(lambda a: build(f"kernels for {a}", "cuda", f"ARCHS={a}", f"B=build/arch-{a}"), OTHER_ARCHS))
        for arch, is_built in zip(OTHER_ARCHS, done):
            if is_built:
                has_only_known_notes(f"build/arch-{arch}", False)
    print(f"{counts['ok']} passed, {counts['FAILED']} failed, {counts['skip']} skipped")
    return 1 if counts["FAILED"] else 0


if __name__ == "__main__":
    sys.exit(main())
