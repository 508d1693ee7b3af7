"""`annotate` opens an NVTX range, for Nsight Systems and for every active recorder."""

from __future__ import annotations

from functools import cache
from typing import Final, Protocol

import nvtx
from nvtx.colors import color_to_hex


class RangeRecorder(Protocol):
    """A recorder that `annotate` notifies of its ranges.

    Attributes:
        takes_nvtx: whether it is the only receiver of NVTX calls in this process; `annotate` can then omit them.
    """

    takes_nvtx: bool

    def push_range(self, text: str, payload: int | float | None, domain: str = "", color: int = -1) -> None:
        """Open an NVTX range on the calling thread; colour as 0xAARRGGBB."""

    def pop_range(self) -> None:
        """Close the calling thread's innermost range."""


recording: Final[list[RangeRecorder]] = []
"""The recorders between `start` and `stop`; they add and remove themselves."""


class annotate:  # a verb, used as `with annotate(...)`
    """An NVTX range around the body, for Nsight Systems and for every active recorder.

    It is a class with slots rather than a generator, because it runs between two tokens, where each microsecond counts.
    An object may be reused, but not nested in itself.

    Args:
        text: the range's text, such as "token".
        index: its payload, such as the token's number.
        domain: its NVTX domain; None is the default domain.
        color: a colour name of `nvtx`, or 0xAARRGGBB.
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
