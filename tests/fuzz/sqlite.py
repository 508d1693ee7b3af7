"""Fuzzes the reader of SQLite exports."""

import sqlite3
import tempfile
from pathlib import Path

from harness import fuzz

from tests.fuzz.contract import check


def small(path: Path) -> Path:
    """Two tables on three pages of 512 bytes, so that a changed byte matters."""
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA page_size = 512")
        database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, streamId, demangledName)")
        database.execute("CREATE TABLE StringIds (id, value)")
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 2, 0, 7, 1), (3, 4, 0, 7, 1)")
        database.execute("INSERT INTO StringIds VALUES (1, 'kernel'), (2, ?)", ("long" * 200,))
    database.close()
    return path


def one_input(data: bytes, work: Path) -> None:
    """Whatever follows the magic number."""
    path = work / "a.sqlite"
    path.write_bytes(b"SQLite format 3\0" + data[16:])
    check(path, work / "out", copies=data[-1:] < b"\x20")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        seeds = [small(Path(place) / "small").read_bytes()]
    fuzz(seeds, one_input)
