"""The state of the gap page: what all pages share, and the range of the gap axes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

from pydantic import TypeAdapter

from dashboard.view import MOST_RUNS, View, last_of, one_of, query_of, stored, switched, with_fields

ADDRESS: Final = "gap/"
SCALES: Final = {"typical": "typical gaps", "all": "the longest gap"}
"""Range of the axes -> its label."""


@dataclass(frozen=True)
class GapView:
    """The state of the page.

    Attributes:
        shared: the runs; also token and theme, which links to other pages keep.
        scale: a key of `SCALES`.
    """

    shared: View
    scale: Annotated[str, one_of(SCALES)] = "typical"

    def query(self) -> str:
        """The view as the query of a link; defaults are left out."""
        return with_fields(self.shared.query(), {"scale": self.scale if self.scale != "typical" else None})

    @classmethod
    def parse(cls, search: str | None) -> GapView:
        """The view of a link; missing or invalid values take their defaults."""
        scale = last_of(query_of(search), "scale")
        return cls(replace(View.parse(search), range=None, align="end"), scale if scale in SCALES else "typical")

    def data(self) -> dict[str, Any]:
        """The view as JSON, for a dcc.Store."""
        return self.shared.data() | {"scale": self.scale}

    @classmethod
    def from_data(cls, data: dict[str, Any] | None) -> GapView:
        """The view from data that `stored` returned."""
        return stored(_READER, data)


_READER: Final = TypeAdapter(GapView)


def after(view: GapView, source: str, value: Any, scheme: str) -> GapView:
    """The view after an action of the reader.

    Args:
        view: the view before.
        source: the component.
        value: its new value.
        scheme: "light" or "dark", the page's current theme.
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
