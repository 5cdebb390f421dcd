#!/usr/bin/env python3
"""What gcuda costs: `make size`. Lines of the source, bytes of the host object, and of the kernels, if `make cuda` has
built them: processor seconds that nvcc took for each part, bytes of the object, bytes of machine code per architecture. Built for
90a alone they are compared with the limits of that architecture, and its machine code is listed by families of kernels.

    size.py BUILD PART...
"""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile


MB = 10**6
LIMITS_90A = {"object": 16 * MB, "machine code": 45 * MB, "CPU seconds": 700}


def output(*command, **kw):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False, **kw).stdout


def cpu_seconds(path):
    """User and system time of the children, the second line of the shell's `times`."""
    with open(path, encoding="utf-8") as f:
        parts = re.findall(r"(\d+)m([\d.]+)s", f.read().splitlines()[1])
    return sum(60 * int(m) + float(s) for m, s in parts)


def sections(path):
    """[(name, bytes)]; readelf knows cubins too."""
    rows = re.findall(r"^\s*\[\s*\d+\]\s+(\S+)\s+\S+\s+[0-9a-f]+\s+[0-9a-f]+\s+([0-9a-f]+)", output("readelf", "-SW", path), re.M)
    return [(name, int(size, 16)) for name, size in rows]


def section(path, pattern):
    """Bytes of the sections whose name matches."""
    return sum(size for name, size in sections(path) if re.match(pattern, name))


def family(name):
    """k_NAME of a kernel's section .text._Z...LENGTHk_NAME..., k_ and up to two words: k_mul_mat_vec is of k_mul_mat."""
    found = re.search(r"\d(k_[a-z0-9]+(?:_[a-z0-9]+)?)", name)
    return found[1] if found else "other"


def machine_code(path):
    """{architecture: {family: bytes of kernels}}; empty without cuobjdump."""
    found = {}
    tool = shutil.which("cuobjdump") or "/usr/local/cuda/bin/cuobjdump"
    if os.path.exists(tool):
        with tempfile.TemporaryDirectory() as folder:
            output(tool, "-xelf", "all", os.path.abspath(path), cwd=folder)
            for cubin in glob.glob(folder + "/*.cubin"):
                arch = re.search(r"sm_\d+[a-z]?", cubin)
                own = found.setdefault(arch[0] if arch else "?", {})
                for name, size in sections(cubin):
                    if name.startswith(".text."):
                        own[family(name)] = own.get(family(name), 0) + size
    return found


def families(code):
    """The families of one architecture, the largest first; those below 1 % in one line."""
    total = sum(code.values())
    small = 0
    for name, size in sorted(code.items(), key=lambda x: -x[1]):
        if size * 100 >= total:
            print(f"      {name:<24} {size / MB:6.1f} MB {100 * size / total:5.1f} %")
        else:
            small += size
    print(f"      {'others':<24} {small / MB:6.1f} MB {100 * small / max(total, 1):5.1f} %")


def limits(measured):
    for name, limit in LIMITS_90A.items():
        value, unit = (measured[name] / MB, " MB") if limit >= MB else (measured[name], "")
        most = limit / MB if limit >= MB else limit
        print(f"    limit for 90a: {name:<13} {value:7.1f}{unit} of {most}{unit}" + ("" if value <= most else "  EXCEEDED"))


def kernels(folder, numbers):
    parts = [f"{folder}/gcuda_kernels-{n}.o" for n in numbers]
    if not all(os.path.exists(p) for p in parts):
        print("  kernels: not built (make cuda, or make cuda ARCHS=90a)")
        return
    with open(folder + "/flags", encoding="utf-8") as f:
        print("  kernels: " + f.read().strip())
    seconds = bytes_ = 0
    code = {}
    for path in parts:
        own = machine_code(path)
        s, n = cpu_seconds(path + ".times"), os.path.getsize(path)
        listed = "".join(f"  {arch} {sum(own[arch].values()):>10}" for arch in sorted(own))
        print(f"    {os.path.basename(path):<22} {s:7.1f} CPU s {n:>10} bytes" + listed)
        seconds, bytes_ = seconds + s, bytes_ + n
        for arch, parts_of in own.items():
            for name, size in parts_of.items():
                code.setdefault(arch, {})[name] = code.setdefault(arch, {}).get(name, 0) + size
    listed = "".join(f"  {arch} {sum(code[arch].values()):>10}" for arch in sorted(code))
    print(f"    {'together':<22} {seconds:7.1f} CPU s {bytes_:>10} bytes" + (listed or "  (no cuobjdump: machine code not counted)"))
    for arch in sorted(code):
        print(f"    machine code of {arch} by family")
        families(code[arch])
    if list(code) == ["sm_90a"]:
        limits({"object": bytes_, "machine code": sum(code["sm_90a"].values()), "CPU seconds": seconds})


def main():
    build = sys.argv[1]
    for name in ("gcuda.h", "gcuda_kernels.cu"):
        with open(name, encoding="utf-8") as f:
            text = f.read()
        print(f"  {name:<18} {text.count(chr(10)):>7} lines {len(text.encode()):>10} bytes")
    path = build + "/gcuda_impl.o"
    print(f"  {path:<18} {os.path.getsize(path):>7} bytes, of them {section(path, r'.text')} machine code")
    kernels(build + "/cuda", sys.argv[2:])
    return 0


if __name__ == "__main__":
    sys.exit(main())
