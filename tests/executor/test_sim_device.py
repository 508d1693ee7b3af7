"""The virtual device: order, overlap, waits and shared bandwidth, to the ns."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.backends.sim.device import Fence, FenceWait, Stage, Task, VirtualDevice
from tracer.errors import ExecutionError


def spans_of(device, *submitted):
    """Submit (queue, stage, ready), run all, and return the works' spans in order of submission."""
    works = [Task(ready, [stage]) for _, stage, ready in submitted]
    for (queue, *_), work in zip(submitted, works, strict=True):
        device.submit(queue, work)
    device.drain()
    return [work.spans[0] for work in works]


def test_a_stream_works_in_order_and_waits_for_what_is_issued_late():
    spans = spans_of(VirtualDevice(1, 0), (0, Stage(10), 5), (0, Stage(20), 0), (0, Stage(1), 100))
    assert spans == [(5, 15), (15, 35), (100, 101)]


def test_transfers_share_the_bandwidth():
    """100 bytes alone at 1 B/ns until 50, then at half of it: 50 bytes by 150; the other's last 50 alone."""
    spans = spans_of(VirtualDevice(1, 0), (0, Stage(0, 100), 0), (1, Stage(0, 100), 50))
    assert spans == [(0, 150), (50, 200)]


def test_a_wait_holds_a_stream_for_the_edge_longer():
    device = VirtualDevice(1, edge_ns=3)
    device.submit(0, Task(0, [Stage(10)]))
    fence = device.fence(0)
    waiting, own = Task(0, [Stage(1)]), Task(0, [Stage(1)])
    for queue, work in ((1, waiting), (0, own)):
        device.submit(queue, FenceWait(fence))
        device.submit(queue, work)
    device.drain()
    assert (waiting.spans, own.spans) == ([(13, 14)], [(10, 11)])


def test_a_wait_for_what_never_comes():
    device = VirtualDevice(1, 0)
    device.submit(0, FenceWait(Fence(1)))
    with pytest.raises(ExecutionError, match="never recorded"):
        device.drain()


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 50), st.integers(0, 1000)), min_size=1, max_size=8))
def test_bandwidth_is_neither_wasted_nor_exceeded(stages):
    """All bytes take at least their time; one stream takes exactly the sum; nothing beats its own length."""
    spans = spans_of(VirtualDevice(2, 0), *((queue, Stage(fixed, nbytes), 0) for queue, fixed, nbytes in stages))
    assert max(end for _, end in spans) >= sum(nbytes for *_, nbytes in stages) / 2 * (1 - 1e-9)
    assert all(end - start >= (f + n / 2) * (1 - 1e-9) for (start, end), (_, f, n) in zip(spans, stages, strict=True))
    one = spans_of(VirtualDevice(2, 0), *((0, Stage(fixed, nbytes), 0) for _, fixed, nbytes in stages))
    assert one[-1][1] == sum(fixed + -(-nbytes // 2) for _, fixed, nbytes in stages)
