"""Makes the recordings for `whatif_prediction.py`, and measures what it predicts, on one GPU.

- ladder: every strategy of `intertoken whatif --sync`, from a recording of sccc;
- eager: kernels launched one by one and as one graph under sccc, from a recording of the former.

Compared runs are interleaved in this process, which never loads CUPTI: after a node-level recording a graph launch
permanently takes many times as long (`gpu_after_cupti.py`). Recordings are run directories of the light pass, with
all kernels of several tokens (CUPTI at node level, in a separate process) in `node/`. They are too large to keep; only
the predictions are kept.
Usage: python benchmarks/whatif_record.py -o DIRECTORY [--kinds ladder,...] [--repeats 3] [--seconds 600]
Needs a GPU.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_machine import commit, interval, machine

import tracer
from executor.backends.cuda.library import load_cuda
from executor.run import execute
from executor.run.configuration import Configuration
from executor.run.directory import write_run
from executor.run.light_pass import record_light
from tracer.formats import nsys_parquet
from tracer.recorders.cupti_records import SETS

STRATEGIES = ("sccc", "saaas", "aaas", "aaag", "ggg")
LADDER_MODELS = ("llama-1.1b", "llama-8b", "gdn-2b")
EAGER_MODELS = ("llama-1.1b", "gdn-2b", "moe-7b", "llama-8b")
UNSEEN = (
    ("ladder", "qwen3-1.7b", 1), ("ladder", "qwen3-4b", 1), ("ladder", "llama-1.1b", 8),
    ("eager", "qwen3-1.7b", 1), ("eager", "qwen3-4b", 1), ("eager", "llama-3b", 4),
)  # fmt: skip
"""Never measured before the current model was made."""

EARLIER = (
    ("ladder", "llama-3b", 1), ("ladder", "moe-7b", 1), ("ladder", "gdn-4b", 4),
    ("eager", "llama-3b", 1), ("eager", "gdn-4b", 1), ("eager", "llama-1.1b", 4),
)  # fmt: skip
"""Unseen by earlier versions of the model; the current one was chosen with them in view."""

TRACED = 12  # tokens at node level
BASE = Configuration(backend="cuda", strategy="aaag", tokens=40, warmup=8)

Case = tuple[str, str, int]
"""Kind, model and batch."""


def cases() -> Iterator[Case]:
    """Yield the cases to compare."""
    yield from UNSEEN
    yield from EARLIER
    yield from (("ladder", model, 1) for model in LADDER_MODELS)
    yield from (("eager", model, 1) for model in EAGER_MODELS)


def configurations(kind: str, model: str, batch: int) -> list[Configuration]:
    """Return the configurations to compare; the first one is recorded."""
    one = replace(BASE, model=model, batch=batch)
    if kind == "ladder":
        return [replace(one, strategy=strategy) for strategy in STRATEGIES]
    return [replace(one, strategy="sccc", launch=launch) for launch in ("eager", "graph")]


def record_nodes(configuration: Configuration, directory: Path) -> None:
    """Record every kernel of `TRACED` tokens."""
    with tracer.record("cupti", kinds=SETS["all" if configuration.launch == "eager" else "lean"]) as recording:
        execute([replace(configuration, tokens=TRACED, repeats=1)], make_recorder=lambda: None)
    nsys_parquet.write(recording.trace, directory)


def measure(kind: str, model: str, batch: int, repeats: int, directory: Path) -> dict[str, Any]:
    results = record_light([replace(c, repeats=repeats) for c in configurations(kind, model, batch)])
    base = results[0]
    run = write_run(base, directory / kind)
    gc.collect()
    with multiprocessing.get_context("spawn").Pool(1) as process:
        process.apply(record_nodes, (base.configuration, run / "node"))
    return {
        "kind": kind,
        "unseen": (kind, model, batch) in UNSEEN,
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
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=["ladder", "eager"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=600, help="start no new case after this time")
    parser.add_argument("--commit", default=commit())
    options = parser.parse_args()
    start, rows = time.monotonic(), []
    for case in cases():
        if case[0] not in options.kinds:
            continue
        if time.monotonic() - start > options.seconds:
            break
        rows.append(row := measure(*case, options.repeats, options.output))
        found = "  ".join(f"{name} {m['median']:.4f}" for name, m in row["measured"].items())
        print(
            f"{time.monotonic() - start:5.0f} s  {row['run']:60} {row['tokens_per_s']['median']:8.1f}  {found}",
            flush=True,
        )
        facts = {"commit": options.commit, "machine": machine(load_cuda()), "repeats": options.repeats, "rows": rows}
        (options.output / "measured.json").write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
