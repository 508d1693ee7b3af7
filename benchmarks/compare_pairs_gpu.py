"""How often `compare` calls a program faster or slower than itself, and how much its processes differ.

A command is recorded RUNS times by the light recorder, each time in a new process. Every two recordings are a pair of
one program: each verdict but "no difference shown" is false. So is one of three recordings against three others. The
standard deviations between processes of the time that the device computes, and that it idles, are what
`tracer/analysis/processes.py` has for the engine. Only the numbers are kept.

Pairs of the same recordings are not independent: seven recordings give 21 pairs, and 40 give 20 pairs that are.

Usage: python benchmarks/compare_pairs_gpu.py NAME -o FILE [--runs 7] [--after S] [--seconds S] [--keep FOLDER] -- \
           COMMAND...
       python benchmarks/compare_pairs_gpu.py NAME -o FILE --read FOLDER      recordings that were made elsewhere
Example, once for each engine: python benchmarks/compare_pairs_gpu.py llama.cpp -o pairs.json --runs 12 --seconds 2 -- \
             ./llama-bench -m model.gguf -p 0 -n 512 -r 1 -ngl 99
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from record_engines import machine

from tracer import analyse
from tracer.analysis.compare import Comparison, Side, compare
from tracer.analysis.recorded import Measured
from tracer.errors import TraceError

LIMIT = 300  # s per run


def recorded(command: Sequence[str], runs: int, window: Sequence[str], folder: Path) -> list[Path]:
    """The recordings of as many processes; those that fail are left out."""
    made = []
    for number in range(runs):
        target = folder / f"{number:02d}"
        line = [sys.executable, "-m", "intertoken", "record", "-o", str(target), *window, "--", *command]
        done = subprocess.run(line, capture_output=True, text=True, timeout=LIMIT, check=False)
        if target.exists():
            made.append(target)
        else:
            print(f"run {number}: {done.stderr.strip()[-300:]}", flush=True)
    return made


def measured(paths: Sequence[Path]) -> list[Measured]:
    """The recordings that have steps, measured."""
    found = []
    for path in paths:
        try:
            found.append(analyse(path, name=path.name).measured)
        except TraceError as error:
            print(f"{path.name}: {error}", flush=True)
    return found


def shares(found: Sequence[Comparison]) -> dict[str, Any]:
    """How many verdicts are false, intervals hold 1, and half the median interval, %."""
    intervals = [each.speedup for each in found if each.speedup is not None and each.speedup.bounds]
    widths = [(high - low) / 2 for low, high in (one.bounds for one in intervals if one.bounds)]
    kernels = [int((each.kernels.verdict != "").sum()) for each in found]
    return {
        "pairs": len(found),
        "false": sum(each.verdict in ("faster", "slower") for each in found),
        "holds_1": sum(one.holds(1.0) for one in intervals),
        "half_width_percent": round(100 * float(np.median(widths)), 2) if widths else None,
        "pairs_with_a_kernel": sum(count > 0 for count in kernels),
    }


def deviation(values: Sequence[float]) -> float:
    """Relative standard deviation."""
    return round(float(np.std(values, ddof=1) / np.mean(values)), 5)


def summary(runs: Sequence[Measured]) -> dict[str, Any]:
    """What the pairs show, and how much the processes differ."""
    sides = [Side.of(run) for run in runs]
    apart = [compare(*sides[at : at + 2]) for at in range(0, len(sides) - 1, 2)]
    three = [Side.of(*runs[at : at + 3]) for at in range(0, len(runs) - 2, 3)]
    busy, period = ([run.steps.mean(name) for run in runs] for name in ("busy", "period"))
    idle = np.subtract(period, busy)
    return {
        "engine": runs[0].engine,
        "recordings": len(runs),
        "steps": int(np.median([len(run.steps) for run in runs])),
        "one_a_side": shares([compare(base, other) for base, other in combinations(sides, 2)]),
        "one_a_side, each used once": shares(apart),
        "three_a_side": shares([compare(base, other) for base, other in combinations(three, 2)]),
        "between_processes": {
            "rate": deviation([run.steps_per_s for run in runs]),
            "busy": deviation(busy),
            "idle": deviation(idle.tolist()),
            "idle_share": round(float(idle.sum() / np.sum(period)), 4),
        },
        "period_us": [round(each, 2) for each in period],
        "busy_us": [round(each, 2) for each in busy],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--after", type=float, help="seconds of each program before the recording")
    parser.add_argument("--seconds", type=float, help="of each recording")
    parser.add_argument("--keep", type=Path, help="keep the recordings in this folder")
    parser.add_argument("--read", type=Path, help="the folder of recordings that were made before")
    parser.add_argument("command", nargs="*")
    arguments = parser.parse_args()
    window = [f"--{name}={value}" for name in ("after", "seconds") if (value := getattr(arguments, name)) is not None]
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        made = arguments.read and sorted(arguments.read.iterdir())
        runs = measured(made or recorded(arguments.command, arguments.runs, window, folder))
    if len(runs) < 2:
        sys.exit(f"{arguments.name}: {len(runs)} recordings with steps; at least two are needed")
    of_machine = {"gpu": runs[0].conditions.get("gpu")} if arguments.read else machine()
    found = {"date": datetime.date.today().isoformat(), **of_machine, "command": arguments.command, **summary(runs)}
    kept = json.loads(arguments.output.read_text()) if arguments.output.exists() else {}
    arguments.output.write_text(json.dumps(kept | {arguments.name: found}, indent=1) + "\n")
    print("program     recordings  pairs  false  hold 1  ± %    three a side  false  rate sd  busy sd  idle sd")
    for name, each in (kept | {arguments.name: found}).items():
        one, three, sd = each["one_a_side"], each["three_a_side"], each["between_processes"]
        print(
            f"{name:12s}{each['recordings']:10d}{one['pairs']:7d}{one['false']:7d}{one['holds_1']:8d}"
            f"{one['half_width_percent'] or float('nan'):7.2f}{three['pairs']:14d}{three['false']:7d}"
            f"{sd['rate']:9.4f}{sd['busy']:9.5f}{sd['idle']:9.3f}"
        )


if __name__ == "__main__":
    main()
