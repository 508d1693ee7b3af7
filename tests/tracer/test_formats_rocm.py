"""Recordings of rocprofv3: CSV and databases, read to the nanosecond."""

import sqlite3
from contextlib import closing

import pandas as pd
import pytest
from click.testing import CliRunner

from dashboard.reading.store import RunStore
from tests.tracer.pftraces import of_rocprofv3
from tests.tracer.rocm_files import COPY, GRAPH, LAUNCH, SYNC, Database, csv_folder, hip, same_tables
from tracer import analyse, formats
from tracer.analysis.tokens import find_steps
from tracer.cli import main
from tracer.errors import EmptyTraceError, FormatError
from tracer.model.schema import MISSING
from tracer.model.trace import Trace


def test_csv_holds_every_row_and_its_steps_are_found(tmp_path):
    expected = hip()
    folder = csv_folder(tmp_path / "out" / "node", expected)
    for path in (folder, folder.parent):
        found = formats.read(path)
        same_tables(found, expected, "bytes")
        assert found.notes == ["copies have no sizes: the recording does not tell them"]
        assert set(found["memcpys"]["bytes"]) == {MISSING}
    beside = formats.read(folder / "100_kernel_trace.csv")
    same_tables(beside, expected, "bytes")
    assert beside.notes[0].startswith("read with the files of the same process: 100_agent_info.csv, 100_hip_api_trace")
    recording = analyse(folder)
    assert recording.summary.steps == 6
    assert (recording.summary.signature, recording.summary.gap_p50_us) == ("a k g a s", 0.37)


def test_csv_of_2024_names_queues_and_a_range_of_the_process(tmp_path):
    folder = csv_folder(tmp_path, hip(), streams=False)
    for path, old, new in (
        ("kernel_trace", "Agent 2", "2"), ("kernel_trace", "LDS_Block_Size", "Group_Segment_Size"),
        ("marker_api_trace", "MARKER_CORE_RANGE_API", "MARKER_CORE_API"),
        ("marker_api_trace", '"decode",100,101', '"decode",100,0'),
        ("marker_api_trace", '"token"', '"roctxRangePop"'),
    ):  # fmt: skip
        file = folder / f"100_{path}.csv"
        file.write_text(file.read_text().replace(old, new))
    found = formats.read(folder)
    assert "streams are hardware queues: the recording does not name those of HIP" in found.notes
    assert (set(found["kernels"]["stream"]), set(found["memcpys"]["stream"])) == ({1}, {MISSING})
    assert set(found["kernels"]["device"]) == {0}
    assert set(found["kernels"]["dynamic_shared"]) == {512}
    assert set(zip(found["nvtx"]["text"], found["nvtx"]["thread"], found["nvtx"]["kind"], strict=True)) == {
        ("decode", MISSING, "start/end")
    }


def test_the_processes_of_a_host_are_one_recording_and_hosts_are_several(tmp_path):
    csv_folder(tmp_path / "a", hip(process=100), hip(process=200, device=1, begin=1_000_500))
    found = formats.read(tmp_path)
    assert found["kernels"].groupby("process")["device"].unique().map(list).to_dict() == {100: [0], 200: [1]}
    assert len(found["devices"]) == 2
    assert analyse(tmp_path).summary.steps == 12
    assert [run.path for run in RunStore([tmp_path / "a"]).runs()] == [tmp_path / "a"]
    assert [run.path for run in RunStore([tmp_path]).runs()] == [tmp_path]
    one = formats.read(tmp_path / "a" / "200_hip_api_trace.csv")
    same_tables(one, hip(process=200, device=1, begin=1_000_500), "bytes")
    csv_folder(tmp_path / "b", hip(process=100))
    result = CliRunner().invoke(main, ["info", str(tmp_path)])
    assert (result.exit_code, result.stderr) == (
        2, f"intertoken: {tmp_path}: a directory with 2 recordings: a, b; name one of them (compare takes the "
        "directory, to compare them all)\n"
    )  # fmt: skip
    assert formats.other_entries(tmp_path / "a") == []


def test_what_hsa_launches_belongs_to_the_call_of_hip_around_it(tmp_path):
    """Where HSA is recorded, too, a kernel has the number of the innermost call."""
    expected = hip(1)
    api = expected["api"]
    inner = api[api["name"].isin([LAUNCH, COPY])]
    nested = inner.assign(
        name="hsa_signal_store_screlease", start=inner["start"] + 1, end=inner["end"] - 1, layer="driver",
        correlation=inner["correlation"] + 1000,
    )  # fmt: skip
    outside = nested.iloc[:1].assign(start=10_000_000, end=10_000_001, correlation=5000, name="hsa_init")
    both = Trace({**expected.tables, "api": pd.concat([api, nested, outside])})
    moved = both["kernels"].assign(correlation=both["kernels"]["correlation"].replace(2, 1002))
    copied = both["memcpys"].assign(correlation=both["memcpys"]["correlation"].replace({1: 1001, 4: 5000}))
    folder = csv_folder(tmp_path, Trace({**both.tables, "kernels": moved, "memcpys": copied}))
    found = formats.read(folder)
    assert found["api"]["layer"].value_counts().to_dict() == {"runtime": 5, "driver": 4}
    assert found["kernels"]["correlation"].tolist() == [2, 3, 3]
    assert found["memcpys"]["correlation"].tolist() == [1, 5000]
    assert found["api"].query("layer == 'runtime'")["name"].tolist() == [COPY, LAUNCH, GRAPH, COPY, SYNC]


def test_without_agent_info_the_agents_numbers_stay(tmp_path):
    folder = csv_folder(tmp_path, hip())
    (folder / "100_agent_info.csv").unlink()
    kernels = folder / "100_kernel_trace.csv"
    for given, device in (("Agent 2", 2), ("GPU 0", 0), ("7", 7), ("what", MISSING)):
        kernels.write_text(kernels.read_text().replace("Agent 2", given))
        assert set(formats.read(folder)["kernels"]["device"]) == {device}, given
        kernels.write_text(kernels.read_text().replace(f'"{given}"', '"Agent 2"'))
    copies = formats.read(folder)["memcpys"]
    assert copies[["device", "src_device", "dst_device"]].iloc[:2].to_numpy().tolist() == [[2, -1, 2], [2, 2, -1]]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("1000070,", "1000070,,", "100_kernel_trace.csv: 1 rows are incomplete and left out"),
        ("1000070,", "0,", "1 kernels have no times, or end before they start; they are left out"),
        ("1000070,", f"{2**63 - 1},", "1 kernels have no times, or end before they start; they are left out"),
        ('"add', '"\xff\x1badd', None),
    ],
)
def test_csv_with_rows_that_cannot_be(tmp_path, old, new, says):
    folder = csv_folder(tmp_path, hip())
    file = folder / "100_kernel_trace.csv"
    file.write_bytes(file.read_text().replace(old, new, 1).encode("latin-1"))
    found = formats.read(folder)
    assert len(found["kernels"]) == (17 if says else 18)
    assert says is None or says in found.notes


def test_csv_that_is_refused(tmp_path):
    folder = csv_folder(tmp_path, hip())
    file = folder / "100_kernel_trace.csv"
    good = file.read_text()
    for old, new, says in (("1000070", "soon", "invalid value 'soon'"), ("1000070", str(2**64), "invalid value")):
        file.write_text(good.replace(old, new))
        with pytest.raises(FormatError, match=f"^{file}: .*{says}"):
            formats.read(folder)
    file.write_text(good[: len(good) // 2])
    assert "100_kernel_trace.csv: 1 rows are incomplete and left out" in formats.read(folder).notes
    with pytest.raises(
        EmptyTraceError, match=r"was HIP traced \(rocprofv3 --runtime-trace, which includes kernels\)\?$"
    ):
        find_steps(Trace({}, {"source": "rocprofv3"}))
    for text in (good.split("\n")[0] + "\n", good[:40], "a,b\n1,2\n", '"Domain,Start_Timestamp\n'):
        file.write_text(text)
        if text.startswith('"Kind') and text.endswith("\n"):
            assert len(formats.read(file)["kernels"]) == 0
        else:
            assert not formats.is_trace(file), text


@pytest.mark.parametrize("schema", [3, 4])
def test_a_database_holds_every_row_and_its_steps_are_found(tmp_path, schema):
    expected = hip()
    path = tmp_path / "out" / "node" / "100_results.db"
    Database(path, expected, schema)
    for place in (path, path.parent, tmp_path / "out"):
        found = formats.read(place)
        same_tables(found, expected, "processes.process", "processes.name")
        assert found["processes"].to_numpy().tolist() == [[100, "llama-server"]]
        assert found.notes == []
    assert formats.other_entries(tmp_path / "out") == []
    recording = analyse(path)
    assert (recording.summary.signature, recording.summary.gap_p50_us) == ("a k g a s", 0.37)


@pytest.mark.parametrize("merged", [False, True])
def test_databases_of_several_processes(tmp_path, merged):
    both = hip(process=100), hip(process=200, device=1, begin=1_000_500)
    for trace, name in zip(both, ("a", "a" if merged else "b"), strict=True):
        Database(tmp_path / f"{name}.db", trace)
    found = formats.read(tmp_path)
    assert found["kernels"].groupby("process")["device"].unique().map(list).to_dict() == {100: [0], 200: [1]}
    assert analyse(tmp_path / "a.db").summary.steps == (12 if merged else 6)
    Database(tmp_path / "c.db", hip(process=300), machine="m2")
    with pytest.raises(FormatError, match="holds recordings of 2 machines, whose clocks differ: name one"):
        formats.read(tmp_path)


def test_files_of_many_rows_are_read_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr("tracer.formats.perfetto_read._CHUNK", 5)
    expected = hip(20)
    found = formats.read(of_rocprofv3(expected, tmp_path / "a.pftrace"))
    assert all(len(found[table]) == len(expected[table]) for table in ("kernels", "memcpys", "api", "nvtx"))
    assert found["kernels"]["name"].tolist() == expected["kernels"]["name"].tolist()


def changed(path, *statements):
    with closing(sqlite3.connect(path)) as database:
        for statement in statements:
            database.execute(statement.replace("_S", "_00000064_8903"))
        database.commit()
    return path


@pytest.fixture(params=[3, 4])
def database(request, tmp_path):
    path = tmp_path / "a.db"
    Database(path, hip(), request.param)
    return path


def test_a_database_with_odd_rows(database):
    changed(
        database, "DELETE FROM rocpd_event_S WHERE extdata LIKE '%decode%'",
        "UPDATE rocpd_event_S SET extdata = '{\"message\": 7}' WHERE extdata LIKE '%token%'",
        "UPDATE rocpd_info_agent_S SET type_index = NULL, extdata = '['",
        "UPDATE rocpd_info_kernel_symbol_S SET kernel_name = 'raw.kd' WHERE display_name LIKE 'add%'",
        "UPDATE rocpd_info_kernel_symbol_S SET display_name = NULL WHERE kernel_name = 'raw.kd'",
        "UPDATE rocpd_string_S SET string = x'ff6b' WHERE string = 'hipGraphLaunch'",
    )  # fmt: skip
    found = formats.read(database)
    assert set(found["kernels"]["name"]) == {"raw.kd", 'mul_mat, "q"'}
    assert found["devices"][["device", "sm_count"]].to_numpy().tolist() == [[0, -1], [1, -1]]
    assert set(found["kernels"]["device"]) == {0}
    assert "\ufffdk" in set(found["api"]["name"])
    assert len(found["nvtx"]) == 12  # six of a domain that is not told


def test_queues_stand_for_streams_that_are_not_told(tmp_path):
    trace = hip()
    kernels = trace["kernels"].assign(stream=0)
    path = tmp_path / "a.db"
    Database(path, Trace({**trace.tables, "kernels": kernels, "memcpys": trace["memcpys"].assign(stream=0)}))
    assert set(formats.read(path)["kernels"]["stream"]) == {0}
    changed(path, "UPDATE rocpd_kernel_dispatch_S SET queue_id = 2 WHERE id % 2")
    found = formats.read(path)
    assert (set(found["kernels"]["stream"]), set(found["memcpys"]["stream"])) == ({1, 2}, {MISSING})
    assert found.notes == ["streams are hardware queues: the recording does not name those of HIP"]


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("UPDATE rocpd_kernel_dispatch_S SET kernel_id = 'x'", "table rocpd_kernel_dispatch, column kernel_id holds"),
        ("UPDATE rocpd_event_S SET stack_id = 0.5", "table rocpd_event, column stack_id holds double, not numbers"),
    ],
)
def test_a_database_that_is_refused(database, statement, says):
    with pytest.raises(FormatError, match=rf"^{database}: {says}"):
        formats.read(changed(database, statement))
    content = database.read_bytes()
    database.write_bytes(content[: len(content) // 2])
    with pytest.raises(FormatError, match=rf"^{database}: "):
        formats.read(database)


def test_a_database_of_views_alone_is_not_one(tmp_path):
    path = changed(tmp_path / "a.db", "CREATE TABLE t (x)", "CREATE VIEW rocpd_kernel_dispatch AS SELECT x FROM t")
    with pytest.raises(FormatError, match="an SQLite file, but not an nsys export"):
        formats.read(path)
