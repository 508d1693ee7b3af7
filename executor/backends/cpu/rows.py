"""Compiled ops on the rows of a step's tokens: norms, RoPE, SwiGLU, additions, expert selection, cache writes.

Every loop fixes the order of its sums and multiplies and adds one by one, so that a row's bits depend neither on the
other rows nor on how it was compiled: alone for the calling thread, or shared by all threads (`Loop`).

Importing this module imports Numba.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numba
import numpy as np
from llvmlite import ir
from numba import extending, types

from executor.backends.cpu.kernels import frequencies
from executor.backends.weight_formats import Array, as_bits
from tracer.compiled import inlined

intrinsic: Any = extending.intrinsic

_LANES: Final = 16
_ONE: Final = np.float32(1)
_FLOAT, _HALF, _INTEGER = ir.FloatType(), ir.HalfType(), ir.IntType(32)


@dataclass(frozen=True)
class Loop:
    """A loop over rows or values whose last argument is the number of threads, compiled in two ways when needed."""

    of: Callable[..., None]

    @cached_property
    def alone(self) -> Any:
        """For the calling thread: the cheapest call."""
        return inlined(self.of, error_model="numpy")

    @cached_property
    def shared(self) -> Any:
        """For all threads."""
        return inlined(self.of, error_model="numpy", parallel=True)


@intrinsic  # type: ignore[untyped-decorator]  # Numba has no types
def narrowed(_context: Any, value: Any, like: Any) -> Any:
    """Convert a float32 to the bits of a float16 if `like` is a uint16; else return it unchanged."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        if like == types.float32:
            return values[0]
        return builder.bitcast(builder.fptrunc(values[0], _HALF), ir.IntType(16))

    return like(value, like), emit


@intrinsic  # type: ignore[untyped-decorator]  # Numba has no types
def _power_of_two(_context: Any, shifted: Any) -> Any:
    """Return 2 ** n for n + 1.5 * 2 ** 23, whose lowest bits are n."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        exponent = builder.add(builder.bitcast(values[0], _INTEGER), ir.Constant(_INTEGER, 127))
        return builder.bitcast(builder.shl(exponent, ir.Constant(_INTEGER, 23)), _FLOAT)

    return types.float32(shifted), emit


@intrinsic  # type: ignore[untyped-decorator]  # Numba has no types
def _fused(_context: Any, a: Any, b: Any, c: Any) -> Any:
    """Return a * b + c, rounded once."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.fma(*values)

    return types.float32(a, b, c), emit


_LEAST, _MOST, _SHIFT = np.float32(-87.3), np.float32(88.3), np.float32(1.5 * 2**23)
_LOG2_E, _LN_2_HIGH, _LN_2_LOW = np.float32(1.44269504088896341), np.float32(0.693359375), np.float32(-2.12194440e-4)
_C = tuple(np.float32(c) for c in (1.9875691e-4, 1.3981999e-3, 8.3334519e-3, 4.1665796e-2, 1.6666665e-1, 0.5))


@inlined
def exponential(x: Any) -> Any:
    """Return e ** x in float32 within 2 ulp; 0 below -87.3, and e ** 88.3 above 88.3.

    Unlike `math.exp` it is inlined and vectorised. Polynomial: Cephes' expf.
    """
    y = _MOST if x > _MOST else x
    shifted = _fused(y, _LOG2_E, _SHIFT)
    n = shifted - _SHIFT
    r = _fused(n, -_LN_2_LOW, _fused(n, -_LN_2_HIGH, y))
    p = _fused(_fused(_C[0], r, _C[1]), r, _C[2])
    p = _fused(_fused(_fused(p, r, _C[3]), r, _C[4]), r, _C[5])
    result = _fused(p, r * r, r + _ONE) * _power_of_two(shifted)
    return np.float32(0) if x < _LEAST else result


@inlined
def _mean_of_squares(x: Array) -> Any:
    lanes = np.zeros(_LANES, np.float32)
    whole = len(x) // _LANES
    for block in range(whole):
        for lane in range(_LANES):
            value = x[block * _LANES + lane]
            lanes[lane] += value * value
    for lane in range(len(x) - whole * _LANES):
        value = x[whole * _LANES + lane]
        lanes[lane] += value * value
    total = np.float32(0)
    for lane in range(_LANES):
        total += lanes[lane]
    return total / np.float32(len(x))


def _rms_norm(out: Array, x: Array, eps: Any, threads: int) -> None:
    for thread in numba.prange(threads):
        for row in range(thread, len(x), threads):
            root = np.sqrt(_mean_of_squares(x[row]) + eps)
            for i in range(x.shape[1]):
                out[row, i] = x[row, i] / root


def _mul(out: Array, x: Array, y: Array, threads: int) -> None:
    for thread in numba.prange(threads):
        for row in range(thread, len(x), threads):
            factors = y[row % len(y)]
            for i in range(x.shape[1]):
                out[row, i] = x[row, i] * factors[i]


def _add(out: Array, x: Array, y: Array, threads: int) -> None:
    for thread in numba.prange(threads):
        for row in range(thread, len(x), threads):
            terms = y[row % len(y)]
            for i in range(x.shape[1]):
                out[row, i] = x[row, i] + terms[i]


def _swiglu(out: Array, gate: Array, up: Array, threads: int) -> None:
    part = (len(out) + threads - 1) // threads
    for thread in numba.prange(threads):
        own = slice(thread * part, (thread + 1) * part)  # indices from 0, or LLVM does not vectorise the loop
        o, g, u = out[own], gate[own], up[own]
        for i in range(len(o)):
            o[i] = g[i] / (_ONE + exponential(-g[i])) * u[i]


def _rope(out: Array, x: Array, positions: Array, table: Array, stride: int, gap: int, threads: int) -> None:
    """Rotate the pairs (stride * i, stride * i + gap)."""
    pairs = len(table)
    for thread in numba.prange(threads):
        for row in range(thread, len(x), threads):
            cos, sin = np.empty(pairs, np.float32), np.empty(pairs, np.float32)
            for i in range(pairs):
                angle = positions[row] * table[i]
                cos[i], sin[i] = np.float32(math.cos(angle)), np.float32(math.sin(angle))
            for head in range(x.shape[1]):
                for i in range(pairs):
                    a, b = x[row, head, stride * i], x[row, head, stride * i + gap]
                    out[row, head, stride * i] = a * cos[i] - b * sin[i]
                    out[row, head, stride * i + gap] = a * sin[i] + b * cos[i]
                for i in range(2 * pairs, x.shape[2]):
                    out[row, head, i] = x[row, head, i]


def _set_rows(out: Array, values: Array, rows: Array, threads: int) -> None:
    """Write the rows in order, each thread its own columns; among equal row numbers the last one wins."""
    for row in rows:
        if row < 0 or row >= len(out):
            raise IndexError("the destination has no row of this number")
    part = (values.shape[1] + threads - 1) // threads
    for thread in numba.prange(threads):
        own = slice(thread * part, (thread + 1) * part)
        for n in range(len(rows)):
            target, source = out[rows[n], own], values[n, own]
            for i in range(len(source)):
                target[i] = narrowed(source[i], target[i])


def _soft_max(out: Array, x: Array, threads: int) -> None:
    for thread in numba.prange(threads):
        for row in range(thread, len(x), threads):
            greatest, total = x[row, 0], np.float32(0)
            for i in range(1, x.shape[1]):
                greatest = max(greatest, x[row, i])
            for i in range(x.shape[1]):
                out[row, i] = exponential(x[row, i] - greatest)
                total += out[row, i]
            for i in range(x.shape[1]):
                out[row, i] /= total


def _top_k(out: Array, x: Array, threads: int) -> None:
    for thread in numba.prange(threads):
        taken = np.empty(x.shape[1], np.bool_)
        for row in range(thread, len(x), threads):
            taken[:] = False
            for k in range(out.shape[1]):
                best = -1
                for i in range(x.shape[1]):
                    if not taken[i] and (best < 0 or x[row, i] > x[row, best]):
                        best = i
                out[row, k] = best
                taken[best] = True


def _reduce(out: Array, x: Array, weights: Array, threads: int) -> None:
    for thread in numba.prange(threads):
        for row in range(thread, len(x), threads):
            for i in range(out.shape[1]):
                out[row, i] = x[row, 0, i] * weights[row, 0]
            for k in range(1, x.shape[1]):
                for i in range(out.shape[1]):
                    out[row, i] += x[row, k, i] * weights[row, k]


def _rows(array: Array) -> Array:
    return array.reshape(-1, array.shape[-1])


def _of_rope(out: Array, x: Array, positions: Array, *, base: float, mode: str, dims: int) -> tuple[Any, ...]:
    pairs = dims // 2
    stride, gap = (2, 1) if mode == "normal" else (1, pairs)
    return out, x, positions, frequencies(base, pairs), stride, gap


ARGUMENTS: Final[Mapping[str, tuple[Loop, Callable[..., tuple[Any, ...]]]]] = {
    "rms_norm": (Loop(_rms_norm), lambda out, x, eps: (_rows(out), _rows(x), np.float32(eps))),
    "mul": (Loop(_mul), lambda out, x, y: (_rows(out), _rows(x), _rows(y))),
    "add": (Loop(_add), lambda out, x, y: (_rows(out), _rows(x), _rows(y))),
    "swiglu": (Loop(_swiglu), lambda out, gate, up: (out.reshape(-1), gate.reshape(-1), up.reshape(-1))),
    "rope": (Loop(_rope), _of_rope),
    "set_rows": (Loop(_set_rows), lambda out, values, rows, _: (as_bits(out), values, rows)),
    "soft_max": (Loop(_soft_max), lambda out, x: (_rows(out), _rows(x))),
    "top_k": (Loop(_top_k), lambda out, x, k: (out, x)),
    "moe_expert_reduce": (Loop(_reduce), lambda out, x, weights: (out, x, weights)),
}
"""Maps an op to its loop and to the function that makes the loop's arguments from those of the NumPy kernel."""
