"""Speed-up by branches on several streams: models × batch × concurrency mode × the two safe allocators.

All modes of a model and batch run interleaved in this process under one strategy. Every repeat gives one rate, and a
speed-up is a repeat over the sequential one of the same round. The logits of each cell are compared with the sequential
ones. For cells below 1.00 a node-level recording shows where the time goes: longer kernels, or time between them.
Usage: python benchmarks/gpu_concurrency.py [--models llama-1.1b,...] [--batches 1,2,4,8] [--repeats 7] [--json FILE]
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from gpu_machine import commit, interval, logits_differ, save

import tracer
from executor.backends.cuda.library import load_cuda
from executor.run import Result, execute
from executor.run.configuration import Configuration
from executor.run.light_pass import record_light
from tracer.analysis.gaps import gap_report
from tracer.analysis.tokens import find_steps
from tracer.model.intervals import total

MODELS = "llama-1.1b,llama-8b,moe-7b,gdn-2b,gdn-4b"
CELLS = [
    ("sequential", "sequential"),
    *((m, a) for m in ("branches", "subgraphs") for a in ("no_alloc_free", "stream_aware")),
]
TOKENS, TRACED = 40, 12


def configurations(model: str, batch: int, strategy: str, **options: Any) -> list[Configuration]:
    base = Configuration(backend="cuda", model=model, batch=batch, strategy=strategy, warmup=8, **options)
    return [replace(base, concurrency=mode, allocator=allocator) for mode, allocator in CELLS]


def where_the_time_goes(configuration: Configuration) -> dict[str, float]:
    """Return µs per step at node level: summed kernel durations, their union, and first start to last end.

    Call it in a separate process: CUPTI makes graph launches slower even after it has stopped.
    """
    with tracer.record("cupti", kinds=("kernels", "api", "descriptions")) as recording:
        execute([replace(configuration, tokens=TRACED, repeats=1)], make_recorder=lambda: None)
    trace = recording.trace
    steps = find_steps(trace).table
    calls = trace["api"][trace["api"]["name"].astype("str").str.contains("Launch")]
    step_of = pd.Series(np.searchsorted(steps["start"], calls["start"], "right"), index=calls["correlation"])
    kernels = trace["kernels"][trace["kernels"]["correlation"].isin(calls["correlation"])]
    rows = [
        ((k["end"] - k["start"]).sum(), total(k["start"], k["end"]), k["end"].max() - k["start"].min())
        for _, k in kernels.groupby(step_of.reindex(kernels["correlation"]).to_numpy())
    ]
    summed, busy, span = np.median(rows[2:], axis=0) / 1e3
    return {"kernels_us": summed, "busy_us": busy, "span_us": span}


def row(result: Result, base: Result, difference: float) -> dict[str, Any]:
    c, plan, memory = result.configuration, result.prepared.splits[0].plan, result.prepared.splits[0].memory
    rates = [c.tokens * c.batch / s for s in result.seconds]
    ratios = [b / s for b, s in zip(base.seconds, result.seconds, strict=True)]
    found = gap_report(result.trace, find_steps(result.trace))
    return {
        "model": c.model, "batch": c.batch, "mode": c.concurrency, "allocator": c.allocator,
        "tokens_per_s": interval(rates), "speedup": interval(ratios, digits=4), "gap_us": found.gap_us["p50"],
        "step_us": found.period_us - found.gap_us["p50"],
        "peak_bytes": memory.peak_bytes, "streams": plan.streams, "events": plan.events, "logits_differ": difference,
    }  # fmt: skip


def measure(model: str, batch: int, strategy: str, repeats: int) -> list[dict[str, Any]]:
    results = record_light(configurations(model, batch, strategy, tokens=TOKENS, repeats=repeats))
    few = configurations(model, batch, strategy, tokens=4, repeats=1)
    differences = logits_differ(execute(few, keep_logits=True))
    rows = [row(result, results[0], d) for result, d in zip(results, differences, strict=True)]
    for found, result in zip(rows, results, strict=True):
        if found["mode"] == "sequential" or found["speedup"]["median"] < 1:
            with multiprocessing.get_context("spawn").Pool(1) as process:
                found["node_level"] = process.apply(where_the_time_goes, (result.configuration,))
    gc.collect()
    return rows


def show(found: dict[str, Any]) -> None:
    rate, speedup = found["tokens_per_s"], found["speedup"]
    why = "".join(f"  {name[:-3]} {us:.0f}" for name, us in found.get("node_level", {}).items())
    print(
        f"{found['model']:11} b{found['batch']} {found['mode']:10} {found['allocator']:13} {rate['median']:8.1f} "
        f"{speedup['median']:.3f} [{speedup['low']:.3f} {speedup['high']:.3f}]  "
        f"gap {found['gap_us']:5.1f} step {found['step_us']:7.1f}  {found['peak_bytes'] / 1024:7.0f} KiB "
        f"{found['streams']:2} str {found['events']:3} ev  differ {found['logits_differ']:.1g}{why}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--batches", default="1,2,4,8")
    parser.add_argument("--strategy", default="aaag")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--commit", default=commit())
    parser.add_argument("--json", type=Path, help="save the result here")
    options = parser.parse_args()
    rows = []
    for model in options.models.split(","):
        for batch in map(int, options.batches.split(",")):
            for found in measure(model, batch, options.strategy, options.repeats):
                rows.append(found)
                show(found)
            if options.json:
                result = {"strategy": options.strategy, "tokens": TOKENS, "repeats": options.repeats, "rows": rows}
                save(options.json, "gpu_concurrency", load_cuda(), options.commit, result)


if __name__ == "__main__":
    main()
