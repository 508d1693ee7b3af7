"""The form in which answers are kept: short, readable, in one order; and how two of them differ."""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import re
from collections.abc import Iterator
from typing import Any, Final

MOST_ROWS: Final = 3
MOST_VALUES: Final = 12
MOST_LINES: Final = 20
LAST_LINES: Final = 4
WIDTH: Final = 120
MOST_DIFFERENCES: Final = 30
_BAR: Final = re.compile("█{4,}")


def digest(value: Any) -> str:
    """Identifies a value by its JSON, to the digit."""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def reduced(value: Any) -> Any:
    """A JSON value with its long lists as a few readable figures and digests, and its texts as lines."""
    if isinstance(value, dict):
        return _without_zeros({key: reduced(inner) for key, inner in value.items()})
    if isinstance(value, str) and "\n" in value:
        return lines_of(value)
    if not isinstance(value, list):
        return value
    if len(value) > MOST_ROWS and all(isinstance(row, dict) for row in value):
        columns = dict.fromkeys(key for row in value for key in row)
        return {
            "rows": len(value), "first": reduced(value[0]),
            "columns": {key: column([row.get(key) for row in value]) for key in columns},
        }  # fmt: skip
    if len(value) > MOST_VALUES:
        return {"values": len(value), "first": reduced(value[0]), "last": reduced(value[-1]), "all": column(value)}
    return [reduced(inner) for inner in value]


def _without_zeros(value: dict[str, Any]) -> dict[str, Any]:
    """A dictionary in which the names of several zeros stand in one line."""
    zeros = [key for key, inner in value.items() if type(inner) is float and inner == 0]
    if len(zeros) < 2:
        return value
    return {key: inner for key, inner in value.items() if key not in zeros} | {"0.0": " ".join(zeros)}


def column(values: list[Any]) -> Any:
    """Values as their digest, with the sum of the numbers among them; the value itself if all are equal."""
    texts = [json.dumps(value, sort_keys=True) for value in values]
    if len(set(texts)) == 1:
        return {"all": reduced(values[0])}
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    return ({"sum": math.fsum(numbers)} if numbers else {}) | {"digest": digest(texts)}


def lines_of(text: str) -> list[str]:
    """A text as lines without the spaces at their ends and with short bars; a digest stands for the middle of a long
    one."""
    lines = [_BAR.sub(lambda bar: f"{bar[0][0]}×{len(bar[0])}", line.rstrip()) for line in text.splitlines()]
    if len(lines) <= MOST_LINES:
        return lines
    first = MOST_LINES - LAST_LINES
    middle = lines[first:-LAST_LINES]
    return [*lines[:first], f"… {len(middle)} lines, {digest(chr(10).join(middle))}", *lines[-LAST_LINES:]]


def written(value: Any, indent: int = 0) -> str:
    """A value as JSON in which everything that fits into a line is on one."""
    line = json.dumps(value, ensure_ascii=False)
    if len(line) + indent <= WIDTH or not isinstance(value, dict | list) or not value:
        return line
    inside = " " * (indent + 1)
    if isinstance(value, dict):
        parts = [f"{json.dumps(key, ensure_ascii=False)}: {written(inner, indent + 1)}" for key, inner in value.items()]
    else:
        parts = [written(inner, indent + 1) for inner in value]
    first, last = ("{", "}") if isinstance(value, dict) else ("[", "]")
    return f"{first}\n{inside}" + f",\n{inside}".join(parts) + f"\n{' ' * indent}{last}"


def differences(golden: Any, found: Any) -> list[str]:
    """What differs between two answers, by its place in them: old and new value, or a diff of lines."""
    all_of_them = list(_differences("", golden, found))
    more = len(all_of_them) - MOST_DIFFERENCES
    return all_of_them[:MOST_DIFFERENCES] + ([f"and {more} more"] if more > 0 else [])


def _differences(place: str, golden: Any, found: Any) -> Iterator[str]:
    if isinstance(golden, dict) and isinstance(found, dict):
        for key in dict.fromkeys((*golden, *found)):
            if key not in golden or key not in found:
                which, value = ("only in the data", golden) if key in golden else ("new", found)
                yield f"{place}/{key}: {which}: {_short(value[key])}"
            else:
                yield from _differences(f"{place}/{key}", golden[key], found[key])
    elif _are_lines(golden) and _are_lines(found):
        changed = list(difflib.unified_diff(golden, found, n=0, lineterm=""))[2:]
        yield from (f"{place}: {line}" for line in changed if not line.startswith("@@"))
    elif isinstance(golden, list) and isinstance(found, list) and len(golden) == len(found):
        for number, (one, other) in enumerate(zip(golden, found, strict=True)):
            yield from _differences(f"{place}/{number}", one, other)
    elif json.dumps(golden) != json.dumps(found):  # which tells 1 from 1.0
        yield f"{place}: {_short(golden)} → {_short(found)}"


def _are_lines(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(line, str) for line in value)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else f"{text[:200]}…"
