"""Rows of a hand-made recording, how they are arranged, and what of them a search finds."""

import json

import numpy as np
import pandas as pd

from dashboard.pages.overview.actions import Action, after, after_request
from dashboard.pages.overview.tools import row_list
from dashboard.palette import KINDS
from dashboard.timeline.layout import AS_RECORDED, GAP_STRIP, all_groups, arranged, groups_of, moved, panels
from dashboard.timeline.marks import NO_WAITS
from dashboard.timeline.rows import lines_of, rows_of, shown_functions, without_functions
from dashboard.view import Arrangement, View
from tests.dashboard.traces import KERNELS, PERIOD, decode
from tracer import Trace
from tracer.model.schema import HOST_COMPUTE, MISSING, PYTHON_FUNCTION


def names(rows):
    return [(row.label, row.events["name"].tolist()) for row in rows]


def test_rows_are_threads_then_streams_and_those_without_an_event_in_the_run_stand_aside():
    trace = decode()
    nvtx, api, copies, compute = rows_of(trace)
    assert [row.role for row in (nvtx, api, copies, compute)] == ["nvtx", "api", "stream", "stream"]
    assert [KINDS[k] for k in api.events["what"][:3]] == ["copy", "sync", "launch"]
    assert api.events["stream"][:3].tolist() == [13, 13, 14]
    assert set(copies.events["bytes"]) == {4096}
    assert len(compute.events) == 6 * KERNELS
    assert all(row.aside for row in rows_of(trace, 7 * PERIOD, 8 * PERIOD))
    rows = rows_of(trace, 4_000, 6_000)
    assert [row.label for row in rows] == ["NVTX", "API calls", "stream 13", "stream 14"], "each keeps its place"
    assert [line.label for line in arranged(rows)] == ["NVTX", "API calls", "stream 13"]
    for name in ("stream 14", "GPU 0"):
        assert len(arranged(rows, Arrangement(shown=(name,)))) == 4


def test_nested_ranges_take_levels_of_which_none_loses_a_range_and_threads_are_told_apart():
    trace = Trace.from_columns(
        nvtx={"start": [0, 1, 5, 20], "end": [10, 4, 9, 30], "text": ["a", "b", "c", "d"], "thread": [1] * 4,
              "process": [1] * 4},
        api={"start": [0], "end": [1], "name": ["cudaFree"], "thread": [2], "process": [1]},
        threads={"process": [1], "thread": [2], "name": ["worker"]},
    )  # fmt: skip
    expected = [("NVTX · 1", ["a", "d"]), ("", ["b", "c"]), ("API calls · worker", ["cudaFree"])]
    assert names(rows_of(trace)) == expected
    deep = {"start": [*range(40)], "end": [1000 - i for i in range(40)], "text": ["r"] * 40, "thread": [1] * 40,
            "process": [1] * 40}  # fmt: skip
    rows = rows_of(Trace.from_columns(nvtx=deep))
    assert sum(len(row.events) for row in rows) == 40
    assert len(rows) < 10
    named = Trace.from_columns(
        api={"start": [0, 1, 2], "end": [1, 2, 3], "name": ["cudaFree"] * 3, "thread": [4, 5, 6], "process": [1] * 3},
        threads={"process": [1] * 3, "thread": [4, 5, 6],
                 "name": ["thread 4 (Core)", "thread 5 (Core)", "thread 6 (out)"]},
    )  # fmt: skip
    assert [row.label for row in rows_of(named)] == ["API calls · 4", "API calls · 5", "API calls · out"]


def test_python_functions_of_the_program_are_rows_under_the_calls_of_their_thread():
    functions = [
        ("engine.py(1): loop", 0, 1000, 1), ("engine.py(9): step", 10, 90, 1), ("torch/_ops.py(3): call", 15, 60, 1),
        ("model.py(5): forward", 20, 50, 1), ("model.py(2): wrapper", 19, 50, 1), ("<built-in method cat>", 22, 30, 1),
        ("model.py(8): norm", 31, 40, 1), ("engine.py(9): step", 110, 190, 1), ("out.py(2): send", 30, 35, 2),
    ]  # fmt: skip
    text, start, end, thread = (list(column) for column in zip(*functions, strict=True))
    trace = Trace.from_columns(nvtx={
        "start": start, "end": end, "text": text, "thread": thread, "process": [1] * 9,
        "domain": [PYTHON_FUNCTION] * 9, "kind": ["push/pop"] * 9})  # fmt: skip
    shown = shown_functions(without_functions(trace), pd.DataFrame({"start": [0, 100], "end": [100, 200]}))
    assert not len(trace["nvtx"])
    others = Trace.from_columns(
        api={"start": [25], "end": [26], "name": ["cudaFree"], "thread": [1], "process": [1]},
        nvtx={"start": [5], "end": [95], "text": ["token"], "thread": [1], "process": [1]},
    )
    rows = rows_of(others, functions=shown)
    assert names(rows) == [
        ("NVTX · 1", ["token"]), ("API calls · 1", ["cudaFree"]), ("Python · 1", ["step", "step"]), ("", ["forward"]),
        ("", ["norm"]), ("Python · 2", ["send"]),
    ]  # fmt: skip
    assert rows[3].events["full"].tolist() == ["model.py(5): forward"]
    units = [(unit.name, unit.rows) for unit in groups_of(rows)[0].units]
    assert units[2:] == [("Python · 1", (2, 3, 4)), ("Python · 2", (5,))]


def test_rows_of_several_processes_stand_together_by_device_with_a_band_for_its_gaps():
    trace = Trace.from_columns(kernels={
        "start": [0, 5, 8, 9], "end": [3, 9, 9, 12], "device": [0, 1, 0, 1], "process": [1, 1, 2, 2],
        "stream": [7] * 4, "name": ["a"] * 4})  # fmt: skip
    rows = rows_of(trace)
    assert [(row.device, row.process) for row in rows] == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert [row.label for row in rows[:2]] == ["GPU 0 · stream 7 · 1", "GPU 0 · stream 7 · 2"]
    (panel,) = panels([arranged(rows)])
    first, second = panel.bands
    assert (first.device, second.device) == (0, 1)
    assert first.bottom == panel.rows[1].bottom + 4 + GAP_STRIP
    assert first.bottom <= panel.row(device=1).top <= second.bottom - GAP_STRIP
    assert panel.bottom > second.bottom


def test_the_host_as_a_device_has_a_row_of_its_own_with_bytes_and_rate():
    trace = Trace.from_columns(nvtx={
        "start": [0, 1_000, 7_000, 2_000], "end": [9_000, 8_000, 7_500, 6_000],
        "text": ["token", "split 0: host", "flash_attn_ext(b)", "mul_mat(a)"], "process": [1] * 4,
        "thread": [1] * 4, "kind": ["push/pop"] * 4, "domain": ["", "", HOST_COMPUTE, HOST_COMPUTE],
        "payload": [np.nan, np.nan, np.nan, 80_000.0]})  # fmt: skip
    *levels, computed = rows_of(trace)
    assert [[*level.events["full"]] for level in levels] == [["token"], ["split 0: host"]]
    assert (computed.label, computed.role) == ("host computes", "nvtx")
    assert [*computed.events["name"]] == ["mul_mat", "flash_attn_ext"]
    assert {KINDS[what] for what in computed.events["what"]} == {"host"}
    assert lines_of(computed, np.arange(2), 0, NO_WAITS)[0][1:] == ["78.1 KiB · 20.00 GB/s"]


def test_a_kernel_says_what_it_was_launched_with_and_nothing_that_is_not_recorded():
    axes = {f"{of}_{axis}": [size, size, MISSING] for of, size in (("grid", 3), ("block", 32)) for axis in "xyz"}
    (row,) = rows_of(Trace.from_columns(
        kernels={"start": [100, 300, 500], "end": [200, 400, 600], "name": ["k"] * 3, "stream": [7] * 3,
                 "correlation": [5, 6, MISSING], "static_shared": [1024, 0, MISSING], "registers": [16, 16, MISSING],
                 "dynamic_shared": [2048, 0, MISSING], **axes}))  # fmt: skip
    shape = "grid 3 × 3 × 3 · block 32 × 32 × 32"
    assert lines_of(row, np.arange(3), 100, NO_WAITS) == [
        ["100 ns, from ±0 ns", "stream 7 · correlation 5", f"{shape} · shared memory 3 KiB · 16 registers per thread"],
        ["100 ns, from +200 ns", "stream 7 · correlation 6", f"{shape} · shared memory 0 B · 16 registers per thread"],
        ["100 ns, from +400 ns", "stream 7"],
    ]


def test_rows_are_hidden_folded_filtered_and_moved():
    rows = rows_of(Trace.from_columns(
        nvtx={"start": [0, 1, 5], "end": [10, 4, 9], "text": ["a", "b", "c"], "thread": [1] * 3, "process": [1] * 3},
        api={"start": [0, 2], "end": [1, 3], "name": ["x", "y"], "thread": [1, 2], "process": [1, 2]},
        kernels={"start": [0, 0, 1], "end": [1, 1, 2], "device": [0, 1, 1], "stream": [7, 7, 8], "process": [1] * 3,
                 "name": ["k"] * 3}))  # fmt: skip

    def shown(**arrangement):
        return [line.label for line in arranged(rows, Arrangement(**arrangement))]

    labels = [row.label for row in rows]
    nvtx, gpu = labels[0], [f"GPU {d} · stream {s}" for d, s in ((0, 7), (1, 7), (1, 8))]
    assert shown() == labels
    assert shown(hidden=("GPU 1", nvtx)) == [*labels[2:4], gpu[0]]
    assert shown(only="STREAM 8") == [gpu[2]]
    assert shown(only="gpu 1") == gpu[1:]
    assert shown(folded=("GPU 1",))[-3:] == [gpu[0], "▸ GPU 1", ""]
    assert shown(folded=("GPU 1",), only="gpu 0") == [gpu[0]], "nothing is left of a folded group"
    assert sum(line.height for line in arranged(rows, Arrangement(folded=(nvtx,)))[:2]) <= rows[0].height
    groups = groups_of(rows)
    down = moved(groups, AS_RECORDED, "Process 1", 2)
    assert [group.name for group in all_groups([rows], down)] == ["Process 2", "GPU 0", "Process 1", "GPU 1"]
    assert sorted(shown(order=down.order)) == sorted(labels)
    swapped = moved(groups, down, gpu[2], -1)
    assert shown(order=swapped.order)[-2:] == [gpu[2], gpu[1]]
    assert moved(groups, down, "no such row", 1) == down
    assert moved(groups, AS_RECORDED, "GPU 1", 1).order == tuple(group.name for group in groups)


def test_what_the_row_list_asks_for_changes_the_view(pair):
    view = View(runs=("a", "b"))
    items = row_list(all_groups(run.rows for run in pair), view.rows)
    assert '"hide\\", \\"name\\": \\"stream 13' in json.dumps(items, default=lambda item: item.to_plotly_json())
    hidden = after_request(view, {"what": "hide", "name": "stream 13"}, pair)
    assert hidden.rows.hidden == ("stream 13",)
    assert after_request(hidden, {"what": "hide", "name": "stream 13"}, pair) == view
    assert after_request(view, {"what": "fold", "name": "GPU 0"}, pair).rows.folded == ("GPU 0",)
    assert after_request(view, {"what": "fold", "name": "\ud800"}, pair) == view
    ordered = after_request(view, {"what": "move", "name": "stream 14", "by": -1}, pair)
    assert ordered.rows.order == ("stream 14", "stream 13")
    assert after_request(ordered, {"what": "as recorded"}, pair) == view
    assert after(view, Action("only", " api "), pair).rows.only == "api"
    assert after(view, Action("only", None), pair) == view
