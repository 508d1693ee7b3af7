"""A budget against a base recording: broken, kept or not shown, by the interval."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.recordings import LLAMA, SIX
from tests.tracer.test_check_command import file, run
from tracer.analysis.budget import BaseLimits
from tracer.analysis.budget_check import check_base
from tracer.analysis.interval import Interval


def compared(**estimates: Interval) -> Any:
    """What of a comparison the lines look at."""
    return SimpleNamespace(**estimates)


@pytest.mark.parametrize(
    ("speedup", "verdict", "interval"),
    [
        (Interval(0.90, 0.88, 0.92), "broken", (0.08, 0.12)),
        (Interval(0.90, 0.85, 0.97), "not shown", (0.03, 0.15)),
        (Interval(0.96, 0.94, 0.99), "not shown", (0.01, 0.06)),
        (Interval(0.97, 0.96, 0.99), "kept", (0.01, 0.04)),
        (Interval(1.20, 1.10, 1.30), "kept", (-0.3, -0.1)),
        (Interval(0.50), "not shown", None),
    ],
)
def test_slowdown(speedup: Interval, verdict: str, interval: tuple[float, float] | None) -> None:
    (finding,) = check_base(BaseLimits("main", max_slowdown=0.05), compared(speedup=speedup))
    assert (finding.line.name, finding.verdict) == ("base.max_slowdown", verdict)
    assert finding.found == pytest.approx(1 - speedup.estimate)
    assert finding.excess == pytest.approx(max(0.95 - speedup.estimate, 0))
    assert finding.interval == (None if interval is None else pytest.approx(interval))


@pytest.mark.parametrize(
    ("gap", "verdict"),
    [
        (Interval(9.0, 5.1, 12.0), "broken"), (Interval(9.0, 4.9, 12.0), "not shown"),
        (Interval(3.0, 1.0, 5.1), "not shown"), (Interval(3.0, 1.0, 5.0), "kept"),
        (Interval(-9.0, -12.0, -5.0), "kept"),
    ],
)  # fmt: skip
def test_extra_gap(gap: Interval, verdict: str) -> None:
    (finding,) = check_base(BaseLimits("main", max_extra_gap_us=5), compared(gap_us=gap))
    assert (finding.line.name, finding.verdict, finding.found) == ("base.max_extra_gap_us", verdict, gap.estimate)


def test_where_there_is_no_verdict_nothing_is_kept_or_broken() -> None:
    nothing: Any = compared(speedup=None, gap_us=None)
    found = list(check_base(BaseLimits("main", max_slowdown=0.05, max_extra_gap_us=5), nothing))
    assert [(f.verdict, f.found, f.excess, f.interval) for f in found] == [("not shown", "no verdict", None, None)] * 2


def test_recordings_that_carry_no_verdict_are_not_shown_either_way(tmp_path: Path) -> None:
    """As traced, saaas is 3 % faster and its gap 31 µs shorter, of which 1.4 % and 17 µs are true."""
    for strategy in ("sccc", "saaas"):
        shutil.copytree(LLAMA[strategy, "graph"], tmp_path / strategy)
        (tmp_path / strategy / "run.json").unlink()
    for base, current in (("sccc", "saaas"), ("saaas", "sccc")):
        result = run(tmp_path / current, "--budget", based(tmp_path, base, 0.001, 1))
        assert result.exit_code == 0, result.output
        words = " ".join(result.stdout.split())
        assert words.count("inconclusive") == 2
        assert "✗" not in words
        assert "✓" not in words


def based(folder: Path, base: object, slowdown: float, extra: float) -> Path:
    text = f"[base]\nrecording = '{base}'\nmax_slowdown = {slowdown}\nmax_extra_gap_us = {extra}"
    return file(folder, text)


def test_the_path_of_the_base_is_relative_to_the_budget(tmp_path: Path) -> None:
    (tmp_path / "main").symlink_to(LLAMA["saaas", "graph"])
    assert run(LLAMA["saaas", "graph"], "--budget", based(tmp_path, "main", 0.01, 10)).exit_code == 0


def test_a_base_that_cannot_be_compared_is_one_line(tmp_path: Path) -> None:
    for base, said in ((SIX, f"base: {SIX} is not comparable with"), ("none", "none: no such file")):
        result = run(LLAMA["saaas", "graph"], "--budget", based(tmp_path, base, 0.01, 10))
        assert (result.exit_code, result.stdout) == (2, "")
        assert len(result.stderr.splitlines()) == 1
        assert said in result.stderr
