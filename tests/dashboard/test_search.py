"""What a search means, and what it finds: every filter as a plain scan does, from match to match."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.figures.timeline import timeline_figure
from dashboard.pages.overview.actions import Action, after
from dashboard.pages.overview.tools import found
from dashboard.palette import KINDS
from dashboard.reading.store import RunStore
from dashboard.scene import place_of, timeline_of
from dashboard.timeline.rows import Finder, Query, query_of
from dashboard.view import View
from tests.dashboard.traces import PERIOD, decode
from tracer import Trace, formats
from tracer.model.schema import MISSING

KERNEL, COPY, SYNC = (KINDS.index(kind) for kind in ("kernel", "copy", "sync"))
TOKENS = 6


def test_what_is_typed_means():
    for text, query in {
        "": Query(),
        "void k<float>(T*)": Query("void k<float>(T*)"),
        "gemm  x": Query("gemm x"),
        ">50us": Query(longer=50_000),
        ">1.5ms <2s >1µs k": Query("k", longer=1_500_000, shorter=2_000_000_000),
        "> 50us": Query("> 50us"),
        "<8,float>": Query("<8,float>"),
        "kind:Kernel kind:copy": Query(kinds=frozenset({KERNEL, COPY})),
        "kind:fill": Query(kinds=frozenset()),
        "kind:memset": Query(kinds=frozenset({KINDS.index("memset")})),
        "stream:7 stream:13 mul": Query("mul", streams=frozenset({7, 13})),
        "stream:x": Query("stream:x"),
    }.items():
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
    assert found(view, pair).startswith(f"{places[-1]} of {2 * TOKENS} · {2 * TOKENS} of ")
    forth = after(view, Action("find-on"), pair)
    assert after(forth, Action("find-back"), pair).event == view.event
    for nothing in (View(runs=("a",), find="no such thing"), View(runs=("a",))):
        assert after(nothing, Action("find-on"), pair).event is None


def test_bins_with_matches_bear_a_marker(tmp_path):
    trace = decode(400)
    names = trace["kernels"]["name"].astype("str").to_numpy(copy=True)
    names[2_000] = "special"
    kernels = trace["kernels"].assign(name=pd.Categorical(names))
    formats.write(Trace({**trace.tables, "kernels": kernels}), tmp_path / "a")
    (run,) = RunStore([tmp_path]).chosen(["a"])
    view = View(runs=("a",), token=2, range=(-3 * PERIOD, 400 * PERIOD), find="SPECIAL")
    plot, _ = timeline_of([run], view, "light", 700)
    (match,) = [trace for trace in timeline_figure(plot).data if trace.name == "match"]
    assert list(match.customdata) == [1]
    start = int(kernels["start"].iloc[2_000]) - run.tokens.anchor(2, "end")
    assert match.x[0] * 1e9 == pytest.approx(start, abs=2 * PERIOD)
