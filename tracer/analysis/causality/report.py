"""The critical path of a trace's steps as one report: its pieces, their composition, and the calls off the path.

The calls of a step are told by position, over all steps: the cost of each, and whether it could be later at no cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from tracer.analysis.call_sites import call_sites
from tracer.analysis.causality.dag import NEVER
from tracer.analysis.causality.paths import PIECES, Causality, StepEnds, call_slack, critical_path, path_shares
from tracer.analysis.tokens import Steps
from tracer.model.calls import SYNC
from tracer.model.fits import fits_for
from tracer.model.schema import MISSING
from tracer.model.trace import Trace

_TABLE: Final = [name for name in PIECES if name != "of"]
_NONE: Final = 100  # ns a step on the path, below which a call costs nothing that could be seen

BESIDE_SYNC: Final = "costs nothing: it waits off the path"
BESIDE: Final = "costs nothing: off the path"


@dataclass(frozen=True, eq=False)
class PathReport:
    """What each step waited for.

    Attributes:
        table: one row per piece of a step's path: step, start and end (ns), kind (call, host, device, ...), name.
        shares: the composition of the paths, see `paths.path_shares`.
        calls: the syncs, copies and launches of a step, see `by_position`.
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
    calls = call_slack(causality, ends, pieces, steps)
    if with_sites:
        correlation = trace["api"]["correlation"].to_numpy()[calls["row"]]
        calls["site"] = call_sites(trace, calls.assign(correlation=correlation))["site"]
    traced = ("recorded under a profiler: the path includes what the profiler adds", fits_for(trace).caution)
    backward = causality.dag.backward
    doubt = f"{backward} edges lead back in time and are left out: clocks of host and device disagree"
    return PathReport(
        table=pieces[_TABLE],
        shares=path_shares(pieces),
        calls=by_position(calls),
        steps=len(ends.followed),
        warning=None if trace.is_untraced else "; ".join(filter(None, traced)),
        notes=(doubt,) if backward else (),
    )


def by_position(calls: pd.DataFrame) -> pd.DataFrame:
    """One row per position that at least half of the steps have.

    Args:
        calls: as returned by `paths.call_slack`, optionally with site, the call site of each.

    Returns:
        Columns position, name, letter, sync (1, 2, ... among the syncs, MISSING for other calls), steps (number of
        steps that have it), on_path_us and slack_us (medians; slack is None if nothing ever waits for the call),
        verdict ("" for calls on the path), and site (the most common one) if the calls have one.
    """
    steps = calls["step"].nunique()
    groups = calls.groupby("position")
    table = groups.agg(
        name=("name", lambda names: str(names.mode().iloc[0])),
        letter=("letter", lambda letters: letters.mode().iloc[0]),
        steps=("step", "size"),
        on_path_us=("on_path_ns", "median"),
        slack_us=("slack_ns", "median"),
    ).reset_index()
    if "site" in calls:
        table["site"] = groups["site"].agg(lambda sites: str(sites.mode().iloc[0])).to_numpy()
    table = table[table["steps"] * 2 >= steps].reset_index(drop=True)
    is_sync = table["letter"] == SYNC
    table.insert(3, "sync", is_sync.cumsum().where(is_sync, MISSING))
    beside = (table["on_path_us"] < _NONE) & (table["slack_us"] > 0)
    table["verdict"] = np.where(beside, np.where(is_sync, BESIDE_SYNC, BESIDE), "")
    table["on_path_us"] /= 1e3
    table["slack_us"] = (table["slack_us"] / 1e3).astype(object).where(table["slack_us"] < NEVER / 2, None)
    return table


def syncs_by_position(calls: pd.DataFrame) -> pd.DataFrame:
    """Like `by_position`, but for syncs only, by their positions among the syncs of a step, as in
    `SyncReport.inventory`."""
    syncs = calls[calls["letter"] == SYNC]
    return by_position(syncs.assign(position=syncs.groupby("step").cumcount() + 1))
