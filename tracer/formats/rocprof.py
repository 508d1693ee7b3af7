"""Recordings of AMD's profilers that no format reads: which they are, and what to record instead.

Source: rocprofiler-sdk's writers (`generateJSON.cpp`, `generateCSV.cpp`, and rocpd's schema) and rocmProfileData's
schema, as of 2026; recordings of both.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Final

_INSTEAD: Final = "is not read; record with PyTorch's profiler, or with rocmProfileData and its rpd2tracing"
_HEAD: Final = 1 << 12  # bytes
_GZIP: Final = b"\x1f\x8b"
_JSON: Final = re.compile(rb'\s*\{\s*"rocprofiler-sdk-tool"')
_CSV: Final = re.compile(rb'"?(?:Kind|Domain)"?,[^\n]*"?Start_Timestamp"?,"?End_Timestamp"?')


def file(path: Path) -> str | None:
    """What a text file is and what to do instead of reading it; None if it is none of rocprofv3's."""
    head = _head(path) if path.is_file() else b""
    if _JSON.match(head):
        return f"the JSON of rocprofv3 {_INSTEAD}"
    return f"the CSV of rocprofv3 {_INSTEAD}" if _CSV.match(head) else None


def database(tables: Collection[str]) -> str | None:
    """What an SQLite database with these tables is and what to do instead of reading it; None if it is not AMD's."""
    if {"rocpd_op", "rocpd_api"} <= set(tables):
        return "a database of rocmProfileData is not read; convert it to JSON with its rpd2tracing"
    if any(name.startswith("rocpd_") for name in tables):
        return f"the database of rocprofv3 (rocpd) {_INSTEAD}"
    return None


def _head(path: Path) -> bytes:
    with path.open("rb") as raw:
        head = raw.read(_HEAD)
    if not head.startswith(_GZIP):
        return head
    try:
        return zlib.decompressobj(wbits=zlib.MAX_WBITS | 16).decompress(head, _HEAD)
    except zlib.error:
        return b""
