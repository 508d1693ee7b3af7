"""How the page of measurements formats its figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Rows = Sequence[dict[str, Any]]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def spread(value: dict[str, Any], digits: int = 3) -> str:
    """Format the median and its interval; a baseline of 1 by definition has no interval."""
    if value["low"] == value["high"] == 1:
        return "1"
    low, high = (f"{value[name]:,.{digits}f}" for name in ("low", "high"))
    return f"{value['median']:,.{digits}f} [{low}, {high}]"


def rate(value: dict[str, Any]) -> str:
    """Format tokens/s with significant digits only."""
    return f"{value['median']:,.{1 if value['median'] < 200 else 0}f}"


def logits(rows: Rows) -> str:
    """State how much the logits of equivalent configurations differ."""
    most = max(row["logits_differ"] for row in rows)
    return "Their logits are bitwise equal." if most == 0 else f"Their logits differ by at most {most:.1g}."
