"""The trace model: tables, rows and intervals by brute force, and what names of calls and kernels mean."""

import json
import string
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tracer.handmade import Script
from tests.tracer.nsys_exports import DATA
from tracer import Trace
from tracer.model import columns
from tracer.model.calls import LETTERS, is_setup, is_unknown, letter, plain
from tracer.model.collectives import is_collective
from tracer.model.intervals import covered, overlap, total, uncovered, union
from tracer.model.schema import DEVICE_TABLES, MISSING, TABLES

NAMES = json.loads((DATA / "names.json").read_text(encoding="utf-8"))


def test_tables_have_their_columns_whatever_is_given():
    for name, table in TABLES.items():
        frame = Trace({name: pd.DataFrame()})[name]
        assert list(frame.columns) == table.column_names
        assert frame.dtypes.equals(Trace({})[name].dtypes)
    with pytest.raises(KeyError, match="unknown table 'kernel'"):
        Trace({"kernel": pd.DataFrame()})
    with pytest.raises(KeyError, match="has no column colour"):
        Trace.from_columns(kernels={"start": [0], "colour": [1]})
    for storage in (
        "pyarrow",
        "python",
    ):  # whichever way pandas kept names before, which before 3.0 is always as objects
        with pd.option_context("mode.string_storage", storage):
            trace = Trace({"nvtx": pd.DataFrame({"start": [0], "end": [0], "kind": ["mark"]})})
            assert trace["nvtx"]["kind"].dtype.categories.dtype == pd.Index(["mark"]).dtype


def test_a_table_is_frozen_and_takes_just_its_columns():
    class Spans(columns.Columns):
        start: object
        end: object

    class Named(Spans):
        name: object

    named = Named([0, 5], end=[4, 9], name=["a", "b"])
    assert (Named.column_names(), len(named), named.changed(end=[1, 2]).end) == (("start", "end", "name"), 2, [1, 2])
    for wrong in (
        {"columns": ([0], [4], ["a"], [1])},
        {"end": [1]},
        {"columns": ([0],), "start": [0], "end": [4], "name": []},
    ):
        with pytest.raises(TypeError, match="Named has the columns start, end, name"):
            Named(*wrong.pop("columns", ()), **wrong)
    with pytest.raises(AttributeError, match="frozen"):
        named.start = [1]


def test_activities_of_all_tables_are_named_and_in_order():
    script = Script()
    script.launch((0, 1), (20, 30), name="matvec")
    script.copy((2, 3), (10, 15), "DtoH", size=64)
    script.graph((4, 5), (40, 50))
    script.rows["memsets"].append({"start": 5, "end": 6})
    activities = script.trace.activities().frame()
    assert activities["name"].tolist() == ["memset", "memcpy DtoH", "matvec", "graph 1"]
    assert activities["table"].tolist() == ["memsets", "memcpys", "kernels", "graph_launches"]
    assert activities["bytes"].tolist() == [MISSING, 64, 0, 0]
    assert list(activities["table"].cat.categories) == list(DEVICE_TABLES)


CELL = st.integers(-2, 2) | st.sampled_from([10**9, 2**62, 2**63 - 1, -(2**63)])
ROWS = st.lists(st.tuples(CELL, st.integers(0, 1)), max_size=12)


def arrays(rows):
    return list(np.array(rows or np.zeros((0, 2)), np.int64).T)


@given(ROWS)
def test_rows_are_numbered_grouped_and_sorted_as_one_by_one(rows):
    keys = list(dict.fromkeys(rows))
    number, count = columns.numbers(*arrays(rows))
    assert (number.tolist(), count) == ([keys.index(row) for row in rows], len(keys))
    found = [(key, at.tolist()) for key, at in columns.grouped(*arrays(rows))]
    assert found == [(key, [i for i, row in enumerate(rows) if row == key]) for key in keys]
    order, first = columns.runs(*arrays(rows))
    assert order.tolist() == sorted(range(len(rows)), key=rows.__getitem__)
    assert [rows[at] for at in order[first]] == sorted(keys)
    assert columns.ranks(*arrays(rows)).tolist() == [sorted(keys).index(row) for row in rows]
    assert columns.within(*arrays(rows)).tolist() == [rows[:i].count(row) for i, row in enumerate(rows)]


@given(ROWS, ROWS, st.lists(st.integers(0, 9), min_size=24, max_size=24))
def test_equal_rows_are_found_at_any_time_and_before_one(rows, others, times):
    asked, when = times[: len(rows)], times[12 : 12 + len(others)]
    last = [max((i for i, other in enumerate(others) if other == row), default=-1) for row in rows]
    assert columns.positions(arrays(rows), arrays(others)).tolist() == last
    known = list(zip(when, range(len(others)), others, strict=True))
    wanted = [max(((t, i) for t, i, other in known if other == row and t <= at), default=(0, -1))[1]
              for row, at in zip(rows, asked, strict=True)]  # fmt: skip
    assert columns.last_at(arrays(rows), asked, arrays(others), np.array(when, np.int64)).tolist() == wanted
    in_order = sorted(when)
    wanted = [max((i for i, other in enumerate(others) if other == row and in_order[i] <= at), default=-1)
              for row, at in zip(rows, asked, strict=True)]  # fmt: skip
    times = np.array(asked, np.int64), np.array(in_order, np.int64)
    assert columns.last_before(arrays(rows), times[0], arrays(others), times[1]).tolist() == wanted
    correlations = columns.Correlations(*arrays([row[::-1] for row in others]))
    wanted = [others.index(row) if row in others and row[0] >= 0 else -1 for row in rows]
    assert correlations.of(*arrays([row[::-1] for row in rows])).tolist() == wanted


@given(ROWS, ROWS, st.lists(st.integers(0, 9), min_size=24, max_size=24))
def test_pairs_of_equal_rows_and_figures_of_groups_as_one_by_one(rows, others, times):
    mine, theirs = columns.pairs(arrays(rows), arrays(others))
    assert list(zip(mine.tolist(), theirs.tolist(), strict=True)) == [
        (i, j) for i, row in enumerate(rows) for j, other in enumerate(others) if row == other
    ]
    asked, when = np.array(times[: len(rows)], np.int64), np.array(times[12 : 12 + len(others)], np.int64)
    wanted = [min(((t, i) for i, (t, other) in enumerate(zip(when, others, strict=True)) if other == row and t >= at),
                  default=(0, -1))[1] for row, at in zip(rows, asked, strict=True)]  # fmt: skip
    assert columns.first_at(arrays(rows), asked, arrays(others), when).tolist() == wanted
    number = columns.ranks(*arrays(rows))
    groups = {group: asked[number == group] for group in np.unique(number).tolist()}
    assert columns.medians(asked, number, 12)[list(groups)].tolist() == [np.median(each) for each in groups.values()]
    found, first_quarters = columns.quantiles(asked, number, 0.25)
    assert found.tolist() == list(groups)
    assert first_quarters.tolist() == [np.quantile(each, 0.25) for each in groups.values()]


SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12)
WINDOWS = st.lists(st.tuples(st.integers(0, 70), st.integers(0, 70)), min_size=1, max_size=5)


def cells(spans):
    """How many spans cover each of the cells 0..99."""
    return np.array([sum(start <= cell < end for start, end in spans) for cell in range(100)])


def split(spans):
    return [s for s, _ in spans], [e for _, e in spans]


@given(SPANS, WINDOWS)
def test_intervals_count_each_nanosecond_once(spans, windows):
    count = cells(spans)
    starts, ends = union(*split(spans))
    assert (cells(list(zip(starts, ends, strict=True))) == (count > 0)).all()
    assert (starts[1:] > ends[:-1]).all()  # what touches is merged
    assert (total(*split(spans)), overlap(*split(spans))) == ((count > 0).sum(), (count > 1).sum())
    assert covered(*split(spans), *split(windows)).tolist() == [int((count[a:b] > 0).sum()) for a, b in windows]
    starts, ends, of = uncovered(*split(spans), *split(windows))
    assert (ends > starts).all()
    assert (np.diff(of) >= 0).all()
    for number, (low, high) in enumerate(windows):
        mine = list(zip(starts[of == number].tolist(), ends[of == number].tolist(), strict=True))
        assert all(before[1] < after[0] for before, after in pairwise(mine))
        assert [at for a, b in mine for at in range(a, b)] == [at for at in range(low, high) if count[at] == 0]


def test_real_names_are_known():
    for expected, names in NAMES["calls by letter"].items():
        assert {name: letter(name) for name in names} == dict.fromkeys(names, expected)
        assert not any(map(is_unknown, names))
    assert [name for name in NAMES["kernels that communicate"] if not is_collective(name)] == []
    assert [name for name in (*NAMES["kernels that compute"], "<" * 100_000, "") if is_collective(name)] == []
    setup = ("hipStreamBeginCapture_spt", "cudaGraphInstantiate_v12000", "hipGraphLaunch_spt")
    assert list(map(is_setup, setup)) == [True, True, False]


@given(
    st.sampled_from(sorted(LETTERS)),
    st.lists(st.sampled_from(["_ptsz", "_ptds", "_spt", "_v1", "_v99999"]), max_size=3).map("".join),
    st.text(string.ascii_letters, max_size=8),
    st.sampled_from(["Launch", "launch", "Memcpy", "memcpy", "Synchronize", "synchronize"]),
)
def test_suffixes_change_nothing_and_a_name_in_no_list_that_tells_what_it_does_is_unknown(name, versions, text, word):
    assert (plain(name + versions), letter(name + versions)) == (name, LETTERS[name])
    assert not is_unknown(name + versions)
    assert (is_unknown(f"new{text}{word}{text}"), letter(f"new{text}{word}{text}")) == (True, "")


def test_a_short_name_that_says_nothing_is_known_by_the_full_one():
    script = Script()
    script.launch((0, 10), (20, 30))
    trace = script.trace
    names = trace["kernels"]["name"].cat.rename_categories({"k": "void deep_ep::intranode::dispatch<8>(int4*)"})
    trace.tables["kernels"] = trace["kernels"].assign(name=names)
    assert not trace.activities().computes.any()
