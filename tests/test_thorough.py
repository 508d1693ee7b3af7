"""Covering pairs: nothing that two values do together is left out, and few rows are needed."""

from itertools import product
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import conftest, thorough
from tests.thorough import covering, covering_pairs, covering_values, each_value, examples, of_every_kind, pairs_of

ROWS = st.lists(st.tuples(*[st.integers(0, 3)] * 4), min_size=1, max_size=40)


def all_pairs(rows):
    return set().union(*map(pairs_of, rows))


@given(ROWS)
def test_every_pair_is_covered_by_rows_of_those_given(rows):
    chosen = covering_pairs(rows)
    assert chosen[0] == rows[0]
    assert set(chosen) <= set(rows)
    assert all_pairs(chosen) == all_pairs(rows)


@given(ROWS)
def test_every_value_is_in_one_of_the_rows(rows):
    chosen = covering_values(rows)
    assert set(chosen) <= set(rows)
    assert {part for row in chosen for part in enumerate(row)} == {part for row in rows for part in enumerate(row)}


def test_as_many_rows_have_each_value_as_the_largest_option_has():
    assert covering_values(product(range(3), range(2))) == [(0, 0), (1, 1), (2, 0)]


def test_few_rows_are_chosen():
    """The largest two options ask for 7 × 4 rows."""
    whole = list(product(range(7), range(2), range(4), range(2)))
    assert len(whole) == 112
    assert len(covering_pairs(whole)) == 28


def test_only_what_is_allowed_is_chosen():
    allowed = [row for row in product("ab", "xy", "12") if row[:2] != ("a", "x")]
    assert all(row[:2] != ("a", "x") for row in covering_pairs(allowed))
    assert len(covering_pairs([*allowed, ("a", "x", "1")])) >= 4


def test_two_options_alone_are_their_product():
    whole = list(product(range(3), range(2)))
    assert covering_pairs(whole) == whole


def test_a_recording_of_every_kind(monkeypatch):
    monkeypatch.setattr(thorough, "EVERYTHING", False)
    names = ["a-x", "a-y", "b-x", "b-y/node", "b-y"]
    assert of_every_kind(names) == ["a-x", "b-y/node"]
    monkeypatch.setattr(thorough, "EVERYTHING", True)
    assert of_every_kind(names) == names


def test_everything_is_tried_where_it_is_asked_for(monkeypatch):
    whole = list(product(range(3), range(2), range(2)))
    monkeypatch.setattr(thorough, "EVERYTHING", False)
    assert (len(covering(whole)), len(each_value(whole)), examples(30).max_examples) == (6, 3, 6)
    monkeypatch.setattr(thorough, "EVERYTHING", True)
    assert (covering(whole), each_value(whole), examples(30).max_examples) == (whole, whole, 30)


@pytest.mark.parametrize(("everything", "left"), [(False, ["a"]), (True, ["a", "b"])])
def test_what_is_thorough_is_left_out_unless_everything_is_tried(everything, left, monkeypatch):
    monkeypatch.setattr(conftest, "EVERYTHING", everything)
    items = [SimpleNamespace(name=name, get_closest_marker={marker: marker}.get) for name, marker in
             (("a", "gpu"), ("b", "thorough"))]  # fmt: skip
    config = SimpleNamespace(hook=SimpleNamespace(pytest_deselected=lambda items: None))
    conftest.pytest_collection_modifyitems(config, items)
    assert [item.name for item in items] == left
