"""Steps with marks: ranges and annotations of an engine, on threads that launch work, or whatever the user selects.

Stages:
1. for each distinct text, which mark of the engine it is and what that implies; if a pattern is given that matches no
   text, each call with a matching name, or that launches a kernel with one, is a mark;
2. leave out ranges on threads that launch nothing;
3. of nested ranges keep the outermost, with the information of the inner ones;
4. join drafts to the step that verifies them;
5. a step lasts until the next one of its thread begins. If its mark opens late, it begins with the first call after the
   result of the previous step; if the mark closes the step, with the first call after the previous mark;
6. leave out what launches nothing;
7. groups: steps on one thread inside the same enclosing ranges; the last step of a group ends where its mark does.
"""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tracer.analysis.calls import Calls, copied_out
from tracer.analysis.steps import StepRows, Steps, as_steps
from tracer.engines import engines
from tracer.engines.engine import (
    EMPTY,
    FOLLOWS,
    LATE,
    LEADS,
    LEADS_VERIFIED,
    OPENS,
    PHASES,
    SPECULATIVE,
    Engine,
    Mark,
    Work,
)
from tracer.engines.ours import named
from tracer.errors import EmptyTraceError
from tracer.model.calls import LAUNCHES, SYNC
from tracer.model.columns import (
    NEVER,
    Columns,
    Names,
    Texts,
    among,
    ended_before,
    grouped,
    joined,
    last_before,
    numbers,
    positions,
    spread,
)
from tracer.model.intervals import Bools, Ints, within_any
from tracer.model.schema import DEVICE_DOMAINS, HOST_COMPUTE, MISSING, PROFILER_DOMAINS
from tracer.model.tables import Nvtx
from tracer.model.trace import Trace
from tracer.notes import NAME
from tracer.text import plain

_TELLING: Final = (EMPTY, "", *PHASES[::-1])
"""The phase of a step with nested marks is the one that comes last in this list."""


class _Marks(Columns):
    """Marks, or the steps that they make.

    Attributes:
        start, end: ns.
        process, thread: that is marked.
        row: of the mark in `trace.nvtx`, or MISSING.
        phase, sequences, gained, part: as in `engine.Work`.
        position, label, own: as in `engine.Mark`.
        closes: when the mark does, ns.
    """

    start: Ints
    end: Ints
    process: Ints
    thread: Ints
    row: Ints
    phase: Texts
    sequences: Ints
    gained: Ints
    part: Texts
    position: Texts
    label: Bools
    own: Bools
    closes: Ints


def steps_of_marks(
    trace: Trace, calls: Calls, pattern: re.Pattern[str] | None = None, inside: Ints | None = None
) -> Steps | None:
    """The steps from the marks of the first engine that has any, or from the requested ones; None if there are none.

    Args:
        calls: from `calls.host_calls`; if there are none at all, every range counts.
        pattern: searched in the texts, instead of the engines' marks; matches then count on any thread.
        inside: rows of `trace.nvtx`; only what is inside them counts.
    """
    nvtx = trace.nvtx
    unfit = DEVICE_DOMAINS if pattern is not None else PROFILER_DOMAINS | {HOST_COMPUTE}
    fit = ~nvtx.kind.rows("mark") & (nvtx.end >= nvtx.start) & ~nvtx.domain.rows(*unfit)
    if inside is not None:
        fit &= within_any(nvtx, nvtx[inside])
        fit[inside] = False
    asked = () if pattern is None else (Engine("the given pattern", (Mark(pattern, named),), sure=1.0),)
    launching = calls[among(calls.letter, LAUNCHES)]
    working = launching if len(launching) else calls  # without launches, copies and waits are the work
    for engine in asked or engines():
        marks = _matching(nvtx, fit, engine)
        if marks is None:
            continue
        if len(calls) and not asked:
            marks = marks[positions([marks.process, marks.thread], [working.process, working.thread]) >= 0]
        if not marks.own.any():
            continue
        steps = _begun(_joined(_outermost(_labelled(marks))), calls)
        if len(calls) and not asked:
            launched = _last(working, working.start, steps)
            busy = np.isin(np.arange(len(steps)), launched)
            steps = steps[busy & (steps.phase != EMPTY)]
        if len(steps):
            shown = ~marks.label if not marks.label.all() else marks.label
            texts = [str(text) for text in dict.fromkeys(nvtx.text[marks.row[shown]])]
            named_by = ", ".join(plain(text, NAME) for text in texts[:2]) + (", ..." if len(texts) > 2 else "")
            return as_steps(_grouped(steps, trace), "nvtx", f"NVTX ranges {named_by}", engine.sure_of(texts))
    return None


def steps_by_name(trace: Trace, pattern: re.Pattern[str], inside: Ints | None = None) -> Steps:
    """Steps that begin with each call whose name matches, or that launches a kernel whose name does.

    The last step of a thread takes as long as the median one, or until the thread's last call.

    Args:
        pattern: searched in API names; in kernels' names if none of these has it.
        inside: rows of `trace.nvtx`; only calls inside them begin steps.

    Raises:
        EmptyTraceError: nothing matches.
    """
    api, kernels = trace.api, trace.kernels
    chosen = api.name.chosen(pattern.search)
    if not chosen.any():
        rows = api.of(kernels[kernels.name.chosen(pattern.search)])
        chosen = np.zeros(len(api), bool)
        chosen[rows[rows >= 0]] = True
    if inside is not None:
        chosen &= within_any(api, trace.nvtx[inside])
    if not chosen.any():
        raise EmptyTraceError(f"no NVTX range, API call or kernel matches {pattern.pattern!r}")
    heads, last = api[chosen], {key: int(api.end[rows].max()) for key, rows in grouped(api.process, api.thread)}
    end = np.empty(len(heads), np.int64)
    for key, rows in grouped(heads.process, heads.thread):
        apart = np.diff(heads.start[rows])
        usual = float(np.median(apart)) if len(apart) else np.inf
        end[rows] = heads.start[rows] + np.minimum(last[key] - heads.start[rows], usual).astype(np.int64)
    none, no = np.full(len(heads), MISSING), np.zeros(len(heads), bool)
    text = np.full(len(heads), "", dtype=object)
    marks = _Marks(heads.start, end, heads.process, heads.thread, none, text, none, none, text, text, no, no, end)
    steps = _grouped(_until_next(marks), trace)
    return as_steps(steps, "calls", f"calls and kernels that match {pattern.pattern!r}", 1.0)


def _matching(nvtx: Nvtx, fit: Bools, engine: Engine) -> _Marks | None:
    """Stage 1: the fit ranges whose text is a mark, with what the first mark that matches says; None if no text is one
    of the engine's own."""
    matches: dict[int, tuple[Mark, Work]] = {}
    for code, text in enumerate(nvtx.text.words.tolist()):
        for mark in engine.marks:
            if hit := mark.text.search(str(text)):
                matches[code] = mark, mark.work(hit)
                break
    if not any(mark.own for mark, _ in matches.values()):
        return None
    number = np.full(len(nvtx.text.words), MISSING)
    number[list(matches)] = np.arange(len(matches))
    of = np.where(fit, number[nvtx.text.codes], MISSING)
    rows = np.flatnonzero(of >= 0)
    marks, works = [mark for mark, _ in matches.values()], [work for _, work in matches.values()]

    def column(values: list[Any], dtype: Any = object) -> NDArray[Any]:
        return np.array(values, dtype=dtype)[of[rows]]

    return _Marks(
        nvtx.start[rows], nvtx.end[rows], nvtx.process[rows], nvtx.thread[rows], rows,
        column([work.phase for work in works]), column([work.sequences for work in works], np.int64),
        column([work.gained for work in works], np.int64), column([work.part for work in works]),
        column([mark.position for mark in marks]), column([mark.label for mark in marks], bool),
        column([mark.own for mark in marks], bool), nvtx.end[rows],
    )  # fmt: skip


def _last(rows: Calls | _Marks, times: Ints, others: Calls | _Marks) -> Ints:
    """For each row, the position of the last of the others on its thread that starts at or before a time, or -1."""
    return last_before([rows.process, rows.thread], times, [others.process, others.thread], others.start)


def _reach(marks: _Marks) -> Ints:
    """The latest end on the thread of each mark up to it, ns."""
    reach = np.empty(len(marks), np.int64)
    for _, rows in grouped(marks.process, marks.thread):
        reach[rows] = np.maximum.accumulate(marks.end[rows])
    return reach


def _before(marks: _Marks, values: Ints) -> Ints:
    """The value of the preceding mark of each mark's thread, `-NEVER` for the first."""
    before = np.full(len(marks), -NEVER)
    for _, rows in grouped(marks.process, marks.thread):
        before[rows[1:]] = values[rows[:-1]]
    return before


def _labelled(marks: _Marks) -> _Marks:
    """Stage 2: labels give their phase to the marks that they overlap; a label that overlaps none is a step."""
    if not marks.label.any():
        return marks
    steps, labels = marks[~marks.label], marks[marks.label]
    named_by = _overlapping(steps, labels) & (steps.phase == "")
    steps = steps.changed(phase=np.where(named_by, labels.phase[0], steps.phase))
    return joined([steps, labels[~_overlapping(labels, steps)]])


def _overlapping(ranges: _Marks, others: _Marks) -> Bools:
    """Which ranges overlap one of the others on their thread."""
    others = others[np.argsort(others.start)]
    return spread(_reach(others), _last(ranges, ranges.end - 1, others), -NEVER) > ranges.start


def _outermost(marks: _Marks) -> _Marks:
    """Stage 3: the outermost marks, sorted by thread, each with the information of the marks inside it.

    Example: a range "execute_model" that holds one named "decode, 8 sequences" is one step, of 8 sequences.
    """
    marks = marks[np.lexsort((-marks.end, marks.start, marks.thread, marks.process))]
    outer = marks.end > ended_before(marks.end, marks.process, marks.thread)
    holder = np.cumsum(outer)
    telling = np.array([_TELLING.index(phase) for phase in marks.phase.tolist()]) + 0.5 * (marks.part == "")
    order = np.lexsort((np.arange(len(marks)), -telling, holder))
    best = order[np.flatnonzero(np.diff(holder[order], prepend=0))]  # a whole step's mark says more than that of a part
    of = {name: getattr(marks, name)[best] for name in ("phase", "sequences", "gained", "part")}
    return marks[outer].changed(**of)


def _joined(marks: _Marks) -> _Marks:
    """Stage 4: one row per step, including its leading and following parts.

    Example: the marks draft, draft, verify, where a draft leads, are one step that begins with the first.
    """
    if not (marks.part != "").any():
        return marks
    verified = np.zeros(len(marks), bool)
    is_first = np.zeros(len(marks), bool)
    for _, rows in grouped(marks.process, marks.thread):
        verified[rows] = ((marks.phase == SPECULATIVE) & (marks.part == ""))[rows].any()
        is_first[rows[0]] = True
    leads = (marks.part == LEADS) | ((marks.part == LEADS_VERIFIED) & verified)
    follows = marks.part == FOLLOWS
    number = np.cumsum((~follows & ~np.append(False, leads[:-1])) | is_first)
    begins = np.flatnonzero(np.diff(number, prepend=0))
    main = np.lexsort((np.arange(len(marks)), leads | follows, number))[begins]  # the first that is no part, of each
    return marks[main].changed(
        start=np.minimum.reduceat(marks.start, begins), end=np.maximum.reduceat(marks.end, begins),
        position=marks.position[begins],
    )  # fmt: skip


def _begun(steps: _Marks, calls: Calls) -> _Marks:
    """Stage 5: the steps with their start, ns.

    The step of a late mark begins after the last copy to the host, or wait, between the previous mark and this one,
    with the first call that follows; the step of a closing mark with the first call after the previous mark.

    Example: of a late mark, the calls wait, copy, [mark: launch] begin with the copy.
    """
    starts, early = steps.start.copy(), np.flatnonzero(steps.position != OPENS)
    if len(early) and len(calls):
        fetched = calls[copied_out(calls) | (calls.letter == SYNC)]
        ended = spread(fetched.end, _last(steps, steps.start - 1, fetched), -NEVER)
        before = _before(steps, steps.end)
        behind = np.where(steps.position == LATE, np.maximum(ended, before), before)
        of_step = _last(calls, calls.start, steps[early].changed(start=behind[early]))
        np.minimum.at(starts, early[of_step[of_step >= 0]], calls.start[of_step >= 0])
    return _until_next(steps.changed(start=starts))


def _until_next(steps: _Marks) -> _Marks:
    """The steps until the next one of their thread begins; if marks close steps, until their mark ends."""
    end = steps.end.copy()
    for _, rows in grouped(steps.process, steps.thread):
        end[rows[:-1]] = steps.start[rows[1:]]
    return steps.changed(end=end, closes=steps.end)


def _grouped(steps: _Marks, trace: Trace) -> StepRows:
    """Stage 7: the steps with a group, which numbers those of one thread with the same enclosing ranges; only ranges
    that contain several steps count.

    Example: ten steps inside "request 1" and ten inside "request 2" are two groups.
    """
    nvtx, inner = trace.nvtx, np.zeros(len(steps), np.int64)
    others = np.ones(len(nvtx), bool)
    others[steps.row[steps.row != MISSING]] = False
    for (process, thread), rows in grouped(steps.process, steps.thread):
        around = np.flatnonzero(others & (nvtx.process == process) & (nvtx.thread == thread))
        starts, ends, begin, until = steps.start[rows], steps.end[rows], nvtx.start[around], nvtx.end[around]
        holds = np.searchsorted(ends, until, side="right") - np.searchsorted(starts, begin) >= 2
        edges = np.unique(np.append(begin[holds], until[holds]))
        inner[rows] = np.searchsorted(edges, starts, side="right")
    group, count = numbers(steps.process, steps.thread, inner)
    last = np.zeros(count, np.int64)
    last[group] = np.arange(len(group))
    end = np.where(last[group] == np.arange(len(group)), steps.closes, steps.end)
    none = np.full(len(steps), MISSING)
    return StepRows(
        none, steps.start, np.maximum(end, steps.start + 1), steps.process, steps.thread, group, Names.of(steps.phase),
        steps.sequences, steps.gained, none, steps.closes,
    )  # fmt: skip
