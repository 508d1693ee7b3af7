"""Overhead of the light recorder in an engine, and accuracy of its idle time: recording on and off in one process.

Engines vary more between processes than a recorder costs, so one process records and pauses in alternating blocks of
the same work. Stamps in CUDA graphs remain while it pauses; their cost is reported separately (two per graph, measured
on a chain of stamps). At the end the rings are read: period, busy and idle time of a step. The true idle time is the
period of the paused blocks minus the busy time.

Engines: torch-eager (330 kernels per step), torch-graph, vllm (in its child; with VLLM_ENABLE_V1_MULTIPROCESSING=0 in
the process), transformers (static cache, compiled), executor (our own).
Usage: python benchmarks/light_blocks.py ENGINE -o FILE [--pairs N] [--steps N] [--cases CASE,...] [--trace FOLDER]
           [--call-sites]
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import record_engines
from light_recorder import interval
from record_engines import Generate, Step, figures, machine

from tracer.recorders.light_folder import folder
from tracer.recorders.light_library import library
from tracer.recorders.light_program import FOLDER, SITES, environment, read_folder
from tracer.recorders.light_ring import switch_recording
from tracer.trace import Trace

LIMIT = 540  # s
READ = 400  # steps of the last block, which is read
PAUSE_NS = 50_000_000  # at least; no step takes as long


def switch(*, on: bool) -> None:
    """Start or pause recording in every process of this recording."""
    for ring in Path(os.environ[FOLDER]).glob("*.ring"):
        with suppress(OSError, ValueError):
            switch_recording(ring, on=on)


def blocks(generate: Generate, options: argparse.Namespace, window: Any, tokens: int) -> dict[str, Any]:
    """Return decode steps/s of alternating recorded and unrecorded blocks, without profiler windows."""
    del window
    rates: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(3):
        generate(tokens)
    for pair in range(options.pairs):
        for on in (True, False) if pair % 2 else (False, True):
            switch(on=on)
            rates[on].append(figures(generate, tokens)["decode_steps_per_s"])
    switch(on=True)
    figures(generate, max(tokens, READ))
    switch(on=False)
    return {"recorded": rates[True], "paused": rates[False]}


def torch_loop(options: argparse.Namespace) -> dict[str, Any]:
    """Run products and elementwise kernels, launched one by one or as a graph, after an input and before a result."""
    import torch

    torch.manual_seed(0)
    given = torch.zeros(16, dtype=torch.int64).pin_memory()
    taken = torch.zeros(16, dtype=torch.int64, device="cuda")
    start = torch.randn(256, 256, device="cuda")
    weights = [torch.randn(256, 256, device="cuda") * 0.04 for _ in range(110)]

    def forward() -> Any:
        hidden = start
        for weight in weights:
            hidden = torch.tanh(hidden @ weight) + start
        return hidden

    for _ in range(3):
        forward().sum().item()
    graph = torch.cuda.CUDAGraph() if options.engine == "torch-graph" else None
    if graph:
        with torch.cuda.graph(graph):
            result = forward()

    def generate(tokens: int) -> list[Step]:
        steps = []
        for token in range(tokens):
            taken.copy_(given, non_blocking=True)
            if graph:
                graph.replay()
            (result if graph else forward()).sum().item()
            steps.append(Step(time.perf_counter(), int(not token), int(bool(token))))
        return steps

    return {options.engine: blocks(generate, options, None, options.steps)}


def executor(options: argparse.Namespace) -> dict[str, Any]:
    """Run our own decode loop."""
    from executor.configuration import Configuration
    from executor.run import execute

    found = {}
    for strategy in options.cases or ["sccc", "saaas", "aaag"]:
        chosen = Configuration(
            backend="cuda", model="llama-1.1b", strategy=strategy, tokens=options.steps, repeats=1, warmup=10
        )

        def generate(tokens: int, chosen: Configuration = chosen) -> list[Step]:
            (result,) = execute([chosen], make_recorder=lambda: None)
            each = result.seconds[0] / tokens
            return [Step(i * each, int(not i), int(bool(i))) for i in range(tokens)]

        found[strategy] = blocks(generate, options, None, options.steps)
    return found


def engine(options: argparse.Namespace) -> dict[str, Any]:
    """Run an engine of record_engines.py, with blocks in place of its repeats."""
    record_engines.measured = blocks
    return record_engines.ENGINES[options.engine](options)


ENGINES = {
    "torch-eager": torch_loop, "torch-graph": torch_loop, "vllm": engine, "transformers": engine, "executor": executor,
}  # fmt: skip


def last_block(trace: Trace) -> Trace:
    """Return what follows the last pause of a recording."""
    start = np.sort(trace["api"]["start"].to_numpy())
    pauses = np.flatnonzero(np.diff(start) > PAUSE_NS)
    since = start[pauses[-1] + 1] if len(pauses) else start[0]
    tables = {
        name: table[table["start"] >= since] if "start" in table else table for name, table in trace.tables.items()
    }
    return Trace({name: table.reset_index(drop=True) for name, table in tables.items()}, trace.metadata, trace.notes)


def told(rings: Path, trace_to: Path | None) -> dict[str, Any]:
    """Return the figures of the recording, µs, and write its last block, which follows the last pause."""
    from tracer.analysis.gaps import gap_report
    from tracer.analysis.tokens import find_steps
    from tracer.formats import write

    trace = read_folder(rings)
    if trace is None:
        return {}
    if trace_to:
        write(last_block(trace), trace_to)
    report = gap_report(trace, find_steps(trace))
    idle = report.idle
    return {
        "gap_us": report.gap_us, "idle_us": idle.idle_us, "busy_us": idle.busy_us,
        "period_us": float(idle.steps["period"].median() / 1e3) if len(idle.steps) else None,
        "kernels": len(trace["kernels"]), "graph_launches": len(trace["graph_launches"]), "notes": trace.notes,
    }  # fmt: skip


def summary(name: str, rates: dict[str, list[float]]) -> dict[str, Any]:
    """Return slowdown and period of a case."""
    slowdown = interval([off / on for off, on in zip(rates["paused"], rates["recorded"], strict=True)])
    period = 1e6 / statistics.median(rates["paused"])
    percent = [round(100 * (value - 1), 2) for value in slowdown]
    print(f"{name}: slowdown {percent[0]} % {percent[1:]}, untraced period {period:.1f} µs", flush=True)
    return {"slowdown": slowdown, "untraced_period_us": round(period, 2), "rates": rates}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--cases", type=lambda text: text.split(","), default=[])
    parser.add_argument("--trace", type=Path, help="keep the last block of the recording in this folder")
    parser.add_argument("--call-sites", action="store_true", help="record with call sites")
    parser.add_argument("--engine-options", type=json.loads, default={}, help="of vLLM, see record_engines.py")
    options = parser.parse_args()
    if os.environ.get("LIGHT_BLOCKS"):
        fixed = {"window": "none", "name": "", "repeats": 0, "tokens": 0, "device": "cuda", "model": {}}
        for name, value in fixed.items():
            setattr(options, name, value)
        options.output.write_text(json.dumps(ENGINES[options.engine](options)), encoding="utf-8")
        return
    with folder() as rings:
        given = environment(library(), rings, {**os.environ, "LIGHT_BLOCKS": "1"})
        given |= {SITES: "1"} if options.call_sites else {}
        done = subprocess.run([sys.executable, *sys.argv], env=given, timeout=LIMIT, check=False)
        if done.returncode:
            raise SystemExit(f"{options.engine} ended with {done.returncode}")
        cases = json.loads(options.output.read_text(encoding="utf-8"))
        found = {"cases": {name: summary(name, rates) for name, rates in cases.items()}}
        found |= {"told": told(rings, options.trace)}
    last = list(found["cases"].values())[-1]
    if idle := found["told"].get("idle_us"):
        truth = last["untraced_period_us"] - found["told"]["busy_us"]
        print(f"idle {idle['p50']:.1f} µs, untraced period - busy {truth:.1f} µs, gap {found['told']['gap_us']['p50']}")
    for note in found["told"].get("notes", []):
        print("note:", note[:300])
    facts = {"date": datetime.date.today().isoformat(), **machine(), "engine": options.engine,
             "call_sites": options.call_sites, **found}  # fmt: skip
    options.output.write_text(json.dumps(facts, indent=1, default=float) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
