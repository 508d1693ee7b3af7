"""What each table and column of an nsys export becomes."""

import json
import sqlite3
from contextlib import closing
from itertools import zip_longest

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pandas.testing import assert_frame_equal

from tests.tracer.nsys_exports import DATA, KERNELS, RECORDING, SCHEMAS, columns_of, export, export_of_2021, tampered
from tracer import formats
from tracer.analysis.recording import Recording
from tracer.errors import EmptyTraceError, FormatError
from tracer.formats.nsys_schema import COLUMNS, ENUMS, REQUIRED
from tracer.model.schema import API_LAYERS, MEMCPY_KINDS, MEMORY_KINDS, NVTX_KINDS, SYNC_TYPES, TABLES

GRAPH_ID = f"{KERNELS}.graphId"


def values(trace, table, *columns):
    return list(trace[table][list(columns)].itertuples(index=False, name=None))


@pytest.mark.parametrize("schema", ["3.20.3", "3.25.0"])
def test_every_column_is_what_is_stored_or_derived(tmp_path, schema):
    """Among them: a string that lacks, types of syncs by their calls, devices by the numbers that kernels use."""
    path = export(tmp_path / "a.sqlite", schema=schema, without_columns={GRAPH_ID})  # 3.25 has it, 3.20 lacks it
    trace = formats.read(path, whole=False, samples=True)
    filled = {name: list(frame) for name, frame in trace.tables.items() if len(frame)}
    assert columns_of(trace, filled) == json.loads((DATA / "nsys-tables.json").read_text())
    assert trace.metadata == {
        "source": "nsys 2025.3.2.0", "schema_version": "3.20.3", "start_utc_ns": 1795227667831034602,
    }  # fmt: skip
    assert trace.notes == ["1 NVTX range was never closed; it ends with the recording"]


def test_exports_of_2021_and_stored_graph_ids(tmp_path):
    trace = formats.read(export_of_2021(tmp_path / "a.sqlite"))
    assert set(trace["syncs"]["type"]) == {"stream"}
    assert (len(trace["kernels"]), trace["kernels"]["graph"].tolist()) == (2, [-1, -1])
    assert trace["devices"]["sm_count"].tolist() == [-1]
    rows = {KERNELS: [row | {"graphId": 70} for row in RECORDING[KERNELS]]}
    assert set(formats.read(export(tmp_path / "b.sqlite", rows, schema="3.25.0"))["kernels"]["graph"]) == {70}


def test_gpus_of_exports_that_store_no_version(tmp_path):
    gpus = {"TARGET_INFO_GPU": [{"vmId": 1, "id": id, "name": f"GPU {id}"} for id in (0, 1)]}
    newer = ("META_DATA_EXPORT", "TARGET_INFO_CUDA_DEVICE")
    old, again = export(tmp_path / "old.sqlite", RECORDING | gpus, without_tables=newer), tmp_path / "again.sqlite"
    with closing(sqlite3.connect(old)) as database:
        database.execute("ALTER TABLE TARGET_INFO_GPU RENAME COLUMN id TO deviceId")
    formats.write(formats.read(old), again)
    for path, whole in ((old, True), (old, False), (again, True)):
        found = formats.read(path, whole=whole)
        assert dict(values(found, "devices", "device", "name")) == {0: "GPU 0", 1: "GPU 1"}, (path, whole)


def test_payloads_domains_and_open_ranges(tmp_path):
    stored = {
        "uint64Value": [(7, 7), (-1, 2.0**64 - 1)], "int64Value": [(-3, -3)], "doubleValue": [(0.5, 0.5)],
        "uint32Value": [(4_000_000_000, 4e9)], "int32Value": [(-8, -8)], "floatValue": [(0.25, 0.25)],
    }  # fmt: skip
    pairs = [(column, *pair) for column, several in stored.items() for pair in several]
    rows = [{"start": 1, "end": 2, "eventType": 59, "text": "x", column: value} for column, value, _ in pairs]
    rows += [{"start": start, "end": None, "eventType": 59, "text": "x"} for start in (5, 6, 900)]
    trace = formats.read(export(tmp_path / "a.sqlite", {"NVTX_EVENTS": rows}))
    assert trace["nvtx"]["payload"].tolist()[: len(pairs)] == [payload for *_, payload in pairs]
    assert trace["nvtx"]["end"].tolist()[len(pairs) :] == [900] * 3
    assert trace.notes == ["3 NVTX ranges were never closed; they end with the recording"]
    rows = [
        {"start": 1, "eventType": type, "text": text, "domainId": 1, "globalTid": pid << 24, "end": 2}
        for pid, name in ((1, "A"), (2, "B"))
        for type, text in ((75, name), (59, "range"))
    ]
    trace = formats.read(export(tmp_path / "b.sqlite", {"NVTX_EVENTS": rows}))
    assert values(trace, "nvtx", "process", "domain") == [(1, "A"), (2, "B")]


# From graphNodeId, from the call, from textId, and from globalPid.
KNOWN_OTHERWISE = {
    GRAPH_ID, "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION.syncType", "NVTX_EVENTS.text", "PROCESSES.pid",
}  # fmt: skip


def test_any_optional_column_and_any_table_may_be_missing(tmp_path):
    whole = formats.read(export(tmp_path / "whole.sqlite"))
    by_table = [[f"{t}.{c}" for c in COLUMNS[t] if c not in REQUIRED.get(t, ())] for t in RECORDING]
    for number, row in enumerate(zip_longest(*by_table)):  # one of every table, which are read apart from each other
        missing = {column for column in row if column is not None}
        trace = formats.read(export(tmp_path / f"{number}.sqlite", without_columns=missing), whole=False, samples=True)
        for name, table in TABLES.items():
            assert len(trace[name]) == len(whole[name])
            for c in table.columns:
                if f"{table.nsys}.{c.nsys}" in missing - KNOWN_OTHERWISE:
                    assert trace[name][c.name].isin([c.default]).all()
    for table in RECORDING:
        path = export(tmp_path / f"{table}.sqlite", without_tables={table})
        trace = formats.read(path, whole=False, samples=True)
        for name, schema in TABLES.items():
            assert (len(trace[name]) == 0) == (schema.nsys == table)
        assert table != "StringIds" or trace["kernels"]["name"].tolist() == ["string 99", "string 3"]


def test_our_words_have_the_same_ids_in_every_nsys():
    for enum, words in {
        "ENUM_CUDA_MEMCPY_OPER": MEMCPY_KINDS, "ENUM_CUDA_MEM_KIND": MEMORY_KINDS, "ENUM_CUPTI_SYNC_TYPE": SYNC_TYPES,
        "ENUM_NSYS_EVENT_CLASS": API_LAYERS, "ENUM_NSYS_EVENT_TYPE": NVTX_KINDS,
    }.items():  # fmt: skip
        written = {id: (name, label) for id, name, label in ENUMS[enum] if id in words.values()}
        assert written.keys() == set(words.values())
        for schema in SCHEMAS.values():
            rows = {id: (name, label) for id, name, label in schema["enums"][enum]["rows"]}
            assert written.items() <= rows.items()


def test_kernels_that_are_a_view_are_named_in_a_note(tmp_path):
    said = f"{KERNELS} is a view instead of a stored table; it is not read"
    path = tampered(
        tmp_path / "a.sqlite", "DROP TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE", f"ALTER TABLE {KERNELS} RENAME TO kept",
        f"CREATE VIEW {KERNELS} AS SELECT * FROM kept", "CREATE VIEW of_no_table_of_nsys AS SELECT * FROM kept",
    )  # fmt: skip
    for options in ({}, {"whole": False}, {"whole": False, "samples": True}):
        trace = formats.read(path, **options)
        assert [note for note in trace.notes if "view" in note] == [said]
        with pytest.raises(EmptyTraceError, match=f"^the trace has no kernels and no graph launches: {said}$"):
            Recording(trace).steps  # noqa: B018
        formats.write(trace, tmp_path / "b.sqlite", replace=True)
        assert said in formats.read(tmp_path / "b.sqlite").notes


def numbered(devices, seen):
    """An export in which each process runs a kernel and a copy between two devices; `seen`: (gpuId, cudaId, pid)."""
    tables = {name: RECORDING[name] for name in ("StringIds", "META_DATA_EXPORT")}
    for table, source in ((KERNELS, ()), ("CUPTI_ACTIVITY_KIND_MEMCPY", ("srcDeviceId",))):
        tables[table] = [
            RECORDING[table][0] | {"globalPid": 1 << 48 | pid << 24} | dict.fromkeys(("deviceId", *source), device)
            for pid, device in devices.items()
        ]
    return tables | {
        "TARGET_INFO_CUDA_DEVICE": [dict(zip(("gpuId", "cudaId", "pid"), row, strict=True)) for row in seen],
        "TARGET_INFO_GPU": [{"vmId": 1, "id": id, "name": f"GPU {id}"} for id in (0, 1, 2)],
    }


def devices_of(trace):
    """Process -> its device, which all its rows must have."""
    found = [dict(values(trace, table, "process", "device")) for table in ("kernels", "memcpys")]
    assert trace["memcpys"]["src_device"].tolist() == trace["memcpys"]["device"].tolist()
    assert found[0] == found[1]
    return found[0]


def test_devices_are_gpus_and_stay_so_in_every_copy(tmp_path):
    for case, row in json.loads((DATA / "nsys-rows.json").read_text())["numbered"].items():
        called, found, gpus = ({int(n): d for n, d in row[key].items()} for key in ("called", "found", "gpus"))
        trace = formats.read(export(tmp_path / f"{case}.sqlite", numbered(called, row["seen"])))
        assert devices_of(trace) == found, case
        assert dict(values(trace, "devices", "device", "name")) == {d: f"GPU {gpu}" for d, gpu in gpus.items()}, case
    for whole in (True, False):
        first = formats.read(tmp_path / "both device 0.sqlite", whole=whole)
        assert first.notes == [
            "processes number the devices differently, so the GPUs' own numbers are used: "
            "0 is device 0 of process 4242, 2 is device 0 of process 4343"
        ]
        copy = first
        for name in ("b.sqlite", "b", "c.sqlite"):
            formats.write(copy, tmp_path / f"{whole}-{name}")
            copy = formats.read(tmp_path / f"{whole}-{name}")
            assert (devices_of(copy), copy.notes) == (devices_of(first), first.notes)


def renamed(*tables, number=2):
    return [f"ALTER TABLE {name} RENAME TO {name}_V{number}" for name in tables]


READ_AS = "table {0}_V2 is read as {0}"


def same(trace, other):
    """Whether two recordings hold the same, but for notes."""
    assert trace.metadata == other.metadata
    for name in TABLES:
        assert_frame_equal(trace[name], other[name], check_dtype=False, check_categorical=False)


@pytest.mark.parametrize("whole", [True, False])
def test_tables_of_newer_versions_are_read_by_the_names_that_we_know(tmp_path, whole):
    tables = sorted(set(RECORDING) & set(COLUMNS))
    expected = formats.read(export(tmp_path / "a.sqlite"), whole=whole, samples=True)
    trace = formats.read(tampered(tmp_path / "b.sqlite", *renamed(*tables)), whole=whole, samples=True)
    same(trace, expected)
    assert trace.notes == expected.notes + [READ_AS.format(name) for name in tables]
    formats.write(trace, tmp_path / "c.sqlite")
    again = formats.read(tmp_path / "c.sqlite", whole=whole, samples=True)
    same(again, trace)
    assert again.notes == trace.notes  # once


def test_columns_that_a_newer_version_spells_otherwise(tmp_path):
    expected = formats.read(export(tmp_path / "a.sqlite"), whole=False)
    spelled = {"globalTid": "global_tid", "textId": "TextID", "eventType": "EVENT_TYPE"}
    path = tampered(
        tmp_path / "b.sqlite", *(f"ALTER TABLE NVTX_EVENTS RENAME COLUMN {a} TO {b}" for a, b in spelled.items()),
        *renamed("NVTX_EVENTS"),
    )  # fmt: skip
    for whole in (True, False):
        assert formats.read(path, whole=whole)["nvtx"][expected["nvtx"].columns].equals(expected["nvtx"])


def test_of_several_versions_the_newest_that_can_be_read_counts_and_the_others_are_named(tmp_path):
    expected = formats.read(export(tmp_path / "a.sqlite"), whole=False)
    path = tampered(
        tmp_path / "b.sqlite", *renamed(KERNELS, number=10), f"CREATE TABLE {KERNELS} (start INT, end INT)",
        f"CREATE TABLE {KERNELS}_V9 (start INT, end INT)", f"CREATE TABLE {KERNELS}_V11 (start INT, duration INT)",
        *(f"CREATE TABLE OTHER_EVENTS_V{number} (start INT)" for number in range(2, 9)),
        "CREATE TABLE ENUM_OTHER_V2 (id INT)",
    )  # fmt: skip
    trace = formats.read(path, whole=False)
    same(trace, expected)
    assert trace.notes[len(expected.notes) :] == [
        f"table {KERNELS}_V11 is not read: it has no column end, which {KERNELS} has",
        f"table {KERNELS}_V10 is read as {KERNELS}",
        f"table {KERNELS}_V9 is not read: {KERNELS}_V10 is newer",
        f"table {KERNELS} is not read: {KERNELS}_V10 is newer",
        "tables of unknown versions are not used: OTHER_EVENTS_V2, OTHER_EVENTS_V3, OTHER_EVENTS_V4, OTHER_EVENTS_V5, "
        "OTHER_EVENTS_V6 and 2 more",
    ]


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_files_of_newer_versions_in_directories(tmp_path, suffix):
    expected = formats.read(export(tmp_path / "a.sqlite"), whole=False)
    formats.write(expected, tmp_path / "b")
    table = pq.read_table(tmp_path / "b" / "NVTX_EVENTS.parquet")
    (tmp_path / "b" / "NVTX_EVENTS.parquet").unlink()
    spelled = ["global_tid" if name == "globalTid" else name for name in table.column_names]
    pq.write_table(table.rename_columns(spelled), tmp_path / "b" / "NVTX_EVENTS_V2.parquet")
    if suffix == "arrow":
        for file in (tmp_path / "b").iterdir():
            rows = pq.read_table(file)
            with pa.ipc.new_stream(file.with_suffix(".arrow"), rows.schema) as stream:
                stream.write_table(rows)
            file.unlink()
    trace = formats.read(tmp_path / "b", whole=False)
    same(trace, expected)
    assert READ_AS.format("NVTX_EVENTS") in trace.notes
    (tmp_path / "b" / f"NVTX_EVENTS_V2.{suffix}").write_bytes(b"damaged")
    with pytest.raises(FormatError, match=rf"NVTX_EVENTS_V2\.{suffix}: not a valid"):
        formats.read(tmp_path / "b")
