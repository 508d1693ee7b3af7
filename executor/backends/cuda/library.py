"""Compiled kernels and constants of one GPU. NVRTC compiles a file on first use; CuPy caches the result on disk."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

import numpy as np

from executor.backends.cuda.runtime import Cuda
from tracer.errors import ExecutionError

MOST_SHARED_BYTES: Final = 200 * 1024
"""Maximum dynamic shared memory that a block may request; the hardware has slightly more."""
_PLAIN_SHARED_BYTES: Final = 48 * 1024

Argument = Any
"""A ctypes value or structure."""


@dataclass(frozen=True, slots=True)
class KernelCall:
    """A kernel with its grid and its arguments, packed once.

    Attributes:
        function: handle of the kernel.
        grid: blocks in x and y.
        block: threads per block.
        shared_bytes: dynamic shared memory.
        arguments: address of the array of argument addresses.
        key: equal for calls that do the same to the same memory.
        kept: objects that must live as long as the call: the arguments and the memory they point to.
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
        cuda.driver.launchKernel(
            self.function, x, y, 1, self.block, 1, 1, self.shared_bytes, stream, self.arguments, 0
        )  # fmt: skip

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

    def call(
        self, file: str, name: str, grid: tuple[int, int], block: int, arguments: Sequence[Argument],
        *, shared_bytes: int = 0, kept: Sequence[Any] = (), macros: Mapping[str, int] | None = None,
    ) -> KernelCall:  # fmt: skip
        """Pack a call of a kernel from a file compiled with these macros."""
        function = self.function(file, name, macros)
        self._allow_shared(function, shared_bytes, name)
        addresses = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(a) for a in arguments))
        packed = ctypes.addressof(addresses)
        key = (function, grid, block, shared_bytes, *(bytes(argument) for argument in arguments))
        return KernelCall(function, grid, block, shared_bytes, packed, key, (addresses, *arguments, *kept))

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
        """Return the half turns of rope per position, (head size / 2,) float64 on the device."""
        key = (base, head_size)
        if key not in self._turns:
            values = base ** (-np.arange(head_size // 2) / (head_size // 2)) / np.pi
            self._turns[key] = self.cuda.cupy.asarray(values)
            self.cuda.runtime.deviceSynchronize()
        return self._turns[key]

    def cublas(self, stream: int) -> tuple[Any, int]:
        """Return the cuBLAS library and the handle of a stream; each stream has its own handle and workspace.

        Called through ctypes, as CuPy's own calls use CuPy's current stream.
        """
        if self._cublas is None:
            from cuda.pathfinder import load_nvidia_dynamic_lib

            self._cublas = ctypes.CDLL(load_nvidia_dynamic_lib("cublas").abs_path), {}
        library, handles = self._cublas
        if stream not in handles:
            handle = ctypes.c_void_p()
            check_cublas(library.cublasCreate_v2(ctypes.byref(handle)))
            handles[stream] = handle.value or 0
            check_cublas(library.cublasSetStream_v2(handle, ctypes.c_void_p(stream)))
        return library, handles[stream]

    def close(self) -> None:
        """Destroy the cuBLAS handles."""
        if self._cublas is not None:
            library, handles = self._cublas
            for handle in handles.values():
                library.cublasDestroy_v2(ctypes.c_void_p(handle))
            self._cublas = None

    def _allow_shared(self, function: int, shared_bytes: int, name: str) -> None:
        if shared_bytes > MOST_SHARED_BYTES:
            raise ExecutionError(
                f"{name} needs {shared_bytes} bytes of shared memory per block, the GPU allows {MOST_SHARED_BYTES}: "
                "choose a smaller context or model"
            )
        if shared_bytes > _PLAIN_SHARED_BYTES:
            attribute = self.cuda.driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self.cuda.driver.funcSetAttribute(function, attribute, MOST_SHARED_BYTES)


def check_cublas(status: int) -> None:
    """Raise ExecutionError unless a cuBLAS call succeeded."""
    if status:
        raise ExecutionError(f"cuBLAS failed with status {status}")


@cache
def _source(file: str) -> str:
    """Return the source of a kernel file with its local includes inserted."""
    text = (files("executor.backends.cuda") / "sources" / file).read_text(encoding="utf-8")
    return re.sub(r'^#include "(.+)"$', lambda include: _source(include[1]), text, flags=re.MULTILINE)
