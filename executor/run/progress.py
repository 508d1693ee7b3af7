"""Progress of a run: a bar for people, JSON lines for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from executor.run.configuration import Configuration
from executor.run.passes import MOST_TRACED_TOKENS

SCHEMA: Final = "intertoken.progress/1"


@dataclass
class Meter:
    """Counts completed work.

    Attributes:
        units: token steps of each warm-up, repeat and traced pass, in order.
        of_runs: total number of run directories.
        tell: called after every change.
        done: number of completed units.
        runs: number of complete run directories.
        whole: name of the run directory just completed.
    """

    units: Sequence[int]
    of_runs: int
    tell: Callable[[Meter], None]
    done: int = 0
    runs: int = 0
    whole: str | None = None

    def advance(self) -> None:
        """Count one more completed unit."""
        self.done, self.whole = self.done + 1, None
        self.tell(self)

    def finish(self, name: str) -> None:
        """Count a complete run directory, including its traced passes."""
        self.runs, self.whole = self.runs + 1, name
        self.tell(self)


def units_of(configurations: Sequence[Configuration], traced: int) -> list[int]:
    """Return the token steps of each unit, in order, with `traced` traced passes per configuration."""
    warmups = [c.warmup for c in configurations]
    repeats = [c.tokens for n in range(max(c.repeats for c in configurations)) for c in configurations if n < c.repeats]
    passes = [c.warmup + min(c.tokens, MOST_TRACED_TOKENS) for c in configurations for _ in range(traced)]
    return warmups + repeats + passes


@contextmanager
def metered(how: str, units: Sequence[int], of_runs: int) -> Iterator[Meter]:
    """Show progress on stderr.

    Args:
        how: "bar" (if stderr is a terminal), "json" for a line at the start and after every change, or "none".
        units: see `Meter`.
        of_runs: see `Meter`.
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
    """Print one JSON object per line: completed and total units, steps and runs, and the run just completed."""
    line = {
        "schema": SCHEMA,
        "units": [meter.done, len(meter.units)],
        "steps": [sum(meter.units[: meter.done]), sum(meter.units)],
        "runs": [meter.runs, meter.of_runs],
        "whole": meter.whole,
    }
    print(json.dumps(line), file=sys.stderr, flush=True)
