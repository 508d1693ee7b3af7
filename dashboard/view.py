"""The state of the page, which its link and other pages keep.

1. `Linked`: the views of all pages as queries of links, and as what a browser stores: one codec, told by each field's
   form.
2. `Rates`: the engines' own rates, steps per second without a profiler, as readers give them: one per run, in a link.
3. `View`: the state of the overview.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import Field as Member
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from typing import Annotated, Any, ClassVar, Final, NamedTuple, TypeAlias, TypeVar, get_type_hints
from urllib.parse import parse_qs, quote, unquote, urlencode

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from dashboard.text import plain
from tracer.analysis.bounds import RATES

_MOST_PAIRS: Final = 360  # at most so many values in a query; a longer one counts as empty

Shown = TypeVar("Shown", bound="Linked")
Pair: TypeAlias = tuple[str, str]
Query: TypeAlias = Mapping[str, Sequence[str]]  # name in a link -> its values, in order


class Form(NamedTuple):
    """How a field of a view stands in a query.

    Attributes:
        pairs: (name in the link, value of the field) -> its names and values in a query.
        value: the inverse, (name in the link, query) -> value of the field; ValueError or LookupError if the query has
            none. The field's type checks it afterwards.
        name: its name in a link, "" for the field's own.
    """

    pairs: Callable[[str, Any], Sequence[Pair]]
    value: Callable[[str, Query], Any]
    name: str = ""

    def called(self, name: str) -> Form:
        """The form with another name in a link than the field's own."""
        return self._replace(name=name)


def one(value: Callable[[str], Any] = str, text: Callable[[Any], str] = str) -> Form:
    """A field that is one value of the query, the last if there are several."""
    return Form(lambda name, given: [(name, text(given))], lambda name, query: value(query[name][-1]))


def several(most: int | None = None, value: Callable[[str], Any] = str, text: Callable[[Any], str] = str) -> Form:
    """A tuple with one value of the query for each element; empty, repeated and invalid ones are left out, and all
    after the first `most`.
    """

    def read(name: str, query: Query) -> tuple[Any, ...]:
        values = []
        for each in filter(None, query[name]):
            with suppress(ValueError):
                values.append(value(each))
        return tuple(dict.fromkeys(values))[:most]

    return Form(lambda name, given: [(name, text(each)) for each in given] or [(name, "")], read)


def part(of: type[Linked]) -> Form:
    """A field that is itself such a dataclass, whose fields stand in the query beside the others."""
    return Form(lambda _, given: list(given.pairs()), lambda _, query: of.of_query(query))


class Linked:
    """A view, or a part of one: a frozen dataclass, each of whose fields is annotated with its form.

    A field called `shared` holds the part that all pages share; a browser stores its fields beside the page's own.
    """

    __dataclass_fields__: ClassVar[dict[str, Member[Any]]]

    def query(self) -> str:
        """The view as the query of a link; defaults are left out."""
        pairs = list(self.pairs())
        return "?" + urlencode(pairs) if pairs else ""

    @classmethod
    def parse(cls: type[Shown], search: str | None) -> Shown:
        """The view of a link; missing or invalid values take their defaults."""
        try:
            query = parse_qs((search or "").lstrip("?"), keep_blank_values=True, max_num_fields=_MOST_PAIRS)
        except ValueError:
            query = {}
        return cls.of_query(query)

    def pairs(self) -> Iterator[Pair]:
        """The names and values of its query."""
        for each in fields(self):
            form = self._forms()[each.name]
            if (value := getattr(self, each.name)) != each.default:
                yield from form.pairs(form.name, value)

    @classmethod
    def of_query(cls: type[Shown], query: Query) -> Shown:
        """The inverse of `pairs`.

        Raises:
            ValueError: a field without a default is missing or invalid.
        """
        values = {}
        for field, form in cls._forms().items():
            with suppress(ValueError, LookupError):
                values[field] = form.value(form.name, query)
        return cls._valid(values)

    def having(self: Shown, name: str, value: Any) -> Shown:
        """The view with another, untrusted value of a field; its default if the value is invalid."""
        return self._valid({each.name: getattr(self, each.name) for each in fields(self)} | {name: value})

    def data(self) -> dict[str, Any]:
        """The view as JSON, for a dcc.Store."""
        own = asdict(self)
        shared: dict[str, Any] = own.pop("shared", {})
        return shared | own

    @classmethod
    def from_data(cls: type[Shown], data: dict[str, Any] | None) -> Shown:
        """The view from untrusted data that `data` returned; types, bounds and names are checked against the class.

        Raises:
            ValueError: the data is not such a view.
        """
        if data is not None and not isinstance(data, dict):
            raise ValueError("a view is an object")
        return cls._checked((data or {}) | {"shared": data or {}})

    @classmethod
    def _valid(cls: type[Shown], given: Mapping[str, Any]) -> Shown:
        """The view of these fields, without the invalid ones."""
        try:
            return cls._checked(given)
        except ValidationError as error:
            wrong = {each["loc"][0] for each in error.errors(include_url=False)}
            return cls._checked({k: v for k, v in given.items() if k not in wrong})

    @classmethod
    @cache
    def _forms(cls) -> dict[str, Form]:
        """The forms of the fields, with their names in a link."""
        hints = get_type_hints(cls, include_extras=True)
        forms = {
            each.name: next(known for known in hints[each.name].__metadata__ if isinstance(known, Form))
            for each in fields(cls)
        }
        return {field: form.called(form.name or field) for field, form in forms.items()}

    @classmethod
    def _checked(cls: type[Shown], given: Mapping[str, Any]) -> Shown:
        view: Shown = cls._reader().validate_python(given)
        return view

    @classmethod
    @cache
    def _reader(cls) -> TypeAdapter[Any]:
        return TypeAdapter(cls)


MOST_RATES: Final = 24  # at most so many runs with a rate in a view, to limit the length of its link
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


def _read(name: str, query: Query) -> Rates:
    """The rates in a query; invalid ones are left out, and the last one for a run wins."""
    valid: Rates = ()
    for field in query[name]:
        number, _, run = field.partition(":")
        with suppress(NoRate):
            rate = rate_of(number)
            valid = with_rate(valid, run, rate) if run and rate is not None else valid
    return valid


_FORM: Final = Form(
    lambda name, rates: [(name, f"{text_of(rate.steps_per_s)}:{rate.run}") for rate in rates], _read, "rate"
)
Rates: TypeAlias = Annotated[tuple[Rate, ...], Field(max_length=MOST_RATES), _FORM]
"""Rates of several runs; in a link each is a number, a colon, and the key of its run."""


ALIGNMENTS: Final = {"end": "end of its compute", "launch": "launch of its compute", "start": "start of its compute"}
BASES: Final = {"untraced": "untraced", "recorded": "as recorded"}
"""How gap, idle time and rate are told -> its label: without the profiler where that is known, or with it."""
THEME_NAMES: Final = ("auto", "light", "dark")
GROUPINGS: Final = {
    "kind": "kind",
    "kernel": "kernel or copy",
    "operator": "operator",
    "stream": "stream",
    "thread": "thread",
}
"""How an area's events are grouped -> its label."""
MOST_RUNS: Final = 6
MOST_BOOKMARKS: Final = 100
SHORTEST: Final = 100  # the narrowest range, ns
_MOST_NAMES: Final = 60
_LONGEST: Final = 200
_MOST_ARRANGED: Final = 10_000
FURTHEST: Final = 10**15
"""The furthest time from time 0, ns: eleven days, which keeps hostile links inside int64 whatever is added to it."""

Number = TypeVar("Number", int, float)
Position: TypeAlias = Annotated[int, Field(ge=0, le=FURTHEST)]
Time: TypeAlias = Annotated[int, Field(ge=-FURTHEST, le=FURTHEST)]
Words: TypeAlias = Annotated[str, Field(max_length=_LONGEST)]
Names: TypeAlias = Annotated[tuple[str, ...], Field(max_length=_MOST_ARRANGED)]
_Keys: TypeAlias = Annotated[tuple[str, ...], Field(max_length=MOST_RUNS)]
_Range: TypeAlias = Annotated[tuple[Time, Time], AfterValidator(lambda ends: span(*ends))]


def one_of(names: Collection[str]) -> AfterValidator:
    """The type of a text that is one of these."""

    def check(text: str) -> str:
        if text not in names:
            raise ValueError("is not one of the known values")
        return text

    return AfterValidator(check)


def _ends(text: str) -> tuple[int, int]:
    first, last = text.split("..")
    return within(int(first)), within(int(last))


def _text_of_ends(ends: tuple[int, int]) -> str:
    return f"{ends[0]}..{ends[1]}"


WORD: Final = one()
TEXT: Final = one(lambda text: text or None)  # A text, None for an empty one
POSITION: Final = one(lambda text: min(max(int(text), 0), FURTHEST))
_SEARCH: Final = one(lambda text: words_of(text))
_ENDS: Final = one(_ends, _text_of_ends)
_NAMES: Final = several(_MOST_NAMES)


class Spot(NamedTuple):
    """An event: the key of its run, the position of its row in the run, and its position in the row.

    If it was chosen as the longest of those that one bar stands for, `bar` has the ends of the bar, ns from its start.
    """

    run: str
    row: Position
    event: Position
    bar: tuple[Time, Time] | None = None

    @property
    def text(self) -> str:
        """Its text in a link: ROW.EVENT.RUN, or ROW.EVENT_FROM_TO.RUN with the ends of a bar."""
        ends = "".join(f"_{time}" for time in self.bar or ())
        return f"{self.row}.{self.event}{ends}.{self.run}"

    @classmethod
    def of(cls, text: str) -> Spot:
        """The inverse of `text`; ValueError if the text is none."""
        row, event, run = text.split(".", 2)
        if not run:
            raise ValueError("names no run")
        number, *ends = map(int, event.split("_"))
        if not ends:
            return cls(run, int(row), number)
        first, last = ends
        return cls(run, int(row), number, (first, last))


class Bookmark(NamedTuple):
    """A bookmarked part of a run: its key, its range (ns from the start of its first token's compute, because the
    recording's own clock has more digits than a browser can store), and a note.
    """

    run: str
    low: Time
    high: Time
    note: Words = ""

    @property
    def text(self) -> str:
        """Its text in a link: LOW..HIGH.RUN.NOTE, with the run's key quoted once more, as it may contain dots."""
        run = quote(self.run, safe="").replace(".", "%2E")
        return f"{_text_of_ends((self.low, self.high))}.{run}.{self.note}"

    @classmethod
    def of(cls, text: str) -> Bookmark:
        """The inverse of `text`; ValueError if the text is none."""
        low, _, rest = text.partition("..")
        high, run, note = (*rest.split(".", 2), "")[:3]
        if not run:
            raise ValueError("names no run")
        first, last = sorted(_ends(f"{low}..{high}"))
        return cls(unquote(run), first, last, words_of(note))


_BOOKMARKS: Final = several(MOST_BOOKMARKS, Bookmark.of, lambda mark: mark.text).called("bookmark")


@dataclass(frozen=True)
class Arrangement(Linked):
    """Which rows are shown, and how; names as in `timeline.layout`.

    Attributes:
        only: rows without this text in their or their group's name are left out.
        hidden: rows left out.
        folded: rows drawn as thin lines.
        order: rows moved from their default order, in their new order.
        shown: rows shown although they have no events during the steps.
        pinned: rows kept at the top of their run.
    """

    only: Annotated[Words, _SEARCH.called("rows")] = ""
    hidden: Annotated[Names, _NAMES.called("hide")] = ()
    folded: Annotated[Names, _NAMES.called("fold")] = ()
    order: Annotated[Names, _NAMES] = ()
    shown: Annotated[Names, _NAMES.called("show")] = ()
    pinned: Annotated[Names, _NAMES.called("pin")] = ()


@dataclass(frozen=True)
class Area(Linked):
    """A part of the timeline, to be summed.

    Attributes:
        ends: its range, ns from time 0.
        rows: the names of its rows, as in `timeline.layout`; () for all visible ones.
        by: the grouping, a key of `GROUPINGS`.
    """

    ends: Annotated[tuple[Time, Time], AfterValidator(lambda ends: (min(ends), max(ends))), _ENDS.called("area")]
    rows: Annotated[Names, _NAMES.called("of")] = ()
    by: Annotated[str, one_of(GROUPINGS), WORD] = "kind"


@dataclass(frozen=True)
class View(Linked):
    """The state of the page.

    Attributes:
        runs: keys of the runs, in the order of selection; None before the first selection.
        token: the token at which the runs are aligned; None for the most typical one.
        align: the moment of that token that is time 0, a key of `ALIGNMENTS`.
        range: range of the time axis, ns from that moment; None for one token around its gap.
        find: the search; events that do not match are dimmed; "" for none.
        ruler: the measured range, ns from time 0; both ends are equal until the second is chosen.
        rates: the given untraced rates, of visible runs or others.
        theme: one of `THEME_NAMES`.
        basis: a key of `BASES`.
    """

    runs: Annotated[_Keys | None, several(MOST_RUNS).called("run")] = None
    token: Annotated[Position | None, POSITION] = None
    align: Annotated[str, one_of(ALIGNMENTS), WORD] = "end"
    range: Annotated[_Range | None, _ENDS] = None
    find: Annotated[Words, _SEARCH] = ""
    event: Annotated[Spot | None, one(Spot.of, lambda spot: spot.text)] = None
    ruler: Annotated[tuple[Time, Time] | None, _ENDS] = None
    area: Annotated[Area | None, part(Area)] = None
    bookmarks: Annotated[tuple[Bookmark, ...], Field(max_length=MOST_BOOKMARKS), _BOOKMARKS] = ()
    rows: Annotated[Arrangement, part(Arrangement)] = Arrangement()
    rates: Rates = ()
    theme: Annotated[str, one_of(THEME_NAMES), WORD] = "auto"
    basis: Annotated[str, one_of(BASES), WORD] = "untraced"

    def rated(self, run: str, steps_per_s: float | None) -> View:
        """The view with the engine's own rate of a run, None for none; raises like `with_rate`."""
        return replace(self, rates=with_rate(self.rates, run, steps_per_s))

    def rate_of(self, run: str) -> float | None:
        """The given rate of a run."""
        return next((rate.steps_per_s for rate in self.rates if rate.run == run), None)

    def led_by(self, key: str) -> View:
        """The view with this run first; if it was not selected, it replaces the first one."""
        runs = self.runs or ()
        others = [k for k in runs if k != key] if key in runs else runs[1:]
        return replace(self, runs=(key, *others), range=None, event=None, ruler=None, area=None)


def switched(theme: str, scheme: str) -> str:
    """The theme after switching between light and dark; `scheme` is what "auto" currently looks like."""
    return "light" if (scheme if theme == "auto" else theme) == "dark" else "dark"


def span(low: float, high: float) -> tuple[int, int]:
    """A range in order, of whole ns, no shorter than `SHORTEST` and within int64."""
    first, last = (round(within(value)) for value in sorted((low, high)))
    short = SHORTEST - (last - first)
    return (first, last) if short <= 0 else (first - short // 2, first - short // 2 + SHORTEST)


def within(time: Number) -> Number:
    """A time limited to `FURTHEST`, ns."""
    return min(max(time, -FURTHEST), FURTHEST)


def zoom(limits: tuple[int, int], factor: float, shift: float = 0.0) -> tuple[int, int]:
    """A range scaled by `factor` about its middle and shifted by `shift` of its width."""
    middle, half = (limits[0] + limits[1]) / 2, (limits[1] - limits[0]) / 2
    middle += shift * 2 * half
    return span(middle - half * factor, middle + half * factor)


def words_of(text: str | None) -> str:
    """A search text, limited in length and safe in a link."""
    return plain((text or "").strip()[:_LONGEST])[:_LONGEST].strip()
