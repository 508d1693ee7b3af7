"""Sync signatures: the letters of a step's host calls, the strategy they follow, and their compressed form."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from tracer.analysis.call_names import BLOCKING_COPY, COPY, EVENT, GRAPH_LAUNCH, LAUNCH, POLL, SYNC, WAIT

MIXED: Final = "mixed"
NONE: Final = "none"
WITHOUT_COPIES: Final = ("ggg", NONE)
"""Classes of steps without input copies."""
MIN_SHARE: Final = 0.6
"""Below this share of copies that follow it, a class is called mixed."""

MEANING: Final = {
    SYNC: "sync", COPY: "asynchronous copy", BLOCKING_COPY: "blocking copy", GRAPH_LAUNCH: "graph launch",
    LAUNCH: "kernel launch", EVENT: "event record", WAIT: "stream wait", POLL: "polling loop",
}  # fmt: skip
"""The meaning of each letter of a signature."""

_TOKEN: Final = re.compile(f"{LAUNCH}+|.")
_GROUP: Final = re.compile(r"\(([^()]*)\)×(\d+)")
_LAUNCH: Final = re.compile(f"[{LAUNCH}{GRAPH_LAUNCH}]")
_LONGEST_UNIT = 24


def compress(letters: str) -> str:
    """Compress letters: repeats become `s×3` or `(sc)×6`, everything else is separated by spaces; a run of kernel
    launches is never split.

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
    """The letters of a signature that was written by `compress`.

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
    """(length, times) of the repeat at `i` that covers most letters; the shortest unit wins ties; (1, 1) if none."""
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
    """Count how many of a step's input copies follow each strategy.

    Only copies before a launch count, since the logits are read after it. A blocking copy is sccc. An asynchronous copy
    before the launch is saaas if a sync follows the last copy (aaas if nothing synchronised before the first
    asynchronous one), else aaag. A blocking copy also synchronises, as does a polling loop. Steps without such copies
    are ggg or none.

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
    """The class of a step without input copies: ggg if the host waits for nothing in it, else none.

    Example:
        >>> without_copies("ggg"), without_copies("gs")
        ('ggg', 'none')
    """
    return NONE if set(letters) & {SYNC, POLL, BLOCKING_COPY} else "ggg"


def classify(copies: Mapping[str, int], steps: Mapping[str, int]) -> tuple[str, float]:
    """The class, and the share that follows it: of the copies, or of the steps if most have no input copies.

    Args:
        copies: `strategies_followed`, summed over the steps.
        steps: the number of steps without input copies, by `without_copies`; under "" the number with some.
    """
    bare = {name: count for name, count in steps.items() if name}
    most_are_bare = sum(bare.values()) >= MIN_SHARE * sum(steps.values())
    found = bare if most_are_bare or not copies else copies
    name = max(found, key=lambda n: found[n])
    share = found[name] / (sum(steps.values()) if found is bare else sum(copies.values()))
    return (name if share >= MIN_SHARE else MIXED), share
