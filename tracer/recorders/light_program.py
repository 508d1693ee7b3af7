"""Records any program with the light recorder: preloads the library into it and its children and reads their rings.

Platform wheels contain the compiled library. Other installations contain only its C sources and compile them on first
use into the user's cache.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from platformdirs import user_cache_path

from tracer.errors import RecordError
from tracer.model.trace import Trace, add_pauses
from tracer.recorders import foreground
from tracer.recorders.cupti_library import INJECTION as NVTX
from tracer.recorders.cupti_library import is_cupti
from tracer.recorders.light import REFUSED, light_trace, read_rings
from tracer.recorders.light_folder import has_rings, kept_small
from tracer.recorders.native import compile as native
from tracer.recorders.window import WHOLE, Window, pauses_between, profiler_spans, switched
from tracer.text import spelled

FOLDER: Final = "INTERTOKEN_LIGHT"
SITES: Final = "INTERTOKEN_LIGHT_SITES"
_MOST_NAMES: Final = 6
_NO_CALL: Final = "made no call of the CUDA driver (libcuda.so.1) that launches, copies or waits"
SHIPPED: Final = native.SOURCES / native.NAME


def library() -> Path:
    """The library for this machine, compiled now if necessary.

    Raises:
        RecordError: there is no library and no compiler, it does not load, or the system is not Linux.
    """
    if not sys.platform.startswith("linux"):
        raise RecordError("the light recorder preloads a library, which is possible only on Linux")
    found = SHIPPED if SHIPPED.is_file() else _compiled()
    try:
        ctypes.CDLL(str(found))
    except OSError as problem:
        raise RecordError(f"the recorder's library does not load on this machine: {problem}") from problem
    return found


def _compiled() -> Path:
    made = cached()
    if made.is_file():
        return made
    compiler = native.compiler()
    if compiler is None:
        raise RecordError(
            "the recorder's library is not compiled in this installation, and there is no C compiler (cc, gcc or "
            "clang on PATH, or CC); install one, or a wheel of intertoken for this machine"
        )
    new = made.with_suffix(f".{os.getpid()}")
    try:
        made.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        native.compile_library(new, compiler)
        new.rename(made)
    except native.CompileError as problem:
        raise RecordError(f"the recorder's library cannot be compiled: {problem}") from problem
    except OSError as problem:
        raise RecordError(f"{made.parent}: cannot be written: {problem.strerror or problem}") from problem
    return made


def cached() -> Path:
    """The path in the user's cache of the library compiled from these sources for this machine and its C library."""
    digest = hashlib.sha256("\0".join(platform.libc_ver()).encode())
    for source in sorted([*native.SOURCES.glob("*.[ch]"), *native.SOURCES.glob("*.py")]):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return user_cache_path("intertoken") / f"{digest.hexdigest()[:16]}-{os.uname().machine}-{native.NAME}"


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run.

    Attributes:
        trace: the recording; None if nothing was recorded.
        code: as returned by `foreground.run`.
        why: why nothing was recorded.
    """

    trace: Trace | None
    code: int
    why: str = ""


def record(
    command: Sequence[str], rings: Path, window: Window = WHOLE, *, call_sites: bool = False,
    pass_fds: Sequence[int] = (),
) -> Outcome:  # fmt: skip
    """Run a command in the foreground and read the rings that it and its children left in a folder.

    Args:
        command: program and arguments.
        rings: the folder.
        window: what of the run to record.
        call_sites: whether to keep the stack of each call.
        pass_fds: file descriptors that the command inherits.

    Raises:
        RecordError: there is no library for this machine, or the command cannot be started.
    """
    given = environment(library(), rings) | ({SITES: "1"} if call_sites else {})
    code = run(command, given, rings, window, pass_fds)
    unread: list[str] = []
    trace = read_folder(rings, unread)
    if trace is not None and window.is_programs:
        add_pauses(trace, pauses_between(profiler_spans(trace)))
    return Outcome(trace, code, "" if trace else "; ".join([why_nothing(rings), *unread]))


def run(
    command: Sequence[str], environment: Mapping[str, str], rings: Path, window: Window, pass_fds: Sequence[int] = ()
) -> int:
    """Run a command in the foreground, recorded while the window is open; returns as `foreground.run`.

    Raises:
        RecordError: the command cannot be started.
    """
    with switched(rings, window), kept_small(rings):
        try:
            return foreground.run(command, pass_fds, {**environment, **window.variables})
        except OSError as problem:
            raise RecordError(f"{command[0]} cannot be run: {problem.strerror or problem}") from problem


def read_folder(rings: Path, unread: list[str] | None = None) -> Trace | None:
    """Read the recording in a folder; None if it is empty. Notes on missing rings go to the trace and to `unread`."""
    missing = [] if unread is None else unread
    found = [ring for ring in read_rings(rings, missing) if len(ring.records)]
    if not found:
        return None
    trace = light_trace(found)
    trace.notes += missing + without_room(rings)
    return trace


def environment(preloaded: Path, rings: Path, base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of the program to record. A library that is already preloaded stays before ours, and an existing
    NVTX injection library is kept, unless it is libcupti, which the CUPTI recorder of this process has set for itself.

    Raises:
        RecordError: the path of the library contains a separator of LD_PRELOAD (ld.so(8)).
    """
    if any(character in " :" for character in str(preloaded)):
        raise RecordError(
            f"{preloaded}: LD_PRELOAD does not support spaces or colons in paths; set XDG_CACHE_HOME to another folder"
        )
    before = base.get("LD_PRELOAD", "")
    given = {"LD_PRELOAD": f"{before}:{preloaded}" if before else str(preloaded), FOLDER: str(rings)}
    nvtx = {} if base.get(NVTX) and not is_cupti(base[NVTX]) else {NVTX: str(preloaded)}
    return {**base, **given, **nvtx}


def why_nothing(rings: Path, omitted: str = _NO_CALL) -> str:
    """Which programs ran, and why nothing was recorded; `omitted` describes what none of them did."""
    if not (rings / "programs").exists():
        return (
            "the library was not preloaded into any program: the command is statically linked, runs with other "
            "privileges (setuid, sudo), or clears LD_PRELOAD (env -i, a container)"
        )
    if has_rings(rings):
        return "no call of the CUDA driver that launches, copies or waits was made while the window was open"
    if without := without_room(rings):
        return "; ".join(without)
    names = list(dict.fromkeys(line.partition(" ")[2] for line in _programs(rings)))
    return f"{_some(names)} ran, and {omitted}"


def without_room(rings: Path) -> list[str]:
    """A note on the processes that have no ring, for each reason."""
    whose: dict[str, list[str]] = {}
    for line in _programs(rings):
        who, _, name = line.partition(" ")
        process, mark, reason = who.partition("!")
        if mark:
            whose.setdefault(REFUSED.get(reason, reason), []).append(f"process {process} ({name})")
    return [f"{words.format(folder=rings.parent)}; not recorded: {_some(names)}" for words, names in whose.items()]


def _programs(rings: Path) -> list[str]:
    """The lines that programs wrote: process id, "!" and the reason if it has no ring, and name."""
    with suppress(FileNotFoundError):
        return [spelled(line) for line in (rings / "programs").read_text(errors="replace").split("\n") if line]
    return []


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more
