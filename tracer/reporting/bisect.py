"""A bisection as JSON facts and in words."""

from __future__ import annotations

from typing import Any

from tracer.analysis.interval import Interval
from tracer.experiments.bisect import BAD, GOOD, Bisection, Commit
from tracer.experiments.machine import machine, versions
from tracer.reporting.ab import what_changed
from tracer.reporting.compare_words import percent


def bisection_facts(bisection: Bisection) -> dict[str, Any]:
    """All of it as JSON."""
    search, tried = bisection.search, bisection.search.verdicts
    first = bisection.candidates
    return {
        "schema": "intertoken.bisect/1",
        "good": _named(bisection.commits[0]),
        "bad": _named(bisection.commits[-1]),
        "commits": len(bisection.commits) - 1,
        "first_bad": _named(first[0]) if len(first) == 1 else None,
        "candidates": [_named(commit) for commit in first],
        "unit": bisection.unit,
        "builds": bisection.builds,
        "runs": 2 * sum(len(runs) for number, runs in bisection.runs.items() if number),
        "error": search.error,
        "recorded": bisection.is_recorded,
        "tried": [
            _named(bisection.commits[number])
            | {
                "verdict": verdict,
                "rate": _facts(search.ratios.get(number)),
                "rounds": len(bisection.runs.get(number, [])),
                "why": search.why.get(number),
            }
            for number, verdict in sorted(tried.items())
        ],
        "changed": what_changed(bisection.changed),
        "machine": machine(),
        "versions": versions(),
    }


def _named(commit: Commit) -> dict[str, str]:
    return {"commit": commit.name, "title": commit.title}


def _facts(ratio: Interval | None) -> dict[str, float | None] | None:
    if ratio is None:
        return None
    told = ratio.exp()
    return {"estimate": told.estimate, "low": told.low, "high": told.high}


def words(facts: dict[str, Any]) -> str:
    """The first bad commit, what changed there, and what was tried."""
    first, each = facts["first_bad"], {one["commit"]: one for one in facts["tried"]}
    if first is None:
        lines = [f"one of these {len(facts['candidates'])} commits is the first bad one; those before the last could "
                 "not be told:", *(f"  {_short(one)}" for one in facts["candidates"])]  # fmt: skip
    else:
        lines = [f"first bad commit: {_short(first)}"]
    ratio = each[facts["candidates"][-1]["commit"]]["rate"]
    lines.append(f"rate against the good end: {percent(Interval(**ratio))}")
    if facts["changed"]:
        lines.append(f"in a step: {facts['changed']}")
    lines += ["", f"tried against {_short(facts['good'])}:"]
    for one in facts["tried"]:
        told = f"{percent(Interval(**one['rate']))}, {one['rounds']} rounds" if one["verdict"] in (GOOD, BAD) else ""
        lines.append(f"  {_short(one)}: {one['verdict']}: {told or one['why']}")
    lines += ["", f"{facts['commits']} commits, {facts['builds']} builds, {facts['runs']} runs in turns; the answer is "
              f"wrong with a probability of at most {100 * facts['error']:g} %"]  # fmt: skip
    return "\n".join(lines)


def _short(commit: dict[str, Any]) -> str:
    return f"{commit['commit'][:10]} {commit['title']}"
