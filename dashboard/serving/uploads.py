"""Uploaded recordings: written to disk in slices, checked when complete, and removed when the server ends.

Slices, because a WSGI server holds a request's body until it is complete: no request is large, whatever the size of the
file, a proxy's usual limit of 1 MiB suffices, and received data survives a broken connection. (Dash's own dcc.Upload
holds the file in memory, as base64.)
"""

from __future__ import annotations

import re
import secrets
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import IO, Any, Final

from flask import Flask, request

from dashboard.reading.store import RunStore
from dashboard.serving.unpack import accept
from dashboard.text import plain, safe_name
from tracer.errors import FormatError, TraceError, UsageError

SLICE: Final = 1 << 20  # at most so many bytes in one request
MOST_KEPT: Final = 50  # at most so many uploaded recordings, from all senders together
_MOST_OPEN: Final = 16
_PATIENCE, _FIRST = 120.0, 10.0
"""Seconds after which a stalled upload is dropped, and after which one that has sent nothing may be replaced."""
_UNPACKED: Final = ".unpacked"  # no upload has this name, see `safe_name`
_DIGITS: Final = re.compile("[0-9]{1,18}")  # of a size or an offset
_SPARE: Final = 256 << 20  # bytes of the disk that uploads leave free
Answer = tuple[dict[str, Any], int]


@dataclass
class Upload:
    """An upload: its file, size (bytes), sender, time of the last data (s), and what has arrived."""

    part: Path
    size: int
    sender: str
    touched: float
    received: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class Inbox:
    """The directory of uploads.

    Args:
        folder: private to this server; its recordings are part of the store.
        limit: maximum number of bytes of a recording, packed and unpacked.
        clock: seconds.
    """

    def __init__(
        self, folder: Path, limit: int, store: RunStore, clock: Callable[[], float] = time.monotonic
    ) -> None:  # fmt: skip
        self._folder, self._limit, self._store, self._clock = folder, limit, store, clock
        self._parts = folder / ".parts"  # hidden: the store does not look into it
        self._parts.mkdir(exist_ok=True)
        self._lock = threading.Lock()
        self._open: dict[str, Upload] = {}
        self._taken: set[Path] = set()
        self._kept: dict[Path, str] = {}  # recordings and their senders, the latest last

    def begin(self, name: str, size: int, sender: str = "") -> str:
        """Start an upload; return its id.

        If there is no room, an upload is dropped: one by a sender of more simultaneous files than this sender, or else
        one without any data so far.

        Raises:
            UsageError: too large, empty, or too many at the same time.
        """
        if size > self._limit:
            raise UsageError(f"has {size:,} bytes, the limit is {self._limit:,} (--upload-limit)")
        if size <= 0:
            raise UsageError("is empty")
        with self._lock:
            for key in [k for k, u in self._open.items() if u.touched < self._clock() - _PATIENCE]:
                self._forget(key)
            while problem := self._lacks(size):
                if (other := self._dispensable(sender)) is None:
                    raise UsageError(problem)
                self._forget(other)
            key = secrets.token_urlsafe(16)
            part = self._parts / key / safe_name(name)
            part.parent.mkdir()
            self._open[key] = Upload(part, size, sender, self._clock())
        return key

    def _lacks(self, size: int) -> str | None:
        """The reason why this many more bytes do not fit; None if they do."""
        if len(self._open) >= _MOST_OPEN:
            return "too many simultaneous uploads; wait until one has finished"
        promised = sum(upload.size - upload.received for upload in self._open.values())
        if shutil.disk_usage(self._folder).free < size + promised + _SPARE:
            return "the server's disk has no room for it"
        return None

    def _dispensable(self, sender: str) -> str | None:
        """The upload dropped first to make room for one of this sender."""
        held = Counter(upload.sender for upload in self._open.values())
        greedy = [k for k, u in self._open.items() if held[u.sender] > held[sender] + 1]
        unsent = [k for k, u in self._open.items() if not u.received and u.touched <= self._clock() - _FIRST]
        if greedy:
            return min(greedy, key=lambda key: (-held[self._open[key].sender], self._open[key].touched))
        return min(unsent, key=lambda key: self._open[key].touched, default=None)

    def append(self, key: str, at: int, stream: IO[bytes]) -> int:
        """Add a slice at its offset; one that was already received is skipped. Returns the number of bytes received so
        far.

        Raises:
            KeyError: no such upload.
            UsageError: more data than announced, or the disk is full.
        """
        upload = self._open[key]
        with upload.lock:
            if at != upload.received:
                return upload.received
            data = stream.read(SLICE + 1)
            if len(data) > SLICE or at + len(data) > upload.size:
                self.cancel(key)
                raise UsageError("more data arrived than was announced")
            try:
                with upload.part.open("ab") as file:
                    file.write(data)
            except FileNotFoundError:  # it has just made room for another one
                raise KeyError(key) from None
            except OSError as problem:
                self.cancel(key)
                raise UsageError(f"the server cannot store it: {problem.strerror}") from None
            upload.received += len(data)
            upload.touched = self._clock()
            return upload.received

    def is_complete(self, key: str) -> bool:
        """Whether it is complete."""
        upload = self._open.get(key)
        return upload is not None and upload.received == upload.size

    def finish(self, key: str) -> str:
        """Turn a complete upload into one of the store's recordings; the key of its (first) run.

        Beyond `MOST_KEPT`, the oldest one of the sender with the most recordings is dropped.

        Raises:
            KeyError: no such upload.
            FormatError: not a readable recording. No part of it is kept.
        """
        with self._lock:
            upload = self._open.pop(key)
            target = self._unused(upload.part.name)
            self._taken.add(target)
        readable = []
        try:
            self._place(upload.part, target)
            self._store.refresh()
            runs = self._store.below(target)
            readable = [run for run in runs if run.recording is not None]
            if not readable:
                raise FormatError(runs[0].summary.problem if runs else f"{target.name}: holds no recording")
            self._keep(target, upload.sender)
            return readable[0].key
        except FormatError as problem:
            message = str(problem).replace(f"{upload.part.parent}/", "").replace(f"{self._folder}/", "")
            raise FormatError(message.removeprefix(f"{target.name}: ")) from None  # the reader knows which file it was
        finally:
            self._remove(upload)
            if not readable:
                self._drop(target)

    def _keep(self, target: Path, sender: str) -> None:
        """Keep a recording, and drop others to make room."""
        with self._lock:
            self._kept[target] = sender
            if len(self._kept) <= MOST_KEPT:
                return
            ((greedy, _),) = Counter(self._kept.values()).most_common(1)
            oldest = next(path for path, of in self._kept.items() if of == greedy)
            del self._kept[oldest]
        self._drop(oldest)

    def _drop(self, target: Path) -> None:
        shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)
        self._store.refresh()
        with self._lock:
            self._taken.discard(target)

    def cancel(self, key: str) -> None:
        """Drop an upload and its data."""
        with self._lock:
            self._forget(key)

    def _forget(self, key: str) -> None:
        if upload := self._open.pop(key, None):
            self._remove(upload)

    def _remove(self, upload: Upload) -> None:
        shutil.rmtree(upload.part.parent, ignore_errors=True)

    def _place(self, part: Path, target: Path) -> None:
        """Move a complete upload to where the store sees it, once it is checked in the process that will read it."""
        unpacked = part.with_name(_UNPACKED)  # out of the store's sight until it is whole
        if self._store.readers is None:
            accept(part, unpacked, self._limit)
        else:
            try:
                self._store.readers.do(part, accept, unpacked, self._limit)
            except TraceError as problem:
                raise FormatError(str(problem)) from None
        (unpacked if unpacked.exists() else part).rename(target)

    def _unused(self, name: str) -> Path:
        name = name[:-4] if name.lower().endswith(".zip") else name
        names = chain([name], (f"{number}-{name}" for number in count(2)))
        return next(place for name in names if (place := self._folder / name) not in self._taken)


def add_uploads(server: Flask, inbox: Inbox) -> None:
    """Answer POST /upload?name=&size= (a new one), PUT /upload/ID?at= (a slice) and DELETE /upload/ID."""

    @server.post("/upload")
    def begin() -> Answer:
        size = _number("size")
        if size is None:
            return {"error": "The size is not a number."}, 400
        try:
            key = inbox.begin(request.args.get("name", ""), size, request.remote_addr or "")
            return {"id": key, "slice": SLICE}, 201
        except UsageError as problem:
            return {"error": str(problem)}, 413

    @server.put("/upload/<key>")
    def append(key: str) -> Answer:
        at = _number("at")
        if at is None:
            return {"error": "The offset is not a number."}, 400
        try:
            received = inbox.append(key, at, request.stream)
            run = inbox.finish(key) if inbox.is_complete(key) else None
        except KeyError:
            return {"error": "This upload has expired; start it again."}, 404
        except UsageError as problem:
            return {"error": str(problem)}, 413
        except FormatError as problem:
            return {"error": plain(str(problem))}, 422
        return {"received": received, "run": run}, 200

    @server.delete("/upload/<key>")
    def cancel(key: str) -> Answer:
        inbox.cancel(key)
        return {}, 200


def _number(name: str) -> int | None:
    """A number of the request's address; None for anything but a few ASCII digits. `int` takes more than that."""
    text = request.args.get(name, "")
    return int(text) if _DIGITS.fullmatch(text) else None
