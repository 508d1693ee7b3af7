"""The call that a step has too many: which one it is, and where it is in the program."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tracer.test_budget import TOKENS, findings, loop
from tracer.analysis.surplus import surplus_position


def test_the_path_of_a_surplus_call_goes_from_the_outermost_range_inwards() -> None:
    script = loop("sg")
    script.range("repeat", 0, TOKENS * 1000)
    script.range("inputs", 2000, 2005)
    script.range("elsewhere", 0, TOKENS * 1000, thread=7)
    surplus = findings(script.trace, "syncs = 0")["syncs"].surplus
    assert surplus is not None
    assert surplus.nvtx == ("repeat", "token")


def test_a_surplus_call_is_looked_for_in_the_first_step_that_has_one() -> None:
    script = loop("sg")
    for token in (2, 3, 4, 5):
        script.sync(token * 1000 + 600, token * 1000 + 610)
    surplus = findings(script.trace, "syncs = 1")["syncs"].surplus
    assert surplus is not None
    assert (surplus.step, surplus.time_in_step_us) == (2, 0.6)


@pytest.mark.parametrize(
    ("found", "expected", "kinds", "most", "position"),
    [
        ("saasgas", "saasgas", "s", 3, -1),
        ("ssaasgas", "saasgas", "s", 3, 1),
        ("saassgas", "saasgas", "s", 3, 4),
        ("saasgass", "saasgas", "s", 3, 7),
        ("aasgass", "saasgas", "s", 3, 6),  # the first sync is missing, the last one is too many
        ("saasgaas", "saasgas", "a", 3, 6),
        ("saasgass", None, "s", 3, 7),
        ("ssaasgas", None, "s", 3, 7),  # without a signature the first beyond what is allowed
        ("sags", None, "s", 2, -1),
    ],
)
def test_where_the_surplus_call_is(found: str, expected: str | None, kinds: str, most: int, position: int) -> None:
    assert surplus_position(list(found), list(found), kinds, most, expected) == position


def test_the_sync_behind_a_copy_that_blocks_is_the_surplus_one() -> None:
    assert surplus_position(["s", "c", "", "g"], list("sasg"), "s", 1, "sag") == 2


@given(st.text(alphabet="sag", max_size=30), st.integers(0, 30))
def test_an_inserted_call_is_found(word: str, at: int) -> None:
    """Or one of its equals in the same run, which reads the same."""
    at = min(at, len(word))
    found = word[:at] + "s" + word[at:]
    position = surplus_position(list(found), list(found), "s", math.inf, word)
    assert found[:position] + found[position + 1 :] == word
