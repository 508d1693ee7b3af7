"""Which steps are unusable because of the recording's clocks or lost records, and why.

Stages:
1. device against host: the device's clock is behind the host's, or ahead of it (`offsets`), if several neighbours say
   so; a record alone that begins before its launch has a wrong time; neither of a light recording, whose clocks were
   aligned by the same bounds: a wait that seems to contradict them is one for other work;
2. the host's clock: calls of a thread are numbered in order, so a later number at an earlier time is a jump back; a
   long period in which nothing begins, ends or runs is a jump forward or a pause of the program, which a recording
   cannot distinguish unless its recorder says that it paused (`silences`, `quiet`);
3. lost records: launches without recorded work, work in the middle of a stream without a recorded launch, replays with
   fewer kernels than their graph has, and steps that are several because the result between them has no record; if most
   steps are affected, and what steps without marks are told by is among them, it is unknown which steps there are.

Unusable steps are excluded from every figure, as is the wall-clock time they take. Where records are lost, the
confidence in steps without marks is at most `GUESSED`: the records that tell them apart may be among them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

import numpy as np

from tracer.analysis.bounds import HOW_TO_TELL
from tracer.analysis.calls import Calls, host_calls
from tracer.analysis.passes import GUESSED
from tracer.analysis.step_work import activity_steps
from tracer.analysis.steps import Span, Steps
from tracer.analysis.turns import CONSTANT
from tracer.analysis.unseen import how_to_record, unseen
from tracer.analysis.waits import targets
from tracer.engines.engine import PREFILL
from tracer.errors import EmptyTraceError, NoStepsError
from tracer.model.calls import BLOCKING_COPY, CALLBACK, COPIES, GRAPH_LAUNCH, LAUNCHES, SYNC
from tracer.model.columns import NEVER, among, grouped, last_at, medians, numbers, runs, spread
from tracer.model.intervals import Bools, Ints, uncovered
from tracer.model.schema import MISSING
from tracer.model.tables import Activities, Kernels
from tracer.model.trace import LIGHT, Trace, pauses, stated_error
from tracer.notes import sentence

TOLERANCE_NS: Final = 1000
"""Older versions of Kineto write whole microseconds, which rounds both of the compared times."""

NO_BOUND: Final = np.iinfo(np.int64).max // 4

AHEAD_TOLERANCE_NS: Final = 30_000
"""Recorders interpolate the device's clock between a few readings of both clocks, and timestamp the end of work later
than the wait for it returned: up to 18 µs ahead in recordings of MI300, up to 8 µs in those of NVIDIA GPUs. This is
reported and makes no step unusable. In no recording does work start before its launch."""

LEAST_JUMP_NS: Final = 100_000_000
"""Larger offsets are corrected by setting the clock (ntpd from 128 ms, systemd-timesyncd from 400 ms), smaller ones by
slewing it."""
_LEAST_JUMP_STEPS: Final = 20
_EARLY: Final = 2.0  # times the work of a step: in flight when a recording begins
_LATE_NS: Final = 2 * AHEAD_TOLERANCE_NS
"""Work that an idle device begins later than this after its launch is late."""
_SEVERAL: Final = 4  # waits or launches, so that a clock is said to differ
_TO_HOST: Final = "memcpy DtoH"
_USUAL: Final = 8  # activities with one name, so that their median is a usable duration
_LONG: Final = 2.0  # times a usual step: what its host does in every step takes less, however it varies
_MATTERS: Final = 0.05  # of the time of the steps: less changes no mean that anyone would act on
_TIMES_ALL: Final = 10  # times all steps together
_SAME: Final = 0.05
"""Numbers of launches that differ by this share are the same: one of many may be lost."""
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
        loses: whether records are missing after the start.
    """

    why: str
    steps: Ints
    spans: tuple[Span, ...] = ()
    process: int | None = None
    lossy: bool = False
    hides: bool = False
    loses: bool = False

    def line(self, of: int) -> str:
        """The doubt in one line, with the number of steps that are left out."""
        return self.why + (f"; left out: {len(self.steps)} of {of} steps" if len(self.steps) else "")


def without_doubtful(trace: Trace, steps: Steps, calls: Calls | None = None, *, is_told: bool = False) -> Steps:
    """The steps without the unusable ones; its notes say which are missing, and why.

    Args:
        is_told: whether someone said what begins a step.

    Raises:
        NoStepsError: all are unusable.
        EmptyTraceError: all are, and records of most are missing; or others than the engine's.
    """
    calls = host_calls(trace) if calls is None else calls
    all_doubts = doubts(trace, steps, calls)
    if not all_doubts:
        return steps
    spoilt = np.unique(np.concatenate([doubt.steps for doubt in all_doubts])).astype(np.int64)
    lines = [doubt.line(len(steps)) for doubt in all_doubts]
    if len(spoilt) == len(steps):
        known = not any(doubt.lossy for doubt in all_doubts)  # what the device did, if not when the host did
        raise (NoStepsError if known else EmptyTraceError)(f"no step is usable: {'; '.join(map(sentence, lines))}")
    losses = [doubt.why for doubt in all_doubts if doubt.lossy]
    if losses and not is_told and _may_be_others(trace, steps, calls):
        raise EmptyTraceError(
            f"the steps are unknown: {'; '.join(losses)}; copies or graphs, which show where a step ends, are among "
            f"them, so that some of the {len(steps)} that seem to be steps may be several; {HOW_TO_TELL}"
        )
    hidden = "; ".join(doubt.why for doubt in all_doubts if doubt.hides)
    spans = [(*span, doubt.process) for doubt in all_doubts for span in doubt.spans]
    unsure = steps.source == "calls" and any(doubt.loses for doubt in all_doubts)
    confidence = min(steps.confidence, GUESSED) if unsure else steps.confidence
    return replace(steps.without(spoilt, spans, lines), hidden=hidden, confidence=confidence)


def doubts(trace: Trace, steps: Steps, calls: Calls | None = None) -> list[Doubt]:
    """The doubts about the steps of a trace; empty if there are none. `calls`: its `host_calls`, if available."""
    activities = trace.activities()
    calls = host_calls(trace) if calls is None else calls
    call = trace.api.of(activities)
    return [
        *_contradicting(trace, steps),
        *_inexact(trace, activities, call),
        *_paused(trace, steps),
        *(list(_apart(trace, steps, activities, call, calls)) or _late(trace, steps, activities, call)),
        *_jumps(trace, steps, activities),
        *_lost(trace, steps, activities, call, calls),
        *(
            Doubt(
                f"process {process} is not counted: its {count} launches have no work on a device in the recording; "
                "it may be a rank whose own recording has it",
                _NO_ROWS,
            )
            for process, count in unseen(trace, calls).items()
        ),
    ]


def _paused(trace: Trace, steps: Steps) -> Iterator[Doubt]:
    """Steps that a pause of the recorder, or an exec, cuts; no gap is across either."""
    told = pauses(trace)
    if not told:
        return
    processes = steps.rows.process
    distinct = np.unique(processes).tolist()
    for process, is_exec in product(distinct, (False, True)):
        own = steps.rows[processes == process]
        inside = [
            (each.since, each.until) for each in told
            if each.process in (None, process) and each.is_exec == is_exec
            and own.start.min() < each.until and each.since < own.end.max()
        ]  # fmt: skip
        if inside:
            cut = _touched(steps, [(since, until - 1) for since, until in inside])
            where = f" in process {process}" if len(distinct) > 1 else ""
            what = "the program replaced itself (exec)" if is_exec else "the recorder paused"
            why = f"{what} {_times(len(inside))}{where}"
            yield Doubt(why, cut[processes[cut] == process], tuple(inside), process)


def _contradicting(trace: Trace, steps: Steps) -> Iterator[Doubt]:
    """Steps with records that contradict the order of their stream, of which a note of the trace tells."""
    if trace.contradictions is None or not len(rows := trace.contradictions.rows):
        return
    at = np.unique(activity_steps(trace, steps, rows))
    if len(at := at[at >= 0]):
        yield Doubt("records of the device contradict the order of their stream", at)


# --- 1. device against host ---


def _inexact(trace: Trace, activities: Activities, call: Ints) -> Iterator[Doubt]:
    """A recorder that knows device times less exactly than clocks may differ: as it says, or as work shows that begins
    before its launch."""
    error = stated_error(trace)
    known = np.flatnonzero(call >= 0)
    if _is_light(trace) and len(known):
        error = max(error, int((trace.api.start[call[known]] - activities.start[known]).max()))
    if error > AHEAD_TOLERANCE_NS:
        why = f"device times are known to within {error / 1e3:,.0f} µs of the host's: parts of gaps and waits have that"
        yield Doubt(f"{why} error, idle times and gaps do not", _NO_ROWS)


def _apart(trace: Trace, steps: Steps, activities: Activities, call: Ints, calls: Calls) -> Iterator[Doubt]:
    """Steps that launched work whose clock differs from the host's."""
    if _is_light(trace):
        return
    every_low, every_high = offsets(trace, activities, call, calls)
    error = stated_error(trace)
    places, count = numbers(activities.process, activities.device)
    for place in range(count):
        rows = np.flatnonzero((places == place) & (every_high < NO_BOUND))
        if not len(rows) or agrees(every_low[rows] - error, every_high[rows] + error):
            continue
        device = int(activities.device[rows[0]])
        order = rows[np.argsort(trace.api.start[call[rows]], kind="stable")]
        low, high = every_low[order] - error, every_high[order] + error
        ways = [
            of_one_offset(low, high),
            [(len(low) - b, len(low) - a) for a, b in of_one_offset(low[::-1], high[::-1])],
        ]
        spoilt, apart = np.zeros(len(order), bool), np.zeros(len(order), bool)
        ways = [[(a, b) for a, b in way if is_told(low[a:b], high[a:b])] for way in ways]
        for a, b in (run for way in ways for run in way):
            apart[a:b] = True
        alone = order[is_early(high) & ~apart]
        if len(alone):
            of_steps = np.unique(activity_steps(trace, steps, activities[alone], call[alone]))
            what = f"{len(alone)} record{'s' * (len(alone) > 1)} of device {device}"
            yield Doubt(f"{what} begin{'s' * (len(alone) == 1)} before the launch", of_steps[of_steps >= 0])
        if not any(ways):
            continue
        for a, b in (run for way in ways for run in way):
            spoilt[a:b] |= not agrees(low[a:b], high[a:b], AHEAD_TOLERANCE_NS)
        offsets_in_words = [in_words(low[a:b], high[a:b]) for a, b in ways[0] or ways[1]]
        offsets_in_words.sort(key=lambda words: "behind" not in words)
        more = f", and {len(offsets_in_words) - 2} other offsets" if len(offsets_in_words) > 2 else ""
        chosen = order[spoilt]
        of_steps = np.unique(activity_steps(trace, steps, activities[chosen], call[chosen]))
        why = f"the clock of device {device} differs from the host's: {', '.join(offsets_in_words[:2])}{more}"
        if spoilt.any():
            yield Doubt(why, of_steps[of_steps >= 0])
        else:
            yield Doubt(f"{why}; parts of gaps and waits have at least that error", _NO_ROWS)


def _late(trace: Trace, steps: Steps, activities: Activities, call: Ints) -> Iterator[Doubt]:
    """Where a device begins all work late from some launch on, and idles before it: its clock may have jumped. No wait
    proves it, where a recorder does not tell what waits are for.

    Example: 40 steps begin 4 µs after their launch, and the ten behind them 600 µs after it, on an idle device.
    """
    if _is_light(trace):
        return
    places, count = numbers(activities.process, activities.device)
    for place in range(count):
        rows = np.flatnonzero((places == place) & (call >= 0))
        _, at = np.unique(call[rows], return_index=True)  # the first of each launch
        rows = rows[np.sort(at)]
        began = trace.api.start[call[rows]]
        order = np.argsort(began, kind="stable")
        late = (activities.start[rows] - began)[order]
        last = np.flatnonzero(late <= AHEAD_TOLERANCE_NS).max(initial=-1)
        behind, late = rows[order][last + 1 :], late[last + 1 :]
        if len(behind) < 2 or late.min() < _LATE_NS:
            continue
        of_device = np.flatnonzero(activities.device == activities.device[rows[0]])
        free = np.append(0, np.maximum.accumulate(activities.end[of_device]))[np.searchsorted(of_device, behind)]
        idle = activities.start[behind] - free
        if (idle >= 10 * TOLERANCE_NS).sum() >= 2:
            of = f"the last work of device {activities.device[rows[0]]}"
            why = f"{of} all begins {late.min() / 1e3:,.0f} µs or more after its launch"
            yield Doubt(f"{why}, though it idles: its clock may have jumped", _NO_ROWS)


def _is_light(trace: Trace) -> bool:
    return trace.metadata.get("source") == LIGHT


# --- 2. the host's clock ---


def _jumps(trace: Trace, steps: Steps, activities: Activities) -> Iterator[Doubt]:
    api = trace.api
    api = api[
        ~api.name.chosen(lambda name: name.endswith(CALLBACK))
    ]  # they are numbered as the calls that put them there
    back = [
        turn for _, rows in grouped(api.process, api.thread)
        for turn in _jumps_back(api.correlation[rows], api.start[rows], api.end[rows])
    ]  # fmt: skip
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
    start, end = steps.rows.start, steps.rows.end
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
    start, end = steps.rows.start, steps.rows.end
    touched = np.zeros(len(steps), bool)
    for begin, finish in spans:
        touched |= (start <= finish) & (end > begin)
    return np.flatnonzero(touched)


# --- 3. lost records ---


def _lost(trace: Trace, steps: Steps, activities: Activities, call: Ints, calls: Calls) -> Iterator[Doubt]:
    """Steps with launches without work, work without a launch, incomplete replays, or the work of several steps.

    If most steps are affected, that is how the recorder works and not a loss: it is reported, and no step is left out;
    if the work itself is missing, and not only its number, there is no idle time.
    """
    if not len(activities) or not len(calls):
        return
    launching = among(calls.letter, [GRAPH_LAUNCH] if trace.has_runs else LAUNCHES)
    launches = calls[launching & np.isin(calls.process, activities.process)]
    found = activities.of(launches) >= 0
    if trace.contradictions is not None:
        found |= trace.contradictions.rows.of(launches) >= 0
    idle = launches[~found]
    at = steps.of(idle.start, idle.process, idle.thread)
    orphans = activities[_orphans(activities, call)]
    how = how_to_record(trace, idle[at >= 0])
    yield from _loss(steps, at, "launches without recorded work", how=how, hides=len(orphans) < (at >= 0).sum())
    threads = np.full(len(orphans), steps.rows.thread[0])
    at = steps.of(orphans.start, orphans.process, threads)
    yield from _loss(steps, at, "work without a recorded launch")
    begin, end = np.append(steps.rows.start, steps.others.start).min(), steps.rows.end.max()
    outside = (at < 0) & (orphans.start >= begin) & (orphans.start < end)
    outside &= np.isin(orphans.process, steps.rows.process)
    if outside.any():
        why = f"records are missing: work without a recorded launch outside these steps ({outside.sum()})"
        yield Doubt(f"{why}; some steps may be missing", _NO_ROWS, loses=True)
    replays = calls[_incomplete(trace.kernels, calls)]
    at = steps.of(replays.start, replays.process, replays.thread)
    yield from _loss(steps, at, "replays with fewer kernels than their graph has")
    copies = activities.of(calls[among(calls.letter, COPIES)]) >= 0
    if len(idle) or len(orphans) or len(replays) or len(copies) * CONSTANT <= copies.sum() < len(copies):
        yield from _joined(steps, calls)
    yield from _before_calls(steps, activities, call)


def _incomplete(kernels: Kernels, calls: Calls) -> Ints:
    """The positions of graph launches with fewer kernels than the replays of their graph before and after them. If that
    is so for more than a few of its replays, the graph itself varies.

    Example: replays of one graph with 5 5 5 4 5 5 5 5 5 5 kernels: the fourth is incomplete; with 5 5 4 4 4 none is.
    """
    call = calls.of(kernels)
    rows = np.flatnonzero((call >= 0) & (kernels.graph >= 0))
    rows = rows[calls.letter[call[rows]] == GRAPH_LAUNCH]
    replay, first, count = np.unique(call[rows], return_index=True, return_counts=True)
    graph, found = kernels.graph[rows[first]], [_NO_ROWS]
    for _, mine in grouped(graph, calls.process[replay], calls.thread[replay]):
        mine = mine[np.argsort(calls.start[replay[mine]], kind="stable")]
        size = np.pad(count[mine], 2, mode="edge")
        around = [np.maximum(size[:-4], size[1:-3]), np.maximum(size[3:-1], size[4:])]
        fewer = count[mine] < np.minimum(*around)
        if fewer.mean() <= 1 - CONSTANT:
            found.append(replay[mine[fewer]])
    return np.sort(np.concatenate(found))


def _joined(steps: Steps, calls: Calls) -> Iterator[Doubt]:
    """Steps found without marks that launch as much as two or more of the usual ones: of a recording that lacks
    records, the result in between may be among them."""
    launches = calls[among(calls.letter, LAUNCHES)]
    at = steps.of(launches.start, launches.process, launches.thread)
    number = np.bincount(at[(at >= 0) & (launches.letter == GRAPH_LAUNCH)], minlength=len(steps))
    if not np.median(number):
        number = np.bincount(at[at >= 0], minlength=len(steps))
    usual, prompts = float(np.median(number)), steps.rows.phase.rows(PREFILL)
    several = (number >= (2 - _SAME) * usual) & ~prompts
    alike = np.abs(number - usual) <= _SAME * usual
    others = ~several & ~prompts
    if steps.source == "calls" and several.any() and alike[others].sum() >= CONSTANT * others.sum() > 0:
        why = f"records are missing: {several.sum()} of the steps launch what several do, without a result in between"
        yield Doubt(why, np.flatnonzero(several), loses=True)


def _before_calls(steps: Steps, activities: Activities, call: Ints) -> Iterator[Doubt]:
    """Work of several steps before the first known launch of its stream: more than a host launches ahead."""
    lane, known, first = _first_known(activities, call)
    early = np.flatnonzero(call < 0)
    early = early[(early < first[lane[early]]) & (first[lane[early]] < NEVER)]
    share = len(known) / len(steps)
    if len(early) <= _EARLY * share:
        return
    ms = (activities.end[early].max() - activities.start[early].min()) / 1e6
    yield Doubt(
        f"records are missing at the start: {len(early):,} kernels or copies over {ms:,.1f} ms have no known launch; "
        f"their iterations, about {len(early) / share:,.0f}, are not counted",
        _NO_ROWS,
    )


def _first_known(activities: Activities, call: Ints) -> tuple[Ints, Ints, Ints]:
    """The number of the stream of each activity, the activities with a call, and the first such one of each stream;
    `NEVER` without one."""
    lane, lanes = numbers(activities.process, activities.device, activities.context, activities.stream)
    known, first = np.flatnonzero(call >= 0), np.full(lanes, NEVER)
    np.minimum.at(first, lane[known], known)
    return lane, known, first


def _orphans(activities: Activities, call: Ints) -> Ints:
    """Work without a call, behind work with one in its stream; what comes before the first known launch was launched
    before the recording."""
    alone = np.flatnonzero(call < 0)
    if not len(alone):
        return alone
    lane, _, first = _first_known(activities, call)
    return alone[alone > first[lane[alone]]]


def _loss(steps: Steps, at: Ints, what: str, *, how: str = "", hides: bool = False) -> Iterator[Doubt]:
    """`how` to record what is missing of most steps."""
    spoilt, count = np.unique(at[at >= 0]), int((at >= 0).sum())
    if not count:
        return
    if 2 * len(spoilt) < len(steps):
        is_start = _are_first(steps, spoilt)
        yield Doubt(
            f"records are missing{' at the start' if is_start else ''}: {what} ({count})", spoilt, loses=not is_start
        )
    else:
        yield Doubt(
            f"records are missing: {what} ({count}, in {len(spoilt)} of {len(steps)} steps{how and f'; {how}'})",
            _NO_ROWS,
            lossy=True,
            hides=hides,
            loses=True,
        )


def _are_first(steps: Steps, spoilt: Ints) -> bool:
    """Whether these are several steps, and the first ones of their hosts."""
    mine = np.zeros(len(steps), bool)
    mine[spoilt] = True
    hosts = [mine[rows] for _, rows in grouped(steps.rows.process, steps.rows.thread)]
    return len(spoilt) > 1 and all((np.diff(each.astype(np.int64)) <= 0).all() for each in hosts)


def _may_be_others(trace: Trace, steps: Steps, calls: Calls) -> bool:
    """Whether many steps found without marks have a copy, or a graph, without its record while others have theirs. A
    pass seems part of the one before it if the record of its result or of its graph is missing; in what rhythm they are
    missing does not matter."""
    if steps.source != "calls":
        return False
    at, recorded = steps.of(calls.start, calls.process, calls.thread), trace.activities().of(calls) >= 0
    spoilt = np.zeros(len(steps), bool)
    for alike in (COPIES, [GRAPH_LAUNCH]):
        chosen = among(calls.letter, alike) & (at >= 0)
        if recorded[chosen].any():
            spoilt[at[chosen & ~recorded]] = True
    return float(spoilt.mean()) > 1 - CONSTANT


# --- how far a device's clock can be ahead of the host's ---
#
# Work cannot start before the call that launched it begins, and a wait for it, or a copy of it to the host, cannot
# return before it ends. So each activity gives a lower and an upper bound. Sequences of activities that are consistent
# with one offset are runs; if that offset is not 0, the clocks differ.


def offsets(trace: Trace, activities: Activities, call: Ints, calls: Calls) -> tuple[Ints, Ints]:
    """How far the device's clock can be ahead of the host's, according to each activity.

    Args:
        call: the positions in `trace.api` of the calls that launched them, or -1.

    Returns:
        The lower and the upper bound from each activity, ns; `-NO_BOUND` and `NO_BOUND` if there is none.
    """
    api = trace.api
    high = np.where(call >= 0, activities.start - spread(api.start, call, 0), NO_BOUND)
    low = np.full(len(activities), -NO_BOUND)
    waits = calls[among(calls.letter, (SYNC, BLOCKING_COPY))]
    failed = api.return_value > 0
    if failed.any():
        waits = waits[api[failed].of(waits) < 0]
    awaited = _awaited(trace, waits, activities, call)
    known = awaited >= 0
    np.maximum.at(low, awaited[known], activities.end[awaited[known]] - waits.end[known])
    return low, high


def _awaited(trace: Trace, waits: Calls, activities: Activities, call: Ints) -> Ints:
    """For each wait, the position of the last activity issued to its stream before it; -1 if unknown.

    For a blocking copy to the host it is the copy itself; one to the device may return as soon as its source is staged
    (CUDA's "API synchronization behavior": from pageable memory), and one within the device returns at once. A wait for
    an event whose record is unknown may wait for any earlier work of the stream.
    """
    asked, works = targets(trace, waits), activities
    given = spread(trace.api.end, call, NO_BOUND)  # the call had returned: it was enqueued by then
    last = _last_of_calls(activities, call)
    last = last[np.lexsort((works.end[last], given[last]))]
    wanted = [waits.process, asked.device, asked.context, asked.stream]
    lanes = [each[last] for each in (works.process, works.device, works.context, works.stream)]
    awaited = np.append(last, -1)[last_at(wanted, asked.until, lanes, given[last])]
    of_event = spread(trace.syncs.type.rows("event"), trace.syncs.of(waits), False)
    awaited[~asked.known | (of_event & ~asked.of_event) | (asked.stream == MISSING)] = -1
    copies = waits.letter == BLOCKING_COPY
    if copies.any():
        own = activities.of(waits)[copies]
        awaited[copies] = np.where(activities.name.rows(_TO_HOST)[own], own, -1)
    return awaited


def _last_of_calls(activities: Activities, call: Ints) -> Ints:
    """The positions of the last activity to end among those that each call issued to each stream."""
    known = np.flatnonzero(call >= 0)
    lane, lanes = numbers(activities.process, activities.device, activities.context, activities.stream)
    of, end = call[known] * lanes + lane[known], activities.end[known]
    order = np.argsort(of, kind="stable")  # fast, since most are in order
    known, of, end = known[order], of[order], end[order]
    first = np.flatnonzero(np.append(True, of[1:] != of[:-1]))[: len(of)]
    if not len(first):
        return known
    latest = np.repeat(np.maximum.reduceat(end, first), np.diff(first, append=len(of)))
    return known[np.maximum.reduceat(np.where(end == latest, np.arange(len(of)), 0), first)]


def of_one_offset(low: Ints, high: Ints) -> list[tuple[int, int]]:
    """Consecutive runs of bounds, each as long as possible, in which all bounds are consistent with a single offset."""
    spans, start = [], 0
    while start < len(low):
        size, end = 64, start
        while True:
            part = slice(start, start + size)
            least, most = np.maximum.accumulate(low[part]), np.minimum.accumulate(high[part])
            apart = np.flatnonzero(least > most + TOLERANCE_NS)
            if len(apart) or start + size >= len(low):
                end = start + max(int(apart[0]) if len(apart) else len(least), 1)
                break
            size *= 4
        spans.append((start, end))
        start = end
    return spans


def agrees(low: Ints, high: Ints, ahead: int = TOLERANCE_NS) -> bool:
    """Whether all bounds allow both clocks to agree."""
    return bool(low.max() <= ahead and high.min() >= -TOLERANCE_NS)


def is_told(low: Ints, high: Ints) -> bool:
    """Whether several neighbours agree on it: they began before their launch, or waits for several returned before the
    end of their work while several launches limit by how much. A single wait may be one for other work, a single record
    have a wrong time."""
    early, waits, launches = (int(rows.sum()) for rows in (is_early(high), low > TOLERANCE_NS, high < NO_BOUND // 2))
    return max(early, min(waits, launches)) >= _SEVERAL


def is_early(high: Ints) -> Bools:
    """Which activities began before their launch, which they cannot."""
    early: Bools = high < -TOLERANCE_NS
    return early


def in_words(low: Ints, high: Ints) -> str:
    """The offset of a run in words.

    Example:
        >>> in_words(np.array([-2_010_000]), np.array([-1_996_000])), in_words(np.array([5000]), np.array([NO_BOUND]))
        ('1,996 to 2,010 µs behind', 'at least 5 µs ahead')
    """
    least, most = int(low.max()), int(high.min())
    word, near, far = ("behind", -most, -least) if most < -TOLERANCE_NS else ("ahead", least, most)
    if far >= NO_BOUND:
        return f"at least {near / 1e3:,.0f} µs {word}"
    return f"{min(near, far) / 1e3:,.0f} to {max(near, far) / 1e3:,.0f} µs {word}"


# --- periods in which nothing happens: the clock jumped, the program paused, or its host waited or worked ---


def silences(trace: Trace, steps: Steps, activities: Activities) -> list[Span]:
    """Periods in which nothing begins or ends and no device works, much longer than a step and `LEAST_JUMP_NS`."""
    period = float(np.median(steps.rows.end - steps.rows.start)) if len(steps) else 0.0
    least = max(LEAST_JUMP_NS, round(_LEAST_JUMP_STEPS * period))
    api = trace.api
    starts = np.concatenate([api.start, activities.start])
    starts.sort(kind="stable")  # of two sorted halves
    if not (np.diff(starts) >= least).any():  # which every silence lies between
        return []
    edges = np.concatenate([api.start, api.end, activities.start, activities.end])
    edges.sort()
    at = np.flatnonzero(np.diff(edges) >= least)
    if not len(at):
        return []
    busy = activities[activities.end - activities.start >= least]
    if len(busy):
        names = activities.name
        usual = medians(activities.end - activities.start, names.codes.astype(np.int64), len(names.words))
        often = np.bincount(names.codes, minlength=len(names.words)) >= _USUAL
        usual = np.where(often, usual, least)[busy.name.codes]
        busy = busy[usual >= least / _LEAST_JUMP_STEPS]
    spans = [(int(edges[i]), int(edges[i + 1])) for i in at]
    return [(a, b) for a, b in spans if not ((busy.start <= a) & (busy.end >= b)).any()]


def quiet(trace: Trace, steps: Steps, activities: Activities) -> list[Span]:
    """Periods longer than `_LONG` usual steps, in a chain of steps, in which their process is in no call and nothing
    runs on a device for it. A server that waits for a request looks like this, and slow host code too."""
    periods: list[Span] = []
    calls, rows_ = {key[0]: rows for key, rows in grouped(trace.api.process)}, steps.rows
    for (process, _), mine in grouped(rows_.process, rows_.thread):
        host, of = rows_[mine], calls.get(process, mine[:0])
        start = trace.api.start[of]
        same = host.group[1:] == host.group[:-1]
        least = _LONG * float(np.median(np.diff(host.start)[same])) if same.any() else np.inf
        if not (np.diff(start) > least).any():
            continue
        work = activities.process == process
        starts, ends = np.append(start, activities.start[work]), np.append(trace.api.end[of], activities.end[work])
        order, first = runs(host.group)
        begins, until = np.minimum.reduceat(host.start[order], first), np.maximum.reduceat(host.end[order], first)
        begin, end, _ = uncovered(starts, ends, begins, until)
        long = end - begin > least
        periods += zip(begin[long].tolist(), end[long].tolist(), strict=True)
    return periods


def quiet_in_words(steps: Steps, spans: list[Span]) -> str | None:
    """What those periods may be, if they are a noticeable part of the time of the steps."""
    if not spans:
        return None
    rows_, lasted = steps.rows, [end - begin for begin, end in spans]
    order, first = runs(rows_.process, rows_.thread, rows_.group)
    chains = np.maximum.reduceat(rows_.end[order], first) - np.minimum.reduceat(rows_.start[order], first)
    share = sum(lasted) / max(int(chains.sum()), 1)
    if share < _MATTERS:
        return None
    times = "once" if len(spans) == 1 else f"{len(spans)} times"
    return (
        f"no call and nothing on the device for up to {max(lasted) / 1e6:,.1f} ms, {times}, {share:.0%} of the time: "
        "the host waited, or its own code took so long; means and rates contain it\n"
        "each is longer than two usual steps; a host waits so for a request, and its own code is not recorded"
    )
