"""Parses a destination: a token, a time on the axis, or the next gap longer than a given time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from dashboard.reading.run import Run
from dashboard.scene import limits_of, token_of, whole_of
from dashboard.text import plain
from dashboard.timeline.align import token_range
from dashboard.timeline.layout import Panel
from dashboard.units import duration
from dashboard.view import View, span

ASKS: Final = "Type a token's number, a time on the axis such as 1.5 ms, or > 100 µs for the next gap longer than that."
_UNITS: Final = {"ns": 1.0, "us": 1e3, "µs": 1e3, "μs": 1e3, "ms": 1e6, "s": 1e9}
_TOKEN: Final = re.compile(r"(?:token\s*|#)?(\d{1,12})", re.IGNORECASE)
_TIME: Final = re.compile(r"([-+−]?\d{1,15}(?:\.\d{0,9})?)\s*(ns|us|µs|μs|ms|s)", re.IGNORECASE)
_GAP: Final = re.compile(r"(?:gap\s*>?|>)\s*(.*)", re.IGNORECASE)
_FITS: Final = (1.2, 20)  # times the gap: views of such a width keep it
_ROOM: Final = 3  # times the gap, for other views


@dataclass(frozen=True)
class Gone:
    """The new view, and a message."""

    view: View
    said: str


def gone(view: View, runs: Sequence[Run], text: str, step: int = 1) -> Gone:
    """Go to the place that the text describes; an empty text means any gap.

    Args:
        view, runs: the current view and its runs.
        text: "17" or "token 17", "-3.5 ms", "> 100 us" or "gap > 100 us".
        step: 1 for the next gap, -1 for the previous one.
    """
    wanted = text.strip()
    if not any(run.tokens for run in runs):
        return Gone(view, "No run shown has token steps.")
    if found := _TOKEN.fullmatch(wanted):
        return _to_token(view, runs, int(found[1]))
    if found := _TIME.fullmatch(wanted):
        return _to_time(view, runs, _ns(found))
    gap = _GAP.fullmatch(wanted)
    longer = _TIME.fullmatch(gap[1].strip()) if gap is not None else None
    if longer is not None or not wanted or (gap is not None and not gap[1]):
        return _to_gap(view, runs, 0 if longer is None else _ns(longer), step)
    return Gone(view, f"“{plain(wanted, 40)}” is not a destination. {ASKS}")


def _ns(found: re.Match[str]) -> float:
    return float(found[1].replace("−", "-")) * _UNITS[found[2].lower()]


def _to_token(view: View, runs: Sequence[Run], number: int) -> Gone:
    last = max(len(run.tokens) for run in runs if run.tokens is not None) - 1
    if number > last:
        return Gone(view, f"There is no token {number}; the last one is {last}.")
    return Gone(replace(view, token=number, range=None), f"Token {number} of 0 to {last}.")


def _to_time(view: View, runs: Sequence[Run], time: float) -> Gone:
    low, high = whole_of(runs, view)
    if not low <= time <= high:
        held = f"from {duration(low)} to {duration(high)}"
        return Gone(view, f"Nothing was recorded at {duration(time)}: on this axis the recording is {held}.")
    first, last = limits_of(runs, view)
    half = (last - first) / 2
    return Gone(replace(view, range=span(time - half, time + half)), f"{duration(time)} is in the middle.")


def _to_gap(view: View, runs: Sequence[Run], longer: float, step: int) -> Gone:
    token, limits = token_of(runs, view), limits_of(runs, view)
    starts, gaps, whose = [], [], []
    for number, run in enumerate(runs):
        if run.tokens is not None:
            has = run.tokens.gap > max(longer, 0)
            starts.append(run.tokens.end[has] - run.tokens.anchor(token, view.align))
            gaps.append(run.tokens.gap[has])
            whose += [(number, name) for name in run.tokens.step[has].tolist()]
    start, gap = np.concatenate(starts), np.concatenate(gaps)
    if not len(gap):
        longest = max(int(run.tokens.gap.max()) for run in runs if run.tokens is not None and len(run.tokens))
        return Gone(view, f"No gap is longer than {duration(longer)}; the longest is {duration(max(longest, 0))}.")
    order = np.argsort(start + gap / 2, kind="stable")
    middles, here = (start + gap / 2)[order], sum(limits) / 2
    beside = int(np.searchsorted(middles, here + step, "right" if step > 0 else "left")) - (step < 0)
    around, at = not 0 <= beside < len(order), beside % len(order)
    which = int(order[at])
    wide, long = limits[1] - limits[0], int(gap[which])
    half = (wide if _FITS[0] * long <= wide <= _FITS[1] * long else _ROOM * long) / 2
    number, name = whose[which]
    of = f" of {plain(runs[number].name, 60)}" if len(runs) > 1 else ""
    again = (" Continued from the start." if step > 0 else " Continued from the end.") if around else ""
    said = f"Gap {at + 1} of {len(order)}{f' longer than {duration(longer)}' if longer > 0 else ''}: {duration(long)} "
    middle = start[which] + long / 2
    return Gone(replace(view, range=span(middle - half, middle + half)), f"{said}after token {name}{of}.{again}")


def at_token(view: View, runs: Sequence[Run], panels: Sequence[Panel], x: float, y: float) -> View:
    """The view of the token that is at a point of the figure, `x` ns from time 0 and `y` px from its top."""
    shown = [(run, panel) for run, panel in zip(runs, panels, strict=True) if run.tokens is not None]
    under = [run for run, panel in shown if panel.top <= y < panel.bottom] or [run for run, _ in shown[:1]]
    if not under or under[0].tokens is None:
        return view
    tokens = under[0].tokens
    anchor = tokens.anchor(token_of(runs, view), view.align)
    at = tokens.clamp(int(np.searchsorted(tokens.start, x + anchor, side="right")) - 1)
    return replace(view, range=token_range(tokens, at, anchor))
