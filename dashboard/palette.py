"""The colour palette, the same in the timeline, the causes of the gap and the legend.

On the graph page colours are streams instead.

Hues are Okabe and Ito's (2008), which remain distinct with any common colour blindness; that of communication is
Tol's wine ("Colour schemes", 2021), darker than all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

_KINDS: Final = {
    "kernel": ("#0072B2", "kernel"),
    "graph": ("#56B4E9", "CUDA graph"),
    "communication": ("#882255", "communication"),
    "copy": ("#009E73", "copy"),
    "memset": ("#8C6D31", "memset"),
    "sync": ("#D55E00", "sync"),
    "launch": ("#CC79A7", "launch"),
    "host": ("#E69F00", "host code"),
    "api": ("#9AA3AE", "other CUDA call"),
    "other": ("#6B7480", "other process or thread"),
    "nvtx": ("#B9C2CE", "NVTX range"),
    "gap": ("#F0E442", "inter-token gap"),
}
COLOURS: Final = {kind: colour for kind, (colour, _) in _KINDS.items()}  # kind of a mark -> its colour, in both themes
NAMES: Final = {kind: name for kind, (_, name) in _KINDS.items()}  # kind of a mark -> its name in the legend

KINDS: Final = tuple(COLOURS)  # the order of the legend, and the codes that the timeline's tables hold

HOLES: Final = {"before_graph": "|", "between_kernels": ".", "after_graph": "-"}
"""Place of idle time -> Plotly's name of the pattern, drawn on the colour of the gap; the gap itself has no
pattern."""

HOLE_SWATCHES: Final = {
    "before_graph": "repeating-linear-gradient(90deg, currentColor 0 1.5px, #F0E44266 1.5px 4.5px)",
    "between_kernels": "radial-gradient(circle, currentColor 1.2px, #F0E44266 1.4px) 0 0 / 4.3px 4.3px",
    "after_graph": "repeating-linear-gradient(0deg, currentColor 0 1.5px, #F0E44266 1.5px 4.5px)",
}
"""The patterns in the legend, as CSS."""

DARK_TEXT_ON: Final = frozenset({"graph", "launch", "host", "nvtx", "gap", "api"})
"""Kinds whose colour is so light that text on it is dark."""

STREAM_COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#F0E442")
"""Streams of a graph, in order; from the seventh on they repeat, so the number is shown next to the colour."""


def stream_colours(stream: int) -> tuple[str, str]:
    """Colour of a stream, and its text colour."""
    colour = STREAM_COLOURS[stream % len(STREAM_COLOURS)]
    return colour, "#FFFFFF" if colour == STREAM_COLOURS[0] else "#1B2430"


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours of everything that is not data; the style sheet holds the same values for the page."""

    name: str
    ink: str
    muted: str
    line: str
    track: str
    surface: str
    gap_opacity: float
    pattern: str

    @property
    def layout(self) -> dict[str, Any]:
        """What the layouts of figures have in common, in Plotly's form."""
        return {
            "paper_bgcolor": CLEAR,
            "plot_bgcolor": CLEAR,
            "font": {"family": FONT, "size": 12, "color": self.ink},
            "hoverlabel": {"bgcolor": self.surface, "font": {"color": self.ink, "family": FONT}},
        }


THEMES: Final = {
    "light": Theme("light", "#1B2430", "#5A6675", "#D5DBE3", "#F3F5F8", "#FFFFFF", 0.40, "#5A6675"),
    "dark": Theme("dark", "#E6EAF0", "#9DA9B8", "#36404D", "#1D242E", "#161B22", 0.34, "#BAC4CF"),
}

CLEAR: Final = "rgba(0,0,0,0)"
FONT: Final = 'system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", "DejaVu Sans", sans-serif'
