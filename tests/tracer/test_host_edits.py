"""Copies merged, host code after the launch, results read a step later: on loops whose gain is known."""

import pytest

from tests.recordings import SAMPLES
from tests.tracer.bases import base_of
from tests.tracer.handmade import Script
from tracer import Trace, read
from tracer.analysis.path.paths import Causality
from tracer.analysis.tokens import find_steps
from tracer.analysis.whatif.changes import Edit
from tracer.analysis.whatif.host_edits import CopiesBehind, LaunchFirst, ReadLater
from tracer.analysis.whatif.prediction import Prediction, predict
from tracer.errors import EmptyTraceError, UnsafePlanError

TOKENS = 16


def loop(copies: int = 0, code: int = 0, kernel: int = 10_000) -> Trace:
    """Steps of `code` ns of host code, copies of 10 µs of the host, a launch of 10 µs whose kernel begins 15 µs after
    it, and the fetch of the result, for which the host waits until 3 µs after it."""
    script, at = Script(), 0
    for _token in range(TOKENS):
        begin, at = at, at + code
        for _ in range(copies):
            script.copy((at, at + 10_000), (at + 5_000, at + 6_000))
            at += 10_000
        script.graph((at, at + 10_000), (at + 15_000, at + 15_000 + kernel))
        end = at + 15_000 + kernel
        script.copy((at + 10_000, at + 20_000), (end, end + 2_000), kind="DtoH")
        script.sync(at + 20_000, end + 5_000)
        at = end + 5_000
        script.range("token", begin, at)
    trace = script.trace
    trace.metadata["source"] = "host"
    return trace


def predicted(trace: Trace, edit: Edit) -> Prediction:
    return predict(base_of(Causality.of(trace), find_steps(trace)), [edit])


def test_host_code_is_hidden_behind_the_launch() -> None:
    found = predicted(loop(code=20_000, kernel=50_000), LaunchFirst())
    assert found.speedup.estimate == pytest.approx(90 / 70, rel=0.01)
    assert predicted(loop(kernel=50_000), LaunchFirst()).speedup.estimate == pytest.approx(1)


@pytest.mark.parametrize("copies", [1, 3])
def test_copies_of_known_inputs_delay_the_result_by_their_time_on_the_device(copies: int) -> None:
    """Of 90 + 10 µs a copy, the copies' calls are hidden, but not the host's code; each takes the device 1 µs."""
    found = predicted(loop(copies=copies, code=20_000, kernel=50_000), CopiesBehind())
    assert found.speedup.estimate == pytest.approx((90 + 10 * copies) / (90 + copies), rel=0.001)
    assert found.speedup.low is None
    assert not [note for note in found.notes if "lacks" in note]


def test_without_the_copies_on_the_device_it_is_said_that_their_time_is_missing() -> None:
    trace = loop(copies=3, code=20_000, kernel=50_000)
    trace.tables["memcpys"] = trace["memcpys"].iloc[:0]
    found = predicted(trace, CopiesBehind())
    assert found.speedup.estimate == pytest.approx(120 / 90, rel=0.01)
    assert [note for note in found.notes if "lacks the copies' time" in note]


def test_copies_of_what_the_host_computes_cannot_move() -> None:
    trace = read(SAMPLES / "llama-1.1b-aaag-sequential-cuda-ngl13")
    with pytest.raises(UnsafePlanError, match="the host computes a part of the step"):
        predicted(trace, CopiesBehind())


def test_copies_that_block_or_do_not_exist_cannot_move() -> None:
    for trace in (loop(), of_pageable(loop(copies=3))):
        with pytest.raises(EmptyTraceError, match="asynchronous copy"):
            predicted(trace, CopiesBehind())


def of_pageable(trace: Trace) -> Trace:
    copies = trace["memcpys"].copy()
    copies["src_kind"] = copies["src_kind"].where(copies["kind"] != "HtoD", "pageable")
    trace.tables["memcpys"] = copies
    return trace


def test_whether_a_margin_is_known_is_the_same_with_and_without_the_kernels_of_a_graph() -> None:
    """The gap is mostly host code; holes in the graph, which is one activity or ten kernels, are longer than it."""
    verdicts = set()
    for nodes in (False, True):
        script = Script()
        for token in range(TOKENS):
            at = 140_000 * token
            if nodes:
                kernels = [(at + 15_000 + 10_000 * k, at + 20_000 + 10_000 * k) for k in range(10)]
                script.launch((at, at + 5_000), *kernels, api="cudaGraphLaunch_v10000")
            else:
                script.graph((at, at + 5_000), (at + 15_000, at + 110_000))
            script.copy((at + 6_000, at + 7_000), (at + 110_000, at + 111_000), kind="DtoH")
            script.sync(at + 8_000, at + 112_000)
        trace = script.trace
        trace.metadata["source"] = "host"
        base = base_of(Causality.of(trace), find_steps(trace))
        verdicts.add((base.is_checked, base.report.gap_us["p50"]))
    assert verdicts == {(False, 45.0)}


def test_results_that_are_read_later_leave_the_device_busy() -> None:
    """Of 90 µs a step the device computes 50 and copies 2."""
    found = predicted(loop(code=20_000, kernel=50_000), ReadLater())
    assert found.speedup.estimate == pytest.approx(90 / 52, rel=0.01)


def test_a_host_that_is_the_limit_gains_little_by_reading_later() -> None:
    """The host needs 80 µs a step for its code and its calls, of 120."""
    found = predicted(loop(code=60_000, kernel=40_000), ReadLater())
    assert 1 < found.speedup.estimate <= 120 / 80
