"""Make the bundled recordings of vLLM and transformers: `python sample_traces/make_engines.py DIR`.

DIR holds what `benchmarks/record_engines.py` left, and the SQLite exports of what nsys recorded around it. Every rate
that was measured goes to benchmarks/results/engine_samples.json.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any, Final

import pandas as pd

import tracer
from tracer.scrub import scrub

TARGET: Final = Path(__file__).parent
RESULTS: Final = TARGET.parent / "benchmarks" / "results" / "engine_samples.json"
COMMIT: Final = "65b6926"  # of record_engines.py
UNTRACED: Final = {
    "vllm": ("untraced-1", "untraced-2", "untraced-3"),
    "static": ("static", "static-2"),  # the repeats before the window, in the same process, and a process without one
    "static-eager": ("static-eager",),
    "batching": ("batching",),
    "batching-graphs": ("batching-graphs",),
}
"""Of which processes the repeats are a rate without a profiler."""
RECORDINGS: Final = {
    "vllm-b1-graph": ("none.1.sqlite", "none", "b1"),
    "vllm-b8-graph": ("none.2.sqlite", "none", "b8"),
    "vllm-joining-graph": ("none.3.sqlite", "none", "joining"),
    "vllm-b1-graph-nvtx": ("marks.1.sqlite", "marks", "b1"),
    "vllm-b8-graph-nvtx": ("marks.2.sqlite", "marks", "b8"),
    "vllm-joining-graph-nvtx": ("marks.3.sqlite", "marks", "joining"),
    "vllm-b1-node-nvtx": ("node-marks.1.sqlite", "node-marks", "b1"),
    "vllm-b8-node": ("node-none.sqlite", "node-none", "b8"),
    "vllm-b8-torch": ("torch-b8.pt.trace.json.gz", "torch-b8", "b8"),
    "transformers-static": ("static.pt.trace.json.gz", "static", "static"),
    "transformers-eager": ("static-eager.pt.trace.json.gz", "static-eager", "static-eager"),
    "transformers-batching": ("batching.pt.trace.json.gz", "batching", "batching"),
    "transformers-batching-graphs": ("batching-graphs.pt.trace.json.gz", "batching-graphs", "batching-graphs"),
}
"""Name here -> recording, process that was recorded, case."""
EAGER: Final = ("static-eager", "batching")
KEPT: Final = {"transformers-eager": 12}  # decode steps; it has an operator for every two kernels or so, and 24 steps
SET_UP: Final = 2  # fetches of `generate` before its first step


def first_steps(trace: tracer.Trace, steps: int) -> tracer.Trace:
    """The prefill and the first decode steps of a `generate` that fetches one flag a step, whether it is done."""
    fetched = trace["memcpys"].query("kind == 'DtoH'")["end"].sort_values().iloc[SET_UP + steps]
    launches = trace["api"].loc[trace["api"]["name"] == "cudaLaunchKernel", "start"]
    end = launches[launches > fetched].min()

    def cut(_: str, frame: pd.DataFrame) -> pd.DataFrame:
        return frame[frame["end"] <= end] if "start" in frame else frame

    return trace.map_tables(cut)


def rate(values: list[float], times: int = 1) -> dict[str, Any]:
    """Median, lowest and highest of repeats."""
    found = [round(value * times, 2) for value in values]
    return {"median": statistics.median(found), "low": min(found), "high": max(found), "repeats": found}


def facts(processes: dict[str, dict[str, Any]], process: str, case: str) -> dict[str, Any]:
    """The run.json of a recording; tokens/s only where every decode step has the same sequences."""
    recorded = processes[process]
    untraced = UNTRACED[recorded["engine"] if recorded["engine"] in UNTRACED else case]
    repeats = [run for name in untraced for run in processes[name]["cases"][case]["repeats"]]
    steps = [run["decode_steps_per_s"] for run in repeats]
    window = recorded["cases"][case]["window"]
    configuration = {"backend": "cuda", "engine": recorded["engine"], "model": "llama 1.1B bf16",
                     "launch": "eager" if case in EAGER else "graph"}  # fmt: skip
    measured = {"steps_per_s": rate(steps)}
    if case != "joining":
        configuration["batch"] = max(window["sequences"])
        measured["tokens_per_s"] = rate(steps, configuration["batch"])
    return {
        "schema": "intertoken.run/1",
        "configuration": configuration,
        "measured": measured,
        "counted": {kind: window[kind] for kind in ("decode", "prefill", "mixed")},
        "machine": recorded["machine"] | {"cuda": "13.0"},
        "versions": recorded["versions"],
        "created": recorded["date"],
    }


def main(directory: Path) -> None:
    processes = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(directory.glob("*.json"))}
    for name, (recording, process, case) in RECORDINGS.items():
        trace = scrub(tracer.read(directory / recording))
        threads = trace["threads"]  # nsys names those of every process of the machine
        trace.tables["threads"] = threads[threads["process"].isin(trace["processes"]["process"])]
        run = facts(processes, process, case)
        if name in KEPT:
            trace = first_steps(trace, KEPT[name])
            run["counted"]["decode"] = KEPT[name]
        trace.metadata |= {"run": run}
        tracer.write(trace, TARGET / name)
        print(f"{name}: {len(trace):,} events")
    first = next(iter(processes.values()))
    content = {"benchmark": "engine_samples", "date": first["date"], "commit": COMMIT, "processes": processes,
               "machine": first["machine"]}  # fmt: skip
    RESULTS.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
