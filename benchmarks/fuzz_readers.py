"""Fuzzes a reader with atheris: any bytes are one clear error or a trace, see `contract`.

    python benchmarks/fuzz_readers.py sqlite -max_total_time=60

An input that breaks the promise is left as `crash-...`, and runs again if it is given behind the reader.
"""

from __future__ import annotations

import gzip
import sqlite3
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[1]))
with atheris.instrument_imports(include=["tracer.formats", "tracer.model.graph_json", "tracer.files.bounded"]):
    from tracer import formats
    from tracer.model.graph_json import read_graph

from tests.fuzz.contract import assert_clear, check
from tests.tracer import kineto
from tests.tracer.nsys_exports import RECORDING, export
from tests.tracer.pftraces import of_kineto, of_rocprofv3
from tests.tracer.rocm_files import Database, csv_folder, hip
from tracer.errors import FormatError

CHROME, RUN, GRAPH = (Path(__file__).with_name("fuzz_seeds").joinpath(f"{name}.json").read_bytes()
                      for name in ("chrome", "run", "graph"))  # fmt: skip
LONG = {
    b'"ts":1.5': (b'"ts":' + b"1" * 4301, b'"ts":1e999999999', b'"ts":-1e99999999999999999999'),
    b'"main"': (b'"' + b"7" * 4301 + b'"', b'"' + b'\\"' * 100_000 + b'"'),
    b'"ms"': (b"9" * 101,),
    b"[1,2,3]": (b"[" * 1001,),
}
"""Numbers, texts and nesting about where they are refused."""
TABLES = ("CUPTI_ACTIVITY_KIND_KERNEL", "StringIds", "NVTX_EVENTS", "META_DATA_EXPORT", "UNKNOWN")
RARE = b"\x20"
"""Inputs whose last byte is below are copied, too, which takes the longest."""


def chrome(data: bytes, work: Path) -> None:
    """Chrome JSON: behind `z` it is gzipped, behind `Z` it is gzip data."""
    path = work / "a.json"
    path.write_bytes({b"z": gzip.compress}.get(data[:1], bytes)(data[1:]))
    check(path, work / "out", copies=data[-1:] < RARE)


CSV_TABLES = ("kernel_trace", "memory_copy_trace", "hip_api_trace", "marker_api_trace", "agent_info")


def rocprof_csv(data: bytes, work: Path) -> None:
    """A folder of rocprofv3 of which one file, which the first byte chooses, is different."""
    folder = work / "rocm"
    if not folder.exists():
        csv_folder(folder, hip(3))
    file = folder / f"100_{CSV_TABLES[data[0] % len(CSV_TABLES) if data else 0]}.csv"
    good = file.read_bytes()
    file.write_bytes(data[1:])
    try:
        check(folder, work / "out", copies=data[-1:] < RARE)
    finally:
        file.write_bytes(good)


def zipped(data: bytes, work: Path) -> None:
    """A zip, or whatever follows its magic number."""
    path = work / "a.zip"
    path.write_bytes(b"PK\3\4" + data[4:])
    check(path, work / "out", copies=data[-1:] < RARE)


def perfetto(data: bytes, work: Path) -> None:
    """A Perfetto trace."""
    path = work / "a.pftrace"
    path.write_bytes(data)
    check(path, work / "out", copies=data[-1:] < RARE)


def parquet(data: bytes, work: Path) -> None:
    """A directory of one table, which the first byte chooses; the others are its file."""
    run = work / "run"
    run.mkdir(exist_ok=True)
    file = run / f"{TABLES[data[0] % len(TABLES) if data else 0]}.parquet"
    file.write_bytes(data[1:])
    try:
        check(run, work / "out", copies=data[-1:] < RARE)
    finally:
        file.unlink()


def run_json(data: bytes, work: Path) -> None:
    """A file beside a good recording: behind `r` it is run.json, else graph.json."""
    run = work / "run"
    if not run.exists():
        rows = {"StringIds": RECORDING["StringIds"][:1]}
        formats.write(formats.read(export(work / "a.sqlite", rows)), run)
    if data[:1] == b"r":
        (run / "run.json").write_bytes(data[1:])
        check(run, work / "out")
        return
    (file := run / "graph.json").write_bytes(data[1:])
    try:
        graph = read_graph(file)
    except FormatError as error:
        assert_clear(str(error), file)
    else:
        assert len(graph.index) == len(graph.readers) == len(graph.nodes)
        assert all(graph.stream_name(stream) for stream in range(graph.streams))


def sqlite(data: bytes, work: Path) -> None:
    """A SQLite export, or a database of rocprofv3: whatever follows the magic number."""
    path = work / "a.sqlite"
    path.write_bytes(b"SQLite format 3\0" + data[16:])
    check(path, work / "out", copies=data[-1:] < RARE)


def seeds(reader: Callable[[bytes, Path], None], place: Path) -> list[bytes]:
    """Good inputs, made in an empty directory."""
    if reader is chrome:
        long = [b"j" + CHROME.replace(short, each) for short, several in LONG.items() for each in several]
        return [b"j" + CHROME, b"z" + CHROME, b"Z" + gzip.compress(CHROME), b"j[" + CHROME[80:-24], *long]
    if reader is perfetto:
        paths = of_rocprofv3(hip(2), place / "rocm.pftrace"), of_kineto(kineto.GPU, place / "kineto.pftrace")
        return [path.read_bytes() for path in paths]
    if reader is zipped:
        for packing in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            with zipfile.ZipFile(place / f"{packing}.zip", "w", packing) as archive:
                archive.writestr("a.json", CHROME)
        return [path.read_bytes() for path in sorted(place.iterdir())]
    if reader is rocprof_csv:
        csv_folder(place / "rocm", hip(3))
        return [bytes([i]) + (place / "rocm" / f"100_{table}.csv").read_bytes() for i, table in enumerate(CSV_TABLES)]
    if reader is run_json:
        return [b"r" + RUN, b"g" + GRAPH]
    if reader is parquet:
        formats.write(formats.read(export(place / "a.sqlite", RECORDING)), place / "run")
        return [bytes([i]) + (place / "run" / f"{table}.parquet").read_bytes() for i, table in enumerate(TABLES[:-1])]
    with sqlite3.connect(place / "small") as database:  # three pages of 512 bytes, so that a changed byte matters
        database.execute("PRAGMA page_size = 512")
        database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, streamId, demangledName)")
        database.execute("CREATE TABLE StringIds (id, value)")
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 2, 0, 7, 1), (3, 4, 0, 7, 1)")
        database.execute("INSERT INTO StringIds VALUES (1, 'kernel'), (2, ?)", ("long" * 200,))
    database.close()
    for schema in (3, 4):
        Database(place / f"{schema}.db", hip(2), schema)
    return [(place / name).read_bytes() for name in ("small", "3.db", "4.db")]


def main(name: str, *given: str) -> None:
    readers = (chrome, parquet, perfetto, rocprof_csv, run_json, sqlite, zipped)
    reader = {each.__name__: each for each in readers}[name]
    with tempfile.TemporaryDirectory(prefix="intertoken-fuzz-") as folder:
        corpus, work, made = (Path(folder) / part for part in ("corpus", "work", "made"))
        for directory in (corpus, work, work / "out", made):
            directory.mkdir()
        for i, seed in enumerate(seeds(reader, made)):
            (corpus / f"seed{i}").write_bytes(seed)
        inputs = [] if any(not option.startswith("-") for option in given) else [str(corpus)]
        defaults = ["-max_len=262144", "-timeout=60", "-rss_limit_mb=4096", f"-artifact_prefix={Path.cwd()}/"]
        atheris.Setup([sys.argv[0], *defaults, *given, *inputs], lambda data: reader(data, work))
        atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
