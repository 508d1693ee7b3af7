"""The tables of the gap page, from the gap reports of its runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pandas as pd

from dashboard.figures.gaps import GapPanel
from dashboard.pages import link
from dashboard.pages.parts import links, number, words
from dashboard.reading.run import Run
from dashboard.scene import range_of
from dashboard.text import plain
from dashboard.units import microseconds
from dashboard.view import View
from tracer.analysis.causes import CAUSES, PART_NAMES, PARTS
from tracer.analysis.gaps import GapReport
from tracer.analysis.interval import Interval
from tracer.analysis.summary import Summary

ADDRESS: Final = "gap/"
LONGEST: Final = 12
"""Number of gaps of each run in the table of the longest."""
LONGEST_COLUMNS: list[dict[str, Any]] = [
    words("run", "Run", 240) | {"minWidth": 200, "flex": 2},
    number("gap", "Gap, µs", ",.1f", 100),
    links("show", "In the timeline", 120, "Show the gap after this token"),
    number("device", "GPU", "d", 70),
    number("times", "× median", ",.1f", 96, "Gap divided by the run's median gap"),
    words("cause", "Largest cause", 150),
    number("share", "Its share", ".0%", 90, "Share of the gap"),
    words("part", "Mostly", 250, "The largest component of that cause") | {"minWidth": 200, "flex": 2},
]
MADE_OF_COLUMNS: list[dict[str, Any]] = [
    words("run", "Run", 240) | {"minWidth": 200, "flex": 2},
    words("cause", "Cause", 160),
    words("part", "Part of it", 280) | {"minWidth": 200, "flex": 2},
    number("mean", "Mean, µs", ",.2f", 100, "Components add up to their cause, causes to the gap"),
    number("untraced", "Untraced, µs", ",.2f", 116, "Mean without tracing, from the untraced rate"),
    number("share", "Share", ".1%", 80, "Of the mean gap"),
    number("median", "Median, µs", ",.2f", 106, "Median over all gaps; medians do not add up"),
    number("p90", "p90, µs", ",.2f", 90, "90th percentile over all gaps"),
]


def panels_of(runs: Sequence[Run]) -> list[GapPanel]:
    """The panels of the figures: one per run, or per device of a run on several devices."""
    panels = []
    for run in runs:
        if run.gaps is not None:
            devices = run.gaps.table["device"].unique()
            for device in sorted(map(int, devices)):
                table = run.gaps.table[run.gaps.table["device"] == device]
                name = plain(run.name, 60) + (f" · GPU {device}" if len(devices) > 1 else "")
                panels.append(GapPanel(name, _note(run.gaps), table, run.key))
    return panels


def _note(report: GapReport) -> str:
    """A note on how the times were recorded."""
    if report.warning is None:
        return report.left_out or ""
    distortion = f", tracing overhead × {report.distortion:.2f}" if report.distortion is not None else ""
    return f"traced ({report.graph_trace} level): inflated{distortion}"


def figures_of(run: Run) -> dict[str, str]:
    """A run's row in the table of gaps: heading -> text."""
    assert run.gaps is not None
    of = run.summary
    return {
        "Run": plain(run.name, 90),
        "Idle p50": microseconds(of.idle_us.get("p50")),
        "Idle p50 without tracing": _untraced(of, of.untraced_idle_us),
        "Gaps": f"{len(run.gaps.table):,}",
        "p50": microseconds(of.gap_p50_us),
        "p90": microseconds(of.gap_p90_us),
        "Mean": microseconds(of.gap_mean_us),
        "Recorded": f"traced, {of.graph_trace} level" if of.traced else "no profiler",
        "Tracing overhead, ×": "–" if of.distortion is None else f"{of.distortion:.2f}",
        "p50 without tracing": _untraced(of, of.estimated_untraced_gap_us or of.untraced_gap_us),
    }


def _untraced(of: Summary, us: Interval | float | None) -> str:
    if not of.traced:
        return "the same"
    if us is None:
        return "not known"
    return microseconds(us) if isinstance(us, float) else str(us)


def longest_of(runs: Sequence[Run], theme: str) -> list[dict[str, Any]]:
    """The longest gaps of every run: run, step, device, gap and median (µs), cause, its share (0..1), part and link."""
    return [row for run in runs if run.gaps is not None for row in _longest(run, run.gaps, theme)]


def _longest(run: Run, report: GapReport, theme: str) -> list[dict[str, Any]]:
    rows = []
    for gap in report.table.nlargest(LONGEST, "gap").to_dict("records"):
        cause = max(CAUSES, key=lambda column: gap[column])
        part = max(PARTS[cause], key=lambda column: gap[column])
        rows.append(
            {
                "run": plain(run.name, 90),
                "step": int(gap["step"]),
                "device": int(gap["device"]),
                "gap": gap["gap"] / 1e3,
                "times": gap["gap"] / 1e3 / report.gap_us["p50"] if report.gap_us["p50"] > 0 else None,
                "cause": CAUSES[cause] if gap["gap"] else "",
                "share": gap[cause] / gap["gap"] if gap["gap"] else None,
                "part": PART_NAMES[part] if gap["gap"] else "",
                "show": f"[token {int(gap['step'])}]({timeline_link(run, int(gap['step']), theme)})",
            }
        )
    return rows


def timeline_link(run: Run, step: int, theme: str) -> str:
    """The overview at a step of the run, zoomed to the gap after it."""
    assert run.tokens is not None
    at = run.tokens.clamp(int(np.searchsorted(run.tokens.step, step)))
    view = View(runs=(run.key,), token=at, theme=theme, rates=run.rates)
    return link("", ADDRESS) + replace(view, range=range_of([run], view, "gap")).query()


def made_of(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The causes of the gaps: per run the gap, its causes and their components.

    Columns run, cause, part ("" for the whole cause), and over all gaps, in µs, mean (parts add up to their cause,
    causes to the gap), median and p90, as recorded; untraced is the mean from the untraced rate, None where that cannot
    give it; share is of the mean gap, 0..1.
    """
    return [row for run in runs if run.gaps is not None for row in _made_of(plain(run.name, 90), run.gaps)]


def _made_of(name: str, report: GapReport) -> list[dict[str, Any]]:
    total = report.gap_us["mean"]
    table, corrected = report.table, report.corrected() if report.warning and report.untraced_gap_us else None
    rows = [_row(name, "gap", "", total, total, table["gap"]) | {"untraced": corrected and corrected.gap_us["mean"]}]
    for column, cause in CAUSES.items():
        if cause == "communication" and not table[column].any():
            continue  # most recordings have one device
        whole = _row(name, cause, "", report.causes_us[cause], total, table[column])
        rows.append(whole | {"untraced": corrected and corrected.causes_us[cause]})
        rows += [
            _row(name, cause, PART_NAMES[part], us, total, table[part])
            | {"untraced": corrected and corrected.parts_us[cause][part]}
            for part, us in report.parts_us[cause].items()
            if us
        ]
    return rows


def _row(run: str, cause: str, part: str, mean: float, total: float, ns: pd.Series) -> dict[str, Any]:
    return {
        "run": run,
        "cause": cause,
        "part": part,
        "mean": mean,
        "share": mean / total if total > 0 else None,
        "median": float(ns.median() / 1e3),
        "p90": float(ns.quantile(0.9) / 1e3),
    }
