"""Sums of an area, on recordings whose every time is known."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dashboard.pages.overview import areas
from dashboard.pages.overview.actions import Action, after, after_request
from dashboard.pages.overview.areas import GroupedRow, area_sums, grouped_rows, sums, sums_of, text_of
from dashboard.reading.store import RunStore
from dashboard.scene import panels_of
from dashboard.timeline.flows import NO_OPERATOR, operators_of
from dashboard.timeline.rows import rows_of
from dashboard.view import GROUPINGS, Area, Arrangement, View
from tests.dashboard.traces import GAP, KERNELS, PERIOD, decode
from tracer import Trace, formats
from tracer.model import intervals

TOKENS = 6


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs")
    formats.write(decode(TOKENS), directory / "a")
    formats.write(decode(TOKENS, gap=2 * GAP), directory / "b")
    return RunStore([directory]).chosen(["a", "b"])


def _rows(*streams):
    """A row per stream, of kernels (start, end, name)."""
    found = [(*kernel, stream) for stream, kernels in enumerate(streams) for kernel in kernels]
    start, end, name, stream = (list(each) for each in zip(*found, strict=True))
    return rows_of(Trace.from_columns(kernels={"start": start, "end": end, "name": name, "stream": stream}))


def _by_name(rows, low, high, step=0):
    names = [[str(name) for name in row.events["full"].cat.categories] for row in rows]
    parts = [GroupedRow(row, n, lambda e, row=row: row.codes[1][e]) for row, n in zip(rows, names, strict=True)]
    return sums(parts, low, high, step)


def test_a_union_counts_once_what_overlaps_on_several_streams():
    rows = _rows([(0, 100, "k"), (150, 200, "m")], [(50, 120, "k")])
    found = _by_name(rows, 0, 1_000, 500)
    assert found.index.tolist() == ["k", "m"]
    assert found.loc["k"].tolist() == [2, 170, 120, 85, 0.12, 0.24]
    assert found.loc["m"].tolist() == [1, 50, 50, 50, 0.05, 0.1]


def test_the_borders_of_an_area_clip_and_what_only_touches_them_is_outside():
    rows = _rows([(0, 10, "before"), (5, 20, "over the left"), (12, 12, "instant"), (18, 40, "over the right"),
                  (30, 40, "after")])  # fmt: skip
    found = _by_name(rows, 10, 30)
    assert found[["count", "total", "union"]].T.to_dict("list") == {
        "over the right": [1, 12, 12], "over the left": [1, 10, 10], "instant": [1, 0, 0],
    }  # fmt: skip
    assert found["of_step"].isna().all()


def test_nothing_is_in_an_empty_area_or_without_rows():
    rows = _rows([(0, 10, "k")])
    assert _by_name(rows, 20, 30).empty
    assert _by_name(rows, 5, 5).empty
    assert sums([], 0, 10).empty


KERNEL = st.tuples(st.integers(0, 60), st.integers(0, 30), st.sampled_from("kmn")).map(
    lambda k: (k[0], k[0] + k[1], k[2])
)
STREAM = st.lists(KERNEL, min_size=1, max_size=25)


@given(st.lists(STREAM, min_size=1, max_size=3), st.integers(-5, 90), st.integers(-5, 90), st.integers(1, 4))
@example([[(0, 50, "k"), (1, 2, "k"), (3, 4, "k")]], 0, 60, 1)
def test_sums_are_those_of_a_plain_count_however_many_pieces_there_are(streams, low, high, at_once):
    rows = _rows(*streams)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(areas, "_AT_ONCE", at_once)
        found = _by_name(rows, low, high)
    inside = [(max(s, low), min(e, high), n) for stream in streams for s, e, n in stream
              if low < high and s < high and (e > low or s >= low)]  # fmt: skip
    assert set(found.index) == {name for _, _, name in inside}
    for name, sum_ in found.to_dict("index").items():
        mine = [(s, e) for s, e, n in inside if n == name]
        assert sum_["count"] == len(mine)
        assert sum_["total"] == sum(e - s for s, e in mine)
        assert sum_["union"] == intervals.total(*zip(*mine, strict=True))


@given(st.integers(-2 * PERIOD, TOKENS * PERIOD), st.integers(0, 4 * PERIOD))
def test_kinds_add_up_to_streams_and_threads(runs, low, length):
    tables = {by: sums_of(runs[0], Area((low, low + length), (), by), Arrangement(), 0) for by in GROUPINGS}
    total, count = ({by: int(table[of].sum()) for by, table in tables.items()} for of in ("total", "count"))
    assert total["kind"] == total["stream"] + total["thread"]
    assert count["kind"] == count["stream"] + count["thread"]
    assert total["kernel"] == total["operator"] == total["stream"]
    assert (tables["kind"]["union"] <= max(length, 0)).all()
    assert (tables["kind"]["union"] <= tables["kind"]["total"]).all()


def test_an_area_is_at_the_same_place_from_every_runs_token(runs):
    view = View(runs=("a", "b"), token=2, area=Area((-PERIOD, 0), (), "kernel"))
    found = [sums_of(run, view.area, view.rows, run.tokens.anchor(2, "end")) for run in runs]
    assert [table.loc["void k<float>(T*)", "count"] for table in found] == [KERNELS, KERNELS]
    assert [table.loc["void k<float>(T*)", "union"] for table in found] == [PERIOD - GAP, PERIOD - 2 * GAP]
    assert [table.loc["void k<float>(T*)", "of_step"] for table in found] == [0.9, 0.8]
    text = text_of(runs, found).splitlines()
    assert text[0].split("\t") == ["run", "name", "count", "total_ns", "union_ns", "mean_ns", "of_area", "of_step"]
    assert text[1].split("\t") == ["a", "void k<float>(T*)", "8", "900000", "900000", "112500", "0.9", "0.9"]
    assert "b\tmemcpy HtoD\t1\t2000\t2000\t2000\t0.002\t0.002" in text
    said = str(area_sums(view, runs))
    assert "Search for void k<float>(T*)" in said
    assert "900 µs" in said
    assert area_sums(View(runs=("a",)), runs) == []
    assert "No events of this kind" in str(area_sums(View(area=Area((10**12, 10**13))), runs))


def test_names_in_the_text_are_no_formulas(runs):
    table = pd.DataFrame([[1, 2, 2, 2.0, 0.5, np.nan]], columns=areas.COLUMNS, index=["=cmd()\tx\n"])
    line = text_of(runs[:1], [table]).splitlines()[1]
    assert line.startswith("a\t'=cmd()")
    assert len(line.split("\t")) == 8


def test_a_box_takes_the_rows_that_it_touches_and_the_link_holds_it(runs):
    view = View(runs=("a", "b"), token=2)
    stream = next(placed for placed in panels_of(runs, view)[0].rows if placed.row.label == "stream 14")
    wish = {"what": "area", "x": [0.001, 0.0], "y": [stream.top + 1, stream.bottom - 1]}
    chosen = after_request(view, wish, runs)
    assert chosen.area == Area((0, PERIOD), ("stream 14",), "kind")
    by = after_request(chosen, {"what": "sum by", "by": "kernel"}, runs)
    assert after_request(by, {"what": "sum by", "by": "no such thing"}, runs) == by
    assert View.parse(by.query()) == by
    assert View.from_data(by.data()) == by
    assert [part.row.label for part in grouped_rows(runs[0], by.area, by.rows)] == ["stream 14"]
    assert after_request(by, {"what": "no area"}, runs) == view
    assert after_request(view, {**wish, "y": [-5, -9]}, runs).area.rows == ()
    shown = after(view, Action("sum"), runs)
    assert shown.area.rows == ()
    assert after(shown, Action("sum"), runs) == view


def test_an_operator_is_the_innermost_that_is_open_when_a_kernel_is_launched():
    on = {"process": [1] * 4, "thread": [5] * 4}
    trace = Trace.from_columns(
        nvtx={"start": [0, 2, 20, 40], "end": [10, 8, 30, 50], "kind": ["push/pop"] * 4,
              "text": ["aten::linear", "aten::mm", "aten::add", "mine"], "domain": ["cpu_op"] * 3 + [""], **on},
        api={"start": [3, 9, 21, 41], "end": [4, 10, 22, 42], "correlation": [1, 2, 3, 4],
             "name": ["cudaLaunchKernel"] * 4, **on},
        kernels={"start": [100, 110, 120, 130, 140], "end": [105, 115, 125, 135, 145], "correlation": [1, 2, 3, 4, 9],
                 "process": [1] * 5, "device": [0] * 5, "stream": [7] * 5, "name": ["k"] * 5},
    )  # fmt: skip
    row = next(row for row in rows_of(trace) if row.role == "stream")
    names = ["aten::mm", "aten::linear", "aten::add", NO_OPERATOR, NO_OPERATOR]
    assert operators_of(trace, row).tolist() == names
    plain = trace["nvtx"].assign(domain=pd.Categorical([""] * 4))
    ranges = Trace({**trace.tables, "nvtx": plain})
    assert operators_of(ranges, row).tolist() == [*names[:3], "mine", NO_OPERATOR]
