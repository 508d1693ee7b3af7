"""The gap that a recording at graph level gives with the untraced rate, beside the true one, in one process.

For each strategy a process runs the same decode loop without anything and under the light pass in turn, and then under
CUPTI at graph level. The rate of the first, put to the recording of the last, gives a gap (`gaps
--untraced-tokens-per-s`); the light pass has the true one.
Usage: python benchmarks/gap_by_rate.py [--model NAME] [--tokens N] [--rounds N] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from gpu_machine import commit, save

from executor.backends.cuda_runtime import load_cuda
from executor.configuration import Configuration, combinations
from executor.run import execute
from executor.strategies import STRATEGIES
from executor.traced_pass import recorded_pass, unrecorded_pass
from tracer.analysis.gaps import gap_report
from tracer.analysis.tokens import find_steps
from tracer.recorders.cupti_layout import SETS


def measured(configuration: Configuration, rounds: int) -> dict[str, Any]:
    """One strategy, in this process."""
    rates, light = [], []
    for _ in range(rounds):
        rates += [configuration.tokens / seconds for seconds in unrecorded_pass(configuration)]
        (result,) = execute([configuration])
        light.append(gap_report(result.trace, find_steps(result.trace)).gap_us)
    traced, _ = recorded_pass("graph", configuration, SETS["lean"])
    rate = statistics.median(rates)
    report = gap_report(traced, find_steps(traced), rate)
    true = statistics.median(each["mean"] for each in light)
    told = (report.untraced_gap_us or {}).get("mean")
    return {
        "run": configuration.name, "rate": [rate, min(rates), max(rates)], "light_us": true,
        "light_us_each": [each["mean"] for each in light], "recorded_us": report.gap_us["mean"], "by_rate_us": told,
        "error": None if told is None else told / true - 1,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-1.1b")
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", help="a configuration as JSON, in this process")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measured(Configuration(**json.loads(options.one)), options.rounds)))
        return
    base = Configuration(backend="cuda", model=options.model, tokens=options.tokens, repeats=2, warmup=10)
    chosen = combinations(base, STRATEGIES, ["sequential", "branches"])
    chosen += combinations(replace(base, sampling="device"), ["aaag", "aga"], ["sequential"])
    rows = []
    for configuration in chosen:
        one = json.dumps(asdict(configuration))
        command = [sys.executable, __file__, "--one", one, "--rounds", str(options.rounds)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(configuration.name, "failed:", done.stderr.strip().splitlines()[-1:])
            continue
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        row = rows[-1]
        told = "withheld" if row["error"] is None else f"{row['by_rate_us']:6.1f} ({row['error']:+.1%})"
        print(f"{row['run']:42} light {row['light_us']:6.1f}  by the rate {told}", flush=True)
    errors = [abs(row["error"]) for row in rows if row["error"] is not None]
    within = sum(error <= 0.05 for error in errors)
    print(f"{within} of {len(rows)} within 5 %, median {statistics.median(errors):.1%}")
    if options.json:
        save(options.json, "gap_by_rate", load_cuda(), commit(), {"model": options.model, "runs": rows})


if __name__ == "__main__":
    main()
