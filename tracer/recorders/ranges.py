"""`annotate` marks an NVTX range, for Nsight Systems and for every recorder that is recording."""

from __future__ import annotations

from functools import cache
from typing import Final, Protocol

import nvtx
from nvtx.colors import color_to_hex


class RangeRecorder(Protocol):
    """What `annotate` tells its ranges to.

    Attributes:
        takes_nvtx: whether NVTX calls of this process reach it, and nobody else; `annotate` need not make them then.
    """

    takes_nvtx: bool

    def push_range(self, text: str, payload: int | float | None, domain: str = "", color: int = -1) -> None:
        """An NVTX range opens on the calling thread; colour as 0xAARRGGBB."""

    def pop_range(self) -> None:
        """The calling thread's innermost range closes."""


recording: Final[list[RangeRecorder]] = []
"""The recorders between their `start` and `stop`; they enter and leave by themselves."""


class annotate:  # a verb, used as `with annotate(...)`
    """An NVTX range around the body, seen by Nsight Systems and by every active recorder.

    A class with slots rather than a generator: it stands between two tokens, where each microsecond shows. One object
    may be used again and again, but not inside itself.

    Args:
        text: the range's text, such as "token".
        index: its payload, such as the token's number.
        domain: its NVTX domain; None is the default one.
        color: a name that `nvtx` knows, or 0xAARRGGBB.
    """

    __slots__ = ("_by_nvtx", "_color", "_domain", "_index", "_recorders", "_text")

    def __init__(
        self, text: str, *, index: int | float | None = None, domain: str | None = None, color: str | int = "blue"
    ) -> None:
        self._text, self._index, self._domain, self._color = text, index, domain, color
        self._recorders: tuple[RangeRecorder, ...] = ()
        self._by_nvtx = True

    def __enter__(self) -> None:
        self._recorders = tuple(recording)
        self._by_nvtx = True
        for recorder in self._recorders:
            recorder.push_range(self._text, self._index, self._domain or "", _argb(self._color))
            self._by_nvtx = self._by_nvtx and not recorder.takes_nvtx
        if self._by_nvtx:
            nvtx.push_range(self._text, color=self._color, domain=self._domain, payload=self._index)

    def __exit__(self, *failure: object) -> None:
        if self._by_nvtx:
            nvtx.pop_range(self._domain)
        for recorder in reversed(self._recorders):
            recorder.pop_range()


@cache
def _argb(color: str | int) -> int:
    return color if isinstance(color, int) else int(color_to_hex(color))
