"""Several engines in one recording: told apart, side by side, and chosen one at a time."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.tracer.handmade import Loop, Script, loops
from tests.tracer.truths import facts_of, run
from tracer import Trace, analyse, compare, formats
from tracer.analysis.bounds import Owner
from tracer.errors import TraceError, UsageError

ONE, OTHER = Loop(107_300, 600_000), Loop(68_600, 240_000, 80, thread=102, syncs=2)


def gaps_of(trace: Trace, **choice: Any) -> list[tuple[int, ...]]:
    """Device, start, end and every part of the gaps."""
    table = analyse(trace, **choice).gaps_at_rate.table.drop(columns="step")
    return sorted(table.itertuples(index=False, name=None))


def steps_of(trace: Trace, **choice: Any) -> list[tuple[int, ...]]:
    rows = analyse(trace, **choice).steps.rows
    return sorted(zip(rows.process.tolist(), rows.thread.tolist(), rows.start.tolist(), strict=True))


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two loops in two threads of a process, on one device."""
    formats.write(loops(ONE, OTHER), path := tmp_path_factory.mktemp("engines") / "two")
    return path


def test_each_engine_has_its_own_gap(two: Path) -> None:
    facts = facts_of("gaps", two)
    assert [(one["process"], one["thread"], one["device"]) for one in facts["engines"]] == [
        (100, 101, 0),
        (100, 102, 0),
    ]
    told = [[one["gap_us"][which] for which in ("p50", "p90", "mean")] for one in facts["engines"]]
    assert told == [pytest.approx([107.3] * 3), pytest.approx([68.6] * 3)]
    assert (facts["gap_us"], facts["steps"], facts["causes_us"]) == (None, None, None)
    assert [one["steps"] for one in facts["engines"]] == [40, 80]
    for thread, gap in ((101, 107.3), (102, 68.6)):
        alone = facts_of("gaps", two, "--thread", thread)
        assert alone["gap_us"] == pytest.approx({"p50": gap, "p90": gap, "mean": gap})
        (same,) = (one for one in facts["engines"] if one["thread"] == thread)
        assert {key: same[key] for key in alone if key in same} == {k: v for k, v in alone.items() if k in same}


def test_figures_stand_side_by_side(two: Path) -> None:
    syncs, info, tokens = (facts_of(command, two) for command in ("syncs", "info", "tokens"))
    assert [one["syncs_per_token"] for one in syncs["engines"]] == [1, 2]
    assert (syncs["syncs_per_token"], syncs["copies_per_token"], syncs["schema"]) == (None, None, "intertoken.syncs/1")
    assert [one["gap_p50_us"] for one in info["engines"]] == pytest.approx([107.3, 68.6])
    assert (info["gap_p50_us"], info["steps_per_s"], info["tokens_per_s"]) == (None, None, None)
    assert info["problem"].endswith("choose one with --thread 101 or --thread 102")
    assert [len(one["table"]) for one in tokens["engines"]] == [40, 80]
    streams = facts_of("streams", two)
    assert (streams["streams"], streams["devices"], streams["steps"]) == (None, None, None)
    assert [(one["steps"], [row["stream"] for row in one["streams"]]) for one in streams["engines"]] == [
        (40, [7]), (80, [8]),
    ]  # fmt: skip
    assert [row["thread"] for row in streams["ranks"]] == [101, 102]
    for command, label in (("info", "gap p50"), ("gaps", "gap p50"), ("syncs", "syncs a step"), ("tokens", "contains"),
                           ("streams", "busy")):  # fmt: skip
        lines = run(command, two).stdout.splitlines()
        assert any("process 100 thread 101" in line and "process 100 thread 102" in line for line in lines), command
        row = next(line for line in lines if line.strip().startswith(label))
        assert command not in {"info", "gaps"} or ("107.3 µs" in row and "68.6 µs" in row)


def test_the_tables_hold_the_rows_of_all(two: Path, tmp_path: Path) -> None:
    gaps, syncs, streams = (tmp_path / f"{command}.csv" for command in ("gaps", "syncs", "streams"))
    for table in (gaps, syncs, streams):
        assert run(table.stem, two, "--table", table).exit_code == 0
    assert streams.read_text().startswith("device,process,thread,stream,")
    assert len(streams.read_text().splitlines()) == 1 + 2
    head, *lines = gaps.read_text().splitlines()
    assert head.startswith("process,thread,step,device")
    assert len(lines) == 39 + 79
    assert len(syncs.read_text().splitlines()) == 1 + 1 + 2


@pytest.mark.parametrize("command", [
    ("path",), ("advise",), ("whatif", "--without-syncs"), ("check", "--write-budget", "budget.toml"),
    ("gaps", "--bubbles"), ("gaps", "--untraced-tokens-per-s", "1414"), ("syncs", "--call-sites"),
])  # fmt: skip
def test_what_cannot_stand_side_by_side_asks_for_one(
    command: tuple[str, ...], two: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name, *options = command
    refused = run(name, two, *options)
    assert (refused.exit_code, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert "choose one with --thread 101 or --thread 102" in refused.stderr
    rate = [] if "--untraced-tokens-per-s" in options else ["--untraced-tokens-per-s", "1414"]
    with_rate = rate if name in {"advise", "whatif"} else []
    assert run(name, two, *options, *with_rate, "--thread", "101").exit_code == 0


def test_comparisons_ask_for_one(two: Path) -> None:
    assert "choose one with --thread 101" in run("compare", two, two).stderr
    assert run("compare", two, two, "--thread", "101").exit_code == 0
    trace = loops(ONE, OTHER)
    for of_all in ("gaps", "idle"):
        with pytest.raises(TraceError, match="choose one with"):
            getattr(analyse(trace), of_all)
    assert [one.gaps.gap_us["p50"] for one in analyse(trace).engines] == pytest.approx([107.3, 68.6])
    with pytest.raises(TraceError, match="choose one with"):
        compare(trace, trace)
    assert compare(analyse(trace, thread=101), analyse(trace, thread="loop-101")).busy_us is not None


@pytest.mark.parametrize(("option", "value", "there"), [
    ("--process", "7", "100 (serve-100)"), ("--thread", "watcher", "101 (loop-101), 102 (loop-102)"),
    ("--device", "3", "0"),
])  # fmt: skip
@pytest.mark.parametrize("command", ["info", "tokens", "syncs", "gaps", "streams", "path", "advise"])
def test_what_is_not_there_is_refused_with_what_is(
    command: str, option: str, value: str, there: str, two: Path
) -> None:
    refused = run(command, two, option, value)
    assert (refused.exit_code, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert refused.stderr.rstrip().endswith(f" {there}")


def test_names_choose_as_numbers_do() -> None:
    trace = loops(ONE, OTHER._replace(process=200, thread=201))
    assert analyse(trace).steps.owners == (Owner(100, 101, 0), Owner(200, 201, 0))
    for choice in ({"process": 200}, {"process": "serve-200"}, {"process": "200"}, {"thread": "loop-201"},
                   {"process": "SERVE-2"}, {"process": "serve", "thread": 201}):  # fmt: skip
        found = analyse(trace, **choice)
        assert (found.steps.owners, found.gaps.gap_us["p50"]) == ((), 68.6), choice
    assert len(analyse(trace, process="serve").engines) == 2
    with pytest.raises(
        UsageError, match=r"--thread 101: no steps of such a thread; there are steps of 201 \(loop-201\)"
    ):
        analyse(trace, process=200, thread=101).steps  # noqa: B018


def test_a_loop_with_few_steps_is_found_where_its_thread_is_asked_for() -> None:
    """Without marks, a thread with less than a quarter of the steps of another is taken for one that helps it."""
    script = Script()
    for thread, stream, steps, period in ((101, 7, 40, 1000), (102, 8, 6, 5000)):
        for step in range(steps):
            at = step * period
            script.launch((at, at + 10), (at + 20, at + 820), stream=stream, thread=thread, name=f"k{stream}")
            script.copy((at + 20, at + 30), (at + 820, at + 830), "DtoH", stream, thread=thread)
            script.sync(at + 30, at + 840, stream, thread=thread)
    trace = script.trace
    assert set(analyse(trace).steps.rows.thread) == {101}
    found = analyse(trace, thread=102)
    assert (len(found.steps), found.gaps.gap_us["p50"]) == (6, 4.2)


@pytest.mark.parametrize("marked", [True, False])
def test_threads_that_take_turns_are_one_engine(marked: bool) -> None:
    """Each step is by the next of four threads, when the one before has its result."""
    script = Script()
    for step in range(40):
        at, thread = step * 1000, 101 + step % 4
        script.copy((at - 20, at - 10), (at - 15, at - 5), "HtoD", thread=thread)
        script.launch((at, at + 10), (at + 20, at + 820), thread=thread)
        script.copy((at + 20, at + 30), (at + 820, at + 830), "DtoH", thread=thread)
        script.sync(at + 30, at + 840, thread=thread)
        if marked:
            script.range("token", at - 25, at + 15, thread=thread)
    found = analyse(script.trace)
    assert (found.steps.owners, len(found.steps)) == ((), 40)
    assert found.steps.detail.endswith("of 4 threads that take turns")
    assert found.gaps.gap_us == pytest.approx({"p50": 0.2, "p90": 0.2, "mean": 0.2})
    assert found.figures("steps").steps_per_s == pytest.approx(1e6, rel=0.01)
    assert (found.syncs.syncs_per_token, found.syncs.signature, found.syncs.strategy) == (1, "a k a s", "aaag")


def test_a_thread_that_takes_turns_on_two_devices_runs_two_engines() -> None:
    script = Script()
    for step in range(20):
        for device, at in ((0, step * 10_000), (1, step * 10_000 + 4000)):
            script.range("token", at, at + 10)
            script.launch((at, at + 10), (at + 100, at + 1100 + device * 500), device=device)
    found = analyse(script.trace)
    assert found.steps.owners == (Owner(100, 101, 0), Owner(100, 101, 1))
    assert [(len(one.steps), one.gaps.gap_us["p50"]) for one in found.engines] == [(20, 9.0), (20, 8.5)]
    assert found.summary.problem.endswith("choose one with --device 0 or --device 1")


def test_devices_that_compute_together_are_of_one_engine() -> None:
    script = Script()
    for step in range(20):
        at = step * 10_000
        script.range("token", at, at + 100)
        for device in (0, 1):
            script.launch((at + device, at + device + 1), (at + 100, at + 1100 + device * 500), device=device)
    trace = script.trace
    assert analyse(trace).steps.owners == ()
    both, *each = (analyse(trace, device=device).gaps.table for device in (None, 0, 1))
    assert [len(both), *map(len, each)] == [38, 19, 19]
    assert both.equals(type(both)(sorted_rows(each[0], each[1])).astype(both.dtypes))


def sorted_rows(*tables: Any) -> Any:
    import pandas as pd

    return pd.concat(tables, ignore_index=True)


@pytest.mark.parametrize("ranks", [
    [Loop(100, 900), Loop(100, 900, process=200, thread=201, device=1)],
    [Loop(100, 900), Loop(200, 800, thread=102, device=1)],
])  # fmt: skip
def test_hosts_of_one_rate_on_their_own_devices_may_be_ranks(ranks: list[Loop]) -> None:
    found = analyse(loops(*ranks))
    assert (found.steps.owners, found.engines) == ((), ())
    assert len(facts_ranks(found)) == 2
    chosen = analyse(found.trace, device=1)
    assert [len(chosen.steps), chosen.gaps.gap_us["p50"]] == [40, ranks[1].gap / 1e3]


@pytest.mark.parametrize(("late", "engines"), [(0, 0), (4000, 2)])
def test_ranks_that_all_have_one_device_number_are_told_by_their_collectives(late: int, engines: int) -> None:
    script = Script()
    for process, shift in ((100, 0), (200, late)):
        place = {"process": process, "thread": process + 1}
        for step in range(20):
            at = step * 10_000 + shift
            script.range("token", at, at + 10, **place)
            script.launch((at, at + 10), (at + 100, at + 1100), **place)
            script.launch((at + 20, at + 30), (at + 1100, at + 3000), name="ncclDevKernel_AllReduce_Sum", **place)
    assert len(analyse(script.trace).steps.owners) == engines


@pytest.mark.parametrize(("gaps", "engines"), [((60_000, 60_000), 0), ((60_000, 110_000), 2)])
def test_loops_on_their_own_devices_are_engines_if_they_drift_apart(gaps: tuple[int, int], engines: int) -> None:
    """Their rates differ by less than a tenth: 660 and 710 µs a step."""
    one, other = (Loop(gap, 600_000, thread=101 + at, device=at) for at, gap in enumerate(gaps))
    found = analyse(loops(one, other))
    assert [each.gaps.gap_us["p50"] for each in found.engines] == [gap / 1e3 for gap in gaps][:engines]


def facts_ranks(found: Any) -> list[dict[str, Any]]:
    from tracer.reporting.console import rank_facts

    return list(json.loads(json.dumps(rank_facts(found)))["ranks"])


@pytest.mark.parametrize("seed", range(12))
def test_the_engines_have_all_steps_and_gaps_and_each_once(seed: int) -> None:
    random = Random(seed)
    hosts = random.sample([(100, 101), (100, 102), (200, 101), (200, 202)], random.randint(1, 4))
    trace = loops(*(
        Loop(random.randint(20_000, 90_000), random.randint(30_000, 90_000), random.randint(3, 8), process, thread,
             random.choice([0, 1]))
        for process, thread in hosts
    ))  # fmt: skip
    found = analyse(trace)
    each = [{"process": one.process, "thread": one.thread, "device": one.device} for one in found.steps.owners] or [{}]
    assert sorted(step for choice in each for step in steps_of(trace, **choice)) == steps_of(trace)
    assert sorted(gap for choice in each for gap in gaps_of(trace, **choice)) == gaps_of(trace)
    assert all(one.steps.owners == () for one in found.engines)
