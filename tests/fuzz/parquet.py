"""Fuzzes the reader of directories: the first byte of an input chooses the table, the others are its file."""

import tempfile
from pathlib import Path

from harness import fuzz

from tests.fuzz.contract import check
from tests.tracer.nsys_exports import RECORDING, export
from tracer import formats

TABLES = ("CUPTI_ACTIVITY_KIND_KERNEL", "StringIds", "NVTX_EVENTS", "META_DATA_EXPORT", "UNKNOWN")


def one_input(data: bytes, work: Path) -> None:
    """A directory of one table."""
    run = work / "run"
    run.mkdir(exist_ok=True)
    file = run / f"{TABLES[data[0] % len(TABLES) if data else 0]}.parquet"
    file.write_bytes(data[1:])
    try:
        check(run, work / "out", copies=data[-1:] < b"\x20")
    finally:
        file.unlink()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        formats.write(formats.read(export(Path(place) / "a.sqlite", RECORDING)), Path(place) / "run")
        files = [(Path(place) / "run" / f"{table}.parquet") for table in TABLES[:-1]]
        seeds = [bytes([i]) + file.read_bytes() for i, file in enumerate(files)]
    fuzz(seeds, one_input)
