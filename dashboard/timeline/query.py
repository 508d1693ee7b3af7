"""A search query: a part of a name and filters, in one line of text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from dashboard.palette import KINDS, NAMES

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
