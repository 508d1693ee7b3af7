"""Token steps of engines that mark none: the repeating sequence of host calls on the thread that launches.

Passes:
1. cut the thread's calls into segments, each ending with one compute (a graph launch, or a run of kernel launches);
2. number the segments by their letters: equal segments get equal numbers;
3. find the period, in segments, that repeats over most of the recording (k graphs a step repeat with period k);
4. keep the segments that repeat (warm-up, capture and shutdown do not);
5. move each cut from behind the compute to where the next step's inputs begin: the logits are read in the old step.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.calls import BLOCKING_COPY, COPY, EVENT, GRAPH_LAUNCH, LAUNCH, SYNC, WAIT, by_thread, host_calls
from tracer.intervals import union
from tracer.trace import Trace

MAX_COMPUTES_PER_STEP = 64
MIN_STEPS = 3


def repeating_steps(trace: Trace, window: pd.DataFrame | None = None) -> tuple[pd.DataFrame, str, float] | None:
    """Find steps from the repeating call sequence.

    Args:
        trace: the recording; it needs the api table.
        window: NVTX rows; only calls inside them are looked at.

    Returns:
        (table as in `Steps`, description, confidence), or None where nothing repeats at least `MIN_STEPS` times.
    """
    calls = host_calls(trace)
    if window is not None:
        calls = calls[within_any(calls, window)]
    calls = _launching_thread(calls)
    if not len(calls):
        return None
    computes = compute_ends(calls["letter"].to_numpy())
    keys = segment_keys(calls["letter"].to_numpy(), computes)
    period = find_period(keys)
    if period is None:
        return None
    runs = repeating_runs(keys, period)
    tables = [_steps_of_run(calls, computes, first, last, period, group) for group, (first, last) in enumerate(runs)]
    table = pd.concat(tables, ignore_index=True)
    table["step"] = np.arange(len(table))
    per_step = int(np.median(np.diff(np.append(table.pop("first_call"), len(calls))[:-1]))) if len(table) > 1 else 0
    thread = int(calls["thread"].iloc[0])
    detail = f"a sequence of {per_step} calls that repeats on thread {thread}"
    return table, detail, float(sum(last - first for first, last in runs) / len(keys))


def within_any(rows: pd.DataFrame, windows: pd.DataFrame) -> NDArray[np.bool_]:
    """Which rows lie, from start to end, inside the union of the windows."""
    starts, ends = union(windows["start"], windows["end"])
    at = np.searchsorted(starts, rows["start"], side="right") - 1
    return np.asarray((at >= 0) & (rows["end"] <= ends[at]))


def _launching_thread(calls: pd.DataFrame) -> pd.DataFrame:
    """The calls of the thread that launches most."""
    launches = calls[calls["letter"].isin([GRAPH_LAUNCH, LAUNCH])]
    if not len(launches):
        return launches
    process, thread, _ = max(by_thread(launches), key=lambda rows: len(rows[2]))
    return calls[(calls["process"] == process) & (calls["thread"] == thread)].reset_index(drop=True)


def compute_ends(letters: NDArray[np.str_]) -> NDArray[np.int64]:
    """Pass 1: the position of the last call of every compute.

    A graph launch is a compute; kernel launches with nothing but events and waits between them are one together.
    """
    positions = np.flatnonzero((letters != EVENT) & (letters != WAIT))
    plain = letters[positions]
    run_goes_on = np.append((plain[:-1] == LAUNCH) & (plain[1:] == LAUNCH), False)
    return np.asarray(positions[((plain == LAUNCH) & ~run_goes_on) | (plain == GRAPH_LAUNCH)], dtype=np.int64)


def segment_keys(letters: NDArray[np.str_], computes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Pass 2: one number per segment, equal where the segments' letters are equal.

    Kernel-launch runs count as one letter, events and waits not at all, so runs of different length may still match.
    """
    text = "".join(letters)
    bounds = np.concatenate(([0], computes + 1))
    segments = [
        _squeeze(text[a:b]) for a, b in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
    ]  # one short string per step
    return np.asarray(pd.factorize(np.array(segments, dtype=object))[0], dtype=np.int64)


def _squeeze(segment: str) -> str:
    plain = segment.replace(EVENT, "").replace(WAIT, "")
    body = plain.rstrip(LAUNCH)
    return body + LAUNCH if len(body) < len(plain) else plain


def find_period(keys: NDArray[np.int64]) -> int | None:
    """Pass 3: the shortest period whose matches come within 5 % of the best one's, or None if too little repeats."""
    longest = min(MAX_COMPUTES_PER_STEP, len(keys) // MIN_STEPS)
    matches = {k: int(np.count_nonzero(keys[k:] == keys[:-k])) for k in range(1, longest + 1)}
    best = max(matches.values(), default=0)
    good = [k for k, count in matches.items() if count >= 0.95 * best and count >= (MIN_STEPS - 1) * k]
    return good[0] if good else None


def repeating_runs(keys: NDArray[np.int64], period: int) -> list[tuple[int, int]]:
    """Pass 4: [first, last) segments of every stretch that repeats at least `MIN_STEPS` times, whole periods only.

    The longest stretch is decoding; others count only if they are made of the same segments (the layers of one eager
    token repeat too, and are no tokens).
    """
    same = np.concatenate(([False], keys[period:] == keys[:-period], [False]))
    edges = np.flatnonzero(np.diff(same.astype(np.int8)))
    stretches = [(int(a), int(b) + period) for a, b in edges.reshape(-1, 2)]
    longest = max(stretches, key=lambda stretch: stretch[1] - stretch[0])
    alphabet = keys[slice(*longest)]
    alike = [(a, b) for a, b in stretches if np.isin(keys[a:b], alphabet).all() and (b - a) // period >= MIN_STEPS]
    return [(a, a + (b - a) // period * period) for a, b in alike]


def _steps_of_run(
    calls: pd.DataFrame, computes: NDArray[np.int64], first: int, last: int, period: int, group: int
) -> pd.DataFrame:
    """Pass 5 for one stretch: its steps, each from its inputs to the next one's."""
    heads = np.arange(first, last, period)  # the segment in which each step's inputs are
    after_compute = np.where(heads > 0, computes[heads - 1] + 1, 0)
    offset = inputs_offset(calls.iloc[after_compute[-1] : computes[heads[-1]] + 1])
    first_call = after_compute + offset
    tail = calls["letter"].to_numpy()
    end_call = min(int(computes[last - 1]) + offset, len(calls) - 1)  # the last step reads its logits like the others
    expected = tail[after_compute[-1] : first_call[-1]]
    while end_call > computes[last - 1] and not np.array_equal(
        tail[computes[last - 1] + 1 : end_call + 1], expected[: end_call - computes[last - 1]]
    ):
        end_call -= 1
    starts = calls["start"].to_numpy()[first_call]
    return pd.DataFrame(
        {
            "start": starts,
            "end": np.append(starts[1:], calls["end"].to_numpy()[end_call]),
            "process": calls["process"].iloc[0],
            "thread": calls["thread"].iloc[0],
            "group": group,
            "first_call": first_call,
        }
    )


def inputs_offset(segment: pd.DataFrame) -> int:
    """How many calls of a segment still belong to the step before: those that read its logits.

    The inputs begin with the first copy to the device (or, without copies, the launch). Of two or more syncs directly
    before it the last one guards the write and belongs to the inputs; a single one waits for the logits.
    """
    letters = segment["letter"].to_numpy()
    copies = np.isin(letters, [COPY, BLOCKING_COPY])
    towards_host = copies & segment["kind"].isin(["DtoH"]).to_numpy()
    inputs = np.flatnonzero((copies & ~towards_host) | np.isin(letters, [LAUNCH, GRAPH_LAUNCH]))
    begin = int(inputs[0])
    syncs = 0
    while begin - syncs > 0 and letters[begin - syncs - 1] == SYNC:
        syncs += 1
    has_copy = bool(copies[begin])
    return begin - 1 if syncs >= 2 and has_copy else begin
