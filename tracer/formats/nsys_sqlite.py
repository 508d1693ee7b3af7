"""Nsight Systems SQLite exports (`nsys export --type sqlite`), read through Arrow and written.

1. `read`: the file is opened read-only and immutable. Only real tables are read, by name: no SQL from the file is
   executed.
2. `find_tables`: the tables, the queries that read them, and the Arrow tables that their rows become (`JoinedRows`).
   Views and virtual tables are never read; a note names those that stand in place of nsys's tables. Touching new memory
   dominates the time for large tables. Therefore numbers are copied only once, from a chunk that ADBC reads to their
   final position in a contiguous column, which NumPy and pandas can share, and columns that are NULL throughout take no
   memory.
3. `write`: in Nsight Systems' own schema, so that its reports, rules and other readers can open it. As in nsys's
   exports, there is a table only if it has rows, and every ENUM_ table. Columns that a trace does not know are NULL.
   Where nsys declares NOT NULL, the value is `MISSING` if a trace could know it, and `nsys_schema.filler` if no trace
   has it. Carried columns keep their values and types, whatever nsys declares.
4. `read_report`: Nsight Systems reports (.nsys-rep): read only, through a temporary SQLite export (`nsys export`).
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
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
import pyarrow.compute as pc
from numpy.typing import NDArray

from tracer.errors import FormatError, TraceError, printable
from tracer.files.others import of_database
from tracer.files.output import appearing
from tracer.formats import WHOLE, Format
from tracer.formats import nsys_schema as nsys
from tracer.formats.nsys import plainly_named, to_trace, typed, without_what_changed
from tracer.formats.nsys_schema import COLUMNS, SAMPLED, SqlColumn, read_first
from tracer.formats.nsys_tables import from_trace
from tracer.model.schema import CARRIED, MISSING, NO_TABLES, TABLES, unread_note
from tracer.model.trace import Trace
from tracer.progress import tell

_MAGIC: Final = b"SQLite format 3\0"
_SUFFIXES: Final = (".sqlite", ".sqlite3", ".db")
_WORTH_PAGES: Final = 3 << 20  # of integers; from here on, reading pages saves more time than compiling takes
_NUMBERS: Final = {
    table: frozenset(name for name, type in columns.items() if pa.types.is_integer(type))
    for table, columns in COLUMNS.items()
}
_WORKERS: Final = 2  # ADBC reads outside the interpreter lock: two halve the time on the two cores we measured


def sniff(path: Path) -> bool:
    """Whether the file is SQLite or has its suffix (`read` then reports what is wrong with it)."""
    return path.is_file() and (_starts_with_magic(path) or path.suffix.lower() in _SUFFIXES)


def read(path: Path, *, whole: bool = False, samples: bool = False) -> Trace:
    """Read an export. Missing tables are empty in the trace. `whole` lets the trace carry all other data. Samples are
    read only with `samples` or `whole`.

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
    from adbc_driver_manager import dbapi  # only here: other formats start faster without it

    try:
        with _connect(path) as connection:
            left_out, notes = [] if left_out is None else left_out, [] if notes is None else notes
            tables = list(find_tables(connection, path.stat().st_size, only, left_out, notes))
        return _read_all(path, tables)
    except MemoryError:  # Arrow's is also an ArrowException
        raise
    except (dbapi.Error, pa.ArrowException) as error:
        reason = str(error).splitlines()[0].rpartition(" query: ")[2]  # without ADBC's additions
        raise FormatError(f"SQLite cannot read it: {reason}") from error
    except UnicodeDecodeError as error:
        raise FormatError(f"the name of a table or column is not UTF-8: {error.object[:40]!r}") from error


def _read_all(path: Path, tables: Sequence[StoredTable]) -> dict[str, pa.Table]:
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
        return cursor.fetch_arrow_table()


def _connect(path: Path) -> Any:
    from adbc_driver_sqlite import dbapi as sqlite

    connection = sqlite.connect(f"file://{quote(os.fspath(path.absolute()))}?mode=ro&immutable=1")
    with cursor_of(connection) as cursor:  # else SQLite may read a damaged row beyond its page, as whatever is there
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
    stored: nsys.Versioned
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


def find_tables(
    connection: Any, size: int, only: frozenset[str] | None, left_out: list[str], notes: list[str]
) -> Iterator[StoredTable]:
    """The tables to read from a file of `size` bytes; the other parameters are those of `read_tables`.

    Raises:
        FormatError: not an export, damaged, or it would take more memory than its size justifies.
    """
    roots = _real_tables(connection)
    versions = nsys.newest_versions(roots, lambda name: _columns(connection, name)[0], notes)
    plain = roots.keys() - {version.name for version in versions.values()}
    stored = {name: nsys.Versioned(name) for name in plain} | versions
    others = _no_tables(connection, (COLUMNS.keys() if only is None else only) - stored.keys())
    if not stored.keys() & COLUMNS.keys():
        why = others[0] if others else "it has none of nsys's tables"
        raise FormatError(of_database(roots) or f"an SQLite file, but not an nsys export ({why})")
    notes += others
    rows, values = _rows_of_tables(connection, size), 0
    for name in sorted(stored if only is None else stored.keys() & only):
        table = stored[name]
        columns, integers = map(table.known, _columns(connection, table.name))
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
            yield _with_rowids(connection, chosen)


def _with_rowids(connection: Any, table: StoredTable) -> StoredTable:
    """The table with its range of rowids, if it has rowids and more rows than a chunk."""
    from adbc_driver_manager import dbapi

    rowid = next(iter({"rowid", "_rowid_", "oid"} - {column.casefold() for column in table.columns}), None)
    low = high = None
    if rowid is not None and table.most_rows > _CHUNK:
        stored = _name(table.stored.name)
        bounds = (f"(SELECT {end}({rowid}) FROM {stored})" for end in ("min", "max"))  # one each: no scan
        with suppress(dbapi.ProgrammingError):  # WITHOUT ROWID
            ((low, high),) = _rows(connection, f"SELECT {', '.join(bounds)}")
    if low is None or high is None or low > high:  # `low > high` in a damaged tree
        return table
    return replace(table, rowid=rowid, rowids=(low, high))


def _real_tables(connection: Any) -> dict[str, int | None]:
    """The tables and the numbers of their root pages. Views and virtual tables are excluded: reading them would run SQL
    or code from the file. They have no root page, or their SQL does not create a table."""
    root = "CASE WHEN typeof(rootpage) = 'integer' THEN rootpage END"
    sql = f"""SELECT CAST(name AS TEXT), CAST(sql AS TEXT), {root} FROM main.sqlite_master
        WHERE type = 'table' AND rootpage > 0 AND name NOT NULL AND sql NOT NULL"""
    roots = {name: root for name, made_by, root in _rows(connection, sql) if _creates(name, made_by)}
    if len(roots) > _MOST_TABLES:
        raise FormatError(f"has {len(roots)} tables; exports have about a hundred")
    return roots


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
    """An upper bound on the number of rows of each table. Raises FormatError if pages or rows are used more than once,
    which would make a small file a huge recording."""
    most_pages = size // 512 + 1  # of the smallest size
    walk = f"SELECT name, pagetype, ncell, payload, pgsize FROM main.dbstat LIMIT {most_pages}"
    rows = "CASE WHEN pagetype = 'internal' AND payload = 0 THEN 0 ELSE ncell END"
    sums = f"SELECT name, sum({rows}), sum(payload), sum(pgsize) FROM ({walk}) GROUP BY name"
    most_rows: Counter[str] = Counter()
    used = 0
    for name, cells, payload, pages in _rows(connection, sums):
        most_rows[name] = cells
        used += max(pages, payload)
    if used > size:
        raise FormatError("damaged: pages or rows in it are used more than once")
    return most_rows


def _columns(connection: Any, table: str) -> tuple[list[str], frozenset[str]]:
    """The stored columns (not generated ones), and those whose values are guaranteed to be the integers stored in the
    rows. That is uncertain if SQLite converts integers to reals, a rowid replaces the value, or a generated column is
    stored."""
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
        return cursor.fetchall()


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
