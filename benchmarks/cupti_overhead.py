"""Time that recording adds to a token: our CUPTI recorder compared with nsys, at node and graph level.

Every configuration runs the same program (cupti_program.py) in a separate process. Rounds are interleaved, and the
added time is relative to the unrecorded run of the same round. `all` records every kind, as nsys does; `lean` records
the kinds of the passes of `intertoken run`: kernels, graphs and API calls; `no copies` is in between; `kernels` is the
minimum.
Usage: python benchmarks/cupti_overhead.py [--rounds 7] [--json FILE]      needs a GPU, and nsys on PATH
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from gpu_machine import commit, interval, save

from executor.backends.cuda.library import load_cuda
from tracer.recorders.cupti_records import SETS

PROGRAM = [sys.executable, str(Path(__file__).with_name("cupti_program.py")), "--tokens", "8", "--times", "16"]
WARM_UP = 4  # blocks
KINDS = SETS | {"no copies": tuple(k for k in SETS["all"] if k != "memcpys"), "kernels": ("kernels",)}


def configurations(directory: str) -> dict[str, list[str]]:
    commands = {"none": PROGRAM}
    for level in ("node", "graph"):
        commands |= {
            f"{level} {name}": [*PROGRAM, "--record", level, "--kinds", ",".join(kinds)]
            for name, kinds in KINDS.items()
        }
        options = ["--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none", f"--cuda-graph-trace={level}"]
        commands[f"{level} nsys"] = [
            "nsys", "profile", *options, "--force-overwrite=true", "-o", f"{directory}/{level}", *PROGRAM
        ]  # fmt: skip
    return commands


def us_per_token(command: list[str]) -> float:
    """Return the median over the blocks of one process."""
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    facts = next(json.loads(line) for line in output.splitlines() if line.startswith("{"))
    return float(statistics.median(facts["us_per_token"][WARM_UP:]))


def measure(rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        commands = configurations(directory)
        times: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(rounds):
            for name, command in commands.items():
                times[name].append(us_per_token(command))
    added = {
        name: interval([t - none for t, none in zip(took, times["none"], strict=True)]) for name, took in times.items()
    }
    added.pop("none")
    ratios = {
        name: interval(
            [
                (our_time - none) / (other - none)
                for our_time, other, none in zip(took, times[f"{name.split()[0]} nsys"], times["none"], strict=True)
            ]
        )
        for name, took in times.items()
        if name != "none" and "nsys" not in name
    }
    return {"us_per_token": {n: interval(t) for n, t in times.items()}, "added_us": added, "of_nsys": ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--commit", default=commit())
    parser.add_argument("--json", type=Path, help="save the result here")
    options = parser.parse_args()
    result = measure(options.rounds)
    none = result["us_per_token"]["none"]
    print(f"{'none':16} {none['median']:6.1f} us per token [{none['low']} {none['high']}]")
    for name, added in result["added_us"].items():
        ratio = result["of_nsys"].get(name)
        share = f"{ratio['median']:5.2f} x nsys [{ratio['low']} {ratio['high']}]" if ratio else ""
        print(f"{name:16} {added['median']:+6.1f} [{added['low']:+.1f} {added['high']:+.1f}]   {share}")
    if options.json:
        save(options.json, "cupti_overhead", load_cuda(), options.commit, {"rounds": options.rounds, **result})


if __name__ == "__main__":
    main()
