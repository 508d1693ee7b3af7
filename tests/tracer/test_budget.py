"""Budgets: exact findings on hand-made traces and on the bundled recordings."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.recordings import CUPY_RUNS, KINDS, LLAMA, SAMPLES, SIX
from tests.tracer.handmade import Script, decode_loop
from tracer import Trace, read
from tracer.analysis.budget import Budget, Limit, Scope, parse
from tracer.analysis.budget_check import Finding, check_lines, fulfilled_budget, measure
from tracer.analysis.gaps import gap_report, measured_rate
from tracer.analysis.tokens import find_steps
from tracer.errors import EmptyTraceError, UsageError
from tracer.files.bounded import tomllib
from tracer.model.schema import PYTHON_FUNCTION

TOKENS = 6


def loop(letters: str, tokens: int = TOKENS, **options: str) -> Script:
    """Marked steps of 1 µs for `decode_loop`."""
    script = decode_loop(letters, tokens, **options)
    for token in range(tokens):
        script.range("token", token * 1000, token * 1000 + 900)
    return script


def budget(text: str) -> Budget:
    return parse(tomllib.loads(text), "b.toml")


def findings(trace: Trace, text: str, **options: Any) -> dict[str, Finding]:
    found = check_lines(trace, budget(text), **options)
    return {": ".join(filter(None, (str(f.line.scope), f.line.name))): f for f in found}


def broken(trace: Trace, text: str, **options: Any) -> set[str]:
    return {name for name, finding in findings(trace, text, **options).items() if finding.verdict == "broken"}


@pytest.mark.parametrize(
    ("limit", "found", "excess"),
    [
        (Limit(2, 2), 2, 0),
        (Limit(2, 2), 3, 1),
        (Limit(2, 2), 1.5, -0.5),
        (Limit(most=7), 0, 0),
        (Limit(least=7), 5, -2),
    ],
)
def test_excess(limit: Limit, found: float, excess: float) -> None:
    assert limit.excess(found) == excess


def test_exact_findings() -> None:
    """Per step: sync, two copies, sync, launch, copy back, sync; 300 ns of compute from 95 ns on, 1 µs apart."""
    trace = loop("saasgAs").trace
    trace.metadata["run"] = {"configuration": {"batch": 1}}
    wall = ((TOKENS - 1) * 1000 + 900) / TOKENS  # from the begin of the first step to the end of the last one
    found = findings(
        trace,
        """
        syncs = 2
        copies = 3
        launches.max = 0
        class = ["sccc", "saaas"]
        signature = "s a×2 s g a"
        gap_us.traced.p50.max = 0.5
        tokens_per_s.traced.min = 999999
        causes_us.traced.copy.max = 1
        """,
    )
    assert {name: (f.verdict, f.found, f.excess) for name, f in found.items()} == {
        "syncs": ("broken", 3, 1),
        "copies": ("kept", 3, 0),
        "launches": ("broken", 1, 1),
        "class": ("kept", "saaas", None),
        "signature": ("broken", "s a×2 s g a s", None),
        "gap_us.traced.p50": ("broken", 0.7, pytest.approx(0.2)),
        "tokens_per_s.traced": ("kept", pytest.approx(1e9 / wall), 0),
        "causes_us.traced.copy": ("kept", pytest.approx(found["causes_us.traced.copy"].found), 0),
    }
    surplus = found["syncs"].surplus
    assert surplus is not None
    assert (surplus.name, surplus.thread, surplus.step, surplus.time_in_step_us, surplus.nvtx) == (
        "cudaStreamSynchronize_v3020", 101, 0, 0.12, ("token",),
    )  # fmt: skip
    assert found["signature"].surplus == surplus


def test_untraced_figures_need_the_untraced_rate() -> None:
    trace = loop("sg", launch="cudaLaunchKernel_v7000").trace  # of graph nodes a rate gives a lower bound only
    for text in ("gap_us.untraced.p50.max = 1", "tokens_per_s.untraced.min = 1", "causes_us.untraced.sync.max = 1"):
        with pytest.raises(EmptyTraceError, match="--untraced-tokens-per-s"):
            check_lines(trace, budget(text))
    rate = 1e9 / 500  # 300 ns of compute leave a gap of 200
    with pytest.raises(EmptyTraceError, match="the number of tokens per step is unknown"):
        check_lines(trace, budget("tokens_per_s.untraced.min = 1"), untraced_tokens_per_s=rate)
    trace.metadata["run"] = {"configuration": {"batch": 1}}
    found = findings(
        trace, "gap_us.untraced.p50.max = 0.2\ntokens_per_s.untraced.min = 3e6", untraced_tokens_per_s=rate
    )
    assert found["gap_us.untraced.p50"].verdict == "kept"
    assert found["gap_us.untraced.p50"].found == pytest.approx(0.2)
    assert found["tokens_per_s.untraced"].excess == pytest.approx(rate - 3e6)


def test_a_lower_bound_keeps_nothing() -> None:
    """At node level tracing stretches the kernels: the untraced gap is at least what is left."""
    trace = read(LLAMA["sccc", "node"])
    found = findings(trace, "gap_us.untraced.p50.max = 70\ngap_us.untraced.mean.max = 10\ngap_us.traced.p50.max = 400")
    assert [f.verdict for f in found.values()] == ["not shown", "broken", "kept"]


def test_devices_have_gaps_of_their_own() -> None:
    script = Script()
    for token in range(TOKENS):
        t = token * 1000
        script.range("token", t, t + 900)
        script.launch((t, t + 10), (t + 100, t + 400), device=0)
        script.launch((t + 20, t + 30), (t + 100, t + 900), device=1)
    text = "[device.{}]\ngap_us.traced.p50 = {{min = {}, max = {}}}"
    assert not broken(script.trace, text.format(0, 0.7, 0.7))
    assert not broken(script.trace, text.format(1, 0.2, 0.2))
    with pytest.raises(EmptyTraceError):
        check_lines(script.trace, budget(text.format(2, 0, 1)))


@pytest.mark.parametrize("name", KINDS)
def test_a_recording_keeps_the_budget_that_is_written_from_it(name: str) -> None:
    trace = read(SAMPLES / name)
    ranges = [f"run {strategy} {mode}" for strategy, mode in CUPY_RUNS] if name == SIX.name else [None]
    for within in ranges:
        text = fulfilled_budget(measure(trace, Scope(within)))
        assert {f.verdict for f in check_lines(trace, budget(text))} == {"kept"}
        assert len(budget(text).lines) >= 7


few = settings(max_examples=5)
letters = st.text(alphabet="sacew", max_size=8).map(lambda text: f"s{text}g")
"""They begin with a sync, or a copy might block or not by how the step before ends."""


@few
@given(letters, st.integers(2, 5))
def test_a_written_budget_is_always_kept(calls: str, tokens: int) -> None:
    trace = loop(calls, tokens).trace
    text = fulfilled_budget(measure(trace, Scope()))
    assert {finding.verdict for finding in check_lines(trace, budget(text))} == {"kept"}


@few
@given(letters, st.integers(2, 5))
def test_one_sync_more_in_every_step_breaks_the_lines_of_syncs_and_no_other(calls: str, tokens: int) -> None:
    """Behind the launch, where it changes neither class nor gap."""
    script = loop(calls, tokens)
    text = fulfilled_budget(measure(script.trace, Scope()))
    for token in range(tokens):
        script.sync(token * 1000 + 700, token * 1000 + 710)
    found = findings(script.trace, text)
    assert {name for name, f in found.items() if f.verdict == "broken"} == {"syncs", "signature"}
    assert found["syncs"].excess == 1
    for finding in (found["syncs"], found["signature"]):
        assert finding.surplus is not None
        assert (finding.surplus.step, finding.surplus.time_in_step_us) == (0, 0.7)


def test_an_estimated_gap_is_judged_by_its_interval() -> None:
    trace = read(LLAMA["sccc", "node"])
    steps = find_steps(trace)
    estimate = gap_report(trace, steps, measured_rate(trace, steps)).estimated
    assert estimate is not None
    assert estimate.low is not None
    assert estimate.high is not None
    text = "gap_us.untraced.p50.max = {}"
    for most, verdict in ((estimate.low - 1, "broken"), (estimate.estimate, "not shown"), (estimate.high, "kept")):
        (found,) = findings(trace, text.format(most)).values()
        assert (found.verdict, found.interval) == (verdict, (estimate.low, estimate.high))
    assert "gap_us.untraced" not in fulfilled_budget(measure(trace, Scope()))
    del trace.metadata["run"]
    with pytest.raises(EmptyTraceError):
        check_lines(trace, budget("gap_us.untraced.p50.max = 1000"))


def test_steps_that_gain_nobody_knows_how_many_tokens_have_no_rate_in_tokens() -> None:
    script = Script()
    for token in range(5):
        script.range("token", token * 1000, token * 1000 + 1000)
        script.launch((token * 1000, token * 1000 + 50), (10_000, 15_000))
    with pytest.raises(EmptyTraceError, match="the number of tokens per step is unknown"):
        check_lines(script.trace, budget("tokens_per_s.traced.min = 1"))
    text = fulfilled_budget(measure(script.trace, Scope()))
    assert "tokens_per_s" not in text
    assert not broken(script.trace, text)


def test_the_given_rate_wins_and_counts_steps_of_several_sequences() -> None:
    trace = loop("sg").trace
    rates = {"tokens_per_s": {"median": 8e6}, "steps_per_s": {"median": 2e6}}
    trace.metadata["run"] = {"measured": rates}
    (found,) = findings(trace, "tokens_per_s.untraced.min = 1", untraced_tokens_per_s=1e6).values()
    assert found.found == pytest.approx(4e6)
    (found,) = findings(trace, "tokens_per_s.traced.min = 1").values()
    assert found.found == pytest.approx(4e9 * TOKENS / ((TOKENS - 1) * 1000 + 900))  # four tokens each microsecond


def of_sites() -> Trace:
    """Three steps `sgs`; the first sync of each is made in `flush`, the last one of the second step in `fetch`."""
    script = loop("sgs", 3)
    api = script.trace["api"]
    syncs = api[api["name"].str.contains("Synchronize")]
    functions = [(row.start - 1, row.end + 1, "engine.py(9): flush") for row in syncs.iloc[::2].itertuples()]
    functions.append((int(syncs["start"].iloc[3]) - 1, int(syncs["end"].iloc[3]) + 1, "engine.py(20): fetch"))
    for start, end, text in functions:
        script.range(text, start, end, domain=PYTHON_FUNCTION)
    return script.trace


def test_calls_of_a_call_site_are_held_to_the_most_of_any_step() -> None:
    trace = of_sites()
    text = '[site.flush]\nsyncs = 1\nlaunches = 0\n[site."engine.py fetch"]\nsyncs = 0\n[site.other]\nsyncs = 0'
    found = findings(trace, text)
    assert {name: (f.verdict, f.found) for name, f in found.items()} == {
        "site flush: syncs": ("kept", 1.0),
        "site flush: launches": ("kept", 0.0),
        "site engine.py fetch: syncs": ("broken", 1.0),  # in one step of three, of which the median would be 0
        "site other: syncs": ("kept", 0.0),
    }
    surplus = found["site engine.py fetch: syncs"].surplus
    assert surplus is not None
    assert (surplus.step, surplus.nvtx[-1]) == (1, "engine.py(20): fetch")
    assert "site other: the steps make no call there" in trace.notes


def test_a_recording_without_call_sites_cannot_hold_one() -> None:
    with pytest.raises(EmptyTraceError, match=r"^site fetch: 100% have no call site: .*with_stack=True"):
        check_lines(decode_loop("sg", TOKENS).trace, budget("[site.fetch]\nsyncs = 0"))
    with pytest.raises(UsageError, match=r"valid keys are syncs, copies, launches$"):
        budget("[site.fetch]\nclass = 'sccc'")
    with pytest.raises(UsageError, match=r'site."": give a part of the call site'):
        budget('[site." "]\nsyncs = 0')
