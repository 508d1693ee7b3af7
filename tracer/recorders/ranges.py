"""What this process's own Python adds to a recording: `annotate` opens an NVTX range, for Nsight Systems and for every
active recorder; and the Python stacks of API calls, captured during the call.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Final, Protocol

import nvtx
import pandas as pd
from nvtx.colors import color_to_hex

from tracer.model.schema import MISSING, TABLES
from tracer.model.trace import Trace, conform


class Recorder(Protocol):
    """The interface of every recorder. `start` and `stop` may alternate any number of times. If it `takes_nvtx`, it is
    the only receiver of NVTX calls in this process, and `annotate` can omit them."""

    takes_nvtx: bool

    def start(self) -> None:
        """Start or resume recording, including ranges of `annotate`."""

    def stop(self) -> None:
        """Stop recording; later events cost nothing."""

    @property
    def trace(self) -> Trace:
        """Everything recorded so far."""

    def push_range(self, text: str, payload: int | float | None, domain: str = "", color: int = -1) -> None:
        """Open an NVTX range on the calling thread; colour as 0xAARRGGBB."""

    def pop_range(self) -> None:
        """Close the calling thread's innermost range."""


recording: Final[list[Recorder]] = []
"""The recorders between `start` and `stop`; they add and remove themselves."""


class annotate:  # a verb, used as `with annotate(...)`
    """An NVTX range around the body, for Nsight Systems and for every active recorder.

    It is a class with slots rather than a generator, because it runs between two tokens, where each microsecond counts.
    An object may be reused, but not nested in itself.

    Args:
        text: the range's text, such as "token".
        index: its payload, such as the token's number.
        color: a colour name of `nvtx`, or 0xAARRGGBB.
    """

    __slots__ = ("_by_nvtx", "_color", "_domain", "_index", "_recorders", "_text")

    def __init__(
        self, text: str, *, index: int | float | None = None, domain: str | None = None, color: str | int = "blue"
    ) -> None:
        self._text, self._index, self._domain, self._color = text, index, domain, color
        self._recorders: tuple[Recorder, ...] = ()
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


Frame = tuple[str, int, str]
"""File, line, function."""

Stack = tuple[Frame, ...]
"""The innermost frame first."""

_OWN: Final = str(Path(__file__).parent)


def stack_here() -> Stack:
    """The calling thread's Python frames without the recorders' own; empty on threads not started by Python."""
    frames = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(_OWN):
            frames.append((code.co_filename, frame.f_lineno, code.co_name))
        frame = frame.f_back
    return tuple(frames)


def with_chains(trace: Trace, stacks: Mapping[int, Stack]) -> Trace:
    """Add the stacks of its calls (correlation -> stack) to a trace of one process without call chains, in place; equal
    stacks are stored once."""
    chains: dict[Stack, int] = {}
    chain_of = {call: chains.setdefault(stack, len(chains) + 1) for call, stack in stacks.items() if stack}
    if not chains:
        return trace
    rows = [
        (number, depth, f"{file}({line}): {function}")
        for stack, number in chains.items()
        for depth, (file, line, function) in enumerate(stack)
    ]
    table = pd.DataFrame(rows, columns=["chain", "depth", "symbol"])
    chain = trace["api"]["correlation"].map(chain_of).fillna(MISSING).astype("int64")
    trace.tables["api"] = trace["api"].assign(callchain=chain)
    trace.tables["callchains"] = conform(table, TABLES["callchains"])
    return trace
