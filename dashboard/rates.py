"""The engines' own rates, steps per second without a profiler, as readers give them: one per run, in a link."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Annotated, Any, Final, NamedTuple, TypeAlias

from pydantic import Field

from dashboard.links import Form, Query
from dashboard.text import plain
from tracer.analysis.bounds import RATES

MOST_RATES: Final = 24
"""Maximum number of runs with a rate in a view, to limit the length of its link."""
_LOW, _HIGH = RATES
_NUMBER: Final = re.compile(r"\d{1,20}(\.\d{0,20})?(e[+-]?\d{1,2})?", re.ASCII | re.IGNORECASE)


class Rate(NamedTuple):
    """The steps per second of a run, which its key names."""

    run: str
    steps_per_s: Annotated[float, Field(ge=_LOW, le=_HIGH, allow_inf_nan=False)]


class NoRate(ValueError):
    """The given text is not a rate; the message gives the reason in one line."""


def rate_of(given: Any) -> float | None:
    """The rate given by a text, None for an empty one.

    Raises:
        NoRate: the text is not a rate.
    """
    text = "" if given is None else str(given).strip()
    if not text:
        return None
    number = float(text) if _NUMBER.fullmatch(text) else 0.0
    if not _LOW <= number <= _HIGH:
        raise NoRate(
            f"“{plain(text, 20)}” is not a rate: enter the engine's steps per second without a profiler, "
            f"{_LOW:g} to {_HIGH:,.0f}, or nothing to use run.json; nothing was changed"
        )
    return number


def with_rate(rates: Iterable[Rate], run: str, steps_per_s: float | None) -> tuple[Rate, ...]:
    """Set the rate of a run, or remove it with None; returns the new rates.

    Raises:
        NoRate: the view already has the maximum number of rates.
    """
    others = [rate for rate in rates if rate.run != run]
    if steps_per_s is None:
        return tuple(others)
    if len(others) >= MOST_RATES:
        raise NoRate(f"a view holds at most {MOST_RATES} rates: remove one first; nothing was changed")
    return (*others, Rate(run, steps_per_s))


def text_of(steps_per_s: float | None) -> str:
    """A rate with all its digits, as in a field or a link; "" for none.

    Example:
        >>> text_of(528.11), text_of(700.0), text_of(None)
        ('528.11', '700', '')
    """
    return "" if steps_per_s is None else repr(steps_per_s).removesuffix(".0")


def _text(rate: Rate) -> str:
    return f"{text_of(rate.steps_per_s)}:{rate.run}"


def _read(name: str, query: Query) -> Rates:
    """The rates in a query; invalid ones are left out, and the last one for a run wins."""
    found: Rates = ()
    for field in query[name]:
        number, _, run = field.partition(":")
        with suppress(NoRate):
            rate = rate_of(number)
            found = with_rate(found, run, rate) if run and rate is not None else found
    return found


_FORM: Final = Form(lambda name, rates: [(name, _text(rate)) for rate in rates], _read, "rate")
Rates: TypeAlias = Annotated[tuple[Rate, ...], Field(max_length=MOST_RATES), _FORM]
"""Rates of several runs; in a link each is a number, a colon, and the key of its run."""
