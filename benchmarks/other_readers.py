"""Figures that other tools read from our exports, compared with ours: HolisticTraceAnalysis, nsys-ai, Perfetto.

Each trace is written as Chrome JSON, as an nsys SQLite export and as a Perfetto trace, and read by the tools in a
separate Python environment: the given one, or one created with pip. Exits with 1 if a figure differs.
Without TRACE: two bundled recordings of a GPU, and a run of the CPU backend made here.
Usage: python benchmarks/other_readers.py [TRACE ...] [--python READERS_VENV/bin/python] [--json FILE]
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Final

PACKAGES: Final = ("HolisticTraceAnalysis", "nsys-ai", "perfetto")
SAMPLES: Final = Path(__file__).parent.parent / "sample_traces"
BUNDLED: Final = (SAMPLES / "llama1b-sccc-node", SAMPLES / "llama-1.1b-sccc-sequential-cuda" / "node")
LAUNCHES: Final = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cudaMemcpyAsync", "cudaMemsetAsync")
"""The calls that HolisticTraceAnalysis counts as launches."""
Figures = dict[str, float]


# --- runs in the environment of the readers ---


def read_hta(folder: str) -> Figures:
    """Return the main figures of HolisticTraceAnalysis for the trace in a folder, µs."""
    os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"
    analysis = importlib.import_module("hta.trace_analysis").TraceAnalysis(trace_dir=folder)
    temporal = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    _, kernels = analysis.get_gpu_kernel_breakdown(visualize=False, num_kernels=10**6, include_memory_kernels=True)
    idle, _ = analysis.get_idle_time_breakdown(ranks=[0], visualize=False)
    launches = analysis.get_cuda_kernel_launch_stats(visualize=False)[0]
    bandwidth = analysis.get_memory_bw_summary()
    events, symbols = analysis.t.get_trace(0), analysis.t.symbol_table.get_sym_table()
    counts = Counter(symbols[category] for category in events["cat"])
    is_compute = kernels["kernel_type"] == "COMPUTATION"
    return {
        **{f"{category} events": counts[category] for category in ("kernel", "gpu_memcpy", "gpu_memset", "cuda_sync")},
        "host calls": counts["cuda_runtime"] + counts["cuda_driver"],
        "temporal: compute": temporal["compute_time(us)"],
        "temporal: idle": temporal["idle_time(us)"],
        "temporal: span": temporal["kernel_time(us)"],
        "kernels: sum": kernels.loc[is_compute, "sum (us)"].sum(),
        "kernels: names": int(kernels.loc[is_compute, "name"].nunique()),
        "copies and fills: sum": kernels.loc[~is_compute, "sum (us)"].sum(),
        "idle by stream: sum": idle["idle_time"].sum(),
        "launches: matched": len(launches),
        "launches: sum of device time": launches["gpu_duration"].sum(),
        "copies and fills: with bandwidth": float(bandwidth["memory_bw_gbps"]["count"].sum()),
    }


def read_perfetto(path: str) -> Figures:
    """Return slices, ns and arrows by category, read with Perfetto's own protos."""
    protos = importlib.import_module("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    names: dict[int, str] = {}
    open_slices: dict[int, list[tuple[str, int]]] = {}
    found: Counter[str] = Counter()
    for packet in protos.Trace.FromString(Path(path).read_bytes()).packet:
        names |= {entry.iid: entry.name for entry in packet.interned_data.event_categories}
        event = packet.track_event
        if event.type == event.TYPE_SLICE_BEGIN:
            category = names[event.category_iids[0]]
            open_slices.setdefault(event.track_uuid, []).append((category, packet.timestamp))
            found["arrows"] += len(event.terminating_flow_ids)
        elif event.type == event.TYPE_SLICE_END:
            category, start = open_slices[event.track_uuid].pop()
            found[f"{category}: slices"] += 1
            found[f"{category}: ns"] += packet.timestamp - start
    return dict(found)


READERS: Final = {"hta": read_hta, "perfetto": read_perfetto}


# --- runs in our environment ---


def in_readers(python: Path, reader: str, path: Path) -> Figures:
    command = [str(python), "-W", "ignore", __file__, "--read", reader, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{reader} fails on {path.name}: {done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def nsys_ai(python: Path, *arguments: object) -> str:
    command = [str(python.with_name("nsys-ai")), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"nsys-ai {arguments[0]} fails: {done.stderr[-2000:]}")
    return done.stdout


def read_nsys_ai(python: Path, path: Path) -> Figures:
    """Return the figures of `info`, `summary` and `diff` of a file with itself; ms are rounded."""
    info, summary = nsys_ai(python, "info", path), nsys_ai(python, "summary", path)
    against = json.loads(nsys_ai(python, "diff", path, path, "--no-ai", "--format", "json"))

    def figure(pattern: str, text: str) -> float:
        found = re.search(pattern, text)
        return float(found[1]) if found else math.nan

    return {
        "info: kernels": figure(r"Kernels: (\d+)", info),
        "info: NVTX ranges": figure(r"NVTX: (\d+)", info),
        "summary: kernels": figure(r"Kernels: (\d+)", summary),
        "summary: span, ms": figure(r"Span: ([\d.]+)ms", summary),
        "summary: kernels, ms": figure(r"Compute: ([\d.]+)ms", summary),
        "diff: kernels, ns": against["after"]["total_gpu_ns"],
        "diff: idle, ms": against["overlap"]["after"]["idle_ms"],
        "diff: difference to itself, ms": against["step_time"]["delta_ms"],
    }


def ours(trace: Any) -> dict[str, Figures]:
    """Compute the same figures from the trace's tables."""
    from tracer.formats.tracks import arrows
    from tracer.model.intervals import total

    kernels, copies, fills, syncs, api = (trace[n] for n in ("kernels", "memcpys", "memsets", "syncs", "api"))
    work = trace.activities().frame()
    compute = work[~work["table"].isin(["memcpys", "memsets"])]
    moves = work[work["table"].isin(["memcpys", "memsets"])]
    of_stream = syncs[syncs["stream"] != -1]  # which HolisticTraceAnalysis counts as busy
    starts = [*work["start"], *of_stream["start"]]
    ends = [*work["end"], *of_stream["end"]]
    span, busy = max(ends) - min(starts), total(starts, ends)
    length = work["end"] - work["start"]
    gaps = sum(
        int((rows["start"].to_numpy()[1:] - rows["end"].to_numpy()[:-1]).sum()) for _, rows in work.groupby("stream")
    )
    launches = api[api["name"].astype(str).str.replace(r"(_v\d+|_ptsz)+$", "", regex=True).isin(LAUNCHES)]
    launched = work["correlation"].isin(launches["correlation"])
    kernel_span = int(compute["end"].max() - compute["start"].min())
    kernel_union = total(compute["start"], compute["end"])
    sums = {table: int(length[work["table"] == table].sum()) for table in ("kernels", "memcpys", "memsets")}
    by_name = {"kernel": "kernels", "memcpy": "memcpys", "memset": "memsets"}
    slices: Figures = {f"{ours}: slices": len(trace[table]) for ours, table in by_name.items()}
    slices |= {f"{ours}: ns": sums[table] for ours, table in by_name.items()}
    slices |= {"sync: slices": len(syncs), "cuda api: slices": len(api), "arrows": len(arrows(trace))}
    return {
        "HolisticTraceAnalysis": {
            "kernel events": len(compute),
            "gpu_memcpy events": len(copies),
            "gpu_memset events": len(fills),
            "cuda_sync events": len(syncs),
            "host calls": len(api),
            "temporal: compute": kernel_union / 1e3,
            "temporal: idle": (span - busy) / 1e3,
            "temporal: span": span / 1e3,
            "kernels: sum": int((compute["end"] - compute["start"]).sum()) / 1e3,
            "kernels: names": kernels["name"].nunique() + bool(len(trace["cuda_events"])),  # all are "cudaEvent" there
            "copies and fills: sum": int((moves["end"] - moves["start"]).sum()) / 1e3,
            "idle by stream: sum": gaps / 1e3,
            "launches: matched": int(launched.sum()),
            "launches: sum of device time": int(length[launched].sum()) / 1e3,
            "copies and fills: with bandwidth": len(moves),
        },
        "nsys-ai": {
            "info: kernels": len(kernels),
            "info: NVTX ranges": len(trace["nvtx"]),
            "summary: kernels": len(kernels),
            "summary: span, ms": kernel_span / 1e6,
            "summary: kernels, ms": sums["kernels"] / 1e6,
            "diff: kernels, ns": sums["kernels"],
            "diff: idle, ms": (kernel_span - kernel_union) / 1e6,
            "diff: difference to itself, ms": 0,
        },
        "Perfetto's protos": {name: value for name, value in slices.items() if value},
    }


TOLERANCE: Final = {"HolisticTraceAnalysis": 0.05, "nsys-ai": 0.06, "Perfetto's protos": 0}
"""Tolerance of a figure, µs or ms: HolisticTraceAnalysis rounds to 0.01 µs per row, nsys-ai prints 0.1 ms."""


def compare(python: Path, path: Path, directory: Path) -> dict[str, dict[str, list[float]]]:
    """Return tool -> figure -> [the tool's, ours]."""
    from tracer import formats, write

    trace = formats.read(path)
    folder = directory / "chrome"
    folder.mkdir()
    for name in (folder / "trace.json.gz", directory / "trace.sqlite", directory / "trace.pftrace"):
        write(trace, name)
    theirs = {
        "HolisticTraceAnalysis": in_readers(python, "hta", folder),
        "nsys-ai": read_nsys_ai(python, directory / "trace.sqlite"),
        "Perfetto's protos": in_readers(python, "perfetto", directory / "trace.pftrace"),
    }
    return {
        tool: {name: [round(theirs[tool].get(name, 0), 3), round(value, 3)] for name, value in figures.items()}
        for tool, figures in ours(trace).items()
    }


def make_environment(directory: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
    python = directory / "bin" / "python"
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    return python


def run_on_cpu(directory: Path) -> Path:
    """Record a run of the CPU backend."""
    command = ["run", "--backend", "cpu", "--model", "tiny", "--sync", "sccc", "--tokens", "8", "-o", str(directory)]
    subprocess.run([sys.executable, "-m", "tracer.cli", *command], check=True, capture_output=True)
    return directory / "tiny-sccc-sequential"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path, nargs="*", metavar="TRACE")
    parser.add_argument("--python", type=Path, help="Python with the readers; by default created with pip")
    parser.add_argument("--json", type=Path, help="save the result here")
    parser.add_argument("--read", nargs=2, metavar=("READER", "PATH"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        print(json.dumps({name: float(value) for name, value in READERS[options.read[0]](options.read[1]).items()}))
        return
    results, differs = {}, []
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        python = options.python or make_environment(scratch / "readers")
        versions = json.loads(subprocess.run(
            [str(python), "-c", "import importlib.metadata as m, json, sys; "
             "print(json.dumps({p: m.version(p) for p in sys.argv[1:]}))", *PACKAGES],
            check=True, capture_output=True, text=True,
        ).stdout)  # fmt: skip
        for at, path in enumerate(options.traces or [*BUNDLED, run_on_cpu(scratch / "runs")]):
            (directory := scratch / str(at)).mkdir()
            label = f"{path.parent.name}/node" if path.name == "node" else path.name
            results[label] = compare(python, path, directory)
            for tool, figures in results[label].items():
                print(f"{label}: {tool}")
                for figure, (theirs, our) in figures.items():
                    same = abs(theirs - our) <= TOLERANCE[tool]
                    differs += [] if same else [f"{label}: {tool}: {figure}"]
                    print(f"  {figure:34} {theirs:16,.3f} {our:16,.3f}  {'' if same else 'DIFFERS'}")
    if options.json:
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        facts = {"benchmark": "other_readers", "date": date, "versions": versions, "figures": "[the tool's, ours]"}
        options.json.write_text(json.dumps(facts | {"differs": differs, "traces": results}, indent=2) + "\n")
    if differs:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
