"""The ring that the preloaded library writes, as `tracer/recorders/native/ring.h` lays it out: one file per process.

It may be read while its process runs and after it died; a record that is being written is left out.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tracer.errors import FormatError

MAGIC: Final = b"ITLIGHT1"
VERSION: Final = 1
RECORD: Final = np.dtype([
    ("sequence", "<u8"), ("begin", "<i8"), ("end", "<i8"), ("thread", "<u4"), ("call", "<u2"), ("result", "<u2"),
    ("stream", "<u8"), ("object", "<u8"), ("bytes", "<u8"), ("number", "<u4"), ("copy_kind", "u1"), ("context", "u1"),
    ("graph", "<u2"),
])  # fmt: skip
STAMP: Final = np.dtype([("time", "<u8"), ("word", "<u8")])
NO_CONTEXT: Final = 0xFF
PAIR: Final = np.dtype([("tick", "<u8"), ("monotonic", "<i8")])
_HEADER: Final = struct.Struct("<8sIIIIQQQQQQqqIIII128s")
_TURNS_AT: Final = 100
_LINE: Final = 64  # the counters that threads write begin cache lines of their own
_FACTS: Final = struct.Struct("<QiI48s")
_CONTEXTS: Final = 8
_MOST_BYTES: Final = 1 << 31


@dataclass(frozen=True)
class Context:
    """A CUDA context of the process: its device's number and name, and whether its work is stamped."""

    device: int
    name: str
    has_stamps: bool


@dataclass(frozen=True)
class Ring:
    """What a process left in its ring.

    Attributes:
        path: the file.
        process, parent: ids.
        program: its short name.
        start_ns, start_utc_ns: when the ring began, by CLOCK_MONOTONIC and CLOCK_REALTIME.
        calls: names, by the number that records have.
        counters: name -> count.
        written: how many records there were; those that do not fit were overwritten.
        records: `RECORD`, whole ones, in the order in which their calls ended; times are ns of CLOCK_MONOTONIC.
        stamps: of each context `STAMP`, in the device's order, the overwritten ones left out.
        contexts: as records number them.
    """

    path: Path
    process: int
    parent: int
    program: str
    start_ns: int
    start_utc_ns: int
    calls: list[str]
    counters: dict[str, int]
    written: int
    capacity: int
    records: NDArray[Any]
    stamps: list[NDArray[Any]]
    contexts: list[Context]

    @property
    def overwritten(self) -> int:
        """How many records newer ones took the place of."""
        return max(self.written - self.capacity, 0)


def read_ring(path: Path, last: int | None = None) -> Ring:
    """Read a ring, or its last records alone.

    Raises:
        FormatError: it is none, or of another version.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise FormatError(f"{path}: {path.stat().st_size} bytes are no ring of the light recorder")
        content = np.memmap(path, np.uint8, mode="r") if path.stat().st_size else np.zeros(0, np.uint8)
    except OSError as problem:
        raise FormatError(f"{path}: cannot be read: {problem.strerror or problem}") from problem
    try:
        return _parse(path, content, last)
    except (ValueError, IndexError, struct.error) as problem:
        raise FormatError(f"{path}: a spoiled ring of the light recorder: {problem}") from problem


def switch_recording(path: Path, *, on: bool) -> None:
    """Let a process go on recording, or pause; it does so from its next call on. What is in the ring stays.

    Raises:
        OSError: the ring cannot be written to.
    """
    with path.open("r+b") as file, mmap.mmap(file.fileno(), mmap.PAGESIZE) as header:
        (turn,) = struct.unpack_from("<I", header, _TURNS_AT)
        if header[: len(MAGIC)] == MAGIC and (turn % 2 == 0) != on:
            struct.pack_into("<I", header, _TURNS_AT, (turn + 1) % 2**32)


def _parse(path: Path, content: NDArray[np.uint8], last: int | None) -> Ring:
    data = content.data
    if len(data) < _HEADER.size or bytes(data[:8]) != MAGIC:
        raise FormatError(f"{path}: no ring of the light recorder, or one that was not begun")
    (_, version, header_bytes, process, size, capacity, places, names_at, pairs_at, records_at, stamps_at, start,
     start_utc, parent, contexts_used, pair_count, _, program) = _HEADER.unpack_from(data)  # fmt: skip
    if version != VERSION or size != RECORD.itemsize:
        raise FormatError(f"{path}: a ring of version {version}; this is intertoken for version {VERSION}")
    whole = stamps_at + _CONTEXTS * places * STAMP.itemsize
    if not 0 < capacity <= len(data) or not 0 < places <= len(data) or contexts_used > _CONTEXTS or whole > len(data):
        raise FormatError(f"{path}: the header says {whole} bytes, and the file has {len(data)}")
    parts = (header_bytes, names_at, pairs_at, records_at - pair_count * PAIR.itemsize)
    if list(parts) != sorted(parts) or records_at + capacity * RECORD.itemsize > stamps_at:
        raise FormatError(f"{path}: the parts of the ring overlap")
    calls, counter_names = _names(bytes(data[names_at:pairs_at]))
    at = -(-_HEADER.size // _LINE) * _LINE
    written = struct.unpack_from("<Q", data, at)[0]
    at += 2 * _LINE
    counts = struct.unpack_from(f"<{len(counter_names)}Q", data, at)
    at += len(counter_names) * 8
    facts = [_FACTS.unpack_from(data, at + i * _FACTS.size) for i in range(contexts_used)]
    records = np.frombuffer(content, RECORD, capacity, records_at)
    pairs = np.frombuffer(content, PAIR, pair_count, pairs_at)
    stamps = [
        _in_order(np.frombuffer(content, STAMP, places, stamps_at + i * places * STAMP.itemsize))
        for i in range(contexts_used)
    ]
    return Ring(
        path, process, parent, _text(program), start, start_utc, calls, dict(zip(counter_names, counts, strict=True)),
        written, capacity, _in_ns(_whole(records, written, last, len(calls)), pairs), stamps,
        [Context(device, _text(name), bool(has)) for _, device, has, name in facts],
    )  # fmt: skip


def _names(text: bytes) -> tuple[list[str], list[str]]:
    calls, counters, *_ = text.split(b"\0\0")
    return [n.decode() for n in calls.split(b"\0")], [n.decode() for n in counters.split(b"\0") if n]


def _text(padded: bytes) -> str:
    return padded.partition(b"\0")[0].decode(errors="replace")


def _whole(records: NDArray[Any], written: int, last: int | None, calls: int) -> NDArray[Any]:
    """The last records, in order, that are complete and were not written to while they were copied."""
    count = min(written, len(records), written if last is None else last)
    numbers = np.arange(written - count, written)
    slots = numbers % len(records)
    found = records[slots]
    kept = (found["sequence"] == numbers + 1) & (found["call"] < calls)
    kept &= records["sequence"][slots] == found["sequence"]  # the ring itself, looked at again
    return np.asarray(found[kept])


def _in_ns(records: NDArray[Any], pairs: NDArray[Any]) -> NDArray[Any]:
    """Records with their ticks as ns of CLOCK_MONOTONIC; before the first and after the last pair at their pace."""
    known = np.sort(pairs[pairs["monotonic"] != 0], order="tick")
    if len(known) < 2 or known["tick"][0] == known["tick"][-1]:
        return records[:0]
    tick, ns = known["tick"].astype(np.int64), known["monotonic"]
    found = records.copy()
    for name in ("begin", "end"):
        at = np.clip(np.searchsorted(tick, found[name], side="right") - 1, 0, len(known) - 2)
        pace = (ns[at + 1] - ns[at]) / (tick[at + 1] - tick[at])
        found[name] = ns[at] + np.rint((found[name] - tick[at]) * pace).astype(np.int64)
    return found


def _in_order(stamps: NDArray[Any]) -> NDArray[Any]:
    """Stamps by the device's time; a place that was never written has no sequence."""
    written = stamps[stamps["word"] >> 40 != 0]
    return np.asarray(written[np.argsort(written["time"], kind="stable")])
