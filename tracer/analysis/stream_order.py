"""Records of the device that contradict the order in which their stream executes, found before any analysis.

A stream begins the work of a thread in the order in which the thread issued it, and ends it in that order. Work that
one call issued, such as the kernels of a graph, has no such order within; before and behind it the order holds. Nothing
is known of the order of several threads, or of work whose call is unknown. The next kernel may begin a little before
the end of the one before it (programmatic dependent launch).

Stages:
1. records without times: an end before the start, or 0, which CUPTI writes for unknown times (`_without_times`);
2. records out of order: issued later, but over before earlier work began; the fewest are left out whose absence makes
   an order (`_out_of_order`). If that would be more than a third where they are, they may as well be the right ones:
   so it is when a clock jumps, which `analysis.clocks` finds;
3. records behind a wait: they begin long after the return of the wait for them (`_behind_their_wait`), unless several
   waits in a row say so, as if the device's clock were ahead, which is for `analysis.clocks`, too;
4. records with one start: three or more that cannot have begun together (`_together`);
5. ends behind the end of later work (`_behind_later`), and ends far behind the start of the next work where work hardly
   ever overlaps (`_behind_next`): these are cut where the next work begins.

Records of a light recording are not examined: each stands for several launches.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

import numpy as np

from tracer.analysis.calls import PlainCalls
from tracer.analysis.waits import targets
from tracer.model.calls import SYNC
from tracer.model.columns import NEVER, Columns, Names, first_at, medians, numbers, runs, spread
from tracer.model.contradictions import Contradicting, Contradictions
from tracer.model.intervals import Bools, Ints, touching, union
from tracer.model.schema import DEVICE_TABLES, MISSING
from tracer.model.tables import MEMCPYS, Activities
from tracer.model.trace import Trace, names_of

if TYPE_CHECKING:
    import pandas as pd

TOLERANCE_NS: Final = 1000
"""Older versions of Kineto write whole microseconds, which rounds both of the compared times."""

OVERLAP_NS: Final = 20_000
"""Longer than any overlap by programmatic dependent launch: up to 4 µs on a B200, up to 12 µs in any recording."""

LATE_NS: Final = 100_000
"""Device clocks are up to 18 µs ahead of the host's in recordings of others."""

_MOST_WAITS: Final = 3  # in a row, with work that begins after them
_FAR_FROM_0: Final = 1_000_000_000  # ns; a recording whose work begins so late has none at 0
_MOST_OUT: Final = 1 / 3  # of the records in a place where some are out of order
_FEW: Final = 3  # records out of order there, of which it is unknown which are
_TOGETHER: Final = 3
_HABIT: Final = 0.02  # of the records of a stream, that overlap with the next one
_PAIR_HABIT: Final = 0.25  # of the pairs of the same two kernels
_LONG: Final = 1.5  # times the median duration of a name
_PAIRS: Final = 4  # of the same two kernels, so that their habit is known


class _Issued(Columns):
    """Records with a place in the order of issue, in that order, stream by stream.

    Attributes:
        row: its position among all records.
        start, end: ns.
        stream: the number of its stream and thread.
        issue: the number of its call, ascending; one for all of a stream without calls.
        name: its code.
    """

    row: Ints
    start: Ints
    end: Ints
    stream: Ints
    issue: Ints
    name: Ints


def in_order(trace: Trace) -> Trace:
    """The trace without the times that contradict the order of their stream, which its `contradictions` and notes tell;
    itself if there are none, or if most do."""
    if trace.contradictions is not None:
        return trace
    work = _all_records(trace)
    if trace.has_runs or not len(work):
        trace.contradictions = _none(work)
        return trace
    call = trace.api.of(work)
    left_out, end, unclear = _contradicting(trace, work, call)
    is_cut = ~left_out & (end < work.end)
    wrong = left_out | is_cut | unclear
    is_most = 2 * int(wrong.sum()) > len(work)
    rows = np.flatnonzero(wrong if is_most else left_out | is_cut)
    found = Contradicting.from_table(work[rows], is_cut=is_cut[rows])
    contradictions = Contradictions(found, len(work), is_most)
    if contradictions.is_most or not len(rows):
        trace.contradictions = contradictions
        return trace
    changed = Trace(
        _without(trace, work, call, left_out, end), dict(trace.metadata), [*trace.notes, contradictions.note],
        dict(trace.carried), trace.name,
    )  # fmt: skip
    changed.contradictions = contradictions
    return changed


def _none(work: Activities) -> Contradictions:
    return Contradictions(Contradicting.from_table(work[:0], is_cut=np.zeros(0, bool)), len(work))


def _all_records(trace: Trace) -> Activities:
    """The rows of all device tables, one table behind the other."""
    parts = {name: trace.table(name) for name in DEVICE_TABLES}
    columns = ("start", "end", "device", "context", "stream", "correlation", "process")
    size = sum(map(len, parts.values()))
    return Activities(
        **{name: np.concatenate([getattr(part, name) for part in parts.values()]) for name in columns},
        name=Names.joined([names_of(name, part) for name, part in parts.items()]),
        bytes=np.zeros(size, np.int64),
        table=np.repeat(np.arange(len(parts)), [len(part) for part in parts.values()]),
        collective=np.zeros(size, bool),
    )


def _without(trace: Trace, work: Activities, call: Ints, left_out: Bools, end: Ints) -> dict[str, pd.DataFrame]:
    """The tables with the new ends, without the rows that are left out. Of copies that are left out the kind tells what
    a step is, so that they remain, without a duration, where their call returned."""
    moved = left_out & (call >= 0) & (work.table == MEMCPYS)
    when = spread(trace.api.end, call, 0)
    start, end = np.where(moved, when, work.start), np.where(moved, when, end)
    tables = dict(trace.tables)
    for number, name in enumerate(DEVICE_TABLES):
        mine = work.table == number
        kept = (~left_out | moved)[mine]
        tables[name] = trace[name].assign(start=start[mine], end=end[mine])[kept].reset_index(drop=True)
    return tables


def _contradicting(trace: Trace, work: Activities, call: Ints) -> tuple[Bools, Ints, Bools]:
    """Which records are left out, the ends of all, ns, and which are out of order but stay, since it is unclear which
    are wrong."""
    left_out, end = _without_times(trace, work, call), work.end.copy()
    issued = _in_order_of_issue(trace, work, call, np.flatnonzero(~left_out & (work.stream != MISSING)))
    out, unclear = _out_of_order(issued)
    stay = np.zeros(len(work), bool)
    stay[issued.row[out & unclear]] = True
    left_out[issued.row[out & ~unclear]] = True
    issued = issued[~out & ~unclear]
    late = _behind_their_wait(trace, work[issued.row], call[issued.row])
    left_out[issued.row[late]] = True
    issued = issued[~late]
    together = _together(issued)
    left_out[issued.row[together]] = True
    issued = issued[~together]
    for cut in (_behind_later, _behind_next):
        until = cut(issued)
        is_gone = until <= issued.start
        is_gone &= until < issued.end
        left_out[issued.row[is_gone]] = True
        issued = issued.changed(end=until)[~is_gone]
        end[issued.row] = issued.end
    return left_out, end, stay


def _without_times(trace: Trace, work: Activities, call: Ints) -> Bools:
    """1. Which records end before they start, or have a time 0 although their recording does not begin there."""
    has_0 = (work.start == 0) | (work.end == 0)
    if not has_0.any():
        return work.end < work.start
    others = work.start[~has_0]
    is_far = bool(len(others)) and int(others.min()) > _FAR_FROM_0
    called = spread(trace.api.start, call, MISSING)
    return (work.end < work.start) | (has_0 & np.where(call >= 0, called > TOLERANCE_NS, is_far))


def _in_order_of_issue(trace: Trace, work: Activities, call: Ints, rows: Ints) -> _Issued:
    """Some of the records, those without a call only on streams where none has one."""
    stream, streams = numbers(work.process[rows], work.device[rows], work.context[rows], work.stream[rows])
    known = call[rows] >= 0
    chosen = known | (np.bincount(stream[known], minlength=streams) == 0)[stream]
    rows, known = rows[chosen], known[chosen]
    called = call[rows]
    stream, _ = numbers(stream[chosen], spread(trace.api.thread, called, MISSING))
    start = work.start[rows]
    order = np.lexsort((start, called, np.where(known, spread(trace.api.start, called, 0), start), stream))
    rows, stream, called = rows[order], stream[order], called[order]
    begins = (stream[1:] != stream[:-1]) | (called[1:] != called[:-1])
    issue = np.cumsum(np.append(True, begins)[: len(rows)])
    names = work.name.codes.astype(np.int64)
    return _Issued(rows, work.start[rows], work.end[rows], stream, issue, names[rows])


def _most_until(times: Ints, stream: Ints) -> Ints:
    """For each row, the latest time of the rows of its stream up to it; the streams ascend."""
    order = np.argsort(times, kind="stable")
    rank = np.empty(len(times), np.int64)
    rank[order] = np.arange(len(times))
    latest = np.maximum.accumulate(stream * len(times) + rank)
    return times[order][latest - stream * len(times)]


def _least_behind(times: Ints, stream: Ints) -> Ints:
    """For each row, the earliest time of the rows of its stream behind it; `NEVER` for the last. The streams ascend."""
    earliest = -_most_until(-times[::-1], stream.max(initial=0) - stream[::-1])[::-1]
    behind = np.append(earliest[1:], NEVER)[: len(times)]
    behind[np.flatnonzero(stream[1:] != stream[:-1])] = NEVER
    return behind


def _out_of_order(issued: _Issued) -> tuple[Bools, Bools]:
    """2. The fewest records whose absence makes the starts ascend, where work issued later was over before earlier work
    began; and the records in places where it is unclear which are wrong."""
    out, unclear = np.zeros(len(issued), bool), np.zeros(len(issued), bool)
    crossed = _least_behind(issued.end, issued.stream) < _most_until(issued.start, issued.stream) - TOLERANCE_NS
    edges = np.flatnonzero(np.diff(np.append(crossed, False), prepend=False))
    places = list(map(np.arange, edges[::2], edges[1::2] + 1))
    is_unclear = np.zeros(len(places), bool)
    for number, place in enumerate(places):
        wrong = place if len(place) <= _FEW else place[_not_ascending(issued.start[place])]
        out[wrong] = True
        is_unclear[number] = len(place) > _FEW and len(wrong) > _MOST_OUT * len(place)
    if is_unclear.any():  # then it is at these times on other streams of the device, too
        since = np.array([issued.start[place].min() for place in places])
        until = np.array([issued.start[place].max() for place in places]) + 1
        is_unclear |= touching(since, until, union(since[is_unclear], until[is_unclear]))
        unclear[np.concatenate([each for each, is_so in zip(places, is_unclear, strict=True) if is_so])] = True
    return out, unclear


def _not_ascending(times: Ints) -> Ints:
    """The positions of the fewest times without which the others ascend."""
    last: list[int] = []  # of the longest sequences of 1, 2, ... times that end earliest
    ends: list[int] = []
    before = np.full(len(times), -1)
    for at, time in enumerate(times.tolist()):
        length = bisect_right(ends, time)
        before[at] = last[length - 1] if length else -1
        ends[length:length + 1], last[length:length + 1] = [time], [at]  # fmt: skip
    kept = np.zeros(len(times), bool)
    at = last[-1] if last else -1
    while at >= 0:
        kept[at] = True
        at = int(before[at])
    return np.flatnonzero(~kept)


def _behind_their_wait(trace: Trace, work: Activities, call: Ints) -> Bools:
    """3. Which records begin more than `LATE_NS` after the return of the first wait for their stream that began after
    their call had returned."""
    late = np.zeros(len(work), bool)
    api = trace.api
    waits = PlainCalls.from_table(api[(api.letter == SYNC) & (api.return_value <= 0)])
    if not len(waits):
        return late
    asked, of_event = targets(trace, waits), spread(trace.syncs.type.rows("event"), trace.syncs.of(waits), False)
    known = asked.known & (asked.stream != MISSING) & (asked.of_event | ~of_event)
    waits, asked = waits[known], asked[known]
    keys = (waits.process, asked.device, asked.context, asked.stream)
    mine = (work.process, work.device, work.context, work.stream)
    called = np.flatnonzero(call >= 0)
    wait = np.full(len(work), -1)
    wait[called] = first_at([each[called] for each in mine], api.end[call[called]], keys, asked.until)
    late = (wait >= 0) & (work.start - LATE_NS > spread(waits.end, wait, NEVER))
    if not late.any():
        return late
    is_late = np.bincount(wait[late], minlength=len(waits)) > 0
    order = np.lexsort((asked.until, *keys))
    order = order[np.bincount(wait[wait >= 0], minlength=len(waits))[order] > 0]
    begins = np.append(True, is_late[order][1:] != is_late[order][:-1])
    part = np.cumsum(begins) - 1
    is_few = np.zeros(len(waits), bool)
    is_few[order] = (np.bincount(part) <= _MOST_WAITS)[part]
    return late & spread(is_few, wait, False)


def _together(issued: _Issued) -> Bools:
    """4. Which records have the start of others on their stream that were issued before or behind them, or their start
    and end."""
    long = issued.end - issued.start > TOLERANCE_NS
    same = (issued.stream[1:] == issued.stream[:-1]) & (issued.start[1:] == issued.start[:-1]) & long[1:] & long[:-1]
    same &= (issued.issue[1:] != issued.issue[:-1]) | (issued.end[1:] == issued.end[:-1])
    part = np.cumsum(np.append(True, ~same)[: len(issued)])
    return np.bincount(part)[part] >= _TOGETHER if len(part) else np.zeros(0, bool)


def _behind_later(issued: _Issued) -> Ints:
    """5. The ends, cut where the next work begins if later work is over by then."""
    _, first = runs(issued.issue)
    if len(first) < 2:
        return issued.end
    stream, of = issued.stream[first], np.repeat(np.arange(len(first)), np.diff(first, append=len(issued)))
    over = _least_behind(np.maximum.reduceat(issued.end, first), stream)[of]
    begun = _least_behind(issued.start[first], stream)[of]  # rows of one issue ascend
    late = issued.end - TOLERANCE_NS > over
    return np.where(late, np.minimum(begun, issued.end), issued.end)


def _behind_next(issued: _Issued) -> Ints:
    """5. The ends, cut where the next work begins if they are far behind it, and the record is much longer than usual,
    unless work of the stream, or these two kernels, often overlap."""
    if len(issued) < 2:
        return issued.end
    same = issued.stream[1:] == issued.stream[:-1]
    over = np.append(np.where(same, issued.end[:-1] - issued.start[1:], 0), 0)
    if not (over > OVERLAP_NS).any():
        return issued.end
    overlaps = over > TOLERANCE_NS
    most = np.maximum(_HABIT * np.bincount(issued.stream), 1)
    is_rare = (np.bincount(issued.stream, overlaps) <= most)[issued.stream]
    pair, pairs = numbers(issued.name, np.append(issued.name[1:], MISSING))
    count, often = np.bincount(pair, minlength=pairs), np.bincount(pair, overlaps, pairs)
    is_rare &= ((count >= _PAIRS) & (often <= _PAIR_HABIT * count))[pair]
    length = issued.end - issued.start
    is_long = length > _LONG * medians(length, issued.name, int(issued.name.max()) + 1)[issued.name]
    cut = is_rare & is_long & (over > OVERLAP_NS)
    return np.where(cut, np.append(issued.start[1:], NEVER), issued.end)
