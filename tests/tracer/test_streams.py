"""Busy time and overlap: unions, never sums."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.tracer.handmade import Script
from tracer import formats
from tracer.analysis.streams import stream_report
from tracer.analysis.tokens import find_steps
from tracer.cli import main


def test_busy_time_is_a_union_and_overlap_is_counted_once() -> None:
    script = Script()
    script.kernel(0, 100, stream=1)
    script.kernel(50, 150, stream=1)  # overlaps on its own stream: 150 busy, not 200
    script.kernel(100, 300, stream=2)
    script.kernel(120, 200, stream=3)
    script.copy((0, 1), (350, 400), stream=1, size=64)
    found = stream_report(script.trace)
    rows = found.streams.set_index("stream")
    assert rows["busy_us"].to_dict() == {1: 0.2, 2: 0.2, 3: 0.08}
    assert rows["compute_us"].to_dict() == {1: 0.15, 2: 0.2, 3: 0.08}
    assert rows.loc[1, ["kernels", "copies", "bytes"]].tolist() == [2, 1, 64]
    device = found.devices.iloc[0]
    assert device["window_us"] == 0.4
    assert device["busy_us"] == 0.35
    assert device["overlap_us"] == 0.1  # 100..200
    assert device["concurrency"] == pytest.approx(430 / 300)


def test_copies_of_unknown_size_have_no_sum() -> None:
    script = Script()
    script.copy((0, 1), (10, 20), stream=1, size=64)
    script.copy((2, 3), (20, 30), stream=1, size=-1)
    script.copy((4, 5), (10, 20), stream=2, size=64)
    found = stream_report(script.trace).streams
    assert found["bytes"].isna().tolist() == [True, False]
    assert found["bytes"][1] == 64


def test_a_recording_without_steps_has_streams(tmp_path: Path) -> None:
    script = Script()
    script.launch((0, 10), (100, 500), stream=1)
    script.launch((20, 30), (400, 600), stream=2)
    formats.write(script.trace, tmp_path / "run")
    asked = CliRunner().invoke(main, ["streams", str(tmp_path / "run"), "--json"])
    found = json.loads(asked.stdout)
    assert (asked.exit_code, found["steps"]) == (0, None)
    assert [(row["stream"], row["busy_us"]) for row in found["streams"]] == [(1, 0.4), (2, 0.2)]
    assert found["devices"][0]["window_us"] == 0.5
    assert found["notes"][0].startswith("figures of the whole recording, none per step, because it has no steps: 2 ker")
    part = CliRunner().invoke(main, ["streams", str(tmp_path / "run"), "--steps", ":1"])
    assert (part.exit_code, part.stdout) == (2, "")


def test_two_engines_on_a_device_share_its_time() -> None:
    """Each has steps of its own, at the same time: the device is busy for 1.6 of 3 µs, not of 5.8."""
    script = Script()
    for at in range(0, 3200, 400):
        for process in (100, 200):
            start = at + process
            script.launch((start, start + 10), (start, start + 100), process=process, thread=process + 1)
            row = {"text": "token", "start": start - 1, "end": start + 60, "kind": "push/pop"}
            script.rows["nvtx"].append(row | {"process": process, "thread": process + 1})
    device = stream_report(script.trace, find_steps(script.trace)).devices.iloc[0]
    assert device[["window_us", "busy_us"]].tolist() == [3.0, 1.6]
