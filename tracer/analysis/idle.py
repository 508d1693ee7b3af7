"""Idle time of a step on a device: the part of its period in which nothing computes there.

The period of a step lasts from its first compute to that of the following step. Its holes are the gap to that step and
the bubbles inside the step. Collectives, and compute of others on the device, are neither compute of the step nor idle
and are removed from the holes. So period = busy + communication + others + idle, exactly, and idle is the sum of four
places:

- between steps: the gap;
- before the graph: holes that end before the step's first CUDA graph begins on the device;
- after the graph: holes that begin after the end of its last one;
- between kernels: all others, in graphs whose nodes were traced and in steps without a graph.

What is left of a hole are its *pieces*, in which the device idles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp
from typing import Final

import numpy as np
import pandas as pd

from tracer.analysis.causes import (
    CAUSE_OF,
    CAUSES,
    PART_COLUMNS,
    PART_NAMES,
    PARTS,
    IdleSpans,
    Near,
    Spans,
    Split,
    split,
)
from tracer.analysis.distortion import stretch_ns
from tracer.analysis.interval import Interval
from tracer.analysis.step_work import Compute, StepSpans, of_steps, step_spans
from tracer.analysis.tokens import Steps
from tracer.analysis.waited_for import Thread, WaitedThread, waited_threads
from tracer.model.calls import GRAPH_LAUNCH
from tracer.model.collectives import shown_name
from tracer.model.columns import (
    NEVER,
    Columns,
    Names,
    ended_before,
    firsts,
    grouped,
    numbers,
    positions,
    ranks,
    runs,
    several,
    spread,
)
from tracer.model.fits import fits_of, gpu_of
from tracer.model.intervals import Bools, Floats, Ints, covered, uncovered
from tracer.model.trace import RUN, Trace
from tracer.text import plain

PLACES: Final = {
    "between_steps": "between steps (the gap)",
    "before_graph": "before the graph",
    "between_kernels": "between kernels",
    "after_graph": "after the graph",
}
"""The places in a step's period where its device can idle."""

MOST_RUNS: Final = 0.02  # of the time: an error of the idle time that needs no mention
_MOST_HOLES: Final = 200  # kinds of holes to keep
_LEAST, _MOST_NAMED, _LONGEST = 0.05, 3, 60  # share and number of parts, and length of a name, in a sentence
_NO_INTS: Final = np.zeros(0, np.int64)


class Gaps(Columns):
    """Gaps.

    Attributes:
        start, end: ns: the end of the step's last compute, and the start of the next step's first one, or the same.
        this_start, next_start: the starts of both steps, ns.
        split: its causes, which add up to it, and their parts.
        calls: the number of CUDA calls of the thread that begin in it.
        graph_launch: 1 if a graph launch produced the compute that follows it, else 0.
    """

    step: Ints
    device: Ints
    start: Ints
    end: Ints
    this_start: Ints
    next_start: Ints
    split: Split
    calls: Ints
    graph_launch: Ints

    @cached_property
    def gap(self) -> Ints:
        """ns of each."""
        return self.end - self.start

    def frame(self) -> pd.DataFrame:
        """Columns step device start end gap, all causes, all parts, calls, graph_launch; times in ns."""
        first = {name: getattr(self, name) for name in ("step", "device", "start", "end", "gap")}
        counts = {"calls": self.calls, "graph_launch": self.graph_launch}
        return pd.DataFrame(first | self.split.columns() | counts, copy=False)


class Periods(Columns):
    """The periods of steps on devices, by device, host and begin.

    Attributes:
        at: the position of the step.
        host: the number of its process and thread.
        begin, over, until: ns: where its first compute starts, where its last one ends, and where the next step starts.
        first, last: the start and end of its CUDA graphs; -`NEVER` and `NEVER` if it has none.
        kernels, busy, union: of CUDA graphs whose nodes were traced, the number of kernels, the sum of their durations
            and their union, ns.
    """

    device: Ints
    step: Ints
    at: Ints
    host: Ints
    begin: Ints
    over: Ints
    until: Ints
    first: Ints
    last: Ints
    kernels: Ints
    busy: Ints
    union: Ints


class Holes(Columns):
    """Times in a period in which a device computes nothing for a host.

    Attributes:
        start, end: ns.
        process, correlation, at, next: of the compute after it: its process, correlation, step (position) and name.
        period: the position of its period.
        place: the position of its place in `PLACES`.
        communication, others: of its own process, and compute of others on the device, ns.
    """

    start: Ints
    end: Ints
    device: Ints
    host: Ints
    process: Ints
    correlation: Ints
    at: Ints
    next: Names
    period: Ints
    place: Ints
    communication: Ints
    others: Ints

    @cached_property
    def idle(self) -> Ints:
        """What is left of each, ns."""
        return self.end - self.start - self.communication - self.others


class StepIdle(Columns):
    """The idle time of a step on a device: a row per step that is followed by another, times in ns.

    Attributes:
        period, busy, communication, others, idle: the period, and its four parts.
        between_steps, before_graph, between_kernels, after_graph: the idle time in each of `PLACES`.
        graph_kernels, graph_busy, graph_union: of CUDA graphs whose nodes were traced, the number of kernels, the sum
            of their durations, and the same without overlap.
    """

    device: Ints
    step: Ints
    period: Ints
    busy: Ints
    communication: Ints
    others: Ints
    idle: Ints
    between_steps: Ints
    before_graph: Ints
    between_kernels: Ints
    after_graph: Ints
    graph_kernels: Ints
    graph_busy: Ints
    graph_union: Ints


class Pieces(Columns):
    """The pieces of holes in which the device idles.

    Attributes:
        start, end: ns.
        place: one of `PLACES`.
        next: the name of the compute after the hole.
        part: the largest part of its largest cause, a column of `causes.PARTS`.
    """

    step: Ints
    device: Ints
    start: Ints
    end: Ints
    place: Names
    next: Names
    part: Names


class KindsOfHoles(Columns):
    """Holes by place and by the compute that follows, the largest idle time first.

    Attributes:
        place: one of `PLACES`.
        next: the name of the compute.
        count, idle_us: per step.
        cause: the name of the largest one.
        part: its largest part, a column of `causes.PARTS`.
        part_us: per step.
    """

    place: Names
    next: Names
    count: Floats
    idle_us: Floats
    cause: Names
    part: Names
    part_us: Floats


@dataclass(frozen=True, eq=False)
class IdleReport:
    """The idle time of a trace.

    Attributes:
        periods: per device and step.
        kinds: of holes.
        pieces: of holes, in which the device idles.
        sums: what the device waits for in all of them, ns: a row per place, a column per part (`PART_COLUMNS`); they
            add up to the idle time there.
        threads: the threads for which the host waits in them.
        gpu: the names of the devices, which choose the constants of the stretch.
        left_out: the number of steps that have no row because it is unknown when the device computed in them.
    """

    periods: StepIdle
    kinds: KindsOfHoles
    pieces: Pieces
    sums: Ints
    threads: list[WaitedThread]
    gpu: str = ""
    left_out: int = 0

    @cached_property
    def steps(self) -> pd.DataFrame:
        """`periods` as a DataFrame."""
        return self.periods.frame()

    @cached_property
    def holes(self) -> pd.DataFrame:
        """`kinds` as a DataFrame."""
        kinds = self.kinds
        texts = {name: getattr(kinds, name).texts for name in ("place", "next", "cause", "part")}
        return kinds.frame().assign(**texts)

    @cached_property
    def table(self) -> pd.DataFrame:
        """`pieces` as a DataFrame."""
        return self.pieces.frame()

    @property
    def idle_us(self) -> dict[str, float]:
        """p50, p90 and mean per step, and the mean of each of `PLACES`, which add up to the mean, µs; empty if no step
        has a period."""
        if not len(self.periods):
            return {}
        of_places = {place: float(getattr(self.periods, place).mean() / 1e3) for place in PLACES}
        return statistics(self.periods.idle) | of_places

    @property
    def causes_us(self) -> dict[str, dict[str, float]]:
        """Place -> cause's name -> mean per step, µs; they add up to the place's mean in `idle_us`."""
        each = self.parts_us
        return {
            place: {cause: sum(inner.values()) for cause, inner in causes.items()} for place, causes in each.items()
        }

    @property
    def parts_us(self) -> dict[str, dict[str, dict[str, float]]]:
        """Place -> cause's name -> its parts' columns -> mean per step, µs."""
        if not len(self.periods):
            return {}
        of_parts = (self.sums / len(self.periods) / 1e3).T.tolist()
        means = dict(zip(PART_COLUMNS, of_parts, strict=True))
        return {
            place: {name: {part: means[part][row] for part in PARTS[cause]} for cause, name in CAUSES.items()}
            for row, place in enumerate(PLACES)
        }

    @property
    def where(self) -> str | None:
        """A sentence on where most of the idle time is, what it waits for, and the largest kind of hole; None if
        nothing idles."""
        sums = self.sums
        whole = int(sums.sum())
        if not whole:
            return None
        at = int(sums.sum(axis=1).argmax())
        place, total = list(PLACES)[at], int(sums[at].sum())
        there = sorted(zip(sums[at].tolist(), PART_COLUMNS, strict=True), key=lambda each: -each[0])
        named = [f"{PART_NAMES[part]} {ns / total:.0%}" for ns, part in there if ns >= _LEAST * total]
        kinds = self.kinds
        following, there_too = plain(shown_name(kinds.next.at(0)), _LONGEST), kinds.place.at(0)
        far = "" if there_too == place else f"{PLACES[there_too]}, "
        return (
            f"{total / whole:.0%} {PLACES[place]}: {', '.join(named[:_MOST_NAMED])}; largest hole: {far}before "
            f"{following}, {kinds.idle_us[0]:,.1f} µs a step, mostly {PART_NAMES[kinds.part.at(0)]}"
        )

    @property
    def busy_us(self) -> float | None:
        """How long the device computes for a step, as the union of all its work: median, µs."""
        return float(np.median(self.periods.busy) / 1e3) if len(self.periods) else None

    @property
    def share(self) -> float:
        """Idle time as a share of all periods."""
        return float(self.periods.idle.sum() / max(self.periods.period.sum(), 1))

    def untraced_ns(self, steps_per_s: float, sign: int = 0) -> Ints:
        """The idle time of each step at a rate measured without a profiler: 1 / rate - busy, ns; 0 or less if the
        device is busy for longer.

        Tracing whole graphs does not change the device's own work. Tracing their nodes stretches the graphs
        (`distortion.stretch_ns`), first between their kernels; only what exceeds the time there is subtracted from the
        work. Communication and compute of others stay as recorded.

        Args:
            sign: -1 and 1 for the least and the most that node-level tracing may have added. Where it may be hidden,
                the least is 0.
        """
        each = self.periods
        beyond = np.minimum(np.maximum(self._stretch(sign) - each.between_kernels, 0), each.busy)
        return round(1e9 / steps_per_s) - (each.busy + each.communication + each.others) + beyond

    def _stretch(self, sign: int) -> Ints:
        """What node-level tracing added to the CUDA graphs of each step, ns."""
        stretch = stretch_ns(self.periods.graph_kernels, self.periods.graph_busy, fits_of(self.gpu).stretch, sign)
        return stretch if sign > 0 else np.where(self._hides, 0, stretch)

    @property
    def _hides(self) -> Bools:
        """Whether kernels of each step's graphs overlap more than in any measurement of the stretch. It may then be
        hidden, partly or entirely."""
        return self.periods.graph_union < fits_of(self.gpu).stretch.union * self.periods.graph_busy

    @property
    def hides_stretch(self) -> bool:
        """Whether that is the case for any step."""
        return bool(self._hides.any())

    def untraced_us(self, steps_per_s: float) -> dict[str, float]:
        """p50 and mean of `untraced_ns`, µs."""
        us = self._idle_ns(steps_per_s) / 1e3
        return {"p50": float(np.median(us)), "mean": float(us.mean())}

    def _idle_ns(self, steps_per_s: float, sign: int = 0) -> Ints:
        """`untraced_ns` without negative times, and with its mean (or 0): a step in which the device works for longer
        than the mean period does not make the others idle for longer."""
        ns = self.untraced_ns(steps_per_s, sign)
        idle = np.maximum(ns, 0)
        if (ns >= 0).all():
            return idle
        return np.rint(idle * (max(float(ns.mean()), 0.0) / max(float(idle.mean()), 1.0))).astype(np.int64)

    def mean_untraced_us(self, steps_per_s: float) -> float:
        """The mean idle time at that rate: 1 / rate - mean busy, µs; negative if the device is busy for longer."""
        return float(self.untraced_ns(steps_per_s).mean()) / 1e3

    def between_us(
        self, steps_per_s: float, error: float, signs: Sequence[int], gaps: Gaps | None = None
    ) -> dict[str, Interval]:
        """p50 and mean of the idle time at that rate, or of the gaps, with their 95 % intervals, µs.

        A rate is a mean. If tracing added to each step in proportion to its idle time, the p50 is the recorded one,
        scaled as the mean. If it added the same to each, it is that much shorter. If only tracing made the steps
        differ, it is that of 1 / rate - busy. The interval reaches from the least to the most of these, at both ends of
        the rate's interval.

        Args:
            error: half the 95 % interval of the rate's logarithm.
            signs: as in `untraced_ns`.
        """

        def at(rate: float, sign: int = 0) -> tuple[float, float, list[float]]:
            if gaps is None:
                recorded, of_rate = self.periods.idle, self._idle_ns(rate, sign)
            else:
                recorded, of_rate = gaps.gap, self.untraced_gaps(gaps, rate, sign)
            mean = float(of_rate.mean())
            middle, before = float(np.median(recorded)), float(recorded.mean())
            scaled = middle * mean / before if before > 0 else mean
            return scaled / 1e3, mean / 1e3, [max(middle + mean - before, 0.0) / 1e3, float(np.median(of_rate)) / 1e3]

        scaled, mean, others = at(steps_per_s)
        ends = [at(steps_per_s * exp(part * error), sign) for part in (-1, 1) for sign in signs]
        medians = [scaled, *others, *(us for one, _, more in ends for us in (one, *more))]
        means = [mean, *(one for _, one, _ in ends)]
        return {
            "p50": Interval(scaled, min(medians), max(medians)), "mean": Interval(mean, min(means), max(means))
        }  # fmt: skip

    def untraced_gaps(self, gaps: Gaps, steps_per_s: float, sign: int = 0) -> Ints:
        """The gaps at that rate, ns, in the order of `gaps` (`gaps.GapReport.gaps`).

        Their idle part keeps its recorded share of the idle time: all of it if a step idles nowhere else; for graphs
        whose nodes were traced, its share of the idle time outside them, since what tracing adds inside is known.
        Communication in the gaps and compute of others stay as recorded.
        """
        left, between, outside = self._outside(steps_per_s, sign)
        kept = np.where(outside == between, left, np.round(left * (between / np.maximum(outside, 1))))
        return self._with(gaps, kept - between)

    def bounds_of_gaps(self, gaps: Gaps, steps_per_s: float) -> tuple[Ints, Ints]:
        """The lower and upper bounds: everything that tracing added, or by which a slower run is longer, may belong to
        the gap or to the other places."""
        left, between, outside = self._outside(steps_per_s, 0)
        rest = left - (outside - between)
        least = np.where(outside == between, left, np.maximum(np.minimum(rest, between), 0))
        most = np.where(outside == between, left, np.maximum(np.minimum(left, between), rest))
        return self._with(gaps, least - between), self._with(gaps, most - between)

    def _outside(self, steps_per_s: float, sign: int) -> tuple[Ints, ...]:
        """Per step, ns: the idle time that a rate leaves outside graphs whose nodes were traced, the recorded gap, and
        all recorded idle time outside them."""
        each = self.periods
        apart = np.where(each.graph_kernels > 0, each.between_kernels, 0)
        left = self._idle_ns(steps_per_s, sign)
        return np.maximum(left - np.maximum(apart - self._stretch(sign), 0), 0), each.between_steps, each.idle - apart

    def _with(self, gaps: Gaps, change: Ints) -> Ints:
        """The gaps, each changed by the amount of its step; unchanged if the step has no period."""
        of_gap = positions([gaps.device, gaps.step], [self.periods.device, self.periods.step])
        return gaps.gap + spread(change, of_gap, 0)


def idle_report(trace: Trace, steps: Steps, gaps: Gaps, every: Compute, near: Near) -> IdleReport:
    """Find the idle time in the periods of the steps; none if they all start to compute at the same time. Periods of
    which more than `MOST_RUNS` are runs of eager launches are left out, since it is unknown when the device computed
    in them.
    """
    compute = of_steps(every)
    hosts = ranks(steps.rows.process, steps.rows.thread)
    periods = _periods(step_spans(trace, steps, compute), steps, hosts, gaps)
    periods = _with_graphs(trace, compute, hosts, periods)
    holes, (start, end, hole) = _holes(trace, every, compute, hosts, periods)
    kept = _known(trace, steps, every, periods)
    if not kept.all():
        here = kept[holes.period]
        start, end, hole = (each[here[hole]] for each in (start, end, hole))
        hole = (np.cumsum(here) - 1)[hole]
        holes = holes[here]
        holes, periods = holes.changed(period=(np.cumsum(kept) - 1)[holes.period]), periods[kept]
    of, waited = holes[hole], dict[Thread, Ints]()
    owners = steps.rows.process[of.at], steps.rows.thread[of.at]
    parts = split(trace, near, IdleSpans(start, end, of.device, of.correlation, of.process, *owners), waited)
    places, next_ = Names(of.place, np.array(list(PLACES), dtype=object)), of.next
    largest = Names(_largest(parts), np.array(PART_COLUMNS, dtype=object))
    return IdleReport(
        _per_step(periods, holes),
        _by_next(of.place, next_, hole, parts, max(len(periods), 1)),
        Pieces(periods.step[of.period], of.device, start, end, places, next_, largest),
        _by_place(of.place, parts),
        waited_threads(trace, waited, len(periods)),
        gpu_of(trace),
        int((~kept).sum()),
    )


def statistics(ns: Ints) -> dict[str, float]:
    """p50, p90 and mean, µs; empty if there are no steps."""
    us = ns / 1e3
    if not len(us):
        return {}
    return {"p50": float(np.median(us)), "p90": float(np.percentile(us, 90)), "mean": float(us.mean())}


# --- periods ---


def _periods(spans: StepSpans, steps: Steps, hosts: Ints, gaps: Gaps) -> Periods:
    """The period of each step on each device that is followed by another; without its graphs."""
    spans = spans[runs(spans.device, spans.group, spans.step)[0]]
    chain, _ = numbers(spans.device, spans.group)
    begin, at = spans.start, spans.at
    until = np.append(np.where(chain[1:] == chain[:-1], begin[1:], begin[:-1]), begin[-1:])  # without a next: nothing
    followed = (until > begin) & (positions([spans.device, spans.step], [gaps.device, gaps.step]) >= 0)
    none = np.zeros(len(spans), np.int64)
    periods = Periods(
        spans.device, spans.step, at, hosts[at], begin, spans.end, until, none - NEVER, none + NEVER, none, none, none
    )[followed]
    return periods[runs(periods.device, periods.host, periods.begin)[0]] if len(periods) else periods


def _with_graphs(trace: Trace, compute: Compute, hosts: Ints, periods: Periods) -> Periods:
    """The periods with the CUDA graphs of their steps."""
    launching, of_graph = trace.api[trace.api.letter == GRAPH_LAUNCH], compute.is_graph
    if len(launching):
        of_graph = of_graph | (launching.of(compute) >= 0)
    if not of_graph.any() or not len(periods):
        return periods
    rows = compute[of_graph]
    nodes = rows.is_kernel
    busy = np.where(nodes, rows.end - rows.start, 0)
    reach = ended_before(rows.end, rows.device, hosts[rows.at])
    union = np.minimum(np.maximum(rows.end - np.maximum(rows.start, reach), 0), busy)
    order, begins = runs(rows.device, rows.at)
    first = order[begins]
    of = positions([periods.device, periods.at], [rows.device[first], rows.at[first]])
    return periods.changed(
        first=spread(rows.start[first], of, -NEVER),
        last=spread(np.maximum.reduceat(rows.end[order], begins), of, NEVER),
        **{
            name: spread(np.add.reduceat(values[order], begins), of, 0)
            for name, values in (("kernels", nodes.astype(np.int64)), ("busy", busy), ("union", union))
        },
    )


def _known(trace: Trace, steps: Steps, every: Compute, periods: Periods) -> Bools:
    """Which periods are not those in which runs of eager launches, recorded as one row each, take more than
    `MOST_RUNS`; none at all if that applies to most."""
    if not trace.has_runs or not len(periods):
        return np.ones(len(periods), bool)
    runs_ = every[every.name.rows(RUN) & (every.at >= 0)]
    of = positions([runs_.device, steps.rows.step[runs_.at]], [periods.device, periods.step])
    length = runs_.end - runs_.start
    in_runs = np.bincount(of[of >= 0], length[of >= 0], minlength=len(periods))
    kept = in_runs <= MOST_RUNS * (periods.until - periods.begin)
    return kept if 2 * kept.sum() >= len(kept) else np.zeros(len(kept), bool)


# --- holes ---


def _holes(
    trace: Trace, every: Compute, compute: Compute, hosts: Ints, periods: Periods
) -> tuple[Holes, tuple[Ints, Ints, Ints]]:
    """The times between two computes of a host on a device, in periods; and what is left of them: start and end (ns) of
    each piece, and the position of its hole, in their order."""
    host = hosts[compute.at]
    reach = ended_before(compute.end, compute.device, host)
    behind = np.flatnonzero((compute.start > reach) & (reach != -NEVER)) if len(periods) else _NO_INTS
    start, kept, of = reach[behind], [_NO_INTS], [_NO_INTS]
    places = dict(grouped(compute.device[behind], host[behind]))
    for key, rows in grouped(periods.device, periods.host):
        mine = places.get(key, _NO_INTS)
        period = np.searchsorted(periods.begin[rows], start[mine], side="right") - 1
        inside = (period >= 0) & (start[mine] < periods.until[rows[period]])
        kept.append(mine[inside])
        of.append(rows[period[inside]])
    chosen, period = np.concatenate(kept), np.concatenate(of)
    rows, begin = behind[chosen], start[chosen]
    end, none = compute.start[rows], np.zeros(len(rows), np.int64)
    place = np.select(
        [begin >= periods.over[period], end <= periods.first[period], begin >= periods.last[period]], [0, 1, 3], 2
    )
    holes = Holes(
        begin, end, compute.device[rows], host[rows], compute.process[rows], compute.correlation[rows],
        compute.at[rows], compute.name[rows], period, place, none, none,
    )  # fmt: skip
    within, both, pieces = none.copy(), none.copy(), [(_NO_INTS, _NO_INTS, _NO_INTS)]
    for mine, communication, taken in _taken(trace, every, compute, host, holes):
        low, high = begin[mine], end[mine]
        if len(communication[0]):
            within[mine] = covered(*communication, low, high)
        if len(taken[0]):
            both[mine] = covered(*taken, low, high)
            first, last, hole = uncovered(*taken, low, high)
            pieces.append((first, last, mine[hole]))
        else:
            pieces.append((low, high, mine))
    left = holes.changed(communication=within, others=both - within)
    first, last, hole = (np.concatenate(each) for each in zip(*pieces, strict=True))
    order = np.argsort(hole, kind="stable")
    return left, (first[order], last[order], hole[order])


def _taken(
    trace: Trace, every: Compute, compute: Compute, host: Ints, holes: Holes
) -> Iterator[tuple[Ints, Spans, Spans]]:
    """(the holes of a device, process and host; the communication of the process there; all that is not idle there:
    it, and the compute of others on the device)."""
    kernels, rest = trace.kernels, every[every.at < 0]
    communication = kernels[kernels.collective] if kernels.collective.any() else kernels[:0]
    of_others = several(host)
    for (device, process, mine), rows in grouped(holes.device, holes.process, holes.host):
        here, on_device = (communication.device == device) & (communication.process == process), rest.device == device
        own = communication.start[here], communication.end[here]
        removed = [own, (rest.start[on_device], rest.end[on_device])]
        if of_others:
            theirs = (compute.device == device) & (host != mine)
            removed.append((compute.start[theirs], compute.end[theirs]))
        starts, ends = (np.concatenate(side) for side in zip(*removed, strict=True))
        yield rows, own, (starts, ends)


# --- figures ---


def _per_step(periods: Periods, holes: Holes) -> StepIdle:
    def total(ns: Ints) -> Ints:
        sums = np.zeros(len(periods), np.int64)
        np.add.at(sums, holes.period, ns)
        return sums

    idle, communication, others = (total(ns) for ns in (holes.idle, holes.communication, holes.others))
    period = periods.until - periods.begin
    between_steps, before_graph, between_kernels, after_graph = (
        total(np.where(holes.place == place, holes.idle, 0)) for place in range(len(PLACES))
    )
    return StepIdle(
        periods.device, periods.step, period, period - idle - communication - others, communication, others, idle,
        between_steps, before_graph, between_kernels, after_graph, periods.kernels, periods.busy, periods.union,
    )  # fmt: skip


def _largest(parts: Split) -> Ints:
    """For each row, the position in `PART_COLUMNS` of the largest part of its largest cause."""
    most, chosen = np.zeros(len(parts), np.int64), np.zeros(len(parts), np.int64)
    for inner in PARTS.values():
        known = [part for part in inner if part in parts.parts]
        if not known:
            continue
        each = np.array([parts.parts[part] for part in known])
        whole, at = each.sum(axis=0), each.argmax(axis=0)
        larger = whole > most
        chosen[larger] = np.array([PART_COLUMNS.index(part) for part in known])[at[larger]]
        most[larger] = whole[larger]
    return chosen


def _by_place(place: Ints, parts: Split) -> Ints:
    """See `IdleReport.sums`."""
    sums = parts.sums(place, len(PLACES))
    return np.stack([sums.part(part) for part in PART_COLUMNS], axis=1)


def _by_next(place: Ints, next_: Names, hole: Ints, parts: Split, steps: int) -> KindsOfHoles:
    """The pieces, with their place, next compute and hole, as kinds of holes."""
    of = ranks(place, next_.codes)
    kinds = int(of.max(initial=-1)) + 1
    row = firsts(of, kinds)
    first = np.diff(hole, prepend=-1) != 0  # of each hole
    sums = parts.sums(of, kinds)
    total, part = np.sum([*sums.parts.values(), np.zeros(kinds, np.int64)], axis=0), _largest(sums)
    part_ns = np.array([sums.part(PART_COLUMNS[code])[row] for row, code in enumerate(part.tolist())])
    names = list(CAUSES)
    cause = np.array([names.index(CAUSE_OF[PART_COLUMNS[code]]) for code in part.tolist()], np.int64)
    holes = KindsOfHoles(
        Names(place[row], np.array(list(PLACES), dtype=object)), next_[row], np.bincount(of, first, kinds) / steps,
        total / steps / 1e3, Names(cause, np.array(list(CAUSES.values()), dtype=object)),
        Names(part, np.array(PART_COLUMNS, dtype=object)), part_ns.astype(np.float64) / steps / 1e3,
    )  # fmt: skip
    return holes[np.argsort(-holes.idle_us, kind="stable")[:_MOST_HOLES]]
