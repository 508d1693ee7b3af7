"""The state of the graph page and, as a query string, its link."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

from dashboard.links import Linked
from dashboard.rates import Rates
from dashboard.view import POSITION, TEXT, THEME_NAMES, WORD, Position, one_of, switched

ADDRESS: Final = "graph/"


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
