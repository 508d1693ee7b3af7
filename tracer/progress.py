"""Progress of long work: formats report it, and the command line shows it. Without a listener nothing happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[float], None]
"""Receives the completed share of the work, 0 to 1."""

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


def tell(done: int, total: int) -> None:
    """Report how much of the current work is done, in any unit."""
    if (listener := _listener.get()) is not None and total > 0:
        listener(min(done / total, 1.0))


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Send the progress of the block to a listener."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
