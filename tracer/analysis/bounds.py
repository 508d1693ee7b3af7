"""What a user may choose of a recording: which steps, of which engine, and at which rate the program ran without a
profiler."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

RATES: Final = (1e-3, 1e9)
"""The lowest and highest steps per second that a user may give."""

HOW_TO_TELL: Final = "--pattern takes the name of a range, kernel or API call that begins a step"
"""What helps where the steps cannot be found, or are others than the engine's."""


_MOST_LISTED: Final = 4
_DISTINCT: Final = (
    ("process",), ("thread",), ("device",), ("thread", "device"), ("process", "device"), ("process", "thread"),
    ("process", "thread", "device"),
)  # fmt: skip


@dataclass(frozen=True)
class Owner:
    """An engine: the process and thread that launch its steps, and the device on which these compute, None if they do
    on several."""

    process: int
    thread: int
    device: int | None

    def __str__(self) -> str:
        place = "" if self.device is None else f" device {self.device}"
        return f"process {self.process} thread {self.thread}{place}"


def remedy(owners: Sequence[Owner]) -> str:
    """The shortest options that choose one of several engines, in words.

    Example:
        >>> remedy([Owner(7, 8, 0), Owner(7, 9, 0)])
        'choose one with --thread 8 or --thread 9'
    """
    for names in _DISTINCT:
        keys = [tuple(getattr(each, name) for name in names) for each in owners]
        if len(set(keys)) == len(keys) and not any(None in key for key in keys):
            break
    options = (
        " ".join(f"--{name} {value}" for name, value in zip(names, key, strict=True) if value is not None)
        for key in keys
    )
    return f"choose one with {listed(options, ' or ')}"


def listed(texts: Iterable[str], last: str) -> str:
    """The first few of these texts, in words; `last` stands before the last one of all."""
    first, rest = (every := list(texts))[:_MOST_LISTED], len(every) > _MOST_LISTED
    return f"{', '.join(first)}, …" if rest else last.join([", ".join(first[:-1]), first[-1]][len(first) == 1 :])


@dataclass(frozen=True)
class Bounds:
    """A selection of a trace's steps.

    Attributes:
        first, last: a slice of them, as in Python.
        phase: one of `engines.engine.PHASES`, or "all". None for decode steps (or speculative ones, if there are more
            of those), or all steps if there are none.
        pattern: regular expression for what begins a step, see `find_steps`.
        process, thread: number or name of those that launch the steps; None for all.
        device: on which the steps compute; None for all.
    """

    first: int | None = None
    last: int | None = None
    phase: str | None = None
    pattern: str | None = None
    process: str | None = None
    thread: str | None = None
    device: int | None = None

    def of(self, owner: Owner) -> Bounds:
        """The bounds, of one engine."""
        return replace(self, process=str(owner.process), thread=str(owner.thread), device=owner.device)


ALL_STEPS: Final = Bounds()
"""No bounds: the default selection."""
