"""NVTX_EVENTS -> the nvtx table: ranges and marks, with named domains and ended ranges."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tracer.formats import nsys_schema as nsys
from tracer.formats.nsys_strings import Strings, categorical, inline, ints, words
from tracer.model.schema import NVTX_KINDS, TABLES


def nvtx_frame(events: pa.Table, strings: Strings, last: int, notes: list[str]) -> pd.DataFrame:
    """Convert NVTX_EVENTS to the nvtx table.

    Args:
        events: the nsys table.
        strings: StringIds.
        last: the latest end in all other tables, ns. An open range ends then, or with the last NVTX event if later.
        notes: receives a note with the number of open ranges.
    """
    is_range = pc.is_in(events["eventType"], pa.array(NVTX_KINDS.values(), pa.int64()))
    ranges = events.filter(is_range)
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
