"""Reads large tables of integers directly from the pages of an SQLite file, several times as fast as SQLite does.

SQLite takes about 40 ns per value through any interface. Here a table's b-tree is walked level by level down to its
leaves, in order of rowid, and the leaves are decoded in chunks into the final columns. Only the simplest form is read:
consecutive rowids, which give each row's position in a column, and every page in its simplest layout. For anything
else `read_integers` returns None, and the caller uses SQLite.

Source: https://www.sqlite.org/fileformat2.html, sections 1.3 (header), 1.4 (lock-byte page), 1.6 (b-tree pages).
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

from tracer.formats.sqlite_cells import LEAF, PADDING, REFUSED, Bytes, children, rows
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
    """Read the integers of a rowid table.

    Args:
        path: the SQLite file.
        root: the number of the table's root page.
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
            found = _Columns(columns, rowids)

            def decode(leaves: _Pages) -> int:
                reader = free.get()
                try:
                    return reader.decode(leaves, found)
                finally:
                    free.put(reader)

            done = 0
            for some in pool.map(decode, tree.chunks(reader.pages_of_a_chunk)):
                done += some
                progress(done)
        return found.table()
    except (_NotPlain, OSError):
        return None


@dataclass(frozen=True, slots=True)
class _Pages:
    """Pages of one level of a b-tree, in order.

    Attributes:
        page: the page numbers; the first page of the file is 1.
        first: the lowest rowid below each page; after the last page, the next rowid.
    """

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
    """Reads pages with its own file and buffers. Use it from one thread at a time.

    Raises:
        _NotPlain: here and in every method.
    """

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
        found = np.empty((2, len(pages.page) * self._most_rows), np.int64)
        count = children(data, self._size, self._usable, pages.first[1:] - 1, found[0], found[1])
        if count == REFUSED:
            raise _NotPlain
        return found[0, :count], found[1, :count]

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
