"""Reads the logs that the library of `intertoken races` leaves, one per process (`recorders/native/races/log.h`)."""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tracer.errors import FormatError
from tracer.files.bounded import opened
from tracer.recorders.light_ring import lines_beside
from tracer.recorders.symbols import functions_at

_MAGIC: Final = b"ITRACES1"
_VERSION: Final = 1
_HEADER: Final = struct.Struct("<8s4I7Qq128s6Q")
_MOST_BYTES: Final = 1 << 26
_COUNTS: Final = (
    "calls", "witnessed", "checked", "sampled", "unchecked", "refused", "bad", "bad_excused", "drained", "bad_drained",
    "given_up", "bad_given_up", "gated", "bad_gated", "delayed", "fetched", "waited", "unwaited",
)  # fmt: skip
_ROW: Final = np.dtype([
    ("call", "<u4"), ("stack", "<u4"), ("key", "<u8"), ("bytes", "<u8"), ("source", "<u8"), ("destination", "<u8"),
    ("stream", "<u8"), ("most_bytes", "<u8"), *((name, "<u8") for name in _COUNTS), ("first_bad", "<u8"),
    ("bad_offset", "<u8"), ("bad_step", "<u8"), ("bad_was", "u1"), ("bad_came", "u1"), ("unused", "V6"),
])  # fmt: skip
_DIGEST: Final = np.dtype([("digest", "<u8"), ("step", "<u4"), ("row", "<u4")])
_INCIDENT: Final = np.dtype([("call", "<u4"), ("stack", "<u4"), ("row", "<u4"), ("step", "<u4"), ("address", "<u8")])
_SITE_PARTS: Final = 3
_NUMBER: Final = re.compile("[0-9]{1,18}")


class Place(NamedTuple):
    """Where a function of a stack was called to return to: the file, and the offset there."""

    file: str
    offset: int


Stack = tuple[Place, ...]
"""The innermost function first; empty if unknown."""


@dataclass(frozen=True)
class FirstBad:
    """The first copy of a site that arrived otherwise: its number there (from 1), the step (graph launches before it),
    the first byte that differs (its offset in the source), and what it was and what came."""

    number: int
    step: int
    offset: int
    was: int
    came: int


@dataclass(frozen=True)
class Site:
    """A call site of copies in one process; `key` is the same in every run. `counts` are those of `log.h`."""

    key: int
    call: str
    stack: Stack
    bytes: int
    most_bytes: int
    counts: Counter[str]
    first_bad: FirstBad | None


class Fetch(NamedTuple):
    """A result that the host fetched: its digest, the step (graph launches before it), and its site (None: unknown)."""

    digest: int
    step: int
    key: int | None


class InFlight(NamedTuple):
    """Memory that was freed while a copy had not arrived: the call that freed it, its stack, and the copy's site."""

    call: str
    stack: Stack
    step: int
    copy: int | None


@dataclass(frozen=True)
class Log:
    """What the library saw in one process. `is_ended`: it ran to its end; else it was killed, or left by `_exit`."""

    process: int
    parent: int
    program: str
    start_ns: int
    is_ended: bool
    steps: int
    sites: tuple[Site, ...]
    fetches: tuple[Fetch, ...]
    all_digests: int
    in_flight: tuple[InFlight, ...]
    counters: Counter[str]


def read_logs(folder: Path) -> list[Log]:
    """Read the logs in a folder, by their start. A file that a killed process had only begun is left out.

    Raises:
        FormatError: a log is damaged, or of another version.
    """
    logs = [read_log(path) for path in folder.glob("*.ring") if _is_begun(path)]
    return sorted(logs, key=lambda log: (log.start_ns, log.process))


def _is_begun(path: Path) -> bool:
    with opened(path) as file:
        return file.read(len(_MAGIC)).strip(b"\0") != b""


def read_log(path: Path) -> Log:
    """Read one log and the stacks beside it. Raises FormatError if it is damaged, or of another version."""
    try:
        with opened(path) as file:
            return _parse(path, file.read(_MOST_BYTES))
    except OSError as problem:
        raise FormatError(f"{path}: cannot be read: {problem.strerror or problem}") from problem
    except (ValueError, IndexError, struct.error) as problem:
        raise FormatError(f"{path}: a damaged log of intertoken races: {problem}") from problem


def _parse(path: Path, content: bytes) -> Log:
    magic, version, process, parent, row_bytes, *rest = _HEADER.unpack_from(content)
    if magic != _MAGIC or version != _VERSION or row_bytes != _ROW.itemsize:
        raise FormatError(f"{path}: not a log of intertoken races, or of another version")
    names_at, rows_at, digests_at, incidents_at, *most, start, program = rest[:9]
    used = [min(have, at_most) for have, at_most in zip(rest[9:12], most, strict=True)]
    calls, counters = _names(content[names_at:rows_at])
    stacks = _stacks(path)
    rows = _table(content, _ROW, rows_at, used[0])
    sites = tuple(_site(row, calls, stacks) for row in rows)
    keys = dict(enumerate(site.key for site in sites))
    digests = _table(content, _DIGEST, digests_at, used[1]).tolist()
    incidents = _table(content, _INCIDENT, incidents_at, used[2]).tolist()
    values = np.frombuffer(content, "<u8", len(counters), _HEADER.size).tolist()
    return Log(
        process, parent, program.partition(b"\0")[0].decode(errors="replace"), start, bool(rest[14]), rest[12], sites,
        tuple(Fetch(digest, step, keys.get(row)) for digest, step, row in digests), rest[13],
        tuple(InFlight(calls[call], stacks.get(stack, ()), step, keys.get(row))
              for call, stack, row, step, _ in incidents),
        Counter(dict(zip(counters, values, strict=True))),
    )  # fmt: skip


def _names(content: bytes) -> tuple[list[str], list[str]]:
    """The names of calls and of counters, each list ended by an empty name."""
    words = [word.decode() for word in content.split(b"\0")]
    end = words.index("")
    return words[:end], words[end + 1 : words.index("", end + 1)]


def _table(content: bytes, kind: np.dtype[Any], at: int, count: int) -> NDArray[Any]:
    return np.frombuffer(content, kind, count, at)


def _site(row: Any, calls: list[str], stacks: dict[int, Stack]) -> Site:
    bad = None
    if row["first_bad"]:
        bad = FirstBad(*(int(row[name]) for name in ("first_bad", "bad_step", "bad_offset", "bad_was", "bad_came")))
    counts = Counter({name: int(row[name]) for name in _COUNTS})
    stack = stacks.get(int(row["stack"]), ())
    return Site(int(row["key"]), calls[row["call"]], stack, int(row["bytes"]), int(row["most_bytes"]), counts, bad)


def _stacks(path: Path) -> dict[int, Stack]:
    """The stacks beside a log, by number."""
    stacks: dict[int, list[Place]] = {}
    for parts in lines_beside(path, ".sites"):
        if len(parts) == _SITE_PARTS and all(map(_NUMBER.fullmatch, parts[:2])):
            stacks.setdefault(int(parts[0]), []).append(Place(parts[2], int(parts[1])))
    return {stack: tuple(places) for stack, places in stacks.items()}


def named(places: Iterable[Place]) -> dict[Place, str]:
    """The name of the function at each place; "" where the file has none for it."""
    names: dict[Place, str] = {}
    by_file = sorted(set(places))
    for file, group in groupby(by_file, key=lambda place: place.file):
        mine = list(group)
        offsets = np.array([place.offset - 1 for place in mine], np.int64)  # may return to the next function's first
        names |= zip(mine, functions_at(Path(file), offsets), strict=True)
    return names
