"""Uploaded files: checked, and archives unpacked, as long as they stay small and inside their directory.

This is done where recordings are read, see `dashboard.reading.readers`, so that an upload costs the server no time.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Final

from tracer import formats
from tracer.errors import FormatError
from tracer.files.bounded import Gunzip
from tracer.files.zips import check_directory, check_packing

_DEEPEST: Final = 3
_CHUNK: Final = 1 << 20


def accept(path: Path, target: Path, limit: int) -> None:
    """Check that a file is a recording, or unpack it if it is an archive.

    Args:
        target: the directory to create for an archive.
        limit: maximum number of bytes unpacked.

    Raises:
        FormatError: neither, or too large unpacked; see `unpack_zip`. Damage is reported by the recording's reader.
    """
    with path.open("rb") as file:
        magic = file.read(4)
    if magic == b"PK\3\4":
        unpack_zip(path, target, limit)
        return
    if magic.startswith(b"\x1f\x8b"):
        check_gzip(path, limit)
    if not formats.is_trace(path):
        known = ", ".join(form.name for form in formats.registered() if form.read is not None)
        raise FormatError(f"{path.name}: not a recording; expected one of: {known}; a directory as a zip")


def check_gzip(path: Path, limit: int) -> None:
    """Raise FormatError if a gzip file unpacks to more than `limit` bytes, or has too many members."""
    size = 0
    with path.open("rb") as file:
        unpacked = Gunzip(file)
        try:
            while chunk := unpacked.read1(_CHUNK):
                size += len(chunk)
                if size > limit:
                    raise FormatError(f"exceeds {limit:,} bytes unpacked, the limit set by --upload-limit")
        except (EOFError, zlib.error):
            return
        except FormatError as problem:
            raise FormatError(f"{path.name}: {problem}") from None


def unpack_zip(path: Path, target: Path, limit: int) -> None:
    """Unpack a recording's directory.

    Args:
        target: the directory to create; a single top-level directory of the archive is left out.
        limit: maximum number of bytes unpacked.

    Raises:
        FormatError: not a zip, a damaged one, too large unpacked, with names that lead elsewhere or occur twice, or
            with files that are neither stored nor deflated. `target` may then contain a part of it.
    """
    with _named(path):
        check_directory(path)
    target.mkdir()
    try:
        with zipfile.ZipFile(path) as archive:
            members = [member for member in archive.infolist() if not member.filename.endswith("/")]
            names = [_inside(path, member) for member in members]
            if len(set(names)) < len(names):
                raise FormatError(f"{path.name}: holds two files of the same name")
            with _named(path):
                for member in members:
                    check_packing(member)
            around = {name.parts[0] for name in names if len(name.parts) > 1}
            skip = 1 if len(around) == 1 and all(len(name.parts) > 1 for name in names) else 0
            left = limit
            for member, name in zip(members, names, strict=True):
                place = target.joinpath(*name.parts[skip:])
                place.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(member) as source, place.open("xb") as file:
                    while chunk := source.read(_CHUNK):
                        left -= len(chunk)
                        if left < 0:
                            raise FormatError(
                                f"{path.name}: exceeds {limit:,} bytes unpacked, the limit set by --upload-limit"
                            )
                        file.write(chunk)
    except OSError as problem:  # without the place, which is the server's
        raise FormatError(f"{path.name}: cannot be unpacked: {problem.strerror or problem}") from None
    # What zipfile raises for archives that are damaged, encrypted, cut short or of a later version.
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, ValueError) as problem:
        raise FormatError(f"{path.name}: cannot be unpacked: {problem}") from None


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Begin errors with the name of the archive."""
    try:
        yield
    except FormatError as problem:
        raise FormatError(f"{path.name}: {problem}") from None


def _inside(path: Path, member: zipfile.ZipInfo) -> PurePosixPath:
    name = PurePosixPath(member.filename)
    is_plain = member.filename.isprintable() and "\\" not in member.filename and ":" not in member.filename
    if not is_plain or name.is_absolute() or ".." in name.parts or not 1 <= len(name.parts) <= _DEEPEST:
        raise FormatError(f"{path.name}: {member.filename[:80]!r} is not a valid path in a recording")
    return name
