"""What each column of a nsys export becomes."""

import gzip
import sqlite3
from contextlib import closing
from itertools import zip_longest
from pathlib import Path

import pytest

from tests.tracer.nsys_exports import DATA, PID, RECORDING, SCHEMAS, TID, export, export_of_2021
from tracer import formats
from tracer.analysis.tokens import find_steps
from tracer.errors import EmptyTraceError, FormatError
from tracer.formats.nsys_schema import COLUMNS, ENUMS, REQUIRED
from tracer.model.schema import API_LAYERS, MEMCPY_KINDS, MEMORY_KINDS, NVTX_KINDS, SYNC_TYPES, TABLES
from tracer.model.trace import Trace


@pytest.fixture(scope="module", params=["3.20.3", "3.25.0"])
def trace(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trace:
    path = tmp_path_factory.mktemp("nsys") / "recording.sqlite"
    derived = {"CUPTI_ACTIVITY_KIND_KERNEL.graphId"}  # 3.25 has it; what 3.20 lacks is derived
    return formats.read(export(path, schema=request.param, without_columns=derived))


def values(trace: Trace, table: str, *columns: str) -> list[tuple[object, ...]]:
    return list(trace[table][list(columns)].itertuples(index=False, name=None))


def test_kernels_are_named_placed_and_in_order(trace: Trace) -> None:
    assert values(trace, "kernels", "start", "end", "name", "short_name", "correlation", "process") == [
        (100, 200, "string 99", "mul", 1, PID),  # the export lacks string 99
        (300, 400, "void mul<float>(int)", "mul", 2, PID),
    ]
    known = ["start", "end", "name", "short_name", "correlation", "process"]
    later = trace["kernels"].iloc[1][[c for c in TABLES["kernels"].column_names if c not in known]]
    assert later.to_dict() == {
        "device": 1, "context": 2, "stream": 7, "grid_x": 5, "grid_y": 6, "grid_z": 7, "block_x": 8,
        "block_y": 9, "block_z": 10, "registers": 32, "static_shared": 16, "dynamic_shared": 64,
        "graph_node": 5 << 32 | 3, "graph": 5,
    }  # fmt: skip


def test_a_kernel_outside_a_graph_has_none(trace: Trace) -> None:
    assert values(trace, "kernels", "graph_node", "graph")[0] == (-1, -1)


def test_stored_graph_ids_win_over_derived_ones(tmp_path: Path) -> None:
    name = "CUPTI_ACTIVITY_KIND_KERNEL"
    rows = {name: [row | {"graphId": 70} for row in RECORDING[name]]}
    assert set(formats.read(export(tmp_path / "a.sqlite", rows, schema="3.25.0"))["kernels"]["graph"]) == {70}


def test_copies_and_fills(trace: Trace) -> None:
    assert values(trace, "memcpys", "kind", "bytes", "src_kind", "dst_kind", "src_device") == [
        ("HtoD", 4096, "pinned", "device", -1),
        ("unknown", 1, "unknown", "unknown", -1),
    ]
    assert values(trace, "memsets", "value", "bytes", "mem_kind", "graph_node") == [(255, 8, "managed", -1)]


def test_api_calls(trace: Trace) -> None:
    rows = values(trace, "api", "process", "thread", "correlation", "name", "return_value", "layer")
    assert rows[0] == (PID, TID, 1, "cudaLaunchKernel_v7000", 0, "runtime")
    assert rows[5] == (PID, TID, 14, "cuCtxSynchronize", 0, "driver")


def test_sync_types_follow_the_call_not_the_stored_type(trace: Trace) -> None:
    assert values(trace, "syncs", "correlation", "type", "event") == [
        (10, "stream", -1),
        (11, "stream wait", 6),
        (12, "event", -1),
        (13, "context", -1),
        (14, "context", -1),
        (15, "unknown", -1),  # cudaFree waits for no event, whatever nsys stored
        (77, "stream wait", -1),  # the call was not recorded: what nsys stored
    ]


def test_events_and_graph_launches(trace: Trace) -> None:
    assert values(trace, "cuda_events", "correlation", "event", "event_sync") == [(21, 6, 1), (22, -1, -1)]
    columns = ("start", "end", "device", "graph", "graph_exec", "correlation")
    assert values(trace, "graph_launches", *columns) == [(2000, 2100, 1, 5, 6, 30)]


def test_nvtx(trace: Trace) -> None:
    assert values(trace, "nvtx", "start", "end", "text", "kind", "domain", "process", "thread") == [
        (50, 450, "token 0", "push/pop", "", PID, TID),
        (60, 2100, "open", "push/pop", "NCCL", PID, TID),
        (70, 70, "mark", "mark", "engine", PID, TID),
        (80, 90, "s/e", "start/end", "domain 4", PID, TID),
    ]
    assert values(trace, "nvtx", "category", "color", "range_id") == [
        (-1, 255, -1), (-1, -1, -1), (3, -1, -1), (-1, -1, 12),
    ]  # fmt: skip
    assert trace["nvtx"]["payload"].isna().all()
    assert trace.notes == ["1 NVTX range was never closed; it ends with the recording"]


def test_open_ranges_are_counted_and_end_with_the_last_nvtx_event(tmp_path: Path) -> None:
    rows = [{"start": start, "end": None, "eventType": 59, "text": "x"} for start in (5, 6, 900)]
    trace = formats.read(export(tmp_path / "a.sqlite", {"NVTX_EVENTS": rows}))
    assert trace["nvtx"]["end"].tolist() == [900, 900, 900]
    assert trace.notes == ["3 NVTX ranges were never closed; they end with the recording"]


@pytest.mark.parametrize(
    ("column", "stored", "payload"),
    [
        ("uint64Value", 7, 7.0),
        ("uint64Value", -1, 2.0**64 - 1),
        ("int64Value", -3, -3.0),
        ("doubleValue", 0.5, 0.5),
        ("uint32Value", 4_000_000_000, 4e9),
        ("int32Value", -8, -8.0),
        ("floatValue", 0.25, 0.25),
    ],
)
def test_nvtx_payloads(tmp_path: Path, column: str, stored: float, payload: float) -> None:
    rows = [{"start": 1, "end": 2, "eventType": 59, "text": "x", column: stored}]
    assert formats.read(export(tmp_path / "a.sqlite", {"NVTX_EVENTS": rows}))["nvtx"]["payload"].tolist() == [payload]


def test_domains_are_counted_by_each_process(tmp_path: Path) -> None:
    rows = [
        {"start": 1, "eventType": type, "text": text, "domainId": 1, "globalTid": pid << 24, "end": 2}
        for pid, name in ((1, "A"), (2, "B"))
        for type, text in ((75, name), (59, "range"))
    ]
    trace = formats.read(export(tmp_path / "a.sqlite", {"NVTX_EVENTS": rows}))
    assert values(trace, "nvtx", "process", "domain") == [(1, "A"), (2, "B")]


def test_descriptions(trace: Trace) -> None:
    assert values(trace, "devices", *trace["devices"].columns) == [
        (1, "H200", 132, 1 << 37, 4814304000000, 1980000000),  # under the id that kernels use
    ]
    assert values(trace, "streams", "process", "context", "stream", "priority", "flag") == [(PID, 2, 7, -1, 3)]
    assert values(trace, "threads", "process", "thread", "name") == [(PID, TID, "worker")]
    assert values(trace, "processes", "process", "name") == [(PID, "engine")]


def test_metadata(trace: Trace) -> None:
    assert trace.metadata == {
        "source": "nsys 2025.3.2.0",
        "schema_version": "3.20.3",
        "start_utc_ns": 1795227667831034602,
    }


def test_exports_of_2021(tmp_path: Path) -> None:
    trace = formats.read(export_of_2021(tmp_path / "a.sqlite"))
    assert set(trace["syncs"]["type"]) == {"stream"}
    assert trace["kernels"]["graph"].tolist() == [-1, -1]
    assert len(trace["kernels"]) == 2
    assert trace["devices"]["sm_count"].tolist() == [-1]


KNOWN_OTHERWISE = {
    "CUPTI_ACTIVITY_KIND_KERNEL.graphId",  # from graphNodeId
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION.syncType",  # from the call
    "NVTX_EVENTS.text",  # from textId
    "PROCESSES.pid",  # from globalPid
}


def _optional_columns() -> list[set[str]]:
    """One of every table at a time, which are read apart from each other."""
    by_table = [[f"{t}.{c}" for c in COLUMNS[t] if c not in REQUIRED.get(t, ())] for t in RECORDING]
    return [{column for column in row if column is not None} for row in zip_longest(*by_table)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """What is read of an export with all its columns."""
    return formats.read(export(tmp_path_factory.mktemp("whole") / "a.sqlite"))


@pytest.mark.parametrize("missing", _optional_columns(), ids=lambda missing: " ".join(sorted(missing)))
def test_any_optional_column_may_be_missing(tmp_path: Path, whole: Trace, missing: set[str]) -> None:
    trace = formats.read(export(tmp_path / "a.sqlite", without_columns=missing))
    for name, table in TABLES.items():
        assert len(trace[name]) == len(whole[name])
        for c in table.columns:
            if f"{table.nsys}.{c.nsys}" in missing - KNOWN_OTHERWISE:
                assert trace[name][c.name].isin([c.default]).all()


@pytest.mark.parametrize("table", sorted(RECORDING))
def test_any_table_may_be_missing(tmp_path: Path, table: str) -> None:
    trace = formats.read(export(tmp_path / "a.sqlite", without_tables={table}))
    for name, schema in TABLES.items():
        assert (len(trace[name]) == 0) == (schema.nsys == table)


def test_names_without_a_string_table_stay_distinct(tmp_path: Path) -> None:
    trace = formats.read(export(tmp_path / "a.sqlite", without_tables={"StringIds"}))
    assert trace["kernels"]["name"].tolist() == ["string 99", "string 3"]


@pytest.mark.parametrize(
    ("enum", "words"),
    [
        ("ENUM_CUDA_MEMCPY_OPER", MEMCPY_KINDS), ("ENUM_CUDA_MEM_KIND", MEMORY_KINDS),
        ("ENUM_CUPTI_SYNC_TYPE", SYNC_TYPES), ("ENUM_NSYS_EVENT_CLASS", API_LAYERS),
        ("ENUM_NSYS_EVENT_TYPE", NVTX_KINDS),
    ],
)  # fmt: skip
def test_our_words_have_the_same_ids_in_every_nsys(enum: str, words: dict[str, int]) -> None:
    written = {id: (name, label) for id, name, label in ENUMS[enum] if id in words.values()}
    assert written.keys() == set(words.values())
    for schema in SCHEMAS.values():
        rows = {id: (name, label) for id, name, label in schema["enums"][enum]["rows"]}
        assert written.items() <= rows.items()


def test_a_real_export(tmp_path: Path) -> None:
    path = tmp_path / "llama.sqlite"
    path.write_bytes(gzip.decompress((DATA / "llama1b-saaas-graph.sqlite.gz").read_bytes()))
    trace = formats.read(path)
    assert {name: len(frame) for name, frame in trace.tables.items() if len(frame)} == {
        "kernels": 342, "memcpys": 617, "memsets": 1, "api": 2015, "syncs": 476, "graph_launches": 64,
        "streams": 10, "devices": 1, "threads": 9,
    }  # fmt: skip
    assert set(trace["syncs"]["type"]) == {"stream"}  # nsys 2025.3 stored "stream wait"
    assert trace["devices"]["name"].tolist() == ["NVIDIA H200"]
    assert trace["kernels"]["start"].is_monotonic_increasing
    assert trace.metadata["source"] == "nsys 2025.3.2.0"


def test_nothing_in_the_file_is_changed_or_run(tmp_path: Path) -> None:
    path = export(tmp_path / "a.sqlite", without_tables={"NVTX_EVENTS", "ThreadNames"})
    with sqlite3.connect(path) as database:
        database.execute("CREATE VIEW NVTX_EVENTS AS SELECT 1 AS start, 2 AS end, 59 AS eventType, 'x' AS text")
        database.execute("CREATE VIRTUAL TABLE ThreadNames USING fts5(nameId, globalTid)")
        database.execute("CREATE TRIGGER t AFTER INSERT ON StringIds BEGIN DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL; END")
    database.close()
    before = path.read_bytes()
    trace = formats.read(path)
    assert len(trace["nvtx"]) == 0
    assert len(trace["threads"]) == 0
    assert len(trace["kernels"]) == 2
    assert trace.notes == [
        "NVTX_EVENTS is a view instead of a stored table; it is not read",
        "ThreadNames is a virtual table instead of a stored table; it is not read",
    ]
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.sqlite"]


@pytest.mark.parametrize("options", [{}, {"whole": False}, {"whole": False, "samples": True}])
def test_kernels_that_are_a_view_are_named_in_a_note(tmp_path: Path, options: dict[str, bool]) -> None:
    said = "CUPTI_ACTIVITY_KIND_KERNEL is a view instead of a stored table; it is not read"
    path = export(tmp_path / "a.sqlite", without_tables={"CUPTI_ACTIVITY_KIND_GRAPH_TRACE"})
    with closing(sqlite3.connect(path)) as database:
        database.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME TO kept")
        database.execute("CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS SELECT * FROM kept")
        database.execute("CREATE VIEW of_no_table_of_nsys AS SELECT * FROM kept")
    trace = formats.read(path, **options)
    assert len(trace["kernels"]) == 0
    assert [note for note in trace.notes if "view" in note] == [said]
    with pytest.raises(EmptyTraceError) as caught:
        find_steps(trace)
    assert str(caught.value) == f"the trace has no kernels and no graph launches: {said}"
    formats.write(trace, tmp_path / "b.sqlite")
    assert said in formats.read(tmp_path / "b.sqlite").notes


def test_an_export_of_nothing_but_views_is_refused_by_the_name_of_one(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE kept (start, end)")
        database.execute("CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS SELECT * FROM kept")
    with pytest.raises(FormatError) as caught:
        formats.read(path)
    why = "CUPTI_ACTIVITY_KIND_KERNEL is a view instead of a stored table; it is not read"
    assert str(caught.value) == f"{path}: an SQLite file, but not an nsys export ({why})"
