"""What an export holds beyond a trace's columns is written again as it was."""

import gzip
import sqlite3
import tarfile
from collections.abc import Callable
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.covering import covering, each_value
from tests.tracer.nsys_exports import DATA, GLOBAL_TID, RECORDING, SCHEMAS, Rows, export
from tests.tracer.test_formats_roundtrip import assert_same
from tracer import formats
from tracer.errors import FormatError
from tracer.formats import nsys_schema
from tracer.model.schema import TABLES
from tracer.model.trace import Trace

Contents = dict[str, set[tuple[tuple[str, Any], ...]]]

EVERYTHING: Rows = {
    **RECORDING,
    "CUPTI_ACTIVITY_KIND_KERNEL": [
        row | {"launchType": 1, "mangledName": 4, "greenContextId": None, "localMemoryTotal": 155713536}
        for row in RECORDING["CUPTI_ACTIVITY_KIND_KERNEL"]
    ],
    "CUPTI_ACTIVITY_KIND_MEMCPY": [
        row | {"virtualAddress": 2**62, "copyCount": 2, "srcContextId": 1}
        for row in RECORDING["CUPTI_ACTIVITY_KIND_MEMCPY"]
    ],
    "CUPTI_ACTIVITY_KIND_RUNTIME": [
        row | {"callchainId": 5, "globalTid": 1 << 56 | GLOBAL_TID} for row in RECORDING["CUPTI_ACTIVITY_KIND_RUNTIME"]
    ],
    "NVTX_EVENTS": [
        *RECORDING["NVTX_EVENTS"],
        {"start": 3, "eventType": 33, "text": "a category", "category": 3, "domainId": 9, "globalTid": GLOBAL_TID},
        {"start": 51, "end": 52, "eventType": 59, "textId": 20, "globalTid": GLOBAL_TID, "domainId": 0,
         "uint64Value": -1, "jsonTextId": 4, "binaryData": "x"},
        {"start": 53, "end": 54, "eventType": 60, "text": "t", "globalTid": GLOBAL_TID, "endGlobalTid": 7,
         "domainId": 0, "floatValue": 0.5},
    ],
    "CUDA_GRAPH_NODE_EVENTS": [
        {"start": 1, "end": 2, "eventClass": 77, "globalTid": GLOBAL_TID, "nameId": 4, "graphNodeId": 5 << 32},
    ],
    "PROFILER_OVERHEAD": [{"start": 5, "end": 6, "globalTid": GLOBAL_TID, "nameId": 4, "returnValue": 0}],
    "DIAGNOSTIC_EVENT": [{"timestamp": 5, "timestampType": 1, "source": 2, "severity": 3, "text": "a\nb"}],
    "META_DATA_CAPTURE": [{"name": "COMMAND", "value": None}, {"name": "HOST", "value": "ada"}],
    "TARGET_INFO_SYSTEM_ENV": [{"globalVid": 1, "devStateName": "Host", "name": "PATH", "value": "/bin"}],
}  # fmt: skip


def contents(path: Path) -> Contents:
    """Table -> its rows as (column, value) pairs without NULLs, ids of strings kept."""
    found: Contents = {}
    with closing(sqlite3.connect(path)) as database:
        database.row_factory = sqlite3.Row
        for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            rows = database.execute(f'SELECT * FROM "{table}"').fetchall()
            found[table] = {tuple((c, row[c]) for c in sorted(row.keys()) if row[c] is not None) for row in rows}
    return {table: rows for table, rows in found.items() if rows}


def assert_survived(before: Contents, after: Contents) -> None:
    """All tables and rows are there again; tables that we derive may be added."""
    before, after = without_what_we_do_better(before), without_what_we_do_better(after)
    assert {table: after.get(table) for table in before} == before


def without_what_we_do_better(tables: Contents) -> Contents:
    """Without sync types, and the rows that hold our metadata."""
    syncs = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
    export = {row for row in tables["META_DATA_EXPORT"] if not str(row[0][1]).startswith("INTERTOKEN_")}
    better = {"META_DATA_EXPORT": export}
    if syncs in tables:
        better[syncs] = {tuple(pair for pair in row if pair[0] != "syncType") for row in tables[syncs]}
    return tables | better


def again(path: Path, *suffixes: str) -> Path:
    """Convert from format to format; the last file."""
    for i, suffix in enumerate(suffixes):
        formats.write(formats.read(path), path := path.with_name(f"copy{i}{suffix}"))
    return path


@pytest.mark.parametrize(
    ("schema", "suffixes"),
    each_value(product(["3.20.3", "3.25.0"], [(".sqlite",), ("", ".sqlite"), (".db", "", "", ".sqlite")])),
)
def test_every_table_and_column_survives(schema: str, suffixes: tuple[str, ...], tmp_path: Path) -> None:
    source = export(tmp_path / "a.sqlite", EVERYTHING, schema=schema)
    before, after = contents(source), contents(again(source, *suffixes))
    assert_survived(before, after)


@pytest.mark.parametrize("suffixes", [(".sqlite",), ("", ".sqlite")], ids="→".join)
@pytest.mark.parametrize("name", ["llama1b-saaas-graph"])
def test_a_real_export_survives(name: str, suffixes: tuple[str, ...], tmp_path: Path) -> None:
    source = tmp_path / "real.sqlite"
    source.write_bytes(gzip.decompress((DATA / f"{name}.sqlite.gz").read_bytes()))
    before, after = contents(source), contents(again(source, *suffixes))
    assert_survived(before, after)


def renamed(name: str, frame: pd.DataFrame) -> pd.DataFrame:
    texts = [c.name for c in TABLES[name].columns if c.is_name and name != "processes"]
    return frame.assign(**{c: frame[c].cat.rename_categories(lambda text: f"new {text}") for c in texts})


def later(name: str, frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(start=frame["start"] + 10**6, end=frame["end"] + 10**6) if "start" in frame else frame


def elsewhere(name: str, frame: pd.DataFrame) -> pd.DataFrame:
    ids = {"process": 17, "thread": 18, "bytes": 19, "category": 20, "payload": 0.25}
    return frame.assign(**{column: value for column, value in ids.items() if column in frame})


def fewer(name: str, frame: pd.DataFrame) -> pd.DataFrame:
    return frame.iloc[1:]


@pytest.mark.parametrize(
    ("change", "schema", "copy"),
    covering(product([renamed, later, elsewhere, fewer], ["3.20.3", "3.25.0"], ["b.sqlite", "b"])),
)
def test_what_was_changed_is_written_as_it_is_now(
    change: Callable[[str, pd.DataFrame], pd.DataFrame], schema: str, copy: str, tmp_path: Path
) -> None:
    changed = formats.read(export(tmp_path / "a.sqlite", EVERYTHING, schema=schema)).map_tables(change)
    formats.write(changed, tmp_path / copy)
    assert_same_rows(formats.read(tmp_path / copy), changed)


@pytest.mark.parametrize("copy", ["b.sqlite", "b"])
def test_traces_of_two_exports_as_one(copy: str, tmp_path: Path) -> None:
    first = formats.read(export(tmp_path / "a.sqlite", EVERYTHING))
    other = export(tmp_path / "c.sqlite", schema="3.25.0", without_tables=nsys_schema.SAMPLES)  # their ids are unique
    second = formats.read(other).map_tables(renamed)
    both = first.map_tables(lambda name, frame: pd.concat([frame, second[name]], ignore_index=True))
    both.tables["devices"] = both["devices"][:1]
    formats.write(both, tmp_path / copy)
    assert_same_rows(formats.read(tmp_path / copy), both)


def assert_same_rows(trace: Trace, wanted: Trace) -> None:
    """The trace's own columns are the same; texts by their values."""
    for name, table in TABLES.items():
        for column in table.column_names:
            assert list(trace[name][column].astype(str)) == list(wanted[name][column].astype(str)), (name, column)


ODD_VALUES: list[list[Any]] = [
    [2**63 - 1, -(2**63), None], [0.5, 1e300, None], ["", "1", "1.5\n"], [b"", b"\xff\0", None], [None] * 3, [7] * 3,
]  # fmt: skip


@pytest.mark.parametrize(
    ("number", "suffixes"), each_value(product(range(len(ODD_VALUES)), [(".sqlite",), ("", ".sqlite")]))
)
def test_odd_values_survive_whatever_nsys_declares(number: int, suffixes: tuple[str, ...], tmp_path: Path) -> None:
    values = ODD_VALUES[number]
    source = export(tmp_path / "a.sqlite", EVERYTHING)
    columns = {"PROFILER_OVERHEAD": "start", "ANALYSIS_FILE": "id", "TARGET_INFO_CUDA_CONTEXT_INFO": "hwId"}
    with closing(sqlite3.connect(source)) as database:
        for table, column in columns.items():
            database.execute(f"DROP TABLE IF EXISTS {table}")
            database.execute(f"CREATE TABLE {table} ({column}, other)")
            database.executemany(f"INSERT INTO {table} VALUES (?, 1)", [[value] for value in values])
        database.commit()
    before, after = contents(source), contents(again(source, *suffixes))
    assert {table: after[table] for table in columns} == {table: before[table] for table in columns}


@pytest.mark.parametrize("copy", ["b.sqlite", "b"])
def test_odd_names_are_left_out_and_noted(copy: str, tmp_path: Path) -> None:
    source = export(tmp_path / "a.sqlite", EVERYTHING)
    with closing(sqlite3.connect(source)) as database:
        database.execute('CREATE TABLE "../../evil" (x)')
        database.execute('INSERT INTO "../../evil" VALUES (1)')
        database.execute('CREATE TABLE "it\'s""" ("a\'""b", fine)')
        database.execute('INSERT INTO "it\'s""" VALUES (1, 2)')
        database.execute("CREATE TABLE no_row_id (a PRIMARY KEY, b) WITHOUT ROWID")
        database.execute("INSERT INTO no_row_id VALUES ('x', 2)")
        database.execute("CREATE TABLE counted (a INTEGER PRIMARY KEY AUTOINCREMENT)")
        database.execute("INSERT INTO counted VALUES (7)")
        database.execute("CREATE TABLE mixed (a)")
        database.executemany("INSERT INTO mixed VALUES (?)", [(1,), ("two",), (b"\xff",), (None,), (2.5,)])
        database.execute("CREATE VIEW a_view AS SELECT * FROM counted")
        database.commit()
    trace = formats.read(source)
    assert {"no_row_id", "counted", "mixed"} <= trace.carried.keys()
    assert not {"../../evil", "it's\"", "a_view"} & trace.carried.keys()
    assert "2 tables or columns with names or types unknown to nsys are left out" in trace.notes
    formats.write(trace, tmp_path / copy)
    assert_same(formats.read(tmp_path / copy), trace)
    assert {path.name for path in tmp_path.iterdir()} == {"a.sqlite", copy}


def test_a_directory_for_recipes_has_every_table_and_column(tmp_path: Path) -> None:
    trace = formats.read(export(tmp_path / "a.sqlite", EVERYTHING))
    formats.write(trace, tmp_path / "x_pqtdir")
    formats.write(trace, tmp_path / "plain")
    tables = SCHEMAS["3.20.3"]["tables"]
    for table, columns in tables.items():
        written = pq.read_table(tmp_path / "x_pqtdir" / f"{table}.parquet")
        assert {column["name"] for column in columns} <= set(written.column_names)
        for column in columns:
            assert not (column["not_null"] and written[column["name"]].null_count and table not in trace.carried)
    assert not (tmp_path / "plain" / "CUDA_GRAPH_EVENTS.parquet").exists()
    assert_same(formats.read(tmp_path / "x_pqtdir"), trace)
    again, carried = formats.read(tmp_path / "x_pqtdir"), trace.carried.keys()
    assert {name for name, table in again.carried.items() if len(table)} == carried
    assert all(list(again[name]) == list(trace[name]) for name in TABLES)


def test_an_arrowdir_is_read(tmp_path: Path) -> None:
    source = export(tmp_path / "a.sqlite", EVERYTHING)
    (tmp_path / "x_arwdir").mkdir()
    with closing(sqlite3.connect(source)) as database:
        for table in contents(source):
            frame = pd.read_sql(f'SELECT * FROM "{table}"', database, dtype_backend="pyarrow")
            rows = pa.Table.from_pandas(frame, preserve_index=False)
            with pa.ipc.new_stream(tmp_path / "x_arwdir" / f"{table}.arrow", rows.schema) as stream:
                stream.write_table(rows, max_chunksize=2)
    trace = formats.read(tmp_path / "x_arwdir")
    assert_same(trace, formats.read(source))
    formats.write(trace, tmp_path / "b.sqlite")
    assert_survived(contents(source), contents(tmp_path / "b.sqlite"))
    damaged = tmp_path / "x_arwdir" / "NVTX_EVENTS.arrow"
    for cut in (0, 10, damaged.stat().st_size // 2):
        damaged.write_bytes(damaged.read_bytes()[:cut])
        with pytest.raises(FormatError, match=r"NVTX_EVENTS\.arrow: not a valid Arrow file"):
            formats.read(tmp_path / "x_arwdir")


def test_a_real_arrowdir(tmp_path: Path) -> None:
    """Of a CuPy program that nsys 2025.3 recorded on an H200."""
    with tarfile.open(DATA / "nsys-2025.3-arrowdir.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    trace = formats.read(tmp_path / "rep_arwdir")
    assert {name: len(frame) for name, frame in trace.tables.items() if len(frame)} == {
        "kernels": 4, "memcpys": 6, "api": 44, "syncs": 9, "cuda_events": 3, "nvtx": 3, "streams": 7,
    }  # fmt: skip
    assert trace["nvtx"]["text"].tolist() == ["token 0", "token 1", "token 2"]
    assert trace["nvtx"]["domain"].tolist() == ["demo"] * 3
    assert trace["nvtx"]["payload"].tolist() == [0, 1, 2]
    arange, *rest = trace["kernels"]["short_name"].tolist()
    assert (arange, set(rest)) == ("cupy_arange__float_float_float32", {"cupy_multiply__float32_float_float32"})
    formats.write(trace, tmp_path / "again")
    assert_same(formats.read(tmp_path / "again"), trace)
