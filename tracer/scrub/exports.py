"""Scrubs nsys exports: known numbers, the names that kept rows refer to, and the exporter's version are kept."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Set
from typing import Any, Final

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tracer.formats import nsys_schema as nsys
from tracer.model.schema import CARRIED, TABLES
from tracer.model.trace import Trace
from tracer.scrub.texts import Texts

_NVTX: Final = TABLES["nvtx"].nsys
_GPUS: Final = nsys.GPUS
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
_SECRET_NUMBERS: Final = {(_GPUS, "pwGpuId")} | {(c, ip) for c in _CHAINS for ip in ("originalIP", "unresolvedIP")}
_NUMBERS: Final = {
    (table, column.name) for table, columns in nsys.SQL_COLUMNS.items() for column in columns if column.type != "TEXT"
} - _SECRET_NUMBERS | {(table, column) for table, columns in _LATER.items() for column in columns.split()}

_KEPT: Final = (
    nsys.ANALYSIS, nsys.CUDA_CONTEXTS, nsys.CUDA_DEVICES, _GPUS, _NVTX, TABLES["streams"].nsys,
    "CUDA_GRAPH_EVENTS", "CUDA_GRAPH_NODE_EVENTS", "CUPTI_ACTIVITY_KIND_OVERHEAD", "PROFILER_OVERHEAD",
)  # fmt: skip
"""Tables, in addition to those of events, whose known columns are kept."""
_CALLS: Final = ("nameId",)
_NAMES: Final = ("demangledName", "shortName", "mangledName", "textId")
"""Columns whose numbers are ids in StringIds."""

_WHAT: Final = {
    "TARGET_INFO_SYSTEM_ENV": "environment", "META_DATA_CAPTURE": "command lines",
    "ProcessStreams": "output of processes", "DIAGNOSTIC_EVENT": "messages", "ANALYSIS_FILE": "files",
    "ThreadNames": "thread priorities", nsys.SESSION: "local time",
}  # fmt: skip
_EXPORT_VALUES: Final = re.compile(r"NVIDIA Nsight Systems|[\d.]+|\d[\d.]* \d+|\d{4}(-\d\d){2}T[\d:.]+Z?")
_EXPORT_ROWS: Final = re.compile(
    rf"{nsys.EXPORT_PRODUCT}|{nsys.EXPORT_VERSION}|EXPORT_PRODUCT_DATE|{nsys.EXPORT_SCHEMA}(_[A-Z]+)?|EXPORT_TIME_UTC"
)
_CHIP: Final = re.compile(r"[A-Z]{2}\d{2,3}[A-Z]?")


def learn(trace: Trace, texts: Texts, names: Set[str]) -> None:
    """Learn from what will be removed: the environment, command lines, ids of GPUs, and all texts not in `names`."""
    for table in trace.carried.values():
        columns = {field.name: table[field.name].to_pylist() for field in table.schema if _is_text(field.type)}
        if columns.keys() >= {"name", "value"}:
            for key, value in zip(columns["name"], columns["value"], strict=True):
                texts.learn(key or "", value or "")
        for column, values in columns.items():
            for value in values:
                if value and value not in names:
                    texts.learn(column, value)


def columns(trace: Trace, texts: Texts) -> None:
    """Drop carried columns not known to be harmless from the tables of events, in place."""
    for table in TABLES.values():
        frame = trace[table.name]
        for name in [name for name in map(str, frame.columns) if name.startswith(CARRIED)]:
            values = frame[name].array.__arrow_array__()
            kept = _column(table.nsys, name.removeprefix(CARRIED), values, texts)
            if kept is None:
                frame = frame.drop(columns=name)
            elif kept is not values:
                frame = frame.assign(**{name: pd.arrays.ArrowExtensionArray(kept)})
        trace.tables[table.name] = frame


def tables(trace: Trace, texts: Texts, names: Set[str]) -> None:
    """Drop carried tables not known to be harmless, and clean the others, in place. Call it after `columns`.

    `names` are the trace's names before scrubbing.
    """
    carried, trace.carried = trace.carried, {}
    for name, table in carried.items():
        if name in _KEPT:
            trace.carried[name] = _table(name, table, texts)
        elif name == nsys.EXPORT:
            trace.carried[name] = _export(table, texts)
        elif name in nsys.ENUMS:  # written as we know it
            texts.remove("labels", name, _unknown_labels(name, table))
        elif name not in (nsys.STRINGS, TABLES["processes"].nsys):
            texts.remove(_WHAT.get(name, "unknown table"), name, len(table))
    trace.carried = {name: table for name, table in trace.carried.items() if len(table)}
    if nsys.STRINGS in carried:
        trace.carried[nsys.STRINGS] = _strings(carried[nsys.STRINGS], trace, texts, names)


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
    if pa.types.is_null(values.type):
        return None
    where = f"{table}.{column}"
    number = pa.types.is_integer(values.type) or pa.types.is_floating(values.type)
    if number and (table, column) in _NUMBERS:
        return values
    if _is_text(values.type) and (table, column) == (_NVTX, "text"):
        return _mapped(values, lambda text: texts.name(text, where))
    if _is_text(values.type) and (table, column) == (_GPUS, "name"):
        return _mapped(values, lambda text: texts.device(text, where))
    if _is_text(values.type) and (table, column) == (_GPUS, "chipName"):
        return _mapped(values, lambda text: text if _CHIP.fullmatch(text) else "")
    held = values.drop_null()
    if number or _is_text(values.type):
        held = held.filter(pc.not_equal(held, pa.scalar(0 if number else "", values.type)))
    of_gpu = table in (_GPUS, nsys.CUDA_DEVICES)
    texts.remove("identity of a GPU" if of_gpu else "unknown column", where, len(held))
    return None


def _mapped(values: Any, clean: Callable[[str], str]) -> pa.Array:
    return pa.array([None if text is None else clean(text) for text in values.to_pylist()], pa.string())


def _export(table: pa.Table, texts: Texts) -> pa.Table:
    rows = list(zip(table["name"].to_pylist(), table["value"].to_pylist(), strict=True))
    stays = [bool(_EXPORT_ROWS.fullmatch(name or "") and _EXPORT_VALUES.fullmatch(value or "")) for name, value in rows]
    texts.remove("options and local time of the export", nsys.EXPORT, stays.count(False))
    return table.select(["name", "value"]).filter(pa.array(stays, pa.bool_()))


def _unknown_labels(name: str, table: pa.Table) -> int:
    known = set(nsys.ENUMS[name])
    rows = table.to_pylist()
    return sum((row.get("id"), row.get("name"), row.get("label")) not in known for row in rows)


def _strings(strings: pa.Table, trace: Trace, texts: Texts, names: Set[str]) -> pa.Table:
    """The StringIds to which carried columns refer, cleaned; writing the trace adds its own names again."""
    is_used = _is_in(strings["id"], _used(trace))
    others = strings["value"].filter(pc.invert(is_used)).to_pylist()
    texts.remove("strings of removed rows", nsys.STRINGS, sum(text not in names for text in others))
    used, calls = strings.filter(is_used), set(_used(trace, _CALLS))
    ids, values = used["id"].to_pylist(), used["value"].to_pylist()
    cleaned = [
        None if text is None else (texts.call if id in calls else texts.name)(text, nsys.STRINGS)
        for id, text in zip(ids, values, strict=True)
    ]
    return pa.table({"id": used["id"], "value": pa.array(cleaned, pa.string())})


def _used(trace: Trace, columns: Iterable[str] = (*_CALLS, *_NAMES)) -> list[int]:
    """The ids of strings to which carried columns refer."""
    ids = {id for values in _references(trace, columns) for id in pc.unique(values).to_pylist()}
    return sorted(ids - {None})


def _references(trace: Trace, columns: Iterable[str]) -> Iterator[Any]:
    found: list[Any] = []
    for column in columns:
        found += [f[CARRIED + column].array.__arrow_array__() for f in trace.tables.values() if CARRIED + column in f]
        found += [t[column] for name, t in trace.carried.items() if name in _KEPT and column in t.column_names]
    return (values for values in found if pa.types.is_integer(values.type))


def _is_in(ids: pa.ChunkedArray, wanted: list[int]) -> Any:
    return pc.is_in(ids, pa.array(wanted, pa.int64()))


def _is_text(type: pa.DataType) -> bool:
    return bool(pa.types.is_string(type) or pa.types.is_large_string(type))
