"""What the graph page shows, as a value: the page's whole state and, as a query string, its link."""

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
    """What is shown.

    Attributes:
        run: key of the run; None for the first that has a graph.
        node: name of the selected node.
        part: number of the part shown; None for that of the node, or the first with branches.
        token: the token to which the timeline links; None for the most typical one.
        theme: one of `THEME_NAMES`.
        rates: those given on other pages, which get them again.
    """

    run: str | None = None
    node: str | None = None
    part: Position | None = None
    token: Position | None = None
    theme: Annotated[str, one_of(THEME_NAMES)] = "auto"
    rates: Rates = ()

    def query(self) -> str:
        """The view as the query of a link; what is as by default stays out of it."""
        own = asdict(replace(self, rates=()))
        pairs = [(k, v) for k, v in own.items() if v not in (None, ()) and (k, v) != ("theme", "auto")]
        pairs += pairs_of(self.rates)
        return "?" + urlencode(pairs) if pairs else ""

    def link(self) -> str:
        """The address of the page that shows this, below that of the dashboard."""
        return ADDRESS + self.query()

    @classmethod
    def parse(cls, search: str | None) -> GraphView:
        """The view that a link describes; what is missing or senseless in it takes its default."""
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
        """The view that `data` returned, see `stored`."""
        return stored(_READER, data)


_READER: Final = TypeAdapter(GraphView)


def after(view: GraphView, source: str, value: Any, part: int, scheme: str) -> GraphView:
    """The view after something that the reader did.

    Args:
        view: as it was.
        source: the component.
        value: its new value.
        part: number of the part shown now.
        scheme: "light" or "dark", what the page looks like now.
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
