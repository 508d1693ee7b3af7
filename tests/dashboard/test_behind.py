"""What stands behind the chosen event: where it was made, and what a call costs."""

import json
import time

import numpy as np
import pytest
from dash import Dash, html
from dash._utils import to_json

from dashboard.pages import with_markup
from dashboard.pages.overview import event
from dashboard.pages.overview.event import details_of, facts_of, made_at
from dashboard.palette import KINDS
from dashboard.reading.store import RunStore
from dashboard.scene import panels_of, part_of
from dashboard.timeline.rows import rows_of
from dashboard.view import Spot, View
from tests.dashboard.traces import decode
from tests.tracer import kineto
from tracer import Trace, formats
from tracer.model.schema import PYTHON_FUNCTION


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
    made = ["NVTX: step", "operator: aten::linear"]
    assert made_at(trace, rows["stream"], 0) == made
    assert made_at(trace, rows["api"], 0) == made
    assert made_at(trace, rows["stream"], 1) == [], "launched outside of all ranges"
    assert made_at(trace, rows["stream"], 2) == [], "nobody recorded its launch"


def test_a_range_is_inside_of_those_around_it():
    trace = _recorded()
    step, *_, linear = (row for row in rows_of(trace) if row.role == "nvtx")
    assert made_at(trace, step, 0) == []
    assert made_at(trace, linear, 0) == ["NVTX: step"]


def _with_chains():
    """The decoding with the stacks of its calls, as nsys and the light recorder keep them."""
    trace = decode()
    stack = {"chain": [5, 5, 5], "depth": [0, 1, 2], "module": ["/x/libcuda.so.1", "/x/libggml-cuda.so", "/x/engine"],
             "symbol": ["cuStreamSynchronize", "ggml_backend_cuda_synchronize", "main"]}  # fmt: skip
    api = trace["api"].assign(callchain=5)
    return Trace.from_columns(trace.metadata, **{**trace.tables, "api": api, "callchains": stack})


def _profiled():
    """Four steps by PyTorch's profiler with the functions of the program, which a page reads when it needs them."""
    names = ((2, "serve.py(7): loop"), (4, "torch/nn/linear.py(3): forward"))
    functions = [kineto.event("python_function", name, 1000 * number + at, 900 - at)
                 for number in range(4) for at, name in names]  # fmt: skip
    return kineto.GPU | {"traceEvents": [*kineto.GPU["traceEvents"], *functions]}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs")
    formats.write(decode(), directory / "a")
    formats.write(_with_chains(), directory / "chains")
    (directory / "profiled.json").write_text(json.dumps(_profiled()))
    return RunStore([directory])


def _costs(store, kind, at, role="api", key="a"):
    """What is said of one of the events of a kind once all is known."""
    (run,) = store.chosen([key])
    events = [(index, np.flatnonzero(row.events["what"] == KINDS.index(kind)))
              for index, row in enumerate(run.rows) if row.role == role]  # fmt: skip
    row, event = next((index, found[at]) for index, found in events if len(found))
    until = time.monotonic() + 60
    while (found := details_of(store, View(runs=(key,)), Spot(key, row, int(event)))).pending:
        assert time.monotonic() < until
        time.sleep(0.05)
    return str(found.costs)


def test_a_sync_says_its_row_its_slack_and_why_it_is_needed(store):
    said = _costs(store, "sync", 2)
    assert "Row 1 of the syncs" in said, "the first of the second step"
    assert "without=1" in said
    assert "slack" in said
    assert "of the critical path" in said
    assert "Row 2 of the syncs" in _costs(store, "sync", 3)


@pytest.mark.parametrize(("key", "site"), [
    ("chains", "call site: ggml_backend_cuda_synchronize (libggml-cuda.so)"),
    ("profiled", "call site: serve.py(7): loop, through torch/nn/linear.py(3): forward"),
])  # fmt: skip
@pytest.mark.parametrize(("kind", "role"), [("sync", "api"), ("kernel", "stream")])
def test_a_call_and_what_it_launched_say_where_in_the_program_it_was_made(store, key, site, kind, role):
    assert site in _costs(store, kind, 1, role, key)


def test_the_card_says_what_the_panel_says_and_nothing_of_another_drawing(store):
    (run,) = store.chosen(["a"])
    view = View(runs=("a",), token=2)
    placed = panels_of([run], view)[0].row(stream=14)
    mark = {"key": "of this bar", "part": part_of([run], view, "light"), "y": placed.middle, "event": 3}
    app = Dash("of this test")
    event.register(app, store)
    app.layout = html.Div(event.stores())
    client = app.server.test_client()

    def ask(mark):
        told = {"id": "told", "property": "data"}
        state = [("view", view.data()), ("screen", {"scheme": "light", "width": 900})]
        body = {
            "output": "told.data", "outputs": told, "changedPropIds": ["pointed.data"],
            "inputs": [{"id": "pointed", "property": "data", "value": mark}],
            "state": [{"id": key, "property": "data", "value": value} for key, value in state],
        }  # fmt: skip
        return client.post("/_dash-update-component", json=body)

    told = ask(mark).get_json()["response"]["told"]["data"]
    ((tag, attributes, *said),) = told["said"]["props"]["trees"]
    assert (told["key"], tag, attributes) == ("of this bar", "div", {"data-of": "of this bar"})
    panel = with_markup(facts_of(view, [run], Spot("a", placed.line.index, 3)))
    assert said[: len(panel[0].trees)] == json.loads(to_json(panel[0].trees))
    assert ask(mark | {"part": "another drawing"}).status_code == 204
    assert ask(mark | {"event": 10**9}).get_json()["response"]["told"]["data"]["said"]["props"]["children"] == []
