"""A figure as a PNG or SVG file, drawn by the Chrome or Chromium of this machine through kaleido."""

from __future__ import annotations

import plotly.graph_objects as go

from dashboard.figures.shades import marker
from dashboard.palette import COLOURS, HOLES, NAMES, THEMES
from tracer.analysis.holes import PLACES
from tracer.errors import UsageError

IMAGES = (".svg", ".png")
_LEGEND = 34  # px


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
        figure.add_bar(x=[None], y=[None], marker=marker(place, look), name=f"idle {PLACES[place]}", showlegend=True)
    legend = {"orientation": "h", "x": 0, "xanchor": "left", "yref": "container", "y": 0, "yanchor": "bottom",
              "font": {"color": look.muted}, "itemsizing": "trace"}  # fmt: skip
    figure.update_layout(paper_bgcolor=look.surface, plot_bgcolor=look.surface, showlegend=True, legend=legend)
    figure.update_layout(margin_b=figure.layout.margin.b + _LEGEND)
    return figure, height + _LEGEND


def image(figure: go.Figure, suffix: str, width: int, height: int, scale: float) -> bytes:
    """Render a figure as an image, without any network access.

    Args:
        figure: the figure.
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
        raise UsageError(f"Chrome or Chromium could not render the image: {_first_line(problem)}") from None


def _first_line(problem: Exception) -> str:
    message = problem.args[0] if problem.args else "it closed"
    return str(message[0] if isinstance(message, tuple) and message else message).strip().splitlines()[0]
