"""Figures: pure functions from tables to Plotly figures; a figure as a page receives it; and the causes of the gap and
of the idle time as stacked bars, one per run or per place.

The numbers of a figure are packed, and what the marks of a trace have in common is sent once, because most of a
timeline's payload would be repetition.
"""

from __future__ import annotations

import base64
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Final

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from dashboard.headline import tracing
from dashboard.palette import COLOURS, THEMES
from dashboard.reading.run import Run
from dashboard.text import duration, markup, microseconds, ticks
from tracer.analysis.idle import PLACES

Plot = dict[str, Any]  # A figure in Plotly's own form: `data` and `layout`, with NumPy arrays


def packed(value: Any) -> Any:
    """A plot, or a part of one, as JSON: floats and small numbers in base64, which plotly.js has supported since
    2.35."""
    match value:
        case np.ndarray() if value.dtype.kind == "f" or value.dtype == np.uint16:
            little = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
            return {"dtype": little.dtype.str[1:], "bdata": base64.b64encode(little.tobytes()).decode()}
        case np.ndarray():
            return value.tolist()
        case dict():
            return {key: packed(inner) for key, inner in value.items()}
        case [dict(), *_]:
            return [packed(inner) for inner in value]
    return value


def hover(texts: list[str], template: str) -> dict[str, Any]:
    """`hovertext` and `hovertemplate` of a trace: the common beginning and end of all texts are in the template.

    Texts that are all equal are in the template alone: plotly.js fills in only what is a list.

    Args:
        template: where `%{hovertext}` stands for the text.

    Example:
        >>> hover(["idle 2 µs", "idle 3 µs"], "%{hovertext}<extra></extra>")
        {'hovertext': ['2', '3'], 'hovertemplate': 'idle %{hovertext} µs<extra></extra>'}
    """
    before = _common(texts)
    after = _common([text[len(before) :][::-1] for text in texts])[::-1]
    if "%{" in before or "%{" in after:  # which a template would fill in
        return {"hovertext": texts, "hovertemplate": template}
    if len(set(texts)) == 1:
        return {"hovertemplate": template.replace("%{hovertext}", before)}
    rest = [text[len(before) : len(text) - len(after)] for text in texts]
    return {"hovertext": rest, "hovertemplate": template.replace("%{hovertext}", f"{before}%{{hovertext}}{after}")}


def width_of_bars(values: NDArray[Any]) -> Any:
    """The width of a trace's bars, px: one number if all are equal."""
    return float(values[0]) if len(values) and (values == values[0]).all() else np.asarray(values, "float32")


def _common(texts: list[str]) -> str:
    """What all texts begin with: no more than the first and the last of them in order, and no less."""
    first, last = min(texts, default=""), max(texts, default="")
    return "".join(one for one, _ in takewhile(lambda both: both[0] == both[1], zip(first, last, strict=False)))


CAUSE_COLOURS: Final = {
    "communication": COLOURS["communication"],
    "sync": COLOURS["sync"],
    "copy": COLOURS["copy"],
    "launch": COLOURS["launch"],
    "host": COLOURS["host"],
    "other process/thread": COLOURS["other"],
}
"""Cause, as in `tracer.analysis.causes.CAUSES` -> colour; also the order of the stack."""

_LEAST = 0.01  # of the idle time: a place with less has no bar
_BAND = 58  # px per run
_LINE = 17  # px of a note on a line of its own
_NARROW = 600  # px; then notes are on their own lines
_CHARACTER = 7.2  # px
_TICK = 75  # px per label of the axis
_LEAST_TEXT = 9  # px; smaller labels are left out
_INSIDE = 0.055  # share of the axis below which a segment has no label


@dataclass(frozen=True)
class Causes:
    """A mean: its name, its causes (cause -> µs), a note such as "traced", a description, and its causes from the
    untraced rate, if that gives them."""

    name: str
    causes_us: dict[str, float]
    note: str = ""
    of: str = "the gap"
    untraced_us: Mapping[str, float] = field(default_factory=dict)

    @property
    def shown_us(self) -> Mapping[str, float]:
        """The causes without tracing where known."""
        return self.untraced_us or self.causes_us

    @property
    def total_us(self) -> float:
        """The mean that is shown, µs."""
        return sum(self.shown_us.values())


def causes_of(runs: Sequence[Run]) -> list[Causes]:
    """The causes of the gaps of these runs, with notes."""
    causes = []
    for run in runs:
        summary = run.summary
        if not summary.causes_us:
            continue
        notes = ["mean"]
        if not summary.untraced_causes_us:
            notes.append(f"median {microseconds(summary.gap_p50_us)}")
            level = f" ({summary.graph_trace} level)" if summary.graph_trace != "none" else ""
            notes += [f"as recorded{level}: inflated"] if summary.traced else []
        elif summary.untraced_gap_us is not None or summary.estimated_untraced_gap_us is not None:
            notes.append(f"median {summary.estimated_untraced_gap_us or microseconds(summary.untraced_gap_us)}")
        if summary.untraced_causes_us:
            notes += ["untraced", *filter(None, [tracing(run)])]
        causes.append(Causes(run.name, summary.causes_us, " · ".join(notes), untraced_us=summary.untraced_causes_us))
    return causes


def idle_of(runs: Sequence[Run]) -> list[Causes]:
    """The causes of the idle time of a step of each run; empty if no run idles outside the gap."""
    idles = [(run, run.gaps.idle.idle_us, run.gaps.idle.causes_us) for run in runs if run.gaps is not None]
    idling = [(run, idle_us, causes_us) for run, idle_us, causes_us in idles if idle_us]
    if not any(idle_us["between_steps"] < (1 - _LEAST) * idle_us["mean"] for _, idle_us, _ in idling):
        return []
    causes = []
    for run, idle_us, causes_us in idling:
        notes = [f"{name} {microseconds(idle_us[place])}" for place, name in PLACES.items() if idle_us[place]]
        if run.inflated:
            notes.append("as recorded: inflated")
            notes += [f"median {microseconds(us)} untraced"] if (us := run.summary.untraced_idle_us) else []
            notes += [f"median untraced {wide}"] if (wide := run.summary.estimated_untraced_idle_us) else []
        by_cause = {cause: sum(causes_us[place][cause] for place in PLACES) for cause in CAUSE_COLOURS}
        causes.append(Causes(run.name, by_cause, " · ".join(notes), "the idle time"))
    return causes


def places_of(runs: Sequence[Run]) -> list[Causes]:
    """The causes of the idle time at each place where a run idles for a significant time."""
    causes = []
    for run in runs:
        if run.gaps is None or not run.gaps.idle.idle_us:
            continue
        idle_us, causes_us = run.gaps.idle.idle_us, run.gaps.idle.causes_us
        places = [place for place in PLACES if idle_us[place] > _LEAST * idle_us["mean"]]
        untraced = run.summary.untraced_causes_us if places == ["between_steps"] else {}
        for place in places:
            note = f"{idle_us[place] / idle_us['mean']:.0%} of its idle time"
            note += ", untraced" if untraced else ", as recorded: inflated" if run.inflated else ""
            causes.append(Causes(f"{run.name}: {PLACES[place]}", causes_us[place], note, "it", untraced))
    return causes


def causes_text(causes: Sequence[Causes]) -> str:
    """A description of the bars."""
    return "; ".join(f"{each.name}: {duration(each.total_us * 1e3)} ({each.note})" for each in causes)


def causes_figure(runs: Sequence[Causes], theme: str, width: int = _NARROW) -> go.Figure:
    """One bar per run, its name above it and its total after it, on a common axis, for a page this wide (px)."""
    look, lines, letters = THEMES[theme], _lines(runs, width), _letters(width)
    band = _BAND + lines * _LINE
    longest = max((run.total_us for run in runs), default=0.0) or 1.0
    figure = go.Figure([_bar(cause, runs, longest, band) for cause in CAUSE_COLOURS])
    times, texts = ticks(0, round(longest * 1.02e3), most=min(8, max(width // _TICK, 2)))
    annotations: list[dict[str, object]] = []
    for i, run in enumerate(runs):
        note = "<br>".join(map(markup, textwrap.wrap(run.note, letters))) if lines else markup(run.note)
        note = f'{"<br>" if lines else "  "}<span style="color:{look.muted}">{note}</span>' if run.note else ""
        common = {"showarrow": False, "xanchor": "left", "yanchor": "middle", "align": "left"}
        annotations += [
            {**common, "name": "run", "x": 0, "y": (i + 1) * band - 36, "yanchor": "bottom",
             "font": {"size": 12.5}, "text": f"{markup(run.name, min(60, letters))}{note}"},
            {**common, "name": "total", "x": run.total_us * 1e-6, "y": (i + 1) * band - 22, "font": {"size": 14},
             "text": f"<b>{duration(run.total_us * 1e3)}</b>", "xshift": 8},
        ]  # fmt: skip
    figure.update_layout(
        barmode="stack",
        bargap=0,
        margin={"l": 8, "r": 76, "t": 0, "b": 26},
        **look.layout,
        dragmode=False,
        uniformtext={"minsize": _LEAST_TEXT, "mode": "hide"},
        xaxis={"range": [0, longest * 1.02e-6], "tickvals": [t / 1e9 for t in times], "ticktext": texts,
               "fixedrange": True, "gridcolor": look.line, "zeroline": False,
               "tickfont": {"color": look.muted, "size": 11}},
        yaxis={"range": [max(len(runs), 1) * band, 0], "visible": False, "fixedrange": True},
        annotations=annotations,
    )  # fmt: skip
    return figure


def causes_height(runs: Sequence[Causes], width: int = _NARROW) -> int:
    """Height of the figure, px."""
    return max(len(runs), 1) * (_BAND + _lines(runs, width) * _LINE) + 26


def _lines(runs: Sequence[Causes], width: int) -> int:
    """How many lines the notes have of their own below the names."""
    if width >= _NARROW:
        return 0
    return max((len(textwrap.wrap(run.note, _letters(width))) for run in runs), default=0)


def _letters(width: int) -> int:
    return max(int(width / _CHARACTER), 1)


def _bar(cause: str, runs: Sequence[Causes], longest: float, band: int) -> go.Bar:
    values = [run.shown_us.get(cause, 0.0) for run in runs]
    return go.Bar(
        name=cause,
        orientation="h",
        x=[value * 1e-6 for value in values],
        y=[(i + 1) * band - 22 for i in range(len(runs))],
        width=22,
        marker={"color": CAUSE_COLOURS[cause], "line": {"width": 0}},
        text=[duration(value * 1e3) if value > _INSIDE * longest else "" for value in values],
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
        textfont={"size": 11, "color": "#1B2430" if cause in {"launch", "host"} else "#FFFFFF"},
        hovertext=[
            f"{cause}: {duration(value * 1e3)}, {value / (run.total_us or 1):.0%} of {run.of}"
            for value, run in zip(values, runs, strict=True)
        ],
        hoverinfo="text",
        showlegend=False,
    )
