"""Finds the steps of an engine: where one iteration ends and the next begins, and the phase of each.

A step is either marked by its engine, or ends with the result that the host fetches before or while it launches the
next one.

Stages, in order, each with its file in this folder:
1. marks: the ranges of the engine that made the recording, or calls and kernels with a requested name (`marked.py`,
   `tracer.engines`), if they are on all steps (`all_if_partly_marked`);
2. turns: without these, what each host launches between two results that it fetches (`passes.py`);
3. passes: which turns form one pass through a model, and so one step of a loop, each from its first input to its last
   wait (`passes.py`, too); iterations that verify drafts begin with these (`drafts.py`);
4. phases: what each step is, if its mark does not say (`phases.py`);
5. selection: a phase, a regime, a slice (`steps.py`), without steps whose clocks are in doubt (`clocks.py`).
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

import numpy as np

from tracer.analysis.bounds import ALL_STEPS as ALL_STEPS
from tracer.analysis.bounds import HOW_TO_TELL
from tracer.analysis.bounds import Bounds as Bounds
from tracer.analysis.calls import Calls, host_calls
from tracer.analysis.clocks import without_doubtful
from tracer.analysis.drafts import from_drafts
from tracer.analysis.marked import steps_by_name, steps_of_marks
from tracer.analysis.owners import chosen, hosts_of, in_process, joined_in_turn, with_owners
from tracer.analysis.passes import single_passes, steps_of_fetches
from tracer.analysis.phases import results_of, with_phases
from tracer.analysis.steps import Steps as Steps
from tracer.analysis.turns import CONSTANT
from tracer.analysis.unseen import of_seen
from tracer.engines.engine import DECODE
from tracer.errors import EmptyTraceError, NoStepsError, UsageError
from tracer.model import run_json
from tracer.model.calls import LAUNCHES
from tracer.model.columns import among, numbers
from tracer.model.intervals import Ints, within_any
from tracer.model.run_json import was_traced
from tracer.model.schema import (
    COMPUTE_TABLES,
    DEVICE_DOMAINS,
    HOST_COMPUTE,
    MISSING,
    NO_TABLES,
    OPERATORS,
    OTHER_DOMAINS,
    TABLES,
    unread_note,
)
from tracer.model.trace import LIGHT, UNSTAMPED, Trace
from tracer.notes import sentence

_OTHER_PROCESS: Final = (
    "what it recorded launched no work on a device; needed is the recording of the process that did (vLLM: EngineCore "
    "or a worker; of several ranks, each has its own)"
)


def find_steps(
    trace: Trace, *, pattern: str | None = None, within: str | None = None, phase: str | None = None,
    of: Bounds = ALL_STEPS, calls: Calls | None = None,
) -> Steps:  # fmt: skip
    """Find the steps of a trace.

    Args:
        pattern: regular expression for the NVTX text of a step, used instead of the engines' marks. It may match
            operators or functions that a profiler marked automatically, which the engines' marks ignore. If no NVTX
            text matches, a step begins with each API call or kernel launch whose name matches.
        within: only steps inside the NVTX ranges with this text (or, if none has exactly this text, matching it).
        phase: see `Bounds.phase`.
        of: whose process, thread and device are those of the steps.

    Raises:
        EmptyTraceError: no kernels, no times, no such range, or no steps; the message says what to do.
        UsageError: the pattern is not a valid regular expression, or there is no such process, thread or device.
    """
    launches = sum(len(trace[name]) for name in COMPUTE_TABLES)
    if not launches:
        raise EmptyTraceError(f"the trace has no kernels and no graph launches{_why_nothing_ran(trace)}")
    if trace.contradictions is not None and trace.contradictions.is_most:
        raise EmptyTraceError(trace.contradictions.refusal)
    try:
        begins = None if pattern is None else re.compile(pattern)
    except re.error as problem:
        raise UsageError(f"--pattern {pattern!r} is not a valid regular expression: {problem}") from None
    inside = _ranges_named(trace, within) if within is not None else None
    calls = host_calls(trace) if calls is None else calls
    if inside is not None:
        calls = calls[within_any(calls, trace.nvtx[inside])]
    calls = calls[of_seen(trace, calls) if of.process is None else in_process(trace, of.process, calls.process)]
    steps = steps_of_marks(trace, calls, begins, inside)
    if steps is not None and begins is None:
        steps = all_if_partly_marked(trace, steps, calls) or steps
    elif begins is not None and steps is None:
        steps = steps_by_name(trace, begins, inside)
    steps = steps or steps_of_fetches(trace, calls, hosts_of(trace, of.thread, calls)) or single_passes(trace, calls)
    if steps is None:
        raise NoStepsError(
            f"no steps: {launches} kernels and graphs, no marks of a step around them, no loop in which the host waits "
            f"for results, and no layers of a model; {HOW_TO_TELL}"
        )
    steps = from_drafts(trace, joined_in_turn(trace, steps, calls), calls)
    steps = from_drafts(trace, with_phases(trace, steps, calls), calls, behind_prompts=True)
    steps = _with_sequences(trace, steps, within)
    return with_owners(trace, chosen(trace, steps, of).of_phase(phase))


def _why_nothing_ran(trace: Trace) -> str:
    """What a recording without any compute lacks, or which of its tables was not read. PyTorch's profiler records one
    process: its operators, its calls, or both, so a process without either computed nothing."""
    unread = [unread_note(TABLES[name].nsys, kind) for name in COMPUTE_TABLES for kind in NO_TABLES]
    if note := next((note for note in unread if note in trace.notes), None):
        return f": {note}"
    launched = among(host_calls(trace).letter, LAUNCHES).sum()
    source, calls, domains = str(trace.metadata.get("source", "")), len(trace["api"]), set(trace.nvtx.domain)
    if not launched and HOST_COMPUTE in domains:
        rate = run_json.tokens_per_s(trace)
        return "; the host computed all of it" + (f", {rate:,.1f} tokens/s" if rate is not None else "")
    if source.startswith(LIGHT):
        unstamped = next((sentence(note) for note in trace.notes if UNSTAMPED in note), None)
        return f"; {was_traced('CUDA', trace)}" if unstamped is None else f": {unstamped}; --passes graph times them"
    if calls and not launched and not domains & OTHER_DOMAINS:
        return f", and none of its {calls:,} recorded calls launches any: {_OTHER_PROCESS}"
    if source.startswith("PyTorch") and not calls and not domains & {OPERATORS, *OTHER_DOMAINS}:
        return f", no operators and no calls: {_OTHER_PROCESS}"
    if launched:
        return f", but {launched:,} calls that launch some: its recorder saw the calls, not what ran on the device"
    return f"; {was_traced('CUDA', trace)}"


def choose_steps(trace: Trace, within: str | None, bounds: Bounds, calls: Calls | None = None) -> Steps:
    """The requested steps inside the NVTX ranges `within`: of several regimes the longest, unless some are requested,
    and without steps whose clocks are in doubt. `calls`: the `host_calls` of the trace, if available. Raises like
    `find_steps`, `Steps.select` and `without_doubtful`."""
    calls = host_calls(trace) if calls is None else calls
    steps = find_steps(trace, pattern=bounds.pattern, within=within, phase=bounds.phase, of=bounds, calls=calls)
    every = bounds.first is None and bounds.last is None
    part = steps.of_main_regime() if every else steps.select(bounds.first, bounds.last)
    return without_doubtful(trace, part, calls, is_told=bounds.pattern is not None)


def marked_steps(trace: Trace) -> Steps | None:
    """The steps given by marks, only decode if there is any, even in a trace without kernels; None without marks."""
    calls = host_calls(trace)
    steps = steps_of_marks(trace, calls)
    return None if steps is None else with_phases(trace, steps, calls).of_phase(None)


def all_if_partly_marked(trace: Trace, marked: Steps, calls: Calls) -> Steps | None:
    """All steps, marked or not, if marks are on only part of them: every third, or only while the engine logs; None if
    the marks are on all, as far as is known.

    A marked step lasts until the next mark of its thread, and would include the steps without one in between. So if
    marks are followed by further passes like their own, before the next mark, the steps are those found without marks.
    Passes inside a mark, such as drafts whose tokens are fetched, or all tokens of a marked request, remain one step.
    """
    if results_of(marked, calls).mean() <= 2 - CONSTANT:  # a step without a mark brings a result of its own
        return None
    every = steps_of_fetches(trace, calls)
    if every is None:
        return None
    launches = calls[among(calls.letter, LAUNCHES)]
    mark, at = (steps.of(launches.start, launches.process, launches.thread) for steps in (marked, every))
    marks_it = launches.start <= marked.rows.closes[mark]
    both = (mark >= 0) & (at >= 0)
    marks_it, mark, at = marks_it[both], mark[both], at[both]
    with_mark = np.bincount(at[marks_it], minlength=len(every)) > 0
    kind, kinds = numbers(every.rows.process, every.rows.thread, every.rows.kind)
    of_mark = mark * kinds + kind[at]
    unmarked = np.unique(at[~with_mark[at] & np.isin(of_mark, of_mark[marks_it])])
    few = len(unmarked) <= (1 - CONSTANT) * with_mark.sum()
    if few or len(np.unique(mark[marks_it])) < CONSTANT * len(marked):
        return None
    alike = np.isin(kind, kind[with_mark])
    marks = f"with marks ({marked.detail}) on only {with_mark.sum()} of {alike.sum()} similar passes"
    return replace(every, detail=f"{every.detail}, {marks}")


def _ranges_named(trace: Trace, within: str) -> Ints:
    """The rows of `trace.nvtx` that are ranges with this text, or else those whose text matches it."""
    nvtx = trace.nvtx
    ranges = (nvtx.end > nvtx.start) & ~nvtx.domain.rows(*DEVICE_DOMAINS)
    used = np.zeros(len(nvtx.text.words), bool)
    used[nvtx.text.codes[ranges]] = True
    texts = [str(text) for text in nvtx.text.words[used]]
    try:
        chosen = [text for text in texts if text == within] or [text for text in texts if re.search(within, text)]
    except re.error as problem:
        raise EmptyTraceError(
            f"--range {within!r} is neither an NVTX text nor a regular expression: {problem}"
        ) from None
    if not chosen:
        some = (
            f"; the first of {len(texts)} texts: {', '.join(texts[:8])}" if texts else "; it has no NVTX ranges at all"
        )
        raise EmptyTraceError(f"no NVTX range {within!r} in the trace{some}")
    return np.flatnonzero(ranges & nvtx.text.rows(*chosen))


def _with_sequences(trace: Trace, steps: Steps, within: str | None) -> Steps:
    """The steps with the number of sequences from the run's own description, if the marks do not give it."""
    batch, rows = run_json.batch(trace, within), steps.rows
    unknown = (rows.sequences == MISSING) & rows.phase.rows(DECODE)
    if batch is None or not unknown.any():
        return steps
    sequences, gained = (np.where(unknown, batch, column) for column in (rows.sequences, rows.gained))
    return replace(steps, rows=rows.changed(sequences=sequences, gained=gained))
