"""When the work of the light recorder's stamps had ended at the latest, by the waits of the program, and what follows
it."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tracer.bases import base_of
from tests.tracer.light_engine import ahead
from tracer.analysis.path.paths import Causality
from tracer.analysis.syncs import sync_report
from tracer.analysis.tokens import find_steps
from tracer.analysis.whatif.edits import ScaleHost, ScaleKernels
from tracer.analysis.whatif.prediction import predict
from tracer.recorders.light import light_trace
from tracer.recorders.light_work import NEVER, ended

MOMENT = st.integers(0, 60)


def test_a_later_wait_may_return_before_an_earlier_one() -> None:
    """An event that another stream waits for is recorded right after a launch; the wait for that stream also ends with
    the other's work, but a wait of its own for the stream ends with the launch's."""
    work = pd.DataFrame({"stream": [15], "end": [27], "context": [0]})
    waits = pd.DataFrame({"stream": [15, 15, 15], "since": [28, 58, 1400], "end": [1388, 757, 1402]})
    assert ended(work, waits).tolist() == [757]


@given(
    st.lists(st.tuples(st.integers(1, 3), MOMENT), max_size=6),
    st.lists(st.tuples(st.integers(1, 3), MOMENT, MOMENT), max_size=8),
)
def test_work_had_ended_when_the_first_wait_for_it_returned(
    launches: list[tuple[int, int]], waits: list[tuple[int, int, int]]
) -> None:
    work = pd.DataFrame(launches, columns=["stream", "end"], dtype=np.int64).assign(context=0)
    facts = pd.DataFrame(waits, columns=["stream", "since", "end"], dtype=np.int64).sort_values("since")
    found = ended(work, facts)
    for (stream, launched), at in zip(launches, found, strict=True):
        assert at == min((end for key, since, end in waits if key == stream and since >= launched), default=NEVER)


@pytest.mark.parametrize(("graph_ns", "waits", "faster"), [(1_200_000, "memcpy DtoH", 2.0), (300_000, "", 1.0)])
def test_a_copy_runs_behind_the_work_for_whose_event_its_stream_waits(graph_ns: int, waits: str, faster: float) -> None:
    """Placed at its call, before that work, the host never waited for the device, and its clock seemed wrong."""
    trace = light_trace([ahead(60, graph_ns, 600_000 if graph_ns < 600_000 else 300_000).ring()])
    steps = find_steps(trace)
    copies, graphs = trace["memcpys"].query("kind == 'DtoH'"), trace["graph_launches"]
    assert (copies["start"].to_numpy() >= graphs["end"].to_numpy()).all()
    assert sync_report(trace, steps).inventory()["waits_for"].tolist() == [waits]
    causality = Causality.of(trace)
    assert causality.dag.backward == 0
    halved = predict(base_of(causality, steps), [ScaleKernels(".*", 0.5)], timeline=False)
    assert halved.speedup.estimate == pytest.approx(faster, rel=0.01)


def test_an_asynchronous_copy_does_not_wait_for_the_device() -> None:
    """Its time on the device is unknown and not its call's, which seemed to return behind it and so behind the graph
    before: a host of half the time gained 19 %."""
    made = [ahead(60, 600_000, host_ns) for host_ns in (900_000, 450_000)]
    traces = [light_trace([each.ring()]) for each in made]
    causality, steps = Causality.of(traces[0]), find_steps(traces[0])
    halved = predict(base_of(causality, steps), [ScaleHost(0.5)], timeline=False)
    truth = np.divide(*(np.median(np.diff(trace["graph_launches"]["end"])) for trace in traces))
    assert truth == pytest.approx(1.51, abs=0.01)
    assert halved.speedup.estimate == pytest.approx(truth, rel=0.01)
