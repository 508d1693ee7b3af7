"""What stands behind the chosen event: where it was made, and what a call costs."""

import time

import numpy as np
import pytest

from dashboard.pages.overview import costs
from dashboard.pages.overview.costs import cost_of, made_at
from dashboard.palette import KINDS
from dashboard.store import RunStore
from dashboard.timeline.rows import rows_of
from dashboard.view import Spot, View
from tests.dashboard.traces import decode
from tracer import Trace, formats
from tracer.schema import PYTHON_FUNCTION


def _recorded():
    on = {"process": [1] * 4, "thread": [5] * 4}
    return Trace.from_columns(
        nvtx={"start": [0, 1, 2, 3], "end": [50, 40, 30, 20], "kind": ["push/pop"] * 4,
              "text": ["step", "serve.py(7): loop", "torch/nn/linear.py(3): forward", "aten::linear"],
              "domain": ["", PYTHON_FUNCTION, PYTHON_FUNCTION, "cpu_op"], **on},
        api={"start": [10, 60], "end": [12, 62], "correlation": [1, 2], "name": ["cudaLaunchKernel"] * 2,
             "process": [1] * 2, "thread": [5] * 2},
        kernels={"start": [100, 200, 300], "end": [110, 210, 310], "correlation": [1, 2, 3], "process": [1] * 3,
                 "stream": [7] * 3, "name": ["k"] * 3},
    )  # fmt: skip


def test_an_event_was_made_where_its_launch_was_called():
    trace = _recorded()
    rows = {row.role: row for row in rows_of(trace)}
    made = ["NVTX: step", "operator: aten::linear",
            "call site: serve.py(7): loop, through torch/nn/linear.py(3): forward"]  # fmt: skip
    assert made_at(trace, rows["stream"], 0) == made
    assert made_at(trace, rows["api"], 0) == made
    assert made_at(trace, rows["stream"], 1) == [], "launched outside of all ranges"
    assert made_at(trace, rows["stream"], 2) == [], "nobody recorded its launch"
    assert made_at(trace, rows["nvtx"], 0) == []


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs")
    formats.write(decode(), directory / "a")
    return RunStore([directory])


def _costs(store, kind, at):
    """What is said of one of the calls of a kind once all is known."""
    (run,) = store.chosen(["a"])
    row = next(index for index, row in enumerate(run.rows) if row.role == "api")
    event = np.flatnonzero(run.rows[row].events["what"] == KINDS.index(kind))[at]
    view = View(runs=("a",), event=Spot("a", row, int(event)))
    until = time.monotonic() + 60
    while (found := cost_of(store, view))[1] and time.monotonic() < until:
        time.sleep(0.05)
    assert not found[1]
    return str(found[0])


def test_a_sync_says_its_row_its_slack_and_why_it_is_needed(store):
    said = _costs(store, "sync", 2)
    assert "Row 1 of the syncs" in said, "the first of the second step"
    assert "without=1" in said
    assert "slack" in said
    assert "of the critical path" in said
    assert "Row 2 of the syncs" in _costs(store, "sync", 3)


def test_a_launch_has_slack_but_no_row(store):
    said = _costs(store, "launch", 9)
    assert "of the critical path" in said
    assert "Row" not in said


def test_what_is_no_call_costs_nothing_that_could_be_said(store):
    (run,) = store.chosen(["a"])
    stream = next(index for index, row in enumerate(run.rows) if row.role == "stream")
    assert cost_of(store, View(runs=("a",), event=Spot("a", stream, 0)))[1] is False
    assert cost_of(store, View(runs=("a",))) == ([], False)
    assert cost_of(store, View(runs=("a",), event=Spot("gone", 0, 0))) == ([], False)


def test_a_long_recording_leaves_it_to_the_page_of_syncs(store, monkeypatch):
    monkeypatch.setattr(costs, "_MOST_EVENTS", 1)
    monkeypatch.setattr(costs, "calls_of", None)
    assert "(slack and gain)" in _costs(store, "sync", 2)
    assert _costs(store, "launch", 9) == "[Ul([Li('NVTX: token 1')])]"
