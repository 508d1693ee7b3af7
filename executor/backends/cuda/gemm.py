"""Products of a matrix with several tokens through cuBLAS."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from ctypes import byref, c_float, c_int, c_void_p
from dataclasses import dataclass
from typing import Any, Final

from executor.backends.cuda.library import KernelCall, Library, check_cublas
from executor.backends.cuda.runtime import Cuda

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
        kept: objects that must live as long as the call.
    """

    library: Library
    out: Any
    weight: Any
    x: int
    kind: int
    kept: tuple[Any, ...]

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
        return [Gemm(library, out, weight, x.ptr, _R_32F, (x,))]
    rounded = library.cuda.cupy.cuda.alloc(2 * x.size)
    arguments = (c_void_p(rounded.ptr), c_void_p(x.ptr), c_int(x.size))
    cast = library.call("elementwise.cu", "cast_f16", (-(-x.size // 256), 1), 256, arguments, kept=(rounded, x))
    return [cast, Gemm(library, out, weight, rounded.ptr, _R_16F, (rounded,))]
