"""Turns nodes into kernel calls: one function per op, listed in `OPS`. The kernels are in `sources`.

Matrix products of one token use our matrix-vector kernels, those of up to eight tokens with f16 weights our tensor-core
kernel, and all others with f32 or f16 weights cuBLAS. Sums are f32. Activations are f32, except in cuBLAS products with
f16 weights, where they are rounded to f16. q8_0 weights are read once per token.
"""

from __future__ import annotations

import ctypes
from collections.abc import Hashable, Mapping, Sequence
from ctypes import c_float, c_int, c_int64, c_void_p
from dataclasses import dataclass
from typing import Final

from executor.backends.cuda.attention import OPS as ATTENTION
from executor.backends.cuda.library import (
    BLOCK,
    VALUES_PER_LOAD,
    Array,
    Calls,
    KernelCall,
    Library,
    Op,
    block_of_rows,
    gemm,
    grid,
    suffix,
)
from executor.backends.cuda.mul_mat import FUSED, mul_mat_call, takes_tokens, tokens_call
from executor.backends.cuda.runtime import Cuda
from executor.graph import BLOCK_FORMATS, Tensor
from tracer.errors import ExecutionError

_EXPERT_WARPS: Final = 8
_MOST_EXPERTS: Final = 1024
_EXPERT_BLOCKS: Final = 8


class NormRopeArguments(ctypes.Structure):
    """`struct NormRope` in norm_rope.cu."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "norm", "positions", "turns", "rows", "out")),
        *((name, ctypes.c_int) for name in ("heads", "head", "dims", "neox", "width")),
        ("eps", ctypes.c_float),
    )


@dataclass(frozen=True, slots=True)
class CudaKernel:
    """A node's kernel bound to its memory, usually one call."""

    label: str
    calls: Calls

    @property
    def key(self) -> Hashable:
        """Identifies the computation and its memory."""
        return tuple(call.key for call in self.calls)

    def issue(self, cuda: Cuda, stream: int, early: bool = False) -> None:
        """Launch the kernel; with `early` it may start before the stream's previous kernel has ended."""
        for call in self.calls:
            if early and isinstance(call, KernelCall):
                call.issue_early(cuda, stream)
            else:
                call.issue(cuda, stream)
            early = isinstance(call, KernelCall) and early


def bind(library: Library, node: Tensor, out: Array, src: Sequence[Array]) -> CudaKernel:
    """Bind a node's kernel to its memory.

    Raises:
        ExecutionError: no kernel for the op, the dtypes or the sizes.
    """
    if node.op not in OPS:
        raise ExecutionError(f"backend 'cuda' has no kernel for op {node.op!r} of node {node.name}")
    return CudaKernel(f"{node.op}({node.name})", OPS[node.op](library, node, out, src))


def _binary(known: str) -> Op:
    def op(library: Library, node: Tensor, out: Array, src: Sequence[Array]) -> Calls:
        """out = x op y, with y repeated, or with one value of y per row."""
        x, y = src
        column = len(y.shape) > 1 and y.shape[-1] == 1 and x.shape[-1] > 1
        name = f"{node.op}_{'column_' if column else ''}{suffix(node, out.dtype, known)}"
        repeat = x.shape[-1] if column else y.size
        arguments = (c_void_p(out.ptr), c_void_p(x.ptr), c_void_p(y.ptr), c_int(out.size), c_int(repeat))
        return [library.call("elementwise.cu", name, grid(out.size), BLOCK, arguments, kept=(out, *src))]

    return op


def _unary(library: Library, node: Tensor, out: Array, src: Sequence[Array]) -> Calls:
    arguments = (c_void_p(out.ptr), c_void_p(src[0].ptr), c_int(out.size))
    return [library.call("elementwise.cu", f"{node.op}_f32", grid(out.size), BLOCK, arguments, kept=(out, *src))]


def _l2_norm(library: Library, node: Tensor, out: Array, src: Sequence[Array]) -> Calls:
    width = node.shape[-1]
    arguments = (c_void_p(out.ptr), c_void_p(src[0].ptr), c_int(width), c_float(node.params["eps"]))
    rows = (out.size // width, 1)
    return [library.call("elementwise.cu", "l2_norm_f32", rows, block_of_rows(width, 256), arguments, kept=(out, *src))]


def _sum_rows(library: Library, node: Tensor, out: Array, src: Sequence[Array]) -> Calls:
    width = src[0].shape[-1]
    arguments = (c_void_p(out.ptr), c_void_p(src[0].ptr), c_int(width))
    rows = (out.size, 1)
    return [
        library.call("elementwise.cu", "sum_rows_f32", rows, block_of_rows(width, 256), arguments, kept=(out, *src))
    ]


def _cpy(library: Library, node: Tensor, out: Array, src: Sequence[Array]) -> Calls:
    suffix(node, src[0].dtype, "f32 i32")
    arguments = (c_void_p(out.ptr), c_void_p(src[0].ptr), c_int(out.size))
    return [library.call("elementwise.cu", "cpy_32", grid(out.size), BLOCK, arguments, kept=(out, *src))]


def _rope(library: Library, node: Tensor, out: Array, src: Sequence[Array]) -> Calls:
    _n, heads, head = node.shape
    if node.params["mode"] != "normal" or node.params["dims"] != head:
        return _norm_rope(library, node, out, src)
    turns = library.turns(node.params["base"], head)
    arguments = (
        c_void_p(out.ptr), c_void_p(src[0].ptr), c_void_p(src[1].ptr), c_void_p(turns.data.ptr),
        c_int(out.size // 2), c_int(heads), c_int(head // 2),
    )  # fmt: skip
    return [library.call("elementwise.cu", "rope_f32", grid(out.size // 2), BLOCK, arguments, kept=(out, *src, turns))]


def _rms_norm(library: Library, node: Tensor, out: Array, src: Sequence[Array]) -> Calls:
    """Bind rms_norm and the product with weights fused after it, if any."""
    norm = node.params["parts"][0] if "parts" in node.params else node
    width = node.shape[-1]
    if width % 4:
        raise ExecutionError(f"backend 'cuda' has rms_norm for multiples of 4, not for {width} ({node.name})")
    weight = src[1].ptr if len(src) > 1 else 0
    arguments = (
        c_void_p(out.ptr), c_void_p(src[0].ptr), c_void_p(weight), c_int(width), c_float(norm.params["eps"])
    )  # fmt: skip
    block = min(512, -(-width // 128) * 32)
    return [library.call("elementwise.cu", "rms_norm_f32", (out.size // width, 1), block, arguments, kept=(out, *src))]


def _norm_rope(library: Library, node: Tensor, out: Array, src: Sequence[Array]) -> Calls:
    """Bind rope in any mode, with a fused norm before it and a fused set_rows after it, if any."""
    parts = {part.op: part for part in node.params.get("parts", (node,))}
    rope, norm = parts["rope"], parts.get("rms_norm")
    _n, heads, head = rope.shape
    if head > 256:
        raise ExecutionError(f"backend 'cuda' supports rope only for head sizes up to 256, not {head} ({node.name})")
    dims, named = rope.params["dims"], iter(src)
    x, weight, positions = next(named), next(named).ptr if norm else 0, next(named)
    rows = next(named).ptr if "set_rows" in parts else 0
    turns = library.turns(rope.params["base"], dims)
    packed = NormRopeArguments(
        x.ptr, weight, positions.ptr, turns.data.ptr, rows, out.ptr, heads, head, dims,
        rope.params["mode"] == "neox", norm.shape[-1] if norm else head, norm.params["eps"] if norm else 0.0,
    )  # fmt: skip
    name = f"norm_rope_{suffix(node, out.dtype, 'f32 f16')}"
    return [library.call("norm_rope.cu", name, (heads, positions.size), 32, (packed,), kept=(out, *src, turns))]


def _argmax(library: Library, node: Tensor, out: Array, src: Sequence[Array]) -> Calls:
    arguments = (c_void_p(out.ptr), c_void_p(src[0].ptr), c_int(src[0].shape[-1]))
    return [library.call("elementwise.cu", "argmax_f32", (out.size, 1), 1024, arguments, kept=(out, *src))]


def _get_rows(library: Library, node: Tensor, out: Array, src: Sequence[Array]) -> Calls:
    table, rows = src
    width = out.size // rows.size
    name = f"get_rows_{suffix(node, table.dtype, 'f32 f16 q8_0')}"
    arguments = (
        c_void_p(out.ptr), c_void_p(table.ptr), c_void_p(rows.ptr), c_int(width), c_int64(table.size),
        c_int(rows.shape[-1]), c_int(table.shape[-2] if len(table.shape) > 2 else 0),
    )  # fmt: skip
    return [library.call("rows.cu", name, (-(-width // BLOCK), rows.size), BLOCK, arguments, kept=(out, *src))]


def _set_rows(library: Library, node: Tensor, out: Array, src: Sequence[Array]) -> Calls:
    values, rows, _destination = src
    width = values.size // rows.size
    name = f"set_rows_{suffix(node, out.dtype, 'f32 f16 i32')}"
    arguments = (c_void_p(out.ptr), c_void_p(values.ptr), c_void_p(rows.ptr), c_int(width))
    return [library.call("rows.cu", name, grid(width, rows.size), BLOCK, arguments, kept=(out, *src))]


def _mul_mat(library: Library, node: Tensor, out: Array, src: Sequence[Array]) -> Calls:
    weight, x = src
    if takes_tokens(weight, x.shape[0]):
        return [tokens_call(library, out, src)]
    if x.shape[0] > 1 and weight.dtype in ("float32", "float16"):
        return gemm(library, out, weight, x)
    return [mul_mat_call(library, node, out, src)]


def _fused(library: Library, node: Tensor, out: Array, src: Sequence[Array]) -> Calls:
    return [mul_mat_call(library, node, out, src)]


class ExpertsArguments(ctypes.Structure):
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
    if width > _MOST_EXPERTS:
        raise ExecutionError(f"backend 'cuda' has top_k for {_MOST_EXPERTS} columns, not for {width} ({node.name})")
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
    packed = ExpertsArguments(
        weight.ptr, second, x.ptr, ids.ptr, out.ptr,
        experts, outputs, inputs, ids.shape[-1], int(x.shape[1] == 1 and ids.shape[-1] > 1),
    )  # fmt: skip
    most = max(1, library.cuda.multiprocessors * _EXPERT_BLOCKS // ids.size)
    blocks = (min(-(-outputs // _EXPERT_WARPS), most), ids.size)
    name = f"mul_mat_id_swiglu_{dtype}" if second else f"mul_mat_id_{dtype}"
    return [
        library.call(
            "experts.cu", name, blocks, _EXPERT_WARPS * 32, (packed,), shared_bytes=4 * inputs, kept=(out, *src)
        )
    ]


OPS: Final[Mapping[str, Op]] = {
    "add": _binary("f32 i32 i64"), **dict.fromkeys(("mul", "div", "swiglu"), _binary("f32")), "cpy": _cpy,
    "rope": _rope, "rms_norm": _rms_norm, "rms_norm+mul": _rms_norm, "argmax": _argmax, "get_rows": _get_rows,
    "set_rows": _set_rows, **dict.fromkeys(FUSED, _fused), "mul_mat": _mul_mat,
    **dict.fromkeys(("silu", "sigmoid", "softplus"), _unary), "l2_norm": _l2_norm, "sum_rows": _sum_rows,
    "rms_norm+mul+rope": _norm_rope, "rms_norm+mul+rope+set_rows": _norm_rope, "soft_max": _soft_max,
    "top_k": _top_k, "moe_expert_reduce": _reduce, "mul_mat_id": _mul_mat_id,
    "mul_mat_id+mul_mat_id+swiglu": _mul_mat_id, **ATTENTION,
}  # fmt: skip
"""Maps an op name to the function that binds its kernel."""
