"""Make the bundled recordings: `python sample_traces/make.py EXPORTS_DIR [RUNS_DIR [IDLE_DIR]]`.

EXPORTS_DIR holds SQLite exports of Nsight Systems. Scrubbed and written as run directories they are small; run.json
adds what was measured without a profiler.
RUNS_DIR holds our own run directories, as `intertoken run --trace-kinds all` leaves them; of the light pass only one
repeat is kept.
IDLE_DIR is what `benchmarks/gpu_idle_sync.py` wrote.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pandas as pd

import tracer
from tracer.model.graph_json import GRAPH_FILE
from tracer.scrub import scrub

MACHINE = {"gpu": "NVIDIA H200", "driver": "580.159", "cuda": "13.0", "cpu_cores": 16, "os": "Linux"}
LLAMA = {"backend": "cuda", "engine": "llama.cpp", "model": "llama 1.1B Q8_0", "concurrency": "sequential",
         "launch": "graph", "batch": 1}  # fmt: skip
LLAMA_RATES = {"sccc": (748.7, 3.0), "saaas": (759.5, 3.0)}
CUPY = {
    "backend": "cuda",
    "engine": "CuPy loop",
    "model": "56 matvecs of 2048²",
    "launch": "graph",
    "batch": 1,
}
CUPY_PERIODS_US = {
    ("sccc", "sequential"): (455, 463), ("saaas", "sequential"): (429, 439), ("aaag", "sequential"): (424, 434),
    ("sccc", "concurrent"): (286, 294), ("saaas", "concurrent"): (260, 267), ("aaag", "concurrent"): (253, 262),
}  # fmt: skip


def llama(strategy: str) -> dict[str, Any]:
    rate, spread = LLAMA_RATES[strategy]
    return {
        "configuration": {**LLAMA, "strategy": strategy},
        "measured": {"tokens_per_s": {"median": rate, "low": rate - spread, "high": rate + spread}},
    }


def cupy() -> dict[str, Any]:
    ranges = {}
    for (strategy, mode), (low, high) in CUPY_PERIODS_US.items():
        concurrency = "branches" if mode == "concurrent" else "sequential"
        rate = round(2e6 / (low + high), 1)
        ranges[f"run {strategy} {mode}"] = {
            "strategy": strategy,
            "concurrency": concurrency,
            "tokens_per_s": rate,
        }
    return {"configuration": CUPY, "ranges": ranges}


def one_repeat(trace: tracer.Trace) -> tracer.Trace:
    """What happens inside the middle one of the ranges `repeat`."""
    repeats = trace["nvtx"].query("text == 'repeat'")
    middle = repeats.iloc[len(repeats) // 2]

    def cut(_: str, frame: pd.DataFrame) -> pd.DataFrame:
        if "start" not in frame:
            return frame
        return frame[(frame["start"] >= middle["start"]) & (frame["end"] <= middle["end"])]

    return trace.map_tables(cut)


def own(runs: Path, target: Path) -> None:
    for run in sorted(path for path in runs.glob("llama-*") if (path / "run.json").is_file()):
        for name in ("", "node"):  # the graph passes say no more than these two
            if (run / name / "run.json").is_file():
                trace = tracer.read(run / name)
                tracer.write(scrub(trace if name else one_repeat(trace)), target / run.name / name)
        shutil.copy(run / GRAPH_FILE, target / run.name)


def idle(directory: Path, target: Path) -> None:
    """The loop that waits beside its critical path."""
    trace = scrub(tracer.read(directory / "beside"))
    us = json.loads((directory / "measured.json").read_text())["us_per_token"]["beside"]
    rates = {name: round(1e6 / us[of], 1) for name, of in (("median", "median"), ("low", "high"), ("high", "low"))}
    trace.metadata["run"] = {
        "schema": "intertoken.run/1",
        "configuration": {**CUPY, "strategy": "aaag", "concurrency": "branches"},
        "measured": {"tokens_per_s": rates},
        "machine": MACHINE,
        "created": "2026-11-21",
    }
    tracer.write(trace, target / "sync-beside")


def main(exports: Path, runs: Path | None = None, idle_syncs: Path | None = None) -> None:
    target = Path(__file__).parent
    if runs is not None:
        own(runs, target)
    if idle_syncs is not None:
        idle(idle_syncs, target)
    runs = {
        f"llama1b-{s}-{level}": (f"llama1b-{s}-{level}", llama(s)) for s in LLAMA_RATES for level in ("node", "graph")
    }
    runs["six-strategies"] = ("six-strategies-node", cupy())
    for name, (export, facts) in runs.items():
        trace = scrub(tracer.read(exports / f"{export}.sqlite"))
        trace.metadata["run"] = {
            "schema": "intertoken.run/1",
            **facts,
            "machine": MACHINE,
            "created": "2026-11-21",
        }
        tracer.write(trace, target / name)
        print(f"{name}: {len(trace):,} events")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
