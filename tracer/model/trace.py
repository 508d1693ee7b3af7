"""The trace: named tables with fixed columns, and metadata, which tell when its recorder paused, too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, Generic, NamedTuple, TypeVar, cast

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from tracer.errors import UsageError
from tracer.extensions import view
from tracer.model.columns import Columns, Names
from tracer.model.contradictions import Contradictions
from tracer.model.schema import CARRIED, COMPUTE_TABLES, DEVICE_TABLES, MISSING, TABLES, Column, Table
from tracer.model.tables import (
    Activities,
    Api,
    Callchains,
    CudaEvents,
    GraphLaunches,
    Kernels,
    Memcpys,
    Memsets,
    Nvtx,
    SampleChains,
    Samples,
    Syncs,
    typed,
)

LIGHT: Final = "light"
UNSTAMPED: Final = "CUDA graphs without stamps"
"""In the note of the light recorder on graphs that it could not time."""
CONDITIONAL: Final = "conditional_graphs"
"""In the metadata of a light recording: the number of instantiated graphs with conditional nodes, if there are any."""
LACKS: Final = "lacks"
"""In the metadata of a file of another tool: why it shows no work on a device, and what to do."""
DEVICE_ERROR: Final = "device_error_ns"
"""In the metadata's `clock`: by how much times of the device may be wrong against the host's."""
RUN: Final = "graph"
"""Name of a row of `graph_launches` whose graph is unknown, see `Trace.has_runs`."""

UNTRACED: Final = ("host", LIGHT)
"""Recorders (`metadata["source"]`) whose overhead on the program is no more than they state."""

Given = Mapping[str, Sequence[Any] | np.ndarray[Any, Any] | pd.Categorical]
"""Column name -> values, all of the same length."""

PAUSES: Final = "pauses_ns"
"""The member of the metadata: a list of [since, until, process, is_exec], as in `Pause`."""

_FAR: Final = 1 << 61
T = TypeVar("T", bound=Columns)


class _Typed(Generic[T]):
    """The table of this name as typed columns, of the class given."""

    def __init__(self, kind: type[T]) -> None:
        self.__doc__ = kind.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, trace: Trace, owner: type | None = None) -> T:
        return cast("T", trace.table(self._name))


@dataclass(eq=False)
class Trace:
    """A recording: one pandas frame for every table of `schema.TABLES`, possibly empty.

    Attributes:
        tables: name -> frame with the schema's columns and dtypes, followed by carried columns (`schema.CARRIED`).
            Rows are sorted by start, samples by time.
        metadata: JSON-able facts about the recording: `source` (such as "nsys 2025.3.2" or "host"), `run`
            (the contents of run.json, if it came from a run directory), `clock`, `pauses_ns` and others.
        notes: limitations that a reader or recorder must state (dropped records, unclosed ranges).
        carried: nsys tables that have no counterpart in the schema, unchanged, by their nsys names.
        name: of the file or directory it was read from, for people; empty otherwise.
        contradictions: what contradicted the order of its streams (`analysis.stream_order`); None if it was not looked
            for.

    Example:
        >>> trace = Trace.from_columns(kernels={"start": [0, 20], "end": [10, 30], "name": ["k", "k"]})
        >>> len(trace["kernels"]), len(trace["memcpys"])
        (2, 0)
    """

    tables: dict[str, pd.DataFrame]
    metadata: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    carried: dict[str, pa.Table] = field(default_factory=dict)
    name: str = ""
    contradictions: Contradictions | None = field(default=None, init=False, repr=False)
    _kept: dict[Any, tuple[Any, Columns]] = field(default_factory=dict, init=False, repr=False)

    kernels = _Typed(Kernels)
    memcpys = _Typed(Memcpys)
    memsets = _Typed(Memsets)
    graph_launches = _Typed(GraphLaunches)
    api = _Typed(Api)
    syncs = _Typed(Syncs)
    cuda_events = _Typed(CudaEvents)
    nvtx = _Typed(Nvtx)
    callchains = _Typed(Callchains)
    samples = _Typed(Samples)
    sample_chains = _Typed(SampleChains)

    def __post_init__(self) -> None:
        for name in self.tables:
            if name not in TABLES:
                raise KeyError(f"unknown table {name!r}; a trace has {', '.join(TABLES)}")
        self.tables = {name: conform(self.tables.get(name), table) for name, table in TABLES.items()}

    @classmethod
    def from_columns(
        cls,
        metadata: dict[str, Any] | None = None,
        **tables: pd.DataFrame | Given,
    ) -> Trace:
        """Build a trace from table=columns pairs; missing tables and columns get the schema's defaults."""
        trace = cls({}, dict(metadata or {}))
        trace.tables |= {name: conform(columns, TABLES[name]) for name, columns in tables.items()}
        return trace

    def __getitem__(self, name: str) -> pd.DataFrame:
        return self.tables[name]

    @property
    def is_untraced(self) -> bool:
        """Whether it was recorded without a profiler, so that the times are those of the undisturbed program."""
        return self.metadata.get("source") in UNTRACED

    @property
    def has_runs(self) -> bool:
        """Whether a row of `graph_launches` may represent several kernel launches, see `recorders.light`."""
        return self.metadata.get("source") == LIGHT

    def __len__(self) -> int:
        """Number of events in all tables with times."""
        return sum(len(frame) for frame in self.tables.values() if "start" in frame)

    @property
    def span(self) -> tuple[int, int]:
        """First start and last end of all events, ns; (0, 0) if there are none."""
        timed = [t for t in self.tables.values() if "start" in t and len(t)]
        if not timed:
            return 0, 0
        return min(int(t["start"].min()) for t in timed), max(int(t["end"].max()) for t in timed)

    def table(self, name: str) -> Columns:
        """A table as typed columns, which share the frame's arrays."""
        frame, kept = self.tables[name], self._kept.get(name)
        if kept is None or kept[0] is not frame:
            kept = self._kept[name] = frame, typed(name, frame)
        return kept[1]

    def activities(self, tables: Iterable[str] = DEVICE_TABLES) -> Activities:
        """The rows of several device tables, sorted by start."""
        parts = {name: self.table(name) for name in tables}
        kept = self._kept.get(tuple(parts))
        if kept is None or any(mine is not other for mine, other in zip(kept[0], parts.values(), strict=True)):
            kept = self._kept[tuple(parts)] = [*parts.values()], _activities(parts)
        return cast(Activities, kept[1])

    def compute(self) -> Activities:
        """The rows of `activities` that compute: kernels except collectives, and whole graphs."""
        work = self.activities(COMPUTE_TABLES)
        return work[~work.collective] if work.collective.any() else work

    def communication(self) -> Activities:
        """The rows of `activities` that are collectives."""
        return _activities({"kernels": self.kernels[self.kernels.collective]})

    def timeline(self, token: int | None = None, **options: Any) -> Any:
        """The timeline at a token (None: the most typical one) as a Plotly figure, by the view `timeline`.

        Raises:
            UsageError: no installed package draws timelines.
        """
        draw = view("timeline")
        if draw is None:
            raise UsageError("no installed package draws timelines: install all of intertoken (pip install intertoken)")
        return draw(self, token=token, **options)

    def _repr_html_(self) -> str | None:
        """HTML for notebooks, by the view `trace`; None if there is none."""
        show = view("trace")
        return None if show is None else str(show(self))

    def map_tables(self, change: Callable[[str, pd.DataFrame], pd.DataFrame]) -> Trace:
        """A new trace with every table passed through `change(name, frame)`."""
        changed = {name: change(name, frame) for name, frame in self.tables.items()}
        made = Trace(changed, dict(self.metadata), list(self.notes), dict(self.carried))
        made.contradictions = self.contradictions
        return made


def conform(frame: pd.DataFrame | Given | None, table: Table) -> pd.DataFrame:
    """Convert a frame, or columns by name, to a table's columns, dtypes, defaults and order by start, or time."""
    length = len(frame[next(iter(frame.keys()))]) if frame is not None and len(frame.keys()) else 0
    if frame is None or length == 0:
        return table.empty()
    extra = [name for name in map(str, frame.keys()) if name not in table.column_names]
    unknown = [name for name in extra if not name.startswith(CARRIED)]
    if unknown:
        raise KeyError(f"table {table.name} has no column {', '.join(sorted(unknown))}")
    columns = {c.name: _conform_column(frame.get(c.name), c, length) for c in table.columns}
    result = pd.DataFrame(columns | {name: frame[name] for name in extra}, copy=False)
    result.columns = result.columns.astype(object)  # columns are found and chosen faster than by strings of Arrow
    when = next((name for name in ("start", "time") if name in result), None)
    if when is not None and not result[when].is_monotonic_increasing:
        result = result.sort_values(when, kind="stable", ignore_index=True)
    return result


def _conform_column(given: Any, column: Column, length: int) -> Any:
    values = given.array if isinstance(given, pd.Series) and isinstance(given.dtype, pd.CategoricalDtype) else given
    if column.enum is not None:
        words = list(column.enum)
        if values is None:
            return _constant(str(column.default), words, length)
        if isinstance(values, pd.Categorical) and list(values.categories) == words:
            return values
        return pd.Categorical(values, dtype=_dtype_of(tuple(words)))
    if column.is_name:
        if values is None:
            return _constant("", [""], length)
        return values if isinstance(values, pd.Categorical) else _categorical(values)
    if values is None:
        return np.full(length, column.default, dtype=str(column.kind))
    if isinstance(values, pd.Series):
        return values.to_numpy(dtype=str(column.kind))
    return np.asarray(values, dtype=str(column.kind))


def _constant(word: str, words: Sequence[str], length: int) -> pd.Categorical:
    codes = np.full(length, words.index(word), np.int8)
    return pd.Categorical.from_codes(codes, dtype=_dtype_of(tuple(words)), validate=False)


def _categorical(names: Any) -> pd.Categorical:
    codes, words = pd.factorize(names if isinstance(names, pd.Series) else np.asarray(names, dtype=object), sort=True)
    return pd.Categorical.from_codes(codes, pd.Index(words, dtype="str"), validate=False)


def _dtype_of(words: tuple[str, ...]) -> pd.CategoricalDtype:
    """Cached for every list of words, because pandas checks them each time, and for each way of keeping them."""
    return _dtype_kept(words, pd.get_option("mode.string_storage"))


@cache
def _dtype_kept(words: tuple[str, ...], storage: str) -> pd.CategoricalDtype:
    return pd.CategoricalDtype(pd.Index(words, dtype="str"))


def categorical(codes: NDArray[Any], texts: Any) -> pd.Categorical:
    """A categorical of texts[codes], where a text may occur more than once.

    Example:
        >>> categorical(np.array([0, 1, 2]), ["k", "m", "k"]).codes.tolist()
        [0, 1, 0]
    """
    merged, categories = pd.factorize(pd.Series(texts, dtype="str"))
    if len(categories) < len(merged):
        codes = merged[codes]
    return pd.Categorical.from_codes(codes, categories=pd.Index(categories, dtype="str"))


def names_of(table: str, rows: Columns) -> Names:
    """The names of some rows of a device table, as in `Trace.activities`."""
    match rows:
        case Kernels():
            short, full = rows.short_name, rows.name
            if short.rows("").any():
                codes = np.where(short.rows(""), full.codes.astype(np.int64) + len(short.words), short.codes)
                return Names.at_codes(codes, np.concatenate([short.words, full.words]))
            return short
        case Memcpys():
            return Names(rows.kind.codes, np.array([f"memcpy {kind}" for kind in rows.kind.words], dtype=object))
        case GraphLaunches():
            codes, graphs = pd.factorize(rows.graph)
            words = [RUN if graph == MISSING else f"graph {graph}" for graph in graphs.tolist()]
            return Names(np.asarray(codes, np.int64), np.array(words, dtype=object))
    return Names(np.zeros(len(rows), np.int64), np.array(["memset"], dtype=object))


def _activities(parts: Mapping[str, Columns]) -> Activities:
    """The rows of these device tables, by start."""
    tables = list(parts.values())
    sizes = [len(table) for table in tables]
    columns: dict[str, Any] = {
        name: _joined([getattr(table, name) for table in tables])
        for name in ("start", "end", "device", "context", "stream", "correlation", "process")
    }
    activities = Activities(
        **columns,
        name=Names.joined([names_of(name, table) for name, table in parts.items()]),
        bytes=_joined([getattr(table, "bytes", np.zeros(len(table), np.int64)) for table in tables]),
        table=np.repeat([DEVICE_TABLES.index(name) for name in parts], sizes),
        collective=_joined([getattr(table, "collective", np.zeros(len(table), bool)) for table in tables]),
    )
    in_order = (activities.start[1:] >= activities.start[:-1]).all()
    return activities if in_order else activities[np.argsort(activities.start, kind="stable")]


def _joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """The arrays, concatenated; if only one is not empty, that one."""
    filled = [part for part in parts if len(part)]
    return filled[0] if len(filled) == 1 else np.concatenate(parts)


class Pause(NamedTuple):
    """A half-open time, ns since the recording's origin; of `process`, or of all if it is None; `is_exec` if another
    program began in the process meanwhile, rather than the recorder paused."""

    since: int
    until: int
    process: int | None = None
    is_exec: bool = False


def stated_error(trace: Trace) -> int:
    """The error of device times according to the recorder, ns; 0 if it gives none."""
    clock = trace.metadata.get("clock")
    error = clock.get(DEVICE_ERROR) if isinstance(clock, dict) else None
    return error if isinstance(error, int) and 0 < error < _FAR // 4 else 0


def pauses(trace: Trace) -> list[Pause]:
    """The pauses that the metadata tell; damaged entries are ignored."""
    told = trace.metadata.get(PAUSES)
    return [Pause(*each) for each in told if _is_pause(each)] if isinstance(told, list) else []


def add_pauses(trace: Trace, more: Iterable[Pause]) -> None:
    """Add pauses to the metadata, which a copy replaces."""
    known = [list(each) for each in (*pauses(trace), *more)]
    if known:
        trace.metadata = {**trace.metadata, PAUSES: known}


def _is_pause(each: Any) -> bool:
    if not isinstance(each, list) or len(each) not in (3, 4) or not all(type(time) is int for time in each[:2]):
        return False
    is_known = (each[2] is None or type(each[2]) is int) and all(type(flag) is bool for flag in each[3:])
    return is_known and -_FAR < each[0] < each[1] < _FAR
