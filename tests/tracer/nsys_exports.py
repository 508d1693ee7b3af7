"""Builds nsys SQLite exports from the schemas of real ones, with chosen rows, tables and columns."""

import gzip
import json
import sqlite3
from collections.abc import Collection, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from tracer.formats import nsys_schema
from tracer.model.trace import Trace

DATA = Path(__file__).parent / "data"
SCHEMA_FILES = {
    "3.20.3": Path(nsys_schema.__file__).with_name("nsys-schema-3.20.3.json"),
    "3.25.0": DATA / "nsys-schema-3.25.0.json",
}
SCHEMAS = {version: json.loads(file.read_text()) for version, file in SCHEMA_FILES.items()}

PID, TID = 4242, 4250
GLOBAL_PID = 1 << 48 | PID << 24
GLOBAL_TID = GLOBAL_PID | TID
KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"

Rows = Mapping[str, list[dict[str, Any]]]

_ROWS = json.loads((DATA / "nsys-rows.json").read_text())
RECORDING: Rows = _ROWS["recording"]
"""A small recording with every table we read and every case its columns have."""

EVERYTHING: Rows = {**RECORDING, **_ROWS["everything"]}
"""The same with what exports hold beyond our tables and columns."""

STEPS: Rows = _ROWS["steps"]
"""Three token steps; damage of them is still analysed."""

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


def columns_of(trace: Trace, wanted: Mapping[str, Collection[str]]) -> dict[str, dict[str, list[Any]]]:
    """The values of these columns, by table and name; None where there is none."""
    frames = {name: trace[name].astype(object) for name in wanted}
    return {name: {c: frames[name][c].where(frames[name][c].notna(), None).tolist() for c in wanted[name]}
            for name in wanted}  # fmt: skip


def tampered(path: Path, *statements: str, rows: Rows = RECORDING) -> Path:
    """An export after these statements of SQL, by somebody else or by an attacker."""
    with closing(sqlite3.connect(export(path, rows), isolation_level=None)) as database:
        database.execute("BEGIN")
        for statement in statements:
            database.execute(statement)
        database.execute("COMMIT")
    return path


def real_export(path: Path, name: str = "llama1b-saaas-graph") -> Path:
    """An export of the real nsys."""
    path.write_bytes(gzip.decompress((DATA / f"{name}.sqlite.gz").read_bytes()))
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
