"""Raw CUPTI activity buffers -> one numpy array of records per kind.

A buffer holds records of different sizes back to back, so the start of a record is known only from the previous one.
All buffers are walked in lockstep: one NumPy operation advances every buffer by one record. The cost per record falls
with the number of buffers (of 256 KiB each), and there is no Python loop over records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tracer.recorders.cupti_layout import record_type

Positions = NDArray[np.int64]
Records = dict[int, NDArray[np.void]]

_WORD: Final = 4  # bytes; a record begins with its kind in one word, and all sizes are whole words
_ALIGNMENT: Final = 8
_STRIDE: Final = 128  # records per buffer between checks which buffers are done


@dataclass(slots=True)
class Parsed:
    """The contents of the buffers.

    Attributes:
        records: kind -> its records in the order of the buffers, as `cupti_layout.record_type`.
        unknown: unknown kind -> the number of buffers in which it ended the reading.
        unread_bytes: the bytes from an unknown record on, and of records truncated at the end of their buffer.
    """

    records: Records = field(default_factory=dict)
    unknown: dict[int, int] = field(default_factory=dict)
    unread_bytes: int = 0


def parse(buffers: Sequence[bytes], sizes: Mapping[int, int]) -> Parsed:
    """Parse the records of all buffers.

    Args:
        buffers: the valid part of each activity buffer.
        sizes: record kind -> bytes, from `cupti_layout.sizes`.
    """
    parsed = Parsed()
    buffers = [buffer for buffer in buffers if buffer]
    if not buffers:
        return parsed
    words, starts, ends = _joined(buffers, max(sizes.values()))
    steps = np.zeros(max(sizes) + 2, np.int64)  # in words, by kind; kinds beyond the last are unknown, too
    steps[list(sizes)] = [size // _WORD for size in sizes.values()]
    positions, stops = _walk(words, starts, steps)
    positions = _without_cut_records(positions, stops, words, ends, steps)
    early = stops < ends
    for kind in words[stops[early]].tolist():
        parsed.unknown[kind] = parsed.unknown.get(kind, 0) + 1
    whole = _last_ends(positions, starts, ends, words, steps)
    parsed.unread_bytes = int((ends - whole).sum()) * _WORD
    kinds = words[positions]
    for kind in np.flatnonzero(np.bincount(kinds, minlength=1)).tolist():
        parsed.records[kind] = _gather(words, positions[kinds == kind], record_type(kind, sizes[kind]))
    return parsed


def _joined(buffers: Sequence[bytes], largest: int) -> tuple[NDArray[np.uint32], Positions, Positions]:
    """All buffers as words, each padded with more zeros than a truncated record can skip; their starts and ends."""
    pieces: list[bytes] = []
    lengths = np.array([len(buffer) for buffer in buffers])
    padding = largest + _ALIGNMENT + -lengths % _ALIGNMENT
    for buffer, zeros in zip(buffers, padding.tolist(), strict=True):
        pieces += (buffer, bytes(zeros))
    starts = np.concatenate(([0], np.cumsum(lengths + padding)[:-1])) // _WORD
    return np.frombuffer(b"".join(pieces), np.uint32), starts, starts + lengths // _WORD


def _walk(words: NDArray[np.uint32], starts: Positions, steps: Positions) -> tuple[Positions, Positions]:
    """The sorted starts of all records, and where each buffer's walk stopped (at a kind without a size)."""
    found: list[Positions] = []
    stops = starts.copy()
    active = np.arange(len(starts))
    while len(active):
        at = stops[active]
        visited = np.empty((_STRIDE, len(active)), np.int64)
        kind = np.empty(len(active), np.uint32)
        step = np.empty(len(active), np.int64)
        for row in visited:
            row[:] = at
            words.take(at, out=kind, mode="clip")
            steps.take(kind, out=step, mode="clip")
            at += step
        stops[active] = at
        found.append(visited.ravel())
        active = active[step > 0]
    positions = np.concatenate(found)
    positions = positions[steps.take(words[positions], mode="clip") > 0]
    positions.sort()
    return positions, stops


def _without_cut_records(
    positions: Positions, stops: Positions, words: NDArray[np.uint32], ends: Positions, steps: Positions
) -> Positions:
    """Drop records that extend past the end of their buffer."""
    if not (stops > ends).any():
        return positions
    ends_of = ends[np.searchsorted(ends, positions, side="right")]
    return positions[positions + steps[words[positions]] <= ends_of]


def _last_ends(
    positions: Positions, starts: Positions, ends: Positions, words: NDArray[np.uint32], steps: Positions
) -> Positions:
    """The end of the last complete record of each buffer; the buffer's start if it has none."""
    before = np.searchsorted(positions, ends) - 1
    if not len(positions):
        return starts
    last = positions[before]
    return np.where((before >= 0) & (last >= starts), last + steps[words[last]], starts)


def _gather(words: NDArray[np.uint32], positions: Positions, type: np.dtype[np.void]) -> NDArray[np.void]:
    opaque: Any = np.dtype((np.void, type.itemsize))
    reachable = len(words) - type.itemsize // _WORD + 1
    overlapping = np.ndarray((reachable,), opaque, words.data, strides=(_WORD,))
    return overlapping[positions].view(type)
