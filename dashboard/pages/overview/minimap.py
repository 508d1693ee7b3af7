"""The minimap above the timeline: the whole of each recording; `assets/minimap.js` frames the visible range."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd
from dash import Dash, Input, dcc, html
from dash.exceptions import PreventUpdate

from dashboard.figures import Plot, packed
from dashboard.figures.timeline import MARGIN, SIZE_OF_NAMES, left_of, room_of
from dashboard.pages import in_browser
from dashboard.pages.parts import inputs, named, outputs
from dashboard.pages.runs import seen
from dashboard.palette import CLEAR, COLOURS, FONT, THEMES, Theme
from dashboard.reading.store import RunStore
from dashboard.scene import token_of, whole_of
from dashboard.text import apart, markup, width_of
from dashboard.timeline.align import AFTER, BEFORE, CAPTURE, PHASE_NAMES, Busy
from tracer.engines.engine import EAGER, PREFILL

_LANE: Final = 20  # px
_LEAST: Final = 1 / 400  # of the whole: least width of a span, and of a space between two
_COLOURS: Final = {
    CAPTURE: COLOURS["graph"], PHASE_NAMES[PREFILL]: COLOURS["launch"], PHASE_NAMES[EAGER]: COLOURS["host"],
}  # fmt: skip
_PATTERNS: Final = {BEFORE: "/", AFTER: "\\", CAPTURE: "x"}
_CHARACTER: Final = 5.5  # px of a name's
_LONGEST_NAME, _SHORTEST_NAME = 40, 8  # characters of a lane's


def above() -> html.Div:
    """The minimap, and its frame around what the timeline shows."""
    graph = dcc.Graph(
        id="minimap", config={"displayModeBar": False, "showTips": False}, responsive=True, style={"height": "28px"}
    )
    return html.Div(
        [graph, html.Div(id="in-view"), dcc.Store(id="mapped")],
        id="minimap-holder", role="img", style={"display": "none"},
        **named("Minimap of the whole recordings, with the visible range"),
    )  # fmt: skip


def register(app: Dash, store: RunStore) -> None:
    """Register the callbacks that draw it, and that hear where it is pointed at."""
    in_browser(app, "minimap", "pointed", Input("minimap", "selectedData"), Input("minimap", "clickData"))

    @app.callback(
        outputs("minimap.figure minimap.style minimap-holder.style mapped.data"),
        inputs("steady.data arrived.data", states="view.data mapped.data"),
    )
    def draw(screen: dict[str, Any] | None, _: Any, data: dict[str, Any], mapped: list[Any] | None) -> tuple[Any, ...]:
        if screen is None:
            raise PreventUpdate
        (view, runs), theme = seen(store, data), str(screen["scheme"])
        token = token_of(runs, view)
        draws = [theme, screen["width"], token, view.align, *(run.identity for run in runs)]
        if draws == mapped:
            raise PreventUpdate
        lanes = [
            Lane(run.name, run.busy, run.tokens.anchor(token, view.align), run.phases_beside)
            for run in runs
            if run.tokens and run.busy
        ]
        plot = packed(minimap_plot(lanes, whole_of(runs, view), theme, int(screen["width"])))
        shown = {"display": "block" if lanes else "none"}
        return plot, {"height": f"{_LANE * len(lanes) + 8}px"}, shown, draws


@dataclass(frozen=True, eq=False)
class Lane:
    """A run in the minimap.

    Attributes:
        name: not escaped.
        anchor: time 0, ns of its clock.
        phases: its phases outside the steps, from `timeline.align.phases_of`.
    """

    name: str
    busy: Busy
    anchor: int
    phases: pd.DataFrame


def minimap_plot(lanes: Sequence[Lane], whole: tuple[int, int], theme: str, width: int) -> Plot:
    """A lane per run, with the names of its phases outside the steps.

    `whole` is the range of all, ns from time 0, and `width` is in px, with the margins.
    """
    look = THEMES[theme]
    data: list[dict[str, Any]] = []
    words: list[dict[str, Any]] = []
    per_pixel = (whole[1] - whole[0]) / max(width - left_of(width) - MARGIN["r"], 1)
    for base, lane in zip(range(len(lanes) - 1, -1, -1), lanes, strict=True):
        for what, spans in _joined(lane, whole):
            data.append(_marked(what, spans, base, look))
            words += _names(what, spans, base, per_pixel, look)
        data.append(_busy(lane, base))
    axis = {"fixedrange": True, "showgrid": False, "zeroline": False}
    layout = {
        "barmode": "overlay",
        "hovermode": "x",
        "dragmode": "select",
        "selectdirection": "h",
        "margin": {"l": left_of(width), "r": MARGIN["r"], "t": 4, "b": 4, "pad": 0},
        "paper_bgcolor": CLEAR,
        "plot_bgcolor": look.track,
        "font": {"family": FONT, "size": 11, "color": look.muted},
        "hoverlabel": {"bgcolor": look.surface, "font": {"color": look.ink, "size": 11, "family": FONT}},
        "xaxis": {**axis, "range": [whole[0] / 1e9, whole[1] / 1e9], "showticklabels": False},
        "yaxis": {
            **axis,
            "range": [0, max(len(lanes), 1)],
            "tickvals": [len(lanes) - 0.5 - lane for lane in range(len(lanes))],
            "ticktext": _of_lanes(lanes, width),
            "ticklabelstandoff": 8,
        },
        "annotations": words,
        "selections": [],
    }
    return {"data": data, "layout": layout}


def _of_lanes(lanes: Sequence[Lane], width: int) -> list[str]:
    """The names of the lanes, as long as all of them fit, and distinct."""
    names = [lane.name for lane in lanes]
    for limit in range(_LONGEST_NAME, _SHORTEST_NAME, -1):
        cut = apart(names, limit)
        if all(width_of(name, SIZE_OF_NAMES) <= room_of(width) for name in cut):
            return list(map(markup, cut))
    return list(map(markup, apart(names, _SHORTEST_NAME)))


def _bars(name: str, base: int, x: Any, y: Any, width: Any, **more: Any) -> dict[str, Any]:
    return {
        "type": "bar", "name": name, "x": x, "y": y, "base": base, "width": width, "showlegend": False,
        "unselected": {"marker": {"opacity": 1}}, **more,
    }  # fmt: skip


def _busy(lane: Lane, base: int) -> dict[str, Any]:
    busy = lane.busy
    x, y = (busy.middles - lane.anchor) / 1e9, (0.85 * busy.share).astype("float32")
    return _bars(
        markup(lane.name, 40), base, x, y, busy.width / 1e9,
        marker={"color": COLOURS["kernel"], "line": {"width": 0}},
        customdata=np.floor(busy.share * 100 + 0.5).astype(np.int64).tolist(),
        hovertemplate="%{customdata} % busy",
    )  # fmt: skip


def _joined(lane: Lane, whole: tuple[int, int]) -> Iterator[tuple[str, pd.DataFrame]]:
    """The phases of a lane by name: low high (ns from time 0) and count, neighbours merged."""
    least = int((whole[1] - whole[0]) * _LEAST)
    for what, phases in lane.phases.groupby("what", sort=True):
        low, high = (phases[c].to_numpy() - lane.anchor for c in ("start", "end"))
        reach = np.maximum.accumulate(high)
        first = np.concatenate(([True], low[1:] > reach[:-1] + least))
        spans = pd.DataFrame({"low": low, "high": reach, "part": np.cumsum(first)}).groupby("part")
        yield str(what), spans.agg(low=("low", "min"), high=("high", "max"), count=("low", "size"))


def _marked(what: str, spans: pd.DataFrame, base: int, look: Theme) -> dict[str, Any]:
    colour, width = _COLOURS.get(what, look.muted), (spans["high"] - spans["low"]) / 1e9
    x, y = ((spans["low"] + spans["high"]) / 2e9).to_numpy(), np.full(len(spans), 0.95, "float32")
    return _bars(
        what, base, x, y, width.to_numpy(),
        marker={
            "color": f"{colour}40",
            "line": {"width": 1, "color": colour},  # which is seen of the narrowest
            "pattern": {"shape": _PATTERNS.get(what, ""), "size": 5, "solidity": 0.2, "fgcolor": look.muted},
        },
        customdata=spans["count"].tolist(),
        hovertemplate=f"{what}<extra></extra>" if (spans["count"] == 1).all() else f"{what}, %{{customdata}}",
    )  # fmt: skip


def _names(what: str, spans: pd.DataFrame, base: int, per_pixel: float, look: Theme) -> Iterator[dict[str, Any]]:
    """The name of each span that is wide enough to show it, or its part before a colon."""
    for low, high in spans[["low", "high"]].to_numpy():
        room = (high - low) / (_CHARACTER * per_pixel) - 2
        text = what if len(what) < room else what.partition(":")[0]
        if len(text) >= room:
            continue
        yield {
            "name": "phase", "x": (low + high) / 2e9, "y": base + 0.5, "text": text, "showarrow": False,
            "font": {"size": 10, "color": look.ink}, "bgcolor": f"{look.surface}B0", "borderpad": 0,
        }  # fmt: skip
