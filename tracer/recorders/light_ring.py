"""The ring that the preloaded library writes, as `tracer/recorders/native/ring.h` lays it out: one file per process.

It may be read while its process runs and after it died; a record that is being written is left out. It is read, not
mapped: a page that is not there, because memory is short or the file was cut, is an error then, and no signal.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tracer.errors import FormatError

MAGIC: Final = b"ITLIGHT1"
VERSION: Final = 3
RECORD: Final = np.dtype([
    ("sequence", "<u8"), ("begin", "<i8"), ("end", "<i8"), ("thread", "<u4"), ("call", "<u2"), ("result", "<u2"),
    ("stream", "<u8"), ("object", "<u8"), ("bytes", "<u8"), ("number", "<u4"), ("copy_kind", "u1"), ("context", "u1"),
    ("graph", "<u2"),
])  # fmt: skip
STAMP: Final = np.dtype([("time", "<u8"), ("word", "<u8")])
NO_CONTEXT: Final = 0xFF
INSIDE_GRAPH: Final = 0x7FFE  # of stamps inside runs of launches
BEFORE, BEHIND = 1 << 30, 1 << 31  # in a record's number: a stamp comes right before the call, or right behind it
_GRAPHS: Final = 0x7FFF
_NUMBERS: Final = 0xFFFFFF
PAIR: Final = np.dtype([("tick", "<u8"), ("monotonic", "<i8")])
_HEADER: Final = struct.Struct("<8sIIIIQQQQQQQQQqqQIIII128s")
_HEADER_BYTES: Final = 4096
_TURNS_AT: Final = 132
_RANGES: Final = "nvtx_"  # so begins what of NVTX is recorded
_TEXTS_AT: Final = 1 << 16  # in their part of the file
_DOMAINS, _DOMAIN_NAME = 64, 64
_LINE: Final = 64  # the counters that threads write begin cache lines of their own
_FACTS: Final = struct.Struct("<QiI48s")
_CONTEXTS: Final = 32
_MOST_BYTES: Final = 1 << 31
_MOST_WRITTEN: Final = 1 << 62
_SEQUENCE: Final = 40  # bits below it in a stamp's word


def number_of(numbers: NDArray[Any]) -> NDArray[np.int64]:
    """Which launch of a graph, or which run of launches: of records' numbers, or of stamps' words without the graph."""
    return numbers.astype(np.int64) & _NUMBERS


def graph_of(words: NDArray[Any]) -> NDArray[np.int64]:
    """Of stamps' words the graph's id, 0 of a run of launches."""
    return words.astype(np.int64) >> 1 & _GRAPHS


@dataclass(frozen=True)
class Context:
    """A CUDA context of the process: its device's number and name, and whether its work is stamped."""

    device: int
    name: str
    has_stamps: bool


@dataclass(frozen=True)
class Texts:
    """The texts of ranges: the last of all the bytes that there were, up to number `end`, and the domains' names."""

    end: int
    content: NDArray[np.uint8]
    domains: list[str]


@dataclass(frozen=True)
class Ring:
    """What a process left in its ring.

    Attributes:
        path: the file.
        process, parent: ids; those of the process's own namespace.
        pid_namespace: number of that, 0 if it is not known.
        program: its short name.
        start_ns, start_utc_ns: when the ring began, by CLOCK_MONOTONIC and CLOCK_REALTIME.
        calls: names, by the number that records have.
        counters: name -> count.
        written: how many records there were; those that do not fit were overwritten.
        records: `RECORD`, whole ones, in the order in which their calls ended; times are ns of CLOCK_MONOTONIC.
        ranges: those of the program's own ranges and marks, which `nvtx.c` describes.
        texts: theirs; None if there are none.
        stamps: of each context `STAMP`, in the order of their times, the overwritten ones left out.
        chains: of each context the stamps of the chain that tells what one costs, likewise.
        places: how many stamps of a context there is room for.
        contexts: as records number them.
    """

    path: Path
    process: int
    parent: int
    pid_namespace: int
    program: str
    start_ns: int
    start_utc_ns: int
    calls: list[str]
    counters: dict[str, int]
    written: int
    capacity: int
    records: NDArray[Any]
    ranges: NDArray[Any]
    texts: Texts | None
    stamps: list[NDArray[Any]]
    chains: list[NDArray[Any]]
    places: int
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
        with path.open("rb") as file:
            return _parse(path, file, last)
    except OSError as problem:
        raise FormatError(f"{path}: cannot be read: {problem.strerror or problem}") from problem
    except (ValueError, IndexError, struct.error) as problem:
        raise FormatError(f"{path}: a spoiled ring of the light recorder: {problem}") from problem


class Facts(NamedTuple):
    """Of a ring's process its id and the namespace that it is one in; and how often it was switched: odd, it pauses."""

    process: int
    namespace: int
    turns: int


def facts_of(path: Path) -> Facts:
    """What tells rings apart; zeros of a ring that is not begun.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        head = file.read(_HEADER.size)
    if len(head) < _HEADER.size or head[: len(MAGIC)] != MAGIC:
        return Facts(0, 0, 0)
    fields = _HEADER.unpack(head)
    return Facts(fields[3], fields[16], fields[20])


def switch_recording(path: Path, *, on: bool) -> None:
    """Let a process go on recording, or pause; it does so from its next call on. What is in the ring stays.

    Raises:
        OSError: the ring cannot be written to.
    """
    with path.open("r+b") as file, mmap.mmap(file.fileno(), mmap.PAGESIZE) as header:
        (turn,) = struct.unpack_from("<I", header, _TURNS_AT)
        if header[: len(MAGIC)] == MAGIC and (turn % 2 == 0) != on:
            struct.pack_into("<I", header, _TURNS_AT, (turn + 1) % 2**32)


def _parse(path: Path, file: BinaryIO, last: int | None) -> Ring:
    size = os.fstat(file.fileno()).st_size
    head = file.read(_HEADER_BYTES)
    if size > _MOST_BYTES or len(head) < _HEADER.size or head[:8] != MAGIC:
        raise FormatError(f"{path}: no ring of the light recorder, or one that was not begun")
    (_, version, header_bytes, process, record_bytes, capacity, places, chain, names_at, pairs_at, records_at,
     stamps_at, texts_at, text_bytes, start, start_utc, namespace, parent, contexts_used, pair_count, _, program,
     ) = _HEADER.unpack_from(head)  # fmt: skip
    if version != VERSION or record_bytes != RECORD.itemsize:
        raise FormatError(f"{path}: a ring of version {version}; this is intertoken for version {VERSION}")
    parts = (header_bytes, names_at, pairs_at, records_at - pair_count * PAIR.itemsize)
    if list(parts) != sorted(parts) or records_at + capacity * RECORD.itemsize > stamps_at:
        raise FormatError(f"{path}: the parts of the ring overlap")
    if not capacity or contexts_used > _CONTEXTS or stamps_at > size:
        raise FormatError(f"{path}: the header says {stamps_at} bytes, and the file has {size}")
    calls, counter_names = _names(os.pread(file.fileno(), pairs_at - names_at, names_at))
    at = -(-_HEADER.size // _LINE) * _LINE
    written = struct.unpack_from("<Q", head, at)[0]
    at += 2 * _LINE
    counts = struct.unpack_from(f"<{len(counter_names)}Q", head, at)
    at += len(counter_names) * 8
    facts = [_FACTS.unpack_from(head, at + i * _FACTS.size) for i in range(contexts_used)]
    stamps, chains = [], []
    for number, (_, _, has_stamps, _) in enumerate(facts):
        where = stamps_at + number * (places + chain) * STAMP.itemsize
        found = _read(file, STAMP, places + chain if has_stamps else 0, where)
        stamps.append(_in_order(found[:places]))
        chains.append(_in_order(found[places:]))
    whole = _whole(file, records_at, capacity, min(written, _MOST_WRITTEN), last)
    records = _in_ns(whole[whole["call"] < len(calls)], _read(file, PAIR, pair_count, pairs_at))
    is_range = np.array([name.startswith(_RANGES) for name in calls], bool)[records["call"]]
    texts = _texts(file, texts_at, text_bytes) if text_bytes else None  # after the records that need them
    return Ring(
        path, process, parent, namespace, _text(program), start, start_utc, calls,
        dict(zip(counter_names, counts, strict=True)), written, capacity, records[~is_range], records[is_range], texts,
        stamps, chains, places,
        [Context(device, _text(name), bool(has)) for _, device, has, name in facts],
    )  # fmt: skip


def _texts(file: BinaryIO, at: int, size: int) -> Texts:
    content = _read(file, np.dtype(np.uint8), size, at + _TEXTS_AT)
    head = _read(file, np.dtype(np.uint8), 8 + _DOMAINS * _DOMAIN_NAME, at).tobytes()
    names = [_text(head[8 + i * _DOMAIN_NAME : 8 + (i + 1) * _DOMAIN_NAME]) for i in range(_DOMAINS)]
    return Texts(struct.unpack_from("<Q", head)[0], content, names)


def _names(text: bytes) -> tuple[list[str], list[str]]:
    calls, counters, *_ = text.split(b"\0\0")
    return [n.decode() for n in calls.split(b"\0")], [n.decode() for n in counters.split(b"\0") if n]


def _text(padded: bytes) -> str:
    return padded.partition(b"\0")[0].decode(errors="replace")


def _read(file: BinaryIO, kind: np.dtype[Any], count: int, at: int) -> NDArray[Any]:
    """A part of the file as it is now.

    Raises:
        ValueError: the file ends before.
    """
    wanted = count * kind.itemsize
    is_there = at + wanted <= os.fstat(file.fileno()).st_size
    found = os.pread(file.fileno(), wanted, at) if wanted and is_there else b""
    if len(found) < wanted:
        raise ValueError(f"{wanted} bytes from {at} on are not there")
    return np.frombuffer(found, kind)


def _whole(file: BinaryIO, at: int, capacity: int, written: int, last: int | None) -> NDArray[Any]:
    """The last records, in order, that are complete and were not written to while they were read."""
    count = min(written, capacity, written if last is None else last)
    first = (written - count) % capacity
    to_the_end = min(count, capacity - first)

    def look() -> NDArray[Any]:
        parts = ((to_the_end, at + first * RECORD.itemsize), (count - to_the_end, at))
        return np.concatenate([_read(file, RECORD, *part) for part in parts])

    found = look()
    kept = found["sequence"] == np.arange(written - count + 1, written + 1)
    kept &= look()["sequence"] == found["sequence"]
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
        with np.errstate(all="ignore"):  # of spoiled pairs
            pace = (ns[at + 1] - ns[at]) / (tick[at + 1] - tick[at])
            found[name] = ns[at] + np.rint((found[name] - tick[at]) * pace).astype(np.int64)
    return found


def _in_order(stamps: NDArray[Any]) -> NDArray[Any]:
    """Stamps by the device's time; a place that was never written has no sequence."""
    written = stamps[stamps["word"] >> _SEQUENCE != 0]
    return np.asarray(written[np.argsort(written["time"], kind="stable")])
