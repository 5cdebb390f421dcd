"""What small examples print, computed anew in plain Python: a table of program: function of its output, which raises AssertionError."""
import math
import re
import struct


def f32(x):
    return struct.unpack("f", struct.pack("f", x))[0]


def f16(x):
    return struct.unpack("e", struct.pack("e", x))[0]


def numbers(line):
    return [float(x) for x in re.findall(r"-?\d+(?:\.\d+)?", line)]


def mlp(output):
    got = [numbers(line) for line in output.splitlines()]
    assert got == [[a, b, a ^ b] for a in (0, 1) for b in (0, 1)], f"no exclusive or: {output!r}"


def decode(output):
    """Attention over all earlier tokens, without a cache: keys and values of every token are rounded to F16, as the cache's are."""
    n_embd, n_heads, size, n_tokens = 32, 4, 8, 24
    w = [[[f32(0.3) * math.sin(f32(f32((m + 1) * f32(0.37)) * ((r * n_embd + c) % 97))) for c in range(n_embd)] for r in range(n_embd)]
         for m in range(4)]
    x = [[math.sin(f32(f32(f32(0.7) * t) + f32(f32(1.3) * i))) for i in range(n_embd)] for t in range(n_tokens)]

    def times(m, v):
        return [sum(a * b for a, b in zip(row, v)) for row in w[m]]

    def rotate(v, t):
        out = list(v)
        for h in range(n_heads):
            for j in range(size // 2):
                i, angle = h * size + 2 * j, t * 10000.0 ** (-2.0 * j / size)
                out[i] = v[i] * math.cos(angle) - v[i + 1] * math.sin(angle)
                out[i + 1] = v[i] * math.sin(angle) + v[i + 1] * math.cos(angle)
        return out
    k = [[f16(e) for e in rotate(times(1, x[t]), t)] for t in range(n_tokens)]
    v = [[f16(e) for e in times(2, x[t])] for t in range(n_tokens)]

    def layer(t):
        q, mixed = rotate(times(0, x[t]), t), []
        for h in range(n_heads):
            span = range(h * size, (h + 1) * size)
            e = [math.exp(sum(q[i] * k[j][i] for i in span) / math.sqrt(size)) for j in range(t + 1)]
            mixed += [sum(e[j] * v[j][i] for j in range(t + 1)) / sum(e) for i in span]
        return [a + b for a, b in zip(x[t], times(3, mixed))]
    got = re.findall(r"^(\w+) +token +(\d+): +(\S+) +(\S+) +(\S+)$", output, re.M)
    assert [(way, int(t)) for way, t, *_ in got] == [(way, t) for way in ("index", "move", "rebuild") for t in (7, 15, 23)], output
    for way, t, *values in got:
        for a, b in zip(map(float, values), layer(int(t))):
            assert abs(a - b) < 2e-3, f"{way}, token {t}: {a}, want {b:.5f}"


def embed_engine(output):
    """The first agent's actions: soft_max(w2 rms_norm(relu(w1 senses)))."""
    n_senses, n_hidden, n_actions = 32, 64, 4
    weights = [0.01 * (i * 37 % 101) - 0.5 for i in range((n_senses + n_actions) * n_hidden)]
    senses = [0.1 * (i % 17) - 0.8 for i in range(n_senses)]

    def times(rows, v):
        return [sum(a * b for a, b in zip(rows[r * len(v):], v)) for r in range(len(rows) // len(v))]
    h = [max(0.0, e) for e in times(weights[:n_senses * n_hidden], senses)]
    scale = 1.0 / math.sqrt(sum(e * e for e in h) / n_hidden + 1e-6)
    e = [math.exp(x * scale) for x in times(weights[n_senses * n_hidden:], h)]
    got = re.match(r"60 frames, 0 allocations and (\d+) jobs in them, \d+ bytes in use; first agent: (.*)$", output)
    assert got and int(got[1]) > 0, output
    for a, b in zip(numbers(got[2]), e, strict=True):
        assert abs(a - b / sum(e)) < 1e-3, f"{a}, want {b / sum(e):.3f}: {output}"


ORACLES = {"mlp": mlp, "decode": decode, "embed_engine": embed_engine}
