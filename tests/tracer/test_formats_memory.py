"""Small files that want to be huge recordings, and large ones: memory stays within a multiple of the file's size.

Each is read by a process of its own that may take no more than `BASE` bytes beyond what it has after its imports,
and `PER_BYTE` for every byte of the file.
"""

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.tracer.hostile import tampered
from tests.tracer.nsys_exports import RECORDING
from tracer.model.schema import TABLES

KERNELS = TABLES["kernels"].nsys
BASE = 1 << 30
PER_BYTE = 32
READ = """
import json, resource, sys
from pathlib import Path
import tracer.formats.nsys_sqlite, tracer.formats.nsys_parquet, tracer.recorders.foreground
from tracer import formats
from tracer.errors import FormatError
taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
limit = taken + int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    trace = formats.read(sys.argv[1])
    print(json.dumps({name: len(frame) for name, frame in trace.tables.items()}))
except FormatError as error:
    print(error)
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits a process's memory as Linux does")


def said(path: Path, size: int) -> str:
    """What reading prints; the process may not die, nor take a minute."""
    command = [sys.executable, "-W", "error", "-c", READ, str(path), str(BASE + PER_BYTE * size)]
    threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ | threads)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


def test_many_strings_of_sparse_ids(tmp_path: Path) -> None:
    path = tampered(
        tmp_path / "a.sqlite",
        ("INSERT INTO StringIds VALUES (?, ?)", ((i * 9_000_000_000_000 + 100, f"s{i}") for i in range(300_000))),
        f"UPDATE {KERNELS} SET shortName = 9000000000100, demangledName = {2**63 - 1}",
    )
    assert json.loads(said(path, path.stat().st_size))["kernels"] == len(RECORDING[KERNELS])


def test_pages_that_are_their_own_children(tmp_path: Path) -> None:
    path = tampered(
        tmp_path / "a.sqlite",
        "CREATE TABLE t (x)",
        ("INSERT INTO t VALUES (?)", (("long" * 200,) for _ in range(5000))),
    )
    with closing(sqlite3.connect(path)) as database:
        (root,) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 't'").fetchone()
    content = bytearray(path.read_bytes())
    page = memoryview(content)[(root - 1) * 4096 : root * 4096]
    assert page[0] == 5  # the root is an interior page: a 12-byte header, then 2-byte pointers to its cells
    cells = [int.from_bytes(page[12 + 2 * i : 14 + 2 * i], "big") for i in range(int.from_bytes(page[3:5], "big"))]
    for cell in cells:  # all but the last subtree are the first one
        page[cell : cell + 4] = bytes(page[cells[0] : cells[0] + 4])
    page[8:12] = root.to_bytes(4, "big")  # and the last one is the whole tree again
    path.write_bytes(content)
    message = said(path, path.stat().st_size)
    assert "used more than once" in message or "malformed" in message


def a_run_of_one_number(file: Path) -> None:
    pq.write_table(pa.table({"id": pa.repeat(7, 20_000_000), "value": pa.repeat("", 20_000_000)}), file)


def a_long_text_many_times(file: Path) -> None:
    texts = pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), 1_000_000), pa.array(["x" * 100_000]))
    table = pa.table({"id": range(1_000_000), "value": texts})
    pq.write_table(table, file, compression="zstd")


def a_text_that_compresses_well(file: Path) -> None:
    texts = pa.array(["x" * 30_000_000] * 9)
    pq.write_table(pa.table({"id": range(9), "value": texts}), file, compression="zstd", use_dictionary=False)


@pytest.mark.parametrize("bomb", [a_run_of_one_number, a_long_text_many_times, a_text_that_compresses_well])
def test_parquet_that_unpacks_to_gigabytes(tmp_path: Path, bomb: Callable[[Path], None]) -> None:
    run = tmp_path / "run"
    run.mkdir()
    bomb(run / "StringIds.parquet")
    size = (run / "StringIds.parquet").stat().st_size
    assert size < 12 << 20
    assert "more than 200 times its size; it is not read" in said(run, size)
