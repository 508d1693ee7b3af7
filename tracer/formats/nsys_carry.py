"""Data of an nsys export for which a trace has no columns, carried so that it can be written again.

No list of columns is needed: whatever writing the trace would not reproduce exactly is carried. Columns of event tables
are carried as `nsys.NAME` in the same rows, other tables as a whole in `Trace.carried`. Sync types are not carried,
because the trace's are more accurate (see `tracer.formats.nsys`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tracer.formats import nsys_schema as nsys
from tracer.formats.nsys_tables import Makers, from_trace
from tracer.model.schema import CARRIED, MISSING, NVTX_KINDS, TABLES
from tracer.model.trace import Trace

_DESCRIPTIONS: Final = ("streams", "devices", "threads", "processes")
_NVTX: Final = TABLES["nvtx"].nsys
_OURS_IS_BETTER: Final = {(TABLES["syncs"].nsys, "syncType")}
_PLAIN: Final = re.compile(r"[A-Za-z_]\w{0,99}", re.ASCII)  # used as a file name


def by_start(tables: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    """The tables with events sorted by start, as in a trace."""
    return {
        name: _sorted(table) if name in _events() and "start" in table.column_names else table
        for name, table in tables.items()
    }


def _sorted(table: pa.Table) -> pa.Table:
    start = table["start"].to_pandas()
    return table if start.is_monotonic_increasing else table.take(pa.array(start.argsort(kind="stable")))


def carry(trace: Trace, tables: Mapping[str, pa.Table]) -> None:
    """Let a trace carry the data that only the export has.

    Args:
        trace: the trace converted from `tables`.
        tables: the whole export, `by_start` and `plainly_named`.
    """
    if (export := _of_another_program(tables.get(nsys.EXPORT))) is not None:
        trace.carried[nsys.EXPORT] = export
    makers = _enums() | from_trace(trace, with_run=True)
    strings = tables.get(nsys.STRINGS)
    if strings is not None and not _same(nsys.STRINGS, strings, _made(makers, nsys.STRINGS)):
        trace.carried[nsys.STRINGS] = _first_of_each_id(strings)
        makers = _enums() | from_trace(trace, with_run=True)
    for name, table in tables.items():
        again = _made(makers, name)
        if name == _NVTX:
            ranges, others = _ranges(table)
            ours, our_others = _ranges(again) if again is not None else (None, None)
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
    """The columns of a table whose names are valid in every format; none if the table's own name is not.

    Names become file names or SQLite columns, which may be case-insensitive.

    Args:
        table: its nsys name.
        columns: their nsys names.
        left_out: receives the name of every table and column that is not kept.
    """
    if not _is_plain(table, _SPELLED):
        left_out.append(table)
        return []
    spelled = {name.casefold(): name for name in _columns_of(table)}
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


def _columns_of(table: str) -> list[str]:
    return [*nsys.COLUMNS.get(table, ()), *(column.name for column in nsys.SQL_COLUMNS.get(table, ()))]


_SPELLED: Final = {name.casefold(): name for name in (*nsys.COLUMNS, *nsys.SQL_COLUMNS, *nsys.ENUMS)}


def _ranges(events: pa.Table) -> tuple[pa.Table, pa.Table]:
    """NVTX_EVENTS split into ranges and marks, which the trace has, and other rows (domains, categories)."""
    is_range = pc.is_in(events["eventType"], pa.array(NVTX_KINDS.values(), pa.int64()))
    return events.filter(is_range), events.filter(pc.invert(is_range))


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


def _first_of_each_id(strings: pa.Table) -> pa.Table:
    ids = strings["id"].to_pandas()
    return strings.filter(pa.array(ids.notna() & ~ids.duplicated()))
