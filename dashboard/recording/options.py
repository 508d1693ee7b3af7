"""The options of `intertoken run`, as the command lists them, and the arguments for the values of a form."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tracer.errors import UsageError

ON, OFF = "on", "off"
MOST: Final[Mapping[str, int]] = {
    "batch": 4_096, "tokens": 100_000, "repeats": 1_000, "warmup": 10_000, "prompt": 131_072, "micro_batch": 65_536,
    "context": 1_048_576, "devices": 16, "gpu_layers": 1_000, "seed": 2**31 - 1,
}  # fmt: skip
"""Largest number that a page accepts if the command has no limit."""
_MOST_OTHERWISE: Final = 1_000_000
_MOST_NUMBERS: Final = 64


@dataclass(frozen=True)
class Choice:
    """One choice of an option.

    Attributes:
        name: as on the command line.
        about: description, empty if the name says it.
        lacks: what this machine lacks for it; None for nothing.
    """

    name: str
    about: str
    lacks: str | None


@dataclass(frozen=True)
class Option:
    """An option, with the fields of `intertoken run --choices`."""

    name: str
    flag: str
    off: str | None
    help: str
    default: str
    least: int
    kind: str
    choices: tuple[Choice, ...]

    @property
    def most(self) -> int:
        """Largest accepted number."""
        return MOST.get(self.name, _MOST_OTHERWISE)

    def arguments(self, text: str) -> list[str]:
        """The command-line arguments for a value; none for the default or an empty text.

        Raises:
            UsageError: the value is not valid; the message lists the valid ones.
        """
        text = text.strip()
        if text in ("", self.default):
            return []
        if self.kind == "flag":
            return self._switch(text)
        parts = text.split(",") if self.kind in ("names", "numbers") else [text]
        if self.choices:
            return [self.flag, ",".join(self._named(parts))]
        return [self.flag, ",".join(self._numbers(parts))]

    def _switch(self, text: str) -> list[str]:
        flags = {ON: [self.flag], OFF: [self.off] if self.off else []}
        if text not in flags:
            raise UsageError(f"{self.flag} is on or off, not {text[:40]!r}")
        return flags[text]

    def _named(self, names: Sequence[str]) -> list[str]:
        """The names in the order of the choices."""
        known = {choice.name: choice for choice in self.choices}
        for name in names:
            if name not in known:
                raise UsageError(f"{self.flag} has no {name[:40]!r}; choose from {', '.join(known)}")
            if lacks := known[name].lacks:
                raise UsageError(f"{self.flag} {name} is not on this machine: {lacks}")
        return [name for name in known if name in names]

    def _numbers(self, texts: Sequence[str]) -> list[str]:
        if len(texts) > _MOST_NUMBERS:
            raise UsageError(f"{self.flag} takes at most {_MOST_NUMBERS} numbers, not {len(texts)}")
        numbers = [text.strip() for text in texts]
        for text in numbers:
            if not re.fullmatch(r"[0-9]{1,10}", text) or not self.least <= int(text) <= self.most:
                raise UsageError(
                    f"{self.flag} is a whole number from {self.least:,} to {self.most:,}, not {text[:40]!r}"
                )
        return [str(int(text)) for text in numbers]


def options_of(listed: Mapping[str, Any]) -> tuple[Option, ...]:
    """The options in what `intertoken run --choices` printed."""
    return tuple(_option(entry) for entry in listed["options"])


def _option(entry: Mapping[str, Any]) -> Option:
    default = entry["default"]
    return Option(
        name=entry["name"],
        flag=entry["flag"],
        off=entry["off"],
        help=entry["help"],
        default="" if default is None else (OFF, ON)[default] if isinstance(default, bool) else str(default),
        least=entry["least"] or 0,
        kind=entry["kind"],
        choices=tuple(Choice(each["name"], each["about"], each["lacks"]) for each in entry["choices"]),
    )


def arguments_of(options: Sequence[Option], values: Mapping[str, str]) -> list[str]:
    """The arguments for values by option name; unknown names are ignored.

    Raises:
        UsageError: a value that is not valid for its option.
    """
    return [argument for option in options for argument in option.arguments(values.get(option.name, ""))]


def different(options: Sequence[Option], values: Mapping[str, str]) -> dict[str, str]:
    """The values that differ from their options' defaults."""
    return {o.name: values[o.name] for o in options if values.get(o.name, "") not in ("", o.default)}
