"""Comparisons of real recordings whose truth was measured without a profiler: none of them may say a wrong direction.

Each program is compared with each other one of its model at every level of tracing and across the levels, with the
rates that were measured and without.
"""

from __future__ import annotations

from functools import cache
from itertools import combinations, product
from typing import Final

import pytest

from tests.covering import each_value
from tests.recordings import LLAMA, SAMPLES, SIX
from tracer import formats
from tracer.analysis.compare import Comparison, Side, compare
from tracer.analysis.recording import Recording
from tracer.analysis.tokens import Bounds, choose_steps

LADDER: Final = ("sccc", "saaas", "aaas", "aaag", "aga", "ggg")
RATES: Final = {"sccc": (748.7, 745.7, 751.7), "saaas": (759.5, 756.5, 762.5)}
"""tokens/s of llama.cpp: median, lowest, highest."""

PERIODS_US: Final = {
    "sccc sequential": 459, "saaas sequential": 434, "aaag sequential": 429, "sccc concurrent": 290,
    "saaas concurrent": 263.5, "aaag concurrent": 257.5,
}  # fmt: skip
"""Of the loop in six-strategies, untraced: the middle of what was measured."""


@cache
def run_at(path: str, within: str | None = None, rated: bool = True) -> Side:
    """A recording with the rates that it knows, or as if its run.json said what ran but not how fast."""
    trace = formats.read(SAMPLES / path)
    if not rated:
        trace.metadata["run"] = {k: v for k, v in trace.metadata["run"].items() if k not in ("measured", "ranges")}
    name = f"{path} {within or ''}"
    return Side.of(Recording.of_steps(trace, choose_steps(trace, within, Bounds()), name, within=within).measured)


def check_sign(found: Comparison, truth: float) -> None:
    """A direction, where one is stated, is the true one; its interval and that of its gap hold what is true."""
    assert found.verdict not in (("slower",) if truth > 1 else ("faster",)), found.verdict
    if found.speedup is not None and found.speedup.bounds is not None:
        assert found.speedup.holds(truth), (found.speedup, truth)
    if found.verdict == "no verdict":
        assert found.refusal is not None
        assert found.speedup is None


@pytest.mark.parametrize("levels", list(product(("graph", "node"), repeat=2)), ids="-".join)
def test_llama_cpp_at_any_levels(levels: tuple[str, str]) -> None:
    """The node-level pair reads +3.0 % as traced, where +1.4 % is true; another such pair read −4.8 %."""
    names = [LLAMA[s, level].name for s, level in zip(("sccc", "saaas"), levels, strict=True)]
    truth = RATES["saaas"][0] / RATES["sccc"][0]
    rated = compare(*(run_at(name) for name in names))
    assert rated.verdict == "faster"
    check_sign(rated, truth)
    if rated.gap_us is not None:
        assert rated.gap_us.holds(60 - 77)
    assert (rated.gap_us is None) == (levels[0] != levels[1])
    check_sign(compare(*(run_at(name) for name in names[::-1])), 1 / truth)
    for pair in (names, names[::-1]):
        unrated = compare(*(run_at(name, rated=False) for name in pair))
        assert unrated.verdict == "no verdict"
        assert unrated.counts["syncs"] == (-9 if pair == names else 9)
        assert (unrated.busy_us is None) == (levels[0] != levels[1])


@pytest.mark.parametrize("strategy", ["sccc", "saaas"])
def test_a_program_at_two_levels_is_not_18_percent_slower(strategy: str) -> None:
    graph, node = (LLAMA[strategy, level].name for level in ("graph", "node"))
    for one, other in ((graph, node), (node, graph)):
        assert compare(run_at(one, rated=False), run_at(other, rated=False)).verdict == "no verdict"
        assert compare(run_at(one), run_at(other)).verdict == "no difference shown"


@pytest.mark.parametrize(("one", "other"), each_value(combinations(PERIODS_US, 2)))
def test_six_strategies(one: str, other: str) -> None:
    """Node level stretches kernels that run side by side; one rate each, so that there is no interval."""
    truth = PERIODS_US[one] / PERIODS_US[other]
    rated = compare(*(run_at(SIX.name, f"run {name}") for name in (one, other)))
    assert rated.verdict == "no interval"
    assert rated.speedup is not None
    assert rated.speedup.estimate == pytest.approx(truth, rel=0.01)
    check_sign(compare(*(run_at(SIX.name, f"run {name}", rated=False) for name in (one, other))), truth)


@pytest.mark.parametrize(
    ("one", "other", "of_one", "of_other"),
    each_value(
        (*rungs, *passes)
        for rungs in [("sccc", "saaas"), ("saaas", "sccc"), ("sccc", "ggg"), ("ggg", "aaag")]
        for passes in product(["", "/node"], repeat=2)
    ),
)
def test_our_ladder(one: str, other: str, of_one: str, of_other: str) -> None:
    """The light passes are the truth; node passes by CUPTI agree where their rates are known, else refuse."""
    paths = [f"llama-1.1b-{s}-sequential-cuda{part}" for s, part in ((one, of_one), (other, of_other))]
    truth = LADDER.index(other) > LADDER.index(one)
    assert compare(*map(run_at, paths)).verdict == ("faster" if truth else "slower")
    unrated = compare(*(run_at(path, rated=False) for path in paths))
    light = of_one == of_other == ""
    assert unrated.verdict == (("faster" if truth else "slower") if light else "no verdict")
    assert unrated.basis == ("light" if light else "traced")


VLLM: Final = ("vllm-b8-graph", "vllm-b8-graph-nvtx", "vllm-b8-node", "vllm-b8-torch")


def test_recordings_of_one_vllm_do_not_differ() -> None:
    """By nsys at two levels with marks and without, and by PyTorch: the program is the same."""
    for one, other in combinations(VLLM, 2):
        assert compare(run_at(one), run_at(other)).verdict == "no difference shown"
        assert compare(run_at(one, rated=False), run_at(other, rated=False)).verdict == "no verdict"


def test_rates_that_drift_count_as_few() -> None:
    """Three processes of vLLM gave 694, 635 and 480 steps/s: 45 repeats say no more than that."""
    (of_one,) = run_at("vllm-b1-graph").recordings
    assert of_one.untraced is not None
    assert of_one.untraced.error is not None
    assert of_one.untraced.error > 0.2
    assert len(of_one.untraced.repeats) == 45
