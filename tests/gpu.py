#!/usr/bin/env python3
"""Tests on this machine's GPU: `make test-gpu`. Builds, runs the operation tests against their float64 references on the
device, trains the digits there, runs compute-sanitizer, and writes what came out to tests/hardware/<gpu>.txt.

    gpu.py [--quick]     --quick leaves compute-sanitizer out
    gpu.py --check       only says which records are not of the sources in the tree; needs no GPU
"""
import datetime
import hashlib
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SOURCES = ["gcuda.h", "gcuda_kernels.cu", "examples/digits.c", "tests/test-ops.c", "tests/test-ops.h"]
SANITIZERS = ["memcheck", "racecheck", "initcheck", "synccheck"]


def run(command, timeout=480, **env):
    try:
        done = subprocess.run(command, cwd=ROOT, env={**os.environ, **env}, timeout=timeout, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return done.returncode, done.stdout
    except FileNotFoundError:
        return 127, f"{command[0]}: not installed"
    except subprocess.TimeoutExpired as e:
        return 124, (e.stdout or b"").decode("utf-8", "replace") + f"\nlonger than {timeout} s"


def digest():
    """One number for the sources that were tested, to compare with those in the tree."""
    h = hashlib.sha256()
    for name in SOURCES:
        with open(os.path.join(ROOT, name), "rb") as f:
            h.update(name.encode() + b"\0" + hashlib.sha256(f.read()).digest())
    return h.hexdigest()[:16]


class Record:
    def __init__(self):
        self.lines, self.passed, self.failed, self.skipped = [], 0, 0, 0

    def say(self, name, text):
        self.lines.append(f"{name:<22} {text}")
        print(self.lines[-1], flush=True)

    def result(self, name, ok, text):
        self.passed += ok
        self.failed += not ok
        self.say(name, ("ok      " if ok else "FAILED  ") + text)


def operations(record):
    code, out = run(["build/cuda/test-ops"], GCUDA_TEST_BACKEND="CUDA0")
    last = out.strip().splitlines()[-1] if out.strip() else "no output"
    counts = re.match(r"(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$", last)
    record.result("operations", code == 0 and counts is not None and int(counts[1]) > 0, last + " (skipped: no kernel yet)")
    for line in [l for l in out.splitlines() if "FAILED" in l][:20]:
        print("    " + line)


def digits(record):
    code, out = run(["build/cuda/digits", "--backend", "CUDA0"])
    found = re.findall(r".* % of the test digits are recognised.*", out)
    record.result("digits on CUDA0", code == 0 and len(found) == 1, found[0] if found else out[-300:])


def sanitizers(record):
    for tool in SANITIZERS:
        checked = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9"]
        code, out = run(checked + ["build/cuda/digits", "--backend", "CUDA0", "--epochs", "1"], timeout=240)
        code_ops, out_ops = run(checked + ["build/cuda/test-ops", "--filter", "/ne=257,3"], timeout=240, GCUDA_TEST_BACKEND="CUDA0")
        if "Device not supported" in out or code == 127:
            record.skipped += 1
            record.say(tool, "skipped: compute-sanitizer cannot run on this machine")
            continue
        summary = [l.strip("= ") for l in (out + out_ops).splitlines() if "SUMMARY" in l]
        record.result(tool, code == 0 and code_ops == 0 and len(summary) == 2, "; ".join(summary) or (out + out_ops)[-200:])


def libraries(record):
    code, out = run(["ldd", "build/cuda/digits"])
    record.result("libraries", code == 0 and "libcuda" not in out and "libcublas" not in out, "ldd names neither libcuda nor libcublas")


def check():
    folder = os.path.join(ROOT, "tests", "hardware")
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        with open(os.path.join(folder, name), encoding="utf-8") as f:
            tested = re.search(r"^digest of sources +(\S+)", f.read(), re.M)
        if tested is None or tested[1] != digest():
            print(f"note: tests/hardware/{name} is of other sources than these; `make test-gpu` on such a machine renews it")
    return 0


def main():
    if "--check" in sys.argv:
        return check()
    code, gpu = run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"])
    if code != 0:
        print("test-gpu: no GPU here (nvidia-smi does not answer)")
        print("0 passed, 1 failed")
        return 1
    name, driver = [part.strip() for part in gpu.splitlines()[0].split(",")]
    record = Record()
    record.say("device", f"{name}, driver {driver}")
    record.say("toolkit", run(["nvcc", "--version"])[1].strip().splitlines()[-1])
    record.say("date", datetime.date.today().isoformat())
    record.say("digest of sources", digest())
    code, out = run(["make", "-s", "-j8", "cuda"], timeout=300)
    record.result("build", code == 0, "kernels, digits, test-ops" if code == 0 else out[-1500:])
    if code == 0:
        operations(record)
        digits(record)
        libraries(record)
        if "--quick" not in sys.argv:
            sanitizers(record)
    closing = f"{record.passed} passed, {record.failed} failed, {record.skipped} skipped"
    folder = os.path.join(ROOT, "tests", "hardware")
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") + ".txt")
    with open(path, "w", encoding="utf-8") as f:
        f.write("Written by `make test-gpu`.\n\n" + "\n".join(record.lines) + "\n\n" + closing + "\n")
    print("written to " + os.path.relpath(path, ROOT))
    print(closing)
    return 0 if record.failed == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
