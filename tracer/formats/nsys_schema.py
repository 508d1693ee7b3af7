"""The parts of Nsight Systems' schema that `tracer.model.schema` lacks: packed ids, auxiliary tables, enum labels.

Source: SQLite exports of schema 3.20.3 and 3.25.0; for the tables of samples a public one of schema 3.16.1 (nsys
2024.6); for the table of call chains the SQLite Export Schema Reference in the documentation of Nsight Systems. Samples
of Python are NVTX marks (`nsys.python_samples`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from tracer.model.schema import MISSING, NAME, TABLES, TEXT

STRINGS: Final = "StringIds"
EXPORT: Final = "META_DATA_EXPORT"
SESSION: Final = "TARGET_INFO_SESSION_START_TIME"
CUDA_DEVICES: Final = "TARGET_INFO_CUDA_DEVICE"
GPUS: Final = TABLES["devices"].nsys
CUDA_CONTEXTS: Final = "TARGET_INFO_CUDA_CONTEXT_INFO"
ANALYSIS: Final = "ANALYSIS_DETAILS"

PRODUCT: Final = "intertoken"
EXPORT_PRODUCT: Final = "EXPORT_PRODUCT_NAME"
EXPORT_VERSION: Final = "EXPORT_PRODUCT_VERSION"
EXPORT_SCHEMA: Final = "EXPORT_SCHEMA_VERSION"
METADATA_ROW: Final = "INTERTOKEN_METADATA"
NOTES_ROW: Final = "INTERTOKEN_NOTES"
"""Rows of META_DATA_EXPORT with JSON for which nsys has no table. They also mark a file as written by us."""

GLOBAL_PID: Final = "globalPid"
GLOBAL_TID: Final = "globalTid"
DOMAIN_CREATE: Final = 75  # NVTX event type that names a domain, not a range
PAYLOADS: Final = ("doubleValue", "floatValue", "int64Value", "uint64Value", "int32Value", "uint32Value")
DEPRECATED_SYNC_TYPE: Final = "deprecatedSyncType"  # syncType in exports of 2021 to 2023
OLD_GPU_ID: Final = "deviceId"  # id of a GPU in older exports, which store no version

SYNC_CALLS: Final = {
    "StreamSynchronize": "stream",
    "StreamWaitEvent": "stream wait",
    "EventSynchronize": "event",
    "DeviceSynchronize": "context",
    "CtxSynchronize": "context",
    "ThreadSynchronize": "context",
}
"""CUDA call without its cuda/cu prefix and version suffix -> sync type."""

_GRAPH_SHIFT: Final = 32
_ID_BITS: Final = 24
_ID_MASK: Final = (1 << _ID_BITS) - 1
LARGEST_ID: Final = _ID_MASK - 1  # of a process or thread
VIRTUAL_MACHINE: Final = 1 << 48  # the bit that nsys sets above the process id of its only machine

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
    wanted[TABLES["nvtx"].nsys] |= {"textId": pa.int64(), "domainId": pa.int64(), "jsonText": pa.string()}
    wanted[TABLES["nvtx"].nsys] |= {p: pa.float64() if p[0] in "df" else pa.int64() for p in PAYLOADS}
    wanted[TABLES["syncs"].nsys] |= {DEPRECATED_SYNC_TYPE: pa.int64()}
    wanted[TABLES["devices"].nsys] |= {OLD_GPU_ID: pa.int64()}
    wanted[STRINGS] = {"id": pa.int64(), "value": pa.string()}
    wanted[EXPORT] = {"name": pa.string(), "value": pa.string()}
    wanted[SESSION] = {"utcEpochNs": pa.int64()}
    wanted[CUDA_DEVICES] = {"gpuId": pa.int64(), "cudaId": pa.int64(), "pid": pa.int64()}
    return wanted


COLUMNS: Final = _columns()
"""nsys table -> column -> the Arrow type we read it as. All other data in an export is only carried."""

SAMPLES: Final = frozenset({TABLES["samples"].nsys, TABLES["sample_chains"].nsys})
"""Tables that are often larger than all others together, read only with the option `SAMPLED`; see `read_first`."""

SAMPLED: Final = "samples"


def read_first(samples: bool) -> frozenset[str]:
    """The tables that analyses need, with or without samples."""
    return frozenset(COLUMNS) - (frozenset() if samples else SAMPLES)


REQUIRED: Final = {
    t.nsys: tuple(c for c in ("start", "end", "eventType") if c in COLUMNS[t.nsys]) for t in TABLES.values()
} | {
    STRINGS: ("id", "value"),
    EXPORT: ("name", "value"),
    CUDA_DEVICES: ("gpuId", "cudaId"),
    TABLES["devices"].nsys: ("id",),  # or OLD_GPU_ID
}
"""Columns without which a table cannot be read; any other may be missing."""

NEVER_NULL: Final = frozenset({"start", "end", "eventType", "id"})  # except the end of an NVTX range


_VERSION: Final = re.compile(r"(\w+)_V([0-9]{1,9})")
_MOST_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class Versioned:
    """One of nsys's tables as stored in a newer version, whose name has a suffix (`NVTX_EVENTS_V2`).

    Attributes:
        name: its name in the file.
        spelled: known column -> its name in the file, where the two differ in case and underscores.
    """

    name: str
    spelled: Mapping[str, str] = field(default_factory=dict)

    def known(self, columns: Iterable[str]) -> list[str]:
        """These columns of the file by their known names."""
        known = {stored: name for name, stored in self.spelled.items()}
        return [known.get(column, column) for column in columns]


def newest_versions(
    stored: Collection[str], columns_of: Callable[[str], Iterable[str]], notes: list[str]
) -> dict[str, Versioned]:
    """nsys's tables of which these names have versions with a suffix -> the newest with all required columns.

    Args:
        columns_of: table in the file -> its columns.
        notes: receives what is read as a known table, and what is not read.
    """
    versions_of: dict[str, dict[int, str]] = {}
    unknown = []
    for name in sorted(stored):
        if (match := _VERSION.fullmatch(name)) and match[1] in COLUMNS:
            versions_of.setdefault(match[1], {})[int(match[2])] = name
        elif match and not name.startswith("ENUM_"):
            unknown.append(name)
    chosen: dict[str, Versioned] = {}
    for table, versions in versions_of.items():
        versions = versions | ({-1: table} if table in stored else {})
        for number in sorted(versions, reverse=True):
            name, stored_columns = versions[number], list(columns_of(versions[number]))
            spelled = _spelled(table, stored_columns)
            lacks = [c for c in REQUIRED.get(table, ()) if c not in stored_columns and c not in spelled]
            if table in chosen:
                notes.append(f"table {name} is not read: {chosen[table].name} is newer")
            elif lacks:
                notes.append(f"table {name} is not read: it has no column {lacks[0]}, which {table} has")
            else:
                chosen[table] = Versioned(name, spelled)
                if name != table:
                    notes.append(f"table {name} is read as {table}")
    if unknown:
        more = f" and {len(unknown) - _MOST_NAMED} more" if len(unknown) > _MOST_NAMED else ""
        notes.append(f"tables of unknown versions are not used: {', '.join(unknown[:_MOST_NAMED])}{more}")
    return chosen


def _spelled(table: str, columns: Sequence[str]) -> dict[str, str]:
    folded = {column.replace("_", "").casefold(): column for column in columns}
    wanted = {name: folded.get(name.casefold(), name) for name in COLUMNS[table] if name not in columns}
    return {name: column for name, column in wanted.items() if column != name}


def graph_of_node(node: Ids) -> Ids:
    """The graph ids in the upper 32 bits of graphNodeId values; MISSING for MISSING."""
    return node >> _GRAPH_SHIFT  # MISSING is -1, and -1 shifted is -1


def pack_ids(process: Ids, thread: Ids | None = None) -> tuple[Ids, np.ndarray[tuple[int, ...], np.dtype[np.bool_]]]:
    """Pack process and thread ids into nsys's globalTid (globalPid without threads); also returns the NULL mask.

    If only one id of a pair is unknown, it is stored as all ones. Ids above 24 bits lose their upper bits, as in nsys.
    """
    packed = VIRTUAL_MACHINE | (process & _ID_MASK) << _ID_BITS
    if thread is None:
        return packed, process == MISSING
    return packed | thread & _ID_MASK, (process == MISSING) & (thread == MISSING)


def unpack_process(packed: Ids) -> Ids:
    """The process ids in globalPid or globalTid values; MISSING for NULL."""
    return _unpack(packed, _ID_BITS)


def unpack_thread(packed: Ids) -> Ids:
    """The thread ids in globalTid values; MISSING for NULL."""
    return _unpack(packed, 0)


def _unpack(packed: Ids, shift: int) -> Ids:
    if len(packed) > 1 and (packed == packed[0]).all():  # the common case of one process or thread, faster
        return np.full(len(packed), _unpack(packed[:1], shift)[0])
    ids = packed >> shift
    ids &= _ID_MASK
    unknown = ids == _ID_MASK
    unknown |= packed == MISSING
    ids[unknown] = MISSING
    return ids


_WRITTEN: Final = json.loads(Path(__file__).with_name("nsys-schema-3.20.3.json").read_text(encoding="utf-8"))
SCHEMA_WRITTEN: Final[str] = _WRITTEN["schema"]
"""The schema we write, plus the kernels' graphId from 3.25. A parquetdir omits the columns that we do not know."""


@dataclass(frozen=True, slots=True)
class SqlColumn:
    """A column as nsys declares it in SQLite."""

    name: str
    type: str
    not_null: bool = False
    primary_key: bool = False


SQL_COLUMNS: Final = {table: [SqlColumn(**c) for c in columns] for table, columns in _WRITTEN["tables"].items()}
"""nsys table -> its columns in SQLite, in nsys's order."""

ENUM_COLUMNS: Final = [SqlColumn("id", "INTEGER", True, True), SqlColumn("name", "TEXT"), SqlColumn("label", "TEXT")]
ENUMS: Final[dict[str, list[tuple[int, str, str]]]] = {
    table: [(id, name, label) for id, name, label in content["rows"]] for table, content in _WRITTEN["enums"].items()
}
"""ENUM_ table -> its rows (id, name, label)."""


@cache
def enum_table(name: str) -> pa.Table:
    """The ENUM_ table of that name as nsys writes it, with columns id, name and label."""
    ids, names, labels = zip(*ENUMS[name], strict=True)
    return pa.table({"id": ids, "name": names, "label": labels})


_NOT_IN_A_TRACE: Final = {"vmId": 1}


def is_declared(table: str, column: str) -> bool:
    """Whether every export of the schema that we write has the column, even if all rows are NULL."""
    return (table, column) in _DECLARED


_DECLARED: Final = {(table, c.name) for table, columns in SQL_COLUMNS.items() for c in columns}
_NOT_NULL: Final = {(table, c.name): c.type for table, columns in SQL_COLUMNS.items() for c in columns if c.not_null}


def filler(table: str, column: str) -> int | str | None:
    """The value for a NOT NULL column of nsys that no trace has; None if NULL is allowed."""
    type = _NOT_NULL.get((table, column))
    return None if type is None else "" if type == "TEXT" else _NOT_IN_A_TRACE.get(column, 0)


ENUM_USERS: Final = {
    "ENUM_CUDA_MEMCPY_OPER": ("memcpys",),
    "ENUM_CUDA_MEM_KIND": ("memcpys", "memsets"),
    "ENUM_CUPTI_SYNC_TYPE": ("syncs",),
    "ENUM_NSYS_EVENT_CLASS": ("api",),
    "ENUM_NSYS_EVENT_TYPE": ("nvtx",),
    "ENUM_CUPTI_STREAM_TYPE": ("streams",),
}
"""ENUM_ table -> our tables that refer to it."""
