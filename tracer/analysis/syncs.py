"""Sync inventory: which host synchronisations, copies and launches each token step makes, and what they wait for."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.calls import BLOCKING_COPY, COPY, GRAPH_LAUNCH, LAUNCH, SYNC, among, host_calls
from tracer.analysis.signature import classify, compress, strategies_followed
from tracer.analysis.tokens import Steps, was_traced
from tracer.analysis.waits import last_ended
from tracer.errors import EmptyTraceError
from tracer.trace import Trace


@dataclass(frozen=True)
class SyncReport:
    """What the token steps of a trace do between host and device.

    Attributes:
        strategy: class of the steps (sccc, saaas, aaas, aaag, ggg or mixed); `share` of the input copies follow it.
        signature: the commonest step's calls, compressed; `signature_share` of the steps have it.
        syncs_per_token, copies_per_token, launches_per_token: host calls of each kind, median over the steps. The sync
            behind a blocking copy's asynchronous part counts, being a call of its own.
        counts: one row per step: step start (ns) and how many syncs, copies and launches it makes.
        calls: one row per call inside a step: step start end process thread correlation name letter stream kind, shown
            (its letter in the signature, "" where it has none of its own), and for syncs waited_for (name of the last
            activity it waited for, "" if the stream was idle already) and waited_until (end of that activity, ns;
            MISSING if idle).
    """

    strategy: str
    share: float
    signature: str
    signature_share: float
    steps: int
    syncs_per_token: float
    copies_per_token: float
    launches_per_token: float
    counts: pd.DataFrame
    calls: pd.DataFrame

    def inventory(self) -> pd.DataFrame:
        """The syncs of a step in their order: one row per position, over all steps that have it.

        Columns: position (1, 2, ...), name, stream, steps (that have it), median_us, max_us, waiting_share (of the
        steps in which it found the device still busy), waits_for (the commonest activity it waited for).
        """
        syncs = self.calls[self.calls["letter"] == SYNC].copy()
        syncs["position"] = syncs.groupby("step").cumcount() + 1
        syncs["us"] = (syncs["end"] - syncs["start"]) / 1e3
        syncs["waiting"] = syncs["waited_for"] != ""
        groups = syncs.groupby("position")
        table = groups.agg(
            name=("name", _commonest),
            stream=("stream", _commonest),
            steps=("step", "size"),
            median_us=("us", "median"),
            max_us=("us", "max"),
            waiting_share=("waiting", "mean"),
        )
        busy = syncs[syncs["waiting"]].groupby("position")["waited_for"].agg(_commonest)
        table["waits_for"] = busy.reindex(table.index).fillna("")
        return table.reset_index()


def _commonest(values: pd.Series) -> object:
    return values.mode().iloc[0]


def sync_report(trace: Trace, steps: Steps) -> SyncReport:
    """Count, classify and describe the host calls of every step.

    Raises:
        EmptyTraceError: the trace has no API calls inside the steps.
    """
    calls = host_calls(trace)
    at = steps.of(calls["start"].to_numpy(), calls["process"].to_numpy(), calls["thread"].to_numpy())
    calls["shown"] = blocking_pairs(calls)
    calls["at"] = at
    calls = calls[at >= 0].reset_index(drop=True)
    leads = ~calls.duplicated(["at", "process", "thread"]) & (calls["shown"] == "") & (calls["letter"] == LAUNCH)
    calls.loc[leads, "shown"] = LAUNCH  # a run of launches does not reach into the next step
    calls["step"] = steps.table["step"].to_numpy()[calls["at"]]
    if not len(calls):
        raise EmptyTraceError(f"no CUDA API call lies inside a token step; {was_traced('the API', trace)}")
    calls["input"] = _input_letters(calls)
    words = _letters_by_step(calls, len(steps), "shown")
    followed: Counter[str] = Counter()
    for word, times in _letters_by_step(calls, len(steps), "input").items():
        for name, count in strategies_followed(word).items():
            followed[name] += count * times
    strategy, share = classify(dict(followed))
    word, times = words.most_common(1)[0]
    letters = calls["letter"].to_numpy()
    per_step = {
        kind: np.bincount(calls["at"][among(letters, kinds)], minlength=len(steps))
        for kind, kinds in (("syncs", [SYNC]), ("copies", [COPY, BLOCKING_COPY]), ("launches", [LAUNCH, GRAPH_LAUNCH]))
    }
    calls["waited_for"], calls["waited_until"] = _waited_for(trace, calls)
    return SyncReport(
        strategy=strategy,
        share=share,
        signature=compress(word),
        signature_share=times / len(steps),
        steps=len(steps),
        syncs_per_token=float(np.median(per_step["syncs"])),
        copies_per_token=float(np.median(per_step["copies"])),
        launches_per_token=float(np.median(per_step["launches"])),
        counts=steps.table[["step", "start"]].assign(**per_step),
        calls=calls.drop(columns=["at", "input"]),
    )


def blocking_pairs(calls: pd.DataFrame) -> NDArray[np.str_]:
    """The letters as a signature shows them.

    An asynchronous copy alone between syncs, its own stream's sync directly behind it, blocks: the pair is shown as
    one `c` (the sync's own letter becomes empty). Graph launches are `g`. Each run of kernel launches is one `g`.
    """
    letters = calls["letter"].to_numpy().astype("U1")
    stream = calls["stream"].to_numpy()
    thread = calls.groupby(["process", "thread"], sort=False).ngroup().to_numpy()
    shown = letters.copy()
    if len(shown) == 0:
        return shown
    same_thread = thread[1:] == thread[:-1]
    follows_sync = np.append(True, ~same_thread | (letters[:-1] == SYNC))
    own_sync_next = np.append(
        same_thread & (letters[1:] == SYNC) & ((stream[1:] == stream[:-1]) | (stream[1:] < 0) | (stream[:-1] < 0)),
        False,
    )
    blocks = (letters == COPY) & follows_sync & own_sync_next
    shown[blocks] = BLOCKING_COPY
    shown[1:][blocks[:-1]] = ""
    run = np.append(False, same_thread & (letters[1:] == LAUNCH) & (letters[:-1] == LAUNCH))
    shown[run] = ""
    shown[letters == GRAPH_LAUNCH] = LAUNCH
    return shown


def _input_letters(calls: pd.DataFrame) -> NDArray[np.str_]:
    """The shown letters as the class sees them: copies that bring no input (to the host, or inside the device) do not
    count, but one that blocks still synchronises."""
    letters = calls["shown"].to_numpy(dtype="U1").copy()
    no_input = calls["kind"].isin(["DtoH", "DtoD"]).to_numpy()
    letters[no_input & (letters == COPY)] = ""
    letters[no_input & (letters == BLOCKING_COPY)] = SYNC
    return letters


def _letters_by_step(calls: pd.DataFrame, steps: int, column: str) -> Counter[str]:
    """How often each distinct string of letters occurs."""
    ordered = calls.sort_values(["at", "start"], kind="stable")
    letters = ordered[column].to_numpy(dtype="U1")
    bounds = np.searchsorted(ordered["at"].to_numpy(), np.arange(steps + 1))
    return Counter("".join(letters[a:b]) for a, b in pairwise(bounds))


def _waited_for(trace: Trace, calls: pd.DataFrame) -> tuple[NDArray[np.object_], NDArray[np.int64]]:
    """Per call, for syncs, the last activity of its stream that ended inside it: (name, end); ("", -1) for none.

    A sync whose stream is unknown (a device synchronisation) may have waited for any stream of its process.
    """
    names = np.full(len(calls), "", dtype=object)
    until = np.full(len(calls), -1, dtype=np.int64)
    is_sync = np.flatnonzero(calls["letter"] == SYNC)
    activities = trace.activities()[["process", "stream", "end", "name"]]
    last = last_ended(activities, calls.iloc[is_sync])
    waited = last >= 0
    names[is_sync[waited]] = np.asarray(activities["name"].array[last[waited]], dtype=object)
    until[is_sync[waited]] = activities["end"].to_numpy()[last[waited]]
    return names, until
