"""Rows, layout, alignment and marks of a hand-made recording."""

import numpy as np
import pandas as pd
import pytest

from dashboard.palette import KINDS
from dashboard.timeline.align import Tokens, default_range, gap_range, tokens_of, typical_token
from dashboard.timeline.layout import GAP_STRIP, arranged, groups_of, panels
from dashboard.timeline.marks import Window, connectors, detail_of, marks_of, waits_of
from dashboard.timeline.rows import Row, rows_of, shown_functions, without_functions
from dashboard.view import Arrangement
from tests.dashboard.traces import GAP, KERNELS, PERIOD, decode
from tracer import Trace
from tracer.analysis.gaps import gap_report
from tracer.analysis.step_work import step_spans
from tracer.analysis.syncs import sync_report
from tracer.analysis.tokens import find_steps
from tracer.model.schema import HOST_COMPUTE, PYTHON_FUNCTION


@pytest.fixture(scope="module")
def trace():
    return decode()


@pytest.fixture(scope="module")
def waits(trace):
    return waits_of(sync_report(trace, find_steps(trace)).calls)


def _window(low, high, bins=500):
    return Window(low, high, 2 * PERIOD, 1000, bins)


def _marks(placed, window, waits):
    return marks_of(placed, detail_of(placed.row, window), window, waits)


def test_rows_are_threads_then_streams(trace):
    rows = rows_of(trace)
    assert [(r.label, r.role) for r in rows] == [
        ("NVTX", "nvtx"), ("API calls", "api"), ("stream 13", "stream"), ("stream 14", "stream"),
    ]  # fmt: skip
    api, copies, compute = rows[1:]
    assert [KINDS[k] for k in api.events["what"][:3]] == ["copy", "sync", "launch"]
    assert api.events["stream"][:3].tolist() == [13, 13, 14]
    assert set(copies.events["bytes"]) == {4096}
    assert len(compute.events) == 6 * KERNELS


def test_rows_without_an_event_in_the_run_stand_aside(trace):
    assert all(row.aside for row in rows_of(trace, 7 * PERIOD, 8 * PERIOD))
    rows = rows_of(trace, 4_000, 6_000)
    assert [r.label for r in rows if not r.aside] == ["NVTX", "API calls", "stream 13"]
    assert [r.label for r in rows] == ["NVTX", "API calls", "stream 13", "stream 14"], "after those, which keep places"
    assert [line.label for line in arranged(rows)] == ["NVTX", "API calls", "stream 13"]
    for name in ("stream 14", "GPU 0"):
        assert len(arranged(rows, Arrangement(shown=(name,)))) == 4


def test_nested_ranges_take_levels_and_threads_are_named_where_there_are_two():
    trace = Trace.from_columns(
        nvtx={"start": [0, 1, 5, 20], "end": [10, 4, 9, 30], "text": ["a", "b", "c", "d"], "thread": [1] * 4,
              "process": [1] * 4},
        api={"start": [0], "end": [1], "name": ["cudaFree"], "thread": [2], "process": [1]},
        threads={"process": [1], "thread": [2], "name": ["worker"]},
    )  # fmt: skip
    rows = rows_of(trace)
    assert [(r.label, r.events["name"].tolist()) for r in rows] == [
        ("NVTX · 1", ["a", "d"]), ("", ["b", "c"]), ("API calls · worker", ["cudaFree"]),
    ]  # fmt: skip


def functions(rows: list[tuple[str, int, int, int]]) -> Trace:
    """A trace of Python functions: text, start, end, thread."""
    text, start, end, thread = (list(column) for column in zip(*rows, strict=True))
    return Trace.from_columns(nvtx={
        "start": start, "end": end, "text": text, "thread": thread, "process": [1] * len(rows),
        "domain": [PYTHON_FUNCTION] * len(rows), "kind": ["push/pop"] * len(rows)})  # fmt: skip


def test_python_functions_of_the_program_are_rows_under_the_calls_of_their_thread():
    trace = functions([
        ("engine.py(1): loop", 0, 1000, 1), ("engine.py(9): step", 10, 90, 1), ("torch/_ops.py(3): call", 15, 60, 1),
        ("model.py(5): forward", 20, 50, 1), ("model.py(2): wrapper", 19, 50, 1),
        ("<built-in method cat>", 22, 30, 1), ("model.py(8): norm", 31, 40, 1),
        ("engine.py(9): step", 110, 190, 1), ("out.py(2): send", 30, 35, 2),
    ])  # fmt: skip
    steps = pd.DataFrame({"start": [0, 100], "end": [100, 200]})
    shown = shown_functions(without_functions(trace), steps)
    assert not len(trace["nvtx"])
    trace.tables["api"] = Trace.from_columns(
        api={"start": [25], "end": [26], "name": ["cudaFree"], "thread": [1], "process": [1]},
    )["api"]  # fmt: skip
    trace.tables["nvtx"] = Trace.from_columns(
        nvtx={"start": [5], "end": [95], "text": ["token"], "thread": [1], "process": [1]}
    )["nvtx"]
    rows = rows_of(trace, functions=shown)
    assert [(row.label, row.events["name"].tolist()) for row in rows] == [
        ("NVTX · 1", ["token"]), ("API calls · 1", ["cudaFree"]), ("Python · 1", ["step", "step"]), ("", ["forward"]),
        ("", ["norm"]), ("Python · 2", ["send"]),
    ]  # fmt: skip
    assert rows[3].events["full"].tolist() == ["model.py(5): forward"]
    units = [(unit.name, unit.rows) for unit in groups_of(rows)[0].units]
    assert units[2:] == [("Python · 1", (2, 3, 4)), ("Python · 2", (5,))]


def test_threads_of_the_same_name_are_told_by_their_numbers():
    trace = Trace.from_columns(
        api={"start": [0, 1, 2], "end": [1, 2, 3], "name": ["cudaFree"] * 3, "thread": [4, 5, 6], "process": [1] * 3},
        threads={
            "process": [1] * 3,
            "thread": [4, 5, 6],
            "name": ["thread 4 (Core)", "thread 5 (Core)", "thread 6 (out)"],
        },
    )
    assert [row.label for row in rows_of(trace)] == ["API calls · 4", "API calls · 5", "API calls · out"]


def test_deep_nesting_loses_no_range():
    depth = 40
    trace = Trace.from_columns(
        nvtx={"start": list(range(depth)), "end": [1000 - i for i in range(depth)], "text": ["r"] * depth,
              "thread": [1] * depth, "process": [1] * depth}
    )  # fmt: skip
    rows = rows_of(trace)
    assert sum(len(r.events) for r in rows) == depth
    assert len(rows) < 10


def test_rows_of_several_processes_stand_together_by_device():
    """So that a device has one band for its gaps, whoever computes on it."""
    trace = Trace.from_columns(
        kernels={
            "start": [0, 5, 8, 9], "end": [3, 9, 9, 12], "device": [0, 1, 0, 1], "process": [1, 1, 2, 2],
            "stream": [7] * 4, "name": ["a"] * 4,
        }
    )  # fmt: skip
    rows = rows_of(trace)
    assert [(row.device, row.process) for row in rows] == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert [row.label for row in rows[:2]] == ["GPU 0 · stream 7 · 1", "GPU 0 · stream 7 · 2"]
    (panel,) = panels([arranged(rows)])
    assert [band.device for band in panel.bands] == [0, 1]


def test_the_host_as_a_device_has_a_row_of_its_own_with_bytes_and_rate():
    trace = Trace.from_columns(
        nvtx={
            "start": [0, 1_000, 7_000, 2_000], "end": [9_000, 8_000, 7_500, 6_000],
            "text": ["token", "split 0: host", "flash_attn_ext(b)", "mul_mat(a)"], "process": [1] * 4,
            "thread": [1] * 4, "kind": ["push/pop"] * 4, "domain": ["", "", HOST_COMPUTE, HOST_COMPUTE],
            "payload": [np.nan, np.nan, np.nan, 80_000.0],
        }
    )  # fmt: skip
    *levels, computed = rows_of(trace)
    assert [[*level.events["full"]] for level in levels] == [["token"], ["split 0: host"]]
    assert (computed.label, computed.role) == ("host computes", "nvtx")
    assert [*computed.events["name"]] == ["mul_mat", "flash_attn_ext"]
    assert [*computed.events["full"]] == ["mul_mat(a)", "flash_attn_ext(b)"]
    assert {KINDS[what] for what in computed.events["what"]} == {"host"}
    placed = panels([arranged(rows_of(trace))])[0].rows[-1]
    marks = _marks(placed, _window(0, 9_000), pd.DataFrame({"start": []}))
    assert [more.partition("<br>")[2] for (more,) in marks["more"]] == ["78.1 KiB · 20.00 GB/s", ""]


def test_each_device_has_a_band_for_its_gaps():
    streams = [(0, 7), (0, 8), (3, 7)]
    rows = [Row(str(device), "stream", pd.DataFrame(), device=device, stream=stream) for device, stream in streams]
    (panel,) = panels([arranged(rows)])
    first, second = panel.bands
    assert (first.device, second.device) == (0, 3)
    assert first.bottom == panel.row(stream=8).bottom + 4 + GAP_STRIP
    assert first.bottom <= panel.row(device=3).top <= second.bottom - GAP_STRIP
    assert panel.bottom > second.bottom


def test_tokens_and_ranges(trace):
    steps = find_steps(trace)
    tokens = tokens_of(step_spans(trace, steps), gap_report(trace, steps).table, trace["api"])
    assert tokens.start.tolist() == [n * PERIOD + GAP for n in range(6)]
    assert tokens.gap.tolist() == [GAP] * 5 + [-1]
    assert tokens.period == PERIOD
    assert tokens.anchor(2, "end") == 3 * PERIOD
    assert tokens.anchor(2, "start") == 2 * PERIOD + GAP
    assert tokens.anchor(2, "launch") == 2 * PERIOD + 10_000
    assert tokens.anchor(99, "end") == 6 * PERIOD
    unknown = tokens_of(step_spans(trace, steps), None, trace["api"].head(0))
    assert unknown.launch.tolist() == unknown.start.tolist()
    low, high = default_range([tokens], "end")
    assert low < 0 < GAP < PERIOD < high < 2 * PERIOD
    low, high = gap_range([tokens], 2, "end")
    assert -GAP < low < 0
    assert GAP < high < 2 * GAP
    assert gap_range([tokens], 2, "start")[0] > low + PERIOD // 2


def test_the_typical_token_has_the_median_gap_in_every_run():
    def run(*gaps):
        n = np.arange(len(gaps))
        return Tokens(n, n * 1000, n * 1000 + 900, np.array(gaps), n * 1000 - 50)

    assert typical_token([run(900, 90, 10, 100, 95)]) == 4
    assert typical_token([run(50, 100, 100), run(20, 70, 20)]) == 2
    assert typical_token([]) == 0


def test_marks_are_exact_when_few_and_binned_when_many(trace, waits):
    compute = panels([arranged(rows_of(trace))])[0].row(stream=14)
    few = _marks(compute, _window(2 * PERIOD, 3 * PERIOD), waits)
    assert (few["share"] == 1).all()
    inside = few[few["x"] >= 0]
    assert inside["dx"].iloc[0] == pytest.approx(112_500e-9)
    assert inside["x"].iloc[0] == pytest.approx(GAP / 1e9)
    many = _marks(compute, _window(0, 6 * PERIOD, bins=10), waits)
    assert len(many) <= 13
    assert (many["dx"] * many["share"]).sum() == pytest.approx(6 * (PERIOD - GAP) / 1e9)
    assert many["more"].map(len).eq(4).all()
    assert many["more"].map(lambda more: more[0]).sum() >= 6 * KERNELS  # each kernel in every bin that it touches


def test_hover_says_name_duration_start_stream_correlation_and_wait(trace, waits):
    rows = panels([arranged(rows_of(trace))])[0]
    kernel = _marks(rows.row(stream=14), _window(2 * PERIOD + GAP, 2 * PERIOD + GAP + 1000), waits).iloc[0]
    assert kernel["title"] == "void k&lt;float&gt;(T*)"
    assert kernel["more"][0].startswith("112 µs, from +100.0 µs<br>stream 14 · correlation ")
    calls = _marks(rows.row(role="api"), _window(2 * PERIOD, 2 * PERIOD + 8_000), waits)
    (more,) = calls["more"].iloc[-1]
    assert "waited for memcpy HtoD" in more
    assert more.endswith("which ended 1.00 µs before it returned")


def test_connectors_join_a_sync_with_the_end_of_what_it_waited_for(trace, waits):
    panel = panels([arranged(rows_of(trace))])[0]
    lines = connectors(panel, waits, _window(2 * PERIOD, 2 * PERIOD + 8_000))
    copy = lines[lines["y0"] == panel.row(stream=13).middle].iloc[0]
    assert copy["x0"] == pytest.approx(6e-6)
    assert copy["x1"] == pytest.approx(7e-6)
    assert copy["y1"] == panel.row(role="api").bottom
