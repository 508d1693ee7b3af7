"""Runs against a base: known answers, properties, and what may not be compared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tracer.handmade import Script, decode_loop
from tests.tracer.steady import LIGHT, NSYS, recording, run_of
from tracer import Trace
from tracer.analysis.compare import Side, compare
from tracer.analysis.gaps import CAUSES
from tracer.analysis.interval import Interval
from tracer.analysis.recording import Recording
from tracer.analysis.tokens import find_steps
from tracer.errors import UsageError
from tracer.reporting.compare import run_facts
from tracer.reporting.compare_words import sentence

RANDOM = np.random.default_rng(7)
PERIODS = st.lists(st.integers(1_000, 20_000), min_size=4, max_size=30)


def light(script: Script) -> Trace:
    trace = script.trace
    trace.metadata["source"] = LIGHT
    return trace


def jittered(period: int, steps: int = 60, sd: float = 40.0) -> list[int]:
    return [round(x) for x in RANDOM.normal(period, sd, steps)]


def test_twice_as_fast_is_exactly_two() -> None:
    found = compare(run_of([2000] * 20), run_of([1000] * 20))
    assert found.speedup == Interval(2.0, 2.0, 2.0)
    assert found.total_speedup == 2.0
    assert (found.verdict, found.basis, found.paired) == ("faster", "light", True)
    assert found.gap_us == Interval(0.0, 0.0, 0.0)
    assert found.busy_us == Interval(-1.0, -1.0, -1.0)


def test_gap_and_causes_differ_by_what_was_taken_out() -> None:
    found = compare(run_of([2000] * 20, gap=500, syncs=9), run_of([1700] * 20))
    for difference in (found.gap_us, found.mean_gap_us):
        assert (difference.estimate, difference.low, difference.high) == pytest.approx((-0.3, -0.3, -0.3))
    assert found.causes_us["sync"].estimate == pytest.approx(-0.3)
    assert sum(e.estimate for e in found.causes_us.values()) == pytest.approx(found.mean_gap_us.estimate)
    assert found.counts == {"syncs": -8.0, "copies": 0.0, "launches": 0.0}


def served(seed: int, steps: int = 200) -> Side:
    """A server at 10 ms a step and 0.1 per request, whose requests come and go; the seed chooses nothing else."""
    random, script, now, batch = np.random.default_rng(seed), Script(), 0, 6
    for _ in range(steps):
        batch = int(random.integers(2, 11)) if random.random() < 0.1 else batch
        period = round((10_000 + 100 * batch) * random.normal(1, 0.01))
        script.range(f"execute_context_0(0)_generation_{batch}({batch})", now - 50, now + period - 50)
        script.launch((now - 50, now), (now, now + period - 200))
        script.sync(now + period - 200, now + period - 60)
        now += period
    trace = light(script)
    return Side.of(Recording.of_steps(trace, find_steps(trace), f"served {seed}").measured)


def test_what_requests_happened_to_be_recorded_makes_no_run_faster() -> None:
    """With the tokens of a step taken for exact, 29 of 30 such pairs were "faster" or "slower"; now 3 of 60."""
    runs = [served(seed) for seed in range(40, 60)]
    found = [compare(*pair) for pair in zip(runs[::2], runs[1::2], strict=True)]
    assert [each.verdict for each in found].count("no difference shown") >= 9
    assert "the batch differs from step to step: a step gains" in found[0].cautions[0]
    several = [Side.of(*(run.recordings[0] for run in runs[part::2])) for part in (0, 1)]
    assert compare(*several).verdict == "no difference shown"
    slower = Side.of(recording([2_000] * 20), recording([2_020] * 20))
    faster = Side.of(recording([1_000] * 20), recording([1_010] * 20))
    assert compare(slower, faster).verdict == "faster"


def test_a_difference_that_is_not_shown_says_how_many_steps_would_show_it() -> None:
    noisy = jittered(10_000, sd=2_000)
    found = compare(run_of(noisy), run_of([round(0.99 * p) for p in jittered(10_000, sd=2_000)]))
    assert found.verdict == "no difference shown"
    assert found.unit == "steps"
    assert found.needed is not None
    assert found.needed > 60


def test_runs_whose_gaps_lie_between_other_steps_are_not_paired() -> None:
    def grouped(*sizes: int) -> Side:
        script, now = Script(), 0
        for group, size in enumerate(sizes):
            script.range(f"part {group}", now, now + size * 1000)
            for _ in range(size):
                script.range("token", now, now + 900)
                script.launch((now + 10, now + 20), (now + 30, now + 800))
                now += 1000
        return Side.of(Recording.of_steps(light(script), find_steps(script.trace), "grouped").measured)

    found = compare(grouped(2, 2), grouped(3, 1))
    assert not found.paired
    assert found.speedup is not None
    assert found.speedup.estimate == 1


def test_untraced_repeats_come_before_the_recorded_steps() -> None:
    def facts(*repeats: float) -> dict[str, object]:
        median = sorted(repeats)[len(repeats) // 2]
        spread = {"median": median, "low": min(repeats), "high": max(repeats)}
        return {"configuration": {"batch": 1}, "measured": {"tokens_per_s": {**spread, "repeats": list(repeats)}}}

    base = run_of([2000] * 20, run=facts(400_000, 401_000, 402_000), source=NSYS)
    other = run_of([2000] * 20, run=facts(800_000, 802_000, 804_000), source=NSYS)
    found = compare(base, other)
    assert (found.basis, found.unit) == ("untraced", "repeats")
    assert found.speedup.estimate == pytest.approx(2.0)
    half = 2.776 * 0.0025 * np.sqrt(2 / 3 * np.pi / 2)  # t of 4; medians err by √(π/2) more than means
    assert found.speedup.low == pytest.approx(2 * np.exp(-half), rel=1e-4)
    assert [run.rates("untraced")["tokens/s"] for run in (base, other)] == [401_000, 802_000]


def test_the_untraced_rate_corrects_the_gap_and_its_error_widens_the_interval() -> None:
    single = compare(run_of([2000] * 9, untraced=[526_316], source=NSYS),
                     run_of([2000] * 9, untraced=[540_541], source=NSYS))  # fmt: skip
    assert single.gap_us is not None
    assert single.gap_us.estimate == pytest.approx(-0.05, abs=1e-5)  # 100 and 50 ns beside 1800 of compute
    assert single.gap_us.bounds is None  # nothing tells how far one rate may be off
    unsure = compare(
        run_of([2000] * 9, untraced=[525_000, 526_316, 527_600], source=NSYS),
        run_of([2000] * 9, untraced=[539_000, 540_541, 542_000], source=NSYS),
    )
    assert unsure.gap_us is not None
    assert unsure.gap_us.low is not None
    assert unsure.gap_us.low < unsure.gap_us.estimate - 0.005


def test_repeated_recordings_are_clusters() -> None:
    fast = Side("fast", tuple(recording([p] * 20) for p in (1000, 1010, 1020)))
    slow = Side("slow", tuple(recording([p] * 20) for p in (2000, 2020, 2040)))
    found = compare(slow, fast)
    assert (found.unit, found.paired) == ("recordings", False)
    assert found.speedup.estimate == pytest.approx(2.0)
    assert found.speedup.low is not None
    assert found.speedup.low < 1.97  # between the recordings, though no step of one differs
    noise = Side("noise", tuple(recording([p] * 20) for p in (1000, 1030, 1040)))
    assert compare(fast, noise).verdict == "no difference shown"


def test_kernels_that_got_slower_are_named() -> None:
    def two_kernels(slow: int) -> Side:
        script = decode_loop("g", 40, period=2000)
        for token in range(40):
            start = token * 2000 + 400 + token % 3
            script.launch((start - 50, start - 40), (start, start + slow + token % 5), name="slow")
        return Side.of(Recording.of_steps(script.trace, find_steps(script.trace), "run").measured)

    kernels = compare(two_kernels(400), two_kernels(600)).kernels.set_index("name")
    assert kernels.loc["slow", "verdict"] == "slower"
    assert kernels.loc["slow", "difference_us"] == pytest.approx(0.2)
    assert kernels.loc["slow", "per_call_ratio"] == pytest.approx(602 / 402, rel=1e-3)
    assert kernels.loc["k", ["verdict", "difference_us", "p"]].tolist() == ["", 0.0, 1.0]


def test_noise_alone_makes_no_kernel_slower() -> None:
    def many(seed: int) -> Side:
        random, script = np.random.default_rng(seed), decode_loop("g", 40, period=100_000)
        for token in range(40):
            for kernel in range(60):
                start = token * 100_000 + 500 + kernel * 1000
                length = max(round(random.normal(500, 30)), 1)
                script.launch((start - 50, start - 40), (start, start + length), name=f"k{kernel}")
        return Side.of(Recording.of_steps(script.trace, find_steps(script.trace), "run").measured)

    kernels = compare(many(1), many(2)).kernels
    assert len(kernels) == 61
    assert (kernels["verdict"] != "").sum() <= 2


def test_a_graph_of_half_the_work_is_not_called_faster() -> None:
    def graphs(per_token: int) -> Side:
        script = Script()
        for token in range(12):
            script.range("token", token * 1000, token * 1000 + 900)
            for part in range(per_token):
                at = token * 1000 + part * 400
                script.graph((at + 10, at + 20), (at + 30, at + 30 + 700 // per_token))
        return Side.of(Recording.of_steps(script.trace, find_steps(script.trace), "graphs").measured)

    whole, halves = graphs(1), graphs(2)
    (kernel,) = compare(whole, halves).kernels.to_dict("records")
    assert (kernel["base_calls"], kernel["other_calls"], kernel["verdict"]) == (1, 2, "")
    assert np.isnan(kernel["per_call_ratio"])


@pytest.mark.parametrize(
    ("mine", "theirs", "message", "times"),
    [
        ({"model": "a"}, {"model": "b"}, "model a against b", 1.0),
        ({"batch": 1}, {"batch": 8}, "batch 1 against 8", 8.0),
        ({"backend": "cpu"}, {"backend": "cuda"}, "backend cpu against cuda", 1.0),
    ],
)
def test_runs_of_other_work_are_refused_unless_forced(
    mine: dict[str, object], theirs: dict[str, object], message: str, times: float
) -> None:
    base, other = run_of([9000] * 9, run={"configuration": mine}), run_of([9000] * 9, run={"configuration": theirs})
    with pytest.raises(UsageError, match=f"not comparable: {message}"):
        compare(base, other)
    forced = compare(base, other, force=True)
    assert forced.refusal is not None
    assert message in forced.refusal.why
    assert (forced.verdict, forced.speedup) == ("no verdict", Interval(times, times, times))


def test_another_gpu_and_other_kernels_are_refused_and_another_driver_is_said() -> None:
    def on(gpu: str, driver: str = "1") -> Side:
        return run_of([9000] * 9, run={"machine": {"gpu": gpu, "driver": driver}})

    with pytest.raises(UsageError, match="gpu H200 against A10"):
        compare(on("H200"), on("A10"))
    with pytest.raises(UsageError, match="no kernel in common"):
        compare(on("H200"), run_of([9000] * 9, kernel="other"))
    assert any("driver 2 against 1" in text for text in compare(on("H200"), on("H200", "2")).cautions)


def test_a_profiler_on_one_side_alone_is_said_with_what_it_did() -> None:
    base = run_of([2000] * 9, name="light run")
    found = compare(base, run_of([3000] * 9, name="traced", source=NSYS, run={"measured": {"steps_per_s": 5e5}}))
    (text,) = [text for text in found.cautions if "differently" in text]
    assert "without a profiler" in text
    assert "traced by nsys without CUDA graphs" in text
    assert found.verdict == "no verdict"
    assert found.refusal is not None
    assert "traced was recorded under a profiler" in found.refusal.why


@given(PERIODS)
@settings(max_examples=4)
def test_a_run_does_not_differ_from_itself(periods: list[int]) -> None:
    run = run_of(periods)
    found = compare(run, run)
    assert found.speedup == Interval(1.0, 1.0, 1.0)
    assert found.verdict == "no difference shown"
    assert found.gap_us.estimate == 0
    assert found.needed is None


@given(PERIODS, PERIODS)
@settings(max_examples=4)
def test_base_and_other_change_places(one: list[int], two: list[int]) -> None:
    base, other = run_of(one), run_of(two)
    there, back = compare(base, other), compare(other, base)
    assert there.speedup.estimate == pytest.approx(1 / back.speedup.estimate)
    assert there.gap_us.estimate == pytest.approx(-back.gap_us.estimate)
    for cause in CAUSES.values():
        assert there.causes_us[cause].estimate == pytest.approx(-back.causes_us[cause].estimate)


@given(PERIODS, st.integers(2, 9))
@settings(max_examples=4)
def test_all_times_longer_by_a_factor_are_slower_by_it(periods: list[int], k: int) -> None:
    found = compare(run_of(periods), run_of([k * p for p in periods], gap=k * 200))
    assert found.speedup.estimate == pytest.approx(1 / k)
    assert found.speedup.low == pytest.approx(1 / k)
    assert found.total_speedup == pytest.approx(1 / k)


def test_the_speedup_is_that_of_the_rates_which_are_shown() -> None:
    facts = [
        {"measured": {"tokens_per_s": {"median": m, "repeats": [m * 0.8, m, m * k]}}} for m, k in ((1e5, 1.6), (2e5, 1))
    ]
    base, other = (run_of([2000] * 20, run=each) for each in facts)
    assert compare(base, other).speedup.estimate == pytest.approx(2.0)


def test_a_rate_of_decode_is_not_that_of_steps_with_a_prefill() -> None:
    rates = {"tokens_per_s": {"median": 1e6, "repeats": [1e6, 1.01e6]}, "steps_per_s": {"median": 1e6}}

    def prompted(period: int) -> Side:
        script = Script()
        for step in range(8):
            at = step * period
            script.range("token" if step else "prefill", at, at + period - 10)
            script.launch((at + 10, at + 20), (at + 30, at + period // 2))
        trace = light(script)
        trace.metadata["run"] = {"measured": rates}
        return Side.of(Recording.of_steps(trace, find_steps(trace, phase="all"), "prompted").measured)

    found = compare(prompted(2000), prompted(1000))
    assert found.speedup is not None
    assert (found.basis, found.speedup.estimate) == ("light", 2.0)
    assert not found.base.recordings[0].corrected


def test_rates_are_of_tokens_only_where_it_is_known_how_many_a_step_gains() -> None:
    def of(batch: int | None, period: int = 2000, **options: Any) -> Side:
        run = {} if batch is None else {"configuration": {"batch": batch}}
        return run_of([period] * 20, run=run, **options)

    unknown = compare(of(None), of(8, period=1000))
    assert (unknown.rate, unknown.speedup.estimate) == ("steps/s", 2.0)
    assert sentence(unknown).endswith("steps/s +100.0 % [+100.0, +100.0], of the recorded steps, untraced")
    assert run_facts(of(None))["tokens_per_s"] is None
    assert run_facts(of(None))["steps_per_s"] == pytest.approx(500_000)
    assert run_facts(of(8))["tokens_per_s"] == pytest.approx(4_000_000)
    known = compare(of(8), of(8, period=1000))
    assert (known.rate, known.speedup.estimate) == ("tokens/s", 2.0)
    mixed = compare(of(None, source=NSYS, untraced=[500_000] * 3), of(8, source=NSYS, untraced=[500_000] * 3))
    assert mixed.basis == "traced"  # one rate is of steps, the other of tokens
