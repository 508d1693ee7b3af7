"""The pytest plugin's recording of a test, the check of its budget, and the message if it is broken."""

from __future__ import annotations

import linecache
import os
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from tracer.analysis.budget import Budget, Scope, parse
from tracer.analysis.budget_check import Finding, ScopeFigures, judge
from tracer.analysis.calls import host_calls
from tracer.analysis.recording import Recording
from tracer.analysis.steps import StepRows
from tracer.analysis.surplus import Surplus
from tracer.analysis.syncs import SyncReport
from tracer.analysis.tokens import Steps, find_steps, marked_steps
from tracer.engines.engine import DECODE
from tracer.errors import RecordError, UsageError, printable
from tracer.model.columns import Names
from tracer.model.schema import MISSING
from tracer.model.trace import Trace
from tracer.recorders import Recorder, annotate
from tracer.recorders.host import HostRecorder, watched
from tracer.recorders.ranges import Frame, Stack
from tracer.reporting.verdicts import MARKS, allowed_words, excess_words, figure, surplus_words

Backend = Literal["cupti", "host"]
_OPTIONS: Final[dict[str, tuple[str, ...]]] = {"backend": ("cupti", "host"), "steps": ("found",)}
_RUNNER: Final = frozenset({"_pytest", "pluggy"})
_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})
_STANDARD: Final = sysconfig.get_path("stdlib")


@dataclass(frozen=True)
class Observed:
    """One recording of a test: the Python stack of each call by its correlation, the token steps that count, and
    whether a first step was left out."""

    trace: Trace
    stacks: Mapping[int, Stack]
    steps: Steps
    left_out: bool

    @property
    def reported(self) -> bool:
        """Whether a backend, not CUPTI, reported the calls."""
        return self.trace.metadata.get("source") == "host"

    @cached_property
    def measured(self) -> ScopeFigures:
        """The figures of the recording."""
        return ScopeFigures(Recording.of_steps(self.trace, self.steps), Scope())


class RecordedTest:
    """Records the body of a test, and checks its budget.

    Args:
        budget: the budget of a step; None for no limit.
        backend: the only recorder to use; None for CUPTI if it sees CUDA calls, else host recorders.
        find: whether to find steps from repeating calls if none are marked.
    """

    def __init__(self, budget: Budget | None = None, backend: Backend | None = None, find: bool = False) -> None:
        self._budget, self._backend, self._find = budget, backend, find
        self._cupti: Recorder | None = None
        self._cupti_stacks: Mapping[int, Stack] = {}
        self._no_cupti = ""
        self._hosts: list[HostRecorder] = []
        self._open = ExitStack()

    def token(self, index: int | None = None) -> annotate:
        """`with recording.token():` around each token step."""
        return annotate("token", index=index)

    @property
    def trace(self) -> Trace:
        """The recording. Raises RecordError if the test made none, or several."""
        return self._only.trace

    @property
    def report(self) -> SyncReport:
        """Counts, class, signature and calls of the steps so far, without the first if there are several. Raises as
        `trace`, and EmptyTraceError if no call is inside a step."""
        return self._only.measured.syncs

    def start(self) -> None:
        """Start recording. Raises RecordError if another profiler uses CUPTI, or the marker requires CUPTI and there is
        none."""
        if self._backend != "cupti":
            self._hosts = self._open.enter_context(watched())
        if self._backend == "host":
            return
        from tracer.recorders.cupti import CuptiRecorder

        try:
            recorder = CuptiRecorder(stacks=True)
        except RecordError as problem:
            if self._backend == "cupti":
                raise
            self._no_cupti = str(problem)
            return
        recorder.start()
        self._open.callback(recorder.stop)
        self._cupti, self._cupti_stacks = recorder, recorder.stacks

    def stop(self) -> None:
        """Wait for the device and stop recording."""
        self._open.close()

    def observed(self) -> list[Observed]:
        """The recordings: that of CUPTI if it saw calls that copy, launch, wait or order, else of each host recorder.
        Raises RecordError if no recorder saw such a call."""
        recorders: list[tuple[Recorder, Mapping[int, Stack]]] = [(host, host.stacks) for host in self._hosts]
        if self._cupti is not None:
            recorders.insert(0, (self._cupti, self._cupti_stacks))
        observed = []
        for recorder, stacks in recorders:
            trace = recorder.trace
            if len(host_calls(trace)):
                steps, left_out = self._steps(trace)
                observed.append(Observed(trace, stacks, steps, left_out))
                if recorder is self._cupti:
                    break
        if not observed:
            raise RecordError(self._nothing())
        return observed

    def failure(self) -> str | None:
        """Why the test breaks its budget; None if it does not, or has no budget. Raises RecordError if there is a
        budget, but nothing was recorded, TraceError if a recording lacks what the budget needs."""
        if self._budget is None:
            return None
        expected = self._budget.signature(Scope())
        observed = self.observed()
        for number, each in enumerate(observed):
            findings: list[Finding] = [judge(line, each.measured, expected) for line in self._budget.lines]
            if any(finding.verdict == "broken" for finding in findings):
                which = f"recording {number + 1} of {len(observed)}: " if len(observed) > 1 else ""
                return which + _failure_message(findings, each, expected)
        return None

    @property
    def _only(self) -> Observed:
        observed = self.observed()
        if len(observed) > 1:
            raise RecordError(f"this test made {len(observed)} recordings; `recording.observed()` returns each")
        return observed[0]

    def _steps(self, trace: Trace) -> tuple[Steps, bool]:
        """The steps that count, and whether a first one was excluded."""
        steps = marked_steps(trace) or (find_steps(trace) if self._find else None)
        if steps is None:
            return _whole_body(trace), False
        return (steps.select(1, None), True) if len(steps) > 1 else (steps, False)

    def _nothing(self) -> str:
        watched_here = {
            "cupti": "CUPTI saw no call",
            "host": "no host recorder created in the test saw a call",
            None: "neither CUPTI nor a host recorder created in the test saw a call",
        }[self._backend]
        remedy = f" (CUPTI cannot record here: {self._no_cupti})" if self._no_cupti else ""
        return f"nothing to count: {watched_here} that copies, launches, waits or orders{remedy}"


def recording_for(marks: Sequence[Mapping[str, Any]]) -> RecordedTest:
    """The recording of a test whose markers have these keywords, closest first; the closest marker with a keyword sets
    its value. Without any, or with only backend and steps, there is no budget. Raises UsageError: an unknown keyword,
    or an invalid value."""
    given = {key: value for mark in reversed(marks) for key, value in mark.items()}
    origin = "@pytest.mark.sync_budget"
    known = ("syncs", "copies", "launches", "class_", "signature", *_OPTIONS)
    if unknown := [key for key in given if key not in known]:
        raise UsageError(f"{origin}: {unknown[0]} is not an option; options are {', '.join(known)}")
    for option, choices in _OPTIONS.items():
        if given.get(option) not in (None, *choices):
            raise UsageError(f"{origin}: {option} is {given[option]!r}; it must be {' or '.join(choices)}")
    lines = {key.rstrip("_"): list(v) if isinstance(v, tuple) else v for key, v in given.items() if key not in _OPTIONS}
    budget = parse(lines, origin) if lines or (marks and not given) else None
    return RecordedTest(budget, given.get("backend"), given.get("steps") is not None)


def _whole_body(trace: Trace) -> Steps:
    """The whole recording as one step."""
    start, end = trace.span
    process, thread, none = trace.api.process[:1], trace.api.thread[:1], np.array([MISSING])
    zero, times = none * 0, (np.array([start]), np.array([end + 1]))
    rows = StepRows(zero, *times, process, thread, zero, Names.of([DECODE]), none, none, none, none)
    return Steps(rows, "test", "the whole test body")


def _failure_message(findings: Sequence[Finding], of: Observed, expected: str | None) -> str:
    """The lines of the budget, the signatures (expected: that of the budget, if it has one), and the first surplus call
    with its stack."""
    report, count = of.measured.syncs, len(of.steps)
    counted = f"medians of {count} token steps" if count > 1 else "from one step"
    of_steps = f"{printable(of.steps.detail)}{'; the first is excluded' * of.left_out}"
    lines = [f"the sync budget is broken; counts are {counted} ({of_steps})"]
    for finding in findings:
        if finding.line.name != "signature":
            value, allowed = figure(finding.found), allowed_words(finding)
            row = f"  {MARKS[finding.verdict]} {finding.line.name:<10} found {value:<6} allowed {allowed:<6} "
            lines.append(printable(f"{row}{excess_words(finding)}").rstrip())
    lines.append(f"signature found:    {report.signature}  ({report.signature_share:.0%} of the steps)")
    if expected is not None:
        lines.append(f"signature expected: {expected}")
    surplus = next((finding.surplus for finding in findings if finding.surplus is not None), None)
    if surplus is not None:
        lines += [surplus_words(surplus), *_stack_lines(surplus, of.stacks, of.reported)]
    return "\n".join(lines)


def _stack_lines(surplus: Surplus, stacks: Mapping[int, Stack], reported: bool) -> Iterator[str]:
    """The user's own line first, with its source; then all frames, innermost first, libraries in brackets. If the calls
    are `reported`, the innermost frames belong to a backend."""
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
