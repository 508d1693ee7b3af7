"""The state of the gap page: what all pages share, and the range of the gap axes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

from dashboard.links import Linked, part
from dashboard.view import MOST_RUNS, WORD, View, one_of, switched

ADDRESS: Final = "gap/"
SCALES: Final = {"typical": "typical gaps", "all": "the longest gap"}
"""Range of the axes -> its label."""


@dataclass(frozen=True)
class GapView(Linked):
    """The state of the page.

    Attributes:
        shared: the runs; also token and theme, which links to other pages keep.
        scale: a key of `SCALES`.
    """

    shared: Annotated[View, part(View)]
    scale: Annotated[str, one_of(SCALES), WORD] = "typical"


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
