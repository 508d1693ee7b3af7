"""What a device waits for while it computes nothing: the causes, their parts, and the intervals that reveal each.

*The thread* is the one that launches the compute after a period without compute on the device. `on_device` and
`on_host` give the intervals from which `windows.parts_of` determines the parts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.tokens import Steps
from tracer.analysis.waited_for import Thread, functions_of, on_threads
from tracer.analysis.waits import last_awaited, poll_loops, targets
from tracer.model.calls import BLOCKING_COPY, COPY, GRAPH_LAUNCH, LAUNCH, SYNC, is_allocation, is_setup, letters_of
from tracer.model.collectives import collectives
from tracer.model.intervals import intersection, touching, union
from tracer.model.rows import among, by_thread, groups_of, rows_named, taken
from tracer.model.schema import COMPUTE_TABLES, PROFILER_DOMAINS
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
not the host, takes the time. `host_compute` is in the NVTX ranges `split N: host` of this project's executor.
`host_wait`: inside a Python function that waits. `host_lock`: the thread makes no call while another thread of its
process is inside an NVTX range of its own, or, where Python functions are recorded, while another one has the
interpreter's lock (`waited_for`); that it waits for that thread is a guess.
"""

PART_NAMES: Final = {part: name for parts in PARTS.values() for part, name in parts.items()}
PART_COLUMNS: Final = list(PART_NAMES)
CAUSE_OF: Final = {part: cause for cause, parts in PARTS.items() for part in parts}
"""Part's column -> its cause's column."""

_HOST_COMPUTE: Final = re.compile(r"split [0-9]{1,9}: host")
_NO_WORK: Final = PROFILER_DOMAINS - {"cpu_op"}

Spans = tuple[NDArray[np.int64], NDArray[np.int64]]
_ALL: Final = slice(None)


def present(causes_us: Mapping[str, float]) -> dict[str, float]:
    """The causes, without communication if there is none, for each device separately."""
    return {name: us for name, us in causes_us.items() if us or name != CAUSES["communication"]}


def of_host_compute(ranges: pd.DataFrame) -> NDArray[np.bool_]:
    """Which rows of trace["nvtx"] mark the host computing part of the graph."""
    return rows_named(ranges["text"], names_host_compute)


def names_host_compute(text: str) -> bool:
    """Whether a range of this text marks the host computing part of the graph."""
    return _HOST_COMPUTE.fullmatch(text) is not None


@dataclass(frozen=True)
class Near:
    """Everything between the first and the last compute of the steps, which may explain windows there: calls
    (`letter`, `behind_copy`), polling loops, copies, collectives, NVTX ranges; and, with several devices, hosts or
    processes, compute of the steps and all compute.
    """

    api: pd.DataFrame
    copies: pd.DataFrame
    compute: pd.DataFrame
    all_compute: pd.DataFrame
    communication: pd.DataFrame
    ranges: pd.DataFrame
    polls: pd.DataFrame

    @classmethod
    def of(cls, trace: Trace, steps: Steps, compute: pd.DataFrame) -> Near:
        """The part of the trace near the steps; `compute` is theirs, from `step_compute`."""
        period = compute["start"].to_numpy()[:1], np.maximum.accumulate(compute["end"].to_numpy())[-1:]

        def meets(frame: pd.DataFrame) -> NDArray[np.bool_]:
            return touching(frame["start"], frame["end"], period)

        def near(frame: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
            return taken(frame, meets(frame), columns)

        on_device, on_thread = ["start", "end", "device", "process"], ["start", "end", "process", "thread"]
        called = meets(trace["api"])
        api = taken(trace["api"], called, [*on_thread, "correlation", "name"])
        ranges = near(trace["nvtx"], [*on_thread, "text", "domain", "kind"])
        several = groups_of(steps.table, ["process", "thread"])[1] > 1
        of_steps = near(compute if several else _if_several("device", compute)[0], [*on_device, "at"])
        owners = steps.table[["process", "thread"]].to_numpy()[of_steps["at"]]
        return cls(
            api.assign(letter=letters_of(api["name"]), behind_copy=_behind_copy(trace)[called]),
            pd.concat([near(trace[name], on_device) for name in ("memcpys", "memsets")], ignore_index=True),
            of_steps.assign(step_process=owners[:, 0], step_thread=owners[:, 1]),
            pd.concat([near(f, on_device) for f in _if_several("process", *(trace[n] for n in COMPUTE_TABLES))]),
            near(taken(trace["kernels"], collectives(trace["kernels"]), on_device), on_device),
            ranges[(ranges["kind"] != "mark") & ~ranges["domain"].isin(_NO_WORK)],
            near(poll_loops(trace), [*on_thread, "correlation", "name", "letter"]).assign(behind_copy=False),
        )

    def calls_of(self, windows: pd.DataFrame) -> pd.DataFrame:
        """The calls of the thread that these windows belong to."""
        mine = self.on_thread(self.api, windows)
        return self.api if mine.all() else self.api[mine]

    def on_thread(self, frame: pd.DataFrame, windows: pd.DataFrame) -> NDArray[np.bool_]:
        """Which rows belong to that thread."""
        process, thread = windows["process"].iloc[0], windows["thread"].iloc[0]
        return _is(frame, process=process, thread=thread)

    def of_step(self, windows: pd.DataFrame) -> NDArray[np.bool_]:
        """Which rows of `compute` were launched by the thread's own steps."""
        process, thread = windows["step_process"].iloc[0], windows["step_thread"].iloc[0]
        return _is(self.compute, step_process=process, step_thread=thread)


def _if_several(column: str, *frames: pd.DataFrame) -> list[pd.DataFrame]:
    """The frames; without rows if all are of one device (or process), so that none belong to another."""
    values = [frame[column].to_numpy() for frame in frames if len(frame)]
    several = any((each != values[0][0]).any() for each in values)
    return [frame if several else frame.iloc[:0] for frame in frames]


def on_device(trace: Trace, near: Near, windows: pd.DataFrame) -> Iterator[tuple[str, Spans]]:
    """(part, its intervals) that apply in any window; a nanosecond belongs to the first that covers it."""
    device, process = windows["device"].iloc[0], windows["process"].iloc[0]
    calls = near.calls_of(windows)
    communicates = near.communication
    yield "communication_device", _spans(communicates, _is(communicates, device=device, process=process))
    yield "copy_device", _not_outlasting(trace, _spans(near.copies, _is(near.copies, device=device)), windows)
    yield "other_device", _spans(near.compute, near.of_step(windows) & ~_is(near.compute, device=device))
    yield "launch_call", _spans(calls, among(calls["letter"].to_numpy(dtype="U1"), [LAUNCH, GRAPH_LAUNCH]))
    yield "other_process", _behind_launch(trace, windows, _others(near, windows))


def on_host(trace: Trace, near: Near, windows: pd.DataFrame) -> Iterator[tuple[str, Spans]]:
    """The intervals that apply only in windows whose following compute had not been launched yet; see also
    `on_other_threads`."""
    process, meets = windows["process"].iloc[0], union(windows["start"], windows["end"])
    calls = near.calls_of(windows)
    calls = calls[touching(calls["start"], calls["end"], meets)]
    letters = calls["letter"].to_numpy(dtype="U1")
    yield "launch_latency", _launched(trace, windows)
    yield "copy_call", _spans(calls, among(letters, [COPY, BLOCKING_COPY]))
    polls = near.polls[near.on_thread(near.polls, windows)]
    yield from _syncs(trace, pd.concat([calls[letters == SYNC], polls], ignore_index=True))
    yield "launch_setup", _spans(calls, rows_named(calls["name"], is_setup))
    yield "host_allocation", _spans(calls, rows_named(calls["name"], is_allocation))
    yield "host_api", _spans(calls)
    own_ranges = near.on_thread(near.ranges, windows)
    yield "host_compute", _spans(near.ranges, own_ranges & of_host_compute(near.ranges))
    yield "other_process", _others(near, windows)
    yield "other_thread", _spans(near.api, ~near.on_thread(near.api, windows) & _is(near.api, process=process))


def on_other_threads(trace: Trace, near: Near, windows: pd.DataFrame) -> Iterator[tuple[str, Spans, Thread]]:
    """The intervals that apply in what `on_host` leaves of those windows, with the thread that is waited for; the rest
    is `host_code`."""
    process, thread = int(windows["process"].iloc[0]), int(windows["thread"].iloc[0])
    others = near.ranges[~near.on_thread(near.ranges, windows) & _is(near.ranges, process=process)]
    return on_threads(functions_of(trace, process), others, process, thread)


def _not_outlasting(trace: Trace, copies: Spans, windows: pd.DataFrame) -> Spans:
    """The copies without what lies before the last compute that starts while they go on, of those behind the windows:
    it has not waited for the copy, nor has the host that launched it."""
    if not len(copies[0]):
        return copies
    device, process = windows["device"].iloc[0], windows["process"].iloc[0]
    compute = [trace[name] for name in COMPUTE_TABLES]
    behind = [
        _is(t, device=device, process=process) & np.isin(t["correlation"], windows["correlation"]) for t in compute
    ]
    starts = np.sort(np.concatenate([t["start"].to_numpy()[rows] for t, rows in zip(compute, behind, strict=True)]))
    outlasted = np.append(copies[0].min(), starts)[np.searchsorted(starts, copies[1])]
    return np.maximum(copies[0], outlasted), copies[1]


def _others(near: Near, windows: pd.DataFrame) -> Spans:
    """Compute on the device for steps of other threads, and by other processes."""
    device, process = windows["device"].iloc[0], windows["process"].iloc[0]
    every = near.all_compute
    of_others = _spans(near.compute, ~near.of_step(windows) & _is(near.compute, device=device))
    of_strangers = _spans(every, _is(every, device=device) & ~_is(every, process=process))
    return np.append(of_others[0], of_strangers[0]), np.append(of_others[1], of_strangers[1])


def _behind_launch(trace: Trace, windows: pd.DataFrame, others: Spans) -> Spans:
    """The part of these between the return of the launch of the compute after each window and the start of that
    compute.

    The device is working for others, so the launch has no part in it.
    """
    known = windows[windows["call"] >= 0]
    returned = np.maximum(trace["api"]["end"].to_numpy()[known["call"]], known["start"].to_numpy())
    until = known["end"].to_numpy()
    late = returned < until
    return intersection(others, (returned[late], until[late]))


def _launched(trace: Trace, windows: pd.DataFrame) -> Spans:
    """From the launch of the compute after each window to the window's end, but never before its start."""
    known = windows[windows["call"] >= 0]
    called = trace["api"]["start"].to_numpy()[known["call"]]
    return np.maximum(called, known["start"].to_numpy()), known["end"].to_numpy()


def _syncs(trace: Trace, syncs: pd.DataFrame) -> Iterator[tuple[str, Spans]]:
    """The syncs and polling loops, split at the end of what they waited for."""
    start, end = _spans(syncs)
    asked, behind = targets(trace, syncs), syncs["behind_copy"].to_numpy()
    until, known = np.where(behind, end, last_awaited(trace, syncs, asked)["end"]), asked.known
    waited = until > start
    yield "sync_wait", (start[waited], until[waited])
    yield "sync_return", (until[waited], end[waited])
    for part, selected in (("sync_idle", known | behind), ("sync_unknown", ~known)):
        yield part, (start[~waited & selected], end[~waited & selected])


def _behind_copy(trace: Trace) -> NDArray[np.bool_]:
    """Which API calls follow a copy call of their thread without a sync in between; none if the trace has the device's
    copies."""
    api = trace["api"]
    behind = np.zeros(len(api), dtype=bool)
    if len(trace["memcpys"]):
        return behind
    letters = letters_of(api["name"])
    for _, _, rows in by_thread(api):
        order, thread_letters = np.arange(len(rows)), letters[rows]
        copy = np.maximum.accumulate(np.where(among(thread_letters, [COPY, BLOCKING_COPY]), order, -1))
        sync = np.maximum.accumulate(np.where(thread_letters == SYNC, order, -1))
        behind[rows] = copy > np.append(-1, sync[:-1])
    return behind


def _spans(frame: pd.DataFrame, rows: NDArray[np.bool_] | slice = _ALL) -> Spans:
    return frame["start"].to_numpy()[rows], frame["end"].to_numpy()[rows]


def _is(frame: pd.DataFrame, **values: int) -> NDArray[np.bool_]:
    """Which rows have these values."""
    return np.asarray(np.logical_and.reduce([frame[name].to_numpy() == value for name, value in values.items()]))
