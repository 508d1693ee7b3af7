"""What the timeline draws of recordings whose every time is known: marks, gaps, holes, arrows, differences, minimap."""

import base64
import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from dash._utils import to_json
from hypothesis import given
from hypothesis import strategies as st

from dashboard.figures import hover, packed
from dashboard.figures.timeline import timeline_figure, with_legend
from dashboard.pages.overview.minimap import Lane, minimap_plot
from dashboard.palette import HOLES, KINDS
from dashboard.reading.run import Run
from dashboard.reading.store import RunStore
from dashboard.scene import chosen_in, draw, limits_of, timeline, timeline_of, whole_of
from dashboard.text import markup
from dashboard.timeline.align import (
    AFTER,
    BEFORE,
    CAPTURE,
    NO_PHASES,
    Tokens,
    captures,
    default_range,
    gap_range,
    phases_of,
    tokens_of,
    typical_token,
)
from dashboard.timeline.flows import EVENT, LAUNCH, WAIT, event_pairs, flows_of
from dashboard.timeline.layout import Band, Panel, arranged, panels
from dashboard.timeline.marks import (
    NO_WAITS,
    Window,
    connectors,
    detail_of,
    detail_of_holes,
    hole_rows,
    marks_of,
    shades_of,
    waits_of,
)
from dashboard.timeline.rows import rows_of
from dashboard.view import Arrangement, Spot, View
from tests.dashboard.traces import GAP, KERNELS, PERIOD, decode
from tests.tracer.handmade import Script
from tracer import Trace, formats
from tracer.analysis.causes import PART_COLUMNS
from tracer.analysis.gaps import gap_report
from tracer.analysis.idle import PLACES, IdleReport
from tracer.analysis.step_work import step_spans
from tracer.analysis.steps import Steps
from tracer.analysis.syncs import sync_report
from tracer.analysis.tokens import find_steps
from tracer.model.schema import MISSING


def row_of(run, label):
    return next(at for at, row in enumerate(run.rows) if row.label == label)


def named(plot, name):
    return [trace for trace in plot["data"] if trace["name"] == name]


def noted(plot, name):
    return [note["text"] for note in plot["layout"]["annotations"] if note["name"] == name]


def test_tokens_and_the_ranges_around_one():
    trace = decode()
    steps = find_steps(trace)
    tokens = tokens_of(step_spans(trace, steps).frame(), gap_report(trace, steps).table, trace["api"])
    assert tokens.start.tolist() == [n * PERIOD + GAP for n in range(6)]
    assert tokens.gap.tolist() == [GAP] * 5 + [-1]
    assert tokens.period == PERIOD
    anchors = [tokens.anchor(*where) for where in ((2, "end"), (2, "start"), (2, "launch"), (99, "end"))]
    assert anchors == [3 * PERIOD, 2 * PERIOD + GAP, 2 * PERIOD + 10_000, 6 * PERIOD]
    unknown = tokens_of(step_spans(trace, steps).frame(), None, trace["api"].head(0))
    assert unknown.launch.tolist() == unknown.start.tolist()
    low, high = default_range([tokens], "end")
    assert low < 0 < GAP < PERIOD < high < 2 * PERIOD
    low, high = gap_range([tokens], 2, "end")
    assert -GAP < low < 0 < GAP < high < 2 * GAP
    assert gap_range([tokens], 2, "start")[0] > low + PERIOD // 2


def test_the_typical_token_has_the_median_gap_in_every_run():
    def run(*gaps):
        n = np.arange(len(gaps))
        return Tokens(n, n * 1000, n * 1000 + 900, np.array(gaps), n * 1000 - 50)

    assert typical_token([run(900, 90, 10, 100, 95)]) == 4
    assert typical_token([run(50, 100, 100), run(20, 70, 20)]) == 2
    assert typical_token([]) == 0


def test_marks_are_exact_when_few_binned_when_many_and_a_sync_is_joined_with_what_it_waited_for():
    trace = decode()
    waits = waits_of(sync_report(trace, find_steps(trace)).calls)
    (panel,) = panels([arranged(rows_of(trace))])

    def marks(placed, low, high, bins=500):
        window = Window(low, high, 2 * PERIOD, 1000, bins)
        return marks_of(placed, detail_of(placed.row, window), window, waits)

    compute = panel.row(stream=14)
    few = marks(compute, 2 * PERIOD, 3 * PERIOD)
    first = few[few["x"] >= 0].iloc[0]
    assert (first["x"], first["dx"], first["share"]) == pytest.approx((GAP / 1e9, 112_500e-9, 1))
    assert first["title"] == "void k&lt;float&gt;(T*)"
    assert first["more"][0].startswith("112 µs, from +100.0 µs<br>stream 14 · correlation ")
    many = marks(compute, 0, 6 * PERIOD, bins=10)
    assert len(many) <= 13
    assert (many["dx"] * many["share"]).sum() == pytest.approx(6 * (PERIOD - GAP) / 1e9)
    assert many["more"].map(lambda more: more[0]).sum() >= 6 * KERNELS  # each kernel in every bin that it touches
    (more,) = marks(panel.row(role="api"), 2 * PERIOD, 2 * PERIOD + 8_000)["more"].iloc[-1]
    assert "waited for memcpy HtoD" in more
    assert more.endswith("which ended 1.00 µs before it returned")
    lines = connectors(panel, waits, Window(2 * PERIOD, 2 * PERIOD + 8_000, 2 * PERIOD, 1000, 500))
    copy = lines[lines["y0"] == panel.row(stream=13).middle].iloc[0]
    assert (copy["x0"], copy["x1"], copy["y1"]) == pytest.approx((6e-6, 7e-6, panel.row(role="api").bottom))


def test_gaps_are_drawn_over_the_rows_of_their_device(tmp_path):
    script = Script()
    for begin in range(0, 400_000, 100_000):
        script.range("token", begin, begin + 99_000)
        for device, late in ((0, 0), (1, 3_000)):
            script.launch((begin + 100 + late, begin + 500 + late), (begin + 10_000 + late, begin + 90_000),
                          stream=7 + device, device=device)  # fmt: skip
    formats.write(script.trace, tmp_path / "a")
    (run,) = RunStore([tmp_path / "a"]).chosen(["a"])
    (drawing,) = draw([run], View(token=1, range=(-(10**8), 10**8)), 1000)
    middles = {band.device: (band.top, band.bottom) for band in drawing.panel.bands}
    expected = run.gaps.table["device"].map(middles).tolist()
    assert sorted(zip(drawing.gaps["top"], drawing.gaps["bottom"], strict=True)) == sorted(expected)
    assert set(expected) == set(middles.values())
    assert len(middles) == 2


def test_a_token_is_drawn_around_its_gap_and_packed_as_it_is(pair):
    plot, _ = timeline_of(pair[:1], View(token=2), "light", 1000)
    figure = timeline_figure(plot)  # which Plotly checks
    low, high = figure.layout.xaxis.range
    assert low < 0 < GAP / 1e9 < high
    (gaps,) = named(plot, "gap")
    at_zero = np.argmin(np.abs(gaps["base"]))
    assert (gaps["base"][at_zero], gaps["x"][at_zero]) == pytest.approx((0, GAP / 1e9))
    assert noted(plot, "gap") == ["100 µs", "100 µs"]
    zoomed, _ = timeline_of(pair[:1], View(token=2, range=(-GAP, 2 * GAP)), "light", 1000)
    assert noted(zoomed, "gap") == ["gap 100 µs"]
    light = json.loads(to_json(packed(plot)))
    for found, wanted in zip(light["data"], plot["data"], strict=True):
        for key in ("x", "y"):
            values = np.frombuffer(base64.b64decode(found[key]["bdata"]), found[key]["dtype"])
            np.testing.assert_array_equal(values, wanted[key])


@given(st.lists(st.text("ab <>%{}…", max_size=12), min_size=1))
def test_hovers_are_sent_once_and_read_as_if_each_were_sent_whole(texts):
    template = "<b>%{hovertext}</b><extra></extra>"
    whole = [template.replace("%{hovertext}", text) for text in texts]
    sent = hover(texts, template)
    found = [sent["hovertemplate"].replace("%{hovertext}", text, 1) for text in sent.get("hovertext", [""])]
    assert isinstance(sent.get("hovertext", []), list), "Plotly fills in from a list only"
    assert found in (whole, whole[:1])
    assert len(set(whole)) == len(set(found))
    same = ["%{x} 1"]  # which a template would fill in
    assert hover(same, template) == {"hovertext": same, "hovertemplate": template}


def test_hostile_kernel_names_reach_the_figure_escaped(tmp_path):
    for number, name in enumerate(("<img src=x onerror=alert(1)>", "$x^2$", "%{x} %{hovertext}", "nul\x00‮gnp.exe")):
        formats.write(decode(kernel=name), tmp_path / str(number))
        (run,) = RunStore([tmp_path / str(number)]).chosen([str(number)])
        (kernel,) = named(timeline_of([run], View(token=2), "light", 1000)[0], "kernel")
        said = (kernel.get("hovertext") or [kernel["hovertemplate"]])[0]
        assert markup(name, width=88) in said, name  # of all kernels


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


def test_the_ruler_numbers_the_tokens_in_view_as_many_as_have_room(pair):
    plot, _ = timeline_of(pair, View(runs=("a", "b"), token=2, range=(-PERIOD, 2 * PERIOD)), "light", 1200)
    (ruler,) = named(plot, "token")
    of_a = [(text, x) for text, x, y in zip(ruler["text"], ruler["x"], ruler["y"], strict=True) if y == ruler["y"][0]]
    assert [text for text, _ in of_a] == ["2", "3", "4", "5"]
    assert [x * 1e9 for _, x in of_a] == pytest.approx([GAP - PERIOD, GAP, PERIOD + GAP, 2 * PERIOD + GAP])
    few, _ = timeline_of(pair[:1], View(runs=("a",), token=2, range=(-40 * PERIOD, 40 * PERIOD)), "light", 450)
    assert named(few, "token")[0]["text"] == ["0"], "six tokens on 45 px have room for one number"


def holed():
    """Steps of 100 µs: a kernel 1..10, idle until a graph 30..70, idle until a kernel 75..80, idle until the next."""
    script = Script()
    for begin in range(0, 400_000, 100_000):
        script.range("token", begin, begin + 99_000)
        script.launch((begin + 100, begin + 500), (begin + 1_000, begin + 10_000))
        script.graph((begin + 28_000, begin + 29_000), (begin + 30_000, begin + 70_000))
        script.launch((begin + 40_000, begin + 41_000), (begin + 75_000, begin + 80_000), name="<b>k</b>")
    return script.trace


def shaded(idle, low, high):
    rows, window = hole_rows(idle), Window(low, high, 0, 1000, 1000)
    panel = Panel(0, 100, [Band(0, 20, 90)], [])
    return shades_of(rows, [detail_of_holes(row, window) for row in rows], panel, window)


def test_every_hole_of_a_step_is_shaded_over_the_rows_of_its_device_and_says_why():
    trace = holed()
    found = shaded(gap_report(trace, find_steps(trace)).idle, 0, 100_000)
    inside = found[found["x"] < 0.0001].sort_values("x")
    assert inside[["place", "x", "dx", "ns", "share", "top", "bottom"]].to_numpy().tolist() == [
        ["before_graph", 10e-6, 20e-6, 20_000, 1, 20, 90],
        ["after_graph", 70e-6, 5e-6, 5_000, 1, 20, 90],
        ["between_steps", 80e-6, 21e-6, 21_000, 1, 20, 90],
    ]
    assert inside["text"].tolist()[:2] == [
        "<b>idle before the graph: 20.0 µs</b><br>until graph 1<br>mostly host: plain host code",
        "<b>idle after the graph: 5.00 µs</b><br>until &lt;b&gt;k&lt;/b&gt;<br>"
        "mostly launch: launched before the device became idle",
    ]


def test_holes_too_narrow_to_be_seen_are_merged_and_none_is_lost():
    start = np.arange(20_000, dtype=np.int64) * 5_000
    table = pd.DataFrame({
        "step": start, "device": 0, "start": start, "end": start + 1_000,
        "place": pd.Categorical(["between_kernels"] * 20_000, list(PLACES)), "next": pd.Categorical(["k"] * 20_000),
        "part": pd.Categorical(["host_code"] * 20_000, PART_COLUMNS),
    })  # fmt: skip
    found = shaded(IdleReport(pd.DataFrame(), pd.DataFrame(), table, pd.DataFrame(), pd.DataFrame()), 0, 100_000_000)
    assert len(found) <= 1000 // 4 * 1.2 + 3
    assert found["ns"].sum() == pytest.approx(20_000_000, rel=0.01)
    assert found["share"].to_numpy()[1:-1] == pytest.approx(0.2, abs=0.02)
    words = r"<b>idle between kernels: .* of .* µs</b><br>\d+ holes; the longest 1.00 µs<br>until k<br>mostly host: .*"
    assert all(re.fullmatch(words, text) for text in found["text"].iloc[1:-1])


def test_places_of_holes_are_told_apart_by_pattern_in_figure_and_legend(tmp_path):
    formats.write(holed(), tmp_path / "a")
    figure, height = timeline(RunStore([tmp_path / "a"]).runs(), View(range=(-100_000, 100_000)), "light", 1200)
    patterns = {bar.name: bar.marker.pattern.shape for bar in figure.data if bar.name.startswith("idle ")}
    assert patterns == {"idle between_steps": None, "idle before_graph": "|", "idle after_graph": "-"}
    (heading,) = [a.text for a in figure.layout.annotations if a.name == "heading"]
    assert "token 0  ·  idle 46.0 µs  ·  gap after it 21.0 µs" in heading
    saved, _ = with_legend(figure, height, "light")
    legend = {bar.name: bar.marker.pattern.shape for bar in saved.data if bar.type == "bar" and bar.showlegend}
    assert legend == {"idle before the graph": "|", "idle after the graph": "-"}
    assert len(set(HOLES.values())) == len(HOLES) == len(PLACES) - 1


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


def test_the_record_of_an_event_points_at_the_wait_for_it():
    on = {"process": [1, 1], "event": [5, 5], "device": [0, 0], "context": [1, 1]}
    trace = Trace.from_columns(
        api={"start": [0, 10, 20, 30], "end": [1, 11, 21, 31], "process": [1] * 4, "thread": [1, 1, 2, 1],
             "correlation": [1, 2, 3, 4], "name": ["cudaEventRecord"] * 2 + ["cudaStreamWaitEvent"] * 2},
        cuda_events={**on, "stream": [7, 7], "correlation": [1, 2]},
        syncs={**on, "event": [5, 6], "stream": [8, 8], "correlation": [3, 4], "start": [20, 30], "end": [21, 31],
               "type": ["stream wait"] * 2},
    )  # fmt: skip
    pairs = event_pairs(trace)
    nothing_ran = dict.fromkeys(("before_stream", "ended", "after_stream", "began"), MISSING)
    assert pairs.to_dict("records") == [
        {"process": 1, "record_thread": 1, "recorded": 10, "wait_thread": 2, "waited": 20, **nothing_ran}
    ]
    rows = rows_of(trace)
    flows, _ = flows_of(rows, 0, 1, NO_WAITS, pairs)
    assert flows[["kind", "row0", "event0", "row1", "event1"]].to_numpy().tolist() == [[EVENT, 0, 1, 1, 0]]
    pd.testing.assert_frame_equal(flows_of(rows, 1, 0, NO_WAITS, pairs)[0], flows)
    assert len(flows_of(rows, 0, 0, NO_WAITS, pairs)[0]) == 0


def test_the_last_kernel_before_a_record_points_at_the_first_behind_the_wait_on_another_stream():
    start, on = np.arange(5) * 10, {"process": [1], "event": [5], "device": [0], "context": [1]}
    trace = Trace.from_columns(
        api={"start": start, "end": start + 1, "process": [1] * 5, "thread": [1] * 5, "correlation": range(1, 6),
             "name": ["cudaLaunchKernel"] * 2 + ["cudaEventRecord", "cudaStreamWaitEvent", "cudaLaunchKernel"]},
        cuda_events={**on, "stream": [7], "correlation": [3]},
        syncs={**on, "stream": [8], "correlation": [4], "start": [30], "end": [31], "type": ["stream wait"]},
        kernels={"start": [100, 110, 150], "end": [110, 140, 160], "process": [1] * 3, "device": [0] * 3,
                 "context": [1] * 3, "stream": [7, 7, 8], "correlation": [1, 2, 5], "name": ["a", "b", "c"]},
    )  # fmt: skip
    rows, pairs = rows_of(trace), event_pairs(trace)
    first, second = (next(i for i, row in enumerate(rows) if row.stream == n) for n in (7, 8))

    def events(row, event):
        flows = flows_of(rows, row, event, NO_WAITS, pairs)[0]
        return flows[flows["kind"] == EVENT].to_numpy().tolist()

    assert events(first, 1) == events(second, 0) == [[EVENT, first, 1, 140, second, 0, 150]]
    assert events(first, 0) == []


def test_a_chosen_event_is_chosen_in_every_run_and_has_arrows_there(pair):
    a, b = pair
    row, event = row_of(a, "stream 14"), 3 * KERNELS + 2
    view = View(runs=("a", "b"), token=2, event=Spot("a", row, event), range=(-PERIOD, 2 * PERIOD))
    assert chosen_in(pair, view, 2) == {"a": Spot("a", row, event), "b": Spot("b", row_of(b, "stream 14"), event)}
    figure = timeline_figure(timeline_of(pair, view, "light", 1200)[0])
    frames = [shape for shape in figure.layout.shapes if shape.name == "chosen"]
    arrows = [note for note in figure.layout.annotations if note.name == "arrow"]
    assert (len(frames), len(arrows)) == (2, 2)
    start = int(a.rows[row].start[event]) - a.tokens.anchor(2, "end")
    assert (frames[0].x0 * 1e9, arrows[0].x * 1e9) == pytest.approx((start, start))
    assert arrows[0].ax < arrows[0].x
    without = replace(view, rows=Arrangement(hidden=("API calls",)))
    assert noted(timeline_of(pair, without, "light", 1200)[0], "arrow") == []
    assert chosen_in(pair, replace(view, event=Spot("a", 99, 0)), 2) == {}


def test_where_a_gap_is_shorter_or_longer_than_the_base_s_the_timeline_says_by_how_much(tmp_path):
    for name, gap, tokens in (("base", 2 * GAP, 6), ("short", GAP, 6), ("long", 3 * GAP, 4)):
        formats.write(decode(tokens=tokens, gap=gap), tmp_path / name)
    base, short, long = RunStore([tmp_path]).chosen(["base", "short", "long"])

    def drawn(*runs, token=1):
        plot, _ = timeline_of(runs, View(token=token, range=(-50_000, 400_000)), "light", 1200)
        timeline_figure(plot)
        notes = [note for note in plot["layout"]["annotations"] if note["name"] == "difference"]
        bases = [shape for shape in plot["layout"]["shapes"] if shape.get("name") == "base"]
        labels = [(note["text"], round(note["x"] * 1e9)) for note in notes]
        outlines = [(round(shape["x0"] * 1e9), round(shape["x1"] * 1e9)) for shape in bases]
        return labels, outlines, named(plot, "difference")

    labels, outlines, (hatched,) = drawn(base, short, long)
    assert labels == [("<b>−100 µs</b>", 2 * GAP), ("<b>+100 µs</b>", 3 * GAP)]
    assert outlines == [(0, 2 * GAP)] * 2
    assert np.rint([hatched["base"], hatched["x"]] * np.array(1e9)).tolist() == [[GAP, 2 * GAP], [GAP, GAP]]
    assert hatched["marker"]["pattern"]["shape"] == ["/", "\\"]
    assert drawn(base) == drawn(base, base) == ([], [], [])
    assert drawn(long, short, token=4)[0] == [], "the base has four tokens, so three gaps"
    traced = Run(short.key, short.name, replace(short.summary, traced=True), short.recording, short.steps)
    assert traced.inflated
    assert drawn(base, traced) == ([], [], []), "of times under a profiler no difference is stated"


def test_the_minimap_is_a_lane_per_run_and_names_what_is_beside_its_steps(pair):
    phases = pd.DataFrame(
        [(BEFORE, 0, 3 * PERIOD), (CAPTURE, 100, 200), (CAPTURE, 300, 400), (CAPTURE, 3 * PERIOD, 3 * PERIOD + 50)],
        columns=["what", "start", "end"],
    )
    lanes = [Lane(run.name, run.busy, 2 * PERIOD, phases if run is pair[0] else NO_PHASES) for run in pair]
    figure = timeline_figure(minimap_plot(lanes, (-2 * PERIOD, 8 * PERIOD), "dark", 1200))
    before, capture, *_ = figure.data
    assert [trace.base for trace in figure.data] == [1, 1, 1, 0]
    assert (before.x[0], before.width[0]) == pytest.approx((-0.5 * PERIOD / 1e9, 3 * PERIOD / 1e9))
    assert list(capture.customdata) == [2, 1], "those that could not be told apart are one"
    assert [note.text for note in figure.layout.annotations] == [BEFORE], "only where there is room"
    assert not minimap_plot(lanes, (-2 * PERIOD, 8 * PERIOD), "dark", 390)["layout"]["annotations"]
    assert (pair[0].busy.share * pair[0].busy.width).sum() == pytest.approx(6 * (PERIOD - GAP), rel=0.01)


def test_what_a_recording_holds_beside_its_steps(tmp_path):
    names = ["cuStreamBeginCapture", "cuLaunchKernel", "cudaStreamEndCapture_v10000", "cudaStreamBeginCapture", "x"]
    trace = Trace.from_columns(api={"start": [10, 12, 20, 30, 40], "end": [11, 13, 25, 31, 41], "name": names,
                                    "thread": [1] * 5, "process": [1] * 5})  # fmt: skip
    assert captures(trace).to_numpy().tolist() == [[CAPTURE, 10, 25]], "one that does not end is none"
    others = pd.DataFrame({"phase": ["prefill", "eager"], "start": [60, 160], "end": [90, 190]})
    steps = Steps(pd.DataFrame({"start": [100, 200], "end": [150, 250]}), "nvtx", "", others=others)
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
