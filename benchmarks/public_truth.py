"""What a recording holds, counted from its raw bytes by code that shares nothing with ours: only Python's own library.

Used by public_files.py as the truth that our answers are compared with.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

LAUNCH: Final = re.compile(r"^(cuda|cu|hip)(Ext)?(Module)?(Launch(Cooperative)?Kernel|GraphLaunch)", re.IGNORECASE)
WAIT: Final = re.compile(r"^(cuda|cu|hip)(Device|Stream|Event|Ctx)Synchronize")
_PLAIN: Final = re.compile(r"[A-Za-z_.:# ]{1,40}")  # of marks: not those with paths or arguments
GPU_KINDS: Final = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"}
Span = tuple[int, int]


@dataclass
class Truth:
    """What one recording holds; times in ns.

    `marks` counts the ranges of each text (its numbers as #) inside which work was launched for a device.
    """

    tool: str
    vendor: str
    gpu: str = ""
    kernels: int = 0
    copies: Counter[str] = field(default_factory=Counter)
    fills: int = 0
    calls: int = 0
    launches: int = 0
    waits: Counter[str] = field(default_factory=Counter)
    marks: Counter[str] = field(default_factory=Counter)
    work: dict[tuple[str, str], list[Span]] = field(default_factory=lambda: defaultdict(list))

    def as_json(self) -> dict[str, Any]:
        """Return the counts, and per device the time from first to last and the time in which anything ran, µs."""
        told: dict[str, Any] = {name: value for name, value in vars(self).items() if name != "work"}
        told["marks"] = {text: count for text, count in self.marks.items() if _PLAIN.fullmatch(text)}
        devices: dict[str, list[Span]] = defaultdict(list)
        for (device, _), spans in self.work.items():
            devices[device] += spans
        told["streams"] = len(self.work)
        told["busy_us"] = {name: union(spans) / 1e3 for name, spans in sorted(devices.items())}
        told["span_us"] = {
            name: (max(end for _, end in spans) - min(start for start, _ in spans)) / 1e3
            for name, spans in sorted(devices.items())
        }
        return {name: value for name, value in told.items() if value not in ({}, "", 0)}


def union(spans: Iterable[Span]) -> int:
    """Return the time covered by any of the spans."""
    total, until = 0, -(2**63)
    for start, end in sorted(spans):
        total += max(0, end - max(start, until))
        until = max(until, end)
    return total


def truth_of(path: Path) -> Truth:
    """Count what the file holds; a tool of "none" is a file that no profiler of a GPU wrote."""
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    if data[:15] == b"SQLite format 3":
        return _database(path)
    if path.name.endswith(".xplane.pb"):
        return _xplane(data)
    if ".pftrace" in path.name or ".perfetto" in path.name:
        return _perfetto(data)
    if path.suffix == ".csv":
        return _csv(path)
    return _json(data)


# --- SQLite: Nsight Systems, nvprof, rocprofv3, rocmProfileData ---


def _database(path: Path) -> Truth:
    with sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True) as db:
        db.text_factory = lambda raw: raw.decode("utf-8", "replace")
        tables = {name for (name,) in db.execute("select name from sqlite_master where type = 'table'")}
        if "StringTable" in tables:
            return _nvprof(db)
        if "StringIds" in tables or any(name.startswith("CUPTI_ACTIVITY_KIND_") for name in tables):
            return _nsys(db, tables)
        if dispatches := [name for name in tables if name.startswith("rocpd_kernel_dispatch_")]:
            return _rocpd(db, [name.removeprefix("rocpd_kernel_dispatch_") for name in dispatches])
        if "rocpd_op" in tables:
            return Truth("rocmProfileData", "AMD", kernels=_count(db, "rocpd_op"), calls=_count(db, "rocpd_api"))
        return Truth("none", "none")


def _count(db: sqlite3.Connection, table: str) -> int:
    return int(db.execute(f'select count(*) from "{table}"').fetchone()[0])


COPY_KINDS: Final = {1: "HtoD", 2: "DtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP"}


def _nsys(db: sqlite3.Connection, tables: set[str]) -> Truth:
    truth = Truth("Nsight Systems", "NVIDIA")
    texts = dict(db.execute("select id, value from StringIds")) if "StringIds" in tables else {}
    if "TARGET_INFO_GPU" in tables:
        truth.gpu = next((str(row[0]) for row in db.execute("select name from TARGET_INFO_GPU")), "")
    launched: set[tuple[int, int]] = set()
    for table, columns in (("KERNEL", "0"), ("MEMCPY", "copyKind"), ("MEMSET", "0")):
        if (name := f"CUPTI_ACTIVITY_KIND_{table}") not in tables:
            continue
        has_process = "globalPid" in {row[1] for row in db.execute(f"pragma table_info({name})")}
        pid = "globalPid" if has_process else "0"
        rows = db.execute(f"select start, end, deviceId, streamId, correlationId, {columns}, {pid} from {name}")
        for start, end, device, stream, correlation, kind, process in rows:
            truth.work[str(device), f"{process}/{stream}"].append((start, end))
            launched.add((process >> 24 << 24, correlation))
            if table == "KERNEL":
                truth.kernels += 1
            elif table == "MEMCPY":
                truth.copies[COPY_KINDS.get(kind, "other")] += 1
            else:
                truth.fills += 1
    calls: dict[int, list[int]] = defaultdict(list)
    for table in ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER"):
        if table in tables:
            for start, name, thread, correlation in db.execute(
                f"select start, nameId, globalTid, correlationId from {table}"
            ):
                _call(truth, texts.get(name, ""))
                if (thread >> 24 << 24, correlation) in launched or (0, correlation) in launched:
                    calls[thread].append(start)
    if "NVTX_EVENTS" in tables:
        has_ids = "textId" in {row[1] for row in db.execute("pragma table_info(NVTX_EVENTS)")}
        told = "text, textId" if has_ids else "text, null"
        for start, end, thread, text, number in db.execute(f"select start, end, globalTid, {told} from NVTX_EVENTS"):
            if end is not None and any(start <= at <= end for at in calls[thread]):
                truth.marks[_family(text or texts.get(number, ""))] += 1
    return truth


def _nvprof(db: sqlite3.Connection) -> Truth:
    truth = Truth("nvprof", "NVIDIA", calls=_count(db, "CUPTI_ACTIVITY_KIND_RUNTIME"))
    for table in ("CONCURRENT_KERNEL", "KERNEL"):
        for start, end, device, stream in db.execute(
            f"select start, end, deviceId, streamId from CUPTI_ACTIVITY_KIND_{table}"
        ):
            truth.kernels += 1
            truth.work[str(device), str(stream)].append((start, end))
    return truth


def _rocpd(db: sqlite3.Connection, runs: list[str]) -> Truth:
    truth = Truth("rocprofv3 (rocpd)", "AMD")
    for run in runs:
        texts = dict(db.execute(f'select id, string from "rocpd_string_{run}"'))
        gpus = {id for (id,) in db.execute(f"select id from \"rocpd_info_agent_{run}\" where type = 'GPU'")}
        for start, end, agent, process, stream in db.execute(
            f'select start, end, agent_id, pid, stream_id from "rocpd_kernel_dispatch_{run}"'
        ):
            truth.kernels += 1
            truth.work[str(agent), f"{process}/{stream}"].append((start, end))
        for start, end, name, to, source, process, stream in db.execute(
            f'select start, end, name_id, dst_agent_id, src_agent_id, pid, stream_id from "rocpd_memory_copy_{run}"'
        ):
            truth.copies[texts.get(name, "")] += 1
            truth.work[str(to if to in gpus else source), f"{process}/{stream}"].append((start, end))
        for name, category in db.execute(
            f'select name_id, category_id from "rocpd_region_{run}" as region '
            f'left join "rocpd_event_{run}" as event on event.id = region.event_id'
        ):
            if "MARKER" not in texts.get(category, ""):
                _call(truth, texts.get(name, ""))
    return truth


# --- JSON: PyTorch's profiler, rocprof v1, torch_npu, others ---


def _json(data: bytes) -> Truth:
    try:
        whole = json.loads(data, parse_float=Decimal)
    except ValueError:
        return Truth("none", "none")
    if isinstance(whole, dict) and "rocprofiler-sdk-tool" in whole:
        return Truth("rocprofv3 (JSON)", "AMD")
    events = whole.get("traceEvents", []) if isinstance(whole, dict) else whole
    events = [event for event in events if isinstance(event, dict)] if isinstance(events, list) else []
    processes = {str(event.get("args", {}).get("name")) for event in events if event.get("name") == "process_name"}
    slices = [event for event in events if event.get("ph") == "X"]
    if {"Ascend Hardware", "NPU"} & processes:
        return _ascend(events, slices)
    if any("BeginNs" in (event.get("args") or {}) for event in slices):
        return _rocprof_json(events, slices)
    header = whole if isinstance(whole, dict) else {}
    if "schemaVersion" in header or any(event.get("cat") in ("kernel", "cpu_op", "Operator") for event in slices):
        return _kineto(header, slices)
    return Truth("none", "none")


def _ascend(events: list[dict[str, Any]], slices: list[dict[str, Any]]) -> Truth:
    names = {str(event["pid"]): event["args"]["name"] for event in events if event.get("name") == "process_name"}
    truth = Truth("torch_npu", "Huawei", gpu="Ascend")
    for event in slices:
        if names.get(str(event["pid"])) in ("Ascend Hardware", "NPU"):
            truth.kernels += 1
            truth.work["0", str(event["tid"])].append(_span(event))
    return truth


def _rocprof_json(events: list[dict[str, Any]], slices: list[dict[str, Any]]) -> Truth:
    names = {str(event["pid"]): event["args"]["name"] for event in events if event.get("name") == "process_name"}
    truth = Truth("rocprof v1 (JSON)", "AMD")
    for event in slices:
        if "GPU" in names.get(str(event["pid"]), ""):
            truth.kernels += 1
            truth.work[str(event["pid"]), str(event["tid"])].append(_span(event))
        elif "HIP" in names.get(str(event["pid"]), ""):
            _call(truth, event["name"])
    return truth


def _kineto(header: dict[str, Any], slices: list[dict[str, Any]]) -> Truth:
    gpus = [str(entry.get("name", "")) for entry in header.get("deviceProperties") or []]
    gpu = gpus[0] if gpus else ""
    on_device = [event for event in slices if str(event.get("cat")).lower() in GPU_KINDS]
    if gpu.startswith("AMD") or any("hip" in str(event.get("name"))[:3] for event in slices):
        vendor = "AMD"
    else:
        vendor = "NVIDIA" if gpu or on_device else "CPU only"
    truth = Truth("PyTorch's profiler", vendor, gpu)
    correlations = set()
    for event in on_device:
        args, kind = event.get("args", {}), event["cat"].lower()
        device, stream = args.get("device", event.get("pid")), args.get("stream", event.get("tid"))
        truth.work[str(device), str(stream)].append(_span(event))
        correlations.add(args.get("correlation"))
        if kind == "kernel":
            truth.kernels += 1
        elif "memcpy" in kind:
            truth.copies[str(event["name"]).split(" (")[0].removeprefix("Memcpy ")] += 1
        else:
            truth.fills += 1
    launches: dict[Any, list[int]] = defaultdict(list)
    for event in slices:
        if str(event.get("cat")) in ("cuda_runtime", "cuda_driver", "Runtime"):
            _call(truth, str(event["name"]))
            if event.get("args", {}).get("correlation") in correlations:
                launches[event.get("pid")].append(_span(event)[0])
    for event in slices:
        name = str(event.get("name"))
        if event.get("cat") in ("user_annotation", "python_function", "Operator") or name.startswith("ProfilerStep"):
            if event.get("cat") == "python_function":
                continue
            start, end = _span(event)
            if any(start <= at <= end for at in launches[event.get("pid")]):
                truth.marks[_family(name)] += 1
    return truth


def _span(event: dict[str, Any]) -> Span:
    start, duration = Decimal(str(event["ts"])), Decimal(str(event.get("dur", 0)))
    return int(start * 1000), int((start + duration) * 1000)


# --- CSV: rocprofv3, rocprof v1, nsys stats ---


def _csv(path: Path) -> Truth:
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    columns = set(rows[0]) if rows else set()
    if "BeginNs" in columns:
        truth = Truth("rocprof v1 (CSV)", "AMD", kernels=len(rows))
        for row in rows:
            truth.work[row["gpu-id"], row["queue-id"]].append((int(row["BeginNs"]), int(row["EndNs"])))
        return truth
    if "Start_Timestamp" not in columns:
        return Truth("nsys stats (CSV)" if "CorrId" in columns else "none", "NVIDIA", kernels=len(rows))
    truth = Truth("rocprofv3 (CSV)", "AMD")
    for beside in sorted(path.parent.glob("*_trace.csv")):
        with beside.open(newline="") as file:
            for row in csv.DictReader(file):
                if row.get("Kind") == "KERNEL_DISPATCH":
                    truth.kernels += 1
                    stream = row.get("Stream_Id") or row["Queue_Id"]
                    span = int(row["Start_Timestamp"]), int(row["End_Timestamp"])
                    truth.work[row["Agent_Id"], stream].append(span)
                elif "Function" in row:
                    _call(truth, row["Function"])
    return truth


# --- protobuf: Perfetto, XLA ---


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    at, end = 0, len(message)
    while at < end:
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield number, value
        elif kind == 2:
            size, at = _varint(message, at)
            yield number, message[at : at + size]
            at += size
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
            yield number, message[at : at + size]
            at += size
        else:
            return


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def _perfetto(data: bytes) -> Truth:
    truth = Truth("none", "none")
    categories: dict[Any, str] = {}
    names: dict[Any, str] = {}
    open_slices: dict[Any, list[tuple[str, str, int]]] = defaultdict(list)
    for number, packet in _fields(data):
        if number != 1 or not isinstance(packet, bytes):
            continue
        parts: dict[int, Any] = dict(_fields(packet))
        for kind, entry in _fields(parts.get(12, b"")):
            if kind in (1, 2) and isinstance(entry, bytes):
                told: dict[int, Any] = dict(_fields(entry))
                (categories if kind == 1 else names)[told.get(1)] = told.get(2, b"").decode("utf-8", "replace")
        if 11 not in parts:
            continue
        event: dict[int, Any] = dict(_fields(parts[11]))
        track = event.get(11)
        if event.get(9) == 1:
            category = categories.get(event.get(3)) or event.get(22, b"").decode("utf-8", "replace")
            name = names.get(event.get(10)) or event.get(23, b"").decode("utf-8", "replace")
            open_slices[track].append((category, name, parts.get(8, 0)))
        elif event.get(9) == 2 and open_slices[track]:
            category, name, start = open_slices[track].pop()
            if category in ("hip_api", "hsa_api", "kernel_dispatch", "memory_copy"):
                truth.tool, truth.vendor = "rocprofv3 (Perfetto)", "AMD"
            if category in ("hip_api", "hsa_api"):
                _call(truth, name)
            elif category == "kernel_dispatch":
                truth.kernels += 1
                truth.work["0", str(track)].append((start, parts.get(8, 0)))
            elif category == "memory_copy":
                truth.copies[name] += 1
                truth.work["0", str(track)].append((start, parts.get(8, 0)))
    return truth


def _xplane(data: bytes) -> Truth:
    truth = Truth("XLA profiler (xplane)", "Google")
    for number, plane in _fields(data):
        if number == 1 and isinstance(plane, bytes):
            parts = list(_fields(plane))
            name = next((bytes(value) for kind, value in parts if kind == 2 and isinstance(value, bytes)), b"")
            if name.startswith(b"/device:"):
                truth.gpu = name.decode()
                truth.vendor = "NVIDIA" if b"GPU" in name else "Google"
                for kind, line in parts:
                    if kind == 3 and isinstance(line, bytes):
                        truth.kernels += sum(1 for inner, _ in _fields(line) if inner == 4)
    return truth


# --- shared ---


def _call(truth: Truth, name: str) -> None:
    name = re.sub(r"_v\d+$", "", name)
    truth.calls += 1
    truth.launches += bool(LAUNCH.match(name))
    if WAIT.match(name):
        truth.waits[name] += 1


def _family(text: str) -> str:
    return re.sub(r"\d+", "#", text)[:80]
