#!/usr/bin/env python3
"""Writes the expected results of the real models, tests/llm/expected/*.json, with the numpy references.

    make_expected.py smollm2    20 prompts: greedy continuations of 64 tokens and the largest logits (float64; some minutes)
    make_expected.py minilm     50 sentences: their embeddings (float64), and with --sentence-transformers how near its own are
"""
import argparse
import json
import os
import sys

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import models
import oracles
import reference

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "expected")
N_TOKENS, TOP, MARGIN = 64, 8, 1e-3

TEXTS = [
    "The capital of France is",
    "Once upon a time, there was a little robot who",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "The three primary colours are",
    "Water boils at 100 degrees Celsius, which is",
    "1, 2, 3, 4, 5,",
    "#include <stdio.h>\n\nint main(void) {\n",
    "It was the best of times, it was the worst of times,",
    "Die Hauptstadt von Deutschland ist",
    "In 1969, Neil Armstrong",
]
CHATS = [
    [("user", "What is the capital of Italy?")],
    [("user", "Write a short poem about the sea.")],
    [("system", "You answer in one sentence."), ("user", "Why is the sky blue?")],
    [("user", "Hi!"), ("assistant", "Hello! How can I help you today?"), ("user", "Tell me a joke about computers.")],
    [("user", "List three fruits that are red.")],
    [("user", "How do I sort a list in Python?")],
    [("user", "Translate 'good morning' into French.")],
    [("system", "You are a pirate."), ("user", "Where is the treasure?")],
    [("user", "What is 12 + 30?")],
    [("user", "Explain what a prime number is.")],
]


def write(name, data):
    with open(os.path.join(FOLDER, name), "w", encoding="utf-8", newline="\n") as f:
        f.write("[\n" + ",\n".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in data) + "\n]\n")


def smollm2():
    path = models.smollm2()
    oracle, model = oracles.Oracle(path), reference.Model(path)
    rows = [{"text": t} for t in TEXTS]
    rows += [{"messages": [{"role": r, "content": c} for r, c in chat]} for chat in CHATS]
    for row in rows:
        if "messages" in row:
            row["text"] = oracle.render(row["messages"], True)
        row["ids"] = oracle.encode(row["text"], special="messages" in row)
    for row, out in zip(rows, model.generate([row["ids"] for row in rows], N_TOKENS)):
        row["continuation"] = [t for t, _ in out]
        # tokens that a correct program must reproduce: up to the first near tie
        row["n_sure"] = next((i for i, (_, margin) in enumerate(out) if margin < MARGIN), len(out))
    for row in rows:  # the largest logits after the prompt and half way
        logits = model.logits(row["ids"] + row["continuation"][:N_TOKENS // 2])
        for name, at in (("top", len(row["ids"]) - 1), ("top_half_way", len(logits) - 1)):
            best = np.argsort(-logits[at])[:TOP]
            row[name] = {int(i): round(float(logits[at][i]), 5) for i in best}
    write("smollm2.json", rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["smollm2"])
    args = parser.parse_args()
    os.makedirs(FOLDER, exist_ok=True)
    globals()[args.what]()


if __name__ == "__main__":
    main()
