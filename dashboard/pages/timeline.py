"""The timeline of a page: its legend, the buttons that move it, and how the view follows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dash import html

from dashboard.pages import parts
from dashboard.pages.parts import named
from dashboard.palette import COLOURS, HOLE_SWATCHES, NAMES
from dashboard.reading.run import Run
from dashboard.scene import limits_of, range_of, token_of
from dashboard.view import View, span, switched, zoom
from tracer.analysis.idle import PLACES

LEGEND = ("kernel", "graph", "communication", "copy", "memset", "sync", "launch", "host", "api", "other", "nvtx", "gap")
MOVES = {
    "show-gap": ("Gap", "Zoom to the gap"),
    "show-token": ("Token", "Show one token"),
    "show-all": ("Whole run", "Show the whole recording"),
    "zoom-out": ("−", "Zoom out"),
    "zoom-in": ("+", "Zoom in"),
    "pan-left": ("←", "Pan left"),
    "pan-right": ("→", "Pan right"),
}
_ZOOMS = {"zoom-in": (0.5, 0.0), "zoom-out": (2.0, 0.0), "pan-left": (1.0, -0.35), "pan-right": (1.0, 0.35)}
_SHOWS = {"show-gap", "show-token", "show-all"}


@dataclass(frozen=True)
class Action:
    """One action of the reader: the component and its new value."""

    source: str
    value: Any = None


def after(view: View, action: Action, runs: Sequence[Run], scheme: str = "light") -> View:
    """The view after the timeline was moved or the theme switched.

    Args:
        view: the view before.
        action: what happened.
        runs: the runs of `view`.
        scheme: "light" or "dark", the page's current theme.
    """
    match action:
        case Action("token-back" | "token-on" as which):
            step = 1 if which == "token-on" else -1
            return replace(view, token=max(token_of(runs, view) + step, 0))
        case Action("timeline", dict(change)):
            return _dragged(view, change)
        case Action(source) if source in _ZOOMS:
            return replace(view, range=zoom(limits_of(runs, view), *_ZOOMS[source]))
        case Action(source) if source in _SHOWS:
            return replace(view, range=range_of(runs, view, source.removeprefix("show-")))
        case Action("theme"):
            return replace(view, theme=switched(view.theme, scheme))
    return view


def moves(*more: Any) -> html.Div:
    """The buttons of `MOVES`, and more after them."""
    buttons = [parts.button(key, text, hint) for key, (text, hint) in MOVES.items()]
    return html.Div([*buttons, *more], className="moves", role="group", **named("Range of the time axis"))


def legend() -> html.Ul:
    """The legend of the timeline: colours, and the patterns of idle holes."""
    drawn = {NAMES[kind]: COLOURS[kind] for kind in LEGEND}
    drawn |= {f"idle {PLACES[place]}": swatch for place, swatch in HOLE_SWATCHES.items()}
    return parts.legend(drawn)


def _dragged(view: View, change: dict[str, Any]) -> View:
    """Plotly's report after a drag or a double click."""
    if change.get("xaxis.autorange"):
        return replace(view, range=None)
    low, high = change.get("xaxis.range[0]"), change.get("xaxis.range[1]")
    if isinstance(low, int | float) and isinstance(high, int | float):
        return replace(view, range=span(low * 1e9, high * 1e9))
    return view
