"""Runs a program alternately under nsys and without a profiler: pairs of a recording and its untraced rate.

The command runs alone, under nsys at graph level, alone, under nsys at node level, and alone again, `--rounds` times.
It prints its rates (`--rate`, a regular expression whose first group is steps/s; the median of several matches, or with
`--each` one per window). Reports are OUT/NAME-LEVEL*.nsys-rep, exported to SQLite at the end; OUT/NAME.json holds the
rates. `tracing_overhead.py` reads these pairs.

Usage: python benchmarks/record_pairs.py -o OUT --name NAME --rate REGEX [--traced ARGUMENTS] -- COMMAND...
If the command opens its own window (cudaProfilerStart), pass the arguments for that as --traced. Needs nsys.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from record_engines import machine

NSYS: Final = ["nsys", "profile", "--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none", "--force-overwrite=true"]
WINDOW: Final = ["--capture-range=cudaProfilerApi", "--capture-range-end=repeat", "--trace-fork-before-exec=true"]
LIMIT: Final = 200  # s per run


def rates_of(text: str, pattern: str, each: bool) -> list[float]:
    """Return the steps/s of each window that a run printed, or their median."""
    found = [float(match) for match in re.findall(pattern, text)]
    return found if each or not found else [statistics.median(found)]


def ran(command: list[str], log: Path) -> str:
    """Return the output of a command. Failures are logged and affect only this run."""
    try:
        done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT)
        text = done.stdout + ("" if done.returncode == 0 else f"\nexit code {done.returncode}\n")
    except subprocess.TimeoutExpired as problem:
        text = f"{problem.output or ''}\ntook longer than {LIMIT} s\n"
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ {shlex.join(command)}\n{text}\n")
    return text


def pairs(options: argparse.Namespace) -> dict[str, Any]:
    """Return the rates without a profiler, in the order of the runs, and those under nsys."""
    log = options.output / f"{options.name}.log"
    traced = options.command + shlex.split(options.traced)
    untraced: list[list[float]] = []
    under: dict[str, list[list[float]]] = {level: [] for level in options.levels}

    def as_it_is() -> None:
        untraced.append(rates_of(ran(options.command, log), options.rate, options.each))

    as_it_is()
    for number in range(options.rounds):
        for level in options.levels:
            report = options.output / f"{options.name}-{level}{number or ''}"
            nsys = [*NSYS, f"--cuda-graph-trace={level}", *(WINDOW if options.traced else []), "-o", str(report)]
            under[level].append(rates_of(ran(nsys + traced, log), options.rate, options.each))
            as_it_is()
    return {
        "name": options.name, "command": options.command[1:], "untraced_steps_per_s": untraced,
        "steps_per_s_under_nsys": under, "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "environment": {key: os.environ[key] for key in ("LCPP_SYNC",) if key in os.environ}, "machine": machine(),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--rate", required=True, help="regular expression, group 1 is steps/s")
    parser.add_argument("--each", action="store_true", help="one rate per window, in the order printed")
    parser.add_argument("--traced", default="", help="additional arguments for the runs under nsys")
    parser.add_argument("--levels", type=lambda text: text.split(","), default=["graph", "node"])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    options.command = options.command[options.command[:1] == ["--"] :]
    options.output.mkdir(parents=True, exist_ok=True)
    found = pairs(options)
    (options.output / f"{options.name}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(options.name, found["untraced_steps_per_s"], found["steps_per_s_under_nsys"], file=sys.stderr)


if __name__ == "__main__":
    main()
