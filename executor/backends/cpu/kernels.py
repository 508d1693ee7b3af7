"""The ops in NumPy. A kernel is called as `kernel(out, *sources, **params)` and writes `out`.

For large models, ops that are slow in NumPy are compiled, see `compiled`.

Each result row depends only on its own token, with the same instructions for every batch size: the logits of a
sequence are bitwise the same alone and in a batch. Hence one BLAS matrix-vector product per token, not one product for
all tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Final

import numpy as np

from executor.backends.weight_formats import Array, Quantised, floats

BoundKernel = Callable[[], None]
"""A kernel bound to its arrays."""
NumpyKernel = Callable[..., None]


def _vecdot(a: Array, b: Array) -> Array:
    """Replaces `numpy.vecdot`, which needs NumPy 2.0."""
    return np.asarray(np.vecdot(a, b) if hasattr(np, "vecdot") else np.einsum("...i,...i->...", a, b))


def get_rows(out: Array, table: Array | Quantised, rows: Array) -> None:
    """Gather rows of a table, or of one table per row of row numbers. Row numbers out of range raise."""
    if isinstance(table, Quantised):
        out[...] = table[rows].floats()
    else:
        out[...] = table[rows] if rows.ndim == 1 else np.take_along_axis(table, rows[..., None], axis=1)


def rms_norm(out: Array, x: Array, *, eps: float) -> None:
    """Divide by the root mean square over the last dimension."""
    mean_square = _vecdot(x, x)[..., None] / np.float32(x.shape[-1])
    np.divide(x, np.sqrt(mean_square + np.float32(eps)), out=out)


def mul(out: Array, x: Array, y: Array) -> None:
    """Elementwise product."""
    np.multiply(x, y, out=out)


def div(out: Array, x: Array, y: Array) -> None:
    """Elementwise quotient."""
    np.divide(x, y, out=out)


def add(out: Array, x: Array, y: Array) -> None:
    """Elementwise sum."""
    np.add(x, y, out=out, casting="same_kind")


def mul_mat(out: Array, weight: Array | Quantised, x: Array) -> None:
    """Multiply x by the transposed weight."""
    weight = floats(weight)
    for token in range(len(x)):
        np.matmul(weight, x[token], out=out[token])


@cache
def frequencies(base: float, pairs: int) -> Array:
    """Return the angle per position of each pair of `rope`, in float64."""
    return np.asarray(base ** (-np.arange(pairs) / pairs))


def rope(out: Array, x: Array, positions: Array, *, base: float, mode: str, dims: int) -> None:
    """Rotate pairs by position * base ** (-pair / pairs); angles in float64."""
    pairs = dims // 2
    angle = positions[:, None] * frequencies(base, pairs)
    cos, sin = np.cos(angle).astype(np.float32)[:, None], np.sin(angle).astype(np.float32)[:, None]
    first, second = (slice(0, dims, 2), slice(1, dims, 2)) if mode == "normal" else (slice(pairs), slice(pairs, dims))
    a, b = x[..., first], x[..., second]
    out[..., first], out[..., second] = a * cos - b * sin, a * sin + b * cos
    out[..., dims:] = x[..., dims:]


def set_rows(out: Array, values: Array, rows: Array, _destination: Array) -> None:
    """Scatter rows; `out` is the destination."""
    out[rows] = values


def cpy(out: Array, x: Array, _destination: Array) -> None:
    """Copy; `out` is the destination."""
    out[...] = x


def flash_attn_ext(
    out: Array, q: Array, k: Array, v: Array, mask: Array, streams: Array | None = None, *, scale: float
) -> None:
    """Attend from each group of tokens to the first cells of its stream; each group of heads shares a KV head."""
    if streams is not None:
        k, v = k[streams], v[streams]
    k, v = k[:, : mask.shape[1]], v[:, : mask.shape[1]]
    groups, cells, kv_heads, d = k.shape
    tokens = len(q) // groups
    grouped = q.reshape(groups, tokens, kv_heads, -1, 1, d)
    keys, values = k.transpose(0, 2, 1, 3)[:, None], v.transpose(0, 2, 1, 3)[:, None]
    scores = _vecdot(grouped, keys[:, :, :, None]) * np.float32(scale)
    scores += mask.reshape(groups, tokens, 1, 1, cells)
    soft_max(scores, scores)
    out[...] = (scores @ values).reshape(len(q), -1)


def swiglu(out: Array, gate: Array, up: Array) -> None:
    """silu(gate) * up; exp may overflow to infinity for very negative gates, which gives the right 0."""
    with np.errstate(over="ignore"):
        np.multiply(gate / (np.float32(1) + np.exp(-gate)), up, out=out)


def argmax(out: Array, x: Array) -> None:
    """Column of the largest value of each row, the first if several are equal."""
    out[...] = x.argmax(axis=-1)


def silu(out: Array, x: Array) -> None:
    """x * sigmoid(x); may overflow as in `swiglu`."""
    with np.errstate(over="ignore"):
        np.divide(x, np.float32(1) + np.exp(-x), out=out)


def sigmoid(out: Array, x: Array) -> None:
    """1 / (1 + exp(-x)); may overflow as in `swiglu`."""
    with np.errstate(over="ignore"):
        np.divide(np.float32(1), np.float32(1) + np.exp(-x), out=out)


def softplus(out: Array, x: Array) -> None:
    """log(1 + exp(x)) without overflow."""
    np.logaddexp(np.float32(0), x, out=out)


def soft_max(out: Array, x: Array) -> None:
    """Softmax over the last dimension; `out` may be `x`."""
    np.exp(x - x.max(axis=-1, keepdims=True), out=out)
    out /= out.sum(axis=-1, keepdims=True)


def sum_rows(out: Array, x: Array) -> None:
    """Sum over the last dimension."""
    out[...] = x.sum(axis=-1, keepdims=True)


def l2_norm(out: Array, x: Array, *, eps: float) -> None:
    """Divide by the Euclidean norm, or by eps if that is larger."""
    np.divide(x, np.maximum(np.sqrt(_vecdot(x, x)), np.float32(eps))[..., None], out=out)


def top_k(out: Array, x: Array, *, k: int) -> None:
    """Columns of the k largest values; a stable sort keeps equal values in order."""
    out[...] = np.argsort(-x, axis=-1, kind="stable")[..., :k]


def mul_mat_id(out: Array, weights: Array | Quantised, x: Array, ids: Array) -> None:
    """Multiply for each token and chosen expert; a token's experts may share its input."""
    for token, slot in np.ndindex(ids.shape):
        row = x[token, slot if x.shape[1] > 1 else 0]
        np.matmul(floats(weights[ids[token, slot]]), row, out=out[token, slot])


def moe_expert_reduce(out: Array, x: Array, weights: Array) -> None:
    """Weighted sum over the experts, in order."""
    np.multiply(x[:, 0], weights[:, :1], out=out)
    for k in range(1, x.shape[1]):
        out += x[:, k] * weights[:, k, None]


def ssm_conv(out: Array, x: Array, weight: Array, state: Array) -> None:
    """Causal convolution; the state keeps the last inputs."""
    sequences, kept, channels = state.shape
    inputs = np.concatenate([state, x.reshape(sequences, -1, channels)], axis=1)
    tokens = inputs.shape[1] - kept
    terms = [inputs[:, j : j + tokens] * weight[:, j] for j in range(kept + 1)]
    out[...] = sum(terms[1:], start=terms[0]).reshape(x.shape)
    state[...] = inputs[:, tokens:]


def gated_delta_net(
    out: Array, q: Array, k: Array, v: Array, g: Array, beta: Array, state: Array, *, scale: float
) -> None:
    """Apply the recurrence token by token; the state is updated in place."""
    sequences, heads, _, _ = state.shape
    group = heads // q.shape[1]
    q, k = np.repeat(q, group, axis=1), np.repeat(k, group, axis=1)
    q, k, v, g, beta, o = (a.reshape(sequences, -1, *a.shape[1:]) for a in (q, k, v, g, beta, out))
    for t in range(q.shape[1]):
        state *= np.exp(g[:, t])[..., None, None]
        key = k[:, t, ..., None]
        change = (v[:, t] - (state * key).sum(axis=-2)) * beta[:, t, :, None]
        state += key * change[..., None, :]
        o[:, t] = (state * q[:, t, ..., None]).sum(axis=-2) * np.float32(scale)


KERNELS: Final[Mapping[str, NumpyKernel]] = {
    kernel.__name__: kernel
    for kernel in (
        get_rows, rms_norm, mul, div, add, mul_mat, rope, set_rows, cpy, flash_attn_ext, swiglu, argmax,
        silu, sigmoid, softplus, soft_max, sum_rows, l2_norm, top_k, mul_mat_id, moe_expert_reduce, ssm_conv,
        gated_delta_net,
    )
}  # fmt: skip
"""Maps an op name to its kernel."""
