"""Steps that an engine marks: NVTX ranges and annotations on threads that launch work.

Passes:
1. of each distinct text, which mark of the engine it is and what that tells;
2. leave out ranges on threads that launch nothing;
3. of ranges one inside another the outermost, which takes what the inner ones tell;
4. join drafts to the step that verifies them;
5. a step lasts until the next one of its thread begins; where its mark opens late it begins with the first call behind
   the result of the step before, where it closes the step with the first call behind the mark before;
6. leave out what launches nothing.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.calls import COPIES, LAUNCHES, SYNC, among, by_thread
from tracer.analysis.steps import NO_ROWS, rows_by_thread
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
)
from tracer.intervals import union

_NEVER: Final = np.iinfo(np.int64).min
_THREAD: Final = ["process", "thread"]
_TELLING: Final = (EMPTY, "", *PHASES[::-1])
"""Of marks inside one another, the phase that stands last here is the step's."""


def steps_of_marks(
    ranges: pd.DataFrame, calls: pd.DataFrame, engine: Engine, *, given: bool = False
) -> tuple[pd.DataFrame, list[str]] | None:
    """The steps that the engine's marks tell, and some of their texts; None if there are none.

    Args:
        ranges: rows of trace["nvtx"] that may be marks.
        calls: as `calls.host_calls` gives them; where there are none at all, every range counts.
        engine: whose marks.
        given: whether somebody said that these are the marks: then they count wherever they are.

    Returns:
        Columns start end (ns) process thread phase sequences gained, and closes, where the mark itself ends (ns), by
        start; the index is that of the outermost ranges.
    """
    marks = _matching(ranges, engine)
    if not marks["own"].any():
        return None
    launching = calls[among(calls["letter"].to_numpy(dtype="U1"), LAUNCHES)]
    working = launching if len(launching) else calls  # who launches nothing works by copies and waits
    if len(calls) and not given:
        threads = pd.MultiIndex.from_frame(working[_THREAD].drop_duplicates())
        marks = marks[pd.MultiIndex.from_frame(marks[_THREAD]).isin(threads)]
    if not marks["own"].any():
        return None
    named = marks[~marks["label"]] if not marks["label"].all() else marks
    texts = [str(text) for text in named["text"].drop_duplicates()]
    steps = _joined(_outermost(_labelled(marks)))
    begin = _begin(steps, calls)
    following = begin.groupby([steps[c] for c in _THREAD]).shift(-1, fill_value=_NEVER)
    end = following.where(following > _NEVER, steps["end"])
    steps = steps.assign(start=begin, end=np.maximum(end, begin + 1), closes=steps["end"])
    if len(calls) and not given:
        steps = steps[_launch(steps, working) & (steps["phase"] != EMPTY)]
    columns = ["start", "end", *_THREAD, "phase", "sequences", "gained", "closes"]
    return (steps.sort_values("start", kind="stable")[columns], texts) if len(steps) else None


def _matching(ranges: pd.DataFrame, engine: Engine) -> pd.DataFrame:
    """Pass 1: the ranges that are marks, with columns phase sequences gained part lies label own."""
    told = {code: hit for code, text in enumerate(ranges["text"].cat.categories) if (hit := _told(engine, str(text)))}
    codes = ranges["text"].cat.codes
    marks = ranges.loc[codes.isin(told), ["start", "end", *_THREAD, "text"]]
    columns = ["phase", "sequences", "gained", "part", "lies", "label", "own"]
    hits = pd.DataFrame.from_dict(told, orient="index", columns=columns).loc[codes[marks.index]]
    return pd.DataFrame(pd.concat([marks, hits.set_index(marks.index)], axis=1))


def _told(engine: Engine, text: str) -> tuple[str, int, int, str, str, bool, bool] | None:
    """What the first mark tells that matches: the columns above."""
    found = next(((mark, hit) for mark in engine.marks if (hit := mark.text.search(text))), None)
    if found is None:
        return None
    mark, work = found[0], found[0].work(found[1])
    return work.phase, work.sequences, work.gained, work.part, mark.lies, mark.label, mark.own


def _labelled(marks: pd.DataFrame) -> pd.DataFrame:
    """Labels give their phase to the marks that they share time with; a label that shares none is a step."""
    steps, labels = marks[~marks["label"]], marks[marks["label"]]
    named = _overlapping(steps, labels) & (steps["phase"] == "").to_numpy()
    phase = labels["phase"].iloc[0] if len(labels) else ""
    steps = steps.assign(phase=np.where(named, phase, steps["phase"]))
    return pd.concat([steps, labels[~_overlapping(labels, steps)]])


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


def _outermost(marks: pd.DataFrame) -> pd.DataFrame:
    """Pass 3: the marks that lie in no other, in the order of their threads, each with what those inside it tell."""
    marks = marks.sort_values([*_THREAD, "start", "end"], ascending=[True, True, True, False])
    reach = marks.assign(end=marks.groupby(_THREAD)["end"].cummax()).groupby(_THREAD)["end"].shift(fill_value=_NEVER)
    outer = (marks["end"] > reach).to_numpy()
    holder = np.cumsum(outer)
    rank = pd.Series([_TELLING.index(phase) for phase in marks["phase"]]) + 0.5 * (marks["part"].to_numpy() == "")
    best = marks.iloc[rank.groupby(holder).idxmax()]  # what is a step by itself tells more than a part of one
    told = ["phase", "sequences", "gained", "part"]
    return marks[outer].assign(**{name: best[name].to_numpy() for name in told})


def _joined(marks: pd.DataFrame) -> pd.DataFrame:
    """Pass 4: one row per step; what leads to a step, or follows it, is in it."""
    keys = [marks[name] for name in _THREAD]
    verified = ((marks["phase"] == SPECULATIVE) & (marks["part"] == "")).groupby(keys).transform("any")
    leads = (marks["part"] == LEADS) | ((marks["part"] == LEADS_VERIFIED) & verified)
    follows = marks["part"] == FOLLOWS
    begins = (~follows & ~leads.groupby(keys).shift(fill_value=False)) | ~marks.duplicated(_THREAD)
    number = begins.cumsum()
    main = (~leads & ~follows).groupby(number).transform("idxmax") == marks.index
    ends = marks.groupby(number)["end"].transform("max")
    starts = marks.groupby(number)["start"].transform("min")
    lies = marks.groupby(number)["lies"].transform("first")
    return marks.assign(start=starts, end=ends, lies=lies)[main]


def _begin(steps: pd.DataFrame, calls: pd.DataFrame) -> pd.Series:
    """Pass 5: where each step begins, ns.

    A late mark's step begins behind the last copy to the host, or wait, between the mark before and this one, with the
    first call that follows it; that of a mark that closes it with the first call behind the mark before.
    """
    begin = steps["start"].copy()
    letters = calls["letter"].to_numpy(dtype="U1")
    fetches = (among(letters, COPIES) & (calls["kind"] == "DtoH").to_numpy()) | (letters == SYNC)
    of_thread = rows_by_thread(calls)
    before = steps.groupby(_THREAD)["end"].shift(fill_value=_NEVER).to_numpy()
    lies = steps["lies"].to_numpy()
    for process, thread, rows in by_thread(steps):
        mine = of_thread.get((process, thread), NO_ROWS)
        early = rows[lies[rows] != OPENS]
        starts = calls["start"].to_numpy()[mine]
        fetched = mine[fetches[mine]]
        last = np.searchsorted(calls["start"].to_numpy()[fetched], steps["start"].to_numpy()[early]) - 1
        ended = np.append(calls["end"].to_numpy()[fetched], _NEVER)[last]
        ended = np.where(lies[early] == LATE, ended, _NEVER)
        first = np.searchsorted(starts, np.maximum(ended, before[early]))
        opened = np.append(starts, np.iinfo(np.int64).max)[first]
        begin.iloc[early] = np.minimum(opened, steps["start"].to_numpy()[early])
    return begin


def _launch(steps: pd.DataFrame, calls: pd.DataFrame) -> NDArray[np.bool_]:
    """Which steps' threads make some of the calls from their begin to the next one's."""
    numbered = steps.assign(row=np.arange(len(steps))).sort_values("start")[["start", *_THREAD, "row"]]
    found = pd.merge_asof(calls.sort_values("start")[["start", *_THREAD]], numbered, on="start", by=_THREAD)
    return np.isin(np.arange(len(steps)), found["row"])
