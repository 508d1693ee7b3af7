"""Sync signatures: the letters of a step's host calls, the strategy they follow, and how to write them short."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from tracer.analysis.call_names import BLOCKING_COPY, COPY, EVENT, GRAPH_LAUNCH, LAUNCH, POLL, SYNC, WAIT

STRATEGIES: Final = ("sccc", "saaas", "aaas", "aaag", "ggg")
MIXED: Final = "mixed"
NONE: Final = "none"
WITHOUT_COPIES: Final = ("ggg", NONE)
"""Classes of steps that bring no input."""
MIN_SHARE: Final = 0.6
"""A class that fewer of the copies follow is called mixed."""

MEANING: Final = {
    SYNC: "sync", COPY: "asynchronous copy", BLOCKING_COPY: "blocking copy", GRAPH_LAUNCH: "graph launch",
    LAUNCH: "kernel launch", EVENT: "event record", WAIT: "stream wait", POLL: "polling loop",
}  # fmt: skip
"""What the letters of a signature stand for."""

_TOKEN: Final = re.compile(f"{LAUNCH}+|.")
_GROUP: Final = re.compile(r"\(([^()]*)\)×(\d+)")
_LAUNCH: Final = re.compile(f"[{LAUNCH}{GRAPH_LAUNCH}]")
_LONGEST_UNIT = 24


def compress(letters: str) -> str:
    """Write letters short: repeats become `s×3` or `(sc)×6`, the rest stays apart by spaces; a run of kernel launches
    stays whole.

    Example:
        >>> compress("scscscscscscgass"), compress("akkakkakkk")
        ('(sc)×6 g a s×2', '(a k×2)×2 a k×3')
    """
    tokens = _TOKEN.findall(letters)
    words: list[str] = []
    i = 0
    while i < len(tokens):
        length, times = _best_repeat(tokens, i)
        unit = [_run(token) for token in tokens[i : i + length]]
        if times > 1:
            apart = " " if any(len(part) > 1 for part in unit) else ""
            words.append(f"{unit[0]}×{times}" if length == 1 else f"({apart.join(unit)})×{times}")
        else:
            words += unit
        i += length * times
    return " ".join(words)


def expand(signature: str) -> str:
    """The letters of a signature that `compress` wrote.

    Example:
        >>> expand("(sc)×3 g a k×2")
        'scscscgakk'
    """
    while _GROUP.search(signature):
        signature = _GROUP.sub(lambda group: expand(group[1]) * int(group[2]), signature)
    return "".join(letter * int(times or 1) for letter, times in re.findall(r"([^\s×()])(?:×(\d+))?", signature))


def _run(token: str) -> str:
    return token if len(token) == 1 else f"{token[0]}×{len(token)}"


def _best_repeat(tokens: Sequence[str], i: int) -> tuple[int, int]:
    """(length, times) of the repeat at `i` that covers most tokens; the shortest unit wins a tie; (1, 1) if none."""
    best = (1, 1)
    for length in range(1, min(_LONGEST_UNIT, (len(tokens) - i) // 2) + 1):
        unit = tokens[i : i + length]
        times = 1
        while tokens[i + length * times : i + length * (times + 1)] == unit:
            times += 1
        if times > 1 and length * times > best[0] * best[1]:
            best = (length, times)
    return best


def strategies_followed(letters: str) -> dict[str, int]:
    """How many of a step's input copies follow which strategy.

    Only copies before a launch count (the logits are read after it). Blocking: sccc. Asynchronous, up to the launch:
    with a sync behind the last copy saaas (aaas if nothing synchronised before the first asynchronous one), without it
    aaag. A blocking copy synchronises too, and so does a polling loop. Steps without such copies are ggg's or none's.

    Example:
        >>> strategies_followed("scaaaaasgas")
        {'sccc': 1, 'saaas': 5}
    """
    counts: dict[str, int] = {}
    *before, _after_last = _LAUNCH.split(letters.replace(POLL, SYNC))
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


def without_copies(letters: str) -> str:
    """The class of a step that brings no input: ggg if the host waits for nothing in it, else none.

    Example:
        >>> without_copies("ggg"), without_copies("gs")
        ('ggg', 'none')
    """
    return NONE if set(letters) & {SYNC, POLL, BLOCKING_COPY} else "ggg"


def classify(copies: Mapping[str, int], steps: Mapping[str, int]) -> tuple[str, float]:
    """The class and the share that follows it: of the copies, or of the steps where most bring no input.

    Args:
        copies: `strategies_followed`, summed over the steps.
        steps: how many steps bring no input, by `without_copies`, and under "" how many bring some.
    """
    bare = {name: count for name, count in steps.items() if name}
    most_are_bare = sum(bare.values()) >= MIN_SHARE * sum(steps.values())
    found = bare if most_are_bare or not copies else copies
    name = max(found, key=lambda n: found[n])
    share = found[name] / (sum(steps.values()) if found is bare else sum(copies.values()))
    return (name if share >= MIN_SHARE else MIXED), share
