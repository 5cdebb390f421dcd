#!/usr/bin/env python3
"""Checks gcuda's GGUF reader and writer against the PyPI package gguf, both ways.

    gguf_files.py build/libgcuda.so [--seed N] [--verbose]

- Files that gguf writes (all value types, arrays, alignments, tensors of many types, split files) are read by gcuda, mapped and
  from memory: every key, value, tensor and byte is compared.
- Files that gcuda writes are read by gguf: the same.
- What gcuda writes of a file that it has read has the same pairs and tensors, in the same order.
"""
import argparse
import ctypes as ct
import os
import shutil
import sys
import tempfile

import numpy as np
from gguf import GGMLQuantizationType as G
from gguf import GGUFReader, GGUFValueType, GGUFWriter
from gguf.constants import GGML_QUANT_SIZES

V = GGUFValueType
C_TYPES = {V.UINT8: ct.c_uint8, V.INT8: ct.c_int8, V.UINT16: ct.c_uint16, V.INT16: ct.c_int16, V.UINT32: ct.c_uint32,
           V.INT32: ct.c_int32, V.FLOAT32: ct.c_float, V.BOOL: ct.c_bool, V.UINT64: ct.c_uint64, V.INT64: ct.c_int64,
           V.FLOAT64: ct.c_double}
SHORT = {V.UINT8: "u8", V.INT8: "i8", V.UINT16: "u16", V.INT16: "i16", V.UINT32: "u32", V.INT32: "i32", V.FLOAT32: "f32",
         V.BOOL: "bool", V.UINT64: "u64", V.INT64: "i64", V.FLOAT64: "f64"}
NUMPY = {V.UINT8: np.uint8, V.INT8: np.int8, V.UINT16: np.uint16, V.INT16: np.int16, V.UINT32: np.uint32, V.INT32: np.int32,
         V.FLOAT32: np.float32, V.BOOL: np.bool_, V.UINT64: np.uint64, V.INT64: np.int64, V.FLOAT64: np.float64}
PLAIN = {G.F32: np.float32, G.F16: np.float16, G.F64: np.float64, G.I8: np.int8, G.I16: np.int16, G.I32: np.int32, G.I64: np.int64}
BLOCKS = [G.Q4_0, G.Q4_1, G.Q5_0, G.Q8_0, G.Q2_K, G.Q3_K, G.Q4_K, G.Q5_K, G.Q6_K, G.IQ4_NL, G.IQ2_XXS, G.MXFP4, G.BF16]


class InitParams(ct.Structure):
    _fields_ = [("no_alloc", ct.c_bool), ("ctx", ct.c_void_p), ("status", ct.c_void_p), ("copy", ct.c_bool), ("one_part", ct.c_bool)]


class ContextParams(ct.Structure):
    _fields_ = [("mem_size", ct.c_size_t), ("mem_buffer", ct.c_void_p), ("no_alloc", ct.c_bool)]


class Library:
    def __init__(self, path):
        c = ct.CDLL(path)
        pointer, text = ct.c_void_p, ct.c_char_p
        self.c = c
        for name, result, arguments in (
                ("gcuda_last_error", text, []),
                ("gcuda_init", pointer, [ContextParams]),
                ("gcuda_free", None, [pointer]),
                ("gcuda_new_tensor", pointer, [pointer, ct.c_int, ct.c_int, pointer]),
                ("gcuda_set_name", pointer, [pointer, text]),
                ("gcuda_gguf_init_empty", pointer, []),
                ("gcuda_gguf_init_from_file", pointer, [text, InitParams]),
                ("gcuda_gguf_init_from_buffer", pointer, [pointer, ct.c_size_t, InitParams]),
                ("gcuda_gguf_free", None, [pointer]),
                ("gcuda_gguf_get_alignment", ct.c_size_t, [pointer]),
                ("gcuda_gguf_get_n_kv", ct.c_int64, [pointer]),
                ("gcuda_gguf_get_key", text, [pointer, ct.c_int64]),
                ("gcuda_gguf_get_kv_type", ct.c_int, [pointer, ct.c_int64]),
                ("gcuda_gguf_get_arr_type", ct.c_int, [pointer, ct.c_int64]),
                ("gcuda_gguf_get_arr_n", ct.c_uint64, [pointer, ct.c_int64]),
                ("gcuda_gguf_get_val_str", ct.c_int, [pointer, ct.c_int64, pointer, pointer]),
                ("gcuda_gguf_get_arr_str", ct.c_int, [pointer, ct.c_int64, ct.c_uint64, pointer, pointer]),
                ("gcuda_gguf_get_arr_data", ct.c_int, [pointer, ct.c_int64, ct.c_int, pointer, pointer]),
                ("gcuda_gguf_get_n_tensors", ct.c_int64, [pointer]),
                ("gcuda_gguf_get_tensor_name", text, [pointer, ct.c_int64]),
                ("gcuda_gguf_get_tensor_type", ct.c_int, [pointer, ct.c_int64]),
                ("gcuda_gguf_get_tensor_ne", ct.POINTER(ct.c_int64), [pointer, ct.c_int64]),
                ("gcuda_gguf_get_tensor_n_dims", ct.c_int, [pointer, ct.c_int64]),
                ("gcuda_gguf_get_tensor_size", ct.c_size_t, [pointer, ct.c_int64]),
                ("gcuda_gguf_read_tensor", ct.c_int, [pointer, ct.c_int64, pointer, ct.c_size_t, ct.c_size_t]),
                ("gcuda_gguf_set_val_str", ct.c_int, [pointer, text, text]),
                ("gcuda_gguf_set_arr_data", ct.c_int, [pointer, text, ct.c_int, pointer, ct.c_uint64]),
                ("gcuda_gguf_set_arr_str", ct.c_int, [pointer, text, pointer, ct.c_uint64]),
                ("gcuda_gguf_add_tensor", ct.c_int, [pointer, pointer]),
                ("gcuda_gguf_set_tensor_data", ct.c_int, [pointer, text, pointer, ct.c_size_t]),
                ("gcuda_gguf_write_to_file", ct.c_int, [pointer, text, ct.c_bool]),
                ("gcuda_gguf_write_split", ct.c_int, [pointer, text, ct.c_uint64, pointer])):
            function = getattr(c, name)
            function.restype, function.argtypes = result, arguments
        for value_type, short in SHORT.items():
            getattr(c, "gcuda_gguf_get_val_" + short).argtypes = [pointer, ct.c_int64, pointer]
            getattr(c, "gcuda_gguf_set_val_" + short).argtypes = [pointer, text, C_TYPES[value_type]]

    def ok(self, status):
        if status != 0:
            raise RuntimeError(f"status {status}: {self.c.gcuda_last_error().decode()}")

    # ---- reading: ([(key, type, element type or None, value)], [(name, type, shape, bytes)], alignment) ----
    def value(self, g, i):
        kind, text, n = V(self.c.gcuda_gguf_get_kv_type(g, i)), ct.c_void_p(), ct.c_uint64()
        if kind == V.STRING:
            self.ok(self.c.gcuda_gguf_get_val_str(g, i, ct.byref(text), ct.byref(n)))
            return kind, None, ct.string_at(text, n.value)
        if kind != V.ARRAY:
            value = C_TYPES[kind]()
            self.ok(getattr(self.c, "gcuda_gguf_get_val_" + SHORT[kind])(g, i, ct.byref(value)))
            return kind, None, value.value
        element, count = V(self.c.gcuda_gguf_get_arr_type(g, i)), self.c.gcuda_gguf_get_arr_n(g, i)
        if element == V.STRING:
            values = []
            for k in range(count):
                self.ok(self.c.gcuda_gguf_get_arr_str(g, i, k, ct.byref(text), ct.byref(n)))
                values.append(ct.string_at(text, n.value))
            return kind, element, values
        self.ok(self.c.gcuda_gguf_get_arr_data(g, i, int(element), ct.byref(text), ct.byref(n)))
        dtype = np.dtype(NUMPY[element])
        return kind, element, np.frombuffer(ct.string_at(text, n.value * dtype.itemsize), dtype).tolist()

    def contents(self, g):
        pairs = [(self.c.gcuda_gguf_get_key(g, i).decode(), *self.value(g, i)) for i in range(self.c.gcuda_gguf_get_n_kv(g))]
        tensors = []
        for i in range(self.c.gcuda_gguf_get_n_tensors(g)):
            data = ct.create_string_buffer(max(1, self.c.gcuda_gguf_get_tensor_size(g, i)))
            size = self.c.gcuda_gguf_get_tensor_size(g, i)
            self.ok(self.c.gcuda_gguf_read_tensor(g, i, data, 0, size))
            shape = self.c.gcuda_gguf_get_tensor_ne(g, i)[:self.c.gcuda_gguf_get_tensor_n_dims(g, i)]
            tensors.append((self.c.gcuda_gguf_get_tensor_name(g, i).decode(), G(self.c.gcuda_gguf_get_tensor_type(g, i)), list(shape), data.raw[:size]))
        return pairs, tensors, self.c.gcuda_gguf_get_alignment(g)

    def open(self, path, **params):
        g = self.c.gcuda_gguf_init_from_file(path.encode(), InitParams(**params))
        if not g:
            raise RuntimeError(self.c.gcuda_last_error().decode())
        return g

    def read(self, path, **params):
        g = self.open(path, **params)
        result = self.contents(g)
        self.c.gcuda_gguf_free(g)
        return result

    def read_memory(self, path):
        with open(path, "rb") as f:
            data = f.read()
        g = self.c.gcuda_gguf_init_from_buffer(data, len(data), InitParams())
        if not g:
            raise RuntimeError(self.c.gcuda_last_error().decode())
        result = self.contents(g)
        self.c.gcuda_gguf_free(g)
        return result

    # ---- writing ----
    def set(self, g, key, kind, element, value):
        name = key.encode()
        if kind == V.STRING:
            self.ok(self.c.gcuda_gguf_set_val_str(g, name, value))
        elif kind != V.ARRAY:
            self.ok(getattr(self.c, "gcuda_gguf_set_val_" + SHORT[kind])(g, name, value))
        elif element == V.STRING:
            self.ok(self.c.gcuda_gguf_set_arr_str(g, name, (ct.c_char_p * len(value))(*value), len(value)))
        else:
            array = np.array(value, NUMPY[element])
            self.ok(self.c.gcuda_gguf_set_arr_data(g, name, int(element), array.ctypes.data, array.size))

    def write(self, pairs, tensors, path, part_bytes=None):
        """Number of parts."""
        g, ctx, count = self.c.gcuda_gguf_init_empty(), self.c.gcuda_init(ContextParams(0, None, True)), ct.c_int(1)
        for key, kind, element, value in pairs:
            self.set(g, key, kind, element, value)
        for name, kind, shape, data in tensors:
            ne = (ct.c_int64 * 4)(*shape)
            t = self.c.gcuda_set_name(self.c.gcuda_new_tensor(ctx, int(kind), len(shape), ne), name.encode())
            self.ok(self.c.gcuda_gguf_add_tensor(g, t))
            self.ok(self.c.gcuda_gguf_set_tensor_data(g, name.encode(), data, len(data)))
        if part_bytes is None:
            self.ok(self.c.gcuda_gguf_write_to_file(g, path.encode(), False))
        else:
            self.ok(self.c.gcuda_gguf_write_split(g, path.encode(), part_bytes, ct.byref(count)))
        self.c.gcuda_gguf_free(g)
        self.c.gcuda_free(ctx)
        return count.value


# ---- what gguf reads, in the same form ----
def read_with_gguf(path):
    reader, pairs, tensors = GGUFReader(path), [], []
    for field in reader.fields.values():
        if field.name.startswith("GGUF."):
            continue
        kind, element = field.types[0], field.types[-1] if field.types[0] == V.ARRAY and len(field.types) > 1 else None
        parts = [field.parts[i] for i in field.data]
        if kind == V.STRING:
            value = bytes(parts[0])
        elif element == V.STRING:
            value = [bytes(p) for p in parts]
        elif kind == V.ARRAY:
            value = [p.tolist()[0] for p in parts]
        else:
            value = parts[0].tolist()[0]
        pairs.append((field.name, kind, element, value))
    for t in reader.tensors:
        tensors.append((t.name, t.tensor_type, [int(n) for n in t.shape], t.data.tobytes()))
    return pairs, tensors, reader.alignment


# ---- random files ----
def random_number(rng, kind):
    dtype = np.dtype(NUMPY[kind])
    if kind == V.BOOL:
        return bool(rng.integers(2))
    if dtype.kind == "f":
        return float(dtype.type(rng.normal() * 10.0 ** rng.integers(-5, 5)))
    info = np.iinfo(dtype)
    return [info.min, info.max, 0, 1][rng.integers(4)] if rng.integers(3) == 0 else int(rng.integers(info.min, info.max, dtype=dtype))


def random_text(rng):
    return "".join(rng.choice(list("abc \n\"é€😀{}<|▁Ġ")) for _ in range(rng.integers(0, 30))).encode()


def random_pairs(rng):
    pairs = [("general.architecture", V.STRING, None, b"llama")]
    for i in range(int(rng.integers(0, 40))):
        kind = list(C_TYPES)[rng.integers(len(C_TYPES))]
        key, shape = f"{rng.choice(['llama', 'tokenizer.ggml', 'é'])}.key_{i}", rng.integers(4)
        n = int(rng.integers(1, 50))  # the package writes no empty arrays
        if shape == 0:
            pairs.append((key, kind, None, random_number(rng, kind)))
        elif shape == 1:
            pairs.append((key, V.ARRAY, kind, [random_number(rng, kind) for _ in range(n)]))
        elif shape == 2:
            pairs.append((key, V.STRING, None, random_text(rng)))
        else:
            pairs.append((key, V.ARRAY, V.STRING, [random_text(rng) for _ in range(n)]))
    return pairs


def random_tensors(rng):
    tensors = []
    for i in range(int(rng.integers(1, 12))):
        kind = [*PLAIN, *BLOCKS][rng.integers(len(PLAIN) + len(BLOCKS))]
        block, size = GGML_QUANT_SIZES[kind]
        shape = [block * int(rng.integers(1, 4)), *(int(n) for n in rng.integers(1, 5, rng.integers(0, 4)))]
        shape[1:] = shape[1:] if not shape[1:] or shape[-1] > 1 else [*shape[1:-1], 2]  # gcuda drops dimensions of 1 at the end
        tensors.append((f"blk.{i}.weight", kind, shape, rng.bytes(int(np.prod(shape)) // block * size)))
    return tensors


def write_with_gguf(pairs, tensors, path, alignment, per_part=0):
    writer = GGUFWriter(path, "llama", split_max_tensors=per_part)
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    for key, kind, element, value in pairs[1:]:
        if kind == V.STRING:
            writer.add_key_value(key, value.decode(), kind)
        elif element == V.STRING:
            writer.add_key_value(key, [v.decode() for v in value], kind, sub_type=element)
        else:
            writer.add_key_value(key, value, kind, sub_type=element)
    for name, kind, shape, data in tensors:
        if kind in PLAIN:
            array = np.frombuffer(data, PLAIN[kind]).reshape(shape[::-1])
            writer.add_tensor(name, array)
        else:
            block, size = GGML_QUANT_SIZES[kind]
            rows = [*shape[:0:-1], shape[0] // block * size]
            writer.add_tensor(name, np.frombuffer(data, np.uint8).reshape(rows), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# ---- comparing ----
def differences(got, want):
    got_pairs, got_tensors, got_alignment = got
    want_pairs, want_tensors, want_alignment = want
    bad = []
    if got_alignment != want_alignment:
        bad.append(f"alignment {got_alignment}, want {want_alignment}")
    if [p[0] for p in got_pairs] != [p[0] for p in want_pairs]:
        bad.append(f"keys {[p[0] for p in got_pairs]}, want {[p[0] for p in want_pairs]}")
    bad += [f"{g} want {w}" for g, w in zip(got_pairs, want_pairs) if repr(g) != repr(w)]
    if [t[0] for t in got_tensors] != [t[0] for t in want_tensors]:
        bad.append("names of tensors differ")
    bad += [f"tensor {g[:3]} want {w[:3]}" for g, w in zip(got_tensors, want_tensors) if g != w]
    return bad


class Run:
    def __init__(self, verbose):
        self.n_passed, self.n_failed, self.verbose = 0, 0, verbose

    def check(self, name, bad):
        if bad:
            self.n_failed += 1
            print(f"FAILED {name}: " + "; ".join(str(b)[:300] for b in bad[:5]))
        else:
            self.n_passed += 1
            if self.verbose:
                print(f"ok     {name}")


def without(pairs, *keys):
    return [p for p in pairs if p[0] not in keys]


SPLIT_KEYS = ("split.no", "split.count", "split.tensors.count")


def check_file(run, library, rng, folder, i):
    pairs, tensors = random_pairs(rng), random_tensors(rng)
    alignment = [None, 8, 32, 64, 256][rng.integers(5)]
    theirs, ours, again = (os.path.join(folder, f"{i}-{n}.gguf") for n in ("theirs", "ours", "again"))
    write_with_gguf(pairs, tensors, theirs, alignment)
    want_pairs = pairs if alignment is None else [pairs[0], ("general.alignment", V.UINT32, None, alignment), *pairs[1:]]
    want = want_pairs, tensors, alignment or 32
    run.check(f"{i}: gcuda reads gguf's file, mapped", differences(library.read(theirs), want))
    run.check(f"{i}: gcuda reads gguf's file, from memory", differences(library.read_memory(theirs), want))
    library.write(want_pairs, tensors, ours)
    run.check(f"{i}: gguf reads gcuda's file", differences(read_with_gguf(ours), want))
    g = library.open(theirs)
    library.ok(library.c.gcuda_gguf_write_to_file(g, again.encode(), False))
    library.c.gcuda_gguf_free(g)
    run.check(f"{i}: gguf reads what gcuda wrote of its file", differences(read_with_gguf(again), want))


def check_split(run, library, rng, folder, i):
    pairs, tensors = random_pairs(rng), random_tensors(rng)
    theirs, ours = (os.path.join(folder, f"{i}-split-{n}") for n in ("theirs", "ours"))
    write_with_gguf(pairs, tensors, theirs + ".gguf", None, per_part=3)
    first = next((os.path.join(folder, f) for f in sorted(os.listdir(folder)) if f.startswith(f"{i}-split-theirs")), None)
    got = library.read(first)
    run.check(f"{i}: gcuda reads gguf's split file", differences((without(got[0], *SPLIT_KEYS), *got[1:]), (pairs, tensors, 32)))
    count = library.write(pairs, tensors, ours, part_bytes=1000)
    parts = [read_with_gguf(f"{ours}-{no + 1:05}-of-{count:05}.gguf") for no in range(count)]
    joined = without(parts[0][0], *SPLIT_KEYS), [t for p in parts for t in p[1]], parts[0][2]
    run.check(f"{i}: gguf reads the {count} parts of gcuda's split file", differences(joined, (pairs, tensors, 32)))
    wrong = [(no, p[0]) for no, p in enumerate(parts) if dict((k, v) for k, _, _, v in p[0] if k in SPLIT_KEYS)
             != {"split.no": no, "split.count": count, "split.tensors.count": len(tensors)}]
    run.check(f"{i}: split keys", wrong)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--files", type=int, default=60)
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    library, run = Library(args.library), Run(args.verbose)
    folder = tempfile.mkdtemp(prefix="gcuda-gguf-")
    try:
        for i in range(args.files):
            check_file(run, library, np.random.default_rng([args.seed, i]), folder, i)
            if i % 3 == 0:
                check_split(run, library, np.random.default_rng([args.seed, i, 1]), folder, i)
    finally:
        shutil.rmtree(folder)
    print(f"{run.n_passed} passed, {run.n_failed} failed")
    return 1 if run.n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
