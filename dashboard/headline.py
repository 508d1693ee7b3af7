"""Gap and idle time of the runs that are shown: medians or, if one of these is not known, means."""

from __future__ import annotations

from collections.abc import Iterable

from dashboard.reading.run import Run
from tracer.analysis.summary import Summary
from tracer.reporting.headline import Figure, gap, idle, sentence


def by_mean(runs: Iterable[Run]) -> bool:
    """Whether the gaps of these runs are told by their means: a rate is one, and may leave the median unknown."""
    of = [run.summary for run in runs]
    return any(one.traced and one.untraced_gap_us is None and one.untraced_gap_mean_us is not None for one in of)


def mean_gap(of: Summary) -> Figure:
    """The mean gap, without the profiler where known."""
    untraced = of.untraced_gap_mean_us if of.traced else None
    return Figure(of.gap_mean_us, "µs", of.traced) if untraced is None else Figure(untraced, "µs")


def mean_idle(of: Summary) -> Figure:
    """The mean idle time of a device in a step, without the profiler where known."""
    untraced = of.untraced_idle_mean_us if of.traced else None
    return Figure(of.idle_us.get("mean"), "µs", of.traced) if untraced is None else Figure(untraced, "µs")


def sentence_of(run: Run, name: str) -> str:
    """The figures of one run in a sentence."""
    of, text = run.summary, sentence(run.summary, name)
    if by_mean([run]):
        text = text.replace(f"idles {idle(of).text} (p50)", f"idles {mean_idle(of).text} (mean)")
        text = text.replace(f"gap {gap(of).text} (p50)", f"gap {mean_gap(of).text} (mean)")
    return text


def tracing(run: Run) -> str:
    """What tracing does to the gap of a run, in a few words; "" if it was not traced or that is not known."""
    return "" if run.overhead is None else f"tracing × {run.overhead:.1f} on the gap"
