"""Binds the ops of a mixture of experts to the kernels in experts.cu."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import c_int, c_void_p
from typing import Final

from executor.backends.cuda.library import (
    BLOCK,
    VALUES_PER_LOAD,
    Array,
    Calls,
    Library,
    Op,
    block_of_rows,
    grid,
    suffix,
)
from executor.graph import BLOCK_FORMATS, Tensor
from tracer.errors import ExecutionError

_WARPS: Final = 8
_MOST_COLUMNS: Final = 1024
_BLOCKS_PER_MULTIPROCESSOR: Final = 8


class Arguments(ctypes.Structure):
    """`struct Experts` in experts.cu."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weight", "weight2", "x", "ids", "out")),
        *((name, ctypes.c_int) for name in ("experts", "outputs", "inputs", "chosen", "shared")),
    )


def _soft_max(library: Library, node: Tensor, out: Array, src: Sequence[Array]) -> Calls:
    width = node.shape[-1]
    arguments = (c_void_p(out.ptr), c_void_p(src[0].ptr), c_int(width))
    block = block_of_rows(width)
    return [library.call("experts.cu", "soft_max_f32", (out.size // width, 1), block, arguments, kept=(out, *src))]


def _top_k(library: Library, node: Tensor, out: Array, src: Sequence[Array]) -> Calls:
    width, k = src[0].shape[-1], node.params["k"]
    if width > _MOST_COLUMNS:
        raise ExecutionError(f"backend 'cuda' has top_k for {_MOST_COLUMNS} columns, not for {width} ({node.name})")
    arguments = (c_void_p(out.ptr), c_void_p(src[0].ptr), c_int(width), c_int(k))
    return [library.call("experts.cu", "top_k_f32", (out.size // k, 1), 32, arguments, kept=(out, *src))]


def _reduce(library: Library, node: Tensor, out: Array, src: Sequence[Array]) -> Calls:
    x, weights = src
    tokens, width = node.shape
    arguments = (
        c_void_p(out.ptr), c_void_p(x.ptr), c_void_p(weights.ptr), c_int(weights.shape[-1]), c_int(width)
    )  # fmt: skip
    return [
        library.call("experts.cu", "moe_expert_reduce_f32", grid(width, tokens), BLOCK, arguments, kept=(out, *src))
    ]


def _mul_mat_id(library: Library, node: Tensor, out: Array, src: Sequence[Array]) -> Calls:
    """Bind mul_mat_id, and a fused second product with swiglu: the sources are weight, x, ids and the other weight."""
    weight, x, ids = src[:3]
    experts, outputs, inputs = weight.shape
    dtype = suffix(node, weight.dtype, "f32 f16 q8_0")
    if inputs % max(VALUES_PER_LOAD[weight.dtype], BLOCK_FORMATS.get(weight.dtype, (1, 1))[0]):
        rows = f"{weight.dtype} rows of {inputs}"
        raise ExecutionError(f"backend 'cuda' does not support mul_mat_id for {rows} ({node.name})")
    second = src[3].ptr if len(src) > 3 else 0
    packed = Arguments(
        weight.ptr, second, x.ptr, ids.ptr, out.ptr,
        experts, outputs, inputs, ids.shape[-1], int(x.shape[1] == 1 and ids.shape[-1] > 1),
    )  # fmt: skip
    most = max(1, library.cuda.multiprocessors * _BLOCKS_PER_MULTIPROCESSOR // ids.size)
    blocks = (min(-(-outputs // _WARPS), most), ids.size)
    name = f"mul_mat_id_swiglu_{dtype}" if second else f"mul_mat_id_{dtype}"
    return [library.call("experts.cu", name, blocks, _WARPS * 32, (packed,), shared_bytes=4 * inputs, kept=(out, *src))]


OPS: Final[Mapping[str, Op]] = {
    "soft_max": _soft_max, "top_k": _top_k, "moe_expert_reduce": _reduce, "mul_mat_id": _mul_mat_id,
    "mul_mat_id+mul_mat_id+swiglu": _mul_mat_id,
}  # fmt: skip
"""Maps an op name to the function that binds its kernel."""
