r"""JSON that its writer did not escape, made valid piece by piece, as it is read.

In strings: backslashes that begin no escape (`C:\Users`) and control characters. Outside of them: `nan` and `inf`,
which C and Python print for numbers that JSON cannot hold, become `null`; NUL bytes become spaces, and commas before a
closing bracket disappear.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

_STRING: Final = re.compile(
    rb'[^"\\\x00-\x1f]+|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|(?P<open>\\(?:u[0-9a-fA-F]{0,3})?\Z)|(?P<slash>\\)'
    rb"|(?P<control>[\x00-\x1f])"
)
_NUMBER: Final = re.compile(rb"[-+]?\b(?:nan(?:\(\w*\))?|inf(?:inity)?)(?![\w(])", re.IGNORECASE)
_COMMA: Final = re.compile(rb",(?=\s*[]}])")
_OPEN: Final = re.compile(rb"(?:[-+]?\w{1,12}(?:\(\w{0,8})?|[-+]|,\s{0,64})\Z")
"""What at the end of a piece outside of strings may become something else with the next."""


class Repair:
    """The repair of one JSON document, whose pieces are given in order.

    Attributes:
        count: what was repaired -> how often.

    Example:
        >>> repair = Repair()
        >>> repair.next(b'{"a": na') + repair.next(b'n, "b": "c:\\d"}') + repair.next(b"", last=True)
        b'{"a": null, "b": "c:\\\\d"}'
    """

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()
        self._in_string = False
        self._kept = b""

    def next(self, piece: bytes, last: bool = False) -> bytes:
        """The next piece, repaired; its end may be kept for the one after it, unless it is the `last`."""
        data, self._kept = self._kept + piece, b""
        parts, at = list[bytes](), 0
        while at < len(data):
            at = self._string(data, at, parts, last) if self._in_string else self._outside(data, at, parts, last)
        return b"".join(parts)

    def _outside(self, data: bytes, at: int, parts: list[bytes], last: bool) -> int:
        quote = data.find(b'"', at)
        text = data[at:] if quote < 0 else data[at:quote]
        if quote < 0 and not last and (open := _OPEN.search(text)):
            text, self._kept = text[: open.start()], open[0]
        for pattern, by, what in ((_NUMBER, b"null", "numbers that are none"), (_COMMA, b"", "commas")):
            text, count = pattern.subn(by, text)
            self._add(what, count)
        if b"\0" in text:
            self._add("control characters", text.count(b"\0"))
            text = text.replace(b"\0", b" ")
        parts.append(text)
        if quote < 0:
            return len(data)
        parts.append(b'"')
        self._in_string = True
        return quote + 1

    def _string(self, data: bytes, at: int, parts: list[bytes], last: bool) -> int:
        """Append a string from this position on, and return the position behind it."""
        while match := _STRING.match(data, at):
            at, text = match.end(), match[0]
            if match.lastgroup == "open" and not last:
                self._kept = text
                return len(data)
            if match.lastgroup == "control":
                self._add("control characters", 1)
                text = b"\\u%04x" % text[0]
            elif match.lastgroup is not None:
                self._add("backslashes", 1)
                text = b"\\" + text
            parts.append(text)
        if at < len(data):  # a quote: nothing else is left
            parts.append(b'"')
            self._in_string = False
            at += 1
        return at

    def _add(self, what: str, number: int) -> None:
        if number:
            self.count[what] += number
