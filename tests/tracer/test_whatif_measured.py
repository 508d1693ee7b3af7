"""What-ifs beside what was measured: sample_traces, benchmarks/results."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.recordings import SAMPLES
from tests.tracer.test_whatif import LADDER, predicted
from tracer import read
from tracer.analysis.causality.paths import Causality, StepEnds, call_slack, critical_path
from tracer.analysis.causality.positions import BESIDE_SYNC, by_position
from tracer.analysis.tokens import find_steps
from tracer.analysis.whatif.edits import (
    Strategy,
    WithoutSyncs,
)
from tracer.analysis.whatif.prediction import predict
from tracer.analysis.whatif.streams import Concurrent
from tracer.graph_json import read_graph


def rate(name: str) -> float:
    run = json.loads((SAMPLES / name / "run.json").read_text())
    return float(run["measured"]["tokens_per_s"]["median"])


def test_the_ladder_of_the_h200_is_predicted_from_sccc() -> None:
    """Tokens/s within 2 % (the median within 0.5 %), and the order as measured."""
    base = "llama-1.1b-sccc-sequential-cuda"
    trace = read(SAMPLES / base)
    causality, steps = Causality.of(trace), find_steps(trace)
    found = [predict(causality, steps, [Strategy(name)]) for name in LADDER]
    errors = []
    for prediction, name in zip(found, LADDER, strict=True):
        measured = rate(base.replace("sccc", name))
        errors.append(abs(prediction.tokens_per_s / measured - 1))
        assert prediction.speedup.low < measured / rate(base) < prediction.speedup.high
    assert max(errors) < 0.02
    assert np.median(errors) < 0.005
    rates = [prediction.tokens_per_s for prediction in found]
    assert rates == sorted(rates)


@pytest.mark.parametrize("strategy", ["sccc", "saaas", "aaas", "aaag", "ggg"])
def test_branches_are_predicted_from_one_stream(strategy: str) -> None:
    name = f"llama-1.1b-{strategy}-sequential-cuda"
    trace, node = read(SAMPLES / name), read(SAMPLES / name / "node")
    edit = Concurrent(read_graph(SAMPLES / name / "graph.json"), node, find_steps(node))
    measured = rate(name.replace("sequential", "branches"))
    assert predicted(trace, edit).tokens_per_s == pytest.approx(measured, rel=0.02)
    assert predicted(trace, edit).speedup.estimate > 1


@pytest.mark.parametrize("level", ["graph", "node"])
def test_saaas_of_llama_cpp_is_predicted_from_a_traced_recording(level: str) -> None:
    """Measured without a profiler: +1.4 %."""
    found = predicted(read(SAMPLES / f"llama1b-sccc-{level}"), Strategy("saaas"), untraced=748.7)
    assert found.speedup.estimate == pytest.approx(759.5 / 748.7, abs=0.01)
    assert found.speedup.estimate > 1.002
    assert found.base_tokens_per_s == pytest.approx(748.7)


def test_a_sync_of_a_cupy_loop_is_beside_the_path_and_costs_nothing() -> None:
    """Measured without a profiler: 0.9996 [0.9989, 1.0006]."""
    trace = read(SAMPLES / "sync-beside")
    causality, steps = Causality.of(trace), find_steps(trace)
    ends = StepEnds.of(causality, steps)
    table = by_position(call_slack(causality, ends, critical_path(causality, ends), steps))
    sync = table[table["letter"] == "s"].iloc[0]
    assert (sync["on_path_us"], sync["verdict"]) == (0, BESIDE_SYNC)
    assert 190 < sync["slack_us"] < 240
    found = predict(causality, steps, [WithoutSyncs((1,))])
    assert found.speedup.estimate == pytest.approx(1, abs=1e-4)
    assert found.base_gap_us["p50"] == pytest.approx(30, abs=0.5)  # the period less the graph's time


def test_a_prediction_is_not_corrected_again() -> None:
    found = predicted(read(SAMPLES / "llama1b-sccc-graph"), Strategy("saaas"))
    again = predicted(found.trace)
    assert again.base_gap_us == pytest.approx(found.gap_us)
    assert again.base_period_us == pytest.approx(found.period_us)
