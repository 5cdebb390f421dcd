"""The smallest bridge from numpy to libgcuda.so: tensors in, one graph on the CPU backend, one tensor out.

Arrays are numpy order: shape (n3, n2, n1, n0), the last axis is ne[0]. Integer arguments travel as 64 bits, real ones as
float; that is what the calling conventions of the 64-bit machines we test on allow for constructors.
"""

import ctypes as ct

import numpy as np

TYPES = {
    np.dtype(np.float32): 0,
    np.dtype(np.float16): 1,
    np.dtype(np.float64): 28,
    np.dtype(np.int8): 24,
    np.dtype(np.int16): 25,
    np.dtype(np.int32): 26,
    np.dtype(np.int64): 27,
}
DTYPES = {number: dtype for dtype, number in TYPES.items()}


class Tensor(ct.Structure):
    """The leading fields of struct gcuda_tensor."""

    _fields_ = [("type", ct.c_int), ("op", ct.c_int), ("ne", ct.c_int64 * 4), ("nb", ct.c_size_t * 4)]


class InitParams(ct.Structure):
    _fields_ = [("mem_size", ct.c_size_t), ("mem_buffer", ct.c_void_p), ("no_alloc", ct.c_bool)]


class GcudaError(Exception):
    pass


class Gcuda:
    """g.NAME is gcuda_NAME; constructors give a pointer or raise with the library's message."""

    STATUS = {"build_forward_expand", "backend_graph_compute", "backend_tensor_set", "backend_tensor_get"}
    NOTHING = {
        "free",
        "backend_free",
        "backend_buffer_free",
        "shutdown",
        "soft_max_add_sinks",
        "flash_attn_ext_add_sinks",
        "set_output",
    }

    def __init__(self, path, n_threads=2):
        self.lib = ct.CDLL(path)
        self.lib.gcuda_last_error.restype = ct.c_char_p
        self.lib.gcuda_init.argtypes = [InitParams]
        self.lib.gcuda_init.restype = ct.c_void_p
        self.backend = self.call("backend_cpu_init")
        self.call("backend_cpu_set_n_threads", self.backend, n_threads)

    def __getattr__(self, name):
        return lambda *args: self.call(name, *args)

    @staticmethod
    def convert(x):
        if isinstance(x, (bool, int, np.integer)):
            return ct.c_int64(int(x))
        if isinstance(x, (float, np.floating)):
            return ct.c_float(float(x))
        return x

    def call(self, name, *args):
        fn = getattr(self.lib, "gcuda_" + name)
        fn.restype = ct.c_int if name in self.STATUS else None if name in self.NOTHING else ct.c_void_p
        pointers = [ct.c_void_p(a) if isinstance(a, Pointer) else self.convert(a) for a in args]
        result = fn(*pointers)
        if name in self.STATUS and result != 0:
            raise GcudaError(f"{name}: {result}: {self.error()}")
        if fn.restype is ct.c_void_p:
            if result is None and not name.startswith("backend_cpu_set"):
                raise GcudaError(f"{name}: {self.error()}")
            return Pointer(result or 0)
        return result

    def error(self):
        return (self.lib.gcuda_last_error() or b"").decode()

    @staticmethod
    def type_of(cast):
        return TYPES[np.asarray(cast([0])).dtype]

    @staticmethod
    def ints(values):
        return (ct.c_int * len(values))(*values)

    @staticmethod
    def longs(values):
        return (ct.c_int64 * len(values))(*values)

    @staticmethod
    def real(value):
        return float(value)

    def run(self, build, *arrays):
        """Builds one graph with `build(ctx, tensors...)`, computes it, returns its result as an array."""
        params = InitParams(0, None, True)  # an arena that grows
        ctx = Pointer(self.lib.gcuda_init(params) or 0)
        buffer = None
        try:
            tensors = [self.leaf(ctx, a) for a in arrays]
            y = build(ctx, *tensors)
            graph = self.new_graph(ctx)
            self.build_forward_expand(graph, y)
            buffer = self.backend_alloc_ctx_tensors(ctx, self.backend)
            for t, a in zip(tensors, arrays):
                if a.size:
                    a = np.ascontiguousarray(a)
                    self.backend_tensor_set(t, a.ctypes.data_as(ct.c_void_p), 0, a.nbytes)
            self.backend_graph_compute(self.backend, graph)
            return self.fetch(y)
        finally:
            if buffer is not None:
                self.backend_buffer_free(buffer)
            self.free(ctx)

    def leaf(self, ctx, array):
        shape = (1,) * (4 - array.ndim) + array.shape
        return self.new_tensor_4d(ctx, TYPES[array.dtype], *reversed(shape))

    def fetch(self, tensor):
        head = ct.cast(ct.c_void_p(tensor), ct.POINTER(Tensor)).contents
        out = np.empty(tuple(reversed(head.ne)), DTYPES[head.type])
        if out.size:
            self.backend_tensor_get(tensor, out.ctypes.data_as(ct.c_void_p), 0, out.nbytes)
        return out


class Pointer(int):
    """An address; distinguishes pointers from the integers that are arguments."""
