"""Another synchronisation strategy for a recording: which of its host calls would not be made.

Calls are only removed; a strategy that needs more of them than the recording has cannot be predicted from it. A sync
after which the host reads a result is kept by every strategy except ggg, which leaves the token on the device: the time
in which it chooses the token is added where the host of the recording does so from the logits.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.calls import COPIES, LAUNCHES, SYNC
from tracer.analysis.causality.dag import Edges
from tracer.analysis.causality.edges import ORDER
from tracer.analysis.causality.paths import Causality
from tracer.analysis.causes import of_host_compute
from tracer.analysis.fits import fits_for
from tracer.analysis.step_work import activity_steps
from tracer.analysis.tokens import Steps
from tracer.analysis.whatif.changes import Changes
from tracer.analysis.whatif.needed import bringing_copies, reading_syncs
from tracer.errors import UnsafePlanError, UsageError
from tracer.model.collectives import computes
from tracer.model.schema import MISSING

Ints = NDArray[np.int64]

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
    calls = causality.segments.calls
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


def follow(changes: Changes, steps: Steps, strategy: str) -> list[str]:
    """Keep only the calls of `strategy`; return its assumptions.

    Raises:
        UsageError: there is no such strategy.
        UnsafePlanError: it leaves the whole step to the device, but the host takes part in it.
    """
    if strategy not in LADDER[1:]:
        raise UsageError(f"no prediction for strategy {strategy!r}; choose one of {', '.join(LADDER[1:])}")
    table = windows(changes, steps)
    behind_copies, reads = (table["call"].isin(calls) for calls in reading_syncs(changes.causality, steps))
    if strategy == "ggg":
        check_device_alone("ggg", changes.causality, steps, table[reads])
        launch = table["letter"].isin(LAUNCHES)
        others = table[~launch]
        inside_run = launch & launch.shift(-1, fill_value=False) & (table["window"] == table["window"].shift(-1))
        changes.drop_pauses(table.loc[~inside_run, "call"].to_numpy())
        changes.remove_calls(others["call"].to_numpy())
        return [choose_on_device(changes, steps), "assumes that the device prepares its next step in no time"]
    inputs = table[(table["window"] >= 0) & ~table["letter"].isin(LAUNCHES)]
    copy = inputs["letter"].isin(COPIES) & ~inputs["call"].isin(bringing_copies(changes.causality))
    order = pd.Series(np.arange(len(inputs)), index=inputs.index)
    first, last = (order[copy].groupby(inputs["window"]).agg(how) for how in ("min", "max"))
    before_all = order < inputs["window"].map(first)
    behind_all = order > inputs["window"].map(last)
    sync = (inputs["letter"] == SYNC) & ~behind_copies[inputs.index]
    final = sync & behind_all & ~inputs.assign(s=sync & behind_all).duplicated(["window", "s"], keep="last")
    leading = sync & before_all & ~inputs.assign(s=sync & before_all).duplicated(["window", "s"], keep="first")
    kept = {"saaas": leading | final, "aaas": final, "aaag": pd.Series(False, index=inputs.index)}[strategy]
    has_copies = inputs["window"].isin(first.index)
    gone = np.append(inputs.loc[sync & has_copies & ~kept, "call"], table.loc[behind_copies & ~reads, "call"])
    _one_queue(changes, inputs[copy], table)
    changes.remove_calls(gone)
    return ["assumes that copies share a queue with compute, and read memory that outlives them"]


def check_device_alone(edit: str, causality: Causality, steps: Steps, reads: pd.DataFrame) -> None:
    """Raise UnsafePlanError if the host computes in the steps, or reads something between two of their launches."""
    check_host_idle(edit, causality, steps)
    if reads.loc[reads["between"], "at"].nunique() * 2 > len(steps):
        raise UnsafePlanError(f"{edit} is impossible: the host reads a copy's result between two launches of a step")


def check_host_idle(edit: str, causality: Causality, steps: Steps) -> None:
    """Raise UnsafePlanError if the host computes in the steps."""
    ranges = causality.trace["nvtx"]
    ranges = ranges[of_host_compute(ranges)]
    host = steps.of(*(ranges[c].to_numpy() for c in ("start", "process", "thread"))) >= 0
    if host.any():
        raise UnsafePlanError(
            f"{edit} is impossible: the host computes a part of the step ({ranges['text'][host].iloc[0]!r})"
        )


def _one_queue(changes: Changes, copies: pd.DataFrame, table: pd.DataFrame) -> None:
    """Make launched work start after the copies before it, on any stream."""
    segments = changes.causality.segments
    activities = segments.activities
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


def choose_on_device(changes: Changes, steps: Steps) -> str:
    """Lengthen the compute of each step by the time in which the device chooses its tokens, unless it already does;
    return the assumption."""
    causality = changes.causality
    activities = causality.segments.activities
    at = activity_steps(causality.trace, steps, activities)
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
