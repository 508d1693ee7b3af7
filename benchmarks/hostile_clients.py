"""Two hostile clients for `dashboard_soak.py --hostile`: one uploads files, one sends requests to callbacks.

They have the token, connect only to 127.0.0.1, and send at most `UPLOADS_PER_S` and `CALLBACKS_PER_S`. Their payloads
are those of the tests of readers, uploads and callbacks. The reader of some uploads is killed, as by a system out of
memory. Each upload must leave nothing behind: no process, no temporary folder, no part of the file.
"""

from __future__ import annotations

import gzip
import http.client
import io
import json
import os
import random
import signal
import stat
import sys
import threading
import time
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from dashboard_latency import children
from hypothesis import HealthCheck, Phase, given, seed, settings

sys.path.insert(0, str(Path(__file__).parents[1]))
from dashboard.serving.uploads import MOST_KEPT
from tests.fuzz.callbacks import PLACES
from tests.fuzz.hostile import Requests
from tests.tracer.hostile import HARMLESS, REFUSED, REFUSED_JSON
from tests.tracer.nsys_exports import RECORDING, tampered
from tests.tracer.planted import PLANTED

EXPORT: Final = Path(__file__).parents[1] / "tests" / "tracer" / "data" / "llama1b-saaas-graph.sqlite.gz"
UPLOADS_PER_S: Final = 2.0
CALLBACKS_PER_S: Final = 10.0
KILLED: Final = 0.1
"""Share of uploads whose reader is killed."""
_PATIENCE: Final = 120.0  # s for an answer
_QUIET: Final = 10.0  # s until the remains of an upload must be gone
_ANSWERS: Final = frozenset({200, 201, 204, 400, 404, 413, 415, 422})
_NAMES: Final = (
    "../../etc/passwd",
    "<img src=x onerror=alert(1)>",
    "\u202egnp",
    "llama1b-sccc-graph",
    "=1+1",
    "x" * 999,
)


@dataclass
class Seen:
    """The answers to a client: counts by status, problems, and the longest wait (s)."""

    statuses: Counter[str] = field(default_factory=Counter)
    problems: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0

    def facts(self) -> dict[str, Any]:
        """Return the facts for JSON."""
        return {
            "statuses": dict(sorted(self.statuses.items())),
            "slowest_s": round(self.slowest_s, 2),
            "problems": dict(self.problems),
        }


@dataclass(frozen=True)
class Target:
    """The attacked server.

    Attributes:
        port: its port on 127.0.0.1.
        cookie: the cookie of a session.
        pid: its process id.
        folder: folder for the temporary files of the server and its readers only.
    """

    port: int
    cookie: str
    pid: int
    folder: Path

    def send(self, seen: Seen, method: str, path: str, data: bytes = b"", kind: str = "") -> tuple[int, bytes]:
        """Send a request; the status is 0 if there is no answer."""
        connection, start = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_PATIENCE), time.perf_counter()
        try:
            connection.request(method, path, data, {"Cookie": self.cookie, **({"Content-Type": kind} if kind else {})})
            answer = connection.getresponse()
            status, text = answer.status, answer.read()
        except (OSError, http.client.HTTPException) as problem:
            status, text = 0, f"{type(problem).__name__}: {problem}".encode()
        finally:
            connection.close()
        seen.slowest_s = max(seen.slowest_s, time.perf_counter() - start)
        seen.statuses[str(status)] += 1
        if status not in _ANSWERS or b"Traceback" in text:
            seen.problems[f"{method} {path.split('?')[0][:40]}: {status} {text[:150]!r}"] += 1
        return status, text

    def upload(self, seen: Seen, name: str, file: Path, is_killed: bool) -> bool:
        """Send a file in slices, optionally killing its reader; return whether it was accepted."""
        size = file.stat().st_size
        status, text = self.send(seen, "POST", "/upload?" + urlencode({"name": name, "size": size}))
        if status != 201:
            return False
        begun = json.loads(text)
        with file.open("rb") as slices:
            for at in range(0, size, begun["slice"]):
                if is_last := at + begun["slice"] >= size:
                    killer = threading.Timer(random.uniform(0, 0.3), self._kill_readers)
                    if is_killed:
                        killer.start()
                status, _ = self.send(seen, "PUT", f"/upload/{begun['id']}?at={at}", slices.read(begun["slice"]))
                if is_last and is_killed:
                    killer.join()
        return status == 200

    def _kill_readers(self) -> None:
        for pid, command in children(self.pid).items():
            if "spawn_main" in command:
                os.kill(pid, signal.SIGKILL)

    def left_over(self) -> str:
        """Describe everything except the server's own directory, its two readers and the uploads that it keeps.

        A reader killed while idle is replaced when the next recording arrives.
        """
        folders = list(self.folder.iterdir())
        own = [folder for folder in folders if folder.name.startswith("intertoken-uploads-")]
        parts = [len(list((folder / "uploads" / ".parts").iterdir())) for folder in own]
        kept = [sum(not each.name.startswith(".") for each in (folder / "uploads").iterdir()) for folder in own]
        unfinished = [path.name for folder in own for path in folder.glob("read-*/new-*")]
        commands = children(self.pid).values()
        others = [each for each in commands if each and "spawn_main" not in each and "resource_tracker" not in each]
        readers = sum("spawn_main" in command for command in commands)
        if (len(folders), len(own), parts, kept, unfinished, others) != (1, 1, [0], [MOST_KEPT], [], []) or readers > 2:
            return (
                f"{[folder.name[:18] for folder in folders]}, {parts} parts, {kept} of {MOST_KEPT} uploads, "
                f"{len(unfinished)} unfinished in the cache, {readers} readers, others: {others}"
            )
        return ""


def fill(target: Target, place: Path) -> None:
    """Upload as many recordings as the server keeps, so that later ones replace others and add nothing.

    Raises:
        RuntimeError: an upload was rejected.
    """
    file = place / "kept.sqlite"
    file.write_bytes(gzip.decompress(EXPORT.read_bytes()))
    for number in range(MOST_KEPT):
        if not target.upload(Seen(), f"kept-{number}.sqlite", file, is_killed=False):
            raise RuntimeError("the server rejected a recording of the tests")


def upload(target: Target, files: list[Path], seconds: float) -> dict[str, Any]:
    """Upload files repeatedly until the time is over, to a server that has been filled."""
    end, seen, draw, taken = time.monotonic() + seconds, Seen(), random.Random(0), 0
    files = list(files)
    uploads = killed = 0
    while time.monotonic() < end:
        draw.shuffle(files)
        for file in files:
            start = time.monotonic()
            if start > end:
                break
            name = f"{draw.choice(_NAMES)}{''.join(file.suffixes)}" if draw.random() < 0.3 else file.name
            is_killed = draw.random() < KILLED
            taken += target.upload(seen, name, file, is_killed)
            uploads, killed = uploads + 1, killed + is_killed
            while (left := target.left_over()) and time.monotonic() < start + _QUIET:
                time.sleep(0.1)
            if left:
                seen.problems[f"left over after {file.name}: {left}"] += 1
            time.sleep(max(0.0, start + 1 / UPLOADS_PER_S - time.monotonic()))
    return {"uploads": uploads, "files": len(files), "taken": taken, "reader_killed": killed, **seen.facts()}


def ask_callbacks(target: Target, runs: list[str], seconds: float) -> dict[str, Any]:
    """Send valid and invalid requests to all callbacks of all pages until the time is over."""
    end, seen, sent = time.monotonic() + seconds, Seen(), 0
    callbacks = [
        (page, one)
        for page in PLACES
        for one in json.loads(target.send(Seen(), "GET", f"/{page}_dash-dependencies")[1])
        if one["clientside_function"] is None
    ]
    bodies = Requests.drawn(Requests(callbacks, runs, ["none"]))

    def round_of(number: int) -> None:
        @seed(number)
        @settings(max_examples=200, deadline=None, database=None, suppress_health_check=[*HealthCheck],
                  phases=[Phase.generate])  # fmt: skip
        @given(bodies)
        def requests(request: tuple[str, Any]) -> None:
            nonlocal sent
            start = time.monotonic()
            if start > end:
                return
            page, body = request
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            target.send(seen, "POST", f"/{page}_dash-update-component", data, "application/json")
            sent += 1
            time.sleep(max(0.0, start + 1 / CALLBACKS_PER_S - time.monotonic()))

        requests()

    number = 0
    while time.monotonic() < end:
        round_of(number)
        number += 1
    return {"requests": sent, **seen.facts()}


def corpus(place: Path) -> Iterator[Path]:
    """Create the hostile files in a new directory."""
    place.mkdir()
    draw = random.Random(0)
    makers: tuple[Callable[[Path, random.Random], Iterator[Path]], ...] = (_json, _sqlite, _bombs, _archives)
    for number, make in enumerate(makers):
        folder = place / str(number)
        folder.mkdir()
        yield from make(folder, draw)


def _written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def _json(place: Path, _draw: random.Random) -> Iterator[Path]:
    """Yield long numbers, unterminated strings and deep nesting."""
    for number, (text, _said) in enumerate(REFUSED_JSON):
        yield _written(place / f"refused{number}.json", text.encode())
        yield _written(place / f"refused{number}.json.gz", gzip.compress(text.encode()))
    yield _written(place / "killer.json", b'{"traceEvents":[{"ph":"X","ts":' + b"1" * 4301 + b"}]}")
    yield _written(place / "lists.json", b'{"traceEvents":[' + b"[" * 500_000)
    yield _written(place / "objects.json", b'{"traceEvents":[' + b'{"a":' * 200_000)
    yield _written(place / "page.html", b"<script>alert(1)</script>")


def _sqlite(place: Path, draw: random.Random) -> Iterator[Path]:
    """Yield tampered, truncated and corrupted databases."""
    every = [*HARMLESS.values(), *(statements for statements, _ in REFUSED.values())]
    rows = {name: table for name, table in RECORDING.items() if name != "PROCESSES"}  # some schemas define it
    for number, statements in enumerate(every):
        yield tampered(place / f"tampered{number}.sqlite", *statements, rows=rows)
    whole = gzip.decompress(EXPORT.read_bytes())
    for number in range(6):
        yield _written(place / f"cut{number}.sqlite", whole[: draw.randrange(16, len(whole))])
    for number in range(12):
        changed = bytearray(whole)
        for _ in range(20):
            changed[draw.randrange(16, len(changed))] = draw.randrange(256)
        yield _written(place / f"changed{number}.sqlite", bytes(changed))


def _bombs(place: Path, _draw: random.Random) -> Iterator[Path]:
    """Yield compression bombs above and below the upload limit."""
    for name, megabytes in (("beyond.json.gz", 2_100), ("below.json.gz", 200)):
        packer, blanks = zlib.compressobj(9, wbits=31), b" " * 10**6
        parts = [packer.compress(b'{"traceEvents":['), *(packer.compress(blanks) for _ in range(megabytes))]
        yield _written(place / name, b"".join([*parts, packer.flush()]))
    yield _written(place / "members.json.gz", gzip.compress(b" " * 10**6) * 2_100)
    with zipfile.ZipFile(place / "beyond.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("NVTX_EVENTS.parquet", "b"):
            with archive.open(name, "w") as member:
                for _ in range(1_100):
                    member.write(bytes(10**6))
    yield place / "beyond.zip"


def _archives(place: Path, draw: random.Random) -> Iterator[Path]:
    """Yield zips of special files, of names outside the archive, and of run directories with damaged parts."""
    for name, make in PLANTED.items():
        made = make(place / name)
        yield _zip(place / f"{name}.zip", _members(made)) if made.is_dir() else made
    good = _members(place / "parquetdir")
    for name, kind in (("fifo", stat.S_IFIFO), ("link", stat.S_IFLNK), ("device", stat.S_IFCHR)):
        special = zipfile.ZipInfo("run.json")
        special.external_attr = (kind | 0o777) << 16
        yield _zip(place / f"{name}.zip", good, (special, b"/etc/passwd"))
    for number, name in enumerate(("../../out.parquet", "/etc/x", "a/b/c/d/e", "a\\..\\b", "a\u202eb")):
        yield _zip(place / f"away{number}.zip", {**good, name: b"x"})
    yield _zip(place / "many.zip", {str(number): b"" for number in range(2_001)})
    whole = _zip(place / "whole.zip", good).read_bytes()
    yield _written(place / "cut.zip", whole[: len(whole) // 2])
    for number, text in enumerate((b"[" * 100_000, b'{"configuration":{"batch":' + b"9" * 4301 + b"}}", b"\xff" * 99)):
        yield _zip(place / f"run{number}.zip", {**good, "run.json": text})
        yield _zip(place / f"graph{number}.zip", {**good, "graph.json": text})
    for number in range(12):
        name = draw.choice([name for name in good if name.endswith(".parquet")])
        changed = bytearray(good[name])
        for _ in range(20):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        yield _zip(place / f"changed{number}.zip", {**good, name: bytes(changed)})


def _members(directory: Path) -> dict[str, bytes]:
    return {str(file.relative_to(directory)): file.read_bytes() for file in directory.rglob("*") if file.is_file()}


def _zip(path: Path, members: dict[str, bytes], *more: tuple[zipfile.ZipInfo, bytes]) -> Path:
    named = {info.filename for info, _ in more}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            if name not in named:
                archive.writestr(name, data)
        for info, data in more:
            archive.writestr(info, data)
    return _written(path, buffer.getvalue())
