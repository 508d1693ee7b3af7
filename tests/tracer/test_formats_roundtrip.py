"""Every format that says so gives back what it was given, what it knows nothing of, and the same answers."""

import json
import shutil
import sqlite3
import tarfile
import tempfile
from contextlib import closing
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.covering import covering, each_value
from tests.recordings import KINDS, SAMPLES
from tests.tracer.nsys_exports import DATA, EVERYTHING, KERNELS, SCHEMAS, export, real_export, tampered
from tracer import formats
from tracer.analysis.recording import Recording
from tracer.analysis.tokens import Bounds
from tracer.errors import FormatError, TraceError
from tracer.model.calls import plain
from tracer.model.schema import MISSING, MOST_NS, TABLES
from tracer.model.trace import Trace

NAMES = st.one_of(
    st.sampled_from(["", "<script>alert('x')</script>", "kernel<float, int>(T1 *)", "Токен 0 ⏱", "a\nb\0c", "'; DROP"]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


def _cells(column, rows):
    if column.enum is not None:
        cell = st.sampled_from(list(column.enum))
    elif column.is_name:
        cell = NAMES
    elif column.kind == "float64":
        cell = st.floats(allow_nan=True, allow_infinity=True)
    elif column.name in ("process", "thread"):
        cell = st.integers(MISSING, 2**24 - 2)
    elif column.name in ("start", "end", "time"):
        cell = st.integers(0, MOST_NS - 1)
    else:
        cell = st.integers(MISSING, 100) | st.integers(2**32, 2**63 - 1)
    return st.lists(cell, min_size=rows, max_size=rows)


@st.composite
def frames(draw, table):
    rows = draw(st.integers(0, 5))
    frame = pd.DataFrame({c.name: draw(_cells(c, rows)) for c in table.columns})
    if "end" in frame and rows:
        frame["end"] = np.maximum(frame["start"].to_numpy(np.int64), frame["end"].to_numpy(np.int64))
    if table.name == "nvtx" and rows:
        frame["end"] = frame["end"].where(frame["kind"] != "mark", frame["start"])
    if key := {"devices": "device", "samples": "chain"}.get(table.name):
        frame[key] = range(rows)
    return frame


@st.composite
def traces(draw):
    """Random traces of valid rows."""
    metadata = draw(st.dictionaries(NAMES.filter(lambda key: key != "run"), JSON, max_size=3))
    if draw(st.booleans()):
        metadata["run"] = draw(st.dictionaries(NAMES, JSON, max_size=3))
    tables = {name: draw(frames(table)) for name, table in TABLES.items()}
    return Trace(tables, metadata, draw(st.lists(NAMES, max_size=2)))


def assert_same(actual, expected):
    """Equal tables, metadata and notes; categoricals by their values. Reading adds a note if names of calls look like
    launches, copies or syncs but are none that is known."""
    for name, table in TABLES.items():
        names = {c.name: "str" for c in table.columns if c.is_name}
        pd.testing.assert_frame_equal(actual[name].astype(names), expected[name].astype(names), obj=name)
    assert actual.metadata == expected.metadata
    kept, added = actual.notes[: len(expected.notes)], actual.notes[len(expected.notes) :]
    assert kept == expected.notes
    assert len(added) <= bool(expected.api.unknown_calls()), added


def written_and_read(trace, name):
    directory = Path(tempfile.mkdtemp())
    try:
        formats.write(trace, directory / name)
        return formats.read(directory / name)
    finally:
        shutil.rmtree(directory)


LOSSLESS = [f for f in formats.registered() if f.write is not None and f.lossless]


@pytest.mark.parametrize("format", LOSSLESS, ids=lambda f: f.name)
@given(trace=traces())
@settings(max_examples=6)
def test_any_trace_survives(format, trace):
    assert_same(written_and_read(trace, f"a{format.suffix}"), trace)
    assert_same(written_and_read(Trace({}), f"a{format.suffix}"), Trace({}))


def test_ids_that_nsys_cannot_hold_are_cut_and_noted(tmp_path):
    columns = {"start": [1], "end": [2], "process": [5], "thread": [2**24 + 7], "name": ["cudaFree"]}
    trace = written_and_read(Trace.from_columns(api=columns), "cut")
    assert trace["api"][["process", "thread"]].to_numpy().tolist() == [[5, 7]]
    assert trace.notes == ["process or thread ids were truncated to 24 bits, as nsys does"]


def contents(path):
    """Table -> its rows as (column, value) pairs without NULLs, ids of strings kept; without what we do better: sync
    types, and the rows that hold our metadata."""
    found = {}
    with closing(sqlite3.connect(path)) as database:
        database.row_factory = sqlite3.Row
        for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            rows = database.execute(f'SELECT * FROM "{table}"').fetchall()
            better = {"syncType"} if table == "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION" else set()
            pairs = {tuple((c, r[c]) for c in sorted({*r.keys()} - better) if r[c] is not None) for r in rows}
            found[table] = {row for row in pairs if not (row and str(row[0][1]).startswith("INTERTOKEN_"))}
    return {table: rows for table, rows in found.items() if rows}


def assert_survived(source, copy):
    """All tables and rows are there again; tables that we derive may be added."""
    before, after = contents(source), contents(copy)
    assert {table: after.get(table) for table in before} == before


def again(path, *suffixes):
    """Convert from format to format; the last file."""
    for i, suffix in enumerate(suffixes):
        formats.write(formats.read(path), path := path.with_name(f"copy{i}{suffix}"))
    return path


@pytest.mark.parametrize(
    ("schema", "suffixes"), each_value(product(["3.20.3", "3.25.0"], [(".sqlite",), (".db", "", "", ".sqlite")]))
)
def test_every_table_and_column_survives(schema, suffixes, tmp_path):
    source = export(tmp_path / "a.sqlite", EVERYTHING, schema=schema)
    assert_survived(source, again(source, *suffixes))


def tables_of(database):
    """Table -> (name, type, NOT NULL, primary key) of its columns."""
    names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    columns = 'SELECT name, type, "notnull", pk FROM pragma_table_info(?)'
    return {name: database.execute(columns, [name]).fetchall() for name in names}


def test_a_real_export_survives_and_is_declared_as_nsys_declares_it(tmp_path):
    source = real_export(tmp_path / "real.sqlite")
    copy = again(source, "", ".sqlite")
    assert_survived(source, copy)
    assert_same(formats.read(copy), formats.read(source))
    with closing(sqlite3.connect(source)) as theirs, closing(sqlite3.connect(copy)) as ours:
        assert tables_of(ours) == tables_of(theirs)
        assert ours.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def renamed(name, frame):
    texts = [c.name for c in TABLES[name].columns if c.is_name and name != "processes"]
    return frame.assign(**{c: frame[c].cat.rename_categories(lambda text: f"new {text}") for c in texts})


def later(name, frame):
    return frame.assign(start=frame["start"] + 10**6, end=frame["end"] + 10**6) if "start" in frame else frame


def elsewhere(name, frame):
    ids = {"process": 17, "thread": 18, "bytes": 19, "category": 20, "payload": 0.25}
    return frame.assign(**{column: value for column, value in ids.items() if column in frame})


def fewer(name, frame):
    return frame.iloc[1:]


def assert_same_rows(trace, wanted):
    """The trace's own columns are the same; texts by their values."""
    for name, table in TABLES.items():
        for column in table.column_names:
            assert list(trace[name][column].astype(str)) == list(wanted[name][column].astype(str)), (name, column)


@pytest.mark.parametrize(
    ("change", "schema", "copy"),
    covering(product([renamed, later, elsewhere, fewer], ["3.20.3", "3.25.0"], ["b.sqlite", "b"])),
)
def test_what_was_changed_is_written_as_it_is_now(change, schema, copy, tmp_path):
    changed = formats.read(export(tmp_path / "a.sqlite", EVERYTHING, schema=schema)).map_tables(change)
    assert_same_rows(written_and_read(changed, copy), changed)


ODD_VALUES = [
    [2**63 - 1, -(2**63), None], [0.5, 1e300, None], ["", "1", "1.5\n"], [b"", b"\xff\0", None], [None] * 3, [7] * 3,
]  # fmt: skip


def test_odd_values_survive_whatever_nsys_declares(tmp_path):
    columns = {"PROFILER_OVERHEAD": "start", "ANALYSIS_FILE": "id", "TARGET_INFO_CUDA_CONTEXT_INFO": "hwId"}
    for number, odd in enumerate(ODD_VALUES):
        source = export(tmp_path / f"{number}.sqlite", {KERNELS: EVERYTHING[KERNELS]})
        with closing(sqlite3.connect(source)) as database:
            for table, column in columns.items():
                database.execute(f"DROP TABLE IF EXISTS {table}")
                database.execute(f"CREATE TABLE {table} ({column}, other)")
                database.executemany(f"INSERT INTO {table} VALUES (?, 1)", [[value] for value in odd])
            database.commit()
        (place := tmp_path / str(number)).mkdir()
        formats.write(formats.read(source), place / "a.sqlite")
        before, after = contents(source), contents(again(place / "a.sqlite", "", ".sqlite"))
        assert {table: after[table] for table in columns} == {table: before[table] for table in columns}, odd


@pytest.mark.parametrize("copy", ["b.sqlite", "b"])
def test_odd_names_are_left_out_and_noted(copy, tmp_path):
    path = tampered(
        tmp_path / "a.sqlite", 'CREATE TABLE "../../evil" (x)', 'INSERT INTO "../../evil" VALUES (1)',
        'CREATE TABLE "it\'s""" ("a\'""b", fine)', 'INSERT INTO "it\'s""" VALUES (1, 2)',
        "CREATE TABLE no_row_id (a PRIMARY KEY, b) WITHOUT ROWID", "INSERT INTO no_row_id VALUES ('x', 2)",
        "CREATE TABLE counted (a INTEGER PRIMARY KEY AUTOINCREMENT)", "INSERT INTO counted VALUES (7)",
        "CREATE TABLE mixed (a)", "INSERT INTO mixed VALUES (1), ('two'), (x'ff'), (NULL), (2.5)",
        "CREATE VIEW a_view AS SELECT * FROM counted", rows=EVERYTHING,
    )  # fmt: skip
    trace = formats.read(path)
    assert {"no_row_id", "counted", "mixed"} <= trace.carried.keys()
    assert not {"../../evil", "it's\"", "a_view"} & trace.carried.keys()
    assert "2 tables or columns with names or types unknown to nsys are left out" in trace.notes
    formats.write(trace, tmp_path / copy)
    assert_same(formats.read(tmp_path / copy), trace)
    assert {path.name for path in tmp_path.iterdir()} == {"a.sqlite", copy}


def test_a_directory_for_recipes_has_every_table_and_column(tmp_path):
    trace = formats.read(export(tmp_path / "a.sqlite", EVERYTHING))
    formats.write(trace, tmp_path / "x_pqtdir")
    formats.write(trace, tmp_path / "plain")
    for table, columns in SCHEMAS["3.20.3"]["tables"].items():
        written = pq.read_table(tmp_path / "x_pqtdir" / f"{table}.parquet")
        assert {column["name"] for column in columns} <= set(written.column_names)
        for column in columns:
            assert not (column["not_null"] and written[column["name"]].null_count and table not in trace.carried)
    assert not (tmp_path / "plain" / "CUDA_GRAPH_EVENTS.parquet").exists()
    assert_same(formats.read(tmp_path / "x_pqtdir"), trace)
    formats.write(formats.read(tmp_path / "a.sqlite", whole=False), tmp_path / "bare")
    rows = pq.read_table(tmp_path / "bare" / "META_DATA_EXPORT.parquet").to_pydict()
    assert {name for name in rows["name"] if "SCHEMA_VERSION_" not in name} == {
        "EXPORT_PRODUCT_NAME", "EXPORT_SCHEMA_VERSION", "INTERTOKEN_METADATA", "INTERTOKEN_NOTES",
    }  # fmt: skip


def test_an_arrowdir_is_read(tmp_path):
    source, folder = export(tmp_path / "a.sqlite", EVERYTHING), tmp_path / "x_arwdir"
    folder.mkdir()
    with closing(sqlite3.connect(source)) as database:
        for table in contents(source):
            frame = pd.read_sql(f'SELECT * FROM "{table}"', database, dtype_backend="pyarrow")
            rows = pa.Table.from_pandas(frame, preserve_index=False)
            with pa.ipc.new_stream(folder / f"{table}.arrow", rows.schema) as stream:
                stream.write_table(rows, max_chunksize=2)
    trace = formats.read(folder)
    assert_same(trace, formats.read(source))
    formats.write(trace, tmp_path / "b.sqlite")
    assert_survived(source, tmp_path / "b.sqlite")
    damaged = folder / "NVTX_EVENTS.arrow"
    for cut in (0, 10, damaged.stat().st_size // 2):
        damaged.write_bytes(damaged.read_bytes()[:cut])
        with pytest.raises(FormatError, match=r"NVTX_EVENTS\.arrow: not a valid Arrow file"):
            formats.read(folder)


def test_a_real_arrowdir(tmp_path):
    """Of a CuPy program that nsys 2025.3 recorded on an H200."""
    with tarfile.open(DATA / "nsys-2025.3-arrowdir.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    trace = formats.read(tmp_path / "rep_arwdir")
    assert {name: len(frame) for name, frame in trace.tables.items() if len(frame)} == {
        "kernels": 4, "memcpys": 6, "api": 44, "syncs": 9, "cuda_events": 3, "nvtx": 3, "streams": 7,
    }  # fmt: skip
    nvtx = trace["nvtx"][["text", "domain", "payload"]].to_numpy().tolist()
    assert nvtx == [[f"token {i}", "demo", i] for i in range(3)]
    assert_same(written_and_read(trace, "again"), trace)


REPORTS = json.loads((DATA / "nsys-reports.json").read_text())


def test_what_reports_ask(tmp_path):
    formats.write(formats.read(export(tmp_path / "theirs.sqlite"), whole=False), tmp_path / "ours.sqlite")
    with closing(sqlite3.connect(tmp_path / "ours.sqlite")) as database:
        for name, (query, rows) in REPORTS.items():
            assert sorted(map(list, database.execute(" ".join(query)).fetchall())) == sorted(rows), name
        for name, columns in tables_of(database).items():
            if not name.startswith("ENUM_"):
                declared = SCHEMAS["3.20.3"]["tables"][name]
                assert columns == [(c["name"], c["type"], c["not_null"], c.get("primary_key", 0)) for c in declared]


def test_a_graph_that_no_node_tells_takes_the_later_schema_s_column(tmp_path):
    for node, graph, has_column in ((7 << 32 | 1, 7, False), (7 << 32 | 1, 8, True), (-1, -1, False)):
        trace = Trace.from_columns(kernels={"start": [0], "end": [1], "graph_node": [node], "graph": [graph]})
        formats.write(trace, path := tmp_path / f"{graph}.db")
        assert_same(formats.read(path), trace)
        with closing(sqlite3.connect(path)) as database:
            assert (tables_of(database)[KERNELS][-1][0] == "graphId") == has_column


def answer(trace):
    """What the analyses say of a trace; times from the first step on, calls without their version."""
    found = Recording(trace, bounds=Bounds(phase="all"))
    try:
        steps = found.steps
    except TraceError as problem:
        return {"problem": str(problem)}
    table = steps.table.assign(start=steps.table["start"] - steps.table["start"].min(), end=0)
    said = {"how": (steps.source, steps.detail, steps.confidence), "steps": table.to_dict("list")}
    try:
        syncs, gaps = found.syncs, found.gaps
    except TraceError as problem:
        return said | {"problem": str(problem)}
    waits = syncs.inventory().frame()
    waits = waits.astype(object).assign(name=[plain(str(name)) for name in waits["name"]])
    return said | {
        "counts": syncs.counts.drop(columns="start").to_dict("list"),
        "signature": (syncs.strategy, syncs.share, syncs.signature, syncs.signature_share, syncs.fetch_lag),
        "waits": waits.where(waits.notna(), -1).to_dict("list"),
        "gaps": (gaps.gap_us, gaps.graph_trace, gaps.estimated, gaps.distortion, gaps.warning),
        "causes": (gaps.causes_us, gaps.parts_us),
    }


SUFFIXES = [".json", ".sqlite", ""]


@pytest.mark.parametrize(("name", "suffix"), each_value(product(KINDS, SUFFIXES)))
def test_every_kind_of_recording_says_the_same_in_every_format(name, suffix, tmp_path):
    trace = formats.read(SAMPLES / name)
    formats.write(trace, tmp_path / f"a{suffix}")
    assert answer(formats.read(tmp_path / f"a{suffix}", whole=False)) == answer(trace)
    if suffix == ".sqlite":
        assert_same(formats.read(tmp_path / "a.sqlite"), trace)


def test_two_processes_whose_correlations_are_equal_stay_apart(tmp_path):
    one, other = formats.read(SAMPLES / "llama1b-saaas-graph"), formats.read(SAMPLES / "llama1b-sccc-graph")
    both = one.map_tables(lambda name, frame: frame if name == "devices" else _beside(name, frame, other))
    wanted = answer(both)
    for suffix in SUFFIXES:
        assert answer(written_and_read(both, f"a{suffix}")) == wanted


def _beside(name, frame, other):
    mine = other[name].assign(process=7777) if "process" in frame else other[name]
    shift = int(frame["start"].min() - mine["start"].min()) if "start" in frame and len(mine) and len(frame) else 0
    if "start" in frame:
        mine = mine.assign(start=mine["start"] + shift, end=mine["end"] + shift)
    return pd.concat([frame, mine], ignore_index=True)


def test_an_operator_stays_one_and_an_annotation_too():
    texts = ["decode", "decode", "aten::mm", "decode", "decode"]
    domains = ["", "cpu_op", "cpu_op", "gpu_user_annotation", "NCCL"]
    columns = {"start": [0, 5, 6, 7, 8], "end": [10, 6, 7, 8, 9], "text": texts, "domain": domains}
    for source, suffix in product(["PyTorch profiler, rank 0 of 8", "cupti 13"], SUFFIXES):
        read = written_and_read(Trace.from_columns({"source": source}, nvtx=columns), f"a{suffix}")
        last = "nccl" if "PyTorch" in source and suffix == ".json" else "NCCL"
        found = read["nvtx"][["text", "domain"]].astype(str).to_numpy().tolist()
        assert found == [list(pair) for pair in zip(texts, [*domains[:-1], last], strict=True)]
        assert read.metadata["source"] == source
