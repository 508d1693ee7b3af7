"""The light pass on a real GPU: the recorder changes no result, counts every call, and takes the node pass in."""

import json
import subprocess
import sys

import numpy as np
import pytest

from executor.run import execute
from executor.run.configuration import Configuration, combinations
from executor.run.light_pass import record_light
from executor.scheduling.strategies import STRATEGIES
from tests.sync_counts.calls_of_splits import token
from tests.sync_counts.test_cpu import recognised
from tests.sync_counts.test_splits import PLACEMENTS
from tracer.analysis.gaps import gap_report
from tracer.analysis.syncs import sync_report
from tracer.analysis.tokens import find_steps

pytestmark = pytest.mark.gpu
BASE = Configuration("cuda", tokens=8, repeats=2, warmup=2)


def test_logits_are_those_of_an_unrecorded_run_bit_by_bit():
    chosen = combinations(BASE, ["sccc", "saaas", "aaag", "ggg"], ["sequential", "branches"])
    recorded = record_light(chosen, keep_logits=chosen)
    plain = execute(chosen, keep_logits=True, make_recorder=lambda: None)
    for one, other in zip(recorded, plain, strict=True):
        assert np.array_equal(one.logits, other.logits), one.configuration.name
        assert np.array_equal(one.tokens, other.tokens)


def test_every_step_has_its_graph_and_its_calls():
    for result in record_light(combinations(BASE, STRATEGIES, ["sequential"])):
        trace, strategy = result.trace, result.configuration.strategy
        steps = find_steps(trace)
        assert len(steps) == BASE.tokens * BASE.repeats
        assert len(trace["graph_launches"]) == BASE.tokens * BASE.repeats + BASE.warmup
        assert sync_report(trace, steps).strategy == recognised(strategy)
        gaps = gap_report(trace, steps)
        assert 0 <= gaps.gap_us["p50"] < gaps.period_us


def test_layers_on_the_host_make_the_calls_of_their_splits():
    options, splits = PLACEMENTS["first layers on the host"]
    (result,) = record_light([Configuration("cuda", strategy="sccc", tokens=4, repeats=1, fusion=False, **options)])
    report = sync_report(result.trace, find_steps(result.trace))
    assert {"".join(calls["letter"]) for _, calls in report.calls.groupby("step")} == {token("sccc", splits)}


def test_the_node_pass_is_placed_in_every_graph(tmp_path):
    command = [sys.executable, "-m", "intertoken", "run", "--backend", "cuda", "--sync", "aaag", "--tokens", "8"]
    subprocess.run([*command, "--passes", "light,node", "-o", str(tmp_path)], check=True)
    told = subprocess.run(
        [sys.executable, "-m", "intertoken", "info", str(next(tmp_path.iterdir())), "--json"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    info = json.loads(told.stdout)
    assert info["graph_trace"] == "graph"
    assert info["distortion"] == 1.0
    assert "in 24 of 24 graphs of the light pass" in " ".join(info["notes"])
    assert 0 < sum(kernel["us"] for kernel in info["kernels"]) < info["period_us"]
