"""Independent kernels on several streams, on kernels made by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracer.analysis.whatif.streams import Kernel, assign, makespan


def test_kernels_together_share_the_device() -> None:
    """Two kernels of 100 ns latency and 100 ns of work: those that each need all of the device follow each other."""

    def kernel(demand: float, *after: int, late: float = 0) -> Kernel:
        return Kernel(100, 100, demand, late, after)

    whole, half = kernel(1), kernel(0.5)
    assert makespan([whole, whole], [0, 0]) == pytest.approx(400)
    assert makespan([whole, whole], [0, 1]) == pytest.approx(100 + 200)
    assert makespan([half, half], [0, 1]) == pytest.approx(200)
    assert makespan([whole, whole, kernel(1, 0, 1, late=30)], [0, 1, 0]) == pytest.approx(300 + 30 + 200)
    assert makespan([whole, kernel(1, 0, late=30)], [0, 0]) == pytest.approx(400)


def test_branches_get_streams_and_joins_give_them_back() -> None:
    """Two layers of norm -> q, k, v -> attention."""

    def kernel(*after: int) -> Kernel:
        return Kernel(1, 1, 1, 0, after)

    layer = [kernel(), kernel(0), kernel(0), kernel(0), kernel(1, 2, 3), kernel(4), kernel(5), kernel(5), kernel(5)]
    found = assign([*layer, kernel(6, 7, 8)], 4)
    assert len(set(found)) == 3
    assert len({found[i] for i in (1, 2, 3)}) == len({found[i] for i in (6, 7, 8)}) == 3
    assert set(assign([*layer, kernel(6, 7, 8)], 2)) == {0, 1}
    assert set(assign(layer, 1)) == {0}


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_more_streams_without_costs_are_never_slower_than_one(data: st.DataObject) -> None:
    sizes, demands = st.integers(0, 1000), st.floats(0.01, 1)
    kernels = []
    for i in range(data.draw(st.integers(1, 12))):
        after = data.draw(st.sets(st.integers(0, i - 1))) if i else set()
        kernels.append(Kernel(data.draw(sizes), data.draw(sizes), data.draw(demands), 0, tuple(sorted(after))))
    alone = makespan(kernels, [0] * len(kernels))
    assert alone == pytest.approx(sum(k.latency_ns + k.work_ns for k in kernels), rel=1e-6)
    assert makespan(kernels, assign(kernels, 4)) <= alone * (1 + 1e-6) + 1e-2
