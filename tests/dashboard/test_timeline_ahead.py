"""What lies around a view: rings of marks, coarser the further away."""

import base64
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.figures import packed
from dashboard.palette import COLOURS
from dashboard.reading.store import RunStore
from dashboard.scene import RINGS, around_of, panels_of, rings_of, timeline_of
from dashboard.view import Arrangement, View
from tests.dashboard.traces import GAP, PERIOD, decode
from tracer import formats

TOKENS = 40
VIEW = View(runs=("a",), token=20, range=(0, PERIOD))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs")
    formats.write(decode(TOKENS), directory / "a")
    return RunStore([directory]).chosen(["a"])


@given(st.integers(-(10**12), 10**12), st.integers(100, 10**12), st.integers(-(10**12), 0), st.integers(1, 10**12))
def test_each_ring_holds_the_last_one_and_the_outermost_is_the_whole(low, width, first, last):
    limits, whole = (low, low + width), (first, last)
    rings = rings_of(limits, whole)
    assert len(rings) <= len(RINGS) + 1
    for (a, b, _), (c, d, _) in pairwise(rings):
        assert c <= a
        assert b <= d
    assert rings[-1][:2] == whole
    assert all(low < high for low, high, _ in rings)


def marks_of(found, lane):
    """From and to (ns from time 0) of a lane's marks."""
    parts = []
    for bundle in found["bundles"]:
        low, high = found["rings"][bundle["ring"]]
        marks = bundle["marks"].reshape(-1, 3)
        ends = low + marks[marks[:, 2] == lane][:, :2] / 65535 * (high - low)
        parts.append(ends * 1e9)
    return np.sort(np.concatenate(parts), axis=0)


def test_the_marks_of_a_row_are_where_its_events_are(runs):
    found = around_of(runs, VIEW, "light")
    panel = panels_of(runs, VIEW)[0]
    compute = panel.row(stream=14)
    (lane,) = [at for at, place in enumerate(found["lanes"]) if place == (compute.top, compute.bottom)]
    marks = marks_of(found, lane)
    inside = marks[(marks[:, 1] > -PERIOD) & (marks[:, 0] < 2 * PERIOD)]
    edges = np.linspace(-PERIOD, 2 * PERIOD, 3001)[:-1] + 500
    is_busy = (edges - GAP) % PERIOD < PERIOD - GAP
    is_drawn = ((inside[:, 0][:, None] <= edges) & (edges < inside[:, 1][:, None])).any(axis=0)
    assert (is_busy == is_drawn).mean() > 0.995, "to a pixel"
    first, last = marks[:, 0].min(), marks[:, 1].max()
    assert first == pytest.approx(-21 * PERIOD + GAP + PERIOD - PERIOD, abs=PERIOD)
    assert last == pytest.approx((TOKENS - 21) * PERIOD, abs=PERIOD / 10)


def test_gaps_are_among_them_and_little_is_sent(runs):
    found = around_of(runs, VIEW, "dark")
    assert COLOURS["gap"] in {bundle["colour"] for bundle in found["bundles"]}
    sent = packed(found)
    assert base64.b64decode(sent["bundles"][0]["marks"]["bdata"]) == found["bundles"][0]["marks"].tobytes()
    assert sum(len(bundle["marks"]["bdata"]) for bundle in sent["bundles"]) < 60_000


def test_it_is_told_for_which_drawing_it_is(runs):
    found = around_of(runs, VIEW, "light")
    assert found["for"] == [0, PERIOD / 1e9]

    def drawn(view, theme="light"):
        return timeline_of(runs, view, theme, 1200)[0]["layout"]["meta"]["part"]

    assert found["part"] == drawn(VIEW) == drawn(View(runs=("a",), token=20, range=(5, 500)))
    assert found["part"] != drawn(VIEW, "dark")
    assert found["part"] != drawn(View(runs=("a",), token=21, range=(0, PERIOD)))
    assert found["part"] != drawn(View(runs=("a",), token=20, rows=Arrangement(hidden=("NVTX",))))
