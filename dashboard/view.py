"""What the page shows, as a value: it is the page's whole state and, as a query string, its link."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final
from urllib.parse import parse_qs, urlencode

ALIGNMENTS: Final = {"end": "end of its compute", "start": "start of its compute"}
THEME_NAMES: Final = ("auto", "light", "dark")
MOST_RUNS: Final = 6
SHORTEST: Final = 100
"""The narrowest range that can be shown, ns."""
_FURTHEST: Final = 10**15  # eleven days: keeps hostile links inside int64 whatever is added to them


@dataclass(frozen=True)
class View:
    """What is shown.

    Attributes:
        runs: keys of the runs, in the order they were chosen; None before anybody chose.
        token: the token at which the runs are aligned; None for the most typical one.
        align: which moment of that token is time 0, a key of `ALIGNMENTS`.
        range: what the time axis shows, ns from that moment; None for one token around its gap.
        theme: one of `THEME_NAMES`.
    """

    runs: tuple[str, ...] | None = None
    token: int | None = None
    align: str = "end"
    range: tuple[int, int] | None = None
    theme: str = "auto"

    def query(self) -> str:
        """The view as the query of a link; what is as by default stays out of it."""
        pairs: list[tuple[str, str]] = []
        if self.runs is not None:
            pairs += [("run", key) for key in self.runs] or [("run", "")]
        if self.token is not None:
            pairs.append(("token", str(self.token)))
        if self.align != "end":
            pairs.append(("align", self.align))
        if self.range is not None:
            pairs.append(("range", f"{self.range[0]}..{self.range[1]}"))
        if self.theme != "auto":
            pairs.append(("theme", self.theme))
        return "?" + urlencode(pairs) if pairs else ""

    @classmethod
    def parse(cls, search: str | None) -> View:
        """The view that a link describes; what is missing or senseless in it takes its default."""
        query = query_of(search)
        runs = tuple(dict.fromkeys(key for key in query["run"] if key))[:MOST_RUNS] if "run" in query else None
        align, theme = last_of(query, "align"), last_of(query, "theme")
        return cls(
            runs=runs,
            token=integer_of(last_of(query, "token"), low=0),
            align=align if align in ALIGNMENTS else "end",
            range=_range(last_of(query, "range")),
            theme=theme if theme in THEME_NAMES else "auto",
        )

    def led_by(self, key: str) -> View:
        """The view with this run in front; one that was not chosen takes the place of the first."""
        runs = self.runs or ()
        others = [k for k in runs if k != key] if key in runs else runs[1:]
        return replace(self, runs=(key, *others), range=None)

    def data(self) -> dict[str, Any]:
        """The view as JSON, for a dcc.Store."""
        return asdict(self)

    @classmethod
    def from_data(cls, data: dict[str, Any] | None) -> View:
        """The view that `data` returned."""
        if data is None:
            return cls()
        runs, limits = data["runs"], data["range"]
        return cls(
            runs=None if runs is None else tuple(runs),
            token=data["token"],
            align=data["align"],
            range=None if limits is None else span(*limits),
            theme=data["theme"],
        )


def with_fields(query: str, fields: Mapping[str, str | int | float | None]) -> str:
    """A link's query with fields of a page's own; those without a value stay out of it.

    Example:
        >>> with_fields("?run=a", {"sync": 3, "scale": ""})
        '?run=a&sync=3'
    """
    own = urlencode([(name, value) for name, value in fields.items() if value not in (None, "")])
    return "?" + "&".join(filter(None, (query.removeprefix("?"), own))) if query or own else ""


def span(low: float, high: float) -> tuple[int, int]:
    """A range in order, of whole ns, no shorter than `SHORTEST` and no further away than int64 can bear."""
    low, high = (min(max(value, -_FURTHEST), _FURTHEST) for value in sorted((low, high)))
    first, last = round(low), round(high)
    short = SHORTEST - (last - first)
    return (first, last) if short <= 0 else (first - short // 2, first - short // 2 + SHORTEST)


def zoom(limits: tuple[int, int], factor: float, shift: float = 0.0) -> tuple[int, int]:
    """A range widened by `factor` about its middle and moved by `shift` of its width."""
    middle, half = (limits[0] + limits[1]) / 2, (limits[1] - limits[0]) / 2
    middle += shift * 2 * half
    return span(middle - half * factor, middle + half * factor)


def query_of(search: str | None) -> dict[str, list[str]]:
    """The fields of a link's query, none where it is senseless."""
    try:
        return parse_qs((search or "").lstrip("?"), keep_blank_values=True, max_num_fields=50)
    except ValueError:
        return {}


def last_of(query: dict[str, list[str]], name: str) -> str:
    """The last value of a field, empty if there is none."""
    values: Iterable[str] = query.get(name, [])
    return next(reversed(list(values)), "")


def integer_of(text: str, low: int) -> int | None:
    """A whole number, at least `low` and not beyond what can be added to times; None if it is none."""
    try:
        return min(max(int(text), low), _FURTHEST)
    except ValueError:
        return None


def _range(text: str) -> tuple[int, int] | None:
    first, dots, last = text.partition("..")
    try:
        return span(int(first), int(last)) if dots else None
    except (ValueError, OverflowError):
        return None
