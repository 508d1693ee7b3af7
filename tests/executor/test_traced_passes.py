"""The passes of a run: what the parent orders, and what it makes of the answers."""

import json
import subprocess

import numpy as np
import pytest

from executor.graph.models import kv_cache
from executor.run import execute
from executor.run.configuration import Configuration
from executor.run.directory import measured, write_run
from executor.run.passes import MOST_TRACED_TOKENS, record_traced
from tracer import formats, read
from tracer.errors import ExecutionError
from tracer.formats.nsys_parquet import RUN_FILE

LONG = Configuration(strategy="aaag", tokens=MOST_TRACED_TOKENS + 10, repeats=2, warmup=0)


@pytest.fixture
def light(tmp_path):
    (result,) = execute([LONG])
    return write_run(result, tmp_path)


def spawn_cpu(orders):
    """Stands for a traced process: runs the order on the CPU backend and says it came from CUPTI."""

    def spawn(arguments, stdin):
        order = json.loads(stdin)
        orders.append((arguments[0], order))
        (result,) = execute([Configuration(**order["configuration"])])
        result.trace.metadata |= {"source": "cupti", "run": order["run"]}
        formats.write(result.trace, arguments[1])
        return subprocess.CompletedProcess(arguments, 0, "", "")

    return spawn


def test_every_pass_leaves_a_recording_and_its_figures(light):
    """The light pass is said to be fast: a slow one, on a busy machine, would seem to be another program."""
    run = json.loads((light / RUN_FILE).read_text())
    run["measured"]["steps_per_s"]["median"] = 1e5
    (light / RUN_FILE).write_text(json.dumps(run))
    orders = []
    record_traced(LONG, light, spawn=spawn_cpu(orders))
    assert [level for level, _ in orders] == ["graph", "node"]
    assert all(order["configuration"]["tokens"] == MOST_TRACED_TOKENS for _, order in orders)
    assert all(order["configuration"]["repeats"] == 1 for _, order in orders)
    run = read(light).metadata["run"]
    assert list(run["passes"]) == ["light", "graph", "node"]
    assert run["passes"]["light"]["distortion"] == 1.0
    for level in ("graph", "node"):
        assert run["passes"][level]["distortion"] == pytest.approx(run["passes"][level]["period_us"] / 10)
    assert {p["syncs_per_token"] for p in run["passes"].values()} == {1.0}
    assert read(light / "node").metadata["run"]["pass"] == "node"


def test_a_shorter_pass_has_the_cache_of_the_light_one(tmp_path):
    """Otherwise attention would go over fewer cells, and the passes could not be compared."""
    light = Configuration(
        strategy="ggg", batch=3, kv="unified", prompt=(2, 0), tokens=MOST_TRACED_TOKENS + 150, repeats=1
    )
    (result,) = execute([light])
    orders = []
    record_traced(light, write_run(result, tmp_path), ["node"], spawn=spawn_cpu(orders))
    (traced,) = execute([Configuration(**orders[0][1]["configuration"])])
    states = [
        {leaf.name: leaf.shape for leaf in run.prepared.step.graph.state if "history" not in leaf.name}
        for run in (result, traced)
    ]
    assert states[0] == states[1]
    assert states[0]["kq_mask"] == (3, 768)
    assert np.array_equal(traced.tokens[0], result.tokens[0, :MOST_TRACED_TOKENS])


def test_a_pass_is_compared_with_as_many_tokens_where_attention_grows(tmp_path, monkeypatch):
    monkeypatch.setattr(kv_cache, "PADDING", 32)
    grows = Configuration(tokens=MOST_TRACED_TOKENS + 60, repeats=2, warmup=1)
    (result,) = execute([grows])
    directory = write_run(result, tmp_path)
    orders = []
    record_traced(grows, directory, ["node"], spawn=spawn_cpu(orders))
    steps = result.trace["nvtx"].query("text == 'token'")["start"].to_numpy().reshape(2, -1)
    expected = MOST_TRACED_TOKENS / ((steps[:, MOST_TRACED_TOKENS] - steps[:, 0]) / 1e9)
    run = orders[0][1]["run"]
    assert run["measured"]["steps_per_s"]["repeats"] == pytest.approx(expected.tolist())
    assert read(directory).metadata["run"]["measured"] == measured(result)


def test_a_pass_that_fails_says_why(light):
    def spawn(arguments, stdin):
        return subprocess.CompletedProcess(arguments, 2, "", "noise\nno CUDA driver\n")

    with pytest.raises(ExecutionError, match="tiny-aaag-sequential: the graph pass failed: no CUDA driver"):
        record_traced(LONG, light, spawn=spawn)
