"""Recorders fill the tables of a trace; `tracer.record` starts one, `tracer.annotate` marks a range in all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import nvtx

from tracer.recorders.host import HostRecorder
from tracer.trace import Trace


class Recorder(Protocol):
    """What every recorder offers. `start` and `stop` may alternate any number of times."""

    def start(self) -> None:
        """Begin (or go on) recording."""

    def stop(self) -> None:
        """Stop recording; events from here on cost nothing."""

    def push_range(self, text: str, payload: int | float | None) -> None:
        """An NVTX range opens on the calling thread."""

    def pop_range(self) -> None:
        """The calling thread's innermost range closes."""

    @property
    def trace(self) -> Trace:
        """Everything recorded so far."""


_RECORDERS = {"host": HostRecorder}
_active: list[Recorder] = []


def activate(recorder: Recorder) -> None:
    """Start a recorder and let `annotate` reach it."""
    recorder.start()
    _active.append(recorder)


def deactivate(recorder: Recorder) -> None:
    """Stop a recorder that `activate` started."""
    _active.remove(recorder)
    recorder.stop()


@contextmanager
def record(source: str = "host") -> Iterator[HostRecorder]:
    """Record the body: `with tracer.record() as recording: ...`, then `recording.trace`.

    Raises:
        KeyError: there is no recorder of that name.
    """
    recorder = _RECORDERS[source]()
    activate(recorder)
    try:
        yield recorder
    finally:
        deactivate(recorder)


@contextmanager
def annotate(text: str, *, index: int | float | None = None) -> Iterator[None]:
    """An NVTX range around the body, seen by Nsight Systems and by every active recorder.

    Args:
        text: the range's text, such as "token".
        index: its payload, such as the token's number.
    """
    recorders = tuple(_active)
    for recorder in recorders:
        recorder.push_range(text, index)
    nvtx.push_range(text, domain=None, payload=index)
    try:
        yield
    finally:
        nvtx.pop_range()
        for recorder in reversed(recorders):
            recorder.pop_range()
