"""Time that our traced passes add to a token of the decode loop, compared with nsys on the same loop.

Each configuration runs in a separate process, rounds are interleaved, and the added time is relative to the unrecorded
loop of the same round. `lean` is the default of the traced passes, `all` records every kind.
Usage: python benchmarks/pass_overhead.py [--model llama-1.1b] [--sync sccc] [--rounds 7] [--json FILE]
Needs a GPU, and nsys on PATH.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpu_machine import commit, interval, save

from executor.backends.cuda.library import load_cuda
from executor.run.configuration import Configuration
from executor.run.passes import recorded_pass, unrecorded_pass
from tracer.recorders.cupti_records import SETS

LEVELS = ("node", "graph")


def child(name: str, order: str) -> None:
    """Run one loop in this process and print µs per token of its median repeat."""
    configuration = Configuration(**json.loads(order))
    level, _, kind = name.partition(" ")
    seconds = recorded_pass(level, configuration, SETS[kind])[1] if kind in SETS else unrecorded_pass(configuration)
    print(json.dumps(statistics.median(seconds) / configuration.tokens * 1e6))


def us_per_token(name: str, order: str, directory: str) -> float:
    command = [sys.executable, __file__, "--child", name, "--order", order]
    if name.endswith("nsys"):
        level = name.split()[0]
        options = ["--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none", f"--cuda-graph-trace={level}"]
        command = ["nsys", "profile", *options, "--force-overwrite=true", "-o", f"{directory}/{level}", *command]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(next(line for line in output.splitlines() if line[:1].isdigit() and line.count(".") == 1))


def measure(configuration: Configuration, rounds: int) -> dict[str, Any]:
    order = json.dumps(asdict(configuration))
    names = ["none", *(f"{level} {who}" for level in LEVELS for who in (*SETS, "nsys"))]
    times: dict[str, list[float]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as directory:
        for _ in range(rounds):
            for name in names:
                times[name].append(us_per_token(name, order, directory))
    added = {n: [t - none for t, none in zip(times[n], times["none"], strict=True)] for n in names[1:]}
    ratios = {
        n: interval([us / theirs for us, theirs in zip(added[n], added[f"{n.split()[0]} nsys"], strict=True)])
        for n in added
        if not n.endswith("nsys")
    }
    return {
        "us_per_token": {n: interval(t) for n, t in times.items()},
        "added_us": {n: interval(t) for n, t in added.items()},
        "of_nsys": ratios,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-1.1b")
    parser.add_argument("--sync", default="sccc")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--commit", default=commit())
    parser.add_argument("--json", type=Path, help="save the result here")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--order", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.order)
        return
    configuration = Configuration(
        backend="cuda", model=options.model, strategy=options.sync, tokens=40, repeats=9, warmup=20
    )
    result = measure(configuration, options.rounds)
    none = result["us_per_token"]["none"]
    print(f"{options.sync}: none {none['median']:6.1f} us per token [{none['low']} {none['high']}]")
    for name, added in result["added_us"].items():
        ratio = result["of_nsys"].get(name)
        share = f"{ratio['median']:5.2f} x nsys [{ratio['low']} {ratio['high']}]" if ratio else ""
        print(f"{name:12} {added['median']:+6.1f} [{added['low']:+.1f} {added['high']:+.1f}]   {share}")
    if options.json:
        result |= {"model": options.model, "strategy": options.sync, "rounds": options.rounds}
        save(options.json, "pass_overhead", load_cuda(), options.commit, result)


if __name__ == "__main__":
    main()
