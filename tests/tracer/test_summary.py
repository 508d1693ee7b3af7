"""What run.json adds to a recording."""

import pytest

from tests.tracer.handmade import Script
from tracer import Trace
from tracer.analysis.recording import Recording


def recording(run: object) -> Trace:
    script = Script()
    for token in range(4):
        script.range("token", token * 2000, token * 2000 + 1900)
        script.launch((token * 2000, token * 2000 + 10), (token * 2000 + 20, token * 2000 + 1520))
    script.range("run one", 0, 20_000)
    trace = script.trace
    trace.metadata["run"] = run
    return trace


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
