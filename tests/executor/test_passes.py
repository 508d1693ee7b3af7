"""The passes of a run: the light one in a process of its own over a driver without a GPU or on a real one, and what is
ordered of the traced ones and made of their answers."""

import json
import re
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from dashboard.palette import KINDS
from dashboard.reading.run import read_runs
from executor.graph.models import kv_cache
from executor.run import execute, light_pass
from executor.run.configuration import Configuration, combinations
from executor.run.directory import measured, write_run
from executor.run.light_pass import record_light
from executor.run.passes import MOST_TRACED_TOKENS, record_traced
from tests.executor.driven import COMMAND
from tests.tracer.fake_driver import run
from tracer import analyse, formats, read
from tracer.analysis.gaps import gap_report
from tracer.analysis.syncs import sync_report
from tracer.analysis.tokens import find_steps
from tracer.errors import ExecutionError, UsageError
from tracer.formats.nsys_parquet import RUN_FILE
from tracer.model.graph_json import GRAPH_FILE, read_graph
from tracer.model.schema import HOST_COMPUTE
from tracer.recorders import light_ring
from tracer.stored import node_kernels

BASE = Configuration("cuda", tokens=6, repeats=2, warmup=1)
STEPS = BASE.tokens * BASE.repeats
PLAIN = combinations(BASE, ["sccc", "saaas", "aaag", "ggg"], ["sequential"])
PROMPTED = replace(BASE, strategy="aaag", batch=3, prompt=(2, 0), concurrency="branches")
EAGER = replace(BASE, launch="eager", strategy="aaag")
HYBRID = replace(BASE, strategy="aaag", gpu_layers=2)
LONG = Configuration(strategy="aaag", tokens=MOST_TRACED_TOKENS + 10, repeats=2, warmup=0)


@pytest.fixture(scope="module")
def light(recorder):
    """The results of these configurations, recorded together, and how often progress was told."""
    chosen, units = [*PLAIN, PROMPTED, EAGER, HYBRID], []
    results = record_light(chosen, keep_logits=[PROMPTED], command=COMMAND, progress=lambda: units.append(1))
    assert not light_ring.left_folders()
    assert not list(recorder.iterdir())
    return dict(zip(chosen, results, strict=True)), len(units)


def test_each_configuration_gets_its_own_part_of_the_recording(light, tmp_path):
    results, units = light
    assert units == len(results) * (1 + BASE.repeats)
    for c in PLAIN:
        trace = read(write_run(results[c], tmp_path))
        steps = find_steps(trace)
        assert (trace.metadata["source"], len(steps)) == ("light", STEPS)
        assert len(trace["graph_launches"]) == STEPS + BASE.warmup
        report = sync_report(trace, steps)
        cannot_tell = c.strategy == "ggg" and report.waits_elsewhere is not None  # host and device share processors
        assert report.strategy == ("none" if cannot_tell else c.strategy)
        assert gap_report(trace, steps).distortion == 1.0
        start = trace["nvtx"]["start"].to_numpy() + trace.metadata["clock"]["origin_ns"]
        assert len(results[c].spans) == 1 + BASE.repeats
        assert all(any(since <= time < until for since, until in results[c].spans) for time in start.tolist())
    apart = sorted(span for result in results.values() for span in result.spans)
    assert all(end <= start for (_, end), (start, _) in pairwise(apart))


def test_logits_tokens_and_rates_come_back(light):
    results, _ = light
    expected, prompted = execute(
        [replace(c, backend="cpu", fusion=True) for c in (PLAIN[0], PROMPTED)], keep_logits=True
    )
    assert results[PLAIN[0]].logits is None
    assert np.array_equal(results[PROMPTED].logits, prompted.logits)
    for found, other in ((results[PLAIN[0]], expected), (results[PROMPTED], prompted)):
        assert np.array_equal(found.tokens, other.tokens)
        assert len(found.seconds) == BASE.repeats
        assert all(0 < seconds < 60 for seconds in found.seconds)
        assert found.graphs == other.graphs


def test_eager_launches_are_one_run_per_step_and_what_the_host_computes_is_told(light):
    runs = light[0][EAGER].trace["graph_launches"]
    assert len(runs) == STEPS + BASE.warmup
    assert (runs["graph"] == -1).all()
    ranges = light[0][HYBRID].trace["nvtx"]
    products = ranges[(ranges["domain"] == HOST_COMPUTE) & ranges["text"].astype(str).str.startswith("mul_mat")]
    assert len(products) >= STEPS
    assert (products["payload"] > 0).all()


def test_what_reports_stays_in_this_process_and_what_cannot_be_planned_does_not_start(monkeypatch):
    monkeypatch.setattr(light_pass, "_recorded", None)
    (result,) = record_light([replace(BASE, backend="cpu")])
    assert result.trace.metadata["source"] == "host"
    with pytest.raises(UsageError, match="unknown strategy"):
        record_light([replace(BASE, strategy="aaaa")])


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("import os, sys; print('no GPU here', file=os.fdopen(int(sys.argv[2]), 'w')); sys.exit(2)", "no GPU here"),
        ("import os; os.kill(os.getpid(), 11)", "the light pass ended by SIGSEGV"),
        ("pass", "the light pass recorded nothing: .* made no call of the CUDA driver"),
        (f"import os; os.kill(os.getpid(), {signal.SIGINT:d})", None),
    ],
)
def test_a_pass_that_fails_says_why_and_leaves_nothing(recorder, program, why):
    with pytest.raises(ExecutionError if why else KeyboardInterrupt, match=why):
        record_light([BASE], command=(sys.executable, "-c", program))
    assert not list(recorder.iterdir())


def test_without_a_gpu_the_error_is_one_line(recorder):
    with pytest.raises(ExecutionError) as caught:
        record_light([BASE])
    assert re.match(r"backend 'cuda' needs|no GPU", str(caught.value))
    assert "\n" not in str(caught.value)
    assert not list(recorder.iterdir())


def spawn_cpu(orders):
    """Stands for a traced process: runs the order on the CPU backend and says it came from CUPTI."""

    def spawn(arguments, stdin):
        order = json.loads(stdin)
        orders.append((arguments[0], order))
        (result,) = execute([Configuration(**order["configuration"] | {"backend": "cpu", "fusion": True})])
        result.trace.metadata |= {"source": "cupti", "run": order["run"]}
        formats.write(result.trace, arguments[1])
        return subprocess.CompletedProcess(arguments, 0, "", "")

    return spawn


def as_json(*arguments):
    return json.loads(run(*arguments, "--json").stdout)


def test_the_node_pass_is_placed_in_the_light_pass_and_changes_no_figure(light, tmp_path):
    """The timeline shows its kernels inside the graphs of the light pass."""
    aaag = PLAIN[2]
    directory = write_run(light[0][aaag], tmp_path)
    info_before, gaps_before = as_json("info", directory), as_json("gaps", directory)
    record_traced(aaag, directory, ["node"], spawn=spawn_cpu([]))
    info, gaps = as_json("info", directory), as_json("gaps", directory)
    kernels, note = info.pop("kernels"), info["notes"].pop()
    assert info == info_before
    assert gaps["notes"].pop() == note
    assert gaps == gaps_before
    assert f"in {STEPS} of {STEPS} graphs" in note
    placed = node_kernels(directory, trace := read(directory), find_steps(trace))
    assert placed.kernels().calls.sum() == len(read_graph(directory / GRAPH_FILE).launches)
    assert [k["us"] for k in kernels] == sorted((k["us"] for k in kernels), reverse=True)

    (found,) = read_runs(directory)
    graphs, steps = found.trace["graph_launches"], found.steps.table
    (row,) = (row for row in found.rows if row.role == "stream" and not row.aside)
    kernels = row.events[row.events["what"] == KINDS.index("kernel")]
    inside = graphs[graphs["start"].between(steps["start"].min(), steps["end"].max())]
    at = np.searchsorted(inside["start"], kernels["start"], side="right") - 1
    assert (kernels["end"].to_numpy() <= inside["end"].to_numpy()[at]).all()
    assert set(inside["start"]) <= set(kernels["start"])
    assert set(inside["end"]) <= set(kernels["end"])
    assert "node pass" in found.node_kernels_note


def test_every_pass_leaves_a_recording_and_its_figures(tmp_path):
    """The light pass is said to be fast: a slow one, on a busy machine, would seem to be another program."""
    (result,) = execute([LONG])
    told = json.loads((written := write_run(result, tmp_path) / RUN_FILE).read_text())
    told["measured"]["steps_per_s"]["median"] = 1e5
    written.write_text(json.dumps(told))
    orders = []
    record_traced(LONG, written.parent, spawn=spawn_cpu(orders))
    assert [level for level, _ in orders] == ["graph", "node"]
    for _, order in orders:
        assert (order["configuration"]["tokens"], order["configuration"]["repeats"]) == (MOST_TRACED_TOKENS, 1)
    passes = read(written.parent).metadata["run"]["passes"]
    assert list(passes) == ["light", "graph", "node"]
    assert passes["light"]["distortion"] == 1.0
    for level in ("graph", "node"):
        gaps = analyse(written.parent / level).gaps.gaps
        mean_us = (gaps.next_start - gaps.this_start).mean() / 1e3
        assert passes[level]["distortion"] == pytest.approx(mean_us / 10)
    assert {each["syncs_per_token"] for each in passes.values()} == {1.0}
    assert read(written.parent / "node").metadata["run"]["pass"] == "node"


def test_a_shorter_pass_has_the_cache_of_the_light_one_and_is_compared_with_as_many_tokens(tmp_path, monkeypatch):
    """Otherwise attention would go over fewer cells, and the passes could not be compared."""
    monkeypatch.setattr(kv_cache, "PADDING", 32)
    for number, grows in enumerate([
        Configuration(strategy="ggg", batch=3, kv="unified", prompt=(2, 0), tokens=MOST_TRACED_TOKENS + 20, repeats=1),
        Configuration(tokens=MOST_TRACED_TOKENS + 40, repeats=2, warmup=1),
    ]):  # fmt: skip
        (result,) = execute([grows])
        directory, orders = write_run(result, tmp_path / str(number)), []
        record_traced(grows, directory, ["node"], spawn=spawn_cpu(orders))
        (traced,) = execute([Configuration(**orders[0][1]["configuration"])])
        whole, short = (
            {leaf.name: leaf.shape for leaf in each.prepared.step.graph.state if "history" not in leaf.name}
            for each in (result, traced)
        )
        assert whole == short
        assert np.array_equal(traced.tokens[0], result.tokens[0, :MOST_TRACED_TOKENS])
    steps = result.trace["nvtx"].query("text == 'token'")["start"].to_numpy().reshape(2, -1)
    expected = MOST_TRACED_TOKENS / ((steps[:, MOST_TRACED_TOKENS] - steps[:, 0]) / 1e9)
    assert orders[0][1]["run"]["measured"]["steps_per_s"]["repeats"] == pytest.approx(expected.tolist())
    assert read(directory).metadata["run"]["measured"] == measured(result)


def test_a_traced_pass_that_fails_says_why(tmp_path):
    run = Configuration(strategy="aaag", tokens=3, repeats=1)
    (result,) = execute([run])
    failed = subprocess.CompletedProcess([], 2, "", "noise\nno CUDA driver\n")
    with pytest.raises(ExecutionError, match="tiny-aaag-sequential: the graph pass failed: no CUDA driver"):
        record_traced(run, write_run(result, tmp_path), spawn=lambda *_: failed)


@pytest.mark.gpu
class TestOnAGpu:
    """The recorder changes no result, and takes the node pass in; tests/sync_counts counts every call."""

    base = Configuration("cuda", tokens=8, repeats=2, warmup=2)

    def test_logits_are_those_of_an_unrecorded_run_bit_by_bit(self):
        chosen = combinations(self.base, ["sccc", "saaas", "aaag", "ggg"], ["sequential", "branches"])
        recorded = record_light(chosen, keep_logits=chosen)
        plain = execute(chosen, keep_logits=True, make_recorder=lambda: None)
        for one, other in zip(recorded, plain, strict=True):
            assert np.array_equal(one.logits, other.logits), one.configuration.name
            assert np.array_equal(one.tokens, other.tokens)

    def test_the_node_pass_is_placed_in_every_graph(self, tmp_path):
        command = [sys.executable, "-m", "intertoken", "run", "--backend", "cuda", "--sync", "aaag", "--tokens", "8"]
        subprocess.run([*command, "--passes", "light,node", "-o", str(tmp_path)], check=True)
        info = as_json("info", next(tmp_path.iterdir()))
        assert (info["graph_trace"], info["distortion"]) == ("graph", 1.0)
        assert "in 24 of 24 graphs of the light pass" in " ".join(info["notes"])
        assert 0 < sum(kernel["us"] for kernel in info["kernels"]) < info["period_us"]
