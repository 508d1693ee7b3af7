"""Calls of kernels and of cuBLAS on one GPU, and what the modules share that bind nodes to them.

NVRTC compiles a file on first use; CuPy caches the result on disk.

`load_cuda`: CUDA as used by this package: CuPy's thin runtime calls, imported only when a backend starts.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import byref, c_float, c_int, c_size_t, c_void_p
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final, Protocol

import numpy as np

from executor.graph import Tensor
from tracer.errors import ExecutionError

MOST_SHARED_BYTES: Final = 200 * 1024
"""Maximum dynamic shared memory that a block may request; the hardware has slightly more."""
_PLAIN_SHARED_BYTES: Final = 48 * 1024
_WORKSPACE_BYTES: Final = 32 << 20
"""Of a cuBLAS handle: what its documentation recommends for the largest GPUs."""


class Workspaces(dict[int, Any]):
    """Stream -> the memory that products on it may use."""


@dataclass(frozen=True, slots=True)
class KernelCall:
    """A kernel with its grid and its arguments, packed once.

    Attributes:
        grid: blocks in x and y.
        block: threads per block.
        arguments: address of the array of argument addresses.
        key: equal for calls that do the same to the same memory.
        kept: objects that must live as long as the call: the arguments, and memory that they point to.
    """

    function: int
    grid: tuple[int, int]
    block: int
    shared_bytes: int
    arguments: int
    key: Hashable
    kept: tuple[Any, ...]

    def issue(self, cuda: Cuda, stream: int) -> None:
        """Launch the kernel in stream order."""
        x, y = self.grid
        cuda.driver.launchKernel(self.function, x, y, 1, self.block, 1, 1, self.shared_bytes, stream, self.arguments, 0)

    def issue_early(self, cuda: Cuda, stream: int) -> None:
        """Launch the kernel so that it may start before the stream's previous kernel has ended (common.cuh)."""
        b = cuda.bindings
        attribute, config = b.CUlaunchAttribute(), b.CUlaunchConfig()
        attribute.id = b.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        config.gridDimX, config.gridDimY = self.grid
        config.gridDimZ = config.blockDimY = config.blockDimZ = 1
        config.blockDimX, config.sharedMemBytes, config.hStream = self.block, self.shared_bytes, stream
        config.attrs, config.numAttrs = [attribute], 1
        (status,) = b.cuLaunchKernelEx(config, b.CUfunction(self.function), self.arguments, 0)
        if status != b.CUresult.CUDA_SUCCESS:
            raise ExecutionError(f"programmatic launch failed: {status.name}")


class Library:
    """The kernels and constants of one GPU, see the module's docstring."""

    def __init__(self, cuda: Cuda) -> None:
        self.cuda = cuda
        self._functions: dict[tuple[str, ...], int] = {}
        self._modules: dict[tuple[str, ...], Any] = {}
        self._turns: dict[tuple[float, int], Any] = {}
        self._cublas: tuple[Any, dict[int, int]] | None = None
        self._workspaces = self._eager = Workspaces()
        self._set: dict[int, Any] = {}  # stream -> the workspace that its handle has

    def call(
        self, file: str, name: str, grid: tuple[int, int], block: int, *arguments: Any,
        shared_bytes: int = 0, kept: Sequence[Any] = (), macros: Mapping[str, int] | None = None,
    ) -> KernelCall:  # fmt: skip
        """Pack a call of a kernel from a file compiled with these macros.

        Args:
            arguments: arrays, passed by their address; integers, passed as int; and values of ctypes.
            kept: memory that a structure among the arguments points to, if nothing else keeps it.
        """
        function = self.function(file, name, macros)
        self._allow_shared(function, shared_bytes, name)
        packed = [_packed(argument) for argument in arguments]
        addresses = (c_void_p * len(packed))(*map(ctypes.addressof, packed))
        key = (function, grid, block, shared_bytes, *map(bytes, packed))
        alive = (addresses, packed, arguments, kept)
        return KernelCall(function, grid, block, shared_bytes, ctypes.addressof(addresses), key, alive)

    def function(self, file: str, name: str, macros: Mapping[str, int] | None = None) -> int:
        """Return the handle of an `extern "C"` kernel."""
        defines = tuple(f"-D{macro}={value}" for macro, value in (macros or {}).items())
        key = (file, *defines)
        if (name, *key) not in self._functions:
            if key not in self._modules:
                options = ("--std=c++17", *defines)
                self._modules[key] = self.cuda.cupy.RawModule(code=_source(file), options=options)
            self._functions[(name, *key)] = self._modules[key].get_function(name).kernel.ptr
        return self._functions[(name, *key)]

    def blocks_per_multiprocessor(self, function: int, block: int, shared_bytes: int) -> int:
        """Return how many blocks of a kernel one multiprocessor holds at a time."""
        self._allow_shared(function, shared_bytes, "a kernel")
        count: int = self.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(function, block, shared_bytes)
        return max(count, 1)

    def turns(self, base: float, head_size: int) -> Any:
        """Return the memory of the half turns of rope per position, (head size / 2,) float64."""
        key = (base, head_size)
        if key not in self._turns:
            values = base ** (-np.arange(head_size // 2) / (head_size // 2)) / np.pi
            self._turns[key] = self.cuda.cupy.asarray(values).data
            self.cuda.runtime.deviceSynchronize()
        return self._turns[key]

    def cublas(self, stream: int) -> tuple[Any, int]:
        """Return the cuBLAS library and the handle of a stream, with a workspace (`with_workspaces`).

        Called through ctypes, as CuPy's own calls use CuPy's current stream. Without a workspace of ours, cuBLAS
        allocates its own inside a captured graph, and a graph that allocates memory takes no stamps of the light
        recorder.
        """
        if self._cublas is None:
            from cuda.pathfinder import load_nvidia_dynamic_lib

            self._cublas = ctypes.CDLL(load_nvidia_dynamic_lib("cublas").abs_path), {}
        library, handles = self._cublas
        if stream not in handles:
            handle = ctypes.c_void_p()
            check_cublas(library.cublasCreate_v2(ctypes.byref(handle)))
            handles[stream] = handle.value or 0
            check_cublas(library.cublasSetStream_v2(handle, ctypes.c_void_p(stream)))  # which drops any workspace
        if stream not in self._workspaces:
            self._workspaces[stream] = self.cuda.cupy.cuda.alloc(_WORKSPACE_BYTES)
        workspace = self._workspaces[stream]
        if self._set.get(stream) is not workspace:
            self._set[stream], size = workspace, c_size_t(_WORKSPACE_BYTES)
            check_cublas(library.cublasSetWorkspace_v2(c_void_p(handles[stream]), c_void_p(workspace.ptr), size))
        return library, handles[stream]

    @contextmanager
    def with_workspaces(self, workspaces: Workspaces) -> Iterator[None]:
        """Products that are issued meanwhile use these, to which those of further streams are added. Graphs that are
        captured on the same stream may run beside each other, so each needs workspaces of its own."""
        self._workspaces = workspaces
        try:
            yield
        finally:
            self._workspaces = self._eager

    def close(self) -> None:
        """Destroy the cuBLAS handles."""
        if self._cublas is not None:
            library, handles = self._cublas
            for handle in handles.values():
                library.cublasDestroy_v2(ctypes.c_void_p(handle))
            self._cublas = None
            self._eager.clear()
            self._set.clear()

    def _allow_shared(self, function: int, shared_bytes: int, name: str) -> None:
        if shared_bytes > MOST_SHARED_BYTES:
            raise ExecutionError(
                f"{name} needs {shared_bytes} bytes of shared memory per block, the GPU allows {MOST_SHARED_BYTES}: "
                "choose a smaller context or model"
            )
        if shared_bytes > _PLAIN_SHARED_BYTES:
            attribute = self.cuda.driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self.cuda.driver.funcSetAttribute(function, attribute, MOST_SHARED_BYTES)


def _packed(argument: Any) -> Any:
    """Return an argument of a kernel as a value of ctypes."""
    if isinstance(argument, int):
        return c_int(argument)
    return c_void_p(argument.ptr) if hasattr(argument, "ptr") else argument


def check_cublas(status: int) -> None:
    """Raise ExecutionError unless a cuBLAS call succeeded."""
    if status:
        raise ExecutionError(f"cuBLAS failed with status {status}")


@cache
def _source(file: str) -> str:
    """Return the source of a kernel file with its local includes inserted."""
    text = (files("executor.backends.cuda") / "sources" / file).read_text(encoding="utf-8")
    return re.sub(r'^#include "(.+)"$', lambda include: _source(include[1]), text, flags=re.MULTILINE)


_R_32F, _R_16F, _COMPUTE_32F = 0, 2, 68
_TRANSPOSED, _AS_IT_IS, _DEFAULT_ALGORITHM = 1, 0, -1
_ONE: Final = c_float(1)
_ZERO: Final = c_float(0)


@dataclass(frozen=True, slots=True)
class Gemm:
    """out (N, O) = x (N, I) W^T with W (O, I); cuBLAS sees the transposes, as it is column-major.

    Attributes:
        x: address of x, in the weight's dtype.
        kind: the cuBLAS constant of that dtype.
        kept: memory of x that nothing else keeps.
    """

    library: Library
    out: Any
    weight: Any
    x: int
    kind: int
    kept: Any = None

    @property
    def key(self) -> Hashable:
        """Identifies the computation and its memory."""
        return "gemm", self.weight.ptr, self.x, self.out.ptr, self.weight.shape, self.out.shape, self.kind

    def issue(self, cuda: Cuda, stream: int) -> None:
        """Issue the product to a stream."""
        (outputs, inputs), tokens = self.weight.shape, self.out.shape[0]
        cublas, handle = self.library.cublas(stream)
        check_cublas(
            cublas.cublasGemmEx(
                c_void_p(handle), _TRANSPOSED, _AS_IT_IS, outputs, tokens, inputs,
                byref(_ONE), c_void_p(self.weight.ptr), self.kind, inputs, c_void_p(self.x), self.kind, inputs,
                byref(_ZERO), c_void_p(self.out.ptr), _R_32F, outputs, _COMPUTE_32F, _DEFAULT_ALGORITHM,
            )
        )  # fmt: skip


def gemm(library: Library, out: Any, weight: Any, x: Any) -> Sequence[KernelCall | Gemm]:
    """Return the calls of a product; with f16 weights, x is first rounded to f16 in separate memory."""
    if weight.dtype == "float32":
        return [Gemm(library, out, weight, x.ptr, _R_32F)]
    rounded = library.cuda.cupy.cuda.alloc(2 * x.size)
    cast = library.call("elementwise.cu", "cast_f16", (-(-x.size // 256), 1), 256, rounded, x, x.size)
    return [cast, Gemm(library, out, weight, rounded.ptr, _R_16F, rounded)]


BLOCK: Final = 256
SUFFIX: Final = {"float32": "f32", "float16": "f16", "q8_0": "q8_0", "int32": "i32", "int64": "i64"}
VALUES_PER_LOAD: Final = {"float32": 4, "float16": 8, "q8_0": 16}
"""How many weights of a dtype a thread loads at once."""


class Array(Protocol):
    """A tensor's place on the device."""

    ptr: int
    shape: tuple[int, ...]
    dtype: str
    size: int


Calls = Sequence[KernelCall | Gemm]
Op = Callable[[Library, Tensor, Array, Sequence[Array]], Calls]
"""Binds a node to its kernels."""


def grid(n: int, y: int = 1, most: int = 528) -> tuple[int, int]:
    """Return the grid for y rows of n elements each."""
    return min(-(-n // BLOCK), most), y


def suffix(node: Tensor, dtype: str, known: str) -> str:
    """Return the suffix of the kernels for a dtype.

    Raises:
        ExecutionError: the dtype is not among the known ones.
    """
    name = SUFFIX.get(dtype, dtype)
    if name not in known.split():
        raise ExecutionError(f"backend 'cuda' computes {node.op} for {known}, not for {dtype} ({node.name})")
    return name


def block_of_rows(width: int, most: int = 1024) -> int:
    """Return the threads of a block that processes one row, in whole warps."""
    return min(most, -(-width // 32) * 32)


INSTALL = "pip install 'intertoken[cuda13]' (or 'intertoken[cuda12]' for a CUDA 12 driver)"


@dataclass(frozen=True)
class Cuda:
    """The CUDA modules and properties of the GPU.

    Attributes:
        cupy: the package, used for memory, pinned memory and compilation.
        runtime: `cupy.cuda.runtime`; its calls take and return addresses as int, the cheapest way from Python.
        driver: the same for the driver API.
        bindings: `cuda.bindings.driver`, for calls that CuPy lacks.
    """

    cupy: Any
    runtime: Any
    driver: Any
    bindings: Any
    gpu: str
    multiprocessors: int

    @property
    def error(self) -> Any:
        """The class of runtime errors."""
        return self.runtime.CUDARuntimeError

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """The exceptions of CuPy when CUDA fails: runtime, driver, allocation, compiler."""
        cuda = self.cupy.cuda
        return self.error, self.driver.CUDADriverError, cuda.memory.OutOfMemoryError, cuda.compiler.CompileException


def load_cuda(device: int = 0) -> Cuda:
    """Import the CUDA modules, query a GPU and make it current.

    Raises:
        ExecutionError: a package, the driver or the GPU is missing.
    """
    try:
        import cupy
        from cuda.bindings import driver as bindings
        from cupy_backends.cuda.api import driver
    except ImportError as error:
        raise ExecutionError(f"backend 'cuda' needs CuPy and cuda-bindings ({error}): {INSTALL}") from error
    runtime = cupy.cuda.runtime
    try:
        count = runtime.getDeviceCount()
        if device >= count:
            raise ExecutionError(f"no GPU {device}: this machine has {count}, numbered from 0")
        runtime.setDevice(device)
        properties = runtime.getDeviceProperties(device)
    except runtime.CUDARuntimeError as error:
        raise ExecutionError(f"backend 'cuda' needs an NVIDIA GPU and its driver: {error}") from error
    return Cuda(cupy, runtime, driver, bindings, properties["name"].decode(), properties["multiProcessorCount"])
