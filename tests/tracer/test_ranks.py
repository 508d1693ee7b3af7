"""Ranks whose every nanosecond is known: what each computes, communicates and idles, and who is waited for."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tests.tracer.handmade import PROCESS, THREAD, Script
from tracer import Trace, formats
from tracer.analysis.causes import CAUSES
from tracer.analysis.gaps import gap_report
from tracer.analysis.ranks import rank_report, waiting
from tracer.analysis.steps import Steps
from tracer.analysis.streams import bubble_report
from tracer.analysis.tokens import find_steps
from tracer.commands.gaps import gaps
from tracer.commands.streams import streams

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
EXCHANGE = "ncclDevKernel_SendRecv"
PERIOD, STEPS = 10_000, 5


def step_of(script: Script, start: int, arrives: int, rank: int, *, process: int, device: int) -> None:
    """A kernel of 1000, an all-reduce entered `arrives` later that ends at 4000, a kernel from 4100 to 5000."""
    place = {"process": process, "thread": process + 1, "device": device}
    entered = start + 1010 + arrives
    script.launch((start, start + 10), (start + 10, start + 1010), **place)
    script.launch((start + 20, start + 30), (entered, start + 4000), name=ALL_REDUCE, **place)
    script.launch((start + 40, start + 50), (start + 4100, start + 5000), **place)
    script.rows["nvtx"].append(
        {"text": "token", "start": start - 5, "end": start + PERIOD - 10, "thread": process + 1, "process": process,
         "kind": "push/pop"}
    )  # fmt: skip


def ranks(arrivals: list[int]) -> Trace:
    """A process with a device of its own per rank, which enters the all-reduce so late."""
    script = Script()
    for rank, arrives in enumerate(arrivals):
        for step in range(STEPS):
            step_of(script, 100 + step * PERIOD, arrives, rank, process=100 + 10 * rank, device=rank)
    return script.trace


def found(trace: Trace) -> tuple[Trace, Steps]:
    steps = find_steps(trace)
    return trace, steps


def test_the_straggler_is_named_and_the_others_wait() -> None:
    report = rank_report(*found(ranks([100, 2500, 100])))
    assert report.table["waiting_us"].tolist() == [2.4, 0.0, 2.4]
    assert report.table["collectives_us"].tolist() == pytest.approx([2.89, 0.49, 2.89])
    assert report.waited_for == {"process": 110, "thread": 111, "device": 1}
    assert report.waiting is not None
    assert report.waiting.table["last"].tolist() == [0, 5, 0]
    assert any("wait for the one on device 1" in note for note in report.notes)


def test_compute_communication_others_and_idle_are_the_window() -> None:
    table = rank_report(*found(ranks([100, 2500]))).table
    row = table.iloc[1]
    whole = (4 * PERIOD + 4990) / STEPS / 1e3
    assert row["window_us"] == pytest.approx(whole)
    assert row[["compute_us", "communication_us", "others_us"]].tolist() == pytest.approx([1.9, 0.49, 0])
    assert row["idle_us"] == pytest.approx(whole - 1.9 - 0.49)


@given(st.lists(st.lists(st.integers(0, 10**6), min_size=3, max_size=3), min_size=2, max_size=6))
def test_waiting_is_what_is_longer_than_the_shortest(durations: list[list[int]]) -> None:
    report = waiting([{"a": times} for times in durations])
    shortest = [min(times) for times in zip(*durations, strict=True)]
    assert report.table["waiting"].tolist() == [sum(times) - sum(shortest) for times in durations]
    assert report.table["caused"].sum() == report.table["waiting"].sum()
    assert (report.table["caused"] >= 0).all()


def test_collectives_entered_not_equally_often_are_left_out() -> None:
    report = waiting([{"a": [5, 5], "b": [1]}, {"a": [5], "b": [9]}])
    assert report.left_out == ("a",)
    assert report.table["waiting"].tolist() == [0, 8]
    assert report.rank == 0


def test_kernels_at_different_times_are_not_one_collective() -> None:
    """Two stages amid a pipeline: the k-th exchange of one is not the k-th of the other, whatever they take."""
    script = Script()
    for rank, takes in enumerate((100, 900)):
        for step in range(STEPS):
            start, place = 100 + step * PERIOD + 5000 * rank, {"process": 100 + 10 * rank, "device": rank}
            place["thread"] = place["process"] + 1
            script.launch((start, start + 10), (start + 10, start + 1010), **place)
            script.launch((start + 20, start + 30), (start + 1010, start + 1010 + takes), name=EXCHANGE, **place)
            row = {"text": "token", "start": start - 5, "end": start + 3000, "kind": "push/pop"}
            script.rows["nvtx"].append(row | {"process": place["process"], "thread": place["thread"]})
    report = rank_report(*found(script.trace))
    assert report.table["collectives_us"].tolist() == [0.1, 0.9]
    assert report.table["waiting_us"].isna().all()
    assert report.waited_for is None
    assert [note for note in report.notes if "does not run at the same time on all ranks" in note]


@pytest.mark.parametrize(("devices", "may"), [((0, 1), True), ((0, 0), False)])
def test_collectives_in_graphs_traced_whole_are_said_to_be_compute(devices: tuple[int, int], may: bool) -> None:
    """Engines that share a device are not ranks of one."""
    script = Script()
    for process, device in zip((100, 200), devices, strict=True):
        for at in range(0, 5 * PERIOD, PERIOD):
            script.graph((at, at + 10), (at + 20, at + 5000))
            script.rows["api"][-1] |= {"process": process, "thread": process + 1}
            script.rows["graph_launches"][-1] |= {"process": process, "device": device}
            row = {"text": "token", "start": at - 1, "end": at + 60, "kind": "push/pop"}
            script.rows["nvtx"].append(row | {"process": process, "thread": process + 1})
    report = rank_report(*found(script.trace))
    assert report.hidden == may
    assert any("traced whole: collectives in them" in note for note in report.notes) == may


def exposed() -> Script:
    """Two tokens: 100 to 1000 and 2000 to 3000 compute, an all-reduce from 1100 to 1500 between them."""
    script = Script()
    script.range("token", 0, 1050)
    script.range("token", 1050, 4000)
    script.launch((10, 20), (100, 1000))
    script.launch((30, 40), (1100, 1500), name=ALL_REDUCE)
    script.launch((1900, 1950), (2000, 3000))
    return script


def test_a_collective_in_the_gap_is_communication_and_no_fault_of_the_host() -> None:
    row = gap_report(*found(exposed().trace)).table.iloc[0]
    assert {c: int(row[c]) for c in ("gap", *CAUSES)} == {
        "gap": 1000, "communication": 400, "sync": 0, "copy": 0, "launch": 100, "host": 500, "other": 0,
    }  # fmt: skip


def test_a_bubble_is_idle_without_the_collective_in_it() -> None:
    trace = ranks([100])
    steps = bubble_report(*found(trace)).steps
    assert steps[["count", "total", "longest", "communication"]].iloc[0].tolist() == [1, 200, 200, 2890]
    idle = steps[[cause for cause in CAUSES if cause != "communication"]].sum(axis=1)
    assert (idle == steps["total"]).all()


@pytest.mark.parametrize("process", [PROCESS, PROCESS + 50], ids=["threads", "processes"])
def test_two_engines_on_one_device_are_two(process: int) -> None:
    """The second launches at 3000, but the device is at work for the first from 3000 to 5000."""
    script = Script()
    for step in range(3):
        start = step * PERIOD
        for thread, of, first in ((THREAD, PROCESS, 1000), (THREAD + 1, process, 6000)):
            launched = start + (900 if first == 1000 else 500)
            script.launch(
                (launched, launched + 50), (start + first, start + first + 4000), thread=thread, process=of
            )  # fmt: skip
            script.rows["nvtx"].append(
                {"text": "token", "start": start, "end": start + PERIOD, "thread": thread, "process": of,
                 "kind": "push/pop"}
            )  # fmt: skip
    trace, steps = found(script.trace)
    gap = gap_report(trace, steps).table.merge(steps.table[["step", "thread"]], on="step")
    second = gap[gap["thread"] == THREAD + 1]
    assert (second["gap"] == 6000).all()
    assert second[["other_process", "launch_latency", "launch_call"]].to_numpy().tolist() == [[4000, 1450, 50]] * 2
    table = rank_report(trace, steps).table
    assert table[["steps", "compute_us"]].to_numpy().tolist() == [[3, 4.0]] * 2
    assert table["idle_us"].tolist() == pytest.approx([2 * 2000 / 3e3] * 2)
    (note, *_) = rank_report(trace, steps).notes
    assert "share device 0" in note
    assert ".0" not in note  # of ids


def test_the_commands_say_it(tmp_path: Path) -> None:
    formats.write(ranks([100, 2500]), path := tmp_path / "two.sqlite")
    for command in (gaps, streams):
        outcome = CliRunner().invoke(command, [str(path), "--json"])
        facts = json.loads(outcome.stdout)
        assert facts["waited_for"]["device"] == 1
        assert facts["communication_us"] == pytest.approx((2.89 + 0.49) / 2)
        assert [row["waiting_us"] for row in facts["ranks"]] == [2.4, 0]
        shown = CliRunner().invoke(command, [str(path)]).output
        assert "communicates" in shown
        assert "wait for the one on device 1" in " ".join(shown.split())
