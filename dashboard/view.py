"""The state of the page, which its link and other pages keep."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Annotated, Final, NamedTuple, TypeAlias, TypeVar
from urllib.parse import quote, unquote

from pydantic import AfterValidator, Field

from dashboard.links import Linked, one, part, several
from dashboard.rates import Rates, with_rate
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
TEXT: Final = one(lambda text: text or None)
"""A text, None for an empty one."""
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
        event: the chosen event.
        ruler: the measured range, ns from time 0; both ends are equal until the second is chosen.
        area: the area that is summed.
        bookmarks: bookmarked parts of recordings.
        rows: the arrangement of the rows.
        rates: the given untraced rates, of visible runs or others.
        theme: one of `THEME_NAMES`.
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
