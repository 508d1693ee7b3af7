"""The tables of an SQLite export, the queries that read them, and the Arrow tables that their rows become.

Views and virtual tables are never read; a note names those that stand in place of nsys's tables.

Touching new memory dominates the time for large tables. Therefore numbers are copied only once, from a chunk that ADBC
reads to their final position in a contiguous column, which NumPy and pandas can share, and columns that are NULL
throughout take no memory.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tracer.errors import FormatError
from tracer.formats import rocprof
from tracer.formats.nsys_carry import plainly_named
from tracer.formats.nsys_schema import COLUMNS
from tracer.model.schema import NO_TABLES, unread_note

_CHUNK: Final = 1 << 16  # rows; large enough to be fast, small enough to keep both threads busy
_MOST_TABLES: Final = 2000
_LONGEST_DEFAULT: Final = 16  # characters; rows need not store a default, so a long one would multiply
_CREATE: Final = re.compile(
    r"""CREATE TABLE\s+(?:(\w+)|("(?:[^"]|"")+"|'(?:[^']|'')+'|`(?:[^`]|``)+`|\[[^]]+]))\s*\("""
)


@dataclass(frozen=True, slots=True)
class StoredTable:
    """A table of the file.

    Attributes:
        name: its nsys name.
        root: the number of its root page, if that is a number.
        columns: the stored columns.
        integers: the stored columns that are guaranteed to hold only integers or NULL.
        wanted: the columns to read.
        most_rows: an upper bound on the number of rows.
        rowid: the name of the rowid column, if rows are read by ranges of rowids.
        rowids: the lowest and the highest rowid.
    """

    name: str
    root: int | None
    columns: Sequence[str]
    integers: frozenset[str]
    wanted: Sequence[str]
    most_rows: int
    rowid: str | None = None
    rowids: tuple[int, int] | None = None

    @property
    def is_plain(self) -> bool:
        """Whether `sqlite_pages` may be able to read it."""
        dense = self.rowids is not None and self.rowids[1] - self.rowids[0] + 1 == self.most_rows
        return dense and self.root is not None and self.integers.issuperset(self.wanted)

    def parts(self) -> Iterator[RowRange]:
        """The rows of the table, split by ranges of rowids."""
        sql = f"SELECT {', '.join(map(_name, self.wanted))} FROM {_name(self.name)} NOT INDEXED"
        if self.rowids is None:
            yield RowRange(self.name, sql, self.most_rows)
            return
        low, high = self.rowids
        step = max(_CHUNK, -(-(high - low + 1) // -(-self.most_rows // _CHUNK)))
        for first in range(low, high + 1, step):
            last = min(high, first + step - 1)
            yield RowRange(self.name, f"{sql} WHERE {self.rowid} BETWEEN {first} AND {last}", self.most_rows)


@dataclass(frozen=True, slots=True)
class RowRange:
    """A chunk of the rows of a table; the whole table has at most `most_rows`."""

    table: str
    sql: str
    most_rows: int


def find_tables(
    connection: Any, size: int, only: frozenset[str] | None, left_out: list[str], notes: list[str]
) -> Iterator[StoredTable]:
    """The tables to read.

    Args:
        connection: to the file.
        size: the size of the file, bytes.
        only: the tables to read, with their columns in `COLUMNS`; None for every table and column.
        left_out: receives the names of tables and columns that are not read because of their names.
        notes: receives a note on each of nsys's tables that is none.

    Raises:
        FormatError: not an export, damaged, or it would take more memory than its size justifies.
    """
    roots = _real_tables(connection)
    others = _no_tables(connection, (COLUMNS.keys() if only is None else only) - roots.keys())
    if not roots.keys() & COLUMNS.keys():
        why = others[0] if others else "it has none of nsys's tables"
        raise FormatError(rocprof.database(roots) or f"an SQLite file, but not an nsys export ({why})")
    notes += others
    rows, values = _rows_of_tables(connection, size), 0
    for name in sorted(roots if only is None else roots.keys() & only):
        columns, integers = _columns(connection, name)
        if only is None:
            wanted = plainly_named(name, columns, left_out)
        else:
            wanted = [column for column in columns if column in COLUMNS[name]]
        values += rows[name] * len(wanted)
        if values > size:  # even NULL takes a byte
            raise FormatError(f"damaged: table {name} claims {rows[name]} rows, more than fit into the file")
        if wanted:
            yield _with_rowids(connection, StoredTable(name, roots[name], columns, integers, wanted, rows[name]))


def _with_rowids(connection: Any, table: StoredTable) -> StoredTable:
    """The table with its range of rowids, if it has rowids and more rows than a chunk."""
    from adbc_driver_manager import dbapi

    rowid = next(iter({"rowid", "_rowid_", "oid"} - {column.casefold() for column in table.columns}), None)
    low = high = None
    if rowid is not None and table.most_rows > _CHUNK:
        bounds = (f"(SELECT {end}({rowid}) FROM {_name(table.name)})" for end in ("min", "max"))  # one each: no scan
        with suppress(dbapi.ProgrammingError):  # WITHOUT ROWID
            ((low, high),) = _rows(connection, f"SELECT {', '.join(bounds)}")
    if low is None or high is None or low > high:  # `low > high` in a damaged tree
        return table
    return replace(table, rowid=rowid, rowids=(low, high))


def _real_tables(connection: Any) -> dict[str, int | None]:
    """The tables and the numbers of their root pages.

    Views and virtual tables are excluded: reading them would run SQL or code from the file. They have no root page, or
    their SQL does not create a table.
    """
    root = "CASE WHEN typeof(rootpage) = 'integer' THEN rootpage END"
    sql = f"""SELECT CAST(name AS TEXT), CAST(sql AS TEXT), {root} FROM main.sqlite_master
        WHERE type = 'table' AND rootpage > 0 AND name NOT NULL AND sql NOT NULL"""
    found = {name: root for name, made_by, root in _rows(connection, sql) if _creates(name, made_by)}
    if len(found) > _MOST_TABLES:
        raise FormatError(f"has {len(found)} tables; exports have about a hundred")
    return found


def _no_tables(connection: Any, names: Collection[str]) -> list[str]:
    """A note on each of these names that is that of a view or a virtual table."""
    sql = f"""SELECT DISTINCT CAST(name AS TEXT), type = 'view' FROM main.sqlite_master
        WHERE name IN ({", ".join(f"'{name}'" for name in sorted(names))})
        AND (type = 'view' OR type = 'table' AND sql LIKE 'CREATE VIRTUAL TABLE%') ORDER BY name"""
    view, virtual = NO_TABLES
    return [unread_note(name, view if is_view else virtual) for name, is_view in _rows(connection, sql)]


def _creates(name: str, sql: str) -> bool:
    """Whether the statement creates a table of that name; in a manipulated schema it may create something else."""
    match = _CREATE.match(sql)
    if match is None or name.casefold().startswith("sqlite_"):
        return False
    bare, quoted = match[1], match[2]
    return name == (bare if quoted is None else quoted[1:-1].replace(quoted[-1] * 2, quoted[-1]))


def _rows_of_tables(connection: Any, size: int) -> Counter[str]:
    """An upper bound on the number of rows of each table.

    Raises:
        FormatError: pages or rows are used more than once, which would make a small file a huge recording.
    """
    most_pages = size // 512 + 1  # of the smallest size
    walk = f"SELECT name, pagetype, ncell, payload, pgsize FROM main.dbstat LIMIT {most_pages}"
    rows = "CASE WHEN pagetype = 'internal' AND payload = 0 THEN 0 ELSE ncell END"
    sums = f"SELECT name, sum({rows}), sum(payload), sum(pgsize) FROM ({walk}) GROUP BY name"
    found: Counter[str] = Counter()
    used = 0
    for name, cells, payload, pages in _rows(connection, sums):
        found[name] = cells
        used += max(pages, payload)
    if used > size:
        raise FormatError("damaged: pages or rows in it are used more than once")
    return found


def _columns(connection: Any, table: str) -> tuple[list[str], frozenset[str]]:
    """The stored columns (not generated ones), and those whose values are guaranteed to be the integers stored in the
    rows.

    That is uncertain if SQLite converts integers to reals, a rowid replaces the value, or a generated column is stored.
    """
    columns, integers, is_sure = [], set(), True
    for _, name, type, _, default, key, hidden in _rows(connection, f"PRAGMA main.table_xinfo({_name(table)})"):
        if default is not None and len(default) > _LONGEST_DEFAULT:
            raise FormatError(f"table {table}, column {name} has a default of {len(default)} characters")
        is_sure &= not hidden and not key
        if not hidden:
            columns.append(name)
        if "INT" in type.upper():  # https://www.sqlite.org/datatype3.html, section 3.1: integer affinity
            integers.add(name)
    return columns, frozenset(integers if is_sure else ())


def _rows(connection: Any, sql: str) -> list[Any]:
    with cursor_of(connection) as cursor:
        cursor.execute(sql)
        rows: list[Any] = cursor.fetchall()
        return rows


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


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
