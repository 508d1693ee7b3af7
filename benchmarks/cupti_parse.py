"""From CUPTI's raw buffers to a trace: intertoken compared with a plain Python loop over the records, in the same run.

The buffers are synthetic (CUDA 13.0 layout): a decode loop whose calls and copies interleave on one thread and whose
56 kernels per token follow the launch, as observed in CUPTI's buffers. The loop only splits the buffers into records by
kind, so its counterpart is `splitting`; `to a trace` also creates all tables. With --real, cupti_program.py is also
recorded on this machine's GPU, and its recording is repeatedly converted to a trace.
Usage: python benchmarks/cupti_parse.py [--tokens 3000] [--repeats 7] [--real] [--json FILE]
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import struct
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tracer.recorders import cupti_records as activity
from tracer.recorders.cupti import SIZE
from tracer.recorders.cupti_records import OwnRanges, Sources, build, parse

CUDA_13_0 = 130001
COPY = (activity.RUNTIME, activity.MEMCPY, activity.RUNTIME, activity.SYNCHRONIZATION)
TOKEN = (
    *COPY * 6,
    activity.RUNTIME,
    *(activity.KERNEL,) * 56,
    *COPY,
    activity.MARKER,
    activity.MARKER_DATA,
    activity.MARKER,
)


def record(kind: int, size: int, number: int) -> bytes:
    """Return a record with a start, an end and one of 50 names; all other fields are 1."""
    filled = bytearray(struct.pack("<I", 1) * (size // 4))
    values = {
        "start": 1_000_000 + 700 * number,
        "end": 1_000_500 + 700 * number,
        "timestamp": 1_000_000 + 700 * number,
        "correlation": number,
        "cbid": 1 + number % 50,
        "name": 4096 + 64 * (number % 50),
        "domain": 0,
        "id": number // 3,
        "flags": 2 + 2 * (number % 2),
        "stream": 7 + number % 3,
        "kind": 1,
    }
    for field, (offset, format) in activity.FIELDS[kind].items():
        if field in values:
            width = int(format[1])
            filled[offset : offset + width] = values[field].to_bytes(width, "little")
    filled[:4] = struct.pack("<I", kind)
    return bytes(filled)


def buffers(tokens: int, sizes: dict[int, int]) -> tuple[list[bytes], int]:
    """Return buffers of the recorder's size, filled with whole records, and their number of records."""
    made: list[bytes] = []
    current = bytearray()
    for number in range(tokens * len(TOKEN)):
        kind = TOKEN[number % len(TOKEN)]
        if len(current) + sizes[kind] > SIZE:
            made.append(bytes(current))
            current.clear()
        current += record(kind, sizes[kind], number)
    return [*made, bytes(current)], tokens * len(TOKEN)


def python_loop(filled: list[bytes], sizes: dict[int, int]) -> dict[int, list[bytes]]:
    """Split the buffers into records by kind."""
    found: dict[int, list[bytes]] = {kind: [] for kind in sizes}
    for buffer in filled:
        at = 0
        while at < len(buffer):
            kind = int.from_bytes(buffer[at : at + 4], "little")
            size = sizes[kind]
            found[kind].append(buffer[at : at + size])
            at += size
    return found


def measure(tokens: int, repeats: int) -> dict[str, Any]:
    """Return medians over interleaved repeats, after one warm-up of each."""
    sizes = activity.sizes(CUDA_13_0)
    filled, count = buffers(tokens, sizes)
    sources = Sources(0, os.getpid(), lambda address: f"_Z6kernelILi{address}EEvPfi", lambda domain, id: f"call{id}")
    times: dict[str, list[float]] = {"to a trace": [], "splitting": [], "python loop": []}
    for repeat in range(repeats + 1):
        start = time.perf_counter()
        trace = build(parse(filled, sizes), sources, OwnRanges(), 10**15)
        built = time.perf_counter()
        parse(filled, sizes)
        split = time.perf_counter()
        python_loop(filled, sizes)
        end = time.perf_counter()
        if len(trace["kernels"]) != 56 * tokens or len(trace["api"]) != 15 * tokens:
            raise SystemExit(f"the trace has {len(trace['kernels'])} kernels and {len(trace['api'])} calls")
        if repeat:
            times["to a trace"].append(built - start)
            times["splitting"].append(split - built)
            times["python loop"].append(end - split)
    rates = {name: count / statistics.median(took) for name, took in times.items()}
    return {
        "records": count, "buffers": len(filled), "repeats": repeats,
        "records_per_s": {name: round(rate) for name, rate in rates.items()},
        "ratio": round(rates["splitting"] / rates["python loop"], 2),
        "seconds": {name: [round(t, 4) for t in took] for name, took in times.items()},
    }  # fmt: skip


def measure_real(repeats: int) -> dict[str, Any]:
    """Measure the conversion of a real recording, including the fetch of CUPTI's buffers, without the first repeat."""
    program = [sys.executable, str(Path(__file__).with_name("cupti_program.py")), "--record", "node"]
    command = [*program, "--times", "60", "--parse", str(repeats + 1)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    facts = next(json.loads(line) for line in output.splitlines() if line.startswith("{"))
    took = facts["parse_s"][1:]
    return {
        "records": facts["records"], "records_per_s": round(facts["records"] / statistics.median(took)),
        "seconds": [round(t, 4) for t in facts["parse_s"]],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=3000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--real", action="store_true", help="record on the GPU as well")
    parser.add_argument("--json", type=Path, help="save the result here")
    options = parser.parse_args()
    result = measure(options.tokens, options.repeats)
    for name, rate in result["records_per_s"].items():
        print(f"{name:12} {rate / 1e6:5.2f} M records/s")
    print(f"ratio        {result['ratio']:5.2f}")
    if options.real:
        result["real recording"] = real = measure_real(options.repeats)
        print(f"real recording of {real['records']} records {real['records_per_s'] / 1e6:5.2f} M records/s")
    if options.json:
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        machine = {"cores": os.cpu_count(), "python": platform.python_version(), "numpy": version("numpy")}
        content = {"benchmark": "cupti_parse", "date": date, **result, "machine": machine}
        options.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
