"""The light pass in a process of its own under the light recorder, over a driver without a GPU."""

import json
import re
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from dashboard.palette import KINDS
from dashboard.reading.run import read_runs
from executor.run import execute, light_pass
from executor.run.configuration import Configuration, combinations
from executor.run.directory import write_run
from executor.run.light_pass import record_light
from executor.run.passes import record_traced
from tests.executor.driven import COMMAND
from tests.tracer.fake_driver import run
from tracer import formats, read
from tracer.analysis.gaps import gap_report
from tracer.analysis.syncs import sync_report
from tracer.analysis.tokens import find_steps
from tracer.errors import ExecutionError, UsageError
from tracer.model.graph_json import GRAPH_FILE, read_graph
from tracer.model.schema import HOST_COMPUTE
from tracer.recorders import light_ring
from tracer.stored import node_kernels

BASE = Configuration("cuda", tokens=6, repeats=2, warmup=1)
pytestmark = pytest.mark.usefixtures("recorder")


def test_each_configuration_gets_its_own_part_of_the_recording(tmp_path):
    chosen = combinations(BASE, ["sccc", "saaas", "aaag", "ggg"], ["sequential"])
    units = []
    results = record_light(chosen, command=COMMAND, progress=lambda: units.append(1))
    assert len(units) == len(chosen) * (1 + BASE.repeats)
    for result in results:
        trace = read(write_run(result, tmp_path))
        assert trace.metadata["source"] == "light"
        steps = find_steps(trace)
        assert len(steps) == BASE.tokens * BASE.repeats
        assert len(trace["graph_launches"]) == (BASE.tokens * BASE.repeats) + BASE.warmup
        assert sync_report(trace, steps).strategy == result.configuration.strategy
        assert len(result.spans) == 1 + BASE.repeats
        origin = trace.metadata["clock"]["origin_ns"]
        start = trace["nvtx"]["start"].to_numpy() + origin
        assert all(any(since <= time < until for since, until in result.spans) for time in start.tolist())
        assert gap_report(trace, steps).distortion == 1.0
    apart = [span for result in results for span in result.spans]
    assert all(end <= start for (_, end), (start, _) in zip(sorted(apart), sorted(apart)[1:], strict=False))


def test_logits_tokens_and_rates_come_back(tmp_path):
    chosen = [BASE, replace(BASE, strategy="aaag", batch=3, prompt=(2, 0), concurrency="branches")]
    results = record_light(chosen, keep_logits=chosen[1:], command=COMMAND)
    expected = execute([replace(c, backend="cpu", fusion=True) for c in chosen], keep_logits=True)
    assert results[0].logits is None
    assert np.array_equal(results[1].logits, expected[1].logits)
    for result, other in zip(results, expected, strict=True):
        assert np.array_equal(result.tokens, other.tokens)
        assert len(result.seconds) == BASE.repeats
        assert all(0 < seconds < 60 for seconds in result.seconds)
        assert len(result.graphs) == len(other.graphs)
    assert results[1].graphs[0]["reused"] > 0


def test_eager_launches_are_one_run_per_step():
    (result,) = record_light([replace(BASE, launch="eager", strategy="aaag")], command=COMMAND)
    runs = result.trace["graph_launches"]
    assert len(runs) == BASE.tokens * BASE.repeats + BASE.warmup
    assert (runs["graph"] == -1).all()


def test_what_the_host_computes_is_in_it():
    (result,) = record_light([replace(BASE, strategy="aaag", gpu_layers=2)], command=COMMAND)
    ranges = result.trace["nvtx"]
    computed = ranges[ranges["domain"] == HOST_COMPUTE]
    products = computed[computed["text"].astype(str).str.startswith("mul_mat")]
    assert len(products) >= BASE.tokens * BASE.repeats
    assert (products["payload"] > 0).all()


def test_a_backend_that_reports_stays_in_this_process(monkeypatch):
    monkeypatch.setattr(light_pass, "_recorded", None)
    (result,) = record_light([replace(BASE, backend="cpu")])
    assert result.trace.metadata["source"] == "host"


def test_what_cannot_be_planned_is_refused_before_it_starts(monkeypatch):
    monkeypatch.setattr(light_pass, "_recorded", None)
    with pytest.raises(UsageError, match="unknown strategy"):
        record_light([replace(BASE, strategy="aaaa")])


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("import os, sys; print('no GPU here', file=os.fdopen(int(sys.argv[2]), 'w')); sys.exit(2)", "no GPU here"),
        ("import os; os.kill(os.getpid(), 11)", "the light pass ended by SIGSEGV"),
        ("pass", "the light pass recorded nothing: .* made no call of the CUDA driver"),
    ],
)
def test_a_pass_that_fails_says_why_and_leaves_nothing(tmp_path, program, why):
    with pytest.raises(ExecutionError, match=why):
        record_light([BASE], command=(sys.executable, "-c", program))
    assert not list(tmp_path.iterdir())


def test_an_interrupted_pass_ends_the_command():
    with pytest.raises(KeyboardInterrupt):
        record_light([BASE], command=(sys.executable, "-c", f"import os; os.kill(os.getpid(), {signal.SIGINT:d})"))


def test_without_a_gpu_the_error_is_one_line(tmp_path):
    with pytest.raises(ExecutionError) as caught:
        record_light([BASE])
    assert re.match(r"backend 'cuda' needs|no GPU", str(caught.value))
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_rings_are_gone(tmp_path):
    record_light([replace(BASE, repeats=1)], command=COMMAND)
    assert not light_ring.left_folders()
    assert not list(tmp_path.iterdir())


@pytest.fixture
def joined(tmp_path):
    """A run directory with a node pass, for which the CPU backend stands."""
    (result,) = record_light([replace(BASE, strategy="aaag")], command=COMMAND)
    directory = write_run(result, tmp_path / "runs")

    def spawn(arguments, stdin):
        order = json.loads(stdin)
        (traced,) = execute([Configuration(**order["configuration"] | {"backend": "cpu", "fusion": True})])
        traced.trace.metadata |= {"source": "cupti", "run": order["run"]}
        formats.write(traced.trace, arguments[1])
        return subprocess.CompletedProcess(arguments, 0, "", "")

    before = info(directory), gaps(directory)
    record_traced(result.configuration, directory, ["node"], spawn=spawn)
    return directory, before


def info(directory):
    return json.loads(run("info", directory, "--json").stdout)


def gaps(directory):
    return json.loads(run("gaps", directory, "--json").stdout)


def test_the_node_pass_is_placed_in_the_light_pass_and_changes_no_figure(joined):
    directory, (info_before, gaps_before) = joined
    now = info(directory)
    kernels, note = now.pop("kernels"), now["notes"].pop()
    assert now == info_before
    assert f"in {2 * BASE.tokens} of {2 * BASE.tokens} graphs" in note
    launches = len(read_graph(directory / GRAPH_FILE).launches)
    placed = node_kernels(directory, light := read(directory), find_steps(light))
    assert placed.kernels()["calls"].sum() == launches
    assert [k["us"] for k in kernels] == sorted((k["us"] for k in kernels), reverse=True)
    assert "kernels" in run("info", directory).stdout
    after = gaps(directory)
    assert after["notes"].pop() == note
    assert after == gaps_before


def test_the_timeline_shows_its_kernels_inside_the_graphs_of_the_light_pass(joined):
    directory, _ = joined
    (found,) = read_runs(directory)
    graphs = found.trace["graph_launches"]
    (row,) = (row for row in found.rows if row.role == "stream" and not row.aside)
    kernels = row.events[row.events["what"] == KINDS.index("kernel")]
    steps = found.steps.table
    inside = graphs[graphs["start"].between(steps["start"].min(), steps["end"].max())]
    at = np.searchsorted(inside["start"], kernels["start"], side="right") - 1
    assert (kernels["end"].to_numpy() <= inside["end"].to_numpy()[at]).all()
    assert set(inside["start"]) <= set(kernels["start"])
    assert set(inside["end"]) <= set(kernels["end"])
    assert "node pass" in found.node_kernels_note
    assert len(found.executions.durations) == len(found.graph.launches)
