"""Ten million events: writing, reading and analysing them, each in a separate process for its peak memory.

The trace is real: llama.cpp under sccc with node-level tracing, its steady token steps repeated with shifted times and
correlation ids. Rates count rows of all tables; `pandas.read_sql` reads the same columns of the same tables into
frames, in the same run. "Table bytes" are the bytes of the trace's frames. Memory is VmHWM (Linux).
Usage: python benchmarks/ten_million.py [--events 10000000] [--repeats 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import multiprocessing
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from read_nsys_sqlite import machine

from tracer import formats
from tracer.analysis.gaps import gap_report
from tracer.analysis.syncs import sync_report
from tracer.analysis.tokens import find_steps
from tracer.formats.nsys_schema import COLUMNS
from tracer.model.schema import MISSING, TABLES
from tracer.model.trace import Trace

SOURCE = Path(__file__).parents[1] / "sample_traces" / "llama1b-sccc-node"
WARM_UP = 3  # steps omitted at each end

Work = Callable[[Path], int]
"""Does one thing with the files in a directory; returns the bytes of the tables it held."""


def long_trace(events: int, source: Path = SOURCE) -> Trace:
    """Repeat the steady steps of the recording."""
    trace = formats.read(source, whole=False)
    steps = find_steps(trace).select(WARM_UP, -WARM_UP).table
    start, end = int(steps["start"].min()), int(steps["end"].max())
    part = trace.map_tables(lambda _, f: f[(f["start"] >= start) & (f["start"] < end)] if "start" in f else f)
    times = -(-events // len(part))
    calls = 1 + max(int(f["correlation"].max()) for f in part.tables.values() if "correlation" in f and len(f))

    def repeat(_: str, frame: pd.DataFrame) -> pd.DataFrame:
        if "start" not in frame or not len(frame):
            return frame
        turn = np.repeat(np.arange(times), len(frame))
        longer = frame.iloc[np.tile(np.arange(len(frame)), times)].reset_index(drop=True)
        longer[["start", "end"]] += ((end - start) * turn)[:, None]
        if "correlation" in longer:
            longer["correlation"] = longer["correlation"].where(
                longer["correlation"] == MISSING, longer["correlation"] + calls * turn
            )
        return longer

    return part.map_tables(repeat)


def table_bytes(trace: Trace) -> int:
    """Return the bytes of a trace's frames."""
    return sum(int(frame.memory_usage(index=False, deep=True).sum()) for frame in trace.tables.values())


def make(directory: Path, events: int) -> int:
    formats.write(trace := long_trace(events), directory / "source")
    return len(trace)


def write_sqlite(directory: Path) -> int:
    return _write(directory, "written.sqlite")


def write_parquetdir(directory: Path) -> int:
    return _write(directory, "written")


def _write(directory: Path, name: str) -> int:
    formats.write(TRACE[0], directory / name)
    return table_bytes(TRACE[0])


def read_sqlite(directory: Path) -> int:
    return table_bytes(formats.read(directory / "written.sqlite", whole=False))


def read_sqlite_whole(directory: Path) -> int:
    return table_bytes(formats.read(directory / "written.sqlite"))


def read_parquetdir(directory: Path) -> int:
    return table_bytes(formats.read(directory / "source", whole=False))


def read_pandas(directory: Path) -> int:
    with sqlite3.connect(directory / "written.sqlite") as database:
        frames = []
        for table in TABLES.values():
            have = {row[1] for row in database.execute(f"PRAGMA table_info({table.nsys})")}
            if columns := ", ".join(c for c in COLUMNS[table.nsys] if c in have):
                frames.append(pd.read_sql(f"SELECT {columns} FROM {table.nsys}", database))
    database.close()
    return sum(int(frame.memory_usage(index=False, deep=True).sum()) for frame in frames)


def analyse(directory: Path) -> int:
    """Run the analyses of `intertoken syncs` and `intertoken gaps`."""
    trace = formats.read(directory / "written.sqlite", whole=False)
    steps = find_steps(trace)
    syncs, gaps = sync_report(trace, steps), gap_report(trace, steps)
    if (syncs.strategy, syncs.syncs_per_token) != ("sccc", 14) or not 300 < gaps.gap_us["p50"] < 400:
        raise SystemExit(f"wrong answer: {syncs.strategy}, {syncs.syncs_per_token} syncs, {gaps.gap_us}")
    return table_bytes(trace)


WORK: dict[str, Work] = {
    "write SQLite": write_sqlite,
    "write parquetdir": write_parquetdir,
    "read SQLite": read_sqlite,
    "pandas.read_sql": read_pandas,
    "read SQLite whole": read_sqlite_whole,
    "read parquetdir": read_parquetdir,
    "import, syncs and gaps": analyse,
}
TRACE: list[Trace] = []
"""In a writing process: the trace to write, created before the clock starts."""


def timed(name: str, directory: Path) -> tuple[float, float]:
    """Return seconds, and peak memory over table bytes; for a writer this includes the trace itself."""
    written = directory / {"write SQLite": "written.sqlite", "write parquetdir": "written"}.get(name, "none")
    if name.startswith("write"):
        TRACE.append(formats.read(directory / "source", whole=False))
        written.unlink() if written.is_file() else shutil.rmtree(written, ignore_errors=True)
    gc.collect()
    pa.default_memory_pool().release_unused()
    Path("/proc/self/clear_refs").write_text("5")  # the peak (VmHWM) counts from here, see proc(5)
    before, start = _status("VmRSS"), time.perf_counter()
    held = WORK[name](directory)
    took = time.perf_counter() - start
    return took, (_status("VmHWM") - before) / held + name.startswith("write")


def _status(key: str) -> int:
    """Return a figure from /proc/self/status, bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


def measure(events: int, repeats: int) -> dict[str, Any]:
    """Return medians over interleaved repeats, each in a new process."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in WORK}
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        with context.Pool(1) as pool:
            rows = pool.apply(make, (directory, events))
        for _ in range(repeats):
            for work in WORK:
                with context.Pool(1) as pool:
                    found[work].append(pool.apply(timed, (work, directory)))
    took = {work: statistics.median(seconds for seconds, _ in each) for work, each in found.items()}
    return {
        "events": rows,
        "repeats": repeats,
        "rows_per_s": {work: round(rows / seconds) for work, seconds in took.items()},
        "read_sql_ratio": round(took["pandas.read_sql"] / took["read SQLite"], 2),
        "seconds": {work: [round(seconds, 2) for seconds, _ in each] for work, each in found.items()},
        "peak_over_table_bytes": {work: round(max(peak for _, peak in each), 2) for work, each in found.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="save the result here")
    options = parser.parse_args()
    result = measure(options.events, options.repeats)
    print(f"{result['events']:,} events" + " " * 11 + "s   M rows/s   peak / table bytes")
    for work, rate in result["rows_per_s"].items():
        seconds = statistics.median(result["seconds"][work])
        print(f"{work:24} {seconds:6.2f} {rate / 1e6:10.2f} {result['peak_over_table_bytes'][work]:16.2f}")
    print(f"read SQLite / pandas.read_sql: {result['read_sql_ratio']:.2f}")
    if options.json:
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        text = json.dumps({"benchmark": "ten_million", "date": date, **result, "machine": machine()}, indent=2)
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
