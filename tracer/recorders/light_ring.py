"""Reads the ring that the preloaded library writes, one file per process, as laid out in `recorders/native/ring.h`.

A ring may be read while its process runs and after it died. The header, each pair of clocks and each record carry a
check of their content, so that what is being written, or was written by two threads at once, is skipped whatever the
order in which its words arrive. It is read, not mapped, so that a missing page (too little memory, a truncated file) is
an error and not a signal.

Rings are in folders (`folder`): in memory (/dev/shm), one per recording, locked while its recorder runs. A folder is
removed once its recording is written. If that fails, or the recorder is killed, the folder stays until it is recovered
or removed.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import shutil
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.errors import FormatError
from tracer.files.bounded import opened
from tracer.files.output import lock_folder, take_folder
from tracer.model.intervals import Bools, Ints
from tracer.model.schema import MISSING, NVTX_KINDS
from tracer.text import spelled

MAGIC: Final = b"ITLIGHT1"
VERSION: Final = 7
RECORD: Final = np.dtype([
    ("sequence", "<u8"), ("begin", "<i8"), ("end", "<i8"), ("thread", "<u4"), ("call", "<u2"), ("result", "<u2"),
    ("stream", "<u8"), ("object", "<u8"), ("bytes", "<u8"), ("number", "<u4"), ("copy_kind", "u1"), ("context", "u1"),
    ("graph", "<u2"),
])  # fmt: skip
STAMP: Final = np.dtype([("time", "<u8"), ("word", "<u8")])
SITE: Final = np.dtype([("sequence", "<u8"), ("site", "<u4")])
_SITE_SHIFT: Final = 22  # a record's thread id lies below this bit, its call site above it
NO_CONTEXT: Final = 0xFF
INSIDE_GRAPH: Final = 0x7FFE  # of stamps inside runs of launches
BEFORE, BEHIND = 1 << 30, 1 << 31  # in a record's number: a stamp comes right before or after the call
_GRAPHS: Final = 0x7FFF
_NUMBERS: Final = 0xFFFFFF
PAIR: Final = np.dtype([("tick", "<u8"), ("monotonic", "<i8"), ("check", "<u8")])
BRACKET: Final = np.dtype([("before", "<i8"), ("after", "<i8"), ("time", "<u8"), ("check", "<u8")])
_PAIRS_APART_NS: Final = 10_000_000
_MARK: Final = 40  # bits of a record's number; its check lies above them
_HEADER: Final = struct.Struct("<8sIIIIQQQQQQQQQQQqqQII128sQ")
_HEADER_BYTES: Final = 4096
_RANGES: Final = "nvtx_"  # prefix of the names of NVTX records
_TEXTS_AT: Final = 1 << 16  # offset of the texts in their part of the file
_DOMAINS, _DOMAIN_NAME = 64, 64
_LIVE: Final = struct.Struct("<QIIQI")  # records written, turns, pairs written, bytes of texts, contexts used
_LIVE_AT: Final = -(-_HEADER.size // 64) * 64  # in a cache line of their own
_COUNTERS_AT: Final = _LIVE_AT + 64
_FACTS: Final = struct.Struct("<QiI16s48s")
_CONTEXTS: Final = 32
_MOST_BYTES: Final = 1 << 31
_MOST_BRACKETS: Final = 1 << 16
_MOST_RECORDS: Final = 1 << 24
_MOST_NAMES: Final = 1 << 16  # bytes of the names of calls and counters
_MOST_LINES: Final = 1 << 26  # bytes of a file beside a ring
_MOST_NS: Final = 1 << 61  # 73 years: differences of times stay within 64 bits
_MOST_WRITTEN: Final = 1 << 62
_SEQUENCE: Final = 40  # bits below it in a stamp's word

_PAYLOADS: Final = (np.uint64, np.int64, np.float64, np.uint32, np.int32, np.float32)
"""The types of payloads, numbered from 1 (nvtxPayloadType_t)."""


def number_of(numbers: NDArray[Any]) -> NDArray[np.int64]:
    """The number of a graph's launch or of a run, from records' numbers or from stamps' words without the graph."""
    return numbers.astype(np.int64) & _NUMBERS


def graph_of(words: NDArray[Any]) -> NDArray[np.int64]:
    """The graph's id in stamps' words; 0 for a run of launches."""
    return words.astype(np.int64) >> 1 & _GRAPHS


@dataclass(frozen=True)
class Context:
    """A CUDA context of the process: its device's number, name and UUID (zeros if unknown), and whether its work is
    stamped."""

    device: int
    name: str
    has_stamps: bool
    uuid: bytes


@dataclass(frozen=True)
class RingTexts:
    """The texts of ranges: the last bytes of all that were written, up to number `end`, and the names of domains."""

    end: int
    content: NDArray[np.uint8]
    domains: list[str]


@dataclass(frozen=True)
class Ring:
    """The contents of a process's ring.

    Attributes:
        process, parent: process ids, in the process's own namespace.
        pid_namespace: the number of that namespace, 0 if unknown.
        start_ns, start_utc_ns: the start of the ring, by CLOCK_MONOTONIC and CLOCK_REALTIME.
        calls: call names, by the number used in records.
        written: the number of records ever written, including overwritten ones.
        capacity: the number of records that fit.
        lost: the number of records, of those not overwritten, that are incomplete: their process was killed, or is
            running, while they were written.
        records: complete records (`RECORD`), in the order in which their calls ended; times are ns of CLOCK_MONOTONIC.
            Equal queries in a row are one, in the place of the first; `bytes` is their number.
        ranges: the records of the program's own ranges and marks, described in `nvtx.c`.
        stamps: per context, `STAMP` sorted by time, without overwritten ones.
        chains: per context, the stamps of the chain that measures the cost of a stamp, sorted by time.
        brackets: per context, the readings of its device's clock (`BRACKET`), in order: the device read `time` between
            the host's `before` and `after`, ns of CLOCK_MONOTONIC.
        places: the number of stamps that fit per context.
        contexts: in the order in which records number them.
        sites: the call sites (`SITE`, numbered from 1) of those records that have one, by their sequence.
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
    lost: int
    records: NDArray[Any]
    ranges: NDArray[Any]
    texts: RingTexts | None
    stamps: list[NDArray[Any]]
    chains: list[NDArray[Any]]
    places: int
    contexts: list[Context]
    brackets: list[NDArray[Any]] = field(default_factory=list)
    sites: NDArray[Any] = field(default_factory=lambda: np.empty(0, SITE))

    @property
    def overwritten(self) -> int:
        """The number of records overwritten by newer ones."""
        return max(self.written - self.capacity, 0)


def beside(ring: Path, suffix: str) -> Path | None:
    """The file with this suffix that the library wrote next to a ring, or to that of which the ring is a copy."""
    paths = (folder / (ring.name + suffix) for folder in (ring.parent, ring.parent.parent))
    return next((path for path in paths if path.is_file()), None)


def lines_beside(ring: Path, suffix: str) -> list[list[str]]:
    """The lines of that file, split at tabs; a line that was being written is left out. The file ends with zeros."""
    path = beside(ring, suffix)
    if path is None:
        return []
    with opened(path) as file:
        lines = file.read(_MOST_LINES).decode(errors="replace").split("\n")[:-1]
    return [line.split("\t") for line in lines if "\0" not in line]


def read_ring(path: Path, last: int | None = None) -> Ring:
    """Read a ring, or only its last records.

    Raises:
        FormatError: it is not a ring, or has a different version.
    """
    try:
        with opened(path) as file:
            return _parse(path, file, last)
    except OSError as problem:
        raise FormatError(f"{path}: cannot be read: {problem.strerror or problem}") from problem
    except (ValueError, IndexError, struct.error) as problem:
        raise FormatError(f"{path}: a damaged ring of the light recorder: {problem}") from problem


def check_of(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The check of each row of words (uint64), as `check_of` in `ring.h` computes it."""
    at = np.arange(words.shape[1], dtype=np.uint64)
    factors = np.uint64(0x9E3779B97F4A7C15) + at * np.uint64(0xBF58476D1CE4E5B8)
    return np.asarray((words * factors).sum(axis=1, dtype=np.uint64))


def marks(records: NDArray[Any]) -> NDArray[np.uint64]:
    """The words `mark` of records, from their numbers (`sequence`) and the rest of them."""
    words = records.copy()
    words["sequence"] &= (1 << _MARK) - 1
    check = check_of(words.view(np.uint64).reshape(len(words), RECORD.itemsize // 8))
    return np.asarray(words["sequence"] | check >> np.uint64(_MARK) << np.uint64(_MARK))


def header_check(head: bytes) -> int:
    """The check of a header's unchanging part."""
    words = np.frombuffer(head[: _HEADER.size - 8], "<u8").astype(np.uint64)
    return int(check_of(words[np.newaxis])[0])


_order = threading.Lock()


def _read_before() -> None:
    """What is read after this is not older than what was read before it.

    Processors may read in another order (aarch64). A lock that is released and taken again is a barrier for reads: the
    first do not pass its release, the later ones not its acquisition, and the two stay in order. Source: Arm
    Architecture Reference Manual, B2.3, Load-Acquire and Store-Release.
    """
    for _ in range(2):
        with _order:
            pass


class Facts(NamedTuple):
    """The id of a ring's process, its PID namespace, and how often recording was switched (paused if odd)."""

    process: int
    namespace: int
    turns: int


def facts_of(path: Path) -> Facts:
    """The facts in a ring's header; zeros for a ring that is not initialised. Raises OSError if it cannot be read."""
    with opened(path) as file:
        head = file.read(_COUNTERS_AT)
    if len(head) < _COUNTERS_AT or head[: len(MAGIC)] != MAGIC or header_check(head) != _HEADER.unpack_from(head)[-1]:
        return Facts(0, 0, 0)
    fields = _HEADER.unpack_from(head)
    return Facts(fields[3], fields[18], _LIVE.unpack_from(head, _LIVE_AT)[1])


def switch_recording(path: Path, *, on: bool) -> None:
    """Let a process resume or pause recording, from its next call on; the contents of the ring are kept. Raises
    OSError."""
    with opened(path, "r+b") as file, mmap.mmap(file.fileno(), mmap.PAGESIZE) as header:
        turn = _LIVE.unpack_from(header, _LIVE_AT)[1]
        if header[: len(MAGIC)] == MAGIC and (turn % 2 == 0) != on:
            struct.pack_into("<I", header, _LIVE_AT + 8, (turn + 1) % 2**32)


def _parse(path: Path, file: BinaryIO, last: int | None) -> Ring:
    size = os.fstat(file.fileno()).st_size
    live = os.pread(file.fileno(), _LIVE.size, _LIVE_AT)
    _read_before()  # the contexts, texts and records of which it tells
    head = os.pread(file.fileno(), _HEADER_BYTES, 0)
    if size > _MOST_BYTES or len(head) < _COUNTERS_AT or head[:8] != MAGIC:
        raise FormatError(f"{path}: not a ring of the light recorder, or one that is not initialised")
    (_, version, header_bytes, process, record_bytes, capacity, places, chain, names_at, pairs_at, records_at,
     stamps_at, texts_at, place_bytes, brackets_at, bracket_count, start, start_utc, namespace, parent, pair_count,
     program, check,
     ) = _HEADER.unpack_from(head)  # fmt: skip
    if version != VERSION or record_bytes != RECORD.itemsize:
        raise FormatError(f"{path}: the ring has version {version}; this version of intertoken reads version {VERSION}")
    if check != header_check(head):
        raise FormatError(f"{path}: the header is damaged, or not complete yet")
    written, _, _, text_bytes, contexts_used = _LIVE.unpack(live)
    parts = (header_bytes, names_at, pairs_at, records_at - pair_count * PAIR.itemsize)
    if list(parts) != sorted(parts) or records_at + capacity * RECORD.itemsize > stamps_at:
        raise FormatError(f"{path}: the parts of the ring overlap")
    if pairs_at - names_at > _MOST_NAMES or capacity > _MOST_RECORDS or max(map(abs, (start, start_utc))) > _MOST_NS:
        raise FormatError(f"{path}: the header is damaged")
    if not capacity or contexts_used > _CONTEXTS or stamps_at > size:
        raise FormatError(f"{path}: the header states {stamps_at} bytes, but the file has {size}")
    names = os.pread(file.fileno(), pairs_at - names_at, names_at).decode().split("\0\0")
    calls, counter_names = names[0].split("\0"), [name for name in names[1].split("\0") if name]
    counts = struct.unpack_from(f"<{len(counter_names)}Q", head, _COUNTERS_AT)
    at = _COUNTERS_AT + len(counter_names) * 8
    facts = [_FACTS.unpack_from(head, at + i * _FACTS.size) for i in range(contexts_used)]
    if bracket_count > _MOST_BRACKETS or brackets_at + bracket_count * BRACKET.itemsize > place_bytes:
        raise FormatError(f"{path}: the parts of a context overlap")
    pairs = _read(file, PAIR, pair_count, pairs_at)
    stamps, chains, brackets = [], [], []
    for number, (_, _, has_stamps, _, _) in enumerate(facts):
        where = stamps_at + number * place_bytes
        stamped = _read(file, STAMP, places + chain if has_stamps else 0, where)
        stamps.append(_in_order(stamped[:places]))
        chains.append(_in_order(stamped[places:]))
        brackets.append(_brackets(_read(file, BRACKET, bracket_count if has_stamps else 0, where + brackets_at), pairs))
    whole, lost = _whole(file, records_at, capacity, min(written, _MOST_WRITTEN), last)
    sites = _take_sites(whole)
    records = _in_ns(whole[whole["call"] < len(calls)], pairs, ("begin", "end"))
    is_range = np.array([name.startswith(_RANGES) for name in calls], bool)[records["call"]]
    _read_before()  # the texts to which records point
    texts = _texts(file, texts_at, text_bytes) if text_bytes else None
    return Ring(
        path, process, parent, namespace, spelled(_text(program)), start, start_utc, calls,
        dict(zip(counter_names, counts, strict=True)), written, capacity, lost, records[~is_range], records[is_range],
        texts, stamps, chains, places,
        [Context(device, spelled(_text(name)), bool(has), uuid) for _, device, has, uuid, name in facts], brackets,
        sites,
    )  # fmt: skip


def _take_sites(records: NDArray[Any]) -> NDArray[Any]:
    """The call sites of records; clears them from the records' thread ids."""
    site = records["thread"] >> _SITE_SHIFT
    rows = np.flatnonzero(site)
    sites = np.empty(len(rows), SITE)
    sites["sequence"], sites["site"] = records["sequence"][rows], site[rows]
    records["thread"] &= (1 << _SITE_SHIFT) - 1
    return sites


def _texts(file: BinaryIO, at: int, size: int) -> RingTexts:
    content = _read(file, np.dtype(np.uint8), size, at + _TEXTS_AT)
    head = _read(file, np.dtype(np.uint8), 8 + _DOMAINS * _DOMAIN_NAME, at).tobytes()
    names = [_text(head[8 + i * _DOMAIN_NAME : 8 + (i + 1) * _DOMAIN_NAME]) for i in range(_DOMAINS)]
    return RingTexts(struct.unpack_from("<Q", head)[0], content, names)


def _text(padded: bytes) -> str:
    return padded.partition(b"\0")[0].decode(errors="replace")


def _read(file: BinaryIO, kind: np.dtype[Any], count: int, at: int) -> NDArray[Any]:
    """The current contents of a part of the file. Raises ValueError if it is too short."""
    wanted = count * kind.itemsize
    content = os.pread(file.fileno(), wanted, at) if at + wanted <= os.fstat(file.fileno()).st_size else b""
    if len(content) < wanted:
        raise ValueError(f"{wanted} bytes at offset {at} are missing")
    return np.frombuffer(content, kind)


def _whole(file: BinaryIO, at: int, capacity: int, written: int, last: int | None) -> tuple[NDArray[Any], int]:
    """The last records, in order, that are complete, and the number of those that are not."""
    count = min(written, capacity, written if last is None else last)
    first = (written - count) % capacity
    to_the_end = min(count, capacity - first)
    parts = ((to_the_end, at + first * RECORD.itemsize), (count - to_the_end, at))
    records = np.concatenate([_read(file, RECORD, *part) for part in parts])
    numbers = np.arange(written - count + 1, written + 1, dtype=np.uint64)
    is_whole = (records["sequence"] ^ numbers) & np.uint64((1 << _MARK) - 1) == 0
    is_whole &= marks(records) == records["sequence"]
    records["sequence"] = numbers
    return np.asarray(records[is_whole]), count - int(is_whole.sum())


def _brackets(brackets: NDArray[Any], pairs: NDArray[Any]) -> NDArray[Any]:
    """The brackets that are complete, in order."""
    words = brackets.view(np.uint64).reshape(len(brackets), BRACKET.itemsize // 8)
    whole = brackets[(words[:, 0] > 0) & (check_of(words[:, :3]) == words[:, 3]) & (brackets["time"] < _MOST_WRITTEN)]
    timed = _in_ns(whole, pairs, ("before", "after"))
    return timed[np.argsort(timed["before"], kind="stable")]


def _in_ns(records: NDArray[Any], pairs: NDArray[Any], columns: tuple[str, str]) -> NDArray[Any]:
    """Convert the ticks in these columns to ns of CLOCK_MONOTONIC; extrapolates before the first and after the last
    pair."""
    is_whole = check_of(np.stack([pairs["tick"], pairs["monotonic"].view(np.uint64)], axis=1)) == pairs["check"]
    known = _apart(np.sort(pairs[is_whole & (pairs["monotonic"] != 0)], order="tick"))
    if len(known) < 2 or known["tick"][0] == known["tick"][-1]:
        return records[:0]
    tick, ns = known["tick"].astype(np.int64), known["monotonic"]
    converted = records.copy()
    for name in columns:
        at = np.clip(np.searchsorted(tick, converted[name], side="right") - 1, 0, len(known) - 2)
        with np.errstate(all="ignore"):  # damaged pairs
            pace = (ns[at + 1] - ns[at]) / (tick[at + 1] - tick[at])
            converted[name] = ns[at] + np.rint((converted[name] - tick[at]) * pace).astype(np.int64)
    is_time = [(converted[name] > -_MOST_NS) & (converted[name] < _MOST_NS) for name in columns]
    return np.asarray(converted[is_time[0] & is_time[1]])


def _apart(pairs: NDArray[Any]) -> NDArray[Any]:
    """The pairs without those that follow another too soon to tell how fast the ticks are."""
    kept: list[int] = []
    for row, ns in enumerate(pairs["monotonic"].tolist()):
        if len(kept) < 2 or ns - pairs["monotonic"][kept[-1]] >= _PAIRS_APART_NS:
            kept.append(row)
        elif row == len(pairs) - 1:
            kept[-1] = row  # the last one spans the most
    if len(kept) > 2 and pairs["monotonic"][kept[1]] - pairs["monotonic"][kept[0]] < _PAIRS_APART_NS:
        del kept[1]
    return np.asarray(pairs[kept])


def _in_order(stamps: NDArray[Any]) -> NDArray[Any]:
    """The written stamps, sorted by device time; a place that was never written has no sequence."""
    written = stamps[stamps["word"] >> _SEQUENCE != 0]
    return np.asarray(written[np.argsort(written["time"], kind="stable")])


def nvtx_table(ring: Ring, notes: list[str], last: int = 0) -> pd.DataFrame:
    """Build the nvtx table. Ranges still open end with the last event of the ring, or with what else was recorded of
    the process (`last`, ns of CLOCK_MONOTONIC); `notes` says how many, and how many are left out without their texts.
    """
    events, names = ring.ranges, np.array(ring.calls or [""])
    if ring.texts is None or not len(events):
        return pd.DataFrame()
    what = names[events["call"]]
    opened, closed = _nested(events, what == "nvtx_push", what == "nvtx_pop")
    started, ended = _numbered(events, what == "nvtx_start", what == "nvtx_end")
    marks = np.flatnonzero(what == "nvtx_mark")
    rows = np.concatenate([opened, started, marks])
    ends = np.concatenate([closed, ended, marks])
    last = max([last, *(int(part["end"].max()) for part in (ring.records, events) if len(part))])
    is_open = ends == MISSING
    kinds = np.repeat(["push/pop", "start/end", "mark"], [len(opened), len(started), len(marks)])
    chosen = events[rows]
    text, is_gone = _decoded(ring.texts, chosen)
    for count, words in ((is_open.sum(), "were still open at the end; they end with the recording"),
                         (is_gone.sum(), "are left out, because later ones overwrote their texts")):  # fmt: skip
        if count:
            notes.append(f"process {ring.process} ({ring.program}): {count} NVTX ranges {words}")
    has_color, category = chosen["stream"] >> 32 & 1, (chosen["stream"] >> 33).astype(np.int64)
    return pd.DataFrame({
        "start": chosen["begin"], "end": np.where(is_open, last, events["begin"][ends]), "process": ring.process,
        "thread": chosen["thread"].astype(np.int64), "text": text,
        "kind": pd.Categorical(kinds, categories=list(NVTX_KINDS)),
        "domain": np.array(ring.texts.domains)[chosen["context"] % len(ring.texts.domains)],
        "category": np.where(category == 0, MISSING, category),
        "color": np.where(has_color == 1, (chosen["stream"] & 0xFFFFFFFF).astype(np.int64), MISSING),
        "payload": _payloads(chosen),
    })[~is_gone]  # fmt: skip


def _nested(events: NDArray[Any], is_push: Bools, is_pop: Bools) -> tuple[Ints, Ints]:
    """The positions of pushes and of their pops; MISSING for a missing pop.

    Both have the same thread, domain, recording period and nesting level. A pop whose push was overwritten is ignored.
    """
    rows = np.flatnonzero(is_push | is_pop)
    frame = pd.DataFrame({"row": rows, "rise": np.where(is_push[rows], 1, -1)})
    frame = frame.assign(**{name: events[name][rows] for name in ("thread", "context", "graph")})
    level = frame.groupby(["thread", "context", "graph"], sort=False)["rise"].cumsum()
    frame["level"] = level + (frame["rise"] < 0)
    following = frame.groupby(["thread", "context", "graph", "level"], sort=False)[["row", "rise"]].shift(-1)
    pushes, pops = frame[frame["rise"] > 0], following["row"].where(following["rise"] < 0)
    return pushes["row"].to_numpy(np.int64), pops[pushes.index].fillna(MISSING).to_numpy(np.int64)


def _numbered(events: NDArray[Any], is_start: Bools, is_end: Bools) -> tuple[Ints, Ints]:
    """The positions of start/end ranges, which any thread may end, and of their ends, by number."""
    rows, ends = np.flatnonzero(is_start), np.flatnonzero(is_end)
    end_of = pd.Series(ends, events["number"][ends])
    ended = end_of[~end_of.index.duplicated()].reindex(events["number"][rows])
    return rows.astype(np.int64), ended.fillna(MISSING).to_numpy(np.int64)


def _decoded(texts: RingTexts, events: NDArray[Any]) -> tuple[NDArray[np.object_], NDArray[np.bool_]]:
    """The texts, and which of them were overwritten; each distinct text is decoded once."""
    strings = np.full(len(events), "", object)
    at, length, size = events["object"], events["result"], len(texts.content)
    is_gone = texts.end > at + np.uint64(size)
    for count in np.unique(length[~is_gone & (length > 0)]).tolist():
        rows = np.flatnonzero(~is_gone & (length == count))
        places = (at[rows, None] + np.arange(count, dtype=np.uint64)) % np.uint64(size)
        different, which = np.unique(texts.content[places], axis=0, return_inverse=True)
        decoded = np.array([line.tobytes().decode(errors="replace") for line in different], object)
        strings[rows] = decoded[which.ravel()]
    return strings, np.asarray(is_gone)


def _payloads(events: NDArray[Any]) -> NDArray[np.float64]:
    """The payloads as numbers; NaN without one."""
    bits = np.ascontiguousarray(events["bytes"])
    payloads = np.full(len(events), np.nan)
    for number, kind in enumerate(_PAYLOADS, start=1):
        rows = events["copy_kind"] == number
        payloads[rows] = bits.view(kind)[:: bits.itemsize // np.dtype(kind).itemsize][rows]
    return payloads


SETTINGS: Final = "cupti"
"""The file in a folder that makes the library record through CUPTI (`cupti_run`)."""

_PREFIX: Final = "intertoken-light-"
_MEMORY: Final = Path("/dev/shm")
_EVERY_S: Final = 1.0
_BLOCK: Final = bytes(1 << 18)
_LARGEST_FILE: Final = 1 << 31
_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # fallocate(2)


@contextmanager
def folder(*, large: bool = False) -> Iterator[Path]:
    """Create a folder for rings, in memory, or if they are `large`, where there is the most free space. It is removed
    when the block succeeds; if the block fails, the rings are kept."""
    base = _MEMORY if os.access(_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    if large:
        base = max(base, Path(tempfile.gettempdir()), key=_free_bytes)
    made = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
    with _removed_on_success(made, lock_folder(made)):
        yield made


@contextmanager
def taken(left: Path) -> Iterator[None]:
    """Take over a folder that a recorder left behind; it is removed when the block succeeds. Raises OSError if it is
    not such a folder, or its recorder is still running."""
    with _removed_on_success(left, take_folder(left)):
        yield


@contextmanager
def _removed_on_success(rings: Path, lock: int) -> Iterator[None]:
    is_over = False
    try:
        yield
        is_over = True
    finally:
        if is_over or not has_rings(rings):
            shutil.rmtree(rings, ignore_errors=True)
        os.close(lock)


def has_rings(rings: Path) -> bool:
    """Whether the folder contains rings."""
    return any(rings.glob("*.ring"))


def left_folders() -> list[Path]:
    """This user's folders with rings but without a running recorder. Folders without rings are removed."""
    folders = []
    for left in sorted(_in_bases(f"{_PREFIX}*")):
        with suppress(OSError):  # its recorder is running, or it is not ours
            if left.lstat().st_uid != os.geteuid():
                continue
            lock = take_folder(left)
            if has_rings(left):
                folders.append(left)
            else:
                shutil.rmtree(left, ignore_errors=True)
            os.close(lock)
    return folders


def running_rings() -> list[Path]:
    """The rings of this user's processes that are running under a light recorder."""
    rings = []
    for path in _in_bases(f"{_PREFIX}*/*.ring"):
        with suppress(OSError):
            is_light = not (path.parent / SETTINGS).exists()
            if is_light and path.stat().st_uid == os.geteuid() and not _has_ended(path):
                rings.append(path)
    return sorted(rings)


@contextmanager
def kept_small(rings: Path) -> Iterator[None]:
    """During the block, free the unused memory in rings of processes that have ended."""
    done = set[Path]()

    def look() -> None:
        for path in set(rings.glob("*.ring")) - done:
            with suppress(OSError):  # it belongs to another user
                if _has_ended(path):
                    trim(path)
                    done.add(path)

    with repeating(look, _EVERY_S):
        yield


@contextmanager
def repeating(work: Callable[[], None], every_s: float) -> Iterator[None]:
    """During the block, do this work in a thread every so many seconds."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(every_s):
            work()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def trim(path: Path) -> None:
    """Free the memory of the parts of a ring that were never written: blocks of zeros become holes. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    with opened(path, "r+b") as file:
        for at, part in _written(file):
            if part == _BLOCK[: len(part)]:
                where = ctypes.c_int64(at), ctypes.c_int64(len(part))
                libc.fallocate(file.fileno(), _PUNCH_HOLE | _KEEP_SIZE, *where)


def copy_small(path: Path, target: Path) -> None:
    """Copy a ring without the parts that were never written. Raises OSError, also if that takes more than half of the
    free space."""
    with opened(path) as file, target.open("wb") as copy:
        if os.fstat(file.fileno()).st_blocks * 512 > _free_bytes(target.parent) // 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
        copy.truncate(os.fstat(file.fileno()).st_size)
        for at, part in _written(file):
            if part != _BLOCK[: len(part)]:
                os.pwrite(copy.fileno(), part, at)


def _written(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """The blocks of a ring that are not holes: offset and content. Raises OSError if the file is larger than a ring."""
    size, at = os.fstat(file.fileno()).st_size, 0
    if size > _LARGEST_FILE:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    while at < size:
        try:
            at = os.lseek(file.fileno(), at, os.SEEK_DATA) // len(_BLOCK) * len(_BLOCK)
        except OSError as none:
            if none.errno == errno.ENXIO:  # only a hole follows
                return
            raise
        yield at, os.pread(file.fileno(), len(_BLOCK), at)
        at += len(_BLOCK)


def _free_bytes(base: Path) -> int:
    space = os.statvfs(base)
    return space.f_bavail * space.f_frsize


def _in_bases(pattern: str) -> Iterator[Path]:
    return (path for base in {_MEMORY, Path(tempfile.gettempdir())} for path in base.glob(pattern))


def _has_ended(path: Path) -> bool:
    """Whether a ring's process has ended; False for one in another PID namespace (a container), as that is unknown."""
    facts = facts_of(path)
    is_known = facts.namespace == os.stat("/proc/self/ns/pid").st_ino
    return is_known and not Path(f"/proc/{facts.process}").exists()
