"""What a device waits for while it computes nothing: the causes, their parts, and the intervals that reveal each.

An *idle span* is a period in which a device runs no compute: an inter-token gap, a bubble inside a step, or any piece
of a step's idle time. Each nanosecond of an idle span has one cause, and one part of it: a part is what a set of
intervals covers of the span that no earlier set covered, so parts add up exactly to their cause, and causes to the
span.

*The thread* is the one that launches the compute after an idle span. The sets, in order:

1. `_on_device`: communication_device, copy_device, other_device, launch_capture, launch_call, other_process (behind
   the launch);
2. what is left of an idle span whose following compute had been launched before: launch_queued. Of the others:
3. `_on_host`: launch_latency, copy_call, sync_wait, sync_return, sync_idle, sync_unknown, launch_setup,
   host_allocation, host_api, host_compute, other_process (all of it), other_thread;
4. `_on_other_threads`: host_wait, host_lock (inside a range, then by the interpreter's lock);
5. the rest: host_code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tracer.analysis.calls import PlainCalls
from tracer.analysis.step_work import Compute, step_compute
from tracer.analysis.tokens import Steps
from tracer.analysis.waited_for import Thread, functions_of, on_threads
from tracer.analysis.waits import last_awaited, poll_loops, targets
from tracer.analysis.waits_elsewhere import HostFunctionWaits, waits_for_host_functions
from tracer.model.calls import (
    BEGIN_CAPTURE,
    BLOCKING_COPY,
    COPY,
    END_CAPTURE,
    GRAPH_LAUNCH,
    LAUNCH,
    SYNC,
    is_allocation,
    is_setup,
)
from tracer.model.columns import Columns, Several, among, grouped, joined, several, spread
from tracer.model.intervals import Bools, Ints, covered, intersection, touching, union
from tracer.model.schema import COMPUTE_TABLES, MOST_NS, PROFILER_DOMAINS
from tracer.model.tables import Api, Nvtx
from tracer.model.trace import Trace

CAUSES: Final = {
    "communication": "communication",
    "sync": "sync",
    "copy": "copy",
    "launch": "launch",
    "host": "host",
    "other": "other process/thread",
}
"""Column -> the cause's name."""

PARTS: Final = {
    "communication": {"communication_device": "collectives (NCCL, RCCL, ...), including waiting for other ranks"},
    "sync": {
        "sync_wait": "waiting for work that had not ended",
        "sync_return": "return after that work had ended",
        "sync_idle": "nothing to wait for",
        "sync_unknown": "waiting for work that the trace does not name",
    },
    "copy": {"copy_device": "device copies or memsets", "copy_call": "inside a copy call"},
    "launch": {
        "launch_call": "inside a launch call",
        "launch_latency": "from its return to the first kernel",
        "launch_queued": "launched before the device became idle",
        "launch_capture": "capturing a graph",
        "launch_setup": "graph instantiation, update, upload",
    },
    "host": {
        "host_allocation": "allocation and free calls",
        "host_api": "other CUDA calls",
        "host_compute": "host compute",
        "host_wait": "waiting for a lock, queue or message",
        "host_lock": "another thread at work: perhaps a lock (GIL)",
        "host_code": "plain host code",
    },
    "other": {
        "other_device": "other device",
        "other_thread": "other thread in a CUDA call",
        "other_process": "other process or thread computing",
    },
}
"""Cause's column -> part's column -> the part's name.

A sync, or a loop that queries whether work has completed, waits until the last activity of its target (see `waits`)
that ends inside it. A copy without a device record counts as running for the whole call. In `launch_queued` the device,
not the host, takes the time. `sync_return` is also the time without a call until a host function behind the work has
returned, if the thread in nearly every step goes on only then (`waits_elsewhere`). `host_compute` is in the NVTX ranges
`split N: host` of this project's executor. `host_wait`: inside a Python function that waits. `host_lock`: the thread
makes no call while another thread of its process is inside an NVTX range of its own, or, where Python functions are
recorded, while another one has the interpreter's lock (`waited_for`); that it waits for that thread is a guess.
"""

PART_NAMES: Final = {part: name for parts in PARTS.values() for part, name in parts.items()}
PART_COLUMNS: Final = list(PART_NAMES)
CAUSE_OF: Final = {part: cause for cause, parts in PARTS.items() for part in parts}
"""Part's column -> its cause's column."""

_HOST_COMPUTE: Final = re.compile(r"split [0-9]{1,9}: host")
_NO_WORK: Final = PROFILER_DOMAINS - {"cpu_op"}

Spans = tuple[Ints, Ints]
_NONE: Final = np.zeros(0, np.int64)


def present(causes_us: Mapping[str, float]) -> dict[str, float]:
    """The causes, without communication if there is none, for each device separately."""
    return {name: us for name, us in causes_us.items() if us or name != CAUSES["communication"]}


def names_host_compute(text: str) -> bool:
    """Whether a range of this text marks the host computing part of the graph."""
    return _HOST_COMPUTE.fullmatch(text) is not None


class IdleSpans(Columns):
    """Idle spans; those of one thread and device do not overlap.

    Attributes:
        start, end: ns.
        device: that waits.
        correlation, process: of the compute that follows.
        step_process, step_thread: of the step that launched it.
    """

    start: Ints
    end: Ints
    device: Ints
    correlation: Ints
    process: Ints
    step_process: Ints
    step_thread: Ints


class _Launched(IdleSpans):
    """Idle spans with the row in `trace.api` of the launch of the compute that follows (or -1), and its thread; process
    and thread are those of the step if the trace lacks the call."""

    call: Ints
    thread: Ints


@dataclass(frozen=True, eq=False)
class Split(Several):
    """How long each part takes of each idle span.

    Attributes:
        parts: column of `PART_COLUMNS` -> ns of each idle span; parts that are 0 in all idle spans may be missing.
        length: the number of idle spans.
    """

    parts: dict[str, Ints]
    length: int

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, rows: Any) -> Split:
        """Of some idle spans."""
        length = len(np.empty(self.length, bool)[rows])
        return Split({part: ns[rows] for part, ns in self.parts.items()}, length)

    def part(self, name: str) -> Ints:
        """ns of each idle span, of a part."""
        ns = self.parts.get(name)
        return np.zeros(self.length, np.int64) if ns is None else ns

    def cause(self, name: str) -> Ints:
        """ns of each idle span, of a cause (a column of `CAUSES`)."""
        of_parts = [self.parts[part] for part in PARTS[name] if part in self.parts]
        return sum(of_parts[1:], of_parts[0]) if of_parts else np.zeros(self.length, np.int64)

    def sums(self, number: Ints, count: int) -> Split:
        """The sums over the idle spans of each number below `count`."""
        return Split({part: np.bincount(number, ns, count).astype(np.int64) for part, ns in self.parts.items()}, count)

    def columns(self) -> dict[str, Ints]:
        """All causes, then all parts."""
        return {cause: self.cause(cause) for cause in CAUSES} | {part: self.part(part) for part in PART_COLUMNS}


class _OnDevice(Columns):
    """Work on devices: start and end (ns), device, process."""

    start: Ints
    end: Ints
    device: Ints
    process: Ints


class _OfStep(_OnDevice):
    """Compute of steps, with the process and thread of the step."""

    step_process: Ints
    step_thread: Ints


class _Captures(Columns):
    """Stream captures of threads, from their begin to their end; what is launched in one does not run."""

    start: Ints
    end: Ints
    process: Ints
    thread: Ints

    @classmethod
    def of(cls, api: Api) -> _Captures:
        """Those that end."""
        edges = api[among(api.letter, [BEGIN_CAPTURE, END_CAPTURE])]
        edges = edges[np.lexsort((edges.start, edges.thread, edges.process))]
        begins = (edges.letter == BEGIN_CAPTURE)[:-1] & (edges.letter == END_CAPTURE)[1:]
        begins &= (edges.process[1:] == edges.process[:-1]) & (edges.thread[1:] == edges.thread[:-1])
        at = np.flatnonzero(begins)
        return cls(edges.start[at], edges.end[at + 1], edges.process[at], edges.thread[at])


class _NearCalls(PlainCalls):
    """Calls; `behind_copy` tells whether they follow a copy call of their thread without a sync."""

    behind_copy: Bools


@dataclass(frozen=True)
class Near:
    """Everything between the first and the last compute of the steps, which may explain idle spans there: calls,
    captures, polling loops, waits for host functions, copies, collectives, NVTX ranges; and, with several devices,
    hosts or processes, compute of the steps and all compute.
    """

    calls: _NearCalls
    captures: _Captures
    copies: _OnDevice
    compute: _OfStep
    all_compute: _OnDevice
    communication: _OnDevice
    ranges: Nvtx
    polls: _NearCalls
    host_functions: HostFunctionWaits

    @classmethod
    def of(cls, trace: Trace, steps: Steps, compute: Compute) -> Near:
        """The part of the trace near the steps; `compute` is theirs, from `step_compute`. Steps that were not chosen
        explain idle spans as well."""
        if steps.beside is not None or steps.device is not None:
            steps = steps.whole
            compute = step_compute(trace, steps)
        begin, until = (int(compute.start[0]), int(compute.end.max())) if len(compute) else (0, 0)

        def near(table: Any) -> Bools:
            return (table.end > begin) & (table.start < until)

        def on_device(table: Any, chosen: Bools) -> _OnDevice:
            return _OnDevice.from_table(table)[chosen]

        api, nvtx, kernels, loops = trace.api, trace.nvtx, trace.kernels, poll_loops(trace)
        is_range = near(nvtx) & ~nvtx.kind.rows("mark") & ~nvtx.domain.rows(*_NO_WORK)
        launched = near(compute) if several(compute.device) or not steps.rows.is_of_one_thread else slice(0, 0)
        own, owner = compute[launched], compute.at[launched]
        tables: list[Any] = [trace.table(name) for name in COMPUTE_TABLES]
        strangers = several(np.concatenate([table.process for table in tables]))
        captures = _Captures.of(api)
        return cls(
            _NearCalls.from_table(api, behind_copy=_behind_copy(trace))[near(api)],
            captures[near(captures)],
            joined([on_device(table, near(table)) for table in (trace.memcpys, trace.memsets)]),
            _OfStep.from_table(own, step_process=steps.rows.process[owner], step_thread=steps.rows.thread[owner]),
            joined([on_device(table, near(table) & strangers) for table in tables]),
            on_device(kernels, near(kernels) & kernels.collective),
            nvtx[is_range],
            _NearCalls.from_table(loops, behind_copy=np.zeros(len(loops), bool))[near(loops)],
            waits_for_host_functions(trace, steps),
        )


class _Of:
    """What is near idle spans of one device, process, thread and thread of the step."""

    def __init__(self, near: Near, idle: _Launched) -> None:
        self.device, self.process, self.thread = (int(column[0]) for column in (idle.device, idle.process, idle.thread))
        self._step = int(idle.step_process[0]), int(idle.step_thread[0])
        self.near, mine = near, self.on_thread(near.calls)
        self.calls = near.calls if mine.all() else near.calls[mine]

    def on_thread(self, rows: Any) -> Bools:
        """Which rows belong to the thread."""
        return (rows.process == self.process) & (rows.thread == self.thread)

    def of_step(self) -> Bools:
        """Which rows of `Near.compute` were launched by the thread's own steps."""
        compute = self.near.compute
        return (compute.step_process == self._step[0]) & (compute.step_thread == self._step[1])

    def others(self) -> Spans:
        """Compute on the device for steps of other threads, and by other processes."""
        compute, every = self.near.compute, self.near.all_compute
        if not len(compute) and not len(every):
            return _NONE, _NONE
        of_others = _spans(compute, ~self.of_step() & (compute.device == self.device))
        of_strangers = _spans(every, (every.device == self.device) & (every.process != self.process))
        return np.append(of_others[0], of_strangers[0]), np.append(of_others[1], of_strangers[1])


def split(trace: Trace, near: Near, idle: IdleSpans, waited: dict[Thread, Ints] | None = None) -> Split:
    """What the device waits for in each idle span.

    Args:
        near: what may explain idle spans between the compute of its steps.
        waited: receives how long the host waits for which thread, ns of each idle span.
    """
    parts: dict[str, Ints] = {}
    launched = _launched(trace, idle)
    queued = spread(trace.api.end, launched.call, MOST_NS) <= idle.start  # the device takes that time
    keys = (launched.device, launched.process, launched.thread, launched.step_process, launched.step_thread)
    for _, rows in grouped(*keys):
        mine, waits = launched[rows], ~queued[rows]
        of = _Of(near, mine)
        cover = _Cover(parts, len(idle), rows, mine)
        for part, spans in _on_device(trace, of, mine):
            cover.by(part, spans)
        cover.rest("launch_queued", ~waits)
        if waits.any():
            waiting = mine if waits.all() else mine[waits]
            for part, spans in _on_host(trace, of, waiting):
                cover.by(part, spans)
            for part, spans, other in _on_other_threads(trace, of):
                ns = cover.by(part, spans)
                if waited is not None and ns.any():
                    waited[other] = waited.get(other, 0) + ns
            cover.rest("host_code", np.ones(int(waits.sum()), dtype=bool))
    return Split(parts, len(idle))


def calls_in(trace: Trace, idle: IdleSpans) -> tuple[Ints, Ints]:
    """The number of calls of its thread that begin in each idle span, and 1 where a graph launch produced the compute
    that follows it, else 0."""
    launched, api, count = _launched(trace, idle), trace.api, np.zeros(len(idle), np.int64)
    starts = {key: np.sort(api.start[rows]) for key, rows in grouped(api.process, api.thread)}
    for key, rows in grouped(launched.process, launched.thread):
        of_thread = starts.get(key, _NONE)
        first, last = (np.searchsorted(of_thread, side[rows]) for side in (idle.start, idle.end))
        count[rows] = last - first
    return count, (spread(api.letter, launched.call, "") == GRAPH_LAUNCH).astype(np.int64)


def _launched(trace: Trace, idle: IdleSpans) -> _Launched:
    call, api = trace.api.of(idle), trace.api
    process, thread = (
        np.where(call >= 0, spread(of_call, call, 0), of_step)
        for of_call, of_step in ((api.process, idle.step_process), (api.thread, idle.step_thread))
    )
    return _Launched.from_table(idle, process=process, call=call, thread=thread)


class _Cover:
    """The explained part of some idle spans; each nanosecond belongs to the first set of intervals that covers it.

    Args:
        parts: the output, see `Split.parts`.
        rows: the idle spans' positions in them.
    """

    def __init__(self, parts: dict[str, Ints], length: int, rows: Ints, idle: IdleSpans) -> None:
        self._parts, self._length, self._rows = parts, length, rows
        self._start, self._end = idle.start, idle.end
        self._done = (_NONE, _NONE)
        self._explained = np.zeros(len(rows), np.int64)

    def by(self, part: str, spans: Spans) -> Ints:
        """Assign to this part the time in the idle spans that these intervals cover and no earlier part covers; returns
        that time, ns of each of all idle spans."""
        added = np.zeros(self._length, np.int64)
        if not len(spans[0]):
            return added
        spans = union(*spans)
        met = np.flatnonzero(touching(self._start, self._end, spans))
        if not len(met):
            return added
        first, last = (np.append(*both) for both in zip(self._done, spans, strict=True))
        self._done = union(first, last) if len(self._done[0]) else spans
        now = covered(*self._done, self._start[met], self._end[met])
        added[self._rows[met]] = now - self._explained[met]
        self._add(part, met, now - self._explained[met])
        self._explained[met] = now
        return added

    def rest(self, part: str, chosen: Bools) -> None:
        """Assign the rest of the chosen idle spans to this part; nothing remains of them."""
        self._add(part, chosen, (self._end - self._start - self._explained)[chosen])
        self._rows, self._start, self._end, self._explained = (
            values[~chosen] for values in (self._rows, self._start, self._end, self._explained)
        )

    def _add(self, part: str, met: Any, ns: Ints) -> None:
        if ns.any():
            self._parts.setdefault(part, np.zeros(self._length, np.int64))[self._rows[met]] += ns


def _on_device(trace: Trace, of: _Of, idle: _Launched) -> Iterator[tuple[str, Spans]]:
    """(part, its intervals) that apply in any idle span; a nanosecond belongs to the first that covers it."""
    near, calls = of.near, of.calls
    if len(near.communication):
        here = (near.communication.device == of.device) & (near.communication.process == of.process)
        yield "communication_device", _spans(near.communication, here)
    yield "copy_device", _not_outlasting(trace, _spans(near.copies, near.copies.device == of.device), of, idle)
    if len(near.compute):
        yield "other_device", _spans(near.compute, of.of_step() & (near.compute.device != of.device))
    yield "launch_capture", _spans(near.captures, of.on_thread(near.captures))
    yield "launch_call", _spans(calls, among(calls.letter, [LAUNCH, GRAPH_LAUNCH]))
    yield "other_process", _behind_launch(trace, idle, of.others())


def _on_host(trace: Trace, of: _Of, idle: _Launched) -> Iterator[tuple[str, Spans]]:
    """The intervals that apply only in idle spans whose following compute had not been launched yet; see also
    `_on_other_threads`."""
    near, calls = of.near, of.calls
    calls = calls[touching(calls.start, calls.end, union(idle.start, idle.end))]
    known = idle.call >= 0
    start, called = idle.start[known], trace.api.start[idle.call[known]]
    yield "launch_latency", (np.maximum(called, start), idle.end[known])
    yield "copy_call", _spans(calls, among(calls.letter, [COPY, BLOCKING_COPY]))
    polls, syncs = near.polls[of.on_thread(near.polls)], calls[calls.letter == SYNC]
    yield from _syncs(trace, joined([syncs, polls]) if len(polls) else syncs)
    yield "sync_return", _spans(near.host_functions, of.on_thread(near.host_functions))
    yield "launch_setup", _spans(calls, calls.name.chosen(is_setup))
    yield "host_allocation", _spans(calls, calls.name.chosen(is_allocation))
    yield "host_api", (calls.start, calls.end)
    own_ranges = of.on_thread(near.ranges)
    yield "host_compute", _spans(near.ranges, own_ranges & near.ranges.text.chosen(names_host_compute))
    yield "other_process", of.others()
    if len(of.calls) < len(near.calls):
        yield "other_thread", _spans(near.calls, ~of.on_thread(near.calls) & (near.calls.process == of.process))


def _on_other_threads(trace: Trace, of: _Of) -> Iterator[tuple[str, Spans, Thread]]:
    """The intervals that apply in what `_on_host` leaves of those idle spans, with the thread that is waited for; the
    rest is `host_code`."""
    ranges = of.near.ranges
    others = ranges[~of.on_thread(ranges) & (ranges.process == of.process)]
    return on_threads(functions_of(trace, of.process), others, of.process, of.thread)


def _not_outlasting(trace: Trace, copies: Spans, of: _Of, idle: _Launched) -> Spans:
    """The copies without what lies before the last compute that starts while they go on, of those behind the spans: it
    has not waited for the copy, nor has the host that launched it."""
    if not len(copies[0]):
        return copies
    starts = []
    for name in COMPUTE_TABLES:
        table: Any = trace.table(name)
        behind = (table.device == of.device) & (table.process == of.process)
        starts.append(table.start[behind & np.isin(table.correlation, idle.correlation)])
    begun = np.sort(np.concatenate(starts))
    outlasted = np.append(copies[0].min(), begun)[np.searchsorted(begun, copies[1])]
    return np.maximum(copies[0], outlasted), copies[1]


def _behind_launch(trace: Trace, idle: _Launched, others: Spans) -> Spans:
    """The part of these between the return of the launch of the compute after each idle span and the start of that
    compute.

    The device is working for others, so the launch has no part in it.
    """
    if not len(others[0]):
        return others
    known = idle[idle.call >= 0]
    returned = np.maximum(trace.api.end[known.call], known.start)
    late = returned < known.end
    return intersection(others, (returned[late], known.end[late]))


def _syncs(trace: Trace, syncs: _NearCalls) -> Iterator[tuple[str, Spans]]:
    """The syncs and polling loops, split at the end of what they waited for."""
    if not len(syncs):
        return
    asked, start, end = targets(trace, syncs), syncs.start, syncs.end
    until = np.where(syncs.behind_copy, end, last_awaited(trace, syncs, asked).end)
    waited = until > start
    yield "sync_wait", (start[waited], until[waited])
    yield "sync_return", (until[waited], end[waited])
    for part, selected in (("sync_idle", asked.known | syncs.behind_copy), ("sync_unknown", ~asked.known)):
        yield part, (start[~waited & selected], end[~waited & selected])


def _behind_copy(trace: Trace) -> Bools:
    """Which API calls follow a copy call of their thread without a sync in between; none if the trace has the device's
    copies."""
    api = trace.api
    behind = np.zeros(len(api), dtype=bool)
    if len(trace.memcpys):
        return behind
    for _, rows in grouped(api.process, api.thread):
        order, letters = np.arange(len(rows)), api.letter[rows]
        copy = np.maximum.accumulate(np.where(among(letters, [COPY, BLOCKING_COPY]), order, -1))
        sync = np.maximum.accumulate(np.where(letters == SYNC, order, -1))
        behind[rows] = copy > np.append(-1, sync[:-1])
    return behind


def _spans(table: Any, rows: Bools) -> Spans:
    return table.start[rows], table.end[rows]
