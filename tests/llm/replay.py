#!/usr/bin/env python3
"""Forward passes of the small models on a machine that has no Python packages: expected logits are written here and compared there.

    replay.py record FOLDER                                     with the packages of the tests: files, cases and float64 results (20 MB)
    replay.py run FOLDER [--probe PROGRAM] [--backend CUDA0]    with Python alone. Last line: N passed, N failed

A case is a session and calls of eval or embed; cosine and largest difference of each row are judged as check.py does.
"""
import argparse
import array
import json
import math
import os
import shutil
import struct
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
F32, F16 = 0, 1  # numbers of gcuda_type
N_TOKENS, N_LONG = 45, 300


# ---- recording ----

def decoder_cases(ref, name, windows):
    """(what, session, ids, tokens of each call, rows wanted, cosine, error)"""
    sys.path.insert(0, HERE)
    import check
    ids = check.prompt(ref.n_vocab, N_TOKENS, 1)
    for what, chunk, step in (("at once", 64, N_TOKENS), ("in chunks of 7", 7, N_TOKENS), ("token by token", 64, 1)):
        yield f"{name} {what}", f"256 1 {chunk} 64 2 {F32} 1", ids, step, N_TOKENS, 0.99999, 1e-3
    yield f"{name} as used, cache F16", f"256 1 64 64 2 {F16} 0", ids, N_TOKENS, N_TOKENS, 0.999, 0.05
    if windows:
        ids = check.prompt(ref.n_vocab, N_LONG, 2)
        yield f"{name}, {N_LONG} tokens", f"1024 1 64 64 2 {F32} 1", ids, 50, N_TOKENS, 0.99999, 1e-3


def record(folder):
    sys.path.insert(0, HERE)
    import check
    import make_models
    import reference
    os.makedirs(folder, exist_ok=True)
    run, cases = check.Run(argparse.Namespace()), []

    def add(what, file, session, command, ids, step, wanted, rows, cosine, error):
        result = f"{len(cases)}.f32"
        rows.astype("<f4").tofile(os.path.join(folder, result))
        cases.append({"what": what, "file": file, "session": session, "command": command, "ids": ids, "step": step, "wanted": wanted,
                      "columns": rows.shape[-1], "result": result, "cosine": cosine, "error": error})
    for spec in make_models.SPECS:
        if spec.name == "gemma3-27b":  # its 62 layers are about one number of the file: check.py is enough
            continue
        path = run.exact(run.path(spec.name))
        file = os.path.basename(path)
        shutil.copyfile(path, os.path.join(folder, file))
        ref = reference.Model(path, n_ctx=256)
        if spec.arch == "bert":
            ids = check.prompt(ref.n_vocab, N_TOKENS, 1)
            add(spec.name, file, f"128 1 128 1 2 {F32} 1", "embed", ids, N_TOKENS, 1, ref.embed(ids)[None], 0.99999, 1e-3)
            continue
        for what, session, ids, step, wanted, cosine, error in decoder_cases(ref, spec.name, spec.name in check.WINDOW_MODELS):
            if spec.experts and "as used" in what:  # another expert may be chosen: nothing to compare row by row
                continue
            add(what, file, session, "eval", ids, step, wanted, ref.logits(ids)[-wanted:], cosine, error)
    with open(os.path.join(folder, "cases.json"), "w", encoding="utf-8") as f:
        json.dump(cases, f)
    print(f"{len(cases)} cases in {folder}")
    return 0


# ---- running, without packages ----

class Probe:
    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def call(self, line, data=b""):
        self.process.stdin.write(line.encode() + b"\n" + data)
        self.process.stdin.flush()
        head = self.process.stdout.read(8)
        if len(head) != 8:
            raise RuntimeError(f"the program ended, exit code {self.process.wait()}")
        status, n = struct.unpack("=ii", head)
        answer = self.process.stdout.read(n)
        if status != 0:
            raise RuntimeError(f"status {status}: {answer.decode('utf-8', 'replace')}")
        return answer


def answer_of(probe, case):
    """The rows that the case wants, as one array of floats."""
    ids, got = case["ids"], array.array("f")
    probe.call(f"session {case['session']}")
    if case["command"] == "embed":
        got.frombytes(probe.call(f"embed {len(ids)}", struct.pack(f"={len(ids)}i", *ids)))
        return got
    first = len(ids) - case["wanted"]
    for at in range(0, len(ids), case["step"]):
        part = ids[at:at + case["step"]]
        n = len(part)
        wanted = bytes(at + i >= first for i in range(n))
        got.frombytes(probe.call(f"eval {n}", struct.pack(f"={n}i", *part) + bytes(4 * n) + wanted))
    return got


def compare(got, want, columns):
    """(least cosine, largest difference in parts of the largest number of its row)"""
    cosine, error = 1.0, 0.0
    for at in range(0, len(want), columns):
        a, b = got[at:at + columns], want[at:at + columns]
        squares = math.fsum(x * x for x in a) * math.fsum(y * y for y in b)
        if not math.isfinite(squares) or squares == 0:
            return 0.0, math.inf
        cosine = min(cosine, math.fsum(x * y for x, y in zip(a, b)) / math.sqrt(squares))
        error = max(error, max(abs(x - y) for x, y in zip(a, b)) / max(abs(y) for y in b))
    return cosine, error


def judge(probe, folder, case, backend):
    """None, or what is wrong."""
    want = array.array("f")
    with open(os.path.join(folder, case["result"]), "rb") as f:
        want.frombytes(f.read())
    if sys.byteorder == "big":
        want.byteswap()
    probe.call(f"load {backend} {os.path.join(folder, case['file'])}")
    got = answer_of(probe, case)
    if len(got) != len(want):
        return f"{len(got)} numbers, want {len(want)}"
    cosine, error = compare(got, want, case["columns"])
    is_good = cosine >= case["cosine"] and error <= case["error"]
    return None if is_good else f"cosine {cosine:.7f}, want {case['cosine']}; largest difference {error:.2e}, want {case['error']:.0e}"


def run(folder, program, backend):
    with open(os.path.join(folder, "cases.json"), encoding="utf-8") as f:
        cases = json.load(f)
    n_failed, probe = 0, None
    for case in cases:
        probe = probe or Probe(program)
        try:
            bad = judge(probe, folder, case, backend)
        except (RuntimeError, OSError) as e:
            bad, probe = str(e), None
        n_failed += bad is not None
        print(f"FAILED  {case['what']}: {bad}" if bad else f"ok      {case['what']}", flush=True)
    print(f"{len(cases) - n_failed} passed, {n_failed} failed")
    return 1 if n_failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["record", "run"])
    parser.add_argument("folder")
    parser.add_argument("--probe", default=os.path.join(ROOT, "build", "cuda", "llm-probe"))
    parser.add_argument("--backend", default="CUDA0")
    args = parser.parse_args()
    return record(args.folder) if args.what == "record" else run(args.folder, args.probe, args.backend)


if __name__ == "__main__":
    sys.exit(main())
