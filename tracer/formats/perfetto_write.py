"""Trace -> Perfetto's protobuf traces: every event as a slice or instant on its track, arrows, and counts per token.

Source of the messages' meaning: Perfetto's own protos (`track_event.proto`, `track_descriptor.proto`,
`interned_data.proto`). Packets of one track are in order of time, those of different tracks are not; readers sort
them.
- A device is the parent track of its streams. Lanes of a stream (see `tracks.py`) share its name, so that the UI draws
  them as one.
- Waits of the host for a stream, and event records at the start of their call, are on the stream's "syncs" track.
- A call has an arrow (flow) with its own id to each device activity that it launched.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, Final

import pandas as pd
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

from tracer.errors import EmptyTraceError
from tracer.files.output import appearing
from tracer.formats.perfetto_packets import Packets
from tracer.formats.perfetto_slices import write_slices
from tracer.formats.tracks import THREAD, Tracks, no_place_for, tracks_of
from tracer.model.trace import Trace

_LARGEST_ID: Final = 2**31 - 1  # of a process or thread in Perfetto; 0 is the idle task

COUNTERS: Final = {"syncs": "syncs per token", "copies": "copies per token", "launches": "launches per token"}


def write(trace: Trace, path: Path) -> list[str]:
    """Write a trace.

    Returns:
        Notes on what the file lacks or states differently.

    Raises:
        TraceError: the path exists or cannot be written.
    """
    shift = max(0, -trace.span[0])
    notes = [f"all times are shifted by {shift} ns, because Perfetto has no negative times"] if shift else []
    tracks = tracks_of(trace)
    with appearing(path) as partial, partial.open("wb") as file:
        packets = Packets(file)
        uuids = count(1)
        track_uuids = _describe(trace, tracks, packets, uuids)
        write_slices(trace, tracks, track_uuids, packets, shift)
        notes += _count(trace, packets, uuids, shift)
        packets.flush()
    return notes + no_place_for(trace)


def _describe(trace: Trace, tracks: Tracks, packets: Packets, uuids: Iterator[int]) -> list[int]:
    """Describe the tracks and their parents; returns the tracks' uuids."""
    processes, models = _names(trace["processes"]), _names(trace["devices"])
    threads = _names(trace["threads"])
    rows: list[Any] = list(tracks.table.itertuples(index=False))
    first_lane = {(row.process, row.thread): at for at, row in enumerate(rows) if row.kind == THREAD and not row.lane}
    above: dict[tuple[str, int], int] = {}
    found: list[int] = []
    for at, (row, name) in enumerate(zip(rows, tracks.names(), strict=True)):
        owner = ("process", row.process) if row.kind == THREAD else ("device", row.device)
        if owner not in above:
            parent = packets.add().track_descriptor
            parent.uuid = above[owner] = next(uuids)
            if row.kind == THREAD:
                _describe_process(parent, row.process, processes.get((row.process,), ""))
            else:
                model = models.get((row.device,))
                parent.name = f"GPU {row.device}" + (f" ({model})" if model else "")
                parent.child_ordering = protos.TrackDescriptor.EXPLICIT
        descriptor = packets.add().track_descriptor
        descriptor.uuid = next(uuids)
        found.append(descriptor.uuid)
        if row.kind != THREAD:
            descriptor.parent_uuid, descriptor.name, descriptor.sibling_order_rank = above[owner], name, at
        elif row.lane:
            thread = first_lane[row.process, row.thread]
            descriptor.parent_uuid, descriptor.name = found[thread], "overlapping ranges"
        else:
            own = threads.get((row.process, row.thread), "")
            _describe_thread(descriptor, row.process, row.thread, own, above[owner])
    return found


def _names(frame: pd.DataFrame) -> dict[tuple[int, ...], str]:
    """The names in a descriptive table, keyed by the columns before the name."""
    keys = list(frame)[: list(frame).index("name")]
    return dict(zip(frame[keys].itertuples(index=False, name=None), map(str, frame["name"]), strict=True))


def _describe_process(descriptor: Any, process: int, name: str) -> None:
    if 0 < process <= _LARGEST_ID:
        descriptor.process.pid = process
        if name:
            descriptor.process.process_name = name
    else:
        descriptor.name = name or f"process {process}"


def _describe_thread(descriptor: Any, process: int, thread: int, name: str, parent: int) -> None:
    if 0 < process <= _LARGEST_ID and 0 < thread <= _LARGEST_ID:
        descriptor.thread.pid, descriptor.thread.tid = process, thread
        if name:
            descriptor.thread.thread_name = name
    else:
        descriptor.parent_uuid, descriptor.name = parent, name or f"thread {thread}"


def _count(trace: Trace, packets: Packets, uuids: Iterator[int], shift: int) -> list[str]:
    """Write the counters, one value per token step."""
    from tracer.analysis.syncs import sync_report
    from tracer.analysis.tokens import find_steps

    try:
        counts = sync_report(trace, find_steps(trace)).counts
    except EmptyTraceError as reason:
        return [f"no counters per token: {reason}"]
    for column, name in COUNTERS.items():
        descriptor = packets.add().track_descriptor
        descriptor.uuid, descriptor.name = next(uuids), name
        descriptor.counter.unit = protos.CounterDescriptor.UNIT_COUNT
        uuid = descriptor.uuid
        for start, value in counts[["start", column]].to_numpy().tolist():
            packets.event(protos.TrackEvent.TYPE_COUNTER, uuid, start + shift).counter_value = value
    return []
