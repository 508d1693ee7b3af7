"""A prediction in figures and words."""

from __future__ import annotations

from dash import html

from dashboard.predictions import WhatIf
from dashboard.text import plain
from dashboard.units import duration
from tracer.analysis.whatif.prediction import Prediction
from tracer.analysis.whatif.untraced import ESTIMATED, TRACED

_BASES = {
    ESTIMATED: "What the profiler added to the recording is estimated, and left out of both lines.",
    TRACED: "What the profiler added to the recording is not known: both lines are slowed by it.",
}


def lines_of(found: Prediction) -> list[dict[str, str]]:
    """The recorded and the predicted run: heading -> what stands there."""
    speedup = found.speedup
    interval = f"{speedup.estimate:.4f} [{speedup.low:.3f}, {speedup.high:.3f}]"
    recorded = _line("as recorded", found.base_tokens_per_s, "1", found.base_period_us, found.base_gap_us)
    return [recorded, _line(plain(found.label, 120), found.tokens_per_s, interval, found.period_us, found.gap_us)]


def _line(name: str, rate: float, speedup: str, period_us: float, gap_us: dict[str, float]) -> dict[str, str]:
    return {
        "": name,
        "Tokens/s": f"{rate:,.1f}",
        "Speed-up [95 %]": speedup,
        "Token to token": duration(period_us * 1e3, 4),
        **{f"Gap {key}": duration(gap_us[key] * 1e3) for key in ("p50", "p90", "mean")},
    }


def notes_of(answer: WhatIf) -> list[html.Li]:
    """What is taken for granted, and what the recording does not tell."""
    notes = [plain(note, 300) for note in answer.found.notes]
    notes += [_BASES[answer.found.base]] if answer.found.base in _BASES else []
    if any(run.tokens is None for run in answer.runs):
        notes.append("No token steps can be made out in the new timeline, so it is not drawn.")
    return [html.Li(note) for note in notes]
