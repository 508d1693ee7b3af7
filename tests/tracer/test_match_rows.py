"""Rows found by process and correlation: the first of equal ones, dense numbers or not, one process or several."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracer.model.rows import by_thread, match_rows


def rows_of(number):
    return st.lists(st.tuples(st.sampled_from([7, 9, 11]), number), max_size=12)


def frame(rows):
    process, correlation = ([row[i] for row in rows] for i in range(2))
    return pd.DataFrame({"process": process, "correlation": correlation}, dtype=np.int64)


@pytest.mark.parametrize(
    "number",
    [st.integers(-1, 6), st.sampled_from([-1, 0, 3, 10**9, 2**39]), st.sampled_from([-1, 0, 3, 2**62, 2**63 - 1])],
    ids=["dense", "sparse", "huge"],
)
def test_each_row_finds_the_first_with_its_number(number):
    @given(rows_of(number), rows_of(number))
    def holds(table, rows):
        wanted = [table.index(row) if row in table and row[1] >= 0 else -1 for row in rows]
        assert match_rows(frame(table), frame(rows)).tolist() == wanted

    holds()


@given(st.lists(st.tuples(st.sampled_from([7, 9]), st.sampled_from([1, 2])), max_size=8))
def test_every_row_is_of_one_thread(rows):
    table = pd.DataFrame(rows, columns=["process", "thread"], dtype=np.int64)
    found = [((process, thread), at.tolist()) for process, thread, at in by_thread(table)]
    assert found == [(key, [i for i, row in enumerate(rows) if row == key]) for key in dict.fromkeys(rows)]
