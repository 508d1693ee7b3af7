"""Finds the host syncs that data flow needs; the others can be removed without a race.

A sync is needed if the host reads the result of a copy after it (a split of the host begins after all copies to it, and
so needs the last sync), if it alone orders the work of two streams, or if it is the last one to tell the host that it
may overwrite the source of an asynchronous copy. Recordings contain no addresses, so every order between streams is
taken to be intended.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from tracer.analysis.calls import between_devices
from tracer.analysis.causes import names_host_compute
from tracer.analysis.path.paths import Causality, calls_at
from tracer.analysis.path.segments import OuterCalls
from tracer.analysis.tokens import Steps
from tracer.model.calls import COPY, LAUNCHES, SYNC
from tracer.model.columns import (
    NEVER,
    Columns,
    Names,
    Texts,
    among,
    first_at,
    joined,
    last_before,
    lasts,
    pairs,
    positions,
    within,
)
from tracer.model.intervals import Bools, Ints
from tracer.model.schema import MISSING
from tracer.model.tables import MEMCPYS

READS: Final = "the host reads the result of the copy before it"
ORDERS: Final = "it alone orders streams {} and {}"
REUSES: Final = "after it the host may overwrite the source of an asynchronous copy"


class StepSyncs(Columns):
    """The syncs inside the steps, in chronological order.

    Attributes:
        call: their positions.
        at: their positions in `steps`.
        position: 1, 2, ... among the syncs of a step.
        name: of the calls.
        reason: why data flow needs it; "" if it does not.
    """

    call: Ints
    at: Ints
    position: Ints
    name: Names
    reason: Texts

    @property
    def is_needed(self) -> Bools:
        """Which of them data flow needs."""
        return np.asarray(self.reason != "", dtype=bool)

    def mark(self, calls: Ints, reason: str) -> None:
        """Give a reason to those of these calls that have none."""
        self.reason[np.isin(self.call, calls) & ~self.is_needed] = reason


class AwaitedLanes(Columns):
    """The streams that syncs wait for: the position and the start of the call (ns), the lane, and the time before which
    the work was issued that it waits for (ns), in the order of these times."""

    call: Ints
    start: Ints
    lane: Ints
    until: Ints


class IssuedWork(Columns):
    """The work that calls issue to streams, by the start of the call.

    Attributes:
        call: its position.
        lane: of the work.
        brings: whether it copies to the host.
        sends: whether it copies to the device and its call returns before it has read its source.
        start: of the call, ns.
    """

    call: Ints
    lane: Ints
    brings: Bools
    sends: Bools
    start: Ints


def needed_syncs(causality: Causality, steps: Steps) -> StepSyncs:
    """All syncs inside the steps, and which of them data flow needs; must not be modified."""
    return causality.once(_needed_syncs, steps)


def _needed_syncs(causality: Causality, steps: Steps) -> StepSyncs:
    syncs = _syncs_inside(causality, steps)
    lanes, work = _lanes_of(causality, syncs), _work(causality)
    syncs.mark(_last_of_splits(causality, _readers(lanes, work)), READS)
    _mark_orders(causality, syncs, lanes, work)
    at = causality.once(calls_at, steps)[work.call]
    _mark_reuse(syncs, lanes, work, np.where(work.sends, at, MISSING), steps.rows.end)
    return syncs


def reading_syncs(causality: Causality, steps: Steps) -> tuple[Ints, Ints]:
    """The positions of the syncs after copies to the host: all of them, and those that `needed_syncs` finds to be
    needed because the host reads (`READS`).
    """
    return causality.once(_reading_syncs, steps)


def _reading_syncs(causality: Causality, steps: Steps) -> tuple[Ints, Ints]:
    readers = _readers(_lanes_of(causality, _syncs_inside(causality, steps)), _work(causality))
    return readers, _last_of_splits(causality, readers)


def _last_of_splits(causality: Causality, readers: Ints) -> Ints:
    """The last of these calls in each split of the host, which computes after all its inputs have arrived; calls
    outside of splits are kept.
    """
    nvtx = causality.trace.nvtx
    splits = nvtx[nvtx.text.chosen(names_host_compute)]
    if not len(splits) or not len(readers):
        return readers
    calls = causality.segments.calls
    call = np.unique(readers)
    call = call[np.argsort(calls.start[call], kind="stable")]
    threads = [calls.process[call], calls.thread[call]]
    split = last_before(threads, calls.start[call], [splits.process, splits.thread], splits.start)
    inside = (split >= 0) & (splits.end[split] > calls.start[call])
    call, split = call[inside], split[inside]
    last = lasts(split, len(splits), call)
    return readers[~np.isin(readers, call[last[split] != call])]


def bringing_copies(causality: Causality) -> Ints:
    """The positions of the calls that copy to the host."""
    work = _work(causality)
    return work.call[work.brings]


def sending_copies(causality: Causality) -> Ints:
    """The positions of the calls that copy to the device and return before the copy has read its source."""
    work = _work(causality)
    return work.call[work.sends]


def _syncs_inside(causality: Causality, steps: Steps) -> StepSyncs:
    """The syncs inside the steps, without reasons."""
    calls, of_step = causality.segments.calls, causality.once(calls_at, steps)
    call = np.flatnonzero((of_step >= 0) & (calls.letter == SYNC))
    call = call[np.argsort(calls.start[call], kind="stable")]
    at = of_step[call]
    return StepSyncs(call, at, within(at) + 1, calls.name[call], np.full(len(call), "", dtype=object))


def _lanes_of(causality: Causality, syncs: StepSyncs) -> AwaitedLanes:
    """The streams that each of the syncs waits for. Syncs about which the trace has no information are taken to wait
    for all streams of their process.
    """
    calls, asked, lanes = causality.segments.calls, causality.segments.asked, causality.segments.lanes
    sync, told = pairs([syncs.call], [asked.call])
    is_untold = np.ones(len(syncs), bool)
    is_untold[sync] = False
    untold = syncs.call[is_untold]
    other, lane = pairs([calls.process[untold]], [lanes.process])
    call = np.append(syncs.call[sync], untold[other])
    until = np.append(asked.until[told], calls.start[untold[other]])
    awaited = AwaitedLanes(call, calls.start[call], np.append(asked.lane[told], lane), until)
    return awaited[np.lexsort((awaited.start, awaited.until))]


def _work(causality: Causality) -> IssuedWork:
    """The work of all calls.

    If the recording has no device copies, a copy is on the stream of the nearest launch, and one after a launch copies
    its result to the host.
    """
    work, calls, memcpys = causality.segments.activities, causality.segments.calls, causality.trace.memcpys
    first = np.flatnonzero(work.is_first)
    issued, call = work[first], work.call[first]
    is_copy = issued.table == MEMCPYS
    pageable = np.zeros(len(issued), bool)
    pageable[is_copy] = memcpys.src_kind.rows("pageable")[issued.row[is_copy]]
    brings = issued.name.rows("memcpy DtoH") & ~between_devices(causality.trace, calls)[call]
    sends = issued.name.rows("memcpy HtoD") & ~pageable
    every = IssuedWork(call, issued.lane, brings, sends, calls.start[call])
    if not len(memcpys):
        hidden = calls.letter == COPY
        hidden[call] = False
        every = joined([every, _hidden(calls, np.flatnonzero(hidden), every)])
    return every[np.argsort(every.start, kind="stable")]


def _hidden(calls: OuterCalls, hidden: Ints, work: IssuedWork) -> IssuedWork:
    """The copies of these calls, which the recording does not show."""
    letters, row = calls.letter, np.arange(len(calls))
    begins = np.append(True, ~calls.is_followed)[: len(calls)]
    first = np.maximum.accumulate(np.where(begins, row, 0))  # of the thread
    ends = np.append(np.flatnonzero(begins)[1:], len(calls)) - 1
    last = np.repeat(ends, np.diff(ends, prepend=-1))
    before = np.maximum.accumulate(np.where(among(letters, [SYNC, *LAUNCHES]), row, MISSING))
    behind_launch = (before >= first) & among(letters[before], LAUNCHES)
    lanes = np.full(len(calls), MISSING)
    launches = work[among(letters[work.call], LAUNCHES)]
    lanes[launches.call] = launches.lane
    back = np.maximum.accumulate(np.where(lanes >= 0, row, MISSING))
    ahead = np.minimum.accumulate(np.where(lanes >= 0, row, len(calls))[::-1])[::-1]
    of_back = np.where(back >= first, lanes[back], MISSING)
    of_ahead = np.where(ahead <= last, np.append(lanes, MISSING)[ahead], MISSING)
    lane = np.where(behind_launch | (of_ahead < 0), of_back, of_ahead)
    placed = hidden[lane[hidden] >= 0]
    return IssuedWork(placed, lane[placed], behind_launch[placed], ~behind_launch[placed], calls.start[placed])


def _readers(lanes: AwaitedLanes, work: IssuedWork) -> Ints:
    """For each copy to the host, the first later sync that waits for its stream."""
    brings = work[work.brings]
    first = first_at([brings.lane], brings.start, [lanes.lane], lanes.until)
    return lanes.call[first[first >= 0]]


def _mark_orders(causality: Causality, syncs: StepSyncs, lanes: AwaitedLanes, work: IssuedWork) -> None:
    """For each stream, the syncs after which another stream gets work before the next sync, if they tell the host more
    than the last remaining sync before them about the stream's own work.
    """
    activities, ordered, streams = (
        causality.segments.activities,
        causality.segments.ordered,
        causality.segments.lanes,
    )
    by_events = set(zip(activities.lane[ordered.before].tolist(), activities.lane[ordered.after].tolist(), strict=True))
    needed = syncs.call[syncs.is_needed]
    rows = {int(lane): work[work.lane == lane] for lane in np.unique(work.lane)}
    for lane, own in rows.items():
        mine = lanes[lanes.lane == lane]
        until_next = np.append(mine.start[1:], NEVER)
        other = np.full(len(mine), MISSING)
        for another, given in rows.items():
            if streams.process[another] != streams.process[lane] or (lane, another) in by_events:
                continue
            behind = np.append(given.start[~np.isin(given.call, own.call)], NEVER)
            other[behind[np.searchsorted(behind, mine.start)] < until_next] = another
        covered = np.searchsorted(own.start, mine.until)
        stays = np.isin(mine.call, needed) | (other >= 0)
        before = np.append(0, np.maximum.accumulate(np.where(stays, covered, 0)))[:-1]
        alone = (other >= 0) & (covered > before)
        for another in np.unique(other[alone]).tolist():
            reason = ORDERS.format(streams.stream[lane], streams.stream[another])
            syncs.mark(mine.call[alone & (other == another)], reason)


def _mark_reuse(syncs: StepSyncs, lanes: AwaitedLanes, work: IssuedWork, at: Ints, ends: Ints) -> None:
    """The last sync of a copy's stream in its step, if there is no needed sync between the copy and the end of the
    step.

    Args:
        syncs, lanes: the syncs, and the streams for which they wait.
        at: the position of the step of each copy to the device, MISSING for others.
        ends: of the steps, ns.
    """
    sends, at = work[at >= 0], at[at >= 0]
    needed = lanes[np.isin(lanes.call, syncs.call[syncs.is_needed])]
    told = first_at([sends.lane], sends.start, [needed.lane], needed.until)
    unguarded = ~((told >= 0) & (np.append(needed.start, NEVER)[told] < ends[at]))
    of_sync = lasts(syncs.call, int(syncs.call.max(initial=-1)) + 1, syncs.at)
    last = positions([at[unguarded], sends.lane[unguarded]], [of_sync[lanes.call], lanes.lane])
    syncs.mark(lanes.call[last[last >= 0]], REUSES)
