"""A recording in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from dash import html

from dashboard.pages.frame import link
from dashboard.pages.record.view import ADDRESS
from dashboard.recording.job import CANCELLED, DONE, FAILED, RUNNING, STOPPED, Job
from dashboard.text import plain
from dashboard.view import MOST_RUNS, View

Links: TypeAlias = Mapping[str, str]
_VERBS: Final = {DONE: "Done", CANCELLED: "Cancelled", STOPPED: "Stopped with the dashboard", FAILED: "Failed"}
_TENTHS: Final = 10


def in_words(job: Job, now: float) -> str:
    """The progress, elapsed and remaining time."""
    counts = (
        f"{job.runs[0]} of {job.runs[1]} runs complete, {job.units[0]} of {job.units[1]} warm-ups, repeats and passes, "
        f"{job.steps[0]:,} of {job.steps[1]:,} token steps"
    )
    elapsed = f"{clock(job.elapsed(now))} elapsed"
    if job.status != RUNNING:
        return f"{_VERBS.get(job.status, 'Ended')} after {clock(job.elapsed(now))}: {counts}."
    if not job.units[1]:
        return f"Starting … {elapsed}."
    left = job.left(now)
    return f"{counts}. {elapsed}" + (f", about {clock(left)} left." if left is not None else ".")


def clock(seconds: float) -> str:
    """A time in minutes and seconds.

    Example:
        >>> clock(9.4), clock(75), clock(3700)
        ('9 s', '1 min 15 s', '61 min 40 s')
    """
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60} s"


def announced(job: Job) -> str:
    """The progress for screen readers, in steps of a tenth so that it is not announced all the time."""
    if job.status == RUNNING:
        return f"Recording, {int(job.share * _TENTHS) * 100 // _TENTHS} percent"
    return f"{_VERBS.get(job.status, 'Ended')}: {job.runs[0]} runs"


def problem_of(job: Job) -> str:
    """Why it failed; empty if it did not."""
    return plain(job.problem, 600) if job.status == FAILED else ""


def log_of(job: Job) -> str:
    """The command and the end of its output."""
    lines = [plain(line, 400) for line in job.lines]
    return "\n".join([f"$ {plain(' '.join(job.command), 600)}", *lines])


def links_of(keys: Links, whole: Sequence[str], theme: str) -> list[html.Li]:
    """A line for each new run with a link to its timeline, and one that compares them."""
    entries: list[Any] = [
        html.A(plain(name, 120), href=_timeline([keys[name]], theme)) if name in keys else plain(name, 120)
        for name in whole
    ]
    if 2 <= len(keys) <= MOST_RUNS:
        entries.append(html.A("Compare them", href=_timeline(list(keys.values()), theme), id="compare"))
    return [html.Li(entry) for entry in entries]


def _timeline(keys: Sequence[str], theme: str) -> str:
    return link("", ADDRESS) + View(runs=tuple(keys), theme=theme).query()
