"""CUPTI's activity records: their layout (kinds, sizes by version, offsets), and raw buffers -> an array per kind.

Source: `offsetof` and `sizeof` over cupti_activity.h of CUDA 12.0, 12.2–12.6, 12.8, 12.9 and 13.0–13.5 (64 bit). Newer
versions append to a record and never move a field, so sizes depend on the version and offsets do not.

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

from tracer.errors import RecordError
from tracer.model.schema import MISSING, NO_ID

Positions = NDArray[np.int64]
Records = dict[int, NDArray[np.void]]

_WORD: Final = 4  # bytes; a record begins with its kind in one word, and all sizes are whole words
_ALIGNMENT: Final = 8
_STRIDE: Final = 128  # records per buffer between checks which buffers are done

MEMCPY: Final = 1
MEMSET: Final = 2
DRIVER: Final = 4
RUNTIME: Final = 5
DEVICE: Final = 8
CONTEXT: Final = 9
KERNEL: Final = 10
MARKER: Final = 12
MARKER_DATA: Final = 13
OVERHEAD: Final = 17
MEMCPY_PEER: Final = 22
CUDA_EVENT: Final = 36
STREAM: Final = 37
SYNCHRONIZATION: Final = 38
GRAPH_TRACE: Final = 51

KINDS: Final[dict[str, tuple[int, ...]]] = {
    "kernels": (KERNEL,),
    "memcpys": (MEMCPY, MEMCPY_PEER),
    "memsets": (MEMSET,),
    "api": (RUNTIME, DRIVER),
    "syncs": (SYNCHRONIZATION,),
    "cuda_events": (CUDA_EVENT,),
    "nvtx": (MARKER, MARKER_DATA),
    "overhead": (OVERHEAD,),
    "descriptions": (DEVICE, CONTEXT, STREAM),
}
"""Our kind of activity -> CUPTI's activity kinds. Graph-level tracing adds GRAPH_TRACE to the kernels."""

SETS: Final[dict[str, tuple[str, ...]]] = {
    "all": tuple(KINDS),
    "lean": ("kernels", "api", "overhead", "descriptions"),
}
"""Named sets of kinds. The kinds that `lean` omits cause most of the tracing overhead apart from kernels: a device copy
takes 1.4 us longer when it is recorded (H200, benchmarks/cupti_overhead.py), and a loop like ours has seven per token.
With `lean`, copies and syncs still appear as API calls, and the ranges of `tracer.annotate` do not need CUPTI."""

_API_RECORD: Final = {
    "cbid": (4, "u4"), "start": (8, "u8"), "end": (16, "u8"), "process": (24, "u4"), "thread": (28, "u4"),
    "correlation": (32, "u4"), "return_value": (36, "u4"),
}  # fmt: skip

FIELDS: Final[dict[int, dict[str, tuple[int, str]]]] = {
    KERNEL: {
        "registers": (6, "u2"), "start": (16, "u8"), "end": (24, "u8"), "device": (40, "u4"), "context": (44, "u4"),
        "stream": (48, "u4"), "grid_x": (52, "i4"), "grid_y": (56, "i4"), "grid_z": (60, "i4"),
        "block_x": (64, "i4"), "block_y": (68, "i4"), "block_z": (72, "i4"), "static_shared": (76, "i4"),
        "dynamic_shared": (80, "i4"), "correlation": (92, "u4"), "name": (104, "u8"), "graph_node": (144, "u8"),
        "graph": (156, "u4"),
    },
    MEMCPY: {
        "kind": (4, "u1"), "src_kind": (5, "u1"), "dst_kind": (6, "u1"), "bytes": (8, "u8"), "start": (16, "u8"),
        "end": (24, "u8"), "device": (32, "u4"), "context": (36, "u4"), "stream": (40, "u4"),
        "correlation": (44, "u4"), "graph_node": (64, "u8"),
    },
    MEMCPY_PEER: {
        "kind": (4, "u1"), "src_kind": (5, "u1"), "dst_kind": (6, "u1"), "bytes": (8, "u8"), "start": (16, "u8"),
        "end": (24, "u8"), "device": (32, "u4"), "context": (36, "u4"), "stream": (40, "u4"),
        "src_device": (44, "u4"), "dst_device": (52, "u4"), "correlation": (60, "u4"), "graph_node": (72, "u8"),
    },
    MEMSET: {
        "value": (4, "u4"), "bytes": (8, "u8"), "start": (16, "u8"), "end": (24, "u8"), "device": (32, "u4"),
        "context": (36, "u4"), "stream": (40, "u4"), "correlation": (44, "u4"), "mem_kind": (50, "u2"),
        "graph_node": (64, "u8"),
    },
    RUNTIME: _API_RECORD,
    DRIVER: _API_RECORD,
    SYNCHRONIZATION: {
        "type": (4, "u4"), "start": (8, "u8"), "end": (16, "u8"), "correlation": (24, "u4"), "context": (28, "u4"),
        "stream": (32, "u4"), "event": (36, "u4"),
    },
    CUDA_EVENT: {
        "correlation": (4, "u4"), "context": (8, "u4"), "stream": (12, "u4"), "event": (16, "u4"),
        "event_sync": (48, "u8"),
    },
    GRAPH_TRACE: {
        "correlation": (4, "u4"), "start": (8, "u8"), "end": (16, "u8"), "device": (24, "u4"), "graph": (28, "u4"),
        "context": (32, "u4"), "stream": (36, "u4"),
    },
    MARKER: {
        "flags": (4, "u4"), "timestamp": (8, "u8"), "id": (16, "u4"), "object_kind": (20, "u4"),
        "process": (24, "u4"), "thread": (28, "u4"), "name": (40, "u8"), "domain": (48, "u8"),
    },
    MARKER_DATA: {
        "flags": (4, "u4"), "id": (8, "u4"), "payload_kind": (12, "u4"), "payload": (16, "u8"), "color": (24, "u4"),
        "category": (28, "u4"),
    },
    OVERHEAD: {"overhead_kind": (4, "u4"), "start": (24, "u8"), "end": (32, "u8")},
    STREAM: {"context": (4, "u4"), "stream": (8, "u4"), "priority": (12, "u4"), "flag": (16, "u4")},
    CONTEXT: {"context": (4, "u4"), "device": (8, "u4")},
    DEVICE: {
        "memory_bandwidth": (8, "u8"), "total_memory": (16, "u8"), "clock_rate": (36, "u4"), "sm_count": (44, "u4"),
        "device": (112, "u4"), "uuid_low": (120, "u8"), "uuid_high": (128, "u8"), "name": (136, "u8"),
        "visible": (144, "u1"),
    },
}  # fmt: skip
"""Kind -> our column -> (byte offset, numpy type). The first four bytes of every record are its kind.

A field past the end of an old version's record (`event_sync` before 12.8) is absent.
"""

_SIZES: Final = {
    MEMCPY: {18: 88, 26: 96, 130400: 112}, MEMSET: {18: 88, 130400: 104}, DRIVER: {18: 40}, RUNTIME: {18: 40},
    DEVICE: {18: 176, 20: 184, 130200: 192}, CONTEXT: {18: 16, 22: 24, 23: 32, 130100: 40},
    KERNEL: {18: 208, 130000: 216, 130100: 224, 130300: 232, 130400: 248}, MARKER: {18: 56},
    MARKER_DATA: {18: 32, 130000: 40}, OVERHEAD: {18: 40, 21: 48, 22: 56}, MEMCPY_PEER: {18: 96},
    CUDA_EVENT: {18: 24, 26: 56, 130500: 80}, STREAM: {18: 24}, SYNCHRONIZATION: {18: 40, 26: 56},
    GRAPH_TRACE: {18: 48, 21: 56},
}  # fmt: skip
"""Kind -> first CUPTI API version with a size -> bytes. 18 is CUDA 12.0, 20 is 12.2, 28 is 12.9, 130001 is 13.0.1."""

OLDEST: Final = 18
NEWEST: Final = 130599


def sizes(version: int) -> dict[int, int]:
    """Record kind -> bytes, for a CUPTI API version as returned by `cuptiGetVersion`.

    Raises:
        RecordError: the layout of this version's records is unknown.
    """
    if not OLDEST <= version <= NEWEST:
        raise RecordError(f"CUPTI API version {version} is not supported; use the libcupti of CUDA 12.0 to 13.5")
    return {kind: bytes_at[max(since for since in bytes_at if since <= version)] for kind, bytes_at in _SIZES.items()}


def version_name(version: int) -> str:
    """The CUDA release of a CUPTI API version.

    Example:
        >>> version_name(130001), version_name(28)
        ('13.0.1', '12.9')
    """
    if version < 100_000:
        return f"12.{min(version - 18, 9)}" if version < 28 else "12.9"
    return f"{version // 10_000}.{version // 100 % 100}.{version % 100}"


def record_type(kind: int, size: int) -> np.dtype[np.void]:
    """The NumPy dtype of a record of that kind and size, with the fields that fit."""
    fields = {name: field for name, field in FIELDS[kind].items() if field[0] + np.dtype(field[1]).itemsize <= size}
    return np.dtype(
        {
            "names": list(fields),
            "formats": [format for _, format in fields.values()],
            "offsets": [offset for offset, _ in fields.values()],
            "itemsize": size,
        }
    )


@dataclass(slots=True)
class Parsed:
    """The contents of the buffers.

    Attributes:
        records: kind -> its records in the order of the buffers, as `record_type`.
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
        sizes: record kind -> bytes, from `sizes`.
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


def ints(values: NDArray[Any]) -> NDArray[np.int64]:
    """Integers of any type as int64; invalid ids (all 32 bits set) are MISSING."""
    wide = values.astype(np.int64)
    if values.dtype == np.uint32:
        invalid = wide == NO_ID
        if invalid.any():
            wide[invalid] = MISSING
    return wide
