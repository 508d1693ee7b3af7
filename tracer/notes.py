"""Notes on a recording: what its figures lack. A note is a text whose first line is a sentence, without its full stop
and with the remedy last; more lines may tell the rest, which `-v` shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from tracer.text import plain, spelled

LONGEST: Final = 160
"""Characters of a sentence, with its full stop."""
AT_ONCE: Final = 3
"""Number of notes that are shown without being asked for."""
NAME: Final = 40
"""Characters of a name from a recording in a note."""

_LEAST: Final = LONGEST // 3  # of a sentence that ends before the rest of its clauses
_CLAUSE: Final = re.compile(r"[;:,] ")
_PATH: Final = re.compile(r"(?<![\w.:/~])~?(?:/[^\s/\"'(),;:]+)+/(?=[^\s/])")
_WORD: Final = re.compile(rf"\S{{{NAME + 3},}}?(?=[;:,]?(?:\s|$))")
_CHANGES_NO_FIGURE: Final = re.compile(
    r"^left out: .* include with|a device stamp takes|ids (above|were)|^read (from|with)|is read as| is newer$"
    r"|python_function events are left out|tables or columns with names|^tables of unknown|streams are hardware queues"
    r"|copies have no sizes|overwrote their texts|^the kernels inside CUDA graphs|edges lead back|have no call site"
)


def fitting(full: str, shorter: str) -> str:
    """The note of a sentence; one that is too long becomes what more there is to tell after a shorter one.

    Example:
        >>> fitting("two are left out", "some are left out")
        'two are left out'
        >>> fitting(f"some are left out: {'kernel ' * 30}", "some are left out")[:30]
        'some are left out\\nkernel kern'
    """
    return full if len(full) < LONGEST else f"{shorter}\n{full.removeprefix(shorter).lstrip(':; ')}"


def sentence(note: str) -> str:
    """The first line of a note, as it is."""
    return note.partition("\n")[0]


def brief(note: str) -> str:
    """The sentence of a note, without the full stop: at most `LONGEST` printable characters with it, paths and long
    words cut. One that an older version recorded ends with the last clause that fits.

    Example:
        >>> brief("range /home/me/runs/a.py has no end"), brief("3 are left out\\nbecause they lack times")
        ('range …/a.py has no end', '3 are left out')
    """
    text = _clean(sentence(note))
    shorter = clauses(text, LONGEST - 1)
    return shorter if len(shorter) >= min(_LEAST, len(text)) else f"{text[: LONGEST - 2].rpartition(' ')[0]} …"


def clauses(text: str, most: int) -> str:
    """The first clauses of a text, of at most so many characters together; "" if the first is longer.

    Example:
        >>> clauses("waits by thread 3, which do not end; others", 38)
        'waits by thread 3, which do not end'
    """
    if len(text) <= most:
        return text
    ends = [found.start() for found in _CLAUSE.finditer(text, 0, most + 2)]
    strong = [end for end in ends if text[end] != "," and end >= _LEAST]
    return text[: (strong or ends)[-1]] if ends else ""


def whole(note: str) -> str:
    """All lines of a note, a sentence each.

    Example:
        >>> whole("3 are left out\\nthey lack times")
        '3 are left out. they lack times.'
    """
    return " ".join(f"{spelled(line.strip().removesuffix('.'))}." for line in note.split("\n"))


def by_weight(notes: Iterable[str]) -> list[str]:
    """Each note once, those first that change a figure."""
    return sorted(dict.fromkeys(notes), key=lambda note: bool(_CHANGES_NO_FIGURE.search(sentence(note))))


def _clean(line: str) -> str:
    text = _PATH.sub("…/", spelled(line.strip().removesuffix(".")))
    return _WORD.sub(lambda word: plain(word[0], NAME), text)
