"""Numbers with a sign: none where they round to nothing, whatever their sign was."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracer.text import percent, signed, with_sign


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(0.04, 1, "±0.0"), (-0.04, 1, "±0.0"), (-0.0, 0, "±0"), (0.05001, 1, "+0.1"), (-1234.56, 1, "−1,234.6"),
     (1e6, 0, "+1,000,000"), (-math.inf, 1, "−inf")],
)  # fmt: skip
def test_signed(value: float, digits: int, text: str) -> None:
    assert signed(value, digits) == text


def test_percent_and_other_words() -> None:
    assert (percent(0.0153), percent(-0.00004, 2), percent(0.00004, 2)) == ("+1.5 %", "±0.00 %", "±0.00 %")
    assert (with_sign(-2e-10, "0 ns"), with_sign(-18, "18.0 µs")) == ("±0 ns", "−18.0 µs")


@given(st.floats(-1e9, 1e9), st.integers(0, 4))
def test_base_and_other_change_places_and_only_the_sign_does(value: float, digits: int) -> None:
    there, back = signed(value, digits), signed(-value, digits)
    assert there[1:] == back[1:]
    assert {there[0], back[0]} in ({"+", "−"}, {"±"})
    assert (there[0] == "±") == (float(there[1:].replace(",", "")) == 0)
