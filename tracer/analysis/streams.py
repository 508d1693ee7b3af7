"""How busy each stream is and how much streams overlap, from unions of intervals rather than sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from tracer.analysis.step_work import activity_steps
from tracer.analysis.tokens import Steps
from tracer.errors import EmptyTraceError
from tracer.model.collectives import computes
from tracer.model.intervals import overlap, total, union
from tracer.model.trace import Trace


@dataclass(frozen=True)
class StreamReport:
    """Busy time per stream and per device.

    Attributes:
        streams: one row per (device, process, stream): device process stream kernels copies bytes busy_us compute_us
            communication_us (collectives, which are kernels but not compute) busy_share (of the window). A graph
            traced at graph level counts as one kernel of the stream that launched it.
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
        steps: only what these steps launched; None for the whole recording. The window of a device runs from its first
            to its last activity, summed over the groups of steps.

    Raises:
        EmptyTraceError: nothing ran on a device.
    """
    activities = trace.activities()
    activities["group"] = 0
    if steps is not None:
        at = activity_steps(trace, steps, activities)
        activities = activities[at >= 0]
        activities["group"] = steps.table["group"].to_numpy()[at[at >= 0]]
    if not len(activities):
        raise EmptyTraceError("nothing ran on a device in the chosen part of the trace")
    streams, devices = [], []
    for device, on_device in activities.groupby("device"):
        groups = on_device.groupby("group")
        window = int((groups["end"].max() - groups["start"].min()).sum())
        rows = [
            {"device": device, "process": process, "stream": stream, **_stream_row(on_stream, window)}
            for (process, stream), on_stream in on_device.groupby(["process", "stream"])
        ]
        streams += rows
        devices.append({"device": device, **_device_row(on_device, window)})
    return StreamReport(pd.DataFrame(streams), pd.DataFrame(devices))


def _stream_row(activities: pd.DataFrame, window: int) -> dict[str, Any]:
    computing, collective = activities[computes(activities)], activities[activities["collective"]]
    busy = total(activities["start"], activities["end"])
    return {
        "kernels": len(computing) + len(collective),
        "copies": int((activities["table"] == "memcpys").sum()),
        "bytes": int(activities["bytes"].sum()),
        "busy_us": busy / 1e3,
        "compute_us": total(computing["start"], computing["end"]) / 1e3,
        "communication_us": total(collective["start"], collective["end"]) / 1e3,
        "busy_share": busy / window if window else 0.0,
    }


def _device_row(on_device: pd.DataFrame, window: int) -> dict[str, Any]:
    compute = on_device[computes(on_device)]
    both = on_device[computes(on_device) | on_device["collective"]]
    per_stream = [
        union(of_stream["start"], of_stream["end"]) for _, of_stream in compute.groupby(["process", "stream"])
    ]
    starts, ends = (np.concatenate([u[i] for u in per_stream] or [np.zeros(0, np.int64)]) for i in (0, 1))
    busy, computing = total(on_device["start"], on_device["end"]), total(starts, ends)
    return {
        "streams": len(on_device[["process", "stream"]].drop_duplicates()),
        "window_us": window / 1e3,
        "busy_us": busy / 1e3,
        "busy_share": busy / window if window else 0.0,
        "communication_us": (total(both["start"], both["end"]) - computing) / 1e3,
        "overlap_us": overlap(starts, ends) / 1e3,
        "concurrency": float((ends - starts).sum() / computing) if computing else 0.0,
    }
