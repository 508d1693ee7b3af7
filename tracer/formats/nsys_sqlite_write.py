"""Trace -> SQLite export in Nsight Systems' own schema, so that its reports, rules and other readers can open it.

As in nsys's exports, there is a table only if it has rows, and every ENUM_ table. Columns that a trace does not know
are NULL. Where nsys declares NOT NULL, the value is `MISSING` if a trace could know it, and `nsys_schema.filler` if no
trace has it. Carried columns keep their values and types, whatever nsys declares.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from tracer.errors import TraceError
from tracer.files.output import appearing
from tracer.formats import nsys_schema as nsys
from tracer.formats.nsys_changed import without_what_changed
from tracer.formats.nsys_schema import SqlColumn
from tracer.formats.nsys_sqlite_tables import cursor_of
from tracer.formats.nsys_tables import from_trace
from tracer.model.schema import CARRIED, MISSING, TABLES
from tracer.model.trace import Trace
from tracer.progress import tell

_PART: Final = 1 << 18  # rows

# No journal and no flushing: the file has a temporary name until it is complete.
_PRAGMAS: Final = ("journal_mode = OFF", "synchronous = OFF", "locking_mode = EXCLUSIVE")
_LARGE_PAGES: Final = "page_size = 32768"  # bytes; even a small table takes a page
_MANY_ROWS: Final = 1 << 20


def write(trace: Trace, path: Path) -> None:
    """Write an export. It appears complete or not at all.

    Raises:
        TraceError: the path exists or cannot be written.
    """
    from adbc_driver_manager import dbapi

    try:
        with appearing(path) as partial:
            partial.touch()  # the system's error message is clearer than SQLite's
            _write_tables(trace, partial)
            with partial.open("rb") as file:
                os.fsync(file.fileno())
    except dbapi.Error as error:
        reason = str(error).splitlines()[0].rpartition(": ")[2]  # without ADBC's additions
        if "unknown error" in reason:  # ADBC before 1.13 loses what SQLite said
            reason = "SQLite does not say why; is the disk full?"
        raise TraceError(f"{path}: cannot be written: {reason}") from error


def _write_tables(trace: Trace, path: Path) -> None:
    from adbc_driver_sqlite import dbapi as sqlite

    trace = without_what_changed(trace)
    tables = from_trace(trace, with_run=True)
    uri = f"file:{quote(os.fspath(path.absolute()))}?mode=rwc"
    done, total = 0, sum(map(len, [*trace.tables.values(), *trace.carried.values()]))
    with sqlite.connect(uri, autocommit=True) as connection, cursor_of(connection) as cursor:
        for pragma in (*_PRAGMAS, *[_LARGE_PAGES] * (total > _MANY_ROWS)):
            cursor.execute(f"PRAGMA {pragma}").fetchall()
        cursor.execute("BEGIN")
        for name in nsys.ENUMS.keys() - tables.keys():
            sum(_write_table(cursor, name, nsys.enum_table(name), frozenset()))
        for name, make in tables.items():
            for rows in _write_table(cursor, name, make(), _carried(trace, name), name in trace.carried):
                done += rows
                tell(done, total)
        cursor.execute("COMMIT")


def _carried(trace: Trace, name: str) -> frozenset[str]:
    """The columns of an nsys table that are written back unchanged."""
    frames = [trace[table.name] for table in TABLES.values() if table.nsys == name]
    columns = {str(c).removeprefix(CARRIED) for frame in frames for c in frame if str(c).startswith(CARRIED)}
    return frozenset(columns.union(trace.carried[name].column_names if name in trace.carried else ()))


def _write_table(
    cursor: Any, name: str, table: pa.Table, carried: frozenset[str], whole: bool = False
) -> Iterator[int]:
    """Write a table in parts, and yield the number of rows of each.

    Args:
        cursor: of the file.
        name: the nsys table.
        table: its rows.
        carried: columns that are written unchanged.
        whole: whether the table is carried as a whole, and so gets no additional columns.
    """
    declared = nsys.SQL_COLUMNS.get(name, nsys.ENUM_COLUMNS if name in nsys.ENUMS else [])
    known = {column.name for column in declared}
    extra = [SqlColumn(field.name, _affinity(field.type)) for field in table.schema if field.name not in known]
    declared = [column for column in declared if not whole or column.name in table.column_names] + extra
    declared = [_fitting(column, table[column.name]) if column.name in carried else column for column in declared]
    cursor.execute(f'CREATE TABLE "{name}" ({", ".join(_declaration(column) for column in declared)})')
    given = {c.name: _values(table[c.name], c) for c in declared if c.name in table.column_names}
    # Constant columns need not be bound per row; the first column always is, so that there are rows to bind.
    constant = {column: value for column in [*given][1:] if (value := _constant(given[column])) is not None}
    constant |= {c.name: repr(nsys.filler(name, c.name)) for c in declared if c.not_null and c.name not in given}
    rows = pa.table({column: values for column, values in given.items() if column not in constant})
    columns = ", ".join(f'"{column}"' for column in [*rows.column_names, *constant])
    values = ", ".join([*"?" * rows.num_columns, *constant.values()])
    for first in range(0, len(rows), _PART):
        part = rows.slice(first, _PART)
        cursor.executemany(f'INSERT INTO "{name}" ({columns}) VALUES ({values})', part)
        yield len(part)


def _fitting(column: SqlColumn, values: pa.ChunkedArray) -> SqlColumn:
    """The column declared as in nsys, as far as its values allow."""
    if pa.types.is_null(values.type):
        return replace(column, not_null=False, primary_key=False)
    unique = column.primary_key and not values.null_count and len(values.unique()) == len(values)
    return replace(column, type=_affinity(values.type), not_null=column.not_null and not values.null_count,
                   primary_key=unique and pa.types.is_integer(values.type))  # fmt: skip


def _declaration(column: SqlColumn) -> str:
    return f'"{column.name}" {column.type}{" NOT NULL" * column.not_null}{" PRIMARY KEY" * column.primary_key}'


def _affinity(type: pa.DataType) -> str:
    if pa.types.is_integer(type) or pa.types.is_boolean(type):
        return "INTEGER"
    if pa.types.is_floating(type):
        return "REAL"
    return "BLOB" if pa.types.is_binary(type) or pa.types.is_large_binary(type) else "TEXT"


def _constant(values: pa.ChunkedArray) -> str | None:
    """The value of a constant column as SQL, if it is NULL or an integer; else None."""
    if values.null_count == len(values):
        return "NULL"
    if values.null_count or not pa.types.is_integer(values.type):
        return None
    lowest, highest = pc.min_max(values).as_py().values()
    return str(lowest) if lowest == highest else None


def _values(values: pa.ChunkedArray, column: SqlColumn) -> pa.ChunkedArray:
    if pa.types.is_null(values.type):
        return values.cast(pa.int64())
    if pa.types.is_unsigned_integer(values.type):
        values = values.cast(pa.int64(), safe=False)  # SQLite has no unsigned numbers; nsys also keeps the bits
    if not column.not_null or not values.null_count:
        return values
    return values.fill_null("" if pa.types.is_string(values.type) else MISSING)
