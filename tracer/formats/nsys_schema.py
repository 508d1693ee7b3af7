"""What Nsight Systems' exports have beyond the tables of `tracer.schema`: packed ids, helpers, enum labels.

Source: SQLite exports of schema 3.20.3 and 3.25.0.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from tracer.schema import (
    MISSING,
    NAME,
    TABLES,
    TEXT,
)

STRINGS: Final = "StringIds"
EXPORT: Final = "META_DATA_EXPORT"
SESSION: Final = "TARGET_INFO_SESSION_START_TIME"
CUDA_DEVICES: Final = "TARGET_INFO_CUDA_DEVICE"

EXPORT_VERSION: Final = "EXPORT_PRODUCT_VERSION"
EXPORT_SCHEMA: Final = "EXPORT_SCHEMA_VERSION"
SCHEMA_WRITTEN: Final = "3.20.3"  # the schema whose columns we write, and of 3.25 the kernels' graphId

GLOBAL_PID: Final = "globalPid"
GLOBAL_TID: Final = "globalTid"
DOMAIN_CREATE: Final = 75  # NVTX event type: names a domain, is no range
PAYLOADS: Final = ("doubleValue", "floatValue", "int64Value", "uint64Value", "int32Value", "uint32Value")
DEPRECATED_SYNC_TYPE: Final = "deprecatedSyncType"  # syncType in exports of 2021 to 2023

SYNC_CALLS: Final = {
    "StreamSynchronize": "stream",
    "StreamWaitEvent": "stream wait",
    "EventSynchronize": "event",
    "DeviceSynchronize": "context",
    "CtxSynchronize": "context",
    "ThreadSynchronize": "context",
}
"""CUDA call without its cuda/cu prefix and version suffix -> what it waits for."""

GRAPH_SHIFT: Final = 32  # graphNodeId >> 32 is the graph's id
_ID_BITS: Final = 24
_ID_MASK: Final = (1 << _ID_BITS) - 1
LARGEST_ID: Final = _ID_MASK - 1  # of a process or thread
_VIRTUAL_MACHINE: Final = 1 << 48  # the bit that nsys sets above the process id of its only machine

Ids = np.ndarray[tuple[int, ...], np.dtype[np.int64]]

_TYPES: Final = {NAME: pa.int64(), TEXT: pa.string(), "int64": pa.int64(), "float64": pa.float64()}


def _columns() -> dict[str, dict[str, pa.DataType]]:
    wanted: dict[str, dict[str, pa.DataType]] = {}
    for table in TABLES.values():
        columns = {c.nsys: _TYPES.get(str(c.kind), pa.int64()) for c in table.columns if c.nsys}
        names = set(table.column_names)
        if "thread" in names:
            columns[GLOBAL_TID] = pa.int64()
        elif "process" in names and table.name != "streams":
            columns[GLOBAL_PID] = pa.int64()
        wanted[table.nsys] = columns
    wanted[TABLES["nvtx"].nsys] |= {"textId": pa.int64(), "domainId": pa.int64()}
    wanted[TABLES["nvtx"].nsys] |= {p: pa.float64() if p[0] in "df" else pa.int64() for p in PAYLOADS}
    wanted[TABLES["syncs"].nsys] |= {DEPRECATED_SYNC_TYPE: pa.int64()}
    wanted[STRINGS] = {"id": pa.int64(), "value": pa.string()}
    wanted[EXPORT] = {"name": pa.string(), "value": pa.string()}
    wanted[SESSION] = {"utcEpochNs": pa.int64()}
    wanted[CUDA_DEVICES] = {"gpuId": pa.int64(), "cudaId": pa.int64()}
    return wanted


COLUMNS: Final = _columns()
"""nsys table -> column -> the Arrow type we read it as. Anything else in an export is left unread."""

REQUIRED: Final = {
    t.nsys: tuple(c for c in ("start", "end", "eventType") if c in COLUMNS[t.nsys]) for t in TABLES.values()
} | {
    STRINGS: ("id", "value"),
    EXPORT: ("name", "value"),
    CUDA_DEVICES: ("gpuId", "cudaId"),
    TABLES["devices"].nsys: ("id",),
}
"""Columns without which a table cannot be understood; any other may be missing."""

NEVER_NULL: Final = frozenset({"start", "end", "eventType", "id"})  # except the end of an NVTX range


def pack_ids(process: Ids, thread: Ids | None = None) -> tuple[Ids, np.ndarray[tuple[int, ...], np.dtype[np.bool_]]]:
    """Process and thread ids as nsys's globalTid (globalPid without threads), and where it is NULL.

    An unknown id of a pair is stored as all ones; ids above 24 bits lose their upper bits, as in nsys.
    """
    packed = _VIRTUAL_MACHINE | (process & _ID_MASK) << _ID_BITS
    if thread is None:
        return packed, process == MISSING
    return packed | thread & _ID_MASK, (process == MISSING) & (thread == MISSING)


def unpack_process(packed: Ids) -> Ids:
    """The process ids in globalPid or globalTid values; MISSING for NULL."""
    return _unpack(packed, packed >> _ID_BITS)


def unpack_thread(packed: Ids) -> Ids:
    """The thread ids in globalTid values; MISSING for NULL."""
    return _unpack(packed, packed)


def _unpack(packed: Ids, shifted: Ids) -> Ids:
    ids = shifted & _ID_MASK
    return np.where((packed == MISSING) | (ids == _ID_MASK), MISSING, ids)


def _rows(prefix: str, *rows: tuple[int, str, str]) -> list[tuple[int, str, str]]:
    return [(id, prefix + name, label) for id, name, label in rows]


ENUMS: Final[dict[str, tuple[tuple[str, ...], list[tuple[int, str, str]]]]] = {
    "ENUM_CUDA_MEMCPY_OPER": (("memcpys",), _rows(
        "CUDA_MEMCPY_KIND_",
        (0, "UNKNOWN", "Unknown"), (1, "HTOD", "Host-to-Device"), (2, "DTOH", "Device-to-Host"),
        (3, "HTOA", "Host-to-Array"), (4, "ATOH", "Array-to-Host"), (5, "ATOA", "Array-to-Array"),
        (6, "ATOD", "Array-to-Device"), (7, "DTOA", "Device-to-Array"), (8, "DTOD", "Device-to-Device"),
        (9, "HTOH", "Host-to-Host"), (10, "PTOP", "Peer-to-Peer"), (11, "UVM_HTOD", "Unified Host-to-Device"),
        (12, "UVM_DTOH", "Unified Device-to-Host"), (13, "UVM_DTOD", "Unified Device-to-Device"),
    )),
    "ENUM_CUDA_MEM_KIND": (("memcpys", "memsets"), _rows(
        "CUDA_MEMOPR_MEMORY_KIND_",
        (0, "PAGEABLE", "Pageable"), (1, "PINNED", "Pinned"), (2, "DEVICE", "Device"), (3, "ARRAY", "Array"),
        (4, "MANAGED", "Managed"), (5, "DEVICE_STATIC", "Device Static"),
        (6, "MANAGED_STATIC", "Managed Static"), (7, "UNKNOWN", "Unknown"),
    )),
    "ENUM_CUPTI_SYNC_TYPE": (("syncs",), _rows(
        "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_",
        (0, "UNKNOWN", "Unknown"), (1, "EVENT_SYNCHRONIZE", "Event sync"),
        (2, "STREAM_WAIT_EVENT", "Stream wait sync"), (3, "STREAM_SYNCHRONIZE", "Stream sync"),
        (4, "CONTEXT_SYNCHRONIZE", "Context sync"),
    )),
    "ENUM_NSYS_EVENT_CLASS": (("api",), _rows(
        "TRACE_PROCESS_EVENT_CUDA_", (0, "RUNTIME", "CUDA runtime"), (1, "DRIVER", "CUDA driver"),
    )),
    "ENUM_NSYS_EVENT_TYPE": (("nvtx",), _rows(
        "",
        (34, "NvtxMark", "NvtxMark"), (59, "NvtxPushPopRange", "NvtxPushPopRange"),
        (60, "NvtxStartEndRange", "NvtxStartEndRange"), (75, "NvtxDomainCreate", "NvtxDomainCreate"),
    )),
    "ENUM_CUPTI_STREAM_TYPE": (("streams",), _rows(
        "CUPTI_ACTIVITY_STREAM_CREATE_FLAG_",
        (0, "UNKNOWN", "Unknown stream type"), (1, "DEFAULT", "Default stream"),
        (2, "NON_BLOCKING", "Non-blocking stream"), (3, "NULL", "Null stream"),
    )),
}  # fmt: skip
"""ENUM_ table -> our tables that refer to it, and its rows (id, name, label)."""
