"""Reads large tables of integers directly from the pages of an SQLite file, several times as fast as SQLite does.

SQLite takes about 40 ns per value through any interface. Here a table's b-tree is walked level by level down to its
leaves, in order of rowid, and the leaves are decoded in chunks into the final columns. Only the simplest form is read:
consecutive rowids, which give each row's position in a column, and every page in its simplest layout. For anything
else `read_integers` returns None, and the caller uses SQLite.

The cells are decoded in compiled loops (`children`, `rows`). The bytes are untrusted and compiled loops do not check
indices: every position is compared with the end of its page before it is used, and `PADDING` readable bytes after the
pages cover reads that precede the comparison. Anything but the simplest form is refused, never repaired.

Source of every layout here: https://www.sqlite.org/fileformat2.html, sections 1.3 (header), 1.4 (lock-byte page), 1.6
(b-tree pages), 2.1 (records) and 2.3 (rowid tables).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from queue import SimpleQueue
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tracer.compiled import compiled, inlined
from tracer.model.intervals import Ints

_CHUNK: Final = 1 << 18  # bytes of pages; with the decoded rows they fit into a core's cache
_MOST_LEVELS: Final = 20  # as in SQLite
_LEAST_CELL: Final = 6  # bytes, with the pointer to it
_LOCK_BYTE: Final = 1 << 30
_FURTHEST: Final = 1 << 62  # rowids; differences of smaller ones do not overflow
_WORKERS: Final = 2

Progress = Callable[[int], None]
"""Called with the number of rows done."""


class _NotPlain(Exception):
    """The table or its pages are not in the simplest form."""


def read_integers(
    path: Path, root: int, rowids: tuple[int, int], columns: Sequence[str | None], progress: Progress
) -> pa.Table | None:
    """Read the integers of a rowid table with this root page.

    Args:
        rowids: the lowest and the highest rowid; all rowids between them must exist.
        columns: the stored columns in order, None for each that is not wanted.
        progress: called after each chunk.

    Returns:
        The wanted columns as int64, or None if a wanted value is not an integer or the pages are not in the simplest
        form.
    """
    if not columns or not -_FURTHEST < rowids[0] <= rowids[1] < _FURTHEST:
        return None
    try:
        with ExitStack() as stack, ThreadPoolExecutor(_WORKERS) as pool:
            free: SimpleQueue[_Reader] = SimpleQueue()
            for _ in range(_WORKERS):
                free.put(_Reader(stack.enter_context(path.open("rb", buffering=0)), columns))
            reader = free.get()
            tree = reader.leaves(root, rowids)
            free.put(reader)
            decoded = _Columns(columns, rowids)

            def decode(leaves: _Pages) -> int:
                reader = free.get()
                try:
                    return reader.decode(leaves, decoded)
                finally:
                    free.put(reader)

            done = 0
            for some in pool.map(decode, tree.chunks(reader.pages_of_a_chunk)):
                done += some
                progress(done)
        return decoded.table()
    except (_NotPlain, OSError):
        return None


@dataclass(frozen=True, slots=True)
class _Pages:
    """Pages of one level of a b-tree, in order: their numbers (the first page of the file is 1), and the lowest rowid
    below each page; after the last page, the next rowid."""

    page: Ints
    first: Ints

    def chunks(self, size: int) -> Iterator[_Pages]:
        for at in range(0, len(self.page), size):
            yield _Pages(self.page[at : at + size], self.first[at : at + size + 1])


class _Columns:
    """The columns with one row per rowid, which several threads fill in disjoint parts."""

    def __init__(self, columns: Sequence[str | None], rowids: tuple[int, int]) -> None:
        self.names = [name for name in columns if name is not None]
        self._first, self._rows = rowids[0], rowids[1] - rowids[0] + 1
        # Memory that is never written is never allocated.
        self._values = [np.empty(self._rows, np.int64) for _ in self.names]
        self._is_null = [np.zeros(self._rows, np.bool_) for _ in self.names]
        self._nulls: list[list[int]] = []

    def put(self, first: int, values: NDArray[np.int64], is_null: NDArray[np.bool_], nulls: list[int]) -> None:
        """Store rows from rowid `first` on; the arrays have one row per column."""
        count = values.shape[1]
        here = slice(first - self._first, first - self._first + count)
        for column, some in enumerate(nulls):
            if some:
                self._is_null[column][here] = is_null[column]
            if some < count:  # the number stored for a NULL does not matter
                self._values[column][here] = values[column]
        self._nulls.append(nulls)

    def table(self) -> pa.Table:
        """All rows."""
        nulls = np.sum(self._nulls, axis=0)
        arrays = [
            pa.nulls(self._rows, pa.int64()) if some == self._rows else pa.array(values, mask=is_null if some else None)
            for values, is_null, some in zip(self._values, self._is_null, nulls, strict=True)
        ]
        return pa.table(dict(zip(self.names, arrays, strict=True)))


class _Reader:
    """Reads pages with its own file and buffers. Use it from one thread at a time. All of it raises `_NotPlain`."""

    def __init__(self, file: FileIO, columns: Sequence[str | None]) -> None:
        header = file.read(100)
        if len(header) < 100:
            raise _NotPlain
        size = int.from_bytes(header[16:18], "big")
        self._size = 65536 if size == 1 else size
        self._usable = self._size - header[20]
        if self._size not in {1 << bits for bits in range(9, 17)} or self._usable < 480:
            raise _NotPlain
        # An outdated page count (1.3.7) may be too low; then pages are refused, which does no harm.
        self._most_pages = int.from_bytes(header[28:32], "big")
        self._file = file
        self.pages_of_a_chunk = max(1, _CHUNK // self._size)
        self._data = np.zeros(self.pages_of_a_chunk * self._size + PADDING, np.uint8)
        wanted = np.array([name is not None for name in columns])
        self._place = np.where(wanted, np.cumsum(wanted) - 1, -1)
        self._most_rows = self._usable // _LEAST_CELL  # of a page
        shape = wanted.sum(), self.pages_of_a_chunk * self._most_rows
        self._values, self._is_null = np.empty(shape, np.int64), np.empty(shape, np.bool_)

    def leaves(self, root: int, rowids: tuple[int, int]) -> _Pages:
        """The leaves of a tree."""
        level = _Pages(np.array([root]), np.array([rowids[0], rowids[1] + 1]))
        if rowids[1] - rowids[0] >= self._most_pages * self._most_rows:
            raise _NotPlain
        for _ in range(_MOST_LEVELS):
            if self._read(level.page[:1])[0] == LEAF:
                return level
            below = [self._children(pages) for pages in level.chunks(self.pages_of_a_chunk)]
            page, last = (np.concatenate(parts) for parts in zip(*below, strict=True))
            level = _Pages(page, np.concatenate([level.first[:1], last + 1]))
            if len(page) > self._most_pages or (np.diff(level.first) < 1).any():
                raise _NotPlain
        raise _NotPlain

    def _children(self, pages: _Pages) -> tuple[Ints, Ints]:
        data = self._read(pages.page)
        below = np.empty((2, len(pages.page) * self._most_rows), np.int64)
        count = children(data, self._size, self._usable, pages.first[1:] - 1, below[0], below[1])
        if count == REFUSED:
            raise _NotPlain
        return below[0, :count], below[1, :count]

    def decode(self, leaves: _Pages, columns: _Columns) -> int:
        """Decode leaves into the columns; returns the number of rows."""
        data, nulls = self._read(leaves.page), np.zeros(len(self._values), np.int64)
        first, after = (int(leaves.first[i]) for i in (0, -1))
        self._is_null[:, : after - first] = False
        count = rows(data, self._size, self._usable, leaves.first, self._place, self._values, self._is_null, nulls)
        if count == REFUSED:
            raise _NotPlain
        columns.put(first, self._values[:, :count], self._is_null[:, :count], nulls.tolist())
        return count

    def _read(self, pages: Ints) -> Bytes:
        """The pages, followed by padding; consecutive pages of the file are read together."""
        if pages.min() < 2 or pages.max() > self._most_pages or (pages == _LOCK_BYTE // self._size + 1).any():
            raise _NotPlain
        starts = np.flatnonzero(np.diff(pages, prepend=-1) != 1).tolist()
        for start, end in zip(starts, [*starts[1:], len(pages)], strict=True):
            self._file.seek((int(pages[start]) - 1) * self._size)
            part = self._data.data[start * self._size : end * self._size]
            if self._file.readinto(part) != len(part):
                raise _NotPlain
        return self._data


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
    """Decode the children of interior pages, in order; returns their number, or `REFUSED`.

    Args:
        data: the pages, of `page_size` bytes each, and `PADDING`.
        usable: bytes of a page without those reserved at its end.
        last: per page, the highest rowid allowed below it.
        page: receives the children's page numbers.
        bound: receives the highest rowid allowed below each child.
    """
    count = 0
    for i in range(len(last)):
        base = i * page_size
        cells = _two(data, base + 3)
        lowest = 12 + 2 * cells
        if data[base] != _INTERIOR or cells == 0 or lowest > usable or count + cells >= len(page):
            return REFUSED
        for cell in range(cells + 1):
            if cell < cells:
                offset = _two(data, base + 12 + 2 * cell)
                if offset < lowest or offset + 4 >= usable:
                    return REFUSED
                at = base + offset
                bound[count], end = _varint(data, at + 4)
                if end > base + usable:
                    return REFUSED
            else:  # the right-most child is in the page's header
                at = base + 8
                bound[count] = last[i]
            page[count] = _two(data, at) << 16 | _two(data, at + 2)
            count += 1
    return count


@compiled
def rows(
    data: Bytes, page_size: int, usable: int, first: Ints, place: Ints, values: NDArray[np.int64],
    is_null: NDArray[np.bool_], nulls: Ints,
) -> int:  # fmt: skip  # pragma: no cover - compiled
    """Decode the rows of leaf pages, which hold consecutive rowids; returns their number, or `REFUSED`.

    Args:
        data, page_size, usable: as for `children`.
        first: per page, its lowest rowid; after the last page, the next rowid.
        place: per stored column, its row in `values`, or -1 for columns to skip, which may hold any type.
        values: receives the integers, one row per wanted column; must have room for all rows.
        is_null: same shape, all False; set to True where a value is NULL.
        nulls: the number of NULLs per wanted column is added to it.
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
