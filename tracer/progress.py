"""How far long work is: formats tell, the command line shows it. Who only calls a format hears nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[float], None]
"""Gets the share of the work that is done, 0 to 1."""

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


def tell(done: int, total: int) -> None:
    """Say how much of the work at hand is done, in any unit."""
    if (listener := _listener.get()) is not None and total > 0:
        listener(min(done / total, 1.0))


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Let a listener hear what is told in the block."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
