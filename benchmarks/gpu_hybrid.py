"""Speed-up by strategies and graph plans for steps cut into splits: layers or experts on the host, or several GPUs.

All configurations of a placement run interleaved in this process and share its weights. Every repeat gives one rate,
and a speed-up is a repeat over one of the same round: that of `sccc` with the same policy, or of the same strategy
without graphs. All logits are compared with those of the first configuration. With `--prompt`, every repeat starts with
a prompt, whose rate is taken from its range in the recording.

`us` says what the time of a token consists of, from the recording of the same repeats: the host's products and
attention alone, the GPU alone (from head to tail of a split), both at once, and while neither computes, calls that
synchronise, copy or launch, and everything else. `saved_us` is what a configuration saves outside of the host's compute
compared with `sccc` or `eager` in the same repeat, also by state, and `host_saved_us` how much less the host computed:
the two say what hides a difference where a speed-up holds 1.00. A plan also pauses between the kernels of a split,
which count as the GPU's. With `--prompt` the same is said of the prompts. `aaeg` runs without staging, which it
replaces; `aga` needs the whole step on one device and takes part only in placement `all`.
Usage: python benchmarks/gpu_hybrid.py [--model llama-1.1b] [--placements 0,25,50,75,100] [--json FILE]
       python benchmarks/gpu_hybrid.py --model llama-8b --weights q8_0 --placements 75,50,25 --tokens 5
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
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
from gpu_machine import commit, interval, logits_differ, save

from executor.backends.cpu.compiled import default_threads
from executor.backends.cuda.library import load_cuda
from executor.graph.models import MODELS
from executor.planning.devices import BLOCK_NAME
from executor.run import Result
from executor.run.configuration import Configuration
from executor.run.light_pass import record_light
from executor.scheduling.launchers import OUTCOMES
from executor.scheduling.strategies import STRATEGIES as ALL
from tracer import Trace
from tracer.model.calls import BLOCKING_COPY, COPY, GRAPH_LAUNCH, LAUNCH, SYNC, letters_of
from tracer.model.columns import among
from tracer.model.intervals import Ints, intersection, total, uncovered, union
from tracer.model.schema import COMPUTE_TABLES, HOST_COMPUTE

STRATEGIES = ("sccc", "saaas", "aaas", "aaag", "aaeg", "aga")
POLICIES = ("eager", "graph", "rebuild")
HOST = ("both", "host")
OUTSIDE = ("gpu", "sync", "copy", "launch", "other")
STATES = HOST + OUTSIDE


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
        pinned=options.pinned, batch=options.batch, weights=options.weights, **placement(options.model, name),
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


def windows(trace: Trace, text: str) -> list[Spans]:
    """Return the token steps of each repeat, or the prompts, of which the first belongs to the warm-up."""
    ranges = trace["nvtx"].sort_values("start")
    texts = ranges["text"].astype(str)
    if text == "prefill":
        return [of(each) for _, each in ranges[texts == text].iloc[1:].groupby("start")]
    steps = of(ranges[(texts == text) & (ranges["end"] > ranges["start"])])
    return [intersection(steps, of(each)) for _, each in ranges[texts == "repeat"].groupby("start")]


def states(trace: Trace, text: str, count: int) -> dict[str, list[float]]:
    """Return the microseconds of each state in every repeat, divided by a count; the states are disjoint."""
    ranges, api = trace["nvtx"], trace["api"]
    letters = letters_of(api["name"])
    host = of(ranges[(ranges["domain"] == HOST_COMPUTE).to_numpy()])
    gpu = of(pd.concat([trace[name][["start", "end"]] for name in (*COMPUTE_TABLES, "graph_launches")]))
    known = {
        "both": intersection(host, gpu), "host": host, "gpu": gpu, "sync": of(api[letters == SYNC]),
        "copy": of(api[among(letters, [COPY, BLOCKING_COPY])]),
        "launch": of(api[among(letters, [LAUNCH, GRAPH_LAUNCH])]),
    }  # fmt: skip
    found: dict[str, list[float]] = {name: [] for name in STATES}
    for left in windows(trace, text):
        for name, spans in known.items():
            found[name].append(total(*intersection(left, spans)) / 1e3 / count)
            left = without(left, spans)
        found["other"].append(total(*left) / 1e3 / count)
    return found


def saved(base: Mapping[str, list[float]], own: Mapping[str, list[float]], names: Sequence[str]) -> dict[str, Any]:
    """Return how much less time own repeats spend in these states."""
    of_repeats = zip(*([b - o for b, o in zip(base[n], own[n], strict=True)] for n in names), strict=True)
    return interval([sum(each) for each in of_repeats], digits=1)


def prompt_seconds(result: Result) -> list[float]:
    """Return how long the prompts took in each repeat; the first prefill belongs to the warm-up."""
    ranges = result.trace["nvtx"]
    found = ranges[ranges["text"].astype(str) == "prefill"].sort_values("start")
    return ((found["end"] - found["start"]) / 1e9).tolist()[1:]


Taken = Mapping[Configuration, tuple[list[float], dict[str, list[float]]]]
"""Seconds, and microseconds by state, of each repeat."""


def figures(c: Configuration, taken: Taken, tokens: int) -> dict[str, Any]:
    """Return the rate of a configuration and what it saves compared with others."""
    bases = {"over_sccc": replace(c, strategy="sccc", staging=True), "over_eager": replace(c, launch="eager")}
    bases |= {"over_whole": replace(c, halves=False)} if c.halves else {}
    seconds, us = taken[c]
    found: dict[str, Any] = {"tokens_per_s": interval([tokens / s for s in seconds])}
    for name, base in bases.items():
        of_base, us_of_base = taken[base]
        found |= {
            name: interval([b / s for b, s in zip(of_base, seconds, strict=True)], digits=4),
            f"saved_us_{name}": saved(us_of_base, us, OUTSIDE),
            f"host_saved_us_{name}": saved(us_of_base, us, HOST),
            f"saved_by_state_us_{name}": {state: saved(us_of_base, us, [state])["median"] for state in OUTSIDE},
        }
    return found | {"us": {state: interval(each, digits=1) for state, each in us.items()}}


def measure(options: argparse.Namespace, name: str) -> list[dict[str, Any]]:
    chosen = configurations(options, name)
    few = [replace(c, tokens=4, repeats=1, warmup=0) for c in chosen]
    both = record_light([*chosen, *few], keep_logits=few)
    results, differences = both[: len(chosen)], logits_differ(both[len(chosen) :])
    steps = {r.configuration: (r.seconds, states(r.trace, "token", options.tokens)) for r in results}
    prompts = {r.configuration: (prompt_seconds(r), states(r.trace, "prefill", 1)) for r in results if options.prompt}
    rows = []
    for result, difference in zip(results, differences, strict=True):
        c = result.configuration
        found = {
            "placement": name, "strategy": c.strategy, "policy": c.launch, "halves": c.halves,
            "splits": len(result.prepared.splits), **figures(c, steps, c.tokens * c.batch),
            "logits_differ": difference,
            "graphs": {outcome: sum(split[outcome] for split in result.graphs) for outcome in OUTCOMES},
        }  # fmt: skip
        rows.append(found | ({"prompt": figures(c, prompts, sum(c.prompts.lengths))} if prompts else {}))
    return rows


def said(value: dict[str, Any]) -> str:
    return f"{value['median']:.0f} [{value['low']:.0f} {value['high']:.0f}]"


def show(found: dict[str, Any]) -> None:
    rate, speedup = found["tokens_per_s"], found["over_sccc"]
    graphs = ", ".join(f"{count} {name}" for name, count in found["graphs"].items() if count) or "no graphs"
    print(
        f"{found['placement']:8} {found['strategy']:6} {found['policy']:8} {found['splits']:3} splits "
        f"{rate['median']:8.1f} [{rate['low']:.1f} {rate['high']:.1f}]  over sccc {speedup['median']:.3f} "
        f"[{speedup['low']:.3f} {speedup['high']:.3f}]  over eager {found['over_eager']['median']:.3f}  "
        f"differ {found['logits_differ']:.1g}  {graphs}  "
        + (f"over whole {found['over_whole']['median']:.3f}  " if found["halves"] else "")
        + f"saves {said(found['saved_us_over_sccc'])} us beside the host's {said(found['host_saved_us_over_sccc'])}: "
        + ", ".join(f"{state} {us['median']:.0f}" for state, us in found["us"].items()),
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
    parser.add_argument("--weights", help="format of the weights [default: the model's]")
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
                "weights": options.weights, "tokens": options.tokens,
                "repeats": options.repeats, "threads": options.threads or default_threads(), "pinned": options.pinned,
                "host_peak_gib": round(peak, 1), "rows": rows,
            }  # fmt: skip
            save(options.json, "gpu_hybrid", load_cuda(), options.commit, result)


if __name__ == "__main__":
    main()
