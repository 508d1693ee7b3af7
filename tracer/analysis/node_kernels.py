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
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.step_work import steps_of_frame
from tracer.analysis.steps import Steps
from tracer.analysis.tokens import ALL_STEPS, choose_steps, find_steps
from tracer.errors import TraceError
from tracer.model.calls import GRAPH_LAUNCH, letters_of
from tracer.model.columns import match_rows
from tracer.model.schema import MISSING
from tracer.model.trace import LIGHT, Trace, pauses

MOST_ROWS: Final = 1 << 20
"""Maximum kernels and copies to place; graphs after them are unchanged."""

_INSIDE: Final = ("kernels", "memcpys", "memsets")
_STREAM: Final = ["process", "device", "stream"]
_LIGHT_KEY: Final = ["process", "context", "stream", "correlation"]


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
    rows: pd.DataFrame

    def kernels(self) -> pd.DataFrame:
        """The placed kernels by name (the index), per step: calls and us, the longest first.

        A kernel that starts before the previous one on its stream ends (programmatic dependent launch) waits for that
        end; its time is what follows it.
        """
        kernels = self.rows.sort_values(["start", "end"], kind="stable")
        ended = kernels.groupby(_STREAM, sort=False)["end"].cummax()
        before = ended.groupby([kernels[c] for c in _STREAM], sort=False).shift(fill_value=np.iinfo(np.int64).min)
        own = (kernels["end"] - np.maximum(kernels["start"], before)).clip(lower=0)
        length = (own / 1e3).groupby(kernels["short_name"].astype(str))
        found = pd.DataFrame({"calls": length.size(), "us": length.sum()}) / max(self.steps, 1)
        return found.sort_values("us", ascending=False, kind="stable")

    @property
    def note(self) -> str:
        """How the times were determined."""
        copies = f", and {self.copies} copies have the durations of the node pass" if self.copies else ""
        return (
            f"the kernels inside CUDA graphs are those of the node pass, in {self.placed} of {self.graphs} graphs of "
            f"the light pass, placed in proportion between start and end of each (times {self.factor:.3f}){copies}; "
            "gap, idle time and rates are those of the light pass alone"
        )


def place_kernels(light: Trace, steps: Steps, node: Trace) -> PlacedKernels | None:
    """Place the node pass in the steps of the light pass; None if nothing matches, or `light` is not a light recording.

    Args:
        light: the light recording.
        steps: its token steps.
        node: the node pass of the same command.
    """
    if light.metadata.get("source") != LIGHT or not len(steps):
        return None
    try:
        others = choose_steps(node, None, ALL_STEPS) if pauses(light) else find_steps(node)
    except TraceError:
        return None
    graphs, replays, inside = _graphs_of(light, steps), *_replays_of(node, others)
    pairs = _paired(graphs, replays, ["device", "of", "place", "count"])
    size = inside.groupby("replay").size().reindex(pairs["replay"], fill_value=0).to_numpy()
    pairs = pairs[np.cumsum(size) <= MOST_ROWS]
    copies = _placed_copies(light, steps, node, others)
    if not len(pairs) and not len(copies):
        return None
    tables = dict(light.tables)
    base = 1 + int(max([0, *(int(t["stream"].max()) for t in light.tables.values() if "stream" in t and len(t))]))
    placed = {name: _placed(pairs, inside[inside["table"] == name], node[name], base) for name in _INSIDE}
    for name, rows in placed.items():
        tables[name] = pd.concat([tables[name], rows], ignore_index=True) if len(tables[name]) else rows
    graph_launches = light["graph_launches"]
    tables["graph_launches"] = graph_launches[~graph_launches.index.isin(pairs["row"])]
    if len(copies):
        tables["memcpys"] = tables["memcpys"].copy()
        tables["memcpys"].loc[copies["row"], ["start", "end"]] = copies[["start", "end"]].to_numpy()
    factor = (pairs["end"] - pairs["start"]) / (pairs["until"] - pairs["since"]).clip(lower=1)
    shown = Trace(tables, dict(light.metadata), list(light.notes))
    median = float(factor.median()) if len(pairs) else 1.0
    return PlacedKernels(shown, len(graphs), len(pairs), pairs["at"].nunique(), median, len(copies), placed["kernels"])


def _numbered(rows: pd.DataFrame, trace: Trace, steps: Steps, kinds: list[str]) -> pd.DataFrame:
    """Number the rows of the steps: of (number of the step in its group), place (in the step, among rows of equal
    `kinds`) and count (of these)."""
    at = steps_of_frame(trace, steps, rows)
    found = rows[at >= 0].assign(at=at[at >= 0]).sort_values(["at", "start"], kind="stable")
    found["of"] = steps.table.groupby("group").cumcount().to_numpy()[found["at"]]
    same = found.groupby([*kinds, "at"], sort=False, observed=True)
    return found.assign(place=same.cumcount(), count=same["start"].transform("size"))


def _graphs_of(light: Trace, steps: Steps) -> pd.DataFrame:
    """The stamped graphs of the steps, numbered; row is their position in `graph_launches`."""
    graphs = light["graph_launches"]
    graphs = graphs.assign(row=np.arange(len(graphs)))[graphs["graph"].to_numpy() != MISSING]
    return _numbered(graphs, light, steps, ["device"])


def _replays_of(node: Trace, steps: Steps) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The replays of graphs in the steps of the node pass, numbered: replay, device, since, until; and the activities
    inside them: table, row (position in it), replay."""
    columns = ["start", "end", "device", "context", "stream", "process", "correlation"]
    parts = [node[name][columns].assign(table=name, row=np.arange(len(node[name]))) for name in _INSIDE]
    inside = pd.concat([rows[_of_graphs(node, rows)] for rows in parts], ignore_index=True)
    inside["replay"] = inside.groupby(["process", "correlation", "device"], sort=False).ngroup()
    replays = inside.groupby("replay").agg(
        start=("start", "min"), until=("end", "max"), **{name: (name, "first") for name in columns[2:]}
    )
    replays = replays.reset_index().assign(since=lambda table: table["start"])
    return _numbered(replays, node, steps, ["device"]), inside


def _of_graphs(node: Trace, rows: pd.DataFrame) -> NDArray[np.bool_]:
    """Which of these activities a graph launch caused."""
    api = node["api"]
    return np.asarray(match_rows(api[letters_of(api["name"]) == GRAPH_LAUNCH], rows) >= 0)


def _paired(rows: pd.DataFrame, others: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Pair rows of the light pass with those of the node pass in the step of the same number (the last one, if it has
    fewer), by start; only if both steps have the same number of that kind. Columns of the node pass end in "_node"
    where both have them."""
    if not len(rows) or not len(others):
        return rows.iloc[:0].merge(others.iloc[:0], on=keys, suffixes=("", "_node"))
    clipped = rows.assign(of=rows["of"].clip(upper=int(others["of"].max())))
    found = clipped.merge(others.drop_duplicates(keys), on=keys, suffixes=("", "_node"))
    return found.sort_values("start", kind="stable", ignore_index=True)


def _placed(pairs: pd.DataFrame, inside: pd.DataFrame, table: pd.DataFrame, base: int) -> pd.DataFrame:
    """The rows of a table of the node pass, once for each graph of the light pass in which they are placed.

    Args:
        pairs: graphs and replays.
        inside: the rows inside replays; row is the position in `table`.
        table: of the node pass.
        base: added to the numbers of streams other than a replay's first.
    """
    first = inside.sort_values("start", kind="stable").groupby("replay")["stream"].first().rename("main")
    each = pairs.merge(inside[["replay", "row"]], on="replay", suffixes=("", "_inside")).merge(first, on="replay")
    rows = table.iloc[each["row_inside"]].reset_index(drop=True)
    factor = (each["end"] - each["start"]) / (each["until"] - each["since"]).clip(lower=1)
    times = {
        side: each["start"] + np.rint((rows[side] - each["since"]) * factor).astype(np.int64)
        for side in ("start", "end")
    }
    stream = np.where(rows["stream"] == each["main"], each["stream"], base + rows["stream"])
    given = {name: each[name].to_numpy() for name in _LIGHT_KEY} | {"stream": stream}
    if "graph" in rows:
        given["graph"] = each["graph"].to_numpy()
    return rows.assign(**times, **given)


def _placed_copies(light: Trace, steps: Steps, node: Trace, others: Steps) -> pd.DataFrame:
    """Start and end of the copies outside of graphs whose counterparts the node pass recorded; row is their position in
    `memcpys` of the light pass.

    The start in the light pass is the earliest possible one. Copies follow each other on their stream, and end before
    the next graph or run there begins.
    """
    mine, theirs = (trace["memcpys"].assign(row=np.arange(len(trace["memcpys"]))) for trace in (light, node))
    theirs = theirs[~_of_graphs(node, theirs)]
    theirs = theirs.assign(delay=_delays(node, theirs), length=theirs["end"] - theirs["start"])
    kinds = ["device", "kind"]
    mine, theirs = (copies.assign(kind=copies["kind"].astype(str)) for copies in (mine, theirs))
    pair = _numbered(mine, light, steps, kinds), _numbered(theirs, node, others, kinds)
    found = _paired(*pair, [*kinds, "of", "place", "count"])
    if not len(found):
        return pd.DataFrame({name: np.zeros(0, np.int64) for name in ("row", "start", "end")})
    earliest, length = found["start"], found["length"]
    streams = found.groupby(_STREAM, sort=False).ngroup()
    before = length.groupby(streams).cumsum() - length
    free = before + length + (earliest + found["delay"] - before).groupby(streams).cummax()
    work = light["graph_launches"][[*_STREAM, "start"]].rename(columns={"start": "next"}).sort_values("next")
    later = pd.merge_asof(found, work, left_on="start", right_on="next", by=_STREAM, direction="forward")["next"]
    end = np.minimum(free, later.fillna(np.inf)).astype(np.int64)
    start = np.maximum(earliest, end - length)
    return pd.DataFrame({"row": found["row"], "start": start, "end": np.maximum(start, end)})


def _delays(node: Trace, copies: pd.DataFrame) -> NDArray[np.int64]:
    """How long after its call, and after the preceding work on its stream, each copy of the node pass starts, ns."""
    works = node.activities().frame().sort_values("start", kind="stable")
    behind = works.groupby(_STREAM, sort=False)["end"].cummax().groupby([works[c] for c in _STREAM]).shift()
    key = [*_STREAM, "correlation", "start"]
    ends = works[key].assign(behind=behind.fillna(0)).drop_duplicates(key)
    before = copies[key].merge(ends, on=key, how="left")["behind"].to_numpy()
    call = match_rows(node["api"], copies)
    called = np.append(node["api"]["start"].to_numpy(), 0)[call]
    return np.asarray(np.maximum(copies["start"].to_numpy() - np.maximum(before, called), 0), np.int64)
