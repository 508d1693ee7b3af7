"""SQLite databases of profilers, read through Arrow: which tables a file has, and their rows.

The file is opened read-only and immutable. Only real tables are read, by name: no SQL from the file is executed, and
views and virtual tables are never read. Touching new memory dominates the time for large tables. Therefore numbers are
copied only once, from a chunk that ADBC reads to their final position in a contiguous column, which NumPy and pandas
can share (`JoinedRows`), and columns that are NULL throughout take no memory.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final
from urllib.parse import quote

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tracer.errors import FormatError
from tracer.formats.nsys import typed
from tracer.formats.nsys_schema import COLUMNS, Versioned
from tracer.progress import tell

MAGIC: Final = b"SQLite format 3\0"
_WORTH_PAGES: Final = 3 << 20  # of integers; from here on, reading pages saves more time than compiling takes
_WORKERS: Final = 2  # ADBC reads outside the interpreter lock: two halve the time on the two cores we measured
_NUMBERS: Final = {
    table: frozenset(name for name, type in columns.items() if pa.types.is_integer(type))
    for table, columns in COLUMNS.items()
}
_CHUNK: Final = 1 << 16  # rows; large enough to be fast, small enough to keep both threads busy
_MOST_TABLES: Final = 2000
_LONGEST_DEFAULT: Final = 16  # characters; rows need not store a default, so a long one would multiply
_CREATE: Final = re.compile(
    r"""CREATE TABLE\s+(?:(\w+)|("(?:[^"]|"")+"|'(?:[^']|'')+'|`(?:[^`]|``)+`|\[[^]]+]))\s*\("""
)


@dataclass(frozen=True, slots=True)
class StoredTable:
    """A table of the file. Its columns have their nsys names.

    Attributes:
        name: its nsys name.
        stored: its name and those of its columns in the file.
        root: the number of its root page, if that is a number.
        columns: the stored columns.
        integers: the stored columns that are guaranteed to hold only integers or NULL.
        wanted: the columns to read.
        most_rows: an upper bound on the number of rows.
        rowid: the name of the rowid column, if rows are read by ranges of rowids.
        rowids: the lowest and the highest rowid.
    """

    name: str
    stored: Versioned
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
        columns = (f"{_name(self.stored.spelled.get(column, column))} AS {_name(column)}" for column in self.wanted)
        sql = f"SELECT {', '.join(columns)} FROM {_name(self.stored.name)} NOT INDEXED"
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


def starts_with_magic(path: Path) -> bool:
    """Whether a file is SQLite by its first bytes."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def check_size(path: Path) -> None:
    """Compare the size with the header (page size at byte 16, page count at byte 28, big-endian)."""
    with path.open("rb") as file:
        header = file.read(32)
    size = path.stat().st_size
    page = int.from_bytes(header[16:18], "big")
    expected = (65536 if page == 1 else page) * int.from_bytes(header[28:32], "big")
    if size < max(expected, 512):
        raise FormatError(f"{path}: truncated ({size} bytes of {max(expected, 512)})")


def connect(path: Path) -> Any:
    """A connection that only reads, and takes the file for unchanging."""
    from adbc_driver_sqlite import dbapi as sqlite

    connection = sqlite.connect(f"file://{quote(os.fspath(path.absolute()))}?mode=ro&immutable=1")
    with cursor_of(connection) as cursor:  # else SQLite may read a damaged row beyond its page, as whatever is there
        cursor.execute("PRAGMA cell_size_check = ON")
    return connection


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


def real_tables(connection: Any) -> dict[str, int | None]:
    """The tables and the numbers of their root pages. Views and virtual tables are excluded: reading them would run SQL
    or code from the file. They have no root page, or their SQL does not create a table."""
    root = "CASE WHEN typeof(rootpage) = 'integer' THEN rootpage END"
    sql = f"""SELECT CAST(name AS TEXT), CAST(sql AS TEXT), {root} FROM main.sqlite_master
        WHERE type = 'table' AND rootpage > 0 AND name NOT NULL AND sql NOT NULL"""
    roots = {name: root for name, made_by, root in rows_of(connection, sql) if _creates(name, made_by)}
    if len(roots) > _MOST_TABLES:
        raise FormatError(f"has {len(roots)} tables; exports have about a hundred")
    return roots


def _creates(name: str, sql: str) -> bool:
    """Whether the statement creates a table of that name; in a manipulated schema it may create something else."""
    match = _CREATE.match(sql)
    if match is None or name.casefold().startswith("sqlite_"):
        return False
    bare, quoted = match[1], match[2]
    return name == (bare if quoted is None else quoted[1:-1].replace(quoted[-1] * 2, quoted[-1]))


def rows_of_tables(connection: Any, size: int) -> Counter[str]:
    """An upper bound on the number of rows of each table. Raises FormatError if pages or rows are used more than once,
    which would make a small file a huge recording."""
    most_pages = size // 512 + 1  # of the smallest size
    walk = f"SELECT name, pagetype, ncell, payload, pgsize FROM main.dbstat LIMIT {most_pages}"
    rows = "CASE WHEN pagetype = 'internal' AND payload = 0 THEN 0 ELSE ncell END"
    sums = f"SELECT name, sum({rows}), sum(payload), sum(pgsize) FROM ({walk}) GROUP BY name"
    most_rows: Counter[str] = Counter()
    used = 0
    for name, cells, payload, pages in rows_of(connection, sums):
        most_rows[name] = cells
        used += max(pages, payload)
    if used > size:
        raise FormatError("damaged: pages or rows in it are used more than once")
    return most_rows


def columns_of(connection: Any, table: str, read: Collection[str] | None = None) -> tuple[list[str], frozenset[str]]:
    """The stored columns (not generated ones), and those whose values are guaranteed to be the integers stored in the
    rows. That is uncertain if SQLite converts integers to reals, a rowid replaces the value, or a generated column is
    stored. Raises FormatError if one of those to read (None: of all) has a long default."""
    columns, integers, is_sure = [], set(), True
    for _, name, type, _, default, key, hidden in rows_of(connection, f"PRAGMA main.table_xinfo({_name(table)})"):
        if default is not None and len(default) > _LONGEST_DEFAULT and (read is None or name in read):
            raise FormatError(f"table {table}, column {name} has a default of {len(default)} characters")
        is_sure &= not hidden and not key
        if not hidden:
            columns.append(name)
        if "INT" in type.upper():  # https://www.sqlite.org/datatype3.html, section 3.1: integer affinity
            integers.add(name)
    return columns, frozenset(integers if is_sure else ())


def with_rowids(connection: Any, table: StoredTable) -> StoredTable:
    """The table with its range of rowids, if it has rowids and more rows than a chunk."""
    from adbc_driver_manager import dbapi

    rowid = next(iter({"rowid", "_rowid_", "oid"} - {column.casefold() for column in table.columns}), None)
    low = high = None
    if rowid is not None and table.most_rows > _CHUNK:
        stored = _name(table.stored.name)
        bounds = (f"(SELECT {end}({rowid}) FROM {stored})" for end in ("min", "max"))  # one each: no scan
        with suppress(dbapi.ProgrammingError):  # WITHOUT ROWID
            ((low, high),) = rows_of(connection, f"SELECT {', '.join(bounds)}")
    if low is None or high is None or low > high:  # `low > high` in a damaged tree
        return table
    return replace(table, rowid=rowid, rowids=(low, high))


def rows_of(connection: Any, sql: str) -> list[Any]:
    """The rows of a query, as tuples."""
    with cursor_of(connection) as cursor:
        cursor.execute(sql)
        return cursor.fetchall()


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def said_briefly() -> Iterator[None]:
    """Turn what SQLite and Arrow say of a file into a FormatError, without ADBC's additions and the file's name."""
    from adbc_driver_manager import dbapi  # only here: other formats start faster without it

    try:
        yield
    except MemoryError:  # Arrow's is also an ArrowException
        raise
    except (dbapi.Error, pa.ArrowException) as error:
        reason = str(error).splitlines()[0].rpartition(" query: ")[2]
        raise FormatError(f"SQLite cannot read it: {reason}") from error
    except UnicodeDecodeError as error:
        raise FormatError(f"the name of a table or column is not UTF-8: {error.object[:40]!r}") from error


def read_all(path: Path, tables: Sequence[StoredTable]) -> dict[str, pa.Table]:
    """The rows of all tables."""
    done, total = 0, sum(table.most_rows for table in tables)
    plain = [table for table in tables if table.is_plain]
    by_name: dict[str, pa.Table] = {}
    if sum(table.most_rows for table in plain) >= _WORTH_PAGES:
        for table in plain:
            if (rows := _read_plain(path, table, done, total)) is not None:
                by_name[table.name] = typed(rows, table.name)
                done += len(rows)
    parts = [part for table in tables if table.name not in by_name for part in table.parts()]
    by_name |= {name: rows.table() for name, rows in _fetch_all(path, parts, done, total).items()}
    return {table.name: by_name[table.name] for table in tables}


def _read_plain(path: Path, table: StoredTable, done: int, total: int) -> pa.Table | None:
    from tracer.formats.sqlite_pages import read_integers  # imports Numba, which takes a third of a second

    assert table.root is not None
    assert table.rowids is not None
    columns = [column if column in table.wanted else None for column in table.columns]
    return read_integers(path, table.root, table.rowids, columns, lambda rows: tell(done + rows, total))


def _fetch_all(path: Path, parts: Sequence[RowRange], done: int, total: int) -> dict[str, JoinedRows]:
    """The rows of all parts, by table, after `done` rows of `total`.

    Every connection parses the schema, so each worker reuses one.
    """
    tables = {part.table: JoinedRows(part.most_rows) for part in parts}
    with ExitStack() as stack, ThreadPoolExecutor(_WORKERS) as pool:
        free: SimpleQueue[Any] = SimpleQueue()
        left = {part.table: part.most_rows for part in parts}
        for _ in range(min(_WORKERS, len(parts))):
            free.put(stack.enter_context(connect(path)))

        def fetch(part: RowRange) -> pa.Table:
            connection = free.get()
            try:
                chunk = _fetch(connection, part)
            finally:
                free.put(connection)
            return typed(chunk, part.table)

        for part, chunk in zip(parts, pool.map(fetch, parts), strict=True):
            left[part.table] -= len(chunk)  # in order, so that the same damage always gives the same message
            if left[part.table] < 0:
                pool.shutdown(cancel_futures=True)
                raise FormatError(f"damaged: table {part.table} yields more rows than it has")
            tables[part.table].add(chunk, _NUMBERS.get(part.table, frozenset()))
            done += len(chunk)
            tell(done, total)
    return tables


def _fetch(connection: Any, part: RowRange) -> pa.Table:
    # ADBC infers a column's type from the first batch, so a chunk is one batch.
    rows = part.most_rows + 1
    with cursor_of(connection) as cursor:
        cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(rows)})
        cursor.execute(f"{part.sql} LIMIT {rows}")
        return cursor.fetch_arrow_table()


class JoinedRows:
    """A table that is built from chunks; `most_rows` is an upper bound on the number of rows."""

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
