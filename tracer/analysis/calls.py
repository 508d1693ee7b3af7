"""The host calls of a recording that launch, copy, synchronise or order work, and the calls inside others.

What a name means is in `tracer.model.calls`.
"""

from __future__ import annotations

import numpy as np

from tracer.model.calls import BEGIN_CAPTURE, COPIES, END_CAPTURE, GRAPH_LAUNCH, POLL, letter
from tracer.model.columns import Correlated, Letters, Names, among, ended_before, grouped, several, spread
from tracer.model.intervals import Bools, Ints
from tracer.model.schema import MISSING
from tracer.model.tables import Api
from tracer.model.trace import Trace


class PlainCalls(Correlated):
    """Calls of hosts, as in `Api`, each with its letter: of `s a c k g e w h v`, or `POLL` for a polling loop."""

    start: Ints
    end: Ints
    process: Ints
    thread: Ints
    correlation: Ints
    name: Names
    letter: Letters


class Calls(PlainCalls):
    """Calls that copy, launch, wait or order.

    Attributes:
        stream: that it copies on or waits for; MISSING if the trace does not say.
        kind: of the copy; "" for other calls; PtoP for copies between devices, also those that the driver stages
            through the host.
    """

    stream: Ints
    kind: Names


def of_graph_launches(trace: Trace) -> Bools:
    """Which kernels ran in a CUDA graph: those with a node, or caused by a graph launch."""
    inside = trace.kernels.graph_node != MISSING
    launching = trace.api[trace.api.letter == GRAPH_LAUNCH]
    return inside | (launching.of(trace.kernels) >= 0) if len(launching) else inside


def host_calls(trace: Trace) -> Calls:
    """The calls that launch, copy, synchronise or order work, sorted by (process, thread, start); see `waits` for
    those that query.

    A call made inside another on the same thread (a driver call within a runtime call) counts once, as the outer one.
    Calls recorded into a graph during a stream capture do not execute and do not count.
    """
    api = trace.api
    calls = in_order(trace, (api.letter != "") & (api.letter != POLL))
    letters = api.letter[calls]
    kept = outermost(api, calls) & ~captured(api, calls)
    if (letters == BEGIN_CAPTURE).any() or (letters == END_CAPTURE).any():
        kept &= ~among(letters, [BEGIN_CAPTURE, END_CAPTURE])
    calls = calls[kept]
    rows = api[calls]
    copy, sync = trace.memcpys.of(rows), trace.syncs.of(rows)
    kinds = trace.memcpys.kind
    words = [*kinds.words.tolist(), "", "PtoP"]
    kind = spread(kinds.codes.astype(np.int64), copy, len(words) - 2)
    kind[between_devices(trace, rows)] = len(words) - 1
    streams = [spread(each.stream, row, MISSING) for each, row in ((trace.memcpys, copy), (trace.syncs, sync))]
    return Calls.from_table(
        rows, letter=api.letter[calls], stream=np.where(copy >= 0, *streams), kind=Names.at_codes(kind, words)
    )


def between_devices(trace: Trace, calls: Api | PlainCalls) -> Bools:
    """Which calls copy from one device to another: by their name, or those copies that go to the host and from there
    to a device, as the driver does without peer access (CUDA Driver API, cuMemcpyPeerAsync)."""
    copies = trace.memcpys
    both = calls.name.chosen(lambda name: letter(name) in COPIES and "Batch" not in name)
    for kind in ("DtoH", "HtoD"):
        of_kind = copies.kind.rows(kind)
        both = both & (copies[of_kind].of(calls) >= 0) if of_kind.any() and both.any() else np.zeros(len(both), bool)
    return both | calls.name.chosen(lambda name: "Peer" in name)


def copied_out(calls: Calls) -> Bools:
    """Which calls copy to the host."""
    return among(calls.letter, COPIES) & calls.kind.rows("DtoH")


def outer_rows(trace: Trace, chosen: Bools) -> Ints:
    """The rows of `trace.api` that are outermost calls among the chosen ones, by (process, thread, start)."""
    rows = in_order(trace, chosen)
    return rows[outermost(trace.api, rows)]


def in_order(trace: Trace, chosen: Bools) -> Ints:
    """The chosen rows of `trace.api` by process, thread and start, outer calls before the calls inside them."""
    rows, api = np.flatnonzero(chosen), trace.api
    process, thread, start, end = api.process[rows], api.thread[rows], api.start[rows], api.end[rows]
    if not several(process, thread) and (start[1:] > start[:-1]).all():
        return rows
    return rows[np.lexsort((-end, start, thread, process))]


def outermost(api: Api, rows: Ints) -> Bools:
    """Calls that are not inside an earlier call of their thread; merely touching its end does not count as inside."""
    start, end = api.start[rows], api.end[rows]
    reach = ended_before(end, api.process[rows], api.thread[rows])
    return (start >= reach) | (end > reach)


def captured(api: Api, rows: Ints) -> Bools:
    """Calls made during a stream capture of their thread; a capture that never ends excludes nothing."""
    letters, inside = api.letter[rows], np.zeros(len(rows), bool)
    begins, ends = letters == BEGIN_CAPTURE, letters == END_CAPTURE
    if not begins.any():
        return inside
    for _, mine in grouped(api.process[rows], api.thread[rows]):
        ended = np.cumsum(ends[mine])
        inside[mine] = (np.cumsum(begins[mine]) > ended) & (ended < ended[-1])
    return inside & ~begins
