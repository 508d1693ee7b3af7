"""A zip with a Chrome or Kineto JSON (.zip), as GitHub makes people attach them: read as a stream, nothing is unpacked
to the disk.

A zip with one such file, packed again with gzip or not, is that recording; other files in it are ignored. Of several
(one for each rank) none is chosen.
"""

from __future__ import annotations

import zipfile
import zlib
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, Final, cast

from tracer.errors import FormatError, printable
from tracer.files.bounded import opened
from tracer.files.zips import MAGIC, check_directory, check_packing
from tracer.formats import Format
from tracer.formats.chrome import SUFFIXES, EventStream, NotJsonError, read_events
from tracer.model.trace import Trace

_MOST_NAMES: Final = 5
_DAMAGED: Final = (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, ValueError)
"""What zipfile raises for archives that are damaged, encrypted, cut short or of a later version."""


def sniff(path: Path) -> bool:
    """Whether the file begins as a zip."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def read(path: Path, python_functions: bool = False) -> Trace:
    """Read the recording in a zip, see `chrome.read`.

    Raises:
        FormatError: it has none, or several; it is damaged, encrypted, or a bomb.
    """
    try:
        return _read(path, python_functions)
    except NotJsonError:
        return _read(path, python_functions, repair=True)


def _read(path: Path, python_functions: bool, repair: bool = False) -> Trace:
    with ExitStack() as opened_files:
        events, name = _recording_in(path, opened_files, repair)
        if not events.looks_right:
            raise FormatError(f"{path}: {name} in it is not a trace")
        trace = read_events(path, events, python_functions)
    trace.notes.insert(0, f"read from {name} in the zip")
    return trace


def _recording_in(path: Path, files: ExitStack, repair: bool) -> tuple[EventStream, str]:
    """The events of the only recording in a zip, and its name."""
    try:
        check_directory(path)
        packed = files.enter_context(opened(path))
        archive = files.enter_context(zipfile.ZipFile(packed))
        member = _only_recording(archive)
        check_packing(member)
        file = files.enter_context(archive.open(member))
        return EventStream(path, cast("BinaryIO", file), packed, repair), printable(member.filename, 100)
    except FormatError as problem:
        text = str(problem)
        raise FormatError(text if text.startswith(str(path)) else f"{path}: {text}") from None
    except _DAMAGED as problem:
        raise FormatError(f"{path}: cannot be unpacked: {printable(str(problem), 100)}") from None


def _only_recording(archive: zipfile.ZipFile) -> zipfile.ZipInfo:
    every = [info for info in archive.infolist() if not info.is_dir()]
    recordings = [info for info in every if info.filename.lower().endswith(SUFFIXES) and not _is_hidden(info.filename)]
    if len(recordings) == 1:
        return recordings[0]
    shown = ", ".join(printable(info.filename, 100) for info in (recordings or every)[:_MOST_NAMES])
    more = ", ..." if len(recordings or every) > _MOST_NAMES else ""
    if not recordings:
        raise FormatError(f"a zip without a Chrome or Kineto JSON ({shown}{more}); unpack it first")
    raise FormatError(f"a zip with {len(recordings)} recordings ({shown}{more}); unpack it, and name one of them")


def _is_hidden(name: str) -> bool:
    """Whether it is one of the files that macOS adds, or another hidden one."""
    return any(part.startswith((".", "__MACOSX")) and part != ".." for part in name.split("/"))


FORMAT: Final = Format(
    "such JSON in a zip", ".zip", sniff, read, options=frozenset({"python_functions"}), lossless=False
)
