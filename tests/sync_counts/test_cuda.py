"""The counts of the CPU backend hold on a GPU: by CUPTI and the light recorder, not by the backend's own reports."""

import json
import subprocess
import sys

import pytest

from executor.graph.models import MODELS
from executor.run.configuration import Configuration, combinations
from executor.run.light_pass import record_light
from executor.run.passes import unrecorded_pass
from executor.scheduling.strategies import STRATEGIES
from tests.sync_counts.calls_of_splits import token
from tests.sync_counts.test_cpu import ADVANCING, KERNELS, budgeted, copies, recognised, spelled, syncs
from tests.sync_counts.test_splits import LAUNCHES, PLACEMENTS, SPLITTING, cases, configured, gpus, splits_of
from tracer import read
from tracer.analysis.syncs import sync_report
from tracer.analysis.tokens import find_steps

TOKENS = 6
pytestmark = pytest.mark.gpu


def recorded(tmp_path, level, kinds="lean", **options):
    configuration = {"backend": "cuda", "tokens": TOKENS, "repeats": 2, "warmup": 2, **options}
    order = json.dumps({"configuration": configuration, "run": {"configuration": configuration}, "kinds": kinds})
    command = [sys.executable, "-m", "executor.run.passes", level, str(tmp_path / "pass")]
    done = subprocess.run(command, input=order, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return read(tmp_path / "pass")


def run(**options):
    """Run it for the plugin's CUPTI alone."""
    unrecorded_pass(Configuration("cuda", tokens=TOKENS, repeats=2, warmup=2, **options))


@pytest.mark.parametrize("concurrency", ["sequential", "branches"])
@pytest.mark.parametrize("strategy", [budgeted(name, backend="cupti") for name in STRATEGIES])
def test_graph_launches(recording, strategy, concurrency):
    run(strategy=strategy, concurrency=concurrency)
    assert recording.report.signature_share == 1.0
    assert recording.report.steps == 2 * TOKENS - 1


@pytest.mark.parametrize("strategy", [budgeted(name, backend="cupti", launches={"min": 21}) for name in STRATEGIES])
def test_eager_launches(strategy):
    run(strategy=strategy, launch="eager")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_graph_level(tmp_path, strategy):
    """Of a process of its own, since it must be on before the first call of CUDA."""
    trace = recorded(tmp_path, "graph", strategy=strategy)
    report = sync_report(trace, find_steps(trace))
    counts = report.syncs_per_token, report.copies_per_token, report.launches_per_token
    assert counts == (syncs(strategy, 6), copies(strategy, 6), 1)
    assert (report.strategy, report.signature) == (recognised(strategy), spelled(strategy))
    assert (report.steps, report.signature_share) == (2 * TOKENS, 1.0)


@pytest.mark.parametrize("strategy", SPLITTING)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.gpu(gpus(name))) for name, (options, _) in PLACEMENTS.items()
             if options.get("model", "tiny") in MODELS],
)  # fmt: skip
def test_splits(tmp_path, name, strategy):
    """CUPTI sees the calls of every split, also those between two GPUs."""
    options, splits = PLACEMENTS[name]
    trace = recorded(tmp_path, "node", strategy=strategy, fusion=False, **options)
    report = sync_report(trace, find_steps(trace))
    found = ["".join(calls["letter"]) for _, calls in report.calls.groupby("step")]
    assert found == [token(strategy, splits)] * 2 * TOKENS


def test_light_eager_launches():
    """All in one process under the light recorder."""
    base = Configuration("cuda", tokens=TOKENS, repeats=2, warmup=2, launch="eager", fusion=False)
    for result in record_light(combinations(base, STRATEGIES, ["sequential", "branches"])):
        strategy, report = result.configuration.strategy, sync_report(result.trace, find_steps(result.trace))
        counts = report.syncs_per_token, report.copies_per_token, report.launches_per_token
        launches = KERNELS + (ADVANCING if strategy == "ggg" else 0)
        assert (result.configuration.name, *counts) == (
            result.configuration.name, syncs(strategy, 6), copies(strategy, 6), launches,
        )  # fmt: skip


@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.gpu(2))])
def test_light_splits(devices):
    """Every placement, strategy and launch, all in one process under the light recorder."""
    names = [n for n in PLACEMENTS if gpus(n) == devices and PLACEMENTS[n][0].get("model", "tiny") in MODELS]
    rows = cases(LAUNCHES, names, "cuda")
    chosen = [configured(n, "cuda", strategy=s, launch=launch, staging=staging) for n, s, launch, staging in rows]
    for (name, strategy, _, staging), result in zip(rows, record_light(chosen), strict=True):
        report = sync_report(result.trace, find_steps(result.trace))
        found = ["".join(calls["letter"]) for _, calls in report.calls.groupby("step")]
        steps = result.configuration.tokens * result.configuration.repeats
        assert (name, found) == (name, [token(strategy, splits_of(result, name), staging)] * steps)
