"""Advice as JSON and in sentences, for the command and the page."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tracer.analysis.interval import SHOWN
from tracer.reporting.console import number
from tracer.text import percent

if TYPE_CHECKING:
    from tracer.whatif.advice import Advice, Advised


def facts_of(advised: Advised, path: str, options: list[str]) -> dict[str, Any]:
    """What `--json` prints. `path` and `options` of the recording are quoted for a shell."""
    before = advised.before
    return {
        "before": asdict(before),
        "base": advised.state,
        "bound": advised.bound,
        "advice": [_facts(advice, path, options) for advice in advised.kept],
        "unsure": [
            {"edit": edit, "speedup": asdict(one.speedup), "assumptions": one.notes}
            for edit, one in advised.unsure.items()
        ],
        "engine": advised.engine.name if advised.engine else None,
        "unused": [asdict(setting) | _gain_of(advised, edit) for setting, edit in advised.unused.items()],
        "eager_launches": [asdict(one) for one in advised.eager],
        "refused": [{"edit": edit, "why": why} for edit, why in advised.refused.items()],
        "withheld": [{"edit": edit, "why": why} for edit, why in advised.withheld.items()],
    }


def _gain_of(advised: Advised, edit: str) -> dict[str, Any]:
    """The edit that predicts a setting, and its speed-up, null with the reason if nothing is predicted."""
    told = advised.unsure.get(edit)
    why = advised.refused.get(edit) or advised.withheld.get(edit) or ""
    return {"edit": edit, "speedup": told and asdict(told.speedup), "why": why}


def _facts(advice: Advice, path: str, options: list[str]) -> dict[str, Any]:
    prediction = advice.prediction
    return {
        "edit": prediction.label,
        "speedup": asdict(prediction.speedup),
        "steps_per_s": prediction.predicted.steps_per_s,
        "tokens_per_s": prediction.predicted.tokens_per_s,
        "conditions": list(advice.conditions),
        "effort": advice.effort,
        "settings": [asdict(setting) for setting in advice.settings],
        "sites": list(advice.sites),
        "assumptions": prediction.notes,
        "shown_by": " ".join(["intertoken whatif", path, *options, advice.command]),
        "checked_by": f"intertoken compare {path} AFTER",
    }


def cells(one: dict[str, Any]) -> dict[str, str]:
    """One edit as the cells of a table: edit, gain, margin, steps."""
    speedup = one["speedup"]
    low, high = (percent(speedup[end] - 1) for end in ("low", "high"))
    gain, steps = percent(speedup["estimate"] - 1), number(one["steps_per_s"])
    return {"edit": one["edit"], "gain": gain, "margin": f"{low} to {high}", "steps": steps}


def eager_cells(one: dict[str, Any]) -> dict[str, str]:
    """An eager launch as the cells of a table."""
    return {
        "kernel": one["kernel"],
        "operator": one["operator"] or "–",
        "where": one["where"],
        "per_step": number(one["per_step"]),
        "hole": number(one["hole_us"]),
        "gain": "–" if one["speedup"] is None else percent(one["speedup"] - 1),
        "site": one["site"] or "–",
    }


def details(facts: dict[str, Any]) -> list[str]:
    """The conditions for each edit to be safe, its effort, the engine's name for it, and how to check it."""
    advice = facts["advice"]
    lines = [f"{one['edit']}: safe if {'; and if '.join(one['conditions'])}" for one in advice]
    efforts = dict.fromkeys(one["effort"] for one in advice)
    lines += [
        f"{', '.join(one['edit'] for one in advice if one['effort'] == effort)}: effort {effort}" for effort in efforts
    ]
    named, placed = defaultdict[tuple[str, str], list[str]](list), defaultdict[tuple[str, ...], list[str]](list)
    for one in advice:
        for setting in one["settings"]:
            named[setting["name"], setting["seen"]].append(one["edit"])
        if one["sites"]:
            placed[tuple(one["sites"])].append(one["edit"])
    lines += [
        f"{', '.join(edits)}: in {facts['engine']} {name} (seen in {seen})" for (name, seen), edits in named.items()
    ]
    lines += [f"{', '.join(edits)}: the calls are made in {'; '.join(sites)}" for sites, edits in placed.items()]
    lines += notes_of(facts)
    return [*lines, *([f"after the change, record again and check: {advice[0]['checked_by']}"] if advice else [])]


def notes_of(facts: dict[str, Any]) -> list[str]:
    """The assumptions behind the listed edits, without duplicates."""
    return list(dict.fromkeys(note for one in facts["advice"] for note in one["assumptions"]))


def unused_of(facts: dict[str, Any]) -> list[str]:
    """Settings that the engine offers and the recording does not use, with the gain that is predicted for each."""
    return [
        f"{facts['engine']} offers {one['change']}, which this recording does not use: {one['name']} (seen in "
        f"{one['seen']}); {_predicted(one)}"
        for one in facts["unused"]
    ]


def _predicted(unused: dict[str, Any]) -> str:
    speedup, why = unused["speedup"], unused["why"]
    if speedup is None:
        return "its gain is not predicted" + (f": {why}" if why else "")
    gain = f"{percent(speedup['estimate'] - 1)} predicted ({unused['edit']})"
    return f"{gain}, without a margin" if speedup["low"] is None else f"{gain}, within its margin"


def rest(facts: dict[str, Any]) -> list[str]:
    """Unused settings, each with what is predicted for it; edits without a gain or a margin, those that data flow
    forbids, and the upper bound."""
    from tracer.whatif.prediction import NO_MARGIN

    settings = {one["edit"]: one for one in facts["unused"]}
    lines = [f"not possible: {one['edit']}; {one['why']}" for one in facts["refused"] if one["edit"] not in settings]
    withheld = [one for one in facts["withheld"] if one["edit"] not in settings]
    for why in dict.fromkeys(one["why"] for one in withheld):
        edits = ", ".join(one["edit"] for one in withheld if one["why"] == why)
        lines.append(f"this recording cannot show the gain of {edits}; {why}")
    unsure = [one for one in facts["unsure"] if one["edit"] not in settings]
    shown = [one["edit"] for one in unsure if one["speedup"]["low"] is not None]
    without = [one for one in unsure if one["speedup"]["low"] is None]
    if shown:
        lines.append(f"no gain shown, because the margin includes zero: {', '.join(shown)}")
    reasons = dict.fromkeys(note for one in without for note in one["assumptions"] if note in NO_MARGIN)
    for why in reasons:
        edits = ", ".join(
            f"{one['edit']} {percent(one['speedup']['estimate'] - 1)}" for one in without if why in one["assumptions"]
        )
        lines.append(f"predicted without a margin: {edits}; {why}")
    lines = [*unused_of(facts), *lines]
    before, bound = facts["before"], facts["bound"]
    gains = any(one["speedup"] and one["speedup"]["estimate"] > 1 + SHOWN for one in facts["unused"])
    if not facts["advice"] and not gains:
        lines.insert(0, "no edit is predicted to gain more than its margin")
    if bound is not None:
        lines.append(
            f"the device idles for {1 - 1 / bound:.0%} of a step of {number(before['period_us'])} µs: without any idle "
            f"time it would be about {(bound - 1) * 100:.1f} % faster"
        )
    return lines
