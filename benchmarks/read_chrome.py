"""Reading a Kineto trace: intertoken compared with json.load and a pandas frame, each in a separate process.

The readers alternate within one run; peak memory is that of the process, including imports.
Usage: python benchmarks/read_chrome.py [--megabytes 500] [--repeats 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import datetime
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pandas as pd
from read_nsys_sqlite import machine

from tracer import formats

PROCESS = 100


def step(number: int, launches: int = 50) -> list[dict[str, Any]]:
    """Return the events of one ProfilerStep: launches, each with its operator, kernel and arrow, and a sync."""
    start = number * 1000.0 + 1e9
    thread = {"pid": PROCESS, "tid": PROCESS}
    events: list[dict[str, Any]] = [
        {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", **thread, "ts": start, "dur": 999.0}
    ]
    for i in range(launches):
        at, id = round(start + i * 10 + 0.123, 3), number * (launches + 1) + i
        on_gpu = {
            "External id": id, "queued": 0, "device": 0, "context": 1, "stream": 7, "correlation": id,
            "registers per thread": 32, "shared memory": 1024, "blocks per SM": 1.185185, "warps per SM": 4.74,
            "grid": [128, 1, 1], "block": [128, 1, 1], "est. achieved occupancy %": 7,
        }  # fmt: skip
        call = {"External id": id, "cbid": 211, "correlation": id}
        flow = {"id": id, "cat": "ac2g", "name": "ac2g"}
        name = f"void at::native::kernel_{i}<4, float>(int, float*)"
        events += [
            {"ph": "X", "cat": "cpu_op", "name": f"aten::op{i}", **thread, "ts": at, "dur": 8.5,
             "args": {"External id": id, "Record function id": 0, "Ev Idx": id}},
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", **thread, "ts": at, "dur": 3.25,
             "args": call},
            {"ph": "s", **flow, **thread, "ts": at},
            {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": at + 5, "dur": 4.5, "args": on_gpu},
            {"ph": "f", **flow, "pid": 0, "tid": 7, "ts": at + 5, "bp": "e"},
        ]  # fmt: skip
    wait = {"cbid": 131, "correlation": number * (launches + 1) + launches}
    events.append(
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaStreamSynchronize", **thread, "ts": start + 520, "dur": 9.5,
         "args": wait}
    )  # fmt: skip
    return events


def build(path: Path, size: int) -> int:
    """Write a trace of at least this many bytes; return its number of events."""
    events = 0
    with path.open("w", encoding="utf-8") as file:
        file.write('{"schemaVersion": 1, "traceEvents": [')
        while file.tell() < size:
            rows = step(number=events)
            file.write(("," if events else "") + ",\n".join(json.dumps(row) for row in rows))
            events += len(rows)
        file.write("]}")
    return events


def read_pandas(path: str) -> int:
    with open(path, encoding="utf-8") as file:
        return len(pd.DataFrame(json.load(file)["traceEvents"]))


def read_ours(path: str) -> int:
    return len(formats.read(path))


READERS = {"intertoken": read_ours, "json.load + pandas": read_pandas}


def one(reader: str, path: str) -> None:
    """Read once and print seconds, peak bytes and rows."""
    start = time.perf_counter()
    rows = READERS[reader](path)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": seconds, "peak_bytes": peak, "rows": rows}))


def measure(size: int, repeats: int) -> dict[str, Any]:
    """Return medians over alternating repeats."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in READERS}
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "trace.json"
        events = build(path, size)
        bytes = path.stat().st_size
        for _ in range(repeats):
            for name in READERS:
                command = [sys.executable, __file__, "--one", name, str(path)]
                found[name].append(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))
    seconds = {name: statistics.median(run["seconds"] for run in runs) for name, runs in found.items()}
    peaks = {name: max(run["peak_bytes"] for run in runs) for name, runs in found.items()}
    ours, theirs = READERS
    return {
        "file_bytes": bytes,
        "events": events,
        "repeats": repeats,
        "events_per_s": {name: round(events / took) for name, took in seconds.items()},
        "peak_bytes": peaks,
        "speed_ratio": round(seconds[theirs] / seconds[ours], 2),
        "memory_ratio": round(peaks[theirs] / peaks[ours], 2),
        "seconds": {name: [round(run["seconds"], 3) for run in runs] for name, runs in found.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="save the result here")
    parser.add_argument("--one", nargs=2, metavar=("READER", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one(*options.one)
        return
    result = measure(options.megabytes * 10**6, options.repeats)
    for name, rate in result["events_per_s"].items():
        print(f"{name:20} {rate:9,} events/s  {result['peak_bytes'][name] / 2**20:8,.0f} MiB")
    print(f"{'ratio':20} {result['speed_ratio']:9} {'':10} {result['memory_ratio']:8}")
    if options.json:
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        text = json.dumps({"benchmark": "read_chrome", "date": date, **result, "machine": machine()}, indent=2)
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
