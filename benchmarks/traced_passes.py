"""What the traced passes of `intertoken record` cost, beside nsys, and whether both count the same.

The command runs alone, under the graph and node pass, and under nsys at both levels, `--rounds` times in turn. It
prints its rate (`--rate`, a regular expression whose first group is steps/s; the median of several matches, without the
first). Counts are per step, over the middle half of the steps that each recording shows.

Usage: python benchmarks/traced_passes.py -o FILE --rate REGEX [--rounds N] [--ways WAY,...] -- COMMAND...
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from light_counts import per_step
from light_recorder import rate_of
from record_engines import machine

from tracer.analysis.gaps import gap_report
from tracer.analysis.tokens import find_steps
from tracer.errors import TraceError
from tracer.formats import nsys_sqlite, read
from tracer.model.trace import Trace
from tracer.recorders import foreground
from tracer.recorders.foreground import run

WAYS: Final = ("none", "graph", "node", "nsys-graph", "nsys-node")


def ran(way: str, command: list[str], folder: Path) -> tuple[str, Trace | None, float]:
    """Run the command once in a way; return its output, the recording, and the seconds that this took."""
    target, output = folder / way, folder / "output"
    shell = ["sh", "-c", 'exec "$@" > "$0"', str(output), *command]
    intertoken = [sys.executable, "-m", "intertoken", "record", "--force", "-o", str(target), "--passes"]
    begun = time.monotonic()
    if way.startswith("nsys"):
        report = folder / f"{way}.nsys-rep"
        report.unlink(missing_ok=True)
        foreground.run_under_nsys(shell, way.removeprefix("nsys-"), report)
        trace = nsys_sqlite.read_report(report) if report.exists() else None
    else:
        run(shell if way == "none" else [*intertoken, way, "--", *shell])
        trace = read(target) if way != "none" and target.exists() else None
    return output.read_text(errors="replace"), trace, time.monotonic() - begun


def figures(trace: Trace) -> dict[str, Any]:
    """Return what a recording shows: counts per step, period, idle time and gap, and its notes."""
    found: dict[str, Any] = {"events": len(trace), "notes": trace.notes}
    try:
        report = gap_report(trace, find_steps(trace))
    except TraceError as problem:
        return {**found, "why": str(problem)}
    figures_us = {"period_us": report.period_us, "gap_us": float(report.table["gap"].median()) / 1e3}
    return {**found, "per_step": per_step(trace), **{name: round(us, 2) for name, us in figures_us.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--rate", required=True, help="regular expression, group 1 is steps/s")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", type=lambda text: text.split(","), default=list(WAYS))
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    rates: dict[str, list[float]] = {way: [] for way in options.ways}
    shown: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            for way in options.ways if number % 2 == 0 else options.ways[::-1]:
                text, trace, took = ran(way, options.command, Path(folder))
                rates[way].append(round(rate_of(text, options.rate), 2) if re.search(options.rate, text) else 0.0)
                if trace is not None:
                    shown[way] = {**figures(trace), "took_s": round(took, 1)}
    for way, found in rates.items():
        slower = statistics.median(rates.get("none", found)) / (statistics.median(found) or float("nan")) - 1
        others = {name: value for name, value in shown.get(way, {}).items() if name != "per_step"}
        print(f"{way:11} {found} {slower:+.1%}  {others}")
    for name in sorted({name for each in shown.values() for name in each.get("per_step", {})}):
        print(f"{name:24}" + "".join(f"{way}={each.get('per_step', {}).get(name, 0)}  " for way, each in shown.items()))
    facts = {
        "date": datetime.date.today().isoformat(),
        "command": [Path(each).name if each.startswith("/") else each for each in options.command],
        **machine(), "steps_per_s": rates, "shown": shown,
    }  # fmt: skip
    options.output.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
