"""Compiled products with large matrices: weights of any format become float32 in registers, 16 lanes at a time.

Lane j sums the products of the columns that are j modulo 16, in ascending order, one fused multiply-add each; then the
lanes are summed, halves first. The LLVM code that `tile` emits fixes this order for every tile size. A result is
therefore bitwise the same for every batch and thread count, and for equal weights in every format. LLVM's own
vectoriser would choose a different order for each. An int8 times an f16 scale is exact in float32.

Importing this module imports Numba.
"""

from __future__ import annotations

from typing import Any, Final

import numba
import numpy as np
from llvmlite import ir
from numba import extending, types
from numba.core import cgutils as untyped_cgutils

from executor.backends.weight_formats import Array
from tracer.compiled import inlined

cgutils: Any = untyped_cgutils
intrinsic: Any = extending.intrinsic

_LANES: Final = 16
_BLOCK: Final = 32
_LINE: Final = 64
_CACHED: Final = 1 << 18
"""Bytes of weights applied to all tokens before moving on: they stay in a core's cache."""

_FLOAT, _HALF, _INDEX = ir.FloatType(), ir.HalfType(), ir.IntType(32)
_FLOATS, _INTEGERS = ir.VectorType(_FLOAT, _LANES), ir.VectorType(_INDEX, _LANES)


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
        touching = ir.FunctionType(ir.VoidType(), [ir.IntType(8).as_pointer(), *[_INDEX] * 3])
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
                builder.call(self._touch, [pointer, _INDEX(0), _INDEX(3), _INDEX(1)])  # to read, often, data

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
        one = builder.insert_element(ir.Constant(_FLOATS, ir.Undefined), scale, _INDEX(0))
        return builder.shuffle_vector(one, ir.Constant(_FLOATS, ir.Undefined), ir.Constant(_INTEGERS, [0] * _LANES))

    def _sum(self, lanes: Any) -> Any:
        """Add the halves to each other until one lane is left."""
        builder, count = self._builder, _LANES
        while count > 1:
            count //= 2
            nothing, order = ir.Constant(lanes.type, ir.Undefined), ir.VectorType(_INDEX, count)
            low, high = (
                builder.shuffle_vector(lanes, nothing, ir.Constant(order, list(range(first, first + count))))
                for first in (0, count)
            )
            lanes = builder.fadd(low, high)
        return builder.extract_element(lanes, _INDEX(0))


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
