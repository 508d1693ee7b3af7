"""What the device computes for each token step, and the rates of the steps as recorded: steps per second of wall-clock
time, and tokens per step.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Final

import numpy as np

from tracer.analysis.bounds import listed
from tracer.analysis.steps import SAME_RATE, StepRows, Steps
from tracer.model import run_json
from tracer.model.columns import NEVER, Columns, grouped, numbers, positions, runs, spread
from tracer.model.intervals import Bools, Ints, covered
from tracer.model.schema import MISSING
from tracer.model.tables import Activities, OnStream
from tracer.model.trace import Trace

_NONE: Final = np.zeros(0, np.int64)


class Compute(Activities):
    """Kernels and whole graphs, without collectives; `at` is the position of the step that launched each, or -1."""

    at: Ints


class StepSpans(Columns):
    """The compute of a step on a device, by (device, start).

    Attributes:
        step, group: as in `StepRows`.
        device: on which it computes.
        start, end: of the first and the last compute, ns.
        correlation, process: of the first.
        at: the position of the step.
        ordinal: the position of the step in its group.
        step_process, step_thread: the step's own.
    """

    step: Ints
    device: Ints
    group: Ints
    start: Ints
    end: Ints
    correlation: Ints
    process: Ints
    at: Ints
    ordinal: Ints
    step_process: Ints
    step_thread: Ints


def activity_steps(trace: Trace, steps: Steps, activities: OnStream, rows: Ints | None = None) -> Ints:
    """For each device activity, the position in `steps.rows` of the step that launched it, or -1.

    An activity belongs to the step that contains its call, however late it executed. Its own start decides only if the
    trace lacks the call, and not for what was launched before the recording began, which no step launched. `rows` are
    the positions of their calls in `trace.api` (or -1), if available. If a device was chosen, work on others belongs to
    none.
    """
    api, table = trace.api, steps.rows
    rows = api.of(activities) if rows is None else rows
    at = spread(steps.of(api.start, api.process, api.thread), rows, -1)
    alone = np.flatnonzero(rows < 0)
    if len(alone):
        processes = activities.process[alone]
        first = {process: int(table.thread[mine[0]]) for (process,), mine in grouped(table.process)}
        threads = np.full(len(alone), table.thread[0])
        if len(first) > 1:
            known = np.array(list(first), np.int64)
            threads = spread(np.array(list(first.values()), np.int64), positions([processes], [known]), MISSING)
        at[alone] = steps.of(activities.start[alone], processes, threads)
        at[_launched_before(activities, rows < 0)] = -1
    if steps.device is not None:
        at[activities.device != steps.device] = -1
    return at


def _launched_before(activities: OnStream, is_alone: Bools) -> Bools:
    """Which activities were launched before the recording began: all those without a call (`is_alone`) on a stream
    where none of them starts behind one with a call. A stream executes in the order of the calls."""
    if is_alone.all():
        return np.zeros(len(is_alone), dtype=bool)
    lane, lanes = numbers(activities.process, activities.device, activities.context, activities.stream)
    first, last = np.full(lanes, -NEVER), np.full(lanes, NEVER)  # of a stream without any call, without any alone
    launched = np.full(lanes, NEVER)
    np.minimum.at(launched, lane[~is_alone], activities.start[~is_alone])
    first[lane[~is_alone]] = launched[lane[~is_alone]]
    last[lane[is_alone]] = -NEVER
    np.maximum.at(last, lane[is_alone], activities.start[is_alone])
    return is_alone & (last < first)[lane]


def all_compute(trace: Trace, steps: Steps) -> Compute:
    """All compute without collectives: kernels and whole graphs."""
    compute = trace.compute()
    return Compute.from_table(compute, at=activity_steps(trace, steps, compute))


def step_compute(trace: Trace, steps: Steps) -> Compute:
    """The part of `all_compute` that the steps launched."""
    return of_steps(all_compute(trace, steps))


def of_steps(every: Compute) -> Compute:
    """The part of `all_compute` that the steps launched."""
    inside = every.at >= 0
    return every if inside.all() else every[inside]


def step_spans(trace: Trace, steps: Steps, compute: Compute | None = None) -> StepSpans:
    """The start of the first and the end of the last compute of every step on every device.

    Args:
        compute: their `step_compute`, sorted by start, if available.
    """
    compute = step_compute(trace, steps) if compute is None else compute
    order, begins = runs(compute.device, compute.at)
    first, table = order[begins], steps.rows
    at = compute.at[first]
    return StepSpans(
        table.step[at], compute.device[first], table.group[at], compute.start[first],
        np.maximum.reduceat(compute.end[order], begins) if len(begins) else _NONE,
        compute.correlation[first], compute.process[first], at, table.ordinal[at], table.process[at],
        table.thread[at],
    )  # fmt: skip


def steps_per_s(trace: Trace, steps: Steps, spans: StepSpans | None = None) -> float | None:
    """Steps per second of wall-clock time, the median over several hosts; None if no host has a rate (`wall_rates`),
    or if the hosts differ (`Steps.different`). `spans` are their `step_spans`, if available."""
    rates = list(wall_rates(trace, steps, spans).values())
    return float(np.median(rates)) if rates and not steps.different else None


def wall_rates(trace: Trace, steps: Steps, spans: StepSpans | None = None) -> dict[tuple[int, ...], float]:
    """Process and thread of each host -> its steps per second of wall-clock time, if they have any.

    The wall-clock time is the longer of two: on the host, from the start of its first step to the end of its last, and
    on the device, from the first compute of these steps to the end of the last. A host that runs ahead has launched
    all its steps before the device has executed many. Work between the steps, such as prompts that are left out,
    counts; periods in doubt (`Steps.spoilt`) do not. A host has no rate if it has a single step, or if doubt leaves no
    two consecutive steps of it: its steps overlap, so that one by itself shows no time from one to the next.
    """
    spans = step_spans(trace, steps) if spans is None else spans
    table, computed = steps.rows, dict(grouped(spans.step_process, spans.step_thread))
    group, spoilt = table.group, {host for host, _ in grouped(steps.spoilt.process, steps.spoilt.thread)}
    rates = {}
    for host, rows in sorted(grouped(table.process, table.thread), key=itemgetter(0)):
        ns = max(_ns(steps, host, table, rows), _ns(steps, host, spans, computed.get(host, rows[:0])))
        alone = host in spoilt and len(np.unique(group[rows])) == len(rows)
        if ns > 0 and len(rows) > 1 and not alone:
            rates[host] = len(rows) * 1e9 / ns
    return rates


def different_rates(trace: Trace, steps: Steps) -> str:
    """`Steps.different`. A step more or fewer decides nothing, nor do steps that were left out."""
    hosts = dict(grouped(steps.rows.process, steps.rows.thread))
    rates = wall_rates(trace, steps) if len(hosts) > 1 and not len(steps.spoilt) else {}
    fastest = max(((1 - 1 / len(hosts[host])) * rate for host, rate in rates.items()), default=0.0)
    if fastest <= SAME_RATE * min(((1 + 1 / len(hosts[host])) * rate for host, rate in rates.items()), default=0.0):
        return ""
    said = (f"process {host[0]} thread {host[1]} {rate:,.1f}" for host, rate in rates.items())
    return f"{listed(said, ', ')} steps/s"


_FEWEST_FOR_LENGTH: Final = 8


def _ns(steps: Steps, host: tuple[int, ...], times: StepRows | StepSpans, rows: Ints) -> int:
    """The wall-clock time from the first start to the last end of a host's rows, without the periods in doubt."""
    if not len(rows):
        return 0
    begin, finish = times.start[rows].min(), times.end[rows].max()
    if len(rows) >= _FEWEST_FOR_LENGTH:  # the last step has no next one to end it: no more than another took
        last = rows[times.start[rows].argmax()]
        longest = (times.end[rows] - times.start[rows])[rows != last].max()
        finish = min(finish, max(times.start[last] + longest, times.end[rows[rows != last]].max()))
    spoilt = steps.spoilt
    mine = (spoilt.process == host[0]) & (spoilt.thread == host[1])
    return int(finish - begin - covered(spoilt.start[mine], spoilt.end[mine], [begin], [finish])[0])


def tokens_per_step(trace: Trace, steps: Steps, within: str | None = None) -> float | None:
    """The mean number of tokens per step: from the marks or the batch size, else from the two decode rates that
    run.json gives; None if none of these is known."""
    if steps.tokens_per_step is not None or not steps.decode_alone:
        return steps.tokens_per_step
    return run_json.tokens_per_step(trace, within)
