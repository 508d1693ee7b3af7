"""What the device computes for each token step, and the rates of the steps as recorded: steps per second of wall-clock
time, and tokens per step.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.steps import SAME_RATE, Steps
from tracer.model import run_json
from tracer.model.intervals import covered
from tracer.model.rows import LANE, grouped, match_rows, runs_of
from tracer.model.schema import MISSING
from tracer.model.trace import Trace

SPAN_COLUMNS: Final = ["step", "device", "group", "start", "end", "correlation", "process"]
_FIRST: Final = ["device", "at", "start", "correlation", "process"]  # of the first compute of a step on a device
_HOST: Final = ["process", "thread"]
_MOST_HOSTS: Final = 4  # that are named


def activity_steps(
    trace: Trace, steps: Steps, activities: pd.DataFrame, rows: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """For each device activity, the position in `steps.table` of the step that launched it, or -1.

    An activity belongs to the step that contains its call, however late it executed. Its own start decides only if the
    trace lacks the call, and not for what was launched before the recording began, which no step launched. `rows` are
    the positions of their calls in `trace["api"]` (or -1), if available.
    """
    api = trace["api"]
    rows = match_rows(api, activities) if rows is None else rows
    of_call = steps.of(*(api[column].to_numpy() for column in ("start", "process", "thread")))
    at = np.append(of_call, -1)[rows]
    alone = np.flatnonzero(rows < 0)
    if len(alone):
        processes = activities["process"].to_numpy()[alone]
        first = steps.table.drop_duplicates("process").set_index("process")["thread"]
        threads = np.full(len(alone), first.iloc[0])
        if len(first) > 1:
            threads = first.reindex(processes, fill_value=MISSING).to_numpy(copy=True)
        at[alone] = steps.of(activities["start"].to_numpy()[alone], processes, threads)
        at[_launched_before(activities, rows < 0)] = -1
    return np.asarray(at, dtype=np.int64)


def _launched_before(activities: pd.DataFrame, is_alone: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which activities were launched before the recording began: all those without a call (`is_alone`) on a stream
    where none of them starts behind one with a call. A stream executes in the order of the calls."""
    if is_alone.all():
        return np.zeros(len(activities), dtype=bool)
    stream = activities.groupby(LANE, sort=False, observed=True).ngroup().to_numpy()
    start = activities["start"].to_numpy()
    first = np.full(stream.max() + 1, np.iinfo(np.int64).min)  # of a stream without any call
    launched = pd.Series(start[~is_alone]).groupby(stream[~is_alone]).min()
    first[launched.index] = launched
    last = pd.Series(start[is_alone]).groupby(stream[is_alone]).max()
    is_before = np.zeros(len(first), dtype=bool)
    is_before[last.index] = last.to_numpy() < first[last.index]
    return np.asarray(is_alone & is_before[stream], dtype=bool)


def all_compute(trace: Trace, steps: Steps) -> pd.DataFrame:
    """All compute without collectives: kernels and whole graphs. `at` is the position of the step that launched it, or
    -1."""
    compute = trace.compute().frame()
    return compute.assign(at=activity_steps(trace, steps, compute))


def step_compute(trace: Trace, steps: Steps) -> pd.DataFrame:
    """The part of `all_compute` that the steps launched."""
    return of_steps(all_compute(trace, steps))


def of_steps(every: pd.DataFrame) -> pd.DataFrame:
    """The part of `all_compute` that the steps launched."""
    inside = (every["at"] >= 0).to_numpy()
    return every if inside.all() else every[inside].reset_index(drop=True)


def step_spans(trace: Trace, steps: Steps, compute: pd.DataFrame | None = None) -> pd.DataFrame:
    """The start of the first and the end of the last compute of every step on every device.

    Args:
        trace: the recording.
        steps: its steps.
        compute: their `step_compute`, sorted by start, if available.

    Returns:
        Columns step device group start end (ns), correlation and process (of the first activity), ordinal (of the
        step in its group), step_process and step_thread (the step's own), sorted by (device, start).
    """
    compute = step_compute(trace, steps) if compute is None else compute
    order, first = runs_of(compute, ["device", "at"])
    spans = {name: compute[name].to_numpy()[order[first]] for name in _FIRST}
    spans["end"] = np.maximum.reduceat(compute["end"].to_numpy()[order], first) if len(first) else first
    of_step = {name: steps.table[name] for name in ("step", "group")} | {
        "ordinal": steps.table.groupby("group").cumcount(),
        "step_process": steps.table["process"],
        "step_thread": steps.table["thread"],
    }
    spans |= {name: values.to_numpy()[spans["at"]] for name, values in of_step.items()}
    return pd.DataFrame({name: spans[name] for name in [*SPAN_COLUMNS, "ordinal", "step_process", "step_thread"]})


def steps_per_s(trace: Trace, steps: Steps, spans: pd.DataFrame | None = None) -> float | None:
    """Steps per second of wall-clock time, the median over several hosts; None if no host has a rate (`wall_rates`),
    or if the hosts differ (`Steps.different`). `spans` are their `step_spans`, if available."""
    rates = list(wall_rates(trace, steps, spans).values())
    return float(np.median(rates)) if rates and not steps.different else None


def wall_rates(trace: Trace, steps: Steps, spans: pd.DataFrame | None = None) -> dict[tuple[int, ...], float]:
    """Process and thread of each host -> its steps per second of wall-clock time, if they have any.

    The wall-clock time is the longer of two: on the host, from the start of its first step to the end of its last, and
    on the device, from the first compute of these steps to the end of the last. A host that runs ahead has launched
    all its steps before the device has executed many. Work between the steps, such as prompts that are left out,
    counts; periods in doubt (`Steps.spoilt`) do not. A host has no rate if it has a single step, or if doubt leaves no
    two consecutive steps of it: its steps overlap, so that one by itself shows no time from one to the next.
    """
    spans = step_spans(trace, steps) if spans is None else spans
    computed = dict(grouped(spans, ["step_process", "step_thread"]))
    group, spoilt = steps.table["group"].to_numpy(), {host for host, _ in grouped(steps.spoilt, _HOST)}
    rates = {}
    for host, rows in sorted(grouped(steps.table, _HOST), key=itemgetter(0)):
        ns = max(_ns(steps, host, steps.table, rows), _ns(steps, host, spans, computed.get(host, rows[:0])))
        alone = host in spoilt and len(np.unique(group[rows])) == len(rows)
        if ns > 0 and len(rows) > 1 and not alone:
            rates[host] = len(rows) * 1e9 / ns
    return rates


def different_rates(trace: Trace, steps: Steps) -> str:
    """`Steps.different`. A step more or fewer decides nothing, nor do steps that were left out."""
    hosts = dict(grouped(steps.table, _HOST))
    rates = wall_rates(trace, steps) if len(hosts) > 1 and not len(steps.spoilt) else {}
    fastest = max(((1 - 1 / len(hosts[host])) * rate for host, rate in rates.items()), default=0.0)
    if fastest <= SAME_RATE * min(((1 + 1 / len(hosts[host])) * rate for host, rate in rates.items()), default=0.0):
        return ""
    said = [f"process {host[0]} thread {host[1]} {rate:,.1f}" for host, rate in rates.items()]
    return f"{', '.join(said[:_MOST_HOSTS])}{', …' if len(said) > _MOST_HOSTS else ''} steps/s"


def _ns(steps: Steps, host: tuple[int, ...], times: pd.DataFrame, rows: NDArray[np.int64]) -> int:
    """The wall-clock time from the first start to the last end of a host's rows, without the periods in doubt."""
    if not len(rows):
        return 0
    begin, finish = times["start"].to_numpy()[rows].min(), times["end"].to_numpy()[rows].max()
    spoilt = steps.spoilt.iloc[dict(grouped(steps.spoilt, _HOST)).get(host, rows[:0])]
    return int(finish - begin - covered(spoilt["start"], spoilt["end"], [begin], [finish])[0])


def tokens_per_step(trace: Trace, steps: Steps, within: str | None = None) -> float | None:
    """The mean number of tokens per step: from the marks or the batch size, else from the two decode rates that
    run.json gives; None if none of these is known."""
    if steps.tokens_per_step is not None or not steps.decode_alone:
        return steps.tokens_per_step
    return run_json.tokens_per_step(trace, within)
