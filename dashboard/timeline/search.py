"""Search: a part of a name and filters in one line of text; and the events that match."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dashboard.palette import KINDS, NAMES
from tracer.model.intervals import Ints

_REMEMBERED: Final = 2  # searches of a row: a position each of ten million events takes 40 MB
_PLURALS: Final = {"copy": "copies", "launch": "launches", "host": "pieces of host code",
                   "other": "of other processes or threads", "communication": "collectives"}  # fmt: skip
Positions = NDArray[np.int32]
HINT: Final = "gemm kind:kernel stream:7 >50us"
_UNITS: Final = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_LENGTH: Final = re.compile(r"([<>])(\d{1,9}(?:\.\d{1,9})?)(ns|us|µs|ms|s)")
_STREAM: Final = re.compile(r"stream:(\d{1,9})")
_LONGEST: Final = 2**62


@dataclass(frozen=True)
class Query:
    """A search.

    Attributes:
        text: substring of the name, ignoring case; "" for any name.
        kinds: positions in `palette.KINDS`, any of which matches; None for all.
        streams: streams, any of which matches; None for all.
        longer, shorter: bounds of the duration, ns, both excluded.
    """

    text: str = ""
    kinds: frozenset[int] | None = None
    streams: frozenset[int] | None = None
    longer: int = -1
    shorter: int = _LONGEST

    @property
    def filters(self) -> bool:
        """Whether there are filters in addition to the name."""
        return self != Query(self.text)


@lru_cache
def query_of(find: str) -> Query:
    """Parse a search: `kind:NAME`, `stream:NUMBER`, `>TIME` and `<TIME` are filters, the rest is the text.

    Several kinds, or several streams, mean any of them. An unknown kind matches nothing.

    Example:
        >>> query_of("gemm stream:7 >50us")
        Query(text='gemm', kinds=None, streams=frozenset({7}), longer=50000, shorter=4611686018427387904)
    """
    words, kinds, streams, longer, shorter = list[str](), list[frozenset[int]](), list[int](), -1, _LONGEST
    for word in find.split():
        if length := _LENGTH.fullmatch(word):
            ns = round(float(length[2]) * _UNITS[length[3]])
            longer, shorter = (max(longer, ns), shorter) if length[1] == ">" else (longer, min(shorter, ns))
        elif stream := _STREAM.fullmatch(word):
            streams.append(int(stream[1]))
        elif word.casefold().startswith("kind:"):
            kinds.append(_kinds(word.partition(":")[2].casefold()))
        else:
            words.append(word)
    return Query(
        " ".join(words),
        frozenset().union(*kinds) if kinds else None,
        frozenset(streams) if streams else None,
        longer,
        shorter,
    )


def _kinds(word: str) -> frozenset[int]:
    """The kinds meant by a word: by key, or by the first word of the name in the legend."""
    return frozenset(at for at, kind in enumerate(KINDS) if word in (kind, NAMES[kind].partition(" ")[0].casefold()))


class Finder:
    """The search index of a row's events.

    Args:
        start: when they begin, in order, ns.
        end: when they end.
        what: their positions in `palette.KINDS`.
        stream: the streams that they are on, MISSING for none.
        names: columns of names, categoricals; one match suffices.
    """

    def __init__(
        self, start: Ints, end: Ints, what: NDArray[np.int8], stream: Ints, names: Sequence[pd.Series]
    ) -> None:
        self._start, self._end, self._what, self._stream = start, end, what, stream
        self._names = [cast(pd.Categorical, column.array) for column in names]
        self.positions = lru_cache(maxsize=_REMEMBERED)(self._positions)

    @cached_property
    def _folded(self) -> list[list[str]]:
        """The distinct names of each column, in lower case."""
        return [[str(name).casefold() for name in column.categories] for column in self._names]

    @cached_property
    def totals(self) -> Ints:
        """The number of events of each kind."""
        return np.bincount(self._what, minlength=len(KINDS))

    def _positions(self, find: str) -> Positions:
        """The events that match a search as typed, by start."""
        query = query_of(find)
        hit = np.zeros(len(self._start), bool)
        for column, names in zip(self._names, self._folded, strict=True):
            wanted = np.array([query.text.casefold() in name for name in names], dtype=bool)
            if wanted.any():
                hit |= wanted[column.codes]
        found = np.flatnonzero(hit).astype(np.int32)
        return self._kept(found, query) if query.filters else found

    def _kept(self, found: Positions, query: Query) -> Positions:
        """The positions of the events that pass the filters."""
        length = self._end[found] - self._start[found]
        kept = (length > query.longer) & (length < query.shorter)
        if query.kinds is not None:
            kept &= np.isin(self._what[found], list(query.kinds))
        if query.streams is not None:
            kept &= np.isin(self._stream[found], list(query.streams))
        return found[kept]

    def among(self, events: Ints, find: str) -> Ints:
        """1 for each of these events that matches, 0 for others."""
        found = self.positions(find)
        at = np.searchsorted(found, events)
        return (found[np.minimum(at, len(found) - 1)] == events).astype(np.int64) if len(found) else 0 * events

    def within(self, start: Ints, end: Ints, find: str) -> Ints:
        """The number of matches that begin in each of these spans, ns."""
        found = self.positions(find)
        first, last = (np.searchsorted(found, np.searchsorted(self._start, times)) for times in (start, end))
        return cast(Ints, last - first)

    def counts(self, find: str) -> Ints:
        """The number of matches of each kind."""
        return np.bincount(self._what[self.positions(find)], minlength=len(KINDS))

    def before(self, find: str, at: int) -> int:
        """The number of matches before position `at`."""
        return int(np.searchsorted(self.positions(find), at))

    def starting_before(self, find: str, time: int) -> int:
        """The number of matches that start before a time, ns."""
        return self.before(find, int(np.searchsorted(self._start, time)))

    def has(self, find: str, event: int) -> bool:
        """Whether this event matches."""
        return bool(self.among(np.array([event]), find)[0])

    def beside(self, find: str, at: int, step: int) -> int | None:
        """The first match from position `at` on (`step` 1), or the last before it (-1); None if there is none."""
        found = self.positions(find)
        place = int(np.searchsorted(found, at)) - (step < 0)
        return int(found[place]) if 0 <= place < len(found) else None


def counted(finders: Iterable[Finder], find: str) -> str:
    """The number of matches, in words.

    Example:
        >>> counted([], "gemm")
        'no event is called “gemm”'
    """
    found, totals = np.zeros((2, len(KINDS)), np.int64)
    for finder in finders:
        found += finder.counts(find)
        totals += finder.totals
    if not found.any():
        return f"no matches for “{find}”" if query_of(find).filters else f"no event is called “{find}”"
    kinds = np.flatnonzero(found).tolist()
    return ", ".join(f"{found[kind]:,} of {totals[kind]:,} {_plural(KINDS[kind])}" for kind in kinds)


def _plural(kind: str) -> str:
    return _PLURALS.get(kind, f"{NAMES[kind]}s")
