"""Trace -> SQLite export in Nsight Systems' own schema, so that its reports, rules and other readers open it.

As in nsys's exports there is a table only where there are rows, and every ENUM_ table; a column that a trace
does not know is NULL. Where nsys forbids NULL, it is `MISSING` for what the trace could know and `_NOT_IN_A_TRACE`
for what no trace holds.
"""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import numpy as np
import pandas as pd
import pyarrow as pa
from adbc_driver_manager import dbapi
from adbc_driver_sqlite import dbapi as sqlite

from tracer.errors import TraceError
from tracer.formats import nsys_schema as nsys
from tracer.formats.nsys_schema import SqlColumn
from tracer.formats.nsys_tables import enum_table, from_trace
from tracer.formats.partial import appearing
from tracer.schema import DEVICE_TABLES, MISSING, TABLES
from tracer.trace import Trace

_KERNELS: Final = TABLES["kernels"].nsys
_NULL_STREAM: Final = 3  # a stream's flag, see ENUM_CUPTI_STREAM_TYPE
_NOT_IN_A_TRACE: Final = {"vmId": 1}
"""Column -> its value in every table where nsys wants one and a trace has none; 0 if not named."""

# Nothing is journaled or flushed: until it is complete, the file has another name.
_PRAGMAS: Final = ("journal_mode = OFF", "synchronous = OFF", "locking_mode = EXCLUSIVE")


def write(trace: Trace, path: Path) -> None:
    """Write an export. It appears whole or not at all.

    Raises:
        TraceError: the path exists or cannot be written.
    """
    try:
        with appearing(path) as partial:
            partial.touch()  # the system says better than SQLite why it cannot be made
            _write_tables(_tables(trace), partial)
            with partial.open("rb") as file:
                os.fsync(file.fileno())
    except dbapi.Error as error:
        reason = str(error).splitlines()[0].rpartition(": ")[2]  # without ADBC's words around it
        raise TraceError(f"{path}: cannot be written: {reason}") from error


def _tables(trace: Trace) -> dict[str, pa.Table]:
    """Everything that the export holds, by nsys table name."""
    tables = from_trace(trace, with_run=True) | {name: enum_table(name) for name in nsys.ENUMS}
    if len(trace):
        tables |= {nsys.ANALYSIS: _analysis(trace), nsys.CUDA_CONTEXTS: _contexts(trace)}
    if isinstance(start := trace.metadata.get("start_utc_ns"), int):
        tables[nsys.SESSION] = _session(start)
    if nsys.GPUS in tables:
        machine = pa.array(np.full(len(trace["devices"]), nsys.VIRTUAL_MACHINE))
        tables[nsys.GPUS] = tables[nsys.GPUS].append_column("vmId", machine)
    if _KERNELS in tables and _graph_is_in_node(trace["kernels"]):
        tables[_KERNELS] = tables[_KERNELS].drop_columns("graphId")
    return {name: table for name, table in tables.items() if len(table)}


def _graph_is_in_node(kernels: pd.DataFrame) -> bool:
    """Whether graphNodeId alone says each kernel's graph; else it needs the column graphId of schema 3.25."""
    node = kernels["graph_node"].to_numpy()
    return bool((nsys.graph_of_node(node) == kernels["graph"].to_numpy()).all())


def _analysis(trace: Trace) -> pa.Table:
    start, end = trace.span
    values = {"globalVid": nsys.VIRTUAL_MACHINE, "duration": end - start, "startTime": start, "stopTime": end}
    return pa.table({name: [value] for name, value in values.items()})


def _session(start: int) -> pa.Table:
    seconds = datetime.datetime.fromtimestamp(start // 10**9, datetime.UTC)
    return pa.table({"utcEpochNs": [start], "utcTime": [seconds.strftime("%Y-%m-%dT%H:%M:%S")]})


def _contexts(trace: Trace) -> pa.Table:
    """The contexts in which something ran, each with its null stream where that is known."""
    used = pd.concat([trace[name][["process", "device", "context"]] for name in DEVICE_TABLES]).drop_duplicates()
    streams = trace["streams"]
    null = streams.loc[streams["flag"] == _NULL_STREAM, ["process", "context", "stream"]]
    contexts = used.merge(null.drop_duplicates(["process", "context"]), how="left").fillna(MISSING)
    names = {"stream": "nullStreamId", "process": "processId", "device": "deviceId", "context": "contextId"}
    return pa.table({theirs: contexts[ours].to_numpy(np.int64) for ours, theirs in names.items()})


def _write_tables(tables: dict[str, pa.Table], path: Path) -> None:
    uri = f"file:{quote(os.fspath(path.absolute()))}?mode=rwc"
    with sqlite.connect(uri, autocommit=True) as connection, connection.cursor() as cursor:
        for pragma in _PRAGMAS:
            cursor.execute(f"PRAGMA {pragma}").fetchall()
        cursor.execute("BEGIN")
        for name in list(tables):
            _write_table(cursor, name, tables.pop(name))
        cursor.execute("COMMIT")


def _write_table(cursor: Any, name: str, table: pa.Table) -> None:
    declared = nsys.SQL_COLUMNS.get(name, nsys.ENUM_COLUMNS)
    known = {column.name for column in declared}
    declared = declared + [SqlColumn(extra, "INTEGER") for extra in table.column_names if extra not in known]
    cursor.execute(f'CREATE TABLE "{name}" ({", ".join(_declaration(column) for column in declared)})')
    given = [column for column in declared if column.name in table.column_names]
    constant = [column for column in declared if column.not_null and column not in given]
    values = ["?"] * len(given) + [str(_NOT_IN_A_TRACE.get(column.name, 0)) for column in constant]
    columns = ", ".join(f'"{column.name}"' for column in given + constant)
    rows = pa.table({column.name: _values(table[column.name], column) for column in given})
    cursor.executemany(f'INSERT INTO "{name}" ({columns}) VALUES ({", ".join(values)})', rows)


def _declaration(column: SqlColumn) -> str:
    return f'"{column.name}" {column.type}{" NOT NULL" * column.not_null}{" PRIMARY KEY" * column.primary_key}'


def _values(values: pa.ChunkedArray, column: SqlColumn) -> pa.ChunkedArray:
    return values.fill_null(MISSING) if column.not_null and values.null_count else values
