#!/usr/bin/env python3
"""Builds and runs everything that belongs to a level, two at a time, and adds up the closing lines.

    python3 tests/run.py [--level user|ci|full] [--only TEXT] [--list] [--jobs N]

Called by `make test LEVEL=...`. A job is one command. A program's last line `N passed, N failed[, N skipped]` is counted;
a command without one counts as one test. A crash, a timeout, a failed build, a warning of gcc in a build of the tests or a missing
closing line is a failure. Limits are of processor time, and of ten times as much by the clock (limits.py): a busy machine is no
failure. The last line is the sum; the exit code is 0 only if nothing failed. What each job printed stays in build/log/. On a machine
with many processors `make test LEVEL=full ARGS="--jobs 24"` also runs programs of the simulated device in parallel and compiles
several architectures at a time.
"""
import argparse
import concurrent.futures
import glob
import os
import re
import shutil
import sys
import time

import limits

LEVELS = ["user", "ci", "full"]
NEED_A_MODEL = ("embed", "upscale")  # examples
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CLOSING = re.compile(r"^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$")
WARNING = re.compile(r"^[^\s:]+:\d+:\d+: warning: ", re.M)
MAKE = ["make", "-s", "--no-print-directory"]
# what takes minutes and waits for no other job begins first, in this order, so that short ones are left for the end
LONGEST = ("CUDA build", "simulated CUDA device: asan", "compile matrix", "language models", "switches of the kernels", "asan: test-ops",
           "simulated CUDA device", "gcc: test-ops")
QUICK = ("test-digits", "test-pool")  # with the implementation inside, which takes longer to optimise than they run
ASAN = "-O1 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined"


class Job:
    def __init__(self, name, command, level="user", timeout=600, counts=False, env=None, needs=None, after=None,
                 is_build=False, is_long=False):
        self.name, self.command, self.level, self.timeout = name, command, level, timeout # seconds of processor time
        self.counts = counts  # prints a closing line
        self.env = env or {}
        self.needs = needs or []  # (tool, Debian package): without them the job is skipped
        self.after = after  # a build job that must have succeeded
        self.is_build = is_build  # counts only when it fails
        self.is_long = is_long  # needs no build and is as long as all others together: begins first


def sources(pattern):
    return sorted(os.path.relpath(p, ROOT) for p in glob.glob(os.path.join(ROOT, pattern)))


def stem(path):
    return os.path.splitext(os.path.basename(path))[0]


def variant(jobs, name, level, make_args, prefix=None, only=None, needs=None, exe="", env=None, timeout=900, parts=None, extra=None):
    """The C tests once more, in a separate folder with other compilers or flags. parts: of a test, in how many one of them runs,
    another one each time. extra: arguments of make for a test."""
    folder = "build" if name == "gcc" else f"build/{name}"
    tests = [t for t in map(stem, sources("tests/test-*.c")) if only is None or t in only]
    for t in tests:
        program = f"{folder}/{t}{exe}"
        build = Job(f"{name}: build {t}", [*MAKE, f"B={folder}", f"EXE={exe}", *make_args, *(extra or {}).get(t, []), program],
                    level, 1800, needs=needs, is_build=True)
        jobs.append(build)
        n = (parts or {}).get(t, 1)
        part = ["--part", f"{int(time.time()) % n}/{n}"] if n > 1 else []
        jobs.append(Job(" ".join([f"{name}: {t}", *part]), [*(prefix or []), program, *part], level, timeout, True, env, needs, build))


def plan(level, n_jobs=2):
    jobs = []
    slow = {"user": 540, "ci": 1200, "full": 3600}[level]
    env = {"GCUDA_TEST_FULL": "1"} if level == "full" else {}
    variant(jobs, "gcc", "user", [], env=env, timeout=slow, extra=None if level == "full" else {t: ["CFLAGS=-O0 -g"] for t in QUICK})

    library = Job("gcc: build libgcuda.so", [*MAKE, "build/libgcuda.so"], "user", 1800, is_build=True)
    jobs.append(library)
    for script in sources("tests/oracle/*.py"):
        with open(os.path.join(ROOT, script), encoding="utf-8") as f:
            if "__main__" in f.read():  # the others are imported
                jobs.append(Job(f"oracle: {stem(script)}", [sys.executable, script, os.path.join(ROOT, "build/libgcuda.so")],
                                "user", slow, True, {"GCUDA_LIB": os.path.join(ROOT, "build/libgcuda.so")}, after=library))

    jobs.append(Job("compile matrix", [sys.executable, "tests/compile/matrix.py", "--level", level], "user",
                    10800 if level == "full" else 1800, True))
    jobs.append(Job("limits", [sys.executable, "tests/limits.py"], "ci", 60, True))
    # alone a sixth of them at level ci, another one each time
    some = ["--sixth", "--seed", str(int(time.time()) % 1000000 + 1)] if level == "ci" else []
    jobs.append(Job(" ".join(["switches of the kernels", *some[1:]]), [sys.executable, "tests/compile/switches.py", *some], "ci", 3600, True))
    jobs.append(Job("lint", [sys.executable, "tests/tools/lint.py"], "user", 600, True))
    jobs.append(Job("places of a new operation, activation, type and path", [sys.executable, "tests/tools/places.py"], "full", 1800, True))
    # below level full the compile matrix builds and runs the others, by their own first lines but without optimisation
    examples = Job("gcc: build examples", [*MAKE, "examples" if level == "full" else "build/digits"], "user", 600, is_build=True)
    jobs.append(examples)
    for source in sources("examples/*.c"):
        name = stem(source)
        if level != "full" and name != "digits":
            continue
        if name in NEED_A_MODEL:  # tests/examples.py runs them
            continue
        # the main job is promised in 20 s of two processors
        job = Job("make digits", [*MAKE, "digits"], "user", 40) if name == "digits" else Job(f"example: {name}", [f"build/{name}"], "user", 60)
        job.after = examples
        jobs.append(job)

    if os.path.exists(os.path.join(ROOT, "examples", "llm.h")):
        probe = Job("gcc: build llm-probe", [*MAKE, "build/llm-probe", "build/llm"], "ci", 600, is_build=True)
        jobs.append(probe)
        jobs.append(Job("language models", [sys.executable, "tests/llm/check.py", "--level", "full" if level == "full" else "ci"], "ci",
                        3600 if level == "full" else 900, True, after=probe))
        programs = Job("gcc: build embed and upscale", [*MAKE, "build/embed", "build/upscale"], "ci", 600, is_build=True)
        jobs.append(programs)
        jobs.append(Job("examples on real models", [sys.executable, "tests/examples.py"], "ci", 300, True, after=programs))
        jobs.append(Job("Unicode tables", [sys.executable, "tests/tools/unicode_tables.py", "--test"], "ci", 120, True))

    simulate = [sys.executable, "tests/sim/run.py", "--level", level]
    limit = {"user": 2400, "ci": 4800, "full": 100000}[level] # compiling is up to 1200 s of it; at level full half a day is spent
    if n_jobs > 4:
        jobs.append(Job("simulated CUDA device", [*simulate, "--jobs", str(n_jobs)], "user", limit, True, is_long=True))
    else:
        for group, lowest in (("plain", "user"), ("operations", "user"), ("asan", "ci"), ("tsan", "ci"), ("older", "ci"), ("switches", "ci")):
            jobs.append(Job(f"simulated CUDA device: {group}", [*simulate, "--group", group], lowest, limit, True, is_long=lowest == "user"))

    bench = Job("gcc: build bench", [*MAKE, "build/bench"], "full", 600, is_build=True)
    jobs.append(bench)
    jobs.append(Job("bench: it works", ["build/bench", "--quick", "--all"], "full", 120, after=bench)) # it is for calm machines to judge speed

    asan_env = {"ASAN_OPTIONS": "detect_leaks=1:allocator_may_return_null=1", "UBSAN_OPTIONS": "print_stacktrace=1"}
    nvcc = [] if os.path.exists("/usr/local/cuda/bin/nvcc") else [("nvcc", "nvidia-cuda-toolkit")]
    jobs.append(Job("CUDA build", [sys.executable, "tests/cuda.py", *(["--all"] if level == "full" else [])], "ci",
                    {"user": 0, "ci": 4800, "full": 100000}[level], True, needs=nvcc))

    clang = [("clang", "clang"), ("clang++", "clang")]
    variant(jobs, "asan", "ci", ["CC=gcc", f"CFLAGS={ASAN}"], env=asan_env, timeout=1500 if level == "ci" else 5400,
            parts={"test-ops": 4, "test-mulmat": 4} if level == "ci" else None,
            extra={t: [f"CFLAGS={ASAN} -O0"] for t in QUICK} if level == "ci" else None)

    variant(jobs, "clang", "full", ["CC=clang", "CFLAGS=-O2 -g"], needs=clang, timeout=3600)
    tsan = ["CC=clang", "CFLAGS=-O1 -g -fsanitize=thread"]
    threaded = ["test-pool", "test-core", "test-backend", "test-quants", "test-mulmat", "test-digits"]
    variant(jobs, "tsan", "full", tsan, only=threaded, needs=clang, timeout=1800)
    valgrind = ["valgrind", "--quiet", "--error-exitcode=9", "--leak-check=full",
                "--show-leak-kinds=definite", "--errors-for-leak-kinds=definite", "--num-callers=20"]  # backends kept for all tests are reachable
    # no SIMD: valgrind 3.19 does not know AVX-512
    variant(jobs, "valgrind", "full", ["CFLAGS=-O1 -g -DGCUDA_NO_SIMD"], prefix=valgrind, only=["test-pool", "test-core"],
            needs=[("valgrind", "valgrind")], timeout=1800)
    mingw = [("x86_64-w64-mingw32-gcc", "gcc-mingw-w64-x86-64"), ("wine", "wine64")]
    variant(jobs, "mingw", "full", ["CC=x86_64-w64-mingw32-gcc", "LIBS=-static -lm", "CFLAGS=-O2"], prefix=["wine"], exe=".exe",
            needs=mingw, env={"WINEDEBUG": "-all"}, timeout=3600)
    arm = [("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"), ("qemu-aarch64", "qemu-user")]
    variant(jobs, "aarch64", "full", ["CC=aarch64-linux-gnu-gcc", "LIBS=-static -pthread -lm", "CFLAGS=-O2 -DGCUDA_NO_CUDA"],
            prefix=["qemu-aarch64"], needs=arm, env={"GCUDA_TEST_EMULATED": "1"}, timeout=5400)
    for source in sources("tests/fuzz/*.c"):
        program = f"build/fuzz/{stem(source)}"
        build = Job(f"fuzz: build {stem(source)}", [*MAKE, program], "full", 1800, needs=clang, is_build=True)
        jobs.append(build)
        seeds = os.path.join("tests/fuzz", stem(source).replace("fuzz_", "")) # what the fuzzer finds goes to build/, not there
        corpus = f"build/fuzz/corpus-{stem(source)}"
        os.makedirs(os.path.join(ROOT, corpus), exist_ok=True)
        folders = [corpus, seeds] if os.path.isdir(os.path.join(ROOT, seeds)) else []
        jobs.append(Job(f"fuzz: {stem(source)}", [program, "-max_total_time=120", "-timeout=20", "-rss_limit_mb=2048", "-seed=1", *folders],
                        "full", 300, env={"ASAN_OPTIONS": "allocator_may_return_null=1"}, after=build, needs=clang))
    jobs.append(Job("clang-tidy", [*MAKE, "tidy"], "full", 3600,
                    needs=[("clang-tidy", "clang-tidy")]))
    order = LEVELS.index(level)
    return [j for j in jobs if LEVELS.index(j.level) <= order]


def run_command(job, log_path):
    """(exit code or None for a timeout, output and then why it was ended, seconds of processor time)"""
    env = dict(os.environ, **job.env)
    for name in ("ARGS", "MAKEFLAGS", "MAKEOVERRIDES"):  # those of the make that runs this are no job's
        env.pop(name, None)
    with open(log_path, "w+b") as log:
        with open(os.devnull, "rb") as nothing:
            code, used, why = limits.run(job.command, job.timeout, log, cwd=ROOT, env=env, stdin=nothing, start_new_session=True)
        log.seek(0)
        return code, log.read().decode("utf-8", "replace") + (f"\n{why}" if why else ""), used


def count(job, code, output):
    """(passed, failed, skipped, why it failed or None)"""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    closing = CLOSING.match(lines[-1]) if lines else None
    if code is None:
        return 0, 1, 0, lines[-1]
    if not job.counts:
        return (1, 0, 0, None) if code == 0 else (0, 1, 0, f"exit code {code}")
    if closing is None:
        return 0, 1, 0, f"no closing line, exit code {code}" if code >= 0 else f"ended by signal {-code}"
    passed, failed, skipped = (int(n or 0) for n in closing.groups())
    if code != 0 and failed == 0:  # a leak found at exit, an error in a destructor
        return passed, 1, skipped, f"exit code {code} after a good closing line"
    if passed + failed + skipped == 0:
        return 0, 1, 0, "ran no test"
    return passed, failed, skipped, f"{failed} failed" if failed else None


class Runner:
    def __init__(self, jobs):
        self.jobs, self.total, self.broken, self.processor = jobs, [0, 0, 0], set(), {}
        self.log_dir = os.path.join(ROOT, "build", "log")
        os.makedirs(self.log_dir, exist_ok=True)

    def one(self, job):
        missing = [f"{tool} (apt-get install {package})" for tool, package in job.needs if shutil.which(tool) is None]
        if missing:
            return 0, 0, 0 if job.is_build else 1, "skipped, no " + ", ".join(missing), "", 0.0
        start = time.time()
        log_path = os.path.join(self.log_dir, re.sub(r"[^A-Za-z0-9.+-]+", "_", job.name) + ".txt")
        code, output, self.processor[job.name] = run_command(job, log_path)
        passed, failed, skipped, why = count(job, code, output)
        if job.is_build:
            if not failed and job.name.startswith("gcc: ") and WARNING.search(output): # of the optimiser: see tests/compile/matrix.py
                failed, why = 1, "the compiler warns"
            if failed:
                self.broken.add(job.name)
            passed = 0  # building is no test, failing to build is
        return passed, failed, skipped, why, output, time.time() - start

    def report(self, job, result):
        passed, failed, skipped, why, output, seconds = result
        for i, n in enumerate((passed, failed, skipped)):
            self.total[i] += n
        if job.is_build and not failed:
            return
        state = "FAILED" if failed else "skip" if skipped and not passed else "ok"
        numbers = f"{passed} passed" + (f", {failed} failed" if failed else "") + (f", {skipped} skipped" if skipped else "")
        print(f"{state:6}  {job.name:32} {numbers:34} {seconds:6.1f} s, processor {self.processor.get(job.name, 0):6.1f} s" +
              (f"  {why}" if why else ""), flush=True)
        if failed:
            lines = output.splitlines()
            bad = [line for line in lines[:-25] if re.search(r"FAIL|error|ERROR|warning:|signal", line)][:15]
            shown = bad + (["..."] if len(lines) > 25 else []) + lines[-25:]
            print("".join(f"        | {line[:300]}\n" for line in shown), flush=True)

    def run(self, n_workers):
        """Beside what is long, build jobs run first in their order (make needs the shared object once), then the others as workers
        come free, the longest first."""
        builds = [j for j in self.jobs if j.is_build]
        others = sorted((j for j in self.jobs if not j.is_build),
                        key=lambda j: next((i for i, name in enumerate(LONGEST) if j.name.startswith(name)), len(LONGEST)))
        chains = {}  # one chain per folder: two makes in one folder would both build the shared object
        for job in builds:
            chains.setdefault(job.name.split(":")[0], []).append(job)
        done = {}
        with concurrent.futures.ThreadPoolExecutor(n_workers) as pool:
            def chain(jobs):
                for job in jobs:
                    self.report(job, self.one(job))
            futures = {pool.submit(self.one, job): job for job in others if job.is_long}
            for key, jobs in chains.items():
                done[key] = pool.submit(chain, jobs)
            def after(job):
                if job.after is not None:
                    done[job.after.name.split(":")[0]].result()
                    if job.after.name in self.broken:
                        return 0, 0, 0, None, "", 0.0  # the build has been counted
                return self.one(job)
            futures.update({pool.submit(after, job): job for job in others if not job.is_long})
            for future in concurrent.futures.as_completed(futures):
                job = futures[future]
                if job.after is None or job.after.name not in self.broken:
                    self.report(job, future.result())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--level", choices=LEVELS, default="user")
    parser.add_argument("--only", help="jobs whose name contains this text (and what they need)")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--jobs", type=int, default=min(os.cpu_count() or 1, 4))
    args = parser.parse_args()
    jobs = plan(args.level, args.jobs)
    if args.only:
        chosen = [j for j in jobs if args.only in j.name and not j.is_build]
        jobs = [j for j in jobs if j in chosen or any(c.after is j for c in chosen)]
    if args.list:
        print("\n".join(j.name for j in jobs if not j.is_build))
        return 0
    runner = Runner(jobs)
    start = time.time()
    runner.run(args.jobs)
    passed, failed, skipped = runner.total
    built = sum(seconds for name, seconds in runner.processor.items() if any(j.is_build and j.name == name for j in jobs))
    print(f"level {args.level}, {time.time() - start:.0f} s, of processors {sum(runner.processor.values()):.0f} s, of which C programs are built in "
          f"{built:.0f} s, logs in build/log")
    summary = f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else "")
    with open(os.path.join(runner.log_dir, "summary.txt"), "w", encoding="utf-8") as f:
        f.write(summary + "\n")
    print(summary)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
