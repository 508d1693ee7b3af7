"""Names from recordings made safe to show, file names safe to use, and times in a suitable unit.

Plotly reads a subset of HTML in labels and hovers, so a kernel called `void k<float>(T*)` would lose its
arguments and `<a href=...>` would become a link. Every name from a recording passes through here first.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import count, takewhile
from typing import Final

from tracer.text import LONGEST, UNITS, duration, plain, with_sign

__all__ = ["LONGEST", "apart", "brief_site", "duration", "fitting", "markup", "plain", "width_of"]

_BETWEEN: Final = "-_ /.·~"  # the boundaries of words in a name
_WIDTHS: Final = {
    letter: width
    for letters, width in (
        ("ijlI'|", 0.3), (" .,·:;!/-", 0.34), ("frt()[]", 0.41),
        ("FJLT", 0.61), ("ABEKPRSVXYZ", 0.7), ("CDGHNOQU&", 0.79), ("MWmw@%…", 1.0),
    )
    for letter in letters
}  # fmt: skip
"""Widths of letters in shares of their size, in DejaVu Sans, wider than most; others in ASCII have `_USUAL`."""
_USUAL: Final = 0.636
_DIRECTORIES: Final = re.compile(r"^/\S*/(?=[^/\s]+/[^/\s]+\(\d+\): )")
_PLAIN: Final = frozenset(" .-_+()~")
_LONGEST: Final = 100


def apart(names: Sequence[str], limit: int) -> list[str]:
    """Distinct names of at most `limit` characters: if one is longer, what differs among them; names that differ nearly
    everywhere are cut in their middle.

    Example:
        >>> apart(["llama-1.1b-sccc-branches-cuda", "llama-1.1b-saaas-sequential-cuda"], 20)
        ['sccc-branches', 'saaas-sequential']
    """
    group = list(dict.fromkeys(names))
    if len(group) < 2 or all(len(name) <= limit for name in group):
        return [plain(name, limit) for name in names]
    shortened = dict(zip(group, _around_difference(group, limit), strict=True))
    return [shortened[name] for name in names]


def _around_difference(names: Sequence[str], limit: int) -> list[str]:
    """The differing parts of distinct names; where one has none, with the shared word before it."""
    before = _shared(names)
    behind = _shared([name[before:][::-1] for name in names])
    if any(len(name) == before + behind for name in names):
        word = max(names[0].rfind(each, 0, max(before - 1, 0)) for each in _BETWEEN)
        before = word + 1
    own = [plain(name[before : len(name) - behind].strip(_BETWEEN)) for name in names]
    return own if all(0 < len(each) <= limit for each in own) and len(set(own)) == len(own) else _cut(names, limit)


def _cut(names: Sequence[str], limit: int) -> list[str]:
    """Names cut in their middle; those that would then be alike by what differs among them, or by a number."""
    short = [plain(name, limit) for name in names]
    for alike in {text for text in short if short.count(text) > 1}:
        places = [place for place, text in enumerate(short) if text == alike]
        group = [names[place] for place in places]
        differs = _around_difference(group, limit) if len(group) < len(names) else None
        for number, place in enumerate(places):
            short[place] = differs[number] if differs else f"{plain(names[place], limit - 4)} {number + 1}"
    return short


def _shared(names: Sequence[str]) -> int:
    """The length of the common prefix, to the end of a word; all of it if no word ends there."""
    alike = [letters[0] for letters in takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))]
    ends = [place for place, letter in enumerate(alike, 1) if letter in _BETWEEN]
    return ends[-1] if ends else len(alike)


def width_of(text: str, size: float) -> float:
    """About the width of a text in px, rather more than less, in sans-serif letters of `size` px."""
    return size * sum(_WIDTHS.get(letter, _USUAL if letter.isascii() else 1.0) for letter in text)


def fitting(name: str, px: float, size: float) -> str:
    """A name, its middle cut if it is wider than `px` in letters of `size` px; like `tracer.text.plain`.

    Example:
        >>> fitting("NVTX · VLLM::EngineCore", 100, 11), fitting("stream 7", 100, 11)
        ('NVTX · V…eCore', 'stream 7')
    """
    most = min(len(name), int(px / size * 3))
    return next(
        (cut for limit in range(most, 3, -1) if width_of(cut := plain(name, limit), size) <= px), plain(name, 3)
    )


def brief_site(site: str, limit: int = LONGEST) -> str:
    """A call site with only the last directory of its file.

    Example:
        >>> brief_site("/home/ada/engine/decode.py(31): step")
        'engine/decode.py(31): step'
    """
    return plain(_DIRECTORIES.sub("", site), limit)


def markup(name: str, limit: int = LONGEST, width: int | None = None) -> str:
    """A name for Plotly, which shows it literally; broken into lines of `width` characters if given.

    Example:
        >>> markup("void k<float>(T*)")
        'void k&lt;float&gt;(T*)'
    """
    shown = plain(name, limit)
    pieces = [shown] if width is None else [shown[i : i + width] for i in range(0, len(shown), width)] or [""]
    # Plotly's own list of entities has no &quot;; a $ would start a formula where MathJax is loaded.
    return "<br>".join(html.escape(piece, quote=False).replace("$", "&#36;") for piece in pieces)


def safe_name(name: str) -> str:
    """A file name without path, controls, direction marks or symbols, at most 100 characters with its suffixes kept.

    Example:
        >>> safe_name("../../etc/a b.sqlite"), safe_name("<img>.json"), safe_name("..")
        ('a b.sqlite', '_img_.json', 'recording')
    """
    last = unicodedata.normalize("NFC", name).replace("\\", "/").rpartition("/")[2]
    clean = "".join(c if c.isalnum() or c in _PLAIN else "_" for c in last).strip(" ").lstrip(".")
    if len(clean) > _LONGEST:
        clean = f"{clean[: _LONGEST - 21]}~{clean[-20:]}"
    return clean or "recording"


def microseconds(us: float | None) -> str:
    """µs to three significant digits, or a dash for none."""
    return "–" if us is None else duration(us * 1e3)


def difference(ns: float, digits: int = 3) -> str:
    """A difference of times with its sign.

    Example:
        >>> difference(-18_000), difference(0.2)
        ('−18.0 µs', '±0 ns')
    """
    return with_sign(ns, duration(abs(ns), digits))


def size(number: int) -> str:
    """A number of bytes in B, KiB, MiB or GiB."""
    value = float(number)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" or value == int(value) else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def ticks(low: int, high: int, most: int) -> tuple[list[int], list[str]]:
    """Round times in [low, high] for an axis, at most `most` of them, and their labels, all in one unit.

    Example:
        >>> ticks(-200_000, 1_150_000, 5)
        ([0, 500000, 1000000], ['0', '500 µs', '1,000 µs'])
    """
    step = 1
    while (high - low) / step > most:
        step = next(s for s in _steps() if s > step)
    unit, name = next(((int(scale), unit) for scale, unit in UNITS if step >= scale), (1, "ns"))
    times = list(range(-(-low // step) * step, high + 1, step))
    return times, [f"{t // unit:,} {name}".replace("-", "−") if t else "0" for t in times]


def _steps() -> Iterator[int]:
    return (leading * 10**power for power in count() for leading in (1, 2, 5))
