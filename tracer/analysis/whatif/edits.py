"""The edits that a reader chooses for a what-if, in the order in which they are applied (`edits_of`).

Those of calls and costs are here; `graph_edits`, `host_edits` and `streams` have the others.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tracer.analysis.tokens import Steps
from tracer.analysis.whatif.changes import Changes, Edit, FewerCalls, Unmeasured
from tracer.analysis.whatif.graph_edits import IntoGraph, OneGraph
from tracer.analysis.whatif.host_edits import CopiesBehind, LaunchFirst, MergedCopies, ReadLater
from tracer.analysis.whatif.needed import needed_syncs
from tracer.errors import UnsafePlanError, UsageError


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
        needed = syncs["reason"] != ""
        if self.positions is None:
            changes.remove_calls(syncs.loc[~needed, "call"].to_numpy())
            kept = syncs[needed].groupby("position")["reason"].agg(lambda reasons: reasons.mode().iloc[0])
            usual = kept[syncs[needed].groupby("position").size() * 2 > len(steps)]
            return [f"sync {position} is kept: {reason}" for position, reason in usual.items()]
        for position in self.positions:
            at_position = syncs["position"] == position
            if not at_position.any():
                most = f"they have {syncs['position'].max()} at most" if len(syncs) else "they have none"
                raise UsageError(f"no step has a sync {position}; {most}")
            if (at_position & needed).sum() * 2 > at_position.sum():
                reason = syncs.loc[at_position & needed, "reason"].mode().iloc[0]
                raise UnsafePlanError(f"sync {position} cannot be removed: {reason}")
        changes.remove_calls(syncs.loc[syncs["position"].isin(self.positions) & ~needed, "call"].to_numpy())
        return []


@dataclass(frozen=True)
class ScaleKernels(Unmeasured):
    """Kernels with matching names take `factor` times as long."""

    pattern: str
    factor: float

    @property
    def label(self) -> str:
        """A short description."""
        return f"kernels {self.pattern} × {self.factor:g}"

    def apply(self, changes: Changes, steps: Steps) -> list[str]:
        """Scale the kernels.

        Raises:
            UsageError: no kernel's name matches, or the pattern is not a valid regular expression.
        """
        activities = changes.causality.work_frame
        try:
            names = [n for n in activities["name"].cat.categories if re.search(self.pattern, str(n))]
        except re.error as problem:
            raise UsageError(f"{self.pattern!r} is not a valid regular expression: {problem}") from None
        chosen = activities["name"].isin(names) & activities["table"].isin(["kernels", "graph_launches"])
        if not chosen.any():
            some = ", ".join(map(str, activities["name"].cat.categories[:5]))
            raise UsageError(f"no kernel matches {self.pattern!r}; the recording has {some}, ...")
        changes.scale_activities(np.flatnonzero(chosen), self.factor)
        return []


@dataclass(frozen=True)
class ScaleHost(Unmeasured):
    """The host code between calls takes `factor` times as long."""

    factor: float

    @property
    def label(self) -> str:
        """A short description."""
        return f"host code × {self.factor:g}"

    def apply(self, changes: Changes, steps: Steps) -> list[str]:
        """Scale it."""
        changes.scale_pauses(self.factor)
        return []


@dataclass(frozen=True)
class ScaleHostCompute(Unmeasured):
    """The products and attention that the host computes as a device take `factor` times as long."""

    factor: float

    @property
    def label(self) -> str:
        """A short description."""
        return f"host compute × {self.factor:g}"

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
class SyncLatency(Unmeasured):
    """Every host sync returns this many µs later than recorded (if negative, earlier), as on another platform."""

    later_us: float

    @property
    def label(self) -> str:
        """A short description."""
        return f"syncs {self.later_us:+g} µs"

    def apply(self, changes: Changes, steps: Steps) -> list[str]:
        """Delay them."""
        changes.delay_returns(round(self.later_us * 1e3))
        return []


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
