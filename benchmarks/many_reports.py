"""Many reports in one table: one process in sequence, compared with Dask on local worker processes.

The reports are copies of the recordings in sample_traces with times scaled by a seeded factor within 3 %. A round with
the workers counts from the first report to the last; their start-up time is reported separately.
Usage: python benchmarks/many_reports.py [--reports 200] [--workers 2] [--repeats 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from read_nsys_sqlite import machine

from tracer import formats
from tracer.batch import analyse, connected, find_reports, report_rows, table_of_reports
from tracer.model.trace import Trace

SAMPLES = Path(__file__).parents[1] / "sample_traces"


def stretched(trace: Trace, factor: float) -> Trace:
    """Return the trace with all times scaled."""

    def change(name: str, frame: pd.DataFrame) -> pd.DataFrame:
        if "start" not in frame:
            return frame
        return frame.assign(**{c: (frame[c] * factor).round().astype("int64") for c in ("start", "end")})

    return trace.map_tables(change)


def build(directory: Path, reports: int) -> None:
    """Write the reports as runs of eight ranks."""
    random = np.random.default_rng(1)
    traces = [formats.read(path, whole=False) for path in find_reports(SAMPLES)]
    for number, trace in enumerate(islice(cycle(traces), reports)):
        place = directory / f"run{number // 8}" / f"rank{number % 8}"
        place.parent.mkdir(exist_ok=True)
        formats.write(stretched(trace, random.uniform(0.97, 1.03)), place)


def seconds(work: Callable[[], pd.DataFrame], reports: int) -> float:
    start = time.perf_counter()
    table = work()
    took = time.perf_counter() - start
    if table["report"].nunique() != reports or (table["problem"] != "").any():
        raise SystemExit(f"{table['report'].nunique()} reports of {reports}; {set(table['problem'])}")
    return took


def measure(reports: int, workers: int, repeats: int) -> dict[str, Any]:
    """Return medians over interleaved repeats, after one warm-up of each."""
    times: dict[str, list[float]] = {"one process": [], f"{workers} workers": []}
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        build(root, reports)
        paths = find_reports(root)
        start = time.perf_counter()
        with connected(None, workers) as client:
            client.wait_for_workers(workers)
            started = time.perf_counter() - start
            ways: dict[str, Callable[[], pd.DataFrame]] = {
                "one process": lambda: table_of_reports([row for path in paths for row in report_rows(path, root)]),
                f"{workers} workers": lambda: analyse(paths, root, client),
            }
            for repeat in range(repeats + 1):
                for way, work in ways.items():
                    took = seconds(work, reports)
                    if repeat:
                        times[way].append(took)
    one, many = (statistics.median(took) for took in times.values())
    return {
        "reports": reports,
        "workers": workers,
        "repeats": repeats,
        "start_of_workers_s": round(started, 2),
        "reports_per_s": {way: round(reports / statistics.median(took), 2) for way, took in times.items()},
        "ratio": round(one / many, 2),
        "seconds": {way: [round(t, 2) for t in took] for way, took in times.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reports", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="save the result here")
    options = parser.parse_args()
    before = os.getloadavg()[0]
    result = measure(options.reports, options.workers, options.repeats)
    for way, rate in result["reports_per_s"].items():
        print(f"{way:12} {rate:6.2f} reports/s")
    print(f"ratio        {result['ratio']:6.2f}")
    if options.json:
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        about = {**machine(), "load_average_before": round(before, 2), "distributed": version("distributed")}
        text = json.dumps({"benchmark": "many_reports", "date": date, **result, "machine": about}, indent=2)
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
