"""Streams: how busy each is and how much they overlap, the bubbles in a step, and what each stream waits for.

Lengths are unions of intervals rather than sums. A bubble is a period without compute on a device between the first and
the last compute of a step. It belongs to one host (process and thread); compute of others on the device in the meantime
is one of its causes.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.causes import CAUSES, PART_COLUMNS, Near, Windows, calls_in, split
from tracer.analysis.step_work import Compute, activity_steps, step_compute, step_spans
from tracer.analysis.tokens import Steps
from tracer.errors import EmptyTraceError
from tracer.model.columns import NEVER, grouped, numbers, ranks, runs, spread
from tracer.model.intervals import Ints, overlap, total, union
from tracer.model.schema import DEVICE_TABLES, MISSING
from tracer.model.tables import Activities
from tracer.model.trace import Trace
from tracer.text import json_rows

WAITS: Final = {
    "launch": "launch by the host",
    "event": "another stream",
    "latency": "start on the device",
    "done": "nothing more to do",
}
"""Part of a stream's idle time -> what the stream waits for."""

_STREAM: Final = ["device", "step", "stream"]
_LANE: Final = ["device", "process", "stream"]


@dataclass(frozen=True)
class StreamReport:
    """Busy time per stream and per device.

    Attributes:
        streams: one row per (device, process, stream): device process stream kernels copies bytes busy_us compute_us
            communication_us (collectives, which are kernels but not compute) busy_share (of the window). A graph
            traced at graph level counts as one kernel of the stream that launched it. The bytes are NA where the
            recording lacks the size of a copy.
        devices: one row per device: device streams window_us busy_us (union over its streams) busy_share
            communication_us (while nothing computes) overlap_us (two or more streams compute)
            concurrency (streams' compute time / device's compute time; 1 if nothing overlaps).
    """

    streams: pd.DataFrame
    devices: pd.DataFrame


def stream_report(trace: Trace, steps: Steps | None = None) -> StreamReport:
    """Busy time and overlap of the streams.

    Args:
        trace: the recording.
        steps: only what these steps launched; None for the whole recording. The window of a device runs from the first
            to the last activity of each group of steps; groups of several hosts that overlap count once.

    Raises:
        EmptyTraceError: nothing ran on a device.
    """
    activities = trace.activities()
    group = np.zeros(len(activities), np.int64)
    if steps is not None:
        at = activity_steps(trace, steps, activities)
        activities, group = activities[at >= 0], steps.rows.group[at[at >= 0]]
    if not len(activities):
        raise EmptyTraceError("nothing ran on a device in the chosen part of the trace")
    streams, devices = [], []
    for (device,), mine in sorted(grouped(activities.device), key=itemgetter(0)):
        on_device = activities[mine]
        order, first = runs(group[mine])
        begin, end = on_device.start[order], on_device.end[order]
        window = total(np.minimum.reduceat(begin, first), np.maximum.reduceat(end, first))
        of_streams = sorted(grouped(on_device.process, on_device.stream), key=itemgetter(0))
        streams += [
            {"device": device, "process": process, "stream": stream, **_stream_row(on_device[rows], window)}
            for (process, stream), rows in of_streams
        ]
        devices.append({"device": device, **_device_row(on_device, window)})
    return StreamReport(pd.DataFrame(streams).astype({"bytes": "Int64"}), pd.DataFrame(devices))


def _stream_row(activities: Activities, window: int) -> dict[str, Any]:
    computing, collective = activities[activities.computes], activities[activities.collective]
    busy = total(activities.start, activities.end)
    return {
        "kernels": len(computing) + len(collective),
        "copies": int((activities.table == DEVICE_TABLES.index("memcpys")).sum()),
        "bytes": pd.NA if (activities.bytes == MISSING).any() else int(activities.bytes.sum()),
        "busy_us": busy / 1e3,
        "compute_us": total(computing.start, computing.end) / 1e3,
        "communication_us": total(collective.start, collective.end) / 1e3,
        "busy_share": busy / window if window else 0.0,
    }


def _device_row(on_device: Activities, window: int) -> dict[str, Any]:
    compute, both = on_device[on_device.computes], on_device[on_device.computes | on_device.collective]
    per_stream = [union(compute.start[rows], compute.end[rows]) for _, rows in grouped(compute.process, compute.stream)]
    starts, ends = (np.concatenate([u[i] for u in per_stream] or [np.zeros(0, np.int64)]) for i in (0, 1))
    busy, computing = total(on_device.start, on_device.end), total(starts, ends)
    return {
        "streams": numbers(on_device.process, on_device.stream)[1],
        "window_us": window / 1e3,
        "busy_us": busy / 1e3,
        "busy_share": busy / window if window else 0.0,
        "communication_us": (total(both.start, both.end) - computing) / 1e3,
        "overlap_us": overlap(starts, ends) / 1e3,
        "concurrency": float((ends - starts).sum() / computing) if computing else 0.0,
    }


@dataclass(frozen=True)
class BubbleReport:
    """The bubbles of a trace.

    Attributes:
        table: one row per bubble, by device and start: step device start end length and the columns of
            `windows.split_windows`, ns. Communication between start and end is separate: length excludes it.
        steps: one row per device and step that computes there: device step count total longest (ns), and the causes
            and parts of all its bubbles, ns; except for communication, which is not idle, they add up to total.
        streams: `stream_waits`.
    """

    table: pd.DataFrame
    steps: pd.DataFrame
    streams: pd.DataFrame

    @property
    def devices(self) -> pd.DataFrame:
        """One row per device: device steps, means per step: count, total_us and the causes, µs; the overall
        longest_us."""
        groups = self.steps.groupby("device")
        found = groups[["total", *CAUSES]].mean() / 1e3
        found = found.rename(columns={"total": "total_us", **{cause: f"{cause}_us" for cause in CAUSES}})
        found.insert(0, "steps", groups.size())
        found.insert(1, "count", groups["count"].mean())
        found.insert(3, "longest_us", groups["longest"].max() / 1e3)
        return found.reset_index()

    def records(self) -> dict[str, list[dict[str, Any]]]:
        """devices, steps and streams as JSON-able records."""
        tables = {"devices": self.devices, "steps": self.steps, "streams": self.streams}
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
    step, windows = _bubbles(compute, steps)
    parts, (calls, graph_launch) = split(trace, Near.of(trace, steps, compute), windows), calls_in(trace, windows)
    length = windows.end - windows.start - parts.cause("communication")
    times = {"step": step, "device": windows.device, "start": windows.start, "end": windows.end, "length": length}
    table = pd.DataFrame(times | parts.columns() | {"calls": calls, "graph_launch": graph_launch})
    per_step = table.groupby(["device", "step"]).agg(
        count=("length", np.count_nonzero), total=("length", "sum"), longest=("length", "max"),
        **{name: (name, "sum") for name in [*CAUSES, *PART_COLUMNS]},
    )  # fmt: skip
    every = pd.MultiIndex.from_arrays([spans.device, spans.step], names=["device", "step"])
    per_step = per_step.reindex(every, fill_value=0).reset_index()
    return BubbleReport(table, per_step, stream_waits(trace, steps, spans.frame()))


def _bubbles(compute: Compute, steps: Steps) -> tuple[Ints, Windows]:
    """The windows in which no step computes on a device although at least one has started and not finished, and the
    step of each.

    If there are several such steps, the window belongs to the one that computes longest.
    """
    hosts = ranks(steps.rows.process, steps.rows.thread)
    compute = compute[np.lexsort((compute.start, hosts[compute.at], compute.device))]
    order, first = runs(compute.device, compute.at)
    final = np.empty(len(compute), np.int64)  # of the step on the device
    final[order] = np.repeat(np.maximum.reduceat(compute.end[order], first), np.diff(first, append=len(order)))
    reach, latest, owner = (np.full(len(compute), each) for each in (-NEVER, -NEVER, MISSING))
    for _, rows in grouped(compute.device, hosts[compute.at]):
        reach[rows[1:]] = np.maximum.accumulate(compute.end[rows])[:-1]
        latest[rows[1:]] = np.maximum.accumulate(final[rows])[:-1]
        leads = np.maximum.accumulate(np.where(final[rows] > latest[rows], np.arange(len(rows)), -1))
        owner[rows[1:]] = compute.at[rows][leads][:-1]
    found = np.flatnonzero((compute.start > reach) & (latest > reach))
    found = found[np.lexsort((compute.start[found], compute.device[found]))]
    of = owner[found]
    windows = Windows(
        reach[found], compute.start[found], compute.device[found], compute.correlation[found], compute.process[found],
        steps.rows.process[of], steps.rows.thread[of],
    )  # fmt: skip
    return steps.rows.step[of], windows


def stream_waits(trace: Trace, steps: Steps, spans: pd.DataFrame) -> pd.DataFrame:
    """How long each stream idles between the first and the last compute of a step, and what it waits for.

    It waits for the host until the call that issues its next activity returns. Then, if the trace shows an order
    between streams (a stream wait between the two calls, or one graph launch on several streams), it waits for another
    stream, until the last activity of another stream that ends before its own starts. The rest is the device's start.
    After its last activity, nothing is left to do.

    Args:
        trace: the recording.
        steps: its token steps.
        spans: their `step_spans`.

    Returns:
        device process stream steps (in which it has an activity), and means per such step in µs: idle_us and its parts
        launch_us event_us latency_us done_us; waits_on (the stream it waits for most, or MISSING).
    """
    rows = _stream_rows(trace, steps, spans)
    length = rows["until"] - rows["since"]
    launch = np.where(rows["last"], 0, rows["issued"].clip(rows["since"], rows["until"]) - rows["since"])
    behind, on = _other_stream(rows)
    free = rows["since"] + launch
    event = np.where(rows["ordered"], np.clip(behind, free, rows["until"]) - free, 0)
    parts = {"idle": length, "launch": launch, "event": event}
    parts |= {"latency": np.where(rows["last"], 0, length - launch - event), "done": np.where(rows["last"], length, 0)}
    found = pd.concat([rows[[*_LANE, "last"]].assign(waits_on=on), pd.DataFrame(parts)], axis=1)
    groups = found.groupby(_LANE)
    table = groups[list(parts)].sum().div(groups["last"].sum(), axis=0).div(1e3).add_suffix("_us")
    table.insert(0, "steps", groups["last"].sum())
    mostly = found[event > 0].groupby(_LANE)["waits_on"].agg(lambda streams: streams.mode().iloc[0])
    table["waits_on"] = mostly.reindex(table.index).fillna(MISSING).astype("int64")
    return table.reset_index()


def _stream_rows(trace: Trace, steps: Steps, spans: pd.DataFrame) -> pd.DataFrame:
    """One row per activity of a step, and one for the end of each stream's part in the step (`last`).

    Columns: device step stream since until (the idle time before it, inside the step's compute, ns) end issued (its
    call's return) ordered (it must wait for another stream) last.
    """
    at = activity_steps(trace, steps, trace.activities())
    activities = trace.activities().frame()[["start", "end", "device", "context", "stream", "correlation", "process"]]
    activities = activities[at >= 0].assign(step=steps.table["step"].to_numpy()[at[at >= 0]])
    bounds = spans[["device", "step", "start", "end"]].rename(columns={"start": "first", "end": "final"})
    rows = activities.merge(bounds, on=["device", "step"])
    rows["issued"] = spread(trace.api.end, trace.api.of(rows), -NEVER)
    rows["last"] = False
    ends = rows.drop_duplicates(_STREAM).assign(last=True, correlation=MISSING, issued=-NEVER)
    ends["start"] = ends["end"] = ends["final"]
    rows = pd.concat([rows, ends]).sort_values([*_STREAM, "last", "start"], kind="stable", ignore_index=True)
    streams = rows.groupby(_STREAM, sort=False)
    reach = streams["end"].cummax().groupby([rows[c] for c in _STREAM], sort=False).shift(fill_value=-NEVER)
    rows["until"] = rows["start"].clip(rows["first"], rows["final"])
    rows["since"] = np.minimum(reach.clip(rows["first"], rows["final"]), rows["until"])
    rows["ordered"] = _in_shared_graph(rows) | _behind_stream_wait(trace, rows)
    return rows


def _in_shared_graph(rows: pd.DataFrame) -> NDArray[np.bool_]:
    """Which activities come from a launch that uses several streams."""
    launches = rows[["process", "correlation", "stream"]]
    several = launches.drop_duplicates()
    several = several[several.duplicated(["process", "correlation"])][["process", "correlation"]].drop_duplicates()
    several = several[several["correlation"] >= 0].assign(several=True)
    merged = launches.merge(several, on=["process", "correlation"], how="left")
    return np.asarray(merged["several"].notna())


def _behind_stream_wait(trace: Trace, rows: pd.DataFrame) -> NDArray[np.bool_]:
    """Which activities were issued after a stream wait that was issued after the activity before them."""
    syncs = trace["syncs"]
    waits = syncs[syncs["type"] == "stream wait"]
    behind = np.zeros(len(rows), dtype=bool)
    if not len(waits):
        return behind
    issued = rows["issued"].to_numpy()
    real = np.flatnonzero(~rows["last"])
    for key, positions in rows.iloc[real].groupby(["process", "stream"]).indices.items():
        process, stream = cast("tuple[int, int]", key)
        times = np.sort(waits.loc[(waits["process"] == process) & (waits["stream"] == stream), "start"].to_numpy())
        at = real[positions][np.argsort(issued[real[positions]], kind="stable")]
        count = np.searchsorted(times, issued[at])
        behind[at] = np.diff(count, prepend=0) > 0
    return behind


def _other_stream(rows: pd.DataFrame) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each row, the end of the last activity of another stream of its process and device before `until`, and that
    stream."""
    until, end = (rows[column].to_numpy() for column in ("until", "end"))
    latest, on = np.full(len(rows), -NEVER), np.full(len(rows), MISSING)
    real = ~rows["last"].to_numpy()
    for key, positions in rows.groupby(_LANE).indices.items():
        device, process, stream = cast("tuple[int, int, int]", key)
        here = (rows["device"] == device) & (rows["process"] == process)
        others = np.flatnonzero(real & here & (rows["stream"] != stream))
        if not len(others):
            continue
        others = others[np.argsort(end[others], kind="stable")]
        before = np.searchsorted(end[others], until[positions], side="right") - 1
        known = before >= 0
        latest[positions[known]] = end[others[before[known]]]
        on[positions[known]] = rows["stream"].to_numpy()[others[before[known]]]
    return latest, on
