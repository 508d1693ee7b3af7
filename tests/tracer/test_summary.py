"""What run.json adds to a recording."""

import pytest

from tests.tracer.handmade import Script
from tracer import Trace
from tracer.analysis.recording import Recording
from tracer.model import run_json


def recording(run: object) -> Trace:
    script = Script()
    for token in range(4):
        script.range("token", token * 2000, token * 2000 + 1900)
        script.launch((token * 2000, token * 2000 + 10), (token * 2000 + 20, token * 2000 + 1520))
    script.range("run one", 0, 20_000)
    trace = script.trace
    trace.metadata["run"] = run
    return trace


def test_the_untraced_rate_stands_beside_the_traced_gap() -> None:
    rates = {"tokens_per_s": {"median": 2_500_000.0}, "steps_per_s": {"median": 625_000.0}}
    summary = Recording(recording({"measured": rates}), "x").summary
    assert summary.tokens_per_s == 2_500_000.0  # four sequences
    assert (summary.gap_p50_us, summary.untraced_gap_us) == (0.5, 0.1)
    assert summary.distortion == pytest.approx(2000 / 1600)


def test_a_range_has_facts_of_its_own() -> None:
    facts = {"configuration": {"model": "m", "strategy": "mixed"},
             "ranges": {"run one": {"strategy": "aaag", "tokens_per_s": 625_000}}}  # fmt: skip
    trace = recording(facts)
    assert run_json.configuration(trace)["strategy"] == "mixed"
    assert run_json.configuration(trace, "run one") == {"model": "m", "strategy": "aaag", "tokens_per_s": 625_000}
    assert run_json.tokens_per_s(trace) is None
    assert run_json.tokens_per_s(trace, "one") == 625_000
    assert run_json.steps_per_s(trace, "one") is None  # how many tokens a step gains is not told


@pytest.mark.parametrize(
    "run", [None, [], "x", {"measured": 3}, {"measured": {"tokens_per_s": {"median": "fast"}}}, {"ranges": {"a": 1}}]
)
def test_anything_else_in_run_json_is_ignored(run: object) -> None:
    summary = Recording(recording(run), "x", within="run one").summary
    assert (summary.tokens_per_s, summary.gap_p50_us) == (None, 0.5)


def test_what_cannot_be_analysed_is_a_problem_not_an_error() -> None:
    summary = Recording(Trace({}), "empty").summary
    assert summary.gap_p50_us is None
    assert "no kernels" in str(summary.problem)
