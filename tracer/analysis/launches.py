"""The launch calls of one host thread: what each launched, for how long the device computed for it, what led to it.

The calls between two launches are the *slot* of the second one. A launch's symbol stands for what it launched: the
graph, or the kernel's name together with its slot's inputs, each with the device. Where a trace does not say which
graph, the inputs tell graphs apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.calls import BLOCKING_COPY, COPY, GRAPH_LAUNCH, LAUNCH, SYNC, among, by_thread, match_rows, text_of
from tracer.schema import MISSING
from tracer.trace import Trace

MIN_USES: Final = 3
"""A graph launched less often says nothing about repetition: an engine that builds a new one for each step."""

_TO_HOST: Final = "d"


@dataclass(frozen=True)
class Launches:
    """The launches of a thread, in order; arrays have one entry per launch.

    Attributes:
        calls: the thread's host calls, see `calls.host_calls`.
        rows: positions in `calls` of the launches.
        symbol: numbers what is launched, see the module.
        coarse: numbers kind of launch, device and inputs alone.
        graph: whether a graph is launched.
        begins: whether a compute begins: a graph launch, or a kernel launch that does not directly follow another.
        device: that computes, MISSING if unknown.
        busy: ns that the device computes for it.
        wait: 2 where the host fetches from the device and then waits in the slot, and for the first launch of all; 1
            where it only waits, else 0.
        inputs: copies to the device in the slot.
    """

    calls: pd.DataFrame
    rows: NDArray[np.int64]
    symbol: NDArray[np.int64]
    coarse: NDArray[np.int64]
    graph: NDArray[np.bool_]
    begins: NDArray[np.bool_]
    device: NDArray[np.int64]
    busy: NDArray[np.int64]
    wait: NDArray[np.int64]
    inputs: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def main_device(self) -> int:
        """The device that computes longest for this thread."""
        return int(self.device[np.argmax(self.busy)]) if len(self) else MISSING


def launches_by_thread(trace: Trace, calls: pd.DataFrame) -> Iterator[Launches]:
    """The launches of every thread that launches, the thread with most launches first.

    Args:
        trace: the recording.
        calls: its host calls, or some of them.
    """
    activity = _first_activities(trace, calls)
    letters = np.where(calls["kind"].to_numpy() == "DtoH", _TO_HOST, calls["letter"].to_numpy(dtype="U1"))
    threads = [(rows, among(letters[rows], [LAUNCH, GRAPH_LAUNCH])) for _, _, rows in by_thread(calls)]
    for rows, launching in sorted(threads, key=lambda thread: -int(thread[1].sum())):
        if launching.any():
            yield _launches(calls.iloc[rows].reset_index(drop=True), letters[rows], activity.iloc[rows], launching)


def _first_activities(trace: Trace, calls: pd.DataFrame) -> pd.DataFrame:
    """Per call: code (of what it launched first; -1 nothing known), device, busy (ns, of all that it launched)."""
    kernels, graphs = trace["kernels"], trace["graph_launches"]
    names = len(kernels["name"].cat.categories)
    graph = np.concatenate((kernels["graph"].to_numpy(), graphs["graph"].to_numpy()))
    code = np.concatenate((kernels["name"].cat.codes.to_numpy().astype(np.int64), np.full(len(graphs), -1)))
    code = np.where(graph != MISSING, names + graph, code)
    columns = ["process", "correlation", "device", "start", "end"]
    activities = pd.concat([kernels[columns], graphs[columns]], ignore_index=True)
    rows = match_rows(calls, activities)
    known = np.flatnonzero(rows >= 0)[::-1]  # backwards, so that the first of a call is written last
    result = pd.DataFrame({"code": np.full(len(calls), -1), "device": np.full(len(calls), MISSING), "busy": 0})
    result.loc[:, "code"] = _scatter(len(calls), rows[known], code[known])
    result.loc[:, "device"] = _scatter(len(calls), rows[known], activities["device"].to_numpy()[known])
    spent = (activities["end"] - activities["start"]).to_numpy()[known]
    result["busy"] = np.bincount(rows[known], weights=spent, minlength=len(calls)).astype(np.int64)
    result["is_graph"] = result["code"] >= names
    return result


def _scatter(length: int, at: NDArray[np.int64], values: NDArray[np.int64]) -> NDArray[np.int64]:
    result = np.full(length, -1, dtype=np.int64)
    result[at] = values
    return result


def _launches(
    calls: pd.DataFrame, letters: NDArray[np.str_], activity: pd.DataFrame, launching: NDArray[np.bool_]
) -> Launches:
    at = np.flatnonzero(launching)
    slot, words = _slots(letters, at)
    by_graph = letters[at] == GRAPH_LAUNCH
    code, device, busy = (activity[column].to_numpy()[at] for column in ("code", "device", "busy"))
    of_graph = activity["is_graph"].to_numpy()[at]
    code = np.where(of_graph & (np.bincount(code + 1)[code + 1] < MIN_USES), -1, code)
    done = np.concatenate(([0], np.cumsum(among(letters, [COPY, BLOCKING_COPY]))))
    inputs = np.diff(done[at], prepend=0)
    wait = np.array([_wait(word) for word in words], dtype=np.int64)[slot]
    wait[0] = 2
    parts = [_fed(word) or (SYNC if _wait(word) else "") for word in words]
    fed = _number(np.unique(parts, return_inverse=True)[1][slot], inputs)
    like_first = np.flatnonzero((code[1:] == code[0]) & (by_graph[1:] == by_graph[0]) & (device[1:] == device[0])) + 1
    if not inputs[0] and len(like_first):  # nothing can precede the first launch, so it counts as the others do
        fed[0] = np.bincount(fed[like_first]).argmax()
    return Launches(
        calls=calls,
        rows=at,
        symbol=_number(code + 1, device + 1, by_graph, np.where(of_graph & (code >= 0), 0, fed + 1)),
        coarse=_number(device + 1, by_graph, fed),
        graph=by_graph,
        begins=by_graph | (slot != 0) | (np.arange(len(at)) == 0),
        device=device,
        busy=busy,
        wait=wait,
        inputs=inputs,
    )


def _slots(letters: NDArray[np.str_], at: NDArray[np.int64]) -> tuple[NDArray[np.int64], list[str]]:
    """The letters of each launch's slot without events and waits, repeats of a letter written once: numbers of words.

    Word 0 is "".
    """
    text = text_of(letters)
    before = np.concatenate(([0], at[:-1] + 1))
    numbers, short = {"": 0}, {"": 0}
    slots = np.zeros(len(at), dtype=np.int64)
    some = np.flatnonzero(at > before)
    for i, begin, end in zip(some.tolist(), before[some].tolist(), at[some].tolist(), strict=True):
        slot = text[begin:end]
        if slot not in short:
            short[slot] = numbers.setdefault(re.sub(r"(.)\1+", r"\1", re.sub("[ew]", "", slot)), len(numbers))
        slots[i] = short[slot]
    return slots, list(numbers)


def _fed(slot: str) -> str:
    """The part of a slot that brings inputs: from the first copy that is not to the host."""
    found = re.search(f"[{COPY}{BLOCKING_COPY}].*", slot)
    return found[0] if found else ""


def _wait(slot: str) -> int:
    if re.search(f"{_TO_HOST}.*[{SYNC}{BLOCKING_COPY}]", slot):
        return 2
    return int(SYNC in slot or BLOCKING_COPY in slot or _TO_HOST in slot)


def _number(*columns: NDArray[np.int64] | NDArray[np.bool_]) -> NDArray[np.int64]:
    """One number per row, equal where all columns are; these hold small numbers from 0."""
    result = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        result = result * (int(column.max()) + 1) + column
    return np.asarray(np.unique(result, return_inverse=True)[1], dtype=np.int64)
