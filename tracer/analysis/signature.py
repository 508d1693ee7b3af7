"""Sync signatures: the letters of a step's host calls, the strategy they follow, and how to write them short."""

from __future__ import annotations

from typing import Final

from tracer.analysis.calls import BLOCKING_COPY, COPY, LAUNCH, SYNC

STRATEGIES: Final = ("sccc", "saaas", "aaas", "aaag", "ggg")
MIXED: Final = "mixed"
MIN_SHARE: Final = 0.6
"""A class that fewer of the copies follow is called mixed."""

_LONGEST_UNIT = 24


def compress(letters: str) -> str:
    """Write letters short: repeats become `s×3` or `(sc)×6`, the rest stays apart by spaces.

    Example:
        >>> compress("scscscscscscgass")
        '(sc)×6 g a s×2'
    """
    words: list[str] = []
    i = 0
    while i < len(letters):
        length, times = _best_repeat(letters, i)
        unit = letters[i : i + length]
        if times > 1:
            words.append(f"{unit}×{times}" if length == 1 else f"({unit})×{times}")
        else:
            words.append(unit)
        i += length * times
    return " ".join(words)


def _best_repeat(letters: str, i: int) -> tuple[int, int]:
    """(length, times) of the repeat at `i` that covers most letters; the shortest unit wins a tie; (1, 1) if none."""
    best = (1, 1)
    for length in range(1, min(_LONGEST_UNIT, (len(letters) - i) // 2) + 1):
        unit = letters[i : i + length]
        times = 1
        while letters.startswith(unit, i + length * times):
            times += 1
        if times > 1 and length * times > best[0] * best[1]:
            best = (length, times)
    return best


def strategies_followed(letters: str) -> dict[str, int]:
    """How many of a step's input copies follow which strategy.

    Only copies before a launch count (the logits are read after it). Blocking: sccc. Asynchronous, up to the launch:
    with a sync behind the last copy saaas (aaas if nothing synchronised before the first asynchronous one), without it
    aaag. A blocking copy synchronises too. Launches without copies follow ggg and are not counted.

    Example:
        >>> strategies_followed("scaaaaasgas")
        {'sccc': 1, 'saaas': 5}
    """
    counts: dict[str, int] = {}
    *before, _after_last = letters.split(LAUNCH)
    for part in before:
        blocking = part.count(BLOCKING_COPY)
        if blocking:
            counts["sccc"] = counts.get("sccc", 0) + blocking
        asynchronous = part.count(COPY)
        if asynchronous:
            name = _asynchronous_strategy(part)
            counts[name] = counts.get(name, 0) + asynchronous
    return counts


def _asynchronous_strategy(part: str) -> str:
    last_copy = max(part.rfind(COPY), part.rfind(BLOCKING_COPY))
    if SYNC not in part[last_copy:]:
        return "aaag"
    before_first = part[: part.find(COPY)]
    return "saaas" if SYNC in before_first or BLOCKING_COPY in before_first else "aaas"


def classify(counts: dict[str, int]) -> tuple[str, float]:
    """(class, share of the copies that follow it) from `strategies_followed` summed over steps."""
    total = sum(counts.values())
    if total == 0:
        return "ggg", 1.0
    name = max(counts, key=lambda n: counts[n])
    share = counts[name] / total
    return (name if share >= MIN_SHARE else MIXED), share
