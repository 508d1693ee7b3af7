"""Compiled loops of the CPU backend. Importing this module imports Numba.

1. Ops on the rows of a step's tokens: norms, RoPE, SwiGLU, additions, expert selection, cache writes. Every loop fixes
   the order of its sums and multiplies and adds one by one, so that a row's bits depend neither on the other rows nor
   on how it was compiled: alone for the calling thread, or shared by all threads (`Loop`).
2. Products with large matrices (`products`): weights of any format become float32 in registers, 16 lanes at a time.
   Lane j sums the products of the columns that are j modulo 16, in ascending order, one fused multiply-add each; then
   the lanes are summed, halves first. The LLVM code that `tile` emits fixes this order for every tile size. A result
   is therefore bitwise the same for every batch and thread count, and for equal weights in every format. LLVM's own
   vectoriser would choose a different order for each. An int8 times an f16 scale is exact in float32.
3. Attention over the KV cache (`attention`). Each task is one head of one token, and its result depends on nothing
   else. Masked cells are not read, so the result does not depend on how many of them are attended.
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
from numba.core import cgutils as untyped_cgutils

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


cgutils: Any = untyped_cgutils

_BLOCK: Final = 32
_LINE: Final = 64
_CACHED: Final = 1 << 18
"""Bytes of weights applied to all tokens before moving on: they stay in a core's cache."""

_FLOATS, _INTEGERS = ir.VectorType(_FLOAT, _LANES), ir.VectorType(_INTEGER, _LANES)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]  # Numba has no types
def tile(
    _context: Any,
    weights: Any,
    scales: Any,
    x: Any,
    out: Any,
    row: Any,
    column: Any,
    token: Any,
    rows: Any,
    tokens: Any,
) -> Any:
    """Multiply `rows` rows of weights, from `row`, by `tokens` tokens of x, from `token`, into out[token, column].

    weights (R, I) are float32, uint16 (the bits of float16) or int8; scales (rows, I / 32) are those of the tile's rows
    if int8; x (N, I) and out (N, O) are float32; I is a multiple of 32. `rows` and `tokens` are literals.
    """
    signature = types.void(weights, scales, x, out, row, column, token, rows, tokens)

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        arrays = [
            context.make_array(kind)(context, builder, value)
            for kind, value in zip(signature.args[:4], values[:4], strict=True)
        ]
        emitter = _Tile(builder, weights.dtype, arrays, rows.literal_value, tokens.literal_value)
        emitter.emit(*values[4:7])
        return context.get_dummy_value()

    return signature, emit


class _Tile:
    """Emits LLVM code for a tile."""

    def __init__(self, builder: Any, format: Any, arrays: list[Any], rows: int, tokens: int) -> None:
        self._builder, self._format, self._rows, self._tokens = builder, format, range(rows), range(tokens)
        self._weights, self._scales, self._x, self._out = (array.data for array in arrays)
        self._inputs, self._outputs = (cgutils.unpack_tuple(builder, array.shape)[1] for array in arrays[2:])
        kind = ir.FunctionType(_FLOATS, [_FLOATS] * 3)
        touching = ir.FunctionType(ir.VoidType(), [ir.IntType(8).as_pointer(), *[_INTEGER] * 3])
        self._touch = cgutils.get_or_insert_function(builder.module, touching, "llvm.prefetch.p0i8")
        self._add_product = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fmuladd.v{_LANES}f32")

    def emit(self, row: Any, column: Any, token: Any) -> None:
        """Loop over blocks of columns, then sum the lanes."""
        builder, index = self._builder, row.type
        zero = ir.Constant(_FLOATS, [0.0] * _LANES)
        sums = {(r, t): cgutils.alloca_once_value(builder, zero) for r in self._rows for t in self._tokens}
        of_row = [builder.mul(builder.add(row, index(r)), self._inputs) for r in self._rows]
        of_token = [builder.mul(builder.add(token, index(t)), self._inputs) for t in self._tokens]
        with cgutils.for_range(builder, builder.udiv(self._inputs, index(_BLOCK))) as loop:
            first = builder.mul(loop.index, index(_BLOCK))
            scales = [self._scale(r, loop.index) for r in self._rows]
            if len(self._tokens) == 1:
                self._fetch_ahead([builder.add(start, first) for start in of_row])
            for half in range(0, _BLOCK, _LANES):
                here = builder.add(first, index(half))
                x = [self._load(self._x, builder.add(start, here), _FLOAT) for start in of_token]
                for r in self._rows:
                    weights = self._floats(builder.add(of_row[r], here), scales[r])
                    for t in self._tokens:
                        place = sums[r, t]
                        builder.store(builder.call(self._add_product, [weights, x[t], builder.load(place)]), place)
        for (r, t), place in sums.items():
            start = builder.mul(builder.add(token, index(t)), self._outputs)
            target = builder.gep(self._out, [builder.add(start, builder.add(column, index(r)))])
            builder.store(self._sum(builder.load(place)), target)

    def _fetch_ahead(self, offsets: list[Any]) -> None:
        """Prefetch the following rows: the hardware prefetcher stops at every page."""
        builder, size = self._builder, self._format.bitwidth // 8
        for offset in offsets:
            behind = builder.add(offset, builder.mul(self._inputs, offset.type(len(self._rows))))
            for line in range(0, _BLOCK * size, _LINE):
                place = builder.gep(self._weights, [builder.add(behind, offset.type(line // size))])
                pointer = builder.bitcast(place, ir.IntType(8).as_pointer())
                builder.call(self._touch, [pointer, _INTEGER(0), _INTEGER(3), _INTEGER(1)])  # to read, often, data

    def _load(self, array: Any, offset: Any, element: Any, bits: int = 32) -> Any:
        """Load 16 consecutive values."""
        pointer = ir.VectorType(element, _LANES).as_pointer()
        loaded = self._builder.load(self._builder.bitcast(self._builder.gep(array, [offset]), pointer))
        loaded.align = bits // 8
        return loaded

    def _floats(self, offset: Any, scale: Any) -> Any:
        """Load 16 weights as float32."""
        builder = self._builder
        if self._format == types.float32:
            return self._load(self._weights, offset, _FLOAT)
        if self._format == types.uint16:
            bits = self._load(self._weights, offset, ir.IntType(16), 16)
            return builder.fpext(builder.bitcast(bits, ir.VectorType(_HALF, _LANES)), _FLOATS)
        integers = builder.sext(self._load(self._weights, offset, ir.IntType(8), 8), _INTEGERS)
        return builder.fmul(builder.sitofp(integers, _FLOATS), scale)

    def _scale(self, row: int, block: Any) -> Any:
        """Broadcast the scale of a block to all lanes; None if the format has no scales."""
        if self._format != types.int8:
            return None
        builder = self._builder
        blocks = builder.udiv(self._inputs, block.type(_BLOCK))
        place = builder.add(builder.mul(blocks, block.type(row)), block)
        scale = builder.load(builder.gep(self._scales, [place]))
        one = builder.insert_element(ir.Constant(_FLOATS, ir.Undefined), scale, _INTEGER(0))
        return builder.shuffle_vector(one, ir.Constant(_FLOATS, ir.Undefined), ir.Constant(_INTEGERS, [0] * _LANES))

    def _sum(self, lanes: Any) -> Any:
        """Add the halves to each other until one lane is left."""
        builder, count = self._builder, _LANES
        while count > 1:
            count //= 2
            nothing, order = ir.Constant(lanes.type, ir.Undefined), ir.VectorType(_INTEGER, count)
            low, high = (
                builder.shuffle_vector(lanes, nothing, ir.Constant(order, list(range(first, first + count))))
                for first in (0, count)
            )
            lanes = builder.fadd(low, high)
        return builder.extract_element(lanes, _INTEGER(0))


@intrinsic  # type: ignore[untyped-decorator]  # Numba has no types
def widened(_context: Any, value: Any) -> Any:
    """Convert the bits of a float16 to float32; return a float32 unchanged."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        (bits,) = values
        return bits if value == types.float32 else builder.fpext(builder.bitcast(bits, _HALF), _FLOAT)

    return types.float32(value), emit


@inlined
def _widen(scales: Array, first: int, out: Array) -> None:
    for row in range(len(out)):
        for block in range(scales.shape[1]):
            out[row, block] = widened(scales[first + row, block])


@inlined
def _panel(
    weights: Array, scales: Array, x: Array, out: Array, offset: int, first: int, last: int, begin: int, end: int
) -> None:
    """Compute columns first to last of out for tokens begin to end."""
    of_rows = np.empty((4, scales.shape[1]), np.float32)
    token = begin
    while token < end:
        taken = 4 if end - token >= 4 else 2 if end - token >= 2 else 1
        row = first
        while row + 4 <= last:
            _widen(scales, offset + row, of_rows)
            if taken == 4:
                tile(weights, of_rows, x, out, offset + row, row, token, 4, 4)
            elif taken == 2:
                tile(weights, of_rows, x, out, offset + row, row, token, 4, 2)
            else:
                tile(weights, of_rows, x, out, offset + row, row, token, 4, 1)
            row += 4
        while row < last:
            _widen(scales, offset + row, of_rows[:1])
            for each in range(token, token + taken):
                tile(weights, of_rows, x, out, offset + row, row, each, 1, 1)
            row += 1
        token += taken


@inlined
def _share(weights: Array, scales: Array, x: Array, out: Array, matrices: Array, first: int, last: int) -> None:
    """Compute columns first to last of out for all tokens, grouping consecutive tokens with the same matrix."""
    most = max(4, _CACHED // (weights.shape[1] * weights.itemsize) // 4 * 4)
    begin = 0
    while begin < len(matrices):
        end = begin + 1
        while end < len(matrices) and matrices[end] == matrices[begin]:
            end += 1
        for row in range(first, last, most):
            offset = matrices[begin] * out.shape[1]
            _panel(weights, scales, x, out, offset, row, min(row + most, last), begin, end)
        begin = end


def _products(weights: Array, scales: Array, x: Array, out: Array, matrices: Array, threads: int) -> None:
    """Compute out[n] = matrix matrices[n] @ x[n]; each thread takes the same number of rows of every matrix.

    weights (E * O, I) as in `tile`, scales the bits of float16, (E * O, I / 32) or (1, 0), x (N, I), out (N, O),
    matrices (N,) int64, with equal values adjacent.

    Raises:
        IndexError: a matrix number is out of range.
    """
    outputs = out.shape[1]
    for matrix in matrices:
        if matrix < 0 or (matrix + 1) * outputs > len(weights):
            raise IndexError("the model has no expert of this number")
    rows = ((outputs + threads - 1) // threads + 3) // 4 * 4
    for thread in numba.prange(threads):
        _share(weights, scales, x, out, matrices, min(outputs, thread * rows), min(outputs, (thread + 1) * rows))


products: Any = inlined(_products, parallel=True)


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
def _head(out: Array, q: Array, k: Array, v: Array, mask: Array, scale: Any, stream: int, kv_head: int) -> None:
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


def _attention(out: Array, q: Array, k: Array, v: Array, mask: Array, streams: Array, scale: Any, threads: int) -> None:
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
