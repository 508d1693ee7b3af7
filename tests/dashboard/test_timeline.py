"""The timeline of recordings whose every time is known: its rows, what is drawn of them, and what is found."""

import re
from dataclasses import fields
from unittest import mock

import numpy as np
import pandas as pd
import pytest
from dash._utils import to_json
from hypothesis import example, given
from hypothesis import strategies as st

from dashboard.figures import packed
from dashboard.pages.overview.actions import Action, after
from dashboard.pages.overview.tools import matched
from dashboard.palette import KINDS
from dashboard.reading.store import RunStore
from dashboard.scene import draw, limits_of, place_of, range_of, timeline_of, whole_of
from dashboard.timeline import pyramid
from dashboard.timeline.align import AFTER, BEFORE, CAPTURE, captures, phases_of
from dashboard.timeline.flows import EVENT, LAUNCH, WAIT, event_pairs, flows_of
from dashboard.timeline.layout import AS_RECORDED, GAP_STRIP, all_groups, arranged, groups_of, moved, panels
from dashboard.timeline.marks import NO_WAITS
from dashboard.timeline.pyramid import Detail, Pyramid, detail, in_view
from dashboard.timeline.rows import Finder, Query, lines_of, query_of, rows_of, shown_functions, without_functions
from dashboard.view import Arrangement, View
from tests.dashboard.traces import KERNELS, PERIOD, decode
from tests.tracer.handmade import Script
from tracer import Trace, formats
from tracer.analysis.steps import Others, StepRows, Steps
from tracer.engines.engine import DECODE
from tracer.model.columns import Names
from tracer.model.intervals import total
from tracer.model.schema import MISSING


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


def test_python_functions_of_the_program_are_rows_under_the_calls_of_their_thread():
    functions = [
        ("engine.py(1): loop", 0, 1000, 1), ("engine.py(9): step", 10, 90, 1), ("torch/_ops.py(3): call", 15, 60, 1),
        ("model.py(5): forward", 20, 50, 1), ("model.py(2): wrapper", 19, 50, 1), ("<built-in method cat>", 22, 30, 1),
        ("model.py(8): norm", 31, 40, 1), ("engine.py(9): step", 110, 190, 1), ("out.py(2): send", 30, 35, 2),
    ]  # fmt: skip
    script = Script()
    for function in functions:
        script.function(*function)
    trace = script.trace
    shown = shown_functions(without_functions(trace), pd.DataFrame({"start": [0, 100], "end": [100, 200]}))
    assert not len(trace["nvtx"])
    others = Script()
    others.call("cudaFree", 25, 26, thread=1)
    others.range("token", 5, 95, thread=1)
    rows = rows_of(others.trace, functions=shown)
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


def row_of(run, label):
    return next(at for at, row in enumerate(run.rows) if row.label == label)


def test_a_figure_of_many_rows_stays_light_and_every_kernel_is_drawn_or_counted(tmp_path):
    streams, each = 40, 400
    count = streams * each
    start = np.arange(count, dtype=np.int64) * 5_000
    kernels = {
        "start": start, "end": start + 4_000, "stream": np.arange(count) % streams + 100, "process": np.full(count, 7),
        "device": np.zeros(count, int), "correlation": np.arange(count) + 1_000_000, "name": ["k"] * count,
    }  # fmt: skip
    formats.write(Trace.from_columns(**{**decode(count * 5_000 // PERIOD).tables, "kernels": kernels}), tmp_path / "a")
    (run,) = RunStore([tmp_path / "a"]).chosen(["a"])
    whole = View(runs=("a",), range=(-count * 5_000, count * 5_000))
    assert len(draw([run], whole, 1200)[0].marks) <= 2400
    details = [row.pyramid.detail(0, count * 5_000, 100) for row in run.rows if row.stream >= 100]
    assert [len(d.exact) + d.count.sum() for d in details] == pytest.approx([each] * streams, rel=0.1)
    assert len(to_json(packed(timeline_of([run], whole, "light", 1400)[0]))) < 300_000


def test_a_launch_points_at_its_kernel_and_a_copy_at_the_sync_that_waits_for_it(pair):
    run = pair[0]
    api, compute = row_of(run, "API calls"), row_of(run, "stream 14")

    def flows(row, event):
        return flows_of(run.rows, row, event, run.waits, run.event_pairs)[0]

    launch = int(np.flatnonzero(run.rows[api].events["what"] == KINDS.index("launch"))[KERNELS - 1])
    assert flows(api, launch).to_dict("records") == [
        {"kind": LAUNCH, "row0": api, "event0": launch, "time0": int(run.rows[api].start[launch]), "row1": compute,
         "event1": KERNELS - 1, "time1": int(run.rows[compute].start[KERNELS - 1])}
    ]  # fmt: skip
    pd.testing.assert_frame_equal(flows(compute, KERNELS - 1), flows(api, launch))
    copy = flows(row_of(run, "stream 13"), 2)
    assert copy["kind"].tolist() == [LAUNCH, WAIT]
    assert (copy["time0"].iloc[1], copy["time1"].iloc[1]) == (2 * PERIOD + 6_000, 2 * PERIOD + 7_000)
    pd.testing.assert_frame_equal(flows(api, int(copy["event1"].iloc[1])), copy.iloc[1:].reset_index(drop=True))
    assert len(flows(row_of(run, "NVTX"), 0)) == 0


def test_the_last_kernel_before_a_record_points_at_the_first_behind_the_wait_and_else_the_call_at_the_call():
    script = Script()
    for at, name in ((0, "a"), (10, "b")):
        script.launch((at, at + 1), (at + 100 + at, 110 + 3 * at), name=name)
    script.record(20, 21, event=5)
    script.wait(30, 31, event=5, stream=8)
    script.launch((40, 41), (150, 160), stream=8)
    trace = script.trace

    def events(trace, row, event):
        flows = flows_of(rows_of(trace), row, event, NO_WAITS, event_pairs(trace))[0]
        return flows[flows["kind"] == EVENT].drop(columns="kind").to_numpy().tolist()

    first, second = (at for at, row in enumerate(rows_of(trace)) if row.role == "stream")
    assert events(trace, first, 1) == events(trace, second, 0) == [[first, 1, 140, second, 0, 150]]
    assert events(trace, first, 0) == []
    idle = Trace({name: table for name, table in trace.tables.items() if name != "kernels"})
    assert [flow[:2] + flow[3:5] for flow in events(idle, 0, 2)] == [[0, 2, 0, 3]]
    assert events(idle, 0, 2) == events(idle, 0, 3)


def test_what_a_recording_holds_beside_its_steps(tmp_path):
    names = ["cuStreamBeginCapture", "cuLaunchKernel", "cudaStreamEndCapture_v10000", "cudaStreamBeginCapture", "x"]
    trace = Trace.from_columns(api={"start": [10, 12, 20, 30, 40], "end": [11, 13, 25, 31, 41], "name": names,
                                    "thread": [1] * 5, "process": [1] * 5})  # fmt: skip
    assert captures(trace).to_numpy().tolist() == [[CAPTURE, 10, 25]], "one that does not end is none"
    others = Others(Names.of(["prefill", "eager"]), np.array([60, 160]), np.array([90, 190]))
    none, of_decode = np.zeros(2, np.int64), Names.of([DECODE] * 2)
    times = np.array([100, 200]), np.array([150, 250])
    steps = Steps(StepRows(none, *times, *[none] * 3, of_decode, *[none] * 4), "nvtx", "", others=others)
    assert phases_of(trace, steps, (0, 300)).to_numpy().tolist() == [
        [BEFORE, 0, 60], [CAPTURE, 10, 25], ["prefill", 60, 90], ["eager pass: a prompt or warm-up", 160, 190],
        [AFTER, 250, 300],
    ]  # fmt: skip
    whole = decode()
    early = whole["api"].head(1).assign(start=-40 * PERIOD, end=-39 * PERIOD)
    calls = pd.concat([early, whole["api"]], ignore_index=True)
    formats.write(whole.map_tables(lambda name, frame: calls if name == "api" else frame), tmp_path / "a")
    runs = RunStore([tmp_path]).chosen(["a"])
    assert whole_of(runs, View(runs=("a",), token=0)) == (-41 * PERIOD, 5 * PERIOD)
    assert runs[0].phases_beside["what"].tolist() == [BEFORE]
    assert limits_of(runs, View(runs=("a",), token=0))[0] > -PERIOD


SPANS = st.lists(st.tuples(st.integers(-500, 1500), st.integers(0, 300)), min_size=1, max_size=150)
SEEN = st.tuples(st.integers(-3000, 900), st.integers(1, 6000))


def _arrays(events):
    start, length = np.array(sorted(events), dtype=np.int64).T.copy()
    return start, start + length


@given(SPANS, SEEN, st.integers(1, 40))
def test_every_event_is_drawn_or_counted_and_busy_time_is_exact(events, view, bins):
    start, end = _arrays(events)
    low, high = view[0], view[0] + view[1]
    chosen = in_view(start, np.maximum.accumulate(end), end, low, high)
    drawn = detail(start, end, chosen, low, high, bins)
    merged = np.setdiff1d(chosen, drawn.exact)
    if len(chosen) <= bins:
        assert len(merged) == 0
    assert drawn.busy.sum() == total(np.clip(start[merged], low, high), np.clip(end[merged], low, high))
    seen = set()
    for a, b, busy, count, longest in zip(drawn.start, drawn.end, drawn.busy, drawn.count, drawn.longest, strict=True):
        inside = [i for i in merged if start[i] < b and (end[i] > a or start[i] >= a)]
        assert count == len(inside) > 0
        assert busy <= b - a
        assert longest in inside
        assert end[longest] - start[longest] == max(end[i] - start[i] for i in inside)
        seen |= {*inside}
    assert (drawn.start[1:] >= drawn.end[:-1]).all()
    assert seen == {*merged}, "none is without a bin"


def _reference(start, end, low, high, bins):
    """What `detail` says of the view, widened to whole bins of a power of two."""
    width = 1
    while width * bins < high - low:
        width *= 2
    low, high = low // width * width, -(-high // width) * width
    chosen = in_view(start, np.maximum.accumulate(end), end, low, high)
    return detail(start, end, chosen, low, high, (high - low) // width)


@given(SPANS, SEEN, st.integers(1, 12), st.sampled_from([1, 2, 4, 1000]))
@example([(0, 300), *((n, 0) for n in range(100))], (40, 30), 12, 1)
@example([(0, 0)] * 9, (-1, 58), 8, 1)
def test_a_pyramid_says_what_detail_says_with_levels_and_without(events, view, bins, sparing):
    start, end = _arrays(events)
    with mock.patch.multiple(pyramid, FEW=4, _SPARING=sparing):
        levels = Pyramid.of(start, end)
        drawn, wanted = levels.detail(view[0], sum(view), bins), _reference(start, end, view[0], sum(view), bins)
        for column in fields(Detail):
            found = getattr(drawn, column.name)
            np.testing.assert_array_equal(found, getattr(wanted, column.name), column.name)
            assert found.dtype == np.int64


KERNEL, COPY, SYNC = (KINDS.index(kind) for kind in ("kernel", "copy", "sync"))
TOKENS = 6


def test_what_is_typed_means():
    for text, query in {
        "": Query(), "void k<float>(T*)": Query("void k<float>(T*)"), "gemm  x": Query("gemm x"),
        ">50us": Query(longer=50_000), ">1.5ms <2s >1µs k": Query("k", longer=1_500_000, shorter=2_000_000_000),
        "> 50us": Query("> 50us"), "<8,float>": Query("<8,float>"), "stream:x": Query("stream:x"),
        "kind:Kernel kind:copy": Query(kinds=frozenset({KERNEL, COPY})), "kind:fill": Query(kinds=frozenset()),
        "kind:memset": Query(kinds=frozenset({KINDS.index("memset")})),
        "stream:7 stream:13 mul": Query("mul", streams=frozenset({7, 13})),
    }.items():  # fmt: skip
        assert query_of(text) == query, text


EVENTS = st.lists(
    st.tuples(st.sampled_from(["gemm", "GEMM_f16", "Straße"]), st.integers(0, 40),
              st.sampled_from([KERNEL, COPY, SYNC]), st.sampled_from([7, 13, MISSING])),
    min_size=1, max_size=40,
)  # fmt: skip
TEXTS = st.sampled_from(["", "gemm", "f16", "STRASSE", "x y"])


@given(EVENTS, TEXTS, st.integers(0, 40), st.integers(0, 40), st.booleans(), st.booleans(), st.integers(-1, 41))
def test_filters_find_what_a_plain_scan_finds(events, text, longer, shorter, of_kind, on_stream, at):
    names, lengths, what, streams = (list(each) for each in zip(*events, strict=True))
    start = np.arange(len(events), dtype=np.int64) * 100
    category = pd.Series(names, dtype="str").astype("category")
    finder = Finder(start, start + lengths, np.array(what, np.int8), np.array(streams), [category, category])
    words = [text, f">{longer}ns", f"<{shorter}ns", "kind:sync" * of_kind, "stream:7" * on_stream]
    hits = [
        at for at, (name, length, kind, stream) in enumerate(events)
        if text.casefold() in name.casefold() and longer < length < shorter and (kind == SYNC or not of_kind)
        and (stream == 7 or not on_stream)
    ]  # fmt: skip
    find = " ".join(filter(None, words))
    assert finder.positions(find).tolist() == np.flatnonzero(finder.among(np.arange(len(events)), find)).tolist()
    assert finder.positions(find).tolist() == hits
    assert [finder.has(find, at) for at in range(len(events))] == [at in hits for at in range(len(events))]
    assert finder.counts(find).sum() == len(hits)
    assert finder.beside(find, at, 1) == next((i for i in hits if i >= at), None)
    assert finder.beside(find, at, -1) == next((i for i in reversed(hits) if i < at), None)
    assert finder.before(find, 20) == sum(at < 20 for at in hits)
    assert finder.starting_before(find, 1_000) == sum(at < 10 for at in hits)
    spans = np.array([0, 1_000]), np.array([1_000, 10**6])
    assert finder.within(*spans, find).tolist() == [sum(at < 10 for at in hits), sum(at >= 10 for at in hits)]


def test_the_next_match_goes_through_all_runs_in_time_and_around(pair):
    view = View(runs=("a", "b"), token=2, find="cudamemcpy", range=(0, PERIOD))
    times, places = [], []
    for _ in range(2 * TOKENS):
        view = after(view, Action("find-on"), pair)
        run = pair[("a", "b").index(view.event.run)]
        times.append((int(run.rows[view.event.row].start[view.event.event]) - run.tokens.anchor(2, "end"), run.key))
        assert view.range[0] <= times[-1][0] <= view.range[1]
        assert view.range[1] - view.range[0] == pytest.approx(50 * 2_000, abs=2), "the call of 2 µs is seen"
        place, count = place_of(pair, view, 2)
        places.append(place)
        assert count == 2 * TOKENS
    first = times.index(min(times))
    assert times[first:] + times[:first] == sorted(times)
    assert len(set(times)) == 2 * TOKENS
    assert places[first:] + places[:first] == list(range(1, 2 * TOKENS + 1))
    assert matched(view, pair).startswith(f"{places[-1]} of {2 * TOKENS} · {2 * TOKENS} of ")
    forth = after(view, Action("find-on"), pair)
    assert after(forth, Action("find-back"), pair).event == view.event
    assert after(View(runs=("a",), find="no such thing"), Action("find-on"), pair).event is None


def test_all_gaps_in_view_are_shaded_however_many_and_the_last_step_fills_its_view(tmp_path):
    formats.write(decode(tokens=2_000), tmp_path / "a")
    runs = RunStore([tmp_path]).chosen(["a"])
    view = View(("a",), range=range_of(runs, View(("a",)), "all"))
    (gaps,) = [trace for trace in timeline_of(runs, view, "light", 1200)[0]["data"] if trace["name"] == "gap"]
    assert gaps["x"].sum() == pytest.approx(runs[0].gaps.table["gap"].sum() / 1e9)
    assert len(gaps["x"]) < 700
    low, high = limits_of(runs, View(("a",), token=1_999))
    assert (high - low, high) == (1.35 * PERIOD, 0.15 * PERIOD)
    assert limits_of(runs, View(("a",), token=5)) == (-0.2 * PERIOD, 1.15 * PERIOD)


def test_a_call_has_one_form():
    rows = rows_of(decode(), 0, 10**9, None)
    (calls,) = [row.events for row in rows if row.role == "api"]
    assert {str(name) for name in calls["full"]} == {str(name) for name in calls["name"]}
    assert not any(re.search(r"_v\d+$", str(name)) for name in calls["full"])
