"""The state of the page, as a value and, as a query string, its link."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Final, NamedTuple, TypeAlias, TypeVar
from urllib.parse import parse_qs, quote, unquote, urlencode

from pydantic import AfterValidator, Field, TypeAdapter

from dashboard.rates import Rates, pairs_of, parsed, with_rate
from dashboard.text import plain

ALIGNMENTS: Final = {
    "end": "end of its compute",
    "launch": "launch of its compute",
    "start": "start of its compute",
}
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
SHORTEST: Final = 100
"""The narrowest range, ns."""
_MOST_NAMES: Final = 60
_LONGEST: Final = 200
_MOST_ARRANGED: Final = 10_000
_LISTS: Final = ("hide", "fold", "order", "show", "pin")
FURTHEST: Final = 10**15
"""The furthest time from time 0, ns: eleven days, which keeps hostile links inside int64 whatever is added to it."""

Shown = TypeVar("Shown")
Number = TypeVar("Number", int, float)
Position: TypeAlias = Annotated[int, Field(ge=0, le=FURTHEST)]
Time: TypeAlias = Annotated[int, Field(ge=-FURTHEST, le=FURTHEST)]
Words: TypeAlias = Annotated[str, Field(max_length=_LONGEST)]
Names: TypeAlias = Annotated[tuple[str, ...], Field(max_length=_MOST_ARRANGED)]


def one_of(names: Collection[str]) -> AfterValidator:
    """The type of a text that is one of these."""

    def check(text: str) -> str:
        if text not in names:
            raise ValueError("is not one of the known values")
        return text

    return AfterValidator(check)


class Spot(NamedTuple):
    """An event: the key of its run, the position of its row in the run, and its position in the row."""

    run: str
    row: Position
    event: Position


@dataclass(frozen=True)
class Arrangement:
    """Which rows are shown, and how; names as in `timeline.arrange`.

    Attributes:
        only: rows without this text in their or their group's name are left out.
        hidden: rows left out.
        folded: rows drawn as thin lines.
        order: rows moved from their default order, in their new order.
        shown: rows shown although they have no events during the steps.
        pinned: rows kept at the top of their run.
    """

    only: Words = ""
    hidden: Names = ()
    folded: Names = ()
    order: Names = ()
    shown: Names = ()
    pinned: Names = ()


class Bookmark(NamedTuple):
    """A bookmarked part of a run: its key, its range (ns from the start of its first token's compute, because the
    recording's own clock has more digits than a browser can store), and a note.
    """

    run: str
    low: Time
    high: Time
    note: Words = ""


@dataclass(frozen=True)
class Area:
    """A part of the timeline, to be summed.

    Attributes:
        low, high: its range, ns from time 0.
        rows: the names of its rows, as in `timeline.arrange`; () for all visible ones.
        by: the grouping, a key of `GROUPINGS`.
    """

    low: Time
    high: Time
    rows: Names = ()
    by: Annotated[str, one_of(GROUPINGS)] = "kind"


@dataclass(frozen=True)
class View:
    """The state of the page.

    Attributes:
        runs: keys of the runs, in the order of selection; None before the first selection.
        token: the token at which the runs are aligned; None for the most typical one.
        align: the moment of that token that is time 0, a key of `ALIGNMENTS`.
        range: range of the time axis, ns from that moment; None for one token around its gap.
        theme: one of `THEME_NAMES`.
        find: the search; events that do not match are dimmed; "" for none.
        event: the chosen event.
        ruler: the measured range, ns from time 0; both ends are equal until the second is chosen.
        area: the area that is summed.
        bookmarks: bookmarked parts of recordings.
        rows: the arrangement of the rows.
        rates: the given untraced rates, of visible runs or others.
    """

    runs: Annotated[tuple[str, ...], Field(max_length=MOST_RUNS)] | None = None
    token: Position | None = None
    align: Annotated[str, one_of(ALIGNMENTS)] = "end"
    range: Annotated[tuple[Time, Time], AfterValidator(lambda ends: span(*ends))] | None = None
    theme: Annotated[str, one_of(THEME_NAMES)] = "auto"
    find: Words = ""
    event: Spot | None = None
    ruler: tuple[Time, Time] | None = None
    area: Area | None = None
    bookmarks: Annotated[tuple[Bookmark, ...], Field(max_length=MOST_BOOKMARKS)] = ()
    rows: Arrangement = Arrangement()
    rates: Rates = ()

    def query(self) -> str:
        """The view as the query of a link; defaults are left out."""
        pairs: list[tuple[str, str]] = []
        if self.runs is not None:
            pairs += [("run", key) for key in self.runs] or [("run", "")]
        if self.token is not None:
            pairs.append(("token", str(self.token)))
        if self.align != "end":
            pairs.append(("align", self.align))
        if self.range is not None:
            pairs.append(("range", _dotted(self.range)))
        if self.find:
            pairs.append(("find", self.find))
        if self.event is not None:
            pairs.append(("event", f"{self.event.row}.{self.event.event}.{self.event.run}"))
        if self.ruler is not None:
            pairs.append(("ruler", _dotted(self.ruler)))
        if self.area is not None:
            pairs.append(("area", _dotted((self.area.low, self.area.high))))
            pairs += [("of", name) for name in self.area.rows]
            pairs += [("by", self.area.by)] if self.area.by != "kind" else []
        pairs += [("bookmark", f"{_dotted((b.low, b.high))}.{_pointless(b.run)}.{b.note}") for b in self.bookmarks]
        if self.rows.only:
            pairs.append(("rows", self.rows.only))
        lists = {"hide": self.rows.hidden, "fold": self.rows.folded, "order": self.rows.order,
                 "show": self.rows.shown, "pin": self.rows.pinned}  # fmt: skip
        pairs += [(name, each) for name, names in lists.items() for each in names]
        pairs += pairs_of(self.rates)
        if self.theme != "auto":
            pairs.append(("theme", self.theme))
        return "?" + urlencode(pairs) if pairs else ""

    @classmethod
    def parse(cls, search: str | None) -> View:
        """The view of a link; missing or invalid values take their defaults."""
        query = query_of(search)
        runs = tuple(dict.fromkeys(key for key in query["run"] if key))[:MOST_RUNS] if "run" in query else None
        align, theme = last_of(query, "align"), last_of(query, "theme")
        return cls(
            runs=runs,
            token=integer_of(last_of(query, "token"), low=0),
            align=align if align in ALIGNMENTS else "end",
            range=None if (limits := _ends(last_of(query, "range"))) is None else span(*limits),
            theme=theme if theme in THEME_NAMES else "auto",
            find=words_of(last_of(query, "find")),
            event=_spot(last_of(query, "event")),
            ruler=_ends(last_of(query, "ruler")),
            rows=Arrangement(words_of(last_of(query, "rows")), *(_names(query.get(field, [])) for field in _LISTS)),
            area=_area(query),
            bookmarks=tuple(found for text in query.get("bookmark", []) if (found := _bookmark(text)))[:MOST_BOOKMARKS],
            rates=parsed(query.get("rate", [])),
        )

    def rated(self, run: str, steps_per_s: float | None) -> View:
        """The view with the engine's own rate of a run, None for none; raises like `rates.with_rate`."""
        return replace(self, rates=with_rate(self.rates, run, steps_per_s))

    def rate_of(self, run: str) -> float | None:
        """The given rate of a run."""
        return next((rate.steps_per_s for rate in self.rates if rate.run == run), None)

    def led_by(self, key: str) -> View:
        """The view with this run first; if it was not selected, it replaces the first one."""
        runs = self.runs or ()
        others = [k for k in runs if k != key] if key in runs else runs[1:]
        return replace(self, runs=(key, *others), range=None, event=None, ruler=None, area=None)

    def data(self) -> dict[str, Any]:
        """The view as JSON, for a dcc.Store."""
        return asdict(self)

    @classmethod
    def from_data(cls, data: dict[str, Any] | None) -> View:
        """The view from data that `stored` returned."""
        return stored(_READER, data)


def stored(reader: TypeAdapter[Shown], data: dict[str, Any] | None) -> Shown:
    """A page's view from the fields that a browser stored; the page's own and the shared fields are at the same level.

    The data is untrusted: types, bounds and names are checked against the class.

    Args:
        reader: of the page's class, a dataclass; its field `shared` holds the part that all pages share.
        data: its fields; None for an empty page.

    Raises:
        ValueError: the data is not such a view.
    """
    if data is not None and not isinstance(data, dict):
        raise ValueError("a view is an object")
    return reader.validate_python((data or {}) | {"shared": data or {}})


_READER: Final = TypeAdapter(View)


def with_fields(query: str, fields: Mapping[str, str | int | float | None]) -> str:
    """A link's query with fields of a page's own; empty ones are left out.

    Example:
        >>> with_fields("?run=a", {"sync": 3, "scale": ""})
        '?run=a&sync=3'
    """
    own = urlencode([(name, value) for name, value in fields.items() if value not in (None, "")])
    return "?" + "&".join(filter(None, (query.removeprefix("?"), own))) if query or own else ""


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


def query_of(search: str | None) -> dict[str, list[str]]:
    """The fields of a link's query; none if it is invalid."""
    try:
        return parse_qs((search or "").lstrip("?"), keep_blank_values=True, max_num_fields=6 * _MOST_NAMES)
    except ValueError:
        return {}


def last_of(query: dict[str, list[str]], name: str) -> str:
    """The last value of a field, empty if there is none."""
    values: Iterable[str] = query.get(name, [])
    return next(reversed(list(values)), "")


def integer_of(text: str, low: int) -> int | None:
    """A whole number, at least `low` and small enough to be added to times; None if invalid."""
    try:
        return min(max(int(text), low), FURTHEST)
    except ValueError:
        return None


def words_of(text: str | None) -> str:
    """A search text, limited in length and safe in a link."""
    return plain((text or "").strip()[:_LONGEST])[:_LONGEST].strip()


def _names(given: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in given if name))[:_MOST_NAMES]


def _dotted(ends: tuple[int, int]) -> str:
    return f"{ends[0]}..{ends[1]}"


def _ends(text: str) -> tuple[int, int] | None:
    first, dots, last = text.partition("..")
    try:
        ends = within(int(first)), within(int(last))
    except ValueError:
        return None
    return ends if dots else None


def _area(query: dict[str, list[str]]) -> Area | None:
    ends, by = _ends(last_of(query, "area")), last_of(query, "by")
    if ends is None:
        return None
    return Area(min(ends), max(ends), _names(query.get("of", [])), by if by in GROUPINGS else "kind")


def _pointless(key: str) -> str:
    return quote(key, safe="").replace(".", "%2E")


def _bookmark(text: str) -> Bookmark | None:
    """As written by `View.query`: LOW..HIGH.RUN.NOTE, with the run's key quoted once more, as it may contain dots."""
    low, _, rest = text.partition("..")
    high, _, rest = rest.partition(".")
    run, _, note = rest.partition(".")
    ends = _ends(f"{low}..{high}")
    return None if not run or ends is None else Bookmark(unquote(run), min(ends), max(ends), words_of(note))


def _spot(text: str) -> Spot | None:
    row, _, rest = text.partition(".")
    event, _, run = rest.partition(".")
    try:
        found = Spot(run, int(row), int(event))
    except ValueError:
        return None
    return found if run and 0 <= found.row < FURTHEST and 0 <= found.event < FURTHEST else None
