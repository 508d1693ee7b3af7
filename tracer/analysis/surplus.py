"""The first call of a step that a budget does not allow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import takewhile
from typing import Final

import pandas as pd

from tracer.analysis.syncs import SyncReport, expand
from tracer.model.calls import BLOCKING_COPY, CALLS, COPY, POLL, SYNC
from tracer.model.schema import DEVICE_DOMAINS
from tracer.model.trace import Trace

_ALL: Final = "".join((*CALLS, POLL))


@dataclass(frozen=True)
class Surplus:
    """A surplus call.

    Attributes:
        name: as recorded.
        process, thread: that made it.
        correlation: the call's own.
        step: the token step that contains it.
        time_in_step_us: from the start of the step to the start of the call.
        nvtx: texts of the ranges around it, the outermost first.
    """

    name: str
    process: int
    thread: int
    correlation: int
    step: int
    time_in_step_us: float
    nvtx: tuple[str, ...]


def surplus_position(
    shown: Sequence[str], letters: Sequence[str], kinds: str, most: float, expected: str | None
) -> int:
    """The position of the first surplus call of a step, or -1.

    Args:
        shown: each call's letter in the signature ("" for one that another call's letter includes).
        letters: each call's own letter.
        kinds: the letters that occur too often.
        most: the number allowed.
        expected: the letters of the expected signature, if there is one: the result is then the first call of that kind
            where the signature has none; otherwise it is the first call beyond those allowed.
    """
    if expected is not None:
        seen = [i for i, letter in enumerate(shown) if letter]
        found = "".join(shown[i] for i in seen)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(expected, found, strict=False)))
        changes = SequenceMatcher(None, expected[same:], found[same:], autojunk=False).get_opcodes()
        spans = [range(same + a, same + b) for tag, _, _, a, b in changes if tag in ("insert", "replace")]
        added = [seen[j] for span in spans for j in span]
        for i in added:
            if letters[i] in kinds:
                return i
            if SYNC in kinds and letters[i] == COPY and shown[i] == BLOCKING_COPY:
                return i + 1  # the sync that makes the copy block
    candidates = [i for i, letter in enumerate(letters) if letter in kinds]
    return candidates[int(most)] if len(candidates) > most else -1


def first_surplus(trace: Trace, report: SyncReport, kinds: str, most: float, signature: str | None) -> Surplus | None:
    """The first surplus call, in the first step that has one.

    Args:
        trace: the recording, for its NVTX ranges.
        report: the inventory of its steps.
        kinds: the letters of the limited calls.
        most: the number of them that a step may make.
        signature: the expected one, if any.
    """
    calls = report.calls
    counts = calls["letter"].isin(list(kinds)).groupby(calls["step"]).sum()
    over = counts.index[counts > most]
    expected = None if signature is None else expand(signature)
    return _in_step(trace, report, int(over[0]), kinds, most, expected) if len(over) else None


def first_deviation(trace: Trace, report: SyncReport, signature: str) -> Surplus | None:
    """The first call where the signature has none, in the first step with such a call."""
    expected = expand(signature)
    words = report.calls.sort_values("start", kind="stable").groupby("step")["shown"].agg("".join)
    steps = words[words != expected].drop_duplicates().index  # equal steps deviate alike
    deviations = (_in_step(trace, report, int(step), _ALL, math.inf, expected) for step in steps)
    return next((call for call in deviations if call is not None), None)


def _in_step(
    trace: Trace, report: SyncReport, step: int, kinds: str, most: float, expected: str | None
) -> Surplus | None:  # fmt: skip
    rows = report.calls[report.calls["step"] == step].sort_values("start", kind="stable")
    position = surplus_position(rows["shown"].tolist(), rows["letter"].tolist(), kinds, most, expected)
    if position < 0:
        return None
    call, counts = rows.iloc[position], report.counts
    begin = int(counts["start"][counts["step"] == step].iloc[0])
    at, process, thread = (int(call[column]) for column in ("start", "process", "thread"))
    texts = ranges_around(trace["nvtx"], at, process, thread)
    return Surplus(str(call["name"]), process, thread, int(call["correlation"]), step, (at - begin) / 1e3, texts)


def ranges_around(nvtx: pd.DataFrame, at: int, process: int, thread: int) -> tuple[str, ...]:
    """The texts of the ranges of trace["nvtx"] that contain a moment of a thread, the outermost first."""
    on_thread = (nvtx["process"] == process) & (nvtx["thread"] == thread) & ~nvtx["domain"].isin(DEVICE_DOMAINS)
    around = nvtx[on_thread & (nvtx["start"] <= at) & (nvtx["end"] > at)]
    return tuple(map(str, around.sort_values(["start", "end"], ascending=[True, False])["text"]))
