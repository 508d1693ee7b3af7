"""Overhead of the light recorder in any engine, and accuracy of its gap: runs with and without it, in turn.

The command runs without and with the recorder, `--pairs` times, with alternating order. It prints its rate (`--rate`, a
regular expression whose first group is steps/s; the median of several matches, without the first). The graph stamps of
the recorded runs give busy time and gap. The true gap is the untraced period minus that busy time. Core speed varies
between runs, so the fastest third of the runs of each kind is compared. Each case is `NAME[,VARIABLE=VALUE...]`, with
additional environment variables.

Usage: python benchmarks/light_recorder.py -o FILE --rate REGEX [--pairs N] [--case CASE ...] -- COMMAND...
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import statistics
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
from record_engines import machine

from tracer.recorders.light import environment, library, read_rings
from tracer.recorders.light_ring import folder
from tracer.recorders.light_work import stamped_work

LIMIT = 300  # s per run


def rate_of(text: str, pattern: str) -> float:
    """Return the steps/s of a run."""
    found = [float(match) for match in re.findall(pattern, text)]
    if not found:
        raise SystemExit(f"no rate in the output of the command: {text[-500:]}")
    return statistics.median(found[1:] or found)


def recorded(command: list[str], base: dict[str, str], pattern: str) -> dict[str, Any]:
    """Run once under the recorder; return the rate, and the figures of the stamps, µs."""
    with folder() as rings:
        given = environment(library(), rings, base)
        done = subprocess.run(command, env=given, capture_output=True, text=True, timeout=LIMIT, check=True)
        ring = max(read_rings(rings), key=lambda each: len(each.records))
        work = stamped_work(ring)
    graphs = work.table[work.table["graph"] > 0]
    start, end = graphs["start"].to_numpy(), graphs["end"].to_numpy()
    period, gap = np.diff(start), start[1:] - end[:-1]
    usual = period < 3 * np.median(period)
    clock, cost = work.alignments[0], work.costs[0]
    return {
        "rate": rate_of(done.stdout, pattern),
        "gap_us": round(float(np.median(gap[usual])) / 1e3, 2),
        "busy_us": round(float(np.median((end - start)[1:][usual])) / 1e3, 2),
        "period_us": round(float(np.median(period[usual])) / 1e3, 2),
        "stamp_us": None if cost is None else [cost.stamp / 1e3, cost.step / 1e3],
        "clock_error_us": None if clock is None or clock.error_ns is None else clock.error_ns / 1e3,
        "calls": ring.written,
        "counters": {name: count for name, count in ring.counters.items() if count},
    }


def interval(values: list[float]) -> list[float]:
    """Return the median and its 95 % bootstrap interval."""
    medians = np.median(np.random.default_rng(0).choice(values, (10_000, len(values))), axis=1)
    return [round(float(v), 4) for v in (np.median(values), *np.quantile(medians, (0.025, 0.975)))]


def case_of(name: str, command: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """Make all runs of a case."""
    name, *variables = name.split(",")
    base = {**os.environ, **dict(each.split("=", 1) for each in variables)}
    plain: list[float] = []
    under: list[dict[str, Any]] = []

    def as_it_is() -> None:
        done = subprocess.run(command, env=base, capture_output=True, text=True, timeout=LIMIT, check=True)
        plain.append(rate_of(done.stdout, options.rate))

    turns = (as_it_is, lambda: under.append(recorded(command, base, options.rate)))
    for pair in range(options.pairs):
        for turn in turns if pair % 2 else reversed(turns):
            turn()
    slowdown = interval([without / run["rate"] for without, run in zip(plain, under, strict=True)])
    third = max(options.pairs // 3, 1)
    fastest = sorted(under, key=lambda run: -run["rate"])[:third]
    period = 1e6 / statistics.mean(sorted(plain)[-third:])
    busy = statistics.median(run["busy_us"] for run in under)
    own = statistics.median(2 * run["stamp_us"][0] + 2 * run["stamp_us"][1] for run in under)
    found = {
        "case": name, "slowdown": slowdown, "gap_us": round(statistics.mean(r["gap_us"] for r in fastest), 2),
        "truth_us": round(period - (busy - own), 2), "busy_us": busy, "untraced_period_us": round(period, 2),
        "untraced": plain, "recorded": under,
    }  # fmt: skip
    percent = [round((value - 1) * 100, 2) for value in slowdown]
    truth = f"untraced period - busy {found['truth_us']} µs (fastest {third} of {options.pairs})"
    print(f"{name}: slowdown {percent[0]} % {percent[1:]}, gap {found['gap_us']} µs, {truth}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--rate", required=True)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--case", action="append", default=[])
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    cases = [case_of(each, options.command, options) for each in options.case or ["as it is"]]
    facts = {
        "date": datetime.date.today().isoformat(),
        **machine(),
        "command": Path(options.command[0]).name,
        "cases": cases,
    }
    options.output.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
