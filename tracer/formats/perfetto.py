"""Perfetto's protobuf traces (.pftrace). Those of others are read (`perfetto_read`). Written for ui.perfetto.dev and
trace_processor: every event as a slice or instant on its track, arrows, and counts per token.

Source of the messages' meaning: Perfetto's own protos (`track_event.proto`, `track_descriptor.proto`,
`interned_data.proto`). Packets of one track are in order of time, those of different tracks are not; readers sort
them.
- A device is the parent track of its streams. Lanes of a stream (see `tracks.py`) share its name, so that the UI draws
  them as one.
- Waits of the host for a stream, and event records at the start of their call, are on the stream's "syncs" track.
- A call has an arrow (flow) with its own id to each device activity that it launched.
- The packets are one sequence with interned names (`Packets`): each is written once, then referred to by number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.errors import EmptyTraceError, FormatError
from tracer.files.output import appearing
from tracer.formats import Counters, Format
from tracer.formats.tracks import (
    CATEGORY_OF,
    SYNC_NAMES,
    THREAD,
    Tracks,
    arrows,
    no_place_for,
    slice_order,
    spans,
    tracks_of,
)
from tracer.model.intervals import Ints
from tracer.model.schema import DEVICE_TABLES, MISSING, TABLES
from tracer.model.trace import Trace
from tracer.progress import tell

_SUFFIXES: Final = (".pftrace", ".perfetto-trace")
_PACKET: Final = b"\x0a"  # tag of field 1, a submessage
_HEAD: Final = 1 << 12  # bytes
_LEAST_PACKETS: Final = 4
_FIELDS: Final = b"\x18\x32\x40\x50\x5a\x62\x68"
"""Tags of one byte with which packets begin: user, clocks, time, sequence, event, interned data, flags."""
_LARGEST_ID: Final = 2**31 - 1  # of a process or thread in Perfetto; 0 is the idle task

COUNTERS: Final = {"syncs": "syncs per token", "copies": "copies per token", "launches": "launches per token"}
_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4  # TrackEvent.Type
_COUNT: Final = 2  # CounterDescriptor.Unit
_EXPLICIT: Final = 3  # TrackDescriptor.ChildTracksOrdering
_CLEARED, _NEEDED = 1, 2  # TracePacket.SequenceFlags: of the incremental state
_EDGES: Final = 1 << 15  # begins and ends of slices built at a time

_NOT_ARGUMENTS: Final = {"start", "end", "process", "thread", "device", "stream", "color", "text", "type", "callchain"}
"""Columns already expressed by a slice's times, track and name, and the number of a call chain, which this format
cannot hold; all others become its arguments.
"""


def sniff(path: Path) -> bool:
    """Whether the file begins as a Perfetto trace: with a packet, or without their suffix, with several."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(_HEAD)
    if path.name.lower().endswith(_SUFFIXES):
        return head.startswith(_PACKET)
    at = packets = 0
    while at + 3 < len(head) and head.startswith(_PACKET, at):
        length, end = head[at + 1] & 0x7F, at + 2
        if head[at + 1] >= 0x80:
            length, end = length | (head[at + 2] & 0x7F) << 7, at + 3
        if head[end] not in _FIELDS and head[end] < 0x80:
            return False
        at, packets = end + length, packets + 1
    return packets >= _LEAST_PACKETS and (at >= len(head) - 3 or head.startswith(_PACKET, at))


def read(path: Path) -> Trace:
    """Read a trace that rocprofv3, PyTorch's profiler, Perfetto's library or we wrote.

    Raises:
        FormatError: the required extra is not installed, or it is damaged.
    """
    _check_installed(path, "reading")
    from tracer.formats import perfetto_read

    return perfetto_read.read(path)


def _check_installed(path: Path, doing: str) -> None:
    try:
        _protos()
    except ImportError as missing:
        raise FormatError(
            f"{path}: {doing} Perfetto traces needs additional packages: pip install 'intertoken[perfetto]'"
        ) from missing


def write(trace: Trace, path: Path, counters: Counters | None = None) -> list[str]:
    """Write a trace; returns notes on what the file lacks or states differently.

    Raises:
        FormatError: the required extra is not installed.
        TraceError: the path exists or cannot be written.
    """
    _check_installed(Path(path.name), "writing")
    shift = max(0, -trace.span[0])
    notes = [f"all times are shifted by {shift} ns, because Perfetto has no negative times"] if shift else []
    tracks = tracks_of(trace)
    with appearing(path) as partial, partial.open("wb") as file:
        packets = Packets(file)
        uuids = count(1)
        track_uuids = _describe(trace, tracks, packets, uuids)
        write_slices(trace, tracks, track_uuids, packets, shift)
        if counters is not None:
            notes += _count(trace, counters, packets, uuids, shift)
        packets.flush()
    return notes + no_place_for(trace)


def _protos() -> Any:
    """Perfetto's messages, which take a while to load."""
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2

    return perfetto_trace_pb2


def _describe(trace: Trace, tracks: Tracks, packets: Packets, uuids: Iterator[int]) -> list[int]:
    """Describe the tracks and their parents; returns the tracks' uuids."""
    processes, models = _names(trace["processes"]), _names(trace["devices"])
    threads = _names(trace["threads"])
    rows: list[Any] = list(tracks.table.itertuples(index=False))
    first_lane = {(row.process, row.thread): at for at, row in enumerate(rows) if row.kind == THREAD and not row.lane}
    above: dict[tuple[str, int], int] = {}
    uuid_of: list[int] = []
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
                parent.child_ordering = _EXPLICIT
        descriptor = packets.add().track_descriptor
        descriptor.uuid = next(uuids)
        uuid_of.append(descriptor.uuid)
        if row.kind != THREAD:
            descriptor.parent_uuid, descriptor.name, descriptor.sibling_order_rank = above[owner], name, at
        elif row.lane:
            thread = first_lane[row.process, row.thread]
            descriptor.parent_uuid, descriptor.name = uuid_of[thread], "overlapping ranges"
        else:
            own = threads.get((row.process, row.thread), "")
            _describe_thread(descriptor, row.process, row.thread, own, above[owner])
    return uuid_of


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


def _count(trace: Trace, counters: Counters, packets: Packets, uuids: Iterator[int], shift: int) -> list[str]:
    """Write the counters, one value per token step."""
    try:
        counts = counters(trace)
    except EmptyTraceError as reason:
        return [f"no counters per token: {reason}"]
    for column, name in COUNTERS.items():
        descriptor = packets.add().track_descriptor
        descriptor.uuid, descriptor.name = next(uuids), name
        descriptor.counter.unit = _COUNT
        uuid = descriptor.uuid
        for start, value in counts[["start", column]].to_numpy().tolist():
            packets.event(_COUNTER, uuid, start + shift).counter_value = value
    return []


def write_slices(trace: Trace, tracks: Tracks, uuids: list[int], packets: Packets, shift: int) -> None:
    """Write every event of the trace to the tracks with these uuids, `shift` ns later."""
    events = _flat(trace, tracks, packets)
    arguments = []
    for name in tracks.of:
        not_arguments = {*_NOT_ARGUMENTS, {"api": "name", "kernels": "short_name"}.get(name)}
        columns = [column for column in TABLES[name].column_names if column not in not_arguments]
        arguments.append([_argument(column, trace[name], packets) for column in columns])
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
    drawn = arrows(trace)
    bounds = np.searchsorted(drawn["call"].to_numpy(), np.arange(len(trace["api"]) + 1)) + 1
    parts = []
    for position, (name, of) in enumerate(tracks.of.items()):
        part = spans(trace, name)[["start", "end"]].assign(track=of, table=position, row=np.arange(len(of)))
        names = _event_names(trace, name)
        part["name"] = np.array([0, *packets.numbers(NAMES, list(map(str, names.cat.categories)))])[names.cat.codes + 1]
        part["category"] = packets.numbers(CATEGORIES, [CATEGORY_OF[name]])[0]
        part["is_instant"] = (trace["nvtx"]["kind"] == "mark") if name == "nvtx" else name == "cuda_events"
        part["arrow"], part["first"], part["last"] = 0, 0, 0
        if name == "api":
            part["first"], part["last"] = bounds[:-1], bounds[1:]
        ends = drawn[drawn["table"] == name]
        part.loc[ends["row"].to_numpy(), "arrow"] = ends["id"].to_numpy()
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


def _event_names(trace: Trace, table: str) -> pd.Series:
    """The name of each row's slice, as a categorical."""
    if table in DEVICE_TABLES:
        return trace.activities([table]).frame()["name"]
    if table == "cuda_events":
        return pd.Series(["event record"] * len(trace[table]), dtype="category")
    if table == "syncs":
        return trace[table]["type"].cat.rename_categories(SYNC_NAMES)
    return trace[table]["text" if table == "nvtx" else "name"]


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
        protos = _protos()
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


_SEQUENCE: Final = 1
_HELD: Final = 1 << 12  # packets buffered before they are written, and names per packet

NAMES, CATEGORIES = "event_names", "event_categories"
ARGUMENTS, VALUES = "debug_annotation_names", "debug_annotation_string_values"
"""The fields of InternedData: names and categories of events, names and texts of their arguments."""


class Packets:
    """The packets of a file that is open for writing; call `flush` after the last one."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._trace = _protos().Trace()
        self._numbers: dict[str, dict[str, int]] = {field: {} for field in (NAMES, CATEGORIES, ARGUMENTS, VALUES)}
        self.add().sequence_flags = _CLEARED

    def add(self) -> Any:
        """Add a packet; fill it before adding the next one."""
        if len(self._trace.packet) == _HELD:
            self.flush()
        packet = self._trace.packet.add()
        packet.trusted_packet_sequence_id = _SEQUENCE
        packet.sequence_flags = _NEEDED
        return packet

    def event(self, type: int, track: int, timestamp: int) -> Any:
        """Add a packet and return its TrackEvent."""
        packet = self.add()
        packet.timestamp = timestamp
        event = packet.track_event
        event.type = type
        event.track_uuid = track
        return event

    def numbers(self, field: str, texts: Sequence[str]) -> list[int]:
        """The numbers (1, 2, ...) of texts in a field of InternedData; new texts are written."""
        known = self._numbers[field]
        new = [text for text in dict.fromkeys(texts) if text not in known]
        for start in range(0, len(new), _HELD):
            entries = getattr(self.add().interned_data, field)
            for text in new[start : start + _HELD]:
                known[text] = len(known) + 1
                entry = entries.add(iid=known[text])
                if field == VALUES:
                    entry.str = text.encode()
                else:
                    entry.name = text
        return [known[text] for text in texts]

    def flush(self) -> None:
        """Write the buffered packets."""
        self._file.write(self._trace.SerializeToString())
        self._trace = _protos().Trace()


FORMAT: Final = Format(
    "Perfetto trace", _SUFFIXES[0], sniff, read, write, aliases=_SUFFIXES[1:], lossless=False, has_counters=True
)
