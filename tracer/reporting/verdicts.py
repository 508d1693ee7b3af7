"""The findings of `intertoken check` as text, JSON facts, JUnit XML and GitHub annotations."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any, Final

from tracer.analysis.budget import Limit
from tracer.analysis.budget_check import Finding
from tracer.analysis.surplus import Surplus
from tracer.errors import printable

_MOST_RANGES: Final = 5  # enclosing ranges of a call shown in a sentence
MARKS: Final = {"kept": "✓", "broken": "✗", "not shown": "?"}


def facts_of(finding: Finding) -> dict[str, Any]:
    """A finding in `intertoken.check/1`."""
    line, allowed = finding.line, finding.line.allowed
    if isinstance(allowed, Limit):
        ends = {"min": allowed.least, "max": allowed.most}
        bounds: Any = {end: bound if isfinite(bound) else None for end, bound in ends.items()}
    else:
        bounds = list(allowed)
    return {
        "range": line.scope.within, "device": line.scope.device, "site": line.scope.site, "name": line.name,
        "found": finding.found, "allowed": bounds, "verdict": finding.verdict, "excess": finding.excess,
        "interval": finding.interval,
        "surplus": None if finding.surplus is None else asdict(finding.surplus),
    }  # fmt: skip


def rows(findings: Sequence[Finding]) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows of the table, and the sentences below it: first surplus calls, and inconclusive lines."""
    table = [
        {
            "mark": MARKS[finding.verdict],
            "scope": printable(str(finding.line.scope)),
            "name": printable(finding.line.name),
            "found": printable(figure(finding.found)),
            "allowed": printable(allowed_words(finding)),
            "by": excess_words(finding),
        }
        for finding in findings
    ]
    surplus = [f"{title(f)}: {surplus_words(f.surplus)}" for f in findings if f.surplus is not None]
    return table, [*surplus, *(sentence(f) for f in findings if f.verdict == "not shown")]


def figure(value: float | str) -> str:
    """Format a figure; a class or signature is unchanged."""
    return value if isinstance(value, str) else f"{round(value, 4):.10g}"


def allowed_words(finding: Finding) -> str:
    """The allowed values in words, such as `at most 14`."""
    allowed = finding.line.allowed
    return str(allowed) if isinstance(allowed, Limit) else " or ".join(allowed)


def excess_words(finding: Finding) -> str:
    """The excess of a figure over its budget, such as `2 too many`; "" if it is not a number."""
    if finding.verdict != "broken" or not finding.excess:
        return ""
    counted = "." not in finding.line.name
    more, less = ("too many", "too few") if counted else ("too much", "too little")
    return f"{figure(abs(finding.excess))} {more if finding.excess > 0 else less}"


def surplus_words(call: Surplus) -> str:
    """The first surplus call and its call site."""
    inner = ["…", *call.nvtx[-_MOST_RANGES:]] if len(call.nvtx) > _MOST_RANGES else call.nvtx
    where = f", in {' / '.join(inner)}" if call.nvtx else ""
    return printable(
        f"first surplus call: {call.name} on thread {call.thread}, {call.time_in_step_us:,.1f} µs into step "
        f"{call.step}{where}"
    )


def sentence(finding: Finding) -> str:
    """A finding as one line, such as `syncs: found 16, allowed 14, 2 too many; first surplus call: ...`."""
    parts = [f"found {figure(finding.found)}", f"allowed {allowed_words(finding)}", excess_words(finding)]
    if finding.interval is not None:
        parts.append(f"95 % interval {figure(finding.interval[0])} to {figure(finding.interval[1])}")
    if finding.verdict == "not shown":
        parts.append("inconclusive")
    text = printable(f"{title(finding)}: {', '.join(filter(None, parts))}")
    return text if finding.surplus is None else f"{text}; {surplus_words(finding.surplus)}"


def title(finding: Finding) -> str:
    """The line's name, preceded by its range and device."""
    return printable(": ".join(filter(None, (str(finding.line.scope), finding.line.name))))


def junit(findings: Sequence[Finding], recording: Path, budget: Path) -> bytes:
    """JUnit XML: one test case per line of the budget, with the recording as class name."""
    broken = sum(finding.verdict == "broken" for finding in findings)
    counts = {"name": printable(f"intertoken check {budget}"), "tests": str(len(findings)), "failures": str(broken)}
    root = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(root, "testsuite", counts)
    for finding in findings:
        name = {"classname": printable(str(recording)), "name": title(finding)}
        case = ElementTree.SubElement(suite, "testcase", name)
        if finding.verdict == "broken":
            ElementTree.SubElement(case, "failure", {"message": sentence(finding)})
        elif finding.verdict == "not shown":
            ElementTree.SubElement(case, "system-out").text = sentence(finding)
    written: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return written


def github(finding: Finding, budget: Path) -> str | None:
    """A GitHub workflow command: an error if a line is broken, a warning if it is inconclusive, None if it is kept.

    Source of the escaping rules: toolkit/packages/core/src/command.ts of github.com/actions.
    """
    level = {"broken": "error", "not shown": "warning"}.get(finding.verdict)
    if level is None:
        return None
    properties = {"file": str(budget), "title": f"token budget: {title(finding)}"}
    written = ",".join(f"{key}={_escaped(value, ':,')}" for key, value in properties.items())
    return f"::{level} {written}::{_escaped(sentence(finding))}"


def _escaped(text: str, more: str = "") -> str:
    return "".join(f"%{ord(c):02X}" if c in f"%\r\n{more}" else c for c in text)
