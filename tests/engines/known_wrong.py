"""Kinds of which some answers are wrong without a doubt, each with a draw that shows it, and why."""

from __future__ import annotations

KNOWN_WRONG: dict[str, tuple[int, str]] = {
    "device_clock_jumps": (2, "a jump of the device's clock near the end, where few steps show it, adds idle time"),
}
"""Kind -> a seed whose draw is wrong, and the reason. A kind leaves the table when that draw is no longer wrong."""
