"""Record a program under nsys and run it without a profiler, in turn: pairs of a recording and its untraced rate.

The command runs as it is, under nsys at graph level, as it is, under nsys at node level, and as it is again, `--rounds`
times; the rates are those that it prints (`--rate`, a regular expression whose first group is steps/s; of several
matches the median is taken, or with `--each` there is one per window). Reports are OUT/NAME-LEVEL*.nsys-rep, exported
to SQLite at the end; OUT/NAME.json holds the rates. What an estimate of the untraced gap is tested on
(`gap_estimate.py`).

Usage: python benchmarks/record_pairs.py -o OUT --name NAME --rate REGEX [--traced ARGUMENTS] -- COMMAND...
A command that opens its own window (cudaProfilerStart) when traced gets --traced with the arguments for it. Needs nsys.
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
LIMIT: Final = 200  # s a run


def rates_of(text: str, pattern: str, each: bool) -> list[float]:
    """What a run printed: steps/s of each window, or their median."""
    found = [float(match) for match in re.findall(pattern, text)]
    return found if each or not found else [statistics.median(found)]


def ran(command: list[str], log: Path) -> str:
    """What a command printed; what went wrong goes to the log and costs this run alone."""
    try:
        done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT)
        text = done.stdout + ("" if done.returncode == 0 else f"\nexit code {done.returncode}\n")
    except subprocess.TimeoutExpired as problem:
        text = f"{problem.output or ''}\ntook longer than {LIMIT} s\n"
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ {shlex.join(command)}\n{text}\n")
    return text


def pairs(options: argparse.Namespace) -> dict[str, Any]:
    """The rates without a profiler, in the order of the runs, and those under nsys."""
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
    parser.add_argument("--each", action="store_true", help="a rate per window, in the order in which they are printed")
    parser.add_argument("--traced", default="", help="more arguments for the runs under nsys")
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
