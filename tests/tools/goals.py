#!/usr/bin/env python3
"""What the bench of a hardware record misses of the speeds that this project sets itself.

    goals.py tests/hardware/GPU.txt      a line for each row that misses, for each that is not judged for its size, and counts

Shares are of the record's own ceilings. What is asked as a multiple of the reference's time holds for the GPU that those times were
measured on, an H200, and is left out for others. `asked` is what the goals below allow at most, in us. argsort and top_k are to be
compared with other libraries' kernels, of which a record has no times: they are judged as all rows with a reference are.
"""
import math
import re
import sys

ROW = re.compile(r"^ *([\d.]+) +([\d.]+) (GB|TF) +[\d.]+% (\w+) +(?:[\d.]+% \w+ +)?([\d.]+) +(?:([\d.]+) +[\d.]+ +)?([A-Z_0-9]+) (.*?)(?: +\*.*)?$")
BITS = {"f32": 32, "f16": 16, "bf16": 16, "q4_0": 4.5, "q4_1": 5, "q5_0": 5.5, "q5_1": 6, "q8_0": 8.5, "mxfp4": 4.25, "q2_K": 2.625,
        "q3_K": 3.4375, "q4_K": 4.5, "q5_K": 5.5, "q6_K": 6.5625, "iq2_xxs": 2.0625, "iq2_xs": 2.3125, "iq2_s": 2.5625,
        "iq3_xxs": 3.0625, "iq1_s": 1.5625, "iq1_m": 1.75, "iq4_nl": 4.5, "iq3_s": 3.4375, "iq4_xs": 4.25}
FLOATS = ("f32", "f16", "bf16")
CODEBOOKS = ("iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq1_s", "iq1_m", "iq3_s")
SIMPLE = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl", "mxfp4")
# Element-wise, copies, norms, soft_max, rope, GLU, optimizers: 90 % of copying, where nothing is permuted
WHOLE = ("ADD", "ADD1", "SUB", "MUL", "DIV", "SQR", "SQRT", "LOG", "SIN", "COS", "SCALE", "CLAMP", "LEAKY_RELU", "UNARY", "GELU", "SILU",
         "SILU_BACK", "REGLU", "GEGLU", "SWIGLU", "SWIGLU_OAI", "GEGLU_ERF", "GEGLU_QUICK", "CPY", "CONT", "DUP", "ACC", "SET", "FILL", "ARANGE",
         "TRI", "DIAG_MASK_INF", "DIAG_MASK_ZERO", "TIMESTEP_EMBEDDING", "NORM", "RMS_NORM", "RMS_NORM_BACK", "L2_NORM", "GROUP_NORM",
         "SOFT_MAX", "SOFT_MAX_BACK", "CROSS_ENTROPY_LOSS_BACK", "ROPE", "ROPE_BACK", "OPT_STEP_ADAMW", "OPT_STEP_SGD")
# and 75 %; the sums along few rows 60 %
PARTLY = ("GET_ROWS", "SET_ROWS", "GET_ROWS_BACK", "ADD_ID", "SUM_ROWS", "SUM", "MEAN", "ARGMAX", "COUNT_EQUAL", "CROSS_ENTROPY_LOSS", "CUMSUM",
          "POOL_1D", "POOL_2D", "POOL_2D_BACK", "UPSCALE", "CONCAT", "REPEAT", "REPEAT_BACK", "PAD", "PAD_REFLECT_1D", "ROLL", "DIAG", "IM2COL",
          "IM2COL_3D", "IM2COL_BACK")
TWICE = ("SSM_SCAN", "RWKV_WKV6", "RWKV_WKV7", "GATED_LINEAR_ATTN")  # the reference's speed, at 512 tokens
PAST_L2 = 100e6  # bytes that a row moves; of smaller ones starting and ending is too large a part
MEAN_RATIO, MEAN_FROM_US = 2.5, 6.0  # of the table of everything else, rows above so many us
LAUNCHER_US = 1.0  # more than a bare launch
STEP = 1.1  # of the time of fewer columns, or tokens: at most so much more than that of more, or of one more behind a change of the way
OBJECTS_MB, OBJECTS_CPU_S = 40.0, 600.0  # machine code for 90a, and the compiler's time for it


class Record:
    def __init__(self, text):
        def ceiling(name):
            return float(re.search(rf"^ +([\d.]+) \S+ +{name}", text, re.M)[1])
        self.copy = ceiling(r"CPY type_src=f32,type_dst=f32") * 1e3  # bytes a microsecond
        self.read = ceiling(r"MUL_MAT type=f32,m=131072") * 1e3
        self.gemm = {kind + n: ceiling(rf"cuBLAS {kind}, {what}") * 1e6  # operations a microsecond
                     for kind in ("F16", "BF16") for n, what in (("", "8192"), ("512", "m=4096,n=512"), ("2048", "m=4096,n=2048"))}
        self.has_references = re.search(r"^device +(?:\d+ x )?NVIDIA H200\b", text, re.M) is not None
        l2 = re.search(r"multiprocessors, L2 (\d+) MB", text)
        self.l2 = float(l2[1]) * 1e6 if l2 else 50e6
        self.multiprocessors = int(re.search(r"(\d+) multiprocessors, L2", text)[1]) if l2 else 132
        self.launchers = [(float(m[1]), m[2]) for m in re.finditer(r"^ +[\d.]+ +([+-][\d.]+) +(gcuda_launch_\w+)$", text, re.M)]
        self.objects = re.search(r"together +([\d.]+) CPU s +\d+ bytes  sm_90a +(\d+)", text)
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


def share_of_copying(r, name, what):
    """None: nothing is asked of that operation."""
    if name not in WHOLE + PARTLY:
        return None
    rows = re.search(r"ne=\[\d+,(\d+)(?:,(\d+))?", what)
    is_few = name == "CUMSUM" and (rows is None or int(rows[1]) * int(rows[2] or 1) < r.multiprocessors)
    return 0.6 if is_few else 0.9 if name in WHOLE and "permute" not in what else 0.75


def convolution_ops(what):
    def extents(key):
        found = re.search(rf"{key}=\[([\d,]+)\]", what)[1].split(",")
        return [int(n) for n in found] + [1] * (4 - len(found))
    x, w = extents("ne_input"), extents("ne_kernel")
    return 2 * (x[0] - w[0] + 1) * (x[1] - w[1] + 1) * w[3] * x[3] * w[0] * w[1] * w[2]  # strides 1, no padding


def limits_of_operation(r, name, what, us, same, reference, n_bytes):
    """What is asked of one of the operations: (us it takes, us it may take, why) each."""
    found = []
    n_ops = convolution_ops(what) if name == "CONV_2D" else 0
    share = share_of_copying(r, name, what)
    if n_ops >= 20e9 and "type_kernel=f16" in what:
        found.append((us, n_ops / (0.4 * r.gemm["F16"]), "40 % of cuBLAS"))
    if share and n_bytes >= PAST_L2:
        found.append((us, n_bytes / (share * r.copy), f"{100 * share:.0f} % of copying"))
    if reference and r.has_references:  # which was measured on the same buffers
        found.append((same, 1.05 * reference, "no slower than the reference"))
        if n_ops >= 0.1e9:
            found.append((same, reference / 10, "10 times the reference"))
        if name in TWICE and "n_seq_tokens=512," in what:
            found.append((same, reference / 2, "twice the reference"))
    return found


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
        found += [1.5 * one] if one and share_of_one_column(kind) == 0.85 else []
    if n == 1 and kind in CODEBOOKS and is_large:
        found += [of_reference / 2] if of_reference else []
    if 16 <= n <= 128 and kind != "f32":
        found += [of_reference / (1.2 if kind in FLOATS else 1.5)] if of_reference else []
    if n >= 512 and kind != "f32":
        share = (0.86 if n == 2048 else 0.88) if kind in FLOATS else 0.8 if n == 2048 else 0.75 if kind in SIMPLE else 0.7
        found.append(2.0 * m * n * k / (share * r.gemm[f"F16{n}"]))
        found += [of_reference / (2.8 if n == 2048 else 2.2)] if of_reference and kind not in FLOATS else []
    return min(found) if found else None


def most_of_own_gemm(r, kind, n, k, m):
    """80 % of cuBLAS on the same type, where it was timed on that shape."""
    ceiling = r.gemm.get(kind.upper() + (str(n) if m == 4096 else ""))
    return 2.0 * m * n * k / (0.8 * ceiling) if ceiling else None


def most_of_experts(r, kind, what, reference):
    e, u, m, k, n = (int(re.search(rf"\b{x}=(\d+)", what)[1]) for x in "EUmkn")
    floor = e * (1 - (1 - u / e) ** n) * m * k * BITS[kind] / 8 / r.read  # of the experts that so many tokens touch in the mean
    factor = 1.3 if n <= 8 else 2.0 if n >= 512 else 3.0
    return max(floor / 0.75 + 3.0, reference / factor) if reference and r.has_references else None


class Count:
    def __init__(self):
        self.asked = self.missed = self.small = 0
        self.unasked, self.ratios = {}, []

    def judge(self, limits, text):
        """A line where the worst of the limits is missed."""
        self.asked += len(limits) > 0
        us, most, why = max(limits, key=lambda x: x[0] / x[1]) if limits else (0.0, 1.0, "")
        if us > most:
            self.missed += 1
            print(f"{us:9.2f} us, asked {most:9.2f}, {us / most:5.2f} x  {text}{'   (' + why + ')' if why else ''}")

    def leave(self, r, name, what, us, n_bytes, is_judged):
        """Says which rows past L2 are not held to a share of copying, and counts what else nothing is asked of."""
        share = share_of_copying(r, name, what)
        if share and r.l2 <= n_bytes < PAST_L2:
            reached = n_bytes / us / r.copy
            print(f"{100 * reached:5.1f} % of copying, asked of larger ones {100 * share:.0f} %{' (below)' if reached < share else ''}: "
                  f"{n_bytes * 1e-6:.0f} MB are too few to judge  {name} {what}")
            self.small += 1
        elif not is_judged:
            self.unasked[name] = self.unasked.get(name, 0) + 1

    def steps(self, products, experts):
        """From 16 to 128 columns more take longer, and none much longer than one less; nor do 9 tokens (of experts more are touched then)."""
        for times, what in ((products, "MUL_MAT"), (experts, "MUL_MAT_ID")):
            for key, by_n in sorted(times.items()):
                numbers = sorted(n for n in by_n if n >= 8)
                for before, after in zip(numbers, numbers[1:]):
                    name = f"{what} {key}, n={before} and n={after}: "
                    if what == "MUL_MAT" and before >= 16:
                        self.judge([(by_n[before], STEP * by_n[after], "")], name + "fewer take longer")
                    if after == before + 1 and (what == "MUL_MAT_ID" or 16 <= before < 128):
                        self.judge([(by_n[after], STEP * by_n[before], "")], name + "a step")

    def beside_cublas(self, r, products):
        """Quantized products, beside weights that are written out as BF16 for cuBLAS."""
        for us, *_, what in r.tables.get("products, m=4096 k=14336, weights written out as BF16 for cuBLAS", []):
            kind, m, n, k = re.match(r"type=(\w+),m=(\d+),n=(\d+),k=(\d+)$", what).groups()
            own = products.get(f"type={kind},m={m},k={k}", {}).get(int(n))
            if own:
                self.judge([(own, float(us), "")], f"MUL_MAT {what}, beside cuBLAS on weights written out")

    def sums(self, r):
        if r.objects:
            self.judge([(float(r.objects[2]) * 1e-6, OBJECTS_MB, "MB")], "machine code for 90a")
            self.judge([(float(r.objects[1]), OBJECTS_CPU_S, "s")], "the compiler's time for it")
        if r.has_references and self.ratios:
            mean = math.exp(sum(math.log(x) for x in self.ratios) / len(self.ratios))
            self.asked += 1
            self.missed += mean < MEAN_RATIO
            print(f"{mean:.2f} x the reference's speed in the mean of {len(self.ratios)} rows above {MEAN_FROM_US:.0f} us, asked {MEAN_RATIO}"
                  f"{': missed' if mean < MEAN_RATIO else ''}")
        for us, name in r.launchers:
            self.judge([(us, LAUNCHER_US, "")], f"of the host, more than a bare launch: {name}")
        if self.small:
            print(f"{self.small} rows past L2 and below {PAST_L2 * 1e-6:.0f} MB were not held to a share of copying")
        if self.unasked:
            print("small ones, or nothing is asked of them: " + ", ".join(f"{name} ({n})" for name, n in sorted(self.unasked.items())))
        print(f"{self.asked - self.missed} of {self.asked} rows and sums reach what is asked, {self.missed} do not")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as f:
        r = Record(f.read())
    count = Count()
    products, experts = {}, {}
    for title, rows in r.tables.items():
        for us, rate, unit, _, same, reference, name, what in rows:
            us, same, reference = float(us), float(same), float(reference) if reference else None
            n_bytes = float(rate) * us * 1e3 if unit == "GB" else 0.0
            product = re.match(r"type=(\w+),m=(\d+),n=(\d+),k=(\d+)(,type_b=\w+)?$", what)
            most, limits = None, []
            if name == "MUL_MAT" and product:
                kind, m, n, k = product[1], *map(int, product.groups()[1:4])
                by_n = products.setdefault(f"type={kind},m={m},k={k}", {})
                if "without cuBLAS" in title:  # another way than dispatch's: with nothing to convert
                    most = most_of_own_gemm(r, kind, n, k, m) if product[5] else None
                elif "for cuBLAS" not in title:
                    by_n[n] = us
                    most = most_of_product(r, kind, m, n, k, reference, by_n.get(1))
            elif name == "MUL_MAT_ID":
                most = most_of_experts(r, re.match(r"type=(\w+)", what)[1], what, reference)
                by_n = experts.setdefault(re.sub(r",n=\d+", "", what), {})
                by_n[int(re.search(r",n=(\d+)", what)[1])] = us
            elif title.startswith("everything") or title.startswith("past"):
                limits = limits_of_operation(r, name, what, us, same, reference, n_bytes)
                count.leave(r, name, what, us, n_bytes, len(limits) > 0)
                if title.startswith("everything") and reference and reference > MEAN_FROM_US:
                    count.ratios.append(reference / same)
            count.judge(limits + ([(us, most, "")] if most else []), f"{name} {what}")
    count.steps(products, experts)
    count.beside_cublas(r, products)
    count.sums(r)


if __name__ == "__main__":
    main()
