"""What a user may choose of a recording: which steps, and at which rate the program ran without a profiler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

RATES: Final = (1e-3, 1e9)
"""The lowest and highest steps per second that a user may give."""

HOW_TO_TELL: Final = "--pattern takes the name of a range, kernel or API call that begins a step"
"""What helps where the steps cannot be found, or are others than the engine's."""


@dataclass(frozen=True)
class Bounds:
    """A selection of a trace's steps.

    Attributes:
        first, last: a slice of them, as in Python.
        phase: one of `engines.engine.PHASES`, or "all". None for decode steps (or speculative ones, if there are more
            of those), or all steps if there are none.
        pattern: regular expression for what begins a step, see `find_steps`.
    """

    first: int | None = None
    last: int | None = None
    phase: str | None = None
    pattern: str | None = None


ALL_STEPS: Final = Bounds()
"""No bounds: the default selection."""
