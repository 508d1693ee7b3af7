"""Integers read from the pages of SQLite files: as SQLite reads them, or not at all."""

import json
import sqlite3
from contextlib import closing

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.tracer.nsys_exports import DATA, KERNELS, RECORDING, export
from tracer.errors import FormatError
from tracer.formats import nsys_sqlite, sqlite_pages, sqlite_tables

EDGES = [0, 1, *(edge for bits in (7, 15, 23, 31, 47, 63) for edge in (2**bits - 1, -(2**bits)))]
INTEGERS = st.none() | st.sampled_from(EDGES) | st.integers(-(2**63), 2**63 - 1) | st.integers(-300, 300)
ANY = INTEGERS | st.floats(allow_nan=False) | st.text(max_size=9) | st.binary(max_size=9)


def asked(path, *queries):
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        return [database.execute(query).fetchall() for query in queries]


def made(path, rows, columns, *then, page_size=512):
    """A file with a table t of the columns, and of rows that begin with their rowid."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute(f"PRAGMA page_size = {page_size}")
        database.execute("CREATE TABLE before (x)")
        database.execute(f"CREATE TABLE t ({columns})")
        names = [name for _, name, *_ in database.execute("PRAGMA table_info(t)")]
        database.execute("BEGIN")
        into = f"INSERT INTO t (rowid, {', '.join(names)}) VALUES (?{', ?' * len(names)})"
        for row in rows:
            database.execute(into, row)
            database.execute("INSERT INTO before VALUES (zeroblob(?))", (hash(row) % 200,))  # pages in no order
        database.execute("COMMIT")
        for statement in then:
            database.execute(statement)
    return path


def numbers(count=500):
    return ((i, i, 1000 * i) for i in range(count))


def read(path, *wanted, root=None, rowids=None):
    """The columns of t, every one if none is named; by its root page and first and last rowid, if they are given."""
    names = ["a", "b"]
    if rowids is None:
        [rowids], columns = asked(path, "SELECT min(rowid), max(rowid) FROM t", "PRAGMA table_info(t)")
        root, names = root_of(path), [name for _, name, *_ in columns]
    columns = [name if name in wanted or not wanted else None for name in names]
    return sqlite_pages.read_integers(path, root, rowids, columns, lambda rows: None)


def root_of(path):
    return asked(path, "SELECT rootpage FROM sqlite_master WHERE name = 't'")[0][0][0]


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.tuples(INTEGERS, ANY, INTEGERS, ANY), min_size=1, max_size=100),
    first=st.sampled_from([1, 0, -130, 2**31 - 5, 2**56 - 3, -(2**61)]),
    page_size=st.sampled_from([1 << bits for bits in range(9, 17)]),
    vacuum=st.booleans(),
    chunk=st.sampled_from([1, 1 << 18]),  # a page at a time, many pages at a time
)
@example([(None, "", None, "")] * 300, 1, 512, False, 1)
def test_any_values(tmp_path, monkeypatch, rows, first, page_size, vacuum, chunk):
    monkeypatch.setattr(sqlite_pages, "_CHUNK", chunk)
    numbered = ((rowid, *row) for rowid, row in enumerate(rows, start=first))
    path = made(
        tmp_path / "a", numbered, "a INTEGER, b, c INT NOT NULL ON CONFLICT REPLACE DEFAULT 5, d",
        *["VACUUM"] * vacuum, page_size=page_size,
    )  # fmt: skip
    table = read(path, "a", "c")
    assert table.schema == pa.schema({"a": pa.int64(), "c": pa.int64()})
    table.validate(full=True)
    (stored,) = asked(path, "SELECT a, c, b, d FROM t")
    assert list(zip(*table.to_pydict().values(), strict=True)) == [row[:2] for row in stored]
    if all(value is None or isinstance(value, int) for row in stored for value in row):
        assert list(zip(*read(path).select(["b", "d"]).to_pydict().values(), strict=True)) == [
            row[2:] for row in stored
        ]
    else:
        assert read(path) is None


def test_damage_of_the_tree_is_seen(tmp_path):
    path = made(tmp_path / "a", numbers(), "a, b")
    root, content = root_of(path), path.read_bytes()
    pages = len(content) // 512
    assert read(path) is not None
    for child in (0, 1, root, pages + 1, 2**31, 2**32 - 1):  # which are no pages
        at = (root - 1) * 512 + 8
        path.write_bytes(content[:at] + child.to_bytes(4, "big") + content[at + 4 :])
        assert read(path, root=root, rowids=(0, 499)) is None, child
    path.write_bytes(content)
    for other in (0, 1, 2, pages + 1, 2**40):
        assert read(path, root=other, rowids=(0, 499)) is None, other
    for size in (0, 50, 100, 1024, len(content) // 2):  # a file that shrinks
        path.write_bytes(content[:size])
        assert read(path, root=root, rowids=(0, 499)) is None, size
    # Bytes at the end of each page that SQLite leaves to extensions now are where cells are.
    path.write_bytes(content[:20] + b"\x20" + content[21:])
    assert read(path, root=root, rowids=(0, 499)) is None


ROWS = [RECORDING[KERNELS][0] | {"start": i, "correlationId": i % 7 or None} for i in range(300)]


@pytest.fixture
def were_plain(monkeypatch):
    """Lets tables of 100 rows be read from their pages; gets for each whether it was."""
    found, read_integers = [], sqlite_pages.read_integers

    def watched(*args):
        table = read_integers(*args)
        found.append(table is not None)
        return table

    monkeypatch.setattr(sqlite_pages, "read_integers", watched)
    monkeypatch.setattr(sqlite_tables, "_CHUNK", 100)
    monkeypatch.setattr(sqlite_tables, "_WORTH_PAGES", 100)
    return found


def outcomes(path, only):
    """What is read of an export, or why it is not: from pages, and by SQLite alone."""
    found = []
    with pytest.MonkeyPatch.context() as patched:
        for many_rows in (sqlite_tables._WORTH_PAGES, 1 << 60):
            patched.setattr(sqlite_tables, "_WORTH_PAGES", many_rows)
            try:
                found.append(nsys_sqlite.read_tables(path, only))  # tables are equal if their types are
            except FormatError as error:
                found.append(str(error))
    return found


@pytest.mark.parametrize("only", [None, frozenset(nsys_sqlite.COLUMNS)], ids=["whole", "what a trace has"])
def test_exports_are_the_same(tmp_path, only, were_plain):
    cases = json.loads((DATA / "plain-tables.json").read_text())["cases"]
    for number, (tampering, plain) in enumerate(cases):
        path = export(tmp_path / f"{number}.sqlite", {KERNELS: ROWS})
        asked(path, *tampering)
        were_plain.clear()
        ours, theirs = outcomes(path, only)
        assert were_plain == plain, tampering
        assert ours == theirs, tampering
        assert list(ours) == list(theirs)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    flips=st.lists(st.tuples(st.integers(-1, 30), st.integers(0, 4095), st.integers(0, 255)), min_size=1, max_size=3)
)
@example(flips=[(-1, 16, 2)])  # the size of a page
@example(flips=[(-1, 20, 32)])  # bytes that are reserved
@example(flips=[(-1, 31, 3)])  # the number of pages
@example(flips=[(1, 11, 255)])  # a row that would continue beyond its page
def test_damaged_exports_are_the_same(tmp_path, flips, were_plain):
    path, good = tmp_path / "a.sqlite", tmp_path / "good.sqlite"
    if not good.exists():
        export(good, {KERNELS: ROWS})
    pages = [n - 1 for (n,) in asked(good, f"SELECT pageno FROM dbstat WHERE name = '{KERNELS}'")[0]]
    content = bytearray(good.read_bytes())
    for page, at, byte in flips:  # in the kernels' pages or in the header
        content[at % 100 if page < 0 else pages[page % len(pages)] * 4096 + at] = byte
    path.write_bytes(content)
    ours, theirs = outcomes(path, frozenset(nsys_sqlite.COLUMNS))
    assert ours == theirs
    if flips == [
        (1, 11, 255)
    ]:  # SQLite reads what is in memory there, unless it checks: now and then a row like others
        for _ in range(20):
            with pytest.raises(FormatError, match=r"malformed|unknown error"):  # which its older driver says of it
                nsys_sqlite.read_tables(path)
