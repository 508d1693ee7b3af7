"""Describes a comparison in words: which run is faster, by how much, and why.

A sentence is a list of phrases; a phrase with a figure names its `Line`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import expm1
from typing import Final

from tracer.analysis.compare import (
    BUSY,
    DISTORTION,
    GAP,
    MEAN_GAP,
    RATES,
    Comparison,
    Side,
    figure_of_cause,
    figure_of_count,
    figure_of_needed,
)
from tracer.analysis.difference import POWER
from tracer.analysis.interval import Interval
from tracer.analysis.recorded import WHOLE_GRAPH
from tracer.analysis.sides import Refusal
from tracer.model.columns import among
from tracer.text import percent as percent_of
from tracer.text import signed

_COUNT_OF: Final = {"sync": "syncs", "copy": "copies", "launch": "launches"}
"""Cause of the gap -> the calls behind it."""

_ONE: Final = {"syncs": "sync", "copies": "copy", "launches": "launch"}
_LEAST: Final = 0.05  # what is not shown as 0
_ESTIMATED: Final = "untraced, estimated"
RATE_BASIS: Final = {
    "untraced": "untraced",
    "light": "of the recorded steps, untraced",
    "traced": "as traced, including tracing overhead",
}


@dataclass(frozen=True)
class Phrase:
    """A part of a sentence, and the figure of its line ("" if it has none)."""

    text: str
    figure: str = ""


def sentence(comparison: Comparison) -> str:
    """The comparison in one sentence."""
    return "".join(phrase.text for phrase in phrases(comparison))


def phrases(comparison: Comparison) -> list[Phrase]:
    """The sentence as phrases."""
    if comparison.refusal is not None:
        return list(_no_verdict(comparison, comparison.refusal))
    rate = _rate(comparison)
    if comparison.showable is not None:
        rate += _deciding(comparison, *comparison.showable)
    if comparison.verdict == "no interval":
        rate.append(Phrase(f" ({comparison.method}, so no interval can be given)"))
    first, second = rate, [*_gpu(comparison), *_gap(comparison)]
    if comparison.verdict in ("faster", "slower"):
        first, second = second, first
    return [Phrase(f"{_verdict(comparison)}: "), *first, Phrase("; "), *second]


def _deciding(comparison: Comparison, many: int, smallest: float) -> Iterator[Phrase]:
    """How much to measure for a verdict; if that is too much, which speed-up (its logarithm) many units would show."""
    of, needed = "" if comparison.seconds is None else f" of {comparison.seconds:g} s", comparison.needed
    units, power = f"{comparison.unit}{of} per run", f"({POWER:.0%} power)"
    if needed is not None and needed <= many:
        runs = Phrase(f"{needed:,} {units}", figure_of_needed(comparison.unit))
        yield from (Phrase("; about "), runs, Phrase(f" would show an effect of that size {power}"))
    else:
        yield Phrase(f"; {many:,} {units} would show an effect of {100 * expm1(smallest):.2g} % or more {power}")


def _no_verdict(comparison: Comparison, refusal: Refusal) -> Iterator[Phrase]:
    """Why there is no verdict, what is known nevertheless, and what to measure."""
    yield Phrase(f"{comparison.other.name} against {comparison.base.name}: no verdict: {refusal.why}")
    for number, phrases_of in enumerate(_all_the_same(comparison)):
        yield Phrase(", " if number else "; what is known: ")
        yield from phrases_of
    yield Phrase(f"; for a verdict, {refusal.instead}")


def _all_the_same(comparison: Comparison) -> Iterator[list[Phrase]]:
    """What is known without a verdict."""
    if comparison.speedup is not None:
        yield _rate(comparison)
    for kind, change in comparison.counts.items():
        yield [Phrase(_counted(kind, change) if change else f"same number of {kind}", figure_of_count(kind))]
    if comparison.busy_us is not None:
        yield [Phrase(f"GPU busy {difference(comparison.busy_us)} µs per token", BUSY)]
    kernels = comparison.kernels[~comparison.kernels.name.rows(WHOLE_GRAPH)]
    if len(kernels):
        changed = among(kernels.verdict, ["slower", "faster"]).sum()
        yield [Phrase(f"{changed} of {len(kernels)} kernels with a different duration per call")]


def _rate(comparison: Comparison) -> list[Phrase]:
    traced = _distortion(comparison.base, comparison.other) if comparison.basis == "traced" else []
    return [
        Phrase(f"{comparison.rate} {percent(comparison.speedup)}", RATES[comparison.rate]),
        Phrase(", as traced" if traced else f", {RATE_BASIS[comparison.basis]}"),
        *traced,
    ]


def _verdict(comparison: Comparison) -> str:
    base, other = comparison.base.name, comparison.other.name
    if comparison.verdict in ("faster", "slower"):
        return f"{other} is {comparison.verdict} than {base}"
    verdict = f": {comparison.verdict}" if comparison.verdict == "no difference shown" else ""
    return f"{other} against {base}{verdict}"


def _gpu(comparison: Comparison) -> Iterator[Phrase]:
    """The change in the device's busy time, if it exceeds that of the gap."""
    if comparison.busy_us is None or not is_shown(comparison.busy_us):
        return
    if abs(comparison.busy_us.estimate) > abs(_mean_gap(comparison)):
        yield Phrase(f"GPU busy {signed(comparison.busy_us.estimate)} µs per token", BUSY)
        yield Phrase("; ")


def _gap(comparison: Comparison) -> Iterator[Phrase]:
    which, gap = comparison.gap_statistic, comparison.gap
    figure, mean = (MEAN_GAP, "mean ") if which == "mean" else (GAP, "")
    base, other = (gap_of(run, which) for run in (comparison.base, comparison.other))
    if gap is None:
        yield Phrase(f"gaps of {base} and {other} µs, not comparable", GAP)
        yield Phrase(" (")
        yield from _measured(comparison)
        yield Phrase(")")
        return
    shown = is_shown(gap)
    change = _gap_change(comparison, gap) if shown else "no difference shown"
    change = change if gap.bounds else "no interval"
    yield Phrase(f"{mean}gap from {base} to {other} µs{f' ({change}' if change else ''}", figure)
    yield Phrase("; " if change else " (")
    yield from _measured(comparison)
    yield Phrase(")")
    if shown:
        yield from _reasons(comparison, gap.estimate)


def _gap_change(comparison: Comparison, change: Interval) -> str:
    """The change in the gap: relative if both gaps are known, absolute if only the difference is."""
    base, other = (run.gap_us[comparison.gap_statistic] for run in (comparison.base, comparison.other))
    if base is None or other is None:
        return f"{difference(change)} µs"
    if _ESTIMATED in (_kind(comparison.base), _kind(comparison.other)):
        return f"{signed(change.estimate)} µs"
    return percent_of(other / base - 1, 0) if base > 0 else ""


def _reasons(comparison: Comparison, way: float) -> Iterator[Phrase]:
    """The largest causes that change in the gap's direction, with the calls whose number changed."""
    counts = {kind: change for kind, change in comparison.counts.items() if change}
    causes = {name: c for name, c in comparison.causes_us.items() if is_shown(c) and c.estimate * way > 0}
    causes = dict(sorted(causes.items(), key=lambda item: -abs(item[1].estimate)))
    counted = [name for name in causes if counts.get(_COUNT_OF.get(name, ""), 0) * way > 0]
    if counted and counted[0] == next(iter(causes)):
        for number, name in enumerate(counted):
            kind = _COUNT_OF[name]
            yield Phrase(" and " if number else ", because of ")
            yield Phrase(_counted(kind, counts.pop(kind)), figure_of_count(kind))
            yield Phrase(f" ({name} {signed(causes[name].estimate)} µs)", figure_of_cause(name))
    elif causes:
        name, most = next(iter(causes.items()))
        share = "most of it" if abs(most.estimate) > abs(_mean_gap(comparison)) / 2 else "most of all"
        calls = _COUNT_OF.get(name, "")
        same = f", in the same number of {calls}" if calls in comparison.counts and calls not in counts else ""
        yield Phrase(f", {share} {name} ({signed(most.estimate)} µs{same})", figure_of_cause(name))
    for number, (kind, change) in enumerate(counts.items()):
        yield Phrase(" and " if number else ", with ")
        yield Phrase(_counted(kind, change), figure_of_count(kind))


def _counted(kind: str, change: float) -> str:
    name = _ONE[kind] if abs(change) == 1 else kind
    return f"{abs(change):g} {'fewer' if change < 0 else 'more'} {name}"


def _measured(comparison: Comparison) -> Iterator[Phrase]:
    """Whether the gaps are measured, estimated or inflated, with the tracing overhead of traced passes."""
    base, other = _kind(comparison.base), _kind(comparison.other)
    yield Phrase(base)
    if base == other:
        yield from _distortion(comparison.base, comparison.other)
        return
    yield from _distortion(comparison.base)
    yield Phrase(f" against {other}")
    yield from _distortion(comparison.other)


def _kind(run: Side) -> str:
    first = run.recordings[0]
    if not first.traced:
        return "untraced"
    if first.inflated:
        return "as traced"
    return _ESTIMATED if first.graph_trace == "node" else "untraced, from the rate"


def _distortion(*runs: Side) -> list[Phrase]:
    traced = [run.recordings[0].distortion for run in runs if run.recordings[0].traced]
    known = " and ".join(dict.fromkeys("unknown" if d is None else f"{d:.2f}" for d in traced))
    return [Phrase(", "), Phrase(f"tracing overhead × {known}", DISTORTION)] if traced else []


def _mean_gap(comparison: Comparison) -> float:
    return 0.0 if comparison.mean_gap_us is None else comparison.mean_gap_us.estimate


def gap_of(run: Side, which: str = "p50") -> str:
    """The median or mean gap of a run, µs; in brackets its interval, if that is so wide that there is no figure."""
    wide = run.gap_between(which)
    if wide is not None and wide.bounds:
        return f"[{', '.join(f'{bound:,.1f}' for bound in wide.bounds)}]"
    return f"{run.gap_us[which]:,.1f}"


def is_shown(change: Interval) -> bool:
    """Whether the interval of a difference excludes 0, also after rounding for display."""
    return change.bounds is not None and (change.bounds[0] >= _LEAST or change.bounds[1] <= -_LEAST)


def percent(speedup: Interval | None) -> str:
    """Format a speed-up in percent, with its interval; "" if there is none."""
    if speedup is None:
        return ""
    first, *bounds = (signed(100 * (x - 1)) for x in (speedup.estimate, *(speedup.bounds or ())))
    return f"{first} %" + (f" [{', '.join(bounds)}]" if bounds else "")


def difference(change: Interval | None) -> str:
    """Format a difference with its interval; "" if there is none."""
    if change is None:
        return ""
    bounds = f" [{', '.join(map(signed, change.bounds))}]" if change.bounds else ""
    return f"{signed(change.estimate)}{bounds}"
