"""What a device waits for while it computes nothing: every nanosecond of a window has one cause, and one part of it.

A window is a time in which a device runs no compute: an inter-token gap, or a bubble inside a step. Each part is what
one set of intervals covers of the window and none before it in `_covering` did, so parts add up to their cause and
causes to the window, exactly. *The thread* is the one that launches the compute behind the window.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.calls import (
    BLOCKING_COPY,
    COPY,
    GRAPH_LAUNCH,
    LAUNCH,
    SYNC,
    among,
    by_thread,
    is_allocation,
    is_setup,
    letters_of,
    rows_named,
)
from tracer.analysis.polls import poll_loops
from tracer.analysis.step_work import launch_rows
from tracer.analysis.tokens import Steps
from tracer.analysis.waits import last_awaited, targets
from tracer.collectives import collectives
from tracer.intervals import covered, intersection, touching, union
from tracer.schema import COMPUTE_TABLES, DEVICE_TABLES, MOST_NS, PROFILER_DOMAINS, PYTHON_FUNCTION
from tracer.trace import Trace

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
    "communication": {"communication_device": "collectives (NCCL, RCCL, ...), waiting for other ranks included"},
    "sync": {
        "sync_wait": "waiting for work that had not ended",
        "sync_return": "return after that work had ended",
        "sync_idle": "nothing to wait for",
        "sync_unknown": "waiting for what the trace does not tell",
    },
    "copy": {"copy_device": "device copies or fills", "copy_call": "inside a copy call"},
    "launch": {
        "launch_call": "inside a launch call",
        "launch_latency": "from its return to the first kernel",
        "launch_queued": "launched before the device fell idle",
        "launch_setup": "graph instantiation, update, upload",
    },
    "host": {
        "host_allocation": "allocation and free calls",
        "host_api": "other CUDA calls",
        "host_compute": "host compute",
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

A sync, or a loop that asks whether work has ended, waits until the last activity of what it waits for (see `waits`)
that ends inside it; a copy of which the trace has no device record counts as running for the whole call.
`launch_queued`: the device, not the host, takes that time. `host_compute` lies in the NVTX ranges `split N: host` that
our executor sets. `host_lock`: the thread makes no call while another thread of its process is inside an NVTX range of
its own; that it waits for it is a guess.
"""

PART_NAMES: Final = {part: name for parts in PARTS.values() for part, name in parts.items()}
PART_COLUMNS: Final = list(PART_NAMES)

_HOST_COMPUTE: Final = r"split \d+: host$"
_NO_WORK: Final = PROFILER_DOMAINS - {"cpu_op", PYTHON_FUNCTION}

Spans = tuple[NDArray[np.int64], NDArray[np.int64]]


def present(causes_us: Mapping[str, float]) -> dict[str, float]:
    """The causes, without communication where there is none, as of any one device by itself."""
    return {name: us for name, us in causes_us.items() if us or name != CAUSES["communication"]}


def of_host_compute(ranges: pd.DataFrame) -> NDArray[np.bool_]:
    """Which rows of trace["nvtx"] say that the host computes a part of the graph."""
    return rows_named(ranges["text"], lambda text: re.match(_HOST_COMPUTE, text) is not None)


def split_windows(trace: Trace, steps: Steps, compute: pd.DataFrame, windows: pd.DataFrame) -> pd.DataFrame:
    """The causes of windows and the parts of them.

    Args:
        trace: the recording.
        steps: its token steps.
        compute: what they compute, as `step_compute` gives it.
        windows: one row per window, index 0, 1, ...: start end (ns) device, correlation and process of the compute
            behind it, step_process and step_thread of the step that launched that.

    Returns:
        A row per window, all ns: the columns of `CAUSES`, of `PART_COLUMNS`, and two counts: calls, how many of the
        thread's CUDA calls begin in it, and graph_launch, 1 where the compute behind it comes from a graph launch.
    """
    call = launch_rows(trace, windows)
    windows = _with_thread(trace, call, windows)
    parts = {name: np.zeros(len(windows), np.int64) for name in [*PART_COLUMNS, "calls"]}
    near = _Near.of(trace, steps, compute, windows)
    keys = ["device", "process", "thread", "step_process", "step_thread"]
    for rows in windows.groupby(keys, sort=False).indices.values():
        mine = windows.iloc[rows]
        bounds = (mine["start"].to_numpy(), mine["end"].to_numpy())
        remaining = bounds[1] - bounds[0]
        done, before = (bounds[0][:0], bounds[0][:0]), np.zeros(len(rows), np.int64)
        for part, (starts, ends) in _covering(trace, near, mine):
            if not len(starts):
                continue
            done = union(np.concatenate((done[0], starts)), np.concatenate((done[1], ends)))
            now = covered(*done, *bounds)
            parts[part][rows] += now - before
            before = now
        parts["host_code"][rows] += remaining - before
        calls = np.sort(near.calls_of(mine)["start"].to_numpy())
        parts["calls"][rows] = np.searchsorted(calls, bounds[1]) - np.searchsorted(calls, bounds[0])
    causes = {cause: sum(parts[part] for part in inner) for cause, inner in PARTS.items()}
    launch = np.append(letters_of(trace["api"]["name"]), "")[call]
    return pd.DataFrame(causes | parts | {"graph_launch": (launch == GRAPH_LAUNCH).astype(np.int64)})


def _with_thread(trace: Trace, call: NDArray[np.int64], windows: pd.DataFrame) -> pd.DataFrame:
    """The windows with `call` and with process and thread of that call; the step's own where the trace lacks it."""
    found, changed = call >= 0, {"call": call}
    for column in ("process", "thread"):
        values = windows[f"step_{column}"].to_numpy().copy()
        values[found] = trace["api"][column].to_numpy()[call[found]]
        changed[column] = values
    return windows.assign(**changed)


@dataclass(frozen=True)
class _Near:
    """What shares time with any window: calls (`letter`, `behind_copy`), polling loops, copies, collectives, NVTX
    ranges, and compute of the steps and of all, where it is of several devices or hosts, or processes."""

    api: pd.DataFrame
    copies: pd.DataFrame
    compute: pd.DataFrame
    all_compute: pd.DataFrame
    communication: pd.DataFrame
    ranges: pd.DataFrame
    polls: pd.DataFrame

    @classmethod
    def of(cls, trace: Trace, steps: Steps, compute: pd.DataFrame, windows: pd.DataFrame) -> _Near:
        merged = union(windows["start"], windows["end"])

        def near(frame: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
            return pd.DataFrame(frame.loc[touching(frame["start"], frame["end"], merged), columns])

        on_device, on_thread = ["start", "end", "device", "process"], ["start", "end", "process", "thread"]
        api = near(trace["api"], [*on_thread, "correlation", "name"])
        ranges = near(trace["nvtx"], [*on_thread, "text", "domain", "kind"])
        several = len(steps.table[["process", "thread"]].drop_duplicates()) > 1
        of_steps = near(compute if several else _if_several("device", compute)[0], [*on_device, "at"])
        owners = steps.table[["process", "thread"]].to_numpy()[of_steps["at"]]
        return cls(
            api.assign(letter=letters_of(api["name"]), behind_copy=_behind_copy(trace)[api.index]),
            pd.concat([near(trace[name], on_device) for name in ("memcpys", "memsets")], ignore_index=True),
            of_steps.assign(step_process=owners[:, 0], step_thread=owners[:, 1]),
            pd.concat([near(f, on_device) for f in _if_several("process", *(trace[n] for n in COMPUTE_TABLES))]),
            near(trace["kernels"][collectives(trace["kernels"])], on_device),
            ranges[(ranges["kind"] != "mark") & ~ranges["domain"].isin(_NO_WORK)],
            near(poll_loops(trace), [*on_thread, "correlation", "name", "letter"]).assign(behind_copy=False),
        )

    def calls_of(self, windows: pd.DataFrame) -> pd.DataFrame:
        """The calls of the thread whose windows these are."""
        return self.api[self.on_thread(self.api, windows)]

    def on_thread(self, frame: pd.DataFrame, windows: pd.DataFrame) -> NDArray[np.bool_]:
        """Which rows are of that thread."""
        process, thread = windows["process"].iloc[0], windows["thread"].iloc[0]
        return np.asarray((frame["process"] == process) & (frame["thread"] == thread))


def _if_several(column: str, *frames: pd.DataFrame) -> list[pd.DataFrame]:
    """The frames, or nothing of them where all rows are of one device (or process) and so none of another."""
    values = [frame[column].to_numpy() for frame in frames if len(frame)]
    several = any((each != values[0][0]).any() for each in values)
    return [frame if several else frame.iloc[:0] for frame in frames]


def _covering(trace: Trace, near: _Near, windows: pd.DataFrame) -> Iterator[tuple[str, Spans]]:
    """(part, its intervals), the first that covers a nanosecond has it; the rest is `host_code`."""
    device, process = windows["device"].iloc[0], windows["process"].iloc[0]
    calls = near.calls_of(windows)
    letters = calls["letter"].to_numpy(dtype="U1")
    communicates = near.communication
    mine = (communicates["device"] == device) & (communicates["process"] == process)
    yield "communication_device", _spans(communicates[mine])
    yield "copy_device", _spans(near.copies[near.copies["device"] == device])
    owner = (near.compute["step_process"] == windows["step_process"].iloc[0]) & (
        near.compute["step_thread"] == windows["step_thread"].iloc[0]
    )
    yield "other_device", _spans(near.compute[owner & (near.compute["device"] != device)])
    yield "launch_call", _spans(calls[among(letters, [LAUNCH, GRAPH_LAUNCH])])
    others = _spans(
        pd.concat(
            [
                near.compute[~owner & (near.compute["device"] == device)][["start", "end"]],
                near.all_compute.loc[
                    (near.all_compute["device"] == device) & (near.all_compute["process"] != process), ["start", "end"]
                ],
            ]
        )
    )
    yield "other_process", _behind_launch(trace, windows, others)
    yield from _launched(trace, windows)
    yield "copy_call", _spans(calls[among(letters, [COPY, BLOCKING_COPY])])
    polls = near.polls[near.on_thread(near.polls, windows)]
    yield from _syncs(trace, pd.concat([calls[calls["letter"] == SYNC], polls], ignore_index=True))
    yield "launch_setup", _spans(calls[rows_named(calls["name"], is_setup)])
    yield "host_allocation", _spans(calls[rows_named(calls["name"], is_allocation)])
    yield "host_api", _spans(calls)
    mine = near.on_thread(near.ranges, windows)
    yield "host_compute", _spans(near.ranges[mine & of_host_compute(near.ranges)])
    yield "other_process", others
    yield "other_thread", _spans(near.api[~near.on_thread(near.api, windows) & (near.api["process"] == process)])
    yield "host_lock", _spans(near.ranges[~mine & (near.ranges["process"] == process).to_numpy()])


def _behind_launch(trace: Trace, windows: pd.DataFrame, others: Spans) -> Spans:
    """What of these lies behind the return of the launch of the compute behind each window, and before that begins.

    The device is at work for others, so the launch has no part in it.
    """
    known = windows[windows["call"] >= 0]
    returned = np.maximum(trace["api"]["end"].to_numpy()[known["call"]], known["start"].to_numpy())
    until = known["end"].to_numpy()
    late = returned < until
    return intersection(others, (returned[late], until[late]))


def _launched(trace: Trace, windows: pd.DataFrame) -> Iterator[tuple[str, Spans]]:
    """From the launch of the compute behind each window to its end, never before its start."""
    known = windows[windows["call"] >= 0]
    called, returned = (trace["api"][column].to_numpy()[known["call"]] for column in ("start", "end"))
    start, end = known["start"].to_numpy(), known["end"].to_numpy()
    queued = returned <= start
    yield "launch_queued", (start[queued], end[queued])
    yield "launch_latency", (np.maximum(called, start)[~queued], end[~queued])


def _syncs(trace: Trace, syncs: pd.DataFrame) -> Iterator[tuple[str, Spans]]:
    """The syncs and polling loops, split at the end of what they waited for."""
    start, end = _spans(syncs)
    until, known = _waited_until(trace, syncs)
    behind = syncs["behind_copy"].to_numpy()
    until = np.where(behind, end, until)
    waited = until > start
    yield "sync_wait", (start[waited], until[waited])
    yield "sync_return", (until[waited], end[waited])
    for part, mine in (("sync_idle", known | behind), ("sync_unknown", ~known)):
        yield part, (start[~waited & mine], end[~waited & mine])


def _waited_until(trace: Trace, syncs: pd.DataFrame) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Per sync the end of what it waited for, ns, -`MOST_NS` where that had ended; and whether the trace tells."""
    inside = union(syncs["start"], syncs["end"])
    columns = ["process", "device", "context", "stream", "end", "correlation"]
    tables = (trace[name] for name in DEVICE_TABLES)
    ended = pd.concat([t.loc[touching(t["end"] - 1, t["end"], inside), columns] for t in tables], ignore_index=True)
    asked = targets(trace, syncs)
    last = last_awaited(trace, ended, syncs, asked)
    return np.append(ended["end"].to_numpy(), -MOST_NS)[last], asked.known


def _behind_copy(trace: Trace) -> NDArray[np.bool_]:
    """Which API calls have a copy call of their thread between themselves and the sync before, in a trace without the
    device's copies; in others none."""
    api = trace["api"]
    behind = np.zeros(len(api), dtype=bool)
    if len(trace["memcpys"]):
        return behind
    letters = letters_of(api["name"])
    for _, _, rows in by_thread(api):
        order, mine = np.arange(len(rows)), letters[rows]
        copy = np.maximum.accumulate(np.where(among(mine, [COPY, BLOCKING_COPY]), order, -1))
        sync = np.maximum.accumulate(np.where(mine == SYNC, order, -1))
        behind[rows] = copy > np.append(-1, sync[:-1])
    return behind


def _spans(frame: pd.DataFrame) -> Spans:
    return frame["start"].to_numpy(), frame["end"].to_numpy()
