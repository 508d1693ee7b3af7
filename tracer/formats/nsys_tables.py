"""Trace -> nsys tables as Arrow: the inverse of `nsys.to_trace`.

Data that the trace carries from its source (`nsys.carry`) is written unchanged and takes precedence over our own.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tracer.formats import nsys_schema as nsys
from tracer.model.schema import CARRIED, DEVICE_TABLES, MISSING, MOST_NS, NAME, NO_ID, TABLES, Column, Table
from tracer.model.trace import Trace

_NVTX: Final = TABLES["nvtx"].nsys
_ARROW: Final = {"INTEGER": pa.int64(), "TEXT": pa.string(), "REAL": pa.float64(), "BLOB": pa.binary()}
_NULL_STREAM: Final = 3  # a stream's flag, see ENUM_CUPTI_STREAM_TYPE


Makers = dict[str, Callable[[], pa.Table]]
"""nsys table name -> a function that builds the table. Building one at a time saves memory."""


def from_trace(trace: Trace, *, with_run: bool) -> Makers:
    """The nsys tables of a trace. As in nsys, tables without rows are omitted.

    Without `with_run`, `metadata["run"]` is omitted, too, because a directory stores it in run.json.
    """
    strings = _numbered(trace)
    makers: Makers = {t.nsys: partial(_table, trace[t.name], t, strings) for t in TABLES.values() if len(trace[t.name])}
    if len(trace["nvtx"]):
        makers[_NVTX] = partial(_nvtx, trace, makers[_NVTX])
    if len(trace["devices"]):
        makers |= {nsys.GPUS: partial(_gpus, makers[nsys.GPUS]), nsys.CUDA_DEVICES: partial(_cuda_devices, trace)}
    if len(trace):
        makers |= {nsys.ANALYSIS: partial(_analysis, trace), nsys.CUDA_CONTEXTS: partial(_contexts, trace)}
    start = trace.metadata.get("start_utc_ns")
    if type(start) is int and abs(start) < MOST_NS:
        makers[nsys.SESSION] = partial(_session, start)
    used = [name for name, users in nsys.ENUM_USERS.items() if any(len(trace[user]) for user in users)]
    makers |= {name: partial(nsys.enum_table, name) for name in used}
    whole = trace.carried | {nsys.STRINGS: strings.table}
    kept = {name: table for name, table in whole.items() if len(table) and (name != _NVTX or name not in makers)}
    makers |= {name: partial(pa.Table.slice, table) for name, table in kept.items()}
    makers[nsys.EXPORT] = partial(_export_rows, trace, with_run)
    return makers


def completed(makers: Makers) -> Makers:
    """Add every missing table and column of nsys's schema: tables without rows, columns of NULL or fillers.

    `nsys recipe` needs them: if a directory lacks a table, it reads the report, which may not exist.
    """
    enums: Makers = {name: partial(nsys.enum_table, name) for name in nsys.ENUMS}
    return enums | makers | {name: partial(_completed, name, makers.get(name)) for name in nsys.SQL_COLUMNS}


def _completed(name: str, make: Callable[[], pa.Table] | None) -> pa.Table:
    table = pa.table({}) if make is None else make()
    for column in nsys.SQL_COLUMNS[name]:
        if column.name not in table.column_names:
            values = pa.repeat(pa.scalar(nsys.filler(name, column.name), _ARROW[column.type]), len(table))
            table = table.append_column(column.name, values)
    return table


def _numbered(trace: Trace) -> _StringTable:
    """The strings of all tables, in order of occurrence."""
    strings = _StringTable(trace.carried.get(nsys.STRINGS))
    for table in TABLES.values():
        frame = trace[table.name]
        for column in table.columns:
            if column.kind == NAME and f"{CARRIED}{column.nsys}" not in frame:
                strings.number(frame[column.name])
    return strings


class _StringTable:
    """Builds StringIds: each distinct string gets the next id; carried strings keep theirs."""

    def __init__(self, carried: pa.Table | None) -> None:
        self._carried = carried
        self._ids: dict[str, int] = {}
        self._next = 0
        if carried is not None:
            ids = carried["id"].to_pylist()
            self._ids = dict(zip(reversed(carried["value"].to_pylist()), reversed(ids), strict=True))
            self._next = max((id for id in ids if id < NO_ID), default=-1) + 1
        self._new: dict[str, int] = {}

    def ids(self, names: pd.Series) -> nsys.Ids:
        """The ids of a categorical's strings."""
        return self.number(names)[names.cat.codes.to_numpy()]

    def number(self, names: pd.Series) -> nsys.Ids:
        """Number a categorical's categories that occur; returns the id of each category."""
        lookup = np.zeros(len(names.cat.categories), np.int64)
        for code in pd.unique(names.cat.codes.to_numpy()).tolist():  # by occurrence: round trips keep ids
            lookup[code] = self._id(names.cat.categories[code])
        return lookup

    def _id(self, text: str) -> int:
        if text not in self._ids:
            self._ids[text] = self._new[text] = self._next
            self._next += 1
        return self._ids[text]

    @property
    def table(self) -> pa.Table:
        """The nsys table."""
        new = pa.table({"id": pa.array(self._new.values(), pa.int64()), "value": pa.array(self._new, pa.string())})
        return new if self._carried is None else pa.concat_tables([self._carried, new], promote_options="permissive")


def _table(frame: pd.DataFrame, table: Table, strings: _StringTable) -> pa.Table:
    carried = {name.removeprefix(CARRIED): frame[name] for name in frame.columns if name.startswith(CARRIED)}
    derived = [c for c in table.columns if c.nsys and c.nsys not in carried]
    if table.name == "kernels" and (nsys.graph_of_node(frame["graph_node"].to_numpy()) == frame["graph"]).all():
        derived = [c for c in derived if c.nsys != "graphId"]  # a column of schema 3.25, which graphNodeId implies
    if table.name == "api" and (frame["count"] == MISSING).all():
        derived = [c for c in derived if c.name != "count"]  # a column of our own
    columns = {c.nsys: _values(frame[c.name], c, strings) for c in derived}
    wanted = nsys.COLUMNS[table.nsys]
    if nsys.GLOBAL_TID in wanted:
        columns[nsys.GLOBAL_TID] = _packed(frame["process"], frame["thread"])
    elif nsys.GLOBAL_PID in wanted:
        columns[nsys.GLOBAL_PID] = _packed(frame["process"])
    return pa.table(columns | {name: values.array.__arrow_array__() for name, values in carried.items()})


def _packed(process: pd.Series, thread: pd.Series | None = None) -> pa.Array:
    ids, unknown = nsys.pack_ids(process.to_numpy(), None if thread is None else thread.to_numpy())
    return pa.array(ids, mask=unknown)


def _values(values: pd.Series, column: Column, strings: _StringTable) -> pa.Array:
    if column.kind == NAME:
        return pa.array(strings.ids(values))
    if column.is_name:
        return pa.array(values.astype("str"), pa.string())
    if column.enum is not None:
        return pa.array(np.array(list(column.enum.values()))[values.cat.codes])
    numbers = values.to_numpy()
    if column.kind == "float64":
        return pa.array(numbers, mask=np.isnan(numbers))
    if column.nsys in nsys.NEVER_NULL:
        return pa.array(numbers)  # -1 is a valid time
    if column.missing is None:
        return pa.array(numbers, mask=numbers == MISSING)
    return pa.array(np.where(numbers == MISSING, column.missing, numbers))


def _nvtx(trace: Trace, make: Callable[[], pa.Table]) -> pa.Table:
    """NVTX_EVENTS: marks without an end, as in nsys; domain ids; and first a row that names each domain."""
    nvtx, events = trace["nvtx"], make()
    if f"{CARRIED}end" not in nvtx:
        ends = pa.array(nvtx["end"].to_numpy(), mask=(nvtx["kind"] == "mark").to_numpy())
        events = events.set_column(events.column_names.index("end"), "end", ends)
    named = nvtx.loc[nvtx["domain"] != "", ["process", "domain"]].astype({"domain": "str"})
    domains = named.drop_duplicates()
    renumbered = f"{CARRIED}domainId" not in nvtx
    if renumbered:
        ids = pd.Series(0, index=nvtx.index)
        ids[named.index] = named.groupby(["process", "domain"], sort=False).ngroup() + 1
        events = events.append_column("domainId", pa.array(ids))
    others = [trace.carried[_NVTX]] if _NVTX in trace.carried else []
    if renumbered and not any(nsys.DOMAIN_CREATE in pc.unique(each["eventType"]).to_pylist() for each in others):
        created = {
            "start": np.full(len(domains), int(nvtx["start"].min())),
            "eventType": np.full(len(domains), nsys.DOMAIN_CREATE),
            "text": pa.array(domains["domain"], pa.string()),
            nsys.GLOBAL_TID: _packed(domains["process"], domains["process"]),
            "domainId": np.arange(1, len(domains) + 1),
        }
        others.append(pa.table(created))
    return pa.concat_tables([*others, events], promote_options="permissive")


def _gpus(make: Callable[[], pa.Table]) -> pa.Table:
    gpus = make()
    return gpus.append_column("vmId", pa.repeat(nsys.VIRTUAL_MACHINE, len(gpus)))


def _on_devices(trace: Trace, columns: list[str]) -> pd.DataFrame:
    """The distinct values of these columns in the tables of device activities."""
    distinct = []
    for frame in (trace[name][columns] for name in DEVICE_TABLES):
        is_one = len(frame) and all((frame[c].to_numpy() == frame[c].iloc[0]).all() for c in columns)  # usual
        distinct.append(frame.iloc[:1] if is_one else frame.drop_duplicates())
    return pd.concat(distinct).drop_duplicates()


def _cuda_devices(trace: Trace) -> pa.Table:
    """The devices that each process saw, with CUDA's device numbers as GPU ids."""
    used = _on_devices(trace, ["device", "process"])
    pairs = trace["devices"][["device"]].merge(used, how="left").drop_duplicates()
    device = pa.array(pairs["device"].to_numpy())
    return pa.table(
        {"gpuId": device, "cudaId": device, "pid": pa.array(pairs["process"], pa.int64(), from_pandas=True)}
    )


def _analysis(trace: Trace) -> pa.Table:
    start, end = trace.span
    values = {"globalVid": nsys.VIRTUAL_MACHINE, "duration": end - start, "startTime": start, "stopTime": end}
    return pa.table({name: [value] for name, value in values.items()})


def _session(start: int) -> pa.Table:
    seconds = datetime.datetime.fromtimestamp(start // 10**9, datetime.timezone.utc)
    return pa.table({"utcEpochNs": [start], "utcTime": [seconds.strftime("%Y-%m-%dT%H:%M:%S")]})


def _contexts(trace: Trace) -> pa.Table:
    """The contexts in which anything ran, each with its null stream if known."""
    used = _on_devices(trace, ["process", "device", "context"])
    streams = trace["streams"]
    null = streams.loc[streams["flag"] == _NULL_STREAM, ["process", "context", "stream"]]
    contexts = used.merge(null.drop_duplicates(["process", "context"]), how="left").fillna(MISSING)
    names = {"stream": "nullStreamId", "process": "processId", "device": "deviceId", "context": "contextId"}
    return pa.table({theirs: contexts[ours].to_numpy(np.int64) for ours, theirs in names.items()})


def _export_rows(trace: Trace, with_run: bool) -> pa.Table:
    metadata: dict[str, Any] = {key: value for key, value in trace.metadata.items() if with_run or key != "run"}
    ids = [frame[c] for frame in trace.tables.values() for c in ("process", "thread") if c in frame]
    are_cut = any(column.max() > nsys.LARGEST_ID for column in ids)
    notes = trace.notes + ["process or thread ids were truncated to 24 bits, as nsys does"] * are_cut
    ours = {nsys.METADATA_ROW: json.dumps(metadata), nsys.NOTES_ROW: json.dumps(notes)}
    export = trace.carried.get(nsys.EXPORT)
    if export is None:
        parts = nsys.SCHEMA_WRITTEN.split(".")
        version = {f"{nsys.EXPORT_SCHEMA}_{part}": parts[i] for i, part in enumerate(("MAJOR", "MINOR", "MICRO"))}
        export = _rows({nsys.EXPORT_PRODUCT: nsys.PRODUCT, nsys.EXPORT_SCHEMA: nsys.SCHEMA_WRITTEN} | version)
    return pa.concat_tables([export, _rows(ours)], promote_options="permissive")


def _rows(rows: dict[str, str]) -> pa.Table:
    return pa.table({"name": list(rows), "value": list(rows.values())})
