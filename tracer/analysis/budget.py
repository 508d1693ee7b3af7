"""Budgets: what a token may cost, as stated by a TOML file or a test's mark.

    syncs = 14                                  # per token: a number is exact
    copies = {min = 6, max = 7}                 # bounds, one or both; copies.max = 7 works as well
    launches = 1
    class = "sccc"                              # or a list of those allowed
    signature = "(sc)×6 g a s×2"                # likewise
    tokens_per_s.untraced.min = 740
    gap_us.untraced.p50.max = 80                # p50, p90, mean
    causes_us.traced.sync.max = 50              # mean
    [device.1]                                  # gap and causes of one device
    gap_us.traced.p90.max = 600
    [range."run saaas concurrent"]              # any of these, inside NVTX ranges
    syncs = 3
    [site."runner.py fetch"]                    # calls whose call site contains all of these words
    syncs = 0                                   # the maximum over all steps
    [base]                                      # compared with another recording; the path is relative to this file
    recording = "../main"
    max_slowdown = 0.02
    max_extra_gap_us = 5

`traced` is what the recording shows, `untraced` what it would be without a profiler; they are equal for a recording
made without one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tracer.errors import UsageError, printable
from tracer.model.calls import BLOCKING_COPY, COPY, GRAPH_LAUNCH, LAUNCH, SYNC

COUNTS: Final = {"syncs": SYNC, "copies": COPY + BLOCKING_COPY, "launches": LAUNCH + GRAPH_LAUNCH}
"""Counts per token -> the letters of the calls they count."""

WORDS: Final = ("class", "signature")
TRACINGS: Final = ("traced", "untraced")
STATISTICS: Final = ("p50", "p90", "mean")

_ANY: Final = "*"
_TOO_MUCH: Final = 1e18
_SHAPE: Final[dict[str, Any]] = {
    **dict.fromkeys(COUNTS, "count"),
    **dict.fromkeys(WORDS, "words"),
    "tokens_per_s": dict.fromkeys(TRACINGS, "bounds"),
    "gap_us": dict.fromkeys(TRACINGS, dict.fromkeys(STATISTICS, "bounds")),
    "causes_us": {tracing: {_ANY: "bounds"} for tracing in TRACINGS},
}
"""The keys of a budget, nested as in the file, and the kind of value of each."""

_OF_A_DEVICE: Final = {key: _SHAPE[key] for key in ("gap_us", "causes_us")}
_OF_A_SITE: Final = {key: _SHAPE[key] for key in COUNTS}


@dataclass(frozen=True)
class Limit:
    """The minimum and maximum of a figure; equal for an exact one."""

    least: float = -math.inf
    most: float = math.inf

    def excess(self, value: float) -> float:
        """The excess of a figure over its limit: positive above the maximum, negative below the minimum, else 0."""
        return max(value - self.most, 0.0) + min(value - self.least, 0.0)

    def __str__(self) -> str:
        if self.least == self.most:
            return f"{self.most:.10g}"
        bounds = {"at least": self.least, "at most": self.most}
        return ", ".join(f"{word} {bound:.10g}" for word, bound in bounds.items() if math.isfinite(bound))


@dataclass(frozen=True)
class Scope:
    """Where a line applies: inside the NVTX ranges `within`, on one device, to calls of one call site; None for any."""

    within: str | None = None
    device: int | None = None
    site: str | None = None

    def __str__(self) -> str:
        parts = {"range": self.within, "device": self.device, "site": self.site}
        return ", ".join(f"{kind} {name}" for kind, name in parts.items() if name is not None)


@dataclass(frozen=True)
class Line:
    """One figure and its limit.

    Attributes:
        scope: where it applies.
        name: the dotted key, such as `gap_us.untraced.p50`.
        allowed: bounds for a number, or the allowed words.
    """

    scope: Scope
    name: str
    allowed: Limit | tuple[str, ...]


@dataclass(frozen=True)
class BaseLimits:
    """The recording to compare with, its tokens/s and gap.

    Attributes:
        recording: its path, as the file gives it.
        max_slowdown: share of the base's tokens/s that may be lost; None: any.
        max_extra_gap_us: maximum increase of the median gap, µs; None: any.
    """

    recording: str
    max_slowdown: float | None = None
    max_extra_gap_us: float | None = None


@dataclass(frozen=True)
class Budget:
    """What a token may cost.

    Attributes:
        origin: the prefix of messages about it, such as the file's path.
        lines: in the file's order.
        base: what to compare with, or None.
    """

    origin: str
    lines: tuple[Line, ...]
    base: BaseLimits | None = None

    def signature(self, scope: Scope) -> str | None:
        """The allowed signature, used to find surplus calls; None unless there is exactly one."""
        allowed = [line.allowed for line in self.lines if (line.scope, line.name) == (scope, "signature")]
        return allowed[0][0] if allowed and isinstance(allowed[0], tuple) and len(allowed[0]) == 1 else None


def parse(table: Mapping[str, Any], origin: str) -> Budget:
    """A budget from a parsed TOML file, or from a mark's keywords.

    Args:
        table: nested as in the module's example.
        origin: the prefix of messages, such as the file's path.

    Raises:
        UsageError: an unknown key, an invalid value, or no limit at all.
    """
    try:
        base = _base(table["base"]) if "base" in table else None
        budget = Budget(origin, tuple(_lines_of_file(table)), base)
    except ValueError as problem:
        raise UsageError(f"{origin}: {printable(str(problem))}") from None
    if not budget.lines and base is None:
        raise UsageError(f"{origin}: contains no limits; it may set {', '.join(_SHAPE)}, or a base")
    return budget


def _lines_of_file(table: Mapping[str, Any]) -> Iterator[Line]:
    yield from _lines_of_range(table, None, {"range", "base"})
    for text, inner in _tables(table, "range"):
        yield from _lines_of_range(inner, text, set())


def _lines_of_range(table: Mapping[str, Any], within: str | None, apart: set[str]) -> Iterator[Line]:
    where = "" if within is None else f"range.{_key(within)}."
    apart = apart | {"device", "site"}
    own = {key: value for key, value in table.items() if key not in apart}
    yield from _lines(own, Scope(within), _SHAPE, where, "", tuple(sorted(apart)))
    for number, inner in _tables(table, "device", where):
        if not (number.isdecimal() and number.isascii()):
            raise ValueError(f"{where}device.{_key(number)}: a device is a number")
        here = f"{where}device.{number}."
        yield from _lines(inner, Scope(within, int(number)), _OF_A_DEVICE, here, "")
    for name, inner in _tables(table, "site", where):
        if not name.strip():
            raise ValueError(f'{where}site."": give a part of the call site, such as a function or a file')
        yield from _lines(inner, Scope(within, site=name), _OF_A_SITE, f"{where}site.{_key(name)}.", "")


def _tables(table: Mapping[str, Any], key: str, where: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The named tables under a key."""
    given = table.get(key, {})
    if not isinstance(given, dict) or not all(isinstance(inner, dict) for inner in given.values()):
        raise ValueError(
            f"{where}{key} must contain tables, such as [{where}{key}.{'0' if key == 'device' else 'NAME'}]"
        )
    yield from given.items()


def _lines(
    table: Mapping[str, Any], scope: Scope, shape: Mapping[str, Any], where: str, name: str,
    others: tuple[str, ...] = (),
) -> Iterator[Line]:  # fmt: skip
    """The lines of a nested table; `where` is the path of its keys in the file, `name` the path inside the scope."""
    for key, value in table.items():
        path, inner = f"{where}{_key(key)}", shape.get(key, shape.get(_ANY))
        if inner is None:
            raise ValueError(f"unknown key {path}; valid keys are {', '.join((*shape, *others))}")
        if isinstance(inner, str):
            yield Line(scope, f"{name}{key}", _VALUES[inner](value, path))
        elif isinstance(value, dict):
            yield from _lines(value, scope, inner, f"{path}.", f"{name}{key}.")
        else:
            raise ValueError(f"{path} is {value!r}; it must contain {', '.join(inner)}")


def _bounds(value: object, path: str) -> Limit:
    if not isinstance(value, dict) or not value:
        raise ValueError(f"{path} is {value!r}; bounds are {{max = ...}}, {{min = ...}} or both")
    if unknown := [key for key in value if key not in ("min", "max")]:
        raise ValueError(f"unknown key {path}.{_key(unknown[0])}; valid keys are min, max")
    limit = Limit(*(_number(value[k], f"{path}.{k}") if k in value else d for k, d in _OPEN.items()))
    if limit.least > limit.most:
        raise ValueError(f"{path}: min {limit.least:g} is above max {limit.most:g}")
    return limit


def _count(value: object, path: str) -> Limit:
    if isinstance(value, dict):
        return _bounds(value, path)
    exact = _number(value, path)
    return Limit(exact, exact)


def _words(value: object, path: str) -> tuple[str, ...]:
    words = value if isinstance(value, list) else [value]
    if not words or not all(isinstance(word, str) for word in words):
        raise ValueError(f"{path} is {value!r}; it must be a string, or a list of allowed strings")
    return tuple(words)


_OPEN: Final = {"min": -math.inf, "max": math.inf}
_VALUES: Final[dict[str, Callable[[object, str], Limit | tuple[str, ...]]]] = {
    "bounds": _bounds,
    "count": _count,
    "words": _words,
}


def _base(value: object) -> BaseLimits:
    known = ("recording", "max_slowdown", "max_extra_gap_us")
    if not isinstance(value, dict) or not isinstance(value.get("recording"), str):
        raise ValueError('base must be a table with recording = "PATH"')
    if unknown := [key for key in value if key not in known]:
        raise ValueError(f"unknown key base.{_key(unknown[0])}; valid keys are {', '.join(known)}")
    if not set(value) & set(known[1:]):
        raise ValueError("base sets neither max_slowdown nor max_extra_gap_us")
    return BaseLimits(value["recording"], *(_number(value[k], f"base.{k}") if k in value else None for k in known[1:]))


def _number(value: object, path: str) -> float:
    known = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _TOO_MUCH
    if not known:
        raise ValueError(f"{path} is {value!r}; it must be a number from 0 to {_TOO_MUCH:g}")
    return float(value)  # type: ignore[arg-type]


def _key(key: str) -> str:
    """A key as TOML writes it."""
    bare = key.isascii() and key.replace("-", "_").replace("_", "a").isalnum()
    return key if bare else toml_string(key)


def toml_string(text: str) -> str:
    """A string as TOML writes it: JSON's escapes, and one more.

    Example:
        >>> toml_string('a "b"')
        '"a \\\\"b\\\\""'
    """
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
