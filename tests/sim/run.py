#!/usr/bin/env python3
"""The CUDA backend on the simulated device: builds and runs tests/sim/, the operations and the digits. `make test-sim`.

    run.py [--level user|ci|full] [--group NAME,...] [--only TEXT] [--jobs N] [--seed N] [--journal FILE]
                                                                                          last line: N passed, N failed

    user   without sanitizers, one seed, without what is slow (SLOW below, batches of products, cross_entropy), the simulator's own tests,
           and most programs of tests/hw
    ci     and: a third of all cases of the operations, and of batches of products once more as graphs and in slices; half of the cases
           of test-attention and test-products; small examples;
           small language models of every architecture against numpy; 20 orders of threads and streams over a sample of operations, 8 over
           networks;
           AddressSanitizer and UBSan on a sample of the simulator's tests, on graphs that come and go (test-lifetimes, 30 s) and on a
           twelfth of all cases, in another order of threads, where half of the kernels' parts has the former and a quarter both;
           ThreadSanitizer, but in kernels, on the tests with several threads;
           compiled for compute capability 7.5 or 8.0, half of products, convolutions and scans, and a fortieth of all cases. Which parts,
           order and capability comes from --seed, which is printed;
           without all that the switches GCUDA_KERNEL_NO_... leave out, kernels and implementation alike
    full   everything: all operations with GCUDA_TEST_FULL, 100 orders, the last of four devices; all programs and operations
           under AddressSanitizer, test-lifetimes for ten minutes, and compiled, besides 9.0, for the compute capabilities 6.1, 7.5 and
           8.0, with a third of all cases, all families that ask for the capability and 100 orders for each

The groups (GROUPS below) can run in parallel: each builds in separate folders. --jobs: programs at a time. On a machine with
many processors `--level full --jobs 16` runs the groups in parallel, and runs over all cases in parts.

Level full takes half a day of processor time. With --journal FILE each command that has passed is written there. A listed command of
the same sources is counted and not run again. So an interrupted run can be continued, and parts of it may run on several machines
whose journals are then joined (they are lines). Such runs need the same --seed.
"""
import argparse
import concurrent.futures
import fcntl
import glob
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "compile"))
sys.path.insert(0, os.path.join(ROOT, "tests"))
import example_oracles  # noqa: E402
import switches  # noqa: E402
import limits  # noqa: E402
CLOSING = re.compile(r"^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$")
# line tables only: the kernels are compiled in a third of the time, and reports still name lines
ASAN = "-O1 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined"
# of the kernels at level ci: compiled in a third of the time of the above, since a check is a call. null and object-size are left to
# level full: most of what they would find is an access that AddressSanitizer sees
ASAN_KERNELS = "-Og --param asan-instrumentation-with-call-threshold=0 -fno-sanitize=null,object-size"
TSAN = "-O1 -g1 -fsanitize=thread"
TSAN_QUICK = "-O0 -g1 -fsanitize=thread"  # at level ci: the programs run for seconds and took five times as long to compile
ASAN_ENV = {"ASAN_OPTIONS": "detect_leaks=1:allocator_may_return_null=1", "UBSAN_OPTIONS": "print_stacktrace=1"}
TSAN_ENV = {"TSAN_OPTIONS": "halt_on_error=1:report_signal_unsafe=0"}  # the simulator handles SIGSEGV
CAPABILITIES = [610, 750, 800]  # besides 9.0, for which everything else is compiled
CI_CAPABILITIES = [750, 800] # of which level ci takes one: products in tiles begin with 8.0
NOT_OLDER = ["test-strips", "test-sm90"] # the former stands in for kernels of 9.0a; elsewhere the same products go to the simulated cuBLAS (not over in 800 s)
PROGRAMS = sorted(f[:-len(end)] for f in os.listdir(os.path.join(ROOT, "tests/sim")) for end in (".c", ".cpp")
                  if f.startswith("test-") and f.endswith(end))
FEWER = {"test-warp-groups": "few_blocks"}  # all of it at level full: for the rest, nine minutes, the others have test-experts
PROGRAMS += ["test-attention", "test-chunks", "test-gemm", "test-lifetimes", "test-plans", "test-products", "test-sizes", "test-soak", "test-transformer", "test-warp-groups"]  # of tests/hw: what runs on a device as well
CI_HALVES = ["test-attention", "test-products"] # long, and of many cases: level ci takes half of them
BATCHES_PARTS = 3 # of mul_mat_batches, of which level ci takes one, as graphs and in slices
EVERYTHING = [(p, "") for p in PROGRAMS]
# Not at level user: longer than what asks the same of less (test-random computes fused graphs of all patterns); of the simulator
# itself; of tests/hw, whose kernels test-shapes,
# test-strips and the table of operations go through as well. All that make functions fail stay: each must have failed.
SLOW = ["test-attention", "test-chunks", "test-experts", "test-fusion", "test-lifetimes", "test-plans", "test-products", "test-soak", "test-transformer", "test-sim", "test-sim-graph", "test-sim-memory", "test-sim-mma",
        "test-sm90", "test-gemm", "test-sizes", "test-warp-groups"]
FULL_PARTS = 64 # of all cases, where programs run in parallel
SHAPES = ["test-shapes", "test-large", "test-conv"] # of tests/hw
LONG = ["test-warp-groups", "test-sched", "test-split", "test-cuda", "test-plans", "test-lanes", "test-random", "test-fusion"] # minutes at level full
# what takes minutes even so: tests, with as many seeds as GCUDA_TEST_SEEDS says, and operations in this number of commands each
IN_PARTS = {"test-sched": {"experts": 8, "split_experts": 8, "transformer": 2, "split_transformer": 2, "transformer_in_blocks": 2,
                           "split_transformer_in_blocks": 2, "experts_of_one_token": 4},
            "test-ops": {"mul_mat_batches": 4}}

# Operations against their float64 references: test-ops --filter NAME, on the simulated device.
CI_PARTS = 3 # of all cases, of which level ci takes one; the CPU backend has all of them there, and a GPU in tests/gpu.py
OPS = {
    "user": ["add/", "unary", "get_rows", "out_prod", "opt_step", "argmax", "count_equal"], # cross_entropy: 18 s of long rows
    "ci": [], # CI_PARTS
    "full": [""],
}
LAST_OF_FOUR = ["add", "unary", "get_rows", "cross_entropy", "out_prod", "opt_step", "argmax", "count_equal", "cpy", "repeat", "sum",
                "mul_mat", "rms_norm", "soft_max", "scale", "fill", "mean", "silu", "mixed"] # what the last of four devices computes
# what is chosen by the capability, or by how much shared memory it has; of the rest each capability runs its share
OLDER_OPS = ["mul_mat_", "out_prod", "conv_", "ssm_scan", "flash_attn"]
OLDER_SAMPLE = ["mul_mat_quantized", "mul_mat_some", "mul_mat_batches", "mul_mat_id", "conv_2d", "out_prod", "ssm_scan"]
OLDER_PARTS = 40  # of all cases, of which level ci takes one
SEEDS = {"user": "1", "ci": "8", "full": "200", "older": "100"}  # orders of streams and threads that test-sched goes through
# with barriers, warp operations and shared memory, and quick: one of them for each seed
OPS_SEEDS = ["cross_entropy", "sum_rows", "argmax", "count_equal", "opt_step", "out_prod"]
SEED_PARTS = {"cross_entropy": 8} # all of its cases take 85 s

# name of the program, and what of it
ASAN_SAMPLE = [("test-sim", ""), ("test-sim-memory", ""), ("test-sim-graph", ""), ("test-sim-mma", ""), ("test-sm90", "")]
LIFETIMES = {"ci": "30", "full": "600"}  # seconds of test-lifetimes under AddressSanitizer: graphs that come and go
ASAN_PARTS = 12  # of all cases, of which level ci takes one
ASAN_TURNS = 4  # at level ci: every second part of the kernels has AddressSanitizer, every fourth UBSan too; the others are the plain ones
OLDER_HALVES = 2  # of OLDER_SAMPLE's cases, of which level ci takes one
TSAN_SAMPLE = [("test-cuda", "threads"), ("test-upload", "threads"), ("test-memory", "threads"), ("test-split", "threads"), ("test-plan", "threads"),
               ("test-sim-memory", "semaphores"), ("test-sim-graph", "threads")]


def run(command, timeout=900, **env):
    """(exit code, output, seconds of processor time). timeout: seconds of processor time, see limits.py"""
    print("+ " + " ".join(command), flush=True)
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        code, used, why = limits.run(command, timeout, log, cwd=ROOT, env={**os.environ, **env})
        log.seek(0)
        output = log.read()
    return (124, output + f"\n{why}", used) if why else (code, output, used)


def digest():
    """Of all that is compiled into these programs."""
    total = hashlib.sha256()
    for pattern in ("gcuda.h", "gcuda_kernels.cu", "examples/*.[ch]", "tests/llm/*.*", "tests/*.[ch]", "tests/hw/*.[ch]", "tests/sim/*.[ch]", "tests/sim/*.cpp", "tests/sim/include/*.h"):
        for file in sorted(glob.glob(os.path.join(ROOT, pattern))):
            with open(file, "rb") as f:
                total.update(hashlib.sha256(f.read()).digest())
    return total.hexdigest()[:16]


class Journal:
    """The commands that have passed on these sources, a line of JSON each."""

    def __init__(self, path):
        self.path, self.digest, self.entries, self.lock = path, digest(), {}, threading.Lock()
        if path and os.path.exists(path):
            with open(path, encoding="utf-8") as f:
                for entry in map(json.loads, f):
                    if entry["digest"] == self.digest:
                        self.entries[entry["command"]] = entry

    @staticmethod
    def name(command, env):
        return " ".join([f"{key}={value}" for key, value in sorted(env.items()) if key != "GCUDA_SIM_FAULTS"] + command)

    def add(self, command, env, n_passed, faults):
        entry = {"digest": self.digest, "command": self.name(command, env), "passed": n_passed, "faults": faults}
        if self.path:
            with self.lock, open(self.path, "a", encoding="utf-8") as f:
                f.write(json.dumps(entry) + "\n")


class Sum:
    """n_workers: programs at a time, of all groups together. seed: of what differs from run to run."""

    def __init__(self, only, n_workers=1, seed=1, journal=""):
        self.only, self.passed, self.failed, self.n_workers, self.seed = only, 0, 0, n_workers, seed
        self.journal = Journal(journal)
        self.in_parts = n_workers > 2 or bool(journal)
        self.lock = threading.Lock()
        self.pool = concurrent.futures.ThreadPoolExecutor(n_workers)

    def add(self, name, code, output, counts, seconds=0.0, processor=0.0):
        lines = [line for line in output.splitlines() if line.strip()]
        closing = next((m for m in map(CLOSING.match, reversed(lines)) if m), None) if counts else None
        passed, failed = (int(closing[1]), int(closing[2])) if closing else (int(code == 0 and not counts), int(code != 0 or counts))
        if closing and "build/sim/test-ops " in name and int(closing[3] or 0) > 0:  # an operation, type or layout has no kernel
            failed += 1
        if code != 0 and failed == 0:  # a leak found at exit
            failed = 1
        is_skipped = closing and " --test " in name and int(closing[3] or 0) > 0  # of the others of its program one must pass: Variant.wait
        if counts and passed + failed == 0 and not is_skipped:  # a filter that fits nothing tests nothing
            failed = 1
        with self.lock:
            self.passed += passed
            self.failed += failed
        print(f"  {name}: {passed} passed, {failed} failed, {seconds:.1f} s, processor {processor:.1f} s" + (f" (exit code {code})" if code else ""), flush=True)
        if failed:
            print("\n".join("  | " + line for line in lines[-40:]), flush=True)
        return passed, failed

    def build(self, targets, *variables):
        start = time.monotonic()
        n_jobs = max(2, (os.cpu_count() or 1) // 2, self.n_workers)  # the groups, and other jobs, run concurrently
        folder = os.path.join(ROOT, os.path.dirname(targets[0]))
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "lock"), "w") as lock: # another group, or job, may want the plain kernels at the same time
            fcntl.flock(lock, fcntl.LOCK_EX)
            code, output, processor = run(["make", "-s", "--no-print-directory", f"-j{n_jobs}", *variables, *targets], 3600)
        if code != 0:
            self.add("build", 1, output, False, time.monotonic() - start, processor)
        else:
            print(f"  built in {time.monotonic() - start:.1f} s, processor {processor:.1f} s", flush=True)
        return code == 0

    def test(self, command, env, timeout):
        """How many cases passed, now or before."""
        before = self.journal.entries.get(Journal.name(command, env))
        if before is None:
            return self.test_now(command, env, timeout)
        self.note_faults(env, before["faults"])
        with self.lock:
            self.passed += before["passed"]
        return before["passed"]

    def test_now(self, command, env, timeout):
        start = time.monotonic()
        with tempfile.NamedTemporaryFile("r", encoding="utf-8") as own: # the functions that failed in this program
            code, output, processor = run(command, timeout, **{**env, **({"GCUDA_SIM_FAULTS": own.name} if "GCUDA_SIM_FAULTS" in env else {})})
            faults = sorted(set(own.read().split()))
        self.note_faults(env, faults)
        passed, failed = self.add(" ".join(command), code, output, True, time.monotonic() - start, processor)
        if failed == 0:
            self.journal.add(command, env, passed, faults)
        return passed

    def note_faults(self, env, faults):
        if faults:
            with self.lock, open(env["GCUDA_SIM_FAULTS"], "a", encoding="utf-8") as f:
                f.write("\n".join(faults) + "\n")


def kernel_parts():
    with open(os.path.join(ROOT, "gcuda_kernels.cu"), encoding="utf-8") as f:
        return sorted(set(re.findall(r"^#if GCUDAI_PART\((\d+)\)", f.read(), re.M)), key=int)


def same_kernels(*definitions):
    """The parts of the kernels that are the same text with definitions as without them."""
    def text(part, *more):
        done = subprocess.run([os.environ.get("CXX", "g++"), "-std=c++17", "-DGCUDA_CUDA", *more, "-Itests/sim/include", "-I.", "-Itests",
                               f"-DGCUDA_KERNEL_PART={part}", "-x", "c++", "-E", "-P", "gcuda_kernels.cu"], cwd=ROOT, stdout=subprocess.PIPE)
        return done.stdout if done.returncode == 0 else None
    return [part for part in kernel_parts() if (plain := text(part)) is not None and plain == text(part, *definitions)]


class Variant:
    """One way of building it all: a folder and the compiler's flags."""

    def __init__(self, total, name, flags="", env=None):
        self.total, self.folder, self.env, self.jobs = total, f"build/sim{name}", env or {}, []
        self.apart = {}  # programs that run test by test: the jobs of each
        self.variables = [f"SIM={self.folder}", f"SIM_CFLAGS={flags}"] if flags else []

    def build(self, programs, shared=(), *variables):
        """shared: the parts of the kernels that are linked as they are compiled for the plain variant."""
        if shared and not self.total.build([f"build/sim/gcuda_kernels-{part}.o" for part in shared]):
            return False
        return self.total.build(sorted({f"{self.folder}/{p}" for p in programs}), *self.variables, *variables, f"SIM_SHARED={' '.join(shared)}")

    def test(self, program, *arguments, timeout=900, **env):
        """Runs it when a worker is free."""
        command = [f"{self.folder}/{program}", *arguments]
        if self.total.only in " ".join(command):
            self.jobs.append(self.total.pool.submit(self.total.test, command, {**self.env, **env}, timeout))
            if "--test" in arguments:
                self.apart.setdefault(program, []).append(self.jobs[-1])

    def wait(self):
        for job in self.jobs:
            job.result()
        for program, jobs in self.apart.items():
            if not self.total.only and sum(job.result() for job in jobs) == 0:
                self.total.add(f"{self.folder}/{program}, test by test", 1, "no test of it passed: all are skipped", False)

    def tests_of(self, program):
        code, output, _ = run([f"{self.folder}/{program}", "--list"])
        return output.split() if code == 0 else [""]

    def programs(self, chosen, **env):
        """With many workers, or a journal, the longest programs test by test, and first."""
        in_parts = self.total.in_parts
        for name, text in sorted(chosen, key=lambda program: in_parts and program[0] not in LONG):
            apart = name in LONG and not text and in_parts
            for test in self.tests_of(name) if apart else [""]:
                n = IN_PARTS.get(name, {}).get(test, 1) if apart and "GCUDA_TEST_SEEDS" in env else 1
                for i in range(n): # the scheduler's 200 orders of all tests: an hour of processor time
                    self.test(name, *(["--filter", text] if text else []), *(["--test", test] if test else []),
                              *(["--part", f"{i}/{n}"] if n > 1 else []), timeout=9600, **env)

    def turn(self, n_parts):
        """One of n_parts parts, by the seed, without its lowest bit, which chooses other things."""
        return self.total.seed // 2 % n_parts

    def operations(self, names, device="CUDA0", n_turns=1, **env):
        """n_turns: one of this number of parts of the cases."""
        for name in names:
            if name:
                n = n_turns if n_turns > 1 else IN_PARTS["test-ops"].get(name, 1) if self.total.in_parts else 1
                for i in [self.turn(n)] if n_turns > 1 else range(n):
                    self.test("test-ops", "--filter", name, *(["--part", f"{i}/{n}"] if n > 1 else []), timeout=5400, GCUDA_TEST_BACKEND=device, **env)
            else:
                self.share(0, 1, **env)

    def share(self, i, n, **env):
        """The i-th of n parts of all cases, in as many commands as are of use."""
        n_parts = 1 if n > 10 or not self.total.in_parts else FULL_PARTS
        for part in range(i, n * n_parts, n):
            self.test("test-ops", "--part", f"{part}/{n * n_parts}", timeout=5400, GCUDA_TEST_BACKEND="CUDA0", **env)

    def captured(self, level):
        """A sample of all cases as CUDA graphs, of the test's and of the backend's making, and what also runs on hardware. Batches of
        products, 23 s: not at level user, a third of them at level ci."""
        self.share(7, 200, GCUDA_TEST_CAPTURE="1")
        if level != "user":
            self.operations(["mul_mat_batches"], n_turns=BATCHES_PARTS if level == "ci" else 1, GCUDA_TEST_CAPTURE="1")
        self.share(107, 200, GCUDA_TEST_CAPTURE="2")
        self.test("test-device", GCUDA_SIM_DEVICES="2")

    def shapes(self, is_user=False, **env):
        """Random shapes against the CPU; the tests of large tensors and convolutions, with small ones: not at level user."""
        self.test("test-shapes", timeout=1200, **env)
        if not is_user:
            self.test("test-large")
            self.test("test-conv", "--filter", "few_blocks")

    def warp_groups(self, level):
        """Kernels for 9.0a: products, experts, convolutions, attention."""
        for program in ("test-warp-groups", "test-conv"):
            self.test(program, "--filter", "few_blocks", timeout=1200, GCUDA_SIM_WARP_GROUPS="1")
        part = [] if level == "full" else ["--part", f"{self.turn(2)}/2"]
        for cases in ("wgmma", "latent"):
            self.test("test-attention", "--filter", cases, *part, timeout=1200, GCUDA_SIM_WARP_GROUPS="1")
        self.test("test-attention", "--test", "slices_of_long", timeout=1200, GCUDA_SIM_WARP_GROUPS="1")  # one test, without parts

    def seeds(self, n):
        """One operation for each seed. Those of SEED_PARTS, whose rows are long, run one part of their cases, another one each time."""
        for seed in range(2, n + 2):
            print(f"  seed {seed}", flush=True)
            name = OPS_SEEDS[seed % len(OPS_SEEDS)]
            n_parts = SEED_PARTS.get(name, 1)
            part = ["--part", f"{seed // len(OPS_SEEDS) % n_parts}/{n_parts}"] if n_parts > 1 else []
            self.test("test-ops", "--filter", name, *part, timeout=5400, GCUDA_TEST_BACKEND="CUDA0", GCUDA_SIM_SEED=str(seed))


def digits(total):
    start = time.monotonic()
    right = []
    for device in ("CUDA0", "CPU"):
        code, output, processor = run(["build/sim/digits", "--backend", device, "--epochs", "8"])
        found = re.search(r"([\d.]+) % of the test digits are recognised", output)
        right.append(float(found[1]) if found else 0.0)
        if code == 0 and (right[-1] < 90.0 or abs(right[-1] - right[0]) > 1.0 or f"on {device}" not in output):
            code, output = 1, output + f"\nwanted: on {device}, 90 % or more, within 1 % of what CUDA0 had: {right[0]}"
        total.add(f"digits on {device}", code, output, False, time.monotonic() - start, processor)


EXAMPLES = ("decode", "mlp")


def small_examples(total):
    """Examples that take a GPU if there is one, against plain Python."""
    for name in EXAMPLES:
        start = time.monotonic()
        code, output, processor = run([f"build/sim/{name}"])
        try:
            example_oracles.ORACLES[name](output)
        except AssertionError as e:
            code, output = code or 1, f"{output}\n{e}"
        total.add(f"example {name}", code, output, False, time.monotonic() - start, processor)


def language_models(total, level):
    """Sessions on the device (tests/test-llm.c); small models of every architecture against numpy (tests/llm/check.py), with the Python that
    has the packages of the tests."""
    if total.build(["build/sim/test-llm"]):
        total.test(["build/sim/test-llm"], {"GCUDA_TEST_BACKEND": "CUDA0"}, 900)
    pythons = [p for p in (sys.executable, os.path.join(ROOT, "build/venv/bin/python")) if os.path.exists(p) and
               subprocess.run([p, "-c", "import gguf, sentencepiece, tokenizers"], stderr=subprocess.DEVNULL).returncode == 0]
    if not pythons:
        print("  language models: not run, no Python here has the packages of tests/tools/requirements.txt (make venv)", flush=True)
    elif total.build(["build/sim/llm-probe"]):
        parts = [["--level", "full"]] if level == "full" else [["--only", "forward"], ["--only", "cache types gemma3"]]
        check = [pythons[0], "tests/llm/check.py", "--small", "--probe", "build/sim/llm-probe", "--backend", "CUDA0"]
        for part in parts:
            total.test([*check, *part], {}, 3600)
        total.test([*check, "--only", "two GPUs"], {"GCUDA_SIM_DEVICES": "2"}, 3600)
    if pythons and level == "full" and total.build(["build/sim/llm", "build/llm"]):
        total.test([pythons[0], "tests/llm/check.py", "--program", "build/sim/llm", "--backend", "CUDA0", "--only", "device:"], {}, 36000)


# Asked after something has failed, or for a text: their own failure changes nothing.
NO_FAULT = {"cudaThreadExchangeStreamCaptureMode", # fails for no mode that exists
            "cudaGetLastError", "cudaPeekAtLastError", "cudaGetErrorString", "cudaGetErrorName",
            "cudaGetDriverEntryPoint"} # of toolkits older than the one that is simulated


def called_functions():
    """What gcuda.h and gcuda_kernels.cu call of CUDA, its driver and cuBLAS."""
    names = set()
    for file in ("gcuda.h", "gcuda_kernels.cu"):
        with open(os.path.join(ROOT, file), encoding="utf-8") as f:
            code = re.sub(r"//[^\n]*", "", f.read())
        names |= set(re.findall(r"\b((?:cuda|cu|cublas)[A-Z]\w+) ?\(", code))
        names |= set(re.findall(r"X\(((?:cu|cublas)[A-Z]\w+),", code))
    return names - NO_FAULT


def faults_are_complete(total, file):
    """Each of these functions has failed in some sweep."""
    with open(file, encoding="utf-8") as f:
        failed = set(f.read().split())
    missing = sorted(called_functions() - failed)
    total.add("every function fails in a sweep", int(bool(missing)), "never failed: " + ", ".join(missing), False)


def plain_tests(total, level):
    plain = Variant(total, "")
    programs = [p for p in PROGRAMS if level != "user" or p not in SLOW]
    if plain.build([*programs, "test-device", *(["test-shapes"] if level == "user" else SHAPES), "digits", *(EXAMPLES if level != "user" else [])]):
        faults = os.path.join(ROOT, "build/sim/faults.txt")
        open(faults, "w").close()
        ours = [p for p in programs if os.path.exists(os.path.join(ROOT, f"tests/sim/{p}.c"))] # not those of the simulator
        fewer = {} if level == "full" else FEWER
        halves = CI_HALVES if level == "ci" else []
        plain.programs([(p, fewer.get(p, "")) for p in programs if p not in ours and p not in halves])
        for p in halves:
            plain.test(p, "--part", f"{plain.turn(2)}/2")
        slow = {"GCUDA_TEST_FULL": "1"} if level == "full" else {} # every k-th call, backends made and freed 1000 times
        plain.programs([(p, "") for p in ours], GCUDA_TEST_SEEDS=SEEDS[level], GCUDA_SIM_FAULTS=faults, **slow)
        plain.shapes(level == "user", **slow)
        if level != "user":
            plain.warp_groups(level)
        if total.only in "digits":
            plain.jobs.append(total.pool.submit(digits, total))
        if level != "user" and total.only in "example":
            plain.jobs.append(total.pool.submit(small_examples, total))
        if level != "user" and total.only in "language models":
            plain.jobs.append(total.pool.submit(language_models, total, level))
        plain.wait()
        if not total.only:
            faults_are_complete(total, faults)


def operation_tests(total, level):
    plain = Variant(total, "")
    is_full = level == "full"
    if plain.build(["test-ops", "test-device"]):
        plain.operations(OPS[level], **({"GCUDA_TEST_FULL": "1"} if is_full else {}))
        if level == "ci":
            print(f"seed {total.seed}: once more with --group operations --seed {total.seed}", flush=True)
            plain.share(total.seed % CI_PARTS, CI_PARTS)
        plain.captured(level)
        if level != "user":
            plain.share(3, 10 if is_full else 100, GCUDA_TEST_SHARED_KB="48")
            plain.share(7, 10 if is_full else 200, GCUDA_TEST_CUT="1") # as graphs that may be stopped, in slices
            plain.share(0 if is_full else 5, 1 if is_full else 20, GCUDA_TEST_BY_NODE="1") # others are plans of one node
            plain.operations(["conv_2d_dw/F32"], GCUDA_TEST_CUT="1")
            plain.operations(["mul_mat_batches"], n_turns=1 if is_full else BATCHES_PARTS, GCUDA_TEST_CUT="1")
            plain.operations(["mul_mat_some", "mul_mat_permuted"], GCUDA_CUDA_PRODUCT="tile")
            plain.seeds(100 if is_full else 20)
        if is_full:
            plain.operations(LAST_OF_FOUR, "CUDA3", GCUDA_SIM_DEVICES="4", GCUDA_SIM_MEMORY_MB="512")
        plain.wait()


def asan_tests(total, level):
    turn = total.seed % ASAN_TURNS
    parts = kernel_parts()
    asan = Variant(total, "-asan" if level == "full" else f"-asan{turn}", ASAN, ASAN_ENV)
    print(f"seed {total.seed}: once more with --group asan --seed {total.seed}", flush=True)
    if level == "full":
        if asan.build([*PROGRAMS, "test-ops", "test-device", *SHAPES]):
            asan.programs([(p, text) for p, text in EVERYTHING if p != "test-lifetimes"])
            asan.test("test-lifetimes", timeout=3600, GCUDA_TEST_LIFETIMES_S=LIFETIMES[level])
            asan.operations(OPS["full"], GCUDA_SIM_SEED=str(total.seed))
            asan.captured(level)
            asan.shapes()
    elif asan.build([*[p for p, _ in ASAN_SAMPLE], "test-lifetimes", "test-ops"], [part for i, part in enumerate(parts) if (i - turn) % 2 != 0],
                    "SIM_KERNEL_CFLAGS=" + ASAN_KERNELS, "SIM_DEFINED=" + " ".join(part for i, part in enumerate(parts) if i % ASAN_TURNS != turn)):
        asan.programs(ASAN_SAMPLE)
        asan.test("test-lifetimes", GCUDA_TEST_LIFETIMES_S=LIFETIMES[level])
        asan.share(total.seed % ASAN_PARTS, ASAN_PARTS, GCUDA_SIM_SEED=str(total.seed))
    asan.wait()


def tsan_tests(total, level):
    tsan = Variant(total, "-tsan", TSAN, TSAN_ENV) if level == "full" else Variant(total, "-tsan0", TSAN_QUICK, TSAN_ENV)
    # kernels run one at a time under one lock: what threads may do to each other is in the backend, and the simulator
    if tsan.build([p for p, _ in TSAN_SAMPLE], kernel_parts() if level == "ci" else ()):
        tsan.programs(TSAN_SAMPLE)
    tsan.wait()


def older_variant(total, capability):
    return Variant(total, f"-{capability}", f"-O1 -g1 -DGCUDA_SIM_CC={capability}")


def older_tests(total, level):
    if level != "full":
        print(f"seed {total.seed}: once more with --group older --seed {total.seed}", flush=True)
        capability = CI_CAPABILITIES[total.seed % len(CI_CAPABILITIES)]
        other = older_variant(total, capability)
        if other.build(["test-ops"], same_kernels(f"-DGCUDA_SIM_CC={capability}")):
            other.operations(OLDER_SAMPLE, n_turns=OLDER_HALVES)
            other.share(total.seed % OLDER_PARTS, OLDER_PARTS)
        other.wait()
        return
    others = [older_variant(total, capability) for capability in total.capabilities]
    programs = [p for p in PROGRAMS if p not in NOT_OLDER]
    for capability, other in zip(total.capabilities, others):
        if other.build([*programs, "test-ops"], same_kernels(f"-DGCUDA_SIM_CC={capability}")):
            other.programs([(p, "") for p in programs], GCUDA_TEST_SEEDS=SEEDS["older"])
            other.operations(OLDER_OPS)
            other.seeds(100)
            other.share(CAPABILITIES.index(capability), len(CAPABILITIES))
    for other in others:
        other.wait()


def switch_tests(total, level):
    """Built without all that a switch can leave out, implementation and kernels alike, linked and run."""
    definitions = switches.defined(switches.switches())
    # without optimisation: it takes longer to compile than to run
    few = Variant(total, "-switches", " ".join(["-O0 -g1 -fPIC -DTEST_ALL_SWITCHES", *definitions]))
    if few.build(["test-switches", "plugin", *(["test-ops"] if level == "full" else [])]):
        few.programs([("test-switches", "")])
        few.test("plugin", f"{few.folder}/plugin.so", "CUDA0") # the same objects as a shared library, as make cuda-kernels' may be
        if level == "full":
            few.share(0, 10)
    few.wait()


# name: (what it runs, the lowest level that it belongs to)
GROUPS = {"plain": (plain_tests, "user"), "operations": (operation_tests, "user"), "asan": (asan_tests, "ci"), "tsan": (tsan_tests, "ci"), "older": (older_tests, "ci"),
          "switches": (switch_tests, "ci")}
LEVELS = ["user", "ci", "full"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--level", choices=LEVELS, default="user")
    parser.add_argument("--group", default=",".join(GROUPS), help="only these groups: " + ",".join(GROUPS))
    parser.add_argument("--capabilities", default=",".join(map(str, CAPABILITIES)), help="those of the group older at level full, and their order")
    parser.add_argument("--journal", default="", help="file of the commands that have passed: they are not run again")
    parser.add_argument("--only", default="", help="only commands with this text in them")
    parser.add_argument("--jobs", type=int, default=0)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 1000000 + 1, help="of what differs from run to run, above 0")
    args = parser.parse_args()
    # of one group one program at a time, concurrently with other groups and jobs
    chosen = args.group.split(",")
    if any(name not in GROUPS for name in chosen):
        parser.error("groups are " + ",".join(GROUPS))
    total = Sum(args.only, args.jobs or (2 if args.level == "user" and len(chosen) > 1 else 1), max(args.seed, 1), args.journal)
    total.capabilities = [int(c) for c in args.capabilities.split(",")]
    groups = [tests for name, (tests, lowest) in GROUPS.items()
              if name in chosen and LEVELS.index(lowest) <= LEVELS.index(args.level)]
    with concurrent.futures.ThreadPoolExecutor(len(groups) if args.jobs > 2 else 1) as pool:
        for done in [pool.submit(tests, total, args.level) for tests in groups]:
            done.result()
    print(f"{total.passed} passed, {total.failed} failed")
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
