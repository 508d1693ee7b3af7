"""Reading the kernels of an nsys SQLite export: intertoken compared with pandas.read_sql of the same columns.

Both produce a pandas frame; ours also has kernel names as categoricals, which read_sql leaves as ids.
Usage: python benchmarks/read_nsys_sqlite.py [--kernels 610000] [--repeats 15] [--json FILE]
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tracer.formats import nsys, nsys_sqlite
from tracer.formats.nsys_schema import COLUMNS, STRINGS
from tracer.model.schema import TABLES

KERNELS = TABLES["kernels"].nsys
SCHEMA_3_20 = [
    "start", "end", "deviceId", "contextId", "greenContextId", "streamId", "correlationId", "globalPid",
    "demangledName", "shortName", "mangledName", "launchType", "cacheConfig", "registersPerThread", "gridX", "gridY",
    "gridZ", "blockX", "blockY", "blockZ", "staticSharedMemory", "dynamicSharedMemory", "localMemoryPerThread",
    "localMemoryTotal", "gridId", "sharedMemoryExecuted", "graphNodeId", "sharedMemoryLimitConfig",
]  # fmt: skip


def build(path: Path, kernels: int) -> None:
    """Write an export of schema 3.20 with this many kernels, of 100 names, on 24 streams."""
    random = np.random.default_rng(1)
    start = np.cumsum(random.integers(1_000, 20_000, kernels))
    columns: dict[str, Any] = dict.fromkeys(SCHEMA_3_20, np.ones(kernels, np.int64))
    columns |= {
        "start": start,
        "end": start + random.integers(1_000, 10_000, kernels),
        "streamId": random.integers(7, 31, kernels),
        "correlationId": np.arange(kernels),
        "globalPid": np.full(kernels, 281484489392128),
        "demangledName": random.integers(0, 100, kernels),
        "shortName": random.integers(100, 200, kernels),
        "gridX": random.integers(1, 5_000, kernels),
        "localMemoryTotal": np.full(kernels, 155713536),
        "graphNodeId": (2 << 32) + random.integers(0, 300, kernels),
    }
    with sqlite3.connect(path) as database:
        database.execute(f"CREATE TABLE {STRINGS} (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)")
        names = [(i, f"void kernel_{i % 100}<float, {i}>(T1 *, int)") for i in range(200)]
        database.executemany(f"INSERT INTO {STRINGS} VALUES (?, ?)", names)
        database.execute(f"CREATE TABLE {KERNELS} ({', '.join(f'{c} INTEGER' for c in SCHEMA_3_20)})")
        marks = ", ".join("?" * len(SCHEMA_3_20))
        rows = zip(*(columns[c].tolist() for c in SCHEMA_3_20), strict=True)
        database.executemany(f"INSERT INTO {KERNELS} VALUES ({marks})", rows)
    database.close()


def read_ours(path: Path) -> pd.DataFrame:
    tables = nsys_sqlite.read_tables(path, only=frozenset({KERNELS, STRINGS}))
    return nsys.to_trace(tables)["kernels"]


def read_pandas(path: Path) -> pd.DataFrame:
    columns = ", ".join(c for c in COLUMNS[KERNELS] if c in SCHEMA_3_20)
    database = sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)
    try:
        return pd.read_sql(f"SELECT {columns} FROM {KERNELS}", database)
    finally:
        database.close()


def seconds(read: Callable[[Path], pd.DataFrame], path: Path, kernels: int) -> float:
    start = time.perf_counter()
    frame = read(path)
    took = time.perf_counter() - start
    if len(frame) != kernels:
        raise SystemExit(f"{read.__name__} read {len(frame)} rows of {kernels}")
    return took


def measure(kernels: int, repeats: int) -> dict[str, Any]:
    """Return medians over interleaved repeats, after one warm-up of each."""
    readers = {"intertoken": read_ours, "pandas.read_sql": read_pandas}
    times: dict[str, list[float]] = {name: [] for name in readers}
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "kernels.sqlite"
        build(path, kernels)
        for repeat in range(repeats + 1):
            for name, read in readers.items():
                took = seconds(read, path, kernels)
                if repeat:
                    times[name].append(took)
    rates = {name: kernels / statistics.median(took) for name, took in times.items()}
    return {
        "kernels": kernels,
        "repeats": repeats,
        "rows_per_s": {name: round(rate) for name, rate in rates.items()},
        "ratio": round(rates["intertoken"] / rates["pandas.read_sql"], 2),
        "seconds": {name: [round(t, 4) for t in took] for name, took in times.items()},
    }


def machine() -> dict[str, Any]:
    """Return CPU and versions, without a host name."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    packages = ("adbc-driver-sqlite", "numpy", "pandas", "pyarrow")
    return {
        "cpu": models[0] if models else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),  # available to this process
        "load_average_1_min": round(os.getloadavg()[0], 2),  # including this process
        "python": platform.python_version(),
        **{package: version(package) for package in packages},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=int, default=610_000)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", type=Path, help="save the result here")
    options = parser.parse_args()
    result = measure(options.kernels, options.repeats)
    for name, rate in result["rows_per_s"].items():
        print(f"{name:16} {rate / 1e6:5.2f} M rows/s")
    print(f"ratio            {result['ratio']:5.2f}")
    if options.json:
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        text = json.dumps({"benchmark": "read_nsys_sqlite", "date": date, **result, "machine": machine()}, indent=2)
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
