"""Whose the steps of a recording are: the engines in it, and the choice of one.

An engine is a process, a thread that launches steps, and the device on which these compute. Hosts (a process and a
thread) that step at one rate may be ranks of one engine if each computes on devices of its own, or if they communicate
at the same times; they are not told apart, nor are devices that compute together for a step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from tracer.analysis.bounds import Bounds, Owner
from tracer.analysis.calls import Calls
from tracer.analysis.step_work import activity_steps, different_rates, step_spans
from tracer.analysis.steps import Steps
from tracer.errors import UsageError, printable
from tracer.model.columns import NEVER, grouped, numbers, positions, runs, several
from tracer.model.intervals import Bools, Ints
from tracer.model.trace import Trace

LEAST_MET: Final = 0.9
"""The share of the collectives that must run at the same time on all ranks."""
_SERIAL, _CHANGES = 0.95, 0.25
"""Of the steps of threads that take turns: those that begin after the one before, and those of another thread."""
_SHOWING, _TOGETHER = 8, 0.5
"""Steps that show whether they come together with those of another host: their phase in these has such a mean, of 1."""
_FEWEST: Final = 2  # steps on each of the devices on which a host computes in turn

_Host = tuple[int, int]
"""Process and thread."""


def joined_in_turn(trace: Trace, steps: Steps, calls: Calls) -> Steps:
    """The steps, with those of threads that take turns as steps of one thread, their first: a pool of threads, of which
    each makes the next step on the same streams when the one before has made its last call. Two loops do not wait for
    each other, so that their calls overlap."""
    rows = steps.rows
    if rows.is_of_one_thread or not len(calls):
        return steps
    at = steps.of(calls.start, calls.process, calls.thread)
    inside = at >= 0
    begun, ended = np.full(len(rows), NEVER), np.full(len(rows), -NEVER)
    np.minimum.at(begun, at[inside], calls.start[inside])
    np.maximum.at(ended, at[inside], calls.end[inside])
    thread, group, end, most = rows.thread.copy(), rows.group.copy(), rows.end.copy(), 0
    for (process,), mine in grouped(rows.process):
        threads = rows.thread[mine]
        if not several(threads) or (ended[mine] < begun[mine]).any():
            continue
        is_serial = (begun[mine][1:] >= ended[mine][:-1]).mean() >= _SERIAL
        if is_serial and (np.diff(threads) != 0).mean() >= _CHANGES and _on_the_same_streams(trace, steps, process):
            thread[mine], group[mine], most = threads[0], rows.group[mine[0]], max(most, len(set(threads.tolist())))
            end[mine[:-1]] = np.minimum(end[mine[:-1]], rows.start[mine[1:]])
    if not most:
        return steps
    detail = f"{steps.detail}, of {most} threads that take turns"
    return replace(steps, rows=rows.changed(thread=thread, group=group, end=end), detail=detail)


def _on_the_same_streams(trace: Trace, steps: Steps, process: int) -> bool:
    """Whether the steps of each thread of a process compute on the same streams."""
    compute = trace.compute()
    at = activity_steps(trace, steps, compute)
    compute, at = compute[at >= 0], at[at >= 0]
    mine = np.flatnonzero(steps.rows.process[at] == process)
    threads = grouped(steps.rows.thread[at[mine]])
    lanes = [
        set(zip(compute.device[mine[of]].tolist(), compute.stream[mine[of]].tolist(), strict=True)) for _, of in threads
    ]
    return all(each == lanes[0] for each in lanes)


def with_owners(trace: Trace, steps: Steps) -> Steps:
    """The steps, which tell whether they are of several engines."""
    different = different_rates(trace, steps)
    return replace(steps, different=different, owners=_owners(trace, steps, is_several=bool(different)))


def chosen(trace: Trace, steps: Steps, bounds: Bounds) -> Steps:
    """The steps of the requested process, thread and device.

    Raises:
        UsageError: none are; the message lists whose there are.
    """
    if bounds.process is None and bounds.thread is None and bounds.device is None:
        return steps
    rows = steps.rows
    hosts = sorted((process, thread) for (process, thread), _ in grouped(rows.process, rows.thread))
    processes, threads = _names(trace)
    if bounds.process is not None:
        hosts = _asked("process", bounds.process, hosts, lambda host: (host[0], processes.get(host[0], "")))
    if bounds.thread is not None:
        hosts = _asked("thread", bounds.thread, hosts, lambda host: (host[1], threads.get(host, "")))
    kept = _of(steps, hosts)
    if bounds.device is not None:
        kept &= _on_device(trace, steps, kept, bounds.device)
    left = ~kept & np.isin(rows.process, rows.process[kept])
    return replace(steps, rows=rows[kept], beside=rows[left] if left.any() else None, device=bounds.device)


def in_process(trace: Trace, asked: str, processes: Ints) -> Bools:
    """Which of these processes are the requested one; all if none is."""
    if not len(processes):
        return np.ones(len(processes), bool)
    names = _names(trace)[0]
    matching = _matching(asked, [(int(process), names.get(int(process), "")) for process in np.unique(processes)])
    kept = np.isin(processes, [number for number, _ in matching])
    return kept if kept.any() else ~kept


def hosts_of(trace: Trace, asked: str | None, calls: Calls) -> set[_Host]:
    """Process and thread of the calls of the requested threads; none if none are requested."""
    if asked is None:
        return set()
    names = _names(trace)[1]
    hosts = [(process, thread) for (process, thread), _ in grouped(calls.process, calls.thread)]
    known = {host: (host[1], names.get(host, "")) for host in hosts}
    matching = _matching(asked, list(known.values()))
    return {host for host, each in known.items() if each in matching}


# --- whose ---


def _owners(trace: Trace, steps: Steps, *, is_several: bool) -> tuple[Owner, ...]:
    """See `Steps.owners`; `is_several` whether the hosts are known to be of several engines."""
    if steps.rows.is_of_one_thread and not several(np.append(trace.kernels.device, trace.graph_launches.device)):
        return ()
    step, device = _computing(trace, steps)
    owners: list[Owner] = []
    places: list[int] = []
    for (process, thread), rows in sorted(grouped(steps.rows.process, steps.rows.thread), key=lambda each: each[0]):
        mine = np.isin(step, rows)
        on = sorted(set(device[mine].tolist()))
        places += on
        takes_turns = _takes_turns(step[mine], device[mine])
        is_several = is_several or takes_turns
        each: Sequence[int | None] = on if takes_turns or len(on) == 1 else [None]
        owners += [Owner(process, thread, one) for one in each]
    is_shared = max(Counter(places).values(), default=0) > 1
    is_several = is_several or (not _meet(trace, steps) if is_shared else _drift(trace, steps))
    return tuple(owners) if is_several and len(owners) > 1 else ()


def _meet(trace: Trace, steps: Steps) -> bool:
    """Whether all hosts run collectives at the same time, as ranks of one engine: where each sees only its own device,
    all have the same number."""
    collectives = trace.kernels[trace.kernels.collective]
    at = activity_steps(trace, steps, collectives)
    rows, collectives = steps.rows[at[at >= 0]], collectives[at >= 0]
    by_host = [collectives[mine] for _, mine in grouped(rows.process, rows.thread)]
    if len(by_host) < numbers(steps.rows.process, steps.rows.thread)[1] or len({len(each) for each in by_host}) > 1:
        return False
    entered, left = (np.sort([getattr(each, side) for each in by_host]) for side in ("start", "end"))
    return bool(np.mean(entered.max(axis=0) < left.min(axis=0)) >= LEAST_MET)


def _drift(trace: Trace, steps: Steps) -> bool:
    """Whether the steps of a host come at any time in those of another, as those of ranks do not, which wait for each
    other. Of few steps it is not known."""
    spans = step_spans(trace, steps)
    hosts = sorted(grouped(spans.step_process, spans.step_thread), key=lambda each: -len(each[1]))
    starts = []
    for _, rows in hosts:
        order, begins = runs(spans.at[rows])
        starts.append(np.unique(np.minimum.reduceat(spans.start[rows][order], begins)))
    for other in starts[1:]:
        at = np.searchsorted(starts[0], other, side="right") - 1
        inside = (at >= 0) & (at < len(starts[0]) - 1)
        begun, until = starts[0][at[inside]], starts[0][at[inside] + 1]
        phase = (other[inside] - begun) / (until - begun)
        if len(phase) >= _SHOWING and abs(np.exp(2j * np.pi * phase).mean()) < _TOGETHER:
            return True
    return False


def _computing(trace: Trace, steps: Steps) -> tuple[Ints, Ints]:
    """The positions of the steps that compute, and the device, for each device on which one does."""
    compute = trace.compute()
    at = activity_steps(trace, steps, compute)
    pairs = np.unique(np.stack([at, compute.device], axis=1)[at >= 0], axis=0)
    return pairs[:, 0], pairs[:, 1]


def _takes_turns(step: Ints, device: Ints) -> bool:
    """Whether a host computes on several devices, for each of its steps on one alone."""
    _, counts = np.unique(device, return_counts=True)
    return len(counts) > 1 and len(np.unique(step)) == len(step) and bool((counts >= _FEWEST).all())


# --- the choice ---


def _names(trace: Trace) -> tuple[dict[int, str], dict[_Host, str]]:
    """Process -> its name, and (process, thread) -> its name, as recorded."""
    processes, threads = trace["processes"], trace["threads"]
    of_threads = zip(threads["process"], threads["thread"], threads["name"], strict=True)
    return (
        {int(process): str(name) for process, name in zip(processes["process"], processes["name"], strict=True)},
        {(int(process), int(thread)): str(name) for process, thread, name in of_threads},
    )


def _asked(what: str, asked: str, hosts: list[_Host], named: Callable[[_Host], tuple[int, str]]) -> list[_Host]:
    """The hosts that the option asks for; `named` gives the number and the name of each."""
    known = {host: named(host) for host in hosts}
    matching = set(_matching(asked, list(known.values())))
    if not matching:
        there = ", ".join(
            f"{each[0]} ({each[1]})" if each[1] else f"{each[0]}" for each in dict.fromkeys(known.values())
        )
        raise UsageError(printable(f"--{what} {asked}: no steps of such a {what}; there are steps of {there}"))
    return [host for host in hosts if known[host] in matching]


def _matching(asked: str, known: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
    """The numbers and names that are meant: this number, else this name, else names that contain it."""
    return (
        [each for each in known if str(each[0]) == asked]
        or [each for each in known if each[1] == asked]
        or [each for each in known if asked.lower() in each[1].lower()]
    )


def _of(steps: Steps, hosts: Sequence[_Host]) -> Bools:
    """Which steps are of these hosts."""
    theirs = np.array(hosts, np.int64).reshape(-1, 2).T
    kept: Bools = positions([steps.rows.process, steps.rows.thread], list(theirs)) >= 0
    return kept


def _on_device(trace: Trace, steps: Steps, kept: Bools, wanted: int) -> Bools:
    """Which steps are of hosts that compute on the device: of a host that computes on several in turn, its steps there.

    Raises:
        UsageError: no kept step computes there.
    """
    step, device = _computing(trace, steps)
    there = np.zeros(len(steps), bool)
    for _, rows in grouped(steps.rows.process, steps.rows.thread):
        mine = np.isin(step, rows)
        here = step[mine & (device == wanted)]
        if len(here):
            there[here if _takes_turns(step[mine], device[mine]) else rows] = True
    if not (there & kept).any():
        known = ", ".join(map(str, sorted(set(device[kept[step]].tolist())))) or "none"
        raise UsageError(f"--device {wanted}: no steps compute there; there are steps on {known}")
    return there
