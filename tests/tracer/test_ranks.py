"""Ranks that wait for each other and hosts of different rates; exact truths are in data/truths/ranks.toml."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tracer.bases import looped
from tests.tracer.handmade import Script
from tests.tracer.truths import DATA, facts_of, rows, run, scene
from tracer import Trace, analyse, compare, formats
from tracer.analysis.ranks import waiting
from tracer.analysis.recording import Recording
from tracer.errors import TraceError
from tracer.files.bounded import tomllib


@given(st.lists(st.lists(st.integers(0, 10**6), min_size=3, max_size=3), min_size=2, max_size=6))
def test_waiting_is_what_is_longer_than_the_shortest(durations: list[list[int]]) -> None:
    report = waiting([{"a": times} for times in durations])
    shortest = [min(times) for times in zip(*durations, strict=True)]
    assert rows(report.table, "waiting") == [sum(times) - sum(shortest) for times in durations]
    caused = rows(report.table, "caused")
    assert sum(caused) == sum(rows(report.table, "waiting"))
    assert min(caused) >= 0


def test_collectives_entered_not_equally_often_are_left_out() -> None:
    report = waiting([{"a": [5, 5], "b": [1]}, {"a": [5], "b": [9]}])
    assert (report.left_out, rows(report.table, "waiting"), report.rank) == (("a",), [0, 8], 0)


def test_the_commands_say_who_is_waited_for(tmp_path: Path) -> None:
    scenes = tomllib.loads((DATA / "ranks.toml").read_text(encoding="utf-8"))["scene"]
    formats.write(scene(scenes["ranks"]), path := tmp_path / "two.sqlite")
    for command in ("gaps", "streams"):
        facts = facts_of(command, path)
        assert facts["waited_for"]["device"] == 1
        assert facts["communication_us"] == pytest.approx((2.89 + 0.49) / 2)
        assert [row["waiting_us"] for row in facts["ranks"]] == [2.4, 0]
        shown = run(command, path).output
        assert "communicates" in shown
        assert "wait for the one on device 1" in " ".join(shown.split())


def test_info_counts_the_steps_of_ranks_once(tmp_path: Path) -> None:
    scenes = tomllib.loads((DATA / "ranks.toml").read_text(encoding="utf-8"))["scene"]
    formats.write(scene(scenes["ranks"]), path := tmp_path / "two.sqlite")
    facts = facts_of("info", path)
    assert (facts["steps"], facts["of_each"]) == (10, "5 decode steps of each of 2 ranks")
    assert [(row["device"], row["steps"]) for row in facts["ranks"]] == [(0, 5), (1, 5)]
    shown = " ".join(run("info", path).output.split())
    assert "contains 5 decode steps of each of 2 ranks (from nvtx" in shown
    assert "waits in collectives" in shown
    assert "wait for the one on device 1" in shown
    formats.write(looped("cl fs"), path := tmp_path / "one.sqlite")
    assert "of_each" not in facts_of("info", path)


def engines(*between: int, ahead: bool = False) -> Trace:
    """A process and a device each, whose hosts begin a step every so many ns; `ahead` of devices that take 1000."""
    script = Script()
    for device, period in enumerate(between):
        place = {"process": 100 * (device + 1), "thread": 100 * (device + 1) + 1}
        for step in range(40):
            at = step * period
            work = 1000 * step if ahead else at
            script.launch((at, at + 10), (work + 20, work + 820), device=device, **place)
            script.range("token", at - 1, at + 15, **place)
    return script.trace


def test_a_rank_whose_host_runs_ahead_is_as_fast_as_its_device() -> None:
    assert analyse(engines(1000, 20, ahead=True)).steps.different == ""


def test_engines_of_different_rates_are_not_compared_together() -> None:
    """Neither is faster in the second recording; only the share of their steps is another."""
    one, two = (analyse(engines(*periods), name=name) for name, periods in (("a", (1000, 3000)), ("b", (3000, 1000))))
    with pytest.raises(
        TraceError, match=r"hosts of different rates, .*; choose one with --process 100 or --process 200"
    ):
        compare(one, two)


@pytest.mark.parametrize(("left_out", "rate"), [([0, 1, 3, 4, 6, 7, 9], None), ([0, 1, 4, 5, 6, 7, 8, 9], 2e9 / 2000)])
def test_steps_that_doubt_leaves_alone_have_no_rate(left_out: list[int], rate: float | None) -> None:
    """Of a host that runs ahead: alone, each step would be as fast as its launch."""
    script = Script()
    for token in range(10):
        script.range("token", token * 100, token * 100 + 50)
        script.launch((token * 100, token * 100 + 10), (20 + token * 1000, 1020 + token * 1000))
    steps = analyse(trace := script.trace).steps.without(np.array(left_out), [], ["the clock jumped"])
    found = Recording.of_steps(trace, steps).figures("steps").steps_per_s
    assert found == (None if rate is None else pytest.approx(rate))
