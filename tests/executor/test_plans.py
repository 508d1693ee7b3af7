"""Plans: exact on a fork, and the fewest events that keep the order on random graphs with random streams."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from executor.planning.concurrency import bits, find_dependencies
from executor.planning.hazards import happens_before
from executor.planning.plans import Launch, Record, Subplan, Wait, make_plan
from tests.executor.handmade import fan_out_graph, plan_of, regions_of
from tests.executor.random_graphs import graphs, stream_maps


def test_streams_and_events_of_a_fork():
    nodes = fan_out_graph().nodes
    plan = plan_of(nodes, regions_of(nodes))
    fork, q0, q1, k0, k1, v0, v1, join, end = nodes
    assert list(plan.instructions) == [
        Launch(0, fork), Record(0, 0), Launch(0, q0), Launch(0, q1),
        Wait(1, 0), Launch(1, k0), Launch(1, k1), Record(1, 1),
        Wait(2, 0), Launch(2, v0), Launch(2, v1), Record(2, 2),
        Wait(0, 2), Wait(0, 1), Launch(0, join), Launch(0, end),
    ]  # fmt: skip
    assert (plan.streams, plan.events, len(plan.launches)) == (3, 3, 9)


def keeps_order(plan, graph):
    order = happens_before(plan.instructions, plan.streams)
    place = {launch.node: k for k, launch in enumerate(plan.launches)}
    needs = find_dependencies(graph.nodes, tie=False).needs
    return order.closed and all(
        order.before[place[node]] >> place[graph.nodes[need]] & 1
        for node, mask in zip(graph.nodes, needs, strict=True)
        for need in bits(mask)
        if node in place
    )


@given(st.data())
def test_no_event_and_no_wait_is_implied_by_the_others(data):
    graph = data.draw(graphs())
    streams = data.draw(stream_maps(graph))
    plan = make_plan(graph.nodes, find_dependencies(graph.nodes, tie=False), streams)
    assert keeps_order(plan, graph)
    waits = [i for i, instruction in enumerate(plan.instructions) if isinstance(instruction, Wait)]
    for i in waits:
        less = replace(plan, instructions=plan.instructions[:i] + plan.instructions[i + 1 :])
        assert not keeps_order(less, graph), plan.instructions[i]
    recorded = [i.event for i in plan.instructions if isinstance(i, Record)]
    assert sorted(recorded) == list(range(plan.events)) == sorted({plan.instructions[i].event for i in waits})


@given(st.data())
def test_cutting_keeps_every_streams_instructions(data):
    graph = data.draw(graphs())
    plan = make_plan(graph.nodes, find_dependencies(graph.nodes), data.draw(stream_maps(graph)), cut=True)
    flat = []
    for part in plan.parts:
        launches = (
            [Launch(part.stream, launch.node) for launch in part.plan.launches] if isinstance(part, Subplan) else [part]
        )
        flat += launches
    for stream in range(plan.streams):
        assert [i for i in flat if i.stream == stream] == [i for i in plan.instructions if i.stream == stream]
    for i, item in enumerate(flat):
        if isinstance(item, Wait):
            assert any(isinstance(other, Record) and other.event == item.event for other in flat[:i])
