"""Shared by the modules that bind nodes to kernels: types, grids, and the check of a dtype."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from executor.backends.cuda.gemm import Gemm
from executor.backends.cuda.library import KernelCall, Library
from executor.graph import Tensor
from tracer.errors import ExecutionError

BLOCK: Final = 256
_SUFFIX: Final = {"float32": "f32", "float16": "f16", "q8_0": "q8_0", "int32": "i32", "int64": "i64"}


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
    name = _SUFFIX.get(dtype, dtype)
    if name not in known.split():
        raise ExecutionError(f"backend 'cuda' computes {node.op} for {known}, not for {dtype} ({node.name})")
    return name


def block_of_rows(width: int, most: int = 1024) -> int:
    """Return the threads of a block that processes one row, in whole warps."""
    return min(most, -(-width // 32) * 32)
