"""Runs against a base: known answers, properties, and what may not be set against each other."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tracer.handmade import Script, decode_loop
from tests.tracer.steady import LIGHT, NSYS, recording, run_of, side, sourced
from tests.tracer.truths import DATA, rows, scene, unlike
from tracer.analysis.compare import Comparison, Side, compare
from tracer.analysis.gaps import CAUSES
from tracer.analysis.interval import Interval
from tracer.analysis.kernel_changes import KernelChanges
from tracer.analysis.sides import Refusal
from tracer.errors import UsageError
from tracer.files.bounded import tomllib
from tracer.model.columns import Names
from tracer.reporting.compare import run_facts
from tracer.reporting.compare_words import percent, sentence

RANDOM = np.random.default_rng(7)
PERIODS = st.lists(st.integers(1_000, 20_000), min_size=4, max_size=30)
few = settings(max_examples=4)


def made(told: dict[str, Any]) -> Side:
    if "each" in told:
        return side(scene({"metadata": {"source": LIGHT}, **told}), told.get("name", "run"))
    options = {name: given for name, given in told.items() if name != "period"}
    return Side("run", tuple(recording([period] * 20, **options) for period in told["period"]))


def test_what_is_told_of_two_runs() -> None:
    for name, told in tomllib.loads((DATA.parent / "comparisons.toml").read_text(encoding="utf-8"))["truth"].items():
        base, other = made(told["base"]), made(told["other"])
        if "refused" in told:
            with pytest.raises(UsageError, match=told["refused"]):
                compare(base, other)
            continue
        found = compare(base, other, force=told.get("force", False))
        assert not unlike(found, told), name


@given(PERIODS, PERIODS, st.integers(2, 9))
@few
def test_what_holds_of_any_runs(one: list[int], two: list[int], k: int) -> None:
    """A run does not differ from itself, base and other change places, and a factor on all times is the speed-up."""
    base, other = run_of(one), run_of(two)
    same, there, back = compare(base, base), compare(base, other), compare(other, base)
    assert (same.speedup, same.verdict) == (Interval(1.0, 1.0, 1.0), "no difference shown")
    assert (same.gap_us.estimate, same.needed) == (0, None)
    assert there.speedup.estimate == pytest.approx(1 / back.speedup.estimate)
    assert there.gap_us.estimate == pytest.approx(-back.gap_us.estimate)
    for cause in CAUSES.values():
        assert there.causes_us[cause].estimate == pytest.approx(-back.causes_us[cause].estimate)
    scaled = compare(base, run_of([k * p for p in one], gap=k * 200))
    assert (scaled.speedup.estimate, scaled.speedup.low, scaled.total_speedup) == pytest.approx((1 / k,) * 3)


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
    return side(sourced(script), f"served {seed}")


def test_what_requests_happened_to_be_recorded_makes_no_run_faster() -> None:
    """With the tokens of a step taken for exact, 29 of 30 such pairs were "faster" or "slower"; now 3 of 60."""
    runs = [served(seed) for seed in range(40, 52)]
    found = [compare(*pair) for pair in zip(runs[::2], runs[1::2], strict=True)]
    assert [each.verdict for each in found].count("no difference shown") >= 5
    assert "the batch differs from step to step: a step gains" in found[0].cautions[0]
    several = [Side.of(*(run.recordings[0] for run in runs[part::2])) for part in (0, 1)]
    assert compare(*several).verdict == "no difference shown"


def test_a_difference_that_is_not_shown_says_how_many_steps_would_show_it() -> None:
    noisy, other = ([round(scale * p) for p in RANDOM.normal(10_000, 2_000, 60)] for scale in (1, 0.99))
    found = compare(run_of(noisy), run_of(other))
    assert (found.verdict, found.unit) == ("no difference shown", "steps")
    assert found.needed > 60


def test_kernels_that_got_slower_are_named_and_noise_alone_makes_none_slower() -> None:
    def of(lengths: list[list[int]]) -> Side:
        script = decode_loop("g", 40, period=100_000)
        for kernel, each in enumerate(lengths):
            for token, length in enumerate(each):
                start = token * 100_000 + 500 + kernel * 1000
                script.launch((start - 50, start - 40), (start, start + length), name=f"k{kernel}")
        return side(script.trace)

    base, slower = (of([[length + token % 5 for token in range(40)]]) for length in (400, 600))
    columns = ("name", "verdict", "difference_us", "per_call_ratio", "p")
    found = {name: told for name, *told in rows(compare(base, slower).kernels, *columns)}
    assert found["k0"][:3] == ["slower", pytest.approx(0.2), pytest.approx(602 / 402, rel=1e-3)]
    assert (found["k"][0], found["k"][1], found["k"][3]) == ("", 0.0, 1.0)
    noise = (RANDOM.normal(500, 30, (2, 60, 40)).round().astype(int)).tolist()
    verdicts = rows(compare(*map(of, noise)).kernels, "verdict")
    assert (len(verdicts), len([v for v in verdicts if v]) <= 2) == (61, True)


def refused(found: Comparison) -> str:
    """Why; fails where there is a verdict."""
    assert (found.verdict, found.needed) == ("no verdict", None)
    assert found.refusal is not None
    return found.refusal.why


def long_and_short(period: int, long: int) -> Side:
    """Steps with one long kernel and one of 50 ns, which no stretch can exceed, then 100 ns of host, under nsys."""
    script = Script()
    for at in range(0, 12 * period, period):
        script.range("token", at, at + period - 10)
        script.launch((at + 10, at + 20), (at + 30, at + 80), name="short")
        script.launch((at + 20, at + 30), (at + 80, at + 80 + long), name="long")
        script.sync(at + 80 + long, at + period - 20)
    return side(sourced(script, NSYS), f"of {period}")


def test_a_difference_beyond_all_that_tracing_adds_stands_with_its_bounds() -> None:
    base, other = long_and_short(2000, 1700), long_and_short(1500, 1200)
    assert base.least_share == pytest.approx((1750 - 100) / 2000)
    found = compare(base, other)
    assert (found.verdict, found.basis, found.gap_us, found.total_speedup) == ("faster", "traced", None, None)
    bounds = (found.speedup.low, found.speedup.estimate, found.speedup.high)
    assert bounds == pytest.approx((1650 / 1500, 2000 / 1500, 2000 / 1150))
    why = refused(compare(base, long_and_short(1800, 1500)))
    assert "within what tracing can have added to a step of either" in why
    assert compare(other, base).verdict == "slower"


@given(st.integers(0, 600), st.integers(0, 600))
@few
def test_whatever_tracing_adds_to_equal_programs_there_is_no_verdict(mine: int, theirs: int) -> None:
    """A profiler adds host time to each; without it both are the same."""
    found = compare(long_and_short(1300 + mine, 1000), long_and_short(1300 + theirs, 1000))
    assert (found.verdict, found.busy_us.estimate) == ("no verdict", 0)
    assert found.counts == {"syncs": 0.0, "copies": 0.0, "launches": 0.0}


def marked(text: str, period: int = 2000, steps: int = 12, run: Any = None, prompts: int = 0, **options: Any) -> Side:
    """Steps with this mark, the first of them prompts."""
    script = Script()
    for step in range(steps):
        at = step * period
        script.range(text if step >= prompts else "prefill", at, at + period - 10)
        script.launch((at + 10, at + 20), (at + 30, at + period * 3 // 4))
    return side(sourced(script, run=run), **options)


def test_steps_of_other_phases_carry_nothing_but_their_own_figures() -> None:
    decode, both = (marked("token", steps=24, prompts=12, phase=phase, name=phase) for phase in ("decode", "all"))
    found = compare(decode, both)
    assert "decode and prefill in all, decode in decode" in refused(found)
    assert "intertoken compare decode all --phase decode" in found.refusal.instead
    assert (found.speedup, found.gap_us, found.busy_us, found.counts, len(found.kernels)) == (None, None, None, {}, 0)
    assert compare(decode, marked("token", steps=25, prompts=12, phase="decode")).refusal is None


def test_a_rate_of_decode_is_not_that_of_steps_with_a_prefill() -> None:
    rates = {"measured": {"tokens_per_s": {"median": 1e6, "repeats": [1e6, 1.01e6]}, "steps_per_s": {"median": 1e6}}}
    base, other = (marked("token", period, run=rates, prompts=1, phase="all") for period in (2000, 1000))
    found = compare(base, other)
    assert (found.basis, found.speedup.estimate, found.base.recordings[0].corrected) == ("light", 2.0, False)


def test_a_run_without_a_batch_has_no_tokens_per_s() -> None:
    found = compare(run_of([2000] * 20), run_of([1000] * 20))
    assert sentence(found).endswith("steps/s +100.0 % [+100.0, +100.0], of the recorded steps, untraced")
    facts = run_facts(found.base)
    assert (facts["tokens_per_s"], facts["steps_per_s"]) == (None, pytest.approx(500_000))
    assert percent(compare(run_of([20_000] * 20), run_of([20_009] * 20)).speedup).startswith("±0.0 %")


def graph_loop(
    busy: int, inputs: Sequence[int] = (8192, 1024, 4), logits: int = 128_000, model: str = "", rate: float = 0.0,
    period: int = 1_000_000,
) -> Side:  # fmt: skip
    """Ten steps recorded at graph level: input copies of these sizes, one graph of so many ns, and its result."""
    script = Script()
    for step in range(10):
        at = step * period
        for number, size in enumerate(inputs):
            script.copy(
                (at + 40 * number, at + 40 * number + 10), (at + 40 * number + 20, at + 40 * number + 30), size=size
            )
        script.graph((at + 400, at + 420), (at + 500, at + 500 + busy))
        script.copy((at + 440, at + 450), (at + busy + 600, at + busy + 700), "DtoH", size=logits)
        script.sync(at + 460, at + busy + 800)
    trace = script.trace
    trace.metadata["source"] = "nsys 2025.3"
    if model:
        trace.metadata["run"] = {"configuration": {"model": model}}
    return side(trace, f"{busy}", untraced_steps_per_s=[rate] if rate else [])


def why_not(base: Side, other: Side) -> str:
    return compare(base, other).refusal.why.partition(";")[0]  # type: ignore[union-attr]


def test_whole_graphs_of_different_programs_have_no_verdict() -> None:
    base, not_same = graph_loop(400_000), "not the same program? "
    found = compare(base, graph_loop(150_000))
    assert (found.verdict, found.speedup, found.gap_us, found.busy_us) == ("no verdict", None, None, None)
    assert found.refusal is not None
    assert found.refusal.why.startswith(
        f"{not_same}the device computes for 150 µs a step in 150000, for 400 µs in 400000; their kernels, which would "
        "tell, are in CUDA graphs that were recorded whole"
    )
    assert "record both at node level, or name the model of both in run.json" in found.refusal.instead
    assert not_same not in why_not(base, graph_loop(250_000))  # as on several streams
    sizes = why_not(base, graph_loop(390_000, (16_384, 2048, 4)))
    assert sizes == f"{not_same}the inputs of a step have 2,048, 16,384 bytes in 390000, 1,024, 8,192 bytes in 400000"
    assert not_same not in why_not(base, graph_loop(390_000, (8192, 2048, 4)))  # a longer context
    assert "the inputs of a step have 1,024, 12,288 bytes" in why_not(base, graph_loop(450_000, (12_288, 1024, 4)))
    assert not_same not in why_not(base, graph_loop(390_000, (9216,)))  # merged copies
    assert why_not(base, graph_loop(390_000, logits=202_000)) == (
        f"{not_same}a step fetches 202,000 bytes in 390000, 128,000 in 400000"
    )
    assert not_same not in why_not(base, graph_loop(390_000, logits=4))  # sampled on the device
    rated = graph_loop(200_000, rate=7000.0, period=150_000 + 200_000)
    assert "by its rate a step of 200000 takes 143 µs; 400000 computes for 400 µs" in (
        compare(base, rated).refusal.why  # type: ignore[union-attr]
    )
    same = [graph_loop(busy, model="llama 1.1B") for busy in (400_000, 150_000)]
    assert not_same not in why_not(*same)


def interval(told: Any) -> Interval | None:
    return None if told == "None" else Interval(*told)


def run(name: str, gap: float, **recording: Any) -> Any:
    facts = {"traced": False, "inflated": False, "graph_trace": "graph", "distortion": 1.0} | recording
    facts["distortion"] = None if facts["distortion"] == "None" else facts["distortion"]
    return SimpleNamespace(
        name=name, gap_us={"p50": gap}, gap_between=lambda _: None, recordings=(SimpleNamespace(**facts),)
    )


def comparison(told: dict[str, Any]) -> Any:
    usually = {"base": {"name": "sccc", "gap": 77}, "other": {"name": "saaas", "gap": 60}}
    base, other = (run(**told.get(which, facts)) for which, facts in usually.items())
    change = other.gap_us["p50"] - base.gap_us["p50"]
    gap = interval(told.get("gap_us", [change, change - 2, change + 2]))
    causes = {name: Interval(us, us - 0.5, us + 0.5) for name, us in told.get("causes", {}).items()}
    names, verdicts = np.array(told.get("kernels", []), dtype=object).reshape(-1, 2).T
    figures = np.zeros((13, len(names)))
    kernels = KernelChanges(Names.of(names), np.zeros(len(names), np.int64), *figures, verdicts)
    plain = {
        "basis": "untraced",
        "verdict": "faster",
        "needed": None,
        "showable": None,
        "seconds": None,
        "unit": "repeats",
        "method": "Welch's t",
    }
    return SimpleNamespace(
        base=base, other=other, rate="tokens/s", gap_us=gap, gap=gap, gap_statistic="p50", mean_gap_us=gap,
        kernels=kernels, speedup=interval(told.get("speedup", [1.014, 1.011, 1.017])), counts=told.get("counts", {}),
        busy_us=interval(told.get("busy_us", [0.0, -1.0, 1.0])),
        causes_us=dict.fromkeys(("sync", "copy", "launch", "host"), Interval(0.0, -1.0, 1.0)) | causes,
        refusal=Refusal(*told["refusal"]) if "refusal" in told else None,
        **{name: told.get(name, usual) for name, usual in plain.items()},
    )  # fmt: skip


def test_the_sentence() -> None:
    for name, told in tomllib.loads((DATA.parent / "sentences.toml").read_text(encoding="utf-8"))["truth"].items():
        assert sentence(comparison(told)) == told["says"], name


def test_what_holds_of_several_pairs_is_said_once() -> None:
    sides = [Side.of(*(recording([2000] * 8, name=name) for name in names)) for names in ("abc", "def")]
    assert compare(*sides).cautions == ["it is unknown whether d, e, f and a, b, c ran with the same model and batch"]


def test_two_processes_differ_by_what_was_measured_and_the_runs_of_one_do_not() -> None:
    """The device is busy for 90 % of a step: 0.6 % of that and a fifth of the rest, in each, make ± 5.8 %."""
    base, same, other = (
        run_of([2000] * 20, run={"created": f"2026-11-28T00:00:0{second}+00:00"}) for second in (0, 0, 1)
    )
    assert compare(base, same).speedup == Interval(1.0, 1.0, 1.0)
    found = compare(base, other)
    half = 1.96 * 2**0.5 * np.hypot(0.9 * 0.006, 0.1 * 0.2)
    assert np.log(found.speedup.high) == pytest.approx(half, rel=1e-3)
    assert (found.unit, found.verdict, found.showable[0]) == ("recordings", "no difference shown", 20)
    assert f"two processes of one program differ by up to {100 * np.expm1(half):.1f} %" in found.cautions[-1]
