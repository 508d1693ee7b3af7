"""The tables of an SQLite export, and what SQLite may be asked of them: nothing that is only called a table is read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from adbc_driver_manager import dbapi

from tracer.errors import FormatError
from tracer.formats.nsys_carry import plainly_named
from tracer.formats.nsys_schema import COLUMNS
from tracer.formats.sqlite_cursor import cursor_of

_CHUNK: Final = 1 << 16  # rows; large enough to be fast, small enough to keep both threads busy
_MOST_TABLES: Final = 2000
_LONGEST_DEFAULT: Final = 16  # characters; a row need not store it
_CREATE: Final = re.compile(
    r"""CREATE TABLE\s+(?:(\w+)|("(?:[^"]|"")+"|'(?:[^']|'')+'|`(?:[^`]|``)+`|\[[^]]+]))\s*\("""
)


@dataclass(frozen=True, slots=True)
class Table:
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

    def parts(self) -> Iterator[Part]:
        """Its rows, by ranges of row ids."""
        sql = f"SELECT {', '.join(map(_name, self.wanted))} FROM {_name(self.name)} NOT INDEXED"
        if self.rowids is None:
            yield Part(self.name, sql, self.most_rows)
            return
        low, high = self.rowids
        step = max(_CHUNK, -(-(high - low + 1) // -(-self.most_rows // _CHUNK)))
        for first in range(low, high + 1, step):
            last = min(high, first + step - 1)
            yield Part(self.name, f"{sql} WHERE {self.rowid} BETWEEN {first} AND {last}", self.most_rows)


@dataclass(frozen=True, slots=True)
class Part:
    """A chunk of rows of a table, which has `most_rows` in all."""

    table: str
    sql: str
    most_rows: int


def find_tables(connection: Any, size: int, only: frozenset[str] | None, left_out: list[str]) -> Iterator[Table]:
    """The tables that are to be read.

    Args:
        connection: to the file.
        size: the file's, bytes.
        only: these tables and their columns in `COLUMNS`; None for every table and column.
        left_out: gets the names of those that are not read because of their names.

    Raises:
        FormatError: no export, damaged, or it would take more memory than its size explains.
    """
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
            yield _with_rowids(connection, Table(name, roots[name], columns, integers, wanted, rows[name]))


def _with_rowids(connection: Any, table: Table) -> Table:
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


def _rows(connection: Any, sql: str) -> list[Any]:
    with cursor_of(connection) as cursor:
        cursor.execute(sql)
        rows: list[Any] = cursor.fetchall()
        return rows


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
