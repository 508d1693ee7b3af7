"""Steps: where one iteration of an engine ends and the next begins, and what each is.

A step is marked by its engine, or ends with the result that the host fetches before, or while, it launches the next.

Passes, in the order in which they run, each with its file in this folder:
1. marks: the ranges of the engine that made the recording (`marked.py`, `tracer.engines`), or calls and kernels of a
   name that is asked for (`named.py`);
2. turns: without marks, what each host launches between two results that it fetches (`turns.py`);
3. passes: which turns together are one pass through a model, and so one step (`passes.py`);
4. steps: those of a loop, without what leads up to it, each from its first input to its last wait (there, too);
5. groups: steps on one thread inside the same enclosing ranges, a prompt and what follows it; there is no gap between
   groups (here);
6. phases: what each step is, where its mark does not say it (`phases.py`);
7. what is asked for: a phase, a regime, a slice (`steps.py`), without those of which the clocks are in doubt
   (`clocks.py`).
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer import run_json
from tracer.analysis.calls import by_thread, host_calls
from tracer.analysis.clocks import without_doubtful
from tracer.analysis.marked import steps_of_marks
from tracer.analysis.named import steps_by_name
from tracer.analysis.passes import single_passes, steps_of_fetches
from tracer.analysis.phases import with_phases
from tracer.analysis.steps import ALL_STEPS as ALL_STEPS
from tracer.analysis.steps import NO_ROWS, as_steps, rows_by_thread
from tracer.analysis.steps import Bounds as Bounds
from tracer.analysis.steps import Steps as Steps
from tracer.engines import ENGINES
from tracer.engines.engine import DECODE, LIKELY, Engine, Mark
from tracer.engines.ours import named
from tracer.errors import EmptyTraceError, UsageError
from tracer.intervals import within_any
from tracer.schema import COMPUTE_TABLES, DEVICE_DOMAINS, MISSING, OTHER_DOMAINS, PROFILER_DOMAINS
from tracer.trace import Trace

_TRACING_CUDA: Final = {
    "nsys": "nsys --trace=cuda,nvtx",
    "PyTorch": "torch.profiler with activities=[CPU, CUDA], on a GPU",
}
"""How a trace's source begins -> how its recorder is told to trace CUDA."""


def find_steps(
    trace: Trace, *, pattern: str | None = None, within: str | None = None, phase: str | None = None
) -> Steps:
    """Find the steps of a trace.

    Args:
        trace: the recording.
        pattern: regular expression for the NVTX text of a step, instead of the engines' marks; it may be an operator
            or function that a profiler marked by itself, which these pass over. If no NVTX text matches, a step
            begins with each API call, or launch of a kernel, whose name does.
        within: only steps inside the NVTX ranges of this text (or, if none is called exactly so, matching it).
        phase: see `Bounds.phase`.

    Raises:
        EmptyTraceError: no kernels, no such range, or no steps to be found; the message says what to do.
        UsageError: the pattern is no regular expression.
    """
    if not any(len(trace[name]) for name in COMPUTE_TABLES):
        raise EmptyTraceError(f"the trace has no kernels and no graph launches; {was_traced('CUDA', trace)}")
    try:
        chosen = None if pattern is None else re.compile(pattern)
    except re.error as problem:
        raise UsageError(f"--pattern {pattern!r} is no regular expression: {problem}") from None
    window = _windows(trace, within) if within is not None else None
    calls = host_calls(trace)
    if window is not None:
        calls = calls[within_any(calls, window)].reset_index(drop=True)
    steps = _marked(trace, calls, chosen, window)
    if steps is None:
        steps = _unmarked(trace, calls) if pattern is None else steps_by_name(trace, pattern, window)
    return _with_sequences(trace, with_phases(trace, steps, calls), within).of_phase(phase)


def choose_steps(trace: Trace, within: str | None, bounds: Bounds) -> Steps:
    """The steps inside the NVTX ranges `within` that are asked for; of several regimes, unless some are asked for, the
    longest; without those of which the clocks are in doubt. Raises like `find_steps`, `Steps.select` and
    `without_doubtful`."""
    steps = find_steps(trace, pattern=bounds.pattern, within=within, phase=bounds.phase)
    if bounds.first is None and bounds.last is None:
        steps = steps.of_main_regime()
    else:
        steps = steps.select(bounds.first, bounds.last)
    return without_doubtful(trace, steps)


def marked_steps(trace: Trace) -> Steps | None:
    """The steps that marks tell, of decode if there are any, also of a trace without kernels; None if none do."""
    calls = host_calls(trace)
    steps = _marked(trace, calls, None, None)
    return None if steps is None else with_phases(trace, steps, calls).of_phase(None)


def was_traced(what: str, trace: Trace) -> str:
    """The question whether something was recorded, with the remedy of the trace's own recorder; of a recording of an
    accelerator that is not understood, that."""
    others = OTHER_DOMAINS & set(trace["nvtx"]["domain"].astype(str).unique())
    if others:
        return f"its work is of an accelerator that is not understood ({', '.join(sorted(others))})"
    source = str(trace.metadata.get("source", ""))
    remedy = next((f" ({words})" for recorder, words in _TRACING_CUDA.items() if source.startswith(recorder)), "")
    return f"was {what} traced{remedy}?"


def _windows(trace: Trace, within: str) -> pd.DataFrame:
    nvtx = trace["nvtx"]
    ranges = nvtx[(nvtx["end"] > nvtx["start"]) & ~nvtx["domain"].isin(DEVICE_DOMAINS)]
    texts = [str(text) for text in ranges["text"].cat.remove_unused_categories().cat.categories]
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
    return ranges[ranges["text"].isin(chosen)]


def _marked(
    trace: Trace, calls: pd.DataFrame, pattern: re.Pattern[str] | None, window: pd.DataFrame | None
) -> Steps | None:
    """Pass 1: the steps of the first engine whose marks are there."""
    nvtx = trace["nvtx"]
    unfit = DEVICE_DOMAINS if pattern is not None else PROFILER_DOMAINS
    ranges = nvtx[(nvtx["kind"] != "mark") & (nvtx["end"] >= nvtx["start"]) & ~nvtx["domain"].isin(unfit)]
    if window is not None:
        ranges = ranges[within_any(ranges, window) & ~ranges.index.isin(window.index)]
    asked = None if pattern is None else Engine("the given pattern", (Mark(pattern, named),), sure=1.0)
    for engine in ENGINES if asked is None else (asked,):
        found = steps_of_marks(ranges, calls, engine, given=asked is not None)
        if found is not None:
            table, texts = found
            table = table.assign(group=_groups(trace, table))
            shown = ", ".join(texts[:2]) + (", ..." if len(texts) > 2 else "")
            plain = all(engine.plain.search(text) or not text for text in texts)
            sure = engine.sure if plain else min(engine.sure, LIKELY)
            return as_steps(_closed(table), "nvtx", f"NVTX ranges {shown}", sure)
    return None


def _unmarked(trace: Trace, calls: pd.DataFrame) -> Steps:
    """Passes 2 to 4: the steps of an engine that marks none.

    Raises:
        EmptyTraceError: neither a loop nor a model's pass.
    """
    steps = steps_of_fetches(trace, calls) or single_passes(trace, calls)
    if steps is None:
        launches = sum(len(trace[name]) for name in COMPUTE_TABLES)
        raise EmptyTraceError(
            f"no steps: {launches} kernels and graphs, no marks of a step around them, no loop in which the host waits "
            "for results, and no layers of a model; --pattern takes the name of a range, kernel or API call that "
            "begins a step"
        )
    return steps


def _closed(table: pd.DataFrame) -> pd.DataFrame:
    """The marked steps; the last one of a group ends where its mark does."""
    last = ~table["group"].duplicated(keep="last")
    return table.assign(end=table["end"].where(~last, table["closes"]))


def _groups(trace: Trace, steps: pd.DataFrame) -> NDArray[np.int64]:
    """Pass 5: steps of one thread with the same enclosing ranges, of those that hold several steps, have a number."""
    nvtx = trace["nvtx"].drop(index=steps.index)
    of_thread = rows_by_thread(nvtx)
    labels = np.zeros(len(steps), dtype=object)
    for process, thread, rows in by_thread(steps):
        starts, ends = steps["start"].to_numpy()[rows], steps["end"].to_numpy()[rows]
        begin, finish = (
            nvtx[column].to_numpy()[of_thread.get((process, thread), NO_ROWS)] for column in ("start", "end")
        )
        holds = np.searchsorted(ends, finish, side="right") - np.searchsorted(starts, begin) >= 2
        edges = np.unique(np.concatenate((begin[holds], finish[holds])))
        inner = np.searchsorted(edges, starts, side="right")
        labels[rows] = [(process, thread, int(i)) for i in inner]
    return np.asarray(pd.factorize(labels)[0], dtype=np.int64)


def _with_sequences(trace: Trace, steps: Steps, within: str | None) -> Steps:
    """The steps with the sequences that the run's own description tells, where the marks do not."""
    batch = run_json.batch(trace, within)
    table = steps.table
    unknown = (table["sequences"] == MISSING) & (table["phase"] == DECODE)
    if batch is None or not unknown.any():
        return steps
    return steps.with_table(table.assign(
        sequences=table["sequences"].where(~unknown, batch), gained=table["gained"].where(~unknown, batch)
    ))  # fmt: skip
