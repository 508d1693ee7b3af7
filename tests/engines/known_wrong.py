"""Kinds of which some answers are wrong without a doubt, each with a draw that shows it, and why."""

from __future__ import annotations

KNOWN_WRONG: dict[str, tuple[int, str]] = {
    "device_clock_jumps": (2, "a jump that only one or two steps show, in a recording without what waits are for"),
}
"""Kind -> a seed whose draw is wrong, and the reason. A kind leaves the table when that draw is no longer wrong."""
