"""Idle holes in the timeline: where they are shaded, what a hover says, and how many are too many."""

import re
import time

import numpy as np
import pandas as pd
import pytest

from dashboard.figures.timeline import with_legend
from dashboard.palette import HOLES
from dashboard.reading.store import RunStore
from dashboard.scene import timeline
from dashboard.timeline.layout import Band, Panel
from dashboard.timeline.marks import SHADE_COLUMNS, Window, detail_of_holes, hole_rows, shades_of
from dashboard.view import View
from tests.tracer.handmade import Script
from tracer import Trace, formats
from tracer.analysis.causes import PART_COLUMNS
from tracer.analysis.gaps import gap_report
from tracer.analysis.idle import PLACES, IdleReport
from tracer.analysis.tokens import find_steps

PANEL = Panel(0, 100, [Band(0, 20, 90)], [])


def holed() -> Trace:
    """Steps of 100 µs: a kernel 1..10, idle until a graph 30..70, idle until a kernel 75..80, idle until the next."""
    script = Script()
    for begin in range(0, 400_000, 100_000):
        script.range("token", begin, begin + 99_000)
        script.launch((begin + 100, begin + 500), (begin + 1_000, begin + 10_000))
        script.graph((begin + 28_000, begin + 29_000), (begin + 30_000, begin + 70_000))
        script.launch((begin + 40_000, begin + 41_000), (begin + 75_000, begin + 80_000), name="<b>k</b>")
    return script.trace


def shaded(idle: IdleReport, low: int, high: int, bins: int = 1000) -> pd.DataFrame:
    rows, window = hole_rows(idle), Window(low, high, 0, 1000, bins)
    return shades_of(rows, [detail_of_holes(row, window) for row in rows], PANEL, window)


@pytest.fixture(scope="module")
def idle() -> IdleReport:
    trace = holed()
    return gap_report(trace, find_steps(trace)).idle


def test_every_hole_of_a_step_is_shaded_over_the_rows_of_its_device(idle):
    found = shaded(idle, 0, 100_000)
    inside = found[found["x"] < 0.0001].sort_values("x")
    assert [*found.columns] == SHADE_COLUMNS
    assert inside[["place", "x", "dx", "ns", "share", "top", "bottom"]].to_numpy().tolist() == [
        ["before_graph", 10e-6, 20e-6, 20_000, 1, 20, 90],
        ["after_graph", 70e-6, 5e-6, 5_000, 1, 20, 90],
        ["between_steps", 80e-6, 21e-6, 21_000, 1, 20, 90],
    ]


def test_a_hover_says_place_length_what_is_behind_and_why(idle):
    texts = shaded(idle, 0, 100_000).sort_values("x")["text"].tolist()
    assert texts[0] == "<b>idle before the graph: 20.0 µs</b><br>until graph 1<br>mostly host: plain host code"
    assert texts[1] == (
        "<b>idle after the graph: 5.00 µs</b><br>until &lt;b&gt;k&lt;/b&gt;<br>"
        "mostly launch: launched before the device became idle"
    )


def many(count: int) -> IdleReport:
    """So many holes of 1 µs every 5 µs, before each a kernel."""
    start = np.arange(count, dtype=np.int64) * 5_000
    table = pd.DataFrame({
        "step": start, "device": 0, "start": start, "end": start + 1_000,
        "place": pd.Categorical(["between_kernels"] * count, list(PLACES)), "next": pd.Categorical(["k"] * count),
        "part": pd.Categorical(["host_code"] * count, PART_COLUMNS),
    })  # fmt: skip
    return IdleReport(pd.DataFrame(), pd.DataFrame(), table, pd.DataFrame(), pd.DataFrame())


def test_holes_too_narrow_to_be_seen_are_merged_and_none_is_lost():
    found = shaded(many(20_000), 0, 100_000_000)
    assert len(found) <= 1000 // 4 * 1.2 + 3
    assert found["ns"].sum() == pytest.approx(20_000_000, rel=0.01)
    assert found["share"].to_numpy()[1:-1] == pytest.approx(0.2, abs=0.02)
    words = r"<b>idle between kernels: .* of .* µs</b><br>\d+ holes; the longest 1.00 µs<br>until k<br>mostly host: .*"
    assert all(re.fullmatch(words, text) for text in found["text"].iloc[1:-1])


def test_a_million_holes_are_shaded_at_once():
    rows, window = hole_rows(many(1_000_000)), Window(0, 5_000_000_000, 0, 1000, 1000)
    detail_of_holes(rows[0], window)  # its pyramid is made with the recording
    start = time.process_time()
    found = shades_of(rows, [detail_of_holes(row, window) for row in rows], PANEL, window)
    assert time.process_time() - start < 0.1
    assert found["ns"].sum() == pytest.approx(1e9, rel=0.01)


def test_places_are_told_apart_by_pattern_in_figure_and_legend(tmp_path):
    formats.write(holed(), tmp_path / "a")
    (run,) = RunStore([tmp_path / "a"]).chosen(["a"])
    figure, height = timeline([run], View(range=(-100_000, 100_000)), "light", 1200)
    drawn = {bar.name: bar for bar in figure.data if bar.name.startswith("idle ")}
    assert set(drawn) == {"idle between_steps", "idle before_graph", "idle after_graph"}
    assert {name: bar.marker.pattern.shape for name, bar in drawn.items()} == {
        "idle between_steps": None, "idle before_graph": "|", "idle after_graph": "-"
    }  # fmt: skip
    assert {a.text for a in figure.layout.annotations if a.name == "idle"} == {"idle 20.0 µs"}
    assert [a.text for a in figure.layout.annotations if a.name == "heading"] == [
        '<b>a</b>  <span style="color:#5A6675">ggg  ·  token 0  ·  idle 46.0 µs  ·  gap after it 21.0 µs  ·  '
        "traced: times are inflated</span>"
    ]
    saved, _ = with_legend(figure, height, "light")
    legend = {bar.name: bar.marker.pattern.shape for bar in saved.data if bar.type == "bar" and bar.showlegend}
    assert legend == {"idle before the graph": "|", "idle after the graph": "-"}
    assert len(set(HOLES.values())) == len(HOLES) == len(PLACES) - 1
