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
from tests.fuzz.callbacks import callbacks_of, post
from tests.fuzz.hostile import asked
from tests.tracer import kineto
from tracer import Trace, formats
from tracer.model.schema import PYTHON_FUNCTION


def test_an_event_was_made_where_its_launch_was_called_and_a_range_inside_of_those_around_it():
    on = {"process": [1] * 4, "thread": [5] * 4}
    trace = Trace.from_columns(
        nvtx={"start": [0, 1, 2, 3], "end": [50, 40, 30, 20], "kind": ["push/pop"] * 4,
              "text": ["step", "serve.py(7): loop", "torch/nn/linear.py(3): forward", "aten::linear"],
              "domain": ["", PYTHON_FUNCTION, PYTHON_FUNCTION, "cpu_op"], **on},
        api={"start": [10, 60], "end": [12, 62], "correlation": [1, 2], "name": ["cudaLaunchKernel"] * 2,
             "process": [1] * 2, "thread": [5] * 2},
        kernels={"start": [100, 200, 300], "end": [110, 210, 310], "correlation": [1, 2, 3], "process": [1] * 3,
                 "stream": [7] * 3, "name": ["k"] * 3},
    )  # fmt: skip
    rows = {row.role: row for row in rows_of(trace)}
    made = ["NVTX: step", "operator: aten::linear"]
    assert made_at(trace, rows["stream"], 0) == made_at(trace, rows["api"], 0) == made
    assert made_at(trace, rows["stream"], 1) == [], "launched outside of all ranges"
    assert made_at(trace, rows["stream"], 2) == [], "nobody recorded its launch"
    step, *_, linear = (row for row in rows_of(trace) if row.role == "nvtx")
    assert (made_at(trace, step, 0), made_at(trace, linear, 0)) == ([], ["NVTX: step"])


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """The decoding; the same with stacks, as nsys and the light recorder keep them; and one by PyTorch's profiler."""
    directory = tmp_path_factory.mktemp("runs")
    trace = decode()
    formats.write(trace, directory / "a")
    stack = {"chain": [5, 5, 5], "depth": [0, 1, 2], "module": ["/x/libcuda.so.1", "/x/libggml-cuda.so", "/x/engine"],
             "symbol": ["cuStreamSynchronize", "ggml_backend_cuda_synchronize", "main"]}  # fmt: skip
    tables = {**trace.tables, "api": trace["api"].assign(callchain=5), "callchains": stack}
    formats.write(Trace.from_columns(trace.metadata, **tables), directory / "chains")
    names = ((2, "serve.py(7): loop"), (4, "torch/nn/linear.py(3): forward"))
    functions = [kineto.event("python_function", name, 1000 * number + at, 900 - at)
                 for number in range(4) for at, name in names]  # fmt: skip
    profiled = kineto.GPU | {"traceEvents": [*kineto.GPU["traceEvents"], *functions]}
    (directory / "profiled.json").write_text(json.dumps(profiled))
    return RunStore([directory])


def _costs(store, kind, at, role="api", key="a"):
    """What is said of one of the events of a kind once all is known."""
    (run,) = store.chosen([key])
    events = [(index, np.flatnonzero(row.events["what"] == KINDS.index(kind)))
              for index, row in enumerate(run.rows) if row.role == role]  # fmt: skip
    row, number = next((index, found[at]) for index, found in events if len(found))
    until = time.monotonic() + 60
    while (found := details_of(store, View(runs=(key,)), Spot(key, row, int(number)))).pending:
        assert time.monotonic() < until
        time.sleep(0.02)
    return str(found.costs)


def test_a_sync_says_its_row_and_slack_and_a_call_and_what_it_launched_where_it_was_made(store):
    said = _costs(store, "sync", 2)
    for words in ("Row 1 of the syncs", "without=1", "slack", "of the critical path"):
        assert words in said, "the first of the second step"
    assert "Row 2 of the syncs" in _costs(store, "sync", 3)
    for kind, role in (("sync", "api"), ("kernel", "stream")):
        said = _costs(store, kind, 1, role, "chains")
        assert "call site: ggml_backend_cuda_synchronize (libggml-cuda.so)" in said
        said = _costs(store, kind, 1, role, "profiled")
        assert "call site: serve.py(7): loop, through torch/nn/linear.py(3): forward" in said


def test_the_card_says_what_the_panel_says_and_nothing_of_another_drawing(store):
    (run,) = store.chosen(["a"])
    view = View(runs=("a",), token=2)
    placed = panels_of([run], view)[0].row(stream=14)
    app = Dash("of this test")
    event.register(app, store)
    app.layout = html.Div(event.stores())
    client = app.server.test_client()
    (callback,) = [one for one in callbacks_of(client, "") if one["output"] == "told.data"]

    def ask(**changed):
        mark = {"key": "this bar", "part": part_of([run], view, "light"), "y": placed.middle, "event": 3} | changed
        screen = {"scheme": "light", "width": 900}
        values = {"pointed.data": mark, "view.data": view.data(), "screen.data": screen}
        return post(client, "", asked(callback, values))

    told = ask().get_json()["response"]["told"]["data"]
    ((tag, attributes, *said),) = told["said"]["props"]["trees"]
    assert (told["key"], tag, attributes) == ("this bar", "div", {"data-of": "this bar"})
    panel = with_markup(facts_of(view, [run], Spot("a", placed.line.index, 3)))
    assert said[: len(panel[0].trees)] == json.loads(to_json(panel[0].trees))
    assert ask(part="another drawing").status_code == 204
    assert ask(event=10**9).get_json()["response"]["told"]["data"]["said"]["props"]["children"] == []
