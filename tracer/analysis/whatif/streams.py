"""The edit that puts a step's independent kernels on several streams.

The cost and gain of their overlap are learned from runs on one stream and on several (`Learned`). In the predicted
timeline, simulated kernels on separate streams stand in place of the recorded compute (`Timetable`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np
import pandas as pd

from tracer.analysis.causality.paths import Causality
from tracer.analysis.fits import Fits, Overlap, fits_of, gpu_of
from tracer.analysis.step_work import activity_steps
from tracer.analysis.tokens import Steps
from tracer.analysis.whatif.changes import Changes
from tracer.analysis.whatif.overlap import StepKernels, assign
from tracer.analysis.whatif.recorded_step import RecordedStep
from tracer.errors import UsageError
from tracer.model.collectives import computes
from tracer.model.graph_json import RunGraph
from tracer.model.intervals import Floats, Ints
from tracer.model.schema import DEVICE_TABLES, MISSING, TABLES
from tracer.model.trace import Trace

_STREAM = ["process", "context", "stream"]
_PAIR_DOUBT: Final = 0.01  # of the logarithm of a pair's relative time: what the form of the model misses
_PRIOR_DOUBT: Final = float(np.log(2))  # of the logarithm of a number, around its default
_ENOUGH: Final = 19  # the largest of n errors holds the next one in n of n + 1 cases: 95 % ask for 19


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


@dataclass(frozen=True)
class Timetable:
    """The times of the kernels of a step, the same for every step.

    Attributes:
        activities: the recorded compute of all steps, as positions in `Segments.activities`; it is replaced.
        at: the step of each of them.
        rows: the kernels of one step, as rows of trace["kernels"].
        start, end: the times of each kernel, as a share of the step's compute.
        streams: the number of each kernel's stream; 0 is the recorded one.
    """

    activities: Ints
    at: Ints
    rows: pd.DataFrame
    start: Floats
    end: Floats
    streams: Ints

    def tables(self, causality: Causality, time: Ints, moved: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
        """The tables that change with these kernels.

        Every kernel is linked to the launch of its step's first compute.

        Args:
            causality: dependencies of the recording.
            time: time of every point of the new timeline; a step's compute lasts from the first start of its activities
                to their last end.
            moved: the tables of the new timeline without the replaced activities.
        """
        steps = self._steps(causality, time)
        first = self._first_new_stream(causality)
        placed = self._placed(steps, first)
        kernels = pd.concat([moved["kernels"][placed.columns], placed]) if len(moved["kernels"]) else placed
        return {"kernels": kernels, "streams": self._described(causality, steps, first)}

    def _steps(self, causality: Causality, time: Ints) -> pd.DataFrame:
        """One row per step: where its compute ran, what launched it, and its predicted times."""
        point = causality.segments.starts(self.activities)
        activities = causality.segments.activities.iloc[self.activities]
        table = activities[["device", *_STREAM, "correlation"]].assign(
            graph=_graphs(causality, activities), at=self.at, start=time[point], end=time[point + 1]
        )
        usual = dict.fromkeys(["device", *_STREAM, "correlation", "graph"], "first")
        return table.groupby("at").agg({**usual, "start": "min", "end": "max"}).reset_index(drop=True)

    def _placed(self, steps: pd.DataFrame, first_new: int) -> pd.DataFrame:
        """The kernels of all steps, step by step."""
        kernels, count = len(self.rows), len(steps)
        frame = self.rows.iloc[np.tile(np.arange(kernels), count)].reset_index(drop=True)
        for column in ("device", "process", "context", "correlation", "graph"):
            frame[column] = np.repeat(steps[column].to_numpy(), kernels)
        took = (steps["end"] - steps["start"]).to_numpy()[:, None]
        for column, share in (("start", self.start), ("end", self.end)):
            inside = np.rint(took * share[None, :]).astype(np.int64)
            frame[column] = (steps["start"].to_numpy()[:, None] + inside).reshape(-1)
        own = np.tile(self.streams, count)
        frame["stream"] = np.where(own == 0, np.repeat(steps["stream"].to_numpy(), kernels), first_new + own - 1)
        return frame

    def _first_new_stream(self, causality: Causality) -> int:
        """A number above those of all recorded streams."""
        frames = [causality.trace[name] for name in (*DEVICE_TABLES, "syncs", "cuda_events", "streams")]
        return max(int(frame["stream"].max()) for frame in frames if len(frame)) + 1

    def _described(self, causality: Causality, steps: pd.DataFrame, first_new: int) -> pd.DataFrame:
        """The streams of the trace, and the new ones, described like the stream that they branch from."""
        known = causality.trace["streams"]
        recorded = steps[_STREAM].drop_duplicates(["process", "context"])
        like = recorded.merge(known, how="left", on=_STREAM)[TABLES["streams"].column_names].fillna(MISSING)
        new = np.arange(int(self.streams.max()))
        added = like.iloc[np.repeat(np.arange(len(like)), len(new))].assign(stream=np.tile(first_new + new, len(like)))
        return pd.concat([known[like.columns], added.astype("int64")])


def lowest_free(start: Floats, end: Floats) -> Ints:
    """For each kernel, the lowest stream that is free when it starts, or a new one.

    This uses the fewest streams possible (interval partitioning). Kernels that run alone are on stream 0, as if
    branches fork from one stream and join on it.
    """
    found = np.zeros(len(start), np.int64)
    until: list[float] = []
    for i in np.lexsort((end, start)):
        stream = next((s for s, busy in enumerate(until) if busy <= start[i]), len(until))
        until[stream : stream + 1] = [end[i]]
        found[i] = stream
    return found


def _graphs(causality: Causality, activities: pd.DataFrame) -> Ints:
    """The CUDA graph that each activity ran in, or that it is; `MISSING` for none."""
    found = np.full(len(activities), MISSING)
    for name in ("kernels", "graph_launches"):
        in_table = (activities["table"] == name).to_numpy()
        found[in_table] = causality.trace[name]["graph"].to_numpy()[activities["row"].to_numpy()[in_table]]
    return found


@dataclass(frozen=True)
class Pair:
    """A run on one stream, and the same run on several.

    Attributes:
        kernels: those of a step, as recorded on one stream.
        streams: number of the stream of each kernel in the other run.
        relative: compute time of a step on several streams / on one, both without a profiler.
    """

    kernels: StepKernels
    streams: tuple[int, ...]
    relative: float

    def error(self, overlap: Overlap) -> float:
        """Logarithm of the predicted / measured relative time."""
        return float(np.log(self.kernels.schedule(overlap, self.streams)[1].max() / self.relative))


@dataclass(frozen=True)
class Learned:
    """An overlap and its error.

    Attributes:
        overlap: the learned values.
        error: the largest error of a step's relative time over pairs that were left out, at least that of the default
            if there are fewer than 19 pairs: another case exceeds the largest error of n pairs in 1 of n + 1 cases, so
            with fewer pairs it would cover less than 95 %.
        pairs: number of pairs; 0 for the default.
        source: where the values come from, in words.
    """

    overlap: Overlap
    error: float
    pairs: int
    source: str

    @property
    def note(self) -> str:
        """In a sentence."""
        edge, prologue, latency = (f"{ns / 1e3:.3g} µs" for ns in asdict(self.overlap).values())
        return (
            f"{self.source}: a dependency between streams costs {edge}, a kernel that cannot start early loses up to "
            f"{prologue}, and other kernels hide up to {latency} of a kernel's time; a step's compute may be off by "
            f"{self.error:.1%}"
        )


def fitted(gpu: str) -> Learned:
    """The default for a GPU."""
    fits = fits_of(gpu)
    known = fits.overlap
    return Learned(Overlap(known.edge_ns, known.prologue_ns, known.latency_ns), known.error, 0, f"as on {fits.called}")


def learned(pairs: Sequence[Pair], gpu: str) -> Learned:
    """Fit the three numbers of an overlap to pairs.

    Least squares over the logarithms of the relative times, in the logarithms of the numbers. One pair cannot separate
    three numbers, so every number is also drawn towards its default, as if the default were known within a factor of 2
    and a pair within 1 % (ridge regression; the maximum of the posterior for Gaussian errors). The error for a pair
    that is left out is e / (1 - h), h being the diagonal of the hat matrix of the fit at its solution (Allen 1974;
    exact for a linear model).

    Args:
        pairs: without any, the result is the default.
        gpu: the GPU's name, which chooses the default.
    """
    without = fitted(gpu)
    if not pairs:
        return without
    from scipy.optimize import least_squares  # imported here because it takes as long as reading a small recording

    default = np.array(list(asdict(without.overlap).values()))

    def residuals(log: Floats) -> Floats:
        overlap = Overlap(*(default * np.exp(log)))
        return np.append([pair.error(overlap) / _PAIR_DOUBT for pair in pairs], log / _PRIOR_DOUBT)

    fit = least_squares(residuals, np.zeros(len(default)), diff_step=0.05, x_scale=1.0, max_nfev=12)
    hat = np.diagonal(fit.jac @ np.linalg.pinv(fit.jac))[: len(pairs)]
    left_out = float(np.abs(fit.fun[: len(pairs)] / (1 - hat)).max()) * _PAIR_DOUBT
    error = left_out if len(pairs) >= _ENOUGH else max(left_out, without.error)
    source = f"learned from {len(pairs)} pair{'s'[: len(pairs) != 1]} of runs"
    return Learned(Overlap(*map(float, default * np.exp(fit.x))), error, len(pairs), source)
