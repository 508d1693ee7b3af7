"""Recordings of rocprofv3: CSV and databases, read to the nanosecond."""

import pandas as pd
import pytest
from click.testing import CliRunner

from tests.tracer.rocm_files import COPY, GRAPH, LAUNCH, SYNC, csv_folder, hip, same_tables
from tracer import analyse, formats
from tracer.cli import main
from tracer.errors import FormatError
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
    one = formats.read(tmp_path / "a" / "200_hip_api_trace.csv")
    same_tables(one, hip(process=200, device=1, begin=1_000_500), "bytes")
    csv_folder(tmp_path / "b", hip(process=100))
    result = CliRunner().invoke(main, ["info", str(tmp_path)])
    assert (result.exit_code, result.stderr) == (
        2, f"intertoken: {tmp_path}: holds the recordings of 2 hosts (a, b): name the folder of one\n"
    )  # fmt: skip
    assert formats.other_entries(tmp_path / "a") == formats.other_entries(tmp_path) == []


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
    for text in (good.split("\n")[0] + "\n", good[:40], "a,b\n1,2\n", '"Domain,Start_Timestamp\n'):
        file.write_text(text)
        if text.startswith('"Kind') and text.endswith("\n"):
            assert len(formats.read(file)["kernels"]) == 0
        else:
            assert not formats.is_trace(file), text
