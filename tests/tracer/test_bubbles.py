"""Bubbles inside the steps, and what the streams wait for, to the nanosecond."""

import pytest
from hypothesis import given, settings

from tests.tracer.handmade import PROCESS, Script
from tests.tracer.test_causes import disorder
from tracer import Trace
from tracer.analysis.step_work import step_compute, step_spans
from tracer.analysis.streams import WAITS, BubbleReport, bubble_report
from tracer.analysis.tokens import find_steps
from tracer.model.intervals import total


def report(script: Script) -> BubbleReport:
    return bubble_report(script.trace, find_steps(script.trace))


def eager() -> Script:
    """A step of three kernels: the second was launched in time and starts 10 late, the third is launched 60 late."""
    script = Script()
    script.range("token", 0, 900)
    script.launch((10, 20), (30, 130))
    script.launch((40, 50), (140, 240))
    script.sync(60, 270)
    script.launch((280, 300), (320, 420))
    return script


def test_each_bubble_has_its_causes() -> None:
    found = report(eager()).table
    columns = ["start", "end", "length", "launch_queued", "launch_call", "launch_latency", "sync_return", "host_code"]
    assert found[columns].to_numpy().tolist() == [[130, 140, 10, 10, 0, 0, 0, 0], [240, 320, 80, 0, 20, 20, 30, 10]]


def test_a_step_has_count_total_and_longest() -> None:
    found = report(eager())
    columns = ["device", "step", "count", "total", "longest", "sync", "launch", "host"]
    assert found.steps[columns].to_numpy().tolist() == [[0, 0, 2, 90, 80, 30, 50, 10]]
    device = found.devices.iloc[0]
    assert (device["count"], device["total_us"], device["longest_us"]) == (2, 0.09, 0.08)
    assert device["launch_us"] == 0.05


def test_streams_that_overlap_leave_no_bubble_and_a_step_without_one_counts() -> None:
    script = Script()
    script.range("token", 0, 900)
    script.launch((10, 20), (30, 130))
    script.launch((22, 25), (100, 200), stream=8)
    found = report(script)
    assert not len(found.table)
    assert found.steps[["count", "total", "longest"]].to_numpy().tolist() == [[0, 0, 0]]


def test_time_in_which_the_next_step_computes_is_no_bubble() -> None:
    script = Script()
    for start, kernels in ((0, [(30, 100), (300, 400)]), (200, [(150, 250)])):
        script.range("token", start, start + 190)
        script.launch((start + 1, start + 5), *kernels, stream=7 + start)
    assert report(script).table[["step", "start", "end"]].to_numpy().tolist() == [[0, 100, 150], [0, 250, 300]]


def waits(script: Script, stream: int) -> dict[str, float]:
    """What the stream waits for, ns a step, with the stream that it mostly waits for."""
    table = report(script).streams
    row = table[table["stream"] == stream].iloc[0]
    found = {name: round(1e3 * row[f"{name}_us"]) for name in ("idle", *WAITS) if row[f"{name}_us"]}
    assert found.get("idle", 0) == sum(found.get(name, 0) for name in WAITS)
    return found | {"on": int(row["waits_on"])}


def forked(*, ordered: bool) -> Script:
    """Stream 8 begins when its kernel is launched (60) and the first on stream 7 has ended (100), at 110."""
    script = Script()
    script.range("token", 0, 900)
    script.launch((10, 20), (30, 100))
    if ordered:
        row = {"process": PROCESS, "device": 0, "context": 1, "stream": 8, "type": "stream wait"}
        script.rows["syncs"].append(row | {"start": 30, "end": 32, "correlation": 900})
    script.launch((40, 60), (110, 200), stream=8)
    script.launch((70, 80), (100, 300))
    return script


def test_a_stream_waits_for_the_launch_then_the_event_then_the_device() -> None:
    assert waits(forked(ordered=True), 8) == {
        "idle": 180,
        "launch": 30,
        "event": 40,
        "latency": 10,
        "done": 100,
        "on": 7,
    }
    assert waits(forked(ordered=True), 7) == {"on": -1}


def test_one_graph_launch_orders_its_streams() -> None:
    script = Script()
    script.range("token", 0, 900)
    correlation = script.call("cudaGraphLaunch_v10000", 10, 20)
    for stream, start, end in ((7, 30, 100), (8, 105, 200), (7, 210, 300)):
        script.kernel(start, end, correlation, stream)
    assert waits(script, 8) == {"idle": 175, "event": 70, "latency": 5, "done": 100, "on": 7}
    assert waits(script, 7) == {"idle": 110, "event": 100, "latency": 10, "on": 8}


@settings(max_examples=6)
@given(disorder())
def test_bubbles_and_compute_fill_the_device_and_waits_the_stream_s_idle_time(trace: Trace) -> None:
    steps = find_steps(trace, pattern="token")
    found = bubble_report(trace, steps)
    spans = step_spans(trace, steps)
    for device, compute in step_compute(trace, steps).groupby("device"):
        inside = spans[spans["device"] == device]
        bubbles = found.table.loc[found.table["device"] == device, ["length", "communication"]].to_numpy().sum()
        assert total(inside["start"], inside["end"]) == total(compute["start"], compute["end"]) + bubbles
    assert (found.streams[[f"{name}_us" for name in WAITS]] >= 0).to_numpy().all()
    parts = found.streams[[f"{name}_us" for name in WAITS]].sum(axis=1)
    assert parts.to_numpy() == pytest.approx(found.streams["idle_us"].to_numpy())
    assert found.steps["total"].sum() == found.table["length"].sum()
