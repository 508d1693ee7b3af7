"""nsys tables as Arrow -> Trace, for every nsys format. The inverse is `nsys_tables`.

The input maps nsys table names to Arrow tables with those columns of `nsys_schema.COLUMNS` that the export has, in the
types given there (`typed` converts them). Any table and any optional column may be missing.

1. `to_trace`, `frames`: the tables, row by row.
2. `Strings`, `typed`, `ints`, `words`: columns -> NumPy or categoricals, without a Python string per row.
3. `python_samples`: nsys's samples of Python (`nsys profile --python-sampling=true`). They are marks of an NVTX domain,
   each with a stack as its payload, which an export has as JSON if asked for (`nsys export --include-json=true`); the
   strings of its frames are in StringIds, escaped as in HTML. Only samples of threads that ran count, as in those of
   the CPU. Source: exports of nsys 2025.3.2.
4. `carry`: data for which a trace has no columns, carried so that it can be written again. No list of columns is
   needed: whatever writing the trace would not reproduce exactly is carried. Columns of event tables are carried as
   `nsys.NAME` in the same rows, other tables as a whole in `Trace.carried`. Sync types are not carried, because the
   trace's are more accurate.
5. `without_what_changed`: removes carried data that contradicts the trace, after the trace's own tables were changed.
   Some carried data repeats the trace in nsys's own form: the id of an NVTX text, the row of a GPU. It is written again
   as long as the two agree; where they differ, the trace wins.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tracer.errors import FormatError
from tracer.files.bounded import parsed
from tracer.formats import nsys_schema as nsys
from tracer.formats.nsys_schema import COLUMNS, Ids
from tracer.formats.nsys_tables import Makers, from_trace
from tracer.model.calls import plain
from tracer.model.columns import numbered, pairs
from tracer.model.devices import by_gpu
from tracer.model.intervals import Bools, Floats
from tracer.model.schema import CARRIED, MISSING, MOST_NS, NAME, NVTX_KINDS, SYNC_TYPES, TABLES, TEXT, Column, Table
from tracer.model.trace import Trace, categorical, conform

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
    converted = frames(tables, notes)
    if (whole or samples) and not len(converted.get("samples", ())):
        converted |= python_samples(tables, converted.get("nvtx"), notes)
    trace = Trace(converted, metadata, notes)
    if not ours:
        trace.tables["syncs"] = _true_sync_types(trace["syncs"], trace["api"])
    if whole:
        carry(trace, tables)
    if left_out:
        trace.notes.append(f"{len(left_out)} tables or columns with names or types unknown to nsys are left out")
    return trace


def frames(tables: Mapping[str, pa.Table], notes: list[str], last: int | None = None) -> dict[str, pd.DataFrame]:
    """Convert nsys's tables to the trace's, row by row; `conform` then completes them. `notes` receives a note on
    anything incomplete; `last` is `last_end` of all tables, if these are only some of them."""
    strings = Strings(tables.get(nsys.STRINGS))
    converted = {
        table.name: pd.DataFrame(_columns(tables[table.nsys], table, strings), copy=False)
        for table in TABLES.values()
        if table.nsys in tables and table.name != "nvtx"
    }
    if TABLES["nvtx"].nsys in tables:
        last = last_end(converted) if last is None else last
        converted["nvtx"] = nvtx_frame(tables[TABLES["nvtx"].nsys], strings, last, notes)
    if "devices" in converted:
        converted["devices"] = converted["devices"].drop_duplicates("device", ignore_index=True)
    if nsys.CUDA_DEVICES in tables:
        converted = _with_gpus(converted, tables[nsys.CUDA_DEVICES], notes)
    return converted


def last_end(frames: Mapping[str, pd.DataFrame]) -> int:
    """The latest end of any event except NVTX, ns; 0 without events."""
    return max(
        (int(f["end"].max()) for name, f in frames.items() if name != "nvtx" and "end" in f and len(f)), default=0
    )


def _check_required(name: str, table: pa.Table) -> None:
    for column in nsys.REQUIRED.get(name, ()):
        if name == TABLES["devices"].nsys and column not in table.column_names:
            column = nsys.OLD_GPU_ID if nsys.OLD_GPU_ID in table.column_names else column
        if column not in table.column_names:
            raise FormatError(f"table {name} has no column {column}")
        nulls = table[column].null_count
        if nulls and column in nsys.NEVER_NULL and (name, column) != (TABLES["nvtx"].nsys, "end"):
            raise FormatError(f"table {name} has {nulls} rows without {column}")
        if column in ("start", "end"):
            for time in pc.min_max(table[column]).as_py().values():
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
    if table.name == "devices" and "id" not in given:
        given["id"] = given[nsys.OLD_GPU_ID]
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
    """The tables with one device number per GPU instead of each process's own; the table of devices lists those visible
    to a CUDA process (see `tracer.model.devices`). `cuda` is TARGET_INFO_CUDA_DEVICE; `notes` receives a note if
    devices are renumbered."""
    gpu, number = (ints(cuda[name]) for name in ("gpuId", "cudaId"))
    known = gpu != MISSING
    _, distinct = numbered(number[known], gpu[known])
    gpu_of = dict(reversed(distinct))  # of equal numbers the first stays
    if "pid" in cuda.column_names and not len(distinct) == len(gpu_of) == len(set(gpu_of.values())):
        seen = pd.DataFrame({"gpu": gpu, "cuda": number, "process": ints(cuda["pid"])})[known]
        renumbered = by_gpu(frames, seen.drop_duplicates(["process", "cuda"]), notes)
        return renumbered | _devices(frames, {gpu: gpu for _, gpu in distinct})
    return frames | _devices(frames, {number: gpu_of[number] for number, _ in distinct})


def _devices(frames: Mapping[str, pd.DataFrame], gpu_of: Mapping[int, int]) -> dict[str, pd.DataFrame]:
    """The table of devices with other numbers: `gpu_of` is number -> the number here."""
    if "devices" not in frames:
        return {}
    number, gpu = (np.array([*each], np.int64) for each in (gpu_of, gpu_of.values()))
    rows, at = pairs([frames["devices"]["device"].to_numpy()], [gpu])
    return {"devices": frames["devices"].iloc[rows].assign(device=number[at]).reset_index(drop=True)}


def _ranges_and_others(events: pa.Table) -> tuple[pa.Table, pa.Table]:
    """NVTX_EVENTS split into ranges and marks, which the trace has, and other rows (domains, categories)."""
    is_range = pc.is_in(events["eventType"], pa.array(NVTX_KINDS.values(), pa.int64()))
    return events.filter(is_range), events.filter(pc.invert(is_range))


def nvtx_frame(events: pa.Table, strings: Strings, last: int, notes: list[str]) -> pd.DataFrame:
    """Convert NVTX_EVENTS to the nvtx table. An open range ends with the latest event of all other tables (`last`, ns),
    or with the last NVTX event if later; `notes` says how many."""
    ranges, others = _ranges_and_others(events)
    created = others.filter(pc.equal(others["eventType"], nsys.DOMAIN_CREATE))
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


def _ends(ranges: pa.Table, is_mark: Bools, last: int, notes: list[str]) -> Ids:
    start, end = ints(ranges["start"]), ints(ranges["end"])
    still_open = ranges["end"].is_null().to_numpy() & ~is_mark
    if count := int(still_open.sum()):
        last = max(last, int(start.max()), int(end.max()))
        were, end_with = ("range was", "it ends") if count == 1 else ("ranges were", "they end")
        note = f"{count} NVTX {were} never closed; {end_with} with the recording"
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
    used, names = _domain_ids(ranges), _domain_ids(created).assign(name=np.asarray(_texts(created, strings)))
    distinct, names = used.drop_duplicates(), names.drop_duplicates(["process", "domain"])
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


def _payloads(ranges: pa.Table) -> Floats:
    payload = np.full(len(ranges), np.nan)
    for column in nsys.PAYLOADS:
        if column in ranges.column_names and ranges[column].null_count < len(ranges):
            values = ranges[column].cast(pa.float64(), safe=False).to_numpy()
            if column == "uint64Value":  # SQLite stores it as a signed number
                values = np.where(values < 0, values + 2.0**64, values)
            payload = np.where(np.isnan(payload), values, payload)
    return payload


class Strings:
    """StringIds (columns id and value; None if the export has none), to convert ids to categoricals."""

    def __init__(self, table: pa.Table | None) -> None:
        ids = ints(table["id"]) if table is not None else np.empty(0, np.int64)
        texts = table["value"].to_numpy() if table is not None else np.empty(0, object)
        named = pd.Series(texts, index=ids, dtype="str").fillna("")
        self._texts = named[~named.index.duplicated()]

    def named(self, ids: pa.ChunkedArray) -> pd.Categorical:
        """The strings of ids; "" for NULL, and "string 7" if the export lacks string 7."""
        known = ids.fill_null(MISSING) if ids.null_count else ids
        encoded = known.combine_chunks().dictionary_encode()
        distinct = encoded.dictionary.to_numpy()
        texts = self._texts.reindex(distinct).to_numpy(object, copy=True)
        for i in np.flatnonzero(pd.isna(texts)):
            texts[i] = "" if distinct[i] == MISSING else f"string {distinct[i]}"
        return categorical(encoded.indices.to_numpy(), texts)


def inline(values: pa.ChunkedArray) -> pd.Categorical:
    """The strings of a text column; "" for NULL."""
    encoded = values.fill_null("").combine_chunks().dictionary_encode()
    return categorical(encoded.indices.to_numpy(), encoded.dictionary.to_numpy(zero_copy_only=False))


def words(ids: pa.ChunkedArray, column: Column) -> pd.Categorical:
    """The words of an enum column's ids; the column's default for NULL and unknown ids."""
    known = column.enum or {}
    codes = pc.index_in(ids, pa.array(known.values(), pa.int64())).fill_null(list(known).index(str(column.default)))
    return pd.Categorical.from_codes(codes.to_numpy(), pd.Index(list(known), dtype="str"))


def ints(values: pa.ChunkedArray, missing: int | None = None) -> Ids:
    """The numbers of an int64 column; MISSING for NULL and for `missing`."""
    numbers: Ids = (values.fill_null(MISSING) if values.null_count else values).to_numpy()
    if missing in (None, MISSING) or not (stands_for_none := numbers == missing).any():
        return numbers
    return np.where(stands_for_none, MISSING, numbers)


def typed(table: pa.Table, name: str) -> pa.Table:
    """Cast the columns of nsys table `name` to the types of `nsys_schema.COLUMNS`; others keep theirs.

    Invalid UTF-8 in texts becomes replacement characters.

    Raises:
        FormatError: a column holds a different kind of value. The file is not named.
    """
    known = COLUMNS.get(name, {})
    return pa.table({c: _cast(table[c], known.get(c), f"table {name}, column {c}") for c in table.column_names})


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


DOMAIN: Final = "Python Periodic Sampling"
JSON: Final = "jsonText"
_HOW: Final = "export the report again, with `nsys export --type sqlite --include-json=true`"


class _Frame(msgspec.Struct):
    function: int = msgspec.field(name="Function", default=MISSING)
    file: int = msgspec.field(name="File", default=MISSING)
    line: int = msgspec.field(name="Line", default=MISSING)


class _Sample(msgspec.Struct):
    state: str = msgspec.field(name="Thread state", default="")
    frames: list[_Frame] = msgspec.field(name="Frames", default=[])


_Payload = dict[str, _Sample]


def python_samples(
    tables: Mapping[str, pa.Table], nvtx: pd.DataFrame | None, notes: list[str]
) -> dict[str, pd.DataFrame]:
    """The tables `samples` and `sample_chains` of an export's Python samples; none without their stacks, and `notes`
    says so if there are samples. `nvtx` is the table made of their NVTX_EVENTS.

    Raises:
        FormatError: the payload of a sample is not of this form. The file is not named.
    """
    if nvtx is None:
        return {}
    events, strings = tables[TABLES["nvtx"].nsys], Strings(tables.get(nsys.STRINGS))
    none = pa.chunked_array([pa.nulls(len(nvtx), pa.string())])
    texts = inline(_ranges_and_others(events)[0][JSON] if JSON in events.column_names else none)
    samples_of = (nvtx["domain"] == DOMAIN).to_numpy()
    rows = np.flatnonzero(samples_of & (np.asarray(texts) != ""))
    if samples_of.any() and not len(rows):
        notes.append(f"{samples_of.sum()} samples of Python have no stacks and are left out: {_HOW}")
    codes, stack = np.unique(texts.codes[rows], return_inverse=True)  # most samples share their stack with others
    stacks = [_frames(str(texts.categories[code])) for code in codes]
    ran = np.array([frames is not None for frames in stacks], bool)
    rows, stack = rows[ran[stack]], stack[ran[stack]]
    if not len(rows):
        return {}
    samples = nvtx.iloc[rows][["start", "process", "thread"]].rename(columns={"start": "time"})
    samples.insert(0, "chain", np.arange(len(rows)))
    from html import unescape  # of no use to other recordings

    levels = [
        (number, depth, *frame) for number, frames in enumerate(stacks) for depth, frame in enumerate(frames or ())
    ]
    frames = pd.DataFrame(levels, columns=["stack", "depth", "function", "file", "line"], dtype=np.int64)
    names = [np.asarray(strings.named(pa.chunked_array([frames[name]]))) for name in ("file", "function")]
    rows_of = zip(names[0], frames["line"], names[1], strict=True)
    frames["symbol"] = [f"{unescape(file)}({line}): {unescape(function)}" for file, line, function in rows_of]
    chains = pd.DataFrame({"chain": samples["chain"].to_numpy(), "stack": stack}).merge(frames, on="stack")
    symbols, texts_of = pd.factorize(chains["symbol"])
    return {
        "samples": samples.reset_index(drop=True),
        "sample_chains": pd.DataFrame({
            "chain": chains["chain"], "symbol": categorical(symbols, np.asarray(texts_of, object)),
            "module": categorical(np.zeros(len(chains), np.int64), np.array([""], object)),
            "depth": chains["depth"], "unresolved": 0,
        }),
    }  # fmt: skip


def _frames(payload: str) -> list[tuple[int, int, int]] | None:
    """Function, file (ids of strings) and line of each frame, the innermost first; None if the thread did not run."""
    try:
        sample: _Sample | None = msgspec.json.decode(payload, type=_Payload).get(DOMAIN)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise FormatError(f"table NVTX_EVENTS, column {JSON} holds no sample of Python: {error}") from None
    if sample is None or sample.state != "Running":
        return None
    return [(frame.function, frame.file, frame.line) for frame in sample.frames]


_DESCRIPTIONS: Final = ("streams", "devices", "threads", "processes")
_OURS_IS_BETTER: Final = {(TABLES["syncs"].nsys, "syncType")}
_PLAIN: Final = re.compile(r"[A-Za-z_]\w{0,99}", re.ASCII)  # used as a file name


def by_start(tables: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    """The tables with events sorted by start, as in a trace."""
    in_order = dict(tables)
    for name, table in tables.items():
        if name in _events() and "start" in table.column_names:
            start = table["start"].to_pandas()
            if not start.is_monotonic_increasing:
                in_order[name] = table.take(pa.array(start.argsort(kind="stable")))
    return in_order


def carry(trace: Trace, tables: Mapping[str, pa.Table]) -> None:
    """Let a trace carry the data that only the export has. The tables are the whole export, `by_start` and
    `plainly_named`."""
    if (export := _of_another_program(tables.get(nsys.EXPORT))) is not None:
        trace.carried[nsys.EXPORT] = export
    makers = _enums() | from_trace(trace, with_run=True)
    strings = tables.get(nsys.STRINGS)
    if strings is not None and not _same(nsys.STRINGS, strings, _made(makers, nsys.STRINGS)):
        ids = strings["id"].to_pandas()
        trace.carried[nsys.STRINGS] = strings.filter(pa.array(ids.notna() & ~ids.duplicated()))  # the first of each id
        makers = _enums() | from_trace(trace, with_run=True)
    for name, table in tables.items():
        again = _made(makers, name)
        if name == TABLES["nvtx"].nsys:
            ranges, others = _ranges_and_others(table)
            ours, our_others = _ranges_and_others(again) if again is not None else (None, None)
            _carry_columns(trace, name, ranges, ours)
            if not _same(name, others, our_others):
                trace.carried[name] = others
        elif name in _events():
            _carry_columns(trace, name, table, again)
        elif name not in (nsys.STRINGS, nsys.EXPORT) and not _same(name, table, again):
            trace.carried[name] = table


def _enums() -> Makers:
    return {name: partial(nsys.enum_table, name) for name in nsys.ENUMS}


def _made(makers: Makers, name: str) -> pa.Table | None:
    return makers[name]() if name in makers else None


def _events() -> dict[str, str]:
    """nsys table -> our table, for tables of events."""
    return {table.nsys: table.name for table in TABLES.values() if table.name not in _DESCRIPTIONS}


def plainly_named(table: str, columns: Iterable[str], left_out: list[str]) -> list[str]:
    """The columns of a table whose names are valid in every format; none if the table's own name is not. Names become
    file names or SQLite columns, which may be case-insensitive. `left_out` receives every other name."""
    if not _is_plain(table, _SPELLED):
        left_out.append(table)
        return []
    declared = (*nsys.COLUMNS.get(table, ()), *(column.name for column in nsys.SQL_COLUMNS.get(table, ())))
    spelled = {name.casefold(): name for name in declared}
    kept = {}
    for column in columns:
        if column.casefold() not in kept and _is_plain(column, spelled):
            kept[column.casefold()] = column
        else:
            left_out.append(f"{table}.{column}")
    return list(kept.values())


def _is_plain(name: str, spelled: Mapping[str, str]) -> bool:
    folded = name.casefold()
    return bool(_PLAIN.fullmatch(name)) and not folded.startswith("sqlite_") and spelled.get(folded, name) == name


_SPELLED: Final = {name.casefold(): name for name in (*nsys.COLUMNS, *nsys.SQL_COLUMNS, *nsys.ENUMS)}


def _carry_columns(trace: Trace, name: str, source: pa.Table, rebuilt: pa.Table | None) -> None:
    frame = trace.tables[_events()[name]]
    if rebuilt is None or not len(source):
        return
    for column in source.column_names:
        if column == "graphId" and nsys.EXPORT not in trace.carried:
            continue  # we leave it out where graphNodeId implies it
        if (name, column) not in _OURS_IS_BETTER and not _survives(name, column, source, rebuilt):
            frame[CARRIED + column] = pd.arrays.ArrowExtensionArray(source[column])


def _of_another_program(export: pa.Table | None) -> pa.Table | None:
    """Rows of META_DATA_EXPORT with the program, schema and options of the export; None for our own."""
    if export is None:
        return None
    others = export.filter(pc.invert(pc.is_in(export["name"], pa.array([nsys.METADATA_ROW, nsys.NOTES_ROW]))))
    product = others.filter(pc.equal(others["name"], nsys.EXPORT_PRODUCT))["value"].to_pylist()
    return others if len(others) and product != [nsys.PRODUCT] else None


def _same(name: str, source: pa.Table, rebuilt: pa.Table | None) -> bool:
    """Whether a table would be written back unchanged."""
    if rebuilt is None or len(source) != len(rebuilt):
        return rebuilt is None and not len(source)
    return all(_survives(name, column, source, rebuilt) for column in source.column_names)


def _survives(name: str, column: str, source: pa.Table, rebuilt: pa.Table) -> bool:
    was = source[column]
    filler = nsys.filler(name, column)
    if column not in rebuilt.column_names:
        if was.null_count == len(was):
            return nsys.is_declared(name, column)
        return filler is not None and _equal(was, pa.repeat(filler, len(was)))
    again = rebuilt[column]
    filled = filler is not None and again.null_count > 0
    return _equal(was, again) or (filled and _equal(was, again.fill_null(MISSING)))


def _equal(was: pa.ChunkedArray, again: pa.Array | pa.ChunkedArray) -> bool:
    again = again if isinstance(again, pa.ChunkedArray) else pa.chunked_array([again])
    try:
        return bool(was.cast(again.type).equals(again))
    except pa.ArrowException:
        return False


_SAYS: Final = {
    nsys.GLOBAL_TID: ["process", "thread"], nsys.GLOBAL_PID: ["process"], "textId": ["text"],
    "domainId": ["domain"], nsys.DEPRECATED_SYNC_TYPE: ["type"], nsys.OLD_GPU_ID: ["device"],
} | {column: ["payload"] for column in nsys.PAYLOADS}  # fmt: skip
"""nsys column -> the columns of a trace derived from it, in addition to the pairs in `schema.TABLES`."""


_OWN: Final = re.compile(rf"{re.escape(CARRIED)}.*(?i:deviceid)")  # columns of a process's own numbers


def without_what_changed(trace: Trace) -> Trace:
    """The trace without carried data that its tables contradict: columns of event tables, and whole other tables."""
    trace = trace.map_tables(lambda name, frame: frame)
    columns = {table: _carried(table, trace[table.name]) for table in TABLES.values()}
    doubtful = [table for table in TABLES.values() if columns[table] or _is_carried_whole(table, trace)]
    if not doubtful:
        return trace
    makers = from_trace(trace, with_run=True)
    wanted = {table.nsys for table in doubtful} | {nsys.STRINGS, nsys.CUDA_DEVICES}
    implied = frames({name: makers[name]() for name in wanted & makers.keys()}, [], last_end(trace.tables))
    for table in doubtful:
        frame, other = trace[table.name], conform(implied.get(table.name), table)
        if _is_carried_whole(table, trace) and any(_differs(frame, other, name) for name in table.column_names):
            gone = _belonging_to(table) & trace.carried.keys()
            trace.carried = {name: each for name, each in trace.carried.items() if name not in gone}
            if nsys.CUDA_DEVICES in gone:  # without it the processes' own device numbers are meaningless
                trace = trace.map_tables(lambda _, each: each.drop(columns=[c for c in each if _OWN.fullmatch(str(c))]))
        changed = [name for name, ours in columns[table].items() if any(_differs(frame, other, c) for c in ours)]
        trace.tables[table.name] = frame.drop(columns=changed)
        if f"{CARRIED}domainId" in changed and TABLES["nvtx"].nsys in trace.carried:
            events = trace.carried[TABLES["nvtx"].nsys]
            trace.carried[TABLES["nvtx"].nsys] = events.filter(pc.not_equal(events["eventType"], nsys.DOMAIN_CREATE))
    return trace


def _carried(table: Table, frame: pd.DataFrame) -> dict[str, list[str]]:
    """Carried column -> the columns of ours that are derived from it."""
    says = {column.nsys: [column.name] for column in table.columns if column.nsys} | _SAYS
    names = {str(name): str(name).removeprefix(CARRIED) for name in frame if str(name).startswith(CARRIED)}
    return {
        name: says[theirs] for name, theirs in names.items() if theirs in says and theirs in nsys.COLUMNS[table.nsys]
    }


def _is_carried_whole(table: Table, trace: Trace) -> bool:
    return table.nsys != TABLES["nvtx"].nsys and bool(_belonging_to(table) & trace.carried.keys())


def _belonging_to(table: Table) -> set[str]:
    return {table.nsys, nsys.CUDA_DEVICES} if table.nsys == nsys.GPUS else {table.nsys}


def _differs(frame: pd.DataFrame, other: pd.DataFrame, column: str) -> bool:
    ours, theirs = frame[column].array, other[column].array
    if len(ours) != len(theirs):
        return True
    if isinstance(ours, pd.Categorical) and isinstance(theirs, pd.Categorical):
        return not np.array_equal(theirs.set_categories(ours.categories).codes, ours.codes)
    return not np.array_equal(ours, theirs, equal_nan=ours.dtype.kind == "f")
