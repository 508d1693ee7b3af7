"""The rate that a program prints about itself."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from tracer.errors import UsageError, printable
from tracer.experiments.turns import Rate
from tracer.files.bounded import toml_of

PROGRAMS: Final = Path(__file__).with_name("printed.toml")
_MOST_BYTES: Final = 4 << 20
"""From the end of an output."""


class Printed(NamedTuple):
    """The rate that was printed, what it counts, what is known to print it so, and that program's version ("" if
    unknown)."""

    rate: Rate
    unit: str
    by: str
    build: str = ""


@dataclass(frozen=True)
class Form:
    """A form in which a rate is printed, as in `printed.toml`."""

    name: str
    rate: re.Pattern[str]
    unit: str
    seconds: bool = False
    build: re.Pattern[str] | None = None

    @classmethod
    def of(cls, name: str, rate: str, unit: str, seconds: bool = False, build: str = "") -> Form:
        """The form with these regular expressions."""
        compiled = re.compile(build, re.MULTILINE) if build else None
        return cls(name, re.compile(rate, re.MULTILINE), unit, seconds, compiled)

    def find(self, text: str) -> Printed | None:
        """The last rate in a text; None if there is none above 0."""
        found = [match[1] for match in self.rate.finditer(text)]
        number = _number(found[-1]) if found else None
        if number is None:
            return None
        value, digit = number
        rate = Rate(1 / value, digit / value**2) if self.seconds else Rate(value, digit)
        build = self.build.search(text) if self.build else None
        return Printed(rate, self.unit, self.name, printable(build[1], 80) if build else "")


def form_of(expression: str) -> Form:
    """The form of `--rate REGEX`. Raises UsageError if that is not a regular expression with a group."""
    try:
        compiled = re.compile(expression, re.MULTILINE)
    except re.error as problem:
        raise UsageError(f"--rate {expression}: not a regular expression: {problem}") from None
    if compiled.groups < 1:
        raise UsageError(f"--rate {expression}: put the number in parentheses, as in 'speed: ([0-9.]+)'")
    return Form("--rate", compiled, "per s")


@cache
def known_forms() -> tuple[Form, ...]:
    """Those of `printed.toml`."""
    return tuple(Form.of(**program) for program in toml_of(PROGRAMS)["program"])


def printed_rate(output: Path, form: Form | None = None) -> Printed | None:
    """The rate in a program's output, in this form or in one that is known; None if it prints none."""
    text = text_of(output)
    forms = known_forms() if form is None else (form,)
    return next((printed for each in forms if (printed := each.find(text))), None)


def text_of(output: Path) -> str:
    """The end of an output; what replaced a line of the terminal is a line of its own."""
    with output.open("rb") as file:
        file.seek(max(output.stat().st_size - _MOST_BYTES, 0))
        return file.read().decode(errors="replace").replace("\r", "\n")


def last_line(output: Path) -> str:
    """The last line that is not empty, "" if there is none."""
    lines = [line.strip() for line in text_of(output).splitlines() if line.strip()]
    return printable(lines[-1], 200) if lines else ""


def _number(text: str) -> tuple[float, float] | None:
    """A number above 0, and the worth of its last digit."""
    try:
        value = float(text)
    except ValueError:
        return None
    _, point, decimals = text.partition(".")
    return (value, 10.0 ** -len(decimals) if point else 1.0) if 0 < value < 1e15 else None
