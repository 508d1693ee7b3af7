"""What the gap page shows, as a value: what all pages share, and how far the axes of the gap reach."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

from pydantic import TypeAdapter

from dashboard.view import MOST_RUNS, View, last_of, one_of, query_of, stored, switched, with_fields

ADDRESS: Final = "gap/"
SCALES: Final = {"typical": "typical gaps", "all": "the longest gap"}
"""How far the axes reach -> what they then hold."""


@dataclass(frozen=True)
class GapView:
    """What is shown.

    Attributes:
        shared: the runs; token and theme, which links to other pages take along.
        scale: a key of `SCALES`.
    """

    shared: View
    scale: Annotated[str, one_of(SCALES)] = "typical"

    def query(self) -> str:
        """The view as the query of a link; what is as by default stays out of it."""
        return with_fields(self.shared.query(), {"scale": self.scale if self.scale != "typical" else None})

    @classmethod
    def parse(cls, search: str | None) -> GapView:
        """The view that a link describes; what is missing or senseless in it takes its default."""
        scale = last_of(query_of(search), "scale")
        return cls(replace(View.parse(search), range=None, align="end"), scale if scale in SCALES else "typical")

    def data(self) -> dict[str, Any]:
        """The view as JSON, for a dcc.Store."""
        return self.shared.data() | {"scale": self.scale}

    @classmethod
    def from_data(cls, data: dict[str, Any] | None) -> GapView:
        """The view that `data` returned, see `stored`."""
        return stored(_READER, data)


_READER: Final = TypeAdapter(GapView)


def after(view: GapView, source: str, value: Any, scheme: str) -> GapView:
    """The view after something that the reader did.

    Args:
        view: as it was.
        source: the component.
        value: its new value.
        scheme: "light" or "dark", what the page looks like now.
    """
    match source, value:
        case "chosen", list(keys):
            runs = tuple(dict.fromkeys(key for key in keys if isinstance(key, str)))[:MOST_RUNS]
            return replace(view, shared=replace(view.shared, runs=runs))
        case "scale", str(scale) if scale in SCALES:
            return replace(view, scale=scale)
        case "theme", _:
            return replace(view, shared=replace(view.shared, theme=switched(view.shared.theme, scheme)))
    return view
