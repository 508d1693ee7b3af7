"""What may be set against each other: work, recorders, levels, calls, and what a profiler can have added."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tracer.handmade import Script
from tests.tracer.steady import LIGHT, NSYS, TORCH, recording, run_of
from tracer.analysis.compare import Comparison, Side, compare
from tracer.analysis.recording import Recording
from tracer.analysis.tokens import Bounds, choose_steps
from tracer.reporting.compare_words import percent

TEN = {"kernels": 10}  # of 180 ns each in a step of 2000 that computes for 1800


def refused(found: Comparison) -> str:
    """Why; fails where there is a verdict, or a figure that it would have been made from."""
    assert found.verdict == "no verdict"
    assert found.refusal is not None
    assert found.needed is None
    return found.refusal.why


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"syncs": 3}, "their steps differ: 3 syncs against 1"),
        ({"kernels": 9}, "their steps differ: 9 recorded kernels against 10"),
        ({"source": TORCH}, "they were made by different recorders (PyTorch, nsys)"),
        ({"source": ""}, "they were made by different recorders (an unknown one, nsys)"),
        ({"source": LIGHT}, "run was recorded under a profiler, which slows it by an unknown amount"),
    ],
)
def test_tracing_that_differs_carries_no_verdict(other: dict[str, Any], why: str) -> None:
    found = compare(run_of([4000] * 20, source=NSYS, **TEN), run_of([1000] * 20, **({"source": NSYS} | TEN | other)))
    assert why in refused(found)
    assert (found.speedup, found.total_speedup, found.gap_us, found.mean_gap_us, found.causes_us) == (
        None, None, None, None, {}
    )  # fmt: skip


def test_a_kernel_may_be_all_stretch() -> None:
    """What recording a kernel adds to it is no longer than the shortest, which here is as long as all others."""
    base = run_of([2000] * 20, source=NSYS, kernels=10)
    assert (base.least_share, base.recordings[0].kernels_per_step) == (pytest.approx(0.0), 10)
    assert run_of([2000] * 20, kernels=10).least_share == 1
    assert "within what tracing can have added" in refused(compare(base, run_of([1000] * 20, source=NSYS, **TEN)))


def long_and_short(period: int, long: int) -> Side:
    """Steps with one long kernel and one of 50 ns, which no stretch can exceed, then 100 ns of host, under nsys."""
    script = Script()
    for step in range(12):
        at = step * period
        script.range("token", at, at + period - 10)
        script.launch((at + 10, at + 20), (at + 30, at + 80), name="short")
        script.launch((at + 20, at + 30), (at + 80, at + 80 + long), name="long")
        script.sync(at + 80 + long, at + period - 20)
    trace = script.trace
    trace.metadata["source"] = NSYS
    return Side.of(Recording.of_steps(trace, choose_steps(trace, None, Bounds()), f"of {period}").measured)


def test_a_difference_beyond_all_that_tracing_adds_stands_with_its_bounds() -> None:
    base, other = long_and_short(2000, 1700), long_and_short(1500, 1200)
    assert base.least_share == pytest.approx((1750 - 100) / 2000)
    found = compare(base, other)
    assert (found.verdict, found.basis) == ("faster", "traced")
    assert found.speedup is not None
    assert (found.speedup.low, found.speedup.estimate, found.speedup.high) == pytest.approx(
        (1650 / 1500, 2000 / 1500, 2000 / 1150)
    )
    assert (found.gap_us, found.total_speedup) == (None, None)
    within = compare(base, long_and_short(1800, 1500))
    assert "within what tracing can have added to a step of either" in refused(within)
    assert compare(other, base).verdict == "slower"


@given(st.integers(0, 600), st.integers(0, 600))
@settings(max_examples=4)
def test_whatever_tracing_adds_to_equal_programs_there_is_no_verdict(mine: int, theirs: int) -> None:
    """A profiler adds host time to each; without it both are the same."""
    found = compare(long_and_short(1300 + mine, 1000), long_and_short(1300 + theirs, 1000))
    assert found.verdict == "no verdict"
    assert found.counts == {"syncs": 0.0, "copies": 0.0, "launches": 0.0}
    assert found.busy_us is not None
    assert found.busy_us.estimate == 0


def test_rates_of_both_make_any_tracing_comparable() -> None:
    found = compare(
        run_of([2000] * 20, source=NSYS, untraced=[600e3, 601e3, 602e3]),
        run_of([4000] * 20, source=TORCH, untraced=[700e3, 701e3, 702e3], syncs=3),
    )
    assert (found.verdict, found.basis, found.refusal) == ("faster", "untraced", None)
    assert found.kernels.empty  # each recorder stretches them in its own way
    assert found.busy_us is None
    one = compare(run_of([2000] * 20, source=NSYS), run_of([2000] * 20, source=NSYS, untraced=[7e5]))
    refused(one)
    assert one.refusal is not None
    assert "run run several times without a profiler" in one.refusal.instead
    assert one.refusal.instead.endswith("--untraced-tokens-per-s X,X,X --untraced-tokens-per-s 700000`")


def phased(phase: str, count: int = 12) -> Side:
    script = Script()
    for step in range(24):
        at = step * 2000
        script.range("prefill" if (step >= count) else "token", at, at + 1990)
        script.launch((at + 10, at + 20), (at + 30, at + 1500))
    trace = script.trace
    trace.metadata["source"] = LIGHT
    return Side.of(Recording.of_steps(trace, choose_steps(trace, None, Bounds(phase=phase)), phase).measured)


def test_steps_of_other_phases_carry_nothing_but_their_own_figures() -> None:
    found = compare(phased("decode"), phased("all"))
    assert "decode and prefill in all, decode in decode" in refused(found)
    assert found.refusal is not None
    assert "intertoken compare decode all --phase decode" in found.refusal.instead
    assert (found.speedup, found.gap_us, found.busy_us, found.counts, len(found.kernels)) == (None, None, None, {}, 0)
    assert compare(phased("decode"), phased("decode", count=13)).refusal is None


def test_the_batch_is_known_from_the_marks_too() -> None:
    def marked(sequences: int) -> Side:
        script = Script()
        for step in range(12):
            at = step * 2000
            script.range(f"execute_context_0(0)_generation_{sequences}({sequences})", at, at + 1990)
            script.launch((at + 10, at + 20), (at + 30, at + 1500))
        trace = script.trace
        return Side.of(Recording.of_steps(trace, choose_steps(trace, None, Bounds()), "vllm").measured)

    assert marked(8).recordings[0].conditions["batch"] == "8"
    forced = compare(marked(1), marked(8), force=True)
    assert "batch 1 against 8" in refused(forced)


def test_what_nobody_says_is_a_caution() -> None:
    found = compare(run_of([2000] * 9), run_of([1000] * 9))
    assert any("it is unknown whether run and run ran with the same model" in text for text in found.cautions)
    said = {"configuration": {"model": "m", "batch": 1}}
    silent = compare(run_of([2000] * 9, run=said), run_of([1000] * 9, run=said)).cautions
    assert not any("nothing says" in text for text in silent)


@pytest.mark.parametrize(
    ("other", "verdict"),
    [(20_009, "no difference shown"), (19_991, "no difference shown"), (19_900, "faster"), (20_100, "slower")],
)
def test_a_direction_that_rounds_to_nothing_is_none(other: int, verdict: str) -> None:
    """All steps alike, so that the interval has no width: 0.045 % reads ±0.0 %, 0.5 % does not."""
    found = compare(run_of([20_000] * 20), run_of([other] * 20))
    assert found.verdict == verdict
    assert ("±0.0 %" in percent(found.speedup)) == (verdict == "no difference shown")


def test_lower_bounds_of_gaps_are_set_against_each_other_only_where_kernels_were_stretched_alike() -> None:
    rates = [526_316.0, 526_300.0]
    alike = [recording([2000] * 9, source=NSYS, kernels=k, untraced=rates) for k in (10, 10, 9)]
    assert compare(Side.of(alike[0]), Side.of(alike[1])).gap_us is not None
    assert compare(Side.of(alike[0]), Side.of(alike[2])).gap_us is None
    assert compare(Side.of(alike[0]), Side.of(alike[1])).causes_us == {}


def test_a_gpu_that_only_one_names_is_unknown() -> None:
    named = recording([2_000] * 20)
    named.conditions["gpu"] = "NVIDIA H100"
    text = "it is unknown whether run and run ran on the same GPU: only one of them names it"
    for pair in ((Side.of(named), run_of([1_500] * 20)), (run_of([1_500] * 20), Side.of(named))):
        assert text in compare(*pair).cautions
    assert text not in compare(Side.of(named), Side.of(named)).cautions


def on_devices(devices: int, period: int) -> Side:
    script = Script()
    for base in range(0, 30 * period, period):
        script.range("token", base, base + period - 10)
        for device in range(devices):
            script.launch((base + 9 * device, base + 9 * device + 8), (base + 30, base + 800), device=device)
        script.sync(base + 40, base + 810)
    trace = script.trace
    trace.metadata["source"] = LIGHT
    return Side.of(Recording.of_steps(trace, choose_steps(trace, None, Bounds()), f"on {devices}").measured)


def test_the_number_of_devices_is_said_in_the_order_of_the_names() -> None:
    """The values stood the other way round than the names."""
    assert (
        compare(on_devices(1, 2_000), on_devices(2, 1_100)).cautions[0] == "on 2 and on 1 differ in devices 2 against 1"
    )
