"""Any program under the light recorder: the library is preloaded into it and its children, and their rings are read.

The rings lie in memory (/dev/shm), in a folder of the user's own that goes when the recording is written. One that a
killed recorder left is removed by the next.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tracer import foreground
from tracer.errors import RecordError
from tracer.recorders.light import light_trace, read_rings
from tracer.recorders.light_library import library
from tracer.recorders.light_window import PAUSED, WHOLE, Window, switched
from tracer.trace import Trace

FOLDER: Final = "INTERTOKEN_LIGHT"
_PREFIX: Final = "intertoken-light-"
_MEMORY: Final = Path("/dev/shm")
_MOST_NAMES: Final = 6


@dataclass(frozen=True)
class Told:
    """What came of a run.

    Attributes:
        trace: what was recorded; None if nothing was.
        code: as `foreground.run` gives it.
        why: why nothing was recorded.
    """

    trace: Trace | None
    code: int
    why: str = ""


def record(command: Sequence[str], window: Window = WHOLE) -> Told:
    """Run a command in the foreground and read what it and its children left.

    Raises:
        RecordError: there is no library for this machine.
        OSError: the command cannot be started.
    """
    preloaded = library()
    with folder() as rings:
        given = environment(preloaded, rings)
        with switched(rings, window):
            code = foreground.run(command, environment=given if window.is_all else {**given, PAUSED: "1"})
        unread: list[str] = []
        found = [ring for ring in read_rings(rings, unread) if len(ring.records)]
        if not found:
            return Told(None, code, "; ".join([_why_nothing(rings), *unread]))
        trace = light_trace(found)
        trace.notes += unread
        return Told(trace, code)


def environment(preloaded: Path, rings: Path, base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of what is to be recorded; a library that the program preloads itself stays before ours.

    Raises:
        RecordError: the path of the library has a character that parts those of LD_PRELOAD (ld.so(8)).
    """
    if any(character in " :" for character in str(preloaded)):
        raise RecordError(
            f"{preloaded}: LD_PRELOAD takes no path with a blank or a colon; set XDG_CACHE_HOME to another"
        )
    before = base.get("LD_PRELOAD", "")
    return {**base, "LD_PRELOAD": f"{before}:{preloaded}" if before else str(preloaded), FOLDER: str(rings)}


@contextmanager
def folder() -> Iterator[Path]:
    """A folder for rings, gone when the block ends."""
    base = _MEMORY if os.access(_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    _clear_away(base)
    made = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=base))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def running_rings() -> list[Path]:
    """The rings of this user's processes that run under a recorder now."""
    found = []
    for path in (path for base in (_MEMORY, Path(tempfile.gettempdir())) for path in base.glob(f"{_PREFIX}*/*.ring")):
        with suppress(OSError):
            if path.stat().st_uid == os.geteuid() and Path(f"/proc/{path.name.partition('-')[0]}").exists():
                found.append(path)
    return sorted(found)


def _clear_away(base: Path) -> None:
    """Remove what recorders left that are gone. A program that goes on keeps its mapped ring."""
    for left in base.glob(f"{_PREFIX}*"):
        process = left.name.removeprefix(_PREFIX).partition("-")[0]
        with suppress(OSError):
            if process.isdigit() and left.lstat().st_uid == os.geteuid() and not Path(f"/proc/{process}").exists():
                shutil.rmtree(left, ignore_errors=True)


def _why_nothing(rings: Path) -> str:
    """What ran, and why nothing of it was recorded."""
    try:
        lines = (rings / "programs").read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return (
            "the library was preloaded into no program: the command is statically linked, runs with other rights "
            "(setuid, sudo), or clears LD_PRELOAD (env -i, a container)"
        )
    if any(rings.glob("*.ring")):
        return "no call of the CUDA driver that launches, copies or waits came while the window was open"
    full = [line.partition(" ")[2] for line in lines if "!" in line.partition(" ")[0]]
    if full:
        return f"there was no room for a ring in {rings.parent} when {full[0]} called the driver"
    names = list(dict.fromkeys(line.partition(" ")[2] for line in lines))
    shown = ", ".join(names[:_MOST_NAMES]) + (
        f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    )
    return f"{shown} ran, and made no call of the CUDA driver (libcuda.so.1) that launches, copies or waits"
