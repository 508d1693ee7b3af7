"""Hostile and damaged recordings: one clear error or a trace, in bounded time and memory, and nothing executed."""

import json
import os
import shutil
import sqlite3
import sys
import zipfile
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from dashboard.reading.store import RunStore
from tests.fuzz.contract import assert_clear, check
from tests.programs import ran
from tests.tracer import kineto
from tests.tracer.hostile import HARMLESS, REFUSED, count
from tests.tracer.nsys_exports import DATA, GLOBAL_TID, KERNELS, RECORDING, STEPS, export, export_of_2021, tampered
from tests.tracer.pftraces import of_kineto, of_rocprofv3
from tests.tracer.rocm_files import Database, csv_folder, hip
from tracer import formats
from tracer.errors import FormatError
from tracer.model import run_json
from tracer.model.graph_json import read_graph
from tracer.model.schema import MOST_NS

fuzz = settings(max_examples=4, suppress_health_check=[*HealthCheck], phases=(Phase.explicit, Phase.generate))

INTEGERS = st.sampled_from([0, -1, 1, 2, 100, 2**24 - 1, 2**31, 2**32 - 1, 2**48, 2**62, 2**63 - 1, -(2**63)])
ODD = st.none() | INTEGERS | st.sampled_from([0.5, 1e300, "", "7", "text", b"\xff", b""])
FLIPS = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with a good recording in each form, and an empty directory `out`."""
    place = tmp_path_factory.mktemp("fuzz")
    export(place / "3.20.sqlite", STEPS)
    export(place / "3.25.sqlite", STEPS, schema="3.25.0")
    export_of_2021(place / "2021.sqlite")
    formats.write(formats.read(place / "3.20.sqlite"), place / "run")
    kineto.write(place / "a.json", kineto.GPU)
    kineto.write(place / "a.json.gz", kineto.GPU)
    with zipfile.ZipFile(place / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(place / "a.json", "a.json")
    csv_folder(place, hip(3))
    Database(place / "rocm.db", hip(3))
    of_rocprofv3(hip(3), place / "rocm.pftrace")
    of_kineto(kineto.GPU, place / "kineto.pftrace")
    (place / "out").mkdir()
    return place


def _flipped(content, flips):
    damaged = bytearray(content)
    for at, byte in flips:
        damaged[at % len(damaged)] = byte
    return bytes(damaged)


def _copy_of_run(place):
    shutil.rmtree(place / "copied", ignore_errors=True)
    return Path(shutil.copytree(place / "run", place / "copied"))


@fuzz
@given(data=st.data(), version=st.sampled_from(["3.20", "3.25", "2021"]))
def test_any_values_in_an_export(place, data, version):
    path = shutil.copy(place / f"{version}.sqlite", place / "values.sqlite")
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA ignore_check_constraints = ON")
        for _ in range(data.draw(st.integers(1, 4))):
            table = data.draw(st.sampled_from(sorted(STEPS)))
            columns = [name for _, name, *_ in database.execute(f"PRAGMA table_info({table})")]
            column, value = data.draw(st.sampled_from(columns)), data.draw(ODD)
            where = data.draw(st.sampled_from(["", "WHERE rowid = 1", "WHERE rowid > 1"]))
            try:
                database.execute(f"UPDATE {table} SET {column} = ? {where}", (value,))
            except sqlite3.IntegrityError:
                continue
        database.commit()
    check(Path(path), place / "out")


FILES = (
    "3.20.sqlite", "a.json", "a.json.gz", "100_kernel_trace.csv", "100_hip_api_trace.csv", "rocm.db", "a.zip",
    "rocm.pftrace", "kineto.pftrace",
)  # fmt: skip


@settings(fuzz, max_examples=16)
@given(flips=FLIPS, source=st.sampled_from(FILES))
def test_any_bytes_in_a_file(place, source, flips):
    path = place / f"flipped-{source}"
    path.write_bytes(_flipped((place / source).read_bytes(), flips))
    check(path, place / "out")
    path.unlink()  # a reader of rocprofv3's folders would read it beside the next one


@fuzz
@given(
    file=st.sampled_from([KERNELS, "StringIds", "NVTX_EVENTS", "META_DATA_EXPORT"]),
    flips=FLIPS,
    kept=st.integers(0, 10**4),
)
def test_any_bytes_in_a_directory(place, file, flips, kept):
    path = _copy_of_run(place)
    content = (path / f"{file}.parquet").read_bytes()
    (path / f"{file}.parquet").write_bytes(_flipped(content, flips)[: kept if kept % 4 == 0 else None])
    check(path, place / "out")


@fuzz
@given(metadata=JSON, notes=JSON, run=JSON)
@example(metadata=False, notes=["\x1b[31m\n"], run=10**400)
@example(metadata="\ud800", notes=[], run=5e-324)
def test_any_metadata(place, metadata, notes, run):
    path = _copy_of_run(place)
    keys = ("run", "source", "start_utc_ns", "clock")
    rows = {"INTERTOKEN_METADATA": dict.fromkeys(keys, metadata), "INTERTOKEN_NOTES": notes if notes else []}
    values = [json.dumps(value) for value in rows.values()]
    pq.write_table(pa.table({"name": list(rows), "value": values}), path / "META_DATA_EXPORT.parquet")
    measured = {"steps_per_s": {"median": run}, "tokens_per_s": run}
    (path / "run.json").write_text(json.dumps({"measured": measured, "configuration": run, "ranges": run}))
    trace = check(path, place / "out")
    if trace is not None:
        rate = run_json.steps_per_s(trace)
        assert rate is None or 0 < rate < float("inf")
        assert [run.trace is not None for run in RunStore([path]).runs()] == [True]


GRAPHS = json.loads((DATA / "bad-graphs.json").read_text())
GOOD = GRAPHS["good"]


def test_a_graph_is_read_or_refused_in_one_line(tmp_path):
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(GOOD | {"something": "newer"}))
    graph = read_graph(path)
    assert (graph.nodes[2].src, graph.nodes[0].weight_bytes) == ((1,), 0)
    assert (graph.readers, graph.index) == ([[1], [2], []], {"a": 0, "b": 1, "c": 2})
    for change, says in GRAPHS["bad"]:
        content = GOOD | change if isinstance(change, dict) else change
        for name, parts in change.items() if isinstance(change, dict) else ():
            if isinstance(parts, dict) and parts:  # changes the first of several
                content[name] = [GOOD[name][0] | parts, *GOOD[name][1:]]
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        with pytest.raises(FormatError) as caught:
            read_graph(path)
        assert says in str(caught.value), change
        assert_clear(str(caught.value), path)
    path.write_text("[" * 100_000)
    with pytest.raises(FormatError, match="not valid JSON"):
        read_graph(path)
    os.truncate(path, 9 * 2**20)
    with pytest.raises(FormatError, match="larger than the limit of 8 MiB"):
        read_graph(path)
    path.unlink()
    with pytest.raises(FormatError, match=r"graph\.json"):
        read_graph(path)


@settings(fuzz, max_examples=100)
@given(key=st.sampled_from(sorted(GOOD)), value=JSON, node=st.sampled_from([None, *GOOD["nodes"][2]]))
def test_any_graph(place, key, value, node):
    path = place / "graph.json"
    path.write_text(
        json.dumps(GOOD | ({key: value} if node is None else {"nodes": [GOOD["nodes"][0] | {node: value}]}))
    )
    try:
        json.dumps(read_graph(path).nodes[0].name, ensure_ascii=False).encode()
    except FormatError as error:
        assert_clear(str(error), path)


@pytest.mark.parametrize("case", HARMLESS)
def test_nothing_of_an_export_is_executed(place, tmp_path, case):
    path = tampered(tmp_path / "a.sqlite", *HARMLESS[case], rows=STEPS)
    before = path.read_bytes()
    trace = check(path, place / "out")
    assert trace is not None
    assert path.read_bytes() == before
    is_virtual = "VIRTUAL" in "".join(HARMLESS[case])
    assert f"{KERNELS} is a virtual table instead of a stored table; it is not read" in trace.notes or not is_virtual
    assert len(trace["api"]) == 6
    assert len(trace["kernels"]) == (0 if f"DROP TABLE {KERNELS}" in HARMLESS[case] else 3)
    assert {path.name for path in tmp_path.iterdir()} == {"a.sqlite"}


@pytest.mark.parametrize("case", REFUSED)
def test_an_export_that_is_refused(tmp_path, case):
    statements, says = REFUSED[case]
    path = tampered(tmp_path / "a.sqlite", *statements)
    with pytest.raises(FormatError) as caught:
        formats.read(path)
    assert says in str(caught.value)
    assert_clear(str(caught.value), path)


def test_times_that_stand_for_none_elsewhere_and_the_farthest(place, tmp_path):
    for time in (-1, 0, -(2**40), -MOST_NS + 1):
        path = tampered(tmp_path / f"{time}.sqlite", f"UPDATE {KERNELS} SET start = {time}", rows=STEPS)
        trace = check(path, place / "out")
        assert trace is not None
        assert trace["kernels"]["start"].min() == time


def test_ids_shared_by_all_rows_do_not_multiply(place, tmp_path):
    times, devices = 50, 1_000
    rows = {
        **{table: [row | {"correlationId": 1} if "correlationId" in row else row for row in rows] * times
           for table, rows in RECORDING.items() if "ACTIVITY" in table or "NVTX" in table},
        "TARGET_INFO_GPU": [{"vmId": 1, "id": 3, "name": "x"}] * devices,
        "TARGET_INFO_CUDA_DEVICE": [{"gpuId": 3, "cudaId": i, "pid": i} for i in range(devices)],
    }  # fmt: skip
    trace = check(export(tmp_path / "a.sqlite", rows), place / "out")
    assert trace is not None
    assert len(trace["devices"]) == 1  # one GPU under many numbers
    assert len(trace["syncs"]) == times * len(RECORDING["CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"])
    ranges = [STEPS["NVTX_EVENTS"][0] | {"globalTid": GLOBAL_TID + i} for i in range(1000)]  # a step of each thread
    assert check(export(tmp_path / "b.sqlite", {**STEPS, "NVTX_EVENTS": ranges}), place / "out") is not None


def test_tables_that_exports_have_not(place):
    path = _copy_of_run(place)
    pq.write_table(pa.table({"x": [1]}), path / "sqlite_master.parquet")
    pq.write_table(pa.table({"x": [1]}), path / "stringids.parquet")
    trace = check(path, place / "out")
    assert trace is not None
    assert trace.notes == ["2 tables or columns with names or types unknown to nsys are left out"]


@pytest.mark.parametrize("fields", [{"ts": 9e15}, {"cat": "\udfff"}, {"name": "\ud800x"}, {"args": {"device": 2**63}}])
def test_chrome_events_with_odd_values(place, tmp_path, fields):
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": -4e15, "dur": 1, "args": {"device": 0}}
    path = kineto.write(tmp_path / "a.json", {"schemaVersion": "\ud800", "traceEvents": [kernel, kernel | fields]})
    trace = check(path, place / "out")
    assert (trace is None) == ("cat" in fields)
    assert trace is None or len(trace["kernels"]) + len(trace.notes) == 2


@pytest.mark.parametrize("found", sorted((DATA / "fuzz").glob("*.parquet")), ids=lambda path: path.stem)
def test_parquet_that_fuzzing_found(place, tmp_path, found):
    shutil.copy(found, tmp_path / "StringIds.parquet")
    assert check(tmp_path, place / "out") is None


def cyclic_pages(path):
    tampered(path, "CREATE TABLE t (x)", f"INSERT INTO t SELECT '{'long' * 200}' FROM {count(5000)}")
    with closing(sqlite3.connect(path)) as database:
        (root,) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 't'").fetchone()
    content = bytearray(path.read_bytes())
    page = memoryview(content)[(root - 1) * 4096 : root * 4096]
    assert page[0] == 5  # the root is an interior page: a 12-byte header, then 2-byte pointers to its cells
    cells = [int.from_bytes(page[12 + 2 * i : 14 + 2 * i], "big") for i in range(int.from_bytes(page[3:5], "big"))]
    for cell in cells:  # all but the last subtree are the first one
        page[cell : cell + 4] = bytes(page[cells[0] : cells[0] + 4])
    page[8:12] = root.to_bytes(4, "big")  # and the last one is the whole tree again
    path.write_bytes(content)


@pytest.mark.skipif(sys.platform != "linux", reason="limits a process's memory as Linux does")
def test_memory_stays_within_a_multiple_of_the_file(tmp_path):
    """Processes read them, with 1 GiB beyond their imports and 32 bytes for every byte of a file."""
    sparse = f"INSERT INTO StringIds SELECT i * 9000000000000 + 100, 's' || i FROM {count(300_000)}"
    named = f"UPDATE {KERNELS} SET shortName = 9000000000100, demangledName = {2**63 - 1}"
    tampered(tmp_path / "sparse.sqlite", sparse, named)
    cyclic_pages(tmp_path / "cyclic.sqlite")
    texts = pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), 1_000_000), pa.array(["x" * 100_000]))
    bombs = {
        "number": pa.table({"id": pa.repeat(7, 20_000_000), "value": pa.repeat("", 20_000_000)}),
        "text": pa.table({"id": range(1_000_000), "value": texts}),
        "long": pa.table({"id": range(9), "value": pa.array(["x" * 30_000_000] * 9)}),
    }
    for name, table in bombs.items():
        (tmp_path / name).mkdir()
        file, plain = tmp_path / name / "StringIds.parquet", name == "long"
        pq.write_table(table, file, compression="snappy" if name == "number" else "zstd", use_dictionary=not plain)
        assert file.stat().st_size < 12 << 20
    paths = [tmp_path / name for name in ("sparse.sqlite", "cyclic.sqlite", *bombs)]
    threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
    done = ran("read within a limit", *paths, timeout=120, env=os.environ | threads)
    assert done.returncode == 0, done.stderr[-2000:]
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert said["sparse.sqlite"] == str(len(RECORDING[KERNELS]))
    assert "used more than once" in said["cyclic.sqlite"] or "malformed" in said["cyclic.sqlite"]
    assert all("more than 200 times its size; it is not read" in said[name] for name in bombs)
