"""The critical path of a trace's steps as one report: its pieces, their composition, and the calls off the path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pandas as pd

from tracer.analysis.call_sites import call_sites
from tracer.analysis.causality.paths import PIECES, Causality, StepEnds, call_slack, critical_path, path_shares
from tracer.analysis.causality.positions import by_position
from tracer.analysis.distortion import known
from tracer.analysis.fits import fits_for
from tracer.analysis.gaps import graph_trace_level
from tracer.analysis.step_work import step_compute
from tracer.analysis.tokens import Steps
from tracer.model.trace import Trace

_TABLE: Final = [name for name in PIECES if name != "of"]


@dataclass(frozen=True, eq=False)
class PathReport:
    """What each step waited for.

    Attributes:
        table: one row per piece of a step's path: step, start and end (ns), kind (call, host, device, ...), name.
        shares: the composition of the paths, see `paths.path_shares`.
        calls: the syncs, copies and launches of a step, see `positions.by_position`.
        steps: number of steps with a path: those that follow another one.
        warning: the effect of tracing on the path; None if the recording was not traced.
        notes: doubts about the clocks.
    """

    table: pd.DataFrame
    shares: pd.DataFrame
    calls: pd.DataFrame
    steps: int
    warning: str | None
    notes: tuple[str, ...]

    @property
    def path_us(self) -> float:
        """Mean length of a step's path, µs."""
        return float(self.shares["ns_per_step"].sum() / 1e3)


def path_report(trace: Trace, steps: Steps, *, with_sites: bool = False) -> PathReport:
    """Compute the critical path of every step.

    Args:
        trace: the recording, for call sites read with its Python functions.
        steps: its steps.
        with_sites: whether to add the call site of each call.

    Raises:
        EmptyTraceError: no two consecutive steps have compute.
    """
    causality = Causality.of(trace)
    ends = StepEnds.of(causality, steps)
    pieces = critical_path(causality, ends)
    source = str(trace.metadata.get("source", ""))
    level = graph_trace_level(step_compute(trace, steps), trace)
    calls = call_slack(causality, ends, pieces, steps)
    if with_sites:
        correlation = trace["api"]["correlation"].to_numpy()[calls["row"]]
        calls["site"] = call_sites(trace, calls.assign(correlation=correlation))["site"]
    traced = known(level, source, fits_for(trace))
    backward = causality.dag.backward
    doubt = f"{backward} edges lead back in time and are left out: clocks of host and device disagree"
    return PathReport(
        table=pieces[_TABLE],
        shares=path_shares(pieces),
        calls=by_position(calls),
        steps=len(ends.followed),
        warning=None if source == "host" else f"{traced}; the path includes this overhead",
        notes=(doubt,) if backward else (),
    )
