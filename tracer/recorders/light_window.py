"""A part of a run: the rings of its processes are switched on and off from outside, while they run."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tracer.recorders.light_ring import switch_recording

PAUSED: Final = "INTERTOKEN_LIGHT_PAUSED"
"""Variable with which a process begins paused."""

_EVERY_S: Final = 0.05


@dataclass(frozen=True)
class Window:
    """The part of a run that is recorded: from `after` seconds on, for `seconds` (None: to the end)."""

    after: float = 0.0
    seconds: float | None = None

    @property
    def is_all(self) -> bool:
        """Whether it is the whole run."""
        return not self.after and self.seconds is None

    def holds(self, since: float) -> bool:
        """Whether it is recorded, so many seconds after the start."""
        return since >= self.after and (self.seconds is None or since < self.after + self.seconds)


WHOLE: Final = Window()


@contextmanager
def switched(rings: Path, window: Window) -> Iterator[None]:
    """Let every process record while the window is open; those that begin later, too.

    They begin paused, by the variable `PAUSED`.
    """
    if window.is_all:
        yield
        return
    over, begun = threading.Event(), time.monotonic()

    def switch() -> None:
        while not over.wait(_EVERY_S):
            on = window.holds(time.monotonic() - begun)
            for path in rings.glob("*.ring"):
                with suppress(OSError, ValueError):  # it is being made, or its process is another user's
                    switch_recording(path, on=on)

    switching = threading.Thread(target=switch, daemon=True)
    switching.start()
    try:
        yield
    finally:
        over.set()
        switching.join()
