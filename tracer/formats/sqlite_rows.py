"""Rows that ADBC reads from SQLite files -> one Arrow table with contiguous columns, which NumPy and pandas can share.

Touching new memory dominates the time for large tables. Therefore numbers are copied only once, from a chunk to their
final position, and columns that are NULL throughout take no memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


@contextmanager
def cursor_of(connection: Any) -> Iterator[Any]:
    """A cursor that is closed when the block exits.

    ADBC before 1.13, the last for Python 3.10, reports the error of a query again when its statement is released, then
    considers the cursor open, and prints a message on stderr when it is collected.
    """
    from adbc_driver_manager import dbapi  # only here: other formats start faster without it

    cursor = connection.cursor()
    try:
        yield cursor
    except BaseException:
        with suppress(dbapi.Error):
            cursor.close()
        cursor._closed = True
        raise
    cursor.close()


class JoinedRows:
    """A table that is built from chunks.

    Args:
        most_rows: an upper bound on the number of rows.
    """

    def __init__(self, most_rows: int) -> None:
        self._most_rows = most_rows
        self._rows = 0
        self._numbers: dict[str, _Numbers] = {}
        self._others: dict[str, list[pa.ChunkedArray]] = {}
        self._names: list[str] = []

    def add(self, chunk: pa.Table, numbers: frozenset[str]) -> None:
        """Append rows; the columns in `numbers` are int64. All chunks have the same columns."""
        self._names = chunk.column_names
        for name, values in zip(chunk.column_names, chunk.columns, strict=True):
            if name in numbers:
                self._numbers.setdefault(name, _Numbers(self._most_rows)).put(self._rows, values)
            else:
                self._others.setdefault(name, []).append(values)
        self._rows += len(chunk)

    def table(self) -> pa.Table:
        """All rows. A column whose chunks have incompatible types becomes bytes."""
        columns = {name: numbers.array(self._rows) for name, numbers in self._numbers.items()}
        columns |= {name: _joined(chunks) for name, chunks in self._others.items()}
        return pa.table({name: columns[name] for name in self._names})


class _Numbers:
    """An int64 column and its NULL mask."""

    def __init__(self, most_rows: int) -> None:
        self._most_rows = most_rows
        self._values: NDArray[np.int64] | None = None
        self._is_null: NDArray[np.bool_] | None = None

    def put(self, at: int, values: pa.ChunkedArray) -> None:
        """Store a chunk's values from row `at` on."""
        for chunk in values.chunks:
            end = at + len(chunk)
            if chunk.null_count:
                if self._is_null is None:
                    self._is_null = np.zeros(self._most_rows, np.bool_)
                self._is_null[at:end] = chunk.is_null().to_numpy(zero_copy_only=False)
            if chunk.null_count < len(chunk):
                if self._values is None:
                    self._values = np.empty(self._most_rows, np.int64)
                # The number stored for a NULL does not matter.
                self._values[at:end] = np.frombuffer(chunk.buffers()[1], np.int64)[chunk.offset :][: len(chunk)]
            at = end

    def array(self, rows: int) -> pa.Array:
        """The column's first `rows` rows."""
        if self._values is None:
            return pa.nulls(rows, pa.int64())
        return pa.array(self._values[:rows], mask=None if self._is_null is None else self._is_null[:rows])


def _joined(chunks: Sequence[pa.ChunkedArray]) -> pa.Array:
    parts = [pa.table({"": chunk}) for chunk in chunks]
    try:
        whole = pa.concat_tables(parts, promote_options="permissive")
    except pa.ArrowException:
        parts = [pa.table({"": chunk.cast(pa.string()).cast(pa.binary())}) for chunk in chunks]
        whole = pa.concat_tables(parts)
    return whole[""].combine_chunks()
