"""Edits of the host work between a result and the next launch: copies merged, work moved, results read later."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from tracer.analysis.calls import COPIES, LAUNCHES, SYNC
from tracer.analysis.causality.dag import Edges
from tracer.analysis.causality.edges import ORDER
from tracer.analysis.causality.paths import Causality
from tracer.analysis.tokens import Steps
from tracer.analysis.whatif.changes import Changes, Unmeasured
from tracer.analysis.whatif.needed import reading_syncs, sending_copies
from tracer.analysis.whatif.strategies import check_device_alone, check_host_idle, choose_on_device, windows
from tracer.errors import EmptyTraceError


@dataclass(frozen=True)
class MergedCopies(Unmeasured):
    """Merge the copies before each run of launches into one, with the sync of the last one."""

    label = "input copies merged"

    def apply(self, changes: Changes, steps: Steps) -> list[str]:
        """Keep only the last copy of each window, and syncs after which the host reads.

        Raises:
            EmptyTraceError: no launch has several copies before it.
        """
        table = windows(changes, steps)
        inputs = table[(table["window"] >= 0) & ~table["letter"].isin(LAUNCHES)]
        copies = inputs[inputs["letter"].isin(COPIES)]
        last = copies.groupby("window")["call"].transform("max")
        gone = copies[copies["call"] < last]
        if not len(gone):
            raise EmptyTraceError("no launch has several copies before it")
        merged = inputs["window"].map(copies.groupby("window")["call"].max())
        begun = inputs["window"].map(copies.groupby("window")["call"].min())
        between = (inputs["letter"] == SYNC) & (inputs["call"] > begun) & (inputs["call"] < merged)
        between &= ~inputs["call"].isin(reading_syncs(changes.causality, steps)[1])
        changes.remove_calls(np.append(gone["call"].to_numpy(), inputs.loc[between, "call"].to_numpy()))
        return ["assumes that the merged copy takes as long as the last of the copies that it replaces"]


@dataclass(frozen=True)
class LaunchFirst(Unmeasured):
    """Move the host work between reading a result and the next launch to after that launch."""

    label = "host work after the launch"

    def apply(self, changes: Changes, steps: Steps) -> list[str]:
        """Move the host code; calls stay where they are.

        Raises:
            EmptyTraceError: no result is read between two launches.
            UnsafePlanError: the host computes a part of the step, which the launch needs.
        """
        check_host_idle(self.label, changes.causality, steps)
        table = windows(changes, steps)
        pairs = _until_launch(table.assign(reads=table["call"].isin(reading_syncs(changes.causality, steps)[1])))
        if not len(pairs):
            raise EmptyTraceError("no result is read before a launch")
        changes.move_pauses(pairs["call"].to_numpy(), pairs["launch"].to_numpy())
        return ["assumes that all host code between a result and the next launch can run after that launch"]


def _until_launch(table: pd.DataFrame) -> pd.DataFrame:
    """Calls from one that reads a result to the next run of launches (columns call and launch, the last one of the
    run).
    """
    table = table.sort_values("call", kind="stable", ignore_index=True)
    launch = table["letter"].isin(LAUNCHES)
    ends = launch & ~launch.shift(-1, fill_value=False)
    follows = pd.Series(np.where(ends, table["call"], np.nan)).bfill()
    run = ends.shift(fill_value=False).cumsum()
    has_read = table["reads"].groupby(run).cummax().astype(bool)
    chosen = has_read & ~launch & follows.notna()
    return pd.DataFrame({"call": table["call"], "launch": follows})[chosen].astype("int64")


@dataclass(frozen=True)
class CopiesBehind(Unmeasured):
    """Enqueue the copies between reading a result and the next launch, whose values are known one step ahead, after the
    launch of the previous step.
    """

    label = "input copies after the launch"

    def apply(self, changes: Changes, steps: Steps) -> list[str]:
        """Move the calls with the host code between them; on the device the copies follow the launched work.

        Raises:
            EmptyTraceError: there is no asynchronous copy to the device between a result and the next launch.
            UnsafePlanError: the host computes a part of the step, whose results the copies contain.
        """
        check_host_idle(self.label, changes.causality, steps)
        table = windows(changes, steps)
        pairs = _until_launch(table.assign(reads=table["call"].isin(reading_syncs(changes.causality, steps)[1])))
        pairs = pairs[pairs["call"].isin(sending_copies(changes.causality))]
        if not len(pairs):
            raise EmptyTraceError("there is no asynchronous copy to the device between a result and the next launch")
        changes.add(_behind_launch(changes.causality, pairs))
        changes.move_calls(pairs["call"].to_numpy(), pairs["launch"].to_numpy())
        notes = ["assumes that the copies contain nothing that depends on the result of the previous step"]
        if not changes.causality.segments.activities["call"].isin(pairs["call"]).any():
            notes.append("this recording lacks the copies' time on the device, which delays the next result; a graph "
                         "or node pass has it")  # fmt: skip
        return notes


def _behind_launch(causality: Causality, pairs: pd.DataFrame) -> Edges:
    """From the end of the work of each launch to what follows on its stream: at least as long as the moved copies."""
    activities = causality.segments.activities
    order = activities[["call", "lane", "start", "end"]].assign(activity=np.arange(len(activities)))
    order = order.sort_values(["lane", "start"], kind="stable")
    order["next"] = order.groupby("lane")["activity"].shift(-1, fill_value=-1)
    took = order.assign(ns=order["end"] - order["start"]).merge(pairs, on="call").groupby("launch")["ns"].sum()
    last = order.drop_duplicates("call", keep="last").set_index("call").reindex(took.index).dropna()
    last = last[last["next"] >= 0].astype("int64")
    took, starts = took.reindex(last.index), causality.segments.starts
    return Edges.of(starts(last["activity"].to_numpy()) + 1, starts(last["next"].to_numpy()), took.to_numpy(), ORDER)


@dataclass(frozen=True)
class ReadLater(Unmeasured):
    """Launch the next step before the result of this one is read: the device samples the token."""

    label = "device sampling, results read a step later"

    def apply(self, changes: Changes, steps: Steps) -> list[str]:
        """Make the waits for results return immediately; everything else is unchanged.

        Raises:
            EmptyTraceError: no sync reads a result.
            UnsafePlanError: the host takes part in the step itself.
        """
        table = windows(changes, steps)
        reading = reading_syncs(changes.causality, steps)[1]
        if not len(reading):
            raise EmptyTraceError("no sync reads a result")
        check_device_alone(self.label, changes.causality, steps, table[table["call"].isin(reading)])
        gone = np.zeros(len(changes.removed), bool)
        gone[reading] = True
        changes.remove(gone)  # not `remove_calls`: the host's code behind the waits stays
        return [
            choose_on_device(changes, steps),
            "assumes that the host processes a result after the next launch, in the same time",
        ]
