"""Writing a trace as an nsys SQLite export: intertoken compared with pandas.to_sql of the same tables.

Half of the rows are kernels, half API calls. Both write the same columns without an index; pandas gets the prepared
tables, ours creates them from the trace. Peak memory is that of a separate process (Linux).
Usage: python benchmarks/write_nsys_sqlite.py [--rows 1000000] [--repeats 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import multiprocessing
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

from tracer.formats import nsys_sqlite
from tracer.formats.nsys_tables import from_trace
from tracer.model.trace import Trace


def example(rows: int) -> Trace:
    """Return a trace of kernels with 100 names on 24 streams in CUDA graphs, and as many API calls."""
    random = np.random.default_rng(1)
    count = rows // 2
    start = np.cumsum(random.integers(1_000, 20_000, count))
    span = {"start": start, "end": start + random.integers(1_000, 10_000, count), "correlation": np.arange(count)}
    node = (2 << 32) + random.integers(0, 300, count)
    words = (pd.Index([f"{name}_{i}" for i in range(100)]) for name in ("void kernel<float>()", "cudaCall"))
    names, calls = (pd.Categorical.from_codes(random.integers(0, 100, count), some) for some in words)
    ones = np.ones(count, np.int64)
    sizes = dict.fromkeys(("grid_y", "grid_z", "block_y", "block_z", "static_shared", "dynamic_shared"), ones)
    kernels: dict[str, Any] = {
        **span, **sizes,
        "device": 0 * ones, "context": ones, "stream": random.integers(7, 31, count), "process": 4242 * ones,
        "name": names, "short_name": names, "grid_x": random.integers(1, 5_000, count), "block_x": 256 * ones,
        "registers": 32 * ones, "graph_node": node, "graph": node >> 32,
    }  # fmt: skip
    api: dict[str, Any] = {
        **span,
        "process": 4242 * ones,
        "thread": 4250 * ones,
        "name": calls,
        "return_value": 0 * ones,
    }
    return Trace.from_columns(kernels=kernels, api=api)


def table_bytes(trace: Trace) -> int:
    """Return the bytes of a trace's frames."""
    return sum(int(frame.memory_usage(index=False, deep=True).sum()) for frame in trace.tables.values())


def peak_ratio(rows: int) -> float:
    """Return the peak memory of a new process that writes a trace, over the bytes of the trace's frames."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_peak_ratio, (rows,))


def _peak_ratio(rows: int) -> float:
    trace = example(rows)
    gc.collect()
    pa.default_memory_pool().release_unused()
    Path("/proc/self/clear_refs").write_text("5")  # the peak (VmHWM) counts from here, see proc(5)
    before = _status("VmRSS")
    with tempfile.TemporaryDirectory() as directory:
        nsys_sqlite.write(trace, Path(directory) / "a.sqlite")
    return 1 + (_status("VmHWM") - before) / table_bytes(trace)


def _status(key: str) -> int:
    """Return a figure from /proc/self/status, bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


def seconds(write: Callable[[Path], None]) -> float:
    with tempfile.TemporaryDirectory() as directory:
        start = time.perf_counter()
        write(Path(directory) / "a.sqlite")
        return time.perf_counter() - start


def measure(rows: int, repeats: int) -> dict[str, Any]:
    """Return medians over interleaved repeats, after one warm-up of each."""
    trace = example(rows)
    frames = {name: make().to_pandas() for name, make in from_trace(trace, with_run=True).items()}

    def write_pandas(path: Path) -> None:
        with sqlite3.connect(path) as database:
            for name, frame in frames.items():
                frame.to_sql(name, database, index=False)
        database.close()

    writers: dict[str, Callable[[Path], None]] = {
        "intertoken": lambda path: nsys_sqlite.write(trace, path),
        "pandas.to_sql": write_pandas,
    }
    times: dict[str, list[float]] = {name: [] for name in writers}
    for repeat in range(repeats + 1):
        for name, write in writers.items():
            took = seconds(write)
            if repeat:
                times[name].append(took)
    rates = {name: len(trace) / statistics.median(took) for name, took in times.items()}
    return {
        "rows": len(trace),
        "repeats": repeats,
        "rows_per_s": {name: round(rate) for name, rate in rates.items()},
        "ratio": round(rates["intertoken"] / rates["pandas.to_sql"], 2),
        "peak_over_table_bytes": round(peak_ratio(rows), 2),
        "seconds": {name: [round(t, 4) for t in took] for name, took in times.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="save the result here")
    options = parser.parse_args()
    result = measure(options.rows, options.repeats)
    for name, rate in result["rows_per_s"].items():
        print(f"{name:16} {rate / 1e6:5.2f} M rows/s")
    print(f"ratio            {result['ratio']:5.2f}")
    print(f"peak memory      {result['peak_over_table_bytes']:5.2f} × the table bytes, including the trace itself")
    if options.json:
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        text = json.dumps({"benchmark": "write_nsys_sqlite", "date": date, **result, "machine": machine()}, indent=2)
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
