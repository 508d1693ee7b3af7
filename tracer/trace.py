"""A trace: named tables of fixed columns, and metadata."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from tracer.schema import DEVICE_TABLES, MISSING, TABLES, Column, Table


@dataclass(eq=False)
class Trace:
    """What happened: one pandas frame per table of `schema.TABLES`, always all of them, possibly empty.

    Attributes:
        tables: name -> frame with exactly the schema's columns and dtypes. Rows are in order of their start.
        metadata: JSON-able facts about the recording: `source` (such as "nsys 2025.3.2" or "host"), `run`
            (the contents of run.json, if it came from a run directory), `clock` and others.
        notes: partial results a reader or recorder must state (dropped records, ranges never closed).

    Example:
        >>> trace = Trace.from_columns(kernels={"start": [0, 20], "end": [10, 30], "name": ["k", "k"]})
        >>> len(trace["kernels"]), len(trace["memcpys"])
        (2, 0)
    """

    tables: dict[str, pd.DataFrame]
    metadata: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in self.tables:
            if name not in TABLES:
                raise KeyError(f"unknown table {name!r}; a trace has {', '.join(TABLES)}")
        self.tables = {name: conform(self.tables.get(name), table) for name, table in TABLES.items()}

    @classmethod
    def from_columns(
        cls,
        metadata: dict[str, Any] | None = None,
        **tables: Mapping[str, Sequence[Any] | np.ndarray[Any, Any]],
    ) -> Trace:
        """Build a trace from table=columns pairs; what is not given takes the schema's default."""
        frames = {name: pd.DataFrame(dict(columns)) for name, columns in tables.items()}
        return cls(frames, dict(metadata or {}))

    def __getitem__(self, name: str) -> pd.DataFrame:
        return self.tables[name]

    def __len__(self) -> int:
        """How many events there are in all tables that have times."""
        return sum(len(frame) for frame in self.tables.values() if "start" in frame)

    @property
    def span(self) -> tuple[int, int]:
        """First start and last end of all events, ns; (0, 0) if there are none."""
        timed = [t for t in self.tables.values() if "start" in t and len(t)]
        if not timed:
            return 0, 0
        return min(int(t["start"].min()) for t in timed), max(int(t["end"].max()) for t in timed)

    def activities(self, tables: Iterable[str] = DEVICE_TABLES) -> pd.DataFrame:
        """The rows of several device tables as one frame, by start.

        Columns: start end device context stream correlation process name bytes table, where a copy's name
        says its kind, bytes is 0 for compute, and `table` says which table a row came from.
        """
        parts = []
        for name in tables:
            frame = self.tables[name]
            part = frame[["start", "end", "device", "context", "stream", "correlation", "process"]].copy()
            part["name"] = _activity_names(name, frame)
            part["bytes"] = frame.get("bytes", 0)
            part["table"] = _constant(name, DEVICE_TABLES, len(frame))
            parts.append(part)
        joined = pd.concat(parts, ignore_index=True) if len(parts) > 1 else parts[0]
        return joined.sort_values("start", kind="stable", ignore_index=True)

    def map_tables(self, change: Callable[[str, pd.DataFrame], pd.DataFrame]) -> Trace:
        """A new trace with every table passed through `change(name, frame)`."""
        return Trace({n: change(n, f) for n, f in self.tables.items()}, dict(self.metadata), list(self.notes))


def conform(frame: pd.DataFrame | None, table: Table) -> pd.DataFrame:
    """Bring a frame to a table's columns, dtypes and order by start; columns it lacks take their default."""
    if frame is None or len(frame) == 0:
        return table.empty()
    unknown = set(frame.columns) - set(table.column_names)
    if unknown:
        raise KeyError(f"table {table.name} has no column {', '.join(sorted(map(str, unknown)))}")
    columns = {c.name: _conform_column(frame.get(c.name), c, len(frame)) for c in table.columns}
    result = pd.DataFrame(columns, copy=False)
    if "start" in result and not result["start"].is_monotonic_increasing:
        result = result.sort_values("start", kind="stable", ignore_index=True)
    return result


def _conform_column(values: pd.Series | None, column: Column, length: int) -> Any:
    if column.enum is not None:
        words = list(column.enum)
        if values is None:
            return _constant(str(column.default), words, length)
        if isinstance(values.dtype, pd.CategoricalDtype) and list(values.cat.categories) == words:
            return values.array
        return pd.Categorical(values, categories=words)
    if column.is_name:
        if values is None:
            return _constant("", [""], length)
        if isinstance(values.dtype, pd.CategoricalDtype):
            return values.array
        return pd.Categorical(values.astype("str"))
    if values is None:
        return np.full(length, column.default, dtype=str(column.kind))
    return values.to_numpy(dtype=str(column.kind))


def _constant(word: str, words: Sequence[str], length: int) -> pd.Categorical:
    codes = np.full(length, words.index(word), np.int8)
    return pd.Categorical.from_codes(codes, pd.Index(list(words), dtype="str"))


def _activity_names(table: str, frame: pd.DataFrame) -> pd.Series:
    if table == "kernels":
        return frame["short_name"].where(frame["short_name"] != "", frame["name"]).astype("str")
    if table == "memcpys":
        return "memcpy " + frame["kind"].astype("str")
    if table == "memsets":
        return pd.Series("memset", index=frame.index, dtype="str")
    graph = frame["graph"].astype("str")
    return ("graph " + graph).where(frame["graph"] != MISSING, "graph")
