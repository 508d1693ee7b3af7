"""Speed-up by a second GPU and by strategies: prompts in micro-batches and tokens, with the layers split over the GPUs.

All configurations run interleaved in this process; every repeat computes the prompt again and then decodes. A speed-up
is a repeat over that of `sccc` on as many GPUs in the same round; `over_one` compares with one GPU and the same
strategy. `aaeg` runs without staging. All logits are compared with those of the first configuration.
Usage: python benchmarks/gpu_pipeline.py [--model llama-8b] [--devices 1,2] [--prompt 4096] [--json FILE]
       python benchmarks/gpu_pipeline.py --backend cpu --model tiny --prompt 96 --micro-batch 16   (a dry run)
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from gpu_machine import commit, interval, logits_differ, save

from executor.backends.cuda.library import load_cuda
from executor.run import Result
from executor.run.configuration import Configuration, fitting_strategies
from executor.run.light_pass import record_light

STRATEGIES = ("sccc", "saaas", "aaas", "aaag", "aaeg")


def configurations(options: argparse.Namespace) -> list[Configuration]:
    base = Configuration(
        backend=options.backend, model=options.model, tokens=options.tokens, repeats=options.repeats, warmup=3,
        prompt=options.prompt, micro_batch=options.micro_batch, context=options.prompt + options.tokens + 16,
    )  # fmt: skip
    chosen = []
    for devices in map(int, options.devices.split(",")):
        for strategy in STRATEGIES:
            c = replace(base, devices=devices, strategy=strategy, staging=strategy != "aaeg")
            if strategy in fitting_strategies(c):
                chosen.append(c)
    return chosen


def prompt_seconds(result: Result) -> list[float]:
    """Return the time of the prompt in each repeat, from its first copy until its last token was sampled."""
    ranges = result.trace["nvtx"]
    prefill = ranges[ranges["text"] == "prefill"].sort_values("start")
    seconds = ((prefill["end"] - prefill["start"]) / 1e9).tolist()
    return seconds[-result.configuration.repeats :]  # the first was before the warm-up


def rows_of(results: list[Result]) -> list[dict[str, Any]]:
    kinds = {
        "prompt": {r.configuration: np.array(prompt_seconds(r)) for r in results},
        "decode": {r.configuration: np.array(r.seconds) for r in results},
    }
    rows = []
    for result in results:
        c = result.configuration
        row: dict[str, Any] = {"strategy": c.strategy, "devices": c.devices, "splits": len(result.prepared.splits)}
        for kind, seconds in kinds.items():
            tokens = c.prompts.lengths[0] if kind == "prompt" else c.tokens
            base = seconds[replace(c, strategy="sccc", staging=True)]
            one = seconds[replace(c, devices=1)] if replace(c, devices=1) in seconds else seconds[c]
            row[kind] = {
                "tokens_per_s": interval((tokens / seconds[c]).tolist()),
                "speedup": interval((base / seconds[c]).tolist(), digits=4),
                "over_one": interval((one / seconds[c]).tolist(), digits=4),
            }
        rows.append(row)
    return rows


def show(row: dict[str, Any]) -> None:
    def text(kind: str) -> str:
        rate, speedup, one = (row[kind][name] for name in ("tokens_per_s", "speedup", "over_one"))
        return (
            f"{kind} {rate['median']:9.1f} t/s, over sccc {speedup['median']:.3f} [{speedup['low']:.3f} "
            f"{speedup['high']:.3f}], over one GPU {one['median']:.3f}  "
        )

    print(
        f"{row['devices']} GPUs {row['strategy']:6} {text('prompt')} {text('decode')}differ {row['logits_differ']:.1g}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--model", default="llama-8b")
    parser.add_argument("--devices", default="1,2")
    parser.add_argument("--prompt", type=int, default=4096)
    parser.add_argument("--micro-batch", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--commit", default=commit())
    parser.add_argument("--json", type=Path, help="save the result here (with GPUs)")
    options = parser.parse_args()
    chosen = configurations(options)
    few = [replace(c, tokens=4, repeats=1, warmup=0) for c in chosen]
    results = record_light([*chosen, *few], keep_logits=few)
    rows = rows_of(results[: len(chosen)])
    for row, difference in zip(rows, logits_differ(results[len(chosen) :]), strict=True):
        row["logits_differ"] = difference
        show(row)
    if options.json:
        result = {
            "model": options.model, "prompt": options.prompt, "micro_batch": options.micro_batch,
            "tokens": options.tokens, "repeats": options.repeats, "rows": rows,
        }  # fmt: skip
        save(options.json, "gpu_pipeline", load_cuda(), options.commit, result)


if __name__ == "__main__":
    main()
