#!/usr/bin/env python3
"""What the bench of a hardware record misses of the speeds that this project sets itself.

    goals.py tests/hardware/GPU.txt      a line for each row that misses, and counts

Shares are of the record's own ceilings. What is asked as a multiple of the reference's time holds for the GPU that those times were
measured on, an H200, and is left out for others. `asked` is what the goals below allow at most, in us.
"""
import re
import sys

ROW = re.compile(r"^ *([\d.]+) +([\d.]+) (GB|TF) +[\d.]+% (\w+) +([\d.]+) +(?:([\d.]+) +[\d.]+ +)?([A-Z_0-9]+) (.*?)(?: +\*.*)?$")
BITS = {"f32": 32, "f16": 16, "bf16": 16, "q4_0": 4.5, "q4_1": 5, "q5_0": 5.5, "q5_1": 6, "q8_0": 8.5, "mxfp4": 4.25, "q2_K": 2.625,
        "q3_K": 3.4375, "q4_K": 4.5, "q5_K": 5.5, "q6_K": 6.5625, "iq2_xxs": 2.0625, "iq2_xs": 2.3125, "iq2_s": 2.5625,
        "iq3_xxs": 3.0625, "iq1_s": 1.5625, "iq1_m": 1.75, "iq4_nl": 4.5, "iq3_s": 3.4375, "iq4_xs": 4.25}
FLOATS = ("f32", "f16", "bf16")
CODEBOOKS = ("iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq1_s", "iq1_m", "iq3_s")
SIMPLE = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl", "mxfp4")
WHOLE = ("SWIGLU", "CPY", "CONT", "SCALE", "RMS_NORM", "NORM", "L2_NORM", "GROUP_NORM", "RMS_NORM_BACK", "SOFT_MAX", "SOFT_MAX_BACK", "ROPE",
         "OPT_STEP_ADAMW", "OPT_STEP_SGD", "GELU", "SILU", "ADD", "MUL", "TIMESTEP_EMBEDDING", "FILL", "ARANGE", "TRI", "DIAG_MASK_INF")
PARTLY = ("GET_ROWS", "SET_ROWS", "GET_ROWS_BACK", "SUM_ROWS", "SUM", "MEAN", "ARGMAX", "COUNT_EQUAL", "CROSS_ENTROPY_LOSS", "POOL_1D", "POOL_2D",
          "UPSCALE", "CONCAT", "PAD", "REPEAT", "REPEAT_BACK", "CUMSUM")
PAST_L2 = 100e6 # bytes that a row moves


class Record:
    def __init__(self, text):
        def ceiling(name):
            return float(re.search(rf"^ +([\d.]+) \S+ +{name}", text, re.M)[1])
        self.copy = ceiling(r"CPY type_src=f32,type_dst=f32") * 1e3  # bytes a microsecond
        self.read = ceiling(r"MUL_MAT type=f32,m=131072") * 1e3
        self.gemm = {"": ceiling(r"cuBLAS F16, 8192") * 1e6, "512": ceiling(r"cuBLAS F16, m=4096,n=512") * 1e6,
                     "2048": ceiling(r"cuBLAS F16, m=4096,n=2048") * 1e6}  # operations a microsecond
        self.has_references = re.search(r"^device +(?:\d+ x )?NVIDIA H200\b", text, re.M) is not None
        self.tables = {}
        title = before = None
        for line in text.splitlines():
            row = ROW.match(line)
            if line.startswith("rotated us"):
                title = before
            elif row is not None and title is not None:
                self.tables.setdefault(title, []).append(row.groups())
            before = line


def share_of_one_column(kind):
    return 0.7 if kind in ("q2_K", "q3_K") else 0.85 if kind not in CODEBOOKS + FLOATS else 0.0


def most_of_operation(r, name, what, n_bytes, n_ops):
    """us that one of the operations may take; None: nothing is asked."""
    if name == "CONV_2D" and "type_kernel=f16" in what and n_ops >= 20e9:
        return n_ops / (0.4 * r.gemm[""])
    if n_bytes < PAST_L2 or name not in WHOLE + PARTLY:
        return None
    rows = re.search(r"ne=\[\d+,(\d+)\]", what)
    is_whole = name in WHOLE and "permute" not in what
    share = 0.6 if name == "CUMSUM" and rows and int(rows[1]) < 132 else 0.9 if is_whole else 0.75
    return n_bytes / (share * r.copy)


def most_of_product(r, kind, m, n, k, reference, one):
    """one: us of one column of the same weights."""
    n_bytes, is_large = m * k * BITS[kind] / 8, m > 4096
    of_reference = reference if r.has_references else None
    found = []
    if n == 1 and share_of_one_column(kind) > 0:
        found.append(n_bytes / (share_of_one_column(kind) * r.read) + (0.0 if is_large else 2.5))
    if n <= 8 and kind in FLOATS:
        found += [of_reference] if is_large and of_reference else [n_bytes / r.read + 2.5] if not is_large else []
    if n == 8 and kind not in FLOATS:
        found += [of_reference / 2] if of_reference else []
        found += [1.5 * one] if is_large and one and share_of_one_column(kind) == 0.85 else []
    if n == 1 and kind in CODEBOOKS and is_large:
        found += [of_reference / 2] if of_reference else []
    if 16 <= n <= 128 and kind != "f32":
        found += [of_reference / (1.2 if kind in FLOATS else 1.5)] if of_reference else []
    if n >= 512 and kind not in FLOATS:
        share = 0.8 if n == 2048 else 0.75 if kind in SIMPLE else 0.7
        found.append(2.0 * m * n * k / (share * r.gemm[str(n)]))
        found += [of_reference / (2.8 if n == 2048 else 2.2)] if of_reference else []
    return min(found) if found else None


def most_of_experts(r, kind, what, reference):
    e, u, m, k, n = (int(re.search(rf"\b{x}=(\d+)", what)[1]) for x in "EUmkn")
    floor = e * (1 - (1 - u / e) ** n) * m * k * BITS[kind] / 8 / r.read  # of the experts that so many tokens touch in the mean
    factor = 1.3 if n <= 8 else 2.0 if n >= 512 else 3.0
    return max(floor / 0.75 + 3.0, reference / factor) if reference and r.has_references else None


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as f:
        r = Record(f.read())
    n_asked = n_missed = 0
    for title, rows in r.tables.items():
        one = {}
        for us, rate, unit, _, same, reference, name, what in rows:
            us, reference = float(us), float(reference) if reference else None
            n_bytes, n_ops = (float(rate) * us * 1e3, 0.0) if unit == "GB" else (0.0, float(rate) * us * 1e6)
            product = re.match(r"type=(\w+),m=(\d+),n=(\d+),k=(\d+)$", what)
            if name == "MUL_MAT" and product and title.startswith("products"):
                kind, m, n, k = product[1], *map(int, product.groups()[1:])
                if n == 1:
                    one[kind, m] = us
                is_forced = "cuBLAS" in title # another way than dispatch's
                most = None if is_forced else most_of_product(r, kind, m, n, k, reference, one.get((kind, m)))
            elif name == "MUL_MAT_ID":
                most = most_of_experts(r, re.match(r"type=(\w+)", what)[1], what, reference)
            elif title.startswith("everything") or title.startswith("past"):
                most = most_of_operation(r, name, what, n_bytes, n_ops)
                same = float(same)
                if reference and r.has_references and (most is None or same > 1.05 * reference): # which was measured on the same buffers
                    us, most = same, 1.05 * reference
            else:
                most = None
            n_asked += most is not None
            if most is not None and us > most:
                n_missed += 1
                print(f"{us:9.2f} us, asked {most:9.2f}, {us / most:5.2f} x  {name} {what}")
    print(f"{n_asked - n_missed} of {n_asked} rows reach what is asked, {n_missed} do not")


if __name__ == "__main__":
    main()
