"""What-ifs that put launches into graphs, or read from the device between them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.recordings import SAMPLES
from tests.tracer.machine import LAUNCH, PAUSE_AFTER, Machine, recorded
from tests.tracer.test_whatif import FITS, predicted
from tracer import Trace, read
from tracer.analysis.whatif.graph_edits import OneGraph
from tracer.analysis.whatif.host_edits import FollowStrategy
from tracer.errors import EmptyTraceError, UnsafePlanError


def in_two_parts(*between: str) -> Trace:
    """Two launches a step; between them what is given."""
    machine = Machine()
    for _ in range(8):
        start = machine.now
        machine.copy()
        machine.sync()
        machine.launch()
        for kind in between:
            machine.copy(kind)
            machine.sync()
        machine.launch()
        machine.copy("DtoH")
        machine.sync()
        machine.script.range("token", start, machine.now)
    return machine.script.trace


def test_what_the_host_reads_between_two_launches_is_still_read() -> None:
    """Whatever the strategy; and ggg would have the device do what the host does with it."""
    trace = in_two_parts("DtoH", "HtoD")
    for strategy, syncs in (("saaas", 4), ("aaag", 2)):
        assert len(predicted(trace, FollowStrategy(strategy)).trace["syncs"]) == 8 * syncs
    with pytest.raises(UnsafePlanError, match="the host reads a copy's result between two launches"):
        predicted(trace, FollowStrategy("ggg"))
    assert len(predicted(in_two_parts("HtoD"), FollowStrategy("ggg")).trace["syncs"]) == 0


def test_ggg_is_not_for_steps_that_the_host_computes_a_part_of() -> None:
    trace = read(SAMPLES / "llama-1.1b-aaag-sequential-cuda-ngl13")
    with pytest.raises(UnsafePlanError, match=r"the host computes a part of the step \('split 0: host'\)"):
        predicted(trace, FollowStrategy("ggg"))
    assert predicted(trace, FollowStrategy("aaag")).speedup.estimate == 1


def test_ggg_leaves_the_host_what_it_does_between_launches_of_a_run() -> None:
    """Launching is all that it does; what lies before and behind the run goes with the token's own host code."""
    trace = eager()
    found = predicted(trace, FollowStrategy("ggg"))
    assert found.predicted.period_us * 1e3 == 30 * 20 + 29 * PAUSE_AFTER["launch"]


def test_one_graph_on_several_streams_starts_behind_its_launch() -> None:
    machine = Machine()
    for _ in range(8):
        start = machine.now
        for _ in range(10):
            machine.launch(7, kernel=5, api="cudaLaunchKernel_v7000")
            machine.launch(9, kernel=5, api="cudaLaunchKernel_v7000")
        machine.copy("DtoH")
        machine.sync()
        machine.script.range("token", start, machine.now)
    found = predicted(machine.script.trace, OneGraph()).trace
    launched = found["api"].loc[found["api"]["name"] == "cudaLaunchKernel_v7000", "start"].to_numpy()
    begun = found["kernels"].groupby(np.arange(len(found["kernels"])) // 20)["start"].min().to_numpy()
    assert len(launched) == 8
    assert (begun > launched).all()
    for stream in (7, 9):
        on_stream = found["kernels"][found["kernels"]["stream"] == stream]
        assert (on_stream["start"].to_numpy()[::10] > launched).all()


def eager(kernels: int = 30) -> Trace:
    """One launch call after another, slower than their kernels."""
    machine = Machine()
    for _ in range(8):
        start = machine.now
        machine.copy()
        for _ in range(kernels):
            machine.launch(kernel=5, api="cudaLaunchKernel_v7000")
        machine.copy("DtoH")
        machine.sync()
        machine.script.range("token", start, machine.now)
    return machine.script.trace


def test_eager_launches_become_one_graph() -> None:
    trace = eager()
    found = predicted(trace, OneGraph())
    change = FITS.graph.launch_ns + 30 * FITS.graph.node_ns - 20  # of the call that stays; behind it the kernels queue
    queued = (
        29 * (LAUNCH + PAUSE_AFTER["launch"]) + 5
    )  # none was queued behind another: how close they could be is unknown
    before = trace["kernels"]["end"].to_numpy()[59] - trace["kernels"]["start"].to_numpy()[30]
    assert (found.predicted.period_us - found.before.period_us) * 1e3 == pytest.approx(change + queued - before, abs=5)
    assert len(found.trace["api"]) == len(trace["api"]) - 8 * 29
    assert len(found.trace["kernels"]) == len(trace["kernels"])
    with pytest.raises(EmptyTraceError, match="nothing to put into a graph"):
        predicted(recorded("aaag"), OneGraph())
