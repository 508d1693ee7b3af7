"""What the figures hold: bars, gaps, labels, ticks; and how names, times and sizes are written."""

import base64
import json
import re

import numpy as np
import pytest
from dash._utils import to_json

from dashboard.figures import Causes, causes_figure, causes_height, packed
from dashboard.figures.timeline import timeline_figure, timeline_plot
from dashboard.palette import COLOURS
from dashboard.reading.store import RunStore
from dashboard.scene import draw, limits_of, timeline_of
from dashboard.text import duration, markup, plain, ticks
from dashboard.view import View
from executor.run import execute
from executor.run.configuration import Configuration
from executor.run.directory import write_run
from tests.dashboard.traces import GAP, PERIOD, decode
from tracer import Trace, formats
from tracer.analysis.causes import CAUSES


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "a"
    formats.write(decode(), path)
    return RunStore([path]).chosen(["a"])[0]


def _figure(run, view, theme="light"):
    return timeline_figure(timeline_plot(draw([run], view, 1000), limits_of([run], view), "end", theme, 1000))


def test_gaps_are_drawn_over_the_rows_of_their_device(tmp_path):
    (result,) = execute([Configuration(devices=2, tokens=6, repeats=1, warmup=1)])
    run = RunStore([write_run(result, tmp_path)]).chosen([result.configuration.name])[0]
    view = View(token=3, range=(-(10**8), 10**8))
    (drawing,) = draw([run], view, 1000)
    middles = {band.device: (band.top, band.bottom) for band in drawing.panel.bands}
    assert [*middles] == [0, 1]
    expected = run.gaps.table["device"].map(middles).tolist()
    assert sorted(zip(drawing.gaps["top"], drawing.gaps["bottom"], strict=True)) == sorted(expected)
    assert len(set(expected)) == 2


def test_the_timeline_shows_one_token_around_its_gap(run):
    view = View(token=2)
    figure = _figure(run, view)
    low, high = figure.layout.xaxis.range
    assert low < 0 < GAP / 1e9 < high
    gaps = next(t for t in figure.data if t.name == "gap")
    at_zero = np.argmin(np.abs(np.asarray(gaps.base)))
    assert gaps.base[at_zero] == pytest.approx(0)
    assert gaps.x[at_zero] == pytest.approx(GAP / 1e9)
    assert [a.text for a in figure.layout.annotations if a.name == "gap"] == ["100 µs", "100 µs"]
    zoomed = _figure(run, View(token=2, range=(-GAP, 2 * GAP)))
    assert [a.text for a in zoomed.layout.annotations if a.name == "gap"] == ["gap 100 µs"]
    assert {t.name for t in figure.data} >= {"gap", "kernel", "copy", "sync", "launch", "nvtx", "waited for"}
    assert list(figure.layout.yaxis.ticktext) == ["NVTX", "API calls", "stream 13", "stream 14"]
    assert all(t.marker.color == COLOURS[t.name] for t in figure.data if t.name in COLOURS)


def test_causes_add_up_to_the_total_at_the_end():
    causes = {"sync": 10.0, "copy": 20.0, "launch": 30.0, "host": 39.9, "other process/thread": 0.1}
    figure = causes_figure([Causes("a<b>", causes, "traced: inflated"), Causes("b", {"sync": 5.0})], "light")
    assert [t.name for t in figure.data] == list(CAUSES.values())
    assert sum(t.x[0] for t in figure.data) == pytest.approx(100e-6)
    totals = [a for a in figure.layout.annotations if a.name == "total"]
    assert [a.text for a in totals] == ["<b>100 µs</b>", "<b>5.00 µs</b>"]
    assert totals[0].x == pytest.approx(100e-6)
    names = [a.text for a in figure.layout.annotations if a.name == "run"]
    assert names[0].startswith("a&lt;b&gt;")
    assert "traced: inflated" in names[0]


def test_on_a_phone_notes_have_their_own_lines_and_are_shown_whole():
    note = "between steps (the gap) 230 µs · before the graph 1.35 ms · traced: inflated"
    causes = [Causes("a", {"sync": 5.0}, note), Causes("b", {"sync": 5.0}, "short")]
    wide, phone = (causes_figure(causes, "light", width).layout.annotations[0].text for width in (1200, 330))
    assert note in wide
    assert "<br>" not in wide
    assert phone.count("<br>") == 2
    assert note == re.sub("<[^>]*>", "", phone.replace("<br>", " ")).removeprefix("a ")
    assert causes_height(causes, 330) - causes_height(causes, 1200) == 2 * 2 * 17


@pytest.mark.parametrize(
    ("ns", "text"),
    [(0, "0 ns"), (999, "999 ns"), (1_000, "1.00 µs"), (150_321, "150 µs"), (999_999, "1.00 ms"),
     (12_345_678, "12.3 ms"), (1.5e9, "1.50 s"), (3.6e12, "3,600 s"), (-2_500_000, "−2.50 ms"), (9_996, "10.0 µs")],
)  # fmt: skip
def test_durations(ns, text):
    assert duration(ns) == text


def test_ticks_are_round_inside_and_in_one_unit():
    assert ticks(-200_000, 1_150_000, 5) == ([0, 500_000, 1_000_000], ["0", "500 µs", "1,000 µs"])
    times, texts = ticks(3_141_600, 3_142_600, 8)
    assert times[0] == 3_141_600
    assert texts[0] == "3,141,600 ns"
    assert ticks(-2_000_000_000, 0, 3)[1] == ["−2 s", "−1 s", "0"]
    assert ticks(-50_000, 60_000, 12)[1][0] == "−50 µs"


HOSTILE = ["<img src=x onerror=alert(1)>", "void k<float>(T*)", "a & b &lt; c", "$x^2$", "‮gnp.exe", "nul\x00byte",
           "<b>bold</b><br>line", "%{x} %{hovertext}", "x" * 10_000, "\ud800", "", "🚀 émoji"]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_become_literal_text(name):
    shown = markup(name)
    assert "<" not in shown
    assert "$" not in shown
    assert len(plain(name)) <= 400
    shown.encode()
    assert plain(name).isprintable()
    broken = markup(name, width=20)
    assert broken.replace("<br>", "").count("<") == 0


@pytest.mark.parametrize("name", HOSTILE[:8])
def test_hostile_kernel_names_reach_the_figure_escaped(name, tmp_path):
    formats.write(decode(kernel=name), tmp_path / "a")
    run = RunStore([tmp_path / "a"]).chosen(["a"])[0]
    figure = _figure(run, View(token=2))
    kernel = next(t for t in figure.data if t.name == "kernel")
    text = markup(name, width=88)  # of all kernels
    assert text in (kernel.hovertext or [kernel.hovertemplate])[0]


def test_a_figure_of_many_rows_stays_light(tmp_path):
    """Bins get wider until what is drawn is little enough, and still every kernel is drawn or counted."""
    streams, each = 40, 400
    count = streams * each
    start = np.arange(count, dtype=np.int64) * 5_000
    long = decode(tokens=count * 5_000 // PERIOD)
    kernels = {
        "start": start, "end": start + 4_000, "stream": np.arange(count) % streams + 100, "process": np.full(count, 7),
        "device": np.zeros(count, int), "correlation": np.arange(count) + 1_000_000, "name": ["k"] * count,
    }  # fmt: skip
    formats.write(Trace.from_columns(**{**long.tables, "kernels": kernels}), tmp_path / "a")
    run = RunStore([tmp_path / "a"]).chosen(["a"])[0]
    whole = View(runs=("a",), range=(-count * 5_000, count * 5_000))
    (drawing,) = draw([run], whole, 1200)
    assert len(drawing.marks) <= 2400
    details = [row.pyramid.detail(0, count * 5_000, 100) for row in run.rows if row.stream >= 100]
    assert [len(d.exact) + d.count.sum() for d in details] == pytest.approx([each] * streams, rel=0.1)
    plot, _ = timeline_of([run], whole, "light", 1400)
    assert len(to_json(packed(plot))) < 300_000


def test_a_packed_plot_is_the_plot(run):
    plot, _ = timeline_of([run], View(token=2), "light", 1000)
    light = json.loads(to_json(packed(plot)))
    assert {t["name"] for t in light["data"]} >= {"gap", "kernel", "sync", "waited for", "text"}
    for found, wanted in zip(light["data"], plot["data"], strict=True):
        for key in ("x", "y"):
            values = np.frombuffer(base64.b64decode(found[key]["bdata"]), found[key]["dtype"])
            np.testing.assert_array_equal(values, wanted[key])
        assert found.get("base") == wanted.get("base")
    assert light["layout"]["xaxis"]["range"] == plot["layout"]["xaxis"]["range"]
