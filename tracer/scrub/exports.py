"""Scrubs nsys exports: known numbers, the texts that kept rows refer to, and the exporter's version are kept."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tracer.formats import nsys_schema as nsys
from tracer.model.schema import CARRIED, TABLES
from tracer.model.trace import Trace
from tracer.scrub.texts import Texts

_NVTX: Final = TABLES["nvtx"].nsys
_LATER: Final = {
    TABLES["kernels"].nsys: (
        "qmdBulkReleaseDone qmdPreexitDone qmdLastCtaDone graphId clusterX clusterY clusterZ clusterSchedulingPolicy "
        "maxPotentialClusterSize maxActiveClusters sharedMemoryRequestedPercentage"
    ),
    TABLES["cuda_events"].nsys: "timestamp",
    "CUPTI_ACTIVITY_KIND_OVERHEAD": "start end eventClass globalTid correlationId nameId overheadType",
    "PROFILER_OVERHEAD": "overheadType",
    nsys.CUDA_CONTEXTS: "numMultiprocessors",
    nsys.CUDA_DEVICES: "numMultiprocessors",
}
"""Columns of numbers that schema 3.25 adds to 3.20."""
_CHAINS: Final = tuple(TABLES[name].nsys for name in ("callchains", "sample_chains"))
_SECRET_NUMBERS: Final = {(nsys.GPUS, "pwGpuId")} | {(c, ip) for c in _CHAINS for ip in ("originalIP", "unresolvedIP")}
_NUMBERS: Final = {
    (table, column.name) for table, columns in nsys.SQL_COLUMNS.items() for column in columns if column.type != "TEXT"
} - _SECRET_NUMBERS | {(table, column) for table, columns in _LATER.items() for column in columns.split()}

_KEPT: Final = (
    nsys.ANALYSIS, nsys.CUDA_CONTEXTS, nsys.CUDA_DEVICES, nsys.GPUS, _NVTX, TABLES["streams"].nsys,
    "CUDA_GRAPH_EVENTS", "CUDA_GRAPH_NODE_EVENTS", "CUPTI_ACTIVITY_KIND_OVERHEAD", "PROFILER_OVERHEAD",
)  # fmt: skip
"""Tables, in addition to those of events, whose known columns are kept."""
_NAMES: Final = ("nameId", "demangledName", "shortName", "mangledName", "textId")
"""Columns whose numbers are ids in StringIds."""

_EXPORT_VALUES: Final = re.compile(r"NVIDIA Nsight Systems|[\d.]+|\d[\d.]* \d+|\d{4}(-\d\d){2}T[\d:.]+Z?")
_EXPORT_ROWS: Final = re.compile(
    rf"{nsys.EXPORT_PRODUCT}|{nsys.EXPORT_VERSION}|EXPORT_PRODUCT_DATE|{nsys.EXPORT_SCHEMA}(_[A-Z]+)?|EXPORT_TIME_UTC"
)


def columns(trace: Trace, texts: Texts) -> None:
    """Clean the carried columns of the tables of events, and drop unknown ones, in place."""
    for table in TABLES.values():
        frame = trace[table.name]
        for name in [name for name in map(str, frame.columns) if name.startswith(CARRIED)]:
            kept = _column(table.nsys, name.removeprefix(CARRIED), frame[name].array.__arrow_array__(), texts)
            frame = frame.drop(columns=name)
            if kept is not None:
                frame = frame.assign(**{name: pd.arrays.ArrowExtensionArray(kept)})
        trace.tables[table.name] = frame


def tables(trace: Trace, texts: Texts) -> None:
    """Clean the carried tables, and drop unknown ones, in place. Call it after `columns`."""
    carried, trace.carried = trace.carried, {}
    for name, table in carried.items():
        if name in _KEPT:
            trace.carried[name] = _table(name, table, texts)
        elif name == nsys.EXPORT:
            trace.carried[name] = _export(table)
        elif name not in (nsys.STRINGS, TABLES["processes"].nsys, *nsys.ENUMS):  # written as we know them
            texts.remove(name, len(table))
    trace.carried = {name: table for name, table in trace.carried.items() if len(table)}
    if nsys.STRINGS in carried:
        trace.carried[nsys.STRINGS] = _strings(carried[nsys.STRINGS], trace, texts)


def _table(name: str, table: pa.Table, texts: Texts) -> pa.Table:
    kept = {column: _column(name, column, table[column], texts) for column in table.column_names}
    declared = {column.name: column for column in nsys.SQL_COLUMNS.get(name, [])}
    for column, values in kept.items():
        if values is None and column in declared:  # nsys's own queries may select it
            nothing = "" if declared[column].type == "TEXT" else 0
            kept[column] = pa.array([nothing] * len(table))
    return pa.table({column: values for column, values in kept.items() if values is not None})


def _column(table: str, column: str, values: Any, texts: Texts) -> Any:
    """The column with its texts cleaned; None if it must be removed."""
    where = f"{table}.{column}"
    if (table, column) in _NUMBERS and (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        return values
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        clean = {(_NVTX, "text"): texts.range, (nsys.GPUS, "name"): texts.device}.get((table, column))
        if clean is not None:
            return pa.array([None if t is None else clean(t, where) for t in values.to_pylist()], pa.string())
    texts.remove(where, sum(map(bool, values.to_pylist())))
    return None


def _export(table: pa.Table) -> pa.Table:
    rows = zip(table["name"].to_pylist(), table["value"].to_pylist(), strict=True)
    stays = [bool(_EXPORT_ROWS.fullmatch(name or "") and _EXPORT_VALUES.fullmatch(value or "")) for name, value in rows]
    return table.select(["name", "value"]).filter(pa.array(stays, pa.bool_()))


def _strings(strings: pa.Table, trace: Trace, texts: Texts) -> pa.Table:
    """The StringIds to which carried columns refer, cleaned; writing the trace adds its own names again."""
    used = {id for values in _references(trace) for id in pc.unique(values).to_pylist()} - {None}
    strings = strings.filter(pc.is_in(strings["id"], pa.array(sorted(used), pa.int64())))
    cleaned = [None if text is None else texts.range(text, nsys.STRINGS) for text in strings["value"].to_pylist()]
    return pa.table({"id": strings["id"], "value": pa.array(cleaned, pa.string())})


def _references(trace: Trace) -> Iterator[Any]:
    for column in _NAMES:
        found = [f[CARRIED + column].array.__arrow_array__() for f in trace.tables.values() if CARRIED + column in f]
        found += [t[column] for name, t in trace.carried.items() if name in _KEPT and column in t.column_names]
        yield from (values for values in found if pa.types.is_integer(values.type))
