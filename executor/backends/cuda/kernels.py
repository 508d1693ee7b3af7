"""Turns nodes into kernel calls: one function per op, listed in `OPS`. The kernels are in `sources`.

Matrix products of one token use our matrix-vector kernels, those of up to eight tokens with f16 weights our tensor-core
kernel, and all others with f32 or f16 weights cuBLAS. Sums are f32. Activations are f32, except in cuBLAS products with
f16 weights, where they are rounded to f16. q8_0 weights are read once per token.

Products with matrices (`mul_mat_calls`): which ops are fused with a product, and how it is divided among blocks.
Measured on an H200 (benchmarks/gpu_decode.py): one warp per row saturates the memory for short rows, one block per row
for long ones. The wrong choice costs a factor of two either way.
"""

from __future__ import annotations

import ctypes
from collections.abc import Hashable, Mapping, Sequence
from ctypes import c_float, c_int, c_int64, c_void_p
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from executor.backends.cuda.library import (
    BLOCK,
    SUFFIX,
    VALUES_PER_LOAD,
    Array,
    Calls,
    Cuda,
    KernelCall,
    Library,
    Op,
    block_of_rows,
    gemm,
    grid,
    suffix,
)
from executor.graph import BLOCK_FORMATS, Tensor
from tracer.errors import ExecutionError

_EXPERT_WARPS: Final = 8
_MOST_EXPERTS: Final = 1024
_EXPERT_BLOCKS: Final = 8


def _structure(pointers: str, integers: str, floats: str = "") -> Any:
    """Return a structure of a kernel's arguments: its pointers, then its ints, then its floats, by their names."""
    kinds = ((pointers, c_void_p), (integers, c_int), (floats, c_float))
    fields = [(name, kind) for names, kind in kinds for name in names.split()]
    return type("Structure", (ctypes.Structure,), {"_fields_": fields})


NormRopeArguments = _structure(  # `struct NormRope` in norm_rope.cu
    "x norm positions turns rows out", "heads head dims neox width", "eps"
)
ExpertsArguments = _structure(  # `struct Experts` in experts.cu
    "weight weight2 x ids out", "experts outputs inputs chosen shared"
)
Arguments = _structure(  # `struct Arguments` in mul_mat.cuh
    "weight weight2 x norm residual positions turns rows out", "outputs inputs head rows_per_block", "eps"
)
TokensArguments = _structure("weight x out", "outputs inputs tokens")  # `struct Arguments` in mul_mat_tokens.cu
AttentionArguments = _structure(  # `struct Attention` in attention.cu
    "q k v mask streams parts done out", "heads kv_heads head cells stride_cells tokens splits listed", "scale"
)
DeltaNetArguments = _structure(  # `struct DeltaNet` in delta_net.cu
    "q k v g beta state out", "heads key_heads key_size value_size tokens", "scale"
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
        return [library.call("elementwise.cu", name, grid(out.size), BLOCK, out, x, y, out.size, repeat)]

    return op


def _unary(library: Library, node: Tensor, out: Array, src: Sequence[Array]) -> Calls:
    return [library.call("elementwise.cu", f"{node.op}_f32", grid(out.size), BLOCK, out, src[0], out.size)]


def _l2_norm(library: Library, node: Tensor, out: Array, src: Sequence[Array]) -> Calls:
    width, eps = node.shape[-1], c_float(node.params["eps"])
    rows, block = (out.size // width, 1), block_of_rows(width, 256)
    return [library.call("elementwise.cu", "l2_norm_f32", rows, block, out, src[0], width, eps)]


def _sum_rows(library: Library, node: Tensor, out: Array, src: Sequence[Array]) -> Calls:
    width = src[0].shape[-1]
    block = block_of_rows(width, 256)
    return [library.call("elementwise.cu", "sum_rows_f32", (out.size, 1), block, out, src[0], width)]


def _cpy(library: Library, node: Tensor, out: Array, src: Sequence[Array]) -> Calls:
    suffix(node, src[0].dtype, "f32 i32")
    return [library.call("elementwise.cu", "cpy_32", grid(out.size), BLOCK, out, src[0], out.size)]


def _rope(library: Library, node: Tensor, out: Array, src: Sequence[Array]) -> Calls:
    _n, heads, head = node.shape
    if node.params["mode"] != "normal" or node.params["dims"] != head:
        return _norm_rope(library, node, out, src)
    pairs, turns = out.size // 2, library.turns(node.params["base"], head)
    return [library.call("elementwise.cu", "rope_f32", grid(pairs), BLOCK, out, *src, turns, pairs, heads, head // 2)]


def _rms_norm(library: Library, node: Tensor, out: Array, src: Sequence[Array]) -> Calls:
    """Bind rms_norm and the product with weights fused after it, if any."""
    norm = node.params["parts"][0] if "parts" in node.params else node
    width = node.shape[-1]
    if width % 4:
        raise ExecutionError(f"backend 'cuda' has rms_norm for multiples of 4, not for {width} ({node.name})")
    weight = src[1] if len(src) > 1 else c_void_p()
    rows, block = (out.size // width, 1), min(512, -(-width // 128) * 32)
    eps = c_float(norm.params["eps"])
    return [library.call("elementwise.cu", "rms_norm_f32", rows, block, out, src[0], weight, width, eps)]


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
    packed = NormRopeArguments(
        x.ptr, weight, positions.ptr, library.turns(rope.params["base"], dims).ptr, rows, out.ptr, heads, head, dims,
        rope.params["mode"] == "neox", norm.shape[-1] if norm else head, norm.params["eps"] if norm else 0.0,
    )  # fmt: skip
    name = f"norm_rope_{suffix(node, out.dtype, 'f32 f16')}"
    return [library.call("norm_rope.cu", name, (heads, positions.size), 32, packed)]


def _argmax(library: Library, node: Tensor, out: Array, src: Sequence[Array]) -> Calls:
    return [library.call("elementwise.cu", "argmax_f32", (out.size, 1), 1024, out, src[0], src[0].shape[-1])]


def _get_rows(library: Library, node: Tensor, out: Array, src: Sequence[Array]) -> Calls:
    table, rows = src
    width, height = out.size // rows.size, table.shape[-2] if len(table.shape) > 2 else 0
    name, blocks = f"get_rows_{suffix(node, table.dtype, 'f32 f16 q8_0')}", (-(-width // BLOCK), rows.size)
    sizes = (width, c_int64(table.size), rows.shape[-1], height)
    return [library.call("rows.cu", name, blocks, BLOCK, out, table, rows, *sizes)]


def _set_rows(library: Library, node: Tensor, out: Array, src: Sequence[Array]) -> Calls:
    values, rows, _destination = src
    width = values.size // rows.size
    name = f"set_rows_{suffix(node, out.dtype, 'f32 f16 i32')}"
    return [library.call("rows.cu", name, grid(width, rows.size), BLOCK, out, values, rows, width)]


def _mul_mat(library: Library, node: Tensor, out: Array, src: Sequence[Array]) -> Calls:
    weight, x = src
    (outputs, inputs), tokens, dtype = weight.shape, x.shape[0], weight.dtype
    if dtype == "float16" and 1 < tokens <= MOST_TOKENS and inputs % VALUES_PER_LOAD[dtype] == 0:
        packed = TokensArguments(weight.ptr, x.ptr, out.ptr, outputs, inputs, tokens)
        blocks, block = (-(-outputs // _TOKENS_TILE), 1), 32 * _TOKENS_WARPS
        return [library.call("mul_mat_tokens.cu", "mul_mat_tokens_f16", blocks, block, packed)]
    if tokens > 1 and dtype in ("float32", "float16"):
        return gemm(library, out, weight, x)
    return mul_mat_calls(library, node, out, src)


def _soft_max(library: Library, node: Tensor, out: Array, src: Sequence[Array]) -> Calls:
    width = node.shape[-1]
    rows = (out.size // width, 1)
    return [library.call("experts.cu", "soft_max_f32", rows, block_of_rows(width), out, src[0], width)]


def _top_k(library: Library, node: Tensor, out: Array, src: Sequence[Array]) -> Calls:
    width, k = src[0].shape[-1], node.params["k"]
    if width > _MOST_EXPERTS:
        raise ExecutionError(f"backend 'cuda' has top_k for {_MOST_EXPERTS} columns, not for {width} ({node.name})")
    return [library.call("experts.cu", "top_k_f32", (out.size // k, 1), 32, out, src[0], width, k)]


def _reduce(library: Library, node: Tensor, out: Array, src: Sequence[Array]) -> Calls:
    (tokens, width), chosen = node.shape, src[1].shape[-1]
    return [library.call("experts.cu", "moe_expert_reduce_f32", grid(width, tokens), BLOCK, out, *src, chosen, width)]


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
    return [library.call("experts.cu", name, blocks, _EXPERT_WARPS * 32, packed, shared_bytes=4 * inputs)]


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


def mul_mat_calls(library: Library, node: Tensor, out: Any, src: Sequence[Any]) -> Calls:
    """Bind a product of one token, or with q8_0 weights, and the ops fused with it.

    Raises:
        ExecutionError: rows do not fit the kernels' loads, or the KV cache has a different dtype.
    """
    named = dict(zip(FUSED[node.op], src, strict=True))
    weight, tokens = named["weight"], named["x"].shape[0]
    outputs, inputs = weight.shape
    _check(node, weight.dtype, inputs, named)
    arguments = Arguments(**{name: array.ptr for name, array in named.items() if name != "destination"})
    arguments.out, arguments.outputs, arguments.inputs = out.ptr, outputs, inputs
    for part in node.params.get("parts", ()):
        if part.op == "rope":
            arguments.head = part.shape[-1]
            arguments.turns = library.turns(part.params["base"], part.shape[-1]).ptr
        elif part.op == "rms_norm":
            arguments.eps = part.params["eps"]
    name = f"{_NAMES[node.op]}_{SUFFIX[weight.dtype]}"
    if inputs < LONG_ROW or "norm" in named:
        groups = outputs // 2 if "positions" in named else outputs
        block, blocks = _cut_matrix(library, name, groups, 4 * inputs)
        return [library.call("mul_mat_warp.cu", name, (blocks, tokens), block, arguments, shared_bytes=4 * inputs)]
    warps, chunks = cut_row(inputs, weight.dtype)
    rows = outputs // (library.cuda.multiprocessors * BLOCKS_PER_MULTIPROCESSOR) + 1
    arguments.rows_per_block = rows = max(rows + rows % 2, LEAST_ROWS_PER_BLOCK)
    return [library.call(
        "mul_mat_block.cu", name, (-(-outputs // rows), tokens), 32 * warps, arguments,
        shared_bytes=4 * warps * (rows + 1), macros={"CHUNKS": chunks},
    )]  # fmt: skip


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


_CHUNK_BYTES: Final = 16 * 1024
_LEAST: Final = 8
"""The fewest chunks in a split."""
_LOOKED_THROUGH: Final = 4
"""Up to this many passes a block checks the mask of each cell as it reads; with more, it first lists the cells that its
token sees."""
_WARPS: Final = 8
_MOST_KEYS: Final = 256
_MOST_TAPS: Final = 8


@dataclass(frozen=True, slots=True)
class Variant:
    """A kernel in attention.cu. Per pass a block reads `chunks` chunks: the cells that all its slots have in flight."""

    threads: int
    chunks: int


VARIANTS: Final = {1: Variant(512, 4), 2: Variant(512, 2), 4: Variant(256, 2), 8: Variant(256, 1)}
"""Maps the number of query heads per block, all of one KV head, to the kernel."""


class Spread(NamedTuple):
    """How the work is divided among blocks.

    Attributes:
        together: query heads per block, a key of `VARIANTS`.
        splits: number of blocks that share the cells of a token and head.
        listed: whether a block lists the cells that its token sees before it reads them.
    """

    together: int
    splits: int
    listed: bool


def chunks_of(cells: int, head: int, dtype: str) -> int:
    """Return the number of chunks in a stream, each 16 KiB of the keys of one head."""
    return -(-cells * head * {"float32": 4, "float16": 2}[dtype] // _CHUNK_BYTES)


def blocks_of(heads: int, kv_heads: int, together: int) -> int:
    """Return the blocks per token and split; if `together` does not divide a group, its last block has fewer heads."""
    return kv_heads * -(-(heads // kv_heads) // together)


def spread(tokens: int, heads: int, kv_heads: int, chunks: int, resident: Mapping[int, int]) -> Spread:
    """Choose the fastest division, estimated as waves of blocks * chunks per block * time per chunk.

    The time per chunk is an estimate, not measured: a chunk is read once for all heads of a block, and the arithmetic
    of each head adds an eighth of the read time.

    Args:
        chunks: chunks in a stream.
        resident: query heads per block -> number of such blocks that the GPU holds at a time.
    """

    def choice(together: int) -> tuple[int, int, int, int]:
        blocks, most = tokens * blocks_of(heads, kv_heads, together), resident[together]
        splits = max(min(most // blocks, -(-chunks // _LEAST)), 1)
        share = -(-chunks // splits)
        return -(-blocks * splits // most) * share * (8 + together), together, splits, share

    _, together, splits, share = min(map(choice, resident))
    return Spread(together, splits, share > _LOOKED_THROUGH * VARIANTS[together].chunks)


def _attention(library: Library, node: Tensor, out: Array, src: Sequence[Array]) -> Calls:
    q, k, v, mask, *streams = src
    (n, heads, head), (count, stride_cells, kv_heads, _), cells = q.shape, k.shape, mask.shape[1]
    if head not in (8, 16, 32, 64, 128, 256):
        raise ExecutionError(f"backend 'cuda' has attention for head sizes 8, 16, ... 256, not {head} ({node.name})")
    name = f"flash_attn_{suffix(node, k.dtype, 'f32 f16')}"
    groups = streams[0].size if streams else count
    together, splits, listed = spread(n, heads, kv_heads, chunks_of(cells, head, k.dtype), _resident(library, name))
    blocks = blocks_of(heads, kv_heads, together)
    parts = _zeros(library, n * heads * splits * (head + 2), "float32") if splits > 1 else None
    done = _zeros(library, n * blocks, "uint32") if splits > 1 else None
    packed = AttentionArguments(
        q.ptr, k.ptr, v.ptr, mask.ptr, streams[0].ptr if streams else 0, _address(parts), _address(done), out.ptr,
        heads, kv_heads, head, cells, stride_cells, n // groups, splits, listed, node.params["scale"],
    )  # fmt: skip
    grid, threads = (blocks * splits, n), VARIANTS[together].threads
    return [library.call("attention.cu", f"{name}_{together}", grid, threads, packed, kept=(parts, done))]


def _resident(library: Library, name: str) -> dict[int, int]:
    """Map query heads per block to the number of such blocks that the GPU holds at a time."""
    resident = {}
    for together, variant in VARIANTS.items():
        function = library.function("attention.cu", f"{name}_{together}")
        held = library.blocks_per_multiprocessor(function, variant.threads, 0)
        resident[together] = held * library.cuda.multiprocessors
    return resident


def _address(memory: Any) -> int:
    return memory.data.ptr if memory is not None else 0


def _zeros(library: Library, count: int, dtype: str) -> Any:
    """Allocate zeroed memory for intermediate results of one node."""
    zeros = library.cuda.cupy.zeros(count, dtype)
    library.cuda.runtime.deviceSynchronize()
    return zeros


def _ssm_conv(library: Library, node: Tensor, out: Array, src: Sequence[Array]) -> Calls:
    """Bind ssm_conv and the silu fused after it, if any."""
    x, _weight, state = src
    sequences, kept, channels = state.shape
    if kept + 1 > _MOST_TAPS:
        raise ExecutionError(f"backend 'cuda' has ssm_conv for {_MOST_TAPS} taps, not for {kept + 1} ({node.name})")
    name = "ssm_conv_silu_f32" if node.op.endswith("silu") else "ssm_conv_f32"
    blocks, tokens = (-(-channels // BLOCK), sequences), x.shape[0] // sequences
    return [library.call("delta_net.cu", name, blocks, BLOCK, out, *src, channels, kept + 1, tokens)]


def _gated_delta_net(library: Library, node: Tensor, out: Array, src: Sequence[Array]) -> Calls:
    q, _k, _v, _g, _beta, state = src
    sequences, heads, key_size, value_size = state.shape
    if key_size % _WARPS or key_size > _MOST_KEYS:
        raise ExecutionError(
            f"backend 'cuda' has gated_delta_net for key sizes up to {_MOST_KEYS} in steps of {_WARPS}, "
            f"not for {key_size} ({node.name})"
        )
    tokens = q.shape[0] // sequences
    packed = DeltaNetArguments(
        *(array.ptr for array in src), out.ptr, heads, q.shape[1], key_size, value_size, tokens, node.params["scale"]
    )
    blocks, macros = (-(-value_size // 32), sequences * heads), {"ROWS": key_size // _WARPS}
    return [library.call("delta_net.cu", "gated_delta_net_f32", blocks, _WARPS * 32, packed, macros=macros)]


OPS: Final[Mapping[str, Op]] = {
    "add": _binary("f32 i32 i64"), **dict.fromkeys(("mul", "div", "swiglu"), _binary("f32")), "cpy": _cpy,
    "rope": _rope, "rms_norm": _rms_norm, "rms_norm+mul": _rms_norm, "argmax": _argmax, "get_rows": _get_rows,
    "set_rows": _set_rows, **dict.fromkeys(FUSED, mul_mat_calls), "mul_mat": _mul_mat,
    **dict.fromkeys(("silu", "sigmoid", "softplus"), _unary), "l2_norm": _l2_norm, "sum_rows": _sum_rows,
    "rms_norm+mul+rope": _norm_rope, "rms_norm+mul+rope+set_rows": _norm_rope, "soft_max": _soft_max,
    "top_k": _top_k, "moe_expert_reduce": _reduce, "mul_mat_id": _mul_mat_id,
    "mul_mat_id+mul_mat_id+swiglu": _mul_mat_id, "flash_attn_ext": _attention, "ssm_conv": _ssm_conv,
    "ssm_conv+silu": _ssm_conv, "gated_delta_net": _gated_delta_net,
}  # fmt: skip
"""Maps an op to the function that binds its kernels."""
