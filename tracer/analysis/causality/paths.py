"""The critical path of each token step, and the slack of everything off it.

The path leads back from the end of the last compute of the last step to that of the first: over kernels, copies,
launches, syncs and host code, each of which began because its predecessor on the path ended. That of a step is the part
between the last compute of the previous step and its own. So what a host does that launches ahead is on the path if the
device waits for it in a later step, and the kernels that run meanwhile are not. Anything off the path can be later by
its slack, and removing it gains nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, TypeVar

import numpy as np
import pandas as pd
from pandas.api.types import union_categoricals

from tracer.analysis.causality.dag import NEVER, Dag, walk
from tracer.analysis.causality.edges import CALL, DEVICE, HOST, KINDS, LAUNCH, ORDER, RETURN, find_edges
from tracer.analysis.causality.segments import Segments, find_segments
from tracer.analysis.step_work import steps_of_frame
from tracer.analysis.tokens import Steps
from tracer.errors import EmptyTraceError
from tracer.model.calls import COPIES, LAUNCHES, SYNC
from tracer.model.collectives import computes
from tracer.model.intervals import Bools, Ints, covered
from tracer.model.rows import THREAD, among
from tracer.model.schema import HOST_COMPUTE, MISSING
from tracer.model.trace import Trace

T = TypeVar("T")

COMMUNICATION: Final = "communication"
PIECES: Final = ["step", "start", "end", "kind", "name", "bytes", "of"]
"""Columns of a path: step, time (ns), kind (one of `edges.KINDS`, `COMMUNICATION` for a collective, or `HOST_COMPUTE`
for time between two calls in which the host computed as a device), the call or activity (for an edge between two, the
later one), the bytes that a product on the host read (NaN if unknown, and for everything else), and the position of its
segment.
"""


@dataclass(frozen=True)
class Causality:
    """The dependencies of a trace: its segments, the graph of their points, and the edge that determines each point."""

    trace: Trace
    segments: Segments
    dag: Dag
    deciding: Ints
    _answers: dict[object, tuple[Steps, Any]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, trace: Trace) -> Causality:
        """Find the dependencies of a trace."""
        segments = find_segments(trace)
        dag = Dag.recorded(segments.times(), find_edges(trace, segments))
        return cls(trace, segments, dag, dag.replayed()[1])

    def once(self, ask: Callable[[Causality, Steps], T], steps: Steps) -> T:
        """The cached result of a function of a recording and its steps; it must not be modified."""
        key = ask, id(steps)
        if key not in self._answers:
            self._answers[key] = steps, ask(self, steps)  # which keeps the id the steps' own
        answer: T = self._answers[key][1]
        return answer

    @cached_property
    def of_host(self) -> tuple[Bools, Bools]:
        """Which edges and which points have weights and residuals in host time; those of the others are device time.

        The time between the activities of different calls is host time, because a profiler's marks there are made on
        the host. The time from the end of the work that a wait awaits to its return is not: the driver polls, or wakes
        the thread, as it does without a profiler.
        """
        segments, edges = self.segments, self.dag.edges
        issued = np.append(np.full(len(segments.calls), MISSING), segments.activities["call"].to_numpy())
        apart = issued[edges.source // 2] != issued[edges.target // 2]
        points = np.zeros(len(self.dag.time), bool)
        points[: 2 * len(segments.calls)] = True
        points[edges.target[edges.kind == LAUNCH]] = True
        return among(edges.kind, [CALL, HOST, LAUNCH]) | ((edges.kind == ORDER) & apart), points

    @cached_property
    def host_compute(self) -> Ints:
        """For each edge between two calls of a thread, the time in which the host computes as a device (covered by the
        thread's own ranges), ns; 0 for all other edges. Work that depends on the later call waits for it.
        """
        edges, calls = self.dag.edges, self.segments.calls
        ranges = self.trace["nvtx"]
        ranges = ranges[(ranges["domain"] == HOST_COMPUTE).to_numpy()]
        computed = np.zeros(len(edges.kind), np.int64)
        for thread, own in ranges.groupby(THREAD, sort=False):
            on_thread = (calls[THREAD] == list(thread)).all(axis=1).to_numpy()
            here = np.flatnonzero(edges.kind == HOST)
            here = here[on_thread[edges.source[here] // 2]]
            window = self.dag.time[edges.source[here]], self.dag.time[edges.target[here]]
            computed[here] = covered(own["start"], own["end"], *window)
        return computed


@dataclass(frozen=True)
class StepEnds:
    """The last compute of each step.

    Attributes:
        table: one row per step: step, its group, at (its position in `Steps.table`), point and end (the end of its last
            compute, as a point and in ns), and previous and before: the same two of the preceding step in its group,
            MISSING for the first one.
    """

    table: pd.DataFrame

    @classmethod
    def of(cls, causality: Causality, steps: Steps) -> StepEnds:
        """Find the last compute of each step.

        Raises:
            EmptyTraceError: no two consecutive steps have compute.
        """
        activities = causality.segments.activities
        rows = np.flatnonzero(computes(activities))
        at = steps_of_frame(causality.trace, steps, activities.iloc[rows])
        compute = pd.DataFrame({"at": at, "end": activities["end"].to_numpy()[rows], "row": rows})
        compute = compute[compute["at"] >= 0].sort_values(["at", "end"], kind="stable")
        last = compute.drop_duplicates("at", keep="last").reset_index(drop=True)
        last["step"], last["group"] = (steps.table[c].to_numpy()[last["at"]] for c in ("step", "group"))
        last["point"] = causality.segments.starts(last["row"].to_numpy()) + 1
        for column, of in (("previous", "point"), ("before", "end")):
            last[column] = last.groupby("group")[of].shift(1, fill_value=MISSING)
        if not (last["previous"] >= 0).any():
            raise EmptyTraceError(f"no path: {steps.counted}, no two consecutive ones with kernels")
        return cls(last[["step", "group", "at", "point", "end", "previous", "before"]])

    @property
    def followed(self) -> pd.DataFrame:
        """Those behind another."""
        return self.table[self.table["previous"] >= 0]


def critical_path(causality: Causality, ends: StepEnds) -> pd.DataFrame:
    """The pieces of every step's path in chronological order (columns `PIECES`, and by: the segment of the piece).

    Pieces follow one another without a gap. Those of a step cover the time from the last compute of the preceding step
    to its own last compute, unless they begin at a point whose dependencies are not in the trace; the path to the
    preceding step then begins at that step's last compute.
    """
    dag, table = causality.dag, ends.followed.sort_values(["group", "at"], kind="stable")
    point, previous, before = (table[column].to_numpy() for column in ("point", "previous", "before"))
    which, edge = walk(point, previous, before, dag.time, causality.deciding, dag.edges.source)
    source, target, kind = dag.edges.source[edge], dag.edges.target[edge], dag.edges.kind[edge]
    pieces = pd.DataFrame(
        {
            "step": table["step"].to_numpy()[which],
            "start": np.maximum(dag.time[source], before[which]),
            "end": np.minimum(dag.time[target], table["end"].to_numpy()[which]),
            "kind": _kinds(causality.segments, kind, target // 2),
            "of": target // 2,
            "by": source // 2,
        }
    )
    pieces["name"] = _names(causality.segments)[target // 2]
    pieces["bytes"] = np.nan
    pieces = _with_host_compute(causality, pieces[pieces["end"] > pieces["start"]])
    return pieces.sort_values(["step", "start"], kind="stable", ignore_index=True)[[*PIECES, "by"]]


def _with_host_compute(causality: Causality, pieces: pd.DataFrame) -> pd.DataFrame:
    """The pieces, with the time between two calls cut where the host computed as a device; those parts have the short
    names of its kernels.
    """
    ranges = causality.trace["nvtx"]
    ranges = ranges[ranges["domain"] == HOST_COMPUTE].sort_values("start", kind="stable")
    between = pieces["kind"] == KINDS[HOST]
    if not len(ranges) or not between.any():
        return pieces
    threads = causality.segments.calls[THREAD].iloc[pieces.loc[between, "of"]].set_axis(pieces.index[between])
    parts = [pieces[~between]]
    for index in threads.groupby(THREAD, sort=False).groups.values():
        here = (ranges[THREAD] == threads.loc[index[0]]).all(axis=1)
        parts += _cut(pieces.loc[index], ranges[here])
    whole = pd.concat(parts, ignore_index=True)
    whole["name"] = union_categoricals([part["name"].array for part in parts])
    return whole


def _cut(pieces: pd.DataFrame, ranges: pd.DataFrame) -> list[pd.DataFrame]:
    """Cut the pieces of one thread at the starts and ends of its ranges; return the parts inside the ranges, and the
    rest.
    """
    starts, ends = (ranges[c].to_numpy() for c in ("start", "end"))
    first, behind = np.searchsorted(ends, pieces["start"], "right"), np.searchsorted(starts, pieces["end"], "left")
    count = np.maximum(behind - first, 0)
    number = np.repeat(np.arange(len(pieces)), count)
    at = np.arange(len(number)) + np.repeat(first - np.cumsum(count) + count, count)
    inside = pieces.iloc[number]
    read = ranges["payload"].to_numpy(np.float64, na_value=np.nan)[at]
    short = ranges["text"].astype("str").str.partition("(")[0].to_numpy()[at]
    computed = inside.assign(
        start=np.maximum(inside["start"], starts[at]), end=np.minimum(inside["end"], ends[at]),
        kind=pd.Categorical([HOST_COMPUTE] * len(at), categories=pieces["kind"].cat.categories),
        name=pd.Categorical(short),
    )  # fmt: skip
    computed["bytes"] = read * (computed["end"] - computed["start"]) / (ends - starts)[at]
    # what is left of a piece opens at its start and at its ranges' ends, and closes at these' starts and at its end
    rest, number = pd.concat([pieces, inside]), np.append(np.arange(len(pieces)), number)
    opens, closes = (np.append(pieces[c], computed[of]) for c, of in (("start", "end"), ("end", "start")))
    rest = rest.iloc[np.lexsort((opens, number))]
    rest = rest.assign(start=opens[np.lexsort((opens, number))], end=closes[np.lexsort((closes, number))])
    return [computed, rest[rest["end"] > rest["start"]]]


def _kinds(segments: Segments, kind: Ints, of: Ints) -> pd.Categorical[Any]:
    collective = np.append(np.zeros(len(segments.calls), bool), segments.activities["collective"])[of]
    codes = np.where((kind == DEVICE) & collective, len(KINDS), kind)
    return pd.Categorical.from_codes(codes.astype(np.int8), categories=pd.Index([*KINDS, COMMUNICATION, HOST_COMPUTE]))


def _names(segments: Segments) -> pd.Categorical:
    """The name of every segment."""
    return union_categoricals([segments.calls["name"].array, segments.activities["name"].array])


def call_slack(causality: Causality, ends: StepEnds, pieces: pd.DataFrame, steps: Steps) -> pd.DataFrame:
    """Every sync, copy and launch inside a step, with its share of the critical path and its slack.

    Returns:
        Columns step, position (1, 2, ... in its step), start, end, process, thread, name, letter, row (in
        trace["api"]), on_path_ns (the part of the step's path inside the call, and from there to the start of the work
        that it launched), slack_ns (how much later a sync could return, or a copy or launch begin, without delaying the
        end of any step; `NEVER` if it never would).
    """
    calls, slack = causality.segments.calls, _slack(causality, ends)
    at = steps.of(*(calls[c].to_numpy() for c in ("start", "process", "thread")))
    chosen = np.flatnonzero((at >= 0) & calls["letter"].isin([SYNC, *COPIES, *LAUNCHES]).to_numpy())
    table = calls.iloc[chosen][["start", "end", "process", "thread", "name", "letter", "row"]].reset_index(drop=True)
    point = np.where(table["letter"] == SYNC, 2 * chosen + 1, 2 * chosen)
    table["slack_ns"] = slack[point]
    inside = pieces[pieces["kind"].isin([KINDS[CALL], KINDS[RETURN], KINDS[LAUNCH]])]
    call = np.where(inside["kind"] == KINDS[LAUNCH], inside["by"], inside["of"])
    on_path = (inside["end"] - inside["start"]).groupby(call).sum()
    table["on_path_ns"] = pd.Series(chosen).map(on_path).fillna(0).astype("int64").to_numpy()
    table.insert(0, "step", steps.table["step"].to_numpy()[at[chosen]])
    table = table.sort_values(["step", "start"], kind="stable", ignore_index=True)
    table.insert(1, "position", table.groupby("step").cumcount() + 1)
    return table


def activity_slack(causality: Causality, ends: StepEnds, pieces: pd.DataFrame) -> pd.DataFrame:
    """Every kernel, copy, memset and graph: its share of the path, and how much later it could end.

    Returns:
        Columns start, end, process, device, stream, correlation, on_path_ns, and slack_ns (how much later it could end
        without delaying any step; `NEVER` if it never delays one).
    """
    segments, columns = causality.segments, ["start", "end", "process", "device", "stream", "correlation"]
    rows = np.arange(len(segments.activities))
    inside = pieces[pieces["kind"].isin([KINDS[DEVICE], COMMUNICATION])]
    on_path = (inside["end"] - inside["start"]).groupby(inside["of"]).sum()
    return segments.activities[columns].assign(
        slack_ns=_slack(causality, ends)[segments.starts(rows) + 1],
        on_path_ns=on_path.reindex(rows + len(segments.calls), fill_value=0).to_numpy(),
    )


def _slack(causality: Causality, ends: StepEnds) -> Ints:
    """How much later each point may be without delaying any step, ns; `NEVER` at most."""
    dag = causality.dag
    deadlines = np.full(len(dag.time), NEVER)
    deadlines[ends.table["point"]] = ends.table["end"]
    return np.minimum(dag.slack(dag.time, deadlines), NEVER)


def path_shares(pieces: pd.DataFrame) -> pd.DataFrame:
    """The composition of the paths: one row per kind and name: ns_per_step and bytes_per_step (means over the steps;
    NaN where bytes are unknown), steps (number of steps that have it).
    """
    took = pieces.assign(ns=pieces["end"] - pieces["start"])
    steps = took["step"].nunique()
    groups = took.groupby(["kind", "name"], observed=True)
    table = groups.agg(ns_per_step=("ns", "sum"), steps=("step", "nunique")).reset_index()
    read = groups["bytes"].sum(min_count=1).where(groups["bytes"].count() == groups.size())
    table["bytes_per_step"] = read.to_numpy() / max(steps, 1)
    table["name"] = table["name"].astype("str")
    table["ns_per_step"] /= max(steps, 1)
    return table.sort_values("ns_per_step", ascending=False, ignore_index=True)
