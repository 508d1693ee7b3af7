"""Nsight Systems SQLite exports (`nsys export --type sqlite`), read through Arrow; written by `nsys_sqlite_write`.

The file is opened read-only and immutable, and only real tables are read, by name: nothing in it is executed.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
from adbc_driver_manager import dbapi
from adbc_driver_sqlite import dbapi as sqlite

from tracer.errors import FormatError, printable
from tracer.formats import WHOLE, Format, nsys, register
from tracer.formats.joined_rows import JoinedRows
from tracer.formats.nsys_carry import plainly_named
from tracer.formats.nsys_schema import COLUMNS
from tracer.formats.nsys_sqlite_write import write
from tracer.progress import tell
from tracer.trace import Trace

_MAGIC: Final = b"SQLite format 3\0"
_SUFFIXES: Final = (".sqlite", ".sqlite3", ".db")
_CHUNK: Final = 1 << 16  # rows; large enough to be fast, small enough to keep both threads busy
_MANY_ROWS: Final = 3 << 20  # of integers; what reading them from pages saves is more than compiling it takes
_MOST_TABLES: Final = 2000
_LONGEST_DEFAULT: Final = 16  # characters; a row need not store it
_CREATE: Final = re.compile(
    r"""CREATE TABLE\s+(?:(\w+)|("(?:[^"]|"")+"|'(?:[^']|'')+'|`(?:[^`]|``)+`|\[[^]]+]))\s*\("""
)
_NUMBERS: Final = {
    table: frozenset(name for name, type in columns.items() if pa.types.is_integer(type))
    for table, columns in COLUMNS.items()
}
_WORKERS: Final = 2  # ADBC reads outside the interpreter lock: two halve the time on the two cores we measured


def sniff(path: Path) -> bool:
    """Whether the file is SQLite, or says so by its suffix (`read` then tells what is wrong with it)."""
    return path.is_file() and (_starts_with_magic(path) or path.suffix.lower() in _SUFFIXES)


def read(path: Path, *, whole: bool = False) -> Trace:
    """Read an export; what it lacks is empty in the trace. `whole` lets the trace carry all else that it holds.

    Raises:
        FormatError: not SQLite, no nsys export, truncated or damaged.
    """
    if not _starts_with_magic(path):
        raise FormatError(f"{path}: is not an SQLite file (its first bytes are wrong)")
    _check_size(path)
    try:
        left_out: list[str] = []
        tables = read_tables(path, None if whole else frozenset(COLUMNS), left_out)
        trace = nsys.to_trace(tables, whole=whole, left_out=left_out)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from error
    for beside in (path.with_name(f"{path.name}-{kind}") for kind in ("wal", "journal")):
        if beside.is_file() and beside.stat().st_size:
            trace.notes.append(f"changes that another program keeps in {printable(beside.name)} are not read")
    return trace


def read_tables(
    path: Path, only: frozenset[str] | None = frozenset(COLUMNS), left_out: list[str] | None = None
) -> dict[str, pa.Table]:
    """Tables of an export as Arrow, with the columns and types of `nsys_schema.COLUMNS`.

    Args:
        path: the export.
        only: these tables; None for every table and column.
        left_out: gets the names of those that are not read because of their names.

    Raises:
        FormatError: SQLite cannot read it, it would take more memory than its size explains, or a column holds the
            wrong kind of values.
    """
    try:
        with _connect(path) as connection:
            found = list(_tables(connection, path.stat().st_size, only, left_out if left_out is not None else []))
        return _read_all(path, found)
    except (dbapi.Error, pa.ArrowException) as error:
        raise FormatError(f"SQLite cannot read it: {_reason(error)}") from error
    except UnicodeDecodeError as error:
        raise FormatError(f"a table or column has a name that is no UTF-8: {error.object[:40]!r}") from error


@dataclass(frozen=True, slots=True)
class _Table:
    """A table of the file.

    Attributes:
        name: nsys's.
        root: the number of its root page, if it is one.
        columns: those that are stored.
        integers: those of them that hold what they are declared to, which is integers or NULL.
        wanted: those that are read.
        most_rows: how many rows it has, at most.
        rowid: what the row ids are called, if rows are read by ranges of them.
        rowids: the lowest and the highest.
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
        """Whether it may do to read integers from its pages."""
        dense = self.rowids is not None and self.rowids[1] - self.rowids[0] + 1 == self.most_rows
        return dense and self.root is not None and self.integers.issuperset(self.wanted)

    def parts(self) -> Iterator[_Part]:
        """Its rows, by ranges of row ids."""
        sql = f"SELECT {', '.join(map(_name, self.wanted))} FROM {_name(self.name)} NOT INDEXED"
        if self.rowids is None:
            yield _Part(self.name, sql, self.most_rows)
            return
        low, high = self.rowids
        step = max(_CHUNK, -(-(high - low + 1) // -(-self.most_rows // _CHUNK)))
        for first in range(low, high + 1, step):
            last = min(high, first + step - 1)
            yield _Part(self.name, f"{sql} WHERE {self.rowid} BETWEEN {first} AND {last}", self.most_rows)


@dataclass(frozen=True, slots=True)
class _Part:
    """A chunk of rows of a table, which has `most_rows` in all."""

    table: str
    sql: str
    most_rows: int


def _tables(connection: Any, size: int, only: frozenset[str] | None, left_out: list[str]) -> Iterator[_Table]:
    roots = _real_tables(connection)
    if not roots.keys() & COLUMNS.keys():
        raise FormatError("is an SQLite file but no nsys export (it has none of nsys's tables)")
    rows, values = _rows_of_tables(connection, size), 0
    for name in sorted(roots if only is None else roots.keys() & only):
        columns, integers = _columns(connection, name)
        if only is None:
            wanted = plainly_named(name, columns, left_out)
        else:
            wanted = [column for column in columns if column in COLUMNS[name]]
        values += rows[name] * len(wanted)
        if values > size:  # even NULL takes a byte
            raise FormatError(f"is damaged: table {name} has {rows[name]} rows, more than the file has room for")
        if wanted:
            yield _with_rowids(connection, _Table(name, roots[name], columns, integers, wanted, rows[name]))


def _with_rowids(connection: Any, table: _Table) -> _Table:
    """The table with its row ids, if it has row ids and more rows than a chunk."""
    rowid = next(iter({"rowid", "_rowid_", "oid"} - {column.casefold() for column in table.columns}), None)
    low = high = None
    if rowid is not None and table.most_rows > _CHUNK:
        bounds = (f"(SELECT {end}({rowid}) FROM {_name(table.name)})" for end in ("min", "max"))  # one each: no scan
        with suppress(dbapi.ProgrammingError):  # WITHOUT ROWID
            ((low, high),) = _rows(connection, f"SELECT {', '.join(bounds)}")
    if low is None or high is None or low > high:  # the last of a damaged tree
        return table
    return replace(table, rowid=rowid, rowids=(low, high))


def _real_tables(connection: Any) -> dict[str, int | None]:
    """The tables, and the numbers of their root pages.

    A view or virtual table has no pages, or says that it is none: reading it would run SQL or code from the file.
    """
    root = "CASE WHEN typeof(rootpage) = 'integer' THEN rootpage END"
    sql = f"""SELECT CAST(name AS TEXT), CAST(sql AS TEXT), {root} FROM main.sqlite_master
        WHERE type = 'table' AND rootpage > 0 AND name NOT NULL AND sql NOT NULL"""
    found = {name: root for name, made_by, root in _rows(connection, sql) if _creates(name, made_by)}
    if len(found) > _MOST_TABLES:
        raise FormatError(f"has {len(found)} tables; exports have about a hundred")
    return found


def _creates(name: str, sql: str) -> bool:
    """Whether the statement makes a table of that name; in a schema that was tampered with it may make another."""
    match = _CREATE.match(sql)
    if match is None or name.casefold().startswith("sqlite_"):
        return False
    bare, quoted = match[1], match[2]
    return name == (bare if quoted is None else quoted[1:-1].replace(quoted[-1] * 2, quoted[-1]))


def _rows_of_tables(connection: Any, size: int) -> Counter[str]:
    """How many rows each table has, at most.

    Raises:
        FormatError: pages or rows that are used more than once, which makes a small file a huge recording.
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
        raise FormatError("is damaged: pages or rows in it are used more than once")
    return found


def _columns(connection: Any, table: str) -> tuple[list[str], frozenset[str]]:
    """The columns that are stored, which generated ones are not; and those that surely hold what a row stores for them.

    That is not sure where SQLite makes an integer a real number, the row id fills in, or a generated column is stored.
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


def _read_all(path: Path, tables: Sequence[_Table]) -> dict[str, pa.Table]:
    """The rows of all tables."""
    done, total = 0, sum(table.most_rows for table in tables)
    plain = [table for table in tables if table.is_plain]
    found: dict[str, pa.Table] = {}
    if sum(table.most_rows for table in plain) >= _MANY_ROWS:
        for table in plain:
            if (rows := _read_plain(path, table, done, total)) is not None:
                found[table.name] = nsys.typed(rows, table.name)
                done += len(rows)
    parts = [part for table in tables if table.name not in found for part in table.parts()]
    found |= {name: rows.table() for name, rows in _fetch_all(path, parts, done, total).items()}
    return {table.name: found[table.name] for table in tables}


def _read_plain(path: Path, table: _Table, done: int, total: int) -> pa.Table | None:
    from tracer.formats.sqlite_pages import read_integers  # and Numba, which takes a third of a second

    assert table.root is not None
    assert table.rowids is not None
    columns = [column if column in table.wanted else None for column in table.columns]
    return read_integers(path, table.root, table.rowids, columns, lambda rows: tell(done + rows, total))


def _fetch_all(path: Path, parts: Sequence[_Part], done: int, total: int) -> dict[str, JoinedRows]:
    """The rows of all parts, by table, after `done` rows of `total`.

    Each connection parses the schema, so each worker has one.
    """
    tables = {part.table: JoinedRows(part.most_rows) for part in parts}
    with ExitStack() as stack, ThreadPoolExecutor(_WORKERS) as pool:
        free: SimpleQueue[Any] = SimpleQueue()
        left = {part.table: part.most_rows for part in parts}
        for _ in range(min(_WORKERS, len(parts))):
            free.put(stack.enter_context(_connect(path)))

        def fetch(part: _Part) -> pa.Table:
            connection = free.get()
            try:
                chunk = _fetch(connection, part)
            finally:
                free.put(connection)
            return nsys.typed(chunk, part.table)

        for part, chunk in zip(parts, pool.map(fetch, parts), strict=True):
            left[part.table] -= len(chunk)  # in order, so that the same damage is always told alike
            if left[part.table] < 0:
                raise FormatError(f"is damaged: table {part.table} gives more rows than it has")
            tables[part.table].add(chunk, _NUMBERS.get(part.table, frozenset()))
            done += len(chunk)
            tell(done, total)
    return tables


def _fetch(connection: Any, part: _Part) -> pa.Table:
    # ADBC guesses a column's type from the first batch: a chunk is one batch.
    rows = part.most_rows + 1
    with connection.cursor() as cursor:
        cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(rows)})
        cursor.execute(f"{part.sql} LIMIT {rows}")
        table: pa.Table = cursor.fetch_arrow_table()
        return table


def _connect(path: Path) -> Any:
    return sqlite.connect(f"file://{quote(os.fspath(path.absolute()))}?mode=ro&immutable=1")


def _rows(connection: Any, sql: str) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        rows: list[Any] = cursor.fetchall()
        return rows


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _starts_with_magic(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def _check_size(path: Path) -> None:
    """Compare the size with the header (page size at byte 16, page count at byte 28, big-endian)."""
    with path.open("rb") as file:
        header = file.read(32)
    size = path.stat().st_size
    page = int.from_bytes(header[16:18], "big")
    expected = (65536 if page == 1 else page) * int.from_bytes(header[28:32], "big")
    if size < max(expected, 512):
        raise FormatError(f"{path}: is truncated ({size} bytes of {max(expected, 512)})")


def _reason(error: Exception) -> str:
    """What SQLite says, without ADBC's words around it."""
    return str(error).splitlines()[0].rpartition(" query: ")[2]


register(Format("nsys SQLite export", _SUFFIXES[0], sniff, read, write, aliases=_SUFFIXES[1:], options=WHOLE))
