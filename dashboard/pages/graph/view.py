"""The state of the graph page, also as its link, and what it shows: a run, and a part of its graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Any, Final

from dashboard.links import Linked
from dashboard.rates import Rates
from dashboard.reading.run import Run
from dashboard.reading.store import RunStore
from dashboard.text import plain
from dashboard.view import POSITION, TEXT, THEME_NAMES, WORD, Position, one_of, switched
from tracer.errors import FormatError
from tracer.model.graph_json import RunGraph

ADDRESS: Final = "graph/"
_NO_GRAPH = (
    "None of these runs has a model graph. Recordings made by intertoken run include it; for imported ones, see the "
    "kernels on the Runs page."
)
_MOST_KERNELS: Final = 150
"""Maximum number of kernels of a graph that is shown as one part."""
_CHUNK: Final = 40


@dataclass(frozen=True)
class GraphView(Linked):
    """The state of the page.

    Attributes:
        run: key of the run; None for the first that has a graph.
        node: name of the selected node.
        part: number of the part shown; None for the selected node's, or the first with branches.
        token: the token to which the timeline links; None for the most typical one.
        theme: one of `THEME_NAMES`.
        rates: rates given on other pages, kept for links to them.
    """

    run: Annotated[str | None, TEXT] = None
    node: Annotated[str | None, TEXT] = None
    part: Annotated[Position | None, POSITION] = None
    token: Annotated[Position | None, POSITION] = None
    theme: Annotated[str, one_of(THEME_NAMES), WORD] = "auto"
    rates: Rates = ()

    def link(self) -> str:
        """The page's address with this view, relative to the dashboard's."""
        return ADDRESS + self.query()


def after(view: GraphView, source: str, value: Any, part: int, scheme: str) -> GraphView:
    """The view after an action of the reader.

    Args:
        view: the view before.
        source: the component.
        value: its new value.
        part: number of the part shown now.
        scheme: "light" or "dark", the page's current theme.
    """
    match source, value:
        case "run", str(key) if key != view.run:
            return replace(view, run=key, part=None, token=None)
        case "node", str() | None if value != view.node:
            return replace(view, node=value, part=part if value is None else None)
        case "canvas", {"name": str(name)}:
            return replace(view, node=name, part=None)
        case "part-back" | "part-on", _:
            return replace(view, node=None, part=max(part + (1 if source == "part-on" else -1), 0))
        case "theme", _:
            return replace(view, theme=switched(view.theme, scheme))
    return view


def find_run(store: RunStore, view: GraphView) -> Run | None:
    """The run of the view; by default the first with a graph."""
    if view.run:
        return store.named(store.key_of(view.run))
    return next((run for run in store.each() if run.graph_file is not None), None)


def problem_of(run: Run | None, view: GraphView) -> str:
    """The reason why there is no graph to show; empty if there is one."""
    if run is None:
        return f"There is no run {plain(view.run, 90)!r}." if view.run else _NO_GRAPH
    try:
        run.executions  # noqa: B018  # what cannot be read says so here
    except FormatError as problem:
        return plain(str(problem))
    return ""


def shown_part(run: Run | None, view: GraphView) -> int:
    """The number of the part to show."""
    if run is None or problem_of(run, view):
        return 0
    parts = parts_of(run.graph)
    if view.part is not None:
        return min(view.part, len(parts) - 1)
    if view.node is not None and view.node in run.graph.index:
        return part_of(parts, run.graph.index[view.node])
    return first_part(run.graph, parts)


def parts_of(graph: RunGraph) -> list[range]:
    """Ranges of node indices: all of a small graph, else one part per outermost region, cut at the forks.

    Nodes before the second region belong to the first. A part without regions is cut into chunks of kernels.
    """
    total = len(graph.nodes)
    if len(graph.launches) < _MOST_KERNELS:
        return [range(total)]
    forks = sorted({region.fork for region in graph.regions if region.level == 0})
    return [
        part for low, high in pairwise([0, *forks[1:], total]) if low < high for part in _chunks(graph, low, high)
    ]  # fmt: skip


def _chunks(graph: RunGraph, low: int, high: int) -> list[range]:
    kernels = [i for i in range(low, high) if graph.nodes[i].stream is not None]
    if len(kernels) < _MOST_KERNELS:
        return [range(low, high)]
    return [range(first, last) for first, last in pairwise([low, *kernels[_CHUNK::_CHUNK], high])]


def part_of(parts: Sequence[range], node: int) -> int:
    """The number of the part that contains a node."""
    return next(number for number, part in enumerate(parts) if node in part)


def first_part(graph: RunGraph, parts: Sequence[range]) -> int:
    """The first part with branches, or else the first one."""
    return part_of(parts, min(region.fork for region in graph.regions)) if graph.regions else 0
