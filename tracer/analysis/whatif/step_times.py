"""The compute times of steps, on the recorded timeline or a changed one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pandas as pd

from tracer.analysis.causality.paths import Causality, StepEnds
from tracer.analysis.idle import IdleReport, statistics
from tracer.analysis.step_work import steps_of_frame
from tracer.analysis.tokens import Steps
from tracer.errors import CannotTellError
from tracer.model.collectives import computes
from tracer.model.intervals import Ints, covered
from tracer.model.rows import grouped, groups_of, positions
from tracer.model.schema import MISSING

_CHAIN: Final = ["device", "group"]
_NEVER: Final = np.iinfo(np.int64).min


@dataclass(frozen=True)
class StepTimes:
    """The compute times of steps, for any times of the points.

    Attributes:
        ends: their last compute.
        spans: one row per (device, step) with compute: first and last position in `points`, and whether the preceding
            row is the preceding step on the same device.
        points: the points at which compute activities start, sorted by (device, step).
    """

    ends: StepEnds
    spans: pd.DataFrame
    points: Ints

    @classmethod
    def of(cls, causality: Causality, steps: Steps) -> StepTimes:
        """Find the steps' compute; errors are those of `StepEnds.of`."""
        activities = causality.segments.activities
        rows = np.flatnonzero(computes(activities))
        table = activities.iloc[rows][["device"]].assign(row=rows)
        table["at"] = steps_of_frame(causality.trace, steps, activities.iloc[rows])
        table = table[table["at"] >= 0]
        table["group"] = steps.table["group"].to_numpy()[table["at"]]
        table = table.sort_values(["device", "group", "at"], kind="stable", ignore_index=True)
        keys = table[["device", "group", "at"]]
        first = ~keys.duplicated()
        spans = keys[first].assign(first=np.flatnonzero(first))
        ordinal = steps.table.groupby("group").cumcount().to_numpy()[spans["at"]]
        same = (spans[["device", "group"]] == spans[["device", "group"]].shift()).all(axis=1).to_numpy()
        spans["follows"] = same & (ordinal == np.append(0, ordinal[:-1]) + 1)
        return cls(StepEnds.of(causality, steps), spans, causality.segments.starts(table["row"].to_numpy()))

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
        of_steps = self.spans[["device"]].assign(step=steps.table["step"].to_numpy()[self.spans["at"]])
        is_known = positions(of_steps, idle.steps, ["device", "step"]) >= 0
        spans = self.spans.assign(follows=self.spans["follows"] & is_known & np.append(False, is_known[:-1]))
        table = self.ends.table
        unknown = table["at"].isin(self.spans["at"][~is_known])
        left = unknown | unknown.groupby(table["group"]).shift(1, fill_value=False)
        return replace(self, spans=spans, ends=StepEnds(table.assign(previous=table["previous"].mask(left, MISSING))))

    @property
    def followed(self) -> pd.DataFrame:
        """The rows of `spans` that are followed by another step's."""
        return self.spans.iloc[np.flatnonzero(self.spans["follows"]) - 1]

    def periods(self, time: Ints) -> Ints:
        """From the last compute of each step to that of the next, ns."""
        table = self.ends.followed
        return np.asarray(time[table["point"]] - time[table["previous"]])

    def gap_us(self, time: Ints) -> dict[str, float]:
        """p50, p90 and mean of the gaps, as defined in `gaps`."""
        return statistics(self._gaps(time))

    def idle_ns(self, time: Ints) -> Ints:
        """How long no compute of these steps runs, for each of `followed`: inside the step and in the gap after it.

        Communication, and compute of others on the device, count as idle here.
        """
        begin, until = self._windows(time)
        idle, follows = until - begin, np.flatnonzero(self.spans["follows"])
        chain, _ = groups_of(self.spans, _CHAIN)
        of_point = np.repeat(chain, np.diff(np.append(self.spans["first"], len(self.points))))
        for _, rows in grouped(self.spans.iloc[follows], _CHAIN):
            points = self.points[of_point == chain[follows[rows[0]]]]
            idle[rows] -= covered(time[points], time[points + 1], begin[rows], until[rows])
        return idle

    def rounds(self, time: Ints) -> Ints:
        """From the beginning of each of `followed` to that of the following step, ns."""
        begin, until = self._windows(time)
        return until - begin

    def _windows(self, time: Ints) -> tuple[Ints, Ints]:
        """When each of `followed` and the step after it begin, ns: with their first compute, but not before the
        preceding steps have ended. A replay may start a part of a step on a stream of its own long before."""
        first = self.spans["first"].to_numpy()
        start, end = np.minimum.reduceat(time[self.points], first), np.maximum.reduceat(time[self.points + 1], first)
        chain, _ = groups_of(self.spans, _CHAIN)
        ended = pd.Series(end).groupby(chain).cummax().groupby(chain).shift(1, fill_value=_NEVER).to_numpy()
        begin, follows = np.maximum(start, ended), np.flatnonzero(self.spans["follows"])
        return begin[follows - 1], begin[follows]

    def _gaps(self, time: Ints) -> Ints:
        first = self.spans["first"].to_numpy()
        start, end = np.minimum.reduceat(time[self.points], first), np.maximum.reduceat(time[self.points + 1], first)
        follows = np.flatnonzero(self.spans["follows"])
        return np.asarray(np.maximum(start[follows] - end[follows - 1], 0))
