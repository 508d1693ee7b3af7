"""Waits without a sync: a host function of the driver that opens a lock, as XLA waits, or memory that the device writes
and the host reads until it changes, as TensorRT-LLM and many loops do.

Nothing records such a wait, but the flow of data shows it: the host launches a step only after the result of the one
before has come, in nearly every step. A host that is slower than its device does so as well; so either host functions
are put behind the work of the steps, or the thread makes no call before the result comes, for a good part of each step
and longer than after it. Then a wait shows in that the next launch is later by as much as the result is; code of the
host's own takes no longer where the device does. Where the device's work always takes as long, neither shows, and it is
unknown whether the host waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tracer.analysis.calls import Calls, host_calls, in_order
from tracer.analysis.passes import MOST
from tracer.analysis.step_work import activity_steps
from tracer.analysis.steps import Steps
from tracer.analysis.turns import CONSTANT
from tracer.model.calls import BLOCKING_COPY, CALLBACK, HOST_FUNCTION, LAUNCHES, POLL, SYNC
from tracer.model.columns import NEVER, Columns, among, grouped, joined
from tracer.model.intervals import Ints
from tracer.model.tables import Api
from tracer.model.trace import Trace, stated_error

BY_HOST_FUNCTION: Final = "host function"
UNSEEN: Final = "no CUDA call"
UNKNOWN: Final = "unknown"
_MOST_AHEAD: Final = 2
"""Steps by which the awaited result may be older: hosts read it one step late, or two with a pipeline."""
_FEWEST: Final = 8
"""Steps, for a habit."""
_LEAST: Final = 0.25
"""Of the period of a step, for which the host makes no call before the result."""


_OUTLIERS: Final = 8.0
"""Times the median deviation, for steps with a pause of the program."""
_NORMAL: Final = 1.96


@dataclass(frozen=True)
class WaitsElsewhere:
    """How the host waits for the results of its steps without a sync.

    Attributes:
        how: `BY_HOST_FUNCTION`; `UNSEEN`: a lock, or memory that the device writes; or `UNKNOWN`: whether it waits at
            all, or its own code takes so long.
        lag: as in `syncs.FetchLag`: 0 if the host waits for the result of the step that it launched last.
        share: of the steps whose next one is launched after the result.
        steps: their number.
    """

    how: str
    lag: int
    share: float
    steps: int


def waits_elsewhere(trace: Trace, steps: Steps, calls: Calls, at: Ints) -> WaitsElsewhere | None:
    """How the host waits without a sync; None if it waits by calls, or for nothing.

    Args:
        calls: of the hosts, with polling loops; `at` are the positions of their steps, or -1.
    """
    count, table = len(steps), steps.rows
    inside = at >= 0
    waiting = np.bincount(at[inside & among(calls.letter, [SYNC, BLOCKING_COPY, POLL])], minlength=count)
    if np.mean(waiting > 0) > 1 - CONSTANT:
        return None
    own = inside & (calls.process == table.process[at]) & (calls.thread == table.thread[at])
    launched = np.full(count, NEVER)
    launches = own & among(calls.letter, LAUNCHES)
    np.minimum.at(launched, at[launches], calls.start[launches])
    result = _results(trace, steps)
    put = np.bincount(at[inside & (calls.letter == HOST_FUNCTION)], minlength=count)
    behind = _returned(trace, steps, result) if np.mean(put > 0) >= CONSTANT else None
    order = np.lexsort((table.start, table.group))
    group, known = table.group[order], (result > -NEVER)[order]
    for lag in range(_MOST_AHEAD + 1):
        one, other = order[: -1 - lag], order[1 + lag :]
        pairs = (group[: -1 - lag] == group[1 + lag :]) & known[: -1 - lag] & (launched[other] < NEVER)
        one, other = one[pairs], other[pairs]
        if len(one) < max(_FEWEST, MOST * count):
            return None
        share = float(np.mean(launched[other] >= result[one]))
        if share < CONSTANT:
            continue
        if lag == 0 and behind is not None:
            done = float(np.mean(launched[other] >= behind[one]))
            if done >= CONSTANT:
                return WaitsElsewhere(BY_HOST_FUNCTION, lag, done, len(one))
        waited, paused = _paused(trace, table.process[one], table.thread[one], result[one])
        usual, period = float(np.median(waited)), float(np.median(launched[other] - launched[one])) / (lag + 1)
        if usual >= MOST * np.median(paused) and usual >= _LEAST * period:
            follows = (
                None if behind is not None else _follows(_busy(trace, steps)[one], launched[other] - launched[one])
            )
            how = BY_HOST_FUNCTION if behind is not None else follows
            return WaitsElsewhere(how, lag, share, len(one)) if how else None
        return None
    return None


def _busy(trace: Trace, steps: Steps) -> Ints:
    """How long the device computes for each step, ns: what does not depend on when the host launches it."""
    work, busy = trace.compute(), np.zeros(len(steps), np.int64)
    at = activity_steps(trace, steps, work)
    np.add.at(busy, at[at >= 0], (work.end - work.start)[at >= 0])
    return busy


def _follows(busy: Ints, period: Ints) -> str | None:
    """Whether the next launch follows the result: `UNSEEN` if it is later by more than half of what the device takes
    longer, None if by less, `UNKNOWN` where the interval of the regression's slope (95 %) contains a half."""
    took, until = busy.astype(float), period.astype(float)
    usual = np.abs(until - np.median(until)) <= _OUTLIERS * max(np.median(np.abs(until - np.median(until))), 1.0)
    took, until = took[usual] - took[usual].mean(), until[usual] - until[usual].mean()
    spread = float((took**2).sum())
    if len(took) < _FEWEST or not spread:
        return UNKNOWN
    slope = float((took * until).sum()) / spread
    error = _NORMAL * float(np.sqrt(((until - slope * took) ** 2).sum() / (len(took) - 2) / spread))
    return UNSEEN if slope - error > 0.5 else None if slope + error < 0.5 else UNKNOWN


class HostFunctionWaits(Columns):
    """Waits for host functions: process and thread that waits, start and end, ns."""

    process: Ints
    thread: Ints
    start: Ints
    end: Ints


def waits_for_host_functions(trace: Trace, steps: Steps) -> HostFunctionWaits:
    """The times in which the threads of the steps make no call until a host function has returned, if they wait for
    these at all (`waits_elsewhere`), and the runs of the functions are recorded."""
    table, none = steps.rows, np.zeros(0, np.int64)
    nothing = HostFunctionWaits(none, none, none, none)
    if not len(_runs(trace.api)):
        return nothing
    calls = host_calls(trace)
    elsewhere = waits_elsewhere(trace, steps, calls, steps.of(calls.start, calls.process, calls.thread))
    if elsewhere is None or elsewhere.how != BY_HOST_FUNCTION:
        return nothing
    result, waits = _results(trace, steps), []
    returned = _returned(trace, steps, result)
    for (process, thread), rows in grouped(table.process, table.thread):
        start, end = _calls_of(trace, process, thread)
        until = returned[rows][returned[rows] > result[rows]]
        since = np.append(end, NEVER)[np.searchsorted(start, until) - 1]
        until, since = until[since < until], since[since < until]
        same = np.zeros(len(until), np.int64)
        waits.append(HostFunctionWaits(same + process, same + thread, since, until))
    return joined(waits)


def _results(trace: Trace, steps: Steps) -> Ints:
    """When the last work of each step ended on a device, ns: its copies to the host if it has any; -`NEVER` for none.

    A recorder may timestamp the end later than the host saw it; its error is taken off.
    """
    ended = np.full((2, len(steps)), -NEVER)
    to_host = trace.memcpys[trace.memcpys.kind.rows("DtoH")]
    tables: tuple[Any, ...] = (to_host, trace.compute())
    for row, work in zip(ended, tables, strict=True):
        at = activity_steps(trace, steps, work)
        np.maximum.at(row, at[at >= 0], work.end[at >= 0])
    latest = np.where(ended[0] > -NEVER, ended.max(axis=0), ended[1])
    return latest - stated_error(trace)


def _returned(trace: Trace, steps: Steps, result: Ints) -> Ints:
    """When the first host function behind each step's result had returned; when the result had come if that is not
    recorded."""
    runs, first = _runs(trace.api), np.full(len(steps), NEVER)
    step = steps.of(runs.start, runs.process, np.full(len(runs), steps.rows.thread[0]))
    behind = (step >= 0) & (runs.end >= result[step])
    np.minimum.at(first, step[behind], runs.end[behind])
    return np.where(first < NEVER, first, result)


def _runs(api: Api) -> Api:
    """The runs of host functions on the driver's threads."""
    return api[api.name.chosen(lambda name: name.endswith(CALLBACK))]


def _paused(trace: Trace, process: Ints, thread: Ints, result: Ints) -> tuple[Ints, Ints]:
    """How long the thread has made no call when each result comes, and from call to call then; 0 and 1 if it comes
    during a call, ns."""
    waited, paused = np.zeros(len(result), np.int64), np.ones(len(result), np.int64)
    for key, rows in grouped(process, thread):
        start, end = _calls_of(trace, *key)
        last = np.searchsorted(start, result[rows], side="right") - 1
        before, after = np.append(end, -NEVER)[last], np.append(start, NEVER)[last + 1]
        during = (before <= result[rows]) & (after < NEVER) & (last >= 0)
        waited[rows[during]] = (result[rows] - before)[during]
        paused[rows[during]] = (after - before)[during]
    return waited, paused


def _calls_of(trace: Trace, process: int, thread: int) -> tuple[Ints, Ints]:
    """The starts of a thread's calls, and the latest end up to each."""
    api = trace.api
    order = in_order(trace, (api.process == process) & (api.thread == thread))
    return api.start[order], np.maximum.accumulate(api.end[order])
