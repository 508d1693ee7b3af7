"""One run of the page: its figures, and its analyses, computed on first use; and the nodes that its kernels are.

`read_runs` returns the runs of the recording at a path: it reads and analyses it, or takes them from the cache.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import ref

import numpy as np
import pandas as pd
import pyarrow as pa

from dashboard.text import plain
from dashboard.timeline.align import NO_PHASES, Busy, Tokens, busy_of, phases_of, tokens_of
from dashboard.timeline.flows import event_pairs, operators_of
from dashboard.timeline.marks import NO_WAITS, HoleRow, hole_rows, waits_of
from dashboard.timeline.pyramid import Level, Pyramid
from dashboard.timeline.rows import Row, rows_of, shown_functions, without_functions
from dashboard.view import Rate, text_of
from tracer import formats
from tracer.analysis.bounds import Bounds, Owner
from tracer.analysis.causes import Split
from tracer.analysis.gaps import GapReport, Gaps
from tracer.analysis.idle import IdleReport, KindsOfHoles, Pieces, StepIdle
from tracer.analysis.interval import Interval
from tracer.analysis.node_kernels import PlacedKernels
from tracer.analysis.recording import Recording
from tracer.analysis.sides import MUST_AGREE, SHOULD_AGREE
from tracer.analysis.sides import same_work as work_alike
from tracer.analysis.step_work import StepSpans
from tracer.analysis.steps import Others, Regime, Spoilt, StepRows
from tracer.analysis.stream_order import in_order
from tracer.analysis.summary import Summary, rated
from tracer.analysis.syncs import FetchLag, SyncReport
from tracer.analysis.tokens import ALL_STEPS, Steps, choose_steps
from tracer.analysis.waited_for import WaitedThread
from tracer.errors import EmptyTraceError, FormatError, TraceError
from tracer.model.columns import Names
from tracer.model.graph_json import GRAPH_FILE, RunGraph, read_graph
from tracer.model.intervals import Ints
from tracer.model.schema import DEVICE_DOMAINS, MISSING
from tracer.model.trace import Trace
from tracer.stored import FUNCTIONS, TRACE, Cache, kept_trace, node_kernels

if TYPE_CHECKING:
    from dashboard.reading.readers import Readers


Report = TypeVar("Report")
Answer = TypeVar("Answer")

SAME: Final = (*MUST_AGREE, *SHOULD_AGREE, "concurrency", "launch")
"""Conditions shared by runs that differ only in their strategy."""
_NOT_TRACED: Final = "the recording is untraced, so the rate changes nothing"
_NO_GAP: Final = "it has no two consecutive steps, so the rate changes nothing"
LONGEST_NAME: Final = 60
_MOST_RATES: Final = 4  # of a run that are kept: each holds figures alone


class LazyTrace:
    """A trace, read on first use unless it is given, without times that contradict the order of their stream."""

    def __init__(self, path: Path, trace: Trace | None = None, read: Callable[[Path], Trace] | None = None) -> None:
        self.path = path
        self._read = read or partial(formats.read, whole=False)
        self._lock = threading.Lock()  # one for each: before Python 3.12 a cached_property has one for all
        self._trace = None if trace is None else in_order(trace)

    @property
    def trace(self) -> Trace:
        """The trace.

        Raises:
            TraceError: it cannot be read.
        """
        with self._lock:
            if self._trace is None:
                self._trace = in_order(self._read(self.path))
            return self._trace


class _Recorded(cached_property[Answer]):
    """The analyses that do not depend on the rate, shared by a run with a rate and the same run without."""

    def __get__(self, run: Any, owner: type[Any] | None = None) -> Any:
        if run is None or run.without_rate is None:
            return super().__get__(run, owner)
        return getattr(run.without_rate, str(self.attrname))


@dataclass(eq=False)
class Run:
    """One run: a recording, or the part of one inside an NVTX range or of one engine. Analyses are made when first
    used.

    Attributes:
        key: its unique name in the store, used in links.
        summary: its figures; `problem` names what is missing.
        recording: its trace, None if it cannot be read.
        steps: its token steps, None if none were found.
        graph_file: the graph that was run, None if the run directory has none.
        path: the path of the recording, readable or not; None before it was examined.
        within: the NVTX range of the run, None for the whole recording.
        owner: the engine of the run, None for a recording of one.
        functions: the Python functions that the timeline shows, see `timeline.functions`; None for none.
        given_rate: the engine's own steps per second that a user gave; None for the rate in run.json.
        without_rate: the run without the rate; None if none was given.
        is_as_recorded: whether no figure is corrected with a rate, see `as_recorded`.
    """

    key: str
    name: str
    summary: Summary
    recording: LazyTrace | None = field(default=None, repr=False)
    steps: Steps | None = field(default=None, repr=False)
    graph_file: Path | None = None
    path: Path | None = None
    within: str | None = None
    owner: Owner | None = None
    functions: pd.DataFrame | None = field(default=None, repr=False)
    predicted: bool = False
    given_rate: float | None = None
    rate_problem: str = ""
    without_rate: Run | None = field(default=None, repr=False)
    is_as_recorded: bool = False

    @cached_property
    def as_recorded(self) -> Run:
        """The run as its recording has it, without any untraced rate."""
        if not self.inflated or self.gaps is None:
            return self
        run = replace(self, without_rate=self.without_rate or self, is_as_recorded=True)
        gaps = self.gaps.at(None)
        run.summary = rated(self.summary, gaps)
        run.__dict__["gaps"] = gaps
        return run

    @property
    def overhead(self) -> float | None:
        """How many times longer tracing made the mean gap; None if the gap without tracing is unknown."""
        of = self.summary
        return of.gap_mean_us / of.untraced_gap_mean_us if of.gap_mean_us and of.untraced_gap_mean_us else None

    def at(self, steps_per_s: float) -> Run:
        """The run with the engine's own rate, used for its figures; the rate of another run is ignored."""
        return self._by_rate(steps_per_s)

    @cached_property
    def _by_rate(self) -> Callable[[float], Run]:
        return lru_cache(_MOST_RATES)(self._at)

    def _at(self, steps_per_s: float) -> Run:
        run = replace(self, given_rate=steps_per_s, without_rate=self)
        if self.steps is None:
            return run
        if self.gaps is None or not self.summary.traced:
            return replace(run, rate_problem=_NO_GAP if self.gaps is None else _NOT_TRACED)
        gaps = self.gaps.at(steps_per_s)
        if gaps.refused is not None:
            return replace(run, rate_problem=gaps.refused)
        run.summary = rated(self.summary, gaps)
        run.__dict__["gaps"] = gaps
        return run

    @property
    def part(self) -> str | None:
        """Which part of its recording it is, None for all."""
        return self.within if self.owner is None else str(self.owner)

    @property
    def bounds(self) -> Bounds:
        """What finds its steps in its recording."""
        return ALL_STEPS if self.owner is None else ALL_STEPS.of(self.owner)

    @property
    def rate(self) -> float | None:
        """The given rate, if it applies."""
        return None if self.rate_problem or self.is_as_recorded else self.given_rate

    @property
    def rates(self) -> tuple[Rate, ...]:
        """The given rate, for the view of a link."""
        return () if self.given_rate is None else (Rate(self.key, self.given_rate),)

    @property
    def rate_note(self) -> str:
        """The effect of the given rate in one line, "" if none was given."""
        if self.given_rate is None or self.steps is None:
            return ""
        text, gained = f"untraced rate given, {text_of(self.given_rate)} steps/s", self.summary.tokens_per_step
        if self.rate_problem:
            return f"{text}, ignored: {self.rate_problem}"
        return text if gained is None else f"{text}, which are {self.given_rate * gained:,.1f} tokens/s"

    @property
    def state(self) -> Hashable:
        """What distinguishes its figures from those of the same recording at another rate."""
        return self.rate, self.is_as_recorded

    @property
    def recorded(self) -> Hashable:
        """Identifies the recording without keeping it in memory; results that no rate changes are stored under it."""
        return ref(self.without_rate or self)

    @property
    def identity(self) -> str:
        """Identifies the run on a page; it changes when the recording is read again and with the rate."""
        rate = "as recorded" if self.is_as_recorded else text_of(self.rate)
        return f"{self.key} {id(self.without_rate or self)} {rate}".strip()

    @property
    def trace(self) -> Trace | None:
        """The recording; None if it could not be read.

        Raises:
            TraceError: it cannot be read any more.
        """
        return None if self.recording is None else self.recording.trace

    @_Recorded
    def graph(self) -> RunGraph:
        """The graph that was run.

        Raises:
            FormatError: the run directory has none, or a damaged one.
        """
        if self.graph_file is None:
            raise FormatError(f"{self.name} has no {GRAPH_FILE}: only runs made by intertoken run have one")
        return read_graph(self.graph_file)

    @_Recorded
    def executions(self) -> Executions:
        """The kernels of the graph's nodes.

        Raises:
            FormatError: there is no graph.
        """
        if self.steps is None:
            return executions_of(None, None, self.graph)
        return executions_of(self.shown, self.steps.table, self.graph)

    @_Recorded
    def node_kernels(self) -> PlacedKernels | None:
        """The node pass of the run directory, placed in this light recording; None if nothing matches, or there is
        none."""
        return None if self.path is None or self.trace is None else node_kernels(self.path, self.trace, self.steps)

    @_Recorded
    def node_kernels_note(self) -> str:
        """How the times of the kernels in the timeline were determined; "" if they were recorded at these times."""
        return "" if self.node_kernels is None else self.node_kernels.note

    @property
    def shown(self) -> Trace | None:
        """The recording as the timeline shows it, with the kernels of the node pass; None if it could not be read."""
        return self.trace if self.node_kernels is None else self.node_kernels.trace

    @_Recorded
    def gaps(self) -> GapReport | None:
        """The gaps as recorded, with the untraced ones next to them; None if there are none."""
        return _unless_it_fails(attrgetter("gaps_at_rate"), self._analysed)

    @_Recorded
    def holes(self) -> list[HoleRow]:
        """Where the devices idle, for the timeline's shading."""
        return [] if self.gaps is None else hole_rows(self.gaps.idle)

    @_Recorded
    def syncs(self) -> SyncReport | None:
        """The syncs, copies and launches of the steps; None if they are not recorded."""
        return _unless_it_fails(attrgetter("syncs"), self._analysed)

    @_Recorded
    def spans(self) -> StepSpans:
        """The compute of each step on each device; it has steps."""
        assert self._analysed is not None
        spans: StepSpans = self._analysed.spans
        return spans

    @_Recorded
    def _analysed(self) -> Recording | None:
        """The recording without a given rate; None without steps."""
        return None if self.trace is None or self.steps is None else self.analysed()

    def analysed(self) -> Recording:
        """The recording, with the given rate.

        Raises:
            EmptyTraceError: it can no longer be read, or it has no steps.
        """
        if self.trace is None or self.steps is None:
            raise EmptyTraceError(f"{plain(self.name, LONGEST_NAME)} has no token steps")
        rates = () if self.rate is None else (self.rate,)
        name = plain(self.name, LONGEST_NAME)
        recording = Recording.of_steps(self.trace, self.steps, name, within=self.within, rates=rates)
        if self.is_as_recorded:
            recording.__dict__["gaps_at_rate"] = self.gaps
        return recording

    @_Recorded
    def tokens(self) -> Tokens | None:
        """The times of the tokens; None if there are none to align at."""
        if self.trace is None or self.steps is None:
            return None
        gaps = None if self.gaps is None else self.gaps.table
        return tokens_of(self.spans.frame(), gaps, self.trace["api"])

    @_Recorded
    def waits(self) -> pd.DataFrame:
        """The syncs of the run and what they waited for; see `timeline.marks.waits_of`."""
        return waits_of(self.syncs.calls) if self.syncs is not None else NO_WAITS

    @_Recorded
    def event_pairs(self) -> pd.DataFrame:
        """The waits for CUDA events, with the records that they wait for; see `timeline.flows.event_pairs`."""
        return event_pairs(self.trace if self.trace is not None else Trace({}))

    @_Recorded
    def busy(self) -> Busy | None:
        """How busy the streams are from the first event to the last; None if the run has no tokens."""
        return None if self.tokens is None else busy_of(self.rows, *self.whole)

    @_Recorded
    def phases_beside(self) -> pd.DataFrame:
        """The phases of the recording outside the steps, see `timeline.align.phases_of`."""
        if self.trace is None or self.steps is None:
            return NO_PHASES
        computed = 0 if self.tokens is None else int(self.tokens.end.max())
        return phases_of(self.trace, self.steps, self.whole, computed)

    @_Recorded
    def whole(self) -> tuple[int, int]:
        """From the first event to the end of the last, ns."""
        rows = [row for row in self.rows if len(row.start)]
        ends = [int(row.start[0]) for row in rows], [int(row.end.max()) for row in rows]
        return min(ends[0], default=0), max(ends[1], default=0)

    @property
    def kind(self) -> tuple[Any, ...]:
        """What runs that differ only in their strategy have in common; an unknown condition counts as equal."""
        of, tool = self.summary, self.summary.source.partition(" ")[0]
        known = not self._has_rate, not of.traced
        return (*map(of.conditions.get, SAME), of.model, of.graph_trace, tool, self.phases, *known)

    @property
    def phases(self) -> frozenset[str]:
        """The phase of its steps, one of `engines.engine.PHASES`."""
        return frozenset() if self.steps is None else frozenset(self.steps.table["phase"])

    @property
    def of_known_speed(self) -> bool:
        """Whether the rate without a profiler is known, so that the run can be compared."""
        return not self.summary.traced or (self._has_rate and (self.steps is None or self.steps.decode_alone))

    @property
    def _has_rate(self) -> bool:
        return self.summary.tokens_per_s is not None or self.rate is not None

    @property
    def inflated(self) -> bool:
        """Whether the timeline comes from a traced pass, which inflates the gap."""
        return self.summary.traced and not self.predicted

    @_Recorded
    def _named(self) -> dict[Row, pd.Series]:
        return {}

    def operators(self, row: Row) -> pd.Series:
        """The operator of each event in a row of the timeline; see `timeline.flows`."""
        known: dict[Row, pd.Series] = self._named
        if row not in known:
            known[row] = operators_of(self.trace if self.trace is not None else Trace({}), row)
        return known[row]

    @_Recorded
    def rows(self) -> list[Row]:
        """The timeline's rows."""
        if self.trace is None or self.steps is None:
            return []
        table = self.steps.table
        return rows_of(self.shown or self.trace, int(table["start"].min()), int(table["end"].max()), self.functions)


def run_of(
    analysed: Recording, recording: LazyTrace, *, key: str, functions: pd.DataFrame | None = None,
    graph_file: Path | None = None, owner: Owner | None = None, predicted: bool = False,
) -> Run:  # fmt: skip
    """An analysed recording as a run of the page."""
    summary = analysed.summary
    steps = analysed.steps if summary.steps is not None else None
    shown = None if steps is None or functions is None else shown_functions(functions, steps.table)
    run = Run(
        key, analysed.name, summary, recording, steps, graph_file, recording.path, analysed.within, owner, shown,
        predicted=predicted,
    )  # fmt: skip
    if steps is not None:
        parts = {"gaps": "gaps_at_rate", "syncs": "syncs", "spans": "spans"}
        run.__dict__.update({name: analysed.__dict__.get(part) for name, part in parts.items()})
    return run


def at_rates(runs: Iterable[Run], rates: Iterable[Rate]) -> list[Run]:
    """The runs, with the given rates applied."""
    given = {rate.run: rate.steps_per_s for rate in rates}
    return [run.at(given[run.key]) if run.key in given else run for run in runs]


def told(runs: Iterable[Run], basis: str) -> list[Run]:
    """The runs with the figures of one state of the switch between them, a key of `view.BASES`."""
    return [run.as_recorded if basis == "recorded" else run for run in runs]


def same_work(one: Run, other: Run) -> bool:
    """Whether two runs did the same work in the same phases on the same device, as far as known."""
    return work_alike(one.summary.conditions, other.summary.conditions) and one.phases == other.phases


def _unless_it_fails(analysis: Callable[[Recording], Report], recording: Recording | None) -> Report | None:
    try:
        return None if recording is None else analysis(recording)
    except TraceError:
        return None


@dataclass(frozen=True, eq=False)
class Executions:
    """The kernels of a recording's token steps.

    Attributes:
        table: one row per kernel of a known node, by start: node, start, end (ns), stream.
        problem: why no kernel's node is known; empty if they are known.
    """

    table: pd.DataFrame
    problem: str = ""

    @cached_property
    def durations(self) -> pd.DataFrame:
        """Per node (the index) median, p90 (ns) and count of its kernel's executions."""
        lengths = (self.table["end"] - self.table["start"]).groupby(self.table["node"])
        return pd.DataFrame({"median": lengths.median(), "p90": lengths.quantile(0.9), "count": lengths.size()})

    def within(self, node: int, low: int, high: int) -> tuple[int, int] | None:
        """Start and end (ns) of the node's first execution that starts in [low, high), or None."""
        table = self.table
        rows = table[(table["node"] == node) & (table["start"] >= low) & (table["start"] < high)]
        return None if not len(rows) else (int(rows["start"].iloc[0]), int(rows["end"].iloc[0]))

    def node_of(self, stream: int, start: int) -> int | None:
        """The node of the kernel that starts at this time (ns) on this stream, or None."""
        rows = self.table[(self.table["start"] == start) & (self.table["stream"] == stream)]
        return int(rows["node"].iloc[0]) if len(rows) else None


def executions_of(trace: Trace | None, steps: pd.DataFrame | None, graph: RunGraph) -> Executions:
    """Find the node of every kernel in the token steps.

    The CPU backend names a kernel `op(node)`. CUDA graphs number their nodes in order of creation: if a recording has
    as many numbers as the plan has launches, the k-th number is the k-th launch.
    """
    nothing = pd.DataFrame({name: pd.Series(dtype="int64") for name in ("node", "start", "end", "stream")})
    if trace is None or steps is None or not len(steps):
        return Executions(nothing, "The recording has no token steps.")
    kernels = trace["kernels"]
    kernels = kernels[(kernels["start"] >= steps["start"].min())]
    if not len(kernels):
        return Executions(nothing, "This recording has no kernels; only a pass at node level does.")
    node = _by_name(kernels["name"], graph)
    if (node == MISSING).all():
        numbers = np.unique(kernels["graph_node"][kernels["graph_node"] != MISSING])
        if len(numbers) != len(graph.launches):
            counts = f"{len(numbers)} graph nodes with kernels, and the plan {len(graph.launches)}"
            return Executions(nothing, f"The kernels of this recording cannot be matched to nodes: it has {counts}.")
        number = kernels["graph_node"].to_numpy()
        place = np.minimum(np.searchsorted(numbers, number), len(numbers) - 1)
        launches = np.array(graph.launches, dtype=np.int64)
        node = np.where(numbers[place] == number, launches[place], MISSING)  # some have no number
    table = kernels[["start", "end", "stream"]].assign(node=node)[node != MISSING]
    return Executions(table.sort_values("start", kind="stable", ignore_index=True))


def _by_name(names: pd.Series, graph: RunGraph) -> Ints:
    known = {f"{node.op}({node.name})": i for i, node in enumerate(graph.nodes) if node.stream is not None}
    of_category = np.array([known.get(str(name), MISSING) for name in names.cat.categories], dtype=np.int64)
    return of_category[names.cat.codes.to_numpy()]


PYTHON: Final = "python_functions"
_MOST_RANGES: Final = 20
_SUFFIXES: Final = frozenset({".sqlite", ".json", ".nsys-rep"})
_KEPT: Final = (
    Summary, FetchLag, Interval, Steps, Owner, StepRows, Spoilt, Others, Regime, Names, StepSpans, GapReport, Gaps,
    Split, IdleReport, StepIdle, KindsOfHoles, Pieces, WaitedThread, Tokens, Row, HoleRow, Level,
)  # fmt: skip
_MADE: Final = ("gaps", "tokens", "waits", "event_pairs", "phases_beside", "node_kernels_note")


def read_runs(path: Path, cache: Cache | None = None, readers: Readers | None = None) -> list[Run]:
    """The runs of one recording; if it cannot be read, a run that gives the reason.

    With a cache, the runs come from it or are stored there first: their arrays are then on disk, and no trace stays in
    memory. With readers, these read the recording, and this process only maps the result, in this cache or in theirs.
    """
    if readers is not None:
        return _read_elsewhere(path, [readers.cache] if cache is None else [cache, readers.cache], readers)
    kept = None if cache is None else _from_cache(cache, path)
    if kept is not None:
        return kept
    runs = _analysed(path, [] if cache is None else [cache])
    if cache is None or runs[0].recording is None or not cache.save(path, [_kept(run) for run in runs]):
        return runs
    del runs
    pa.default_memory_pool().release_unused()
    return _from_cache(cache, path) or _analysed(path)


def keep_runs(path: Path, caches: Sequence[Cache]) -> None:
    """Read a recording's runs and store them in the first cache that accepts them.

    Raises:
        TraceError: it cannot be read or stored.
    """
    runs = _analysed(path, caches)
    if runs[0].recording is None:
        raise TraceError(runs[0].summary.problem)
    _keep(caches, path, [_kept(run) for run in runs], "runs")


def keep_trace(path: Path, caches: Sequence[Cache], part: str = TRACE) -> None:
    """Read a recording's trace, for `FUNCTIONS` with its Python functions, and store it in the first cache that accepts
    it; raises like `keep_runs`."""
    functions = formats.functions_of(path) if part == FUNCTIONS else {}
    _keep(caches, path, formats.read(path, whole=False, **functions), part)


def read_functions(path: Path, cache: Cache | None, readers: Readers | None) -> Trace | None:
    """The trace of a recording with its Python functions, read in the same process as by `read_runs`; None if it has no
    others.

    Raises:
        TraceError: it cannot be read any more.
    """
    if not formats.functions_of(path):
        return None
    caches = [one for one in (cache, readers.cache if readers is not None else None) if one is not None]
    if (kept := _kept_trace(path, caches, FUNCTIONS)) is not None:
        return kept
    if readers is None:
        trace = formats.read(path, whole=False, **formats.functions_of(path))
        if cache is not None:
            cache.save(path, trace, FUNCTIONS)
        return trace
    readers.do(path, keep_trace, caches, FUNCTIONS)
    return _kept_trace(path, caches, FUNCTIONS)


def write_copy(path: Path, target: Path) -> None:
    """Write a recording as a parquetdir, with all of its data.

    Raises:
        TraceError: it can no longer be read, or cannot be written.
    """
    formats.write(formats.read(path), target)


def name_of(path: Path) -> str:
    """The name of a recording, and its key."""
    name = path.stem if path.suffix in _SUFFIXES else path.name
    return f"{path.parent.name} · {name}" if is_pass(path) else name


def is_pass(path: Path) -> bool:
    """Whether a recording is a traced pass inside the run directory of another."""
    return formats.is_trace(path.parent)


def _read_elsewhere(path: Path, caches: Sequence[Cache], readers: Readers) -> list[Run]:
    def trace(path: Path) -> Trace:
        kept = _kept_trace(path, caches)
        if kept is None:
            readers.do(path, keep_trace, caches)
            kept = _kept_trace(path, caches)
        if kept is None:
            raise TraceError(f"{path}: has changed while it was read")
        return kept

    kept, problem = _first(_from_cache(cache, path, trace) for cache in caches), None
    if kept is None:
        try:
            readers.do(path, keep_runs, caches)
            kept = _first(_from_cache(cache, path, trace) for cache in caches)
        except TraceError as error:
            problem = str(error)
    name = name_of(path)
    problem = problem or f"{path}: has changed while it was read"
    return kept or [Run(name, name, Summary(name, problem=problem), path=path)]


def _first(several: Iterable[Answer | None]) -> Answer | None:
    return next((one for one in several if one is not None), None)


def _kept_trace(path: Path, caches: Sequence[Cache], part: str = TRACE) -> Trace | None:
    return _first(kept_trace(path, cache, part) for cache in caches)


def _keep(caches: Sequence[Cache], path: Path, value: Any, part: str) -> None:
    if not any(cache.save(path, value, part) for cache in caches):
        raise TraceError(f"{path}: there is not enough disk space to cache it")


def _analysed(path: Path, caches: Sequence[Cache] = ()) -> list[Run]:
    name = name_of(path)
    try:
        trace, functions = _trace(path, caches)
    except TraceError as problem:
        return [Run(name, name, Summary(name, problem=str(problem)), path=path)]
    recording, graph = LazyTrace(path, trace), _graph_file(path)
    trace = recording.trace
    steps = _steps(trace)

    def run(part: str | None, within: str | None, steps: Steps | None, owner: Owner | None = None) -> Run:
        called = name if part is None else f"{name} · {part}"
        analysed = recording_of(trace, called, within, steps=steps)
        key = name if part is None else f"{name}~{part}"
        return run_of(analysed, recording, key=key, functions=functions, graph_file=graph, owner=owner)

    owners = () if steps is None else steps.owners
    engines = [run(str(owner), None, _steps(trace, ALL_STEPS.of(owner)), owner) for owner in owners]
    texts = [] if engines or steps is None else _parts(trace, steps)
    return engines or [run(text, text, None) for text in texts] or [run(None, None, steps)]


def _steps(trace: Trace, bounds: Bounds = ALL_STEPS) -> Steps | None:
    """The steps in these bounds, None if none are found."""
    try:
        return choose_steps(trace, None, bounds)
    except TraceError:
        return None


def _trace(path: Path, caches: Sequence[Cache]) -> tuple[Trace, pd.DataFrame]:
    """The trace without its Python functions, and these: from the cache of the commands, or else from the file."""
    has_functions = PYTHON in formats.functions_of(path)
    kept = _kept_trace(path, caches, FUNCTIONS if has_functions else TRACE)
    trace = formats.read(path, whole=False, **{PYTHON: has_functions}) if kept is None else kept
    return trace, without_functions(trace)


def recording_of(trace: Trace, name: str, within: str | None, *, steps: Steps | None) -> Recording:
    """The recording of a run, with its steps if these are known."""
    if steps is None:
        return Recording(trace, name, within=within)
    return Recording.of_steps(trace, steps, name, within=within)


def _kept(run: Run) -> dict[str, Any]:
    """The parts of a run that the cache stores."""
    own = {name: getattr(run, name) for name in ("key", "name", "within", "owner", "summary", "steps")}
    made = {name: getattr(run, name) for name in _MADE}
    rows, holes = ([(row, list(row.pyramid.levels)) for row in of] for of in (run.rows, run.holes))
    return own | {"made": made, "rows": rows, "holes": holes}


def _from_cache(cache: Cache, path: Path, read: Callable[[Path], Trace] | None = None) -> list[Run] | None:
    recording, graph = LazyTrace(path, read=read), _graph_file(path)

    def restored(kept: dict[str, Any]) -> Run:
        run = Run(
            kept["key"], kept["name"], kept["summary"], recording, kept["steps"], graph, path, kept["within"],
            kept["owner"],
        )  # fmt: skip
        for row, levels in (*kept["rows"], *kept["holes"]):
            row.__dict__["pyramid"] = Pyramid(row.start, row.end, tuple(levels))
        run.__dict__.update(kept["made"], **{name: [row for row, _ in kept[name]] for name in ("rows", "holes")})
        return run

    return cache.load(path, _KEPT, lambda parts: [restored(kept) for kept in parts])


def _graph_file(path: Path) -> Path | None:
    """The graph in a run directory, shared by its traced passes."""
    file = (path.parent if is_pass(path) else path) / GRAPH_FILE
    return file if file.is_file() else None


def _parts(trace: Trace, steps: Steps) -> list[str]:
    """NVTX texts whose ranges each contain several token steps: the runs of a recording of several runs."""
    if steps.source != "nvtx" or steps.table["group"].nunique() < 2:
        return []
    nvtx = trace["nvtx"]
    ranges = nvtx[(nvtx["end"] > nvtx["start"]) & ~nvtx["domain"].isin(DEVICE_DOMAINS)]
    starts, ends = (np.sort(steps.table[c].to_numpy()) for c in ("start", "end"))
    held = np.searchsorted(ends, ranges["end"], side="right") - np.searchsorted(starts, ranges["start"], side="left")
    holders = ranges[(held >= 2) & (held < len(steps))]
    texts = list(pd.unique(holders["text"].astype("str")))
    return texts if 2 <= len(texts) <= _MOST_RANGES and len(texts) == len(holders) else []
