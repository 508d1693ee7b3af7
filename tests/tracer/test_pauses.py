"""A recording of several windows has no gap, and no step, across a pause of its recorder; a host may pause as well."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.recordings import LLAMA
from tests.tracer.light_engine import Engine
from tests.tracer.machine import recorded
from tracer import Trace, formats, scrub
from tracer.analysis.gaps import gap_report
from tracer.analysis.tokens import ALL_STEPS, choose_steps, find_steps
from tracer.model.trace import PAUSES, Pause, add_pauses, pauses
from tracer.recorders.light import light_trace
from tracer.recorders.window import TimeRange, pauses_between, within
from tracer.scrub import Texts

PAUSED_NS = 50_000_000  # less than what a clock is taken to have jumped


def windows(trace: Trace, ends: list[int]) -> Trace:
    """The trace with its recorder paused after each of these steps, for so long as no engine idles."""
    steps = find_steps(trace).table
    edges = steps["end"].to_numpy()[ends]

    def later(frame: pd.DataFrame) -> pd.DataFrame:
        by = {"start": "right", "end": "left"}  # the next step may begin as this one ends
        return frame.assign(**{c: frame[c] + PAUSED_NS * np.searchsorted(edges, frame[c], side=by[c]) for c in by})

    moved = trace.map_tables(lambda _, frame: later(frame) if "start" in frame else frame)
    until = [int(edge) + number * PAUSED_NS for number, edge in enumerate(edges)]
    begin, end = moved.span
    since = [begin, *(edge + PAUSED_NS for edge in until)]
    return within(moved, [TimeRange(a, b) for a, b in zip(since, [*until, end + 1], strict=True)])


@pytest.mark.parametrize("ends", [[3], [3, 7]])
def test_no_idle_time_is_across_a_pause(ends: list[int]) -> None:
    """On a machine whose steps are alike: the mean stays, and the figures say that the recorder paused."""
    whole = gap_report(recorded("sccc"), find_steps(recorded("sccc")))
    cut = windows(recorded("sccc"), ends)
    steps = choose_steps(cut, None, ALL_STEPS)
    report = gap_report(cut, steps)
    assert len(pauses(cut)) == len(ends)
    assert report.gap_us == pytest.approx(whole.gap_us)
    assert report.idle.idle_us == pytest.approx(whole.idle.idle_us)
    assert len(report.idle.steps) == len(whole.idle.steps) - 2 * len(ends)  # what each pause cuts, and the step before
    times = "once" if len(ends) == 1 else f"{len(ends)} times"
    said = f"the recorder paused {times}; left out: {len(ends)} of 12 steps"
    assert [note for note in steps.notes if "paused" in note] == [said]


def test_a_pause_of_a_real_recording_is_no_gap() -> None:
    """Steps found by calls lie side by side, so that a pause cuts one."""
    trace = formats.read(LLAMA["saaas", "graph"])
    whole = gap_report(trace, find_steps(trace))
    middle = len(find_steps(trace)) // 2
    report = gap_report(cut := windows(trace, [middle]), steps := choose_steps(cut, None, ALL_STEPS))
    assert any(note.startswith("the recorder paused once") for note in steps.notes)
    assert report.gap_us["mean"] == pytest.approx(whole.gap_us["mean"], rel=0.02)
    assert report.gap_us["mean"] < PAUSED_NS / 1e3 / len(steps)


def test_a_cut_of_a_cut_keeps_its_pauses_and_leaves_the_original_alone() -> None:
    cut = windows(recorded("sccc"), [2, 6])
    again = within(Trace(dict(cut.tables), cut.metadata, list(cut.notes)), [TimeRange(*cut.span)])
    assert again.metadata[PAUSES] == cut.metadata[PAUSES]
    begin, end = cut.span
    within(Trace(dict(cut.tables), cut.metadata, []), [TimeRange(begin, begin + 1), TimeRange(end, end + 1)])
    assert len(cut.metadata[PAUSES]) == 2


def test_pauses_survive_every_format_of_ours_and_scrubbing(tmp_path: Path) -> None:
    cut = windows(recorded("sccc"), [2])
    for name in ("cut", "cut.sqlite", "cut.json", "cut.json.gz"):
        formats.write(cut, tmp_path / name)
        assert pauses(formats.read(tmp_path / name)) == pauses(cut) != []
    assert scrub.scrub_metadata(cut.metadata, Texts())[PAUSES] == cut.metadata[PAUSES]


@pytest.mark.parametrize(
    "told",
    [
        None,
        3,
        "xy",
        [1],
        [[1]],
        [[5, 2, None]],
        [["a", "b", None]],
        [[1, 2]],
        [[1, 2, "x"]],
        [[1, 2, 3, 1]],
        [[1, 2, 3, True, 4]],
        {},
        [[0, 1 << 80, 1]],
    ],
)
def test_damaged_pauses_are_none(told: object) -> None:
    trace = recorded("sccc")
    trace.metadata[PAUSES] = told
    assert pauses(trace) == []
    assert len(choose_steps(trace, None, ALL_STEPS)) == 12
    add_pauses(trace, [Pause(1, 2)])
    assert pauses(trace) == [Pause(1, 2)]


def test_a_pause_is_of_its_process() -> None:
    """One process pauses while another is recorded: the first has no gap across, the other loses nothing."""
    cut, other = windows(recorded("sccc"), [3]), recorded("sccc", tokens=80)
    (pause,), one = pauses(cut), int(cut["api"]["process"].iloc[0])
    second = other.map_tables(lambda _, frame: frame.assign(process=2) if "process" in frame else frame)
    both = Trace({name: pd.concat([cut[name], second[name]], ignore_index=True) for name in cut.tables}, {}, [])
    add_pauses(both, [Pause(pause.since, pause.until, one)])
    steps = choose_steps(both, None, ALL_STEPS)
    assert (steps.table["process"] == 2).sum() == 80
    assert steps.table.loc[steps.table["process"] == 2, "group"].unique().size == 1
    assert steps.table.loc[steps.table["process"] == one, "group"].unique().size == 2
    assert [note for note in steps.notes if "paused" in note] == [
        f"the recorder paused once in process {one}; left out: 1 of 92 steps"
    ]


def served(every: int, pause_ns: int, begin: int = 1_000_000) -> Engine:
    """A decode loop whose host, before some steps, is in no call for that long, as if it waited for a request."""
    made = Engine()
    made.now = begin
    for step in range(60):
        made.now += 400_000 + (pause_ns if step % every == every - 1 else 0)
        made.graph(step, 1_200_000)
        made.wait()
    return made


def serving(every: int, pause_ns: int) -> Trace:
    return light_trace([served(every, pause_ns).ring()])


def test_no_gap_is_across_an_exec() -> None:
    """A process has another ring behind exec; 40 ms pass until the new program decodes, as the old one did."""
    first = served(1, 0)
    second = served(1, 0, first.now + 40_000_000)
    trace = light_trace([first.ring(), second.ring()])
    steps = choose_steps(trace, None, ALL_STEPS)
    report = gap_report(trace, steps)
    assert [each.is_exec for each in pauses(trace)] == [True]
    assert [note for note in steps.notes if "paused" in note or "exec" in note] == [
        "the program replaced itself (exec) once; left out: 1 of 120 steps"
    ]
    assert steps.table["group"].nunique() == 2
    assert report.gap_us["mean"] == pytest.approx(report.gap_us["p50"], rel=0.01)


def cautions(trace: Trace) -> list[str]:
    return [note for note in choose_steps(trace, None, ALL_STEPS).notes if note.startswith("no call and nothing")]


def test_a_host_that_may_have_waited_for_requests_is_cautioned() -> None:
    (said,) = cautions(serving(8, 20_000_000))
    assert "for up to 20.4 ms, longer than two usual steps, 7 times, 60% of the time: the host waited" in said
    (said,) = cautions(serving(50, 20_000_000))
    assert ", once, 18% of the time: " in said


def test_host_code_of_every_step_is_no_such_pause() -> None:
    assert cautions(serving(8, 0)) == cautions(serving(8, 1_000_000)) == cautions(serving(1, 20_000_000)) == []
    assert cautions(serving(50, 3_000_000)) == []  # too little to change a mean


def test_pauses_between_windows_are_found_for_each_process() -> None:
    spans = [TimeRange(0, 10, 1), TimeRange(5, 15, 2), TimeRange(20, 30, 1), TimeRange(25, 35, 2), TimeRange(35, 40, 2)]
    assert pauses_between(spans) == [Pause(10, 20, 1), Pause(15, 25, 2)]
    assert pauses_between([TimeRange(3, 9)]) == []
