#!/usr/bin/env python3
"""argsort and top_k compared with torch's, on a GPU: needs PyTorch, and the file of `bench-gpu --json FILE`.

    sorts.py FILE        a line for each row: us of ours and of torch's sort, stable argsort and topk, and the ratio to the fastest
                         of those that give the same (argsort: any order of equals; top_k: the largest in order)

As in the bench: the median of replays of a CUDA graph of 50 calls on the same buffers, random floats.
"""
import json
import re
import statistics
import sys

import torch

N_CALLS, N_REPLAYS = 50, 20


def us_of(function):
    for _ in range(3):
        function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(N_CALLS):
            function()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    samples = []
    for _ in range(N_REPLAYS):
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        samples.append(begin.elapsed_time(end) * 1e3 / N_CALLS)
    return statistics.median(samples)


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        rows = json.load(f)["rows"]
    torch.manual_seed(1)
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
    for row in rows:
        shape = re.match(r"(ARGSORT|TOP_K) type=f32,ne=\[(\d+),(\d+)\](?:,k=(\d+))?", row["name"])
        if not shape:
            continue
        x = torch.randn(int(shape[3]), int(shape[2]), device="cuda")
        ways = {"sort": lambda: torch.sort(x, dim=1), "argsort": lambda: torch.argsort(x, dim=1, stable=True)}
        if shape[1] == "TOP_K":
            ways["topk"] = lambda: torch.topk(x, int(shape[4]), dim=1)
        times = {name: us_of(way) for name, way in ways.items()}
        print(f"{row['us_same']:9.2f}  {min(times.values()) / row['us_same']:5.2f}x  "
              + "  ".join(f"{name} {us:9.2f}" for name, us in times.items()) + f"  {row['name']}", flush=True)


if __name__ == "__main__":
    main()
