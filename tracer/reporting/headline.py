"""The headline figures of a recording: class, idle time, gap and rate, without the profiler where known."""

from __future__ import annotations

from dataclasses import dataclass

from tracer.analysis.interval import Interval
from tracer.analysis.summary import Summary
from tracer.text import duration

_LONG = 1e4  # µs, from which on times have a larger unit
MARK = "▲"
"""Marks a figure from a traced pass, which inflates it."""


@dataclass(frozen=True)
class Figure:
    """A number, an estimate (only its interval if that is wide), or None if unknown; its unit, and whether a profiler
    inflates it."""

    value: float | Interval | None
    unit: str
    inflated: bool = False

    @property
    def text(self) -> str:
        """The figure as shown, such as "51.7 µs"; a dash if unknown."""
        if self.value is None:
            return "–"
        if isinstance(self.value, Interval):
            if self.value.figure is None and self.value.bounds:
                return f"{' to '.join(f'{bound:,.1f}' for bound in self.value.bounds)} {self.unit}"
            bounds = f" [{', '.join(f'{bound:,.1f}' for bound in self.value.bounds)}]" if self.value.bounds else ""
            return f"about {self.value.estimate:,.1f}{bounds} {self.unit}"
        is_long = self.unit == "µs" and self.value >= _LONG
        text = duration(self.value * 1e3) if is_long else f"{self.value:,.1f} {self.unit}"
        return f"{text}{f' {MARK}' if self.inflated else ''}"


def idle(of: Summary) -> Figure:
    """Idle time of a device in the median step."""
    return _untraced(of, of.estimated_untraced_idle_us or of.untraced_idle_us, of.idle_us.get("p50"), "µs")


def gap(of: Summary) -> Figure:
    """The median gap."""
    return _untraced(of, of.estimated_untraced_gap_us or of.untraced_gap_us, of.gap_p50_us, "µs")


def rate(of: Summary) -> Figure:
    """Steps per second. That of an untraced recording is the measured one if known, which leaves out what is between
    its repeats."""
    recorded = of.steps_per_s if of.traced else of.measured_steps_per_s or of.steps_per_s
    return _untraced(of, of.untraced_steps_per_s, recorded, "steps/s")


def _untraced(of: Summary, untraced: float | Interval | None, recorded: float | None, unit: str) -> Figure:
    if not of.traced or untraced is None:
        return Figure(recorded, unit, of.traced)
    return Figure(untraced, unit)


def headline(of: Summary) -> dict[str, str]:
    """The figures as text: class, idle, gap and rate."""
    figures = {"idle": idle(of).text, "gap": gap(of).text, "rate": rate(of).text}
    return {"class": of.strategy or "–", **figures}


def sentence(of: Summary, name: str) -> str:
    """The figures of one recording in a sentence, or why it has none."""
    if of.steps is None or not of.idle_us:
        return f"{name}: {of.problem or 'no token steps'}"
    text = f"{name}: {of.what}; a step idles {idle(of).text} (p50)"
    where = f", as recorded mostly {of.idle_where}" if of.idle_where else ""
    return f"{text}{where}; gap {gap(of).text} (p50); {rate(of).text}"
