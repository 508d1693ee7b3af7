"""The edit that puts a step's independent kernels on several streams."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.fits import Fits, gpu_of
from tracer.analysis.step_work import activity_steps
from tracer.analysis.tokens import Steps
from tracer.analysis.whatif.changes import Changes
from tracer.analysis.whatif.learning import Learned, fitted
from tracer.analysis.whatif.overlap import StepKernels, assign
from tracer.analysis.whatif.recorded_step import RecordedStep
from tracer.analysis.whatif.timetable import Timetable, lowest_free
from tracer.errors import UsageError
from tracer.model.collectives import computes
from tracer.model.graph_json import RunGraph
from tracer.model.trace import Trace

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Concurrent:
    """Independent kernels of the steps on up to `streams` streams.

    Attributes:
        graph: the graph of the run.
        node: a recording of the run with every kernel (its node pass), and its steps.
        learned: the losses and gains of kernels on several streams; None for those fitted to the node pass's GPU.
    """

    graph: RunGraph
    node: Trace
    node_steps: Steps
    streams: int = 4
    learned: Learned | None = None

    def half_margin(self, speedup: float, level: str | None, fits: Fits) -> float | None:
        """The error of the learned values, which was measured on light passes."""
        return None if level is not None else self._overlaps.error

    @property
    def _overlaps(self) -> Learned:
        return self.learned or fitted(gpu_of(self.node))

    @property
    def label(self) -> str:
        """A short description."""
        return f"{self.streams} streams"

    def apply(self, changes: Changes, steps: Steps) -> list[str]:
        """Scale the compute of every step as in the simulated step, and show the simulated kernels.

        Raises:
            UsageError: the recording and the graph are of different runs, the run already uses several streams, or its
                kernels were not launched as one graph.
        """
        causality = changes.causality
        activities = causality.segments.activities
        compute = np.flatnonzero(computes(activities))
        at = activity_steps(causality.trace, steps, activities.iloc[compute])
        compute, at = compute[at >= 0], at[at >= 0]
        _check_launches(activities["call"].to_numpy()[compute], at)
        recorded = RecordedStep.of(self.node, self.node_steps)
        kernels = StepKernels.of(self.graph, recorded)
        start, end = kernels.schedule(self._overlaps.overlap, assign(kernels.needs, self.streams))
        ratio = float(end.max())
        changes.scale_activities(compute, ratio)
        streams, of = lowest_free(start, end), recorded.times["kernel"].to_numpy()
        begin, finish = ((start[of] + (end - start)[of] * part.to_numpy()) / ratio for part in recorded.parts())
        changes.timetable = Timetable(compute, at, recorded.rows, begin, finish, streams[of])
        return [
            f"{streams.max() + 1} streams: a step's {len(start)} kernels take {ratio:.3f} times as long",
            self._overlaps.note,
        ]


def _check_launches(calls: Ints, at: Ints) -> None:
    """Check that the compute of a typical step comes from one call."""
    issued = pd.DataFrame({"at": at, "call": calls}).groupby("at")["call"].nunique()
    if len(issued) and issued.median() > 1:
        raise UsageError(
            f"a step launches its kernels in {issued.median():.0f} calls; the gain of several streams can be predicted "
            "only for runs with one graph launch per step (--launch graph)"
        )
