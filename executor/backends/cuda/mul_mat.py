"""The matrix-vector kernels: which ops are fused with a product, and how it is divided among blocks.

Measured on an H200 (benchmarks/gpu_decode.py): one warp per row saturates the memory for short rows, one block per row
for long ones. The wrong choice costs a factor of two either way.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any, Final

from executor.backends.cuda.library import SUFFIX, VALUES_PER_LOAD, KernelCall, Library
from executor.graph import BLOCK_FORMATS, Tensor
from tracer.errors import ExecutionError

LONG_ROW: Final = 4096
"""Minimum row length, in values, at which a block shares a row, unless rms_norm is fused with the product."""
BLOCKS_PER_MULTIPROCESSOR: Final = 4
LEAST_ROWS_PER_BLOCK: Final = 4

MOST_TOKENS: Final = 8
"""Maximum number of tokens of the tensor-core kernel, which reads the weights once for all of them."""
_TOKENS_WARPS: Final = 8
_TOKENS_TILE: Final = 16

FUSED: Final[Mapping[str, tuple[str, ...]]] = {
    "mul_mat": ("weight", "x"),
    "mul_mat+add": ("weight", "x", "residual"),
    "mul_mat+rope": ("weight", "x", "positions"),
    "mul_mat+rope+set_rows": ("weight", "x", "positions", "rows", "destination"),
    "mul_mat+set_rows": ("weight", "x", "rows", "destination"),
    "rms_norm+mul+mul_mat": ("x", "norm", "weight"),
    "rms_norm+mul+mul_mat+mul_mat+swiglu": ("x", "norm", "weight", "weight2"),
}
"""Maps an op to the roles of its sources in the kernel."""

_NAMES: Final = {
    op: op.replace("norm+mul", "norm").replace("mul_mat+mul_mat", "mul_mat").replace("+", "_") for op in FUSED
}
_CHUNKS: Final = (1, 2, 4, 8)
_CELLS: Final = {"float32": "float32", "float16": "float16", "q8_0": "float16"}


class Arguments(ctypes.Structure):
    """`struct Arguments` in mul_mat.cuh."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in (
            "weight", "weight2", "x", "norm", "residual", "positions", "turns", "rows", "out"
        )),
        *((name, ctypes.c_int) for name in ("outputs", "inputs", "head", "rows_per_block")),
        ("eps", ctypes.c_float),
    )  # fmt: skip


class TokensArguments(ctypes.Structure):
    """`struct Arguments` in mul_mat_tokens.cu."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weight", "x", "out")),
        *((name, ctypes.c_int) for name in ("outputs", "inputs", "tokens")),
    )


def takes_tokens(weight: Any, tokens: int) -> bool:
    """Whether `tokens_call` has a kernel for the product."""
    dtype, (_outputs, inputs) = weight.dtype, weight.shape
    return dtype == "float16" and 1 < tokens <= MOST_TOKENS and inputs % VALUES_PER_LOAD[dtype] == 0


def tokens_call(library: Library, out: Any, src: Sequence[Any]) -> KernelCall:
    """Return the call of a product of up to `MOST_TOKENS` tokens."""
    weight, x = src
    outputs, inputs = weight.shape
    packed = TokensArguments(weight.ptr, x.ptr, out.ptr, outputs, inputs, x.shape[0])
    grid = (-(-outputs // _TOKENS_TILE), 1)
    name = "mul_mat_tokens_f16"
    return library.call("mul_mat_tokens.cu", name, grid, 32 * _TOKENS_WARPS, (packed,), kept=(out, *src))


def mul_mat_call(library: Library, node: Tensor, out: Any, src: Sequence[Any]) -> KernelCall:
    """Return the call of a product and the ops fused with it.

    Raises:
        ExecutionError: rows do not fit the kernels' loads, or the KV cache has a different dtype.
    """
    named = dict(zip(FUSED[node.op], src, strict=True))
    weight, x = named["weight"], named["x"]
    outputs, inputs = weight.shape
    _check(node, weight.dtype, inputs, named)
    arguments = Arguments(**{name: array.ptr for name, array in named.items() if name != "destination"})
    arguments.out, arguments.outputs, arguments.inputs = out.ptr, outputs, inputs
    turns = None
    for part in node.params.get("parts", ()):
        if part.op == "rope":
            turns = library.turns(part.params["base"], part.shape[-1])
            arguments.head, arguments.turns = part.shape[-1], turns.data.ptr
        elif part.op == "rms_norm":
            arguments.eps = part.params["eps"]
    name = f"{_NAMES[node.op]}_{SUFFIX[weight.dtype]}"
    kept = (out, *src, turns)
    if inputs < LONG_ROW or "norm" in named:
        groups = outputs // 2 if "positions" in named else outputs
        block, blocks = _cut_matrix(library, name, groups, 4 * inputs)
        grid = (blocks, x.shape[0])
        return library.call(
            "mul_mat_warp.cu", name, grid, block, (arguments,), shared_bytes=4 * inputs, kept=kept
        )  # fmt: skip
    warps, chunks = cut_row(inputs, weight.dtype)
    rows = outputs // (library.cuda.multiprocessors * BLOCKS_PER_MULTIPROCESSOR) + 1
    arguments.rows_per_block = rows = max(rows + rows % 2, LEAST_ROWS_PER_BLOCK)
    return library.call(
        "mul_mat_block.cu", name, (-(-outputs // rows), x.shape[0]), 32 * warps, (arguments,),
        shared_bytes=4 * warps * (rows + 1), kept=kept, macros={"CHUNKS": chunks},
    )  # fmt: skip


def _cut_matrix(library: Library, name: str, groups: int, shared_bytes: int) -> tuple[int, int]:
    """Return threads per block and blocks, for one warp per group of rows, spread over all multiprocessors."""
    multiprocessors = library.cuda.multiprocessors
    warps = next((w for w in (8, 4) if groups >= w * multiprocessors), 2)
    function = library.function("mul_mat_warp.cu", name)
    resident = library.blocks_per_multiprocessor(function, warps * 32, shared_bytes)
    return warps * 32, min(-(-groups // warps), resident * multiprocessors)


def cut_row(inputs: int, dtype: str) -> tuple[int, int]:
    """Return the warps that share a row and the 16-byte loads of each lane, chosen to leave the fewest lanes idle.

    Raises:
        ExecutionError: the row is too long.
    """
    lanes = -(-inputs // VALUES_PER_LOAD[dtype])
    for most in (8, 16):
        ways = [(chunks * warps * 32 - lanes, -warps, chunks) for chunks in _CHUNKS for warps in range(1, most + 1)]
        fitting = [way for way in ways if way[0] >= 0]
        if fitting:
            _idle, warps, chunks = min(fitting)
            return -warps, chunks
    raise ExecutionError(f"backend 'cuda' does not support mul_mat for {dtype} rows of {inputs}: they are too long")


def _check(node: Tensor, dtype: str, inputs: int, named: Mapping[str, Any]) -> None:
    if dtype not in VALUES_PER_LOAD or inputs % max(VALUES_PER_LOAD[dtype], BLOCK_FORMATS.get(dtype, (1, 1))[0]):
        raise ExecutionError(f"backend 'cuda' does not support mul_mat for {dtype} rows of {inputs} ({node.name})")
    if "destination" in named and named["destination"].dtype != _CELLS[dtype]:
        cells = named["destination"].dtype
        raise ExecutionError(f"backend 'cuda' writes {_CELLS[dtype]} cells with {dtype} weights, not {cells}")
