"""Edits of a step's host calls: another synchronisation strategy, copies merged, work moved, results read later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from tracer.analysis.causes import names_host_compute
from tracer.analysis.path.graph import ORDER, Edges
from tracer.analysis.path.paths import Causality
from tracer.analysis.step_work import steps_of_frame
from tracer.analysis.tokens import Steps
from tracer.analysis.whatif.changes import Changes, FewerCalls, Unmeasured
from tracer.analysis.whatif.needed import bringing_copies, reading_syncs, sending_copies
from tracer.errors import EmptyTraceError, UnsafePlanError, UsageError
from tracer.model.calls import COPIES, LAUNCHES, SYNC
from tracer.model.collectives import computes
from tracer.model.fits import fits_for
from tracer.model.rows import rows_named
from tracer.model.schema import MISSING

LADDER: Final = ("sccc", "saaas", "aaas", "aaag", "ggg")
"""Strategies, each with fewer host calls than the previous one."""

_MOST_OF_TOKENS: Final = 4096
"""Bytes that a step copies to the host: the tokens of 512 sequences take at most this, the logits of one take more."""
_BYTES_OF_TOKEN: Final = 8


def windows(changes: Changes, steps: Steps) -> pd.DataFrame:
    """The calls of the steps' own threads that launch, copy or synchronise, and the launch that they prepare.

    Returns:
        Columns call (position), at (position in `steps`), letter, window (number of the next run of launches in its
        step, that of its own run for a launch, -1 for a call after the last one, such as the fetch of the result),
        between (whether the step has launches both before and after it).
    """
    return changes.causality.once(_windows, steps)


def _windows(causality: Causality, steps: Steps) -> pd.DataFrame:
    calls = causality.call_frame
    at = steps.of(*(calls[c].to_numpy() for c in ("start", "process", "thread")))
    chosen = np.flatnonzero((at >= 0) & (calls["letter"] != "").to_numpy())
    table = pd.DataFrame({"call": chosen, "at": at[chosen], "letter": calls["letter"].array[chosen]})
    table["start"] = calls["start"].to_numpy()[chosen]
    table = table.sort_values(["at", "start"], kind="stable", ignore_index=True)
    launch = table["letter"].isin(LAUNCHES).to_numpy()
    begins = launch & ~np.append(False, launch[:-1] & (table["at"].to_numpy()[1:] == table["at"].to_numpy()[:-1]))
    run = np.cumsum(begins)
    last = table.assign(run=np.where(launch, run, -1)).groupby("at")["run"].transform("max").to_numpy()
    coming = np.where(launch, run, run + 1)
    table["window"] = np.where((last < 0) | (coming > last), -1, coming)
    begun = pd.Series(launch).groupby(table["at"].to_numpy()).cumsum().to_numpy() > 0
    table["between"] = begun & ~launch & (table["window"].to_numpy() >= 0)
    return table.drop(columns="start")


@dataclass(frozen=True)
class FollowStrategy(FewerCalls):
    """Another synchronisation strategy: only its calls are made.

    Calls are only removed; a strategy that needs more of them than the recording has cannot be predicted from it. A
    sync after which the host reads a result is kept by every strategy except ggg, which leaves the token on the device:
    the time in which it chooses the token is added where the host of the recording does so from the logits.
    """

    name: str

    @property
    def label(self) -> str:
        """A short description."""
        return self.name

    def apply(self, changes: Changes, steps: Steps) -> list[str]:
        """Remove the calls that the strategy does not make.

        Raises:
            UsageError: there is no such strategy.
            UnsafePlanError: it leaves the whole step to the device, but the host takes part in it.
        """
        if self.name not in LADDER[1:]:
            raise UsageError(f"no prediction for strategy {self.name!r}; choose one of {', '.join(LADDER[1:])}")
        table = windows(changes, steps)
        behind_copies, reads = (table["call"].isin(calls) for calls in reading_syncs(changes.causality, steps))
        if self.name == "ggg":
            _check_device_alone("ggg", changes.causality, steps, table[reads])
            launch = table["letter"].isin(LAUNCHES)
            others = table[~launch]
            inside_run = launch & launch.shift(-1, fill_value=False) & (table["window"] == table["window"].shift(-1))
            changes.drop_pauses(table.loc[~inside_run, "call"].to_numpy())
            changes.remove_calls(others["call"].to_numpy())
            return [_choose_on_device(changes, steps), "assumes that the device prepares its next step in no time"]
        inputs = table[(table["window"] >= 0) & ~table["letter"].isin(LAUNCHES)]
        copy = inputs["letter"].isin(COPIES) & ~inputs["call"].isin(bringing_copies(changes.causality))
        order = pd.Series(np.arange(len(inputs)), index=inputs.index)
        first, last = (order[copy].groupby(inputs["window"]).agg(how) for how in ("min", "max"))
        before_all = order < inputs["window"].map(first)
        behind_all = order > inputs["window"].map(last)
        sync = (inputs["letter"] == SYNC) & ~behind_copies[inputs.index]
        final = sync & behind_all & ~inputs.assign(s=sync & behind_all).duplicated(["window", "s"], keep="last")
        leading = sync & before_all & ~inputs.assign(s=sync & before_all).duplicated(["window", "s"], keep="first")
        kept = {"saaas": leading | final, "aaas": final, "aaag": pd.Series(False, index=inputs.index)}[self.name]
        has_copies = inputs["window"].isin(first.index)
        gone = np.append(inputs.loc[sync & has_copies & ~kept, "call"], table.loc[behind_copies & ~reads, "call"])
        _one_queue(changes, inputs[copy], table)
        changes.remove_calls(gone)
        return ["assumes that copies share a queue with compute, and read memory that outlives them"]


def _check_device_alone(edit: str, causality: Causality, steps: Steps, reads: pd.DataFrame) -> None:
    """Raise UnsafePlanError if the host computes in the steps, or reads something between two of their launches."""
    _check_host_idle(edit, causality, steps)
    if reads.loc[reads["between"], "at"].nunique() * 2 > len(steps):
        raise UnsafePlanError(f"{edit} is impossible: the host reads a copy's result between two launches of a step")


def _check_host_idle(edit: str, causality: Causality, steps: Steps) -> None:
    """Raise UnsafePlanError if the host computes in the steps."""
    ranges = causality.trace["nvtx"]
    ranges = ranges[rows_named(ranges["text"], names_host_compute)]
    host = steps.of(*(ranges[c].to_numpy() for c in ("start", "process", "thread"))) >= 0
    if host.any():
        raise UnsafePlanError(
            f"{edit} is impossible: the host computes a part of the step ({ranges['text'][host].iloc[0]!r})"
        )


def _one_queue(changes: Changes, copies: pd.DataFrame, table: pd.DataFrame) -> None:
    """Make launched work start after the copies before it, on any stream."""
    segments = changes.causality.segments
    activities = changes.causality.work_frame
    first = pd.Series(np.arange(len(activities)), index=activities["call"]).groupby(level=0).min()
    last = pd.Series(np.arange(len(activities)), index=activities["call"]).groupby(level=0).max()
    launches = table[table["letter"].isin(LAUNCHES)].drop_duplicates("window")
    pairs = copies.merge(launches[["window", "call"]], on="window", suffixes=("", "_launch"))
    pairs = pairs[pairs["call"].isin(first.index) & pairs["call_launch"].isin(first.index)]
    before, after = last[pairs["call"]].to_numpy(), first[pairs["call_launch"]].to_numpy()
    lanes = activities["lane"].to_numpy()
    apart = lanes[before] != lanes[after]  # on one stream they follow each other already
    source, target = segments.starts(before[apart]) + 1, segments.starts(after[apart])
    usual = fits_for(changes.causality.trace).usual
    changes.add(Edges.of(source, target, np.full(len(source), usual.order_ns), ORDER))


def _choose_on_device(changes: Changes, steps: Steps) -> str:
    """Lengthen the compute of each step by the time in which the device chooses its tokens, unless it already does;
    return the assumption."""
    causality = changes.causality
    activities = causality.work_frame
    at = steps_of_frame(causality.trace, steps, activities)
    brings = (activities["name"] == "memcpy DtoH").to_numpy() & (at >= 0)
    sizes = causality.trace["memcpys"]["bytes"].to_numpy()[activities["row"].to_numpy()[brings]]
    if not len(sizes) or (sizes == MISSING).all():
        return "assumes that the device already chooses the token: the recording does not tell the size of its copies"
    per_step = np.bincount(at[brings], weights=np.maximum(sizes, 0), minlength=len(steps))
    tokens = _BYTES_OF_TOKEN * np.maximum(steps.table["sequences"].to_numpy(), 1)
    if np.median(per_step) <= max(_MOST_OF_TOKENS, float(np.median(tokens))):
        return "assumes that the device chooses the token in no more time than it does now"
    took_ns = fits_for(causality.trace).sampling.choose_ns
    if not changes.chooses_tokens:
        compute = np.flatnonzero(computes(activities) & (at >= 0))
        compute = compute[np.argsort(activities["end"].to_numpy()[compute], kind="stable")]
        changes.lengthen_activities(pd.Series(compute).groupby(at[compute]).last().to_numpy(), took_ns)
        changes.chooses_tokens = True
    return (
        f"assumes that the device chooses the token in {took_ns / 1e3:g} µs, as from 32,000 logits, where the host now "
        "copies the logits"
    )


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
        pairs = _until_launch(self.label, changes, steps)
        if not len(pairs):
            raise EmptyTraceError("no result is read before a launch")
        changes.move_pauses(pairs["call"].to_numpy(), pairs["launch"].to_numpy())
        return ["assumes that all host code between a result and the next launch can run after that launch"]


def _until_launch(edit: str, changes: Changes, steps: Steps) -> pd.DataFrame:
    """Calls from one that reads a result to the next run of launches (columns call and launch, the last one of the
    run). Raises like `_check_host_idle`.
    """
    _check_host_idle(edit, changes.causality, steps)
    table = windows(changes, steps).sort_values("call", kind="stable", ignore_index=True)
    launch = table["letter"].isin(LAUNCHES)
    ends = launch & ~launch.shift(-1, fill_value=False)
    follows = pd.Series(np.where(ends, table["call"], np.nan)).bfill()
    run = ends.shift(fill_value=False).cumsum()
    reads = table["call"].isin(reading_syncs(changes.causality, steps)[1])
    has_read = reads.groupby(run).cummax().astype(bool)
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
        pairs = _until_launch(self.label, changes, steps)
        pairs = pairs[pairs["call"].isin(sending_copies(changes.causality))]
        if not len(pairs):
            raise EmptyTraceError("there is no asynchronous copy to the device between a result and the next launch")
        changes.add(_behind_launch(changes.causality, pairs))
        changes.move_calls(pairs["call"].to_numpy(), pairs["launch"].to_numpy())
        notes = ["assumes that the copies contain nothing that depends on the result of the previous step"]
        if not changes.causality.work_frame["call"].isin(pairs["call"]).any():
            notes.append("this recording lacks the copies' time on the device, which delays the next result; a graph "
                         "or node pass has it")  # fmt: skip
        return notes


def _behind_launch(causality: Causality, pairs: pd.DataFrame) -> Edges:
    """From the end of the work of each launch to what follows on its stream: at least as long as the moved copies."""
    activities = causality.work_frame
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
        _check_device_alone(self.label, changes.causality, steps, table[table["call"].isin(reading)])
        gone = np.zeros(len(changes.removed), bool)
        gone[reading] = True
        changes.remove(gone)  # not `remove_calls`: the host's code behind the waits stays
        return [
            _choose_on_device(changes, steps),
            "assumes that the host processes a result after the next launch, in the same time: an upper bound if other "
            "threads of the program, such as Python's, run during the wait that goes",
        ]
