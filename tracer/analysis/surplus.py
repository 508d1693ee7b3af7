"""The first call of a step that a budget does not allow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import takewhile
from typing import Final

import numpy as np

from tracer.analysis.syncs import SyncReport, expand, letters_by_step
from tracer.model.calls import BLOCKING_COPY, CALLS, COPY, POLL, SYNC
from tracer.model.columns import among
from tracer.model.schema import DEVICE_DOMAINS
from tracer.model.tables import Nvtx
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
        expected: the letters of the expected signature, if there is one: the result is then the first call of that kind
            where the signature has none; otherwise it is the first call beyond those allowed.
    """
    if expected is not None:
        seen = [i for i, letter in enumerate(shown) if letter]
        actual = "".join(shown[i] for i in seen)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(expected, actual, strict=False)))
        changes = SequenceMatcher(None, expected[same:], actual[same:], autojunk=False).get_opcodes()
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
        kinds: the letters of the limited calls.
        most: the number of them that a step may make.
        signature: the expected one, if any.
    """
    rows = report.rows
    over = np.flatnonzero(np.bincount(rows.at[among(rows.letter, kinds)]) > most)
    expected = None if signature is None else expand(signature)
    return _in_step(trace, report, int(over[0]), kinds, most, expected) if len(over) else None


def first_deviation(trace: Trace, report: SyncReport, signature: str) -> Surplus | None:
    """The first call where the signature has none, in the first step with such a call."""
    expected = expand(signature)
    words = letters_by_step(report.rows, report.steps, report.rows.shown)
    first = {word: at for at, word in reversed([*enumerate(words)]) if word != expected}  # equal steps deviate alike
    deviations = (_in_step(trace, report, at, _ALL, math.inf, expected) for at in sorted(first.values()))
    return next((call for call in deviations if call is not None), None)


def _in_step(
    trace: Trace, report: SyncReport, at: int, kinds: str, most: float, expected: str | None
) -> Surplus | None:  # fmt: skip
    """The first surplus call of the step at this position."""
    rows = report.rows[report.rows.at == at]
    rows = rows[np.argsort(rows.start, kind="stable")]
    position = surplus_position(rows.shown.tolist(), rows.letter.tolist(), kinds, most, expected)
    if position < 0:
        return None
    start, process, thread = (int(each[position]) for each in (rows.start, rows.process, rows.thread))
    texts, since = ranges_around(trace.nvtx, start, process, thread), (start - int(report.per_step.start[at])) / 1e3
    number, step = int(rows.correlation[position]), int(rows.step[position])
    return Surplus(rows.name.at(position), process, thread, number, step, since, texts)


def ranges_around(nvtx: Nvtx, at: int, process: int, thread: int) -> tuple[str, ...]:
    """The texts of the ranges that contain a moment of a thread, the outermost first."""
    on_thread = (nvtx.process == process) & (nvtx.thread == thread) & ~nvtx.domain.rows(*DEVICE_DOMAINS)
    around = nvtx[on_thread & (nvtx.start <= at) & (nvtx.end > at)]
    return tuple(around.text[np.lexsort((-around.end, around.start))])
