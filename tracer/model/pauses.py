"""When a recorder paused: what nothing was recorded in, though the program went on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from tracer.model.trace import Trace

PAUSES: Final = "pauses_ns"
"""The member of the metadata: a list of [since, until, process], as in `Pause`."""

_FAR: Final = 1 << 61


class Pause(NamedTuple):
    """A half-open time, ns since the recording's origin; of `process`, or of all if it is None."""

    since: int
    until: int
    process: int | None = None


def pauses(trace: Trace) -> list[Pause]:
    """The pauses that the metadata tell; damaged entries are ignored."""
    told = trace.metadata.get(PAUSES)
    return [Pause(*each) for each in told if _is_pause(each)] if isinstance(told, list) else []


def add_pauses(trace: Trace, more: Iterable[Pause]) -> None:
    """Add pauses to the metadata, which a copy replaces."""
    known = [list(each) for each in (*pauses(trace), *more)]
    if known:
        trace.metadata = {**trace.metadata, PAUSES: known}


def _is_pause(each: Any) -> bool:
    if not isinstance(each, list) or len(each) != 3 or not all(type(time) is int for time in each[:2]):
        return False
    return -_FAR < each[0] < each[1] < _FAR and (each[2] is None or type(each[2]) is int)
