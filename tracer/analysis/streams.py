"""Streams: how busy each is and how much they overlap, the bubbles in a step, and what each stream waits for.

Lengths are unions of intervals rather than sums. A bubble is a period without compute on a device between the first and
the last compute of a step. It belongs to one host (process and thread); compute of others on the device in the meantime
is one of its causes.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tracer.analysis.causes import CAUSES, IdleSpans, Near, Split, calls_in, split
from tracer.analysis.step_work import Compute, StepSpans, activity_steps, step_compute, step_spans
from tracer.analysis.tokens import Steps
from tracer.errors import EmptyTraceError
from tracer.model.columns import (
    NEVER,
    Columns,
    ended_before,
    firsts,
    grouped,
    joined,
    modes,
    numbers,
    positions,
    ranks,
    runs,
    spread,
)
from tracer.model.intervals import Bools, Floats, Ints, overlap, total, union
from tracer.model.schema import MISSING
from tracer.model.tables import MEMCPYS, Activities
from tracer.model.trace import Trace
from tracer.text import json_rows

if TYPE_CHECKING:
    import pandas as pd

WAITS: Final = {
    "launch": "launch by the host",
    "event": "another stream",
    "latency": "start on the device",
    "done": "nothing more to do",
}
"""Part of a stream's idle time -> what the stream waits for."""


class StreamTimes(Columns):
    """Streams.

    Attributes:
        kernels: a graph traced at graph level counts as one kernel of the stream that launched it.
        copies, bytes: MISSING bytes where the recording lacks the size of a copy.
        busy_us, compute_us: the unions of all its work, and of its compute.
        communication_us: in collectives, which are kernels but not compute.
        busy_share: of the device's span.
    """

    device: Ints
    process: Ints
    stream: Ints
    kernels: Ints
    copies: Ints
    bytes: Ints
    busy_us: Floats
    compute_us: Floats
    communication_us: Floats
    busy_share: Floats

    def frame(self) -> pd.DataFrame:
        """The same as a DataFrame, with NA for unknown bytes."""
        table = super().frame()
        return table.assign(bytes=table["bytes"].astype("Int64").mask(self.bytes == MISSING))


class DeviceTimes(Columns):
    """Devices.

    Attributes:
        streams: their number.
        window_us, busy_us, busy_share: busy is the union over its streams.
        communication_us: while nothing computes.
        overlap_us: while two or more streams compute.
        concurrency: compute time of the streams / of the device; 1 if nothing overlaps.
    """

    device: Ints
    streams: Ints
    window_us: Floats
    busy_us: Floats
    busy_share: Floats
    communication_us: Floats
    overlap_us: Floats
    concurrency: Floats


@dataclass(frozen=True)
class StreamReport:
    """Busy time per stream and per device."""

    streams: StreamTimes
    devices: DeviceTimes


def stream_report(trace: Trace, steps: Steps | None = None) -> StreamReport:
    """Busy time and overlap of the streams.

    Args:
        steps: only what these steps launched; None for the whole recording. The span of a device runs from the first
            to the last activity of each group of steps; groups of several hosts that overlap count once.

    Raises:
        EmptyTraceError: nothing ran on a device, or most of what did is not in the recording.
    """
    if steps is not None and steps.hidden:
        raise EmptyTraceError(f"no busy time: {steps.hidden}, so that it is unknown when the device worked")
    activities = trace.activities()
    group = np.zeros(len(activities), np.int64)
    if steps is not None:
        at = activity_steps(trace, steps, activities)
        activities, group = activities[at >= 0], steps.rows.group[at[at >= 0]]
    if not len(activities):
        raise EmptyTraceError("nothing ran on a device in the chosen part of the trace")
    streams: list[tuple[float, ...]] = []
    devices: list[tuple[float, ...]] = []
    for (device,), mine in sorted(grouped(activities.device), key=itemgetter(0)):
        on_device = activities[mine]
        order, first = runs(group[mine])
        begin, end = on_device.start[order], on_device.end[order]
        span = total(np.minimum.reduceat(begin, first), np.maximum.reduceat(end, first))
        of_streams = sorted(grouped(on_device.process, on_device.stream), key=itemgetter(0))
        streams += [(device, *stream, *_of_stream(on_device[rows], span)) for stream, rows in of_streams]
        devices.append((device, *_of_device(on_device, span)))
    return StreamReport(StreamTimes.of_rows(streams), DeviceTimes.of_rows(devices))


def _of_stream(activities: Activities, span: int) -> tuple[float, ...]:
    """The columns of `StreamTimes` from `kernels` on."""
    computing, collective = activities[activities.computes], activities[activities.collective]
    busy, is_unknown = total(activities.start, activities.end), (activities.bytes == MISSING).any()
    return (
        len(computing) + len(collective), int((activities.table == MEMCPYS).sum()),
        MISSING if is_unknown else int(activities.bytes.sum()), busy / 1e3,
        total(computing.start, computing.end) / 1e3, total(collective.start, collective.end) / 1e3,
        busy / span if span else 0.0,
    )  # fmt: skip


def _of_device(on_device: Activities, span: int) -> tuple[float, ...]:
    """The columns of `DeviceTimes` from `streams` on."""
    compute, both = on_device[on_device.computes], on_device[on_device.computes | on_device.collective]
    per_stream = [union(compute.start[rows], compute.end[rows]) for _, rows in grouped(compute.process, compute.stream)]
    starts, ends = (np.concatenate([u[i] for u in per_stream] or [np.zeros(0, np.int64)]) for i in (0, 1))
    busy, computing = total(on_device.start, on_device.end), total(starts, ends)
    return (
        numbers(on_device.process, on_device.stream)[1], span / 1e3, busy / 1e3, busy / span if span else 0.0,
        (total(both.start, both.end) - computing) / 1e3, overlap(starts, ends) / 1e3,
        float((ends - starts).sum() / computing) if computing else 0.0,
    )  # fmt: skip


class Bubbles(Columns):
    """Bubbles, by device and start.

    Attributes:
        start, end, length: ns; the length is without communication between start and end.
        split: its causes; without communication they add up to the length.
        calls, graph_launch: as in `gaps.Gaps`.
    """

    step: Ints
    device: Ints
    start: Ints
    end: Ints
    length: Ints
    split: Split
    calls: Ints
    graph_launch: Ints


class StepBubbles(Columns):
    """The bubbles of each step on each device where it computes: their number, total and longest length (ns), and the
    causes of all."""

    device: Ints
    step: Ints
    count: Ints
    total: Ints
    longest: Ints
    split: Split


class StreamWaits(Columns):
    """What streams wait for.

    Attributes:
        steps: in which it has an activity.
        idle_us: mean per such step; the following columns are its parts, see `WAITS`.
        waits_on: the stream it waits for most, or MISSING.
    """

    device: Ints
    process: Ints
    stream: Ints
    steps: Ints
    idle_us: Floats
    launch_us: Floats
    event_us: Floats
    latency_us: Floats
    done_us: Floats
    waits_on: Ints


@dataclass(frozen=True)
class BubbleReport:
    """The bubbles of a trace: each, those of each step, and what the streams wait for."""

    table: Bubbles
    steps: StepBubbles
    streams: StreamWaits

    @property
    def devices(self) -> pd.DataFrame:
        """A row per device: device steps, means per step: count, total_us and the causes, µs; the overall
        longest_us."""
        import pandas as pd

        devices = []
        for (device,), rows in sorted(grouped(self.steps.device), key=itemgetter(0)):
            steps = self.steps[rows]
            means = steps.count.mean(), steps.total.mean() / 1e3, steps.longest.max() / 1e3
            of_device = dict(zip(("count", "total_us", "longest_us"), means, strict=True))
            causes = {f"{cause}_us": steps.split.cause(cause).mean() / 1e3 for cause in CAUSES}
            devices.append({"device": device, "steps": len(steps)} | of_device | causes)
        return pd.DataFrame(devices)

    def records(self) -> dict[str, list[dict[str, Any]]]:
        """devices, steps and streams as JSON-able records."""
        tables = {"devices": self.devices, "steps": self.steps.frame(), "streams": self.streams.frame()}
        return {name: json_rows(table) for name, table in tables.items()}


def bubble_report(trace: Trace, steps: Steps) -> BubbleReport:
    """Find the bubbles of every step on every device, with their causes, and what the streams wait for.

    Raises:
        EmptyTraceError: no step computes on a device.
    """
    compute = step_compute(trace, steps)
    if not len(compute):
        raise EmptyTraceError("no bubbles: no token step launches kernels")
    spans = step_spans(trace, steps, compute)
    step, idle = _bubbles(compute, steps)
    parts = split(trace, Near.of(trace, steps, compute), idle)
    length = idle.end - idle.start - parts.cause("communication")
    of, count = positions([idle.device, step], [spans.device, spans.step]), len(spans)
    longest = np.zeros(count, np.int64)
    np.maximum.at(longest, of, length)
    number, sums = (np.bincount(of, each, count).astype(np.int64) for each in (length > 0, length))
    return BubbleReport(
        Bubbles(step, idle.device, idle.start, idle.end, length, parts, *calls_in(trace, idle)),
        StepBubbles(spans.device, spans.step, number, sums, longest, parts.sums(of, count)),
        stream_waits(trace, steps, spans),
    )


def _bubbles(compute: Compute, steps: Steps) -> tuple[Ints, IdleSpans]:
    """The idle spans in which no step computes on a device although at least one has started and not finished, and the
    step of each.

    If there are several such steps, the idle span belongs to the one that computes longest.
    """
    hosts = ranks(steps.rows.process, steps.rows.thread)
    compute = compute[np.lexsort((compute.start, hosts[compute.at], compute.device))]
    order, first = runs(compute.device, compute.at)
    final = np.empty(len(compute), np.int64)  # of the step on the device
    final[order] = np.repeat(np.maximum.reduceat(compute.end[order], first), np.diff(first, append=len(order)))
    of_host = compute.device, hosts[compute.at]
    reach, latest, owner = ended_before(compute.end, *of_host), ended_before(final, *of_host), np.full(len(compute), -1)
    for _, rows in grouped(*of_host):
        leads = np.maximum.accumulate(np.where(final[rows] > latest[rows], np.arange(len(rows)), -1))
        owner[rows[1:]] = compute.at[rows][leads][:-1]
    after = np.flatnonzero((compute.start > reach) & (latest > reach))
    after = after[np.lexsort((compute.start[after], compute.device[after]))]
    of = owner[after]
    idle = IdleSpans(
        reach[after], compute.start[after], compute.device[after], compute.correlation[after], compute.process[after],
        steps.rows.process[of], steps.rows.thread[of],
    )  # fmt: skip
    return steps.rows.step[of], idle


class _Turns(Columns):
    """The activities of steps, and the end of each stream's part in each step (`last`), by device, step and stream.

    Attributes:
        start, end: ns; both the end of the step's compute, of an end.
        first, final: the start and the end of the step's compute on the device, ns.
        issued: the return of its call, ns.
        last: whether it is an end.
    """

    device: Ints
    process: Ints
    stream: Ints
    step: Ints
    correlation: Ints
    start: Ints
    end: Ints
    first: Ints
    final: Ints
    issued: Ints
    last: Bools


def stream_waits(trace: Trace, steps: Steps, spans: StepSpans) -> StreamWaits:
    """How long each stream idles between the first and the last compute of a step, and what it waits for.

    It waits for the host until the call that issues its next activity returns. Then, if the trace shows an order
    between streams (a stream wait between the two calls, or one graph launch on several streams), it waits for another
    stream, until the last activity of another stream that ends before its own starts. The rest is the device's start.
    After its last activity, nothing is left to do.
    """
    turns = _turns(trace, steps, spans)
    until = turns.start.clip(turns.first, turns.final)
    reach = ended_before(turns.end, turns.device, turns.step, turns.stream)
    since = np.minimum(reach.clip(turns.first, turns.final), until)
    length = until - since
    launch = np.where(turns.last, 0, turns.issued.clip(since, until) - since)
    behind, on = _other_stream(turns, until)
    free, is_ordered = since + launch, _in_shared_graph(turns) | _behind_stream_wait(trace, turns)
    event = np.where(is_ordered, behind.clip(free, until) - free, 0)
    latency, done = np.where(turns.last, 0, length - launch - event), np.where(turns.last, length, 0)
    number = ranks(turns.device, turns.process, turns.stream)
    count = int(number.max(initial=-1)) + 1
    size, row = np.bincount(number, turns.last, count).astype(np.int64), firsts(number, count)
    idle_us, launch_us, event_us, latency_us, done_us = (
        np.bincount(number, ns, count) / size.clip(1) / 1e3 for ns in (length, launch, event, latency, done)
    )
    waits = event > 0
    waits_on = np.where(
        np.bincount(number[waits], minlength=count) > 0, modes(on[waits], number[waits], count), MISSING
    )
    return StreamWaits(
        turns.device[row], turns.process[row], turns.stream[row], size, idle_us, launch_us, event_us, latency_us,
        done_us, waits_on,
    )  # fmt: skip


def _turns(trace: Trace, steps: Steps, spans: StepSpans) -> _Turns:
    work = trace.activities()
    at = activity_steps(trace, steps, work)
    of = np.where(at >= 0, positions([work.device, at], [spans.device, spans.at]), -1)
    work, of = work[of >= 0], of[of >= 0]
    final, issued = spans.end[of], spread(trace.api.end, trace.api.of(work), -NEVER)
    turns = _Turns.from_table(
        work, step=spans.step[of], first=spans.start[of], final=final, issued=issued, last=np.zeros(len(of), bool)
    )
    ends = turns[np.unique(ranks(turns.device, turns.step, turns.stream), return_index=True)[1]]
    none = np.full(len(ends), MISSING)
    ends = ends.changed(start=ends.final, end=ends.final, correlation=none, issued=none - NEVER, last=none < 0)
    both = joined([turns, ends])
    return both[np.lexsort((both.start, both.last, both.stream, both.step, both.device))]


def _in_shared_graph(turns: _Turns) -> Bools:
    """Which activities come from a launch that uses several streams."""
    number, count = numbers(turns.process, turns.correlation)
    lowest, highest = np.full(count, NEVER), np.full(count, -NEVER)
    np.minimum.at(lowest, number, turns.stream)
    np.maximum.at(highest, number, turns.stream)
    return (turns.correlation >= 0) & (lowest < highest)[number]


def _behind_stream_wait(trace: Trace, turns: _Turns) -> Bools:
    """Which activities were issued after a stream wait that was issued after the activity before them."""
    waits = trace.syncs[trace.syncs.type.rows("stream wait")]
    behind, real = np.zeros(len(turns), bool), np.flatnonzero(~turns.last)
    for (process, stream), rows in grouped(turns.process[real], turns.stream[real]) if len(waits) else ():
        times = np.sort(waits.start[(waits.process == process) & (waits.stream == stream)])
        at = real[rows][np.argsort(turns.issued[real[rows]], kind="stable")]
        behind[at] = np.diff(np.searchsorted(times, turns.issued[at]), prepend=0) > 0
    return behind


def _other_stream(turns: _Turns, until: Ints) -> tuple[Ints, Ints]:
    """For each of them, the end of the last activity of another stream of its process and device before `until`, and
    that stream."""
    latest, on = np.full(len(turns), -NEVER), np.full(len(turns), MISSING)
    for (device, process, stream), rows in grouped(turns.device, turns.process, turns.stream):
        here = ~turns.last & (turns.device == device) & (turns.process == process) & (turns.stream != stream)
        others = np.flatnonzero(here)
        others = others[np.argsort(turns.end[others], kind="stable")]
        before = spread(others, np.searchsorted(turns.end[others], until[rows], side="right") - 1, -1)
        latest[rows], on[rows] = spread(turns.end, before, -NEVER), spread(turns.stream, before, MISSING)
    return latest, on
