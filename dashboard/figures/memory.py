"""Peak memory per allocator: its arena, and the live bytes in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import plotly.graph_objects as go

from dashboard.palette import COLOURS, FONT, THEMES
from dashboard.text import markup
from dashboard.units import size
from tracer.model.graph_json import Memory

_BAND: Final = 34  # px per allocator
_MARGIN: Final = {"l": 150, "r": 300, "t": 4, "b": 4}


def memory_figure(memory: Sequence[Memory], used: str, theme: str) -> go.Figure:
    """For each allocator, a bar of its peak with the live bytes inside; the one in use is bold and filled."""
    look = THEMES[theme]
    longest = max((m.peak_bytes for m in memory), default=1) or 1
    y = [i * _BAND for i in range(len(memory))]
    outline, width = COLOURS["kernel"], [2.5 if m.allocator == used else 1.2 for m in memory]
    allocated = go.Bar(
        name="allocated", orientation="h", x=[m.peak_bytes for m in memory], y=y, width=22, hoverinfo="text",
        marker={"color": look.track, "line": {"color": outline, "width": width}},
        hovertext=[f"{markup(m.allocator, 40)}: {m.peak_bytes:,} bytes allocated" for m in memory],
    )  # fmt: skip
    live = go.Bar(
        name="live", orientation="h", x=[m.peak_live_bytes for m in memory], y=y, width=10, hoverinfo="text",
        marker={"color": outline, "opacity": [1.0 if m.allocator == used else 0.5 for m in memory]},
        hovertext=[f"{markup(m.allocator, 40)}: {m.peak_live_bytes:,} bytes live" for m in memory],
    )  # fmt: skip
    figure = go.Figure([allocated, live])
    figure.update_layout(
        barmode="overlay", margin=_MARGIN, showlegend=False, dragmode=False,
        paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)",
        font={"family": FONT, "size": 12, "color": look.ink},
        hoverlabel={"bgcolor": look.surface, "font": {"color": look.ink, "family": FONT}},
        xaxis={"range": [0, longest * 1.02], "visible": False, "fixedrange": True},
        yaxis={
            "range": [max(len(memory), 1) * _BAND - _BAND / 2, -_BAND / 2], "fixedrange": True, "showgrid": False,
            "zeroline": False, "tickvals": y, "ticktext": [_name(m, used) for m in memory], "ticklabelstandoff": 8,
        },
        annotations=[
            {"x": m.peak_bytes, "y": at, "text": _note(m), "xanchor": "left", "xshift": 8, "showarrow": False}
            for m, at in zip(memory, y, strict=True)
        ],
    )  # fmt: skip
    return figure


def memory_height(memory: Sequence[Memory]) -> int:
    """Height of the figure, px."""
    return max(len(memory), 1) * _BAND + _MARGIN["t"] + _MARGIN["b"]


def _name(memory: Memory, used: str) -> str:
    name = markup(memory.allocator, 20)
    return f"<b>{name}, used</b>" if memory.allocator == used else name


def _note(memory: Memory) -> str:
    note = f"{size(memory.peak_bytes)}, {size(memory.peak_live_bytes)} live"
    if not memory.hazards:
        return note
    return f'{note}  <b style="color:{COLOURS["sync"]}">▲ {memory.hazards} hazard{"s" * (memory.hazards > 1)}</b>'
