"""The scene: selected runs and a view, turned into the drawings of a timeline.

The other files hold what a view chooses in it (an event, a destination, an area) and what is fetched around it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, count
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from dashboard.figures import overlay
from dashboard.figures.payload import Plot
from dashboard.figures.shades import DIFFERENCES, LABELLED, with_differences
from dashboard.figures.timeline import (
    BETWEEN,
    MARGIN,
    Drawing,
    height_of,
    left_of,
    timeline_figure,
    timeline_plot,
)
from dashboard.palette import THEMES
from dashboard.reading.run import Run
from dashboard.scene.ahead import around
from dashboard.scene.choice import arrows_of, chosen_in, outline, panels_of
from dashboard.timeline import align, holes
from dashboard.timeline.layout import Panel, places_of
from dashboard.timeline.marks import Window, connectors, detail_of, joined, marks_of
from dashboard.timeline.pyramid import Detail
from dashboard.units import duration
from dashboard.view import Spot, View, span
from tracer.analysis.causes import CAUSES

_HEAVIEST = 2400  # marks in one figure, see `_weight`: what a browser redraws without a stutter, and under 300 KB
_FEWEST_BINS = 16
_MOST_GAPS = 150
_APART = 44  # px from one token's number to the next, at least
_BESIDE = 0.01  # of the whole, on either side


def limits_of(runs: Sequence[Run], view: View) -> tuple[int, int]:
    """The range of the time axis, ns from time 0."""
    return view.range or align.default_range(_tokens(runs), view.align)


def token_of(runs: Sequence[Run], view: View) -> int:
    """The token at which the runs are aligned."""
    tokens = _tokens(runs)
    most = max((len(t) for t in tokens), default=1) - 1
    return align.typical_token(tokens) if view.token is None else min(view.token, most)


def _tokens(runs: Sequence[Run]) -> list[align.Tokens]:
    return [run.tokens for run in runs if run.tokens is not None]


def timeline(runs: Sequence[Run], view: View, theme: str, width: int) -> tuple[go.Figure, int]:
    """The timeline figure of these runs in this view, `width` px wide with its margins, and its height, px."""
    plot, height = timeline_of(runs, view, theme, width, brief=False)
    return timeline_figure(plot), height


def timeline_of(runs: Sequence[Run], view: View, theme: str, width: int, brief: bool = True) -> tuple[Plot, int]:
    """The timeline figure without Plotly's validation, which takes longer than everything else.

    `brief`: whether its hovers have only names and durations, as on a page that shows the rest when the pointer rests.
    """
    within = min(max(width - left_of(width) - MARGIN["r"], 300), 4000)
    drawings = draw(runs, view, within, brief)
    origin = f"{view.align} of token {token_of(runs, view)}’s compute"
    limits = limits_of(runs, view)
    plot = timeline_plot(drawings, limits, origin, theme, within, bool(view.find), view.ruler)
    look = THEMES[theme]
    plot["layout"]["shapes"] += overlay.area(*_area_of(runs, view), look)
    usual = align.default_range(_tokens(runs), view.align)  # the browser's range for a view without one
    plot["layout"]["meta"] = {"usual": [time / 1e9 for time in usual], "part": part_of(runs, view, theme)}
    return with_differences(plot, _differences(runs, view, drawings), limits, within, look), height_of(drawings)


def around_of(runs: Sequence[Run], view: View, theme: str) -> dict[str, Any]:
    """The surroundings of the view from `ahead.around`, and `for`, the range (s) and part of the view that they belong
    to."""
    limits, token = limits_of(runs, view), token_of(runs, view)
    shown = [
        (run.holes, panel, run.tokens.anchor(token, view.align))
        for run, panel in zip(runs, panels_of(runs, view), strict=True)
        if run.tokens is not None
    ]
    found = around(shown, limits, whole_of(runs, view), theme)
    return found | {"for": [time / 1e9 for time in limits], "part": part_of(runs, view, theme)}


def whole_of(runs: Sequence[Run], view: View) -> tuple[int, int]:
    """The range of the recordings, ns from time 0."""
    token = token_of(runs, view)
    ends = [
        (run.whole[0] - anchor, run.whole[1] - anchor)
        for run in runs
        if run.tokens is not None
        for anchor in [run.tokens.anchor(token, view.align)]
    ]
    return min((low for low, _ in ends), default=0), max((high for _, high in ends), default=1_000_000)


def part_of(runs: Sequence[Run], view: View, theme: str) -> str:
    """Identifies the layout: two drawings have different keys if their rows or their time 0 are at different
    positions."""
    placed = [(run.key, run.rate) for run in runs], token_of(runs, view), view.align, view.rows, theme
    return hashlib.sha256(repr(placed).encode("utf-8", "replace")).hexdigest()[:16]


def _area_of(runs: Sequence[Run], view: View) -> tuple[tuple[int, int] | None, list[tuple[int, int]]]:
    """The area's range in time, and of its rows in px."""
    if view.area is None:
        return None, []
    places = [
        (placed.top, placed.bottom)
        for run, panel in zip(runs, panels_of(runs, view), strict=True)
        for placed, (_, unit, _) in ((p, places_of(run.rows)[p.line.index]) for p in panel.rows)
        if not view.area.rows or unit in view.area.rows
    ]
    return view.area.ends, places


def _differences(runs: Sequence[Run], view: View, drawings: Sequence[Drawing]) -> list[pd.DataFrame]:
    """The differences between each other run and the first one."""
    token, drawn = token_of(runs, view), [(run, run.tokens) for run in runs if run.tokens is not None]
    return [
        _difference(drawn[0][0], run, drawing, tokens.anchor(token, view.align))
        for (run, tokens), drawing in zip(drawn[1:], drawings[1:], strict=True)
    ]


def _difference(base: Run, other: Run, drawing: Drawing, anchor: int) -> pd.DataFrame:
    """The visible gaps of `other` with the base's gaps after the same tokens, with `DIFFERENCES`.

    Empty if a profiler inflates one of them, because their difference would include its overhead.

    Args:
        base: the run compared with.
        other: the run drawn.
        drawing: its drawing.
        anchor: its time 0, ns on its clock.
    """
    if base.tokens is None or other.tokens is None or base.inflated or other.inflated:
        return pd.DataFrame(columns=DIFFERENCES)
    gaps, mine, theirs = drawing.gaps, other.tokens, base.tokens
    starts = np.rint(gaps["x"].to_numpy() * 1e9).astype(np.int64) + anchor
    token = np.minimum(np.searchsorted(mine.end, starts), len(mine) - 1)
    known = (mine.end[token] == starts) & (mine.gap[token] == gaps["gap"]) & (token < len(theirs))
    gap = theirs.gap[np.minimum(token, len(theirs) - 1)]
    differ = np.asarray(known & (gap >= 0) & (gap != gaps["gap"]), dtype=bool)
    return gaps.assign(own=gaps["gap"], base=gap).loc[differ, DIFFERENCES]


def range_of(runs: Sequence[Run], view: View, what: str) -> tuple[int, int] | None:
    """The range that shows "gap" (the gaps after the view's token), "all", or "token" (None: one token and its gap)."""
    if what == "all":
        low, high = whole_of(runs, view)
        return span(low - _BESIDE * (high - low), high + _BESIDE * (high - low))
    return align.gap_range(_tokens(runs), token_of(runs, view), view.align) if what == "gap" else None


def draw(runs: Sequence[Run], view: View, width: int, brief: bool = False) -> list[Drawing]:
    """The drawings of these runs in this view, `width` px wide; `brief` as for `timeline_of`."""
    limits, token = limits_of(runs, view), token_of(runs, view)
    shown = [(run, panel, run.tokens) for run, panel in zip(runs, panels_of(runs, view), strict=True)]
    anchors = [(run, panel, tokens.anchor(token, view.align)) for run, panel, tokens in shown if tokens is not None]
    bins = width
    while True:
        windows = [Window(limits[0] + at, limits[1] + at, at, width, bins) for _, _, at in anchors]
        details = [
            [detail_of(placed.row, window) for placed in panel.rows]
            for (_, panel, _), window in zip(anchors, windows, strict=True)
        ]
        shades = [
            [holes.detail_of(row, window) for row in run.holes]
            for (run, _, _), window in zip(anchors, windows, strict=True)
        ]
        if bins <= _FEWEST_BINS or sum(map(_weight, chain.from_iterable((*details, *shades)))) <= _HEAVIEST:
            break
        bins = max(bins // 2, _FEWEST_BINS)
    chosen = chosen_in(runs, view, token)
    return [
        replace(
            _drawing(run, panel, window, _note(run, token), drawn, view.find, chosen.get(run.key), brief),
            holes=holes.shades_of(run.holes, shaded, panel, window),
        )
        for (run, panel, _), window, drawn, shaded in zip(anchors, windows, details, shades, strict=True)
    ]


def _weight(drawn: Detail) -> int:
    """The run's share of a figure's size: an event needs about twice the text of a bin."""
    return 2 * len(drawn.exact) + len(drawn.start)


def _drawing(
    run: Run, panel: Panel, window: Window, note: str, details: Sequence[Detail], find: str, spot: Spot | None,
    brief: bool,
) -> Drawing:  # fmt: skip
    waits = run.waits
    marks = joined(
        [marks_of(placed, drawn, window, waits, find, brief) for placed, drawn in zip(panel.rows, details, strict=True)]
    )
    lines, gaps, ruled = connectors(panel, waits, window), _gaps(run, panel, window), _ruled(run, window)
    drawing = Drawing(run.name, note, panel, marks, lines, gaps, tokens=ruled)
    if spot is None:
        return drawing
    return replace(drawing, chosen=outline(run, spot, panel, window), arrows=arrows_of(run, spot, panel, window))


def _ruled(run: Run, window: Window) -> pd.DataFrame:
    """The tokens in view that the ruler numbers, as many as fit: x (s), step."""
    tokens = run.tokens
    assert tokens is not None
    low, high = np.searchsorted(tokens.start, window.wider)
    steps = (times * 10**power for power in count() for times in (1, 2, 5))
    every = next(step for step in steps if step * max(tokens.period, 1) >= _APART * window.ns_per_pixel)
    at = np.arange(-(-low // every) * every, high, every)
    return pd.DataFrame({"x": window.seconds(tokens.start[at]), "step": tokens.step[at]})


def _note(run: Run, token: int) -> str:
    """The note next to a run's name: its class, the idle time of this token's step, and its gap."""
    tokens = run.tokens
    assert tokens is not None
    at = tokens.clamp(token)
    gap = int(tokens.gap[at])
    parts = [run.summary.strategy or "", f"token {tokens.step[at]}"]
    steps = None if run.gaps is None else run.gaps.idle.steps
    idle = [] if steps is None else steps.loc[steps["step"] == tokens.step[at], "idle"].tolist()
    parts += [f"idle {duration(idle[0])}"] if len(idle) == 1 else []  # on one device
    parts += [f"gap after it {duration(gap)}"] if gap >= 0 else ["no gap after it"]
    parts += ["traced: times are inflated"] if run.inflated else []
    parts += ["kernels of the node pass, in proportion"] if run.node_kernels_note else []
    return BETWEEN.join(p for p in parts if p)


def _gaps(run: Run, panel: Panel, window: Window) -> pd.DataFrame:
    """The gaps in view, each over its device's rows: x dx gap text top bottom.

    text gives the causes of the gap, and is empty if the gap is too narrow for a label.
    """
    bands = {band.device: band for band in panel.bands}
    table = run.gaps.table if run.gaps is not None else pd.DataFrame(columns=["start", "end", "gap", "step", "device"])
    seen = table[
        (table["end"] > window.low)
        & (table["start"] < window.high)
        & (table["gap"] > 0)
        & table["device"].isin(list(bands))
    ]
    seen = seen.nlargest(_MOST_GAPS, "gap").sort_values("start") if len(seen) > _MOST_GAPS else seen
    start, gap = seen["start"].to_numpy(dtype=np.int64), seen["gap"].to_numpy(dtype=np.int64)
    bears = gap >= LABELLED * window.ns_per_pixel
    texts = np.full(len(seen), "", dtype=object)
    texts[bears] = [_made_of(row) for row in seen[bears].to_dict("records")]
    on = [bands[device] for device in seen["device"]]
    return pd.DataFrame(
        {
            "x": window.seconds(start),
            "dx": gap / 1e9,
            "gap": gap,
            "text": texts,
            "top": np.array([band.top for band in on], dtype=np.int64),
            "bottom": np.array([band.bottom for band in on], dtype=np.int64),
        }
    )


def _made_of(gap: dict[Any, Any]) -> str:
    causes = (f"{name} {duration(gap[column])}" for column, name in CAUSES.items() if gap[column])
    return f"<b>gap after token {gap['step']}: {duration(gap['gap'])}</b><br>" + "<br>".join(causes)
