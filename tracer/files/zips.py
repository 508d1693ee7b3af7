"""Zip archives of unknown origin: what is checked before a file in them is unpacked. No message names the archive."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path
from typing import Final

from tracer.errors import FormatError
from tracer.files.bounded import opened

MAGIC: Final = b"PK\3\4"
"""The first bytes of an archive that is not empty."""

_END: Final = struct.Struct("<4s4H2LH")
_MOST_FILES, _MOST_DIRECTORY = 2_000, 1 << 20
_OTHERS: Final = {9: "Deflate64", 12: "bzip2", 14: "LZMA", 93: "Zstandard", 95: "xz"}
"""Methods of compression that other programs write, by their numbers in the zip specification (APPNOTE.TXT, 4.4.5)."""


def check_directory(path: Path) -> None:
    """Reject a table of contents that would exhaust the memory: zipfile reads all of it into memory. Raises
    FormatError."""
    with opened(path) as file:
        tail = file.seek(0, 2)
        file.seek(max(tail - _END.size - 65_535 - 20, 0))
        end = file.read()
    at = end.rfind(b"PK\5\6")
    if at < 0 or len(end) - at < _END.size:
        raise FormatError("truncated zip file")
    *_, entries, size, _, _ = _END.unpack_from(end, at)
    if entries > _MOST_FILES or size > _MOST_DIRECTORY or end[max(at - 20, 0) : at].startswith(b"PK\6\7"):
        raise FormatError(f"holds more files than a recording has ({_MOST_FILES:,} at most)")


def check_packing(member: zipfile.ZipInfo) -> None:
    """Accept what zip programs write by default: other decompressors need more memory, and fail in other ways. Raises
    FormatError."""
    method = member.compress_type
    if method not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        packed = _OTHERS.get(method, f"method {method}")
        raise FormatError(f"{member.filename[:80]!r} is packed with {packed}; only stored and deflated files are read")
