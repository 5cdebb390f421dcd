#!/usr/bin/env python3
"""Tests on this machine's GPU: `make test-gpu`. What came out stands in tests/hardware/<gpu>.txt.

    gpu.py [--stage a,b,...] [--gpus N] [--full] [--jobs N]
    gpu.py --check       only says which records are not of the sources in the tree; needs no GPU

A stage takes at most 8 minutes and is cut off then; without --stage all run. One program uses the GPU at a time: several would get
time slices of milliseconds, and a program that waits for each small copy would wait for the others' slices (a part of the stage
capture: 2 s alone, 22 s with four others, on an H200). With --jobs N the stages ops and capture still run N programs in parallel,
under NVIDIA's multi-process service, which needs no time slices; it is started for the stage and ended with it. The stage sanitizer
runs N parts in parallel without it. A record keeps the stages that did not run now, as long as
they are of the same sources and machine.

    build      kernels and programs for this GPU
    ops        every operation against its float64 reference, on the device; the same with 48 KiB of shared memory; a tenth node by node
    capture    every case twice more as a CUDA graph that is replayed on changed data: captured here, and the backend's own of a plan
    programs   generation with random weights, against the CPU; the digits; small examples; tests/hw/test-*.c, of these test-lifetimes
               (graphs that come and go) for a minute; libraries that the programs need
    shapes     test-shapes: thousands of random shapes, against the CPU; test-large: tensors of 2^31 elements; test-products: matrices
               of models, all edges of the results and samples against float64
    sanitizer  compute-sanitizer memcheck, racecheck, initcheck, synccheck over the digits, small blocks of models as plans (fused,
               captured, overlapped; not under initcheck) and all cases, in as many parts as the time allows, most of it for
               memcheck: the stage once more, on the same sources, continues after the last of them. racecheck also over a few
               blocks of every kernel of products, convolutions and attention in tiles
    bench      build/cuda/bench-gpu: every operation against the ceilings and the targets; bench-sorts: argsort and top_k compared with CUB
    upload     build/cuda/bench-upload: host to device
    peers      with --gpus 2 (or more): the operations on the second device, those of tests/hw that look at all devices, row-split
               products and pipelines, memcheck

--gpus 2 runs the stages build and peers, and the record is that of this number of GPUs. --full: the slow cases too.
"""
import argparse
import concurrent.futures
import contextlib
import datetime
import glob
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HARDWARE = os.path.join(ROOT, "tests", "hardware")
LOG = os.path.join(ROOT, "build", "log")
SOURCES = ["gcuda.h", "gcuda_kernels.cu", "examples/llm.h", "examples/llm.c", "examples/decode.c", "examples/mlp.c",
           "examples/digits.c", "examples/digits_data.h", "tests/llm/synthetic.c", "tests/llm/corpus.txt", "tests/compile/example_oracles.py",
           "tests/products.h", "tests/test-ops.c", "tests/test-ops.h", "tests/test.h",
           "tests/bench-gpu.c", "tests/bench-targets.h", "tests/bench-upload.c", "tests/bench-sorts.cu",
           "tests/gpu.py"]
SOURCES_LIKE = ["tests/ops-*.h", "tests/hw/*.c", "tests/hw/*.h"]
BUDGET = 480  # seconds of a stage
STAGES = ["build", "ops", "capture", "programs", "shapes", "sanitizer", "bench", "upload", "peers"]
SHAPES = ["test-shapes", "test-large", "test-products"]
SEVERAL = ["test-device", "test-peers"]  # of tests/hw: what looks at all devices; the others have one anyhow
CLOSING = re.compile(r"^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$", re.M)
TOOLS = {"racecheck": 150, "initcheck": 150, "synccheck": 150, "memcheck": 60}  # parts of all cases under compute-sanitizer: 20 s each, memcheck's 40
# For initcheck the results of cuBLAS's F16 products count as never written: a program with nothing but cudaMalloc, such a
# product of 256 x 64 x 512 and a kernel that reads it has every element reported, and none after a memset; the numbers are
# right. So it looks at a digits program without cuBLAS, where all that is read was written by kernels of gcuda's.
DIGITS_UNDER = {"initcheck": "digits-no-cublas"}
# Kernels of tiles in shared memory: hardly a case of test-ops is large enough for wgmma, and cuBLAS computes the floats.
TILES = [[f"build/cuda/{program}", "--filter", "few_blocks"] for program in ("test-warp-groups", "test-conv", "test-attention")]


def sources():
    return SOURCES + sorted(os.path.relpath(p, ROOT) for like in SOURCES_LIKE for p in glob.glob(os.path.join(ROOT, like)))


def digest():
    """One number for the sources that were tested, to compare with those in the tree."""
    h = hashlib.sha256()
    for name in sources():
        with open(os.path.join(ROOT, name), "rb") as f:
            h.update(name.encode() + b"\0" + hashlib.sha256(f.read()).digest())
    return h.hexdigest()[:16]


def run(command, log=None, timeout=BUDGET, **env):
    """(exit code, output); the output also goes to build/log/gpu-LOG.txt."""
    try:
        done = subprocess.run(command, cwd=ROOT, env={**os.environ, **env}, timeout=timeout, text=True, errors="replace",
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        code, out = done.returncode, done.stdout
    except FileNotFoundError:
        code, out = 127, f"{command[0]}: not installed"
    except subprocess.TimeoutExpired as e:
        code, out = 124, (e.stdout or b"").decode("utf-8", "replace") + f"\nlonger than {timeout:.0f} s"
    if log:
        with open(os.path.join(LOG, f"gpu-{log}.txt"), "w", encoding="utf-8") as f:
            f.write(out)
    return code, out


class Stage:
    """What one stage found: lines for the record and counts of its checks."""

    def __init__(self, name):
        self.name, self.lines, self.passed, self.failed, self.skipped = name, [], 0, 0, 0
        self.start = time.time()

    def left(self):
        return max(1.0, BUDGET - (time.time() - self.start))

    def say(self, name, text):
        self.lines.append(f"{name:<22} {text}")
        print(f"[{self.name}] {self.lines[-1]}", flush=True)

    def result(self, name, ok, text):
        self.passed += bool(ok)
        self.failed += not ok
        self.say(name, ("ok      " if ok else "FAILED  ") + text)

    def skip(self, name, why):
        self.skipped += 1
        self.say(name, "skipped " + why)

    def text(self):
        return f"== {self.name}: {self.passed} passed, {self.failed} failed, {self.skipped} skipped\n" + "\n".join(self.lines) + "\n"


def failures(out, n=20):
    return "".join("\n    " + line for line in [l for l in out.splitlines() if "FAILED" in l or "ERROR" in l][:n])


@contextlib.contextmanager
def sharing(n_jobs):
    """What programs need in their environment to share the GPU; None where they cannot, or need not."""
    control = shutil.which("nvidia-cuda-mps-control")
    if n_jobs < 2 or control is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        env = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        has_begun = run([control, "-d"], **env)[0] == 0
        if "," not in os.environ.get("CUDA_VISIBLE_DEVICES", ","):  # the service serves that device alone, and calls it 0
            env["CUDA_VISIBLE_DEVICES"] = "0"
        try:
            yield env if has_begun else None
        finally:
            if has_begun:
                subprocess.run([control], input="quit\n", text=True, env={**os.environ, **env}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


def side_by_side(stage, command, n_jobs, **env):
    """[(exit code, output)] of all cases in n parts, or of the unchanged command."""
    with sharing(n_jobs) as shared:
        if shared is None:
            return [run(command, stage.name, stage.left(), **env)]
        with concurrent.futures.ThreadPoolExecutor(n_jobs) as pool:
            begun = [pool.submit(run, [*command, "--part", f"{i}/{n_jobs}"], f"{stage.name}-{i}", stage.left(), **env, **shared)
                     for i in range(n_jobs)]
            return [job.result() for job in begun]


def operations(stage, name, command, n_jobs=1, **env):
    start = time.time()
    found = side_by_side(stage, command, n_jobs, **env)
    closings = [CLOSING.search(out) for _, out in found]
    sums = [sum(int(c.group(i) or 0) for c in closings if c) for i in (1, 2, 3)]
    ok = all(code == 0 for code, _ in found) and all(closings) and sums[0] > 0 and sums[1] == 0
    text = f"{sums[0]} passed, {sums[1]} failed, {sums[2]} without a kernel, {time.time() - start:.0f} s"
    text += f", {len(found)} programs at a time" if len(found) > 1 else ""
    for code, out in found:
        if code != 0 and sums[1] == 0:
            text += f"\n    exit code {code}: " + out[-300:].replace("\n", "\n    ")
    stage.result(name, ok, text + "".join(failures(out) for _, out in found))


def stage_build(stage, args):
    code, out = run(["make", "-s", "cuda"], "build", stage.left())
    warnings = [line for line in out.splitlines() if "warning" in line]
    text = f"kernels and programs, {time.time() - stage.start:.0f} s"
    stage.result("build", code == 0 and not warnings, text if code == 0 else out[-1500:])
    if warnings:
        stage.say("warnings", "; ".join(warnings[:5]))
    code, out = run(["make", "-s", "size"])
    for line in out.splitlines() if code == 0 else []: # kernels that came from elsewhere have no times
        if "together" in line or "lines" in line or "gcuda_kernels-" in line:
            stage.say("size", line.strip())


def stage_ops(stage, args):
    operations(stage, "operations", ["build/cuda/test-ops"], args.jobs, GCUDA_TEST_BACKEND="CUDA0", **args.env)
    operations(stage, "with 48 KiB", ["build/cuda/test-ops"], args.jobs, GCUDA_TEST_BACKEND="CUDA0", GCUDA_TEST_SHARED_KB="48")
    operations(stage, "without plans", ["build/cuda/test-ops", "--part", "5/10"], GCUDA_TEST_BACKEND="CUDA0", GCUDA_TEST_BY_NODE="1")


def stage_capture(stage, args):
    for how, name in (("1", "as CUDA graphs"), ("2", "as plans' CUDA graphs")):
        operations(stage, name, ["build/cuda/test-ops"], args.jobs, GCUDA_TEST_BACKEND="CUDA0", GCUDA_TEST_CAPTURE=how, **args.env)


def hardware_names():
    return [os.path.splitext(os.path.basename(f))[0] for f in sorted(glob.glob(os.path.join(ROOT, "tests", "hw", "test-*.c")))]


def hardware_tests(stage, names):
    for name in names:
        code, out = run([f"build/cuda/{name}"], name, stage.left(), GCUDA_TEST_FULL="1")
        closing = CLOSING.search(out)
        stage.result(name, code == 0 and closing is not None, (closing[0] if closing else out[-300:]) + failures(out))
        for line in [l for l in out.splitlines() if l.startswith("  ")]:  # figures
            stage.say("", line.strip())


def not_built():
    names = ["digits", "digits-no-cublas", "decode", "mlp", "llm", "test-ops", "bench-gpu", "bench-upload", "bench-sorts", *hardware_names()]
    return [name for name in names if not os.path.exists(os.path.join(ROOT, "build", "cuda", name))]


def small_examples(stage):
    """Examples that take a GPU if there is one, against plain Python."""
    sys.path.insert(0, os.path.join(ROOT, "tests", "compile"))
    import example_oracles
    for name in ("mlp", "decode"):
        code, out = run([f"build/cuda/{name}"], f"example-{name}", stage.left())
        try:
            example_oracles.ORACLES[name](out)
            why = ""
        except AssertionError as e:
            why = str(e)[:300]
        stage.result(f"example {name}", code == 0 and not why, why or "as plain Python has it")


def generation(stage):
    """Small models with random weights of real types: what is written in F32 arithmetic, and the perplexity as used, here and on the CPU."""
    run(["make", "--no-print-directory", "build/llm-synthetic"], "llm", stage.left())
    with tempfile.TemporaryDirectory() as folder:
        path, text = os.path.join(folder, "model.gguf"), os.path.join(ROOT, "tests", "llm", "corpus.txt")
        for preset in ("8b-q4_0", "30b-a3b-q4_0"):
            code, out = run(["build/llm-synthetic", preset, path, "--layers", "2", "--vocab", "4000"], None, stage.left())
            if code != 0:
                stage.result(f"generation {preset}", False, out[-300:])
                continue
            answers, perplexities = [], []
            for backend in ("CUDA0", "CPU"):
                program = ["build/cuda/llm", "-m", path, "--backend", backend, "-q", "--threads", "8"]
                code, out = run([*program, "-p", "abcd efgh", "--raw", "-n", "24", "--temp", "0", "--repeat-penalty", "1", "--exact", "--kv", "f32"],
                                "llm", stage.left())
                answers.append(out if code == 0 else f"exit code {code}: {out[-200:]}")
                code, out = run([*program, "perplexity", text, "-n", "128"], "llm", stage.left())
                perplexities.append(float((re.findall(r"perplexity ([0-9.]+)", out) or ["nan"])[0]))
            same = answers[0] == answers[1] and len(answers[0].strip()) >= 24
            near = abs(perplexities[0] / perplexities[1] - 1.0) <= 0.005
            stage.result(f"generation {preset}", same and near, f"{len(answers[0])} characters {'as' if same else 'other than'} on the CPU; perplexity "
                         f"{perplexities[0]:.1f}, on the CPU {perplexities[1]:.1f}, within 0.5 % wanted")


def stage_programs(stage, args):
    generation(stage)
    code, out = run(["build/cuda/digits", "--backend", "CUDA0"], "digits", stage.left())
    gpu = re.findall(r".* % of the test digits are recognised.*", out)
    stage.result("digits on CUDA0", code == 0 and len(gpu) == 1 and "on CUDA0" in out, gpu[0] if gpu else out[-300:])
    code, out = run(["build/cuda/digits", "--backend", "CPU"], "digits-cpu", stage.left())
    cpu = re.findall(r".* % of the test digits are recognised.*", out)
    stage.result("digits on the CPU", code == 0 and len(cpu) == 1, cpu[0] if cpu else out[-300:])
    share = [float(line.split(" %")[0]) for line in gpu + cpu]
    stage.result("digits on both", len(share) == 2 and abs(share[0] - share[1]) <= 1.0, "within 1 % of each other wanted")
    small_examples(stage)
    for program in ("digits", "test-ops", "bench-gpu"):
        code, out = run(["ldd", f"build/cuda/{program}"])
        ok = code == 0 and "libcuda" not in out and "libcublas" not in out
        stage.result(f"ldd {program}", ok, "names neither libcuda nor libcublas" if ok else out)
    hardware_tests(stage, [name for name in hardware_names() if name not in SHAPES])
    code, out = run(["build/cuda/test-peers"], "test-peers-shared", stage.left(), GCUDA_CUDA_DEVICES="3")
    closing = CLOSING.search(out)
    stage.result("test-peers, one GPU as three", code == 0 and closing is not None, (closing[0] if closing else out[-300:]) + failures(out))


def stage_shapes(stage, args):
    hardware_tests(stage, SHAPES)


def sanitize(tool, programs, stage, *options, **env):
    """(code, summaries, output) of all programs under one tool."""
    found = []
    for command in programs:
        program = os.path.basename(command[0])
        checked = [shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer", "--tool", tool, "--error-exitcode", "9", *options]
        log = "-".join([tool, program, *(a.replace("/", "_") for a in command[1:] if not a.startswith("-"))])
        code, out = run([*checked, *command], log, stage.left(), GCUDA_TEST_BACKEND="CUDA0", **env)
        summary = [l.strip("= ") for l in out.splitlines() if "SUMMARY" in l]
        closing = CLOSING.search(out)
        found.append((code, f"{program}: " + "; ".join(summary + ([closing[0]] if closing else [])), out, len(summary)))
    return found


def parts_before(tool, text):
    """How many parts of all cases this tool has passed on these sources, as the record says."""
    found = re.search(rf"^{tool} +ok .* (\d+) of {TOOLS[tool]} parts", text, re.M)
    return int(found[1]) if found else 0


def sanitize_parts(tool, first, until, stage, n_jobs):
    """Part after part of all cases until the time, n_jobs at once: what sanitize gives, of each. Other sources begin with another part.
    They take turns on the GPU, but most of their time is the tool's, on a processor."""
    found, longest, n_parts = [], 0.0, TOOLS[tool]
    turn = int(digest(), 16)
    with concurrent.futures.ThreadPoolExecutor(n_jobs) as pool:
        for i in range(first, n_parts, n_jobs):
            start = time.time()
            if found and start + 1.2 * longest > until:
                break
            begun = [pool.submit(sanitize, tool, [["build/cuda/test-ops", "--part", f"{(turn + k) % n_parts}/{n_parts}"]], stage)
                     for k in range(i, min(i + n_jobs, n_parts))]
            found += [result for job in begun for result in job.result()]
            longest = max(longest, time.time() - start)
    return found


def stage_sanitizer(stage, args):
    for code, text, out, n_summaries in sanitize("racecheck", TILES, stage):
        if "Device not supported" not in out and code != 127:
            stage.result("racecheck of tiles", code == 0 and n_summaries == 1, text + (failures(out, 5) if code else ""))
    plans, start = ["build/cuda/test-plans", "--filter", "small_blocks"], time.time()
    seconds = args.sanitizer_seconds - (start - stage.start)
    for i, (tool, n_parts) in enumerate(TOOLS.items()):
        digits = [f"build/cuda/{DIGITS_UNDER.get(tool, 'digits')}", "--backend", "CUDA0", "--epochs", "1"]
        # initcheck would report the products that plans leave to cuBLAS
        found = sanitize(tool, [digits, *([plans] if tool != "initcheck" else [])], stage)
        if any("Device not supported" in out or code == 127 for code, _, out, _ in found):
            stage.skip(tool, "compute-sanitizer cannot run on this machine")
            continue
        before = parts_before(tool, args.before.get(stage.name, "")) % n_parts
        share = 1.0 if tool == "memcheck" else (i + 1) / 10
        parts = sanitize_parts(tool, before, start + seconds * share, stage, args.jobs)
        bad = [result for result in found + parts if result[0] or result[3] != 1]
        done = before + len(parts) - sum(result in bad for result in parts)
        sums = [CLOSING.search(out) for _, _, out, _ in parts]
        n_cases = sum(int(m[1]) for m in sums if m)
        stage.result(tool, not bad, f"{done} of {n_parts} parts of all cases, {n_cases} cases now; "
                     + " | ".join(text for _, text, _, _ in found + (bad or parts[-1:])) + "".join(failures(o, 5) for _, _, o, _ in bad))


def stage_bench(stage, args):
    command = ["build/cuda/bench-gpu", "--json", "build/log/bench.json", "--seconds", str(int(args.bench_seconds))]
    code, out = run(command, "bench", stage.left())
    stage.result("bench", code == 0, f"{time.time() - stage.start:.0f} s; time in us, GB or TFLOP a second, share of the ceiling")
    stage.lines += out.splitlines()
    if code != 0:
        print(out[-2000:])
    else:
        print("\n".join(out.splitlines()[:12] + ["..."] + out.splitlines()[-3:]))
    code, out = run(["build/cuda/bench-sorts", "--want", "1"], "sorts", stage.left())
    stage.result("sorts beside CUB's", code == 0, CLOSING.search(out)[0] if CLOSING.search(out) else out[-300:])
    stage.lines += out.splitlines()[:-1]


def stage_upload(stage, args):
    code, out = run(["build/cuda/bench-upload", "--want", "4"], "upload", stage.left())
    stage.result("upload", code == 0, f"{time.time() - stage.start:.0f} s")
    stage.lines += out.splitlines()
    print(out[-2000:])


def stage_peers(stage, args):
    if args.gpus < 2:
        stage.skip("peers", "needs --gpus 2")
        return
    operations(stage, "operations on CUDA1", ["build/cuda/test-ops", "--filter", "/packed"], GCUDA_TEST_BACKEND="CUDA1")
    hardware_tests(stage, SEVERAL)
    code, out = run(["build/cuda/bench-gpu", "--table", "pair"], "pair", stage.left())
    found = [line for line in out.partition("=== two GPUs")[2].splitlines() if " us" in line]
    stage.result("bench of pairs", code == 0 and len(found) > 0, f"{time.time() - stage.start:.0f} s" if found else out[-300:])
    stage.lines += found
    # Kernels reach the other device's memory there. Errors of CUDA calls are left out: captures and updates of CUDA graphs that
    # fail are tried, and gone without, where a graph was made for other weights.
    program = [["build/cuda/test-peers", "--filter", "split_products"]]
    code, text, out, _ = sanitize("memcheck", program, stage, "--report-api-errors", "no", GCUDA_TEST_POOL="best_fit")[0]
    if "Device not supported" in out or code == 127:
        stage.skip("memcheck", "compute-sanitizer cannot run on this machine")
    else:
        stage.result("memcheck", code == 0, text + (failures(out, 5) if code else ""))


def read_record(path, head):
    """The stages of a record that is of the same sources and machine: {name: text}."""
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as f:
        text = f.read()
    if any(line not in text.splitlines() for line in head if not line.startswith("date")):
        return {}
    return {m[1]: m[0] for m in re.finditer(r"^== (\w+):.*\n(?:(?!== |\d+ passed).*\n)*", text, re.M)}


def write_record(path, head, stages):
    blocks = read_record(path, head)
    blocks.update((s.name, s.text()) for s in stages)
    ordered = [blocks[name].rstrip("\n") + "\n" for name in STAGES if name in blocks]
    sums = [sum(int(re.search(r": (\d+) passed, (\d+) failed, (\d+) skipped", b)[i]) for b in ordered) for i in (1, 2, 3)]
    os.makedirs(HARDWARE, exist_ok=True)
    with open(path, "w", encoding="utf-8") as f:
        f.write("Written by `make test-gpu`.\n\n" + "\n".join(head) + "\n\n" + "\n".join(ordered))
        f.write(f"\n{sums[0]} passed, {sums[1]} failed, {sums[2]} skipped\n")


def check():
    for path in sorted(glob.glob(os.path.join(HARDWARE, "*.txt"))):
        with open(path, encoding="utf-8") as f:
            tested = re.search(r"^digest of sources +(\S+)", f.read(), re.M)
        if tested is None or tested[1] != digest():
            print(f"note: {os.path.relpath(path, ROOT)} is of other sources than these; `make test-gpu` on such a machine renews it")
    return 0


def run_stages(names, args):
    stages = {name: Stage(name) for name in names}

    def one(name):
        stages[name].start = time.time()
        print(f"[{name}] begins {datetime.datetime.now():%H:%M:%S}, at most {BUDGET // 60} minutes", flush=True)
        missing = not_built() if name != "build" else []
        if missing:
            stages[name].result(name, False, "not built, the stage build makes them: " + " ".join(missing))
        else:
            globals()[f"stage_{name}"](stages[name], args)
    if "build" in names:
        one("build")
        if stages["build"].failed:
            return [stages["build"]]
    for name in names:
        if name != "build":
            one(name)
    return list(stages.values())


def machine(n_gpus):
    code, out = run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"])
    found = [line.split(", ") for line in out.splitlines()] if code == 0 else []
    return found[0] if len(found) >= n_gpus else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", default="", help="some of " + ",".join(STAGES))
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--jobs", type=int, default=1, help="programs at a time in the stages ops, capture and sanitizer")
    parser.add_argument("--sanitizer-seconds", type=float, default=BUDGET - 40, help="no part of all cases begins that would end later")
    parser.add_argument("--bench-seconds", type=float, default=240, help="rows that have not begun by then are left out")
    args = parser.parse_args()
    if args.check:
        return check()
    names = [n for n in args.stage.split(",") if n] or (["build", "peers"] if args.gpus > 1 else [s for s in STAGES if s != "peers"])
    if any(n not in STAGES for n in names):
        parser.error("stages are " + ",".join(STAGES))
    found = machine(args.gpus)
    if found is None:
        print(f"test-gpu: fewer than {args.gpus} GPUs here (nvidia-smi)")
        print("0 passed, 1 failed")
        return 1
    os.makedirs(LOG, exist_ok=True)
    args.env = {"GCUDA_TEST_FULL": "1"} if args.full else {}
    toolkit = run(["make", "-s", "nvcc-version"])[1].strip().splitlines()
    several = f"{args.gpus} x " if args.gpus > 1 else ""
    head = [f"{'device':<22} {several}{found[0]}, driver {found[1]}", f"{'toolkit':<22} {toolkit[-1] if toolkit else '?'}",
            f"{'date':<22} {datetime.date.today().isoformat()}", f"{'digest of sources':<22} {digest()}"]
    print("\n".join(head), flush=True)
    name = re.sub(r"[^a-z0-9]+", "-", found[0].lower()).strip("-") + (f"-x{args.gpus}" if args.gpus > 1 else "")
    path = os.path.join(HARDWARE, name + ".txt")
    args.before = read_record(path, head)
    stages = run_stages(names, args)
    write_record(path, head, stages)
    print("written to " + os.path.relpath(path, ROOT))
    sums = [sum(getattr(s, key) for s in stages) for key in ("passed", "failed", "skipped")]
    print(f"{sums[0]} passed, {sums[1]} failed, {sums[2]} skipped")
    return 0 if sums[1] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
