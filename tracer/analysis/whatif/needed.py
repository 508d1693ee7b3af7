"""Finds the host syncs that data flow needs; the others can be removed without a race.

A sync is needed if the host reads the result of a copy after it (a split of the host begins after all copies to it, and
so needs the last sync), if it alone orders the work of two streams, or if it is the last one to tell the host that it
may overwrite the source of an asynchronous copy. Recordings contain no addresses, so every order between streams is
taken to be intended.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Final

import numpy as np
import pandas as pd

from tracer.analysis.calls import between_devices
from tracer.analysis.causes import names_host_compute
from tracer.analysis.path.graph import NEVER
from tracer.analysis.path.paths import Causality
from tracer.analysis.tokens import Steps
from tracer.model.calls import COPY, LAUNCHES, SYNC
from tracer.model.columns import Names
from tracer.model.intervals import Ints
from tracer.model.rows import among, rows_named
from tracer.model.schema import MISSING

READS: Final = "the host reads the result of the copy before it"
ORDERS: Final = "it alone orders streams {} and {}"
REUSES: Final = "after it the host may overwrite the source of an asynchronous copy"


def needed_syncs(causality: Causality, steps: Steps) -> pd.DataFrame:
    """All syncs inside the steps.

    Returns:
        Columns call (position), at (position in `steps`), position (1, 2, ... among the syncs of its step), name and
        reason ("" if data flow does not need it), in chronological order.
    """
    return causality.once(_needed_syncs, steps)


def _needed_syncs(causality: Causality, steps: Steps) -> pd.DataFrame:
    at, table = _syncs_inside(causality, steps)
    lanes = _lanes_of(causality, table)
    work = _work(causality)
    _mark(table, _last_of_splits(causality, _readers(lanes, work)), READS)
    _mark_orders(causality, table, lanes, work)
    sends = work[work["sends"]].assign(at=lambda w: at[w["call"]])
    sends["until"] = steps.table["end"].to_numpy()[sends["at"]]
    _mark_reuse(table, lanes, sends[sends["at"] >= 0])
    return table[["call", "at", "position", "name", "reason"]]


def reading_syncs(causality: Causality, steps: Steps) -> tuple[Ints, Ints]:
    """The positions of the syncs after copies to the host: all of them, and those that `needed_syncs` finds to be
    needed because the host reads (`READS`).
    """
    return causality.once(_reading_syncs, steps)


def _reading_syncs(causality: Causality, steps: Steps) -> tuple[Ints, Ints]:
    table = _syncs_inside(causality, steps)[1]
    readers = _readers(_lanes_of(causality, table), _work(causality))
    return readers, _last_of_splits(causality, readers)


def _last_of_splits(causality: Causality, readers: Ints) -> Ints:
    """The last of these calls in each split of the host, which computes after all its inputs have arrived; calls
    outside of splits are kept.
    """
    ranges = causality.trace["nvtx"]
    ranges = ranges[rows_named(ranges["text"], names_host_compute)].sort_values("start", kind="stable")
    if not len(ranges) or not len(readers):
        return readers
    calls = causality.call_frame.iloc[np.unique(readers)][["start", "process", "thread"]]
    calls = calls.assign(call=np.unique(readers)).sort_values("start", kind="stable")
    begun = ranges[["start", "end", "process", "thread"]].assign(split=np.arange(len(ranges)))
    found = pd.merge_asof(calls, begun, on="start", by=["process", "thread"])
    inside = found[found["end"] > found["start"]]
    early = inside.loc[inside.duplicated("split", keep="last"), "call"]
    return readers[~np.isin(readers, early)]


def bringing_copies(causality: Causality) -> Ints:
    """The positions of the calls that copy to the host."""
    work = _work(causality)
    return np.asarray(work.loc[work["brings"], "call"], dtype=np.int64)


def sending_copies(causality: Causality) -> Ints:
    """The positions of the calls that copy to the device and return before the copy has read its source."""
    work = _work(causality)
    return np.asarray(work.loc[work["sends"], "call"], dtype=np.int64)


def _syncs_inside(causality: Causality, steps: Steps) -> tuple[Ints, pd.DataFrame]:
    """(for each call its position in `steps`, or -1; the syncs inside the steps in chronological order)."""
    calls = causality.call_frame
    at = steps.of(*(calls[c].to_numpy() for c in ("start", "process", "thread")))
    rows = np.flatnonzero((at >= 0) & (calls["letter"] == SYNC).to_numpy())
    table = calls.iloc[rows][["start", "end", "process", "thread", "name"]].assign(call=rows, at=at[rows], reason="")
    table = table.sort_values("start", kind="stable", ignore_index=True)
    table["position"] = table.groupby("at").cumcount() + 1
    return at, table


def _lanes_of(causality: Causality, table: pd.DataFrame) -> pd.DataFrame:
    """(call, start, lane, until) of the table's syncs, one row per stream that each waits for, in the order of `until`.
    Syncs about which the trace has no information are taken to wait for all streams of their process.
    """
    lanes = table[["call", "start", "process"]].merge(causality.segments.asked.frame(), on="call", how="left")
    unknown = lanes["lane"].isna()
    everywhere = lanes.loc[unknown, ["call", "start", "process"]].assign(until=lanes["start"])
    of_process = causality.work_frame[["process", "lane"]].drop_duplicates()
    joined = pd.concat([lanes[~unknown], everywhere.merge(of_process, on="process")], ignore_index=True)
    joined = joined.astype({"lane": "int64", "until": "int64"}).sort_values(["until", "start"], kind="stable")
    return joined[["call", "start", "lane", "until"]].reset_index(drop=True)


def _work(causality: Causality) -> pd.DataFrame:
    """The work that calls issue to streams: one row per copy or launch and stream: call, start, lane, brings, sends.

    If the recording has no device copies, a copy is on the stream of the nearest launch, and one after a launch copies
    its result to the host.
    """
    activities, calls = causality.work_frame, causality.call_frame
    issued = activities[activities["call"] >= 0].drop_duplicates(["call", "lane"])
    kinds = issued["name"].astype(str)
    memcpys = causality.trace["memcpys"]
    between = between_devices(
        causality.trace,
        SimpleNamespace(
            process=calls["process"], correlation=calls["correlation"], name=Names.of_series(calls["name"])
        ),
    )
    pageable = np.zeros(len(issued), bool)
    copies = (issued["table"] == "memcpys").to_numpy()
    pageable[copies] = (memcpys["src_kind"].to_numpy() == "pageable")[issued["row"].to_numpy()[copies]]
    work = pd.DataFrame(
        {
            "call": issued["call"],
            "lane": issued["lane"],
            "brings": ((kinds == "memcpy DtoH") & ~between[issued["call"]]).to_numpy(),
            "sends": (kinds == "memcpy HtoD").to_numpy() & ~pageable,
        }
    )
    hidden = np.flatnonzero((calls["letter"] == COPY).to_numpy() & ~np.isin(np.arange(len(calls)), issued["call"]))
    if len(hidden) and not len(memcpys):
        work = pd.concat([work, _hidden(calls, hidden, work)], ignore_index=True)
    work["start"] = calls["start"].to_numpy()[work["call"]]
    return work.sort_values("start", kind="stable", ignore_index=True)


def _hidden(calls: pd.DataFrame, hidden: Ints, work: pd.DataFrame) -> pd.DataFrame:
    letters = calls["letter"].to_numpy()
    of_thread = calls.groupby(["process", "thread"], sort=False).ngroup().to_numpy()
    last = pd.Series(np.where(among(letters, [SYNC, *LAUNCHES]), np.arange(len(calls)), np.nan))
    before = last.groupby(of_thread).ffill().to_numpy()[hidden]
    behind_launch = ~np.isnan(before) & among(letters[np.nan_to_num(before).astype(np.int64)], LAUNCHES)
    lanes = pd.Series(np.nan, index=calls.index)
    launches = work[among(letters[work["call"]], LAUNCHES)]
    lanes[launches["call"]] = launches["lane"].to_numpy()
    ahead, behind = (lanes.groupby(of_thread).transform(fill).to_numpy()[hidden] for fill in ("bfill", "ffill"))
    lane = np.where(behind_launch | np.isnan(ahead), behind, ahead)
    found = pd.DataFrame({"call": hidden, "lane": lane, "brings": behind_launch, "sends": ~behind_launch})
    return found.dropna(subset=["lane"]).astype({"lane": "int64"})


def _mark(table: pd.DataFrame, calls: Ints, reason: str) -> None:
    table.loc[table["call"].isin(calls) & (table["reason"] == ""), "reason"] = reason


def _readers(lanes: pd.DataFrame, work: pd.DataFrame) -> Ints:
    """For each copy to the host, the first later sync that waits for its stream."""
    return _next(work[work["brings"]], lanes)["call"].to_numpy()


def _next(work: pd.DataFrame, lanes: pd.DataFrame) -> pd.DataFrame:
    """For each row of work, the first sync that waits for it; rows without one are omitted."""
    if not len(work) or not len(lanes):
        return pd.DataFrame({"call": [], "lane": []}, dtype="int64")
    found = pd.merge_asof(
        work[["lane", "start"]], lanes[["call", "lane", "until"]],
        left_on="start", right_on="until", by="lane", direction="forward",
    )  # fmt: skip
    return found.dropna(subset=["call"]).astype({"call": "int64"})


def _mark_orders(causality: Causality, table: pd.DataFrame, lanes: pd.DataFrame, work: pd.DataFrame) -> None:
    """For each stream, the syncs after which another stream gets work before the next sync, if they tell the host more
    than the last remaining sync before them about the stream's own work.
    """
    activities = causality.work_frame
    ordered = causality.segments.ordered.frame()
    lane_of = activities["lane"].to_numpy()
    by_events = set(zip(lane_of[ordered["before"]], lane_of[ordered["after"]], strict=True))
    described = activities.drop_duplicates("lane").set_index("lane")
    process, stream = (described[column].to_dict() for column in ("process", "stream"))
    needed = table.loc[table["reason"] != "", "call"]
    rows = {int(lane): work[work["lane"] == lane] for lane in np.unique(work["lane"])}
    for lane, own in rows.items():
        syncs = lanes[lanes["lane"] == lane]
        start = syncs["start"].to_numpy()
        until_next = np.append(start[1:], NEVER)
        other = np.full(len(syncs), MISSING)
        for another, given in rows.items():
            if process[another] != process[lane] or (lane, another) in by_events:
                continue
            behind = np.append(given.loc[~given["call"].isin(own["call"]), "start"].to_numpy(), NEVER)
            other[behind[np.searchsorted(behind, start)] < until_next] = another
        covered = np.searchsorted(own["start"], syncs["until"])
        stays = syncs["call"].isin(needed).to_numpy() | (other >= 0)
        before = np.append(0, np.maximum.accumulate(np.where(stays, covered, 0)))[:-1]
        alone = (other >= 0) & (covered > before)
        for another in map(int, np.unique(other[alone])):
            reason = ORDERS.format(stream[lane], stream[another])
            _mark(table, syncs.loc[alone & (other == another), "call"].to_numpy(), reason)


def _mark_reuse(table: pd.DataFrame, lanes: pd.DataFrame, sends: pd.DataFrame) -> None:
    """The last sync of a copy's stream in its step, if there is no needed sync between the copy and the end of the
    step."""
    is_needed = lanes["call"].isin(table.loc[table["reason"] != "", "call"])
    found = pd.merge_asof(
        sends[["lane", "start"]], lanes.loc[is_needed, ["lane", "until", "start"]].rename(columns={"start": "told"}),
        left_on="start", right_on="until", by="lane", direction="forward",
    )  # fmt: skip
    step_of = table.set_index("call")["at"]
    unguarded = sends[~(found["told"].to_numpy() < sends["until"].to_numpy())]
    last = lanes.assign(at=lanes["call"].map(step_of)).drop_duplicates(["at", "lane"], keep="last")
    _mark(table, unguarded[["at", "lane"]].merge(last, on=["at", "lane"])["call"].to_numpy(), REUSES)
