"""The events of a trace as Perfetto's slices and instants, track by track."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

from tracer.formats.perfetto_packets import ARGUMENTS, CATEGORIES, NAMES, VALUES, Packets
from tracer.formats.tracks import SYNC_NAMES, Ints, Tracks, arrows, slice_order, spans
from tracer.model.schema import DEVICE_TABLES, MISSING, TABLES
from tracer.model.trace import Trace
from tracer.progress import tell

_BEGIN, _END = protos.TrackEvent.TYPE_SLICE_BEGIN, protos.TrackEvent.TYPE_SLICE_END
_INSTANT: Final = protos.TrackEvent.TYPE_INSTANT
_EDGES: Final = 1 << 15  # begins and ends of slices built at a time

CATEGORY_OF: Final = {
    "kernels": "kernel", "graph_launches": "graph", "memcpys": "memcpy", "memsets": "memset", "api": "cuda api",
    "nvtx": "nvtx", "syncs": "sync", "cuda_events": "event record",
}  # fmt: skip
_NOT_ARGUMENTS: Final = {"start", "end", "process", "thread", "device", "stream", "color", "text", "type", "callchain"}
"""Columns already expressed by a slice's times, track and name, and the number of a call chain, which this format
cannot hold; all others become its arguments.
"""


def write_slices(trace: Trace, tracks: Tracks, uuids: list[int], packets: Packets, shift: int) -> None:
    """Write every event of the trace.

    Args:
        trace: the recording.
        tracks: its tracks.
        uuids: the uuid of each track.
        packets: the output.
        shift: an offset added to all times, ns.
    """
    events = _flat(trace, tracks, packets)
    arguments = [[_argument(column, trace[name], packets) for column in _columns(name)] for name in tracks.of]
    groups, done = events.groupby("track").indices, 0
    for track, uuid in enumerate(uuids):
        own = events.iloc[groups[track]]
        which, begins = slice_order(own["start"].to_numpy(), own["end"].to_numpy())
        for first in range(0, len(which), _EDGES):
            part = slice(first, first + _EDGES)
            _write_edges(own.iloc[which[part]], begins[part], uuid, arguments, packets, shift)
            done += len(which[part])
            tell(done, 2 * len(events))  # begins and ends


def _flat(trace: Trace, tracks: Tracks, packets: Packets) -> pd.DataFrame:
    """All events: track, start, end, name and category (numbers), is_instant, table and row (positions), arrow (the one
    that ends there), first and last (a half-open range of the arrows that begin there)."""
    found = arrows(trace)
    bounds = np.searchsorted(found["call"].to_numpy(), np.arange(len(trace["api"]) + 1)) + 1
    parts = []
    for position, (name, of) in enumerate(tracks.of.items()):
        part = spans(trace, name)[["start", "end"]].assign(track=of, table=position, row=np.arange(len(of)))
        names = _names(trace, name)
        part["name"] = np.array([0, *packets.numbers(NAMES, list(map(str, names.cat.categories)))])[names.cat.codes + 1]
        part["category"] = packets.numbers(CATEGORIES, [CATEGORY_OF[name]])[0]
        part["is_instant"] = (trace["nvtx"]["kind"] == "mark") if name == "nvtx" else name == "cuda_events"
        part["arrow"], part["first"], part["last"] = 0, 0, 0
        if name == "api":
            part["first"], part["last"] = bounds[:-1], bounds[1:]
        ends = found[found["table"] == name]
        part.loc[ends["row"].to_numpy(), "arrow"] = ends["id"].to_numpy()
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


def _names(trace: Trace, table: str) -> pd.Series:
    """The name of each row's slice, as a categorical."""
    if table in DEVICE_TABLES:
        return trace.activities([table])["name"]
    if table == "cuda_events":
        return pd.Series(["event record"] * len(trace[table]), dtype="category")
    if table == "syncs":
        return trace[table]["type"].cat.rename_categories(SYNC_NAMES)
    return trace[table]["text" if table == "nvtx" else "name"]


def _columns(table: str) -> list[str]:
    named_by = {"api": "name", "kernels": "short_name"}.get(table)
    return [name for name in TABLES[table].column_names if name not in _NOT_ARGUMENTS | {named_by}]


@dataclass(frozen=True)
class _Argument:
    """A column as an argument of slices: its label's number, its values (texts as numbers), and which are known."""

    label: int
    is_text: bool
    values: np.ndarray[Any, Any]
    known: NDArray[np.bool_]

    def of(self, rows: Ints) -> list[bytes]:
        """The encoded argument for each row's TrackEvent, built once for each distinct value."""
        parts, known = np.full(len(rows), b"", dtype=object), self.known[rows]
        codes, distinct = pd.factorize(self.values[rows][known])
        parts[known] = np.array([self._part(value) for value in distinct.tolist()], dtype=object)[codes]
        return list(parts)

    def _part(self, value: Any) -> bytes:
        annotation = protos.DebugAnnotation(name_iid=self.label)
        if self.is_text:
            annotation.string_value_iid = value
        elif isinstance(value, float):
            annotation.double_value = value
        else:
            annotation.int_value = value
        part: bytes = protos.TrackEvent(debug_annotations=[annotation]).SerializeToString()
        return part


def _argument(column: str, frame: pd.DataFrame, packets: Packets) -> _Argument:
    (label,) = packets.numbers(ARGUMENTS, [column])
    values = frame[column]
    if isinstance(values.dtype, pd.CategoricalDtype):
        words = list(map(str, values.cat.categories))
        numbers, named = np.array(packets.numbers(VALUES, words)), np.array([bool(word) for word in words])
        codes = values.cat.codes.to_numpy()
        return _Argument(label, True, numbers[codes], named[codes])
    numbers = values.to_numpy()
    return _Argument(label, False, numbers, ~np.isnan(numbers) if numbers.dtype == float else numbers != MISSING)


def _write_edges(
    events: pd.DataFrame, begins: NDArray[np.bool_], uuid: int, arguments: list[list[_Argument]], packets: Packets,
    shift: int,
) -> None:  # fmt: skip
    """Write begins and ends of slices of one track; `events` has one row for each, in order."""
    table, row = events["table"].to_numpy(), events["row"].to_numpy()
    annotations = np.full(len(events), b"", dtype=object)
    for position in np.unique(table):
        at = np.flatnonzero((table == position) & begins)
        annotations[at] = list(map(b"".join, zip(*(a.of(row[at]) for a in arguments[position]), strict=True)))
    kinds = np.where(begins, np.where(events["is_instant"], _INSTANT, _BEGIN), np.where(events["is_instant"], 0, _END))
    times = np.where(begins, events["start"], events["end"]) + shift
    columns = (events["name"], events["category"], events["arrow"], events["first"], events["last"], annotations)
    for kind, time, (name, category, arrow, first, last, annotation) in zip(
        kinds.tolist(), times.tolist(), zip(*(c.tolist() for c in columns), strict=True), strict=True
    ):
        if kind in (_BEGIN, _INSTANT):
            event = packets.event(kind, uuid, time)
            event.name_iid = name
            event.category_iids.append(category)
            if arrow:
                event.terminating_flow_ids.append(arrow)
            event.flow_ids.extend(range(first, last))
            event.MergeFromString(annotation)
        elif kind == _END:
            packets.event(kind, uuid, time)
