"""Numbers and groups of rows: as those of pandas, and for no rows at all."""

import numpy as np
import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from tracer.model.rows import grouped, groups_of, last_at, numbered, positions, runs_of, taken

ROWS = st.lists(st.tuples(st.integers(-2, 2), st.integers(-(2**63), 2**63 - 1), st.integers(0, 1)), max_size=12)


@given(ROWS)
def test_equal_rows_have_the_same_number(rows: list[tuple[int, int, int]]) -> None:
    columns = [np.array([row[i] for row in rows], np.int64) for i in range(3)]
    codes, distinct = numbered(*columns)
    assert distinct == list(dict.fromkeys(rows))
    assert [distinct[code] for code in codes] == rows


def test_columns_are_taken_by_position() -> None:
    codes, distinct = numbered(pd.Series([5, 5, 6], index=[9, 8, 7]), pd.Series([1, 1, 1]))
    assert (codes.tolist(), distinct) == ([0, 0, 1], [(5, 1), (6, 1)])


@given(ROWS)
def test_groups_and_runs_are_those_of_equal_rows(rows: list[tuple[int, int, int]]) -> None:
    columns = [np.array([row[i] for row in rows], np.int64) for i in range(3)]
    frame = pd.DataFrame(dict(zip("abc", columns, strict=True)))
    number, count = groups_of(frame, list("abc"))
    assert count == len(set(rows)) == len(set(number.tolist()))
    assert len({(row, int(n)) for row, n in zip(rows, number, strict=True)}) == count
    order, first = runs_of(frame, list("abc"))
    assert order.tolist() == sorted(range(len(rows)), key=rows.__getitem__)
    assert [rows[at] for at in order[first]] == sorted(set(rows))


@given(ROWS)
def test_each_group_has_its_key_and_all_of_its_rows(rows: list[tuple[int, int, int]]) -> None:
    frame = pd.DataFrame(dict(zip("abc", np.array(rows or np.zeros((0, 3)), np.int64).T, strict=True)))
    expected: dict[tuple[int, int, int], list[int]] = {}
    for at, row in enumerate(rows):
        expected.setdefault(row, []).append(at)
    assert [(key, at.tolist()) for key, at in grouped(frame, list("abc"))] == list(expected.items())


def test_rows_that_are_taken_keep_their_types() -> None:
    frame = pd.DataFrame({"name": pd.Categorical(["a", "b", "a"]), "start": np.array([3, 4, 5]), "end": 0}, [7, 8, 9])
    rows = np.array([True, False, True])
    found = taken(frame, rows, ["start", "name"])
    pd.testing.assert_frame_equal(
        found, frame.loc[rows, ["start", "name"]].reset_index(drop=True), check_column_type=False
    )


@given(ROWS, ROWS)
def test_the_last_equal_row_is_found_at_any_time_and_before_one(
    rows: list[tuple[int, int, int]], others: list[tuple[int, int, int]]
) -> None:
    asking, known = (
        pd.DataFrame(np.array(each or np.zeros((0, 3)), np.int64), columns=list("atc")) for each in (rows, others)
    )
    assert positions(asking, known, ["a", "c"]).tolist() == [
        max((i for i, other in enumerate(others) if other[::2] == row[::2]), default=-1) for row in rows
    ]
    assert last_at(asking, asking["t"], known, "t", ["a", "c"]).tolist() == [
        max(((t, i) for i, (a, t, c) in enumerate(others) if (a, c) == row[::2] and t <= row[1]), default=(0, -1))[1]
        for row in rows
    ]
