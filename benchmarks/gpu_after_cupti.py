"""Lasting effects of a recording: launching the same CUDA graphs before, during and after it, in one process.

Each stage gives the time of a graph launch (as the host sees the call) and tokens/s, as medians
over several processes, with the models in turn. "disabled" is the cost of CUPTI with its activities disabled but still
in the process, "stopped" the remaining cost after the recorder has stopped, which detaches CUPTI.
Usage: python benchmarks/gpu_after_cupti.py [--models llama-1.1b,gdn-2b,llama-8b] [--json FILE]        needs a GPU
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from gpu_machine import commit, interval, save

import tracer
from executor.backends.cuda.backend import CudaBackend, CudaGraph
from executor.backends.cuda.library import load_cuda
from executor.planning.concurrency import MAIN_STREAM
from executor.run import execute
from executor.run.configuration import Configuration
from tracer.recorders import cupti


def stage(model: str) -> dict[str, float]:
    """Return µs per launch, number of graph nodes, and tokens/s of a run."""
    configuration = Configuration(backend="cuda", model=model, strategy="aaag", tokens=40, warmup=8, repeats=3)
    took: list[int] = []

    class Timed(CudaBackend):
        """A backend that notes how long each launch of a graph takes."""

        def launch_graph(self, graph: CudaGraph, stream: int = MAIN_STREAM) -> None:
            """Launch and note."""
            start = time.perf_counter_ns()
            super().launch_graph(graph, stream)
            took.append(time.perf_counter_ns() - start)

    (result,) = execute([configuration], open_backend=Timed.start, make_recorder=lambda: None)
    return {
        "launch_us": float(np.median(took)) / 1e3,
        "tokens_per_s": float(np.median([configuration.tokens / s for s in result.seconds])),
        "nodes": float(len(result.prepared.splits[0].plan.launches)),
    }


def stages(model: str) -> dict[str, dict[str, float]]:
    """Return the figures of each stage, in order."""
    found = {"before": stage(model)}
    with patch.object(cupti._Process, "detach"), tracer.record("cupti"):
        found["node level"] = stage(model)
    found["disabled"] = stage(model)
    with tracer.record("cupti"):
        found["node level again"] = stage(model)
    found["stopped"] = stage(model)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="llama-1.1b,gdn-2b,llama-8b")
    parser.add_argument("--processes", type=int, default=3, help="processes per model")
    parser.add_argument("--commit", default=commit())
    parser.add_argument("--json", type=Path, help="save the result here")
    options = parser.parse_args()
    models = options.models.split(",")
    found: dict[str, list[dict[str, dict[str, float]]]] = {model: [] for model in models}
    for model in models * options.processes:
        with multiprocessing.get_context("spawn").Pool(1) as process:
            found[model].append(process.apply(stages, (model,)))
    rows: dict[str, Any] = {}
    for model, times in found.items():
        rows[model] = {name: {k: interval([t[name][k] for t in times]) for k in times[0][name]} for name in times[0]}
        for name, row in rows[model].items():
            launch, rate = row["launch_us"], row["tokens_per_s"]
            print(f"{model:12} {name:18} launch {launch['median']:7.1f} us  {rate['median']:8.1f} tokens/s", flush=True)
    if options.json:
        save(options.json, "gpu_after_cupti", load_cuda(), options.commit, {"models": rows})


if __name__ == "__main__":
    main()
