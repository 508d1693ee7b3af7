"""The ops in NumPy. A kernel is called as `kernel(out, *sources, **params)` and writes `out`.

Each result row depends on its own token only, by the same instructions for every batch size: the logits of a
sequence are bitwise the same alone and beside others. Hence vecdot (one BLAS dot per element,
single-threaded) and not matmul.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
NumpyKernel = Callable[..., None]


def get_rows(out: Array, table: Array, rows: Array) -> None:
    """Rows of a table. `take` would buffer; row numbers out of range raise either way."""
    out[...] = table[rows]


def rms_norm(out: Array, x: Array, *, eps: float) -> None:
    """Divide by the root mean square over the last dimension."""
    mean_square = np.vecdot(x, x)[..., None] / np.float32(x.shape[-1])
    np.divide(x, np.sqrt(mean_square + np.float32(eps)), out=out)


def mul(out: Array, x: Array, y: Array) -> None:
    """Elementwise product."""
    np.multiply(x, y, out=out)


def add(out: Array, x: Array, y: Array) -> None:
    """Elementwise sum."""
    np.add(x, y, out=out, casting="same_kind")


def mul_mat(out: Array, weight: Array, x: Array) -> None:
    """x times the transposed weight."""
    np.vecdot(weight, x[..., None, :], out=out)


def rope(out: Array, x: Array, positions: Array, *, base: float) -> None:
    """Rotate neighbouring pairs by position * base ** (-pair / pairs); angles in float64."""
    pairs = x.shape[-1] // 2
    angle = positions[:, None] * base ** (-np.arange(pairs) / pairs)
    cos, sin = np.cos(angle).astype(np.float32)[:, None], np.sin(angle).astype(np.float32)[:, None]
    even, odd = x[..., 0::2], x[..., 1::2]
    out[..., 0::2] = even * cos - odd * sin
    out[..., 1::2] = even * sin + odd * cos


def set_rows(out: Array, values: Array, rows: Array, _destination: Array) -> None:
    """Write rows; `out` is the destination."""
    out[rows] = values


def cpy(out: Array, x: Array, _destination: Array) -> None:
    """Copy; `out` is the destination."""
    out[...] = x


def flash_attn_ext(out: Array, q: Array, k: Array, v: Array, mask: Array, *, scale: float) -> None:
    """Attention of one query per sequence over its cells; the head groups share a KV head."""
    n, _, kv_heads, d = k.shape
    grouped = q.reshape(n, kv_heads, -1, 1, d)
    scores = np.vecdot(grouped, k.transpose(0, 2, 1, 3)[:, :, None]) * np.float32(scale) + mask[:, None, None]
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    out[...] = (scores @ v.transpose(0, 2, 1, 3)).reshape(n, -1)


def swiglu(out: Array, gate: Array, up: Array) -> None:
    """silu(gate) * up; exp may overflow to infinity for very negative gates, which gives the right 0."""
    with np.errstate(over="ignore"):
        np.multiply(gate / (np.float32(1) + np.exp(-gate)), up, out=out)


def argmax(out: Array, x: Array) -> None:
    """Column of the first greatest value of each row."""
    out[...] = x.argmax(axis=-1)


KERNELS: Final[Mapping[str, NumpyKernel]] = {
    kernel.__name__: kernel
    for kernel in (
        get_rows, rms_norm, mul, add, mul_mat, rope, set_rows, cpy, flash_attn_ext, swiglu, argmax,
    )
}  # fmt: skip
"""Op name -> kernel."""
