"""Copies merged, host code after the launch, results read later, kernels moved into graphs: loops of known gain."""

import pytest

from tests.recordings import SAMPLES
from tests.tracer.bases import based, light, predicted
from tests.tracer.handmade import Script
from tests.tracer.truths import rows
from tracer import Trace, read
from tracer.analysis.whatif.changes import Edit
from tracer.analysis.whatif.edits import WithoutSyncs
from tracer.analysis.whatif.graph_edits import BEFORE, BEHIND, BETWEEN, EagerLaunches, IntoGraph, eager_launches
from tracer.analysis.whatif.host_edits import CopiesBehind, LaunchFirst, ReadLater
from tracer.analysis.whatif.prediction import predict
from tracer.errors import CannotTellError, EmptyTraceError, UnsafePlanError
from tracer.model.trace import LIGHT


def loop(copies: int = 0, code: int = 0, kernel: int = 10_000) -> Trace:
    """Steps of `code` ns of host code, copies of 10 µs of the host, a launch of 10 µs whose kernel begins 15 µs after
    it, and the fetch of the result, for which the host waits until 3 µs after it."""
    script, at = Script(), 0
    for _ in range(16):
        begin, at = at, at + code
        for _ in range(copies):
            script.copy((at, at + 10_000), (at + 5_000, at + 6_000))
            at += 10_000
        end = at + 15_000 + kernel
        script.graph((at, at + 10_000), (at + 15_000, end))
        script.copy((at + 10_000, at + 20_000), (end, end + 2_000), kind="DtoH")
        script.sync(at + 20_000, end + 5_000)
        at = end + 5_000
        script.range("token", begin, at)
    return light(script.trace)


@pytest.mark.parametrize(
    ("copies", "code", "edit", "gain"),
    [
        (0, 20_000, LaunchFirst(), 90 / 70), (0, 0, LaunchFirst(), 1),
        # the copies' calls are hidden, but not the host's code; each takes the device 1 µs
        (1, 20_000, CopiesBehind(), 100 / 91), (3, 20_000, CopiesBehind(), 120 / 93),
        (0, 20_000, ReadLater(), 90 / 52),  # the device computes 50 and copies 2
    ],
)  # fmt: skip
def test_edits_of_the_host_gain_what_they_hide(copies: int, code: int, edit: Edit, gain: float) -> None:
    found = predicted(loop(copies, code, 50_000), edit)
    assert found.speedup.estimate == pytest.approx(gain, rel=0.01)
    assert found.speedup.low is None
    assert not [note for note in found.notes if "lacks" in note]


def test_a_host_that_is_the_limit_gains_little_by_reading_later() -> None:
    """The host needs 80 µs a step for its code and its calls, of 120."""
    assert 1 < predicted(loop(code=60_000, kernel=40_000), ReadLater()).speedup.estimate <= 120 / 80


def test_copies_that_cannot_move_or_whose_time_is_missing() -> None:
    lacking, pageable = loop(3, 20_000, 50_000), loop(3)
    lacking.tables["memcpys"] = lacking["memcpys"].iloc[:0]
    found = predicted(lacking, CopiesBehind())
    assert found.speedup.estimate == pytest.approx(120 / 90, rel=0.01)
    assert [note for note in found.notes if "lacks the copies' time" in note]
    copies = pageable["memcpys"]
    kinds = copies["src_kind"].where(copies["kind"] != "HtoD", "pageable")
    pageable.tables["memcpys"] = copies.assign(src_kind=kinds)
    for trace in (loop(), pageable):
        with pytest.raises(EmptyTraceError, match="asynchronous copy"):
            predicted(trace, CopiesBehind())
    with pytest.raises(UnsafePlanError, match="the host computes a part of the step"):
        predicted(read(SAMPLES / "llama-1.1b-aaag-sequential-cuda-ngl13"), CopiesBehind())


def test_whether_a_margin_is_known_is_the_same_with_and_without_the_kernels_of_a_graph() -> None:
    """The gap is mostly host code; holes in the graph, which is one activity or ten kernels, are longer than it."""
    verdicts = set()
    for nodes in (False, True):
        script = Script()
        for at in range(0, 16 * 140_000, 140_000):
            if nodes:
                kernels = [(at + 15_000 + 10_000 * k, at + 20_000 + 10_000 * k) for k in range(10)]
                script.launch((at, at + 5_000), *kernels, api="cudaGraphLaunch_v10000")
            else:
                script.graph((at, at + 5_000), (at + 15_000, at + 110_000))
            script.copy((at + 6_000, at + 7_000), (at + 110_000, at + 111_000), kind="DtoH")
            script.sync(at + 8_000, at + 112_000)
        base = based(light(script.trace))
        verdicts.add((base.is_checked, base.report.gap_us["p50"]))
    assert verdicts == {(False, 45.0)}


PERIOD, TOKENS = 100_000, 12


def mixed(*, wait: bool = False, pieces: int = 1, unknown: int = 0) -> Trace:
    """Steps of a fill (2 µs, from 12 µs on), a graph (40 µs, from 30 µs on), an argmax (5 µs, from 75 µs on) and the
    wait for it, until 85 µs; with `wait` the host waits for the fill. Of two `pieces`, the second graph (3 µs, from
    81 µs on) follows the argmax. In the last `unknown` steps the fill is a run of launches that may last until the
    graph starts."""
    script = Script()
    for token in range(TOKENS):
        at = token * PERIOD
        script.range("token", at, at + PERIOD - 1)
        script.range("aten::fill_", at + 1_000, at + 9_000, domain="cpu_op")
        if token < TOKENS - unknown:
            script.launch((at + 2_000, at + 8_000), (at + 12_000, at + 14_000), name="fill")
        else:
            script.run((at + 2_000, at + 8_000), (at + 12_000, at + 30_000))
        if wait:
            script.sync(at + 9_000, at + 15_000)
        script.graph((at + 20_000, at + 26_000), (at + 30_000, at + 70_000))
        script.launch((at + 60_000, at + 66_000), (at + 75_000, at + 80_000), name="argmax")
        if pieces == 2:
            script.graph((at + 67_000, at + 69_000), (at + 81_000, at + 84_000))
        script.sync(at + 70_000, at + 85_000)
    trace = script.trace
    trace.metadata["source"] = LIGHT
    return trace


def launched(trace: Trace) -> EagerLaunches:
    base = based(trace)
    return eager_launches(base.causality, base.steps)


FILL, ARGMAX = IntoGraph("fill", "aten::fill_", BEFORE), IntoGraph("argmax", "token", BEHIND)
BY_KERNEL = ("kernel", "operator", "where", "per_step", "kernel_us")


def test_each_kernel_beside_a_graph_has_its_operator_its_place_and_the_hole_before_it() -> None:
    found = launched(mixed())
    expected = [["fill", "aten::fill_", BEFORE, 1, 2], ["argmax", "token", BEHIND, 1, 5]]
    assert rows(found.by_kernel(), *BY_KERNEL) == expected
    assert (found.steps, found.lacking, rows(found.by_kernel(), "launch_us")) == (TOKENS, 0, [6, 6])
    holes = {(kernel, hole) for at, kernel, hole in rows(found.table, "at", "kernel", "hole_ns") if at > 0}
    assert holes == {("fill", PERIOD - 80_000 + 12_000), ("argmax", 5_000)}
    partly = launched(mixed(unknown=4))
    assert (partly.steps, partly.lacking, rows(partly.by_kernel(), *BY_KERNEL)) == (TOKENS - 4, 4, expected)
    of_two = launched(mixed(pieces=2)).by_kernel()
    assert rows(of_two, "kernel", "where") == [["fill", BEFORE], ["argmax", BETWEEN]]
    assert predicted(mixed(pieces=2), IntoGraph("argmax", "token", BETWEEN)).speedup.estimate > 1


def test_in_the_graph_a_kernel_behind_it_follows_at_once() -> None:
    found = predicted(mixed(), ARGMAX)
    assert found.speedup.estimate > 1
    assert found.speedup.low is None  # no such change was measured
    starts = [start for name, start in rows(found.trace["kernels"], "name", "start") if name == "argmax"]
    ends = rows(found.trace["graph_launches"], "end")
    assert {start - end for start, end in zip(starts, ends, strict=True)} == {400}


def test_a_kernel_that_the_host_waits_for_before_the_graph_cannot_move() -> None:
    base = based(mixed(wait=True))
    with pytest.raises(UnsafePlanError, match="the host waits for them"):
        predict(base, [FILL])
    assert predict(base, [ARGMAX]).speedup.estimate > 1


def test_steps_with_unknown_kernels_are_left_out_as_if_there_were_none() -> None:
    whole, partly = (based(mixed(unknown=unknown)) for unknown in (0, 4))
    for edits in ([IntoGraph()], [FILL], [IntoGraph(), WithoutSyncs()]):
        one, other = (predict(base, edits) for base in (whole, partly))
        assert one.speedup.estimate == pytest.approx(other.speedup.estimate)
        assert one.predicted.idle_us == pytest.approx(other.predicted.idle_us)
    with pytest.raises(CannotTellError, match="in most of the 12 steps it is unknown"):
        based(mixed(unknown=7))
