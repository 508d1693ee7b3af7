"""The gap page: its figures and tables, from recordings whose gaps are known, and against `intertoken gaps`."""

import json

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from dashboard.pages.gap import (
    GapPanel,
    binned,
    distribution_figure,
    figures_of,
    limit_of,
    made_of,
    panels_of,
    steps_figure,
)
from dashboard.reading.store import RunStore
from dashboard.text import microseconds
from tests.dashboard.traces import GAP, decode
from tests.recordings import SAMPLES
from tracer import formats
from tracer.analysis.causes import CAUSES
from tracer.cli import main


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs")
    formats.write(decode(tokens=40), directory / "even")
    formats.write(decode(tokens=5, gap=2 * GAP), directory / "wide")
    return RunStore([directory]).runs()


def gaps_of(us):
    """A panel with gaps of these µs, a quarter of each in a sync, the rest host code."""
    ns = (np.asarray(us) * 1e3).astype("int64")
    table = pd.DataFrame({"step": range(len(ns)), "gap": ns, **dict.fromkeys(CAUSES, 0)})
    return GapPanel("run", "", table.assign(sync=ns // 4, host=ns - ns // 4))


def test_every_gap_is_a_bar_of_its_causes(runs):
    panels = panels_of(runs)
    assert [panel.name for panel in panels] == ["even", "wide"]
    figure = steps_figure(panels, "typical", "light")
    of_even = [trace for trace in figure.data if trace.type == "bar" and trace.xaxis == "x"]
    assert all(len(trace.x) == 39 for trace in of_even)
    assert np.sum([trace.y for trace in of_even], axis=0) == pytest.approx([GAP / 1e3] * 39)
    assert not any(len(trace.x) for trace in figure.data if trace.name == "longest")
    assert [list(pair) for pair in of_even[0].customdata[:2]] == [[0, 0], [0, 1]]
    assert [panel.run for panel in panels] == ["even", "wide"]


def test_many_gaps_are_drawn_as_means_and_no_longer_gap_is_lost():
    us = np.full(200_000, 100.0)
    us[123_456] = 5000
    panel = gaps_of(us)
    bars = binned(panel.table, 1000)
    assert len(bars) == 1000
    assert (bars["first"].iloc[0], bars["last"].iloc[-1]) == (0, 199_999)
    assert bars[list(CAUSES)].to_numpy().sum(axis=1).mean() == pytest.approx(us.mean())
    figure = steps_figure([panel] * 6, "typical", "dark")
    assert len(figure.to_json()) < 300_000
    assert 123_456 in set(bars["longest_step"])
    assert limit_of([panel], "typical") == 150
    assert limit_of([panel], "all") == pytest.approx(5250)
    (marker,) = [trace for trace in steps_figure([panel], "typical", "dark").data if trace.name == "longest"]
    assert list(marker.hovertext) == ["longest 5.00 ms"]
    assert 123_300 < marker.x[0] < 123_600


def test_the_histogram_holds_every_gap_and_marks_the_percentiles():
    figure = distribution_figure([gaps_of([10] * 60 + [20] * 35 + [400] * 5)], "typical", "light")
    (bars,) = figure.data
    assert sum(bars.y) == pytest.approx(0.95)
    said = {a.name: a.text for a in figure.layout.annotations}
    assert said["p50"] == "p50 10.0 µs"
    assert said["p90"] == "p90 20.0 µs"
    assert said["beyond"] == "5 longer ▸"
    assert [shape.x0 for shape in figure.layout.shapes] == [10, 20]
    assert sum(distribution_figure([gaps_of([0.0, 0.0])], "all", "light").data[0].y) == 1


@pytest.mark.parametrize("name", ["llama1b-sccc-graph", "llama1b-saaas-node", "llama-1.1b-aaag-sequential-cuda-ngl13"])
def test_the_figures_are_those_of_the_command(name):
    facts = json.loads(CliRunner().invoke(main, ["gaps", str(SAMPLES / name), "--json"]).stdout)
    run = RunStore([SAMPLES / name], passes=False).runs()[0]
    line = figures_of(run)
    assert [line[key] for key in ("p50", "p90", "Mean")] == [
        microseconds(facts["gap_us"][key]) for key in ("p50", "p90", "mean")
    ]
    assert line["Tracing overhead, ×"] == f"{facts['distortion']:.2f}"
    assert run.gaps.warning == facts["warning"]
    if facts["untraced_gap_us"]:
        assert microseconds(facts["untraced_gap_us"]["p50"]) in line["p50 without tracing"]
    rows = made_of([run])
    assert {row["cause"]: row["mean"] for row in rows[1:] if not row["part"]} == facts["causes_us"]
    assert rows[0]["mean"] == facts["gap_us"]["mean"]
    for cause, parts in facts["parts_us"].items():
        mine = [row["mean"] for row in rows if row["cause"] == cause and row["part"]]
        assert mine == [us for us in parts.values() if us]


def test_a_run_on_several_devices_has_a_panel_for_each():
    run = RunStore([SAMPLES / "llama-1.1b-sccc-sequential-cuda-c4096-p2048-x2"], passes=False).runs()[0]
    panels = panels_of([run])
    assert [panel.name.split(" · ")[-1] for panel in panels] == ["GPU 0", "GPU 1"]
    assert sum(len(panel.table) for panel in panels) == len(run.gaps.table)
