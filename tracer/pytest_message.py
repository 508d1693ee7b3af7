"""The pytest plugin's message for a broken budget."""

from __future__ import annotations

import linecache
import os
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from tracer.analysis.budget_check import Finding
from tracer.analysis.surplus import Surplus
from tracer.analysis.syncs import SyncReport
from tracer.analysis.tokens import Steps
from tracer.errors import printable
from tracer.recorders.stacks import Frame, Stack
from tracer.reporting.verdicts import MARKS, allowed_words, excess_words, figure, surplus_words

_RUNNER: Final = frozenset({"_pytest", "pluggy"})
_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})
_STANDARD: Final = sysconfig.get_path("stdlib")


def failure_message(
    findings: Sequence[Finding], report: SyncReport, steps: Steps, left_out: bool, expected: str | None,
    stacks: Mapping[int, Stack], reported: bool,
) -> str:  # fmt: skip
    """The lines of the budget, the signatures, and the first surplus call with its stack.

    Args:
        findings: one per line of the budget.
        report: the syncs, copies and launches of the steps.
        steps: the steps that count.
        left_out: whether a first step was excluded.
        expected: the signature of the budget, if it has one.
        stacks: correlation of a call -> its Python stack.
        reported: whether the innermost frames belong to a backend that reports its calls.
    """
    counted = f"medians of {len(steps)} token steps" if len(steps) > 1 else "from one step"
    of_steps = f"{printable(steps.detail)}{'; the first is excluded' * left_out}"
    lines = [
        f"the sync budget is broken; counts are {counted} ({of_steps})",
        *(_row(finding) for finding in findings if finding.line.name != "signature"),
        f"signature found:    {report.signature}  ({report.signature_share:.0%} of the steps)",
    ]
    if expected is not None:
        lines.append(f"signature expected: {expected}")
    surplus = next((finding.surplus for finding in findings if finding.surplus is not None), None)
    if surplus is not None:
        lines += [surplus_words(surplus), *_stack_lines(surplus, stacks, reported)]
    return "\n".join(lines)


def _row(finding: Finding) -> str:
    value, allowed = figure(finding.found), allowed_words(finding)
    row = f"  {MARKS[finding.verdict]} {finding.line.name:<10} found {value:<6} allowed {allowed:<6} "
    return printable(f"{row}{excess_words(finding)}").rstrip()


def _stack_lines(surplus: Surplus, stacks: Mapping[int, Stack], reported: bool) -> Iterator[str]:
    """The user's own line first, with its source; then all frames, innermost first, libraries in brackets."""
    stack = list(_inside_the_test(stacks.get(surplus.correlation, ())))
    if not stack:
        yield "  called while no Python code was running"
        return
    callers = [frame for frame in stack if not _of_a_library(frame)] or stack
    own = next((frame for frame in callers if not (reported and frame[0] == stack[0][0])), callers[0])
    yield f"  {_place(own)}"
    yield f"      {linecache.getline(own[0], own[1]).strip()}"
    for frame in stack:
        if frame is not own:
            yield f"    [{_place(frame)}]" if _of_a_library(frame) else f"    {_place(frame)}"


def _inside_the_test(stack: Stack) -> Iterator[Frame]:
    """The frames from the innermost to the one that pytest called."""
    for frame in stack:
        if _RUNNER & set(Path(frame[0]).parts):
            return
        yield frame


def _of_a_library(frame: Frame) -> bool:
    """Whether the frame belongs to an installed package, the standard library or generated code."""
    path = Path(frame[0])
    return bool(_INSTALLED & set(path.parts)) or path.is_relative_to(_STANDARD) or not path.is_file()


def _place(frame: Frame) -> str:
    file, line, function = frame
    shown = os.path.relpath(file) if Path(file).is_relative_to(Path.cwd()) else file
    return printable(f"{shown}:{line} in {function}")
