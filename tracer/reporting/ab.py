"""A campaign as JSON facts and as the Markdown table that is pasted into a thread."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from itertools import takewhile
from typing import Any, Final

from tracer.analysis.compare import RATES, Comparison
from tracer.analysis.interval import Interval
from tracer.experiments.ab import Campaign
from tracer.experiments.machine import machine, versions
from tracer.experiments.programs import FIGURES, WHOLE_RUNS
from tracer.experiments.turns import UNDECIDED
from tracer.reporting.compare_words import difference, percent, phrases
from tracer.text import percent as percent_of
from tracer.text import plain

_WORDS: Final = {"": "–", "same": "same within ±{} %"}


def campaign_facts(campaign: Campaign, within: float | None) -> dict[str, Any]:
    """All of it as JSON; `within` is the share of --until, None with --rounds."""
    turns = campaign.turns
    return {
        "schema": "intertoken.ab/1",
        "base": turns.base,
        "unit": campaign.unit,
        "rounds": campaign.rounds,
        "until_percent": None if within is None else 100 * within,
        "error": turns.until.error,
        "recorded": campaign.is_recorded,
        "why": campaign.why,
        "recording_cost": campaign.cost,
        "variants": [_variant_facts(campaign, place) for place in range(len(campaign.variants))],
        "machine": machine(),
        "versions": versions() | ({"program": campaign.built} if campaign.built else {}),
    }


def _variant_facts(campaign: Campaign, place: int) -> dict[str, Any]:
    variant, turns = campaign.variants[place], campaign.turns
    rates, is_base = turns.rates.get(variant.name, []), not place
    is_compared = bool(not is_base and rates and turns.rates[turns.base])
    ratio = turns.ratio(variant.name).exp() if is_compared else None
    comparison = campaign.compared(variant.name) if is_compared else None
    return {
        "name": variant.name,
        "command": list(variant.command),
        "environment": dict(variant.environment),
        "rate": sum(rate.per_s for rate in rates) / len(rates) if rates else None,
        "rates": [rate.per_s for rate in rates],
        **{figure: campaign.mean(variant.name, figure) for figure in FIGURES},
        "speedup": _facts(ratio),
        "difference": {
            figure: _facts(None if is_base else campaign.change(variant.name, figure)) for figure in FIGURES
        },
        "verdict": "base" if is_base else turns.verdicts.get(variant.name, ""),
        "sentence": what_changed(comparison),
    }


def what_changed(comparison: Comparison | None) -> str | None:
    """The sentence of a comparison without its rate, whose interval is not that of the campaign; None if the recordings
    show no direction."""
    if comparison is None or comparison.verdict not in ("faster", "slower"):
        return None
    before = takewhile(lambda phrase: phrase.figure not in RATES.values(), phrases(comparison))
    return "".join(phrase.text for phrase in before).removesuffix("; ")


def number(rate: float) -> str:
    """A rate with at least four digits."""
    return f"{rate:,.1f}" if rate >= 1000 else f"{rate:.4g}"


def _facts(change: Interval | None) -> dict[str, float | None] | None:
    return None if change is None else {"estimate": change.estimate, "low": change.low, "high": change.high}


def markdown(facts: dict[str, Any]) -> str:
    """The table of these facts, with what is needed to judge it below."""
    variants = facts["variants"]
    rows = [["", *(_code(each["name"]) for each in variants)], ["---", *["---:"] * len(variants)]]
    rows.append([facts["unit"], *(_rate(each) for each in variants)])
    for figure, label in FIGURES.items():
        if any(each[figure] is not None for each in variants):
            rows.append([label, *(_figure(each, figure) for each in variants)])
    rows.append(["verdict", *(_verdict(each, facts["until_percent"]) for each in variants)])
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in rows)
    return "\n".join([table, "", *(f"- {line}" for line in _below(facts))])


def _rate(variant: dict[str, Any]) -> str:
    change = variant["speedup"]
    own = "–" if variant["rate"] is None else number(variant["rate"])
    return own if change is None else f"{own}: {percent(Interval(**change))}"


def _figure(variant: dict[str, Any], figure: str) -> str:
    value, change = variant[figure], variant["difference"][figure]
    own = "–" if value is None else f"{value:,.1f}".removesuffix(".0")
    if change is None or not any(change.values()):
        return own
    interval = Interval(**change)
    is_exact = interval.bounds is not None and interval.bounds[0] == interval.bounds[1]
    return f"{own}: {difference(Interval(interval.estimate) if is_exact else interval)}"


def _verdict(variant: dict[str, Any], until: float | None) -> str:
    verdict = variant["verdict"]
    if verdict == UNDECIDED:
        return "no difference shown" if until is None else f"undecided: neither a difference nor ±{until:g} % is shown"
    return str(_WORDS.get(verdict, verdict)).format("" if until is None else f"{until:g}")


def _below(facts: dict[str, Any]) -> Iterator[str]:
    """How it was measured, what changed in a step, the commands, the machine and the versions."""
    odd = ", the last without one" if facts["rounds"] % 2 else ""
    rounds = f"{facts['rounds']} rounds in turns, each pair of rounds in a drawn order and its reverse{odd}"
    yield f"{rounds}; {_method(facts)}"
    yield f"rate: {_source(facts)}"
    if facts["recorded"] and facts["recording_cost"] is not None:
        yield f"light recorder, {percent_of(facts['recording_cost'])} time per unit of work by one plain run of each"
    if not facts["recorded"]:
        yield f"without the recorder: {plain(facts['why'], 300) or 'as asked'}"
    elif facts["why"]:
        yield f"figures that a recording does not carry are left out: {plain(facts['why'], 300)}"
    for variant in facts["variants"]:
        if variant["sentence"] and variant["verdict"] in variant["sentence"]:
            yield f"by the recordings: {variant['sentence']}"
    for command in dict.fromkeys(shlex.join(variant["command"]) for variant in facts["variants"]):
        names = [_code(v["name"]) for v in facts["variants"] if shlex.join(v["command"]) == command]
        yield f"{', '.join(names)}: {_code(command)}"
    host = facts["machine"]
    gpu = [host["gpu"], f"driver {host['driver']}"] if "gpu" in host else ["no NVIDIA GPU"]
    built = [facts["versions"]["program"]] if "program" in facts["versions"] else []
    parts = [*gpu, host["cpu"], f"{host['cores']} cores", host["os"], *built]
    yield f"{', '.join(map(str, parts))}; intertoken {facts['versions']['intertoken']}"


def _method(facts: dict[str, Any]) -> str:
    if facts["until_percent"] is None:
        return "95 % intervals: Student's t over the rounds"
    level = f"{100 * (1 - facts['error']):g} % intervals"
    together = " together" if len(facts["variants"]) > 2 else ""
    return f"{level}{together} that hold whenever one stops (sequential t-test over the rounds)"


def _source(facts: dict[str, Any]) -> str:
    if facts["unit"] == WHOLE_RUNS:
        return "whole processes by the clock, start included: no rate is printed or recorded"
    return "of the recorded steps" if facts["unit"].endswith("recorded") else "as the program prints it"


def _code(text: str) -> str:
    """A text as code in a cell of a table."""
    return f"`{plain(text, 500).replace('`', chr(39))}`".replace("|", "\\|")
