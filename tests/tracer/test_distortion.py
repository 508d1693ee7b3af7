"""What a profiler adds: said of a recording without a rate, and how a rate corrects causes and stretched graphs."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict

from tests.recordings import LADDER, LLAMA, SAMPLES
from tests.tracer.handmade import Script
from tests.tracer.steady import NSYS, sourced
from tests.tracer.truths import facts_of, run
from tracer import analyse, read, write
from tracer.analysis.causes import CAUSES
from tracer.analysis.distortion import UNUSED_RATE, stretch_ns, untraced_causes
from tracer.analysis.gaps import GIVE_RATE, STRETCHED, TRACED, GapReport
from tracer.analysis.interval import Interval
from tracer.errors import TraceError
from tracer.model.fits import fits_of

RESULT = json.loads((Path(__file__).parents[2] / "benchmarks" / "results" / "tracing_overhead.json").read_text("utf-8"))
H200 = fits_of("NVIDIA H200")


def causes(**us: float) -> dict[str, float]:
    return dict.fromkeys(CAUSES.values(), 0.0) | us


def test_a_graph_launch_gives_first_then_copies_and_host_code_then_the_rest() -> None:
    recorded = causes(sync=40.0, copy=20.0, launch=30.0, host=20.0)
    kept = 20.0 * H200.launch_left("graph")
    found = untraced_causes(recorded, 20.0, H200.launch_left("graph"), 90.0 + kept)
    assert found == pytest.approx(causes(sync=40.0, copy=20.0, launch=10.0 + kept, host=20.0))
    found = untraced_causes(recorded, 30.0, H200.launch_left("none"), 75.0)  # eager launches are calls like others
    assert found == pytest.approx(causes(sync=40.0, copy=10.0, launch=15.0, host=10.0))
    assert untraced_causes(recorded, 0.0, H200.launch_left("graph"), 20.0) == pytest.approx(causes(sync=20.0))
    more = untraced_causes(causes(sync=1.0, host=3.0), 0.0, H200.launch_left("node"), 8.0)  # than recorded: all grow
    assert more == causes(sync=2.0, host=6.0)


@given(
    st.lists(st.floats(0, 1e6), min_size=len(CAUSES), max_size=len(CAUSES)), st.floats(0, 1e6), st.floats(0, 1),
    st.sampled_from(["graph", "node", "none"]),
)  # fmt: skip
def test_corrected_causes_add_up_to_what_is_left(us: list[float], launch: float, share: float, level: str) -> None:
    recorded = dict(zip(CAUSES.values(), us, strict=True))
    found = untraced_causes(recorded, launch, H200.launch_left(level), sum(us) * share)
    assert sum(found.values()) == pytest.approx(sum(us) * share, abs=1e-6 * max(sum(us), 1))
    assert all(-1e-6 <= found[name] <= recorded[name] * (1 + 1e-9) + 1e-6 for name in recorded)


def test_graphs_are_stretched_by_kernel_and_by_length_as_the_benchmark_found() -> None:
    kernels, busy = np.array([100, 0]), np.array([1_000_000, 0])
    added = round(100 * H200.stretch.per_kernel + 1e6 * H200.stretch.share)
    assert stretch_ns(kernels, busy, H200.stretch).tolist() == [added, 0]
    low, high = (int(stretch_ns(kernels, busy, H200.stretch, sign)[0]) for sign in (-1, 1))
    assert high - low == pytest.approx(200 * H200.stretch.error, abs=2)
    assert RESULT["stretch"]["constants"] == asdict(H200.stretch)


@pytest.mark.parametrize("level", ["graph", "node"])
def test_without_a_rate_a_recording_is_left_uncorrected_and_says_so(level: str, tmp_path: Path) -> None:
    trace = read(LLAMA["sccc", level])
    trace.metadata.pop("run")
    write(trace, path := tmp_path / "alone.sqlite")
    facts = facts_of("gaps", path)
    unknown = ("untraced_idle_us", "untraced_gap_us", "estimated_untraced_gap_us", "distortion")
    assert [facts[key] for key in unknown] == [None] * 4
    assert facts["gap_us"] == facts["traced_gap_us"]
    assert facts["warning"] == f"{TRACED}; {GIVE_RATE}"
    assert facts["warning"] in " ".join(run("info", path).output.split())


def test_a_rate_of_another_run_is_refused(tmp_path: Path) -> None:
    """By every command that takes one, and run.json's counts for nothing."""
    path, option, rate = LLAMA["sccc", "graph"], "--untraced-tokens-per-s", ("--untraced-steps-per-s", "10")
    (budget := tmp_path / "budget.toml").write_text("tokens_per_s.untraced.min = 1\n")
    for command in (["gaps", path, *rate], ["whatif", path, "--without-syncs", *rate],
                    ["compare", path, path, option, "10", option, "748.7"],
                    ["check", path, "--budget", budget, *rate]):  # fmt: skip
        found = run(*command)
        assert found.exit_code == 2, command
        assert "by the untraced rate of 10 steps/s 100000.0 µs; that rate is from another run" in found.stderr
    trace = read(path)
    trace.metadata["run"]["measured"] = {"tokens_per_s": {"median": 10.0}}
    report = analyse(trace).gaps
    assert (report.untraced_gap_us, report.distortion, analyse(trace).measured.untraced) == (None, None, None)
    assert "from another run" in str(report.warning)


def test_a_rate_changes_nothing_where_nothing_was_traced(tmp_path: Path) -> None:
    path = SAMPLES / "llama-1.1b-sccc-sequential-cuda"
    (budget := tmp_path / "budget.toml").write_text("tokens_per_s.untraced.min = 20\n")
    assert run("check", path, "--budget", budget, "--untraced-tokens-per-s", "10").exit_code == 0
    trace = read(path)
    given, plain = (analyse(trace, untraced_steps_per_s=rates) for rates in ([10.0], []))
    assert given.measured.untraced == plain.measured.untraced
    assert UNUSED_RATE in given.measured.notes
    assert (plain.gaps.warning, plain.gaps.corrected() is plain.gaps) == (None, True)


def test_a_rate_is_a_mean_and_tells_no_percentile(tmp_path: Path) -> None:
    path, rate = LLAMA["sccc", "graph"], ("--untraced-tokens-per-s", "748.7")
    facts = facts_of("gaps", path, *rate)
    assert (facts["gap_us"]["p90"], set(facts["untraced_gap_us"])) == (None, {"p50", "mean"})
    (budget := tmp_path / "budget.toml").write_text("gap_us.untraced.p90.max = 100\n")
    found = run("check", path, "--budget", budget, *rate)
    assert (found.exit_code, found.stdout) == (2, "")
    assert "a rate is a mean and does not give the p90 of the gap without a profiler" in found.stderr


def test_where_an_interval_is_wide_there_is_no_figure(tmp_path: Path) -> None:
    """Of the gap, of its causes and of the idle time, in no command; the difference of two that tracing stretched alike
    stays known."""
    path = LLAMA["sccc", "node"]
    facts = facts_of("info", path)
    for of, low in (("gap", 42.628), ("idle", 50.655)):
        assert facts[f"estimated_untraced_{of}_us"] == {
            "estimate": None, "low": pytest.approx(low, abs=0.01), "high": pytest.approx(109.121, abs=0.01)
        }  # fmt: skip
    assert (facts["untraced_gap_us"], facts["untraced_idle_us"], facts["untraced_causes_us"]) == (None, None, {})
    assert "82.3" not in run("info", path).stdout
    facts = facts_of("gaps", path, "--untraced-tokens-per-s", "748.7")
    assert facts["gap_us"] is None
    assert STRETCHED.format("41.3 to 110.5 µs, 95 % interval") in facts["warning"]
    with pytest.raises(TraceError, match=r"known only roughly: the median gap without it is 42\.6 to 109\.1 µs"):
        analyse(read(path)).gaps.corrected()
    base, other = facts_of("compare", path, LLAMA["saaas", "node"])["runs"]
    assert (base["gap_us"], other["gap_us"]) == ({"p50": None, "mean": None},) * 2
    assert set(base["causes_us"].values()) == {None}
    assert other["difference"]["gap_us"]["estimate"] is None
    assert "mean gap from [55.7, 109.3] to [37.1, 90.4] µs (−18.7 [−" in other["sentence"]
    predicted = facts_of("whatif", path, "--without-syncs", "--untraced-tokens-per-s", "748.7")
    assert (predicted["corrected"]["idle_us"], predicted["idle_us"]) == ({}, {})
    (budget := tmp_path / "budget.toml").write_text("gap_us.untraced.mean.max = 100\n")
    assert "found 55.7 to 109.3 µs, 95 % interval, allowed at most 100" in run("check", path, "--budget", budget).stdout


def test_how_wide_an_interval_may_be_beside_a_figure() -> None:
    for low, high, is_wide in ((85.0, 115.0, False), (84.9, 100.0, True), (100.0, 115.1, True), (None, None, False)):
        found = Interval(100.0, low, high)
        assert (found.is_wide, found.figure) == (is_wide, None if is_wide else 100.0)
    assert not Interval(0.0, 0.0, 1.0).is_wide  # a µs is exact enough
    assert str(Interval(100.0, 80.0, 120.0)) == "80.0 to 120.0 µs, 95 % interval"
    assert str(Interval(100.0, 90.0, 110.0)) == "about 100.0 µs, 95 % interval 90.0 to 110.0 µs"
    assert Interval(100.0, 80.0, 120.0).facts == {"estimate": None, "low": 80.0, "high": 120.0}


@pytest.mark.parametrize("name", LADDER)
def test_at_node_level_the_gap_of_our_own_loop_is_right_or_withheld(name: str) -> None:
    """Its light pass tells the truth. Early starts and branches overlap kernels by more than the stretch is known for:
    then the gap is withheld, and what is said of it holds the truth."""
    truth = analyse(read(SAMPLES / name)).gaps
    found = analyse(read(SAMPLES / name / "node"), untraced_steps_per_s=1e6 / truth.period_us).gaps_at_rate
    gap_us = truth.gap_us["p50"]
    assert found.idle.hides_stretch
    if found.untraced_gap_us is not None:
        assert found.untraced_gap_us["p50"] == pytest.approx(gap_us, rel=0.1)
    elif found.always_busy:
        assert gap_us < 0.01 * truth.period_us
        assert "the device bounds this engine, and the host has nothing to give" in str(found.warning)
    elif found.untraced_idle_us is None:
        assert gap_us < 5
        assert "longer than the untraced rate allows" in str(found.warning)
    else:
        low, high = re.search(r"of which ([\d.]+) to ([\d.]+) µs are the gap", str(found.warning)).groups()
        assert float(low) - 2 <= gap_us <= float(high) + 2


def by_rate(idle: list[int], mean_idle: float) -> GapReport:
    """Steps of 1 ms of kernels and these idle times (ns), under a profiler, at a rate that leaves this mean."""
    script, now, busy = Script(), 0, 1_000_000
    for gap in [*idle, 1000]:
        script.range("token", now - 50, now + busy + gap - 50)
        script.launch((now - 50, now), (now, now + busy))
        script.sync(now + busy, now + busy + gap - 100)
        now += busy + gap
    return analyse(sourced(script, NSYS), untraced_steps_per_s=1e9 / (busy + mean_idle)).gaps_at_rate


def test_a_rate_tells_the_mean_and_the_median_only_where_steps_are_alike() -> None:
    """Every 16th step copies an adapter: its p50 of 23 µs was said to be the mean of 105."""
    tail = [1_320_000 if step % 16 == 15 else 23_000 for step in range(64)]
    found = by_rate(tail, sum(tail) / 64)
    assert found.untraced_idle_us == {"p50": None, "mean": pytest.approx(104.0625, abs=1e-3)}
    assert found.between["idle_us p50"].holds(23.0)
    assert found.distortion == pytest.approx(1.0, abs=0.02)
    alike = by_rate([100_000 + step % 3 for step in range(64)], 80_000)
    assert alike.untraced_idle_us == {"p50": pytest.approx(80.0, abs=0.01), "mean": pytest.approx(80.0, abs=0.01)}
    low, high = alike.between["idle_us p50"].bounds or (0.0, 0.0)
    assert (low, high) == (pytest.approx(80 - 5.4, abs=0.1), pytest.approx(80 + 5.4, abs=0.1))


def test_a_device_that_is_always_busy_bounds_the_engine() -> None:
    """Its rate is not refused: by it a step takes 0.5 % less than the device works under the profiler."""
    found = by_rate([20_000 + step % 3 for step in range(64)], -5_000)
    assert (found.always_busy, found.refused, found.untraced_gap_us) == (True, None, None)
    assert found.untraced_idle_us == {"p50": pytest.approx(0.0), "mean": 0.0}
    assert "the device bounds this engine, and the host has nothing to give" in str(found.warning)
    longer = by_rate([20_000] * 64, -100_000)
    assert (longer.always_busy, longer.untraced_idle_us) == (False, None)
    assert "longer than the untraced rate allows" in str(longer.warning)
