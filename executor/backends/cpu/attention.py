"""Compiled attention over the KV cache. Each task is one head of one token, and its result depends on nothing else.

Masked cells are not read, so the result does not depend on how many of them are attended. Importing this module
imports Numba.
"""

from __future__ import annotations

from typing import Any, Final

import numba
import numpy as np

from executor.backends.cpu.rows import exponential
from executor.backends.cpu.tile import widened
from executor.backends.weight_formats import Array
from tracer.compiled import inlined

_REORDERED: Final = {"reassoc", "contract"}
"""Lets a dot product be summed in lanes, whose number depends only on the head size."""
_CLOSED: Final = np.float32(-np.inf)


def _dot(a: Array, b: Array) -> Any:
    total = np.float32(0)
    for i in range(len(a)):
        total += a[i] * widened(b[i])
    return total


_product: Any = inlined(_dot, fastmath=_REORDERED)


@inlined
def _head(
    out: Array, q: Array, k: Array, v: Array, mask: Array, scale: Any, stream: int, kv_head: int
) -> None:  # fmt: skip
    """Compute one head of one token: out and q are (D,), mask is (attended,); k and v are the whole cache."""
    scores = np.empty(len(mask), np.float32)
    greatest = _CLOSED
    for cell in range(len(mask)):
        scores[cell] = mask[cell]
        if mask[cell] != _CLOSED:
            scores[cell] += _product(q, k[stream, cell, kv_head]) * scale
            greatest = max(greatest, scores[cell])
    total, sums = np.float32(0), np.zeros(len(q), np.float32)
    for cell in range(len(mask)):
        if scores[cell] != _CLOSED:
            share = exponential(scores[cell] - greatest)
            total += share
            values = v[stream, cell, kv_head]
            for i in range(len(q)):
                sums[i] += share * widened(values[i])
    for i in range(len(q)):
        out[i] = sums[i] / total


def _attention(
    out: Array, q: Array, k: Array, v: Array, mask: Array, streams: Array, scale: Any, threads: int
) -> None:  # fmt: skip
    """Compute `ops.flash_attn_ext`; out is (N, heads, D), cells are float32 or the bits of float16.

    Raises:
        IndexError: a stream number is out of range.
    """
    for stream in streams:
        if stream < 0 or stream >= len(k):
            raise IndexError("the KV cache has no stream of this number")
    tokens, heads, _ = q.shape
    per_group, per_kv_head = tokens // max(len(streams), 1), heads // k.shape[2]
    for thread in numba.prange(threads):
        for task in range(thread, tokens * heads * min(len(streams), 1), threads):
            token, head = task // heads, task % heads
            stream = streams[token // per_group]
            _head(out[token, head], q[token, head], k, v, mask[token], scale, stream, head // per_kv_head)


attention: Any = inlined(_attention, parallel=True)
