"""A prediction in figures and words."""

from __future__ import annotations

from dash import html

from dashboard.reading.predictions import WhatIf
from dashboard.text import plain
from dashboard.units import duration
from tracer.analysis.whatif.prediction import Prediction

_WITHOUT_RATE = (
    "Without the rate the prediction includes tracing overhead: both timelines are slowed by it, and the "
    "gain is unknown. Enter the engine's own rate above (untraced steps/s), or put it into run.json (measured)."
)


def lines_of(prediction: Prediction) -> list[dict[str, str]]:
    """One row per figure: heading -> text, as recorded, without the profiler and predicted."""
    traced = prediction.of_engine is None
    label = plain(prediction.label, 120) + (", still under the profiler" if traced else "")
    columns = {"as recorded": prediction.recorded, "corrected": prediction.corrected, label: prediction.predicted}
    shown = {name: one for name, one in columns.items() if one is not None}
    known = prediction.recorded.tokens_per_s is not None
    per_s = {name: one.tokens_per_s if known else one.steps_per_s for name, one in shown.items()}
    rates = {name: f"{rate:,.1f}" for name, rate in per_s.items()} | ({label: "–"} if traced else {})
    lines = [
        {"": "Tokens/s" if known else "Steps/s"} | rates,
        {"": "Token to token"} | {name: duration(one.period_us * 1e3, 4) for name, one in shown.items()},
        _times("Idle a step p50", "p50", {name: one.idle_us for name, one in shown.items()}),
        *(
            _times(f"Gap {key}", key, {name: one.gap_us for name, one in shown.items()})
            for key in ("p50", "p90", "mean")
        ),
    ]
    before, bounds = list(shown)[-2], prediction.speedup.bounds
    nothing = dict.fromkeys(shown, "–")
    speedup = "withheld" if traced else f"{prediction.speedup.estimate:.4f}"
    margin = "–" if bounds is None else f"{bounds[0]:.3f} to {bounds[1]:.3f}"
    return [
        *lines,
        {"": "Speed-up"} | nothing | {before: "1", label: speedup},
        {"": "Model margin"} | nothing | {label: margin},
    ]


def _times(heading: str, key: str, us: dict[str, dict[str, float]]) -> dict[str, str]:
    return {"": heading} | {name: duration(each[key] * 1e3) if key in each else "–" for name, each in us.items()}


def notes_of(answer: WhatIf) -> list[html.Li]:
    """The assumptions, and the limitations of the recording."""
    notes = [plain(note, 300) for note in answer.found.notes]
    notes += [] if answer.found.of_engine else [_WITHOUT_RATE]
    if any(run.tokens is None for run in answer.runs):
        notes.append("No token steps were found in the new timeline, so it is not drawn.")
    return [html.Li(note) for note in notes]
