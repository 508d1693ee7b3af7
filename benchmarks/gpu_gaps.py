"""The inter-token gap by strategy and recorder: the light pass, our graph and node passes, nsys at both levels.

Every figure is the median gap of the same decode loop, with each recorder in a separate process. The causes of the
light pass add up to its mean gap. A run without recorder shows the overhead of the light pass itself.
Usage: python benchmarks/gpu_gaps.py [--model llama-1.1b] [--tokens 150] [--repeats 5] [--runs DIR] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from gpu_machine import commit, interval, save
from under_nsys import profile

from executor.backends.cuda.library import load_cuda
from executor.run import execute
from executor.run.configuration import Configuration, combinations
from executor.run.directory import write_run
from executor.run.light_pass import record_light
from executor.run.passes import pass_figures, record_traced
from executor.scheduling.strategies import STRATEGIES
from tracer.errors import RecordError
from tracer.formats import nsys_parquet
from tracer.recorders import foreground

LOOKERS = ("light", "graph", "node", "nsys graph", "nsys node")


def light_overhead(configuration: Configuration, rounds: int) -> dict[str, Any]:
    """Return the period in the light pass over the period without a recorder, rounds in turn."""
    ratios = []
    for _ in range(rounds):
        (recorded,) = record_light([configuration])
        (without,) = execute([configuration], make_recorder=lambda: None)
        ratios.append(statistics.median(recorded.seconds) / statistics.median(without.seconds))
    return interval(ratios, digits=4)


def under_nsys(configuration: Configuration, level: str, run: dict[str, Any], target: Path) -> dict[str, Any]:
    """Run the same loop under `nsys profile`, without our recorders."""
    order = json.dumps({"configuration": asdict(configuration), "run": run})
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(order)
        file.flush()
        child = f"{sys.executable} -m executor.run.passes none - < {file.name}"
        trace, code = profile(["bash", "-c", child], level)
    if code:
        raise RecordError(f"the loop failed under nsys (exit code {code})")
    trace.metadata["run"] = run
    nsys_parquet.write(trace, target)
    return pass_figures(trace)


def measure(options: argparse.Namespace, runs: Path) -> list[dict[str, Any]]:
    base = Configuration(
        backend="cuda", model=options.model, tokens=options.tokens, repeats=options.repeats, warmup=10
    )  # fmt: skip
    chosen = combinations(base, STRATEGIES, ["sequential", "branches"])
    chosen += combinations(replace(base, sampling="device"), ["aaag", "aga"], ["sequential"])
    results = record_light(chosen)
    rows = []
    for result in results:
        configuration = result.configuration
        path = write_run(result, runs)
        figures = record_traced(configuration, path)
        if configuration.concurrency == "sequential" and configuration.sampling == "host" and foreground.has_nsys():
            short = Configuration(**asdict(configuration) | {"tokens": 40, "repeats": 1})
            run = json.loads((path / nsys_parquet.RUN_FILE).read_text(encoding="utf-8"))
            for level in ("graph", "node"):
                figures[f"nsys {level}"] = under_nsys(short, level, run, runs / f"{configuration.name}-nsys-{level}")
        rate = interval([configuration.tokens / seconds for seconds in result.seconds])
        clock = result.trace.metadata["clock"]
        rows.append({"run": configuration.name, "tokens_per_s": rate, "passes": figures, "clock": clock})
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    print(f"{'gap p50, µs':38}" + "".join(f"{name:>12}" for name in LOOKERS) + "   tokens/s   overhead graph/node")
    for row in rows:
        passes = row["passes"]
        gaps = "".join(
            f"{passes[n]['gap_us']['p50']:12.1f}" if "gap_us" in passes.get(n, {}) else f"{'–':>12}" for n in LOOKERS
        )
        seen = "/".join(f"{passes[n].get('distortion') or 0:.2f}" for n in ("graph", "node"))
        rate = row["tokens_per_s"]
        print(f"{row['run']:38}{gaps}   {rate['median']:.0f} [{rate['low']:.0f} {rate['high']:.0f}]  {seen}")
    for row in rows:
        light = row["passes"]["light"]
        causes = "  ".join(f"{name} {us:.1f}" for name, us in light["causes_us"].items())
        error = row["clock"].get("device_error_ns", -1)
        print(f"{row['run']:38} mean {light['gap_us']['mean']:6.1f} = {causes}   (clocks within {error} ns)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-1.1b")
    parser.add_argument("--tokens", type=int, default=150)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--runs", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(options, options.runs or Path(folder))
    show(rows)
    base = Configuration(backend="cuda", model=options.model, tokens=options.tokens, repeats=3, warmup=10)
    overhead = {
        c.strategy: light_overhead(c, options.repeats)
        for c in combinations(base, ["sccc", "aaag", "aga", "ggg"], ["sequential"])
    }
    for name, ratio in overhead.items():
        print(f"light pass / no recorder, {name}: {ratio['median']:.4f} [{ratio['low']:.4f} {ratio['high']:.4f}]")
    if options.json:
        result = {"model": options.model, "tokens": options.tokens, "runs": rows, "light_over_no_recorder": overhead}
        save(options.json, "gpu_gaps", load_cuda(), commit(), result)


if __name__ == "__main__":
    main()
