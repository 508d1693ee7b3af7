"""What each wait of a token step is for: which accesses it orders, and whether something else orders them too.

The waits are those of the tape (`run_hazards.record_tape`), so they follow from the plan and the strategy alone, and
hold for what the backend guarantees.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from executor.backends.tape import Tape
from executor.planning.hazards import Access, EventSync, Sync, access_of, accesses_of, happens_before, touched_by
from executor.planning.plans import Wait
from tracer.model.schema import MISSING

NEEDED, REDUNDANT = "needed", "redundant"
_STEPS: Final = {0: "", -1: " of the previous step", 1: " of the next step"}


@dataclass(frozen=True, slots=True)
class StepWait:
    """What a wait of the host in a token step orders.

    Attributes:
        what, position: "sync", and 1, 2, ... in the step.
        order: `NEEDED`, or `REDUNDANT` if the step is as safe without it, as long as all other waits stay.
        between: the two nearest accesses that it orders; empty if none clash.
        instead: what else orders them; "" if nothing does, or nothing needs to.
    """

    what: str
    position: int
    order: str
    between: tuple[str, ...]
    instead: str


def step_waits(tape: Tape) -> list[StepWait]:
    """Return the waits of a token step, in order; none if the steps of the tape do not all wait alike.

    The first step has none before it and the last one none behind it, so they do not count.
    """
    steps = [[i for i in range(a, b) if isinstance(tape.program[i], Sync | EventSync)] for a, b in tape.steps]
    inner = steps[1:-1]
    if len({len(each) for each in inner}) != 1:
        return []
    order = happens_before(tape.program)
    by_stream = {number for number, item in zip(order.items, tape.program, strict=True) if isinstance(item, Wait)}
    touched = touched_by(order.work, {})
    place = {order.items[i]: (step, number) for step, each in enumerate(steps) for number, i in enumerate(each, 1)}
    of_wait = {
        row["wait"]: row
        for row in order.operations.verdicts(
            accesses_of(order, touched), [order.items[i] for i in chain.from_iterable(inner)]
        ).records()
    }
    found = []
    for position, same in enumerate(zip(*inner, strict=True), 1):
        rows = [of_wait[order.items[i]] for i in same]
        row = max(rows, key=lambda row: (row["lost"] > 0, row["first"] != MISSING))  # of equal ones the first
        pair = [access_of(order.work, *touched[row[name]]) for name in ("first", "second") if row[name] != MISSING]
        instead = "" if row["lost"] or not pair else _told(row["instead"], row["wait"], place, by_stream)
        kind = NEEDED if row["lost"] else REDUNDANT
        found.append(StepWait("sync", position, kind, _between(pair), instead))
    return found


def _between(pair: Sequence[Access]) -> tuple[str, ...]:
    """The accesses as text; the step of the first one counts as this one."""
    return tuple(str(replace(access, step=access.step - pair[0].step)) for access in pair)


def _told(instead: int, wait: int, place: dict[int, tuple[int, int]], by_stream: Collection[int]) -> str:
    """What orders accesses instead of a wait."""
    if instead == MISSING:
        return "the order of the streams"
    if instead in by_stream:
        return "a stream that waits for an event"
    if instead not in place:
        return "a sync outside the token steps"
    (step, number), (own, _) = place[instead], place[wait]
    return f"sync {number}{_STEPS.get(step - own, ' of another step')}"
