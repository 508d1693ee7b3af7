"""Hostile and damaged recordings: one clear error or a trace, in bounded time and memory, and nothing executed."""

import json
import shutil
import sqlite3
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from dashboard.reading.store import RunStore
from tests.covering import each_value
from tests.fuzz.contract import assert_clear, check
from tests.tracer.hostile import HARMLESS, KERNELS, REFUSED, tampered
from tests.tracer.nsys_exports import DATA, GLOBAL_TID, RECORDING, Rows, export, export_of_2021
from tracer import formats
from tracer.cli import main
from tracer.errors import FormatError
from tracer.model import run_json
from tracer.model.graph_json import read_graph
from tracer.model.schema import MOST_NS

fuzz = settings(
    settings(max_examples=4),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate),
)

_STEPS: Rows = {
    "StringIds": [{"id": 1, "value": "cudaLaunchKernel_v7000"}, {"id": 2, "value": "cudaStreamSynchronize"}],
    KERNELS: [RECORDING[KERNELS][1] | {"start": t + 5, "end": t + 50, "correlationId": t} for t in (100, 200, 300)],
    "CUPTI_ACTIVITY_KIND_RUNTIME": [
        {"start": t, "end": t + 3, "globalTid": GLOBAL_TID, "correlationId": t, "nameId": name, "eventClass": 0}
        for first in (100, 200, 300)
        for t, name in ((first, 1), (first + 40, 2))
    ],
    "NVTX_EVENTS": [
        {"start": t, "end": t + 90, "eventType": 59, "text": "token", "globalTid": GLOBAL_TID, "domainId": 0}
        for t in (100, 200, 300)
    ],
    "META_DATA_EXPORT": RECORDING["META_DATA_EXPORT"],
}
"""Three token steps; damage of it is still analysed."""

INTEGERS = st.sampled_from([0, -1, 1, 2, 100, 2**24 - 1, 2**31, 2**32 - 1, 2**48, 2**62, 2**63 - 1, -(2**63)])
ODD = st.none() | INTEGERS | st.sampled_from([0.5, 1e300, "", "7", "text", b"\xff", b""])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a good recording in each form, and an empty directory `out`."""
    place = tmp_path_factory.mktemp("fuzz")
    export(place / "3.20.sqlite", _STEPS)
    export(place / "3.25.sqlite", _STEPS, schema="3.25.0")
    export_of_2021(place / "2021.sqlite")
    with sqlite3.connect(place / "small.sqlite") as database:
        database.execute(f"CREATE TABLE {KERNELS} (start, end, deviceId, streamId, demangledName)")
        database.execute("CREATE TABLE StringIds (id, value)")
        database.executemany(f"INSERT INTO {KERNELS} VALUES (?, ?, 0, 7, 1)", [(i, i + 1) for i in range(100)])
        database.executemany("INSERT INTO StringIds VALUES (?, ?)", [(i, f"name {i}" * 300) for i in range(5)])
    database.close()
    formats.write(formats.read(place / "3.20.sqlite"), place / "run")
    (place / "out").mkdir()
    return place


@fuzz
@given(data=st.data(), version=st.sampled_from(["3.20", "3.25", "2021"]))
def test_any_values_in_an_export(place: Path, data: st.DataObject, version: str) -> None:
    path = shutil.copy(place / f"{version}.sqlite", place / "values.sqlite")
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA ignore_check_constraints = ON")
        for _ in range(data.draw(st.integers(1, 4))):
            table = data.draw(st.sampled_from(sorted(_STEPS)))
            columns = [name for _, name, *_ in database.execute(f"PRAGMA table_info({table})")]
            column, value = data.draw(st.sampled_from(columns)), data.draw(ODD)
            where = data.draw(st.sampled_from(["", "WHERE rowid = 1", "WHERE rowid > 1"]))
            try:
                database.execute(f"UPDATE {table} SET {column} = ? {where}", (value,))
            except sqlite3.IntegrityError:
                continue
    database.close()
    check(Path(path), place / "out")


@pytest.mark.parametrize(("time", "where"), each_value(product([-1, 0, -(2**40)], ["", "WHERE rowid = 1"])))
def test_a_time_that_stands_for_none_elsewhere(place: Path, time: int, where: str) -> None:
    path = Path(shutil.copy(place / "3.20.sqlite", place / "times.sqlite"))
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"UPDATE {KERNELS} SET start = ? {where}", (time,))
        database.commit()
    trace = check(path, place / "out")
    assert trace is not None
    assert trace["kernels"]["start"].min() == time


@fuzz
@given(flips=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=8))
@pytest.mark.parametrize("source", ["small.sqlite", "3.20.sqlite"])
def test_any_bytes_in_an_export(place: Path, source: str, flips: list[tuple[int, int]]) -> None:
    path = place / "flipped.sqlite"
    path.write_bytes(_flipped((place / source).read_bytes(), flips))
    check(path, place / "out")


@fuzz
@given(
    file=st.sampled_from([KERNELS, "StringIds", "NVTX_EVENTS", "META_DATA_EXPORT"]),
    flips=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=6),
    kept=st.integers(0, 10**4),
)
def test_any_bytes_in_a_directory(place: Path, file: str, flips: list[tuple[int, int]], kept: int) -> None:
    path = _copy_of_run(place)
    content = (path / f"{file}.parquet").read_bytes()
    (path / f"{file}.parquet").write_bytes(_flipped(content, flips)[: kept if kept % 4 == 0 else None])
    check(path, place / "out")


@fuzz
@given(metadata=JSON, notes=JSON, run=JSON)
@example(metadata=False, notes=["\x1b[31m\n"], run=10**400)
@example(metadata="\ud800", notes=[], run=5e-324)
def test_any_metadata(place: Path, metadata: Any, notes: Any, run: Any) -> None:
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


GRAPH: dict[str, Any] = {
    "schema": "intertoken.graph/1", "nodes": [{"name": "a", "op": "ADD", "shape": [1], "dtype": "f32", "nbytes": 4,
    "stream": 0}], "leaves": [], "regions": [], "launches": [0], "waits": [], "streams": 1, "weights": 0,
    "weight_bytes": 0, "memory": [], "allocator": "sequential",
}  # fmt: skip


@settings(fuzz, max_examples=100)
@given(
    key=st.sampled_from(sorted(GRAPH)), value=JSON, node=st.sampled_from([None, *GRAPH["nodes"][0], "src", "region"])
)
def test_any_graph(tmp_path_factory: pytest.TempPathFactory, key: str, value: Any, node: str | None) -> None:
    path = tmp_path_factory.getbasetemp() / "graph.json"
    graph = GRAPH | ({key: value} if node is None else {"nodes": [GRAPH["nodes"][0] | {node: value}]})
    path.write_text(json.dumps(graph))
    try:
        json.dumps(read_graph(path).nodes[0].name, ensure_ascii=False).encode()
    except FormatError as error:
        assert_clear(str(error), path)


@pytest.mark.parametrize("case", HARMLESS)
def test_nothing_of_an_export_is_executed(place: Path, tmp_path: Path, case: str) -> None:
    trace = check(tampered(tmp_path / "a.sqlite", *HARMLESS[case], rows=_STEPS), place / "out")
    assert trace is not None
    assert len(trace["api"]) == 6
    assert len(trace["kernels"]) == (0 if f"DROP TABLE {KERNELS}" in HARMLESS[case] else 3)
    assert {path.name for path in tmp_path.iterdir()} == {"a.sqlite"}


@pytest.mark.parametrize("case", REFUSED)
def test_an_export_that_is_refused(place: Path, tmp_path: Path, case: str) -> None:
    statements, message = REFUSED[case]
    path = tampered(tmp_path / "a.sqlite", *statements)
    with pytest.raises(FormatError, match=message):
        formats.read(path)
    assert_clear(CliRunner().invoke(main, ["convert", str(path), str(tmp_path / "b")]).stderr[12:-1], path)


def test_the_commands_refuse_in_one_line(tmp_path: Path) -> None:
    path = tampered(tmp_path / "a.sqlite", rows={**_STEPS, KERNELS: [_STEPS[KERNELS][0] | {"end": -(2**63)}]})
    for command in ("info", "tokens", "syncs", "gaps", "streams"):
        result = CliRunner().invoke(main, [command, str(path)])
        assert result.exit_code == 2
        assert result.stderr == (
            f"intertoken: {path}: table {KERNELS}, column end holds -9223372036854775808, which is not a time in ns\n"
        )


@pytest.mark.parametrize("kind", ["wal", "journal"])
def test_files_beside_an_export_are_neither_read_nor_changed(tmp_path: Path, kind: str) -> None:
    path = export(tmp_path / "a.sqlite", _STEPS)
    database = sqlite3.connect(path, isolation_level=None)
    database.execute(f"PRAGMA journal_mode = {'WAL' if kind == 'wal' else 'PERSIST'}")
    database.execute("PRAGMA cache_size = 1")
    database.execute("BEGIN")
    database.execute(f"DELETE FROM {KERNELS}")
    if kind == "wal":
        database.execute("COMMIT")
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in (path, path.with_name(f"a.sqlite-{kind}")):  # as it is after a crash
        shutil.copy(file, copy)
    database.close()
    before = {file.name: file.read_bytes() for file in copy.iterdir()}
    assert before[f"a.sqlite-{kind}"]
    trace = formats.read(copy / "a.sqlite")
    assert f"changes that are still in a.sqlite-{kind} are not read" in trace.notes
    assert {file.name: file.read_bytes() for file in copy.iterdir()} == before


@pytest.mark.parametrize("time", [MOST_NS, -MOST_NS])
def test_times_beyond_which_differences_overflow(place: Path, tmp_path: Path, time: int) -> None:
    assert check(export(tmp_path / "a.sqlite", {KERNELS: [RECORDING[KERNELS][0] | {"start": time}]}), tmp_path) is None
    nearly = [RECORDING[KERNELS][0] | {"start": -MOST_NS + 1, "end": MOST_NS - 1}] * 2
    assert check(export(tmp_path / "b.sqlite", {KERNELS: nearly}), place / "out") is not None


def test_ids_shared_by_all_rows_do_not_multiply(place: Path, tmp_path: Path) -> None:
    times, devices = 100, 1_500
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


def test_each_thread_of_thousands_has_a_step(place: Path, tmp_path: Path) -> None:
    threads = [GLOBAL_TID + i for i in range(2000)]
    ranges = [_STEPS["NVTX_EVENTS"][0] | {"globalTid": thread} for thread in threads]
    assert check(export(tmp_path / "a.sqlite", {**_STEPS, "NVTX_EVENTS": ranges}), place / "out") is not None


def test_columns_of_one_name_and_of_types_that_exports_have_not(place: Path) -> None:
    path = _copy_of_run(place)
    table = pq.read_table(path / "StringIds.parquet")
    nested = table.append_column("list", pa.array([[1]] * len(table)))
    pq.write_table(nested, path / "StringIds.parquet")
    pq.write_table(pa.table({"x": [1]}), path / "sqlite_master.parquet")
    pq.write_table(pa.table({"x": [1]}), path / "stringids.parquet")
    trace = check(path, place / "out")
    assert trace is not None
    assert trace.notes == ["3 tables or columns with names or types unknown to nsys are left out"]
    pq.write_table(pa.Table.from_arrays([table["id"], table["id"]], ["id", "id"]), path / "StringIds.parquet")
    with pytest.raises(FormatError, match="two columns of the same name"):
        formats.read(path)


@pytest.mark.parametrize("fields", [{"ts": 9e15}, {"cat": "\udfff"}, {"name": "\ud800x"}, {"args": {"device": 2**63}}])
def test_chrome_events_with_odd_values(place: Path, tmp_path: Path, fields: dict[str, Any]) -> None:
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": -4e15, "dur": 1, "args": {"device": 0}}
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"schemaVersion": "\ud800", "traceEvents": [kernel, kernel | fields]}))
    trace = check(path, place / "out")
    if "cat" in fields:
        assert trace is None
    else:
        assert trace is not None
        assert len(trace["kernels"]) + len(trace.notes) == 2


@pytest.mark.parametrize("found", sorted((DATA / "fuzz").glob("*.parquet")), ids=lambda path: path.stem)
def test_parquet_that_fuzzing_found(place: Path, tmp_path: Path, found: Path) -> None:
    shutil.copy(found, tmp_path / "StringIds.parquet")
    assert check(tmp_path, place / "out") is None


def _flipped(content: bytes, flips: list[tuple[int, int]]) -> bytes:
    damaged = bytearray(content)
    for at, byte in flips:
        damaged[at % len(damaged)] = byte
    return bytes(damaged)


def _copy_of_run(place: Path) -> Path:
    shutil.rmtree(place / "copied", ignore_errors=True)
    return Path(shutil.copytree(place / "run", place / "copied"))
