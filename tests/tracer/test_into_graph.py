"""Kernels launched beside a graph: their list with known holes, the edit that moves them in, and where it must not."""

import json

import pytest
from click.testing import CliRunner

from tests.recordings import SAMPLES
from tests.tracer.bases import base_of
from tests.tracer.handmade import Script
from tracer import Trace
from tracer.analysis.path.paths import Causality
from tracer.analysis.tokens import Steps, find_steps
from tracer.analysis.whatif.edits import WithoutSyncs
from tracer.analysis.whatif.graph_edits import BEFORE, BEHIND, BETWEEN, IntoGraph, eager_launches
from tracer.analysis.whatif.prediction import predict
from tracer.cli import main
from tracer.errors import CannotTellError, UnsafePlanError
from tracer.model.trace import LIGHT

TOKENS, PERIOD = 12, 100_000


def loop(*, wait: bool = False, eager: bool = True, pieces: int = 1, unknown: int = 0) -> Trace:
    """Steps of a fill (2 µs, from 12 µs on), a graph (40 µs, from 30 µs on), an argmax (5 µs, from 75 µs on) and the
    wait for it, until 85 µs; with `wait` the host waits for the fill. Of two `pieces`, the second graph (3 µs, from
    81 µs on) follows the argmax. In the last `unknown` steps the fill is a run of launches that may last until the
    graph starts."""
    script = Script()
    for token in range(TOKENS):
        at = token * PERIOD
        script.range("token", at, at + PERIOD - 1)
        if eager:
            script.range("aten::fill_", at + 1_000, at + 9_000, domain="cpu_op")
            if token < TOKENS - unknown:
                script.launch((at + 2_000, at + 8_000), (at + 12_000, at + 14_000), name="fill")
            else:
                script.run((at + 2_000, at + 8_000), (at + 12_000, at + 30_000))
        if wait:
            script.sync(at + 9_000, at + 15_000)
        script.graph((at + 20_000, at + 26_000), (at + 30_000, at + 70_000))
        if eager:
            script.launch((at + 60_000, at + 66_000), (at + 75_000, at + 80_000), name="argmax")
        if pieces == 2:
            script.graph((at + 67_000, at + 69_000), (at + 81_000, at + 84_000))
        script.sync(at + 70_000, at + 85_000)
    trace = script.trace
    trace.metadata["source"] = LIGHT
    return trace


def analysed(trace: Trace) -> tuple[Causality, Steps]:
    return Causality.of(trace), find_steps(trace)


def test_each_kernel_has_its_operator_its_place_and_the_hole_before_it() -> None:
    causality, steps = analysed(loop())
    found = eager_launches(causality, steps)
    launches = found.table
    assert (found.steps, found.lacking) == (TOKENS, 0)
    assert not launches["is_wait_between"].any()
    later = launches[launches["at"] > 0]
    assert later[later["kernel"] == "fill"]["hole_ns"].unique().tolist() == [PERIOD - 80_000 + 12_000]
    assert launches[launches["kernel"] == "argmax"]["hole_ns"].unique().tolist() == [5_000]
    table = found.by_kernel()
    assert table[["kernel", "operator", "where", "per_step"]].to_numpy().tolist() == [
        ["fill", "aten::fill_", BEFORE, 1], ["argmax", "token", BEHIND, 1],
    ]  # fmt: skip
    assert table["kernel_us"].tolist() == [2, 5]
    assert table["launch_us"].tolist() == [6, 6]


def test_kernels_between_the_pieces_of_a_graph_are_not_behind_it() -> None:
    causality, steps = analysed(loop(pieces=2))
    table = eager_launches(causality, steps).by_kernel()
    assert dict(zip(table["kernel"], table["where"], strict=True)) == {"fill": BEFORE, "argmax": BETWEEN}
    assert predict(base_of(causality, steps), [IntoGraph("argmax", "token", BETWEEN)]).speedup.estimate > 1


def test_in_the_graph_a_kernel_behind_it_follows_at_once() -> None:
    causality, steps = analysed(loop())
    found = predict(base_of(causality, steps), [IntoGraph("argmax", "token", BEHIND)])
    assert found.speedup.estimate > 1
    assert found.speedup.low is None  # no such change was measured
    kernels = found.trace["kernels"]
    graphs = found.trace["graph_launches"]
    behind = kernels[kernels["name"] == "argmax"]["start"].to_numpy() - graphs["end"].to_numpy()
    assert set(behind.tolist()) == {400}


def test_a_kernel_that_the_host_waits_for_before_the_graph_cannot_move() -> None:
    causality, steps = analysed(loop(wait=True))
    base = base_of(causality, steps)
    with pytest.raises(UnsafePlanError, match="the host waits for them"):
        predict(base, [IntoGraph("fill", "aten::fill_", BEFORE)])
    assert predict(base, [IntoGraph("argmax", "token", BEHIND)]).speedup.estimate > 1


def test_steps_with_unknown_kernels_are_left_out() -> None:
    """What is told is that of the others, as if the recording had no such steps."""
    whole, partly = (analysed(loop(unknown=unknown)) for unknown in (0, 4))
    found = eager_launches(*partly)
    assert (found.steps, found.lacking) == (TOKENS - 4, 4)
    assert found.by_kernel()[["kernel", "per_step", "kernel_us"]].to_numpy().tolist() == [
        ["fill", 1, 2], ["argmax", 1, 5],
    ]  # fmt: skip
    for edits in ([IntoGraph()], [IntoGraph("fill", "aten::fill_", BEFORE)], [IntoGraph(), WithoutSyncs()]):
        one, other = (predict(base_of(*each), edits) for each in (whole, partly))
        assert one.speedup.estimate == pytest.approx(other.speedup.estimate)
        assert one.predicted.idle_us == pytest.approx(other.predicted.idle_us)
    with pytest.raises(CannotTellError, match="in most of the 12 steps it is unknown"):
        base_of(*analysed(loop(unknown=7)))


def test_those_of_an_engine_are_the_kernels_that_it_launches_itself() -> None:
    facts = json.loads(CliRunner().invoke(main, ["advise", str(SAMPLES / "vllm-b1-graph"), "--json"]).stdout)
    names = [one["kernel"] for one in facts["eager_launches"]]
    assert names[0] == "prepare_varlen_num_blocks_kernel"
    assert {"_prepare_pos_seq_lens_kernel", "_compute_slot_mappings_kernel"} <= set(names)
    holes = [one["hole_us"] for one in facts["eager_launches"]]
    assert holes == sorted(holes, reverse=True)
