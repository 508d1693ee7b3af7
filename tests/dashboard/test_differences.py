"""Where a run's gap is shorter or longer than the base's, the timeline says by how much."""

from dataclasses import replace

import numpy as np
import pytest

from dashboard.reading.run import Run
from dashboard.reading.store import RunStore
from dashboard.scene import timeline, timeline_of
from dashboard.view import View
from tests.dashboard.traces import GAP, decode
from tracer import formats

AROUND = (-50_000, 400_000)


@pytest.fixture
def runs(tmp_path):
    for name, gap, tokens in (("base", 2 * GAP, 6), ("short", GAP, 6), ("long", 3 * GAP, 4)):
        formats.write(decode(tokens=tokens, gap=gap), tmp_path / name)
    return RunStore([tmp_path]).chosen(["base", "short", "long"])


def drawn(runs, **view):
    """Labels, outlines and hatching of the timeline."""
    plot, _ = timeline_of(runs, View(**{"token": 1, "range": AROUND, **view}), "light", 1200)
    layout = plot["layout"]
    labels = [(a["text"], round(a["x"] * 1e9)) for a in layout["annotations"] if a["name"] == "difference"]
    outlines = [(round(s["x0"] * 1e9), round(s["x1"] * 1e9)) for s in layout["shapes"] if s.get("name") == "base"]
    hatched = [trace for trace in plot["data"] if trace["name"] == "difference"]
    return labels, outlines, hatched[0] if hatched else None


def test_shorter_and_longer_gaps(runs):
    labels, outlines, hatched = drawn(runs)
    assert labels == [("<b>−100 µs</b>", 2 * GAP), ("<b>+100 µs</b>", 3 * GAP)]
    assert outlines == [(0, 2 * GAP)] * 2
    assert np.rint(np.array(hatched["base"]) * 1e9).tolist() == [GAP, 2 * GAP]
    assert np.rint(hatched["x"] * 1e9).tolist() == [GAP, GAP]
    assert hatched["marker"]["pattern"]["shape"] == ["/", "\\"]
    figure, _ = timeline(runs, View(token=1, range=AROUND), "dark", 1200)  # which Plotly has checked
    assert figure.data[-1].name == "difference"


def test_a_token_that_the_base_has_not_and_a_base_alone(runs):
    base, short, long = runs
    assert drawn([base]) == ([], [], None)
    assert drawn([base, base]) == ([], [], None)  # nothing differs
    labels, _, _ = drawn([long, short], token=4)  # the base has four tokens, so three gaps
    assert labels == []


def test_what_only_the_profiler_makes_different_is_not_shown(runs):
    base, short, _ = runs
    light = Run(short.key, short.name, replace(short.summary, traced=True), short.recording, short.steps)
    assert light.inflated
    assert drawn([base, light]) == ([], [], None)
