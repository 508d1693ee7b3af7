"""The verdicts as text, JSON facts (`intertoken.races/1`), Markdown and SARIF 2.1.0."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from tracer.errors import printable
from tracer.races.logs import Place, Stack, named
from tracer.races.passes import Runs
from tracer.races.verdicts import Found, Judged, number

SCHEMA: Final = "intertoken.races/1"
_SARIF: Final = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_MOST_FRAMES: Final = 5  # of a stack in a sentence
_LEVELS: Final = {"race": "error", "candidate": "warning", "ordered by design": "none", "clean": "none"}
_KINDS: Final = {"clean": "pass", "ordered by design": "informational"}
_RULES: Final = {
    "race": "The source of an asynchronous copy is overwritten, or a result is read, before the copy is over.",
    "candidate": "A copy arrived otherwise than it was at the call; whether by a race is open.",
    "ordered by design": "A source that is filled in the order of its stream, after the call of the copy.",
    "clean": "No copy of this site arrived otherwise, as late as it was made.",
    "freed": "Memory is freed, or no longer pinned, while a copy from or to it has not arrived.",
}


def facts_of(judged: Judged, runs: Runs) -> dict[str, Any]:
    """The facts of `intertoken.races/1`. Files are named without their folders."""
    names = named(place for stack in _stacks(judged) for place in stack)

    def frames(stack: Stack) -> list[dict[str, Any]]:
        return [
            {"function": printable(names[place]), "file": _file(place), "offset": place.offset} for place in stack
        ]  # fmt: skip

    return {
        "schema": SCHEMA,
        "command": [printable(word) for word in runs.command],
        "races": judged.races,
        "results": asdict(judged.results),
        "sites": [_site(found) | {"stack": frames(found.stack)} for found in judged.found],
        "freed": [
            {"call": freed.call, "times": freed.times, "stack": frames(freed.stack), "copy": freed.copy_call,
             "copy_stack": frames(freed.copy_stack)}
            for freed in judged.freed
        ],
        "not_seen": judged.not_seen,
        "read_within_call": judged.staged,
        "passes": [
            {"name": ran.what.name, "settings": ran.what.settings, "seconds": round(ran.seconds, 3),
             "exit_code": ran.code, "processes": len(ran.logs), "bad": ran.bad}
            for ran in runs.made
        ],
    }  # fmt: skip


def _site(found: Found) -> dict[str, Any]:
    return {
        "key": f"{found.key:016x}", "call": found.call, "verdict": found.verdict, "why": found.why,
        "proof": found.proof or None, "delay_us": found.delay_us, "copies": found.copies, "bytes": found.bytes,
        "bad": found.bad, "first_bad": asdict(found.first_bad) if found.first_bad else None,
        "unwaited": found.unwaited,
    }  # fmt: skip


def _stacks(judged: Judged) -> Iterator[Stack]:
    for found in judged.found:
        yield found.stack
    for freed in judged.freed:
        yield from (freed.stack, freed.copy_stack)


def _file(place: Place) -> str:
    return printable(Path(place.file).name)


def where(frames: Sequence[dict[str, Any]]) -> str:
    """A stack in one line, the innermost function first: those with names, or else the places in their files."""
    with_names = [frame for frame in frames if frame["function"]]
    words = [frame["function"] for frame in with_names[:_MOST_FRAMES]]
    if "main" in words:
        del words[words.index("main") + 1 :]
    if not words:
        words = [f"{frame['file']}+{frame['offset']:#x}" for frame in frames[:_MOST_FRAMES]]
    if not words:
        return "(stack unknown)"
    file = (with_names or frames)[0]["file"]
    return f"{' ← '.join(words)} ({file})"


def title(site: dict[str, Any]) -> str:
    """The verdict of a site in a few words."""
    delay, verdict = site["delay_us"], str(site["verdict"])
    if verdict == "race" and delay is not None:
        return f"race ({'without any delay' if not delay else f'{delay} µs late'})"
    if verdict == "clean":
        return f"clean under {number(site['copies'], 'copy', 'copies')} × {delay} µs"
    return verdict


def lines(facts: dict[str, Any]) -> Iterator[str]:
    """The report as text."""
    yield f"results: {facts['results']['why']}"
    for site in facts["sites"]:
        yield ""
        yield f"{title(site)}: {site['call'] or 'unknown call'}, {where(site['stack'])}"
        yield f"  {site['why']}"
        if first := site["first_bad"]:
            bytes_of = f"byte {first['offset']:,} of {site['bytes']:,}"
            yield (
                f"  first: copy {first['number']:,}, after {first['step']:,} graph launches, {bytes_of} was "
                f"{first['was']:#04x} and came as {first['came']:#04x}"
            )
        if site["unwaited"]:
            yield f"  {number(site['unwaited'], 'result', 'results')} overwritten before the program waited"
    for freed in facts["freed"]:
        yield ""
        yield f"freed in flight: {freed['call']}, {where(freed['stack'])}"
        yield f"  {_freed(freed)}"
    for words, key in (("not seen", "not_seen"), ("cannot race", "read_within_call")):
        if facts[key]:
            yield ""
            yield f"{words}: {', '.join(f'{count:,} {what}' for what, count in facts[key].items())}"
    yield ""
    proven = number(facts["races"], "race is", "races are")
    yield f"{proven} proven" if facts["races"] else "no race is proven; that is no proof that there is none"


def _freed(freed: dict[str, Any]) -> str:
    times = number(freed["times"], "time", "times")
    return f"{times} before a copy had arrived: {freed['copy']}, {where(freed['copy_stack'])}"


def markdown(facts: dict[str, Any]) -> str:
    """The report as Markdown, for a comment or an issue."""
    table = ["| verdict | call | where | why |", "| --- | --- | --- | --- |"]
    for site in facts["sites"]:
        cells = (title(site), site["call"] or "unknown", where(site["stack"]), site["why"])
        table.append("| " + " | ".join(map(_cell, cells)) + " |")
    for freed in facts["freed"]:
        cells = ("freed in flight", freed["call"], where(freed["stack"]), _freed(freed))
        table.append("| " + " | ".join(map(_cell, cells)) + " |")
    rest = [line for line in lines({**facts, "sites": [], "freed": []}) if line]
    return "\n".join(["## Races", "", *table, "", *(f"- {_cell(line)}" for line in rest), ""])


def _cell(text: str) -> str:
    """A text that is no Markdown or HTML."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("|", "\\|")
    return "".join(f"\\{letter}" if letter in "`*_[]" else letter for letter in escaped)


def sarif(facts: dict[str, Any], version: str) -> str:
    """The report as SARIF 2.1.0: races are errors, candidates and freed memory warnings."""
    results = [
        {
            "ruleId": site["verdict"],
            "level": _LEVELS[site["verdict"]],
            "kind": _KINDS.get(site["verdict"], "fail"),
            "message": {"text": f"{site['call'] or 'unknown call'}, {where(site['stack'])}: {site['why']}"},
            "partialFingerprints": {"intertokenSite/v1": site["key"]},
            **_location(site["stack"]),
        }
        for site in facts["sites"]
        if site["verdict"] in _LEVELS
    ]
    results += [
        {
            "ruleId": "freed",
            "level": "warning",
            "message": {"text": f"{freed['call']}: {_freed(freed)}"},
            **_location(freed["stack"]),
        }
        for freed in facts["freed"]
    ]  # fmt: skip
    rules = [{"id": name, "shortDescription": {"text": text}} for name, text in _RULES.items()]
    driver = {"name": "intertoken races", "version": version, "rules": rules}
    log = {"$schema": _SARIF, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}
    return json.dumps(log, indent=1) + "\n"


def _location(stack: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Where a result lies: the innermost function, and all of its stack. Addresses are offsets in their files."""
    places = [
        {
            "physicalLocation": {
                "artifactLocation": {"uri": quote(frame["file"])},
                "address": {"relativeAddress": frame["offset"], "kind": "instruction"},
            },
            **({"logicalLocations": [{"fullyQualifiedName": frame["function"], "kind": "function"}]}
               if frame["function"] else {}),
        }
        for frame in stack
    ]  # fmt: skip
    if not places:
        return {}
    return {"locations": places[:1], "stacks": [{"frames": [{"location": place} for place in places]}]}
