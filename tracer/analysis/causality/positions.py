"""The calls of a step by position, over all steps: the cost of each, and whether it could be later at no cost."""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

from tracer.analysis.calls import SYNC
from tracer.analysis.causality.dag import NEVER
from tracer.model.schema import MISSING

_NONE: Final = 100  # ns a step on the path, below which a call costs nothing that could be seen

BESIDE_SYNC: Final = "costs nothing: it waits off the path"
BESIDE: Final = "costs nothing: off the path"


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
