"""Happens-before and clashes: by hand, and against a search of all paths through random programs."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracer.races.order import Accesses, Edges, Order
from tracer.races.program import Program

KINDS = ("host", "work", "record", "wait", "sync", "sync_all", "sync_event", "blocking", "graph", "legacy")


STEP = st.tuples(st.sampled_from(KINDS), st.integers(0, 2), st.integers(0, 1), st.integers(0, 2))
PROGRAMS = st.tuples(st.lists(STEP, min_size=1, max_size=20), st.booleans())
"""What two threads issue to three streams, and whether the first of these is the legacy default stream."""
ACCESSES = st.lists(
    st.tuples(st.integers(0, 99), st.integers(0, 1), st.integers(0, 6), st.integers(0, 4), st.booleans()), max_size=12
)


def built(items, legacy):
    """The program, and (source, target, whether a wait makes the edge) of all that the rules order directly."""
    program = Program(legacy=0 if legacy else None, unblocking=[2])
    edges, last_of_stream, last_of_thread, recorded = set(), {}, {}, {}
    touching = []

    def on_stream(number, stream, thread):
        if stream in last_of_stream:
            edges.add((last_of_stream[stream], number, False))
        if thread in last_of_thread:
            edges.add((last_of_thread[thread], number, False))
        if legacy and stream != 2:
            edges.update((last, number, False) for other, last in last_of_stream.items()
                         if other not in (stream, 2) and 0 in (stream, other))  # fmt: skip
        last_of_stream[stream] = number
        touching.append(number)

    def on_host(number, thread):
        if thread in last_of_thread:
            edges.add((last_of_thread[thread], number, False))
        last_of_thread[thread] = number
        touching.append(number)

    for kind, stream, thread, event in items:
        now = len(program)
        if kind in ("work", "legacy"):
            stream = 0 if kind == "legacy" else stream
            program.work(stream, thread)
            on_stream(now, stream, thread)
        elif kind == "host":
            program.host(thread)
            on_host(now, thread)
        elif kind == "record":
            program.record(event, stream, thread)
            on_stream(now, stream, thread)
            recorded[event] = now
        elif kind == "wait":
            program.wait(event, stream, thread)
            on_stream(now, stream, thread)
            edges.update({(recorded[event], now, True)} if event in recorded else ())
        elif kind in ("sync", "sync_all"):
            program.sync(stream if kind == "sync" else None, thread)
            waited = [stream] if kind == "sync" else list(last_of_stream)
            edges.update((last_of_stream[each], now, True) for each in waited if each in last_of_stream)
            on_host(now, thread)
        elif kind == "sync_event":
            program.sync_event(event, thread)
            edges.update({(recorded[event], now, True)} if event in recorded else ())
            on_host(now, thread)
        elif kind == "blocking":
            program.blocking(stream, thread)
            on_stream(now, stream, thread)
            on_host(now + 1, thread)
            edges.add((now, now + 1, True))
        else:  # a diamond with a tail that nothing follows
            nodes = program.graph(stream, [[], [0], [0], [1, 2], [0]], thread)
            assert nodes == [*range(now + 1, now + 6)]
            on_stream(now, stream, thread)
            a, b, c, d, e = nodes
            pairs = [(now, a), (a, b), (a, c), (b, d), (c, d), (a, e)]
            edges.update((*pair, False) for pair in [*pairs, (d, now + 6), (e, now + 6)])
            touching.extend(nodes)
            last_of_stream[stream] = now + 6
    return program, edges, touching


def closure(count, edges):
    """Which operation is before which, by following all edges."""
    reached = np.eye(count, dtype=bool)
    for source, target, _ in sorted(edges, reverse=True):
        reached[source] |= reached[target]
    return reached & ~np.eye(count, dtype=bool)


def clashing(before, accesses):
    """The pairs of clashing accesses that are not in this order."""
    rows = [*zip(*(getattr(accesses, name).tolist() for name in Accesses.column_names()), strict=True)]
    found = set()
    for (i, a), (j, b) in combinations(enumerate(rows), 2):
        overlap = a[1] == b[1] and max(a[2], b[2]) < min(a[3], b[3])
        if a[0] != b[0] and overlap and (a[4] or b[4]) and not (before[a[0], b[0]] or before[b[0], a[0]]):
            found.add((i, j) if a[0] < b[0] else (j, i))
    return found


def touched(program, touching, drawn):
    for place, buffer, start, size, writes in drawn:
        program.access(touching[place % len(touching)], buffer, start, start + size, writes=writes)
    return program.accesses


def pairs(clashes):
    return set(zip(clashes.first.tolist(), clashes.second.tolist(), strict=True))


@given(PROGRAMS, ACCESSES)
def test_order_and_clashes_are_those_of_a_search(drawn, touches):
    program, edges, touching = built(*drawn)
    accesses, order = touched(program, touching, touches), program.order
    before = closure(len(program), edges)
    first, second = np.indices(before.shape).reshape(2, -1)
    assert (order.before(first, second).reshape(before.shape) == before).all()
    found = order.clashes(accesses)
    assert pairs(found) == clashing(before, accesses)
    assert len(found) == len(pairs(found))
    keys = [*zip(accesses.operation[found.second], accesses.operation[found.first], found.first, found.second,
                 strict=True)]  # fmt: skip
    assert keys == sorted(keys)


@given(PROGRAMS, ACCESSES)
def test_a_wait_is_needed_if_accesses_clash_without_it(drawn, touches):
    """Each wait alone is dropped from the program, and everything is searched again."""
    program, edges, touching = built(*drawn)
    accesses, order = touched(program, touching, touches), program.order
    before = closure(len(program), edges)
    already, unordered = clashing(before, accesses), np.zeros_like(before)
    verdicts = order.verdicts(accesses)
    waits = {target for _, target, waits in edges if waits}
    assert verdicts.wait.tolist() == sorted(waits)
    lanes, operation = order.lane, accesses.operation
    for wait, lost, one, other, instead in zip(*(getattr(verdicts, n).tolist() for n in verdicts.column_names()),
                                               strict=True):  # fmt: skip
        fewer = {edge for edge in edges if edge[1] != wait or not edge[2]}
        without = closure(len(program), fewer)
        newly = clashing(without, accesses) - already
        assert lost == len(newly)
        assert pairs(order.lost(accesses, wait)) == newly
        sources = [source for source, target, waits in edges if target == wait and waits]
        awaited = {i for i in range(len(lanes)) if any(before[i, source] or i == source for source in sources)}
        learned = {i for i in awaited if not without[i, wait]} or awaited
        behind = {
            (i, j) for i, j in clashing(unordered, accesses)
            if operation[i] in learned and lanes[operation[i]] not in (lanes[operation[j]], lanes[wait])
            and (wait == operation[j] or before[wait, operation[j]])
        }  # fmt: skip
        if newly:
            assert (one, other) in newly
            assert instead == -1
        elif behind:
            assert operation[other] == min(operation[j] for _, j in behind)
            assert (one, other) in behind
            if instead != -1:
                assert instead in waits - {wait}
                assert operation[other] == instead or without[instead, operation[other]]
                assert any(
                    without[operation[one], source] or operation[one] == source
                    for source, target, waits in fewer if target == instead and waits
                )  # fmt: skip
            else:  # then no wait is necessary: without all of them these two stay in order
                given_ = closure(len(program), {edge for edge in fewer if not edge[2]})
                assert given_[operation[one], operation[other]]
        else:
            assert (one, other, instead) == (-1, -1, -1)


def said(program):
    """The clashes, as pairs of the names given to operations with `label`."""
    return pairs(program.order.clashes(program.accesses))


def test_a_source_overwritten_before_a_copy_has_read_it():
    """Two steps of a loop: fill, copy, launch. A double buffer with an event per buffer is clean, one buffer is not."""

    def loop(buffers, waits):
        program = Program()
        for step in range(4):
            source, event = f"source {step % buffers}", step % buffers
            if waits:
                program.sync_event(event)
            program.access(program.host(), source, 0, 64, writes=True)
            copy = program.work("copies")
            program.access(copy, source, 0, 64, writes=False)
            program.access(copy, "input", 0, 64, writes=True)
            program.record(event, "copies")
            program.wait(event, "compute")
            kernel = program.work("compute")
            program.access(kernel, "input", 0, 64, writes=False)
            program.record("read", "compute")
            program.wait("read", "copies")
        return program

    assert said(loop(2, waits=True)) == set()
    found = said(loop(1, waits=False))
    # accesses 0, 4, 8, 12 fill the source, 1, 5, 9, 13 read it: each copy may be late
    assert found == {(1, 4), (1, 8), (1, 12), (5, 8), (5, 12), (9, 12)}
    clean = loop(2, waits=True)
    verdicts = clean.order.verdicts(clean.accesses)
    rows = verdicts.records()
    by_host = [row for row in rows if row["second"] >= 0 and clean.accesses.by_host[row["second"]]]
    assert [(row["lost"] > 0, row["first"], row["second"]) for row in by_host] == [(True, 1, 8), (True, 5, 12)]
    assert [row["lost"] > 0 for row in rows] == [True] * 9 + [False]  # nothing follows the last one
    assert (rows[-1]["first"], rows[-1]["instead"]) == (-1, -1)


def test_an_event_of_the_wrong_stream_orders_nothing():
    for stream, found in (("copies", set()), ("compute", {(0, 1)})):
        program = Program()
        program.access(program.work("copies"), "source", 0, 64, writes=False)
        program.record("copied", stream)
        program.sync_event("copied")
        program.access(program.host(), "source", 0, 64, writes=True)
        assert said(program) == found


def test_two_waits_for_the_same_name_each_other():
    """Either may go as long as the other stays."""
    program = Program()
    program.access(program.work(0), "result", 0, 8, writes=True)
    one, other = program.sync(0), program.sync()
    program.access(program.host(), "result", 4, 12, writes=False)
    rows = program.order.verdicts(program.accesses).records()
    assert [(row["wait"], row["lost"], row["first"], row["second"], row["instead"]) for row in rows] == [
        (one, 0, 0, 1, other), (other, 0, 0, 1, one),
    ]  # fmt: skip


def test_branches_of_a_graph_are_ordered_by_its_edges_alone():
    program = Program()
    before = program.work("a")
    nodes = program.graph("a", [[], [0], [0], [1, 2]])
    after = program.work("a")
    for operation in (before, *nodes, after):
        program.access(operation, "x", 0, 4, writes=True)
    assert said(program) == {(2, 3)}


def test_memory_reused_without_an_edge():
    """A stream frees what another one still reads; who gets it next is ordered after the free only."""

    def reused(waits):
        program = Program()
        program.allocate("a", "pool", 0, 64)
        program.record("ready", "a")
        program.wait("ready", "b")
        program.access(program.work("b"), "pool", 0, 64, writes=False)
        program.record("done", "b")
        if waits:
            program.wait("done", "a")
        program.free("a", "pool", 0, 64)
        program.allocate("c", "pool", 32, 96)
        program.access(program.work("c"), "pool", 32, 96, writes=True)
        return program

    assert said(reused(waits=True)) == set()
    assert said(reused(waits=False)) == {(1, 2), (1, 3), (1, 4)}


def test_memory_used_by_a_stream_it_was_not_given_to():
    program = Program()
    program.allocate("a", "pool", 0, 64)
    program.access(program.work("b"), "pool", 0, 64, writes=True)
    assert said(program) == {(0, 1)}


@pytest.mark.parametrize(("unblocking", "found"), [((), set()), (("b",), {(0, 1), (1, 2)})])
def test_the_legacy_default_stream_waits_for_all_but_non_blocking_ones(unblocking, found):
    program = Program(legacy=0, unblocking=unblocking)
    for stream in ("b", 0, "b"):
        program.access(program.work(stream), "x", 0, 4, writes=True)
    assert said(program) == found


def test_a_host_function_is_work_of_its_stream_done_by_the_host():
    program = Program()
    program.access(program.work("a"), "source", 0, 4, writes=True, by_host=True)
    program.access(program.work("a"), "source", 0, 4, writes=False)
    program.access(program.host(), "source", 0, 4, writes=False)
    assert program.accesses.by_host.tolist() == [True, False, True]
    assert said(program) == {(0, 2)}


def test_threads_are_ordered_only_through_what_they_wait_for():
    program = Program()
    program.access(program.host("one"), "x", 0, 4, writes=True)
    program.access(program.host("two"), "x", 0, 4, writes=True)
    assert said(program) == {(0, 1)}
    program = Program()
    program.access(program.host("one"), "x", 0, 4, writes=True)
    program.record("given", "a", thread="one")
    program.sync_event("given", thread="two")
    program.access(program.host("two"), "x", 0, 4, writes=True)
    assert said(program) == set()


def test_bytes_next_to_each_other_and_none_do_not_clash():
    nothing = Order(np.zeros(0, np.int64), Edges(*np.zeros((3, 0), np.int64)))
    empty = Accesses(*np.zeros((4, 0), np.int64), *np.zeros((3, 0), bool))
    assert len(nothing.clashes(empty)) == len(nothing.verdicts(empty)) == 0
    program = Program()
    for start, end in ((0, 4), (4, 8), (8, 8), (2, 2)):
        program.access(program.work(start + end), "x", start, end, writes=True)
    assert said(program) == set()


def test_searches_are_cut_into_parts(monkeypatch):
    program = Program()
    for number in range(40):
        program.access(program.work(number % 4), "x", 0, 4, writes=number % 3 == 0)
    whole = program.order.clashes(program.accesses)
    monkeypatch.setattr("tracer.races.order._AT_ONCE", 5)
    parts = program.order.clashes(program.accesses)
    assert len(whole) > 100
    assert pairs(parts) == pairs(whole)


def test_a_kernel_may_write_what_its_parameters_point_to():
    program, blocks = Program(), [(256, 512), (1024, 2048)]
    kernel = program.work("a")
    for address in (0, 300, 512, 1024, 2047, 4096):
        program.points_to(kernel, "device", address, blocks)
    program.access(program.work("b"), "device", 310, 311, writes=False)
    program.access(program.work("b"), "device", 1023, 1024, writes=True)
    accesses = program.accesses
    assert [*zip(accesses.start[:3].tolist(), accesses.end[:3].tolist(), strict=True)] == [
        (300, 512), (1024, 2048), (2047, 2048),
    ]  # fmt: skip
    assert accesses.guessed.tolist() == [True] * 3 + [False] * 2
    assert said(program) == {(0, 3)}
