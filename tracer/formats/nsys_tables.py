"""Trace -> nsys tables as Arrow: the way back from `nsys.to_trace`.

Only what the trace has is written: no environment, host name or path can get in.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from tracer.formats import nsys_schema as nsys
from tracer.formats.nsys import METADATA_ROW, NOTES_ROW
from tracer.schema import DEVICE_TABLES, MISSING, NAME, TABLES, Column, Table
from tracer.trace import Trace


def from_trace(trace: Trace, *, with_run: bool) -> dict[str, pa.Table]:
    """nsys table name -> Arrow table. As in nsys, a table without rows is left out.

    Without `with_run`, `metadata["run"]` is left out too: a directory keeps it in run.json.
    """
    strings = _StringTable()
    tables = {t.nsys: _table(trace[t.name], t, strings) for t in TABLES.values() if len(trace[t.name])}
    if len(trace["nvtx"]):
        tables[TABLES["nvtx"].nsys] = _with_domains(tables[TABLES["nvtx"].nsys], trace["nvtx"])
    if len(trace["devices"]):
        tables[nsys.CUDA_DEVICES] = _cuda_devices(trace)
    used = (name for name, users in nsys.ENUM_USERS.items() if any(len(trace[user]) for user in users))
    tables |= {name: enum_table(name) for name in used}
    if len(strings.table):
        tables[nsys.STRINGS] = strings.table
    tables[nsys.EXPORT] = _export_rows(trace, with_run)
    return tables


class _StringTable:
    """StringIds as it grows: each distinct string gets the next id."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def ids(self, names: pd.Series) -> nsys.Ids:
        """The ids of a categorical's strings."""
        codes = names.cat.codes.to_numpy()
        used = np.unique(codes)
        lookup = np.zeros(len(names.cat.categories), np.int64)
        for code in used:
            lookup[code] = self._ids.setdefault(names.cat.categories[code], len(self._ids))
        return lookup[codes]

    @property
    def table(self) -> pa.Table:
        """The nsys table."""
        return pa.table({"id": list(self._ids.values()), "value": pa.array(list(self._ids), pa.string())})


def _table(frame: pd.DataFrame, table: Table, strings: _StringTable) -> pa.Table:
    columns = {c.nsys: _values(frame[c.name], c, strings) for c in table.columns if c.nsys}
    wanted = nsys.COLUMNS[table.nsys]
    if nsys.GLOBAL_TID in wanted:
        columns[nsys.GLOBAL_TID] = _packed(frame["process"], frame["thread"])
    elif nsys.GLOBAL_PID in wanted:
        columns[nsys.GLOBAL_PID] = _packed(frame["process"])
    return pa.table(columns)


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
    if column.missing is None:
        return pa.array(numbers, mask=numbers == MISSING)
    return pa.array(np.where(numbers == MISSING, column.missing, numbers))


def _with_domains(events: pa.Table, nvtx: pd.DataFrame) -> pa.Table:
    """Add the domain ids, and before the ranges a row that names each domain."""
    named = nvtx.loc[nvtx["domain"] != "", ["process", "domain"]].astype({"domain": "str"})
    ids = pd.Series(0, index=nvtx.index)
    ids[named.index] = named.groupby(["process", "domain"], sort=False).ngroup() + 1
    domains = named.drop_duplicates()
    created = pa.table(
        {
            "start": np.full(len(domains), int(nvtx["start"].min())),
            "eventType": np.full(len(domains), nsys.DOMAIN_CREATE),
            "text": pa.array(domains["domain"], pa.string()),
            nsys.GLOBAL_TID: _packed(domains["process"], domains["process"]),
            "domainId": np.arange(1, len(domains) + 1),
        }
    )
    return pa.concat_tables([created, events.append_column("domainId", pa.array(ids))], promote_options="default")


def _cuda_devices(trace: Trace) -> pa.Table:
    """Which process saw which device; we have no other numbering of GPUs than CUDA's."""
    used = pd.concat([trace[name][["device", "process"]] for name in DEVICE_TABLES]).drop_duplicates()
    pairs = trace["devices"][["device"]].merge(used, how="left").drop_duplicates()
    device = pa.array(pairs["device"].to_numpy())
    return pa.table(
        {"gpuId": device, "cudaId": device, "pid": pa.array(pairs["process"], pa.int64(), from_pandas=True)}
    )


def enum_table(name: str) -> pa.Table:
    """The nsys table of that name, with columns id, name, label."""
    ids, names, labels = zip(*nsys.ENUMS[name], strict=True)
    return pa.table({"id": ids, "name": names, "label": labels})


def _cut_ids(trace: Trace) -> list[str]:
    """A note if ids had to be cut to nsys's 24 bits."""
    ids = [frame[c] for frame in trace.tables.values() for c in ("process", "thread") if c in frame]
    cut = any(column.max() > nsys.LARGEST_ID for column in ids)
    return ["process or thread ids above 24 bits were cut to them, as nsys does"] if cut else []


def _export_rows(trace: Trace, with_run: bool) -> pa.Table:
    metadata: dict[str, Any] = {key: value for key, value in trace.metadata.items() if with_run or key != "run"}
    major, minor, micro = nsys.SCHEMA_WRITTEN.split(".")
    rows = {
        "EXPORT_PRODUCT_NAME": "intertoken",
        nsys.EXPORT_SCHEMA: nsys.SCHEMA_WRITTEN,
        f"{nsys.EXPORT_SCHEMA}_MAJOR": major,
        f"{nsys.EXPORT_SCHEMA}_MINOR": minor,
        f"{nsys.EXPORT_SCHEMA}_MICRO": micro,
        METADATA_ROW: json.dumps(metadata),
        NOTES_ROW: json.dumps(trace.notes + _cut_ids(trace)),
    }
    return pa.table({"name": list(rows), "value": list(rows.values())})
