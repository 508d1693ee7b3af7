"""What the gap is made of: one stacked bar per run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import plotly.graph_objects as go

from dashboard.palette import COLOURS, FONT, THEMES
from dashboard.run import Run
from dashboard.text import markup
from dashboard.units import duration, microseconds, ticks

CAUSE_COLOURS: Final = {
    "communication": COLOURS["communication"],
    "sync": COLOURS["sync"],
    "copy": COLOURS["copy"],
    "launch": COLOURS["launch"],
    "host": COLOURS["host"],
    "other process/thread": COLOURS["other"],
}
"""Cause, as `tracer.analysis.causes.CAUSES` calls it -> colour; also the order of the stack."""

_BAND = 58  # px per run
_INSIDE = 0.055  # share of the axis below which a piece bears no figure


@dataclass(frozen=True)
class Causes:
    """A run's mean gap: its name, what it is made of (cause -> µs), and a note such as "traced"."""

    name: str
    causes_us: dict[str, float]
    note: str = ""

    @property
    def total_us(self) -> float:
        """The mean gap, µs."""
        return sum(self.causes_us.values())


def causes_of(runs: Sequence[Run]) -> list[Causes]:
    """What the gaps of these runs are made of, with what a reader must know of each."""
    found = []
    for run in runs:
        summary = run.summary
        if not summary.causes_us:
            continue
        notes = [f"median {microseconds(summary.gap_p50_us)}"]
        if summary.traced:
            notes.append(f"traced ({summary.graph_trace} level): inflated")
            if summary.untraced_gap_us is not None:
                notes.append(f"untraced {microseconds(summary.untraced_gap_us)}")
            elif summary.estimated_untraced_gap_us is not None:
                notes.append(f"untraced {summary.estimated_untraced_gap_us}")
        if summary.distortion is not None and summary.distortion != 1.0:
            notes.append(f"distortion {summary.distortion:.2f}")
        found.append(Causes(run.name, summary.causes_us, " · ".join(notes)))
    return found


def causes_figure(runs: Sequence[Causes], theme: str) -> go.Figure:
    """One bar per run, its name above it and its total behind it, on a common axis."""
    look = THEMES[theme]
    longest = max((run.total_us for run in runs), default=0.0) or 1.0
    figure = go.Figure([_bar(cause, runs, longest) for cause in CAUSE_COLOURS])
    times, texts = ticks(0, round(longest * 1.02e3), most=8)
    annotations: list[dict[str, object]] = []
    for i, run in enumerate(runs):
        note = f'  <span style="color:{look.muted}">{markup(run.note)}</span>' if run.note else ""
        common = {"showarrow": False, "xanchor": "left", "yanchor": "middle"}
        annotations += [
            {**common, "name": "run", "x": 0, "y": i * _BAND + 14, "font": {"size": 12.5},
             "text": f"{markup(run.name, 60)}{note}"},
            {**common, "name": "total", "x": run.total_us * 1e-6, "y": i * _BAND + 36, "font": {"size": 14},
             "text": f"<b>{duration(run.total_us * 1e3)}</b>", "xshift": 8},
        ]  # fmt: skip
    figure.update_layout(
        barmode="stack",
        bargap=0,
        margin={"l": 8, "r": 76, "t": 0, "b": 26},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": FONT, "size": 12, "color": look.ink},
        hoverlabel={"bgcolor": look.surface, "font": {"color": look.ink, "family": FONT}},
        dragmode=False,
        xaxis={"range": [0, longest * 1.02e-6], "tickvals": [t / 1e9 for t in times], "ticktext": texts,
               "fixedrange": True, "gridcolor": look.line, "zeroline": False,
               "tickfont": {"color": look.muted, "size": 11}},
        yaxis={"range": [max(len(runs), 1) * _BAND, 0], "visible": False, "fixedrange": True},
        annotations=annotations,
    )  # fmt: skip
    return figure


def causes_height(runs: Sequence[Causes]) -> int:
    """How tall the figure is, px."""
    return max(len(runs), 1) * _BAND + 26


def _bar(cause: str, runs: Sequence[Causes], longest: float) -> go.Bar:
    values = [run.causes_us.get(cause, 0.0) for run in runs]
    return go.Bar(
        name=cause,
        orientation="h",
        x=[value * 1e-6 for value in values],
        y=[i * _BAND + 36 for i in range(len(runs))],
        width=22,
        marker={"color": CAUSE_COLOURS[cause], "line": {"width": 0}},
        text=[duration(value * 1e3) if value > _INSIDE * longest else "" for value in values],
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
        textfont={"size": 11, "color": "#1B2430" if cause in {"launch", "host"} else "#FFFFFF"},
        hovertext=[
            f"{cause}: {duration(value * 1e3)}, {value / (run.total_us or 1):.0%} of the gap"
            for value, run in zip(values, runs, strict=True)
        ],
        hoverinfo="text",
        showlegend=False,
    )
