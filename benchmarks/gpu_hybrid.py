"""Speed-up by strategies and graph plans for steps cut into splits: layers or experts on the host, or several GPUs.

All configurations of a placement run interleaved in this process. Every repeat gives one rate, and a speed-up is a
repeat over one of the same round: that of `sccc` with the same policy, or of the same strategy without graphs. All
logits are compared with those of the first configuration.
Usage: python benchmarks/gpu_hybrid.py [--model llama-1.1b] [--placements 0,25,50,75,100] [--json FILE]
       python benchmarks/gpu_hybrid.py --model moe-7b --placements experts-cpu,experts-copy
       python benchmarks/gpu_hybrid.py --devices 2 --placements all      (on a machine with two GPUs)
       python benchmarks/gpu_hybrid.py --backend cpu --model tiny        (a dry run)
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_machine import commit, interval, logits_differ, save

from executor.backends.cuda_runtime import load_cuda
from executor.configuration import Configuration
from executor.devices import BLOCK_NAME
from executor.launchers import OUTCOMES
from executor.models import MODELS
from executor.run import Result, execute

STRATEGIES = ("sccc", "saaas", "aaas", "aaag")
POLICIES = ("eager", "graph", "rebuild")


def placement(model: str, name: str) -> dict[str, Any]:
    """Return the options of a placement: a share of the layers in percent, "experts-cpu", "experts-copy" or "all"."""
    if name == "all":
        return {}
    if name.startswith("experts-"):
        return {"experts": name.removeprefix("experts-")}
    blocks = {match[1] for node in MODELS[model]().graph.nodes if (match := BLOCK_NAME.match(node.name))}
    return {"gpu_layers": round((len(blocks) + 1) * int(name) / 100)}


def configurations(options: argparse.Namespace, name: str) -> list[Configuration]:
    base = Configuration(
        backend=options.backend, model=options.model, tokens=options.tokens, repeats=options.repeats, warmup=3,
        devices=options.devices, concurrency=options.concurrency, **placement(options.model, name),
    )  # fmt: skip
    policies = POLICIES if options.policies is None else tuple(options.policies.split(","))
    return [replace(base, strategy=s, launch=p) for p in policies for s in STRATEGIES]


def row(result: Result, seconds: Mapping[Configuration, list[float]], difference: float) -> dict[str, Any]:
    c = result.configuration

    def over(base: Configuration) -> dict[str, Any]:
        ratios = [b / s for b, s in zip(seconds[base], seconds[c], strict=True)]
        return interval(ratios, digits=4)

    return {
        "strategy": c.strategy, "policy": c.launch, "splits": len(result.prepared.splits),
        "tokens_per_s": interval([c.tokens * c.batch / s for s in seconds[c]]),
        "over_sccc": over(replace(c, strategy="sccc")), "over_eager": over(replace(c, launch="eager")),
        "logits_differ": difference,
        "graphs": {name: sum(split[name] for split in result.graphs) for name in OUTCOMES},
    }  # fmt: skip


def measure(options: argparse.Namespace, name: str) -> list[dict[str, Any]]:
    chosen = configurations(options, name)
    few = [replace(c, tokens=4, repeats=1, warmup=0) for c in chosen]
    both = execute([*chosen, *few], keep_logits=few)
    results, differences = both[: len(chosen)], logits_differ(both[len(chosen) :])
    seconds = {result.configuration: result.seconds for result in results}
    return [
        {"placement": name, **row(result, seconds, difference)}
        for result, difference in zip(results, differences, strict=True)
    ]


def show(found: dict[str, Any]) -> None:
    rate, speedup = found["tokens_per_s"], found["over_sccc"]
    graphs = ", ".join(f"{count} {name}" for name, count in found["graphs"].items() if count) or "no graphs"
    print(
        f"{found['placement']:8} {found['strategy']:6} {found['policy']:8} {found['splits']:3} splits "
        f"{rate['median']:8.1f} [{rate['low']:.1f} {rate['high']:.1f}]  over sccc {speedup['median']:.3f} "
        f"[{speedup['low']:.3f} {speedup['high']:.3f}]  over eager {found['over_eager']['median']:.3f}  "
        f"differ {found['logits_differ']:.1g}  {graphs}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--model", default="llama-1.1b")
    parser.add_argument("--placements", default="0,25,50,75,100")
    parser.add_argument("--policies", help="`eager` (the baseline) and others [default: eager,graph,rebuild]")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--concurrency", default="sequential")
    parser.add_argument("--tokens", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--commit", default=commit())
    parser.add_argument("--json", type=Path, help="save the result here (with a GPU)")
    options = parser.parse_args()
    if options.json and options.backend != "cuda":
        parser.error("--json records the GPU and needs --backend cuda")
    if options.policies and "eager" not in options.policies.split(","):
        parser.error("--policies must include `eager`, the baseline")
    rows = []
    for name in options.placements.split(","):
        for found in measure(options, name):
            rows.append(found)
            show(found)
    if options.json:
        result = {
            "model": options.model, "devices": options.devices, "tokens": options.tokens, "repeats": options.repeats,
            "rows": rows,
        }  # fmt: skip
        save(options.json, "gpu_hybrid", load_cuda(), options.commit, result)


if __name__ == "__main__":
    main()
