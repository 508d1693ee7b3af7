"""Token steps: where one decode iteration ends and the next begins.

They are found from NVTX ranges; where there are none, `tracer.analysis.periods` finds them from the repeating
sequence of host calls. A step lasts until the next one of its group begins, the last one until its own range (or its
last call) ends. Groups are what belongs together: steps on one thread inside the same enclosing NVTX ranges, a prefill
and what follows it. There is no inter-token gap between groups.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.calls import by_thread, match_rows
from tracer.analysis.named import steps_by_name
from tracer.analysis.periods import repeating_steps, within_any
from tracer.analysis.phases import PREFILL, judge, phase_of_text
from tracer.analysis.steps import ALL_STEPS as ALL_STEPS
from tracer.analysis.steps import COLUMNS, NO_ROWS, rows_by_thread
from tracer.analysis.steps import Bounds as Bounds
from tracer.analysis.steps import Steps as Steps
from tracer.errors import EmptyTraceError, UsageError
from tracer.intervals import union
from tracer.schema import COMPUTE_TABLES, DEVICE_DOMAINS, PROFILER_DOMAINS
from tracer.trace import Trace

STEP_NAMES: Final = ("token", "decode", "profilerstep", "step", "forward", "execute_model")
"""NVTX names that mean a token step, the first one present wins; ranges named prefill are steps beside them."""

_TRACING_CUDA: Final = {
    "nsys": "nsys --trace=cuda,nvtx",
    "PyTorch": "torch.profiler with activities=[CPU, CUDA], on a GPU",
}
"""How a trace's source begins -> how its recorder is told to trace CUDA."""

_PREFILL: Final = r"(?i:(?<![a-z])prefill(?![a-z]))"
_NEVER: Final = np.iinfo(np.int64).min
_THREAD: Final = ["process", "thread"]


def step_pattern(name: str) -> str:
    """The regular expression by which an NVTX text has one of `STEP_NAMES` as a word."""
    return rf"(?i:(?<![a-z]){name}(?![a-z]))"


SPAN_COLUMNS: Final = ["step", "device", "group", "start", "end", "correlation", "process"]


def find_steps(
    trace: Trace, *, pattern: str | None = None, within: str | None = None, phase: str | None = None
) -> Steps:
    """Find the token steps of a trace.

    Args:
        trace: the recording.
        pattern: regular expression for the NVTX text of a step, instead of `STEP_NAMES`; it may be an operator or
            function that a profiler marked by itself, which those names pass over. If no NVTX text matches, a step
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
        re.compile(pattern or "")
    except re.error as problem:
        raise UsageError(f"--pattern {pattern!r} is no regular expression: {problem}") from None
    window = _windows(trace, within) if within is not None else None
    steps = _nvtx_steps(trace, pattern, window)
    if steps is None:
        found = steps_by_name(trace, pattern, window) if pattern is not None else repeating_steps(trace, window)
        if found is None and pattern is not None:
            raise EmptyTraceError(f"no NVTX range, API call or kernel matches {pattern!r}")
        if found is None:
            raise EmptyTraceError(
                f"no token steps: no NVTX range named {', '.join(STEP_NAMES)}, and no repeating sequence of launches; "
                "--pattern takes the name of a kernel or API call that begins a step"
            )
        steps = Steps(found[0], "calls", *found[1:])
    return _told_apart(trace, steps).of_phase(phase)


def choose_steps(trace: Trace, within: str | None, bounds: Bounds) -> Steps:
    """The steps inside the NVTX ranges `within` that are asked for; raises like `find_steps` and `Steps.select`."""
    return find_steps(trace, pattern=bounds.pattern, within=within, phase=bounds.phase).select(
        bounds.first, bounds.last
    )


def _told_apart(trace: Trace, steps: Steps) -> Steps:
    """The steps with a phase each: those without one are judged by their work."""
    table, known = steps.table, steps.table["phase"].to_numpy(dtype=object)
    if (known == "").any():
        of_kernel, of_graph = (activity_steps(trace, steps, trace[name]) for name in COMPUTE_TABLES)
        worked = judge(trace, of_kernel, of_graph, known != PREFILL)
        table = table.assign(phase=np.where(known == "", worked, known))
    return replace(steps, table=table[COLUMNS], prefills=int((table["phase"] == PREFILL).sum()))


def marked_steps(trace: Trace) -> Steps | None:
    """The steps that NVTX ranges mark, of decode if there are any, also of a trace without kernels; None if none do."""
    steps = _nvtx_steps(trace, None, None)
    return None if steps is None else _told_apart(trace, steps).of_phase(None)


def was_traced(what: str, trace: Trace) -> str:
    """The question whether something was recorded, with the remedy of the trace's own recorder."""
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


def _nvtx_steps(trace: Trace, pattern: str | None, window: pd.DataFrame | None) -> Steps | None:
    nvtx = trace["nvtx"]
    unfit = DEVICE_DOMAINS if pattern is not None else PROFILER_DOMAINS
    ranges = nvtx[(nvtx["kind"] != "mark") & (nvtx["end"] > nvtx["start"]) & ~nvtx["domain"].isin(unfit)]
    patterns = [pattern] if pattern is not None else [step_pattern(name) for name in STEP_NAMES]
    texts = [str(text) for text in ranges["text"].cat.categories]
    if window is not None:
        ranges = ranges[_inside(ranges, window)]
    prefills = ranges[ranges["text"].isin([text for text in texts if re.search(_PREFILL, text)])]
    for candidate in patterns:
        words = [text for text in texts if re.search(candidate, text)]
        found = ranges[ranges["text"].isin(words)]
        if len(found):
            return _steps_from_ranges(trace, found, prefills, words, alone=pattern is not None)
    return None


def _inside(ranges: pd.DataFrame, windows: pd.DataFrame) -> NDArray[np.bool_]:
    """Which ranges lie inside one of the windows (and are not a window themselves)."""
    return within_any(ranges, windows) & ~ranges.index.isin(windows.index)


def _steps_from_ranges(
    trace: Trace, found: pd.DataFrame, prefills: pd.DataFrame, words: list[str], alone: bool
) -> Steps:
    """Steps from the ranges found. A range named prefill without any of them inside is a step of its own (not if the
    ranges found are to be `alone`); a step that is in such a range, or has one in it, is a prefill."""
    inside, holds = (_overlapping(*pair) for pair in ((found, prefills), (prefills, found)))
    phase = pd.Series([phase_of_text(str(text)) for text in found["text"]], index=found.index, dtype=object)
    phase[(phase == "") & inside] = PREFILL
    found = found.assign(phase=phase)
    if not alone:
        others = prefills[~holds & ~prefills.index.isin(found.index)]
        found = pd.concat([found, others.assign(phase=PREFILL)])
    found = found.sort_values(["process", "thread", "start", "end"], ascending=[True, True, True, False])
    reach = found.assign(end=found.groupby(_THREAD)["end"].cummax()).groupby(_THREAD)["end"].shift(fill_value=_NEVER)
    found = found[found["end"] > reach]  # the outermost of nested matches
    table = found[["start", "end", "process", "thread", "phase"]].reset_index(drop=True)
    table["group"] = _groups(trace, table, found.index)
    table = table.sort_values("start", kind="stable", ignore_index=True)
    begins = (table["phase"] == PREFILL).groupby(table["group"]).cumsum()
    table["group"] = pd.factorize(pd.MultiIndex.from_arrays([table["group"], begins]))[0]
    table["step"] = np.arange(len(table))
    next_start = table.groupby("group")["start"].shift(-1)
    table["end"] = next_start.fillna(table["end"]).astype("int64")
    shown = ", ".join(words[:2]) + (", ..." if len(words) > 2 else "")
    return Steps(table[COLUMNS], "nvtx", f"NVTX ranges {shown}")


def _overlapping(ranges: pd.DataFrame, others: pd.DataFrame) -> NDArray[np.bool_]:
    """Which ranges share time with one of the others on their thread."""
    result = np.zeros(len(ranges), dtype=bool)
    of_thread = rows_by_thread(ranges)
    for process, thread, rows in by_thread(others):
        mine = of_thread.get((process, thread), NO_ROWS)
        starts, ends = union(others["start"].to_numpy()[rows], others["end"].to_numpy()[rows])
        begun = np.searchsorted(starts, ranges["end"].to_numpy()[mine])
        ended = np.searchsorted(ends, ranges["start"].to_numpy()[mine], side="right")
        result[mine] = begun > ended
    return result


def _groups(trace: Trace, steps: pd.DataFrame, own: pd.Index) -> NDArray[np.int64]:
    """Number the groups: steps of one thread with the same enclosing ranges, of those that hold several steps."""
    nvtx = trace["nvtx"].drop(index=own)
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


def launch_rows(trace: Trace, activities: pd.DataFrame) -> NDArray[np.int64]:
    """For each device activity the position in trace["api"] of the call that caused it, or -1."""
    return match_rows(trace["api"], activities)


def activity_steps(trace: Trace, steps: Steps, activities: pd.DataFrame) -> NDArray[np.int64]:
    """For each device activity the position in `steps.table` of the step that launched it, or -1.

    An activity belongs to the step in which its call was made, however late it ran; only where the trace lacks the
    call does its own start decide.
    """
    api = trace["api"]
    rows = launch_rows(trace, activities)
    known = rows >= 0
    times = activities["start"].to_numpy().copy()
    processes = activities["process"].to_numpy()
    threads = np.full(len(activities), steps.table["thread"].iloc[0])
    times[known] = api["start"].to_numpy()[rows[known]]
    threads[known] = api["thread"].to_numpy()[rows[known]]
    return steps.of(times, processes, threads)


def step_compute(trace: Trace, steps: Steps) -> pd.DataFrame:
    """The compute activities (kernels, whole graphs) that the steps launched, with their step's position in `at`."""
    compute = trace.activities(COMPUTE_TABLES)
    compute["at"] = activity_steps(trace, steps, compute)
    return compute[compute["at"] >= 0].reset_index(drop=True)


def step_spans(trace: Trace, steps: Steps, compute: pd.DataFrame | None = None) -> pd.DataFrame:
    """First compute start and last compute end of every step on every device.

    Returns:
        Columns step device group start end (ns), correlation and process (of the first activity), ordinal (of the
        step in its group), step_process and step_thread (the step's own), sorted by (device, start).
    """
    compute = step_compute(trace, steps) if compute is None else compute
    spans = compute.groupby(["device", "at"], sort=True).agg(
        start=("start", "min"),
        end=("end", "max"),
        correlation=("correlation", "first"),
        process=("process", "first"),
    )
    spans = spans.reset_index()
    table = steps.table.assign(
        ordinal=steps.table.groupby("group").cumcount(),
        step_process=steps.table["process"],
        step_thread=steps.table["thread"],
    )
    added = ["step", "group", "ordinal", "step_process", "step_thread"]
    spans[added] = table[added].to_numpy()[spans["at"]]
    return spans[[*SPAN_COLUMNS, *added[2:]]]
