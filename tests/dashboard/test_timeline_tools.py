"""Rows, chosen event, ruler and minimap of the timeline, without a browser."""

import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from dashboard.figures.timeline import timeline_figure
from dashboard.pages.overview.actions import Action, after, after_request
from dashboard.pages.overview.event import facts_of
from dashboard.pages.overview.minimap import Lane, minimap_plot
from dashboard.pages.overview.tools import measured, row_list
from dashboard.palette import KINDS
from dashboard.reading.store import RunStore
from dashboard.scene import chosen_in, panels_of, timeline_of, token_of
from dashboard.text import duration
from dashboard.timeline.align import AFTER, BEFORE, CAPTURE, NO_PHASES, captures, phases_of
from dashboard.timeline.flows import EVENT, LAUNCH, WAIT, event_pairs, flows_of
from dashboard.timeline.layout import AS_RECORDED, all_groups, arranged, groups_of, moved
from dashboard.timeline.marks import NO_WAITS
from dashboard.timeline.rows import rows_of
from dashboard.view import Arrangement, Spot, View
from tests.dashboard.traces import GAP, KERNELS, PERIOD, decode
from tracer import Trace, formats
from tracer.analysis.steps import Steps
from tracer.model.schema import MISSING

TOKENS = 6


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs")
    formats.write(decode(TOKENS), directory / "a")
    formats.write(decode(TOKENS, gap=2 * GAP), directory / "b")
    return RunStore([directory]).chosen(["a", "b"])


def _row(run, label):
    return next(at for at, row in enumerate(run.rows) if row.label == label)


def _threads():
    return Trace.from_columns(
        nvtx={"start": [0, 1, 5], "end": [10, 4, 9], "text": ["a", "b", "c"], "thread": [1] * 3, "process": [1] * 3},
        api={"start": [0, 2], "end": [1, 3], "name": ["x", "y"], "thread": [1, 2], "process": [1, 2]},
        kernels={"start": [0, 0, 1], "end": [1, 1, 2], "device": [0, 1, 1], "stream": [7, 7, 8], "process": [1] * 3,
                 "name": ["k"] * 3},
    )  # fmt: skip


def _labels(rows, **arrangement):
    return [line.label for line in arranged(rows, Arrangement(**arrangement))]


def test_rows_are_hidden_folded_filtered_and_moved():
    rows = rows_of(_threads())
    labels = [row.label for row in rows]
    nvtx, gpu = labels[0], [f"GPU {d} · stream {s}" for d, s in ((0, 7), (1, 7), (1, 8))]
    assert _labels(rows) == labels
    assert _labels(rows, hidden=("GPU 1", nvtx)) == [*labels[2:4], gpu[0]]
    assert _labels(rows, only="STREAM 8") == [gpu[2]]
    assert _labels(rows, only="gpu 1") == gpu[1:]
    assert _labels(rows, folded=("GPU 1",))[-3:] == [gpu[0], "▸ GPU 1", ""]
    assert _labels(rows, folded=("GPU 1",), only="gpu 0") == [gpu[0]], "nothing is left of a folded group"
    assert sum(line.height for line in arranged(rows, Arrangement(folded=(nvtx,)))[:2]) <= rows[0].height
    groups = groups_of(rows)
    down = moved(groups, AS_RECORDED, "Process 1", 2)
    assert [group.name for group in all_groups([rows], down)] == ["Process 2", "GPU 0", "Process 1", "GPU 1"]
    assert sorted(_labels(rows, order=down.order)) == sorted(labels)
    swapped = moved(groups, down, gpu[2], -1)
    assert _labels(rows, order=swapped.order)[-2:] == [gpu[2], gpu[1]]
    assert set(down.order) < set(swapped.order)
    assert moved(groups, down, "no such row", 1) == down
    assert moved(groups, AS_RECORDED, "GPU 1", 1).order == tuple(group.name for group in groups)


def test_what_the_row_list_asks_for_changes_the_view(runs):
    view = View(runs=("a", "b"))
    buttons = json.dumps([item.to_plotly_json() for item in row_list(all_groups(run.rows for run in runs), view.rows)],
                         default=lambda c: c.to_plotly_json())  # fmt: skip
    assert '"hide\\", \\"name\\": \\"stream 13' in buttons
    hidden = after_request(view, {"what": "hide", "name": "stream 13"}, runs)
    assert hidden.rows.hidden == ("stream 13",)
    assert after_request(hidden, {"what": "hide", "name": "stream 13"}, runs) == view
    assert after_request(view, {"what": "fold", "name": "GPU 0"}, runs).rows.folded == ("GPU 0",)
    assert after_request(view, {"what": "fold", "name": "\ud800"}, runs) == view
    ordered = after_request(view, {"what": "move", "name": "stream 14", "by": -1}, runs)
    assert ordered.rows.order == ("stream 14", "stream 13")
    assert after_request(ordered, {"what": "as recorded"}, runs) == view
    assert after(view, Action("only", " api "), runs).rows.only == "api"
    assert after(view, Action("only", None), runs) == view


def test_a_launch_points_at_its_kernel_and_a_kernel_at_its_sync(runs):
    run = runs[0]
    api, compute = _row(run, "API calls"), _row(run, "stream 14")
    launch = int(np.flatnonzero(run.rows[api].events["what"] == KINDS.index("launch"))[KERNELS - 1])
    flows, more = flows_of(run.rows, api, launch, run.waits, run.event_pairs)
    assert more == 0
    assert flows.to_dict("records") == [
        {"kind": LAUNCH, "row0": api, "event0": launch, "time0": int(run.rows[api].start[launch]), "row1": compute,
         "event1": KERNELS - 1, "time1": int(run.rows[compute].start[KERNELS - 1])}
    ]  # fmt: skip
    back, _ = flows_of(run.rows, compute, KERNELS - 1, run.waits, run.event_pairs)
    assert back["kind"].tolist() == [LAUNCH]
    pd.testing.assert_frame_equal(back, flows)
    copy, _ = flows_of(run.rows, _row(run, "stream 13"), 2, run.waits, run.event_pairs)
    assert copy["kind"].tolist() == [LAUNCH, WAIT]
    sync = int(copy["event1"].iloc[1])
    assert (copy["time0"].iloc[1], copy["time1"].iloc[1]) == (2 * PERIOD + 6_000, 2 * PERIOD + 7_000)
    waited, _ = flows_of(run.rows, api, sync, run.waits, run.event_pairs)
    pd.testing.assert_frame_equal(waited, copy.iloc[1:].reset_index(drop=True))
    none, _ = flows_of(run.rows, _row(run, "NVTX"), 0, run.waits, run.event_pairs)
    assert len(none) == 0


def test_the_record_of_an_event_points_at_the_wait_for_it():
    calls = {"start": [0, 10, 20, 30], "end": [1, 11, 21, 31], "process": [1] * 4, "thread": [1, 1, 2, 1],
             "correlation": [1, 2, 3, 4],
             "name": ["cudaEventRecord", "cudaEventRecord", "cudaStreamWaitEvent", "cudaStreamWaitEvent"]}  # fmt: skip
    on = {"process": [1, 1], "event": [5, 5], "device": [0, 0], "context": [1, 1]}
    trace = Trace.from_columns(
        api=calls,
        cuda_events={**on, "stream": [7, 7], "correlation": [1, 2]},
        syncs={**on, "event": [5, 6], "stream": [8, 8], "correlation": [3, 4], "start": [20, 30], "end": [21, 31],
               "type": ["stream wait"] * 2},
    )  # fmt: skip
    pairs = event_pairs(trace)
    nothing_ran = dict.fromkeys(("before_stream", "ended", "after_stream", "began"), MISSING)
    assert pairs.to_dict("records") == [
        {"process": 1, "record_thread": 1, "recorded": 10, "wait_thread": 2, "waited": 20, **nothing_ran}
    ]
    rows, waits = rows_of(trace), NO_WAITS
    flows, _ = flows_of(rows, 0, 1, waits, pairs)
    assert flows[["kind", "row0", "event0", "row1", "event1"]].to_numpy().tolist() == [[EVENT, 0, 1, 1, 0]]
    pd.testing.assert_frame_equal(flows_of(rows, 1, 0, waits, pairs)[0], flows)
    assert len(flows_of(rows, 0, 0, waits, pairs)[0]) == 0


def test_the_last_kernel_before_a_record_points_at_the_first_behind_the_wait_on_another_stream():
    names = ["cudaLaunchKernel", "cudaLaunchKernel", "cudaEventRecord", "cudaStreamWaitEvent", "cudaLaunchKernel"]
    start = np.arange(5) * 10
    on = {"process": [1], "event": [5], "device": [0], "context": [1]}
    trace = Trace.from_columns(
        api={"start": start, "end": start + 1, "process": [1] * 5, "thread": [1] * 5, "correlation": range(1, 6),
             "name": names},
        cuda_events={**on, "stream": [7], "correlation": [3]},
        syncs={**on, "stream": [8], "correlation": [4], "start": [30], "end": [31], "type": ["stream wait"]},
        kernels={"start": [100, 110, 150], "end": [110, 140, 160], "process": [1] * 3, "device": [0] * 3,
                 "context": [1] * 3, "stream": [7, 7, 8], "correlation": [1, 2, 5], "name": ["a", "b", "c"]},
    )  # fmt: skip
    rows, pairs = rows_of(trace), event_pairs(trace)
    first, second = (next(i for i, row in enumerate(rows) if row.stream == n) for n in (7, 8))
    flows, _ = flows_of(rows, first, 1, NO_WAITS, pairs)
    assert flows[flows["kind"] == EVENT].to_numpy().tolist() == [[EVENT, first, 1, 140, second, 0, 150]]
    back, _ = flows_of(rows, second, 0, NO_WAITS, pairs)
    assert back[back["kind"] == EVENT].to_numpy().tolist() == [[EVENT, first, 1, 140, second, 0, 150]]
    assert EVENT not in flows_of(rows, first, 0, NO_WAITS, pairs)[0]["kind"].tolist()


def test_a_chosen_event_is_chosen_in_every_run_and_has_arrows_there(runs):
    a, b = runs
    row, event = _row(a, "stream 14"), 3 * KERNELS + 2
    view = View(runs=("a", "b"), token=2, event=Spot("a", row, event), range=(-PERIOD, 2 * PERIOD))
    assert chosen_in(runs, view, 2) == {"a": Spot("a", row, event), "b": Spot("b", _row(b, "stream 14"), event)}
    figure = timeline_figure(timeline_of(runs, view, "light", 1200)[0])
    frames = [s for s in figure.layout.shapes if s.name == "chosen"]
    arrows = [a for a in figure.layout.annotations if a.name == "arrow"]
    assert (len(frames), len(arrows)) == (2, 2)
    start = int(a.rows[row].start[event]) - a.tokens.anchor(2, "end")
    assert frames[0].x0 * 1e9 == pytest.approx(start)
    assert arrows[0].x * 1e9 == pytest.approx(start)
    assert arrows[0].ax < arrows[0].x
    without = replace(view, rows=Arrangement(hidden=("API calls",)))
    assert not [
        a for a in timeline_of(runs, without, "light", 1200)[0]["layout"]["annotations"] if a["name"] == "arrow"
    ]
    nobody = replace(view, event=Spot("a", 99, 0))
    assert chosen_in(runs, nobody, 2) == {}


def test_the_exact_times_are_said(runs):
    row = _row(runs[0], "stream 14")
    said = str(facts_of(View(runs=("a",)), runs, Spot("a", row, 1)))
    zero = runs[0].tokens.anchor(token_of(runs, View()), "end")
    start, end = (int(times[1]) for times in (runs[0].rows[row].start, runs[0].rows[row].end))
    assert f"start {start - zero} ns, end {end - zero} ns after time 0, duration {end - start} ns" in said
    assert f"own clock: {start} ns" in said
    assert "cudaLaunchKernel" in said
    assert re.search(r"', \d+(\.\d+)? µs earlier'", said)  # it was launched
    assert facts_of(View(), runs[:1], Spot("b", row, 1)) == []


def test_a_click_on_a_bin_chooses_the_longest_event_it_stands_for_and_says_of_how_many(runs):
    view = View(runs=("a", "b"), token=2)
    placed, zero = panels_of(runs, view)[1].row(role="api"), runs[1].tokens.anchor(2, "end")
    row = placed.row
    launches = np.flatnonzero(row.events["full"].astype("str") == "cudaLaunchKernel_v7000")[KERNELS : 2 * KERNELS]
    start = int(row.start[launches[0]])
    low, high = start - 100, int(row.end[launches[-1]]) + 100
    mark = {"what": "click", "y": placed.middle, "event": -1, "x": 0.0, "ends": [(t - zero) / 1e9 for t in (low, high)]}
    chosen = after_request(view, mark, runs)
    assert chosen.event == Spot("b", placed.line.index, int(launches[0]), (-100, high - start))
    assert View.parse(chosen.query()).event == View.from_data(chosen.data()).event == chosen.event
    assert after_request(chosen, mark, runs).event is None
    said = str(facts_of(view, runs, chosen.event))
    share = round(100 * KERNELS * 900 / (high - low))
    assert f"{KERNELS} events in {duration(high - low)}, busy {share}%; the longest of them:" in said
    alone = after_request(view, mark | {"ends": [(low - zero) / 1e9, (start + 950 - zero) / 1e9]}, runs)
    assert alone.event == Spot("b", placed.line.index, int(launches[0])), "it stands for no other"
    assert after_request(view, mark | {"ends": [5.0, 6.0]}, runs) == view


def test_clicks_choose_and_measure(runs):
    view = View(runs=("a", "b"), token=2)
    panel = panels_of(runs, view)[1]
    placed = panel.row(stream=14)
    click = {"what": "click", "y": placed.middle, "event": 17, "x": 0.0}
    chosen = after_request(view, click, runs)
    assert chosen.event == Spot("b", placed.line.index, 17)
    assert after_request(chosen, click, runs).event is None
    assert after_request(chosen, {"what": "forget"}, runs).event is None
    assert after_request(view, click | {"event": -1}, runs) == after_request(view, click | {"y": 1.25}, runs) == view
    start, end = (int(t[17]) - runs[1].tokens.anchor(2, "end") for t in (placed.row.start, placed.row.end))
    near = after_request(view, click | {"x": (start + 1_000) / 1e9, "measure": True}, runs)
    assert near.ruler == (start, start)
    both = after_request(near, click | {"x": (end - 1_000) / 1e9, "measure": True}, runs)
    assert both.ruler == (start, end)
    assert f"'{end - start} ns'" in str(measured(both))
    assert f"<b>{end - start:,} ns</b>" in [a.text for a in timeline_figure(
        timeline_of(runs, both, "light", 1200)[0]).layout.annotations]  # fmt: skip
    again = after_request(both, click | {"event": -1, "x": (end + 100) / 1e9, "measure": True}, runs)
    assert again.ruler[0] == again.ruler[1] == end
    assert after_request(both, click | {"y": 1.25, "measure": True}, runs) == both
    for edge, time in (("start", start), ("end", end)):
        begun = after_request(chosen, {"what": "measure", "from": edge}, runs)
        assert begun.ruler == (time, time)
        ended = after_request(begun, click | {"event": -1, "x": (end + 100) / 1e9}, runs)
        assert (ended.ruler, ended.event) == ((time, end), chosen.event)
    assert after_request(view, {"what": "measure", "from": "start"}, runs) == view
    seen = after(replace(view, range=(-5, 995)), Action("measure"), runs)
    assert seen.ruler == (-5, 995)
    assert after(seen, Action("measure"), runs).ruler is None


def test_the_minimap_is_a_lane_per_run_and_names_what_is_beside_its_steps(runs):
    phases = pd.DataFrame(
        [(BEFORE, 0, 3 * PERIOD), (CAPTURE, 100, 200), (CAPTURE, 300, 400), (CAPTURE, 3 * PERIOD, 3 * PERIOD + 50)],
        columns=["what", "start", "end"],
    )
    lanes = [Lane(run.name, run.busy, 2 * PERIOD, phases if run is runs[0] else NO_PHASES) for run in runs]
    figure = timeline_figure(minimap_plot(lanes, (-2 * PERIOD, 8 * PERIOD), "dark", 1200))
    before, capture, *_ = figure.data
    assert [trace.base for trace in figure.data] == [1, 1, 1, 0]
    assert (before.x[0], before.width[0]) == pytest.approx((-0.5 * PERIOD / 1e9, 3 * PERIOD / 1e9))
    assert list(capture.customdata) == [2, 1], "those that could not be told apart are one"
    assert [note.text for note in figure.layout.annotations] == [BEFORE], "only where there is room"
    assert not minimap_plot(lanes, (-2 * PERIOD, 8 * PERIOD), "dark", 390)["layout"]["annotations"]
    share = (runs[0].busy.share * runs[0].busy.width).sum()
    assert share == pytest.approx(TOKENS * (PERIOD - GAP), rel=0.01)


def test_what_a_recording_holds_beside_its_steps():
    name = ["cuStreamBeginCapture", "cuLaunchKernel", "cudaStreamEndCapture_v10000", "cudaStreamBeginCapture", "x"]
    api = {
        "start": [10, 12, 20, 30, 40],
        "end": [11, 13, 25, 31, 41],
        "name": name,
        "thread": [1] * 5,
        "process": [1] * 5,
    }
    trace = Trace.from_columns(api=api)
    assert captures(trace).to_numpy().tolist() == [[CAPTURE, 10, 25]], "one that does not end is none"
    table = pd.DataFrame({"start": [100, 200], "end": [150, 250]})
    others = pd.DataFrame({"phase": ["prefill", "eager"], "start": [60, 160], "end": [90, 190]})
    steps = Steps(table, "nvtx", "", others=others)
    assert phases_of(trace, steps, (0, 300)).to_numpy().tolist() == [
        [BEFORE, 0, 60], [CAPTURE, 10, 25], ["prefill", 60, 90],
        ["eager pass: a prompt or warm-up", 160, 190], [AFTER, 250, 300],
    ]  # fmt: skip
