"""The timeline figure: several runs, stacked, on one time axis; what lies over and under its rows, and the figure as a
picture.

Over them are the matches of a search, the chosen event with its arrows, the ruler and the summed area; under them the
shading where a device idles, gaps and holes inside steps, and how much shorter or longer each gap in view is than the
base's gap after the same token. The base's gap is outlined from the start of the other one, and the range between their
ends is hatched: shapes and a signed label, so that it can be read without colours and in print.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from dashboard.figures import Plot, hover, width_of_bars
from dashboard.palette import CLEAR, COLOURS, DARK_TEXT_ON, FONT, HOLES, KINDS, NAMES, THEMES, Theme
from dashboard.text import difference, duration, fitting, markup, plain, ticks
from dashboard.timeline.layout import GAP_STRIP, RULER, Panel
from dashboard.timeline.marks import SIZE_OF_TEXTS, joined
from tracer.analysis.idle import PLACES
from tracer.errors import UsageError
from tracer.model.schema import MISSING

DIMMED: Final = 0.22  # opacity of events that do not match a search
_ARROWS: Final = {"launch": COLOURS["launch"], "wait": COLOURS["sync"], "event": COLOURS["copy"]}
_HOVER_MATCHES: Final = "%{customdata:,} begin here<extra></extra>"

IMAGES = (".svg", ".png")
_LEGEND = 34  # px

LABELLED: Final = 34  # minimum width of a labelled gap or hole, px
DIFFERENCES: Final = ["x", "own", "base", "top", "bottom"]
"""The columns of the gaps that differ from the base's: x (s), own and base (ns), top bottom (px)."""
_MOST_DIFFERENCES: Final = 40  # of a run; with more in view none is wide enough to be read

MARGIN = {"r": 22, "t": 52, "b": 8}
BETWEEN = "  ·  "  # between the parts of a note
_NARROW, _PER_LETTER_OF_HEADING = 700, 7.4  # px
_BESIDE_NAMES = 10  # px on both sides of the names of rows
SIZE_OF_NAMES = 11  # of the letters of the names of rows, px
_NUMBER_PX = 30  # of a token in the ruler
_HOVER_EVENT = "<b>%{hovertext}</b><br>%{customdata[1]}<extra></extra>"
_HOVER_BIN = (
    "<b>%{{customdata[1]}} events</b> in {}, busy %{{customdata[2]}}%<br>"
    "longest: %{{customdata[3]}} %{{hovertext}}<extra></extra>"
)


@dataclass(frozen=True, eq=False)
class Drawing:
    """One run as the figure needs it.

    Attributes:
        title, note: its heading, and the note next to it; neither is escaped.
        panel: its position.
        marks: as returned by `timeline.marks.marks_of`.
        lines: as returned by `timeline.marks.connectors`.
        gaps: the gaps in view: x dx (s), gap (ns), text (a hover, escaped, where it has a label), top bottom (px).
        holes: what is shaded as idle, as returned by `timeline.marks.shades_of`.
        tokens: those that the ruler numbers: x (s), step; None for no ruler.
        chosen, arrows: of the chosen event, as returned by `scene.choice`; None if there is none.
    """

    title: str
    note: str
    panel: Panel
    marks: pd.DataFrame
    lines: pd.DataFrame
    gaps: pd.DataFrame
    holes: pd.DataFrame = field(default_factory=pd.DataFrame)
    tokens: pd.DataFrame | None = None
    chosen: pd.DataFrame | None = None
    arrows: pd.DataFrame | None = None


def left_of(width: int) -> int:
    """The margin for the names of the rows, px, in a plot of this width."""
    return 112 if width < _NARROW else 145


def room_of(width: int) -> int:
    """The room for a name in this margin, px."""
    return left_of(width) - _BESIDE_NAMES


def timeline_figure(plot: Plot) -> go.Figure:
    """A plot as a figure, validated by Plotly."""
    return go.Figure(plot, skip_invalid=False)


def timeline_plot(
    drawings: Sequence[Drawing], limits: tuple[int, int], origin: str, theme: str, width: int,
    finds: bool = False, ruler: tuple[int, int] | None = None,
) -> Plot:  # fmt: skip
    """Draw the runs.

    Args:
        limits: range of the time axis, ns from time 0.
        width: of the plot, px.
        finds: whether there is a search, so that marks without matches are dimmed.
        ruler: the measured range, ns from time 0.
    """
    look = THEMES[theme]
    height = max((d.panel.bottom for d in drawings), default=0)
    data: list[dict[str, Any]] = []
    if drawings:
        marks = joined([d.marks for d in drawings])
        data += gap_bars([d.gaps for d in drawings], look)
        data += hole_bars([d.holes for d in drawings], look)
        data += _bars(marks, look, finds)
        data += _connectors(pd.concat([d.lines for d in drawings], ignore_index=True))
        data += _texts(marks[marks["found"] > 0])
        data += _ruler(drawings, look, limits[1] / 1e9 - _NUMBER_PX / width * (limits[1] - limits[0]) / 1e9)
        data += match_markers(marks, look) if finds else []
    layout = _layout(drawings, limits, origin, look, height, width)
    shapes, annotations = _ruler_between(ruler, look)
    layout["shapes"] += [f for d in drawings if d.chosen is not None for f in _frames(d.chosen, look)] + shapes
    layout["annotations"] += [a for d in drawings if d.arrows is not None for a in _arrows(d.arrows)] + annotations
    return {"data": data, "layout": layout}


def height_of(drawings: Sequence[Drawing]) -> int:
    """Height of the figure, px."""
    return max((d.panel.bottom for d in drawings), default=0) + MARGIN["t"] + MARGIN["b"]


def _bars(marks: pd.DataFrame, look: Theme, finds: bool) -> list[dict[str, Any]]:
    """One Bar per kind and way of drawing: merged bins, narrow events, wide events on top."""
    way = np.where(marks["event"] == MISSING, 0, np.where(marks["wide"], 2, 1))
    bars = []
    for _, part in marks.groupby([way, "what"], sort=True):
        kind = KINDS[int(part["what"].iloc[0])]
        colour = COLOURS[kind]
        wide, merged = bool(part["wide"].iloc[0]), bool(part["event"].iloc[0] == MISSING)
        more = part["more"].tolist()
        more, template = _of_bins(more) if merged else (more, _HOVER_EVENT)
        bars.append(
            {
                "type": "bar",
                "name": kind,
                "orientation": "h",
                "base": part["x"].tolist(),  # plotly.js unpacks no arrays here
                "x": part["dx"].to_numpy(),
                "y": part["y"].to_numpy(dtype="float32"),
                "width": width_of_bars(part["height"].to_numpy()),
                "marker": {
                    "color": colour,
                    "opacity": _opacity(part, merged, finds),
                    "line": {"width": 0.8, "color": look.surface if wide else colour},
                },
                "customdata": [[event, *each] for event, each in zip(part["event"].tolist(), more, strict=True)],
                **hover(part["title"].tolist(), template),
                "hoverlabel": {"bordercolor": colour},
                "showlegend": False,
            }
        )
    return bars


def _of_bins(more: list[list[Any]]) -> tuple[list[list[Any]], str]:
    """The facts of merged marks, and the template of their hovers, which includes the bin width if all bins have the
    same."""
    widths = {each[-1] for each in more}
    if len(widths) > 1:
        return more, _HOVER_BIN.format("%{customdata[4]}")
    return [each[:-1] for each in more], _HOVER_BIN.format(*widths)


def _opacity(part: pd.DataFrame, merged: bool, finds: bool) -> Any:
    """Opacity by the busy share of a bin, lower for bins without matches."""
    if not merged and not finds:
        return 1
    opacity = 0.2 + 0.8 * part["share"].to_numpy() if merged else np.ones(len(part))
    return (opacity * np.where(part["found"] > 0, 1, DIMMED)).astype("float32")


def _scatter(name: str, mode: str, x: Any, y: Any, **more: Any) -> dict[str, Any]:
    """A trace without hovers, unless there is a template for them."""
    hovers = {} if "hovertemplate" in more else {"hoverinfo": "skip"}
    return {"type": "scatter", "name": name, "mode": mode, "x": x, "y": y, "showlegend": False, **hovers, **more}


def _connectors(lines: pd.DataFrame) -> list[dict[str, Any]]:
    """Lines from the end of the work that a sync waited for to the return of the sync."""
    if not len(lines):
        return []
    gap, colour = np.full(len(lines), np.nan), COLOURS["sync"]
    x = np.column_stack([lines["x0"], lines["x0"], lines["x1"], gap]).ravel()
    y = np.column_stack([lines["y0"], lines["y1"] + 7, lines["y1"], gap]).ravel()
    marker = {"size": np.tile([5, 0, 0, 0], len(lines)), "color": colour, "line": {"width": 0}}
    return [_scatter("waited for", "lines+markers", x, y, line={"color": colour, "width": 1.2}, marker=marker)]


def _texts(marks: pd.DataFrame) -> list[dict[str, Any]]:
    labelled = marks[marks["text"] != ""]
    if not len(labelled):
        return []
    dark = labelled["what"].isin([KINDS.index(k) for k in DARK_TEXT_ON])
    font = {"size": SIZE_OF_TEXTS, "color": np.where(dark, "#1B2430", "#FFFFFF").tolist()}
    x, y = labelled["text_x"].to_numpy(), labelled["y"].to_numpy()
    return [_scatter("text", "text", x, y, text=labelled["text"].tolist(), textfont=font)]


def _ruler(drawings: Sequence[Drawing], look: Theme, edge: float) -> list[dict[str, Any]]:
    """The numbers of the tokens, at the starts of their compute; left of those after `edge`, where there is no room."""
    ruled = [(d.panel.top + RULER, d.tokens) for d in drawings if d.tokens is not None]
    if not sum(len(tokens) for _, tokens in ruled):
        return []
    x = np.concatenate([tokens["x"].to_numpy() for _, tokens in ruled])
    y = np.concatenate([np.full(len(tokens), y, "float32") for y, tokens in ruled])
    return [
        _scatter(
            "token", "markers+text", x, y,
            text=[str(step) for _, tokens in ruled for step in tokens["step"].tolist()],
            textposition=np.where(x > edge, "middle left", "middle right").tolist(),
            textfont={"size": 10, "color": look.muted},
            marker={"symbol": "line-ns", "size": 10, "line": {"width": 1.5, "color": look.muted}},
        )
    ]  # fmt: skip


def _layout(
    drawings: Sequence[Drawing], limits: tuple[int, int], origin: str, look: Theme, height: int, width: int
) -> dict[str, Any]:
    times, texts = ticks(*limits, most=max(width // 120, 4))
    placed = [p for d in drawings for p in d.panel.rows]
    names = [p for p in placed if p.line.label]
    x = {
        "range": [limits[0] / 1e9, limits[1] / 1e9], "side": "top",
        "tickvals": [t / 1e9 for t in times], "ticktext": texts,
        "showgrid": True, "gridcolor": look.line, "gridwidth": 1,
        "zeroline": True, "zerolinecolor": look.muted, "zerolinewidth": 1.5,
        "ticks": "outside", "tickcolor": look.line, "tickfont": {"color": look.muted, "size": 11},
        "title": {"text": f"time from the {origin}", "standoff": 8, "font": {"color": look.muted, "size": 12}},
    }  # fmt: skip
    y = {
        "range": [height, 0], "fixedrange": True, "showgrid": False, "zeroline": False,
        "tickvals": [p.middle for p in names],
        "ticktext": [markup(fitting(p.line.label, room_of(width), SIZE_OF_NAMES)) for p in names],
        "tickfont": {"color": look.muted, "size": SIZE_OF_NAMES}, "ticklabelstandoff": 8,
    }  # fmt: skip
    hovers = {"bgcolor": look.surface, "font": {"color": look.ink, "size": 12, "family": FONT}, "align": "left"}
    labels = [(*_heading(d, look, width), *shade_labels(d.gaps, d.holes, limits, look, width)) for d in drawings]
    return {
        "barmode": "overlay", "hovermode": "closest", "dragmode": "pan", "autosize": True,
        "margin": {"l": left_of(width), **MARGIN, "pad": 0},
        **look.layout, "hoverlabel": hovers, "xaxis": x, "yaxis": y,
        "shapes": [*_tracks(drawings, look)], "annotations": [*chain.from_iterable(labels)],
    }  # fmt: skip


def _tracks(drawings: Sequence[Drawing], look: Theme) -> list[dict[str, object]]:
    """A faint track behind every row, and a line between runs."""
    across = {"xref": "paper", "x0": 0, "x1": 1, "layer": "below"}
    tracks: list[dict[str, object]] = [
        {**across, "type": "rect", "y0": p.top, "y1": p.bottom, "fillcolor": look.track, "line": {"width": 0}}
        for d in drawings
        for p in d.panel.rows
    ]
    return tracks + [
        {**across, "type": "line", "y0": d.panel.top, "y1": d.panel.top, "line": {"color": look.line, "width": 1}}
        for d in drawings[1:]
    ]


def _heading(drawing: Drawing, look: Theme, width: int) -> list[dict[str, object]]:
    """The run's name, and as much of the note as fits; on a narrow page both start above the names of the rows."""
    shift = left_of(width) if width < _NARROW else 0
    title = plain(drawing.title, min(60, int(width / _PER_LETTER_OF_HEADING)))
    room = (width - left_of(width) + shift) / _PER_LETTER_OF_HEADING - len(title)
    parts = [part for part in drawing.note.split(BETWEEN) if part]
    while parts and len(BETWEEN.join(parts)) > room:
        parts.pop()
    note = f'  <span style="color:{look.muted}">{markup(BETWEEN.join(parts))}</span>' if parts else ""
    return [
        {
            "xref": "paper", "x": 0, "y": drawing.panel.top + 18, "xanchor": "left", "yanchor": "middle",
            "xshift": -shift, "text": f"<b>{markup(title)}</b>{note}", "showarrow": False, "font": {"size": 13},
            "bgcolor": look.surface, "borderpad": 1, "name": "heading",
        }
    ]  # fmt: skip


def gap_bars(gaps: Sequence[pd.DataFrame], look: Theme) -> list[dict[str, Any]]:
    """The gaps of all runs (`Drawing.gaps`) as one Bar."""
    filled = [each for each in gaps if len(each)]
    if not filled:
        return []
    marker = {"color": COLOURS["gap"], "opacity": look.gap_opacity, "line": {"width": 0}}
    return [{**_bar("gap", pd.concat(filled, ignore_index=True)), "marker": marker, "hoverinfo": "skip"}]


def hole_bars(holes: Sequence[pd.DataFrame], look: Theme) -> list[dict[str, Any]]:
    """The holes of all runs (`Drawing.holes`) as one Bar per place; gaps only with their hovers."""
    filled = [each for each in holes if len(each)]
    if not filled:
        return []
    return [
        {
            **_bar(f"idle {place}", rows),
            "marker": {**hole_marker(str(place), look), "opacity": rows["share"].to_numpy(dtype="float32")},
            **hover(rows["text"].tolist(), "%{hovertext}<extra></extra>"),
            "hoverlabel": {"bordercolor": COLOURS["gap"]},
        }
        for place, rows in pd.concat(filled, ignore_index=True).groupby("place", sort=True)
    ]


def hole_marker(place: str, look: Theme) -> dict[str, Any]:
    """The shading of idle time at a place."""
    if place not in HOLES:
        return {"color": CLEAR, "line": {"width": 0}}  # the gap has a Bar of its own
    red, green, blue = (int(COLOURS["gap"][at : at + 2], 16) for at in (1, 3, 5))
    ground = f"rgba({red},{green},{blue},{look.gap_opacity})"
    pattern = {"shape": HOLES[place], "bgcolor": ground, "fgcolor": look.pattern, "size": 6, "solidity": 0.2}
    return {"color": ground, "line": {"width": 0}, "pattern": pattern}


def shade_labels(
    gaps: pd.DataFrame, holes: pd.DataFrame, limits: tuple[int, int], look: Theme, width: int
) -> Iterator[dict[str, object]]:
    """ "gap 150 µs" or "idle 98 µs" below each gap or hole that is wide enough for it.

    Args:
        gaps, holes: as in `Drawing`.
        limits: what the time axis shows, ns from time 0.
        width: of the plot, px.
    """
    per_pixel = (limits[1] - limits[0]) / width
    inside = holes[(holes["share"] == 1) & holes["place"].isin(list(HOLES))] if len(holes) else holes
    for name, rows, length in (("gap", gaps, "gap"), ("idle", inside, "ns")):
        if not len(rows):
            continue
        for x, dx, ns, text, bottom in rows[["x", "dx", length, "text", "bottom"]].itertuples(index=False):
            low, high = max(x * 1e9, limits[0]), min((x + dx) * 1e9, limits[1])
            room = (high - low) / per_pixel
            if room >= LABELLED:
                yield {
                    "x": (low + high) / 2e9, "y": bottom - GAP_STRIP / 2, "yanchor": "middle",
                    "text": f"{name} {duration(ns)}" if room >= 2.2 * LABELLED else duration(ns), "showarrow": False,
                    "font": {"size": 11.5, "color": look.ink}, "hovertext": text, "name": name,
                    "bgcolor": f"{look.surface}B0" if name == "idle" else CLEAR, "borderpad": 0,
                }  # fmt: skip


def _bar(name: str, rows: pd.DataFrame) -> dict[str, Any]:
    return {
        "type": "bar",
        "name": name,
        "orientation": "h",
        "base": rows["x"].tolist(),
        "x": rows["dx"].to_numpy(dtype="float64"),
        "y": ((rows["top"] + rows["bottom"]) / 2).to_numpy(dtype="float32"),
        "width": width_of_bars((rows["bottom"] - rows["top"]).to_numpy()),
        "showlegend": False,
    }


def with_differences(
    plot: Plot, gaps: Sequence[pd.DataFrame], limits: tuple[int, int], width: int, look: Theme
) -> Plot:
    """The plot with the differences that are wide enough to be read.

    Args:
        gaps: for each run its gaps with `DIFFERENCES`.
        limits: what the time axis shows, ns from time 0.
        width: of the plot, px.
    """
    readable = LABELLED * (limits[1] - limits[0]) / width
    wide = [rows[rows[["own", "base"]].max(axis=1) >= readable] for rows in gaps]
    few = [part for part in wide if 0 < len(part) <= _MOST_DIFFERENCES]
    if not few:
        return plot
    rows, layout = pd.concat(few), plot["layout"]
    marks = rows.to_dict("records")
    outlines = [
        {"type": "rect", "name": "base", "x0": m["x"], "x1": m["x"] + m["base"] / 1e9, "y0": m["top"],
         "y1": m["bottom"], "fillcolor": CLEAR, "line": {"color": look.ink, "width": 1.2, "dash": "dot"}}
        for m in marks
    ]  # fmt: skip
    labels = [
        {"name": "difference", "x": m["x"] + max(m["own"], m["base"]) / 1e9, "y": m["bottom"] - GAP_STRIP / 2,
         "text": f"<b>{difference(m['own'] - m['base'])}</b>", "xanchor": "left", "yanchor": "middle", "xshift": 3,
         "showarrow": False, "font": {"size": 11.5, "color": look.ink}}
        for m in marks
    ]  # fmt: skip
    return {
        "data": [*plot["data"], _hatching(rows, look.muted)],
        "layout": {
            **layout, "shapes": [*layout["shapes"], *outlines], "annotations": [*layout["annotations"], *labels]
        },
    }  # fmt: skip


def _hatching(rows: pd.DataFrame, colour: str) -> dict[str, Any]:
    low, high = rows[["own", "base"]].min(axis=1), rows[["own", "base"]].max(axis=1)
    shape = np.where(rows["own"] < rows["base"], "/", "\\").tolist()
    pattern = {"shape": shape, "fgcolor": colour, "size": 7, "solidity": 0.25}
    return {
        **_bar("difference", rows.assign(x=rows["x"] + low / 1e9, dx=(high - low) / 1e9)),
        "width": (rows["bottom"] - rows["top"]).to_numpy(dtype="float64"),
        "marker": {"color": CLEAR, "line": {"width": 0}, "pattern": pattern},
        "hoverinfo": "skip",
    }


def with_legend(figure: go.Figure, height: int, theme: str) -> tuple[go.Figure, int]:
    """A timeline for a file: on the theme's surface, with a legend below; and its new height, px.

    `height` is the timeline's own.
    """
    look = THEMES[theme]
    drawn = {trace.name for trace in figure.data}
    for kind in (kind for kind in COLOURS if kind in drawn):
        square = {"symbol": "square", "size": 11, "color": COLOURS[kind], "line": {"width": 0}}
        figure.add_scatter(x=[None], y=[None], mode="markers", marker=square, name=NAMES[kind], showlegend=True)
    for place in (place for place in HOLES if f"idle {place}" in drawn):
        figure.add_bar(
            x=[None], y=[None], marker=hole_marker(place, look), name=f"idle {PLACES[place]}", showlegend=True
        )
    legend = {"orientation": "h", "x": 0, "xanchor": "left", "yref": "container", "y": 0, "yanchor": "bottom",
              "font": {"color": look.muted}, "itemsizing": "trace"}  # fmt: skip
    figure.update_layout(paper_bgcolor=look.surface, plot_bgcolor=look.surface, showlegend=True, legend=legend)
    figure.update_layout(margin_b=figure.layout.margin.b + _LEGEND)
    return figure, height + _LEGEND


def image(figure: go.Figure, suffix: str, width: int, height: int, scale: float) -> bytes:
    """Render a figure as an image, without any network access.

    Args:
        suffix: one of `IMAGES`.
        width, height: px.
        scale: pixels per px in a PNG.

    Raises:
        UsageError: kaleido or a browser is missing, or the browser fails.
    """
    try:
        import kaleido
        from kaleido.errors import BrowserClosedError, BrowserFailedError, ChromeNotFoundError, KaleidoError
    except ImportError:
        raise UsageError("images need kaleido: pip install 'intertoken[image]'") from None
    sharpness = scale if suffix == ".png" else 1
    options = {"format": suffix.removeprefix("."), "width": width, "height": height, "scale": sharpness}
    try:
        return bytes(kaleido.calc_fig_sync(figure, opts=options, kopts={"mathjax": False}))
    except ChromeNotFoundError:
        raise UsageError(
            "images are rendered by Chrome or Chromium, which was not found; install it (Debian: apt-get install "
            "chromium) or name it in the environment variable BROWSER_PATH"
        ) from None
    except (BrowserFailedError, BrowserClosedError, KaleidoError) as problem:
        message = problem.args[0] if problem.args else "it closed"
        message = message[0] if isinstance(message, tuple) and message else message
        first = str(message).strip().splitlines()[0]
        raise UsageError(f"Chrome or Chromium could not render the image: {first}") from None


def match_markers(marks: pd.DataFrame, look: Theme) -> list[dict[str, Any]]:
    """A marker under every bin with matches, with their number in its hover."""
    some = marks[(marks["event"] < 0) & (marks["found"] > 0)]
    if not len(some):
        return []
    x = (some["x"] + some["dx"] / 2).to_numpy(dtype="float64")
    y = (some["y"] + some["height"] / 2).to_numpy(dtype="float32")
    marker = {"symbol": "triangle-up", "size": 6, "color": look.ink, "line": {"width": 0}}
    counts = some["found"].tolist()
    return [_scatter("match", "markers", x, y, marker=marker, customdata=counts, hovertemplate=_HOVER_MATCHES)]


def summed_area(ends: tuple[int, int] | None, places: Iterable[tuple[int, int]], look: Theme) -> list[dict[str, Any]]:
    """The summed area, between two times (ns from time 0), over these rows from top to bottom (px)."""
    if ends is None:
        return []
    at = {
        "x0": ends[0] / 1e9,
        "x1": ends[1] / 1e9,
        "type": "rect",
        "name": "area",
        "fillcolor": look.ink,
        "opacity": 0.12,
    }
    return [{**at, "y0": top, "y1": bottom, "line": {"width": 0}} for top, bottom in places]


def _frames(chosen: pd.DataFrame, look: Theme) -> list[dict[str, Any]]:
    """A frame around the chosen event; `chosen` has x0 x1 (s), top bottom (px)."""
    return [
        {
            "type": "rect", "name": "chosen", "x0": x0, "x1": x1, "y0": top - 1.5, "y1": bottom + 1.5,
            "line": {"color": look.ink, "width": 2}, "fillcolor": CLEAR,
        }
        for x0, x1, top, bottom in chosen[["x0", "x1", "top", "bottom"]].itertuples(index=False)
    ]  # fmt: skip


def _arrows(lines: pd.DataFrame) -> list[dict[str, Any]]:
    """An arrow per flow; `lines` has kind, x0 x1 (s), y0 y1 (px)."""
    return [
        {
            "name": "arrow", "x": x1, "y": y1, "ax": x0, "ay": y0, "xref": "x", "yref": "y", "axref": "x", "ayref": "y",
            "text": "", "showarrow": True, "arrowhead": 2, "arrowsize": 1.1, "arrowwidth": 1.6,
            "arrowcolor": _ARROWS[kind], "standoff": 1,
        }
        for kind, x0, y0, x1, y1 in lines[["kind", "x0", "y0", "x1", "y1"]].itertuples(index=False)
    ]  # fmt: skip


def _ruler_between(ends: tuple[int, int] | None, look: Theme) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The shapes and the annotations of a ruler between two times, ns from time 0; a single line if they are equal."""
    if ends is None:
        return [], []
    low, high = sorted(ends)
    line = {"color": look.ink, "width": 1.2, "dash": "dot"}
    shapes: list[dict[str, Any]] = [
        {"type": "line", "name": "ruler", "x0": x / 1e9, "x1": x / 1e9, "yref": "paper", "y0": 0, "y1": 1, "line": line}
        for x in np.unique((low, high)).tolist()
    ]
    if low == high:
        return shapes, []
    shapes.append(
        {
            "type": "rect", "name": "ruler", "x0": low / 1e9, "x1": high / 1e9, "yref": "paper", "y0": 0, "y1": 1,
            "line": {"width": 0}, "fillcolor": look.ink, "opacity": 0.06, "layer": "below",
        }
    )  # fmt: skip
    words = {
        "name": "ruler", "x": (low + high) / 2e9, "yref": "paper", "y": 1, "yanchor": "top", "showarrow": False,
        "text": f"<b>{high - low:,} ns</b>", "bgcolor": look.surface, "bordercolor": look.ink, "borderpad": 2,
        "font": {"size": 11.5, "color": look.ink},
    }  # fmt: skip
    return shapes, [words]
