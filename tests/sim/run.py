#!/usr/bin/env python3
"""The CUDA backend on the simulated device: builds and runs tests/sim/, and the digits. Called by `make test-sim`.

    run.py [--level user|ci|full]      user: without sanitizers. Last line: N passed, N failed
"""
import argparse
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CLOSING = re.compile(r"^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$")
ASAN = "-O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined"
PROGRAMS = sorted(f[:-len(end)] for f in os.listdir(os.path.join(ROOT, "tests/sim")) for end in (".c", ".cpp")
                  if f.startswith("test-") and f.endswith(end))

# Operations against their float64 references: test-ops --filter NAME, on the simulated device.
OPS = {
    "user": ["add/", "unary", "get_rows", "cross_entropy", "out_prod", "opt_step", "argmax", "count_equal"],
    "ci": ["add", "unary", "get_rows", "cross_entropy", "out_prod", "opt_step", "argmax", "count_equal", "cpy", "repeat", "sum",
           "mul_mat", "rms_norm", "soft_max", "scale", "fill", "mean", "silu"],
}
OPS_ASAN = ["get_rows", "cross_entropy", "out_prod", "opt_step", "argmax", "count_equal", "repeat", "sum"]


def run(command, timeout=900, **env):
    print("+ " + " ".join(command), flush=True)
    try:
        done = subprocess.run(command, cwd=ROOT, env={**os.environ, **env}, timeout=timeout, text=True, errors="replace",
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return done.returncode, done.stdout
    except subprocess.TimeoutExpired as e:
        return 124, (e.stdout or b"").decode("utf-8", "replace") + f"\nlonger than {timeout} s"


class Sum:
    def __init__(self):
        self.passed, self.failed = 0, 0

    def add(self, name, code, output, counts):
        lines = [line for line in output.splitlines() if line.strip()]
        closing = next((m for m in map(CLOSING.match, reversed(lines)) if m), None) if counts else None
        passed, failed = (int(closing[1]), int(closing[2])) if closing else (int(code == 0 and not counts), int(code != 0 or counts))
        if code != 0 and failed == 0:  # a leak found at exit
            failed = 1
        self.passed += passed
        self.failed += failed
        print(f"  {name}: {passed} passed, {failed} failed" + (f" (exit code {code})" if code else ""), flush=True)
        if failed:
            print("\n".join("  | " + line for line in lines[-40:]), flush=True)

    def build(self, targets, *variables):
        code, output = run(["make", "-s", "--no-print-directory", *variables, *targets], 1800)
        if code != 0:
            self.add("build", 1, output, False)
        return code == 0


def programs(total, folder, variables, env, ops):
    targets = [f"{folder}/{name}" for name in PROGRAMS]
    if total.build([*targets, f"{folder}/test-ops", f"{folder}/test-device"], *variables):
        for target in targets:
            total.add(target, *run([target], **env), True)
        for name in ops:
            command = [f"{folder}/test-ops", *(["--filter", name] if name else [])]
            total.add(" ".join(command), *run(command, 3000, GCUDA_TEST_BACKEND="CUDA0", **env), True)
        # a sample of all cases as CUDA graphs, and what also runs on hardware
        command = [f"{folder}/test-ops", "--part", "7/200"]
        total.add("captured: " + " ".join(command), *run(command, 3000, GCUDA_TEST_BACKEND="CUDA0", GCUDA_TEST_CAPTURE="1", **env), True)
        total.add(f"{folder}/test-device", *run([f"{folder}/test-device"], GCUDA_SIM_DEVICES="2", **env), True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--level", choices=["user", "ci", "full"], default="user")
    args = parser.parse_args()
    total = Sum()
    full = {"GCUDA_TEST_FULL": "1"} if args.level == "full" else {}
    everything = [""] if args.level == "full" else None
    programs(total, "build/sim", [], full, everything or OPS[args.level])
    if args.level != "user":
        env = {"ASAN_OPTIONS": "detect_leaks=1:allocator_may_return_null=1", "UBSAN_OPTIONS": "print_stacktrace=1", **full}
        programs(total, "build/sim-asan", ["SIM=build/sim-asan", f"SIM_CFLAGS={ASAN}"], env, everything or OPS_ASAN)
    if total.build(["build/sim/digits"]):
        code, output = run(["build/sim/digits", "--backend", "CUDA0", "--epochs", "8"])
        right = re.search(r"([\d.]+) % of the test digits are recognised", output)
        if code == 0 and (right is None or float(right[1]) < 90.0 or "on CUDA0" not in output):
            code, output = 1, output + "\nwanted: 90 % or more, on CUDA0"
        total.add("digits on CUDA0", code, output, False)
    print(f"{total.passed} passed, {total.failed} failed")
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
