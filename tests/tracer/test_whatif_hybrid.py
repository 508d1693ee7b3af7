"""What-ifs of steps in which host and device take turns, on a machine whose costs are known."""

from __future__ import annotations

import pytest

from tests.tracer.machine import PAUSE_AFTER, SYNC, Machine, recorded
from tests.tracer.test_whatif import light, predicted, step_ns
from tracer import Trace
from tracer.analysis.whatif.edits import ScaleHost, ScaleHostCompute, WithoutSyncs
from tracer.analysis.whatif.host_edits import FollowStrategy
from tracer.errors import UsageError
from tracer.model.schema import HOST_COMPUTE

COMPUTED = 2_000
"""What the host computes in each part of a hybrid step, ns."""


def hybrid(strategy: str, parts: int = 3, redundant: bool = False) -> Trace:
    """Steps whose parts on the device and on the host alternate, as with experts on the host, which get two inputs."""
    machine = Machine()
    for _ in range(8):
        start = machine.now
        for _ in range(parts):
            send(machine, strategy)
            machine.launch()
            begin = machine.now
            machine.copy("DtoH")
            if strategy == "sccc":
                machine.sync()
            machine.copy("DtoH")
            machine.sync()
            if redundant:
                machine.sync()
            machine.script.range("mul_mat_id(x)", machine.now, machine.now + COMPUTED, domain=HOST_COMPUTE)
            machine.think(COMPUTED)
            machine.script.range("split 1: host", begin, machine.now)
        send(machine, strategy)
        machine.launch()
        machine.copy("DtoH")
        machine.sync()
        machine.script.range("token", start, machine.now)
    return light(machine.script.trace)


def send(machine: Machine, strategy: str) -> None:
    """Two copies to the device with the syncs of a strategy."""
    if strategy in ("sccc", "saaas"):
        machine.sync()
    machine.copy()
    if strategy == "sccc":
        machine.sync()
    machine.copy()
    if strategy != "aaag":
        machine.sync()


@pytest.mark.parametrize("strategy", ["saaas", "aaas", "aaag"])
def test_other_strategies_of_a_hybrid_step_are_predicted_exactly(strategy: str) -> None:
    """The copies behind what the host computes wait for it, and that waits for the copy that brings its input."""
    found = predicted(hybrid("sccc"), FollowStrategy(strategy))
    assert found.predicted.period_us * 1e3 == pytest.approx(step_ns(hybrid(strategy)))
    assert found.before.period_us * 1e3 == step_ns(hybrid("sccc"))


def test_what_the_host_computes_stays_when_the_sync_before_it_goes() -> None:
    """Most syncs lie before host compute, which is no pause that goes with them."""
    recording, goal = hybrid("aaag", redundant=True), hybrid("aaag")
    found = predicted(recording, WithoutSyncs((2, 4, 6)))
    assert found.predicted.period_us * 1e3 == pytest.approx(step_ns(goal))
    assert step_ns(recording) - step_ns(goal) == 3 * (SYNC + PAUSE_AFTER["sync"])


def test_faster_host_code_leaves_what_the_host_computes_as_it_is() -> None:
    """Only the pauses between calls are shorter."""
    base, found = hybrid("aaag"), predicted(hybrid("aaag"), ScaleHost(0))
    pauses = step_ns(base) - found.predicted.period_us * 1e3
    assert 0 < pauses < 200
    assert found.predicted.period_us * 1e3 > 3 * COMPUTED


@pytest.mark.parametrize("factor", [0, 0.5, 2])
def test_what_the_host_computes_is_scaled_exactly(factor: float) -> None:
    recording = hybrid("sccc")
    goal = step_ns(recording) + 3 * COMPUTED * (factor - 1)
    assert predicted(recording, ScaleHostCompute(factor)).predicted.period_us * 1e3 == pytest.approx(goal)
    both = predicted(recording, ScaleHost(0), ScaleHostCompute(factor)).predicted.period_us * 1e3
    pauses = step_ns(recording) - predicted(recording, ScaleHost(0)).predicted.period_us * 1e3
    assert both == pytest.approx(goal - pauses)
    with pytest.raises(UsageError, match="the host computes no products"):
        predicted(recorded("sccc"), ScaleHostCompute(factor))
