"""No answer about a simulated engine is wrong without a doubt. INTERTOKEN_DRAWS=2000 draws more, at random."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.engines.drawn import by_hypothesis, seeded
from tests.engines.judged import WRONG, judge
from tests.engines.kinds import KINDS
from tests.engines.known_wrong import KNOWN_WRONG
from tests.engines.machine import Costs, Graph, Host, Kernel, Machine
from tests.engines.recorded import GRAPH, NODE
from tests.engines.truth import DECODE, truth_of
from tracer.analysis.recording import Recording

FEW = 50
DRAWS = int(os.environ.get("INTERTOKEN_DRAWS", FEW))


@given(st.sampled_from([name for name in KINDS if name not in KNOWN_WRONG]), st.data())
@settings(
    max_examples=DRAWS, derandomize=DRAWS == FEW, suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],  # to shrink what fails takes minutes
)  # fmt: skip
def test_no_answer_is_wrong_without_a_doubt(kind: str, data: st.DataObject) -> None:
    drawn = by_hypothesis(data.draw)
    found = judge(*KINDS[kind](drawn))
    assert found.verdict != WRONG, f"{kind}: {found.wrong}\nsaid: {found.said}\n{drawn.parameters}"


@pytest.mark.parametrize("kind", KNOWN_WRONG)
def test_what_is_known_to_be_wrong_still_is(kind: str) -> None:
    seed, _ = KNOWN_WRONG[kind]
    assert judge(*KINDS[kind](seeded(kind, seed))).verdict == WRONG, f"take {kind} out of KNOWN_WRONG"


def test_a_draw_is_the_same_again() -> None:
    (one, truth), (other, same) = (KINDS["llama_eager"](seeded("", 1)) for _ in range(2))
    assert truth == same
    assert all(one[name].equals(other[name]) for name in one.tables)


def test_truths_are_those_of_a_machine_whose_every_time_is_known() -> None:
    costs = Costs(launch=10, graph=30, copy=10, sync=5, event=1, pause=1, latency=20, wake=40, between=2, inside=3)
    machine = Machine(seeded("", 0))
    machine.costs, machine.noise = costs, 0
    host = Host(machine)
    for _ in range(3):
        host.step(DECODE)
        host.graph(Graph(1, (Kernel("one", 100), Kernel("two", 200))))
        host.launch(Kernel("three", 50))
        host.copy("DtoH", 0)
        host.sync()
        host.think(500)
    # of a step: 30 ns to launch the graph and 20 until it begins, 303 of it, 2, 50, 2 and 900 to copy, 40 to return
    whole, nodes = (truth_of(machine, level).readings()[0] for level in (GRAPH, NODE))
    assert whole.periods == nodes.periods == [30 + 20 + 303 + 2 + 50 + 2 + 900 + 40 + 1 + 500] * 2
    assert whole.idle == [1848 - 303 - 50] * 2
    assert nodes.idle == [1848 - 300 - 50] * 2
    assert whole.causes_us == pytest.approx({"launch": 0.052, "copy": 0.9, "sync": 0.042, "host": 0.501})
    assert (whole.steps, whole.syncs) == (3, [1, 1, 1])


def test_a_jump_of_the_devices_clock_that_no_wait_proves_is_a_doubt() -> None:
    """The recorder does not tell what waits are for; from the jump on, work begins 3 ms after its launch."""
    trace, _ = KINDS["device_clock_jumps"](seeded("device_clock_jumps", 35))
    (doubt,) = Recording(trace, "simulated").steps.doubts
    assert doubt.endswith("µs or more after its launch, though it idles: its clock may have jumped")
