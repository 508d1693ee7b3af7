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
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.steps import Steps, as_steps
from tracer.analysis.turns import copied_out
from tracer.engines import engines
from tracer.engines.engine import EMPTY, FOLLOWS, LATE, LEADS, LEADS_VERIFIED, OPENS, PHASES, SPECULATIVE, Engine, Mark
from tracer.engines.ours import named
from tracer.errors import EmptyTraceError
from tracer.model.calls import LAUNCHES, SYNC
from tracer.model.intervals import within_any
from tracer.model.rows import THREAD, among, by_thread, last_before, match_rows, of_thread, positions, rows_named
from tracer.model.schema import DEVICE_DOMAINS, HOST_COMPUTE, PROFILER_DOMAINS
from tracer.model.trace import Trace

_NEVER: Final = np.iinfo(np.int64).min
_TELLING: Final = (EMPTY, "", *PHASES[::-1])
"""The phase of a step with nested marks is the one that comes last in this list."""


def steps_of_marks(
    trace: Trace, calls: pd.DataFrame, pattern: re.Pattern[str] | None = None, window: pd.DataFrame | None = None
) -> Steps | None:
    """The steps from the marks of the first engine that has any, or from the requested ones; None if there are none.

    Args:
        trace: the recording.
        calls: from `calls.host_calls`; if there are none at all, every range counts.
        pattern: searched in the texts, instead of the engines' marks; matches then count on any thread.
        window: rows of trace["nvtx"]; only what is inside them counts.
    """
    nvtx = trace["nvtx"]
    unfit = DEVICE_DOMAINS if pattern is not None else PROFILER_DOMAINS | {HOST_COMPUTE}
    ranges = nvtx[(nvtx["kind"] != "mark") & (nvtx["end"] >= nvtx["start"]) & ~nvtx["domain"].isin(unfit)]
    if window is not None:
        ranges = ranges[within_any(ranges, window) & ~ranges.index.isin(window.index)]
    asked = () if pattern is None else (Engine("the given pattern", (Mark(pattern, named),), sure=1.0),)
    launching = calls[among(calls["letter"].to_numpy(dtype="U1"), LAUNCHES)]
    working = launching if len(launching) else calls  # without launches, copies and waits are the work
    for engine in asked or engines():
        work_of = _work_of(ranges, engine)
        if not any(work["own"] for work in work_of.values()):
            continue
        marks = _matching(ranges, work_of)
        if len(calls) and not asked:
            marks = marks[positions(marks, working, THREAD) >= 0]
        if not marks["own"].any():
            continue
        steps = _begun(_joined(_outermost(_labelled(marks))), calls)
        if len(calls) and not asked:
            busy = np.isin(np.arange(len(steps)), last_before(working, working["start"], steps))
            steps = steps[busy & (steps["phase"] != EMPTY)]
        if len(steps):
            label = marks["label"]
            texts = [str(text) for text in marks["text"][~label if not label.all() else label].drop_duplicates()]
            shown = ", ".join(texts[:2]) + (", ..." if len(texts) > 2 else "")
            table = _grouped(steps, nvtx.drop(index=steps.index))
            return as_steps(table, "nvtx", f"NVTX ranges {shown}", engine.sure_of(texts))
    return None


def steps_by_name(trace: Trace, pattern: re.Pattern[str], window: pd.DataFrame | None = None) -> Steps:
    """Steps that begin with each call whose name matches, or that launches a kernel whose name does.

    The last step of a thread takes as long as the median one, or until the thread's last call.

    Args:
        trace: the recording.
        pattern: searched in API names; in kernels' names if none of these has it.
        window: NVTX rows; only calls inside them begin steps.

    Raises:
        EmptyTraceError: nothing matches.
    """
    api, kernels = trace["api"], trace["kernels"]
    chosen = rows_named(api["name"], pattern.search)
    if not chosen.any():
        rows = match_rows(api, kernels[rows_named(kernels["name"], pattern.search)])
        chosen[rows[rows >= 0]] = True
    if window is not None:
        chosen &= within_any(api, window)
    if not chosen.any():
        raise EmptyTraceError(f"no NVTX range, API call or kernel matches {pattern.pattern!r}")
    heads = api.loc[chosen, ["start", *THREAD]].assign(phase="")
    usual = heads.groupby(THREAD)["start"].transform(lambda starts: starts.diff().median()).fillna(np.inf)
    left = api.groupby(THREAD)["end"].transform("max")[chosen] - heads["start"]
    heads["end"] = heads["start"] + np.minimum(left, usual).astype(np.int64)
    table = _grouped(_until_next(heads), trace["nvtx"])
    return as_steps(table, "calls", f"calls and kernels that match {pattern.pattern!r}", 1.0)


def _work_of(ranges: pd.DataFrame, engine: Engine) -> dict[int, dict[str, Any]]:
    """Stage 1: code of a text that is a mark -> phase, sequences, gained and part (from the first mark that matches),
    position, label and own (of the mark)."""
    work_of: dict[int, dict[str, Any]] = {}
    for code, text in enumerate(ranges["text"].cat.categories):
        for mark in engine.marks:
            if hit := mark.text.search(str(text)):
                work_of[code] = {
                    **vars(mark.work(hit)),
                    "position": mark.position,
                    "label": mark.label,
                    "own": mark.own,
                }
                break
    return work_of


def _matching(ranges: pd.DataFrame, work_of: dict[int, dict[str, Any]]) -> pd.DataFrame:
    """The ranges that are marks, with these columns."""
    codes = ranges["text"].cat.codes
    marks = ranges.loc[codes.isin(work_of), ["start", "end", *THREAD, "text"]]
    columns = ["phase", "sequences", "gained", "part", "position", "label", "own"]
    hits = pd.DataFrame.from_dict(work_of, orient="index", columns=columns).loc[codes[marks.index]]
    return pd.DataFrame(pd.concat([marks, hits.set_index(marks.index)], axis=1))


def _labelled(marks: pd.DataFrame) -> pd.DataFrame:
    """Labels give their phase to the marks that they overlap; a label that overlaps none is a step."""
    if not marks["label"].any():
        return marks
    steps, labels = marks[~marks["label"]], marks[marks["label"]]
    named = _overlapping(steps, labels) & (steps["phase"] == "").to_numpy()
    phase = labels["phase"].iloc[0] if len(labels) else ""
    steps = steps.assign(phase=np.where(named, phase, steps["phase"]))
    return pd.concat([steps, labels[~_overlapping(labels, steps)]])


def _overlapping(ranges: pd.DataFrame, others: pd.DataFrame) -> NDArray[np.bool_]:
    """Which ranges overlap one of the others on their thread."""
    others = others.sort_values("start")
    reach = np.append(others.groupby(THREAD)["end"].cummax(), _NEVER)
    return np.asarray(reach[last_before(ranges, ranges["end"] - 1, others)] > ranges["start"])


def _outermost(marks: pd.DataFrame) -> pd.DataFrame:
    """Stage 3: the outermost marks, sorted by thread, each with the information of the marks inside it."""
    marks = marks.sort_values([*THREAD, "start", "end"], ascending=[True, True, True, False])
    reach = marks.assign(end=marks.groupby(THREAD)["end"].cummax()).groupby(THREAD)["end"].shift(fill_value=_NEVER)
    outer = (marks["end"] > reach).to_numpy()
    holder = np.cumsum(outer)
    rank = pd.Series([_TELLING.index(phase) for phase in marks["phase"]]) + 0.5 * (marks["part"].to_numpy() == "")
    best = marks.iloc[rank.groupby(holder).idxmax()]  # a mark of a whole step says more than a mark of a part
    columns_of_work = ["phase", "sequences", "gained", "part"]
    return marks[outer].assign(**{name: best[name].to_numpy() for name in columns_of_work})


def _joined(marks: pd.DataFrame) -> pd.DataFrame:
    """Stage 4: one row per step, including its leading and following parts."""
    if not marks["part"].any():
        return marks
    keys = [marks[name] for name in THREAD]
    verified = ((marks["phase"] == SPECULATIVE) & (marks["part"] == "")).groupby(keys).transform("any")
    leads = (marks["part"] == LEADS) | ((marks["part"] == LEADS_VERIFIED) & verified)
    follows = marks["part"] == FOLLOWS
    number = ((~follows & ~leads.groupby(keys).shift(fill_value=False)) | ~marks.duplicated(THREAD)).cumsum()
    main = (~leads & ~follows).groupby(number).transform("idxmax") == marks.index
    of_step = marks.groupby(number)
    times = {"start": of_step["start"].transform("min"), "end": of_step["end"].transform("max")}
    return marks.assign(**times, position=of_step["position"].transform("first"))[main]


def _begun(steps: pd.DataFrame, calls: pd.DataFrame) -> pd.DataFrame:
    """Stage 5: the steps with their start, ns.

    The step of a late mark begins after the last copy to the host, or wait, between the previous mark and this one,
    with the first call that follows; the step of a closing mark with the first call after the previous mark.
    """
    starts, early = steps["start"].to_numpy(copy=True), np.flatnonzero(steps["position"] != OPENS)
    if len(early) and len(calls):
        fetched = calls[copied_out(calls) | (calls["letter"] == SYNC).to_numpy()]
        ended = np.append(fetched["end"], _NEVER)[last_before(steps, steps["start"] - 1, fetched)]
        before = steps.groupby(THREAD)["end"].shift(fill_value=_NEVER).to_numpy()
        behind = np.where(steps["position"] == LATE, np.maximum(ended, before), before)
        asked = steps.iloc[early].assign(start=behind[early])
        of_step = last_before(calls, calls["start"], asked)
        np.minimum.at(starts, early[of_step[of_step >= 0]], calls["start"].to_numpy()[of_step >= 0])
    return _until_next(steps.assign(start=starts))


def _until_next(steps: pd.DataFrame) -> pd.DataFrame:
    """The steps until the next one of their thread begins; if marks close steps, until their mark ends."""
    following = steps.groupby(THREAD)["start"].shift(-1, fill_value=_NEVER)
    return steps.assign(end=following.where(following > _NEVER, steps["end"]), closes=steps["end"])


def _grouped(steps: pd.DataFrame, nvtx: pd.DataFrame) -> pd.DataFrame:
    """Stage 7: the steps with a group, which numbers those of one thread with the same enclosing ranges; only ranges
    that contain several steps count."""
    inner = np.zeros(len(steps), np.int64)
    for process, thread, rows in by_thread(steps):
        on_thread = of_thread(nvtx, process, thread)
        starts, ends = steps["start"].to_numpy()[rows], steps["end"].to_numpy()[rows]
        several = (
            np.searchsorted(ends, on_thread["end"], side="right") - np.searchsorted(starts, on_thread["start"]) >= 2
        )
        edges = np.unique(on_thread.loc[several, ["start", "end"]])
        inner[rows] = np.searchsorted(edges, starts, side="right")
    group = steps.assign(inner=inner).groupby([*THREAD, "inner"], sort=False).ngroup()
    end = steps["end"].where(group.duplicated(keep="last"), steps["closes"])
    return steps.assign(group=group, end=end.clip(lower=steps["start"] + 1))
