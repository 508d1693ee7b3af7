"""Nsight Systems SQLite exports (`nsys export --type sqlite`), read through Arrow and written.

1. `read`: `find_tables` finds nsys's tables, and a note names the views and virtual tables that stand in place of some;
   how they are read is in `sqlite_tables`.
2. `write`: in Nsight Systems' own schema, so that its reports, rules and other readers can open it. As in nsys's
   exports, there is a table only if it has rows, and every ENUM_ table. Columns that a trace does not know are NULL.
   Where nsys declares NOT NULL, the value is `MISSING` if a trace could know it, and `nsys_schema.filler` if no trace
   has it. Carried columns keep their values and types, whatever nsys declares.
3. `read_report`: Nsight Systems reports (.nsys-rep): read only, through a temporary SQLite export (`nsys export`).
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from tracer.errors import FormatError, TraceError, printable
from tracer.files.others import of_database
from tracer.files.output import appearing
from tracer.formats import WHOLE, Format
from tracer.formats import nsys_schema as nsys
from tracer.formats.nsys import plainly_named, to_trace, without_what_changed
from tracer.formats.nsys_schema import COLUMNS, SAMPLED, SqlColumn, read_first
from tracer.formats.nsys_tables import from_trace
from tracer.formats.sqlite_tables import (
    StoredTable,
    check_size,
    columns_of,
    connect,
    cursor_of,
    read_all,
    real_tables,
    rows_of,
    rows_of_tables,
    said_briefly,
    starts_with_magic,
    with_rowids,
)
from tracer.model.schema import CARRIED, MISSING, NO_TABLES, TABLES, unread_note
from tracer.model.trace import Trace
from tracer.progress import tell

_SUFFIXES: Final = (".sqlite", ".sqlite3", ".db")


def sniff(path: Path) -> bool:
    """Whether the file is SQLite or has its suffix (`read` then reports what is wrong with it)."""
    return path.is_file() and (starts_with_magic(path) or path.suffix.lower() in _SUFFIXES)


def read(path: Path, *, whole: bool = False, samples: bool = False) -> Trace:
    """Read an export. Missing tables are empty in the trace. `whole` lets the trace carry all other data. Samples are
    read only with `samples` or `whole`.

    Raises:
        FormatError: not SQLite, not an nsys export, truncated or damaged.
    """
    if not starts_with_magic(path):
        raise FormatError(f"{path}: not an SQLite file (its first bytes are wrong)")
    check_size(path)
    try:
        left_out: list[str] = []
        notes: list[str] = []
        tables = read_tables(path, None if whole else read_first(samples), left_out, notes)
        trace = to_trace(tables, whole=whole, samples=samples, left_out=left_out)
        trace.notes += [note for note in notes if note not in trace.notes]
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
    """Read tables of an export as Arrow, with the columns and types of `nsys_schema.COLUMNS`: `only` some of them, or
    for None every table and column. `left_out` receives the names of tables and columns that are not read because of
    their names, `notes` one on each of nsys's tables that is a view or a virtual table, which is not read.

    Raises:
        FormatError: SQLite cannot read it, it would take more memory than its size justifies, or a column holds the
            wrong kind of values.
    """
    left_out, notes = [] if left_out is None else left_out, [] if notes is None else notes
    with said_briefly():
        with connect(path) as connection:
            tables = list(find_tables(connection, path.stat().st_size, only, left_out, notes))
        return read_all(path, tables)


def find_tables(
    connection: Any, size: int, only: frozenset[str] | None, left_out: list[str], notes: list[str]
) -> Iterator[StoredTable]:
    """The tables to read from a file of `size` bytes; the other parameters are those of `read_tables`.

    Raises:
        FormatError: not an export, damaged, or it would take more memory than its size justifies.
    """
    roots = real_tables(connection)
    versions = nsys.newest_versions(roots, lambda name: columns_of(connection, name)[0], notes)
    plain = roots.keys() - {version.name for version in versions.values()}
    stored = {name: nsys.Versioned(name) for name in plain} | versions
    others = _no_tables(connection, (COLUMNS.keys() if only is None else only) - stored.keys())
    if not stored.keys() & COLUMNS.keys():
        why = others[0] if others else "it has none of nsys's tables"
        raise FormatError(of_database(roots) or f"an SQLite file, but not an nsys export ({why})")
    notes += others
    rows, values = rows_of_tables(connection, size), 0
    for name in sorted(stored if only is None else stored.keys() & only):
        table = stored[name]
        columns, integers = map(table.known, columns_of(connection, table.name))
        if only is None:
            wanted = plainly_named(name, columns, left_out)
        else:
            wanted = [column for column in columns if column in COLUMNS[name]]
        most = rows[table.name]
        values += most * len(wanted)
        if values > size:  # even NULL takes a byte
            raise FormatError(f"damaged: table {name} claims {most} rows, more than fit into the file")
        if wanted:
            chosen = StoredTable(name, table, roots[table.name], columns, frozenset(integers), wanted, most)
            yield with_rowids(connection, chosen)


def _no_tables(connection: Any, names: Collection[str]) -> list[str]:
    """A note on each of these names that is that of a view or a virtual table."""
    sql = f"""SELECT DISTINCT CAST(name AS TEXT), type = 'view' FROM main.sqlite_master
        WHERE name IN ({", ".join(f"'{name}'" for name in sorted(names))})
        AND (type = 'view' OR type = 'table' AND sql LIKE 'CREATE VIRTUAL TABLE%') ORDER BY name"""
    view, virtual = NO_TABLES
    return [unread_note(name, view if is_view else virtual) for name, is_view in rows_of(connection, sql)]


_PART: Final = 1 << 18  # rows

# No journal and no flushing: the file has a temporary name until it is complete.
_PRAGMAS: Final = ("journal_mode = OFF", "synchronous = OFF", "locking_mode = EXCLUSIVE")
_LARGE_PAGES: Final = "page_size = 32768"  # bytes; even a small table takes a page
_WORTH_LARGE_PAGES: Final = 1 << 20


def write(trace: Trace, path: Path) -> None:
    """Write an export. It appears complete or not at all. Raises TraceError if the path exists or cannot be written."""
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
        for pragma in (*_PRAGMAS, *[_LARGE_PAGES] * (total > _WORTH_LARGE_PAGES)):
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
    """Write a table in parts, and yield the number of rows of each. The `carried` columns are written unchanged; a
    table that is carried as a `whole` gets no additional columns."""
    declared = nsys.SQL_COLUMNS.get(name, nsys.ENUM_COLUMNS if name in nsys.ENUMS else [])
    known = {column.name for column in declared}
    extra = [SqlColumn(field.name, _affinity(field.type)) for field in table.schema if field.name not in known]
    declared = [column for column in declared if not whole or column.name in table.column_names] + extra
    declared = [_fitting(column, table[column.name]) if column.name in carried else column for column in declared]
    columns = ", ".join(
        f'"{c.name}" {c.type}{" NOT NULL" * c.not_null}{" PRIMARY KEY" * c.primary_key}' for c in declared
    )
    cursor.execute(f'CREATE TABLE "{name}" ({columns})')
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


_STACKS: Final = "--include-json=true"
"""Without it, samples of Python have no stacks (`nsys.python_samples`)."""


def sniff_report(path: Path) -> bool:
    """Whether the file has the suffix of a report; the format of its content is not documented."""
    return path.is_file() and path.suffix.lower() == ".nsys-rep"


def read_report(path: Path, *, whole: bool = False, samples: bool = False) -> Trace:
    """Read a report. `whole` lets the trace carry all of its data. Samples are read only with `samples` or
    `whole`.

    Raises:
        FormatError: nsys is not on PATH (the message says what to run where it is installed), or cannot read the file.
    """
    with tempfile.TemporaryDirectory(prefix="intertoken-") as directory:
        export = Path(directory) / "export.sqlite"
        try:
            done = _export_report(path, export, *([_STACKS] if whole or samples else []))
            if done.returncode and (whole or samples):  # it may be too old to know that option
                done = _export_report(path, export)
        except OSError as error:
            raise FormatError(
                f"{path}: reading a .nsys-rep needs nsys on PATH; on a machine that has it, run "
                f"`nsys export --type sqlite -o {path.with_suffix('.sqlite').name} {path.name}` and open the result"
            ) from error
        if done.returncode or not export.exists():
            output = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
            raise FormatError(f"{path}: nsys export failed (exit code {done.returncode}): {output}")
        try:
            return read(export, whole=whole, samples=samples)
        except FormatError as error:
            raise FormatError(str(error).replace(str(export), str(path))) from error


def _export_report(path: Path, export: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = ("nsys", "export", "--type", "sqlite", *options, "--force-overwrite", "true", "-o", str(export))
    given = (*command, str(path.absolute()))
    return subprocess.run(given, check=False, capture_output=True, text=True, errors="replace")


FORMAT: Final = Format(
    "nsys SQLite export", _SUFFIXES[0], sniff, read, write,
    aliases=_SUFFIXES[1:], options=WHOLE | {SAMPLED},
)  # fmt: skip


REPORT: Final = Format("Nsight Systems report", ".nsys-rep", sniff_report, read_report, options=WHOLE | {SAMPLED})
