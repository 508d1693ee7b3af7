"""Records what `whatif_prediction.py` predicts from, and measures what it predicts, on one GPU.

- ladder: every strategy of `intertoken whatif --sync`, and the recording of sccc;
- eager: kernels launched one by one and as one graph, and the recordings of the former;
- branches: one stream and branches on several under aaag, models × batch, and the recordings of one stream.

Everything compared runs interleaved in this process. Recordings are run directories of the light pass, with every
kernel (CUPTI at node level, a few tokens) in `node/`. They are too large to be kept; what was predicted from them is.
Usage: python benchmarks/whatif_record.py -o DIRECTORY [--repeats 3] [--seconds 600]        needs a GPU
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from gpu_machine import commit, interval, machine

import tracer
from executor.backends.cuda_runtime import load_cuda
from executor.configuration import Configuration
from executor.run import execute
from executor.run_directory import write_run
from tracer.formats import nsys_parquet

STRATEGIES = ("sccc", "saaas", "aaas", "aaag", "ggg")
LADDER_MODELS = ("llama-1.1b", "llama-8b", "gdn-2b")
EAGER_MODELS = ("llama-1.1b", "gdn-2b", "moe-7b", "llama-8b")
BRANCH_MODELS = ("llama-1.1b", "llama-8b", "moe-7b", "gdn-2b", "gdn-4b")
BATCHES = (1, 4, 8, 2)
TRACED = 12  # tokens at node level
BASE = Configuration(backend="cuda", strategy="aaag", tokens=40, warmup=8)

Case = tuple[str, list[Configuration]]
"""Kind, and the configurations to compare; the first is the one that is recorded."""


def cases() -> Iterator[Case]:
    """What is compared, the most telling first."""
    for model in LADDER_MODELS:
        yield "ladder", [replace(BASE, model=model, strategy=strategy) for strategy in STRATEGIES]
    for model in EAGER_MODELS:
        yield "eager", [replace(BASE, model=model, strategy="sccc", launch=launch) for launch in ("eager", "graph")]
    for batch, model in product(BATCHES, BRANCH_MODELS):
        one = replace(BASE, model=model, batch=batch)
        yield "branches", [one, replace(one, concurrency="branches", allocator="stream_aware")]


def measure(kind: str, configurations: list[Configuration], repeats: int, directory: Path) -> dict[str, Any]:
    results = execute([replace(c, repeats=repeats) for c in configurations])
    base = results[0]
    run = write_run(base, directory / kind)
    for configuration, name in zip(
        configurations[: 1 if kind == "ladder" else 2], ("node", "node-changed"), strict=False
    ):
        with tracer.record("cupti", kinds=("kernels", "api", "descriptions")) as recording:
            execute([replace(configuration, tokens=TRACED, repeats=1)], make_recorder=lambda: None)
        nsys_parquet.write(recording.trace, run / name)
        gc.collect()
    return {
        "kind": kind,
        "run": f"{kind}/{run.name}",
        "model": base.configuration.model,
        "batch": base.configuration.batch,
        "tokens_per_s": interval([base.configuration.tokens * base.configuration.batch / s for s in base.seconds]),
        "measured": {
            f"{r.configuration.strategy} {r.configuration.launch} {r.configuration.concurrency}": interval(
                [b / s for b, s in zip(base.seconds, r.seconds, strict=True)], digits=4
            )
            for r in results[1:]
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=600, help="begin nothing new after that")
    parser.add_argument("--commit", default=commit())
    options = parser.parse_args()
    start, rows = time.monotonic(), []
    for kind, configurations in cases():
        if time.monotonic() - start > options.seconds:
            break
        rows.append(row := measure(kind, configurations, options.repeats, options.output))
        found = "  ".join(f"{name} {m['median']:.4f}" for name, m in row["measured"].items())
        print(
            f"{time.monotonic() - start:5.0f} s  {row['run']:60} {row['tokens_per_s']['median']:8.1f}  {found}",
            flush=True,
        )
        facts = {"commit": options.commit, "machine": machine(load_cuda()), "repeats": options.repeats, "rows": rows}
        (options.output / "measured.json").write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
