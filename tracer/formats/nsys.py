"""nsys tables as Arrow -> Trace, for every nsys format. The inverse is `nsys_tables`.

The input maps nsys table names to Arrow tables with those columns of `nsys_schema.COLUMNS` that the export has, in the
types given there (`nsys_columns.typed` converts them). Any table and any optional column may be missing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tracer.errors import FormatError
from tracer.files.bounded import parsed
from tracer.formats import nsys_schema as nsys
from tracer.formats.nsys_carry import by_start, carry
from tracer.formats.nsys_columns import Strings, inline, ints, words
from tracer.formats.nsys_python import JSON, python_samples
from tracer.model.calls import plain
from tracer.model.devices import by_gpu, numbers_differ
from tracer.model.schema import MISSING, MOST_NS, NAME, NVTX_KINDS, SYNC_TYPES, TABLES, TEXT, Column, Table
from tracer.model.trace import Trace, categorical

_PREFIX = re.compile(r"^(?:cuda|cu)")


def to_trace(
    tables: Mapping[str, pa.Table], *, whole: bool = False, samples: bool = False, left_out: Sequence[str] = ()
) -> Trace:
    """Convert nsys's tables to a trace. `whole` lets it carry the data it has no columns for, except `left_out`.
    Samples of Python are converted only with `samples` or `whole`, and if there are none of the CPU.

    Raises:
        FormatError: a required column is missing or NULL, or our own metadata is damaged. The file is not named.
    """
    for name, table in tables.items():
        _check_required(name, table)
    if whole:
        tables = by_start(tables)
    metadata, notes, ours = _metadata(tables)
    found = frames(tables, notes)
    if (whole or samples) and not len(found.get("samples", ())):
        found |= _python_samples(tables, found.get("nvtx"), notes)
    trace = Trace(found, metadata, notes)
    if not ours:
        trace.tables["syncs"] = _true_sync_types(trace["syncs"], trace["api"])
    if whole:
        carry(trace, tables)
    if left_out:
        trace.notes.append(f"{len(left_out)} tables or columns with names or types unknown to nsys are left out")
    return trace


def _python_samples(
    tables: Mapping[str, pa.Table], nvtx: pd.DataFrame | None, notes: list[str]
) -> dict[str, pd.DataFrame]:
    events = tables.get(TABLES["nvtx"].nsys)
    if events is None or nvtx is None:
        return {}
    none = pa.chunked_array([pa.nulls(len(nvtx), pa.string())])
    payloads = _ranges(events)[JSON] if JSON in events.column_names else none
    return python_samples(nvtx, payloads, Strings(tables.get(nsys.STRINGS)), notes)


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


def _ranges(events: pa.Table) -> pa.Table:
    """The rows of NVTX_EVENTS that are ranges or marks."""
    return events.filter(pc.is_in(events["eventType"], pa.array(NVTX_KINDS.values(), pa.int64())))


def nvtx_frame(events: pa.Table, strings: Strings, last: int, notes: list[str]) -> pd.DataFrame:
    """Convert NVTX_EVENTS to the nvtx table.

    Args:
        events: the nsys table.
        strings: StringIds.
        last: the latest end in all other tables, ns. An open range ends then, or with the last NVTX event if later.
        notes: receives a note with the number of open ranges.
    """
    ranges = _ranges(events)
    created = events.filter(pc.equal(events["eventType"], nsys.DOMAIN_CREATE))
    kind = words(ranges["eventType"], TABLES["nvtx"].column("kind"))
    columns = {
        "start": ints(ranges["start"]),
        "end": _ends(ranges, kind == "mark", last, notes),
        "text": _texts(ranges, strings),
        "kind": kind,
        "domain": _domains(ranges, created, strings),
        "payload": _payloads(ranges),
    }
    simple = {"category": "category", "color": "color", "range_id": "rangeId"}
    columns |= {ours: ints(ranges[theirs]) for ours, theirs in simple.items() if theirs in ranges.column_names}
    if nsys.GLOBAL_TID in ranges.column_names:
        packed = ints(ranges[nsys.GLOBAL_TID])
        columns |= {"process": nsys.unpack_process(packed), "thread": nsys.unpack_thread(packed)}
    return pd.DataFrame(columns, copy=False)


def _ends(
    ranges: pa.Table, is_mark: np.ndarray[tuple[int, ...], np.dtype[np.bool_]], last: int, notes: list[str]
) -> nsys.Ids:
    start, end = ints(ranges["start"]), ints(ranges["end"])
    still_open = ranges["end"].is_null().to_numpy() & ~is_mark
    if count := int(still_open.sum()):
        last = max(last, int(start.max()), int(end.max()))
        one = count == 1
        note = (
            f"{count} NVTX {'range was' if one else 'ranges were'} never closed; "
            f"{'it ends' if one else 'they end'} with the recording"
        )
        if note not in notes:  # a converted recording has it
            notes.append(note)
    return np.where(is_mark, start, np.where(still_open, last, end))


def _texts(events: pa.Table, strings: Strings) -> pd.Categorical:
    """The inline text, else the registered string."""
    have = events.column_names
    nothing = pa.chunked_array([pa.nulls(len(events), pa.string())])
    text = events["text"] if "text" in have else nothing
    written = inline(text)
    registered = strings.named(events["textId"]) if "textId" in have else inline(nothing)
    codes = np.where(
        text.is_valid().to_numpy(), written.codes, len(written.categories) + registered.codes.astype(np.int64)
    )
    return categorical(codes, [*written.categories, *registered.categories])


def _domains(ranges: pa.Table, created: pa.Table, strings: Strings) -> pd.Categorical:
    """The names of the domains; "" for the default domain, "domain 5" if its creation was not recorded."""
    used = _domain_ids(ranges)
    distinct = used.drop_duplicates()
    names = (
        _domain_ids(created).assign(name=np.asarray(_texts(created, strings))).drop_duplicates(["process", "domain"])
    )
    name = distinct.merge(names, how="left")["name"].to_numpy(object, copy=True)
    for i, id in enumerate(distinct["domain"]):
        if id <= 0:
            name[i] = ""
        elif pd.isna(name[i]):
            name[i] = f"domain {id}"
    return categorical(used.groupby(["process", "domain"], sort=False).ngroup().to_numpy(), name)


def _domain_ids(events: pa.Table) -> pd.DataFrame:
    """The domain ids with their processes, because each process counts its own."""
    zeros = np.zeros(len(events), np.int64)
    have = events.column_names
    process = nsys.unpack_process(ints(events[nsys.GLOBAL_TID])) if nsys.GLOBAL_TID in have else zeros
    return pd.DataFrame({"process": process, "domain": ints(events["domainId"]) if "domainId" in have else zeros})


def _payloads(ranges: pa.Table) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    payload = np.full(len(ranges), np.nan)
    for column in nsys.PAYLOADS:
        if column in ranges.column_names and ranges[column].null_count < len(ranges):
            values = ranges[column].cast(pa.float64(), safe=False).to_numpy()
            if column == "uint64Value":  # SQLite stores it as a signed number
                values = np.where(values < 0, values + 2.0**64, values)
            payload = np.where(np.isnan(payload), values, payload)
    return payload
