"""Removes carried nsys data that contradicts a trace, after the trace's own tables were changed.

Some carried data repeats the trace in nsys's own form: the id of an NVTX text, the row of a GPU. It is written again as
long as the two agree; where they differ, the trace wins.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from tracer.formats import nsys
from tracer.formats import nsys_schema as schema
from tracer.formats.nsys_tables import from_trace
from tracer.model.schema import CARRIED, TABLES, Table
from tracer.model.trace import Trace, conform

_NVTX: Final = TABLES["nvtx"].nsys
_SAYS: Final = {
    schema.GLOBAL_TID: ["process", "thread"], schema.GLOBAL_PID: ["process"], "textId": ["text"],
    "domainId": ["domain"], schema.DEPRECATED_SYNC_TYPE: ["type"],
} | {column: ["payload"] for column in schema.PAYLOADS}  # fmt: skip
"""nsys column -> the columns of a trace derived from it, in addition to the pairs in `schema.TABLES`."""


def without_what_changed(trace: Trace) -> Trace:
    """The trace without carried data that its tables contradict: columns of event tables, and whole other tables."""
    trace = trace.map_tables(lambda name, frame: frame)
    columns = {table: _carried(table, trace[table.name]) for table in TABLES.values()}
    doubtful = [table for table in TABLES.values() if columns[table] or _is_carried_whole(table, trace)]
    if not doubtful:
        return trace
    makers = from_trace(trace, with_run=True)
    wanted = {table.nsys for table in doubtful} | {schema.STRINGS, schema.CUDA_DEVICES}
    implied = nsys.frames({name: makers[name]() for name in wanted & makers.keys()}, [], nsys.last_end(trace.tables))
    for table in doubtful:
        frame, other = trace[table.name], conform(implied.get(table.name), table)
        if _is_carried_whole(table, trace) and any(_differs(frame, other, name) for name in table.column_names):
            gone = _belonging_to(table) & trace.carried.keys()
            trace.carried = {name: each for name, each in trace.carried.items() if name not in gone}
            if schema.CUDA_DEVICES in gone:  # without it the processes' own device numbers are meaningless
                trace = trace.map_tables(_without_own_numbers)
        changed = [name for name, ours in columns[table].items() if any(_differs(frame, other, c) for c in ours)]
        trace.tables[table.name] = frame.drop(columns=changed)
        if f"{CARRIED}domainId" in changed and _NVTX in trace.carried:
            events = trace.carried[_NVTX]
            trace.carried[_NVTX] = events.filter(pc.not_equal(events["eventType"], schema.DOMAIN_CREATE))
    return trace


def _carried(table: Table, frame: pd.DataFrame) -> dict[str, list[str]]:
    """Carried column -> the columns of ours that are derived from it."""
    says = {column.nsys: [column.name] for column in table.columns if column.nsys} | _SAYS
    names = {str(name): str(name).removeprefix(CARRIED) for name in frame if str(name).startswith(CARRIED)}
    return {name: says[nsys] for name, nsys in names.items() if nsys in schema.COLUMNS[table.nsys] and nsys in says}


def _is_carried_whole(table: Table, trace: Trace) -> bool:
    return table.nsys != _NVTX and bool(_belonging_to(table) & trace.carried.keys())


def _without_own_numbers(name: str, frame: pd.DataFrame) -> pd.DataFrame:
    return frame.drop(columns=[c for c in frame if str(c).startswith(CARRIED) and str(c).lower().endswith("deviceid")])


def _belonging_to(table: Table) -> set[str]:
    return {table.nsys, schema.CUDA_DEVICES} if table.nsys == schema.GPUS else {table.nsys}


def _differs(frame: pd.DataFrame, other: pd.DataFrame, column: str) -> bool:
    ours, theirs = frame[column].array, other[column].array
    if len(ours) != len(theirs):
        return True
    if isinstance(ours, pd.Categorical) and isinstance(theirs, pd.Categorical):
        return not np.array_equal(theirs.set_categories(ours.categories).codes, ours.codes)
    return not np.array_equal(ours, theirs, equal_nan=ours.dtype.kind == "f")
