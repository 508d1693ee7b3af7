"""Attention that goes over more cells as sequences grow, and graphs that change with it."""

from functools import partial
from itertools import product

import numpy as np
import pytest

from executor.graph.models import kv_cache
from executor.graph.models.kv_cache import KINDS
from executor.run.directory import plan_facts
from executor.scheduling.launchers import LAUNCHERS
from executor.scheduling.strategies import STRATEGIES
from tests.covering import covering
from tests.executor.test_models_kv import agreed, compare_with_reference, run, run_rows

BACKENDS = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
HOST_ADVANCES = [name for name, strategy in STRATEGIES.items() if not strategy.advances_on_device]
CASES = list(product(KINDS, [(1, 0), (3, (5, 0, 2))]))
ROWS = covering(product(CASES, HOST_ADVANCES, ("sequential", "branches"), LAUNCHERS))


@pytest.fixture(autouse=True)
def little_padding(monkeypatch):
    monkeypatch.setattr(kv_cache, "PADDING", 8)


def graphs_of(result):
    (counts,) = result.graphs
    return {name: count for name, count in counts.items() if count}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_logits_are_the_references_however_the_graphs_change(case, backend):
    kv, (batch, prompt) = case
    grow = partial(run_rows, backend=backend, model="odd", kv=kv, batch=batch, prompt=prompt, tokens=19, repeats=2)
    results = grow([row[1:] for row in ROWS if row[0] == case])
    compare_with_reference(agreed(results))
    (whole,) = grow([("ggg", "sequential", "graph")])  # over all cells from the start: sums are rounded otherwise
    np.testing.assert_allclose(whole.logits, results[0].logits, rtol=0, atol=1e-4)
    assert plan_facts(whole.prepared)["attended_cells"] == [plan_facts(results[0].prepared)["kv_cells"]]


@pytest.mark.parametrize("options", [{"devices": 2}, {"gpu_layers": 2}, {"devices": 2, "gpu_layers": 2}], ids=str)
def test_split_steps_grow_too(options):
    results = run(
        ("sccc", "aaas", "aaag", "aaeg"), launches=("graph", "rebuild"), model="odd", tokens=19, repeats=2, **options
    )
    compare_with_reference(agreed(results))
    on_device = [split for split in results[0].graphs if split["created"]]
    assert on_device
    for split in on_device:  # 16, 24, 8, 16, 24 cells, and turns that have graphs of their own
        assert split["updated"] == 5 * split["created"]


def test_a_graph_is_updated_when_the_size_changes_and_only_then():
    """19 tokens over 8, 16 and 24 cells, once more from the start, and 9 tokens of warm-up before."""
    (kept,) = run(model="odd", tokens=19, repeats=2, warmup=9)
    launches = 9 + 2 * 19
    changes = 1 + 3 + 3  # grown in the warm-up; back and grown twice; the same
    assert graphs_of(kept) == {"created": 1, "updated": changes, "reused": launches - changes - 1}
    assert plan_facts(kept.prepared)["attended_cells"] == [8, 16, 24]
    (rebuilt,) = run(launches=("rebuild",), model="odd", tokens=19, repeats=2, warmup=9)
    assert graphs_of(rebuilt) == {"created": 1, "updated": launches + changes}


def test_the_step_that_grows_says_so_and_waits_for_the_devices():
    (result,) = run(("aaag",), model="odd", tokens=19, repeats=1, warmup=0)
    trace = result.trace
    ranges = trace["nvtx"]
    grown = ranges[ranges["text"].astype(str).str.startswith("n_kv")]
    assert grown["text"].tolist() == ["n_kv 16", "n_kv 24"]
    calls = trace["api"]
    for start, end in zip(grown["start"], grown["end"], strict=True):
        names = calls[(calls["start"] >= start) & (calls["end"] <= end)]["name"].tolist()
        assert [name.removeprefix("cuda") for name in names] == ["streamSynchronize", "graphExecUpdate"]
    steps = ranges[ranges["text"] == "token"].sort_values("start").reset_index()
    inside = [int(np.searchsorted(steps["start"], start)) - 1 for start in grown["start"]]
    assert inside == [8, 16], "the first tokens that need a ninth and a seventeenth cell"
