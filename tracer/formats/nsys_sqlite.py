"""Nsight Systems SQLite exports (`nsys export --type sqlite`), read through Arrow; written by `nsys_sqlite_write`.

The file is opened read-only and immutable, and only real tables are read, by name: nothing in it is executed.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
from adbc_driver_manager import dbapi
from adbc_driver_sqlite import dbapi as sqlite

from tracer.errors import FormatError
from tracer.formats import WHOLE, Format, nsys, register
from tracer.formats.nsys_schema import COLUMNS
from tracer.formats.nsys_sqlite_write import write
from tracer.trace import Trace

_MAGIC: Final = b"SQLite format 3\0"
_SUFFIXES: Final = (".sqlite", ".sqlite3", ".db")
_CHUNK: Final = 1 << 16  # rows; large enough to be fast, small enough to keep both threads busy
_MOST_CHUNKS: Final = 256
_ALL_ROWS: Final = 1 << 62
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
        return nsys.to_trace(read_tables(path, None if whole else frozenset(COLUMNS)), whole=whole)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from error


def read_tables(path: Path, only: frozenset[str] | None = frozenset(COLUMNS)) -> dict[str, pa.Table]:
    """Tables of an export as Arrow, with the columns and types of `nsys_schema.COLUMNS`; every table if `only` is None.

    Raises:
        FormatError: SQLite cannot read it, or a column holds the wrong kind of values.
    """
    try:
        parts = list(_parts(path, only))
        with ThreadPoolExecutor(_WORKERS) as pool:
            chunks = deque(pool.map(lambda part: _fetch(path, *part), parts))
    except (dbapi.Error, pa.ArrowException) as error:
        raise FormatError(f"SQLite cannot read it: {_reason(error)}") from error
    tables: dict[str, list[pa.Table]] = {}
    for name, *_ in parts:
        tables.setdefault(name, []).append(nsys.typed(chunks.popleft(), name))
    return {name: _in_one_piece(tables.pop(name)) for name in list(tables)}


def _in_one_piece(chunks: list[pa.Table]) -> pa.Table:
    """One table with one array a column, which NumPy can share; each column's chunks go as soon as they are joined."""
    joined = pa.concat_tables(chunks, promote_options="permissive")
    chunks.clear()
    columns = dict(zip(joined.column_names, joined.columns, strict=True))
    del joined
    return pa.table({name: columns.pop(name).combine_chunks() for name in list(columns)})


def _parts(path: Path, only: frozenset[str] | None) -> Iterator[tuple[str, str, int]]:
    """(table, SQL, most rows) for each chunk of rows of each table."""
    with _connect(path) as connection:
        tables = _real_tables(connection)
        if not tables.keys() & COLUMNS.keys():
            raise FormatError("is an SQLite file but no nsys export (it has none of nsys's tables)")
        for table in sorted(tables if only is None else tables.keys() & only):
            have = [name for (name,) in _rows(connection, f"SELECT name FROM pragma_table_info({_text(table)})")]
            columns = ", ".join(_name(column) for column in have if only is None or column in COLUMNS[table])
            if not columns:
                continue
            sql = f"SELECT {columns} FROM {_name(table)}"
            if not tables[table]:
                yield table, sql, _ALL_ROWS
                continue
            bounds = (f"(SELECT {end}(rowid) FROM {_name(table)})" for end in ("min", "max"))  # one each: no scan
            ((low, high),) = _rows(connection, f"SELECT {', '.join(bounds)}")
            if low is None:
                continue
            step = max(_CHUNK, -(-(high - low + 1) // _MOST_CHUNKS))
            for first in range(low, high + 1, step):
                yield table, f"{sql} WHERE rowid BETWEEN {first} AND {min(high, first + step - 1)}", step


def _real_tables(connection: Any) -> dict[str, bool]:
    """The tables, and whether each has row ids.

    A view or virtual table has no root page: reading it would run SQL or code from the file.
    """
    sql = """SELECT m.name, NOT l.wr FROM sqlite_master AS m JOIN pragma_table_list AS l ON l.name = m.name
        WHERE m.type = 'table' AND m.rootpage > 0 AND l.schema = 'main' AND m.name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"""
    return {name: bool(rowid) for name, rowid in _rows(connection, sql)}


def _fetch(path: Path, table: str, sql: str, rows: int) -> pa.Table:
    # ADBC guesses a column's type from the first batch: a chunk is one batch. No row has less than 4 bytes.
    batch = min(rows, path.stat().st_size // 4)
    with _connect(path) as connection, connection.cursor() as cursor:
        cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(batch)})
        cursor.execute(sql)
        return _copied(cursor.fetch_arrow_table())


def _copied(table: pa.Table) -> pa.Table:
    """The same in Arrow's memory: the driver's buffers have room to grow, and their memory is not given back."""
    columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        array = column.combine_chunks()
        columns[name] = pa.concat_arrays([array[:1], array[1:]])  # two, since of one it returns the same
    return pa.table(columns)


def _connect(path: Path) -> Any:
    return sqlite.connect(f"file:{quote(os.fspath(path.absolute()))}?mode=ro&immutable=1")


def _rows(connection: Any, sql: str) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        rows: list[Any] = cursor.fetchall()
        return rows


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


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
    """What SQLite says, without ADBC's words around it; it may quote bytes of the file."""
    line = str(error).splitlines()[0].rpartition(" query: ")[2]
    return "".join(c if c.isprintable() else "?" for c in line)


register(Format("nsys SQLite export", _SUFFIXES[0], sniff, read, write, aliases=_SUFFIXES[1:], options=WHOLE))
