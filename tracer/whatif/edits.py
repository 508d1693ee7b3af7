"""The edits of a step's calls and costs, and all edits that a reader chooses for a what-if, in the order in which they
are applied (`edits_of`).

`graph_edits` has those that put kernels into a graph.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from operator import itemgetter
from typing import Final

import numpy as np

from tracer.analysis.causes import names_host_compute
from tracer.analysis.path.graph import ORDER, Edges
from tracer.analysis.path.paths import Causality, work_at
from tracer.analysis.tokens import Steps
from tracer.errors import EmptyTraceError, UnsafePlanError, UsageError
from tracer.model.calls import COPIES, SYNC
from tracer.model.columns import among, firsts, grouped, lasts, most_common, pairs, spread
from tracer.model.fits import fits_for
from tracer.model.intervals import Bools, Ints
from tracer.model.schema import MISSING
from tracer.whatif.changes import CallsOfRuns, Changes, Edit, FewerCalls, calls_of_runs
from tracer.whatif.graph_edits import IntoGraph, OneGraph
from tracer.whatif.needed import bringing_copies, needed_syncs, reading_syncs, sending_copies

LADDER: Final = ("sccc", "saaas", "aaas", "aaag", "ggg")
"""Strategies, each with fewer host calls than the previous one."""

_MOST_OF_TOKENS: Final = 4096
"""Bytes that a step copies to the host: the tokens of 512 sequences take at most this, the logits of one take more."""
_BYTES_OF_TOKEN: Final = 8

_HOLES: Final = "scales the holes inside graphs and runs of launches that were recorded whole like their kernels"
_WAITS: Final = "scales the waits for other ranks inside collectives like their transfers"


@dataclass(frozen=True)
class WithoutSyncs(FewerCalls):
    """Without some host syncs: those at these positions of every step (1 is the first), or all that data flow does not
    need.

    Attributes:
        positions: the positions; None for all syncs that data flow does not need.
    """

    positions: tuple[int, ...] | None = None

    @property
    def label(self) -> str:
        """A short description."""
        if self.positions is None:
            return "without syncs"
        return "without sync " + ", ".join(map(str, self.positions))

    def apply(self, changes: Changes, steps: Steps) -> list[str]:
        """Remove the syncs.

        Raises:
            UnsafePlanError: data flow needs one of them; the message says why.
            UsageError: no step has a sync at that position.
        """
        syncs = needed_syncs(changes.causality, steps)
        needed = syncs.is_needed
        if self.positions is None:
            changes.remove_calls(syncs.call[~needed])
            kept = syncs[needed]
            usual = {position: kept.reason[rows] for (position,), rows in grouped(kept.position)}
            return [
                f"sync {position} is kept: {most_common(reasons)}"
                for position, reasons in sorted(usual.items(), key=itemgetter(0))
                if len(reasons) * 2 > len(steps)
            ]
        for position in self.positions:
            at_position = syncs.position == position
            if not at_position.any():
                most = f"they have {syncs.position.max()} at most" if len(syncs) else "they have none"
                raise UsageError(f"no step has a sync {position}; {most}")
            if (at_position & needed).sum() * 2 > at_position.sum():
                reason = most_common(syncs.reason[at_position & needed])
                raise UnsafePlanError(f"sync {position} cannot be removed: {reason}")
        changes.remove_calls(syncs.call[among(syncs.position, self.positions) & ~needed])
        return []


@dataclass(frozen=True)
class ScaleKernels(Edit):
    """Kernels with matching names take `factor` times as long.

    Attributes:
        with_unnamed: also all graphs and runs of launches that were recorded whole, whose kernels have no names.
    """

    pattern: str
    factor: float
    _: KW_ONLY
    with_unnamed: bool = False

    words = "kernels {pattern} × {factor:g}"

    def widest(self, changes: Changes, steps: Steps) -> Edit:
        """With the kernels that have no names, unless the pattern chooses what was recorded whole by its own name."""
        work, chosen = changes.causality.segments.activities, self._chosen(changes)
        unnamed = work.is_graph & (changes.causality.once(work_at, steps) >= 0)
        return replace(self, with_unnamed=bool(unnamed.any() and not (work.is_graph & chosen).any()))

    def apply(self, changes: Changes, steps: Steps) -> list[str]:
        """Scale the kernels.

        Raises:
            UsageError: no kernel's name matches, or the pattern is not a valid regular expression.
        """
        work, chosen = changes.causality.segments.activities, self._chosen(changes)
        if self.with_unnamed:
            chosen |= work.is_graph
        if not chosen.any() and self.widest(changes, steps) == self:
            some = ", ".join(map(str, work.name.words[:5]))
            raise UsageError(f"no kernel matches {self.pattern!r}; the recording has {some}, ...")
        changes.scale_activities(np.flatnonzero(chosen), self.factor)
        return [note for rows, note in ((work.is_graph, _HOLES), (work.collective, _WAITS)) if (chosen & rows).any()]

    def _chosen(self, changes: Changes) -> Bools:
        work = changes.causality.segments.activities
        try:
            return work.name.chosen(re.compile(self.pattern).search) & (work.is_kernel | work.is_graph)
        except re.error as problem:
            raise UsageError(f"{self.pattern!r} is not a valid regular expression: {problem}") from None


@dataclass(frozen=True)
class ScaleHost(Edit):
    """The host code between calls takes `factor` times as long."""

    factor: float

    words = "host code × {factor:g}"

    def apply(self, changes: Changes, steps: Steps) -> list[str]:
        """Scale it."""
        changes.scale_pauses(self.factor)
        return []


@dataclass(frozen=True)
class ScaleHostCompute(Edit):
    """The products and attention that the host computes as a device take `factor` times as long."""

    factor: float

    words = "host compute × {factor:g}"

    def apply(self, changes: Changes, steps: Steps) -> list[str]:
        """Scale them.

        Raises:
            UsageError: the recording has none.
        """
        if not changes.causality.host_compute.any():
            raise UsageError("the host computes no products between two calls of this recording")
        changes.scale_host_compute(self.factor)
        return []


@dataclass(frozen=True)
class SyncLatency(Edit):
    """Every host sync returns this many µs later than recorded (if negative, earlier), as on another platform."""

    later_us: float

    words = "syncs {later_us:+g} µs"

    def apply(self, changes: Changes, steps: Steps) -> list[str]:
        """Delay them."""
        changes.delay_returns(round(self.later_us * 1e3))
        return []


@dataclass(frozen=True)
class FollowStrategy(FewerCalls):
    """Another synchronisation strategy: only its calls are made.

    Calls are only removed; a strategy that needs more of them than the recording has cannot be predicted from it. A
    sync after which the host reads a result is kept by every strategy except ggg, which leaves the token on the device:
    the time in which it chooses the token is added where the host of the recording does so from the logits.
    """

    name: str

    words = "{name}"

    def apply(self, changes: Changes, steps: Steps) -> list[str]:
        """Remove the calls that the strategy does not make.

        Raises:
            UsageError: there is no such strategy.
            UnsafePlanError: it leaves the whole step to the device, but the host takes part in it.
        """
        if self.name not in LADDER[1:]:
            raise UsageError(f"no prediction for strategy {self.name!r}; choose one of {', '.join(LADDER[1:])}")
        table = calls_of_runs(changes, steps)
        behind_copies, reads = (np.isin(table.call, calls) for calls in reading_syncs(changes.causality, steps))
        if self.name == "ggg":
            _check_device_alone("ggg", changes.causality, steps, table[reads])
            launch = table.launches
            inside_run = launch & np.append(launch[1:] & (table.run[1:] == table.run[:-1]), False)[: len(table)]
            changes.drop_pauses(table.call[~inside_run])
            changes.remove_calls(table.call[~launch])
            return [_choose_on_device(changes, steps), "assumes that the device prepares its next step in no time"]
        is_input = (table.run >= 0) & ~table.launches
        inputs = table[is_input]
        copy = among(inputs.letter, COPIES) & ~np.isin(inputs.call, bringing_copies(changes.causality))
        first, last = _bounds(inputs.run, copy)
        has_copies, row = last >= 0, np.arange(len(inputs))
        sync = (inputs.letter == SYNC) & ~behind_copies[is_input]
        kept = np.zeros(len(inputs), bool)
        if self.name in ("saaas", "aaas"):
            kept |= row == _bounds(inputs.run, sync & has_copies & (row > last))[1]
        if self.name == "saaas":
            kept |= row == _bounds(inputs.run, sync & has_copies & (row < first))[0]
        _one_queue(changes, inputs[copy], table)
        changes.remove_calls(np.append(inputs.call[sync & has_copies & ~kept], table.call[behind_copies & ~reads]))
        return ["assumes that copies share a queue with compute, and read memory that outlives them"]


def _bounds(run: Ints, chosen: Bools) -> tuple[Ints, Ints]:
    """The first and the last chosen row of the run (-1 or greater) of each row; -1 without one."""
    rows, count = np.flatnonzero(chosen), int(run.max(initial=-1)) + 2  # the last one is for -1
    return firsts(run[rows], count, rows)[run], lasts(run[rows], count, rows)[run]


def _check_device_alone(edit: str, causality: Causality, steps: Steps, reads: CallsOfRuns) -> None:
    """Raise UnsafePlanError if the host computes in the steps, or reads something between two of their launches."""
    _check_host_idle(edit, causality, steps)
    if len(np.unique(reads.at[reads.between])) * 2 > len(steps):
        raise UnsafePlanError(f"{edit} is impossible: the host reads a copy's result between two launches of a step")


def _check_host_idle(edit: str, causality: Causality, steps: Steps) -> None:
    """Raise UnsafePlanError if the host computes in the steps."""
    nvtx = causality.trace.nvtx
    ranges = nvtx[nvtx.text.chosen(names_host_compute)]
    host = np.flatnonzero(steps.of(ranges.start, ranges.process, ranges.thread) >= 0)
    if len(host):
        raise UnsafePlanError(
            f"{edit} is impossible: the host computes a part of the step ({ranges.text.at(int(host[0]))!r})"
        )


def _one_queue(changes: Changes, copies: CallsOfRuns, table: CallsOfRuns) -> None:
    """Make launched work start after the copies before it, on any stream."""
    segments = changes.causality.segments
    work, count = segments.activities, len(segments.calls)
    issued = np.flatnonzero(work.call >= 0)
    first, last = (each(work.call[issued], count, issued) for each in (firsts, lasts))
    launches = table[table.launches]
    launches = launches[np.append(True, launches.run[1:] != launches.run[:-1])[: len(launches)]]
    copy, launch = pairs([copies.run], [launches.run])
    before, after = last[copies.call[copy]], first[launches.call[launch]]
    known = (before >= 0) & (after >= 0)
    before, after = before[known], after[known]
    apart = work.lane[before] != work.lane[after]  # on one stream they follow each other already
    source, target = segments.starts(before[apart]) + 1, segments.starts(after[apart])
    usual = fits_for(changes.causality.trace).usual
    changes.add(Edges.of(source, target, np.full(len(source), usual.order_ns), ORDER))


def _choose_on_device(changes: Changes, steps: Steps) -> str:
    """Lengthen the compute of each step by the time in which the device chooses its tokens, unless it already does;
    return the assumption."""
    causality = changes.causality
    work, at = causality.segments.activities, causality.once(work_at, steps)
    brings = np.flatnonzero(work.name.rows("memcpy DtoH") & (at >= 0))
    sizes = work.bytes[brings]
    if not len(sizes) or (sizes == MISSING).all():
        return "assumes that the device already chooses the token: the recording does not tell the size of its copies"
    per_step = np.bincount(at[brings], weights=np.maximum(sizes, 0), minlength=len(steps))
    tokens = _BYTES_OF_TOKEN * np.maximum(steps.rows.sequences, 1)
    if np.median(per_step) <= max(_MOST_OF_TOKENS, float(np.median(tokens))):
        return "assumes that the device chooses the token in no more time than it does now"
    took_ns = fits_for(causality.trace).sampling.choose_ns
    if not changes.chooses_tokens:
        compute = np.flatnonzero(work.computes & (at >= 0))
        compute = compute[np.argsort(work.end[compute], kind="stable")]
        last = lasts(at[compute], len(steps), compute)
        changes.lengthen_activities(last[last >= 0], took_ns)
        changes.chooses_tokens = True
    return (
        f"assumes that the device chooses the token in {took_ns / 1e3:g} µs, as from 32,000 logits, where the host now "
        "copies the logits"
    )


@dataclass(frozen=True)
class MergedCopies(Edit):
    """Merge the copies before each run of launches into one, with the sync of the last one."""

    words = "input copies merged"

    def apply(self, changes: Changes, steps: Steps) -> list[str]:
        """Keep only the last copy before each run, and syncs after which the host reads.

        Raises:
            EmptyTraceError: no launch has several copies before it.
        """
        table = calls_of_runs(changes, steps)
        inputs = table[(table.run >= 0) & ~table.launches]
        inputs = inputs[np.argsort(inputs.call)]
        copy = among(inputs.letter, COPIES)
        first, last = (spread(inputs.call, row, MISSING) for row in _bounds(inputs.run, copy))
        gone = copy & (inputs.call < last)
        if not gone.any():
            raise EmptyTraceError("no launch has several copies before it")
        between = (inputs.letter == SYNC) & (first >= 0) & (inputs.call > first) & (inputs.call < last)
        between &= ~np.isin(inputs.call, reading_syncs(changes.causality, steps)[1])
        changes.remove_calls(inputs.call[gone | between])
        return ["assumes that the merged copy takes as long as the last of the copies that it replaces"]


@dataclass(frozen=True)
class LaunchFirst(Edit):
    """Move the host work between reading a result and the next launch to after that launch."""

    words = "host work after the launch"

    def apply(self, changes: Changes, steps: Steps) -> list[str]:
        """Move the host code; calls stay where they are.

        Raises:
            EmptyTraceError: no result is read between two launches.
            UnsafePlanError: the host computes a part of the step, which the launch needs.
        """
        calls, launches = _until_launch(self.label, changes, steps)
        if not len(calls):
            raise EmptyTraceError("no result is read before a launch")
        changes.move_pauses(calls, launches)
        return ["assumes that all host code between a result and the next launch can run after that launch"]


def _until_launch(edit: str, changes: Changes, steps: Steps) -> tuple[Ints, Ints]:
    """Calls from one that reads a result to the next run of launches, and the last one of that run. Raises like
    `_check_host_idle`.
    """
    _check_host_idle(edit, changes.causality, steps)
    table = calls_of_runs(changes, steps)
    table = table[np.argsort(table.call, kind="stable")]
    launch = table.launches
    ends = launch & ~np.append(launch[1:], False)[: len(launch)]
    run = np.cumsum(ends) - ends  # the launches that ended before
    behind = np.append(table.call[ends], MISSING)[run]
    reads = np.isin(table.call, reading_syncs(changes.causality, steps)[1])
    first_read = np.full(int(run.max(initial=0)) + 1, len(table))
    first_read[run[reads][::-1]] = np.flatnonzero(reads)[::-1]  # of several the first, which is assigned last
    chosen = (np.arange(len(table)) >= first_read[run]) & ~launch & (behind >= 0)
    return table.call[chosen], behind[chosen]


@dataclass(frozen=True)
class CopiesBehind(Edit):
    """Enqueue the copies between reading a result and the next launch, whose values are known one step ahead, after the
    launch of the previous step.
    """

    words = "input copies after the launch"

    def apply(self, changes: Changes, steps: Steps) -> list[str]:
        """Move the calls with the host code between them; on the device the copies follow the launched work.

        Raises:
            EmptyTraceError: there is no asynchronous copy to the device between a result and the next launch.
            UnsafePlanError: the host computes a part of the step, whose results the copies contain.
        """
        calls, launches = _until_launch(self.label, changes, steps)
        sends = np.isin(calls, sending_copies(changes.causality))
        calls, launches = calls[sends], launches[sends]
        if not len(calls):
            raise EmptyTraceError("there is no asynchronous copy to the device between a result and the next launch")
        changes.add(_behind_launch(changes.causality, calls, launches))
        changes.move_calls(calls, launches)
        notes = ["assumes that the copies contain nothing that depends on the result of the previous step"]
        if not np.isin(calls, changes.causality.segments.activities.call).any():
            notes.append("this recording lacks the copies' time on the device, which delays the next result; a graph "
                         "or node pass has it")  # fmt: skip
        return notes


def _behind_launch(causality: Causality, calls: Ints, launches: Ints) -> Edges:
    """From the end of the work of each launch to what follows on its stream: at least as long as the moved copies."""
    segments, work = causality.segments, causality.segments.activities
    took, issued = np.zeros(len(segments.calls), np.int64), np.flatnonzero(work.call >= 0)
    last = lasts(work.call[issued], len(took), issued)
    copy, moved = pairs([work.call], [calls])
    np.add.at(took, launches[moved], work.end[copy] - work.start[copy])
    launch = np.unique(launches[moved])
    activity = last[launch]
    follows = (activity >= 0) & np.append(work.is_followed, [False, False])[activity]
    activity, launch = activity[follows], launch[follows]
    return Edges.of(segments.starts(activity) + 1, segments.starts(activity + 1), took[launch], ORDER)


@dataclass(frozen=True)
class ReadLater(Edit):
    """Launch the next step before the result of this one is read: the device samples the token."""

    words = "device sampling, results read a step later"

    def apply(self, changes: Changes, steps: Steps) -> list[str]:
        """Make the waits for results return immediately; everything else is unchanged.

        Raises:
            EmptyTraceError: no sync reads a result.
            UnsafePlanError: the host takes part in the step itself.
        """
        table = calls_of_runs(changes, steps)
        reading = reading_syncs(changes.causality, steps)[1]
        if not len(reading):
            raise EmptyTraceError("no sync reads a result")
        _check_device_alone(self.label, changes.causality, steps, table[np.isin(table.call, reading)])
        gone = np.zeros(len(changes.removed), bool)
        gone[reading] = True
        changes.remove(gone)  # not `remove_calls`: the host's code behind the waits stays
        return [
            _choose_on_device(changes, steps),
            "assumes that the host processes a result after the next launch, in the same time: an upper bound if other "
            "threads of the program, such as Python's, run during the wait that goes",
        ]


def edits_of(
    *, without_syncs: bool = False, positions: Sequence[int] = (), one_graph: bool = False, early_starts: bool = False,
    eager_into_graph: bool = False, merge_copies: bool = False, launch_first: bool = False, copies_behind: bool = False,
    read_later: bool = False, kernels: Sequence[tuple[str, float]] = (), scale_host: float | None = None,
    scale_host_compute: float | None = None, sync_latency_us: float | None = None,
) -> list[Edit]:  # fmt: skip
    """The edits in the order in which they are applied, without strategies and streams.

    Raises:
        UsageError: choices that cannot be combined.
    """
    edits: list[Edit] = [WithoutSyncs()] if without_syncs else []
    if positions:
        edits.append(WithoutSyncs(tuple(positions)))
    if early_starts and not one_graph:
        raise UsageError("--early-starts needs --graph")
    if one_graph:
        edits.append(OneGraph(early_starts))
    if eager_into_graph:
        edits.append(IntoGraph())
    if merge_copies:
        edits.append(MergedCopies())
    if launch_first:
        edits.append(LaunchFirst())
    if copies_behind:
        edits.append(CopiesBehind())
    if read_later:
        edits.append(ReadLater())
    edits += [ScaleKernels(pattern, factor) for pattern, factor in kernels]
    if scale_host is not None:
        edits.append(ScaleHost(scale_host))
    if scale_host_compute is not None:
        edits.append(ScaleHostCompute(scale_host_compute))
    if sync_latency_us is not None:
        edits.append(SyncLatency(sync_latency_us))
    return edits
