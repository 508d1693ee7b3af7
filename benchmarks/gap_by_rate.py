"""The gap that a recording at graph level gives with the untraced rate, beside the true one, of one loop.

For each strategy a process runs the decode loop without anything and under the light pass in turn, another one (CUPTI
needs it from its first call on) under CUPTI at graph level. The rate of the first, put to the recording of the other,
gives a gap (`gaps --untraced-tokens-per-s`); the light pass has the true one.
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


def true(configuration: Configuration, rounds: int) -> dict[str, Any]:
    """Steps/s without anything, and the mean gaps of the light pass, in this process."""
    rates, gaps = [], []
    for _ in range(rounds):
        rates += [configuration.tokens / seconds for seconds in unrecorded_pass(configuration)]
        (result,) = execute([configuration])
        gaps.append(gap_report(result.trace, find_steps(result.trace)).gap_us["mean"])
    return {"rates": rates, "light_us": gaps}


def by_rate(configuration: Configuration, rate: float) -> dict[str, Any]:
    """The recorded gap and that by the rate, in this process."""
    trace, _ = recorded_pass("graph", configuration, SETS["lean"])
    report = gap_report(trace, find_steps(trace), rate)
    return {"recorded_us": report.gap_us["mean"], "by_rate_us": (report.untraced_gap_us or {}).get("mean")}


def apart(configuration: Configuration, *arguments: str) -> dict[str, Any]:
    """What a process of its own prints."""
    command = [sys.executable, __file__, "--one", json.dumps(asdict(configuration)), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{configuration.name} failed: {done.stderr.strip().splitlines()[-1:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-1.1b")
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", help="a configuration as JSON, in this process")
    parser.add_argument("--rate", type=float, help="steps/s: record it")
    options = parser.parse_args()
    if options.one:
        configuration = Configuration(**json.loads(options.one))
        found = by_rate(configuration, options.rate) if options.rate else true(configuration, options.rounds)
        print(json.dumps(found))
        return
    base = Configuration(backend="cuda", model=options.model, tokens=options.tokens, repeats=2, warmup=10)
    chosen = combinations(base, STRATEGIES, ["sequential"])
    chosen += combinations(replace(base, sampling="device"), ["aaag", "aga"], ["sequential"])
    rows = []
    for configuration in chosen:
        truth = apart(configuration, "--rounds", str(options.rounds))
        rate, light = (statistics.median(truth[name]) for name in ("rates", "light_us"))
        told = apart(configuration, "--rate", str(rate))
        error = None if told["by_rate_us"] is None else told["by_rate_us"] / light - 1
        rows.append({"run": configuration.name, "rate": rate, "error": error, **truth, **told})
        words = "withheld" if error is None else f"{told['by_rate_us']:6.1f} µs ({error:+.1%})"
        print(f"{configuration.name:42} light {light:6.1f}  by the rate {words}", flush=True)
    errors = [abs(row["error"]) for row in rows if row["error"] is not None]
    within = sum(error <= 0.05 for error in errors)
    print(f"{within} of {len(rows)} within 5 %, median {statistics.median(errors):.1%}")
    if options.json:
        save(options.json, "gap_by_rate", load_cuda(), commit(), {"model": options.model, "runs": rows})


if __name__ == "__main__":
    main()
