"""The edits of a prediction, from the reader's choices."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from dashboard.pages.whatif.view import ALL, WhatIfView
from dashboard.reading.run import Run
from dashboard.reading.store import RunStore
from dashboard.text import plain
from tracer.analysis.whatif.choice import edits_of
from tracer.analysis.whatif.edits import Edit, ScaleKernels, Strategy
from tracer.analysis.whatif.streams import Concurrent
from tracer.errors import UsageError
from tracer.model.schema import COMPUTE_TABLES

_NODE_PASS: Final = "node"
_MOST_NAMES: Final = 300


@dataclass(frozen=True)
class NamedKernels(ScaleKernels):
    """Kernels with exactly these names. A reader's regular expression could keep the server busy for hours."""

    names: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """A short description."""
        return f"kernels {', '.join(plain(name, 40) for name in self.names)} × {self.factor:g}"

    @classmethod
    def of(cls, names: tuple[str, ...], factor: float) -> NamedKernels:
        """The edit for these names."""
        return cls(rf"\A(?:{'|'.join(map(re.escape, names))})\Z", factor, names)


def edits_for(store: RunStore, run: Run, view: WhatIfView) -> list[Edit]:
    """The edits in the order in which `intertoken whatif` applies them.

    Raises:
        UsageError: kernels are named without a factor, or there is no graph for streams.
        FormatError: the graph cannot be read.
    """
    if view.kernels and view.times is None:
        raise UsageError("enter the factor for the kernels' time")
    edits: list[Edit] = [Strategy(view.sync)] if view.sync else []
    edits += edits_of(
        without_syncs=view.without == (ALL,),
        positions=[int(position) for position in view.without if position != ALL],
        one_graph=bool(view.graph),
        early_starts=view.graph == "early",
        kernels=[("", view.times)] if view.times is not None and not view.kernels else [],
        scale_host=view.host,
        sync_latency_us=view.latency,
    )
    if view.kernels and view.times is not None:
        edits.append(NamedKernels.of(view.kernels, view.times))
    if view.streams is not None:
        edits.append(concurrent(store, run, int(view.streams)))
    return edits


def concurrent(store: RunStore, run: Run, streams: int) -> Concurrent:
    """The edit, with the graph of the run and the pass that has its kernels."""
    inside = store.below(run.path / _NODE_PASS) if run.path is not None else []
    node = next((one for one in inside if one.steps is not None), run)
    if node.trace is None or node.steps is None:
        raise UsageError(f"{node.name} has no token steps")
    return Concurrent(run.graph, node.trace, node.steps, streams)


def kernel_names(store: RunStore, run: Run) -> list[str]:
    """The names of a run's kernels and graphs, largest total time first."""

    def work() -> list[str]:
        if run.trace is None:
            return []
        kernels = run.trace.activities(COMPUTE_TABLES)
        took = (kernels["end"] - kernels["start"]).groupby(kernels["name"], observed=True).sum()
        return [str(name) for name in took.nlargest(_MOST_NAMES).index]

    return store.background.now((run.recorded, "kernels"), work, len)
