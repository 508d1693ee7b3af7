"""Recorders fill the tables of a trace; `tracer.record` starts one, `tracer.annotate` marks a range in all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, overload

import nvtx
from nvtx.colors import color_to_hex

from tracer.errors import UsageError
from tracer.recorders.host import HostRecorder
from tracer.trace import Trace

if TYPE_CHECKING:
    from tracer.recorders.cupti import CuptiRecorder


class Recorder(Protocol):
    """What every recorder offers. `start` and `stop` may alternate any number of times."""

    def start(self) -> None:
        """Begin (or go on) recording."""

    def stop(self) -> None:
        """Stop recording; events from here on cost nothing."""

    def push_range(self, text: str, payload: int | float | None, domain: str = "", color: int = -1) -> None:
        """An NVTX range opens on the calling thread; colour as 0xAARRGGBB."""

    def pop_range(self) -> None:
        """The calling thread's innermost range closes."""

    @property
    def trace(self) -> Trace:
        """Everything recorded so far."""


AnyRecorder = TypeVar("AnyRecorder", bound=Recorder)

_active: list[Recorder] = []


def activate(recorder: Recorder) -> None:
    """Start a recorder and let `annotate` reach it."""
    recorder.start()
    _active.append(recorder)


def deactivate(recorder: Recorder) -> None:
    """Stop a recorder that `activate` started."""
    _active.remove(recorder)
    recorder.stop()


@overload
def record(source: Literal["host"] = ...) -> AbstractContextManager[HostRecorder]: ...
@overload
def record(
    source: Literal["cupti"],
    *,
    graph_trace: Literal["node", "graph"] = ...,
    kinds: Iterable[str] = ...,
    limit: int = ...,
) -> AbstractContextManager[CuptiRecorder]: ...
def record(source: str = "host", **options: Any) -> AbstractContextManager[Any]:
    """Record the body: `with tracer.record() as recording: ...`, then `recording.trace`.

    Args:
        source: "host" (what our own backends report) or "cupti" (CUDA in this process).
        options: what the recorder takes; see `CuptiRecorder`.

    Raises:
        UsageError: there is no recorder of that name.
        RecordError: it cannot record here.
    """
    if source == "host":
        return _recording(HostRecorder(**options))
    if source == "cupti":
        from tracer.recorders.cupti import CuptiRecorder

        return _recording(CuptiRecorder(**options))
    raise UsageError(f"there is no recorder {source!r}; there are host and cupti")


@contextmanager
def _recording(recorder: AnyRecorder) -> Iterator[AnyRecorder]:
    activate(recorder)
    try:
        yield recorder
    finally:
        deactivate(recorder)


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

    __slots__ = ("_color", "_domain", "_index", "_recorders", "_text")

    def __init__(
        self, text: str, *, index: int | float | None = None, domain: str | None = None, color: str | int = "blue"
    ) -> None:
        self._text, self._index, self._domain, self._color = text, index, domain, color
        self._recorders: tuple[Recorder, ...] = ()

    def __enter__(self) -> None:
        self._recorders = tuple(_active)
        if self._recorders:
            for recorder in self._recorders:
                recorder.push_range(self._text, self._index, self._domain or "", _argb(self._color))
        nvtx.push_range(self._text, color=self._color, domain=self._domain, payload=self._index)

    def __exit__(self, *failure: object) -> None:
        nvtx.pop_range(self._domain)
        for recorder in reversed(self._recorders):
            recorder.pop_range()


@cache
def _argb(color: str | int) -> int:
    return color if isinstance(color, int) else int(color_to_hex(color))
