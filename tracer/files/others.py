"""Files that people take for recordings and no format reads, known by their beginning: what they are, and what to do.

Source: rocprofiler-sdk's writers (`generateJSON.cpp`, `generateCSV.cpp`, rocpd's schema) and rocmProfileData's schema,
as of 2026; the schema of nvprof's databases; the texts that `nsys stats` of 2021 to 2026 prints; Git LFS's
specification of pointers.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Final

from tracer.files.bounded import opened

_HEAD: Final = 1 << 16  # bytes
_GZIP: Final = b"\x1f\x8b"
_REPORT: Final = "give the .nsys-rep or its SQLite export"
_SUMS: Final = f"sums of nsys stats, without the time of each kernel and call; {_REPORT}"
_ROWS: Final = f"rows of one report of nsys stats, either of the host or of the device; {_REPORT}"
_FIRST: Final[tuple[tuple[re.Pattern[bytes], str], ...]] = (
    (
        re.compile(rb"version https://git-lfs\.github\.com/spec/v"),
        "a pointer of Git LFS instead of the recording; fetch it with git lfs pull",
    ),
    (
        re.compile(rb"SQLite format 3\0.*CREATE TABLE \W?StringTable\W?\s*\(\s*\W?_id_", re.DOTALL),
        "a database of nvprof is not read; record with intertoken record, or with nsys profile",
    ),
    (re.compile(rb"(Generating SQLite file|Processing \[|\s*\*\* [\w /()]+ \(\w+\):\s*\n|Exporting \[)"), _SUMS),
    (re.compile(rb'"?Time ?\(%\)"?,"?Total Time'), _SUMS),
    (re.compile(rb'"?Start ?\(\w+\)"?,"?Duration ?\(\w+\)"?,"?(?:CorrId|Name)'), _ROWS),
)  # fmt: skip
"""What would be taken for something else, so that it is looked for before all formats."""

_LAST: Final[tuple[tuple[re.Pattern[bytes], str], ...]] = (
    (
        re.compile(rb'\s*\{\s*"rocprofiler-sdk-tool"'),
        "the JSON of rocprofv3 is not read; record with --output-format rocpd",
    ),
    (
        re.compile(rb'"?(?:Kind|Domain)"?,[^\n]*"?Start_Timestamp"?,"?End_Timestamp"?'),
        "a CSV of rocprofv3 without kernels, copies or calls; record with --runtime-trace",
    ),
    (
        re.compile(rb'"?Name"?,"?Calls"?,"?TotalDurationNs"?,|"?Correlation_Id"?,"?Dispatch_Id"?,'),
        "sums or counters of rocprofv3, without the time of each kernel and call; record with --runtime-trace",
    ),
    (
        re.compile(rb'(?:"?Index"?,)?"?KernelName"?,'),
        "a CSV of rocprof (v1), without calls; record with rocprofv3 --runtime-trace",
    ),
)  # fmt: skip

_SUFFIXES: Final = {
    ".qdrep": "a report of Nsight Systems of before 2021.4; export it with nsys export --type sqlite, and give that",
    ".xplane.pb": "an xplane of JAX's profiler is not read; give the .trace.json.gz that it writes beside it",
    ".nvvp": "a database of nvprof is not read; record with intertoken record, or with nsys profile",
}
"""Of files that are binary."""


def known_first(path: Path) -> str | None:
    """What a file is and what to do instead of reading it; None if a format may read it."""
    if not path.is_file():
        return None
    ends = (what for suffix, what in _SUFFIXES.items() if path.name.lower().endswith(suffix))
    return _among(_FIRST, _head(path)) or next(ends, None)


def known_last(path: Path) -> str | None:
    """The same of a file that no format has read; None if it is unknown."""
    return _among(_LAST, _head(path)) if path.is_file() else None


def of_database(tables: Collection[str]) -> str | None:
    """What an SQLite database with these tables is and what to do instead of reading it; None if it is unknown."""
    if {"rocpd_op", "rocpd_api"} <= set(tables):
        return "a database of rocmProfileData is not read; convert it to JSON with its rpd2tracing"
    if any(name.startswith("rocpd_") for name in tables):
        return "a database of rocprofv3 (rocpd) without a table of kernels; record with --runtime-trace"
    return None


def _among(known: tuple[tuple[re.Pattern[bytes], str], ...], head: bytes) -> str | None:
    return next((what for begins, what in known if begins.match(head)), None)


def _head(path: Path) -> bytes:
    with opened(path) as raw:
        head = raw.read(_HEAD)
    try:
        return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head, _HEAD) if head.startswith(_GZIP) else head
    except zlib.error:
        return b""
