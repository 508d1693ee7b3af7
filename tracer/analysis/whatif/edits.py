"""The edits that a what-if knows; each applies itself to `Changes` and says what it assumes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import pandas as pd

from tracer.analysis.calls import LAUNCH
from tracer.analysis.causality.dag import Edges
from tracer.analysis.causality.edges import LAUNCH as LAUNCHED
from tracer.analysis.causality.paths import Causality
from tracer.analysis.tokens import Steps
from tracer.analysis.whatif.changes import Changes
from tracer.analysis.whatif.margin import FEWER_CALLS, ONE_GRAPH
from tracer.analysis.whatif.needed import needed_syncs
from tracer.analysis.whatif.strategies import follow, windows
from tracer.errors import EmptyTraceError, UnsafePlanError, UsageError


class Edit(Protocol):
    """One thing that would be different."""

    def half_margin(self, speedup: float, profiled: bool) -> float | None:
        """By how much the logarithm of that prediction may be off, from a recording made under a profiler or not; None
        where no case of its kind was measured."""

    @property
    def label(self) -> str:
        """In a few words."""

    def apply(self, changes: Changes, steps: Steps) -> list[str]:
        """Make it; what a reader must know of it."""


class Unmeasured:
    """An edit of which no case was measured."""

    def half_margin(self, speedup: float, profiled: bool) -> float | None:
        """Not known."""
        return None


class _FewerCalls:
    """An edit that only takes calls away."""

    def half_margin(self, speedup: float, profiled: bool) -> float | None:
        """See `margin`."""
        return FEWER_CALLS[profiled].half_width(speedup)


@dataclass(frozen=True)
class Strategy(_FewerCalls):
    """Another synchronisation strategy, see `strategies.follow`."""

    name: str

    @property
    def label(self) -> str:
        """In a few words."""
        return self.name

    def apply(self, changes: Changes, steps: Steps) -> list[str]:
        """Take away the calls that it does not make.

        Raises:
            UsageError, UnsafePlanError: it cannot be predicted from this recording, or must not be.
        """
        return follow(changes, steps, self.name)


@dataclass(frozen=True)
class WithoutSyncs(_FewerCalls):
    """Without host syncs: those of these positions in every step (1 for the first), or all that nothing needs.

    Attributes:
        positions: which, None for all that data flow does not need.
    """

    positions: tuple[int, ...] | None = None

    @property
    def label(self) -> str:
        """In a few words."""
        if self.positions is None:
            return "without syncs"
        return "without sync " + ", ".join(map(str, self.positions))

    def apply(self, changes: Changes, steps: Steps) -> list[str]:
        """Take them away.

        Raises:
            UnsafePlanError: data flow needs one that was asked for; says why.
            UsageError: no step has a sync at that position.
        """
        syncs = needed_syncs(changes.causality, steps)
        needed = syncs["reason"] != ""
        if self.positions is None:
            changes.remove_calls(syncs.loc[~needed, "call"].to_numpy())
            kept = syncs[needed].groupby("position")["reason"].agg(lambda reasons: reasons.mode().iloc[0])
            usual = kept[syncs[needed].groupby("position").size() * 2 > len(steps)]
            return [f"sync {position} stays: {reason}" for position, reason in usual.items()]
        for position in self.positions:
            mine = syncs["position"] == position
            if not mine.any():
                most = f"they have {syncs['position'].max()} at most" if len(syncs) else "they have none"
                raise UsageError(f"no step has a sync {position}; {most}")
            if (mine & needed).sum() * 2 > mine.sum():
                reason = syncs.loc[mine & needed, "reason"].mode().iloc[0]
                raise UnsafePlanError(f"sync {position} cannot go: {reason}")
        changes.remove_calls(syncs.loc[syncs["position"].isin(self.positions) & ~needed, "call"].to_numpy())
        return []


GRAPH_ORDER_NS: Final = 400
"""Between kernels of a graph that follow each other on an H200 (sample_traces/six-strategies, node level)."""

EARLY_SHARE: Final = 0.22
EARLY_MOST_NS: Final = 1500
"""How much of a kernel's time goes where it may begin before the one ahead of it has ended (programmatic dependent
launch): that share, but no more than its start takes. Of four models on an H200, whose recordings are named in
benchmarks/results/whatif_prediction.json, kernels of 1 µs lost 0.2 and those of 10 µs 1.7 µs."""

GRAPH_LAUNCH_NS: Final = 2000
GRAPH_NODE_NS: Final = 15
"""What launching a graph takes the host without a profiler: measured on an H200's host as 2.0 to 2.3 µs for 56 to 133
nodes and 10 µs for 342 (llama.cpp); the line through them."""


@dataclass(frozen=True)
class OneGraph:
    """Every run of kernel launches as one graph launch.

    Attributes:
        early: whether its kernels begin early (programmatic dependent launch).
    """

    early: bool = False

    def half_margin(self, speedup: float, profiled: bool) -> float | None:
        """See `margin`; measured were graphs with early starts, from recordings made under a profiler."""
        return ONE_GRAPH.half_width(speedup) if self.early and profiled else None

    @property
    def label(self) -> str:
        """In a few words."""
        return "one graph launch" + (" with early starts" if self.early else "")

    def apply(self, changes: Changes, steps: Steps) -> list[str]:
        """The first launch of each run becomes that of the graph, the others are gone.

        Raises:
            EmptyTraceError: no step launches kernels one by one.
        """
        table = windows(changes, steps)
        launches = table[table["letter"] == LAUNCH]
        runs = launches.groupby("window")["call"]
        if not len(runs):
            raise EmptyTraceError("no step launches kernels one by one: there is nothing to put into a graph")
        first = launches[~launches.duplicated("window")]
        others = launches[launches.duplicated("window")]["call"].to_numpy()
        activities = changes.causality.segments.activities
        inside = np.flatnonzero(np.isin(activities["call"], others))
        changes.forget_launches(inside)
        changes.limit_orders(inside, GRAPH_ORDER_NS)
        changes.remove_calls(others, and_issued=False)
        nodes = runs.transform("size").to_numpy()[~launches.duplicated("window")]
        took = GRAPH_LAUNCH_NS + GRAPH_NODE_NS * nodes
        changes.set_calls(first["call"].to_numpy(), took)
        changes.add(_branches(changes.causality, launches, dict(zip(first["window"], took, strict=True))))
        launching = f"launching a graph is taken to cost {GRAPH_LAUNCH_NS / 1e3:g} µs and {GRAPH_NODE_NS} ns per node"
        if not self.early:
            return [f"{launching}, and its kernels to follow each other within {GRAPH_ORDER_NS / 1e3:g} µs"]
        changes.limit_orders(inside, 0)
        changes.shorten_activities(inside, EARLY_SHARE, EARLY_MOST_NS)
        return [
            f"{launching}; a kernel that begins early is taken to be done earlier by {EARLY_SHARE:.0%} of its time, at "
            f"most {EARLY_MOST_NS / 1e3:g} µs"
        ]


def _branches(causality: Causality, launches: pd.DataFrame, took: dict[int, int]) -> Edges:
    """From the launch of each graph to its first activity on every stream but that of its first launch."""
    activities = causality.segments.activities
    issued = activities[["call", "lane"]].assign(activity=np.arange(len(activities)))
    nodes = issued.merge(launches[["call", "window"]], on="call").sort_values("activity")
    nodes = nodes.drop_duplicates(["window", "lane"])
    graphs = launches.drop_duplicates("window").set_index("window")["call"]
    nodes["graph"] = nodes["window"].map(graphs)
    nodes = nodes[nodes["call"] != nodes["graph"]]
    start = causality.segments.starts(nodes["activity"].to_numpy())
    return Edges.of(2 * nodes["graph"].to_numpy(), start, nodes["window"].map(took).to_numpy(), LAUNCHED)


@dataclass(frozen=True)
class ScaleKernels(Unmeasured):
    """Kernels whose name matches take `factor` times as long."""

    pattern: str
    factor: float

    @property
    def label(self) -> str:
        """In a few words."""
        return f"kernels {self.pattern} × {self.factor:g}"

    def apply(self, changes: Changes, steps: Steps) -> list[str]:
        """Scale them.

        Raises:
            UsageError: no kernel's name matches, or the pattern is not a valid regular expression.
        """
        activities = changes.causality.segments.activities
        try:
            names = [n for n in activities["name"].cat.categories if re.search(self.pattern, str(n))]
        except re.error as problem:
            raise UsageError(f"{self.pattern!r} is not a valid regular expression: {problem}") from None
        chosen = activities["name"].isin(names) & activities["table"].isin(["kernels", "graph_launches"])
        if not chosen.any():
            some = ", ".join(map(str, activities["name"].cat.categories[:5]))
            raise UsageError(f"no kernel matches {self.pattern!r}; there are {some}, ...")
        changes.scale_activities(np.flatnonzero(chosen), self.factor)
        return []


@dataclass(frozen=True)
class ScaleHost(Unmeasured):
    """The host's code between calls takes `factor` times as long."""

    factor: float

    @property
    def label(self) -> str:
        """In a few words."""
        return f"host code × {self.factor:g}"

    def apply(self, changes: Changes, steps: Steps) -> list[str]:
        """Scale it."""
        changes.scale_pauses(self.factor)
        return []


@dataclass(frozen=True)
class SyncLatency(Unmeasured):
    """Every host sync returns so many µs later than recorded (negative: earlier), as on another platform."""

    later_us: float

    @property
    def label(self) -> str:
        """In a few words."""
        return f"syncs {self.later_us:+g} µs"

    def apply(self, changes: Changes, steps: Steps) -> list[str]:
        """Delay them."""
        changes.delay_returns(round(self.later_us * 1e3))
        return []
