"""Speed-up by strategies and graph plans for steps cut into splits: layers or experts on the host, or several GPUs.

All configurations of a placement run interleaved in this process and share its weights. Every repeat gives one rate,
and a speed-up is a repeat over one of the same round: that of `sccc` with the same policy, or of the same strategy
without graphs. All logits are compared with those of the first configuration. With `--prompt`, every repeat starts with
a prompt, whose rate is taken from its range in the recording.

`shares` says what the time of a token consists of, from the recording of the same repeats: the host's products and
attention alone, the GPU alone (from head to tail of a split), both at once, and while neither computes, calls that
synchronise, copy or launch, and everything else. A strategy can gain no more than the last four; a plan also pauses
between the kernels of a split, which count as the GPU's. `aaeg` runs without staging, which it replaces;
`aga` needs the whole step on one device and takes part only in placement `all`.
Usage: python benchmarks/gpu_hybrid.py [--model llama-1.1b] [--placements 0,25,50,75,100] [--json FILE]
       python benchmarks/gpu_hybrid.py --model llama-8b --placements 75,50,25 --tokens 5
       python benchmarks/gpu_hybrid.py --model moe-7b --placements experts-cpu,experts-copy
       python benchmarks/gpu_hybrid.py --prompt 128 --tokens 1 --policies eager,graph
       python benchmarks/gpu_hybrid.py --model moe-7b --placements experts-cpu --batch 8 --halves
       python benchmarks/gpu_hybrid.py --devices 2 --placements all      (on a machine with two GPUs)
       python benchmarks/gpu_hybrid.py --backend cpu --model tiny        (a dry run)
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
from gpu_machine import commit, interval, logits_differ, save

from executor.backends.cpu_compiled import default_threads
from executor.backends.cuda_runtime import load_cuda
from executor.configuration import Configuration
from executor.devices import BLOCK_NAME
from executor.launchers import OUTCOMES
from executor.models import MODELS
from executor.run import Result, execute
from executor.strategies import STRATEGIES as ALL
from tracer import Trace
from tracer.analysis.calls import BLOCKING_COPY, COPY, GRAPH_LAUNCH, LAUNCH, SYNC, among, letters_of
from tracer.intervals import Ints, intersection, total, uncovered, union
from tracer.schema import COMPUTE_TABLES, HOST_COMPUTE

STRATEGIES = ("sccc", "saaas", "aaas", "aaag", "aaeg", "aga")
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
        devices=options.devices, concurrency=options.concurrency, prompt=options.prompt, threads=options.threads,
        pinned=options.pinned, batch=options.batch, **placement(options.model, name),
    )  # fmt: skip
    cut = name != "all" or options.devices > 1
    chosen = [s for s in options.strategies.split(",") if ALL[s].splits or not cut]
    return [
        replace(base, strategy=s, launch=p, staging=s != "aaeg", halves=halves)
        for halves in ((False, True) if options.halves else (False,))
        for p in options.policies.split(",")
        for s in chosen
    ]


Spans = tuple[Ints, Ints]


def without(spans: Spans, taken: Spans) -> Spans:
    """Return the parts of disjoint intervals outside others."""
    start, end, _ = uncovered(*taken, *spans)
    return start, end


def of(frame: pd.DataFrame) -> Spans:
    return union(frame["start"], frame["end"])


def shares(trace: Trace) -> dict[str, float]:
    """Return the share of each state in the token steps; the states are disjoint and add up to 1."""
    ranges, api = trace["nvtx"], trace["api"]
    left = whole = of(ranges[(ranges["text"].astype(str) == "token") & (ranges["end"] > ranges["start"])])
    letters = letters_of(api["name"])
    host = of(ranges[(ranges["domain"] == HOST_COMPUTE).to_numpy()])
    gpu = of(pd.concat([trace[name][["start", "end"]] for name in (*COMPUTE_TABLES, "graph_launches")]))
    states = {
        "both": intersection(host, gpu), "host": host, "gpu": gpu, "sync": of(api[letters == SYNC]),
        "copy": of(api[among(letters, [COPY, BLOCKING_COPY])]),
        "launch": of(api[among(letters, [LAUNCH, GRAPH_LAUNCH])]),
    }  # fmt: skip
    found = {}
    for name, spans in states.items():
        found[name] = total(*intersection(left, spans))
        left = without(left, spans)
    found["other"] = total(*left)
    return {name: round(ns / max(total(*whole), 1), 4) for name, ns in found.items()}


def prompt_seconds(result: Result) -> list[float]:
    """Return how long the prompts took in each repeat; the first prefill belongs to the warm-up."""
    ranges = result.trace["nvtx"]
    found = ranges[ranges["text"].astype(str) == "prefill"].sort_values("start")
    return ((found["end"] - found["start"]) / 1e9).tolist()[1:]


def row(result: Result, results: Mapping[Configuration, Result], difference: float) -> dict[str, Any]:
    c = result.configuration
    bases = {"over_sccc": replace(c, strategy="sccc", staging=True), "over_eager": replace(c, launch="eager")}
    bases |= {"over_whole": replace(c, halves=False)} if c.halves else {}

    def figures(seconds: Mapping[Configuration, list[float]], tokens: int) -> dict[str, Any]:
        ratios = {n: [b / s for b, s in zip(seconds[base], seconds[c], strict=True)] for n, base in bases.items()}
        rates = interval([tokens / s for s in seconds[c]])
        return {"tokens_per_s": rates} | {n: interval(each, digits=4) for n, each in ratios.items()}

    found = {
        "strategy": c.strategy, "policy": c.launch, "halves": c.halves, "splits": len(result.prepared.splits),
        **figures({each: r.seconds for each, r in results.items()}, c.tokens * c.batch),
        "shares": shares(result.trace), "logits_differ": difference,
        "graphs": {name: sum(split[name] for split in result.graphs) for name in OUTCOMES},
    }  # fmt: skip
    if c.prompt:
        seconds = {each: prompt_seconds(r) for each, r in results.items()}
        found["prompt"] = figures(seconds, sum(c.prompts.lengths))
    return found


def measure(options: argparse.Namespace, name: str) -> list[dict[str, Any]]:
    chosen = configurations(options, name)
    few = [replace(c, tokens=4, repeats=1, warmup=0) for c in chosen]
    both = execute([*chosen, *few], keep_logits=few)
    results, differences = both[: len(chosen)], logits_differ(both[len(chosen) :])
    by = {result.configuration: result for result in results}
    return [
        {"placement": name, **row(result, by, difference)}
        for result, difference in zip(results, differences, strict=True)
    ]


def show(found: dict[str, Any]) -> None:
    rate, speedup = found["tokens_per_s"], found["over_sccc"]
    graphs = ", ".join(f"{count} {name}" for name, count in found["graphs"].items() if count) or "no graphs"
    print(
        f"{found['placement']:8} {found['strategy']:6} {found['policy']:8} {found['splits']:3} splits "
        f"{rate['median']:8.1f} [{rate['low']:.1f} {rate['high']:.1f}]  over sccc {speedup['median']:.3f} "
        f"[{speedup['low']:.3f} {speedup['high']:.3f}]  over eager {found['over_eager']['median']:.3f}  "
        f"differ {found['logits_differ']:.1g}  {graphs}  "
        + (f"over whole {found['over_whole']['median']:.3f}  " if found["halves"] else "")
        + ", ".join(f"{state} {share:.1%}" for state, share in found["shares"].items()),
        flush=True,
    )
    if "prompt" in found:
        rate, speedup, kept = (found["prompt"][name] for name in ("tokens_per_s", "over_sccc", "over_eager"))
        print(
            f"{'':8} prompt {rate['median']:8.1f} [{rate['low']:.1f} {rate['high']:.1f}]  over sccc "
            f"{speedup['median']:.3f} [{speedup['low']:.3f} {speedup['high']:.3f}]  over eager {kept['median']:.3f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--model", default="llama-1.1b")
    parser.add_argument("--placements", default="0,25,50,75,100")
    parser.add_argument("--strategies", default=",".join(STRATEGIES), help="`sccc` (the baseline) and others")
    parser.add_argument("--policies", default=",".join(POLICIES), help="`eager` (the baseline) and others")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--concurrency", default="sequential")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--halves", action="store_true", help="each configuration with and without --halves of `run`")
    parser.add_argument("--prompt", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--pinned", action="store_true")
    parser.add_argument("--seconds", type=float, help="start no placement after this time")
    parser.add_argument("--commit", default=commit())
    parser.add_argument("--json", type=Path, help="save the result here, anew after each placement (with a GPU)")
    options = parser.parse_args()
    if options.json and options.backend != "cuda":
        parser.error("--json records the GPU and needs --backend cuda")
    if "eager" not in options.policies.split(",") or "sccc" not in options.strategies.split(","):
        parser.error("--policies must include `eager` and --strategies `sccc`, the baselines")
    started = time.monotonic()
    rows: list[dict[str, Any]] = []
    for name in options.placements.split(","):
        if options.seconds and time.monotonic() - started > options.seconds:
            print(f"no time for {name}")
            continue
        for found in measure(options, name):
            rows.append(found)
            show(found)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"{time.monotonic() - started:.0f} s, at most {peak:.1f} GiB of the host's memory", flush=True)
        if options.json:
            result = {
                "model": options.model, "devices": options.devices, "batch": options.batch, "prompt": options.prompt,
                "tokens": options.tokens,
                "repeats": options.repeats, "threads": options.threads or default_threads(), "pinned": options.pinned,
                "host_peak_gib": round(peak, 1), "rows": rows,
            }  # fmt: skip
            save(options.json, "gpu_hybrid", load_cuda(), options.commit, result)


if __name__ == "__main__":
    main()
