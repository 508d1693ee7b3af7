"""Rates of the wall: of hosts that wait for their device, and of those that run ahead of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tests.recordings import SAMPLES
from tests.tracer.bases import base_of
from tests.tracer.handmade import Script
from tracer import Trace, analyse, compare, formats
from tracer.analysis.path.paths import Causality
from tracer.analysis.recording import Recording
from tracer.analysis.step_work import step_spans, steps_per_s, tokens_per_step, wall_rates
from tracer.analysis.streams import bubble_report
from tracer.analysis.tokens import find_steps
from tracer.analysis.whatif.edits import ScaleHost
from tracer.analysis.whatif.prediction import predict
from tracer.cli import main
from tracer.errors import TraceError


def loop(between: int) -> Trace:
    """Ten steps that the host begins every `between` ns and that compute for 1000 ns each, one behind the other."""
    script = Script()
    for token in range(10):
        begin = token * between
        script.range("token", begin, begin + between // 2)
        script.launch((begin, begin + 10), (max(begin + 20, 20 + token * 1000), 1020 + max(begin, token * 1000)))
    return script.trace


@pytest.mark.parametrize(
    ("between", "wall"),
    [(2000, 19_000), (100, 10_000)],  # the host's, first begin to last end; the device's, ten times its compute
)
def test_the_wall_is_the_longer_of_the_host_s_and_the_device_s(between: int, wall: int) -> None:
    trace = loop(between)
    steps = find_steps(trace)
    assert wall_rates(trace, steps) == {(100, 101): pytest.approx(10e9 / wall)}
    assert steps_per_s(trace, steps) == pytest.approx(10e9 / wall)


@pytest.mark.parametrize(("left_out", "rate"), [([0, 1, 3, 4, 6, 7, 9], None), ([0, 1, 4, 5, 6, 7, 8, 9], 2e9 / 2000)])
def test_steps_that_doubt_leaves_alone_have_no_rate(left_out: list[int], rate: float | None) -> None:
    trace = loop(100)  # a host that runs ahead: alone, each step would be as fast as its launch
    steps = find_steps(trace).without(np.array(left_out), [], ["the clock jumped"])
    assert steps_per_s(trace, steps) == (None if rate is None else pytest.approx(rate))
    two = find_steps(trace).select(2, 4)
    assert steps_per_s(trace, replace(two, doubts=("of other steps",))) == pytest.approx(2e9 / 2000)


def test_one_step_has_no_rate(tmp_path: Path) -> None:
    trace = loop(2000)
    one = find_steps(trace).select(2, 3)
    assert (len(one), wall_rates(trace, one), steps_per_s(trace, one)) == (1, {}, None)
    formats.write(trace, tmp_path / "run")
    only = ["info", str(tmp_path / "run"), "--steps", "2:3"]
    assert "steps/s    – (one step has no rate)" in CliRunner().invoke(main, only).stdout
    assert json.loads(CliRunner().invoke(main, [*only, "--json"]).stdout)["steps_per_s"] is None


@pytest.mark.parametrize("level", ["", "node"])
def test_a_host_that_launches_all_tokens_at_once_makes_them_no_faster(level: str) -> None:
    found = Recording(formats.read(SAMPLES / "llama-1.1b-ggg-sequential-cuda" / level), "ggg").summary
    assert found.strategy == "ggg"
    assert found.period_us is not None
    assert found.steps_per_s == pytest.approx(1e6 / found.period_us, rel=0.03)
    assert found.traced_tokens_per_s == found.steps_per_s


def test_tokens_of_a_step_come_from_the_batch_or_from_two_rates_or_are_unknown() -> None:
    trace = loop(2000)
    assert tokens_per_step(trace, find_steps(trace)) is None
    trace.metadata["run"] = {"measured": {"tokens_per_s": {"median": 4e6}, "steps_per_s": {"median": 1e6}}}
    assert tokens_per_step(trace, find_steps(trace)) == 4
    trace.metadata["run"]["configuration"] = {"batch": 3}
    assert tokens_per_step(trace, find_steps(trace)) == 3


@pytest.mark.parametrize("stream", [7, 8])
def test_what_was_launched_before_the_recording_is_of_no_step(stream: int) -> None:
    script, early, ns = Script(), 5, 1000
    for kernel in range(early):
        script.kernel(kernel * ns, (kernel + 1) * ns, stream=7)
    for token in range(3):
        begin = token * 100
        script.range("token", begin, begin + 50)
        script.launch((begin, begin + 10), ((early + token) * ns, (early + token + 1) * ns), stream=7)
    if stream == 8:  # nothing tells when this was launched
        script.kernel(20, 30, stream=8)
    trace = script.trace
    steps = find_steps(trace)
    first = 20 if stream == 8 else early * ns
    assert step_spans(trace, steps)["start"].tolist() == [first, 6 * ns, 7 * ns]
    assert steps_per_s(trace, steps) == pytest.approx(3e9 / (8 * ns - first))
    assert bubble_report(trace, steps).steps["step"].tolist() == [0, 1, 2]


def test_a_kernel_without_a_call_is_of_the_step_in_which_it_ran() -> None:
    script = Script()
    for token in range(4):
        begin = token * 1000
        script.range("token", begin, begin + 900)
        script.kernel(begin + 20, begin + 400)  # of a graph whose launch is not recorded
        script.launch((begin + 410, begin + 420), (begin + 430, begin + 500))
    trace = script.trace
    assert step_spans(trace, find_steps(trace))["start"].tolist() == [20, 1020, 2020, 3020]


def two_engines(periods: tuple[int, int], sequences: tuple[int, int] = (4, 4)) -> Trace:
    """Two processes with a device each, whose steps, marked like those of vLLM, begin every so many ns."""
    script = Script()
    for device, (period, size) in enumerate(zip(periods, sequences, strict=True)):
        process = 100 * (device + 1)
        for at in range(0, 60_000, period):
            script.launch((at, at + 10), (at + 20, at + 820), process=process, thread=process + 1, device=device)
            text = f"execute_context_0(0)_generation_{size}({size})"
            row = {"text": text, "start": at - 1, "end": at + 900, "kind": "push/pop"}
            script.rows["nvtx"].append(row | {"process": process, "thread": process + 1})
    return script.trace


def test_engines_of_different_rates_have_no_rate_together() -> None:
    steps = find_steps(trace := two_engines((1000, 2000)))
    assert steps_per_s(trace, steps) is None
    assert len(wall_rates(trace, steps)) == 2
    (note,) = steps.notes
    assert note.startswith("hosts of different rates, as of several engines: process 100 thread 101 1,0")
    assert Recording(trace, "both").summary.traced_tokens_per_s is None
    with pytest.raises(TraceError, match="no prediction: hosts of different rates, as of several engines: process 100"):
        predict(base_of(Causality.of(trace), steps), [ScaleHost(0.5)])


def test_a_rank_whose_host_runs_ahead_is_as_fast_as_its_device() -> None:
    script = Script()
    for device, between in enumerate((1000, 20)):
        process = 100 * (device + 1)
        for step in range(40):
            at, work = between * step, (1000 * step + 20, 1000 * step + 820)
            script.launch((at, at + 10), work, process=process, thread=process + 1, device=device)
            row = {"text": "token", "start": at - 1, "end": at + 15, "kind": "push/pop"}
            script.rows["nvtx"].append(row | {"process": process, "thread": process + 1})
    assert find_steps(script.trace).different == ""


def test_ranks_of_one_engine_have_one() -> None:
    steps = find_steps(trace := two_engines((1000, 1050)))
    assert steps.notes == []
    assert steps_per_s(trace, steps) == pytest.approx(1e9 / 1025, rel=0.01)
    assert tokens_per_step(trace, steps) == 4


def test_hosts_whose_batches_differ_have_no_tokens_per_s_together() -> None:
    steps = find_steps(trace := two_engines((1000, 1000), (4, 8)))
    assert steps_per_s(trace, steps) is not None
    assert tokens_per_step(trace, steps) is None


def test_engines_of_different_rates_are_not_compared_together() -> None:
    """Neither is faster in the second recording; only the share of their steps is another."""
    one, two = (
        analyse(two_engines(periods), name=name) for name, periods in (("a", (1000, 3000)), ("b", (3000, 1000)))
    )
    found = compare(one, two)
    assert (found.verdict, found.speedup, found.busy_us) == ("no verdict", None, None)
    assert found.refusal is not None
    assert found.refusal.why.startswith(
        "the steps of b and a are of hosts of different rates, whose share in them may differ"
    )
