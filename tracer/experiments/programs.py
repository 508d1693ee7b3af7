"""A variant of a program, run once as a process of its own: its rate, and what a light recording tells of its steps."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tracer.analysis.recorded import Measured
from tracer.analysis.recording import Recording
from tracer.errors import ProgramError, RecordError, TraceError, UsageError, printable
from tracer.experiments.printed import Form, Printed, last_line, printed_rate
from tracer.experiments.turns import Rate
from tracer.formats import nsys_parquet
from tracer.model.trace import Trace
from tracer.recorders import foreground, light, light_ring
from tracer.recorders.window import WHOLE

SEPARATOR: Final = "---"
"""Between two commands."""
OUTPUT: Final = "output.txt"
_INTERRUPTED: Final = (-signal.SIGINT, 128 + signal.SIGINT)
FIGURES: Final = {
    "gap_us": "gap p50, µs", "idle_us": "idle per step, µs", "syncs": "syncs per step", "copies": "copies per step",
    "launches": "launches per step",
}  # fmt: skip
"""Figure of a run -> its label."""


@dataclass(frozen=True)
class Variant:
    """A command with what it gets beside: environment variables, and the folder that it runs in."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None


@dataclass(frozen=True, eq=False)
class Run:
    """A process that ended well.

    Attributes:
        seconds: from its start to its end.
        printed: the rate that it printed.
        measured: its steps, if it was recorded and has any.
        figures: those of `FIGURES` that the recording carries.
        gpu: "" if unknown.
        why: why there is no recording, or why it lacks figures.
    """

    seconds: float
    printed: Printed | None = None
    measured: Measured | None = None
    figures: dict[str, float] = field(default_factory=dict)
    gpu: str = ""
    why: str = ""

    def rate(self, unit: str) -> Rate | None:
        """The rate that counts `unit` ("tokens/s" may be printed or recorded); None if it is unknown."""
        if unit == WHOLE_RUNS:
            return Rate(1 / self.seconds)
        if self.printed is not None and self.printed.unit == unit:
            return self.printed.rate
        return self.recorded.get(unit)

    @property
    def recorded(self) -> dict[str, Rate]:
        """The rates of the recorded steps."""
        if self.measured is None:
            return {}
        steps, gained = self.measured.steps_per_s, self.measured.tokens_per_step
        known = {RECORDED_STEPS: Rate(steps)}
        return known if gained is None else {RECORDED_TOKENS: Rate(steps * gained), **known}


RECORDED_TOKENS: Final = "tokens/s, recorded"
RECORDED_STEPS: Final = "steps/s, recorded"
WHOLE_RUNS: Final = "runs/s"


def varied(assignment: str, command: Sequence[str]) -> list[Variant]:
    """The variants of `--vary NAME=a,b,c`: each value replaces {NAME} in the command, or is the environment variable
    NAME where the command has no {NAME}.

    Raises:
        UsageError: it is not NAME=a,b with different values.
    """
    name, equals, text = assignment.partition("=")
    values = text.split(",")
    if not (name and equals and len(values) > 1 and len(set(values)) == len(values)):
        raise UsageError(f"--vary {assignment}: give a name and at least two different values, as in THREADS=4,8")
    place = f"{{{name}}}"
    if any(place in part for part in command):
        return [
            Variant(f"{name}={value}", tuple(part.replace(place, value) for part in command)) for value in values
        ]  # fmt: skip
    return [Variant(f"{name}={value}", tuple(command), {name: value}) for value in values]


def separated(words: Sequence[str]) -> list[tuple[str, ...]]:
    """The commands between the words "---". Raises UsageError if one is empty."""
    commands: list[list[str]] = [[]]
    for word in words:
        if word == SEPARATOR:
            commands.append([])
        else:
            commands[-1].append(word)
    if not all(commands):
        raise UsageError(f"a command is missing: give them as -- A {SEPARATOR} B")
    return [tuple(command) for command in commands]


def lettered(words: Sequence[str]) -> list[Variant]:
    """The commands between the words "---" as variants A, B, C, ... Raises UsageError if there are not 2 to 26."""
    commands = separated(words)
    if not 2 <= len(commands) <= 26:
        raise UsageError(f"give --vary NAME=a,b -- COMMAND, or two commands: -- A {SEPARATOR} B")
    return [Variant(chr(ord("A") + place), command) for place, command in enumerate(commands)]


def run(variant: Variant, place: Path, *, recorded: bool, form: Form | None = None, keep: bool = False) -> Run:
    """Run a variant once; its output goes to a file in the folder `place`, and with `keep` its recording too.

    Args:
        form: of the rate that it prints; None for those that are known.

    Raises:
        KeyboardInterrupt: SIGINT ended it.
        ProgramError: it ends with another exit code than 0, or with a signal.
        RecordError: it cannot be started, or recorded.
    """
    place.mkdir(parents=True, exist_ok=True)
    output, trace, why = place / OUTPUT, None, ""
    with output.open("wb") as file:
        if recorded:
            with light_ring.folder() as rings:
                code, seconds = _run(variant, file.fileno(), rings)
                trace = None if code else light.read_folder(rings)
                why = "" if trace else light.why_nothing(rings)
        else:
            code, seconds = _run(variant, file.fileno())
    heed(code)
    if code:
        line = last_line(output)
        said = f"; it printed last: {line}" if line else ""
        raise ProgramError(f"{variant.name} {foreground.how_it_ended(code)}{said}", variant.name, code)
    printed = printed_rate(output, form)
    if trace is None:
        return Run(seconds, printed, why=why)
    if keep:
        nsys_parquet.write(trace, place / "recording")
    return _told(trace, variant.name, seconds, printed)


def heed(code: int) -> None:
    """End as a program that Ctrl-C ended, which also reached it. Raises KeyboardInterrupt."""
    if code in _INTERRUPTED:
        raise KeyboardInterrupt


def _run(variant: Variant, output: int, rings: Path | None = None) -> tuple[int, float]:
    """The exit code, and the seconds that it took; recorded into a folder, if one is given."""
    environment = {**os.environ, **variant.environment}
    if rings is not None:
        environment = light.environment(light.library(), rings, environment)
    begin = time.perf_counter()
    try:
        if rings is not None:
            code = light.run(variant.command, environment, rings, WHOLE, output=output, folder=variant.folder)
        else:
            code = foreground.run(variant.command, (), environment, output=output, folder=variant.folder)
    except OSError as problem:
        raise RecordError(f"{variant.command[0]} cannot be run: {problem.strerror or problem}") from problem
    return code, time.perf_counter() - begin


def _told(trace: Trace, name: str, seconds: float, printed: Printed | None) -> Run:
    """What the recording of a run tells."""
    recording = Recording(trace, printable(name))
    summary, measured = recording.summary, None
    why = summary.problem or ""
    try:
        measured = recording.measured
    except TraceError as problem:
        why = why or str(problem)
    values = {
        "gap_us": summary.gap_p50_us,
        "idle_us": summary.idle_us.get("p50"),
        "syncs": summary.syncs_per_token,
        "copies": summary.copies_per_token,
        "launches": summary.launches_per_token,
    }
    figures = {name: float(value) for name, value in values.items() if value is not None}
    if len(figures) < len(values):
        why = why or summary.left_out or summary.what or ""
    return Run(seconds, printed, measured, figures, summary.gpu, why)
