"""nsys tables as Arrow -> Trace, for every nsys format. The inverse is `nsys_tables`.

The input maps nsys table names to Arrow tables with those columns of `nsys_schema.COLUMNS` that the export has, in the
types given there (`typed` converts them). Any table and any optional column may be missing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tracer.analysis.call_letters import plain
from tracer.errors import FormatError
from tracer.files.bounded import parsed
from tracer.formats import nsys_schema as nsys
from tracer.formats.nsys_carry import by_start, carry
from tracer.formats.nsys_nvtx import nvtx_frame
from tracer.formats.nsys_strings import Strings, inline, ints, words
from tracer.model.devices import by_gpu, numbers_differ
from tracer.model.schema import MISSING, MOST_NS, NAME, SYNC_TYPES, TABLES, TEXT, Column, Table
from tracer.model.trace import Trace

_PREFIX = re.compile(r"^(?:cuda|cu)")


def to_trace(tables: Mapping[str, pa.Table], *, whole: bool = False, left_out: Sequence[str] = ()) -> Trace:
    """Convert nsys's tables to a trace. `whole` lets it carry the data it has no columns for, except `left_out`.

    Raises:
        FormatError: a required column is missing or NULL, or our own metadata is damaged. The file is not named.
    """
    for name, table in tables.items():
        _check_required(name, table)
    if whole:
        tables = by_start(tables)
    metadata, notes, ours = _metadata(tables)
    trace = Trace(frames(tables, notes), metadata, notes)
    if not ours:
        trace.tables["syncs"] = _true_sync_types(trace["syncs"], trace["api"])
    if whole:
        carry(trace, tables)
    if left_out:
        trace.notes.append(f"{len(left_out)} tables or columns with names or types unknown to nsys are left out")
    return trace


def frames(tables: Mapping[str, pa.Table], notes: list[str], last: int | None = None) -> dict[str, pd.DataFrame]:
    """Convert nsys's tables to the trace's, row by row. `conform` then completes them.

    Args:
        tables: nsys's tables.
        notes: receives a note on anything incomplete.
        last: `last_end` of all tables, if `tables` are only some of them.
    """
    strings = Strings(tables.get(nsys.STRINGS))
    found = {
        table.name: pd.DataFrame(_columns(tables[table.nsys], table, strings), copy=False)
        for table in TABLES.values()
        if table.nsys in tables and table.name != "nvtx"
    }
    if TABLES["nvtx"].nsys in tables:
        last = last_end(found) if last is None else last
        found["nvtx"] = nvtx_frame(tables[TABLES["nvtx"].nsys], strings, last, notes)
    if "devices" in found:
        found["devices"] = found["devices"].drop_duplicates("device", ignore_index=True)
    if nsys.CUDA_DEVICES in tables:
        found = _with_gpus(found, tables[nsys.CUDA_DEVICES], notes)
    return found


def last_end(frames: Mapping[str, pd.DataFrame]) -> int:
    """The latest end of any event except NVTX, ns; 0 without events."""
    return max(
        (int(f["end"].max()) for name, f in frames.items() if name != "nvtx" and "end" in f and len(f)), default=0
    )


def typed(table: pa.Table, name: str) -> pa.Table:
    """Cast the columns of nsys table `name` to the types of `nsys_schema.COLUMNS`; others keep theirs.

    Invalid UTF-8 in texts becomes replacement characters.

    Raises:
        FormatError: a column holds a different kind of value. The file is not named.
    """
    known = nsys.COLUMNS.get(name, {})
    columns = {c: _cast(table[c], known.get(c), f"table {name}, column {c}") for c in table.column_names}
    return pa.table(columns)


def _cast(values: pa.ChunkedArray, wanted: pa.DataType | None, where: str) -> pa.ChunkedArray:
    have = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    if wanted is None:
        if values.null_count == len(values):
            return pa.chunked_array([pa.nulls(len(values))])
        return _text(values) if pa.types.is_string(have) or pa.types.is_large_string(have) else values.cast(have)
    number = pa.types.is_integer(have) or pa.types.is_floating(have) or pa.types.is_null(have)
    if values.null_count < len(values) and not number and not pa.types.is_string(wanted):
        raise FormatError(f"{where} holds {have}, not numbers")
    try:
        if pa.types.is_string(wanted):
            return _text(values)
        if values.null_count == len(values):
            return pa.chunked_array([pa.nulls(len(values), wanted)])
        # An unsigned id above 2**63 keeps its bits; a fraction is not an id.
        safe = not pa.types.is_floating(wanted) and not pa.types.is_uint64(have)
        return values.cast(wanted, safe=safe)
    except pa.ArrowException as error:
        raise FormatError(f"{where}: {str(error).splitlines()[0]}") from error


def _text(values: pa.ChunkedArray) -> pa.ChunkedArray:
    text = values.cast(pa.string(), safe=not pa.types.is_binary(values.type))
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        decoded = [None if b is None else b.decode("utf-8", "replace") for b in text.cast(pa.binary()).to_pylist()]
        return pa.chunked_array([pa.array(decoded, pa.string())])
    return text


def _check_required(name: str, table: pa.Table) -> None:
    for column in nsys.REQUIRED.get(name, ()):
        if column not in table.column_names:
            raise FormatError(f"table {name} has no column {column}")
        nulls = table[column].null_count
        if nulls and column in nsys.NEVER_NULL and (name, column) != (TABLES["nvtx"].nsys, "end"):
            raise FormatError(f"table {name} has {nulls} rows without {column}")
        if column in ("start", "end"):
            _check_times(name, column, table[column])


def _check_times(name: str, column: str, times: pa.ChunkedArray) -> None:
    for time in pc.min_max(times).as_py().values():
        if time is not None and abs(time) >= MOST_NS:
            raise FormatError(f"table {name}, column {column} holds {time}, which is not a time in ns")


def _metadata(tables: Mapping[str, pa.Table]) -> tuple[dict[str, Any], list[str], bool]:
    """Metadata, notes, and whether we wrote the recording."""
    rows: dict[str, str | None] = {}
    if nsys.EXPORT in tables:
        rows = dict(zip(*(tables[nsys.EXPORT][c].to_pylist() for c in ("name", "value")), strict=True))
    if nsys.METADATA_ROW in rows:
        ours, notes = _json(rows, nsys.METADATA_ROW, dict), _json(rows, nsys.NOTES_ROW, list)
        return ours, [str(note) for note in notes], True
    metadata: dict[str, Any] = {"source": f"nsys {rows.get(nsys.EXPORT_VERSION) or ''}".rstrip()}
    if rows.get(nsys.EXPORT_SCHEMA):
        metadata["schema_version"] = rows[nsys.EXPORT_SCHEMA]
    session = tables.get(nsys.SESSION)
    if session is not None and "utcEpochNs" in session.column_names:
        starts = session["utcEpochNs"].drop_null().to_pylist()
        metadata.update(zip(["start_utc_ns"], starts, strict=False))
    return metadata, [], False


def _json(rows: Mapping[str, str | None], name: str, kind: type) -> Any:
    try:
        value = parsed(rows.get(name) or "")
    except (ValueError, RecursionError) as error:
        raise FormatError(f"table {nsys.EXPORT}, row {name} is not valid JSON: {error}") from error
    if not isinstance(value, kind):
        raise FormatError(f"table {nsys.EXPORT}, row {name} holds a {type(value).__name__}, not a {kind.__name__}")
    return value


def _columns(source: pa.Table, table: Table, strings: Strings) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    given = dict(zip(source.column_names, source.columns, strict=True))
    packed = given.get(nsys.GLOBAL_TID, given.get(nsys.GLOBAL_PID))
    if (old := given.get(nsys.DEPRECATED_SYNC_TYPE)) is not None:
        given["syncType"] = pc.coalesce(old, given["syncType"]) if "syncType" in given else old
    for column in table.columns:
        if column.nsys in given:
            columns[column.name] = _values(given[column.nsys], column, strings)
        elif packed is not None and column.name in ("process", "thread"):
            unpack = nsys.unpack_process if column.name == "process" else nsys.unpack_thread
            columns[column.name] = unpack(ints(packed))
    if table.name == "kernels" and "graph" not in columns and "graph_node" in columns:
        columns["graph"] = nsys.graph_of_node(columns["graph_node"])
    return columns


def _values(values: pa.ChunkedArray, column: Column, strings: Strings) -> Any:
    if column.kind == NAME:
        return strings.named(values)
    if column.kind == TEXT:
        return inline(values)
    if column.enum is not None:
        return words(values, column)
    return values.to_numpy() if column.kind == "float64" else ints(values, column.missing)


def _true_sync_types(syncs: pd.DataFrame, api: pd.DataFrame) -> pd.DataFrame:
    """Correct the sync types by the call that waited: nsys 2025.3 stores "stream wait" for every call."""
    calls = [nsys.SYNC_CALLS.get(_PREFIX.sub("", plain(name)), "other") for name in api["name"].cat.categories]
    by_call = pd.Series(np.array(calls, object)[api["name"].cat.codes], index=api.index)
    waits = api.loc[api["correlation"] != MISSING, ["process", "correlation"]].assign(by_call=by_call)
    waits = waits.drop_duplicates(["process", "correlation"])
    joined = syncs[["process", "correlation"]].merge(waits, how="left")["by_call"]
    stored = syncs["type"].astype("str")
    false_wait = (joined == "other") & (stored == "stream wait")
    true = joined.where(joined.isin(list(SYNC_TYPES)), stored.mask(false_wait, "unknown"))
    return syncs.assign(type=pd.Categorical(true, categories=list(SYNC_TYPES)))


def _with_gpus(frames: dict[str, pd.DataFrame], cuda: pa.Table, notes: list[str]) -> dict[str, pd.DataFrame]:
    """The tables with one device number per GPU; the table of devices lists those visible to a CUDA process
    (see `tracer.model.devices`).

    Args:
        frames: the tables of a trace, with each process's own device numbers, and GPUs by their gpuId.
        cuda: TARGET_INFO_CUDA_DEVICE.
        notes: receives a note if devices are renumbered.
    """
    names = {"gpu": "gpuId", "cuda": "cudaId"} | ({"process": "pid"} if "pid" in cuda.column_names else {})
    seen = pd.DataFrame({ours: ints(cuda[theirs]) for ours, theirs in names.items()})
    seen = seen[seen["gpu"] != MISSING]
    pairs = seen[["gpu", "cuda"]].drop_duplicates()
    if "process" not in seen or not numbers_differ(seen):
        return frames | _devices(frames, pairs.drop_duplicates("cuda"))
    found = by_gpu(frames, seen.drop_duplicates(["process", "cuda"]), notes)
    return found | _devices(frames, pd.DataFrame({"gpu": pairs["gpu"].unique(), "cuda": pairs["gpu"].unique()}))


def _devices(frames: Mapping[str, pd.DataFrame], pairs: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The table of devices, renumbered from `gpu` to `cuda`."""
    if "devices" not in frames:
        return {}
    joined = frames["devices"].merge(pairs, left_on="device", right_on="gpu")
    return {"devices": joined.assign(device=joined["cuda"]).drop(columns=["gpu", "cuda"])}
