"""Places the kernels and copies of the node pass in the steps of the light pass, to show them without tracing overhead.

A light recording knows when each CUDA graph starts and ends, but not what runs inside; a copy has only an earliest
start. The node pass knows both, at times that CUPTI lengthens. A graph of the light pass gets the kernels and copies
that the node pass recorded in the same graph of the same step: the first starts where the graph starts, the last ends
where it ends, and the times between are scaled in proportion. A copy outside of graphs gets its duration and its
delay after the preceding work.

The times of individual kernels are therefore estimates. Figures (gap, idle time, rates) are those of the light
recording, which the edges of its graphs keep unchanged; idle time between kernels is not shown, since CUPTI causes most
of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from tracer.analysis.step_work import activity_steps
from tracer.analysis.steps import Steps
from tracer.analysis.tokens import ALL_STEPS, choose_steps, find_steps
from tracer.errors import TraceError
from tracer.model.calls import GRAPH_LAUNCH
from tracer.model.columns import (
    NEVER,
    Caused,
    Columns,
    Texts,
    ended_before,
    first_at,
    firsts,
    grouped,
    numbers,
    pairs,
    positions,
    spread,
    within,
)
from tracer.model.intervals import Bools, Floats, Ints
from tracer.model.schema import MISSING
from tracer.model.tables import GraphLaunches, Kernels, OnStream
from tracer.model.trace import LIGHT, Trace, pauses

if TYPE_CHECKING:
    import pandas as pd

MOST_ROWS: Final = 1 << 20
"""Maximum kernels and copies to place; graphs after them are unchanged."""

_INSIDE: Final = ("kernels", "memcpys", "memsets")


class KernelTimes(Columns):
    """Kernels by name, per step, the longest first: their number, and their time."""

    name: Texts
    calls: Floats
    us: Floats


@dataclass(frozen=True, eq=False)
class PlacedKernels:
    """A light recording with the kernels and copies of the node pass.

    Attributes:
        trace: the light recording in which kernels and copies take the place of the graphs that contain them.
        graphs: the number of graphs in the steps of the light recording; `placed` how many of them, in how many
            `steps`, are replaced.
        factor: duration of a graph in the light pass / in the node pass, median.
        copies: the number of copies that got a duration.
        rows: the placed kernels; those that the light recording has itself, of eager launches, are not among them.
    """

    trace: Trace
    graphs: int
    placed: int
    steps: int
    factor: float
    copies: int
    rows: Kernels

    def kernels(self) -> KernelTimes:
        """The placed kernels.

        A kernel that starts before the previous one on its stream ends (programmatic dependent launch) waits for that
        end; its time is what follows it.
        """
        rows = self.rows[np.lexsort((self.rows.end, self.rows.start))]
        before = ended_before(rows.end, rows.process, rows.device, rows.stream)
        own = np.maximum(rows.end - np.maximum(rows.start, before), 0)
        names, number = np.unique(rows.short_name.texts.astype(str), return_inverse=True)
        ns = np.bincount(number, weights=own, minlength=len(names))
        steps = max(self.steps, 1)
        times = KernelTimes(
            names.astype(object), np.bincount(number, minlength=len(names)) / steps, ns / 1e3 / steps
        )  # fmt: skip
        return times[np.argsort(-ns, kind="stable")]

    @property
    def note(self) -> str:
        """How the times were determined."""
        copies = f", and {self.copies} copies have the durations of the node pass" if self.copies else ""
        return (
            f"the kernels inside CUDA graphs are those of the node pass, in {self.placed} of {self.graphs} graphs of "
            f"the light pass\nthey are placed in proportion between start and end of each (times {self.factor:.3f})"
            f"{copies}; gap, idle time and rates are those of the light pass alone"
        )


class _Numbered(Columns):
    """Rows of the steps, by step and start.

    Attributes:
        row: in their table.
        at: the position of their step.
        of: the number of that step in its group.
        place: in the step, among rows of the same kind.
        count: of these.
    """

    row: Ints
    at: Ints
    of: Ints
    place: Ints
    count: Ints


class _Inside(Columns):
    """The activities inside replays of graphs, of one table: their row in it, stream, start (ns), and the replay."""

    row: Ints
    stream: Ints
    start: Ints
    replay: Ints


class _Replays(GraphLaunches):
    """The replays of graphs in a node pass, from their first activity to their last; `graph` is the number of each."""

    @cached_property
    def ns(self) -> Ints:
        """How long each takes, at least 1."""
        return np.maximum(self.end - self.start, 1)


class _Pairs(Columns):
    """Graphs of the light pass, by start: their row, the position of their step, and their replay in the node pass."""

    row: Ints
    at: Ints
    replay: Ints


class _Copies(Columns):
    """Copies of the light pass: their row, and their start and end, ns."""

    row: Ints
    start: Ints
    end: Ints


def place_kernels(light: Trace, steps: Steps, node: Trace) -> PlacedKernels | None:
    """Place the node pass in the steps of the light pass; None if nothing matches, `light` is not a light recording, or
    there are several engines.

    Args:
        node: the node pass of the same command.
    """
    if light.metadata.get("source") != LIGHT or not len(steps):
        return None
    try:
        others = choose_steps(node, None, ALL_STEPS) if pauses(light) else find_steps(node)
    except TraceError:
        return None
    if steps.owners or steps.beside is not None or others.owners:
        return None  # which engine of the one is which of the other is not known
    graphs, (replays, inside) = light.graph_launches, _replays_of(node)
    stamped = _numbered(light, steps, graphs, graphs.device, chosen=graphs.graph != MISSING)
    mine, theirs = _paired(
        graphs.start, stamped, [graphs.device], _numbered(node, others, replays, replays.device), [replays.device]
    )
    matched = _Pairs(stamped.row[mine], stamped.at[mine], theirs)
    sizes = sum((np.bincount(each.replay, minlength=len(replays)) for each in inside.values()), np.zeros(1, np.int64))
    matched = matched[np.cumsum(sizes[matched.replay]) <= MOST_ROWS] if len(matched) else matched
    copies = _placed_copies(light, steps, node, others)
    if not len(matched) and not len(copies):
        return None
    tables = dict(light.tables)
    base = 1 + int(max([0, *(int(t["stream"].max()) for t in light.tables.values() if "stream" in t and len(t))]))
    placed = {name: _placed(graphs, matched, replays, inside[name], node[name], base) for name in _INSIDE}
    for name, rows in placed.items():
        tables[name] = _joined(tables[name], rows)
    stays = np.ones(len(graphs), bool)
    stays[matched.row] = False
    tables["graph_launches"] = light["graph_launches"][stays]
    if len(copies):
        start, end = light.memcpys.start.copy(), light.memcpys.end.copy()
        start[copies.row], end[copies.row] = copies.start, copies.end
        tables["memcpys"] = _with_times(tables["memcpys"], start=start, end=end)
    factor = (graphs.end - graphs.start)[matched.row] / replays.ns[matched.replay]
    return PlacedKernels(
        trace=Trace(tables, dict(light.metadata), list(light.notes)),
        graphs=len(stamped),
        placed=len(matched),
        steps=len(np.unique(matched.at)),
        factor=float(np.median(factor)) if len(matched) else 1.0,
        copies=len(copies),
        rows=Trace({"kernels": placed["kernels"]}).kernels,
    )


def _joined(own: pd.DataFrame, placed: pd.DataFrame) -> pd.DataFrame:
    """The rows of a table and those that are placed."""
    import pandas as pd

    return pd.concat([own, placed], ignore_index=True) if len(own) else placed


def _with_times(table: pd.DataFrame, **times: Ints) -> pd.DataFrame:
    """A table whose first rows have other times."""
    return table.assign(**{name: np.append(each, table[name].to_numpy()[len(each) :]) for name, each in times.items()})


def _numbered(trace: Trace, steps: Steps, rows: OnStream, *kinds: Ints, chosen: Bools | None = None) -> _Numbered:
    """Number the rows of the steps, or the chosen ones of them."""
    row = np.arange(len(rows)) if chosen is None else np.flatnonzero(chosen)
    at = activity_steps(trace, steps, rows[row])
    order = np.lexsort((rows.start[row], at))
    order = order[at[order] >= 0]
    row, at = row[order], at[order]
    kind = [each[row] for each in kinds]
    number, count = numbers(*kind, at)
    return _Numbered(
        row, at, steps.rows.ordinal[at], within(*kind, at), np.bincount(number, minlength=count)[number]
    )  # fmt: skip


def _replays_of(node: Trace) -> tuple[_Replays, dict[str, _Inside]]:
    """The replays of graphs in the node pass, by their number; and the activities inside them, by table."""
    parts: list[OnStream] = [node.kernels, node.memcpys, node.memsets]
    rows = [np.flatnonzero(_of_graphs(node, part)) for part in parts]
    start, end, device, context, stream, process, correlation = (
        np.concatenate([getattr(part, name)[mine] for part, mine in zip(parts, rows, strict=True)])
        for name in ("start", "end", "device", "context", "stream", "process", "correlation")
    )
    number, count = numbers(process, correlation, device)
    first = firsts(number, count)
    since, until = np.full(count, NEVER), np.full(count, -NEVER)
    np.minimum.at(since, number, start)
    np.maximum.at(until, number, end)
    replays = _Replays(
        since, until, device[first], context[first], stream[first], correlation[first], process[first],
        np.arange(count), np.full(count, MISSING),
    )  # fmt: skip
    edges = np.cumsum([0, *map(len, rows)]).tolist()
    inside = {
        name: _Inside(mine, stream[low:high], start[low:high], number[low:high])
        for name, mine, low, high in zip(_INSIDE, rows, edges[:-1], edges[1:], strict=True)
    }
    return replays, inside


def _of_graphs(node: Trace, rows: Caused) -> Bools:
    """Which of these activities a graph launch caused."""
    return node.api[node.api.letter == GRAPH_LAUNCH].of(rows) >= 0


def _paired(
    starts: Ints, mine: _Numbered, kinds: list[Ints], theirs: _Numbered, others: list[Ints]
) -> tuple[Ints, Ints]:
    """Pair rows of the light pass with those of the node pass in the step of the same number (the last one, if it has
    fewer), by start; only if both steps have the same number of that kind.

    Args:
        starts: of the table of the light pass.
        mine, theirs: numbered rows of either pass.
        kinds, others: what tells the kinds apart, of the tables.

    Returns:
        For each pair, a position in `mine`, and a row of the table of the node pass.
    """
    if not len(mine) or not len(theirs):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    of = np.minimum(mine.of, theirs.of.max())
    its = theirs[::-1]  # of several the first one counts
    keys = [*(each[its.row] for each in others), its.of, its.place, its.count]
    partner = positions([*(each[mine.row] for each in kinds), of, mine.place, mine.count], keys)
    paired = np.flatnonzero(partner >= 0)
    paired = paired[np.argsort(starts[mine.row[paired]], kind="stable")]
    return paired, its.row[partner[paired]]


def _placed(
    graphs: GraphLaunches, paired: _Pairs, replays: _Replays, inside: _Inside, table: pd.DataFrame, base: int
) -> pd.DataFrame:
    """The rows of a table of the node pass, once for each graph of the light pass in which they are placed.

    Args:
        graphs: of the light pass.
        paired: graphs and their replays.
        replays: of the node pass.
        inside: the rows inside replays.
        base: added to the numbers of streams other than a replay's first.
    """
    main = np.full(len(replays), MISSING)
    by_start = np.argsort(inside.start, kind="stable")[::-1]
    main[inside.replay[by_start]] = inside.stream[by_start]  # the last assignment, of the first one, stays
    pair, activity = pairs([paired.replay], [inside.replay])
    replay, rows = paired.replay[pair], table.iloc[inside.row[activity]].reset_index(drop=True)
    mine = graphs[paired.row[pair]]
    factor = (mine.end - mine.start) / replays.ns[replay]
    start, end = (
        mine.start + np.rint((rows[side].to_numpy() - replays.start[replay]) * factor).astype(np.int64)
        for side in ("start", "end")
    )
    stream = inside.stream[activity]
    stream = np.where(stream == main[replay], mine.stream, base + stream)
    of_graph = {"graph": mine.graph} if "graph" in rows else {}
    return rows.assign(
        start=start, end=end, process=mine.process, context=mine.context, stream=stream,
        correlation=mine.correlation, **of_graph,
    )  # fmt: skip


def _placed_copies(light: Trace, steps: Steps, node: Trace, others: Steps) -> _Copies:
    """The copies outside of graphs whose counterparts the node pass recorded.

    The start in the light pass is the earliest possible one. Copies follow each other on their stream, and end before
    the next graph or run there begins.
    """
    mine, theirs = light.memcpys, node.memcpys
    alone = _numbered(node, others, theirs, theirs.device, theirs.kind.codes, chosen=~_of_graphs(node, theirs))
    numbered = _numbered(light, steps, mine, mine.device, mine.kind.codes)
    kinds = [mine.device, mine.kind.codes], [theirs.device, theirs.kind.codes]
    pair, row = _paired(mine.start, numbered, kinds[0], alone, kinds[1])
    copies = mine[numbered.row[pair]]
    earliest, length, delay = copies.start, (theirs.end - theirs.start)[row], _delays(node)[row]
    free = np.zeros(len(copies), np.int64)
    for _, own in grouped(copies.process, copies.device, copies.stream):
        before = np.cumsum(length[own]) - length[own]
        free[own] = before + length[own] + np.maximum.accumulate(earliest[own] + delay[own] - before)
    work = light.graph_launches
    later = first_at(
        [copies.process, copies.device, copies.stream], earliest, [work.process, work.device, work.stream], work.start
    )
    end = np.minimum(free, spread(work.start, later, NEVER))
    start = np.maximum(earliest, end - length)
    return _Copies(numbered.row[pair], start, np.maximum(start, end))


def _delays(node: Trace) -> Ints:
    """How long after its call, and after the preceding work on its stream, each copy of the node pass starts, ns."""
    copies, works = node.memcpys, node.activities()
    before = ended_before(works.end, works.process, works.device, works.stream)
    before = np.where(before == -NEVER, 0, before)[::-1]  # of equal works the first one counts
    keys = [[rows.process, rows.device, rows.stream, rows.correlation, rows.start] for rows in (copies, works[::-1])]
    behind = before[positions(*keys)] if len(copies) else copies.start
    called = spread(node.api.start, node.api.of(copies), 0)
    return np.maximum(copies.start - np.maximum(behind, called), 0)
