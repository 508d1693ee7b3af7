"""Iterations that verify drafts, without marks: each runs from its drafts to the extension of their cache.

A step without marks ends with the result that the host reads. An engine that reads what was verified, and then extends
the draft's cache without reading a result, schedules the next iteration behind that: such a step would begin with the
extension of the iteration before, and the gap would lie inside it.

Example: with graphs E (extends), D (drafts) and V (verifies), a fetch f and a long pause of the host, the calls
V f E pause D V f E pause D V f are iterations D V f E.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from tracer.analysis.calls import Calls
from tracer.analysis.passes import MOST
from tracer.analysis.phases import VERIFIES
from tracer.analysis.steps import Steps
from tracer.analysis.turns import LONGER, SEVERAL
from tracer.model.calls import LAUNCHES
from tracer.model.columns import NEVER, among, grouped
from tracer.model.intervals import Bools, Ints
from tracer.model.schema import MISSING
from tracer.model.trace import Trace

_WORDS: Final = "each from its drafts to the extension of their cache"


def from_drafts(trace: Trace, steps: Steps, calls: Calls, *, behind_prompts: bool = False) -> Steps:
    """The steps, those of each host that verifies drafts moved so that an iteration begins behind the longest pause of
    the host before it verifies, if that lies behind launches in most of them.

    An extension alone at the end is part of the last iteration.

    Args:
        behind_prompts: only move those behind a step that verifies nothing, once the phases are known: a prompt is
            judged by its work without the extension.
    """
    if behind_prompts and _WORDS not in steps.detail:
        return steps
    kernels = trace.kernels[trace.kernels.name.chosen(VERIFIES.search)]
    if not len(kernels) or steps.source != "calls":
        return steps
    verifying = np.zeros(len(calls), bool)
    of = calls.of(kernels)
    verifying[of[of >= 0]] = True
    rows = steps.rows
    start, end, kept = rows.start.copy(), rows.end.copy(), np.ones(len(rows), bool)
    for (process, thread), mine in grouped(rows.process, rows.thread):
        own = np.flatnonzero((calls.process == process) & (calls.thread == thread))
        own = own[np.argsort(calls.start[own], kind="stable")]
        host = _Host(calls[own], verifying[own], start[mine], end[mine])
        verifies, begins = host.verifies, host.begins()
        if not behind_prompts and (begins != MISSING).sum() < max(SEVERAL, MOST * verifies.sum()):
            continue
        behind = np.append(False, (verifies[:-1] != behind_prompts) & (start[mine][1:] == end[mine][:-1]))
        behind &= verifies | (not behind_prompts)
        moved = behind & (begins != MISSING)
        alone = behind & (host.count <= host.extension(begins))
        start[mine[moved]] = begins[moved]
        end[mine[:-1]] = np.where(moved[1:], begins[1:], np.where(alone[1:], end[mine[1:]], end[mine[:-1]]))
        kept[mine[alone]] = False
    if kept.all() and (start == rows.start).all():
        return steps
    rows = rows.changed(start=start, end=end)[kept]
    detail = steps.detail if behind_prompts else f"{steps.detail}, {_WORDS}"
    return replace(steps, rows=rows.changed(step=np.arange(len(rows))), detail=detail)


class _Host:
    """The calls of a host in order, and its steps.

    Attributes:
        verifies: which steps verify drafts.
        count: how much each launches.
    """

    def __init__(self, calls: Calls, verifying: Bools, start: Ints, end: Ints) -> None:
        self._start = calls.start
        self._pause = calls.start - np.append(-NEVER, np.maximum.accumulate(calls.end))[:-1]
        self._launches = np.append(0, np.cumsum(among(calls.letter, LAUNCHES)))
        self._first, last = (np.searchsorted(calls.start, times) for times in (start, end))
        self.count = self._launches[last] - self._launches[self._first]
        verified = np.append(np.flatnonzero(verifying), len(calls))
        self._until = verified[np.searchsorted(verified, self._first)]
        self.verifies = self._until < last
        self._until = np.where(self.verifies, self._until, last - 1)

    def begins(self) -> Ints:
        """When each step begins behind an extension, MISSING if it does not, ns."""
        begins = np.full(len(self._first), MISSING)
        for at in np.flatnonzero(self.verifies).tolist():
            begins[at] = self._behind_pause(at, np.arange(self._first[at] + 1, self._until[at] + 1))
        usual = self.extension(begins)
        for at in np.flatnonzero(~self.verifies & (self.count > usual)).tolist():
            launched = self._launches[self._first[at]] + usual
            begins[at] = self._behind_pause(at, np.searchsorted(self._launches, [launched]))
        return begins

    def extension(self, begins: Ints) -> int:
        """How many launches an extension usually is, 0 without any."""
        moved = np.flatnonzero(self.verifies & (begins != MISSING))
        behind = self._launches[np.searchsorted(self._start, begins[moved])] - self._launches[self._first[moved]]
        return int(np.median(behind)) if len(moved) else 0

    def _behind_pause(self, at: int, inside: Ints) -> int:
        """The start of the call, of these inside a step, behind the longest pause, if launches precede it and it is
        longer than the pause before the step; else MISSING."""
        first = self._first[at]
        inside = inside[self._launches[inside] > self._launches[first]]
        longest = inside[np.argmax(self._pause[inside])] if len(inside) else first
        is_longer = self._pause[longest] > LONGER * self._pause[first]
        return int(self._start[longest]) if is_longer else MISSING
