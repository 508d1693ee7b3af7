"""Binds attention to the kernels in attention.cu, and linear attention to those in delta_net.cu."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import c_int, c_void_p
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from executor.backends.cuda.library import BLOCK, Array, Calls, Library, Op, suffix
from executor.graph import Tensor
from tracer.errors import ExecutionError

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
    """A kernel in attention.cu.

    Attributes:
        threads: threads per block.
        chunks: chunks that a block reads per pass: the cells that all its slots have in flight.
    """

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


class AttentionArguments(ctypes.Structure):
    """`struct Attention` in attention.cu."""

    _fields_ = (
        *((name, c_void_p) for name in ("q", "k", "v", "mask", "streams", "parts", "done", "out")),
        *((name, c_int) for name in ("heads", "kv_heads", "head", "cells", "stride_cells", "tokens")),
        *((name, c_int) for name in ("splits", "listed")),
        ("scale", ctypes.c_float),
    )


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
        tokens: tokens in the step.
        heads: query heads.
        kv_heads: KV heads.
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
    grid, threads, kept = (blocks * splits, n), VARIANTS[together].threads, (out, *src, parts, done)
    return [library.call("attention.cu", f"{name}_{together}", grid, threads, (packed,), kept=kept)]


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


class DeltaNetArguments(ctypes.Structure):
    """`struct DeltaNet` in delta_net.cu."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "g", "beta", "state", "out")),
        *((name, ctypes.c_int) for name in ("heads", "key_heads", "key_size", "value_size", "tokens")),
        ("scale", ctypes.c_float),
    )


def _ssm_conv(library: Library, node: Tensor, out: Array, src: Sequence[Array]) -> Calls:
    """Bind ssm_conv and the silu fused after it, if any."""
    x, weight, state = src
    sequences, kept, channels = state.shape
    if kept + 1 > _MOST_TAPS:
        raise ExecutionError(f"backend 'cuda' has ssm_conv for {_MOST_TAPS} taps, not for {kept + 1} ({node.name})")
    arguments = (
        c_void_p(out.ptr), c_void_p(x.ptr), c_void_p(weight.ptr), c_void_p(state.ptr),
        c_int(channels), c_int(kept + 1), c_int(x.shape[0] // sequences),
    )  # fmt: skip
    name = "ssm_conv_silu_f32" if node.op.endswith("silu") else "ssm_conv_f32"
    blocks = (-(-channels // BLOCK), sequences)
    return [library.call("delta_net.cu", name, blocks, BLOCK, arguments, kept=(out, *src))]


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
    blocks = (-(-value_size // 32), sequences * heads)
    return [library.call(
        "delta_net.cu", "gated_delta_net_f32", blocks, _WARPS * 32, (packed,), kept=(out, *src),
        macros={"ROWS": key_size // _WARPS},
    )]  # fmt: skip


OPS: Final[Mapping[str, Op]] = {
    "flash_attn_ext": _attention,
    "ssm_conv": _ssm_conv,
    "ssm_conv+silu": _ssm_conv,
    "gated_delta_net": _gated_delta_net,
}
"""Maps an op name to the function that binds its kernel."""
