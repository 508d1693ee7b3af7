"""The light pass of our own loop: its gap beside the untraced period minus the busy time, its cost and its logits.

Rounds without a recorder (in this process) and under the light recorder (in one of its own) alternate. The busy time of
a step comes from the stamps of its graph, without the time of the stamps themselves, which the recorder measures.
Usage: python benchmarks/executor_light.py [--model llama-1.1b] [--rounds 4] [--json FILE]          needs a GPU
"""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from gpu_machine import commit, interval, save

from executor.backends.cuda.library import load_cuda
from executor.run import Result, execute
from executor.run.configuration import Configuration, combinations
from executor.run.light_pass import record_light
from tracer import Trace
from tracer.analysis.gaps import gap_report
from tracer.analysis.tokens import find_steps

STAMP = re.compile(r"a device stamp takes ([\d.]+) µs, and ([\d.]+) µs until the next node")


def untraced(chosen: list[Configuration]) -> list[Result]:
    """Run without a recorder."""
    return execute(chosen, make_recorder=lambda: None)


def stamps_us(trace: Trace) -> float:
    """Return the time that two stamps add to a graph, µs."""
    costs = [sum(map(float, found.groups())) for note in trace.notes if (found := STAMP.search(note))]
    return 2 * max(costs, default=0.0)


def periods_us(result: Result) -> list[float]:
    return [1e6 * seconds / result.configuration.tokens for seconds in result.seconds]


def logits_equal(chosen: list[Configuration]) -> bool:
    """Return whether the logits under the recorder are those without, bit by bit."""
    short = [replace(c, tokens=8, repeats=1) for c in chosen]
    pairs = zip(record_light(short, keep_logits=short), execute(short, keep_logits=True), strict=True)
    return all(a.logits is not None and b.logits is not None and np.array_equal(a.logits, b.logits) for a, b in pairs)


def measure(chosen: list[Configuration], rounds: int) -> list[dict[str, Any]]:
    """Return a row per configuration."""
    pairs: list[tuple[list[Result], list[Result]]] = []
    for number in range(rounds):
        turns = (untraced, record_light) if number % 2 else (record_light, untraced)
        found = {turn: turn(chosen) for turn in turns}
        pairs.append((found[untraced], found[record_light]))
    rows = []
    for n, configuration in enumerate(chosen):
        plain = [us for without, _ in pairs for us in periods_us(without[n])]
        recorded = [us for _, light in pairs for us in periods_us(light[n])]
        traces = [light[n].trace for _, light in pairs]
        reports = [gap_report(trace, find_steps(trace)) for trace in traces]
        busy = [report.compute_us - stamps_us(trace) for report, trace in zip(reports, traces, strict=True)]
        rows.append({
            "run": configuration.name, "untraced_period_us": interval(plain), "light_period_us": interval(recorded),
            "slower": float(np.median(recorded) / np.median(plain) - 1),
            "gap_p50_us": interval([report.gap_us["p50"] for report in reports]),
            "gap_mean_us": interval([report.gap_us["mean"] for report in reports]),
            "busy_us": interval(busy), "stamps_us": stamps_us(traces[0]),
            "period_less_busy_us": float(np.median(plain) - np.median(busy)),
            "clock": traces[0].metadata["clock"], "notes": traces[0].notes,
        })  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-1.1b")
    parser.add_argument("--strategies", default="sccc,saaas,aaag,ggg")
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--commit", default=commit())
    parser.add_argument("--json", type=Path, help="save the result here")
    options = parser.parse_args()
    base = Configuration("cuda", options.model, tokens=options.tokens, repeats=options.repeats, warmup=10)
    chosen = combinations(base, options.strategies.split(","), ["sequential"])
    rows, same = measure(chosen, options.rounds), logits_equal(chosen)
    print(f"{'run':36} gap p50   mean   period - busy   untraced period   slower")
    for row in rows:
        print(
            f"{row['run']:36} {row['gap_p50_us']['median']:7.1f} {row['gap_mean_us']['median']:6.1f}"
            f"   {row['period_less_busy_us']:13.1f}   {row['untraced_period_us']['median']:15.1f}"
            f"   {row['slower']:+.2%}"
        )
    print(f"logits {'equal' if same else 'DIFFER'}", flush=True)
    if options.json:
        save(options.json, "executor_light", load_cuda(), options.commit, {"runs": rows, "logits_equal": same})


if __name__ == "__main__":
    main()
