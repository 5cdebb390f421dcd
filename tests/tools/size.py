#!/usr/bin/env python3
"""What gcuda costs: `make size`. Lines of the source, bytes of the host object, and of the kernels, if `make cuda` has
built them: processor seconds that nvcc took for each part, bytes of the object, bytes of machine code per architecture.

    size.py BUILD PART...
"""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile


def output(*command, **kw):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False, **kw).stdout


def cpu_seconds(path):
    """User and system time of the children, the second line of the shell's `times`."""
    with open(path, encoding="utf-8") as f:
        parts = re.findall(r"(\d+)m([\d.]+)s", f.read().splitlines()[1])
    return sum(60 * int(m) + float(s) for m, s in parts)


def section(path, pattern):
    """Bytes of the sections whose name matches; readelf knows cubins too."""
    rows = re.findall(r"^\s*\[\s*\d+\]\s+(\S+)\s+\S+\s+[0-9a-f]+\s+[0-9a-f]+\s+([0-9a-f]+)", output("readelf", "-SW", path), re.M)
    return sum(int(size, 16) for name, size in rows if re.match(pattern, name))


def machine_code(path):
    """{architecture: bytes of kernels}; empty without cuobjdump."""
    found = {}
    tool = shutil.which("cuobjdump") or "/usr/local/cuda/bin/cuobjdump"
    if os.path.exists(tool):
        with tempfile.TemporaryDirectory() as folder:
            output(tool, "-xelf", "all", os.path.abspath(path), cwd=folder)
            for cubin in glob.glob(folder + "/*.cubin"):
                arch = re.search(r"sm_\d+[a-z]?", cubin)
                found[arch[0] if arch else "?"] = found.get(arch[0] if arch else "?", 0) + section(cubin, r"\.text\.")
    return found


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
        listed = "".join(f"  {arch} {size:>10}" for arch, size in sorted(own.items()))
        print(f"    {os.path.basename(path):<22} {s:7.1f} CPU s {n:>10} bytes" + listed)
        seconds, bytes_ = seconds + s, bytes_ + n
        for arch, size in own.items():
            code[arch] = code.get(arch, 0) + size
    listed = "".join(f"  {arch} {size:>10}" for arch, size in sorted(code.items()))
    print(f"    {'together':<22} {seconds:7.1f} CPU s {bytes_:>10} bytes" + (listed or "  (no cuobjdump: machine code not counted)"))


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
