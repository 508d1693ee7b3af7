"""Simulated kernels in place of recorded compute: in the predicted timeline, on separate streams."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.causality.paths import Causality
from tracer.model.schema import DEVICE_TABLES, MISSING, TABLES

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_STREAM = ["process", "context", "stream"]


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
