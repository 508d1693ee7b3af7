"""Limits on JSON of unknown origin, checked piece by piece before the parser sees it.

The streaming parser (yajl) takes time quadratic in the depth and superlinear in the length of a string, and ends the
process on an integer with more digits than Python converts (4300).
"""

from __future__ import annotations

from typing import Final

import numpy as np

DEEPEST: Final = 1000
"""Levels; events have about 5."""
MOST_DIGITS: Final = 100
"""Consecutive digits of a number; 64-bit integers have up to 20."""
LONGEST: Final = 1 << 20
"""Bytes of one string; kernel names have up to about 10,000."""

_SLICE: Final = 1 << 16  # bytes; a string within one slice is short enough
_DIGITS: Final = b"0123456789"
_STRUCTURE: Final = bytes(set(range(256)) - set(b'[]{}"'))
_ALL_DIGITS_AS_0: Final = bytes.maketrans(_DIGITS, b"0" * 10)
_TOO_MANY: Final = b"0" * (MOST_DIGITS + 1)


class Pieces:
    """Checks the pieces of one JSON document, in order."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_text = False
        self._length = 0  # of the string that continues in the next piece
        self._digits = b""  # digits at the end of the last piece
        self._escape = b""

    def check(self, piece: bytes) -> None:
        """Check the next piece.

        Raises:
            ValueError: the JSON is nested too deeply, or has a number or a string that is too long.
        """
        for start in range(0, len(piece), _SLICE):
            self._check(piece[start : start + _SLICE])

    def _check(self, piece: bytes) -> None:
        plain = self._escape + piece
        if b"\\" in plain:
            plain = plain.replace(b"\\\\", b"__").replace(b'\\"', b"__")
        self._escape = b"\\" if plain.endswith(b"\\") else b""
        plain = plain[: len(plain) - len(self._escape)]
        begins_in_text = self._in_text
        self._check_depth(plain)
        self._check_texts(plain, begins_in_text)
        self._check_digits(plain, begins_in_text)

    def _check_depth(self, plain: bytes) -> None:
        parts = plain.translate(None, _STRUCTURE).split(b'"')
        brackets = np.frombuffer(b"".join(parts[self._in_text :: 2]), np.uint8)
        self._in_text ^= len(parts) % 2 == 0
        levels = self._depth + np.cumsum(np.where((brackets | 0x20) == ord("{"), 1, -1))
        if levels.max(initial=0) > DEEPEST:
            raise ValueError(f"is nested deeper than {DEEPEST} levels")
        self._depth = int(levels[-1]) if len(levels) else self._depth

    def _check_texts(self, plain: bytes, begins_in_text: bool) -> None:
        if begins_in_text:
            end = plain.find(b'"')
            self._length += len(plain) if end < 0 else end
            if self._length > LONGEST:
                raise ValueError(f"contains a string longer than {LONGEST >> 20} MiB")
            if end < 0:
                return
        self._length = len(plain) - plain.rfind(b'"') - 1

    def _check_digits(self, plain: bytes, begins_in_text: bool) -> None:
        plain = self._digits + plain
        if _TOO_MANY in plain.translate(_ALL_DIGITS_AS_0):
            numbers = b'"'.join(plain.split(b'"')[begins_in_text::2])
            if _TOO_MANY in numbers.translate(_ALL_DIGITS_AS_0):
                raise ValueError(f"contains a number with more than {MOST_DIGITS} digits")
        digits = b"" if self._in_text else plain[-MOST_DIGITS:]
        self._digits = digits[len(digits.rstrip(_DIGITS)) :]
