"""Search in the timeline, without a browser."""

import numpy as np
import pandas as pd
import pytest
from dash._utils import to_json
from hypothesis import given
from hypothesis import strategies as st

from dashboard.figures import packed
from dashboard.figures.timeline import timeline_figure
from dashboard.pages.overview.actions import Action, after
from dashboard.pages.overview.tools import found
from dashboard.reading.store import RunStore
from dashboard.scene import next_match, place_of, timeline_of
from dashboard.timeline.rows import Finder
from dashboard.view import View
from tests.dashboard.test_timeline_tools import TOKENS, runs
from tests.dashboard.traces import PERIOD, decode
from tracer import Trace, formats

__all__ = ["runs"]


def _finder(names, full=None):
    start = np.arange(len(names), dtype=np.int64) * 10
    what = np.zeros(len(names), np.int8)
    return Finder(
        start,
        start + 5,
        what,
        0 * start,
        [pd.Series(n, dtype="str").astype("category") for n in (full or names, names)],
    )


NAMES = st.lists(st.sampled_from(["gemm", "GEMM_f16", "softmax", "rope", "Straße", ""]), min_size=1, max_size=60)


@given(NAMES, st.sampled_from(["gemm", "f16", "o", "STRASSE", "x y"]), st.integers(-1, 61), st.integers(0, 600))
def test_finding_is_what_a_plain_scan_finds(names, find, at, time):
    finder = _finder(names)
    hits = [i for i, name in enumerate(names) if find.casefold() in name.casefold()]
    assert finder.positions(find).tolist() == hits
    assert finder.counts(find).sum() == len(hits)
    everything = np.arange(len(names), dtype=np.int64)
    assert np.flatnonzero(finder.among(everything, find)).tolist() == hits
    assert finder.beside(find, at, 1) == next((i for i in hits if i >= at), None)
    assert finder.beside(find, at, -1) == next((i for i in reversed(hits) if i < at), None)
    spans = np.array([0, time]), np.array([time, 10**6])
    assert finder.within(*spans, find).tolist() == [sum(i * 10 < time for i in hits), sum(i * 10 >= time for i in hits)]


def test_the_next_match_goes_through_all_runs_in_time_and_around(runs):
    view = View(runs=("a", "b"), token=2, find="cudamemcpy", range=(0, PERIOD))
    times, places = [], []
    for _ in range(2 * TOKENS):
        view = after(view, Action("find-on"), runs)
        run = runs[("a", "b").index(view.event.run)]
        times.append((int(run.rows[view.event.row].start[view.event.event]) - run.tokens.anchor(2, "end"), run.key))
        assert view.range[0] <= times[-1][0] <= view.range[1]
        assert view.range[1] - view.range[0] == pytest.approx(50 * 2_000, abs=2), "the call of 2 µs is seen"
        place, count = place_of(runs, view, 2)
        places.append(place)
        assert count == 2 * TOKENS
    first = times.index(min(times))
    assert times[first:] + times[:first] == sorted(times)
    assert len(set(times)) == 2 * TOKENS
    assert places[first:] + places[:first] == list(range(1, 2 * TOKENS + 1))
    assert found(view, runs).startswith(f"{places[-1]} of {2 * TOKENS} · {2 * TOKENS} of ")
    last = view.event
    forth = after(view, Action("find-on"), runs)
    assert after(forth, Action("find-back"), runs).event == last
    assert after(View(runs=("a",), find="no such thing"), Action("find-on"), runs).event is None
    assert after(View(runs=("a",)), Action("find-on"), runs).event is None
    assert next_match([], View(find="x"), 0, (0, 1), 1) is None


def test_bins_with_matches_bear_a_marker(tmp_path):
    trace = decode(400)
    names = trace["kernels"]["name"].astype("str").to_numpy(copy=True)
    names[2_000] = "special"
    formats.write(
        Trace({**trace.tables, "kernels": trace["kernels"].assign(name=pd.Categorical(names))}), tmp_path / "a"
    )
    run = RunStore([tmp_path]).chosen(["a"])[0]
    view = View(runs=("a",), token=2, range=(-3 * PERIOD, 400 * PERIOD), find="SPECIAL")
    plot, _ = timeline_of([run], view, "light", 700)
    (match,) = [t for t in timeline_figure(plot).data if t.name == "match"]
    assert list(match.customdata) == [1]
    start = int(run.trace["kernels"]["start"].iloc[2_000]) - run.tokens.anchor(2, "end")
    assert match.x[0] * 1e9 == pytest.approx(start, abs=2 * PERIOD)
    assert len(to_json(packed(plot))) < 300_000
