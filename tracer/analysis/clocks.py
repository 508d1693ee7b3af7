"""Which steps are unusable because of the recording's clocks or lost records, and why.

Stages:
1. device against host: the device's clock is ahead of the host's, or behind it (`clock_offsets`);
2. the host's clock: calls of a thread are numbered in order, so a later number at an earlier time is a jump back; a
   long period in which nothing begins, ends or runs is a jump forward or a pause of the program, which a recording
   cannot distinguish unless its recorder says that it paused (`silences`);
3. lost records: launches without recorded work, and work in the middle of a stream without a recorded launch; if most
   steps are affected, and what steps without marks are told by is among them, it is unknown which steps there are.

Unusable steps are excluded from every figure, as is the wall-clock time they take.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

import numpy as np
import pandas as pd

from tracer.analysis.bounds import HOW_TO_TELL
from tracer.analysis.calls import host_calls
from tracer.analysis.clock_offsets import NO_BOUND, TOLERANCE_NS, agrees, in_words, offsets, windows
from tracer.analysis.passes import CONSTANT
from tracer.analysis.silences import LEAST_JUMP_NS, quiet, quiet_in_words, silences
from tracer.analysis.step_work import activity_steps
from tracer.analysis.steps import Span, Steps
from tracer.errors import EmptyTraceError
from tracer.model.calls import COPIES, GRAPH_LAUNCH, LAUNCHES
from tracer.model.intervals import Ints
from tracer.model.rows import LANE, among, by_thread, groups_of, match_rows, taken
from tracer.model.schema import MISSING
from tracer.model.trace import Trace, pauses

AHEAD_TOLERANCE_NS: Final = 30_000
"""Recorders interpolate the device's clock between a few readings of both clocks, and timestamp the end of work later
than the wait for it returned: up to 18 µs ahead in recordings of MI300, up to 8 µs in those of NVIDIA GPUs. This is
reported and makes no step unusable. In no recording does work start before its launch."""

_TIMES_ALL: Final = 10  # times all steps together
_NO_ROWS: Final = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Doubt:
    """Why some steps are excluded from every figure.

    Attributes:
        why: the reason in words, without the number of steps.
        steps: positions in the table of steps.
        spans: other periods of wall-clock time that this makes unusable, ns.
        process: whose steps these concern; None: those of all.
        lossy: whether records are missing in most steps.
        hides: whether work of the device is missing in most steps, so that it is unknown when the device is idle.
    """

    why: str
    steps: Ints
    spans: tuple[Span, ...] = ()
    process: int | None = None
    lossy: bool = False
    hides: bool = False

    def line(self, of: int) -> str:
        """The doubt in one line, with the number of steps that are left out."""
        return self.why + (f"; left out: {len(self.steps)} of {of} steps" if len(self.steps) else "")


def without_doubtful(trace: Trace, steps: Steps, calls: pd.DataFrame | None = None, *, is_told: bool = False) -> Steps:
    """The steps without the unusable ones; its notes say which are missing, and why.

    Args:
        trace: the recording.
        steps: its steps.
        calls: its `host_calls`, if available.
        is_told: whether someone said what begins a step.

    Raises:
        EmptyTraceError: all are unusable, or others than the engine's.
    """
    calls = host_calls(trace) if calls is None else calls
    all_doubts = doubts(trace, steps, calls)
    if not all_doubts:
        return steps
    spoilt = np.unique(np.concatenate([doubt.steps for doubt in all_doubts])).astype(np.int64)
    lines = [doubt.line(len(steps)) for doubt in all_doubts]
    if len(spoilt) == len(steps):
        raise EmptyTraceError(f"no step is usable: {'; '.join(lines)}")
    losses = [doubt.why for doubt in all_doubts if doubt.lossy]
    if losses and not is_told and _may_be_others(trace, steps, calls):
        raise EmptyTraceError(
            f"the steps are unknown: {'; '.join(losses)}; copies or graphs, which show where a step ends, are among "
            f"them, so that some of the {len(steps)} that seem to be steps may be several; {HOW_TO_TELL}"
        )
    hidden = "; ".join(doubt.why for doubt in all_doubts if doubt.hides)
    spans = [(*span, doubt.process) for doubt in all_doubts for span in doubt.spans]
    return replace(steps.without(spoilt, spans, lines), hidden=hidden)


def doubts(trace: Trace, steps: Steps, calls: pd.DataFrame | None = None) -> list[Doubt]:
    """The doubts about the steps of a trace; empty if there are none. `calls`: its `host_calls`, if available."""
    activities = trace.activities().frame()
    calls = host_calls(trace) if calls is None else calls
    call = match_rows(trace["api"], activities)
    return [
        *_inexact(trace),
        *_paused(trace, steps),
        *_apart(trace, steps, activities, call, calls),
        *_jumps(trace, steps, activities),
        *_lost(trace, steps, activities, call, calls),
    ]


def _paused(trace: Trace, steps: Steps) -> Iterator[Doubt]:
    """Steps that a pause of the recorder, or an exec, cuts; no gap is across either."""
    told = pauses(trace)
    processes = steps.table["process"].to_numpy()
    several = told and len(np.unique(processes)) > 1
    for process, is_exec in product(map(int, np.unique(processes)), (False, True)) if told else ():
        own = steps.table[processes == process]
        inside = [
            (each.since, each.until) for each in told
            if each.process in (None, process) and each.is_exec == is_exec
            and own["start"].min() < each.until and each.since < own["end"].max()
        ]  # fmt: skip
        if inside:
            cut = _touched(steps, [(since, until - 1) for since, until in inside])
            where = f" in process {process}" if several else ""
            what = "the program replaced itself (exec)" if is_exec else "the recorder paused"
            why = f"{what} {_times(len(inside))}{where}"
            yield Doubt(why, cut[processes[cut] == process], tuple(inside), process)


# --- 1. device against host ---


def _inexact(trace: Trace) -> Iterator[Doubt]:
    """A recorder that knows device times less exactly than clocks may differ."""
    error = _stated_error(trace)
    if error > AHEAD_TOLERANCE_NS:
        why = f"device times are known to within {error / 1e3:,.0f} µs of the host's: parts of gaps and waits have that"
        yield Doubt(f"{why} error, idle times and gaps do not", _NO_ROWS)


def _apart(trace: Trace, steps: Steps, activities: pd.DataFrame, call: Ints, calls: pd.DataFrame) -> Iterator[Doubt]:
    """Steps that launched work whose clock differs from the host's."""
    every_low, every_high = offsets(trace, activities, call, calls)
    error = _stated_error(trace)
    places, count = groups_of(activities, ["process", "device"])
    for place in range(count):
        rows = np.flatnonzero((places == place) & (every_high < NO_BOUND))
        if not len(rows) or agrees(every_low[rows] - error, every_high[rows] + error):
            continue
        device = int(activities["device"].iloc[rows[0]])
        order = rows[np.argsort(trace["api"]["start"].to_numpy()[call[rows]], kind="stable")]
        low, high = every_low[order] - error, every_high[order] + error
        ways = [windows(low, high), [(len(low) - b, len(low) - a) for a, b in windows(low[::-1], high[::-1])]]
        spoilt = np.zeros(len(order), bool)
        for a, b in (window for way in ways for window in way):
            spoilt[a:b] |= not agrees(low[a:b], high[a:b], AHEAD_TOLERANCE_NS)
        offsets_in_words = [in_words(low[a:b], high[a:b]) for a, b in ways[0] if not agrees(low[a:b], high[a:b])]
        offsets_in_words.sort(key=lambda words: "behind" not in words)
        more = f", and {len(offsets_in_words) - 2} other offsets" if len(offsets_in_words) > 2 else ""
        chosen = order[spoilt]
        of_steps = np.unique(activity_steps(trace, steps, activities.iloc[chosen], call[chosen]))
        why = f"the clock of device {device} differs from the host's: {', '.join(offsets_in_words[:2])}{more}"
        if spoilt.any():
            yield Doubt(why, of_steps[of_steps >= 0])
        else:
            yield Doubt(f"{why}; parts of gaps and waits have at least that error", _NO_ROWS)


def _stated_error(trace: Trace) -> int:
    """The error of device times according to the recorder, ns; 0 if it gives none."""
    clock = trace.metadata.get("clock")
    error = clock.get("device_error_ns") if isinstance(clock, dict) else None
    return error if isinstance(error, int) and 0 < error < NO_BOUND // 4 else 0


# --- 2. the host's clock ---


def _jumps(trace: Trace, steps: Steps, activities: pd.DataFrame) -> Iterator[Doubt]:
    times = [trace["api"][name].to_numpy() for name in ("correlation", "start", "end")]
    back = [turn for *_, rows in by_thread(trace["api"]) for turn in _jumps_back(*(each[rows] for each in times))]
    most = max((turn.by for turn in back), default=0)
    if 0 < most < LEAST_JUMP_NS:
        yield Doubt(
            f"calls of one thread are out of order by up to {most / 1e3:,.1f} µs, {_times(len(back))}", _NO_ROWS
        )
    back = [turn for turn in back if turn.by >= LEAST_JUMP_NS]
    if back:
        spans = [turn.mixed for turn in back]
        around = [*spans, *((time, time) for turn in back for time in turn.ends)]
        why = f"the clock went back by up to {most / 1e9:,.2f} s, {_times(len(back))}"
        yield Doubt(why, _touched(steps, around), tuple(spans))
    known = [*(turn.mixed for turn in back), *((each.since, each.until) for each in pauses(trace))]
    silent = [span for span in silences(trace, steps, activities) if not _overlaps(span, known)]
    silent = [span for span in silent if _matters(steps, span)]
    if silent:
        longest = max(end - start for start, end in silent) / 1e9
        why = f"no activity at all for up to {longest:,.2f} s, {_times(len(silent))}"
        yield Doubt(f"{why}: the clock jumped, or the program paused", _touched(steps, silent), tuple(silent))
    left = [span for span in quiet(trace, steps, activities) if not _overlaps(span, [*known, *silent])]
    if words := quiet_in_words(steps, left):
        yield Doubt(words, _NO_ROWS)


def _matters(steps: Steps, span: Span) -> bool:
    """Whether a period without activity is within a step, or between steps and longer than any pause between requests
    would be."""
    start, end = steps.table["start"].to_numpy(), steps.table["end"].to_numpy()
    between = start.min() < span[1] and span[0] < end.max()
    return len(_touched(steps, [span])) > 0 or bool(between and span[1] - span[0] > _TIMES_ALL * (end - start).sum())


def _overlaps(span: Span, others: list[Span]) -> bool:
    return any(start < span[1] and span[0] < end for start, end in others)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


@dataclass(frozen=True)
class _JumpBack:
    """Where a thread's clock went back: by how much (ns), between which two times, and the period in which calls from
    before and after it are interleaved, or only appear to follow each other."""

    by: int
    ends: Span
    mixed: Span


def _jumps_back(number: Ints, start: Ints, end: Ints) -> Iterator[_JumpBack]:
    """The jumps back of one thread: a call with a later number begins earlier than its predecessor."""
    known = np.flatnonzero(number != MISSING)
    order = known[np.argsort(number[known], kind="stable")]
    start, end = start[order], end[order]
    for at in (np.flatnonzero(start[1:] < start[:-1] - TOLERANCE_NS) + 1).tolist():
        begin = max(int(start[:at].min()), int(start[at:].min()))
        finish = min(int(end[:at].max()), int(end[at:].max()))
        last, first = int(start[at - 1]), int(start[at])
        yield _JumpBack(last - first, (last, first), (min(begin, finish), max(begin, finish)))


def _touched(steps: Steps, spans: list[Span]) -> Ints:
    start, end = steps.table["start"].to_numpy(), steps.table["end"].to_numpy()
    touched = np.zeros(len(steps), bool)
    for begin, finish in spans:
        touched |= (start <= finish) & (end > begin)
    return np.flatnonzero(touched)


# --- 3. lost records ---


def _lost(trace: Trace, steps: Steps, activities: pd.DataFrame, call: Ints, calls: pd.DataFrame) -> Iterator[Doubt]:
    """Steps with launches without work, or work without a launch.

    If most steps are affected, that is how the recorder works and not a loss: it is reported, and no step is left out;
    if the work itself is missing, and not only its number, there is no idle time.
    """
    if not len(activities) or not len(calls):
        return
    launching = among(calls["letter"].to_numpy(dtype="U1"), [GRAPH_LAUNCH] if trace.has_runs else LAUNCHES)
    recorded = np.isin(calls["process"].to_numpy(), activities["process"].to_numpy())
    launches = taken(calls, launching & recorded, ["start", "process", "thread", "correlation"])
    idle = launches[match_rows(activities, launches) < 0]
    alone = np.flatnonzero(call < 0)
    lane, _ = groups_of(activities, LANE)  # what comes before the first known launch was launched before the recording
    first = pd.Series(np.flatnonzero(call >= 0)).groupby(lane[call >= 0]).min().reindex(lane[alone]).to_numpy()
    orphans = activities.iloc[alone[alone > first]]
    at = steps.of(*(idle[column].to_numpy() for column in ("start", "process", "thread")))
    yield from _loss(steps, at, "launches without recorded work", hides=len(orphans) < (at >= 0).sum())
    at = steps.of(orphans["start"].to_numpy(), orphans["process"].to_numpy(), _only_thread(steps, len(orphans)))
    yield from _loss(steps, at, "work without a recorded launch")


def _loss(steps: Steps, at: Ints, what: str, *, hides: bool = False) -> Iterator[Doubt]:
    spoilt, count = np.unique(at[at >= 0]), int((at >= 0).sum())
    if not count:
        return
    if 2 * len(spoilt) < len(steps):
        yield Doubt(f"records are missing: {what} ({count})", spoilt)
    else:
        yield Doubt(
            f"records are missing: {what} ({count}, in {len(spoilt)} of {len(steps)} steps)",
            _NO_ROWS,
            lossy=True,
            hides=hides,
        )


def _may_be_others(trace: Trace, steps: Steps, calls: pd.DataFrame) -> bool:
    """Whether many steps found without marks have a copy, or a graph, without its record while others have theirs. A
    pass seems part of the one before it if the record of its result or of its graph is missing; in what rhythm they are
    missing does not matter."""
    if steps.source != "calls":
        return False
    at = steps.of(*(calls[column].to_numpy() for column in ("start", "process", "thread")))
    letters, recorded = calls["letter"].to_numpy(dtype="U1"), match_rows(trace.activities().frame(), calls) >= 0
    spoilt = np.zeros(len(steps), bool)
    for alike in (COPIES, [GRAPH_LAUNCH]):
        chosen = among(letters, alike) & (at >= 0)
        if recorded[chosen].any():
            spoilt[at[chosen & ~recorded]] = True
    return float(spoilt.mean()) > 1 - CONSTANT


def _only_thread(steps: Steps, count: int) -> Ints:
    return np.full(count, steps.table["thread"].iloc[0])
