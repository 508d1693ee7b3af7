"""Nsight Systems SQLite exports (`nsys export --type sqlite`), read through Arrow; written by `nsys_sqlite_write`.

The file is opened read-only and immutable. Only real tables are read, by name: no SQL from the file is executed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa

from tracer.errors import FormatError, printable
from tracer.formats import WHOLE, Format, nsys
from tracer.formats.nsys_columns import typed
from tracer.formats.nsys_schema import COLUMNS, SAMPLED, read_first
from tracer.formats.nsys_sqlite_tables import JoinedRows, RowRange, StoredTable, cursor_of, find_tables
from tracer.formats.nsys_sqlite_write import write
from tracer.model.trace import Trace
from tracer.progress import tell

_MAGIC: Final = b"SQLite format 3\0"
_SUFFIXES: Final = (".sqlite", ".sqlite3", ".db")
_MANY_ROWS: Final = 3 << 20  # of integers; from here on, reading pages saves more time than compiling takes
_NUMBERS: Final = {
    table: frozenset(name for name, type in columns.items() if pa.types.is_integer(type))
    for table, columns in COLUMNS.items()
}
_WORKERS: Final = 2  # ADBC reads outside the interpreter lock: two halve the time on the two cores we measured


def sniff(path: Path) -> bool:
    """Whether the file is SQLite or has its suffix (`read` then reports what is wrong with it)."""
    return path.is_file() and (_starts_with_magic(path) or path.suffix.lower() in _SUFFIXES)


def read(path: Path, *, whole: bool = False, samples: bool = False) -> Trace:
    """Read an export. Missing tables are empty in the trace. `whole` lets the trace carry all other data.

    Samples are read only with `samples` or `whole`.

    Raises:
        FormatError: not SQLite, not an nsys export, truncated or damaged.
    """
    if not _starts_with_magic(path):
        raise FormatError(f"{path}: not an SQLite file (its first bytes are wrong)")
    _check_size(path)
    try:
        left_out: list[str] = []
        notes: list[str] = []
        tables = read_tables(path, None if whole else read_first(samples), left_out, notes)
        trace = nsys.to_trace(tables, whole=whole, samples=samples, left_out=left_out)
        trace.notes += notes
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from error
    for unread in (path.with_name(f"{path.name}-{kind}") for kind in ("wal", "journal")):
        if unread.is_file() and unread.stat().st_size:
            trace.notes.append(f"changes that are still in {printable(unread.name)} are not read")
    return trace


def read_tables(
    path: Path, only: frozenset[str] | None = frozenset(COLUMNS), left_out: list[str] | None = None,
    notes: list[str] | None = None,
) -> dict[str, pa.Table]:  # fmt: skip
    """Read tables of an export as Arrow, with the columns and types of `nsys_schema.COLUMNS`.

    Args:
        path: the export.
        only: the tables to read; None for every table and column.
        left_out: receives the names of tables and columns that are not read because of their names.
        notes: receives a note on each of nsys's tables that is a view or a virtual table, which is not read.

    Raises:
        FormatError: SQLite cannot read it, it would take more memory than its size justifies, or a column holds the
            wrong kind of values.
    """
    from adbc_driver_manager import dbapi  # only here: other formats start faster without it

    try:
        with _connect(path) as connection:
            left_out, notes = [] if left_out is None else left_out, [] if notes is None else notes
            found = list(find_tables(connection, path.stat().st_size, only, left_out, notes))
        return _read_all(path, found)
    except MemoryError:  # Arrow's is also an ArrowException
        raise
    except (dbapi.Error, pa.ArrowException) as error:
        raise FormatError(f"SQLite cannot read it: {_reason(error)}") from error
    except UnicodeDecodeError as error:
        raise FormatError(f"the name of a table or column is not UTF-8: {error.object[:40]!r}") from error


def _read_all(path: Path, tables: Sequence[StoredTable]) -> dict[str, pa.Table]:
    """The rows of all tables."""
    done, total = 0, sum(table.most_rows for table in tables)
    plain = [table for table in tables if table.is_plain]
    found: dict[str, pa.Table] = {}
    if sum(table.most_rows for table in plain) >= _MANY_ROWS:
        for table in plain:
            if (rows := _read_plain(path, table, done, total)) is not None:
                found[table.name] = typed(rows, table.name)
                done += len(rows)
    parts = [part for table in tables if table.name not in found for part in table.parts()]
    found |= {name: rows.table() for name, rows in _fetch_all(path, parts, done, total).items()}
    return {table.name: found[table.name] for table in tables}


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
            free.put(stack.enter_context(_connect(path)))

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
        table: pa.Table = cursor.fetch_arrow_table()
        return table


def _connect(path: Path) -> Any:
    from adbc_driver_sqlite import dbapi as sqlite

    connection = sqlite.connect(f"file://{quote(os.fspath(path.absolute()))}?mode=ro&immutable=1")
    with cursor_of(
        connection
    ) as cursor:  # otherwise SQLite may read a damaged row beyond its page, as whatever is there
        cursor.execute("PRAGMA cell_size_check = ON")
    return connection


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
        raise FormatError(f"{path}: truncated ({size} bytes of {max(expected, 512)})")


def _reason(error: Exception) -> str:
    """SQLite's message without ADBC's additions."""
    return str(error).splitlines()[0].rpartition(" query: ")[2]


FORMAT: Final = Format(
    "nsys SQLite export", _SUFFIXES[0], sniff, read, write,
    aliases=_SUFFIXES[1:], options=WHOLE | {SAMPLED}, generality=1,
)  # fmt: skip
