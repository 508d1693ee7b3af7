"""The compute times of steps, on the recorded timeline or a changed one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from tracer.analysis.idle import IdleReport, statistics
from tracer.analysis.path.paths import Causality, StepEnds, work_at
from tracer.analysis.tokens import Steps
from tracer.errors import CannotTellError
from tracer.model.columns import NEVER, Columns, grouped, positions, within
from tracer.model.intervals import Bools, Ints, covered
from tracer.model.schema import MISSING


@dataclass(frozen=True, eq=False)
class Spans(Columns):
    """The compute of steps on devices, by device, group and step.

    Attributes:
        device, group, at: of the step, which is at this position in the steps.
        first: the position of its first compute in `StepTimes.points`.
        follows: whether the preceding row is the preceding step on the same device.
    """

    device: Ints
    group: Ints
    at: Ints
    first: Ints
    follows: Bools


@dataclass(frozen=True, eq=False)
class StepTimes:
    """The compute times of steps, for any times of the points.

    Attributes:
        ends: their last compute.
        spans: one row per device and step with compute.
        points: the points at which compute activities start, in the order of `spans`.
    """

    ends: StepEnds
    spans: Spans
    points: Ints

    @classmethod
    def of(cls, causality: Causality, steps: Steps) -> StepTimes:
        """Find the steps' compute; errors are those of `StepEnds.of`."""
        work, of_step = causality.segments.activities, causality.once(work_at, steps)
        groups = np.asarray(steps.table.group)
        rows = np.flatnonzero(work.computes & (of_step >= 0))
        rows = rows[np.lexsort((of_step[rows], groups[of_step[rows]], work.device[rows]))]
        at, device = of_step[rows], work.device[rows]
        first = np.flatnonzero(np.append(True, (at[1:] != at[:-1]) | (device[1:] != device[:-1])))[: len(rows)]
        at, device = at[first], device[first]
        group, ordinal = groups[at], within(groups)[at]
        follows = np.zeros(len(first), bool)
        follows[1:] = (device[1:] == device[:-1]) & (group[1:] == group[:-1]) & (ordinal[1:] == ordinal[:-1] + 1)
        spans = Spans(device, group, at, first, follows)
        return cls(StepEnds.of(causality, steps), spans, causality.segments.starts(rows))

    def known(self, idle: IdleReport, steps: Steps) -> StepTimes:
        """Without the steps in which it is unknown when the device computed, and without what follows them.

        Raises:
            CannotTellError: that applies to most steps.
        """
        if not len(idle.steps):
            raise CannotTellError(
                f"in most of the {len(steps):,} steps it is unknown when the device computed: the recording has only "
                "the start and end of runs of launches, which depend on the host; record with --passes light,node"
            )
        spans, ends = self.spans, self.ends
        theirs = [np.asarray(idle.steps.device), np.asarray(idle.steps.step)]
        is_known = positions([spans.device, np.asarray(steps.table.step)[spans.at]], theirs) >= 0
        follows = spans.follows & is_known & np.append(False, is_known[:-1])
        unknown = np.zeros(len(steps), bool)
        unknown[spans.at[~is_known]] = True
        left = unknown[ends.at]
        for _, own in grouped(ends.group):
            left[own[1:]] |= unknown[ends.at[own[:-1]]]
        previous = np.where(left, MISSING, ends.previous)
        return replace(self, spans=spans.changed(follows=follows), ends=ends.changed(previous=previous))

    @property
    def followed(self) -> Spans:
        """The rows of `spans` that are followed by another step's."""
        return self.spans[self._follows - 1]

    @cached_property
    def _follows(self) -> Ints:
        return np.flatnonzero(self.spans.follows)

    @cached_property
    def _chains(self) -> list[tuple[int, int]]:
        """First and last row + 1 in `spans` of each group on each device."""
        device, group = self.spans.device, self.spans.group
        begins = np.flatnonzero((device[1:] != device[:-1]) | (group[1:] != group[:-1])) + 1
        return [*pairwise([0, *begins.tolist(), len(device)])]

    def periods(self, time: Ints) -> Ints:
        """From the last compute of each step to that of the next, ns."""
        ends = self.ends.followed
        return np.asarray(time[ends.point] - time[ends.previous])

    def gap_us(self, time: Ints) -> dict[str, float]:
        """p50, p90 and mean of the gaps, as defined in `gaps`."""
        start, end = self._starts_and_ends(time)
        return statistics(np.maximum(start[self._follows] - end[self._follows - 1], 0))

    def idle_ns(self, time: Ints) -> Ints:
        """How long no compute of these steps runs, for each of `followed`: inside the step and in the gap after it.

        Communication, and compute of others on the device, count as idle here.
        """
        begin, until = self._windows(time)
        idle, edges = until - begin, np.append(self.spans.first, len(self.points))
        for first, last in self._chains:
            low, high = np.searchsorted(self._follows, (first, last)).tolist()
            points = self.points[edges[first] : edges[last]]
            idle[low:high] -= covered(time[points], time[points + 1], begin[low:high], until[low:high])
        return idle

    def rounds(self, time: Ints) -> Ints:
        """From the beginning of each of `followed` to that of the following step, ns."""
        begin, until = self._windows(time)
        return until - begin

    def _windows(self, time: Ints) -> tuple[Ints, Ints]:
        """When each of `followed` and the step after it begin, ns: with their first compute, but not before the
        preceding steps have ended. A replay may start a part of a step on a stream of its own long before."""
        start, end = self._starts_and_ends(time)
        ended = np.full(len(end), -NEVER)
        for first, last in self._chains:
            ended[first + 1 : last] = np.maximum.accumulate(end[first:last])[:-1]
        begin = np.maximum(start, ended)
        return begin[self._follows - 1], begin[self._follows]

    def _starts_and_ends(self, time: Ints) -> tuple[Ints, Ints]:
        """The first start and the last end of the compute of each of `spans`, ns."""
        first = self.spans.first
        return np.minimum.reduceat(time[self.points], first), np.maximum.reduceat(time[self.points + 1], first)
