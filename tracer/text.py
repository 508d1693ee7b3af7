"""How texts and numbers are shown: names from recordings made safe for a terminal, a spreadsheet and a web page, and
numbers with a sign, the format of every difference in the output, times in a unit by their size, counted things; and
tables as JSON.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pandas as pd

LONGEST: Final = 400
_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
"""Control characters, bidirectional overrides, lone surrogates, line separators: they move the cursor or other text."""

_FORMULA: Final = ("=", "+", "-", "@", "＝", "＋", "－", "＠")


def spelled(text: str) -> str:
    r"""Spell out the invisible characters of a text, so that a terminal does not interpret them.

    Example:
        >>> spelled("\x1b[2Jk")
        '\\x1b[2Jk'
    """
    return text if text.isascii() and text.isprintable() else "".join(map(_spelled, text))


def plain(name: str, limit: int = LONGEST) -> str:
    r"""Spell out the invisible characters of a name, and cut its middle if it is longer than `limit`.

    Example:
        >>> plain("a\x00b")
        'a\\x00b'
    """
    if len(name) > limit:
        head = (limit - 1) * 2 // 3
        name = f"{name[:head]}…{name[len(name) - (limit - 1 - head) :]}"
    return spelled(name)


def without_formulas(table: pd.DataFrame) -> pd.DataFrame:
    """Make the texts of a table, which come from recordings, safe for a CSV file.

    A text that a spreadsheet would interpret as a formula (OWASP, CSV Injection) gets a leading apostrophe. Invisible
    characters except line feeds are spelled out, because a CSV is also shown on terminals. Numbers are unchanged, even
    negative ones.

    Example:
        >>> without_formulas(pd.DataFrame({"name": ["=1+1", "k"], "slack_us": [-1.5, 2.0]})).to_dict("list")
        {'name': ["'=1+1", 'k'], 'slack_us': [-1.5, 2.0]}
    """
    from pandas.api.types import is_numeric_dtype

    texts = [name for name, column in table.items() if not is_numeric_dtype(column.dtype)]
    return table.assign(**{str(name): _guarded(table[name]) for name in texts})


def _guarded(column: pd.Series[Any]) -> pd.Series[Any]:
    """The column with its texts guarded, each distinct text once."""
    values = column.astype(object)
    # not `unique`, which takes "" and "\0" for the same text (pandas 2.2)
    known: dict[Hashable, Any] = {text: _cell(text) for text in set(values) if isinstance(text, str)}
    return values.map(lambda value: known.get(value, value) if isinstance(value, str) else value)


def _cell(text: str) -> str:
    shown = "\n".join(map(spelled, text.split("\n")))  # quoted, it stays one cell
    return f"'{shown}" if shown.lstrip("\n").startswith(_FORMULA) else shown


def _spelled(character: str) -> str:
    if unicodedata.category(character) not in _HIDDEN:
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"


def with_sign(value: float, size: str) -> str:
    """Put the sign of a value before its formatted size; ± if the size is rounded to 0, so that no direction is stated.

    Example:
        >>> with_sign(-18_000, "18.0 µs"), with_sign(-1e-9, "0 ns")
        ('−18.0 µs', '±0 ns')
    """
    if "0" in size and not any(digit in size for digit in "123456789"):
        return f"±{size}"
    return f"{'−' if value < 0 else '+'}{size}"


def signed(value: float, digits: int = 1) -> str:
    """Format a number with its sign.

    Example:
        >>> signed(-1234.56), signed(-0.04)
        ('−1,234.6', '±0.0')
    """
    return with_sign(value, f"{abs(value):,.{digits}f}")


def percent(share: float, digits: int = 1) -> str:
    """Format a relative change as a percentage.

    Example:
        >>> percent(0.0153), percent(-0.2, 0), percent(-0.00004, 2)
        ('+1.5 %', '−20 %', '±0.00 %')
    """
    return f"{signed(100 * share, digits)} %"


UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"))


def duration(ns: float, digits: int = 3) -> str:
    """A time to `digits` significant digits, in ns, µs, ms or s.

    Example:
        >>> duration(150_321), duration(999_999), duration(32), duration(-2_500_000)
        ('150 µs', '1.00 ms', '32 ns', '−2.50 ms')
    """
    sign, size = ("−" if ns < 0 else ""), abs(float(ns))
    for scale, unit in UNITS:
        if size >= scale * (1 - 0.5 * 10.0**-digits):
            value = size / scale
            whole = len(str(int(value + 0.5 * 10.0 ** -(digits - 1))))
            return f"{sign}{value:,.{max(digits - whole, 0)}f} {unit}"
    return f"{sign}{size:.0f} ns"


def counted(number: float | None, what: str, shown: str | None = None) -> str:
    """A number of things, by the word for one; `shown` is the number as text.

    Example:
        >>> counted(1, "step"), counted(1200, "copy"), counted(0, "launch")
        ('1 step', '1,200 copies', '0 launches')
    """
    several = f"{what[:-1]}ie" if what.endswith("y") else f"{what}e" if what.endswith(("ch", "s")) else what
    return f"{f'{number:,}' if shown is None else shown} {what if number == 1 else f'{several}s'}"


def json_rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table as JSON holds them, by column; null for what is missing."""
    rows: list[dict[str, Any]] = json.loads(table.to_json(orient="records"))
    return rows
