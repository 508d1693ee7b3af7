"""Writing the exports for viewers: intertoken compared with json.dump and with the builder of Perfetto's own package.

Half of the events are kernels, half the calls that launch them. The others get the same events as prepared lists of
dicts and write them unchanged; ours creates them from the trace's tables. Perfetto's builder does not intern names.
Peak memory is that of a separate process, in addition to the trace (Linux).
Usage: python benchmarks/write_exports.py [--rows 200000] [--repeats 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos
from perfetto.trace_builder.proto_builder import TraceProtoBuilder
from read_nsys_sqlite import machine
from write_nsys_sqlite import example

import tracer
from tracer.model.trace import Trace

SUFFIXES = (".json", ".json.gz", ".pftrace")


def chrome_events(trace: Trace) -> list[dict[str, Any]]:
    """Return the events of our Chrome export."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "a.json"
        tracer.write(trace, path)
        return list(json.loads(path.read_bytes())["traceEvents"])


def dump(events: list[dict[str, Any]], path: Path) -> None:
    with gzip.open(path, "wt", compresslevel=6) if path.suffix == ".gz" else path.open("w") as file:
        json.dump({"traceEvents": events}, file)


def build_perfetto(events: list[dict[str, Any]], path: Path) -> None:
    """Write slices, their numbers and arrows with Perfetto's builder."""
    builder = TraceProtoBuilder()
    arrows = {(e["pid"], e["tid"], e["ts"]): e["id"] for e in events if e["ph"] in "sf"}
    for event in events:
        if event["ph"] != "X":
            continue
        start = round(event["ts"] * 1000)
        for type, at in ((1, start), (2, start + round(event["dur"] * 1000))):
            packet = builder.add_packet()
            packet.timestamp, packet.trusted_packet_sequence_id = at, 1
            slice = packet.track_event
            slice.type, slice.track_uuid = type, event["pid"] * 10_000 + event["tid"] + 1
            if type == protos.TrackEvent.TYPE_SLICE_END:
                continue
            slice.name = event["name"]
            slice.categories.append(event["cat"])
            arrow = arrows[event["pid"], event["tid"], event["ts"]]
            (slice.terminating_flow_ids if event["cat"] == "kernel" else slice.flow_ids).append(arrow)
            for name, value in event["args"].items():
                for number in value if isinstance(value, list) else [value]:
                    slice.debug_annotations.add(name=name, int_value=number)
    path.write_bytes(builder.serialize())


def peak_bytes(rows: int, suffix: str) -> int:
    """Return the peak memory of a new process while writing, in addition to the trace."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_peak_bytes, (rows, suffix))


def _peak_bytes(rows: int, suffix: str) -> int:
    trace = example(rows)
    with tempfile.TemporaryDirectory() as directory:
        tracer.write(example(10), Path(directory) / f"first{suffix}")  # triggers the lazy imports
        Path("/proc/self/clear_refs").write_text("5")  # the peak (VmHWM) counts from here, see proc(5)
        before = _status("VmRSS")
        tracer.write(trace, Path(directory) / f"a{suffix}")
        return _status("VmHWM") - before


def _status(key: str) -> int:
    """Return a figure from /proc/self/status, bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


def measure(rows: int, repeats: int) -> dict[str, Any]:
    """Return medians over interleaved repeats, after one warm-up of each."""
    trace = example(rows)
    events = chrome_events(trace)
    rivals: dict[str, tuple[str, Callable[[Path], None]]] = {
        ".json": ("json.dump", lambda path: dump(events, path)),
        ".json.gz": ("json.dump", lambda path: dump(events, path)),
        ".pftrace": ("TraceProtoBuilder", lambda path: build_perfetto(events, path)),
    }
    results: dict[str, Any] = {}
    for suffix, (rival, write) in rivals.items():
        times: dict[str, list[float]] = {"intertoken": [], rival: []}
        sizes: dict[str, int] = {}
        writers = {"intertoken": lambda path: tracer.write(trace, path), rival: write}
        for repeat in range(repeats + 1):
            for name, writer in writers.items():
                with tempfile.TemporaryDirectory() as directory:
                    path = Path(directory) / f"a{suffix}"
                    start = time.perf_counter()
                    writer(path)
                    took = time.perf_counter() - start
                    sizes[name] = path.stat().st_size
                if repeat:
                    times[name].append(took)
        rates = {name: len(trace) / statistics.median(took) for name, took in times.items()}
        results[suffix] = {
            "events_per_s": {name: round(rate) for name, rate in rates.items()},
            "ratio": round(rates["intertoken"] / rates[rival], 2),
            "file_bytes": sizes,
            "peak_bytes": peak_bytes(rows, suffix),
            "peak_bytes_of_twice_the_rows": peak_bytes(2 * rows, suffix),
            "seconds": {name: [round(t, 4) for t in took] for name, took in times.items()},
        }
    return {"events": len(trace), "repeats": repeats, "formats": results}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="save the result here")
    options = parser.parse_args()
    result = measure(options.rows, options.repeats)
    for suffix, figures in result["formats"].items():
        rates = ", ".join(f"{name} {rate:,} events/s" for name, rate in figures["events_per_s"].items())
        peak = figures["peak_bytes"] / 2**20
        print(f"{suffix:9} {rates}, ratio {figures['ratio']}, peak {peak:.0f} MiB in addition to the trace")
    if options.json:
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        about = machine() | {package: version(package) for package in ("perfetto", "protobuf")}
        text = json.dumps({"benchmark": "write_exports", "date": date, **result, "machine": about}, indent=2)
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
