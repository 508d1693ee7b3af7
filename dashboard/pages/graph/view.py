"""The state of the graph page and, as a query string, its link."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Final
from urllib.parse import urlencode

from pydantic import TypeAdapter

from dashboard.rates import Rates, pairs_of, parsed
from dashboard.view import THEME_NAMES, Position, integer_of, last_of, one_of, query_of, stored, switched

ADDRESS: Final = "graph/"


@dataclass(frozen=True)
class GraphView:
    """The state of the page.

    Attributes:
        run: key of the run; None for the first that has a graph.
        node: name of the selected node.
        part: number of the part shown; None for the selected node's, or the first with branches.
        token: the token to which the timeline links; None for the most typical one.
        theme: one of `THEME_NAMES`.
        rates: rates given on other pages, kept for links to them.
    """

    run: str | None = None
    node: str | None = None
    part: Position | None = None
    token: Position | None = None
    theme: Annotated[str, one_of(THEME_NAMES)] = "auto"
    rates: Rates = ()

    def query(self) -> str:
        """The view as the query of a link; defaults are left out."""
        own = asdict(replace(self, rates=()))
        pairs = [(k, v) for k, v in own.items() if v not in (None, ()) and (k, v) != ("theme", "auto")]
        pairs += pairs_of(self.rates)
        return "?" + urlencode(pairs) if pairs else ""

    def link(self) -> str:
        """The page's address with this view, relative to the dashboard's."""
        return ADDRESS + self.query()

    @classmethod
    def parse(cls, search: str | None) -> GraphView:
        """The view of a link; missing or invalid values take their defaults."""
        query = query_of(search)
        theme = last_of(query, "theme")
        return cls(
            run=last_of(query, "run") or None,
            node=last_of(query, "node") or None,
            part=integer_of(last_of(query, "part"), low=0),
            token=integer_of(last_of(query, "token"), low=0),
            theme=theme if theme in THEME_NAMES else "auto",
            rates=parsed(query.get("rate", [])),
        )

    def data(self) -> dict[str, Any]:
        """The view as JSON, for a dcc.Store."""
        return asdict(self)

    @classmethod
    def from_data(cls, data: dict[str, Any] | None) -> GraphView:
        """The view from data that `stored` returned."""
        return stored(_READER, data)


_READER: Final = TypeAdapter(GraphView)


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
