"""How far a run is: a bar for people, JSON lines for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from executor.configuration import Configuration
from executor.passes import MOST_TRACED_TOKENS

SCHEMA: Final = "intertoken.progress/1"


@dataclass
class Meter:
    """Counts what is done.

    Attributes:
        units: token steps of each warm-up, repeat and traced pass, in their order.
        of_runs: how many run directories there will be.
        tell: is called after every change.
        done: how many units are.
        runs: how many run directories are whole.
        whole: name of the one that has just become so.
    """

    units: Sequence[int]
    of_runs: int
    tell: Callable[[Meter], None]
    done: int = 0
    runs: int = 0
    whole: str | None = None

    def advance(self) -> None:
        """One more unit is done."""
        self.done, self.whole = self.done + 1, None
        self.tell(self)

    def finish(self, name: str) -> None:
        """The run directory of this name is whole, traced passes and all."""
        self.runs, self.whole = self.runs + 1, name
        self.tell(self)


def units_of(configurations: Sequence[Configuration], traced: int) -> list[int]:
    """Token steps of everything that is done for them, in its order, with so many traced passes of each."""
    warmups = [c.warmup for c in configurations]
    repeats = [c.tokens for n in range(max(c.repeats for c in configurations)) for c in configurations if n < c.repeats]
    passes = [c.warmup + min(c.tokens, MOST_TRACED_TOKENS) for c in configurations for _ in range(traced)]
    return warmups + repeats + passes


@contextmanager
def metered(how: str, units: Sequence[int], of_runs: int) -> Iterator[Meter]:
    """Show it on stderr.

    Args:
        how: "bar" (if stderr is a terminal), "json" for a line at the start and after every change, or "none".
        units: as of a `Meter`.
        of_runs: as of a `Meter`.
    """
    from rich.console import Console
    from rich.progress import Progress

    if how != "bar" or not sys.stderr.isatty():
        meter = Meter(units, of_runs, print_line if how == "json" else lambda _: None)
        meter.tell(meter)
        yield meter
        return
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("running", total=len(units))
        yield Meter(units, of_runs, lambda meter: bar.update(task, completed=meter.done))


def print_line(meter: Meter) -> None:
    """One JSON object in a line: units, steps and runs that are done, and of how many; a run that became whole."""
    line = {
        "schema": SCHEMA,
        "units": [meter.done, len(meter.units)],
        "steps": [sum(meter.units[: meter.done]), sum(meter.units)],
        "runs": [meter.runs, meter.of_runs],
        "whole": meter.whole,
    }
    print(json.dumps(line), file=sys.stderr, flush=True)
