"""Perfetto traces that we wrote, read again: slices -> the tables of a trace.

A slice's category names its table, its arguments are the columns, and what these leave out is told by its name and its
track (see `perfetto`). Not in the file: colours, call chains, samples, what streams and devices are beyond their names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import pandas as pd

from tracer.formats.tracks import CATEGORY_OF, SYNC_NAMES
from tracer.model.schema import DEVICE_TABLES, MISSING, NVTX_KINDS, TABLES, Column
from tracer.model.trace import Trace

SOURCE: Final = "Perfetto, written by intertoken"
_TABLE_OF: Final = {category: table for table, category in CATEGORY_OF.items()}
_SYNC_OF: Final = {name: kind for kind, name in SYNC_NAMES.items()}
_GPU: Final = re.compile(r"GPU (-?\d{1,18})(?: \((.*)\))?", re.DOTALL)
_ON: Final = re.compile(r"(stream|process|context|thread) (-?\d{1,18})")


class Slice(NamedTuple):
    """A slice or instant: times in ns, and the descriptors of its track and of those around that, innermost first."""

    start: int
    end: int
    name: str
    category: str
    arguments: Mapping[str, Any]
    tracks: list[Any]


class Own:
    """Collects slices as rows.

    Attributes:
        has_rows: whether there are any that only our files have.
    """

    def __init__(self) -> None:
        self.has_rows = False
        self._rows: dict[str, list[dict[str, Any]]] = {table: [] for table in CATEGORY_OF}
        self._described: dict[str, dict[tuple[int, ...], str]] = {"devices": {}, "threads": {}, "processes": {}}

    def add(self, slice: Slice, text: Callable[[Any], str]) -> bool:
        """Add a slice; False if it is not one of ours. `text` decodes the names of tracks."""
        table, name, arguments = _TABLE_OF.get(slice.category), slice.name, slice.arguments
        if table is None:
            return False
        place = Place(slice.tracks, text)
        is_ours = table == "api" or place.is_device or (table == "nvtx" and arguments.get("kind") in NVTX_KINDS)
        if not place.numbers or not is_ours:
            return False
        self.has_rows = True
        row = {**arguments, "start": slice.start, "end": slice.end, **place.numbers}
        if table in ("api", "kernels"):
            row["name" if table == "api" else "short_name"] = name
        elif table == "nvtx":
            row["text"] = name
        elif table == "syncs":
            row["type"] = _SYNC_OF.get(name, "unknown")
        self._rows[table].append(row)
        for described, (key, label) in place.names.items():
            self._described[described].setdefault(key, label)
        return True

    def describe(self, process: int, name: str) -> None:
        """Take the name of a process."""
        self._described["processes"].setdefault((process,), name)

    def trace(self) -> Trace:
        """The trace of all rows. Work whose track names no process is of the only one."""
        hosts = {row["process"] for table in ("api", "nvtx") for row in self._rows[table]} - {MISSING}
        alone = next(iter(hosts)) if len(hosts) == 1 else MISSING
        columns: dict[str, Any] = {}
        for name, rows in self._rows.items():
            for row in rows:
                row.setdefault("process", alone)
            if rows:
                columns[name] = {
                    column.name: [_value(column, row.get(column.name)) for row in rows]
                    for column in TABLES[name].columns
                }
        trace = Trace.from_columns({"source": SOURCE}, **columns)
        return Trace({**trace.tables, **self._descriptions(trace)}, trace.metadata)

    def _descriptions(self, trace: Trace) -> dict[str, pd.DataFrame]:
        keys = {"devices": ["device"], "threads": ["process", "thread"], "processes": ["process"]}
        frames = {
            table: pd.DataFrame([(*key, text) for key, text in texts.items() if text], columns=[*keys[table], "name"])
            for table, texts in self._described.items()
        }
        places = ["process", "context", "stream"]
        streams = pd.concat([trace[name][places] for name in DEVICE_TABLES]).drop_duplicates().sort_values(places)
        frames["streams"] = streams[streams["stream"] != MISSING]
        return {table: frame for table, frame in frames.items() if len(frame)}


def _value(column: Column, value: Any) -> Any:
    """A value of a column; its default if it is none."""
    if column.enum is not None or column.is_name:
        known = isinstance(value, str) and (column.enum is None or value in column.enum)
        return value if known else column.default
    if column.kind == "float64":
        return float(value) if isinstance(value, int | float) else column.default
    return value if type(value) is int and -(2**63) <= value < 2**63 else column.default


class Place:
    """Where a slice is, from the names of its track and of those around it, innermost first.

    Attributes:
        is_device: whether it is a track of a device, as we name them.
        numbers: column -> number; without a process if the track does not name it, and empty without a track.
        names: table that describes -> key and name.
    """

    def __init__(self, tracks: list[Any], text: Callable[[Any], str]) -> None:
        self.numbers: dict[str, int] = {}
        self.names: dict[str, tuple[tuple[int, ...], str]] = {}
        outer = text(tracks[-1].name) if tracks else ""
        match = _GPU.fullmatch(outer) if len(tracks) > 1 else None
        self.is_device = match is not None
        thread = next((track.thread for track in tracks if track.HasField("thread")), None)
        if match is not None:
            self.numbers = {"device": int(match[1]), "stream": MISSING} | _numbers(text(tracks[0].name))
            self.names["devices"] = (int(match[1]),), match[2] or ""
        elif thread is not None:
            self.numbers = {"process": thread.pid, "thread": thread.tid}
            self.names["threads"] = (thread.pid, thread.tid), text(thread.thread_name)
        elif len(tracks) > 1:  # one whose numbers Perfetto has no room for, so that its name tells them
            process = tracks[-1].process.pid if tracks[-1].HasField("process") else MISSING
            told = {"process": process, "thread": MISSING} | _numbers(outer) | _numbers(text(tracks[-2].name))
            self.numbers = {key: told[key] for key in ("process", "thread")}


def _numbers(name: str) -> dict[str, int]:
    return {kind: int(number) for kind, number in _ON.findall(name)}
