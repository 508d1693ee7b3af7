"""Gzip data of many members: unpacked as the standard library does, and refused where they hold next to nothing."""

from __future__ import annotations

import gzip
import io
import json
import time
import zlib
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tests.tracer.kineto import event, write
from tests.tracer.test_formats_chrome import error_of
from tracer import formats
from tracer.cli import main
from tracer.errors import FormatError
from tracer.files.bounded import LEAST_BYTES, MOST_MEMBERS, Gunzip

EMPTY, SPACE = gzip.compress(b"", mtime=0), gzip.compress(b" ", mtime=0)
BEGIN = b'{"traceEvents": [' + json.dumps(event("cpu_op", "op", 1, 1)).encode()
MANY = "has more than 1,000 gzip members that hold less than 16 KiB on average; it is not read further"


def unpacked(data: bytes, size: int = 1 << 16) -> bytes:
    source = Gunzip(io.BytesIO(data))
    return b"".join(iter(lambda: source.read1(size), b""))


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=5), st.integers(0, 9), st.integers(1, 200))
def test_members_are_unpacked_as_by_the_standard_library(parts: list[bytes], padding: int, size: int) -> None:
    data = b"".join(gzip.compress(part) + bytes(padding) for part in parts)
    assert unpacked(data, size) == gzip.decompress(data) == b"".join(parts)


@given(st.binary(max_size=300), st.integers(1, 200))
def test_what_is_truncated_or_followed_by_something_else_is_said(part: bytes, cut: int) -> None:
    whole = gzip.compress(part)
    with pytest.raises(EOFError):
        unpacked(whole + whole[: len(whole) - 1 - cut % (len(whole) - 1)])
    with pytest.raises(zlib.error):
        unpacked(whole + b"no gzip")


def test_so_many_members_are_read_and_no_more_unless_they_hold_something() -> None:
    assert unpacked(SPACE * MOST_MEMBERS) == b" " * MOST_MEMBERS
    with pytest.raises(FormatError, match="more than 1,000 gzip members"):
        unpacked(SPACE * (MOST_MEMBERS + 1))
    of_bgzip = gzip.compress(bytes(LEAST_BYTES))
    assert unpacked(of_bgzip * 3 * MOST_MEMBERS) == bytes(LEAST_BYTES * 3 * MOST_MEMBERS)


@pytest.mark.parametrize(
    "data",
    [
        EMPTY * 52_000,
        gzip.compress(b" " * 1_000_000) + SPACE * 50_000,
        gzip.compress(BEGIN) + EMPTY * 52_000,
        gzip.compress(BEGIN + b" " * 1_000_000) + SPACE * 50_000,
    ],
    ids=["empty", "tiny", "empty after an event", "tiny after an event"],
)
def test_a_megabyte_of_members_without_data_takes_no_time_and_is_said_in_a_line(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.json.gz"
    path.write_bytes(data)
    begin = time.process_time()
    assert formats.is_trace(path)
    assert error_of(path) == f"{path}: {MANY}"
    assert time.process_time() - begin < 1.5
    result = CliRunner().invoke(main, ["info", str(path)])
    assert result.exit_code == 2
    assert result.output.splitlines() == [f"intertoken: {path}: {MANY}"]


def test_a_trace_in_several_members_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json.gz", [event("cpu_op", f"op {n}", n, 1) for n in range(100)])
    whole = gzip.decompress(path.read_bytes())
    path.write_bytes(b"".join(gzip.compress(whole[at : at + 100]) for at in range(0, len(whole), 100)))
    assert len(formats.read(path)["nvtx"]) == 100
