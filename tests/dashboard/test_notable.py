"""Tokens at a percentile of the gaps."""

import numpy as np
import pytest

from dashboard.pages.overview import at_percentile
from dashboard.reading.store import RunStore
from dashboard.timeline.align import Tokens, token_at
from dashboard.view import View
from tests.dashboard.traces import decode
from tracer import formats


def tokens(*gaps):
    step = np.arange(len(gaps))
    return Tokens(step + 10, step * 1000, step * 1000 + 500, np.array(gaps), step * 1000)


@pytest.mark.parametrize(
    ("percentile", "token"), [(50, 3), (100, 1), (90, 1), (75, 4), (0, 0), (-5, 0), (1e9, 1), (60, 4)]
)
def test_percentiles_by_nearest_rank(percentile, token):
    assert token_at(tokens(10, 90, -1, 30, 40), percentile) == token  # the third has no gap behind it


def test_equal_gaps_give_the_first_and_none_nothing():
    assert token_at(tokens(20, 20, 20, -1), 100) == 0
    assert token_at(tokens(-1), 50) is None


def test_the_base_decides_and_the_rest_of_the_view_stays(tmp_path):
    for name in ("a", "b"):
        formats.write(decode(tokens=6), tmp_path / name)
    runs = RunStore([tmp_path]).chosen(["a", "b"])
    runs[0].__dict__["tokens"] = tokens(10, 20, 30, 999_999, -1)
    view = View(runs=("a", "b"), token=1, range=(0, 5_000), theme="dark")
    assert at_percentile(view, runs, 100) == View(runs=("a", "b"), token=3, range=(0, 5_000), theme="dark")
    assert at_percentile(view, [], 100) == view
