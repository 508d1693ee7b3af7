"""Perfetto traces as rocprofv3 (with Perfetto's library) and PyTorch's profiler write them."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

from tests.tracer.rocm_files import records
from tracer.model.trace import Trace

BEGIN, END, INSTANT = 1, 2, 3
INCREMENTAL: Final = 64
"""The clock in which Perfetto's library writes times, as differences in units of ns."""
_FIELDS: Final = {"event_names": "name", "event_categories": "name", "debug_annotation_names": "name"}


class Library:
    """Writes as Perfetto's library does: interned names, and times as differences."""

    def __init__(self, unit: int = 1, begin: int = 0) -> None:
        self.trace = protos.Trace()
        self._numbers: dict[tuple[str, str], int] = {}
        self._now, self._unit = begin, unit
        packet = self._packet()
        packet.sequence_flags = 1
        packet.trace_packet_defaults.timestamp_clock_id = INCREMENTAL
        packet.trace_packet_defaults.track_event_defaults.track_uuid = 1
        snapshot = self._packet().clock_snapshot
        snapshot.primary_trace_clock = 6
        snapshot.clocks.add(clock_id=6, timestamp=begin)
        snapshot.clocks.add(clock_id=INCREMENTAL, timestamp=0, is_incremental=True, unit_multiplier_ns=unit)

    def _packet(self) -> Any:
        return self.trace.packet.add(trusted_packet_sequence_id=7)

    def track(self, uuid: int, parent: int = 0, name: str = "", **own: dict[str, Any]) -> None:
        descriptor = self._packet().track_descriptor
        descriptor.uuid, descriptor.parent_uuid = uuid, parent
        if name:
            descriptor.name = name
        for kind, values in own.items():
            for key, value in values.items():
                setattr(getattr(descriptor, kind), key, value)

    def _number(self, packet: Any, field: str, text: str) -> int:
        if (field, text) not in self._numbers:
            self._numbers[field, text] = number = len(self._numbers) + 1
            getattr(packet.interned_data, field).add(iid=number, **{_FIELDS[field]: text})
        return self._numbers[field, text]

    def event(self, kind: int, track: int, time: int, category: str = "", name: str = "", **told: Any) -> None:
        packet = self._packet()
        if time >= self._now:
            packet.timestamp, self._now = (time - self._now) // self._unit, time
        else:
            packet.timestamp, packet.timestamp_clock_id = time, 6
        event = packet.track_event
        event.type = kind
        if track != 1:
            event.track_uuid = track
        if kind != END:
            event.name_iid = self._number(packet, "event_names", name)
            event.category_iids.append(self._number(packet, "event_categories", category))
        for label, value in told.items():
            annotation = event.debug_annotations.add(name_iid=self._number(packet, "debug_annotation_names", label))
            if isinstance(value, str):
                annotation.string_value = value
            else:
                annotation.uint_value = value % 2**64

    def write(self, path: Path) -> Path:
        path.write_bytes(self.trace.SerializeToString())
        return path


def of_rocprofv3(trace: Trace, path: Path) -> Path:
    library = Library()
    (pid,) = set(trace["api"]["process"])
    thread = int(trace["api"]["thread"].iloc[0])
    library.track(1, 99, thread={"pid": pid, "tid": thread})
    library.track(99, process={"pid": pid})
    library.track(5, name='STREAM [" 7 "] ')
    words = {"HtoD": "HOST_TO_DEVICE", "DtoH": "DEVICE_TO_HOST"}
    slices = []
    for table, category, track in (("api", "hip_api", 1), ("nvtx", "marker_api", 1), ("memcpys", "memory_copy", 5),
                                   ("kernels", "kernel_dispatch", 5)):  # fmt: skip
        for row in records(trace, table):
            name = row["text"] if table == "nvtx" else row.get("name") or f"MEMORY_COPY_{words[row['kind']]}"
            told = {"begin_ns": row["start"], "tid": thread, "corr_id": row.get("correlation", 10**6)}
            if table == "memcpys":
                agents = {f"{end}_agent": f"GPU-{row[f'{end}_device']}" if row[f"{end}_device"] >= 0 else "CPU-0"
                          for end in ("src", "dst")}  # fmt: skip
                told |= agents | {"copy_bytes": row["bytes"], "stream_ID": row["stream"]}
            if table == "kernels":
                told |= {"agent": f"GPU-{row['device']}", "queue": 1, "stream_ID": row["stream"], "grid_size": 6144,
                         "VGPR_Count": row["registers"], "LDS_Block_Size": row["dynamic_shared"]}  # fmt: skip
            slices.append((track, row["start"], row["end"], category, name, told))
    for track, start, end, category, name, told in slices:
        library.event(BEGIN, track, start, category, name, **told)
        library.event(END, track, end)
    return library.write(path)


def of_kineto(content: dict[str, Any], path: Path) -> Path:
    """The file that Kineto writes beside this JSON."""
    trace, uuids = protos.Trace(), iter(range(100, 10**9))
    tracks: dict[Any, int] = {}

    def describe(name: str, parent: int = 0, **own: dict[str, Any]) -> int:
        descriptor = trace.packet.add(trusted_packet_sequence_id=3).track_descriptor
        descriptor.uuid, descriptor.parent_uuid, descriptor.name = next(uuids), parent, name
        for kind, values in own.items():
            for key, value in values.items():
                setattr(getattr(descriptor, kind), key, value)
        return descriptor.uuid

    main = describe("Kineto Trace", process={"pid": 0, "process_name": "Kineto Trace"})
    for key, value in content.items():
        if key not in ("traceEvents", "deviceProperties"):
            event = trace.packet.add(trusted_packet_sequence_id=3).track_event
            event.type, event.name, event.track_uuid = INSTANT, "trace_metadata", main
            event.debug_annotations.add(name=key, string_value=json.dumps(value))
    event = trace.packet.add(trusted_packet_sequence_id=3).track_event
    event.type, event.name, event.track_uuid = INSTANT, "device_properties", main
    properties = ", ".join(map(json.dumps, content.get("deviceProperties", [])))
    event.debug_annotations.add(name="properties", string_value=properties)
    for each in content["traceEvents"]:
        if each.get("ph") != "X":
            continue
        pid, tid, args = each["pid"], each["tid"], each.get("args", {})
        if pid not in tracks:
            label = f"GPU {pid}" if pid < 50 else "CPU"
            tracks[pid] = describe(f"python [{label}]", process={"pid": pid, "process_name": "python"})
        if (pid, tid) not in tracks:
            tracks[pid, tid] = describe(f"thread {tid}", tracks[pid], thread={"pid": pid, "tid": tid})
        if each["cat"] == "cpu_op":  # by which it is known
            args = {"External id": 1, **args}
        own = describe("", tracks[pid, tid])
        for kind in (BEGIN, END):
            packet = trace.packet.add(trusted_packet_sequence_id=3)
            packet.timestamp = int((Decimal(str(each["ts"])) + (kind == END) * Decimal(str(each["dur"]))) * 1000)
            packet.track_event.type, packet.track_event.track_uuid = kind, own
            if kind == BEGIN:
                packet.track_event.name = each["name"]
                members = json.dumps(args)[1:-1]
                if members:
                    packet.track_event.debug_annotations.add(name="metadata", string_value=members)
                if correlation := args.get("correlation"):
                    packet.track_event.debug_annotations.add(name="correlation_id", int_value=correlation)
    path.write_bytes(trace.SerializeToString())
    return path
