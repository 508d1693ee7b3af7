"""Builds nsys SQLite exports from the schemas of real ones, with chosen rows, tables and columns."""

import json
import sqlite3
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from tracer.formats import nsys_schema

DATA = Path(__file__).parent / "data"
SCHEMA_FILES = {
    "3.20.3": Path(nsys_schema.__file__).with_name("nsys-schema-3.20.3.json"),
    "3.25.0": DATA / "nsys-schema-3.25.0.json",
}
SCHEMAS = {version: json.loads(file.read_text()) for version, file in SCHEMA_FILES.items()}

PID, TID = 4242, 4250
GLOBAL_PID = 1 << 48 | PID << 24
GLOBAL_TID = GLOBAL_PID | TID

Rows = Mapping[str, list[dict[str, Any]]]

_ON_STREAM = {"deviceId": 1, "contextId": 2, "streamId": 7, "globalPid": GLOBAL_PID}
_NO_EVENT = {"eventId": 2**32 - 1, "eventSyncId": 2**32 - 1}


def _api(start: int, correlation: int, name: int, event_class: int = 0) -> dict[str, Any]:
    return {
        "start": start, "end": start + 50, "eventClass": event_class, "globalTid": GLOBAL_TID,
        "correlationId": correlation, "nameId": name, "returnValue": 0,
    }  # fmt: skip


RECORDING: Rows = {
    "StringIds": [
        {"id": id, "value": value}
        for id, value in {
            3: "void mul<float>(int)", 4: "mul", 9: "cudaLaunchKernel_v7000", 10: "cudaStreamSynchronize_v3020",
            11: "cudaStreamWaitEvent_v3020", 12: "cudaEventSynchronize_v3020", 13: "cudaDeviceSynchronize_v3020",
            14: "cuCtxSynchronize", 15: "cudaFree_v3020", 20: "token 0", 21: "engine", 30: "worker",
        }.items()
    ],
    "CUPTI_ACTIVITY_KIND_KERNEL": [
        {**_ON_STREAM, "start": 300, "end": 400, "correlationId": 2, "demangledName": 3, "shortName": 4,
         "gridX": 5, "gridY": 6, "gridZ": 7, "blockX": 8, "blockY": 9, "blockZ": 10, "registersPerThread": 32,
         "staticSharedMemory": 16, "dynamicSharedMemory": 64, "graphNodeId": 5 << 32 | 3},
        {**_ON_STREAM, "start": 100, "end": 200, "correlationId": 1, "demangledName": 99, "shortName": 4,
         "gridX": 1, "gridY": 1, "gridZ": 1, "blockX": 1, "blockY": 1, "blockZ": 1, "registersPerThread": 1,
         "staticSharedMemory": 0, "dynamicSharedMemory": 0, "graphNodeId": None},
    ],
    "CUPTI_ACTIVITY_KIND_MEMCPY": [
        {**_ON_STREAM, "start": 10, "end": 20, "correlationId": 3, "bytes": 4096, "copyKind": 1, "srcKind": 1,
         "dstKind": 2},
        {**_ON_STREAM, "start": 30, "end": 40, "correlationId": 4, "bytes": 1, "copyKind": 99,
         "srcKind": None, "dstKind": None},
    ],
    "CUPTI_ACTIVITY_KIND_MEMSET": [
        {**_ON_STREAM, "start": 5, "end": 6, "correlationId": 5, "value": 255, "bytes": 8, "memKind": 4},
    ],
    "CUPTI_ACTIVITY_KIND_RUNTIME": [
        _api(90, 1, 9), _api(500, 10, 10), _api(600, 11, 11), _api(700, 12, 12), _api(800, 13, 13),
        _api(900, 14, 14, event_class=1), _api(1000, 15, 15),
    ],
    "CUDA_CALLCHAINS": [{"id": 3, "symbol": 30, "module": 21, "stackDepth": 0}],
    "COMPOSITE_EVENTS": [{"id": 8, "start": 950, "cpu": 3, "threadState": 1, "globalTid": GLOBAL_TID, "cpuCycles": 77}],
    "SAMPLING_CALLCHAINS": [
        {"id": 8, "symbol": 30, "module": 21, "unresolved": 0, "originalIP": 4096, "stackDepth": 0},
    ],
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": [
        {**_ON_STREAM, **_NO_EVENT, "start": start, "end": start + 9, "correlationId": correlation,
         "syncType": 2}
        for start, correlation in ((510, 10), (710, 12), (810, 13), (910, 14), (1010, 15), (1110, 77))
    ] + [{**_ON_STREAM, "start": 610, "end": 619, "correlationId": 11, "syncType": 2, "eventId": 6,
          "eventSyncId": 1}],
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": [
        {**_ON_STREAM, "correlationId": 21, "eventId": 6, "eventSyncId": 1},
        {**_ON_STREAM, **_NO_EVENT, "correlationId": 22},
    ],
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": [
        {**_ON_STREAM, "start": 2000, "end": 2100, "correlationId": 30, "graphId": 5, "graphExecId": 6},
    ],
    "NVTX_EVENTS": [
        {"start": 1, "eventType": 75, "text": "NCCL", "globalTid": GLOBAL_TID, "domainId": 8},
        {"start": 2, "eventType": 75, "textId": 21, "globalTid": GLOBAL_TID, "domainId": 9},
        {"start": 50, "end": 450, "eventType": 59, "textId": 20, "globalTid": GLOBAL_TID, "domainId": 0,
         "color": 255},
        {"start": 60, "end": None, "eventType": 59, "text": "open", "globalTid": GLOBAL_TID, "domainId": 8},
        {"start": 70, "end": None, "eventType": 34, "text": "mark", "globalTid": GLOBAL_TID, "domainId": 9,
         "category": 3},
        {"start": 80, "end": 90, "eventType": 60, "text": "s/e", "globalTid": GLOBAL_TID, "domainId": 4,
         "rangeId": 12},
    ],
    "ThreadNames": [{"nameId": 30, "priority": 20, "globalTid": GLOBAL_TID}],
    "PROCESSES": [{"globalPid": GLOBAL_PID, "pid": PID, "name": "engine"}],
    "TARGET_INFO_GPU": [
        {"vmId": 1 << 48, "id": 0, "name": "unused"},
        {"vmId": 1 << 48, "id": 3, "name": "H200", "smCount": 132, "totalMemory": 1 << 37,
         "memoryBandwidth": 4814304000000, "clockRate": 1980000000},
    ],
    "TARGET_INFO_CUDA_DEVICE": [{"gpuId": 3, "cudaId": 1, "pid": PID}],
    "TARGET_INFO_CUDA_STREAM": [
        {"streamId": 7, "hwId": 0, "vmId": 1, "processId": PID, "contextId": 2, "priority": -1, "flag": 3},
    ],
    "TARGET_INFO_SESSION_START_TIME": [{"utcEpochNs": 1795227667831034602}],
    "META_DATA_EXPORT": [
        {"name": "EXPORT_PRODUCT_VERSION", "value": "2025.3.2.0"},
        {"name": "EXPORT_SCHEMA_VERSION", "value": "3.20.3"},
    ],
}  # fmt: skip
"""A small recording with every table we read and every case its columns have."""

COLUMNS_AFTER_2021 = frozenset({
    "greenContextId", "graphNodeId", "syncType", "eventSyncId", "graphExecId", "memKind", "copyCount",
    "jsonText", "jsonTextId", "binaryData", "clockRate", "smCount", "totalMemory", "memoryBandwidth",
})  # fmt: skip


def export(
    path: Path,
    rows: Rows = RECORDING,
    *,
    schema: str = "3.20.3",
    without_tables: Collection[str] = (),
    without_columns: Collection[str] = (),
) -> Path:
    """Write an SQLite export: each table of `rows`, and as nsys does all ENUM_ tables.

    A value that a row does not give is NULL, or 0 where the schema wants one. `without_columns` holds names
    as `column` or `TABLE.column`.
    """
    tables = SCHEMAS[schema]["tables"]
    with sqlite3.connect(path) as database:
        for enum, content in SCHEMAS[schema]["enums"].items():
            database.execute(f"CREATE TABLE {enum} (id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT)")
            database.executemany(f"INSERT INTO {enum} VALUES (?, ?, ?)", content["rows"])
        for name, table_rows in rows.items():
            columns = [
                c for c in tables.get(name, SCHEMAS["3.20.3"]["tables"][name])
                if not {c["name"], f"{name}.{c['name']}"} & set(without_columns)
            ]  # fmt: skip
            if name in without_tables or not columns:
                continue
            definitions = (
                f"{c['name']} {c['type']}{' NOT NULL' * c['not_null']}{' PRIMARY KEY' * c.get('primary_key', 0)}"
                for c in columns
            )
            database.execute(f"CREATE TABLE {name} ({', '.join(definitions)})")
            values = [[row.get(c["name"], 0 if c["not_null"] else None) for c in columns] for row in table_rows]
            database.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(columns))})", values)
    database.close()
    return path


def export_of_2021(path: Path) -> Path:
    """An export with the columns of 2021, where only `deprecatedSyncType` says what was waited for."""
    syncs = [
        {key: value for key, value in row.items() if key != "syncType"}
        | {"deprecatedSyncType": 3, "correlationId": None}
        for row in RECORDING["CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"]
    ]
    rows = {**RECORDING, "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": syncs}
    return export(path, rows, without_columns=COLUMNS_AFTER_2021, without_tables={"CUPTI_ACTIVITY_KIND_GRAPH_TRACE"})
