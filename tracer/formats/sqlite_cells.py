"""Decodes the cells of SQLite's table b-trees in compiled loops (Numba).

Source of every layout here: https://www.sqlite.org/fileformat2.html, sections 1.6 (b-tree pages), 2.1 (records) and
2.3 (rowid tables). The bytes are untrusted and compiled loops do not check indices: every position is compared with
the end of its page before it is used, and `PADDING` readable bytes after the pages cover reads that precede the
comparison. Anything but the simplest form is refused, never repaired.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from tracer.compiled import compiled, inlined
from tracer.model.intervals import Ints

Bytes = NDArray[np.uint8]

PADDING: Final = 64
"""Bytes in `data` after its last page; up to three numbers of nine bytes are read before the end is checked."""

LEAF: Final = 13
"""The first byte of a leaf of a rowid table."""

REFUSED: Final = -1
"""Returned by the loops for a page of any other form."""

_INTERIOR: Final = 5
_OVERFLOWS: Final = 35  # a payload longer than the usable page minus these bytes has overflow pages
_SIZES: Final = (0, 1, 2, 3, 4, 6, 8)  # of serial types: NULL and integers
_ZERO: Final = 8
_ONE: Final = 9
_TEXT: Final = 12  # and blobs: the first serial type of a value of (type - 12) // 2 bytes
_REAL: Final = 7


@inlined
def _varint(data: Bytes, at: int) -> tuple[int, int]:  # pragma: no cover - compiled
    """The number at a position, and the position after it."""
    value = 0
    for i in range(8):
        byte = int(data[at + i])
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + i + 1
    return value << 8 | int(data[at + 8]), at + 9


@inlined
def _two(data: Bytes, at: int) -> int:  # pragma: no cover - compiled
    return int(data[at]) << 8 | int(data[at + 1])


@inlined
def _eight(data: Bytes, at: int) -> int:  # pragma: no cover - compiled
    value = 0
    for i in range(8):
        value = value << 8 | int(data[at + i])
    return value


@compiled
def children(
    data: Bytes, page_size: int, usable: int, last: Ints, page: Ints, bound: Ints
) -> int:  # pragma: no cover - compiled
    """Decode the children of interior pages, in order.

    Args:
        data: the pages, of `page_size` bytes each, and `PADDING`.
        page_size: bytes.
        usable: bytes of a page without those reserved at its end.
        last: per page, the highest rowid allowed below it.
        page: receives the children's page numbers.
        bound: receives the highest rowid allowed below each child.

    Returns:
        The number of children, or `REFUSED`.
    """
    found = 0
    for i in range(len(last)):
        base = i * page_size
        cells = _two(data, base + 3)
        lowest = 12 + 2 * cells
        if data[base] != _INTERIOR or cells == 0 or lowest > usable or found + cells >= len(page):
            return REFUSED
        for cell in range(cells + 1):
            if cell < cells:
                offset = _two(data, base + 12 + 2 * cell)
                if offset < lowest or offset + 4 >= usable:
                    return REFUSED
                at = base + offset
                bound[found], end = _varint(data, at + 4)
                if end > base + usable:
                    return REFUSED
            else:  # the right-most child is in the page's header
                at = base + 8
                bound[found] = last[i]
            page[found] = _two(data, at) << 16 | _two(data, at + 2)
            found += 1
    return found


@compiled
def rows(
    data: Bytes, page_size: int, usable: int, first: Ints, place: Ints, values: NDArray[np.int64],
    is_null: NDArray[np.bool_], nulls: Ints,
) -> int:  # fmt: skip  # pragma: no cover - compiled
    """Decode the rows of leaf pages, which hold consecutive rowids from `first` on.

    Args:
        data: the pages, of `page_size` bytes each, and `PADDING`.
        page_size: bytes.
        usable: bytes of a page without those reserved at its end.
        first: per page, its lowest rowid; after the last page, the next rowid.
        place: per stored column, its row in `values`, or -1 for columns to skip, which may hold any type.
        values: receives the integers, one row per wanted column; must have room for all rows.
        is_null: same shape, all False; set to True where a value is NULL.
        nulls: the number of NULLs per wanted column is added to it.

    Returns:
        The number of rows, or `REFUSED`.
    """
    row = 0
    for page in range(len(first) - 1):
        base = page * page_size
        end = base + usable
        cells = first[page + 1] - first[page]
        lowest = 8 + 2 * cells
        if data[base] != LEAF or _two(data, base + 3) != cells or lowest > usable or row + cells > values.shape[1]:
            return REFUSED
        for cell in range(cells):
            offset = _two(data, base + 8 + 2 * cell)
            if offset < lowest or offset >= usable:
                return REFUSED
            payload, at = _varint(data, base + offset)
            rowid, at = _varint(data, at)
            if rowid != first[page] + cell or payload < 1 or payload > end - at or payload > usable - _OVERFLOWS:
                return REFUSED
            stop = at + payload
            header, type_at = _varint(data, at)
            if header < 1 or header > payload:
                return REFUSED
            value_at = types_end = at + header
            for column in range(len(place)):
                if type_at >= types_end:
                    return REFUSED
                type, type_at = _varint(data, type_at)
                if type < 0:
                    return REFUSED
                to = place[column]
                if type < len(_SIZES):
                    size = _SIZES[type]
                elif type >= _TEXT:
                    size = (type - _TEXT) >> 1
                else:
                    size = 8 if type == _REAL else 0
                if size > stop - value_at:
                    return REFUSED
                if to < 0:
                    pass
                elif type == 0:
                    is_null[to, row] = True
                    nulls[to] += 1
                elif type < len(_SIZES):
                    values[to, row] = _eight(data, value_at) >> (64 - 8 * size)
                elif _ZERO <= type <= _ONE:
                    values[to, row] = type - _ZERO
                else:
                    return REFUSED
                value_at += size
            if type_at != types_end or value_at != stop:
                return REFUSED
            row += 1
    return row
