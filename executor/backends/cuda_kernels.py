"""From nodes to kernel calls: one function per op, named in `OPS`. The kernels are in `executor/kernels`.

Matrix products of one token run our matrix-vector kernels; of several tokens cuBLAS, where weights are f32 or f16
(activations are rounded to f16 beside f16 weights, sums are f32). q8_0 weights are read once per token.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from ctypes import c_float, c_int, c_int64, c_void_p
from dataclasses import dataclass
from typing import Final, Protocol

from executor.backends.cuda_gemm import Gemm, gemm
from executor.backends.cuda_library import KernelCall, Library
from executor.backends.cuda_mul_mat import FUSED, mul_mat_call
from executor.backends.cuda_runtime import Cuda
from executor.graph import Tensor
from tracer.errors import ExecutionError

BLOCK: Final = 256
ATTENTION_BLOCK: Final = 512
SUFFIX: Final = {"float32": "f32", "float16": "f16", "q8_0": "q8_0", "int32": "i32", "int64": "i64"}


class AttentionArguments(ctypes.Structure):
    """`struct Attention` of attention.cu."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "mask", "out")),
        *((name, ctypes.c_int) for name in ("heads", "kv_heads", "head", "cells")),
        ("scale", ctypes.c_float),
    )


class Array(Protocol):
    """A tensor's place on the device."""

    ptr: int
    shape: tuple[int, ...]
    dtype: str
    size: int


@dataclass(frozen=True, slots=True)
class CudaKernel:
    """A node's kernel bound to its memory; nearly always one call."""

    label: str
    calls: Sequence[KernelCall | Gemm]

    def issue(self, cuda: Cuda, stream: int, early: bool = False) -> None:
        """Launch; `early`: it may begin before the stream's last kernel has ended."""
        for call in self.calls:
            if early and isinstance(call, KernelCall):
                call.issue_early(cuda, stream)
            else:
                call.issue(cuda, stream)
            early = isinstance(call, KernelCall) and early


Calls = Sequence[KernelCall | Gemm]
Op = Callable[[Library, Tensor, Array, Sequence[Array]], Calls]


def bind(library: Library, node: Tensor, out: Array, src: Sequence[Array]) -> CudaKernel:
    """A node's kernel.

    Raises:
        ExecutionError: there is no kernel for the op, the dtypes or the sizes.
    """
    if node.op not in OPS:
        raise ExecutionError(f"backend 'cuda' has no kernel for op {node.op!r} of node {node.name}")
    return CudaKernel(f"{node.op}({node.name})", OPS[node.op](library, node, out, src))


def _grid(n: int, y: int = 1, most: int = 528) -> tuple[int, int]:
    return min(-(-n // BLOCK), most), y


def _suffix(node: Tensor, dtype: str, known: str) -> str:
    suffix = SUFFIX.get(dtype, dtype)
    if suffix not in known.split():
        raise ExecutionError(f"backend 'cuda' computes {node.op} for {known}, not for {dtype} ({node.name})")
    return suffix


def _binary(known: str) -> Op:
    def op(library: Library, node: Tensor, out: Array, src: Sequence[Array]) -> Calls:
        """out = x op y, y repeated."""
        x, y = src
        name = f"{node.op}_{_suffix(node, out.dtype, known)}"
        arguments = (c_void_p(out.ptr), c_void_p(x.ptr), c_void_p(y.ptr), c_int(out.size), c_int(y.size))
        return [library.call("elementwise.cu", name, _grid(out.size), BLOCK, arguments, kept=(out, *src))]

    return op


def _cpy(library: Library, node: Tensor, out: Array, src: Sequence[Array]) -> Calls:
    _suffix(node, src[0].dtype, "f32 i32")
    arguments = (c_void_p(out.ptr), c_void_p(src[0].ptr), c_int(out.size))
    return [library.call("elementwise.cu", "cpy_32", _grid(out.size), BLOCK, arguments, kept=(out, *src))]


def _rope(library: Library, node: Tensor, out: Array, src: Sequence[Array]) -> Calls:
    _n, heads, head = node.shape
    turns = library.turns(node.params["base"], head)
    arguments = (
        c_void_p(out.ptr), c_void_p(src[0].ptr), c_void_p(src[1].ptr), c_void_p(turns.data.ptr),
        c_int(out.size // 2), c_int(heads), c_int(head // 2),
    )  # fmt: skip
    return [library.call("elementwise.cu", "rope_f32", _grid(out.size // 2), BLOCK, arguments, kept=(out, *src, turns))]


def _rms_norm(library: Library, node: Tensor, out: Array, src: Sequence[Array]) -> Calls:
    """With the weights that follow, if they were fused."""
    norm = node.params["parts"][0] if "parts" in node.params else node
    width = node.shape[-1]
    if width % 4:
        raise ExecutionError(f"backend 'cuda' computes rms_norm for multiples of 4, not for {width} ({node.name})")
    weight = src[1].ptr if len(src) > 1 else 0
    arguments = (
        c_void_p(out.ptr), c_void_p(src[0].ptr), c_void_p(weight), c_int(width), c_float(norm.params["eps"])
    )  # fmt: skip
    block = min(512, -(-width // 128) * 32)
    return [library.call("elementwise.cu", "rms_norm_f32", (out.size // width, 1), block, arguments, kept=(out, *src))]


def _argmax(library: Library, node: Tensor, out: Array, src: Sequence[Array]) -> Calls:
    arguments = (c_void_p(out.ptr), c_void_p(src[0].ptr), c_int(src[0].shape[-1]))
    return [library.call("elementwise.cu", "argmax_f32", (out.size, 1), 1024, arguments, kept=(out, *src))]


def _get_rows(library: Library, node: Tensor, out: Array, src: Sequence[Array]) -> Calls:
    table, rows = src
    width = out.size // rows.size
    name = f"get_rows_{_suffix(node, table.dtype, 'f32 f16 q8_0')}"
    arguments = (
        c_void_p(out.ptr), c_void_p(table.ptr), c_void_p(rows.ptr), c_int(width), c_int64(table.size)
    )  # fmt: skip
    grid = (-(-width // BLOCK), rows.size)
    return [library.call("rows.cu", name, grid, BLOCK, arguments, kept=(out, *src))]


def _set_rows(library: Library, node: Tensor, out: Array, src: Sequence[Array]) -> Calls:
    values, rows, _destination = src
    width = values.size // rows.size
    name = f"set_rows_{_suffix(node, out.dtype, 'f32 f16 i32')}"
    arguments = (c_void_p(out.ptr), c_void_p(values.ptr), c_void_p(rows.ptr), c_int(width))
    return [library.call("rows.cu", name, _grid(width, rows.size), BLOCK, arguments, kept=(out, *src))]


def _attention(library: Library, node: Tensor, out: Array, src: Sequence[Array]) -> Calls:
    q, k, v, mask = src
    (n, heads, head), (_, cells, kv_heads, _) = q.shape, k.shape
    if head not in (8, 16, 32, 64, 128, 256):
        raise ExecutionError(f"backend 'cuda' has attention for heads of 8, 16, ... 256, not of {head} ({node.name})")
    name = f"flash_attn_{_suffix(node, k.dtype, 'f32 f16')}"
    packed = AttentionArguments(
        q.ptr, k.ptr, v.ptr, mask.ptr, out.ptr, heads, kv_heads, head, cells, node.params["scale"]
    )  # fmt: skip
    return [library.call("attention.cu", name, (heads, n), ATTENTION_BLOCK, (packed,), kept=(out, *src))]


def _mul_mat(library: Library, node: Tensor, out: Array, src: Sequence[Array]) -> Calls:
    weight, x = src
    if x.shape[0] > 1 and weight.dtype in ("float32", "float16"):
        return gemm(library, out, weight, x)
    return [mul_mat_call(library, node, out, src)]


def _fused(library: Library, node: Tensor, out: Array, src: Sequence[Array]) -> Calls:
    return [mul_mat_call(library, node, out, src)]


OPS: Final[Mapping[str, Op]] = {
    "add": _binary("f32 i32 i64"), "mul": _binary("f32"), "swiglu": _binary("f32"), "cpy": _cpy, "rope": _rope,
    "rms_norm": _rms_norm, "rms_norm+mul": _rms_norm, "argmax": _argmax, "get_rows": _get_rows,
    "set_rows": _set_rows, "flash_attn_ext": _attention, "mul_mat": _mul_mat, **dict.fromkeys(FUSED, _fused),
}  # fmt: skip
"""Op name -> what binds its kernel."""
