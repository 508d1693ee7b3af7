"""Integers read from the pages of SQLite files: as SQLite reads them, or not at all."""

import sqlite3
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.tracer.hostile import KERNELS
from tests.tracer.nsys_exports import RECORDING, export
from tracer.errors import FormatError
from tracer.formats import nsys_sqlite, sqlite_pages

PAGE_SIZES = [1 << bits for bits in range(9, 17)]
EDGES = [0, 1, *(edge for bits in (7, 15, 23, 31, 47, 63) for edge in (2**bits - 1, -(2**bits)))]
INTEGERS = st.none() | st.sampled_from(EDGES) | st.integers(-(2**63), 2**63 - 1) | st.integers(-300, 300)
ANY = INTEGERS | st.floats(allow_nan=False) | st.text(max_size=9) | st.binary(max_size=9)


@pytest.fixture(params=[1, 1 << 18], ids=["a page at a time", "many pages at a time"])
def _chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_pages, "_CHUNK", request.param)


def made(path: Path, rows: Iterable[Sequence[Any]], columns: str, *then: str, page_size: int = 512) -> Path:
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


def read(path: Path, *wanted: str) -> pa.Table | None:
    """The columns of t; every one if none is named."""
    with closing(sqlite3.connect(path)) as database:
        ((root,),) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 't'")
        ((low, high),) = database.execute("SELECT min(rowid), max(rowid) FROM t")
        names = [name for _, name, *_ in database.execute("PRAGMA table_info(t)")]
    columns = [name if name in wanted or not wanted else None for name in names]
    return sqlite_pages.read_integers(path, root, (low, high), columns, lambda rows: None)


def selected(path: Path, *wanted: str) -> dict[str, list[Any]]:
    with closing(sqlite3.connect(path)) as database:
        return {name: [value for (value,) in database.execute(f"SELECT {name} FROM t")] for name in wanted}


@pytest.mark.usefixtures("_chunks")
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.tuples(INTEGERS, ANY, INTEGERS, ANY), min_size=1, max_size=300),
    first=st.sampled_from([1, 0, -130, 2**31 - 5, 2**56 - 3, -(2**61)]),
    page_size=st.sampled_from(PAGE_SIZES),
    vacuum=st.booleans(),
)
@example([(None, "", None, "")] * 300, 1, 512, False)
def test_any_values(tmp_path: Path, rows: list[tuple[Any, ...]], first: int, page_size: int, vacuum: bool) -> None:
    numbered = ((rowid, *row) for rowid, row in enumerate(rows, start=first))
    path = made(
        tmp_path / "a", numbered, "a INTEGER, b, c INT NOT NULL ON CONFLICT REPLACE DEFAULT 5, d",
        *["VACUUM"] * vacuum, page_size=page_size,
    )  # fmt: skip
    table = read(path, "a", "c")
    assert table is not None
    assert table.schema == pa.schema({"a": pa.int64(), "c": pa.int64()})
    assert table.to_pydict() == selected(path, "a", "c")
    table.validate(full=True)
    others = selected(path, "b", "d")
    if all(value is None or isinstance(value, int) for column in others.values() for value in column):
        assert read(path).select(["b", "d"]).to_pydict() == others
    else:
        assert read(path) is None


def numbers(count: int = 500) -> Iterator[tuple[int, int, int]]:
    return ((i, i, 1000 * i) for i in range(count))


@pytest.mark.parametrize(
    ("columns", "then"),
    {
        "text": ("a, b", "UPDATE t SET b = 'x' WHERE rowid = 400"),
        "blob": ("a, b", "UPDATE t SET b = x'00' WHERE rowid = 400"),
        "real": ("a, b", "UPDATE t SET b = 0.5 WHERE rowid = 400"),
        "a row deleted": ("a, b", "DELETE FROM t WHERE rowid = 250"),
        "rows deleted": ("a, b", "DELETE FROM t WHERE rowid BETWEEN 100 AND 400"),
        "rowids far apart": ("a, b", f"UPDATE t SET rowid = {2**61} WHERE rowid = 499"),
        "the farthest rowids": ("a, b", f"UPDATE t SET rowid = {2**63 - 1} WHERE rowid = 499"),
        "short records": ("a, b", "ALTER TABLE t ADD COLUMN c INTEGER DEFAULT 7"),
        "a stored column that is generated": ("a, b, c AS (a + b) STORED", "SELECT 1"),
    }.values(),
)
def test_what_is_left_to_sqlite(tmp_path: Path, columns: str, then: str) -> None:
    assert read(made(tmp_path / "a", numbers(), columns)) is not None or "STORED" in columns
    assert read(made(tmp_path / "b", numbers(), columns, then)) is None


def test_reserved_bytes(tmp_path: Path) -> None:
    """Bytes at the end of each page that SQLite leaves to extensions, such as checksums."""
    path = made(tmp_path / "a", numbers(), "a, b")
    content = bytearray(path.read_bytes())
    assert content[20] == 0
    content[20] = 32  # which now are where cells are
    path.write_bytes(content)
    assert read(path) is None


def at(path: Path, offset: int, layout: str, change: Callable[[int], int]) -> None:
    content = bytearray(path.read_bytes())
    (value,) = struct.unpack_from(layout, content, offset)
    struct.pack_into(layout, content, offset, change(value))
    path.write_bytes(content)


def root_of(path: Path) -> int:
    with closing(sqlite3.connect(path)) as database:
        return int(next(database.execute("SELECT rootpage FROM sqlite_master WHERE name = 't'"))[0])


@pytest.mark.parametrize("page", [0, 1, "root", "behind", 2**31, 2**32 - 1])
def test_children_that_are_no_pages(tmp_path: Path, page: int | str) -> None:
    path = made(tmp_path / "a", numbers(), "a, b")
    root = root_of(path)
    child = {"root": root, "behind": path.stat().st_size // 512 + 1}.get(str(page), page)
    with closing(sqlite3.connect(path)) as database:
        rowids = (0, 499)
        assert next(database.execute("SELECT min(rowid), max(rowid) FROM t")) == rowids
    at(path, (root - 1) * 512 + 8, ">I", lambda _: int(child))
    assert sqlite_pages.read_integers(path, root, rowids, ["a", "b"], lambda rows: None) is None
    for other in (0, 1, 2, path.stat().st_size // 512 + 1, 2**40):
        assert sqlite_pages.read_integers(path, other, rowids, ["a", "b"], lambda rows: None) is None


def test_a_file_that_shrinks(tmp_path: Path) -> None:
    path = made(tmp_path / "a", numbers(5000), "a, b")
    root = root_of(path)
    content = path.read_bytes()
    assert sqlite_pages.read_integers(path, root, (0, 4999), ["a", "b"], lambda rows: None) is not None
    for size in (0, 50, 100, 1024, len(content) // 2):
        path.write_bytes(content[:size])
        assert sqlite_pages.read_integers(path, root, (0, 4999), ["a", "b"], lambda rows: None) is None


def all_of(path: Path) -> list[tuple[Any, ...]] | None:
    """What SQLite says of t, None if it calls the file damaged."""
    try:
        with closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as database:
            database.text_factory = bytes
            return list(database.execute("SELECT a, b FROM t"))
    except sqlite3.Error:
        return None


@pytest.mark.parametrize(("count", "step"), [(120, 31), (3000, 3637)], ids=["two levels", "three levels"])
def test_flipped_bits(tmp_path: Path, count: int, step: int) -> None:
    """A change of any byte behind the schema is either seen or is one that SQLite reads the same."""
    path = made(tmp_path / "a", ((i, i, -(i**5)) for i in range(count)), "a INTEGER, b INTEGER")
    root, content = root_of(path), path.read_bytes()
    seen = 0
    for offset in range(512, len(content), step):
        damaged = bytearray(content)
        damaged[offset] ^= 1 << offset * 5 % 8
        path.write_bytes(damaged)
        table = sqlite_pages.read_integers(path, root, (0, count - 1), ["a", "b"], lambda rows: None)
        if table is not None:
            assert list(zip(*table.to_pydict().values(), strict=True)) == all_of(path), offset
        seen += table is None
    assert 0 < seen < len(content) // step


ROWS = [RECORDING[KERNELS][0] | {"start": i, "correlationId": i % 7 or None} for i in range(300)]
OTHER = "CUPTI_ACTIVITY_KIND_MEMSET"


@pytest.fixture
def were_plain(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Lets tables of 100 rows be read from their pages; gets for each whether it was."""
    found: list[bool] = []
    read_integers = sqlite_pages.read_integers

    def watched(*args: Any) -> pa.Table | None:
        table = read_integers(*args)
        found.append(table is not None)
        return table

    monkeypatch.setattr(sqlite_pages, "read_integers", watched)
    monkeypatch.setattr(nsys_sqlite, "_CHUNK", 100)
    monkeypatch.setattr(nsys_sqlite, "_WORTH_PAGES", 100)
    return found


def outcomes(path: Path, only: frozenset[str] | None) -> list[dict[str, pa.Table] | str]:
    """What is read of an export, or why it is not: from pages, and by SQLite alone."""
    found: list[dict[str, pa.Table] | str] = []
    with pytest.MonkeyPatch.context() as patched:
        for many_rows in (nsys_sqlite._WORTH_PAGES, 1 << 60):
            patched.setattr(nsys_sqlite, "_WORTH_PAGES", many_rows)
            try:
                found.append(nsys_sqlite.read_tables(path, only))  # tables are equal if their types are
            except FormatError as error:
                found.append(str(error))
    return found


@pytest.mark.parametrize("only", [None, frozenset(nsys_sqlite.COLUMNS)], ids=["whole", "what a trace has"])
@pytest.mark.parametrize(
    ("tampering", "plain"),
    [
        ([], [True]),
        (["VACUUM"], [True]),
        ([f"UPDATE {KERNELS} SET graphNodeId = NULL, globalPid = NULL WHERE rowid > 90", "VACUUM"], [True]),
        ([f"UPDATE {KERNELS} SET graphNodeId = 7.0, gridX = -1"], [True]),
        ([f"UPDATE {KERNELS} SET graphNodeId = 1e300 WHERE rowid = 7"], [False]),
        ([f"UPDATE {KERNELS} SET graphNodeId = 'x' WHERE rowid = 7"], [False]),
        ([f"UPDATE {KERNELS} SET graphNodeId = x'00' WHERE rowid = 7"], [False]),
        ([f"DELETE FROM {KERNELS} WHERE rowid = 7"], []),
        ([f"ALTER TABLE {KERNELS} ADD COLUMN graphId INTEGER DEFAULT 7"], [False]),
        ([f"ALTER TABLE {KERNELS} ADD COLUMN graphId REAL", f"UPDATE {KERNELS} SET graphId = 7"], []),
        ([f"ALTER TABLE {KERNELS} ADD COLUMN graphId INTEGER AS (start)"], []),
        ([f"ALTER TABLE {KERNELS} ADD COLUMN rowid INTEGER", f"UPDATE {KERNELS} SET rowid = 7"], [True]),
        ([f"CREATE TABLE {OTHER} (start INTEGER PRIMARY KEY, bytes INTEGER)",
          f"INSERT INTO {OTHER} SELECT rowid, end FROM {KERNELS}"], [True]),
        ([f"CREATE TABLE {OTHER} (start INTEGER PRIMARY KEY, bytes INTEGER) WITHOUT ROWID",
          f"INSERT INTO {OTHER} SELECT rowid, end FROM {KERNELS}"], [True]),
        ([f"CREATE TABLE {OTHER} (start INTEGER, bytes INTEGER)",
          f"INSERT INTO {OTHER} SELECT rowid, end FROM {KERNELS} ORDER BY rowid DESC"], [True, True]),
    ],
    ids=str,
)  # fmt: skip
def test_exports_are_the_same(
    tmp_path: Path, only: frozenset[str] | None, tampering: list[str], plain: list[bool], were_plain: list[bool]
) -> None:
    path = export(tmp_path / "a.sqlite", {KERNELS: ROWS})
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        for statement in tampering:
            database.execute(statement)
    ours, theirs = outcomes(path, only)
    assert were_plain == plain
    assert ours == theirs
    assert list(ours) == list(theirs)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    flips=st.lists(st.tuples(st.integers(-1, 30), st.integers(0, 4095), st.integers(0, 255)), min_size=1, max_size=3)
)
@example(flips=[(-1, 16, 2)])  # the size of a page
@example(flips=[(-1, 20, 32)])  # bytes that are reserved
@example(flips=[(-1, 31, 3)])  # the number of pages
@example(flips=[(1, 11, 255)])  # a row that would continue beyond its page
def test_damaged_exports_are_the_same(
    tmp_path: Path, flips: list[tuple[int, int, int]], were_plain: list[bool]
) -> None:
    path, good = tmp_path / "a.sqlite", tmp_path / "good.sqlite"
    if not good.exists():
        export(good, {KERNELS: ROWS})
    with nsys_sqlite._connect(good) as connection:
        pages = [n - 1 for (n,) in nsys_sqlite._rows(connection, f"SELECT pageno FROM dbstat WHERE name = '{KERNELS}'")]
    content = bytearray(good.read_bytes())
    for page, at, byte in flips:  # in the kernels' pages or in the header
        content[at % 100 if page < 0 else pages[page % len(pages)] * 4096 + at] = byte
    path.write_bytes(content)
    ours, theirs = outcomes(path, frozenset(nsys_sqlite.COLUMNS))
    assert ours == theirs


def test_a_row_beyond_its_page_is_refused_each_time(tmp_path: Path) -> None:
    """SQLite reads what is in memory there, unless it checks: now and then a row like others."""
    path = export(tmp_path / "a.sqlite", {KERNELS: ROWS})
    with closing(sqlite3.connect(path)) as database:
        pages = [n for (n,) in database.execute(f"SELECT pageno FROM dbstat WHERE name = '{KERNELS}'")]
    content = bytearray(path.read_bytes())
    content[(pages[1] - 1) * 4096 + 11] = 255  # where the second row of the page begins
    path.write_bytes(content)
    for _ in range(20):
        with pytest.raises(FormatError, match="malformed"):
            nsys_sqlite.read_tables(path)
