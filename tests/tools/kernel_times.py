#!/usr/bin/env python3
"""What each kernel of a run takes on the GPU, those inside of CUDA graphs too, as PyTorch's profiler sees them (it has to be installed).

    kernel_times.py LIBRARY [--last MS] [--top N] -- ARGUMENTS

LIBRARY is a program built as a shared library whose main is called gcuda_main:
    cc ... -fPIC -shared -Dmain=gcuda_main examples/llm.c ... -o build/cuda/libllm.so
--last MS counts only launches in the last MS milliseconds of the run: generation after a prompt.
"""
import argparse
import collections
import ctypes
import json
import re
import sys
import tempfile


def short(name):
    """The kernel's name and its template arguments, without namespaces, types of parameters and casts."""
    name = re.sub(r"^void\s+|\(anonymous namespace\)::|\b\w+::", "", name)
    name = re.sub(r"\((?:int|bool|unsigned int|[a-z_]*)\)", "", name)
    return name.split("(")[0][:70]


def record(library, arguments):
    import torch
    torch.cuda.init()
    program = ctypes.CDLL(library)
    argv = (ctypes.c_char_p * (len(arguments) + 2))(*[a.encode() for a in ["program", *arguments]], None)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as p:
        status = program.gcuda_main(len(arguments) + 1, argv)
        ctypes.CDLL(None).fflush(None)
    with tempfile.NamedTemporaryFile(suffix=".json") as f:
        p.export_chrome_trace(f.name)
        events = json.load(open(f.name, encoding="utf-8"))["traceEvents"]
    return status, [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("--last", type=float, default=1e9)
    parser.add_argument("--top", type=int, default=15)
    parser.add_argument("arguments", nargs="+")
    args = parser.parse_args()
    status, events = record(args.library, args.arguments)
    if status != 0 or not events:
        sys.exit(f"the program returned {status}, {len(events)} kernels were seen")
    end = max(e["ts"] + e["dur"] for e in events)
    events = sorted((e for e in events if e["ts"] >= end - 1000 * args.last), key=lambda e: e["ts"])
    start, busy, idle, at = events[0]["ts"], 0.0, 0.0, events[0]["ts"]
    rows = collections.defaultdict(lambda: [0, 0.0])
    for e in events:
        idle += max(0.0, e["ts"] - at)
        busy += e["dur"]
        at = max(at, e["ts"] + e["dur"])
        row = rows[short(e["name"])]
        row[0] += 1
        row[1] += e["dur"]
    print(f"{len(events)} kernels and copies in {(end - start) / 1000:.2f} ms: busy {busy / 1000:.2f}, nothing running {idle / 1000:.2f} ms")
    for name, (n, us) in sorted(rows.items(), key=lambda r: -r[1][1])[:args.top]:
        print(f"  {us / 1000:9.3f} ms {n:6d} x {us / n:8.2f} us  {name}")


if __name__ == "__main__":
    main()
