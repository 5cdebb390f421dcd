#!/usr/bin/env python3
"""Writes the expected results of the real models, tests/llm/expected/*.json, with the numpy references.

    make_expected.py smollm2    20 prompts: greedy continuations of 64 tokens and the largest logits (float64; some minutes)
    make_expected.py perplexity the perplexity of SmolLM2 on the first 512 and 2000 tokens of corpus.txt (float64)
    make_expected.py minilm     50 sentences: their embeddings by the PyPI package sentence-transformers (it and torch must be importable; they
                                are not among the packages of the tests), then as compare
    make_expected.py compare    how near the numpy forward pass is to those

GGUF programs compute GELU in its tanh form, the original model in its erf form: that much of the distance is no fault.
"""
import argparse
import base64
import json
import os
import sys
import tempfile

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import models

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


SENTENCES = [
    "A man is eating food.", "Someone is having a meal.", "The stock market fell today.", "Shares dropped sharply on Tuesday.", "How do I reset my password?",
    "I forgot my login details.", "The cat sits on the mat.", "A kitten is resting on the rug.", "It is raining outside.", "The weather is wet and cold.",
    "Der Hund läuft durch den Park.", "Le chat dort sur le canapé.", "El niño juega al fútbol.", "東京は日本の首都です。", "Москва — столица России.",
    "Hello", "hello!", "HELLO WORLD", "a", "?", "", "42", "3.14159 is close to pi.", "1969-07-20", "$19.99 (incl. 20% VAT)",
    "def add(a, b): return a + b", "SELECT name FROM users WHERE id = 7;", "https://example.com/path?query=1", "user@example.com", "C:\\Windows\\System32",
    "naïve café résumé", "Straße, Größe, Übermut", "don't won't can't", "state-of-the-art", "antidisestablishmentarianism", "pneumonoultramicroscopicsilicovolcanoconiosis",
    "\U0001f600 \U0001f44d", "  blanks   between\twords\n", "The quick brown fox jumps over the lazy dog.", "Water boils at one hundred degrees.",
    "At sea level, water turns to steam at 100 °C.", "The treaty was signed in 1648.", "Peace ended the Thirty Years' War.", "Photosynthesis turns light into chemical energy.",
    "Plants use sunlight to make sugar.", "She sells sea shells by the sea shore.", "Graphics cards multiply matrices quickly.", "A GPU is good at linear algebra.",
    "The captain counted the ships. " * 12, "one two three four five six seven eight nine ten " * 20,
]


def minilm():
    import sentence_transformers
    model = sentence_transformers.SentenceTransformer(models.minilm(), device="cpu")
    vectors = model.encode(SENTENCES, normalize_embeddings=True)
    ids = [model.tokenizer(text)["input_ids"] for text in SENTENCES]
    write("minilm.json", [{"text": text, "ids": row, "vector": base64.b64encode(vector.astype("<f2").tobytes()).decode("ascii")}
                          for text, row, vector in zip(SENTENCES, ids, vectors)])
    compare()


def compare():
    import convert_minilm
    import reference
    with open(os.path.join(FOLDER, "minilm.json"), encoding="utf-8") as f:
        rows = json.load(f)
    with tempfile.TemporaryDirectory() as folder:
        model = reference.Model(convert_minilm.convert(models.minilm(), os.path.join(folder, "minilm.gguf"), "f32"))
        ours = np.array([model.embed(row["ids"]) for row in rows])
    theirs = np.array([np.frombuffer(base64.b64decode(row["vector"]), "<f2") for row in rows], float)
    cosines = (theirs * ours).sum(-1) / np.sqrt((theirs ** 2).sum(-1))
    print(f"cosine of the numpy forward pass with sentence-transformers: least {cosines.min():.6f}, mean {cosines.mean():.6f}, {len(rows)} sentences")


def smollm2():
    import oracles
    import reference
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


def perplexity_of(model, ids, window, chunk=250):
    """Of all tokens but the first; the cache is emptied after every `window` tokens."""
    import reference
    surprises = []
    for begin in range(0, len(ids), window):
        cache, part = reference.Cache(model.n_layers), ids[begin:begin + window]
        for at in range(0, len(part), chunk):
            logits = model.logits(part[at:at + chunk], cache=cache)
            largest = logits.max(-1, keepdims=True)
            log_sums = np.log(np.exp(logits - largest).sum(-1)) + largest[:, 0]
            next_ids = ids[begin + at + 1:begin + at + 1 + len(logits)]
            surprises += [log_sums[i] - logits[i, t] for i, t in enumerate(next_ids)]
    return round(float(np.exp(np.mean(surprises))), 6)


def perplexity():
    """A cache of 4 bits makes long runs chaotic: a difference of 1e-7 flips a rounding, which flips others in all later layers and tokens. Two right
    programs differ by 0.5 to 1 % over 512 tokens. Windows of 16 tokens leave no time for that; `draws` says how far long runs of this reference
    itself are apart when the embeddings change by 1e-7."""
    import oracles
    import reference
    path = models.smollm2()
    with open(os.path.join(os.path.dirname(FOLDER), "corpus.txt"), encoding="utf-8") as f:
        ids = oracles.Oracle(path).encode(f.read())[:2000]
    rows = []
    for n in (512, len(ids)):
        rotated = perplexity_of(reference.Model(path, cache="rotated q4_0"), ids[:n], 16)
        rows.append({"tokens": n, "perplexity": perplexity_of(reference.Model(path), ids[:n], n), "rotated_q4_0_windows_of_16": rotated})
    rows[0]["rotated_q4_0_draws"] = []
    for seed in range(8):
        model = reference.Model(path, cache="rotated q4_0")
        noise = 1 + 1e-7 * np.random.default_rng(seed).standard_normal(model.f.tensor("token_embd.weight").shape)
        model.f.tensor = lambda name, of=model.f.tensor, noise=noise: of(name) * noise if name == "token_embd.weight" else of(name)
        rows[0]["rotated_q4_0_draws"].append(perplexity_of(model, ids[:512], 512))
    write("perplexity.json", rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["smollm2", "perplexity", "minilm", "compare"])
    args = parser.parse_args()
    os.makedirs(FOLDER, exist_ok=True)
    globals()[args.what]()


if __name__ == "__main__":
    main()
