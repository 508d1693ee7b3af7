"""Perfetto's protobuf traces as rocprofv3, PyTorch's profiler and programs with Perfetto's library write them, read
packet by packet.

1. `Slices`: packets -> slices, with the track they are on. Names are interned per sequence of packets; a time may be
   the difference to that of the packet before, in a clock of the sequence (`ClockSnapshot`). A slice ends with the next
   end on its track: those programs write a begin and its end together, however slices nest.
2. What they are. rocprofv3's categories are those of `rocm` in small letters. Kineto's slices have no category; their
   `metadata` are the members of `args` in its JSON, and tell what a slice is. Others become ranges.

Source: Perfetto's protos and its library's `track_event_internal.cc`; rocprofiler-sdk's `generatePerfetto.cpp` and
Kineto's `PerfettoTraceBuilder.cpp`, as of 2026.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO, Final

import pandas as pd

from tracer.errors import FormatError
from tracer.files.bounded import opened, parsed
from tracer.formats.chrome import CHROME, trace_of_tables
from tracer.formats.chrome_events import Tables
from tracer.formats.perfetto_own import Own, Slice
from tracer.formats.rocm import TEXTS, Rows, device_of, trace_of
from tracer.model.calls import LETTERS, plain
from tracer.model.schema import MISSING, MOST_NS
from tracer.model.trace import Trace, categorical
from tracer.progress import tell

_PACKET: Final = 0x0A  # tag of field 1, a submessage
_LARGEST: Final = 64 << 20  # bytes of a packet; those of events have some hundred
_CHUNK: Final = 1 << 14  # rows
_MOST_OPEN: Final = 1000  # slices on a track
_TELL_AFTER: Final = 1 << 14
_BEGIN, _END, _INSTANT = 1, 2, 3  # TrackEvent.Type
_CLEARED: Final = 1  # TracePacket.SequenceFlags
_OWN_CLOCKS: Final = range(64, 128)  # of a sequence
_UNNAMED: Final = {"", "PLACE_HOLDER"}


def _text(text: str | bytes) -> str:
    """A text, which protobuf leaves as bytes if they are not UTF-8."""
    return text if isinstance(text, str) else text.decode("utf-8", "replace")


@dataclass
class _Sequence:
    """What packets of one sequence refer to."""

    names: dict[str, dict[int, str]] = field(default_factory=dict)
    track: int = 0
    clock: int = 0
    clocks: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Clock -> its present time, ns, and ns per unit."""

    def text(self, kind: str, number: int) -> str:
        return self.names.get(kind, {}).get(number, "")


class Slices:
    """The slices of an open file.

    Attributes:
        truncated: whether the file ends within a packet; known after they were read.
        unclosed: the number of slices that never end.
        decoded: the number of packets that can be decoded.
        left_out: the number of those that cannot, or that are compressed.
    """

    def __init__(self, path: Path, file: BinaryIO) -> None:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2

        self._packet: Any = perfetto_trace_pb2.TracePacket
        self._path, self._file = path, file
        self._sequences: dict[int, _Sequence] = {}
        self._tracks: dict[int, Any] = {}
        self._open: dict[int, list[tuple[int, str, str, dict[str, Any]]]] = {}
        self._last = 0
        self.truncated, self.unclosed, self.left_out, self.decoded = False, 0, 0, 0

    def __iter__(self) -> Iterator[Slice]:
        size = self._path.stat().st_size
        for read, content in enumerate(self._packets()):
            yield from self._of_packet(content)
            if read % _TELL_AFTER == 0:
                tell(self._file.tell(), size)
        for track, begun in self._open.items():
            for start, name, category, arguments in begun:
                self.unclosed += 1
                yield Slice(start, max(start, self._last), name, category, arguments, self._around(track))

    def _packets(self) -> Iterator[bytes]:
        while (tag := self._varint()) is not None:
            length = self._varint()
            if tag & 7 != 2 or length is None or length > _LARGEST:
                if length is None and tag & 7 == 2:
                    self.truncated = True
                    return
                raise FormatError(f"{self._path}: damaged: no Perfetto packet at byte {self._file.tell()}")
            content = self._file.read(length)
            if len(content) < length:
                self.truncated = True
                return
            if tag == _PACKET:
                yield content

    def _varint(self) -> int | None:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._file.read(1)
            if not byte:
                self.truncated |= shift > 0
                return None
            value |= (byte[0] & 0x7F) << shift
            if byte[0] < 0x80:
                return value
        raise FormatError(f"{self._path}: damaged: no Perfetto packet at byte {self._file.tell()}")

    def _of_packet(self, content: bytes) -> Iterator[Slice]:
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

        try:
            packet = self._packet.FromString(content)
        except (DecodeError, RecursionError):
            self.left_out += 1
            return
        self.decoded += 1
        its = self._sequences.setdefault(packet.trusted_packet_sequence_id, _Sequence())
        if packet.sequence_flags & _CLEARED or packet.incremental_state_cleared:
            its.names.clear()
        which = packet.WhichOneof("data")
        if packet.HasField("trace_packet_defaults"):
            defaults = packet.trace_packet_defaults
            its.clock = defaults.timestamp_clock_id
            its.track = defaults.track_event_defaults.track_uuid
        if packet.HasField("interned_data"):
            self._intern(its, packet.interned_data)
        if which == "clock_snapshot":
            self._set_clocks(its, packet.clock_snapshot)
        elif which == "track_descriptor":
            self._tracks[packet.track_descriptor.uuid] = packet.track_descriptor
        elif which == "compressed_packets":
            self.left_out += 1
        elif which == "track_event":
            yield from self._of_event(its, packet.track_event, self._time(its, packet))

    def _intern(self, its: _Sequence, data: Any) -> None:
        for kind in ("event_names", "event_categories", "debug_annotation_names"):
            its.names.setdefault(kind, {}).update((entry.iid, _text(entry.name)) for entry in getattr(data, kind))
        texts = ((entry.iid, _text(entry.str)) for entry in data.debug_annotation_string_values)
        its.names.setdefault("debug_annotation_string_values", {}).update(texts)

    def _set_clocks(self, its: _Sequence, snapshot: Any) -> None:
        absolute = [clock for clock in snapshot.clocks if clock.clock_id not in _OWN_CLOCKS]
        primary = [clock for clock in absolute if clock.clock_id == snapshot.primary_trace_clock] or absolute
        now = primary[0].timestamp if primary else 0
        for clock in snapshot.clocks:
            if clock.clock_id in _OWN_CLOCKS:
                its.clocks[clock.clock_id] = now, clock.unit_multiplier_ns or 1

    def _time(self, its: _Sequence, packet: Any) -> int:
        clock = packet.timestamp_clock_id or its.clock
        if clock not in its.clocks:
            return int(packet.timestamp)
        now, unit = its.clocks[clock]
        now += packet.timestamp * unit
        its.clocks[clock] = now, unit
        return now

    def _of_event(self, its: _Sequence, event: Any, time: int) -> Iterator[Slice]:
        track = event.track_uuid or its.track
        self._last = max(self._last, time if time < MOST_NS else 0)
        begun = self._open.setdefault(track, [])
        if event.type == _END:
            if begun:
                start, name, category, arguments = begun.pop()
                yield Slice(start, time, name, category, arguments, self._around(track))
        elif event.type in (_BEGIN, _INSTANT):
            name = _text(event.name) or its.text("event_names", event.name_iid)
            categories = [*map(_text, event.categories)]
            categories += (its.text("event_categories", iid) for iid in event.category_iids)
            told = time, name, categories[0] if categories else "", self._arguments(its, event)
            if event.type == _INSTANT:
                yield Slice(time, time, *told[1:], self._around(track))
            elif len(begun) < _MOST_OPEN:
                begun.append(told)
            else:
                self.left_out += 1

    def _arguments(self, its: _Sequence, event: Any) -> dict[str, Any]:
        arguments: dict[str, Any] = {}
        for annotation in event.debug_annotations:
            name = _text(annotation.name) or its.text("debug_annotation_names", annotation.name_iid)
            kind = annotation.WhichOneof("value")
            if kind == "string_value_iid":
                arguments[name] = its.text("debug_annotation_string_values", annotation.string_value_iid)
            elif kind is not None and kind.endswith("_value") and kind not in ("nested_value", "proto_value"):
                value = getattr(annotation, kind)
                arguments[name] = _text(value) if isinstance(value, bytes) else value
        return arguments

    def processes(self) -> Iterator[tuple[int, str]]:
        """The processes that the file describes, and their names."""
        for track in self._tracks.values():
            if track.HasField("process"):
                yield track.process.pid, _text(track.process.process_name)

    def _around(self, uuid: int) -> list[Any]:
        tracks: list[Any] = []
        while uuid in self._tracks and len(tracks) < 8:
            tracks.append(self._tracks[uuid])
            uuid = tracks[-1].parent_uuid
        return tracks


_ROCPROF: Final = frozenset({"hip_api", "hsa_api", "marker_api", "rccl_api", "rocdecode_api", "rocjpeg_api",
                             "kernel_dispatch", "memory_copy"})  # fmt: skip
"""rocprofv3's categories that are rows of a trace."""


class _OfRocprof:
    """Collects rocprofv3's slices as rows, in frames of some thousand."""

    def __init__(self) -> None:
        self._rows: dict[str, list[dict[str, Any]]] = {"kernels": [], "copies": [], "calls": []}
        self._frames: dict[str, list[pd.DataFrame]] = {table: [] for table in self._rows}
        self.has_rows = False

    def add(self, slice: Slice) -> None:
        """Add a slice of one of its categories."""
        self.has_rows = True
        told = slice.arguments
        row = {
            "start": slice.start, "end": slice.end, "name": slice.name, "correlation": _number(told.get("corr_id")),
            "process": next((track.thread.pid or track.process.pid for track in slice.tracks
                             if track.HasField("thread") or track.HasField("process")), MISSING),
        }  # fmt: skip
        if slice.category == "kernel_dispatch":
            queue, stream = _number(told.get("queue")), _number(told.get("stream_ID"))
            used = {"registers": _number(told.get("VGPR_Count")), "dynamic_shared": _number(told.get("LDS_Block_Size"))}
            device = device_of(str(told.get("agent", "")))
            self._append("kernels", row | used | {"device": device, "queue": queue, "stream": stream})
        elif slice.category == "memory_copy":
            ends = {
                ours: device_of(str(told.get(theirs, "")))
                for ours, theirs in (("source", "src_agent"), ("destination", "dst_agent"))
            }
            size, stream = _number(told.get("copy_bytes")), _number(told.get("stream_ID"))
            self._append("copies", row | ends | {"direction": slice.name, "bytes": size, "stream": stream})
        else:
            thread = {"thread": _number(told.get("tid")), "domain": slice.category, "is_process": 0}
            self._append("calls", row | thread)

    def _append(self, table: str, row: dict[str, Any]) -> None:
        self._rows[table].append(row)
        if len(self._rows[table]) == _CHUNK:
            self._flush(table)

    def _flush(self, table: str) -> None:
        frame = pd.DataFrame(self._rows[table])
        for name in TEXTS & {*frame}:
            frame[name] = categorical(*pd.factorize(frame[name]))
        self._frames[table].append(frame)
        self._rows[table].clear()

    def joined(self) -> Rows:
        """All rows. Those on tracks without a process are of the only one that the file names."""
        for table, remaining in self._rows.items():
            if remaining:
                self._flush(table)
        rows, pids = Rows(), set[int]()
        for frames in self._frames.values():
            pids.update(pid for frame in frames for pid in frame["process"].unique().tolist() if pid > 0)
        alone = next(iter(pids)) if len(pids) == 1 else MISSING
        for table, frames in self._frames.items():
            for frame in frames:
                rows.add(table, frame.assign(process=frame["process"].where(frame["process"] > 0, alone)))
        return rows


def _number(value: Any) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return MISSING
    return number if 0 <= number < 2**63 else MISSING


_GPU: Final = re.compile(r".*\[GPU \d+\]")
_CALL: Final = re.compile(r"(cuda|cu|hip)[A-Z]\w*")
_OPERATOR: Final = ("External id", "Record function id", "Ev Idx")


class _Chrome:
    """Slices as Chrome events, as Kineto writes them in JSON.

    Attributes:
        metadata: what the file tells of the recording.
        names: process and thread -> name.
    """

    def __init__(self) -> None:
        self.metadata: dict[str, Any] = {}
        self.names: dict[tuple[int, int], str] = {}

    def event(self, slice: Slice) -> dict[str, Any] | None:
        """The event; None for metadata."""
        if not slice.category and slice.name in ("trace_metadata", "device_properties"):
            self._tell(slice)
            return None
        args = dict(slice.arguments)
        members = args.pop("metadata", None)
        if isinstance(members, str):
            more = _json("{" + members + "}")
            args |= more if isinstance(more, dict) else {}
        pid, tid = self._place(slice.tracks)
        category = slice.category or _category(slice, args)
        if category in _WITH_CORRELATION and "correlation" not in args and "correlation_id" in args:
            args["correlation"] = args["correlation_id"]
        return {
            "ph": "X", "cat": category, "name": slice.name, "pid": pid, "tid": tid, "args": args,
            "ts": Decimal(slice.start).scaleb(-3), "dur": Decimal(slice.end - slice.start).scaleb(-3),
        }  # fmt: skip

    def _tell(self, slice: Slice) -> None:
        for name, value in slice.arguments.items():
            if slice.name == "trace_metadata":
                self.metadata[name] = _json(str(value))
            else:
                self.metadata["deviceProperties"] = _json(f"[{str(value).strip().removeprefix('[').removesuffix(']')}]")

    def _place(self, tracks: list[Any]) -> tuple[int, int]:
        """Process and thread; a track that is of none has a number of its own."""
        thread = next((track for track in tracks if track.HasField("thread")), None)
        process = next((track for track in tracks if track.HasField("process")), None)
        if thread is None:
            pid, tid = 0 if process is None else process.process.pid, tracks[0].uuid & (2**62 - 1) if tracks else 0
            name = tracks[0].name if tracks and tracks[0] is not process else ""
        else:
            pid, tid, name = thread.thread.pid, thread.thread.tid, thread.thread.thread_name or thread.name
        self.names.setdefault((pid, tid), _text(name))
        if process is not None:
            self.names.setdefault((pid, MISSING), _text(process.process.process_name or process.name))
        return pid, tid

    def descriptions(self) -> Iterator[dict[str, Any]]:
        """Events that name the processes and threads."""
        for (pid, tid), name in self.names.items():
            if name not in _UNNAMED:
                kind = "process_name" if tid == MISSING else "thread_name"
                yield {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


_WITH_CORRELATION: Final = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver", "cuda_sync"})


def _category(slice: Slice, args: Mapping[str, Any]) -> str:
    """Kineto's category of a slice of its own."""
    name = slice.name
    if slice.tracks and _text(slice.tracks[-1].name) == "Kineto Trace" and not slice.tracks[0].HasField("thread"):
        return "overhead" if name.startswith("Overhead: ") else "trace"
    if "grid" in args or "registers per thread" in args:
        return "kernel"
    for begin, category in (("Memcpy ", "gpu_memcpy"), ("Memset ", "gpu_memset")):
        if name.startswith(begin) and "bytes" in args:
            return category
    if "cuda_sync_kind" in args:
        return "cuda_sync"
    if (match := _CALL.fullmatch(name)) and ("cbid" in args or "correlation" in args or plain(name) in LETTERS):
        return "cuda_driver" if match[1] == "cu" else "cuda_runtime"
    if any(_GPU.fullmatch(_text(track.name)) for track in slice.tracks):
        return "gpu_user_annotation"
    if "Python id" in args:
        return "python_function"
    return "cpu_op" if any(key in args for key in _OPERATOR) else "user_annotation"


def _json(text: str) -> Any:
    """A JSON value as Chrome JSON's reader gives it; the text if it is none."""
    try:
        return parsed(text)
    except (ValueError, RecursionError):
        return text


def read(path: Path) -> Trace:
    """Read a trace, see `perfetto.read`. Raises FormatError."""
    rows, own, chrome, tables = _OfRocprof(), Own(), _Chrome(), Tables()
    with opened(path) as file:
        slices = Slices(path, file)
        for each in slices:
            if each.category in _ROCPROF:
                rows.add(each)
            elif own.add(each, _text):
                pass
            elif (event := chrome.event(each)) is not None:
                tables.add(event)
    if not slices.decoded:
        raise FormatError(f"{path}: holds no Perfetto packet that can be decoded")
    said = []
    if slices.truncated:
        said.append("the file is truncated: only what precedes its end was read")
    if slices.left_out:
        said.append(f"{slices.left_out} packets are compressed, damaged or too deep; they are left out")
    if slices.unclosed:
        said.append(f"{slices.unclosed} slices were never closed; they end with the recording")
    for process, name in slices.processes():
        own.describe(process, name)
    if rows.has_rows or own.has_rows:
        trace = trace_of(rows.joined()) if rows.has_rows else own.trace()
        trace.notes[:0] = said
        return trace
    for description in chrome.descriptions():
        tables.add(description)
    trace = trace_of_tables(tables, chrome.metadata, said)
    if trace.metadata["source"] == CHROME:
        trace.metadata["source"] = "Perfetto"
    return trace
