"""Decoding many sequences with a unified KV cache and with one stream each: sequences × prompts × shared or separate.

Both kinds run interleaved in this process, each from prompts computed once. Every repeat gives one rate, and a ratio is
a repeat with streams over the unified one of the same round. The device samples. `agree` is the share of sequences with
the same token in the first step after the prompts; sums over more cells round differently.
Usage: python benchmarks/gpu_kv_streams.py [--sequences 1,8,32] [--prompts 0,512,2048] [--json FILE]
Without a GPU: --backend cpu --model tiny --sequences 1,4 --prompts 0,40 --tokens 4 --repeats 3
"""

from __future__ import annotations

import argparse
import time
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gpu_machine import commit, interval, save

from executor.backends import open_backend
from executor.backends.cuda.library import load_cuda
from executor.backends.interface import Backend, HostArray
from executor.graph.fusion import fuse
from executor.graph.models import MODELS, sample_on_device
from executor.graph.models.kv_cache import KINDS, KvCache, plan_cache
from executor.graph.models.step import DecodeStep
from executor.planning import Prepared, prepare
from executor.planning.devices import Device
from executor.scheduling.memory import Weights, load_weights
from executor.scheduling.prompts import Prefill, Prompts
from executor.scheduling.scheduler import GrowingScheduler, Scheduler
from executor.scheduling.strategies import SCCC, STRATEGIES

WARMUP = 8


@dataclass
class Run:
    """One kind of cache, with its prompts computed.

    Attributes:
        first: token that each sequence continues with.
        lengths: tokens that each sequence holds before it.
        prefill_s: time of the prompts.
    """

    cache: KvCache
    scheduler: GrowingScheduler
    first: HostArray
    lengths: HostArray
    prefill_s: float

    def seconds(self, tokens: int) -> float:
        """Return the seconds of `tokens` token steps after the prompts."""
        self.scheduler.begin(self.first, self.lengths)
        self.scheduler.now.finish()
        start = time.perf_counter()
        for _ in range(tokens):
            self.scheduler.step()
        self.scheduler.now.finish()
        return time.perf_counter() - start


def make_run(backend: Backend, weights: Weights, kind: str, prompts: Prompts, options: argparse.Namespace) -> Run:
    """Plan, place and compute the prompts."""
    most = max(options.tokens, WARMUP)
    cache = plan_cache(kind, prompts.lengths, most, options.context, shared=prompts.shared)
    build = partial(MODELS[options.model], cache=lambda context: cache)
    strategy = STRATEGIES[options.strategy]

    def prepared(step: DecodeStep) -> Prepared:
        return prepare(fuse(step) if backend.fuses else step, backend.name, "sequential")

    backends = {Device(backend.name): backend}
    step = build(batch=len(prompts.lengths), on_device=strategy.advances_on_device, history=most)
    _, first = prompts.tokens(step.vocabulary, 0)
    start, prefill, scheduler = time.perf_counter(), None, None
    if any(prompts.lengths):
        prefill = Prefill(prompts, build, prepared, 0)
        make = partial(Scheduler, backends, strategy=SCCC(), launch="graph", weights=weights)
        scheduler = prefill.place(make)
        start = time.perf_counter()
        first = prefill.run()
    seconds = time.perf_counter() - start
    sizes: list[Scheduler] = []
    for size in step.sizes:
        each = step if size == step.sizes[-1] else build(batch=len(prompts.lengths), attended=size)
        each = each if strategy.advances_on_device else sample_on_device(each)
        before = {"smaller": sizes[-1]} if sizes else {"prefill": scheduler}
        sizes.append(Scheduler(backends, prepared(each), strategy(), "graph", weights, **before))
    return Run(cache, GrowingScheduler(sizes), first, np.array(prompts.lengths), seconds)


def first_sampled(run: Run, on_device: bool) -> HostArray:
    run.seconds(1)
    return run.scheduler.now.read_history()["tokens"][0] if on_device else run.scheduler.now.tokens


def measure(options: argparse.Namespace, sequences: int, prompt: int, shared: bool) -> dict[str, Any]:
    prompts = Prompts((prompt,) * sequences, shared)
    with closing(open_backend(options.backend)) as backend:
        whole = prepare(MODELS[options.model](), options.backend, "sequential")
        weights = load_weights({Device(options.backend): backend}, [part.split for part in whole.splits], 0)
        runs = [make_run(backend, weights, kind, prompts, options) for kind in KINDS]
        unified, streams = (first_sampled(run, STRATEGIES[options.strategy].advances_on_device) for run in runs)
        for run in runs:
            run.seconds(WARMUP)
        seconds = np.array([[run.seconds(options.tokens) for run in runs] for _ in range(options.repeats)])
    rates = options.tokens * sequences / seconds
    row: dict[str, Any] = {
        "sequences": sequences, "prompt": prompt, "shared": shared,
        "streams_over_unified": interval(rates[:, KINDS.index("streams")] / rates[:, KINDS.index("unified")], digits=4),
        "agree": float(np.mean(unified == streams)),
    }  # fmt: skip
    for kind, run, rate in zip(KINDS, runs, rates.T, strict=True):
        row[kind] = {"tokens_per_s": interval(rate), "cells": run.cache.cells, "prefill_s": round(run.prefill_s, 3)}
    return row


def show(row: dict[str, Any]) -> None:
    ratio = row["streams_over_unified"]
    kinds = "  ".join(
        f"{kind} {row[kind]['tokens_per_s']['median']:8.1f} t/s ({row[kind]['cells']} cells, "
        f"prompts {row[kind]['prefill_s']:.1f} s)"
        for kind in KINDS
    )
    print(
        f"{row['sequences']:3} × {row['prompt']:5}{' shared' if row['shared'] else '':7}  {kinds}  streams/unified "
        f"{ratio['median']:.3f} [{ratio['low']:.3f} {ratio['high']:.3f}]  agree {row['agree']:.2f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--model", default="llama-1.1b")
    parser.add_argument("--strategy", default="aaag")
    parser.add_argument("--sequences", default="1,8,32")
    parser.add_argument("--prompts", default="0,512,2048")
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--commit", default=commit())
    parser.add_argument("--json", type=Path, help="save the result here (with a GPU)")
    options = parser.parse_args()
    rows = []
    for sequences in map(int, options.sequences.split(",")):
        for prompt in map(int, options.prompts.split(",")):
            for shared in (False, True) if prompt and sequences > 1 else (False,):
                rows.append(measure(options, sequences, prompt, shared))
                show(rows[-1])
    if options.json:
        result = {
            "model": options.model, "strategy": options.strategy, "tokens": options.tokens, "repeats": options.repeats,
            "rows": rows,
        }  # fmt: skip
        save(options.json, "gpu_kv_streams", load_cuda(), options.commit, result)


if __name__ == "__main__":
    main()
