"""Binds attention to the kernels of attention.cu."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import c_int, c_void_p
from typing import Any, Final

from executor.backends.cuda_binding import Array, Calls, Op, suffix
from executor.backends.cuda_library import KernelCall, Library
from executor.graph import Tensor
from tracer.errors import ExecutionError

THREADS: Final = 512
_UNROLL: Final = {"float32": 4, "float16": 8}
"""Cells that a slot of lanes has on their way."""
_LOOKED_THROUGH: Final = 8
"""Chunks up to which each block looks through its mask itself; with more, a kernel before says which are visible."""
_WARPS: Final = 8


class Arguments(ctypes.Structure):
    """`struct Attention` of attention.cu."""

    _fields_ = (
        *((name, c_void_p) for name in ("q", "k", "v", "mask", "streams", "visible", "parts", "done", "out")),
        *((name, c_int) for name in ("heads", "kv_heads", "head", "cells", "tokens", "splits")),
        ("scale", ctypes.c_float),
    )


def chunk_cells(head: int, dtype: str) -> int:
    """Cells that a block reads at a time."""
    return THREADS // (head // 8) * _UNROLL[dtype]


def splits_of(chunks: int, blocks: int, resident: int) -> int:
    """Over how many blocks the chunks of each token and head are spread, to fill the GPU with two chunks or more each.

    Args:
        chunks: of a stream.
        blocks: tokens * heads.
        resident: blocks that the GPU holds at a time.
    """
    return max(min(resident // blocks, -(-chunks // 2)), 1)


def _attention(library: Library, node: Tensor, out: Array, src: Sequence[Array]) -> Calls:
    q, k, v, mask, *streams = src
    (n, heads, head), (count, cells, kv_heads, _) = q.shape, k.shape
    if head not in (8, 16, 32, 64, 128, 256):
        raise ExecutionError(f"backend 'cuda' has attention for heads of 8, 16, ... 256, not of {head} ({node.name})")
    name = f"flash_attn_{suffix(node, k.dtype, 'f32 f16')}"
    groups = streams[0].size if streams else count
    chunks = -(-cells // chunk_cells(head, k.dtype))
    resident = library.blocks_per_multiprocessor(library.function("attention.cu", name), THREADS, 0)
    splits = splits_of(chunks, n * heads, resident * library.cuda.multiprocessors)
    parts = _zeros(library, n * heads * splits * (head + 2), "float32") if splits > 1 else None
    done = _zeros(library, n * heads, "uint32") if splits > 1 else None
    visible = _zeros(library, n * chunks, "uint8") if chunks > _LOOKED_THROUGH else None
    packed = Arguments(
        q.ptr, k.ptr, v.ptr, mask.ptr, streams[0].ptr if streams else 0, _address(visible), _address(parts),
        _address(done), out.ptr, heads, kv_heads, head, cells, n // groups, splits, node.params["scale"],
    )  # fmt: skip
    kept = (out, *src, parts, done, visible)
    attend = library.call("attention.cu", name, (heads * splits, n), THREADS, (packed,), kept=kept)
    if visible is None:
        return [attend]
    return [_mask_chunks(library, visible, mask, chunks, chunk_cells(head, k.dtype)), attend]


def _mask_chunks(library: Library, visible: Any, mask: Array, chunks: int, size: int) -> KernelCall:
    n, cells = mask.shape
    arguments = (c_void_p(visible.data.ptr), c_void_p(mask.ptr), c_int(cells), c_int(size), c_int(chunks))
    blocks = (-(-chunks // _WARPS), n)
    return library.call("attention.cu", "mask_chunks", blocks, _WARPS * 32, arguments, kept=(visible, mask))


def _address(memory: Any) -> int:
    return memory.data.ptr if memory is not None else 0


def _zeros(library: Library, count: int, dtype: str) -> Any:
    """Memory for intermediate results of one node."""
    zeros = library.cuda.cupy.zeros(count, dtype)
    library.cuda.runtime.deviceSynchronize()
    return zeros


OPS: Final[Mapping[str, Op]] = {"flash_attn_ext": _attention}
"""Op name -> what binds its kernel."""
