"""CUDA as used by this package: CuPy's thin runtime calls, imported only when a backend starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tracer.errors import ExecutionError

INSTALL = "pip install 'intertoken[cuda13]' (or 'intertoken[cuda12]' for a CUDA 12 driver)"


@dataclass(frozen=True)
class Cuda:
    """The CUDA modules and properties of the GPU.

    Attributes:
        cupy: the package, used for memory, pinned memory and compilation.
        runtime: `cupy.cuda.runtime`; its calls take and return addresses as int, the cheapest way from Python.
        driver: the same for the driver API.
        bindings: `cuda.bindings.driver`, for calls that CuPy lacks.
        gpu: name of the GPU.
        multiprocessors: number of multiprocessors.
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
